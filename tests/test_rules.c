/* test_rules.c -- tests of sections IMPL.OPTIM.RULES and IMPL.OPTIM.MORE_RULES: rules that update
 * each element by itself */
#include "bowl.h"
#include "golden/golden.h"
#include "rules.h"

/* ---- golden/make_optim_goldens.py ----------------------------------------------------------- */

enum { N = 7, MOST = 24 };              /* of a trace: numbers, and those of matrices       */

/* The Hessian's diagonal, 2 w, as the square of a gradient: that of sum(sqrt(2 w) p).           */
static void feed_curvature(mlc_module *m, mlc_optim *opt, mlc_tensor *w)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    mlc_scope_begin(ctx);
    mlc_tensor *root = mlc_sqrt(mlc_mul_scalar(w, 2));
    mlc_backward(mlc_sum(mlc_mul(root, mlc_module_param(m, "p")), mlc_dims0(), false));
    CHECK_EQ(mlc_optim_curvature(opt, 1), MLC_OK);
    mlc_scope_end(ctx);
}

static bool near_golden(const golden_file *f, mlc_module *m, const char *name, char what, int step,
                        double tolerance)
{
    double      want[MOST];
    mlc_tensor *p = golden_find(f, "%s.%c%d", name, what, step);
    if (!CHECK(p != NULL)) return false;
    test_read(p, want);
    const bool same = CHECK_VALUES(mlc_module_param(m, "p"), mlc_numel(p), want, tolerance,
                                   tolerance);
    if (!same) printf("  %s.%c%d\n", name, what, step);
    return same;
}

static void check_trace(mlc_ctx *ctx, const golden_file *f, const trace *t, mlc_dtype dtype)
{
    const double tolerance = dtype == MLC_F64 ? 1e-12 : 1e-5;
    double       start[MOST];
    mlc_tensor  *w = golden_find(f, "%s.w", t->name), *own = golden_find(f, "%s.p0", t->name);
    test_read(own ? own : golden_find(f, "p0"), start);
    /* LARS leaves vectors alone. */
    const bool     row = strncmp(t->name, "lars", 4) == 0;
    const mlc_dims dims = own && own->ndim == 2 ? mlc_dims2(own->shape[0], own->shape[1]) :
                          row ? mlc_dims2(1, N) : mlc_dims1(N);
    mlc_module *m = bowl_of(ctx, dtype, dims, start);
    w = mlc_reshape(mlc_cast(w ? w : golden_find(f, "w"), dtype), dims);
    mlc_optim  *opt = t->make(m);
    for (int step = 1; step <= 100; step++) {
        if (t->curvature && (step - 1) % t->curvature == 0) feed_curvature(m, opt, w);
        CHECK_EQ(descend(m, opt, w), MLC_OK);
        if (step != 1 && step != 10 && step != 100) continue;
        near_golden(f, m, t->name, 'p', step, tolerance);
        if (!t->mean) continue;
        CHECK_EQ(mlc_optim_mean(opt, true), MLC_OK);
        near_golden(f, m, t->name, 'x', step, tolerance);
        CHECK_EQ(mlc_optim_mean(opt, false), MLC_OK);
        near_golden(f, m, t->name, 'p', step, tolerance);
    }
    CHECK_EQ(mlc_optim_steps(opt), 100);
    mlc_optim_free(opt);
}

TEST(rules, a_hundred_steps_follow_their_traces)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "optim_rules.safetensors");
        for (int i = 0; i < N_TRACES; i++) {
            check_trace(ctx, &f, &TRACES[i], MLC_F64);
            check_trace(ctx, &f, &TRACES[i], MLC_F32);
        }
        CHECK_OK(ctx);
    }
}

/* ---- what holds for all of them ------------------------------------------------------------ */

