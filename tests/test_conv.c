/* test_conv.c -- tests of section IMPL.OPS.CONV: convolutions against PyTorch's
 *
 * Inputs are whole numbers by a formula that tests/golden/make_conv_goldens.py has, too: sums are
 * exact, so f32 and f64 are equal to the bit on every level, and 16 bits are rounded once.
 */
#include "mlc_test.h"
#include "golden/golden.h"

/* ---- the cases of PyTorch ------------------------------------------------------------------- */

enum { CASES = 240 };

typedef struct conv_case {
    int64_t       axes, n, c, out, groups, transposed;
    mlc_dims      x, w;
    mlc_conv_desc d;
} conv_case;

static conv_case case_of(const golden_file *f, int number)
{
    double    v[25];
    conv_case c;
    test_read(golden_find(f, "%03d.spec", number), v);
    memset(&c, 0, sizeof c);
    c.d = mlc_conv_desc_make();
    c.axes = (int64_t)v[0], c.n = (int64_t)v[1], c.c = (int64_t)v[2], c.out = (int64_t)v[3];
    c.groups = (int64_t)v[4], c.transposed = (int64_t)v[5];
    c.d.groups = c.groups;
    c.d.same = v[6] != 0;
    int64_t x[5] = {c.n, c.c, 0, 0, 0}, w[5] = {c.out, c.c / c.groups, 0, 0, 0};
    if (c.transposed)
        w[0] = c.c, w[1] = c.out / c.groups;
    c.d.stride.n = c.d.padding.n = c.d.dilation.n = c.d.output_padding.n = (int32_t)c.axes;
    for (int i = 0; i < c.axes; i++) {
        x[2 + i] = (int64_t)v[7 + i];
        w[2 + i] = (int64_t)v[10 + i];
        c.d.stride.v[i] = (int64_t)v[13 + i];
        c.d.padding.v[i] = (int64_t)v[16 + i];
        c.d.dilation.v[i] = (int64_t)v[19 + i];
        c.d.output_padding.v[i] = (int64_t)v[22 + i];
    }
    c.x = mlc_dims_of((int32_t)c.axes + 2, x);
    c.w = mlc_dims_of((int32_t)c.axes + 2, w);
    return c;
}

static mlc_tensor *whole(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, int64_t t)
{
    int64_t n = 1;
    for (int i = 0; i < shape.n; i++)
        n *= shape.v[i];
    double     *v = (double *)malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (double)((i * 7 + i / 5 * 3 + t * 11) % 7 - 3);
    mlc_tensor *x = test_tensor(ctx, dtype, shape, v);
    free(v);
    return x;
}

/* x in three layouts: as PyTorch has it, with channels last, as a part of something larger.     */
typedef enum lie { ROWS, LAST, PART, LIES } lie;

static mlc_tensor *laid(mlc_tensor *x, lie how)
{
    mlc_dims before = mlc_dims_of(x->ndim, NULL), after = before;
    if (how == LAST)
        return mlc_channels_last(x);
    if (how != PART)
        return x;
    before.v[x->ndim - 1] = after.v[0] = 2, after.v[1] = 1;
    x = mlc_pad(x, before, after, MLC_PAD_CONSTANT, (double)NAN);
    x = mlc_slice(x, 0, 0, x->shape[0] - 2, 1);
    x = mlc_slice(x, 1, 0, x->shape[1] - 1, 1);
    return mlc_slice(x, x->ndim - 1, 2, x->shape[x->ndim - 1], 1);
}

static bool differs(mlc_tensor *t, const golden_file *f, int number, const char *name, double rel)
{
    mlc_tensor *want = golden_find(f, "%03d.%s", number, name);
    const int64_t n = t ? mlc_numel(t) : -1;
    static double a[GOLDEN_MOST], b[GOLDEN_MOST];
    CHECK_EQ(n, mlc_numel(want));
    if (n != mlc_numel(want))
        return true;
    test_read(mlc_contiguous(mlc_cast(t, MLC_F64)), a);
    test_read(want, b);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= rel * fabs(b[i]))) {
            printf("  case %d %s[%lld] of %s\n", number, name, (long long)i,
                   mlc_dtype_name(t->dtype));
            CHECK_NEAR(a[i], b[i], rel * fabs(b[i]));
            return true;
        }
    return false;
}

