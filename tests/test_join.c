/* test_join.c -- tests of IMPL.OPS.JOIN and the views that came with it
 *
 * Each operation is compared with a plain loop that says where every element comes from, for each
 * dtype, at odd shapes and with inputs that are transposed, have holes or are expanded; gradients
 * by central differences. Then what is a view and what is not, and wrong calls with their texts.
 */
#include "mlc_test.h"

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};
#define DTYPES  ((int)(sizeof ALL / sizeof *ALL))
#define MOST    100000
#define NUMBERS(...) ((const double[]){__VA_ARGS__})

typedef struct join_args {
    mlc_tensor *in[3];
    mlc_dims    ints, more;
} join_args;

/* Number of the element of input *from that element `at` of the result is; -1: pad value. */
typedef int64_t (*join_ref)(const join_args *a, const mlc_tensor *y, const int64_t *at,
                            int32_t *from);

typedef struct join_op {
    const char  *name;
    mlc_tensor *(*call)(const join_args *a);
    join_ref     ref;
} join_op;

/* ---- calls and what they mean ------------------------------------------------------------- */

static int32_t inputs_of(const join_args *a)
{
    return a->in[2] ? 3 : a->in[1] ? 2 : 1;
}

static int32_t axis_of(const join_args *a, int32_t ndim)
{
    return (int32_t)(a->ints.v[0] < 0 ? a->ints.v[0] + ndim : a->ints.v[0]);
}

static int64_t number(const mlc_tensor *x, const int64_t *at)
{
    int64_t n = 0;
    for (int32_t d = 0; d < x->ndim; d++) n = n * x->shape[d] + at[d];
    return n;
}

static mlc_tensor *call_concat(const join_args *a)
{
    return mlc_concat(a->in, inputs_of(a), (int32_t)a->ints.v[0]);
}
static int64_t ref_concat(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    int32_t axis = axis_of(a, y->ndim);
    memcpy(k, at, sizeof k);
    for (*from = 0; k[axis] >= a->in[*from]->shape[axis]; ++*from)
        k[axis] -= a->in[*from]->shape[axis];
    return number(a->in[*from], k);
}

static mlc_tensor *call_stack(const join_args *a)
{
    return mlc_stack(a->in, inputs_of(a), (int32_t)a->ints.v[0]);
}
static int64_t ref_stack(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    int32_t n = 0;
    for (int32_t d = 0; d < y->ndim; d++)
        if (d == axis_of(a, y->ndim)) *from = (int32_t)at[d];
        else k[n++] = at[d];
    return number(a->in[*from], k);
}

static mlc_tensor *call_tile(const join_args *a) { return mlc_tile(a->in[0], a->ints); }
static int64_t ref_tile(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    const mlc_tensor *x = a->in[0];
    int64_t           k[MLC_MAX_DIMS];
    *from = 0;
    for (int32_t d = 0; d < x->ndim; d++) k[d] = at[d + y->ndim - x->ndim] % x->shape[d];
    return number(x, k);
}

static mlc_tensor *call_repeat(const join_args *a)
{
    return mlc_repeat(a->in[0], a->ints.v[1], (int32_t)a->ints.v[0]);
}
static int64_t ref_repeat(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    *from = 0;
    memcpy(k, at, sizeof k);
    k[axis_of(a, y->ndim)] /= a->ints.v[1];
    return number(a->in[0], k);
}

static mlc_tensor *call_flip(const join_args *a) { return mlc_flip(a->in[0], a->ints); }
static int64_t ref_flip(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    *from = 0;
    for (int32_t d = 0; d < y->ndim; d++) {
        bool turned = a->ints.n == 0;
        for (int32_t i = 0; i < a->ints.n; i++)
            turned = turned || a->ints.v[i] == d || a->ints.v[i] + y->ndim == d;
        k[d] = turned ? y->shape[d] - 1 - at[d] : at[d];
    }
    return number(a->in[0], k);
}

static mlc_tensor *call_roll(const join_args *a)
{
    return mlc_roll(a->in[0], a->ints.v[1], (int32_t)a->ints.v[0]);
}
static int64_t ref_roll(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    int32_t axis = axis_of(a, y->ndim);
    int64_t n = y->shape[axis];
    *from = 0;
    memcpy(k, at, sizeof k);
    k[axis] = ((at[axis] - a->ints.v[1] % n) % n + n) % n;
    return number(a->in[0], k);
}

/* ints: before; more: after, then the mode. */
static mlc_tensor *call_pad(const join_args *a)
{
    mlc_dims after = a->more;
    after.n--;
    return mlc_pad(a->in[0], a->ints, after, (mlc_pad_mode)a->more.v[after.n], 7);
}
static int64_t ref_pad(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    const mlc_tensor  *x = a->in[0];
    const mlc_pad_mode mode = (mlc_pad_mode)a->more.v[a->more.n - 1];
    int64_t            k[MLC_MAX_DIMS];
    *from = 0;
    for (int32_t d = 0; d < y->ndim; d++) {
        int64_t n = x->shape[d], cut = a->ints.v[d] < -n ? -n : a->ints.v[d], i = at[d] - cut;
        if (mode == MLC_PAD_CONSTANT && (i < 0 || i >= n)) return -1;
        if (mode == MLC_PAD_REPLICATE) i = i < 0 ? 0 : i >= n ? n - 1 : i;
        if (mode == MLC_PAD_REFLECT) i = i < 0 ? -i : i >= n ? 2 * n - 2 - i : i;
        if (mode == MLC_PAD_CIRCULAR) i = (i + n) % n;
        k[d] = i;
    }
    return number(x, k);
}

