/* plans.h -- what tests of plans and of their files share: networks, and calls of all operations */
#ifndef PLANS_H
#define PLANS_H

#include "nets.h"
#include "resnet20.h"

#if defined(__GNUC__)
#  define PLANS_FN static __attribute__((unused))
#else
#  define PLANS_FN static
#endif

#define PLAIN 0u                       /* without passes: the bits of the forward               */

PLANS_FN mlc_plan_desc with(uint32_t passes)
{
    mlc_plan_desc d = mlc_plan_desc_make();
    d.passes = passes;
    return d;
}

/* Largest difference of two tensors, over the largest of `want`; -1 if it has other shapes.     */
PLANS_FN double apart(mlc_tensor *got, mlc_tensor *want)
{
    const int64_t n = mlc_numel(want);
    double       *a = malloc((size_t)(2 * n + 2) * sizeof *a), *b = a + n + 1, most = 0, off = 0;
    if (mlc_numel(got) != n || !test_read(got, a) || !test_read(want, b)) off = -1;
    for (int64_t i = 0; i < n && off >= 0; i++) {
        most = fmax(most, fabs(b[i]));
        off = fmax(off, fabs(a[i] - b[i]));
        if (isnan(a[i]) != isnan(b[i])) off = INF;
    }
    free(a);
    return off <= 0 ? off : off / fmax(most, 1e-30);
}

/* ---- networks */

static mlc_module *small_mlp(mlc_ctx *ctx) { return mlp(ctx, 12, 20, 7); }

static mlc_module *cnn(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 8));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool2d(ctx, 2));
    mlc_module_add(net, mlc_nn_conv2d(ctx, 8, 6, 3, 2, 1));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 6 * 4 * 4, 10));
    return net;
}

static mlc_module *lstm(mlc_ctx *ctx) { return mlc_nn_lstm(ctx, 5, 9); }
static mlc_module *gru(mlc_ctx *ctx) { return mlc_nn_gru(ctx, 5, 9); }

static mlc_module *encoder(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(16, 4);
    d.hidden = 32;
    return mlc_nn_transformer_encoder(ctx, &d, 2);
}

static mlc_module *gpt(mlc_ctx *ctx)
{
    const mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(30, 16, 2, 16, 2);
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *llama(mlc_ctx *ctx)
{
    const mlc_nn_gpt_desc d = mlc_nn_gpt_desc_llama(30, 16, 2, 16, 2);
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *alibi(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(30, 16, 1, 16, 2);
    d.positions = MLC_POSITIONS_ALIBI;
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *sketched(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_sklinear(ctx, 32, 24, 1, 8));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 24, 3));
    return net;
}

static mlc_module *with_features(mlc_module *net)
{
    mlc_features_desc f = mlc_features_desc_make();
    f.n = 8;
    f.has_seed = true;
    CHECK_EQ(mlc_features_install(net, &f, NULL), MLC_OK);
    return net;
}

/* Attention by random features, of all keys and of those before. */
static mlc_module *features_encoder(mlc_ctx *ctx) { return with_features(encoder(ctx)); }
static mlc_module *features_gpt(mlc_ctx *ctx) { return with_features(gpt(ctx)); }

PLANS_FN const struct network {
    const char  *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    int32_t      n;                    /* axes of a sample, and their sizes                     */
    int64_t      in[3];
    int64_t      vocab;                /* 0: floats                                             */
} NETWORKS[] = {
    {"mlp", small_mlp, 1, {12}, 0},
    {"cnn", cnn, 3, {3, 16, 16}, 0},
    {"resnet20", resnet20, 3, {3, 32, 32}, 0},
    {"lstm", lstm, 2, {6, 5}, 0},
    {"gru", gru, 2, {6, 5}, 0},
    {"encoder", encoder, 2, {7, 16}, 0},
    {"gpt", gpt, 1, {9}, 30},
    {"llama", llama, 1, {9}, 30},
    {"alibi", alibi, 1, {9}, 30},
    {"sketched", sketched, 1, {32}, 0},
    {"features", features_encoder, 2, {7, 16}, 0},
    {"causal features", features_gpt, 1, {9}, 30},
};

