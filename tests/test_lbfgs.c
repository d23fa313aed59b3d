/* test_lbfgs.c -- tests of IMPL.OPTIM.LBFGS and IMPL.OPTIM.CURVATURE: what calls the loss often */
#include "bowl.h"
#include "golden/golden.h"

enum { N = 7 };

/* ---- losses --------------------------------------------------------------------------------- */

/* Sum over i of 100 (p[i+1] - p[i]^2)^2 + (1 - p[i])^2. */
static mlc_status valley_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    mlc_tensor   *p = mlc_module_param(m, "p");
    const int64_t n = p->shape[0];
    mlc_tensor   *a = mlc_slice(p, 0, 0, n - 1, 1), *b = mlc_slice(p, 0, 1, n, 1);
    mlc_tensor   *far = mlc_sub(b, mlc_mul(a, a)), *off = mlc_rsub_scalar(a, 1);
    (void)in;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_sum_all(mlc_add(mlc_mul_scalar(mlc_mul(far, far), 100), mlc_mul(off, off)));
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static const mlc_module_class VALLEY = {"Valley", valley_forward, NULL, NULL, 0, NULL};

static mlc_module *valley(mlc_ctx *ctx, mlc_dtype dtype, const double *start)
{
    mlc_module    *m = mlc_module_create(ctx, &VALLEY, NULL, 0);
    mlc_param_desc d = mlc_param_desc_make(mlc_dims1(N));
    d.dtype = dtype;
    d.has_dtype = true;
    mlc_tensor *p = mlc_module_declare(m, "p", &d);
    mlc_module_build(m);
    mlc_copy_into(p, test_tensor(ctx, dtype, mlc_dims1(N), start));
    return m;
}

typedef struct batch {
    mlc_module *m;
    mlc_tensor *x;
    int         calls, bad, worse;     /* the loss of call number bad is NaN; worse fails      */
} batch;

static mlc_tensor *loss_of(void *user)
{
    batch *b = (batch *)user;
    b->calls++;
    if (b->calls == b->worse) {
        mlc_raise(mlc_module_ctx(b->m), MLC_ERR_VALUE, "no data");
        return NULL;
    }
    mlc_tensor *y = mlc_forward(b->m, b->x);
    return b->calls == b->bad ? mlc_mul_scalar(y, (double)NAN) : y;
}

/* ---- golden/make_optim_goldens.py ----------------------------------------------------------- */

static void near_golden(const golden_file *f, mlc_module *m, const char *name, int call,
                        double tolerance)
{
    double want[N];
    test_read(golden_find(f, "%s.p%d", name, call), want);
    if (!CHECK_VALUES(mlc_module_param(m, "p"), N, want, tolerance, tolerance))
        printf("  %s.p%d\n", name, call);
}

/* In f32 paths part after some calls, as rounding decides: 3 of 10 are compared.                */
static void check_trace(mlc_ctx *ctx, const golden_file *f, bool search, mlc_dtype dtype)
{
    const char    *name = search ? "lbfgs" : "lbfgs_fixed";
    const bool     f64 = dtype == MLC_F64;
    double         start[N], loss, losses[10], evaluations[10];
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(search ? 1 : 0.5);
    batch          b = {NULL, mlc_cast(golden_find(f, "w"), dtype), 0, 0, 0};
    d.max_iter = 4;
    d.max_eval = 5;
    d.history = 5;
    d.strong_wolfe = search;
    test_read(search ? golden_find(f, "lbfgs.p0") : golden_find(f, "p0"), start);
    test_read(golden_find(f, "%s.losses", name), losses);
    test_read(golden_find(f, "%s.evaluations", name), evaluations);
    b.m = search ? valley(ctx, dtype, start) : bowl(ctx, dtype, N, start);
    mlc_optim *opt = mlc_lbfgs_ex(b.m, &d);
    for (int call = 1; call <= (f64 ? 10 : 3); call++) {
        CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, &loss), MLC_OK);
        CHECK_NEAR(loss, losses[call - 1], (f64 ? 1e-12 : 1e-5) * (1 + losses[call - 1]));
        CHECK_EQ(b.calls, (int)evaluations[call - 1]);
        if (call == 1 || call == 3 || call == 10)
            near_golden(f, b.m, name, call, f64 ? 1e-12 : 1e-5);
    }
    mlc_optim_free(opt);
}