/* Vectors and what is left over by them: an element does not depend on its place.               */
TEST(rules, an_element_does_not_depend_on_its_place)
{
    enum { MANY = 37 };
    double p[MANY], start[MANY], weight[MANY];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < MANY; i++) start[i] = 1.5, weight[i] = 0.5;
        for (int i = 0; i < N_TRACES; i++) {
            mlc_tensor *w = test_tensor(ctx, MLC_F32, mlc_dims1(MANY), weight);
            mlc_module *m = bowl(ctx, MLC_F32, MANY, start);
            mlc_optim  *opt = TRACES[i].make(m);
            for (int step = 0; step < 4; step++) CHECK_EQ(descend(m, opt, w), MLC_OK);
            test_read(mlc_module_param(m, "p"), p);
            CHECK(p[0] != start[0]);
            for (int k = 1; k < MANY; k++)
                if (!CHECK_NEAR(p[k], p[0], 1e-6)) printf("  %s %d\n", TRACES[i].name, k);
            mlc_optim_free(opt);
        }
        CHECK_OK(ctx);
    }
}

/* A step under a scaler: skipped ones leave everything as it is, so that the run is the same.   */
static void scaled_descend(mlc_module *m, mlc_optim *opt, mlc_tensor *w, double times)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mul_scalar(mlc_forward(m, w), times)), MLC_OK);
    mlc_scope_end(ctx);
}

/* Biases and norms: momentum without a ratio.                                                   */
TEST(rules, lars_leaves_vectors_alone)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    double              p[2][3];
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 2; k++) {
            mlc_tensor   *w = test_tensor(ctx, MLC_F64, mlc_dims1(3), weight);
            mlc_module   *m = bowl(ctx, MLC_F64, 3, start);
            mlc_sgd_desc  d = mlc_sgd_desc_make(0.01);
            d.momentum = 0.9;
            mlc_optim *opt = k ? mlc_lars(m, 0.01) : mlc_sgd_ex(m, &d);
            for (int step = 0; step < 5; step++) CHECK_EQ(descend(m, opt, w), MLC_OK);
            test_read(mlc_module_param(m, "p"), p[k]);
        }
        for (int i = 0; i < 3; i++) CHECK_NEAR(p[1][i], p[0][i], 1e-14);
        CHECK_OK(ctx);
    }
}

TEST(rules, storms_poison_no_state)
{
    static const int    length[] = {1, 5, 49};
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    const double        bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    double              p[2][3];
    for (int i = 0; i < N_TRACES; i++) {
        mlc_ctx        *ctx = test_ctx();
        mlc_scaler_desc d = mlc_scaler_desc_make();
        for (int storm = 0; storm < 2; storm++) {
            mlc_tensor *w = test_tensor(ctx, MLC_F32, mlc_dims2(1, 3), weight);
            mlc_module *m = bowl_of(ctx, MLC_F32, mlc_dims2(1, 3), start);
            mlc_optim  *opt = TRACES[i].make(m);
            CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
            for (int step = 0; step < 6; step++) {
                for (int k = 0; storm && step == 2 && k < length[i % 3]; k++)
                    scaled_descend(m, opt, w, bad[i / 3 % 3]);
                scaled_descend(m, opt, w, 1);
            }
            CHECK_EQ(mlc_optim_steps(opt), 6);
            test_read(mlc_module_param(m, "p"), p[storm]);
        }
        if (!CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0)) printf("  %s\n", TRACES[i].name);
        CHECK_OK(ctx);
    }
}

/* Frozen for a while and going on: numbers that a rule carries from update to update are the
 * parameter's own, so its path is as without the pause.                                         */
TEST(rules, a_parameter_that_was_frozen_goes_on_where_it_was)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    double              p[2][3];
    for (int i = 0; i < N_TRACES; i++) {
        mlc_ctx *ctx = test_ctx();
        for (int pause = 0; pause < 2; pause++) {
            mlc_tensor *w = test_tensor(ctx, MLC_F64, mlc_dims2(1, 3), weight);
            mlc_module *m = bowl_of(ctx, MLC_F64, mlc_dims2(1, 3), start);
            mlc_optim  *opt = TRACES[i].make(m);
            for (int step = 0; step < 8; step++) {
                const bool rests = pause && (step == 3 || step == 4);
                if (rests) mlc_optim_step(opt);
                else CHECK_EQ(descend(m, opt, w), MLC_OK);
                if (step == 4 && pause)
                    for (int k = 0; k < 2; k++) CHECK_EQ(descend(m, opt, w), MLC_OK);
            }
            test_read(mlc_module_param(m, "p"), p[pause]);
        }
        if (!CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0)) printf("  %s\n", TRACES[i].name);
        CHECK_OK(ctx);
    }
}

