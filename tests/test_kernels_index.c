/* test_kernels_index.c -- kernels of indices, bands, padding and sorting, on every ISA level */
#define _DEFAULT_SOURCE
#include "guarded.h"

/* ---- index, nonzero, band, sort: between a canary and a guard page --------------------------- */

/* Whole numbers below 100, which every dtype has; bool: 0 and 1.                              */
static void whole_numbers(void *p, mlc_dtype dtype, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        put(p, dtype, i, (double)((i + 1) * step % 97));
}

/* One place along the axis of one row, as the comments of mlc_index say.                      */
static void index_want(mlc_index op, mlc_dtype dtype, void *line, int64_t l, void *data, int64_t d)
{
    if (op == MLC_INDEX_GATHER || op == MLC_INDEX_TAKE)
        put(line, dtype, l, get(data, dtype, d));
    if (op == MLC_INDEX_TAKE)
        put(data, dtype, d, 0);
    if (op == MLC_INDEX_SCATTER)
        put(data, dtype, d, get(line, dtype, l));
    if (op == MLC_INDEX_ADD)
        put(data, dtype, d, get(data, dtype, d) + get(line, dtype, l));
}

/* `rows` rows of n places along an axis of `limit` elements, which is the last or the first; one
 * index for all rows (shared) or one for each place.                                          */
static bool index_agrees(const mlc_kernels *k, mlc_index op, mlc_dtype dtype, int64_t rows,
                         int64_t n, int64_t limit, bool last, bool shared)
{
    const size_t       size = size_of(dtype);
    int64_t            error[4] = {0, 0, 0, 0}, *index;
    struct mlc_k_index a;
    memset(&a, 0, sizeof a);
    a.op = op;
    a.dtype = dtype;
    a.ndim = 2;
    a.axis = last;
    a.shape[0] = last ? rows : n;
    a.shape[1] = last ? n : rows;
    a.limit = limit;
    a.data_stride[0] = last ? limit : rows;
    a.line_stride[0] = a.shape[1];
    a.data_stride[1] = a.line_stride[1] = 1;
    a.index_stride[last] = shared ? 1 : a.line_stride[last];
    a.index_stride[!last] = shared ? 0 : a.line_stride[!last];
    a.error = error;
    a.data = caged(0, (size_t)(rows * limit) * size);
    a.line = caged(1, (size_t)(rows * n) * size);
    a.index = index = (int64_t *)caged(2, (size_t)(shared ? n : rows * n) * 8);
    whole_numbers(a.data, dtype, rows * limit, op == MLC_INDEX_ADD ? 97 : 5);
    whole_numbers(a.line, dtype, rows * n, op == MLC_INDEX_ADD ? 98 : 7);
    for (int64_t i = 0; i < (shared ? n : rows * n); i++)
        index[i] = (i * 5 + i / 3) % limit;
    if (op == MLC_INDEX_ADD)           /* 1 each: no sum is over 70                            */
        for (int64_t i = 0; i < rows * n; i++)
            put(a.line, dtype, i, 1);
    void *line = copy_of(a.line, (size_t)(rows * n) * size);
    void *data = copy_of(a.data, (size_t)(rows * limit) * size);
    for (int64_t p = 0; p < n; p++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = op == MLC_INDEX_TAKE ? n - 1 - p : p;
            const int64_t i = index[at * a.index_stride[last] + r * a.index_stride[!last]];
            index_want(op, dtype, line, at * a.line_stride[last] + r * a.line_stride[!last], data,
                       i * a.data_stride[last] + r * a.data_stride[!last]);
        }
    const mlc_status st = k->index(NULL, &a);
    const bool held = st == MLC_OK && error[0] == 0 && cage_holds(a.line) && cage_holds(a.data) &&
                      cage_holds(index) && same_bits(a.line, line, dtype, rows * n) &&
                      same_bits(a.data, data, dtype, rows * limit);
    free(line);
    free(data);
    if (!held)
        printf("  index %d %s, %" PRId64 " x %" PRId64 " of %" PRId64 ", axis %d%s\n", (int)op,
               mlc_dtype_name(dtype), rows, n, limit, last, shared ? ", shared" : "");
    return held;
}

static bool index_sizes_agree(const mlc_kernels *k, mlc_index op, mlc_dtype dtype)
{
    for (int64_t n = 1; n <= 70; n += n < 10 ? test_stride(3) : 7 * test_stride(3))
        for (int form = 0; form < 4; form++)
            for (int64_t rows = 1; rows <= 70; rows += rows < 3 ? test_stride(2)
                                                                 : 17 * test_stride(3))
                if (!index_agrees(k, op, dtype, rows, n, 1 + n * 5 % 37, form & 1, form & 2))
                    return false;
    return true;
}

