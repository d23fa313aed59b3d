/* test_ops.c -- tests of sections API.OPS and API.TENSOR's views: one table, OPS, drives them
 *
 * Each operation is compared with a reference in double, written here, at odd and broadcast shapes
 * on each ISA level; its gradient with central differences; then wrong shapes, dtypes and NULL are
 * one error each. test_goldens.c has a row for every operation, this file for what came first.
 */
#include "mlc_test.h"
#include "golden/golden.h"

#define MOST 12000                     /* elements of the largest tensor in CASES              */

typedef struct args {                  /* what an operation is called with                     */
    mlc_tensor *in[3];
    double      s;
    mlc_dims    ints;                  /* axes, sizes or indices                               */
    bool        keep;
} args;

typedef struct val {                   /* a dense tensor of the reference                      */
    int32_t ndim;
    int64_t shape[MLC_MAX_DIMS];
    int64_t n;
    double  v[MOST];
} val;

typedef struct op {
    const char *name;
    const char *kind;                  /* rows of CASES with this word, or the name, apply     */
    mlc_tensor *(*call)(const args *a);
    double    (*f)(double x, double y, double s);         /* elementwise reference, or ...     */
    void      (*ref)(const args *a, const val *in, val *out);  /* ... one of whole tensors     */
    int32_t     n_in;
    double      low, high, s;          /* inputs are uniform in [low, high); scalar argument   */
} op;

/* ---- calls -------------------------------------------------------------------------------- */

