/* test_linalg.c -- tests of sections IMPL.LINALG.*: QR, Cholesky, triangular systems, LU,
 * eigenvalues, singular values, determinants, least squares
 *
 * Residuals and orthogonality of random matrices whose singular values are known, within a few
 * rounding errors of their norms; gradients by differences; PyTorch's stored results and gradients
 * (golden/make_linalg_goldens.py); what is wrong with an input.
 */
#include "golden/golden.h"

static const double EPS[2] = {1.1920929e-7, 2.220446e-16};
static const mlc_dtype FLOATS[2] = {MLC_F32, MLC_F64};

static mlc_tensor *flip(mlc_tensor *a) { return mlc_transpose(a, -1, -2); }

/* The Frobenius norm, in f64. */
static double norm_of(mlc_tensor *a)
{
    a = a ? mlc_cast(a, MLC_F64) : NULL;
    return a ? sqrt(mlc_item(mlc_sum_all(mlc_mul(a, a)))) : (double)INFINITY;
}

/* |a b - c|, in f64, of results in any dtype. */
static double residual(mlc_tensor *a, mlc_tensor *b, mlc_tensor *c)
{
    if (!a || !b || !c) return (double)INFINITY;
    a = mlc_matmul(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64));
    return norm_of(mlc_sub(a, mlc_cast(c, MLC_F64)));
}

/* |q^T q - 1| of columns. */
static double skewness(mlc_tensor *q)
{
    return q ? residual(flip(q), q, mlc_eye(q->ctx, MLC_F64, q->shape[q->ndim - 1],
                                            q->shape[q->ndim - 1])) : (double)INFINITY;
}

static double largest(mlc_tensor *a)
{
    return mlc_numel(a) ? mlc_item(mlc_max(mlc_abs(mlc_cast(a, MLC_F64)), mlc_dims0(), false)) : 0;
}

static mlc_ctx *ctx_of(int32_t threads)
{
    mlc_ctx_desc d = test_desc();
    if (threads) d.threads = threads;
    return test_own(mlc_ctx_create(&d));
}

/* ---- random matrices with known singular values --------------------------------------------- */

enum { PLAIN, CLUSTERED, REPEATED, TINY, ZEROS, GRADED, RANK_ONE, HUGE_ONES, KINDS };

static double value_of(int kind, int64_t i, int64_t k)
{
    switch (kind) {
        case CLUSTERED: return i < k / 2 ? 1 - 1e-9 * (double)i : 0.3 - 1e-12 * (double)i;
        case REPEATED:  return i < k / 2 ? 2 : 0.5;
        case TINY:      return i < (k + 1) / 2 ? 1 : 1e-30;
        case ZEROS:     return i < (k + 1) / 2 ? 1 + (double)(k - i) : 0;
        case GRADED:    return pow(10, -12.0 * (double)i / (double)k);
        case RANK_ONE:  return i == 0;
        case HUGE_ONES: return 1e12 * (double)(k - i);
        default:        return 1 + (double)(k - i) / (double)k;
    }
}

/* Random orthonormal columns [m,k] in f64, k up to m: Gram and Schmidt, twice. */
static mlc_tensor *orthonormal(mlc_ctx *ctx, int64_t m, int64_t k, uint64_t seed)
{
    static double q[200 * 200];
    test_read(test_rand(ctx, MLC_F64, mlc_dims2(m, k), seed, -1, 1), q);
    for (int64_t c = 0; c < k; c++)
        for (int twice = 0; twice < 2; twice++) {
            double size = 0;
            for (int64_t p = 0; p < c; p++) {
                double dot = 0;
                for (int64_t i = 0; i < m; i++) dot += q[i * k + p] * q[i * k + c];
                for (int64_t i = 0; i < m; i++) q[i * k + c] -= dot * q[i * k + p];
            }
            for (int64_t i = 0; i < m; i++) size += q[i * k + c] * q[i * k + c];
            for (int64_t i = 0; i < m; i++) q[i * k + c] /= sqrt(size);
        }
    return mlc_from(ctx, MLC_F64, mlc_dims2(m, k), q);
}

/* a [m,n] = q1 diag(s) q2^T in f64. */
static mlc_tensor *made_of(mlc_ctx *ctx, int64_t m, int64_t n, int kind, uint64_t seed, double *s)
{
    const int64_t k = m < n ? m : n;
    for (int64_t i = 0; i < k; i++) s[i] = value_of(kind, i, k);
    mlc_tensor *d = mlc_from(ctx, MLC_F64, mlc_dims1(k), s);
    return mlc_matmul(mlc_mul(orthonormal(ctx, m, k, seed), d),
                      flip(orthonormal(ctx, n, k, seed + 1)));
}

/* Is the error within c rounding errors, for each row or column, of a matrix of this norm? */
static bool within(const char *what, double error, double c, int d, int64_t n, double norm,
                   int kind)
{
    const double unit = EPS[d] * (double)(n + 4) * norm;
    if (!(error <= c * unit))
        printf("  %s, kind %d, n %d: %g, %g units\n", what, kind, (int)n, error, error / unit);
    return error <= c * unit;
}

static void factors_hold(mlc_tensor *wide, int d, int kind, const double *s)
{
    mlc_tensor *a = mlc_cast(wide, FLOATS[d]), *r, *u, *p, *vh, *left;
    const int64_t m = a->shape[0], n = a->shape[1], most = m > n ? m : n, k = m < n ? m : n;
    const double norm = norm_of(a);
    mlc_tensor *q = mlc_linalg_qr(a, &r);
    CHECK(within("qr", residual(q, r, a), 2, d, most, norm, kind));
    CHECK(within("q", skewness(q), 2, d, most, 1, kind));
    CHECK(largest(mlc_tril(r, -1)) == 0);
    mlc_tensor *l = mlc_linalg_lu(a, &u, &p);
    CHECK(within("lu", residual(l, u, mlc_index_select(a, 0, p)), 2, d, most,
                 norm_of(l) * norm_of(u) + 1e-300, kind));
    CHECK(largest(l) <= 1);
    mlc_tensor *values = mlc_linalg_svd(a, &left, &vh);
    CHECK(within("svd", residual(mlc_mul(left, values), vh, a), 2, d, most, norm, kind));
    CHECK(within("u", skewness(left), 2, d, most, 1, kind));
    CHECK(within("v", skewness(flip(vh)), 2, d, most, 1, kind));
    double got[200], worst = 0;
    CHECK(test_read(values, got));
    for (int64_t i = 0; i < k; i++) {
        if (i) CHECK(got[i] <= got[i - 1] && got[i] >= 0);
        if (fabs(got[i] - s[i]) > worst) worst = fabs(got[i] - s[i]);
    }
    CHECK(within("s", worst, 2, d, most, norm, kind));
}

