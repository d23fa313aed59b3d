/* test_modules.c -- every constructor of a module in every float dtype, and with batches of nothing
 *
 * LAYERS has a row for each constructor and its options: what makes the module, and the inputs of a
 * forward. Each runs in f64, bf16 and f16, by mlc_module_to and under autocast, in training and in
 * evaluation, forward and backward, against the same values in f32; and with a batch of 0. make
 * lint wants each mlc_nn_ function that makes a module here.
 */
#include "mlc_test.h"

enum { B = -1, T = -2, MOST_IN = 3, MOST_AXES = 5 };   /* batch and steps, in a shape that 0 ends */

typedef struct layer {
    const char *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    int         in[MOST_IN][MOST_AXES];        /* shapes of the inputs                         */
    int         outputs;                       /* 0: one                                       */
    int         tokens;                        /* inputs are i64 below this; 0: floats         */
    bool        wide_third;                    /* c of a cell: f32 with 16 bits                */
    double      loose;                         /* times the tolerance: where a relu is near 0  */
                                               /* a rounding turns whole gradients, and norms  */
                                               /* of small numbers enlarge it; 0: once         */
} layer;

/* ---- makers of what takes a desc ------------------------------------------------------------- */

static mlc_module *linear_no_bias(mlc_ctx *ctx)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(4, 5);
    d.no_bias = true;
    return mlc_nn_linear_ex(ctx, &d);
}

static mlc_module *embedding_padded(mlc_ctx *ctx)
{
    mlc_nn_embedding_desc d = mlc_nn_embedding_desc_make(7, 4);
    d.embedding.has_padding_index = true;
    d.embedding.padding_index = 2;
    return mlc_nn_embedding_ex(ctx, &d);
}

static mlc_module *skembedding_padded(mlc_ctx *ctx)
{
    mlc_nn_skembedding_desc d = mlc_nn_skembedding_desc_make(7, 4, 3);
    d.embedding.embedding.has_padding_index = true;
    d.embedding.embedding.padding_index = 2;
    return mlc_nn_skembedding_ex(ctx, &d);
}

static mlc_module *conv_of(mlc_ctx *ctx, mlc_pad_mode mode, int64_t groups, bool transposed)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 4, 6, 3);
    d.conv.padding = mlc_dims_all(1);
    d.conv.groups = groups;
    d.conv.act = transposed ? MLC_ACT_NONE : MLC_ACT_TANH;
    d.padding_mode = mode;
    d.transposed = transposed;
    return mlc_nn_conv(ctx, &d);
}

static mlc_module *pool_of(mlc_ctx *ctx, bool max)
{
    mlc_pool_desc d = mlc_pool_desc_make(3);
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    d.ceil = d.exclude_padding = true;
    return max ? mlc_nn_max_pool(ctx, &d) : mlc_nn_avg_pool(ctx, &d);
}

static mlc_module *batch_norm_of(mlc_ctx *ctx, bool no_affine, bool no_statistics)
{
    mlc_nn_batch_norm_desc d = mlc_nn_batch_norm_desc_make(4);
    d.no_affine = no_affine;
    d.no_statistics = no_statistics;
    return mlc_nn_batch_norm_ex(ctx, &d);
}

static mlc_module *norm_of(mlc_ctx *ctx, int64_t groups, bool no_affine,
                           mlc_module *(*make)(mlc_ctx *ctx, const mlc_nn_norm_desc *desc))
{
    mlc_nn_norm_desc d = mlc_nn_norm_desc_make(4);
    d.groups = groups;
    d.no_affine = no_affine;
    d.no_bias = true;
    return make(ctx, &d);
}

/* Fitted to some data. */
static mlc_module *fitted(mlc_ctx *ctx, mlc_module *m)
{
    CHECK_EQ(mlc_nn_scale_fit(m, test_rand(ctx, MLC_F32, mlc_dims2(9, 4), 5, -1, 2)), MLC_OK);
    return m;
}

static mlc_tensor *thrice(void *user, mlc_tensor *x)
{
    (void)user;
    return mlc_mul_scalar(x, 3);
}

static mlc_module *named(mlc_ctx *ctx)
{
    const mlc_named_module part[3] = {{"in", mlc_nn_linear(ctx, 4, 5)}, {"act", mlc_nn_relu(ctx)},
                                      {"head", mlc_nn_linear(ctx, 5, 2)}};
    return mlc_nn_sequential_named(ctx, 3, part);
}

static mlc_module *sequence(mlc_ctx *ctx)
{
    mlc_module *const part[4] = {mlc_nn_linear(ctx, 4, 5), mlc_nn_relu(ctx),
                                 mlc_nn_dropout(ctx, 0.5), mlc_nn_linear(ctx, 5, 2)};
    return mlc_nn_sequential_of(ctx, 4, part);
}

