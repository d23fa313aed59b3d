/* test_index.c -- tests of IMPL.OPS.INDEX and its kernels: gather, scatter, select, nonzero, band
 *
 * A naive reference in double over small whole numbers, which all dtypes hold; each operation at
 * sizes that are cut in chunks and that are not, with inputs as they are, transposed, with holes
 * and expanded. Gradients by central differences, also where indices occur more than once. Then
 * what is wrong: indices out of range, shapes, dtypes.
 */
#include "mlc_test.h"

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};
#define DTYPES ((int)(sizeof ALL / sizeof *ALL))
#define NUMBERS(...) ((const double[]){__VA_ARGS__})
#define MOST   60000                   /* elements of the largest tensor here                  */

typedef struct grid {                  /* a dense tensor of the reference                      */
    mlc_dims d;
    double  *v;
} grid;

static int64_t count(mlc_dims d)
{
    int64_t n = 1;
    for (int32_t i = 0; i < d.n; i++) n *= d.v[i];
    return n;
}

/* Three at a time. */
static grid make(int slot, mlc_dims d)
{
    static double room[4][MOST];
    grid g;
    g.d = d;
    g.v = room[slot];
    if (count(d) > MOST) abort();
    return g;
}

/* Whole numbers from lo to hi - 1. */
static grid make_whole(int slot, mlc_dims d, uint64_t seed, double lo, double hi)
{
    grid g = make(slot, d);
    for (int64_t i = 0; i < count(d); i++) g.v[i] = floor(test_random(seed, i, lo, hi));
    return g;
}

/* Where element i of the index's shape is in g, with `at` on the axis if at >= 0. */
static int64_t place(const grid *g, mlc_dims index, int64_t i, int32_t axis, int64_t at)
{
    int64_t to = 0, step = 1;
    for (int32_t d = index.n; d-- > 0; i /= index.v[d]) {
        to += (d == axis && at >= 0 ? at : i % index.v[d]) * step;
        step *= g->d.v[d];
    }
    return to;
}

/* The same tensor with other strides: 'T' stored transposed, 'S' every second of a larger one. */
static mlc_tensor *laid(mlc_ctx *ctx, mlc_dtype dtype, const grid *g, char layout)
{
    mlc_dims    d = g->d;
    mlc_tensor *t = test_tensor(ctx, dtype, d, g->v);
    if (layout == 'T' && d.n > 1)
        return mlc_transpose(mlc_contiguous(mlc_transpose(t, 0, -1)), 0, -1);
    if (layout == 'S' && d.n > 0) {
        mlc_dims wide = d;
        wide.v[d.n - 1] = 2 * d.v[d.n - 1] + 1;
        mlc_tensor *w = mlc_zeros(ctx, dtype, wide), *part = mlc_slice(w, -1, 1, INT64_MAX, 2);
        mlc_copy_into(part, t);
        return part;
    }
    return t;
}

/* ---- values ------------------------------------------------------------------------------- */

typedef struct index_case {
    const char *x, *index, *src;       /* shapes                                               */
    int32_t     axis;
} index_case;

static const index_case CASES[] = {
    {"7", "5", "5", 0},
    {"7", "20", "31", 0},
    {"4,5", "4,3", "4,3", 1},
    {"4,5", "2,9", "3,9", 1},
    {"4,5", "6,5", "6,5", 0},
    {"4,5", "3,2", "8,4", 0},
    {"3,4,5", "3,4,5", "3,4,5", 1},
    {"3,4,5", "2,7,5", "2,7,6", -2},
    {"3,4,5", "3,4,9", "3,4,9", 2},
    {"3,4,5", "9,3,4", "9,4,4", 0},
    {"2,3,2,3", "2,3,4,1", "2,3,4,2", 2},
    {"1,1", "1,1", "1,1", 0},
    {"", "", "", 0},
    {"", "", "", -1},
    {"4,5", "4,0", "4,0", 1},
    {"4,0", "3,0", "3,0", 0},
    {"3,2000", "5,2000", "5,2000", 0},                     /* several chunks each               */
    {"2000,3", "2000,9", "2000,9", 1},
    {"50,400", "130,400", "130,400", 0},
    {"23", "40000", "40000", 0},
};
#define CASE_COUNT ((int)(sizeof CASES / sizeof *CASES))

