/* test_onnx_networks.c -- networks of examples/ and bench/ as files of ONNX
 *
 * Each network, of few features, is written by mlc_onnx_save and read again by mlc_onnx_load: the
 * forward and the import have the outputs that ONNX Runtime computed of the file
 * (tests/golden/make_onnx_network_goldens.py). Of tests/plans.h are those that test_onnx_save.c
 * writes; operations of a program (examples/tasks/custom_op.c) are refused by mlc_plan_capture.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "onnx_saved.h"

/* ---- examples -------------------------------------------------------------------------------- */

/* digits.c, fit.c, tasks/resume.c, cpp/model.cpp: scaled pixels, dropout. */
static mlc_module *digits(mlc_ctx *ctx)
{
    mlc_module *scale = mlc_nn_min_max(ctx, 64, 0, 1);
    mlc_nn_scale_fit(scale, test_rand(ctx, MLC_F32, mlc_dims2(9, 64), 8, 0, 16));
    return MLC_SEQUENTIAL(ctx, scale, mlc_nn_linear(ctx, 64, 24), mlc_nn_relu(ctx),
                          mlc_nn_dropout(ctx, 0.2), mlc_nn_linear(ctx, 24, 10));
}

/* tabular.c, tasks/houses.c, tasks/predict.c, tasks/sweep.c. */
static mlc_module *tabular(mlc_ctx *ctx)
{
    mlc_module *scale = mlc_nn_standardize(ctx, 4);
    mlc_nn_scale_fit(scale, test_rand(ctx, MLC_F32, mlc_dims2(9, 4), 8, 2, 7));
    return MLC_SEQUENTIAL(ctx, scale, mlc_nn_linear(ctx, 4, 16), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 16, 3));
}

/* tasks/autoencoder.c. */
static mlc_module *autoencoder(mlc_ctx *ctx)
{
    mlc_module *encoder = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 16, 12), mlc_nn_relu(ctx),
                                         mlc_nn_linear(ctx, 12, 4));
    mlc_module *decoder = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 12), mlc_nn_relu(ctx),
                                         mlc_nn_linear(ctx, 12, 16), mlc_nn_sigmoid(ctx));
    return MLC_SEQUENTIAL(ctx, encoder, decoder);
}

/* x and noise [b,4]: the image of mean + exp(variance / 2) noise, mean, logs of the variances. */
static mlc_status variational(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = (mlc_module *)user;
    mlc_tensor *code = mlc_forward(mlc_module_child(net, 0), in[0]);
    (void)n_in;
    (void)n_out;
    out[1] = mlc_slice(code, 1, 0, 4, 1);
    out[2] = mlc_slice(code, 1, 4, 8, 1);
    mlc_tensor *noise = mlc_mul(mlc_exp(mlc_mul_scalar(out[2], 0.5)), in[1]);
    out[0] = mlc_forward(mlc_module_child(net, 1), mlc_add(out[1], noise));
    return mlc_ctx_status(ctx);
}

static mlc_module *variational_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 16, 8),
                          MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 16), mlc_nn_sigmoid(ctx)));
}

/* tasks/gan.c: the critic of what the generator makes. */
static mlc_module *gan(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(
        ctx, MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 8, 16), mlc_nn_relu(ctx),
                            mlc_nn_linear(ctx, 16, 2)),
        MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 16), mlc_nn_leaky_relu(ctx, 0.2),
                       mlc_nn_linear(ctx, 16, 1)));
}

/* tasks/spiral.c, tasks/xor.c, tasks/dqn.c: three layers. */
static mlc_module *spiral(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 16), mlc_nn_tanh(ctx),
                          mlc_nn_linear(ctx, 16, 16), mlc_nn_tanh(ctx), mlc_nn_linear(ctx, 16, 2));
}

/* tasks/module.c: y[i][j] = exp(-|scale[j] (x[i] - center[j])|^2). */
static mlc_tensor *rbf_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    mlc_tensor *away = mlc_sub(mlc_unsqueeze(x, 1), mlc_module_param(m, "center"));
    (void)e;
    away = mlc_mul(away, mlc_module_param(m, "scale"));
    return mlc_exp(mlc_neg(mlc_sum(mlc_square(away), mlc_dims1(2), false)));
}

