/* test_optim.c -- tests of section IMPL.OPTIM: SGD, Adam, AdamW, groups, one flat pass */
#include "bowl.h"
#include "golden/golden.h"

/* What a step says: at once on the CPU, on a device to what waits for it.                       */
static mlc_status step_told(mlc_optim *opt, mlc_module *m)
{
    double           p[2];
    mlc_tensor      *t = mlc_module_param(m, "p");
    const mlc_status st = mlc_optim_step(opt);
    CHECK(st != MLC_OK || !mlc_ctx_on_host(mlc_module_ctx(m)));
    return st == MLC_OK ? mlc_read(t, p, (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype)) : st;
}

/* ---- the traces of PyTorch ---------------------------------------------------------------- */

typedef struct trace {
    const char *name;
    bool        adam, decoupled;
    double      lr, momentum, dampening, weight_decay;
    bool        nesterov;
    double      beta1, beta2, eps;
    double      want[3];               /* after three steps from [1,-2,3] on [.5,1,2] p^2      */
} trace;

static const trace TRACES[] = {        /* formats.md 5.2, from torch 2.15, printed digits      */
    {"sgd momentum", false, false, 0.1, 0.9, 0, 0, false, 0, 0, 0, {.486, -.124, -1.62}},
    {"sgd nesterov", false, false, 0.1, 0.9, 0, 0, true, 0, 0, 0, {.327321, .216704, -1.299888}},
    {"sgd dampening", false, false, 0.1, 0.9, 0.1, 0.01, false, 0, 0, 0,
     {.5049956862, -.1899970864, -1.5160846284}},
    {"adam", true, false, 1e-3, 0, 0, 0, false, 0.9, 0.999, 1e-8,
     {.9970000961, -1.9970000479, 2.9970000319}},
    {"adamw", true, true, 1e-3, 0, 0, 0.01, false, 0.9, 0.999, 1e-8,
     {.9969701273, -1.9969400795, 2.9969100638}},
};

static mlc_optim *make_optim(mlc_module *m, const trace *t)
{
    mlc_sgd_desc  s = mlc_sgd_desc_make(t->lr);
    mlc_adam_desc a = mlc_adam_desc_make(t->lr);
    s.momentum = t->momentum;
    s.dampening = t->dampening;
    s.weight_decay = a.weight_decay = t->weight_decay;
    s.nesterov = t->nesterov;
    a.beta1 = t->beta1;
    a.beta2 = t->beta2;
    a.eps = t->eps;
    return !t->adam ? mlc_sgd_ex(m, &s) : t->decoupled ? mlc_adamw_ex(m, &a)
                                                       : mlc_adam_ex(m, &a);
}

static const double START[] = {1, -2, 3}, WEIGHT[] = {0.5, 1, 2};

TEST(optim, three_steps_follow_the_traces_of_pytorch)
{
    FOR_EACH_ISA(ctx) {
        for (size_t i = 0; i < sizeof TRACES / sizeof *TRACES; i++) {
            mlc_tensor *w = test_tensor(ctx, MLC_F64, mlc_dims1(3), WEIGHT);
            mlc_module *m = bowl(ctx, MLC_F64, 3, START);
            mlc_optim  *opt = make_optim(m, &TRACES[i]);
            for (int step = 0; step < 3; step++)
                CHECK_EQ(descend(m, opt, w), MLC_OK);
            if (!CHECK_VALUES(mlc_module_param(m, "p"), 3, TRACES[i].want, 1e-9, 0))
                printf("  %s\n", TRACES[i].name);
            CHECK_EQ(mlc_optim_steps(opt), 3);
        }
        CHECK_OK(ctx);
    }
}

static const trace LONG_TRACES[] = {   /* as in golden/make_goldens.py                         */
    {"sgd", false, false, 0.02, 0, 0, 0, false, 0, 0, 0, {0, 0, 0}},
    {"sgd_momentum", false, false, 0.02, 0.9, 0.1, 0.05, false, 0, 0, 0, {0, 0, 0}},
    {"sgd_nesterov", false, false, 0.02, 0.8, 0, 0, true, 0, 0, 0, {0, 0, 0}},
    {"adam", true, false, 0.05, 0, 0, 0.02, false, 0.9, 0.999, 1e-8, {0, 0, 0}},
    {"adamw", true, true, 0.05, 0, 0, 0.1, false, 0.9, 0.999, 1e-8, {0, 0, 0}},
    {"adam_betas", true, false, 0.05, 0, 0, 0, false, 0.8, 0.95, 1e-4, {0, 0, 0}},
    {"adam_beta0", true, false, 0.05, 0, 0, 0, false, 0, 0.99, 1e-8, {0, 0, 0}},
};

static void check_long_trace(mlc_ctx *ctx, const golden_file *f, const trace *t, mlc_dtype dtype,
                             double tolerance)
{
    double      start[7], want[7];
    mlc_tensor *w = mlc_cast(golden_find(f, "w"), dtype);
    test_read(golden_find(f, "p0"), start);
    mlc_module *m = bowl(ctx, dtype, 7, start);
    mlc_optim  *opt = make_optim(m, t);
    for (int step = 1; step <= 100; step++) {
        CHECK_EQ(descend(m, opt, w), MLC_OK);
        mlc_tensor *p = golden_find(f, "%s.p%d", t->name, step);
        if (p == NULL)
            continue;
        test_read(p, want);
        if (!CHECK_VALUES(mlc_module_param(m, "p"), 7, want, tolerance, tolerance))
            printf("  %s %s step %d\n", t->name, mlc_dtype_name(dtype), step);
    }
}

TEST(optim, a_hundred_steps_follow_pytorch)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "optim.safetensors");
        CHECK_EQ(f.n, 2 + 3 * 7);
        for (size_t i = 0; i < sizeof LONG_TRACES / sizeof *LONG_TRACES; i++) {
            check_long_trace(ctx, &f, &LONG_TRACES[i], MLC_F64, 1e-9);
            check_long_trace(ctx, &f, &LONG_TRACES[i], MLC_F32, 1e-5);
        }
        CHECK_OK(ctx);
    }
}

TEST(optim, short_forms_have_the_documented_defaults)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = test_tensor(ctx, MLC_F64, mlc_dims1(3), WEIGHT);
    mlc_module *m[6];
    mlc_optim  *opt[6];
    const mlc_sgd_desc  sgd = mlc_sgd_desc_make(1e-3);
    const mlc_adam_desc adam = mlc_adam_desc_make(1e-3), adamw = mlc_adamw_desc_make(1e-3);
    for (int i = 0; i < 6; i++)
        m[i] = bowl(ctx, MLC_F64, 3, START);
    opt[0] = mlc_sgd(m[0], 1e-3);
    opt[1] = mlc_sgd_ex(m[1], &sgd);
    opt[2] = mlc_adam(m[2], 1e-3);
    opt[3] = mlc_adam_ex(m[3], &adam);
    opt[4] = mlc_adamw(m[4], 1e-3);
    opt[5] = mlc_adamw_ex(m[5], &adamw);
    for (int i = 0; i < 6; i++) {
        double a[3];
        for (int step = 0; step < 3; step++)
            descend(m[i], opt[i], w);
        CHECK_NEAR(mlc_optim_lr(opt[i]), 1e-3, 0);
        if (i % 2 == 0)
            continue;
        test_read(mlc_module_param(m[i - 1], "p"), a);
        CHECK_VALUES(mlc_module_param(m[i], "p"), 3, a, 0, 0);
    }
    CHECK_VALUES(mlc_module_param(m[3], "p"), 3, TRACES[3].want, 1e-9, 0);
    CHECK_VALUES(mlc_module_param(m[5], "p"), 3, TRACES[4].want, 1e-9, 0);
    CHECK_OK(ctx);
}

TEST(optim, odd_sizes_match_the_formula_on_each_isa_level)
{
    static const int64_t sizes[] = {1, 7, 17, 1031};
    static double        p[1031], w[1031];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 4; i++) {
            int64_t     n = sizes[i];
            mlc_tensor *weight = test_rand(ctx, MLC_F32, mlc_dims1(n), 2, 0.5, 1);
            test_read(weight, w);
            test_read(test_rand(ctx, MLC_F32, mlc_dims1(n), 1, 1, 2), p);
            mlc_module *m = bowl(ctx, MLC_F32, n, p);
            mlc_optim  *opt = mlc_adamw(m, 0.01);
            CHECK_EQ(descend(m, opt, weight), MLC_OK);
            for (int64_t k = 0; k < n; k++)                /* the first step is the sign of g  */
                p[k] = p[k] * (1 - 0.01 * 0.01) - 0.01;
            CHECK_VALUES(mlc_module_param(m, "p"), n, p, 1e-6, 1e-6);
        }
        CHECK_OK(ctx);
    }
}

/* ---- what a step touches ------------------------------------------------------------------ */

static mlc_module *two_layers(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 5));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 2));
    mlc_module_build(net);
    return net;
}

static void one_backward(mlc_module *net, uint64_t seed)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), seed, -1, 1);
    mlc_backward(mlc_mean(mlc_mul(mlc_forward(net, x), mlc_forward(net, x)), mlc_dims0(), false));
}

static mlc_status one_step(mlc_module *net, mlc_optim *opt, uint64_t seed)
{
    mlc_scope_begin(mlc_module_ctx(net));
    one_backward(net, seed);
    mlc_status s = mlc_optim_step(opt);
    mlc_scope_end(mlc_module_ctx(net));
    return s;
}

/* All parameters of net, one after the other; how many. */
static int snapshot(mlc_module *net, double *out)
{
    int            n = 0;
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) {
        test_read(it.tensor, out + n);
        n += (int)mlc_numel(it.tensor);
    }
    return n;
}

enum { TWO = 3 * 5 + 5 + 5 * 2 + 2 };

/* How many of the values from..to differ. */
static int changed(const double *a, const double *b, int from, int to)
{
    int n = 0;
    for (int i = from; i < to; i++)
        n += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return n;
}

TEST(optim, frozen_parameters_stay_bit_equal_and_the_rest_moves)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    CHECK_EQ(mlc_module_freeze(net, "0.*", true), MLC_OK);
    mlc_optim *opt = mlc_adamw(net, 0.1);
    CHECK_EQ(snapshot(net, before), TWO);
    for (uint64_t step = 0; step < 3; step++)
        CHECK_EQ(one_step(net, opt, step), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, 20), 0);            /* though AdamW would decay them    */
    CHECK_EQ(changed(before, after, 20, TWO), TWO - 20);
    CHECK_OK(ctx);
}

