/* test_transformer.c -- tests of section IMPL.NN.TRANSFORMER: attention modules, encoder, decoder
 *
 * Outputs, every gradient and 20 losses of SGD against PyTorch, in f64 to the last digits.
 */
#include "mlc_test.h"
#include "golden/golden.h"

enum {
    E = 12, HEADS = 3, HIDDEN = 20, LAYERS = 2, BATCH = 2, T = 5, S = 6, STEPS = 20, MOST = 1024
};

/* ---- networks of make_transformer_goldens.py ------------------------------------------------ */

/* FNV-1a of a name, its lower 16 bits. */
static uint32_t stream_of(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h & 0xffff;
}

static mlc_tensor *spread(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, const char *name,
                          double scale, double shift)
{
    static double values[MOST];
    int64_t       n = 1;
    for (int32_t d = 0; d < shape.n; d++)
        n *= shape.v[d];
    if (!CHECK(n <= MOST))
        return NULL;
    for (int64_t i = 0; i < n; i++)
        values[i] = golden_spread(i, stream_of(name)) * scale + shift;
    return test_tensor(ctx, dtype, shape, values);
}

static void fill(mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) {
        mlc_tensor  *p = it.tensor;
        const size_t n = strlen(it.name);
        const bool   one = strstr(it.name, "norm") && strcmp(it.name + n - 6, "weight") == 0;
        mlc_tensor  *v = spread(mlc_module_ctx(net), p->dtype, mlc_dims_of(p->ndim, p->shape),
                                it.name, p->ndim > 1 ? sqrt(3.0 / (double)mlc_dim(p, 1)) : 0.2,
                                one ? 1.0 : 0.0);
        CHECK_EQ(mlc_copy_into(p, v), MLC_OK);
    }
}

/* [T,T]: true takes part. */
static mlc_tensor *mask_of(mlc_ctx *ctx)
{
    static double v[T * T];
    for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++)
            v[i * T + j] = (i * 7 + j * 4) % 5 != 0 || i == j;
    return test_tensor(ctx, MLC_BOOL, mlc_dims2(T, T), v);
}

static mlc_tensor *lengths_of(mlc_ctx *ctx, int a, int b)
{
    const double v[BATCH] = {a, b};
    return test_tensor(ctx, MLC_I64, mlc_dims1(BATCH), v);
}

typedef enum kind { ENCODER_LAST, ENCODER_FIRST, DECODER_LAST, DECODER_FIRST, ATTENTION, SIZES,
                    GROUPED, KINDS } kind;

static const char *const kind_name[KINDS] = {"encoder_last", "encoder_first", "decoder_last",
                                             "decoder_first", "attention", "sizes", "grouped"};

static mlc_nn_transformer_desc layer_desc(kind k)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(E, HEADS);
    d.hidden = HIDDEN;
    d.dropout = 0;
    d.norm_first = d.final_norm = k == ENCODER_FIRST || k == DECODER_FIRST;
    d.act = k == ENCODER_FIRST ? MLC_ACT_GELU : MLC_ACT_RELU;
    d.causal = k == DECODER_LAST;
    if (k != GROUPED)
        return d;
    d.heads = 4;
    d.kv_heads = 2;
    d.act = MLC_ACT_SILU;
    d.gated = d.norm_first = d.rms_norm = d.no_bias = d.causal = true;
    return d;
}

static mlc_module *net_of(mlc_ctx *ctx, kind k)
{
    const mlc_nn_transformer_desc d = layer_desc(k);
    mlc_nn_multihead_attention_desc a = mlc_nn_multihead_attention_desc_make(E, HEADS);
    a.key_size = 7;
    a.value_size = 9;
    switch (k) {
    case ENCODER_LAST:
    case ENCODER_FIRST: return mlc_nn_transformer_encoder(ctx, &d, LAYERS);
    case DECODER_LAST:
    case DECODER_FIRST: return mlc_nn_transformer_decoder(ctx, &d, LAYERS);
    case ATTENTION:     return mlc_nn_multihead_attention(ctx, E, HEADS);
    case SIZES:         return mlc_nn_multihead_attention_ex(ctx, &a);
    default:            return mlc_nn_transformer_encoder_layer(ctx, &d);
    }
}

