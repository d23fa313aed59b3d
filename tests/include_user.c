/* include_user.c -- valid C99 and C++11, for the compiler alone: a source of a program that has the
 * declarations and uses the macros that are for programs; .ci/steps reads it with all warnings. */
#include <stdio.h>
#include <stdlib.h>
#include "mlcore.h"

#ifdef __cplusplus
extern "C"
#endif
mlc_module *include_user(mlc_ctx *ctx);

mlc_module *include_user(mlc_ctx *ctx)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(8, 4);
    mlc_module *body, *net;
    body = MLC_SEQUENTIAL_NAMED(ctx, {"in", mlc_nn_linear_ex(ctx, &d)}, {"act", mlc_nn_relu(ctx)});
    net = MLC_SEQUENTIAL(ctx, body, mlc_nn_linear(ctx, 4, 2));
    MLC_CHECK(ctx);
    return net;
}
