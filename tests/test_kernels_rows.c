/* test_kernels_rows.c -- kernels of rows: cross-entropy, softmax, norms, on every ISA level */
#define _DEFAULT_SOURCE
#include "guarded.h"

/* ---- cross-entropy ------------------------------------------------------------------------ */

typedef struct entropy {
    struct mlc_k_xent      f;
    struct mlc_k_xent_grad b;
    int64_t                error[4];
} entropy;

/* Logits with padded rows; labels walk over the classes, label 1 is ignored if asked.         */
static bool xent_run(const mlc_kernels *k, entropy *e, mlc_dtype dtype, int64_t n, int64_t c,
                     mlc_reduction reduction, double smoothing, bool ignore)
{
    const int64_t row = c + 2;
    int64_t      *labels = (int64_t *)guarded(3, (size_t)n * 8);
    memset(e, 0, sizeof *e);
    for (int64_t i = 0; i < n; i++)
        labels[i] = i * 5 % c;
    e->f.dtype = e->b.dtype = dtype;
    e->f.reduction = reduction;
    e->f.n = e->b.n = n;
    e->f.c = e->b.c = c;
    e->f.row = e->b.row = row;
    e->f.logits = e->b.logits = guarded_rand(0, dtype, n * row - 2, 31, -6, 6);
    e->f.labels = e->b.labels = labels;
    e->f.label_stride = e->b.label_stride = 1;
    e->f.smoothing = e->b.smoothing = smoothing;
    e->f.ignore = e->b.ignore = 1;
    e->f.has_ignore = e->b.has_ignore = ignore;
    e->f.loss = guarded(1, (3 * (size_t)n + 1) * size_of(dtype));
    e->f.lse = (char *)e->f.loss + (size_t)n * size_of(dtype);
    e->f.norm = (char *)e->f.loss + 3 * (size_t)n * size_of(dtype);
    e->f.kind = MLC_K_ERROR_LABEL;
    e->f.error = e->error;
    e->f.workspace_bytes = k->xent_workspace ? k->xent_workspace(NULL, &e->f) : 0;
    e->f.workspace = guarded(5, e->f.workspace_bytes);
    e->b.lse = e->f.lse;
    e->b.norm = e->f.norm;
    e->b.dy = guarded_rand(4, dtype, reduction == MLC_REDUCTION_NONE ? n : 1, 33, 0.5, 2);
    e->b.dy_stride = reduction == MLC_REDUCTION_NONE ? 1 : 0;
    e->b.dx = guarded_rand(2, dtype, n * c, 32, -1, 1);
    e->b.dx_row = c;
    return k->xent(NULL, &e->f) == MLC_OK && e->error[0] == 0 &&
           k->xent_grad(NULL, &e->b) == MLC_OK;
}

/* Loss of row i, and its gradient in want[c] without dy and norm.                             */
static double xent_row(const entropy *e, int64_t i, double *want)
{
    const struct mlc_k_xent *f = &e->f;
    double sum = 0, mean = 0, lse;
    for (int64_t j = 0; j < f->c; j++) {
        sum += exp(get(f->logits, f->dtype, i * f->row + j));
        mean += get(f->logits, f->dtype, i * f->row + j) / (double)f->c;
    }
    lse = log(sum);
    for (int64_t j = 0; j < f->c; j++)
        want[j] = exp(get(f->logits, f->dtype, i * f->row + j) - lse) -
                  (j == f->labels[i] ? 1 - f->smoothing : 0) - f->smoothing / (double)f->c;
    return (1 - f->smoothing) * (lse - get(f->logits, f->dtype, i * f->row + f->labels[i])) +
           f->smoothing * (lse - mean);
}

