/* test_reduce.c -- tests of section CUDA.REDUCE against the CPU: lines in segments, side by side,
 * with holes; empty lines, NaN and infinity; the first of equals across teams and segments */
#include "pair.h"

#include "../../mlcore_cuda.h"

static mlc_tensor *norm_0(mlc_tensor *x, mlc_dims a, bool k)   { return mlc_norm(x, 0, a, k); }
static mlc_tensor *norm_1(mlc_tensor *x, mlc_dims a, bool k)   { return mlc_norm(x, 1, a, k); }
static mlc_tensor *norm_2(mlc_tensor *x, mlc_dims a, bool k)   { return mlc_norm(x, 2, a, k); }
static mlc_tensor *norm_3(mlc_tensor *x, mlc_dims a, bool k)   { return mlc_norm(x, 3, a, k); }
static mlc_tensor *norm_inf(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, INF, a, k); }
static mlc_tensor *norm_low(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, -INF, a, k); }
static mlc_tensor *var_1(mlc_tensor *x, mlc_dims a, bool k)    { return mlc_var(x, a, 1, k); }
static mlc_tensor *std_1(mlc_tensor *x, mlc_dims a, bool k)    { return mlc_std(x, a, 1, k); }

/* Those of all dtypes first. */
static const struct {
    const char *name;
    mlc_tensor *(*call)(mlc_tensor *x, mlc_dims axes, bool keepdim);
} OPS[] = {
    {"sum", mlc_sum}, {"max", mlc_max}, {"min", mlc_min}, {"any", mlc_any}, {"all", mlc_all},
    {"prod", mlc_prod}, {"mean", mlc_mean}, {"var", var_1}, {"std", std_1},
    {"logsumexp", mlc_logsumexp}, {"norm 0", norm_0}, {"norm 1", norm_1}, {"norm 2", norm_2},
    {"norm 3", norm_3}, {"norm inf", norm_inf}, {"norm -inf", norm_low}};
#define ANY_DTYPE 6

static void compare_reductions(mlc_ctx *const *ctx, mlc_dtype dtype, int ops, int64_t a, int64_t b,
                               layout how)
{
    for (int o = 0; o < ops; o++)
        for (int axes = 0; axes < 3; axes++) {
            const bool  prod = OPS[o].call == mlc_prod && ops > ANY_DTYPE;
            const double lo = prod ? 0.999 : -1.5, hi = prod ? 1.001 : 60;
            mlc_tensor *y[2];
            char        what[96];
            for (int i = 0; i < 2; i++) {
                mlc_tensor *x = pair_rand(ctx[i], dtype, a, b, how, 7, lo, hi);
                y[i] = OPS[o].call(x, axes == 2 ? mlc_dims2(0, 1) : mlc_dims1(axes), false);
            }
            snprintf(what, sizeof what, "%s of %s [%d,%d], layout %d, axes %d", OPS[o].name,
                     mlc_dtype_name(dtype), (int)a, (int)b, (int)how, axes);
            pair_same(what, y[0], y[1], pair_tol(dtype));
        }
}

TEST(cuda, reductions_are_those_of_the_cpu_in_segments_and_columns)
{
    static const int64_t SHAPES[][2] = {{1, 9001}, {9001, 1}, {3001, 3}, {3, 3001}, {67, 29},
                                        {150, 8}, {1, 1}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int s = 0; s < COUNT_OF(SHAPES); s++)
        for (int d = s % 2; d < COUNT_OF(FLOATS); d += 1 + s % 2)
            compare_reductions(ctx, FLOATS[d], COUNT_OF(OPS), SHAPES[s][0], SHAPES[s][1],
                               (layout)((s + d) % LAYOUTS));
    CHECK_OK(ctx[1]);
}

TEST(cuda, reductions_of_integers_are_those_of_the_cpu)
{
    static const mlc_dtype WHOLE[] = {MLC_I64, MLC_I32, MLC_I8, MLC_U8, MLC_BOOL};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int d = 0; d < COUNT_OF(WHOLE); d++)
        for (int how = 0; how < LAYOUTS; how++) {
            compare_reductions(ctx, WHOLE[d], ANY_DTYPE, 5, 999, (layout)how);
            compare_reductions(ctx, WHOLE[d], ANY_DTYPE, 1999, 3, (layout)how);
        }
    CHECK_OK(ctx[1]);
}

