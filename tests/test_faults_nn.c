/* test_faults_nn.c -- memory runs out in modules */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ew_table.h"
#include "faults.h"
#include "onnx_file.h"

#include <fcntl.h>

/* ---- modules -------------------------------------------------------------------------------- */

/* What comes out of a module.                                                                   */
static mlc_status run_module(world *w, mlc_module *m)
{
    return own_module(w, m) ? keep(w, mlc_forward(m, w->x)) : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_linear)     { return run_module(w, mlc_nn_linear(w->ctx, 4, 300)); }
#define EW_NO_MODULE(name, ...)
#define EW_MODULE(name, ...) DO(mlc_nn_##name) { return run_module(w, mlc_nn_##name(w->ctx)); }
EW_UNARY(EW_NO_MODULE, EW_MODULE, EW_NO_MODULE)
DO(mlc_nn_elu)        { return run_module(w, mlc_nn_elu(w->ctx, 0.5)); }
DO(mlc_nn_celu)       { return run_module(w, mlc_nn_celu(w->ctx, 0.5)); }
DO(mlc_nn_leaky_relu) { return run_module(w, mlc_nn_leaky_relu(w->ctx, 0.5)); }
DO(mlc_nn_glu)        { return run_module(w, mlc_nn_glu(w->ctx, 1)); }
DO(mlc_nn_prelu)      { return run_module(w, mlc_nn_prelu(w->ctx, 4)); }
DO(mlc_nn_dropout)    { return run_module(w, mlc_nn_dropout(w->ctx, 0.5)); }
DO(mlc_nn_softmax)    { return run_module(w, mlc_nn_softmax(w->ctx, 1)); }
DO(mlc_nn_log_softmax) { return run_module(w, mlc_nn_log_softmax(w->ctx, 1)); }
DO(mlc_nn_unflatten)  { return run_module(w, mlc_nn_unflatten(w->ctx, 1, mlc_dims2(2, -1))); }
DO(mlc_nn_flatten)    { return run_module(w, mlc_nn_flatten(w->ctx)); }
DO(mlc_nn_sequential) { return run_module(w, mlc_nn_sequential(w->ctx)); }
DO(mlc_nn_identity)   { return run_module(w, mlc_nn_identity(w->ctx)); }

DO(mlc_nn_sequential_of)
{
    mlc_module *part[3] = {mlc_nn_linear(w->ctx, 4, 4), mlc_nn_relu(w->ctx),
                           mlc_nn_linear(w->ctx, 4, 2)};
    return run_module(w, made_of(mlc_nn_sequential_of(w->ctx, 3, part), 3, part));
}

DO(mlc_nn_sequential_named)
{
    mlc_module *part[2] = {mlc_nn_linear(w->ctx, 4, 4), mlc_nn_relu(w->ctx)};
    return run_module(w, made_of(MLC_SEQUENTIAL_NAMED(w->ctx, {"in", part[0]}, {"act", part[1]}),
                                 2, part));
}

static mlc_tensor *twice(void *user, mlc_tensor *x)
{
    return mlc_mul_scalar(x, *(const double *)user);
}

DO(mlc_nn_lambda)
{
    static double two = 2;
    return run_module(w, mlc_nn_lambda(w->ctx, twice, &two));
}

/* Fitted to x, then x itself. */
static mlc_status run_scale(world *w, mlc_module *m)
{
    w->module = m;
    mlc_status st = m ? mlc_nn_scale_fit(m, w->x) : mlc_ctx_status(w->ctx);
    return first_of(st, st ? st : keep(w, mlc_forward(m, w->x)));
}

DO(mlc_nn_standardize) { return run_module(w, mlc_nn_standardize(w->ctx, 4)); }
DO(mlc_nn_min_max)    { return run_scale(w, mlc_nn_min_max(w->ctx, 4, -1, 2)); }
DO(mlc_nn_scale_fit)  { return run_scale(w, mlc_nn_standardize(w->ctx, 4)); }

/* x as one image of three channels. */
static mlc_status run_on_image(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_unsqueeze(w->x, 0);
    return image ? keep(w, mlc_forward(m, image)) : made(w, image);
}

static mlc_status run_built(world *w, mlc_module *m)
{
    w->module = m;
    return made(w, m);
}

DO(mlc_nn_conv1d) { return run_on_image(w, mlc_nn_conv1d(w->ctx, 3, 2, 2, 1, 0)); }
DO(mlc_nn_conv2d) { return run_built(w, mlc_nn_conv2d(w->ctx, 3, 2, 2, 1, 0)); }
DO(mlc_nn_conv3d) { return run_built(w, mlc_nn_conv3d(w->ctx, 3, 2, 2, 1, 0)); }
DO(mlc_nn_conv_transpose1d)
{
    return run_on_image(w, mlc_nn_conv_transpose1d(w->ctx, 3, 2, 2, 2, 0));
}
DO(mlc_nn_conv_transpose2d)
{
    return run_built(w, mlc_nn_conv_transpose2d(w->ctx, 3, 2, 2, 1, 0));
}
DO(mlc_nn_conv_transpose3d)
{
    return run_built(w, mlc_nn_conv_transpose3d(w->ctx, 3, 2, 2, 1, 0));
}
DO(mlc_nn_max_pool1d) { return run_on_image(w, mlc_nn_max_pool1d(w->ctx, 2)); }
DO(mlc_nn_max_pool2d) { return run_built(w, mlc_nn_max_pool2d(w->ctx, 2)); }
DO(mlc_nn_max_pool3d) { return run_built(w, mlc_nn_max_pool3d(w->ctx, 2)); }
DO(mlc_nn_avg_pool1d) { return run_on_image(w, mlc_nn_avg_pool1d(w->ctx, 2)); }
DO(mlc_nn_avg_pool2d) { return run_built(w, mlc_nn_avg_pool2d(w->ctx, 2)); }
DO(mlc_nn_avg_pool3d) { return run_built(w, mlc_nn_avg_pool3d(w->ctx, 2)); }
DO(mlc_nn_batch_norm) { return run_on_image(w, mlc_nn_batch_norm(w->ctx, 3)); }

DO(mlc_nn_layer_norm)      { return run_module(w, mlc_nn_layer_norm(w->ctx, 4)); }
DO(mlc_nn_rms_norm)        { return run_module(w, mlc_nn_rms_norm(w->ctx, 4)); }
DO(mlc_nn_group_norm)      { return run_module(w, mlc_nn_group_norm(w->ctx, 2, 4)); }
DO(mlc_nn_instance_norm)   { return run_on_image(w, mlc_nn_instance_norm(w->ctx, 3, true)); }
DO(mlc_nn_layer_norm_ex)
{
    const mlc_nn_norm_desc d = mlc_nn_norm_desc_make(4);
    return run_module(w, mlc_nn_layer_norm_ex(w->ctx, &d));
}

DO(mlc_nn_rms_norm_ex)
{
    const mlc_nn_norm_desc d = mlc_nn_rms_norm_desc_make(4);
    return run_module(w, mlc_nn_rms_norm_ex(w->ctx, &d));
}

DO(mlc_nn_group_norm_ex)
{
    mlc_nn_norm_desc d = mlc_nn_norm_desc_make(4);
    d.groups = 2;
    d.no_bias = true;
    return run_module(w, mlc_nn_group_norm_ex(w->ctx, &d));
}

DO(mlc_nn_instance_norm_ex)
{
    const mlc_nn_norm_desc d = mlc_nn_norm_desc_make(3);
    return run_on_image(w, mlc_nn_instance_norm_ex(w->ctx, &d));
}

DO(mlc_nn_relu6)           { return run_module(w, mlc_nn_relu6(w->ctx)); }
DO(mlc_nn_spatial_dropout) { return run_on_image(w, mlc_nn_spatial_dropout(w->ctx, 0.5)); }
DO(mlc_nn_stochastic_depth) { return run_module(w, mlc_nn_stochastic_depth(w->ctx, 0.5)); }
DO(mlc_nn_squeeze_excite)  { return run_on_image(w, mlc_nn_squeeze_excite(w->ctx, 3, 2)); }

DO(mlc_nn_upsample)
{
    return run_on_image(w, mlc_nn_upsample(w->ctx, 2, MLC_INTERPOLATE_CORNERS));
}

