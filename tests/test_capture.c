/* test_capture.c -- tests of section IMPL.PLAN.STEP: captured training steps against the same steps
 * without a plan, bit by bit: losses, parameters, buffers, generator, scaler; what is refused */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "compile.h"
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
    int64_t     classes;               /* 0: mean squared error to numbers; BINARY; below 0:     */
                                       /* data are numbers below -classes, and so are targets   */
    mlc_dtype   dtype;
} kind;

enum { BINARY = 1000 };                /* binary cross entropy of logits                        */

/* The loss of a side: cross entropy of rows of y, or mean squared error.                        */
static mlc_status step_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    side       *s = user;
    mlc_tensor *y = mlc_forward(s->net, in[0]);
    (void)n_in;
    s->calls++;
    if (s->classes < 0) y = mlc_reshape(y, mlc_dims2(-1, -s->classes));
    out[0] = s->classes == BINARY ? mlc_bce_with_logits(y, in[1])
             : s->classes ? mlc_cross_entropy(y, in[1]) : mlc_mse_loss(y, in[1]);
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
    if (k->classes == BINARY) return test_rand(s->ctx, k->dtype, d, 99 + (uint64_t)step, 0, 1);
    if (k->classes) return test_tokens(s->ctx, mlc_dims1(k->x[0]), k->classes, step);
    return test_rand(s->ctx, k->dtype, d, 99 + (uint64_t)step, -1, 1);
}

/* Largest difference of a's and b's parameters and buffers; 0: equal bits.                      */
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

/* A plan of step_fn with its first n_out results.                                               */
static mlc_plan *captured_with(side *s, const kind *k, int32_t n_out)
{
    mlc_step_desc d = mlc_step_desc_make();
    mlc_tensor   *in[2];
    d.n_out = n_out;
    mlc_scope_begin(s->ctx);
    in[0] = input(s, k, 0, 0);
    in[1] = input(s, k, 1, 0);
    mlc_plan *p = mlc_plan_capture_step(s->opt, step_fn, s, in, 2, &d);
    CHECK_EQ(mlc_scope_end(s->ctx), MLC_OK);
    return p;
}

static mlc_plan *captured(side *s, const kind *k) { return captured_with(s, k, 1); }

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
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 12, 33), mlc_nn_gelu(ctx),
                          mlc_nn_dropout(ctx, 0.3), mlc_nn_layer_norm(ctx, 33),
                          mlc_nn_linear(ctx, 33, 7), mlc_nn_dropout(ctx, 0.1));
}

