/* test_rsvd.c -- tests of section IMPL.LINALG.RANDOM: singular values, QR with pivots and least
 * squares by random sketches
 *
 * Errors against the optimal ones of matrices whose singular values are known; pivots against those
 * of Businger's and Golub's method, computed here; least squares against QR.
 */
#include "mlc_test.h"

static const double EPS[2] = {1.1920929e-7, 2.220446e-16};
static const mlc_dtype FLOATS[2] = {MLC_F32, MLC_F64};

static mlc_tensor *flip(mlc_tensor *a) { return mlc_transpose(a, -1, -2); }

/* The Frobenius norm, in f64. */
static double norm_of(mlc_tensor *a)
{
    a = a ? mlc_cast(a, MLC_F64) : NULL;
    return a ? mlc_item(mlc_norm(a, 2, mlc_dims0(), false)) : (double)INFINITY;
}

/* |q^T q - 1| of columns. */
static double skewness(mlc_tensor *q)
{
    if (!q) return (double)INFINITY;
    const int64_t k = q->shape[q->ndim - 1];
    q = mlc_cast(q, MLC_F64);
    return norm_of(mlc_sub(mlc_matmul(flip(q), q), mlc_eye(q->ctx, MLC_F64, k, k)));
}

/* |u s vh - a| in f64. */
static double distance(mlc_tensor *u, mlc_tensor *s, mlc_tensor *vh, mlc_tensor *a)
{
    if (!u || !s || !vh) return (double)INFINITY;
    u = mlc_mul(mlc_cast(u, MLC_F64), mlc_unsqueeze(mlc_cast(s, MLC_F64), -2));
    return norm_of(mlc_sub(mlc_matmul(u, mlc_cast(vh, MLC_F64)), mlc_cast(a, MLC_F64)));
}

enum { SLOW, FAST, EXPONENTIAL, STEEP, FEW, SPECTRA };

static double value_of(int spectrum, int64_t i)
{
    const double k = (double)(i + 1);
    switch (spectrum) {
        case SLOW:        return 1 / k;
        case FAST:        return 1 / (k * k);
        case EXPONENTIAL: return exp(-k / 20);
        case STEEP:       return pow(10, -0.2 * k);
        default:          return i < 20 ? 3 : 0;
    }
}

/* a [m,n] in f64 with these singular values: random reflections of a diagonal. */
static mlc_tensor *made_of(mlc_ctx *ctx, int64_t m, int64_t n, int spectrum, uint64_t seed)
{
    static double s[400 * 400];
    const int64_t k = m < n ? m : n;
    memset(s, 0, sizeof s);
    for (int64_t i = 0; i < k; i++) s[i * n + i] = value_of(spectrum, i);
    mlc_tensor *a = mlc_from(ctx, MLC_F64, mlc_dims2(m, n), s);
    for (int i = 0; i < 6; i++) {
        const int64_t size = i % 2 ? n : m;
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(size, 1), seed * 8 + (uint64_t)i, -1, 1);
        x = mlc_div(x, mlc_norm(x, 2, mlc_dims0(), true));
        mlc_tensor *y = i % 2 ? mlc_matmul(mlc_matmul(a, x), flip(x))
                              : mlc_matmul(x, mlc_matmul(flip(x), a));
        a = mlc_sub(a, mlc_mul_scalar(y, 2));
    }
    return a;
}

/* The norm of what the best matrix of this rank leaves out. */
static double optimum(int spectrum, int64_t k, int64_t rank)
{
    double sum = 0;
    for (int64_t i = rank; i < k; i++) sum += value_of(spectrum, i) * value_of(spectrum, i);
    return sqrt(sum);
}

/* ---- singular values ------------------------------------------------------------------------ */

static void holds(mlc_tensor *wide, int d, int spectrum, int32_t passes, double factor)
{
    mlc_tensor *a = mlc_cast(wide, FLOATS[d]), *u, *vh;
    const int64_t k = a->shape[0] < a->shape[1] ? a->shape[0] : a->shape[1];
    const double norm = norm_of(a), best = optimum(spectrum, k, 64);
    mlc_linalg_rsvd_desc desc = mlc_linalg_rsvd_desc_make(64);
    double said = -1;
    desc.passes = passes;
    desc.error = &said;
    mlc_tensor *s = mlc_linalg_rsvd(a, &desc, &u, &vh);
    const double error = distance(u, s, vh, a);
    const double most = (spectrum < STEEP ? 10 : 20) * EPS[d] * norm;
    if (!(error <= factor * best + most))
        printf("  spectrum %d, %d passes: %g of %g\n", spectrum, passes, error, best);
    CHECK(error <= factor * best + most);
    CHECK(skewness(u) < 300 * EPS[d] && skewness(flip(vh)) < 300 * EPS[d]);
    CHECK(u && u->shape[0] == a->shape[0] && u->shape[1] == 64 && s->shape[0] == 64);
    CHECK(vh && vh->shape[0] == 64 && vh->shape[1] == a->shape[1]);
    CHECK(fabs(said * norm - error) <= 0.4 * error + 30 * EPS[d] * norm);
    double got[64];
    CHECK(test_read(s, got));
    for (int i = 1; i < 64; i++) CHECK(got[i] <= got[i - 1] && got[i] >= 0);
    if (passes > 1) CHECK_NEAR(got[0], value_of(spectrum, 0), 1e-3 * value_of(spectrum, 0));
}