static mlc_dims dims_of(const char *text)
{
    mlc_dims d = mlc_dims0();
    while (*text != 0) {
        char *end;
        d.v[d.n++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    return d;
}

/* Indices into the axis, many of them more than once. */
static grid make_index(const index_case *c, grid x)
{
    int32_t axis = c->axis < 0 ? c->axis + (x.d.n ? x.d.n : 1) : c->axis;
    return make_whole(1, dims_of(c->index), 3, 0, x.d.n ? (double)x.d.v[axis] : 1);
}

static const char LAYOUTS[][4] = {"...", "TTT", "SSS", "T.S", ".TT"};

static void check_case(mlc_ctx *ctx, const index_case *c, mlc_dtype dtype, const char *layout)
{
    const bool bits = dtype == MLC_BOOL;
    grid       x = make_whole(0, dims_of(c->x), 1, 0, bits ? 2 : 50), index = make_index(c, x);
    grid       src = make_whole(2, dims_of(c->src), 2, 0, bits ? 2 : 3), want = make(3, index.d);
    int32_t    axis = c->axis < 0 ? c->axis + x.d.n : c->axis;
    mlc_tensor *t = laid(ctx, dtype, &x, layout[0]), *i = laid(ctx, MLC_I64, &index, layout[1]);
    mlc_tensor *s = laid(ctx, dtype, &src, layout[2]);
    const int64_t n = count(index.d), nx = count(x.d);
    for (int64_t e = 0; e < n; e++)
        want.v[e] = x.v[place(&x, index.d, e, axis, (int64_t)index.v[e])];
    CHECK_VALUES(mlc_gather(t, c->axis, i), n, want.v, 0, 0);
    memcpy(want.v, x.v, (size_t)nx * sizeof *want.v);
    for (int64_t e = 0; e < n; e++)
        want.v[place(&x, index.d, e, axis, (int64_t)index.v[e])] =
            src.v[place(&src, index.d, e, axis, -1)];
    CHECK_VALUES(mlc_scatter(t, c->axis, i, s), nx, want.v, 0, 0);
    CHECK_VALUES(mlc_scatter_(mlc_copy(t), c->axis, i, s), nx, want.v, 0, 0);
    CHECK_VALUES(t, nx, x.v, 0, 0);
    if (bits || mlc_dtype_bytes(dtype) == 1 || n / (nx + 1) > 100)
        return;                        /* sums that do not fit: they have tests of their own   */
    memcpy(want.v, x.v, (size_t)nx * sizeof *want.v);
    for (int64_t e = 0; e < n; e++)
        want.v[place(&x, index.d, e, axis, (int64_t)index.v[e])] +=
            src.v[place(&src, index.d, e, axis, -1)];
    CHECK_VALUES(mlc_scatter_add(t, c->axis, i, s), nx, want.v, 0, 0);
    CHECK_VALUES(mlc_scatter_add_(mlc_copy(t), c->axis, i, s), nx, want.v, 0, 0);
    CHECK_OK(ctx);
}

TEST(index, gather_and_scatter_agree_with_a_plain_loop_for_each_dtype_and_layout)
{
    FOR_EACH_ISA(ctx)
        for (int c = 0; c < CASE_COUNT; c++)
            for (int k = 0; k < DTYPES; k++) {
                mlc_scope_begin(ctx);
                const bool large = count(dims_of(CASES[c].index)) > 5000;
                for (int l = k % (int)test_stride(2); l < (large ? 2 : 5); l += (int)test_stride(2))
                    check_case(ctx, &CASES[c], ALL[k], LAYOUTS[l]);
                mlc_scope_end(ctx);
            }
}

TEST(index, rows_are_selected_along_each_axis)
{
    static const double rows[] = {2, 0, 0, 1, 2, 2, 0};
    const mlc_dims      d = mlc_dims3(3, 3, 3);
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < DTYPES; k++)
            for (int32_t axis = 0; axis < 3; axis++) {
                grid        x = make_whole(0, d, 1, 0, k == DTYPES - 1 ? 2 : 90);
                mlc_dims    to = d;
                to.v[axis] = 7;
                grid        want = make(3, to);
                mlc_tensor *i = test_tensor(ctx, MLC_I64, mlc_dims1(7), rows);
                for (int64_t e = 0; e < 63; e++) {
                    int64_t at = e;
                    for (int32_t b = 2; b > axis; b--) at /= 3;
                    want.v[e] = x.v[place(&x, to, e, axis, (int64_t)rows[at % 7])];
                }
                for (int l = 0; l < 3; l++)
                    CHECK_VALUES(mlc_index_select(laid(ctx, ALL[k], &x, LAYOUTS[l][0]), axis - 3,
                                                  i), 63, want.v, 0, 0);
                CHECK_OK(ctx);
            }
}

/* As numpy.take(x, index, axis): the index's axes in place of that axis, of none, one and two. */
TEST(index, an_index_of_any_shape_selects_rows)
{
    static const double at[6] = {3, 0, 1, 1, 3, 2};
    static const int32_t axes_of[4] = {0, 1, 2, 2};
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < 4; k++)
            for (int32_t axis = 0; axis < 2; axis++) {
                const bool     turned = k == 3;        /* by stride                            */
                const mlc_dims two = turned ? mlc_dims2(3, 2) : mlc_dims2(2, 3);
                const int64_t  n = axes_of[k] == 0 ? 1 : axes_of[k] == 1 ? 4 : 6;
                mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(4, 4), 5, -1, 1);
                mlc_tensor *index = test_tensor(ctx, MLC_I64, axes_of[k] == 0 ? mlc_dims0() :
                                                axes_of[k] == 1 ? mlc_dims1(4) : two, at);
                double      want[24], v[16], grad[16] = {0};
                if (turned) index = mlc_transpose(index, 0, 1);
                CHECK(test_read(x, v));
                mlc_set_requires_grad(x, true);
                mlc_tensor *y = mlc_index_select(x, axis - 2, index);
                for (int64_t i = 0; i < n; i++) {
                    const int row = (int)at[turned ? i % 3 * 2 + i / 3 : i];
                    for (int c = 0; c < 4; c++) {
                        const int from = axis == 0 ? row * 4 + c : c * 4 + row;
                        want[axis == 0 ? i * 4 + c : c * n + i] = v[from];
                        grad[from] += 1;
                    }
                }
                CHECK_VALUES(y, 4 * n, want, 0, 0);
                CHECK_EQ(y->ndim, 1 + axes_of[k]);
                CHECK_EQ(mlc_dim(y, axis == 0 ? -1 : 0), 4);
                if (axes_of[k] == 2) CHECK_EQ(mlc_dim(y, axis), 2);
                CHECK_EQ(mlc_backward_from(y, mlc_detach(mlc_add_scalar(mlc_mul_scalar(y, 0), 1))),
                         MLC_OK);
                CHECK_VALUES(mlc_grad(x), 16, grad, 0, 0);
                CHECK_OK(ctx);
            }
}

