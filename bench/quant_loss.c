/* quant_loss.c -- what quantized networks lose: a table for digits and one for a small GPT
 *
 *   run     make bench-quant         or: build/quant_loss [digits] [gpt]; a quarter of an hour
 *   prints  two tables in Markdown: digits.csv, percent of the held-out digits that a network
 *           64-96-10 reads, over 20 seeds, each quantized network against its own f32; and bits a
 *           byte and perplexity of a GPT that has read nine tenths of alice.txt
 *   exit    1: int8, or int4 in groups of 32, loses more than 0.5 points of accuracy; int8 more
 *           than 1 %, int4 in groups of 32 more than 3 % of perplexity; or a call fails
 *
 * One thread. Rows of 2 and 3 bits, and of rows without groups, are rounded by mlc_quantize_tensor
 * and computed in f32.                                                                        */
#include "../examples/corpus.h"
#include "../examples/digits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 20, T = 64, WIDTH = 128 };

/* A way to quantize; of `tensors` weights are rounded one by one and stay f32. */
typedef struct way {
    const char *name;
    bool        tensors;
    mlc_quant_mode mode;
    int32_t     bits;
    int64_t     group;
    bool        per_tensor, full_range;
    mlc_quant_convention convention;
    double      most;                      /* percent of perplexity that it may cost; 0: any   */
} way;

#define DYNAMIC MLC_QUANT_DYNAMIC
#define WEIGHTS MLC_QUANT_WEIGHTS
#define TORCH   MLC_QUANT_TORCH
static const way WAYS[] = {
    { "dynamic int8, a scale a row, activations 0..255", false, DYNAMIC, 8, 0, false, true, TORCH,
      1 },
    { "the same, a scale a weight", false, DYNAMIC, 8, 0, true, true, TORCH, 0 },
    { "the same, activations 0..127 (PyTorch on x86)", false, DYNAMIC, 8, 0, true, false, TORCH,
      0 },
    { "the same, ONNX's convention", false, DYNAMIC, 8, 0, true, false, MLC_QUANT_ONNX, 0 },
    { "weights int8, a scale a row", false, WEIGHTS, 8, 0, false, false, TORCH, 1 },
    { "weights int8, groups of 32", false, WEIGHTS, 8, 32, false, false, TORCH, 1 },
    { "weights int4, groups of 32", false, WEIGHTS, 4, 32, false, false, TORCH, 3 },
    { "weights int4, groups of 32, ONNX's convention", false, WEIGHTS, 4, 32, false, false,
      MLC_QUANT_ONNX, 0 },
    { "weights int4, a scale a row", true, WEIGHTS, 4, 0, false, false, TORCH, 0 },
    { "weights int4, a scale a weight", true, WEIGHTS, 4, 0, true, false, TORCH, 0 },
    { "weights of 3 bits, groups of 32", true, WEIGHTS, 3, 32, false, false, TORCH, 0 },
    { "weights of 2 bits, groups of 32", true, WEIGHTS, 2, 32, false, false, TORCH, 0 },
};
enum { COUNT = sizeof WAYS / sizeof *WAYS };

static bool failed(mlc_ctx *ctx)
{
    fprintf(stderr, "quant_loss: %s\n", mlc_error(ctx));
    return false;
}

/* Rounds each matrix of net, which stays f32. */
static mlc_status round_tensors(mlc_module *net, const way *w)
{
    mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(w->bits);
    mlc_status st = MLC_OK;
    d.group = w->group;
    d.per_tensor = w->per_tensor;
    d.convention = w->convention;
    for (mlc_param_iter it = mlc_param_iter_make(net); st == MLC_OK && mlc_param_next(&it);) {
        mlc_quantized q;
        if (it.tensor->ndim != 2 || it.buffer) continue;
        st = mlc_quantize_tensor(it.tensor, &d, &q);
        if (st == MLC_OK) st = mlc_copy_into(it.tensor, mlc_dequantize_tensor(&q));
    }
    return st;
}

/* A quantized clone of net, or NULL. */
static mlc_module *quantized(mlc_module *net, const way *w)
{
    mlc_module *clone = mlc_module_clone(net);
    mlc_quantize_desc d = mlc_quantize_desc_make(w->mode);
    d.bits = w->bits;
    d.group = w->group;
    d.per_tensor = w->per_tensor;
    d.full_range = w->full_range;
    d.convention = w->convention;
    if (!clone) return NULL;
    if ((w->tensors ? round_tensors(clone, w) : mlc_quantize(clone, &d, NULL)) == MLC_OK)
        return clone;
    mlc_module_free(clone);
    return NULL;
}

/* ---- digits ---------------------------------------------------------------------------------- */

static double percent(mlc_module *net, const split *s)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_eval_begin(net);
    mlc_scope_begin(ctx);
    mlc_tensor *is = mlc_eq(mlc_argmax(mlc_forward(net, s->x[1]), 1, false), s->y[1]);
    const double right = mlc_item(mlc_mean(mlc_cast(is, MLC_F32), mlc_dims0(), false));
    mlc_scope_end(ctx);
    mlc_eval_end(net);
    return 100 * right;
}

/* A trained 64-96-10 of a seed; the context is that of s. */
static mlc_module *digits_net(mlc_ctx *ctx, const split *s, int seed)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, PIXELS, 96));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 96, 10));
    mlc_loader_desc rows = mlc_loader_desc_make(s->x[0], s->y[0], 32);
    mlc_fit_desc    f = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_optim      *o = mlc_adamw(net, 5e-3);
    rows.shuffle = true;
    rows.seed = (uint64_t)seed;
    f.epochs = 8;
    const mlc_status st = mlc_fit(net, o, mlc_loader_create(ctx, &rows), &f, NULL);
    mlc_optim_free(o);
    return st == MLC_OK ? net : NULL;
}