TEST(rsvd, errors_are_near_the_optimal_ones)
{
    ONLY_ON_HOST();
    static const int64_t sizes[][2] = {{220, 200}, {110, 300}};
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++)
        for (int spectrum = 0; spectrum < SPECTRA; spectrum++)
            for (int i = 0; i < 1 + d; i++) {
                mlc_scope_begin(ctx);
                mlc_tensor *a = made_of(ctx, sizes[i][0], sizes[i][1], spectrum,
                                        (uint64_t)(spectrum * 3 + i));
                holds(a, d, spectrum, 4, 1.1);
                holds(a, d, spectrum, 3, 1.1);
                if (i == 0) holds(a, d, spectrum, 2, 1.5);
                if (i == 0) holds(a, d, spectrum, 1, 4);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

/* A matrix large enough for a wide sketch, of this rank at most. */
static mlc_tensor *large(mlc_ctx *ctx, int spectrum, int64_t rank)
{
    double s[60];
    for (int64_t i = 0; i < rank; i++) s[i] = value_of(spectrum, i);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(2048, rank), 3, -1, 1);
    mlc_tensor *y = test_rand(ctx, MLC_F64, mlc_dims2(2050, rank), 4, -1, 1);
    x = mlc_mul(mlc_linalg_qr(x, NULL), mlc_from(ctx, MLC_F64, mlc_dims1(rank), s));
    return mlc_matmul(x, flip(mlc_linalg_qr(y, NULL)));
}

/* Values far above rounding errors of f32 take passes in it; of a lower rank than the basis, where
 * those would be seen, all are in f64. */
TEST(rsvd, a_large_matrix_begins_in_a_wide_sketch)
{
    ONLY_ON_HOST();
    static const int spectra[4] = {SLOW, SLOW, FEW, SLOW};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 4; i++) {
        const int d = i > 0;
        mlc_scope_begin(ctx);
        mlc_tensor *a = mlc_cast(large(ctx, spectra[i], 60), FLOATS[d]), *u, *vh;
        mlc_linalg_rsvd_desc desc = mlc_linalg_rsvd_desc_make(20);
        desc.passes = i < 3 ? 4 : 6;                       /* 6: also of a^T in f32              */
        mlc_tensor *s = mlc_linalg_rsvd(a, &desc, &u, &vh);
        const double best = optimum(spectra[i], 60, 20), error = distance(u, s, vh, a);
        CHECK(error <= 1.02 * best + 20 * EPS[d] * norm_of(a));
        CHECK(skewness(u) < 300 * EPS[d] && skewness(flip(vh)) < 300 * EPS[d]);
        CHECK_NEAR(mlc_item(mlc_slice(s, 0, 19, 20, 1)), value_of(spectra[i], 19), 1e-3);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* Without oversampling no value is left out, so that what f32 loses would be seen. */
TEST(rsvd, a_large_matrix_of_the_rank_asked_for_is_whole)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_linalg_rsvd_desc desc = mlc_linalg_rsvd_desc_make(32);
    mlc_tensor *a = large(ctx, SLOW, 32), *u, *vh;
    desc.oversample = 0;
    mlc_tensor *s = mlc_linalg_rsvd(a, &desc, &u, &vh);
    CHECK(distance(u, s, vh, a) <= 100 * EPS[1] * norm_of(a));
    CHECK_OK(ctx);
}

static bool same_bits(mlc_tensor *a, mlc_tensor *b)
{
    static char x[400 * 400 * 8], y[400 * 400 * 8];
    const size_t bytes = a ? (size_t)mlc_numel(a) * mlc_dtype_bytes(a->dtype) : 0;
    return a && b && mlc_numel(a) == mlc_numel(b) && mlc_read(a, x, bytes) == MLC_OK &&
           mlc_read(b, y, bytes) == MLC_OK && memcmp(x, y, bytes) == 0;
}

/* The singular values and vectors of a large matrix, on these threads. */
static void large_of(int32_t threads, mlc_tensor **out)
{
    mlc_ctx_desc desc = test_desc();
    desc.threads = threads;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&desc));
    const mlc_linalg_rsvd_desc rank = mlc_linalg_rsvd_desc_make(4);
    out[0] = mlc_linalg_rsvd(large(ctx, SLOW, 40), &rank, &out[1], &out[2]);
    CHECK_OK(ctx);
}

TEST(rsvd, bits_of_a_large_matrix_do_not_depend_on_threads)
{
    ONLY_ON_HOST();
    mlc_tensor *x[3], *y[3];
    large_of(1, x);
    large_of(4, y);
    for (int i = 0; i < 3; i++) CHECK(same_bits(x[i], y[i]));
}