/* What square and symmetric matrices have besides. */
static void square_holds(mlc_tensor *wide, int d, int kind)
{
    mlc_ctx    *ctx = wide->ctx;
    mlc_tensor *a = mlc_cast(wide, FLOATS[d]), *v;
    const int64_t n = a->shape[0];
    const double norm = norm_of(a);
    mlc_tensor *even = mlc_add(a, flip(a)), *w = mlc_linalg_eigh(even, &v);
    CHECK(within("eigh", residual(even, v, mlc_mul(v, w)), 2, d, n, norm_of(even), kind));
    CHECK(within("eigh v", skewness(v), 2, d, n, 1, kind));
    const double shift = largest(mlc_matmul(wide, flip(wide)));
    mlc_tensor *eye = mlc_mul_scalar(mlc_eye(ctx, MLC_F64, n, n), shift);
    mlc_tensor *spd = mlc_cast(mlc_add(mlc_matmul(wide, flip(wide)), eye), FLOATS[d]);
    mlc_tensor *l = mlc_linalg_cholesky(spd, false);
    CHECK(within("cholesky", residual(l, flip(l), spd), 2, d, n, norm_of(spd), kind));
    mlc_tensor *b = test_rand(ctx, FLOATS[d], mlc_dims2(n, 3), 7, -1, 1);
    mlc_tensor *x = mlc_linalg_solve_triangular(l, b, false, true, false);
    CHECK(within("triangular", residual(l, x, b), 2, d, n, norm_of(l) * norm_of(x), kind));
    x = mlc_linalg_solve_triangular(flip(l), b, true, true, false);
    CHECK(within("triangular^T", residual(flip(l), x, b), 2, d, n, norm_of(l) * norm_of(x), kind));
    if (kind != PLAIN && kind != CLUSTERED && kind != REPEATED && kind != HUGE_ONES) return;
    x = mlc_linalg_solve(a, b);
    CHECK(within("solve", residual(a, x, b), 20, d, n, norm * norm_of(x) + norm_of(b), kind));
    mlc_tensor *inv = mlc_linalg_inv(a);
    CHECK(within("inv", residual(a, inv, mlc_eye(ctx, MLC_F64, n, n)), 20, d, n,
                 norm * norm_of(inv), kind));
}

TEST(linalg, factors_of_random_matrices_are_within_rounding_errors)
{
    ONLY_ON_HOST();
    static const int64_t tall[] = {1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 41};
    mlc_ctx *ctx = test_ctx();
    double s[200];
    int at = 0;
    for (int d = 0; d < 2; d++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int i = 0; i < 12; i++, at++) {
                const int64_t m = tall[i], n = tall[(i * 5 + kind * 3 + d) % 12];
                mlc_scope_begin(ctx);
                factors_hold(made_of(ctx, m, n, kind, (uint64_t)at * 2 + 1, s), d, kind, s);
                square_holds(made_of(ctx, m, m, kind, (uint64_t)at * 2 + 1, s), d, kind);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
    CHECK(at == 192);
}

/* Panels, blocks and halves: sizes past all of them. */
TEST(linalg, factors_of_larger_matrices_are_within_rounding_errors)
{
    ONLY_ON_HOST();
    static const int64_t sizes[][2] = {{150, 70}, {70, 150}, {131, 131}};
    mlc_ctx *ctx = test_ctx();
    double s[200];
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            const int kind = i == 2 ? PLAIN : d ? GRADED : ZEROS;
            mlc_scope_begin(ctx);
            mlc_tensor *a = made_of(ctx, sizes[i][0], sizes[i][1], kind, 77, s);
            factors_hold(a, d, kind, s);
            if (i == 2) square_holds(a, d, kind);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
}

static bool same_bits(mlc_tensor *a, mlc_tensor *b)
{
    static unsigned char x[1 << 20], y[1 << 20];
    const size_t n = a ? (size_t)mlc_numel(a) * mlc_dtype_bytes(a->dtype) : 0;
    return b && n && n <= sizeof x && mlc_read(a, x, n) == MLC_OK && mlc_read(b, y, n) == MLC_OK &&
           memcmp(x, y, n) == 0;
}

/* q and r of a matrix of several chunks of rows and panels; in f64 with columns so small that their
 * squares are lost. */
static mlc_tensor *tall_qr(mlc_ctx *ctx, int d, mlc_tensor **a, mlc_tensor **r)
{
    double by[140];
    for (int i = 0; i < 140; i++) by[i] = d && i % 50 == 3 ? 1e-140 : 1;
    *a = test_rand(ctx, FLOATS[d], mlc_dims2(4100, 140), 5, -1, 1);
    if (d) *a = mlc_mul(*a, mlc_from(ctx, MLC_F64, mlc_dims1(140), by));
    return mlc_linalg_qr(*a, r);
}

TEST(linalg, factors_of_a_tall_matrix_are_within_rounding_errors)
{
    ONLY_ON_HOST();
    for (int d = 0; d < 2; d++) {
        mlc_ctx *ctx = ctx_of(1), *four = ctx_of(4);
        mlc_tensor *a, *r, *other;
        mlc_tensor *q = tall_qr(ctx, d, &a, &r), *q4 = tall_qr(four, d, &a, &other);
        CHECK(same_bits(r, other));
        CHECK(same_bits(mlc_contiguous(mlc_slice(q, 0, 3400, 4100, 1)),
                        mlc_contiguous(mlc_slice(q4, 0, 3400, 4100, 1))));
        CHECK(within("qr", residual(q4, other, a), 2, d, 4100, norm_of(a), 0));
        CHECK(within("q", skewness(q4), 2, d, 4100, 1, 0));
        CHECK(largest(mlc_tril(other, -1)) == 0);
        CHECK_OK(ctx);
        CHECK_OK(four);
    }
}

/* a plus a multiple of the identity. */
static mlc_tensor *shifted(mlc_tensor *a, double by)
{
    const int64_t n = a->shape[a->ndim - 1];
    return mlc_add(a, mlc_mul_scalar(mlc_eye(a->ctx, a->dtype, n, n), by));
}

/* Batches of small matrices and single long ones: 5,000 in all. Norms are those of batches. */
static int64_t batch_holds(mlc_ctx *ctx, int d, int64_t count, int64_t m, int64_t n, uint64_t seed)
{
    const int64_t most = m > n ? m : n;
    mlc_tensor *a = test_rand(ctx, FLOATS[d], mlc_dims3(count, m, n), seed, -1, 1), *r, *u, *vh;
    const double norm = norm_of(a), units = sqrt((double)count);
    mlc_tensor *q = mlc_linalg_qr(a, &r);
    CHECK(within("qr", residual(q, r, a), 2, d, most, norm, PLAIN));
    CHECK(within("q", skewness(q), 2, d, most, units, PLAIN));
    mlc_tensor *s = mlc_linalg_svd(a, &u, &vh), *each = mlc_unsqueeze(s, 1), *v;
    CHECK(within("svd", residual(mlc_mul(u, each), vh, a), 2, d, most, norm, PLAIN));
    CHECK(within("u", skewness(u), 2, d, most, units, PLAIN));
    CHECK(within("v", skewness(flip(vh)), 2, d, most, units, PLAIN));
    if (m != n) return count;
    mlc_tensor *even = mlc_add(a, flip(a)), *w = mlc_unsqueeze(mlc_linalg_eigh(even, &v), 1);
    CHECK(within("eigh", residual(even, v, mlc_mul(v, w)), 2, d, n, norm_of(even), PLAIN));
    CHECK(within("eigh v", skewness(v), 2, d, n, units, PLAIN));
    mlc_tensor *spd = shifted(mlc_matmul(a, flip(a)), 1), *l = mlc_linalg_cholesky(spd, false);
    CHECK(within("cholesky", residual(l, flip(l), spd), 2, d, n, norm_of(spd), PLAIN));
    mlc_tensor *x = mlc_linalg_solve(spd, a);
    CHECK(within("solve", residual(spd, x, a), 2, d, n, norm_of(spd) * norm_of(x), PLAIN));
    return count;
}

TEST(linalg, factors_of_thousands_of_small_matrices_are_within_rounding_errors)
{
    ONLY_ON_HOST();
    static const int64_t sizes[8][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 3}, {3, 5}, {7, 7},
                                        {10, 8}};
    mlc_ctx *ctx = test_ctx();
    int64_t done = 0;
    for (int d = 0; d < 2; d++) {
        mlc_scope_begin(ctx);
        for (int i = 0; i < 8; i++)
            done += batch_holds(ctx, d, 312, sizes[i][0], sizes[i][1], (uint64_t)(d * 8 + i));
        done += batch_holds(ctx, d, 2, 1, 300, 40) + batch_holds(ctx, d, 2, 300, 1, 41);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_EQ(done, 5000);
    CHECK_OK(ctx);
}

TEST(linalg, numbers_near_the_ends_of_the_range_do_not_overflow)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++)
        for (int low = 0; low < 2; low++) {
            const double by = d ? (low ? 1e-290 : 1e300) : (low ? 1e-33 : 1e36);
            mlc_tensor *a = test_rand(ctx, FLOATS[d], mlc_dims2(70, 40), 5, -1, 1), *r, *u, *vh, *v;
            mlc_tensor *big = mlc_mul_scalar(a, by), *q = mlc_linalg_qr(big, &r);
            mlc_tensor *s = mlc_linalg_svd(big, &u, &vh), *even = mlc_matmul(flip(a), a);
            CHECK(residual(q, mlc_mul_scalar(r, 1 / by), a) < 100 * EPS[d] * norm_of(a));
            CHECK(residual(mlc_mul(u, mlc_mul_scalar(s, 1 / by)), vh, a) <
                  100 * EPS[d] * norm_of(a));
            mlc_tensor *w = mlc_linalg_eigh(mlc_mul_scalar(even, by / 100), &v);
            w = mlc_mul_scalar(w, 100 / by);
            CHECK(residual(even, v, mlc_mul(v, w)) < 100 * EPS[d] * norm_of(even));
        }
    CHECK_OK(ctx);
}

