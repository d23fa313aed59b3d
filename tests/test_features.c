/* test_features.c -- tests of section IMPL.SKETCH.ATTENTION: attention by random features
 *
 * Against the double loop of the definition, central differences, exact attention (the error falls
 * as 1/sqrt(n)), and in networks: caches, files, clones, recompute, autocast, plans. The kernel
 * features of IMPL.KERNELS.FEATURES, at every level, against loops in f64.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "guarded.h"
#include "watch.h"

/* ---- the matrix ------------------------------------------------------------------------------ */

static mlc_tensor *draw(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int64_t d, uint64_t seed,
                        bool independent)
{
    mlc_features_desc f = mlc_features_desc_make();
    f.n = n;
    f.has_seed = true;
    f.seed = seed;
    f.independent = independent;
    return mlc_cast(mlc_features(ctx, d, &f), dtype);
}

TEST(features, rows_are_orthogonal_in_blocks_and_as_long_as_normal_ones)
{
    enum { N = 40, D = 16 };
    mlc_ctx *ctx = test_ctx();
    float    w[N * D], again[N * D];
    double   squares = 0;
    CHECK_EQ(mlc_read(draw(ctx, MLC_F32, N, D, 3, false), w, sizeof w), MLC_OK);
    CHECK_EQ(mlc_read(draw(ctx, MLC_F32, N, D, 3, false), again, sizeof again), MLC_OK);
    CHECK(memcmp(w, again, sizeof w) == 0);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++) {
            double dot = 0;
            for (int k = 0; k < D; k++)
                dot += (double)w[i * D + k] * (double)w[j * D + k];
            if (i == j)
                squares += dot;
            else if (i / D == j / D)
                CHECK_NEAR(dot, 0, 1e-4);
        }
    }
    /* A chi-squared number of N D degrees: deviation sqrt(2 N D). */
    CHECK_NEAR(squares, N * D, 4 * sqrt(2.0 * N * D));
    CHECK_OK(ctx);
}

/* The mean of f(q) f(k) over draws is e^(q k / sqrt(d)), within 4 deviations of that mean; each row
 * of an orthogonal block is normal by itself. */
TEST(features, kernels_are_unbiased)
{
    enum { DRAWS = 200, N = 32, D = 8 };
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int independent = 0; independent < 2; independent++) {
        double q[D], k[D], sum = 0, squares = 0, dot = 0, half = 0;
        for (int i = 0; i < D; i++) {
            q[i] = 0.6 * sin(1.0 + i);
            k[i] = 0.5 * cos(2.0 * i);
            dot += q[i] * k[i];
            half += (q[i] * q[i] + k[i] * k[i]) / 2;
        }
        for (int r = 0; r < DRAWS; r++) {
            double w[N * D], mean = 0;
            mlc_scope_begin(ctx);
            mlc_read(draw(ctx, MLC_F64, N, D, 100 + (uint64_t)r, independent), w, sizeof w);
            for (int i = 0; i < N; i++) {
                double at = 0;
                for (int j = 0; j < D; j++)
                    at += w[i * D + j] * (q[j] + k[j]);
                mean += exp(at - half) / N;
            }
            sum += mean / DRAWS;
            squares += mean * mean / DRAWS;
            mlc_scope_end(ctx);
        }
        const double deviation = sqrt((squares - sum * sum) / DRAWS);
        CHECK_NEAR(sum, exp(dot), 4 * deviation);
        CHECK(deviation < 0.1 * exp(dot));
    }
    CHECK_OK(ctx);
}

/* ---- the definition -------------------------------------------------------------------------- */

enum { MOST = 1 << 14 };

typedef struct scene {
    int64_t b, h, hk, t, s, d, dv, n;
    bool    causal, mask, lengths;
    mlc_features_kernel kernel;
    mlc_tensor *in[4];
    mlc_attention_desc desc;
} scene;

static void scene_fill(mlc_ctx *ctx, scene *c, mlc_dtype dtype)
{
    const double lengths[3] = {1, (double)c->s, 0};
    double       mask[100];
    c->in[0] = test_rand(ctx, dtype, mlc_dims4(c->b, c->h, c->t, c->d), 1, -1.5, 1.5);
    c->in[1] = test_rand(ctx, dtype, mlc_dims4(c->b, c->hk, c->s, c->d), 2, -1.5, 1.5);
    c->in[2] = test_rand(ctx, dtype, mlc_dims4(c->b, c->hk, c->s, c->dv), 3, -1, 1);
    c->in[3] = draw(ctx, dtype == MLC_F64 ? MLC_F64 : MLC_F32, c->n, c->d, 5, false);
    c->desc = mlc_attention_desc_make();
    c->desc.causal = c->causal;
    for (int64_t i = 0; i < c->s && c->mask; i++)
        mask[i] = i % 3 != 1;
    if (c->mask)
        c->desc.mask = test_tensor(ctx, MLC_BOOL, mlc_dims1(c->s), mask);
    if (c->lengths)
        c->desc.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(c->b), lengths);
}

static double feature(const scene *c, const double *w, const double *x)
{
    const double by = c->kernel ? 1 : 1 / sqrt(sqrt((double)c->d));
    double       at = 0, half = 0;
    for (int64_t j = 0; j < c->d; j++) {
        at += w[j] * x[j] * by;
        half += x[j] * x[j] * by * by / 2;
    }
    return c->kernel ? (at > 0 ? at : 0) / sqrt((double)c->n) + 1e-5 : exp(at - half);
}

static bool sees(const scene *c, int64_t b, int64_t i, int64_t j)
{
    static const int64_t one = 1;
    const int64_t length = b == 0 ? one : b == 1 ? c->s : 0;
    return !(c->causal && j > i + c->s - c->t) && !(c->mask && j % 3 == 1) &&
           !(c->lengths && j >= length);
}

