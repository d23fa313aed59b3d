/* test_goldens.c -- every operation against PyTorch and NumPy: one table, OPS, drives it
 *
 * The cases are stored in golden/ops_*.safetensors (make_op_goldens.py says how). Of each: values
 * on each ISA level, gradients against PyTorch's, f64 gradients against central differences; the
 * forms in place take the cases of the others. Then, of each operation, what it must refuse.
 */
#include "ew_table.h"
#include "golden/golden.h"
#include "ops.h"

/* ---- calls -------------------------------------------------------------------------------- */

#define CALL(name, arguments) \
    static mlc_tensor *call_##name(op_args *a) { return mlc_##name arguments; }
#define BOTH(name, ...) CALL(name, (__VA_ARGS__)) CALL(name##_, (__VA_ARGS__))

#define SCALAR_WHOLE(X) X(add_scalar) X(mul_scalar) X(rsub_scalar)
#define SCALAR(X) X(div_scalar) X(pow_scalar) \
    X(leaky_relu) X(elu) X(celu)
#define COMPARE(X) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)
#define LOGIC(X) X(logical_and) X(logical_or) X(logical_xor)
#define CLASSES(X) X(isnan) X(isinf) X(isfinite)

#define BOTH1(name, ...) BOTH(name, a->in[0])
#define BOTH2(name, ...) BOTH(name, a->in[0], a->in[1])
#define BOTH_S(name) BOTH(name, a->in[0], a->nums[0])
#define CALL1(name) CALL(name, (a->in[0]))
#define CALL2(name) CALL(name, (a->in[0], a->in[1]))
#define CALL_COMPARE(name) CALL2(name) CALL(name##_scalar, (a->in[0], a->nums[0]))

/* The first number of a list of integers, as an axis; all of a list; it as true or false. */
#define INT(i)  (a->ints[i].v[0])
#define AXIS(i) ((int32_t)a->ints[i].v[0])
#define FLAG(i) (a->ints[i].v[0] != 0)

EW_UNARY(BOTH1, BOTH1, BOTH1)
EW_BINARY(BOTH2, BOTH2)
SCALAR_WHOLE(BOTH_S)
BOTH_S(sub_scalar)
BOTH_S(floor_divide_scalar)
BOTH_S(remainder_scalar)
SCALAR(BOTH_S)
COMPARE(CALL_COMPARE)
LOGIC(CALL2)
CLASSES(CALL1)
BOTH(clamp, a->in[0], a->nums[0], a->nums[1])
BOTH(masked_fill, a->in[0], a->in[1], a->nums[0])
CALL1(logical_not)
CALL(where, (a->in[0], a->in[1], a->in[2]))
CALL(fill_, (a->in[0], a->nums[0]))
CALL1(zero_)
CALL2(copy_)
CALL(dropout, (a->in[0], a->nums[0]))
CALL2(prelu)
CALL(glu, (a->in[0], AXIS(0)))

#define CALL_REDUCE(name) CALL(name, (a->in[0], a->ints[0], FLAG(1)))
CALL_REDUCE(sum)
CALL_REDUCE(mean)
CALL1(sum_all)
CALL1(mean_all)
CALL_REDUCE(prod)
CALL_REDUCE(max)
CALL_REDUCE(min)
CALL_REDUCE(any)
CALL_REDUCE(all)
CALL_REDUCE(logsumexp)
CALL(var, (a->in[0], a->ints[0], a->nums[0], FLAG(1)))
CALL(std, (a->in[0], a->ints[0], a->nums[0], FLAG(1)))
CALL(norm, (a->in[0], a->nums[0], a->ints[0], FLAG(1)))
CALL(argmax, (a->in[0], AXIS(0), false))
CALL(argmin, (a->in[0], AXIS(0), false))
CALL(cumsum, (a->in[0], AXIS(0)))
CALL(cumprod, (a->in[0], AXIS(0)))

CALL(softmax, (a->in[0], AXIS(0)))
CALL(log_softmax, (a->in[0], AXIS(0)))
CALL(layer_norm, (a->in[0], a->in[1], a->in[2], a->nums[0]))
CALL(rms_norm, (a->in[0], a->in[1], a->nums[0]))

CALL(sort, (a->in[0], AXIS(0), FLAG(1), &a->out[1]))
CALL(argsort, (a->in[0], AXIS(0), FLAG(1)))
CALL(topk, (a->in[0], INT(0), AXIS(1), FLAG(2), &a->out[1]))

CALL2(matmul)
CALL(linear, (a->in[0], a->in[1], a->in[2]))
CALL(einsum, (a->text, a->in, a->n_in))
CALL2(outer)
CALL2(dot)

CALL(concat, (a->in, a->n_in, AXIS(0)))
CALL(stack, (a->in, a->n_in, AXIS(0)))
CALL(tile, (a->in[0], a->ints[0]))
CALL(repeat, (a->in[0], INT(0), AXIS(1)))
CALL(flip, (a->in[0], a->ints[0]))
CALL(roll, (a->in[0], INT(0), AXIS(1)))
CALL(pad, (a->in[0], a->ints[0], a->ints[1], (mlc_pad_mode)INT(2), a->nums[0]))
CALL(diag, (a->in[0], INT(0)))
CALL(tril, (a->in[0], INT(0)))
CALL(triu, (a->in[0], INT(0)))

CALL(gather, (a->in[0], AXIS(0), a->in[1]))
BOTH(scatter, a->in[0], AXIS(0), a->in[1], a->in[2])
BOTH(scatter_add, a->in[0], AXIS(0), a->in[1], a->in[2])
CALL(index_select, (a->in[0], AXIS(0), a->in[1]))
CALL2(take)
CALL2(embedding)
CALL(embedding_bag, (a->in[0], a->n_in > 2 ? a->in[2] : NULL, a->in[1]))

static mlc_tensor *call_embedding_ex(op_args *a)
{
    mlc_embedding_desc d = mlc_embedding_desc_make();
    d.has_padding_index = true;
    d.padding_index = a->ints[0].v[0];
    return mlc_embedding_ex(a->in[0], a->in[1], &d);
}

/* Positions are the second input, if there is one. */
static mlc_tensor *call_rotary(op_args *a)
{
    mlc_rotary_desc d = mlc_rotary_desc_make();
    d.dims = a->ints[0].v[0];
    d.neighbours = a->ints[0].v[1] != 0;
    d.offset = a->ints[0].v[2];
    d.base = a->nums[0];
    d.scale = a->nums[1];
    return mlc_rotary(a->in[0], a->n_in > 1 ? a->in[1] : NULL, &d);
}

CALL(sinusoidal, (a->ctx, INT(0), INT(1)))
CALL(alibi_slopes, (a->ctx, INT(0)))
CALL(rotary_table, (a->ctx, NULL, INT(0), INT(1), NULL))

static mlc_tensor *call_embedding_bag_ex(op_args *a)
{
    mlc_embedding_bag_desc d = mlc_embedding_bag_desc_make();
    d.reduction = MLC_REDUCTION_SUM;
    d.weights = a->in[2];
    return mlc_embedding_bag_ex(a->in[0], NULL, a->in[1], &d);
}

CALL2(masked_select)
CALL1(nonzero)
CALL(one_hot, (a->in[0], INT(0)))

CALL(reshape, (a->in[0], a->ints[0]))
CALL(flatten, (a->in[0], AXIS(0)))
CALL(permute, (a->in[0], a->ints[0]))
CALL(transpose, (a->in[0], AXIS(0), AXIS(1)))
CALL(slice, (a->in[0], AXIS(0), INT(1), INT(2), INT(3)))
CALL(select, (a->in[0], AXIS(0), INT(1)))
CALL(expand, (a->in[0], a->ints[0]))
CALL(squeeze, (a->in[0], AXIS(0)))
CALL(unsqueeze, (a->in[0], AXIS(0)))
CALL(movedim, (a->in[0], AXIS(0), AXIS(1)))
CALL(unfold, (a->in[0], AXIS(0), INT(1), INT(2)))
CALL(diagonal, (a->in[0], INT(0)))
CALL1(contiguous)
CALL1(copy)
CALL1(channels_last)
CALL(adaptive_max_pool, (a->in[0], a->ints[0]))
CALL(adaptive_avg_pool, (a->in[0], a->ints[0]))
CALL1(detach)
CALL(cast, (a->in[0], (mlc_dtype)INT(0)))