/* Two parameters that made as many updates, at other steps and rates, are no run: a run has one
 * carry. Clipped one by one they never are.                                                     */
TEST(rules, what_parameters_carry_is_their_own_after_as_many_updates)
{
    double p[2][2][12];
    for (int i = 0; i < N_TRACES; i++) {
        for (int each = 0; each < 2; each++) {
            mlc_ctx      *ctx = test_ctx();
            mlc_module   *net = mlc_nn_linear(ctx, 4, 3);
            mlc_clip_desc d = mlc_clip_desc_make();
            mlc_module_build(net);
            mlc_optim *opt = TRACES[i].make(net);
            d.norm = 1e6;
            d.each = each != 0;
            CHECK_EQ(mlc_optim_clip(opt, &d), MLC_OK);
            for (int step = 1; step < 6; step++) {
                mlc_module_freeze(net, "weight", step == 1);
                mlc_module_freeze(net, "bias", step == 2);
                if (step == 2) mlc_optim_set_lr(opt, 4 * mlc_optim_lr(opt));
                mlc_scope_begin(ctx);
                mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(6, 4), 1, -1, 1);
                mlc_tensor *y = mlc_forward(net, x);
                mlc_optim_minimize(opt, mlc_mean(mlc_mul(y, y), mlc_dims0(), false));
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
            test_read(mlc_module_param(net, "weight"), p[each][0]);
            test_read(mlc_module_param(net, "bias"), p[each][1]);
        }
        if (!CHECK(memcmp(p[0][0], p[1][0], sizeof p[0][0]) == 0) ||
            !CHECK(memcmp(p[0][1], p[1][1], 3 * sizeof(double)) == 0))
            printf("  %s\n", TRACES[i].name);
    }
}

TEST(rules, bf16_parameters_descend)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    double              p[3], before, after;
    for (int i = 0; i < N_TRACES; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *w = test_tensor(ctx, MLC_BF16, mlc_dims2(1, 3), weight);
        mlc_module *m = bowl_of(ctx, MLC_F32, mlc_dims2(1, 3), start);
        CHECK_EQ(mlc_module_to(m, MLC_BF16), MLC_OK);
        mlc_optim *opt = TRACES[i].make(m);
        for (int step = 0; step < 30; step++) CHECK_EQ(descend(m, opt, w), MLC_OK);
        if (TRACES[i].mean) CHECK_EQ(mlc_optim_mean(opt, true), MLC_OK);
        test_read(mlc_module_param(m, "p"), p);
        before = after = 0;
        for (int k = 0; k < 3; k++) {
            before += weight[k] * start[k] * start[k];
            after += weight[k] * p[k] * p[k];
        }
        if (!CHECK(after < before)) printf("  %s\n", TRACES[i].name);
        CHECK_OK(ctx);
    }
}

/* ---- rules that make the loss again --------------------------------------------------------- */

typedef struct bowl_batch { mlc_module *m; mlc_tensor *w; int calls; } bowl_batch;

static mlc_tensor *bowl_loss(void *user)
{
    bowl_batch *b = (bowl_batch *)user;
    b->calls++;
    return mlc_forward(b->m, b->w);
}

static void check_sam(mlc_ctx *ctx, const golden_file *f, const char *name, mlc_dtype dtype)
{
    const bool    adaptive = strcmp(name, "asam") == 0, momentum = strcmp(name, "sam") > 0;
    const double  tolerance = dtype == MLC_F64 ? 1e-12 : 1e-5;
    double        start[N], loss, want;
    mlc_tensor   *w = mlc_cast(golden_find(f, "w"), dtype);
    mlc_sgd_desc  d = mlc_sgd_desc_make(0.02);
    if (momentum) d.momentum = 0.9, d.weight_decay = 0.05;
    test_read(golden_find(f, "p0"), start);
    mlc_module *m = bowl(ctx, dtype, N, start);
    mlc_optim  *opt = mlc_sgd_ex(m, &d);
    bowl_batch  batch = {m, w, 0};
    CHECK_EQ(mlc_optim_sam(opt, adaptive ? 0.5 : momentum ? 0.1 : 0.05, adaptive), MLC_OK);
    for (int step = 1; step <= 100; step++) {
        want = mlc_item(mlc_forward(m, w));
        CHECK_EQ(mlc_optim_step_with(opt, bowl_loss, &batch, &loss), MLC_OK);
        CHECK_NEAR(loss, want, 0);
        if (step == 1 || step == 10 || step == 100) near_golden(f, m, name, 'p', step, tolerance);
    }
    CHECK_EQ(batch.calls, 200);
    CHECK_EQ(mlc_optim_steps(opt), 100);
}