/* Inputs, of which there are up to 3, by name. */
static int inputs_of(mlc_ctx *ctx, mlc_dtype dtype, kind k, mlc_tensor **in, const char **name)
{
    int n = 0;
    name[n] = "x";
    in[n++] = spread(ctx, dtype, mlc_dims3(BATCH, T, E), "x", 1, 0);
    if (k == DECODER_LAST || k == DECODER_FIRST) {
        name[n] = "memory";
        in[n++] = spread(ctx, dtype, mlc_dims3(BATCH, S, E), "memory", 1, 0);
    } else if (k == SIZES) {
        name[n] = "key";
        in[n++] = spread(ctx, dtype, mlc_dims3(BATCH, S, 7), "key", 1, 0);
        name[n] = "value";
        in[n++] = spread(ctx, dtype, mlc_dims3(BATCH, S, 9), "value", 1, 0);
    }
    for (int i = 0; i < n; i++)
        CHECK_EQ(mlc_set_requires_grad(in[i], true), MLC_OK);
    return n;
}

/* The masks and lengths of each case; DECODER_LAST is causal by its desc, DECODER_FIRST by the
 * call's. */
static mlc_tensor *run(mlc_module *net, kind k, mlc_tensor *const *in)
{
    mlc_ctx           *ctx = mlc_module_ctx(net);
    mlc_attention_desc self = mlc_attention_desc_make(), cross = mlc_attention_desc_make();
    mlc_tensor        *y = NULL;
    if (k == ENCODER_LAST || k == ENCODER_FIRST) {
        self.mask = mask_of(ctx);
        self.key_lengths = lengths_of(ctx, 5, 3);
        return mlc_transformer_forward(net, in[0], NULL, &self, NULL);
    }
    if (k == DECODER_LAST || k == DECODER_FIRST) {
        self.causal = k == DECODER_FIRST;
        cross.key_lengths = lengths_of(ctx, 4, 6);
        return mlc_transformer_forward(net, in[0], in[1], &self, &cross);
    }
    if (k == SIZES)
        return mlc_attention_forward(net, in[0], in[1], in[2], NULL);
    CHECK_EQ(mlc_module_forward(net, in, 1, &y, 1), MLC_OK);
    return y;
}

/* ---- against PyTorch ------------------------------------------------------------------------ */

typedef struct bounds { double first, loss; } bounds;

static void check_near(mlc_tensor *t, mlc_tensor *want, double tolerance, kind k, const char *name)
{
    static double w[GOLDEN_MOST];
    if (!CHECK(t != NULL && want != NULL && mlc_numel(t) == mlc_numel(want)))
        return;
    test_read(want, w);
    char label[128];
    snprintf(label, sizeof label, "%s %s", kind_name[k], name);
    CHECK(golden_values(mlc_contiguous(t), mlc_numel(want), w, tolerance, tolerance, label));
}

static void check_first(mlc_module *net, kind k, const golden_file *f, mlc_tensor *y,
                        mlc_tensor *const *in, const char *const *name, int n, double tolerance)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    check_near(y, golden_find(f, "%s.y", kind_name[k]), tolerance, k, "y");
    while (mlc_param_next(&it))
        check_near(mlc_grad(it.tensor), golden_find(f, "%s.grad.%s", kind_name[k], it.name),
                   tolerance, k, it.name);
    for (int i = 0; i < n; i++)
        check_near(mlc_grad(in[i]), golden_find(f, "%s.grad.%s", kind_name[k], name[i]), tolerance,
                   k, name[i]);
}