/* Twice, so that the second gradient is added to the first.                                     */
static bool run_case(mlc_ctx *ctx, const golden_file *f, int number, mlc_dtype dtype,
                     mlc_dtype weights, lie how)
{
    const double rel = dtype == MLC_BF16 ? 0x1p-8 : dtype == MLC_F16 ? 0x1p-11 : 0;
    const double w_rel = weights == dtype ? rel : 0;
    conv_case    c = case_of(f, number);
    mlc_tensor  *x = whole(ctx, dtype, c.x, 0), *w = whole(ctx, weights, c.w, 1);
    mlc_tensor  *b = whole(ctx, weights, mlc_dims1(c.out), 2);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(b, true);
    mlc_tensor *in = laid(x, how);
    mlc_tensor *y = c.transposed ? mlc_conv_transpose(in, w, b, &c.d) : mlc_conv(in, w, b, &c.d);
    CHECK_OK(ctx);
    if (y == NULL)
        return false;
    mlc_tensor *dy = whole(ctx, dtype, mlc_dims_of(y->ndim, y->shape), 3);
    CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
    CHECK_OK(ctx);
    bool bad = differs(y, f, number, "y", rel) || differs(mlc_grad(x), f, number, "dx", rel) ||
               differs(mlc_grad(w), f, number, "dw", w_rel) ||
               differs(mlc_grad(b), f, number, "db", w_rel);
    if (rel == 0 && !bad) {
        in = laid(x, how);
        y = c.transposed ? mlc_conv_transpose(in, w, b, &c.d) : mlc_conv(in, w, b, &c.d);
        CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
        bad = differs(mlc_mul_scalar(mlc_grad(x), 0.5), f, number, "dx", 0) ||
              differs(mlc_mul_scalar(mlc_grad(w), 0.5), f, number, "dw", 0) ||
              differs(mlc_mul_scalar(mlc_grad(b), 0.5), f, number, "db", 0);
    }
    return !bad;
}

TEST(conv, results_and_gradients_are_pytorchs)
{
    static const mlc_dtype dtypes[][2] = {{MLC_F32, MLC_F32}, {MLC_F64, MLC_F64},
                                          {MLC_BF16, MLC_BF16}, {MLC_BF16, MLC_F32},
                                          {MLC_F16, MLC_F32}};
    FOR_EACH_ISA(ctx) {
        const golden_file f = golden_open(ctx, "conv.safetensors");
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (int number = 0; number < CASES; number += (int)test_stride(7)) {
                mlc_scope_begin(ctx);
                CHECK(run_case(ctx, &f, number, dtypes[d][0], dtypes[d][1],
                               (lie)((number + d) % LIES)));
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
        CHECK_OK(ctx);
    }
}

/* ---- depthwise ------------------------------------------------------------------------------ */

/* More taps and channels than go at a time, against a dense convolution whose weight is 0 but on
 * its diagonal: sums are whole numbers, so equal to the bit. */
static void check_depthwise(mlc_ctx *ctx, mlc_dtype dtype, int k, int stride, mlc_act act,
                            bool bias)
{
    enum { C = 70, MOST = C * C * 49 };
    static double w[C * 49], wide[MOST], got[2][2 * C * 81], dw[2][MOST];
    const int     taps = k * k;
    mlc_conv_desc d = mlc_conv_desc_make();
    d.stride = mlc_dims2(1, stride);
    d.padding = mlc_dims_all(k / 2);
    d.act = act;
    memset(wide, 0, sizeof wide);
    for (int i = 0; i < C * taps; i++) {
        w[i] = i * 5 % 7 - 3;
        wide[i / taps * (C + 1) * taps + i % taps] = w[i];
    }
    for (int dense = 0; dense < 2; dense++) {
        mlc_tensor *x = whole(ctx, dtype, mlc_dims4(2, C, 9, 9), 0);
        mlc_tensor *f = test_tensor(ctx, dtype, mlc_dims4(C, dense ? C : 1, k, k),
                                    dense ? wide : w);
        mlc_tensor *b = bias ? whole(ctx, dtype, mlc_dims1(C), 2) : NULL;
        mlc_set_requires_grad(x, true);
        mlc_set_requires_grad(f, true);
        d.groups = dense ? 1 : C;
        mlc_tensor *y = mlc_conv(x, f, b, &d);
        for (int pass = 0; pass < 2; pass++) {
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
            y = mlc_conv(x, f, b, &d);
        }
        CHECK_OK(ctx);
        test_read(mlc_contiguous(mlc_grad(x)), got[dense]);
        test_read(mlc_grad(f), dw[dense]);
    }
    CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
    for (int i = 0; i < C * taps; i++)
        CHECK_NEAR(dw[0][i], dw[1][i / taps * (C + 1) * taps + i % taps], 0);
}

TEST(conv, depthwise_is_a_dense_convolution_with_a_diagonal)
{
    FOR_EACH_ISA(ctx) {
        check_depthwise(ctx, MLC_F32, 7, 2, MLC_ACT_NONE, false);
        check_depthwise(ctx, MLC_F64, 7, 2, MLC_ACT_RELU, true);
        check_depthwise(ctx, MLC_F32, 3, 1, MLC_ACT_RELU, true);
        check_depthwise(ctx, MLC_F64, 3, 1, MLC_ACT_NONE, false);
        check_depthwise(ctx, MLC_BF16, 3, 1, MLC_ACT_NONE, false);
        check_depthwise(ctx, MLC_BF16, 3, 2, MLC_ACT_NONE, true);
        check_depthwise(ctx, MLC_BF16, 7, 1, MLC_ACT_NONE, false);
        check_depthwise(ctx, MLC_F16, 3, 1, MLC_ACT_NONE, false);
    }
}

/* ---- ways of multiplying that must not show ------------------------------------------------- */

typedef struct exact_case {
    int64_t n, c, out, groups, high, wide, depth;  /* depth 0: two axes                         */
    int64_t kernel[2], stride[2], pad[2];
    bool    act, bias;
} exact_case;

/* y, dx and dw in `dtype`, all in one row of numbers; a second pass adds to the gradients. */
static int64_t exact_run(mlc_ctx *ctx, mlc_dtype dtype, const exact_case *c, int passes, double *to)
{
    const int     deep = c->depth > 0;
    const int64_t x_of[] = {c->n, c->c, c->depth, c->high, c->wide};
    const int64_t w_of[] = {c->out, c->c / c->groups, 1, c->kernel[0], c->kernel[1]};
    mlc_dims      in = mlc_dims_of(5, x_of), kernel = mlc_dims_of(5, w_of);
    if (!deep) {
        in = mlc_dims4(x_of[0], x_of[1], x_of[3], x_of[4]);
        kernel = mlc_dims4(w_of[0], w_of[1], w_of[3], w_of[4]);
    }
    mlc_tensor   *x = whole(ctx, dtype, in, 0), *w = whole(ctx, dtype, kernel, 3), *y = NULL;
    mlc_tensor   *b = c->bias ? whole(ctx, dtype, mlc_dims1(c->out), 5) : NULL;
    mlc_conv_desc d = mlc_conv_desc_make();
    d.stride = deep ? mlc_dims3(1, c->stride[0], c->stride[1])
                    : mlc_dims2(c->stride[0], c->stride[1]);
    d.padding = deep ? mlc_dims3(0, c->pad[0], c->pad[1]) : mlc_dims2(c->pad[0], c->pad[1]);
    d.groups = c->groups;
    d.act = c->act ? MLC_ACT_RELU : MLC_ACT_NONE;
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    for (int pass = 0; pass < passes; pass++) {
        y = mlc_conv(x, w, b, &d);
        mlc_tensor *with = whole(ctx, dtype, mlc_dims_of(y->ndim, y->shape), 7 + pass);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(y, with), mlc_dims0(), false)), MLC_OK);
    }
    CHECK_OK(ctx);
    test_read(mlc_contiguous(y), to);
    test_read(mlc_contiguous(mlc_grad(x)), to + mlc_numel(y));
    test_read(mlc_grad(w), to + mlc_numel(y) + mlc_numel(x));
    return mlc_numel(y) + mlc_numel(x) + mlc_numel(w);
}