/* x is equal but for those at `at` and after it. */
TEST(cuda, argmax_is_the_first_of_equals_in_any_segment)
{
    static const int64_t PLACES[] = {0, 1, 31, 4096, 4097, 30000};
    enum { N = 30011 };
    double  *v = (double *)malloc(N * sizeof *v);
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int p = 0; p < COUNT_OF(PLACES); p++)
        for (int kind = 0; kind < 4; kind++) {
            for (int64_t i = 0; i < N; i++) v[i] = kind == 3 ? -INF : 1;
            if (kind < 3) v[PLACES[p]] = v[N - 1] = kind == 0 ? 2 : kind == 1 ? NO_NUMBER : INF;
            if (kind == 1 && PLACES[p] + 7 < N) v[PLACES[p] + 7] = INF;
            const int64_t want = kind == 3 ? 0 : PLACES[p];
            for (int d = 0; d < 6; d++) {
                const mlc_dtype dtype = d < 4 ? FLOATS[d] : d == 4 ? MLC_I32 : MLC_U8;
                if (d >= 4 && kind != 0) continue;
                mlc_tensor *x = test_tensor(ctx[1], dtype, mlc_dims1(N), v);
                double      at;
                if (test_read(mlc_argmax(x, 0, false), &at)) CHECK_EQ((int64_t)at, want);
            }
        }
    free(v);
    CHECK_OK(ctx[1]);
}

TEST(cuda, argmax_and_argmin_are_those_of_the_cpu)
{
    static const int64_t SHAPES[][2] = {{3, 9001}, {9001, 3}, {65, 33}, {2000, 4}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int s = 0; s < COUNT_OF(SHAPES); s++)
        for (int how = 0; how < LAYOUTS; how++)
            for (int axis = 0; axis < 4; axis++) {
                const mlc_dtype dtype = s % 2 ? MLC_I8 : MLC_F16;
                mlc_tensor     *y[2];
                for (int i = 0; i < 2; i++) {
                    mlc_tensor *x = pair_rand(ctx[i], dtype, SHAPES[s][0], SHAPES[s][1],
                                              (layout)how, 3, -90, 90);
                    y[i] = axis < 2 ? mlc_argmax(x, axis, false) : mlc_argmin(x, axis - 2, false);
                }
                pair_same("argmax", y[0], y[1], 0);
            }
    CHECK_OK(ctx[1]);
}

static void compare_scans(mlc_ctx *const *ctx, mlc_dtype dtype, int64_t a, int64_t b, layout how,
                          int axis, bool product)
{
    const double lo = product ? 0.99 : -1, hi = product ? 1.01 : 2;
    mlc_tensor  *y[2], *dx[2];
    char         what[96];
    const bool   floats = dtype <= MLC_F64 || dtype == MLC_BF16 || dtype == MLC_F16;
    for (int i = 0; i < 2; i++) {
        mlc_tensor *x = floats ? pair_rand(ctx[i], dtype, a, b, how, 5, lo, hi)
                               : pair_rand(ctx[i], dtype, a, b, how, 5, -9, 9);
        if (floats) mlc_set_requires_grad(x, true);
        y[i] = product ? mlc_cumprod(x, axis) : mlc_cumsum(x, axis);
        dx[i] = floats ? pair_grad(x, y[i], 9) : NULL;
    }
    snprintf(what, sizeof what, "scan %d of %s [%d,%d], layout %d, axis %d", (int)product,
             mlc_dtype_name(dtype), (int)a, (int)b, (int)how, axis);
    pair_same(what, y[0], y[1], 8 * pair_tol(dtype));
    if (floats) pair_same(what, dx[0], dx[1], 8 * pair_tol(dtype));
}

TEST(cuda, scans_and_their_gradients_are_those_of_the_cpu)
{
    static const mlc_dtype DTYPES[] = {MLC_F32, MLC_F64, MLC_F16, MLC_I64, MLC_I8, MLC_BOOL};
    static const int64_t SHAPES[][2] = {{1, 20011}, {3, 9001}, {1500, 5}, {40, 129}, {5, 1}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int s = 0; s < COUNT_OF(SHAPES); s++)
        for (int d = 0; d < COUNT_OF(DTYPES); d++)
            for (int k = 0; k < 4; k++)
                compare_scans(ctx, DTYPES[d], SHAPES[s][0], SHAPES[s][1],
                              (layout)((s + d) % LAYOUTS), k % 2, k / 2);
    CHECK_OK(ctx[1]);
}

/* A product that is over the range in a segment, where what comes before it is 0. */
TEST(cuda, gradients_of_products_so_far_are_right_at_zeros)
{
    enum { N = 9000 };
    double     *v = (double *)malloc(N * sizeof *v);
    mlc_ctx    *ctx[2];
    mlc_tensor *dx[2];
    pair_make(ctx);
    for (int64_t i = 0; i < N; i++) v[i] = i % 97 == 50 ? 0 : 1 + 0.25 * test_random(1, i, -1, 1);
    v[4000] = v[N - 1] = 0;
    for (int i = 0; i < 2; i++) {
        mlc_tensor *x = test_tensor(ctx[i], MLC_F64, mlc_dims1(N), v);
        mlc_set_requires_grad(x, true);
        dx[i] = pair_grad(x, mlc_cumprod(x, 0), 2);
    }
    pair_same("cumprod with zeros", dx[0], dx[1], 1e-9);
    free(v);
    CHECK_OK(ctx[1]);
}