static mlc_tensor *call_diag(const join_args *a) { return mlc_diag(a->in[0], a->ints.v[0]); }
static int64_t ref_diag(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    const int64_t off = a->ints.v[0], k[2] = {at[0] + (off < 0 ? -off : 0),
                                              at[0] + (off > 0 ? off : 0)};
    *from = 0;
    if (a->in[0]->ndim == 2) return number(a->in[0], k);
    return y->ndim == 2 && at[1] - at[0] == off ? at[off < 0] : -2;
}

static mlc_tensor *call_diagonal(const join_args *a)
{
    return mlc_diagonal(a->in[0], a->ints.v[0]);
}
static int64_t ref_diagonal(const join_args *a, const mlc_tensor *y, const int64_t *at,
                            int32_t *from)
{
    int64_t k[MLC_MAX_DIMS], off = a->ints.v[0];
    *from = 0;
    memcpy(k, at, sizeof k);
    k[y->ndim] = at[y->ndim - 1] + (off > 0 ? off : 0);
    k[y->ndim - 1] += off < 0 ? -off : 0;
    return number(a->in[0], k);
}

static mlc_tensor *call_unfold(const join_args *a)
{
    return mlc_unfold(a->in[0], (int32_t)a->ints.v[0], a->ints.v[1], a->ints.v[2]);
}
static int64_t ref_unfold(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    int32_t axis = axis_of(a, y->ndim - 1);
    *from = 0;
    memcpy(k, at, sizeof k);
    k[axis] = at[axis] * a->ints.v[2] + at[y->ndim - 1];
    return number(a->in[0], k);
}

static mlc_tensor *call_movedim(const join_args *a)
{
    return mlc_movedim(a->in[0], (int32_t)a->ints.v[0], (int32_t)a->ints.v[1]);
}
static int64_t ref_movedim(const join_args *a, const mlc_tensor *y, const int64_t *at,
                           int32_t *from)
{
    int64_t k[MLC_MAX_DIMS];
    int32_t f = axis_of(a, y->ndim), n = 0;
    int32_t t = (int32_t)(a->ints.v[1] < 0 ? a->ints.v[1] + y->ndim : a->ints.v[1]);
    *from = 0;
    for (int32_t d = 0; d < y->ndim; d++) {
        if (n == f) n++;
        if (d == t) k[f] = at[d];
        else k[n++] = at[d];
    }
    return number(a->in[0], k);
}

static mlc_tensor *call_squeeze(const join_args *a)
{
    return mlc_squeeze(a->in[0], (int32_t)a->ints.v[0]);
}
static mlc_tensor *call_unsqueeze(const join_args *a)
{
    return mlc_unsqueeze(a->in[0], (int32_t)a->ints.v[0]);
}
static int64_t ref_same(const join_args *a, const mlc_tensor *y, const int64_t *at, int32_t *from)
{
    (void)a;
    *from = 0;
    return number(y, at);
}

static const join_op OPS[] = {
    {"mlc_concat", call_concat, ref_concat},
    {"mlc_stack", call_stack, ref_stack},
    {"mlc_tile", call_tile, ref_tile},
    {"mlc_repeat", call_repeat, ref_repeat},
    {"mlc_flip", call_flip, ref_flip},
    {"mlc_roll", call_roll, ref_roll},
    {"mlc_pad", call_pad, ref_pad},
    {"mlc_diag", call_diag, ref_diag},
    {"mlc_diagonal", call_diagonal, ref_diagonal},
    {"mlc_unfold", call_unfold, ref_unfold},
    {"mlc_movedim", call_movedim, ref_movedim},
    {"mlc_squeeze", call_squeeze, ref_same},
    {"mlc_unsqueeze", call_unsqueeze, ref_same},
};
#define OP_COUNT ((int)(sizeof OPS / sizeof *OPS))

typedef struct join_case {
    const char *name;
    const char *in[3];
    const char *ints, *more, *shape;   /* shape of the result                                  */
} join_case;

#define PAD_C "0"
#define PAD_F "1"
#define PAD_R "2"
#define PAD_W "3"