TEST(optim, freezing_after_the_optimizer_was_made_holds_too)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adam(net, 0.1);
    CHECK_EQ(one_step(net, opt, 1), MLC_OK);
    CHECK_EQ(mlc_module_freeze(net, "*.weight", true), MLC_OK);
    snapshot(net, before);
    CHECK_EQ(one_step(net, opt, 2), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, 15), 0);
    CHECK_EQ(changed(before, after, 15, 20), 5);
    CHECK_EQ(mlc_module_freeze(net, "*.weight", false), MLC_OK);
    CHECK_EQ(one_step(net, opt, 3), MLC_OK);
    snapshot(net, before);
    CHECK_EQ(changed(before, after, 0, TWO), TWO);
    CHECK_OK(ctx);
}

TEST(optim, parameters_without_a_gradient_are_skipped)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    snapshot(net, before);
    mlc_scope_begin(ctx);                                  /* only the last layer takes part   */
    mlc_tensor *h = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    mlc_backward(mlc_mean(mlc_forward(mlc_module_child(net, 2), h), mlc_dims0(), false));
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, 20), 0);
    CHECK_EQ(changed(before, after, 20, TWO), TWO - 20);
}

/* As PyTorch, which counts the steps of each parameter: the first update of Adam is lr sign(g), of
 * SGD it has no dampening, however many steps went by without a gradient. */
static void check_late_start(mlc_ctx *ctx, bool adam)
{
    double        before[TWO], after[TWO], g[15];
    mlc_module   *net = two_layers(ctx);
    mlc_sgd_desc  d = mlc_sgd_desc_make(0.1);
    d.momentum = d.dampening = 0.5;
    mlc_optim *opt = adam ? mlc_adam(net, 0.1) : mlc_sgd_ex(net, &d);
    mlc_scope_begin(ctx);
    mlc_tensor *h = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    mlc_backward(mlc_mean(mlc_forward(mlc_module_child(net, 2), h), mlc_dims0(), false));
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    one_backward(net, 2);
    snapshot(net, before);
    test_read(mlc_grad(mlc_module_param(net, "0.weight")), g);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    snapshot(net, after);
    for (int i = 0; i < 15; i++)
        CHECK_NEAR(after[i], before[i] - 0.1 * (adam ? (g[i] > 0 ? 1 : -1) : g[i]), 1e-5);
}

TEST(optim, parameters_that_get_their_first_gradient_late_start_as_on_the_first_step)
{
    mlc_ctx *ctx = test_ctx();
    check_late_start(ctx, false);
    check_late_start(ctx, true);
}

TEST(optim, a_step_without_any_backward_changes_nothing)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    CHECK_EQ(one_step(net, opt, 1), MLC_OK);
    snapshot(net, before);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);                 /* the gradients are stale now      */
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    CHECK_OK(ctx);
}

TEST(optim, a_learning_rate_of_0_changes_nothing_but_counts)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    CHECK_EQ(mlc_optim_set_lr(opt, 0), MLC_OK);
    snapshot(net, before);
    CHECK_EQ(one_step(net, opt, 1), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    CHECK_EQ(mlc_optim_steps(opt), 1);
    CHECK_NEAR(mlc_optim_lr(opt), 0, 0);
    CHECK_OK(ctx);
}

TEST(optim, learning_rates_that_are_none_are_refused_and_nothing_changes)
{
    const double bad[] = {-1, (double)NAN, (double)INFINITY};
    mlc_ctx     *ctx = test_ctx();
    mlc_optim   *opt = mlc_sgd(two_layers(ctx), 1e-3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(mlc_optim_set_lr(opt, bad[i]), MLC_ERR_ARG);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    CHECK_NEAR(mlc_optim_lr(opt), 1e-3, 1e-12);
    CHECK_EQ(mlc_optim_set_lr(opt, 0.5), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(opt), 0.5, 0);
}

/* ---- groups ------------------------------------------------------------------------------- */

TEST(optim, groups_have_their_own_rate_and_decay_and_the_last_match_wins)
{
    double         before[TWO], after[TWO];
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = two_layers(ctx);
    mlc_sgd_desc   d = mlc_sgd_desc_make(0.5);
    mlc_group_desc half = mlc_group_desc_make(), still = half;
    d.weight_decay = 0.1;
    half.lr_scale = 0.5;
    half.has_weight_decay = true;                          /* of 0                             */
    still.lr_scale = 0;
    mlc_optim *opt = mlc_sgd_ex(net, &d);
    CHECK_EQ(mlc_optim_group(opt, "*.bias", &half), MLC_OK);
    CHECK_EQ(mlc_optim_group(opt, "2.*", &still), MLC_OK);
    double grads[TWO];
    mlc_scope_begin(ctx);
    one_backward(net, 1);
    snapshot(net, before);
    test_read(mlc_grad(mlc_module_param(net, "0.weight")), grads);
    test_read(mlc_grad(mlc_module_param(net, "0.bias")), grads + 15);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    snapshot(net, after);
    for (int i = 0; i < 15; i++)
        CHECK_NEAR(after[i], before[i] - 0.5 * (grads[i] + 0.1 * before[i]), 1e-6);
    for (int i = 15; i < 20; i++)
        CHECK_NEAR(after[i], before[i] - 0.25 * grads[i], 1e-6);
    CHECK_EQ(changed(before, after, 20, TWO), 0);
}

TEST(optim, groups_keep_their_ratio_when_the_rate_changes)
{
    static const double start[] = {1, 1, 1}, w[] = {0.5, 0.5, 0.5}, want[] = {0.7, 0.7, 0.7};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F64, 3, start);
    mlc_optim          *opt = mlc_sgd(m, 0.01);
    mlc_group_desc      triple = mlc_group_desc_make();
    triple.lr_scale = 3;
    CHECK_EQ(mlc_optim_group(opt, "p", &triple), MLC_OK);
    CHECK_EQ(mlc_optim_set_lr(opt, 0.1), MLC_OK);
    CHECK_EQ(descend(m, opt, test_tensor(ctx, MLC_F64, mlc_dims1(3), w)), MLC_OK);
    CHECK_VALUES(mlc_module_param(m, "p"), 3, want, 1e-12, 0);
    CHECK_OK(ctx);
}

TEST(optim, groups_that_match_nothing_or_are_too_many_are_refused)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_optim     *opt = mlc_sgd(two_layers(ctx), 0.1);
    mlc_group_desc d = mlc_group_desc_make();
    CHECK_EQ(mlc_optim_group(opt, "7.*", &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "7.*");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (int i = 0; i < 15; i++)
        CHECK_EQ(mlc_optim_group(opt, "*", &d), MLC_OK);
    CHECK_EQ(mlc_optim_group(opt, "*", &d), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* ---- errors and states -------------------------------------------------------------------- */

TEST(optim, a_step_is_refused_while_an_error_stands)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    snapshot(net, before);
    one_backward(net, 1);
    mlc_raise(ctx, MLC_ERR_IO, "something else went wrong");
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    CHECK_EQ(mlc_optim_steps(opt), 0);
}

TEST(optim, after_a_failed_backward_the_step_waits_for_zero_grad)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_sgd(net, 0.1);
    snapshot(net, before);
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    mlc_tensor *h = mlc_forward(net, x);
    mlc_tensor *loss = mlc_sum(mlc_mul(h, h), mlc_dims0(), false);
    CHECK_EQ(mlc_copy_into(h, mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 2))), MLC_OK);
    CHECK_EQ(mlc_backward(loss), MLC_ERR_VALUE);           /* a saved tensor was overwritten   */
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    mlc_optim_zero_grad(opt);
    CHECK_EQ(one_step(net, opt, 2), MLC_OK);
    snapshot(net, after);
    CHECK(changed(before, after, 0, TWO) > 0);
}

TEST(optim, gradients_add_up_until_the_step_and_zero_grad_forgets_them)
{
    static const double w[] = {0.5, 0.5, 0.5}, twice[] = {2, -4, 6}, once[] = {1, -2, 3};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F64, 3, START);
    mlc_optim          *opt = mlc_sgd(m, 0.1);
    mlc_tensor         *weight = test_tensor(ctx, MLC_F64, mlc_dims1(3), w);
    mlc_tensor         *p = mlc_module_param(m, "p");
    mlc_backward(mlc_forward(m, weight));
    mlc_backward(mlc_forward(m, weight));
    CHECK_VALUES(mlc_grad(p), 3, twice, 1e-12, 0);
    mlc_optim_zero_grad(opt);
    CHECK(mlc_grad(p) == NULL);
    mlc_backward(mlc_forward(m, weight));
    CHECK_VALUES(mlc_grad(p), 3, once, 1e-12, 0);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK(mlc_grad(p) == NULL);
    CHECK_OK(ctx);
}

static mlc_optim *try_sgd(mlc_module *m, double lr, double momentum, double dampening,
                          double decay, bool nesterov)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(lr);
    d.momentum = momentum;
    d.dampening = dampening;
    d.weight_decay = decay;
    d.nesterov = nesterov;
    return mlc_sgd_ex(m, &d);
}

