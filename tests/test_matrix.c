/* test_matrix.c -- tests of IMPL.OPTIM.MATRIX: Adafactor and Muon, rules of whole matrices
 *
 * Their traces are in test_rules.c, their states after a stop in test_optim_state.c.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "bowl.h"
#include "watch.h"

enum { COUNT = 48 };

/* Numbers in [-1, 1], the same for each seed. */
static void some(double *to, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (double)(seed >> 8) / 8388608.0 - 1.0;
    }
}

static mlc_tensor *state_of(mlc_optim *opt, const char *name)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it))
        if (strcmp(it.name, name) == 0) return it.tensor;
    return NULL;
}

/* What p of this shape is after some steps on sum(w p^2). */
static mlc_optim *walk(mlc_ctx *ctx, mlc_optim *(*make)(mlc_module *m), mlc_dtype dtype,
                       mlc_dims dims, int steps, double *p)
{
    double start[COUNT], weight[COUNT];
    some(start, COUNT, 1);
    some(weight, COUNT, 2);
    mlc_module *m = bowl_of(ctx, dtype, dims, start);
    mlc_tensor *w = test_tensor(ctx, dtype, dims, weight);
    mlc_optim  *opt = make(m);
    for (int step = 0; step < steps; step++) CHECK_EQ(descend(m, opt, w), MLC_OK);
    test_read(mlc_module_param(m, "p"), p);
    return opt;
}

static mlc_optim *make_muon(mlc_module *m) { return mlc_muon(m, 0.02); }
static mlc_optim *make_adafactor(mlc_module *m) { return mlc_adafactor(m, 0.01); }

/* ---- shapes --------------------------------------------------------------------------------- */

TEST(matrix, muon_steps_a_convolution_as_a_matrix_of_its_first_axis)
{
    double p[2][COUNT];
    FOR_EACH_ISA(ctx) {
        for (int half = 0; half < 2; half++) {
            const mlc_dtype dtype = half ? MLC_F32 : MLC_F64;
            walk(ctx, make_muon, dtype, mlc_dims4(4, 3, 2, 2), 5, p[0]);
            walk(ctx, make_muon, dtype, mlc_dims2(4, 12), 5, p[1]);
            CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
        }
        CHECK_OK(ctx);
    }
}

/* After one step the means are those of its gradient, 2 w p. */
TEST(matrix, adafactor_keeps_means_of_the_last_two_axes)
{
    double start[COUNT], weight[COUNT], rows[8], columns[12], want[12], p[COUNT];
    some(start, COUNT, 1);
    some(weight, COUNT, 2);
    for (int i = 0; i < COUNT; i++) start[i] = 4 * start[i] * start[i] * weight[i] * weight[i];
    FOR_EACH_ISA(ctx) {
        mlc_optim  *opt = walk(ctx, make_adafactor, MLC_F64, mlc_dims3(2, 4, 6), 1, p);
        mlc_tensor *row = state_of(opt, "state.p.row_var"), *column = state_of(opt,
                                                                               "state.p.col_var");
        CHECK(!state_of(opt, "state.p.variance"));
        if (!CHECK(row && column)) return;
        CHECK(row->ndim == 3 && row->shape[0] == 2 && row->shape[1] == 4 && row->shape[2] == 1);
        CHECK(column->shape[0] == 2 && column->shape[1] == 1 && column->shape[2] == 6);
        test_read(row, rows);
        test_read(column, columns);
        for (int i = 0; i < 8; i++) {
            double sum = 0;
            for (int k = 0; k < 6; k++) sum += start[6 * i + k];
            CHECK_NEAR(rows[i], sum / 6, 1e-14);
        }
        for (int i = 0; i < 12; i++) {
            want[i] = 0;
            for (int k = 0; k < 4; k++) want[i] += start[i / 6 * 24 + 6 * k + i % 6] / 4;
            CHECK_NEAR(columns[i], want[i], 1e-14);
        }
        opt = walk(ctx, make_adafactor, MLC_F32, mlc_dims1(COUNT), 1, p);
        CHECK(!state_of(opt, "state.p.row_var") && state_of(opt, "state.p.variance")->ndim == 1);
        CHECK_OK(ctx);
    }
}