/* Row i of head h of batch b: y [dv]. */
static void row_of(const scene *c, double *const *x, int64_t b, int64_t h, int64_t i, double *y)
{
    const int64_t kv = b * c->hk + h / (c->h / c->hk);
    const double *q = x[0] + ((b * c->h + h) * c->t + i) * c->d;
    double        sum = 0;
    for (int64_t m = 0; m < c->dv; m++)
        y[m] = 0;
    for (int64_t j = 0; j < c->s; j++) {
        double a = 0;
        for (int64_t m = 0; m < c->n && sees(c, b, i, j); m++)
            a += feature(c, x[3] + m * c->d, q) *
                 feature(c, x[3] + m * c->d, x[1] + (kv * c->s + j) * c->d);
        sum += a;
        for (int64_t m = 0; m < c->dv; m++)
            y[m] += a * x[2][(kv * c->s + j) * c->dv + m];
    }
    for (int64_t m = 0; m < c->dv && sum > 0; m++)
        y[m] /= sum;
}

static void check_scene(mlc_ctx *ctx, scene *c, mlc_dtype dtype, double tolerance)
{
    double *x[4], *want = malloc(MOST * sizeof(double)), far = 0;
    scene_fill(ctx, c, dtype);
    mlc_tensor *y = mlc_features_attention(c->in[0], c->in[1], c->in[2], c->in[3], c->kernel,
                                           &c->desc);
    double     *got = malloc(MOST * sizeof(double));
    const size_t n = (size_t)(c->b * c->h * c->t * c->dv);
    for (int i = 0; i < 4; i++) {
        x[i] = malloc(MOST * sizeof(double));
        mlc_tensor *f = mlc_cast(c->in[i], MLC_F64);
        CHECK_EQ(mlc_read(f, x[i], (size_t)mlc_numel(f) * sizeof(double)), MLC_OK);
    }
    CHECK_EQ(mlc_read(mlc_cast(y, MLC_F64), got, n * sizeof(double)), MLC_OK);
    for (int64_t b = 0, r = 0; b < c->b; b++)
        for (int64_t h = 0; h < c->h; h++)
            for (int64_t i = 0; i < c->t; i++, r++)
                row_of(c, x, b, h, i, want + r * c->dv);
    for (size_t i = 0; i < n; i++)
        far = fmax(far, fabs(got[i] - want[i]));
    if (!CHECK(far <= tolerance))
        printf("  t %d, s %d, n %d, causal %d: %g\n", (int)c->t, (int)c->s, (int)c->n, c->causal,
               far);
    for (int i = 0; i < 4; i++)
        free(x[i]);
    free(got);
    free(want);
}

static const scene SCENES[] = {
    {.b = 2, .h = 2, .hk = 2, .t = 5, .s = 7, .d = 3, .dv = 4, .n = 6},
    {.b = 3, .h = 4, .hk = 2, .t = 5, .s = 6, .d = 4, .dv = 2, .n = 9, .lengths = true},
    {.b = 2, .h = 4, .hk = 1, .t = 9, .s = 9, .d = 4, .dv = 2, .n = 9, .causal = true},
    {.b = 1, .h = 2, .hk = 1, .t = 63, .s = 64, .d = 2, .dv = 3, .n = 5, .causal = true},
    {.b = 1, .h = 2, .hk = 2, .t = 128, .s = 128, .d = 2, .dv = 3, .n = 5, .causal = true},
    {.b = 1, .h = 1, .hk = 1, .t = 133, .s = 133, .d = 2, .dv = 1, .n = 1, .causal = true},
    {.b = 1, .h = 3, .hk = 1, .t = 100, .s = 100, .d = 4, .dv = 35, .n = 37, .causal = true,
     .mask = true},
    {.b = 3, .h = 2, .hk = 1, .t = 70, .s = 70, .d = 2, .dv = 3, .n = 5, .causal = true,
     .lengths = true},
    {.b = 2, .h = 2, .hk = 1, .t = 6, .s = 9, .d = 3, .dv = 2, .n = 4, .causal = true,
     .mask = true},
    {.b = 3, .h = 2, .hk = 2, .t = 7, .s = 7, .d = 3, .dv = 2, .n = 8, .causal = true,
     .kernel = MLC_FEATURES_RELU, .lengths = true},
    {.b = 1, .h = 2, .hk = 2, .t = 3, .s = 4, .d = 3, .dv = 2, .n = 8,
     .kernel = MLC_FEATURES_RELU},
};

enum { SCENES_COUNT = sizeof SCENES / sizeof *SCENES };

TEST(features, attention_is_that_of_the_definition)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < SCENES_COUNT; i++) {
            scene c = SCENES[i];
            mlc_scope_begin(ctx);
            check_scene(ctx, &c, MLC_F64, 1e-13);
            check_scene(ctx, &c, MLC_F32, 1e-5);
            check_scene(ctx, &c, MLC_BF16, 0.02);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK_OK(ctx);
    }
}

static mlc_tensor *attention_of(void *user, mlc_tensor *const *in, int32_t n)
{
    const scene *c = (const scene *)user;
    (void)n;
    return mlc_features_attention(in[0], in[1], in[2], c->in[3], c->kernel, &c->desc);
}

TEST(features, gradients_match_central_differences)
{
    for (int i = 0; i < SCENES_COUNT; i++) {
        mlc_ctx *ctx = test_ctx();
        scene    c = SCENES[i];
        mlc_gradcheck_report r;
        memset(&r, 0, sizeof r);
        if (c.t > 64)
            c.t = c.s = 66, c.b = 1, c.h = i % 2 + 1, c.hk = 1, c.dv = c.dv < 5 ? c.dv : 5;
        scene_fill(ctx, &c, MLC_F64);
        for (int k = 0; k < 3; k++)
            mlc_set_requires_grad(c.in[k], true);
        CHECK_EQ(mlc_gradcheck(attention_of, &c, c.in, 3, NULL, &r), MLC_OK);
        if (!CHECK(r.ok && r.input >= 0))
            printf("  scene %d: input %d, element %" PRId64 ": %g, differences say %g\n", i,
                   (int)r.input, r.index, r.analytic, r.numeric);
        CHECK_OK(ctx);
    }
}