TEST(rules, sam_follows_its_traces)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "optim_rules.safetensors");
        for (int k = 0; k < 2; k++) {
            check_sam(ctx, &f, "sam", k ? MLC_F64 : MLC_F32);
            check_sam(ctx, &f, "sam_momentum", k ? MLC_F64 : MLC_F32);
            check_sam(ctx, &f, "asam", k ? MLC_F64 : MLC_F32);
        }
        CHECK_OK(ctx);
    }
}

/* A loss that is no number the second time, and one that fails: the parameters are as before.   */
static mlc_tensor *bad_the_second_time(void *user)
{
    bowl_batch *b = (bowl_batch *)user;
    if (++b->calls % 2) return mlc_forward(b->m, b->w);
    if (b->calls == 2) return mlc_mul_scalar(mlc_forward(b->m, b->w), (double)NAN);
    mlc_raise(mlc_module_ctx(b->m), MLC_ERR_VALUE, "no data");
    return NULL;
}

TEST(rules, sam_puts_the_parameters_back_whatever_happens)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    double              p[3];
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 3, start);
    mlc_optim          *opt = mlc_sgd(m, 0.1);
    bowl_batch          batch = {m, test_tensor(ctx, MLC_F32, mlc_dims1(3), weight), 0};
    mlc_scaler_desc     d = mlc_scaler_desc_make();
    CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
    CHECK_EQ(mlc_optim_sam(opt, 0.1, false), MLC_OK);
    CHECK_EQ(mlc_optim_step_with(opt, bad_the_second_time, &batch, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_scaler_state(opt).skipped, 1);
    CHECK_EQ(mlc_optim_step_with(opt, bad_the_second_time, &batch, NULL), MLC_ERR_VALUE);
    mlc_error_clear(ctx);
    mlc_optim_zero_grad(opt);
    test_read(mlc_module_param(m, "p"), p);
    CHECK(memcmp(p, start, sizeof p) == 0);
    CHECK_EQ(descend(m, opt, batch.w), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "mlc_optim_step_with");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_accumulate(opt, 2), MLC_OK);
    CHECK_EQ(mlc_optim_step_with(opt, bowl_loss, &batch, NULL), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_step_with(opt, NULL, NULL, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_sam(opt, -1, false), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "rho is -1");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_sam(NULL, 0.1, false), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_step_with(NULL, bowl_loss, &batch, NULL), MLC_ERR_ARG);
}

/* The first gradient is not finite: there is no second loss, and the step is skipped.            */
static mlc_tensor *never_finite(void *user)
{
    bowl_batch *b = (bowl_batch *)user;
    b->calls++;
    return mlc_mul_scalar(mlc_forward(b->m, b->w), (double)INFINITY);
}

static mlc_tensor *mean_of_ones(void *user)
{
    mlc_module *net = (mlc_module *)user;
    return mlc_mean_all(mlc_forward(net, mlc_ones(mlc_module_ctx(net), MLC_F32, mlc_dims2(1, 2))));
}