TEST(linalg, empty_matrices_and_batches_have_empty_results)
{
    ONLY_ON_HOST();
    static const int64_t sizes[][3] = {{2, 0, 3}, {2, 3, 0}, {0, 3, 3}, {2, 0, 0}};
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 4; i++) {
            const int64_t b = sizes[i][0], m = sizes[i][1], n = sizes[i][2];
            mlc_tensor *a = mlc_zeros(ctx, FLOATS[d], mlc_dims3(b, m, n)), *r, *u, *p, *vh;
            mlc_tensor *q = mlc_linalg_qr(a, &r), *l = mlc_linalg_lu(a, &u, &p);
            mlc_tensor *s = mlc_linalg_svd(a, &u, &vh);
            CHECK(mlc_numel(q) == 0 && mlc_numel(r) == 0 && mlc_numel(l) == 0 && mlc_numel(s) == 0);
            CHECK_EQ(mlc_numel(p), b * m);
            if (m != n) continue;
            CHECK_EQ(mlc_numel(mlc_linalg_det(a)), b);
            CHECK_EQ(mlc_numel(mlc_linalg_inv(a)), 0);
            CHECK_EQ(mlc_numel(mlc_linalg_cholesky(a, true)), 0);
            CHECK_EQ(mlc_numel(mlc_linalg_eigh(a, NULL)), 0);
            mlc_tensor *x = mlc_linalg_solve(a, mlc_zeros(ctx, FLOATS[d], mlc_dims2(m, 4)));
            CHECK_EQ(mlc_numel(x), b * m * 4);
        }
    CHECK(mlc_item(mlc_linalg_det(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 0)))) == 1);
    CHECK_EQ(mlc_numel(mlc_linalg_eigh(mlc_zeros(ctx, MLC_F64, mlc_dims2(0, 0)), NULL)), 0);
    mlc_tensor *none = mlc_linalg_lstsq(mlc_zeros(ctx, MLC_F64, mlc_dims2(0, 3)),
                                        mlc_zeros(ctx, MLC_F64, mlc_dims2(0, 2)), 0);
    CHECK(mlc_numel(none) == 6 && largest(none) == 0);
    CHECK_EQ(mlc_numel(mlc_linalg_lstsq(mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 0)),
                                        mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 2)), -1)), 0);
    CHECK_OK(ctx);
}

/* ---- every operation by its name ------------------------------------------------------------ */

/* free: bits of results whose signs are free, and which are squared. */
typedef struct op { const char *name; int n_in, n_out, free; } op;

static const op OPS[] = {
    {"qr_tall", 1, 2, 0}, {"qr_square", 1, 2, 0}, {"qr_wide", 1, 2, 0}, {"qr_large", 1, 2, 0},
    {"cholesky", 1, 1, 0}, {"cholesky_upper", 1, 1, 0}, {"cholesky_large", 1, 1, 0},
    {"triangular", 2, 1, 0}, {"triangular_upper", 2, 1, 0}, {"triangular_right", 2, 1, 0},
    {"lu_square", 1, 3, 0}, {"lu_tall", 1, 3, 0}, {"lu_wide", 1, 3, 0},
    {"solve", 2, 1, 0}, {"solve_vector", 2, 1, 0}, {"solve_broadcast", 2, 1, 0},
    {"solve_large", 2, 1, 0}, {"inv", 1, 1, 0}, {"det", 1, 1, 0}, {"slogdet", 1, 2, 0},
    {"eigh", 1, 2, 2}, {"svd_tall", 1, 3, 6}, {"svd_square", 1, 3, 6}, {"svd_wide", 1, 3, 6},
    {"lstsq_tall", 2, 1, 0}, {"lstsq_wide", 2, 1, 0}
};
#define N_OPS (int)(sizeof OPS / sizeof *OPS)

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* The results of an operation, as the script of the goldens has them. */
static bool run(const op *o, mlc_tensor *const *in, mlc_tensor **out)
{
    const char *name = o->name;
    mlc_tensor *a = in[0], *b = o->n_in > 1 ? in[1] : NULL;
    if (begins(name, "qr")) out[0] = mlc_linalg_qr(a, &out[1]);
    else if (begins(name, "cholesky"))
        out[0] = mlc_linalg_cholesky(shifted(mlc_matmul(a, flip(a)), 1), strstr(name, "upper"));
    else if (begins(name, "triangular_upper"))
        out[0] = mlc_linalg_solve_triangular(a, b, true, true, true);
    else if (begins(name, "triangular"))
        out[0] = mlc_linalg_solve_triangular(shifted(a, 3), b, strstr(name, "right"),
                                             !strstr(name, "right"), false);
    else if (begins(name, "lu")) out[0] = mlc_linalg_lu(a, &out[1], &out[2]);
    else if (begins(name, "solve"))
        out[0] = mlc_linalg_solve(strstr(name, "large") ? shifted(a, 6) : a, b);
    else if (begins(name, "inv")) out[0] = mlc_linalg_inv(a);
    else if (begins(name, "det")) out[0] = mlc_linalg_det(a);
    else if (begins(name, "slogdet")) out[0] = mlc_linalg_slogdet(a, &out[1]);
    else if (begins(name, "eigh")) out[0] = mlc_linalg_eigh(mlc_add(a, flip(a)), &out[1]);
    else if (begins(name, "svd")) out[0] = mlc_linalg_svd(a, &out[1], &out[2]);
    else out[0] = mlc_linalg_lstsq(a, b, -1);
    for (int i = 0; out[0] && i < o->n_out; i++)
        if (o->free >> i & 1) out[i] = mlc_mul(out[i], out[i]);
    return out[0] != NULL;
}

