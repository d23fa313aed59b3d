/* test_reduce.c -- tests of IMPL.OPS.REDUCE, IMPL.OPS.SCAN and their kernels
 *
 * The reference goes element by element in long double, or in integers that wrap, over every set of
 * axes of tensors that lie as they are, transposed, with holes and expanded, for every dtype.
 * Gradients by central differences, and by hand where those cannot go: at ties, at zeros. Then
 * what NaN, infinity and nothing give, and the bounds of the rounding error.
 */
#include "ops.h"

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16, MLC_I64,
                                MLC_I32, MLC_I8,  MLC_U8,   MLC_BOOL};
#define DTYPES ((int)(sizeof ALL / sizeof *ALL))
#define FLOATS 4                       /* of them, in front                                    */
#define MOST   8192                    /* elements of the largest tensor of the tables         */

static int64_t count(mlc_dims d)
{
    int64_t n = 1;
    for (int32_t i = 0; i < d.n; i++) n *= d.v[i];
    return n;
}

static double eps_of(mlc_dtype d)
{
    return d == MLC_F64 ? 0x1p-53 : d == MLC_F32 ? 0x1p-24 : d == MLC_F16 ? 0x1p-11 : 0x1p-8;
}

/* ---- the operations ------------------------------------------------------------------------ */

typedef struct reduction {
    const char *name;
    mlc_tensor *(*call)(mlc_tensor *x, mlc_dims axes, bool keepdim);
    bool        floats;                /* no other dtypes                                      */
    char        result;                /* 's': the same dtype, 'w': i64 for integers, 'b': bool */
    double      tol;                   /* relative to the result, in roundings of the dtype    */
} reduction;

static mlc_tensor *var_0(mlc_tensor *x, mlc_dims a, bool k) { return mlc_var(x, a, 0, k); }
static mlc_tensor *var_1(mlc_tensor *x, mlc_dims a, bool k) { return mlc_var(x, a, 1, k); }
static mlc_tensor *std_1(mlc_tensor *x, mlc_dims a, bool k) { return mlc_std(x, a, 1, k); }
static mlc_tensor *norm_0(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, 0, a, k); }
static mlc_tensor *norm_1(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, 1, a, k); }
static mlc_tensor *norm_2(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, 2, a, k); }
static mlc_tensor *norm_3(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, 3, a, k); }
static mlc_tensor *norm_half(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, 0.5, a, k); }
static mlc_tensor *norm_odd(mlc_tensor *x, mlc_dims a, bool k) { return mlc_norm(x, 2.5, a, k); }
static mlc_tensor *norm_top(mlc_tensor *x, mlc_dims a, bool k)
{
    return mlc_norm(x, (double)INFINITY, a, k);
}
static mlc_tensor *norm_low(mlc_tensor *x, mlc_dims a, bool k)
{
    return mlc_norm(x, -(double)INFINITY, a, k);
}

static const reduction REDUCTIONS[] = {
    {"mlc_sum",       mlc_sum,       false, 'w', 4},
    {"mlc_mean",      mlc_mean,      true,  's', 4},
    {"mlc_prod",      mlc_prod,      false, 'w', 80},
    {"mlc_max",       mlc_max,       false, 's', 0},
    {"mlc_min",       mlc_min,       false, 's', 0},
    {"mlc_any",       mlc_any,       false, 'b', 0},
    {"mlc_all",       mlc_all,       false, 'b', 0},
    {"mlc_var",       var_1,         true,  's', 8},
    {"population",    var_0,         true,  's', 8},
    {"mlc_std",       std_1,         true,  's', 8},
    {"mlc_norm",      norm_2,        true,  's', 8},
    {"norm 0",        norm_0,        true,  's', 1},
    {"norm 1",        norm_1,        true,  's', 4},
    {"norm 3",        norm_3,        true,  's', 8},
    {"norm 0.5",      norm_half,     true,  's', 8},
    {"norm 2.5",      norm_odd,      true,  's', 8},
    {"norm inf",      norm_top,      true,  's', 0},
    {"norm -inf",     norm_low,      true,  's', 0},
    {"mlc_logsumexp", mlc_logsumexp, true,  's', 8},
};
#define COUNT_OF(a) ((int)(sizeof(a) / sizeof *(a)))

static bool is(const reduction *r, const char *name) { return strcmp(r->name, name) == 0; }

/* n elements v[at[i]] of one result; *sizes is what rounding errors are relative to. */
static double ref_one(const reduction *r, const double *v, int64_t n, double *sizes)
{
    long double sum = 0, size = 0, product = 1, powers = 0, mean = 0, squares = 0;
    double      top = -(double)INFINITY, low = (double)INFINITY, high = 0, least = (double)INFINITY;
    int64_t     some = 0;
    double      p = is(r, "norm 0.5") ? 0.5 : is(r, "norm 2.5") ? 2.5 : is(r, "norm 3") ? 3
             : is(r, "norm 1") ? 1 : 2;
    for (int64_t i = 0; i < n; i++) {
        const long double x = (long double)v[i];
        sum += x;
        size += fabsl(x);
        product *= x;
        if (r->name[0] == 'n' || is(r, "mlc_norm")) powers += powl(fabsl(x), (long double)p);
        some += v[i] != 0;
        if (v[i] > top) top = v[i];
        if (v[i] < low) low = v[i];
        if (fabs(v[i]) > high) high = fabs(v[i]);
        if (fabs(v[i]) < least) least = fabs(v[i]);
    }
    mean = sum / n;
    for (int64_t i = 0; i < n; i++) {
        const long double away = (long double)v[i] - mean;
        squares += away * away;
    }
    *sizes = -1;                       /* the result itself                                    */
    if (is(r, "mlc_sum")) { *sizes = (double)size; return (double)sum; }
    if (is(r, "mlc_mean")) { *sizes = (double)(size / n); return (double)mean; }
    if (is(r, "mlc_prod")) return (double)product;
    if (is(r, "mlc_max")) return top;
    if (is(r, "mlc_min")) return low;
    if (is(r, "mlc_any")) return some > 0;
    if (is(r, "mlc_all")) return some == n;
    if (is(r, "mlc_var")) return n == 1 ? (double)NAN : (double)(squares / (n - 1));
    if (is(r, "population")) return (double)(squares / n);
    if (is(r, "mlc_std")) return n == 1 ? (double)NAN : (double)sqrtl(squares / (n - 1));
    if (is(r, "norm 0")) return (double)some;
    if (is(r, "norm inf")) return high;
    if (is(r, "norm -inf")) return least;
    if (is(r, "mlc_logsumexp")) {
        sum = 0;
        for (int64_t i = 0; i < n; i++) sum += expl((long double)(v[i] - top));
        *sizes = fabs(top) + 1;
        return (double)(logl(sum) + (long double)top);
    }
    return (double)powl(powers, 1 / (long double)p);
}

