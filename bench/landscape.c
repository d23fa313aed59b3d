/* landscape.c -- cost and accuracy of a sketched layer, as one picture
 *
 *   run     make bench-sketch     or: build/landscape OUT.SVG
 *   prints  a table of the grid; writes twelve charts with mlc_plot_save
 *
 * Layers of 1024 to 512 with 128 rows, the grid of Panther's own benchmark: num_terms by low_rank.
 * Times are medians of rounds in which every layer takes its turn, the dense one, too.        */
#define _POSIX_C_SOURCE 200809L
#include "../mlcore.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IN = 1024, OUT = 512, ROWS = 128, GRID = 6, LAYERS = GRID * GRID + 1, DENSE = LAYERS - 1 };
enum { ROUNDS = 9, BATCHES = 4, HELD = 4, STARTS = 4, RANKS = 6 };

static const int64_t terms[GRID] = { 2, 4, 6, 8, 12, 16 };
static const int64_t ranks[GRID] = { 16, 32, 48, 64, 96, 128 };

typedef struct layer {                 /* and the measured costs                               */
    int64_t     terms, rank;           /* 0: dense                                             */
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    mlc_tensor *x, *dy;
    double      took[ROUNDS];          /* seconds for a step                                   */
    double      numbers, flop, ms, mb, error;
} layer;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool failed(mlc_ctx *ctx)
{
    if (ctx && mlc_ctx_status(ctx) == MLC_OK) return false;
    fprintf(stderr, "landscape: %s\n", ctx ? mlc_error(ctx) : "no context");
    return true;
}

/* ---- layers --------------------------------------------------------------------------------- */

/* In a context of its own, so that its bytes can be counted. */
static bool layer_open(layer *l, int64_t rows)
{
    l->ctx = mlc_ctx_create(NULL);
    if (!l->ctx) return !failed(NULL);
    l->net = l->terms ? mlc_nn_sklinear(l->ctx, IN, OUT, l->terms, l->rank)
                      : mlc_nn_linear(l->ctx, IN, OUT);
    l->opt = mlc_adamw(l->net, 1e-3);
    l->x   = mlc_randn(l->ctx, MLC_F32, mlc_dims2(rows, IN));
    l->dy  = mlc_randn(l->ctx, MLC_F32, mlc_dims2(rows, OUT));
    mlc_set_requires_grad(l->x, true);
    return !failed(l->ctx);
}

/* Forward and backward: y, the gradients of x, weights and bias. */
static void layer_step(layer *l)
{
    mlc_scope_begin(l->ctx);
    mlc_zero_grad(l->x);
    mlc_optim_zero_grad(l->opt);
    mlc_backward_from(mlc_forward(l->net, l->x), l->dy);
    mlc_scope_end(l->ctx);
}

