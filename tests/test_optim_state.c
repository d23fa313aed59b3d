/* test_optim_state.c -- tests of IMPL.OPTIM.STATE and IMPL.IO.OPTIM: training stops and goes on
 *
 * A training that was stopped, saved and loaded into a fresh context makes the same bits as one
 * that was not stopped.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "rules.h"
#include "watch.h"

#define GOLDEN(name) "tests/golden/" name ".safetensors"

enum { STOPS = 30, MORE = 3 };

/* ---- a training ----------------------------------------------------------------------------- */

static mlc_optim *make_sgd(mlc_module *m) { return mlc_sgd(m, 0.05); }
static mlc_optim *make_momentum(mlc_module *m)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(0.05);
    d.momentum = 0.9;
    d.nesterov = true;
    d.weight_decay = 0.01;
    return mlc_sgd_ex(m, &d);
}
static mlc_optim *make_adam(mlc_module *m) { return mlc_adam(m, 0.02); }
static mlc_optim *make_adamw(mlc_module *m)
{
    mlc_adam_desc d = mlc_adamw_desc_make(0.01);
    d.beta2 = 0.99;
    d.weight_decay = 0.1;
    return mlc_adamw_ex(m, &d);
}
static mlc_optim *make_adamw_bf16(mlc_module *m)
{
    mlc_adam_desc d = mlc_adamw_desc_make(0.01);
    d.moments = MLC_MOMENTS_BF16;
    return mlc_adamw_ex(m, &d);
}
static mlc_optim *make_adamw_8bit(mlc_module *m)
{
    mlc_adam_desc d = mlc_adamw_desc_make(0.01);
    d.moments = MLC_MOMENTS_8BIT;
    return mlc_adamw_ex(m, &d);
}
static mlc_optim *make_adam_8bit(mlc_module *m)
{
    mlc_adam_desc d = mlc_adam_desc_make(0.02);
    d.moments = MLC_MOMENTS_8BIT;
    return mlc_adam_ex(m, &d);
}
static mlc_optim *make_lion_bf16(mlc_module *m)
{
    mlc_lion_desc d = mlc_lion_desc_make(0.002);
    d.moments = MLC_MOMENTS_BF16;
    return mlc_lion_ex(m, &d);
}
static mlc_optim *make_lion_8bit(mlc_module *m)
{
    mlc_lion_desc d = mlc_lion_desc_make(0.002);
    d.moments = MLC_MOMENTS_8BIT;
    return mlc_lion_ex(m, &d);
}
static mlc_optim *make_lamb(mlc_module *m) { return mlc_lamb(m, 0.02); }

static mlc_optim *make_lbfgs(mlc_module *m)
{
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(1);
    d.max_iter = 3;
    d.history = 5;
    return mlc_lbfgs_ex(m, &d);
}
static mlc_optim *make_lbfgs_fixed(mlc_module *m)
{
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(0.2);
    d.max_iter = 2;
    d.history = 100;
    d.strong_wolfe = false;
    return mlc_lbfgs_ex(m, &d);
}

static const trace OWN[] = {
    {"sgd", make_sgd, 0, false},     {"momentum", make_momentum, 0, false},
    {"adam", make_adam, 0, false},   {"adamw", make_adamw, 0, false},
    {"lamb", make_lamb, 0, false},   {"adamw_bf16", make_adamw_bf16, 0, false},
    {"lion_bf16", make_lion_bf16, 0, false},
    {"adamw_8bit", make_adamw_8bit, 0, false}, {"lion_8bit", make_lion_8bit, 0, false},
    {"adam_8bit", make_adam_8bit, 0, false},
};
enum { N_OWN = sizeof OWN / sizeof *OWN, N_ALL = N_OWN + N_TRACES, SMALL = 5, CODED = 7 };

static const trace LBFGS[] = {
    {"lbfgs", make_lbfgs, 0, false}, {"lbfgs_fixed", make_lbfgs_fixed, 0, false}};

static const trace *rule(int i) { return i < N_OWN ? &OWN[i] : &TRACES[i - N_OWN]; }

/* Is it one of OWN's from `first` on? */
static bool is_of(const trace *t, int first)
{
    for (int i = first; i < N_OWN; i++)
        if (t == &OWN[i]) return true;
    return false;
}

typedef enum way { IN_TWO_FILES, IN_A_RUN, IN_A_SAVER_S_RUN } way;     /* how it is saved     */

typedef struct training {
    const trace *t;
    mlc_dtype    dtype;
    bool         full;                 /* scaler, groups, clipping, schedules, averages,       */
                                       /* Lookahead, 3 calls an update                         */
    way          saved;
    int          sched;                /* of the rate, when it is full                         */
    mlc_ctx     *ctx;
    mlc_module  *net;
    mlc_optim   *opt;
} training;

static mlc_module *small_net(mlc_ctx *ctx, int64_t hidden)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, hidden));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, hidden, 3));
    mlc_module_build(net);
    return net;
}

enum { SCHEDS = 14 };

static mlc_sched sched_of(int i)
{
    static mlc_sched     parts[2];
    static const int64_t at[2] = {4, 9}, starts[2] = {0, 3};
    parts[0] = mlc_sched_constant(0.5);
    parts[1] = mlc_sched_cosine(20, 0.1);
    const mlc_sched list[SCHEDS] = {
        parts[1], parts[0], mlc_sched_step(3, 0.5), mlc_sched_multi_step(at, 2, 0.5),
        mlc_sched_exponential(0.9), mlc_sched_cosine_restarts(3, 2, 0.1),
        mlc_sched_polynomial(12, 2, 0.1), mlc_sched_linear(12, 0.1, 1),
        mlc_sched_wsd(2, 4, 8, 0.1, MLC_CURVE_COSINE), mlc_sched_inverse_sqrt(3),
        mlc_sched_one_cycle(40), mlc_sched_cyclic(3, 0.2), mlc_sched_warmup(4, &parts[1]),
        mlc_sched_sequence(parts, starts, 2)};
    return list[i % SCHEDS];
}