/* x as one image of four channels.                                                              */
static mlc_status run_on_square(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1));
    return image ? keep(w, mlc_forward(m, image)) : made(w, image);
}

DO(mlc_nn_pixel_shuffle)     { return run_on_square(w, mlc_nn_pixel_shuffle(w->ctx, 2)); }
DO(mlc_nn_basic_block)       { return run_on_square(w, mlc_nn_basic_block(w->ctx, 4, 4, 1)); }
DO(mlc_nn_bottleneck)        { return run_on_square(w, mlc_nn_bottleneck(w->ctx, 4, 2, 3, 1)); }

DO(mlc_nn_inverted_residual)
{
    return run_on_square(w, mlc_nn_inverted_residual(w->ctx, 4, 4, 1, 2));
}

/* x as a sequence of four steps in three channels.                                              */
static mlc_status run_on_steps(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *steps = mlc_reshape(w->x, mlc_dims3(1, 3, 4));
    return steps ? keep(w, mlc_forward(m, steps)) : made(w, steps);
}

DO(mlc_nn_causal_conv1d) { return run_on_steps(w, mlc_nn_causal_conv1d(w->ctx, 3, 2, 2, 2)); }
DO(mlc_nn_tcn_block)     { return run_on_steps(w, mlc_nn_tcn_block(w->ctx, 3, 4, 2, 1, 0.5)); }

DO(mlc_nn_tcn)
{
    const mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(3, 4, 2);
    return run_on_steps(w, mlc_nn_tcn(w->ctx, &d));
}

DO(mlc_nn_residual)
{
    mlc_module *part[2] = {mlc_nn_linear(w->ctx, 4, 4), mlc_nn_linear(w->ctx, 4, 4)};
    mlc_module *m = part[0] && part[1] ? mlc_nn_residual(w->ctx, part[0], part[1], true) : NULL;
    return run_module(w, made_of(m, 2, part));
}

DO(mlc_nn_concat)
{
    mlc_module *part[2] = {mlc_nn_linear(w->ctx, 4, 3), mlc_nn_identity(w->ctx)};
    mlc_module *m = part[0] && part[1] ? mlc_nn_concat(w->ctx, -1, 2, part) : NULL;
    return run_module(w, made_of(m, 2, part));
}

/* x as a sequence of three times four features.                                                 */
static mlc_tensor *sequence_of(world *w) { return mlc_reshape(w->x, mlc_dims3(1, 3, 4)); }

static mlc_status run_on_sequence(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_forward(m, x)) : made(w, x);
}

/* x as keys, queries and values of two heads.                                                   */
static mlc_tensor *heads_of(world *w)
{
    return mlc_permute(mlc_reshape(w->x, mlc_dims4(1, 3, 2, 2)), mlc_dims4(0, 2, 1, 3));
}

DO(mlc_attention)
{
    mlc_tensor *x = heads_of(w);
    return x ? keep(w, mlc_attention(x, x, x)) : made(w, x);
}

DO(mlc_attention_ex)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_tensor        *x = heads_of(w);
    d.causal = true;
    d.mask = w->m;
    return x ? keep(w, mlc_attention_ex(x, x, x, &d)) : made(w, x);
}

DO(mlc_nn_multihead_attention)
{
    return run_on_sequence(w, mlc_nn_multihead_attention(w->ctx, 4, 2));
}

DO(mlc_nn_multihead_attention_ex)
{
    mlc_nn_multihead_attention_desc d = mlc_nn_multihead_attention_desc_make(4, 2);
    d.kv_heads = 1;
    d.no_bias = d.causal = true;
    return run_on_sequence(w, mlc_nn_multihead_attention_ex(w->ctx, &d));
}

DO(mlc_attention_forward)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_module        *m = mlc_nn_multihead_attention(w->ctx, 4, 2);
    d.causal = true;
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_attention_forward(m, x, NULL, NULL, &d)) : made(w, x);
}

DO(mlc_features)
{
    mlc_features_desc d = mlc_features_desc_make();
    d.n = 6;
    d.has_seed = true;
    return keep(w, mlc_features(w->ctx, 4, &d));
}

DO(mlc_features_attention)
{
    mlc_features_desc  d = mlc_features_desc_make();
    mlc_attention_desc a = mlc_attention_desc_make();
    mlc_tensor        *x = heads_of(w);
    if (x == NULL)
        return made(w, x);
    d.n = 3;
    d.has_seed = a.causal = true;
    mlc_tensor *f = mlc_features(w->ctx, mlc_dim(x, 3), &d);
    return f ? keep(w, mlc_features_attention(x, x, x, f, MLC_FEATURES_SOFTMAX, &a)) : made(w, f);
}

/* Matrices of one seed in a network, then a forward. */
static mlc_status run_features(world *w, mlc_module *m)
{
    mlc_features_desc d = mlc_features_desc_make();
    d.n = 3;
    d.has_seed = true;
    if (m == NULL || mlc_features_install(m, &d, NULL) != MLC_OK) {
        mlc_module_free(m);
        return mlc_ctx_status(w->ctx);
    }
    return run_on_sequence(w, m);
}
DO(mlc_features_install) { return run_features(w, mlc_nn_multihead_attention(w->ctx, 4, 2)); }

/* What is drawn again differs from run to run, so that no result is kept. */
DO(mlc_features_redraw)
{
    mlc_module *m = mlc_nn_multihead_attention(w->ctx, 4, 2);
    if (!own_module(w, m) || mlc_features_install(m, NULL, NULL) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return mlc_features_redraw(m);
}

DO(mlc_rnn)
{
    mlc_rnn_desc d = mlc_rnn_desc_make(MLC_RNN_LSTM);
    mlc_tensor  *out[3], *x = sequence_of(w), *weight = mlc_reshape(w->v, mlc_dims2(4, 1));
    d.bias = w->v;
    if (mlc_rnn(x, weight, &d, out) == MLC_OK)
        for (int i = 0; i < 3; i++)
            keep(w, out[i]);
    return mlc_ctx_status(w->ctx);
}

DO(mlc_nn_rnn)  { return run_on_sequence(w, mlc_nn_rnn(w->ctx, 4, 3)); }
DO(mlc_nn_gru)  { return run_on_sequence(w, mlc_nn_gru(w->ctx, 4, 2)); }
DO(mlc_nn_lstm) { return run_on_sequence(w, mlc_nn_lstm(w->ctx, 4, 2)); }

DO(mlc_nn_rnn_ex)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 4, 3);
    d.layer_norm = d.peepholes = d.time_first = true;
    d.layers = d.projection = 2;
    d.dropout = 0.5;
    return run_on_sequence(w, mlc_nn_rnn_ex(w->ctx, &d));
}

DO(mlc_nn_rnn_cell)
{
    const mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_GRU, 4, 3);
    return run_module(w, mlc_nn_rnn_cell(w->ctx, &d));
}

DO(mlc_nn_bidirectional)
{
    mlc_module *part[2] = {mlc_nn_gru(w->ctx, 4, 2), mlc_nn_linear(w->ctx, 4, 2)};
    mlc_module *m = part[0] && part[1] ? mlc_nn_bidirectional(w->ctx, part[0], part[1]) : NULL;
    return run_on_sequence(w, made_of(m, 2, part));
}

/* Three sequences of length 2, 0 and 1.                                                        */
DO(mlc_rnn_forward)
{
    static const int64_t length[3] = {2, 0, 1};
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 2, 3);
    mlc_tensor     *y, *state[2];
    d.bidirectional = true;
    d.layers = 2;
    mlc_module *m = mlc_nn_rnn_ex(w->ctx, &d);
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = mlc_reshape(w->x, mlc_dims3(3, 2, 2));
    mlc_tensor *lengths = x ? mlc_from(w->ctx, MLC_I64, mlc_dims1(3), length) : NULL;
    if (!lengths || mlc_rnn_forward(m, x, lengths, NULL, &y, state) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    keep(w, state[0]);
    keep(w, state[1]);
    return keep(w, y);
}

static mlc_nn_transformer_desc small_transformer(void)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(4, 2);
    d.hidden = 5;
    d.dropout = 0;
    return d;
}