#define CALL1(name) static mlc_tensor *call_##name(const args *a) \
    { return mlc_##name(a->in[0]); }
#define CALL2(name) static mlc_tensor *call_##name(const args *a) \
    { return mlc_##name(a->in[0], a->in[1]); }
#define CALL_S(name) static mlc_tensor *call_##name(const args *a) \
    { return mlc_##name(a->in[0], a->s); }
#define CALL_AXES(name) static mlc_tensor *call_##name(const args *a) \
    { return mlc_##name(a->in[0], a->ints, a->keep); }
#define CALL_DIMS(name) static mlc_tensor *call_##name(const args *a) \
    { return mlc_##name(a->in[0], a->ints); }

CALL2(add) CALL2(sub) CALL2(mul) CALL2(div) CALL2(pow) CALL2(matmul)
CALL1(neg) CALL1(exp) CALL1(log) CALL1(sqrt) CALL1(tanh) CALL1(sigmoid) CALL1(relu) CALL1(gelu)
CALL1(silu) CALL1(contiguous) CALL1(copy)
CALL_S(add_scalar) CALL_S(mul_scalar)
CALL_AXES(sum) CALL_AXES(mean) CALL_AXES(max)
CALL_DIMS(reshape) CALL_DIMS(permute) CALL_DIMS(expand)

static int32_t int_of(const args *a, int32_t i)
{
    return (int32_t)a->ints.v[i];
}

static mlc_tensor *call_dropout(const args *a)
{
    if (a->in[0] != NULL)
        mlc_seed(a->in[0]->ctx, 11);   /* the same mask each time: gradcheck needs a pure one  */
    return mlc_dropout(a->in[0], a->s);
}

static mlc_tensor *call_argmax(const args *a) { return mlc_argmax(a->in[0], int_of(a, 0), false); }
static mlc_tensor *call_flatten(const args *a) { return mlc_flatten(a->in[0], int_of(a, 0)); }

static mlc_tensor *call_transpose(const args *a)
{
    return mlc_transpose(a->in[0], int_of(a, 0), int_of(a, 1));
}

static mlc_tensor *call_select(const args *a)
{
    return mlc_select(a->in[0], int_of(a, 0), a->ints.v[1]);
}

static mlc_tensor *call_slice(const args *a)
{
    return mlc_slice(a->in[0], int_of(a, 0), a->ints.v[1], a->ints.v[2], a->ints.v[3]);
}

static mlc_tensor *call_cast(const args *a)
{
    return mlc_cast(a->in[0], (mlc_dtype)a->ints.v[0]);
}

static mlc_tensor *call_linear(const args *a)
{
    return mlc_linear(a->in[0], a->in[1], a->in[2]);
}

static mlc_tensor *call_linear_ex(const args *a)
{
    mlc_epilogue e = {MLC_ACT_NONE, 0, NULL};
    if (a->ints.n == 0)
        return mlc_linear_ex(a->in[0], a->in[1], a->in[2], NULL);
    e.act = (mlc_act)a->ints.v[0];
    return mlc_linear_ex(a->in[0], a->in[1], a->in[2], &e);
}

/* ---- references, elementwise -------------------------------------------------------------- */

static double f_add(double x, double y, double s) { (void)s; return x + y; }
static double f_sub(double x, double y, double s) { (void)s; return x - y; }
static double f_mul(double x, double y, double s) { (void)s; return x * y; }
static double f_div(double x, double y, double s) { (void)s; return x / y; }
static double f_pow(double x, double y, double s) { (void)s; return pow(x, y); }
static double f_add_scalar(double x, double y, double s) { (void)y; return x + s; }
static double f_mul_scalar(double x, double y, double s) { (void)y; return x * s; }
static double f_neg(double x, double y, double s) { (void)y; (void)s; return -x; }
static double f_exp(double x, double y, double s) { (void)y; (void)s; return exp(x); }
static double f_log(double x, double y, double s) { (void)y; (void)s; return log(x); }
static double f_sqrt(double x, double y, double s) { (void)y; (void)s; return sqrt(x); }
static double f_tanh(double x, double y, double s) { (void)y; (void)s; return tanh(x); }
static double f_relu(double x, double y, double s) { (void)y; (void)s; return x > 0 ? x : 0; }
static double f_sigmoid(double x, double y, double s)
{
    (void)y; (void)s;
    return 1 / (1 + exp(-x));
}
static double f_gelu(double x, double y, double s)
{
    (void)y; (void)s;
    return 0.5 * x * erfc(-x / sqrt(2.0));
}
static double f_silu(double x, double y, double s) { (void)y; (void)s; return x / (1 + exp(-x)); }
static double f_gelu_tanh(double x)
{
    return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double act_of(int64_t act, double x)
{
    switch (act) {
    case MLC_ACT_RELU:    return f_relu(x, 0, 0);
    case MLC_ACT_GELU:    return f_gelu(x, 0, 0);
    case MLC_ACT_TANH:    return tanh(x);
    case MLC_ACT_SIGMOID: return f_sigmoid(x, 0, 0);
    case MLC_ACT_SILU:    return f_silu(x, 0, 0);
    case MLC_ACT_GELU_TANH: return f_gelu_tanh(x);
    default:              return x;
    }
}

/* ---- references of whole tensors ---------------------------------------------------------- */

static void val_shape(val *x, int32_t ndim, const int64_t *shape)
{
    x->ndim = ndim;
    x->n = 1;
    for (int32_t i = 0; i < ndim; i++) {
        x->shape[i] = shape[i];
        x->n *= shape[i];
    }
}

/* Row-major number i as an index of x. */
static void unravel(const val *x, int64_t i, int64_t *index)
{
    for (int32_t d = x->ndim; d-- > 0; i /= x->shape[d])
        index[d] = i % x->shape[d];
}

/* Where the element of x is that broadcasts to this index of n axes. */
static int64_t place(const val *x, const int64_t *index, int32_t n)
{
    int64_t at = 0;
    for (int32_t d = 0; d < x->ndim; d++)
        at = at * x->shape[d] + (x->shape[d] == 1 ? 0 : index[n - x->ndim + d]);
    return at;
}

static void broadcast_shape(const val *a, const val *b, val *out)
{
    int64_t shape[MLC_MAX_DIMS];
    int32_t n = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int32_t d = 0; d < n; d++) {
        int32_t da = d - (n - a->ndim), db = d - (n - b->ndim);
        int64_t sa = da < 0 ? 1 : a->shape[da], sb = db < 0 ? 1 : b->shape[db];
        shape[d] = sa == 1 ? sb : sa;
    }
    val_shape(out, n, shape);
}

static void ref_elementwise(const op *o, const args *a, const val *in, val *out)
{
    int64_t index[MLC_MAX_DIMS];
    if (o->n_in == 1)
        val_shape(out, in[0].ndim, in[0].shape);
    else
        broadcast_shape(&in[0], &in[1], out);
    for (int64_t i = 0; i < out->n; i++) {
        unravel(out, i, index);
        double y = o->n_in == 2 ? in[1].v[place(&in[1], index, out->ndim)] : 0;
        out->v[i] = o->f(in[0].v[place(&in[0], index, out->ndim)], y, a->s);
    }
}

/* out holds the result already: only its mask is random. */
static void ref_dropout(const args *a, const val *in, val *out)
{
    for (int64_t i = 0; i < in->n; i++)
        out->v[i] = out->v[i] == 0 ? 0 : in->v[i] / (1 - a->s);
}

static int32_t axis_of(int64_t axis, int32_t ndim)
{
    return (int32_t)(axis < 0 ? axis + ndim : axis);
}

/* The shape with reduced axes as 1 in full; dropped from out unless kept. */
static void reduced_shape(const args *a, const val *in, val *full, val *out)
{
    int64_t shape[MLC_MAX_DIMS];
    int32_t n = 0;
    val_shape(full, in->ndim, in->shape);
    for (int32_t i = 0; i < (a->ints.n ? a->ints.n : in->ndim); i++)
        full->shape[a->ints.n ? axis_of(a->ints.v[i], in->ndim) : i] = -1;
    for (int32_t d = 0; d < in->ndim; d++) {
        if (full->shape[d] >= 0 || a->keep)
            shape[n++] = full->shape[d] < 0 ? 1 : full->shape[d];
        if (full->shape[d] < 0)
            full->shape[d] = 1;
    }
    val_shape(full, in->ndim, full->shape);
    val_shape(out, n, shape);
}

static void reduce(const args *a, const val *in, val *out, bool max)
{
    static val full;
    int64_t    index[MLC_MAX_DIMS];
    reduced_shape(a, in, &full, out);
    for (int64_t i = 0; i < out->n; i++)
        out->v[i] = max ? -(double)INFINITY : 0;
    for (int64_t i = 0; i < in->n; i++) {
        unravel(in, i, index);
        double *o = &out->v[place(&full, index, in->ndim)];
        *o = !max ? *o + in->v[i] : in->v[i] > *o ? in->v[i] : *o;
    }
}

static void ref_sum(const args *a, const val *in, val *out) { reduce(a, in, out, false); }
static void ref_max(const args *a, const val *in, val *out) { reduce(a, in, out, true); }

static void ref_mean(const args *a, const val *in, val *out)
{
    static val full;
    double     count = 1;
    reduce(a, in, out, false);
    reduced_shape(a, in, &full, out);
    for (int32_t d = 0; d < in->ndim; d++)
        count *= full.shape[d] == 1 ? (double)in->shape[d] : 1;
    for (int64_t i = 0; i < out->n; i++)
        out->v[i] /= count;
}

static void ref_argmax(const args *a, const val *in, val *out)
{
    static val best;
    int64_t    index[MLC_MAX_DIMS];
    int32_t    axis = axis_of(a->ints.v[0], in->ndim);
    args       one = *a;
    one.ints = mlc_dims1(axis);
    one.keep = true;
    reduce(&one, in, &best, true);
    for (int64_t i = in->n; i-- > 0;) {                       /* backwards: the first one wins */
        unravel(in, i, index);
        int64_t at = place(&best, index, in->ndim);
        if (in->v[i] >= best.v[at])
            out->v[at] = (double)index[axis];
    }
    one.keep = false;
    reduced_shape(&one, in, &best, out);
}

/* One product of the batch; the last axes of a and b are the matrices. */
static double dot(const val *a, const val *b, int64_t *index, int32_t n)
{
    double  sum = 0;
    int64_t row = index[n - 2], column = index[n - 1];
    for (int64_t k = 0; k < a->shape[a->ndim - 1]; k++) {
        index[n - 1] = k;
        double x = a->v[place(a, index, n)];
        index[n - 2] = k;
        index[n - 1] = column;
        sum += x * b->v[place(b, index, n)];
        index[n - 2] = row;
    }
    return sum;
}

static void ref_matmul(const args *args_, const val *in, val *out)
{
    static val a, b;
    int64_t    index[MLC_MAX_DIMS], shape[MLC_MAX_DIMS];
    int32_t    n = 0;
    (void)args_;
    a = in[0];
    b = in[1];
    if (in[0].ndim == 1)
        val_shape(&a, 2, mlc_dims2(1, in[0].shape[0]).v);
    if (in[1].ndim == 1)
        val_shape(&b, 2, mlc_dims2(in[1].shape[0], 1).v);
    int64_t m = a.shape[a.ndim - 2], k = a.shape[a.ndim - 1], c = b.shape[b.ndim - 1];
    a.shape[a.ndim - 2] = a.shape[a.ndim - 1] = 1;                  /* only the batch axes now */
    b.shape[b.ndim - 2] = b.shape[b.ndim - 1] = 1;
    broadcast_shape(&a, &b, out);
    a.shape[a.ndim - 2] = m;
    a.shape[a.ndim - 1] = b.shape[b.ndim - 2] = k;
    b.shape[b.ndim - 1] = c;
    out->shape[out->ndim - 2] = m;
    out->shape[out->ndim - 1] = c;
    val_shape(out, out->ndim, out->shape);
    for (int64_t i = 0; i < out->n; i++) {
        unravel(out, i, index);
        out->v[i] = dot(&a, &b, index, out->ndim);
    }
    for (int32_t d = 0; d < out->ndim; d++)
        if (!(d == out->ndim - 2 && in[0].ndim == 1) && !(d == out->ndim - 1 && in[1].ndim == 1))
            shape[n++] = out->shape[d];
    val_shape(out, n, shape);
}

static void ref_linear(const args *a, const val *in, val *out)
{
    const val *x = &in[0], *w = &in[1];
    int64_t    k = w->shape[1], c = w->shape[0], shape[MLC_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = c;
    val_shape(out, x->ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        double sum = a->in[2] != NULL ? in[2].v[i % c] : 0;
        for (int64_t j = 0; j < k; j++)
            sum += x->v[i / c * k + j] * w->v[i % c * k + j];
        out->v[i] = act_of(a->ints.n ? a->ints.v[0] : 0, sum);
    }
}

/* ---- references of views ------------------------------------------------------------------ */

static void ref_same(const args *a, const val *in, val *out)
{
    (void)a;
    val_shape(out, in->ndim, in->shape);
    memcpy(out->v, in->v, sizeof(double) * (size_t)in->n);
}

static void ref_reshape(const args *a, const val *in, val *out)
{
    int64_t shape[MLC_MAX_DIMS], known = 1;
    for (int32_t i = 0; i < a->ints.n; i++)
        known *= a->ints.v[i] < 0 ? 1 : a->ints.v[i];
    for (int32_t i = 0; i < a->ints.n; i++)
        shape[i] = a->ints.v[i] < 0 ? in->n / known : a->ints.v[i];
    ref_same(a, in, out);
    val_shape(out, a->ints.n, shape);
}

static void ref_flatten(const args *a, const val *in, val *out)
{
    int64_t shape[MLC_MAX_DIMS];
    int32_t first = axis_of(a->ints.v[0], in->ndim);
    memcpy(shape, in->shape, sizeof shape);
    shape[first] = 1;
    for (int32_t d = first; d < in->ndim; d++)
        shape[first] *= in->shape[d];
    ref_same(a, in, out);
    val_shape(out, first + 1, shape);
}

static void ref_permute(const args *a, const val *in, val *out)
{
    int64_t shape[MLC_MAX_DIMS], index[MLC_MAX_DIMS], from[MLC_MAX_DIMS];
    for (int32_t d = 0; d < in->ndim; d++)
        shape[d] = in->shape[axis_of(a->ints.v[d], in->ndim)];
    val_shape(out, in->ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        unravel(out, i, index);
        for (int32_t d = 0; d < in->ndim; d++)
            from[axis_of(a->ints.v[d], in->ndim)] = index[d];
        out->v[i] = in->v[place(in, from, in->ndim)];
    }
}

static void ref_transpose(const args *a, const val *in, val *out)
{
    args    p = *a;
    int32_t x = axis_of(a->ints.v[0], in->ndim), y = axis_of(a->ints.v[1], in->ndim);
    for (int32_t d = 0; d < in->ndim; d++)
        p.ints.v[d] = d == x ? y : d == y ? x : d;
    ref_permute(&p, in, out);
}

static int64_t python_bound(int64_t i, int64_t size)
{
    i = i < 0 ? i + size : i;
    return i < 0 ? 0 : i > size ? size : i;
}

static void ref_slice(const args *a, const val *in, val *out)
{
    int64_t index[MLC_MAX_DIMS], shape[MLC_MAX_DIMS], step = a->ints.v[3];
    int32_t axis = axis_of(a->ints.v[0], in->ndim);
    int64_t start = python_bound(a->ints.v[1], in->shape[axis]);
    int64_t stop = python_bound(a->ints.v[2], in->shape[axis]);
    memcpy(shape, in->shape, sizeof shape);
    shape[axis] = stop > start ? (stop - start + step - 1) / step : 0;
    val_shape(out, in->ndim, shape);
    for (int64_t i = 0; i < out->n; i++) {
        unravel(out, i, index);
        index[axis] = start + index[axis] * step;
        out->v[i] = in->v[place(in, index, in->ndim)];
    }
}

static void ref_select(const args *a, const val *in, val *out)
{
    args    s = *a;
    int64_t shape[MLC_MAX_DIMS];
    int32_t n = 0, axis = axis_of(a->ints.v[0], in->ndim);
    int64_t at = a->ints.v[1] < 0 ? a->ints.v[1] + in->shape[axis] : a->ints.v[1];
    s.ints = mlc_dims4(axis, at, at + 1, 1);
    ref_slice(&s, in, out);
    for (int32_t d = 0; d < in->ndim; d++)
        if (d != axis)
            shape[n++] = in->shape[d];
    val_shape(out, n, shape);
}

static void ref_expand(const args *a, const val *in, val *out)
{
    int64_t index[MLC_MAX_DIMS], shape[MLC_MAX_DIMS];
    int32_t n = a->ints.n;
    for (int32_t d = 0; d < n; d++)
        shape[d] = a->ints.v[d] < 0 ? in->shape[d - (n - in->ndim)] : a->ints.v[d];
    val_shape(out, n, shape);
    for (int64_t i = 0; i < out->n; i++) {
        unravel(out, i, index);
        out->v[i] = in->v[place(in, index, n)];
    }
}

/* ---- the table ---------------------------------------------------------------------------- */

static const op OPS[] = {
    {"mlc_add",        "binary",  call_add,        f_add,        NULL, 2, -2, 2, 0},
    {"mlc_sub",        "binary",  call_sub,        f_sub,        NULL, 2, -2, 2, 0},
    {"mlc_mul",        "binary",  call_mul,        f_mul,        NULL, 2, -2, 2, 0},
    {"mlc_div",        "binary",  call_div,        f_div,        NULL, 2, 0.5, 2, 0},
    {"mlc_pow",        "binary",  call_pow,        f_pow,        NULL, 2, 0.3, 2.5, 0},
    {"mlc_add_scalar", "unary",   call_add_scalar, f_add_scalar, NULL, 1, -2, 2, -0.75},
    {"mlc_mul_scalar", "unary",   call_mul_scalar, f_mul_scalar, NULL, 1, -2, 2, 3.5},
    {"mlc_neg",        "unary",   call_neg,        f_neg,        NULL, 1, -2, 2, 0},
    {"mlc_exp",        "unary",   call_exp,        f_exp,        NULL, 1, -9, 9, 0},
    {"mlc_log",        "unary",   call_log,        f_log,        NULL, 1, 0.1, 9, 0},
    {"mlc_sqrt",       "unary",   call_sqrt,       f_sqrt,       NULL, 1, 0.1, 9, 0},
    {"mlc_tanh",       "unary",   call_tanh,       f_tanh,       NULL, 1, -4, 4, 0},
    {"mlc_sigmoid",    "unary",   call_sigmoid,    f_sigmoid,    NULL, 1, -9, 9, 0},
    {"mlc_relu",       "unary",   call_relu,       f_relu,       NULL, 1, -2, 2, 0},
    {"mlc_gelu",       "unary",   call_gelu,       f_gelu,       NULL, 1, -5, 5, 0},
    {"mlc_silu",       "unary",   call_silu,       f_silu,       NULL, 1, -9, 9, 0},
    {"mlc_dropout",    "unary",   call_dropout,    NULL, ref_dropout,  1, 1, 2, 0.4},
    {"mlc_sum",        "reduce",  call_sum,        NULL, ref_sum,      1, -2, 2, 0},
    {"mlc_mean",       "reduce",  call_mean,       NULL, ref_mean,     1, -2, 2, 0},
    {"mlc_max",        "reduce",  call_max,        NULL, ref_max,      1, -2, 2, 0},
    {"mlc_argmax",     "index",   call_argmax,     NULL, ref_argmax,   1, -2, 2, 0},
    {"mlc_matmul",     "product", call_matmul,     NULL, ref_matmul,   2, -1, 1, 0},
    {"mlc_linear",     "linear",  call_linear,     NULL, ref_linear,   3, -1, 1, 0},
    {"mlc_linear_ex",  "linear",  call_linear_ex,  NULL, ref_linear,   3, -1, 1, 0},
    {"mlc_reshape",    "view",    call_reshape,    NULL, ref_reshape,  1, -2, 2, 0},
    {"mlc_flatten",    "view",    call_flatten,    NULL, ref_flatten,  1, -2, 2, 0},
    {"mlc_permute",    "view",    call_permute,    NULL, ref_permute,  1, -2, 2, 0},
    {"mlc_transpose",  "view",    call_transpose,  NULL, ref_transpose, 1, -2, 2, 0},
    {"mlc_slice",      "view",    call_slice,      NULL, ref_slice,    1, -2, 2, 0},
    {"mlc_select",     "view",    call_select,     NULL, ref_select,   1, -2, 2, 0},
    {"mlc_expand",     "view",    call_expand,     NULL, ref_expand,   1, -2, 2, 0},
    {"mlc_contiguous", "view",    call_contiguous, NULL, ref_same,     1, -2, 2, 0},
    {"mlc_copy",       "view",    call_copy,       NULL, ref_same,     1, -2, 2, 0},
    {"mlc_cast",       "view",    call_cast,       NULL, ref_same,     1, -2, 2, 0},
};
#define OP_COUNT ((int)(sizeof OPS / sizeof *OPS))

/* Shapes as "3,1,5" ("" is 0-d), NULL for no input. A T behind: a transposed view of that shape
 * (last two axes); S: every second column of a wider tensor. */
typedef struct shape_case {
    const char *who;                   /* a kind or a name of OPS                              */
    const char *in[3];
    const char *ints;
    bool        keep;
} shape_case;

static const shape_case CASES[] = {
    {"unary", {"", NULL, NULL}, "", false},
    {"unary", {"1", NULL, NULL}, "", false},
    {"unary", {"0,3", NULL, NULL}, "", false},
    {"unary", {"7", NULL, NULL}, "", false},
    {"unary", {"3,5T", NULL, NULL}, "", false},
    {"unary", {"3,5S", NULL, NULL}, "", false},
    {"unary", {"2,3,4T", NULL, NULL}, "", false},
    {"unary", {"17", NULL, NULL}, "", false},
    {"unary", {"33,31", NULL, NULL}, "", false},
    {"unary", {"10007", NULL, NULL}, "", false},
    {"unary", {"61,67T", NULL, NULL}, "", false},
    {"binary", {"", "", NULL}, "", false},
    {"binary", {"1", "1", NULL}, "", false},
    {"binary", {"0,3", "3", NULL}, "", false},
    {"binary", {"9", "9", NULL}, "", false},
    {"binary", {"3,5", "5", NULL}, "", false},
    {"binary", {"3,5", "3,1", NULL}, "", false},
    {"binary", {"", "2,3", NULL}, "", false},
    {"binary", {"2,3", "1,1", NULL}, "", false},
    {"binary", {"3,1,5", "4,1", NULL}, "", false},
    {"binary", {"3,4T", "3,4", NULL}, "", false},
    {"binary", {"3,4S", "3,4T", NULL}, "", false},
    {"binary", {"2,3,4T", "3,1", NULL}, "", false},
    {"binary", {"1031", "1031", NULL}, "", false},
    {"binary", {"33,131", "131", NULL}, "", false},
    {"binary", {"33,131", "33,1", NULL}, "", false},
    {"binary", {"33,131T", "33,131", NULL}, "", false},
    {"binary", {"10007", "10007", NULL}, "", false},
    {"binary", {"10007", "", NULL}, "", false},
    {"reduce", {"", NULL, NULL}, "", false},
    {"reduce", {"1", NULL, NULL}, "0", true},
    {"reduce", {"13", NULL, NULL}, "", false},
    {"reduce", {"3,5", NULL, NULL}, "", true},
    {"reduce", {"3,5", NULL, NULL}, "0", false},
    {"reduce", {"3,5", NULL, NULL}, "-1", true},
    {"reduce", {"2,3,5", NULL, NULL}, "2,0", false},
    {"reduce", {"2,3,5T", NULL, NULL}, "1", false},
    {"reduce", {"3,5S", NULL, NULL}, "1", true},
    {"reduce", {"0,3", NULL, NULL}, "1", false},
    {"reduce", {"97,101", NULL, NULL}, "", false},
    {"reduce", {"97,101", NULL, NULL}, "0", false},
    {"reduce", {"97,101", NULL, NULL}, "1", false},
    {"reduce", {"97,101T", NULL, NULL}, "1", false},
    {"mlc_sum", {"0,3", NULL, NULL}, "0", false},
    {"mlc_sum", {"0", NULL, NULL}, "", true},
    {"mlc_mean", {"0,3", NULL, NULL}, "0", false},
    {"index", {"13", NULL, NULL}, "0", false},
    {"index", {"1", NULL, NULL}, "-1", false},
    {"index", {"7,5", NULL, NULL}, "0", false},
    {"index", {"7,5T", NULL, NULL}, "1", false},
    {"index", {"3,4,5", NULL, NULL}, "1", false},
    {"index", {"0,3", NULL, NULL}, "1", false},
    {"index", {"97,101", NULL, NULL}, "-1", false},
    {"product", {"3,5", "5,7", NULL}, "", false},
    {"product", {"1,1", "1,1", NULL}, "", false},
    {"product", {"5", "5", NULL}, "", false},
    {"product", {"5", "5,3", NULL}, "", false},
    {"product", {"3,5", "5", NULL}, "", false},
    {"product", {"2,3,5", "5", NULL}, "", false},
    {"product", {"5", "2,5,3", NULL}, "", false},
    {"product", {"2,3,5", "2,5,4", NULL}, "", false},
    {"product", {"2,3,5", "5,4", NULL}, "", false},
    {"product", {"3,5", "2,5,4", NULL}, "", false},
    {"product", {"2,1,3,4", "3,4,2", NULL}, "", false},
    {"product", {"3,5T", "5,4T", NULL}, "", false},
    {"product", {"3,5S", "5,4S", NULL}, "", false},
    {"product", {"2,3,5T", "2,5,4S", NULL}, "", false},
    {"product", {"3,0", "0,4", NULL}, "", false},
    {"product", {"0,3", "3,4", NULL}, "", false},
    {"product", {"0,2,3", "3,4", NULL}, "", false},
    {"product", {"33,67", "67,19", NULL}, "", false},
    {"product", {"67,33T", "33,71T", NULL}, "", false},
    {"product", {"1,129", "129,65", NULL}, "", false},
    {"product", {"65,129", "129,1", NULL}, "", false},
    {"product", {"7,1031", "1031,11", NULL}, "", false},
    {"product", {"7,1031T", "1031,11T", NULL}, "", false},
    {"product", {"517,17", "17,19", NULL}, "", false},
    {"product", {"17,13", "13,601", NULL}, "", false},
    {"linear", {"3,5", "4,5", "4"}, "", false},
    {"linear", {"3,5", "4,5", NULL}, "", false},
    {"linear", {"5", "4,5", "4"}, "", false},
    {"linear", {"2,3,5", "4,5", "4"}, "", false},
    {"linear", {"2,3,5T", "4,5T", "4S"}, "", false},
    {"linear", {"0,5", "4,5", "4"}, "", false},
    {"linear", {"3,0", "4,0", "4"}, "", false},
    {"linear", {"1,1", "1,1", "1"}, "", false},
    {"linear", {"33,67", "19,67", "19"}, "", false},
    {"linear", {"1,129", "65,129", "65"}, "", false},
    {"mlc_linear_ex", {"3,5", "4,5", "4"}, "0", false},
    {"mlc_linear_ex", {"3,5", "4,5", "4"}, "1", false},
    {"mlc_linear_ex", {"3,5", "4,5", NULL}, "2", false},
    {"mlc_linear_ex", {"3,5T", "4,5", "4"}, "3", false},
    {"mlc_linear_ex", {"2,3,5", "4,5T", "4"}, "4", false},
    {"mlc_linear_ex", {"3,5", "4,5", "4"}, "5", false},
    {"mlc_linear_ex", {"3,5", "4,5", "4"}, "6", false},
    {"mlc_linear_ex", {"33,67", "19,67", "19"}, "2", false},
    {"mlc_linear_ex", {"0,5", "4,5", "4"}, "2", false},
    {"mlc_reshape", {"2,6", NULL, NULL}, "3,4", false},
    {"mlc_reshape", {"2,6", NULL, NULL}, "-1", false},
    {"mlc_reshape", {"3,4T", NULL, NULL}, "2,-1", false},
    {"mlc_reshape", {"3,4S", NULL, NULL}, "3,2,2", false},
    {"mlc_reshape", {"1,1", NULL, NULL}, "", false},
    {"mlc_reshape", {"", NULL, NULL}, "1,1,1", false},
    {"mlc_reshape", {"0,3", NULL, NULL}, "5,0", false},
    {"mlc_flatten", {"2,3,4", NULL, NULL}, "1", false},
    {"mlc_flatten", {"2,3,4T", NULL, NULL}, "0", false},
    {"mlc_flatten", {"2,3", NULL, NULL}, "-1", false},
    {"mlc_flatten", {"0,3,2", NULL, NULL}, "1", false},
    {"mlc_permute", {"2,3,4", NULL, NULL}, "2,0,1", false},
    {"mlc_permute", {"3,4T", NULL, NULL}, "1,0", false},
    {"mlc_permute", {"2,3,4", NULL, NULL}, "-1,1,0", false},
    {"mlc_permute", {"", NULL, NULL}, "", false},
    {"mlc_permute", {"0,3", NULL, NULL}, "1,0", false},
    {"mlc_transpose", {"2,3,4", NULL, NULL}, "0,2", false},
    {"mlc_transpose", {"3,4S", NULL, NULL}, "-1,-2", false},
    {"mlc_transpose", {"0,3", NULL, NULL}, "0,1", false},
    {"mlc_slice", {"5,7", NULL, NULL}, "1,1,6,2", false},
    {"mlc_slice", {"5,7", NULL, NULL}, "0,-3,9223372036854775807,1", false},
    {"mlc_slice", {"5,7T", NULL, NULL}, "-1,0,-1,3", false},
    {"mlc_slice", {"7", NULL, NULL}, "0,5,2,1", false},
    {"mlc_slice", {"7", NULL, NULL}, "0,-99,99,6", false},
    {"mlc_slice", {"0,3", NULL, NULL}, "0,0,5,1", false},
    {"mlc_select", {"3,4", NULL, NULL}, "0,1", false},
    {"mlc_select", {"3,4T", NULL, NULL}, "-1,-1", false},
    {"mlc_select", {"5", NULL, NULL}, "0,4", false},
    {"mlc_select", {"0,3", NULL, NULL}, "1,2", false},
    {"mlc_expand", {"3,1", NULL, NULL}, "3,4", false},
    {"mlc_expand", {"3,1", NULL, NULL}, "2,-1,5", false},
    {"mlc_expand", {"", NULL, NULL}, "2,2", false},
    {"mlc_expand", {"4,1T", NULL, NULL}, "4,3", false},
    {"mlc_expand", {"1,3", NULL, NULL}, "0,3", false},
    {"mlc_contiguous", {"3,4", NULL, NULL}, "", false},
    {"mlc_contiguous", {"3,4T", NULL, NULL}, "", false},
    {"mlc_contiguous", {"0,3", NULL, NULL}, "", false},
    {"mlc_contiguous", {"", NULL, NULL}, "", false},
    {"mlc_copy", {"3,4T", NULL, NULL}, "", false},
    {"mlc_copy", {"3,4S", NULL, NULL}, "", false},
    {"mlc_copy", {"0,3", NULL, NULL}, "", false},
    {"mlc_copy", {"", NULL, NULL}, "", false},
    {"mlc_copy", {"10007", NULL, NULL}, "", false},
    {"mlc_cast", {"3,4T", NULL, NULL}, "1", false},
    {"mlc_cast", {"1031", NULL, NULL}, "1", false},
    {"mlc_cast", {"0,3", NULL, NULL}, "1", false},
    {"mlc_cast", {"", NULL, NULL}, "1", false},
};
#define CASE_COUNT ((int)(sizeof CASES / sizeof *CASES))

/* ---- making the inputs of a case ---------------------------------------------------------- */

/* "3,1,5T" as dims; *layout becomes 'T', 'S' or 0. */
static mlc_dims parse(const char *text, char *layout)
{
    mlc_dims d = mlc_dims0();
    char    *end;
    while (*text == '-' || (*text >= '0' && *text <= '9')) {
        d.v[d.n++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    if (layout != NULL)
        *layout = *text;
    return d;
}

/* The stored tensor whose view (look) has the shape asked for. */
static mlc_tensor *stored(mlc_ctx *ctx, mlc_dtype dtype, const char *text, uint64_t seed,
                          const op *o)
{
    char     layout;
    mlc_dims d = parse(text, &layout);
    if (layout == 'T') {
        int64_t last = d.v[d.n - 1];
        d.v[d.n - 1] = d.v[d.n - 2];
        d.v[d.n - 2] = last;
    } else if (layout == 'S') {
        d.v[d.n - 1] = 2 * d.v[d.n - 1] + 1;
    }
    return test_rand(ctx, dtype, d, seed, o->low, o->high);
}

static mlc_tensor *look(mlc_tensor *t, char layout)
{
    return layout == 'T' ? mlc_transpose(t, -1, -2)
         : layout == 'S' ? mlc_slice(t, -1, 1, INT64_MAX, 2) : t;
}

static char layout_of(const char *text)
{
    char layout;
    parse(text, &layout);
    return layout;
}

static bool applies(const shape_case *c, const op *o)
{
    return strcmp(c->who, o->kind) == 0 || strcmp(c->who, o->name) == 0;
}

static args args_of(const op *o, const shape_case *c)
{
    args a;
    memset(&a, 0, sizeof a);
    a.s = o->s;
    a.ints = parse(c->ints, NULL);
    a.keep = c->keep;
    return a;
}

static bool floats_only(const op *o)
{
    static const char *const any[] = {"mlc_sum", "mlc_max", "mlc_argmax"};
    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        if (strcmp(o->name, any[i]) == 0)
            return false;
    return strcmp(o->kind, "view") != 0;
}

static bool differentiable(const op *o)
{
    return strcmp(o->kind, "index") != 0;
}

/* "mlc_add f32 avx2 [3,5] [5]", for messages */
static void label_of(char *text, size_t n, mlc_ctx *ctx, const op *o, const shape_case *c,
                     mlc_dtype dtype)
{
    snprintf(text, n, "%s %s %s (%s) (%s) (%s) ints %s", o->name, mlc_dtype_name(dtype),
             mlc_isa_name(mlc_ctx_isa(ctx)), c->in[0], c->in[1] ? c->in[1] : "-",
             c->in[2] ? c->in[2] : "-", c->ints);
}

/* ---- values ------------------------------------------------------------------------------- */

static val reference_in[3], reference_out;

static void read_val(mlc_tensor *t, val *x)
{
    val_shape(x, t->ndim, t->shape);
    test_read(t, x->v);
}

static bool same_shape(const mlc_tensor *t, const val *want)
{
    bool same = t->ndim == want->ndim;
    for (int32_t d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == want->shape[d];
    return same;
}

/* What a value may be off beside its relative bound: f64 formulas 1e-12; f32 PyTorch's 1e-5 for
 * sums, growing with the root of their length (formats.md 4.2), less for everything else. */
static double atol_of(const op *o, mlc_dtype dtype)
{
    const val *a = &reference_in[0];
    double     length = a->ndim > 0 ? (double)a->shape[a->ndim - 1] : 1;
    bool       sums = strcmp(o->kind, "product") == 0 || strcmp(o->kind, "linear") == 0;
    if (dtype == MLC_F64)
        return 1e-12;
    return !sums ? 1e-6 : length > 256 ? 1e-5 * sqrt(length / 256) : 1e-5;
}

static bool values_agree(const op *o, mlc_tensor *out, mlc_dtype dtype, const char *label)
{
    double atol = atol_of(o, dtype), rtol = dtype == MLC_F64 ? 1e-12 : 1.3e-6;
    if (!same_shape(out, &reference_out)) {
        char shape[80];
        printf("  %s: shape %s is wrong\n", label, mlc_shape_text(out, shape, sizeof shape));
        return false;
    }
    return golden_values(out, reference_out.n, reference_out.v, atol, rtol, label);
}

static bool check_values(mlc_ctx *ctx, const op *o, const shape_case *c, mlc_dtype dtype)
{
    char label[160];
    args a = args_of(o, c);
    label_of(label, sizeof label, ctx, o, c, dtype);
    for (int32_t i = 0; i < o->n_in && c->in[i] != NULL; i++) {
        a.in[i] = look(stored(ctx, dtype, c->in[i], 3u + (uint64_t)i, o), layout_of(c->in[i]));
        if (!CHECK(a.in[i] != NULL))
            return false;
        read_val(a.in[i], &reference_in[i]);
    }
    mlc_tensor *out = o->call(&a);
    if (out == NULL) {
        printf("  %s: NULL\n", label);
        return CHECK_OK(ctx);
    }
    read_val(out, &reference_out);                         /* for ref_dropout; else overwritten */
    if (o->f != NULL)
        ref_elementwise(o, &a, reference_in, &reference_out);
    else
        o->ref(&a, reference_in, &reference_out);
    return values_agree(o, out, dtype, label) && CHECK_OK(ctx);
}

TEST(ops, values_match_a_reference_in_double_on_each_isa_level)
{
    const mlc_dtype dtypes[] = {MLC_F32, MLC_F64};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < OP_COUNT; i++) {
            int done = 0;
            for (int k = 0; k < 2 * CASE_COUNT; k++) {
                if (!applies(&CASES[k / 2], &OPS[i]))
                    continue;
                mlc_scope_begin(ctx);
                CHECK(check_values(ctx, &OPS[i], &CASES[k / 2], dtypes[k % 2]));
                mlc_scope_end(ctx);
                done++;
            }
            CHECK(done >= 4);
        }
    }
}

/* ---- gradients against central differences ------------------------------------------------ */

typedef struct grad_user {
    const op         *o;
    const shape_case *c;
    mlc_tensor       *weight;          /* makes a scalar of the result that tells elements apart */
} grad_user;

static mlc_tensor *grad_call(const grad_user *u, mlc_tensor *const *in, int32_t n_in)
{
    args a = args_of(u->o, u->c);
    for (int32_t i = 0; i < n_in; i++)
        a.in[i] = look(in[i], layout_of(u->c->in[i]));
    return u->o->call(&a);
}

static mlc_tensor *grad_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const grad_user *u = (const grad_user *)user;
    return mlc_sum(mlc_mul(grad_call(u, in, n_in), u->weight), mlc_dims0(), false);
}

static bool check_gradient(mlc_ctx *ctx, const op *o, const shape_case *c)
{
    char                 label[160];
    mlc_tensor          *in[3] = {NULL, NULL, NULL};
    grad_user            u = {o, c, NULL};
    mlc_gradcheck_report r;
    int32_t              n = 0;
    label_of(label, sizeof label, ctx, o, c, MLC_F64);
    for (; n < o->n_in && c->in[n] != NULL; n++) {
        in[n] = stored(ctx, MLC_F64, c->in[n], 5u + (uint64_t)n, o);
        mlc_set_requires_grad(in[n], true);
    }
    mlc_tensor *out = grad_call(&u, in, n);
    if (out == NULL)
        return CHECK_OK(ctx);
    u.weight = test_rand(ctx, MLC_F64, mlc_dims_of(out->ndim, out->shape), 9, 0.5, 1.5);
    memset(&r, 0, sizeof r);
    if (!CHECK_EQ(mlc_gradcheck(grad_loss, &u, in, n, NULL, &r), MLC_OK) || !CHECK_OK(ctx))
        return false;
    if (!r.ok)
        printf("  %s: input %d element %" PRId64 ": backward %.12g, differences %.12g\n", label,
               (int)r.input, r.index, r.analytic, r.numeric);
    return r.ok;
}

static int64_t case_numel(const shape_case *c)
{
    int64_t most = 0;
    for (int i = 0; i < 3 && c->in[i] != NULL; i++) {
        mlc_dims d = parse(c->in[i], NULL);
        int64_t  n = 1;
        for (int32_t k = 0; k < d.n; k++)
            n *= d.v[k];
        most = n > most ? n : most;
    }
    return most;
}

TEST(ops, gradients_match_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        int done = 0;
        for (int k = 0; k < CASE_COUNT; k++) {
            if (!differentiable(&OPS[i]) || !applies(&CASES[k], &OPS[i]) ||
                case_numel(&CASES[k]) > 60)
                continue;
            mlc_scope_begin(ctx);
            CHECK(check_gradient(ctx, &OPS[i], &CASES[k]));
            mlc_scope_end(ctx);
            done++;
        }
        CHECK(done >= 3 || !differentiable(&OPS[i]));
    }
}

/* ---- wrong input -------------------------------------------------------------------------- */

typedef struct wrong_case {
    const char *name;                  /* of OPS                                               */
    const char *in[3];
    const char *ints;
    mlc_status  status;
    const char *parts;                 /* "[2,3]|axis 2": in the message; "": all input shapes */
} wrong_case;

static const wrong_case WRONG[] = {
    {"mlc_add", {"2,3", "4,3", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_sub", {"2,3", "2", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_mul", {"2,3,4", "3,3", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_div", {"5", "4", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_pow", {"0", "4", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_sum", {"2,3", NULL, NULL}, "2", MLC_ERR_SHAPE, "[2,3]|axis 2"},
    {"mlc_sum", {"2,3", NULL, NULL}, "-3", MLC_ERR_SHAPE, "[2,3]|axis -3"},
    {"mlc_sum", {"2,3", NULL, NULL}, "1,1", MLC_ERR_SHAPE, "[2,3]|axis 1"},
    {"mlc_mean", {"2,3", NULL, NULL}, "5", MLC_ERR_SHAPE, "[2,3]|axis 5"},
    {"mlc_mean", {"2,3", NULL, NULL}, "0,-2", MLC_ERR_SHAPE, "[2,3]|axis 0"},
    {"mlc_max", {"2,3", NULL, NULL}, "2", MLC_ERR_SHAPE, "[2,3]|axis 2"},
    {"mlc_max", {"2,0", NULL, NULL}, "1", MLC_ERR_SHAPE, ""},
    {"mlc_max", {"2,0", NULL, NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_argmax", {"2,0", NULL, NULL}, "1", MLC_ERR_SHAPE, ""},
    {"mlc_argmax", {"2,3", NULL, NULL}, "2", MLC_ERR_SHAPE, "[2,3]|axis 2"},
    {"mlc_argmax", {"", NULL, NULL}, "1", MLC_ERR_SHAPE, "[]|axis 1"},
    {"mlc_matmul", {"2,3", "4,5", NULL}, "", MLC_ERR_SHAPE, "[2,3]|[4,5]|3 vs 4"},
    {"mlc_matmul", {"3", "4", NULL}, "", MLC_ERR_SHAPE, "[3]|[4]|3 vs 4"},
    {"mlc_matmul", {"", "4", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_matmul", {"2,3,4", "3,4,5", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_linear", {"2,3", "4,5", NULL}, "", MLC_ERR_SHAPE, "[2,3]|[4,5]|3 vs 5"},
    {"mlc_linear", {"2,3", "3", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_linear", {"", "4,5", NULL}, "", MLC_ERR_SHAPE, ""},
    {"mlc_linear", {"2,5", "4,5", "5"}, "", MLC_ERR_SHAPE, ""},
    {"mlc_linear_ex", {"2,3", "4,5", NULL}, "1", MLC_ERR_SHAPE, "[2,3]|[4,5]|3 vs 5"},
    {"mlc_linear_ex", {"2,5", "4,5", "1"}, "1", MLC_ERR_SHAPE, ""},
    {"mlc_linear_ex", {"2,5", "4,5", NULL}, "99", MLC_ERR_ARG, "99"},
    {"mlc_reshape", {"2,3", NULL, NULL}, "4,2", MLC_ERR_SHAPE, "[2,3]|[4,2]"},
    {"mlc_reshape", {"2,3", NULL, NULL}, "-1,4", MLC_ERR_SHAPE, "[2,3]|[-1,4]"},
    {"mlc_reshape", {"2,3", NULL, NULL}, "-1,-1", MLC_ERR_SHAPE, "[2,3]|[-1,-1]"},
    {"mlc_reshape", {"2,3", NULL, NULL}, "-2,3", MLC_ERR_SHAPE, "[2,3]|[-2,3]"},
    {"mlc_flatten", {"2,3", NULL, NULL}, "2", MLC_ERR_SHAPE, "[2,3]|axis 2"},
    {"mlc_permute", {"2,3", NULL, NULL}, "0,0", MLC_ERR_SHAPE, "[2,3]|[0,0]"},
    {"mlc_permute", {"2,3", NULL, NULL}, "0", MLC_ERR_SHAPE, "[2,3]|[0]"},
    {"mlc_permute", {"2,3", NULL, NULL}, "0,2", MLC_ERR_SHAPE, "[2,3]|[0,2]"},
    {"mlc_transpose", {"2,3", NULL, NULL}, "0,2", MLC_ERR_SHAPE, "[2,3]|axis 2"},
    {"mlc_slice", {"2,3", NULL, NULL}, "2,0,1,1", MLC_ERR_SHAPE, "[2,3]|axis 2"},
    {"mlc_slice", {"2,3", NULL, NULL}, "0,0,1,0", MLC_ERR_ARG, "step"},
    {"mlc_slice", {"2,3", NULL, NULL}, "0,0,1,-1", MLC_ERR_ARG, "step|-1"},
    {"mlc_select", {"2,3", NULL, NULL}, "1,3", MLC_ERR_SHAPE, "[2,3]|index 3"},
    {"mlc_select", {"2,3", NULL, NULL}, "1,-4", MLC_ERR_SHAPE, "[2,3]|index -4"},
    {"mlc_select", {"2,3", NULL, NULL}, "-3,0", MLC_ERR_SHAPE, "[2,3]|axis -3"},
    {"mlc_expand", {"2,3", NULL, NULL}, "4,3", MLC_ERR_SHAPE, "[2,3]|[4,3]"},
    {"mlc_expand", {"2,3", NULL, NULL}, "3", MLC_ERR_SHAPE, "[2,3]|[3]"},
    {"mlc_expand", {"3", NULL, NULL}, "-1,3", MLC_ERR_SHAPE, "[3]|[-1,3]"},
    {"mlc_cast", {"2,3", NULL, NULL}, "77", MLC_ERR_DTYPE, "77"},
};
#define WRONG_COUNT ((int)(sizeof WRONG / sizeof *WRONG))

static void count_errors(void *user, mlc_log_level level, const char *text)
{
    (void)text;
    if (level == MLC_LOG_ERROR)
        ++*(int *)user;
}

/* A context that counts its errors in *errors; the caller frees it. */
static mlc_ctx *counting_ctx(int *errors)
{
    mlc_ctx_desc d = test_desc();
    *errors = 0;
    d.log = count_errors;
    d.log_user = errors;
    return mlc_ctx_create(&d);
}

/* Exactly one error of that status stands, and its text names the operation. Clears it. */
static bool one_error(mlc_ctx *ctx, int *errors, mlc_status status, const op *o)
{
    const char *said = strcmp(o->name, "mlc_linear_ex") == 0 ? "linear" : o->name + 4;
    bool ok = CHECK_EQ(*errors, 1);
    ok = CHECK_HAS(mlc_error(ctx), said) && ok;
    ok = CHECK_STATUS(ctx, status) && ok;
    if (!ok)
        printf("  %s: \"%s\"\n", o->name, mlc_error(ctx));
    mlc_error_clear(ctx);
    *errors = 0;
    return ok;
}

static const op *find_op(const char *name)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(OPS[i].name, name) == 0)
            return &OPS[i];
    return NULL;
}

static bool shapes_in_message(mlc_ctx *ctx, const args *a)
{
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        char shape[80];
        if (a->in[i] != NULL)
            ok = CHECK_HAS(mlc_error(ctx), mlc_shape_text(a->in[i], shape, sizeof shape)) && ok;
    }
    return ok;
}

static bool parts_in_message(mlc_ctx *ctx, const char *parts)
{
    bool ok = true;
    while (*parts != 0) {
        char   part[32];
        size_t n = strcspn(parts, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, parts);
        ok = CHECK_HAS(mlc_error(ctx), part) && ok;
        parts += n + (parts[n] == '|');
    }
    return ok;
}

static void check_wrong(mlc_ctx *ctx, int *errors, const wrong_case *w)
{
    const op *o = find_op(w->name);
    args      a;
    bool      ok;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 3 && w->in[i] != NULL; i++)
        a.in[i] = stored(ctx, MLC_F32, w->in[i], 1, o);
    a.ints = parse(w->ints, NULL);
    ok = CHECK(o->call(&a) == NULL);
    ok = (*w->parts ? parts_in_message(ctx, w->parts) : shapes_in_message(ctx, &a)) && ok;
    ok = one_error(ctx, errors, w->status, o) && ok;
    if (!ok)
        printf("  in %s (%s) (%s) ints %s\n", w->name, w->in[0], w->in[1] ? w->in[1] : "-",
               w->ints);
}

TEST(ops, wrong_shapes_and_axes_are_one_error_that_names_operation_and_shapes)
{
    int      errors;
    mlc_ctx *ctx = counting_ctx(&errors);
    if (!CHECK(ctx != NULL))
        return;
    for (int i = 0; i < WRONG_COUNT; i++)
        check_wrong(ctx, &errors, &WRONG[i]);
    mlc_ctx_free(ctx);
}

/* The first case of o, with inputs of the dtypes given. */
static args first_case(mlc_ctx *ctx, const op *o, const mlc_dtype *dtypes)
{
    args a;
    for (int k = 0; k < CASE_COUNT; k++) {
        if (!applies(&CASES[k], o))
            continue;
        a = args_of(o, &CASES[k]);
        for (int i = 0; i < o->n_in && CASES[k].in[i] != NULL; i++)
            a.in[i] = stored(ctx, dtypes[i], CASES[k].in[i], 1, o);
        return a;
    }
    memset(&a, 0, sizeof a);
    return a;
}

TEST(ops, wrong_dtypes_are_one_error_that_names_operation_and_dtype)
{
    static const mlc_dtype ints[] = {MLC_U8, MLC_U8, MLC_U8};
    int                    errors;
    mlc_ctx               *ctx = counting_ctx(&errors);
    if (!CHECK(ctx != NULL))
        return;
    for (int i = 0; i < OP_COUNT; i++) {
        const op *o = &OPS[i];
        if (floats_only(o)) {
            args a = first_case(ctx, o, ints);
            CHECK(o->call(&a) == NULL);
            CHECK_HAS(mlc_error(ctx), "u8");
            one_error(ctx, &errors, MLC_ERR_DTYPE, o);
        }
        for (int odd = 0; o->n_in > 1 && odd < o->n_in; odd++) {
            mlc_dtype mixed[] = {MLC_F32, MLC_F32, MLC_F32};
            mixed[odd] = MLC_F64;
            args a = first_case(ctx, o, mixed);
            CHECK(o->call(&a) == NULL);
            CHECK_HAS(mlc_error(ctx), "f32");
            CHECK_HAS(mlc_error(ctx), "f64");
            one_error(ctx, &errors, MLC_ERR_DTYPE, o);
        }
    }
    mlc_ctx_free(ctx);
}

TEST(ops, null_beside_a_tensor_is_an_argument_error)
{
    static const mlc_dtype floats[] = {MLC_F32, MLC_F32, MLC_F32};
    int                    errors;
    mlc_ctx               *ctx = counting_ctx(&errors);
    if (!CHECK(ctx != NULL))
        return;
    for (int i = 0; i < OP_COUNT; i++) {
        const op *o = &OPS[i];
        for (int k = 0; k < o->n_in && k < 2; k++) {           /* a bias may be NULL           */
            args a = first_case(ctx, o, floats);
            a.in[k] = NULL;
            CHECK(o->call(&a) == NULL);
            if (o->n_in > 1)
                one_error(ctx, &errors, MLC_ERR_ARG, o);
            CHECK_EQ(errors, 0);                               /* one input: no context to tell */
        }
    }
    mlc_ctx_free(ctx);
}

TEST(ops, null_after_an_error_keeps_the_first_error)
{
    static const mlc_dtype floats[] = {MLC_F32, MLC_F32, MLC_F32};
    int                    errors;
    mlc_ctx               *ctx = counting_ctx(&errors);
    if (!CHECK(ctx != NULL))
        return;
    mlc_raise(ctx, MLC_ERR_VALUE, "the first one");
    for (int i = 0; i < OP_COUNT; i++) {
        args a = first_case(ctx, &OPS[i], floats);
        a.in[0] = NULL;
        CHECK(OPS[i].call(&a) == NULL);
    }
    CHECK_EQ(errors, 1);
    CHECK_STR(mlc_error(ctx), "the first one");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_ctx_free(ctx);
}

/* ---- what the table cannot say ------------------------------------------------------------ */

TEST(ops, views_take_integers_too)
{
    static const double v[] = {1, 2, 3, 4, 5, 6}, turned[] = {1, 4, 2, 5, 3, 6};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *t = test_tensor(ctx, MLC_I64, mlc_dims2(2, 3), v);
    CHECK_VALUES(mlc_reshape(mlc_transpose(t, 0, 1), mlc_dims1(6)), 6, turned, 0, 0);
    CHECK_VALUES(mlc_copy(mlc_select(t, 0, 1)), 3, v + 3, 0, 0);
    CHECK_VALUES(mlc_expand(mlc_slice(t, 1, 0, 1, 1), mlc_dims2(2, 1)), 2, turned, 0, 0);
    CHECK_OK(ctx);
}

TEST(ops, cast_truncates_to_integers_and_marks_what_has_none)
{
    static const double v[] = {1.9, -1.9, -0.5, 1e300, -1e300, (double)NAN,
                               (double)INFINITY};
    static const double want[] = {1, -1, 0, -9223372036854775808.0, -9223372036854775808.0,
                                  -9223372036854775808.0, -9223372036854775808.0};
    static const double small[] = {-3, 0, 7};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *wide = test_tensor(ctx, MLC_F64, mlc_dims1(7), v);
    mlc_tensor         *ints = test_tensor(ctx, MLC_I64, mlc_dims1(3), small);
    CHECK_VALUES(mlc_cast(wide, MLC_I64), 7, want, 0, 0);
    CHECK_VALUES(mlc_cast(mlc_cast(ints, MLC_F32), MLC_F64), 3, small, 0, 0);
    CHECK_OK(ctx);
}

TEST(ops, cast_gives_the_gradient_back_in_the_first_dtype)
{
    static const double v[] = {1.5, -2.25, 4};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F64, mlc_dims1(3), v);
    mlc_tensor         *dy = test_tensor(ctx, MLC_F32, mlc_dims1(3), v);
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_backward_from(mlc_cast(x, MLC_F32), dy), MLC_OK);
    if (CHECK(mlc_grad(x) != NULL)) {
        CHECK_EQ(mlc_grad(x)->dtype, MLC_F64);
        CHECK_VALUES(mlc_grad(x), 3, v, 0, 0);
    }
    CHECK_OK(ctx);
}

TEST(ops, dropout_drops_the_share_asked_for_and_masks_the_gradient_alike)
{
    enum { N = 10000 };
    static double y[N], dx[N];
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(N), 1.0);
        mlc_set_requires_grad(x, true);
        mlc_tensor *out = mlc_dropout(x, 0.25);
        if (!CHECK(out != NULL) || !CHECK_EQ(mlc_backward_from(out, NULL), MLC_OK))
            return;
        int dropped = 0;
        test_read(out, y);
        test_read(mlc_grad(x), dx);
        for (int i = 0; i < N; i++) {
            dropped += y[i] == 0;
            if (!CHECK(y[i] == dx[i] && (y[i] == 0 || fabs(y[i] - 4.0 / 3) < 1e-6)))
                return;
        }
        CHECK_NEAR(dropped, 0.25 * N, 5 * sqrt(0.25 * 0.75 * N));       /* five deviations     */
    }
}

/* The gradient of what a view sees is written through its strides; a second one adds up.      */
TEST(ops, dropout_of_a_view_masks_the_gradient_of_the_base)
{
    static const int64_t ROWS = 3, COLS = 5;
    FOR_EACH_ISA(ctx) {
        double      x[15], y[2][15], dx[15];
        mlc_tensor *leaf = test_rand(ctx, MLC_F64, mlc_dims2(ROWS, COLS), 3, 1, 2);
        mlc_set_requires_grad(leaf, true);
        for (int pass = 0; pass < 2; pass++) {
            mlc_tensor *out = mlc_dropout(mlc_transpose(leaf, 0, 1), 0.5);
            test_read(out, y[pass]);
            CHECK_EQ(mlc_backward_from(out, NULL), MLC_OK);
        }
        test_read(leaf, x);
        test_read(mlc_grad(leaf), dx);
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t j = 0; j < COLS; j++) {
                const double kept = (y[0][j * ROWS + i] != 0) + (y[1][j * ROWS + i] != 0);
                CHECK_NEAR(dx[i * COLS + j], 2 * kept, 0);
                CHECK_NEAR(y[0][j * ROWS + i] + y[1][j * ROWS + i], 2 * kept * x[i * COLS + j], 0);
            }
        CHECK_OK(ctx);
    }
}

TEST(ops, dropout_at_its_ends_and_out_of_range)
{
    static const double v[] = {1, -2, 3}, zeros[] = {0, 0, 0};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F64, mlc_dims1(3), v);
    CHECK_VALUES(mlc_dropout(x, 0), 3, v, 0, 0);
    CHECK_VALUES(mlc_dropout(x, 1), 3, zeros, 0, 0);
    CHECK_OK(ctx);
    const double bad[] = {-0.1, 1.1, (double)NAN};
    for (int i = 0; i < 3; i++) {
        CHECK(mlc_dropout(x, bad[i]) == NULL);
        CHECK_HAS(mlc_error(ctx), "dropout");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
}

TEST(ops, dropout_masks_do_not_depend_on_the_isa_level)
{
    enum { N = 1031 };
    static double first[N], y[N];
    int           level = 0;
    FOR_EACH_ISA(ctx) {
        mlc_seed(ctx, 5);
        test_read(mlc_dropout(mlc_full(ctx, MLC_F32, mlc_dims1(N), 1.0), 0.5), level ? y : first);
        CHECK(level == 0 || memcmp(first, y, sizeof y) == 0);
        level++;
    }
}

TEST(ops, large_sums_keep_their_digits)
{
    enum { N = 1000003 };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(N), 0.1);
    CHECK_NEAR(mlc_item(mlc_sum(x, mlc_dims0(), false)), N * (double)0.1f, 0.01);
    CHECK_NEAR(mlc_item(mlc_mean(x, mlc_dims0(), false)), (double)0.1f, 1e-8);
    CHECK_OK(ctx);
}

TEST(ops, an_input_used_twice_gets_both_gradients)
{
    static const double v[] = {1, 2, 3}, want[] = {2 + 2, 4 + 2, 6 + 2};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F64, mlc_dims1(3), v);
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_backward_from(mlc_add(mlc_mul(x, x), mlc_add(x, x)), NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, want, 1e-12, 0);
}

TEST(ops, a_product_does_not_trust_the_stride_of_an_axis_of_size_1)
{
    static const double rows[] = {3, 12, 21, 30, 39};
    static const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_reshape(mlc_arange(ctx, MLC_F32, 0, 15, 1), mlc_dims3(1, 5, 3));
        mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims2(3, 1), 1), *leaf = mlc_copy(x), *y;
        CHECK_VALUES(mlc_matmul(mlc_permute(x, mlc_dims3(1, 0, 2)), w), 5, rows, 0, 0);
        mlc_set_requires_grad(leaf, true);
        y = mlc_matmul(mlc_permute(leaf, mlc_dims3(1, 0, 2)), w);
        CHECK_VALUES(y, 5, rows, 0, 0);
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        CHECK_VALUES(mlc_grad(leaf), 15, ones, 0, 0);
        CHECK_OK(ctx);
    }
}

/* Without elements x counts as contiguous however its axes lie, so it is not copied.          */
TEST(ops, a_linear_of_no_inputs_is_the_bias_in_each_row_however_x_lies)
{
    static const double want[12] = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}, db[2] = {6, 6};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(3, 2, 0));
        mlc_tensor *w = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 0));
        mlc_tensor *b = test_tensor(ctx, MLC_F32, mlc_dims1(2), want);
        mlc_set_requires_grad(b, true);
        mlc_tensor *y = mlc_linear(mlc_permute(x, mlc_dims3(1, 0, 2)), w, b);
        CHECK_VALUES(y, 12, want, 0, 0);
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        CHECK_VALUES(mlc_grad(b), 2, db, 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(ops, a_linear_of_no_rows_has_no_values_and_a_gradient_of_zero)
{
    static const double zeros[12] = {0};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = mlc_zeros(ctx, MLC_F32, mlc_dims4(2, 0, 5, 4));
    mlc_tensor         *w = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, -1, 1);
    mlc_tensor         *b = test_rand(ctx, MLC_F32, mlc_dims1(3), 2, -1, 1);
    char                shape[64];
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(b, true);
    mlc_tensor *y = mlc_linear(mlc_permute(x, mlc_dims4(1, 0, 2, 3)), w, b);
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[0,2,5,3]");
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(w), 12, zeros, 0, 0);
    CHECK_VALUES(mlc_grad(b), 3, zeros, 0, 0);
    CHECK_OK(ctx);
}