TEST(optim, sgd_refuses_values_that_make_no_sense)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = two_layers(ctx);
    CHECK(try_sgd(m, -1, 0, 0, 0, false) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(try_sgd(m, 0.1, -0.5, 0, 0, false) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(try_sgd(m, 0.1, 0.9, 0, -0.5, false) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(try_sgd(m, 0.1, 0, 0, 0, true) == NULL);
    CHECK_HAS(mlc_error(ctx), "nesterov");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(try_sgd(m, 0.1, 0.9, 0.1, 0, true) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_sgd(NULL, 0.1) == NULL);
    CHECK_OK(ctx);
}

TEST(optim, adam_refuses_values_that_make_no_sense)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *m = two_layers(ctx);
    mlc_adam_desc d = mlc_adam_desc_make(1e-3);
    d.beta1 = 1;
    CHECK(mlc_adam_ex(m, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "beta");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.beta1 = 0;
    d.beta2 = 1.5;
    CHECK(mlc_adamw_ex(m, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_adam(NULL, 0.1) == NULL);
    CHECK(mlc_adamw(NULL, 0.1) == NULL);
    CHECK_OK(ctx);
}

/* ---- LAMB --------------------------------------------------------------------------------- */

/* Of NumPy, by the formulas of timm's Lamb; without and with gradients clipped to a norm of 1. */
TEST(optim, lamb_follows_its_traces)
{
    static const double want[2][3] = {{.42009486, -1.4078654, 2.4007059},
                                      {.41878379, -1.40820402, 2.40159533}};
    FOR_EACH_ISA(ctx) {
        for (int clipped = 0; clipped < 2; clipped++) {
            mlc_tensor   *w = test_tensor(ctx, MLC_F64, mlc_dims1(3), WEIGHT);
            mlc_module   *m = bowl(ctx, MLC_F64, 3, START);
            mlc_optim    *opt = mlc_lamb(m, 0.1);
            mlc_clip_desc clip = mlc_clip_desc_make();
            if (clipped) clip.norm = 1;
            CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
            for (int step = 0; step < 3; step++)
                CHECK_EQ(descend(m, opt, w), MLC_OK);
            CHECK_VALUES(mlc_module_param(m, "p"), 3, want[clipped], 1e-7, 0);
        }
        CHECK_OK(ctx);
    }
}

/* From moments of 0 the step of Adam is lr u without the decay: u is had from it, and with it that
 * of LAMB. A parameter whose group has no decay makes the step of Adam. */
TEST(optim, lamb_makes_the_update_of_each_parameter_as_long_as_it_is)
{
    static const int first[] = {0, 15, 20, 30, TWO};       /* 0.weight, 0.bias, 2.weight, 2.bias */
    const double     lr = 0.05, decay = 0.01;
    double           before[2][TWO], adam[TWO], lamb[TWO];
    FOR_EACH_ISA(ctx) {
        mlc_module    *net[2] = {two_layers(ctx), NULL};
        mlc_adam_desc  a = mlc_adam_desc_make(lr);
        mlc_group_desc none = mlc_group_desc_make();
        a.eps = mlc_lamb_desc_make(lr).eps;
        none.has_weight_decay = true;
        net[1] = mlc_module_clone(net[0]);
        mlc_optim *opt[2] = {mlc_adam_ex(net[0], &a), mlc_lamb(net[1], lr)};
        CHECK_EQ(mlc_optim_group(opt[1], "2.bias", &none), MLC_OK);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(snapshot(net[i], before[i]), TWO);
            CHECK_EQ(one_step(net[i], opt[i], 7), MLC_OK);
        }
        CHECK(memcmp(before[0], before[1], sizeof before[0]) == 0);
        snapshot(net[0], adam);
        snapshot(net[1], lamb);
        for (int k = 0; k < 4; k++) {
            double p = 0, u = 0, update[TWO];
            for (int i = first[k]; i < first[k + 1]; i++) {
                update[i] = (before[0][i] - adam[i]) / lr + (k < 3 ? decay * before[0][i] : 0);
                p += before[0][i] * before[0][i], u += update[i] * update[i];
            }
            for (int i = first[k]; i < first[k + 1]; i++)
                CHECK_NEAR(before[0][i] - lamb[i], lr * (k < 3 ? sqrt(p / u) : 1) * update[i],
                           2e-7);
        }
        CHECK_OK(ctx);
    }
}

TEST(optim, lamb_refuses_what_adamw_refuses)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *m = two_layers(ctx);
    mlc_adam_desc d = mlc_lamb_desc_make(1e-3);
    CHECK(mlc_lamb_ex(m, NULL) == NULL);
    CHECK_STR(mlc_error(ctx), "lamb: desc is NULL; start from mlc_lamb_desc_make(lr)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.beta2 = 1;
    CHECK(mlc_lamb_ex(m, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "lamb: beta2 is 1; it must be at least 0 and below 1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_lamb(NULL, 0.1) == NULL && mlc_lamb_ex(NULL, &d) == NULL);
    CHECK_OK(ctx);
}

/* ---- state that survives surgery ---------------------------------------------------------- */

TEST(optim, values_and_state_survive_a_rebuild)
{
    double      plain[TWO], rebuilt[TWO];
    double     *results[] = {plain, rebuilt};
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = two_layers(ctx);
        mlc_optim  *opt = mlc_adamw(net, 0.05);
        for (uint64_t step = 0; step < 6; step++) {
            CHECK_EQ(one_step(net, opt, step), MLC_OK);
            if (i == 1 && step == 2)
                CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        }
        CHECK_EQ(mlc_optim_steps(opt), 6);
        CHECK_EQ(snapshot(net, results[i]), TWO);
        CHECK_OK(ctx);
    }
    CHECK_EQ(changed(plain, rebuilt, 0, TWO), 0);
}

TEST(optim, a_layer_added_by_surgery_is_trained_and_the_old_ones_keep_their_state)
{
    double      before[64], after[64];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adam(net, 0.05);
    CHECK_EQ(one_step(net, opt, 1), MLC_OK);
    CHECK_EQ(snapshot(net, before), TWO);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 2, 2)), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    CHECK_EQ(snapshot(net, after), TWO + 6);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    memcpy(before, after, sizeof before);
    CHECK_EQ(one_step(net, opt, 2), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, TWO, TWO + 6), 6);
    CHECK_OK(ctx);
}

TEST(optim, freeing_the_optimizer_leaves_the_module_whole)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    CHECK_EQ(one_step(net, opt, 1), MLC_OK);
    snapshot(net, before);
    mlc_optim_free(opt);
    mlc_optim_free(NULL);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    opt = mlc_sgd(net, 0.1);
    CHECK_EQ(one_step(net, opt, 2), MLC_OK);
    CHECK_OK(ctx);
}

/* ---- gradients that are not whole ---------------------------------------------------------- */

TEST(optim, zero_grad_of_one_optimizer_does_not_excuse_another)
{
    double      before[TWO], after[TWO];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx), *a = mlc_module_child(net, 0), *b = mlc_module_child(net, 2);
    mlc_optim  *of_a = mlc_sgd(a, 0.1), *of_b = mlc_sgd(b, 0.1);
    snapshot(net, before);
    mlc_scope_begin(ctx);
    mlc_tensor *h = mlc_forward(a, test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1));
    mlc_tensor *loss = mlc_sum(mlc_forward(b, mlc_mul(h, h)), mlc_dims0(), false);
    CHECK_EQ(mlc_copy_into(h, mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 5))), MLC_OK);
    CHECK_EQ(mlc_backward(loss), MLC_ERR_VALUE);           /* between b and a                  */
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    mlc_optim_zero_grad(of_a);
    CHECK_EQ(mlc_optim_step(of_b), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_optim_step(of_a), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO), 0);
    mlc_optim_zero_grad(of_b);
    CHECK_EQ(mlc_optim_step(of_b), MLC_OK);
    CHECK_EQ(one_step(net, of_b, 2), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 20, TWO), TWO - 20);
    CHECK_OK(ctx);
}

TEST(optim, zero_grad_reaches_a_child_that_was_added_later)
{
    static const double four[] = {4, 4, 4};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_sgd(net, 0.1);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 2, 3)), MLC_OK);
    for (int i = 0; i < 3; i++) {
        mlc_optim_zero_grad(opt);
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
        CHECK_EQ(mlc_backward_from(mlc_forward(net, x), NULL), MLC_OK);
        CHECK_VALUES(mlc_grad(mlc_module_param(net, "3.bias")), 3, four, 0, 0);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

TEST(optim, gradients_pending_over_a_rebuild_block_the_step_until_zero_grad)
{
    double      before[TWO + 6], after[TWO + 6];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    one_backward(net, 1);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 2, 2)), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    snapshot(net, before);
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "rebuild");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO + 6), 0);
    mlc_optim_zero_grad(opt);
    CHECK_EQ(one_step(net, opt, 2), MLC_OK);
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, TWO + 6), TWO + 6);
    CHECK_OK(ctx);
}

/* ---- denormals: valgrind knows no mode that flushes them, so it skips this group ------------- */

/* A step of Adam on 40,000 elements (more than one thread takes), whose gradient is w. */
static void adam_step(mlc_module *m, mlc_optim *opt, mlc_tensor *w)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    mlc_scope_begin(ctx);
    mlc_tensor *p = mlc_module_param(m, "p");
    CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(w, p), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    mlc_scope_end(ctx);
}

/* p after a gradient of 1e-18, `steps` of 0, and one more from p = 0. */
static void decay(mlc_ctx *ctx, double beta1, int steps, double *p)
{
    enum { N = 40000 };
    mlc_adam_desc d = mlc_adam_desc_make(1);
    memset(p, 0, N * sizeof *p);
    d.beta1 = beta1;
    d.beta2 = 0.5;
    d.eps = 1e-30;
    mlc_module *m = bowl(ctx, MLC_F32, N, p);
    mlc_optim  *opt = mlc_adam_ex(m, &d);
    mlc_tensor *none = mlc_zeros(ctx, MLC_F32, mlc_dims1(N));
    adam_step(m, opt, mlc_full(ctx, MLC_F32, mlc_dims1(N), 1e-18));
    for (int i = 0; i < steps; i++)
        adam_step(m, opt, none);
    CHECK_EQ(mlc_copy_into(mlc_module_param(m, "p"), none), MLC_OK);
    adam_step(m, opt, none);
    test_read(mlc_module_param(m, "p"), p);
    CHECK_OK(ctx);
}

#if defined(__SSE2__) || defined(__aarch64__)
TEST(flush, moments_under_zero_gradients_become_zero_and_never_denormal)
{
    static double p[40000];
    FOR_EACH_ISA(ctx) {
        int first = 0, second = 0;
        decay(ctx, 0.5, 70, p);                            /* m: 4e-40, or 0                   */
        for (int i = 0; i < 40000; i++)
            first += p[i] != 0;                            /* m / eps                          */
        CHECK_EQ(first, 0);
        decay(ctx, 0.99, 14, p);                           /* v: 3e-41, or 0; m: 9e-21         */
        for (int i = 0; i < 40000; i++)
            second += !(p[i] < -1e9);                      /* m / (sqrt v + eps)               */
        CHECK_EQ(second, 0);
    }
}
#endif

/* ---- clipping ------------------------------------------------------------------------------ */

/* The gradient of bowl with weight w at p is 2 w p: p [1.5,2], w 1 give [3,4], of norm 5.       */
static mlc_optim *clipped(mlc_ctx *ctx, mlc_module **m, double norm, double value)
{
    static const double start[] = {1.5, 2};
    const mlc_clip_desc d = {norm, value, false};
    *m = bowl(ctx, MLC_F64, 2, start);
    mlc_optim *opt = mlc_sgd(*m, 1);
    CHECK_EQ(mlc_optim_clip(opt, &d), MLC_OK);
    return opt;
}