/* Attention by random features, whose kernel is that of backward, too; 37 rows are two chunks.   */
static mlc_module *features(mlc_ctx *ctx)
{
    const mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(30, 70, 1, 16, 2);
    return with_features(mlc_nn_gpt(ctx, &d));
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
    d.init = 1e37;
    d.cap = 1e40;
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
    {"binary cross entropy", square, adamw, 2, {5, 6}, BINARY, MLC_F32},
    {"dropout", dropping, adamw, 2, {8, 12}, 7, MLC_F32},
    {"clipping and schedule", small_mlp, clipped, 2, {9, 12}, 7, MLC_F32},
    {"scaler", small_mlp, scaled, 2, {9, 12}, 7, MLC_F32},
    {"convolutions and batch norm", cnn, momentum, 4, {4, 3, 16, 16}, 10, MLC_F32},
    {"resnet20", resnet20, clipped, 4, {2, 3, 32, 32}, 10, MLC_F32},
    {"transformer", gpt, clipped, 2, {3, 9}, -30, MLC_F32},
    {"attention by features", features, clipped, 2, {2, 37}, -30, MLC_F32},
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

/* ---- random networks and settings: equal bits, after all that may come between steps */

/* A random step: both sides draw the same numbers, and so make the same of them.                */
typedef struct draws {
    uint64_t r;
    int64_t  n, in, out;
    int      loss;
    bool     decays;                   /* the loss has squares of a parameter                   */
} draws;

static int roll(draws *d, int n)
{
    d->r = d->r * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((d->r >> 33) % (uint64_t)n);
}

/* The layer after a linear one of w outputs; NULL: none.                                        */
static mlc_module *random_layer(mlc_ctx *ctx, draws *d, int64_t w)
{
    switch (roll(d, 13)) {
        case 0:  return mlc_nn_relu(ctx);
        case 1:  return mlc_nn_tanh(ctx);
        case 2:  return mlc_nn_sigmoid(ctx);
        case 3:  return mlc_nn_gelu(ctx);
        case 4:  return mlc_nn_silu(ctx);
        case 5:  return mlc_nn_elu(ctx, 0.7);
        case 6:  return mlc_nn_dropout(ctx, 0.1 + 0.2 * roll(d, 4));
        case 7:  return mlc_nn_layer_norm(ctx, w);
        case 8:  return mlc_nn_batch_norm(ctx, w);
        case 9:  return mlc_nn_rms_norm(ctx, w);
        case 10: return mlc_nn_prelu(ctx, w);
        case 11: return mlc_nn_residual(ctx, mlc_nn_linear(ctx, w, w), NULL, roll(d, 2));
        default: return NULL;
    }
}

static mlc_module *random_net(mlc_ctx *ctx, draws *d)
{
    mlc_module *net = mlc_nn_sequential(ctx), *last = NULL;
    int64_t     w = d->in;
    for (int l = roll(d, 4); l >= 0; l--) {
        const int64_t to = 1 + roll(d, 40);
        mlc_module_add(net, mlc_nn_linear(ctx, w, to));
        w = to;
        for (int k = roll(d, 3); k >= 0; k--)
            if ((last = random_layer(ctx, d, w)) != NULL) mlc_module_add(net, last);
    }
    mlc_module_add(net, mlc_nn_linear(ctx, w, d->out));
    return net;
}

static mlc_optim *random_optim(mlc_module *net, draws *d)
{
    static mlc_optim *(*const make[])(mlc_module *net, double lr) = {
        mlc_sgd, mlc_adam, mlc_adamw, mlc_lamb, mlc_amsgrad, mlc_radam, mlc_nadam, mlc_rmsprop,
        mlc_adagrad, mlc_adadelta, mlc_rprop, mlc_lars, mlc_lion, mlc_sophia,
        mlc_schedule_free_sgd, mlc_schedule_free_adamw, mlc_adafactor, mlc_muon, mlc_adamax};
    mlc_group_desc  g = mlc_group_desc_make();
    mlc_clip_desc   c = mlc_clip_desc_make();
    mlc_scaler_desc s = mlc_scaler_desc_make();
    const mlc_sched cosine = mlc_sched_cosine(7, 0.1);
    const int       rule = roll(d, 2 * COUNT(make));
    mlc_optim      *o = rule < COUNT(make) ? make[rule](net, 0.01) : momentum(net);
    g.lr_scale = 0.5;
    s.init = 1e3;
    s.interval = 2;
    c.norm = 0.2;
    c.each = roll(d, 2);
    if (roll(d, 3) == 0) mlc_optim_clip(o, &c);
    if (roll(d, 4) == 0) mlc_optim_scaler(o, &s);
    if (roll(d, 4) == 0) mlc_optim_schedule(o, MLC_KNOB_LR, &cosine);
    if (roll(d, 4) == 0) mlc_optim_group(o, "*.bias", &g);
    if (roll(d, 4) == 0) mlc_optim_no_decay(o, true);
    if (roll(d, 6) == 0) mlc_optim_noise(o, 0.01, 0.55);
    if (roll(d, 5) == 0) mlc_ema(o, 0.9);
    mlc_error_clear(mlc_module_ctx(net));
    return o;
}

/* What random_fn is given: a side, and what it draws.                                           */
typedef struct random_side { side s; draws d; } random_side;

static mlc_status random_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    random_side *r = user;
    mlc_tensor  *y = mlc_forward(r->s.net, in[0]), *loss;
    (void)n_in;
    (void)n_out;
    switch (r->d.loss) {
        case 0:  loss = mlc_cross_entropy(y, in[1]); break;
        case 1:  loss = mlc_mse_loss(y, in[2]); break;
        case 2:  loss = mlc_bce_with_logits(y, mlc_sigmoid(in[2])); break;
        case 3:  loss = mlc_smooth_l1_loss(y, in[2]); break;
        default: loss = mlc_add(mlc_cross_entropy(y, in[1]), mlc_l1_loss(y, in[2]));
    }
    if (r->d.decays) {
        mlc_tensor *w = mlc_module_param(r->s.net, "0.weight");
        loss = mlc_add(loss, mlc_mul_scalar(mlc_mean_all(mlc_square(w)), 0.01));
    }
    out[0] = loss;
    return mlc_ctx_status(ctx);
}

static void random_made(random_side *r, uint64_t number)
{
    mlc_ctx_desc c = test_desc();
    mlc_prune_desc prune = mlc_prune_desc_make(0.3);
    memset(r, 0, sizeof *r);
    r->d.r = number * 77 + 1;
    for (int i = 0; i < 4; i++) roll(&r->d, 2);
    r->d.n = 2 + roll(&r->d, 9);
    r->d.in = 1 + roll(&r->d, 20);
    r->d.out = 2 + roll(&r->d, 9);
    r->d.loss = roll(&r->d, 5);
    r->d.decays = roll(&r->d, 4) == 0;
    c.threads = 1 + roll(&r->d, 3);
    r->s.ctx = test_ctx_made(mlc_ctx_create(&c));
    mlc_seed(r->s.ctx, number);
    r->s.net = random_net(r->s.ctx, &r->d);
    mlc_module_build(r->s.net);
    if (roll(&r->d, 4) == 0) mlc_module_freeze(r->s.net, "0.*", true);
    r->s.opt = random_optim(r->s.net, &r->d);
    if (roll(&r->d, 5) == 0) CHECK_EQ(mlc_prune(r->s.net, &prune), MLC_OK);
}

static void random_inputs(random_side *r, int step, mlc_tensor *in[3])
{
    mlc_ctx *ctx = r->s.ctx;
    in[0] = test_rand(ctx, MLC_F32, mlc_dims2(r->d.n, r->d.in), 10 + (uint64_t)step, -1, 1);
    in[1] = test_tokens(ctx, mlc_dims1(r->d.n), r->d.out, step);
    in[2] = test_rand(ctx, MLC_F32, mlc_dims2(r->d.n, r->d.out), 50 + (uint64_t)step, -1, 1);
}

/* What comes before a step: other threads, another seed, rate or list of frozen parameters, memory
 * that moves. True: the step is made by hand.                                                   */