/* The sum of all results times numbers w, or times numbers of their places. */
static mlc_tensor *sum_of(const op *o, mlc_tensor *const *out, mlc_tensor *const *w)
{
    mlc_tensor *all = NULL;
    for (int i = 0; i < o->n_out; i++) {
        if (!out[i] || out[i]->dtype == MLC_I64) continue;
        mlc_tensor *by = w ? mlc_cast(w[i], out[i]->dtype)
                           : test_rand(out[i]->ctx, out[i]->dtype,
                                       mlc_dims_of(out[i]->ndim, out[i]->shape), 50 + (uint64_t)i,
                                       -1, 1);
        mlc_tensor *one = mlc_sum_all(mlc_mul(out[i], by));
        all = all ? mlc_add(all, one) : one;
    }
    return all;
}

static void same_as_torch(const golden_file *g, const op *o, int d)
{
    mlc_tensor *in[2] = {NULL, NULL}, *out[3] = {NULL, NULL, NULL}, *w[3] = {NULL, NULL, NULL};
    static double want[GOLDEN_MOST];
    const double tol = d ? 1e-10 : 1e-4;
    const bool trains = golden_find(g, "%s:da", o->name) != NULL;
    mlc_ctx *ctx = g->list[0].tensor->ctx;
    for (int i = 0; i < o->n_in; i++) {
        in[i] = mlc_detach(mlc_cast(golden_find(g, "%s:%c", o->name, 'a' + i), FLOATS[d]));
        if (trains) CHECK_EQ(mlc_set_requires_grad(in[i], true), MLC_OK);
    }
    CHECK(run(o, in, out));
    CHECK_OK(ctx);
    for (int i = 0; i < o->n_out && out[0]; i++) {
        mlc_tensor *golden = golden_find(g, "%s:%d", o->name, i);
        w[i] = golden_find(g, "%s:w%d", o->name, i);
        CHECK(golden && w[i] && test_read(golden, want));
        CHECK(golden_values(out[i], mlc_numel(golden), want, tol, tol, o->name));
    }
    if (!trains) return;
    CHECK_EQ(mlc_backward(sum_of(o, out, w)), MLC_OK);
    CHECK_OK(ctx);
    for (int i = 0; i < o->n_in; i++) {
        mlc_tensor *golden = golden_find(g, "%s:d%c", o->name, 'a' + i);
        CHECK(golden && test_read(golden, want));
        CHECK(golden_values(mlc_grad(in[i]), mlc_numel(golden), want, tol * 30, tol * 30, o->name));
    }
}

TEST(linalg, results_and_gradients_are_those_of_torch)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    golden_file g = golden_open(ctx, "linalg.safetensors");
    for (int d = 0; d < 2 && g.n; d++)
        for (int i = 0; i < N_OPS; i++) same_as_torch(&g, &OPS[i], d);
}

static mlc_tensor *checked(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const op *o = (const op *)user;
    mlc_tensor *out[3] = {NULL, NULL, NULL};
    (void)n_in;
    return run(o, in, out) ? sum_of(o, out, NULL) : NULL;
}

TEST(linalg, gradients_agree_with_differences)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    golden_file g = golden_open(ctx, "linalg.safetensors");
    for (int i = 0; i < N_OPS && g.n; i++) {
        mlc_tensor *in[2] = {NULL, NULL};
        mlc_gradcheck_report r;
        if (strstr(OPS[i].name, "large") || !golden_find(&g, "%s:da", OPS[i].name)) continue;
        mlc_scope_begin(ctx);
        for (int k = 0; k < OPS[i].n_in; k++) {
            in[k] = mlc_copy(golden_find(&g, "%s:%c", OPS[i].name, 'a' + k));
            CHECK_EQ(mlc_set_requires_grad(in[k], true), MLC_OK);
        }
        CHECK_EQ(mlc_gradcheck(checked, (void *)(uintptr_t)&OPS[i], in, OPS[i].n_in, NULL, &r),
                 MLC_OK);
        if (!r.ok) printf("  %s: %g, differences say %g\n", OPS[i].name, r.analytic, r.numeric);
        CHECK(r.ok);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* One result alone has a gradient: the others count as 0. */
static mlc_tensor *one_result(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const int which = *(const int *)user;
    mlc_tensor *a = in[0], *r = NULL, *s = NULL, *y;
    (void)n_in;
    switch (which) {
        case 0: y = mlc_linalg_qr(a, &r); break;
        case 1: mlc_linalg_qr(a, &r); y = r; break;
        case 2: y = mlc_linalg_svd(a, NULL, NULL); break;
        case 3: mlc_linalg_svd(a, &s, NULL); y = mlc_mul(s, s); break;
        case 4: mlc_linalg_svd(a, NULL, &s); y = mlc_mul(s, s); break;
        case 5: y = mlc_linalg_eigh(mlc_matmul(flip(a), a), NULL); break;
        case 6: mlc_linalg_eigh(mlc_matmul(flip(a), a), &s); y = mlc_mul(s, s); break;
        case 7: y = mlc_linalg_lu(mlc_matmul(flip(a), a), NULL, NULL); break;
        case 8: mlc_linalg_lu(mlc_matmul(flip(a), a), &s, NULL); y = s; break;
        case 9: mlc_linalg_slogdet(mlc_matmul(flip(a), a), &s); y = s; break;
        default: y = mlc_linalg_lstsq(a, mlc_slice(a, -1, 0, 2, 1), which == 10 ? -1 : 1e-9);
    }
    if (!y) return NULL;
    return mlc_mul(y, test_rand(y->ctx, y->dtype, mlc_dims_of(y->ndim, y->shape), 9, -1, 1));
}

TEST(linalg, a_gradient_of_one_result_is_enough)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int which = 0; which < 12; which++) {
        mlc_gradcheck_report r;
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(5, 3), 21, -2, 2);
        CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
        CHECK_EQ(mlc_gradcheck(one_result, &which, &x, 1, NULL, &r), MLC_OK);
        if (!r.ok) printf("  %d: %g, differences say %g\n", which, r.analytic, r.numeric);
        CHECK(r.ok);
    }
    CHECK_OK(ctx);
}

/* Of rank n - 1 it is a matrix of rank 1, of rank n - 2 zero: by the cofactors. */
TEST(linalg, a_determinant_has_a_gradient_where_it_is_0)
{
    ONLY_ON_HOST();
    static const double v[9] = {1, 2, 3, 2, 4, 6, 1, 0, 5}, w[9] = {1, 2, 3, 2, 4, 6, 3, 6, 9};
    static const double want[9] = {20, -4, -4, -10, 2, 2, 0, 0, 0}, none[9] = {0};
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *x = mlc_from(ctx, MLC_F64, mlc_dims2(3, 3), v);
    mlc_tensor *y = mlc_from(ctx, MLC_F64, mlc_dims2(3, 3), w);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(y, true);
    mlc_tensor *det = mlc_linalg_det(x);
    CHECK_NEAR(mlc_item(det), 0, 1e-14);
    CHECK_EQ(mlc_backward(det), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 9, want, 1e-12, 0);
    CHECK_EQ(mlc_backward(mlc_linalg_det(y)), MLC_OK);
    CHECK_VALUES(mlc_grad(y), 9, none, 1e-12, 0);
    CHECK_OK(ctx);
}

/* ---- threads, layouts, least squares -------------------------------------------------------- */

static int results(mlc_ctx *ctx, int d, int64_t batch, int64_t n, mlc_tensor **out)
{
    mlc_tensor *a = test_rand(ctx, FLOATS[d], mlc_dims3(batch, n, n), 3, -1, 1);
    mlc_tensor *b = test_rand(ctx, FLOATS[d], mlc_dims3(batch, n, 40), 4, -1, 1);
    mlc_tensor *spd = shifted(mlc_matmul(a, flip(a)), 1);
    out[0] = mlc_linalg_qr(a, &out[1]);
    out[2] = mlc_linalg_cholesky(spd, false);
    out[3] = mlc_linalg_solve(a, b);
    out[4] = mlc_linalg_lu(a, &out[5], &out[6]);
    out[7] = mlc_linalg_eigh(spd, &out[8]);
    out[9] = mlc_linalg_svd(a, &out[10], &out[11]);
    out[12] = mlc_linalg_det(a);
    return 13;
}

