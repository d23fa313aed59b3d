/* test_xent.c -- CUDA.XENT: cross-entropy and its gradient against the formulas in f64 */
#include "kernels.h"

enum { ROWS = 9, WIDTH = 3001, PAD = 3 };

typedef struct job {
    mlc_dtype     dtype, wide;
    int64_t       n, c;
    bool          weight, accumulate, normal, in_place;
    double        smoothing;
    mlc_reduction reduction;
} job;

static double g_x[ROWS * (WIDTH + PAD)], g_w[WIDTH], g_loss[ROWS], g_dx[ROWS * WIDTH];
static char   g_bytes[ROWS * (WIDTH + PAD) * 8], g_more[ROWS * (WIDTH + PAD) * 8];
static int64_t g_label[ROWS];

/* Row r; returns its weight. Label 3 is ignored. */
static double reference_row(const job *j, int64_t r, double dy, double norm)
{
    const double *x = g_x + r * (j->c + PAD), share = j->smoothing / (double)j->c;
    const double  w = g_label[r] == 3 ? 0 : j->weight ? g_w[g_label[r]] : 1;
    double        max = -INF, sum = 0, all = 0, total = 0, log_sum;
    for (int64_t i = 0; i < j->c; i++) max = fmax(max, x[i]);
    for (int64_t i = 0; i < j->c; i++) sum += exp(x[i] - max);
    log_sum = j->normal ? 0 : log(sum) + max;
    for (int64_t i = 0; i < j->c; i++) {
        const double wi = j->weight ? g_w[i] : 1;
        all += wi * (log_sum - x[i]);
        total += wi;
    }
    g_loss[r] = w == 0 ? 0 : (1 - j->smoothing) * w * (log_sum - x[g_label[r]]) + share * all;
    for (int64_t i = 0; i < j->c; i++) {
        const double p = j->normal ? 0 : exp(x[i] - log_sum), wi = j->weight ? g_w[i] : 1;
        const double mass = (1 - j->smoothing) * w + share * total;
        g_dx[r * j->c + i] = w == 0 ? 0 : dy / norm * (mass * p - share * wi -
                             (i == g_label[r] ? (1 - j->smoothing) * w : 0));
    }
    return w;
}

static void make(const job *j)
{
    for (int64_t r = 0; r < j->n; r++) g_label[r] = (r * 7919 + 2) % j->c;
    if (j->c > 3 && j->n > 2) g_label[1] = 3;
    for (int64_t i = 0; i < j->n * (j->c + PAD); i++) {
        test_put(g_bytes, j->dtype, i, test_random(5, i, -6, 6));
        g_x[i] = test_get(g_bytes, j->dtype, i);
    }
    for (int64_t i = 0; i < j->c; i++) {
        test_put(g_more, j->wide, i, test_random(6, i, 0.5, 2));
        g_w[i] = test_get(g_more, j->wide, i);
    }
}

static void near_all(const void *got, mlc_dtype dtype, int64_t n, const double *want, double tol)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += !(fabs(test_get(got, dtype, i) - want[i]) <= tol * (1 + fabs(want[i])));
    CHECK_EQ(bad, 0);
}

static void forward(unit *t, const job *j, struct mlc_k_xent *a)
{
    static const int64_t none[4] = {0};
    const size_t size = mlc_dtype_bytes(j->wide);
    memset(a, 0, sizeof *a);
    a->dtype = j->dtype, a->normal = j->normal, a->reduction = j->reduction;
    a->n = j->n, a->c = j->c, a->row = j->c + PAD;
    a->logits = unit_lend_at(t, g_bytes, (size_t)(j->n * a->row) * mlc_dtype_bytes(j->dtype),
                            mlc_dtype_bytes(j->dtype) * 2);
    a->labels = (int64_t *)unit_lend(t, g_label, (size_t)j->n * 8);
    a->label_stride = 1;
    a->weight = j->weight ? unit_lend(t, g_more, (size_t)j->c * size) : NULL;
    a->smoothing = j->smoothing, a->ignore = 3, a->has_ignore = 1;
    a->loss = unit_room(t, (size_t)(j->n + 1) * size);
    a->lse = unit_room(t, (size_t)(2 * j->n + 1) * size);
    a->norm = unit_room(t, size);
    a->kind = 257;
    a->error = (int64_t *)unit_lend(t, none, sizeof none);
    a->workspace_bytes = t->b.kernels.xent_workspace(t->dev, a);
    a->workspace = unit_room(t, a->workspace_bytes);
    CHECK_EQ(t->b.kernels.xent(t->dev, a), MLC_OK);
}

static void backward(unit *t, const job *j, const struct mlc_k_xent *f, double tol)
{
    struct mlc_k_xent_grad a;
    const size_t size = mlc_dtype_bytes(j->dtype);
    const int64_t row = j->c + PAD + (j->in_place ? 0 : 1);
    char   dy[8], *dx = g_more;
    double worst = 0;
    memset(&a, 0, sizeof a);
    test_put(dy, j->wide, 0, 0.5);
    a.dtype = j->dtype, a.accumulate = j->accumulate, a.normal = j->normal;
    a.n = j->n, a.c = j->c, a.logits = f->logits, a.row = f->row;
    a.labels = f->labels, a.label_stride = 1, a.weight = f->weight, a.smoothing = j->smoothing;
    a.ignore = 3, a.has_ignore = 1, a.lse = f->lse, a.norm = f->norm;
    a.dy = unit_lend(t, dy, mlc_dtype_bytes(j->wide));
    for (int64_t i = 0; i < j->n * row; i++) test_put(dx, j->dtype, i, 0.25);
    a.dx = j->in_place ? (void *)(uintptr_t)f->logits
                       : unit_lend(t, dx, (size_t)(j->n * row) * size);
    a.dx_row = row;
    CHECK_EQ(t->b.kernels.xent_grad(t->dev, &a), MLC_OK);
    unit_fetch(t, dx, a.dx, (size_t)(j->n * row) * size);
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t i = 0; i < row; i++) {
            const double got = test_get(dx, j->dtype, r * row + i);
            const double old = j->accumulate || i >= j->c ? 0.25 : 0;
            if (i >= j->c && j->in_place) continue;
            worst = fmax(worst, fabs(got - old - (i < j->c ? g_dx[r * j->c + i] : 0)));
        }
    CHECK_NEAR(worst, 0, tol);
}

