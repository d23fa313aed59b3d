/* test_capture.c -- tests of section IMPL.PLAN.STEP: captured training steps against the same steps
 * without a plan, bit by bit: losses, parameters, buffers, generator, scaler; what is refused */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "plans.h"

/* One side of a comparison: a network that trains by hand, or by a plan.                        */
typedef struct side {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    int64_t     classes;
    int         calls;
} side;

/* A kind of step: network, optimizer with its settings, shape of the data.                      */
typedef struct kind {
    const char *name;
    mlc_module *(*net)(mlc_ctx *ctx);
    mlc_optim  *(*opt)(mlc_module *net);
    int32_t     n;
    int64_t     x[4];
    int64_t     classes;               /* 0: mean squared error to numbers; below 0: data are    */
                                       /* numbers below -classes, and so are targets            */
    mlc_dtype   dtype;
} kind;

/* The loss of a side: cross entropy of rows of y, or mean squared error.                        */
static mlc_status step_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    side       *s = user;
    mlc_tensor *y = mlc_forward(s->net, in[0]);
    (void)n_in;
    s->calls++;
    if (s->classes < 0) y = mlc_reshape(y, mlc_dims2(-1, -s->classes));
    out[0] = s->classes ? mlc_cross_entropy(y, in[1]) : mlc_mse_loss(y, in[1]);
    if (n_out > 1) out[1] = y;
    return mlc_ctx_status(ctx);
}

/* Data (i 0) or targets (1) of a step, equal in all contexts.                                   */
static mlc_tensor *input(side *s, const kind *k, int i, int64_t step)
{
    const mlc_dims d = mlc_dims_of(k->n, k->x);
    int64_t        n = 1;
    for (int a = 0; a < k->n; a++) n *= k->x[a];
    if (k->classes < 0) return test_tokens(s->ctx, i ? mlc_dims1(n) : d, -k->classes, step + i);
    if (i == 0) return test_rand(s->ctx, k->dtype, d, 10 + (uint64_t)step, -1, 1);
    if (k->classes) return test_tokens(s->ctx, mlc_dims1(k->x[0]), k->classes, step);
    mlc_tensor *y = test_rand(s->ctx, k->dtype, d, 99 + (uint64_t)step, -1, 1);
    return y;
}

/* Largest difference of a's and b's parameters, buffers and gradients' states; 0: equal bits.    */
static double nets_apart(mlc_module *a, mlc_module *b)
{
    mlc_param_iter x = mlc_param_iter_make(a), y = mlc_param_iter_make(b);
    double         most = 0;
    while (mlc_param_next(&x) && mlc_param_next(&y)) {
        const double off = apart(x.tensor, y.tensor);
        if (off < 0 || off > most) most = off < 0 ? INF : off;
    }
    return most;
}

static side made(const kind *k, int threads)
{
    side         s;
    mlc_ctx_desc d = test_desc();
    d.dtype = k->dtype;
    d.threads = threads;
    memset(&s, 0, sizeof s);
    s.ctx = test_ctx_made(mlc_ctx_create(&d));
    mlc_seed(s.ctx, 5);
    s.net = k->net(s.ctx);
    s.classes = k->classes;
    s.opt = k->opt(s.net);
    return s;
}

static void freed(side *s)
{
    mlc_optim_free(s->opt);
    mlc_module_free(s->net);
    mlc_ctx_free(test_ctx_freed(s->ctx));
}

/* A step by hand; the loss.                                                                     */
static double by_hand(side *s, const kind *k, int64_t step)
{
    mlc_tensor *out[1] = {NULL}, *in[2];
    double      loss = 0;
    mlc_scope_begin(s->ctx);
    in[0] = input(s, k, 0, step);
    in[1] = input(s, k, 1, step);
    step_fn(s->ctx, s, in, 2, out, 1);
    mlc_optim_minimize(s->opt, out[0]);
    loss = mlc_item(out[0]);
    CHECK_EQ(mlc_scope_end(s->ctx), MLC_OK);
    return loss;
}

/* A step by the plan.                                                                           */
static double by_plan(side *s, mlc_plan *p, const kind *k, int64_t step)
{
    mlc_tensor *in[2];
    double      loss = 0;
    mlc_scope_begin(s->ctx);
    in[0] = input(s, k, 0, step);
    in[1] = input(s, k, 1, step);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_OK);
    loss = mlc_item(mlc_plan_output(p, 0));
    CHECK_EQ(mlc_scope_end(s->ctx), MLC_OK);
    return loss;
}