TEST(index, long_rows_and_many_rows_are_selected_and_added)
{
    enum { N = 300, C = 150, K = 350 };
    FOR_EACH_ISA(ctx) {
        grid x = make_whole(0, mlc_dims2(N, C), 1, 0, 50), i = make_whole(1, mlc_dims1(K), 2, 0, N);
        grid want = make(2, mlc_dims2(K, C)), grad = make(3, mlc_dims2(N, C));
        mlc_tensor *t = test_tensor(ctx, MLC_F32, x.d, x.v), *y;
        memset(grad.v, 0, sizeof(double) * N * C);
        for (int64_t e = 0; e < K * C; e++) {
            want.v[e] = x.v[(int64_t)i.v[e / C] * C + e % C];
            grad.v[(int64_t)i.v[e / C] * C + e % C] += want.v[e];
        }
        mlc_set_requires_grad(t, true);
        y = mlc_index_select(t, 0, test_tensor(ctx, MLC_I64, i.d, i.v));
        CHECK_VALUES(y, K * C, want.v, 0, 0);
        CHECK_EQ(mlc_backward_from(y, mlc_detach(y)), MLC_OK);
        CHECK_VALUES(mlc_grad(t), N * C, grad.v, 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(index, take_counts_elements_row_by_row)
{
    static const double v[] = {0, 1, 2, 3, 4, 5}, at[] = {5, 0, 0, 3}, want[] = {5, 0, 0, 3};
    static const double turned[] = {0, 2, 4, 1, 3, 5}, want_turned[] = {5, 0, 0, 1};
    mlc_ctx            *ctx = test_ctx();
    for (int k = 0; k < DTYPES - 1; k++) {
        mlc_tensor *x = test_tensor(ctx, ALL[k], mlc_dims2(3, 2), v), *y;
        mlc_tensor *i = test_tensor(ctx, MLC_I64, mlc_dims2(2, 2), at);
        y = mlc_take(x, i);
        CHECK_VALUES(y, 4, want, 0, 0);
        CHECK(y != NULL && y->ndim == 2 && y->shape[0] == 2);
        CHECK_VALUES(mlc_transpose(x, 0, 1), 6, turned, 0, 0);
        CHECK_VALUES(mlc_take(mlc_transpose(x, 0, 1), i), 4, want_turned, 0, 0);
    }
    CHECK_EQ(mlc_numel(mlc_take(mlc_zeros(ctx, MLC_F32, mlc_dims1(0)),
                                mlc_zeros(ctx, MLC_I64, mlc_dims1(0)))), 0);
    CHECK_VALUES(mlc_take(mlc_full(ctx, MLC_F32, mlc_dims0(), 3),
                          mlc_zeros(ctx, MLC_I64, mlc_dims0())), 1, want + 3, 0, 0);
    CHECK_OK(ctx);
}

/* ---- sums --------------------------------------------------------------------------------- */

TEST(index, sums_of_16_bit_floats_are_rounded_once)
{
    static const mlc_dtype halves[] = {MLC_BF16, MLC_F16};
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < 2; k++) {
            double      big = k ? 2048 : 256, want = big + 300;        /* +1 is lost each time  */
            mlc_tensor *x = mlc_full(ctx, halves[k], mlc_dims1(1), big), *y;
            mlc_tensor *i = mlc_zeros(ctx, MLC_I64, mlc_dims1(300));
            y = mlc_scatter_add(x, 0, i, mlc_ones(ctx, halves[k], mlc_dims1(300)));
            CHECK_NEAR(mlc_item(y), want, k ? 1 : 2);
            CHECK_OK(ctx);
        }
}

TEST(index, integer_sums_wrap_and_bools_are_joined_by_or)
{
    static const double zero[] = {0, 0, 0}, ones[] = {0, 1, 1}, many[] = {200, 100, 50};
    static const double u8[] = {(200 + 100 + 50) % 256, 0}, either[] = {1, 0};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *i = test_tensor(ctx, MLC_I64, mlc_dims1(3), zero);
    CHECK_VALUES(mlc_scatter_add(mlc_zeros(ctx, MLC_U8, mlc_dims1(2)), 0, i,
                                 test_tensor(ctx, MLC_U8, mlc_dims1(3), many)), 2, u8, 0, 0);
    CHECK_VALUES(mlc_scatter_add(mlc_zeros(ctx, MLC_BOOL, mlc_dims1(2)), 0, i,
                                 test_tensor(ctx, MLC_BOOL, mlc_dims1(3), ones)), 2, either, 0, 0);
    CHECK_VALUES(mlc_scatter_add(mlc_full(ctx, MLC_I8, mlc_dims1(2), 127), 0, i,
                                 mlc_ones(ctx, MLC_I8, mlc_dims1(3))), 2,
                 NUMBERS(-126, 127), 0, 0);
    CHECK_OK(ctx);
}

/* Sums in f32 of values whose order matters. */
static void sums(int32_t threads, int64_t n, int64_t c, int32_t axis, float *out)
{
    mlc_ctx_desc d = test_desc();
    d.threads = threads;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_tensor *src = test_rand(ctx, MLC_F32, mlc_dims2(n, c), 1, -1e6, 1e6);
    mlc_tensor *i = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(n, c), 2, 0, 20), MLC_I64);
    mlc_dims    to = mlc_dims2(axis == 0 ? 20 : n, axis == 1 ? 20 : c);
    mlc_tensor *y = mlc_scatter_add(mlc_zeros(ctx, MLC_F32, to), axis, i, src);
    CHECK_EQ(mlc_read(y, out, (size_t)mlc_numel(y) * 4), MLC_OK);
    y = mlc_index_select(src, 1, mlc_arange(ctx, MLC_I64, (double)c - 1, -1, -1));
    CHECK_EQ(mlc_read(y, out + count(to), (size_t)(n * c) * 4), MLC_OK);
    mlc_ctx_free(ctx);                 /* not at the test's end: 32 bits hold few devices      */
}