CALL(zeros, (a->ctx, a->dtype, a->ints[0]))
CALL(ones, (a->ctx, a->dtype, a->ints[0]))
CALL(full, (a->ctx, a->dtype, a->ints[0], a->nums[0]))
CALL(arange, (a->ctx, a->dtype, a->nums[0], a->nums[1], a->nums[2]))
CALL(linspace, (a->ctx, a->dtype, a->nums[0], a->nums[1], INT(0)))
CALL(eye, (a->ctx, a->dtype, INT(0), INT(1)))
CALL(randn, (a->ctx, a->dtype, a->ints[0]))
CALL(uniform, (a->ctx, a->dtype, a->ints[0], a->nums[0], a->nums[1]))
CALL(normal, (a->ctx, a->dtype, a->ints[0], a->nums[0], a->nums[1]))
CALL(truncated_normal, (a->ctx, a->dtype, a->ints[0], a->nums[0], a->nums[1], a->nums[2],
                        a->nums[3]))
CALL(bernoulli, (a->ctx, a->dtype, a->ints[0], a->nums[0]))
CALL(randint, (a->ctx, a->dtype, a->ints[0], INT(1), INT(2)))
CALL(randperm, (a->ctx, INT(0)))
CALL(multinomial, (a->in[0], INT(0), FLAG(1)))

static mlc_tensor *call_linear_ex(op_args *a)
{
    mlc_epilogue e = {(mlc_act)INT(0), 0, NULL};
    return mlc_linear_ex(a->in[0], a->in[1], a->in[2], &e);
}

CALL(attention, (a->in[0], a->in[1], a->in[2]))

static mlc_tensor *call_attention_ex(op_args *a)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    d.causal = INT(0) != 0;
    d.window = INT(1);
    d.mask = a->in[3];
    return mlc_attention_ex(a->in[0], a->in[1], a->in[2], &d);
}

static mlc_conv_desc conv_desc_of(const op_args *a)
{
    mlc_conv_desc d = mlc_conv_desc_make();
    d.stride = a->ints[0];
    d.padding = a->ints[1];
    d.dilation = a->ints[2];
    d.groups = a->ints[3].v[0];
    return d;
}

static mlc_tensor *call_conv(op_args *a)
{
    mlc_conv_desc d = conv_desc_of(a);
    d.same = a->ints[3].v[1] != 0;
    d.act = (mlc_act)a->ints[3].v[2];
    return mlc_conv(a->in[0], a->in[1], a->in[2], &d);
}

static mlc_tensor *call_conv_transpose(op_args *a)
{
    mlc_conv_desc d = conv_desc_of(a);
    d.output_padding = mlc_dims_of(a->ints[3].n - 1, a->ints[3].v + 1);
    return mlc_conv_transpose(a->in[0], a->in[1], a->in[2], &d);
}

static mlc_pool_desc pool_desc_of(const op_args *a)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    d.kernel = a->ints[0];
    d.stride = a->ints[1];
    d.padding = a->ints[2];
    return d;
}

static mlc_tensor *call_max_pool(op_args *a)
{
    mlc_pool_desc d = pool_desc_of(a);
    const int     axes = a->ints[3].n - 1;
    d.dilation = mlc_dims_of(axes, a->ints[3].v);
    d.ceil = axes >= 0 && a->ints[3].v[axes] != 0;
    return mlc_max_pool(a->in[0], &d);
}

static mlc_tensor *call_avg_pool(op_args *a)
{
    mlc_pool_desc d = pool_desc_of(a);
    d.ceil = a->ints[3].v[0] != 0;
    d.exclude_padding = a->ints[3].v[1] != 0;
    return mlc_avg_pool(a->in[0], &d);
}

static mlc_tensor *call_batch_norm(op_args *a)
{
    return mlc_batch_norm(a->in[0], NULL, NULL, a->in[1], a->in[2], true, 0.1, a->nums[0]);
}

static mlc_tensor *call_group_norm(op_args *a)
{
    return mlc_group_norm(a->in[0], (int64_t)a->nums[1], a->in[1], a->in[2], a->nums[0]);
}

static mlc_tensor *call_instance_norm(op_args *a)
{
    return mlc_instance_norm(a->in[0], a->in[1], a->in[2], a->nums[0]);
}

static mlc_tensor *call_interpolate(op_args *a)
{
    return mlc_interpolate(a->in[0], a->ints[0], (mlc_interpolation)INT(1));
}

static mlc_tensor *call_pixel_shuffle(op_args *a)
{
    return mlc_pixel_shuffle(a->in[0], INT(0));
}

static mlc_tensor *call_pixel_unshuffle(op_args *a)
{
    return mlc_pixel_unshuffle(a->in[0], INT(0));
}

static mlc_tensor *call_split(op_args *a)
{
    int32_t n = a->ints[2].n > 0 ? AXIS(2) : a->n_out;
    return mlc_split(a->in[0], INT(0), AXIS(1), a->out, n) == MLC_OK ? a->out[0] : NULL;
}

static mlc_tensor *call_chunk(op_args *a)
{
    int32_t n = mlc_chunk(a->in[0], AXIS(0), AXIS(1), a->out);
    return n == a->n_out ? a->out[0] : NULL;
}

static mlc_tensor *call_meshgrid(op_args *a)
{
    return mlc_meshgrid(a->in, a->n_in, a->out) == MLC_OK ? a->out[0] : NULL;
}

static mlc_tensor *call_copy_into(op_args *a)
{
    return mlc_copy_into(a->in[0], a->in[1]) == MLC_OK ? a->in[0] : NULL;
}

/* The shape and elements of the input, in a buffer of the caller's. */
static mlc_dims host_copy(mlc_tensor *t, void *buffer, size_t room)
{
    size_t bytes = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    CHECK(bytes <= room);
    CHECK_EQ(mlc_read(t, buffer, bytes), MLC_OK);
    return mlc_dims_of(t->ndim, t->shape);
}

static mlc_tensor *call_from(op_args *a)
{
    static double buffer[256];
    if (a->n_in == 0)
        return mlc_from(a->ctx, a->dtype, a->ints[0], buffer);
    mlc_dims shape = host_copy(a->in[0], buffer, sizeof buffer);
    return mlc_from(a->ctx, a->dtype, shape, buffer);
}

static mlc_tensor *call_wrap(op_args *a)
{
    static double buffer[256];
    if (a->n_in == 0)
        return mlc_wrap(a->ctx, a->dtype, a->ints[0], NULL, buffer);
    mlc_dims shape = host_copy(a->in[0], buffer, sizeof buffer);
    return mlc_wrap(a->ctx, a->dtype, shape, NULL, buffer);
}

/* ---- the table ---------------------------------------------------------------------------- */

#define BIT(dtype) (1u << (dtype))
#define FLOAT (BIT(MLC_F32) | BIT(MLC_F64) | BIT(MLC_BF16) | BIT(MLC_F16))
#define INTS  (BIT(MLC_I64) | BIT(MLC_I32) | BIT(MLC_I8) | BIT(MLC_U8))
#define WHOLE (BIT(MLC_I64) | BIT(MLC_I32))
#define ANY   (FLOAT | INTS | BIT(MLC_BOOL))

