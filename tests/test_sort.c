/* test_sort.c -- tests of IMPL.OPS.SORT and its kernel: sort, argsort, topk
 *
 * The reference is a merge sort in doubles with the order that the header promises. Rows are
 * short, long and in between, with many equals and with few, of every dtype, along every axis of
 * tensors that lie as they are, transposed, with holes and expanded. Gradients by central
 * differences and by the places. Then what is wrong.
 */
#include "mlc_test.h"

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};
#define DTYPES ((int)(sizeof ALL / sizeof *ALL))
#define MOST   40000                   /* elements of the largest tensor here                  */

static bool is_float(mlc_dtype d)
{
    return d == MLC_F32 || d == MLC_F64 || d == MLC_BF16 || d == MLC_F16;
}

static int64_t count(mlc_dims d)
{
    int64_t n = 1;
    for (int32_t i = 0; i < d.n; i++) n *= d.v[i];
    return n;
}

/* ---- the reference ------------------------------------------------------------------------ */

/* Does a come after b in ascending order? NaN is the largest, and no larger than itself. */
static bool after(double a, double b)
{
    return isnan(a) ? !isnan(b) : a > b;
}

/* order[j] = place of the j-th element of n. A merge sort: stable, quick enough for long rows. */
static void ref_order(const double *v, int64_t stride, int64_t n, bool descending, int64_t *order)
{
    static int64_t other[MOST];
    int64_t       *from = order, *to = other;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t at = 0; at < n; at += 2 * run) {
            int64_t i = at, mid = at + run < n ? at + run : n, j = mid;
            int64_t end = at + 2 * run < n ? at + 2 * run : n;
            for (int64_t k = at; k < end; k++) {
                bool right = i == mid;
                if (i < mid && j < end) {
                    double a = v[from[i] * stride], b = v[from[j] * stride];
                    right = descending ? after(b, a) : after(a, b);
                }
                to[k] = right ? from[j++] : from[i++];
            }
        }
        int64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order) memcpy(order, from, (size_t)n * sizeof *order);
}

/* The k first along an axis, values and places, of the shape that the operation gives them. */
static int64_t ref_sort(const double *v, mlc_dims d, int32_t axis, bool descending, int64_t k,
                        double *values, double *places)
{
    static int64_t order[MOST];
    int64_t        outer = 1, inner = 1, n = d.v[axis];
    for (int32_t i = 0; i < axis; i++) outer *= d.v[i];
    for (int32_t i = axis + 1; i < d.n; i++) inner *= d.v[i];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            const double *row = v + o * n * inner + i;
            ref_order(row, inner, n, descending, order);
            for (int64_t j = 0; j < k; j++) {
                values[(o * k + j) * inner + i] = row[order[j] * inner];
                places[(o * k + j) * inner + i] = (double)order[j];
            }
        }
    return outer * k * inner;
}

/* ---- values ------------------------------------------------------------------------------- */

/* Whole numbers of a range, so that every dtype holds them; a few NaN, infinities and zeros of both
 * signs among floats. */
static mlc_tensor *numbers(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims d, double range, double *v)
{
    for (int64_t i = 0; i < count(d); i++) {
        v[i] = floor(test_random(7, i, dtype == MLC_U8 || dtype == MLC_BOOL ? 0 : -range, range));
        if (dtype == MLC_BOOL) v[i] = fmod(v[i], 2);
        if (!is_float(dtype)) continue;
        int pick = (int)test_random(8, i, 0, 40);
        if (pick == 0) v[i] = (double)NAN;
        else if (pick < 3) v[i] = pick == 1 ? (double)INFINITY : -(double)INFINITY;
        else if (pick < 6) v[i] = pick == 3 ? 0.0 : -0.0;
    }
    return test_tensor(ctx, dtype, d, v);
}