/* Sums are whole numbers, exact in f32: as in f64, and in 16 bits rounded once. */
static void check_exact(mlc_dtype dtype, const exact_case *cases, int count, int passes)
{
    enum { MOST = 400000 };
    double *got = (double *)malloc(MOST * sizeof *got);
    double *want = (double *)malloc(MOST * sizeof *want);
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < count; i++) {
            const int64_t n = exact_run(ctx, dtype, &cases[i], passes, got);
            CHECK(n <= MOST);
            CHECK_EQ(exact_run(ctx, MLC_F64, &cases[i], passes, want), n);
            int64_t bad = -1;
            for (int64_t k = n - 1; k >= 0; k--) {
                if (dtype == MLC_BF16)
                    want[k] = (double)mlc_bf16_to(mlc_bf16_from((float)want[k]));
                else if (dtype == MLC_F16)
                    want[k] = (double)mlc_f16_to(mlc_f16_from((float)want[k]));
                if (got[k] != want[k])
                    bad = k;
            }
            CHECK_EQ(bad, -1);
            if (bad >= 0)
                printf("case %d [%d]: %g, wanted %g\n", i, (int)bad, got[bad], want[bad]);
        }
    }
    free(got);
    free(want);
}

/* Winograd's way has no factor but 1/2 and 1/4. */
static const exact_case three_by_three[] = {
    {1, 16, 16, 1, 8, 8, 0, {3, 3}, {1, 1}, {1, 1}, false, false},
    {1, 16, 16, 1, 14, 10, 0, {3, 3}, {1, 1}, {1, 1}, true, true},
    {3, 32, 16, 1, 9, 13, 0, {3, 3}, {1, 1}, {1, 1}, false, true},
    {2, 16, 48, 1, 7, 7, 0, {3, 3}, {1, 1}, {1, 1}, true, false},
    {1, 16, 80, 1, 10, 9, 0, {3, 3}, {1, 1}, {0, 0}, true, true},
    {2, 48, 32, 1, 6, 11, 0, {3, 3}, {1, 1}, {2, 0}, false, false},
    {1, 64, 96, 1, 12, 12, 0, {3, 3}, {1, 1}, {0, 2}, false, true},
    {3, 32, 32, 1, 15, 12, 0, {3, 3}, {1, 1}, {1, 1}, true, true},
    {2, 48, 48, 1, 13, 14, 0, {3, 3}, {1, 1}, {1, 1}, false, false},
    {2, 64, 64, 1, 14, 11, 0, {3, 3}, {1, 1}, {1, 0}, true, false},
    {5, 16, 16, 1, 31, 29, 0, {3, 3}, {1, 1}, {1, 1}, false, false},
    {1, 16, 32, 1, 6, 7, 0, {3, 3}, {1, 1}, {5, 4}, true, false},
    {2, 16, 16, 1, 5, 6, 3, {3, 3}, {1, 1}, {1, 1}, false, true},
    {17, 32, 64, 1, 4, 4, 0, {3, 3}, {1, 1}, {1, 1}, false, false},
    {70, 16, 16, 1, 2, 2, 0, {3, 3}, {1, 1}, {1, 1}, false, true},
};