PLANS_FN mlc_tensor *sample(mlc_ctx *ctx, const struct network *k, mlc_dtype dtype, int64_t batch,
                          uint64_t seed)
{
    int64_t  v[4] = {batch, k->in[0], k->in[1], k->in[2]};
    mlc_dims d = mlc_dims_of(k->n + 1, v);
    return k->vocab ? test_tokens(ctx, d, k->vocab, (int64_t)seed)
                    : test_rand(ctx, dtype, d, seed, -1, 1);
}

/* ---- calls of every operation that a file has a form of */

#define UNARIES(X) \
    X(neg) X(exp) X(log) X(sqrt) X(tanh) X(sigmoid) X(relu) X(gelu) X(silu) X(gelu_tanh) \
    X(softplus) X(log_sigmoid) X(selu) X(mish) X(softsign) X(hardswish) X(hardsigmoid) X(abs) \
    X(sign) X(square) X(reciprocal) X(rsqrt) X(expm1) X(exp2) X(log1p) X(log2) X(log10) X(sin) \
    X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(erf) X(erfc) X(floor) X(ceil) \
    X(round) X(trunc)
#define SCALARS(X) \
    X(leaky_relu) X(elu) X(celu) X(add_scalar) X(sub_scalar) X(mul_scalar) X(div_scalar) \
    X(pow_scalar) X(rsub_scalar) X(floor_divide_scalar) X(remainder_scalar)
#define BINARIES(X) \
    X(add) X(sub) X(mul) X(div) X(pow) X(minimum) X(maximum) X(fmod) X(remainder) X(floor_divide) \
    X(atan2) X(hypot)
#define WHOLES(X) X(add) X(sub) X(mul) X(minimum) X(maximum) X(floor_divide) X(remainder)
#define WHOLE_SCALARS(X) \
    X(add_scalar) X(sub_scalar) X(mul_scalar) X(rsub_scalar) X(floor_divide_scalar) \
    X(remainder_scalar)
#define COMPARISONS(X) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)
#define REDUCTIONS(X) X(mean) X(sum) X(prod) X(max) X(min) X(any) X(all) X(logsumexp)

/* Inputs of a group: floats [2,3,4] in (0,1) twice, indices [2,3,4] in 0..1, an image [2,4,6,6]. */
typedef struct operands { mlc_ctx *ctx; mlc_tensor *x, *y, *i, *image, **out; } operands;
#define PUT(call)  (*o->out++ = (call))

static void unaries(operands *o)
{
#define X(name) PUT(mlc_##name(o->x));
    UNARIES(X)
#undef X
}

static void unaries_in_place(operands *o)
{
#define X(name) PUT(mlc_##name##_(mlc_copy(o->x)));
    UNARIES(X)
#undef X
}

static void scalars(operands *o)
{
#define X(name) PUT(mlc_##name(o->x, 0.375)); PUT(mlc_##name##_(mlc_copy(o->x), 0.375));
    SCALARS(X)
#undef X
    PUT(mlc_leaky_relu(mlc_neg(o->x), -0.5));
    PUT(mlc_leaky_relu_(mlc_neg(o->x), -0.5));
    PUT(mlc_elu(mlc_neg(o->x), -0.5));
    PUT(mlc_elu_(mlc_neg(o->x), -0.5));
    PUT(mlc_clamp(o->x, 0.25, INF));
    PUT(mlc_clamp_(mlc_copy(o->x), -INF, 0.75));
}

