/* test_rows.c -- tests of sections IMPL.OPS.SOFTMAX, IMPL.OPS.NORM and their row kernels
 *
 * Values and gradients against doubles on each ISA level, for rows of many sizes in each layout;
 * rows that are hard: huge, far from 0, of one element; bits that do not depend on threads.
 * PyTorch's values are in test_goldens.c.
 */
#include "mlc_test.h"

#define MOST 40100
#define COUNT_OF(list) ((int)(sizeof(list) / sizeof *(list)))

typedef enum kind { SOFTMAX, LOG_SOFTMAX, LAYER_NORM, LAYER_NORM_PLAIN, RMS_NORM, KINDS } kind;

static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
static const char *const NAMES[] = {"softmax", "log_softmax", "layer_norm", "layer_norm of x alone",
                                    "rms_norm"};

static mlc_tensor *apply(kind k, mlc_tensor *x, mlc_tensor *w, mlc_tensor *b)
{
    return k == SOFTMAX            ? mlc_softmax(x, -1)
           : k == LOG_SOFTMAX      ? mlc_log_softmax(x, -1)
           : k == LAYER_NORM       ? mlc_layer_norm(x, w, b, 1e-5)
           : k == LAYER_NORM_PLAIN ? mlc_layer_norm(x, NULL, NULL, 1e-5)
                                   : mlc_rms_norm(x, w, 1e-5);
}

/* One row of n in doubles: y, dx from dy; dw and db are added to. */
static void ref_soft(kind k, const double *x, const double *dy, int64_t n, double *y, double *dx)
{
    double      most = -INF;
    long double sum = 0, dot = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++) sum += (long double)exp(x[i] - most);
    for (int64_t i = 0; i < n; i++)
        y[i] = k == SOFTMAX ? exp(x[i] - most) / (double)sum : x[i] - most - log((double)sum);
    for (int64_t i = 0; i < n; i++) dot += (long double)(k == SOFTMAX ? y[i] * dy[i] : dy[i]);
    for (int64_t i = 0; i < n; i++)
        dx[i] = k == SOFTMAX ? y[i] * (dy[i] - (double)dot) : dy[i] - exp(y[i]) * (double)dot;
}

/* Of x far from 0 the mean is taken as a distance from one of them. */
static long double less_of(double x, long double from) { return (long double)x - from; }

static void ref_norm(kind k, const double *x, const double *dy, const double *w, const double *b,
                     int64_t n, double *y, double *dx, double *dw, double *db)
{
    const long double count = (long double)n, from = k == RMS_NORM ? 0 : (long double)x[0];
    long double       mean = 0, var = 0, g_mean = 0, gh_mean = 0;
    for (int64_t i = 0; i < n && k != RMS_NORM; i++) mean += less_of(x[i], from) / count;
    for (int64_t i = 0; i < n; i++) {
        const long double less = less_of(x[i], from) - mean;
        var += less * less / count;
    }
    const double r = 1 / sqrt((double)var + 1e-5);
    for (int64_t i = 0; i < n; i++) {
        const double h = (double)(less_of(x[i], from) - mean) * r;
        const double scale = k == LAYER_NORM_PLAIN ? 1 : w[i];
        y[i] = h * scale + (k == LAYER_NORM ? b[i] : 0);
        if (k != RMS_NORM) g_mean += (long double)(dy[i] * scale) / count;
        gh_mean += (long double)(dy[i] * scale * h) / count;
        dw[i] += dy[i] * h;
        db[i] += dy[i];
    }
    for (int64_t i = 0; i < n; i++) {
        const double h = (double)(less_of(x[i], from) - mean) * r;
        const double scale = k == LAYER_NORM_PLAIN ? 1 : w[i];
        dx[i] = r * (dy[i] * scale - (double)g_mean - h * (double)gh_mean);
    }
}

typedef struct sample {
    double x[MOST], dy[MOST], w[MOST], b[MOST], y[MOST], dx[MOST], dw[MOST], db[MOST];
} sample;

static double rounded(mlc_dtype dtype, double v)
{
    uint64_t bits[1];
    test_put(bits, dtype, 0, v);
    return test_get(bits, dtype, 0);
}