/* The result's elements in order; each collects what falls to it. */
static int64_t reference(const reduction *r, const double *v, mlc_dims d, unsigned mask,
                         double *want, double *sizes)
{
    static double  mine[MOST];
    static int64_t next[MOST];
    int64_t        outs = 1, n = count(d);
    for (int32_t i = 0; i < d.n; i++) outs *= mask >> i & 1 ? 1 : d.v[i];
    for (int64_t o = 0; o < outs; o++) next[o] = o * (n / outs);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = 0, rest = i, step = 1;
        for (int32_t k = d.n; k-- > 0; rest /= d.v[k])
            if (!(mask >> k & 1)) { at += rest % d.v[k] * step; step *= d.v[k]; }
        mine[next[at]++] = v[i];
    }
    for (int64_t o = 0; o < outs; o++)
        want[o] = ref_one(r, mine + o * (n / outs), n / outs, &sizes[o]);
    return outs;
}

/* Small whole numbers for integers, others for floats, rounded to the dtype. */
static mlc_tensor *numbers(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims d, uint64_t seed, double *v)
{
    for (int64_t i = 0; i < count(d); i++) {
        char one[8];
        v[i] = test_random(seed, i, -2, 2);
        if (test_random(seed + 1, i, 0, 1) < 0.05) v[i] = 0;
        if (dtype >= MLC_I64 && dtype != MLC_BF16 && dtype != MLC_F16) v[i] = floor(v[i]);
        if (dtype == MLC_U8) v[i] = fabs(v[i]);
        if (dtype == MLC_BOOL) v[i] = v[i] > 0;
        test_put(one, dtype, 0, v[i]);
        v[i] = test_get(one, dtype, 0);
    }
    return test_tensor(ctx, dtype, d, v);
}

/* 'T' stored transposed, 'S' every second of a larger one, 'E' with one more axis by repetition. */
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

static void check_reduction(const reduction *r, mlc_tensor *x, const double *v, unsigned mask)
{
    static double want[MOST], sizes[MOST], got[MOST];
    mlc_dims      axes = mlc_dims0(), d = mlc_dims_of(x->ndim, x->shape);
    bool          keep = (mask ^ x->ndim) & 1;
    const bool    floats = mlc_dtype_bytes(x->dtype) && (x->dtype == MLC_F32 ||
                   x->dtype == MLC_F64 || x->dtype == MLC_BF16 || x->dtype == MLC_F16);
    const double  eps = floats ? eps_of(x->dtype) : 0;
    for (int32_t i = 0; i < x->ndim; i++)
        if (mask >> i & 1) axes.v[axes.n++] = i % 2 ? i : i - x->ndim;
    mlc_tensor *y = r->call(x, axes, keep);
    if (axes.n == 0) mask = (1u << x->ndim) - 1;
    const int64_t n = reference(r, v, d, mask, want, sizes);
    if (!CHECK(y != NULL && mlc_numel(y) == n && test_read(y, got))) {
        printf("    %s of %s: %s\n", r->name, mlc_dtype_name(x->dtype), mlc_error(x->ctx));
        return;
    }
    CHECK_EQ(y->dtype, r->result == 'b' ? MLC_BOOL : r->result == 'w' && !floats ? MLC_I64
                                                                                 : x->dtype);
    CHECK_EQ(y->ndim, keep ? x->ndim : x->ndim - (axes.n ? axes.n : x->ndim));
    for (int64_t i = 0; i < n; i++) {
        const double size = sizes[i] < 0 ? fabs(want[i]) : sizes[i];
        const double least = x->dtype == MLC_F16 && r->tol > 0 ? 0x1p-24 : 0;     /* denormals */
        const bool   over = x->dtype == MLC_F16 && fabs(want[i]) >= 65520;
        if (isnan(want[i]) ? isnan(got[i]) : over ? isinf(got[i])
                           : fabs(got[i] - want[i]) <= r->tol * eps * size + least)
            continue;
        CHECK(!"equal");
        printf("    %s of %s, mask %u of %d axes: %" PRId64 " is %.17g, want %.17g\n", r->name,
               mlc_dtype_name(x->dtype), mask, (int)x->ndim, i, got[i], want[i]);
        return;
    }
}

/* By stride, which no golden without axes is: the bits of mlc_sum and mlc_mean. */
TEST(reduce, sums_and_means_of_all_elements)
{
    FOR_EACH_ISA(ctx)
        for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
            const mlc_dtype dtype = (mlc_dtype)d;
            const bool      real = dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 ||
                                   dtype == MLC_F16;
            mlc_tensor *x = mlc_cast(mlc_reshape(mlc_arange(ctx, MLC_F32, 1, 13, 1),
                                                 mlc_dims2(4, 3)), dtype);
            mlc_tensor *part = mlc_slice(mlc_transpose(x, 0, 1), 0, 0, 3, 2);
            char        text[80];
            CHECK_EQ(mlc_sum_all(part)->ndim, 0);
            CHECK_NEAR(mlc_item(mlc_sum_all(part)), dtype == MLC_BOOL ? 8 : 52, 0);
            snprintf(text, sizeof text, "%s %s s", mlc_isa_name(mlc_ctx_isa(ctx)),
                     mlc_dtype_name(dtype));
            op_seen("values", "mlc_sum_all", text);
            if (!real) continue;
            CHECK_NEAR(mlc_item(mlc_mean_all(part)), 6.5, 0);
            op_seen("values", "mlc_mean_all", text);
            CHECK_OK(ctx);
        }
}