TEST(index, bits_do_not_depend_on_the_number_of_threads)
{
    static float one[600000], many[600000];
    static const int64_t shapes[][2] = {{300, 500}, {5000, 10}, {20000, 1}, {7, 20000}};
    for (int s = 0; s < 4; s++)
        for (int32_t axis = 0; axis < 2; axis++)
            for (int32_t threads = 2; threads < 5; threads += 2) {
                const int64_t n = shapes[s][0], c = shapes[s][1];
                const size_t  bytes = (size_t)(n * c + 20 * (axis ? n : c)) * 4;
                if (!CHECK(bytes <= sizeof one))
                    return;
                sums(1, n, c, axis, one);
                sums(threads, n, c, axis, many);
                CHECK(memcmp(one, many, bytes) == 0);
            }
}

/* ---- gradients ---------------------------------------------------------------------------- */

typedef struct grad_case {
    const char *name;
    const char *x, *index, *src;
    int32_t     axis;
} grad_case;

static const grad_case GRADS[] = {
    {"mlc_gather", "4,5", "2,9", "", 1},
    {"mlc_gather", "3,4,2", "3,9,2", "", 1},
    {"mlc_gather", "", "", "", 0},
    {"mlc_scatter", "4,5", "2,9", "3,9", 1},
    {"mlc_scatter", "5", "9", "9", 0},
    {"mlc_scatter_add", "4,5", "2,9", "3,9", 1},
    {"mlc_scatter_add", "5,3", "9,2", "9,4", 0},
    {"mlc_scatter_", "4,5", "2,9", "3,9", 1},
    {"mlc_scatter_add_", "4,5", "2,9", "3,9", 1},
    {"mlc_index_select", "4,5", "9", "", 1},
    {"mlc_index_select", "4,5", "9", "", 0},
    {"mlc_take", "4,5", "2,6", "", 0},
    {"mlc_masked_select", "4,5", "", "", 0},
    {"mlc_tril", "2,4,5", "", "", 1},
    {"mlc_triu", "5,3", "", "", -1},
};
#define GRAD_COUNT ((int)(sizeof GRADS / sizeof *GRADS))

typedef struct grad_user {
    const grad_case *c;
    mlc_tensor      *index;            /* or the mask                                          */
} grad_user;

static mlc_tensor *grad_call(const grad_user *u, mlc_tensor *x, mlc_tensor *src)
{
    const char *name = u->c->name + 4;
    int32_t     axis = u->c->axis;
    if (strcmp(name, "gather") == 0) return mlc_gather(x, axis, u->index);
    if (strcmp(name, "scatter") == 0) return mlc_scatter(x, axis, u->index, src);
    if (strcmp(name, "scatter_add") == 0) return mlc_scatter_add(x, axis, u->index, src);
    if (strcmp(name, "scatter_") == 0)
        return mlc_scatter_(mlc_mul_scalar(x, 2), axis, u->index, src);
    if (strcmp(name, "scatter_add_") == 0)
        return mlc_scatter_add_(mlc_mul_scalar(x, 2), axis, u->index, src);
    if (strcmp(name, "index_select") == 0) return mlc_index_select(x, axis, u->index);
    if (strcmp(name, "take") == 0) return mlc_take(x, u->index);
    if (strcmp(name, "masked_select") == 0) return mlc_masked_select(x, u->index);
    return strcmp(name, "tril") == 0 ? mlc_tril(x, axis) : mlc_triu(x, axis);
}

/* x is used before as well, so that its gradient is added to; the sum tells elements apart. */
static mlc_tensor *grad_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    mlc_tensor *y = grad_call((const grad_user *)user, in[0], n_in > 1 ? in[1] : NULL);
    mlc_tensor *w = y ? test_rand(y->ctx, MLC_F64, mlc_dims_of(y->ndim, y->shape), 9, 0.5, 1.5)
                      : NULL;
    mlc_tensor *more = mlc_sum(mlc_mul(in[0], in[0]), mlc_dims0(), false);
    return mlc_add(mlc_sum(mlc_mul(mlc_mul(y, y), w), mlc_dims0(), false), more);
}

TEST(index, gradients_match_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 2 * GRAD_COUNT; k++) {
        grad_user            u = {&GRADS[k / 2], NULL};
        mlc_dims             d = dims_of(u.c->x);
        mlc_gradcheck_report r;
        mlc_tensor          *in[2];
        double               limit = d.n == 0 ? 1 : u.c->axis < 0 ? 1 : (double)d.v[u.c->axis];
        int32_t              n = *u.c->src ? 2 : 1;
        mlc_scope_begin(ctx);
        in[0] = test_rand(ctx, MLC_F64, d, 1, -2, 2);
        if (k % 2 && d.n > 1)          /* as a permuted leaf                                   */
            in[0] = mlc_detach(mlc_transpose(in[0], 0, -1));
        if (k % 2 && d.n > 1) {
            int64_t first = d.v[0];
            d.v[0] = d.v[d.n - 1];
            d.v[d.n - 1] = first;
            in[0] = mlc_detach(mlc_transpose(test_rand(ctx, MLC_F64, d, 1, -2, 2), 0, -1));
        }
        in[1] = n > 1 ? test_rand(ctx, MLC_F64, dims_of(u.c->src), 2, -2, 2) : NULL;
        u.index = mlc_cast(test_rand(ctx, MLC_F64, dims_of(u.c->index), 3, 0, limit), MLC_I64);
        if (strcmp(u.c->name, "mlc_masked_select") == 0)
            u.index = mlc_gt_scalar(test_rand(ctx, MLC_F64, mlc_dims2(2, 5), 3, -1, 1), 0),
            u.index = mlc_select(u.index, 0, 0);
        for (int32_t i = 0; i < n; i++) mlc_set_requires_grad(in[i], true);
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(grad_loss, &u, in, n, NULL, &r), MLC_OK);
        if (!CHECK(r.ok))
            printf("  %s %d: input %d element %" PRId64 ": %.9g, by differences %.9g\n", u.c->name,
                   k % 2, (int)r.input, r.index, r.analytic, r.numeric);
        CHECK_OK(ctx);
        mlc_scope_end(ctx);
    }
}

