/* test_channel.c -- tests of sections IMPL.KERNELS.POOL and CHANNEL_NORM at length
 *
 * What PyTorch makes of them is in test_goldens.c; here are running statistics, many channels and
 * few, gradients that are added to, what is not a number, large means.
 */
#include "mlc_test.h"

#include <math.h>
#include <stdlib.h>

/* ---- batch norm ----------------------------------------------------------------------------- */

/* Mean and biased variance of channel c of x [n,c,pixels]. */
static void moments(const double *x, int64_t n, int64_t c, int64_t pixels, int64_t k, double *mean,
                    double *var)
{
    *mean = *var = 0;
    for (int64_t i = 0; i < n * pixels; i++)
        *mean += x[(i / pixels * c + k) * pixels + i % pixels] / (double)(n * pixels);
    for (int64_t i = 0; i < n * pixels; i++) {
        const double d = x[(i / pixels * c + k) * pixels + i % pixels] - *mean;
        *var += d * d / (double)(n * pixels);
    }
}

/* Means are 1000 deviations from 0: sums of squares of x itself would have no digit right. */
TEST(channel, batch_norm_keeps_up_running_statistics_for_any_number_of_channels)
{
    static const int64_t channels[] = {1, 2, 3, 17, 64, 127, 128, 129, 300};
    FOR_EACH_ISA(ctx) {
        for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
            enum { N = 3, PIXELS = 50 };
            const int64_t c = channels[i];
            static double x[N * 300 * PIXELS], y[N * 300 * PIXELS], m[300], v[300];
            mlc_scope_begin(ctx);
            mlc_tensor *in = test_rand(ctx, MLC_F32, mlc_dims3(N, c, PIXELS), 7, 999, 1001);
            mlc_tensor *mean = mlc_full(ctx, MLC_F32, mlc_dims1(c), 2);
            mlc_tensor *var = mlc_full(ctx, MLC_F32, mlc_dims1(c), 3);
            mlc_tensor *out = mlc_batch_norm(in, mean, var, NULL, NULL, true, 0.25, 0);
            test_read(in, x);
            test_read(mlc_contiguous(out), y);
            test_read(mean, m);
            test_read(var, v);
            for (int64_t k = 0; k < c; k++) {
                double a, b;
                moments(x, N, c, PIXELS, k, &a, &b);
                CHECK_NEAR(m[k], 0.75 * 2 + 0.25 * a, 1e-4);
                CHECK_NEAR(v[k], 0.75 * 3 + 0.25 * b * 150 / 149, 1e-5);
                for (int64_t p = 0; p < PIXELS; p += 7)
                    CHECK_NEAR(y[k * PIXELS + p], (x[k * PIXELS + p] - a) / sqrt(b), 5e-4);
            }
            out = mlc_batch_norm(in, mean, var, NULL, NULL, false, 0.25, 1e-5);
            test_read(mlc_contiguous(out), y);
            for (int64_t k = 0; k < c; k++)
                CHECK_NEAR(y[k * PIXELS], (x[k * PIXELS] - m[k]) / sqrt(v[k] + 1e-5), 1e-3);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* Squares are summed about the mean of the first rows, which may be the worst of all rows. */
TEST(channel, batch_norm_bears_first_rows_that_are_far_off)
{
    enum { PIXELS = 5000 };
    static const int64_t channels[] = {1, 16, 40};
    static const double  sizes[] = {10, 1000, 1e6};
    static double        x[40 * PIXELS];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 9; i++) {
            const int64_t c = channels[i / 3];
            double        a, b, m[40], v[40];
            mlc_scope_begin(ctx);
            for (int64_t k = 0; k < c * PIXELS; k++)
                x[k] = (double)(float)(sin((double)(7 * k)) + (k % PIXELS < 25 ? sizes[i % 3] : 0));
            mlc_tensor *in = test_tensor(ctx, MLC_F32, mlc_dims3(1, c, PIXELS), x);
            mlc_tensor *mean = mlc_full(ctx, MLC_F32, mlc_dims1(c), 0);
            mlc_tensor *var = mlc_full(ctx, MLC_F32, mlc_dims1(c), 0);
            mlc_batch_norm(in, mean, var, NULL, NULL, true, 1, 0);
            test_read(mean, m);
            test_read(var, v);
            for (int64_t k = 0; k < c; k++) {
                moments(x, 1, c, PIXELS, k, &a, &b);
                CHECK_NEAR(m[k], a, 1e-5 * (1 + fabs(a)));
                CHECK_NEAR(v[k], b * PIXELS / (PIXELS - 1), 2e-5 * b);
            }
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* Gradients with the running statistics: dx = dy factor weight, and what is there is added to. */
TEST(channel, gradients_of_a_frozen_batch_norm_are_those_of_a_line_and_add_up)
{
    static const int64_t channels[] = {3, 130};
    for (int i = 0; i < 2; i++) {
        const int64_t c = channels[i];
        mlc_ctx      *ctx = test_ctx();
        mlc_tensor   *x = test_rand(ctx, MLC_F64, mlc_dims3(2, c, 5), 1, -1, 1);
        mlc_tensor   *w = test_rand(ctx, MLC_F64, mlc_dims1(c), 2, 0.5, 1);
        mlc_tensor   *b = mlc_zeros(ctx, MLC_F64, mlc_dims1(c));
        mlc_tensor   *mean = test_rand(ctx, MLC_F64, mlc_dims1(c), 3, -1, 1);
        mlc_tensor   *var = test_rand(ctx, MLC_F64, mlc_dims1(c), 4, 0.5, 2);
        static double dx[1300], want[1300], db[130], dw[130];
        mlc_set_requires_grad(x, true);
        mlc_set_requires_grad(w, true);
        mlc_set_requires_grad(b, true);
        for (int pass = 0; pass < 2; pass++) {
            mlc_tensor *y = mlc_batch_norm(x, mean, var, w, b, false, 0.1, 1e-5);
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        }
        mlc_tensor *f = mlc_div(w, mlc_sqrt(mlc_add_scalar(var, 1e-5)));
        f = mlc_reshape(mlc_mul_scalar(f, 2), mlc_dims3(1, c, 1));
        test_read(mlc_contiguous(mlc_expand(f, mlc_dims3(2, c, 5))), want);
        test_read(mlc_contiguous(mlc_grad(x)), dx);
        test_read(mlc_grad(b), db);
        test_read(mlc_grad(w), dw);
        for (int64_t k = 0; k < 10 * c; k++)
            CHECK_NEAR(dx[k], want[k], 1e-12);
        for (int64_t k = 0; k < c; k++)
            CHECK_NEAR(db[k], 20, 1e-12);
        CHECK(fabs(dw[0]) > 0);
        CHECK_OK(ctx);
    }
}

/* Adding to dx, many channels, through the batch's statistics: twice is twice once. */
TEST(channel, gradients_of_batch_norm_add_up)
{
    static const int64_t channels[] = {5, 130};
    for (int i = 0; i < 2; i++) {
        mlc_ctx      *ctx = test_ctx();
        const int64_t c = channels[i];
        mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims3(2, c, 5), 1, -1, 1);
        mlc_tensor   *dy = test_rand(ctx, MLC_F32, mlc_dims3(2, c, 5), 2, -1, 1);
        static double once[1300], twice[1300];
        mlc_set_requires_grad(x, true);
        for (int pass = 0; pass < 2; pass++) {
            mlc_tensor *y = mlc_batch_norm(x, NULL, NULL, NULL, NULL, true, 0.1, 1e-5);
            CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
            test_read(mlc_contiguous(mlc_grad(x)), pass ? twice : once);
        }
        for (int64_t k = 0; k < 10 * c; k++)
            CHECK_NEAR(twice[k], 2 * once[k], 1e-6);
        CHECK_OK(ctx);
    }
}

TEST(channel, batch_norm_refuses_what_it_cannot_do)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor *v = mlc_ones(ctx, MLC_F32, mlc_dims1(3));
    mlc_tensor *two = mlc_ones(ctx, MLC_F32, mlc_dims1(2));
    mlc_tensor *low = mlc_ones(ctx, MLC_BF16, mlc_dims1(3));
    CHECK(mlc_batch_norm(x, NULL, NULL, NULL, NULL, false, 0.1, 1e-5) == NULL);
    CHECK_STR(mlc_error(ctx), "batch_norm: running_mean and running_var come together, and without "
                              "training they are needed");
    mlc_error_clear(ctx);
    CHECK(mlc_batch_norm(x, v, low, NULL, NULL, true, 0.1, 1e-5) == NULL);
    CHECK_STR(mlc_error(ctx), "batch_norm: x is f32, running_var is bf16; it must be f32");
    mlc_error_clear(ctx);
    CHECK(mlc_batch_norm(x, v, v, two, NULL, true, 0.1, 1e-5) == NULL);
    CHECK_STR(mlc_error(ctx), "batch_norm: weight must be [3] for x [4,3], it is [2]");
    mlc_error_clear(ctx);
    CHECK(mlc_batch_norm(mlc_ones(ctx, MLC_F32, mlc_dims2(1, 3)), v, v, v, NULL, true, 0.1, 1e-5) ==
          NULL);
    CHECK_STR(mlc_error(ctx), "batch_norm: x [1,3] has one value a channel, whose deviation is 0; "
                              "it takes more");
    mlc_error_clear(ctx);
    CHECK(mlc_batch_norm(x, v, v, v, v, true, 2, 1e-5) == NULL);
    CHECK_STR(mlc_error(ctx), "batch_norm: eps is 1e-05, momentum 2; eps must be finite and not "
                              "negative, momentum in [0, 1]");
    mlc_error_clear(ctx);
    CHECK(mlc_batch_norm(v, v, v, v, v, true, 0.1, 1e-5) == NULL);
    CHECK_STR(mlc_error(ctx), "batch_norm: x is [3]; it must be [n,c,..]");
    mlc_error_clear(ctx);
    CHECK(mlc_batch_norm(mlc_ones(ctx, MLC_I64, mlc_dims2(4, 3)), NULL, NULL, NULL, NULL, true, 0.1,
                         1e-5) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
}

/* ---- pooling -------------------------------------------------------------------------------- */

/* NaN wins a maximum and its gradient; -Inf is a value like others. */
TEST(channel, nan_wins_a_maximum)
{
    const double nan = (double)NAN, low = -(double)INFINITY;
    const double x[8] = {1, nan, 2, 3, low, low, nan, nan};
    const double want[4] = {nan, 3, low, nan}, grad[8] = {0, 1, 0, 1, 1, 0, 1, 0};
    FOR_EACH_ISA(ctx) {
        const mlc_pool_desc d = mlc_pool_desc_make(2);
        mlc_tensor *in = test_tensor(ctx, MLC_F32, mlc_dims3(1, 1, 8), x);
        mlc_set_requires_grad(in, true);
        mlc_tensor *y = mlc_max_pool(in, &d);
        double      got[8];
        test_read(y, got);
        for (int i = 0; i < 4; i++)
            CHECK(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        CHECK_VALUES(mlc_grad(in), 8, grad, 0, 0);
        CHECK_OK(ctx);
    }
}

/* 300 channels take three runs, and gradients add to what is there. */
TEST(channel, pools_of_many_channels_are_those_of_each)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 300, 5, 4), 1, -1, 1);
    static double all[2 * 300 * 3 * 2], one[2 * 3 * 2], twice[2 * 300 * 20], dx[2 * 20];
    mlc_pool_desc d = mlc_pool_desc_make(3);
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    mlc_set_requires_grad(x, true);
    for (int max = 0; max < 2; max++) {
        mlc_zero_grad(x);
        for (int pass = 0; pass < 2; pass++) {
            mlc_tensor *y = max ? mlc_max_pool(x, &d) : mlc_avg_pool(x, &d);
            test_read(mlc_contiguous(y), all);
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        }
        test_read(mlc_contiguous(mlc_grad(x)), twice);
        for (int64_t c = 0; c < 300; c += 59) {
            mlc_tensor *part = mlc_copy(mlc_slice(mlc_detach(x), 1, c, c + 1, 1));
            mlc_set_requires_grad(part, true);
            mlc_tensor *y = max ? mlc_max_pool(part, &d) : mlc_avg_pool(part, &d);
            test_read(mlc_contiguous(y), one);
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
            test_read(mlc_contiguous(mlc_grad(part)), dx);
            for (int64_t n = 0; n < 2; n++) {
                CHECK(memcmp(all + (n * 300 + c) * 6, one + n * 6, 6 * sizeof *one) == 0);
                for (int k = 0; k < 20; k++)
                    CHECK_NEAR(twice[(n * 300 + c) * 20 + k], 2 * dx[n * 20 + k], 1e-6);
            }
        }
    }
    CHECK_OK(ctx);
}

