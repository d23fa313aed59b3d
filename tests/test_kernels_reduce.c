/* test_kernels_reduce.c -- kernels that reduce, aggregate, scan and search, on every ISA level */
#define _DEFAULT_SOURCE
#include "guarded.h"

/* ---- reduce ------------------------------------------------------------------------------- */

#define REDUCE_MOST 140002             /* outputs of the largest case                          */

typedef struct reducing {             /* of a [rows, cols] array, in_stride as given          */
    mlc_reduce op;
    mlc_dtype  dtype;
    int64_t    rows, cols;
    bool       over_rows, over_cols, transposed, accumulate;
} reducing;

static int64_t reduce_outs(const reducing *r)
{
    return (r->over_rows ? 1 : r->rows) * (r->over_cols ? 1 : r->cols);
}

static const void *reduce_run(const mlc_kernels *k, const reducing *r, int out)
{
    struct mlc_k_reduce a;
    memset(&a, 0, sizeof a);
    a.op = r->op;
    a.dtype = a.out_dtype = r->dtype;
    a.ndim = 2;
    a.accumulate = r->accumulate;
    a.shape[0] = r->rows;
    a.shape[1] = r->cols;
    a.in = guarded_rand(0, r->dtype, r->rows * r->cols, 11, -1, 1);
    a.in_stride[0] = r->transposed ? 1 : r->cols;
    a.in_stride[1] = r->transposed ? r->rows : 1;
    a.out_stride[1] = r->over_cols ? 0 : 1;
    a.out_stride[0] = r->over_rows ? 0 : r->over_cols ? 1 : r->cols;
    a.divisor = 4;
    a.out = guarded_rand(out, r->dtype, reduce_outs(r), 12, -1, 1);
    a.workspace_bytes = k->reduce_workspace ? k->reduce_workspace(NULL, &a) : 0;
    a.workspace = guarded(5, a.workspace_bytes);
    return k->reduce(NULL, &a) == MLC_OK ? a.out : NULL;
}

/* All outputs in double, and the sums of magnitudes that bound their rounding.                */
static void reduce_want(const reducing *r, double *want, double *magnitude)
{
    const void *in = guarded(0, (size_t)(r->rows * r->cols) * size_of(r->dtype));
    for (int64_t o = 0; o < reduce_outs(r); o++) {
        want[o] = r->op == MLC_REDUCE_SUM ? 0 : -INF;
        magnitude[o] = 0;
    }
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t j = 0; j < r->cols; j++) {
            int64_t o = (r->over_rows ? 0 : i) * (r->over_cols ? 1 : r->cols) +
                        (r->over_cols ? 0 : j);
            double x = get(in, r->dtype, r->transposed ? j * r->rows + i : i * r->cols + j);
            want[o] = r->op == MLC_REDUCE_SUM ? want[o] + x : x > want[o] ? x : want[o];
            magnitude[o] += fabs(x);
        }
}

static bool reduce_agrees(const mlc_kernels *k, const reducing *r)
{
    static double want[REDUCE_MOST], magnitude[REDUCE_MOST];
    const double  eps = r->dtype == MLC_F32 ? 1.2e-7 : 2.3e-16;
    const void   *out = reduce_run(k, r, 1);
    reduce_want(r, want, magnitude);
    for (int64_t o = 0; o < reduce_outs(r); o++) {
        double start = r->accumulate ? test_random(12, o, -1, 1) : 0;
        double sum = start + 0.25 * want[o], got = out ? get(out, r->dtype, o) : NO_NUMBER;
        /* the bounds that the doc comment of reductions promises, and roundings at the end    */
        double bound = (r->op == MLC_REDUCE_MAX ? 0 : r->dtype == MLC_F32 ? 1 : 22) * eps *
                       0.25 * magnitude[o] + 2 * eps * (fabs(sum) + fabs(start));
        if (fabs(got - sum) <= bound)
            continue;
        printf("  reduce %d %s [%" PRId64 ",%" PRId64 "] over %d%d%s: %" PRId64 " is %.17g, "
               "want %.17g\n", (int)r->op, mlc_dtype_name(r->dtype), r->rows, r->cols,
               r->over_rows, r->over_cols, r->transposed ? " transposed" : "", o, got, sum);
        return false;
    }
    return true;
}