static void settings(training *r)
{
    mlc_scaler_desc s = mlc_scaler_desc_make();
    mlc_group_desc  g = mlc_group_desc_make();
    mlc_clip_desc   c = mlc_clip_desc_make();
    mlc_sched       rate = sched_of(r->sched), decay = mlc_sched_exponential(0.9);
    s.init = 256;
    s.interval = 2;
    s.cap = 4096;
    c.norm = 0.5;
    g.lr_scale = 0.5;
    CHECK_EQ(mlc_optim_scaler(r->opt, &s), MLC_OK);
    CHECK_EQ(mlc_optim_group(r->opt, "*.bias", &g), MLC_OK);
    CHECK_EQ(mlc_optim_clip(r->opt, &c), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(r->opt, 3), MLC_OK);
    CHECK_EQ(mlc_optim_schedule(r->opt, MLC_KNOB_LR, &rate), MLC_OK);
    CHECK_EQ(mlc_optim_schedule(r->opt, MLC_KNOB_WEIGHT_DECAY, &decay), MLC_OK);
    CHECK(mlc_ema(r->opt, 0.9) && mlc_swa(r->opt, 2, 3));
    CHECK_EQ(mlc_optim_lookahead(r->opt, 4, 0.5), MLC_OK);
}

static training training_of(const trace *t, mlc_dtype dtype, bool full, way saved, int sched)
{
    const mlc_ctx_desc d = test_desc();
    training r = {t, dtype, full, saved, sched, mlc_ctx_create(&d), NULL, NULL};
    r.net = small_net(r.ctx, is_of(t, CODED) ? 1100 : 5);  /* a weight of 4,400, one of 3,300  */
    CHECK_EQ(mlc_module_to(r.net, dtype), MLC_OK);
    r.opt = t->make(r.net);
    if (full) settings(&r);
    CHECK_OK(r.ctx);
    return r;
}

static training training_begin(const trace *t, mlc_dtype dtype, bool full)
{
    return training_of(t, dtype, full, IN_TWO_FILES, 0);
}

static void training_end(training *r)
{
    CHECK_OK(r->ctx);
    mlc_ctx_free(r->ctx);
}

static mlc_tensor *loss_of(training *r, int step, uint64_t stream)
{
    const uint64_t seed = (uint64_t)step * 8 + stream;
    mlc_tensor    *x = test_rand(r->ctx, r->dtype, mlc_dims2(6, 4), seed, -1, 1);
    mlc_tensor    *y = mlc_forward(r->net, x);
    return mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
}

/* The mean of a schedule-free rule is there when it stops after an odd step.                    */
static void show_mean(training *r, int step, bool on)
{
    if (r->t->mean && step % 2) CHECK_EQ(mlc_optim_mean(r->opt, on), MLC_OK);
}

typedef struct loss_call { training *r; int step; } loss_call;

static mlc_tensor *loss_again(void *user)
{
    const loss_call *c = (const loss_call *)user;
    return loss_of(c->r, c->step, 0);
}

/* What a program does at a step, whether it was stopped before or not: a parameter is frozen from
 * step 5 to 8, so that it lags behind; the rate falls at step 7; one batch of scaled gradients is
 * not finite.                                                                                    */
static void train(training *r, int step)
{
    mlc_scope_begin(r->ctx);
    if (!r->full) CHECK_EQ(mlc_module_freeze(r->net, "0.bias", step >= 5 && step <= 8), MLC_OK);
    if (!r->full && step == 7) mlc_optim_set_lr(r->opt, mlc_optim_lr(r->opt) / 2);
    if (!r->full && r->t->curvature && step % r->t->curvature == 1) {
        mlc_backward(loss_of(r, step, 1));
        CHECK_EQ(mlc_optim_curvature(r->opt, 6), MLC_OK);
    }
    if (r->t == &LBFGS[0] || r->t == &LBFGS[1]) {
        loss_call c = {r, step};
        CHECK_EQ(mlc_optim_step_with(r->opt, loss_again, &c, NULL), MLC_OK);
    } else {
        mlc_tensor *loss = loss_of(r, step, 0);
        if (r->full && step == 11) loss = mlc_mul_scalar(loss, INF);
        CHECK_EQ(mlc_optim_minimize(r->opt, loss), MLC_OK);
    }
    mlc_scope_end(r->ctx);
}

static uint64_t hash_state(mlc_optim *opt)
{
    uint64_t             h = HASH_SEED;
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it))
        h = hash_tensor(hash_bytes(h, it.name, strlen(it.name)), it.tensor);
    return h;
}

static uint64_t hash_all(training *r)
{
    mlc_scope_begin(r->ctx);
    const uint64_t h = hash_net(hash_state(r->opt), r->net);
    mlc_scope_end(r->ctx);
    return h;
}

/* ---- the same bits -------------------------------------------------------------------------- */

typedef struct files { box net, opt; } files;

static files files_open(void)
{
    const files f = {box_open_fast("net.safetensors"), box_open_fast("opt.safetensors")};
    return f;
}

static void files_close(const files *f)
{
    box_close(&f->net);
    box_close(&f->opt);
}

static mlc_run run_of(const training *r)
{
    mlc_run run;
    memset(&run, 0, sizeof run);
    run.net = r->net;
    run.optim = r->opt;
    return run;
}

static void save_run(const char *path, training *r)
{
    const mlc_run run = run_of(r);
    if (r->saved == IN_A_RUN) {
        CHECK_EQ(mlc_run_save(r->ctx, path, &run), MLC_OK);
        return;
    }
    mlc_run_saver *v = mlc_run_saver_create(r->ctx);
    CHECK_EQ(mlc_run_saver_save(v, path, &run), MLC_OK);
    CHECK_EQ(mlc_run_saver_wait(v), MLC_OK);
    mlc_run_saver_free(v);
}

static void save(const files *f, training *r)
{
    if (r->saved != IN_TWO_FILES) {
        save_run(f->net.path, r);
        return;
    }
    CHECK_EQ(mlc_save(r->net, f->net.path), MLC_OK);
    CHECK_EQ(mlc_optim_save(r->opt, f->opt.path), MLC_OK);
}

static void load(const files *f, training *r)
{
    const mlc_run run = run_of(r);
    if (r->saved != IN_TWO_FILES) {
        CHECK_EQ(mlc_run_load(r->ctx, f->net.path, &run), MLC_OK);
        return;
    }
    CHECK_EQ(mlc_load(r->net, f->net.path), MLC_OK);
    CHECK_EQ(mlc_optim_load(r->opt, f->opt.path), MLC_OK);
}

/* In a context of its own, from the files of a stop after `step`.                               */
static void go_on(const files *f, const training *was, int step, const uint64_t *want)
{
    training r = training_of(was->t, was->dtype, was->full, was->saved, was->sched);
    load(f, &r);
    bool same = CHECK(hash_all(&r) == want[step]);
    for (int more = 1; more <= MORE; more++) {
        show_mean(&r, step + more - 1, false);
        train(&r, step + more);
        show_mean(&r, step + more, true);
        same = CHECK(hash_all(&r) == want[step + more]) && same;
    }
    if (!same)
        printf("  %s, %s, stopped after %d\n", was->t->name, mlc_dtype_name(was->dtype), step);
    training_end(&r);
}