static const join_case CASES[] = {
    {"mlc_concat", {"2,3", "2,4", "2,1"}, "1", "", "2,8"},
    {"mlc_concat", {"2,3", "5,3", NULL}, "0", "", "7,3"},
    {"mlc_concat", {"2,3", "2,3", "2,3"}, "-2", "", "6,3"},
    {"mlc_concat", {"2,0", "2,3", NULL}, "1", "", "2,3"},
    {"mlc_concat", {"3,2,2", "3,1,2", NULL}, "1", "", "3,3,2"},
    {"mlc_concat", {"4", NULL, NULL}, "0", "", "4"},
    {"mlc_concat", {"60,200", "60,100", "60,7"}, "1", "", "60,307"},
    {"mlc_stack", {"2,3", "2,3", "2,3"}, "0", "", "3,2,3"},
    {"mlc_stack", {"2,3", "2,3", NULL}, "1", "", "2,2,3"},
    {"mlc_stack", {"2,3", "2,3", NULL}, "-1", "", "2,3,2"},
    {"mlc_stack", {"", "", ""}, "0", "", "3"},
    {"mlc_stack", {"0,3", "0,3", NULL}, "2", "", "0,3,2"},
    {"mlc_tile", {"2,3", NULL, NULL}, "2,2", "", "4,6"},
    {"mlc_tile", {"2,3", NULL, NULL}, "3", "", "2,9"},
    {"mlc_tile", {"3", NULL, NULL}, "2,1,2", "", "2,1,6"},
    {"mlc_tile", {"", NULL, NULL}, "4", "", "4"},
    {"mlc_tile", {"1", NULL, NULL}, "5", "", "5"},
    {"mlc_tile", {"2,3", NULL, NULL}, "0,2", "", "0,6"},
    {"mlc_tile", {"2,3", NULL, NULL}, "1,1", "", "2,3"},
    {"mlc_tile", {"2,3", NULL, NULL}, "", "", "2,3"},
    {"mlc_tile", {"2,1,3,2", NULL, NULL}, "2,3,2,2", "", "4,3,6,4"},
    {"mlc_tile", {"1,2,1,2,1,1,1,2", NULL, NULL}, "2,1,2,2,2,1,2,2", "", "2,2,2,4,2,1,2,4"},
    {"mlc_repeat", {"2,3", NULL, NULL}, "1,2", "", "2,6"},
    {"mlc_repeat", {"2,3", NULL, NULL}, "0,3", "", "6,3"},
    {"mlc_repeat", {"2,3", NULL, NULL}, "-1,1", "", "2,3"},
    {"mlc_repeat", {"2,3", NULL, NULL}, "1,0", "", "2,0"},
    {"mlc_repeat", {"1", NULL, NULL}, "0,4", "", "4"},
    {"mlc_repeat", {"2,3,4", NULL, NULL}, "1,2", "", "2,6,4"},
    {"mlc_flip", {"2,3", NULL, NULL}, "0", "", "2,3"},
    {"mlc_flip", {"2,3", NULL, NULL}, "-1", "", "2,3"},
    {"mlc_flip", {"2,3,4", NULL, NULL}, "0,2", "", "2,3,4"},
    {"mlc_flip", {"2,3,4", NULL, NULL}, "", "", "2,3,4"},
    {"mlc_flip", {"3,0", NULL, NULL}, "0,1", "", "3,0"},
    {"mlc_flip", {"", NULL, NULL}, "", "", ""},
    {"mlc_flip", {"1,1", NULL, NULL}, "0", "", "1,1"},
    {"mlc_flip", {"40000", NULL, NULL}, "0", "", "40000"},
    {"mlc_flip", {"3,300,50", NULL, NULL}, "1", "", "3,300,50"},
    {"mlc_roll", {"5", NULL, NULL}, "0,2", "", "5"},
    {"mlc_roll", {"2,5", NULL, NULL}, "1,-2", "", "2,5"},
    {"mlc_roll", {"5,2", NULL, NULL}, "-2,17", "", "5,2"},
    {"mlc_roll", {"5,2", NULL, NULL}, "0,-15", "", "5,2"},
    {"mlc_roll", {"1,2", NULL, NULL}, "0,1", "", "1,2"},
    {"mlc_roll", {"0,2", NULL, NULL}, "0,1", "", "0,2"},
    {"mlc_roll", {"0", NULL, NULL}, "0,1", "", "0"},
    {"mlc_pad", {"3", NULL, NULL}, "2", "1," PAD_C, "6"},
    {"mlc_pad", {"2,3", NULL, NULL}, "1,2", "0,1," PAD_C, "3,6"},
    {"mlc_pad", {"2,5", NULL, NULL}, "0,-1", "1,-2," PAD_C, "3,2"},
    {"mlc_pad", {"2,5", NULL, NULL}, "0,-4", "1,3," PAD_C, "3,4"},
    {"mlc_pad", {"2,5", NULL, NULL}, "-2,0", "0,0," PAD_C, "0,5"},
    {"mlc_pad", {"2,5", NULL, NULL}, "1,-9", "0,9," PAD_C, "3,5"},
    {"mlc_pad", {"2,5", NULL, NULL}, "0,-9223372036854775807", "0,9223372036854775807," PAD_C,
     "2,5"},
    {"mlc_pad", {"0,2", NULL, NULL}, "1,1", "1,0," PAD_C, "2,3"},
    {"mlc_pad", {"", NULL, NULL}, "", PAD_C, ""},
    {"mlc_pad", {"4", NULL, NULL}, "3", "2," PAD_F, "9"},
    {"mlc_pad", {"2,3,4", NULL, NULL}, "0,2,1", "1,0,3," PAD_F, "3,5,8"},
    {"mlc_pad", {"4", NULL, NULL}, "5", "6," PAD_R, "15"},
    {"mlc_pad", {"2,3", NULL, NULL}, "1,0", "2,4," PAD_R, "5,7"},
    {"mlc_pad", {"4", NULL, NULL}, "4", "3," PAD_W, "11"},
    {"mlc_pad", {"2,3,2", NULL, NULL}, "1,0,2", "2,3,0," PAD_W, "5,6,4"},
    {"mlc_pad", {"2,3", NULL, NULL}, "0,0", "0,0," PAD_W, "2,3"},
    {"mlc_pad", {"0,3", NULL, NULL}, "0,2", "0,2," PAD_F, "0,7"},
    {"mlc_diag", {"3", NULL, NULL}, "0", "", "3,3"},
    {"mlc_diag", {"3", NULL, NULL}, "2", "", "5,5"},
    {"mlc_diag", {"3", NULL, NULL}, "-1", "", "4,4"},
    {"mlc_diag", {"0", NULL, NULL}, "2", "", "2,2"},
    {"mlc_diag", {"3,4", NULL, NULL}, "1", "", "3"},
    {"mlc_diag", {"3,4", NULL, NULL}, "-2", "", "1"},
    {"mlc_diagonal", {"3,4", NULL, NULL}, "0", "", "3"},
    {"mlc_diagonal", {"4,3", NULL, NULL}, "2", "", "1"},
    {"mlc_diagonal", {"2,3,4", NULL, NULL}, "-1", "", "2,2"},
    {"mlc_diagonal", {"2,3,4", NULL, NULL}, "9", "", "2,0"},
    {"mlc_diagonal", {"2,3,4", NULL, NULL}, "-9", "", "2,0"},
    {"mlc_diagonal", {"0,4", NULL, NULL}, "0", "", "0"},
    {"mlc_unfold", {"7", NULL, NULL}, "0,3,2", "", "3,3"},
    {"mlc_unfold", {"7", NULL, NULL}, "0,3,1", "", "5,3"},
    {"mlc_unfold", {"2,9,3", NULL, NULL}, "1,5,2", "", "2,3,3,5"},
    {"mlc_unfold", {"9,2", NULL, NULL}, "-2,2,4", "", "2,2,2"},
    {"mlc_unfold", {"4", NULL, NULL}, "0,4,9", "", "1,4"},
    {"mlc_unfold", {"4", NULL, NULL}, "0,0,2", "", "3,0"},
    {"mlc_movedim", {"2,3,4", NULL, NULL}, "0,2", "", "3,4,2"},
    {"mlc_movedim", {"2,3,4,5", NULL, NULL}, "-1,1", "", "2,5,3,4"},
    {"mlc_movedim", {"2,3", NULL, NULL}, "1,1", "", "2,3"},
    {"mlc_squeeze", {"2,1,3", NULL, NULL}, "1", "", "2,3"},
    {"mlc_squeeze", {"2,1,3", NULL, NULL}, "-1", "", "2,1,3"},
    {"mlc_squeeze", {"1", NULL, NULL}, "0", "", ""},
    {"mlc_unsqueeze", {"2,3", NULL, NULL}, "0", "", "1,2,3"},
    {"mlc_unsqueeze", {"2,3", NULL, NULL}, "-1", "", "2,3,1"},
    {"mlc_unsqueeze", {"2,3", NULL, NULL}, "-2", "", "2,1,3"},
    {"mlc_unsqueeze", {"", NULL, NULL}, "0", "", "1"},
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

static int64_t count(mlc_dims d)
{
    int64_t n = 1;
    for (int32_t i = 0; i < d.n; i++) n *= d.v[i];
    return n;
}

static const join_op *find(const char *name)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(OPS[i].name, name) == 0) return &OPS[i];
    return NULL;
}

