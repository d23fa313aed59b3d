/* houses.c -- prices from a CSV file with a row of names, texts and empty cells
 *   build   make build/tasks/houses
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/houses.c -lm -pthread -o houses
 *   run     ./houses          from the folder of mlcore.h                                     */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    mlc_ctx   *ctx = mlc_ctx_create(NULL);
    mlc_table *table = mlc_table_load(ctx, "examples/data/houses.csv", NULL);
    mlc_dataset_table_desc columns = mlc_dataset_table_desc_make("price");
    columns.missing = MLC_MISSING_MEAN;
    columns.one_hot = columns.target_f32 = true;
    mlc_dataset *data = mlc_dataset_table(ctx, table, &columns);
    mlc_tensor  *x = mlc_dataset_field(ctx, data, 0), *y = mlc_dataset_field(ctx, data, 1);
    mlc_module  *scale = mlc_nn_standardize(ctx, mlc_dim(x, 1));
    mlc_module  *net = MLC_SEQUENTIAL(ctx, scale, mlc_nn_linear(ctx, mlc_dim(x, 1), 1));
    mlc_nn_scale_fit(scale, x);
    mlc_fit_metric r2 = { "r2", mlc_metric_r2(ctx), true };
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_mse_loss);
    d.epochs = 300;
    mlc_fit(net, mlc_adam(net, 1), mlc_loader_shuffled(ctx, x, y, 8), &d, NULL);
    d.metrics = &r2, d.n_metrics = 1;
    mlc_evaluate(net, mlc_loader_ordered(ctx, x, y, 80), &d, NULL);
    MLC_CHECK(ctx);
    printf("%d columns, R2 %.2f\n", (int)mlc_dim(x, 1), mlc_metric_value(r2.metric));
    mlc_ctx_free(ctx);
}
