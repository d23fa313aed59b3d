/* bench_language.h -- cases of transformers; bench.c includes it
 *
 * net_encoder_ gpt_ mem_gpt_ gen_: steps of training, and text that a model makes, a token at a
 * time.                                                                                         */

/* Six layers of 384 features and 6 heads, norms first, and 64 classes for each of 256 elements. */
static mlc_module *encoder_net(state *s)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(384, 6);
    mlc_module             *net = mlc_nn_sequential(s->ctx);
    d.hidden = 1536;
    d.dropout = 0;
    d.act = MLC_ACT_GELU;
    d.norm_first = true;
    mlc_module_add(net, mlc_nn_transformer_encoder(s->ctx, &d, 6));
    mlc_module_add(net, mlc_nn_linear(s->ctx, d.embed, 64));
    return net;
}

static bool encoder_setup(state *s)
{
    s->net = encoder_net(s);
    s->a = values_in(s, is_half(s) ? MLC_F32 : s->bc->dtype, mlc_dims3(s->bc->m, 256, 384), -1, 1,
                     NULL);
    s->labels = mlc_reshape(labels_of(s, s->bc->m * 256, 64), mlc_dims2(s->bc->m, 256));
    s->opt = mlc_adamw(s->net, 1e-3);
    return loss_falls(s);
}

static void add_encoder(mlc_dtype dtype)
{
    bench_case *c = add("net_encoder_6x384_h6_t256_b8_adamw", dtype, "samples/s", 8);
    /* products of weights, three a step, and those of attention, seven */
    c->flops = 6.0 * 8 * 256 * (3.0 * 2 * 12 * 384 * 384 + 7.0 * 2 * 256 * 384);
    c->setup = encoder_setup;
    c->run   = run_apply;
    c->apply = train_apply;
    c->m     = 8;
}

/* ---- gpt_: training; gen_: greedy text of a batch of one ------------------------------------- */

enum { GEN_PROMPT = 8, GEN_TOKENS = 56 };

typedef struct gpt_shape {
    const char *name;
    int64_t     layers, embed, heads, vocab, t, batch;
    int32_t     recompute;             /* layers 0, so many, .. run twice; 0: none             */
} gpt_shape;

static const gpt_shape gpts[] = {
    { "gpt_4x128_h4_t64_b16", 4, 128, 4, 65, 64, 16, 0 },
    { "gpt_6x384_h6_t256_b8", 6, 384, 6, 65, 256, 8, 0 },
    { "gpt_6x384_h6_t256_b8_recompute_2", 6, 384, 6, 65, 256, 8, 2 },
    { "gpt_6x384_h6_t256_b8_recompute_1", 6, 384, 6, 65, 256, 8, 1 },
    { "mem_gpt_10k_t64_b16_adamw", 1, 24, 2, 65, 64, 16, 0 },
    { "mem_gpt_100k_t64_b16_adamw", 2, 64, 4, 65, 64, 16, 0 },
    { "mem_gpt_1m_t64_b16_adamw", 5, 128, 4, 65, 64, 16, 0 },
    { "mem_gpt_10m_t64_b16_adamw", 6, 384, 6, 65, 64, 16, 0 },
    { "gpt2_124m_t64_b4", 12, 768, 12, 50257, 64, 4, 0 },
    { "gen_4x128", 4, 128, 4, 65, 64, 1, 0 },
    { "gen_6x384", 6, 384, 6, 65, 64, 1, 0 },
    { "gen_gpt2_124m", 12, 768, 12, 50257, 64, 1, 0 },
};
enum { GPTS = sizeof gpts / sizeof *gpts };

static mlc_module *gpt_net(state *s, const gpt_shape *p)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(p->vocab, p->t, p->layers, p->embed, p->heads);
    d.layer.dropout = 0;
    return mlc_nn_gpt(s->ctx, &d);
}

static void mark_layers(state *s) { mlc_module_recompute(s->net, gpts[s->bc->op].recompute); }

