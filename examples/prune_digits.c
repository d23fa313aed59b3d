/* prune_digits.c -- a convolutional network pruned in six ways, on real handwritten digits
 *
 *   build   make demo-prune, or: cc -O2 examples/prune_digits.c mlcore.o -lm -pthread
 *   run     ./prune_digits     or: ./prune_digits --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * One network is trained for each seed. Copies of it are pruned over the first half of as many
 * steps of fine-tuning for all, the dense one included: single weights by the cubic schedule, two
 * of four neighbours at once, half of all channels, which are then removed. Bytes: values that are
 * not pruned, and a bit for each place where some are (of channels none). Milliseconds: a batch of
 * 64 in evaluation; products do not skip zeros, so only what was removed takes less time. */
#include "digits.h"
#include "options.h"

enum { BATCH = 64, MOST = 100 };

typedef struct options { const char *csv, *plot; int seeds, epochs, tune, threads; } options;

typedef struct kind { const char *name; double share; mlc_prune_unit unit; } kind;

static const kind KINDS[] = {
    { "dense", 0, MLC_PRUNE_ELEMENTS },      { "50 % of weights", 0.5, MLC_PRUNE_ELEMENTS },
    { "80 % of weights", 0.8, MLC_PRUNE_ELEMENTS }, { "90 % of weights", 0.9, MLC_PRUNE_ELEMENTS },
    { "95 % of weights", 0.95, MLC_PRUNE_ELEMENTS }, { "2 of 4", 0.5, MLC_PRUNE_N_OF_M },
    { "half the channels", 0.5, MLC_PRUNE_CHANNELS },
};
enum { KINDS_N = (int)(sizeof KINDS / sizeof *KINDS), BY_SHARE = 5 };

typedef struct outcome { double score[MOST], bytes, ms; } outcome;

static const char HELP[] =
    "usage: prune_digits [DIGITS.CSV] [options]\n"
    "  --seeds N      networks                        (3)\n"
    "  --epochs N     passes before pruning           (12)\n"
    "  --tune N       passes of pruning and after it  (12)\n"
    "  --plot FILE    accuracy by bytes, an SVG       (none)\n"
    "  --threads N    threads; 0: all cores           (0)\n"
    "  --help         this text\n";

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_NUMBER("--seeds", &o->seeds, 1, MOST),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--tune", &o->tune, 2, 10000),
                            OPTION_TEXT("--plot", &o->plot),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("prune_digits", HELP, list, argc, argv, status);
}

/* Trains for some epochs; k: pruned over the first half of the steps, or NULL. */
static mlc_status train(mlc_module *net, const split *s, int epochs, int seed, double rate,
                        const kind *k)
{
    mlc_ctx        *ctx = mlc_module_ctx(net);
    mlc_loader_desc d   = mlc_loader_desc_make(s->x[0], s->y[0], BATCH);
    const int64_t   all = mlc_dim(s->x[0], 0) / BATCH * epochs, every = all / 40 + 1;
    mlc_prune_desc  p   = mlc_prune_desc_make(0);
    mlc_prune_schedule curve = mlc_prune_schedule_make(k ? k->share : 0, 0, all / 2 + every, every);
    if (k) p.unit = k->unit;
    p.per_layer = p.unit == MLC_PRUNE_CHANNELS;
    if (p.unit == MLC_PRUNE_N_OF_M) {
        curve.curve = MLC_PRUNE_ONCE;
        p.pattern   = "c*";
    }
    d.shuffle = d.drop_last = true;
    d.seed    = (uint64_t)seed;
    if (k && k->share > 0 && mlc_prune_begin(net, &p, &curve) != MLC_OK)
        return mlc_ctx_status(ctx);
    mlc_loader *loader = mlc_loader_create(ctx, &d);
    mlc_optim  *opt    = mlc_adamw(net, rate);
    mlc_batch   b;
    for (int64_t step = 0; step < all && mlc_ctx_status(ctx) == MLC_OK;) {
        if (!mlc_loader_next(loader, &b)) continue;            /* the next epoch               */
        if (k && k->share > 0) mlc_prune_step(net, &p, &curve, step);
        mlc_optim_set_lr(opt, rate * 0.5 * (1 + cos(3.14159265358979 * (double)step++ /
                                                    (double)all)));
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        if (mlc_scope_end(ctx) != MLC_OK) break;
    }
    const mlc_status st = mlc_error_status(ctx);
    mlc_optim_free(opt);
    mlc_loader_free(loader);
    return st;
}

/* Values that are not pruned, in f32, and a bit for each element of a parameter that has a mask. */
static double bytes_of(mlc_module *net)
{
    const double all    = (double)mlc_module_numel(net, false);
    const double zeros  = mlc_prune_zeros(net, NULL);
    double       masked = 0;
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
        if (it.buffer && strstr(it.name, "_mask")) masked += (double)mlc_numel(it.tensor);
    return 4 * (all - zeros * masked) + (zeros > 0 ? masked / 8 : 0);
}