TEST(lbfgs, ten_steps_follow_the_traces_of_pytorch)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "optim_rules.safetensors");
        for (int k = 0; k < 4; k++) check_trace(ctx, &f, k % 2, k / 2 ? MLC_F64 : MLC_F32);
        CHECK_OK(ctx);
    }
}

/* ---- a network ------------------------------------------------------------------------------ */

static mlc_module *small_net(mlc_ctx *ctx, mlc_dtype dtype)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 9));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 9, 3));
    mlc_module_build(net);
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    return net;
}

/* A fit of tanh of a few features.                                                              */
static mlc_tensor *fit_of(void *user)
{
    batch      *b = (batch *)user;
    mlc_tensor *y = loss_of(user);
    if (y == NULL) return NULL;
    mlc_tensor *off = mlc_sub(y, mlc_slice(b->x, 1, 0, 3, 1));
    return mlc_mean(mlc_mul(off, off), mlc_dims0(), false);
}

static batch fit(mlc_ctx *ctx, mlc_dtype dtype)
{
    const batch b = {small_net(ctx, dtype),
                     test_rand(ctx, dtype, mlc_dims2(16, 4), 3, -1, 1), 0, 0, 0};
    return b;
}

static double fitted(batch b)
{
    b.calls = b.bad = b.worse = -1;
    return mlc_item(fit_of(&b));
}

TEST(lbfgs, networks_of_all_dtypes_fit_and_each_step_goes_down)
{
    const mlc_dtype dtype[] = {MLC_F32, MLC_F64, MLC_BF16};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 3; k++) {
            batch        b = fit(ctx, dtype[k]);
            mlc_optim   *opt = mlc_lbfgs(b.m, 1);
            const double first = fitted(b);
            double       last = first, loss = 0;
            for (int step = 0; step < 8; step++) {
                CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, &loss), MLC_OK);
                CHECK_NEAR(loss, last, 0);
                last = fitted(b);
                CHECK(last <= loss);
            }
            if (!CHECK(last < first * (k == 2 ? 0.5 : 0.01))) printf("  %g %g\n", first, last);
            CHECK(mlc_optim_steps(opt) > 0);
            mlc_optim_free(opt);
        }
        CHECK_OK(ctx);
    }
}

TEST(lbfgs, bits_do_not_depend_on_threads)
{
    enum { MANY = 50000 };
    static double start[MANY], p[2][MANY];
    const int n = test_cpu_kernels() ? MANY : 2000;          /* emulated: slow */
    for (int i = 0; i < n; i++) start[i] = test_random(5, i, -2, 2);
    for (int k = 0; k < 2; k++) {
        mlc_ctx_desc d = test_desc();
        d.threads = k ? 4 : 1;
        mlc_ctx    *ctx = mlc_ctx_create(&d);
        mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims1(n), 6, 0.1, 3);
        batch       b = {bowl(ctx, MLC_F32, n, start), w, 0, 0, 0};
        mlc_optim  *opt = mlc_lbfgs(b.m, 1);
        for (int step = 0; step < 2; step++)
            CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, NULL), MLC_OK);
        test_read(mlc_module_param(b.m, "p"), p[k]);
        mlc_ctx_free(ctx);
    }
    CHECK(p[0][0] != start[0] && memcmp(p[0], p[1], (size_t)n * sizeof p[0][0]) == 0);
}

/* ---- losses that are not finite, and that fail ----------------------------------------------- */

TEST(lbfgs, a_trial_that_is_not_finite_is_too_long)
{
    mlc_ctx *ctx = test_ctx();
    for (int search = 0; search < 2; search++)
        for (int bad = 2; bad < 6; bad++) {
            batch          b = fit(ctx, MLC_F32);
            mlc_lbfgs_desc d = mlc_lbfgs_desc_make(search ? 1 : 0.1);
            double         loss;
            d.strong_wolfe = search;
            b.bad = bad;
            mlc_optim *opt = mlc_lbfgs_ex(b.m, &d);
            CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, &loss), MLC_OK);
            CHECK(b.calls > bad && fitted(b) < loss);
            CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_OK);
        }
    CHECK_OK(ctx);
}