static bool reduce_shape_agrees(const mlc_kernels *k, int64_t rows, int64_t cols)
{
    for (int bits = (int)(rows * cols % test_stride(7)); bits < 64; bits += (int)test_stride(7)) {
        reducing r = {bits & 1 ? MLC_REDUCE_MAX : MLC_REDUCE_SUM, bits & 2 ? MLC_F64 : MLC_F32,
                       rows, cols, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0,
                       (bits & 32) != 0};
        if ((r.over_rows || r.over_cols) && !reduce_agrees(k, &r))
            return false;
    }
    return true;
}

TEST(backend, reduce_kernels_agree_with_sums_in_double)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 15, 16, 17, 31, 33, 65, 70};
    const int n = (int)(sizeof sizes / sizeof *sizes);
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int i = 0; i < n; i++)
            for (int j = i % (int)test_stride(3); j < n; j += (int)test_stride(3))
                if (!CHECK(reduce_shape_agrees(k, sizes[i], sizes[j])))
                    return;
        CHECK(reduce_shape_agrees(k, 1, 70001));
        CHECK(reduce_shape_agrees(k, 70001, 2));
    }
}

TEST(backend, a_sum_of_nothing_is_zero)
{
    FOR_EACH_LEVEL(isa)
        for (int bits = 0; bits < 8; bits++) {
            reducing r = {MLC_REDUCE_SUM, bits & 1 ? MLC_F64 : MLC_F32, 3, 0, (bits & 2) != 0,
                          true, (bits & 4) != 0, false};
            CHECK(reduce_agrees(mlc_cpu_kernels((mlc_isa)isa), &r));
        }
}

TEST(backend, a_maximum_of_a_nan_is_nan_on_every_level)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t at = 0; at < 37; at++) {
            const mlc_kernels  *k = mlc_cpu_kernels((mlc_isa)isa);
            float               out = 0, *in = (float *)guarded_rand(0, MLC_F32, 37, 1, -1, 1);
            struct mlc_k_reduce a;
            memset(&a, 0, sizeof a);
            a.op = MLC_REDUCE_MAX;
            a.ndim = 1;
            a.shape[0] = 37;
            a.in = in;
            a.in_stride[0] = 1;
            a.out = &out;
            a.divisor = 1;
            in[at] = NAN;
            CHECK(k->reduce(NULL, &a) == MLC_OK && isnan(out));
        }
}

/* ---- argmax, take, finite ------------------------------------------------------------------ */

TEST(backend, argmax_is_the_first_largest_along_any_stride_and_nan_wins)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t c = 1; c <= 70; c++) {
            const mlc_kernels  *k = mlc_cpu_kernels((mlc_isa)isa);
            float              *in = (float *)guarded_rand(0, MLC_F32, 3 * c, 41, -1, 1);
            int64_t            *out = (int64_t *)guarded(1, 3 * 8);
            struct mlc_k_argmax a = {MLC_F32, 2, 1, 0, {3, c}, in, {1, 3}, out, {1, 0}, NULL, 0};
            in[3 * (c / 2)] = in[3 * (c - 1)] = 2;         /* row 0: a tie                     */
            in[3 * (c / 3) + 1] = NAN;                     /* row 1                            */
            in[3 * (c - 1) + 2] = INFINITY;                /* row 2: the last one              */
            CHECK_EQ(k->argmax(NULL, &a), MLC_OK);
            CHECK_EQ(out[0], c / 2);
            CHECK_EQ(out[1], c / 3);
            CHECK_EQ(out[2], c - 1);
        }
}

