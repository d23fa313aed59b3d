/* spiral.c -- two spirals told apart by a small network; the curves of its training as a picture
 *   build   make build/tasks/spiral
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/spiral.c -lm -pthread -o spiral
 *   run     ./spiral          writes spiral.svg                                               */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = 200 };                                      /* points of each spiral                */

static mlc_loader *points(mlc_ctx *ctx)
{
    mlc_tensor *t = mlc_linspace(ctx, MLC_F32, 1, 10, N);
    mlc_tensor *xy[2] = { mlc_mul(t, mlc_cos(t)), mlc_mul(t, mlc_sin(t)) };
    mlc_tensor *one = mlc_mul_scalar(mlc_stack(xy, 2, 1), 0.2), *both[2] = { one, mlc_neg(one) };
    mlc_tensor *x = mlc_concat(both, 2, 0);
    mlc_tensor *noise = mlc_normal(ctx, MLC_F32, mlc_dims2(2 * N, 2), 0, 0.05);
    mlc_tensor *y = mlc_repeat(mlc_arange(ctx, MLC_I64, 0, 2, 1), N, 0);
    return mlc_loader_shuffled(ctx, mlc_add(x, noise), y, 32);
}

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_loader *train = points(ctx);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 32), mlc_nn_tanh(ctx),
        mlc_nn_linear(ctx, 32, 32), mlc_nn_tanh(ctx), mlc_nn_linear(ctx, 32, 2));
    mlc_fit_metric accuracy = { "accuracy", mlc_metric_accuracy(ctx), true };
    mlc_tracker   *history;
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 60;
    d.validation = points(ctx);                        /* the same spirals, other noise        */
    d.metrics = &accuracy, d.n_metrics = 1;
    mlc_fit(net, mlc_adam(net, 1e-2), train, &d, &history);
    mlc_tracker_plot(history, "spiral.svg");
    MLC_CHECK(ctx);
    printf("accuracy %.2f of points that it has not seen; wrote spiral.svg\n",
           mlc_tracker_last(history, "val_accuracy"));
    mlc_tracker_free(history);
    mlc_ctx_free(ctx);
}