/* Accuracies of one seed: f32 first. */
static bool digits_seed(int seed, double right[COUNT + 1])
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    split        s;
    d.threads = 1;
    d.seed = (uint64_t)seed;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = NULL;
    if (ctx && split_load(ctx, "quant_loss", "examples/data/digits.csv", 32, &s))
        net = digits_net(ctx, &s, seed);
    bool ok = net != NULL;
    if (ok) right[0] = percent(net, &s);
    for (int i = 0; i < COUNT && ok; i++) {
        mlc_module *q = quantized(net, &WAYS[i]);
        ok = q != NULL;
        if (ok) right[i + 1] = percent(q, &s);
        mlc_module_free(q);
    }
    if (!ok) failed(ctx);
    mlc_ctx_free(ctx);
    return ok;
}

/* The table: means, and mean and deviation of the differences. */
static bool digits(void)
{
    static double right[SEEDS][COUNT + 1];
    double mean = 0;
    bool   ok = true;
    for (int s = 0; s < SEEDS && ok; s++) {
        ok = digits_seed(s + 1, right[s]);
        mean += right[s][0] / SEEDS;
    }
    if (!ok) return false;
    printf("| digits, %d seeds | %% right | points against f32 | deviation | worst |\n"
           "|---|---|---|---|---|\n| f32 | %.2f | | | |\n", SEEDS, mean);
    for (int i = 0; i < COUNT; i++) {
        double off = 0, square = 0, worst = 0;
        for (int s = 0; s < SEEDS; s++) {
            const double d = right[s][i + 1] - right[s][0];
            off += d / SEEDS;
            square += d * d / SEEDS;
            worst = d < worst ? d : worst;
        }
        printf("| %s | %.2f | %+.2f | %.2f | %+.2f |\n", WAYS[i].name, mean + off, off,
               sqrt(square - off * off), worst);
        ok = ok && (WAYS[i].most == 0 || off >= -0.5);
    }
    printf("\n");
    return ok;
}

/* ---- a GPT ----------------------------------------------------------------------------------- */

/* Nats a byte of the held-out part. */
static double nats(mlc_module *net, mlc_loader *held)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    double   sum = 0;
    int64_t  rows = 0;
    mlc_eval_begin(net);
    for (mlc_batch b; mlc_loader_next(held, &b);) {
        mlc_scope_begin(ctx);
        const int64_t n = mlc_dim(b.x, 0);
        sum += (double)n * mlc_item(mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        rows += n;
        mlc_scope_end(ctx);
    }
    mlc_eval_end(net);
    return sum / (double)rows;
}

static mlc_module *gpt_net(mlc_ctx *ctx, const corpus *c, int64_t end)
{
    mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(c->vocabulary, T, 4, WIDTH, WIDTH / 32);
    g.layer.dropout = 0.1;
    mlc_module *net = mlc_nn_gpt(ctx, &g);
    mlc_loader *learn = net ? windows(ctx, c, 0, end, T, T / 2, 32, true) : NULL;
    mlc_optim  *o = learn ? mlc_adamw(net, 1e-3) : NULL;
    mlc_fit_desc f = mlc_fit_desc_make(mlc_cross_entropy);
    f.epochs = 6;
    const mlc_status st = o ? mlc_fit(net, o, learn, &f, NULL) : MLC_ERR_NOMEM;
    mlc_optim_free(o);
    return st == MLC_OK ? net : NULL;
}

static bool gpt(void)
{
    corpus       c = { NULL, 0, 0, { 0 } };
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = 1;
    mlc_ctx *ctx = corpus_read(&c, "examples/data/alice.txt") ? mlc_ctx_create(&d) : NULL;
    if (!ctx) { free(c.token); return false; }
    const int64_t end = c.n / 10 * 9;
    mlc_module *net = gpt_net(ctx, &c, end);
    mlc_loader *held = net ? windows(ctx, &c, end, c.n, T, T, 16, false) : NULL;
    bool ok = held != NULL;
    const double was = ok ? nats(net, held) : 0;
    if (ok)
        printf("| GPT, %d layers of %d, alice.txt | bits a byte | perplexity | against f32 |\n"
               "|---|---|---|---|\n| f32 | %.4f | %.4f | |\n", 4, WIDTH, was / log(2.0), exp(was));
    for (int i = 0; i < COUNT && ok; i++) {
        mlc_module *q = quantized(net, &WAYS[i]);
        if (!q) { ok = false; break; }
        const double is = nats(q, held), more = 100 * (exp(is - was) - 1);
        printf("| %s | %.4f | %.4f | %+.2f %% |\n", WAYS[i].name, is / log(2.0), exp(is), more);
        ok = WAYS[i].most == 0 || more <= WAYS[i].most;
        if (!ok) fprintf(stderr, "quant_loss: %s costs %.2f %%\n", WAYS[i].name, more);
        mlc_module_free(q);
    }
    if (mlc_ctx_status(ctx) != MLC_OK) ok = failed(ctx);
    mlc_ctx_free(ctx);
    free(c.token);
    return ok;
}

int main(int argc, char **argv)
{
    bool ok = true;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "digits") != 0 && strcmp(argv[i], "gpt") != 0) {
            fprintf(stderr, "quant_loss: '%s' is neither digits nor gpt\n", argv[i]);
            return 1;
        }
    if (argc < 2 || strcmp(argv[1], "digits") == 0) ok = digits() && ok;
    if (argc < 2 || strcmp(argv[argc - 1], "gpt") == 0) ok = gpt() && ok;
    return ok ? 0 : 1;
}