TEST(reduce, every_dtype_over_every_set_of_axes_in_every_layout)
{
    static double  v[MOST];
    const mlc_dims shapes[] = {mlc_dims0(),         mlc_dims1(1),        mlc_dims1(37),
                               mlc_dims2(3, 70),    mlc_dims2(70, 3),    mlc_dims2(1, 5),
                               mlc_dims3(4, 17, 3), mlc_dims4(2, 3, 1, 5)};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < DTYPES; t++)
            for (int s = 0; s < COUNT_OF(shapes); s++)
                for (const char *layout = "DTS"; *layout; layout++) {
                    mlc_scope_begin(ctx);
                    mlc_tensor *x = laid(numbers(ctx, ALL[t], shapes[s], 3, v), *layout);
                    for (int r = (s + t) % (int)test_stride(5); r < COUNT_OF(REDUCTIONS);
                         r += (int)test_stride(5))
                        for (unsigned m = 0; m < 1u << shapes[s].n; m++)
                            if (t < FLOATS || !REDUCTIONS[r].floats)
                                check_reduction(&REDUCTIONS[r], x, v, m);
                    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
                }
}

/* Past the lengths at which blocks, tiles and lanes end. */
TEST(reduce, long_rows_and_long_columns)
{
    static double  v[MOST];
    const mlc_dims shapes[] = {mlc_dims2(2, 1025), mlc_dims2(1025, 2), mlc_dims2(3, 2500),
                               mlc_dims2(90, 90),  mlc_dims2(67, 113), mlc_dims1(8191),
                               mlc_dims3(2, 1030, 2)};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < DTYPES; t++)
            for (int s = 0; s < COUNT_OF(shapes); s++) {
                mlc_scope_begin(ctx);
                mlc_tensor *x = numbers(ctx, ALL[t], shapes[s], 5, v);
                for (int r = t % (int)test_stride(5); r < COUNT_OF(REDUCTIONS);
                     r += (int)test_stride(5))
                    for (unsigned m = 1; m < 1u << shapes[s].n && shapes[s].n < 3; m++)
                        if ((t < FLOATS || !REDUCTIONS[r].floats) &&
                            !is(&REDUCTIONS[r], "mlc_prod"))
                            check_reduction(&REDUCTIONS[r], x, v, m);
                if (shapes[s].n == 3 && t < FLOATS) {
                    check_reduction(&REDUCTIONS[0], x, v, 2);
                    check_reduction(&REDUCTIONS[0], x, v, 5);
                }
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

/* ---- argmax, argmin, cumsum, cumprod -------------------------------------------------------- */

/* Along an axis of [outer, n, inner]. */
static void ref_line(const char *what, const double *x, int64_t n, int64_t step, double *y,
                     int64_t y_step)
{
    const bool  low = strcmp(what, "mlc_argmin") == 0, sum = strcmp(what, "mlc_cumsum") == 0;
    int64_t     best = 0;
    long double so_far = sum ? 0 : 1;
    if (strncmp(what, "mlc_arg", 7) != 0) {
        for (int64_t i = 0; i < n; i++) {
            const long double e = (long double)x[i * step];
            so_far = sum ? so_far + e : so_far * e;
            y[i * y_step] = (double)so_far;
        }
        return;
    }
    for (int64_t i = 1; i < n; i++) {
        const double a = x[i * step], b = x[best * step];
        if (!isnan(b) && (isnan(a) || (low ? a < b : a > b))) best = i;
    }
    *y = (double)best;
}

static void check_lines(mlc_tensor *x, const double *v, int32_t axis, double eps)
{
    static double want[MOST];
    mlc_dims      d = mlc_dims_of(x->ndim, x->shape);
    int64_t       outer = 1, inner = 1, n = x->ndim ? d.v[axis] : 1;
    for (int32_t i = 0; i < axis; i++) outer *= d.v[i];
    for (int32_t i = axis + 1; i < d.n; i++) inner *= d.v[i];
    for (int c = 0; c < 4; c++) {
        static const char *const names[] = {"mlc_argmax", "mlc_argmin", "mlc_cumsum",
                                            "mlc_cumprod"};
        const bool index = c < 2;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++)
                ref_line(names[c], v + o * n * inner + i, n, inner,
                         want + (index ? o * inner + i : o * n * inner + i), inner);
        mlc_tensor *y = c == 0 ? mlc_argmax(x, axis, false)
                      : c == 1 ? mlc_argmin(x, axis - x->ndim, false)
                      : c == 2 ? mlc_cumsum(x, axis - x->ndim) : mlc_cumprod(x, axis);
        const double least = x->dtype == MLC_F16 ? 0x1p-24 : 0;            /* denormals */
        CHECK_VALUES(y, index ? outer * inner : outer * n * inner, want,
                     c == 2 ? 64 * eps : c == 3 ? least : 0, c == 3 ? 70 * eps : eps);
        CHECK(y != NULL && y->dtype == (index || eps == 0 ? MLC_I64 : x->dtype));
    }
}