#define ROW_BOTH1(name) \
    {"mlc_" #name, call_##name, FLOAT, "se0g"}, {"mlc_" #name "_", call_##name##_, FLOAT, "se0g"},
#define ROW_EW1(name, ...) \
    {"mlc_" #name, call_##name, FLOAT, "se0gw"}, {"mlc_" #name "_", call_##name##_, FLOAT, "se0gw"},
#define ROW_WHOLE1(name, ...) \
    {"mlc_" #name, call_##name, FLOAT | WHOLE, "se0gw"}, \
    {"mlc_" #name "_", call_##name##_, FLOAT | WHOLE, "se0gw"},
#define ROW_WHOLE_S(name) \
    {"mlc_" #name, call_##name, FLOAT | WHOLE, "se0g"}, \
    {"mlc_" #name "_", call_##name##_, FLOAT | WHOLE, "se0g"},
#define ROW_WHOLE2(name, ...) \
    {"mlc_" #name, call_##name, FLOAT | WHOLE, "bse0gw"}, \
    {"mlc_" #name "_", call_##name##_, FLOAT | WHOLE, "bse0gw"},
#define ROW_EW2(name, ...) \
    {"mlc_" #name, call_##name, FLOAT, "bse0gw"}, \
    {"mlc_" #name "_", call_##name##_, FLOAT, "bse0gw"},
#define ROW_COMPARE(name) {"mlc_" #name, call_##name, ANY, "bse0"}, \
    {"mlc_" #name "_scalar", call_##name##_scalar, ANY, "se0"},
#define ROW_LOGIC(name) {"mlc_" #name, call_##name, BIT(MLC_BOOL), "bse0"},
#define ROW_CLASSES(name) {"mlc_" #name, call_##name, ANY, "se0"},

/* What an operation has, and so must be tested with: b inputs that broadcast, s strided ones, e
 * nothing, 0 a scalar, g a gradient; v: it calls mlc_reshape, _permute or _select, which errors of
 * its memory name; w: a row of ew_table.h, which test_ew.c tests, and which may have no golden.
 * `make matrix` holds these against what was run; what a row has not is refused: see below. */
static const op_row OPS[] = {
    EW_UNARY(ROW_EW1, ROW_EW1, ROW_WHOLE1)
    EW_BINARY(ROW_EW2, ROW_WHOLE2)
    SCALAR_WHOLE(ROW_WHOLE_S)
    ROW_WHOLE1(sub_scalar)
    ROW_WHOLE1(floor_divide_scalar)
    ROW_WHOLE1(remainder_scalar)
    SCALAR(ROW_BOTH1)
    ROW_BOTH1(clamp)
    COMPARE(ROW_COMPARE)
    LOGIC(ROW_LOGIC)
    {"mlc_logical_not", call_logical_not, BIT(MLC_BOOL), "se0"},
    CLASSES(ROW_CLASSES)
    {"mlc_where", call_where, ANY, "bse0g"},
    {"mlc_masked_fill", call_masked_fill, ANY, "bse0g"},
    {"mlc_masked_fill_", call_masked_fill_, ANY, "bse0g"},
    {"mlc_fill_", call_fill_, ANY, "se0g"},
    {"mlc_zero_", call_zero_, ANY, "se0g"},
    {"mlc_copy_", call_copy_, ANY, "bse0g"},
    {"mlc_dropout", call_dropout, FLOAT, "se0g"},
    {"mlc_prelu", call_prelu, FLOAT, "se0g"},
    {"mlc_glu", call_glu, FLOAT, "seg"},
    {"mlc_sum", call_sum, ANY, "se0g"},
    {"mlc_mean", call_mean, FLOAT, "se0g"},
    {"mlc_sum_all", call_sum_all, ANY, "se0g"},
    {"mlc_mean_all", call_mean_all, FLOAT, "se0g"},
    {"mlc_prod", call_prod, ANY, "se0g"},
    {"mlc_max", call_max, ANY, "se0g"},
    {"mlc_min", call_min, ANY, "se0g"},
    {"mlc_any", call_any, ANY, "se0"},
    {"mlc_all", call_all, ANY, "se0"},
    {"mlc_var", call_var, FLOAT, "se0g"},
    {"mlc_std", call_std, FLOAT, "se0g"},
    {"mlc_norm", call_norm, FLOAT, "se0g"},
    {"mlc_logsumexp", call_logsumexp, FLOAT, "se0g"},
    {"mlc_argmax", call_argmax, ANY, "se0"},
    {"mlc_argmin", call_argmin, ANY, "se0"},
    {"mlc_cumsum", call_cumsum, ANY, "se0g"},
    {"mlc_cumprod", call_cumprod, ANY, "se0g"},
    {"mlc_softmax", call_softmax, FLOAT, "se0g"},
    {"mlc_log_softmax", call_log_softmax, FLOAT, "se0g"},
    {"mlc_layer_norm", call_layer_norm, FLOAT, "seg"},
    {"mlc_rms_norm", call_rms_norm, FLOAT, "seg"},
    {"mlc_sort", call_sort, ANY, "se0g"},
    {"mlc_argsort", call_argsort, ANY, "se0"},
    {"mlc_topk", call_topk, ANY, "se0g"},
    {"mlc_matmul", call_matmul, FLOAT, "bseg"},
    {"mlc_linear", call_linear, FLOAT, "seg"},
    {"mlc_linear_ex", call_linear_ex, FLOAT, "seg"},
    {"mlc_attention", call_attention, FLOAT, "seg"},
    {"mlc_attention_ex", call_attention_ex, FLOAT, "seg"},
    {"mlc_conv", call_conv, FLOAT, "seg"},
    {"mlc_conv_transpose", call_conv_transpose, FLOAT, "seg"},
    {"mlc_max_pool", call_max_pool, FLOAT, "seg"},
    {"mlc_avg_pool", call_avg_pool, FLOAT, "seg"},
    {"mlc_adaptive_max_pool", call_adaptive_max_pool, FLOAT, "seg"},
    {"mlc_adaptive_avg_pool", call_adaptive_avg_pool, FLOAT, "seg"},
    {"mlc_batch_norm", call_batch_norm, FLOAT, "seg"},
    {"mlc_group_norm", call_group_norm, FLOAT, "seg"},
    {"mlc_instance_norm", call_instance_norm, FLOAT, "seg"},
    {"mlc_interpolate", call_interpolate, FLOAT, "seg"},
    {"mlc_pixel_shuffle", call_pixel_shuffle, ANY, "seg"},
    {"mlc_pixel_unshuffle", call_pixel_unshuffle, ANY, "seg"},
    {"mlc_channels_last", call_channels_last, ANY, "seg"},
    {"mlc_einsum", call_einsum, FLOAT, "bse0g"},
    {"mlc_outer", call_outer, FLOAT, "seg"},
    {"mlc_dot", call_dot, FLOAT, "seg"},
    {"mlc_concat", call_concat, ANY, "seg"},
    {"mlc_stack", call_stack, ANY, "se0g"},
    {"mlc_split", call_split, ANY, "seg"},
    {"mlc_chunk", call_chunk, ANY, "seg"},
    {"mlc_tile", call_tile, ANY, "se0g"},
    {"mlc_repeat", call_repeat, ANY, "seg"},
    {"mlc_flip", call_flip, ANY, "se0g"},
    {"mlc_roll", call_roll, ANY, "seg"},
    {"mlc_pad", call_pad, ANY, "se0g"},
    {"mlc_diag", call_diag, ANY, "seg"},
    {"mlc_tril", call_tril, ANY, "seg"},
    {"mlc_triu", call_triu, ANY, "seg"},
    {"mlc_gather", call_gather, ANY, "se0g"},
    {"mlc_scatter", call_scatter, ANY, "se0g"},
    {"mlc_scatter_", call_scatter_, ANY, "se0g"},
    {"mlc_scatter_add", call_scatter_add, ANY, "se0g"},
    {"mlc_scatter_add_", call_scatter_add_, ANY, "se0g"},
    {"mlc_index_select", call_index_select, ANY, "seg"},
    {"mlc_take", call_take, ANY, "se0g"},
    {"mlc_embedding", call_embedding, FLOAT, "seg"},
    {"mlc_embedding_ex", call_embedding_ex, FLOAT, "sg"},
    {"mlc_embedding_bag", call_embedding_bag, FLOAT, "sg"},
    {"mlc_embedding_bag_ex", call_embedding_bag_ex, FLOAT, "g"},
    {"mlc_rotary", call_rotary, FLOAT, "seg"},
    {"mlc_rotary_table", call_rotary_table, BIT(MLC_F64), ""},
    {"mlc_sinusoidal", call_sinusoidal, BIT(MLC_F32), ""},
    {"mlc_alibi_slopes", call_alibi_slopes, BIT(MLC_F32), ""},
    {"mlc_masked_select", call_masked_select, ANY, "bse0g"},
    {"mlc_nonzero", call_nonzero, ANY, "se0"},
    {"mlc_one_hot", call_one_hot, BIT(MLC_I64), "se0"},
    {"mlc_reshape", call_reshape, ANY, "se0g"},
    {"mlc_flatten", call_flatten, ANY, "se0gv"},
    {"mlc_permute", call_permute, ANY, "se0g"},
    {"mlc_transpose", call_transpose, ANY, "segv"},
    {"mlc_slice", call_slice, ANY, "seg"},
    {"mlc_select", call_select, ANY, "seg"},
    {"mlc_expand", call_expand, ANY, "se0g"},
    {"mlc_squeeze", call_squeeze, ANY, "se0gv"},
    {"mlc_unsqueeze", call_unsqueeze, ANY, "se0gv"},
    {"mlc_movedim", call_movedim, ANY, "segv"},
    {"mlc_unfold", call_unfold, ANY, "seg"},
    {"mlc_diagonal", call_diagonal, ANY, "seg"},
    {"mlc_meshgrid", call_meshgrid, ANY, "se0g"},
    {"mlc_contiguous", call_contiguous, ANY, "se0g"},
    {"mlc_copy", call_copy, ANY, "se0g"},
    {"mlc_detach", call_detach, ANY, "se0"},
    {"mlc_cast", call_cast, ANY, "se0g"},
    {"mlc_copy_into", call_copy_into, ANY, "se0"},
    {"mlc_zeros", call_zeros, ANY, "e0"},
    {"mlc_ones", call_ones, ANY, "e0"},
    {"mlc_full", call_full, ANY, "e0"},
    {"mlc_arange", call_arange, ANY, "e"},
    {"mlc_linspace", call_linspace, ANY, "e"},
    {"mlc_eye", call_eye, ANY, "e"},
    {"mlc_from", call_from, ANY, "se0"},
    {"mlc_wrap", call_wrap, ANY, "se0"},
    {"mlc_randn", call_randn, FLOAT, "e"},
    {"mlc_uniform", call_uniform, FLOAT, "e0"},
    {"mlc_normal", call_normal, FLOAT, "e0"},
    {"mlc_truncated_normal", call_truncated_normal, FLOAT, "e0"},
    {"mlc_bernoulli", call_bernoulli, ANY, "e0"},
    {"mlc_randint", call_randint, ANY, "e0"},
    {"mlc_randperm", call_randperm, BIT(MLC_I64), "e"},
    {"mlc_multinomial", call_multinomial, BIT(MLC_F32) | BIT(MLC_F64), "s"},
};
#define OP_COUNT ((int)(sizeof OPS / sizeof *OPS))

const op_row *op_each(int i)
{
    return i < OP_COUNT ? &OPS[i] : NULL;
}

const op_row *op_find(const char *name)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(OPS[i].name, name) == 0)
            return &OPS[i];
    return NULL;
}

bool op_in_place(const op_row *row)
{
    return row->name[strlen(row->name) - 1] == '_';
}

static void row_seen(const op_row *row)
{
    char text[128];
    int  n = snprintf(text, sizeof text, "%s ", row->has);
    for (int d = 0; d < MLC_DTYPE_COUNT; d++)
        if (((row->dtypes >> d) & 1) != 0)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s,", mlc_dtype_name((mlc_dtype)d));
    op_seen("row", row->name, text);
}

static bool has(const op_row *row, char what)
{
    return strchr(row->has, what) != NULL;
}

/* ---- the text of a case ------------------------------------------------------------------- */

static mlc_dims read_dims(const char **text)
{
    mlc_dims d = mlc_dims0();
    char    *end;
    while (d.n < MLC_MAX_DIMS && (**text == '-' || (**text >= '0' && **text <= '9'))) {
        d.v[d.n++] = strtoll(*text, &end, 10);
        *text = *end == ',' ? end + 1 : end;
    }
    return d;
}

/* "f32" and what follows it; MLC_DTYPE_COUNT if that is no dtype. */
static mlc_dtype read_dtype(const char **text)
{
    for (int i = 0; i < MLC_DTYPE_COUNT; i++) {
        const char *name = mlc_dtype_name((mlc_dtype)i);
        size_t      n = strlen(name);
        if (strncmp(*text, name, n) == 0) {
            *text += n;
            return (mlc_dtype)i;
        }
    }
    return MLC_DTYPE_COUNT;
}

/* "<f32[3,5]T" or ">i64[]" behind its first letter. */
static bool read_spec(op_spec *s, const char *text)
{
    memset(s, 0, sizeof *s);
    s->layout = 'N';
    if (strncmp(text, "null", 4) == 0)
        return true;
    s->dtype = read_dtype(&text);
    if (s->dtype == MLC_DTYPE_COUNT || *text++ != '[')
        return false;
    s->shape = read_dims(&text);
    if (*text++ != ']')
        return false;
    s->layout = *text == ' ' ? 0 : *text;
    return true;
}

static bool read_word(op_args *a, const char *word, int *n_ints, int *n_nums)
{
    char        text[64];
    size_t      n = strcspn(word, " ");
    const char *at = word + 1;
    snprintf(text, sizeof text, "%.*s", (int)n, word);
    switch (*word) {
    case '<': return a->n_in < OP_MOST && read_spec(&a->in_spec[a->n_in++], at);
    case '>': return a->n_out < OP_MOST && read_spec(&a->out_spec[a->n_out++], at);
    case '#': return *n_ints < 4 && (a->ints[(*n_ints)++] = read_dims(&at), true);
    case '=': return *n_nums < 4 && (a->nums[(*n_nums)++] = test_strtod(text + 1), true);
    case '"': return n >= 2 && snprintf(a->text, sizeof a->text, "%.*s", (int)n - 2, at) >= 0;
    default: break;
    }
    if (strncmp(text, "grad:", 5) == 0)
        return snprintf(a->grad, sizeof a->grad, "%.*s", OP_MOST, text + 5) > 0;
    return a->diff = strcmp(text, "diff") == 0;
}

bool op_parse(op_args *a, const char *text)
{
    int n_ints = 0, n_nums = 0;
    memset(a, 0, sizeof *a);
    a->dtype = read_dtype(&text);
    while (*text == ' ')
        text++;
    while (*text != 0) {
        if (!read_word(a, text, &n_ints, &n_nums)) {
            printf("  not understood: \"%s\"\n", text);
            return CHECK(false);
        }
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    if (a->dtype == MLC_DTYPE_COUNT)
        a->dtype = a->n_in > 0 ? a->in_spec[0].dtype : MLC_F32;
    return true;
}

static int64_t spec_count(const op_spec *s)
{
    int64_t n = 1;
    for (int32_t i = 0; i < s->shape.n; i++)
        n *= s->shape.v[i];
    return n;
}

/* ---- what is stored ----------------------------------------------------------------------- */

typedef struct bank {                  /* all cases of one operation                           */
    char     op[32];
    char   **line;
    int      n;
    uint8_t *data[MLC_DTYPE_COUNT];
} bank;

static const char *const FILES[] = {
    "ops_elementwise.safetensors", "ops_compare.safetensors", "ops_reductions.safetensors",
    "ops_sorting.safetensors", "ops_join.safetensors", "ops_index.safetensors",
    "ops_view.safetensors", "ops_create.safetensors", "ops_products.safetensors",
    "ops_convolutions.safetensors", "ops_pools.safetensors", "ops_formats.safetensors",
    "ops_random.safetensors", "ops_rows.safetensors", "ops_attention.safetensors",
    "ops_sequence.safetensors",
};

static struct {
    bank bank[256];
    int  n;
} stored;

static void *host_bytes(mlc_tensor *t, size_t *bytes)
{
    *bytes = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    char *data = (char *)calloc(1, *bytes + 1);
    CHECK(data != NULL);
    CHECK_EQ(mlc_read(t, data, *bytes), MLC_OK);
    return data;
}

static void split_lines(bank *b, char *text)
{
    for (char *at = text; *at != 0; at++)
        b->n += *at == '\n';
    b->line = (char **)calloc((size_t)b->n + 1, sizeof *b->line);
    CHECK(b->line != NULL);
    for (int i = 0; i < b->n; i++) {
        b->line[i] = text;
        text += strcspn(text, "\n");
        *text++ = 0;
    }
}

/* Names are "add.cases", "add.f32": sorted, so those of an operation stand together. */
static void store(const mlc_named *t)
{
    size_t      bytes, n = strcspn(t->name, ".");
    const char *part = t->name + n + 1;
    bank       *b = stored.n > 0 ? &stored.bank[stored.n - 1] : NULL;
    if (b == NULL || strlen(b->op) != n || strncmp(b->op, t->name, n) != 0) {
        if (!CHECK(stored.n < (int)(sizeof stored.bank / sizeof *stored.bank)))
            return;
        b = &stored.bank[stored.n++];
        snprintf(b->op, sizeof b->op, "%.*s", (int)n, t->name);
    }
    if (strcmp(part, "cases") == 0)
        split_lines(b, (char *)host_bytes(t->tensor, &bytes));
    else
        b->data[t->tensor->dtype] = (uint8_t *)host_bytes(t->tensor, &bytes);
}

/* Is it a reduction that takes no axes, and so those cases of another? */
static bool of_all(const op_row *row)
{
    const size_t n = strlen(row->name);
    return n > 8 && strcmp(row->name + n - 4, "_all") == 0;
}

/* The cases of an operation; those of mlc_add_ are mlc_add's, but for some of its own, and those of
 * mlc_sum_all are mlc_sum's. */
static const bank *bank_of(const op_row *row)
{
    char name[40];
    if (stored.n == 0) {
        mlc_ctx *ctx = test_ctx();
        for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
            golden_file f = golden_open(ctx, FILES[i]);
            for (int64_t k = 0; k < f.n; k++)
                store(&f.list[k]);
        }
    }
    snprintf(name, sizeof name, "%.*s", (int)strlen(row->name) - (of_all(row) ? 8 : 4),
             row->name + 4);
    for (int tries = 0; tries < 2; tries++, name[strlen(name) - 1] = 0)
        for (int i = 0; i < stored.n; i++)
            if (strcmp(stored.bank[i].op, name) == 0)
                return &stored.bank[i];
    return NULL;
}

typedef struct cursor {                /* walks through the cases of a row                     */
    const op_row *row;
    const bank   *b;
    int           next;
    size_t        at[MLC_DTYPE_COUNT];
    op_args       a;                   /* of the current case                                  */
    const char   *line;
    const void   *in[OP_MOST], *out[OP_MOST], *dy[OP_MOST], *grad[OP_MOST];
} cursor;

static const void *take(cursor *c, const op_spec *s)
{
    const void *data = c->b->data[s->dtype] + c->at[s->dtype];
    c->at[s->dtype] += (size_t)spec_count(s) * mlc_dtype_bytes(s->dtype);
    return data;
}

static bool is_float(mlc_dtype dtype)
{
    return ((FLOAT >> dtype) & 1) != 0;
}

/* The next case, also of those that the row cannot take; false behind the last one. */
static bool next_case(cursor *c)
{
    op_args *a = &c->a;
    if (c->b == NULL || c->next == c->b->n || !op_parse(a, c->b->line[c->next]))
        return false;
    c->line = c->b->line[c->next++];
    for (int i = 0; i < a->n_in; i++)
        c->in[i] = take(c, &a->in_spec[i]);
    for (int i = 0; i < a->n_out; i++)
        c->out[i] = take(c, &a->out_spec[i]);
    for (int i = 0; i < a->n_out && a->grad[0]; i++)
        c->dy[i] = is_float(a->out_spec[i].dtype) ? take(c, &a->out_spec[i]) : NULL;
    for (int i = 0; i < a->n_in && a->grad[0]; i++)
        c->grad[i] = a->grad[i] == '1' ? take(c, &a->in_spec[i]) : NULL;
    return true;
}

static bool same_dims(const mlc_dims *a, const mlc_dims *b)
{
    return a->n == b->n && memcmp(a->v, b->v, sizeof *a->v * (size_t)a->n) == 0;
}

/* An operation in place takes what has its result's shape and no element twice; one over all axes
 * what names none. */
static bool fits(const cursor *c)
{
    const op_args *a = &c->a;
    mlc_dims       seen = a->in_spec[0].shape;
    char           layout = a->in_spec[0].layout;
    if (of_all(c->row))
        return a->ints[0].n == 0 && a->ints[1].v[0] == 0;
    if (!op_in_place(c->row))
        return true;
    if (layout == 'T') {
        seen.v[seen.n - 1] = a->in_spec[0].shape.v[seen.n - 2];
        seen.v[seen.n - 2] = a->in_spec[0].shape.v[seen.n - 1];
    } else if (layout == 'S') {
        seen.v[seen.n - 1] /= 2;
    }
    return layout != 'E' && same_dims(&seen, &a->out_spec[0].shape);
}

/* ---- running a case ----------------------------------------------------------------------- */

/* The inputs as leaves, looked at; one that is written in place is a copy. */
static void look_at_inputs(cursor *c)
{
    op_args *a = &c->a;
    for (int i = 0; i < a->n_in; i++) {
        bool write = i == 0 && op_in_place(c->row);
        a->in[i] = op_look(write ? mlc_copy(a->leaf[i]) : a->leaf[i], a->in_spec[i].layout);
    }
}

static void call(cursor *c)
{
    look_at_inputs(c);
    c->a.out[0] = c->row->call(&c->a);
}

static void make_leaves(cursor *c, mlc_ctx *ctx)
{
    op_args *a = &c->a;
    a->ctx = ctx;
    for (int i = 0; i < a->n_in; i++) {
        a->leaf[i] = mlc_from(ctx, a->in_spec[i].dtype, a->in_spec[i].shape, c->in[i]);
        if (a->grad[i] == '1')
            mlc_set_requires_grad(a->leaf[i], true);
    }
}

/* PyTorch's assert_close, but tighter for f64, where both only round. */
static void tolerance(mlc_dtype dtype, double *atol, double *rtol)
{
    *atol = dtype == MLC_F64 ? 1e-12 : 1e-5;
    *rtol = dtype == MLC_F64 ? 1e-12 : dtype == MLC_F32 ? 1.3e-6 : dtype == MLC_F16 ? 1e-3 : 1.6e-2;
    if (!is_float(dtype))
        *atol = *rtol = 0;
}

/* Does t have this shape, dtype and values? Integers to the bit, also where a double has fewer. */
static bool agrees(mlc_tensor *t, const op_spec *s, const void *want, const cursor *c,
                   const char *what)
{
    double   atol, rtol;
    int64_t  n = spec_count(s);
    size_t   bytes = (size_t)n * mlc_dtype_bytes(s->dtype);
    mlc_dims shape = t != NULL ? mlc_dims_of(t->ndim, t->shape) : mlc_dims0();
    char     text[80];
    tolerance(s->dtype, &atol, &rtol);
    /* Terms of a sum over what was broadcast are rounded to 16 bits, as PyTorch's are; they are 1
     * at most, and few. */
    if (*what == 'g' && mlc_dtype_bytes(s->dtype) == 2)
        atol = s->dtype == MLC_F16 ? 4 * 0x1p-11 : 4 * 0x1p-8;
    if (t == NULL && n == 0 && *what == 'g')             /* nothing flowed: no gradient, none  */
        return true;
    if (t == NULL || t->dtype != s->dtype || !same_dims(&shape, &s->shape)) {
        printf("  %s: %s: %s is %s%s\n", c->row->name, c->line, what,
               t ? mlc_dtype_name(t->dtype) : "NULL",
               t ? mlc_shape_text(t, text, sizeof text) : "");
        return false;
    }
    uint8_t *got = (uint8_t *)calloc(1, bytes + 1);
    bool     ok = CHECK(got != NULL) && CHECK_EQ(mlc_read(t, got, bytes), MLC_OK);
    for (int64_t i = 0; ok && i < n; i++) {
        double x = test_get(got, s->dtype, i), y = test_get(want, s->dtype, i);
        ok = is_float(s->dtype) ? golden_close(x, y, atol, rtol)
                                : memcmp(got, want, bytes) == 0;
        if (!ok)
            printf("  %s: %s: %s[%" PRId64 "] is %.17g, want %.17g\n", c->row->name, c->line, what,
                   i, x, y);
    }
    free(got);
    return ok;
}

/* What was not looked at keeps its values. */
static bool rest_is_kept(cursor *c)
{
    static double before[GOLDEN_MOST], after[GOLDEN_MOST];
    mlc_tensor   *leaf = c->a.leaf[0];
    if (c->a.in_spec[0].layout != 'S')
        return true;
    mlc_tensor *base = mlc_copy(leaf), *rest = mlc_slice(base, -1, 0, INT64_MAX, 2);
    mlc_tensor *was = mlc_slice(leaf, -1, 0, INT64_MAX, 2);
    c->a.in[0] = op_look(base, 'S');
    return CHECK(c->row->call(&c->a) == c->a.in[0]) && test_read(was, before) &&
           test_read(rest, after) &&
           CHECK(memcmp(before, after, sizeof *after * (size_t)mlc_numel(rest)) == 0);
}

/* Sum over all float results of result times dy: its gradient is that of PyTorch's backward(dy). */
static mlc_tensor *loss_of(cursor *c, mlc_tensor *const *dy)
{
    mlc_tensor *loss = NULL;
    for (int i = 0; i < c->a.n_out; i++) {
        if (dy[i] == NULL)
            continue;
        mlc_tensor *part = mlc_sum(mlc_mul(c->a.out[i], dy[i]), mlc_dims0(), false);
        loss = loss == NULL ? part : mlc_add(loss, part);
    }
    return loss;
}

static bool gradients_agree(cursor *c)
{
    op_args    *a = &c->a;
    mlc_tensor *dy[OP_MOST] = {NULL};
    bool        ok = true;
    if (a->grad[0] == 0 || !has(c->row, 'g'))
        return true;
    for (int i = 0; i < a->n_out; i++)
        if (c->dy[i] != NULL)
            dy[i] = mlc_from(a->ctx, a->out_spec[i].dtype, a->out_spec[i].shape, c->dy[i]);
    mlc_status got = a->n_out == 1 ? mlc_backward_from(a->out[0], dy[0])
                                   : mlc_backward(loss_of(c, dy));
    if (!CHECK_EQ(got, MLC_OK))
        return false;
    for (int i = 0; i < a->n_out; i++)     /* what came in is not written to                     */
        if (dy[i] != NULL)
            ok = agrees(dy[i], &a->out_spec[i], c->dy[i], c, "dy afterwards") && ok;
    for (int i = 0; i < a->n_in; i++) {
        char what[] = "gradient 0";
        what[9] = (char)('0' + i);
        if (c->grad[i] != NULL)
            ok = agrees(mlc_grad(a->leaf[i]), &a->in_spec[i], c->grad[i], c, what) && ok;
    }
    return ok;
}

/* A row without g: the result asks for no gradient, also where its inputs do. */
static bool has_none(cursor *c)
{
    bool ok = true;
    if (has(c->row, 'g') || op_in_place(c->row) || c->row->call == call_copy_into)
        return true;
    for (int i = 0; i < c->a.n_in; i++)
        if (is_float(c->a.in_spec[i].dtype))
            mlc_set_requires_grad(c->a.leaf[i], true);
    call(c);
    for (int i = 0; i < c->a.n_out; i++)
        ok = CHECK(!mlc_requires_grad(c->a.out[i])) && ok;
    return ok;
}

static bool check_case(cursor *c, mlc_ctx *ctx)
{
    op_args *a = &c->a;
    bool     ok = true;
    make_leaves(c, ctx);
    call(c);
    if (mlc_ctx_status(ctx) != MLC_OK)
        printf("  %s: %s: %s\n", c->row->name, c->line, mlc_error(ctx));
    if (op_in_place(c->row))
        ok = CHECK(a->out[0] == a->in[0]);
    for (int i = 0; i < a->n_out; i++)
        ok = agrees(a->out[i], &a->out_spec[i], c->out[i], c, "result") && ok;
    if (ok && op_in_place(c->row))
        ok = rest_is_kept(c);
    if (ok && op_in_place(c->row))
        call(c);                                     /* again: that one raised the version     */
    return ok && gradients_agree(c) && has_none(c) && CHECK_OK(ctx);
}

/* A cursor before the first case of a row. */
static cursor cursor_of(const op_row *row)
{
    cursor c;
    memset(&c, 0, sizeof c);
    c.row = row;
    c.b = bank_of(row);
    return c;
}

/* Which of the letters of OPS this case shows, at this level, in this dtype. */
static void case_seen(const cursor *c, mlc_ctx *ctx)
{
    const op_args *a = &c->a;
    bool           b = false, s = false, e = false, scalar = false;
    char           text[80];
    for (int i = 0; i < a->n_in + a->n_out; i++) {
        const op_spec *x = i < a->n_in ? &a->in_spec[i] : &a->out_spec[i - a->n_in];
        b = b || (i > 0 && i < a->n_in && !same_dims(&x->shape, &a->in_spec[0].shape));
        s = s || x->layout != 0;
        e = e || spec_count(x) == 0;
        scalar = scalar || (x->shape.n == 0 && (i < a->n_in || a->n_in == 0));
    }
    snprintf(text, sizeof text, "%s %s %s%s%s%s", mlc_isa_name(mlc_ctx_isa(ctx)),
             mlc_dtype_name(a->dtype), b ? "b" : "", s ? "s" : "", e ? "e" : "", scalar ? "0" : "");
    op_seen("golden", c->row->name, text);
}

/* Can it run here? Memory of the host cannot be wrapped for another device. */
static bool runs_here(const op_row *row)
{
    return test_on_host() || row->call != call_wrap;
}

TEST(goldens, values_and_gradients_are_those_of_pytorch_on_each_isa_level)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < OP_COUNT; i++) {
            cursor c = cursor_of(&OPS[i]);
            int    bad = 0;
            CHECK(c.b != NULL || has(c.row, 'w'));
            row_seen(c.row);
            while (runs_here(c.row) && next_case(&c) && bad < 3) {
                if (!fits(&c) || ((c.row->dtypes >> c.a.dtype) & 1) == 0)
                    continue;
                mlc_scope_begin(ctx);
                if (CHECK(check_case(&c, ctx)))
                    case_seen(&c, ctx);
                else
                    bad++;
                mlc_scope_end(ctx);
                mlc_error_clear(ctx);
            }
        }
    }
}

static bool is_empty(const op_args *a)
{
    bool empty = false;
    for (int i = 0; i < a->n_in + a->n_out; i++)
        empty = empty || spec_count(i < a->n_in ? &a->in_spec[i] : &a->out_spec[i - a->n_in]) == 0;
    return empty;
}

/* What an operation of nothing leaves unwritten is NaN here. */
TEST(goldens, operations_of_nothing_write_all_of_their_results_and_gradients)
{
    mlc_ctx *ctx = test_poisoned_ctx();
    int n = 0;
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        while (runs_here(c.row) && next_case(&c)) {
            if (!fits(&c) || ((c.row->dtypes >> c.a.dtype) & 1) == 0 || !is_empty(&c.a))
                continue;
            mlc_memory_trim(ctx);      /* all memory of the case comes from the allocator      */
            mlc_scope_begin(ctx);
            if (!CHECK(check_case(&c, ctx)))
                printf("  %s: %s\n", c.row->name, c.line);
            mlc_scope_end(ctx);
            mlc_error_clear(ctx);
            n++;
        }
    }
    CHECK(n > 1000);
}

/* ---- gradients against central differences ------------------------------------------------ */

typedef struct grad_user {
    cursor     *c;
    mlc_tensor *dy[OP_MOST];
} grad_user;

static mlc_tensor *grad_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    grad_user *u = (grad_user *)user;
    int32_t    k = 0;
    for (int i = 0; i < u->c->a.n_in && k < n_in; i++)
        if (u->c->a.grad[i] == '1')
            u->c->a.leaf[i] = in[k++];
    call(u->c);
    return loss_of(u->c, u->dy);
}

static bool check_differences(cursor *c, mlc_ctx *ctx)
{
    grad_user            u = {c, {NULL}};
    mlc_gradcheck_report r;
    mlc_tensor          *in[OP_MOST];
    op_args             *a = &c->a;
    int32_t              n = 0;
    make_leaves(c, ctx);
    for (int i = 0; i < a->n_in; i++)
        if (a->grad[i] == '1')
            in[n++] = a->leaf[i];
    for (int i = 0; i < a->n_out; i++)
        if (c->dy[i] != NULL && a->out_spec[i].dtype == MLC_F64)
            u.dy[i] = mlc_from(ctx, MLC_F64, a->out_spec[i].shape, c->dy[i]);
    memset(&r, 0, sizeof r);
    if (!CHECK_EQ(mlc_gradcheck(grad_loss, &u, in, n, NULL, &r), MLC_OK) || !CHECK_OK(ctx))
        return false;
    if (!r.ok)
        printf("  %s: %s: input %d element %" PRId64 ": backward %.12g, differences %.12g\n",
               c->row->name, c->line, (int)r.input, r.index, r.analytic, r.numeric);
    return r.ok;
}

static bool has_differences(const cursor *c)
{
    return c->a.diff && has(c->row, 'g') && fits(c);
}

TEST(goldens, gradients_match_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        while (next_case(&c)) {
            if (!has_differences(&c))
                continue;
            mlc_scope_begin(ctx);
            if (CHECK(check_differences(&c, ctx)))
                op_seen("gradient", c.row->name, "");
            else
                printf("  %s: %s\n", c.row->name, c.line);
            mlc_scope_end(ctx);
            mlc_error_clear(ctx);
        }
    }
}

/* ---- axes of size 1 ----------------------------------------------------------------------- */

/* Calls whose inputs have axes of size 1, in front, between and last; what loops over elements
 * alone is not here. */
static const char *const ONES[][2] = {
    {"mlc_linear", "<f32[4,1,3] <f32[2,3] <f32[2]"},
    {"mlc_linear", "<f32[4,1,5,1] <f32[2,1] <f32[2]"},
    {"mlc_linear", "<f32[1,4,3] <f32[1,3] <f32[1]"},
    {"mlc_linear", "<f32[1,1,1] <f32[1,1] <f32[1]"},
    {"mlc_linear_ex", "<f32[2,1,3,1,5] <f32[4,5] <f32[4] #1"},
    {"mlc_matmul", "<f32[4,1,3] <f32[3,2]"},
    {"mlc_matmul", "<f32[4,3,1] <f32[1,2]"},
    {"mlc_matmul", "<f32[2,1,1,3] <f32[5,3,1]"},
    {"mlc_matmul", "<f32[1,4,3] <f32[2,3,1]"},
    {"mlc_matmul", "<f32[1] <f32[1,1]"},
    {"mlc_einsum", "<f32[4,1,3] <f32[3,1,4] \"abc,cbd->ad\""},
    {"mlc_einsum", "<f32[2,1,4,3] <f32[2,1,5,3] \"bhtd,bhsd->bhts\""},
    {"mlc_outer", "<f32[1] <f32[3]"},
    {"mlc_dot", "<f32[1] <f32[1]"},
    {"mlc_softmax", "<f32[4,1,3] #2"},
    {"mlc_softmax", "<f32[4,1,3] #0"},
    {"mlc_softmax", "<f32[4,1,3] #1"},
    {"mlc_log_softmax", "<f32[2,1,3,1] #2"},
    {"mlc_layer_norm", "<f32[4,1,3] <f32[3] <f32[3] =1e-5"},
    {"mlc_layer_norm", "<f32[4,5,1] <f32[1] <f32[1] =1e-5"},
    {"mlc_rms_norm", "<f32[1,4,1,3] <f32[3] =1e-5"},
    {"mlc_sum", "<f32[4,1,3] #1 #0"},
    {"mlc_sum", "<f32[4,1,3] #0 #1"},
    {"mlc_mean", "<f32[1,4,1] #0,2 #0"},
    {"mlc_max", "<f32[4,1,3] #2 #0"},
    {"mlc_var", "<f32[4,1,3] #0 #1 =1"},
    {"mlc_norm", "<f32[4,1,3] #0,1 #0 =2"},
    {"mlc_logsumexp", "<f32[4,1,3] #0 #0"},
    {"mlc_argmax", "<f32[4,1,3] #2"},
    {"mlc_cumsum", "<f32[4,1,3] #0"},
    {"mlc_cumprod", "<f32[1,4,3] #1"},
    {"mlc_sort", "<f32[4,1,3] #2 #0"},
    {"mlc_topk", "<f32[4,1,3] #2 #0 #1"},
    {"mlc_glu", "<f32[4,1,6] #2"},
    {"mlc_prelu", "<f32[2,1,3] <f32[1]"},
    {"mlc_attention", "<f32[1,2,1,4] <f32[1,2,5,4] <f32[1,2,5,4]"},
    {"mlc_attention", "<f32[2,1,5,4] <f32[2,1,1,4] <f32[2,1,1,4]"},
    {"mlc_attention", "<f32[2,1,3,1] <f32[2,1,5,1] <f32[2,1,5,1]"},
    {"mlc_attention_ex", "<f32[3,1,1,4] <f32[3,1,6,4] <f32[3,1,6,4] <f32[3,1,1,6] #0 #0"},
    {"mlc_conv", "<f32[1,3,5,1] <f32[2,3,3,1] <f32[2] #1,1 #1,0 #1,1 #1"},
    {"mlc_conv", "<f32[2,1,5,4] <f32[3,1,3,3] <f32[3] #1,1 #1,1 #1,1 #1"},
    {"mlc_conv", "<f32[2,3,1,1] <f32[4,3,1,1] <f32[4] #1,1 #0,0 #1,1 #1"},
    {"mlc_conv", "<f32[2,4,1,6] <f32[4,1,1,3] <f32[4] #1,1 #0,1 #1,1 #4"},
    {"mlc_conv", "<f32[1,1,6] <f32[1,1,3] <f32[1] #1 #0 #1 #1"},
    {"mlc_conv_transpose", "<f32[2,1,1,4] <f32[1,3,1,2] <f32[3] #1,2 #0,0 #1,1 #1,0,0"},
    {"mlc_max_pool", "<f32[1,3,1,6] #1,2 #1,2 #0,0 #1,1,0"},
    {"mlc_avg_pool", "<f32[2,1,6,1] #2,1 #2,1 #0,0 #0,0"},
    {"mlc_adaptive_avg_pool", "<f32[2,3,1,6] #1,2"},
    {"mlc_adaptive_max_pool", "<f32[1,1,6] #3"},
    {"mlc_batch_norm", "<f32[4,3,1] <f32[3] <f32[3] =1e-5"},
    {"mlc_batch_norm", "<f32[4,1,1,3] <f32[1] <f32[1] =1e-5"},
    {"mlc_group_norm", "<f32[2,4,1,1] <f32[4] <f32[4] =1e-5 =2"},
    {"mlc_group_norm", "<f32[1,4,1,3] <f32[4] <f32[4] =1e-5 =4"},
    {"mlc_instance_norm", "<f32[2,1,1,5] <f32[1] <f32[1] =1e-5"},
    {"mlc_interpolate", "<f32[2,1,1,3] #2,6 #1"},
    {"mlc_pixel_shuffle", "<f32[1,4,1,3] #2"},
    {"mlc_channels_last", "<f32[2,3,1,4]"},
    {"mlc_concat", "<f32[4,1,3] <f32[4,1,3] #1"},
    {"mlc_stack", "<f32[4,1] <f32[4,1] #1"},
    {"mlc_repeat", "<f32[4,1,3] #2 #1"},
    {"mlc_tile", "<f32[4,1,3] #1,2,1"},
    {"mlc_flip", "<f32[4,1,3] #0,1"},
    {"mlc_roll", "<f32[4,1,3] #1 #0"},
    {"mlc_pad", "<f32[1,1,3] #0,0,1 #0,1,1 #0 =0"},
    {"mlc_tril", "<f32[1,4,1] #0"},
    {"mlc_gather", "<f32[4,1,3] #0 <i64[2,1,3]"},
    {"mlc_scatter_add", "<f32[4,1,3] #0 <i64[2,1,3] <f32[2,1,3]"},
    {"mlc_index_select", "<f32[4,1,3] #1 <i64[1]"},
    {"mlc_take", "<f32[4,1,3] <i64[5,1]"},
    {"mlc_embedding", "<i64[4,1] <f32[3,1]"},
    {"mlc_embedding", "<i64[2,1,3] <f32[3,4]"},
    {"mlc_embedding_bag", "<i64[4,1] <f32[3,1]"},
    {"mlc_rotary", "<f32[2,1,1,4] #4,0,3 =10000 =1"},
    {"mlc_rotary", "<f32[1,2,3,4] #4,0,0 =10000 =1"},
    {"mlc_one_hot", "<i64[4,1] #3"},
    {"mlc_masked_select", "<f32[4,1,3] <bool[4,1,1]"},
    {"mlc_nonzero", "<f32[4,1,3]"},
    {"mlc_reshape", "<f32[4,1,3] #2,6"},
    {"mlc_unfold", "<f32[1,6] #1 #3 #2"},
    {"mlc_diagonal", "<f32[4,1,1] #0"},
    {"mlc_slice", "<f32[4,1,3] #1 #0 #1 #1"},
    {"mlc_select", "<f32[4,1,3] #1 #0"},
    {"mlc_where", "<bool[4,1,3] <f32[4,1,1] <f32[1,1,3]"},
    {"mlc_add", "<f32[4,1,3] <f32[1,5,1]"},
    {"mlc_mul_", "<f32[4,1,3] <f32[1,1]"},
    {"mlc_cast", "<f32[4,1,3] #1"},
    {"mlc_copy", "<f32[4,1,3]"},
};

/* The result's numbers, and behind them those of the gradients of all inputs. */
static int of_ones(mlc_ctx *ctx, const op_row *row, const char *text, bool loose, double *to)
{
    op_args a;
    int     n = 0;
    op_parse(&a, text);
    a.ctx = ctx;
    for (int i = 0; i < a.n_in; i++) {
        const op_spec *s = &a.in_spec[i];
        mlc_tensor    *t = test_rand(ctx, MLC_F64, s->shape, 5u + (unsigned)i, 0.1, 2.9);
        t = s->dtype == MLC_BOOL ? mlc_lt_scalar(t, 1.5) : mlc_cast(t, s->dtype);
        if (row->call == call_index_select && i == 1)
            t = mlc_zeros(ctx, MLC_I64, s->shape);
        a.leaf[i] = loose ? test_unused_strides(t) : t;
        if (s->dtype == MLC_F32 && !op_in_place(row))
            mlc_set_requires_grad(a.leaf[i], true);
        a.in[i] = a.leaf[i];
    }
    mlc_tensor *out = row->call(&a);
    if (!CHECK(out != NULL) || !test_read(out, to))
        return -1;
    n = (int)mlc_numel(out);
    if (!mlc_requires_grad(out))
        return n;
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_square(out))), MLC_OK);
    for (int i = 0; i < a.n_in; i++)
        if (mlc_grad(a.leaf[i]) != NULL && test_read(mlc_grad(a.leaf[i]), to + n))
            n += (int)mlc_numel(a.leaf[i]);
    return n;
}