/* Room for copies is that of the parameters there are at the step. */
TEST(rules, sam_takes_layers_that_were_added_after_the_step_before)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 2, 2));
    mlc_optim  *opt = mlc_sgd(net, 0.1);
    CHECK_EQ(mlc_optim_sam(opt, 0.1, false), MLC_OK);
    CHECK_EQ(mlc_optim_step_with(opt, mean_of_ones, net, NULL), MLC_OK);
    for (int i = 0; i < 20; i++) mlc_module_add(net, mlc_nn_linear(ctx, 2, 2));
    CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    mlc_tensor  *bias = mlc_module_param(net, "20.bias");
    const double was = mlc_item(mlc_sum_all(bias));
    CHECK_EQ(mlc_optim_step_with(opt, mean_of_ones, net, NULL), MLC_OK);
    CHECK_NEAR(was - mlc_item(mlc_sum_all(bias)), 0.1, 1e-6);
    CHECK_OK(ctx);
}

typedef struct loser { mlc_module *net, *layer; int calls, loses_at; } loser;

/* Of the first layer's output; the second layer goes at one of the calls.                        */
static mlc_tensor *loss_without_the_second(void *user)
{
    loser      *l = (loser *)user;
    mlc_ctx    *ctx = mlc_module_ctx(l->net);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(1, 2));
    if (++l->calls == l->loses_at) {
        mlc_module_free(l->layer);
        l->layer = NULL;
    }
    return mlc_mean_all(mlc_forward(l->net, x));
}

static loser loser_make(mlc_ctx *ctx, int loses_at)
{
    loser l = {mlc_nn_sequential(ctx), mlc_nn_linear(ctx, 2, 2), 0, loses_at};
    mlc_module_add(l.net, mlc_nn_linear(ctx, 2, 2));
    mlc_module_add(l.net, l.layer);
    CHECK_EQ(mlc_module_build(l.net), MLC_OK);
    return l;
}

TEST(rules, sam_and_curvature_do_without_a_layer_that_the_loss_frees)
{
    for (int call = 1; call <= 4; call++)
        for (int k = 0; k < 2; k++) {
            mlc_ctx    *ctx = test_ctx();
            loser       l = loser_make(ctx, call);
            mlc_optim  *opt = k ? mlc_sophia(l.net, 0.1) : mlc_sgd(l.net, 0.1);
            mlc_tensor *bias = mlc_module_param(l.net, "0.bias");
            double      was[2], now[2];
            test_read(bias, was);
            if (k) {
                CHECK_EQ(mlc_optim_curvature_with(opt, loss_without_the_second, &l, 2), MLC_OK);
            } else {
                CHECK_EQ(mlc_optim_sam(opt, 0.1, false), MLC_OK);
                for (int i = 0; i < 2; i++)
                    CHECK_EQ(mlc_optim_step_with(opt, loss_without_the_second, &l, NULL), MLC_OK);
            }
            CHECK_EQ(l.calls, 4);
            CHECK(l.layer == NULL);
            test_read(bias, now);
            CHECK(k ? memcmp(was, now, sizeof was) == 0 : was[0] != now[0]);
            CHECK_OK(ctx);
        }
}

/* At the second call all is freed, and the loss is of another tensor.                            */
static mlc_tensor *loss_without_the_module(void *user)
{
    loser   *l = (loser *)user;
    mlc_ctx *ctx = l->layer ? mlc_module_ctx(l->layer) : NULL;
    if (!ctx) return NULL;
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(1, 2));
    if (++l->calls < 2) return mlc_mean_all(mlc_forward(l->net, x));
    mlc_module_free(l->net);
    l->net = l->layer = NULL;
    mlc_set_requires_grad(x, true);
    return mlc_mean_all(x);
}

TEST(rules, curvature_of_a_module_that_the_loss_frees_is_an_error)
{
    mlc_ctx   *ctx = test_ctx();
    loser      l = loser_make(ctx, 0);
    mlc_optim *opt = mlc_sophia(l.net, 0.1);
    CHECK_EQ(mlc_optim_curvature_with(opt, loss_without_the_module, &l, 1), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "optim_curvature_with: fn freed the module");
    mlc_error_clear(ctx);
    mlc_optim_free(opt);
}

typedef enum change { ADDS, UNFREEZES, GROUPS, CASTS_AND_FAILS, CHANGES } change;
typedef struct changer { mlc_module *net; mlc_optim *opt; change way; int calls, at; } changer;