TEST(reduce, along_every_axis_in_every_layout)
{
    static double  v[MOST];
    const mlc_dims shapes[] = {mlc_dims1(1),        mlc_dims1(150),      mlc_dims2(3, 67),
                               mlc_dims2(67, 3),    mlc_dims3(4, 65, 5), mlc_dims4(2, 3, 1, 5),
                               mlc_dims2(70, 71)};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < DTYPES; t++)
            for (int s = 0; s < COUNT_OF(shapes); s++)
                for (const char *layout = "DTS"; *layout; layout++)
                    for (int32_t axis = 0; axis < shapes[s].n; axis++) {
                        mlc_scope_begin(ctx);
                        mlc_tensor *x = laid(numbers(ctx, ALL[t], shapes[s], 9, v), *layout);
                        /* products of integers stay small: 1, -1, now and then 2 or 0           */
                        for (int64_t i = 0; t >= FLOATS && i < mlc_numel(x); i++)
                            v[i] = i % 61 == 60 ? 0 : i % 7 ? 1 : ALL[t] == MLC_BOOL ? 1 : 2;
                        if (t >= FLOATS) x = laid(test_tensor(ctx, ALL[t], shapes[s], v), *layout);
                        check_lines(x, v, axis, t < FLOATS ? 2 * eps_of(ALL[t]) : 0);
                        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
                    }
}

TEST(reduce, argmax_keeps_its_axis_on_request)
{
    const double x[6] = {1, 5, 3, 7, 2, 9}, want[3] = {1, 0, 1};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *a = test_tensor(ctx, MLC_F32, mlc_dims2(2, 3), x);
    mlc_tensor  *kept = mlc_argmax(a, 0, true), *last = mlc_argmin(a, -1, true);
    mlc_tensor  *number = mlc_argmax(mlc_full(ctx, MLC_F32, mlc_dims0(), 1), 0, true);
    CHECK(kept && kept->ndim == 2 && kept->shape[0] == 1 && kept->shape[1] == 3);
    CHECK(last && last->ndim == 2 && last->shape[0] == 2 && last->shape[1] == 1);
    CHECK_VALUES(kept, 3, want, 0, 0);
    CHECK(number && number->ndim == 0);
    CHECK_OK(ctx);
}

TEST(reduce, argmax_takes_the_first_and_nan_before_all)
{
    const double x[2][6] = {{1, 3, 3, -2, -2, 0}, {1, (double)NAN, 9, (double)NAN, -9, 0}};
    const double top[2] = {1, 1}, low[2] = {3, 1}, none[2] = {0, 0};
    mlc_ctx     *ctx = test_ctx();
    for (int t = 0; t < FLOATS; t++) {
        mlc_tensor *a = test_tensor(ctx, ALL[t], mlc_dims2(2, 6), x[0]);
        CHECK_VALUES(mlc_argmax(a, 1, false), 2, top, 0, 0);
        CHECK_VALUES(mlc_argmin(a, 1, false), 2, low, 0, 0);
        a = mlc_contiguous(mlc_transpose(a, 0, 1));
        CHECK_VALUES(mlc_argmax(a, 0, false), 2, top, 0, 0);
        CHECK_VALUES(mlc_argmin(a, 0, false), 2, low, 0, 0);
        a = mlc_full(ctx, ALL[t], mlc_dims2(2, 3), -(double)INFINITY);
        CHECK_VALUES(mlc_argmax(a, 1, false), 2, none, 0, 0);
        CHECK_VALUES(mlc_argmax(mlc_select(a, 0, 0), 0, false), 1, none, 0, 0);
        CHECK_VALUES(mlc_argmin(mlc_select(mlc_select(a, 0, 0), 0, 0), -1, false), 1, none, 0, 0);
    }
    CHECK_OK(ctx);
}

/* ---- what is not a number, infinite or nothing ---------------------------------------------- */

