/* profile_cost.c -- what a profile costs a training step: steps with and without one in turns
 *
 *   build   make build/profile_cost
 *   run     build/profile_cost [SECONDS]
 *
 * The network of the case mlp_784_512_512_10_b128, a step of AdamW, two threads. A round is three
 * steps without a profile and three with one, which begin in turns; its ratio is that of their
 * times. Printed are the median of the ratios with the interval that has the true one in 95 of 100
 * runs (order statistics: no distribution is assumed), and how far the self times of a profile are
 * from the wall clock. */
#define _POSIX_C_SOURCE 200809L
#include "mlcore.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STEPS = 3, MOST = 20000, ROWS = 200 };

typedef struct work { mlc_ctx *ctx; mlc_module *net; mlc_optim *opt; mlc_tensor *x, *y; } work;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double steps(work *w)
{
    const double begin = now();
    for (int i = 0; i < STEPS; i++) {
        mlc_scope_begin(w->ctx);
        mlc_backward(mlc_cross_entropy(mlc_forward(w->net, w->x), w->y));
        mlc_optim_step(w->opt);
        if (mlc_scope_end(w->ctx) != MLC_OK) fprintf(stderr, "%s\n", mlc_error(w->ctx));
    }
    return now() - begin;
}

/* The seconds of steps in a profile; *off: how far its self times are from the wall clock.     */
static double profiled(work *w, double *off)
{
    static mlc_profile_row row[ROWS];
    const double begin = now();
    mlc_profile *p = mlc_profile_begin(w->ctx, NULL);
    const double took = steps(w);
    double       self = 0;
    mlc_profile_end(p);
    const double whole = now() - begin;
    const int64_t n = mlc_profile_rows(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF, row, ROWS);
    for (int64_t i = 0; i < n && i < ROWS; i++) self += row[i].self;
    mlc_profile_free(p);
    *off = self / whole - 1;
    return took;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double ratio[MOST], off[MOST];
    mlc_ctx_desc  d = mlc_ctx_desc_make();
    work          w;
    int           n = 0;
    d.threads = 2;
    w.ctx = mlc_ctx_create(&d);
    if (!w.ctx) return 1;
    w.net = mlc_nn_sequential(w.ctx);
    mlc_module_add(w.net, mlc_nn_linear(w.ctx, 784, 512));
    mlc_module_add(w.net, mlc_nn_relu(w.ctx));
    mlc_module_add(w.net, mlc_nn_linear(w.ctx, 512, 512));
    mlc_module_add(w.net, mlc_nn_relu(w.ctx));
    mlc_module_add(w.net, mlc_nn_linear(w.ctx, 512, 10));
    w.opt = mlc_adamw(w.net, 1e-4);
    w.x = mlc_randn(w.ctx, MLC_F32, mlc_dims2(128, 784));
    w.y = mlc_randint(w.ctx, MLC_I64, mlc_dims1(128), 0, 10);
    for (int i = 0; i < 5; i++) steps(&w);
    const double until = now() + (argc > 1 ? atof(argv[1]) : 20);
    do {
        double without = n & 1 ? steps(&w) : 0;
        const double with = profiled(&w, &off[n]);
        if (without == 0) without = steps(&w);
        off[n] = fabs(off[n]);
        ratio[n++] = with / without;
    } while (n < MOST && now() < until);
    qsort(ratio, (size_t)n, sizeof *ratio, by_size);
    qsort(off, (size_t)n, sizeof *off, by_size);
    const int side = (int)(0.98 * sqrt(n)) + 1;
    const double low = ratio[n / 2 > side ? n / 2 - side : 0];
    const double high = ratio[n / 2 + side < n ? n / 2 + side : n - 1];
    printf("%d rounds: with a profile %.4f times (95 %%: %.4f to %.4f; quartiles %.4f, %.4f)\n", n,
           ratio[n / 2], low, high, ratio[n / 4], ratio[3 * n / 4]);
    printf("self times and the clock differ by %.3f %%, at most %.3f %%\n", 100 * off[n / 2],
           100 * off[n - 1]);
    mlc_ctx_free(w.ctx);
    return 0;
}