static mlc_module *concat_of(mlc_ctx *ctx)
{
    mlc_module *part[] = {mlc_nn_conv2d(ctx, 4, 3, 3, 1, 1), mlc_nn_identity(ctx)};
    return mlc_nn_concat(ctx, 1, 2, part);
}

static mlc_module *tcn_of(mlc_ctx *ctx)
{
    const mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(4, 5, 2);
    return mlc_nn_tcn(ctx, &d);
}

enum { NORMS = 1, PROJECTED = 2, PEEPS = 4, BOTH_WAYS = 8, DEEP = 16, TIME_FIRST = 32, BARE = 64 };

static mlc_nn_rnn_desc rnn_desc(mlc_rnn_kind kind, unsigned with)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind, 4, 6);
    d.layer_norm = (with & NORMS) != 0;
    d.projection = with & PROJECTED ? 3 : 0;
    d.peepholes = (with & PEEPS) != 0;
    d.bidirectional = (with & BOTH_WAYS) != 0;
    d.layers = with & DEEP ? 2 : 1;
    d.time_first = (with & TIME_FIRST) != 0;
    d.no_bias = (with & BARE) != 0;
    return d;
}

static mlc_module *rnn_of(mlc_ctx *ctx, mlc_rnn_kind kind, unsigned with)
{
    const mlc_nn_rnn_desc d = rnn_desc(kind, with);
    return mlc_nn_rnn_ex(ctx, &d);
}

static mlc_module *cell_of(mlc_ctx *ctx, mlc_rnn_kind kind, unsigned with)
{
    const mlc_nn_rnn_desc d = rnn_desc(kind, with);
    return mlc_nn_rnn_cell(ctx, &d);
}

enum { GROUPED = 1, TURNED = 2, SLOPED = 4, NEAR = 8, BIASLESS = 16, OTHER_SIZES = 32 };

static mlc_module *attention_of(mlc_ctx *ctx, unsigned with)
{
    mlc_nn_multihead_attention_desc d = mlc_nn_multihead_attention_desc_make(8, 4);
    if (with & GROUPED) d.kv_heads = 2;
    if (with & OTHER_SIZES) { d.key_size = 5; d.value_size = 3; }
    d.has_rotary = (with & TURNED) != 0;
    d.alibi = (with & SLOPED) != 0;
    d.window = with & NEAR ? 2 : 0;
    d.causal = (with & NEAR) != 0;
    d.no_bias = (with & BIASLESS) != 0;
    return mlc_nn_multihead_attention_ex(ctx, &d);
}

enum { FIRST = 1, GATED = 2, RMS = 4, END = 8 };

static mlc_nn_transformer_desc transformer_desc(unsigned with)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 2);
    d.hidden = 12;
    d.dropout = 0;
    d.norm_first = (with & FIRST) != 0;
    d.gated = (with & GATED) != 0;
    if (with & GATED) d.act = MLC_ACT_SILU;
    d.rms_norm = (with & RMS) != 0;
    d.no_bias = (with & RMS) != 0;
    d.final_norm = (with & END) != 0;
    return d;
}

static mlc_module *block_of(mlc_ctx *ctx, bool decoder, unsigned with)
{
    const mlc_nn_transformer_desc d = transformer_desc(with);
    return decoder ? mlc_nn_transformer_decoder_layer(ctx, &d)
                   : mlc_nn_transformer_encoder_layer(ctx, &d);
}

static mlc_module *stack_of(mlc_ctx *ctx, bool decoder, unsigned with)
{
    const mlc_nn_transformer_desc d = transformer_desc(with);
    return decoder ? mlc_nn_transformer_decoder(ctx, &d, 2)
                   : mlc_nn_transformer_encoder(ctx, &d, 2);
}

static mlc_module *gpt_of(mlc_ctx *ctx, mlc_positions positions)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(11, 6, 2, 8, 2);
    d.positions = positions;
    d.layer.dropout = 0;
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *llama(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_llama(11, 6, 1, 8, 2);
    d.layer.kv_heads = 1;
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *bert_of(mlc_ctx *ctx)
{
    mlc_nn_bert_desc d = mlc_nn_bert_desc_make(11, 6, 1, 8, 2);
    d.layer.dropout = 0;
    return mlc_nn_bert(ctx, &d);
}

static mlc_module *sklinear_of(mlc_ctx *ctx, mlc_sketch_kind u, mlc_sketch_store store)
{
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(8, 6, 2, 2);
    d.u = u;
    d.store = store;
    return mlc_nn_sklinear_ex(ctx, &d);
}

static mlc_module *panther_of(mlc_ctx *ctx)
{
    mlc_tensor *t[4];
    const mlc_dims dims[4] = {mlc_dims3(2, 8, 2), mlc_dims3(2, 2, 6), mlc_dims3(2, 2, 6),
                              mlc_dims3(2, 8, 2)};
    for (int i = 0; i < 4; i++) t[i] = test_rand(ctx, MLC_F32, dims[i], 20 + (uint64_t)i, -1, 1);
    return mlc_nn_sklinear_panther(ctx, t[0], t[1], t[2], t[3], NULL);
}

/* A recurrent layer whose products with x are sketched. */
static mlc_module *sketched(mlc_module *m)
{
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 2);
    d.larger_too = true;
    return m && mlc_sketch_model(m, &d, NULL) == MLC_OK ? m : NULL;
}