TEST(linalg, bits_do_not_depend_on_threads)
{
    ONLY_ON_HOST();
    static const int64_t sizes[][2] = {{1, 110}, {40, 12}, {3, 40}};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            mlc_ctx *one = ctx_of(1), *four = ctx_of(4);
            mlc_tensor *x[13], *y[13];
            const int n = results(one, d, sizes[i][0], sizes[i][1], x);
            results(four, d, sizes[i][0], sizes[i][1], y);
            for (int k = 0; k < n; k++) CHECK(same_bits(x[k], y[k]));
            CHECK_OK(one);
            CHECK_OK(four);
        }
}

TEST(linalg, strides_of_inputs_do_not_matter)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims3(4, 6, 6), 3, -1, 1);
    mlc_tensor *x = mlc_movedim(a, 0, 2);
    mlc_tensor *b = mlc_expand(test_rand(ctx, MLC_F64, mlc_dims2(6, 1), 3, -1, 1), mlc_dims2(6, 4));
    x = mlc_slice(x, 1, 1, 6, 2);                         /* [6,3,4], with gaps                  */
    mlc_tensor *y = mlc_contiguous(x);
    CHECK(x && !mlc_is_contiguous(x));
    CHECK(same_bits(mlc_linalg_qr(x, NULL), mlc_linalg_qr(y, NULL)));
    CHECK(same_bits(mlc_linalg_svd(x, NULL, NULL), mlc_linalg_svd(y, NULL, NULL)));
    CHECK(same_bits(mlc_linalg_inv(mlc_movedim(a, 1, 2)), mlc_linalg_inv(mlc_contiguous(flip(a)))));
    CHECK(same_bits(mlc_linalg_solve(a, b), mlc_linalg_solve(a, mlc_contiguous(b))));
    CHECK_OK(ctx);
}

TEST(linalg, least_squares_of_a_lower_rank_are_the_shortest)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    double s[10];
    mlc_tensor *a = made_of(ctx, 9, 6, ZEROS, 5, s), *vh;
    mlc_tensor *b = test_rand(ctx, MLC_F64, mlc_dims2(9, 2), 1, -1, 1);
    mlc_tensor *x = mlc_linalg_lstsq(a, b, 1e-9), *left = mlc_sub(mlc_matmul(a, x), b);
    CHECK(residual(flip(a), left, mlc_zeros(ctx, MLC_F64, mlc_dims2(6, 2))) < 1e-11);
    mlc_linalg_svd(a, NULL, &vh);                         /* x has no part where a is 0          */
    CHECK(norm_of(mlc_matmul(mlc_slice(vh, 0, 3, 6, 1), x)) < 1e-12);
    CHECK(mlc_linalg_lstsq(a, b, -1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "linalg_lstsq: a lacks full rank: column 3 depends on");
    mlc_error_clear(ctx);
    CHECK(mlc_linalg_lstsq(flip(a), mlc_slice(b, 0, 0, 6, 1), -1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "row 3 depends on");
    mlc_error_clear(ctx);
    /* Columns of other scales are of full rank. */
    static const float scales[2] = {1e6f, 1e-6f};
    mlc_tensor *tall = test_rand(ctx, MLC_F32, mlc_dims2(3000, 2), 4, -1, 1);
    mlc_tensor *by = mlc_from(ctx, MLC_F32, mlc_dims1(2), scales);
    x = mlc_linalg_lstsq(mlc_mul(tall, by), mlc_slice(tall, 1, 1, 2, 1), -1);
    CHECK_NEAR(mlc_item(mlc_slice(x, 0, 1, 2, 1)), 1e6, 10);
    mlc_error_clear(ctx);
    x = mlc_linalg_lstsq(a, mlc_select(b, 1, 0), 1e-9);
    CHECK(x && x->ndim == 1);
    CHECK_OK(ctx);
}

/* ---- what is wrong -------------------------------------------------------------------------- */

#define REFUSED(call, status, text) \
    do { \
        CHECK((call) == NULL); \
        CHECK_ERROR(ctx, status, text); \
        mlc_error_clear(ctx); \
    } while (0)

TEST(linalg, wrong_inputs_are_refused_with_their_place)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    double v[18] = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 2, 4, 6, 0, 0, 1};
    mlc_tensor *r = (mlc_tensor *)(uintptr_t)1;
    mlc_tensor *a = mlc_from(ctx, MLC_F64, mlc_dims3(2, 3, 3), v);
    mlc_tensor *b = mlc_zeros(ctx, MLC_F64, mlc_dims3(2, 4, 1));
    mlc_tensor *wide = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_tensor *line = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    REFUSED(mlc_linalg_inv(a), MLC_ERR_VALUE,
            "linalg_inv: column 1 of matrix [1] has no pivot: a is singular");
    REFUSED(mlc_linalg_solve(a, mlc_slice(b, 1, 0, 3, 1)), MLC_ERR_VALUE,
            "linalg_solve: column 1 of matrix [1]");
    REFUSED(mlc_linalg_solve(a, b), MLC_ERR_SHAPE,
            "linalg_solve: a is [2,3,3], b [2,4,1]: 3 rows vs 4");
    REFUSED(mlc_linalg_solve(a, mlc_zeros(ctx, MLC_F64, mlc_dims3(5, 3, 1))), MLC_ERR_SHAPE,
            "batch axes of a [2,3,3] and b [5,3,1] do not broadcast: 2 vs 5");
    REFUSED(mlc_linalg_cholesky(a, false), MLC_ERR_VALUE,
            "linalg_cholesky: row 1 of matrix [1] has a pivot that is not over 0");
    REFUSED(mlc_linalg_inv(wide), MLC_ERR_SHAPE, "linalg_inv: a is [2,3]; its last two axes");
    REFUSED(mlc_linalg_det(wide), MLC_ERR_SHAPE, "linalg_det: a is [2,3]");
    REFUSED(mlc_linalg_eigh(wide, NULL), MLC_ERR_SHAPE, "linalg_eigh: a is [2,3]");
    REFUSED(mlc_linalg_cholesky(wide, true), MLC_ERR_SHAPE, "linalg_cholesky: a is [2,3]");
    REFUSED(mlc_linalg_qr(line, &r), MLC_ERR_SHAPE, "linalg_qr: input 1 is [3]; it must have two");
    CHECK(r == NULL);
    REFUSED(mlc_linalg_svd(mlc_cast(wide, MLC_BF16), NULL, NULL), MLC_ERR_DTYPE,
            "linalg_svd: input 1 is bf16; it must be f32 or f64");
    REFUSED(mlc_linalg_lu(mlc_cast(wide, MLC_I64), NULL, NULL), MLC_ERR_DTYPE,
            "linalg_lu: input 1");
    REFUSED(mlc_linalg_solve(a, mlc_cast(a, MLC_F32)), MLC_ERR_DTYPE, "linalg_solve: input");
    REFUSED(mlc_linalg_lstsq(a, b, -1), MLC_ERR_SHAPE, "linalg_lstsq: a is [2,3,3], b [2,4,1]");
    REFUSED(mlc_linalg_lstsq(a, a, (double)NAN), MLC_ERR_ARG, "linalg_lstsq: rcond is NaN");
    REFUSED(mlc_linalg_solve_triangular(a, b, true, true, false), MLC_ERR_SHAPE,
            "linalg_solve_triangular: a is [2,3,3], b [2,4,1]: 3 rows vs 4");
    REFUSED(mlc_linalg_solve_triangular(line, line, true, true, false), MLC_ERR_SHAPE,
            "linalg_solve_triangular: a is [3], b [3]; both must have two axes or more");
    v[4] = 0;
    mlc_tensor *zero = mlc_from(ctx, MLC_F64, mlc_dims3(2, 3, 3), v);
    REFUSED(mlc_linalg_solve_triangular(zero, a, false, true, false), MLC_ERR_VALUE,
            "row 1 of matrix [0] of a has a zero on the diagonal: it is singular");
    v[15] = (double)NAN;
    mlc_tensor *nan = mlc_from(ctx, MLC_F64, mlc_dims3(2, 3, 3), v);
    REFUSED(mlc_linalg_qr(nan, NULL), MLC_ERR_VALUE,
            "linalg_qr: row 2, column 0 of matrix [1] is not finite");
    REFUSED(mlc_linalg_inv(nan), MLC_ERR_VALUE, "linalg_inv: row 2, column 0 of matrix [1] is not");
    REFUSED(mlc_linalg_svd(nan, NULL, NULL), MLC_ERR_VALUE, "linalg_svd: row 2, column 0");
    REFUSED(mlc_linalg_eigh(nan, NULL), MLC_ERR_VALUE, "linalg_eigh: row 2, column 0");
    REFUSED(mlc_linalg_solve(a, nan), MLC_ERR_VALUE,
            "linalg_solve: row 2, column 0 of matrix [1] of b is not finite");
    REFUSED(mlc_linalg_solve(nan, a), MLC_ERR_VALUE, "row 2, column 0 of matrix [1] of a is not");
    REFUSED(mlc_linalg_lstsq(nan, a, -1), MLC_ERR_VALUE,
            "linalg_lstsq: row 2, column 0 of matrix [1] is not finite");
    REFUSED(mlc_linalg_lstsq(nan, a, 0), MLC_ERR_VALUE, "linalg_lstsq: row 2, column 0 of matrix");
    REFUSED(mlc_linalg_lstsq(a, nan, 1e-9), MLC_ERR_VALUE,
            "linalg_lstsq: row 2, column 0 of matrix [1] of b is not finite");
    mlc_tensor *wide_nan = mlc_slice(nan, 1, 1, 3, 1);     /* its row 1, column 0                 */
    REFUSED(mlc_linalg_lstsq(wide_nan, mlc_slice(a, 1, 1, 3, 1), -1), MLC_ERR_VALUE,
            "linalg_lstsq: row 1, column 0 of matrix [1] is not finite");
    REFUSED(mlc_linalg_lstsq(a, mlc_cast(a, MLC_F32), -1), MLC_ERR_DTYPE, "linalg_lstsq: input");
    /* From the right: of x a = b, as the program gave them. */
    REFUSED(mlc_linalg_solve_triangular(a, nan, true, false, false), MLC_ERR_VALUE,
            "linalg_solve_triangular: row 2, column 0 of matrix [1] of b is not finite");
    REFUSED(mlc_linalg_solve_triangular(nan, a, false, false, false), MLC_ERR_VALUE,
            "linalg_solve_triangular: row 1 of matrix [0] of a has a zero");
    REFUSED(mlc_linalg_solve_triangular(a, b, true, false, false), MLC_ERR_SHAPE,
            "linalg_solve_triangular: a is [2,3,3], b [2,4,1]: 3 rows vs 1 columns");
    REFUSED(mlc_linalg_solve_triangular(wide, mlc_slice(wide, 1, 0, 2, 1), true, false, false),
            MLC_ERR_SHAPE, "linalg_solve_triangular: a is [2,3]; its last two axes");
    REFUSED(mlc_linalg_solve(NULL, a), MLC_ERR_ARG, "linalg_solve: input 1 is NULL");
    CHECK(mlc_linalg_qr(NULL, &r) == NULL && r == NULL && mlc_linalg_det(NULL) == NULL);
    CHECK_OK(ctx);
}