static bool random_event(random_side *r)
{
    mlc_ctx *ctx = r->s.ctx;
    switch (roll(&r->d, 11)) {
        case 0:  mlc_ctx_set_threads(ctx, 1 + roll(&r->d, 3)); break;
        case 1:  mlc_seed(ctx, (uint64_t)roll(&r->d, 9)); break;
        case 2:  mlc_optim_set_lr(r->s.opt, 0.002 * roll(&r->d, 9)); break;
        case 3:  mlc_module_freeze(r->s.net, "0.*", true); break;
        case 4:  mlc_module_freeze(r->s.net, "0.*", false); break;
        case 5:  mlc_module_rebuild(r->s.net); break;
        case 6:  return true;
        default: break;
    }
    return false;
}

/* The loss of a step; NULL plan: by hand.                                                       */
static double random_step(random_side *r, mlc_plan *p, int step)
{
    mlc_tensor *in[3], *out[1] = {NULL};
    mlc_scope_begin(r->s.ctx);
    random_inputs(r, step, in);
    if (random_event(r) || p == NULL) {
        random_fn(r->s.ctx, r, in, 3, out, 1);
        mlc_optim_minimize(r->s.opt, out[0]);
    } else {
        CHECK_EQ(mlc_plan_run(p, in, 3, NULL, 0), MLC_OK);
        out[0] = mlc_plan_output(p, 0);
    }
    const double loss = out[0] ? mlc_item(out[0]) : INF;
    if (!CHECK_EQ(mlc_scope_end(r->s.ctx), MLC_OK)) printf("  %s\n", mlc_error(r->s.ctx));
    return loss;
}

/* Tells whether all parameters and buffers of two networks have equal bytes.                    */
static bool nets_equal(mlc_module *a, mlc_module *b)
{
    static char    u[1 << 15], v[1 << 15];
    mlc_param_iter x = mlc_param_iter_make(a), y = mlc_param_iter_make(b);
    bool           equal = true;
    while (mlc_param_next(&x) && mlc_param_next(&y) && equal) {
        const size_t n = (size_t)mlc_numel(x.tensor) * mlc_dtype_bytes(x.tensor->dtype);
        equal = n <= sizeof u && mlc_read(x.tensor, u, n) == MLC_OK &&
                mlc_read(y.tensor, v, n) == MLC_OK && memcmp(u, v, n) == 0;
    }
    return equal;
}

static void check_random(uint64_t number)
{
    random_side hand, plan;
    mlc_tensor *in[3];
    bool        equal = true;
    random_made(&hand, number);
    random_made(&plan, number);
    mlc_scope_begin(plan.s.ctx);
    random_inputs(&plan, 0, in);
    mlc_plan *p = mlc_plan_capture_step(plan.s.opt, random_fn, &plan, in, 3, NULL);
    if (!CHECK(p != NULL)) printf("  %d: %s\n", (int)number, mlc_error(plan.s.ctx));
    mlc_scope_end(plan.s.ctx);
    for (int i = 0; i < 6 && p != NULL && equal; i++) {
        const double a = random_step(&hand, NULL, i), b = random_step(&plan, p, i);
        equal = (a == b || (isnan(a) && isnan(b))) && nets_equal(hand.s.net, plan.s.net);
        if (!CHECK(equal)) printf("  %d: step %d, %.9g %.9g\n", (int)number, i, a, b);
    }
    mlc_plan_free(p);
    freed(&hand.s);
    freed(&plan.s);
}

TEST(capture, random_networks_and_settings_step_alike)
{
    ONLY_ON_HOST();
    for (uint64_t i = 0; i < 60; i++) check_random(i);
}

/* ---- steps that look like others */

/* The network twice, so that its batch norm counts two batches.                                 */
static mlc_status twice_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    side *s = user;
    (void)n_in;
    (void)n_out;
    mlc_tensor *a = mlc_forward(s->net, in[0]), *b = mlc_forward(s->net, mlc_tanh(in[0]));
    out[0] = mlc_add(mlc_cross_entropy(a, in[1]), mlc_mse_loss(a, b));
    return mlc_ctx_status(ctx);
}

/* Has run a backward of its own before the loss, as a program that looks at gradients may.     */
static mlc_status backward_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    side *s = user;
    mlc_backward(mlc_mean_all(mlc_square(mlc_forward(s->net, in[0]))));
    return step_fn(ctx, user, in, n_in, out, n_out);
}

/* Five steps of fn by hand and by a plan: equal bits. before: NULL, or what comes before step 2. */
static void check_fn(const kind *k, mlc_plan_fn fn, void (*before)(side *s))
{
    side        pair[2] = {made(k, 1), made(k, 1)};
    mlc_plan   *p = NULL;
    mlc_tensor *in[2], *out[1];
    for (int64_t i = 0; i < 5; i++) {
        double loss[2];
        for (int j = 0; j < 2; j++) {
            side *s = &pair[j];
            mlc_scope_begin(s->ctx);
            if (i == 2 && before != NULL) before(s);
            in[0] = input(s, k, 0, i);
            in[1] = input(s, k, 1, i);
            if (j == 1 && i == 0) p = mlc_plan_capture_step(s->opt, fn, s, in, 2, NULL);
            if (j == 1 && !CHECK(p != NULL)) printf("  %s: %s\n", k->name, mlc_error(s->ctx));
            out[0] = NULL;
            if (j == 0) fn(s->ctx, s, in, 2, out, 1);
            if (j == 0) mlc_optim_minimize(s->opt, out[0]);
            if (j == 1) mlc_plan_run(p, in, 2, NULL, 0);
            if (j == 1) out[0] = mlc_plan_output(p, 0);
            loss[j] = out[0] != NULL ? mlc_item(out[0]) : INF;
            if (!CHECK_EQ(mlc_scope_end(s->ctx), MLC_OK))
                printf("  %s: %s\n", k->name, mlc_error(s->ctx));
        }
        if (!CHECK(loss[0] == loss[1] && nets_equal(pair[0].net, pair[1].net)))
            printf("  %s: step %d: %.9g %.9g\n", k->name, (int)i, loss[0], loss[1]);
    }
    mlc_plan_free(p);
    freed(&pair[0]);
    freed(&pair[1]);
}