/* After every so many steps. */
static void check_ways(const trace *t, mlc_dtype dtype, bool full, way saved, int sched,
                       int64_t stride)
{
    uint64_t       want[STOPS + MORE + 1];
    files          at[STOPS + 1];
    training       r = training_of(t, dtype, full, saved, sched);
    for (int step = 1; step <= STOPS + MORE; step++) {
        train(&r, step);
        show_mean(&r, step, true);
        want[step] = hash_all(&r);
        if (step <= STOPS && step % stride == 0) {
            at[step] = files_open();
            save(&at[step], &r);
        }
        show_mean(&r, step, false);
    }
    training_end(&r);
    for (int step = 1; step <= STOPS; step++) {
        if (step % stride) continue;
        go_on(&at[step], &r, step, want);
        files_close(&at[step]);
    }
}

static void check_stops(const trace *t, mlc_dtype dtype, bool full)
{
    check_ways(t, dtype, full, IN_TWO_FILES, 0, test_stride(6));
}

TEST(resume, every_rule_makes_the_same_bits_after_any_stop)
{
    for (int i = 0; i < N_ALL; i++) check_stops(rule(i), MLC_F32, false);
}

TEST(resume, scaler_schedules_averages_and_collected_gradients_go_on_where_they_were)
{
    for (int i = 0; i < N_ALL; i++)
        if (!rule(i)->curvature) check_stops(rule(i), MLC_F32, true);
}

TEST(resume, f64_and_bf16_parameters_go_on_where_they_were)
{
    for (int i = 1; i < N_ALL; i += 3) {
        if (!is_of(rule(i), SMALL)) check_stops(rule(i), MLC_F64, i % 2);
        check_stops(rule(i), MLC_BF16, false);
    }
}

TEST(resume, lbfgs_makes_the_same_bits_after_any_stop)
{
    for (int i = 0; i < 2; i++) {
        check_stops(&LBFGS[i], MLC_F32, false);
        check_stops(&LBFGS[i], MLC_F64, false);
        check_stops(&LBFGS[i], MLC_BF16, false);
    }
}

/* Stops after 7, 14, 21 and 28 steps: some are in the midst of an accumulation.                 */
TEST(resume, a_run_file_has_every_rule_form_of_moments_average_and_schedule)
{
    for (int i = 0; i < N_ALL; i++) {
        check_ways(rule(i), MLC_F32, false, IN_A_RUN, 0, 14);
        if (!rule(i)->curvature) check_ways(rule(i), MLC_F32, true, IN_A_RUN, i, 7);
        if (is_of(rule(i), SMALL)) check_ways(rule(i), MLC_BF16, true, IN_A_SAVER_S_RUN, i, 7);
    }
    for (int i = 0; i < 2; i++) check_ways(&LBFGS[i], MLC_F32, false, IN_A_RUN, 0, 14);
}

/* ---- the walk ------------------------------------------------------------------------------- */

static mlc_tensor *find(mlc_optim *opt, const char *name)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it))
        if (strcmp(it.name, name) == 0) return it.tensor;
    return NULL;
}

TEST(resume, the_walk_names_states_as_pytorch_and_sees_them)
{
    static const char *const want[] = {
        "state.0.weight.exp_avg", "state.0.weight.exp_avg_sq", "state.0.weight.step",
        "state.0.bias.exp_avg", "state.0.bias.exp_avg_sq", "state.0.bias.step", "grad.0.bias",
        "state.2.weight.exp_avg", "state.2.weight.exp_avg_sq", "state.2.weight.step",
        "grad.2.weight", "state.2.bias.exp_avg", "state.2.bias.exp_avg_sq", "state.2.bias.step",
        "grad.2.bias", "optim.steps", "optim.calls", "optim.lr", "optim.scale", "optim.good",
        "optim.skipped", "optim.skipped_row"};
    training r = training_begin(&OWN[3], MLC_F32, false);
    int      n = 0;
    for (int step = 1; step <= 6; step++) train(&r, step);
    CHECK_EQ(mlc_optim_scaler(r.opt, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(r.opt, 2), MLC_OK);
    CHECK_EQ(mlc_module_freeze(r.net, "0.weight", true), MLC_OK);
    train(&r, 10);
    mlc_optim_state_iter it = mlc_optim_state_iter_make(r.opt);
    while (mlc_optim_state_next(&it) && n < 22)
        if (test_on_host() || strcmp(it.name, "optim.attempts") != 0)
            CHECK_STR(it.name, want[n++]);
    CHECK_EQ(n, 22);
    CHECK(!mlc_optim_state_next(&it));

    mlc_tensor *m = find(r.opt, "state.0.weight.exp_avg");
    CHECK(m && m->dtype == MLC_F32 && m->ndim == 2 && m->shape[0] == 5 && m->shape[1] == 4);
    CHECK_NEAR(mlc_item(find(r.opt, "state.0.weight.step")), 6, 0);
    CHECK_NEAR(mlc_item(find(r.opt, "state.0.bias.step")), 4, 0);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.steps")), 6, 0);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.calls")), 1, 0);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.scale")), 65536, 0);
    const float ones[20] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    CHECK_EQ(mlc_write(m, ones, sizeof ones), MLC_OK);     /* a view                           */
    CHECK_NEAR(mlc_item(mlc_sum(find(r.opt, "state.0.weight.exp_avg"), mlc_dims0(), false)), 20, 0);
    it = mlc_optim_state_iter_make(NULL);
    CHECK(!mlc_optim_state_next(&it) && !mlc_optim_state_next(NULL));
    training_end(&r);
}

TEST(resume, the_carry_of_a_rule_and_whether_the_mean_is_on_are_walked)
{
    training r = training_begin(rule(N_ALL - 2), MLC_BF16, false);         /* sf_adamw         */
    double   carry[2];
    train(&r, 1);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.mean")), 0, 0);
    CHECK_EQ(mlc_optim_mean(r.opt, true), MLC_OK);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.mean")), 1, 0);
    CHECK(test_read(find(r.opt, "state.2.bias.carry"), carry));
    CHECK(carry[0] > 0 && carry[1] > 0);
    CHECK(find(r.opt, "state.2.bias.z")->dtype == MLC_F32);
    training_end(&r);
}

