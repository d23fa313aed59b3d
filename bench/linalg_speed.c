/* linalg_speed.c -- times one factorisation of a matrix in a file: linalg_speed.py runs it.
 *
 * Usage: linalg_speed CASE a.npy OUT RUNS, or of lstsq: CASE a.npy OUT RUNS b.npy. Prints the
 * milliseconds of the median run; results go to OUT.0.npy and on.
 */
#define _POSIX_C_SOURCE 200809L
#include "mlcore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The results of a case, up to three; the rest stay NULL. */
static void run(const char *name, mlc_tensor *a, mlc_tensor *b, mlc_tensor **out)
{
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(64);
    memset(out, 0, 3 * sizeof *out);
    if (!strcmp(name, "rsvd")) out[0] = mlc_linalg_rsvd(a, &d, &out[1], &out[2]);
    else if (!strcmp(name, "cqrrpt")) out[0] = mlc_linalg_cqrrpt(a, NULL, &out[1], &out[2]);
    else if (!strcmp(name, "qr")) out[0] = mlc_linalg_qr(a, &out[1]);
    else if (!strcmp(name, "cholesky")) out[0] = mlc_linalg_cholesky(a, false);
    else if (!strcmp(name, "lstsq")) out[0] = mlc_linalg_lstsq_sketched(a, b, NULL);
    else fprintf(stderr, "linalg_speed: no case %s\n", name);
}

/* Runs a case `runs` times and once before. */
static int measure(mlc_ctx *ctx, const char *name, mlc_tensor *a, mlc_tensor *b, int runs,
                   const char *out)
{
    double times[100];
    char path[4096];
    mlc_tensor *results[3];
    for (int i = -1; i < runs; i++) {
        mlc_scope_begin(ctx);
        const double begin = now();
        run(name, a, b, results);
        if (i >= 0) times[i] = now() - begin;
        for (int k = 0; i < 0 && k < 3 && results[k]; k++) {
            snprintf(path, sizeof path, "%s.%d.npy", out, k);
            mlc_npy_save(results[k], path);
        }
        if (mlc_scope_end(ctx) == MLC_OK) continue;
        fprintf(stderr, "%s\n", mlc_error(ctx));
        return 1;
    }
    qsort(times, (size_t)runs, sizeof *times, by_size);
    printf("%.4f\n", times[runs / 2]);
    return 0;
}

int main(int argc, char **argv)
{
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    if (!ctx || argc < 5) {
        fprintf(stderr, "usage: linalg_speed CASE a.npy OUT RUNS [b.npy]\n");
        mlc_ctx_free(ctx);
        return 1;
    }
    mlc_tensor *a = mlc_npy_load(ctx, argv[2]), *b = argc > 5 ? mlc_npy_load(ctx, argv[5]) : NULL;
    const int runs = atoi(argv[4]);
    int failed = 1;
    if (a && runs > 0 && runs <= 100) failed = measure(ctx, argv[1], a, b, runs, argv[3]);
    else fprintf(stderr, "linalg_speed: %s\n", mlc_error(ctx) ? mlc_error(ctx) : "1 to 100 runs");
    mlc_ctx_free(ctx);
    return failed;
}