/* autocast: bf16, where only what f32 has is near. */
static void train(mlc_ctx *ctx, mlc_dtype dtype, kind k, bounds b, bool autocast)
{
    static double losses[STEPS];
    golden_file   f = golden_open(ctx, "transformer.safetensors");
    mlc_module   *net = net_of(ctx, k);
    mlc_tensor   *in[3];
    const char   *name[3];
    if (!CHECK(net != NULL))
        return;
    fill(net);
    const int  n = inputs_of(ctx, dtype, k, in, name);
    mlc_optim *opt = mlc_sgd(net, 0.1);
    test_read(golden_find(&f, "%s.losses", kind_name[k]), losses);
    for (int step = 0; step < STEPS; step++) {
        mlc_scope_begin(ctx);
        if (autocast)
            CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *y = mlc_cast(run(net, k, in), dtype);
        if (autocast)
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        mlc_tensor *target = y ? spread(ctx, dtype, mlc_dims_of(y->ndim, y->shape), "target", 1, 0)
                               : NULL;
        mlc_tensor *loss = mlc_mse_loss(y, target);
        CHECK_NEAR(mlc_item(loss), losses[step], b.loss * (1 + losses[step]));
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        if (step == 0)
            check_first(net, k, &f, y, in, name, n, b.first);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        for (int i = 0; i < n; i++)
            mlc_zero_grad(in[i]);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
            printf("  %s: %s\n", kind_name[k], mlc_error(ctx));
    }
    CHECK_OK(ctx);
}

static mlc_ctx *ctx_of(mlc_isa isa, mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.isa = isa;
    d.dtype = dtype;
    return test_own(mlc_ctx_create(&d));
}

TEST(transformer, outputs_gradients_and_losses_are_pytorchs_in_f64)
{
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < KINDS; k++)
            train(ctx_of((mlc_isa)isa, MLC_F64), MLC_F64, (kind)k, (bounds){1e-12, 1e-11}, false);
    }
}

TEST(transformer, outputs_gradients_and_losses_are_pytorchs_in_f32)
{
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < KINDS; k++)
            train(ctx_of((mlc_isa)isa, MLC_F32), MLC_F32, (kind)k, (bounds){1e-5, 1e-5}, false);
    }
}

TEST(transformer, autocast_to_bf16_stays_near)
{
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < KINDS; k++)
            train(ctx_of((mlc_isa)isa, MLC_F32), MLC_F32, (kind)k, (bounds){0.06, 0.03}, true);
    }
}

/* ---- what a module does beside its values ---------------------------------------------------- */

static double largest(mlc_tensor *x)
{
    return mlc_item(mlc_max(mlc_abs(x), mlc_dims0(), false));
}

static double difference(mlc_tensor *a, mlc_tensor *b) { return largest(mlc_sub(a, b)); }

TEST(transformer, parameters_have_pytorchs_names_and_first_values)
{
    static const char *const names[] = {
        "layers.0.self_attn.in_proj_weight", "layers.0.self_attn.in_proj_bias",
        "layers.0.self_attn.out_proj.weight", "layers.0.self_attn.out_proj.bias",
        "layers.0.linear1.weight", "layers.0.linear2.bias", "layers.0.norm1.weight",
        "layers.0.norm2.bias", "layers.0.multihead_attn.in_proj_weight", "layers.0.norm3.weight",
        "norm.weight"
    };
    FOR_EACH_ISA(ctx) {
        const mlc_nn_transformer_desc d = layer_desc(DECODER_FIRST);
        mlc_module *net = mlc_nn_transformer_decoder(ctx, &d, 1);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            CHECK(mlc_module_param(net, names[i]) != NULL);
        mlc_tensor  *w = mlc_module_param(net, names[0]), *b = mlc_module_param(net, names[3]);
        const double bound = sqrt(6.0 / (E + 3 * E));
        CHECK(largest(w) < bound && largest(w) > 0.9 * bound);
        CHECK(largest(b) == 0);
        CHECK_OK(ctx);
    }
}