DO(mlc_nn_transformer_encoder_layer)
{
    mlc_nn_transformer_desc d = small_transformer();
    d.gated = d.norm_first = d.rms_norm = true;
    return run_on_sequence(w, mlc_nn_transformer_encoder_layer(w->ctx, &d));
}

DO(mlc_nn_transformer_encoder)
{
    const mlc_nn_transformer_desc d = small_transformer();
    return run_on_sequence(w, mlc_nn_transformer_encoder(w->ctx, &d, 2));
}

static mlc_status run_decoder(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_transformer_forward(m, x, x, NULL, NULL)) : made(w, x);
}

DO(mlc_nn_transformer_decoder_layer)
{
    const mlc_nn_transformer_desc d = small_transformer();
    return run_decoder(w, mlc_nn_transformer_decoder_layer(w->ctx, &d));
}

DO(mlc_nn_transformer_decoder)
{
    const mlc_nn_transformer_desc d = small_transformer();
    return run_decoder(w, mlc_nn_transformer_decoder(w->ctx, &d, 1));
}

DO(mlc_transformer_forward)
{
    const mlc_nn_transformer_desc d = small_transformer();
    mlc_attention_desc            a = mlc_attention_desc_make();
    mlc_module                   *m = mlc_nn_transformer_encoder_layer(w->ctx, &d);
    a.causal = true;
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_transformer_forward(m, x, NULL, &a, NULL)) : made(w, x);
}

/* Three tokens, and a model of them.                                                            */
static mlc_status run_on_tokens(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 3));
    return x ? keep(w, mlc_forward(m, x)) : made(w, x);
}

static mlc_nn_gpt_desc small_gpt(void)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(5, 4, 1, 4, 2);
    d.layer.hidden = 5;
    d.layer.dropout = 0;
    return d;
}

DO(mlc_nn_gpt)
{
    const mlc_nn_gpt_desc d = small_gpt();
    return run_on_tokens(w, mlc_nn_gpt(w->ctx, &d));
}

DO(mlc_nn_gpt_desc_llama)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_llama(5, 4, 1, 4, 2);
    CHECK_EQ(mlc_nn_gpt_desc_make(5, 4, 1, 4, 2).layer.hidden, 16);
    d.layer.hidden = 3;
    return run_on_tokens(w, mlc_nn_gpt(w->ctx, &d));
}

DO(mlc_nn_bert)
{
    mlc_nn_bert_desc d = mlc_nn_bert_desc_make(5, 4, 1, 4, 2);
    d.layer.hidden = 5;
    d.layer.dropout = 0;
    return run_on_tokens(w, mlc_nn_bert(w->ctx, &d));
}

/* A cache with padding, whose sequence is taken twice, cut, and read on.                         */
static mlc_status read_cached(world *w, mlc_module *m, mlc_cache *c)
{
    static const int64_t padding[] = {1}, rows[] = {0, 0};
    mlc_status   st = mlc_cache_padding(c, padding, 1);
    mlc_tensor  *x = st == MLC_OK ? mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 3)) : NULL;
    mlc_tensor  *two = x ? mlc_expand(mlc_slice(x, 1, 0, 1, 1), mlc_dims2(2, 1)) : NULL;
    if (!two || !mlc_forward_cached(m, x, c))
        return mlc_ctx_status(w->ctx);
    st = mlc_cache_select(c, rows, 2);
    if (st == MLC_OK)
        st = mlc_cache_reset(c, 2);
    CHECK(st != MLC_OK || mlc_cache_length(c) == 2);
    return st == MLC_OK ? keep(w, mlc_forward_cached(m, two, c)) : st;
}

DO(mlc_forward_cached)
{
    const mlc_nn_gpt_desc d = small_gpt();
    const mlc_cache_desc  k = mlc_cache_desc_make(2, 4);
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    CHECK_EQ(mlc_cache_bytes(m, &k), 2 * 2 * 4 * 4 * 4 + 2 * 4 * 4);
    mlc_cache *c = mlc_cache_create(m, &k);
    if (!c)
        return mlc_ctx_status(w->ctx);
    const mlc_status st = read_cached(w, m, c);
    mlc_cache_free(c);
    return st;
}

/* States instead of keys and values: padding turns rows round, rows are taken twice.             */
DO(mlc_cache_create)
{
    static const int64_t padding[] = {1}, rows[] = {0, 0};
    const mlc_cache_desc k = mlc_cache_desc_make(2, 0);
    mlc_module          *m = mlc_nn_lstm(w->ctx, 2, 2);
    mlc_cache           *c = own_module(w, m) ? mlc_cache_create(m, &k) : NULL;
    mlc_tensor          *x = c ? mlc_ones(w->ctx, MLC_F32, mlc_dims3(1, 3, 2)) : NULL;
    mlc_tensor          *two = x ? mlc_ones(w->ctx, MLC_F32, mlc_dims3(2, 1, 2)) : NULL;
    mlc_status           st = two ? mlc_cache_padding(c, padding, 1) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK && !mlc_forward_cached(m, x, c))
        st = mlc_ctx_status(w->ctx);
    if (st == MLC_OK)
        st = mlc_cache_select(c, rows, 2);
    if (st == MLC_OK)
        st = keep(w, mlc_forward_cached(m, two, c));
    mlc_cache_free(c);
    return st;
}

DO(mlc_generate)
{
    const mlc_nn_gpt_desc d = small_gpt();
    const mlc_cache_desc  k = mlc_cache_desc_make(1, 4);
    mlc_generate_desc     g = mlc_generate_desc_make(2);
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    int64_t               out[2] = {0};
    mlc_cache            *c = own_module(w, m) ? mlc_cache_create(m, &k) : NULL;
    mlc_tensor           *x = c ? mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 2)) : NULL;
    g.repetition = 1.5;
    g.out = out;
    const mlc_status st = x ? mlc_generate(m, c, x, &g, NULL, NULL) : mlc_ctx_status(w->ctx);
    w->text = (uint64_t)(out[0] * 8 + out[1]);
    mlc_cache_free(c);
    return st;
}

DO(mlc_beam_search)
{
    const mlc_nn_gpt_desc d = small_gpt();
    const mlc_cache_desc  k = mlc_cache_desc_make(2, 4);
    const mlc_beam_desc   b = mlc_beam_desc_make(2, 2);
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    int64_t               out[2] = {0};
    mlc_cache            *c = own_module(w, m) ? mlc_cache_create(m, &k) : NULL;
    mlc_tensor           *x = c ? mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 2)) : NULL;
    const mlc_status st = x ? mlc_beam_search(m, c, x, &b, out, NULL) : mlc_ctx_status(w->ctx);
    w->text = st == MLC_OK ? (uint64_t)(out[0] * 8 + out[1]) : 0;
    mlc_cache_free(c);
    return st;
}

/* A convolution with a norm behind it, folded; its weight is also that of another module.        */
DO(mlc_nn_fold_batch_norm)
{
    mlc_module *net = mlc_nn_inverted_residual(w->ctx, 4, 3, 1, 1);
    if (!own_module(w, net) || mlc_module_tie(mlc_module_child(net, 2), "same",
                                              mlc_module_param(net, "0.weight")) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_fill_(mlc_module_param(net, "1.running_var"), 2);
    mlc_fill_(mlc_module_param(net, "4.running_var"), 2);
    if (mlc_nn_fold_batch_norm(net) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1));
    return image ? keep(w, mlc_forward(net, image)) : made(w, image);
}

DO(mlc_nn_refresh_batch_norm)
{
    mlc_module *net = mlc_nn_inverted_residual(w->ctx, 4, 3, 1, 1);
    if (!own_module(w, net))
        return mlc_ctx_status(w->ctx);
    if (mlc_nn_refresh_batch_norm(net, true) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1));
    return image ? keep(w, mlc_forward(net, image)) : made(w, image);
}

DO(mlc_nn_conv)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 3, 3, 3);
    d.conv.padding = mlc_dims1(1);
    d.padding_mode = MLC_PAD_REFLECT;
    d.no_bias = true;
    return run_on_image(w, mlc_nn_conv(w->ctx, &d));
}

