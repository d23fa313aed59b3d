/* generate.c -- a small GPT learns a rhyme, letter by letter, and goes on from its first words
 *   build   make build/tasks/generate
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/generate.c -lm -pthread -o generate
 *   run     ./generate                                                                        */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 32 };

static const char rhyme[] =
    "How much wood would a woodchuck chuck\nif a woodchuck could chuck wood?\n"
    "He would chuck, he would, as much as he could,\n"
    "and chuck as much wood as a woodchuck would\nif a woodchuck could chuck wood.\n";

static bool write_byte(void *user, int64_t step, const int64_t *tokens, int64_t n)
{
    (void)user, (void)step, (void)n;
    putchar((int)tokens[0]);
    return true;
}

int main(void)
{
    mlc_ctx       *ctx = mlc_ctx_create(NULL);
    mlc_tokenizer *bytes = mlc_tokenizer_bytes(ctx, NULL);
    mlc_tensor    *text = mlc_tokenizer_tensor(bytes, rhyme, strlen(rhyme));
    const int64_t  n = mlc_numel(text);
    mlc_tensor    *x = mlc_unfold(mlc_rows(text, 0, n - 1), 0, CONTEXT, 1);
    mlc_tensor    *y = mlc_unfold(mlc_rows(text, 1, n), 0, CONTEXT, 1);
    mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(256, 0, 2, 32, 2);
    g.positions = MLC_POSITIONS_ROTARY;
    g.layer.window = CONTEXT;
    g.layer.dropout = 0;
    mlc_module    *net = mlc_nn_gpt(ctx, &g);
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 16;
    mlc_fit(net, mlc_adamw(net, 5e-3), mlc_loader_shuffled(ctx, x, y, 16), &d, NULL);

    mlc_cache_desc    room = mlc_cache_desc_make(1, 256);
    mlc_generate_desc how = mlc_generate_desc_make(200);
    how.temperature = 0.8;
    mlc_tensor *prompt = mlc_unsqueeze(mlc_tokenizer_tensor(bytes, "How much", 8), 0);
    printf("How much");
    mlc_generate(net, mlc_cache_create(net, &room), prompt, &how, write_byte, NULL);
    puts("");
    MLC_CHECK(ctx);
    mlc_ctx_free(ctx);
}
