/* distill_digits.c -- a convolutional network taught by one of eight times its size, on real digits
 *
 *   build   make demo-distill, or: cc -O2 examples/distill_digits.c mlcore.o -lm -pthread
 *   run     ./distill_digits     or: ./distill_digits --help
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * For each seed a teacher is trained, and then three students from the same first weights, with the
 * same batches and steps: alone, by labels; by the teacher's softened outputs besides; and by what
 * the teacher's last pooling layer gives, through a learned linear, too. */
#include "digits.h"
#include "options.h"

enum { BATCH = 64, MOST = 100 };

typedef struct options { const char *csv; int seeds, epochs, temperature, threads; } options;

enum { TEACHER, ALONE, DISTILLED, LAYERS, KINDS_N };
static const char *const KINDS[] = { "teacher", "alone", "distilled", "and a layer" };

typedef struct outcome { double score[MOST], ms; int64_t parameters; } outcome;

static const char HELP[] =
    "usage: distill_digits [DIGITS.CSV] [options]\n"
    "  --seeds N        teachers, and students of each kind (5)\n"
    "  --epochs N       passes over the rows                (30)\n"
    "  --temperature N  that softens outputs                (4)\n"
    "  --threads N      threads; 0: all cores               (0)\n"
    "  --help           this text\n";

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_NUMBER("--seeds", &o->seeds, 1, MOST),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--temperature", &o->temperature, 1, 100),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("distill_digits", HELP, list, argc, argv, status);
}

/* Trains net, with the loss of `by`, or by labels alone where it is NULL. */
static mlc_status train(mlc_module *net, const split *s, const options *o, int seed,
                        mlc_distillation *by)
{
    mlc_ctx        *ctx = mlc_module_ctx(net);
    mlc_loader_desc d   = mlc_loader_desc_make(s->x[0], s->y[0], BATCH);
    mlc_fit_desc    fit = mlc_fit_desc_make(mlc_cross_entropy);
    d.shuffle = d.drop_last = true;
    d.seed     = (uint64_t)seed;
    d.shift    = 1;
    fit.epochs = o->epochs;
    if (by) {
        fit.loss    = NULL;
        fit.forward = mlc_distillation_forward;
        fit.user    = by;
    }
    mlc_loader *loader = mlc_loader_create(ctx, &d);
    mlc_module *all    = by ? mlc_distillation_net(by) : net;
    mlc_optim  *opt    = mlc_adamw(all, 2e-3);
    mlc_fit(all, opt, loader, &fit, NULL);
    mlc_optim_free(opt);
    mlc_loader_free(loader);
    return mlc_error_status(ctx);
}

static void measure(mlc_module *net, const split *s, int seed, outcome *o)
{
    mlc_scope_begin(mlc_module_ctx(net));
    mlc_eval_begin(net);
    o->score[seed - 1] = 100 * mlc_accuracy(mlc_forward(net, s->x[1]), s->y[1]);
    const double ms    = 1e3 * split_seconds(net, s->x[0], BATCH, 30);
    o->ms              = seed == 1 ? ms : fmin(o->ms, ms);
    o->parameters      = mlc_module_numel(net, true);
    mlc_eval_end(net);
    mlc_scope_end(mlc_module_ctx(net));
}

/* A student of one kind, from the first weights of `student`. */
static bool teach(const options *p, mlc_module *student, mlc_module *teacher, const split *s,
                  int kind, int seed, outcome *o)
{
    const mlc_distill_layer layer = { "flat", "flat", 1, 88, 256 };
    mlc_distill_desc  d   = mlc_distill_desc_make();
    mlc_module       *net = mlc_module_clone(student);
    mlc_distillation *by  = NULL;
    d.loss.alpha       = 0.9;
    d.loss.temperature = p->temperature;
    if (kind == LAYERS) {
        d.layers   = &layer;
        d.n_layers = 1;
    }
    if (kind != ALONE) by = mlc_distillation_create(net, teacher, &d);
    const bool ok = net && (by || kind == ALONE) && train(net, s, p, seed, by) == MLC_OK;
    mlc_distillation_free(by);
    if (ok) measure(net, s, seed, o);
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
    bool     ok  = split_load(ctx, "distill_digits", p->csv, BATCH, &s);
    if (ok) {
        for (int i = 0; i < 2; i++) s.x[i] = mlc_reshape(s.x[i], mlc_dims4(-1, 1, 8, 8));
        mlc_module *teacher = split_cnn(ctx, 32, 64, 64), *student = split_cnn(ctx, 10, 20, 22);
        ok = student && train(teacher, &s, p, seed, NULL) == MLC_OK;
        if (ok) measure(teacher, &s, seed, &all[TEACHER]);
        for (int k = ALONE; k < KINDS_N && ok; k++)
            ok = teach(p, student, teacher, &s, k, seed, &all[k]);
        if (!ok) fprintf(stderr, "distill_digits: %s\n", mlc_error(ctx));
    }
    mlc_ctx_free(ctx);
    return ok;
}

int main(int argc, char **argv)
{
    static outcome all[KINDS_N];
    options        o = { "examples/data/digits.csv", 5, 30, 4, 0 };
    int            status = 0;
    if (!parse(&o, argc, argv, &status)) return status;
    for (int seed = 1; seed <= o.seeds; seed++)
        if (!run(&o, seed, all)) return 1;
    printf("%-12s %10s %9s %10s %30s\n%75s\n", "network", "parameters", "batch 64", "held out",
           "difference to alone, points:", "mean   s.d.  s.e.");
    for (int i = 0; i < KINDS_N; i++) {
        double       deviation, apart;
        const double score = mean_of(all[i].score, NULL, o.seeds, &deviation);
        const double diff  = mean_of(all[i].score, all[ALONE].score, o.seeds, &apart);
        printf("%-12s %10lld %6.3f ms %8.2f %% %+17.2f %6.2f %5.2f\n", KINDS[i],
               (long long)all[i].parameters, all[i].ms, score, diff, apart,
               apart / sqrt(o.seeds));
    }
    return 0;
}