TEST(features, no_rows_and_no_keys)
{
    static const int64_t b[] = {0, 1, 1, 1}, t[] = {3, 0, 0, 3}, s[] = {3, 0, 3, 0};
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *w = draw(ctx, MLC_F32, 8, 4, 1, false);
    for (int i = 0; i < 4; i++) {
        mlc_tensor *q = test_rand(ctx, MLC_F32, mlc_dims4(b[i], 2, t[i], 4), 1, -1, 1);
        mlc_tensor *k = test_rand(ctx, MLC_F32, mlc_dims4(b[i], 1, s[i], 4), 2, -1, 1);
        mlc_tensor *y = mlc_features_attention(q, k, k, w, MLC_FEATURES_SOFTMAX, NULL);
        if (CHECK(y) && CHECK_EQ(mlc_numel(y), b[i] * 2 * t[i] * 4) && mlc_numel(y))
            CHECK_NEAR(mlc_item(mlc_sum_all(mlc_abs(y))), 0, 0);
    }
    CHECK_OK(ctx);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

enum { Q, K, V, Y, DY, DQ, DK, DV, W };

/* d: q and k are products of rows of d, which get the gradients; 0: they get them themselves.  */
typedef struct kernel_size { int64_t b, g, t, n, dv; bool shifts; int64_t d; } kernel_size;

static const kernel_size KERNEL_SIZES[] = {
    {1, 1, 1, 1, 1, false, 0},    {2, 1, 3, 2, 5, true, 0},     {1, 2, 64, 33, 16, false, 0},
    {1, 1, 65, 40, 33, true, 0},  {2, 3, 130, 17, 1, false, 0}, {1, 2, 131, 64, 64, true, 0},
    {1, 1, 70, 5, 0, true, 0},    {0, 1, 4, 4, 4, false, 0},    {1, 1, 97, 130, 7, true, 0},
    {1, 2, 33, 20, 6, true, 7},   {2, 1, 65, 33, 16, false, 64}, {1, 1, 40, 3, 5, true, 1},
    {1, 3, 97, 130, 7, true, 35}, {0, 1, 4, 4, 4, true, 4},     {1, 1, 32, 64, 64, true, 32},
};

/* Random arguments: forward alone, or with all gradients. */
static void kernel_args(struct mlc_k_features *a, const kernel_size *s, mlc_dtype dtype)
{
    const int64_t q = s->b * s->g * s->t, k = s->b * s->t;
    const double lo = s->shifts ? -3 : 0.1, hi = s->shifts ? 0 : 1;
    memset(a, 0, sizeof *a);
    a->dtype = dtype;
    a->b = s->b;
    a->g = s->g;
    a->t = s->t;
    a->n = s->n;
    a->dv = s->dv;
    a->d = s->d;
    a->least = 1e-30;
    a->q = guarded_rand(Q, dtype, q * s->n, 1, lo, hi);
    a->k = guarded_rand(K, dtype, k * s->n, 2, lo, hi);
    a->v = guarded_rand(V, dtype, k * s->dv, 3, -1, 1);
    a->y = caged(Y, (size_t)(q * s->dv) * size_of(dtype));
    a->sum = malloc((size_t)q * size_of(dtype) + 1);
    if (!s->shifts)
        return;
    void *shift[2] = {malloc((size_t)q * size_of(dtype) + 1),
                      malloc((size_t)k * size_of(dtype) + 1)};
    for (int64_t i = 0; i < q; i++)
        put(shift[0], dtype, i, test_random(4, i, -0.5, 0.5));
    for (int64_t i = 0; i < k; i++)
        put(shift[1], dtype, i, i % 7 == 3 ? INF : test_random(5, i, -0.5, 0.5));
    a->q_shift = shift[0];
    a->k_shift = shift[1];
    a->k_shift_grad = malloc((size_t)k * size_of(dtype) + 1);
}

/* The same with gradients, to be written or added to what is there: 1. */
static void kernel_grads(struct mlc_k_features *a, bool add)
{
    const int64_t q = a->b * a->g * a->t, k = a->b * a->t;
    const int64_t row = a->d ? a->d : a->n;
    a->dy = guarded_rand(DY, a->dtype, q * a->dv, 6, -1, 1);
    a->w = a->d ? guarded_rand(W, a->dtype, a->n * a->d, 7, -0.5, 0.5) : NULL;
    a->q_grad = caged(DQ, (size_t)(q * row) * size_of(a->dtype));
    a->k_grad = caged(DK, (size_t)(k * row) * size_of(a->dtype));
    a->v_grad = caged(DV, (size_t)(k * a->dv) * size_of(a->dtype));
    a->q_accumulate = a->k_accumulate = a->v_accumulate = a->k_shift_accumulate = add;
    for (int64_t i = 0; i < q * row; i++)
        put(a->q_grad, a->dtype, i, 1);
    for (int64_t i = 0; i < k * row; i++)
        put(a->k_grad, a->dtype, i, 1);
    for (int64_t i = 0; i < k * a->dv; i++)
        put(a->v_grad, a->dtype, i, 1);
    for (int64_t i = 0; i < k && a->k_shift_grad; i++)
        put(a->k_shift_grad, a->dtype, i, 1);
}

static void kernel_free(struct mlc_k_features *a)
{
    free(a->sum);
    free((void *)(uintptr_t)a->q_shift);
    free((void *)(uintptr_t)a->k_shift);
    free(a->k_shift_grad);
}

/* Runs the kernel with a workspace of as many bytes as it asks for. */
static mlc_status kernel_run(const mlc_kernels *k, struct mlc_k_features *a)
{
    a->workspace_bytes = k->features_workspace(NULL, a);
    a->workspace = aligned_alloc(64, a->workspace_bytes / 64 * 64 + 64);
    memset(a->workspace, 0xff, a->workspace_bytes);
    const mlc_status st = k->features(NULL, a);
    free(a->workspace);
    return st;
}

static double kernel_feature(const struct mlc_k_features *a, const void *x, const void *shift,
                             int64_t row, int64_t i)
{
    const double v = get(x, a->dtype, row * a->n + i);
    return shift ? exp(v - get(shift, a->dtype, row)) : v;
}

static double kernel_weight(const struct mlc_k_features *a, int64_t q, int64_t k)
{
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++)
        sum += kernel_feature(a, a->q, a->q_shift, q, i) *
               kernel_feature(a, a->k, a->k_shift, k, i);
    return sum;
}