TEST(lbfgs, a_start_that_is_not_finite_is_an_error_and_changes_nothing)
{
    mlc_ctx    *ctx = test_ctx();
    batch       b = fit(ctx, MLC_F32), same = fit(ctx, MLC_F32);
    mlc_optim  *opt = mlc_lbfgs(b.m, 1), *other = mlc_lbfgs(same.m, 1);
    double      loss;
    mlc_module_copy(same.m, b.m);
    for (int step = 0; step < 4; step++) {
        const double was = fitted(b);
        b.bad = step == 2 ? b.calls + 1 : 0;
        CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, &loss), b.bad ? MLC_ERR_VALUE : MLC_OK);
        if (b.bad) {
            CHECK_HAS(mlc_error(ctx), "optim_step_with: the loss is nan");
            CHECK(loss != loss && fitted(b) == was);
            mlc_error_clear(ctx);
            continue;
        }
        CHECK_EQ(mlc_optim_step_with(other, fit_of, &same, NULL), MLC_OK);
    }
    CHECK(fitted(b) == fitted(same));                      /* nor has it changed the history   */
    CHECK_EQ(mlc_optim_steps(opt), 3);
    CHECK_OK(ctx);
}

/* Wherever fn fails: the error is returned, the loss has not risen, and the next step goes on.  */
TEST(lbfgs, a_loss_that_fails_leaves_the_last_iteration)
{
    mlc_ctx *ctx = test_ctx();
    for (int search = 0; search < 2; search++)
        for (int worse = 1; worse < 9; worse++) {
            batch          b = fit(ctx, MLC_F32);
            mlc_lbfgs_desc d = mlc_lbfgs_desc_make(search ? 1 : 0.1);
            d.strong_wolfe = search;
            mlc_optim   *opt = mlc_lbfgs_ex(b.m, &d);
            const double first = fitted(b);
            b.worse = worse;
            CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_ERR_VALUE);
            CHECK_HAS(mlc_error(ctx), "no data");
            mlc_error_clear(ctx);
            CHECK_EQ(b.calls, worse);
            const double then = fitted(b);
            CHECK(worse <= 2 ? then == first : then <= first);
            CHECK_EQ(mlc_optim_steps(opt), then != first);
            CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_OK);
            CHECK(fitted(b) < then);
            CHECK_EQ(mlc_optim_steps(opt), 1 + (then != first));
        }
    CHECK_OK(ctx);
}

/* ---- what takes part ------------------------------------------------------------------------- */

TEST(lbfgs, frozen_parameters_stay_and_surgery_drops_the_history)
{
    mlc_ctx   *ctx = test_ctx();
    batch      b = fit(ctx, MLC_F32);
    mlc_optim *opt = mlc_lbfgs(b.m, 1);
    double     was[36], is[36];
    CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_OK);
    CHECK_EQ(mlc_module_freeze(b.m, "0.weight", true), MLC_OK);
    test_read(mlc_module_param(mlc_module_child(b.m, 0), "weight"), was);
    double loss = fitted(b);
    CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_OK);
    test_read(mlc_module_param(mlc_module_child(b.m, 0), "weight"), is);
    CHECK(memcmp(was, is, sizeof was) == 0 && fitted(b) <= loss);
    CHECK_EQ(mlc_module_freeze(b.m, "0.weight", false), MLC_OK);
    mlc_module_add(b.m, mlc_nn_linear(ctx, 3, 3));
    CHECK_EQ(mlc_module_rebuild(b.m), MLC_OK);
    loss = fitted(b);
    CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_OK);
    CHECK(fitted(b) < loss);
    CHECK_OK(ctx);
    mlc_module_free(b.m);
    CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "module was freed");
    mlc_error_clear(ctx);
}

