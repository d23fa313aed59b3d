/* digits.c -- trains a small network on real handwritten digits, saves it, loads it again
 *
 *   build   make demo, or: cc -O2 examples/digits.c mlcore.o -o digits -lm -pthread
 *   run     ./digits      or: ./digits --help
 *   GPU     make cuda, or: with -DDIGITS_CUDA and the object of mlcore_cuda.cu; then --device cuda
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * Five networks are trained from five seeds on the rows that are not held out. Width, rate,
 * dropout and label smoothing were chosen by five-fold cross-validation on those rows alone.  */
#include "options.h"
#ifdef DIGITS_CUDA
#  include "../mlcore_cuda.h"
#endif

#include <time.h>

enum { SIDE = 8, PIXELS = SIDE * SIDE, COLUMNS = PIXELS + 2, CLASSES = 10, HIDDEN = 256 };
enum { BATCH = 32, SHOWN = 4 };

typedef struct options {
    const char *csv, *out, *device;
    int         seeds, epochs, threads;
    mlc_dtype   dtype;                      /* of factors of products; weights are always f32 */
} options;

typedef struct trial {                      /* what one seed has; all of it in one context    */
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_tensor *x[2], *y[2];                /* [n,64] from 0 to 1, [n]: for training, held out */
    mlc_status  created;                    /* why ctx is NULL                                 */
} trial;

static const char HELP[] =
    "usage: digits [DIGITS.CSV [OUT.SAFETENSORS]] [options]\n"
    "  --out FILE     where to save the network       (digits.safetensors)\n"
    "  --seeds N      networks to train               (5)\n"
    "  --epochs N     passes over the training rows   (20)\n"
    "  --threads N    threads; 0: all cores           (1)\n"
    "  --dtype TYPE   f32, or bf16 or f16: mixed precision (f32)\n"
    "  --device NAME  where networks train            (cpu)\n"
    "                 cuda or cuda:1: where digits was compiled with -DDIGITS_CUDA\n"
    "  --help         this text\n";

/* ---- options ------------------------------------------------------------------------------ */

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = {
        OPTION_FILE(&o->csv),                           OPTION_FILE(&o->out),
        OPTION_TEXT("--out", &o->out),                  OPTION_TEXT("--device", &o->device),
        OPTION_NUMBER("--seeds", &o->seeds, 1, 1000),   OPTION_DTYPE("--dtype", &o->dtype),
        OPTION_NUMBER("--epochs", &o->epochs, 1, 100000),
        OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END
    };
    return options_read("digits", HELP, list, argc, argv, status);
}

/* Makes the device "cuda" known, if it is asked for and is not known yet. */
static void register_device(const options *o)
{
#ifdef DIGITS_CUDA
    if (!strncmp(o->device, "cuda", 4) && mlc_backend_count("cuda") == 0 &&
        mlc_cuda_register() != MLC_OK)
        fprintf(stderr, "digits: cuda: %s\n", mlc_cuda_error());
#else
    if (strcmp(o->device, "cpu") != 0)
        fprintf(stderr, "digits: this program was compiled without -DDIGITS_CUDA\n");
#endif
}

/* ---- data and network --------------------------------------------------------------------- */

/* Elements of x in host memory, whatever its device, to be freed; NULL on error. */
static void *fetch(mlc_tensor *x, mlc_dtype dtype)
{
    const size_t bytes = (size_t)mlc_numel(x) * mlc_dtype_bytes(dtype);
    void *v = x ? malloc(bytes + 1) : NULL;
    if (v && mlc_read(x, v, bytes) == MLC_OK) return v;
    free(v);
    return NULL;
}

/* i64 [n]: the rows whose mark is 0, or the others. mlc_nonzero would find them in a line, but a
 * device may be without it. */
static mlc_tensor *rows_of(const trial *t, mlc_tensor *mark, bool held_out)
{
    const int64_t n = mlc_numel(mark);
    float   *marks = (float *)fetch(mark, MLC_F32);
    int64_t *rows  = (int64_t *)malloc((size_t)(n + 1) * sizeof *rows), found = 0;
    for (int64_t i = 0; marks && rows && i < n; i++)
        if ((marks[i] != 0) == held_out) rows[found++] = i;
    mlc_tensor *which = marks && rows ? mlc_from(t->ctx, MLC_I64, mlc_dims1(found), rows) : NULL;
    free(marks);
    free(rows);
    return which;
}