TEST(optim, clips_a_gradient_of_3_4_to_1_as_pytorch_does)
{
    const double want[] = {1.5 - 3 / (5 + 1e-6), 2 - 4 / (5 + 1e-6)};
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *m;
    mlc_optim   *opt = clipped(ctx, &m, 1, INF);
    CHECK(isnan(mlc_optim_grad_norm(opt)));
    CHECK_STR(mlc_error(ctx), "optim_grad_norm: no step has measured the norm yet; call "
                              "mlc_optim_clip or mlc_optim_scaler, and then mlc_optim_step");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(descend(m, opt, mlc_ones(ctx, MLC_F64, mlc_dims1(2))), MLC_OK);
    CHECK_NEAR(mlc_optim_grad_norm(opt), 5, 1e-12);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, want, 1e-12, 0);
    CHECK_EQ(mlc_optim_clip(opt, NULL), MLC_OK);
    CHECK_OK(ctx);
}

TEST(optim, does_not_touch_a_short_gradient_and_clamps_elements)
{
    const double whole[] = {-1.5, -2}, some[] = {-1.5, 2 - 3.5};
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *m;
    mlc_optim   *opt = clipped(ctx, &m, 6, INF);
    CHECK_EQ(descend(m, opt, mlc_ones(ctx, MLC_F64, mlc_dims1(2))), MLC_OK);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, whole, 0, 0);
    opt = clipped(ctx, &m, INF, 3.5);
    CHECK_EQ(descend(m, opt, mlc_ones(ctx, MLC_F64, mlc_dims1(2))), MLC_OK);
    CHECK_NEAR(mlc_optim_grad_norm(opt), 5, 1e-12);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, some, 0, 0);
    CHECK_OK(ctx);
}

TEST(optim, clips_each_parameter_by_its_own_norm)
{
    const mlc_clip_desc each = {0.5, INF, true};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *net = mlc_nn_sequential(ctx);
    double              before[8], after[8], moved[2] = {0, 0};
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 2));
    mlc_optim  *opt = mlc_sgd(net, 1);
    mlc_tensor *p[2] = {mlc_module_param(net, "0.weight"), mlc_module_param(net, "0.bias")};
    CHECK_EQ(mlc_optim_clip(opt, &each), MLC_OK);
    test_read(p[0], before);
    test_read(p[1], before + 6);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 1, 1, 2);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(net, x), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    test_read(p[0], after);
    test_read(p[1], after + 6);
    for (int i = 0; i < 8; i++)
        moved[i / 6] += (after[i] - before[i]) * (after[i] - before[i]);
    CHECK_NEAR(sqrt(moved[0]), 0.5, 1e-5);
    CHECK_NEAR(sqrt(moved[1]), 0.5, 1e-5);
    CHECK_OK(ctx);
}

TEST(optim, gradients_that_are_not_finite_are_an_error_that_changes_nothing)
{
    static const double start[] = {1.5, 2};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m;
    mlc_optim          *opt = clipped(ctx, &m, 1, INF);
    double              bad[] = {1, 0};
    bad[1] = (double)NAN;
    mlc_tensor *w = test_tensor(ctx, MLC_F64, mlc_dims1(2), bad);
    CHECK_EQ(mlc_backward(mlc_forward(m, w)), MLC_OK);
    CHECK_EQ(step_told(opt, m), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "the norm of the gradients is nan, nothing was changed");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, start, 0, 0);
    CHECK_EQ(mlc_optim_steps(opt), 0);
    CHECK_EQ(descend(m, opt, mlc_ones(ctx, MLC_F64, mlc_dims1(2))), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 1);
}

/* ---- several backwards to an update --------------------------------------------------------- */

TEST(optim, three_calls_make_one_update_with_the_mean)
{
    static const double start[] = {1.5, 2};
    const double        mean = (0.5 + 1 + 3) / 3;
    const double        want[] = {1.5 - mean * 3 * 0.1, 2 - mean * 4 * 0.1};
    static const double weight[] = {0.5, 1, 3};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F64, 2, start);
    mlc_optim          *opt = mlc_sgd(m, 0.1);
    CHECK_EQ(mlc_optim_accumulate(opt, 3), MLC_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_VALUES(mlc_module_param(m, "p"), 2, start, 0, 0);
        CHECK_EQ(descend(m, opt, mlc_full(ctx, MLC_F64, mlc_dims1(2), weight[i])), MLC_OK);
        CHECK_EQ(mlc_optim_steps(opt), i / 2);
    }
    CHECK_VALUES(mlc_module_param(m, "p"), 2, want, 1e-12, 0);
    CHECK_OK(ctx);
}

TEST(optim, flush_makes_the_update_of_the_calls_that_there_were)
{
    static const double start[] = {1.5, 2};
    const double        mean = (0.5 + 1) / 2;
    const double        want[] = {1.5 - mean * 3 * 0.1, 2 - mean * 4 * 0.1};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F64, 2, start);
    mlc_optim          *opt = mlc_sgd(m, 0.1);
    CHECK_EQ(mlc_optim_flush(opt), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, 3), MLC_OK);
    CHECK_EQ(mlc_optim_flush(opt), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(descend(m, opt, mlc_full(ctx, MLC_F64, mlc_dims1(2), i ? 1 : 0.5)), MLC_OK);
    CHECK_EQ(mlc_raise(ctx, MLC_ERR_IO, "mine"), MLC_ERR_IO);
    CHECK_EQ(mlc_optim_flush(opt), MLC_ERR_IO);
    mlc_error_clear(ctx);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, start, 0, 0);
    CHECK_EQ(mlc_optim_flush(opt), MLC_OK);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, want, 1e-12, 0);
    CHECK_EQ(mlc_optim_steps(opt), 1);
    CHECK_EQ(mlc_optim_flush(opt), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 1);
    for (int i = 0; i < 3; i++)        /* a whole mean again                                   */
        CHECK_EQ(descend(m, opt, mlc_ones(ctx, MLC_F64, mlc_dims1(2))), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 2);
    CHECK_EQ(mlc_optim_flush(NULL), MLC_ERR_ARG);
    CHECK_OK(ctx);
}

/* ---- loss scaling ---------------------------------------------------------------------------- */

typedef struct scaling {
    double  scale;
    int64_t good;
    bool    bad;
    double  then;
    int64_t then_good;
} scaling;

/* One step on a scaled sum(w p^2), w NaN or infinite where it is to be skipped.                  */
static mlc_status scaled_step(mlc_module *m, mlc_optim *opt, double w)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    mlc_scope_begin(ctx);
    mlc_backward(mlc_optim_scaled(opt, mlc_forward(m, mlc_full(ctx, MLC_F32, mlc_dims1(2), w))));
    mlc_status s = mlc_optim_step(opt);
    mlc_scope_end(ctx);
    return s;
}

TEST(optim, scales_follow_pytorchs_traces)
{
    static const scaling TRACE[] = {
        {8, 0, false, 8, 1}, {8, 1, false, 16, 0}, {8, 1, true, 4, 0}, {2e38, 1, false, 2e38, 0},
        {1e-40, 0, true, 6e-41, 0},    /* PyTorch goes on to 0, from where no scale grows         */
    };
    static const double start[] = {1.5, 2};
    for (size_t i = 0; i < sizeof TRACE / sizeof *TRACE; i++) {
        const scaling   *t = &TRACE[i];
        mlc_ctx         *ctx = test_ctx();
        mlc_module      *m = bowl(ctx, MLC_F64, 2, start);
        mlc_optim       *opt = mlc_sgd(m, 1e-3);
        mlc_scaler_desc  d = mlc_scaler_desc_make();
        mlc_scaler_state s = {t->scale, t->good, 0, 0};
        d.interval = 2;
        d.floor = 6e-41;
        d.cap = 3e38;
        CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
        CHECK_NEAR(mlc_optim_scaler_state(opt).scale, 65536, 0);
        CHECK_EQ(mlc_optim_scaler_resume(opt, &s), MLC_OK);
        mlc_tensor *w = mlc_full(ctx, MLC_F64, mlc_dims1(2), t->bad ? (double)INFINITY : 1);
        mlc_backward(mlc_optim_scaled(opt, mlc_forward(m, w)));
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        s = mlc_optim_scaler_state(opt);
        CHECK_NEAR(s.scale, t->then, t->then * 1e-12);
        CHECK_EQ(s.good, t->then_good);
        CHECK_EQ(s.skipped, t->bad);
        CHECK_OK(ctx);
    }
}

static mlc_tensor *sum_of(mlc_module *net)
{
    return mlc_sum_all(mlc_forward(net, mlc_ones(mlc_module_ctx(net), MLC_F32, mlc_dims2(1, 1))));
}

static mlc_tensor *sum_again(void *user) { return sum_of((mlc_module *)user); }

/* The generator's loss goes through the discriminator, which learns from its own alone: d loss /
 * d bias is 1, the rate 1. With the first call, and later; collected gradients stay. */
TEST(optim, minimize_begins_without_the_gradients_that_another_loss_has_left)
{
    for (int way = 0; way < 3; way++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *d = mlc_nn_linear(ctx, 1, 1);
        mlc_optim  *opt = mlc_sgd(d, 1);
        CHECK_EQ(mlc_module_build(d), MLC_OK);
        mlc_tensor *bias = mlc_module_param(d, "bias");
        double      was = mlc_item(bias);
        if (way == 2) mlc_optim_accumulate(opt, 2);
        for (int step = 0; step < 3; step++) {
            CHECK_EQ(mlc_backward(sum_of(d)), MLC_OK);
            CHECK(mlc_grad(bias) != NULL);
            for (int call = 0; call < (way == 2 ? 2 : 1); call++)
                CHECK_EQ(way == 1 ? mlc_optim_step_with(opt, sum_again, d, NULL) :
                                    mlc_optim_minimize(opt, sum_of(d)), MLC_OK);
            CHECK_NEAR(was - mlc_item(bias), 1, 1e-6);
            was = mlc_item(bias);
        }
        CHECK_EQ(mlc_backward(sum_of(d)), MLC_OK);         /* by hand they add up              */
        CHECK_EQ(mlc_backward(sum_of(d)), MLC_OK);
        if (way == 2) mlc_optim_accumulate(opt, 1);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_NEAR(was - mlc_item(bias), 2, 1e-6);
        CHECK_OK(ctx);
    }
}

/* ---- two networks, two optimizers ------------------------------------------------------------ */

enum { PAIR = 24, REAL = 6 };          /* room for the parameters of one; rows of a batch      */

typedef struct pair {                  /* a generator and a discriminator                      */
    mlc_ctx    *ctx;
    mlc_module *g, *d;
    double      sum[2][PAIR];          /* of gradients by hand, of g and of d                  */
} pair;