/* What row q of a head and key k add to gradients: of the weight, and weight / sum. */
typedef struct kernel_pair { double weight, slope; } kernel_pair;

/* y and sum of row q, and its pairs [t], of key row `key` on. */
static void kernel_row(const struct mlc_k_features *a, int64_t q, int64_t key, int64_t rows,
                       double *y, kernel_pair *pair)
{
    double sum = 0, dot = 0;
    for (int64_t m = 0; m < a->dv; m++)
        y[m] = 0;
    for (int64_t j = 0; j < rows; j++) {
        pair[j].weight = kernel_weight(a, q, key + j);
        sum += pair[j].weight;
        for (int64_t m = 0; m < a->dv; m++)
            y[m] += pair[j].weight * get(a->v, a->dtype, (key + j) * a->dv + m);
    }
    const double by = sum > 0 ? 1 / sum : 0;
    for (int64_t m = 0; m < a->dv; m++) {
        y[m] *= by;
        dot += a->dy ? y[m] * get(a->dy, a->dtype, q * a->dv + m) : 0;
    }
    for (int64_t j = 0; j < rows; j++) {
        pair[j].weight *= by;
        pair[j].slope = -dot * by;
        for (int64_t m = 0; m < a->dv && a->dy; m++)
            pair[j].slope += get(a->dy, a->dtype, q * a->dv + m) * by *
                             get(a->v, a->dtype, (key + j) * a->dv + m);
    }
}

static bool kernel_near(const char *what, const void *got, mlc_dtype dtype, const double *want,
                        int64_t n, double base, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(get(got, dtype, i) - base - want[i]) <= tolerance * (1 + fabs(want[i])))) {
            printf("  %s, element %" PRId64 ": %.9g, not %.9g\n", what, i,
                   get(got, dtype, i) - base, want[i]);
            return false;
        }
    return true;
}

/* Are gradients x [rows,n] those of q or k, or times w those of the rows that they are of? */
static bool kernel_near_rows(const char *what, const void *got, const struct mlc_k_features *a,
                             const double *x, int64_t rows, double base, double tolerance)
{
    if (!a->d)
        return kernel_near(what, got, a->dtype, x, rows * a->n, base, tolerance);
    double *want = calloc((size_t)(rows * a->d) + 1, sizeof *want);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < a->n; i++)
            for (int64_t j = 0; j < a->d; j++)
                want[r * a->d + j] += x[r * a->n + i] * get(a->w, a->dtype, i * a->d + j);
    const bool near = kernel_near(what, got, a->dtype, want, rows * a->d, base, tolerance);
    free(want);
    return near;
}

/* All results against loops in f64. */
static void kernel_check(const mlc_kernels *k, const kernel_size *s, mlc_dtype dtype, bool add)
{
    const int64_t rows = s->b * s->g * s->t, keys = s->b * s->t, n = s->n, dv = s->dv;
    const double tolerance = dtype == MLC_F64 ? 1e-13 : 2e-5, base = add;
    double *y = calloc((size_t)(rows * dv) + 1, 8), *dq = calloc((size_t)(rows * n) + 1, 8);
    double *dk = calloc((size_t)(keys * n) + 1, 8), *dv_ = calloc((size_t)(keys * dv) + 1, 8);
    double *dshift = calloc((size_t)keys + 1, 8);
    kernel_pair pair[200];
    struct mlc_k_features a;
    kernel_args(&a, s, dtype);
    CHECK_EQ(kernel_run(k, &a), MLC_OK);
    kernel_grads(&a, add);
    CHECK_EQ(kernel_run(k, &a), MLC_OK);
    CHECK(cage_holds(a.y) && cage_holds(a.q_grad) && cage_holds(a.k_grad) && cage_holds(a.v_grad));
    for (int64_t q = 0; q < rows; q++) {
        const int64_t key = q / s->t / s->g * s->t;
        kernel_row(&a, q, key, q % s->t + 1, y + q * dv, pair);
        for (int64_t j = 0; j <= q % s->t; j++) {
            for (int64_t i = 0; i < n; i++) {
                const double f = kernel_feature(&a, a.q, a.q_shift, q, i);
                const double g = kernel_feature(&a, a.k, a.k_shift, key + j, i);
                dq[q * n + i] += pair[j].slope * g * (s->shifts ? f : 1);
                dk[(key + j) * n + i] += pair[j].slope * f * (s->shifts ? g : 1);
                dshift[key + j] -= pair[j].slope * f * g;
            }
            for (int64_t m = 0; m < dv; m++)
                dv_[(key + j) * dv + m] += pair[j].weight * get(a.dy, dtype, q * dv + m);
        }
    }
    CHECK(kernel_near("y", a.y, dtype, y, rows * dv, 0, tolerance));
    CHECK(kernel_near_rows("dq", a.q_grad, &a, dq, rows, base, tolerance));
    CHECK(kernel_near_rows("dk", a.k_grad, &a, dk, keys, base, tolerance));
    CHECK(kernel_near("dv", a.v_grad, dtype, dv_, keys * dv, base, tolerance));
    if (s->shifts)
        CHECK(kernel_near("dshift", a.k_shift_grad, dtype, dshift, keys, base, 4 * tolerance));
    kernel_free(&a);
    free(y);
    free(dq);
    free(dk);
    free(dv_);
    free(dshift);
}

TEST(features, kernel_is_that_of_the_definition_at_every_level)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (size_t i = 0; k && i < sizeof KERNEL_SIZES / sizeof *KERNEL_SIZES; i++) {
            kernel_check(k, &KERNEL_SIZES[i], MLC_F64, i % 2);
            kernel_check(k, &KERNEL_SIZES[i], MLC_F32, i % 2 == 0);
        }
    }
}