TEST(goldens, an_axis_of_size_1_may_have_any_stride)
{
    double got[2][512];
    FOR_EACH_ISA(ctx) {
        for (size_t i = 0; i < sizeof ONES / sizeof *ONES; i++) {
            const op_row *row = op_find(ONES[i][0]);
            int           n[2] = {0};
            if (!CHECK(row != NULL))
                return;
            for (int loose = 0; loose < 2; loose++) {
                mlc_scope_begin(ctx);
                n[loose] = of_ones(ctx, row, ONES[i][1], loose != 0, got[loose]);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
            if (!CHECK(n[0] > 0 && n[0] == n[1] &&
                       memcmp(got[0], got[1], sizeof **got * (size_t)n[0]) == 0))
                printf("  %s: %s: %s\n", row->name, ONES[i][1], mlc_error(ctx));
            mlc_error_clear(ctx);
        }
    }
}

/* ---- what every operation refuses --------------------------------------------------------- */

/* On to the first case of at least n inputs, all with elements; false if there is none. */
static bool usual_case(cursor *c, int n)
{
    while (next_case(c)) {
        int64_t least = c->a.n_in >= n && fits(c) && ((c->row->dtypes >> c->a.dtype) & 1) != 0;
        for (int i = 0; i < c->a.n_in; i++)
            least *= spec_count(&c->a.in_spec[i]);
        if (least > 0)
            return true;
    }
    return false;
}

/* Is input k of the data's dtype, and the only one? Then it may be of any dtype. */
static bool alone(const op_args *a, int k)
{
    int of_data = 0;
    for (int i = 0; i < a->n_in; i++)
        of_data += a->in_spec[i].dtype == a->dtype;
    return a->in_spec[k].dtype == a->dtype && of_data == 1;
}

/* Makes input i one of another dtype, or takes it away. */
static void replace_input(cursor *c, mlc_ctx *ctx, int i, mlc_dtype dtype)
{
    op_args *a = &c->a;
    mlc_dims shape = mlc_dims_of(a->in[i]->ndim, a->in[i]->shape);
    a->in[i] = dtype == MLC_DTYPE_COUNT ? NULL : mlc_zeros(ctx, dtype, shape);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The call fails with that status and a text that begins with the operation and has the parts. */
static bool refuses(cursor *c, mlc_ctx *ctx, mlc_status status, const char *part)
{
    char name[40];
    size_t n = strlen(c->row->name);                               /* one operation, two names */
    bool ex = n > 3 && strcmp(c->row->name + n - 3, "_ex") == 0;
    snprintf(name, sizeof name, "%.*s:", (int)(n - (ex ? 7 : 4)), c->row->name + 4);
    if (of_all(c->row))                                            /* another name of it       */
        snprintf(name, sizeof name, "%.*s:", (int)strlen(c->row->name) - 8, c->row->name + 4);
    bool ok = CHECK(c->row->call(&c->a) == NULL) && CHECK_EQ(mlc_ctx_status(ctx), status);
    if (has(c->row, 'v') && status == MLC_ERR_STATE)
        ok = ok && CHECK(begins(mlc_error(ctx), "reshape:") || begins(mlc_error(ctx), "permute:") ||
                         begins(mlc_error(ctx), "select:"));
    else
        ok = ok && CHECK(begins(mlc_error(ctx), name));
    ok = ok && CHECK_HAS(mlc_error(ctx), part);
    if (ok)
        op_seen("refused", c->row->name, mlc_status_name(status));
    else
        printf("  %s: %s\n    \"%s\"\n", c->row->name, c->line, mlc_error(ctx));
    mlc_error_clear(ctx);
    return ok;
}

TEST(goldens, other_dtypes_are_refused_and_the_message_says_what_to_write)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
            cursor c = cursor_of(&OPS[i]);
            if (((OPS[i].dtypes >> d) & 1) != 0 || !usual_case(&c, 1))
                continue;
            mlc_scope_begin(ctx);
            make_leaves(&c, ctx);
            look_at_inputs(&c);
            for (int k = 0; k < c.a.n_in; k++)
                if (c.a.in_spec[k].dtype == c.a.dtype)
                    replace_input(&c, ctx, k, (mlc_dtype)d);
            if (refuses(&c, ctx, MLC_ERR_DTYPE, mlc_dtype_name((mlc_dtype)d)))
                CHECK(c.row->dtypes != 0);
            mlc_scope_end(ctx);
        }
    }
}