static mlc_module *rbf(mlc_ctx *ctx)
{
    static const mlc_module_class cls = {"RBF", NULL, NULL, rbf_call, 0, NULL};
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, 0);
    mlc_param_desc center = mlc_param_desc_make(mlc_dims2(12, 2));
    mlc_param_desc scale = mlc_param_desc_make(mlc_dims2(12, 1));
    center.init = scale.init = MLC_INIT_UNIFORM;
    center.a = -2;
    center.b = scale.b = 2;
    mlc_module_declare(m, "center", &center);
    mlc_module_declare(m, "scale", &scale);
    return MLC_SEQUENTIAL(ctx, m, mlc_nn_linear(ctx, 12, 1));
}

#ifndef MLC_NO_VISION
static mlc_module *same_conv(mlc_ctx *ctx, int64_t in, int64_t out, int64_t kernel)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, in, out, kernel);
    d.conv.same = true;
    d.no_bias = true;
    return mlc_nn_conv(ctx, &d);
}

/* digits_cnn.c, tasks/mnist.c. */
static mlc_module *digits_cnn(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(
        ctx, same_conv(ctx, 1, 6, 5), mlc_nn_batch_norm(ctx, 6), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2), same_conv(ctx, 6, 8, 3), mlc_nn_batch_norm(ctx, 8),
        mlc_nn_relu(ctx), mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx), mlc_nn_dropout(ctx, 0.3),
        mlc_nn_linear(ctx, 32, 10));
}

/* quantize_digits.c; with its batch norms folded. */
static mlc_module *rows_cnn(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_unflatten(ctx, 1, mlc_dims3(1, 8, 8)),
                          mlc_nn_conv2d(ctx, 1, 6, 3, 1, 1), mlc_nn_batch_norm(ctx, 6),
                          mlc_nn_relu(ctx), mlc_nn_conv2d(ctx, 6, 8, 3, 1, 1),
                          mlc_nn_batch_norm(ctx, 8), mlc_nn_relu(ctx), mlc_nn_max_pool2d(ctx, 2),
                          mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 128, 10));
}

#ifndef MLC_NO_PRUNE
/* prune_digits.c: half of the channels of a convolution removed. */
static mlc_module *pruned(mlc_ctx *ctx)
{
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_module    *net = MLC_SEQUENTIAL_NAMED(
        ctx, {"first", mlc_nn_conv2d(ctx, 1, 4, 3, 1, 1)}, {"norm1", mlc_nn_batch_norm(ctx, 4)},
        {"relu1", mlc_nn_relu(ctx)}, {"conv2", mlc_nn_conv2d(ctx, 4, 8, 3, 1, 1)},
        {"norm2", mlc_nn_batch_norm(ctx, 8)}, {"relu2", mlc_nn_relu(ctx)},
        {"pool2", mlc_nn_max_pool2d(ctx, 2)}, {"flat", mlc_nn_flatten(ctx)},
        {"classes", mlc_nn_linear(ctx, 128, 10)});
    d.unit = MLC_PRUNE_CHANNELS;
    d.pattern = "conv2.weight";
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_OK);
    return net;
}
#endif

/* bench.c, net_cnn_: a convolutional network of 3x3 convolutions without padding. */
static mlc_module *bench_cnn(mlc_ctx *ctx)
{
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    return MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 1, 4, 3, 1, 0), mlc_nn_relu(ctx),
                          mlc_nn_max_pool(ctx, &two), mlc_nn_conv2d(ctx, 4, 6, 3, 1, 0),
                          mlc_nn_relu(ctx), mlc_nn_max_pool(ctx, &two), mlc_nn_flatten(ctx),
                          mlc_nn_linear(ctx, 54, 16), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 16, 10));
}

/* bench.c, infer_resnet20_: batch norms folded into the convolutions, which add and activate. */
static mlc_module *folded(mlc_ctx *ctx)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_basic_block(ctx, 3, 4, 1),
                                     mlc_nn_basic_block(ctx, 4, 8, 2),
                                     mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(1, 1)),
                                     mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 8, 10));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    return net;
}
#endif

static mlc_tensor *turned(void *user, mlc_tensor *x) { (void)user; return mlc_transpose(x, 1, 2); }