TEST(features, kernel_refuses_what_it_lacks)
{
    const mlc_kernels *k = scalar_row();
    struct mlc_k_features a;
    kernel_args(&a, &KERNEL_SIZES[1], MLC_F32);
    a.dtype = MLC_BF16;
    CHECK_EQ(kernel_run(k, &a), MLC_ERR_UNSUPPORTED);
    a.dtype = MLC_F32;
    a.workspace_bytes = k->features_workspace(NULL, &a) - 1;
    CHECK_EQ(k->features(NULL, &a), MLC_ERR_INTERNAL);
    kernel_free(&a);
}

/* y and the gradients of q, k and v of one step, [3 * 150 * (9 + 4 + 4 + 9)] numbers. */
enum { STEP = 3 * 150 * 26 };
static void step_of(mlc_ctx *ctx, float *to)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_tensor *in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = test_rand(ctx, MLC_F32, mlc_dims4(3, 1, 150, i < 2 ? 4 : 9), 7 + (uint64_t)i, -1,
                          1);
        mlc_set_requires_grad(in[i], true);
    }
    d.causal = true;
    mlc_tensor *y = mlc_features_attention(in[0], in[1], in[2], draw(ctx, MLC_F32, 20, 4, 5, false),
                                           MLC_FEATURES_SOFTMAX, &d);
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_square(y))), MLC_OK);
    mlc_tensor *out[4] = {y, mlc_grad(in[0]), mlc_grad(in[1]), mlc_grad(in[2])};
    for (int i = 0; i < 4; i++) {
        const size_t n = 3 * 150 * (i == 1 || i == 2 ? 4 : 9);
        CHECK_EQ(mlc_read(out[i], to, n * sizeof *to), MLC_OK);
        to += n;
    }
    CHECK_OK(ctx);
}

TEST(features, bits_do_not_depend_on_threads)
{
    static float one[STEP], more[STEP];
    mlc_ctx_desc d = mlc_ctx_desc_make();
    for (int threads = 1; threads <= 3; threads++) {
        d.threads = threads;
        mlc_ctx *ctx = mlc_ctx_create(&d);
        step_of(ctx, threads == 1 ? one : more);
        mlc_ctx_free(ctx);
        if (threads > 1)
            CHECK(memcmp(one, more, sizeof one) == 0);
    }
}

/* A tape that keeps all operations has the one of attention, and the gradients of any tape. */
TEST(features, a_tape_that_keeps_gives_the_same)
{
    static float any[STEP], kept[STEP];
    mlc_ctx *ctx = test_ctx();
    step_of(ctx, any);
    CHECK_EQ(mlc_tape_begin(ctx, true), MLC_OK);
    step_of(ctx, kept);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK(memcmp(any, kept, sizeof any) == 0);
}

#ifndef _WIN32                         /* device.c, which has it, is not built there           */
/* A device without the kernel makes attention of other operations. */
TEST(features, a_device_without_the_kernel_gives_the_same)
{
    static float here[STEP], there[STEP];
    mlc_ctx_desc d = mlc_ctx_desc_make();
    double       far = 0;
    d.device = "no_rnn";
    mlc_ctx *ctx = mlc_ctx_create(&d);
    step_of(ctx, there);
    mlc_ctx_free(ctx);
    step_of(test_ctx(), here);
    for (int i = 0; i < STEP; i++)
        far = fmax(far, fabs((double)here[i] - (double)there[i]));
    CHECK(far <= 1e-5);
}
#endif

/* ---- exact attention ------------------------------------------------------------------------- */

/* |y - exact| / |exact|, root of the mean of squares over draws. */
static double error_of(mlc_ctx *ctx, int64_t n, bool independent)
{
    enum { DRAWS = 12 };
    double sum = 0;
    for (int i = 0; i < DRAWS; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *q = test_rand(ctx, MLC_F64, mlc_dims4(1, 2, 32, 16), 1, -0.8, 0.8);
        mlc_tensor *k = test_rand(ctx, MLC_F64, mlc_dims4(1, 2, 32, 16), 2, -0.8, 0.8);
        mlc_tensor *v = test_rand(ctx, MLC_F64, mlc_dims4(1, 2, 32, 8), 3, -1, 1);
        mlc_tensor *w = draw(ctx, MLC_F64, n, 16, 40 + (uint64_t)i, independent);
        mlc_tensor *want = mlc_attention(q, k, v);
        mlc_tensor *y = mlc_features_attention(q, k, v, w, MLC_FEATURES_SOFTMAX, NULL);
        sum += mlc_item(mlc_sum_all(mlc_square(mlc_sub(y, want)))) /
               mlc_item(mlc_sum_all(mlc_square(want))) / DRAWS;
        mlc_scope_end(ctx);
    }
    return sqrt(sum);
}

/* The slope of log error over log n, by least squares. */
TEST(features, error_falls_as_one_over_the_root_of_their_number)
{
    enum { SIZES = 6 };
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    double   x[SIZES], y[SIZES], mx = 0, my = 0, xy = 0, xx = 0;
    for (int i = 0; i < SIZES; i++) {
        x[i] = log(32 << i);
        y[i] = log(error_of(ctx, 32 << i, false));
        mx += x[i] / SIZES;
        my += y[i] / SIZES;
    }
    for (int i = 0; i < SIZES; i++) {
        xy += (x[i] - mx) * (y[i] - my);
        xx += (x[i] - mx) * (x[i] - mx);
    }
    CHECK_NEAR(xy / xx, -0.5, 0.07);
    CHECK(exp(y[SIZES - 1]) < 0.1);
    CHECK(error_of(ctx, 64, false) < error_of(ctx, 64, true));
    CHECK_OK(ctx);
}

/* ---- networks -------------------------------------------------------------------------------- */

enum { VOCAB = 13, CONTEXT = 160, T = 140 };

