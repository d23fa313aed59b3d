/* tune.c -- which layers of a trained network become sketched ones, and how far, found by trials
 *
 *   build   make demo-tune, or: cc -O2 examples/tune.c mlcore.o -lm -pthread
 *   run     ./tune    from the folder of mlcore.h, or: ./tune --help
 *   data    examples/data/digits.csv (see its head)
 *
 * The network is trained on digits. Each trial sketches a copy of it, times it and measures its
 * error on rows that training has not seen; the best one within the limit of error is installed.
 * Printed are the table of trials, the best first, and the network before and after. */
#include "digits.h"
#include "options.h"

typedef struct options {
    const char *csv, *record, *svg;
    int         trials, points, epochs, seed, threads;
} options;

static const char HELP[] =
    "usage: tune [DIGITS.CSV] [options]\n"
    "  --trials N     networks that are measured                 (40)\n"
    "  --points N     tenths of a percent of accuracy to give up (10)\n"
    "  --record FILE  goes on from it after a kill               (none)\n"
    "  --svg FILE     picture of all trials                      (none)\n"
    "  --epochs N     passes over the digits                     (20)\n"
    "  --seed N       of network and trials                      (1)\n"
    "  --threads N    threads; 0: all cores                      (1)\n"
    "  --help         this text\n";

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_NUMBER("--trials", &o->trials, 1, 100000),
                            OPTION_NUMBER("--points", &o->points, 0, 1000),
                            OPTION_TEXT("--record", &o->record), OPTION_TEXT("--svg", &o->svg),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_NUMBER("--seed", &o->seed, 0, 1000000),
                            OPTION_NUMBER("--threads", &o->threads, 0, 1024), OPTION_END };
    return options_read("tune", HELP, list, argc, argv, status);
}

/* Pixels [n,64] to logits, wide enough for sketches to be faster. */
static mlc_module *network(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL_NAMED(ctx, { "first", mlc_nn_linear(ctx, PIXELS, 512) },
                                { "relu1", mlc_nn_relu(ctx) },
                                { "middle", mlc_nn_linear(ctx, 512, 512) },
                                { "relu2", mlc_nn_relu(ctx) },
                                { "classes", mlc_nn_linear(ctx, 512, 10) });
}

/* Percent of the held-out rows that are wrong. */
static double error_of(void *user, mlc_module *net)
{
    const split *s = (const split *)user;
    return 100 * (1 - mlc_accuracy(mlc_forward(net, s->x[1]), s->y[1]));
}

static void report(const char *name, mlc_module *net, split *s)
{
    double bytes = 0;
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
        bytes += (double)mlc_numel(it.tensor) * (double)mlc_dtype_bytes(it.tensor->dtype);
    mlc_eval_begin(net);
    printf("%-8s %6.2f %% wrong, %7.3f ms, %9.0f bytes\n", name, error_of(s, net),
           1e3 * split_seconds(net, s->x[0], 256, 50), bytes);
    mlc_eval_end(net);
}

/* The ten lines. */
static mlc_status tune(const options *o, mlc_module *net, split *s, double error)
{
    mlc_tuner           *tuner = NULL;
    mlc_tune_sketch_desc d = mlc_tune_sketch_desc_make(error_of, s, mlc_rows(s->x[0], 0, 256));
    d.most_error = error;                                  /* percent; time is the objective   */
    d.trials     = o->trials;
    d.seed       = (uint64_t)o->seed;
    d.record     = o->record;
    d.start      = MLC_SKETCH_SUBSPACE;                    /* keeps what a trained layer does  */
    d.most_terms = 1;
    mlc_status st = mlc_tune_sketch(net, &d, &tuner);      /* measures, and installs the best  */
    if (st == MLC_OK) st = mlc_tune_print(tuner, mlc_stdout, NULL);
    if (st == MLC_OK && o->svg) st = mlc_tune_plot(tuner, o->svg);
    mlc_tune_free(tuner);
    return st;
}

int main(int argc, char **argv)
{
    options o      = { "examples/data/digits.csv", NULL, NULL, 40, 10, 20, 1, 1 };
    int     status = 0;
    split   s;
    if (!parse(&o, argc, argv, &status)) return status;
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed    = (uint64_t)o.seed;
    d.threads = o.threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!ctx || !split_load(ctx, "tune", o.csv, 256, &s)) return 1;
    mlc_module *net = network(ctx);
    mlc_status  st  = split_train(net, &s, 64, o.epochs, (uint64_t)o.seed, 2e-3);
    if (st == MLC_OK) {
        report("dense", net, &s);
        mlc_eval_begin(net);
        const double error = error_of(&s, net) + 0.1 * o.points;
        mlc_eval_end(net);
        st = tune(&o, net, &s, error);
    }
    if (st == MLC_OK) report("tuned", net, &s);
    else fprintf(stderr, "tune: %s\n", mlc_error(ctx));
    mlc_ctx_free(ctx);
    return st != MLC_OK;
}
