/* sweep.c -- a search over learning rates and widths, each point by 5-fold cross-validation
 *   build   make build/tasks/sweep
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/sweep.c -lm -pthread -o sweep
 *   run     ./sweep           from the folder of mlcore.h; writes sweep.csv                   */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

/* The seeds of a point are its folds. Trials run on all cores, each in a context of its own.    */
static mlc_status trial(void *user, mlc_ctx *ctx, const mlc_trial *t, double *accuracy)
{
    mlc_csv_desc csv = mlc_csv_desc_make();
    csv.header = true;
    mlc_tensor *data = mlc_csv_load(ctx, (const char *)user, &csv), *train, *held_out;
    mlc_tensor *x = mlc_slice(data, 1, 0, 30, 1), *y = mlc_cast(mlc_select(data, 1, 30), MLC_I64);
    mlc_k_fold_desc k = mlc_k_fold_desc_make(5);
    k.labels = y;
    mlc_k_fold(ctx, mlc_dim(x, 0), &k, (int64_t)t->seed, &train, &held_out);
    mlc_tensor *train_x = mlc_gather_rows(x, train), *train_y = mlc_gather_rows(y, train);
    const int64_t width = (int64_t)t->values[1];
    mlc_module *scale = mlc_nn_standardize(ctx, 30);
    mlc_module *net = MLC_SEQUENTIAL(ctx, scale, mlc_nn_linear(ctx, 30, width), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, width, 2));
    mlc_nn_scale_fit(scale, train_x);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 10;
    mlc_fit(net, mlc_adamw(net, t->values[0]), mlc_loader_shuffled(ctx, train_x, train_y, 32), &d,
            NULL);
    *accuracy = mlc_accuracy(mlc_forward(net, mlc_gather_rows(x, held_out)),
                             mlc_gather_rows(y, held_out));
    return mlc_ctx_status(ctx);
}

int main(void)
{
    static char path[] = "examples/data/breast_cancer.csv";
    static const double rates[] = { 1e-4, 1e-3, 1e-2 }, widths[] = { 4, 16, 64 };
    static const mlc_sweep_axis axes[] = { { "lr", rates, 3 }, { "width", widths, 3 } };
    static const char *const results[] = { "accuracy" };
    mlc_ctx       *ctx = mlc_ctx_create(NULL);
    mlc_sweep     *sweep;
    mlc_sweep_desc d = mlc_sweep_desc_make(axes, 2, results, 1);
    d.higher = true;
    d.n_seeds = 5;
    mlc_sweep_run(ctx, &d, trial, path, &sweep);
    mlc_sweep_print(sweep, NULL, NULL);
    mlc_sweep_csv(sweep, "sweep.csv");
    MLC_CHECK(ctx);
    puts("wrote sweep.csv");
    mlc_sweep_free(sweep);
    mlc_ctx_free(ctx);
}