static mlc_module *gpt_of(mlc_ctx *ctx, bool install)
{
    mlc_nn_gpt_desc   g = mlc_nn_gpt_desc_make(VOCAB, CONTEXT, 2, 12, 3);
    mlc_features_desc f = mlc_features_desc_make();
    int32_t           n = 0;
    g.positions = MLC_POSITIONS_ROTARY;
    g.layer.dropout = 0;
    mlc_module *net = mlc_nn_gpt(ctx, &g);
    f.n = 10;
    f.has_seed = true;
    f.seed = 7;
    if (install) {
        CHECK_EQ(mlc_features_install(net, &f, &n), MLC_OK);
        CHECK_EQ(n, 2);
    }
    return net;
}

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    mlc_tensor *far = a && b ? mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false) : NULL;
    return far ? mlc_item(far) : 1e9;
}

static mlc_tensor *part(mlc_tensor *x, int64_t from, int64_t to)
{
    return mlc_slice(x, 1, from, to, 1);
}

static void check_cached(mlc_dtype dtype, double tolerance)
{
    static const int64_t steps[] = {70, 1, 1, 65, 3};
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = gpt_of(ctx, true);
    mlc_cache_desc d = mlc_cache_desc_make(2, 1);
    d.has_dtype = true;
    d.dtype = dtype;
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    mlc_cache  *c = mlc_cache_create(net, &d);
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, T), VOCAB, 1), *y = mlc_forward(net, x);
    int64_t     at = 0;
    for (int i = 0; i < 5; at += steps[i++]) {
        const double far = apart(mlc_forward_cached(net, part(x, at, at + steps[i]), c),
                                 part(y, at, at + steps[i]));
        if (!CHECK(far <= tolerance))
            printf("  from %d: %g, %s\n", (int)at, far, mlc_error(ctx));
    }
    CHECK_EQ(mlc_cache_reset(c, 0), MLC_OK);
    CHECK(apart(mlc_forward_cached(net, part(x, 0, 5), c), part(y, 0, 5)) <= tolerance);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(features, a_cache_gives_what_a_whole_forward_gives)
{
    check_cached(MLC_F64, 1e-12);
    check_cached(MLC_F32, 2e-5);
}

/* The second sequence is 4 shorter: it gives what it gives alone; then both change places. */
TEST(features, padding_and_selection)
{
    static const int64_t padding[] = {0, 4}, back[] = {1, 0};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, true);
    const mlc_cache_desc d = mlc_cache_desc_make(2, 1);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_tensor          *x = test_tokens(ctx, mlc_dims2(2, 12), VOCAB, 1);
    mlc_tensor          *one = mlc_slice(x, 0, 1, 2, 1), *all = mlc_forward(net, x), *y, *z;
    mlc_tensor          *want = mlc_forward(net, part(one, 4, 12));
    mlc_tensor          *swap[2] = {one, mlc_slice(x, 0, 0, 1, 1)};
    CHECK_EQ(mlc_cache_padding(c, padding, 2), MLC_OK);
    y = mlc_forward_cached(net, part(x, 0, 8), c);
    CHECK(apart(part(mlc_slice(y, 0, 1, 2, 1), 4, 8), part(want, 0, 4)) < 2e-5);
    CHECK_EQ(mlc_cache_select(c, back, 2), MLC_OK);
    z = mlc_forward_cached(net, part(mlc_concat(swap, 2, 0), 8, 12), c);
    CHECK(apart(mlc_slice(z, 0, 0, 1, 1), part(want, 4, 8)) < 2e-5);
    CHECK(apart(mlc_slice(z, 0, 1, 2, 1), part(mlc_slice(all, 0, 0, 1, 1), 8, 12)) < 2e-5);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* 30 steps of AdamW learn a text by heart, with recompute and autocast, too; files and clones hold
 * the matrices. */
static double train(mlc_module *net, mlc_tensor *x, mlc_tensor *y, int steps, bool cast)
{
    mlc_ctx   *ctx = mlc_module_ctx(net);
    mlc_optim *opt = mlc_adamw(net, 1e-2);
    double     last = 0;
    for (int i = 0; i < steps; i++) {
        mlc_scope_begin(ctx);
        if (cast)
            CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *logits = mlc_reshape(mlc_forward(net, x), mlc_dims2(-1, VOCAB));
        mlc_tensor *loss = mlc_cross_entropy(logits, mlc_reshape(y, mlc_dims1(-1)));
        if (cast)
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        last = mlc_item(loss);
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_optim_free(opt);
    return last;
}

TEST(features, a_language_model_trains)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 70), VOCAB, 1);
    mlc_tensor *in = part(x, 0, 69), *out = part(x, 1, 70);
    mlc_module *net = gpt_of(ctx, true), *again = mlc_module_clone(net);
    mlc_module *cast = mlc_module_clone(net);
    CHECK(apart(mlc_forward(again, in), mlc_forward(net, in)) == 0);
    const double first = train(net, in, out, 3, false);
    CHECK_EQ(mlc_module_recompute(again, 1), MLC_OK);
    CHECK_NEAR(train(again, in, out, 3, false), first, 1e-6);
    const double last = train(net, in, out, 60, false);
    CHECK_NEAR(train(cast, in, out, 63, true), last, 0.1);
    if (!CHECK(last < 0.2))
        printf("  %g to %g\n", first, last);
    CHECK_OK(ctx);
}

TEST(features, files_hold_the_matrices)
{
    mlc_ctx    *ctx = test_ctx();
    box         file = box_open("features.safetensors");
    mlc_module *net = gpt_of(ctx, true), *other = gpt_of(ctx, true), *exact = gpt_of(ctx, false);
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(1, 9), VOCAB, 1);
    CHECK_EQ(mlc_features_redraw(net), MLC_OK);
    CHECK(apart(mlc_forward(net, x), mlc_forward(other, x)) > 1e-4);
    CHECK_EQ(mlc_save(net, file.path), MLC_OK);
    CHECK_EQ(mlc_load(other, file.path), MLC_OK);
    CHECK(apart(mlc_forward(net, x), mlc_forward(other, x)) == 0);
    CHECK_EQ(mlc_save(exact, file.path), MLC_OK);
    const mlc_status st = mlc_load(other, file.path);
    CHECK_ERROR(ctx, st, "features");
    box_close(&file);
}