/* Sorts the rows of the file by their last column, held out or not. */
static void load(trial *t, const char *path)
{
    mlc_tensor *table = mlc_csv_load(t->ctx, path, NULL);
    if (table && mlc_dim(table, 1) != COLUMNS)
        mlc_raise(t->ctx, MLC_ERR_SHAPE, "%s: want %d columns, it has %lld", path, (int)COLUMNS,
                  (long long)mlc_dim(table, 1));
    mlc_tensor *mark = mlc_select(table, 1, COLUMNS - 1);
    for (int held_out = 0; held_out < 2 && mlc_ctx_status(t->ctx) == MLC_OK; held_out++) {
        mlc_tensor *rows = mlc_gather_rows(table, rows_of(t, mark, held_out));
        t->x[held_out] = mlc_mul_scalar(mlc_slice(rows, 1, 0, PIXELS, 1), 1.0 / 16);
        t->y[held_out] = mlc_cast(mlc_select(rows, 1, PIXELS), MLC_I64);
        if (rows && mlc_dim(rows, 0) == 0)
            mlc_raise(t->ctx, MLC_ERR_VALUE, "%s: no row is %s", path,
                      held_out ? "held out" : "for training");
    }
}

/* A context of this seed with the digits and a fresh network; the context has what went wrong. */
static trial trial_begin(const options *o, int seed)
{
    trial        t = { NULL, NULL, { NULL, NULL }, { NULL, NULL }, MLC_OK };
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed    = (uint64_t)seed;
    d.threads = o->threads;
    d.device  = o->device;
    d.status  = &t.created;
    t.ctx = mlc_ctx_create(&d);
    t.net = MLC_SEQUENTIAL(t.ctx, mlc_nn_linear(t.ctx, PIXELS, HIDDEN), mlc_nn_relu(t.ctx),
                           mlc_nn_dropout(t.ctx, 0.2), mlc_nn_linear(t.ctx, HIDDEN, CLASSES));
    if (t.ctx) load(&t, o->csv);
    return t;
}

/* Prints the first error of t, if there is one. */
static bool fine(const trial *t)
{
    if (mlc_ctx_status(t->ctx) == MLC_OK) return true;
    if (t->ctx) fprintf(stderr, "digits: %s\n", mlc_error(t->ctx));
    else fprintf(stderr, "digits: no context on the device: %s\n", mlc_status_name(t->created));
    return false;
}

/* ---- training ----------------------------------------------------------------------------- */

/* After each epoch: the bar moves on, with the mean loss of the epoch. */
static mlc_status show(void *user, mlc_event event, mlc_fit_state *s)
{
    char line[32];
    (void)event;
    snprintf(line, sizeof line, "loss %.4f", mlc_fit_value(s, "loss"));
    mlc_progress_update((mlc_progress *)user, s->epoch, line);
    return MLC_OK;
}

/* Trains the network for all epochs; the rate falls along half a cosine to 0. Layers run in dtype,
 * the loss in f32. */
static mlc_status train(trial *t, const options *o, int seed)
{
    mlc_loader_desc rows = mlc_loader_desc_make(t->x[0], t->y[0], BATCH);
    rows.shuffle = true;
    rows.seed    = (uint64_t)seed;
    mlc_loader *loader = mlc_loader_create(t->ctx, &rows);
    mlc_optim  *opt    = mlc_adamw(t->net, 1e-2);
    mlc_sched   fall   = mlc_sched_cosine(o->epochs * mlc_loader_batches(loader), 0);
    mlc_optim_schedule(opt, MLC_KNOB_LR, &fall);
    if (o->dtype == MLC_F16) mlc_optim_scaler(opt, NULL);   /* its gradients would else be 0  */

    char         label[32];
    snprintf(label, sizeof label, "seed %d of %d", seed, o->seeds);
    mlc_progress bar     = mlc_progress_make(label, o->epochs, NULL, NULL);
    mlc_callback shown   = { "bar", &bar, 1u << MLC_EVENT_EPOCH_END, show, NULL, 0, NULL };
    mlc_callback *calls[] = { &shown };
    mlc_cross_entropy_desc loss = mlc_cross_entropy_desc_make();
    loss.label_smoothing = 0.1;
    mlc_fit_desc d = mlc_fit_desc_make(NULL);
    d.epochs       = o->epochs;
    d.forward      = mlc_fit_cross_entropy;
    d.user         = &loss;
    d.has_autocast = true;
    d.autocast     = o->dtype;
    d.callbacks    = calls;
    d.n_callbacks  = 1;
    return mlc_fit(t->net, opt, loader, &d, NULL);
}

/* Scores of the rows held out, f32 [n,10]. */
static mlc_tensor *evaluate(const trial *t, mlc_dtype dtype)
{
    mlc_eval_begin(t->net);
    mlc_autocast_begin(t->ctx, dtype);
    mlc_tensor *scores = mlc_cast(mlc_forward(t->net, t->x[1]), MLC_F32);
    mlc_autocast_end(t->ctx);
    mlc_eval_end(t->net);
    return scores;
}

