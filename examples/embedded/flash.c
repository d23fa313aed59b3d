/* flash.c -- makes what digits.c has in flash: the digits, and a network trained on them
 *
 *   run     ./flash ../data/digits.csv digits.safetensors >flash_digits.c, as run.sh does
 *
 * Runs on the computer that compiles: trains 64-32-10 on the rows that are not held out, saves it,
 * writes a C file: pixels and labels of all rows, the weights, and the saved file byte by byte. */
#include "mlcore.h"

#include <stdio.h>

enum { PIXELS = 64, COLUMNS = PIXELS + 2, CLASSES = 10, HIDDEN = 32, BATCH = 32, EPOCHS = 30 };

static void print_rows(const char *name, mlc_tensor *rows)
{
    const float *v = mlc_f32(rows);
    const int64_t n = v ? mlc_dim(rows, 0) : 0;
    printf("const int flash_%s_rows = %d;\n", name, (int)n);
    printf("const unsigned char flash_%s[][%d] = {\n", name, PIXELS + 1);
    for (int64_t i = 0; i < n; i++) {
        for (int j = 0; j <= PIXELS; j++) printf("%s%d", j ? "," : "{", (int)v[i * COLUMNS + j]);
        printf("},\n");
    }
    printf("};\n");
}

static void print_floats(const char *name, mlc_tensor *t)
{
    const float *v = mlc_f32(t);
    printf("const float flash_%s[] = {", name);
    for (int64_t i = 0; i < mlc_numel(t); i++)
        printf("%s%.8ef,", i % 8 ? "" : "\n", (double)v[i]);
    printf("};\n");
}

static bool print_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    int c, n = 0;
    if (!f) return false;
    printf("_Alignas(8) const unsigned char flash_file[] = {");
    while ((c = fgetc(f)) != EOF) printf("%s%d,", n++ % 32 ? "" : "\n", c);
    printf("};\nconst size_t flash_file_bytes = %d;\n", n);
    return fclose(f) == 0 && n > 0;
}

static mlc_status train(mlc_module *net, mlc_tensor *x, mlc_tensor *y)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    mlc_loader *loader = mlc_loader_shuffled(ctx, x, y, BATCH);
    mlc_optim  *opt = mlc_adamw(net, 3e-3);
    mlc_status  st = mlc_ctx_status(ctx);
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (mlc_batch b; st == MLC_OK && mlc_loader_next(loader, &b);) {
            mlc_scope_begin(ctx);
            mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, b.x), b.y));
            st = mlc_scope_end(ctx);
        }
    return st;
}

/* The rows of the table whose mark is not 0. */
static mlc_tensor *pick(mlc_tensor *table, mlc_tensor *mark)
{
    return mlc_gather_rows(table, mlc_select(mlc_nonzero(mark), 1, 0));
}

int main(int argc, char **argv)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, PIXELS, HIDDEN), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, HIDDEN, CLASSES));
    if (argc != 3) {
        fprintf(stderr, "usage: flash DIGITS.CSV OUT.SAFETENSORS >OUT.C\n");
        return 2;
    }
    mlc_tensor *table = mlc_csv_load(ctx, argv[1], NULL);
    mlc_tensor *held_out = mlc_select(table, 1, COLUMNS - 1);
    mlc_tensor *train_rows = pick(table, mlc_rsub_scalar(held_out, 1));
    mlc_status  st = train(net, mlc_mul_scalar(mlc_slice(train_rows, 1, 0, PIXELS, 1), 1.0 / 16),
                           mlc_cast(mlc_select(train_rows, 1, PIXELS), MLC_I64));
    if (st == MLC_OK) st = mlc_save(net, argv[2]);
    printf("/* Made by flash.c. */\n#include \"flash.h\"\n");
    print_rows("train", train_rows);
    print_rows("test", pick(table, held_out));
    print_floats("weight0", mlc_module_param(net, "0.weight"));
    print_floats("bias0", mlc_module_param(net, "0.bias"));
    print_floats("weight2", mlc_module_param(net, "2.weight"));
    print_floats("bias2", mlc_module_param(net, "2.bias"));
    if (st == MLC_OK) st = mlc_ctx_status(ctx);
    if (st != MLC_OK || !print_file(argv[2])) {
        fprintf(stderr, "flash: %s\n", st != MLC_OK ? mlc_error(ctx) : "cannot read what it saved");
        return 1;
    }
    mlc_ctx_free(ctx);
    return 0;
}