TEST(conv, three_by_three_in_f32_is_as_in_f64)
{
    check_exact(MLC_F32, three_by_three, (int)(sizeof three_by_three / sizeof *three_by_three), 2);
}

TEST(conv, three_by_three_of_16_bits_is_as_in_f64)
{
    const int count = (int)(sizeof three_by_three / sizeof *three_by_three);
    check_exact(MLC_BF16, three_by_three, count, 1);
    check_exact(MLC_F16, three_by_three, count, 1);
}

TEST(conv, patches_of_bf16_that_overlap_are_as_in_f64)
{
    static const exact_case cases[] = {
        {2, 16, 16, 1, 9, 11, 0, {3, 3}, {1, 1}, {1, 1}, false, false},
        {3, 32, 24, 1, 8, 8, 0, {3, 3}, {1, 1}, {1, 1}, true, true},
        {1, 64, 40, 1, 12, 30, 0, {3, 3}, {1, 1}, {0, 2}, false, false},
        {2, 32, 32, 1, 17, 16, 0, {3, 3}, {2, 2}, {1, 1}, true, true},
        {1, 16, 70, 1, 10, 33, 0, {5, 5}, {1, 1}, {2, 2}, false, false},
        {2, 24, 16, 1, 11, 21, 0, {5, 5}, {2, 3}, {2, 1}, true, true},
        {2, 64, 32, 2, 9, 14, 0, {3, 3}, {1, 1}, {1, 1}, true, true},
        {1, 32, 16, 1, 5, 64, 0, {1, 3}, {1, 1}, {0, 1}, false, false},
        {1, 32, 16, 1, 7, 12, 0, {3, 4}, {1, 1}, {4, 6}, false, false},
        {5, 8, 16, 1, 10, 10, 0, {4, 4}, {1, 2}, {0, 0}, true, true},
    };
    check_exact(MLC_BF16, cases, (int)(sizeof cases / sizeof *cases), 1);
}

/* Canvases of several planes, of some lines of one, of some pixels of a line; taps that meet the
 * same pixels, and taps that meet none; few channels, and some over a panel. */
TEST(conv, dw_by_taps_of_bf16_is_as_in_f64)
{
    static const exact_case cases[] = {
        {40, 16, 16, 1, 6, 5, 0, {3, 3}, {1, 1}, {1, 1}, false, false},
        {1, 16, 16, 1, 90, 90, 0, {3, 3}, {1, 1}, {1, 1}, false, true},
        {1, 16, 20, 1, 1, 5000, 0, {1, 5}, {1, 1}, {0, 2}, false, false},
        {1, 16, 16, 1, 3, 2100, 0, {3, 3}, {1, 1}, {1, 1}, true, false},
        {2, 3, 33, 1, 30, 31, 0, {7, 7}, {2, 2}, {3, 3}, false, false},
        {2, 33, 65, 1, 8, 9, 0, {3, 3}, {2, 3}, {1, 0}, false, true},
        {3, 17, 16, 1, 9, 10, 0, {2, 2}, {3, 4}, {0, 1}, false, false},
        {3, 20, 24, 1, 8, 8, 0, {1, 1}, {2, 2}, {0, 0}, false, false},
        {2, 40, 12, 4, 10, 10, 0, {3, 3}, {1, 2}, {1, 1}, true, true},
        {2, 16, 16, 1, 7, 6, 5, {3, 3}, {1, 1}, {1, 1}, false, false},
        {1, 48, 48, 1, 4, 4, 0, {5, 5}, {1, 1}, {4, 4}, false, false},
    };
    check_exact(MLC_BF16, cases, (int)(sizeof cases / sizeof *cases), 1);
}

