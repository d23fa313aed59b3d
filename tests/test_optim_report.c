/* test_optim_report.c -- tests of sections IMPL.OPTIM.LAYERS, IMPL.OPTIM.NOISE, .REPORT          */
#include "bowl.h"

/* ---- no decay, rates by depth --------------------------------------------------------------- */

/* Each part has a weight and a bias: see TOWER.                                                  */
static mlc_module *tower(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx), *blocks = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++)
        mlc_module_add(blocks, mlc_nn_linear(ctx, 3, 3));
    mlc_module_add_named(net, "stem", mlc_nn_linear(ctx, 3, 3));
    mlc_module_add_named(net, "blocks", blocks);
    mlc_module_add_named(net, "norm", mlc_nn_layer_norm(ctx, 3));
    mlc_module_add_named(net, "head", mlc_nn_linear(ctx, 3, 2));
    return net;
}

/* One backward of the sum of all parameters times slope, which is the gradient of each.          */
static void slide(mlc_module *m, double slope)
{
    mlc_ctx       *ctx = mlc_module_ctx(m);
    mlc_param_iter it = mlc_param_iter_make(m);
    mlc_tensor    *loss = mlc_zeros(ctx, MLC_F32, mlc_dims0());
    while (mlc_param_next(&it))
        if (it.trainable) loss = mlc_add(loss, mlc_sum(it.tensor, mlc_dims0(), false));
    mlc_backward(mlc_mul_scalar(loss, slope));
}

static double first_value(mlc_module *m, const char *name)
{
    double      all[16];
    mlc_tensor *p = mlc_module_param(m, name);
    return CHECK(p && mlc_numel(p) <= 16) && test_read(p, all) ? all[mlc_numel(p) - 1] : NO_NUMBER;
}

/* By how much the last element of a parameter falls in a step of the slope.                      */
static void check_falls(mlc_module *m, mlc_optim *opt, double slope, const char *const *names,
                        const double *want, int n)
{
    double was[16];
    for (int i = 0; i < n; i++)
        was[i] = first_value(m, names[i]);
    mlc_scope_begin(mlc_module_ctx(m));
    slide(m, slope);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_scope_end(mlc_module_ctx(m)), MLC_OK);
    for (int i = 0; i < n; i++)
        if (!CHECK_NEAR(was[i] - first_value(m, names[i]), want[i], 2e-6))
            printf("  %s\n", names[i]);
}

static const char *const TOWER[12] = {
    "stem.weight", "stem.bias", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight",
    "blocks.1.bias", "blocks.2.weight", "blocks.2.bias", "norm.weight", "norm.bias",
    "head.weight", "head.bias"};

TEST(by_layer, rates_fall_from_the_head_to_the_stem_by_the_factor)
{
    static const double fall[12] = {0.0625, 0.0625, 0.125, 0.125, 0.25, 0.25, 0.5, 0.5, 1, 1, 1, 1};
    static const double even[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    FOR_EACH_ISA(ctx) {
        mlc_module *net = tower(ctx);
        mlc_optim  *opt = mlc_sgd(net, 1);
        CHECK_EQ(mlc_optim_layer_decay(opt, 0.5), MLC_OK);
        check_falls(net, opt, 1, TOWER, fall, 12);
        CHECK_EQ(mlc_optim_layer_decay(opt, 1), MLC_OK);
        check_falls(net, opt, 1, TOWER, even, 12);
        CHECK_OK(ctx);
    }
}

TEST(by_layer, frozen_blocks_count_and_rates_are_found_anew_after_a_rebuild)
{
    static const char *const top[3] = {"blocks.1.weight", "blocks.2.bias", "head.weight"};
    static const char *const all[2] = {"stem.weight", "blocks.0.bias"};
    static const double      fall[3] = {0.25, 0.5, 1}, low[2] = {0.0625, 0.125};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = tower(ctx);
    mlc_module_freeze(net, "stem.*", true);
    mlc_module_freeze(net, "blocks.0.*", true);
    mlc_optim *opt = mlc_sgd(net, 1);
    CHECK_EQ(mlc_optim_layer_decay(opt, 0.5), MLC_OK);
    check_falls(net, opt, 1, top, fall, 3);
    mlc_module_freeze(net, "*", false);
    mlc_module_rebuild(net);
    check_falls(net, opt, 1, all, low, 2);
    check_falls(net, opt, 1, top, fall, 3);
    CHECK_OK(ctx);
}

/* Names are "0.weight", "2.weight": without a head the last layer has the whole rate.            */
TEST(by_layer, blocks_are_counted_and_not_their_numbers)
{
    static const char *const names[3] = {"0.weight", "0.bias", "2.weight"};
    static const double      fall[3] = {0.5, 0.5, 1};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 3));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 3));
    mlc_optim *opt = mlc_sgd(net, 1);
    CHECK_EQ(mlc_optim_layer_decay(opt, 0.5), MLC_OK);
    check_falls(net, opt, 1, names, fall, 3);
    CHECK_OK(ctx);
}