/* What is not read may be anything. */
TEST(linalg, the_other_triangle_is_not_read)
{
    ONLY_ON_HOST();
    static const double low[9] = {2, (double)NAN, (double)INFINITY, 1, 3, (double)NAN, -1, 1, 4};
    static const double with[9] = {2, 1, -1, 1, 3, 1, -1, 1, 4};
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = mlc_from(ctx, MLC_F64, mlc_dims2(3, 3), low);
    mlc_tensor *even = mlc_from(ctx, MLC_F64, mlc_dims2(3, 3), with), *v, *u;
    CHECK(same_bits(mlc_linalg_cholesky(a, false), mlc_linalg_cholesky(even, false)));
    CHECK(same_bits(mlc_linalg_eigh(a, &v), mlc_linalg_eigh(even, &u)) && same_bits(v, u));
    CHECK(same_bits(mlc_linalg_solve_triangular(a, even, false, true, false),
                    mlc_linalg_solve_triangular(mlc_tril(even, 0), even, false, true, false)));
    CHECK_OK(ctx);
}

static void no_gradient(mlc_ctx *ctx, mlc_tensor *y, const char *text)
{
    CHECK_OK(ctx);
    CHECK_EQ(mlc_backward(mlc_sum_all(y)), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, text);
    mlc_error_clear(ctx);
}

TEST(linalg, a_gradient_that_is_not_there_is_an_error)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *eye = mlc_eye(ctx, MLC_F64, 3, 3), *v, *s;
    mlc_tensor *x = mlc_copy(mlc_expand(eye, mlc_dims3(2, 3, 3)));
    mlc_set_requires_grad(x, true);
    mlc_linalg_eigh(x, &v);
    no_gradient(ctx, v, "backward of linalg_eigh: eigenvalues 0 and 1 of matrix [0] are equal");
    mlc_linalg_svd(x, &v, NULL);
    no_gradient(ctx, v, "backward of linalg_svd: singular values 0 and 1 of matrix [0] are equal");
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_linalg_svd(x, NULL, NULL))), MLC_OK);
    mlc_tensor *zero = mlc_zeros(ctx, MLC_F64, mlc_dims2(3, 2));
    mlc_set_requires_grad(zero, true);
    mlc_linalg_svd(zero, &v, NULL);
    no_gradient(ctx, v, "backward of linalg_svd: a singular value is 0");
    mlc_linalg_qr(zero, &s);
    no_gradient(ctx, s, "linalg_solve_triangular: row 0 of a has a zero on the diagonal");
    mlc_tensor *square = mlc_zeros(ctx, MLC_F64, mlc_dims2(2, 2));
    mlc_set_requires_grad(square, true);
    mlc_linalg_slogdet(square, &s);
    no_gradient(ctx, s, "backward of linalg_slogdet: a is singular");
    REFUSED(mlc_linalg_qr(flip(zero), NULL), MLC_ERR_UNSUPPORTED, "linalg_qr: a is [2,3]");
    REFUSED(mlc_linalg_lu(zero, NULL, NULL), MLC_ERR_UNSUPPORTED, "linalg_lu: a is [3,2]");
    CHECK_OK(ctx);
}

TEST(linalg, a_device_refuses_by_name)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = mlc_eye(ctx, MLC_F32, 3, 3), *q = mlc_linalg_qr(a, NULL);
    CHECK_EQ(q != NULL, test_on_host());
    if (!test_on_host()) CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "linalg_qr: device ");
    mlc_error_clear(ctx);
}