static void binaries(operands *o)
{
#define X(name) PUT(mlc_##name(o->x, o->y)); PUT(mlc_##name##_(mlc_copy(o->x), o->y));
    BINARIES(X)
#undef X
    PUT(mlc_prelu(mlc_sub_scalar(o->x, 0.5), mlc_select(mlc_select(o->y, 0, 0), 1, 1)));
    PUT(mlc_glu(o->x, 2));
    PUT(mlc_add(o->x, mlc_slice(o->y, 1, 1, 2, 1)));
}

static void wholes(operands *o)
{
    mlc_tensor *k = mlc_add_scalar(o->i, 3);
#define X(name) PUT(mlc_##name(k, k)); PUT(mlc_##name##_(mlc_copy(k), k));
    WHOLES(X)
#undef X
#define X(name) PUT(mlc_##name(k, 2)); PUT(mlc_##name##_(mlc_copy(k), 2));
    WHOLE_SCALARS(X)
#undef X
    PUT(mlc_neg(k));
    PUT(mlc_neg_(mlc_copy(k)));
    PUT(mlc_abs(mlc_neg(k)));
    PUT(mlc_abs_(mlc_neg(k)));
}

static void comparisons(operands *o)
{
    mlc_tensor *a = mlc_lt(o->x, o->y), *b = mlc_gt_scalar(o->x, 0.25);
#define X(name) PUT(mlc_##name(o->x, o->y)); PUT(mlc_##name##_scalar(o->x, 0.5));
    COMPARISONS(X)
#undef X
    PUT(mlc_logical_and(a, b));
    PUT(mlc_logical_or(a, b));
    PUT(mlc_logical_xor(a, b));
    PUT(mlc_logical_not(a));
    PUT(mlc_isnan(o->x));
    PUT(mlc_isinf(o->x));
    PUT(mlc_isfinite(o->x));
    PUT(mlc_where(a, o->x, o->y));
    PUT(mlc_masked_fill(o->x, a, -INF));
    PUT(mlc_masked_fill_(mlc_copy(o->x), a, 2));
    PUT(mlc_fill_(mlc_copy(o->x), 3));
    PUT(mlc_zero_(mlc_copy(o->x)));
    PUT(mlc_copy_(mlc_copy(o->x), o->y));
}

static void rows(operands *o)
{
    mlc_tensor *index, *x = o->x, *flat = mlc_reshape(x, mlc_dims1(24));
#define X(name) PUT(mlc_##name(x, mlc_dims1(1), true)); PUT(mlc_##name(x, mlc_dims0(), false));
    REDUCTIONS(X)
#undef X
    PUT(mlc_norm(x, 3, mlc_dims1(0), false));
    PUT(mlc_var(x, mlc_dims1(2), 1, false));
    PUT(mlc_std(x, mlc_dims1(2), 0, true));
    PUT(mlc_argmax(x, 1, false));
    PUT(mlc_argmin(flat, 0, true));
    PUT(mlc_cumsum(x, 1));
    PUT(mlc_cumprod(x, -1));
    PUT(mlc_softmax(x, 1));
    PUT(mlc_log_softmax(x, -1));
    PUT(mlc_layer_norm(x, mlc_select(mlc_select(o->y, 0, 0), 0, 0), NULL, 1e-5));
    PUT(mlc_layer_norm(x, NULL, mlc_select(mlc_select(o->y, 0, 0), 0, 1), 1e-3));
    PUT(mlc_rms_norm(x, NULL, 1e-6));
    PUT(mlc_sort(x, 1, true, &index));
    PUT(index);
    PUT(mlc_sort(x, 1, false, NULL));
    PUT(mlc_argsort(x, 2, false));
    PUT(mlc_topk(x, 2, -1, true, &index));
    PUT(index);
}