#if !defined(MLC_NO_VISION) && !defined(MLC_NO_RECURRENT)
/* forecast.c: [b,t,3] to [b,t,2], by a TCN. */
static mlc_module *forecast_tcn(mlc_ctx *ctx)
{
    mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(3, 8, 3);
    mlc_module     *scale = mlc_nn_standardize(ctx, 3);
    mlc_nn_scale_fit(scale, test_rand(ctx, MLC_F32, mlc_dims2(9, 3), 8, -2, 3));
    d.kernel = 3;
    d.dropout = 0.1;
    return MLC_SEQUENTIAL(ctx, scale, mlc_nn_lambda(ctx, turned, NULL), mlc_nn_tcn(ctx, &d),
                          mlc_nn_conv1d(ctx, 8, 2, 1, 1, 0), mlc_nn_lambda(ctx, turned, NULL));
}

/* The same by an LSTM. */
static mlc_module *forecast_lstm(mlc_ctx *ctx)
{
    mlc_module *scale = mlc_nn_standardize(ctx, 3);
    mlc_nn_scale_fit(scale, test_rand(ctx, MLC_F32, mlc_dims2(9, 3), 8, -2, 3));
    return MLC_SEQUENTIAL(ctx, scale, mlc_nn_lstm(ctx, 3, 8), mlc_nn_lambda(ctx, turned, NULL),
                          mlc_nn_conv1d(ctx, 8, 2, 1, 1, 0),
                          mlc_nn_lambda(ctx, turned, NULL));
}

/* A week x [1,1,3] after the state h, c [1,1,8]: what the LSTM says, and the state after it. */
static mlc_status streamed(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = (mlc_module *)user;
    mlc_tensor *y = mlc_forward(mlc_module_child(net, 0), in[0]);
    (void)n_in;
    (void)n_out;
    if (mlc_rnn_forward(mlc_module_child(net, 1), y, NULL, in + 1, &y, out + 1) != MLC_OK)
        return mlc_ctx_status(ctx);
    for (int c = 2; c < 5; c++) y = mlc_forward(mlc_module_child(net, c), y);
    out[0] = y;
    return mlc_ctx_status(ctx);
}
#endif

#ifndef MLC_NO_RECURRENT
static mlc_tensor *last_step(void *user, mlc_tensor *y)
{
    (void)user;
    return mlc_select(y, 1, mlc_dim(y, 1) - 1);
}

/* quantize_digits.c: rows of an image through an LSTM. */
static mlc_module *rows_lstm(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_unflatten(ctx, 1, mlc_dims2(4, 6)), mlc_nn_lstm(ctx, 6, 12),
                          mlc_nn_lambda(ctx, last_step, NULL), mlc_nn_linear(ctx, 12, 10));
}

/* tasks/text.c: the class of a text of bytes, without lengths. */
static mlc_status classified(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                             mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = (mlc_module *)user;
    mlc_tensor *x = mlc_forward(mlc_module_child(net, 0), in[0]), *y, *state[2];
    (void)n_in;
    (void)n_out;
    if (mlc_rnn_forward(mlc_module_child(net, 1), x, NULL, NULL, &y, state) != MLC_OK)
        return mlc_ctx_status(ctx);
    out[0] = mlc_forward(mlc_module_child(net, 2), mlc_select(state[0], 0, 0));
    return mlc_ctx_status(ctx);
}

static mlc_module *classifier(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, 40, 6), mlc_nn_lstm(ctx, 6, 10),
                          mlc_nn_linear(ctx, 10, 2));
}

/* bench_recurrent.h: scores of each place, by two layers of a kind. */
static mlc_module *recurrent(mlc_ctx *ctx, mlc_rnn_kind kind)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind, 6, 8);
    d.layers = 2;
    return MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, 40, 6), mlc_nn_rnn_ex(ctx, &d),
                          mlc_nn_linear(ctx, 8, 40));
}
static mlc_module *bench_lstm(mlc_ctx *ctx) { return recurrent(ctx, MLC_RNN_LSTM); }
static mlc_module *bench_gru(mlc_ctx *ctx) { return recurrent(ctx, MLC_RNN_GRU); }

/* bench_plan.h, infer_lstm_1x64_step: x, h, c to y, h, c. */
static mlc_module *step_lstm(mlc_ctx *ctx) { return mlc_nn_lstm(ctx, 6, 6); }
#endif