static mlc_tensor *grows(void *user)
{
    batch *b = (batch *)user;
    if (b->calls == 2) {
        mlc_module_add(b->m, mlc_nn_linear(mlc_module_ctx(b->m), 3, 3));
        mlc_module_rebuild(b->m);
    }
    return fit_of(user);
}

TEST(lbfgs, a_loss_that_builds_the_module_anew_is_refused)
{
    mlc_ctx   *ctx = test_ctx();
    batch      b = fit(ctx, MLC_F32);
    mlc_optim *opt = mlc_lbfgs(b.m, 1);
    CHECK_EQ(mlc_optim_step_with(opt, grows, &b, NULL), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "fn freed the module or built it anew");
    mlc_error_clear(ctx);
    const double loss = fitted(b);
    CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_OK);
    CHECK(fitted(b) < loss);
    mlc_module_add(b.m, mlc_nn_linear(ctx, 3, 3));         /* the walk is of what there is     */
    mlc_module_rebuild(b.m);
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it)) CHECK(strstr(it.name, "lbfgs.d") == NULL);
    CHECK_OK(ctx);
}

/* At the second call or the third: the optimizer is asked for its state. */
typedef struct follower { batch b; mlc_optim *opt; int at; bool follows; } follower;

static mlc_tensor *grows_and_follows(void *user)
{
    follower *f = (follower *)user;
    if (f->b.calls == f->at && f->opt) {
        for (int i = 0; i < 20; i++)
            mlc_module_add(f->b.m, mlc_nn_linear(mlc_module_ctx(f->b.m), 3, 3));
        f->follows = mlc_optim_state_iter_make(f->opt).optim != NULL;
    }
    return fit_of(&f->b);
}

TEST(lbfgs, a_loss_that_has_the_optimizer_follow_a_change_is_refused)
{
    for (int at = 0; at < 3; at++) {
        mlc_ctx     *ctx = test_ctx();
        follower     f = {fit(ctx, MLC_F32), NULL, at, true};
        const double loss = fitted(f.b);
        f.opt = mlc_lbfgs(f.b.m, 1);
        CHECK_EQ(mlc_optim_step_with(f.opt, grows_and_follows, &f, NULL), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "fn, which makes the loss several times");
        CHECK(!f.follows);
        mlc_error_clear(ctx);
        while (mlc_module_child(f.b.m, 3)) mlc_module_free(mlc_module_child(f.b.m, 3));
        CHECK(fitted(f.b) <= loss);
        CHECK_EQ(mlc_optim_step_with(f.opt, fit_of, &f.b, NULL), MLC_OK);
        CHECK_OK(ctx);
    }
}

/* Two matrices, of which one becomes f64 by another tree: the layout of their own stays. */
typedef struct pair { mlc_tensor *of[2]; } pair;

static mlc_tensor *pair_loss(void *user)
{
    const pair *p = (const pair *)user;
    mlc_tensor *sum[2];
    for (int i = 0; i < 2; i++)
        sum[i] = mlc_cast(mlc_sum_all(mlc_mul(p->of[i], p->of[i])), MLC_F64);
    return mlc_add(sum[0], mlc_mul_scalar(sum[1], 3));
}