static mlc_plan *captured(side *s, const kind *k)
{
    mlc_tensor *in[2];
    mlc_scope_begin(s->ctx);
    in[0] = input(s, k, 0, 0);
    in[1] = input(s, k, 1, 0);
    mlc_plan *p = mlc_plan_capture_step(s->opt, step_fn, s, in, 2, NULL);
    CHECK_EQ(mlc_scope_end(s->ctx), MLC_OK);
    return p;
}

/* Compares n steps: losses, parameters and buffers, and the generator have equal bits.          */
static void check_steps(const kind *k, int64_t n, int threads)
{
    side      hand = made(k, threads), plan = made(k, threads);
    mlc_plan *p = captured(&plan, k);
    double    off = nets_apart(hand.net, plan.net), loss = 0;
    for (int64_t i = 0; i < n && p != NULL && off == 0; i++) {
        const double a = by_hand(&hand, k, i), b = by_plan(&plan, p, k, i);
        loss = fmax(loss, fabs(a - b));
        off = nets_apart(hand.net, plan.net);
        if (off != 0) printf("  %s: parameters differ by %g after step %d\n", k->name, off, (int)i);
    }
    const mlc_rng_state a = mlc_ctx_rng(hand.ctx), b = mlc_ctx_rng(plan.ctx);
    if (!CHECK(p != NULL && off == 0 && loss == 0)) printf("  %s: %g %g\n", k->name, off, loss);
    CHECK_EQ(mlc_optim_steps(hand.opt), mlc_optim_steps(plan.opt));
    CHECK(a.seed == b.seed && a.stream == b.stream);
    CHECK_EQ(plan.calls, 1);
    mlc_plan_free(p);
    freed(&hand);
    freed(&plan);
}

/* ---- networks and optimizers */

static mlc_module *tiny(mlc_ctx *ctx) { return mlp(ctx, 4, 4, 3); }

static mlc_module *square(mlc_ctx *ctx) { return mlp(ctx, 6, 9, 6); }

static mlc_module *dropping(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 12, 33));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.3));
    mlc_module_add(net, mlc_nn_layer_norm(ctx, 33));
    mlc_module_add(net, mlc_nn_linear(ctx, 33, 7));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.1));
    return net;
}

static mlc_optim *sgd(mlc_module *net) { return mlc_sgd(net, 0.05); }

static mlc_optim *momentum(mlc_module *net)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(0.05);
    d.momentum = 0.9;
    d.weight_decay = 0.01;
    return mlc_sgd_ex(net, &d);
}

static mlc_optim *adamw(mlc_module *net) { return mlc_adamw(net, 1e-3); }

/* Clipping by the global norm, and a schedule.                                                  */
static mlc_optim *clipped(mlc_module *net)
{
    mlc_optim      *o = mlc_adamw(net, 1e-2);
    const mlc_sched s = mlc_sched_cosine(12, 0.1);
    mlc_clip_desc   d = mlc_clip_desc_make();
    d.norm = 0.5;
    mlc_optim_clip(o, &d);
    mlc_optim_schedule(o, MLC_KNOB_LR, &s);
    return o;
}

/* A scaler that grows every third step, and so overflows f32 in time.                           */
static mlc_optim *scaled(mlc_module *net)
{
    mlc_optim      *o = momentum(net);
    mlc_scaler_desc d = mlc_scaler_desc_make();
    d.init = 1e36;
    d.cap = 1e38;
    d.growth = 10.0;
    d.interval = 3;
    mlc_optim_scaler(o, &d);
    return o;
}

static const kind KINDS[] = {
    {"4-4-3, sgd", tiny, sgd, 2, {1, 4}, 3, MLC_F32},
    {"4-4-3, adamw", tiny, adamw, 2, {5, 4}, 3, MLC_F32},
    {"mse, momentum", square, momentum, 2, {5, 6}, 0, MLC_F32},
    {"mse in f64", square, adamw, 2, {5, 6}, 0, MLC_F64},
    {"dropout", dropping, adamw, 2, {8, 12}, 7, MLC_F32},
    {"clipping and schedule", small_mlp, clipped, 2, {9, 12}, 7, MLC_F32},
    {"scaler", small_mlp, scaled, 2, {9, 12}, 7, MLC_F32},
    {"convolutions and batch norm", cnn, momentum, 4, {4, 3, 16, 16}, 10, MLC_F32},
    {"resnet20", resnet20, clipped, 4, {2, 3, 32, 32}, 10, MLC_F32},
    {"transformer", gpt, clipped, 2, {3, 9}, -30, MLC_F32},
};

TEST(capture, steps_have_the_bits_of_steps_by_hand)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(KINDS); i++) check_steps(&KINDS[i], 14, 1);
}

TEST(capture, at_several_threads)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(KINDS); i += 2) check_steps(&KINDS[i], 4, 3);
}