static void moves(operands *o)
{
    mlc_tensor *x = o->x, *parts[11];
    for (int k = 0; k < COUNT(parts); k++) parts[k] = k % 2 ? o->y : x;
    PUT(mlc_concat(parts, COUNT(parts), 1));
    PUT(mlc_stack(parts, 3, 0));
    PUT(mlc_copy(mlc_transpose(x, 0, 2)));
    PUT(mlc_cast(x, MLC_F64));
    PUT(mlc_cast(o->i, MLC_BOOL));
    PUT(mlc_channels_last(o->image));
    PUT(mlc_flip(x, mlc_dims2(0, 2)));
    PUT(mlc_pad(x, mlc_dims3(1, 0, 2), mlc_dims3(0, 1, 1), MLC_PAD_CONSTANT, 0.5));
    PUT(mlc_pad(x, mlc_dims3(0, 1, 2), mlc_dims3(0, 1, 1), MLC_PAD_REFLECT, 0));
    PUT(mlc_diag(mlc_select(mlc_select(x, 0, 1), 0, 1), -2));
    PUT(mlc_diag(mlc_select(mlc_select(x, 0, 1), 0, 1), 1));
    PUT(mlc_tril(x, 1));
    PUT(mlc_triu(x, -1));
    PUT(mlc_tile(x, mlc_dims2(2, 3)));
    PUT(mlc_roll(x, 1, 2));
    PUT(mlc_gather(x, 1, o->i));
    PUT(mlc_index_select(x, 1, mlc_select(mlc_select(o->i, 0, 0), 0, 0)));
    PUT(mlc_take(x, o->i));
    PUT(mlc_scatter(x, 0, o->i, o->y));
    PUT(mlc_scatter_add(x, 1, o->i, o->y));
    PUT(mlc_scatter_(mlc_copy(x), 0, o->i, o->y));
    PUT(mlc_scatter_add_(mlc_copy(x), 1, o->i, o->y));
    PUT(mlc_embedding(o->i, mlc_select(x, 0, 1)));
    PUT(mlc_full(o->ctx, MLC_F32, mlc_dims2(2, 2), 7));
    PUT(mlc_arange(o->ctx, MLC_I64, 3, 9, 2));
    PUT(mlc_add(x, mlc_cast(mlc_from(o->ctx, MLC_F32, mlc_dims1(4), (const float[]){1, 2, 3, 4}),
                            x->dtype)));
    PUT(mlc_slice(x, 1, 1, 1, 1));
    PUT(mlc_expand(mlc_slice(x, 1, 0, 1, 1), mlc_dims3(2, 5, 4)));
    mlc_tensor *part = mlc_copy(x), *view = mlc_slice(part, 2, 1, 3, 1);
    mlc_add_(view, mlc_slice(o->y, 2, 0, 2, 1));
    PUT(part);
    PUT(mlc_mul(view, view));
}

static void products(operands *o)
{
    mlc_tensor *x = o->x, *w = mlc_select(o->y, 0, 0), *b = mlc_select(w, 1, 0);
    const mlc_epilogue e = {MLC_ACT_GELU, 0, mlc_slice(x, 2, 0, 3, 1)};
    PUT(mlc_matmul(x, mlc_transpose(o->y, 1, 2)));
    PUT(mlc_linear(x, w, NULL));
    PUT(mlc_linear_ex(x, w, b, &e));
#ifndef MLC_NO_ATTENTION
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_tensor *q = mlc_reshape(mlc_slice(o->image, 1, 0, 4, 1), mlc_dims4(2, 4, 6, 6));
    d.causal = true;
    d.window = 3;
    PUT(mlc_attention_ex(q, q, q, &d));
    d = mlc_attention_desc_make();
    d.mask = mlc_lt_scalar(mlc_select(mlc_select(q, 0, 0), 0, 0), 0.75);
    d.alibi = mlc_cast(mlc_select(mlc_select(mlc_select(q, 0, 0), 1, 1), 1, 1), MLC_F32);
    PUT(mlc_attention_ex(q, q, q, &d));
    PUT(mlc_rotary(q, NULL, NULL));
#endif
#ifndef MLC_NO_RECURRENT
    mlc_rnn_desc r = mlc_rnn_desc_make(MLC_RNN_LSTM);
    mlc_tensor  *hc[3], *u = mlc_reshape(mlc_slice(o->image, 2, 0, 4, 1), mlc_dims2(8, 24));
    r.reverse = true;
    r.bias = mlc_select(u, 1, 0);
    CHECK_EQ(mlc_rnn(mlc_concat((mlc_tensor *[]){x, o->y}, 2, 2), mlc_slice(u, 1, 0, 2, 1), &r, hc),
             MLC_OK);
    for (int k = 0; k < 3; k++) PUT(hc[k]);
    r = mlc_rnn_desc_make(MLC_RNN_TANH);
    r.h = mlc_select(o->y, 1, 0);
    CHECK_EQ(mlc_rnn(x, mlc_slice(mlc_slice(u, 0, 0, 4, 1), 1, 0, 4, 1), &r, hc), MLC_OK);
    PUT(hc[0]);
#endif
}