TEST(reduce, nan_and_infinity)
{
    const double nan = (double)NAN, inf = (double)INFINITY;
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < FLOATS; t++)
            for (int64_t at = 0; at < 150; at += 7) {
                double v[150];
                for (int i = 0; i < 150; i++) v[i] = 1;
                mlc_scope_begin(ctx);
                for (int down = 0; down < 2; down++) {
                    mlc_tensor *x;
                    const double one = 1, many = 149;
                    #define ROWS(value) (v[at] = (value), x = test_tensor(ctx, ALL[t], \
                        down ? mlc_dims2(150, 1) : mlc_dims1(150), v), \
                        x = down ? mlc_contiguous(mlc_expand(x, mlc_dims2(150, 70))) : x)
                    #define OF(call) mlc_select(mlc_reshape(call, mlc_dims1(-1)), 0, 0)
                    const mlc_dims a = mlc_dims1(0);
                    ROWS(nan);
                    CHECK_VALUES(OF(mlc_max(x, a, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_min(x, a, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_sum(x, a, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_prod(x, a, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_logsumexp(x, a, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_norm(x, inf, a, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_var(x, a, 1, 0)), 1, &nan, 0, 0);
                    CHECK_VALUES(OF(mlc_all(x, a, 0)), 1, &one, 0, 0);
                    ROWS(inf);
                    CHECK_VALUES(OF(mlc_max(x, a, 0)), 1, &inf, 0, 0);
                    CHECK_VALUES(OF(mlc_min(x, a, 0)), 1, &one, 0, 0);
                    CHECK_VALUES(OF(mlc_sum(x, a, 0)), 1, &inf, 0, 0);
                    CHECK_VALUES(OF(mlc_mean(x, a, 0)), 1, &inf, 0, 0);
                    CHECK_VALUES(OF(mlc_prod(x, a, 0)), 1, &inf, 0, 0);
                    CHECK_VALUES(OF(mlc_logsumexp(x, a, 0)), 1, &inf, 0, 0);
                    CHECK_VALUES(OF(mlc_norm(x, 2, a, 0)), 1, &inf, 0, 0);
                    CHECK_VALUES(OF(mlc_std(x, a, 1, 0)), 1, &nan, 0, 0);
                    ROWS(0);
                    CHECK_VALUES(OF(mlc_norm(x, 0, a, 0)), 1, &many, 0, 0);
                    CHECK_VALUES(OF(mlc_sum(mlc_all(x, a, 0), mlc_dims0(), 0)), 1,
                                 (const double[]){0}, 0, 0);
                    v[at] = 1;
                }
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

/* Products of two f32 that leave f32's range, while the whole does not. */
TEST(reduce, products_do_not_overflow_on_the_way)
{
    double v[96];
    for (int i = 0; i < 96; i++) v[i] = i % 48 < 24 ? 0x1p100 : 0x1p-100;
    const double one = 1;
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(8), v + 20);
        CHECK_VALUES(mlc_prod(x, mlc_dims0(), false), 1, &one, 0, 0);
        x = test_tensor(ctx, MLC_F32, mlc_dims2(2, 4), v + 20);
        x = mlc_concat((mlc_tensor *const[]){mlc_slice(x, 0, 0, 1, 1), mlc_slice(x, 0, 1, 2, 1)}, 2,
                       1);
        CHECK_VALUES(mlc_prod(x, mlc_dims1(1), false), 1, &one, 0, 0);
        for (int i = 0; i < 64; i++) v[i] = i < 8 ? 0x1p70 : i < 16 ? 0x1p-70 : 1;
        for (int i = 0; i < 8; i++) v[32 + i % 4 + 16 * (i / 4)] = i % 2 ? 0x1p70 : 0x1p-70;
        x = test_tensor(ctx, MLC_F32, mlc_dims1(64), v);
        CHECK_VALUES(mlc_prod(x, mlc_dims0(), false), 1, &one, 0, 0);
    }
}

TEST(reduce, nothing_gives_the_neutral_element)
{
    const double zero[2] = {0, 0}, one[2] = {1, 1}, nan[2] = {(double)NAN, (double)NAN};
    const double low[2] = {-(double)INFINITY, -(double)INFINITY};
    mlc_ctx     *ctx = test_ctx();
    for (int t = 0; t < DTYPES; t++) {
        mlc_tensor    *x = mlc_zeros(ctx, ALL[t], mlc_dims2(2, 0));
        const mlc_dims a = mlc_dims1(1);
        CHECK_VALUES(mlc_sum(x, a, false), 2, zero, 0, 0);
        CHECK_VALUES(mlc_prod(x, a, true), 2, one, 0, 0);
        CHECK_VALUES(mlc_any(x, a, false), 2, zero, 0, 0);
        CHECK_VALUES(mlc_all(x, a, false), 2, one, 0, 0);
        CHECK_EQ(mlc_numel(mlc_max(x, mlc_dims1(0), false)), 0);
        CHECK_EQ(mlc_numel(mlc_cumsum(x, 1)), 0);
        CHECK_EQ(mlc_numel(mlc_cumprod(x, 0)), 0);
        CHECK_EQ(mlc_numel(mlc_argmin(x, 0, false)), 0);
        if (t >= FLOATS) continue;
        CHECK_VALUES(mlc_mean(x, a, false), 2, nan, 0, 0);
        CHECK_VALUES(mlc_var(x, a, 0, false), 2, nan, 0, 0);
        CHECK_VALUES(mlc_var(x, a, -1, false), 2, nan, 0, 0);
        CHECK_VALUES(mlc_std(x, a, 1, false), 2, nan, 0, 0);
        CHECK_VALUES(mlc_norm(x, 2, a, false), 2, zero, 0, 0);
        CHECK_VALUES(mlc_norm(x, 0, a, false), 2, zero, 0, 0);
        CHECK_VALUES(mlc_logsumexp(x, a, false), 2, low, 0, 0);
        CHECK_EQ(mlc_numel(mlc_var(x, mlc_dims1(0), 1, false)), 0);
        CHECK_VALUES(mlc_logsumexp(mlc_full(ctx, ALL[t], mlc_dims2(2, 3), low[0]), a, false), 2,
                     low, 0, 0);
    }
    CHECK_OK(ctx);
}

TEST(reduce, deviations_of_equals_are_zero_and_of_too_few_nan_or_infinite)
{
    const double zero = 0, nan = (double)NAN, inf = (double)INFINITY, two[2] = {1, 3};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < FLOATS; t++) {
            mlc_tensor *x = mlc_full(ctx, ALL[t], mlc_dims1(49), 0.1);
            mlc_set_requires_grad(x, true);
            mlc_tensor *y = mlc_std(x, mlc_dims0(), 1, false);
            CHECK_VALUES(y, 1, &zero, 0, 0);
            CHECK_EQ(mlc_backward(y), MLC_OK);
            CHECK_VALUES(mlc_sum(mlc_abs(mlc_grad(x)), mlc_dims0(), false), 1, &zero, 0, 0);
            x = test_tensor(ctx, ALL[t], mlc_dims1(2), two);
            CHECK_VALUES(mlc_var(mlc_slice(x, 0, 0, 1, 1), mlc_dims0(), 1, false), 1, &nan, 0, 0);
            CHECK_VALUES(mlc_var(x, mlc_dims0(), 2, false), 1, &inf, 0, 0);
            CHECK_VALUES(mlc_var(x, mlc_dims0(), 5, false), 1, &inf, 0, 0);
        }
}

/* 49 ones, whose mean is 1: a product with 1/49 would be one rounding off. */
TEST(reduce, a_mean_divides)
{
    const double one = 1;
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < FLOATS; t++)
            for (int64_t n = 1; n < 200; n++) {
                mlc_scope_begin(ctx);
                CHECK_VALUES(mlc_mean(mlc_ones(ctx, ALL[t], mlc_dims1(n)), mlc_dims0(), false), 1,
                             &one, 0, 0);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

static int64_t whole(mlc_tensor *t)
{
    int64_t v = 0;
    CHECK_EQ(mlc_read(t, &v, sizeof v), MLC_OK);
    return v;
}

/* Integers are exact beyond what doubles hold, and wrap. */
TEST(reduce, integers_are_exact)
{
    static const int64_t in[3] = {INT64_MAX, -3, INT64_MAX - 5};
    int64_t  got[3] = {0};
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *x = mlc_from(ctx, MLC_I64, mlc_dims1(3), in);
    CHECK_EQ(whole(mlc_max(x, mlc_dims0(), false)), INT64_MAX);
    CHECK_EQ(whole(mlc_min(x, mlc_dims0(), false)), -3);
    CHECK_EQ(whole(mlc_sum(x, mlc_dims0(), false)),
             (int64_t)((uint64_t)in[0] + (uint64_t)in[1] + (uint64_t)in[2]));
    CHECK_EQ(whole(mlc_prod(x, mlc_dims0(), false)),
             (int64_t)((uint64_t)in[0] * (uint64_t)in[1] * (uint64_t)in[2]));
    CHECK_EQ(whole(mlc_argmax(x, 0, false)), 0);
    CHECK_EQ(mlc_read(mlc_cumsum(x, 0), got, sizeof got), MLC_OK);
    CHECK_EQ(got[1], INT64_MAX - 3);
    CHECK_EQ(mlc_read(mlc_cumprod(x, 0), got, sizeof got), MLC_OK);
    CHECK_EQ(got[1], (int64_t)((uint64_t)in[0] * (uint64_t)in[1]));
    CHECK_OK(ctx);
}

/* ---- rounding errors ------------------------------------------------------------------------ */

/* The sum of n numbers, exactly enough: long double with what its roundings lose. */
static long double exact_sum(const double *v, int64_t n, long double *sizes)
{
    long double sum = 0, lost = 0;
    *sizes = 0;
    for (int64_t i = 0; i < n; i++) {
        const long double x = (long double)v[i], t = sum + x;
        lost += fabsl(sum) >= fabsl(x) ? (sum - t) + x : (x - t) + sum;
        sum = t;
        *sizes += fabsl(x);
    }
    return sum + lost;
}

/* 10^8 elements of sizes from 2^-30 to 2^30 that cancel nearly: 10^5 of them 10^3 times, which
 * memory holds once. Along the rows and down the columns. */
TEST(reduce, the_promised_bound_holds_for_1e8_badly_scaled_elements)
{
    enum { BASE = 100000 };
    const int64_t TIMES = 1000 / test_stride(20);
    double     *v = (double *)malloc(BASE * sizeof *v);
    mlc_ctx    *ctx = test_ctx();
    if (!CHECK(v != NULL)) return;
    for (int t = 0; t < 2; t++) {
        long double sizes;
        for (int64_t i = 0; i < BASE; i++) {
            v[i] = test_random(1, i, 1, 2) * pow(2, floor(test_random(2, i, -30, 30)));
            if (i % 2) v[i] = -v[i - 1] * (1 + test_random(3, i, -1e-6, 1e-6));
            if (t == 0) v[i] = (double)(float)v[i];
        }
        const long double sum = (long double)TIMES * exact_sum(v, BASE, &sizes);
        const double n = (double)BASE * (double)TIMES, eps = t ? 0x1p-53 : 0x1p-24;
        const double bound = (double)((long double)TIMES * sizes) *
                             (t ? 22 * 0x1p-53 : 0x1p-23 + n * 0x1p-53);
        mlc_tensor *x = test_tensor(ctx, t ? MLC_F64 : MLC_F32, mlc_dims1(BASE), v), *y;
        y = mlc_sum(mlc_expand(x, mlc_dims2(TIMES, BASE)), mlc_dims0(), false);
        CHECK_NEAR(mlc_item(y), (double)sum, bound + eps * fabs((double)sum));
        y = mlc_expand(mlc_reshape(x, mlc_dims3(1, BASE / 10, 10)),
                       mlc_dims3(TIMES, BASE / 10, 10));
        y = mlc_sum(mlc_sum(mlc_cast(mlc_sum(y, mlc_dims2(0, 1), false), MLC_F64), mlc_dims0(),
                            false), mlc_dims0(), false);
        CHECK_NEAR(mlc_item(y), (double)sum, bound + 20 * eps * (double)sizes * (double)TIMES);
    }
    free(v);
    CHECK_OK(ctx);
}

/* A mean far from 0 takes nothing from the deviation: with sums of squares all would be lost. */
TEST(reduce, deviations_far_from_zero)
{
    double v[1000];
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < 2; t++) {
            const double far = t ? 0x1p50 : 0x1p22, want = 0.25 * 1000 / 999;
            for (int i = 0; i < 1000; i++) v[i] = far + (i % 2 ? 1 : 0);
            mlc_tensor *x = test_tensor(ctx, t ? MLC_F64 : MLC_F32, mlc_dims1(1000), v);
            CHECK_VALUES(mlc_var(x, mlc_dims0(), 1, false), 1, &want, 0, 2 * eps_of(x->dtype));
        }
}

/* Groups of f32 would round the mean by more than all deviations: 1e8 has steps of 8. */
TEST(reduce, deviations_where_sums_of_f32_round)
{
    double v[999], want = 0, mean = 0;
    for (int i = 0; i < 999; i++) v[i] = 1e8 + 8 * (i * 7 % 3);
    for (int i = 0; i < 999; i++) mean += (v[i] - 1e8) / 999;
    for (int i = 0; i < 999; i++) want += (v[i] - 1e8 - mean) * (v[i] - 1e8 - mean) / 998;
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(999), v), *y;
        mlc_set_requires_grad(x, true);
        y = mlc_var(x, mlc_dims0(), 1, false);
        CHECK_VALUES(y, 1, &want, 0, 2 * eps_of(MLC_F32));
        CHECK_EQ(mlc_backward(y), MLC_OK);
        double got[999];
        CHECK(test_read(mlc_grad(x), got));
        for (int i = 0; i < 999; i++)
            CHECK_NEAR(got[i], 2 * (v[i] - 1e8 - mean) / 998, 16 * eps_of(MLC_F32) / 998);
    }
}