static bool xent_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t n, int64_t c, int turn)
{
    const mlc_reduction reduction = (mlc_reduction)(turn % 3);
    const double tol = dtype == MLC_F32 ? 2e-6 : 1e-13;
    double  rows[128], grad[128], total = 0, counted = 0, norm;
    entropy e;
    bool    good = xent_run(k, &e, dtype, n, c, reduction, turn % 2 ? 0.1 : 0, turn % 4 == 3);
    for (int64_t i = 0; i < n; i++) {
        bool counts = !(e.f.has_ignore && e.f.labels[i] == e.f.ignore);
        rows[i] = counts ? xent_row(&e, i, grad) : 0;
        counted += counts;
        total += rows[i];
    }
    norm = reduction == MLC_REDUCTION_MEAN ? counted : 1;
    for (int64_t i = 0; good && i < n; i++) {
        double dy = get(e.b.dy, dtype, i * e.b.dy_stride);
        bool   counts = !(e.f.has_ignore && e.f.labels[i] == e.f.ignore);
        xent_row(&e, i, grad);
        for (int64_t j = 0; good && j < c && norm > 0; j++)
            good = fabs(get(e.b.dx, dtype, i * c + j) - (counts ? dy * grad[j] / norm : 0)) <= tol;
        if (good && reduction == MLC_REDUCTION_NONE)
            good = fabs(get(e.f.loss, dtype, i) - rows[i]) <= 10 * tol;
    }
    if (good && reduction != MLC_REDUCTION_NONE && norm > 0)
        good = fabs(get(e.f.loss, dtype, 0) - total / norm) <= 10 * tol * (1 + total / norm);
    if (!good)
        printf("  xent %s n %" PRId64 " c %" PRId64 " turn %d\n", mlc_dtype_name(dtype), n, c,
               turn);
    return good;
}

TEST(backend, cross_entropy_kernels_agree_with_double)
{
    static const int64_t classes[] = {1, 2, 3, 10, 16, 17, 33, 100, 127};
    FOR_EACH_LEVEL(isa) {
        int turn = 0;
        for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
            for (int64_t n = 1; n <= 70; n += 3, turn++) {
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                if (!CHECK(xent_agrees(k, MLC_F32, n, classes[c], turn)) ||
                    !CHECK(xent_agrees(k, MLC_F64, n, classes[c], turn)))
                    return;
            }
    }
}

enum { ENTROPY_ROWS = 7, ENTROPY_MOST = 7 * 4099 };

typedef struct entropy_case {          /* of ENTROPY_ROWS rows                                 */
    int64_t       c;
    mlc_reduction reduction;
    double        smoothing;
    bool          weighted, normal, ignores, accumulate, in_place;
} entropy_case;

typedef struct entropy_got {           /* dtype is of logits and dx                            */
    mlc_dtype dtype;
    double    rest[3 * ENTROPY_ROWS + 1];                  /* loss, lse and norm               */
    char      dx[ENTROPY_MOST * 8];
} entropy_got;