/* x seen so that its elements are those of a dense tensor of this shape in another layout: 'T' the
 * transpose of one that is stored, 'S' every second of a larger one. leaf is what is stored. */
static mlc_tensor *look(mlc_tensor *leaf, mlc_dims d, char layout)
{
    if (layout == 'T' && d.n > 1) return mlc_transpose(leaf, 0, -1);
    if (layout == 'S' && d.n > 0) return mlc_slice(leaf, -1, 1, INT64_MAX, 2);
    return leaf;
}

static mlc_dims stored(mlc_dims d, char layout)
{
    const int64_t first = d.n ? d.v[0] : 0;
    if (layout == 'T' && d.n > 1) {
        d.v[0] = d.v[d.n - 1];
        d.v[d.n - 1] = first;
    }
    if (layout == 'S' && d.n > 0) d.v[d.n - 1] = 2 * d.v[d.n - 1] + 1;
    return d;
}

/* ---- values ------------------------------------------------------------------------------- */

static double whole(mlc_dtype dtype, int input, int64_t i)
{
    return floor(test_random(17 + (uint64_t)input, i, 0, dtype == MLC_BOOL ? 2 : 100));
}

static void check_case(mlc_ctx *ctx, const join_case *c, mlc_dtype dtype, char layout)
{
    static double v[3][MOST], want[MOST];
    const join_op *o = find(c->name);
    const mlc_dims shape = dims_of(c->shape);
    join_args      a;
    mlc_tensor    *y;
    memset(&a, 0, sizeof a);
    a.ints = dims_of(c->ints);
    a.more = dims_of(c->more);
    for (int i = 0; i < 3 && c->in[i]; i++) {
        mlc_dims d = dims_of(c->in[i]), s = stored(d, layout);
        for (int64_t e = 0; e < count(s); e++) v[i][e] = whole(dtype, i, e);
        a.in[i] = look(test_tensor(ctx, dtype, s, v[i]), d, layout);
        test_read(a.in[i], v[i]);
    }
    y = o->call(&a);
    if (!CHECK(y != NULL) || !CHECK(y->ndim == shape.n) ||
        !CHECK(memcmp(y->shape, shape.v, (size_t)shape.n * sizeof *shape.v) == 0)) {
        CHECK_OK(ctx);
        printf("  %s (%s) ints %s\n", c->name, c->in[0], c->ints);
        return;
    }
    for (int64_t e = 0; e < count(shape); e++) {
        int64_t at[MLC_MAX_DIMS], rest = e;
        int32_t from = 0;
        for (int32_t d = shape.n; d-- > 0; rest /= shape.v[d]) at[d] = rest % shape.v[d];
        const int64_t i = o->ref(&a, y, at, &from);
        want[e] = i >= 0 ? v[from][i] : i == -1 ? (dtype == MLC_BOOL ? 1 : 7) : 0;
    }
    if (!CHECK_VALUES(y, count(shape), want, 0, 0))
        printf("  %s (%s) ints %s, %s, layout %c\n", c->name, c->in[0], c->ints,
               mlc_dtype_name(dtype), layout);
    CHECK(y->dtype == dtype);
    CHECK_OK(ctx);
}

TEST(join, values_agree_with_a_plain_loop_for_each_dtype_and_layout)
{
    FOR_EACH_ISA(ctx)
        for (int c = 0; c < CASE_COUNT; c++)
            for (int k = 0; k < DTYPES; k++) {
                mlc_scope_begin(ctx);
                for (int l = (c + k) % (int)test_stride(3); l < 3; l += (int)test_stride(3))
                    check_case(ctx, &CASES[c], ALL[k], ".TS"[l]);
                mlc_scope_end(ctx);
            }
}

TEST(join, every_operation_has_a_case)
{
    for (int i = 0; i < OP_COUNT; i++) {
        int n = 0;
        for (int c = 0; c < CASE_COUNT; c++) n += strcmp(CASES[c].name, OPS[i].name) == 0;
        CHECK(n >= 3);
    }
}

/* ---- gradients ---------------------------------------------------------------------------- */

typedef struct grad_user {
    const join_case *c;
    char             layout;
} grad_user;

