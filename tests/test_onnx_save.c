/* test_onnx_save.c -- tests of the sections IMPL.ONNX.SAVE.*: plans as files of ONNX
 *
 * A file is read again by mlc_onnx_load, and its module is held against the forward. With
 * MLC_TEST_OUT=FOLDER files, inputs and outputs stay there for tests/python_runs_onnx.py.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "onnx_saved.h"

/* ---- networks -------------------------------------------------------------------------------- */

/* A sample of size n of axis 0 or 1; with 1 the batch is 2. */
static mlc_tensor *sized(mlc_ctx *ctx, const struct network *k, int axis, int64_t n, uint64_t seed)
{
    struct network at = *k;
    if (axis) at.in[0] = n;
    return sample(ctx, &at, MLC_F32, axis ? 2 : n, seed);
}

/* A plan of a network that has run for sizes of 5 and 4 of an axis. */
static mlc_plan *plan_of(mlc_ctx *ctx, mlc_module *net, const struct network *k, int axis)
{
    const mlc_plan_desc d = with(PLAIN);
    mlc_plan           *p = NULL;
    for (int64_t n = 5; n >= 4; n--) {
        mlc_tensor *x = sized(ctx, k, axis, n, 3);
        if (p == NULL) p = mlc_plan_capture(net, &x, 1, &d);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    }
    return p;
}

static void check_file(const struct network *k, int axis, int32_t opset, const char *path)
{
    static const int64_t sizes[] = {1, 2, 7};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = k->make(ctx);
    mlc_plan            *p = plan_of(ctx, net, k, axis);
    mlc_onnx_save_desc   d = mlc_onnx_save_desc_make();
    char                 name[64];
    d.opset = opset;
    if (!CHECK_EQ(mlc_onnx_save(p, path, &d), MLC_OK)) {
        printf("  %s, opset %d: %s\n", k->name, (int)opset, mlc_error(ctx));
        mlc_error_clear(ctx);
    }
    mlc_module *m = mlc_onnx_load(ctx, path, NULL);
    if (!CHECK(m != NULL)) {
        printf("  %s, opset %d: %s\n", k->name, (int)opset, mlc_error(ctx));
        mlc_error_clear(ctx);
    }
    mlc_eval_begin(net);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < COUNT(sizes) && m != NULL; i++) {
        mlc_tensor  *x = sized(ctx, k, axis, sizes[i], 4 + (uint64_t)i), *y;
        mlc_tensor  *want = mlc_forward(net, x);
        y = first_of_module(m, &x, 1);
        const double off = y != NULL ? apart(y, want) : -1;
        if (!CHECK(off >= 0 && off <= NEAR)) {
            printf("  %s, opset %d, size %d of axis %d: %g %s\n", k->name, (int)opset,
                   (int)sizes[i], axis, off, mlc_error(ctx));
            mlc_error_clear(ctx);
        }
        snprintf(name, sizeof name, "%s.%d.%d.%d", k->name, axis, (int)opset, (int)sizes[i]);
        keep(ctx, name, path, &x, 1, &want, 1);
    }
    mlc_no_grad_end(ctx);
    mlc_eval_end(net);
    mlc_plan_free(p);
    mlc_module_free(m);
    mlc_module_free(net);
}

TEST(onnx_save, networks)
{
    ONLY_ON_HOST();
    static const int32_t opsets[] = {13, 17, 20};
    const box            b = box_open_fast("net.onnx");
    for (int o = 0; o < COUNT(opsets); o++)
        for (int i = 0; i < COUNT(NETWORKS); i++) check_file(&NETWORKS[i], 0, opsets[o], b.path);
    box_close(&b);
}

TEST(onnx_save, networks_of_any_length)
{
    ONLY_ON_HOST();
    static const char *const names[] = {"lstm", "gru", "encoder", "gpt", "llama", "alibi",
                                        "features", "causal features"};
    const box                b = box_open_fast("net.onnx");
    for (int k = 0; k < COUNT(names); k++)
        for (int i = 0; i < COUNT(NETWORKS); i++)
            if (strcmp(NETWORKS[i].name, names[k]) == 0) check_file(&NETWORKS[i], 1, 17, b.path);
    box_close(&b);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Output `which` of a group. */
typedef struct one { void (*make)(operands *o); int which; } one;

static mlc_status one_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    const one  *k = (const one *)user;
    mlc_tensor *all[96];
    operands    o = {ctx, in[0], in[1], in[2], in[3], all};
    (void)n_in;
    (void)n_out;
    k->make(&o);
    out[0] = all[k->which];
    return mlc_ctx_status(ctx);
}

/* What a file of this opset has no form of, by what the error says. */
static bool may_lack(const char *says, int32_t opset)
{
    static const char *const never[] = {"cumprod", "a tensor without elements", "by the batch"};
    for (int i = 0; i < COUNT(never); i++)
        if (strstr(says, never[i]) != NULL) return true;
    return opset < 16 && strstr(says, "it needs opset 16") != NULL;
}

/* Output `which` of a group against its file; false: the file has no form of it, which may be. */
static bool check_one(mlc_ctx *ctx, int g, int which, mlc_tensor *const *in, mlc_tensor *want,
                      int32_t opset, const char *path)
{
    const mlc_dtype     dtype = in[0]->dtype;
    /* Halves are rounded after each of the nodes that an operation becomes. */
    const double        near = dtype == MLC_BF16 ? 0.03 : dtype == MLC_F16 ? 0.004 : NEAR;
    const mlc_plan_desc d = with(PLAIN);
    one                 k = {GROUPS[g].make, which};
    mlc_onnx_save_desc  s = mlc_onnx_save_desc_make();
    char                name[64];
    mlc_plan           *p = mlc_plan_capture_fn(ctx, one_of, &k, in, 4, &d);
    s.opset = opset;
    mlc_status st = mlc_onnx_save(p, path, &s);
    mlc_plan_free(p);
    if (st == MLC_ERR_UNSUPPORTED && may_lack(mlc_error(ctx), opset)) {
        mlc_error_clear(ctx);
        return false;
    }
    mlc_module  *m = st == MLC_OK ? mlc_onnx_load(ctx, path, NULL) : NULL;
    mlc_tensor  *y = m != NULL ? first_of_module(m, in, 4) : NULL;
    const double off = y != NULL ? apart(mlc_cast(y, want->dtype), want) : -1;
    if (!CHECK(off >= 0 && off <= near) ||
        !CHECK_EQ(y->dtype, half(want) ? MLC_F32 : want->dtype) ||
        !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want))) {
        printf("  group %d, %d, %s, opset %d: %g %s\n", g, which, mlc_dtype_name(dtype),
               (int)opset, off, mlc_error(ctx));
        mlc_error_clear(ctx);
    }
    snprintf(name, sizeof name, "%s.%d.%d.%d", dtype == MLC_F32 ? "op" : mlc_dtype_name(dtype), g,
             which, (int)opset);
    if (y != NULL) keep(ctx, name, path, in, 4, &want, 1);
    mlc_module_free(m);
    return true;
}