/* Matrices have one state in Muon, hardly any in Adafactor. */
TEST(matrix, states_take_little_memory)
{
    const int64_t n = 256 * 512;
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *m = mlc_nn_linear(ctx, 512, 256);
    mlc_memory    before, after;
    mlc_module_build(m);
    for (int muon = 0; muon < 2; muon++) {
        mlc_memory_info(ctx, &before);
        mlc_optim *opt = muon ? mlc_muon(m, 0.02) : mlc_adafactor(m, 0.01);
        mlc_memory_info(ctx, &after);
        const int64_t bytes = after.now[MLC_MEM_OPTIM] - before.now[MLC_MEM_OPTIM];
        CHECK(bytes < (muon ? 4 * n + 16384 : 16384));
        CHECK(bytes > (muon ? 4 * n : 4 * (256 + 512 + 256)));
        mlc_optim_free(opt);
    }
    CHECK_OK(ctx);
}

/* ---- Muon's AdamW --------------------------------------------------------------------------- */

static mlc_optim *make_mixed(mlc_module *m)
{
    mlc_muon_desc d = mlc_muon_desc_make(0.1);
    d.adamw.lr = 0.05;
    d.adamw.beta1 = 0.8;
    d.adamw.beta2 = 0.95;
    d.adamw.eps = 1e-6;
    d.adamw.weight_decay = 0.2;
    return mlc_muon_ex(m, &d);
}

static mlc_optim *make_all_adamw(mlc_module *m)
{
    mlc_group_desc g = mlc_group_desc_make();
    mlc_optim     *opt = make_mixed(m);
    g.adamw = true;
    CHECK_EQ(mlc_optim_group(opt, "*", &g), MLC_OK);
    return opt;
}

/* A group with a decay and a rate of its own. */
static mlc_optim *make_group(mlc_module *m)
{
    mlc_group_desc g = mlc_group_desc_make();
    mlc_optim     *opt = make_mixed(m);
    g.adamw = true;
    g.lr_scale = 3;
    g.weight_decay = 0.05;
    g.has_weight_decay = true;
    CHECK_EQ(mlc_optim_group(opt, "p", &g), MLC_OK);
    return opt;
}

static mlc_optim *adamw_of(mlc_module *m, double lr, double decay)
{
    mlc_adam_desc d = mlc_adamw_desc_make(lr);
    d.beta1 = 0.8;
    d.beta2 = 0.95;
    d.eps = 1e-6;
    d.weight_decay = decay;
    return mlc_adamw_ex(m, &d);
}

static mlc_optim *make_adamw(mlc_module *m) { return adamw_of(m, 0.05, 0.2); }
static mlc_optim *make_group_adamw(mlc_module *m) { return adamw_of(m, 0.1 * 3 * 0.5, 0.05); }

TEST(matrix, what_is_no_matrix_takes_the_steps_of_adamw)
{
    double p[2][COUNT];
    FOR_EACH_ISA(ctx) {
        for (int half = 0; half < 2; half++) {
            const mlc_dtype dtype = half ? MLC_F32 : MLC_F64;
            const mlc_dims  flat = mlc_dims1(COUNT), square = mlc_dims2(6, 8);
            walk(ctx, make_adamw, dtype, flat, 20, p[0]);
            walk(ctx, make_mixed, dtype, flat, 20, p[1]);
            CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
            walk(ctx, make_all_adamw, dtype, square, 20, p[1]);
            CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
            walk(ctx, make_group_adamw, dtype, square, 20, p[0]);
            walk(ctx, make_group, dtype, square, 20, p[1]);
            CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
        }
        CHECK_OK(ctx);
    }
}