TEST(rsvd, a_large_matrix_of_a_batch_has_the_bits_of_one)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(4);
    mlc_tensor *a = large(ctx, SLOW, 40), *u, *vh, *u2, *vh2;
    d.passes = 5;
    mlc_linalg_rsvd(a, &d, &u, &vh);
    mlc_linalg_rsvd(mlc_expand(a, mlc_dims3(2, 2048, 2050)), &d, &u2, &vh2);
    CHECK(same_bits(u, mlc_contiguous(mlc_select(u2, 0, 1))));
    CHECK(same_bits(vh, mlc_contiguous(mlc_select(vh2, 0, 1))));
    CHECK_OK(ctx);
}

TEST(rsvd, more_passes_and_columns_are_closer)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = made_of(ctx, 200, 200, SLOW, 9), *u, *vh;
    const double best = optimum(SLOW, 200, 20);
    double last = 10;
    for (int32_t passes = 2; passes <= 6; passes++) {
        mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(20);
        d.oversample = 0;
        d.passes = passes;
        mlc_tensor *s = mlc_linalg_rsvd(a, &d, &u, &vh);
        const double now = distance(u, s, vh, a) / best;
        CHECK(now < last && now >= 1 - 1e-9);
        last = now;
    }
    CHECK(last < 1.005);
    CHECK_OK(ctx);
}

TEST(rsvd, the_rank_grows_until_the_tolerance)
{
    ONLY_ON_HOST();
    static const double tolerances[] = {0.45, 0.1, 1e-2, 1e-3, 1e-6, 1e-9};
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++)
        for (int spectrum = 0; spectrum < SPECTRA; spectrum++) {
            if (spectrum == SLOW) continue;
            mlc_scope_begin(ctx);
            mlc_tensor *a = mlc_cast(made_of(ctx, 220, 190, spectrum, 3), FLOATS[d]), *u, *vh;
            const double norm = norm_of(a);
            for (int t = 0; t < (d ? 6 : 4); t++) {
                double said = -1;
                if (optimum(spectrum, 190, 80) > tolerances[t] * norm) break;
                mlc_linalg_rsvd_desc desc = mlc_linalg_rsvd_desc_make(190);
                desc.tolerance = tolerances[t];
                desc.block = 16;
                desc.error = &said;
                mlc_tensor *s = mlc_linalg_rsvd(a, &desc, &u, &vh);
                const int64_t rank = s ? s->shape[0] : 0;
                CHECK(distance(u, s, vh, a) <= tolerances[t] * norm && said <= tolerances[t]);
                const int64_t less = rank * 7 / 8 - 16;    /* is too few                         */
                CHECK(less <= 0 || optimum(spectrum, 190, less) > tolerances[t] * norm);
                CHECK(skewness(u) < 2 * 194 * EPS[d] && skewness(flip(vh)) < 2 * 194 * EPS[d]);
                if (spectrum == FEW && t > 0) CHECK_EQ(rank, 20);
            }
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    /* A rank that is reached before, and a of zeros. */
    mlc_tensor *u, *vh, *a = made_of(ctx, 100, 90, SLOW, 3);
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(30);
    double said = 0;
    d.tolerance = 1e-3;
    d.error = &said;
    mlc_tensor *s = mlc_linalg_rsvd(a, &d, &u, &vh);
    CHECK(s && s->shape[0] == 30 && said > 0.05 && said < 0.3);
    s = mlc_linalg_rsvd(mlc_zeros(ctx, MLC_F32, mlc_dims2(5, 4)), &(mlc_linalg_rsvd_desc){
        .rank = 2, .passes = 4, .tolerance = 0.1, .block = 2}, &u, &vh);
    CHECK(s && s->shape[0] == 0 && u->shape[0] == 5 && u->shape[1] == 0 && vh->shape[1] == 4);
    CHECK_OK(ctx);
}

TEST(rsvd, a_batch_and_a_sketch_of_the_programs_own)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *two[2] = {mlc_unsqueeze(made_of(ctx, 90, 80, STEEP, 1), 0),
                          mlc_unsqueeze(made_of(ctx, 90, 80, FAST, 2), 0)};
    mlc_tensor *a = mlc_concat(two, 2, 0), *u, *vh, *u1, *vh1;
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(10);
    mlc_tensor *s = mlc_linalg_rsvd(a, &d, &u, &vh);
    CHECK(u && u->ndim == 3 && u->shape[0] == 2 && u->shape[2] == 10 && vh->shape[1] == 10);
    for (int i = 0; i < 2; i++) {
        mlc_tensor *s1 = mlc_linalg_rsvd(mlc_select(a, 0, i), &d, &u1, &vh1);
        CHECK(norm_of(mlc_sub(s1, mlc_select(s, 0, i))) == 0);
        CHECK(norm_of(mlc_sub(vh1, mlc_select(vh, 0, i))) == 0);
    }
    for (int kind = 0; kind < MLC_SKETCH_DENSE; kind++) {
        const mlc_sketch sketch = mlc_sketch_make((mlc_sketch_kind)kind, 20, 90, 5);
        d.sketch = &sketch;
        d.oversample = 10;
        s = mlc_linalg_rsvd(mlc_select(a, 0, 0), &d, &u, &vh);
        CHECK(distance(u, s, vh, mlc_select(a, 0, 0)) < 1.1 * optimum(STEEP, 80, 10) + 1e-14);
    }
    CHECK_OK(ctx);
}