TEST(index, of_elements_written_twice_the_last_one_gets_the_gradient)
{
    static const double at[] = {1, 0, 1}, src[] = {5, 6, 7}, y[] = {6, 7, 9}, ones[] = {0, 1, 1};
    static const double dx[] = {0, 0, 1};
    mlc_ctx            *ctx = test_ctx();
    for (int k = 0; k < 5; k++) {
        if (k == 2) continue;          /* i64                                                  */
        mlc_tensor *x = mlc_full(ctx, ALL[k], mlc_dims1(3), 9);
        mlc_tensor *i = test_tensor(ctx, MLC_I64, mlc_dims1(3), at);
        mlc_tensor *s = test_tensor(ctx, ALL[k], mlc_dims1(3), src), *z;
        mlc_set_requires_grad(x, true);
        mlc_set_requires_grad(s, true);
        z = mlc_scatter(x, 0, i, s);
        CHECK_VALUES(z, 3, y, 0, 0);
        CHECK_EQ(mlc_backward_from(z, NULL), MLC_OK);
        CHECK_VALUES(mlc_grad(x), 3, dx, 0, 0);
        CHECK_VALUES(mlc_grad(s), 3, ones, 0, 0);
    }
    CHECK_OK(ctx);
}

TEST(index, gradients_of_16_bit_tensors_are_summed_in_f32)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_BF16, mlc_dims2(2, 3));
    mlc_tensor *i = mlc_zeros(ctx, MLC_I64, mlc_dims1(1001));
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_backward_from(mlc_index_select(x, 0, i), NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 6, NUMBERS(1000, 1000, 1000, 0, 0, 0), 0, 0);
    CHECK_OK(ctx);
}

/* ---- masks -------------------------------------------------------------------------------- */

TEST(index, nonzero_finds_what_is_not_zero_in_any_dtype)
{
    static const double v[] = {0, 1, 0, 1, 1, 0}, want[] = {0, 1, 1, 0, 1, 1};
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < DTYPES; k++) {
            mlc_tensor *x = test_tensor(ctx, ALL[k], mlc_dims2(2, 3), v), *y = mlc_nonzero(x);
            CHECK_VALUES(y, 6, want, 0, 0);
            CHECK(y != NULL && y->dtype == MLC_I64 && y->ndim == 2 && y->shape[1] == 2);
            CHECK_VALUES(mlc_nonzero(mlc_transpose(x, 0, 1)), 6,
                         NUMBERS(0, 1, 1, 0, 1, 1), 0, 0);
            CHECK_EQ(mlc_numel(mlc_nonzero(mlc_zeros(ctx, ALL[k], mlc_dims2(0, 3)))), 0);
            CHECK_EQ(mlc_numel(mlc_nonzero(mlc_zeros(ctx, ALL[k], mlc_dims2(4, 3)))), 0);
            CHECK_EQ(mlc_dim(mlc_nonzero(mlc_ones(ctx, ALL[k], mlc_dims0())), 0), 1);
            CHECK_OK(ctx);
        }
}

TEST(index, minus_zero_is_zero_and_nan_and_the_smallest_number_are_not)
{
    static const double want[] = {1, 2, 3};
    mlc_ctx            *ctx = test_ctx();
    const float         f[] = {-0.0f, (float)NAN, 1e-45f, -1e-45f, 0.0f};
    const double        d[] = {-0.0, (double)NAN, 5e-324, -5e-324, 0.0};
    const uint16_t      h[] = {0x8000, 0x7fff, 0x0001, 0x8001, 0};
    CHECK_VALUES(mlc_nonzero(mlc_from(ctx, MLC_F32, mlc_dims1(5), f)), 3, want, 0, 0);
    CHECK_VALUES(mlc_nonzero(mlc_from(ctx, MLC_F64, mlc_dims1(5), d)), 3, want, 0, 0);
    CHECK_VALUES(mlc_nonzero(mlc_from(ctx, MLC_BF16, mlc_dims1(5), h)), 3, want, 0, 0);
    CHECK_VALUES(mlc_nonzero(mlc_from(ctx, MLC_F16, mlc_dims1(5), h)), 3, want, 0, 0);
    CHECK_OK(ctx);
}

