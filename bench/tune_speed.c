/* tune_speed.c -- the tuner on 20 landscapes with noise, for bench/tune_speed.py, which runs Optuna
 * on the same ones
 *
 *   build   make build/tune_speed
 *   run     build/tune_speed spaces               names and parameters, a landscape a line
 *           build/tune_speed ours TRIALS SEEDS    the true value of the best trial of each search
 *           build/tune_speed values               reads "landscape seed trial value ..", writes the
 *                                                 measured and the true value
 *           build/tune_speed sketch               a sketched layer of 4096 by 4096 under a limit
 *                                                 of error, by a grid and by TPE */
#define _POSIX_C_SOURCE 200809L
#include "../mlcore.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 8 };

static const double PI = 3.14159265358979;

typedef struct landscape {
    const char *name;
    int         n;
    double    (*value)(const double *v, int n);
    double      low, high, noise;          /* of reals; kinds of others below                  */
    const char *kinds;                     /* r real, l log real, i whole, j log whole, c choice */
} landscape;

static double sphere(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (v[i] - 1.3) * (v[i] - 1.3);
    return sum;
}

static double rosenbrock(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i + 1 < n; i++)
        sum += 100 * pow(v[i + 1] - v[i] * v[i], 2) + (1 - v[i]) * (1 - v[i]);
    return log1p(sum);
}

static double branin(const double *v, int n)
{
    const double x = 15 * v[0] - 5, y = 15 * v[1];
    (void)n;
    return pow(y - 5.1 / (4 * PI * PI) * x * x + 5 / PI * x - 6, 2) +
           10 * (1 - 1 / (8 * PI)) * cos(x) + 10;
}

static double hartmann(const double *v, int n)
{
    static const double alpha[4] = { 1, 1.2, 3, 3.2 };
    static const double a3[4][6] = { { 3, 10, 30 }, { 0.1, 10, 35 }, { 3, 10, 30 },
                                     { 0.1, 10, 35 } };
    static const double p3[4][6] = { { 0.3689, 0.117, 0.2673 }, { 0.4699, 0.4387, 0.747 },
                                     { 0.1091, 0.8732, 0.5547 }, { 0.0381, 0.5743, 0.8828 } };
    static const double a6[4][6] = { { 10, 3, 17, 3.5, 1.7, 8 }, { 0.05, 10, 17, 0.1, 8, 14 },
                                     { 3, 3.5, 1.7, 10, 17, 8 }, { 17, 8, 0.05, 10, 0.1, 14 } };
    static const double p6[4][6] = { { 0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886 },
                                     { 0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991 },
                                     { 0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.665 },
                                     { 0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381 } };
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        double inner = 0;
        for (int k = 0; k < n; k++)
            inner += (n == 3 ? a3 : a6)[i][k] * pow(v[k] - (n == 3 ? p3 : p6)[i][k], 2);
        sum -= alpha[i] * exp(-inner);
    }
    return sum;
}

static double rastrigin(const double *v, int n)
{
    double sum = 10 * n;
    for (int i = 0; i < n; i++)
        sum += (v[i] - 0.7) * (v[i] - 0.7) - 10 * cos(2 * PI * (v[i] - 0.7));
    return sum;
}

static double ackley(const double *v, int n)
{
    double squares = 0, waves = 0;
    for (int i = 0; i < n; i++) {
        squares += (v[i] + 0.9) * (v[i] + 0.9) / n;
        waves += cos(2 * PI * (v[i] + 0.9)) / n;
    }
    return 20 + exp(1) - 20 * exp(-0.2 * sqrt(squares)) - exp(waves);
}

static double griewank(const double *v, int n)
{
    double sum = 1, product = 1;
    for (int i = 0; i < n; i++) {
        sum += v[i] * v[i] / 4000;
        product *= cos(v[i] / sqrt(i + 1));
    }
    return sum - product;
}

static double levy(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double w = 1 + (v[i] - 1) / 4, next = i + 1 < n ? 1 + (v[i + 1] - 1) / 4 : 0;
        if (i == 0) sum += pow(sin(PI * w), 2);
        sum += (w - 1) * (w - 1) * (i + 1 < n ? 1 + 10 * pow(sin(PI * next), 2)
                                               : 1 + pow(sin(2 * PI * w), 2));
    }
    return sum;
}