/* ---- a linear and its epilogue ------------------------------------------------------------ */

typedef struct layer {
    mlc_dtype dtype;
    int64_t   rows, in, out;
    mlc_act   act;
    double    dropout;
    bool      bias, residual;
} layer;

#define LAYER_MOST 48000               /* values and gradients of the largest layer         */

/* Values and gradients of a layer, as one operation or as several.                              */
static int64_t layer_run(const layer *l, bool fused, double *out)
{
    static mlc_tensor *(*const act[])(mlc_tensor *) = {NULL,     mlc_relu,    mlc_gelu,
                                                       mlc_tanh, mlc_sigmoid, mlc_silu,
                                                       mlc_gelu_tanh};
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx = mlc_ctx_create(&d);                 /* freed here: a test makes hundreds   */
    mlc_tensor  *leaf[4], *y, *dy = test_rand(ctx, l->dtype, mlc_dims2(l->rows, l->out), 9, -1, 1);
    mlc_dims     dims[4];
    int64_t      n = 0;
    mlc_epilogue e = {l->act, l->dropout, NULL};
    dims[0] = mlc_dims2(l->rows, l->in), dims[1] = mlc_dims2(l->out, l->in);
    dims[2] = mlc_dims1(l->out), dims[3] = mlc_dims2(l->rows, l->out);
    for (int i = 0; i < 4; i++) {
        leaf[i] = test_rand(ctx, l->dtype, dims[i], 3 + (uint64_t)i, -1, 1);
        mlc_set_requires_grad(leaf[i], true);
    }
    if (fused) {
        e.residual = l->residual ? leaf[3] : NULL;
        y = mlc_linear_ex(leaf[0], leaf[1], l->bias ? leaf[2] : NULL, &e);
    } else {
        y = mlc_linear(leaf[0], leaf[1], l->bias ? leaf[2] : NULL);
        y = l->act ? act[l->act](y) : y;
        y = l->dropout > 0 ? mlc_dropout(y, l->dropout) : y;
        y = l->residual ? mlc_add(y, leaf[3]) : y;
    }
    CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
    for (int i = -1; i < 4; i++) {
        mlc_tensor *t = i < 0 ? y : mlc_grad(leaf[i]);
        if (t != NULL && CHECK(test_read(t, out + n)))
            n += mlc_numel(t);
    }
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return n;
}