static void sample_make(sample *s, kind k, mlc_dtype dtype, int64_t rows, int64_t n, double far)
{
    const int64_t total = rows * n;
    for (int64_t i = 0; i < total; i++) {
        s->x[i] = rounded(dtype, far + test_random(1, i, -3, 3));
        s->dy[i] = rounded(dtype, test_random(2, i, -1, 1));
    }
    for (int64_t i = 0; i < n; i++) {
        s->w[i] = rounded(dtype, test_random(3, i, -1.5, 1.5));
        s->b[i] = rounded(dtype, test_random(4, i, -1.5, 1.5));
        s->dw[i] = s->db[i] = 0;
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = r * n;
        if (k <= LOG_SOFTMAX) ref_soft(k, s->x + at, s->dy + at, n, s->y + at, s->dx + at);
        else
            ref_norm(k, s->x + at, s->dy + at, s->w, s->b, n, s->y + at, s->dx + at, s->dw, s->db);
    }
}

/* The tensor [rows,n] in a layout: 0 as it comes, 1 transposed memory, 2 every second element. */
static mlc_tensor *laid(mlc_ctx *ctx, mlc_dtype dtype, int64_t rows, int64_t n, const double *v,
                        int layout)
{
    mlc_tensor *t = test_tensor(ctx, dtype, mlc_dims2(rows, n), v);
    if (layout == 0) return t;
    mlc_tensor *base = layout == 1 ? mlc_zeros(ctx, dtype, mlc_dims2(n, rows))
                                   : mlc_zeros(ctx, dtype, mlc_dims2(rows, 2 * n));
    mlc_tensor *view = layout == 1 ? mlc_transpose(base, 0, 1) : mlc_slice(base, 1, 1, 2 * n, 2);
    CHECK_EQ(mlc_copy_into(view, t), MLC_OK);
    return view;
}

static void check_rows(mlc_ctx *ctx, kind k, mlc_dtype dtype, int64_t rows, int64_t n, int layout,
                       double far)
{
    static sample s;
    const double  eps = dtype == MLC_F64 ? 2.3e-16 : dtype == MLC_F32 ? 1.2e-7
                      : dtype == MLC_F16 ? 9.8e-4 : 7.9e-3;
    const double  size = k == LOG_SOFTMAX ? 16 : 8, sums = eps * (double)(rows + 16);
    sample_make(&s, k, dtype, rows, n, far);
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_detach(laid(ctx, dtype, rows, n, s.x, layout));
    mlc_tensor *w = test_tensor(ctx, dtype, mlc_dims1(n), s.w);
    mlc_tensor *b = test_tensor(ctx, dtype, mlc_dims1(n), s.b);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(b, true);
    mlc_tensor *y = apply(k, x, w, b);
    bool ok = CHECK_VALUES(y, rows * n, s.y, size * eps, 4 * eps);
    /* Twice: written, then added to. */
    for (int turn = 1; turn <= 2; turn++) {
        mlc_tensor *dy = test_tensor(ctx, dtype, mlc_dims2(rows, n), s.dy);
        CHECK_EQ(mlc_backward_from(turn == 1 ? y : apply(k, x, w, b), dy), MLC_OK);
        if (turn == 2)
            for (int64_t i = 0; i < rows * n; i++) {
                s.dx[i] *= 2;
                if (i < n) { s.dw[i] *= 2; s.db[i] *= 2; }
            }
        ok = CHECK_VALUES(mlc_grad(x), rows * n, s.dx, 2 * size * eps, 8 * eps) && ok;
        if (k == LAYER_NORM || k == RMS_NORM)
            ok = CHECK_VALUES(mlc_grad(w), n, s.dw, 4 * sums, 4 * eps) && ok;
        if (k == LAYER_NORM) ok = CHECK_VALUES(mlc_grad(b), n, s.db, 2 * sums, 4 * eps) && ok;
    }
    if (!ok)
        printf("  %s %s [%d,%d] layout %d\n", NAMES[k], mlc_dtype_name(dtype), (int)rows, (int)n,
               layout);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(rows, values_and_gradients_at_odd_sizes_in_each_layout_on_each_isa_level)
{
    static const int64_t sizes[] = {1,  2,  3,  7,   15,  16,  17,  33,   63,  64,
                                    65, 54, 96, 127, 129, 255, 257, 1000, 1025, 300};
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < KINDS; k++)
            for (int d = 0; d < 4; d++)
                for (int i = 0; i < COUNT_OF(sizes); i++)
                    check_rows(ctx, (kind)k, FLOATS[d], 1 + (i * 5 + d) % 7, sizes[i], i % 3, 0);
}