TEST(index, many_places_are_found_in_order_whatever_their_share)
{
    enum { N = 50001 };
    static uint8_t mask[N];
    static double  want[3 * N], picked[N];
    mlc_ctx       *ctx = test_ctx();
    for (int share = 0; share <= 100; share += 25) {
        int64_t n = 0;
        for (int64_t i = 0; i < N; i++) {
            mask[i] = test_random(5, i, 0, 100) < share;
            if (!mask[i]) continue;
            picked[n] = (double)(i % 97);
            want[3 * n] = (double)(i / (7 * 2381));
            want[3 * n + 1] = (double)(i / 2381 % 7);
            want[3 * n++ + 2] = (double)(i % 2381);
        }
        mlc_tensor *m = mlc_from(ctx, MLC_BOOL, mlc_dims1(N), mask), *x, *cube;
        x = mlc_zeros(ctx, MLC_I32, mlc_dims1(N));
        cube = mlc_reshape(m, mlc_dims3(3, 7, 2381));
        CHECK_VALUES(mlc_nonzero(cube), 3 * n, want, 0, 0);
        x = mlc_reshape(mlc_cast(mlc_remainder(mlc_arange(ctx, MLC_F64, 0, N, 1),
                                               mlc_full(ctx, MLC_F64, mlc_dims0(), 97)), MLC_I32),
                        mlc_dims1(N));
        CHECK_VALUES(mlc_masked_select(x, m), n, picked, 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(index, masked_select_broadcasts_both_and_takes_any_dtype)
{
    static const double v[] = {1, 0, 1, 1, 1, 0}, row[] = {1, 0, 1}, col[] = {0, 1};
    mlc_ctx            *ctx = test_ctx();
    for (int k = 0; k < DTYPES; k++) {
        mlc_tensor *x = test_tensor(ctx, ALL[k], mlc_dims2(2, 3), v);
        mlc_tensor *r = test_tensor(ctx, MLC_BOOL, mlc_dims1(3), row);
        mlc_tensor *c = test_tensor(ctx, MLC_BOOL, mlc_dims2(2, 1), col);
        CHECK_VALUES(mlc_masked_select(x, r), 4, NUMBERS(1, 1, 1, 0), 0, 0);
        CHECK_VALUES(mlc_masked_select(x, c), 3, NUMBERS(1, 1, 0), 0, 0);
        CHECK_VALUES(mlc_masked_select(mlc_select(x, 0, 1), c), 3, NUMBERS(1, 1, 0), 0, 0);
        CHECK_VALUES(mlc_masked_select(mlc_transpose(x, 0, 1), mlc_reshape(r, mlc_dims2(3, 1))), 4,
                     NUMBERS(1, 1, 1, 0), 0, 0);
        CHECK_EQ(mlc_numel(mlc_masked_select(x, mlc_zeros(ctx, MLC_BOOL, mlc_dims0()))), 0);
        CHECK_EQ(mlc_numel(mlc_masked_select(x, mlc_ones(ctx, MLC_BOOL, mlc_dims0()))), 6);
    }
    CHECK_OK(ctx);
}

static mlc_status select_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    const char *name = *(const char *const *)mlc_module_user(m);
    (void)n_in; (void)n_out;
    out[0] = strcmp(name, "mlc_nonzero") == 0
                 ? mlc_nonzero(in[0]) : mlc_masked_select(in[0], mlc_gt_scalar(in[0], 0));
    return mlc_ctx_status(in[0]->ctx);
}

static void nowhere(void *user, const char *text, size_t bytes)
{
    (void)user; (void)text; (void)bytes;
}

TEST(index, a_summary_cannot_know_how_many_are_selected)
{
    static const mlc_module_class picks = {"Picks", select_forward, NULL, NULL, 0, NULL};
    static const char *const names[] = {"mlc_masked_select", "mlc_nonzero"};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 2; k++) {
        char        text[80];
        mlc_module *m = mlc_module_create(ctx, &picks, &names[k], sizeof names[k]);
        snprintf(text, sizeof text, "%s: its size depends on data", names[k] + 4);
        CHECK_EQ(mlc_summary(m, mlc_dims2(3, 4), nowhere, NULL), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), text);
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_dim(mlc_forward(m, mlc_ones(ctx, MLC_F32, mlc_dims2(3, 4))), 0), 12);
        CHECK_OK(ctx);
    }
}

/* ---- the rest ----------------------------------------------------------------------------- */

TEST(index, one_hot_marks_the_class)
{
    static const double at[] = {2, 0}, want[] = {0, 0, 1, 0, 1, 0, 0, 0};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *y = mlc_one_hot(test_tensor(ctx, MLC_I64, mlc_dims2(2, 1), at), 4);
        CHECK_VALUES(y, 8, want, 0, 0);
        CHECK(y != NULL && y->dtype == MLC_I64 && y->ndim == 3 && y->shape[2] == 4);
        CHECK_VALUES(mlc_one_hot(mlc_ones(ctx, MLC_I64, mlc_dims0()), 3), 3, want + 3, 0, 0);
        CHECK_EQ(mlc_numel(mlc_one_hot(mlc_zeros(ctx, MLC_I64, mlc_dims1(0)), 3)), 0);
        CHECK_OK(ctx);
    }
}

TEST(index, triangles_of_any_dtype_shape_and_diagonal)
{
    static const int64_t ks[] = {0, 1, -1, 2, -3, 5, -5, 100, -100, INT64_MAX, INT64_MIN};
    static const char *const shapes[] = {"3,4", "5,2", "2,3,3", "1,1", "0,3", "3,0", "2,3,129",
                                         "130,200"};
    FOR_EACH_ISA(ctx)
        for (int s = 0; s < 8; s++)
            for (int k = 0; k < 11; k++) {
                grid       x = make_whole(0, dims_of(shapes[s]), 1, 1, 90), want = make(3, x.d);
                const bool upper = k % 2;
                const int64_t cols = x.d.v[x.d.n - 1], rows = x.d.v[x.d.n - 2];
                mlc_dtype  dtype = ALL[(s + k) % (DTYPES - 1)];
                mlc_scope_begin(ctx);
                for (int lower = 0; lower < 2; lower++) {
                    for (int64_t e = 0; e < count(x.d); e++) {
                        int64_t at = e % cols - e / cols % rows;
                        want.v[e] = (lower ? at <= ks[k] : at >= ks[k]) ? x.v[e] : 0;
                    }
                    mlc_tensor *t = laid(ctx, dtype, &x, upper ? 'T' : '.');
                    CHECK_VALUES(lower ? mlc_tril(t, ks[k]) : mlc_triu(t, ks[k]), count(x.d),
                                 want.v, 0, 0);
                    t = laid(ctx, dtype, &x, 'S');
                    CHECK_VALUES(lower ? mlc_tril(t, ks[k]) : mlc_triu(t, ks[k]), count(x.d),
                                 want.v, 0, 0);
                }
                mlc_scope_end(ctx);
                CHECK_OK(ctx);
            }
}