TEST(by_layer, rates_of_groups_multiply_with_those_of_depth)
{
    static const char *const names[3] = {"blocks.2.weight", "blocks.2.bias", "head.bias"};
    static const double      fall[3] = {0.5, 5, 10};
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = tower(ctx);
    mlc_optim     *opt = mlc_sgd(net, 1);
    mlc_group_desc d = mlc_group_desc_make();
    d.lr_scale = 10;
    CHECK_EQ(mlc_optim_layer_decay(opt, 0.5), MLC_OK);
    CHECK_EQ(mlc_optim_group(opt, "*.bias", &d), MLC_OK);
    check_falls(net, opt, 1, names, fall, 3);
    CHECK_OK(ctx);
}

/* Gradients of 0: what falls is decay, 0.1 of the value.                                         */
static void check_decays(mlc_module *m, mlc_optim *opt, const char *const *names,
                         const double *share, int n)
{
    double want[16];
    for (int i = 0; i < n; i++)
        want[i] = share[i] * first_value(m, names[i]);
    check_falls(m, opt, 0, names, want, n);
}

static mlc_optim *decaying(mlc_module *net)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(1);
    d.weight_decay = 0.1;
    return mlc_sgd_ex(net, &d);
}

TEST(by_layer, no_decay_is_for_parameters_of_one_axis)
{
    static const char *const names[4] = {"blocks.0.weight", "blocks.0.bias", "norm.weight",
                                         "head.weight"};
    static const double      all[4] = {0.1, 0.1, 0.1, 0.1}, some[4] = {0.1, 0, 0, 0.1};
    FOR_EACH_ISA(ctx) {
        mlc_module *net = tower(ctx);
        mlc_optim  *opt = decaying(net);
        check_decays(net, opt, names, all, 4);
        CHECK_EQ(mlc_optim_no_decay(opt, true), MLC_OK);
        check_decays(net, opt, names, some, 4);
        mlc_module_rebuild(net);
        check_decays(net, opt, names, some, 4);
        CHECK_EQ(mlc_optim_no_decay(opt, false), MLC_OK);
        check_decays(net, opt, names, all, 4);
        CHECK_OK(ctx);
    }
}

/* A group from before loses, a later one without a decay of its own changes nothing.             */
TEST(by_layer, a_later_group_with_a_decay_of_its_own_wins_over_no_decay)
{
    static const char *const names[4] = {"norm.weight", "head.bias", "blocks.0.bias",
                                         "head.weight"};
    static const double      share[4] = {0.2, 0, 0, 0.1};
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = tower(ctx);
    mlc_optim     *opt = decaying(net);
    mlc_group_desc own = mlc_group_desc_make();
    own.has_weight_decay = true;
    own.weight_decay = 0.4;
    CHECK_EQ(mlc_optim_group(opt, "blocks.*.bias", &own), MLC_OK);
    CHECK_EQ(mlc_optim_no_decay(opt, true), MLC_OK);
    own.weight_decay = 0.2;
    CHECK_EQ(mlc_optim_group(opt, "norm.*", &own), MLC_OK);
    CHECK_EQ(mlc_optim_group(opt, "head.*", NULL), MLC_OK);
    check_decays(net, opt, names, share, 4);
    CHECK_OK(ctx);
}