/* Layers whose draws are their own, beside a dropout's, which go on.                            */
static mlc_module *sketching(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) {
        mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(12, 12, 1, 3);
        d.u = i == 0 ? MLC_SKETCH_SRHT : i == 1 ? MLC_SKETCH_COUNT : d.u;
        mlc_module_add(net, mlc_nn_sklinear_ex(ctx, &d));
        mlc_module_add(net, mlc_nn_dropout(ctx, 0.2));
    }
    mlc_module_add(net, mlc_nn_linear(ctx, 12, 7));
    return net;
}

static mlc_module *normed(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 12, 9), mlc_nn_batch_norm(ctx, 9),
                          mlc_nn_relu(ctx), mlc_nn_linear(ctx, 9, 7));
}

/* Two layers of one weight, and adapters with dropout.                                          */
static mlc_module *tied(mlc_ctx *ctx)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 12, 12), mlc_nn_tanh(ctx),
                                     mlc_nn_linear(ctx, 12, 12), mlc_nn_linear(ctx, 12, 7));
    mlc_module_tie(mlc_module_child(net, 2), "weight", mlc_module_param(net, "0.weight"));
    return net;
}

static mlc_optim *adapted(mlc_module *net)
{
    mlc_lora_desc d = mlc_lora_desc_make(2, 4);
    d.dropout = 0.3;
    mlc_module_build(net);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    return adamw(net);
}

/* Attention and sums with dropout, in the products' sinks.                                      */
static mlc_module *attends(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(30, 16, 2, 16, 2);
    d.layer.dropout = 0.2;
    return mlc_nn_gpt(ctx, &d);
}

/* Pieces that run twice, one with a dropout and one with a batch norm.                          */
static mlc_module *pieces(mlc_ctx *ctx)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, dropping(ctx), mlc_nn_linear(ctx, 7, 12), normed(ctx));
    CHECK_EQ(mlc_module_recompute(net, 1), MLC_OK);
    return net;
}

static void prune_half(side *s)
{
    const mlc_prune_desc d = mlc_prune_desc_make(0.5);
    CHECK_EQ(mlc_prune(s->net, &d), MLC_OK);
}

TEST(capture, networks_called_twice_tied_adapted_recomputed_and_pruned)
{
    ONLY_ON_HOST();
    const kind norm = {"batch norm", normed, clipped, 2, {8, 12}, 7, MLC_F32};
    const kind drop = {"sketches", sketching, adamw, 2, {8, 12}, 7, MLC_F32};
    const kind one = {"tied", tied, momentum, 2, {8, 12}, 7, MLC_F32};
    const kind lora = {"lora", small_mlp, adapted, 2, {8, 12}, 7, MLC_F32};
    const kind attention = {"attention", attends, adamw, 2, {3, 9}, -30, MLC_F32};
    const kind again = {"recomputed", pieces, adamw, 2, {8, 12}, 7, MLC_F32};
    check_fn(&norm, step_fn, prune_half);
    check_fn(&norm, twice_fn, NULL);
    check_fn(&norm, backward_fn, NULL);
    check_fn(&drop, step_fn, NULL);
    check_fn(&one, step_fn, NULL);
    check_fn(&lora, step_fn, NULL);
    check_fn(&attention, step_fn, NULL);
    check_fn(&again, step_fn, NULL);
}

/* Matrices that are drawn again between runs, by the generator of each side.                     */
TEST(capture, features_that_are_drawn_again)
{
    ONLY_ON_HOST();
    const kind k = {"features", features, clipped, 2, {2, 70}, -30, MLC_F32};
    for (int threads = 1; threads <= 3; threads += 2) {
        side        hand = made(&k, threads), plan = made(&k, threads);
        mlc_plan   *p = captured(&plan, &k);
        mlc_tensor *w = mlc_module_param(plan.net, "layers.0.self_attn.features");
        mlc_tensor *old = mlc_copy(w);
        for (int64_t i = 0; i < 9 && CHECK(p != NULL && w != NULL); i++) {
            if (i == 3 || i == 4 || i == 7) {
                CHECK_EQ(mlc_features_redraw(hand.net), MLC_OK);
                CHECK_EQ(mlc_features_redraw(plan.net), MLC_OK);
                CHECK(apart(w, old) > 0.1);
            }
            CHECK(by_hand(&hand, &k, i) == by_plan(&plan, p, &k, i));
            if (!CHECK(nets_apart(hand.net, plan.net) == 0)) printf("  step %d\n", (int)i);
        }
        CHECK_EQ(plan.calls, 1);
        mlc_plan_free(p);
        freed(&hand);
        freed(&plan);
    }
}

/* ---- the generator, the scaler, memory */

/* One kind in turn for tests that look at a step more closely.                                  */
static const kind DROPOUT = {"dropout", dropping, adamw, 2, {8, 12}, 7, MLC_F32};
static const kind SCALER = {"scaler", small_mlp, scaled, 2, {9, 12}, 7, MLC_F32};
static const kind TINY = {"4-4-3", tiny, momentum, 2, {5, 4}, 3, MLC_F32};