static mlc_module *skconv_of(mlc_ctx *ctx)
{
    const mlc_nn_skconv_desc d = mlc_nn_skconv_desc_make(1, 4, 6, 3, 1, 2);
    return mlc_nn_skconv(ctx, &d);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define IN(...)  {{__VA_ARGS__}}
#define ROWS     IN(B, 4)
#define LINES    IN(B, 4, 7)
#define IMAGES   IN(B, 4, 5, 6)
#define VOLUMES  IN(B, 4, 4, 3, 4)
#define STEPS    IN(B, T, 4)
#define WIDE     IN(B, T, 8)
#define TEXT     IN(B, T)
#define STATES   {{B, 4}, {B, 6}, {B, 6}}

#define LAYERS(X) \
    X(linear, mlc_nn_linear(ctx, 4, 5), ROWS) \
    X(linear_ex, linear_no_bias(ctx), ROWS) \
    X(embedding, mlc_nn_embedding(ctx, 7, 4), TEXT, .tokens = 7) \
    X(embedding_ex, embedding_padded(ctx), TEXT, .tokens = 7) \
    X(conv_zeros, conv_of(ctx, MLC_PAD_CONSTANT, 1, false), LINES) \
    X(conv_reflect, conv_of(ctx, MLC_PAD_REFLECT, 2, false), LINES) \
    X(conv_replicate, conv_of(ctx, MLC_PAD_REPLICATE, 1, false), LINES) \
    X(conv_circular, conv_of(ctx, MLC_PAD_CIRCULAR, 1, false), LINES) \
    X(conv_transposed, conv_of(ctx, MLC_PAD_CONSTANT, 2, true), LINES) \
    X(conv1d, mlc_nn_conv1d(ctx, 4, 6, 3, 2, 1), LINES) \
    X(conv2d, mlc_nn_conv2d(ctx, 4, 6, 3, 1, 1), IMAGES) \
    X(conv3d, mlc_nn_conv3d(ctx, 4, 2, 2, 1, 0), VOLUMES) \
    X(causal_conv1d, mlc_nn_causal_conv1d(ctx, 4, 6, 2, 2), LINES) \
    X(conv_transpose1d, mlc_nn_conv_transpose1d(ctx, 4, 6, 3, 2, 1), LINES) \
    X(conv_transpose2d, mlc_nn_conv_transpose2d(ctx, 4, 3, 2, 2, 0), IMAGES) \
    X(conv_transpose3d, mlc_nn_conv_transpose3d(ctx, 4, 2, 2, 1, 0), VOLUMES) \
    X(max_pool, pool_of(ctx, true), IMAGES) \
    X(avg_pool, pool_of(ctx, false), IMAGES) \
    X(max_pool1d, mlc_nn_max_pool1d(ctx, 2), LINES) \
    X(max_pool2d, mlc_nn_max_pool2d(ctx, 2), IMAGES) \
    X(max_pool3d, mlc_nn_max_pool3d(ctx, 2), VOLUMES) \
    X(avg_pool1d, mlc_nn_avg_pool1d(ctx, 2), LINES) \
    X(avg_pool2d, mlc_nn_avg_pool2d(ctx, 2), IMAGES) \
    X(avg_pool3d, mlc_nn_avg_pool3d(ctx, 2), VOLUMES) \
    X(adaptive_avg_pool, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(2, 3)), IMAGES) \
    X(batch_norm, mlc_nn_batch_norm(ctx, 4), IMAGES) \
    X(batch_norm_bare, batch_norm_of(ctx, true, false), ROWS) \
    X(batch_norm_own, batch_norm_of(ctx, false, true), LINES) \
    X(layer_norm, mlc_nn_layer_norm(ctx, 4), STEPS) \
    X(layer_norm_ex, norm_of(ctx, 1, false, mlc_nn_layer_norm_ex), STEPS) \
    X(layer_norm_bare, norm_of(ctx, 1, true, mlc_nn_layer_norm_ex), STEPS) \
    X(rms_norm, mlc_nn_rms_norm(ctx, 4), STEPS) \
    X(rms_norm_ex, norm_of(ctx, 1, true, mlc_nn_rms_norm_ex), STEPS) \
    X(group_norm, mlc_nn_group_norm(ctx, 2, 4), IMAGES) \
    X(group_norm_ex, norm_of(ctx, 2, false, mlc_nn_group_norm_ex), LINES) \
    X(instance_norm, mlc_nn_instance_norm(ctx, 4, true), IMAGES) \
    X(instance_norm_ex, norm_of(ctx, 1, true, mlc_nn_instance_norm_ex), LINES) \
    X(relu, mlc_nn_relu(ctx), ROWS) \
    X(gelu, mlc_nn_gelu(ctx), ROWS) \
    X(tanh, mlc_nn_tanh(ctx), ROWS) \
    X(sigmoid, mlc_nn_sigmoid(ctx), ROWS) \
    X(silu, mlc_nn_silu(ctx), ROWS) \
    X(mish, mlc_nn_mish(ctx), ROWS) \
    X(softplus, mlc_nn_softplus(ctx), ROWS) \
    X(softsign, mlc_nn_softsign(ctx), ROWS) \
    X(hardswish, mlc_nn_hardswish(ctx), ROWS) \
    X(hardsigmoid, mlc_nn_hardsigmoid(ctx), ROWS) \
    X(selu, mlc_nn_selu(ctx), ROWS) \
    X(elu, mlc_nn_elu(ctx, 0.5), ROWS) \
    X(celu, mlc_nn_celu(ctx, 0.5), ROWS) \
    X(leaky_relu, mlc_nn_leaky_relu(ctx, 0.1), ROWS) \
    X(glu, mlc_nn_glu(ctx, 1), ROWS) \
    X(prelu, mlc_nn_prelu(ctx, 4), LINES) \
    X(dropout, mlc_nn_dropout(ctx, 0.5), ROWS) \
    X(flatten, mlc_nn_flatten(ctx), LINES) \
    X(standardize, fitted(ctx, mlc_nn_standardize(ctx, 4)), ROWS) \
    X(min_max, fitted(ctx, mlc_nn_min_max(ctx, 4, 0.5, 2)), ROWS) \
    X(sequential, mlc_nn_sequential(ctx), ROWS) \
    X(sequential_of, sequence(ctx), ROWS) \
    X(sequence_of_images, MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 4, 6, 3, 1, 1), \
                                         mlc_nn_batch_norm(ctx, 6), mlc_nn_relu(ctx), \
                                         mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx), \
                                         mlc_nn_linear(ctx, 36, 3)), IMAGES) \
    X(identity, mlc_nn_identity(ctx), ROWS) \
    X(lambda, mlc_nn_lambda(ctx, thrice, NULL), ROWS) \
    X(relu6, mlc_nn_relu6(ctx), ROWS) \
    X(spatial_dropout, mlc_nn_spatial_dropout(ctx, 0.5), IMAGES) \
    X(stochastic_depth, mlc_nn_stochastic_depth(ctx, 0.5), IMAGES) \
    X(upsample_nearest, mlc_nn_upsample(ctx, 2, MLC_INTERPOLATE_NEAREST), IMAGES) \
    X(upsample_linear, mlc_nn_upsample(ctx, 2, MLC_INTERPOLATE_LINEAR), IMAGES) \
    X(pixel_shuffle, mlc_nn_pixel_shuffle(ctx, 2), IMAGES) \
    X(residual, mlc_nn_residual(ctx, mlc_nn_linear(ctx, 4, 4), NULL, true), ROWS) \
    X(residual_of_norms, \
      mlc_nn_residual(ctx, MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 3), \
                                          mlc_nn_batch_norm(ctx, 3)), \
                      mlc_nn_linear(ctx, 4, 3), true), ROWS) \
    X(basic_block, mlc_nn_basic_block(ctx, 4, 6, 2), IMAGES, .loose = 8) \
    X(bottleneck, mlc_nn_bottleneck(ctx, 4, 2, 6, 1), IMAGES, .loose = 8) \
    X(inverted_residual, mlc_nn_inverted_residual(ctx, 4, 4, 1, 2), IMAGES, .loose = 8) \
    X(squeeze_excite, mlc_nn_squeeze_excite(ctx, 4, 2), IMAGES) \
    X(tcn_block, mlc_nn_tcn_block(ctx, 4, 6, 2, 2, 0.5), LINES) \
    X(tcn, tcn_of(ctx), LINES) \
    X(rnn, mlc_nn_rnn(ctx, 4, 6), STEPS, .outputs = 2) \
    X(gru, mlc_nn_gru(ctx, 4, 6), STEPS, .outputs = 2) \
    X(lstm, mlc_nn_lstm(ctx, 4, 6), STEPS, .outputs = 3) \
    X(rnn_relu, rnn_of(ctx, MLC_RNN_RELU, DEEP | BOTH_WAYS), STEPS, .outputs = 2, .loose = 8) \
    X(gru_deep, rnn_of(ctx, MLC_RNN_GRU, DEEP | BOTH_WAYS | BARE), STEPS, .outputs = 2) \
    X(lstm_deep, rnn_of(ctx, MLC_RNN_LSTM, DEEP | BOTH_WAYS | BARE), STEPS, .outputs = 3) \
    X(lstm_projected, rnn_of(ctx, MLC_RNN_LSTM, PROJECTED), STEPS, .outputs = 3) \
    X(lstm_peepholes, rnn_of(ctx, MLC_RNN_LSTM, PEEPS), STEPS, .outputs = 3) \
    X(lstm_all, rnn_of(ctx, MLC_RNN_LSTM, PROJECTED | PEEPS | TIME_FIRST | DEEP | BOTH_WAYS), \
      IN(T, B, 4), .outputs = 3) \
    X(rnn_norms, rnn_of(ctx, MLC_RNN_TANH, NORMS), STEPS, .outputs = 2, .loose = 4) \
    X(relu_norms, rnn_of(ctx, MLC_RNN_RELU, NORMS), STEPS, .outputs = 2, .loose = 8) \
    X(gru_norms, rnn_of(ctx, MLC_RNN_GRU, NORMS), STEPS, .outputs = 2, .loose = 4) \
    X(lstm_norms, rnn_of(ctx, MLC_RNN_LSTM, NORMS), STEPS, .outputs = 3, .loose = 4) \
    X(lstm_norms_bare, rnn_of(ctx, MLC_RNN_LSTM, NORMS | BARE), STEPS, .outputs = 3, .loose = 4) \
    X(lstm_norms_all, rnn_of(ctx, MLC_RNN_LSTM, NORMS | PROJECTED | PEEPS | TIME_FIRST | \
                             BOTH_WAYS), IN(T, B, 4), .outputs = 3, .loose = 40) \
    X(rnn_cell, cell_of(ctx, MLC_RNN_TANH, 0), {{B, 4}, {B, 6}}) \
    X(gru_cell, cell_of(ctx, MLC_RNN_GRU, 0), {{B, 4}, {B, 6}}) \
    X(lstm_cell, cell_of(ctx, MLC_RNN_LSTM, 0), STATES, .outputs = 2, .wide_third = true) \
    X(gru_cell_norms, cell_of(ctx, MLC_RNN_GRU, NORMS), {{B, 4}, {B, 6}}) \
    X(lstm_cell_norms, cell_of(ctx, MLC_RNN_LSTM, NORMS), STATES, .outputs = 2, \
      .wide_third = true) \
    X(bidirectional, mlc_nn_bidirectional(ctx, mlc_nn_gru(ctx, 4, 3), mlc_nn_linear(ctx, 4, 2)), \
      STEPS) \
    X(multihead_attention, mlc_nn_multihead_attention(ctx, 8, 2), WIDE) \
    X(attention_grouped, attention_of(ctx, GROUPED | BIASLESS), WIDE) \
    X(attention_rotary, attention_of(ctx, TURNED), WIDE) \
    X(attention_alibi, attention_of(ctx, SLOPED), WIDE) \
    X(attention_window, attention_of(ctx, NEAR), WIDE) \
    X(attention_sizes, attention_of(ctx, OTHER_SIZES), {{B, 5, 8}, {B, 4, 5}, {B, 4, 3}}) \
    X(encoder_layer, block_of(ctx, false, 0), WIDE, .loose = 4) \
    X(encoder_layer_gated, block_of(ctx, false, FIRST | GATED | RMS), WIDE) \
    X(decoder_layer, block_of(ctx, true, FIRST), {{B, 5, 8}, {B, 3, 8}}, .loose = 4) \
    X(encoder, stack_of(ctx, false, FIRST | END), WIDE, .loose = 4) \
    X(decoder, stack_of(ctx, true, END), {{B, 5, 8}, {B, 3, 8}}, .loose = 4) \
    X(gpt, gpt_of(ctx, MLC_POSITIONS_LEARNED), TEXT, .tokens = 11) \
    X(gpt_sinusoidal, gpt_of(ctx, MLC_POSITIONS_SINUSOIDAL), TEXT, .tokens = 11) \
    X(gpt_rotary, gpt_of(ctx, MLC_POSITIONS_ROTARY), TEXT, .tokens = 11) \
    X(gpt_alibi, gpt_of(ctx, MLC_POSITIONS_ALIBI), TEXT, .tokens = 11) \
    X(llama, llama(ctx), TEXT, .tokens = 11) \
    X(bert, bert_of(ctx), IN(B, 6), .tokens = 11, .outputs = 2) \
    X(sklinear, mlc_nn_sklinear(ctx, 8, 6, 2, 2), IN(B, 8)) \
    X(sklinear_bits, sklinear_of(ctx, MLC_SKETCH_SIGNS, MLC_SKETCH_AS_BITS), IN(B, 8)) \
    X(sklinear_floats, sklinear_of(ctx, MLC_SKETCH_GAUSSIAN, MLC_SKETCH_AS_FLOATS), IN(B, 8)) \
    X(sklinear_panther, panther_of(ctx), IN(B, 8)) \
    X(skconv, skconv_of(ctx), LINES) \
    X(skconv2d, mlc_nn_skconv2d(ctx, 4, 6, 3, 1, 2), IMAGES) \
    X(skembedding, mlc_nn_skembedding(ctx, 7, 4, 3), TEXT, .tokens = 7) \
    X(skembedding_padded, skembedding_padded(ctx), TEXT, .tokens = 7) \
    X(lstm_sketched, sketched(mlc_nn_lstm(ctx, 4, 6)), STEPS, .outputs = 3) \
    X(gru_sketched, sketched(rnn_of(ctx, MLC_RNN_GRU, DEEP | BOTH_WAYS)), STEPS, .outputs = 2) \
    X(recompute, mlc_nn_recompute(ctx, MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 5), \
                                                      mlc_nn_tanh(ctx), \
                                                      mlc_nn_linear(ctx, 5, 4))), ROWS) \
    X(softmax, mlc_nn_softmax(ctx, 1), ROWS) \
    X(log_softmax, mlc_nn_log_softmax(ctx, 1), ROWS) \
    X(unflatten, mlc_nn_unflatten(ctx, 1, mlc_dims2(2, -1)), LINES) \
    X(adaptive_max_pool, mlc_nn_adaptive_max_pool(ctx, mlc_dims2(2, 3)), IMAGES) \
    X(sequential_named, named(ctx), ROWS) \
    X(concat, concat_of(ctx), IMAGES)

