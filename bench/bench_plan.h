/* bench_plan.h -- cases of inference by plans, and of forwards without; bench.c includes it
 *
 * infer_NAME runs the forward, infer_plan_NAME its plan with all passes. _apart_: networks with
 * their batch norms, or with norms, attention and GELU written as formulas, as exporters do, which
 * plans fold or join.                                                                           */

typedef enum plan_kind {
    PLAN_NET, PLAN_IMAGES, PLAN_STEP, PLAN_ENCODER, PLAN_GPT, PLAN_FORMULAS
} plan_kind;

typedef struct plan_shape {
    const char *name;
    plan_kind   kind;
    bool        plan;
    int         op;                    /* of PLAN_NET: row of shapes                            */
    int64_t     batch;
} plan_shape;

static const plan_shape plans[] = {
    { "infer_plan_4_4_3_b1", PLAN_NET, true, 1, 1 },
    { "infer_plan_mlp_784_512_512_10_b1", PLAN_NET, true, 0, 1 },
    { "infer_plan_mlp_784_512_512_10_b128", PLAN_NET, true, 0, 128 },
    { "infer_plan_resnet20_b1", PLAN_IMAGES, true, 0, 1 },
    { "infer_plan_resnet20_b64", PLAN_IMAGES, true, 0, 64 },
    { "infer_apart_resnet20_b1", PLAN_IMAGES, false, 0, 1 },
    { "infer_apart_resnet20_b64", PLAN_IMAGES, false, 0, 64 },
    { "infer_lstm_1x64_step", PLAN_STEP, false, 0, 1 },
    { "infer_plan_lstm_1x64_step", PLAN_STEP, true, 0, 1 },
    { "infer_encoder_6x384_t64_b1", PLAN_ENCODER, false, 0, 1 },
    { "infer_plan_encoder_6x384_t64_b1", PLAN_ENCODER, true, 0, 1 },
    { "infer_gpt2_124m_t64_b1", PLAN_GPT, false, 0, 1 },
    { "infer_plan_gpt2_124m_t64_b1", PLAN_GPT, true, 0, 1 },
    { "infer_apart_encoder_4x256_t64_b1", PLAN_FORMULAS, false, 0, 1 },
    { "infer_plan_apart_encoder_4x256_t64_b1", PLAN_FORMULAS, true, 0, 1 },
};
enum { PLANS = sizeof plans / sizeof *plans };

enum { APART_LAYERS = 4, APART_EMBED = 256, APART_HEADS = 4, APART_TIME = 64 };

/* A layer norm by its formula; m has the weight and the bias. */
static mlc_tensor *apart_norm(mlc_module *m, mlc_tensor *x)
{
    mlc_tensor *d = mlc_sub(x, mlc_mean(x, mlc_dims1(-1), true));
    mlc_tensor *v = mlc_mean(mlc_pow_scalar(d, 2.0), mlc_dims1(-1), true);
    mlc_tensor *z = mlc_div(d, mlc_sqrt(mlc_add_scalar(v, 1e-5)));
    return mlc_add(mlc_mul(z, mlc_module_param(m, "weight")), mlc_module_param(m, "bias"));
}

/* Part `which` of q, k, v in x [b,t,3 embed] as [b,heads,t,embed / heads]. */
static mlc_tensor *apart_heads(mlc_tensor *x, int which)
{
    mlc_tensor *part = mlc_slice(x, -1, which * APART_EMBED, (which + 1) * APART_EMBED, 1);
    part = mlc_reshape(part, mlc_dims4(x->shape[0], x->shape[1], APART_HEADS,
                                       APART_EMBED / APART_HEADS));
    return mlc_transpose(part, 1, 2);
}

static mlc_tensor *apart_attention(mlc_tensor *qkv)
{
    mlc_tensor *k = mlc_transpose(apart_heads(qkv, 1), 2, 3);
    mlc_tensor *s = mlc_div_scalar(mlc_matmul(apart_heads(qkv, 0), k), 8.0);
    mlc_tensor *y = mlc_matmul(mlc_softmax(s, -1), apart_heads(qkv, 2));
    return mlc_reshape(mlc_transpose(y, 1, 2),
                       mlc_dims3(qkv->shape[0], qkv->shape[1], APART_EMBED));
}

static mlc_tensor *apart_gelu(mlc_tensor *x)
{
    mlc_tensor *e = mlc_add_scalar(mlc_erf(mlc_div_scalar(x, 1.4142135623730951)), 1.0);
    return mlc_mul_scalar(mlc_mul(x, e), 0.5);
}

/* The encoder of six children a layer: norm, q k v, out, norm, linear, linear. */
static mlc_status apart_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = user, *m[6];
    mlc_tensor *x = in[0];
    (void)n_in;
    (void)n_out;
    for (int l = 0; l < APART_LAYERS; l++) {
        for (int i = 0; i < 6; i++) m[i] = mlc_module_child(net, 6 * l + i);
        mlc_tensor *qkv = mlc_forward(m[1], apart_norm(m[0], x));
        x = mlc_add(x, mlc_forward(m[2], apart_attention(qkv)));
        mlc_tensor *h = apart_gelu(mlc_forward(m[4], apart_norm(m[3], x)));
        x = mlc_add(x, mlc_forward(m[5], h));
    }
    out[0] = x;
    return mlc_ctx_status(ctx);
}