TEST(resume, averages_are_walked_and_keep_their_count_where_the_file_has_none)
{
    const box    b = box_open_fast("opt.safetensors");
    training     r = training_begin(&OWN[3], MLC_F32, false);
    mlc_average *ema = mlc_ema(r.opt, 0.5);
    for (int step = 1; step <= 4; step++) train(&r, step);
    CHECK_EQ(mlc_optim_lookahead(r.opt, 6, 0.5), MLC_OK);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.slow")), 4, 0);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.average.0")), 0, 0);
    CHECK(find(r.opt, "average.0.2.weight") && find(r.opt, "slow.2.bias"));
    CHECK_EQ(mlc_average_swap(ema, true), MLC_OK);
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(r.ctx), "optim_save: the parameters are an average");
    mlc_error_clear(r.ctx);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_ERR_STATE);
    mlc_error_clear(r.ctx);
    CHECK_EQ(mlc_average_swap(ema, false), MLC_OK);
    CHECK_EQ(mlc_optim_load(r.opt, GOLDEN("torch_adamw")), MLC_OK);        /* of 5 steps       */
    CHECK_NEAR(mlc_item(find(r.opt, "optim.slow")), 5, 0);
    CHECK_NEAR(mlc_item(find(r.opt, "optim.average.0")), 1, 0);
    CHECK_EQ(mlc_optim_lookahead(r.opt, 0, 0.5), MLC_OK);
    for (int step = 1; step <= 3; step++) train(&r, step);
    mlc_average *late = mlc_ema(r.opt, 0.5);               /* 8 updates were made before it    */
    CHECK_EQ(mlc_optim_load(r.opt, GOLDEN("torch_adamw")), MLC_OK);
    for (int k = 0; k < 2; k++) {                          /* 8 - 8 of 5: may be below 0       */
        CHECK_NEAR(mlc_item(find(r.opt, "optim.average.0")), -2, 0);
        CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);
        CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_OK);
    }
    mlc_average_free(late);
    training_end(&r);
    box_close(&b);
}

TEST(resume, pairs_of_lbfgs_are_walked_and_need_as_long_a_history)
{
    const box      b = box_open_fast("opt.safetensors");
    training       r = training_begin(&LBFGS[0], MLC_F32, false);
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(1);
    mlc_load_desc  part = mlc_load_desc_make();
    mlc_load_report report;
    CHECK_NEAR(mlc_item(find(r.opt, "optim.lbfgs.n_iter")), 0, 0);
    CHECK(!find(r.opt, "optim.lbfgs.d") && !find(r.opt, "state.0.weight.step"));
    for (int step = 1; step <= 3; step++) train(&r, step);
    mlc_tensor *ro = find(r.opt, "optim.lbfgs.ro"), *y = find(r.opt, "optim.lbfgs.old_dirs.4");
    CHECK(ro && ro->dtype == MLC_F64 && ro->shape[0] == 5);
    CHECK(y && y->dtype == MLC_F32 && !find(r.opt, "optim.lbfgs.old_dirs.5"));
    mlc_tensor *s = find(r.opt, "optim.lbfgs.old_stps.4");
    CHECK_NEAR(mlc_item(mlc_dot(y, s)) * mlc_item_at(ro, mlc_dims1(4)), 1, 1e-5);
    CHECK_NEAR(mlc_item(mlc_sum_all(find(r.opt, "optim.lbfgs.due"))), 4, 0);
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);
    d.history = 4;
    mlc_optim *kept = r.opt;
    r.opt = mlc_lbfgs_ex(r.net, &d);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(r.ctx), "the file has 5 pairs of L-BFGS, the optimizer keeps 4");
    mlc_error_clear(r.ctx);
    train(&r, 4);
    mlc_optim_free(r.opt);
    d.history = 7;
    r.opt = mlc_lbfgs_ex(r.net, &d);
    train(&r, 4);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_OK);
    CHECK(hash_state(r.opt) == hash_state(kept));
    part.partial = true;               /* without a part the history is dropped                */
    part.report = &report;
    CHECK_EQ(mlc_optim_load_ex(r.opt, GOLDEN("torch_adamw"), &part), MLC_OK);
    CHECK(!find(r.opt, "optim.lbfgs.d"));
    train(&r, 5);
    training_end(&r);
    box_close(&b);
}

/* ---- files of PyTorch ----------------------------------------------------------------------- */

static mlc_tensor *saved(mlc_ctx *ctx, const char *name)
{
    mlc_safetensors *f = mlc_safetensors_open(ctx, GOLDEN("torch_resume"));
    mlc_tensor      *t = mlc_safetensors_get(f, name);
    mlc_safetensors_close(f);
    return t;
}

static void check_torch(const char *name, const char *path, const trace *t, int64_t steps)
{
    training      r = training_begin(t, MLC_F32, false);
    mlc_load_desc d = mlc_load_desc_make();
    char          text[64];
    double        want[20];
    snprintf(text, sizeof text, "%s.5.", name);
    d.prefix = text;
    d.partial = true;
    CHECK_EQ(mlc_load_ex(r.net, GOLDEN("torch_resume"), &d), MLC_OK);
    CHECK_EQ(mlc_optim_load(r.opt, path), MLC_OK);
    CHECK_EQ(mlc_optim_steps(r.opt), steps);
    for (int step = 0; step < 3; step++) {
        mlc_scope_begin(r.ctx);
        mlc_tensor *off = mlc_sub(mlc_forward(r.net, saved(r.ctx, "x")), saved(r.ctx, "y"));
        mlc_tensor *loss = mlc_mean(mlc_mul(off, off), mlc_dims0(), false);
        CHECK_EQ(mlc_optim_minimize(r.opt, loss), MLC_OK);
        mlc_scope_end(r.ctx);
    }
    mlc_param_iter it = mlc_param_iter_make(r.net);
    while (mlc_param_next(&it)) {
        snprintf(text, sizeof text, "%s.8.%.40s", name, it.name);
        CHECK(test_read(saved(r.ctx, text), want));
        CHECK_VALUES(it.tensor, mlc_numel(it.tensor), want, 1e-6, 1e-6);
    }
    training_end(&r);
}

TEST(resume, pytorch_s_state_of_adamw_and_sgd_goes_on_as_there)
{
    check_torch("adamw", GOLDEN("torch_adamw"), &OWN[3], 5);
    check_torch("sgd", GOLDEN("torch_sgd"), &OWN[1], 0);
}

