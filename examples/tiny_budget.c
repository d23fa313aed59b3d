/* tiny_budget.c -- a GPT is trained twice: plainly, and in at most 40 % of the bytes
 *
 *   build   make build/tiny_budget, or:
 *           cc -O2 examples/tiny_budget.c mlcore.o -o tiny_budget -lm -pthread
 *   run     ./tiny_budget              from the folder of mlcore.h; less than a minute
 *
 * Model, first weights, batches and steps are the same. The small way has parameters and gradients
 * in bf16 (mlc_module_to), moments of 8 bits (mlc_moments), and makes the activations of a layer
 * again in backward (mlc_module_recompute). Bytes are the peaks of mlc_memory_info over all steps
 * but the first two; the estimates are made before the first. The last line is the share of bytes;
 * the program fails if it is over 40 %, or the held-out loss over the plain one by 0.1 bits.   */
#include "../mlcore.h"
#include "corpus.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char HELP[] =
    "usage: tiny_budget [options]\n"
    "  --data FILE    the text                        (examples/data/alice.txt)\n"
    "  --steps N      of each training                (300)\n"
    "  --layers N     of the model                    (6)\n"
    "  --width N      features, a multiple of 32      (96)\n"
    "  --context N    bytes that it sees at once      (64)\n"
    "  --batch N      windows in a step               (16)\n"
    "  --seed N       of first weights and orders     (1)\n"
    "  --help         this text\n";

enum { WARM = 2, PERCENT = 40 };            /* steps that are not measured; the budget        */

typedef struct settings {
    const char *data;
    int         steps, layers, width, context, batch, seed;
} settings;

typedef struct result {
    mlc_memory estimate, steady;            /* bytes                                          */
    int64_t    parameters;
    double     bits, seconds;               /* held out, a byte; a step                       */
} result;

/* ---- the two ways */

static mlc_optim *adamw(mlc_module *net, double lr, mlc_moments moments)
{
    mlc_adam_desc a = mlc_adamw_desc_make(lr);
    mlc_clip_desc clip = mlc_clip_desc_make();
    a.moments = moments;
    clip.norm = 1;
    mlc_optim *opt = mlc_adamw_ex(net, &a);
    if (opt) mlc_optim_clip(opt, &clip);
    return opt;
}

static mlc_optim *plain_optim(mlc_module *net, double lr)
{
    return adamw(net, lr, MLC_MOMENTS_FULL);
}

static mlc_optim *small_optim(mlc_module *net, double lr)
{
    return adamw(net, lr, MLC_MOMENTS_8BIT);
}

static mlc_module *model(mlc_ctx *ctx, const settings *s, int64_t vocabulary, bool small)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(vocabulary, s->context, s->layers, s->width,
                                             s->width / 32);
    d.layer.dropout = 0.1;
    mlc_module *net = mlc_nn_gpt(ctx, &d);
    if (net && small) {
        mlc_module_to(net, MLC_BF16);
        mlc_module_recompute(net, 1);       /* each layer */
    }
    return net;
}

/* The network, its optimizer and a step, in a context that has what `now` says. */
static mlc_status estimate(mlc_module *net, const settings *s, bool small, const mlc_memory *now,
                           mlc_memory *out)
{
    mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy,
                                                 small ? small_optim : plain_optim);
    d.input = MLC_I64;
    const mlc_status st = mlc_estimate_memory(net, mlc_dims2(s->batch, s->context), &d, out);
    for (int i = 0; i < MLC_MEM_COUNT; i++) out->top[i] += now->now[i];
    out->peak += now->allocated;
    return st;
}

/* ---- training */

static mlc_status train(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt, mlc_loader *learn,
                        const settings *s, result *r)
{
    const mlc_sched falls = mlc_sched_cosine(s->steps, 0.05);
    const mlc_sched rate = mlc_sched_warmup(s->steps / 20, &falls);
    mlc_timer       timer = mlc_timer_make("step");
    mlc_status      st = mlc_optim_schedule(opt, MLC_KNOB_LR, &rate);
    for (int step = 0; step < s->steps && st == MLC_OK; step++) {
        mlc_batch b;
        if (step == WARM) mlc_memory_peak_reset(ctx);
        if (step >= WARM) mlc_timer_begin(&timer);
        while (!mlc_loader_next(learn, &b))                 /* an epoch ends, or it fails */
            if (mlc_ctx_status(ctx) != MLC_OK) return mlc_ctx_status(ctx);
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        st = mlc_scope_end(ctx);
        if (step >= WARM) mlc_timer_end(&timer, 1);
    }
    r->seconds = mlc_timer_mean(&timer);
    return st == MLC_OK ? mlc_memory_info(ctx, &r->steady) : st;
}