TEST(capture, draws_follow_a_new_seed_and_steps_by_hand_between)
{
    ONLY_ON_HOST();
    side      hand = made(&DROPOUT, 1), plan = made(&DROPOUT, 1);
    mlc_plan *p = captured(&plan, &DROPOUT);
    for (int64_t i = 0; i < 6 && p; i++) {
        if (i == 2) {
            mlc_seed(hand.ctx, 77);
            mlc_seed(plan.ctx, 77);
        }
        const double a = by_hand(&hand, &DROPOUT, i);
        const double b = i == 3 ? by_hand(&plan, &DROPOUT, i) : by_plan(&plan, p, &DROPOUT, i);
        CHECK(a == b);
        CHECK(nets_apart(hand.net, plan.net) == 0);
    }
    CHECK_EQ(plan.calls, 2);
    mlc_plan_free(p);
    freed(&hand);
    freed(&plan);
}

TEST(capture, a_scale_that_overflows_leaves_out_the_step)
{
    ONLY_ON_HOST();
    side      hand = made(&SCALER, 1), plan = made(&SCALER, 1);
    mlc_plan *p = captured(&plan, &SCALER);
    for (int64_t i = 0; i < 12 && p; i++) {
        CHECK(by_hand(&hand, &SCALER, i) == by_plan(&plan, p, &SCALER, i));
        const mlc_scaler_state a = mlc_optim_scaler_state(hand.opt);
        const mlc_scaler_state b = mlc_optim_scaler_state(plan.opt);
        CHECK(a.scale == b.scale && a.good == b.good);
        CHECK_EQ(a.skipped, b.skipped);
    }
    CHECK(mlc_optim_scaler_state(plan.opt).skipped > 0);
    CHECK(mlc_optim_steps(plan.opt) > 0);
    CHECK(nets_apart(hand.net, plan.net) == 0);
    mlc_plan_free(p);
    freed(&hand);
    freed(&plan);
}

TEST(capture, a_run_allocates_nothing_and_may_have_the_callers_block)
{
    ONLY_ON_HOST();
    side        s = made(&TINY, 1);
    mlc_plan   *p = captured(&s, &TINY);
    mlc_memory  before, after;
    mlc_scope_begin(s.ctx);
    mlc_tensor *in[2] = {input(&s, &TINY, 0, 0), input(&s, &TINY, 1, 0)};
    const size_t bytes = mlc_plan_bytes(p);
    char        *block = test_aligned_alloc(64, bytes);
    CHECK(bytes > 0);
    CHECK_EQ(mlc_plan_use_block(p, block, bytes - 1), MLC_ERR_ARG);
    mlc_error_clear(s.ctx);
    CHECK_EQ(mlc_plan_use_block(p, block, bytes), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_OK);
    const char *loss = (const char *)mlc_f32(mlc_plan_output(p, 0));
    CHECK(loss >= block && loss < block + bytes);
    mlc_memory_info(s.ctx, &before);
    mlc_memory_peak_reset(s.ctx);
    for (int i = 0; i < 20; i++) CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_OK);
    mlc_memory_info(s.ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(after.peak, before.allocated);
    CHECK_EQ(mlc_optim_steps(s.opt), 21);
    CHECK_EQ(s.calls, 1);
    CHECK_EQ(mlc_scope_end(s.ctx), MLC_OK);
    mlc_plan_free(p);
    test_aligned_free(block);
    freed(&s);
}

TEST(capture, other_results_and_unfreezing)
{
    ONLY_ON_HOST();
    side hand = made(&TINY, 1), plan = made(&TINY, 1);
    mlc_module_freeze(plan.net, "0.*", true);
    mlc_module_freeze(hand.net, "0.*", true);
    mlc_plan   *p = captured_with(&plan, &TINY, 2);
    mlc_scope_begin(plan.ctx);
    mlc_tensor *in[2] = {input(&plan, &TINY, 0, 0), input(&plan, &TINY, 1, 0)};
    mlc_tensor *out[2] = {mlc_zeros(plan.ctx, MLC_F32, mlc_dims0()),
                          mlc_zeros(plan.ctx, MLC_F32, mlc_dims2(5, 3))};
    mlc_tensor *want = mlc_copy(mlc_forward(plan.net, in[0]));
    CHECK_EQ(mlc_plan_run(p, in, 2, out, 2), MLC_OK);
    CHECK(apart(out[1], want) == 0);
    CHECK(mlc_item(out[0]) == by_hand(&hand, &TINY, 0));
    CHECK(nets_apart(hand.net, plan.net) == 0);
    mlc_module_freeze(plan.net, "0.*", false);
    mlc_module_freeze(hand.net, "0.*", false);
    CHECK(by_hand(&hand, &TINY, 1) == by_plan(&plan, p, &TINY, 1));
    CHECK(nets_apart(hand.net, plan.net) == 0);
    CHECK(by_hand(&hand, &TINY, 2) == by_plan(&plan, p, &TINY, 2));
    CHECK(nets_apart(hand.net, plan.net) == 0);
    CHECK_EQ(mlc_scope_end(plan.ctx), MLC_OK);
    mlc_plan_free(p);
    freed(&hand);
    freed(&plan);
}