TEST(rsvd, numbers_near_the_ends_of_the_range)
{
    ONLY_ON_HOST();
    static const double scales[2][2] = {{1e30, 1e-30}, {1e300, 1e-290}};
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 2; i++) {
            mlc_tensor *one = mlc_cast(made_of(ctx, 60, 50, FAST, 4), FLOATS[d]), *r, *p;
            mlc_tensor *a = mlc_mul_scalar(one, scales[d][i]);
            mlc_linalg_rsvd_desc desc = mlc_linalg_rsvd_desc_make(5);
            CHECK_NEAR(mlc_item_at(mlc_linalg_rsvd(a, &desc, NULL, NULL), mlc_dims1(0)) /
                       scales[d][i], 1, 1e-5);
            mlc_tensor *q = mlc_linalg_cqrrpt(a, NULL, &r, &p);
            CHECK(skewness(q) < 1e3 * EPS[d]);
            r = mlc_mul_scalar(r, 1 / scales[d][i]);
            CHECK(norm_of(mlc_sub(mlc_matmul(q, r), mlc_index_select(one, 1, p))) < 60 * EPS[d]);
        }
    CHECK_OK(ctx);
}

TEST(rsvd, a_basis_that_is_complete_grows_no_more)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    static double diagonal[100 * 100];
    for (int i = 0; i < 37; i++) diagonal[i * 101] = i + 1;
    for (int i = 0; i < 6; i++) {      /* f32 and f64; a tolerance in reach and none; a block    */
        mlc_tensor *a = mlc_from(ctx, MLC_F64, mlc_dims2(100, 100), diagonal), *u, *vh;
        mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(60);
        double error = -1;
        a = mlc_cast(a, FLOATS[i % 2]);
        d.tolerance = i < 2 ? 100 * EPS[i % 2] : 1e-30;
        d.block = i < 4 ? 32 : INT64_MAX;
        d.error = &error;
        mlc_tensor *s = mlc_linalg_rsvd(a, &d, &u, &vh);
        CHECK(s && s->shape[0] >= 37 && (i >= 2 || s->shape[0] == 37));
        CHECK(skewness(u) < 1e3 * EPS[i % 2] && skewness(flip(vh)) < 1e3 * EPS[i % 2]);
        CHECK(distance(u, s, vh, a) < 100 * EPS[i % 2] * norm_of(a));
        CHECK(error >= 0 && error < 100 * EPS[i % 2]);
    }
    CHECK_OK(ctx);
}

/* ---- QR with pivots ------------------------------------------------------------------------- */

/* |r_kk| of Businger's and Golub's method, by Gram and Schmidt, twice, with norms computed anew. */
static void pivots_of(mlc_tensor *t, double *diagonal)
{
    static double a[400 * 400];
    const int64_t m = t->shape[0], n = t->shape[1];
    CHECK(test_read(mlc_cast(t, MLC_F64), a));
    for (int64_t k = 0; k < n; k++) {
        double most = -1;
        int64_t best = k;
        for (int64_t c = k; c < n; c++) {
            double sum = 0;
            for (int64_t i = 0; i < m; i++) sum += a[i * n + c] * a[i * n + c];
            if (sum > most) { most = sum; best = c; }
        }
        diagonal[k] = sqrt(most);
        for (int64_t i = 0; i < m; i++) {
            const double x = a[i * n + k];
            a[i * n + k] = diagonal[k] > 0 ? a[i * n + best] / diagonal[k] : 0;
            if (best != k) a[i * n + best] = x;
        }
        for (int twice = 0; twice < 2; twice++)
            for (int64_t c = k + 1; c < n; c++) {
                double dot = 0;
                for (int64_t i = 0; i < m; i++) dot += a[i * n + k] * a[i * n + c];
                for (int64_t i = 0; i < m; i++) a[i * n + c] -= dot * a[i * n + k];
            }
    }
}

/* Of a [m,n] in f64, whose rank for this dtype is `rank`: factors, and pivots within a small factor
 * of the best ones. */