/* On a card cuBLASLt has another algorithm for a product with a bias than for one without. */
static bool layer_same(const layer *l, const double *one, const double *many, int64_t n)
{
    const double tol = l->dtype == MLC_F32 ? 1e-5 : 1e-14;
    bool         same = true;
    if (!test_on_card()) return memcmp(one, many, (size_t)n * sizeof *one) == 0;
    for (int64_t i = 0; i < n; i++)
        same = same && fabs(one[i] - many[i]) <= tol * fmax(fabs(many[i]), 8);
    return same;
}

static bool layer_held(const layer *l)
{
    static double one[LAYER_MOST], many[LAYER_MOST];
    int64_t       n = layer_run(l, true, one), m = layer_run(l, false, many);
    if (n == m && n > 0 && layer_same(l, one, many, n))
        return true;
    printf("  %s [%d,%d] -> %d act %d dropout %g bias %d residual %d: %d and %d values\n",
           mlc_dtype_name(l->dtype), (int)l->rows, (int)l->in, (int)l->out, l->act, l->dropout,
           l->bias, l->residual, (int)n, (int)m);
    return false;
}

TEST(ops, a_linear_with_an_epilogue_is_the_operations_one_by_one_to_the_bit)
{
    static const int64_t at[][3] = {{3, 5, 7}, {40, 20, 66}, {33, 600, 34}, {1, 70, 9}};
    for (int i = 0; i < 4 * 2 * 7 * 8; i++) {
        layer l = {i & 1 ? MLC_F32 : MLC_F64, at[i / 112][0], at[i / 112][1], at[i / 112][2],
                   (mlc_act)(i / 16 % 7), i & 2 ? 0.3 : 0, (i & 4) != 0, (i & 8) != 0};
        if (!CHECK(layer_held(&l)))
            return;
    }
}