TEST(backend, index_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int op = MLC_INDEX_GATHER; op <= MLC_INDEX_TAKE; op++) {
                const bool half = dtype == MLC_BF16 || dtype == MLC_F16;
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                if (op != MLC_INDEX_ADD || !half) {
                    CHECK(index_sizes_agree(k, (mlc_index)op, (mlc_dtype)dtype));
                    continue;
                }
                struct mlc_k_index a;
                memset(&a, 0, sizeof a);
                a.op = (mlc_index)op;
                a.dtype = (mlc_dtype)dtype;
                CHECK_EQ(k->index(NULL, &a), MLC_ERR_UNSUPPORTED);
            }
}

/* A sum that begins anew clears what the sum before it touched, and nothing else: rows that were
 * not touched keep what no sum would leave there. The record is of the last sum.               */
static bool index_touches(const mlc_kernels *k, mlc_dtype dtype, int64_t m, int64_t n,
                          int64_t limit)
{
    const size_t       size = size_of(dtype);
    int64_t            error[4] = {0, 0, 0, 0}, *index;
    struct mlc_k_index a;
    bool               held = true;
    memset(&a, 0, sizeof a);
    a.op = MLC_INDEX_ADD;
    a.dtype = dtype;
    a.ndim = 2;
    a.shape[0] = m;
    a.shape[1] = n;
    a.limit = limit;
    a.data_stride[0] = a.line_stride[0] = n;
    a.data_stride[1] = a.line_stride[1] = a.index_stride[0] = 1;
    a.error = error;
    a.data = caged(0, (size_t)(n * limit) * size);
    a.line = caged(1, (size_t)(n * m) * size);
    a.index = index = (int64_t *)caged(2, (size_t)m * 8);
    a.touched = (uint8_t *)caged(3, (size_t)limit);
    for (int64_t i = 0; i < n * m; i++)
        put(a.line, dtype, i, (double)(i % 13 + 1));
    for (int64_t r = 0; r < limit; r++) {
        a.touched[r] = r % 3 == 0;
        for (int64_t c = 0; c < n; c++)
            put(a.data, dtype, r * n + c, r % 3 == 0 ? 99 : 7);
    }
    for (int fresh = 1; fresh >= 0; fresh--) {
        double *want = (double *)calloc((size_t)(n * limit), sizeof *want);
        for (int64_t r = 0; r < limit; r++)
            for (int64_t c = 0; c < n; c++)
                want[r * n + c] = fresh && a.touched[r] ? 0 : get(a.data, dtype, r * n + c);
        for (int64_t i = 0; i < m; i++) {
            index[i] = (i * 5 + i / 3 + fresh) % limit;
            for (int64_t c = 0; c < n && fresh; c++)       /* begins at 0                      */
                want[index[i] * n + c] = 0;
        }
        for (int64_t i = 0; i < n * m; i++)
            want[index[i / n] * n + i % n] += get(a.line, dtype, i);
        a.fresh = fresh;
        held = held && k->index(NULL, &a) == MLC_OK && error[0] == 0;
        for (int64_t i = 0; i < n * limit; i++)
            held = held && get(a.data, dtype, i) == want[i];
        for (int64_t r = 0; r < limit && fresh; r++) {
            bool named = false;
            for (int64_t i = 0; i < m; i++)
                named = named || index[i] == r;
            held = held && (a.touched[r] != 0) == named;
        }
        for (int64_t i = 0; i < m; i++)
            held = held && a.touched[index[i]] != 0;
        free(want);
    }
    held = held && cage_holds(a.data) && cage_holds(a.line) && cage_holds(a.touched);
    if (!held)
        printf("  %s, %" PRId64 " rows of %" PRId64 " in %" PRId64 "\n", mlc_dtype_name(dtype), m,
               n, limit);
    return held;
}