TEST(features, matrices_stay_f32_in_a_network_of_bf16)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = gpt_of(ctx, true);
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 40), VOCAB, 1), *y;
    int         n = 0;
    mlc_no_grad_begin(ctx);
    y = mlc_forward(net, x);
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
        n += it.tensor->dtype == MLC_F32;
    CHECK_EQ(n, 2);
    CHECK(apart(mlc_cast(mlc_forward(net, x), MLC_F32), y) < 0.1);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* An encoder whose attention, by features, is not causal. */
static mlc_module *encoder_of(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(12, 3);
    mlc_features_desc       f = mlc_features_desc_make();
    d.hidden = 20;
    f.n = 10;
    f.has_seed = true;
    mlc_module *net = mlc_nn_transformer_encoder(ctx, &d, 2);
    CHECK_EQ(mlc_features_install(net, &f, NULL), MLC_OK);
    return net;
}

static mlc_tensor *input_of(mlc_ctx *ctx, bool causal, mlc_dtype dtype, int64_t seed)
{
    return causal ? test_tokens(ctx, mlc_dims2(2, 70), VOCAB, seed)
                  : test_rand(ctx, dtype, mlc_dims3(2, 70, 12), (uint64_t)seed, -1, 1);
}

/* Runs a plan; its output. */
static mlc_tensor *run_plan(mlc_plan *p, mlc_tensor *x)
{
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    return mlc_plan_output(p, 0);
}

/* A plan, and one of its file, have the bits of the forward; with passes one has those of the
 * other. A plan follows matrices that are drawn again, a file has those of its time. */
static void check_plan(bool causal, mlc_dtype dtype)
{
    const box     file = box_open("plan.safetensors");
    mlc_ctx      *ctx = test_ctx();
    mlc_plan_desc d = mlc_plan_desc_make();
    mlc_module   *net = causal ? gpt_of(ctx, true) : encoder_of(ctx);
    mlc_tensor   *x = input_of(ctx, causal, dtype, 1), *z = input_of(ctx, causal, dtype, 2);
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    mlc_eval_begin(net);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < 2; i++) {
        d.passes = i ? MLC_PLAN_ALL : 0;
        mlc_plan *p = mlc_plan_capture(net, &x, 1, &d), *q = NULL;
        CHECK_EQ(mlc_plan_save(p, file.path), MLC_OK);
        CHECK((q = mlc_plan_load(ctx, file.path, &d)) != NULL);
        mlc_tensor *y = mlc_forward(net, x), *of_z = mlc_forward(net, z);
        const double far = i ? dtype == MLC_F32 ? 1e-5 : 0.05 : 0;
        CHECK(apart(run_plan(p, x), y) <= far && apart(run_plan(p, z), of_z) <= far);
        CHECK(apart(run_plan(q, x), run_plan(p, x)) == 0);
        CHECK_EQ(mlc_features_redraw(net), MLC_OK);
        CHECK(apart(run_plan(p, z), mlc_forward(net, z)) <= far);
        CHECK(apart(run_plan(q, z), of_z) <= far);
        CHECK(apart(mlc_forward(net, z), of_z) > 0);
        mlc_plan_free(p);
        mlc_plan_free(q);
    }
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
    box_close(&file);
}

TEST(features, plans_and_their_files_have_the_bits_of_the_forward)
{
    ONLY_ON_HOST();
    for (int causal = 0; causal < 2; causal++) {
        check_plan(causal, MLC_F32);
        check_plan(causal, MLC_BF16);
    }
}