#define MAKER(key, how, ...) static mlc_module *make_##key(mlc_ctx *ctx) { return how; }
LAYERS(MAKER)
#define ROW(key, how, ...) {.name = #key, .make = make_##key, .in = __VA_ARGS__},
static const layer LAYER[] = {LAYERS(ROW)};

/* ---- a step ---------------------------------------------------------------------------------- */

static mlc_dims shape_of(const int *shape, int64_t batch, int64_t steps)
{
    mlc_dims d = mlc_dims0();
    while (d.n < MOST_AXES && shape[d.n] != 0) {
        d.v[d.n] = shape[d.n] == B ? batch : shape[d.n] == T ? steps : shape[d.n];
        d.n++;
    }
    return d;
}

/* Inputs with values that `rounded` has, in dtype; how many. */
static int inputs_of(mlc_ctx *ctx, const layer *l, int64_t batch, int64_t steps, mlc_dtype rounded,
                     mlc_dtype dtype, mlc_tensor *in[MOST_IN])
{
    int n = 0;
    for (; n < MOST_IN && l->in[n][0] != 0; n++) {
        const mlc_dims dims = shape_of(l->in[n], batch, steps);
        const bool     wide = n == 2 && l->wide_third && dtype != MLC_F64;
        if (l->tokens) {
            in[n] = test_tokens(ctx, dims, l->tokens, 3);
            continue;
        }
        in[n] = mlc_cast(test_rand(ctx, MLC_F32, dims, 40 + (uint64_t)n, -1, 1), rounded);
        in[n] = mlc_cast(in[n], wide ? MLC_F32 : dtype);
        in[n] = mlc_copy(in[n]);
        mlc_set_requires_grad(in[n], true);
    }
    return n;
}