/* Weights of attention, sums and hidden features are dropped in training, and only there. */
TEST(transformer, dropout_is_of_training_alone)
{
    FOR_EACH_ISA(ctx) {
        mlc_nn_transformer_desc d = layer_desc(ENCODER_LAST);
        d.dropout = 0.5;
        mlc_module *net = mlc_nn_transformer_encoder(ctx, &d, LAYERS);
        mlc_tensor *x = spread(ctx, MLC_F32, mlc_dims3(BATCH, T, E), "x", 1, 0);
        CHECK(difference(mlc_forward(net, x), mlc_forward(net, x)) > 0.01);
        mlc_module_train(net, false);
        CHECK(difference(mlc_forward(net, x), mlc_forward(net, x)) == 0);
        CHECK_OK(ctx);
    }
}

/* Each part of a layer is left out with probability 1: x stays. */
TEST(transformer, dropout_of_1_leaves_the_residual)
{
    FOR_EACH_ISA(ctx) {
        mlc_nn_transformer_desc d = layer_desc(ENCODER_FIRST);
        d.dropout = 1;
        mlc_module *net = mlc_nn_transformer_encoder_layer(ctx, &d);
        mlc_tensor *x = spread(ctx, MLC_F32, mlc_dims3(BATCH, T, E), "x", 1, 0);
        CHECK(difference(mlc_forward(net, x), x) == 0);
        CHECK_OK(ctx);
    }
}

static bool seen(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n)
{
    (void)m;
    (void)out;
    *(int *)user += n;
    return false;
}

/* What is fused runs by itself where somebody looks at it. */
TEST(transformer, hooks_keep_bits)
{
    FOR_EACH_ISA(ctx) {
        const mlc_nn_transformer_desc d = layer_desc(ENCODER_FIRST);
        mlc_module *net = mlc_nn_transformer_encoder_layer(ctx, &d);
        mlc_tensor *x = spread(ctx, MLC_F32, mlc_dims3(BATCH, T, E), "x", 1, 0);
        mlc_tensor *before = mlc_forward(net, x);
        int         count = 0;
        mlc_module_hook(mlc_module_find(net, "linear1"), seen, &count);
        mlc_module_hook(mlc_module_find(net, "linear2"), seen, &count);
        mlc_module_hook(mlc_module_find(net, "self_attn.out_proj"), seen, &count);
        CHECK(difference(mlc_forward(net, x), before) == 0);
        CHECK_EQ(count, 3);
        CHECK_OK(ctx);
    }
}

/* The descs of a call are of that call, also of one that fails. */
TEST(transformer, a_call_leaves_nothing)
{
    FOR_EACH_ISA(ctx) {
        mlc_attention_desc self = mlc_attention_desc_make();
        const mlc_nn_transformer_desc d = layer_desc(ENCODER_LAST);
        mlc_module *net = mlc_nn_transformer_encoder(ctx, &d, LAYERS);
        mlc_tensor *x = spread(ctx, MLC_F32, mlc_dims3(BATCH, T, E), "x", 1, 0);
        mlc_tensor *before = mlc_forward(net, x);
        self.mask = mask_of(ctx);
        CHECK(difference(mlc_transformer_forward(net, x, NULL, &self, NULL), before) > 0.01);
        CHECK(difference(mlc_forward(net, x), before) == 0);
        mlc_scope_begin(ctx);
        self.mask = mlc_zeros(ctx, MLC_BOOL, mlc_dims2(T, T + 1));
        CHECK(mlc_transformer_forward(net, x, NULL, &self, NULL) == NULL);
        CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_SHAPE);
        CHECK(difference(mlc_forward(net, x), before) == 0);
        mlc_module *copy = mlc_module_clone(net);
        mlc_module_free(net);
        CHECK(difference(mlc_forward(copy, x), before) == 0);
        CHECK_OK(ctx);
    }
}

/* A step with masks, lengths, dropout, and a float mask that is trained, too. */
static mlc_status steady_step(mlc_module *net, mlc_optim *opt, mlc_tensor *const *in,
                              const mlc_attention_desc *self, const mlc_attention_desc *cross,
                              bool autocast)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    if (autocast)
        mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *y = mlc_transformer_forward(net, in[0], in[1], self, cross);
    if (autocast)
        mlc_autocast_end(ctx);
    mlc_backward(mlc_mse_loss(mlc_cast(y, MLC_F32), in[2]));
    mlc_optim_step(opt);
    mlc_zero_grad(self->mask);
    return mlc_scope_end(ctx);
}