/* 1 x 1, of so many pixels and channels that the weight, rounded before, is packed as rows. */
TEST(conv, many_channels_of_16_bits_are_as_in_f64)
{
    enum { C = 512, HIGH = 96, WIDE = 128 };
    static const mlc_dtype dtypes[] = {MLC_BF16, MLC_F16};
    static const int64_t   outs[] = {100, 257};
    FOR_EACH_ISA(ctx) {
        const int64_t c = mlc_ctx_isa(ctx) == MLC_ISA_SCALAR ? 8 : C;      /* it is slow         */
        for (int i = 0; i < 4; i++) {
            mlc_scope_begin(ctx);
            mlc_tensor *x = whole(ctx, dtypes[i % 2], mlc_dims4(1, c, HIGH, WIDE), 0);
            mlc_tensor *w = whole(ctx, dtypes[i % 2], mlc_dims4(outs[i / 2], c, 1, 1), 3);
            mlc_tensor *y = mlc_cast(mlc_conv(x, w, NULL, NULL), MLC_F32);
            mlc_tensor *want = mlc_conv(mlc_cast(x, MLC_F32), mlc_cast(w, MLC_F32), NULL, NULL);
            want = mlc_cast(mlc_cast(want, dtypes[i % 2]), MLC_F32);
            CHECK_OK(ctx);
            CHECK(mlc_item(mlc_max(mlc_abs(mlc_sub(y, want)), mlc_dims0(), false)) == 0);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* Of other numbers: errors against the sum of magnitudes, which direct sums have below 2^-22. */
TEST(conv, three_by_three_has_small_errors)
{
    enum { C = 64, SIDE = 12, ALL = C * SIDE * SIDE };
    static double y[3][ALL];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 3; i++) {      /* f32, f64, f64 of magnitudes */
            const mlc_dtype dtype = i ? MLC_F64 : MLC_F32;
            mlc_conv_desc   d = mlc_conv_desc_make();
            d.same = true;
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(1, C, SIDE, SIDE), 1, -1, 1);
            mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims4(C, C, 3, 3), 2, -1, 1);
            if (i == 2) { x = mlc_abs(x); w = mlc_abs(w); }
            test_read(mlc_contiguous(mlc_conv(mlc_cast(x, dtype), mlc_cast(w, dtype), NULL, &d)),
                      y[i]);
        }
        double worst = 0;
        for (int k = 0; k < ALL; k++) {
            const double e = fabs(y[0][k] - y[1][k]) / y[2][k];
            worst = e > worst ? e : worst;
        }
        CHECK_OK(ctx);
        CHECK(worst < ldexp(1.0, -20));
    }
}

/* Of a whole sequence, and of windows of it down to one output: products too small for tiles would
 * add up in another order. 3x3 in many channels is another way, which this does not hold for. */
TEST(conv, bits_of_a_pixel_do_not_depend_on_how_many_there_are)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static const int64_t   sizes[][3] = {{3, 10, 3}, {12, 12, 3}, {40, 33, 3}, {24, 4, 1},
                                         {300, 5, 2}, {1, 1, 7}};
    enum { LONG = 61, MOST_OUT = 33 };
    static double all[MOST_OUT * LONG], some[MOST_OUT * LONG];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 4 * 6; i++) {
            const mlc_dtype dtype = dtypes[i % 4];
            const int64_t   c = sizes[i / 4][0], out = sizes[i / 4][1], k = sizes[i / 4][2];
            const int64_t   n = LONG - k + 1;
            int             wrong = 0;
            mlc_scope_begin(ctx);
            mlc_tensor *x = test_rand(ctx, dtype, mlc_dims3(1, c, LONG), 1, -1, 1);
            mlc_tensor *w = test_rand(ctx, dtype, mlc_dims3(out, c, k), 2, -1, 1);
            mlc_tensor *b = test_rand(ctx, dtype, mlc_dims1(out), 3, -1, 1);
            test_read(mlc_contiguous(mlc_conv(x, w, b, NULL)), all);
            for (int64_t m = 1; m < n; m += m < 8 ? 1 : test_stride(11)) {
                const int64_t at = n - m - (m & 1);
                mlc_tensor   *part = mlc_slice(x, 2, at, at + m + k - 1, 1);
                test_read(mlc_contiguous(mlc_conv(part, w, b, NULL)), some);
                for (int64_t e = 0; e < out * m; e++)
                    wrong += memcmp(&some[e], &all[e / m * n + at + e % m], sizeof *all) != 0;
            }
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            if (!CHECK_EQ(wrong, 0))
                printf("  %d to %d channels, kernel %d, %s\n", (int)c, (int)out, (int)k,
                       mlc_dtype_name(dtype));
        }
    }
}

/* A place behind a row of pixels is dropped, whatever it holds: one pixel without a number spoils
 * those whose windows it is in, and no others. */
