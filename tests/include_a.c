/* include_a.c -- valid C and C++: <stdio.h> first, then the implementation; with include_b.c the
 * two translation units of CI's language and compiler matrix. Succeeds if it learnt XOR. */
#include <stdio.h>
#define MLCORE_IMPLEMENTATION
#include "mlcore.h"
#include "mlcore.h"

#ifdef __cplusplus
extern "C"
#endif
double include_b_xor(mlc_ctx *ctx);

int main(void)
{
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    double   share = include_b_xor(ctx);
    printf("%.0f of 4 right %s\n", 4 * share, mlc_error(ctx));
    mlc_ctx_free(ctx);
    return share == 1.0 ? 0 : 1;
}