/* All outputs of a group, of floats or of indices in this dtype; *lacks counts those without a
 * form. */
static void check_group(int g, mlc_dtype dtype, int32_t opset, const char *path, int *lacks)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[4], *all[96];
    group_inputs(ctx, in);
    mlc_no_grad_begin(ctx);
    if (dtype == MLC_I32) in[2] = mlc_cast(in[2], dtype);
    for (int i = 0; i < 4; i++) if (i != 2 && dtype != MLC_I32) in[i] = mlc_cast(in[i], dtype);
    operands o = {ctx, in[0], in[1], in[2], in[3], all};
    GROUPS[g].make(&o);
    CHECK_OK(ctx);
    const int n = (int)(o.out - all);
    for (int i = 0; i < n; i++) {
        mlc_scope_begin(ctx);
        *lacks += !check_one(ctx, g, i, in, all[i], opset, path);
        mlc_scope_end(ctx);
    }
    mlc_no_grad_end(ctx);
}

TEST(onnx_save, every_operation)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("op.onnx");
    static const int32_t opsets[] = {13, 17, 20};
    int       lacks[3] = {0, 0, 0};
    for (int k = 0; k < 3; k++)
        for (int g = 0; g < COUNT(GROUPS); g++)
            check_group(g, MLC_F32, opsets[k], b.path, &lacks[k]);
    CHECK(lacks[1] <= 4);
    CHECK(lacks[0] <= lacks[1] + 2);
    CHECK_EQ(lacks[2], lacks[1]);
    box_close(&b);
}

/* Operators of ONNX do not take all floats at all opsets. */
TEST(onnx_save, every_operation_of_other_dtypes)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("op.onnx");
    static const int32_t   opsets[] = {13, 14, 16, 20};
    static const mlc_dtype dtypes[] = {MLC_F64, MLC_F16, MLC_BF16};
    for (int k = 0; k < COUNT(opsets); k++) {
        int lacks = 0;
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int g = 0; g < COUNT(GROUPS); g++)
                check_group(g, dtypes[d], opsets[k], b.path, &lacks);
        for (int g = 0; g < COUNT(GROUPS); g++)
            if (GROUPS[g].make == wholes) check_group(g, MLC_I32, opsets[k], b.path, &lacks);
        CHECK(lacks <= COUNT(dtypes) * (opsets[k] < 16 ? 6 : 4));
    }
    box_close(&b);
}

/* ---- small cases ----------------------------------------------------------------------------- */

/* A forward of x, which is of whole numbers from -4 to 4, in this dtype and shape. */
typedef struct small {
    const char  *name;
    mlc_tensor *(*make)(mlc_tensor *x);
    mlc_dtype    dtype;
    int32_t      ndim;
    int64_t      shape[4];
    const char  *lacks;                /* NULL, or what the error says                          */
} small;

#define SMALL(name, call) static mlc_tensor *name(mlc_tensor *x) { return call; }

SMALL(sum_of, mlc_sum(x, mlc_dims1(1), false))
SMALL(prod_of, mlc_prod(mlc_add_scalar(x, 30), mlc_dims1(-1), true))
SMALL(sum_of_flags, mlc_sum(mlc_gt_scalar(x, 0), mlc_dims0(), false))
SMALL(sum_of_large, mlc_sum(mlc_mul_scalar(x, 600000000), mlc_dims1(0), false))
SMALL(cumsum_of, mlc_cumsum(x, 1))
SMALL(cumsum_of_large, mlc_cumsum(mlc_mul_scalar(x, 600000000), 0))
SMALL(cumsum_of_flags, mlc_cumsum(mlc_gt_scalar(x, 0), 0))
SMALL(max_of, mlc_max(x, mlc_dims1(1), true))
SMALL(any_of, mlc_any(x, mlc_dims1(1), true))
SMALL(below_half, mlc_lt_scalar(x, 0.5))
SMALL(below_minus_half, mlc_le_scalar(x, -0.5))
SMALL(below_much, mlc_lt_scalar(x, 3e9))
SMALL(below_inf, mlc_lt_scalar(x, INF))
SMALL(unlike_nan, mlc_ne_scalar(x, (double)NAN))
SMALL(from_minus_2_63, mlc_ge_scalar(x, -9223372036854775808.0))
SMALL(below_2_63, mlc_lt_scalar(x, 9223372036854775808.0))
SMALL(from_3, mlc_ge_scalar(x, 3))
SMALL(flags_are_2, mlc_eq_scalar(mlc_gt_scalar(x, 0), 2))
SMALL(flags_are_1, mlc_eq_scalar(mlc_gt_scalar(x, 0), 1))
SMALL(flags_over, mlc_gt_scalar(mlc_gt_scalar(x, 0), 0.5))
SMALL(flags_in_order, mlc_le(mlc_gt_scalar(x, 0), mlc_gt_scalar(x, 1)))
SMALL(no_nan, mlc_logical_or(mlc_isnan(x), mlc_isfinite(x)))
SMALL(first_above, mlc_ge(x, mlc_slice(x, 0, 0, 1, 1)))