TEST(backend, take_copies_rows_by_index)
{
    static const int64_t index[4] = {2, 0, 2, 1};
    FOR_EACH_LEVEL(isa)
        for (size_t bytes = 1; bytes <= 70; bytes++) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            char              *in = (char *)guarded(0, 3 * bytes);
            char              *out = (char *)guarded(1, 4 * bytes);
            struct mlc_k_take  a = {4, 3, bytes, in, index, out};
            for (size_t i = 0; i < 3 * bytes; i++)
                in[i] = (char)(i * 7 + 1);
            CHECK_EQ(k->take(NULL, &a), MLC_OK);
            for (size_t i = 0; i < 4; i++)
                CHECK(memcmp(out + i * bytes, in + (size_t)index[i] * bytes, bytes) == 0);
        }
}

TEST(backend, finite_finds_the_first_nan_or_infinity)
{
    static const double bad[3] = {NO_NUMBER, INF, -INF};
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < 2; dtype++)
            for (int64_t n = 1; n <= 70; n++) {
                const mlc_kernels  *k = mlc_cpu_kernels((mlc_isa)isa);
                int64_t             first = 0;
                void               *in = guarded_rand(0, (mlc_dtype)dtype, n, 51, -1, 1);
                struct mlc_k_finite a = {(mlc_dtype)dtype, n, in, &first};
                CHECK_EQ(k->finite(NULL, &a), MLC_OK);
                CHECK_EQ(first, -1);
                put(in, (mlc_dtype)dtype, n - 1, bad[n % 3]);
                put(in, (mlc_dtype)dtype, n / 2, bad[(n + 1) % 3]);
                CHECK_EQ(k->finite(NULL, &a), MLC_OK);
                CHECK_EQ(first, n / 2);
            }
}

/* ---- aggregate, argmax, scan: between a canary and a guard page ---------------------------- */

/* A [rows, cols] array and how it lies: 0 by rows, 1 by columns, 2 by rows with gaps, 3 one row
 * for all, 4 by columns with gaps.                                                            */
typedef struct walk {
    mlc_dtype dtype;
    int64_t   rows, cols;
    int       form;
    int64_t   stride[2], extent;       /* elements from the first one to the last              */
} walk;

static walk walk_of(mlc_dtype dtype, int64_t rows, int64_t cols, int form)
{
    const int64_t gap = form == 2 || form == 4 ? 2 : 1;
    walk w = {dtype, rows, cols, form, {0, 0}, 0};
    w.stride[0] = form == 1 || form == 4 ? gap : form == 3 ? 0 : gap * cols;
    w.stride[1] = form == 1 || form == 4 ? gap * rows : gap;
    w.extent = (rows - 1) * w.stride[0] + (cols - 1) * w.stride[1] + 1;
    return w;
}

static int64_t walk_at(const walk *w, int64_t i, int64_t j)
{
    return i * w->stride[0] + j * w->stride[1];
}

static bool is_float(mlc_dtype dtype)
{
    return dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 || dtype == MLC_F16;
}

/* Integers: small ones; floats between lo and hi, every ninth special if asked for.           */
static void *walk_rand(int role, const walk *w, uint64_t seed, double lo, double hi, bool special)
{
    void *p = caged(role, (size_t)w->extent * size_of(w->dtype));
    for (int64_t i = 0; i < w->extent; i++) {
        double v = test_random(seed, i, lo, hi);
        if (!is_float(w->dtype))
            v = (double)(int)(test_random(seed, i, 0, 6) - (w->dtype == MLC_U8 ||
                                                           w->dtype == MLC_BOOL ? 0 : 3));
        else if (special && i % 9 == 4)
            v = SPECIAL[(seed + (uint64_t)i) % SPECIALS];
        put(p, w->dtype, i, v);
    }
    return p;
}

typedef struct folding {
    mlc_reduce op;
    double     p, divisor;
    walk       in;
    mlc_dtype  out_dtype;
    bool       over_rows, over_cols, shifted, accumulate, special;
    int64_t    apart;                  /* results in the output                                */
} folding;