static mlc_status held_out(mlc_ctx *ctx, mlc_module *net, mlc_loader *held, result *r)
{
    double     sum = 0, rows = 0;
    mlc_status st = MLC_OK;
    mlc_eval_begin(net);
    for (mlc_batch b; st == MLC_OK && mlc_loader_next(held, &b);) {
        const double n = (double)mlc_dim(b.x, 0);
        mlc_scope_begin(ctx);
        sum += n * mlc_item(mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        st = mlc_scope_end(ctx);
        rows += n;
    }
    mlc_eval_end(net);
    r->bits = sum / rows / log(2.0);
    return st == MLC_OK ? mlc_ctx_status(ctx) : st;
}

static mlc_status measure(mlc_ctx *ctx, const settings *s, const corpus *c, bool small, result *r)
{
    const int64_t t = s->context, end = c->n / 10 * 9;
    mlc_memory    now;
    mlc_scope_begin(ctx);                   /* loaders copy what they are made from */
    mlc_loader *learn = windows(ctx, c, 0, end, t, t, s->batch, true);
    mlc_loader *held = windows(ctx, c, end, c->n, t, t, s->batch, false);
    mlc_status st = mlc_scope_end(ctx);
    if (st != MLC_OK) return st;
    mlc_memory_info(ctx, &now);
    mlc_module *net = model(ctx, s, c->vocabulary, small);
    st = mlc_ctx_status(ctx);
    if (st == MLC_OK) st = estimate(net, s, small, &now, &r->estimate);
    mlc_optim *opt = st == MLC_OK ? (small ? small_optim : plain_optim)(net, 3e-3) : NULL;
    if (!opt) return st == MLC_OK ? mlc_ctx_status(ctx) : st;
    r->parameters = mlc_module_numel(net, true);
    st = train(ctx, net, opt, learn, s, r);
    return st == MLC_OK ? held_out(ctx, net, held, r) : st;
}

/* In a context of its own, whose seed is the other's, too. */
static bool run(const settings *s, const corpus *c, bool small, result *r)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed = (uint64_t)s->seed;
    mlc_ctx   *ctx = mlc_ctx_create(&d);
    const bool ok = ctx && measure(ctx, s, c, small, r) == MLC_OK;
    if (!ok) fprintf(stderr, "tiny_budget: %s\n", ctx ? mlc_error(ctx) : "no memory");
    mlc_ctx_free(ctx);
    return ok;
}

/* ---- the table */

static double percent(int64_t part, int64_t of) { return 100 * (double)part / (double)of; }

static void row(const char *name, const int64_t bytes[4])
{
    printf("%-16s", name);
    for (int i = 0; i < 4; i++) printf(" %10.2f", (double)bytes[i] / 1e6);
    if (bytes[1]) printf(" %6.0f %%", percent(bytes[3], bytes[1]));
    putchar('\n');
}

/* Peaks of a class; they need not be at the same time, so that those of all are fewer. */
static void table(const result r[2])
{
    static const char *const name[MLC_MEM_COUNT] = { "objects, batches", "parameters", "gradients",
        "optimizer state", "activations", "workspace", "packs" };
    printf("%-16s %21s %21s\n%-16s %10s %10s %10s %10s\n", "", "plain", "small", "peaks, MB",
           "estimate", "measured", "estimate", "measured");
    for (int i = 0; i < MLC_MEM_COUNT; i++) {
        const int64_t bytes[4] = { r[0].estimate.top[i], r[0].steady.top[i], r[1].estimate.top[i],
                                   r[1].steady.top[i] };
        row(name[i], bytes);
    }
    const int64_t all[4] = { r[0].estimate.peak, r[0].steady.peak, r[1].estimate.peak,
                             r[1].steady.peak };
    row("all at a time", all);
    printf("%-16s %21.3f %21.3f\n%-16s %21.3f %21.3f\n", "held-out bits", r[0].bits, r[1].bits,
           "seconds a step", r[0].seconds, r[1].seconds);
}

/* Checks that the sizes fit together; returns NULL or the message. */
static const char *wrong(const settings *s, const corpus *c)
{
    if (s->width % 32) return "--width must be a multiple of 32, the features of a head";
    if (c->n / 10 < 2 * s->context) return "the text is shorter than 20 contexts";
    if (c->n / 10 * 9 / s->context <= s->batch) return "the text has fewer windows than a batch";
    return NULL;
}

int main(int argc, char **argv)
{
    settings s = { "examples/data/alice.txt", 300, 6, 96, 64, 16, 1 };
    corpus   c = { NULL, 0, 0, { 0 } };
    result   r[2];
    int      status = 0;
    const option list[] = {
        OPTION_TEXT("--data", &s.data), OPTION_NUMBER("--steps", &s.steps, WARM + 1, 1000000),
        OPTION_NUMBER("--layers", &s.layers, 1, 48), OPTION_NUMBER("--width", &s.width, 32, 4096),
        OPTION_NUMBER("--context", &s.context, 8, 1024),
        OPTION_NUMBER("--batch", &s.batch, 1, 4096), OPTION_NUMBER("--seed", &s.seed, 0, 1000000),
        OPTION_END };
    if (!options_read("tiny_budget", HELP, list, argc, argv, &status)) return status;
    const bool  read = corpus_read(&c, s.data);
    const char *why = read ? wrong(&s, &c) : "the text cannot be read, or has one kind of byte";
    if (why) fprintf(stderr, "tiny_budget: %s: %s\n", s.data, why);
    const bool ok = !why && run(&s, &c, false, &r[0]) && run(&s, &c, true, &r[1]);
    free(c.token);
    if (!ok) return 1;
    printf("GPT of %d layers, %d features, %lld parameters; %d steps of %d x %d bytes\n", s.layers,
           s.width, (long long)r[0].parameters, s.steps, s.batch, s.context);
    table(r);
    const double share = percent(r[1].steady.peak, r[0].steady.peak);
    printf("bytes: %.0f %% of plain\n", share);
    return share <= PERCENT && r[1].bits <= r[0].bits + 0.1 ? 0 : 1;
}