#ifndef MLC_NO_ATTENTION
/* char_gpt.c, tiny_budget.c, tasks/generate.c. */
static mlc_module *char_gpt(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(40, 12, 2, 16, 2);
    d.layer.dropout = 0.1;
    return mlc_nn_gpt(ctx, &d);
}

#ifndef MLC_NO_LORA
/* adapt_gpt.c: adapters beside the weights of attention and of linear layers. */
static mlc_module *adapted_gpt(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc     d = mlc_nn_gpt_desc_make(40, 12, 1, 16, 2);
    const mlc_lora_desc l = mlc_lora_desc_make(2, 4);
    mlc_module         *net = mlc_nn_gpt(ctx, &d);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_lora(net, &l, NULL), MLC_OK);
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
        if (strstr(it.name, "lora_B") != NULL)
            mlc_copy_into(it.tensor, test_rand(ctx, MLC_F32, mlc_dims_of(it.tensor->ndim,
                                                                        it.tensor->shape), 5, -1,
                                               1));
    return net;
}

/* The same, merged. */
static mlc_module *merged_gpt(mlc_ctx *ctx)
{
    mlc_module *net = adapted_gpt(ctx);
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    return net;
}
#endif

/* bench_language.h: norms first, and classes of each element. */
static mlc_module *bench_encoder(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(16, 2);
    d.hidden = 32;
    d.dropout = 0;
    d.act = MLC_ACT_GELU;
    d.norm_first = true;
    return MLC_SEQUENTIAL(ctx, mlc_nn_transformer_encoder(ctx, &d, 2),
                          mlc_nn_linear(ctx, d.embed, 6));
}
#endif

/* bench_plan.h, infer_apart_encoder_: a layer norm, heads and GELU by their formulas. */
static mlc_status written_out(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = (mlc_module *)user;
    mlc_tensor *x = in[0], *part[3];
    mlc_tensor *d = mlc_sub(x, mlc_mean(x, mlc_dims1(-1), true));
    mlc_tensor *v = mlc_mean(mlc_pow_scalar(d, 2.0), mlc_dims1(-1), true);
    mlc_tensor *z = mlc_div(d, mlc_sqrt(mlc_add_scalar(v, 1e-5)));
    mlc_tensor *qkv = mlc_forward(mlc_module_child(net, 0), z);
    (void)n_in;
    (void)n_out;
    for (int i = 0; i < 3; i++)
        part[i] = mlc_transpose(mlc_reshape(mlc_slice(qkv, -1, 8 * i, 8 * i + 8, 1),
                                            mlc_dims4(mlc_dim(x, 0), mlc_dim(x, 1), 2, 4)), 1, 2);
    mlc_tensor *s = mlc_div_scalar(mlc_matmul(part[0], mlc_transpose(part[1], 2, 3)), 2.0);
    z = mlc_transpose(mlc_matmul(mlc_softmax(s, -1), part[2]), 1, 2);
    x = mlc_add(x, mlc_reshape(z, mlc_dims3(mlc_dim(x, 0), mlc_dim(x, 1), 8)));
    x = mlc_forward(mlc_module_child(net, 1), x);
    mlc_tensor *e = mlc_add_scalar(mlc_erf(mlc_div_scalar(x, 1.4142135623730951)), 1.0);
    out[0] = mlc_mul_scalar(mlc_mul(x, e), 0.5);
    return mlc_ctx_status(ctx);
}

static mlc_module *written_out_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 8, 24), mlc_nn_linear(ctx, 8, 8));
}

#ifndef MLC_NO_SKETCH
/* sketch_digits.c and bench.c, sk_: two terms in place of the weight. */
static mlc_module *sketch_digits(mlc_ctx *ctx)
{
    const mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(32, 32, 2, 4);
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 16, 32), mlc_nn_relu(ctx),
                          mlc_nn_sklinear_ex(ctx, &d), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 32, 10));
}
#endif

/* ---- cases ----------------------------------------------------------------------------------- */

/* A network and its inputs; forward NULL: the module's. Floats, or tokens below vocab. */
typedef struct kind {
    const char  *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    mlc_plan_fn  forward;
    int32_t      n_in, n_out;
    int64_t      in[3][5];             /* sizes, ended by 0                                     */
    int64_t      vocab;
} kind;