/* Inputs are used a second time, so that their gradients are added to. */
static mlc_tensor *grad_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const grad_user *u = (const grad_user *)user;
    join_args        a;
    memset(&a, 0, sizeof a);
    a.ints = dims_of(u->c->ints);
    a.more = dims_of(u->c->more);
    for (int i = 0; i < n_in; i++) a.in[i] = look(in[i], dims_of(u->c->in[i]), u->layout);
    mlc_tensor *y = find(u->c->name)->call(&a), *sum;
    if (y == NULL) return NULL;
    sum = mlc_mul(mlc_mul(y, y), test_rand(y->ctx, MLC_F64, mlc_dims_of(y->ndim, y->shape), 9, 0.5,
                                           1.5));
    sum = mlc_sum(sum, mlc_dims0(), false);
    for (int i = 0; i < n_in; i++)
        sum = mlc_add(sum, mlc_sum(mlc_mul(in[i], in[i]), mlc_dims0(), false));
    return sum;
}

TEST(join, gradients_match_central_differences)
{
    static const char layouts[] = {'.', 'T', 'S'};
    mlc_ctx          *ctx = test_ctx();
    for (int k = 0; k < 3 * CASE_COUNT; k++) {
        grad_user            u = {&CASES[k / 3], layouts[k % 3]};
        mlc_gradcheck_report r;
        mlc_tensor          *in[3];
        int32_t              n = 0;
        if (count(dims_of(u.c->shape)) > 300 || count(dims_of(u.c->in[0])) > 300) continue;
        mlc_scope_begin(ctx);
        for (; n < 3 && u.c->in[n]; n++) {
            in[n] = test_rand(ctx, MLC_F64, stored(dims_of(u.c->in[n]), u.layout),
                              5 + (uint64_t)n, -2, 2);
            mlc_set_requires_grad(in[n], true);
        }
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(grad_loss, &u, in, n, NULL, &r), MLC_OK);
        if (!CHECK(r.ok))
            printf("  %s (%s) ints %s layout %c: input %d element %" PRId64 ": %.9g, by "
                   "differences %.9g\n", u.c->name, u.c->in[0], u.c->ints, u.layout, (int)r.input,
                   r.index, r.analytic, r.numeric);
        CHECK_OK(ctx);
        mlc_scope_end(ctx);
    }
}

TEST(join, a_concat_of_many_inputs_gives_each_its_gradient)
{
    enum { N = 11 };
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 4 * 6; k++) {
        mlc_tensor *in[N], *y;
        double      want[2 * N];
        const int   first = k / 4;     /* the first inputs have no gradient                    */
        mlc_scope_begin(ctx);
        for (int i = 0; i < N; i++) {
            in[i] = mlc_full(ctx, floats[k % 4], mlc_dims2(2, 1), i);
            want[i] = want[N + i] = 4 * i;
            if (i >= 2 * first) mlc_set_requires_grad(in[i], true);
        }
        y = mlc_concat(in, N, 1);
        y = mlc_mul(y, y);
        CHECK_EQ(mlc_backward_from(mlc_add(y, y), NULL), MLC_OK);
        for (int i = 0; i < N; i++) {
            if (i < 2 * first) CHECK(mlc_grad(in[i]) == NULL);
            else CHECK_VALUES(mlc_grad(in[i]), 2, NUMBERS(want[i], want[i]), 0, 0);
        }
        mlc_scope_end(ctx);
        CHECK_OK(ctx);
    }
}

TEST(join, a_concat_may_be_changed_in_place)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[6], *y;
    for (int i = 0; i < 6; i++) {
        in[i] = mlc_full(ctx, MLC_F32, mlc_dims1(1), i - 2);
        mlc_set_requires_grad(in[i], true);
    }
    y = mlc_mul_scalar(mlc_relu_(mlc_concat(in, 6, 0)), 3);
    CHECK_VALUES(y, 6, NUMBERS(0, 0, 0, 3, 6, 9), 0, 0);
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
    for (int i = 0; i < 6; i++) CHECK_VALUES(mlc_grad(in[i]), 1, NUMBERS(i > 2 ? 3 : 0), 0, 0);
    CHECK_OK(ctx);
}

TEST(join, one_tensor_may_be_joined_with_itself)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F64, mlc_dims1(2)), *in[5] = {x, x, x, x, x}, *y;
    mlc_set_requires_grad(x, true);
    y = mlc_concat(in, 5, 0);
    CHECK_EQ(mlc_backward_from(y, mlc_arange(ctx, MLC_F64, 0, 10, 1)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 2, NUMBERS(20, 25), 0, 0);
    CHECK_OK(ctx);
}

/* ---- views -------------------------------------------------------------------------------- */

TEST(join, split_and_chunk_make_views_that_share_the_gradient)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_arange(ctx, MLC_F32, 0, 10, 1), *out[6], *leaf;
    CHECK_EQ(mlc_split(x, 4, 0, out, 3), MLC_OK);
    CHECK_VALUES(out[0], 4, NUMBERS(0, 1, 2, 3), 0, 0);
    CHECK_VALUES(out[2], 2, NUMBERS(8, 9), 0, 0);
    CHECK(out[1]->storage == x->storage);
    CHECK_EQ(mlc_chunk(x, 4, -1, out), 4);
    CHECK_VALUES(out[3], 1, NUMBERS(9), 0, 0);
    CHECK_EQ(mlc_chunk(x, 6, 0, out), 5);                  /* fewer, as in PyTorch             */
    CHECK(out[5] == NULL && mlc_numel(out[4]) == 2);
    CHECK_EQ(mlc_chunk(mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 0)), 3, 1, out), 3);
    CHECK_EQ(mlc_split(mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 0)), 3, 1, out, 1), MLC_OK);
    CHECK_EQ(mlc_numel(out[0]), 0);
    CHECK_EQ(mlc_split(x, INT64_MAX, 0, out, 1), MLC_OK);
    CHECK_EQ(mlc_numel(out[0]), 10);
    leaf = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_set_requires_grad(leaf, true);
    CHECK_EQ(mlc_split(leaf, 2, 1, out, 2), MLC_OK);
    CHECK_EQ(mlc_backward_from(mlc_mul_scalar(out[1], 5), NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(leaf), 6, NUMBERS(0, 0, 5, 0, 0, 5), 0, 0);
    CHECK_OK(ctx);
}