/* ---- autocast, anomalies, scopes, pieces ---------------------------------------------------- */

static mlc_tensor *any_of(int which, mlc_tensor *a, mlc_tensor *b)
{
    const int64_t n = a->shape[1];
    mlc_tensor *tall = mlc_slice(a, 1, 0, n - 2, 1), *wide = mlc_slice(a, 0, 0, n - 2, 1), *v;
    switch (which) {
        case 0:  return mlc_linalg_solve(a, b);
        case 1:  return mlc_linalg_inv(a);
        case 2:  return mlc_linalg_solve_triangular(a, b, true, true, false);
        case 3:  return mlc_linalg_qr(a, NULL);
        case 4:  return mlc_linalg_lu(a, NULL, NULL);
        case 5:  mlc_linalg_eigh(a, &v); return mlc_mul(v, v);
        case 6:  mlc_linalg_svd(tall, &v, NULL); return mlc_mul(v, v);
        case 7:  return mlc_linalg_svd(a, NULL, NULL);
        case 8:  return mlc_linalg_det(a);
        case 9:  return mlc_linalg_lstsq(tall, b, -1);
        case 10: return mlc_linalg_lstsq(wide, mlc_slice(b, 0, 0, n - 2, 1), -1);
        case 11: return mlc_linalg_lstsq(wide, mlc_slice(b, 0, 0, n - 2, 1), 1e-6);
        case 12: return mlc_linalg_lstsq(tall, b, 1e-6);
        case 13: return mlc_linalg_cholesky(a, true);
        default: return mlc_linalg_solve_triangular(a, b, true, false, true);
    }
}
#define N_ANY 15

/* A symmetric positive definite a [n,n], and b of its rows, of f32; both have gradients. */
static void any_inputs(mlc_ctx *ctx, int64_t n, mlc_tensor **in)
{
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(n, n), 3, -1, 1);
    in[0] = mlc_copy(shifted(mlc_matmul(a, flip(a)), 1));
    in[1] = test_rand(ctx, MLC_F32, mlc_dims2(n, n), 4, -1, 1);
    for (int i = 0; i < 2; i++) CHECK_EQ(mlc_set_requires_grad(in[i], true), MLC_OK);
}

/* Result and gradients of one operation, whose backward too is under autocast if `low`. */
static void any_run(mlc_ctx *ctx, int which, bool low, mlc_tensor **out)
{
    mlc_tensor *in[2], *w;
    any_inputs(ctx, 7, in);
    if (low) CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    out[0] = any_of(which, in[0], in[1]);
    if (!out[0]) return;
    w = test_rand(ctx, MLC_F32, mlc_dims_of(out[0]->ndim, out[0]->shape), 5, -1, 1);
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_mul(out[0], w))), MLC_OK);
    if (low) CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    for (int i = 0; i < 2; i++) out[1 + i] = mlc_grad(in[i]);
}

TEST(linalg, bits_do_not_depend_on_autocast)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int which = 0; which < N_ANY; which++) {
        mlc_tensor *x[3], *y[3];
        any_run(ctx, which, false, x);
        any_run(ctx, which, true, y);
        CHECK_OK(ctx);
        CHECK(same_bits(x[0], y[0]));
        CHECK(same_bits(x[1], y[1]));
        CHECK(!x[2] == !y[2] && (!x[2] || same_bits(x[2], y[2])));
    }
}

/* A second gradient is added to the first one. */
TEST(linalg, gradients_add_up)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int which = 0; which < N_ANY; which++) {
        mlc_tensor *in[2], *once = NULL;
        any_inputs(ctx, 6, in);
        for (int twice = 0; twice < 2; twice++) {
            mlc_tensor *y = any_of(which, in[0], in[1]);
            CHECK_EQ(mlc_backward(mlc_sum_all(mlc_mul(y, y))), MLC_OK);
            if (!twice) once = mlc_copy(mlc_grad(in[0]));
        }
        CHECK(same_bits(mlc_mul_scalar(once, 2), mlc_grad(in[0])));
    }
    CHECK_OK(ctx);
}

TEST(linalg, one_tensor_may_be_both_inputs)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *in[2], *a;
    any_inputs(ctx, 5, in);
    a = mlc_detach(mlc_cast(in[0], MLC_F64));
    CHECK_EQ(mlc_set_requires_grad(a, true), MLC_OK);
    mlc_tensor *x = mlc_linalg_solve(a, a);
    CHECK(residual(x, x, x) < 1e-12);                      /* x is the identity                   */
    CHECK_EQ(mlc_backward(mlc_sum_all(x)), MLC_OK);
    CHECK(largest(mlc_grad(a)) < 1e-12);
    CHECK_OK(ctx);
}

TEST(linalg, an_input_that_changed_is_an_error_of_backward)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *in[2];
    any_inputs(ctx, 5, in);
    mlc_tensor *copy = mlc_mul_scalar(in[0], 1);
    mlc_tensor *y = mlc_sum_all(mlc_linalg_solve_triangular(copy, in[1], true, true, false));
    mlc_no_grad_begin(ctx);
    mlc_mul_scalar_(copy, 2);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "backward of linalg_solve_triangular: saved tensor");
    mlc_error_clear(ctx);
}

TEST(linalg, a_determinant_of_0_is_no_anomaly)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_anomaly(ctx, true);
    CHECK(mlc_item(mlc_linalg_det(mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 2)))) == 0);
    for (int which = 0; which < N_ANY; which++) {
        mlc_tensor *out[3];
        any_run(ctx, which, false, out);
    }
    mlc_anomaly(ctx, false);
    CHECK_OK(ctx);
}

static int64_t activations(mlc_ctx *ctx)
{
    mlc_memory m;
    mlc_memory_info(ctx, &m);
    return m.now[MLC_MEM_ACTIVATION];
}

/* Neither results that a call did not ask for stay in the scope, nor what a gradient is made of. */
TEST(linalg, only_results_stay_in_the_scope)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *in[2];
    any_inputs(ctx, 40, in);
    for (int which = 0; which < N_ANY; which++) {
        mlc_no_grad_begin(ctx);
        const int64_t before = activations(ctx);
        mlc_tensor *y = any_of(which, in[0], in[1]);
        const int64_t more = activations(ctx) - before, all = mlc_numel(y) * 4;
        mlc_no_grad_end(ctx);
        if (which == 5 || which == 6) continue;            /* squares of vectors, of the test's   */
        CHECK(more >= all && more <= all + all / 4 + 64);  /* blocks have sizes of their own      */
        y = mlc_sum_all(any_of(which, in[0], in[1]));
        const int64_t held = activations(ctx);
        CHECK_EQ(mlc_backward(y), MLC_OK);
        CHECK(activations(ctx) <= held);
    }
    CHECK_OK(ctx);
}

static mlc_status wide_qr(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_linalg_qr(in[0], NULL);
    return out[0] ? MLC_OK : mlc_error_status(ctx);
}

static mlc_status any_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = any_of(*(const int *)user, in[0], in[1]);
    return out[0] ? MLC_OK : mlc_error_status(ctx);
}

TEST(linalg, pieces_that_run_twice_have_the_same_gradients)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int which = 0; which < N_ANY; which++) {
        mlc_tensor *in[2], *y = NULL, *want;
        any_inputs(ctx, 6, in);
        CHECK_EQ(mlc_backward(mlc_sum_all(any_of(which, in[0], in[1]))), MLC_OK);
        want = mlc_copy(mlc_grad(in[0]));
        any_inputs(ctx, 6, in);
        CHECK_EQ(mlc_recompute(ctx, any_piece, &which, in, 2, &y, 1), MLC_OK);
        CHECK_EQ(mlc_backward(mlc_sum_all(y)), MLC_OK);
        CHECK(same_bits(want, mlc_grad(in[0])));
    }
    CHECK_OK(ctx);
}

