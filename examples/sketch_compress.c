/* sketch_compress.c -- two trained networks in three budgets of bytes: digits by a CNN, a book by a
 * GPT
 *
 *   build   make demo-compress, or: cc -O2 examples/sketch_compress.c mlcore.o -lm -pthread
 *   run     ./sketch_compress    from the folder of mlcore.h, or: ./sketch_compress --help
 *   data    examples/data/digits.csv (see its head) and examples/data/alice.txt
 *
 * For each seed a network is trained, and copies of it are brought within shares of its bytes: a
 * layer becomes two of low rank, or a sketched one, where that costs the least error. Errors are
 * those of the weights, or of the layers' outputs over training inputs; the latter are trained
 * again for a fifth of the steps, too. Held out: accuracy of the CNN, bits a byte of the GPT. */
#include "corpus.h"
#include "digits.h"
#include "options.h"

enum { BATCH = 64, WINDOWS = 16, CONTEXT = 64, HEAD = 32, MOST = 100 };

typedef struct options {
    const char *csv, *text;
    int         seeds, epochs, steps, layers, width, threads;
} options;

typedef enum way { WEIGHTS, INPUTS, TUNED, WAYS } way;
static const char *const NAMES[WAYS] = { "weights", "inputs", "inputs, tuned" };
static const double SHARES[] = { 0.75, 0.6, 0.45 };
enum { BUDGETS = (int)(sizeof SHARES / sizeof *SHARES), ROWS = 1 + BUDGETS * WAYS };

typedef struct outcome { double score[MOST], ms; int64_t bytes, layers, replaced; } outcome;

/* A network and its data: batches to learn from, inputs to time, and held-out ones. */
typedef struct job {
    const options *o;
    mlc_module    *net;
    mlc_tensor    *x[2], *y[2];            /* rows to learn from, held out                   */
    int64_t        batch, steps;
    bool           gpt;
    int            seed;
} job;

static const char HELP[] =
    "usage: sketch_compress [DIGITS.CSV] [options]\n"
    "  --text FILE    what the GPT learns             (examples/data/alice.txt)\n"
    "  --seeds N      networks of each kind           (3)\n"
    "  --epochs N     passes over the digits          (20)\n"
    "  --steps N      of the GPT                      (1000)\n"
    "  --layers N     of the GPT                      (2)\n"
    "  --width N      of the GPT, a multiple of 32    (128)\n"
    "  --threads N    threads; 0: all cores           (0)\n"
    "  --help         this text\n";

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_TEXT("--text", &o->text),
                            OPTION_NUMBER("--seeds", &o->seeds, 1, MOST),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--steps", &o->steps, 5, 1000000),
                            OPTION_NUMBER("--layers", &o->layers, 1, 48),
                            OPTION_NUMBER("--width", &o->width, 32, 4096),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("sketch_compress", HELP, list, argc, argv, status);
}

static bool digits_of(mlc_ctx *ctx, job *j)
{
    split s;
    if (!split_load(ctx, "sketch_compress", j->o->csv, BATCH, &s)) return false;
    for (int i = 0; i < 2; i++) {
        j->x[i] = mlc_reshape(s.x[i], mlc_dims4(-1, 1, 8, 8));
        j->y[i] = s.y[i];
    }
    j->batch = BATCH;
    j->steps = mlc_dim(s.x[0], 0) / BATCH * j->o->epochs;
    j->net   = split_cnn(ctx, 32, 64, 64);
    return j->net != NULL;
}

/* Windows of the first nine tenths of the text, half a context apart, and of the last. */
static bool book_of(mlc_ctx *ctx, job *j)
{
    corpus c = { NULL, 0, 0, { 0 } };
    if (!corpus_read(&c, j->o->text) || c.n < 20 * CONTEXT * WINDOWS) {
        fprintf(stderr, "sketch_compress: %s cannot be read, or is too short\n", j->o->text);
        free(c.token);
        return false;
    }
    mlc_tensor *all = mlc_from(ctx, MLC_I64, mlc_dims1(c.n), c.token);
    free(c.token);
    for (int i = 0; i < 2; i++) {
        const int64_t from = i ? c.n / 10 * 9 : 0, to = i ? c.n : c.n / 10 * 9;
        const int64_t step = i ? CONTEXT : CONTEXT / 2;
        j->x[i] = mlc_unfold(mlc_rows(all, from, to - 1), 0, CONTEXT, step);
        j->y[i] = mlc_unfold(mlc_rows(all, from + 1, to), 0, CONTEXT, step);
    }
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(c.vocabulary, CONTEXT, j->o->layers, j->o->width,
                                             j->o->width / HEAD);
    d.layer.dropout = 0;
    j->batch = WINDOWS;
    j->steps = j->o->steps;
    j->net   = mlc_nn_gpt(ctx, &d);
    return j->net != NULL;
}

static mlc_loader *batches(const job *j, bool shuffle, uint64_t seed)
{
    mlc_loader_desc d = mlc_loader_desc_make(j->x[0], j->y[0], j->batch);
    d.shuffle   = shuffle;
    d.drop_last = true;
    d.seed      = seed;
    return mlc_loader_create(mlc_module_ctx(j->net), &d);
}

/* AdamW, a rate that falls along half a cosine. */
static mlc_status train(const job *j, mlc_module *net, int64_t steps, double rate, uint64_t seed)
{
    mlc_ctx    *ctx    = mlc_module_ctx(net);
    mlc_loader *loader = batches(j, true, seed);
    mlc_optim  *opt    = loader ? mlc_adamw(net, rate) : NULL;
    mlc_batch   b;
    for (int64_t step = 0; opt && step < steps && mlc_ctx_status(ctx) == MLC_OK;) {
        if (!mlc_loader_next(loader, &b)) continue;            /* the next epoch               */
        mlc_optim_set_lr(opt, rate * 0.5 * (1 + cos(3.14159265358979 * (double)step++ /
                                                    (double)steps)));
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        if (mlc_scope_end(ctx) != MLC_OK) break;
    }
    const mlc_status st = mlc_error_status(ctx);
    mlc_optim_free(opt);
    mlc_loader_free(loader);
    return st;
}