static bool apart_setup(state *s)
{
    const int64_t c = APART_EMBED;
    s->net = mlc_nn_sequential(s->ctx);
    for (int l = 0; l < APART_LAYERS; l++) {
        mlc_module_add(s->net, mlc_nn_layer_norm(s->ctx, c));
        mlc_module_add(s->net, mlc_nn_linear(s->ctx, c, 3 * c));
        mlc_module_add(s->net, mlc_nn_linear(s->ctx, c, c));
        mlc_module_add(s->net, mlc_nn_layer_norm(s->ctx, c));
        mlc_module_add(s->net, mlc_nn_linear(s->ctx, c, 4 * c));
        mlc_module_add(s->net, mlc_nn_linear(s->ctx, 4 * c, c));
    }
    s->a = values_in(s, MLC_F32, mlc_dims3(s->bc->m, APART_TIME, c), -1, 1, NULL);
    return mlc_module_build(s->net) == MLC_OK;
}

/* One step of an LSTM: x, h, c -> y, h, c. */
static bool step_setup(state *s)
{
    s->net = mlc_nn_lstm(s->ctx, 64, 64);
    s->a = values_in(s, MLC_F32, mlc_dims3(1, 1, 64), -1, 1, NULL);
    s->p = values_in(s, MLC_F32, mlc_dims3(1, 1, 64), -1, 1, NULL);
    s->q = values_in(s, MLC_F32, mlc_dims3(1, 1, 64), -1, 1, NULL);
    return mlc_module_build(s->net) == MLC_OK;
}

/* The forward of a case, as mlc_plan_capture_fn calls it. */
static mlc_status plan_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    const state *s = user;
    if (plans[s->bc->op].kind == PLAN_FORMULAS)
        return apart_forward(ctx, s->net, in, n_in, out, n_out);
    return mlc_module_forward(s->net, in, n_in, out, n_out);
}

static int32_t plan_inputs(const state *s, mlc_tensor *in[3])
{
    in[0] = s->a;
    in[1] = s->p;
    in[2] = s->q;
    return plans[s->bc->op].kind == PLAN_STEP ? 3 : 1;
}

static mlc_tensor *plan_apply(state *s)
{
    mlc_tensor   *in[3];
    const int32_t n = plan_inputs(s, in);
    mlc_plan_run(s->plan, in, n, NULL, 0);
    return mlc_plan_output(s->plan, 0);
}

static mlc_tensor *forward_apply(state *s)
{
    mlc_tensor   *in[3], *out[3] = { NULL };
    const int32_t n = plan_inputs(s, in);
    return plan_forward(s->ctx, s, in, n, out, n) == MLC_OK ? out[0] : NULL;
}

/* A plan of the forward, with all passes: its outputs are those of the forward. */
static bool plan_check(state *s)
{
    mlc_tensor   *in[3];
    mlc_plan_desc d = mlc_plan_desc_make();
    const int32_t n = d.n_out = plan_inputs(s, in);
    d.parts = mlc_plan_parts;
    s->plan = mlc_plan_capture_fn(s->ctx, plan_forward, s, in, n, &d);
    if (mlc_plan_run(s->plan, in, n, NULL, 0) != MLC_OK) return false;
    mlc_scope_begin(s->ctx);
    mlc_tensor  *gap = mlc_abs(mlc_sub(mlc_plan_output(s->plan, 0), forward_apply(s)));
    const double off = mlc_item(mlc_max(gap, mlc_dims0(), false));
    mlc_scope_end(s->ctx);
    if (off < 1e-4) return true;
    fprintf(stderr, "%s: WRONG: outputs of the plan move by %g\n", s->bc->name, off);
    return false;
}

static bool plan_setup(state *s)
{
    const plan_shape *p = &plans[s->bc->op];
    const gpt_shape  *g = &gpts[GPTS - 1];
    bool              ok = true;
    switch (p->kind) {
        case PLAN_NET:
            s->a = values_in(s, MLC_F32, mlc_dims2(p->batch, shapes[p->op].width[0]), 0, 1, NULL);
            s->net = net_of(s->ctx, &shapes[p->op]);
            break;
        case PLAN_IMAGES:
            s->net = resnet20_with(s->ctx, false);
            s->a = values_in(s, MLC_F32, mlc_dims4(p->batch, 3, 32, 32), 0, 1, NULL);
            break;
        case PLAN_STEP:    ok = step_setup(s); break;
        case PLAN_ENCODER:
            s->net = encoder_net(s);
            s->a = values_in(s, MLC_F32, mlc_dims3(p->batch, 64, 384), -1, 1, NULL);
            break;
        case PLAN_GPT:
            s->net = gpt_net(s, g);
            s->a = mlc_reshape(labels_of(s, p->batch * 64, g->vocab), mlc_dims2(p->batch, 64));
            break;
        default: ok = apart_setup(s);
    }
    mlc_module_train(s->net, false);
    mlc_no_grad_begin(s->ctx);
    return ok && mlc_module_build(s->net) == MLC_OK && (!p->plan || plan_check(s));
}

static void add_plans(void)
{
    const bool large = bench_free_memory() > 6e9;
    for (int i = 0; i < PLANS; i++) {
        const plan_shape *p = &plans[i];
        if (p->kind == PLAN_GPT && !large) continue;
        bench_case *c = add(p->name, MLC_F32, "samples/s", (double)p->batch);
        c->setup = plan_setup;
        c->run   = run_apply;
        c->apply = p->plan ? plan_apply : forward_apply;
        c->one_thread = p->kind == PLAN_NET && shapes[p->op].sgd;
        c->op    = i;
        c->m     = p->batch;
    }
}