TEST(join, views_share_memory_and_results_do_not)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 1)), *list[1] = {x};
    mlc_tensor *in[] = {mlc_zeros(ctx, MLC_F32, mlc_dims1(2)), x};
    CHECK(mlc_squeeze(x, 1)->storage == x->storage && mlc_unsqueeze(x, 1)->storage == x->storage);
    CHECK(mlc_movedim(x, 0, 1)->storage == x->storage);
    CHECK(mlc_unfold(x, 0, 2, 1)->storage == x->storage);
    CHECK(mlc_diagonal(x, 0)->storage == x->storage && mlc_diag(x, 0)->storage == x->storage);
    CHECK(mlc_tile(x, mlc_dims1(1))->storage != x->storage);
    CHECK(mlc_tile(x, mlc_dims1(4))->storage != x->storage);
    CHECK(mlc_repeat(x, 1, 0)->storage != x->storage && mlc_repeat(x, 3, 1)->storage != x->storage);
    CHECK(mlc_roll(x, 0, 0)->storage != x->storage);
    CHECK(mlc_concat(list, 1, 0)->storage != x->storage);
    CHECK(mlc_flip(x, mlc_dims1(1))->storage != x->storage);
    for (int m = 0; m < 4; m++)
        CHECK(mlc_pad(x, mlc_dims2(0, 0), mlc_dims2(0, 0), (mlc_pad_mode)m, 0)->storage !=
              x->storage);
    CHECK_EQ(mlc_meshgrid(in, 1, list), MLC_OK);
    CHECK(list[0]->storage == in[0]->storage);
    CHECK_OK(ctx);
}

TEST(join, windows_that_overlap_cannot_be_written)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_arange(ctx, MLC_F32, 0, 6, 1), *apart = mlc_unfold(x, 0, 2, 2);
    mlc_tensor *over = mlc_unfold(x, 0, 3, 1);
    const float v[6] = {9, 8, 7, 6, 5, 4};
    CHECK_EQ(mlc_write(apart, v, sizeof v), MLC_OK);
    CHECK_VALUES(x, 6, NUMBERS(9, 8, 7, 6, 5, 4), 0, 0);
    CHECK_EQ(mlc_copy_into(over, mlc_zeros(ctx, MLC_F32, mlc_dims1(3))), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_fill_(over, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_copy_into(mlc_diagonal(mlc_reshape(x, mlc_dims2(2, 3)), 1),
                           mlc_zeros(ctx, MLC_F32, mlc_dims1(2))), MLC_OK);
    CHECK_VALUES(x, 6, NUMBERS(9, 0, 7, 6, 5, 0), 0, 0);
    CHECK_OK(ctx);
}

TEST(join, a_grid_repeats_each_input_along_the_other_axes)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[3], *out[3];
    for (int k = 0; k < DTYPES - 1; k++) {
        in[0] = mlc_arange(ctx, ALL[k], 0, 2, 1);
        in[1] = mlc_arange(ctx, ALL[k], 5, 8, 1);
        in[2] = mlc_ones(ctx, ALL[k], mlc_dims0());
        CHECK_EQ(mlc_meshgrid(in, 3, out), MLC_OK);
        CHECK_VALUES(out[0], 6, NUMBERS(0, 0, 0, 1, 1, 1), 0, 0);
        CHECK_VALUES(out[1], 6, NUMBERS(5, 6, 7, 5, 6, 7), 0, 0);
        CHECK_VALUES(out[2], 6, NUMBERS(1, 1, 1, 1, 1, 1), 0, 0);
        CHECK(out[0]->ndim == 3 && out[0]->shape[1] == 3);
    }
    in[0] = mlc_arange(ctx, MLC_F64, 0, 2, 1);
    in[1] = mlc_arange(ctx, MLC_F64, 5, 8, 1);
    mlc_set_requires_grad(in[0], true);
    CHECK_EQ(mlc_meshgrid(in, 2, out), MLC_OK);
    CHECK_EQ(mlc_backward_from(mlc_mul(out[0], out[0]), NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(in[0]), 2, NUMBERS(0, 6), 0, 0);
    CHECK_OK(ctx);
}

/* ---- creators ----------------------------------------------------------------------------- */

TEST(join, ones_eye_and_linspace_of_any_dtype)
{
    FOR_EACH_ISA(ctx)
        for (int k = 0; k < DTYPES; k++) {
            mlc_tensor *e = mlc_eye(ctx, ALL[k], 2, 3);
            CHECK_VALUES(e, 6, NUMBERS(1, 0, 0, 0, 1, 0), 0, 0);
            CHECK(e != NULL && e->dtype == ALL[k]);
            CHECK_VALUES(mlc_eye(ctx, ALL[k], 3, 1), 3, NUMBERS(1, 0, 0), 0, 0);
            CHECK_EQ(mlc_numel(mlc_eye(ctx, ALL[k], 0, 3)), 0);
            CHECK_VALUES(mlc_ones(ctx, ALL[k], mlc_dims1(3)), 3, NUMBERS(1, 1, 1), 0, 0);
            CHECK_EQ(mlc_numel(mlc_linspace(ctx, ALL[k], 0, 1, 0)), 0);
            if (ALL[k] == MLC_BOOL) continue;
            CHECK_VALUES(mlc_linspace(ctx, ALL[k], 1, 9, 5), 5, NUMBERS(1, 3, 5, 7, 9), 0, 0);
            CHECK_VALUES(mlc_linspace(ctx, ALL[k], 9, 1, 5), 5, NUMBERS(9, 7, 5, 3, 1), 0, 0);
            CHECK_VALUES(mlc_linspace(ctx, ALL[k], 3, 9, 1), 1, NUMBERS(3), 0, 0);
            CHECK_OK(ctx);
        }
}