DO(mlc_nn_batch_norm_ex)
{
    mlc_nn_batch_norm_desc d = mlc_nn_batch_norm_desc_make(3);
    d.no_affine = d.no_statistics = true;
    return run_on_image(w, mlc_nn_batch_norm_ex(w->ctx, &d));
}

DO(mlc_nn_max_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    d.stride = mlc_dims_all(1);
    return run_on_image(w, mlc_nn_max_pool(w->ctx, &d));
}

DO(mlc_nn_avg_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    d.padding = mlc_dims1(1);
    return run_on_image(w, mlc_nn_avg_pool(w->ctx, &d));
}

DO(mlc_nn_adaptive_avg_pool)
{
    return run_on_image(w, mlc_nn_adaptive_avg_pool(w->ctx, mlc_dims1(2)));
}

DO(mlc_nn_adaptive_max_pool)
{
    return run_on_image(w, mlc_nn_adaptive_max_pool(w->ctx, mlc_dims1(2)));
}

/* Of numbers alone, there is nothing to fail: mlc_sketch_cost_of, mlc_sketch_round,
 * mlc_sketch_part, mlc_sketch_size.                                                              */
static mlc_sketch sketch_of(mlc_sketch_kind kind, int64_t rows, int64_t cols)
{
    return mlc_sketch_make(kind, rows, cols, 3);
}

DO(mlc_sketch_apply)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_GAUSSIAN, 2, 3);
    return keep(w, mlc_sketch_apply(w->x, &s, 0));
}

DO(mlc_sketch_apply_t)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_SRHT, 4, 5);
    return keep(w, mlc_sketch_apply_t(w->x, &s, 1));
}

DO(mlc_sketch_matrix)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_COUNT, 4, 5);
    return made(w, mlc_sketch_matrix(w->ctx, &s, MLC_F32));
}

DO(mlc_sketch_bits)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_SIGNS, 4, 35);
    return made(w, mlc_sketch_bits(w->ctx, &s));
}

DO(mlc_sketch_add)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_SASO, 3, 3);
    return mlc_sketch_add(w->y, w->x, &s, 0, false);
}

DO(mlc_sketch_pass)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_SASO, 2, 3), t = sketch_of(MLC_SKETCH_UNIFORM, 2, 4);
    mlc_tensor      *out[2] = {NULL, NULL};
    if (mlc_sketch_pass(w->x, &s, &t, out) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    made(w, out[0]);
    return made(w, out[1]);
}

DO(mlc_sklinear)
{
    const mlc_sketch   u = sketch_of(MLC_SKETCH_SIGNS, 3, 4);
    const mlc_epilogue e = {MLC_ACT_GELU, 0.5, w->y};
    return keep(w, mlc_sklinear(w->x, w->y, w->x, w->v, &u, &u, 1, &e));
}

