/* digits.c -- trains a small network on real handwritten digits, saves it, loads it again
 *
 *   build   make demo, or: cc -O2 examples/digits.c mlcore.o -o digits -lm -pthread
 *   run     ./digits      or: ./digits --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * Five networks are trained from five seeds on the rows that are not held out. Width, rate,
 * dropout and label smoothing were chosen by five-fold cross-validation on those rows alone.  */
#include "../mlcore.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 8, PIXELS = SIDE * SIDE, COLUMNS = PIXELS + 2, CLASSES = 10, HIDDEN = 256 };
enum { BATCH = 32, SHOWN = 4 };

typedef struct options {
    const char *csv, *out;
    int         seeds, epochs, threads;
    mlc_dtype   dtype;                      /* of what is multiplied; weights are always f32  */
} options;

typedef struct part {                       /* rows for training, or rows held out            */
    int64_t  n;
    float   *x;                             /* [n, 64], scaled to [0, 1]                      */
    int64_t *y;                             /* [n]                                            */
} part;

static const char HELP[] =
    "usage: digits [DIGITS.CSV [OUT.SAFETENSORS]] [options]\n"
    "  --out FILE     where to save the network       (digits.safetensors)\n"
    "  --seeds N      networks to train               (5)\n"
    "  --epochs N     passes over the training rows   (20)\n"
    "  --threads N    threads; 0: all cores           (1)\n"
    "  --dtype TYPE   f32, or bf16 or f16: mixed precision (f32)\n"
    "  --help         this text\n";

/* ---- options ------------------------------------------------------------------------------ */

static bool number(const char *text, int lo, int hi, int *out)
{
    char *end = NULL;
    long  v   = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || v < lo || v > hi) return false;
    *out = (int)v;
    return true;
}

static bool dtype_of(const char *text, mlc_dtype *out)
{
    static const mlc_dtype known[3] = { MLC_F32, MLC_BF16, MLC_F16 };
    for (int i = 0; text && i < 3; i++)
        if (!strcmp(text, mlc_dtype_name(known[i]))) { *out = known[i]; return true; }
    return false;
}

/* 0: go on; 1: help was printed; 2: wrong usage */
static int parse(options *o, int argc, char **argv)
{
    int files = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        bool ok = true;
        if (!strcmp(a, "--help")) { fputs(HELP, stdout); return 1; }
        if (!strcmp(a, "--seeds"))        { ok = number(next, 1, 1000, &o->seeds);     i++; }
        else if (!strcmp(a, "--epochs"))  { ok = number(next, 1, 100000, &o->epochs);  i++; }
        else if (!strcmp(a, "--threads")) { ok = number(next, 0, 1024, &o->threads);   i++; }
        else if (!strcmp(a, "--dtype"))   { ok = dtype_of(next, &o->dtype);            i++; }
        else if (!strcmp(a, "--out"))     { ok = next != NULL; o->out = next;          i++; }
        else if (a[0] == '-' || files == 2) ok = false;
        else if (files++ == 0) o->csv = a;
        else o->out = a;
        if (!ok) { fprintf(stderr, "digits: wrong argument %s\n%s", a, HELP); return 2; }
    }
    return 0;
}

/* ---- data --------------------------------------------------------------------------------- */

static bool part_alloc(part *p, int64_t n)
{
    p->n = 0;                               /* counts up as rows are put in                   */
    p->x = (float *)malloc((size_t)n * PIXELS * sizeof *p->x);
    p->y = (int64_t *)malloc((size_t)n * sizeof *p->y);
    return p->x && p->y;
}

static void part_free(part *p)
{
    free(p->x);
    free(p->y);
}

static void part_put(part *p, const float *row)
{
    for (int j = 0; j < PIXELS; j++) p->x[p->n * PIXELS + j] = row[j] / 16.0f;
    p->y[p->n++] = (int64_t)row[PIXELS];
}

/* Reads the file and sorts its rows by the last column, held out or not. */
static bool load(const char *path, part *train, part *test)
{
    mlc_ctx    *ctx  = mlc_ctx_create(NULL);
    mlc_tensor *t    = mlc_csv_load(ctx, path, NULL);
    int64_t     n    = mlc_dim(t, 0);
    size_t      size = (size_t)mlc_numel(t) * sizeof(float);
    float      *host = t ? (float *)malloc(size) : NULL;
    bool        ok   = host && mlc_read(t, host, size) == MLC_OK;
    if (!ok)
        fprintf(stderr, "digits: %s\n", ctx && *mlc_error(ctx) ? mlc_error(ctx) : "no memory");
    else if (mlc_dim(t, 1) != COLUMNS) {
        fprintf(stderr, "digits: %s: want %d columns, it has %lld\n", path, (int)COLUMNS,
                (long long)mlc_dim(t, 1));
        ok = false;
    }
    ok = ok && part_alloc(train, n) && part_alloc(test, n);
    for (int64_t i = 0; ok && i < n; i++) {
        const float *row = host + i * COLUMNS;
        part_put(row[COLUMNS - 1] != 0.0f ? test : train, row);
    }
    if (ok && (train->n == 0 || test->n == 0)) {
        fprintf(stderr, "digits: %s: no row is %s\n", path, test->n ? "for training" : "held out");
        ok = false;
    }
    free(host);
    mlc_ctx_free(ctx);
    return ok;
}