TEST(backend, index_kernels_clear_touched_rows_alone)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t n = 2; n < 70; n += 5 * test_stride(4))
            for (int64_t m = 1; m < 400; m = 3 * m + 1) {
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                CHECK(index_touches(k, MLC_F32, m, n, 1 + m * 3 % 101));
                CHECK(index_touches(k, MLC_F64, m, n, 1 + m * 3 % 101));
            }
    struct mlc_k_index a;
    uint8_t            touched[4];
    int64_t            index[2] = {0, 1}, error[4] = {0};
    float              data[4], line[2];
    memset(&a, 0, sizeof a);
    a.op = MLC_INDEX_ADD;
    a.ndim = 2;
    a.shape[0] = 2;
    a.shape[1] = 1;
    a.limit = 4;
    a.data = data;
    a.line = line;
    a.index = index;
    a.error = error;
    a.touched = touched;
    a.data_stride[0] = a.line_stride[0] = a.index_stride[0] = 1;
    CHECK_EQ(mlc_cpu_kernels(MLC_ISA_SCALAR)->index(NULL, &a), MLC_ERR_UNSUPPORTED);
}

/* A row for an index outside is zero, and the error word says where the first one is.         */
TEST(backend, gather_kernels_put_zero_where_an_index_is_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int shared = 0; shared < 2; shared++) {
            static const int64_t INDEX[] = {1, 1, -1, -1, 5, 5}, SHARED[] = {1, -1, 5};
            static const double  WANT[] = {3, 4, 0, 0, 0, 0};
            float              data[] = {1, 2, 3, 4}, line[6];
            int64_t            error[4] = {0, 0, 0, 0};
            struct mlc_k_index a;
            memset(&a, 0, sizeof a);
            a.op = MLC_INDEX_GATHER;
            a.ndim = 2;
            a.shape[0] = 3;
            a.shape[1] = 2;
            a.limit = 2;
            a.data = data;
            a.line = line;
            a.index = shared ? SHARED : INDEX;
            a.data_stride[0] = a.line_stride[0] = 2;
            a.data_stride[1] = a.line_stride[1] = 1;
            a.index_stride[0] = shared ? 1 : 2;
            a.index_stride[1] = !shared;
            a.kind = 9;
            a.error = error;
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->index(NULL, &a), MLC_OK);
            for (int i = 0; i < 6; i++)
                CHECK_NEAR((double)line[i], WANT[i], 0);
            CHECK(error[0] == 9 && error[1] == (shared ? 1 : 2) && error[2] == -1 && error[3] == 2);
        }
}

/* every: which elements are not zero; 0: none.                                                */
static bool nonzero_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t cols,
                           int64_t every, bool coordinates)
{
    struct mlc_k_nonzero a;
    int64_t              count = -1, found = 0, *out;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.ndim = 2;
    a.coordinates = coordinates;
    a.shape[0] = rows;
    a.shape[1] = cols;
    a.n = rows * cols;
    void *in = caged(0, (size_t)a.n * size_of(dtype));
    for (int64_t i = 0; i < a.n; i++)
        put(in, dtype, i, every && i % every == 0 ? 1 + (double)(i % 3) : -0.0);
    a.in = in;
    a.count = &count;
    a.workspace_bytes = k->nonzero_workspace(NULL, &a);
    a.workspace = caged(5, a.workspace_bytes);
    const int64_t want = every ? (a.n + every - 1) / every : 0;
    if (!CHECK_EQ(k->nonzero(NULL, &a), MLC_OK) || !CHECK_EQ(count, want))
        return false;
    a.out = out = (int64_t *)caged(1, (size_t)(want * (coordinates ? 2 : 1)) * 8);
    if (!CHECK_EQ(k->nonzero(NULL, &a), MLC_OK) || !CHECK_EQ(count, want))
        return false;
    for (int64_t i = 0; i < want; i++) {
        const int64_t at = i * every;
        found += coordinates ? out[2 * i] == at / cols && out[2 * i + 1] == at % cols
                             : out[i] == at;
    }
    return CHECK_EQ(found, want) && CHECK(cage_holds(out) && cage_holds(a.workspace));
}

TEST(backend, nonzero_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 70; n++)
                for (int every = 0; every < 4; every++)
                    if (!nonzero_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                        1 + n % 3, n, every, n % 2 == 1))
                        return;
}

