/* adapt_gpt.c -- a GPT that has learned one text is adapted to another, in three ways
 *
 *   build   make build/adapt_gpt, or:
 *           cc -O2 examples/adapt_gpt.c mlcore.o -o adapt_gpt -lm -pthread
 *   run     ./adapt_gpt                  from the folder of mlcore.h; some minutes
 *           ./adapt_gpt --to my.txt      any second text; the last tenth of it is held out
 *
 * The model of char_gpt.c learns the first text. Then three copies of it learn the second one for
 * as many steps: with all parameters, with low-rank adapters alone, and with adapters over weights
 * of 4 bits. The table has the number of trained parameters; how well the model knows the held-out
 * part of the second text before and after, and of the first text after, in bits a byte;
 * milliseconds a step; megabytes of gradients and states of the optimizer, and at the peak.   */
#include "../mlcore.h"
#include "corpus.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: adapt_gpt [options]\n"
    "  --data FILE    the first text                  (examples/data/alice.txt)\n"
    "  --to FILE      the second text                 (examples/GUIDE.md)\n"
    "  --epochs N     passes over the first one       (2)\n"
    "  --steps N      of each way on the second one   (500)\n"
    "  --rank N       of the adapters                 (8)\n"
    "  --layers N     of the model                    (4)\n"
    "  --width N      features, a multiple of 32      (256)\n"
    "  --seed N       of first weights and orders     (1)\n"
    "  --help         this text\n";

enum { CONTEXT = 64, BATCH = 4, HEAD = 32 };

typedef struct settings {
    const char *data, *to;
    int         epochs, steps, rank, layers, width, seed;
} settings;

/* The weights after the first text, as a file in memory. */
typedef struct weights { void *bytes; size_t n; } weights;

/* Tokens of the second text by the table of the first, to which new bytes are added. */
static bool corpus_more(corpus *c, corpus *first, const char *path)
{
    int at[256];
    if (!corpus_read(c, path)) return false;
    memset(at, -1, sizeof at);
    for (int64_t i = 0; i < first->vocabulary; i++) at[first->byte[i]] = (int)i;
    for (int64_t i = 0; i < c->n; i++) {
        const int b = c->byte[c->token[i]];
        if (at[b] < 0) {
            at[b] = (int)first->vocabulary;
            first->byte[first->vocabulary++] = (uint8_t)b;
        }
        c->token[i] = at[b];
    }
    return true;
}

static mlc_module *model(mlc_ctx *ctx, const settings *s, int64_t vocabulary)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(vocabulary, CONTEXT, s->layers, s->width,
                                             s->width / HEAD);
    d.layer.dropout = 0;
    return mlc_nn_gpt(ctx, &d);
}

/* Bits a byte of the last tenth of a text. */
static double bits(mlc_module *net, const corpus *c)
{
    mlc_ctx     *ctx = mlc_module_ctx(net);
    mlc_loader  *held = windows(ctx, c, c->n / 10 * 9, c->n, CONTEXT, CONTEXT, BATCH, false);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    double       loss = 0;
    if (held) mlc_evaluate(net, held, &d, &loss);
    mlc_loader_free(held);
    return loss / log(2.0);
}

/* The first text; the weights go to memory, and the context ends. */
static bool learn(const settings *s, const corpus *c, int64_t vocabulary, weights *w)
{
    mlc_ctx_desc cd = mlc_ctx_desc_make();
    cd.seed = (uint64_t)s->seed;
    mlc_ctx     *ctx = mlc_ctx_create(&cd);
    mlc_loader  *text = ctx ? windows(ctx, c, 0, c->n / 10 * 9, CONTEXT, CONTEXT / 2, BATCH, true)
                            : NULL;
    mlc_module  *net = text ? model(ctx, s, vocabulary) : NULL;
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = s->epochs;
    if (net && mlc_fit(net, mlc_adamw(net, 2e-3), text, &d, NULL) == MLC_OK &&
        mlc_save_memory(net, NULL, &w->n, NULL) == MLC_OK && (w->bytes = malloc(w->n)) != NULL)
        mlc_save_memory(net, w->bytes, &w->n, NULL);
    if (w->bytes) printf("%s: %.3f bits a byte after %d epochs, %lld parameters\n\n", s->data,
                         bits(net, c), s->epochs, (long long)mlc_module_numel(net, false));
    else if (ctx) fprintf(stderr, "adapt_gpt: %s\n", mlc_error(ctx));
    mlc_ctx_free(ctx);
    return w->bytes != NULL;
}

typedef enum way { FULL, LORA, LORA_INT4, WAYS } way;

