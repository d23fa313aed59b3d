/* sketch_digits.c -- the same network dense and sketched, on real handwritten digits
 *
 *   build   make demo-sketch, or: cc -O2 examples/sketch_digits.c mlcore.o -lm -pthread
 *   run     ./sketch_digits    or: ./sketch_digits --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * 64-1024-1024-10 with AdamW; the 1024 x 1024 layer is dense, or a sketched one of some rank. Each
 * is trained twice: for as many steps as the dense one, and for as long. Scores are means over the
 * seeds. The sketches' signs come from a seed, so the bytes have all there is. */
#include "digits.h"
#include "options.h"

#include <math.h>
#include <time.h>

enum { CLASSES = 10, HIDDEN = 1024, BATCH = 64 };

typedef struct options { const char *csv; int seeds, epochs, threads; } options;

/* terms 0: dense. */
typedef struct kind { int64_t terms, rank; mlc_sketch_start start; const char *name; } kind;

static const kind KINDS[] = {
    { 0, 0, MLC_SKETCH_FRESH, "dense" },
    { 1, 16, MLC_SKETCH_FRESH, "fresh" },   { 1, 64, MLC_SKETCH_FRESH, "fresh" },
    { 4, 16, MLC_SKETCH_FRESH, "fresh" },   { 1, 128, MLC_SKETCH_FRESH, "fresh" },
    { 1, 16, MLC_SKETCH_COPY, "Panther's" }, { 1, 64, MLC_SKETCH_COPY, "Panther's" },
    { 1, 64, MLC_SKETCH_COPY_SCALED, "scaled" },
    { 2, 128, MLC_SKETCH_FRESH, "fresh" },
};
enum { N_KINDS = (int)(sizeof KINDS / sizeof *KINDS) };

typedef struct outcome { double loss, score, seconds; int64_t steps, bytes, numbers; } outcome;

static const char HELP[] =
    "usage: sketch_digits [DIGITS.CSV] [options]\n"
    "  --seeds N      networks of each kind           (3)\n"
    "  --epochs N     passes of the dense network     (20)\n"
    "  --threads N    threads; 0: all cores           (0)\n"
    "  --help         this text\n";

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- options ------------------------------------------------------------------------------ */

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_NUMBER("--seeds", &o->seeds, 1, 1000),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("sketch_digits", HELP, list, argc, argv, status);
}

/* ---- training ----------------------------------------------------------------------------- */

static mlc_module *network(mlc_ctx *ctx, const kind *k)
{
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(HIDDEN, HIDDEN, k->terms, k->rank);
    d.start = k->start;
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, PIXELS, HIDDEN), mlc_nn_relu(ctx),
                          k->terms ? mlc_nn_sklinear_ex(ctx, &d)
                                   : mlc_nn_linear(ctx, HIDDEN, HIDDEN),
                          mlc_nn_relu(ctx), mlc_nn_linear(ctx, HIDDEN, CLASSES));
}

static mlc_status step(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt, const mlc_batch *b,
                       double *loss)
{
    mlc_scope_begin(ctx);
    mlc_tensor *t = mlc_cross_entropy(mlc_forward(net, b->x), b->y);
    mlc_optim_minimize(opt, t);
    *loss = mlc_item(t);
    return mlc_scope_end(ctx);
}