/* At one of the calls the module changes, and the optimizer is asked for something. */
static mlc_tensor *loss_that_changes(void *user)
{
    changer *c = (changer *)user;
    mlc_ctx *ctx = mlc_module_ctx(c->net);
    if (++c->calls != c->at) return mean_of_ones(c->net);
    if (c->way == UNFREEZES) mlc_module_freeze(c->net, NULL, false);
    if (c->way == GROUPS) mlc_optim_group(c->opt, "*.bias", NULL);
    for (int i = 0; i < 6 && c->way == ADDS; i++)
        mlc_module_add(c->net, mlc_nn_linear(ctx, 2, 2));
    if (c->way == CASTS_AND_FAILS) {
        mlc_module_to(c->net, MLC_BF16);
        return NULL;
    }
    mlc_optim_state_iter_make(c->opt);
    return mean_of_ones(c->net);
}

static changer changer_make(mlc_ctx *ctx, change way, int at)
{
    changer c = {mlc_nn_sequential(ctx), NULL, way, 0, at};
    for (int i = 0; i < 3; i++) mlc_module_add(c.net, mlc_nn_linear(ctx, 2, 2));
    CHECK_EQ(mlc_module_freeze(c.net, "0.*", true), MLC_OK);
    CHECK_EQ(mlc_module_build(c.net), MLC_OK);
    return c;
}

TEST(rules, a_loss_that_has_the_optimizer_follow_a_change_is_refused_and_all_is_put_back)
{
    for (int of = 0; of < CHANGES * 5; of++) {
        mlc_ctx     *ctx = test_ctx();
        const change way = (change)(of / 5);
        const bool   sam = of % 5 == 4;
        changer      c = changer_make(ctx, way, sam ? 2 : 1 + of % 5);
        mlc_tensor  *w = mlc_module_param(c.net, "2.weight");
        double       was[4], now[4];
        c.opt = sam ? mlc_sgd(c.net, 0.1) : mlc_sophia(c.net, 0.1);
        if (sam) CHECK_EQ(mlc_optim_sam(c.opt, 0.1, false), MLC_OK);
        test_read(w, was);
        CHECK_EQ(sam ? mlc_optim_step_with(c.opt, loss_that_changes, &c, NULL)
                     : mlc_optim_curvature_with(c.opt, loss_that_changes, &c, 2),
                 way == CASTS_AND_FAILS ? MLC_ERR_ARG : MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), way == CASTS_AND_FAILS ? "the loss is NULL"
                                                         : "fn, which makes the loss several");
        mlc_error_clear(ctx);
        CHECK_EQ(c.calls, c.at);
        test_read(w, now);
        for (int i = 0; i < 4; i++) CHECK_NEAR(now[i], was[i], way == CASTS_AND_FAILS ? 2e-3 : 0);
        CHECK_EQ(mlc_module_to(c.net, MLC_F32), MLC_OK);
        CHECK_EQ(mlc_optim_step_with(c.opt, loss_that_changes, &c, NULL), MLC_OK);
        test_read(w, now);
        CHECK(memcmp(was, now, sizeof was) != 0);
        CHECK_OK(ctx);
    }
}

TEST(rules, sam_does_not_ascend_along_what_is_not_finite)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    double              p[3];
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 3, start);
    mlc_optim          *opt = mlc_sgd(m, 0.1);
    bowl_batch          batch = {m, test_tensor(ctx, MLC_F32, mlc_dims1(3), weight), 0};
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_sam(opt, 0.1, false), MLC_OK);
    CHECK_EQ(mlc_optim_step_with(opt, never_finite, &batch, NULL), MLC_OK);
    CHECK_EQ(batch.calls, 1);
    CHECK_EQ(mlc_optim_scaler_state(opt).skipped, 1);
    CHECK_EQ(mlc_optim_steps(opt), 0);
    test_read(mlc_module_param(m, "p"), p);
    CHECK(memcmp(p, start, sizeof p) == 0);
    CHECK_EQ(mlc_optim_step_with(opt, bowl_loss, &batch, NULL), MLC_OK);
    CHECK_EQ(batch.calls, 3);
    CHECK_EQ(mlc_optim_steps(opt), 1);
    CHECK_OK(ctx);
}