static pair pair_open(void)
{
    pair p;
    memset(&p, 0, sizeof p);
    p.ctx = test_ctx();
    mlc_seed(p.ctx, 7);
    p.g = MLC_SEQUENTIAL(p.ctx, mlc_nn_linear(p.ctx, 3, 2), mlc_nn_tanh(p.ctx),
                         mlc_nn_linear(p.ctx, 2, 2));
    p.d = MLC_SEQUENTIAL(p.ctx, mlc_nn_linear(p.ctx, 2, 4), mlc_nn_tanh(p.ctx),
                         mlc_nn_linear(p.ctx, 4, 1));
    CHECK_EQ(mlc_module_build(p.g), MLC_OK);
    CHECK_EQ(mlc_module_build(p.d), MLC_OK);
    return p;
}

static mlc_tensor *fakes(const pair *p, uint64_t round)
{
    return mlc_forward(p->g, test_rand(p->ctx, MLC_F32, mlc_dims2(REAL, 3), 100 + round, -1, 1));
}

static mlc_tensor *judged(const pair *p, mlc_tensor *x, double as)
{
    return mlc_bce_with_logits(mlc_forward(p->d, x),
                               mlc_full(p->ctx, MLC_F32, mlc_dims2(REAL, 1), as));
}

static mlc_tensor *loss_of_d(const pair *p, mlc_tensor *fake, uint64_t round)
{
    mlc_tensor *real = test_rand(p->ctx, MLC_F32, mlc_dims2(REAL, 2), 200 + round, 1, 2);
    return mlc_add(judged(p, real, 1), judged(p, mlc_detach(fake), 0));
}

/* Adds the gradients of m to sum; those of both networks are stale then. */
static void take_gradients(const pair *p, mlc_module *m, double *sum)
{
    mlc_module *both[] = {p->g, p->d};
    double      v[PAIR];
    for (int i = 0; i < 2; i++) {
        int            n = 0;
        mlc_param_iter it = mlc_param_iter_make(both[i]);
        while (mlc_param_next(&it)) {
            const int64_t numel = mlc_numel(it.tensor);
            if (both[i] == m) test_read(mlc_grad(it.tensor), v);
            for (int64_t k = 0; k < numel && both[i] == m; k++) sum[n++] += v[k];
            mlc_zero_grad(it.tensor);
        }
    }
}

/* w -= rate times sum, which is 0 then. */
static void step_by_hand(mlc_module *m, double rate, double *sum)
{
    int            n = 0;
    mlc_param_iter it = mlc_param_iter_make(m);
    while (mlc_param_next(&it)) {
        double v[PAIR];
        float  w[PAIR];
        test_read(it.tensor, v);
        for (int64_t k = 0; k < mlc_numel(it.tensor); k++) w[k] = (float)(v[k] - rate * sum[n++]);
        mlc_write(it.tensor, w, (size_t)mlc_numel(it.tensor) * sizeof *w);
    }
    memset(sum, 0, PAIR * sizeof *sum);
}

static void round_by_hand(pair *p, uint64_t round, int collects)
{
    const bool step = round % (uint64_t)collects == (uint64_t)collects - 1;
    mlc_scope_begin(p->ctx);
    mlc_tensor *fake = fakes(p, round);
    CHECK_EQ(mlc_backward(loss_of_d(p, fake, round)), MLC_OK);
    take_gradients(p, p->d, p->sum[1]);
    if (step) step_by_hand(p->d, 0.3 / collects, p->sum[1]);
    CHECK_EQ(mlc_backward(judged(p, fakes(p, round), 1)), MLC_OK);
    take_gradients(p, p->g, p->sum[0]);
    if (step) step_by_hand(p->g, 0.3 / collects, p->sum[0]);
    CHECK_EQ(mlc_scope_end(p->ctx), MLC_OK);
}

/* The loss of g goes through d. freezes: d has no gradients of it. */
static void round_of_two(const pair *p, mlc_optim *og, mlc_optim *od, uint64_t round, bool freezes)
{
    mlc_scope_begin(p->ctx);
    mlc_tensor *fake = fakes(p, round);
    CHECK_EQ(mlc_optim_minimize(od, loss_of_d(p, fake, round)), MLC_OK);
    if (freezes) CHECK_EQ(mlc_module_freeze(p->d, NULL, true), MLC_OK);
    CHECK_EQ(mlc_optim_minimize(og, judged(p, fake, 1)), MLC_OK);
    if (!mlc_optim_pending(od))        /* else there is what it has collected                  */
        CHECK_EQ(mlc_grad(mlc_module_param(p->d, "0.weight")) == NULL, freezes);
    if (freezes) CHECK_EQ(mlc_module_freeze(p->d, NULL, false), MLC_OK);
    CHECK_EQ(mlc_scope_end(p->ctx), MLC_OK);
}

/* A GAN: by minimize alone; frozen meanwhile; so that both collect two batches. */
TEST(optim, of_two_networks_each_learns_from_its_own_loss)
{
    for (int way = 0; way < 3; way++) {
        const int  collects = way == 2 ? 2 : 1;
        double     want[PAIR], got[PAIR];
        pair       hand = pair_open(), p = pair_open();
        mlc_optim *og = mlc_sgd(p.g, 0.3), *od = mlc_sgd(p.d, 0.3);
        CHECK_EQ(mlc_optim_accumulate(og, collects), MLC_OK);
        CHECK_EQ(mlc_optim_accumulate(od, collects), MLC_OK);
        for (uint64_t round = 0; round < 6; round++) {
            round_by_hand(&hand, round, collects);
            round_of_two(&p, og, od, round, way > 0);
        }
        for (int net = 0; net < 2; net++) {
            const int n = snapshot(net ? hand.d : hand.g, want);
            CHECK_EQ(snapshot(net ? p.d : p.g, got), n);
            for (int i = 0; i < n; i++) CHECK_NEAR(got[i], want[i], 2e-6);
        }
        CHECK_OK(p.ctx);
        CHECK_OK(hand.ctx);
    }
}

/* Where steps are made inside backward, that of another loss makes one, unless it is frozen. */
TEST(optim, a_frozen_network_makes_no_step_inside_the_backward_of_another_loss)
{
    enum { WIDE = 256 };
    for (int freezes = 0; freezes < 2; freezes++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *d = mlc_nn_linear(ctx, WIDE, WIDE);
        mlc_optim  *od = mlc_sgd(d, 0.5);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(8, WIDE), 1, -1, 1);
        CHECK_EQ(mlc_optim_in_backward(od, true), MLC_OK);
        mlc_scope_begin(ctx);
        mlc_tensor *w = mlc_module_param(d, "weight"), *was = mlc_copy(mlc_detach(w));
        if (freezes) CHECK_EQ(mlc_module_freeze(d, NULL, true), MLC_OK);
        mlc_set_requires_grad(x, true);
        CHECK_EQ(mlc_backward(mlc_sum_all(mlc_forward(d, x))), MLC_OK);
        CHECK(mlc_grad(x) != NULL);
        CHECK_EQ(mlc_optim_step(od), MLC_OK);      /* of a device that makes none in backward  */
        CHECK_EQ(mlc_item(mlc_sum_all(mlc_abs(mlc_sub(mlc_detach(w), was)))) == 0, freezes);
        CHECK_EQ(mlc_module_freeze(d, NULL, false), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

TEST(optim, minimize_is_backward_of_the_scaled_loss_and_a_step)
{
    static const double start[] = {1.5, 2};
    for (int scaled = 0; scaled < 2; scaled++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *m[2] = {bowl(ctx, MLC_F32, 2, start), bowl(ctx, MLC_F32, 2, start)};
        mlc_optim  *opt[2] = {mlc_adamw(m[0], 0.1), mlc_adamw(m[1], 0.1)};
        double      p[2][2];
        for (int k = 0; k < 2; k++)
            if (scaled) {
                mlc_scaler_desc d = mlc_scaler_desc_make();
                d.init = 1024;
                CHECK_EQ(mlc_optim_scaler(opt[k], &d), MLC_OK);
            }
        for (int step = 0; step < 3; step++) {
            CHECK_EQ(scaled_step(m[0], opt[0], 1), MLC_OK);
            mlc_scope_begin(ctx);
            mlc_tensor *loss = mlc_forward(m[1], mlc_ones(ctx, MLC_F32, mlc_dims1(2)));
            CHECK_EQ(mlc_optim_minimize(opt[1], loss), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        for (int k = 0; k < 2; k++) test_read(mlc_module_param(m[k], "p"), p[k]);
        CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0 && p[0][0] != start[0]);
        CHECK_EQ(mlc_optim_steps(opt[1]), 3);
        CHECK_EQ(mlc_optim_minimize(NULL, NULL), MLC_ERR_ARG);
        CHECK_EQ(mlc_optim_minimize(opt[1], NULL), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "optim_minimize: the loss is NULL");
        mlc_error_clear(ctx);
        mlc_raise(ctx, MLC_ERR_NOMEM, "a forward without memory");     /* what made no loss    */
        CHECK_EQ(mlc_optim_minimize(opt[1], NULL), MLC_ERR_NOMEM);
        CHECK_STR(mlc_error(ctx), "a forward without memory");
        mlc_error_clear(ctx);
        mlc_ctx    *other = mlc_ctx_create(NULL);
        mlc_tensor *w = mlc_ones(other, MLC_F32, mlc_dims1(1));
        mlc_set_requires_grad(w, true);
        CHECK_EQ(mlc_optim_minimize(opt[1], mlc_mul(w, w)), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "belongs to another context");
        CHECK(mlc_grad(w) == NULL);
        mlc_error_clear(ctx);
        mlc_ctx_free(other);
        CHECK_EQ(mlc_optim_steps(opt[1]), 3);
    }
}

TEST(optim, of_a_module_without_parameters_is_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_relu(ctx));
    CHECK(mlc_sgd(net, 0.1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "sgd: the module has no parameters; add its layers before");
    CHECK(mlc_adam(net, 0.1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "adam: the module has no parameters");
    CHECK(mlc_adamw(net, 0.1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "adamw: the module has no parameters");
    mlc_module_add(net, mlc_nn_linear(ctx, 1, 1));
    CHECK(mlc_adam(net, 0.1) != NULL);
    CHECK_OK(ctx);
}

/* Which are to be trained later. */
TEST(optim, of_frozen_parameters_alone_trains_them_when_they_are_no_longer_frozen)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 1, 1);
    CHECK_EQ(mlc_module_freeze(net, NULL, true), MLC_OK);
    mlc_optim  *opt = mlc_sgd(net, 1);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_module_freeze(net, NULL, false), MLC_OK);
    mlc_tensor  *bias = mlc_module_param(net, "bias");
    const double was = mlc_item(bias);
    CHECK_EQ(mlc_optim_minimize(opt, sum_of(net)), MLC_OK);
    CHECK_NEAR(was - mlc_item(bias), 1, 1e-6);
    CHECK_OK(ctx);
}

TEST(optim, a_loss_that_reaches_none_of_its_parameters_is_an_error_of_minimize)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 1, 1), *other = mlc_nn_linear(ctx, 1, 1);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    mlc_tensor *bias = mlc_module_param(net, "bias");
    const double was = mlc_item(bias);
    for (int way = 0; way < 3; way++) {
        if (way == 2) CHECK_EQ(mlc_optim_accumulate(opt, 2), MLC_OK);
        CHECK_EQ(way == 1 ? mlc_optim_step_with(opt, sum_again, other, NULL) :
                            mlc_optim_minimize(opt, sum_of(other)), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), way == 1 ?
                  "optim_step_with: the loss reaches none of the optimizer's 2 parameters" :
                  "optim_minimize: the loss reaches none of the optimizer's 2 parameters; make it");
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_optim_steps(opt), 0);
        CHECK_EQ(mlc_optim_pending(opt), 0);
        CHECK(mlc_item(bias) == was);
    }
    CHECK_EQ(mlc_optim_accumulate(opt, 1), MLC_OK);
    CHECK_EQ(mlc_backward(sum_of(other)), MLC_OK);         /* by hand it is none               */
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK(mlc_item(bias) == was);
    CHECK_EQ(mlc_optim_minimize(opt, mlc_add(sum_of(other), mlc_sum_all(bias))), MLC_OK);
    CHECK(mlc_item(bias) < was);       /* one of two is enough                                 */
    CHECK_OK(ctx);
}