TEST(by_layer, wrong_factors_and_names_without_numbers_are_errors)
{
    static const double bad[4] = {0, -0.5, 1.5, NO_NUMBER}, start[3] = {1, 2, 3};
    mlc_ctx   *ctx = test_ctx();
    mlc_optim *opt = mlc_sgd(tower(ctx), 1), *plain = mlc_sgd(bowl(ctx, MLC_F32, 3, start), 1);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(mlc_optim_layer_decay(opt, bad[i]), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "optim_layer_decay: factor is");
        mlc_error_clear(ctx);
    }
    CHECK_EQ(mlc_optim_layer_decay(plain, 0.5), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "no parameter's name has a number");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_no_decay(NULL, true), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_layer_decay(NULL, 0.5), MLC_ERR_ARG);
}

/* The bowl, of any dtype that a parameter may have.                                              */
static mlc_module *bowl_as(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, const double *start)
{
    mlc_module *m = bowl(ctx, dtype == MLC_BF16 ? MLC_F32 : dtype, n, start);
    if (dtype == MLC_BF16) CHECK_EQ(mlc_module_to(m, dtype), MLC_OK);
    return m;
}

/* ---- reports -------------------------------------------------------------------------------- */

enum { BOWL_N = 8, MANY = 70001 };

static const double BOWL_P[BOWL_N] = {1, -2, 0, 0.5, 4, -0.25, 1, 8};
static const double BOWL_W[BOWL_N] = {0.5, 0.5, 1, 1, 0.25, 1, 0, 64};
/* Gradients 2 w p: 1 -2 0 1 2 -0.5 0 1024                                                        */

static void bowl_backward(mlc_module *m, mlc_optim *opt, mlc_dtype dtype, int64_t n,
                          const double *w)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    mlc_tensor *loss = mlc_forward(m, test_tensor(ctx, dtype, mlc_dims1(n), w));
    mlc_backward(mlc_optim_scaled(opt, loss));
}

static void check_bowl_report(const mlc_grad_report *r)
{
    CHECK_STR(r->name, "p");
    CHECK_EQ(r->n, BOWL_N);
    CHECK_NEAR(r->norm, sqrt(1 + 4 + 1 + 4 + 0.25 + 1048576), 1e-12);
    CHECK_NEAR(r->mean, (1 - 2 + 1 + 2 - 0.5 + 1024) / 8, 1e-12);
    CHECK_NEAR(r->largest, 1024, 0);
    CHECK_NEAR(r->zeros, 0.25, 0);
    CHECK_EQ(r->not_finite, 0);
    CHECK_NEAR(r->weight_norm, sqrt(1 + 4 + 0.25 + 16 + 0.0625 + 1 + 64), 1e-12);
    for (int k = 0; k < MLC_GRAD_BINS; k++)
        CHECK_EQ(r->histogram[k], k == 29 ? 1 : k == 30 || k == 31 ? 2 : k == 39 ? 1 : 0);
}

TEST(report, numbers_of_a_gradient_are_those_of_its_elements)
{
    static const mlc_dtype dtypes[3] = {MLC_F32, MLC_F64, MLC_BF16};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 3; i++) {
            mlc_grad_report r;
            int64_t         n = 7;
            mlc_module     *m = bowl_as(ctx, dtypes[i], BOWL_N, BOWL_P);
            mlc_optim      *opt = mlc_sgd(m, 0.125);
            CHECK_EQ(mlc_optim_report(opt, &r, 1, &n), MLC_OK);
            CHECK_EQ(n, 0);
            bowl_backward(m, opt, dtypes[i], BOWL_N, BOWL_W);
            CHECK_EQ(mlc_optim_report(opt, NULL, 0, &n), MLC_OK);
            CHECK_EQ(n, 1);
            CHECK_EQ(mlc_optim_report(opt, &r, 1, &n), MLC_OK);
            check_bowl_report(&r);
            CHECK(isnan(r.update_ratio));
            CHECK_EQ(mlc_optim_step_report(opt, &r, 1, &n), MLC_OK);
            check_bowl_report(&r);
            CHECK_EQ(mlc_optim_steps(opt), 1);
            CHECK_NEAR(r.update_ratio, 0.125 * r.norm / r.weight_norm,
                       dtypes[i] == MLC_BF16 ? 0.2 : 1e-9);
            CHECK_EQ(mlc_optim_report(opt, &r, 1, &n), MLC_OK);
            CHECK_EQ(n, 0);            /* the step has used the gradient up */
        }
        CHECK_OK(ctx);
    }
}