static int64_t folds_rows(const folding *f) { return f->over_rows ? 1 : f->in.rows; }
static int64_t folds_cols(const folding *f) { return f->over_cols ? 1 : f->in.cols; }

static int64_t folds_extent(const folding *f)
{
    return (folds_rows(f) * folds_cols(f) - 1) * f->apart + 1;
}

/* As roles: 0 the input, 3 shifts, 5 the workspace, and out.                                  */
static void *fold_run(const mlc_kernels *k, const folding *f, int out, bool as_reduce)
{
    struct mlc_k_aggregate a;
    const walk        shifts = walk_of(MLC_F64, folds_rows(f), folds_cols(f), 0);
    memset(&a, 0, sizeof a);
    a.r.op = f->op;
    a.r.dtype = f->in.dtype;
    a.r.out_dtype = f->out_dtype;
    a.r.ndim = 2;
    a.r.accumulate = f->accumulate;
    a.r.shape[0] = f->in.rows;
    a.r.shape[1] = f->in.cols;
    a.r.in_stride[0] = f->in.stride[0];
    a.r.in_stride[1] = f->in.stride[1];
    a.r.out_stride[0] = f->over_rows ? 0 : folds_cols(f) * f->apart;
    a.r.out_stride[1] = f->over_cols ? 0 : f->apart;
    a.r.divisor = f->divisor;
    a.p = f->p;
    a.r.in = walk_rand(0, &f->in, 71, f->op == MLC_REDUCE_PROD ? 0.8 : -2,
                       f->op == MLC_REDUCE_PROD ? 1.2 : 2, f->special);
    a.r.out = caged(out, (size_t)folds_extent(f) * size_of(f->out_dtype));
    for (int64_t i = 0; f->accumulate && i < folds_extent(f); i += f->apart)
        put(a.r.out, f->out_dtype, i, test_random(72, i, -1, 1));
    if (f->shifted) {
        a.shift = (const double *)walk_rand(3, &shifts, 73, -1, 1, false);
        a.shift_stride[0] = f->over_rows ? 0 : shifts.stride[0];
        a.shift_stride[1] = f->over_cols ? 0 : shifts.stride[1];
    }
    a.r.workspace_bytes = as_reduce ? k->reduce_workspace(NULL, &a.r)
                                    : k->aggregate_workspace(NULL, &a);
    a.r.workspace = caged(5, (a.r.workspace_bytes + 63) / 64 * 64);
    const mlc_status st = as_reduce ? k->reduce(NULL, &a.r) : k->aggregate(NULL, &a);
    return st == MLC_OK && cage_holds(a.r.in) && cage_holds(a.r.out) && cage_holds(a.r.workspace)
               ? a.r.out : NULL;
}

/* An element joins v, in double.                                                              */
static double fold_join(const folding *f, double v, double x)
{
    switch (f->op) {
    case MLC_REDUCE_MAX:  return x > v ? x : v;
    case MLC_REDUCE_MIN:  return x < v ? x : v;
    case MLC_REDUCE_PROD: return v * x;
    case MLC_REDUCE_ANY:  return v != 0 || x != 0;
    case MLC_REDUCE_ALL:  return v != 0 && x != 0;
    case MLC_REDUCE_VAR:
    case MLC_REDUCE_STD:  return v + x * x;
    case MLC_REDUCE_LSE:  return v + exp(x);
    case MLC_REDUCE_NORM:
        if (isinf(f->p)) return (fabs(x) > v) == (f->p > 0) ? fabs(x) : v;
        return v + (f->p == 0 ? x != 0 : pow(fabs(x), f->p));
    default:              return v + x;
    }
}

static double fold_start(const folding *f)
{
    switch (f->op) {
    case MLC_REDUCE_MAX:  return -INF;
    case MLC_REDUCE_MIN:  return INF;
    case MLC_REDUCE_PROD:
    case MLC_REDUCE_ALL:  return 1;
    case MLC_REDUCE_NORM: return isinf(f->p) && f->p < 0 ? INF : 0;
    default:              return 0;
    }
}