TEST(rows, many_rows_and_long_ones)
{
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < KINDS; k++)
            for (int d = k % (int)test_stride(2); d < 2; d += (int)test_stride(2)) {
                check_rows(ctx, (kind)k, FLOATS[d], 4000, 10, 0, 0);
                check_rows(ctx, (kind)k, FLOATS[d], 3, 12345, 0, 0);
                check_rows(ctx, (kind)k, FLOATS[d], 150, 200, 1, 0);
            }
}

/* The variance is taken about the mean: no digits of x are lost but those that f32 lacks. */
TEST(rows, a_large_mean_cancels_nothing)
{
    FOR_EACH_ISA(ctx) {
        check_rows(ctx, LAYER_NORM, MLC_F32, 5, 100, 0, 1e4);
        check_rows(ctx, LAYER_NORM, MLC_F32, 5, 100, 2, 1e4);
        check_rows(ctx, LAYER_NORM_PLAIN, MLC_F64, 5, 100, 0, 1e8);
        check_rows(ctx, SOFTMAX, MLC_F32, 5, 100, 0, 1e4);
    }
}

/* Its beginning is far from the mean, and squares of what lies between overflow.              */
TEST(rows, a_norm_of_large_values_that_begins_apart)
{
    static const double eps = 1e-5;
    double x[128], y[128];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 128; i++) x[i] = i < 64 ? -5e18 : 5e18;
        mlc_tensor *in = test_tensor(ctx, MLC_F32, mlc_dims2(1, 128), x);
        CHECK(test_read(mlc_layer_norm(in, NULL, NULL, eps), y));
        for (int i = 0; i < 128; i++) CHECK_NEAR(y[i], i < 64 ? -1 : 1, 1e-6);
        CHECK_OK(ctx);
    }
}

TEST(rows, softmax_along_each_axis_is_that_of_the_permuted_tensor)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_uniform(ctx, MLC_F32, mlc_dims3(4, 70, 5), -3, 3);
        for (int32_t axis = 0; axis < 3; axis++) {
            double got[1400], want[1400];
            mlc_tensor *last = mlc_contiguous(mlc_movedim(x, axis, 2));
            CHECK(test_read(mlc_softmax(x, axis), got));
            CHECK(test_read(mlc_movedim(mlc_softmax(last, 2), 2, axis), want));
            for (int i = 0; i < 1400; i++) CHECK_NEAR(got[i], want[i], 3e-7 * want[i]);
        }
        CHECK_OK(ctx);
    }
}

/* As PyTorch: a row that has no softmax is NaN, its neighbours are not. */
TEST(rows, a_row_without_a_softmax_is_nan_and_so_is_its_gradient)
{
    FOR_EACH_ISA(ctx)
        for (int log = 0; log < 2; log++) {
            double v[4 * 20], y[4 * 20], g[4 * 20];
            for (int i = 0; i < 80; i++) v[i] = i < 60 ? 0.1 * i : -INF;
            v[23] = NO_NUMBER;
            v[47] = INF;
            v[48] = -INF;
            mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 20), v);
            mlc_set_requires_grad(x, true);
            mlc_tensor *t = log ? mlc_log_softmax(x, 1) : mlc_softmax(x, 1);
            CHECK(test_read(t, y));
            CHECK_EQ(mlc_backward_from(t, mlc_ones(ctx, MLC_F32, mlc_dims2(4, 20))), MLC_OK);
            CHECK(test_read(mlc_grad(x), g));
            for (int i = 0; i < 80; i++)
                CHECK((isnan(y[i]) != 0) == (i >= 20) && (isnan(g[i]) != 0) == (i >= 20));
        }
}