static double styblinski(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (pow(v[i], 4) - 16 * v[i] * v[i] + 5 * v[i]) / 2;
    return sum;
}

static double camel(const double *v, int n)
{
    const double x = v[0], y = v[1];
    (void)n;
    return (4 - 2.1 * x * x + pow(x, 4) / 3) * x * x + x * y + (4 * y * y - 4) * y * y;
}

static double beale(const double *v, int n)
{
    const double x = v[0], y = v[1];
    (void)n;
    return log1p(pow(1.5 - x + x * y, 2) + pow(2.25 - x + x * y * y, 2) +
                 pow(2.625 - x + x * y * y * y, 2));
}

/* A training: rate, decay, layers, with a rate that falls with the layers. */
static double training(const double *v, int n)
{
    const double rate = log10(v[0]) + 2 + 0.2 * (v[2] - 4), decay = log10(v[1]) + 4;
    (void)n;
    return 0.3 + 0.2 * rate * rate + 0.02 * decay * decay + 0.03 * fabs(v[2] - 4) +
           (rate > 1.5 ? 1 : 0);
}

/* A choice of rules, each with a best rate of its own. */
static double rules(const double *v, int n)
{
    static const double best[4] = { -1, -3, -3.5, -2 }, floor_of[4] = { 0.5, 0.3, 0.35, 0.6 };
    const int    rule = (int)v[0];
    const double rate = log10(v[1]) - best[rule];
    (void)n;
    return floor_of[rule] + 0.15 * rate * rate + (rule ? 0.05 : 0.5) * fabs(v[2] - 0.9);
}

static double table(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t h = ((uint32_t)v[i] + 1) * 2654435761u + (uint32_t)i * 40503u;
        sum += (double)(h >> 8 & 1023) / 1023 * (i + 1) / n;
    }
    return sum;
}

/* Time of a sketched layer, and what its error costs. */
static double sketched(const double *v, int n)
{
    const double r = v[0] * v[1], error = exp(-r / 180), time = 0.2 + r / 900 + 0.02 * v[0];
    (void)n;
    return time + 8 * fmax(0, error - 0.25);
}

static const landscape LIST[] = {
    { "sphere 2", 2, sphere, -5, 5, 0.3, "rr" },
    { "sphere 5", 5, sphere, -5, 5, 1, "rrrrr" },
    { "rosenbrock 2", 2, rosenbrock, -2, 2, 0.2, "rr" },
    { "rosenbrock 4", 4, rosenbrock, -2, 2, 0.3, "rrrr" },
    { "branin", 2, branin, 0, 1, 2, "rr" },
    { "hartmann 3", 3, hartmann, 0, 1, 0.15, "rrr" },
    { "hartmann 6", 6, hartmann, 0, 1, 0.15, "rrrrrr" },
    { "rastrigin 2", 2, rastrigin, -5, 5, 1.5, "rr" },
    { "rastrigin 4", 4, rastrigin, -5, 5, 3, "rrrr" },
    { "ackley 3", 3, ackley, -10, 10, 0.5, "rrr" },
    { "griewank 4", 4, griewank, -60, 60, 0.1, "rrrr" },
    { "levy 4", 4, levy, -10, 10, 1, "rrrr" },
    { "styblinski 5", 5, styblinski, -5, 5, 5, "rrrrr" },
    { "camel", 2, camel, -2, 2, 0.3, "rr" },
    { "beale", 2, beale, -4, 4, 0.2, "rr" },
    { "training", 3, training, 1e-6, 1, 0.05, "llj" },
    { "rules", 3, rules, 1e-6, 1, 0.05, "clr" },
    { "whole 4", 4, sphere, -20, 20, 5, "iiii" },
    { "choices 5", 5, table, 0, 1, 0.1, "ccccc" },
    { "sketched", 2, sketched, 0, 1, 0.05, "ij" },
};
enum { LANDSCAPES = (int)(sizeof LIST / sizeof *LIST) };