static double fold_want(const folding *f, int64_t i, int64_t j)
{
    const int64_t to_i = f->over_rows ? f->in.rows : i + 1;
    const int64_t to_j = f->over_cols ? f->in.cols : j + 1;
    const double *shift = (const double *)guarded(3, (size_t)(folds_rows(f) * folds_cols(f)) * 8);
    const double  by = f->shifted ? shift[i * folds_cols(f) + j] : 0;
    const void   *in = guarded(0, (size_t)f->in.extent * size_of(f->in.dtype));
    double        v = fold_start(f);
    for (int64_t r = f->over_rows ? 0 : i; r < to_i; r++)
        for (int64_t c = f->over_cols ? 0 : j; c < to_j; c++)
            v = fold_join(f, v, get(in, f->in.dtype, walk_at(&f->in, r, c)) - by);
    v /= f->divisor;
    if (f->op == MLC_REDUCE_LSE)
        return log(v) + by;
    if (f->op == MLC_REDUCE_STD)
        return sqrt(v);
    return f->op == MLC_REDUCE_NORM && f->p != 0 && !isinf(f->p) ? pow(v, 1 / f->p) : v;
}

/* Results by the definition, in double; elements are below 3, shifts below 1.                 */
static bool fold_is_right(const folding *f, const void *out)
{
    const double count = (double)(f->in.rows * f->in.cols);
    const double eps = f->out_dtype == MLC_BF16 ? 0x1p-8 : f->out_dtype == MLC_F16 ? 0x1p-11
                       : f->in.dtype == MLC_F64 ? 1e-13 + 2.3e-16 * count : 2e-6;
    for (int64_t o = 0; o < folds_extent(f); o++) {
        if (o % f->apart) {            /* a gap                                                */
            for (size_t b = 0; b < size_of(f->out_dtype); b++)
                if (((const unsigned char *)out)[(size_t)o * size_of(f->out_dtype) + b] != 0xa7)
                    return CHECK(!"a gap between results was written");
            continue;
        }
        const double v = fold_want(f, o / f->apart / folds_cols(f), o / f->apart % folds_cols(f));
        const double old = f->accumulate ? test_random(72, o, -1, 1) : 0;
        if (!is_float(f->out_dtype)) {
            if (!CHECK_NEAR(get(out, f->out_dtype, o), v, 0))
                return false;
        } else if (!CHECK_NEAR(get(out, f->out_dtype, o), v + old,
                               eps * (2 + 2 * fabs(v) + (f->op == MLC_REDUCE_SUM ? count : 0)))) {
            return false;
        }
    }
    return true;
}

/* Right on the scalar level; on the others the same bits. The kernel reduce gives those, too,
 * except that aggregate adds up in f64 what leaves as f64.                                     */
static bool fold_agrees(const folding *f)
{
    const bool  wider = f->op == MLC_REDUCE_SUM && f->out_dtype != f->in.dtype;
    const bool  plain = is_float(f->in.dtype) && f->op <= MLC_REDUCE_MAX && !f->shifted && !wider;
    const void *want = fold_run(scalar_row(), f, 1, false);
    bool        held = want != NULL && (f->special || fold_is_right(f, want));
    FOR_EACH_LEVEL(isa)
        for (int as_reduce = 0; held && as_reduce <= plain; as_reduce++) {
            const void *got = fold_run(mlc_cpu_kernels((mlc_isa)isa), f, 2, as_reduce);
            held = got != NULL && same_bits(got, want, f->out_dtype, folds_extent(f));
        }
    if (!held)
        printf("  aggregate %d p %g %s, [%" PRId64 ",%" PRId64 "] form %d over %d%d, shift %d, "
               "accumulate %d, special %d, apart %" PRId64 "\n", (int)f->op, f->p,
               mlc_dtype_name(f->in.dtype), f->in.rows, f->in.cols, f->in.form, f->over_rows,
               f->over_cols, f->shifted, f->accumulate, f->special, f->apart);
    return CHECK(held);
}