TEST(report, the_step_is_the_one_without_a_report)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *m = bowl(ctx, MLC_F32, BOWL_N, BOWL_P), *with = mlc_module_clone(m);
    mlc_optim      *opt = mlc_adamw(m, 0.1), *reported = mlc_adamw(with, 0.1);
    mlc_grad_report r;
    double          want[BOWL_N];
    for (int i = 0; i < 3; i++) {
        bowl_backward(with, reported, MLC_F32, BOWL_N, BOWL_W);
        CHECK_EQ(descend(m, opt, test_tensor(ctx, MLC_F32, mlc_dims1(BOWL_N), BOWL_W)), MLC_OK);
        CHECK_EQ(mlc_optim_step_report(reported, &r, 1, NULL), MLC_OK);
    }
    test_read(mlc_module_param(m, "p"), want);
    CHECK_VALUES(mlc_module_param(with, "p"), BOWL_N, want, 0, 0);
    CHECK_OK(ctx);
}

TEST(report, what_is_not_finite_is_counted_and_left_out_of_sums)
{
    static const double p[4] = {1, 2, 3, 1}, w[4] = {INF, 1, NO_NUMBER, 0.5};
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *m = bowl(ctx, MLC_F32, 4, p);
    mlc_optim      *opt = mlc_sgd(m, 0.1);
    mlc_grad_report r;
    bowl_backward(m, opt, MLC_F32, 4, w);
    CHECK_EQ(mlc_optim_report(opt, &r, 1, NULL), MLC_OK);
    CHECK_EQ(r.not_finite, 2);
    CHECK_NEAR(r.norm, sqrt(17), 1e-12);
    CHECK_NEAR(r.mean, 2.5, 1e-12);
    CHECK_NEAR(r.largest, 4, 0);
    CHECK_OK(ctx);
}

/* More than one piece is read.                                                                   */
TEST(report, long_parameters_are_summed_to_their_end)
{
    mlc_ctx        *ctx = test_ctx();
    double         *p = (double *)malloc(2 * MANY * sizeof *p), *w = p + MANY;
    double          squares = 0, weights = 0;
    int64_t         counted = 0;
    mlc_grad_report r;
    for (int64_t i = 0; i < MANY; i++) {
        p[i] = (double)(i % 13) - 6;
        w[i] = (double)(i % 5) / 8;
        squares += 4 * p[i] * p[i] * w[i] * w[i];
        weights += p[i] * p[i];
    }
    mlc_module *m = bowl(ctx, MLC_F32, MANY, p);
    mlc_optim  *opt = mlc_sgd(m, 0.5);
    bowl_backward(m, opt, MLC_F32, MANY, w);
    CHECK_EQ(mlc_optim_step_report(opt, &r, 1, NULL), MLC_OK);
    CHECK_NEAR(r.norm, sqrt(squares), 1e-9);
    CHECK_NEAR(r.weight_norm, sqrt(weights), 1e-9);
    CHECK_NEAR(r.update_ratio, 0.5 * sqrt(squares / weights), 1e-9);
    for (int k = 0; k < MLC_GRAD_BINS; k++)
        counted += r.histogram[k];
    CHECK_NEAR((double)counted / MANY, 1 - r.zeros, 1e-12);
    CHECK_OK(ctx);
    free(p);
}