/* n values that are exact in `as`, of this dtype.                                             */
static void *entropy_values(int role, mlc_dtype dtype, mlc_dtype as, int64_t n, uint64_t seed)
{
    void *p = guarded(role, (size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++) {
        double v = 0;
        put(&v, as, 0, test_random(seed, i, -6, 6));
        put(p, dtype, i, get(&v, as, 0));
    }
    return p;
}

/* The rows in `dtype`, of logits and old gradients that are exact in `as`.                    */
static bool entropy_made(const mlc_kernels *k, const entropy_case *e, mlc_dtype dtype,
                         mlc_dtype as, entropy_got *got)
{
    const mlc_dtype        wide = dtype == MLC_F64 ? MLC_F64 : MLC_F32;
    const int64_t          n = ENTROPY_ROWS, count = n * e->c;
    struct mlc_k_xent      f;
    struct mlc_k_xent_grad b;
    int64_t                labels[ENTROPY_ROWS], error[4] = {0};
    memset(&f, 0, sizeof f);
    memset(&b, 0, sizeof b);
    memset(got, 0, sizeof *got);
    got->dtype = dtype;
    for (int64_t i = 0; i < n; i++)
        labels[i] = i == 1 ? 0 : (i * 1031 + 3) % e->c;
    f.dtype = b.dtype = dtype;
    f.reduction = e->reduction;
    f.normal = b.normal = e->normal;
    f.n = b.n = n, f.c = b.c = f.row = b.row = b.dx_row = e->c;
    f.logits = b.logits = entropy_values(0, dtype, as, count, 31);
    f.labels = b.labels = labels, f.label_stride = b.label_stride = 1;
    f.weight = b.weight = e->weighted ? guarded_rand(1, wide, e->c, 7, 0.5, 2) : NULL;
    f.smoothing = b.smoothing = e->smoothing;
    f.has_ignore = b.has_ignore = e->ignores;
    f.loss = got->rest, f.lse = got->rest + n, f.norm = got->rest + 3 * n;
    f.kind = MLC_K_ERROR_LABEL, f.error = error;
    f.workspace_bytes = k->xent_workspace(NULL, &f);
    f.workspace = guarded(5, f.workspace_bytes);
    b.lse = f.lse, b.norm = f.norm;
    b.dy = guarded_rand(4, wide, n, 33, 0.5, 2);
    b.dy_stride = e->reduction == MLC_REDUCTION_NONE;
    b.accumulate = e->accumulate;
    b.dx = entropy_values(2, dtype, as, count, 34);
    if (e->in_place)
        b.dx = (void *)(uintptr_t)f.logits;
    const bool made = k->xent(NULL, &f) == MLC_OK && error[0] == 0 &&
                      k->xent_grad(NULL, &b) == MLC_OK;
    memcpy(got->dx, b.dx, (size_t)count * size_of(dtype));
    return made;
}

/* Bits of a case of 28 turns.                                                                 */
static entropy_case entropy_turn(int64_t c, int turn)
{
    const entropy_case e = {c, (mlc_reduction)(turn % 3), turn % 2 == 1 ? 0.1 : 0,
                            turn / 2 % 2 == 1, turn % 7 == 6, turn % 5 == 4, turn / 4 % 2 == 1,
                            false};
    return e;
}

static const int64_t ENTROPY_CLASSES[] = {1, 2, 33, 127, 128, 129, 300, 4099};
#define ENTROPY_SIZES ((int)(sizeof ENTROPY_CLASSES / sizeof *ENTROPY_CLASSES))

TEST(backend, cross_entropy_of_16_bits_is_that_of_f32_with_its_gradient_rounded_once)
{
    static entropy_got want, got;
    FOR_EACH_LEVEL(isa)
        for (int i = 0; i < 2 * 28 * ENTROPY_SIZES; i += (int)test_stride(3)) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            const mlc_dtype    low = i % 2 ? MLC_F16 : MLC_BF16;
            entropy_case       e = entropy_turn(ENTROPY_CLASSES[i / 2 % ENTROPY_SIZES],
                                                i / 2 / ENTROPY_SIZES);
            const float        adds = e.accumulate ? 1 : 0;
            bool held = entropy_made(k, &e, low, low, &got);
            e.accumulate = false;
            held = held && entropy_made(k, &e, MLC_F32, low, &want) &&
                   memcmp(got.rest, want.rest, sizeof want.rest) == 0;
            const float *old = (const float *)entropy_values(2, MLC_F32, low, ENTROPY_ROWS * e.c,
                                                             34);
            for (int64_t x = 0; held && x < ENTROPY_ROWS * e.c; x++) {
                double once = 0;
                put(&once, low, 0, (double)((float)get(want.dx, MLC_F32, x) + adds * old[x]));
                held = memcmp(&once, got.dx + 2 * x, 2) == 0;
            }
            if (!CHECK(held)) {
                printf("  xent %s, turn %d\n", mlc_dtype_name(low), i);
                return;
            }
        }
}

TEST(backend, the_gradient_of_cross_entropy_may_take_the_place_of_the_logits)
{
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static entropy_got     want, got;
    FOR_EACH_LEVEL(isa)
        for (int i = 0; i < 4 * 28 * ENTROPY_SIZES; i += (int)test_stride(3)) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            entropy_case       e = entropy_turn(ENTROPY_CLASSES[i / 4 % ENTROPY_SIZES],
                                                i / 4 / ENTROPY_SIZES);
            e.accumulate = false;
            bool held = entropy_made(k, &e, floats[i % 4], floats[i % 4], &want);
            e.in_place = true;
            held = held && entropy_made(k, &e, floats[i % 4], floats[i % 4], &got);
            if (!CHECK(held && memcmp(&got, &want, sizeof got) == 0)) {
                printf("  xent %s, turn %d\n", mlc_dtype_name(floats[i % 4]), i);
                return;
            }
        }
}