#ifndef MLC_NO_VISION
static void images(operands *o)
{
    mlc_tensor   *x = o->image, *w = mlc_slice(mlc_slice(x, 2, 0, 3, 1), 3, 0, 2, 1);
    mlc_tensor   *b = mlc_copy(mlc_select(mlc_select(mlc_select(x, 0, 0), 1, 0), 1, 0));
    mlc_conv_desc d = mlc_conv_desc_make();
    mlc_pool_desc p = mlc_pool_desc_make(2);
    PUT(mlc_conv(x, w, NULL, NULL));
    d.stride = mlc_dims2(2, 1);
    d.padding = mlc_dims2(1, 0);
    d.act = MLC_ACT_SILU;
    PUT(mlc_conv(x, w, mlc_slice(b, 0, 0, 2, 1), &d));
    d = mlc_conv_desc_make();
    d.same = true;
    PUT(mlc_conv(x, w, NULL, &d));
    d = mlc_conv_desc_make();
    d.stride = mlc_dims2(2, 1);
    d.output_padding = mlc_dims2(1, 0);
    PUT(mlc_conv_transpose(mlc_slice(x, 1, 0, 2, 1), w, NULL, &d));
    PUT(mlc_max_pool(x, &p));
    p.padding = mlc_dims_all(1);
    p.exclude_padding = p.ceil = true;
    PUT(mlc_avg_pool(x, &p));
    PUT(mlc_adaptive_max_pool(x, mlc_dims2(2, 3)));
    PUT(mlc_adaptive_avg_pool(x, mlc_dims2(4, 1)));
    PUT(mlc_interpolate(x, mlc_dims2(3, 9), MLC_INTERPOLATE_LINEAR));
    mlc_tensor *at = mlc_cast(b, x->dtype == MLC_F64 ? MLC_F64 : MLC_F32);
    PUT(mlc_batch_norm(x, at, at, NULL, at, false, 0.1, 1e-5));
    PUT(mlc_batch_norm(x, NULL, NULL, at, NULL, true, 0.1, 1e-5));
    PUT(mlc_group_norm(x, 2, b, NULL, 1e-5));
    PUT(mlc_instance_norm(x, NULL, b, 1e-5));
    PUT(mlc_pixel_shuffle(x, 2));
}
#endif