/* Shapes, forms and the rest take turns.                                                      */
static folding fold_case(mlc_reduce op, double p, mlc_dtype dtype, int64_t rows, int64_t cols,
                         int turn)
{
    const bool floats = is_float(dtype);
    folding    f;
    memset(&f, 0, sizeof f);
    f.op = op;
    f.p = p;
    f.in = walk_of(dtype, rows, cols, turn % 5);
    f.over_rows = turn % 3 != 0;
    f.over_cols = turn % 3 != 1;
    f.out_dtype = op == MLC_REDUCE_ANY || op == MLC_REDUCE_ALL ? MLC_BOOL
                  : !floats && (op == MLC_REDUCE_SUM || op == MLC_REDUCE_PROD) ? MLC_I64
                  : dtype == MLC_F32 && turn % 11 == 5 ? MLC_F64 : dtype;
    f.shifted = op >= MLC_REDUCE_VAR || (op == MLC_REDUCE_SUM && dtype == MLC_F64 && turn % 13 < 4);
    f.divisor = floats && (op == MLC_REDUCE_SUM || op == MLC_REDUCE_VAR || op == MLC_REDUCE_STD)
                    ? 3 : 1;
    f.accumulate = is_float(f.out_dtype) && turn % 7 < 2;
    f.special = turn % 17 < 5;
    f.apart = 1 + turn % 4 / 3;
    return f;
}

TEST(backend, fold_kernels_have_the_same_bits_on_every_level)
{
    static const double p[] = {0, 1, 2, 3, INF, -INF};
    for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
        for (int kind = 0; kind < MLC_REDUCE_LSE + 6; kind++) {
            const mlc_reduce op = (mlc_reduce)(kind <= MLC_REDUCE_LSE ? kind : MLC_REDUCE_NORM);
            int turn = kind;
            if (!is_float((mlc_dtype)dtype) && op > MLC_REDUCE_ALL)
                continue;
            for (int64_t n = 1; n <= 70; n += test_stride(3)) {
                folding f = fold_case(op, p[kind <= MLC_REDUCE_LSE ? 5 : kind - MLC_REDUCE_LSE - 1],
                                      (mlc_dtype)dtype, 1 + n * 5 % 23, n, turn++);
                if (!fold_agrees(&f))
                    return;
            }
        }
}

TEST(backend, fold_kernels_of_many_elements_have_the_same_bits_on_every_level)
{
    static const int64_t shape[][2] = {{1, 140001}, {140001, 1}, {70001, 2}, {2, 70001},
                                       {300, 301}};
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16};
    int turn = 0;
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++)
        for (int d = 0; d < 4; d++)
            for (int op = (int)s % (int)test_stride(7); op <= MLC_REDUCE_LSE;
                 op += (int)test_stride(7)) {
                folding f = fold_case((mlc_reduce)op, 2, dtypes[d], shape[s][0], shape[s][1],
                                      turn++);
                if (f.op == MLC_REDUCE_PROD || (!is_float(f.in.dtype) && op > MLC_REDUCE_ALL))
                    continue;          /* a product of so many is 0 or infinite                */
                if (!fold_agrees(&f))
                    return;
            }
}