/* Each layer made draws another seed: the same for all here.                                     */
DO(mlc_nn_sklinear)
{
    const int64_t seed = 5;
    mlc_module   *m = mlc_nn_sklinear(w->ctx, 4, 2, 1, 2);
    if (!own_module(w, m) || mlc_write(mlc_module_param(m, "seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(m, w->x));
}

static mlc_status run_sklinear(world *w, mlc_sketch_start start, mlc_sketch_store store)
{
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(4, 3, 1, 2);
    d.weight = w->y;
    d.start = start;
    d.store = store;
    d.has_seed = true;
    return run_module(w, mlc_nn_sklinear_ex(w->ctx, &d));
}
DO(mlc_nn_sklinear_ex) { return run_sklinear(w, MLC_SKETCH_FIT, MLC_SKETCH_AS_BITS); }
DO(mlc_nn_sklinear_of_a_subspace)
{
    return run_sklinear(w, MLC_SKETCH_SUBSPACE, MLC_SKETCH_AS_FLOATS);
}

DO(mlc_nn_sklinear_panther)
{
    mlc_tensor *S1s = mlc_reshape(w->x, mlc_dims3(1, 4, 3)), *S2s = mlc_reshape(w->y,
                                                                               mlc_dims3(1, 3, 4));
    mlc_tensor *U1s = mlc_reshape(w->x, mlc_dims3(1, 3, 4)), *U2s = mlc_reshape(w->y,
                                                                               mlc_dims3(1, 4, 3));
    if (S1s == NULL || S2s == NULL || U1s == NULL || U2s == NULL)
        return mlc_ctx_status(w->ctx);
    return run_module(w, mlc_nn_sklinear_panther(w->ctx, S1s, S2s, U1s, U2s, w->v));
}

DO(mlc_sklinear_to_panther)
{
    mlc_tensor       *t[4];
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(4, 3, 2, 1);
    d.has_seed = true;
    mlc_module *m = mlc_nn_sklinear_ex(w->ctx, &d);
    if (!own_module(w, m) || mlc_sklinear_to_panther(m, t) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    for (int i = 0; i < 4; i++)
        made(w, t[i]);
    return MLC_OK;
}

DO(mlc_nn_skconv)
{
    mlc_nn_skconv_desc d = mlc_nn_skconv_desc_make(1, 3, 2, 3, 1, 1);
    d.has_seed = true;
    d.weight = mlc_randn(w->ctx, MLC_F32, mlc_dims3(2, 3, 3));
    return d.weight ? run_on_image(w, mlc_nn_skconv(w->ctx, &d)) : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_skconv2d)
{
    const int64_t seed = 5;
    mlc_module   *m = mlc_nn_skconv2d(w->ctx, 1, 3, 3, 1, 1);
    if (!own_module(w, m) || mlc_write(mlc_module_param(m, "seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 1, 4, 3));
    return image ? keep(w, mlc_forward(m, image)) : made(w, image);
}

/* Rows 0 and 1 of a table. */
static mlc_status run_table(world *w, mlc_module *m)
{
    static const int64_t at[2] = {0, 1};
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = mlc_from(w->ctx, MLC_I64, mlc_dims1(2), at);
    return x ? keep(w, mlc_forward(m, x)) : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_skembedding)
{
    const int64_t seed = 5;
    mlc_module   *m = mlc_nn_skembedding(w->ctx, 6, 4, 2);
    if (!own_module(w, m) || mlc_write(mlc_module_param(m, "seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return run_table(w, m);
}

static mlc_status run_skembedding(world *w, mlc_sketch_start start)
{
    mlc_nn_skembedding_desc d = mlc_nn_skembedding_desc_make(w->x->shape[0], w->x->shape[1], 2);
    double                  error;
    d.weight = w->x;
    d.start = start;
    d.error = &error;
    d.has_seed = true;
    return run_table(w, mlc_nn_skembedding_ex(w->ctx, &d));
}
DO(mlc_nn_skembedding_ex) { return run_skembedding(w, MLC_SKETCH_FIT); }
DO(mlc_nn_skembedding_of_a_subspace) { return run_skembedding(w, MLC_SKETCH_SUBSPACE); }

/* The gates of a layer. */
DO(mlc_sketch_model_of_gates)
{
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 2);
    const int64_t         seed = 5;
    mlc_module           *m = mlc_nn_gru(w->ctx, 4, 3);
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    d.larger_too = d.fresh = true;
    if (mlc_sketch_model(m, &d, NULL) != MLC_OK || !own_module(w, m) ||
        mlc_write(mlc_module_param(m, "ih_l0.seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_forward(m, x)) : made(w, x);
}

DO(mlc_sketch_model)
{
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 1);
    const int64_t         seed = 5;
    mlc_module           *net = mlc_nn_sequential(w->ctx);
    if (net == NULL)
        return mlc_ctx_status(w->ctx);
    w->module = net;
    mlc_module *leaf = mlc_nn_linear(w->ctx, 4, 6);
    if (leaf == NULL || mlc_module_add(net, leaf) != MLC_OK) {
        mlc_module_free(leaf);
        return mlc_ctx_status(w->ctx);
    }
    if (!own_module(w, net))
        return mlc_ctx_status(w->ctx);
    d.fresh = true;
    if (mlc_sketch_model(net, &d, NULL) != MLC_OK || !own_module(w, net) ||
        mlc_write(mlc_module_param(net, "0.seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(net, w->x));
}

/* linear 4 6, linear 6 4 in a sequential, in w. */
static mlc_module *to_reduce(world *w)
{
    mlc_module *net = mlc_nn_sequential(w->ctx);
    w->module = net;
    if (net == NULL)
        return NULL;
    for (int i = 0; i < 2; i++) {
        mlc_module *leaf = mlc_nn_linear(w->ctx, i ? 6 : 4, i ? 4 : 6);
        if (leaf == NULL || mlc_module_add(net, leaf) != MLC_OK) {
            mlc_module_free(leaf);
            return NULL;
        }
    }
    return own_module(w, net) ? net : NULL;
}

/* mlc_sketch_budget_make has nothing to fail. */
DO(mlc_sketch_model_within)
{
    mlc_sketch_budget b = mlc_sketch_budget_make(200);
    mlc_sketch_choice c[2];
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;  /* it needs factorisations */
    mlc_module *net = to_reduce(w);
    b.multiple = 1;
    b.rows = 0;
    w->loader = b.loader = net ? mlc_loader_ordered(w->ctx, w->leaf_x, NULL, 2) : NULL;
    if (b.loader == NULL)
        return mlc_ctx_status(w->ctx);
    if (mlc_sketch_model_within(net, &b, c, 2, NULL) != MLC_OK || !own_module(w, net))
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(net, w->x));
}

DO(mlc_sketch_model_as)
{
    const mlc_sketch_choice c = {"0", MLC_SKETCH_AS_LOWRANK, 2, 0, 0, 0, 0, 0};
    mlc_module             *net = to_reduce(w);
    if (net == NULL || mlc_sketch_model_as(net, &c, 1) != MLC_OK || !own_module(w, net))
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(net, w->x));
}

static mlc_module *to_quantize(world *w)
{
    mlc_module *net = mlc_nn_sequential(w->ctx), *leaf = mlc_nn_linear(w->ctx, 4, 6);
    w->module = net;
    if (leaf != NULL && net != NULL && mlc_module_add(net, leaf) == MLC_OK)
        return own_module(w, net) ? net : NULL;
    mlc_module_free(leaf);
    return NULL;
}

DO(mlc_quantize)
{
    mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_module *net = to_quantize(w);
    if (net == NULL || mlc_quantize(net, &d, NULL) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = mlc_detach(w->x);
    return x ? keep(w, mlc_forward(net, x)) : mlc_ctx_status(w->ctx);
}

/* One forward, by hand or of a loader, observed by histograms; a static network of it. */
static mlc_status run_calibration(world *w, bool by_loader)
{
    const mlc_calibrate_desc e = mlc_calibrate_desc_make(MLC_QUANT_SQUARES);
    mlc_quantize_desc        d = mlc_quantize_desc_make(MLC_QUANT_STATIC);
    mlc_module              *net = mlc_ctx_on_host(w->ctx) ? to_quantize(w) : NULL;
    mlc_tensor              *x = net == NULL ? NULL : mlc_detach(w->x);
    double                   range[2];
    if (x == NULL)
        return mlc_ctx_status(w->ctx);
    w->loader = by_loader ? mlc_loader_ordered(w->ctx, x, NULL, mlc_dim(x, 0)) : NULL;
    if (by_loader && w->loader == NULL)
        return mlc_ctx_status(w->ctx);
    d.calibration = by_loader ? mlc_calibrate(net, &e, w->loader, 1) : mlc_calibrate_begin(net, &e);
    mlc_calibration *c = (mlc_calibration *)(uintptr_t)d.calibration;
    mlc_status       st = c == NULL ? mlc_ctx_status(w->ctx) : MLC_OK;
    if (st == MLC_OK && !by_loader) {
        mlc_no_grad_begin(w->ctx);
        (void)mlc_forward(net, x);
        mlc_no_grad_end(w->ctx);
        st = mlc_ctx_status(w->ctx);
        st = first_of(st, mlc_calibrate_end(c));
    }
    if (st == MLC_OK) st = mlc_calibration_range(c, "0.weight", range);
    if (st == MLC_OK) st = mlc_quantize(net, &d, NULL);
    mlc_calibration_free(c);
    return st == MLC_OK ? keep(w, mlc_forward(net, x)) : st;
}

DO(mlc_calibrate_desc_make) { return run_calibration(w, false); }
DO(mlc_calibrate_begin)     { return run_calibration(w, false); }
DO(mlc_calibrate_end)       { return run_calibration(w, false); }
DO(mlc_calibration_range)   { return run_calibration(w, false); }
DO(mlc_calibration_free)    { return run_calibration(w, false); }
DO(mlc_calibrate)           { return run_calibration(w, true); }

static mlc_status run_fake_quantize(world *w)
{
    const mlc_fake_quantize_desc d = mlc_fake_quantize_desc_make();
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_tensor *scale = mlc_full(w->ctx, MLC_F32, mlc_dims1(1), 0.1);
    mlc_tensor *y = mlc_fake_quantize(w->x, scale, NULL, &d);
    return y == NULL ? mlc_ctx_status(w->ctx) : keep(w, y);
}
DO(mlc_fake_quantize_desc_make) { return run_fake_quantize(w); }
DO(mlc_fake_quantize)           { return run_fake_quantize(w); }

/* A step in training mode, then integers. */
static mlc_status run_quant_aware(world *w, bool learned)
{
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    d.learned = learned;
    mlc_module *net = mlc_ctx_on_host(w->ctx) ? to_quantize(w) : NULL;
    mlc_tensor *x = net == NULL ? NULL : mlc_detach(w->x);
    if (x == NULL)
        return mlc_ctx_status(w->ctx);
    mlc_status st = mlc_quant_aware_begin(net, &d);
    if (st != MLC_OK)
        return st;
    mlc_no_grad_begin(w->ctx);
    (void)mlc_forward(net, x);
    mlc_no_grad_end(w->ctx);
    st = mlc_ctx_status(w->ctx);
    if (st == MLC_OK) st = mlc_quant_aware_freeze(net, true);
    const mlc_tensor *weight = st == MLC_OK ? mlc_module_param(net, "0.weight") : NULL;
    if (weight == NULL)
        return mlc_ctx_status(w->ctx);
    st = mlc_quant_aware_end(net, NULL);
    CHECK_EQ(weight->dtype, st == MLC_OK ? MLC_I8 : MLC_F32);
    return st == MLC_OK ? keep(w, mlc_forward(net, x)) : st;
}

DO(mlc_quant_aware_desc_make) { return run_quant_aware(w, false); }
DO(mlc_quant_aware_begin)     { return run_quant_aware(w, true); }
DO(mlc_quant_aware_freeze)    { return run_quant_aware(w, false); }
DO(mlc_quant_aware_end)       { return run_quant_aware(w, true); }

static double first_output(void *user, mlc_module *net)
{
    world      *w = (world *)user;
    mlc_tensor *x = mlc_detach(w->x), *y = x == NULL ? NULL : mlc_forward(net, x);
    return y == NULL ? 0.0 : (double)mlc_f32(y)[0];
}

DO(mlc_quant_sensitivity)
{
    mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_module *net = to_quantize(w);
    if (net == NULL)
        return mlc_ctx_status(w->ctx);
    mlc_status st = mlc_quant_sensitivity(net, &d, first_output, w, NULL);
    return first_of(st, st ? st : mlc_ctx_status(w->ctx));
}

DO(mlc_quantize_tensor)
{
    const mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(8);
    mlc_quantized q;
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    const mlc_status st = mlc_quantize_tensor(w->x, &d, &q);
    return st != MLC_OK ? st : keep(w, mlc_dequantize_tensor(&q));
}

DO(mlc_nn_embedding_ex)
{
    mlc_nn_embedding_desc d = mlc_nn_embedding_desc_make(5, 2);
    d.embedding.has_padding_index = true;
    mlc_module *m = mlc_nn_embedding_ex(w->ctx, &d);
    mlc_tensor *y = own_module(w, m) ? mlc_forward(w->module, w->i) : NULL;
    if (y == NULL)
        return mlc_ctx_status(w->ctx);
    CHECK_EQ(mlc_ctx_status(w->ctx), MLC_OK);
    const mlc_status st = mlc_backward_from(y, NULL);
    return st != MLC_OK ? st : keep(w, mlc_grad(mlc_module_param(w->module, "weight")));
}

DO(mlc_nn_embedding)
{
    return own_module(w, mlc_nn_embedding(w->ctx, 5, 2)) ? keep(w, mlc_forward(w->module, w->i))
                                                         : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_linear_ex)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(4, 2);
    d.no_bias = true;
    return run_module(w, mlc_nn_linear_ex(w->ctx, &d));
}

static mlc_status scale_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)n_in; (void)n_out;
    out[0] = mlc_mul(in[0], mlc_add_scalar(mlc_module_param(m, "scale"),
                                           *(const double *)mlc_module_user(m)));
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static const mlc_module_class SCALE = {"Scale", scale_forward, NULL, NULL, 0, NULL};

static mlc_module *scale(world *w)
{
    const double   shift = 2;
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(w->ctx, &SCALE, &shift, sizeof shift);
    d = mlc_param_desc_make(mlc_dims1(4));
    d.init = MLC_INIT_CONSTANT;
    d.a = 3;
    if (m && mlc_module_declare(m, "scale", &d))
        return m;
    mlc_module_free(m);
    return NULL;
}

DO(mlc_module_create)  { return run_module(w, scale(w)); }
DO(mlc_module_declare) { return run_module(w, scale(w)); }

DO(mlc_module_tie)
{
    mlc_module *a = scale(w), *b = a ? mlc_module_create(w->ctx, &SCALE, NULL, 8) : NULL;
    mlc_module *root = b ? mlc_nn_sequential(w->ctx) : NULL;
    w->module = root;
    if (!root || mlc_module_add(root, a) != MLC_OK || mlc_module_add(root, b) != MLC_OK) {
        if (a && (!root || !mlc_module_child(root, 0))) mlc_module_free(a);
        if (b && (!root || !mlc_module_child(root, 1))) mlc_module_free(b);
        return mlc_ctx_status(w->ctx);
    }
    const mlc_status st = mlc_module_tie(b, "scale", mlc_module_param(a, "scale"));
    return st != MLC_OK ? mlc_ctx_status(w->ctx) : run_module(w, root);
}

DO(mlc_module_bind)
{
    static const float v[4] = {1, 2, 3, 4};
    mlc_module *a = scale(w);
    if (!own_module(w, a))
        return mlc_ctx_status(w->ctx);
    if (mlc_ctx_on_host(w->ctx) && mlc_module_bind(a, "scale", v) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(a, w->x));
}

DO(mlc_module_share)
{
    mlc_module *shared = mlc_ctx_on_host(w->ctx) ? mlc_module_share(w->ctx, w->net)
                                                 : mlc_module_clone(w->net);
    w->module = shared;
    return shared ? keep(w, mlc_forward(shared, w->x)) : mlc_ctx_status(w->ctx);
}

/* Four linear layers, one of them three modules deep; NULL children become the error.          */
static mlc_module *tower(world *w)
{
    mlc_module *root = mlc_nn_sequential(w->ctx), *inner = mlc_nn_sequential(w->ctx);
    mlc_module *leaf = mlc_nn_linear(w->ctx, 4, 4);
    w->module = root;
    if (mlc_module_add_named(inner, "leaf", leaf) != MLC_OK)
        mlc_module_free(leaf);
    if (mlc_module_add(root, inner) != MLC_OK)
        mlc_module_free(inner);
    for (int i = 0; i < 3; i++) {
        leaf = mlc_nn_linear(w->ctx, 4, 4);
        if (mlc_module_add(root, leaf) != MLC_OK)
            mlc_module_free(leaf);
    }
    return mlc_ctx_status(w->ctx) == MLC_OK ? root : NULL;
}

DO(mlc_module_add)       { return made(w, tower(w)); }
DO(mlc_module_add_named) { return run_module(w, tower(w)); }

DO(mlc_module_build)
{
    mlc_module *m = tower(w);
    return m ? mlc_module_build(m) : made(w, m);
}

DO(mlc_module_find)
{
    mlc_module *m = tower(w), *leaf = m ? mlc_module_find(m, "0.leaf") : NULL;
    return leaf ? mlc_module_build(leaf) : made(w, m);
}

static bool keep_output(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)m;
    *(mlc_tensor **)user = out[n_out - 1];
    return true;
}

DO(mlc_module_hook)
{
    mlc_tensor *made_in = NULL;
    mlc_module_hook(mlc_module_child(w->net, 0), keep_output, &made_in);
    mlc_tensor *y = mlc_forward(w->net, w->v);
    mlc_module_hook(mlc_module_child(w->net, 0), NULL, NULL);
    return keep(w, y ? mlc_sum(made_in, mlc_dims0(), false) : NULL);
}

DO(mlc_module_param)
{
    mlc_module *m = tower(w);
    mlc_tensor *t = m ? mlc_module_param(m, "0.leaf.weight") : NULL;
    if (t)
        set_values(w, m);
    return keep(w, t);
}

DO(mlc_eval_begin)
{
    if (mlc_eval_begin(w->net) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *y = mlc_forward(w->net, w->x);
    CHECK_EQ(mlc_eval_end(w->net), MLC_OK);
    return keep(w, y);
}

CASE(mlc_eval_end, (mlc_eval_begin(w->net), mlc_eval_end(w->net), mlc_forward(w->net, w->x)))

static mlc_tensor *sum_of_parts(mlc_tensor *x)
{
    mlc_no_grad_begin(x->ctx);
    mlc_tensor *a = mlc_exp(x), *b = mlc_add(x, a);
    mlc_drop(a);
    mlc_no_grad_end(x->ctx);
    return b;
}

CASE(mlc_drop, sum_of_parts(w->x))

static mlc_status start_anew(world *w, mlc_init kind)
{
    const mlc_init_desc d = mlc_init_desc_make(kind);
    w->module = mlc_module_clone(w->net);
    if (!w->module || mlc_module_init(w->module, "*.weight", &d) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(w->module, w->x));
}

DO(mlc_module_init) { return start_anew(w, MLC_INIT_ORTHOGONAL); }
DO(mlc_module_init_of_normals) { return start_anew(w, MLC_INIT_KAIMING_NORMAL); }

DO(mlc_module_clone)
{
    mlc_module *clone = mlc_module_clone(w->net);
    w->module = clone;
    return clone ? keep(w, mlc_forward(clone, w->x)) : mlc_ctx_status(w->ctx);
}

/* A clone of other values takes the net's, or a share of them. */
static mlc_status into_a_clone(world *w, double share)
{
    w->module = mlc_module_clone(w->net);
    if (!w->module)
        return mlc_ctx_status(w->ctx);
    set_values(w, w->module);
    const mlc_status st = share == 1 ? mlc_module_copy(w->module, w->net)
                                     : mlc_module_mix(w->module, w->net, share);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_module_copy) { return into_a_clone(w, 1); }
DO(mlc_module_mix)  { return into_a_clone(w, 0.5); }

DO(mlc_state_bytes)
{
    w->module = mlc_nn_linear(w->ctx, 4, 4);
    if (!w->module)
        return mlc_ctx_status(w->ctx);
    const size_t bytes = mlc_state_bytes(w->module);
    CHECK((bytes > 80) == (mlc_ctx_status(w->ctx) == MLC_OK));
    return mlc_ctx_status(w->ctx);
}

static mlc_status save_and_load(world *w)
{
    char         block[512];
    const size_t bytes = mlc_state_bytes(w->net);
    if (!CHECK(bytes <= sizeof block))
        return MLC_ERR_INTERNAL;
    if (mlc_state_save(w->net, block, bytes) != MLC_OK ||
        mlc_state_load(w->net, block, bytes) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(w->net, w->x));
}

DO(mlc_state_save) { return save_and_load(w); }
DO(mlc_state_load) { return save_and_load(w); }

DO(mlc_module_rebuild)
{
    mlc_module_freeze(w->net, "0.*", true);
    return mlc_module_rebuild(w->net);
}

DO(mlc_module_to) { return mlc_module_to(w->net, MLC_F64); }

static mlc_status unfreeze(mlc_module *m, mlc_optim *opt)
{
    mlc_status st = mlc_module_freeze(m, "0.*", true);
    st = first_of(st, mlc_module_rebuild(m));
    mlc_optim_zero_grad(opt);
    st = first_of(st, mlc_optim_step(opt));                /* makes memory for gradients       */
    st = first_of(st, mlc_module_freeze(m, "2.bias", true));
    if (st != MLC_OK) return st;
    st = mlc_module_freeze(m, NULL, false);
    CHECK_EQ(mlc_module_numel(m, true), st == MLC_OK ? 43 : 15);
    return st;
}

DO(mlc_module_freeze)
{
    mlc_module *m = mlc_module_clone(w->net);
    mlc_optim  *opt = own_module(w, m) ? mlc_sgd(m, 0.1) : NULL;
    const mlc_status st = opt ? unfreeze(m, opt) : mlc_ctx_status(w->ctx);
    mlc_optim_free(opt);
    return st;
}

/* a's first layer is frozen; its weight has its memory in b's block, its bias in a's own. */
static mlc_status unfreeze_in_two_blocks(world *w, mlc_module *a, mlc_module *b)
{
    mlc_tensor *x = mlc_detach(w->x), *weight = mlc_module_param(b, "weight");
    if (!x || !weight) return mlc_ctx_status(w->ctx);
    mlc_module_tie(mlc_module_child(a, 0), "weight", weight);
    mlc_module_freeze(a, "0.*", true);
    if (mlc_module_build(a) == MLC_OK && mlc_module_rebuild(b) == MLC_OK) {
        mlc_backward_from(mlc_forward(a, x), NULL);
        mlc_backward_from(mlc_forward(b, x), NULL);
    }
    if (mlc_ctx_status(w->ctx) != MLC_OK) return mlc_ctx_status(w->ctx);
    const mlc_status st = mlc_module_freeze(a, NULL, false);
    CHECK_EQ(mlc_module_numel(a, true), st == MLC_OK ? 43 : 18);
    CHECK_EQ(mlc_module_numel(b, true), st == MLC_OK ? 25 : 5);
    return st;
}

DO(unfreeze_in_two_blocks)
{
    mlc_module *b = mlc_nn_linear(w->ctx, 4, 5);
    mlc_module *a = b ? mlc_module_clone(w->net) : NULL;
    const mlc_status st = own_module(w, a) ? unfreeze_in_two_blocks(w, a, b)
                                           : mlc_ctx_status(w->ctx);
    mlc_module_free(b);
    return st;
}

DO(mlc_module_forward)
{
    mlc_tensor *out = NULL;
    mlc_status  st = mlc_module_forward(w->net, &w->x, 1, &out, 1);
    CHECK_EQ(out != NULL, st == MLC_OK);
    return st == MLC_OK ? keep(w, out) : st;
}

CASE(mlc_forward, mlc_forward(w->net, w->x))

DO(mlc_param_next)
{
    mlc_module *m = tower(w);
    if (m == NULL)
        return made(w, m);
    mlc_param_iter it = mlc_param_iter_make(m);
    int            n = 0;
    while (mlc_param_next(&it))
        n++;
    if (n == 0)
        return mlc_ctx_status(w->ctx);
    CHECK_EQ(n, 8);
    return MLC_OK;
}

DO(mlc_module_numel)
{
    mlc_module *m = tower(w);
    if (m)
        CHECK_EQ(mlc_module_numel(m, true), 80);
    return made(w, m);
}

DO(mlc_summary) { return mlc_summary(w->net, mlc_dims2(7, 4), hash_text, w); }

/* Summarised, so that there is a copy on the device as well.                                   */
DO(mlc_print_ex)
{
    mlc_print_desc d = mlc_print_desc_make();
    d.threshold = 2;
    d.edge_items = 1;
    return mlc_print_ex(w->w, &d, hash_text, w);
}

DO(mlc_print) { return mlc_print(w->w, hash_text, w); }

/* Not to the standard output of the tests.                                                     */
DO(mlc_show)
{
    fflush(stdout);
    const int  kept = dup(1), away = open("/dev/null", O_WRONLY);
    CHECK(kept >= 0 && away >= 0 && dup2(away, 1) >= 0);      /* 0 in Windows */
    close(away);
    const mlc_status st = mlc_show(w->w);
    fflush(stdout);
    CHECK(dup2(kept, 1) >= 0);
    close(kept);
    return st;
}

/* A plan of a linear layer and what works on it.                                              */
static mlc_status run_plan(world *w)
{
    const mlc_plan_desc d = mlc_plan_desc_make();
    mlc_plan_report     r;
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_plan           *p = mlc_plan_capture(w->net, &w->x, 1, &d);
    if (p == NULL) return mlc_ctx_status(w->ctx);
    mlc_status st = mlc_plan_prepare(p, &w->x, 1);
    if (st == MLC_OK) st = mlc_plan_run(p, &w->x, 1, NULL, 0);
    if (st == MLC_OK) st = mlc_plan_use_block(p, NULL, 0);
    if (st == MLC_OK) {
        mlc_plan_evaluation u = {p, NULL};
        mlc_tensor           *y = NULL;
        mlc_batch             b = {0};
        b.x = w->x;
        CHECK(mlc_plan_forward(&u, w->net, &b, &y) == NULL);
        st = made(w, y);
    }
    if (st == MLC_OK) {
        CHECK(mlc_plan_output(p, 0) != NULL && mlc_plan_bytes(p) > 0);
        CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
        st = mlc_plan_print(p, hash_text, w);
    }
    mlc_plan_free(p);
    return st;
}

/* The same of a function.                                                                     */
static mlc_status plan_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_tanh(mlc_add(in[0], mlc_exp(in[0])));
    return mlc_ctx_status(ctx);
}

/* RMS norm and attention by their formulas. */
static mlc_status plan_formulas(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    const mlc_tensor *x = in[0];
    mlc_tensor       *one = mlc_reshape(in[0], mlc_dims4(1, 1, -1, x->shape[x->ndim - 1]));
    mlc_tensor       *v = mlc_mean(mlc_mul(one, one), mlc_dims1(-1), true);
    (void)user;
    (void)n_in;
    (void)n_out;
    one = mlc_mul(one, mlc_rsqrt(mlc_add_scalar(v, 1e-5)));
    out[0] = mlc_matmul(mlc_softmax(mlc_matmul(one, mlc_transpose(one, 2, 3)), -1), one);
    return mlc_ctx_status(ctx);
}

static mlc_status run_plan_parts(world *w)
{
    mlc_plan_desc   d = mlc_plan_desc_make();
    mlc_plan_report r = {0};
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    d.parts = mlc_plan_parts;
    mlc_plan        *p = mlc_plan_capture_fn(w->ctx, plan_formulas, NULL, &w->x, 1, &d);
    const mlc_status st = p != NULL ? mlc_plan_run(p, &w->x, 1, NULL, 0) : mlc_ctx_status(w->ctx);
    if (p != NULL) mlc_plan_report_of(p, &r);
    CHECK_EQ(r.fused, p != NULL ? 2 : 0);
    mlc_plan_free(p);
    return st;
}

static mlc_status run_plan_fn(world *w)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_plan        *p = mlc_plan_capture_fn(w->ctx, plan_forward, NULL, &w->x, 1, NULL);
    const mlc_status st = p != NULL ? mlc_plan_run(p, &w->x, 1, NULL, 0) : mlc_ctx_status(w->ctx);
    mlc_plan_free(p);
    return st;
}

DO(mlc_plan_desc_make)  { return run_plan(w); }
DO(mlc_plan_capture)    { return run_plan(w); }
DO(mlc_plan_capture_fn) { return run_plan_fn(w); }
DO(mlc_plan_parts)      { return run_plan_parts(w); }

static mlc_status step_loss(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = mlc_cross_entropy(mlc_forward(user, in[0]), in[1]);
    return mlc_ctx_status(ctx);
}

/* A captured step; file: and its file of C.                                                    */
static mlc_status run_step(world *w, bool file)
{
    const mlc_step_desc d = mlc_step_desc_make();
    mlc_tensor         *in[2] = {mlc_detach(w->x), w->labels};
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    if (in[0] == NULL) return mlc_ctx_status(w->ctx);
    mlc_optim  *o = mlc_sgd(w->net, 0.1);
    mlc_plan   *p = o != NULL ? mlc_plan_capture_step(o, step_loss, w->net, in, 2, &d) : NULL;
    mlc_status  st = p != NULL ? MLC_OK : mlc_ctx_status(w->ctx);
    if (st == MLC_OK && !file) st = mlc_plan_prepare(p, in, 2);
    if (st == MLC_OK && file) st = mlc_plan_write_step_c(p, to(w), NULL);
    mlc_plan_free(p);
    mlc_optim_free(o);
    return st;
}
DO(mlc_step_desc_make)    { return run_step(w, false); }
DO(mlc_plan_capture_step) { return run_step(w, false); }
DO(mlc_plan_write_step_c) { return run_step(w, true); }
DO(mlc_plan_run)        { return run_plan(w); }
DO(mlc_plan_forward)    { return run_plan(w); }
DO(mlc_plan_prepare)    { return run_plan(w); }
DO(mlc_plan_output)     { return run_plan(w); }
DO(mlc_plan_bytes)      { return run_plan(w); }
DO(mlc_plan_use_block)  { return run_plan(w); }
DO(mlc_plan_report_of)  { return run_plan(w); }
DO(mlc_plan_print)      { return run_plan(w); }
DO(mlc_plan_free)       { return run_plan(w); }

/* A plan, to a file of all sizes. */
DO(mlc_plan_save)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_tensor *few = mlc_slice(w->x, 0, 0, 2, 1);
    mlc_plan   *p = mlc_plan_capture(w->net, &w->x, 1, NULL);
    mlc_status  st = p != NULL ? mlc_plan_prepare(p, &few, 1) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) st = mlc_plan_save(p, to(w));
    mlc_plan_free(p);
    return st;
}

/* A plan of a file. */
DO(mlc_plan_load)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_plan  *p = mlc_plan_load(w->ctx, in(w, "plan.safetensors"), NULL);
    mlc_status st = p != NULL ? mlc_plan_run(p, &w->x, 1, NULL, 0) : mlc_ctx_status(w->ctx);
    mlc_plan_free(p);
    return st;
}
DO(mlc_optimize_for_production)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_plan        *p = mlc_optimize_for_production(w->net, w->x, MLC_PRODUCTION_INT8, NULL);
    const mlc_status st = p != NULL ? MLC_OK : mlc_ctx_status(w->ctx);
    mlc_plan_free(p);
    return st;
}

/* ---- files of ONNX -------------------------------------------------------------------------- */

/* A file that is loaded, printed and run. */
static mlc_status run_onnx(world *w, bool of_file)
{
    static pb          file;
    mlc_onnx_load_desc d = mlc_onnx_load_desc_make();
    mlc_onnx_value     v;
    onnx_small(&file);
    mlc_module *m = of_file ? mlc_onnx_load(w->ctx, in(w, "net.onnx"), &d)
                            : mlc_onnx_load_memory(w->ctx, file.data, file.n, &d);
    if (!own_module(w, m)) return mlc_ctx_status(w->ctx);
    mlc_onnx_input(m, 0, &v);
    mlc_onnx_output(m, 0, &v);
    const mlc_status st = mlc_onnx_print(m, hash_text, w);
    return first_of(st, st ? st : keep(w, mlc_forward(m, w->x)));
}
DO(mlc_onnx_load)           { return run_onnx(w, true); }
DO(mlc_onnx_load_memory)    { return run_onnx(w, false); }
DO(mlc_onnx_load_desc_make) { return run_onnx(w, false); }
DO(mlc_onnx_input)          { return run_onnx(w, false); }
DO(mlc_onnx_output)         { return run_onnx(w, false); }
DO(mlc_onnx_print)          { return run_onnx(w, false); }

/* A plan as a file of ONNX of all sizes. */
static mlc_status save_onnx(world *w)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
    mlc_tensor *few = mlc_slice(w->x, 0, 0, 2, 1);
    mlc_plan   *p = mlc_plan_capture(w->net, &w->x, 1, NULL);
    mlc_status  st = p != NULL ? mlc_plan_prepare(p, &few, 1) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) st = mlc_onnx_save(p, to(w), &d);
    mlc_plan_free(p);
    return st;
}
DO(mlc_onnx_save)           { return save_onnx(w); }
DO(mlc_onnx_save_desc_make) { return save_onnx(w); }

/* A plan as a file of C, with a self-test. */
static mlc_status save_c(world *w)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_plan_c_desc d = mlc_plan_c_desc_make();
    mlc_plan       *p = mlc_plan_capture(w->net, &w->x, 1, NULL);
    d.self_test = true;
    const mlc_status st = p != NULL ? mlc_plan_write_c(p, to(w), &d) : mlc_ctx_status(w->ctx);
    mlc_plan_free(p);
    return st;
}
DO(mlc_plan_write_c)        { return save_c(w); }
DO(mlc_plan_c_desc_make)    { return save_c(w); }

/* What a server tells of itself is there without memory, too; only times are 0 then. */
static void look_at_server(mlc_server *s)
{
    char            text[8192];
    mlc_serve_stats st;
    mlc_serve_value v;
    CHECK(mlc_serve_models(s) == 1 && mlc_serve_model_name(s, 0) != NULL);
    CHECK(mlc_serve_stats_of(s, "net", &st) && st.requests == 1);
    CHECK(mlc_serve_stats_print(s, text, sizeof text) < sizeof text);
    CHECK(mlc_serve_prometheus(s, text, sizeof text) < sizeof text);
    CHECK(mlc_serve_model_input(s, "net", 0, &v) && mlc_serve_model_output(s, "net", 0, &v));
}

/* Waits for a reply, whose output becomes the scenario's text. */
static mlc_status take_reply(world *w, mlc_reply *r)
{
    mlc_status why = MLC_OK;
    if (!r) return mlc_raise(w->ctx, MLC_ERR_NOMEM, "no memory for a reply");
    const mlc_answer a = mlc_serve_wait(r, -1);
    CHECK_EQ(mlc_serve_answer(r), a);
    CHECK(mlc_serve_answer_name(a) != NULL && mlc_serve_error(r, &why) != NULL);
    if (a == MLC_ANSWER_OK) hash_text(w, (const char *)mlc_serve_output(r, 0)->data, 8);
    else mlc_raise(w->ctx, why, "%s", mlc_serve_error(r, NULL));
    mlc_serve_cancel(r);
    mlc_serve_free(r);
    return a == MLC_ANSWER_OK ? MLC_OK : why;
}

/* One request of a model that is polled, before and after a reload. */
DO(mlc_serve_submit)
{
    static const float   x[4] = {1, 2, 3, 4};
    const mlc_serve_desc none = mlc_serve_desc_make();
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_server          *s = mlc_serve_create(w->ctx, &none);
    mlc_serve_model_desc d = mlc_serve_model_desc_make("net", w->net, &w->x);
    mlc_serve_array      a = {MLC_F32, 2, {1, 4}, x};
    mlc_request          q = mlc_request_make("net", &a);
    mlc_reply           *r = NULL;
    d.workers = 0;
    d.batch = 2;
    mlc_status st = s ? mlc_serve_model(s, &d) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) st = mlc_serve_reload(s, "net", in(w, "net.safetensors"));
    if (st == MLC_OK) {
        mlc_serve_submit(s, &q, &r);
        st = take_reply(w, r);
    }
    if (st == MLC_OK) look_at_server(s);
    CHECK(!mlc_serve_poll(s) && !mlc_serve_is_text(s, "net"));
    mlc_serve_stop(s);
    mlc_serve_end(s);
    return st;
}

/* A text of two tokens. */
DO(mlc_serve_generate)
{
    static const int64_t  prompt[2] = {1, 0};
    const mlc_nn_gpt_desc d = small_gpt();
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    mlc_server           *s = own_module(w, m) ? mlc_serve_create(w->ctx, NULL) : NULL;
    mlc_serve_generator_desc g = mlc_serve_generator_desc_make("net", m, 4);
    mlc_serve_text        t = mlc_serve_text_make("net", prompt, 2, 2);
    mlc_reply            *r = NULL;
    g.workers = 0;
    g.streams = 2;
    t.how.repetition = 1.5;
    mlc_status st = s ? mlc_serve_generator(s, &g) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) {
        mlc_serve_generate(s, &t, &r);
        st = take_reply(w, r);
    }
    mlc_serve_end(s);
    return st;
}