/* Accuracy in percent, or bits a byte, of the held-out rows. */
static double score_of(const job *j, mlc_module *net)
{
    mlc_ctx      *ctx = mlc_module_ctx(net);
    const int64_t n = mlc_dim(j->x[1], 0);
    double        sum = 0;
    for (int64_t i = 0; i < n; i += j->batch) {
        const int64_t to = i + j->batch < n ? i + j->batch : n;
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_rows(j->y[1], i, to), *out = mlc_forward(net, mlc_rows(j->x[1], i, to));
        sum += (double)(to - i) * (j->gpt ? mlc_item(mlc_cross_entropy(out, y)) / log(2.0)
                                          : 100 * mlc_accuracy(out, y));
        mlc_scope_end(ctx);
    }
    return sum / (double)n;
}

static int64_t bytes_of(mlc_module *net)
{
    int64_t bytes = 0;
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
        bytes += mlc_numel(it.tensor) * (int64_t)mlc_dtype_bytes(it.tensor->dtype);
    return bytes;
}

static void measure(const job *j, mlc_module *net, outcome *o)
{
    mlc_eval_begin(net);
    const double ms = 1e3 * split_seconds(net, j->x[0], j->batch, 30);
    o->score[j->seed - 1] = score_of(j, net);
    o->ms    = j->seed == 1 ? ms : fmin(o->ms, ms);
    o->bytes = bytes_of(net);
    mlc_eval_end(net);
}

/* A copy of the network within a share of its bytes. Small layers may take longer in two steps than
 * in one: the budget comes first here. */
static bool reduce(const job *j, double share, way how, outcome *o)
{
    static mlc_sketch_choice c[256];
    mlc_module       *net    = mlc_module_clone(j->net);
    mlc_loader       *loader = how == WEIGHTS ? NULL : batches(j, false, 0);
    mlc_sketch_budget b      = mlc_sketch_budget_make((int64_t)(share * (double)bytes_of(j->net)));
    b.loader     = loader;
    b.batches    = 20;
    b.multiple   = 4;
    b.slower_too = true;
    bool ok = net && mlc_sketch_model_within(net, &b, c, 256, &o->layers) == MLC_OK;
    o->replaced = 0;
    for (int i = 0; i < o->layers && ok; i++) o->replaced += c[i].form != MLC_SKETCH_AS_DENSE;
    if (ok && how == TUNED)
        ok = train(j, net, j->steps / 5, 5e-4, 1000 + (uint64_t)j->seed) == MLC_OK;
    if (ok) measure(j, net, o);
    mlc_loader_free(loader);
    mlc_module_free(net);
    return ok;
}

/* All rows of one network of one seed. */
static bool run(const options *o, bool gpt, int seed, outcome *all)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    job          j = { o, NULL, { NULL, NULL }, { NULL, NULL }, 0, 0, gpt, seed };
    d.seed    = (uint64_t)seed;
    d.threads = o->threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    bool     ok  = ctx && (gpt ? book_of(ctx, &j) : digits_of(ctx, &j));
    if (ok) ok = train(&j, j.net, j.steps, 2e-3, (uint64_t)seed) == MLC_OK;
    if (ok) measure(&j, j.net, &all[0]);
    for (int i = 0; i < BUDGETS * WAYS && ok; i++)
        ok = reduce(&j, SHARES[i / WAYS], (way)(i % WAYS), &all[1 + i]);
    if (!ok && ctx) fprintf(stderr, "sketch_compress: %s\n", mlc_error(ctx));
    mlc_ctx_free(ctx);
    return ok;
}

static void show(const options *o, bool gpt, const outcome *all)
{
    printf("%-8s %-14s %8s %9s %9s %11s %28s\n%79s\n", gpt ? "GPT" : "CNN", "errors of", "layers",
           "bytes", "a batch", gpt ? "bits a byte" : "held out", "difference to trained:",
           "mean   s.d.");
    for (int i = 0; i < ROWS; i++) {
        double       deviation, apart;
        const double score = mean_of(all[i].score, NULL, o->seeds, &deviation);
        const double diff  = mean_of(all[i].score, all[0].score, o->seeds, &apart);
        char         share[16] = "trained", layers[24] = "";
        if (i) {
            snprintf(share, sizeof share, "%.0f %%", 100 * SHARES[(i - 1) / WAYS]);
            snprintf(layers, sizeof layers, "%d of %d", (int)all[i].replaced, (int)all[i].layers);
        }
        printf("%-8s %-14s %8s %9lld %6.3f ms %10.3f%s %+20.3f %6.3f\n", share,
               i ? NAMES[(i - 1) % WAYS] : "", layers, (long long)all[i].bytes, all[i].ms, score,
               gpt ? " " : "%", diff, apart);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static outcome all[2][ROWS];
    options        o = { "examples/data/digits.csv", "examples/data/alice.txt", 3, 20, 1000, 2, 128,
                         0 };
    int            status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    if (o.width % HEAD) {
        fprintf(stderr, "sketch_compress: --width must be a multiple of %d\n", HEAD);
        return 1;
    }
    for (int gpt = 0; gpt < 2; gpt++) {
        for (int seed = 1; seed <= o.seeds; seed++)
            if (!run(&o, gpt != 0, seed, all[gpt])) return 1;
        show(&o, gpt != 0, all[gpt]);
    }
    return 0;
}