TEST(capture, a_wrong_label_makes_no_step)
{
    ONLY_ON_HOST();
    side          hand = made(&TINY, 1), plan = made(&TINY, 1);
    mlc_plan     *p = captured(&plan, &TINY);
    const int64_t wrong[5] = {0, 1, 3, 0, 1};
    mlc_scope_begin(plan.ctx);
    mlc_tensor *in[2] = {input(&plan, &TINY, 0, 0), NULL};
    in[1] = mlc_from(plan.ctx, MLC_I64, mlc_dims1(5), wrong);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_VALUE);
    CHECK_ERROR(plan.ctx, MLC_ERR_VALUE, "label");
    mlc_scope_end(plan.ctx);
    CHECK(nets_apart(hand.net, plan.net) == 0);
    CHECK(by_hand(&hand, &TINY, 0) == by_plan(&plan, p, &TINY, 0));
    CHECK(nets_apart(hand.net, plan.net) == 0);
    mlc_plan_free(p);
    freed(&hand);
    freed(&plan);
}

/* ---- what is refused */

static mlc_status reads_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    step_fn(ctx, user, in, n_in, out, n_out);
    if (mlc_item(out[0]) > 1e9) out[0] = mlc_mul_scalar(out[0], 0.5);
    return mlc_ctx_status(ctx);
}

static mlc_status rows_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    side *s = user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_forward(s->net, in[0]);
    return mlc_ctx_status(ctx);
}

static mlc_status draws_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    side *s = user;
    (void)n_in;
    (void)n_out;
    mlc_tensor *p = mlc_softmax(mlc_forward(s->net, in[0]), -1);
    out[0] = mlc_cross_entropy(p, mlc_reshape(mlc_multinomial(p, 1, true), mlc_dims1(-1)));
    return mlc_ctx_status(ctx);
}

/* A capture of fn fails with this text, and a step by hand works after it as before.            */
static void check_refused(side *s, mlc_plan_fn fn, mlc_status status, const char *part)
{
    mlc_scope_begin(s->ctx);
    mlc_tensor *in[2] = {input(s, &TINY, 0, 0), input(s, &TINY, 1, 0)};
    const uint64_t stream = mlc_ctx_rng(s->ctx).stream;
    CHECK(mlc_plan_capture_step(s->opt, fn, s, in, 2, NULL) == NULL);
    CHECK_ERROR(s->ctx, status, part);
    CHECK(mlc_ctx_rng(s->ctx).stream == stream);
    mlc_scope_end(s->ctx);
}

TEST(capture, what_cannot_be_captured_is_named)
{
    ONLY_ON_HOST();
    side hand = made(&TINY, 1), s = made(&TINY, 1);
    check_refused(&s, reads_fn, MLC_ERR_UNSUPPORTED, "reads values of a tensor on the host");
    check_refused(&s, rows_fn, MLC_ERR_SHAPE, "the loss is [5,3]");
    check_refused(&s, draws_fn, MLC_ERR_UNSUPPORTED, "'multinomial'");
    check_refused(&s, NULL, MLC_ERR_ARG, "fn is NULL");
    mlc_optim_accumulate(s.opt, 2);
    check_refused(&s, step_fn, MLC_ERR_UNSUPPORTED, "mlc_optim_accumulate");
    mlc_optim_accumulate(s.opt, 1);
    mlc_optim_in_backward(s.opt, true);
    check_refused(&s, step_fn, MLC_ERR_UNSUPPORTED, "mlc_optim_in_backward");
    mlc_optim_in_backward(s.opt, false);
    CHECK(by_hand(&hand, &TINY, 0) == by_hand(&s, &TINY, 0));
    CHECK(nets_apart(hand.net, s.net) == 0);
    freed(&hand);
    freed(&s);
}

TEST(capture, a_gradient_of_another_network_is_refused)
{
    ONLY_ON_HOST();
    side        s = made(&TINY, 1);
    mlc_module *all = mlc_nn_sequential(s.ctx), *part = mlc_nn_linear(s.ctx, 4, 4);
    mlc_module_add(all, part);
    mlc_module_add(all, mlc_nn_linear(s.ctx, 4, 3));
    mlc_optim  *o = mlc_sgd(part, 0.1);
    side        other = s;
    other.net = mlc_nn_sequential(s.ctx);
    other.opt = mlc_sgd(s.net, 0.1);
    mlc_module_add(other.net, mlc_nn_linear(s.ctx, 4, 3));
    CHECK_EQ(mlc_module_build(other.net), MLC_OK);
    check_refused(&other, step_fn, MLC_ERR_UNSUPPORTED, "no parameter of the optimizer");
    mlc_optim_free(other.opt);
    mlc_module_free(other.net);
    mlc_optim_free(o);
    mlc_module_free(all);
    freed(&s);
}

TEST(capture, runs_check_shapes_and_the_optimizer)
{
    ONLY_ON_HOST();
    side      s = made(&TINY, 1);
    mlc_plan *p = captured(&s, &TINY);
    mlc_scope_begin(s.ctx);
    mlc_tensor *in[2] = {test_rand(s.ctx, MLC_F32, mlc_dims2(6, 4), 1, -1, 1),
                         test_tokens(s.ctx, mlc_dims1(6), 3, 1)};
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_SHAPE);
    CHECK_ERROR(s.ctx, MLC_ERR_SHAPE, "a step has one set");
    in[0] = input(&s, &TINY, 0, 0);
    in[1] = input(&s, &TINY, 1, 0);
    mlc_optim_free(s.opt);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_STATE);
    CHECK_ERROR(s.ctx, MLC_ERR_STATE, "was freed");
    mlc_scope_end(s.ctx);
    s.opt = NULL;
    mlc_plan_free(p);
    freed(&s);
}