TEST(optim, minimize_of_frozen_parameters_alone_changes_nothing_and_is_no_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 1, 1), *other = mlc_nn_linear(ctx, 1, 1);
    mlc_optim  *opt = mlc_sgd(net, 1);
    mlc_tensor *bias = mlc_module_param(net, "bias");
    const double was = mlc_item(bias);
    CHECK_EQ(mlc_module_freeze(net, NULL, true), MLC_OK);
    CHECK_EQ(mlc_optim_minimize(opt, mlc_add(sum_of(net), sum_of(other))), MLC_OK);
    CHECK(mlc_item(bias) == was);
    CHECK_OK(ctx);
}

/* The matrix has no gradient after the backward that has stepped it. */
TEST(optim, minimize_of_one_matrix_that_is_stepped_inside_backward_is_no_error)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(64, 64);
    d.no_bias = true;
    mlc_module     *net = mlc_nn_linear_ex(ctx, &d);
    mlc_optim      *opt = mlc_sgd(net, 1);
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    mlc_tensor  *w = mlc_module_param(net, "weight");
    const double was = mlc_item(mlc_sum_all(w));
    mlc_tensor  *y = mlc_forward(net, mlc_ones(ctx, MLC_F32, mlc_dims2(1, 64)));
    CHECK_EQ(mlc_optim_minimize(opt, mlc_sum_all(y)), MLC_OK);
    CHECK_NEAR(was - mlc_item(mlc_sum_all(w)), 4096, 1e-2);
    CHECK_OK(ctx);
}

/* Storms of what is no number: nothing is poisoned, and afterwards training goes on as if they had
 * not been, but for the scale. */
TEST(optim, a_storm_leaves_parameters_moments_and_counters_alone)
{
    static const int    length[] = {1, 5, 49};
    static const double start[] = {1.5, 2};
    const double        bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    double              calm[2], p[2];
    for (int i = 0; i < 9; i++) {
        mlc_ctx        *ctx = test_ctx();
        mlc_module     *m[2] = {bowl(ctx, MLC_F32, 2, start), bowl(ctx, MLC_F32, 2, start)};
        mlc_optim      *opt[2] = {mlc_adamw(m[0], 0.1), mlc_adamw(m[1], 0.1)};
        mlc_scaler_desc d = mlc_scaler_desc_make();
        CHECK_EQ(mlc_optim_scaler(opt[1], &d), MLC_OK);
        for (int step = 0; step < 4; step++) {
            CHECK_EQ(scaled_step(m[0], opt[0], 1), MLC_OK);
            for (int k = 0; step == 2 && k < length[i / 3]; k++)
                CHECK_EQ(scaled_step(m[1], opt[1], bad[i % 3]), MLC_OK);
            CHECK_EQ(scaled_step(m[1], opt[1], 1), MLC_OK);
        }
        test_read(mlc_module_param(m[0], "p"), calm);
        test_read(mlc_module_param(m[1], "p"), p);
        CHECK(memcmp(calm, p, sizeof p) == 0);             /* scales are powers of two            */
        CHECK_EQ(mlc_optim_steps(opt[1]), 4);
        CHECK_EQ(mlc_optim_scaler_state(opt[1]).skipped, length[i / 3]);
        CHECK_EQ(mlc_optim_scaler_state(opt[1]).skipped_row, 0);
        CHECK_OK(ctx);
    }
}

TEST(optim, too_many_skipped_steps_in_a_row_are_an_error)
{
    static const double start[] = {1.5, 2};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 2, start);
    mlc_optim          *opt = mlc_adamw(m, 0.1);
    mlc_scaler_desc     d = mlc_scaler_desc_make();
    d.patience = 3;
    CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
    CHECK_EQ(scaled_step(m, opt, (double)NAN), MLC_OK);
    CHECK_EQ(scaled_step(m, opt, (double)NAN), MLC_OK);
    mlc_backward(mlc_optim_scaled(opt, mlc_forward(m, mlc_full(ctx, MLC_F32, mlc_dims1(2),
                                                               (double)NAN))));
    CHECK_EQ(step_told(opt, m), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "3 steps in a row had gradients that are not finite");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_VALUES(mlc_module_param(m, "p"), 2, start, 0, 0);
}

/* ---- another dtype -------------------------------------------------------------------------- */

/* Momentum goes on where it was: b = 0.9 b + g. 2^-k are exact in all of them.                  */
TEST(optim, state_moves_along_when_parameters_become_another_dtype)
{
    static const mlc_dtype to[] = {MLC_BF16, MLC_F64, MLC_F32};
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = mlc_nn_linear(ctx, 1, 1);
    mlc_sgd_desc d = mlc_sgd_desc_make(0.5);
    double       b = 0, p = 1;
    d.momentum = 0.5;
    mlc_optim   *opt = mlc_sgd_ex(net, &d);
    mlc_tensor  *w = mlc_module_param(net, "weight");
    for (int k = 0; k < 3; k++) {
        CHECK_EQ(mlc_copy_into(w, mlc_full(ctx, w->dtype, mlc_dims2(1, 1), 1)), MLC_OK);
        p = 1;
        for (int step = 0; step < 2; step++) {
            mlc_scope_begin(ctx);
            mlc_tensor *x = mlc_full(ctx, w->dtype, mlc_dims2(1, 1), step ? 0 : 0.25);
            CHECK_EQ(mlc_backward(mlc_forward(net, x)), MLC_OK);
            CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            b = 0.5 * b + (step ? 0 : 0.25);
            p -= 0.5 * b;
            if (k == 1) CHECK_NEAR(mlc_item(w), p, 0x1p-8);       /* by chance                   */
            else CHECK_NEAR(mlc_item(w), p, 1e-6);
            p = mlc_item(w);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK_EQ(mlc_module_to(net, to[k]), MLC_OK);
    }
    CHECK_OK(ctx);
}

/* Through another tree that has them, too: the optimizer's own tree is laid out as before.      */
TEST(optim, state_moves_along_when_a_tree_that_shares_parameters_changes_them)
{
    static const mlc_dtype to[] = {MLC_F64, MLC_F32, MLC_BF16};
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_linear_desc l = mlc_nn_linear_desc_make(4, 4);
    mlc_sgd_desc    d = mlc_sgd_desc_make(1);
    l.no_bias = true;
    d.momentum = 0.5;
    mlc_module *own = mlc_nn_linear_ex(ctx, &l), *other = mlc_nn_sequential(ctx);
    mlc_tensor *w = mlc_module_param(own, "weight");
    CHECK_EQ(mlc_module_tie(other, "shared", w), MLC_OK);
    mlc_optim *opt = mlc_sgd_ex(own, &d);
    double     b = 0, was[16], is[16];
    CHECK_EQ(mlc_copy_into(w, mlc_ones(ctx, MLC_F32, mlc_dims2(4, 4))), MLC_OK);
    for (int k = 0; k < 4; k++) {
        mlc_scope_begin(ctx);
        test_read(w, was);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(own, mlc_ones(ctx, w->dtype, mlc_dims2(1, 4))),
                                      mlc_dims0(), false)), MLC_OK);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        test_read(w, is);
        b = 0.5 * b + 1;
        for (int i = 0; i < 16; i++) CHECK_NEAR(is[i], was[i] - b, k == 3 ? 0x1p-5 : 1e-6);
        if (k < 3) CHECK_EQ(mlc_module_to(other, to[k]), MLC_OK);
    }
    CHECK_EQ(mlc_module_to(other, MLC_F16), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
}

TEST(optim, f16_parameters_are_not_trained)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 3, 2);
    mlc_optim  *opt = mlc_adamw(net, 1e-3);
    CHECK_EQ(mlc_module_to(net, MLC_F16), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_DTYPE);
    CHECK_STR(mlc_error(ctx), "optimizer: parameter 'weight' is f16, which small steps would not "
                              "change; keep f32 and use mlc_autocast_begin, or bf16");
    mlc_error_clear(ctx);
    CHECK(mlc_adamw(net, 1e-3) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
}