TEST(conv, what_is_no_number_stays_in_its_windows)
{
    enum { C = 16, SIDE = 12, PIXELS = SIDE * SIDE };
    static double v[C * PIXELS], y[C * PIXELS];
    FOR_EACH_ISA(ctx) {
        for (int at = 0; at < PIXELS; at += 11) {
            for (int i = 0; i < C * PIXELS; i++)
                v[i] = i % PIXELS == at ? NO_NUMBER : i % 3;
            mlc_conv_desc d = mlc_conv_desc_make();
            d.same = true;
            mlc_tensor *x = test_tensor(ctx, MLC_BF16, mlc_dims4(1, C, SIDE, SIDE), v);
            mlc_tensor *w = whole(ctx, MLC_BF16, mlc_dims4(C, C, 3, 3), 3);
            test_read(mlc_contiguous(mlc_conv(x, w, NULL, &d)), y);
            int wrong = 0;
            for (int i = 0; i < C * PIXELS; i++) {
                const int p = i % PIXELS, rows = abs(p / SIDE - at / SIDE);
                wrong += (isnan(y[i]) != 0) != (rows <= 1 && abs(p % SIDE - at % SIDE) <= 1);
            }
            CHECK_EQ(wrong, 0);
        }
        CHECK_OK(ctx);
    }
}

/* The last of ten lines, or of ten pixels in each, is met by no window: dw does not know it. */
TEST(conv, pixels_that_no_window_meets_do_not_spoil_dw)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_BF16};
    static double          v[2 * 3 * 10 * 11], dw[4 * 3 * 9];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 4; i++) {
            const bool    high = i / 2 == 1;   /* strides along lines, or between them */
            mlc_conv_desc d = mlc_conv_desc_make();
            d.stride = mlc_dims2(high ? 2 : 1, high ? 1 : 2);
            for (int k = 0; k < 2 * 3 * 10 * 11; k++)
                v[k] = (high ? k % 110 / 11 > 8 : k % 10 > 8) ? INF : 1;
            const mlc_dims size = high ? mlc_dims4(2, 3, 10, 11) : mlc_dims4(2, 3, 11, 10);
            mlc_tensor    *x = test_tensor(ctx, dtypes[i % 2], size, v);
            mlc_tensor    *w = whole(ctx, dtypes[i % 2], mlc_dims4(4, 3, 3, 3), 3);
            mlc_set_requires_grad(w, true);
            mlc_tensor *y = mlc_conv(x, w, NULL, &d);
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
            test_read(mlc_grad(w), dw);
            for (int k = 0; k < 4 * 3 * 9; k++)
                CHECK(dw[k] == 2 * 9 * 4);
        }
        CHECK_OK(ctx);
    }
}

/* Act and aux of both ways, and a plain product (1x1), against the operations one by one. */
TEST(conv, an_activation_inside_is_the_one_behind)
{
    static const int64_t groups[] = {1, 3};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 2; i++)
            for (int act = 1; act <= MLC_ACT_GELU_TANH; act++) {
                mlc_tensor *(*const apart[])(mlc_tensor *) = {NULL,     mlc_relu,    mlc_gelu,
                                                              mlc_tanh, mlc_sigmoid, mlc_silu,
                                                              mlc_gelu_tanh};
                double      got[2][120];
                for (int in = 0; in < 2; in++) {
                    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 4, 5), 1, -1, 1);
                    mlc_dims    shape = mlc_dims4(3, 3 / groups[i], 1, 1);
                    mlc_tensor *w = test_rand(ctx, MLC_F32, shape, 2, -1, 1);
                    mlc_conv_desc d = mlc_conv_desc_make();
                    d.groups = groups[i];
                    d.act = in ? (mlc_act)act : MLC_ACT_NONE;
                    mlc_set_requires_grad(x, true);
                    mlc_tensor *y = mlc_conv(x, w, NULL, &d);
                    if (!in)
                        y = apart[act](y);
                    CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
                    test_read(mlc_contiguous(mlc_grad(x)), got[in]);
                }
                for (int k = 0; k < 120; k++)
                    CHECK_NEAR(got[1][k], got[0][k], 1e-5);
            }
        CHECK_OK(ctx);
    }
}

/* ---- what is at the edge -------------------------------------------------------------------- */

/* Strides far beyond x: one phase for each pixel there is, and no more. */
TEST(conv, strides_may_be_larger_than_anything)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_conv_desc d = mlc_conv_desc_make();
    d.stride = mlc_dims_all(1 << 29);
    mlc_tensor *x = whole(ctx, MLC_F32, mlc_dims_of(5, (const int64_t[]){1, 1, 3, 4, 5}), 0);
    mlc_tensor *w = whole(ctx, MLC_F32, mlc_dims_of(5, (const int64_t[]){1, 1, 2, 2, 2}), 1);
    double      dx[60], k[8];
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_conv(x, w, NULL, &d), mlc_dims0(), false)), MLC_OK);
    test_read(mlc_contiguous(mlc_grad(x)), dx);
    test_read(w, k);
    for (int i = 0; i < 60; i++) {
        const int a = i / 20, b = i / 5 % 4, c = i % 5;
        CHECK_NEAR(dx[i], a < 2 && b < 2 && c < 2 ? k[a * 4 + b * 2 + c] : 0, 0);
    }
    CHECK_OK(ctx);
}