/* ---- windows that reach beyond the padding -------------------------------------------------- */

typedef struct windows {
    int64_t in, kernel, stride, padding, dilation;
    bool    max, exclude;
} windows;

/* PyTorch's pooling_output_shape with ceil_mode, 0 where it is an error. */
static int64_t windows_count(const windows *w)
{
    const int64_t room = w->in + 2 * w->padding - w->dilation * (w->kernel - 1) - 1;
    const int64_t n = (int64_t)ceil((double)room / (double)w->stride) + 1;
    const int64_t fits = n > 0 && (n - 1) * w->stride >= w->in + w->padding ? n - 1 : n;
    return fits > 0 ? fits : 0;
}

/* Window o as PyTorch's kernels have it; dx += the gradient of its sum. */
static double windows_value(const windows *w, const double *x, int64_t o, double *dx)
{
    const int64_t first = o * w->stride - w->padding;
    int64_t       last = first + w->dilation * (w->kernel - 1), best = -1, inside = 0;
    double        sum = 0;
    for (int64_t i = first; i <= last; i += w->dilation) {
        if (i < 0 || i >= w->in)
            continue;
        inside++;
        sum += x[i];
        best = best < 0 || x[i] > x[best] ? i : best;
    }
    if (w->max) {
        if (best >= 0)
            dx[best] += 1;
        return best < 0 ? -(double)INFINITY : x[best];
    }
    last = last < w->in + w->padding ? last : w->in + w->padding - 1;
    const double by = (double)(w->exclude ? inside : last - first + 1);
    for (int64_t i = first < 0 ? 0 : first; i <= last && i < w->in; i++)
        dx[i] += 1 / by;
    return sum / by;
}

