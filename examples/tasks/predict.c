/* predict.c -- trains on one CSV file, saves; loads, predicts the rows of another CSV file, whose
 *   columns stand in another order, with an empty cell and a city that the first one has not
 *   build   make build/tasks/predict
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/predict.c -lm -pthread -o predict
 *   run     ./predict         from the folder of mlcore.h; writes predict.safetensors        */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

static mlc_module *network(mlc_ctx *ctx, int64_t columns)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_standardize(ctx, columns), mlc_nn_linear(ctx, columns, 1));
}

int main(void)
{
    mlc_ctx   *ctx = mlc_ctx_create(NULL);
    mlc_table *known = mlc_table_load(ctx, "examples/data/houses.csv", NULL);
    mlc_table *asked = mlc_table_load(ctx, "examples/tasks/predict.csv", NULL);
    mlc_dataset_table_desc columns = mlc_dataset_table_desc_make("price");
    columns.missing = MLC_MISSING_MEAN;
    columns.one_hot = columns.target_f32 = true;
    mlc_dataset *data = mlc_dataset_table(ctx, known, &columns);
    mlc_tensor  *x = mlc_dataset_field(ctx, data, 0), *y = mlc_dataset_field(ctx, data, 1);
    mlc_module  *net = network(ctx, mlc_dim(x, 1));
    mlc_nn_scale_fit(mlc_module_child(net, 0), x);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_mse_loss);
    d.epochs = 300;
    mlc_fit(net, mlc_adam(net, 1), mlc_loader_shuffled(ctx, x, y, 8), &d, NULL);
    mlc_save(net, "predict.safetensors");
    MLC_CHECK(ctx);
    puts("wrote predict.safetensors");

    columns.like = known;                   /* its columns, categories and means               */
    x = mlc_dataset_field(ctx, mlc_dataset_table(ctx, asked, &columns), 0);
    net = network(ctx, mlc_dim(x, 1));
    mlc_load(net, "predict.safetensors");
    mlc_eval_begin(net);
    const float *price = mlc_f32(mlc_forward(net, x));
    MLC_CHECK(ctx);
    for (int64_t i = 0; i < mlc_table_rows(asked); i++)
        printf("%s, %s m2: %.0f\n", mlc_table_text(asked, i, mlc_table_find(asked, "city")),
               mlc_table_text(asked, i, mlc_table_find(asked, "size")), (double)price[i]);
    mlc_ctx_free(ctx);
}
