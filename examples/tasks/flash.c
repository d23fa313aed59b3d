/* flash.c -- weights as an array in a program that has no files: trained, and built in
 *   build   make build/tasks/flash
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/flash.c -lm -pthread -o flash
 *   run     ./flash           from the folder of mlcore.h; writes weights.h; with that and -DDEVICE
 *           the same command builds what says which digit of 8 by 8 pixels it sees
 *   board   arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Os -I. \
 *               -DDEVICE -DMLCORE_IMPLEMENTATION -DMLC_NO_STDIO -DMLC_NO_THREADS -DMLC_NO_SIMD \
 *               -DMLC_ONLY_F32 -DMLC_MINIMAL -ffunction-sections -Wl,--gc-sections \
 *               --specs=rdimon.specs -nostartfiles -T examples/embedded/board.ld \
 *               examples/embedded/board.c examples/tasks/flash.c -lm -o flash.elf
 *           qemu-system-arm -M mps2-an386 -nographic -semihosting -kernel flash.elf           */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

static mlc_module *network(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 16), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 16, 10));
}

#ifndef DEVICE
int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *data = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor *x = mlc_mul_scalar(mlc_slice(data, 1, 0, 64, 1), 1.0 / 16);
    mlc_tensor *y = mlc_cast(mlc_select(data, 1, 64), MLC_I64);
    mlc_module *net = network(ctx);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 20;
    mlc_fit(net, mlc_adam(net, 3e-3), mlc_loader_shuffled(ctx, x, y, 32), &d, NULL);

    size_t n = 0;
    mlc_save_memory(net, NULL, &n, NULL);
    unsigned char *bytes = (unsigned char *)malloc(n);
    mlc_save_memory(net, bytes, &n, NULL);
    MLC_CHECK(ctx);
    FILE *out = fopen("weights.h", "w");
    if (!bytes || !out) return 1;
    fprintf(out, "static const unsigned char weights[] = {");
    for (size_t i = 0; i < n; i++) fprintf(out, "%s%d,", i % 20 ? "" : "\n    ", bytes[i]);
    fprintf(out, "\n};\n");
    if (fclose(out)) return 1;
    free(bytes);
    puts("wrote weights.h");
    mlc_ctx_free(ctx);
}
#else
#include "weights.h"
/* Errors of mlcore and the answer; a board that has no puts sends them to its UART. */
static void say(void *user, mlc_log_level level, const char *text)
{
    (void)user;
    (void)level;
    puts(text);
}

int main(void)
{
    static char  memory[32 * 1024];                  /* all that it takes                      */
    static const char image[8][9] = { "..####..", "..#####.", "....##..", "...##...",
                                      "....##..", ".....##.", "....##..", "..####.." };
    char         text[] = "it is a ?";
    float        pixel[64];
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.memory = memory;
    d.memory_bytes = sizeof memory;
    d.threads = 1;
    d.log = say;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = network(ctx);
    mlc_load_memory(net, weights, sizeof weights, NULL);
    mlc_eval_begin(net);
    for (int i = 0; i < 64; i++) pixel[i] = image[i / 8][i % 8] == '#';
    mlc_tensor *y = mlc_forward(net, mlc_wrap(ctx, MLC_F32, mlc_dims2(1, 64), NULL, pixel));
    const double answer = mlc_item(mlc_argmax(y, 1, false));
    if (mlc_ctx_status(ctx) != MLC_OK) return 1;
    text[8] = (char)('0' + (int)answer);
    say(NULL, MLC_LOG_INFO, text);
    mlc_ctx_free(ctx);
}
#endif