TEST(rows, nothing_in_gives_nothing_out_and_zero_gradients)
{
    FOR_EACH_ISA(ctx) {
        double      got[3];
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3));
        mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(3));
        mlc_tensor *b = mlc_ones(ctx, MLC_F32, mlc_dims1(3));
        mlc_set_requires_grad(x, true);
        mlc_set_requires_grad(w, true);
        mlc_set_requires_grad(b, true);
        CHECK_EQ(mlc_numel(mlc_softmax(x, 0)), 0);
        CHECK_EQ(mlc_numel(mlc_log_softmax(mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 0)), 1)), 0);
        CHECK_EQ(mlc_numel(mlc_rms_norm(mlc_zeros(ctx, MLC_F64, mlc_dims2(3, 0)), NULL, 0.1)), 0);
        CHECK_EQ(mlc_backward_from(mlc_layer_norm(x, w, b, 1e-5), mlc_zeros(ctx, MLC_F32,
                                                                        mlc_dims2(0, 3))), MLC_OK);
        CHECK(test_read(mlc_grad(w), got) && got[0] == 0 && got[1] == 0 && got[2] == 0);
        CHECK(test_read(mlc_grad(b), got) && got[0] == 0 && got[1] == 0 && got[2] == 0);
        CHECK_OK(ctx);
    }
}

/* Only the gradients that are wanted, each alone. */
TEST(rows, frozen_inputs_of_a_norm_get_no_gradient)
{
    FOR_EACH_ISA(ctx)
        for (int which = 0; which < 3; which++) {
            static sample s;
            sample_make(&s, LAYER_NORM, MLC_F32, 20, 30, 0);
            mlc_tensor *in[3] = {test_tensor(ctx, MLC_F32, mlc_dims2(20, 30), s.x),
                                 test_tensor(ctx, MLC_F32, mlc_dims1(30), s.w),
                                 test_tensor(ctx, MLC_F32, mlc_dims1(30), s.b)};
            const double *want[3] = {s.dx, s.dw, s.db};
            mlc_set_requires_grad(in[which], true);
            mlc_tensor *dy = test_tensor(ctx, MLC_F32, mlc_dims2(20, 30), s.dy);
            CHECK_EQ(mlc_backward_from(mlc_layer_norm(in[0], in[1], in[2], 1e-5), dy), MLC_OK);
            CHECK_VALUES(mlc_grad(in[which]), which ? 30 : 600, want[which], 4e-6, 4e-7);
            for (int i = 0; i < 3; i++) CHECK(i == which || mlc_grad(in[i]) == NULL);
        }
}

static mlc_tensor *apply_kind(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const kind  k = *(const kind *)user;
    mlc_tensor *y = apply(k, in[0], n_in > 1 ? in[1] : NULL, n_in > 2 ? in[2] : NULL);
    return mlc_sum(mlc_mul(y, mlc_add_scalar(y, 0.5)), mlc_dims0(), false);
}

TEST(rows, gradients_agree_with_central_differences)
{
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < KINDS; k++) {
            mlc_gradcheck_report report;
            kind                 which = (kind)k;
            mlc_tensor          *in[3] = {mlc_uniform(ctx, MLC_F64, mlc_dims3(2, 3, 5), -2, 2),
                                          mlc_uniform(ctx, MLC_F64, mlc_dims1(5), 0.5, 2),
                                          mlc_uniform(ctx, MLC_F64, mlc_dims1(5), -1, 1)};
            const int32_t        n = k == LAYER_NORM ? 3 : k == RMS_NORM ? 2 : 1;
            for (int i = 0; i < n; i++) mlc_set_requires_grad(in[i], true);
            CHECK_EQ(mlc_gradcheck(apply_kind, &which, in, n, NULL, &report), MLC_OK);
            if (!CHECK(report.ok))
                printf("    %s: input %d element %" PRId64 ": %g, want %g\n", NAMES[k],
                       report.input, report.index, report.analytic, report.numeric);
        }
}