/* Curvature from gradients of which one is not finite, and of calls that wait for a step.        */
TEST(rules, a_curvature_that_is_not_finite_is_not_taken)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    static const double bad[] = {1, (double)NAN, 1};
    double              h[3] = {0}, was[3];
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 3, start);
    mlc_optim          *opt = mlc_sophia(m, 0.1);
    mlc_tensor         *w = test_tensor(ctx, MLC_F32, mlc_dims1(3), weight);
    mlc_tensor         *worse = test_tensor(ctx, MLC_F32, mlc_dims1(3), bad);
    for (int k = 0; k < 2; k++) {
        mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
        CHECK_EQ(mlc_backward(mlc_forward(m, k ? worse : w)), MLC_OK);
        CHECK_EQ(mlc_optim_curvature(opt, 4), MLC_OK);
        memcpy(was, h, sizeof h);
        while (mlc_optim_state_next(&it))
            if (strcmp(it.name, "state.p.hessian") == 0) test_read(it.tensor, h);
    }
    CHECK_NEAR(was[0], 0.01 * 4 * 1.5 * 1.5, 1e-7);
    CHECK_NEAR(h[1], was[1], 0);
    CHECK_NEAR(h[0], 0.99 * was[0] + 0.01 * 4 * 9, 1e-6);
    CHECK_EQ(mlc_optim_accumulate(opt, 2), MLC_OK);
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_backward(mlc_forward(m, w)), MLC_OK);
    CHECK_EQ(mlc_optim_curvature(opt, 4), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "mlc_optim_flush");
    mlc_error_clear(ctx);
}

/* A step inside backward would be one for the curvature's loss, too.                             */
TEST(rules, a_backward_for_the_curvature_makes_no_step)
{
    enum { SIDE = 128 };
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_linear(ctx, SIDE, SIDE);
    mlc_tensor *x = mlc_randn(ctx, MLC_F32, mlc_dims2(4, SIDE));
    mlc_module_build(m);
    mlc_optim  *opt = mlc_sophia(m, 0.1);
    mlc_tensor *was = mlc_copy(mlc_module_param(m, "weight"));
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    CHECK_EQ(mlc_backward(mlc_mean_all(mlc_forward(m, x))), MLC_OK);
    CHECK_EQ(mlc_optim_curvature(opt, 4), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_sum_all(mlc_abs(mlc_sub(was, mlc_module_param(m, "weight"))))), 0, 0);
    CHECK_OK(ctx);
}

/* Without a rule that needs more: forward, backward and step in one.                            */
TEST(rules, a_step_with_a_loss_is_a_step)
{
    static const double start[] = {1.5, -2, 0.5}, weight[] = {0.5, 1, 2};
    double              p[2][3];
    mlc_ctx            *ctx = test_ctx();
    for (int k = 0; k < 2; k++) {
        mlc_module *m = bowl(ctx, MLC_F32, 3, start);
        mlc_optim  *opt = mlc_adamw(m, 0.1);
        bowl_batch  batch = {m, test_tensor(ctx, MLC_F32, mlc_dims1(3), weight), 0};
        for (int step = 0; step < 5; step++)
            CHECK_EQ(k ? mlc_optim_step_with(opt, bowl_loss, &batch, NULL)
                       : descend(m, opt, batch.w), MLC_OK);
        CHECK_EQ(batch.calls, k ? 5 : 0);
        test_read(mlc_module_param(m, "p"), p[k]);
    }
    CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
    CHECK_OK(ctx);
}

/* ---- what is refused ------------------------------------------------------------------------ */