static const small SMALLS[] = {
    {"sum_of.i32", sum_of, MLC_I32, 2, {3, 5}, NULL},
    {"sum_of.i64", sum_of, MLC_I64, 2, {3, 5}, NULL},
    {"sum_of.u8", sum_of, MLC_U8, 2, {3, 5}, NULL},
    {"sum_of.large", sum_of_large, MLC_I32, 2, {7, 5}, NULL},
    {"sum_of.flags", sum_of_flags, MLC_I32, 2, {3, 5}, NULL},
    {"prod_of.i32", prod_of, MLC_I32, 2, {2, 8}, NULL},
    {"max_of.i32", max_of, MLC_I32, 2, {3, 5}, NULL},
    {"any_of.i64", any_of, MLC_I64, 2, {9, 1}, NULL},
    {"cumsum_of.i32", cumsum_of, MLC_I32, 2, {3, 5}, NULL},
    {"cumsum_of.i8", cumsum_of, MLC_I8, 2, {3, 5}, NULL},
    {"cumsum_of.large", cumsum_of_large, MLC_I32, 2, {7, 5}, NULL},
    {"cumsum_of.flags", cumsum_of_flags, MLC_I32, 2, {3, 5}, NULL},
    {"below_half.i64", below_half, MLC_I64, 2, {3, 5}, NULL},
    {"below_half.i32", below_half, MLC_I32, 2, {3, 5}, NULL},
    {"below_half.i8", below_half, MLC_I8, 2, {3, 5}, NULL},
    {"below_half.f32", below_half, MLC_F32, 2, {3, 5}, NULL},
    {"below_minus_half.i64", below_minus_half, MLC_I64, 2, {3, 5}, NULL},
    {"below_minus_half.u8", below_minus_half, MLC_U8, 2, {3, 5}, NULL},
    {"below_much.i32", below_much, MLC_I32, 2, {3, 5}, NULL},
    {"below_much.i64", below_much, MLC_I64, 2, {3, 5}, NULL},
    {"below_inf.i32", below_inf, MLC_I32, 2, {3, 5}, NULL},
    {"unlike_nan.i64", unlike_nan, MLC_I64, 2, {3, 5}, NULL},
    {"from_minus_2_63.i64", from_minus_2_63, MLC_I64, 2, {3, 5}, NULL},
    {"below_2_63.i64", below_2_63, MLC_I64, 2, {3, 5}, "lt_scalar (2^63, which"},
    {"from_3.i64", from_3, MLC_I64, 2, {3, 5}, NULL},
    {"from_3.bool", from_3, MLC_BOOL, 2, {3, 5}, NULL},
    {"flags_are_2", flags_are_2, MLC_I32, 2, {3, 5}, NULL},
    {"flags_are_1", flags_are_1, MLC_I32, 2, {3, 5}, NULL},
    {"flags_over", flags_over, MLC_I32, 2, {3, 5}, NULL},
    {"flags_in_order", flags_in_order, MLC_I32, 2, {3, 5}, NULL},
    {"no_nan.i64", no_nan, MLC_I64, 2, {3, 5}, NULL},
    {"first_above.i32", first_above, MLC_I32, 2, {3, 5}, NULL},
};

/* Squares of numbers over 256 are no halves. */
SMALL(norm_of_300, mlc_norm(mlc_mul_scalar(x, 100), 3, mlc_dims1(1), false))
SMALL(norm_2_of_300, mlc_norm(mlc_mul_scalar(x, 100), 2, mlc_dims1(1), false))
SMALL(std_of_300, mlc_std(mlc_mul_scalar(x, 100), mlc_dims1(1), 1, false))
SMALL(rms_norm_of_300, mlc_rms_norm(mlc_mul_scalar(x, 100), NULL, 1e-6))
SMALL(layer_norm_of_300, mlc_layer_norm(mlc_mul_scalar(x, 100), NULL, NULL, 1e-5))
SMALL(hypot_of_300, mlc_hypot(mlc_mul_scalar(x, 100), mlc_mul_scalar(x, 75)))
SMALL(remainder_of_800, mlc_remainder_scalar(mlc_mul_scalar(x, 200), 0.3125))
#ifndef MLC_NO_VISION
SMALL(nearest_2, mlc_interpolate(x, mlc_dims2(2, 3), MLC_INTERPOLATE_NEAREST))
SMALL(nearest_31, mlc_interpolate(x, mlc_dims2(31, 14), MLC_INTERPOLATE_NEAREST))
#endif

static const small HALVES[] = {
    {"norm_of_300", norm_of_300, MLC_F16, 2, {3, 8}, NULL},
    {"norm_2_of_300", norm_2_of_300, MLC_F16, 2, {3, 8}, NULL},
    {"std_of_300", std_of_300, MLC_F16, 2, {3, 8}, NULL},
    {"hypot_of_300", hypot_of_300, MLC_F16, 2, {3, 8}, NULL},
    {"remainder_of_800", remainder_of_800, MLC_F16, 2, {3, 8}, NULL},
    {"rms_norm_of_300", rms_norm_of_300, MLC_F16, 2, {3, 8}, NULL},
    {"layer_norm_of_300", layer_norm_of_300, MLC_F16, 2, {3, 8}, NULL},
    {"layer_norm_of_bf16", layer_norm_of_300, MLC_BF16, 2, {3, 8}, NULL},
#ifndef MLC_NO_VISION
    {"nearest_2", nearest_2, MLC_F32, 4, {1, 2, 14, 5}, NULL},
    {"nearest_31", nearest_31, MLC_F32, 4, {1, 2, 7, 29}, NULL},
#endif
};

#ifndef MLC_NO_ATTENTION
/* Attention of x [2,2,t,4] with values over 0, and the last three tokens as keys or all of them. */
static mlc_tensor *attended(mlc_tensor *x, int64_t keys, bool causal, mlc_tensor *mask)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_tensor *k = mlc_slice(x, 2, 0, keys, 1);
    d.causal = causal;
    d.mask = mask;
    return mlc_attention_ex(x, k, mlc_add_scalar(k, 5), &d);
}

/* Places over n of [t,t] have the value v, others 0. */
static mlc_tensor *masked_to(mlc_tensor *x, int64_t n, double v)
{
    const int64_t t = mlc_dim(x, 2);
    mlc_tensor   *at = mlc_reshape(mlc_arange(x->ctx, MLC_F32, 0, (double)(t * t), 1),
                                   mlc_dims2(t, t));
    return mlc_masked_fill(mlc_zeros(x->ctx, MLC_F32, mlc_dims2(t, t)),
                           mlc_gt_scalar(at, (double)n), v);
}