#ifndef MLC_NO_SKETCH
static void sketches(operands *o)
{
    mlc_sketch  s = mlc_sketch_make(MLC_SKETCH_SIGNS, 3, 4, 9), t = s;
    mlc_tensor *w = mlc_select(o->x, 0, 0);
    PUT(mlc_sketch_apply(o->x, &s, -1));
    PUT(mlc_sketch_apply_t(o->x, &s, 1));
    s.seed = UINT64_MAX - 1;
    PUT(mlc_sketch_apply(o->y, &s, -1));
    s.stored = mlc_sketch_bits(o->ctx, &s);
    PUT(mlc_sketch_apply(o->x, &s, -1));
    t.seed = 10;
    s = mlc_sketch_make(MLC_SKETCH_SIGNS, 3, 4, 11);
    PUT(mlc_sklinear(o->y, w, w, mlc_select(w, 0, 1), &s, &t, 1, NULL));
#ifndef MLC_NO_ATTENTION
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_tensor *q = o->image, *k = mlc_slice(q, 1, 1, 3, 1), *v = mlc_slice(k, 3, 1, 6, 1);
    w = mlc_cast(mlc_reshape(mlc_slice(q, 1, 0, 1, 1), mlc_dims2(12, 6)),
                 q->dtype == MLC_F64 ? MLC_F64 : MLC_F32);
    d.causal = true;
    PUT(mlc_features_attention(q, k, v, w, MLC_FEATURES_SOFTMAX, &d));
    PUT(mlc_features_attention(q, k, v, w, MLC_FEATURES_RELU, NULL));
    d.key_lengths = mlc_add_scalar(mlc_select(mlc_select(o->i, 1, 0), 1, 0), 2);
    d.mask = mlc_reshape(mlc_ge_scalar(mlc_select(mlc_select(q, 1, 0), 1, 0), 0.2),
                         mlc_dims4(2, 1, 1, 6));
    PUT(mlc_features_attention(q, k, v, w, MLC_FEATURES_RELU, &d));
    PUT(mlc_features_attention(q, k, v, w, MLC_FEATURES_SOFTMAX, &d));
#endif
}
#endif

PLANS_FN const struct group { void (*make)(operands *o); } GROUPS[] = {
    {unaries}, {unaries_in_place}, {scalars}, {binaries}, {wholes}, {comparisons}, {rows}, {moves},
    {products},
#ifndef MLC_NO_VISION
    {images},
#endif
#ifndef MLC_NO_SKETCH
    {sketches},
#endif
};

#if !defined(MLC_NO_SKETCH) && !defined(MLC_NO_ATTENTION)
/* Causal attention by features of inputs q, k and v; user: an mlc_features_kernel. */
PLANS_FN mlc_status by_features(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    float              w[12 * 6];
    (void)n_in;
    (void)n_out;
    for (int i = 0; i < COUNT(w); i++) w[i] = sinf((float)i);
    d.causal = true;
    mlc_tensor *m = mlc_from(ctx, MLC_F32, mlc_dims2(12, 6), w);
    out[0] = mlc_features_attention(in[0], in[1], in[2], m, *(const mlc_features_kernel *)user, &d);
    return mlc_ctx_status(ctx);
}

/* Its inputs: t rows of 4 heads, which share 2 of keys. */
PLANS_FN void features_inputs(mlc_ctx *ctx, int64_t t, mlc_tensor *in[3])
{
    in[0] = test_rand(ctx, MLC_F32, mlc_dims4(2, 4, t, 6), 1, -1, 1);
    in[1] = test_rand(ctx, MLC_F32, mlc_dims4(2, 2, t, 6), 2, -1, 1);
    in[2] = test_rand(ctx, MLC_F32, mlc_dims4(2, 2, t, 5), 3, -1, 1);
}
#endif

PLANS_FN mlc_status grouped(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    operands o = {ctx, in[0], in[1], in[2], in[3], out};
    (void)n_in;
    (*(void (*const *)(operands *))user)(&o);
    CHECK_EQ(o.out - out, n_out);
    return mlc_ctx_status(ctx);
}

/* The same values in every context. */
PLANS_FN void group_inputs(mlc_ctx *ctx, mlc_tensor *in[4])
{
    in[0] = test_rand(ctx, MLC_F32, mlc_dims3(2, 3, 4), 1, 0.05, 0.95);
    in[1] = test_rand(ctx, MLC_F32, mlc_dims3(2, 3, 4), 2, 0.05, 0.95);
    in[2] = test_tokens(ctx, mlc_dims3(2, 3, 4), 2, 3);
    in[3] = test_rand(ctx, MLC_F32, mlc_dims4(2, 4, 6, 6), 4, 0.05, 0.95);
}

#endif