static mlc_status prepare(mlc_module *net, const settings *s, way how)
{
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     l = mlc_lora_desc_make(s->rank, 2 * s->rank);
    q.bits = 4;
    if (how == LORA_INT4) {
        const mlc_status st = mlc_quantize(net, &q, NULL);
        if (st != MLC_OK) return st;
    }
    return how == FULL ? MLC_OK : mlc_lora(net, &l, NULL);
}

/* Steps on the second text, timed. */
static mlc_status adapt(mlc_module *net, const settings *s, const corpus *c, way how, mlc_timer *t)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    mlc_loader *text = windows(ctx, c, 0, c->n / 10 * 9, CONTEXT, CONTEXT / 2, BATCH, true);
    mlc_optim  *opt = text ? mlc_adamw(net, how == FULL ? 1e-3 : 5e-3) : NULL;
    mlc_batch   b;
    if (!opt) return mlc_ctx_status(ctx);
    for (int step = 0; step < s->steps; step++) {
        while (!mlc_loader_next(text, &b)) if (mlc_ctx_status(ctx) != MLC_OK) return MLC_ERR_STATE;
        mlc_timer_begin(t);
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        const mlc_status st = mlc_scope_end(ctx);
        mlc_timer_end(t, 1);
        if (st != MLC_OK) return st;
    }
    return MLC_OK;
}

/* One row of the table, in a context of its own. */
static bool row(const settings *s, const corpus *first, const corpus *second, int64_t vocabulary,
                const weights *w, way how)
{
    static const char *const names[WAYS] = { "all parameters", "LoRA", "LoRA over int4" };
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = ctx ? model(ctx, s, vocabulary) : NULL;
    mlc_timer   timer = mlc_timer_make(names[how]);
    double      before = 0;
    mlc_memory  m;
    mlc_status  st = net ? mlc_load_memory(net, w->bytes, w->n, NULL) : MLC_ERR_NOMEM;
    if (st == MLC_OK) st = prepare(net, s, how);
    if (st == MLC_OK) before = bits(net, second);
    if (ctx) mlc_memory_trim(ctx);
    if (ctx) mlc_memory_peak_reset(ctx);
    if (st == MLC_OK) st = adapt(net, s, second, how, &timer);
    if (st == MLC_OK) {
        mlc_memory_info(ctx, &m);
        printf("%-15s %9lld %8.3f %8.3f %8.3f %9.1f %8.2f %8.2f\n", names[how],
               (long long)mlc_module_numel(net, true), before, bits(net, second), bits(net, first),
               1e3 * mlc_timer_mean(&timer),
               (double)(m.now[MLC_MEM_GRAD] + m.now[MLC_MEM_OPTIM]) / 1e6, (double)m.peak / 1e6);
    } else if (ctx) {
        fprintf(stderr, "adapt_gpt: %s: %s\n", names[how], mlc_error(ctx));
    }
    mlc_ctx_free(ctx);
    return st == MLC_OK;
}

int main(int argc, char **argv)
{
    settings s = { "examples/data/alice.txt", "examples/GUIDE.md", 2, 500, 8, 4, 256, 1 };
    corpus   first = { NULL, 0, 0, { 0 } }, second = first;
    weights  w = { NULL, 0 };
    int      status = 0;
    const option list[] = {
        OPTION_TEXT("--data", &s.data), OPTION_TEXT("--to", &s.to),
        OPTION_NUMBER("--epochs", &s.epochs, 1, 1000),
        OPTION_NUMBER("--steps", &s.steps, 1, 100000),
        OPTION_NUMBER("--rank", &s.rank, 1, 256), OPTION_NUMBER("--layers", &s.layers, 1, 48),
        OPTION_NUMBER("--width", &s.width, 32, 4096), OPTION_NUMBER("--seed", &s.seed, 0, 1000000),
        OPTION_END };
    if (!options_read("adapt_gpt", HELP, list, argc, argv, &status)) return status;
    bool ok = s.width % HEAD == 0 && corpus_read(&first, s.data) &&
              corpus_more(&second, &first, s.to) && first.n > 20 * CONTEXT &&
              second.n > 20 * CONTEXT;
    if (!ok) fprintf(stderr, "adapt_gpt: --width is no multiple of %d, or a text cannot be read or "
                     "is shorter than 20 contexts\n", HEAD);
    ok = ok && learn(&s, &first, first.vocabulary, &w);
    if (ok) printf("%s, %d steps\n%-15s %9s %8s %8s %8s %9s %8s %8s\n", s.to, s.steps, "",
                   "trained", "before", "after", "first", "ms a step", "MB g+s", "MB peak");
    for (int how = 0; how < WAYS && ok; how++)
        ok = row(&s, &first, &second, first.vocabulary, &w, (way)how);
    free(w.bytes);
    free(first.token);
    free(second.token);
    return ok ? 0 : 1;
}