/* For `steps`, or if that is 0 for `seconds`; the rate falls along half a cosine to 0. */
static mlc_status train(mlc_ctx *ctx, mlc_module *net, const split *s, int seed, int64_t steps,
                        double seconds, outcome *o)
{
    mlc_loader_desc d = mlc_loader_desc_make(s->x[0], s->y[0], BATCH);
    d.shuffle = d.drop_last = true;
    d.seed    = (uint64_t)seed;
    mlc_loader  *loader = mlc_loader_create(ctx, &d);
    mlc_optim   *opt    = mlc_adamw(net, 2e-3);
    mlc_batch    b;
    mlc_memory   m;
    double       loss = 0, done = 0, sum = 0, past = 0;
    const double begun = now();
    for (o->steps = 0; done < 1 && mlc_ctx_status(ctx) == MLC_OK;) {
        if (!mlc_loader_next(loader, &b)) continue;            /* the next epoch               */
        mlc_optim_set_lr(opt, 2e-3 * 0.5 * (1 + cos(3.14159265358979 * done)));
        if (step(ctx, net, opt, &b, &loss) != MLC_OK) break;
        o->steps++;
        o->seconds = now() - begun;
        done       = steps ? (double)o->steps / (double)steps : o->seconds / seconds;
        if (done > 0.9) { sum += loss; past++; }               /* of the last tenth            */
    }
    mlc_memory_info(ctx, &m);
    o->bytes = m.now[MLC_MEM_PARAM] + m.now[MLC_MEM_GRAD] + m.now[MLC_MEM_OPTIM];
    o->loss = sum / (past > 0 ? past : 1);
    mlc_optim_free(opt);
    mlc_loader_free(loader);
    return mlc_ctx_status(ctx);
}

static bool run(const options *p, const kind *k, int seed, int64_t steps, double seconds,
                outcome *o)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    split        s;
    d.seed    = (uint64_t)seed;
    d.threads = p->threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    bool     ok  = split_load(ctx, "sketch_digits", p->csv, 1, &s);
    if (ok) {
        mlc_module *net = network(ctx, k);
        ok = train(ctx, net, &s, seed, steps, seconds, o) == MLC_OK;
        o->numbers = mlc_module_numel(net, true);
        mlc_eval_begin(net);
        o->score = 100 * mlc_accuracy(mlc_forward(net, s.x[1]), s.y[1]);
        mlc_eval_end(net);
        if (mlc_ctx_status(ctx) != MLC_OK) ok = false;
        if (!ok) fprintf(stderr, "sketch_digits: %s\n", mlc_error(ctx));
    }
    mlc_ctx_free(ctx);
    return ok;
}

/* Means over the seeds; the first is the dense one, which sets steps and time. */
static bool row(const options *p, const kind *k, int64_t *steps, double *seconds)
{
    outcome same = { 0, 0, 0, 0, 0, 0 }, timed = same, o;
    for (int seed = 1; seed <= p->seeds; seed++) {
        if (!run(p, k, seed, *steps, 0, &o)) return false;
        same.loss += o.loss / p->seeds;
        same.score += o.score / p->seeds;
        same.seconds += o.seconds / p->seeds;
        same.steps = o.steps, same.bytes = o.bytes, same.numbers = o.numbers;
    }
    if (!k->terms) *seconds = same.seconds;
    for (int seed = 1; seed <= p->seeds && k->terms; seed++) {
        if (!run(p, k, seed, 0, *seconds, &o)) return false;
        timed.loss += o.loss / p->seeds;
        timed.score += o.score / p->seeds;
        timed.steps += o.steps / p->seeds;
    }
    if (!k->terms) timed = same;
    char rank[32] = "-";
    if (k->terms) snprintf(rank, sizeof rank, "%d x %d", (int)k->terms, (int)k->rank);
    printf("%-9s %-9s %9lld %7.2f MB %7.3f ms %8.4f %7.2f %% %7lld %8.4f %7.2f %%\n", rank, k->name,
           (long long)same.numbers, (double)same.bytes / 1048576.0,
           1e3 * same.seconds / (double)same.steps, same.loss, same.score, (long long)timed.steps,
           timed.loss, timed.score);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    options o = { "examples/data/digits.csv", 3, 20, 0 };
    double  seconds = 0;
    int     status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    int64_t steps = (int64_t)o.epochs * (1433 / BATCH);
    printf("%-9s %-9s %9s %10s %10s %18s %26s\n", "", "", "", "", "", "equal steps", "equal time");
    printf("%-9s %-9s %9s %10s %10s %8s %9s %7s %8s %9s\n", "rank", "start", "trained", "bytes",
           "a step", "loss", "held out", "steps", "loss", "held out");
    for (int i = 0; i < N_KINDS; i++)
        if (!row(&o, &KINDS[i], &steps, &seconds)) return 1;
    return 0;
}