/* ---- output ------------------------------------------------------------------------------- */

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
static int pick(const int64_t *said, const int64_t *truth, int64_t n_rows, int64_t *rows)
{
    int n = 0;
    for (int wrong = 1; wrong >= 0; wrong--)
        for (int64_t i = 0; i < n_rows && n < (wrong ? SHOWN / 2 : SHOWN); i++)
            if ((said[i] != truth[i]) == wrong) rows[n++] = i;
    return n;
}

static void draw_rows(const float *x, const int64_t *said, const int64_t *truth, int64_t n_rows)
{
    static const char *const blocks[5] = { " ", "\xe2\x96\x91", "\xe2\x96\x92", "\xe2\x96\x93",
                                           "\xe2\x96\x88" };
    static const char *const ascii[5]  = { " ", ".", "+", "*", "#" };
    const char *const *shade = utf8_terminal() ? blocks : ascii;
    int64_t rows[SHOWN];
    int     n = pick(said, truth, n_rows, rows);
    for (int r = 0; r < SIDE; r++) {
        for (int i = 0; i < n; i++) {
            printf("  ");
            for (int c = 0; c < SIDE; c++) {
                const char *s = shade[(int)(x[rows[i] * PIXELS + r * SIDE + c] * 4.0f + 0.5f)];
                printf("%s%s", s, s);       /* two characters are about as wide as high       */
            }
        }
        printf("\n");
    }
    for (int i = 0; i < n; i++)
        printf("  said %d, is %d %-4s", (int)said[rows[i]], (int)truth[rows[i]],
               said[rows[i]] == truth[rows[i]] ? "" : "(!)");
    printf("\n");
}

static bool draw(const trial *t, mlc_tensor *scores)
{
    float   *x     = (float *)fetch(t->x[1], MLC_F32);
    int64_t *said  = (int64_t *)fetch(mlc_argmax(scores, 1, false), MLC_I64);
    int64_t *truth = (int64_t *)fetch(t->y[1], MLC_I64);
    bool     ok    = fine(t) && x && said && truth;
    if (ok) draw_rows(x, said, truth, mlc_dim(scores, 0));
    free(x);
    free(said);
    free(truth);
    return ok;
}

/* Saves the network, loads the file into a new one in a new context, compares the scores. */
static bool save_and_reload(const options *o, const trial *t, mlc_tensor *scores)
{
    trial again = trial_begin(o, 12345);    /* another seed: other weights before the load    */
    bool  ok    = mlc_save(t->net, o->out) == MLC_OK || fine(t);
    mlc_load(again.net, o->out);
    float        *now = (float *)fetch(evaluate(&again, o->dtype), MLC_F32);
    float        *before = (float *)fetch(scores, MLC_F32);
    const int64_t n   = mlc_numel(scores);
    if (ok && (ok = fine(&again) && now && before)) {
        ok = memcmp(before, now, (size_t)n * sizeof *now) == 0;
        printf("saved %s, loaded it into a fresh network: %lld scores %s\n", o->out,
               (long long)n, ok ? "agree bit for bit" : "DIFFER");
    }
    free(now);
    free(before);
    mlc_ctx_free(again.ctx);
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
static bool run_seed(const options *o, int seed, double *accuracy, double *spent)
{
    trial t = trial_begin(o, seed);
    if (seed == 1 && mlc_ctx_status(t.ctx) == MLC_OK)
        printf("%lld digits to train on, %lld held out\n", (long long)mlc_dim(t.x[0], 0),
               (long long)mlc_dim(t.x[1], 0));
    const double start = seconds();
    train(&t, o, seed);
    *spent += seconds() - start;
    mlc_tensor *scores = evaluate(&t, o->dtype);
    *accuracy = mlc_accuracy(scores, t.y[1]);
    bool ok = fine(&t);
    if (ok) printf("seed %d: held-out accuracy %.2f %%\n", seed, 100 * *accuracy);
    if (ok && seed == o->seeds) ok = save_and_reload(o, &t, scores) && draw(&t, scores);
    mlc_ctx_free(t.ctx);
    return ok;
}

int main(int argc, char **argv)
{
    options o     = { "examples/data/digits.csv", "digits.safetensors", "cpu", 5, 20, 1,
                      MLC_F32 };
    double  sum   = 0, spent = 0;
    int     status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    register_device(&o);
    for (int seed = 1; seed <= o.seeds; seed++) {
        double accuracy;
        if (!run_seed(&o, seed, &accuracy, &spent)) return 1;
        sum += accuracy;
    }
    printf("trained %d x %d epochs in %.2f s\n", o.seeds, o.epochs, spent);
    printf("held-out accuracy %.1f %%\n", 100 * sum / o.seeds);
    return 0;
}