static void check_steady(mlc_ctx *ctx, bool decoder, bool autocast)
{
    enum { N = 2, ROWS = 37, KEYS = 41, WIDTH = 32 };
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(WIDTH, 4);
    mlc_attention_desc      self = mlc_attention_desc_make(), cross = self;
    mlc_memory              before, after;
    d.hidden = 2 * WIDTH;
    d.kv_heads = 2;
    d.causal = decoder;
    mlc_module *net = decoder ? mlc_nn_transformer_decoder(ctx, &d, LAYERS)
                              : mlc_nn_transformer_encoder(ctx, &d, LAYERS);
    mlc_optim  *opt = mlc_adamw(net, 1e-3);
    mlc_tensor *in[3] = {test_rand(ctx, MLC_F32, mlc_dims3(N, ROWS, WIDTH), 1, -1, 1),
                         decoder ? test_rand(ctx, MLC_F32, mlc_dims3(N, KEYS, WIDTH), 2, -1, 1)
                                 : NULL,
                         test_rand(ctx, MLC_F32, mlc_dims3(N, ROWS, WIDTH), 3, -1, 1)};
    self.mask = test_rand(ctx, MLC_F32, mlc_dims3(4, ROWS, ROWS), 4, -1, 1);
    CHECK_EQ(mlc_set_requires_grad(self.mask, true), MLC_OK);
    self.key_lengths = lengths_of(ctx, ROWS, 20);
    cross.key_lengths = lengths_of(ctx, 30, KEYS);
    for (int step = 0; step < 10; step++) {
        if (step == 4)
            CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
        if (!CHECK_EQ(steady_step(net, opt, in, &self, &cross, autocast), MLC_OK))
            printf("  %s\n", mlc_error(ctx));
    }
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(after.reserved, before.reserved);
    CHECK_OK(ctx);
}

TEST(transformer, a_steady_step_takes_no_memory)
{
    FOR_EACH_LEVEL(isa) {
        for (int form = 0; form < 4; form++)
            check_steady(ctx_of((mlc_isa)isa, MLC_F32), form & 1, form & 2);
    }
}

/* One linear of a layer by hand: q, k, v of one product are what three products give. */
TEST(transformer, inputs_that_are_one_tensor_share_a_product)
{
    FOR_EACH_ISA(ctx) {
        mlc_module *m = mlc_nn_multihead_attention(ctx, E, HEADS);
        mlc_tensor *x = spread(ctx, MLC_F32, mlc_dims3(BATCH, T, E), "x", 1, 0);
        mlc_tensor *same = mlc_copy(x), *k = mlc_copy(x);
        mlc_tensor *y = mlc_attention_forward(m, x, NULL, NULL, NULL);
        CHECK(difference(mlc_attention_forward(m, x, same, k, NULL), y) < 1e-6);
        CHECK(difference(mlc_attention_forward(m, x, same, NULL, NULL), y) < 1e-6);
        CHECK_OK(ctx);
    }
}

/* ---- bad input ------------------------------------------------------------------------------- */