/* The states of others stay. */
TEST(matrix, a_group_of_adamw_changes_the_states_of_its_own_parameters)
{
    mlc_group_desc g = mlc_group_desc_make();
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 5));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    mlc_module_build(net);
    mlc_optim *opt = mlc_muon(net, 0.02);
    mlc_scope_begin(ctx);
    mlc_optim_minimize(opt, mlc_mean_all(mlc_square(
        mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(6, 4), 1, -1, 1)))));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    const uint64_t first = hash_tensor(1, state_of(opt, "state.0.weight.momentum_buffer"));
    const uint64_t bias = hash_tensor(1, state_of(opt, "state.1.bias.exp_avg_sq"));
    CHECK(!state_of(opt, "state.1.weight.exp_avg"));
    g.adamw = true;
    CHECK_EQ(mlc_optim_group(opt, "1.*", &g), MLC_OK);
    CHECK(hash_tensor(1, state_of(opt, "state.0.weight.momentum_buffer")) == first);
    CHECK(hash_tensor(1, state_of(opt, "state.1.bias.exp_avg_sq")) == bias);
    CHECK(!state_of(opt, "state.1.weight.momentum_buffer"));
    CHECK_NEAR(mlc_item(mlc_sum_all(mlc_abs(state_of(opt, "state.1.weight.exp_avg")))), 0, 0);

    mlc_optim *other = mlc_adamw(net, 0.1);
    CHECK_EQ(mlc_optim_group(other, "*", &g), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "adamw is of mlc_muon; the optimizer is adamw");
    mlc_error_clear(ctx);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static mlc_optim *make_clipped(mlc_module *m)
{
    mlc_clip_desc c = mlc_clip_desc_make();
    mlc_optim    *opt = mlc_muon(m, 0.02);
    c.norm = 0.5;
    CHECK_EQ(mlc_optim_clip(opt, &c), MLC_OK);
    return opt;
}

TEST(matrix, a_clipped_gradient_is_what_the_momentum_sees)
{
    double start[COUNT], weight[COUNT], p[COUNT], momentum[COUNT], norm = 0;
    some(start, COUNT, 1);
    some(weight, COUNT, 2);
    for (int i = 0; i < COUNT; i++) start[i] *= 2 * weight[i], norm += start[i] * start[i];
    FOR_EACH_ISA(ctx) {
        mlc_optim *opt = walk(ctx, make_clipped, MLC_F64, mlc_dims2(8, 6), 1, p);
        CHECK_NEAR(mlc_optim_grad_norm(opt), sqrt(norm), 1e-12);
        test_read(state_of(opt, "state.p.momentum_buffer"), momentum);
        for (int i = 0; i < COUNT; i++)
            CHECK_NEAR(momentum[i], 0.05 * start[i] * 0.5 / (sqrt(norm) + 1e-6), 1e-14);
        CHECK_OK(ctx);
    }
}

/* Without a gradient there is no step, but decay. */
TEST(matrix, gradients_of_zeros_decay_parameters)
{
    double start[COUNT], zeros[COUNT] = {0}, p[COUNT];
    some(start, COUNT, 1);
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 4; i++) {
            const mlc_dims     dims = i < 2 ? mlc_dims2(6, 8) : mlc_dims1(COUNT);
            mlc_adafactor_desc d = mlc_adafactor_desc_make(0.1);
            mlc_muon_desc      u = mlc_muon_desc_make(0.1);
            d.weight_decay = u.weight_decay = u.adamw.weight_decay = 0.5;
            d.eps1 = 1e-30;
            mlc_module *m = bowl_of(ctx, MLC_F32, dims, start);
            mlc_optim  *opt = i % 2 ? mlc_muon_ex(m, &u) : mlc_adafactor_ex(m, &d);
            CHECK_EQ(descend(m, opt, test_tensor(ctx, MLC_F32, dims, zeros)), MLC_OK);
            test_read(mlc_module_param(m, "p"), p);
            for (int k = 0; k < COUNT; k++) CHECK_NEAR(p[k], 0.95 * start[k], 1e-6);
        }
        CHECK_OK(ctx);
    }
}

static mlc_optim *make_fixed(mlc_module *m)
{
    mlc_adafactor_desc d = mlc_adafactor_desc_make(0.25);
    d.fixed = true;
    d.clip = 0.5;
    return mlc_adafactor_ex(m, &d);
}