/* The same tensor with other strides: 'T' stored transposed, 'S' every second of a larger one. */
static mlc_tensor *laid(mlc_tensor *t, char layout)
{
    if (layout == 'T' && t->ndim > 1)
        return mlc_transpose(mlc_contiguous(mlc_transpose(t, 0, -1)), 0, -1);
    if (layout == 'S' && t->ndim > 0) {
        mlc_dims wide = mlc_dims_of(t->ndim, t->shape);
        wide.v[t->ndim - 1] = 2 * wide.v[t->ndim - 1] + 1;
        mlc_tensor *part = mlc_slice(mlc_zeros(t->ctx, t->dtype, wide), -1, 1, INT64_MAX, 2);
        mlc_copy_into(part, t);
        return part;
    }
    return t;
}

/* The bits, not only the values: -0 stays -0, and a NaN keeps what it says. */
static bool same_bits(mlc_tensor *y, mlc_tensor *places, const mlc_tensor *x, int32_t axis)
{
    mlc_tensor *want = mlc_gather((mlc_tensor *)(uintptr_t)x, axis, places);
    size_t      bytes = (size_t)mlc_numel(y) * mlc_dtype_bytes(y->dtype);
    char       *a = (char *)malloc(bytes + 1), *b = (char *)malloc(bytes + 1);
    bool        same = want != NULL && mlc_read(y, a, bytes) == MLC_OK &&
                mlc_read(want, b, bytes) == MLC_OK && memcmp(a, b, bytes) == 0;
    free(a);
    free(b);
    return same;
}

static void check_sort(mlc_tensor *x, const double *v, int32_t axis, bool descending)
{
    static double values[MOST], places[MOST];
    mlc_dims      d = mlc_dims_of(x->ndim, x->shape);
    mlc_tensor   *where = NULL, *y = mlc_sort(x, axis, descending, &where);
    int64_t       n = ref_sort(v, d, axis, descending, d.v[axis], values, places);
    CHECK_VALUES(y, n, values, 0, 0);
    CHECK_VALUES(where, n, places, 0, 0);
    CHECK_VALUES(mlc_sort(x, axis - x->ndim, descending, NULL), n, values, 0, 0);
    CHECK_VALUES(mlc_argsort(x, axis, descending), n, places, 0, 0);
    CHECK(y != NULL && where != NULL && same_bits(y, where, x, axis));
    CHECK(y != NULL && y->dtype == x->dtype && where != NULL && where->dtype == MLC_I64);
}

static void check_topk(mlc_tensor *x, const double *v, int32_t axis, int64_t k, bool largest)
{
    static double values[MOST], places[MOST];
    mlc_dims      d = mlc_dims_of(x->ndim, x->shape);
    mlc_tensor   *where = NULL, *y = mlc_topk(x, k, axis, largest, &where);
    int64_t       n = ref_sort(v, d, axis, largest, k, values, places);
    CHECK_VALUES(y, n, values, 0, 0);
    CHECK_VALUES(where, n, places, 0, 0);
    CHECK_EQ(mlc_dim(y, axis), k);
}

TEST(sort, every_dtype_along_every_axis_in_every_layout)
{
    static double  v[MOST];
    const mlc_dims shapes[] = {mlc_dims1(1),        mlc_dims1(7),        mlc_dims2(3, 60),
                               mlc_dims2(70, 5),    mlc_dims3(4, 49, 3), mlc_dims4(2, 3, 1, 5),
                               mlc_dims3(1, 48, 2)};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < DTYPES; t++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (const char *layout = "DTS"; *layout; layout++)
                    for (int32_t axis = 0; axis < shapes[s].n; axis++) {
                        mlc_scope_begin(ctx);
                        mlc_tensor *x = laid(numbers(ctx, ALL[t], shapes[s], 9, v), *layout);
                        check_sort(x, v, axis, false);
                        check_sort(x, v, axis, true);
                        for (int64_t k = 0; k <= shapes[s].v[axis]; k += 1 + k * 2) {
                            check_topk(x, v, axis, k, true);
                            check_topk(x, v, axis, k, false);
                        }
                        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
                    }
}