/* ---- network ------------------------------------------------------------------------------ */

static mlc_ctx *context(const options *o, int seed)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed    = (uint64_t)seed;
    d.threads = o->threads;
    return mlc_ctx_create(&d);
}

static mlc_module *network(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, PIXELS, HIDDEN));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.2));
    mlc_module_add(net, mlc_nn_linear(ctx, HIDDEN, CLASSES));
    return net;
}

/* One step on one batch; adds its loss, times its rows, to *sum. Layers run in dtype, the loss in
 * f32; backward follows. */
static mlc_status step(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt, const mlc_batch *b,
                       mlc_dtype dtype, double *sum)
{
    mlc_cross_entropy_desc d = { MLC_REDUCTION_MEAN, 0.1, false, 0, NULL };   /* 0.1: smoothing */
    mlc_scope_begin(ctx);
    mlc_autocast_begin(ctx, dtype);
    mlc_tensor *loss = mlc_cross_entropy_ex(mlc_forward(net, b->x), b->y, &d);
    mlc_autocast_end(ctx);
    mlc_backward(mlc_optim_scaled(opt, loss));
    mlc_optim_step(opt);
    *sum += mlc_item(loss) * (double)b->n;
    return mlc_scope_end(ctx);
}

/* Trains net for all epochs; the rate falls along half a cosine to 0. */
static mlc_status train(mlc_ctx *ctx, mlc_module *net, const part *p, const options *o, int seed)
{
    mlc_tensor     *x = mlc_from(ctx, MLC_F32, mlc_dims2(p->n, PIXELS), p->x);
    mlc_tensor     *y = mlc_from(ctx, MLC_I64, mlc_dims1(p->n), p->y);
    mlc_loader_desc d = mlc_loader_desc_make(x, y, BATCH);
    d.shuffle = true;
    d.seed    = (uint64_t)seed;
    mlc_loader *loader = mlc_loader_create(ctx, &d);
    mlc_optim  *opt    = mlc_adamw(net, 1e-2);
    if (o->dtype == MLC_F16) mlc_optim_scaler(opt, NULL);   /* its gradients would else be 0  */
    char        text[32];
    snprintf(text, sizeof text, "seed %d of %d", seed, o->seeds);
    mlc_progress bar   = mlc_progress_make(text, o->epochs, NULL, NULL);
    const double lr    = mlc_optim_lr(opt), pi = 3.14159265358979;
    const double total = (double)(o->epochs * mlc_loader_batches(loader));
    mlc_batch    b;

    for (int epoch = 0; epoch < o->epochs && mlc_ctx_status(ctx) == MLC_OK; epoch++) {
        double sum = 0;
        char   line[32];
        while (mlc_loader_next(loader, &b)) {
            mlc_optim_set_lr(opt, lr * 0.5 * (1 + cos(pi * (double)mlc_optim_steps(opt) / total)));
            mlc_status st = step(ctx, net, opt, &b, o->dtype, &sum);
            if (st != MLC_OK) return st;
        }
        snprintf(line, sizeof line, "loss %.4f", sum / (double)p->n);
        mlc_progress_update(&bar, epoch + 1, line);
    }
    return mlc_ctx_status(ctx);
}

/* Scores of all rows of p, [n, 10], into host memory; returns the share that is right. */
static double evaluate(mlc_ctx *ctx, mlc_module *net, const part *p, mlc_dtype dtype, float *scores)
{
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    mlc_scope_begin(ctx);
    mlc_tensor *x     = mlc_from(ctx, MLC_F32, mlc_dims2(p->n, PIXELS), p->x);
    mlc_tensor *y     = mlc_from(ctx, MLC_I64, mlc_dims1(p->n), p->y);
    mlc_autocast_begin(ctx, dtype);
    mlc_tensor *out   = mlc_cast(mlc_forward(net, x), MLC_F32);
    mlc_autocast_end(ctx);
    double      share = mlc_accuracy(out, y);
    mlc_read(out, scores, (size_t)p->n * CLASSES * sizeof *scores);
    mlc_status  st    = mlc_scope_end(ctx);
    mlc_no_grad_end(ctx);
    return st == MLC_OK ? share : (double)NAN;
}

/* ---- what is shown ------------------------------------------------------------------------ */

static int best(const float *scores)
{
    int k = 0;
    for (int j = 1; j < CLASSES; j++)
        if (scores[j] > scores[k]) k = j;
    return k;
}

static bool utf8_terminal(void)
{
    const char *names[3] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (int i = 0; i < 3; i++) {
        const char *v = getenv(names[i]);
        if (v && *v) return strstr(v, "UTF-8") || strstr(v, "utf8") || strstr(v, "UTF8");
    }
    return false;
}