/* Along the last axis or the one before. */
static void windows_compare(mlc_ctx *ctx, const windows *w, int axis)
{
    static const double values[6] = {3, -1, 5, 2, -4, 6};
    double        y[16], dx[6] = {0};
    const int64_t n = windows_count(w);
    mlc_pool_desc d = mlc_pool_desc_make(1);
    d.kernel = d.stride = d.dilation = mlc_dims2(1, 1);
    d.padding = mlc_dims2(0, 0);
    d.kernel.v[axis] = w->kernel;
    d.stride.v[axis] = w->stride;
    d.padding.v[axis] = w->padding;
    d.dilation.v[axis] = w->dilation;
    d.exclude_padding = w->exclude;
    d.ceil = true;
    mlc_tensor *x = test_tensor(ctx, MLC_F64, axis ? mlc_dims4(1, 1, 1, w->in)
                                                   : mlc_dims4(1, 1, w->in, 1), values);
    mlc_set_requires_grad(x, true);
    mlc_tensor *out = w->max ? mlc_max_pool(x, &d) : mlc_avg_pool(x, &d);
    if (n == 0) {
        CHECK(out == NULL);
        CHECK_STATUS(ctx, MLC_ERR_SHAPE);
        return;
    }
    for (int64_t o = 0; o < n; o++)
        y[o] = windows_value(w, values, o, dx);
    CHECK_VALUES(out, n, y, 1e-12, 0);
    CHECK_EQ(mlc_backward_from(out, NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(x), w->in, dx, 1e-12, 0);
}

/* Also a window larger than x and all its padding, if by less than a stride. */
TEST(channel, pools_with_ceil_have_the_windows_of_pytorch)
{
    mlc_ctx *ctx = test_ctx();
    windows  w;
    for (w.in = 1; w.in <= 6; w.in++)
        for (w.kernel = 1; w.kernel <= 9; w.kernel++)
            for (int64_t k = 0; k < 4 * (w.kernel / 2 + 1) * 3 * 2; k++) {
                const int kind = (int)(k / 2 % 3);
                w.stride = k / 6 % 4 + 1;
                w.padding = k / 24;
                w.max = kind == 2;
                w.exclude = kind == 1;
                w.dilation = 1 + (w.max && w.padding == 0 && k % 2);
                mlc_scope_begin(ctx);
                windows_compare(ctx, &w, (int)(k % 2));
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

/* A window that meets only padding has no largest element. */
TEST(channel, a_window_of_padding_alone_is_minus_infinity)
{
    const double  x[1] = {3}, want[2] = {-(double)INFINITY, 0};
    mlc_ctx      *ctx = test_ctx();
    mlc_pool_desc d = mlc_pool_desc_make(2);
    d.stride = d.padding = mlc_dims1(1);
    d.dilation = mlc_dims1(2);
    CHECK_VALUES(mlc_max_pool(test_tensor(ctx, MLC_F32, mlc_dims3(1, 1, 1), x), &d), 1, want, 0, 0);
    CHECK_OK(ctx);
}

/* Without a row gradients of weight and bias are 0, whatever was there before. */
TEST(channel, batch_norm_of_nothing_has_gradients_of_0)
{
    static const double zeros[3] = {0, 0, 0};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(3)), *b = mlc_ones(ctx, MLC_F32, mlc_dims1(3));
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(b, true);
    for (int n = 2; n >= 0; n -= 2) {
        mlc_zero_grad(w);
        mlc_zero_grad(b);
        mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims3(n, 3, 4));
        mlc_tensor *y = mlc_batch_norm(x, NULL, NULL, w, b, true, 0.1, 1e-5);
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    }
    CHECK_VALUES(mlc_grad(w), 3, zeros, 0, 0);
    CHECK_VALUES(mlc_grad(b), 3, zeros, 0, 0);
    CHECK_OK(ctx);
}

/* Of 1 to 3 axes; a list of as many numbers gives the same. */
TEST(channel, one_number_is_the_size_of_all_axes_of_an_image)
{
    const int64_t shape[5] = {2, 3, 4, 6, 2}, twos[3] = {2, 2, 2};
    mlc_ctx      *ctx = test_ctx();
    double        got[2][64], want[6];
    for (int32_t axes = 1; axes <= 3; axes++) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims_of(axes + 2, shape), 1, -1, 1);
        mlc_tensor *mean = mlc_adaptive_avg_pool(x, mlc_dims_all(1)), *y = NULL;
        mlc_module *m = mlc_nn_adaptive_avg_pool(ctx, mlc_dims_all(1));
        if (!CHECK(mean != NULL)) return;
        CHECK(mean->ndim == axes + 2 && mlc_numel(mean) == 6);
        y = mlc_mean(mlc_reshape(x, mlc_dims3(2, 3, mlc_numel(x) / 6)), mlc_dims1(2), false);
        test_read(y, want);
        CHECK_VALUES(mean, 6, want, 1e-6, 1e-6);
        CHECK_VALUES(mlc_forward(m, x), 6, want, 1e-6, 1e-6);
        m = mlc_nn_adaptive_max_pool(ctx, mlc_dims_all(1));
        test_read(mlc_max(mlc_reshape(x, mlc_dims3(2, 3, mlc_numel(x) / 6)), mlc_dims1(2), false),
                  want);
        CHECK_VALUES(mlc_forward(m, x), 6, want, 0, 0);
        for (int op = 0; op < 3; op++) {
            for (int all = 0; all < 2; all++) {
                const mlc_dims size = all ? mlc_dims_all(2) : mlc_dims_of(axes, twos);
                y = op == 0 ? mlc_adaptive_avg_pool(x, size)
                  : op == 1 ? mlc_adaptive_max_pool(x, size)
                            : mlc_interpolate(x, size, MLC_INTERPOLATE_LINEAR);
                if (!CHECK(mlc_numel(y) == 6 << axes)) return;
                test_read(y, got[all]);
            }
            CHECK(memcmp(got[0], got[1], sizeof **got * (size_t)mlc_numel(y)) == 0);
        }
    }
    CHECK_OK(ctx);
    CHECK(mlc_adaptive_avg_pool(mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)), mlc_dims_all(1)) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_adaptive_avg_pool(mlc_ones(ctx, MLC_F32, mlc_dims3(2, 3, 4)), mlc_dims_all(0)) ==
          NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}