TEST(backend, a_label_out_of_range_sets_the_error_word_of_the_lowest_row)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        int64_t           *labels;
        entropy            e;
        CHECK(xent_run(k, &e, MLC_F32, 9, 4, MLC_REDUCTION_MEAN, 0, false));
        labels = (int64_t *)guarded(3, 9 * 8);
        labels[7] = -1;
        labels[5] = 4;
        CHECK_EQ(k->xent(NULL, &e.f), MLC_OK);
        CHECK_EQ(e.error[0], MLC_K_ERROR_LABEL);
        CHECK_EQ(e.error[1], 5);
        CHECK_EQ(e.error[2], 4);
        CHECK_EQ(e.error[3], 4);
    }
}

/* ---- softmax and norms of short rows -------------------------------------------------------- */

#define ROWS_ELEMENTS 8000
#define ROWS_MOST     1100             /* elements of a row                                     */

typedef enum rows_op { ROWS_SOFTMAX, ROWS_LOG, ROWS_LAYER_NORM, ROWS_RMS_NORM, ROWS_OPS } rows_op;

typedef struct rows_case {
    rows_op   op;
    mlc_dtype dtype, w;                /* of x; of weights                                      */
    int64_t   rows, n, step, gap;      /* elements step apart, gap of them between rows         */
    bool      special, bare;           /* values that are not finite; no weights                */
} rows_case;

/* What a kernel and its gradient make: rows dense. */
typedef struct rows_made {
    float  y[ROWS_ELEMENTS], dx[ROWS_ELEMENTS], dw[ROWS_MOST], db[ROWS_MOST];
    double stat[3 * ROWS_ELEMENTS];
    bool   ok;
} rows_made;

static int64_t rows_row(const rows_case *c) { return c->n * c->step + c->gap; }
static int64_t rows_at(const rows_case *c, int64_t i)
{
    return i / c->n * rows_row(c) + i % c->n * c->step;
}

/* Rows that end at a guard page, all of them 0xa7. */
static void *rows_room(int role, const rows_case *c)
{
    return caged(role, (size_t)(rows_at(c, c->rows * c->n - 1) + 1) * size_of(c->dtype));
}

static void *rows_in(int role, const rows_case *c)
{
    void *p = rows_room(role, c);
    for (int64_t i = 0; i < c->rows * c->n; i++) {
        const bool odd = c->special && (i * 7 + role) % 41 == 0;
        double     v = odd ? SPECIAL[i % SPECIALS] : test_random((uint64_t)role, i, -4, 4);
        if (c->special && i / c->n == 2) v = role == 0 ? -INF : 1;
        put(p, c->dtype, rows_at(c, i), v);
    }
    return p;
}

/* Takes the rows out of p; false where something before or between them was written. */
static bool rows_take(void *to, const void *p, const rows_case *c)
{
    const size_t         size = size_of(c->dtype);
    const unsigned char *from = (const unsigned char *)p;
    bool                 ok = cage_holds(p);
    for (int64_t i = 0; i < c->rows * c->n; i++)
        memcpy((char *)to + (size_t)i * size, from + (size_t)rows_at(c, i) * size, size);
    for (int64_t i = 0; i < (c->rows - 1) * rows_row(c); i++)
        if (i % rows_row(c) >= c->n * c->step || i % rows_row(c) % c->step != 0)
            for (size_t b = 0; b < size; b++) ok = ok && from[(size_t)i * size + b] == 0xa7;
    return ok;
}