static const kind KINDS[] = {
    {"digits", digits, NULL, 1, 1, {{2, 64}}, 0},
    {"tabular", tabular, NULL, 1, 1, {{2, 4}}, 0},
    {"autoencoder", autoencoder, NULL, 1, 1, {{2, 16}}, 0},
    {"variational", variational_net, variational, 2, 3, {{2, 16}, {2, 4}}, 0},
    {"gan", gan, NULL, 1, 1, {{2, 8}}, 0},
    {"spiral", spiral, NULL, 1, 1, {{2, 2}}, 0},
    {"rbf", rbf, NULL, 1, 1, {{2, 2}}, 0},
    {"written_out", written_out_net, written_out, 1, 1, {{2, 5, 8}}, 0},
#ifndef MLC_NO_VISION
    {"digits_cnn", digits_cnn, NULL, 1, 1, {{2, 1, 8, 8}}, 0},
    {"rows_cnn", rows_cnn, NULL, 1, 1, {{2, 64}}, 0},
    {"bench_cnn", bench_cnn, NULL, 1, 1, {{2, 1, 18, 18}}, 0},
    {"folded", folded, NULL, 1, 1, {{2, 3, 8, 8}}, 0},
#  ifndef MLC_NO_PRUNE
    {"pruned", pruned, NULL, 1, 1, {{2, 1, 8, 8}}, 0},
#  endif
#  ifndef MLC_NO_RECURRENT
    {"forecast_tcn", forecast_tcn, NULL, 1, 1, {{2, 9, 3}}, 0},
    {"forecast_lstm", forecast_lstm, NULL, 1, 1, {{2, 9, 3}}, 0},
    {"streamed", forecast_lstm, streamed, 3, 3, {{1, 1, 3}, {1, 1, 8}, {1, 1, 8}}, 0},
#  endif
#endif
#ifndef MLC_NO_RECURRENT
    {"rows_lstm", rows_lstm, NULL, 1, 1, {{2, 24}}, 0},
    {"classifier", classifier, classified, 1, 1, {{2, 7}}, 40},
    {"bench_lstm", bench_lstm, NULL, 1, 1, {{2, 5}}, 40},
    {"bench_gru", bench_gru, NULL, 1, 1, {{2, 5}}, 40},
    {"step_lstm", step_lstm, NULL, 3, 3, {{1, 1, 6}, {1, 1, 6}, {1, 1, 6}}, 0},
#endif
#ifndef MLC_NO_ATTENTION
    {"char_gpt", char_gpt, NULL, 1, 1, {{2, 9}}, 40},
    {"bench_encoder", bench_encoder, NULL, 1, 1, {{2, 5, 16}}, 0},
#  ifndef MLC_NO_LORA
    {"adapted_gpt", adapted_gpt, NULL, 1, 1, {{2, 9}}, 40},
    {"merged_gpt", merged_gpt, NULL, 1, 1, {{2, 9}}, 40},
#  endif
#endif
#ifndef MLC_NO_SKETCH
    {"sketch_digits", sketch_digits, NULL, 1, 1, {{2, 16}}, 0},
#endif
};

/* Statistics of batch norms as after a training. */
static void stir(mlc_ctx *ctx, mlc_module *net)
{
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);) {
        const bool mean = strstr(it.name, "running_mean") != NULL;
        if (!mean && strstr(it.name, "running_var") == NULL) continue;
        mlc_copy_into(it.tensor, test_rand(ctx, MLC_F32, mlc_dims1(mlc_numel(it.tensor)), 6,
                                           mean ? -0.5 : 0.5, mean ? 0.5 : 2));
    }
}

/* Inputs of a case; more: rows of axis 0 beside those of the table. */
static void inputs(mlc_ctx *ctx, const kind *k, int64_t more, mlc_tensor **in)
{
    for (int32_t i = 0; i < k->n_in; i++) {
        mlc_dims d = mlc_dims0();
        while (k->in[i][d.n]) { d.v[d.n] = k->in[i][d.n] + (d.n ? 0 : more); d.n++; }
        in[i] = k->vocab ? test_tokens(ctx, d, k->vocab, 3)
                         : test_rand(ctx, MLC_F32, d, 40 + (uint64_t)i, -1, 1);
    }
}