/* Three layers; reads makes another reader of each result, which gets no gradient: then none is
 * taken through an activation ahead of its layer.                                               */
static int64_t chain_run(mlc_dtype dtype, mlc_act act, bool reads, double *out)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    mlc_tensor  *x = test_rand(ctx, dtype, mlc_dims2(33, 20), 1, -1, 1), *w[3];
    mlc_epilogue e = {act, 0, NULL};
    int64_t      n = 0;
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = x;
    for (int i = 0; i < 3; i++) {
        w[i] = test_rand(ctx, dtype, i ? mlc_dims2(40, 40) : mlc_dims2(40, 20), 2 + (uint64_t)i, -1,
                         1);
        mlc_set_requires_grad(w[i], true);
        y = mlc_linear_ex(y, w[i], NULL, &e);
        if (reads)
            CHECK(mlc_neg(y) != NULL);
    }
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
    for (int i = -1; i < 3; i++) {
        mlc_tensor *t = mlc_grad(i < 0 ? x : w[i]);
        if (CHECK(t != NULL) && CHECK(test_read(t, out + n)))
            n += mlc_numel(t);
    }
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return n;
}

TEST(ops, a_chain_of_linears_has_the_same_gradients_whoever_else_reads_between)
{
    static double one[5 * 40 * 40], many[5 * 40 * 40];
    for (int i = 0; i < 14; i++) {
        mlc_dtype dtype = i % 2 ? MLC_F32 : MLC_F64;
        int64_t   n = chain_run(dtype, (mlc_act)(i / 2), false, one);
        CHECK_EQ(chain_run(dtype, (mlc_act)(i / 2), true, many), n);
        CHECK(memcmp(one, many, (size_t)n * sizeof *one) == 0);
    }
}