/* A desc with one bad number is refused, with its name and value.                               */
#define REFUSED(rule, type, field, bad, text) \
    do { \
        mlc_##type##_desc d = mlc_##rule##_desc_make(0.1); \
        d.field = bad; \
        CHECK(mlc_##rule##_ex(m, &d) == NULL); \
        CHECK_HAS(mlc_error(ctx), #rule ": " #field " is " text); \
        CHECK_STATUS(ctx, MLC_ERR_ARG); \
    } while (0)

TEST(rules, numbers_that_make_no_sense_are_refused_by_name_and_value)
{
    static const double start[] = {1, 2};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 2, start);
    REFUSED(sgd, sgd, lr, -1, "-1");
    REFUSED(adam, adam, beta1, 1, "1");
    REFUSED(amsgrad, amsgrad, beta2, 1.5, "1.5");
    REFUSED(radam, amsgrad, eps, -0.5, "-0.5");
    REFUSED(adamax, adam, lr, (double)NAN, "nan");
    REFUSED(nadam, nadam, momentum_decay, -2, "-2");
    REFUSED(rmsprop, rmsprop, alpha, 1, "1");
    REFUSED(adagrad, adagrad, initial, -1, "-1");
    REFUSED(adadelta, adadelta, rho, 1, "1");
    REFUSED(rprop, rprop, shrink, 1, "1");
    REFUSED(rprop, rprop, grow, 0.5, "0.5");
    REFUSED(rprop, rprop, most, 0, "0");
    REFUSED(lars, lars, trust, 0, "0");
    REFUSED(lion, lion, weight_decay, (double)INFINITY, "inf");
    REFUSED(sophia, sophia, gamma, 0, "0");
    REFUSED(adafactor, adafactor, power, -1, "-1");
    REFUSED(adafactor, adafactor, eps1, 0, "0");
    REFUSED(adafactor, adafactor, clip, 0, "0");
    REFUSED(muon, muon, momentum, 1, "1");
    REFUSED(muon, muon, steps, 0, "0");
    REFUSED(muon, muon, eps, -1, "-1");
    REFUSED(schedule_free_sgd, schedule_free_sgd, momentum, 0, "0");
    REFUSED(schedule_free_sgd, schedule_free_sgd, warmup, -3, "-3");
    REFUSED(schedule_free_adamw, schedule_free_adamw, beta1, 0, "0");
    mlc_muon_desc muon = mlc_muon_desc_make(0.1);
    muon.adamw.beta2 = 1;
    CHECK(mlc_muon_ex(m, &muon) == NULL);
    CHECK_HAS(mlc_error(ctx), "muon: adamw: beta2 is 1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    muon = mlc_muon_desc_make(0.1);
    muon.b = (double)INFINITY;
    CHECK(mlc_muon_ex(m, &muon) == NULL);
    CHECK_HAS(mlc_error(ctx), "muon: a + b + c is inf");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_lion_ex(m, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_lion_desc_make(lr)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_schedule_free_sgd_ex(m, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_rmsprop(NULL, 0.1) == NULL && mlc_schedule_free_adamw(NULL, 0.1) == NULL);
    CHECK_OK(ctx);
}

TEST(rules, of_a_module_without_parameters_are_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_relu(ctx);
    for (int k = 0; k < N_TRACES; k++) {
        CHECK(TRACES[k].make(net) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, ": the module has no parameters; add its layers before");
    }
    const mlc_lbfgs_desc d = mlc_lbfgs_desc_make(1);
    CHECK(mlc_lbfgs_ex(net, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "lbfgs: the module has no parameters");
    CHECK_OK(ctx);
}

TEST(rules, the_mean_is_not_trained_and_belongs_to_rules_that_keep_one)
{
    static const double start[] = {1, 2}, weight[] = {1, 1};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 2, start);
    mlc_tensor         *w = test_tensor(ctx, MLC_F32, mlc_dims1(2), weight);
    mlc_optim          *opt = mlc_schedule_free_sgd(m, 0.1), *other = mlc_sgd(m, 0.1);
    double              p[2];
    CHECK_EQ(mlc_optim_mean(opt, true), MLC_OK);           /* before the first step: as it is  */
    test_read(mlc_module_param(m, "p"), p);
    CHECK(p[0] == 1 && p[1] == 2);
    CHECK_EQ(descend(m, opt, w), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "mlc_optim_mean(opt, false)");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_mean(opt, false), MLC_OK);
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_optim_mean(other, true), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "sgd keeps no mean");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_curvature(other, 1), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_curvature(NULL, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_mean(NULL, true), MLC_ERR_ARG);
    mlc_optim *sophia = mlc_sophia(m, 0.1);
    CHECK_EQ(mlc_optim_curvature(sophia, -1), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "factor is -1");
    mlc_error_clear(ctx);
}