/* Numbers of taps and reaches of windows that 64 bits do not hold: the sanitizers look on. */
TEST(conv, sizes_beyond_64_bits_are_refused)
{
    const int64_t taps = (int64_t)1 << 40;
    mlc_ctx      *ctx = test_ctx();
    mlc_conv_desc d = mlc_conv_desc_make();
    d.dilation = mlc_dims1(1 << 29);
    CHECK(mlc_nn_conv3d(ctx, 1 << 20, 4, (1 << 20) - 1, 1, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 1, 5));
    CHECK(mlc_conv(x, mlc_zeros(ctx, MLC_F32, mlc_dims3(0, 1, taps)), NULL, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_conv_transpose(x, mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 0, taps)), NULL, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

/* 1x1 in 16 bits over memory of the caller's that is aligned to its elements only. */
TEST(conv, pixels_may_be_aligned_to_their_elements_only)
{
    static uint16_t low[3 * 20 * 20 * 64 + 32];
    FOR_EACH_ISA(ctx) {
        for (int off = 0; off < 3; off++) {
            for (int i = 0; i < 3 * 20 * 20 * 64 + 32; i++)
                low[i] = mlc_bf16_from((float)(i % 5 - 2));
            mlc_dims    shape = mlc_dims4(3, 20, 20, 64);  /* a device has memory of its own    */
            mlc_tensor *x = test_on_host() ? mlc_wrap(ctx, MLC_BF16, shape, NULL, low + off)
                                           : mlc_from(ctx, MLC_BF16, shape, low + off);
            mlc_tensor *w = whole(ctx, MLC_BF16, mlc_dims4(64, 64, 1, 1), 1);
            mlc_tensor *y = mlc_conv(mlc_permute(x, mlc_dims4(0, 3, 1, 2)), w, NULL, NULL);
            mlc_tensor *rows = mlc_reshape(mlc_copy(x), mlc_dims2(1200, 64));
            mlc_tensor *want = mlc_linear(rows, mlc_reshape(w, mlc_dims2(64, 64)), NULL);
            static double a[76800], b[76800];
            CHECK_OK(ctx);
            test_read(mlc_contiguous(mlc_permute(y, mlc_dims4(0, 2, 3, 1))), a);
            test_read(want, b);
            CHECK(memcmp(a, b, sizeof a) == 0);
        }
    }
}

/* Kernels that are called for no channels, pixels a stride apart, write no dx and read no x. */
static void check_no_channels(mlc_conv_part part, mlc_dtype dtype)
{
    for (int isa = MLC_ISA_SCALAR; isa < MLC_ISA_COUNT; isa++) {
        static float       dy[8 * 4], x[1] = {0.1f}, none[1];
        static double      room[8192];
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        struct mlc_k_conv  c;
        memset(&c, 0, sizeof c);
        memset(room, 0xff, sizeof room);
        c.part = part;
        c.dtype = c.w_dtype = dtype;
        c.n = c.groups = 1;
        c.oc = 8;
        for (int d = 0; d < 3; d++) {
            c.in[d] = d == 2 ? 8 : 1;
            c.out[d] = d == 2 ? 4 : 1;
            c.kernel[d] = c.stride[d] = d == 2 ? 2 : 1;
            c.dilation[d] = 1;
        }
        c.x = part == MLC_CONV_DX ? x : x + 1;
        c.w = none;
        c.y = dy;
        c.workspace = room;
        if (!k)
            continue;
        c.workspace_bytes = k->conv_workspace(NULL, &c);
        CHECK(c.workspace_bytes <= sizeof room);
        CHECK_EQ(k->conv(NULL, &c), MLC_OK);
        CHECK(x[0] == 0.1f);
    }
}
TEST(conv, no_channels_are_not_touched)
{
    check_no_channels(MLC_CONV_DX, MLC_F32);
    check_no_channels(MLC_CONV_DX, MLC_BF16);
    check_no_channels(MLC_CONV_DW, MLC_F32);
    check_no_channels(MLC_CONV_DW, MLC_BF16);
}

/* Without channels there is nothing to read; without pixels a weight's gradient is 0. */
TEST(conv, no_channels_and_no_pixels)
{
    FOR_EACH_ISA(ctx) {
        static const double zeros[36] = {0};
        mlc_tensor   *w = mlc_ones(ctx, MLC_F32, mlc_dims4(3, 0, 3, 3));
        mlc_tensor   *b = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
        mlc_tensor   *x = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 0, 4, 5));
        CHECK_VALUES(mlc_contiguous(mlc_conv(x, w, b, NULL)), 18, zeros, 0, 0);
        mlc_tensor *v = mlc_ones(ctx, MLC_F32, mlc_dims3(2, 2, 3));
        mlc_set_requires_grad(v, true);
        mlc_conv_desc d = mlc_conv_desc_make();
        d.stride = mlc_dims1(5);
        d.output_padding = mlc_dims_all(4);
        mlc_tensor *y = mlc_conv_transpose(mlc_ones(ctx, MLC_F32, mlc_dims3(1, 2, 0)), v, NULL, &d);
        CHECK_EQ(mlc_numel(y), 4);
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        CHECK_VALUES(mlc_grad(v), 12, zeros, 0, 0);
        CHECK_OK(ctx);
    }
}