static bool gpt_setup(state *s)
{
    const gpt_shape *p = &gpts[s->bc->op];
    const int64_t    n = p->batch * p->t;
    s->net = gpt_net(s, p);
    s->a = mlc_reshape(labels_of(s, n, p->vocab), mlc_dims2(p->batch, p->t));
    s->labels = mlc_reshape(labels_of(s, n, 61), mlc_dims2(p->batch, p->t));
    s->opt = mlc_adamw(s->net, 1e-3);
    return (!p->recompute || recompute_check(s, mark_layers)) && loss_falls(s);
}

static mlc_tensor *gen_apply(state *s)
{
    int64_t           out[GEN_TOKENS];
    mlc_generate_desc g = mlc_generate_desc_make(GEN_TOKENS);
    g.temperature = 0;
    g.out = out;
    mlc_cache_reset(s->cache, 0);
    if (mlc_generate(s->net, s->cache, s->a, &g, NULL, NULL) != MLC_OK) return NULL;
    return mlc_from(s->ctx, MLC_I64, mlc_dims1(GEN_TOKENS), out);
}

/* Each token is that of the whole text's forward; in 16 bits two may be as likely. */
static bool gen_check(state *s)
{
    mlc_scope_begin(s->ctx);
    mlc_no_grad_begin(s->ctx);
    mlc_tensor *text = gen_apply(s), *in[2] = { s->a, text ? mlc_unsqueeze(text, 0) : NULL };
    mlc_tensor *all = mlc_slice(mlc_concat(in, 2, 1), 1, 0, GEN_PROMPT + GEN_TOKENS - 1, 1);
    mlc_tensor *y = mlc_slice(mlc_forward(s->net, all), 1, GEN_PROMPT - 1,
                              GEN_PROMPT + GEN_TOKENS - 1, 1);
    mlc_tensor *same = mlc_eq(mlc_argmax(y, 2, false), in[1]);
    const double n = mlc_item(mlc_sum(mlc_cast(same, MLC_F32), mlc_dims0(), false));
    const bool ok = n >= (is_half(s) ? 1 : GEN_TOKENS);
    if (!ok) fprintf(stderr, "%s: WRONG: %g of %d tokens\n", s->bc->name, n, (int)GEN_TOKENS);
    mlc_no_grad_end(s->ctx);
    return mlc_scope_end(s->ctx) == MLC_OK && ok;
}

static bool gen_setup(state *s)
{
    const gpt_shape *p = &gpts[s->bc->op];
    mlc_cache_desc   d = mlc_cache_desc_make(1, p->t);
    s->net = gpt_net(s, p);
    mlc_module_train(s->net, false);
    if (is_half(s) && mlc_module_to(s->net, s->bc->dtype) != MLC_OK) return false;
    d.has_dtype = true;
    d.dtype = s->bc->dtype;
    s->cache = mlc_cache_create(s->net, &d);
    s->a = mlc_reshape(labels_of(s, GEN_PROMPT, p->vocab), mlc_dims2(1, GEN_PROMPT));
    return s->cache && gen_check(s);
}

static void add_gpt(int op, mlc_dtype dtype)
{
    const gpt_shape *p = &gpts[op];
    const bool       text = p->batch == 1;
    const double     tokens = text ? GEN_TOKENS : (double)(p->batch * p->t);
    bench_case      *c = add(p->name, dtype, "tokens/s", tokens);
    const double     weights = (double)(12 * p->layers * p->embed * p->embed + p->vocab * p->embed);
    if (!text) c->flops = 6 * weights * tokens;
    else       c->bytes = (double)mlc_dtype_bytes(dtype) * weights * tokens;
    c->setup = text ? gen_setup : gpt_setup;
    c->run   = run_apply;
    c->apply = text ? gen_apply : train_apply;
    c->op    = op;
    c->m     = p->batch;
}

static void add_language(void)
{
    const bool large = bench_free_memory() > 6e9;
    add_encoder(MLC_F32);
    add_encoder(MLC_BF16);
    for (int i = 0; i < 2 * GPTS; i++)
        if (large || gpts[i / 2].vocab < 1000) add_gpt(i / 2, i & 1 ? MLC_BF16 : MLC_F32);
}
