/* custom_op.c -- an operation of one's own, x + sin(x)^2, its gradient, and a check of it
 *   build   make build/tasks/custom_op
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/custom_op.c -lm -pthread -o custom_op
 *   run     ./custom_op                                                                       */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

static mlc_status forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user, (void)n_in;
    *out = mlc_add(in[0], mlc_square(mlc_sin(in[0])));
    return MLC_OK;
}

static mlc_status backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                           mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user, (void)n_in, (void)out, (void)need;
    dx[0] = mlc_mul(dy, mlc_add_scalar(mlc_sin(mlc_mul_scalar(in[0], 2)), 1));
    return MLC_OK;
}

static const mlc_custom_op snake_op = { "snake", forward, backward };

static mlc_tensor *snake(void *user, mlc_tensor *const *in, int32_t n)
{
    return mlc_custom(&snake_op, user, in, n);
}

static mlc_tensor *layer(void *user, mlc_tensor *x) { return snake(user, &x, 1); }

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *probe = mlc_randn(ctx, MLC_F64, mlc_dims2(4, 5));
    mlc_gradcheck_report report;
    mlc_set_requires_grad(probe, true);
    mlc_gradcheck(snake, NULL, &probe, 1, NULL, &report);
    mlc_tensor *x = mlc_reshape(mlc_linspace(ctx, MLC_F32, -6, 6, 256), mlc_dims2(256, 1));
    mlc_tensor *y = mlc_sin(mlc_mul_scalar(x, 2));
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 1, 32),
                                     mlc_nn_lambda(ctx, layer, NULL), mlc_nn_linear(ctx, 32, 1));
    mlc_fit_desc d = mlc_fit_desc_make(mlc_mse_loss);
    d.epochs = 100;
    mlc_fit(net, mlc_adam(net, 1e-2), mlc_loader_shuffled(ctx, x, y, 32), &d, NULL);
    MLC_CHECK(ctx);
    printf("gradient %s, loss %.4f\n", report.ok ? "right" : "wrong",
           mlc_item(mlc_mse_loss(mlc_forward(net, x), y)));
    mlc_ctx_free(ctx);
}