SMALL(no_key_by_floats, attended(x, mlc_dim(x, 2), false, masked_to(x, 7, -INF)))
SMALL(no_key_by_flags, attended(x, mlc_dim(x, 2), false, mlc_eq_scalar(masked_to(x, 7, 1), 0)))
SMALL(no_key_before, attended(x, 3, true, NULL))

static const small ATTENDED[] = {
    {"no_key_by_floats", no_key_by_floats, MLC_F32, 4, {2, 2, 5, 4}, NULL},
    {"no_key_by_flags", no_key_by_flags, MLC_F32, 4, {2, 2, 5, 4}, NULL},
    {"no_key_before", no_key_before, MLC_F32, 4, {2, 2, 5, 4}, NULL},
};
#endif

#ifndef MLC_NO_VISION
/* A pool of x with kernel, stride and padding, sizes rounded up. */
static mlc_tensor *pooled(mlc_tensor *x, bool max, int64_t kernel, int64_t stride, int64_t pad,
                          bool exclude)
{
    mlc_pool_desc d = mlc_pool_desc_make(kernel);
    d.stride = mlc_dims_all(stride);
    d.padding = mlc_dims_all(pad);
    d.exclude_padding = exclude;
    d.ceil = true;
    return (max ? mlc_max_pool : mlc_avg_pool)(x, &d);
}

SMALL(max_2_2_1, pooled(x, true, 2, 2, 1, false))
SMALL(max_3_2_0, pooled(x, true, 3, 2, 0, false))
SMALL(max_2_3_0, pooled(x, true, 2, 3, 0, false))
SMALL(avg_2_2_1, pooled(x, false, 2, 2, 1, false))
SMALL(avg_3_2_0, pooled(x, false, 3, 2, 0, false))
SMALL(avg_3_2_1, pooled(x, false, 3, 2, 1, false))
SMALL(avg_3_3_1, pooled(x, false, 3, 3, 1, false))
SMALL(own_2_2_1, pooled(x, false, 2, 2, 1, true))
SMALL(own_3_2_1, pooled(x, false, 3, 2, 1, true))

#define POOLS(h, w) \
    {"max_2_2_1." #h, max_2_2_1, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"max_3_2_0." #h, max_3_2_0, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"max_2_3_0." #h, max_2_3_0, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"avg_2_2_1." #h, avg_2_2_1, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"avg_3_2_0." #h, avg_3_2_0, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"avg_3_2_1." #h, avg_3_2_1, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"avg_3_3_1." #h, avg_3_3_1, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"own_2_2_1." #h, own_2_2_1, MLC_F32, 4, {1, 2, h, w}, NULL}, \
    {"own_3_2_1." #h, own_3_2_1, MLC_F32, 4, {1, 2, h, w}, NULL}

static const small POOLED[] = {POOLS(3, 4), POOLS(5, 6), POOLS(7, 8)};
#endif

static mlc_status small_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = (*(const small *const *)user)->make(in[0]);
    return mlc_ctx_status(ctx);
}

/* A small case: the file's result has dtype, shape and values of the forward's. */
static void check_small(const small *k, int32_t opset, const char *path)
{
    mlc_ctx            *ctx = test_ctx();
    mlc_onnx_save_desc  d = mlc_onnx_save_desc_make();
    char                name[64];
    mlc_tensor         *want, *y = NULL;
    mlc_tensor         *x = test_rand(ctx, MLC_F32, mlc_dims_of(k->ndim, k->shape), 5, -4.9, 4.9);
    mlc_no_grad_begin(ctx);
    x = mlc_cast(mlc_cast(x, MLC_I32), k->dtype);
    mlc_plan *p = mlc_plan_capture_fn(ctx, small_of, &k, &x, 1, NULL);
    d.opset = opset;
    const mlc_status st = mlc_onnx_save(p, path, &d);
    mlc_plan_free(p);
    if (k->lacks != NULL) {
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, k->lacks);
    } else {
        mlc_module *m = st == MLC_OK ? mlc_onnx_load(ctx, path, NULL) : NULL;
        want = k->make(x);
        y = m != NULL ? first_of_module(m, &x, 1) : NULL;
        const double near = k->dtype == MLC_BF16 ? 0.01 : k->dtype == MLC_F16 ? 0.001 : NEAR;
        if (!CHECK(y != NULL && apart(y, want) >= 0 && apart(y, want) <= near) ||
            !CHECK_EQ(y->dtype, half(want) ? MLC_F32 : want->dtype) ||
            !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want)))
            printf("  %s, opset %d: %s\n", k->name, (int)opset, mlc_error(ctx));
        mlc_error_clear(ctx);
        snprintf(name, sizeof name, "small.%s.%d", k->name, (int)opset);
        if (y != NULL) keep(ctx, name, path, &x, 1, &want, 1);
        mlc_module_free(m);
    }
    mlc_no_grad_end(ctx);
}

TEST(onnx_save, small_cases)
{
    ONLY_ON_HOST();
    static const int32_t opsets[] = {13, 17, 20};
    const box            b = box_open_fast("small.onnx");
    for (int o = 0; o < COUNT(opsets); o++) {
        for (int i = 0; i < COUNT(SMALLS); i++) check_small(&SMALLS[i], opsets[o], b.path);
        for (int i = 0; i < COUNT(HALVES); i++) check_small(&HALVES[i], opsets[o], b.path);
#ifndef MLC_NO_ATTENTION
        for (int i = 0; i < COUNT(ATTENDED); i++) check_small(&ATTENDED[i], opsets[o], b.path);
#endif
#ifndef MLC_NO_VISION
        for (int i = 0; i < COUNT(POOLED); i++) check_small(&POOLED[i], opsets[o], b.path);
#endif
    }
    box_close(&b);
}

/* ---- views ----------------------------------------------------------------------------------- */