/* Longer than a chunk of work, longer than 16 bits of places; few equals and many. */
TEST(sort, long_rows)
{
    static double  v[MOST];
    const mlc_dims shapes[] = {mlc_dims1(40000), mlc_dims2(3, 9001), mlc_dims2(9001, 3)};
    const double   ranges[] = {3, 100};
    mlc_ctx       *ctx = test_ctx();
    for (int t = 0; t < DTYPES; t++)
        for (size_t s = (size_t)(t % test_stride(3)); s < sizeof shapes / sizeof *shapes;
             s += (size_t)test_stride(3))
            for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
                mlc_scope_begin(ctx);
                mlc_tensor *x = numbers(ctx, ALL[t], shapes[s], ranges[r], v);
                int32_t     axis = shapes[s].v[0] == 9001 || shapes[s].n == 1 ? 0 : 1;
                check_sort(x, v, axis, t % 2 == 0);
                for (int64_t k = 1; k < 9001; k = k * 10 + 3) check_topk(x, v, axis, k, t % 3 != 0);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

/* All bytes of the key count: numbers over the whole range of the dtype. */
TEST(sort, the_whole_range_of_a_dtype)
{
    static double v[5000];
    mlc_ctx      *ctx = test_ctx();
    const double  top[DTYPES] = {0x1p127, 0x1p1000, 0x1p62, 0x1p100, 65504, 0x1p30, 127, 255, 2};
    for (int t = 0; t < DTYPES; t++)
        for (int64_t n = 40; n <= 5000; n *= 5) {
            mlc_scope_begin(ctx);
            for (int64_t i = 0; i < n; i++) {
                double e = test_random(4, i, -1, 1), r = test_random(3, i, -1, 1);
                v[i] = is_float(ALL[t]) ? r * pow(top[t], e) : floor(r * top[t]);
                if (ALL[t] == MLC_U8 || ALL[t] == MLC_BOOL) v[i] = floor((r + 1) / 2 * top[t]);
                char one[8];
                test_put(one, ALL[t], 0, v[i]);
                v[i] = test_get(one, ALL[t], 0);
            }
            mlc_tensor *x = test_tensor(ctx, ALL[t], mlc_dims1(n), v);
            check_sort(x, v, 0, false);
            check_sort(x, v, 0, true);
            check_topk(x, v, 0, n / 3, true);
            check_topk(x, v, 0, n / 3, false);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
}

/* Neighbours that differ in the last bit only, around 0 and at the ends; i64 beyond 2^53. */
TEST(sort, every_bit_counts)
{
    static const int64_t in[6] = {INT64_MAX, INT64_MIN, (1ll << 53) + 1, 1ll << 53, -1,
                                  INT64_MIN + 1};
    static const int64_t want[6] = {INT64_MIN, INT64_MIN + 1, -1, 1ll << 53, (1ll << 53) + 1,
                                    INT64_MAX};
    static const double  floats[7] = {0x1p-149, -0x1p-149, 0, 0x1p-148, -0x1p-148, 1, 0x1.000002p0};
    static const double  sorted[7] = {-0x1p-148, -0x1p-149, 0, 0x1p-149, 0x1p-148, 1, 0x1.000002p0};
    int64_t  got[6] = {0};
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_read(mlc_sort(mlc_from(ctx, MLC_I64, mlc_dims1(6), in), 0, false, NULL), got,
                      sizeof got), MLC_OK);
    CHECK(memcmp(got, want, sizeof got) == 0);
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(7), floats);
    CHECK_VALUES(mlc_sort(x, 0, false, NULL), 7, sorted, 0, 0);
    CHECK_OK(ctx);
}

/* NaNs of either sign and any payload are one value, and the largest. */
TEST(sort, nans_are_equal_and_last)
{
    const uint32_t     bits[6] = {0xFFC00001u, 0x7F800000u, 0x7FC00000u,
                                       0xFF800000u, 0x7F800001u, 0};
    static const double up[6] = {3, 5, 1, 0, 2, 4}, down[6] = {0, 2, 4, 1, 5, 3};
    mlc_ctx   *ctx = test_ctx();
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims1(6), bits);
    CHECK_VALUES(mlc_argsort(x, 0, false), 6, up, 0, 0);
    CHECK_VALUES(mlc_argsort(x, 0, true), 6, down, 0, 0);
    CHECK_OK(ctx);
}