static mlc_status forward_of(mlc_ctx *ctx, const kind *k, mlc_module *net, mlc_tensor *const *in,
                             mlc_tensor **out)
{
    return k->forward ? k->forward(ctx, net, in, k->n_in, out, k->n_out)
                      : mlc_module_forward(net, in, k->n_in, out, k->n_out);
}

/* A plan of all batches, but for one of a state, whose batch is another axis. */
static mlc_plan *plan_of_all(mlc_ctx *ctx, const kind *k, mlc_module *net)
{
    mlc_tensor   *in[3];
    mlc_plan_desc d = with(PLAIN);
    d.n_out = k->n_out;
    inputs(ctx, k, 0, in);
    mlc_plan *p = k->forward ? mlc_plan_capture_fn(ctx, k->forward, net, in, k->n_in, &d)
                             : mlc_plan_capture(net, in, k->n_in, &d);
    if (k->n_in < 3) {
        inputs(ctx, k, 1, in);
        CHECK_EQ(mlc_plan_prepare(p, in, k->n_in), MLC_OK);
    }
    return p;
}

/* Holds outputs against those of ONNX Runtime. */
static void held(const golden_file *g, const kind *k, mlc_tensor *const *out, const char *what,
                 double near)
{
    for (int32_t i = 0; i < k->n_out; i++) {
        mlc_tensor  *want = golden_find(g, "%s.y%d", k->name, i);
        const double off = want != NULL ? apart(out[i], want) : -1;
        if (!CHECK(off >= 0 && off <= near) ||
            !CHECK_STR(mlc_shape_of(out[i]), mlc_shape_of(want)))
            printf("  %s, output %d of the %s: %g\n", k->name, (int)i, what, off);
    }
}

/* The file of a network in evaluation: its outputs and those of its import are the goldens. Frees
 * net. */
static void check_net(const golden_file *g, const kind *k, mlc_ctx *ctx, mlc_module *net,
                      const char *path, double near, int32_t opset)
{
    mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
    mlc_tensor *in[3], *out[3] = {NULL, NULL, NULL}, *got[3];
    char        name[64];
    mlc_eval_begin(net);
    mlc_no_grad_begin(ctx);
    mlc_plan *p = plan_of_all(ctx, k, net);
    if (opset) d.opset = opset;
    if (!CHECK_EQ(mlc_onnx_save(p, path, &d), MLC_OK))
        printf("  %s: %s\n", k->name, mlc_error(ctx));
    mlc_error_clear(ctx);
    inputs(ctx, k, 0, in);
    CHECK_EQ(forward_of(ctx, k, net, in, out), MLC_OK);
    snprintf(name, sizeof name, "%s.%s", near > NEAR ? "integers" : "network", k->name);
    keep(ctx, name, path, in, k->n_in, out, k->n_out);
    held(g, k, out, "forward", near);
    mlc_module *m = mlc_onnx_load(ctx, path, NULL);
    if (CHECK(m != NULL) && CHECK(all_of_module(m, in, k->n_in, got, k->n_out)))
        held(g, k, got, "import", near);
    else
        printf("  %s: %s\n", k->name, mlc_error(ctx));
    mlc_error_clear(ctx);
    mlc_no_grad_end(ctx);
    mlc_eval_end(net);
    mlc_plan_free(p);
    mlc_module_free(m);
    mlc_module_free(net);
}

TEST(onnx_save, networks_of_examples_and_benches_have_the_outputs_of_onnx_runtime)
{
    ONLY_ON_HOST();
    const box         b = box_open_fast("net.onnx");
    const golden_file g = golden_open(test_ctx(), "onnx_networks.safetensors");
    for (int i = 0; i < COUNT(KINDS); i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = KINDS[i].make(ctx);
        stir(ctx, net);
        check_net(&g, &KINDS[i], ctx, net, b.path, NEAR, 0);
    }
    box_close(&b);
}

/* ---- networks of integers -------------------------------------------------------------------- */

#if !defined(MLC_NO_QUANT) && !defined(MLC_NO_TRAINING)
/* An integer that is one off, at a tie or where a sum is rounded in another order, is 1 / 127 of
 * the largest number of a layer, which the layers after it divide among many. */
#define NEAR_OF_INTEGERS 0.004