static mlc_module *normed_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 5));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 5));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    mlc_module_build(net);
    return net;
}

/* A state under PyTorch's names: numbers that pass over buffers, and mu_product for a carry.     */
static bool save_as_torch(mlc_module *net, mlc_optim *opt, const char *const *parts, int n_parts,
                          const char *path)
{
    static char    name[64][64];
    mlc_named      list[64];
    mlc_param_iter it = mlc_param_iter_make(net);
    int            n = 0, number = 0;
    for (; mlc_param_next(&it); number += !it.buffer) {
        for (int k = 0; k < n_parts && !it.buffer; k++) {
            char own[64];
            snprintf(own, sizeof own, "state.%.30s.%s", it.name, parts[k]);
            snprintf(name[n], 64, "state.%d.%s", number, k == 3 ? "mu_product" : parts[k]);
            mlc_tensor *t = find(opt, own);
            if (k == 3) t = mlc_reshape(mlc_slice(t, 0, 0, 1, 1), mlc_dims0());
            list[n].name = name[n];
            list[n++].tensor = mlc_cast(t, MLC_F32);
        }
    }
    return mlc_safetensors_save(mlc_module_ctx(net), path, list, n, NULL) == MLC_OK;
}

TEST(resume, numbers_of_pytorch_pass_over_buffers_and_nadam_has_its_product)
{
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open_fast("torch.safetensors");
    mlc_module *net = normed_net(ctx);
    mlc_optim  *opt = mlc_nadam(net, 0.01), *fresh = mlc_nadam(net, 0.01);
    double      product[2];
    static const char *const nadam[] = {"exp_avg", "exp_avg_sq", "step", "carry"};
    for (int i = 0; i < 4; i++) {
        mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(6, 4), 1, -1, 1));
        CHECK_EQ(mlc_optim_minimize(opt, mlc_mean(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
    }
    CHECK(save_as_torch(net, opt, nadam, 4, b.path));
    CHECK_EQ(mlc_optim_load(fresh, b.path), MLC_OK);
    CHECK_EQ(mlc_optim_steps(fresh), 4);
    CHECK(hash_tensor(0, find(opt, "state.2.weight.exp_avg_sq")) ==
          hash_tensor(0, find(fresh, "state.2.weight.exp_avg_sq")));
    CHECK(test_read(find(opt, "state.2.weight.carry"), product));
    CHECK_VALUES(find(fresh, "state.2.weight.carry"), 2, product, 1e-7, 0);
    box_close(&b);
}

/* PyTorch keeps a mean of gradients only if it is centred; what is not in the file is 0 again.   */
TEST(resume, an_rmsprop_of_pytorch_may_have_two_states)
{
    static const char *const parts[] = {"square_avg", "momentum_buffer", "step"};
    mlc_ctx         *ctx = test_ctx();
    const box        b = box_open_fast("torch.safetensors");
    mlc_module      *net = normed_net(ctx);
    mlc_rmsprop_desc d = mlc_rmsprop_desc_make(0.01);
    d.momentum = 0.9;
    d.centered = true;
    mlc_optim *opt = mlc_rmsprop_ex(net, &d);
    for (int i = 0; i < 3; i++) {
        mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(6, 4), 1, -1, 1));
        CHECK_EQ(mlc_optim_minimize(opt, mlc_mean(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
    }
    CHECK(save_as_torch(net, opt, parts, 3, b.path));
    const uint64_t square = hash_tensor(0, find(opt, "state.0.weight.square_avg"));
    CHECK_EQ(mlc_optim_load(opt, b.path), MLC_OK);
    CHECK(hash_tensor(0, find(opt, "state.0.weight.square_avg")) == square);
    CHECK_NEAR(mlc_item(mlc_sum_all(mlc_abs(find(opt, "state.0.weight.grad_avg")))), 0, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- what is refused, and what partial lets pass --------------------------------------------- */

/* Loading fails, says so, and leaves all as it is.                                              */
static void check_refused(training *r, const char *path, mlc_status st, const char *text)
{
    const uint64_t before = hash_all(r);
    if (!CHECK_EQ(mlc_optim_load(r->opt, path), st) || !CHECK_HAS(mlc_error(r->ctx), text))
        printf("  %s\n", mlc_error(r->ctx));
    mlc_error_clear(r->ctx);
    CHECK(hash_all(r) == before);
}

TEST(resume, another_rule_shape_or_group_is_refused_with_names)
{
    const box     b = box_open_fast("opt.safetensors");
    training      r = training_begin(&OWN[3], MLC_F32, false);
    mlc_load_desc d = mlc_load_desc_make();
    mlc_load_report report;
    for (int step = 1; step <= 3; step++) train(&r, step);
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);

    training other = training_begin(&OWN[2], MLC_F32, false);
    train(&other, 1);
    check_refused(&other, b.path, MLC_ERR_IO, "the file is of adamw, the optimizer is adam");
    d.partial = true;
    CHECK_EQ(mlc_optim_load_ex(other.opt, b.path, &d), MLC_OK);            /* the same names   */
    CHECK(hash_state(other.opt) == hash_state(r.opt));
    CHECK_EQ(mlc_optim_scaler(other.opt, NULL), MLC_OK);
    training_end(&other);

    other = training_begin(&OWN[3], MLC_F32, false);
    train(&other, 1);
    CHECK_EQ(mlc_optim_group(other.opt, "*.bias", NULL), MLC_OK);
    check_refused(&other, b.path, MLC_ERR_IO, "\"\" in the file and \"*.bias\" in the optimizer");
    training_end(&other);

    other = training_begin(&OWN[3], MLC_F32, false);
    train(&other, 1);
    CHECK_EQ(mlc_optim_scaler(other.opt, NULL), MLC_OK);
    check_refused(&other, b.path, MLC_ERR_IO, "Missing key(s) in state_dict: \"optim.scale\", ");
    CHECK_EQ(mlc_optim_load_ex(other.opt, b.path, &d), MLC_OK);
    CHECK(mlc_optim_scaler_state(other.opt).scale == 65536);
    CHECK_EQ(mlc_optim_steps(other.opt), 3);
    training_end(&other);

    other = training_begin(&OWN[3], MLC_F32, false);
    mlc_module *wide = small_net(other.ctx, 6);
    mlc_optim  *kept = other.opt;
    other.opt = make_adamw(wide);
    check_refused(&other, b.path, MLC_ERR_SHAPE, "size mismatch for state.0.weight.exp_avg: "
                  "copying a param with shape [5, 4] from checkpoint, the shape in current model "
                  "is [6, 4].");
    d.skip_mismatched = true;
    d.report = &report;
    CHECK_EQ(mlc_optim_load_ex(other.opt, b.path, &d), MLC_OK);
    CHECK(report.mismatched == 6 && report.loaded == 9 + !test_on_host() &&
          report.missing == 0);
    CHECK_EQ(mlc_optim_steps(other.opt), 3);
    other.opt = kept;
    mlc_module_to(other.net, MLC_F64);
    check_refused(&other, b.path, MLC_ERR_DTYPE, "state.2.bias.exp_avg_sq (f32 in the file, f64 "
                  "in the model); mlc_optim_load_ex with desc.cast converts.");
    d.cast = true;
    CHECK_EQ(mlc_optim_load_ex(other.opt, b.path, &d), MLC_OK);
    CHECK(report.cast == 8);
    training_end(&other);
    training_end(&r);
    box_close(&b);
}

/* One step; frozen: layer 0 is since the layout. */
static void train_frozen(training *r, bool frozen)
{
    CHECK_EQ(mlc_module_freeze(r->net, "0.*", frozen), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(r->net), MLC_OK);
    mlc_scope_begin(r->ctx);
    CHECK_EQ(mlc_optim_minimize(r->opt, loss_of(r, 1, 0)), MLC_OK);
    mlc_scope_end(r->ctx);
}

/* The calls that the errors name make the optimizer fit.                                        */
TEST(resume, a_parameter_that_was_frozen_or_trained_at_the_save_alone_is_named_with_the_call)
{
    static const char *const why[] = {
        "': '0.weight' (first of 2) was trained when it was saved, and is frozen; call "
        "mlc_module_freeze(net, \"0.weight\", false) before",
        "': '0.weight' (first of 2) was frozen when it was saved, and is trained; call "
        "mlc_module_freeze(net, \"0.weight\", true) and mlc_module_rebuild before"};
    const box b = box_open_fast("opt.safetensors");
    for (int frozen = 0; frozen < 2; frozen++) {
        training r = training_begin(&OWN[3], MLC_F32, false);
        training other = training_begin(&OWN[3], MLC_F32, false);
        train_frozen(&r, frozen);
        train_frozen(&other, !frozen);
        CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);
        check_refused(&other, b.path, MLC_ERR_IO, why[frozen]);
        CHECK_EQ(mlc_module_freeze(other.net, "0.weight", frozen), MLC_OK);
        if (frozen) CHECK_EQ(mlc_module_rebuild(other.net), MLC_OK);
        check_refused(&other, b.path, MLC_ERR_IO, "': '0.bias' (first of 1) was ");
        CHECK_EQ(mlc_module_freeze(other.net, "0.bias", frozen), MLC_OK);
        if (frozen) CHECK_EQ(mlc_module_rebuild(other.net), MLC_OK);
        CHECK_EQ(mlc_optim_load(other.opt, b.path), MLC_OK);
        CHECK(hash_state(other.opt) == hash_state(r.opt));
        training_end(&other);
        training_end(&r);
    }
    box_close(&b);
}

TEST(resume, states_of_no_optimizer_and_no_files_are_refused)
{
    const box b = box_open_fast("opt.safetensors");
    training  r = training_begin(&OWN[1], MLC_F32, false);
    train(&r, 1);
    check_refused(&r, "no such file", MLC_ERR_IO, "no such file");
    check_refused(&r, NULL, MLC_ERR_ARG, "optim_load: path is NULL");
    CHECK_EQ(mlc_save(r.net, b.path), MLC_OK);
    check_refused(&r, b.path, MLC_ERR_IO, "Unexpected key(s) in state_dict: \"0.bias\"");
    check_refused(&r, GOLDEN("torch_adamw"), MLC_ERR_IO, "Missing key(s) in state_dict: "
                  "\"state.0.momentum_buffer\"");
    CHECK_EQ(mlc_optim_load(NULL, b.path), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_save(NULL, b.path), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_load_ex(NULL, b.path, NULL), MLC_ERR_ARG);
    training_end(&r);
    box_close(&b);
}

/* The file of opt again, with another value, all over, of the item `name`.                      */
static void save_with(training *r, const char *path, const char *name, double value)
{
    mlc_named            list[64];
    static char          names[64][64];
    mlc_optim_state_iter it = mlc_optim_state_iter_make(r->opt);
    const char *const    metadata[] = {"mlcore.optim", "adamw", NULL};
    int                  n = 0;
    bool                 found = false;
    for (; mlc_optim_state_next(&it); n++) {
        const bool this_one = strcmp(it.name, name) == 0;
        snprintf(names[n], 64, "%.63s", it.name);
        list[n].name = names[n];
        list[n].tensor = this_one ? mlc_full(r->ctx, MLC_F64, mlc_dims_of(it.tensor->ndim,
                                             it.tensor->shape), value) : it.tensor;
        found = found || this_one;
    }
    CHECK(found);
    CHECK_EQ(mlc_safetensors_save(r->ctx, path, list, n, metadata), MLC_OK);
}

TEST(resume, numbers_that_no_optimizer_has_are_refused_by_name)
{
    static const struct { const char *name; double value; const char *text; } bad[] = {
        {"state.0.bias.step", -1, "state.0.bias.step is -1; it must be a whole number from 0"},
        {"state.2.bias.step", 1.5, "state.2.bias.step is 1.5"},
        {"optim.steps", 1e17, "optim.steps is 1e+17"},
        {"optim.calls", -3, "optim.calls is -3"},
        {"optim.lr", -0.5, "optim.lr is -0.5; it must be a number from 0"},
        {"optim.lr", (double)NAN, "optim.lr is nan"},
        {"optim.scale", 0, "scale 0, 0 good, 0 skipped, 0 in a row: that is no state"},
        {"optim.skipped_row", 2, "0 skipped, 2 in a row: that is no state of this scaler"},
    };
    const box     b = box_open_fast("opt.safetensors");
    training      r = training_begin(&OWN[3], MLC_F32, false);
    mlc_load_desc d = mlc_load_desc_make();
    d.cast = true;
    CHECK_EQ(mlc_optim_scaler(r.opt, NULL), MLC_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save_with(&r, b.path, bad[i].name, bad[i].value);
        const uint64_t before = hash_all(&r);
        CHECK_EQ(mlc_optim_load_ex(r.opt, b.path, &d), MLC_ERR_IO);
        CHECK_HAS(mlc_error(r.ctx), bad[i].text);
        mlc_error_clear(r.ctx);
        CHECK(hash_all(&r) == before);
    }
    save_with(&r, b.path, "optim.lr", 0.125);
    CHECK_EQ(mlc_optim_load_ex(r.opt, b.path, &d), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(r.opt), 0.125, 0);
    training_end(&r);
    box_close(&b);
}

/* ---- what fails on the way ------------------------------------------------------------------ */

/* Lists of its items are longer than a chunk of a scope's memory. */
static mlc_module *many_layers(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 210; i++) mlc_module_add(net, mlc_nn_linear(ctx, 1, 1));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    return net;
}

/* Each allocation of a save or load fails, later ones with gaps: NOMEM, nothing has changed. */
static void fail_allocations(tally *m, mlc_ctx *ctx, mlc_optim *opt, const char *path, bool saves)
{
    const uint64_t before = hash_state(opt);
    const double   lr = saves ? mlc_optim_lr(opt) : 0.5;   /* another one than the file has    */
    mlc_status     st = MLC_ERR_NOMEM;
    int            failed = 0;
    CHECK_EQ(mlc_optim_set_lr(opt, lr), MLC_OK);
    for (int64_t n = 1; st != MLC_OK && n < 10000; n += n < 50 ? 1 : n / 8) {
        mlc_memory_trim(ctx);
        m->calls = 0;
        m->fail_at = n;
        st = saves ? mlc_optim_save(opt, path) : mlc_optim_load(opt, path);
        m->fail_at = 0;
        if (st == MLC_OK) break;
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK_STATUS(ctx, MLC_ERR_NOMEM);
        CHECK_NEAR(mlc_optim_lr(opt), lr, 0);
        failed++;
    }
    CHECK_EQ(st, MLC_OK);
    CHECK(failed > 5);
    CHECK(hash_state(opt) == before);
}

TEST(resume, files_of_many_items_survive_that_any_allocation_fails)
{
    const box          b = box_open_fast("opt.safetensors");
    tally              m;
    const mlc_ctx_desc d = tally_desc(&m);
    mlc_ctx           *ctx = mlc_ctx_create(&d);
    mlc_scope_begin(ctx);
    mlc_optim *opt = mlc_adamw(many_layers(ctx), 0.1);
    CHECK_EQ(mlc_optim_group(opt, "1*.bias", NULL), MLC_OK);
    CHECK_EQ(mlc_optim_group(opt, "2*.bias", NULL), MLC_OK);
    fail_allocations(&m, ctx, opt, b.path, true);
    fail_allocations(&m, ctx, opt, b.path, false);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    tally_done(&m, ctx);
    box_close(&b);
}

/* The network has another dtype since the optimizer was made: a save makes its state anew. */
TEST(resume, a_save_that_gets_no_memory_for_a_new_layout_can_be_done_again)
{
    const box          b = box_open_fast("opt.safetensors");
    tally              m;
    const mlc_ctx_desc d = tally_desc(&m);
    mlc_ctx           *ctx = mlc_ctx_create(&d);
    mlc_scope_begin(ctx);
    mlc_module *net = small_net(ctx, 5);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    CHECK_EQ(mlc_module_to(net, MLC_F64), MLC_OK);
    mlc_memory_trim(ctx);
    m.calls = 0;
    m.fail_at = 1;
    CHECK_EQ(mlc_optim_save(opt, b.path), MLC_ERR_NOMEM);
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    CHECK_EQ(box_count(&b), 0);
    CHECK_EQ(mlc_optim_save(opt, b.path), MLC_OK);
    CHECK(find(opt, "state.0.weight.exp_avg")->dtype == MLC_F64);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    tally_done(&m, ctx);
    box_close(&b);
}

TEST(resume, scopes_that_are_as_deep_as_can_be_leave_no_room_for_a_save_or_a_load)
{
    const box b = box_open_fast("opt.safetensors");
    training  r = training_begin(&OWN[3], MLC_F32, false);
    train(&r, 1);
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);
    const uint64_t before = hash_net(hash_state(r.opt), r.net);
    int open = 0;
    while (open < 100 && mlc_scope_begin(r.ctx) == MLC_OK) open++;
    mlc_scope_end(r.ctx);              /* of the one that did not begin                        */
    mlc_error_clear(r.ctx);
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(r.ctx), "scopes are open");
    mlc_error_clear(r.ctx);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(r.ctx), "scopes are open");
    mlc_error_clear(r.ctx);
    CHECK(hash_net(hash_state(r.opt), r.net) == before);
    /* What failed in the library has no end to come. */
    for (; open > 0; open--)
        CHECK_EQ(mlc_scope_end(r.ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(r.ctx), MLC_ERR_STATE);
    mlc_error_clear(r.ctx);
    training_end(&r);
    box_close(&b);
}