/* Bytes other than 0 and 1 are true, and come out as 1. */
TEST(sort, any_true_is_true)
{
    static const uint8_t in[4] = {7, 0, 255, 1};
    static const uint8_t want[4] = {0, 1, 1, 1};
    static const double  places[4] = {1, 0, 2, 3};
    uint8_t     got[4];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *where = NULL;
    mlc_tensor *y = mlc_sort(mlc_from(ctx, MLC_BOOL, mlc_dims1(4), in), 0, false, &where);
    CHECK_EQ(mlc_read(y, got, 4), MLC_OK);
    CHECK(memcmp(got, want, 4) == 0);
    CHECK_VALUES(where, 4, places, 0, 0);
}

TEST(sort, scalars_empty_and_expanded_inputs)
{
    static const double one[1] = {5}, zero[1] = {0}, row[3] = {2, 1, 3};
    static const double sorted[6] = {1, 2, 3, 1, 2, 3}, same[6] = {0, 1, 0, 1, 0, 1};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *where = NULL, *x = test_tensor(ctx, MLC_F32, mlc_dims0(), one), *y;
    y = mlc_sort(x, -1, true, &where);
    CHECK_VALUES(y, 1, one, 0, 0);
    CHECK_VALUES(where, 1, zero, 0, 0);
    CHECK(y != NULL && y->ndim == 0);
    CHECK_VALUES(mlc_topk(x, 1, 0, true, NULL), 1, one, 0, 0);
    x = mlc_expand(test_tensor(ctx, MLC_F32, mlc_dims1(3), row), mlc_dims2(2, 3));
    CHECK_VALUES(mlc_sort(x, 1, false, NULL), 6, sorted, 0, 0);
    x = mlc_transpose(x, 0, 1);
    CHECK_VALUES(mlc_argsort(x, 1, false), 6, same, 0, 0);             /* all equal */
    x = mlc_zeros(ctx, MLC_I32, mlc_dims3(2, 0, 3));
    for (int32_t axis = 0; axis < 3; axis++) {
        y = mlc_sort(x, axis, false, &where);
        CHECK(y != NULL && mlc_numel(y) == 0 && mlc_dim(y, 0) == 2 && mlc_dim(y, 2) == 3);
        CHECK(where != NULL && mlc_numel(where) == 0);
    }
    y = mlc_topk(x, 0, 1, true, &where);
    CHECK(y != NULL && mlc_numel(y) == 0);
    y = mlc_topk(mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3)), 0, 1, true, &where);
    CHECK(y != NULL && mlc_dim(y, 0) == 2 && mlc_dim(y, 1) == 0 && mlc_dim(where, 1) == 0);
    CHECK_OK(ctx);
}

TEST(sort, bits_do_not_depend_on_the_number_of_threads)
{
    static int64_t got[2][100000];
    for (int threads = 1; threads <= 4; threads++) {
        mlc_ctx_desc d = test_desc();
        d.threads = threads;
        mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
        mlc_tensor *x = test_rand(ctx, MLC_F16, mlc_dims2(500, 200), 5, -2, 2);
        CHECK_EQ(mlc_read(mlc_argsort(x, 1, false), got[threads > 1], sizeof got[0]), MLC_OK);
        CHECK(threads == 1 || memcmp(got[0], got[1], sizeof got[0]) == 0);
    }
}

/* ---- gradients ---------------------------------------------------------------------------- */

typedef struct sort_case {
    const char *name;
    int32_t     axis;
    int64_t     k;                     /* 0: sort                                              */
    bool        down;
} sort_case;

static const sort_case grad_cases[] = {
    {"mlc_sort", 0, 0, false}, {"mlc_sort", 1, 0, true}, {"mlc_sort", 2, 0, false},
    {"mlc_topk", 0, 1, true},  {"mlc_topk", 1, 3, false}, {"mlc_topk", 2, 2, true},
};

static mlc_tensor *call_sort(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const sort_case *c = (const sort_case *)user;
    (void)n_in;
    mlc_tensor *where = NULL;
    mlc_tensor *y = c->k ? mlc_topk(in[0], c->k, c->axis, c->down, c->axis ? &where : NULL)
                         : mlc_sort(in[0], c->axis, c->down, NULL);
    return mlc_mul(y, y);
}