/* Half of the digits drawn are ones the network got wrong, as far as there are any. */
static int pick(const part *p, const float *scores, int64_t *rows)
{
    int n = 0;
    for (int wrong = 1; wrong >= 0; wrong--)
        for (int64_t i = 0; i < p->n && n < (wrong ? SHOWN / 2 : SHOWN); i++)
            if ((best(scores + i * CLASSES) != p->y[i]) == wrong) rows[n++] = i;
    return n;
}

static void draw(const part *p, const float *scores)
{
    static const char *const blocks[5] = { " ", "\xe2\x96\x91", "\xe2\x96\x92", "\xe2\x96\x93",
                                           "\xe2\x96\x88" };
    static const char *const ascii[5]  = { " ", ".", "+", "*", "#" };
    const char *const *shade = utf8_terminal() ? blocks : ascii;
    int64_t rows[SHOWN];
    int     n = pick(p, scores, rows);
    for (int r = 0; r < SIDE; r++) {
        for (int i = 0; i < n; i++) {
            printf("  ");
            for (int c = 0; c < SIDE; c++) {
                const char *s = shade[(int)(p->x[rows[i] * PIXELS + r * SIDE + c] * 4.0f + 0.5f)];
                printf("%s%s", s, s);       /* two characters are about as wide as high       */
            }
        }
        printf("\n");
    }
    for (int i = 0; i < n; i++) {
        int said = best(scores + rows[i] * CLASSES), truth = (int)p->y[rows[i]];
        printf("  said %d, is %d %-4s", said, truth, said == truth ? "" : "(!)");
    }
    printf("\n");
}

/* Saves net, loads the file into a new network in a new context, compares the scores. */
static bool save_and_reload(const options *o, mlc_module *net, const part *test,
                            const float *scores)
{
    size_t  bytes = (size_t)test->n * CLASSES * sizeof *scores;
    float  *again = (float *)malloc(bytes);
    mlc_ctx *ctx  = context(o, 12345);      /* another seed: other weights before the load    */
    bool    ok    = again && ctx;
    if (ok && mlc_save(net, o->out) != MLC_OK) {
        fprintf(stderr, "digits: %s\n", mlc_error(mlc_module_ctx(net)));
        ok = false;
    }
    mlc_module *fresh = ok ? network(ctx) : NULL;
    if (ok && (mlc_load(fresh, o->out) != MLC_OK ||
               isnan(evaluate(ctx, fresh, test, o->dtype, again)))) {
        fprintf(stderr, "digits: %s\n", mlc_error(ctx));
        ok = false;
    }
    if (ok) {
        ok = memcmp(scores, again, bytes) == 0;
        printf("saved %s, loaded it into a fresh network: %lld scores %s\n", o->out,
               (long long)(test->n * CLASSES), ok ? "agree bit for bit" : "DIFFER");
    }
    mlc_ctx_free(ctx);
    free(again);
    return ok;
}

/* ---- the whole run ------------------------------------------------------------------------ */

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One seed: trains, measures; the last network is also saved, reloaded and shown. */
static bool run_seed(const options *o, int seed, const part *tr, const part *te, float *scores,
                     double *accuracy, double *spent)
{
    mlc_ctx    *ctx   = context(o, seed);
    mlc_module *net   = network(ctx);
    double      start = seconds();
    bool        ok    = train(ctx, net, tr, o, seed) == MLC_OK;
    *spent += seconds() - start;
    *accuracy = ok ? evaluate(ctx, net, te, o->dtype, scores) : (double)NAN;
    ok = ok && !isnan(*accuracy);
    if (!ok) fprintf(stderr, "digits: %s\n", ctx ? mlc_error(ctx) : "no memory");
    else printf("seed %d: held-out accuracy %.2f %%\n", seed, 100 * *accuracy);
    if (ok && seed == o->seeds) {
        ok = save_and_reload(o, net, te, scores);
        if (ok) draw(te, scores);
    }
    mlc_ctx_free(ctx);
    return ok;
}

int main(int argc, char **argv)
{
    options o  = { "examples/data/digits.csv", "digits.safetensors", 5, 20, 1,
                   MLC_F32 };
    part    tr = { 0, NULL, NULL }, te = { 0, NULL, NULL };
    double  sum = 0, spent = 0;
    float  *scores = NULL;
    int     usage  = parse(&o, argc, argv);
    if (usage) return usage - 1;
    bool ok = load(o.csv, &tr, &te);
    if (ok) {
        printf("%lld digits to train on, %lld held out\n", (long long)tr.n, (long long)te.n);
        scores = (float *)malloc((size_t)te.n * CLASSES * sizeof *scores);
        ok = scores != NULL;
    }
    for (int seed = 1; ok && seed <= o.seeds; seed++) {
        double accuracy;
        ok = run_seed(&o, seed, &tr, &te, scores, &accuracy, &spent);
        sum += accuracy;
    }
    if (ok) {
        printf("trained %d x %d epochs in %.2f s\n", o.seeds, o.epochs, spent);
        printf("held-out accuracy %.1f %%\n", 100 * sum / o.seeds);
    }
    free(scores);
    part_free(&tr);
    part_free(&te);
    return ok ? 0 : 1;
}