/* ---- what files may have -------------------------------------------------------------------- */

TEST(resume, a_carry_that_is_not_finite_and_an_average_that_begins_late_are_refused)
{
    const box     b = box_open_fast("opt.safetensors");
    training      r = training_begin(rule(N_ALL - 2), MLC_F32, false);     /* sf_adamw         */
    mlc_load_desc d = mlc_load_desc_make();
    mlc_ema(r.opt, 0.5);
    train(&r, 1);
    static const struct { const char *name; double value; const char *text; } bad[] = {
        {"state.0.bias.carry", INF, "state.0.bias.carry is inf; it must be a number from "},
        {"optim.average.0", 0.5, "optim.average.0 is 0.5; it must be a whole number from "},
        {"optim.average.0", 2, "an average begins after 2 steps, of 1"}};
    const uint64_t before = hash_all(&r);
    d.cast = d.partial = true;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save_with(&r, b.path, bad[i].name, bad[i].value);
        CHECK_EQ(mlc_optim_load_ex(r.opt, b.path, &d), MLC_ERR_IO);
        CHECK_HAS(mlc_error(r.ctx), bad[i].text);
        mlc_error_clear(r.ctx);
        CHECK(hash_all(&r) == before);
    }
    training_end(&r);
    box_close(&b);
}