/* A loss of all outputs, each by weights of its own; with its backward. The outputs follow. */
static bool step(mlc_module *m, const layer *l, mlc_tensor *const *in, int n_in, mlc_tensor **out)
{
    mlc_ctx    *ctx = mlc_module_ctx(m);
    const int   n = l->outputs ? l->outputs : 1;
    mlc_tensor *loss = NULL;
    mlc_seed(ctx, 3);
    if (mlc_module_forward(m, in, n_in, out, n) != MLC_OK) return false;
    for (int i = 0; i < n; i++) {
        const mlc_dims dims = mlc_dims_of(out[i]->ndim, out[i]->shape);
        mlc_tensor *part = mlc_sum_all(mlc_mul(mlc_cast(out[i], MLC_F32),
                                               test_rand(ctx, MLC_F32, dims, 60, -1, 1)));
        loss = loss ? mlc_add(loss, part) : part;
    }
    return loss && (!mlc_requires_grad(loss) || mlc_backward(loss) == MLC_OK);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

static double length(mlc_tensor *t) { return t ? mlc_item(mlc_norm(mlc_cast(t, MLC_F64), 2,
                                                                   mlc_dims0(), false)) : 0; }

/* Of gradients some are 0 but for rounding (of a bias before a norm): all that count are `most`. */
static void check_near(const char *what, mlc_tensor *got, mlc_tensor *want, double most, double tol)
{
    if (!CHECK((got != NULL) == (want != NULL)) || !got) return;
    got = mlc_cast(mlc_detach(got), MLC_F64);
    want = mlc_cast(mlc_detach(want), MLC_F64);
    const double gap = length(mlc_sub(got, want)), of = fmax(length(want), 0.1 * most);
    if (!CHECK(gap <= tol * of)) printf("  %s: %g of %g\n", what, gap, of);
}

/* Values and gradients of two steps, of low bits and of f32. */
static void compare(const layer *l, mlc_module *low, mlc_module *full, mlc_tensor *const *a,
                    mlc_tensor *const *b, mlc_tensor *const *ya, mlc_tensor *const *yb, double tol)
{
    mlc_param_iter i = mlc_param_iter_make(low), j = mlc_param_iter_make(full);
    double         most = 0;
    char           what[128];
    for (int k = 0; k < (l->outputs ? l->outputs : 1); k++)
        check_near("output", ya[k], yb[k], 0, tol);
    for (mlc_param_iter k = j; mlc_param_next(&k);) most = fmax(most, length(mlc_grad(k.tensor)));
    for (int k = 0; k < MOST_IN && !l->tokens && l->in[k][0]; k++)
        check_near("input", mlc_grad(a[k]), mlc_grad(b[k]), 0, tol);
    while (mlc_param_next(&i) && mlc_param_next(&j)) {
        snprintf(what, sizeof what, "%.100s", i.name);
        check_near(what, mlc_grad(i.tensor), mlc_grad(j.tensor), most, tol);
    }
}

/* The reference has the same values in f32: parameters and inputs are rounded before. */
static void check_dtype(mlc_ctx *ctx, const layer *l, mlc_dtype dtype, bool autocast, bool training)
{
    mlc_tensor  *a[MOST_IN], *b[MOST_IN], *ya[3], *yb[3];
    const double tol = (l->loose > 0 ? l->loose : 1) *
                       (dtype == MLC_F64 ? 4e-6 : dtype == MLC_F16 ? 0.01 : 0.08);
    const int64_t failures = test_failures();
    mlc_scope_begin(ctx);
    mlc_module *low = l->make(ctx);
    if (!autocast) CHECK_EQ(mlc_module_to(low, dtype), MLC_OK);
    mlc_module *full = mlc_module_clone(low);
    CHECK_EQ(mlc_module_to(full, MLC_F32), MLC_OK);
    mlc_module_train(low, training);
    mlc_module_train(full, training);
    inputs_of(ctx, l, 3, 5, dtype, autocast ? MLC_F32 : dtype, a);
    const int n = inputs_of(ctx, l, 3, 5, dtype, MLC_F32, b);
    if (autocast) CHECK_EQ(mlc_autocast_begin(ctx, dtype), MLC_OK);
    const bool ran = CHECK(step(low, l, a, n, ya));
    if (autocast) CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    if (ran && CHECK(step(full, l, b, n, yb))) compare(l, low, full, a, b, ya, yb, tol);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    if (test_failures() > failures)
        printf("  %s in %s%s, %s: %s\n", l->name, mlc_dtype_name(dtype),
               autocast ? " by autocast" : "", training ? "training" : "evaluation",
               mlc_error(ctx));
    mlc_error_clear(ctx);
    mlc_module_free(low);
    mlc_module_free(full);
}

TEST(modules, each_runs_forward_and_backward_in_every_float_dtype)
{
    FOR_EACH_ISA(ctx) {
        for (size_t i = 0; i < sizeof LAYER / sizeof *LAYER; i++)
            for (int training = 0; training < 2; training++) {
                check_dtype(ctx, &LAYER[i], MLC_F64, false, training != 0);
                for (int autocast = 0; autocast < 2; autocast++) {
                    check_dtype(ctx, &LAYER[i], MLC_BF16, autocast != 0, training != 0);
                    check_dtype(ctx, &LAYER[i], MLC_F16, autocast != 0, training != 0);
                }
            }
    }
}

/* ---- in another context ---------------------------------------------------------------------- */

/* Outputs in evaluation, one after another; how many numbers. */
static int64_t evaluate(mlc_module *m, const layer *l, mlc_dtype dtype, double *v, int64_t most)
{
    mlc_ctx    *ctx = mlc_module_ctx(m);
    mlc_tensor *in[MOST_IN], *out[3];
    int64_t     n = 0;
    mlc_scope_begin(ctx);
    const int n_in = inputs_of(ctx, l, 3, 5, dtype, dtype, in), n_out = l->outputs ? l->outputs : 1;
    if (mlc_module_forward(m, in, n_in, out, n_out) == MLC_OK)
        for (int i = 0; i < n_out && n + mlc_numel(out[i]) <= most; i++) {
            CHECK(test_read(mlc_detach(out[i]), v + n));
            n += mlc_numel(out[i]);
        }
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return n;
}

TEST(modules, each_gives_the_same_bits_where_another_context_shares_it)
{
    enum { MOST = 20000 };
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16};
    static double want[MOST], got[MOST];
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx(), *other = test_ctx();
    for (size_t i = 0; i < sizeof LAYER / sizeof *LAYER; i++)
        for (int d = 0; d < 3; d++) {
            mlc_module *m = LAYER[i].make(ctx);
            CHECK_EQ(mlc_module_to(m, dtypes[d]), MLC_OK);
            mlc_module_train(m, false);
            mlc_module   *shared = mlc_module_share(other, m);
            const int64_t n = evaluate(m, &LAYER[i], dtypes[d], want, MOST);
            const int64_t k = shared ? evaluate(shared, &LAYER[i], dtypes[d], got, MOST) : 0;
            if (!CHECK(n > 0 && n == k && memcmp(want, got, (size_t)n * sizeof *want) == 0))
                printf("  %s in %s: %s%s\n", LAYER[i].name, mlc_dtype_name(dtypes[d]),
                       mlc_error(ctx), mlc_error(other));
            mlc_error_clear(ctx);
            mlc_error_clear(other);
            mlc_module_free(shared);
            mlc_module_free(m);
        }
}

