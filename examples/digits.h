/* digits.h -- digits.csv in two parts: rows for training, and rows that are held out; what programs
 * over several seeds share
 *
 * A row is 64 pixels 0..16, the label, and a mark. */
#ifndef EXAMPLES_DIGITS_H
#define EXAMPLES_DIGITS_H

#include "../mlcore.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { PIXELS = 64, COLUMNS = PIXELS + 2 };

typedef struct split { mlc_tensor *x[2], *y[2]; } split;       /* for training, held out       */

/* Rows by the last column: pixels f32 [n,64] in [0,1], labels i64 [n]; all of it stays in the
 * context. False, and a line on stderr that begins with the program's name, if the file is none or
 * has fewer than `least` rows for training, or none held out. */
static inline bool split_load(mlc_ctx *ctx, const char *program, const char *path, int64_t least,
                              split *s)
{
    mlc_tensor *t = mlc_csv_load(ctx, path, NULL);
    if (!t || mlc_dim(t, 1) != COLUMNS) {
        fprintf(stderr, "%s: %s\n", program, t ? "the file must have 66 columns" : mlc_error(ctx));
        return false;
    }
    mlc_tensor *held = mlc_ne_scalar(mlc_select(t, 1, COLUMNS - 1), 0);
    for (int part = 0; part < 2; part++) {
        mlc_tensor *which = part ? held : mlc_logical_not(held);
        mlc_tensor *rows  = mlc_gather_rows(t, mlc_select(mlc_nonzero(which), 1, 0));
        s->x[part] = mlc_mul_scalar(mlc_slice(rows, 1, 0, PIXELS, 1), 1.0 / 16);
        s->y[part] = mlc_cast(mlc_select(rows, 1, PIXELS), MLC_I64);
    }
    if (s->x[0] && s->y[1] && mlc_dim(s->x[0], 0) >= least && mlc_dim(s->x[1], 0)) return true;
    fprintf(stderr, "%s: %s: %s\n", program, path,
            *mlc_error(ctx) ? mlc_error(ctx) : "too few rows for training, or none held out");
    return false;
}

/* A CNN of images [n,1,8,8] with a, b and c channels; its last pooling layer gives [n,c,2,2]. Rows
 * of the first layer's weight have 9 elements, which 4 does not divide: its name is apart. */
static inline mlc_module *split_cnn(mlc_ctx *ctx, int64_t a, int64_t b, int64_t c)
{
    return MLC_SEQUENTIAL_NAMED(
        ctx, { "first", mlc_nn_conv2d(ctx, 1, a, 3, 1, 1) },
        { "norm1", mlc_nn_batch_norm(ctx, a) }, { "relu1", mlc_nn_relu(ctx) },
        { "conv2", mlc_nn_conv2d(ctx, a, b, 3, 1, 1) },
        { "norm2", mlc_nn_batch_norm(ctx, b) }, { "relu2", mlc_nn_relu(ctx) },
        { "pool2", mlc_nn_max_pool2d(ctx, 2) },
        { "conv3", mlc_nn_conv2d(ctx, b, c, 3, 1, 1) },
        { "norm3", mlc_nn_batch_norm(ctx, c) }, { "relu3", mlc_nn_relu(ctx) },
        { "pool3", mlc_nn_max_pool2d(ctx, 2) }, { "flat", mlc_nn_flatten(ctx) },
        { "classes", mlc_nn_linear(ctx, 4 * c, 10) });
}

/* Pixels [n,64] by rows to logits [n,10]: convolutions of `channels` and of twice as many. */
static inline mlc_module *split_net(mlc_ctx *ctx, int64_t channels)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_unflatten(ctx, 1, mlc_dims3(1, 8, 8)),
                          mlc_nn_conv2d(ctx, 1, channels, 3, 1, 1),
                          mlc_nn_batch_norm(ctx, channels), mlc_nn_relu(ctx),
                          mlc_nn_conv2d(ctx, channels, 2 * channels, 3, 1, 1),
                          mlc_nn_batch_norm(ctx, 2 * channels), mlc_nn_relu(ctx),
                          mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx),
                          mlc_nn_linear(ctx, 2 * channels * 4 * 4, 10));
}

/* Trains by AdamW, with a rate that falls to 0. */
static inline mlc_status split_train(mlc_module *net, const split *s, int64_t batch, int epochs,
                                     uint64_t seed, double rate)
{
    mlc_ctx        *ctx  = mlc_module_ctx(net);
    mlc_loader_desc rows = mlc_loader_desc_make(s->x[0], s->y[0], batch);
    mlc_fit_desc    how  = mlc_fit_desc_make(NULL);
    const mlc_sched fall = mlc_sched_cosine(mlc_dim(s->x[0], 0) / batch * epochs, 0);
    rows.shuffle = rows.drop_last = true;
    rows.seed    = seed;
    how.epochs   = epochs;
    how.forward  = mlc_fit_cross_entropy;
    mlc_loader *loader = mlc_loader_create(ctx, &rows);
    mlc_optim  *opt    = mlc_adamw(net, rate);
    mlc_optim_schedule(opt, MLC_KNOB_LR, &fall);
    const mlc_status st = mlc_fit(net, opt, loader, &how, NULL);
    mlc_optim_free(opt);
    mlc_loader_free(loader);
    return st;
}

/* Makes layers static integers by the ranges of a few batches of training. */
static inline mlc_status split_quantize(mlc_module *net, const split *s, int64_t batch, int batches)
{
    mlc_ctx          *ctx    = mlc_module_ctx(net);
    mlc_loader       *loader = mlc_loader_ordered(ctx, s->x[0], s->y[0], batch);
    mlc_calibration  *ranges = mlc_calibrate(net, NULL, loader, batches);
    mlc_quantize_desc d      = mlc_quantize_desc_make(MLC_QUANT_STATIC);
    d.calibration            = ranges;
    const mlc_status st      = ranges ? mlc_quantize(net, &d, NULL) : mlc_ctx_status(ctx);
    mlc_calibration_free(ranges);
    mlc_loader_free(loader);
    return st;
}

/* Seconds of the least of `runs` forwards of the first n rows of x. */
static inline double split_seconds(mlc_module *net, mlc_tensor *x, int64_t n, int runs)
{
    mlc_ctx *ctx  = mlc_module_ctx(net);
    double   best = 1e9;
    for (int i = 0; i < runs; i++) {
        struct timespec t[2];
        mlc_scope_begin(ctx);
        mlc_tensor *rows = mlc_rows(x, 0, n);
        timespec_get(&t[0], TIME_UTC);
        mlc_forward(net, rows);
        timespec_get(&t[1], TIME_UTC);
        best = fmin(best, (double)(t[1].tv_sec - t[0].tv_sec) +
                          1e-9 * (double)(t[1].tv_nsec - t[0].tv_nsec));
        mlc_scope_end(ctx);
    }
    return best;
}

/* Mean of a - b (b NULL: of a), and its standard deviation over seeds. */
static inline double mean_of(const double *a, const double *b, int n, double *deviation)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (a[i] - (b ? b[i] : 0)) / n;
    for (int i = 0; i < n; i++) squares += pow(a[i] - (b ? b[i] : 0) - sum, 2);
    *deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return sum;
}

#endif