/* Two matrices; in and out lie by rows or by columns.                                         */
static bool band_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t cols,
                        int64_t lo, int64_t hi, int form)
{
    const int64_t     n = 2 * rows * cols;
    struct mlc_k_band a;
    int64_t           wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.ndim = 3;
    a.shape[0] = 2;
    a.shape[1] = rows;
    a.shape[2] = cols;
    a.lo = lo;
    a.hi = hi;
    a.in_stride[0] = a.out_stride[0] = rows * cols;
    a.in_stride[1] = form & 1 ? 1 : cols;
    a.in_stride[2] = form & 1 ? rows : 1;
    a.out_stride[1] = form & 2 ? 1 : cols;
    a.out_stride[2] = form & 2 ? rows : 1;
    void *in = caged(0, (size_t)n * size_of(dtype));
    whole_numbers(in, dtype, n, 5);
    a.in = in;
    a.out = caged(1, (size_t)n * size_of(dtype));
    if (k->band(NULL, &a) != MLC_OK || !cage_holds(a.out))
        return false;
    for (int64_t m = 0; m < 2; m++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) {
                const double x = get(in, dtype, m * rows * cols + i * a.in_stride[1] +
                                                    j * a.in_stride[2]);
                wrong += get(a.out, dtype, m * rows * cols + i * a.out_stride[1] +
                                               j * a.out_stride[2]) !=
                         (lo <= j - i && j - i <= hi ? x : 0);
            }
    if (wrong)
        printf("  band %s, %" PRId64 " x %" PRId64 ", %" PRId64 " to %" PRId64 ", form %d\n",
               mlc_dtype_name(dtype), rows, cols, lo, hi, form);
    return wrong == 0;
}

TEST(backend, band_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 70; n += n < 10 ? test_stride(3) : 5)
                for (int64_t rows = 1; rows <= 9; rows += 2)
                    for (int64_t lo = -10; lo <= 10; lo += 5)
                        if (!CHECK(band_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                               rows, n, lo, lo + n % 7 - 1, (int)(n + rows) % 4)))
                            return;
}

/* Where element i of a padded axis of n comes from; -1: it is the value.                      */
static int64_t pad_source(mlc_pad_mode mode, int64_t i, int64_t n)
{
    if (i >= 0 && i < n)
        return i;
    switch (mode) {
    case MLC_PAD_REFLECT:   return i < 0 ? -i : 2 * n - 2 - i;
    case MLC_PAD_REPLICATE: return i < 0 ? 0 : n - 1;
    case MLC_PAD_CIRCULAR:  return (i + n) % n;
    default:                return -1;
    }
}

/* Three axes of n, 4 and c; in lies by rows, or by columns.                                   */
static bool pad_agrees(const mlc_kernels *k, mlc_dtype dtype, mlc_pad_mode mode, int64_t n,
                       int64_t c, const int64_t *before, const int64_t *after, bool turned)
{
    struct mlc_k_pad a;
    int64_t          wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.mode = mode;
    a.ndim = 3;
    a.value = 3;
    a.in_shape[0] = n, a.in_shape[1] = 4, a.in_shape[2] = c;
    a.in_stride[0] = turned ? 1 : 4 * c;
    a.in_stride[1] = turned ? n : c;
    a.in_stride[2] = turned ? 4 * n : 1;
    for (int d = 0; d < 3; d++) {
        a.before[d] = before[d];
        a.shape[d] = before[d] + a.in_shape[d] + after[d];
    }
    const int64_t total = a.shape[0] * a.shape[1] * a.shape[2];
    void         *in = caged(0, (size_t)(4 * n * c) * size_of(dtype));
    whole_numbers(in, dtype, 4 * n * c, 5);
    a.in = in;
    a.out = caged(1, (size_t)total * size_of(dtype));
    if (k->pad(NULL, &a) != MLC_OK || !cage_holds(a.out))
        return false;
    for (int64_t i = 0; i < total; i++) {
        const int64_t at[3] = {i / a.shape[2] / a.shape[1], i / a.shape[2] % a.shape[1],
                               i % a.shape[2]};
        int64_t       from = 0;
        for (int d = 0; d < 3 && from >= 0; d++) {
            const int64_t s = pad_source(mode, at[d] - before[d], a.in_shape[d]);
            from = s < 0 ? -1 : from + s * a.in_stride[d];
        }
        wrong += get(a.out, dtype, i) !=
                 (from >= 0 ? get(in, dtype, from) : dtype == MLC_BOOL ? 1 : 3);
    }
    if (wrong)
        printf("  pad %s, mode %d, [%" PRId64 ",4,%" PRId64 "], turned %d\n",
               mlc_dtype_name(dtype), (int)mode, n, c, (int)turned);
    return wrong == 0;
}

TEST(backend, pad_kernels_touch_nothing_outside)
{
    static const int64_t before[][3] = {{0, 0, 0}, {1, 2, 3}, {0, 1, 0}, {2, 0, 1}, {-1, 2, -3}};
    static const int64_t after[][3] = {{0, 0, 0}, {2, 3, 1}, {1, 2, 0}, {0, 0, 2}, {1, -4, 4}};
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int mode = 0; mode <= (int)MLC_PAD_CIRCULAR; mode++)
                for (int form = 0; form < (mode ? 16 : 20); form++)
                    if (!CHECK(pad_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                          (mlc_pad_mode)mode, 3, form & 1 ? 5 : 70,
                                          before[form / 4], after[form / 4], (form & 2) != 0)))
                        return;
}