/* Powers leave the range of f32 on the way. 1/p is rounded to f64, which sums of 1e-90 raised to it
 * show 70 times as large. */
TEST(reduce, norms_and_their_gradients_do_not_overflow_on_the_way)
{
    const double  orders[] = {-3, -1, 0.5, 1.5, 2, 3, 8};
    const double  sizes[] = {1e-30, 1e-12, 1, 1e12, 1e30};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < 3; t++)
            for (int k = 0; k < COUNT_OF(sizes); k++)
                for (int o = 0; o < COUNT_OF(orders); o++) {
                    const double p = orders[o], x[3] = {3 * sizes[k], -4 * sizes[k], 2 * sizes[k]};
                    const double y = pow(pow(3, p) + pow(4, p) + pow(2, p), 1 / p);
                    const double tol = 2 * eps_of(ALL[t]) + 100 * 0x1p-53;
                    double       want = y * sizes[k], dx[3];
                    for (int i = 0; i < 3; i++)
                        dx[i] = (i == 1 ? -1 : 1) * pow(fabs(x[i]) / want, p - 1);
                    mlc_tensor *a = test_tensor(ctx, ALL[t], mlc_dims1(3), x);
                    mlc_set_requires_grad(a, true);
                    mlc_tensor *n = mlc_norm(a, p, mlc_dims0(), false);
                    CHECK_VALUES(n, 1, &want, 0, tol);
                    CHECK_EQ(mlc_backward(n), MLC_OK);
                    CHECK_VALUES(mlc_grad(a), 3, dx, 0, 10 * tol);
                }
}