/* |g| of bf16 gradients, and clipping by it.                                                    */
TEST(optim, bf16_gradients_have_a_norm)
{
    enum { N = 700 };
    double       x[N], all = 0;
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = mlc_nn_linear(ctx, N, 1);
    mlc_clip_desc clip = {1e9, INF, false};
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    mlc_optim   *opt = mlc_sgd(net, 0);
    mlc_tensor  *in = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(1, N), 5, -1, 1), MLC_BF16);
    CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
    CHECK_EQ(mlc_backward(mlc_forward(net, in)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    test_read(in, x);
    for (int i = 0; i < N; i++) all += x[i] * x[i];
    CHECK_NEAR(mlc_optim_grad_norm(opt), sqrt(all + 1), 1e-5);    /* 1: of the bias              */
    CHECK_OK(ctx);
}

/* ---- steps inside backward ------------------------------------------------------------------ */

/* A matrix [m,n], and k of the product that is its gradient.                                    */
typedef struct step_case {
    int64_t   m, n, k;
    mlc_dtype dtype, lies, p;          /* of the product, of its operands, of the matrix          */
} step_case;

static void *block_of(mlc_dtype dtype, int64_t n, uint64_t seed)
{
    void                      *to = calloc((size_t)n + 1, 8);
    const struct mlc_k_random r = {MLC_RANDOM_UNIFORM, dtype, n, to, seed, 0, NULL, 0, 1, -1, 1, 0,
                                   0, NULL, 0, 0};
    mlc_cpu_kernels(MLC_ISA_SCALAR)->random(NULL, &r);
    return to;
}

/* The kernel against gemm and then optim: the same bits.                                         */
static void check_product_step(const mlc_kernels *k, const step_case *c, mlc_rule rule)
{
    struct mlc_k_gemm_optim a;
    struct mlc_step_state   step;
    const int64_t           all = c->m * c->n;
    const mlc_dtype         state = c->p == MLC_BF16 ? MLC_F32 : c->p;
    const size_t            size = mlc_dtype_bytes(c->p), wide = mlc_dtype_bytes(state);
    void *x = block_of(c->lies, c->m * c->k, 1), *y = block_of(c->lies, c->n * c->k, 2);
    void *p[2] = {block_of(c->p, all, 3), block_of(c->p, all, 3)};
    void *m[2] = {block_of(state, all, 4), block_of(state, all, 4)};
    void *v[2] = {calloc((size_t)all + 1, 8), calloc((size_t)all + 1, 8)};
    char *g = calloc((size_t)all + 1, 16);
    memset(&a, 0, sizeof a);
    memset(&step, 0, sizeof step);
    step.lr = 0.125, step.weight_decay = 0.25, step.bias1 = step.bias2 = 0.5, step.grad_scale = 1;
    a.gemm.dtype = c->dtype;
    a.gemm.a_dtype = a.gemm.b_dtype = c->lies;
    a.gemm.c_dtype = c->p;
    a.gemm.m = c->m, a.gemm.n = c->n, a.gemm.k = c->k;
    a.gemm.batch[0] = a.gemm.batch[1] = a.gemm.batch[2] = 1;
    a.gemm.a = x, a.gemm.a_row = 1, a.gemm.a_col = c->m;
    a.gemm.b = y, a.gemm.b_row = c->n, a.gemm.b_col = 1;
    a.gemm.alpha = 1;
    a.optim.rule = rule, a.optim.cpu = mlc_cpu_rule(rule);
    a.optim.dtype = c->p, a.optim.n_state = rule == MLC_RULE_ADAM ? 2 : 1;
    a.optim.n = all, a.optim.p = p[0], a.optim.state[0] = m[0], a.optim.state[1] = v[0];
    a.optim.seed = 5, a.optim.first = 16, a.optim.step = &step;
    const double sgd[8] = {0.5}, adam[8] = {0.5, 0.75, 0.125, 1};
    memcpy(a.optim.coefs, rule == MLC_RULE_ADAM ? adam : sgd, sizeof a.optim.coefs);
    a.workspace_bytes = k->gemm_optim_workspace(NULL, &a);
    a.workspace = malloc(a.workspace_bytes + 1);
    CHECK_EQ(k->gemm_optim(NULL, &a), MLC_OK);
    /* Every other element: no library's product, whose bits are its own. */
    a.gemm.c = g, a.gemm.c_row = 2 * c->n, a.gemm.c_col = 2;
    a.gemm.workspace_bytes = k->gemm_workspace(NULL, &a.gemm);
    a.gemm.workspace = malloc(a.gemm.workspace_bytes + 1);
    CHECK_EQ(k->gemm(NULL, &a.gemm), MLC_OK);
    for (int64_t i = 1; i < all; i++)
        memcpy(g + (size_t)i * size, g + 2 * (size_t)i * size, size);
    a.optim.g = g, a.optim.p = p[1], a.optim.state[0] = m[1], a.optim.state[1] = v[1];
    CHECK_EQ(k->optim(NULL, &a.optim), MLC_OK);
    CHECK(memcmp(p[0], p[1], (size_t)all * size) == 0);
    CHECK(memcmp(m[0], m[1], (size_t)all * wide) == 0);
    CHECK(rule == MLC_RULE_SGD || memcmp(v[0], v[1], (size_t)all * wide) == 0);
    const int64_t error[4] = {1};      /* then a further step changes nothing                  */
    a.gemm.c = NULL, a.optim.g = NULL, a.optim.error = error;
    CHECK_EQ(k->gemm_optim(NULL, &a), MLC_OK);
    CHECK(memcmp(p[0], p[1], (size_t)all * size) == 0);
    CHECK(memcmp(m[0], m[1], (size_t)all * wide) == 0);
    void *made[] = {x, y, p[0], p[1], m[0], m[1], v[0], v[1], g, a.workspace, a.gemm.workspace};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        free(made[i]);
}

TEST(optim, the_step_of_a_product_is_the_pass_over_the_product)
{
    static const int64_t   sizes[][3] = {{1, 1, 1},    {3, 5, 0},    {31, 7, 2},    {32, 16, 33},
                                         {33, 64, 32}, {65, 17, 70}, {130, 300, 9}, {97, 1100, 40},
                                         {2, 3000, 5}, {70, 1025, 1}};
    static const mlc_dtype dtypes[][3] = {
        {MLC_F32, MLC_F32, MLC_F32},   {MLC_F64, MLC_F64, MLC_F64},   {MLC_BF16, MLC_BF16, MLC_F32},
        {MLC_BF16, MLC_F32, MLC_F32},  {MLC_F16, MLC_F16, MLC_F32},
        {MLC_BF16, MLC_BF16, MLC_BF16},
    };
    FOR_EACH_LEVEL(isa)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            const step_case c = {sizes[i][0],  sizes[i][1],  sizes[i][2],
                                 dtypes[d][0], dtypes[d][1], dtypes[d][2]};
            check_product_step(mlc_cpu_kernels((mlc_isa)isa), &c, MLC_RULE_SGD);
            check_product_step(mlc_cpu_kernels((mlc_isa)isa), &c, MLC_RULE_ADAM);
        }
}

/* Matrices that are large enough to be stepped inside backward, and small ones that are not.     */
static mlc_module *wide_layers(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 130, 140));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 140, 150));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 150, 3));
    mlc_module_build(net);
    return net;
}

static mlc_tensor *wide_loss(mlc_module *net, uint64_t seed)
{
    mlc_ctx       *ctx = mlc_module_ctx(net);
    mlc_param_iter it = mlc_param_iter_make(net);
    mlc_param_next(&it);
    mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(9, 130), seed, -1, 1),
                             it.tensor->dtype);
    mlc_tensor *y = mlc_forward(net, x);
    return mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
}

/* The same values for any module.                                                               */
static void fill_parameters(mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    for (uint64_t seed = 1; mlc_param_next(&it); seed++)
        CHECK_EQ(mlc_copy_into(it.tensor, test_rand(mlc_module_ctx(net), it.tensor->dtype,
                                                    mlc_dims_of(it.tensor->ndim,
                                                                it.tensor->shape),
                                                    seed, -0.1, 0.1)), MLC_OK);
}

enum { WIDE = 130 * 140 + 140 + 140 * 150 + 150 + 150 * 3 + 3 };

/* After three steps, the second at another rate, parameters are those of ordinary steps.        */
static void check_in_backward(mlc_ctx *ctx, mlc_dtype params, mlc_dtype cast, bool adam)
{
    static double  p[2][WIDE];
    mlc_module    *net = wide_layers(ctx);
    mlc_sgd_desc   d = {0.1, 0.9, 0, 0.01, true};
    mlc_group_desc own = {0.5, 0.1, true, false};
    CHECK_EQ(mlc_module_to(net, params), MLC_OK);
    for (int in = 0; in < 2; in++) {
        fill_parameters(net);
        mlc_optim *opt = adam ? mlc_adamw(net, 0.01) : mlc_sgd_ex(net, &d);
        CHECK_EQ(mlc_optim_group(opt, "2.weight", &own), MLC_OK);
        CHECK_EQ(mlc_optim_in_backward(opt, in == 1), MLC_OK);
        for (int step = 0; step < 3; step++) {
            mlc_scope_begin(ctx);
            CHECK_EQ(mlc_optim_set_lr(opt, step == 1 ? 0.05 : 0.02), MLC_OK);
            CHECK_EQ(mlc_autocast_begin(ctx, cast), MLC_OK);
            mlc_tensor *loss = wide_loss(net, (uint64_t)step);
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
            CHECK_EQ(mlc_backward(loss), MLC_OK);
            CHECK((mlc_grad(mlc_module_param(net, "0.weight")) == NULL) == (in == 1));
            CHECK((mlc_grad(mlc_module_param(net, "2.weight")) == NULL) == (in == 1));
            CHECK(mlc_grad(mlc_module_param(net, "4.weight")) != NULL);
            CHECK(mlc_grad(mlc_module_param(net, "0.bias")) != NULL);
            CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK_EQ(mlc_optim_steps(opt), 3);
        CHECK_EQ(snapshot(net, p[in]), WIDE);
        mlc_optim_free(opt);
    }
    mlc_module_free(net);
    for (int i = 0; i < WIDE; i++)
        if (memcmp(&p[0][i], &p[1][i], sizeof p[0][i]) != 0) {
            CHECK_NEAR(p[1][i], p[0][i], 0);               /* the first one says where            */
            break;
        }
    CHECK_OK(ctx);
}

/* Leaves a test of what only a device with the kernel gemm_optim does.                          */
#define STEPS_INSIDE_BACKWARD() do { CHECK(true); if (!test_cpu_kernels()) return; } while (0)

TEST(optim, steps_inside_backward_are_the_same_steps)
{
    STEPS_INSIDE_BACKWARD();
    FOR_EACH_ISA(ctx) {
        for (int adam = 0; adam < 2; adam++) {
            check_in_backward(ctx, MLC_F32, MLC_F32, adam);
            check_in_backward(ctx, MLC_F32, MLC_BF16, adam);
            check_in_backward(ctx, MLC_F64, MLC_F32, adam);
            check_in_backward(ctx, MLC_BF16, MLC_F32, adam);
        }
    }
}

/* One backward; were there gradients of both large matrices afterwards?                          */
static bool kept_gradients(mlc_module *net)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_backward(wide_loss(net, 1)), MLC_OK);
    const bool kept = mlc_grad(mlc_module_param(net, "0.weight")) != NULL &&
                      mlc_grad(mlc_module_param(net, "2.weight")) != NULL;
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return kept;
}