/* A desc that begins as zeros has a rotary of zeros, which is as if it were not there. */
TEST(transformer, a_desc_of_zeros_has_no_rotary)
{
    mlc_ctx *ctx = test_ctx();
    mlc_nn_multihead_attention_desc a;
    mlc_nn_transformer_desc t;
    mlc_nn_gpt_desc  g = mlc_nn_gpt_desc_make(9, 4, 1, 4, 2);
    mlc_nn_bert_desc b = mlc_nn_bert_desc_make(9, 4, 1, 4, 2);
    memset(&a, 0, sizeof a);
    memset(&t, 0, sizeof t);
    a.embed = a.key_size = a.value_size = t.embed = 4;
    a.heads = a.kv_heads = t.heads = t.kv_heads = 2;
    t.hidden = 8;
    t.eps = 1e-5;
    g.layer = b.layer = t;
    CHECK(mlc_nn_multihead_attention_ex(ctx, &a) != NULL);
    CHECK(mlc_nn_transformer_encoder_layer(ctx, &t) != NULL);
    CHECK(mlc_nn_gpt(ctx, &g) != NULL);
    CHECK(mlc_nn_bert(ctx, &b) != NULL);
    CHECK_OK(ctx);
    a.rotary.offset = 1;
    CHECK(mlc_nn_multihead_attention_ex(ctx, &a) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rotary is set and has_rotary is false");
}

TEST(transformer, numbers_that_do_not_fit_are_named)
{
    FOR_EACH_ISA(ctx) {
        mlc_nn_multihead_attention_desc a = mlc_nn_multihead_attention_desc_make(E, 5);
        mlc_nn_transformer_desc         d = layer_desc(ENCODER_LAST);
        CHECK(mlc_nn_multihead_attention_ex(ctx, &a) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "embed 12, heads 5");
        a = mlc_nn_multihead_attention_desc_make(E, 4);
        a.kv_heads = 3;
        CHECK(mlc_nn_multihead_attention_ex(ctx, &a) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "kv_heads 3");
        a.kv_heads = 2;
        a.dropout = (double)NAN;
        CHECK(mlc_nn_multihead_attention_ex(ctx, &a) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "dropout nan");
        CHECK(mlc_nn_multihead_attention_ex(ctx, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_nn_multihead_attention_desc_make");
        CHECK(mlc_nn_multihead_attention(NULL, E, HEADS) == NULL);
        CHECK(mlc_nn_transformer_encoder(ctx, NULL, 1) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_nn_transformer_desc_make");
        CHECK(mlc_nn_transformer_encoder(ctx, &d, 0) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "0 layers");
        d.hidden = 0;
        CHECK(mlc_nn_transformer_decoder(ctx, &d, 1) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "hidden is 0");
        d.hidden = HIDDEN;
        d.heads = 7;
        CHECK(mlc_nn_transformer_decoder_layer(ctx, &d) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "heads 7");
    }
}

TEST(transformer, calls_that_do_not_fit_are_refused)
{
    FOR_EACH_ISA(ctx) {
        const mlc_nn_transformer_desc d = layer_desc(DECODER_LAST);
        mlc_module *net = mlc_nn_transformer_decoder(ctx, &d, 1);
        mlc_module *m = mlc_nn_multihead_attention(ctx, E, HEADS), *other = mlc_nn_relu(ctx);
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(BATCH, T, E));
        mlc_tensor *flat = mlc_zeros(ctx, MLC_F32, mlc_dims2(T, E)), *y = NULL;
        mlc_tensor *two[2] = {x, x};
        CHECK(mlc_nn_multihead_attention(ctx, (int64_t)1 << 62, 2) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "nn_multihead_attention: shape");
        CHECK(mlc_forward(m, flat) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "query is [5,12]");
        CHECK(mlc_attention_forward(m, x, mlc_zeros(ctx, MLC_F32, mlc_dims3(1, S, E)), NULL, NULL)
              == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "key is [1,6,12]");
        CHECK_EQ(mlc_module_forward(m, two, 2, &y, 1), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "2 inputs");
        CHECK(mlc_attention_forward(other, x, NULL, NULL, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "ReLU");
        CHECK(mlc_transformer_forward(m, x, NULL, NULL, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "MultiheadAttention");
        CHECK(mlc_forward(net, x) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "x and memory");
        CHECK(mlc_transformer_forward(net, x, NULL, NULL, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "input 2 is NULL");
        CHECK(mlc_attention_forward(NULL, x, NULL, NULL, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "attention_forward: the module is NULL");
        CHECK(mlc_transformer_forward(NULL, x, NULL, NULL, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "transformer_forward: the module is NULL");
    }
}