TEST(lbfgs, vectors_follow_another_dtype_in_the_same_layout)
{
    mlc_ctx           *ctx = test_ctx();
    mlc_nn_linear_desc d[2] = {mlc_nn_linear_desc_make(16, 40), mlc_nn_linear_desc_make(2, 2)};
    mlc_module        *net = mlc_nn_sequential(ctx), *other[2];
    pair               p;
    double             loss = 0;
    for (int i = 0; i < 2; i++) {
        d[i].no_bias = true;
        mlc_module_add(net, mlc_nn_linear_ex(ctx, &d[i]));
        other[i] = mlc_nn_sequential(ctx);
    }
    for (int i = 0; i < 2; i++) {
        p.of[i] = mlc_module_param(net, i ? "1.weight" : "0.weight");
        CHECK_EQ(mlc_module_tie(other[i], "shared", p.of[i]), MLC_OK);
        CHECK_EQ(mlc_module_build(other[i]), MLC_OK);
    }
    CHECK_EQ(mlc_module_to(other[1], MLC_F64), MLC_OK);
    mlc_optim *opt = mlc_lbfgs(net, 0.01);
    CHECK_EQ(mlc_optim_step_with(opt, pair_loss, &p, NULL), MLC_OK);
    CHECK_EQ(mlc_module_to(other[0], MLC_F64), MLC_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(mlc_copy_into(p.of[i], mlc_ones(ctx, MLC_F64, mlc_dims_of(2, p.of[i]->shape))),
                 MLC_OK);
    for (int step = 0; step < 5; step++)
        CHECK_EQ(mlc_optim_step_with(opt, pair_loss, &p, NULL), MLC_OK);
    loss = mlc_item(pair_loss(&p));
    CHECK_NEAR(loss, 0, 1e-9);
    CHECK_OK(ctx);
}

/* A range test has a history of its own. */
typedef struct tried { batch b; mlc_optim *opt; } tried;

static double tried_step(void *user)
{
    tried *t = (tried *)user;
    double loss = NO_NUMBER;
    mlc_optim_step_with(t->opt, fit_of, &t->b, &loss);
    return loss;
}

TEST(lbfgs, a_range_test_leaves_the_history_as_it_was)
{
    double           losses[2][4], rates[4], curve[4];
    mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, curve, 4);
    for (int tested = 0; tested < 2; tested++) {
        mlc_ctx       *ctx = test_ctx();
        mlc_lbfgs_desc l = mlc_lbfgs_desc_make(1);
        tried          t = {fit(ctx, MLC_F32), NULL};
        l.max_iter = 3;
        t.opt = mlc_lbfgs_ex(t.b.m, &l);
        for (int i = 0; i < 4; i++) {
            if (tested) CHECK_EQ(mlc_lr_range(t.opt, &d, tried_step, &t, NULL, NULL), MLC_OK);
            losses[tested][i] = tried_step(&t);
        }
        CHECK_OK(ctx);
    }
    for (int i = 0; i < 4; i++) CHECK_NEAR(losses[1][i], losses[0][i], 0);
}

/* An average sees a step, not its iterations; a minimum is no step.                             */
TEST(lbfgs, steps_that_move_are_counted_and_averaged)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    mlc_ctx     *ctx = test_ctx();
    batch        b = {bowl(ctx, MLC_F64, 3, start), NULL, 0, 0, 0};
    mlc_optim   *opt = mlc_lbfgs(b.m, 1);
    mlc_average *ema = mlc_ema(opt, 0.75);
    double       p[3], mean[3];
    b.x = test_tensor(ctx, MLC_F64, mlc_dims1(3), weight);
    for (int step = 0; step < 3; step++)
        CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, NULL), MLC_OK);
    const int calls = b.calls;
    CHECK_EQ(mlc_optim_steps(opt), 1);
    CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, NULL), MLC_OK);
    CHECK_EQ(b.calls, calls + 1);
    test_read(mlc_module_param(b.m, "p"), p);
    CHECK_EQ(mlc_average_swap(ema, true), MLC_OK);
    CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, NULL), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    test_read(mlc_module_param(b.m, "p"), mean);
    for (int i = 0; i < 3; i++) CHECK_NEAR(p[i], 0, 1e-5);
    for (int i = 0; i < 3; i++) CHECK_NEAR(mean[i], 0.75 * start[i] + 0.25 * p[i], 1e-12);
    CHECK_OK(ctx);
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define FOREIGN(feature, call) \
    do { \
        batch      b = fit(ctx, MLC_F32); \
        mlc_optim *opt = mlc_lbfgs(b.m, 1); \
        call; \
        CHECK_EQ(mlc_optim_step_with(opt, fit_of, &b, NULL), MLC_ERR_STATE); \
        CHECK_HAS(mlc_error(ctx), "lbfgs does not go with " feature); \
        CHECK_EQ(b.calls, 0); \
        mlc_error_clear(ctx); \
    } while (0)