/* A step is one of optim.lbfgs, whose ro is the length of the history. */
TEST(resume, numbers_of_lbfgs_that_cannot_be_are_refused)
{
    const box     b = box_open_fast("opt.safetensors");
    training      r = training_begin(&LBFGS[0], MLC_F32, false);
    mlc_load_desc d = mlc_load_desc_make();
    d.cast = d.partial = true;
    for (int step = 1; step <= 3; step++) train(&r, step);
    const uint64_t before = hash_all(&r);
    save_with(&r, b.path, "optim.lbfgs.n_iter", -1);
    CHECK_EQ(mlc_optim_load_ex(r.opt, b.path, &d), MLC_ERR_IO);
    CHECK_HAS(mlc_error(r.ctx), "a number of optim.lbfgs is -1; it must be from 0 to 2^53");
    mlc_error_clear(r.ctx);
    CHECK(hash_all(&r) == before);
    const mlc_named ro = {"optim.lbfgs.ro", mlc_zeros(r.ctx, MLC_F64, mlc_dims2(1, 5))};
    CHECK_EQ(mlc_safetensors_save(r.ctx, b.path, &ro, 1, NULL), MLC_OK);
    check_refused(&r, b.path, MLC_ERR_IO, "optim.lbfgs.");
    training_end(&r);
    box_close(&b);
}