/* View `which` of x [n,6,5], plus 1; NULL: there are no more. */
static mlc_tensor *view_of(mlc_tensor *x, int which)
{
    const int64_t n = mlc_dim(x, 0);
    switch (which) {
        case 0: return mlc_slice(x, 0, 1, n, 1);
        case 1: return mlc_slice(x, 0, 0, n, 2);
        case 2: return mlc_slice(x, 1, 1, 6, 2);
        case 3: return mlc_slice(mlc_slice(x, 1, 1, 5, 3), 2, 1, 4, 1);
        case 4: return mlc_select(x, 0, n - 1);
        case 5: return mlc_select(x, 1, 5);
        case 6: return mlc_select(mlc_select(x, 1, 2), 1, 3);
        case 7: return mlc_transpose(x, 0, 2);
        case 8: return mlc_permute(x, mlc_dims3(1, 2, 0));
        case 9: return mlc_transpose(mlc_slice(x, 2, 1, 4, 1), 1, 2);
        case 10: return mlc_reshape(x, mlc_dims2(n, 30));
        case 11: return mlc_reshape(x, mlc_dims2(3 * n, 10));
        case 12: return mlc_reshape(x, mlc_dims1(30 * n));
        case 13: return mlc_transpose(mlc_reshape(x, mlc_dims4(n, 2, 3, 5)), 1, 2);
        case 14: return mlc_transpose(mlc_reshape(x, mlc_dims4(n, 2, 3, 5)), 0, 2);
        case 15: return mlc_unsqueeze(mlc_slice(x, 1, 2, 3, 1), 1);
        case 16: return mlc_expand(mlc_slice(x, 1, 2, 3, 1), mlc_dims3(n, 4, 5));
        case 17: return mlc_expand(mlc_unsqueeze(x, 1), mlc_dims4(n, 2, 6, 5));
        case 18: return mlc_slice(mlc_reshape(x, mlc_dims2(n, 30)), 1, 3, 29, 7);
        case 19: return mlc_slice(mlc_reshape(x, mlc_dims1(30 * n)), 0, 2, 25, 11);
        case 20: return mlc_slice(x, 2, 0, 5, 3);
        case 21: return mlc_transpose(mlc_slice(mlc_slice(x, 0, 0, n, 3), 2, 0, 5, 2), 0, 1);
        default: return NULL;
    }
}

static mlc_status viewed(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    const int which = *(const int *)user;
    (void)n_in;
    (void)n_out;
    /* From 100 on a part is changed in place, and the whole is the result. */
    mlc_tensor *x = which >= 100 ? mlc_copy(in[0]) : in[0], *part = view_of(x, which % 100);
    out[0] = part != NULL && which < 100 ? mlc_add_scalar(part, 1) : x;
    if (part != NULL && which >= 100) mlc_add_(part, mlc_mul_scalar(mlc_copy(part), 2));
    return mlc_ctx_status(ctx);
}

/* A view in a file of one size, or of all sizes of axis 0 but for those that need one. */
static void check_view(int which, bool all, const char *path)
{
    mlc_ctx            *ctx = test_ctx();
    const mlc_plan_desc d = with(PLAIN);
    char                name[40];
    mlc_tensor         *x = test_rand(ctx, MLC_F32, mlc_dims3(5, 6, 5), 1, -1, 1), *y, *want;
    mlc_tensor         *more = test_rand(ctx, MLC_F32, mlc_dims3(8, 6, 5), 2, -1, 1);
    mlc_plan           *p = mlc_plan_capture_fn(ctx, viewed, &which, &x, 1, &d);
    if (all) CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_OK);
    const mlc_status st = mlc_onnx_save(p, path, NULL);
    mlc_module      *m = st == MLC_OK ? mlc_onnx_load(ctx, path, NULL) : NULL;
    x = all ? test_rand(ctx, MLC_F32, mlc_dims3(8, 6, 5), 3, -1, 1) : x;
    mlc_no_grad_begin(ctx);
    CHECK_EQ(viewed(ctx, &which, &x, 1, &want, 1), MLC_OK);
    y = m != NULL ? first_of_module(m, &x, 1) : NULL;
    mlc_no_grad_end(ctx);
    if (!CHECK(y != NULL && apart(y, want) == 0) ||
        !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want)))
        printf("  view %d, all %d: %s\n", which, all, mlc_error(ctx));
    mlc_error_clear(ctx);
    snprintf(name, sizeof name, "view.%d.%d", which, all);
    if (y != NULL) keep(ctx, name, path, &x, 1, &want, 1);
    mlc_plan_free(p);
    mlc_module_free(m);
}

TEST(onnx_save, views_and_changes_of_parts)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("view.onnx");
    for (int i = 0; i < 22; i++) {
        check_view(i, false, b.path);
        check_view(i, true, b.path);
        if (i != 16 && i != 17) check_view(100 + i, false, b.path);
    }
    box_close(&b);
}

/* ---- arguments that grow --------------------------------------------------------------------- */

/* Forward `which` of x [n,4], in which n is an argument. */
static mlc_status growing(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    const int     which = *(const int *)user;
    const int64_t n = mlc_dim(in[0], 0);
    const double  size = (double)n;
    (void)n_in;
    (void)n_out;
    switch (which) {
        case 0: out[0] = mlc_div_scalar(mlc_sum(in[0], mlc_dims1(0), false), size); break;
        case 1: out[0] = mlc_add(in[0], mlc_reshape(mlc_arange(ctx, MLC_F32, 0, size, 1),
                                                    mlc_dims2(n, 1))); break;
        case 2: out[0] = mlc_masked_fill(in[0], mlc_gt_scalar(in[0], 2 - size), 1 + size); break;
        case 3: out[0] = mlc_slice(mlc_sort(in[0], 0, false, NULL), 0, n / n, n, 1); break;
        case 4: out[0] = mlc_cumsum(mlc_flip(in[0], mlc_dims1(0)), 0); break;
        case 5: out[0] = mlc_softmax(mlc_matmul(in[0], mlc_transpose(in[0], 0, 1)), 1); break;
        case 6: out[0] = mlc_triu(in[0], n - 4); break;
        default: out[0] = mlc_add(in[0], mlc_reshape(mlc_arange(ctx, MLC_F32, size, 2 * size, 1),
                                                     mlc_dims2(n, 1))); break;
    }
    return mlc_ctx_status(ctx);
}