static bool rows_softmax(const mlc_kernels *k, const rows_case *c, rows_made *made)
{
    const int64_t row = rows_row(c);
    struct mlc_k_softmax a = {c->dtype, 2, 1, c->op == ROWS_LOG, {c->rows, c->n}, rows_room(4, c),
                              {row, c->step}, rows_in(0, c), {row, c->step}};
    struct mlc_k_softmax_grad g = {c->dtype, 2, 1, a.log, 0, {c->rows, c->n}, rows_room(5, c),
                                   {row, c->step}, a.out, {row, c->step}, rows_in(1, c),
                                   {row, c->step}};
    return k->softmax(NULL, &a) == MLC_OK && k->softmax_grad(NULL, &g) == MLC_OK &&
           rows_take(made->y, a.out, c) && rows_take(made->dx, g.out, c);
}

static bool rows_norm(const mlc_kernels *k, const rows_case *c, rows_made *made)
{
    const int64_t          row = rows_row(c);
    struct mlc_k_norm      a;
    struct mlc_k_norm_grad g;
    memset(&a, 0, sizeof a);
    memset(&g, 0, sizeof g);
    a.dtype = g.dtype = c->dtype;
    a.ndim = g.ndim = 2;
    a.rms = g.rms = c->op == ROWS_RMS_NORM;
    a.shape[0] = g.shape[0] = c->rows;
    a.shape[1] = g.shape[1] = c->n;
    a.out = rows_room(4, c);
    g.dx = rows_room(5, c);
    a.in = g.in = rows_in(0, c);
    g.dy = rows_in(1, c);
    a.out_stride[0] = a.in_stride[0] = g.dx_stride[0] = g.in_stride[0] = g.dy_stride[0] = row;
    a.out_stride[1] = a.in_stride[1] = g.dx_stride[1] = g.in_stride[1] = g.dy_stride[1] = c->step;
    a.w_dtype = g.w_dtype = c->w;
    a.weight = g.weight = c->bare ? NULL : guarded_rand(2, c->w, c->n, 2, -1, 1);
    a.bias = a.rms || c->bare ? NULL : guarded_rand(3, c->w, c->n, 3, -1, 1);
    a.eps = 1e-5;
    a.stat = made->stat;
    g.stat = made->stat;
    g.dweight = made->dw;
    g.dbias = a.rms ? NULL : made->db;
    g.dweight_stride = g.dbias_stride = 1;
    g.workspace_bytes = k->norm_grad_workspace(NULL, &g);
    g.workspace = test_aligned_alloc(64, g.workspace_bytes + 64);
    const bool ok = g.workspace != NULL && k->norm(NULL, &a) == MLC_OK &&
                    k->norm_grad(NULL, &g) == MLC_OK && rows_take(made->y, a.out, c) &&
                    rows_take(made->dx, g.dx, c);
    test_aligned_free(g.workspace);
    return ok;
}

static const rows_made *rows_run(const mlc_kernels *k, const rows_case *c, rows_made *made)
{
    memset(made, 0, sizeof *made);
    made->ok = c->op <= ROWS_LOG ? rows_softmax(k, c, made) : rows_norm(k, c, made);
    return made;
}

/* On level k as on level other, whose elements lie step apart. */
static bool rows_agree(const mlc_kernels *k, const mlc_kernels *other, rows_case c, int64_t step)
{
    static rows_made  one, two;
    const rows_made  *got = rows_run(k, &c, &one);
    const int64_t     n = c.rows * c.n;
    rows_case         as = c;
    as.step = step;
    const rows_made *want = rows_run(other, &as, &two);
    if (got->ok && want->ok && same_bits(got->y, want->y, c.dtype, n) &&
        same_bits(got->dx, want->dx, c.dtype, n) && same_bits(got->dw, want->dw, c.w, c.n) &&
        same_bits(got->db, want->db, c.w, c.n) &&
        same_bits(got->stat, want->stat, MLC_F64, 3 * c.rows))
        return true;
    printf("  rows %d, %s, weights %s, %" PRId64 " x %" PRId64 ", gap %" PRId64 "%s%s: %d %d\n",
           (int)c.op, mlc_dtype_name(c.dtype), mlc_dtype_name(c.w), c.rows, c.n, c.gap,
           c.special ? ", special" : "", c.bare ? ", bare" : "", got->ok, want->ok);
    return false;
}