/* A frozen parameter of the layout takes no gradient from a file, where there is one. */
TEST(resume, a_gradient_of_a_parameter_that_was_frozen_since_is_not_asked_for)
{
    const box     b = box_open_fast("opt.safetensors");
    training      r = training_begin(&OWN[3], MLC_F32, true);
    mlc_load_desc d = mlc_load_desc_make();
    train(&r, 1);                      /* 1 of 3 calls of an update                            */
    CHECK(find(r.opt, "grad.0.bias") != NULL);
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);
    CHECK_EQ(mlc_module_freeze(r.net, "0.bias", true), MLC_OK);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(r.ctx), "grad.0.bias");
    mlc_error_clear(r.ctx);
    d.partial = true;
    CHECK_EQ(mlc_optim_load_ex(r.opt, b.path, &d), MLC_OK);
    CHECK(find(r.opt, "grad.0.weight") != NULL && find(r.opt, "grad.0.bias") == NULL);
    training_end(&r);
    box_close(&b);
}

TEST(resume, a_gradient_is_loaded_where_another_tree_that_shares_the_parameter_has_it)
{
    const box   b = box_open_fast("opt.safetensors");
    training    r = training_begin(&OWN[3], MLC_F32, true);
    mlc_module *other = mlc_nn_sequential(r.ctx);
    train(&r, 1);
    mlc_scope_begin(r.ctx);
    const uint64_t was = hash_tensor(0, find(r.opt, "grad.0.weight"));
    CHECK_EQ(mlc_optim_save(r.opt, b.path), MLC_OK);
    CHECK_EQ(mlc_module_tie(other, "shared", mlc_module_param(r.net, "0.weight")), MLC_OK);
    CHECK_EQ(mlc_module_build(other), MLC_OK);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_OK);
    mlc_tensor *g = find(r.opt, "grad.0.weight");
    if (CHECK(g != NULL)) CHECK(hash_tensor(0, g) == was);
    mlc_scope_end(r.ctx);
    training_end(&r);
    box_close(&b);
}

/* PyTorch's names, of rules whose numbers PyTorch keeps elsewhere or not at all. */
TEST(resume, schedule_free_adamw_and_adafactor_load_states_under_pytorch_s_names)
{
    static const char *const free_parts[] = {"z", "exp_avg_sq", "step"};
    static const char *const vector_parts[] = {"variance", "step"};
    const box b = box_open_fast("torch.safetensors");
    training  r = training_begin(rule(N_ALL - 2), MLC_F32, false);         /* sf_adamw         */
    for (int step = 1; step <= 3; step++) train(&r, step);
    CHECK(save_as_torch(r.net, r.opt, free_parts, 3, b.path));
    const uint64_t z = hash_tensor(0, find(r.opt, "state.2.weight.z"));
    train(&r, 4);
    CHECK(hash_tensor(0, find(r.opt, "state.2.weight.z")) != z);
    CHECK_EQ(mlc_optim_load(r.opt, b.path), MLC_OK);
    CHECK(hash_tensor(0, find(r.opt, "state.2.weight.z")) == z);
    CHECK_EQ(mlc_optim_steps(r.opt), 3);
    training_end(&r);

    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_layer_norm(ctx, 4);
    mlc_optim  *opt = mlc_adafactor(net, 0.01);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(6, 4), 1, -1, 1));
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mean(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
    CHECK(save_as_torch(net, opt, vector_parts, 2, b.path));
    mlc_optim *fresh = mlc_adafactor(net, 0.01);
    CHECK_EQ(mlc_optim_load(fresh, b.path), MLC_OK);
    CHECK_EQ(mlc_optim_steps(fresh), 1);
    CHECK(hash_tensor(0, find(fresh, "state.weight.variance")) ==
          hash_tensor(0, find(opt, "state.weight.variance")));
    CHECK_OK(ctx);
    box_close(&b);
}

/* Where the file has states of other parameters it is of another network: all keys are named. */
TEST(resume, states_of_another_network_are_no_frozen_parameters)
{
    static const mlc_rename out[] = {{.from = "state.9.*", .to = ""}};
    const box       b = box_open_fast("opt.safetensors");
    training        r = training_begin(&OWN[3], MLC_F32, false);
    mlc_tensor     *step = mlc_zeros(r.ctx, MLC_I64, mlc_dims0());
    const mlc_named list[] = {{"state.0.weight.step", step}, {"state.0.weight_2.step", step},
                              {"state.0.biased.step", step}, {"state.9.bias.step", step},
                              {"state.9.weight.step", step}};
    const char *const metadata[] = {"mlcore.optim", "adamw", NULL};
    mlc_load_desc d = mlc_load_desc_make();
    CHECK_EQ(mlc_safetensors_save(r.ctx, b.path, list, 5, metadata), MLC_OK);
    for (d.n_renames = 0; d.n_renames < 2; d.n_renames++) {
        d.renames = d.n_renames ? out : NULL;
        CHECK_EQ(mlc_optim_load_ex(r.opt, b.path, &d), MLC_ERR_IO);
        CHECK_HAS(mlc_error(r.ctx), "Missing key(s) in state_dict: \"state.0.weight.exp_avg\"");
        CHECK_HAS(mlc_error(r.ctx), "\"state.0.weight_2.step\"");
        CHECK_EQ(strstr(mlc_error(r.ctx), "\"state.9.") != NULL, d.n_renames == 0);
        mlc_error_clear(r.ctx);
    }
    training_end(&r);
    box_close(&b);
}