/* The first update of a vector is its gradient's signs, of which the clip leaves a half. */
TEST(matrix, a_fixed_rate_of_adafactor_is_the_rate)
{
    double start[COUNT], weight[COUNT], p[COUNT];
    some(start, COUNT, 1);
    some(weight, COUNT, 2);
    FOR_EACH_ISA(ctx) {
        walk(ctx, make_fixed, MLC_F64, mlc_dims1(COUNT), 1, p);
        for (int i = 0; i < COUNT; i++)
            CHECK_NEAR(p[i], start[i] - (weight[i] * start[i] > 0 ? 0.125 : -0.125), 1e-12);
        CHECK_OK(ctx);
    }
}

static uint64_t trained(int threads, bool muon, mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.threads = threads;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = mlc_nn_linear(ctx, 300, 130);
    mlc_module_to(net, dtype);
    mlc_optim *opt = muon ? mlc_muon(net, 0.02) : mlc_adafactor(net, 0.01);
    for (int step = 0; step < 3; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(16, 300), (uint64_t)step, -1, 1);
        mlc_optim_minimize(opt, mlc_mean_all(mlc_square(mlc_forward(net, x))));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    const uint64_t h = hash_net(1, net);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return h;
}

TEST(matrix, bits_do_not_depend_on_threads)
{
    static const mlc_dtype dtype[] = {MLC_F32, MLC_F64, MLC_BF16};
    for (int i = 0; i < 6; i++) {
        const uint64_t one = trained(1, i % 2 != 0, dtype[i / 2]);
        for (int threads = 2; threads <= 4; threads++)
            CHECK(trained(threads, i % 2 != 0, dtype[i / 2]) == one);
    }
}

typedef struct trial { mlc_module *m; mlc_optim *opt; mlc_tensor *w; } trial;

static double try_rate(void *user)
{
    trial *t = (trial *)user;
    mlc_scope_begin(mlc_module_ctx(t->m));
    const double loss = mlc_item(mlc_forward(t->m, t->w));
    mlc_scope_end(mlc_module_ctx(t->m));
    CHECK_EQ(descend(t->m, t->opt, t->w), MLC_OK);
    return loss;
}

/* The states that a trial of rates moves are copies. */
TEST(matrix, states_are_as_before_after_a_range_of_rates)
{
    static const char *const name[] = {"state.p.row_var", "state.p.momentum_buffer"};
    double start[COUNT], weight[COUNT], rates[6], losses[6];
    some(start, COUNT, 1);
    for (int i = 0; i < COUNT; i++) weight[i] = 0.5 + i / 100.0;
    for (int muon = 0; muon < 2; muon++) {
        mlc_ctx          *ctx = test_ctx();
        mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 6);
        trial t = {bowl_of(ctx, MLC_F32, mlc_dims2(6, 8), start), NULL,
                   test_tensor(ctx, MLC_F32, mlc_dims2(6, 8), weight)};
        t.opt = muon ? make_muon(t.m) : make_adafactor(t.m);
        for (int i = 0; i < 3; i++) try_rate(&t);
        const uint64_t p = hash_net(1, t.m), state = hash_tensor(1, state_of(t.opt, name[muon]));
        CHECK_EQ(mlc_lr_range(t.opt, &d, try_rate, &t, NULL, NULL), MLC_OK);
        CHECK(hash_net(1, t.m) == p);
        CHECK(hash_tensor(1, state_of(t.opt, name[muon])) == state);
        try_rate(&t);
        CHECK(hash_tensor(1, state_of(t.opt, name[muon])) != state);
        CHECK_OK(ctx);
    }
}

/* torch.optim.Muon has no step, and one state. */
TEST(matrix, a_momentum_of_pytorch_loads)
{
    const box   b = box_open_fast("muon.safetensors");
    double      values[COUNT], p[COUNT];
    mlc_ctx    *ctx = test_ctx();
    mlc_optim  *opt = walk(ctx, make_muon, MLC_F32, mlc_dims2(6, 8), 2, p);
    mlc_tensor *t = test_rand(ctx, MLC_F32, mlc_dims2(6, 8), 9, -1, 1);
    const mlc_named list = {"state.0.momentum_buffer", t};
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, &list, 1, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_load(opt, b.path), MLC_OK);
    test_read(t, values);
    CHECK_VALUES(state_of(opt, "state.p.momentum_buffer"), COUNT, values, 0, 0);
    CHECK_OK(ctx);
    box_close(&b);
}