/* Parameter i of a landscape, all of whose parameters of a kind have the same range. */
static mlc_tune_param param_of(const landscape *l, int i)
{
    static const char *const names[MOST] = { "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7" };
    const bool four = !strcmp(l->name, "rules"), few = !strcmp(l->name, "sketched");
    switch (l->kinds[i]) {
    case 'l': return mlc_tune_real_log(names[i], l->low, l->high);
    case 'i': return few ? mlc_tune_whole(names[i], 1, 3)
                         : mlc_tune_whole(names[i], (int64_t)l->low, (int64_t)l->high);
    case 'j': return few ? mlc_tune_whole_log(names[i], 8, 512)
                         : mlc_tune_whole_log(names[i], 1, 16);
    case 'c': return mlc_tune_choice(names[i], NULL, four ? 4 : 6);
    default:  return mlc_tune_real(names[i], four ? 0 : l->low, l->high);
    }
}

/* A normal number of a landscape, a seed and a trial (splitmix64, Box and Muller). */
static double noise_of(int at, uint64_t seed, int64_t trial)
{
    uint64_t z = ((uint64_t)at << 48) + (seed << 32) + (uint64_t)trial;
    double   u[2];
    for (int i = 0; i < 2; i++) {
        uint64_t y = z += 0x9E3779B97F4A7C15u;
        y = (y ^ y >> 30) * 0xBF58476D1CE4E5B9u;
        y = (y ^ y >> 27) * 0x94D049BB133111EBu;
        u[i] = ((double)((y ^ y >> 31) >> 11) + 0.5) / 9007199254740992.0;
    }
    return sqrt(-2 * log(u[0])) * cos(2 * PI * u[1]);
}

static double measured(int at, uint64_t seed, int64_t trial, const double *v)
{
    return LIST[at].value(v, LIST[at].n) + LIST[at].noise * noise_of(at, seed, trial);
}

static int spaces(void)
{
    for (int at = 0; at < LANDSCAPES; at++) {
        printf("%s", LIST[at].name);
        for (int i = 0; i < LIST[at].n; i++) {
            const mlc_tune_param p = param_of(&LIST[at], i);
            printf("|%d %d %.17g %.17g", (int)p.kind, p.log, p.low, p.high);
        }
        printf("\n");
    }
    return 0;
}

static int ours(int64_t trials, int64_t seeds)
{
    for (int at = 0; at < LANDSCAPES; at++)
        for (int64_t seed = 0; seed < seeds; seed++) {
            mlc_ctx              *ctx = mlc_ctx_create(NULL);
            mlc_tune_param        p[MOST];
            const mlc_tune_result r = mlc_tune_result_make("value", 1);
            const mlc_tune_trial *q;
            for (int i = 0; i < LIST[at].n; i++) p[i] = param_of(&LIST[at], i);
            mlc_tune_desc d = mlc_tune_desc_make(p, LIST[at].n, &r, 1);
            d.trials = trials;
            d.seed   = (uint64_t)seed;
            mlc_tuner *t = mlc_tune_create(ctx, &d);
            while ((q = mlc_tune_ask(t)) != NULL) {
                const double y = measured(at, (uint64_t)seed, q->id, q->values);
                if (mlc_tune_tell(t, q->id, &y) != MLC_OK) return 1;
            }
            q = mlc_tune_best(t);
            if (!q) return 1;
            printf("%d %d %.17g\n", at, (int)seed, LIST[at].value(q->values, LIST[at].n));
            mlc_ctx_free(ctx);
        }
    return 0;
}

static int values(void)
{
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        char          *at    = line;
        const int      which = (int)strtol(at, &at, 10);
        const uint64_t seed  = strtoull(at, &at, 10);
        const int64_t  trial = strtoll(at, &at, 10);
        double         v[MOST];
        if (which < 0 || which >= LANDSCAPES) return 1;
        for (int i = 0; i < LIST[which].n; i++) v[i] = strtod(at, &at);
        printf("%.17g %.17g\n", measured(which, seed, trial, v),
               LIST[which].value(v, LIST[which].n));
        fflush(stdout);
    }
    return 0;
}

/* ---- a sketched layer of 4096 by 4096, batches of 128 ---- */

