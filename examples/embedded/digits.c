/* digits.c -- a network of 64-32-10 on handwritten digits, its weights in flash or in RAM
 *
 *   run     make embedded: on a Cortex-M4 in QEMU, see run.sh
 *
 * Three networks, one after another in the same block: one whose weights stay in flash (bound), one
 * that takes them from a safetensors file in flash, and one trained from scratch at batch 8.     */
#include "board.h"
#include "flash.h"
#include "mlcore.h"

#include <stdio.h>
#include <string.h>

enum { PIXELS = 64, CLASSES = 10, HIDDEN = 32, BATCH = 8, EPOCHS = 2 };
enum { BOUND_BYTES = 10 * 1024, LOADED_BYTES = 24 * 1024, TRAIN_BYTES = 40 * 1024 };

static char block[TRAIN_BYTES];

static void complain(void *user, mlc_log_level level, const char *text)
{
    (void)user; (void)level;
    printf("%s\n", text);
}

static mlc_ctx *context(size_t bytes)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.memory = block;
    d.memory_bytes = bytes;
    d.log = complain;
    return mlc_ctx_create(&d);
}

static mlc_module *network(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, PIXELS, HIDDEN), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, HIDDEN, CLASSES));
}

/* n rows from the given one on, as the network takes them; x and y are the caller's arrays. */
static void fill(const unsigned char row[][PIXELS + 1], int n, float *x, int64_t *y)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < PIXELS; j++) x[i * PIXELS + j] = (float)row[i][j] / 16;
        y[i] = row[i][PIXELS];
    }
}

/* Prints which share of the held-out digits is right, and what one takes. */
static mlc_status classify(const char *name, mlc_module *net, size_t bytes)
{
    static float x[PIXELS];
    float   score[CLASSES] = { 0 };
    int64_t y = 0;
    int     right = 0;
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_tensor *in = mlc_wrap(ctx, MLC_F32, mlc_dims2(1, PIXELS), NULL, x);
    const uint64_t start = board_instructions();
    mlc_status st = mlc_eval_begin(net);
    for (int i = 0; i < flash_test_rows && st == MLC_OK; i++) {
        int best = 0;
        fill(&flash_test[i], 1, x, &y);
        mlc_scope_begin(ctx);
        mlc_read(mlc_forward(net, in), score, sizeof score);
        st = mlc_scope_end(ctx);
        for (int j = 1; j < CLASSES; j++) if (score[j] > score[best]) best = j;
        right += best == y;
    }
    mlc_eval_end(net);
    printf("%-8s %d of %d digits right, %lu instructions each, a block of %lu bytes\n", name, right,
           flash_test_rows,
           (unsigned long)((board_instructions() - start) / (uint64_t)flash_test_rows),
           (unsigned long)bytes);
    return st == MLC_OK && right * 10 < flash_test_rows * 9
               ? mlc_raise(ctx, MLC_ERR_VALUE, "digits: too few are right") : st;
}

/* The weights stay where they are. */
static mlc_status bound(void)
{
    mlc_ctx    *ctx = context(BOUND_BYTES);
    mlc_module *net = network(ctx);
    mlc_module_bind(net, "0.weight", flash_weight0);
    mlc_module_bind(net, "0.bias", flash_bias0);
    mlc_module_bind(net, "2.weight", flash_weight2);
    mlc_module_bind(net, "2.bias", flash_bias2);
    const mlc_status st = classify("bound", net, BOUND_BYTES);
    mlc_ctx_free(ctx);
    return st;
}

/* The weights are copied to RAM: they may be trained on. */
static mlc_status loaded(void)
{
    mlc_ctx    *ctx = context(LOADED_BYTES);
    mlc_module *net = network(ctx);
    mlc_load_memory(net, flash_file, flash_file_bytes, NULL);
    const mlc_status st = classify("loaded", net, LOADED_BYTES);
    mlc_ctx_free(ctx);
    return st;
}

/* A batch after another, in an order that a step coprime to their number gives. */
static mlc_status trained(void)
{
    static float   x[BATCH * PIXELS];
    static int64_t y[BATCH];
    mlc_ctx    *ctx = context(TRAIN_BYTES);
    mlc_module *net = network(ctx);
    mlc_optim  *opt = mlc_sgd(net, 0.2);
    mlc_tensor *in = mlc_wrap(ctx, MLC_F32, mlc_dims2(BATCH, PIXELS), NULL, x);
    mlc_tensor *labels = mlc_wrap(ctx, MLC_I64, mlc_dims1(BATCH), NULL, y);
    const int steps = EPOCHS * flash_train_rows / BATCH;
    int row = 0;
    const uint64_t start = board_instructions();
    mlc_status st = mlc_ctx_status(ctx);
    for (int i = 0; i < steps && st == MLC_OK; i++) {
        for (int k = 0; k < BATCH; k++, row = (row + 1009) % flash_train_rows)
            fill(&flash_train[row], 1, x + k * PIXELS, y + k);
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, in), labels));
        st = mlc_scope_end(ctx);
    }
    printf("training %d steps of %d digits, %lu instructions a step\n", steps, BATCH,
           (unsigned long)((board_instructions() - start) / (uint64_t)steps));
    if (st == MLC_OK) st = classify("trained", net, TRAIN_BYTES);
    mlc_ctx_free(ctx);
    return st;
}

int main(void)
{
    mlc_status st = bound();
    if (st == MLC_OK) st = loaded();
    if (st == MLC_OK) st = trained();
    board_report(sizeof block);
    return st != MLC_OK;
}