/* ---- batches of nothing ---------------------------------------------------------------------- */

/* Gradients become stale, with their numbers in memory. */
static void forget_gradients(mlc_module *m)
{
    mlc_param_iter i = mlc_param_iter_make(m);
    while (mlc_param_next(&i)) mlc_zero_grad(i.tensor);
}

/* Gradients of all parameters are 0. */
static void check_gradients(mlc_module *m, const layer *l)
{
    mlc_param_iter i = mlc_param_iter_make(m);
    while (mlc_param_next(&i)) {
        mlc_tensor *g = mlc_grad(i.tensor);
        if (!g) continue;
        const double most = mlc_item(mlc_max(mlc_abs(mlc_cast(g, MLC_F64)), mlc_dims0(), false));
        if (!CHECK(most == 0)) printf("  %s: %s has a gradient of %g\n", l->name, i.name, most);
    }
}

/* What a batch of nothing must leave: the statistics. */
static double statistics(mlc_module *m)
{
    double         sum = 0;
    mlc_param_iter i = mlc_param_iter_make(m);
    while (mlc_param_next(&i))
        if (i.buffer && i.tensor->dtype != MLC_I64 && i.tensor->dtype != MLC_BOOL)
            sum += mlc_item(mlc_sum_all(mlc_cast(i.tensor, MLC_F64)));
    return sum;
}