static mlc_status seeds_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    mlc_seed(ctx, 3);
    return step_fn(ctx, user, in, n_in, out, n_out);
}

TEST(capture, generators_refreshes_and_gradients_of_inputs_are_refused)
{
    ONLY_ON_HOST();
    const kind  norm = {"batch norm", normed, sgd, 2, {5, 12}, 7, MLC_F32};
    side        s = made(&norm, 1), t = made(&TINY, 1);
    mlc_plan   *p = captured(&s, &norm);
    mlc_scope_begin(s.ctx);
    mlc_tensor *in[2] = {input(&s, &norm, 0, 0), input(&s, &norm, 1, 0)};
    mlc_nn_refresh_batch_norm(s.net, true);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(s.ctx, MLC_ERR_UNSUPPORTED, "mlc_nn_refresh_batch_norm");
    mlc_nn_refresh_batch_norm(s.net, false);
    mlc_set_requires_grad(in[0], true);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(s.ctx, MLC_ERR_UNSUPPORTED, "input 1 requires a gradient");
    mlc_set_requires_grad(in[0], false);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_OK);
    mlc_scope_end(s.ctx);
    check_refused(&t, seeds_fn, MLC_ERR_UNSUPPORTED, "sets the generator");
    mlc_plan_free(p);
    freed(&s);
    freed(&t);
}

/* Refused in its second call and later ones, until the program says otherwise.                  */
static bool refuses;

static mlc_status once_fn(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    return refuses ? reads_fn(ctx, user, in, n_in, out, n_out)
                   : step_fn(ctx, user, in, n_in, out, n_out);
}

TEST(capture, a_recording_that_cannot_be_made_anew_is_not_run)
{
    ONLY_ON_HOST();
    side        hand = made(&TINY, 1), s = made(&TINY, 1);
    mlc_scope_begin(s.ctx);
    mlc_tensor *in[2] = {input(&s, &TINY, 0, 0), input(&s, &TINY, 1, 0)};
    mlc_plan   *p = mlc_plan_capture_step(s.opt, once_fn, &s, in, 2, NULL);
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_OK);
    by_hand(&hand, &TINY, 0);
    refuses = true;
    mlc_ctx_set_threads(s.ctx, 3);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_UNSUPPORTED);
        mlc_error_clear(s.ctx);
    }
    CHECK(nets_equal(hand.net, s.net));
    refuses = false;
    mlc_scope_end(s.ctx);
    CHECK(by_hand(&hand, &TINY, 1) == by_plan(&s, p, &TINY, 1));
    CHECK(nets_equal(hand.net, s.net));
    mlc_plan_free(p);
    freed(&hand);
    freed(&s);
}

TEST(capture, another_optimizer_at_the_address_is_not_stepped)
{
    ONLY_ON_HOST();
    side      s = made(&TINY, 1);
    mlc_plan *p = captured(&s, &TINY);
    mlc_optim_free(s.opt);
    s.opt = momentum(s.net);
    mlc_scope_begin(s.ctx);
    mlc_tensor *in[2] = {input(&s, &TINY, 0, 0), input(&s, &TINY, 1, 0)};
    CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_ERR_STATE);
    CHECK_ERROR(s.ctx, MLC_ERR_STATE, "was freed");
    CHECK_EQ(mlc_optim_steps(s.opt), 0);
#if !defined(MLC_NO_EXPORT) && !defined(MLC_NO_FILES)
    CHECK_EQ(mlc_plan_write_step_c(p, "never.c", NULL), MLC_ERR_STATE);
    mlc_error_clear(s.ctx);
#endif
    mlc_scope_end(s.ctx);
    mlc_plan_free(p);
    freed(&s);
}

/* ---- the file of C */

#if !defined(MLC_NO_EXPORT) && !defined(_WIN32)
static mlc_module *xor_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 8), mlc_nn_tanh(ctx),
                          mlc_nn_linear(ctx, 8, 2));
}

static mlc_module *gelu_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 6, 10), mlc_nn_gelu(ctx),
                          mlc_nn_linear(ctx, 10, 9), mlc_nn_sigmoid(ctx),
                          mlc_nn_linear(ctx, 9, 6));
}

static mlc_module *silu_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 6, 11), mlc_nn_silu(ctx), mlc_nn_silu(ctx),
                          mlc_nn_linear(ctx, 11, 6));
}

static mlc_optim *nesterov(mlc_module *net)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(0.05);
    d.momentum = 0.8;
    d.nesterov = true;
    return mlc_sgd_ex(net, &d);
}

static const kind FILES[] = {
    {"xor, sgd", xor_net, sgd, 2, {4, 2}, 2, MLC_F32},
    {"4-4-3, batch 1", tiny, momentum, 2, {1, 4}, 3, MLC_F32},
    {"relu, momentum", small_mlp, momentum, 2, {7, 12}, 7, MLC_F32},
    {"mse, gelu, sigmoid, nesterov", gelu_net, nesterov, 2, {5, 6}, 0, MLC_F32},
    {"binary, silu", silu_net, momentum, 2, {5, 6}, BINARY, MLC_F32},
};
enum { FILE_STEPS = 25 };

/* Writes statements that set input j of step i.                                                 */
static void write_input(side *s, const kind *k, FILE *f, int j, int64_t i)
{
    double      v[512];
    mlc_tensor *x = input(s, k, j, i);
    test_read(x, v);
    for (int64_t e = 0; e < mlc_numel(x); e++) {
        char text[40];
        test_print_g17(text, v[e]);
        fprintf(f, "    t.x%d[%d] = (%s)%s;\n", j, (int)e,
                x->dtype == MLC_I64 ? "int32_t" : "float", text);
    }
}