/* One kind of one seed: a copy of the trained network. */
static bool tune(const options *p, mlc_module *trained, const split *s, const kind *k, int seed,
                 outcome *o)
{
    mlc_module *net = mlc_module_clone(trained);
    mlc_ctx    *ctx = mlc_module_ctx(trained);
    if (!net || train(net, s, p->tune, 1000 + seed, 1e-3, k) != MLC_OK) return false;
    if (k->unit == MLC_PRUNE_CHANNELS && mlc_prune_shrink(net, NULL) != MLC_OK) return false;
    mlc_scope_begin(ctx);
    mlc_eval_begin(net);
    o->score[seed - 1] = 100 * mlc_accuracy(mlc_forward(net, s->x[1]), s->y[1]);
    o->bytes           = bytes_of(net);
    const double ms    = 1e3 * split_seconds(net, s->x[0], BATCH, 30);
    o->ms              = seed == 1 ? ms : fmin(o->ms, ms);
    mlc_eval_end(net);
    const bool ok = mlc_scope_end(ctx) == MLC_OK;
    mlc_module_free(net);
    return ok;
}

/* All kinds of one seed. */
static bool run(const options *p, int seed, outcome *all)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    split        s;
    d.seed    = (uint64_t)seed;
    d.threads = p->threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    bool     ok  = split_load(ctx, "prune_digits", p->csv, BATCH, &s);
    if (ok) {
        for (int i = 0; i < 2; i++) s.x[i] = mlc_reshape(s.x[i], mlc_dims4(-1, 1, 8, 8));
        mlc_module *net = split_cnn(ctx, 32, 64, 64);
        ok = net && train(net, &s, p->epochs, seed, 2e-3, NULL) == MLC_OK;
        for (int i = 0; i < KINDS_N && ok; i++) ok = tune(p, net, &s, &KINDS[i], seed, &all[i]);
        if (!ok) fprintf(stderr, "prune_digits: %s\n", mlc_error(ctx));
    }
    mlc_ctx_free(ctx);
    return ok;
}

/* Accuracy by bytes: a line through shares of weights, a point each for what follows in KINDS, and
 * the dense network's as a line to compare with. */
static bool picture(const options *p, const outcome *all)
{
    double          kilobytes[KINDS_N], score[KINDS_N], dense[2], ends[2], deviation;
    mlc_plot_series line[2 + KINDS_N - BY_SHARE];
    const mlc_plot  chart = { "Pruned digits", "kilobytes", "held out, %", false, false, line,
                              2 + KINDS_N - BY_SHARE };
    for (int i = 0; i < KINDS_N; i++) {
        kilobytes[i] = all[i].bytes / 1000;
        score[i]     = mean_of(all[i].score, NULL, p->seeds, &deviation);
    }
    for (int i = 0; i < 2; i++) {
        dense[i] = score[0];
        ends[i]  = i ? kilobytes[0] : 0;
    }
    line[0] = (mlc_plot_series){ "dense", ends, dense, 2, MLC_PLOT_DASHED };
    line[1] = (mlc_plot_series){ "0, 50, 80, 90, 95 % of weights", kilobytes, score, BY_SHARE,
                                 MLC_PLOT_MARKED };
    for (int i = BY_SHARE; i < KINDS_N; i++)
        line[2 + i - BY_SHARE] = (mlc_plot_series){ KINDS[i].name, &kilobytes[i], &score[i], 1,
                                                    MLC_PLOT_POINTS };
    mlc_ctx   *ctx = mlc_ctx_create(NULL);
    const bool ok  = mlc_plot_save(ctx, p->plot, &chart, 1, 1) == MLC_OK;
    if (!ok) fprintf(stderr, "prune_digits: %s\n", mlc_error(ctx));
    mlc_ctx_free(ctx);
    return ok;
}

int main(int argc, char **argv)
{
    static outcome all[KINDS_N];
    options        o = { "examples/data/digits.csv", NULL, 3, 12, 12, 0 };
    int            status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    for (int seed = 1; seed <= o.seeds; seed++)
        if (!run(&o, seed, all)) return 1;
    printf("%-18s %9s %9s %10s %30s\n%80s\n", "pruned", "bytes", "a batch", "held out",
           "difference to dense, points:", "mean   s.d.  s.e.");
    for (int i = 0; i < KINDS_N; i++) {
        double       deviation, apart;
        const double score = mean_of(all[i].score, NULL, o.seeds, &deviation);
        const double diff  = mean_of(all[i].score, all[0].score, o.seeds, &apart);
        printf("%-18s %9.0f %6.3f ms %8.2f %% %+17.2f %6.2f %5.2f\n", KINDS[i].name, all[i].bytes,
               all[i].ms, score, diff, apart, apart / sqrt(o.seeds));
    }
    return o.plot && !picture(&o, all) ? 1 : 0;
}