TEST(sort, gradients_agree_with_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (size_t c = 0; c < sizeof grad_cases / sizeof *grad_cases; c++)
        for (const char *layout = "DTS"; *layout; layout++) {
            mlc_gradcheck_report r;
            mlc_tensor *x = laid(test_rand(ctx, MLC_F64, mlc_dims3(2, 4, 5), 11, -3, 3), *layout);
            x = mlc_detach(x);
            CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
            CHECK_EQ(mlc_gradcheck(call_sort, (void *)(uintptr_t)&grad_cases[c], &x, 1, NULL, &r),
                     MLC_OK);
            CHECK(r.ok);
        }
    CHECK_OK(ctx);
}

/* Each element's gradient is that of the place it went to; two uses add; those left out get 0. */
TEST(sort, gradients_go_back_to_where_values_came_from)
{
    static const double v[6] = {3, 1, 2, 4, 6, 5}, dy[6] = {10, 20, 30, 40, 50, 60};
    static const double sorted[6] = {30, 10, 20, 40, 60, 50}, top[6] = {31, 10, 21, 40, 61, 51};
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    for (int t = 0; t < 4; t++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *x = test_tensor(ctx, floats[t], mlc_dims2(2, 3), v), *where = NULL;
        mlc_tensor *g = test_tensor(ctx, floats[t], mlc_dims2(2, 3), dy);
        CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
        mlc_tensor *y = mlc_sort(x, 1, false, &where);
        CHECK(where != NULL && !mlc_requires_grad(where) && mlc_requires_grad(y));
        CHECK_EQ(mlc_backward_from(y, g), MLC_OK);
        CHECK_VALUES(mlc_grad(x), 6, sorted, 0, 0);
        CHECK_EQ(mlc_backward_from(mlc_topk(x, 2, 1, true, NULL), NULL), MLC_OK);
        CHECK_VALUES(mlc_grad(x), 6, top, 0, 0);
        CHECK(mlc_argsort(x, 1, false) != NULL);
        CHECK_OK(ctx);
    }
}

TEST(sort, indices_that_were_overwritten_are_noticed)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims1(9), 1, 0, 1), *where = NULL;
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    mlc_tensor *y = mlc_sort(x, 0, false, &where);
    mlc_copy_into(where, mlc_zeros(ctx, MLC_I64, mlc_dims1(9)));
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "sort");
    mlc_error_clear(ctx);
}

/* ---- what is wrong ------------------------------------------------------------------------ */

TEST(sort, bad_arguments_are_named)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3)), *where = x;
    CHECK(mlc_sort(x, 2, false, &where) == NULL && where == NULL);
    CHECK_STR(mlc_error(ctx), "sort: [2,3] has no axis 2; its axes are -2 to 1");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_argsort(x, -3, false) == NULL);
    CHECK_STR(mlc_error(ctx), "argsort: [2,3] has no axis -3; its axes are -2 to 1");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_argsort(mlc_zeros(ctx, MLC_F32, mlc_dims0()), 1, false) == NULL);
    CHECK_STR(mlc_error(ctx), "argsort: [] has no axis 1; it is a scalar");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    where = x;
    CHECK(mlc_topk(x, 4, 1, true, &where) == NULL && where == NULL);
    CHECK_STR(mlc_error(ctx), "topk: k is 4, axis 1 of [2,3] has only 3 elements; k may be at most "
                              "that");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    where = x;
    CHECK(mlc_topk(x, -1, 1, true, &where) == NULL && where == NULL);
    CHECK_STR(mlc_error(ctx), "topk: k is -1; it must not be negative");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    where = x;
    CHECK(mlc_sort(NULL, 0, false, &where) == NULL && where == NULL);
    CHECK(mlc_argsort(NULL, 0, false) == NULL);                        /* "mlc_argsort" */
    CHECK(mlc_topk(NULL, 1, 0, false, NULL) == NULL);
    CHECK_OK(ctx);
}