TEST(cuda, sums_and_extremes_of_nan_infinity_and_nothing_are_those_of_the_cpu)
{
    static const double CASES[][2] = {{NO_NUMBER, 1}, {INF, 1}, {INF, -INF}, {-INF, -INF},
                                      {0, -0.0}, {1e30, -1e-30}};
    mlc_ctx *ctx[2];
    pair_make(ctx);
    for (int c = 0; c < COUNT_OF(CASES) + 1; c++)
        for (int o = 0; o < COUNT_OF(OPS); o++)
            for (int d = 0; d < 2; d++) {
                mlc_tensor *y[2];
                for (int i = 0; i < 2; i++) {
                    double v[300];
                    for (int e = 0; e < 300; e++)
                        v[e] = c == COUNT_OF(CASES) || e % 7 ? 1 : CASES[c][e / 7 % 2];
                    mlc_tensor *x = c < COUNT_OF(CASES)
                                        ? test_tensor(ctx[i], FLOATS[d], mlc_dims2(3, 100), v)
                                        : mlc_zeros(ctx[i], FLOATS[d], mlc_dims2(3, 0));
                    y[i] = OPS[o].call(x, mlc_dims1(1), false);
                    if (!y[i]) mlc_error_clear(ctx[i]);
                }
                CHECK_EQ(y[0] == NULL, y[1] == NULL);
                if (y[0] && y[1]) pair_same(OPS[o].name, y[0], y[1], pair_tol(FLOATS[d]));
            }
}

/* The kernel itself: anomaly mode reads an operation's name, not the place. */
TEST(cuda, finite_finds_the_first_place)
{
    static const int64_t SIZES[] = {0, 1, 2048, 2049, 9000};
    mlc_backend b;
    void       *dev, *x, *first;
    double      v[9000];
    int64_t     got;
    mlc_cuda_backend(&b);
    if (!CHECK_EQ(b.open(0, &dev), MLC_OK)) return;
    CHECK_EQ(b.alloc(dev, sizeof v, &x), MLC_OK);
    CHECK_EQ(b.alloc(dev, sizeof got, &first), MLC_OK);
    for (int s = 0; s < COUNT_OF(SIZES); s++)
        for (int d = 0; d < COUNT_OF(FLOATS); d++)
            for (int64_t at = SIZES[s]; at >= 0; at = at > 3000 ? at - 3000 : at - 1024) {
                struct mlc_k_finite a = {FLOATS[d], SIZES[s], x, (int64_t *)first};
                for (int64_t i = 0; i < SIZES[s]; i++)
                    test_put(v, FLOATS[d], i, i < at ? 1 : i % 2 ? INF : NO_NUMBER);
                CHECK_EQ(b.copy(dev, x, v, sizeof v, MLC_COPY_TO_DEVICE), MLC_OK);
                CHECK_EQ(b.kernels.finite(dev, &a), MLC_OK);
                CHECK_EQ(b.copy(dev, &got, first, sizeof got, MLC_COPY_TO_HOST), MLC_OK);
                CHECK_EQ(got, at < SIZES[s] ? at : -1);
            }
    b.release(dev, x, sizeof v);
    b.release(dev, first, sizeof got);
    b.close(dev);
}

/* Squares go in f64: those of the largest floats do not overflow. */
TEST(cuda, squares_are_summed_in_f64)
{
    enum { N = 20003 };
    static float v[N];
    mlc_backend  b;
    void        *dev, *x, *sum, *work;
    double       got, want = 0;
    for (int64_t i = 0; i < N; i++) {
        v[i] = (float)test_random(4, i, -3e38, 3e38);
        want += (double)v[i] * (double)v[i];
    }
    mlc_cuda_backend(&b);
    if (!CHECK_EQ(b.open(0, &dev), MLC_OK)) return;
    struct mlc_k_squares a = {MLC_F32, N, NULL, NULL, NULL, 0};
    a.workspace_bytes = b.kernels.squares_workspace(dev, &a);
    CHECK_EQ(b.alloc(dev, sizeof v, &x), MLC_OK);
    CHECK_EQ(b.alloc(dev, sizeof got, &sum), MLC_OK);
    CHECK_EQ(b.alloc(dev, a.workspace_bytes + 16, &work), MLC_OK);
    CHECK_EQ(b.copy(dev, x, v, sizeof v, MLC_COPY_TO_DEVICE), MLC_OK);
    a.in = x;
    a.sum = (double *)sum;
    a.workspace = work;
    CHECK_EQ(b.kernels.squares(dev, &a), MLC_OK);
    CHECK_EQ(b.copy(dev, &got, sum, sizeof got, MLC_COPY_TO_HOST), MLC_OK);
    CHECK_NEAR(got, want, 1e-12 * want);
    a.n = 0;
    CHECK_EQ(b.kernels.squares(dev, &a), MLC_OK);
    CHECK_EQ(b.copy(dev, &got, sum, sizeof got, MLC_COPY_TO_HOST), MLC_OK);
    CHECK(got == 0);
    b.release(dev, x, sizeof v);
    b.release(dev, sum, sizeof got);
    b.release(dev, work, a.workspace_bytes + 16);
    b.close(dev);
}
