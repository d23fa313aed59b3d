/* quantize_digits.c -- a convolutional network and an LSTM in integers, on real handwritten digits
 *
 *   build   make demo-quantize, or: cc -O2 examples/quantize_digits.c mlcore.o -lm -pthread
 *   run     ./quantize_digits     or: ./quantize_digits --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * Both networks are trained for each seed, the CNN's norms are folded, and copies become integers:
 *
 *   dynamic   8 bits, activations by the range of each batch
 *   static    8 bits, activations by the ranges of batches of training
 *   aware     as static, after quantization-aware training; of the LSTM network the last layer
 *             alone, since recurrent layers have none
 *   weights   of 8 or 4 bits in groups of numbers that share a scale; activations stay floats
 *
 * Bytes are those of the file that mlc_save writes, memory is that and the most that the first
 * forward of a batch of 64 adds: activations, workspaces, weights as products read them. */
#include "digits.h"
#include "options.h"

enum { BATCH = 64, MOST = 100, CALIBRATE = 8, NETS = 2, KINDS = 6 };

typedef struct options { const char *csv; int seeds, epochs, tune, threads; } options;

typedef struct outcome { double score[MOST], bytes, memory, ms[2]; } outcome;

typedef struct net_kind {
    const char *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    double      rate;
    const char *keep;                  /* what quantization-aware training leaves as floats    */
    const char *keep4;                 /* what 4 bits in groups leave: rows of 8 numbers       */
} net_kind;

static const char *const KIND[KINDS] = { "f32", "dynamic", "static", "aware", "weights, 8 bits",
                                         "weights, 4 bits" };

static const char HELP[] =
    "usage: quantize_digits [DIGITS.CSV] [options]\n"
    "  --seeds N      networks of each kind           (3)\n"
    "  --epochs N     passes of training              (12)\n"
    "  --tune N       passes of aware training        (3)\n"
    "  --threads N    threads; 0: all cores           (0)\n"
    "  --help         this text\n";

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_NUMBER("--seeds", &o->seeds, 1, MOST),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--tune", &o->tune, 1, 10000),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("quantize_digits", HELP, list, argc, argv, status);
}

static mlc_module *cnn(mlc_ctx *ctx) { return split_net(ctx, 32); }

static mlc_tensor *last_step(void *user, mlc_tensor *y)
{
    (void)user;
    return mlc_select(y, 1, mlc_dim(y, 1) - 1);
}

/* Rows of pixels are the steps. */
static mlc_module *lstm(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL_NAMED(
        ctx, { "rows", mlc_nn_unflatten(ctx, 1, mlc_dims2(8, 8)) },
        { "lstm", mlc_nn_lstm(ctx, 8, 128) }, { "last", mlc_nn_lambda(ctx, last_step, NULL) },
        { "classes", mlc_nn_linear(ctx, 128, 10) });
}

static const net_kind NET[NETS] = { { "CNN", cnn, 2e-3, NULL, NULL },
                                      { "LSTM", lstm, 1e-2, "lstm*", "lstm.weight_ih*" } };

static mlc_status aware(const options *p, mlc_module *net, const split *s, const net_kind *k,
                        int seed)
{
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    mlc_status           st;
    d.quantize.keep        = &k->keep;
    d.quantize.n_keep      = k->keep != NULL;
    if ((st = mlc_quant_aware_begin(net, &d)) == MLC_OK &&
        (st = split_train(net, s, BATCH, p->tune, 1000 + (uint64_t)seed, k->rate / 4)) == MLC_OK)
        st = mlc_quant_aware_end(net, NULL);
    return st;
}

/* Makes integers of net, of kind number i. */
static mlc_status convert(const options *p, mlc_module *net, const split *s, const net_kind *k,
                          int i, int seed)
{
    mlc_quantize_desc d = mlc_quantize_desc_make(i == 1 ? MLC_QUANT_DYNAMIC : MLC_QUANT_WEIGHTS);
    if (i == 0) return MLC_OK;
    if (i == 2) return split_quantize(net, s, BATCH, CALIBRATE);
    if (i == 3) return aware(p, net, s, k, seed);
    if (i == 4) d.group = 0;           /* a scale a row                                        */
    if (i == 5) {
        d.bits   = 4;
        d.keep   = &k->keep4;
        d.n_keep = k->keep4 != NULL;
    }
    return mlc_quantize(net, &d, NULL);
}