/* Writes a main that trains on stored inputs, and writes the weights as bytes, and, where the plan
 * has the logits, after them those of the first data.                                           */
static void write_main(side *s, const kind *k, const char *path, const char *code, bool logits)
{
    FILE *f = fopen(path, "w");
    fprintf(f, "#include <stdio.h>\n#include \"%s\"\nint main(int n, char **v)\n{\n"
               "    static net_step t;\n    int bad = n < 2;\n    net_reset(&t);\n", code);
    if (k == FILES)                    /* training of XOR in 1 KB                               */
        fprintf(f, "    bad += sizeof t + NET_MEMORY > 1024;\n");
    for (int64_t i = 0; i < FILE_STEPS; i++) {
        for (int j = 0; j < 2; j++) write_input(s, k, f, j, i);
        fprintf(f, "    bad += net_train(&t);\n");
    }
    write_input(s, k, f, 0, 0);
    if (logits) fprintf(f, "    bad += net_run(&t);\n");
    fprintf(f, "    if (bad == 0) {\n        FILE *f = fopen(v[1], \"wb\");\n"
               "        bad = !f || fwrite(t.weights, sizeof t.weights, 1, f) != 1;\n%s"
               "        if (f) fclose(f);\n    }\n    return bad;\n}\n",
            logits ? "        bad = bad || fwrite(t.y1, sizeof t.y1, 1, f) != 1;\n" : "");
    fclose(f);
}

/* Largest difference of the weights in a file, and of what follows them, from the parameters and
 * y, NULL or the results of the first data.                                                    */
static double file_apart(mlc_module *net, mlc_tensor *y, const char *path)
{
    static float   got[4096];
    static double  want[4096];
    mlc_param_iter it = mlc_param_iter_make(net);
    FILE          *f = fopen(path, "rb");
    const size_t   n = f ? fread(got, sizeof *got, 4096, f) : 0;
    double         off = 0;
    size_t         at = 0;
    if (f) fclose(f);
    for (bool more = true; more;) {
        more = mlc_param_next(&it);
        mlc_tensor *t = more ? it.tensor : y;
        if (t != NULL) test_read(t, want);
        for (int64_t i = 0; t != NULL && i < mlc_numel(t); i++)
            off = at < n ? fmax(off, fabs((double)got[at++] - want[i])) : INF;
    }
    return at == n ? off : INF;
}

/* A kind's file of C trains as its plan does. logits: the plan has them, too.                   */
static void check_file(const kind *k, bool logits)
{
    const box b = box_open_fast("net.c");
    char      code[400], out[400];
    side      s = made(k, 1);
    mlc_plan *p = captured_with(&s, k, 1 + logits);
    snprintf(code, sizeof code, "%s.main.c", b.path);
    snprintf(out, sizeof out, "%s.bin", b.path);
    if (!CHECK_EQ(mlc_plan_write_step_c(p, b.path, NULL), MLC_OK))
        printf("  %s: %s\n", k->name, mlc_error(s.ctx));
    mlc_scope_begin(s.ctx);
    write_main(&s, k, code, b.path, logits);
    mlc_scope_end(s.ctx);
    for (int64_t j = 0; j < FILE_STEPS; j++) by_plan(&s, p, k, j);
    if (has_compiler()) {
        CHECK(compiles_as_c(code));
        CHECK_EQ(runs("'%s.out' '%s'", code, out), 0);
        mlc_scope_begin(s.ctx);
        mlc_tensor  *y = logits ? mlc_forward(s.net, input(&s, k, 0, 0)) : NULL;
        const double off = file_apart(s.net, y, out);
        if (!CHECK(off < 1e-5)) printf("  %s: %g\n", k->name, off);
        mlc_scope_end(s.ctx);
    }
    CHECK(compiles_as_cpp(b.path));
    mlc_plan_free(p);
    freed(&s);
    box_close(&b);
}

TEST(capture, files_of_c_train_as_the_library)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(FILES); i++) check_file(&FILES[i], i % 2);
}

/* Writing a step's file fails with this text.                                                   */
static void check_unwritten(const kind *k, const char *part)
{
    const box b = box_open_fast("net.c");
    side      s = made(k, 1);
    mlc_plan *p = captured(&s, k);
    CHECK_EQ(mlc_plan_write_step_c(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(s.ctx, MLC_ERR_UNSUPPORTED, part);
    CHECK(access(b.path, F_OK) != 0);
    mlc_plan_free(p);
    freed(&s);
    box_close(&b);
}

TEST(capture, what_has_no_form_in_c_is_named)
{
    ONLY_ON_HOST();
    const kind conv = {"cnn", cnn, sgd, 4, {1, 3, 16, 16}, 10, MLC_F32};
    const kind clip = {"clip", tiny, clipped, 2, {1, 4}, 3, MLC_F32};
    const kind drop = {"drop", dropping, sgd, 2, {8, 12}, 7, MLC_F32};
    const kind attention = {"features", features, sgd, 2, {2, 9}, -30, MLC_F32};
    check_unwritten(&conv, "' of 0 has no form in C");
    check_unwritten(&clip, "adamw");
    check_unwritten(&drop, "has no form in C");
    check_unwritten(&attention, "has no form in C");
}
#endif