/* Two calls are collected, and gradients scaled: the numbers are those of one plain backward.    */
TEST(report, gradients_are_unscaled_and_the_mean_of_what_was_collected)
{
    static const double bad[BOWL_N] = {INF, 0, 0, 0, 0, 0, 0, 0};
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *m = bowl(ctx, MLC_F32, BOWL_N, BOWL_P);
    mlc_optim      *opt = mlc_sgd(m, 0.125);
    mlc_grad_report r;
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, 2), MLC_OK);
    bowl_backward(m, opt, MLC_F32, BOWL_N, BOWL_W);
    CHECK_EQ(mlc_optim_step_report(opt, &r, 1, NULL), MLC_OK);
    check_bowl_report(&r);
    CHECK_NEAR(r.update_ratio, 0, 0);
    bowl_backward(m, opt, MLC_F32, BOWL_N, BOWL_W);
    CHECK_EQ(mlc_optim_step_report(opt, &r, 1, NULL), MLC_OK);
    check_bowl_report(&r);
    CHECK_NEAR(r.update_ratio, 0.125 * r.norm / r.weight_norm, 1e-9);
    CHECK_EQ(mlc_optim_accumulate(opt, 1), MLC_OK);
    bowl_backward(m, opt, MLC_F32, BOWL_N, bad);
    CHECK_EQ(mlc_optim_step_report(opt, &r, 1, NULL), MLC_OK);     /* skipped */
    CHECK_NEAR(r.update_ratio, 0, 0);
    CHECK_EQ(r.not_finite, 1);
    CHECK_OK(ctx);
}

TEST(report, rows_are_in_the_order_of_parameters_and_no_more_than_asked_for)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = tower(ctx);
    mlc_optim      *opt = mlc_sgd(net, 1);
    mlc_grad_report r[13];
    int64_t         n = 0;
    slide(net, 0.5);
    CHECK_EQ(mlc_optim_report(opt, r, 13, &n), MLC_OK);
    CHECK_EQ(n, 12);
    for (int i = 0; i < 12; i++)
        CHECK(strcmp(r[i].name, TOWER[i]) == 0 && r[i].mean == 0.5 && r[i].largest == 0.5);
    r[2].n = -1;
    CHECK_EQ(mlc_optim_step_report(opt, r, 2, &n), MLC_OK);
    CHECK_EQ(n, 12);
    CHECK_EQ(r[2].n, -1);
    CHECK_NEAR(r[1].update_ratio, 0.5 * sqrt(3) / r[1].weight_norm, 1e-6);
    slide(net, 0.5);
    CHECK_EQ(mlc_optim_step_report(opt, NULL, 0, &n), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 2);
    CHECK_OK(ctx);
}

static void keep_text(void *user, const char *text, size_t n)
{
    char *all = (char *)user;
    const size_t len = strlen(all);
    if (!CHECK(len + n < 2048)) return;
    memcpy(all + len, text, n);
    all[len + n] = 0;
}

/* Its own tree is laid out as before, and the optimizer has an entry for it. */
TEST(report, a_parameter_that_another_tree_has_frozen_has_no_row)
{
    static const char *const names[] = {"0.bias", "1.weight", "1.bias"};
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = mlc_nn_sequential(ctx), *other = mlc_nn_sequential(ctx);
    mlc_grad_report g[4];
    int64_t         n = 0;
    for (int i = 0; i < 2; i++) mlc_module_add(net, mlc_nn_linear(ctx, 3, 3));
    mlc_optim *opt = mlc_sgd(net, 0.1);
    CHECK_EQ(mlc_module_tie(other, "shared", mlc_module_param(net, "0.weight")), MLC_OK);
    CHECK_EQ(mlc_module_freeze(other, NULL, true), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(other), MLC_OK);
    slide(net, 1);
    CHECK_EQ(mlc_optim_step_report(opt, g, 4, &n), MLC_OK);
    CHECK_EQ(n, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_STR(g[i].name, names[i]);
        CHECK_EQ(g[i].n, i == 1 ? 9 : 3);
        CHECK_NEAR(g[i].update_ratio * g[i].weight_norm, 0.1 * sqrt(i == 1 ? 9 : 3), 1e-6);
    }
    CHECK_OK(ctx);
}

TEST(report, the_table_has_a_line_for_each_row)
{
    char            text[2048] = "";
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *m = bowl(ctx, MLC_F32, BOWL_N, BOWL_P);
    mlc_optim      *opt = mlc_sgd(m, 0.125);
    mlc_grad_report r;
    bowl_backward(m, opt, MLC_F32, BOWL_N, BOWL_W);
    CHECK_EQ(mlc_optim_step_report(opt, &r, 1, NULL), MLC_OK);
    CHECK_EQ(mlc_grad_report_print(ctx, &r, 1, keep_text, text), MLC_OK);
    CHECK_HAS(text, "Gradient of                      Elements      Norm      Mean   Largest     "
                    "Zeros Not finite   Weights    Update  2^-30 to 2^9\n");
    CHECK_HAS(text, "\np                                       8  1.02e+03       128  1.02e+03 "
                    "     0.25          0      9.29      13.8 |                             *"
                    "##       *|\n");
    CHECK_EQ(mlc_grad_report_print(ctx, NULL, 0, keep_text, text), MLC_OK);
    CHECK_OK(ctx);
}