/* Measures one kind of one seed, in evaluation. */
static bool measure(mlc_module *net, const split *s, int seed, outcome *o)
{
    mlc_ctx   *ctx = mlc_module_ctx(net);
    mlc_memory before, after;
    size_t     bytes = 0;
    mlc_scope_begin(ctx);
    mlc_eval_begin(net);
    mlc_memory_info(ctx, &before);
    mlc_memory_peak_reset(ctx);
    mlc_forward(net, mlc_rows(s->x[0], 0, BATCH));
    mlc_memory_info(ctx, &after);
    mlc_save_memory(net, NULL, &bytes, NULL);
    o->bytes           = (double)bytes;
    o->memory          = (double)bytes + (double)(after.peak - before.allocated);
    o->score[seed - 1] = 100 * mlc_accuracy(mlc_forward(net, s->x[1]), s->y[1]);
    for (int i = 0; i < 2; i++) {
        const double ms = 1e3 * split_seconds(net, s->x[0], i ? BATCH : 1, i ? 30 : 200);
        o->ms[i] = seed == 1 ? ms : fmin(o->ms[i], ms);
    }
    mlc_eval_end(net);
    return mlc_scope_end(ctx) == MLC_OK;
}

/* All kinds of one network of one seed. */
static bool run(const options *p, mlc_ctx *ctx, const split *s, const net_kind *k, int seed,
                outcome *all)
{
    mlc_module *net = k->make(ctx);
    bool        ok  = net && split_train(net, s, BATCH, p->epochs, (uint64_t)seed, k->rate) ==
                                 MLC_OK &&
                      mlc_nn_fold_batch_norm(net) == MLC_OK;
    for (int i = 0; i < KINDS && ok; i++) {
        mlc_module *copy = mlc_module_clone(net);
        ok = copy && convert(p, copy, s, k, i, seed) == MLC_OK && measure(copy, s, seed, &all[i]);
        if (!ok) fprintf(stderr, "quantize_digits: %s, %s: ", k->name, KIND[i]);
        mlc_module_free(copy);
    }
    mlc_module_free(net);
    return ok;
}

/* Both networks of one seed. */
static bool run_all(const options *p, int seed, outcome all[NETS][KINDS])
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    split        s;
    d.seed       = (uint64_t)seed;
    d.threads    = p->threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    bool     ok  = split_load(ctx, "quantize_digits", p->csv, BATCH * CALIBRATE, &s);
    if (ok) {
        for (int i = 0; i < NETS && ok; i++) ok = run(p, ctx, &s, &NET[i], seed, all[i]);
        if (!ok) fprintf(stderr, "%s\n", mlc_error(ctx));
    }
    mlc_ctx_free(ctx);
    return ok;
}

static void print(const options *p, const outcome all[NETS][KINDS])
{
    printf("%-21s %9s %9s %10s %10s %9s %21s\n%92s\n", "network", "bytes", "memory", "batch 1",
           "batch 64", "held out", "difference to f32,", "points:  mean  s.d.  s.e.");
    for (int n = 0; n < NETS; n++) {
        for (int i = 0; i < KINDS; i++) {
            const outcome *o = &all[n][i];
            double         deviation, apart;
            const double   score = mean_of(o->score, NULL, p->seeds, &deviation);
            const double   diff  = mean_of(o->score, all[n][0].score, p->seeds, &apart);
            printf("%-5s%-16s %9.0f %9.0f %7.3f ms %7.3f ms %7.2f %% %+9.2f %5.2f %5.2f\n",
                   NET[n].name, KIND[i], o->bytes, o->memory, o->ms[0], o->ms[1], score, diff,
                   apart, apart / sqrt(p->seeds));
        }
    }
}

int main(int argc, char **argv)
{
    static outcome all[NETS][KINDS];
    options        o = { "examples/data/digits.csv", 3, 12, 3, 0 };
    int            status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    for (int seed = 1; seed <= o.seeds; seed++)
        if (!run_all(&o, seed, all)) return 1;
    print(&o, all);
    return 0;
}