TEST(join, linspace_ends_exactly_and_is_symmetric)
{
    enum { N = 100001 };
    static double v[N];
    mlc_ctx      *ctx = test_ctx();
    for (int64_t n = 2; n < N + 1; n = n * 7 + 3) {
        bool same = true;
        test_read(mlc_linspace(ctx, MLC_F64, -0.1, 0.1, n), v);
        CHECK(v[0] == -0.1 && v[n - 1] == 0.1);
        for (int64_t i = 0; i < n / 2; i++) same = same && v[i] == -v[n - 1 - i];
        CHECK(same);
    }
    CHECK(mlc_linspace(ctx, MLC_F64, 0, (double)INFINITY, 3) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_linspace(ctx, MLC_F64, 0, 1, -1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_eye(ctx, MLC_F64, -1, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_eye(NULL, MLC_F64, 1, 1) == NULL && mlc_linspace(NULL, MLC_F32, 0, 1, 2) == NULL &&
          mlc_ones(NULL, MLC_F32, mlc_dims0()) == NULL);
}

/* ---- what is wrong ------------------------------------------------------------------------ */

typedef struct wrong_case {
    const char *name;
    const char *in[3];
    const char *ints, *more;
    mlc_status  status;
    const char *text;
} wrong_case;

static const wrong_case WRONG[] = {
    {"mlc_concat", {"2,3", "2,4", NULL}, "0", "", MLC_ERR_SHAPE,
     "concat: input 1 is [2,3], input 2 is [2,4]; they may differ only at axis 0"},
    {"mlc_concat", {"2,3", "2", NULL}, "0", "", MLC_ERR_SHAPE,
     "concat: input 1 is [2,3], input 2 is [2]; they may differ only at axis 0"},
    {"mlc_concat", {"2,3", "2,3", NULL}, "2", "", MLC_ERR_SHAPE, "concat: [2,3] has no axis 2"},
    {"mlc_concat", {"", "", NULL}, "0", "", MLC_ERR_SHAPE, "concat: [] has no axis 0"},
    {"mlc_stack", {"2,3", "2,3", "3,2"}, "0", "", MLC_ERR_SHAPE,
     "stack: input 1 is [2,3], input 3 is [3,2]; all must have one shape"},
    {"mlc_stack", {"2,3", "2,3", NULL}, "3", "", MLC_ERR_SHAPE,
     "stack: [2,3] has no room for a new axis 3"},
    {"mlc_tile", {"2,3", NULL, NULL}, "2,-1", "", MLC_ERR_ARG,
     "tile: [2,3] repeated [2,-1] times: a count is negative or too large"},
    {"mlc_tile", {"2,3", NULL, NULL}, "9223372036854775807", "", MLC_ERR_SHAPE, "tile: [2,3]"},
    {"mlc_tile", {"2,3", NULL, NULL}, "4000000000,4000000000", "", MLC_ERR_SHAPE, "tile: shape"},
    {"mlc_repeat", {"2,3", NULL, NULL}, "1,-2", "", MLC_ERR_ARG,
     "repeat: -2 times axis 1 of [2,3]"},
    {"mlc_repeat", {"2,3", NULL, NULL}, "2,2", "", MLC_ERR_SHAPE, "repeat: [2,3] has no axis 2"},
    {"mlc_flip", {"2,3", NULL, NULL}, "2", "", MLC_ERR_SHAPE, "flip: [2,3] has no axis 2"},
    {"mlc_flip", {"2,3", NULL, NULL}, "1,-1", "", MLC_ERR_SHAPE,
     "flip: axis 1 of [2,3] is named twice"},
    {"mlc_roll", {"", NULL, NULL}, "0,1", "", MLC_ERR_SHAPE, "roll: [] has no axis 0"},
    {"mlc_pad", {"2,3", NULL, NULL}, "1", "1,0,0", MLC_ERR_SHAPE,
     "pad: 1 and 2 counts for [2,3]; it takes one an axis"},
    {"mlc_pad", {"2,3", NULL, NULL}, "0,-2", "0,-2," PAD_C, MLC_ERR_SHAPE,
     "pad: axis 1 of [2,3] with -2 before and -2 after has no size"},
    {"mlc_pad", {"2,3", NULL, NULL}, "0,3", "0,0," PAD_F, MLC_ERR_SHAPE,
     "pad: axis 1 of [2,3] is too short for 3 before and 0 after, reflect"},
    {"mlc_pad", {"2,0", NULL, NULL}, "0,1", "0,0," PAD_R, MLC_ERR_SHAPE,
     "pad: axis 1 of [2,0] is too short for 1 before and 0 after, replicate"},
    {"mlc_pad", {"2,3", NULL, NULL}, "0,0", "0,4," PAD_W, MLC_ERR_SHAPE,
     "pad: axis 1 of [2,3] is too short for 0 before and 4 after, circular"},
    {"mlc_pad", {"2,3", NULL, NULL}, "0,-1", "0,0," PAD_R, MLC_ERR_ARG,
     "pad: -1 before and 0 after axis 1; only constant padding may cut"},
    {"mlc_pad", {"2,3", NULL, NULL}, "0,1", "0,0,4", MLC_ERR_ARG, "pad: unknown mode 4"},
    {"mlc_diag", {"2,3,4", NULL, NULL}, "0", "", MLC_ERR_SHAPE, "diag: [2,3,4] at diagonal 0"},
    {"mlc_diag", {"3", NULL, NULL}, "9223372036854775807", "", MLC_ERR_SHAPE, "diag: [3]"},
    {"mlc_diag", {"3", NULL, NULL}, "1000000000000", "", MLC_ERR_SHAPE, "diag: "},
    {"mlc_diagonal", {"3", NULL, NULL}, "0", "", MLC_ERR_SHAPE,
     "diagonal: [3] is no matrix; it takes two axes or more"},
    {"mlc_unfold", {"2,3", NULL, NULL}, "1,4,1", "", MLC_ERR_SHAPE,
     "unfold: windows of 4 at steps of 1 do not fit axis 1 of [2,3]"},
    {"mlc_unfold", {"2,3", NULL, NULL}, "1,2,0", "", MLC_ERR_ARG, "unfold: windows of 2"},
    {"mlc_movedim", {"2,3", NULL, NULL}, "1,2", "", MLC_ERR_SHAPE, "movedim: [2,3] has no axis 2"},
    {"mlc_squeeze", {"2,3", NULL, NULL}, "-3", "", MLC_ERR_SHAPE, "squeeze: [2,3] has no axis -3"},
    {"mlc_unsqueeze", {"2,3", NULL, NULL}, "-4", "", MLC_ERR_SHAPE,
     "unsqueeze: [2,3] has no room for a new axis -4"},
    {"mlc_unsqueeze", {"1,1,1,1,1,1,1,1", NULL, NULL}, "0", "", MLC_ERR_SHAPE, "unsqueeze: "},
};
#define WRONG_COUNT ((int)(sizeof WRONG / sizeof *WRONG))

TEST(join, wrong_calls_say_what_is_wrong)
{
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < WRONG_COUNT; k++) {
        const wrong_case *c = &WRONG[k];
        join_args         a;
        memset(&a, 0, sizeof a);
        a.ints = dims_of(c->ints);
        a.more = dims_of(c->more);
        for (int i = 0; i < 3 && c->in[i]; i++)
            a.in[i] = mlc_zeros(ctx, MLC_F32, dims_of(c->in[i]));
        if (!CHECK(find(c->name)->call(&a) == NULL)) printf("  %s\n", c->text);
        CHECK_HAS(mlc_error(ctx), c->text);
        CHECK_STATUS(ctx, c->status);
    }
}

TEST(join, parts_of_a_failed_split_are_null)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 10)), *out[4] = {x, x, x, x}, *in[3];
    CHECK_EQ(mlc_split(x, 4, 1, out, 4), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "split: axis 1 of [2,10] in parts of 4 makes 3, there is room for 4");
    CHECK(out[0] == NULL && out[3] == NULL);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split(x, 0, 1, out, 4), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split(x, 4, 2, out, 3), MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split(x, 4, 1, NULL, 3), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split(NULL, 4, 1, out, 3), MLC_ERR_ARG);
    CHECK_EQ(mlc_chunk(x, 0, 1, out), 0);
    CHECK_HAS(mlc_error(ctx), "chunk: 0 chunks; it takes at least one");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_chunk(x, 2, 5, out), 0);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_chunk(x, 2, 0, NULL), 0);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_chunk(NULL, 2, 0, out), 0);
    out[0] = x;
    out[1] = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
    CHECK_EQ(mlc_meshgrid(out, 2, out + 2), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "meshgrid: input 1 is [2,10]; it must be 1-d");
    CHECK(out[2] == NULL && out[3] == NULL);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_meshgrid(out + 1, 1, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    for (int i = 0; i < 3; i++) {      /* together more than memory can hold                   */
        in[i] = mlc_expand(mlc_zeros(ctx, MLC_F32, mlc_dims0()), mlc_dims1(1 << 24));
        out[i] = x;
    }
    CHECK_EQ(mlc_meshgrid(in, 3, out), MLC_ERR_SHAPE);
    CHECK(out[0] == NULL && out[1] == NULL && out[2] == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_tile(x, mlc_dims_of(9, NULL)) == NULL);
    CHECK_HAS(mlc_error(ctx), "tile: 9 counts; a tensor has at most 8 axes");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_meshgrid(NULL, 1, out), MLC_ERR_ARG);
}