/* Arguments follow the size, or are listed: from 6 on. */
static void check_growing(int which, int64_t first, int64_t second, const char *path)
{
    static const int64_t sizes[] = {1, 2, 9};
    mlc_ctx             *ctx = test_ctx();
    char                 name[40];
    mlc_tensor          *x = test_rand(ctx, MLC_F32, mlc_dims2(first, 4), 1, -1, 1), *want, *y;
    mlc_tensor          *more = test_rand(ctx, MLC_F32, mlc_dims2(second, 4), 2, -1, 1);
    mlc_plan            *p = mlc_plan_capture_fn(ctx, growing, &which, &x, 1, NULL);
    CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_OK);
    if (which > 5) {
        CHECK_EQ(mlc_onnx_save(p, path, NULL), MLC_ERR_UNSUPPORTED);
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, which == 6 ? "triu (an argument that grows"
                                                         : "steps (an argument that grows");
        mlc_plan_free(p);
        return;
    }
    CHECK_EQ(mlc_onnx_save(p, path, NULL), MLC_OK);
    mlc_module *m = mlc_onnx_load(ctx, path, NULL);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < COUNT(sizes) && m != NULL; i++) {
        if (which == 3 && i == 0) continue;              /* no elements                       */
        x = test_rand(ctx, MLC_F32, mlc_dims2(sizes[i], 4), 3, -1, 1);
        CHECK_EQ(growing(ctx, &which, &x, 1, &want, 1), MLC_OK);
        y = first_of_module(m, &x, 1);
        if (!CHECK(y != NULL && apart(y, want) <= NEAR) ||
            !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want)))
            printf("  growing %d, size %d: %s\n", which, (int)sizes[i], mlc_error(ctx));
        mlc_error_clear(ctx);
        snprintf(name, sizeof name, "grows.%d.%d.%d", which, (int)first, (int)sizes[i]);
        if (y != NULL) keep(ctx, name, path, &x, 1, &want, 1);
    }
    mlc_no_grad_end(ctx);
    mlc_module_free(m);
    mlc_plan_free(p);
}

TEST(onnx_save, arguments_that_grow_with_the_free_axis)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("grows.onnx");
    for (int i = 0; i < 8; i++) {
        check_growing(i, 6, 3, b.path);
#ifndef MLC_TEST_STRIDES               /* strides at size 1 then tell nothing of other sizes   */
        if (i != 3) check_growing(i, 1, 5, b.path);
#endif
    }
    box_close(&b);
}

/* ---- changes in place before a recurrent step ------------------------------------------------ */

#ifndef MLC_NO_RECURRENT
/* Weights w and input x of the linear before a recurrent step change after it. */
static mlc_status changed_after(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    const int    which = *(const int *)user;
    mlc_rnn_desc r = mlc_rnn_desc_make(MLC_RNN_TANH);
    mlc_tensor  *x = mlc_copy(in[0]), *hc[3];
    mlc_tensor  *w = mlc_copy(mlc_reshape(mlc_slice(mlc_reshape(x, mlc_dims1(60)), 0, 0, 20, 1),
                                          mlc_dims2(4, 5)));
    mlc_tensor  *gates = mlc_linear(x, w, NULL);
    (void)n_in;
    (void)n_out;
    mlc_mul_scalar_(which ? w : x, 3);
    if (mlc_rnn(gates, mlc_slice(w, 1, 0, 4, 1), &r, hc) != MLC_OK) return mlc_ctx_status(ctx);
    out[0] = hc[0];
    return mlc_ctx_status(ctx);
}

TEST(onnx_save, inputs_that_change_before_a_recurrent_step)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("changed.onnx");
    for (int which = 0; which < 2; which++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(3, 4, 5), 1, -1, 1), *want;
        mlc_plan   *p = mlc_plan_capture_fn(ctx, changed_after, &which, &x, 1, NULL);
        CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_OK);
        mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
        mlc_no_grad_begin(ctx);
        CHECK_EQ(changed_after(ctx, &which, &x, 1, &want, 1), MLC_OK);
        mlc_tensor *y = m != NULL ? first_of_module(m, &x, 1) : NULL;
        if (!CHECK(y != NULL && apart(y, want) >= 0 && apart(y, want) <= NEAR))
            printf("  %d: %s\n", which, mlc_error(ctx));
        mlc_error_clear(ctx);
        keep(ctx, which ? "changed.w" : "changed.x", b.path, &x, 1, &want, 1);
        mlc_no_grad_end(ctx);
        mlc_module_free(m);
        mlc_plan_free(p);
    }
    box_close(&b);
}
#endif

/* ---- sizes of results ------------------------------------------------------------------------ */

#ifndef MLC_NO_VISION
/* Forward `which` of x [1,2,h,8], whose rows a convolution of stride 2 halves. */
static mlc_status halved(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    const int     which = *(const int *)user;
    mlc_conv_desc d = mlc_conv_desc_make();
    (void)n_in;
    (void)n_out;
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims4(2, 2, 3, 3), 0.25);
    mlc_tensor *y = mlc_conv(in[0], w, NULL, &d);
    switch (which) {
        case 0: out[0] = mlc_adaptive_avg_pool(y, mlc_dims2(2, 2)); break;
        case 1: out[0] = mlc_var(y, mlc_dims1(2), 1, false); break;
        default: out[0] = mlc_group_norm(y, 1, NULL, NULL, 1e-5); break;
    }
    return mlc_ctx_status(ctx);
}

/* Rows behind a stride are ceil(h / 2), which no file computes: it is of one size. Images are. */
TEST(onnx_save, sizes_of_results_are_proven)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("halved.onnx");
    for (int which = 0; which < 3; which++)
        for (int axis = 0; axis <= 2; axis += 2) {
            mlc_ctx       *ctx = test_ctx();
            mlc_onnx_value v;
            mlc_tensor    *x = test_rand(ctx, MLC_F32, mlc_dims4(3, 2, 5, 8), 1, -1, 1), *want;
            mlc_tensor    *more = axis ? test_rand(ctx, MLC_F32, mlc_dims4(3, 2, 7, 8), 2, -1, 1)
                                       : test_rand(ctx, MLC_F32, mlc_dims4(5, 2, 5, 8), 2, -1, 1);
            mlc_plan      *p = mlc_plan_capture_fn(ctx, halved, &which, &x, 1, NULL);
            CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_OK);
            CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_OK);
            mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
            if (!CHECK(m != NULL && mlc_onnx_input(m, 0, &v))) printf("  %s\n", mlc_error(ctx));
            CHECK_EQ(v.shape[0], axis ? 3 : -1);
            CHECK_EQ(v.shape[2], axis ? 7 : 5);
            if (!axis) more = test_rand(ctx, MLC_F32, mlc_dims4(16, 2, 5, 8), 3, -1, 1);
            mlc_no_grad_begin(ctx);
            CHECK_EQ(halved(ctx, &which, &more, 1, &want, 1), MLC_OK);
            mlc_tensor *y = m != NULL ? first_of_module(m, &more, 1) : NULL;
            CHECK(y != NULL && apart(y, want) >= 0 && apart(y, want) <= NEAR);
            mlc_no_grad_end(ctx);
            mlc_module_free(m);
            mlc_plan_free(p);
        }
    box_close(&b);
}
#endif