static void pivots_hold(mlc_tensor *wide, int d, int64_t rank, double gamma)
{
    static double best[400], diagonal[400 * 400];
    static int64_t order[400];
    bool seen[400] = {false};
    mlc_tensor *a = mlc_cast(wide, FLOATS[d]), *r, *p;
    const int64_t m = a->shape[0], n = a->shape[1];
    mlc_linalg_cqrrpt_desc desc = mlc_linalg_cqrrpt_desc_make();
    desc.gamma = gamma;
    mlc_tensor *q = mlc_linalg_cqrrpt(a, &desc, &r, &p);
    CHECK(q && r && p);
    if (!q) return;
    const int64_t k = q->shape[1];
    CHECK(rank < 0 || k == rank);
    CHECK(q->shape[0] == m && r->shape[0] == k && r->shape[1] == n && p->shape[0] == n);
    CHECK(skewness(q) < 60 * EPS[d] * (double)(n + 4));
    const double unit = EPS[d] * norm_of(a) * (double)(n + 4);
    CHECK(norm_of(mlc_sub(mlc_matmul(mlc_cast(q, MLC_F64), mlc_cast(r, MLC_F64)),
                          mlc_index_select(mlc_cast(a, MLC_F64), 1, p))) < 8 * unit);
    CHECK(mlc_read(p, order, sizeof *order * (size_t)n) == MLC_OK);
    for (int64_t i = 0; i < n; i++) {
        CHECK(order[i] >= 0 && order[i] < n && !seen[order[i]]);
        seen[order[i]] = true;
    }
    pivots_of(a, best);
    CHECK(test_read(mlc_cast(r, MLC_F64), diagonal));
    double worst = 1;
    for (int64_t i = 0; i < k; i++) {
        const double x = diagonal[i * n + i];
        CHECK(x > 0);
        if (best[i] < 100 * unit) break;
        worst = fmax(worst, fmax(x / best[i], best[i] / x));
        for (int64_t c = 0; c < i; c++) CHECK(diagonal[i * n + c] == 0);
    }
    if (worst > 2.5) printf("  %d x %d: pivots by %g\n", (int)m, (int)n, worst);
    CHECK(worst <= 2.5);
}

TEST(cqrrpt, factors_and_pivots_of_tall_matrices)
{
    ONLY_ON_HOST();
    static const int64_t sizes[][2] = {{300, 40}, {350, 129}, {200, 1}, {50, 50}};
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 4; i++) {
            const int64_t m = sizes[i][0], n = sizes[i][1];
            mlc_scope_begin(ctx);
            mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims2(m, n), 7 + (uint64_t)i, -1, 1);
            pivots_hold(a, d, n, 1.5);
            pivots_hold(made_of(ctx, m, n, FAST, 2), d, n, 1.25);
            pivots_hold(made_of(ctx, m, n, STEEP, 2), d, -1, 2);
            pivots_hold(made_of(ctx, m, n, FEW, 2), d, n < 20 ? n : 20, 1.5);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
}

TEST(cqrrpt, columns_of_other_scales_copies_and_zeros)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *r, *p, *q;
    double by[40];
    for (int i = 0; i < 40; i++) by[i] = pow(10, (i * 7 % 40 - 20) * 0.2);
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims2(300, 40), 7, -1, 1);
    pivots_hold(mlc_mul(a, mlc_from(ctx, MLC_F64, mlc_dims1(40), by)), 1, 40, 1.5);
    mlc_tensor *three[3] = {a, a, mlc_zeros(ctx, MLC_F64, mlc_dims2(300, 3))};
    pivots_hold(mlc_concat(three, 3, 1), 1, 40, 1.5);
    q = mlc_linalg_cqrrpt(three[2], NULL, &r, &p);
    CHECK(q && q->shape[1] == 0 && r->shape[0] == 0 && r->shape[1] == 3 && p->shape[0] == 3);
    q = mlc_linalg_cqrrpt(mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 0)), NULL, &r, &p);
    CHECK(q && q->shape[0] == 4 && q->shape[1] == 0 && r->shape[1] == 0);
    mlc_linalg_cqrrpt_desc infinite = mlc_linalg_cqrrpt_desc_make();
    infinite.gamma = (double)INFINITY;
    CHECK(mlc_linalg_cqrrpt(mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 0)), &infinite, &r, &p) != NULL);
    /* A tolerance cuts the rank, and the rest of r is the projection of the other columns. */
    mlc_linalg_cqrrpt_desc d = mlc_linalg_cqrrpt_desc_make();
    d.tolerance = 1e-4;
    a = made_of(ctx, 300, 100, STEEP, 5);
    q = mlc_linalg_cqrrpt(a, &d, &r, &p);
    CHECK(q && q->shape[1] > 12 && q->shape[1] < 30);
    CHECK(norm_of(mlc_sub(mlc_matmul(q, r), mlc_index_select(a, 1, p))) < 1e-3);
    CHECK_OK(ctx);
}

/* ---- least squares -------------------------------------------------------------------------- */