TEST(report, wrong_calls_are_errors)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *m = bowl(ctx, MLC_F32, BOWL_N, BOWL_P);
    mlc_optim      *opt = mlc_sgd(m, 0.125);
    mlc_grad_report r;
    int64_t         n = 3;
    CHECK_EQ(mlc_optim_report(opt, &r, -1, &n), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "optim_report: most is -1");
    CHECK_EQ(n, 0);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_step_report(opt, NULL, 2, &n), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_grad_report_print(ctx, NULL, 2, keep_text, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_report(NULL, &r, 1, &n), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_step_report(NULL, &r, 1, &n), MLC_ERR_ARG);
    CHECK_EQ(mlc_grad_report_print(NULL, &r, 1, keep_text, NULL), MLC_ERR_ARG);
    mlc_module_free(m);
    CHECK_EQ(mlc_optim_report(opt, &r, 1, &n), MLC_ERR_STATE);
    mlc_error_clear(ctx);
}

/* ---- noise ---------------------------------------------------------------------------------- */

/* By how much the last of so many steps of the rate 1 moves parameters without a gradient: minus
 * the noise.                                                                                     */
static void noisy(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int steps, bool scaler, int calls,
                  double *out)
{
    double     *zero = (double *)calloc((size_t)n, sizeof *zero);
    mlc_module *m = bowl_as(ctx, dtype, n, zero);
    mlc_optim  *opt = mlc_sgd(m, 1);
    mlc_tensor *p = mlc_module_param(m, "p");
    CHECK_EQ(mlc_optim_noise(opt, 0.09, 0.5), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, calls), MLC_OK);
    if (scaler) mlc_optim_scaler(opt, NULL);
    for (int i = 0; i < steps * calls; i++) {
        if (i == (steps - 1) * calls) mlc_copy_into(p, test_tensor(ctx, dtype, mlc_dims1(n), zero));
        bowl_backward(m, opt, dtype, n, zero);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    }
    test_read(p, out);
    free(zero);
    mlc_optim_free(opt);
}

static void check_normal(const double *x, int64_t n, double variance)
{
    double sum = 0, squares = 0, fourth = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
        fourth += x[i] * x[i] * x[i] * x[i];
    }
    const double var = squares / (double)n;
    CHECK_NEAR(sum / (double)n, 0, 5 * sqrt(variance / (double)n));
    CHECK_NEAR(var / variance, 1, 5 * sqrt(2 / (double)n));
    CHECK_NEAR(fourth / (double)n / (var * var), 3, 0.15);
}

TEST(noise, is_normal_and_its_variance_falls_with_the_updates)
{
    static const mlc_dtype dtypes[3] = {MLC_F32, MLC_F64, MLC_BF16};
    double  *x = (double *)malloc(MANY * sizeof *x);
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        noisy(ctx, dtypes[i], MANY, 1, false, 1, x);
        check_normal(x, MANY, 0.09);
    }
    noisy(ctx, MLC_F32, MANY, 4, false, 1, x);
    check_normal(x, MANY, 0.09 / 2);   /* of t = 3: 4^0.5 */
    CHECK_OK(ctx);
    free(x);
}

/* flat->id is that of the context's first module in each.                                        */
TEST(noise, has_the_same_bits_on_any_number_of_threads_and_on_every_level)
{
    double *want = (double *)malloc(2 * MANY * sizeof *want), *x = want + MANY;
    FOR_EACH_ISA(ctx) {
        const bool first = mlc_ctx_isa(ctx) == MLC_ISA_SCALAR;
        for (int threads = 1; threads <= 3; threads += 2) {
            mlc_ctx_desc d = test_desc();
            d.threads = threads;
            d.isa = mlc_ctx_isa(ctx);
            mlc_ctx *own = mlc_ctx_create(&d);
            noisy(own, MLC_F32, MANY, 2, false, 1, first && threads == 1 ? want : x);
            CHECK_OK(own);
            mlc_ctx_free(own);
            CHECK((first && threads == 1) || memcmp(x, want, MANY * sizeof *x) == 0);
        }
    }
    free(want);
}