/* What lies between two layers has a gradient of its own, besides the one through the second. */
TEST(ops, a_gradient_that_begins_between_two_linears_is_added)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_epilogue relu = {MLC_ACT_RELU, 0, NULL};
    mlc_tensor  *w = test_rand(ctx, MLC_F64, mlc_dims2(4, 3), 1, -1, 1);
    mlc_tensor  *v = test_rand(ctx, MLC_F64, mlc_dims2(2, 4), 2, -1, 1);
    mlc_tensor  *x = test_rand(ctx, MLC_F64, mlc_dims2(5, 3), 3, -1, 1);
    double       dw[3][12];            /* through v, not through v, both                       */
    mlc_set_requires_grad(w, true);
    for (int i = 0; i < 3; i++) {
        mlc_tensor *h = mlc_linear_ex(x, w, NULL, &relu);
        mlc_tensor *y = i == 1 ? h : mlc_linear(h, v, NULL);
        y = mlc_sum(y, mlc_dims0(), false);
        CHECK_EQ(mlc_backward(i < 2 ? y : mlc_add(y, mlc_sum(h, mlc_dims0(), false))), MLC_OK);
        CHECK(test_read(mlc_grad(w), dw[i]));
        mlc_zero_grad(w);
    }
    for (int at = 0; at < 12; at++)
        CHECK_NEAR(dw[2][at], dw[0][at] + dw[1][at], 1e-12);
    CHECK_OK(ctx);
}