/* A gradient that is not there is refused by the first run of a piece. */
TEST(linalg, a_piece_refuses_a_wide_qr_at_once)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 3, -1, 1), *q = NULL;
    CHECK_EQ(mlc_set_requires_grad(a, true), MLC_OK);
    CHECK_EQ(mlc_recompute(ctx, wide_qr, NULL, &a, 1, &q, 1), MLC_ERR_UNSUPPORTED);
    mlc_error_clear(ctx);
}

/* ---- zero pivots, ends of the range, equal singular values ---------------------------------- */

/* PyTorch's signs, of columns that begin with a zero. */
TEST(linalg, signs_of_qr_are_those_of_torch_also_at_a_zero_pivot)
{
    ONLY_ON_HOST();
    static const double a[3][6] = {{0, 1, 1, 0}, {0, 2, 0, 3, 4, 5}, {0, 1, 0, 2, 0, 3}};
    static const double q[3][6] = {{0, -1, -1, 0},
                                   {0, -0.554700196225229, 0, -0.8320502943378436, -1, 0},
                                   {1, 0, 0, -0.5547001962252291, 0, -0.8320502943378436}};
    static const double r[3][4] = {{-1, 0, 0, -1}, {-4, -5, 0, -3.6055512754639896},
                                   {0, 1, 0, -3.6055512754639896}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        const int64_t m = i ? 3 : 2;
        mlc_tensor *right, *left = mlc_linalg_qr(mlc_from(ctx, MLC_F64, mlc_dims2(m, 2), a[i]),
                                                 &right);
        CHECK_VALUES(left, m * 2, q[i], 1e-15, 0);
        CHECK_VALUES(right, 4, r[i], 1e-15, 1e-15);
    }
    CHECK_OK(ctx);
}

/* A pivot below the range of f32 is 0 there. */
TEST(linalg, a_pivot_that_f32_does_not_hold_is_singular)
{
    ONLY_ON_HOST();
    static const float v[4] = {1, 1e-25f, 1e-25f, 0};
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *a = mlc_from(ctx, MLC_F32, mlc_dims2(2, 2), v);
    REFUSED(mlc_linalg_inv(a), MLC_ERR_VALUE, "linalg_inv: column 1 has no pivot");
    CHECK(mlc_linalg_inv(mlc_cast(a, MLC_F64)) != NULL);
    CHECK_OK(ctx);
}

/* Rows and columns down to 1e-300 beside others. */
TEST(linalg, small_parts_neither_stop_rotations_nor_lose_their_norm)
{
    ONLY_ON_HOST();
    static const double sizes[3] = {1e-170, 1e-250, 1e-300};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++)
        for (int64_t n = 6; n < 60; n += 40) {
            mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims2(n, n), 3, -1, 1), *u, *vh, *v, *r;
            mlc_tensor *parts[2] = {mlc_slice(a, 0, 0, n / 2, 1),
                                    mlc_mul_scalar(mlc_slice(a, 0, n / 2, n, 1), sizes[i])};
            mlc_tensor *mixed = mlc_concat(parts, 2, 0);
            mlc_tensor *s = mlc_linalg_svd(mixed, &u, &vh);
            CHECK(residual(mlc_mul(u, s), vh, mixed) < 1e-14 * (double)n);
            CHECK(skewness(u) < 1e-13 && skewness(flip(vh)) < 1e-13);
            s = mlc_linalg_svd(flip(mixed), NULL, NULL);
            mlc_tensor *w = mlc_linalg_eigh(mlc_matmul(mixed, flip(mixed)), &v);
            CHECK(w && skewness(v) < 1e-13);
            mlc_tensor *q = mlc_linalg_qr(flip(mixed), &r);
            CHECK(skewness(q) < 1e-13);
            /* Columns as long as those of a, but smaller. */
            r = mlc_mul_scalar(mlc_slice(r, 1, n / 2, n, 1), 1 / sizes[i]);
            mlc_tensor *rest = mlc_slice(flip(a), 1, n / 2, n, 1);
            CHECK(residual(q, r, rest) < 1e-13 * (double)n);
        }
    CHECK_OK(ctx);
}

TEST(linalg, the_largest_numbers_have_factors)
{
    ONLY_ON_HOST();
    static const double v[4] = {1.7e308, 0, 0, 1.5e308}, f[4] = {3e38, 0, 0, 2e38};
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < 2; d++) {
        mlc_tensor *a = mlc_cast(mlc_from(ctx, MLC_F64, mlc_dims2(2, 2), d ? v : f), FLOATS[d]);
        const double top = d ? v[0] : f[0], one = 8 * EPS[d];
        mlc_tensor *r, *u, *vh, *q = mlc_linalg_qr(a, &r), *s = mlc_linalg_svd(a, &u, &vh), *w;
        CHECK_NEAR(mlc_item(mlc_slice(mlc_slice(r, 0, 0, 1, 1), 1, 0, 1, 1)) / top, 1, one);
        CHECK_NEAR(mlc_item(mlc_slice(s, 0, 0, 1, 1)) / top, 1, one);
        w = mlc_linalg_eigh(a, NULL);
        CHECK_NEAR(mlc_item(mlc_slice(w, 0, 1, 2, 1)) / top, 1, one);
        CHECK(skewness(q) < one && skewness(u) < one && skewness(flip(vh)) < one);
    }
    CHECK_OK(ctx);
}

static mlc_tensor *by_svd(void *user, mlc_tensor *const *in, int32_t n_in)
{
    mlc_tensor *x = mlc_linalg_lstsq(in[0], in[1], *(const double *)user);
    (void)n_in;
    return x ? mlc_mul(x, test_rand(x->ctx, x->dtype, mlc_dims_of(x->ndim, x->shape), 9, -1, 1))
             : NULL;
}

/* Equal values, and values of 0: the gradient is that of the truncated matrix. */
TEST(linalg, least_squares_have_gradients_at_equal_and_zero_singular_values)
{
    ONLY_ON_HOST();
    static const int64_t sizes[3][2] = {{4, 4}, {6, 4}, {4, 6}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 6; i++) {
        const int64_t m = sizes[i % 3][0], n = sizes[i % 3][1], k = i < 3 ? 4 : 2;
        double rcond = 1e-2, s[8];
        mlc_gradcheck_report report;
        mlc_tensor *a = mlc_matmul(orthonormal(ctx, m, k, 5), flip(orthonormal(ctx, n, k, 6)));
        mlc_tensor *in[2] = {mlc_copy(a), test_rand(ctx, MLC_F64, mlc_dims2(m, 2), 8, -1, 1)};
        for (int p = 0; p < 2; p++) CHECK_EQ(mlc_set_requires_grad(in[p], true), MLC_OK);
        CHECK_EQ(mlc_gradcheck(by_svd, &rcond, in, 2, NULL, &report), MLC_OK);
        if (!report.ok) printf("  %d: %g, not %g\n", i, report.analytic, report.numeric);
        CHECK(report.ok);
        /* And by QR of full rank. */
        rcond = -1;
        a = made_of(ctx, m, n, PLAIN, 31, s);
        in[0] = mlc_copy(a);
        CHECK_EQ(mlc_set_requires_grad(in[0], true), MLC_OK);
        CHECK_EQ(mlc_gradcheck(by_svd, &rcond, in, 2, NULL, &report), MLC_OK);
        CHECK(report.ok);
    }
    CHECK_OK(ctx);
}
