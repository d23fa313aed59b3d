/* finetune.c -- a PyTorch state dict as the start: names changed, the body frozen, a new head
 *   build   make build/tasks/finetune
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/finetune.c -lm -pthread -o finetune
 *   run     ./finetune        from the folder of mlcore.h; reads pretrained.safetensors, as of
 *           safetensors.torch.save_file(net.state_dict(), ..); if there is none, writes one   */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

static mlc_rename names[2];                          /* in the file, and here                  */

static mlc_module *network(mlc_ctx *ctx, int64_t classes)
{
    mlc_module *body = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64), mlc_nn_relu(ctx),
                                      mlc_nn_linear(ctx, 64, 32), mlc_nn_relu(ctx));
    return MLC_SEQUENTIAL_NAMED(ctx, { "body", body },
                                { "head", mlc_nn_linear(ctx, 32, classes) });
}

static void fit(mlc_module *net, double rate, mlc_tensor *x, mlc_tensor *y, int64_t epochs)
{
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = epochs;
    mlc_fit(net, mlc_adam(net, rate), mlc_loader_shuffled(mlc_module_ctx(net), x, y, 32), &d,
            NULL);
}

/* Stands for the training in PyTorch, on another task: is it 0 or 1, 2 or 3, .., 8 or 9?       */
static void pretrain(mlc_ctx *ctx, mlc_tensor *x, mlc_tensor *y, const char *path)
{
    mlc_module   *net = network(ctx, 5);
    mlc_save_desc d = mlc_save_desc_make();
    d.renames = names, d.n_renames = 2;
    fit(net, 3e-3, x, mlc_floor_divide_scalar(y, 2), 20);
    mlc_save_ex(net, path, &d);
    MLC_CHECK(ctx);
    printf("wrote %s\n", path);
}

int main(void)
{
    const char *path = "pretrained.safetensors";
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *data = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor *x = mlc_mul_scalar(mlc_slice(data, 1, 0, 64, 1), 1.0 / 16);
    mlc_tensor *y = mlc_cast(mlc_select(data, 1, 64), MLC_I64);
    mlc_tensor *few_x = mlc_rows(x, 1350, 1500), *few_y = mlc_rows(y, 1350, 1500);
    mlc_tensor *test_x = mlc_rows(x, 1500, 1797), *test_y = mlc_rows(y, 1500, 1797);
    names[0] = mlc_rename_make("features.*", "body.*");
    names[1] = mlc_rename_make("classifier.*", "head.*");
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    else pretrain(ctx, mlc_rows(x, 0, 1350), mlc_rows(y, 0, 1350), path);

    mlc_module   *net = network(ctx, 10);
    mlc_load_desc d = mlc_load_desc_make();
    d.renames = names, d.n_renames = 2;
    d.skip_mismatched = true;                        /* the head: 5 classes there, 10 here     */
    mlc_load_ex(net, path, &d);
    MLC_CHECK(ctx);
    mlc_module_freeze(net, "body.*", true);
    fit(net, 1e-2, few_x, few_y, 20);
    printf("head trained: accuracy %.2f\n", mlc_accuracy(mlc_forward(net, test_x), test_y));
    mlc_module_freeze(net, NULL, false);
    fit(net, 1e-3, few_x, few_y, 20);
    printf("all trained:  accuracy %.2f\n", mlc_accuracy(mlc_forward(net, test_x), test_y));
    mlc_ctx_free(ctx);
}
