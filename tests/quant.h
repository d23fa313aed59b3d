/* quant.h -- networks, distances and digits that tests of quantization share */
#ifndef QUANT_H
#define QUANT_H
#include <stdarg.h>

#include "mlc_test.h"

/* A Sequential of n modules. */
static inline mlc_module *in_sequence(mlc_ctx *ctx, int n, ...)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    va_list     list;
    va_start(list, n);
    for (int i = 0; i < n; i++)
        CHECK_EQ(mlc_module_add(net, va_arg(list, mlc_module *)), MLC_OK);
    va_end(list);
    return net;
}

/* Root of the mean square of a - b, over that of b. */
static inline double rms_apart(mlc_tensor *a, mlc_tensor *b)
{
    double sum = 0, of = 0;
    for (int64_t i = 0; i < mlc_numel(a); i++) {
        const double x = (double)mlc_f32(a)[i], y = (double)mlc_f32(b)[i], d = x - y;
        sum += d * d;
        of += y * y;
    }
    return sqrt(sum / of);
}

enum { PIXELS = 64, CLASSES = 10 };

typedef struct digits { mlc_tensor *x[2], *y[2]; } digits;

/* Digits to train on, and those held out: column 65 is 1. */
static inline digits digits_of(mlc_ctx *ctx)
{
    static int64_t rows[4096];
    digits         d = {{NULL, NULL}, {NULL, NULL}};
    mlc_tensor    *t = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor    *mark = mlc_contiguous(mlc_select(t, 1, PIXELS + 1));
    for (int out = 0; out < 2; out++) {
        int64_t n = 0;
        for (int64_t i = 0; i < mlc_numel(mark); i++)
            if ((mlc_f32(mark)[i] != 0) == (out != 0))
                rows[n++] = i;
        mlc_tensor *some = mlc_gather_rows(t, mlc_from(ctx, MLC_I64, mlc_dims1(n), rows));
        d.x[out] = mlc_mul_scalar(mlc_contiguous(mlc_slice(some, 1, 0, PIXELS, 1)), 1.0 / 16);
        d.y[out] = mlc_cast(mlc_contiguous(mlc_select(some, 1, PIXELS)), MLC_I64);
    }
    return d;
}

/* Share of the held-out digits that net gets right, in evaluation. */
static inline double accuracy(mlc_module *net, const digits *d)
{
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *is = mlc_eq(mlc_argmax(mlc_forward(net, d->x[1]), 1, false), d->y[1]);
    const double right = mlc_item(mlc_mean(mlc_cast(is, MLC_F32), mlc_dims0(), false));
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    return right;
}

#endif