/* ---- what is wrong ------------------------------------------------------------------------ */

typedef struct range_case {
    const char *name, *text;
    double      index[3];
} range_case;

static const range_case RANGES[] = {
    {"mlc_gather", "gather: index 4 at position 1 is not in [0,4)", {0, 4, -1}},
    {"mlc_gather", "gather: index -1 at position 2 is not in [0,4)", {0, 3, -1}},
    {"mlc_scatter", "scatter: index 9 at position 0 is not in [0,4)", {9, 3, 1}},
    {"mlc_scatter_add", "scatter_add: index -5 at position 2 is not in [0,4)", {0, 3, -5}},
    {"mlc_scatter_", "scatter_: index 9 at position 2 is not in [0,4)", {1, 3, 9}},
    {"mlc_scatter_add_", "scatter_add_: index 4 at position 2 is not in [0,4)", {1, 3, 4}},
    {"mlc_index_select", "index_select: index 4 at position 0 is not in [0,4)", {4, 0, 0}},
    {"mlc_take", "take: index 4 at position 1 is not in [0,4)", {3, 4, 0}},
    {"mlc_one_hot", "one_hot: index 4 at position 1 is not in [0,4)", {3, 4, 0}},
};
#define RANGE_COUNT ((int)(sizeof RANGES / sizeof *RANGES))

static mlc_tensor *range_call(const char *name, mlc_tensor *x, mlc_tensor *index, mlc_tensor *src)
{
    name += 4;
    if (strcmp(name, "gather") == 0) return mlc_gather(x, 0, index);
    if (strcmp(name, "scatter") == 0) return mlc_scatter(x, 0, index, src);
    if (strcmp(name, "scatter_add") == 0) return mlc_scatter_add(x, 0, index, src);
    if (strcmp(name, "scatter_") == 0) return mlc_scatter_(x, 0, index, src);
    if (strcmp(name, "scatter_add_") == 0) return mlc_scatter_add_(x, 0, index, src);
    if (strcmp(name, "index_select") == 0) return mlc_index_select(x, 0, index);
    return strcmp(name, "take") == 0 ? mlc_take(x, index) : mlc_one_hot(index, 4);
}

TEST(index, an_index_out_of_range_is_named_and_touches_nothing)
{
    static const double v[] = {1, 2, 3, 4};
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < RANGE_COUNT; k++) {
            const range_case *c = &RANGES[k];
            mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(4), v), *y;
            mlc_scope_begin(ctx);
            y = range_call(c->name, x, test_tensor(ctx, MLC_I64, mlc_dims1(3), c->index),
                           mlc_ones(ctx, MLC_F32, mlc_dims1(3)));
            CHECK(mlc_ctx_on_host(ctx) ? y == NULL : y != NULL);
            mlc_ctx_sync(ctx);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
            CHECK_HAS(mlc_error(ctx), c->text);
            CHECK_OK(ctx);
            CHECK_VALUES(x, 4, v, 0, 0);
        }
}

TEST(index, on_a_device_two_operations_with_bad_indices_report_the_first)
{
    static const double bad[] = {1, 7};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4)), *i, *y;
    mlc_scope_begin(ctx);
    i = test_tensor(ctx, MLC_I64, mlc_dims1(2), bad);
    y = mlc_gather(x, 0, i);
    if (!mlc_ctx_on_host(ctx)) {
        CHECK(mlc_take(x, i) != NULL);
        CHECK(mlc_scatter_add(x, 0, i, y) != NULL);
    }
    mlc_ctx_sync(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "gather: index 7 at position 1");
    CHECK_OK(ctx);
}

TEST(index, among_many_bad_indices_the_first_one_is_named)
{
    enum { N = 100000 };
    static int64_t index[N];
    mlc_ctx       *ctx = test_ctx();
    for (int64_t i = 0; i < N; i++) index[i] = i > 40000 ? -i : 0;
    for (int k = 0; k < 2; k++) {
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
        mlc_scope_begin(ctx);
        mlc_tensor *i = mlc_from(ctx, MLC_I64, mlc_dims1(N), index);
        if (k) mlc_gather(x, 0, i);
        else mlc_scatter_add(x, 0, i, mlc_ones(ctx, MLC_F32, mlc_dims1(N)));
        mlc_ctx_sync(ctx);
        CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
        CHECK_HAS(mlc_error(ctx), "index -40001 at position 40001");
    }
}

typedef struct wrong_case {
    const char *name, *x, *index, *src;
    mlc_dtype   of_index, of_src;
    int32_t     axis;
    mlc_status  status;
    const char *text;
} wrong_case;