TEST(backend, fold_and_reduce_refuse_too_small_a_workspace_and_do_nothing_for_no_result)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        struct mlc_k_aggregate  a;
        float              in[6] = {1, 2, 3, 4, 5, 6}, out[3] = {7, 8, 9};
        memset(&a, 0, sizeof a);
        a.r.ndim = 2;
        a.r.shape[0] = 2;
        a.r.shape[1] = 3;
        a.r.in = in;
        a.r.out = out;
        a.r.in_stride[0] = 3;
        a.r.in_stride[1] = a.r.out_stride[1] = 1;
        a.r.divisor = 1;
        CHECK(k->aggregate_workspace(NULL, &a) > 0 && k->reduce_workspace(NULL, &a.r) > 0);
        CHECK_EQ(k->aggregate(NULL, &a), MLC_ERR_INTERNAL);
        CHECK_EQ(k->reduce(NULL, &a.r), MLC_ERR_INTERNAL);
        a.r.shape[1] = 0;
        CHECK_EQ(k->aggregate(NULL, &a), MLC_OK);
        CHECK_EQ(k->reduce(NULL, &a.r), MLC_OK);
        CHECK(out[0] == 7 && out[1] == 8 && out[2] == 9);
        a.r.op = MLC_REDUCE_MIN;
        CHECK_EQ(k->reduce(NULL, &a.r), MLC_ERR_UNSUPPORTED);
    }
}

/* The first largest, the first NaN before all.                                                */
static int64_t argmax_want(const walk *w, const void *in, int64_t line, int axis, bool smallest)
{
    const int64_t n = axis ? w->cols : w->rows;
    int64_t       best = 0;
    for (int64_t i = 1; i < n; i++) {
        const double x = get(in, w->dtype, axis ? walk_at(w, line, i) : walk_at(w, i, line));
        const double y = get(in, w->dtype, axis ? walk_at(w, line, best) : walk_at(w, best, line));
        if (!isnan(y) && (isnan(x) || (smallest ? x < y : x > y)))
            best = i;
    }
    return best;
}

static bool argmax_agrees(const mlc_kernels *k, const walk *w, int axis, int turn)
{
    const int64_t lines = axis ? w->rows : w->cols, apart = 1 + turn % 2;
    struct mlc_k_argmax a;
    int64_t            *out, wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = w->dtype;
    a.ndim = 2;
    a.axis = axis;
    a.smallest = turn % 3 == 0;
    a.shape[0] = w->rows;
    a.shape[1] = w->cols;
    a.in = walk_rand(0, w, (uint64_t)turn, -3, 3, turn % 4 == 0);
    a.in_stride[0] = w->stride[0];
    a.in_stride[1] = w->stride[1];
    a.out = out = (int64_t *)caged(1, (size_t)((lines - 1) * apart + 1) * 8);
    a.out_stride[!axis] = apart;
    if (k->argmax(NULL, &a) != MLC_OK || !cage_holds(out))
        return false;
    for (int64_t i = 0; i < lines; i++) {
        wrong += out[i * apart] != argmax_want(w, a.in, i, axis, a.smallest);
        wrong += apart > 1 && i + 1 < lines && out[i * apart + 1] != (int64_t)0xa7a7a7a7a7a7a7a7u;
    }
    return CHECK_EQ(wrong, 0);
}

TEST(backend, argmax_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 140; n += n < 70 ? 1 : 13)
                for (int axis = 0; axis < 2; axis++) {
                    const int64_t m = 1 + n * 3 % 17;
                    const walk    w = walk_of((mlc_dtype)dtype, axis ? m : n, axis ? n : m,
                                              (int)(n + axis) % 5);
                    if (!argmax_agrees(mlc_cpu_kernels((mlc_isa)isa), &w, axis, (int)n + dtype)) {
                        printf("  argmax %s [%" PRId64 ",%" PRId64 "] axis %d form %d\n",
                               mlc_dtype_name(w.dtype), w.rows, w.cols, axis, w.form);
                        return;
                    }
                }
}

/* Element e of line l, in an array that lies as w.                                            */
static int64_t scan_at(const walk *w, int axis, int64_t l, int64_t e)
{
    return axis ? walk_at(w, l, e) : walk_at(w, e, l);
}