static struct { mlc_tensor *from, *dy; } nested;

static mlc_status nested_forward(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor **out)
{
    (void)user;
    (void)n;
    *out = mlc_mul_scalar(in[0], 2);
    return *out ? MLC_OK : MLC_ERR_ARG;
}

static mlc_status nested_backward(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor *out,
                                  mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)in; (void)n; (void)out; (void)need;
    dx[0] = mlc_mul_scalar(dy, 2);
    return mlc_backward_from(nested.from, nested.dy);
}

/* A custom operation between two linears starts a backward of its own from what lies between. */
TEST(ops, a_backward_within_a_backward_meets_gradients_as_they_are)
{
    static const mlc_custom_op OP = {"nested", nested_forward, nested_backward};
    mlc_ctx     *ctx = test_ctx();
    mlc_epilogue e = {MLC_ACT_TANH, 0, NULL};
    mlc_tensor  *x = mlc_ones(ctx, MLC_F64, mlc_dims2(1, 2));
    mlc_tensor  *w = mlc_full(ctx, MLC_F64, mlc_dims2(2, 2), 0.3);
    mlc_tensor  *v = mlc_full(ctx, MLC_F64, mlc_dims2(2, 2), 0.5);
    mlc_tensor  *p = mlc_ones(ctx, MLC_F64, mlc_dims2(1, 2));
    double       dw[4];
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(p, true);
    nested.dy = mlc_ones(ctx, MLC_F64, mlc_dims2(1, 2));
    nested.from = mlc_linear_ex(x, w, NULL, &e);
    mlc_tensor *q = mlc_custom(&OP, NULL, &p, 1);
    CHECK_EQ(mlc_backward_from(mlc_add(mlc_linear(nested.from, v, NULL), q), NULL), MLC_OK);
    test_read(mlc_grad(w), dw);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(dw[i], 2 * (1 - tanh(0.6) * tanh(0.6)), 1e-12);
    CHECK_OK(ctx);
}