/* ---- names, sizes, files --------------------------------------------------------------------- */

TEST(onnx_save, names_and_the_free_axis)
{
    ONLY_ON_HOST();
    static const char *const in[] = {"pixels"}, *const out[] = {"scores"};
    const box                b = box_open_fast("net.onnx");
    mlc_ctx                 *ctx = test_ctx();
    mlc_module              *net = NETWORKS[0].make(ctx);
    mlc_plan                *p = plan_of(ctx, net, &NETWORKS[0], 0);
    mlc_onnx_save_desc       d = mlc_onnx_save_desc_make();
    mlc_onnx_value           v;
    d.inputs = in;
    d.outputs = out;
    d.n_inputs = d.n_outputs = 1;
    d.axis = "rows";
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    if (CHECK(mlc_onnx_input(m, 0, &v))) {
        CHECK_STR(v.name, "pixels");
        CHECK_EQ(v.shape[0], -1);
        CHECK_STR(v.symbol[0], "rows");
        CHECK_EQ(v.shape[1], 12);
    }
    if (CHECK(mlc_onnx_output(m, 0, &v))) {
        CHECK_STR(v.name, "scores");
        CHECK_STR(v.symbol[0], "rows");
        CHECK_EQ(v.shape[1], 7);
    }
    CHECK(mlc_module_param(m, "0.weight") != NULL);
    CHECK(mlc_module_param(m, "2.bias") != NULL);
    CHECK_EQ(box_count(&b), 1);
    mlc_module_free(m);
    mlc_plan_free(p);
    mlc_module_free(net);
    box_close(&b);
}

TEST(onnx_save, tensors_in_a_second_file)
{
    ONLY_ON_HOST();
    const box          b = box_open_fast("net.onnx");
    mlc_ctx           *ctx = test_ctx();
    mlc_module        *net = mlp(ctx, 40, 30, 20);
    mlc_tensor        *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 40), 1, -1, 1);
    mlc_plan          *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
    char               data[400];
    size_t             n;
    d.external = 1;
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    snprintf(data, sizeof data, "%s.data", b.path);
    free(get_file(data, &n));
    CHECK_EQ(n, (40 * 30 + 30 * 20) * sizeof(float));      /* both are multiples of 64 */
    free(get_file(b.path, &n));
    CHECK(n > 0 && n < 2000);
    CHECK_EQ(box_count(&b), 2);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    mlc_tensor *y = m != NULL ? first_of_module(m, &x, 1) : NULL;
    CHECK(y != NULL && apart(y, mlc_forward(net, x)) <= NEAR);
    mlc_module_free(m);
    d.external = 1 << 20;
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    m = mlc_onnx_load(ctx, b.path, NULL);
    y = m != NULL ? first_of_module(m, &x, 1) : NULL;
    CHECK(y != NULL && apart(y, mlc_forward(net, x)) <= NEAR);
    mlc_module_free(m);
    mlc_plan_free(p);
    mlc_module_free(net);
    box_close(&b);
}

/* An import, saved again, has the same outputs. */
TEST(onnx_save, a_file_of_an_import)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("net.onnx");
    mlc_ctx    *ctx = test_ctx();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        mlc_module *net = NETWORKS[i].make(ctx);
        mlc_tensor *x = sample(ctx, &NETWORKS[i], MLC_F32, 2, 3);
        mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL), *q;
        mlc_tensor *want, *y;
        CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_OK);
        mlc_module *m = mlc_onnx_load(ctx, b.path, NULL), *again = NULL;
        q = m != NULL ? mlc_plan_capture(m, &x, 1, NULL) : NULL;
        if (CHECK(q != NULL) && CHECK_EQ(mlc_onnx_save(q, b.path, NULL), MLC_OK))
            again = mlc_onnx_load(ctx, b.path, NULL);
        y = again != NULL ? first_of_module(again, &x, 1) : NULL;
        want = m != NULL ? first_of_module(m, &x, 1) : NULL;
        if (!CHECK(y != NULL && want != NULL && apart(y, want) <= NEAR))
            printf("  %s: %s\n", NETWORKS[i].name, mlc_error(ctx));
        mlc_error_clear(ctx);
        mlc_plan_free(q);
        mlc_plan_free(p);
        mlc_module_free(again);
        mlc_module_free(m);
        mlc_module_free(net);
    }
    box_close(&b);
}

#if !defined(MLC_NO_SKETCH) && !defined(MLC_NO_ATTENTION)
/* ---- attention by features ------------------------------------------------------------------- */

/* Of a number of rows that is known, by chunks of 64; of a free one, which opset 13 lacks. */
TEST(onnx_save, causal_attention_by_features)
{
    ONLY_ON_HOST();
    static const int64_t sizes[] = {64, 65, 128, 150};
    const box            b = box_open_fast("net.onnx");
    mlc_ctx             *ctx = test_ctx();
    mlc_onnx_save_desc   d = mlc_onnx_save_desc_make();
    mlc_tensor          *in[3], *want, *y;
    char                 name[64];
    for (int i = 0; i < 2 * COUNT(sizes); i++) {
        mlc_features_kernel kernel = i % 2 ? MLC_FEATURES_RELU : MLC_FEATURES_SOFTMAX;
        features_inputs(ctx, sizes[i / 2], in);
        mlc_plan *p = mlc_plan_capture_fn(ctx, by_features, &kernel, in, 3, NULL);
        CHECK_EQ(mlc_plan_run(p, in, 3, NULL, 0), MLC_OK);
        want = mlc_plan_output(p, 0);
        d.opset = i < 4 ? 13 : i < 6 ? 17 : 20;
        CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
        mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
        y = m != NULL ? first_of_module(m, in, 3) : NULL;
        if (!CHECK(y != NULL && apart(y, want) <= NEAR))
            printf("  %d rows: %g %s\n", (int)sizes[i / 2], y ? apart(y, want) : -1,
                   mlc_error(ctx));
        snprintf(name, sizeof name, "features.%d", i);
        keep(ctx, name, b.path, in, 3, &want, 1);
        features_inputs(ctx, 3, in);
        CHECK_EQ(mlc_plan_prepare(p, in, 3), MLC_OK);
        d.opset = 13;
        CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_ERR_UNSUPPORTED);
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED,
                    "features_attention (of the free axis it needs opset 14)");
        mlc_plan_free(p);
        mlc_module_free(m);
    }
    box_close(&b);
}

