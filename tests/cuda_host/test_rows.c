/* test_rows.c -- tests of section CUDA.ROWS against the CPU: lines of a warp, of a block, side by
 * side; held in registers and longer; values that are hard */
#include "pair.h"

typedef enum op { SOFTMAX, LOG_SOFTMAX, LAYER_NORM, NORM_PLAIN, NORM_BIAS, RMS_NORM, OPS } op;

static const char *const NAMES[] = {"softmax", "log_softmax", "layer_norm", "layer_norm, no weight",
                                    "layer_norm, bias", "rms_norm"};

static mlc_tensor *apply(op o, mlc_tensor *x, int axis, mlc_tensor *w, mlc_tensor *b)
{
    return o == SOFTMAX       ? mlc_softmax(x, axis)
           : o == LOG_SOFTMAX ? mlc_log_softmax(x, axis)
           : o == RMS_NORM    ? mlc_rms_norm(x, w, 1e-5)
                              : mlc_layer_norm(x, o == LAYER_NORM ? w : NULL,
                                               o == NORM_PLAIN ? NULL : b, 1e-5);
}

/* Values and gradients. */
static void compare_rows(mlc_ctx *const *ctx, op o, mlc_dtype dtype, int64_t a, int64_t b,
                         layout how, int axis, double lo, double hi)
{
    const mlc_dtype w_dtype = dtype == MLC_BF16 && (a + b) % 2 ? MLC_F32 : dtype;
    mlc_tensor     *y[2], *dx[2], *dw[2], *db[2];
    char            what[96];
    snprintf(what, sizeof what, "%s of %s [%d,%d], layout %d, axis %d", NAMES[o],
             mlc_dtype_name(dtype), (int)a, (int)b, (int)how, axis);
    for (int i = 0; i < 2; i++) {
        mlc_tensor *x = pair_rand(ctx[i], dtype, a, b, how, 5, lo, hi);
        mlc_tensor *w = test_rand(ctx[i], w_dtype, mlc_dims1(b), 6, 0.5, 1.5);
        mlc_tensor *bias = test_rand(ctx[i], w_dtype, mlc_dims1(b), 7, -1, 1);
        mlc_set_requires_grad(x, true);
        mlc_set_requires_grad(w, true);
        mlc_set_requires_grad(bias, true);
        y[i] = apply(o, x, axis, w, bias);
        dx[i] = pair_grad(x, y[i], 9);
        dw[i] = mlc_grad(w);
        db[i] = mlc_grad(bias);
    }
    const double tol = 4 * pair_tol(dtype);
    pair_same(what, y[0], y[1], tol);
    pair_same(what, dx[0], dx[1], 4 * tol);
    if (o == LAYER_NORM || o == RMS_NORM) pair_same(what, dw[0], dw[1], 4 * tol);
    if (o == LAYER_NORM || o == NORM_BIAS) pair_same(what, db[0], db[1], 4 * tol);
}

TEST(cuda, rows_and_their_gradients_are_those_of_the_cpu)
{
    static const int64_t SHAPES[][2] = {{1, 1}, {9, 3}, {33, 17}, {7, 64}, {5, 520}, {3, 1032},
                                        {2, 4111}, {1, 9000}, {600, 8}, {1100, 5}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int s = 0; s < COUNT_OF(SHAPES); s++)
        for (int d = 0; d < COUNT_OF(FLOATS); d++)
            for (int o = 0; o < OPS; o++)
                compare_rows(ctx, (op)o, FLOATS[d], SHAPES[s][0], SHAPES[s][1],
                             (layout)((s + d + o) % LAYOUTS), o <= LOG_SOFTMAX ? o : 1, -2, 3);
    CHECK_OK(ctx[1]);
}

TEST(cuda, softmax_along_the_first_axis_is_that_of_the_cpu)
{
    static const int64_t SHAPES[][2] = {{3, 700}, {700, 3}, {50, 65}, {1, 40}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int s = 0; s < COUNT_OF(SHAPES); s++)
        for (int d = 0; d < COUNT_OF(FLOATS); d++)
            for (int o = SOFTMAX; o <= LOG_SOFTMAX; o++)
                compare_rows(ctx, (op)o, FLOATS[d], SHAPES[s][0], SHAPES[s][1],
                             (layout)((s + d) % LAYOUTS), 0, -30, 30);
    CHECK_OK(ctx[1]);
}

/* Where the mean is far over the deviation, one pass of squares would have nothing left of it. */
TEST(cuda, norms_of_rows_far_from_0_are_those_of_the_cpu)
{
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int d = 0; d < 2; d++)
        for (int64_t n = 40; n <= 2000; n *= 7)
            compare_rows(ctx, LAYER_NORM, FLOATS[d], 3, n, DENSE, 1, 1000, 1001);
    CHECK_OK(ctx[1]);
}

TEST(cuda, rows_with_nan_and_infinity_are_those_of_the_cpu)
{
    static const double CASES[][2] = {{NO_NUMBER, 1}, {INF, 1}, {-INF, 1}, {-INF, -INF},
                                      {1e18, -1e18}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int c = 0; c < COUNT_OF(CASES); c++)
        for (int o = SOFTMAX; o <= RMS_NORM; o++) {
            mlc_tensor *y[2], *dx[2];
            for (int i = 0; i < 2; i++) {
                double v[3 * 70];
                for (int e = 0; e < 3 * 70; e++)
                    v[e] = e / 70 == 1 ? CASES[c][e % 2 || c == 0] : test_random(1, e, -1, 1);
                mlc_tensor *x = test_tensor(ctx[i], MLC_F32, mlc_dims2(3, 70), v);
                mlc_tensor *w = mlc_ones(ctx[i], MLC_F32, mlc_dims1(70));
                mlc_set_requires_grad(x, true);
                y[i] = apply((op)o, x, 1, w, w);
                dx[i] = pair_grad(x, y[i], 3);
            }
            pair_same(NAMES[o], y[0], y[1], 1e-5);
            pair_same(NAMES[o], dx[0], dx[1], 1e-4);
        }
}

TEST(cuda, rows_of_nothing_give_nothing)
{
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int o = 0; o < OPS; o++)
        for (int empty = 0; empty < 2; empty++) {
            mlc_tensor *w = mlc_ones(ctx[1], MLC_F32, mlc_dims1(empty ? 0 : 5));
            mlc_tensor *x = mlc_zeros(ctx[1], MLC_F32, mlc_dims2(empty ? 3 : 0, empty ? 0 : 5));
            mlc_tensor *y = apply((op)o, x, 1, w, w);
            if (y) CHECK_EQ(mlc_numel(y), 0);
            else mlc_error_clear(ctx[1]);
        }
    CHECK_OK(ctx[1]);
}