/* One line as the comments of mlc_scan say: floats are carried in double, integers wrap.      */
static void scan_want(const struct mlc_k_scan *a, const walk *w, const walk *to, int64_t l,
                      void *out)
{
    const int64_t n = a->shape[a->axis];
    uint64_t      whole = a->op == MLC_SCAN_PROD;
    double        v = (double)whole;
    for (int64_t i = 0; i < n; i++) {
        const int64_t e = a->reverse ? n - 1 - i : i, at = scan_at(w, a->axis, l, e);
        const int64_t o = scan_at(to, a->axis, l, e);
        const double  x = get(a->in, a->dtype, at);
        const uint64_t y = is_float(a->dtype) ? 0 : (uint64_t)(int64_t)x;
        double         now;
        whole = a->op == MLC_SCAN_SUM ? whole + y : whole * y;
        if (a->op == MLC_SCAN_PROD_GRAD) {
            const double s = get(a->dy, a->dtype, at) + v;
            now = (e ? get(a->y, a->dtype, scan_at(w, a->axis, l, e - 1)) : 1) * s;
            v = x * s;
        } else {
            now = v = a->op == MLC_SCAN_SUM ? v + x : v * x;
        }
        if (is_float(a->dtype))
            put(out, a->out_dtype, o, a->accumulate ? now + get(out, a->out_dtype, o) : now);
        else
            ((int64_t *)out)[o] = (int64_t)whole;
    }
}

static bool scan_agrees(const mlc_kernels *k, mlc_scan op, const walk *w, int axis, int turn)
{
    const bool    floats = is_float(w->dtype);
    const int64_t lines = axis ? w->rows : w->cols;
    const walk    to = walk_of(floats ? w->dtype : MLC_I64, w->rows, w->cols,
                               turn % 5 == 3 ? 0 : turn % 5);
    struct mlc_k_scan a;
    memset(&a, 0, sizeof a);
    a.op = op;
    a.dtype = w->dtype;
    a.out_dtype = to.dtype;
    a.ndim = 2;
    a.axis = axis;
    a.reverse = op == MLC_SCAN_PROD_GRAD || turn % 2;
    a.accumulate = floats && turn % 3 == 1;
    a.shape[0] = w->rows;
    a.shape[1] = w->cols;
    for (int d = 0; d < 2; d++) {
        a.out_stride[d] = to.stride[d];
        a.in_stride[d] = a.y_stride[d] = a.dy_stride[d] = w->stride[d];
    }
    const bool special = turn % 7 == 0;
    a.in = walk_rand(0, w, 81, op == MLC_SCAN_SUM ? -2 : 0.5, 1.5, special);
    a.y = walk_rand(1, w, 82, -2, 2, special);
    a.dy = walk_rand(2, w, 83, -2, 2, special);
    a.out = walk_rand(3, &to, 84, -2, 2, false);
    const size_t bytes = (size_t)to.extent * size_of(to.dtype);
    void *want = copy_of(a.out, bytes);
    for (int64_t l = 0; l < lines; l++)
        scan_want(&a, w, &to, l, want);
    const bool held = k->scan(NULL, &a) == MLC_OK && cage_holds(a.out) &&
                      same_bits(a.out, want, to.dtype, to.extent);
    free(want);
    return CHECK(held);
}

TEST(backend, scan_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int op = 0; op <= MLC_SCAN_PROD_GRAD; op++)
                for (int64_t n = 1; n <= 140; n += n < 70 ? test_stride(3) : 13)
                    for (int axis = 0; axis < 2; axis++) {
                        const int64_t m = 1 + n * 3 % 17;
                        const walk    w = walk_of((mlc_dtype)dtype, axis ? m : n, axis ? n : m,
                                                  (int)(n + axis) % 5);
                        if (op == MLC_SCAN_PROD_GRAD && !is_float(w.dtype))
                            continue;
                        if (!scan_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_scan)op, &w, axis,
                                         (int)n + dtype + op)) {
                            printf("  scan %d %s [%" PRId64 ",%" PRId64 "] axis %d form %d\n", op,
                                   mlc_dtype_name(w.dtype), w.rows, w.cols, axis, w.form);
                            return;
                        }
                    }
}