/* Chunks of any batch. */
TEST(onnx_save, causal_attention_by_features_of_any_batch)
{
    ONLY_ON_HOST();
    const box           b = box_open_fast("net.onnx");
    mlc_ctx            *ctx = test_ctx();
    mlc_onnx_save_desc  d = mlc_onnx_save_desc_make();
    mlc_features_kernel kernel = MLC_FEATURES_SOFTMAX;
    mlc_tensor         *in[3][3];      /* of a batch of 1, 2, 3                                 */
    d.opset = 13;
    features_inputs(ctx, 150, in[1]);
    for (int i = 0; i < 3; i++) {
        in[0][i] = mlc_slice(in[1][i], 0, 1, 2, 1);
        mlc_tensor *both[2] = {in[0][i], in[1][i]};
        in[2][i] = mlc_concat(both, 2, 0);
        in[0][i] = mlc_copy(in[0][i]);
    }
    mlc_plan *p = mlc_plan_capture_fn(ctx, by_features, &kernel, in[1], 3, NULL);
    CHECK_EQ(mlc_plan_run(p, in[2], 3, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, in[1], 3, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    for (int i = 0; i < 3 && CHECK(m != NULL); i++) {
        CHECK_EQ(mlc_plan_run(p, in[i], 3, NULL, 0), MLC_OK);
        mlc_tensor *y = first_of_module(m, in[i], 3), *want = mlc_plan_output(p, 0);
        CHECK(y != NULL && apart(y, want) <= NEAR);
        keep(ctx, i == 0 ? "features.one" : i == 1 ? "features.two" : "features.three", b.path,
             in[i], 3, &want, 1);
    }
    mlc_plan_free(p);
    mlc_module_free(m);
    box_close(&b);
}
#endif

/* ---- errors ---------------------------------------------------------------------------------- */

static mlc_status lacking(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *x = in[0];
    (void)user;
    (void)n_in;
    (void)n_out;
    x = mlc_add(x, mlc_linspace(ctx, MLC_F32, 0, 1, 4));
    x = mlc_mul(mlc_eye(ctx, MLC_F32, 4, 4), x);
    out[0] = mlc_mse_loss(mlc_cumprod(x, 0), mlc_relu(x));
    return mlc_ctx_status(ctx);
}

static mlc_status twice_cumprod(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_scatter_add(mlc_cumprod(in[0], 0), 0, mlc_argsort(in[0], 0, false), in[0]);
    return mlc_ctx_status(ctx);
}

TEST(onnx_save, what_has_no_form_is_listed)
{
    ONLY_ON_HOST();
    const box          b = box_open_fast("net.onnx");
    mlc_ctx           *ctx = test_ctx();
    mlc_tensor        *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
    mlc_plan          *p = mlc_plan_capture_fn(ctx, lacking, NULL, &x, 1, NULL);
    CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "linspace, eye, mse_loss");
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan_free(p);
    p = mlc_plan_capture_fn(ctx, twice_cumprod, NULL, &x, 1, NULL);
    d.opset = 13;
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED,
                "2 operations that ONNX has not, or not in opset 13: cumprod (ONNX has none), "
                "scatter_add (it needs opset 16)");
    mlc_plan_free(p);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}

/* One wrong desc: what the message says. */
static void wrong_desc(mlc_ctx *ctx, mlc_plan *p, const char *path, const mlc_onnx_save_desc *d,
                       const char *says)
{
    CHECK_EQ(mlc_onnx_save(p, path, d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, says);
}

TEST(onnx_save, wrong_arguments)
{
    ONLY_ON_HOST();
    static const char *const same[] = {"y0"}, *const param[] = {"0.weight"}, *const none[] = {""};
    const box                b = box_open_fast("net.onnx");
    mlc_ctx                 *ctx = test_ctx();
    mlc_module              *net = NETWORKS[0].make(ctx);
    mlc_tensor              *x = sample(ctx, &NETWORKS[0], MLC_F32, 2, 3);
    mlc_plan                *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_onnx_save_desc       d = mlc_onnx_save_desc_make();
    CHECK_EQ(mlc_onnx_save(NULL, b.path, NULL), MLC_ERR_ARG);
    wrong_desc(ctx, p, "", &d, "onnx_save: no path");
    d.opset = 12;
    wrong_desc(ctx, p, b.path, &d, "opset 12; 13 to 21");
    d.opset = 22;
    wrong_desc(ctx, p, b.path, &d, "opset 22; 13 to 21");
    d = mlc_onnx_save_desc_make();
    d.external = 0;
    wrong_desc(ctx, p, b.path, &d, "external is 0");
    d = mlc_onnx_save_desc_make();
    d.n_inputs = 2;
    wrong_desc(ctx, p, b.path, &d, "the plan has 1 and 1");
    d.n_inputs = 1;
    d.inputs = same;
    wrong_desc(ctx, p, b.path, &d, "the name 'y0' twice");
    d.inputs = param;
    wrong_desc(ctx, p, b.path, &d, "'0.weight' is the name of a parameter");
    d.inputs = none;
    wrong_desc(ctx, p, b.path, &d, "input 0 has no name");
    d = mlc_onnx_save_desc_make();
    d.axis = "";
    wrong_desc(ctx, p, b.path, &d, "the name of the axis is empty, over");
    d.axis = "\xC3";
    wrong_desc(ctx, p, b.path, &d, "the name of the axis is empty, over");
    CHECK_EQ(box_count(&b), 0);
    CHECK_EQ(mlc_onnx_save(p, "/nowhere/at/all.onnx", NULL), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "/nowhere/at/all.onnx");
    mlc_module_free(net);
    CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "onnx_save: the network was freed");
    mlc_plan_free(p);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}