TEST(optim, what_needs_all_gradients_is_not_done_inside_backward)
{
    STEPS_INSIDE_BACKWARD();
    const mlc_clip_desc clip[] = {{1, INF, false}, {INF, 1, false}};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *net = wide_layers(ctx);
    mlc_optim          *opt = mlc_adamw(net, 0.01);
    CHECK_EQ(mlc_optim_in_backward(NULL, true), MLC_ERR_ARG);
    CHECK(kept_gradients(net));
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_optim_clip(opt, &clip[i]), MLC_OK);
        CHECK(kept_gradients(net));
    }
    CHECK_EQ(mlc_optim_clip(opt, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, 2), MLC_OK);
    CHECK(kept_gradients(net));
    CHECK_EQ(mlc_optim_accumulate(opt, 1), MLC_OK);
    mlc_scaler_desc s = mlc_scaler_desc_make();
    CHECK_EQ(mlc_optim_scaler(opt, &s), MLC_OK);
    CHECK(kept_gradients(net));
    mlc_optim_scaler_off(opt);
    mlc_anomaly(ctx, true);
    CHECK(kept_gradients(net));
    mlc_anomaly(ctx, false);
    mlc_optim_zero_grad(opt);
    CHECK(!kept_gradients(net));
    CHECK_EQ(mlc_optim_in_backward(opt, false), MLC_OK);
    CHECK(kept_gradients(net));
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    mlc_optim_free(opt);
    CHECK(kept_gradients(net));
    CHECK_OK(ctx);
}

/* A matrix that two operations use gets the sum of both gradients, in the step.                  */
TEST(optim, a_matrix_that_is_used_twice_is_not_stepped_inside_backward)
{
    double       p[2][130 * 130 + 130];
    mlc_ctx     *ctx = test_ctx();
    for (int in = 0; in < 2; in++) {
        mlc_module *net = mlc_nn_linear(ctx, 130, 130);
        fill_parameters(net);
        mlc_optim  *opt = mlc_sgd(net, 0.5);
        CHECK_EQ(mlc_optim_in_backward(opt, in == 1), MLC_OK);
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 130), 3, -1, 1);
        mlc_tensor *y = mlc_tanh(mlc_forward(net, mlc_forward(net, x)));
        mlc_tensor *w = mlc_module_param(net, "weight");
        mlc_tensor *decay = mlc_sum(mlc_mul(w, w), mlc_dims0(), false);
        CHECK_EQ(mlc_backward(mlc_add(mlc_sum(y, mlc_dims0(), false), decay)), MLC_OK);
        CHECK(mlc_grad(w) != NULL);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        CHECK_EQ(snapshot(net, p[in]), 130 * 130 + 130);
    }
    CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
    CHECK_OK(ctx);
}

/* After surgery the optimizer finds its entries anew; frozen matrices stay.                      */
TEST(optim, steps_inside_backward_follow_surgery_and_freezing)
{
    STEPS_INSIDE_BACKWARD();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    static double before[WIDE], after[WIDE];
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    CHECK_EQ(mlc_set_requires_grad(mlc_module_param(net, "2.weight"), false), MLC_OK);
    snapshot(net, before);
    CHECK(!kept_gradients(net));
    snapshot(net, after);
    CHECK_EQ(changed(before, after, 0, 130 * 140), 130 * 140);
    CHECK_EQ(changed(before, after, 130 * 140 + 140, 130 * 140 + 140 + 140 * 150), 0);
    CHECK_EQ(mlc_set_requires_grad(mlc_module_param(net, "2.weight"), true), MLC_OK);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 3));
    CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_STATE);          /* gradients came before the surgery   */
    mlc_error_clear(ctx);
    mlc_optim_zero_grad(opt);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK(!kept_gradients(net));
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    mlc_module_free(net);
    CHECK_EQ(mlc_optim_in_backward(opt, false), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    mlc_optim_free(opt);
    CHECK_OK(ctx);
}

/* Two graphs over one network: whichever goes first, gradients are added up. */
TEST(optim, a_matrix_of_two_graphs_is_not_stepped_inside_backward)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_layers(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    for (int first = 0; first < 2; first++) {
        mlc_scope_begin(ctx);
        mlc_tensor *loss[2] = {wide_loss(net, 1), wide_loss(net, 2)};
        CHECK_EQ(mlc_backward(loss[first]), MLC_OK);
        CHECK(mlc_grad(mlc_module_param(net, "0.weight")) != NULL);
        CHECK_EQ(mlc_backward(loss[1 - first]), MLC_OK);
        CHECK(mlc_grad(mlc_module_param(net, "0.weight")) != NULL);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_OK(ctx);
}

/* Surgery between forward and backward: nothing is stepped until it is laid out anew. */
TEST(optim, a_tree_out_of_date_is_not_stepped_inside_backward)
{
    STEPS_INSIDE_BACKWARD();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_layers(ctx), *parent = mlc_nn_sequential(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    mlc_scope_begin(ctx);
    mlc_tensor *loss = wide_loss(net, 1);
    CHECK_EQ(mlc_module_add(parent, net), MLC_OK);
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 0);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_optim_zero_grad(opt);
    CHECK(kept_gradients(net));                            /* its step makes the entries anew    */
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK(!kept_gradients(net));
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_OK(ctx);
}

/* ---- steps inside backward, and tapes inside the tape -------------------------------------- */

typedef struct again { mlc_ctx *ctx; mlc_module *layer; } again;

static mlc_status again_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)n_in;
    *out = mlc_forward(((again *)user)->layer, in[0]);
    return *out ? MLC_OK : MLC_ERR_STATE;
}

static mlc_status again_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                 mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    again      *u = user;
    mlc_tensor *x = mlc_detach(in[0]);
    (void)n_in; (void)out; (void)need;
    mlc_set_requires_grad(x, true);
    mlc_tape_begin(u->ctx, false);
    const mlc_status st = mlc_backward_from(mlc_forward(u->layer, x), dy);
    mlc_tape_end(u->ctx);
    dx[0] = mlc_grad(x);
    return st;
}

TEST(optim, a_weight_that_inner_tapes_use_is_stepped_once)
{
    static const mlc_custom_op op = {"again", again_forward, again_backward};
    static double weights[2][512 * 512];
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        again       u = {ctx, mlc_nn_linear(ctx, 512, 512)};
        mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(8, 512));
        mlc_seed(ctx, 1);
        mlc_optim *o = mlc_adamw(u.layer, 0.01);
        CHECK_EQ(mlc_optim_in_backward(o, i == 1), MLC_OK);
        mlc_scope_begin(ctx);
        mlc_set_requires_grad(x, true);
        mlc_tensor *y = mlc_custom(&op, &u, &x, 1);
        y = mlc_custom(&op, &u, &y, 1);
        CHECK_EQ(mlc_backward(mlc_mean(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
        CHECK_EQ(mlc_optim_step(o), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        CHECK(test_read(mlc_module_param(u.layer, "weight"), weights[i]));
        CHECK_OK(ctx);
    }
    CHECK_EQ(memcmp(weights[0], weights[1], sizeof weights[0]), 0);
}
/* ---- in a desc 0 is 0 ---------------------------------------------------------------------- */

/* Without a gradient that points anywhere AdamW only decays: p -= lr decay p. */
TEST(optim, a_weight_decay_of_0_is_none_and_a_rate_of_0_is_no_step)
{
    static const double start[] = {2, -4};
    for (int i = 0; i < 3; i++) {
        mlc_ctx      *ctx = test_ctx();
        mlc_module   *m = bowl(ctx, MLC_F64, 2, start);
        mlc_adam_desc d = mlc_adamw_desc_make(i == 2 ? 0 : 0.5);
        if (i == 1) d.weight_decay = 0;
        const double by = i == 0 ? 1 - 0.5 * 0.01 : 1, want[] = {2 * by, -4 * by};
        mlc_optim   *opt = mlc_adamw_ex(m, &d);
        CHECK_EQ(descend(m, opt, mlc_zeros(ctx, MLC_F64, mlc_dims1(2))), MLC_OK);
        CHECK_VALUES(mlc_module_param(m, "p"), 2, want, 1e-12, 0);
        CHECK_OK(ctx);
    }
}

TEST(optim, descs_that_are_null_or_negative_are_refused)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *m = two_layers(ctx);
    mlc_optim     *opt = mlc_sgd(m, 0.1);
    mlc_group_desc g = mlc_group_desc_make();
    mlc_clip_desc  zero;
    CHECK(mlc_sgd_ex(m, NULL) == NULL);
    CHECK_STR(mlc_error(ctx), "sgd: desc is NULL; start from mlc_sgd_desc_make(lr)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_adamw_ex(m, NULL) == NULL);
    CHECK_STR(mlc_error(ctx), "adamw: desc is NULL; start from mlc_adamw_desc_make(lr)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (int i = 0; i < 5; i++) {
        mlc_adam_desc d = mlc_adam_desc_make(0.1);
        *(i == 0 ? &d.lr : i == 1 ? &d.beta1 : i == 2 ? &d.beta2 : i == 3 ? &d.eps
                                                                         : &d.weight_decay) = -1e-9;
        CHECK(mlc_adam_ex(m, &d) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    g.lr_scale = -1;
    CHECK_EQ(mlc_optim_group(opt, "*", &g), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    g.lr_scale = 1;
    g.weight_decay = 0.5;
    CHECK_EQ(mlc_optim_group(opt, "*", &g), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "without has_weight_decay");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_group(opt, "*", NULL), MLC_OK);
    memset(&zero, 0, sizeof zero);
    CHECK_EQ(mlc_optim_clip(opt, &zero), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "mlc_clip_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(optim, a_scaler_without_a_desc_is_the_default_one_until_it_is_off)
{
    static const double start[] = {2, -4};
    mlc_ctx   *ctx = test_ctx();
    mlc_module *m = bowl(ctx, MLC_F64, 2, start);
    mlc_optim *opt = mlc_sgd(m, 0.1);
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    CHECK_NEAR(mlc_optim_scaler_state(opt).scale, 65536, 0);
    mlc_optim_scaler_off(opt);
    CHECK_NEAR(mlc_optim_scaler_state(opt).scale, 1, 0);
    mlc_tensor *x = mlc_ones(ctx, MLC_F64, mlc_dims1(1));
    CHECK(mlc_optim_scaled(opt, x) == x);
    mlc_optim_scaler_off(NULL);
    CHECK_OK(ctx);
}