TEST(lbfgs, features_of_other_rules_are_refused_by_name)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_clip_desc   c = mlc_clip_desc_make();
    c.norm = 1;
    FOREIGN("mlc_optim_accumulate", mlc_optim_accumulate(opt, 2));
    FOREIGN("mlc_optim_scaler", mlc_optim_scaler(opt, NULL));
    FOREIGN("mlc_optim_clip", mlc_optim_clip(opt, &c));
    FOREIGN("mlc_optim_noise", mlc_optim_noise(opt, 0.1, 0.5));
    FOREIGN("mlc_optim_in_backward", mlc_optim_in_backward(opt, true));
    FOREIGN("mlc_optim_sam", mlc_optim_sam(opt, 0.1, false));
    FOREIGN("mlc_optim_group", mlc_optim_group(opt, "*.bias", NULL));
    FOREIGN("mlc_optim_layer_decay", mlc_optim_layer_decay(opt, 0.5));
    FOREIGN("mlc_optim_lookahead", mlc_optim_lookahead(opt, 5, 0.5));
    const double one[] = {1};
    mlc_module  *m = bowl(ctx, MLC_F32, 1, one);
    mlc_optim   *opt = mlc_lbfgs(m, 1);
    CHECK_EQ(descend(m, opt, test_tensor(ctx, MLC_F32, mlc_dims1(1), one)), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "lbfgs makes the loss again; call mlc_optim_step_with");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_step_with(opt, NULL, NULL, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

#define REFUSED(field, bad, text) \
    do { \
        mlc_lbfgs_desc d = mlc_lbfgs_desc_make(1); \
        d.field = bad; \
        CHECK(mlc_lbfgs_ex(m, &d) == NULL); \
        CHECK_HAS(mlc_error(ctx), "lbfgs: " #field " is " text); \
        CHECK_STATUS(ctx, MLC_ERR_ARG); \
    } while (0)

TEST(lbfgs, numbers_that_make_no_sense_are_refused_by_name_and_value)
{
    static const double start[] = {1, 2};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = bowl(ctx, MLC_F32, 2, start);
    REFUSED(lr, -1, "-1");
    REFUSED(max_iter, 0, "0");
    REFUSED(max_eval, -2, "-2");
    REFUSED(tolerance_grad, (double)NAN, "nan");
    REFUSED(tolerance_change, -0.5, "-0.5");
    REFUSED(history, 0, "0");
    CHECK(mlc_lbfgs_ex(m, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_lbfgs_desc_make(lr)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_lbfgs(NULL, 1) == NULL && mlc_lbfgs_ex(NULL, NULL) == NULL);
    CHECK_OK(ctx);
}

/* ---- Sophia's curvature by differences ------------------------------------------------------ */

static mlc_tensor *hessian_of(mlc_optim *opt)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it))
        if (strcmp(it.name, "state.p.hessian") == 0) return it.tensor;
    return NULL;
}

/* Of sum w p^2 it is 2 w: one sample has no variance, as there is nothing off the diagonal.      */
TEST(lbfgs, the_curvature_of_a_bowl_is_its_diagonal)
{
    static const struct { mlc_dtype dtype; double error; } all[] = {
        {MLC_F64, 1e-10}, {MLC_F32, 1e-4}, {MLC_BF16, 0.05}};
    static const double start[] = {1.5, -2, 0.5, 1}, weight[] = {0.5, 1, 2, 0};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 3; k++)
            for (int64_t samples = 1; samples < 4; samples += 2) {
                double          h[4], p[4];
                mlc_sophia_desc d = mlc_sophia_desc_make(0.1);
                batch           b = {bowl(ctx, MLC_F32, 4, start), NULL, 0, 0, 0};
                d.beta2 = 0;
                b.x = test_tensor(ctx, all[k].dtype, mlc_dims1(4), weight);
                CHECK_EQ(mlc_module_to(b.m, all[k].dtype), MLC_OK);
                mlc_optim *opt = mlc_sophia_ex(b.m, &d);
                CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, samples), MLC_OK);
                CHECK_EQ(b.calls, 2 * (int)samples);
                test_read(mlc_module_param(b.m, "p"), p);
                CHECK(memcmp(p, start, sizeof p) == 0);
                test_read(hessian_of(opt), h);
                for (int i = 0; i < 4; i++) CHECK_NEAR(h[i], 2 * weight[i], all[k].error * 4);
                CHECK(mlc_grad(mlc_module_param(b.m, "p")) == NULL);
                mlc_optim_free(opt);
            }
        CHECK_OK(ctx);
    }
}