TEST(goldens, an_input_of_another_dtype_than_its_neighbours_is_refused)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        if (!usual_case(&c, 2))
            continue;
        for (int k = 0; k < c.a.n_in; k++) {
            if (alone(&c.a, k))
                continue;
            mlc_dtype was = c.a.in_spec[k].dtype, to = was == MLC_F64 ? MLC_F32 : MLC_F64;
            mlc_scope_begin(ctx);
            make_leaves(&c, ctx);
            look_at_inputs(&c);
            replace_input(&c, ctx, k, to);
            CHECK(refuses(&c, ctx, MLC_ERR_DTYPE, mlc_dtype_name(to)));
            mlc_scope_end(ctx);
        }
    }
}

TEST(goldens, null_beside_a_tensor_is_an_error)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        if (!usual_case(&c, 2))
            continue;
        for (int k = 0; k < c.a.n_in; k++) {
            if (k == 2 && (strncmp(c.row->name, "mlc_linear", 10) == 0 ||
                           strncmp(c.row->name, "mlc_conv", 8) == 0))
                continue;                                          /* a bias may be NULL       */
            if (k + strncmp(c.row->name, "mlc_embedding_bag_ex", 20) == 2 ||
                k + strncmp(c.row->name, "mlc_rotary", 10) == 1)
                continue;                                          /* weights, positions       */
            if (k > 0 && strstr(c.row->name, "_norm"))
                continue;                                          /* and a weight             */
            mlc_scope_begin(ctx);
            make_leaves(&c, ctx);
            look_at_inputs(&c);
            replace_input(&c, ctx, k, MLC_DTYPE_COUNT);
            CHECK(refuses(&c, ctx, MLC_ERR_ARG, "NULL"));
            mlc_scope_end(ctx);
        }
    }
}

