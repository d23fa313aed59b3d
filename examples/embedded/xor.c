/* xor.c -- trains a network on the exclusive or, in a block of 16 KB
 *
 *   run     make embedded: on a Cortex-M4 in QEMU, see run.sh                                   */
#include "board.h"
#include "mlcore.h"

#include <stdio.h>

static char block[16 * 1024];

static void complain(void *user, mlc_log_level level, const char *text)
{
    (void)user; (void)level;
    printf("%s\n", text);
}

int main(void)
{
    static const float   x[4][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } };
    static const int64_t y[4] = { 0, 1, 1, 0 };
    mlc_ctx_desc d = mlc_ctx_desc_make();
    int steps = 0;
    double loss = 1;
    d.seed = 1;
    d.memory = block;
    d.memory_bytes = sizeof block;
    d.log = complain;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 8), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, 8, 2));
    mlc_optim  *opt = mlc_sgd(net, 0.5);
    mlc_tensor *in = mlc_from(ctx, MLC_F32, mlc_dims2(4, 2), x);
    mlc_tensor *labels = mlc_from(ctx, MLC_I64, mlc_dims1(4), y);
    const uint64_t start = board_instructions();
    mlc_status st = MLC_OK;
    for (; steps < 1000 && loss > 0.01 && st == MLC_OK; steps++) {
        mlc_scope_begin(ctx);
        mlc_tensor *l = mlc_cross_entropy(mlc_forward(net, in), labels);
        mlc_optim_minimize(opt, l);
        loss = mlc_item(l);
        st = mlc_scope_end(ctx);
    }
    if (st != MLC_OK || !(loss <= 0.01)) {
        printf("xor: loss %.4f after %d steps: %s\n", loss, steps, mlc_error(ctx));
        return 1;
    }
    printf("xor: loss %.4f after %d steps, %lu instructions each\n", loss, steps,
           (unsigned long)((board_instructions() - start) / (uint64_t)steps));
    board_report(sizeof block);
    mlc_ctx_free(ctx);
    return 0;
}
