/* xor.c -- a small network learns the exclusive or of two bits
 *   build   make build/tasks/xor
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/xor.c -lm -pthread -o xor
 *   run     ./xor                                                                             */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    static const float bits[8] = { 0, 0,  0, 1,  1, 0,  1, 1 }, differ[4] = { 0, 1, 1, 0 };
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims2(4, 2), bits);
    mlc_tensor *y = mlc_from(ctx, MLC_F32, mlc_dims2(4, 1), differ);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 8), mlc_nn_tanh(ctx),
                                     mlc_nn_linear(ctx, 8, 1));
    mlc_fit_desc d = mlc_fit_desc_make(mlc_bce_with_logits);
    d.epochs = 500;
    mlc_fit(net, mlc_adam(net, 0.05), mlc_loader_ordered(ctx, x, y, 4), &d, NULL);
    mlc_show(mlc_round(mlc_sigmoid(mlc_forward(net, x))));
    MLC_CHECK(ctx);
    mlc_ctx_free(ctx);
}