enum { OUT = 64, INTEGERS = OUT * 96 };          /* of the second layer                         */

static mlc_module *linears(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 32, 96), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 96, OUT), mlc_nn_gelu(ctx),
                          mlc_nn_linear(ctx, OUT, 5));
}

#ifndef MLC_NO_VISION
/* Convolutions that follow each other, a residual, a pool between. */
static mlc_module *convolutions(mlc_ctx *ctx)
{
    mlc_module *net = MLC_SEQUENTIAL(
        ctx, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1), mlc_nn_batch_norm(ctx, 8), mlc_nn_relu(ctx),
        mlc_nn_basic_block(ctx, 8, 8, 1), mlc_nn_basic_block(ctx, 8, 12, 2),
        mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 48, 7));
    stir(ctx, net);
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    return net;
}
#endif

#ifndef MLC_NO_ATTENTION
static mlc_module *wide_encoder(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(32, 2);
    d.hidden = 64;
    return mlc_nn_transformer_encoder(ctx, &d, 1);
}
#endif

/* A network, and how its weights become integers. */
typedef struct whole {
    kind                 of;
    mlc_quant_mode       mode;
    mlc_quant_convention convention;
    int32_t              bits;
    bool                 per_tensor;
    int32_t              opset;        /* 0: the default                                        */
} whole;

#define LINEARS(name) {name, linears, NULL, 1, 1, {{3, 32}}, 0}
#define CONVOLUTIONS(name) {name, convolutions, NULL, 1, 1, {{2, 3, 8, 8}}, 0}
#define ENCODER(name) {name, wide_encoder, NULL, 1, 1, {{2, 5, 32}}, 0}
static const whole WHOLES[] = {
    {LINEARS("linears.dynamic"), MLC_QUANT_DYNAMIC, MLC_QUANT_TORCH, 8, false, 0},
    {LINEARS("linears.dynamic_onnx"), MLC_QUANT_DYNAMIC, MLC_QUANT_ONNX, 8, true, 0},
    {LINEARS("linears.static"), MLC_QUANT_STATIC, MLC_QUANT_TORCH, 8, false, 0},
    {LINEARS("linears.static_onnx"), MLC_QUANT_STATIC, MLC_QUANT_ONNX, 8, true, 0},
    {LINEARS("linears.weights8"), MLC_QUANT_WEIGHTS, MLC_QUANT_TORCH, 8, false, 0},
    {LINEARS("linears.weights4"), MLC_QUANT_WEIGHTS, MLC_QUANT_TORCH, 4, false, 0},
    {LINEARS("linears.weights4_21"), MLC_QUANT_WEIGHTS, MLC_QUANT_TORCH, 4, false, 21},
    {LINEARS("linears.weights8_21"), MLC_QUANT_WEIGHTS, MLC_QUANT_TORCH, 8, false, 21},
#ifndef MLC_NO_VISION
    {CONVOLUTIONS("convolutions.dynamic"), MLC_QUANT_DYNAMIC, MLC_QUANT_TORCH, 8, false, 0},
    {CONVOLUTIONS("convolutions.dynamic_onnx"), MLC_QUANT_DYNAMIC, MLC_QUANT_ONNX, 8, true, 0},
    {CONVOLUTIONS("convolutions.static"), MLC_QUANT_STATIC, MLC_QUANT_TORCH, 8, true, 0},
    {CONVOLUTIONS("convolutions.static_onnx"), MLC_QUANT_STATIC, MLC_QUANT_ONNX, 8, false, 0},
#endif
#ifndef MLC_NO_ATTENTION
    {ENCODER("encoder.dynamic"), MLC_QUANT_DYNAMIC, MLC_QUANT_TORCH, 8, false, 0},
    {ENCODER("encoder.static"), MLC_QUANT_STATIC, MLC_QUANT_ONNX, 8, false, 0},
    {ENCODER("encoder.weights4"), MLC_QUANT_WEIGHTS, MLC_QUANT_TORCH, 4, false, 0},
    {ENCODER("encoder.weights4_21"), MLC_QUANT_WEIGHTS, MLC_QUANT_TORCH, 4, false, 21},
    {ENCODER("encoder.dynamic_21"), MLC_QUANT_DYNAMIC, MLC_QUANT_TORCH, 8, false, 21},
#endif
#ifndef MLC_NO_SKETCH
    {{"sketched.dynamic", sketch_digits, NULL, 1, 1, {{2, 16}}, 0}, MLC_QUANT_DYNAMIC,
     MLC_QUANT_ONNX, 8, false, 0},
#endif
};