/* What came before has failed and said so. */
TEST(goldens, null_alone_gives_null_and_no_second_error)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        if (c.row->call == call_from || c.row->call == call_wrap || !usual_case(&c, 1))
            continue;
        c.a.ctx = ctx;                                   /* all inputs are NULL                */
        if (!CHECK(c.row->call(&c.a) == NULL) || !CHECK_OK(ctx))
            printf("  %s: %s\n", c.row->name, c.line);
    }
}

/* Has this operation an input whose elements it must see? Others may give back what they got. */
static bool sees(const op_row *row)
{
    return row->call != call_from && row->call != call_wrap && row->call != call_contiguous &&
           row->call != call_cast;
}

TEST(goldens, a_tensor_without_memory_yet_is_refused)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        if (!sees(&OPS[i]) || !usual_case(&c, 1))
            continue;
        mlc_scope_begin(ctx);
        make_leaves(&c, ctx);
        look_at_inputs(&c);
        mlc_module    *m = mlc_nn_sequential(ctx);
        mlc_param_desc d = {mlc_dims_of(c.a.in[0]->ndim, c.a.in[0]->shape), MLC_INIT_ZEROS, 0, 0,
                            c.a.in[0]->dtype, true, true};
        c.a.in[0] = mlc_module_declare(m, "x", &d);
        CHECK(refuses(&c, ctx, MLC_ERR_STATE, "a parameter is not built yet"));
        mlc_scope_end(ctx);
        mlc_module_free(m);
    }
}

TEST(goldens, a_scalar_is_refused_where_there_must_be_an_axis)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < OP_COUNT; i++) {
        cursor c = cursor_of(&OPS[i]);
        if (has(&OPS[i], '0') || OPS[i].call == call_argmax || !usual_case(&c, 1))
            continue;
        mlc_scope_begin(ctx);
        make_leaves(&c, ctx);
        look_at_inputs(&c);
        for (int k = 0; k < c.a.n_in; k++)
            c.a.in[k] = mlc_zeros(ctx, c.a.in_spec[k].dtype, mlc_dims0());
        CHECK(refuses(&c, ctx, MLC_ERR_SHAPE, "[]"));
        mlc_scope_end(ctx);
    }
}