/* By powers of two, so that nothing is rounded.                                                  */
TEST(noise, is_as_large_under_a_scaler_and_with_collected_gradients)
{
    enum { N = 1000 };
    double want[N], x[N];
    for (int k = 0; k < 3; k++) {
        mlc_ctx *ctx = test_ctx();     /* fresh: a module of the same number */
        noisy(ctx, MLC_F32, N, 2, k == 1, k == 2 ? 2 : 1, k ? x : want);
        CHECK(k == 0 || memcmp(x, want, sizeof x) == 0);
        CHECK_OK(ctx);
    }
    CHECK(want[0] != 0);
}

/* Parameters, pieces of one, and updates draw noise of their own.                                */
TEST(noise, is_drawn_anew_for_each_parameter_piece_and_update)
{
    enum { PIECE = 262144 };
    double     *x = (double *)malloc((PIECE + 100) * sizeof *x), one[2], two[2];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = tower(ctx);
    mlc_optim  *opt = mlc_sgd(net, 1);
    noisy(ctx, MLC_F32, PIECE + 100, 1, false, 1, x);
    CHECK(x[0] != x[PIECE] && x[1] != x[PIECE + 1] && x[PIECE] != 0);
    CHECK_EQ(mlc_optim_noise(opt, 1, 0), MLC_OK);
    for (int i = 0; i < 2; i++) {
        const double a = first_value(net, "blocks.0.bias"), b = first_value(net, "blocks.1.bias");
        slide(net, 0);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        one[i] = first_value(net, "blocks.0.bias") - a;
        two[i] = first_value(net, "blocks.1.bias") - b;
    }
    CHECK(fabs(one[0] - two[0]) > 1e-4 && fabs(one[0] - one[1]) > 1e-4);
    CHECK(fabs(one[1] - two[1]) > 1e-4 && fabs(two[0] - two[1]) > 1e-4);
    CHECK_OK(ctx);
    free(x);
}

TEST(noise, of_zero_is_none_and_no_step_is_made_inside_backward_with_it)
{
    enum { WIDE = 128 };
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlc_nn_linear(ctx, WIDE, WIDE);
    mlc_optim     *opt = mlc_sgd(net, 1);
    mlc_tensor    *x = mlc_full(ctx, MLC_F32, mlc_dims2(2, WIDE), 0.5);
    static double  was[WIDE * WIDE], is[WIDE * WIDE];
    int            moved = 0;
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    CHECK_EQ(mlc_optim_noise(opt, 1, 0), MLC_OK);
    test_read(mlc_module_param(net, "weight"), was);
    mlc_backward(mlc_mul_scalar(mlc_mean_all(mlc_forward(net, x)), 0));
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    test_read(mlc_module_param(net, "weight"), is);
    for (int i = 0; i < WIDE * WIDE; i++)
        moved += was[i] != is[i];
    CHECK(moved > WIDE * WIDE * 9 / 10);
    CHECK_EQ(mlc_optim_noise(opt, 0, 0), MLC_OK);
    mlc_backward(mlc_mul_scalar(mlc_mean_all(mlc_forward(net, x)), 0));
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_VALUES(mlc_module_param(net, "weight"), WIDE * WIDE, is, 0, 0);
    CHECK_OK(ctx);
}

TEST(noise, wrong_numbers_are_errors)
{
    static const double bad[3] = {-1, INF, NO_NUMBER};
    mlc_ctx   *ctx = test_ctx();
    mlc_optim *opt = mlc_sgd(bowl(ctx, MLC_F32, BOWL_N, BOWL_P), 1);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(mlc_optim_noise(opt, bad[i], 0.55), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "optim_noise: eta");
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_optim_noise(opt, 0.1, bad[i]), MLC_ERR_ARG);
        mlc_error_clear(ctx);
    }
    CHECK_EQ(mlc_optim_noise(NULL, 0.1, 0.55), MLC_ERR_ARG);
}