TEST(reduce, the_gradient_of_a_deviation_does_not_underflow_on_the_way)
{
    const double in[3] = {-1e38, 0, 1e38}, want[3] = {-0.5, 0, 0.5};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < 3; t++) {
            mlc_tensor *x = test_tensor(ctx, ALL[t], mlc_dims1(3), in);
            mlc_set_requires_grad(x, true);
            CHECK_EQ(mlc_backward(mlc_std(x, mlc_dims0(), 1, false)), MLC_OK);
            CHECK_VALUES(mlc_grad(x), 3, want, 0, 4 * eps_of(ALL[t]));
        }
}

TEST(reduce, the_gradient_of_a_product_does_not_overflow_on_the_way)
{
    const double big[3] = {1e25, 1e-20, 1e30}, small[3] = {1e-25, 1e20, 1e-30};
    const double of_big[3] = {1e10, HUGE_VAL, 1e5}, of_small[3] = {1e-10, 0, 1e-5};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < 3; t += 2) {
            mlc_tensor *x = test_tensor(ctx, ALL[t], mlc_dims1(3), big);
            mlc_set_requires_grad(x, true);
            CHECK_EQ(mlc_backward(mlc_prod(x, mlc_dims0(), false)), MLC_OK);
            CHECK_VALUES(mlc_grad(x), 3, of_big, 0, 4 * eps_of(ALL[t]));
            x = test_tensor(ctx, ALL[t], mlc_dims1(3), small);
            mlc_set_requires_grad(x, true);
            CHECK_EQ(mlc_backward(mlc_prod(x, mlc_dims0(), false)), MLC_OK);
            CHECK_VALUES(mlc_grad(x), 3, of_small, 0, 4 * eps_of(ALL[t]));
        }
}

TEST(reduce, bits_do_not_depend_on_the_number_of_threads)
{
    static double got[2][1200];
    for (int r = 0; r < COUNT_OF(REDUCTIONS); r++)
        for (int threads = 1; threads <= 4; threads++) {
            mlc_ctx_desc d = test_desc();
            int64_t      n = 0;
            d.threads = threads;
            mlc_ctx    *ctx = mlc_ctx_create(&d);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(400, 500), 5, -1, 1);
            double     *to = got[threads > 1];
            for (int a = 0; a < 3; a++) {
                mlc_dims    axes = a == 2 ? mlc_dims0() : mlc_dims1(a);
                mlc_tensor *y = REDUCTIONS[r].call(x, axes, false);
                CHECK(y != NULL && test_read(y, to + n));
                n += mlc_numel(y);
            }
            CHECK(threads == 1 || memcmp(got[0], got[1], (size_t)n * 8) == 0);
            mlc_ctx_free(ctx);
        }
}

/* ---- gradients ------------------------------------------------------------------------------ */

typedef struct grad_case {
    const reduction *r;
    mlc_dims         axes;
    bool             keep;
    int32_t          axis;             /* of a scan; -1: none                                  */
    bool             product;
} grad_case;

static mlc_tensor *call_grad(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const grad_case *c = (const grad_case *)user;
    mlc_tensor      *y;
    (void)n_in;
    if (c->axis >= 0) y = c->product ? mlc_cumprod(in[0], c->axis) : mlc_cumsum(in[0], c->axis);
    else y = c->r->call(in[0], c->axes, c->keep);
    return mlc_mul(y, mlc_add_scalar(y, 0.5));             /* dy differs from place to place */
}

static void check_grad(mlc_ctx *ctx, grad_case *c, mlc_tensor *x, const char *name)
{
    mlc_gradcheck_report report;
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_gradcheck(call_grad, c, &x, 1, NULL, &report), MLC_OK);
    if (!CHECK(report.ok))
        printf("    %s: element %" PRId64 ": %g, want %g\n", name, report.index, report.analytic,
               report.numeric);
    CHECK_OK(ctx);
}

/* Elements all different and away from 0, so that a small step changes no extreme. */
static mlc_tensor *distinct(mlc_ctx *ctx, mlc_dims d)
{
    double v[64];
    for (int64_t i = 0; i < count(d); i++)
        v[i] = (i % 2 ? -1 : 1) * (0.4 + 0.05 * (double)(i * 7 % 31));
    return test_tensor(ctx, MLC_F64, d, v);
}