static void bits_of(int32_t threads, kind k, double *out)
{
    static sample s;
    mlc_ctx_desc  d = test_desc();
    d.threads = threads;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    sample_make(&s, k, MLC_F32, 333, 100, 0);
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(333, 100), s.x);
    mlc_tensor *w = test_tensor(ctx, MLC_F32, mlc_dims1(100), s.w);
    mlc_tensor *b = test_tensor(ctx, MLC_F32, mlc_dims1(100), s.b);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    mlc_tensor *y = apply(k, x, w, b);
    CHECK_EQ(mlc_backward_from(y, test_tensor(ctx, MLC_F32, mlc_dims2(333, 100), s.dy)), MLC_OK);
    CHECK(test_read(y, out) && test_read(mlc_grad(x), out + 33300));
    if (k == LAYER_NORM || k == RMS_NORM) CHECK(test_read(mlc_grad(w), out + 66600));
    mlc_ctx_free(ctx);
}

TEST(rows, bits_do_not_depend_on_the_number_of_threads)
{
    static double one[66700], more[66700];
    for (int k = 0; k < KINDS; k++) {
        bits_of(1, (kind)k, one);
        for (int32_t threads = 2; threads <= 5; threads++) {
            bits_of(threads, (kind)k, more);
            CHECK(memcmp(one, more, sizeof one) == 0);
        }
    }
}

/* ---- a 16-bit x with f32 weights ------------------------------------------------------------ */

/* As of the same numbers in f32, but y and dx, which are rounded; dw and db are not.            */
static void masters_agree(mlc_ctx *ctx, mlc_dtype low, bool rms, int64_t m, int64_t n)
{
    static double  want[4000], got[4000];
    const double   ulp = low == MLC_BF16 ? 0x1p-8 : 0x1p-10;
    const mlc_dims rows = mlc_dims2(m, n), row = mlc_dims1(n);
    mlc_tensor    *x[2], *w[2], *b[2], *y[2], *dy[2];
    for (int i = 0; i < 2; i++) {
        x[i] = mlc_cast(test_rand(ctx, MLC_F32, rows, 1, -1, 1), low);
        dy[i] = mlc_cast(test_rand(ctx, MLC_F32, rows, 2, -1, 1), low);
        if (i == 1) x[i] = mlc_cast(x[i], MLC_F32), dy[i] = mlc_cast(dy[i], MLC_F32);
        w[i] = test_rand(ctx, MLC_F32, row, 3, 0.5, 1.5);
        b[i] = test_rand(ctx, MLC_F32, row, 4, -1, 1);
        mlc_set_requires_grad(x[i], true);
        mlc_set_requires_grad(w[i], true);
        mlc_set_requires_grad(b[i], !rms);
        y[i] = rms ? mlc_rms_norm(x[i], w[i], 1e-5) : mlc_layer_norm(x[i], w[i], b[i], 1e-5);
        CHECK_EQ(mlc_backward_from(y[i], dy[i]), MLC_OK);
    }
    CHECK(y[0] != NULL && y[0]->dtype == low && mlc_grad(w[0])->dtype == MLC_F32);
    test_read(y[1], want);
    CHECK_VALUES(y[0], m * n, want, 1e-6, ulp);
    test_read(mlc_grad(x[1]), want);
    CHECK_VALUES(mlc_grad(x[0]), m * n, want, 1e-6, ulp);
    test_read(mlc_grad(w[1]), want);
    CHECK_VALUES(mlc_grad(w[0]), n, want, 1e-5, 1e-5);
    if (!rms && test_read(mlc_grad(b[1]), want) && test_read(mlc_grad(b[0]), got))
        CHECK(memcmp(got, want, (size_t)n * sizeof *got) == 0);
    CHECK_OK(ctx);
}

TEST(rows, norms_of_16_bits_take_weights_in_f32)
{
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < 4; i++) {
            masters_agree(ctx, i & 1 ? MLC_F16 : MLC_BF16, i & 2, 5, 7);
            masters_agree(ctx, i & 1 ? MLC_F16 : MLC_BF16, i & 2, 30, 130);
            masters_agree(ctx, i & 1 ? MLC_F16 : MLC_BF16, i & 2, 3, 1000);
        }
}