static void solves(mlc_tensor *a, mlc_tensor *b, int d, bool always, double condition)
{
    mlc_linalg_lstsq_desc desc = mlc_linalg_lstsq_desc_make();
    int32_t taken = -2;
    desc.always = always;
    desc.taken = &taken;
    a = mlc_cast(a, FLOATS[d]);
    b = mlc_cast(b, FLOATS[d]);
    mlc_tensor *x = mlc_linalg_lstsq_sketched(a, b, &desc);
    mlc_tensor *y = mlc_linalg_lstsq(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64), -1);
    const double error = norm_of(mlc_sub(mlc_cast(x, MLC_F64), y)) / (norm_of(y) + 1e-300);
    if (!(error < 20 * EPS[d] * condition) || taken < 0)
        printf("  f%d, %d iterations: %g\n", d ? 64 : 32, taken, error);
    CHECK(error < 20 * EPS[d] * condition);
    CHECK(taken >= 0 && taken <= 70);
    CHECK(x && x->ndim == b->ndim && x->shape[0] == a->shape[1]);
}

TEST(lstsq, sketched_solutions_are_those_of_qr)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++) {
        mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims2(3000, 60), 3, -1, 1);
        mlc_tensor *b = test_rand(ctx, MLC_F64, mlc_dims2(3000, 3), 4, -1, 1);
        solves(a, b, d, true, 3);
        solves(a, mlc_select(b, 1, 0), d, true, 3);
        solves(a, mlc_select(a, 1, 7), d, true, 3);        /* consistent: an axis                */
        solves(a, mlc_zeros(ctx, MLC_F64, mlc_dims2(3000, 1)), d, true, 1);
        double by[60];
        for (int i = 0; i < 60; i++) by[i] = pow(10, i % 7 - 3);
        solves(mlc_mul(a, mlc_from(ctx, MLC_F64, mlc_dims1(60), by)), b, d, true, 1e6);
        /* Large enough that it is less work: by a^T a, and of a bad condition by the sketch.   */
        a = test_rand(ctx, MLC_F64, mlc_dims2(6000, 200), 3, -1, 1);
        b = test_rand(ctx, MLC_F64, mlc_dims1(6000), 4, -1, 1);
        solves(a, b, d, false, 3);
        mlc_tensor *near = mlc_add(mlc_slice(a, 1, 0, 100, 1),
                                   mlc_mul_scalar(mlc_slice(a, 1, 100, 200, 1), 1e-3));
        mlc_tensor *both[2] = {mlc_slice(a, 1, 0, 100, 1), near};
        solves(mlc_concat(both, 2, 1), b, d, false, 1e5);
    }
    CHECK_OK(ctx);
}

TEST(lstsq, right_sides_near_the_ends_of_the_range)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_linalg_lstsq_desc d = mlc_linalg_lstsq_desc_make();
    int32_t taken;
    d.always = true;
    d.taken = &taken;
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims2(300, 20), 3, -1, 1);
    mlc_tensor *b = test_rand(ctx, MLC_F64, mlc_dims2(300, 2), 4, -1, 1);
    for (int i = 0; i < 2; i++) {      /* one column of b, whose squares are 0 or infinite       */
        const double by[2] = {1, i ? 1e-200 : 1e200}, back[2] = {1, 1 / by[1]};
        mlc_tensor *c = mlc_mul(b, mlc_from(ctx, MLC_F64, mlc_dims1(2), by));
        mlc_tensor *x = mlc_mul(mlc_linalg_lstsq_sketched(a, c, &d),
                                mlc_from(ctx, MLC_F64, mlc_dims1(2), back));
        CHECK(norm_of(mlc_sub(x, mlc_linalg_lstsq(a, b, -1))) < 1e-13);
        CHECK_EQ(taken, -1);
    }
    CHECK_OK(ctx);
}

TEST(lstsq, qr_is_taken_where_it_is_less_work_or_alone_can)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_linalg_lstsq_desc d = mlc_linalg_lstsq_desc_make();
    int32_t taken = 0;
    d.taken = &taken;
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims2(300, 5), 3, -1, 1);
    mlc_tensor *b = test_rand(ctx, MLC_F64, mlc_dims1(300), 4, -1, 1);
    CHECK(norm_of(mlc_sub(mlc_linalg_lstsq_sketched(a, b, &d), mlc_linalg_lstsq(a, b, -1))) == 0);
    CHECK_EQ(taken, -1);
    d.always = true;
    d.iterations = 2;                                      /* not enough                         */
    CHECK(norm_of(mlc_sub(mlc_linalg_lstsq_sketched(a, b, &d), mlc_linalg_lstsq(a, b, -1))) == 0);
    CHECK_EQ(taken, -1);
    d.iterations = 50;
    mlc_tensor *c = mlc_copy(a);
    mlc_set_requires_grad(c, true);                        /* QR, which has a gradient           */
    mlc_tensor *x = mlc_linalg_lstsq_sketched(c, b, &d);
    CHECK_EQ(taken, -1);
    CHECK_EQ(mlc_backward(mlc_sum_all(x)), MLC_OK);
    CHECK(norm_of(mlc_grad(c)) > 0);
    mlc_tensor *two[2] = {a, mlc_slice(a, 1, 2, 3, 1)};
    CHECK(mlc_linalg_lstsq_sketched(mlc_concat(two, 2, 1), b, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "linalg_lstsq: a lacks full rank: column 5");
    CHECK_EQ(taken, -1);
    mlc_error_clear(ctx);
    CHECK_OK(ctx);
}