static void check_nothing(mlc_ctx *ctx, const layer *l, mlc_dtype dtype, bool training,
                          int64_t batch, int64_t steps)
{
    mlc_tensor   *in[MOST_IN], *y[3];
    const int64_t failures = test_failures();
    mlc_module   *m = l->make(ctx);
    CHECK_EQ(mlc_module_to(m, dtype), MLC_OK);
    mlc_module_train(m, training);
    mlc_scope_begin(ctx);
    int n = inputs_of(ctx, l, 3, 5, dtype, dtype, in);
    CHECK(step(m, l, in, n, y));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    forget_gradients(m);
    const double before = statistics(m);
    mlc_memory_trim(ctx);              /* all memory of the step comes from the allocator      */
    mlc_scope_begin(ctx);
    n = inputs_of(ctx, l, batch, steps, dtype, dtype, in);
    CHECK(step(m, l, in, n, y));
    check_gradients(m, l);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(statistics(m) == before);
    if (test_failures() > failures)
        printf("  %s in %s, %s: %s\n", l->name, mlc_dtype_name(dtype),
               training ? "training" : "evaluation", mlc_error(ctx));
    mlc_error_clear(ctx);
    mlc_module_free(m);
}

static bool has_steps(const layer *l) { return l->in[0][0] == T || l->in[0][1] == T; }

TEST(modules, a_batch_of_nothing_has_gradients_of_0)
{
    mlc_ctx *ctx = test_poisoned_ctx();
    for (size_t i = 0; i < sizeof LAYER / sizeof *LAYER; i++)
        for (int training = 0; training < 2; training++) {
            check_nothing(ctx, &LAYER[i], MLC_F32, training != 0, 0, 5);
            check_nothing(ctx, &LAYER[i], MLC_F64, training != 0, 0, 5);
            check_nothing(ctx, &LAYER[i], MLC_BF16, training != 0, 0, 5);
            if (!has_steps(&LAYER[i])) continue;
            check_nothing(ctx, &LAYER[i], MLC_F32, training != 0, 2, 0);
            check_nothing(ctx, &LAYER[i], MLC_BF16, training != 0, 2, 0);
        }
}
