/* bench_quant.h -- cases of networks of integers, and of the same in f32; bench.c includes it
 *
 * infer_q8_: int8, a scale a row, dynamic, of images static with norms folded; gen_q8_, gen_q4_:
 * text from weights of 8 and 4 bits in groups of 32.                                           */

typedef enum quant_kind { QUANT_MLP, QUANT_LSTM, QUANT_SK, QUANT_GPT, QUANT_CNN, QUANT_RESNET
} quant_kind;

typedef struct quant_shape {
    const char *name;
    quant_kind  kind;
    int32_t     bits;                  /* 0: f32                                               */
    int64_t     batch;
} quant_shape;

static const quant_shape quants[] = {
    { "infer_mlp_1024x3_10_b1", QUANT_MLP, 0, 1 },
    { "infer_q8_mlp_1024x3_10_b1", QUANT_MLP, 8, 1 },
    { "infer_mlp_1024x3_10_b32", QUANT_MLP, 0, 32 },
    { "infer_q8_mlp_1024x3_10_b32", QUANT_MLP, 8, 32 },
    { "infer_mlp_1024x3_10_b128", QUANT_MLP, 0, 128 },
    { "infer_q8_mlp_1024x3_10_b128", QUANT_MLP, 8, 128 },
    { "infer_lstm_2x256", QUANT_LSTM, 0, 1 },
    { "infer_q8_lstm_2x256", QUANT_LSTM, 8, 1 },
    { "infer_sk", QUANT_SK, 0, 32 },
    { "infer_q8_sk", QUANT_SK, 8, 32 },
    { "infer_cnn28_b1", QUANT_CNN, 0, 1 },
    { "infer_q8_cnn28_b1", QUANT_CNN, 8, 1 },
    { "infer_cnn28_b64", QUANT_CNN, 0, 64 },
    { "infer_q8_cnn28_b64", QUANT_CNN, 8, 64 },
    { "infer_q8_resnet20_b1", QUANT_RESNET, 8, 1 },
    { "infer_q8_resnet20_b64", QUANT_RESNET, 8, 64 },
    { "gen_q8_gpt2_124m", QUANT_GPT, 8, 1 },
    { "gen_q4_gpt2_124m", QUANT_GPT, 4, 1 },
};
enum { QUANTS = sizeof quants / sizeof *quants, QUANT_STEPS = 64 };

/* 1024-1024-1024-10; 256-256 over 64 steps; 4096 to 4096 with rank 64; GPT-2; those of images. */
static mlc_module *quant_net(state *s, const quant_shape *p)
{
    static const shape widths = { { 1024, 1024, 1024, 10, 0 }, 3, false };
    mlc_nn_rnn_desc    d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 256, 256);
    d.layers = 2;
    switch (p->kind) {
        case QUANT_MLP:  return net_of(s->ctx, &widths);
        case QUANT_LSTM: return mlc_nn_rnn_ex(s->ctx, &d);
        case QUANT_SK:   return mlc_nn_sklinear(s->ctx, 4096, 4096, 1, 64);
        case QUANT_CNN:  return cnn28(s->ctx);
        case QUANT_RESNET: return resnet20_with(s->ctx, false);
        default:         return gpt_net(s, &gpts[GPTS - 1]);
    }
}

/* Root of the mean square of a - b, over that of b. */
static double quant_apart(mlc_tensor *a, mlc_tensor *b)
{
    const double off = mlc_item(mlc_norm(mlc_sub(a, b), 2, mlc_dims0(), false));
    return off / mlc_item(mlc_norm(b, 2, mlc_dims0(), false));
}

static bool quant_images(const quant_shape *p)
{
    return p->kind == QUANT_CNN || p->kind == QUANT_RESNET;
}

/* The desc of a case; static: with ranges of the batch itself. */
static bool quant_desc(state *s, const quant_shape *p, mlc_calibration **ranges,
                       mlc_quantize_desc *d)
{
    *d = mlc_quantize_desc_make(p->kind == QUANT_GPT ? MLC_QUANT_WEIGHTS :
                                quant_images(p)      ? MLC_QUANT_STATIC : MLC_QUANT_DYNAMIC);
    d->bits = p->bits;
    if (!quant_images(p)) return true;
    d->calibration = *ranges = mlc_calibrate_begin(s->net, NULL);
    mlc_forward(s->net, s->a);
    return mlc_calibrate_end(*ranges) == MLC_OK;
}

/* Quantizes the network, whose outputs stay near those of f32. */
static bool quant_check(state *s, const quant_shape *p)
{
    mlc_quantize_desc d;
    mlc_calibration  *ranges = NULL;
    mlc_tensor       *want = mlc_forward(s->net, s->a);
    const bool made = quant_desc(s, p, &ranges, &d) && mlc_quantize(s->net, &d, NULL) == MLC_OK;
    mlc_calibration_free(ranges);
    if (!made) return false;
    const double off = quant_apart(mlc_forward(s->net, s->a), want);
    const bool   ok = off < (p->bits == 8 ? 0.05 : 0.3);
    if (!ok) fprintf(stderr, "%s: WRONG: %g off\n", s->bc->name, off);
    return ok;
}

static mlc_dims quant_input(const quant_shape *p)
{
    switch (p->kind) {
        case QUANT_MLP:    return mlc_dims2(p->batch, 1024);
        case QUANT_LSTM:   return mlc_dims3(p->batch, QUANT_STEPS, 256);
        case QUANT_CNN:    return mlc_dims4(p->batch, 1, 28, 28);
        case QUANT_RESNET: return mlc_dims4(p->batch, 3, 32, 32);
        default:           return mlc_dims2(p->batch, 4096);
    }
}

static bool quant_setup(state *s)
{
    const quant_shape *p = &quants[s->bc->op];
    const gpt_shape   *g = &gpts[GPTS - 1];
    s->net = quant_net(s, p);
    s->a = p->kind == QUANT_GPT
               ? mlc_reshape(labels_of(s, GEN_PROMPT, g->vocab), mlc_dims2(1, GEN_PROMPT))
               : values_in(s, MLC_F32, quant_input(p), quant_images(p) ? 0 : -1, 1, NULL);
    mlc_module_train(s->net, false);
    if (quant_images(p) && mlc_nn_fold_batch_norm(s->net) != MLC_OK) return false;
    mlc_no_grad_begin(s->ctx);
    if (p->bits && !quant_check(s, p)) return false;
    if (p->kind != QUANT_GPT) return mlc_module_build(s->net) == MLC_OK;
    const mlc_cache_desc d = mlc_cache_desc_make(1, g->t);
    s->cache = mlc_cache_create(s->net, &d);
    return s->cache && gen_check(s);
}

static void add_quant(int op)
{
    const quant_shape *p = &quants[op];
    const gpt_shape   *g = &gpts[GPTS - 1];
    const bool         text = p->kind == QUANT_GPT;
    const double weights = (double)(12 * g->layers * g->embed * g->embed + g->vocab * g->embed);
    bench_case  *c = add(p->name, MLC_F32, text ? "tokens/s" : "samples/s",
                         text ? GEN_TOKENS : (double)p->batch);
    if (text) c->bytes = (p->bits + 0.5) / 8 * weights * GEN_TOKENS;
    c->setup = quant_setup;
    c->run   = run_apply;
    c->apply = text ? gen_apply : net_apply;
    c->op    = op;
    c->m     = p->batch;
}

static void add_quants(void)
{
    const bool large = bench_free_memory() > 6e9;
    for (int i = 0; i < QUANTS; i++)
        if (large || quants[i].kind != QUANT_GPT) add_quant(i);
}