/* ---- bits, errors --------------------------------------------------------------------------- */

static void all_of(int32_t threads, int d, mlc_tensor **out)
{
    mlc_ctx_desc desc = test_desc();
    desc.threads = threads;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&desc));
    mlc_linalg_rsvd_desc rank = mlc_linalg_rsvd_desc_make(20), once = rank, until = rank;
    mlc_linalg_lstsq_desc always = mlc_linalg_lstsq_desc_make();
    once.passes = 1;
    until.tolerance = 0.5;
    always.always = true;
    mlc_tensor *a = test_rand(ctx, FLOATS[d], mlc_dims2(390, 300), 3, -1, 1);
    mlc_tensor *tall = mlc_slice(a, 1, 0, 40, 1);
    out[0] = mlc_linalg_rsvd(a, &rank, &out[1], &out[2]);
    out[3] = mlc_linalg_rsvd(a, &once, &out[4], &out[5]);
    out[6] = mlc_linalg_rsvd(a, &until, &out[7], &out[8]);
    out[9] = mlc_linalg_cqrrpt(a, NULL, &out[10], &out[11]);
    out[12] = mlc_linalg_lstsq_sketched(tall, a, &always);
    CHECK_OK(ctx);
}

TEST(rsvd, bits_do_not_depend_on_threads)
{
    ONLY_ON_HOST();
    for (int d = 0; d < 2; d++) {
        mlc_tensor *x[13], *y[13];
        all_of(1, d, x);
        all_of(4, d, y);
        for (int i = 0; i < 13; i++) CHECK(same_bits(x[i], y[i]));
    }
}

#define REFUSED(call, status, text) \
    do { \
        CHECK((call) == NULL); \
        CHECK_ERROR(ctx, status, text); \
        mlc_error_clear(ctx); \
    } while (0)

TEST(rsvd, wrong_inputs_are_refused)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 1, 0, 1);
    mlc_tensor *u = (mlc_tensor *)(uintptr_t)1;
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(5), good = mlc_linalg_rsvd_desc_make(2);
    REFUSED(mlc_linalg_rsvd(a, &d, &u, NULL), MLC_ERR_ARG, "linalg_rsvd: rank 5 of a [5,4]");
    CHECK(u == NULL);
    d.rank = 0;
    REFUSED(mlc_linalg_rsvd(a, &d, NULL, NULL), MLC_ERR_ARG, "linalg_rsvd: rank 0");
    REFUSED(mlc_linalg_rsvd(a, NULL, NULL, NULL), MLC_ERR_ARG, "linalg_rsvd: the desc is NULL");
    d = good;
    d.passes = 0;
    REFUSED(mlc_linalg_rsvd(a, &d, NULL, NULL), MLC_ERR_ARG, "linalg_rsvd: oversample 10, 0 pass");
    d = good;
    d.tolerance = (double)NAN;
    REFUSED(mlc_linalg_rsvd(a, &d, NULL, NULL), MLC_ERR_ARG, "linalg_rsvd: tolerance");
    d.tolerance = 0.1;
    REFUSED(mlc_linalg_rsvd(mlc_unsqueeze(a, 0), &d, NULL, NULL), MLC_ERR_SHAPE,
            "linalg_rsvd: a is [1,5,4]");
    mlc_sketch sketch = mlc_sketch_make(MLC_SKETCH_SIGNS, 3, 6, 1);
    d.sketch = &sketch;
    REFUSED(mlc_linalg_rsvd(a, &d, NULL, NULL), MLC_ERR_ARG, "linalg_rsvd: a sketch is given and");
    d.tolerance = 0;
    REFUSED(mlc_linalg_rsvd(a, &d, NULL, NULL), MLC_ERR_SHAPE,
            "linalg_rsvd: the sketch has 3 rows; rank 2 and 10 besides");
    sketch.rows = 12;
    REFUSED(mlc_linalg_rsvd(a, &d, NULL, NULL), MLC_ERR_SHAPE, "sketch: the axis of x has 5");
    REFUSED(mlc_linalg_rsvd(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 4)), &good, NULL, NULL),
            MLC_ERR_ARG, "linalg_rsvd: rank 2 of a [0,4]");
    REFUSED(mlc_linalg_rsvd(mlc_cast(a, MLC_BF16), &good, NULL, NULL), MLC_ERR_DTYPE,
            "linalg_rsvd: input 1 is bf16");
    REFUSED(mlc_linalg_rsvd(mlc_select(a, 0, 0), &good, NULL, NULL), MLC_ERR_SHAPE,
            "linalg_rsvd: input 1 is [4]");
    mlc_tensor *bad = mlc_copy(a);
    float v[20];
    CHECK(mlc_read(a, v, sizeof v) == MLC_OK);
    v[6] = INFINITY;
    bad = mlc_from(ctx, MLC_F32, mlc_dims2(5, 4), v);
    REFUSED(mlc_linalg_rsvd(bad, &good, NULL, NULL), MLC_ERR_VALUE,
            "linalg_rsvd: row 1, column 2 is not finite");
    REFUSED(mlc_linalg_cqrrpt(bad, NULL, NULL, NULL), MLC_ERR_VALUE,
            "linalg_cqrrpt: row 1, column 2 is not finite");
    mlc_linalg_lstsq_desc l = mlc_linalg_lstsq_desc_make();
    l.always = true;
    mlc_tensor *tall = mlc_slice(bad, 1, 2, 4, 1), *b = mlc_slice(a, 1, 0, 1, 1);
    REFUSED(mlc_linalg_lstsq_sketched(tall, b, &l), MLC_ERR_VALUE,
            "linalg_lstsq_sketched: row 1, column 0 of a is not finite");
    REFUSED(mlc_linalg_lstsq_sketched(mlc_slice(a, 1, 2, 4, 1), tall, &l), MLC_ERR_VALUE,
            "linalg_lstsq_sketched: row 1, column 0 of b is not finite");
    REFUSED(mlc_linalg_lstsq_sketched(a, mlc_slice(b, 0, 0, 3, 1), NULL), MLC_ERR_SHAPE,
            "linalg_lstsq: a is [5,4], b [3,1]: 5 rows vs 3");
    l.gamma = 0.5;
    REFUSED(mlc_linalg_lstsq_sketched(a, b, &l), MLC_ERR_ARG, "linalg_lstsq_sketched: gamma 0.5");
    REFUSED(mlc_linalg_cqrrpt(flip(a), NULL, NULL, NULL), MLC_ERR_SHAPE,
            "linalg_cqrrpt: a is [4,5]; it must be one matrix");
    mlc_linalg_cqrrpt_desc c = mlc_linalg_cqrrpt_desc_make();
    c.gamma = 0;
    REFUSED(mlc_linalg_cqrrpt(a, &c, NULL, NULL), MLC_ERR_ARG, "linalg_cqrrpt: gamma 0");
    mlc_set_requires_grad(bad, true);
    REFUSED(mlc_linalg_rsvd(bad, &good, NULL, NULL), MLC_ERR_UNSUPPORTED,
            "linalg_rsvd: a requires a gradient");
    CHECK(mlc_linalg_rsvd(NULL, &good, &u, NULL) == NULL && u == NULL);
    CHECK_OK(ctx);
}