/* And .3 sum p[i] p[i+1]. */
static mlc_tensor *chain_of(void *user)
{
    batch      *b = (batch *)user;
    mlc_tensor *p = mlc_module_param(b->m, "p"), *y = mlc_forward(b->m, b->x);
    mlc_tensor *pairs = mlc_mul(mlc_slice(p, 0, 0, N - 1, 1), mlc_slice(p, 0, 1, N, 1));
    return mlc_add(y, mlc_mul_scalar(mlc_sum_all(pairs), 0.3));
}

/* Differences in f64 have 11 digits, those in f32 5.                                             */
TEST(lbfgs, sophia_h_follows_its_trace)
{
    for (int k = 0; k < 2; k++) {
        mlc_ctx         *ctx = test_ctx();
        const mlc_dtype  dtype = k ? MLC_F64 : MLC_F32;
        golden_file      f = golden_open(ctx, "optim_rules.safetensors");
        mlc_sophia_desc  d = mlc_sophia_desc_make(0.01);
        double           start[N];
        d.beta1 = 0.9;
        d.beta2 = 0.95;
        d.gamma = 1;
        mlc_seed(ctx, 7);
        test_read(golden_find(&f, "sophia_h.p0"), start);
        batch      b = {bowl(ctx, dtype, N, start), mlc_cast(golden_find(&f, "w"), dtype), 0, 0, 0};
        mlc_optim *opt = mlc_sophia_ex(b.m, &d);
        for (int step = 1; step <= 100; step++) {
            if (step % 10 == 1)
                CHECK_EQ(mlc_optim_curvature_with(opt, chain_of, &b, 2), MLC_OK);
            CHECK_EQ(mlc_optim_step_with(opt, chain_of, &b, NULL), MLC_OK);
            if (step == 1 || step == 10 || step == 100)
                near_golden(&f, b.m, "sophia_h", step, k ? 1e-10 : 1e-4);
        }
        CHECK_OK(ctx);
    }
}

TEST(lbfgs, a_curvature_that_fails_changes_nothing)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    mlc_ctx   *ctx = test_ctx();
    batch      b = {bowl(ctx, MLC_F32, 3, start), NULL, 0, 0, 0};
    mlc_optim *opt = mlc_sophia(b.m, 0.1), *other = mlc_sgd(b.m, 0.1);
    double     p[3], h[3], was[3];
    b.x = test_tensor(ctx, MLC_F32, mlc_dims1(3), weight);
    CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, 1), MLC_OK);
    test_read(hessian_of(opt), was);
    for (int call = 1; call <= 4; call++) {
        b.calls = 0;
        b.worse = call;
        CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, 2), MLC_ERR_VALUE);
        mlc_error_clear(ctx);
        b.bad = call;                  /* NaN: h stays, too                                    */
        b.calls = b.worse = 0;
        CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, 2), MLC_OK);
        b.bad = 0;
        test_read(mlc_module_param(b.m, "p"), p);
        test_read(hessian_of(opt), h);
        CHECK(memcmp(p, start, sizeof p) == 0 && memcmp(h, was, sizeof h) == 0);
    }
    CHECK_EQ(mlc_optim_curvature_with(opt, NULL, NULL, 1), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, 0), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "0 samples");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_curvature_with(other, loss_of, &b, 1), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "sgd keeps no curvature");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, 1), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    mlc_optim_scaler_off(opt);
    CHECK_EQ(mlc_optim_accumulate(opt, 2), MLC_OK);
    CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_curvature_with(opt, loss_of, &b, 1), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "mlc_optim_flush");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_curvature_with(NULL, loss_of, &b, 1), MLC_ERR_ARG);
    mlc_optim_free(other);
}