enum { WIDE = 4096, ROWS = 128, REPEATS = 3 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Milliseconds of a forward. */
static double forward_ms(mlc_module *m, mlc_tensor *x)
{
    mlc_scope_begin(mlc_module_ctx(m));
    const double from = now();
    mlc_forward(m, x);
    const double ms = 1e3 * (now() - from);
    mlc_scope_end(mlc_module_ctx(m));
    return ms;
}

static mlc_module *layer_of(mlc_ctx *ctx, const mlc_tune_trial *q)
{
    mlc_module *m = mlc_nn_sklinear(ctx, WIDE, WIDE, (int64_t)q->values[1], (int64_t)q->values[0]);
    mlc_module_train(m, false);
    return m;
}

/* Makes and times the layer of a trial. The error of a fit to a weight is, on average over its
 * signs, 1 - rank / 4096 of the weight's norm. */
static void measure(mlc_ctx *ctx, mlc_tensor *x, mlc_tuner *t, const mlc_tune_trial *q)
{
    mlc_module *m = layer_of(ctx, q);
    double      y[2] = { forward_ms(m, x), 1 - q->values[0] * q->values[1] / WIDE };
    for (int i = 0; i < REPEATS; i++) {
        y[0] = forward_ms(m, x);
        mlc_tune_tell(t, q->id, y);
    }
    mlc_module_free(m);
}

/* Times the three best trials once more: the best of many measurements is so in part by luck. */
static void finals(mlc_ctx *ctx, mlc_tensor *x, mlc_tuner *t)
{
    for (int n = 0; n < 3; n++) {
        const mlc_tune_trial *best = NULL, *q;
        for (int64_t i = 0; (q = mlc_tune_trial_at(t, i)) != NULL; i++)
            if (q->tells == REPEATS && q->violation <= 0 &&
                (!best || q->objective < best->objective)) best = q;
        if (best) measure(ctx, x, t, best);
    }
}

/* The best layer of a search for the least time with an error of at most 0.85, for at most `most`
 * seconds. */
static mlc_module *search(mlc_ctx *ctx, mlc_tensor *x, mlc_tune_method method, double most,
                          uint64_t seed, double *seconds)
{
    mlc_tune_param        p[2] = { mlc_tune_whole("low_rank", 32, 992),
                                   mlc_tune_whole("num_terms", 1, 3) };
    mlc_tune_result       r[2] = { mlc_tune_result_make("ms", 1),
                                   mlc_tune_result_make("error", 0) };
    const mlc_tune_trial *q;
    const double          from = now();
    p[0].step = 32;
    r[1].most = 0.85;
    mlc_tune_desc d = mlc_tune_desc_make(p, 2, r, 2);
    d.method = method;
    d.startup = 5;                     /* of 23 or so                                          */
    d.seed = seed;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    while (now() - from < most && (q = mlc_tune_ask(t)) != NULL) measure(ctx, x, t, q);
    finals(ctx, x, t);
    *seconds = now() - from;
    q = mlc_tune_best(t);
    if (!q) return NULL;
    printf("%-5s %6.1f s: low_rank %4.0f, num_terms %.0f, %.3f ms +- %.3f, error %.3f\n",
           method == MLC_TUNE_GRID ? "grid" : "TPE", *seconds, q->values[0], q->values[1],
           q->mean[0], q->deviation[0], q->mean[1]);
    fflush(stdout);
    return layer_of(ctx, q);
}

/* The grid of 93 layers, then TPE in a quarter of its time, of which 0.03 are for the last
 * timings, five seeds; the best layer of each and the grid's are timed in turns. */
static int sketch(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *x   = mlc_randn(ctx, MLC_F32, mlc_dims2(ROWS, WIDE));
    double      grid, seconds;
    mlc_module *m[2] = { search(ctx, x, MLC_TUNE_GRID, 1e9, 0, &grid), NULL };
    for (uint64_t seed = 0; seed < 5; seed++) {
        double ms[2] = { 1e9, 1e9 };
        m[1] = search(ctx, x, MLC_TUNE_TPE, 0.22 * grid, seed, &seconds);
        if (!m[0] || !m[1]) return 1;
        for (int i = 0; i < 40; i++) ms[i & 1] = fmin(ms[i & 1], forward_ms(m[i & 1], x));
        printf("      grid's best %.3f ms; TPE's %.3f of it, found in %.2f of the time\n", ms[0],
               ms[1] / ms[0], seconds / grid);
        fflush(stdout);
        mlc_module_free(m[1]);
    }
    mlc_ctx_free(ctx);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "spaces")) return spaces();
    if (!strcmp(what, "ours") && argc > 3) return ours(atoi(argv[2]), atoi(argv[3]));
    if (!strcmp(what, "values")) return values();
    if (!strcmp(what, "sketch")) return sketch();
    fprintf(stderr, "usage: tune_speed spaces | ours TRIALS SEEDS | values | sketch\n");
    return 2;
}