/* Linear layers of integers: a plan has the bits of the forward, a file of plans has no form. */
TEST(features, plans_of_integers)
{
    ONLY_ON_HOST();
    static const mlc_quant_mode modes[] = {MLC_QUANT_DYNAMIC, MLC_QUANT_WEIGHTS};
    const char *const           keep = "embed*";
    const box                   file = box_open("plan.safetensors");
    mlc_plan_desc               d = mlc_plan_desc_make();
    d.passes = 0;
    for (int i = 0; i < 4; i++) {
        mlc_ctx          *ctx = test_ctx();
        mlc_quantize_desc q = mlc_quantize_desc_make(modes[i / 2]);
        mlc_module       *net = i % 2 ? gpt_of(ctx, true) : encoder_of(ctx);
        mlc_tensor       *x = input_of(ctx, i % 2, MLC_F32, 1), *other = NULL;
        q.keep = &keep;
        q.n_keep = i % 2;              /* embeddings of integers cannot be in a plan */
        q.group = 0;
        mlc_no_grad_begin(ctx);
        mlc_eval_begin(net);
        other = mlc_forward(net, x);
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        mlc_plan *p = mlc_plan_capture(net, &x, 1, &d);
        mlc_tensor *y = mlc_forward(net, x);
        CHECK(apart(y, other) > 0 && apart(y, other) < 0.2);
        CHECK(apart(run_plan(p, x), y) == 0);
        const mlc_status st = mlc_plan_save(p, file.path);
        CHECK_ERROR(ctx, st, "'quant_linear' of layers.0.self_attn has no form in a file");
        mlc_plan_free(p);
        mlc_no_grad_end(ctx);
    }
    box_close(&file);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void check_refused(mlc_ctx *ctx, const void *made, const char *part)
{
    CHECK(!made);
    CHECK_HAS(mlc_error(ctx), part);
    mlc_error_clear(ctx);
}

TEST(features, errors)
{
    mlc_ctx           *ctx = test_ctx();
    mlc_features_desc  f = mlc_features_desc_make();
    mlc_attention_desc a = mlc_attention_desc_make(), masked = a;
    mlc_tensor *q = test_rand(ctx, MLC_F32, mlc_dims4(1, 2, 3, 4), 1, -1, 1);
    mlc_tensor *w = draw(ctx, MLC_F32, 8, 4, 1, false), *far = draw(ctx, MLC_F32, 8, 5, 1, false);
    f.n = 0;
    a.window = 2;
    masked.mask = q;
    check_refused(ctx, mlc_features(ctx, 4, &f), "0 features of rows of 4");
    check_refused(ctx, mlc_features_attention(q, q, q, far, MLC_FEATURES_SOFTMAX, NULL),
                  "w [8,5]");
    check_refused(ctx, mlc_features_attention(q, q, q, w, MLC_FEATURES_SOFTMAX, &a), "a window");
    check_refused(ctx, mlc_features_attention(q, q, q, w, MLC_FEATURES_SOFTMAX, &masked),
                  "the mask is f32");
    masked.causal = true;              /* one that would make a result of two sequences          */
    masked.mask = mlc_zeros(ctx, MLC_BOOL, mlc_dims4(2, 1, 1, 3));
    check_refused(ctx, mlc_features_attention(q, q, q, w, MLC_FEATURES_SOFTMAX, &masked),
                  "the mask is bool [2,1,1,3]; it must be bool and the same for all rows and "
                  "heads, [b,1,1,s] [1,1,1,3]");
    check_refused(ctx, mlc_features_attention(q, q, q, w, MLC_FEATURES_COUNT, NULL), "kernel 2");
}

/* A network of two layers after an install that each allocation fails in: its parameters, values
 * and layout are those of before, and the next install succeeds. */
TEST(features, an_install_without_memory_changes_nothing)
{
    for (int64_t n = 1; n < 1000; n++) {
        tally              m;
        const mlc_ctx_desc d = tally_desc(&m);
        mlc_ctx           *ctx = mlc_ctx_create(&d);
        mlc_module        *net = gpt_of(ctx, false);
        mlc_features_desc  f = mlc_features_desc_make();
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(1, 9), VOCAB, 1);
        mlc_eval_begin(net);
        mlc_tensor   *y = mlc_forward(net, x);
        const int64_t numbers = mlc_module_numel(net, false);
        m.calls = 0;
        m.fail_at = n;
        f.has_seed = true;
        mlc_status st = mlc_features_install(net, &f, NULL);
        const bool hit = m.calls >= n;
        m.fail_at = 0;
        if (hit && st != MLC_OK) {
            CHECK_STATUS(ctx, MLC_ERR_NOMEM);
            int64_t buffers = 0;
            for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
                buffers += strstr(it.name, "features") != NULL;
            CHECK(buffers == 0 && mlc_module_numel(net, false) == numbers);
            CHECK(apart(y, mlc_forward(net, x)) == 0);
            st = mlc_features_install(net, &f, NULL);
        }
        CHECK_EQ(st, MLC_OK);
        CHECK(apart(y, mlc_forward(net, x)) > 0);
        mlc_scope_end(ctx);
        tally_done(&m, ctx);
        if (!hit) return;
    }
    CHECK(!"allocations come to an end");
}

/* Sums of all threads have fewer than 2^64 bytes. */
TEST(features, sums_that_are_too_large)
{
    ONLY_ON_HOST();
    mlc_ctx           *ctx = test_ctx();
    mlc_attention_desc a = mlc_attention_desc_make();
    mlc_tensor *q = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 1, 1, 1));
    mlc_tensor *v = mlc_zeros(ctx, MLC_F32, mlc_dims4(1, 1, 1, 1 << 23));
    mlc_tensor *w = mlc_zeros(ctx, MLC_F32, mlc_dims2(1 << 23, 1));
    a.causal = true;
    check_refused(ctx, mlc_features_attention(q, q, v, w, MLC_FEATURES_RELU, &a),
                  "sums of 8388608 features times 8388608 values are too large");
}

/* Attention whose memory for structs ends at each of its tensors in turn is an error. */
TEST(features, attention_without_memory_is_an_error)
{
    ONLY_ON_HOST();
    for (int32_t kernel = 0; kernel < MLC_FEATURES_COUNT; kernel++) {
        int failed = 0;
        for (int n = 0; n < 240; n++) {
            tally               m;
            const mlc_ctx_desc  d = tally_desc(&m);
            mlc_ctx            *ctx = mlc_ctx_create(&d);
            mlc_attention_desc  a = mlc_attention_desc_make();
            a.causal = n % 2 == 0;
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(1, 2, 3, 4), 1, -1, 1);
            mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 2, -1, 1), *y;
            for (int i = 0; i < n / 2; i++)
                CHECK(mlc_detach(w) != NULL);
            for (int64_t at = 1; at == 1 || m.calls >= m.fail_at; at++) {
                m.calls = 0;
                m.fail_at = at;
                y = mlc_features_attention(x, x, x, w, (mlc_features_kernel)kernel, &a);
                failed += y == NULL;
                CHECK_STATUS(ctx, y ? MLC_OK : MLC_ERR_NOMEM);
            }
            m.fail_at = 0;
            tally_done(&m, ctx);
        }
        CHECK(failed >= 240);
    }
}

TEST(features, networks_that_cannot_have_them)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = gpt_of(ctx, false), *linear = mlc_nn_linear(ctx, 2, 2);
    mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(VOCAB, CONTEXT, 1, 12, 3);
    mlc_cache_desc  d = mlc_cache_desc_make(1, 8);
    mlc_cache      *c = mlc_cache_create(net, &d);
    mlc_status      st = mlc_features_install(linear, NULL, NULL);
    CHECK_ERROR(ctx, st, "no attention module");
    st = mlc_features_redraw(net);
    CHECK_ERROR(ctx, st, "mlc_features_install");
    CHECK_EQ(mlc_features_install(net, NULL, NULL), MLC_OK);
    st = mlc_features_install(net, NULL, NULL);
    CHECK_ERROR(ctx, st, "has features already");
    CHECK(!mlc_forward_cached(net, test_tokens(ctx, mlc_dims2(1, 3), VOCAB, 1), c));
    CHECK_ERROR(ctx, MLC_ERR_STATE, "before mlc_features_install");
    mlc_cache_free(c);
    g.positions = MLC_POSITIONS_ALIBI;
    st = mlc_features_install(mlc_nn_gpt(ctx, &g), NULL, NULL);
    CHECK_ERROR(ctx, st, "ALiBi");
}