static void nowhere(void *user, const char *text, size_t bytes)
{
    (void)user, (void)text, (void)bytes;
}

static mlc_status factors(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                          int32_t n_out)
{
    const mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(2);
    mlc_linalg_lstsq_desc l = mlc_linalg_lstsq_desc_make();
    (void)m, (void)n_in, (void)n_out;
    l.always = true;
    mlc_tensor *x = mlc_linalg_lstsq_sketched(in[0], mlc_slice(in[0], 1, 0, 1, 1), &l);
    CHECK(x && x->shape[0] == 4 && x->shape[1] == 1);
    out[0] = mlc_linalg_rsvd(in[0], &d, NULL, NULL);
    return out[0] ? MLC_OK : MLC_ERR_STATE;
}

/* Least squares have a shape without data; factors are an error. */
TEST(rsvd, a_summary_has_no_data)
{
    ONLY_ON_HOST();
    static const mlc_module_class cls = {"Factors", factors, NULL, NULL, 0, NULL};
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = mlc_module_create(ctx, &cls, NULL, 0);
    CHECK_EQ(mlc_summary(net, mlc_dims2(9, 4), nowhere, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "linalg_rsvd: there is no data while mlc_summary runs");
    mlc_error_clear(ctx);
}

static int64_t activations(mlc_ctx *ctx)
{
    mlc_memory m;
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    return m.now[MLC_MEM_ACTIVATION];
}

TEST(rsvd, only_results_stay_in_the_scope)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(300, 200), 1, -1, 1), *u, *vh, *r, *p;
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(8);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    const int64_t before = activations(ctx);
    mlc_tensor *s = mlc_linalg_rsvd(a, &d, &u, &vh), *q = mlc_linalg_cqrrpt(a, NULL, &r, &p);
    const int64_t after = activations(ctx);
    CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK(s && q && s->dtype == MLC_F32 && skewness(u) < 1e-4);
    CHECK(after - before >= (300 * 200 + 200 * 200 + 8 * 501 + 400) * 4);
    CHECK(after - before <= (300 * 200 + 200 * 200 + 8 * 501 + 400) * 5 + 7 * 64);
    CHECK_OK(ctx);
}

TEST(rsvd, a_device_refuses_by_name)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = mlc_eye(ctx, MLC_F32, 3, 3);
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(1);
    CHECK_EQ(mlc_linalg_rsvd(a, &d, NULL, NULL) != NULL, test_on_host());
    if (!test_on_host()) CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "linalg_rsvd: device ");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_linalg_cqrrpt(a, NULL, NULL, NULL) != NULL, test_on_host());
    mlc_error_clear(ctx);
}