TEST(join, wrong_inputs_of_a_list_are_numbered)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[6], *empty = mlc_zeros(ctx, MLC_F32, mlc_dims1(0));
    for (int i = 0; i < 6; i++) in[i] = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
    in[5] = NULL;
    CHECK(mlc_concat(in, 6, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "concat: input 6 is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    in[5] = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
    CHECK(mlc_concat(in, 6, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "concat: input 1 is f32, input 6 is i64; cast one of them");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_stack(in, 6, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "stack: input 1 is f32, input 6 is i64");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_concat(NULL, 2, 0) == NULL && mlc_concat(in, 0, 0) == NULL);
    CHECK(mlc_stack(NULL, 2, 0) == NULL && mlc_stack(in, 0, 0) == NULL);
    in[0] = empty;                     /* goes with any shape                                  */
    in[1] = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 1));
    CHECK_VALUES(mlc_concat(in, 2, 1), 2, NUMBERS(1, 1), 0, 0);
    in[1] = empty;
    CHECK_EQ(mlc_numel(mlc_concat(in, 2, 0)), 0);
    CHECK(mlc_tile(NULL, mlc_dims0()) == NULL && mlc_flip(NULL, mlc_dims0()) == NULL);
    CHECK(mlc_roll(NULL, 0, 0) == NULL && mlc_repeat(NULL, 0, 0) == NULL);
    CHECK(mlc_pad(NULL, mlc_dims0(), mlc_dims0(), MLC_PAD_CONSTANT, 0) == NULL);
    CHECK(mlc_diag(NULL, 0) == NULL && mlc_diagonal(NULL, 0) == NULL);
    CHECK(mlc_squeeze(NULL, 0) == NULL && mlc_unsqueeze(NULL, 0) == NULL);
    CHECK(mlc_movedim(NULL, 0, 0) == NULL && mlc_unfold(NULL, 0, 1, 1) == NULL);
    CHECK_OK(ctx);
}