/* Many equal ones; of floats every seventh is special.                                        */
static double sort_value(mlc_dtype dtype, int64_t i)
{
    const bool floats = dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 ||
                        dtype == MLC_F16;
    const double v = (double)(i * 37 % 23);
    if (floats && i % 7 == 3)
        return SPECIAL[i % 7 + i / 7 % 5];
    return dtype == MLC_U8 || dtype == MLC_BOOL ? v : v - 11;
}

/* Is x before y? NaNs are the largest, and equal.                                             */
static bool sort_before(double x, double y, bool descending)
{
    if (isnan(x) || isnan(y))
        return descending ? isnan(x) && !isnan(y) : !isnan(x) && isnan(y);
    return descending ? x > y : x < y;
}

/* The axis is the last or the first; which: 1 values, 2 indices, 3 both.                      */
static bool sort_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t n, int64_t top,
                        bool descending, bool last, int which)
{
    struct mlc_k_sort a;
    int64_t          *order = (int64_t *)malloc((size_t)n * sizeof *order), wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.ndim = 2;
    a.axis = last;
    a.descending = descending;
    a.shape[0] = last ? rows : n;
    a.shape[1] = last ? n : rows;
    a.k = top;
    a.in_stride[0] = a.shape[1];
    a.values_stride[0] = a.index_stride[0] = last ? top : rows;
    a.in_stride[1] = a.values_stride[1] = a.index_stride[1] = 1;
    void *in = caged(0, (size_t)(rows * n) * size_of(dtype));
    for (int64_t i = 0; i < rows * n; i++)
        put(in, dtype, i, sort_value(dtype, i));
    a.in = in;
    a.values = caged(1, (size_t)(rows * top) * size_of(dtype));
    int64_t *index = a.index = (int64_t *)caged(2, (size_t)(rows * top) * 8);
    void    *values = a.values;
    if (!(which & 1))
        a.values = NULL;
    if (!(which & 2))
        a.index = NULL;
    a.workspace_bytes = (k->sort_workspace(NULL, &a) + 63) / 64 * 64;
    a.workspace = caged(5, a.workspace_bytes);
    if (k->sort(NULL, &a) != MLC_OK || !cage_holds(index) || !cage_holds(values) ||
        !cage_holds(a.workspace))
        wrong = 1;
    for (int64_t r = 0; r < rows && order != NULL; r++) {
        for (int64_t i = 0; i < n; i++) {                  /* insertion sort, which is stable  */
            const double x = get(in, dtype, i * a.in_stride[last] + r * a.in_stride[!last]);
            int64_t      at = i;
            for (; at > 0; at--) {
                const int64_t p = order[at - 1];
                if (!sort_before(x, get(in, dtype, p * a.in_stride[last] +
                                                       r * a.in_stride[!last]), descending))
                    break;
                order[at] = p;
            }
            order[at] = i;
        }
        for (int64_t i = 0; i < top; i++) {
            const int64_t at = i * a.index_stride[last] + r * a.index_stride[!last];
            const int64_t from = order[i] * a.in_stride[last] + r * a.in_stride[!last];
            wrong += (which & 2) && index[at] != order[i];
            wrong += (which & 1) && memcmp((char *)values + (size_t)at * size_of(dtype),
                                           (char *)in + (size_t)from * size_of(dtype),
                                           size_of(dtype)) != 0;
        }
    }
    free(order);
    if (wrong)
        printf("  sort %s, %" PRId64 " of %" PRId64 " x %" PRId64 ", %s, axis %d, %d\n",
               mlc_dtype_name(dtype), top, rows, n, descending ? "descending" : "ascending", last,
               which);
    return wrong == 0;
}

TEST(backend, sort_kernels_touch_nothing_outside)
{
    static const int64_t LONG[] = {128, 257, 1000};
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t i = 1; i <= 70 + 3; i += test_stride(9)) {
                const int64_t n = i <= 70 ? i : LONG[i - 71];
                for (int form = 0; form < 8; form++) {
                    const int64_t top = form % 4 == 0 ? n : form % 4 == 1 ? 1 : 1 + n * form / 9;
                    if (!CHECK(sort_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                           1 + n % 3, n, top, form & 1, form & 4, 1 + form % 3)))
                        return;
                }
            }
}