TEST(reduce, gradients_agree_with_central_differences)
{
    const mlc_dims sets[] = {mlc_dims0(), mlc_dims1(0), mlc_dims1(2), mlc_dims2(0, 2),
                             mlc_dims2(1, -1)};
    FOR_EACH_ISA(ctx)
        for (int r = 0; r < COUNT_OF(REDUCTIONS); r++)
            for (int s = 0; s < COUNT_OF(sets); s++) {
                grad_case c = {&REDUCTIONS[r], sets[s], s % 2 == 0, -1, false};
                if (c.r->result == 'b' || is(c.r, "norm 0")) continue;
                mlc_scope_begin(ctx);
                mlc_tensor *x = distinct(ctx, mlc_dims3(2, 3, 4));
                check_grad(ctx, &c, x, c.r->name);
                check_grad(ctx, &c, mlc_detach(mlc_transpose(distinct(ctx, mlc_dims3(3, 4, 2)), 0,
                                                             2)), c.r->name);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

TEST(reduce, gradients_of_scans_agree_with_central_differences)
{
    FOR_EACH_ISA(ctx)
        for (int32_t axis = 0; axis < 3; axis++)
            for (int product = 0; product < 2; product++) {
                grad_case c = {NULL, mlc_dims0(), false, axis, product != 0};
                mlc_scope_begin(ctx);
                check_grad(ctx, &c, distinct(ctx, mlc_dims3(2, 5, 4)), "scan");
                check_grad(ctx, &c, mlc_detach(mlc_transpose(distinct(ctx, mlc_dims3(3, 4, 2)), 0,
                                                             2)), "scan");
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
}

static void grad_is(mlc_tensor *y, mlc_tensor *x, const double *want)
{
    CHECK_EQ(mlc_backward(y), MLC_OK);
    CHECK_VALUES(mlc_grad(x), mlc_numel(x), want, 0, 0);
    mlc_zero_grad(x);
}

/* By hand, where the function has corners: ties share, zeros of products. */
TEST(reduce, gradients_at_ties_and_zeros)
{
    const double ties[4] = {3, 1, 3, 1}, top[4] = {0.5, 0, 0.5, 0}, low[4] = {0, 0.5, 0, 0.5};
    const double zero[4] = {2, 0, 3, 4}, by_zero[4] = {0, 24, 0, 0}, none[4] = {0, 0, 0, 0};
    const double zeros[4] = {2, 0, 0, 4}, sums[4] = {1, 32, 0, 0};
    const double two_sums[4] = {1 + 0, 2, 0, 0};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < FLOATS; t++) {
            mlc_tensor *x = test_tensor(ctx, ALL[t], mlc_dims1(4), ties);
            const mlc_dims a = mlc_dims0();
            mlc_set_requires_grad(x, true);
            grad_is(mlc_max(x, a, false), x, top);
            grad_is(mlc_min(x, a, false), x, low);
            grad_is(mlc_norm(x, (double)INFINITY, a, false), x, top);
            grad_is(mlc_norm(x, -(double)INFINITY, a, true), x, low);
            grad_is(mlc_norm(x, 0, a, false), x, none);
            x = test_tensor(ctx, ALL[t], mlc_dims1(4), zero);
            mlc_set_requires_grad(x, true);
            grad_is(mlc_prod(x, a, false), x, by_zero);
            grad_is(mlc_sum(mlc_cumprod(x, 0), a, false), x, sums);    /* 2 + 2 3 + 2 3 4 */
            x = test_tensor(ctx, ALL[t], mlc_dims1(4), zeros);
            mlc_set_requires_grad(x, true);
            grad_is(mlc_prod(x, a, false), x, none);
            grad_is(mlc_sum(mlc_cumprod(x, 0), a, false), x, two_sums);
            x = mlc_zeros(ctx, ALL[t], mlc_dims1(4));
            mlc_set_requires_grad(x, true);
            grad_is(mlc_norm(x, 2, a, false), x, none);
            grad_is(mlc_norm(x, 1, a, false), x, none);
            grad_is(mlc_norm(x, 3, a, false), x, none);
            grad_is(mlc_norm(x, 0.5, a, false), x, none);
        }
}

/* Two uses of x: the second gradient is added to the first. */
TEST(reduce, gradients_add_up)
{
    const double in[4] = {1, 2, 4, 8};
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < FLOATS; t++)
            for (int r = 0; r < COUNT_OF(REDUCTIONS); r++) {
                double once[4], twice[4];
                if (REDUCTIONS[r].result == 'b') continue;
                mlc_tensor *x = test_tensor(ctx, ALL[t], mlc_dims1(4), in), *y;
                mlc_set_requires_grad(x, true);
                CHECK_EQ(mlc_backward(REDUCTIONS[r].call(x, mlc_dims0(), false)), MLC_OK);
                CHECK(test_read(mlc_grad(x), once));
                mlc_zero_grad(x);
                y = mlc_add(REDUCTIONS[r].call(x, mlc_dims0(), false),
                            REDUCTIONS[r].call(x, mlc_dims0(), false));
                CHECK_EQ(mlc_backward(y), MLC_OK);
                CHECK(test_read(mlc_grad(x), twice));
                for (int i = 0; i < 4; i++)
                    CHECK_NEAR(twice[i], 2 * once[i], 4 * eps_of(ALL[t]) * fabs(once[i]));
            }
}

/* The gradient of a tensor that was broadcast is the sum over what it was repeated to. */
TEST(reduce, gradients_of_broadcasts_of_16_bits)
{
    FOR_EACH_ISA(ctx)
        for (int t = 0; t < FLOATS; t++) {
            const double five[3] = {5, 5, 5};
            mlc_tensor  *b = mlc_ones(ctx, ALL[t], mlc_dims1(3));
            mlc_tensor  *x = mlc_ones(ctx, ALL[t], mlc_dims2(5, 3));
            mlc_set_requires_grad(b, true);
            CHECK_EQ(mlc_backward(mlc_sum(mlc_add(x, b), mlc_dims0(), false)), MLC_OK);
            CHECK_VALUES(mlc_grad(b), 3, five, 0, 0);
        }
}