/* Most bytes in use over two steps with AdamW. */
static double layer_bytes(layer *l)
{
    mlc_memory m;
    mlc_memory_peak_reset(l->ctx);
    for (int i = 0; i < 2; i++) {
        layer_step(l);
        mlc_optim_step(l->opt);
    }
    mlc_memory_info(l->ctx, &m);
    return (double)m.peak;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void layers_time(layer *all, int n)
{
    for (int round = -1; round < ROUNDS; round++)          /* the first one is thrown away */
        for (int i = 0; i < n; i++) {
            int          steps = 0;
            const double from = now();
            do layer_step(&all[i]); while (++steps, now() - from < 0.03);
            if (round >= 0) all[i].took[round] = (now() - from) / steps;
        }
    for (int i = 0; i < n; i++) {
        qsort(all[i].took, ROUNDS, sizeof all[i].took[0], by_size);
        all[i].ms = 1e3 * all[i].took[ROUNDS / 2];
    }
}

/* ---- what a layer can hold ------------------------------------------------------------------ */

/* [OUT, IN], singular values about 1, 1/2, 1/3, ..: trained weights fall off like that. */
static mlc_tensor *falling_weight(mlc_ctx *ctx)
{
    mlc_tensor *u = mlc_mul_scalar(mlc_randn(ctx, MLC_F32, mlc_dims2(OUT, OUT)), 1 / sqrt(OUT));
    mlc_tensor *v = mlc_mul_scalar(mlc_randn(ctx, MLC_F32, mlc_dims2(OUT, IN)), 1 / sqrt(IN));
    float       fall[OUT];
    for (int i = 0; i < OUT; i++) fall[i] = 1 / (float)(i + 1);
    return mlc_matmul(mlc_mul(u, mlc_from(ctx, MLC_F32, mlc_dims1(OUT), fall)), v);
}

/* |W' - W| / |W| of a layer that starts from w. */
static double start_error(mlc_ctx *ctx, mlc_tensor *w, int64_t n, int64_t rank,
                          mlc_sketch_start start)
{
    double            error = (double)NAN;
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(IN, OUT, n, rank);
    d.weight = w;
    d.start = start;
    d.error = &error;
    d.has_seed = true;
    d.seed = 1;
    mlc_module_free(mlc_nn_sklinear_ex(ctx, &d));
    return error;
}

/* ---- charts --------------------------------------------------------------------------------- */

/* Points of one line, and the number of lines of the picture. */
typedef struct points { double x[GRID], y[GRID]; char label[32]; } points;

static points          point[12 * 8];
static mlc_plot_series line[12 * 8];
static int             lines;

static void line_add(const char *label, const double *x, const double *y, int n, mlc_plot_mark mark)
{
    points *p = &point[lines];
    if (label) snprintf(p->label, sizeof p->label, "%s", label);
    memcpy(p->x, x, (size_t)n * sizeof *x);
    memcpy(p->y, y, (size_t)n * sizeof *y);
    line[lines++] = (mlc_plot_series){ label ? p->label : NULL, p->x, p->y, n, mark };
}

typedef double (*figure)(const layer *l);
static double numbers_of(const layer *l) { return l->numbers; }
static double ms_of(const layer *l) { return l->ms; }
static double mb_of(const layer *l) { return l->mb; }
static double error_of(const layer *l) { return l->error; }

/* A figure over parameters, num_terms or low_rank; a line for each value of the other one.      */
static mlc_plot grid_chart(const layer *all, figure y, const char *name, int along, bool labels)
{
    static const char *const x_labels[3] = { "trainable numbers", "num_terms", "low_rank" };
    mlc_plot p = { NULL, x_labels[along], name, along == 0, along == 0 && y != error_of,
                   &line[lines], 0 };
    double   xs[GRID], ys[GRID], low = 1e300, high = 0;
    for (int i = 0; i < GRID; i++) {
        char label[32];
        for (int j = 0; j < GRID; j++) {
            const layer *l = along == 1 ? &all[j * GRID + i] : &all[i * GRID + j];
            xs[j] = along == 0 ? numbers_of(l) : (double)(along == 1 ? l->terms : l->rank);
            ys[j] = y(l);
            low  = fmin(low, xs[j]);
            high = fmax(high, xs[j]);
        }
        snprintf(label, sizeof label, along == 1 ? "rank %d" : "%d terms",
                 (int)(along == 1 ? ranks[i] : terms[i]));
        line_add(labels ? label : NULL, xs, ys, GRID, MLC_PLOT_MARKED);
    }
    if (!isnan(y(&all[DENSE]))) {
        const double ends[2] = { low, high }, level[2] = { y(&all[DENSE]), y(&all[DENSE]) };
        line_add(labels ? "dense" : NULL, ends, level, 2, MLC_PLOT_DASHED);
    }
    p.count = &line[lines] - p.series;
    return p;
}

/* Time against FLOP, both over those of the dense layer; on the dashed line both are equal.     */
static mlc_plot promise_chart(const layer *all)
{
    const double end[2] = { 0.1, 10 };
    mlc_plot     p = { "Does time follow arithmetic?", "FLOP of a step / dense", "time / dense",
                       true, true, &line[lines], 0 };
    for (int i = 0; i < GRID; i++) {
        double xs[GRID], ys[GRID];
        for (int j = 0; j < GRID; j++) {
            xs[j] = all[i * GRID + j].flop / all[DENSE].flop;
            ys[j] = all[i * GRID + j].ms / all[DENSE].ms;
        }
        line_add(NULL, xs, ys, GRID, MLC_PLOT_POINTS);
    }
    line_add("as promised", end, end, 2, MLC_PLOT_DASHED);
    p.count = &line[lines] - p.series;
    return p;
}

static bool batch_chart(mlc_plot *p)
{
    static const int64_t held[HELD][2] = { { 0, 0 }, { 1, 16 }, { 2, 32 }, { 4, 64 } };
    *p = (mlc_plot){ "Memory of a training step", "rows in a batch", "KB a row", true, true,
                     &line[lines], 0 };
    for (int i = 0; i < HELD; i++) {
        double xs[BATCHES], ys[BATCHES];
        char   label[32];
        for (int j = 0; j < BATCHES; j++) {
            layer l = { .terms = held[i][0], .rank = held[i][1] };
            xs[j] = 32 << j;
            if (!layer_open(&l, 32 << j)) return false;
            ys[j] = layer_bytes(&l) / 1024 / xs[j];
            if (failed(l.ctx)) return false;
            mlc_ctx_free(l.ctx);
        }
        snprintf(label, sizeof label, "%d x %d", (int)held[i][0], (int)held[i][1]);
        line_add(i ? label : "dense", xs, ys, BATCHES, i ? MLC_PLOT_MARKED : MLC_PLOT_DASHED);
    }
    p->count = HELD;
    return true;
}

static mlc_plot start_chart(mlc_ctx *ctx, mlc_tensor *w)
{
    static const mlc_sketch_start starts[STARTS] = { MLC_SKETCH_COPY, MLC_SKETCH_COPY_SCALED,
                                                     MLC_SKETCH_FIT, MLC_SKETCH_SUBSPACE };
    static const char *const names[STARTS] = { "copy", "scaled", "fit", "subspace" };
    mlc_plot p = { "Starts from a dense weight, one term", "low_rank", "|W' - W| / |W|", true,
                   false, &line[lines], STARTS };
    for (int i = 0; i < STARTS; i++) {
        double xs[RANKS], ys[RANKS];
        for (int j = 0; j < RANKS; j++) {
            xs[j] = 8 << j;
            ys[j] = start_error(ctx, w, 1, 8 << j, starts[i]);
        }
        line_add(names[i], xs, ys, RANKS, MLC_PLOT_MARKED);
    }
    return p;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static bool measure(layer *all, mlc_ctx *ctx, mlc_tensor *w)
{
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &all[i];
        if (i != DENSE) l->terms = terms[i / GRID], l->rank = ranks[i % GRID];
        const mlc_sketch_cost cost = mlc_sketch_cost_of(IN, OUT, i == DENSE ? 1 : l->terms,
                                                        i == DENSE ? 1 : l->rank);
        l->numbers = (double)(i == DENSE ? cost.dense : cost.trainable);
        l->flop    = i == DENSE ? cost.dense_step : cost.step;
        if (!layer_open(l, ROWS)) return false;
        l->mb    = layer_bytes(l) / (1 << 20);
        l->error = i == DENSE ? (double)NAN
                              : start_error(ctx, w, l->terms, l->rank, MLC_SKETCH_FIT);
    }
    layers_time(all, LAYERS);
    for (int i = 0; i < LAYERS; i++) {
        if (failed(all[i].ctx)) return false;
        mlc_ctx_free(all[i].ctx);
    }
    return !failed(ctx);
}

static void print_table(const layer *all)
{
    printf("terms  rank   numbers  FLOP/dense  ms a step  time/dense     MB  error\n");
    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &all[i];
        printf("%5d  %4d  %8.0f  %10.2f  %9.3f  %10.2f  %5.1f  %5.3f\n", (int)l->terms,
               (int)l->rank, l->numbers, l->flop / all[DENSE].flop, l->ms, l->ms / all[DENSE].ms,
               l->mb, l->error);
    }
}

int main(int argc, char **argv)
{
    static layer all[LAYERS];
    static const char *const names[3] = { "ms a step", "MB with AdamW", "error of a fit" };
    static const figure      figures[3] = { ms_of, mb_of, error_of };
    static const char *const titles[3] = { "Sketched 1024 to 512, batch 128", "By num_terms",
                                           "By low_rank" };
    mlc_plot plots[12];
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    if (argc != 2) {
        fprintf(stderr, "usage: %s OUT.SVG\n", argv[0]);
        return 2;
    }
    if (failed(ctx)) return 1;
    mlc_tensor *w = falling_weight(ctx);
    if (!measure(all, ctx, w)) return 1;
    print_table(all);
    for (int i = 0; i < 9; i++) {
        plots[i] = grid_chart(all, figures[i / 3], names[i / 3], i % 3, i < 3);
        if (i < 3) plots[i].title = titles[i];
    }
    plots[9] = promise_chart(all);
    plots[11] = start_chart(ctx, w);
    if (!batch_chart(&plots[10]) || mlc_plot_save(ctx, argv[1], plots, 12, 3) != MLC_OK)
        return failed(ctx), 1;
    mlc_ctx_free(ctx);
    printf("wrote %s\n", argv[1]);
    return 0;
}