static const wrong_case WRONG[] = {
    {"mlc_gather", "4,5", "4", "", MLC_I64, MLC_F32, 1, MLC_ERR_SHAPE,
     "gather: x [4,5] has 2 axes, the index [4] has 1; they must be as many"},
    {"mlc_gather", "4,5", "5,5", "", MLC_I64, MLC_F32, 1, MLC_ERR_SHAPE,
     "gather: the index [5,5] is larger than x [4,5] at axis 0: 5 vs 4"},
    {"mlc_gather", "4,5", "4,5", "", MLC_I32, MLC_F32, 1, MLC_ERR_DTYPE,
     "gather: the index is i32; write mlc_cast(index, MLC_I64)"},
    {"mlc_gather", "4,5", "4,5", "", MLC_I64, MLC_F32, 2, MLC_ERR_SHAPE,
     "gather: [4,5] has no axis 2"},
    {"mlc_gather", "", "", "", MLC_I64, MLC_F32, 1, MLC_ERR_SHAPE, "gather: [] has no axis 1"},
    {"mlc_scatter", "4,5", "4,5", "4,4", MLC_I64, MLC_F32, 1, MLC_ERR_SHAPE,
     "scatter: the index [4,5] is larger than src [4,4] at axis 1: 5 vs 4"},
    {"mlc_scatter", "4,5", "4,5", "4", MLC_I64, MLC_F32, 1, MLC_ERR_SHAPE,
     "scatter: the index [4,5] has 2 axes, src [4] has 1; they must be as many"},
    {"mlc_scatter_add", "4,5", "4,5", "4,5", MLC_I64, MLC_F64, 1, MLC_ERR_DTYPE,
     "scatter_add: x is f32, src f64; cast one with mlc_cast"},
    {"mlc_index_select", "1,1,1,1,1", "2,1,1,1,1", "", MLC_I64, MLC_F32, 1, MLC_ERR_SHAPE,
     "index_select: the index [2,1,1,1,1] in place of axis 1 of [1,1,1,1,1] makes more than 8"},
    {"mlc_index_select", "4,5", "2", "", MLC_F32, MLC_F32, 1, MLC_ERR_DTYPE,
     "index_select: the index is f32; write mlc_cast(index, MLC_I64)"},
    {"mlc_take", "4,5", "2", "", MLC_U8, MLC_F32, 1, MLC_ERR_DTYPE, "take: the index is u8"},
    {"mlc_masked_select", "4,5", "4,5", "", MLC_U8, MLC_F32, 1, MLC_ERR_DTYPE,
     "masked_select: the mask is u8; write mlc_ne_scalar(mask, 0)"},
    {"mlc_masked_select", "4,5", "4", "", MLC_BOOL, MLC_F32, 1, MLC_ERR_SHAPE,
     "masked_select: shapes [4,5] and [4] do not broadcast"},
    {"mlc_tril", "5", "", "", MLC_I64, MLC_F32, 0, MLC_ERR_SHAPE,
     "tril: [5] is no matrix; it takes two axes or more"},
    {"mlc_triu", "", "", "", MLC_I64, MLC_F32, 0, MLC_ERR_SHAPE, "triu: [] is no matrix"},
    {"mlc_one_hot", "", "3", "", MLC_I64, MLC_F32, 0, MLC_ERR_ARG,
     "one_hot: 0 classes; it takes at least one"},
    {"mlc_one_hot", "", "3", "", MLC_I32, MLC_F32, 3, MLC_ERR_DTYPE,
     "one_hot: the index is i32; write mlc_cast(index, MLC_I64)"},
    {"mlc_one_hot", "", "1,1,1,1,1,1,1,1", "", MLC_I64, MLC_F32, 3, MLC_ERR_SHAPE,
     "one_hot: [1,1,1,1,1,1,1,1] has 8 axes, the most; there is none left"},
};
#define WRONG_COUNT ((int)(sizeof WRONG / sizeof *WRONG))

TEST(index, wrong_calls_say_what_is_wrong)
{
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < WRONG_COUNT; k++) {
        const wrong_case *c = &WRONG[k];
        const grad_case   g = {c->name, c->x, c->index, c->src, c->axis};
        grad_user         u = {&g, mlc_zeros(ctx, c->of_index, dims_of(c->index))};
        mlc_tensor       *x = mlc_zeros(ctx, MLC_F32, dims_of(c->x));
        mlc_tensor       *src = mlc_zeros(ctx, c->of_src, dims_of(c->src));
        CHECK((strcmp(c->name, "mlc_one_hot") ? grad_call(&u, x, src)
                                              : mlc_one_hot(u.index, c->axis)) == NULL);
        CHECK_HAS(mlc_error(ctx), c->text);
        CHECK_STATUS(ctx, c->status);
    }
}

TEST(index, null_inputs_are_one_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    mlc_tensor *i = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
    CHECK(mlc_gather(x, 0, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "gather: input 2 is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_scatter(x, 0, i, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "scatter: input 3 is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_index_select(NULL, 0, i) == NULL);
    CHECK_HAS(mlc_error(ctx), "index_select: input 1 is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_masked_select(x, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_take(NULL, NULL) == NULL && mlc_nonzero(NULL) == NULL && mlc_tril(NULL, 0) == NULL);
    CHECK(mlc_one_hot(NULL, 3) == NULL && mlc_triu(NULL, 0) == NULL);
    CHECK(mlc_scatter_(x, 0, NULL, x) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_OK(ctx);
}

TEST(index, in_place_copies_an_index_or_src_over_the_same_memory)
{
    static const double v[] = {1, 2, 0, 3}, by_index[] = {9, 9, 9, 9}, shifted[] = {1, 1, 2, 0};
    static const double at[] = {1, 2, 3};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_I64, mlc_dims1(4), v), *y;
    CHECK_VALUES(mlc_scatter_(x, 0, x, mlc_full(ctx, MLC_I64, mlc_dims1(4), 9)), 4, by_index, 0, 0);
    y = test_tensor(ctx, MLC_F32, mlc_dims1(4), v);
    CHECK_VALUES(mlc_scatter_(y, 0, test_tensor(ctx, MLC_I64, mlc_dims1(3), at),
                              mlc_slice(y, 0, 0, 3, 1)), 4, shifted, 0, 0);
    y = mlc_expand(mlc_ones(ctx, MLC_F32, mlc_dims2(1, 3)), mlc_dims2(2, 3));
    CHECK(mlc_scatter_(y, 0, mlc_zeros(ctx, MLC_I64, mlc_dims2(1, 1)),
                       mlc_ones(ctx, MLC_F32, mlc_dims2(1, 1))) == NULL);
    CHECK_HAS(mlc_error(ctx), "scatter_: [2,3] repeats elements");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}