/* The lowest level with vectors that the CPU has, or the scalar one. */
static const mlc_kernels *lowest_vectors(void)
{
    for (int isa = MLC_ISA_SCALAR + 1; isa < MLC_ISA_COUNT; isa++)
        if (mlc_cpu_kernels((mlc_isa)isa) != NULL) return mlc_cpu_kernels((mlc_isa)isa);
    return mlc_cpu_kernels(MLC_ISA_SCALAR);
}

/* Rows whose elements are not next to each other go another way, through parts of 128: of the same
 * bits, but for f32 over that, which have those of the lowest level with vectors. */
static bool rows_sizes_agree(const mlc_kernels *k, rows_op op, mlc_dtype dtype)
{
    static const int64_t long_ones[] = {191, 192, 255, 256, 257, 384, 511, 512, 513, 1000, 1023,
                                        1024, 1025};
    const mlc_kernels *low = lowest_vectors();
    const bool         half = dtype != MLC_F32;
    bool               ok = true;
    for (int64_t n = 1; ok && n <= 130; n += n < 20 ? 1 : test_stride(7)) {
        rows_case c = {op, dtype, n % 2 || !half ? dtype : MLC_F32, 1 + n * 5 % 7, n, 1, n % 3,
                       n % 5 == 2, n % 4 == 3};
        if (n <= 128 || half) ok = rows_agree(k, k, c, 2);
        c.rows = n < 20 ? 70 : 3;
        c.gap = 0;
        ok = ok && rows_agree(k, low, c, 1);
    }
    for (int i = 0; ok && i < (int)(sizeof long_ones / sizeof *long_ones); i++) {
        rows_case c = {op, dtype, i % 2 || !half ? dtype : MLC_F32, 1 + i % 7, long_ones[i], 1,
                       i % 3, i % 5 == 2, i % 4 == 3};
        ok = rows_agree(k, half ? k : low, c, half ? 3 : 1);
    }
    return ok;
}

TEST(backend, short_rows_have_the_bits_of_other_rows)
{
    CHECK(scalar_row() != NULL);
    FOR_EACH_ROW(k, isa)
        for (int op = 0; op < ROWS_OPS; op++) {
            CHECK(rows_sizes_agree(k, (rows_op)op, MLC_F32));
            CHECK(rows_sizes_agree(k, (rows_op)op, MLC_BF16));
            CHECK(rows_sizes_agree(k, (rows_op)op, MLC_F16));
        }
}

/* Norms whose first elements are far from the mean are summed again. */
TEST(backend, a_norm_far_from_0_is_summed_about_its_mean)
{
    static float x[3 * 200], y[3 * 200];
    double       stat[9];
    CHECK(scalar_row() != NULL);
    FOR_EACH_ROW(k, isa) {
        struct mlc_k_norm a;
        memset(&a, 0, sizeof a);
        a.dtype = a.w_dtype = MLC_F32;
        a.ndim = 2;
        a.shape[0] = 3;
        a.shape[1] = a.out_stride[0] = a.in_stride[0] = 200;
        a.out_stride[1] = a.in_stride[1] = 1;
        a.out = y;
        a.in = x;
        a.stat = stat;
        for (int i = 0; i < 600; i++)
            x[i] = (float)(test_random(1, i, 999, 1001) - (i >= 200 && i < 264 ? 5e4 : 0));
        CHECK_EQ(k->norm(NULL, &a), MLC_OK);
        for (int r = 0; r < 3; r++) {
            double mean = 0, square = 0;
            for (int i = 0; i < 200; i++) mean += (double)x[200 * r + i] / 200;
            for (int i = 0; i < 200; i++) square += pow((double)x[200 * r + i] - mean, 2) / 200;
            CHECK_NEAR(stat[3 * r] + stat[3 * r + 1], mean, 1e-7 * fabs(mean));
            CHECK_NEAR(stat[3 * r + 2] * sqrt(square), 1, 1e-6);
            CHECK(fabs(stat[3 * r + 1]) * stat[3 * r + 2] <= 0.5);
        }
    }
}