/* The network with its weights as integers; static ones by the ranges of one forward. */
static mlc_module *quantized(mlc_ctx *ctx, const whole *k, bool per_row)
{
    mlc_module       *net = k->of.make(ctx);
    mlc_quantize_desc d = mlc_quantize_desc_make(k->mode);
    mlc_calibration  *c = NULL;
    mlc_tensor       *in[3];
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    d.convention = k->convention;
    d.bits = k->bits;
    d.per_tensor = k->per_tensor;
    d.per_row = per_row;
    if (k->mode == MLC_QUANT_STATIC) {
        c = mlc_calibrate_begin(net, NULL);
        inputs(ctx, &k->of, 7, in);
        mlc_eval_begin(net);
        CHECK(mlc_forward(net, in[0]) != NULL);
        mlc_eval_end(net);
        CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
        d.calibration = c;
    }
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    mlc_calibration_free(c);
    return net;
}

TEST(onnx_save, networks_of_integers_have_the_outputs_of_onnx_runtime)
{
    ONLY_ON_HOST();
    const box         b = box_open_fast("net.onnx");
    const golden_file g = golden_open(test_ctx(), "onnx_networks.safetensors");
    for (int i = 0; i < COUNT(WHOLES); i++) {
        mlc_ctx *ctx = test_ctx();
        check_net(&g, &WHOLES[i].of, ctx, quantized(ctx, &WHOLES[i], false), b.path,
                  WHOLES[i].mode == MLC_QUANT_WEIGHTS ? NEAR : NEAR_OF_INTEGERS, WHOLES[i].opset);
    }
    box_close(&b);
}

/* Integers of a file are those of the network, and stay integers of an import. */
TEST(onnx_save, integers_of_a_file_are_those_of_the_network)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("net.onnx");
    for (int i = 0; i < 8; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = quantized(ctx, &WHOLES[i], false), *m;
        mlc_plan   *p = plan_of_all(ctx, &WHOLES[i].of, net);
        mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
        if (WHOLES[i].opset) d.opset = WHOLES[i].opset;
        CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
        m = mlc_onnx_load(ctx, b.path, NULL);
        mlc_tensor *w = mlc_module_param(net, "2.weight"), *q = mlc_module_param(m, "2.weight");
        int8_t      got[INTEGERS];
        uint8_t     want[INTEGERS];
        if (CHECK(w != NULL && q != NULL && q->dtype == MLC_I8) &&
            CHECK_STR(mlc_shape_of(q), "[64,96]")) {
            CHECK_EQ(mlc_read(q, got, sizeof got), MLC_OK);
            CHECK_EQ(mlc_read(w, want, (size_t)mlc_numel(w)), MLC_OK);
            for (int k = 0; k < INTEGERS; k++) {
                const int half = want[k / 2] >> k % 2 * 4 & 15;
                const int v = WHOLES[i].bits == 8 ? (int8_t)want[k] : (half ^ 8) - 8;
                if (!CHECK_EQ(got[k], v)) break;
            }
        }
        mlc_plan_free(p);
        mlc_module_free(m);
        mlc_module_free(net);
    }
    box_close(&b);
}

TEST(onnx_save, ranges_of_rows_and_missing_ones_are_errors)
{
    ONLY_ON_HOST();
    const box  b = box_open_fast("net.onnx");
    mlc_ctx   *ctx = test_ctx();
    mlc_module *net = quantized(ctx, &WHOLES[0], true);
    mlc_plan  *p = plan_of_all(ctx, &WHOLES[0].of, net);
    CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "quant_linear of 0 (a range for each row)");
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "has no form in a file");
    mlc_plan_free(p);
    mlc_module_free(net);
    const mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_STATIC);
    net = linears(ctx);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    p = plan_of_all(ctx, &WHOLES[0].of, net);
    CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "quant_linear of 0 (quantized without a calibration)");
    CHECK_EQ(box_count(&b), 0);
    mlc_plan_free(p);
    mlc_module_free(net);
    box_close(&b);
}
#endif