TEST(ops, a_result_with_more_elements_than_an_integer_counts_is_an_error)
{
    const bool    wide = sizeof(size_t) == 8;
    const int64_t f = wide ? 274177 : 641;                 /* f g = 2^64 + 1, 2^32 + 1: it     */
    const int64_t g = wide ? 67280421310721 : 6700417;     /* wraps to 1                       */
    const int64_t big = (int64_t)1 << 40;
    mlc_ctx      *ctx = test_ctx();
    mlc_tensor   *one = mlc_full(ctx, MLC_F32, mlc_dims2(1, 1), 1);
    mlc_tensor   *a = mlc_expand(one, mlc_dims2(f, 1)), *b = mlc_expand(one, mlc_dims2(1, g));
    CHECK(a != NULL && b != NULL);
    CHECK(mlc_add(a, b) == NULL);
    CHECK_HAS(mlc_error(ctx), wide ? "add: the result [274177,67280421310721]"
                                   : "add: the result [641,6700417]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_matmul(a, b) == NULL);
    CHECK_HAS(mlc_error(ctx), "matmul");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_expand(one, mlc_dims2(f, g)) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    one = mlc_zeros(ctx, MLC_F32, mlc_dims1(0));
    CHECK(mlc_reshape(one, mlc_dims3(0, big, big)) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

/* malloc, except that it has no terabyte to give (2 GB where addresses have 32 bits).         */
static void *modest_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    return bytes < SIZE_MAX >> (sizeof bytes == 8 ? 24 : 1) ? test_aligned_alloc(align, bytes)
                                                            : NULL;
}

static void modest_release(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    test_aligned_free(ptr);
}

TEST(ops, a_tensor_beyond_any_size_class_is_out_of_memory)
{
    static const int64_t sizes[] = {(int64_t)5 << 53, ((int64_t)1 << 58) + 3,
                                    ((int64_t)1 << 60) - 1, (int64_t)1 << 60};
    mlc_ctx_desc d = test_desc();
    d.allocator.alloc = modest_alloc;
    d.allocator.release = modest_release;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    for (int i = 0; i < 4; i++) {
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(7)) != NULL);
        mlc_tensor *t = mlc_zeros(ctx, MLC_F32, mlc_dims1(sizes[i]));
        mlc_status  got = mlc_ctx_status(ctx);
        if (!CHECK(t == NULL) || !CHECK(got == MLC_ERR_NOMEM || got == MLC_ERR_SHAPE))
            printf("  size %d\n", i);
        mlc_error_clear(ctx);
    }
}