static void run(unit *t, const job *j)
{
    struct mlc_k_xent f;
    double sum = 0, norm = 0, got[2];
    const bool   low = j->dtype != j->wide;
    const double tol = j->dtype == MLC_F64 ? 1e-12 : 4e-6;
    make(j);
    forward(t, j, &f);
    for (int64_t r = 0; r < j->n; r++) {
        norm += reference_row(j, r, 0.5, 1);
        sum += g_loss[r];
    }
    if (j->reduction != MLC_REDUCTION_MEAN) norm = 1;
    for (int64_t i = 0; i < j->n * j->c; i++) g_dx[i] /= norm;
    if (j->reduction != MLC_REDUCTION_NONE) g_loss[0] = sum / norm;
    unit_fetch(t, g_more, f.loss, (size_t)(j->n + 1) * mlc_dtype_bytes(j->wide));
    near_all(g_more, j->wide, j->reduction == MLC_REDUCTION_NONE ? j->n : 1, g_loss, tol);
    unit_fetch(t, got, f.norm, mlc_dtype_bytes(j->wide));
    CHECK_NEAR(test_get(got, j->wide, 0), norm, 1e-6 * norm);
    backward(t, j, &f, low ? 6e-3 : tol);
    unit_return(t);
}

TEST(cuda, cross_entropy_is_its_formula_in_every_dtype_width_and_form)
{
    static const int64_t widths[] = {1, 5, 33, 1000, 1025, WIDTH};
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    unit t = unit_open();
    for (int w = 0; w < 6; w++)
        for (int form = 0; form < 10; form++) {
            job j = {dtypes[(w + form) % 4], MLC_F32, w < 3 ? ROWS : 3, widths[w], form & 1,
                     (form & 2) && form < 8, form == 4, form >= 8, form % 3 == 2 ? 0.1 : 0,
                     (mlc_reduction)((form + w) % 3)};
            if (j.dtype == MLC_F64) j.wide = MLC_F64;
            run(&t, &j);
        }
    unit_close(&t);
}

/* Rows of a warp and of a block: a NaN, +inf, nothing but -inf, some -inf. */
TEST(cuda, cross_entropy_of_rows_with_nan_and_infinities_ends_as_on_the_cpu)
{
    static const int64_t widths[] = {6, 1400};
    unit t = unit_open();
    for (int w = 0; w < 2; w++) {
        struct mlc_k_xent f;
        job j = {MLC_F32, MLC_F32, 4, widths[w], false, false, false, false, 0,
                 MLC_REDUCTION_NONE};
        float lse[8], loss[4];
        make(&j);
        g_label[0] = g_label[1] = g_label[2] = g_label[3] = 0;
        for (int64_t i = 0; i < j.c; i++) {
            test_put(g_bytes, MLC_F32, 2 * (j.c + PAD) + i, -INF);
            if (i % 2) test_put(g_bytes, MLC_F32, 3 * (j.c + PAD) + i, -INF);
            else test_put(g_bytes, MLC_F32, 3 * (j.c + PAD) + i, 1e30);
        }
        test_put(g_bytes, MLC_F32, 4, NO_NUMBER);
        test_put(g_bytes, MLC_F32, j.c + PAD + 5, INF);
        forward(&t, &j, &f);
        unit_fetch(&t, lse, f.lse, sizeof lse);
        unit_fetch(&t, loss, f.loss, sizeof loss);
        for (int r = 0; r < 3; r++) {
            CHECK(lse[r] == 0);
            CHECK(isnan(lse[4 + r]));
            CHECK(isnan(loss[r]));
        }
        CHECK_NEAR(lse[3], 1e30f, 0);
        CHECK_NEAR(loss[3], log((double)(j.c / 2)), 1e-5);
        unit_return(&t);
    }
    unit_close(&t);
}

TEST(cuda, the_lowest_row_with_a_wrong_label_is_the_error)
{
    unit t = unit_open();
    for (int64_t c = 7; c < 3000; c += 1500) {
        struct mlc_k_xent f;
        job j = {MLC_F32, MLC_F32, ROWS, c, false, false, false, false, 0, MLC_REDUCTION_MEAN};
        int64_t word[4];
        make(&j);
        g_label[4] = c, g_label[6] = -1, g_label[8] = INT64_MIN;
        forward(&t, &j, &f);
        unit_fetch(&t, word, f.error, sizeof word);
        CHECK(word[0] == 257 && word[1] == 4 && word[2] == c && word[3] == c);
        f.kind = 513;                  /* the first error stands */
        CHECK_EQ(t.b.kernels.xent(t.dev, &f), MLC_OK);
        unit_fetch(&t, word, f.error, sizeof word);
        CHECK_EQ(word[0], 257);
        unit_return(&t);
    }
    unit_close(&t);
}