/* ---- lists of a desc ------------------------------------------------------------------------ */

TEST(conv, one_number_for_all_axes_is_that_number_for_each)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 9, 8), 1, -1, 1);
    mlc_tensor   *w = test_rand(ctx, MLC_F32, mlc_dims4(4, 3, 3, 2), 2, -1, 1);
    mlc_conv_desc all = mlc_conv_desc_make(), each = all;
    all.stride = all.padding = mlc_dims_all(2);
    each.stride = each.padding = mlc_dims2(2, 2);
    mlc_tensor   *a = mlc_conv(x, w, NULL, &all), *b = mlc_conv(x, w, NULL, &each);
    CHECK_EQ(mlc_dim(a, 2), 6);
    CHECK_NEAR(mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false)), 0, 0);
    mlc_pool_desc pool = mlc_pool_desc_make(2);
    CHECK_EQ(mlc_numel(mlc_max_pool(x, &pool)), 2 * 3 * 4 * 4);
    CHECK_OK(ctx);
}

TEST(conv, a_list_has_a_number_for_each_axis)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_tensor   *x = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 1, 5, 5));
    mlc_tensor   *w = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 1, 3, 3));
    mlc_conv_desc d = mlc_conv_desc_make();
    d.padding = mlc_dims1(1);
    CHECK(mlc_conv(x, w, NULL, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "conv: padding has 1 numbers, the image 2 axes; it takes one for "
                              "each, or mlc_dims_all; start from mlc_conv_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    d = mlc_conv_desc_make();
    d.groups = 0;
    CHECK(mlc_conv(x, w, NULL, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "groups 0 must be positive");
    CHECK_HAS(mlc_error(ctx), "start from mlc_conv_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    memset(&d, 0, sizeof d);
    CHECK(mlc_conv_transpose(x, w, NULL, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "conv_transpose: stride has 0 numbers, the image 2 axes; it takes "
                              "one for each, or mlc_dims_all; start from mlc_conv_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_pool_desc p = mlc_pool_desc_make(2);
    p.stride = mlc_dims3(1, 1, 1);
    CHECK(mlc_avg_pool(x, &p) == NULL);
    CHECK_HAS(mlc_error(ctx), "avg_pool: stride has 3 numbers, the image 2 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    p = mlc_pool_desc_make(2);
    p.dilation = mlc_dims_all(2);
    CHECK(mlc_avg_pool(x, &p) == NULL);
    CHECK_HAS(mlc_error(ctx), "dilation is of max_pool");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    p = mlc_pool_desc_make(2);
    p.stride = mlc_dims_all(0);
    CHECK(mlc_max_pool(x, &p) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_max_pool(x, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_pool_desc_make(kernel)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Of a list without a length nothing can be made. */
TEST(conv, one_number_for_all_axes_is_no_shape_and_no_list_of_axes)
{
    const mlc_dims all = mlc_dims_all(2);
    mlc_ctx       *ctx = test_ctx();
    mlc_tensor    *x = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 1, 4, 4));
    mlc_param_desc p = mlc_param_desc_make(all);
    mlc_module    *m = mlc_nn_flatten(ctx);
    CHECK(mlc_zeros(ctx, MLC_F32, all) == NULL);
    CHECK_STR(mlc_error(ctx), "zeros: -1 axes; a tensor has 0 to 8");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (int i = 0; i < 10; i++) {
        mlc_tensor *y = i == 0   ? mlc_randn(ctx, MLC_F32, all)
                        : i == 1 ? mlc_reshape(x, all)
                        : i == 2 ? mlc_permute(x, all)
                        : i == 3 ? mlc_expand(x, all)
                        : i == 4 ? mlc_sum(x, all, false)
                        : i == 5 ? mlc_tile(x, all)
                        : i == 6 ? mlc_flip(x, all)
                        : i == 7 ? mlc_pad(x, all, all, MLC_PAD_CONSTANT, 0)
                        : i == 8 ? mlc_module_declare(m, "p", &p)
                                 : mlc_wrap(ctx, MLC_F32, all, NULL, &p);
        CHECK(y == NULL);
        CHECK(mlc_ctx_status(ctx) == MLC_ERR_ARG || mlc_ctx_status(ctx) == MLC_ERR_SHAPE);
        mlc_error_clear(ctx);
    }
    CHECK(mlc_summary(m, all, mlc_stdout, NULL) == MLC_ERR_ARG);
    mlc_error_clear(ctx);
}
