/* test_nn.c -- tests of section IMPL.NN: the module tree, summary, errors */
#include "nets.h"

/* ---- names, order, nesting ---------------------------------------------------------------- */

static void check_names(mlc_module *m, const char *const *want, int n)
{
    mlc_param_iter it = mlc_param_iter_make(m);
    int            i = 0;
    for (; mlc_param_next(&it); i++)
        if (CHECK(i < n))
            CHECK_STR(it.name, want[i]);
    CHECK_EQ(i, n);
}

TEST(nn, names_are_dotted_paths_in_declaration_order)
{
    static const char *const want[] = {"0.weight", "0.bias", "1.gain", "1.calls",
                                       "1.inner.0.weight", "1.inner.0.bias", "1.inner.2.weight",
                                       "1.inner.2.bias"};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 4));
    mlc_module_add(net, residual(ctx, mlp(ctx, 4, 5, 4), 0.5));
    check_names(net, want, COUNT(want));
    check_names(mlc_module_child(mlc_module_child(net, 1), 0), (const char *const[]){
                "0.weight", "0.bias", "2.weight", "2.bias"}, 4);
    CHECK_EQ(mlc_dim(mlc_module_param(net, "1.inner.2.weight"), 1), 5);
    CHECK(mlc_module_param(net, "1.inner.0.bias") ==
          mlc_module_param(mlc_module_child(net, 1), "inner.0.bias"));
    CHECK_OK(ctx);
    CHECK(mlc_module_param(net, "1.inner.1.weight") == NULL);
    CHECK_HAS(mlc_error(ctx), "1.inner.1.weight");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, iteration_tells_buffers_and_trainable_parameters_apart)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = residual(ctx, mlc_nn_linear(ctx, 2, 2), 1);
    mlc_param_iter it = mlc_param_iter_make(net);
    int            buffers = 0, trainable = 0;
    while (mlc_param_next(&it)) {
        CHECK_EQ(it.buffer, strcmp(it.name, "calls") == 0);
        CHECK_EQ(mlc_requires_grad(it.tensor), !it.buffer);
        buffers += it.buffer;
        trainable += it.trainable;
    }
    CHECK_EQ(buffers, 1);
    CHECK_EQ(trainable, 3);
    CHECK_EQ(mlc_module_numel(net, false), 1 + 4 + 2);
}

TEST(nn, names_that_cannot_be_are_refused)
{
    static const char *const bad[] = {"", "a.b", "taken", "inner",
        "a_name_that_is_very_long_a_name_that_is_very_long_a_name_that_is_very_long_"
        "a_name_that_is_very_long_a_name_that_is_very_long_a_name_that_is_very_long_"
        "a_name_that_is_very_long_a_name_that_is_very_long_a_name_that_is_very_long_"
        "a_name_that_is_very_long_a_name_that_is_very_long_a_name_that_is_very_long", NULL};
    mlc_param_desc d;
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *m = residual(ctx, mlc_nn_linear(ctx, 2, 2), 1);
    d = mlc_param_desc_make(mlc_dims0());
    CHECK(mlc_module_declare(m, "taken", &d) != NULL);
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(mlc_module_declare(m, bad[i], &d) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        CHECK_EQ(mlc_module_add_named(m, bad[i], mlc_nn_relu(ctx)), MLC_ERR_ARG);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    CHECK(mlc_module_declare(m, "x", NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_module_declare(NULL, "x", &d) == NULL);
    CHECK_OK(ctx);
}

TEST(nn, a_child_that_is_null_becomes_the_contexts_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    CHECK_EQ(mlc_module_add(net, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "child is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 0, 3)), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "linear");                   /* the first error says why         */
    CHECK_HAS(mlc_error(ctx), "0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_add(NULL, net), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_add(NULL, NULL), MLC_ERR_ARG);
    CHECK_OK(ctx);
}

TEST(nn, a_module_has_one_parent_and_does_not_contain_itself)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *a = mlc_nn_sequential(ctx), *b = mlc_nn_sequential(ctx);
    mlc_module *c = mlc_nn_relu(ctx);
    CHECK_EQ(mlc_module_add(a, b), MLC_OK);
    CHECK_EQ(mlc_module_add(b, c), MLC_OK);
    CHECK_EQ(mlc_module_add(a, c), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_add(b, a), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_add(a, a), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_module_child(a, 0) == b && mlc_module_child(b, 0) == c);
    CHECK(mlc_module_child(a, 1) == NULL && mlc_module_child(a, -1) == NULL);
    mlc_module_free(b);                                    /* detaches itself, frees c         */
    CHECK(mlc_module_child(a, 0) == NULL);
    mlc_module_free(NULL);
    CHECK_OK(ctx);
}

TEST(nn, release_runs_once_whether_freed_or_not)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL))
        return;
    mlc_module *a = residual(ctx, mlc_nn_relu(ctx), 1);
    residual(ctx, mlc_nn_relu(ctx), 1);
    released = 0;
    mlc_module_free(a);
    CHECK_EQ(released, 1);
    mlc_ctx_free(ctx);
    CHECK_EQ(released, 2);
}

/* ---- building ----------------------------------------------------------------------------- */

TEST(nn, creators_only_declare_and_the_first_use_builds)
{
    mlc_memory  before, after;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 100, 100, 100);
    mlc_memory_info(ctx, &before);
    CHECK_EQ(before.now[MLC_MEM_PARAM], 0);
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 100))) != NULL);
    mlc_memory_info(ctx, &after);
    CHECK(after.now[MLC_MEM_PARAM] >= 2 * 101 * 100 * 4);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    mlc_memory_info(ctx, &before);
    CHECK_EQ(before.now[MLC_MEM_PARAM], after.now[MLC_MEM_PARAM]);
    CHECK_OK(ctx);
}

TEST(nn, parameters_lie_in_one_block_on_cache_lines)
{
    mlc_ctx *ctx = test_ctx();
    if (!CHECK(mlc_ctx_on_host(ctx) == test_on_host()) || !test_on_host())
        return;
    mlc_module    *net = mlp(ctx, 3, 5, 2);
    mlc_param_iter it = mlc_param_iter_make(net);
    const float   *first = NULL;
    int64_t        at = 0;
    while (mlc_param_next(&it)) {
        const float *p = mlc_f32(it.tensor);
        first = first ? first : p;
        CHECK_EQ((uintptr_t)p % 64, 0);
        CHECK_EQ(p - first, at);
        at += (mlc_numel(it.tensor) + 15) / 16 * 16;
        for (int64_t i = mlc_numel(it.tensor); i % 16 != 0; i++)
            CHECK(p[i] == 0);                              /* zero padded                      */
    }
}

TEST(nn, linear_starts_uniform_within_one_over_the_root_of_in)
{
    enum { IN = 100, OUT = 97 };
    static double w[IN * OUT], b[OUT];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *m = mlc_nn_linear(ctx, IN, OUT);
    double        sum = 0, square = 0, most = 0;
    test_read(mlc_module_param(m, "weight"), w);
    test_read(mlc_module_param(m, "bias"), b);
    for (int i = 0; i < IN * OUT; i++) {
        sum += w[i];
        square += w[i] * w[i];
        most = fabs(w[i]) > most ? fabs(w[i]) : most;
        CHECK(i >= OUT || fabs(b[i]) <= 0.1);
    }
    CHECK(most <= 0.1 && most > 0.0999);
    CHECK_NEAR(sum / (IN * OUT), 0, 5 * 0.1 / sqrt(3.0 * IN * OUT));    /* five deviations     */
    CHECK_NEAR(square / (IN * OUT), 0.01 / 3, 2e-4);
}

static void read_named(uint64_t seed, bool extra, double *w)
{
    mlc_ctx_desc d = test_desc();
    d.seed = seed;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
    mlc_module *net = mlc_nn_sequential(ctx);
    if (extra)
        mlc_module_add_named(net, "extra", mlc_nn_linear(ctx, 3, 3));
    mlc_module_add_named(net, "first", mlc_nn_linear(ctx, 3, 3));
    mlc_module_add_named(net, "second", mlc_nn_linear(ctx, 3, 3));
    test_read(mlc_module_param(net, "first.weight"), w);
    test_read(mlc_module_param(net, "second.weight"), w + 9);
}

TEST(nn, initial_values_depend_on_seed_and_name_only)
{
    double a[18], b[18];
    read_named(1, false, a);
    CHECK(memcmp(a, a + 9, 9 * sizeof *a) != 0);
    read_named(1, true, b);                                /* a layer more changes no other    */
    CHECK(memcmp(a, b, sizeof a) == 0);
    read_named(2, false, b);
    CHECK(memcmp(a, b, sizeof a) != 0);
}

TEST(nn, initial_values_are_the_same_on_each_isa_level)
{
    double first[20], now[20];
    int    level = 0;
    FOR_EACH_ISA(ctx) {
        test_read(mlc_module_param(mlc_nn_linear(ctx, 4, 5), "weight"), level ? now : first);
        CHECK(level == 0 || memcmp(first, now, sizeof now) == 0);
        level++;
    }
}

TEST(nn, initialisers_make_what_they_say)
{
    enum { N = 10000 };
    static double v[N];
    const mlc_init kinds[] = {MLC_INIT_ZEROS, MLC_INIT_CONSTANT, MLC_INIT_UNIFORM,
                              MLC_INIT_NORMAL};
    const double   mean[] = {0, 3, 4, 3}, deviation[] = {0, 0, 0.577350269, 5};
    mlc_ctx       *ctx = test_ctx();
    for (int k = 0; k < 4; k++) {
        mlc_param_desc d;
        double         sum = 0, square = 0;
        mlc_module    *m = mlc_module_create(ctx, &RESIDUAL, NULL, sizeof(int));
        d = mlc_param_desc_make(mlc_dims1(N));
        d.init = kinds[k];
        d.a = 3;
        d.b = 5;
        mlc_module_declare(m, "p", &d);
        test_read(mlc_module_param(m, "p"), v);
        for (int i = 0; i < N; i++) {
            sum += v[i];
            square += (v[i] - mean[k]) * (v[i] - mean[k]);
        }
        CHECK_NEAR(sum / N, mean[k], 5 * deviation[k] / sqrt((double)N));
        CHECK_NEAR(sqrt(square / N), deviation[k], 0.04 * deviation[k]);
    }
    CHECK_OK(ctx);
}

TEST(nn, rebuild_and_growth_move_values_and_keep_tensors)
{
    double      before[15], after[15];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    test_read(w, before);
    CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    CHECK(mlc_module_param(net, "0.weight") == w);
    test_read(w, after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 2, 2)), MLC_OK);
    mlc_tensor *y = mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 3)));
    CHECK_EQ(mlc_dim(y, 1), 2);
    CHECK(mlc_module_param(net, "0.weight") == w);
    test_read(w, after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(ctx);
}

TEST(nn, parameters_and_buffers_become_another_dtype)
{
    static const mlc_dtype to[] = {MLC_BF16, MLC_F64, MLC_F16, MLC_F32};
    double      was[15], want[15], now[15], whole;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    mlc_param_desc number = {mlc_dims1(1), MLC_INIT_CONSTANT, 7, 0, MLC_I64, true, true};
    mlc_param_desc mean = {mlc_dims1(1), MLC_INIT_CONSTANT, 0.1, 0, MLC_F32, true, true};
    mlc_tensor *i = mlc_module_declare(net, "number", &number);
    mlc_tensor *b = mlc_module_declare(net, "mean", &mean);
    mlc_tensor *w = mlc_module_param(net, "0.weight"), *view = mlc_detach(w);
    test_read(w, was);
    for (int k = 0; k < 4; k++) {
        mlc_no_grad_begin(ctx);
        test_read(mlc_cast(w, to[k]), want);
        mlc_no_grad_end(ctx);
        CHECK_EQ(mlc_module_to(net, to[k]), MLC_OK);
        CHECK(mlc_module_param(net, "0.weight") == w && w->dtype == to[k] && b->dtype == to[k]);
        CHECK(i->dtype == MLC_I64 && test_read(i, &whole) && whole == 7);
        test_read(w, now);
        CHECK(memcmp(now, want, sizeof now) == 0);
        if (k == 3) break;
        CHECK(mlc_copy(view) == NULL);
        CHECK_HAS(mlc_error(ctx), "a view of a parameter that was f32 and is ");
        mlc_error_clear(ctx);
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, mlc_ones(ctx, to[k], mlc_dims2(4, 3)));
        CHECK(y != NULL && y->dtype == to[k]);
        CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "module_to: '");
        CHECK_HAS(mlc_error(ctx), "' is an input of a recorded linear; call it before, or ");
        mlc_error_clear(ctx);
        CHECK(w->dtype == to[k]);
        mlc_scope_end(ctx);
    }
    CHECK_OK(ctx);
    CHECK_EQ(mlc_module_to(net, MLC_I64), MLC_ERR_DTYPE);
    CHECK_STR(mlc_error(ctx), "module_to: i64; floats become f32, f64, bf16 or f16");
    CHECK_EQ(mlc_module_to(NULL, MLC_F32), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(w->dtype == MLC_F32);
}

TEST(nn, what_was_read_of_another_dtype_is_not_read_any_more)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 8, 8);
    mlc_tensor *w = mlc_module_param(net, "weight"), *flat = mlc_reshape(w, mlc_dims1(64)), *g;
    for (int k = 0; k < 2; k++) {
        const mlc_dtype to = k ? MLC_F64 : MLC_BF16;
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(net, mlc_ones(ctx, w->dtype, mlc_dims2(3, 8))),
                                      mlc_dims0(), false)), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        g = mlc_grad(w);
        CHECK_EQ(mlc_module_to(net, w->dtype), MLC_OK);               /* the same: nothing moves */
        CHECK(mlc_grad(w) != NULL);
        CHECK_EQ(mlc_module_to(net, to), MLC_OK);
        CHECK(mlc_cast(g, MLC_F64) == NULL);
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_backward_from(flat, mlc_ones(ctx, MLC_F32, mlc_dims1(64))), MLC_ERR_STATE);
        mlc_error_clear(ctx);
        CHECK(mlc_grad(w) == NULL && mlc_grad(flat) == NULL);
    }
    CHECK_OK(ctx);
}

static void nowhere(void *user, const char *text, size_t bytes)
{
    *(size_t *)user += bytes + (text == NULL);
}

TEST(nn, a_summary_takes_the_dtype_of_the_parameters)
{
    size_t      bytes = 0;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, 3), nowhere, &bytes), MLC_OK);
    CHECK(bytes > 200);
    CHECK_OK(ctx);
}

TEST(nn, a_root_with_values_can_become_a_child)
{
    double      before[15], after[15];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *inner = mlp(ctx, 3, 5, 2), *outer = mlc_nn_sequential(ctx);
    test_read(mlc_module_param(inner, "0.weight"), before);
    CHECK_EQ(mlc_module_add(outer, inner), MLC_OK);
    test_read(mlc_module_param(outer, "0.0.weight"), after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(ctx);
}

/* ---- sharing, freezing, modes ------------------------------------------------------------- */

static mlc_status pair_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *w = mlc_module_param(mlc_module_child(m, 0), "weight");
    (void)n_in;
    (void)n_out;
    out[0] = mlc_matmul(mlc_forward(mlc_module_child(m, 0), in[0]), w);
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static const mlc_module_class PAIR = {"Pair", pair_forward, NULL, NULL, 0, NULL};

TEST(nn, a_tied_parameter_is_laid_out_once_and_gets_both_gradients)
{
    static const double      x[] = {1, 2, 3};
    double                   w[6], g[6], h[2];
    mlc_nn_linear_desc          d = mlc_nn_linear_desc_make(3, 2);
    mlc_ctx                 *ctx = test_ctx();
    mlc_module              *m = mlc_module_create(ctx, &PAIR, NULL, 0);
    d.no_bias = d.has_dtype = true;
    d.dtype = MLC_F64;
    mlc_module_add_named(m, "encoder", mlc_nn_linear_ex(ctx, &d));
    mlc_tensor *weight = mlc_module_param(m, "encoder.weight");
    CHECK_EQ(mlc_module_tie(m, "decoder", weight), MLC_OK);
    CHECK(mlc_module_param(m, "decoder") == weight);
    CHECK_EQ(mlc_module_numel(m, false), 6);
    mlc_param_iter it = mlc_param_iter_make(m);
    CHECK(mlc_param_next(&it) && !mlc_param_next(&it));    /* under its first name             */
    test_read(weight, w);
    mlc_tensor *y = mlc_forward(m, test_tensor(ctx, MLC_F64, mlc_dims2(1, 3), x));
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);          /* y = (x w^T) w, dy of ones        */
    test_read(mlc_grad(weight), g);
    for (int i = 0; i < 2; i++)
        h[i] = x[0] * w[3 * i] + x[1] * w[3 * i + 1] + x[2] * w[3 * i + 2];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k++)
            CHECK_NEAR(g[3 * i + k], h[i] + (w[3 * i] + w[3 * i + 1] + w[3 * i + 2]) * x[k], 1e-12);
    CHECK_OK(ctx);
}

TEST(nn, tie_refuses_what_is_no_parameter)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_linear(ctx, 2, 2);
    CHECK_EQ(mlc_module_tie(m, "x", mlc_zeros(ctx, MLC_F32, mlc_dims1(2))), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_tie(m, "x", NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_tie(m, "bias", mlc_module_param(m, "weight")), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, freezing_goes_by_name_and_back)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    CHECK_EQ(mlc_module_numel(net, true), 15 + 5 + 10 + 2);
    CHECK_EQ(mlc_module_freeze(net, "*.bias", true), MLC_OK);
    CHECK_EQ(mlc_module_numel(net, true), 25);
    CHECK_EQ(mlc_module_numel(net, false), 32);
    CHECK(!mlc_requires_grad(mlc_module_param(net, "2.bias")));
    CHECK_EQ(mlc_module_freeze(mlc_module_child(net, 0), NULL, true), MLC_OK);
    CHECK_EQ(mlc_module_numel(net, true), 10);
    mlc_tensor *y = mlc_forward(net, mlc_full(ctx, MLC_F32, mlc_dims2(1, 3), 1));
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
    CHECK(mlc_grad(mlc_module_param(net, "0.weight")) == NULL);
    CHECK(mlc_grad(mlc_module_param(net, "2.weight")) != NULL);
    CHECK_EQ(mlc_module_freeze(net, NULL, false), MLC_OK);
    CHECK_EQ(mlc_module_numel(net, true), 32);
    CHECK_EQ(mlc_module_freeze(net, "7.*", true), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "7.*");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, what_is_unfrozen_is_trained_after_a_backward)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    mlc_module_freeze(net, "0.*", true);
    for (int pass = 0; pass < 2; pass++) {
        mlc_tensor *y = mlc_forward(net, mlc_full(ctx, MLC_F32, mlc_dims2(1, 3), 1));
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        CHECK_EQ(mlc_grad(mlc_module_param(net, "0.weight")) != NULL, pass);
        CHECK_EQ(mlc_module_freeze(net, "0.*", false), MLC_OK);
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    }
    CHECK_OK(ctx);
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

static mlc_status mean_square_step(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt)
{
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 5, -1, 1);
    mlc_optim_minimize(opt, mlc_mean_all(mlc_square(mlc_forward(net, x))));
    return mlc_scope_end(ctx);
}

/* how: 0: by a rebuild, as it was once needed; 1: by the call alone; 2: parameter by parameter. */
static void train_in_two_parts(int how, int made, double out[32])
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    CHECK_EQ(mlc_module_freeze(net, "0.*", true), MLC_OK);
    mlc_optim  *opt = mlc_adamw(net, 0.05);
    for (int step = 0; step < 8; step++) {
        if (step == 3 && how < 2) CHECK_EQ(mlc_module_freeze(net, "0.*", false), MLC_OK);
        if (step == 3 && how == 0) CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        if (step == 3 && how == 2) {
            mlc_set_requires_grad(mlc_module_param(net, "0.weight"), true);
            mlc_set_requires_grad(mlc_module_param(net, "0.bias"), true);
        }
        if (step == 3 && made) { mlc_optim_free(opt); opt = mlc_adamw(net, 0.05); }
        CHECK_EQ(mean_square_step(ctx, net, opt), MLC_OK);
    }
    CHECK_EQ(snapshot(net, out), 32);
    CHECK_OK(ctx);
}

/* made: a new optimizer after it. */
TEST(nn, what_was_frozen_at_the_build_is_trained_from_the_call_that_unfreezes_it)
{
    for (int made = 0; made < 2; made++) {
        double want[32], got[32], frozen[32];
        train_in_two_parts(0, made, want);
        for (int how = 1; how < 3; how++) {
            train_in_two_parts(how, made, got);
            CHECK(memcmp(want, got, sizeof want) == 0);
        }
        mlc_module *net = mlp(test_ctx(), 3, 5, 2);
        CHECK_EQ(snapshot(net, frozen), 32);
        for (int i = 0; i < 20; i++) CHECK(frozen[i] != got[i]);
    }
}

/* Between forward and backward, and between backward and step, the gradients of the others stay. */
TEST(nn, unfreezing_in_the_midst_of_a_step_loses_no_gradient)
{
    for (int when = 0; when < 3; when++) {
        double      start[32], got[32];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlp(ctx, 3, 5, 2);
        mlc_module_freeze(net, "0.*", true);
        mlc_optim  *opt = mlc_sgd(net, 0.5);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 5, -1, 1);
        snapshot(net, start);
        mlc_scope_begin(ctx);
        if (when == 0) mlc_module_freeze(net, "0.bias", false);
        mlc_tensor *y = mlc_forward(net, x);
        if (when == 1) mlc_module_freeze(net, "0.bias", false);
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        if (when == 2) mlc_module_freeze(net, "0.bias", false);
        CHECK(mlc_grad(mlc_module_param(net, "2.weight")) != NULL);
        CHECK_EQ(mlc_grad(mlc_module_param(net, "0.bias")) != NULL, when == 0);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        snapshot(net, got);
        for (int i = 0; i < 15; i++) CHECK(got[i] == start[i]);
        CHECK_EQ(memcmp(got + 15, start + 15, 5 * sizeof *got) != 0, when == 0);
        for (int i = 30; i < 32; i++) CHECK(got[i] != start[i]);
        CHECK_OK(ctx);
    }
}

static mlc_tensor *the_loss(void *user) { return (mlc_tensor *)user; }

/* how: 0: mlc_optim_minimize, 1: mlc_optim_step_with; rebuilt: laid out anew after it. A step of
 * one loss moves a weight by -1, the mean of the inputs. */
TEST(nn, a_gradient_from_before_minimize_is_no_part_of_the_step_right_after_unfreezing)
{
    for (int how = 0; how < 2; how++)
        for (int rebuilt = 0; rebuilt < 2; rebuilt++) {
            static const double less[] = {-1, -1, -1};
            mlc_ctx    *ctx = test_ctx();
            mlc_module *net = mlc_nn_linear(ctx, 3, 1);
            mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims2(2, 3), 1);
            mlc_tensor *w = mlc_module_param(net, "weight");
            mlc_write(w, (const float[]){0, 0, 0}, 12);
            CHECK_EQ(mlc_module_freeze(net, "weight", true), MLC_OK);
            CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
            mlc_optim *opt = mlc_sgd(net, 1);
            mlc_scope_begin(ctx);
            CHECK_EQ(mlc_optim_minimize(opt, mlc_mean_all(mlc_forward(net, x))), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            CHECK_EQ(mlc_module_freeze(net, "weight", false), MLC_OK);
            if (rebuilt) CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
            mlc_scope_begin(ctx);
            mlc_tensor *stray = mlc_mean_all(mlc_forward(net, x));
            mlc_tensor *loss = mlc_mean_all(mlc_forward(net, x));
            CHECK_EQ(mlc_backward(stray), MLC_OK);
            if (how == 0) CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
            if (how == 1) CHECK_EQ(mlc_optim_step_with(opt, the_loss, loss, NULL), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            CHECK_VALUES(w, 3, less, 0, 0);
            CHECK_OK(ctx);
        }
}

TEST(nn, train_and_eval_reach_all_children)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *inner = mlp(ctx, 2, 2, 2);
    mlc_module_add(net, inner);
    CHECK(mlc_module_is_training(net) && mlc_module_is_training(mlc_module_child(inner, 2)));
    mlc_module_train(net, false);
    CHECK(!mlc_module_is_training(net) && !mlc_module_is_training(mlc_module_child(inner, 2)));
    mlc_module_train(inner, true);
    CHECK(!mlc_module_is_training(net) && mlc_module_is_training(mlc_module_child(inner, 2)));
    CHECK(!mlc_module_is_training(NULL));
}

/* ---- hooks and paths ---------------------------------------------------------------------- */

TEST(nn, find_goes_by_dotted_path)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *encoder = mlp(ctx, 2, 3, 2);
    mlc_module *gate = mlc_nn_tanh(ctx);
    mlc_module_add_named(encoder, "gate", gate);
    mlc_module_add_named(net, "encoder", encoder);
    CHECK(mlc_module_find(net, "encoder") == encoder);
    CHECK(mlc_module_find(net, "encoder.gate") == gate);
    CHECK(mlc_module_find(encoder, "gate") == gate);
    CHECK(mlc_module_find(net, "encoder.1") == mlc_module_child(encoder, 1));
    CHECK(mlc_module_find(net, "") == net);
    CHECK(mlc_module_find(NULL, "gate") == NULL);
    CHECK_OK(ctx);
    const char *const none[] = {"gate",     "encode",        "encoder.gat", "encoder.gate.0", ".",
                                "encoder.", ".encoder", "encoder..gate", "encoder2", NULL};
    for (int i = 0; i < COUNT(none); i++) {
        char text[200];
        CHECK(mlc_module_find(net, none[i]) == NULL);
        snprintf(text, sizeof text, "module_find: there is no '%s'; mlc_summary shows the names of "
                 "layers", none[i] ? none[i] : "NULL");
        CHECK_STR(mlc_error(ctx), text);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
}

/* The last output handed out, and how many were.                                             */
typedef struct seen { mlc_module *m; mlc_tensor *t; int n; bool keep; } seen;

static bool see(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    seen *s = (seen *)user;
    s->m = m;
    s->t = out[n_out - 1];
    s->n++;
    return s->keep;
}

TEST(nn, a_hook_hands_out_what_a_layer_made_and_changes_no_bit)
{
    FOR_EACH_ISA(ctx) {
        enum { N = 9, IN = 33, HIDDEN = 17, OUT = 5 };
        double      y[N * OUT], h[N * HIDDEN];
        seen        linear = {NULL, NULL, 0, true}, relu = {NULL, NULL, 0, true};
        mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, IN), 1, -1, 1);
        mlc_tensor *plain = mlc_linear(x, mlc_module_param(net, "0.weight"),
                                       mlc_module_param(net, "0.bias"));
        test_read(plain, h);
        test_read(mlc_forward(net, x), y);
        mlc_module_hook(mlc_module_find(net, "0"), see, &linear);
        mlc_module_hook(mlc_module_find(net, "1"), see, &relu);
        for (int i = 1; i <= 2; i++) {                     /* recorded, and inference          */
            if (i == 2)
                mlc_no_grad_begin(ctx);
            CHECK_VALUES(mlc_forward(net, x), N * OUT, y, 0, 0);
            CHECK_EQ(linear.n, i);
            CHECK_EQ(relu.n, i);
            CHECK(linear.m == mlc_module_child(net, 0) && relu.m == mlc_module_child(net, 1));
            CHECK_VALUES(linear.t, N * HIDDEN, h, 0, 0);
            test_read(mlc_relu(plain), h);
            CHECK_VALUES(relu.t, N * HIDDEN, h, 0, 0);
            test_read(plain, h);
        }
        mlc_no_grad_end(ctx);
        mlc_module_hook(mlc_module_child(net, 0), NULL, NULL);
        CHECK_VALUES(mlc_forward(net, x), N * OUT, y, 0, 0);
        CHECK_EQ(linear.n, 2);
        CHECK_EQ(relu.n, 3);           /* the end of a fused pass is seen, too                 */
        CHECK_OK(ctx);
    }
}

TEST(nn, a_loss_of_a_kept_output_has_gradients_and_one_that_is_not_kept_is_freed)
{
    double      dw[12];
    mlc_ctx    *ctx = test_ctx();
    seen        s = {NULL, NULL, 0, true};
    mlc_module *net = mlp(ctx, 3, 4, 2);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 1, -1, 1);
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    CHECK_EQ(mlc_backward(mlc_mean(mlc_relu(mlc_linear(x, w, mlc_module_param(net, "0.bias"))),
                                   mlc_dims0(), false)), MLC_OK);
    test_read(mlc_grad(w), dw);
    mlc_zero_grad(w);
    mlc_module_hook(mlc_module_child(net, 1), see, &s);
    mlc_forward(net, x);
    CHECK_EQ(mlc_backward(mlc_mean(s.t, mlc_dims0(), false)), MLC_OK);
    CHECK_VALUES(mlc_grad(w), 12, dw, 0, 0);
    s.keep = false;
    mlc_no_grad_begin(ctx);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_OK(ctx);
    CHECK(mlc_relu(s.t) == NULL);      /* its forward has freed it                             */
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_no_grad_end(ctx);
}

/* Layers whose pass takes the sum, or a relu with the maxima behind it, run by themselves.   */
TEST(nn, hooks_see_layers_of_blocks)
{
    mlc_ctx          *ctx = test_ctx();
    const char *const paths[] = {"0", "1", "2", "3", "3.body", "3.body.4", "4", "4.fc1", "4.fc2"};
    seen              s[COUNT(paths)];
    mlc_pool_desc     pool = mlc_pool_desc_make(2);
    mlc_module       *net = mlc_nn_sequential(ctx);
    memset(s, 0, sizeof s);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 2, 4, 3, 1, 0));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &pool));
    mlc_module_add(net, mlc_nn_basic_block(ctx, 4, 4, 1));
    mlc_module_add(net, mlc_nn_squeeze_excite(ctx, 4, 2));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 2, 8, 8), 1, -1, 1), *before, *after;
    mlc_module_train(net, false);
    before = mlc_forward(net, x);
    for (int i = 0; i < COUNT(paths); i++)
        mlc_module_hook(mlc_module_find(net, paths[i]), see, &s[i]);
    after = mlc_forward(net, x);
    double y[2 * 4 * 3 * 3];
    test_read(before, y);
    CHECK_VALUES(after, COUNT(y), y, 0, 0);
    for (int i = 0; i < COUNT(paths); i++)
        if (!CHECK_EQ(s[i].n, 1))
            printf("  %s\n", paths[i]);
    CHECK_OK(ctx);
}

/* ---- summary ------------------------------------------------------------------------------ */

TEST(nn, summary_is_the_table)
{
    static const char want[] =
        "Layer (type)                       Output Shape                Param #\n"
        "======================================================================\n"
        "0 (Linear)                         [32,128]                      8,320\n"
        "1 (ReLU)                           [32,128]                          0\n"
        "2 (Linear)                         [32,10]                       1,290\n"
        "======================================================================\n"
        "Total params: 9,610 (37.53 KB)\n"
        "Trainable params: 9,600\n"
        "Non-trainable params: 10\n"
        "Activations of a training step: 25.25 KB\n";       /* [32,64], [32,128], [32,10] f32   */
    static sink s;
    mlc_memory  before, after;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 64, 128, 10);
    memset(&s, 0, sizeof s);
    mlc_module_freeze(net, "2.bias", true);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    mlc_memory_info(ctx, &before);
    CHECK_EQ(mlc_summary(net, mlc_dims2(32, 64), collect, &s), MLC_OK);
    mlc_memory_info(ctx, &after);
    CHECK_STR(s.text, want);
    for (int i = MLC_MEM_PARAM; i < MLC_MEM_COUNT; i++) {  /* nothing is computed              */
        CHECK_EQ(after.now[i], before.now[i]);
        CHECK_EQ(after.top[i], before.top[i]);
    }
    CHECK(after.peak >= after.allocated);
    CHECK_OK(ctx);
}

TEST(nn, summary_shows_nesting_and_reports_shapes_that_do_not_fit)
{
    static sink s;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    memset(&s, 0, sizeof s);
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add_named(net, "block", residual(ctx, mlp(ctx, 6, 4, 6), 1));
    CHECK_EQ(mlc_summary(net, mlc_dims3(5, 2, 3), collect, &s), MLC_OK);
    CHECK_HAS(s.text, "0 (Flatten)                        [5,6] ");
    CHECK_HAS(s.text, "block (Residual)                   [5,6] ");
    CHECK_HAS(s.text, "block.inner.0 (Linear)             [5,4]                            28\n");
    CHECK_HAS(s.text, "Total params: 59 ");
    CHECK_OK(ctx);
    s.n = 0;
    CHECK_EQ(mlc_summary(net, mlc_dims3(5, 2, 4), collect, &s), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "[5,8]");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_summary(NULL, mlc_dims0(), collect, &s), MLC_ERR_ARG);
}

TEST(nn, summary_ends_with_the_layer_that_fails)
{
    static const char want[] =
        "Layer (type)                       Output Shape                Param #\n"
        "======================================================================\n"
        "0 (Linear)                         [4,6]                            24\n"
        "1.0 (Linear)                       [4,5]                            35\n"
        "1.1 (ReLU)                         [4,5]                             0\n"
        "1.2 (Linear)                       fails                            21\n"
        "======================================================================\n"
        "in 1.2 (Linear): linear: x [4,5] must end in the in of w [3,6]: 5 vs 6; x is [..,in], w "
        "[out,in]\n";
    static sink s;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *inner = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 6));
    mlc_module_add(inner, mlc_nn_linear(ctx, 6, 5));
    mlc_module_add(inner, mlc_nn_relu(ctx));
    mlc_module_add(inner, mlc_nn_linear(ctx, 6, 3));
    mlc_module_add(inner, mlc_nn_relu(ctx));
    mlc_module_add(net, inner);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 3));
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, 3), collect, &s), MLC_ERR_SHAPE);
    CHECK_STR(s.text, want);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    /* A container that fails by itself stands behind its children.                           */
    net = mlc_nn_residual(ctx, mlp(ctx, 3, 5, 2), NULL, false);
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, 3), collect, &s), MLC_ERR_SHAPE);
    CHECK_HAS(s.text, "body.2 (Linear)                    [4,2]                            12\n"
                      "(Residual)                         fails                             0\n"
                      "======");
    CHECK_HAS(s.text, "in Residual: add: shapes [4,2] and [4,3]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    /* An input that cannot be fails before any layer.                                        */
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_summary(net, mlc_dims2(-4, 3), collect, &s), MLC_ERR_ARG);
    CHECK_EQ(s.n, 0);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, summary_does_not_touch_buffers_or_streams)
{
    static sink s;
    double      a[4], b[4], zero = 0;
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = residual(ctx, mlc_nn_dropout(ctx, 0.5), 1);
        memset(&s, 0, sizeof s);
        if (i == 1)
            CHECK_EQ(mlc_summary(net, mlc_dims2(2, 3), collect, &s), MLC_OK);
        CHECK_VALUES(mlc_module_param(net, "calls"), 1, &zero, 0, 0);
        test_read(mlc_uniform(ctx, MLC_F64, mlc_dims1(4), 0, 1), i ? b : a);
    }
    CHECK(memcmp(a, b, sizeof a) == 0);
}

/* ---- errors and memory in forward --------------------------------------------------------- */

TEST(nn, forward_with_a_wrong_shape_names_operation_and_shapes)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 64, 128, 10);
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(7, 65))) == NULL);
    CHECK_HAS(mlc_error(ctx), "linear");
    CHECK_HAS(mlc_error(ctx), "[7,65]");
    CHECK_HAS(mlc_error(ctx), "[128,64]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_forward(net, NULL) == NULL);
    mlc_error_clear(ctx);
    CHECK(mlc_forward(NULL, mlc_zeros(ctx, MLC_F32, mlc_dims1(1))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_forward(NULL, NULL) == NULL);
    CHECK_OK(ctx);
}

/* y = x minus child(x), which must be of its shape; the user data tells what it does wrong.  */
static mlc_status wrong_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    const int32_t wrong = *(const int32_t *)mlc_module_user(m);
    (void)n_in;
    for (int32_t i = 0; i < n_out; i++)
        out[i] = mlc_sub(in[0], mlc_forward(mlc_module_child(m, 0), in[0]));
    if (wrong == 1) out[n_out - 1] = NULL;
    if (wrong == 2) return MLC_ERR_VALUE;
    if (wrong == 3) return mlc_raise(mlc_module_ctx(m), MLC_ERR_VALUE, "no luck with %d", 7);
    return MLC_OK;
}

static mlc_module *wrong_module(mlc_ctx *ctx, mlc_module *child, int32_t wrong)
{
    static const mlc_module_class cls = {"Wrong", wrong_forward, NULL, NULL, 0, NULL};
    mlc_module *m = mlc_module_create(ctx, &cls, &wrong, sizeof wrong);
    mlc_module_add_named(m, "inner", child);
    return m;
}

/* The error of the module alone, and as "encoder.1" of a sequential.                        */
static void check_place(mlc_ctx *ctx, mlc_module *m, int64_t width, const char *nested,
                        const char *alone)
{
    mlc_module *net = mlc_nn_sequential(ctx), *encoder = mlc_nn_sequential(ctx);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, width));
    CHECK(mlc_forward(m, x) == NULL);
    CHECK_STR(mlc_error(ctx), alone);
    mlc_error_clear(ctx);
    mlc_module_add(encoder, mlc_nn_relu(ctx));
    mlc_module_add(encoder, m);
    mlc_module_add_named(net, "encoder", encoder);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_STR(mlc_error(ctx), nested);
    mlc_error_clear(ctx);
    CHECK(mlc_add(x, mlc_zeros(ctx, MLC_F32, mlc_dims1(2))) == NULL);     /* behind it: no place */
    CHECK_HAS(mlc_error(ctx), "add: ");
    CHECK(strncmp(mlc_error(ctx), "in ", 3) != 0);
    mlc_error_clear(ctx);
}

TEST(nn, an_error_in_a_forward_says_in_which_module)
{
    mlc_ctx *ctx = test_ctx();
    check_place(ctx, mlp(ctx, 2, 5, 3), 3,
                "in encoder.1.0 (Linear): linear: x [4,3] must end in the in of w [5,2]: 3 vs 2; x "
                "is [..,in], w [out,in]",
                "in 0 (Linear): linear: x [4,3] must end in the in of w [5,2]: 3 vs 2; x is "
                "[..,in], w [out,in]");
    check_place(ctx, wrong_module(ctx, mlp(ctx, 3, 5, 2), 0), 3,
                "in encoder.1 (Wrong): sub: shapes [4,3] and [4,2] do not broadcast at axis 1: 3 "
                "vs 2; sizes must be equal, or one of them 1",
                "in Wrong: sub: shapes [4,3] and [4,2] do not broadcast at axis 1: 3 vs 2; sizes "
                "must be equal, or one of them 1");
    check_place(ctx, wrong_module(ctx, mlp(ctx, 3, 5, 3), 3), 3,
                "in encoder.1 (Wrong): no luck with 7", "in Wrong: no luck with 7");
    check_place(ctx, mlc_nn_residual(ctx, mlp(ctx, 3, 5, 3), mlc_nn_linear(ctx, 2, 3), true), 3,
                "in encoder.1.shortcut (Linear): linear: x [4,3] must end in the in of w [3,2]: 3 "
                "vs 2; x is [..,in], w [out,in]",
                "in shortcut (Linear): linear: x [4,3] must end in the in of w [3,2]: 3 vs 2; x is "
                "[..,in], w [out,in]");
}

TEST(nn, a_forward_that_forgets_an_output_or_a_message_is_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3)), *out[2];
    check_place(ctx, wrong_module(ctx, mlp(ctx, 3, 5, 3), 1), 3,
                "in encoder.1 (Wrong): forward left output 1 NULL without an error; make it, or "
                "say by mlc_raise why not",
                "in Wrong: forward left output 1 NULL without an error; make it, or say by "
                "mlc_raise why not");
    check_place(ctx, wrong_module(ctx, mlp(ctx, 3, 5, 3), 2), 3,
                "in encoder.1 (Wrong): forward returned VALUE and no message; mlc_raise gives one",
                "in Wrong: forward returned VALUE and no message; mlc_raise gives one");
    CHECK_EQ(mlc_module_forward(wrong_module(ctx, mlp(ctx, 3, 5, 3), 1), &x, 1, out, 2),
             MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "left output 2 NULL without an error; ");
    mlc_error_clear(ctx);
    /* An error of an operation, which forward does not hand on, stays what it is.           */
    CHECK_EQ(mlc_module_forward(wrong_module(ctx, mlp(ctx, 3, 5, 2), 0), &x, 1, out, 2),
             MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
}

TEST(nn, a_place_that_is_too_long_is_cut_off)
{
    char        name[64];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_linear(ctx, 2, 2);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (int i = 0; i < 10; i++) {
        mlc_module *parent = mlc_nn_sequential(ctx);
        if (i == 0) {
            CHECK_EQ(mlc_module_add(parent, mlc_nn_tanh(ctx)), MLC_OK);
            CHECK_EQ(mlc_module_add_named(parent, "gate", mlc_nn_flatten(ctx)), MLC_OK);
        } else {
            CHECK_EQ(mlc_module_add_named(parent, name, m), MLC_OK);
        }
        m = parent;
    }
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims0())) == NULL);
    CHECK_HAS(mlc_error(ctx), "nnn (Flatten): flatten: the input is a scalar");
    CHECK(strncmp(mlc_error(ctx), "in n", 4) == 0 && strlen(mlc_error(ctx)) < 700);
    mlc_error_clear(ctx);
}

/* Peak bytes of activations of inference over a chain of linear and ReLU. */
static int64_t inference_peak(int layers, bool no_grad)
{
    mlc_memory  m;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < layers; i++) {
        mlc_module_add(net, mlc_nn_linear(ctx, 64, 64));
        mlc_module_add(net, mlc_nn_relu(ctx));
    }
    mlc_module_train(net, false);
    mlc_module_build(net);
    mlc_scope_begin(ctx);
    if (no_grad)
        mlc_no_grad_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(100, 64), 1, -1, 1);
    mlc_memory_peak_reset(ctx);
    CHECK(mlc_forward(net, x) != NULL);
    mlc_memory_info(ctx, &m);
    if (no_grad)
        mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return m.top[MLC_MEM_ACTIVATION];
}

TEST(nn, inference_over_50_layers_holds_no_more_activations_than_over_3)
{
    int64_t three = inference_peak(3, true), fifty = inference_peak(50, true);
    CHECK(three > 0);
    CHECK_EQ(fifty, three);
    CHECK(inference_peak(50, false) > 10 * fifty);         /* training keeps what it saves     */
}

static bool keep_made(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)m; (void)n_out;
    *(mlc_tensor **)user = out[0];
    return true;
}

TEST(nn, a_forward_refuses_what_belongs_to_another_context)
{
    mlc_ctx     *ctx = test_ctx(), *other = test_ctx();
    mlc_tensor  *x = mlc_ones(other, MLC_F32, mlc_dims3(2, 4, 3)), *out[3] = {NULL, NULL, NULL};
    mlc_module  *m[3] = {mlc_nn_linear(ctx, 3, 2), mlc_nn_lstm(ctx, 3, 2), mlc_nn_relu(ctx)};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(mlc_module_forward(m[i], &x, 1, out, i == 1 ? 3 : 1), MLC_ERR_ARG);
        CHECK(out[0] == NULL && out[2] == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "forward: input 1 belongs to another context; make it in "
                                      "that of the module");
    }
    CHECK_OK(other);
}

/* ---- evaluation ----------------------------------------------------------------------------- */

TEST(nn, evaluation_ends_with_each_module_as_it_was)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *frozen = mlc_nn_batch_norm(ctx, 3), *drop = mlc_nn_dropout(ctx, 0.5);
    mlc_module *net = MLC_SEQUENTIAL(ctx, frozen, drop);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    mlc_set_requires_grad(x, true);
    mlc_module_train(frozen, false);
    for (int i = 0; i < 8; i++) {                          /* nests, with other modes between  */
        CHECK_EQ(mlc_eval_begin(i % 2 ? drop : net), MLC_OK);
        CHECK(!mlc_module_is_training(net) && !mlc_module_is_training(drop));
        CHECK(!mlc_requires_grad(mlc_mul_scalar(x, 2)));
        mlc_module_train(drop, true);
    }
    CHECK_EQ(mlc_eval_begin(net), MLC_ERR_STATE);          /* drop has 8: nothing changes      */
    CHECK(!mlc_module_is_training(net) && mlc_module_is_training(drop));
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);                   /* that of the one that failed      */
    CHECK(mlc_module_is_training(drop));
    for (int i = 8; i-- > 0;) {
        CHECK_EQ(mlc_eval_end(i % 2 ? drop : net), MLC_OK);
        CHECK(mlc_module_is_training(drop));
        CHECK(mlc_requires_grad(mlc_mul_scalar(x, 2)) == (i == 0));
    }
    CHECK(mlc_module_is_training(net) && !mlc_module_is_training(frozen));
    CHECK_EQ(mlc_eval_end(net), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_module_add(net, mlc_nn_dropout(ctx, 0.5)), MLC_OK);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK(mlc_module_is_training(mlc_module_child(net, 2)));
    CHECK(mlc_eval_begin(NULL) == MLC_ERR_ARG && mlc_eval_end(NULL) == MLC_ERR_ARG);
    CHECK_OK(ctx);
}

/* What is in use at most over what there was, in outputs of a layer of 64 x 64 floats. */
static double outputs_at_most(mlc_module *net, mlc_dims shape, double *y)
{
    mlc_memory before, after;
    mlc_ctx   *ctx = mlc_module_ctx(net);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, shape, 1, -1, 1);
    mlc_memory_info(ctx, &before);
    mlc_memory_peak_reset(ctx);
    mlc_tensor *out = mlc_forward(net, x);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK(out && test_read(out, y));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_OK(ctx);
    return (double)(after.top[MLC_MEM_ACTIVATION] - before.now[MLC_MEM_ACTIVATION]) /
           (64 * 64 * 4);
}

TEST(nn, evaluation_holds_two_outputs_at_a_time)
{
    static double y[64 * 64], z[64 * 64];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 12; i++)
        CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 64, 64)), MLC_OK);
    CHECK_NEAR(outputs_at_most(net, mlc_dims2(64, 64), y), 2, 0);
    test_read(mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(64, 64), 1, -1, 1)), z);
    CHECK(memcmp(y, z, sizeof y) == 0);                    /* recorded, all are there          */
    /* Of the body's output, the shortcut's, their sum and its relu three. */
    mlc_module *block = mlc_nn_residual(ctx, mlc_nn_linear(ctx, 64, 64), mlc_nn_linear(ctx, 64, 64),
                                        true);
    mlc_module *blocks = MLC_SEQUENTIAL(ctx, mlc_nn_identity(ctx), block, mlc_nn_identity(ctx));
    CHECK_NEAR(outputs_at_most(blocks, mlc_dims2(64, 64), y), 3, 0);
    test_read(mlc_forward(blocks, test_rand(ctx, MLC_F32, mlc_dims2(64, 64), 1, -1, 1)), z);
    CHECK(memcmp(y, z, sizeof y) == 0);
    CHECK_OK(ctx);
}

TEST(nn, a_hook_keeps_what_evaluation_would_free)
{
    double      a[8], b[8];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 4), mlc_nn_linear(ctx, 4, 2));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1), *kept = NULL;
    mlc_module_hook(mlc_module_child(net, 0), keep_made, &kept);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);
    test_read(kept, a);
    test_read(mlc_forward(mlc_module_child(net, 0), x), b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK_OK(ctx);
}

TEST(nn, modules_outlive_the_scope_they_were_made_in)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    mlc_module *net = mlp(ctx, 3, 4, 2);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 3))) != NULL);
    CHECK_OK(ctx);
}

/* ---- trees that share, change or end at a bad time ---------------------------------------- */

TEST(nn, a_parameter_tied_into_another_tree_keeps_its_gradients_apart)
{
    static const double twos[15] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *a = mlc_nn_linear(ctx, 3, 5), *b = mlc_nn_linear(ctx, 101, 97);
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims2(2, 3), 1);
    CHECK_EQ(mlc_module_tie(b, "shared", mlc_module_param(a, "weight")), MLC_OK);
    CHECK_EQ(mlc_module_build(b), MLC_OK);
    CHECK_EQ(mlc_backward_from(mlc_forward(a, x), NULL), MLC_OK);
    CHECK_VALUES(mlc_grad(mlc_module_param(a, "weight")), 15, twos, 0, 0);
    CHECK_VALUES(mlc_grad(mlc_module_param(a, "bias")), 5, twos, 0, 0);
    CHECK(mlc_grad(mlc_module_param(b, "bias")) == NULL);
    CHECK_OK(ctx);
}

/* What a step on inputs of 1 adds to the first element of w.                                    */
static double step_moves(mlc_module *m, mlc_optim *opt, mlc_tensor *w)
{
    double      was[9], is[9];
    mlc_ctx    *ctx = mlc_module_ctx(m);
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims2(2, 3), 1);
    test_read(w, was);
    mlc_scope_begin(ctx);
    mlc_tensor *loss = mlc_mean_all(mlc_sum(mlc_forward(m, x), mlc_dims1(1), false));
    CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    test_read(w, is);
    return is[0] - was[0];
}

/* by: 0, 1: through the first or the second tree; 2: mlc_set_requires_grad. last: the tree that was
 * built last has the parameter's memory. stepped: gradients have memory when it is unfrozen. */
static void unfreeze_shared(int by, int last, bool stepped)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m[2] = {mlc_nn_linear(ctx, 3, 3), mlc_nn_linear(ctx, 3, 3)};
    mlc_tensor *w = mlc_module_param(m[0], "weight");
    const float zeros[9] = {0};
    mlc_write(w, zeros, sizeof zeros);
    CHECK_EQ(mlc_module_tie(m[1], "weight", w), MLC_OK);
    CHECK_EQ(mlc_module_freeze(m[0], "weight", true), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(m[!last]), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(m[last]), MLC_OK);
    mlc_optim *opt[2] = {mlc_sgd(m[0], 1), mlc_sgd(m[1], 1)};
    for (int k = 0; stepped && k < 2; k++) CHECK(step_moves(m[k], opt[k], w) == 0);
    CHECK_EQ(by < 2 ? mlc_module_freeze(m[by], "weight", false) : mlc_set_requires_grad(w, true),
             MLC_OK);
    for (int step = 0; step < 4; step++)
        CHECK(step_moves(m[step % 2], opt[step % 2], w) == -1);
    CHECK_EQ(mlc_module_rebuild(m[by % 2]), MLC_OK);
    for (int k = 0; k < 2; k++) CHECK(step_moves(m[k], opt[k], w) == -1);
    mlc_module_free(m[last]);
    CHECK(step_moves(m[!last], opt[!last], w) == -1);
    CHECK_OK(ctx);
}

TEST(nn, a_shared_parameter_is_trained_by_the_optimizers_of_both_trees_once_it_is_unfrozen)
{
    for (int by = 0; by < 3; by++)
        for (int k = 0; k < 4; k++) unfreeze_shared(by, k & 1, k >> 1);
}

TEST(nn, a_tied_parameter_outlives_the_module_that_declared_it)
{
    double      before[9], after[9];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *a = mlc_nn_sequential(ctx), *first = mlc_nn_linear(ctx, 3, 3);
    mlc_module *b = mlc_nn_linear(ctx, 2, 2);
    mlc_module_add(a, first);
    mlc_module_add(a, mlc_nn_linear(ctx, 3, 3));
    test_read(mlc_module_param(a, "0.weight"), before);
    CHECK_EQ(mlc_module_tie(b, "shared", mlc_module_param(a, "0.weight")), MLC_OK);
    mlc_module_free(first);
    CHECK_EQ(mlc_module_rebuild(a), MLC_OK);
    mlc_module_free(a);
    CHECK_EQ(mlc_module_rebuild(b), MLC_OK);
    test_read(mlc_module_param(b, "shared"), after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_EQ(mlc_module_freeze(b, NULL, true), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(b), MLC_OK);
    CHECK_EQ(mlc_module_freeze(b, NULL, false), MLC_OK);
    mlc_tensor *shared = mlc_module_param(b, "shared"), *y = mlc_sum_all(shared);
    CHECK_EQ(mlc_module_to(b, MLC_F64), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "'weight'");                 /* its name lives as long as it     */
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    test_read(mlc_grad(shared), after);
    for (int i = 0; i < 9; i++) CHECK(after[i] == 1);
}

TEST(nn, freezing_between_forward_and_backward_does_no_harm)
{
    for (int thaw = 0; thaw < 2; thaw++) {
        double      before[25], after[25];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlp(ctx, 5, 5, 5);
        mlc_module_freeze(net, "2.weight", thaw);
        mlc_optim  *opt = mlc_sgd(net, 0.5);
        mlc_tensor *y = mlc_forward(net, mlc_full(ctx, MLC_F32, mlc_dims2(3, 5), 1));
        test_read(mlc_module_param(net, "2.weight"), before);
        CHECK_EQ(mlc_module_freeze(net, "2.weight", !thaw), MLC_OK);
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        CHECK(mlc_grad(mlc_module_param(net, "0.weight")) != NULL);
        CHECK(mlc_grad(mlc_module_param(net, "2.bias")) != NULL);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        test_read(mlc_module_param(net, "2.weight"), after);
        CHECK(memcmp(before, after, sizeof before) == 0);
        CHECK_OK(ctx);
    }
}

TEST(nn, backward_through_a_freed_module_is_a_state_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 3, 5, 2);
    mlc_tensor *y = mlc_forward(net, mlc_full(ctx, MLC_F32, mlc_dims2(4, 3), 1));
    mlc_module_free(mlc_module_child(net, 0));
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "'linear'");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_module_free(net);
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
}

TEST(nn, a_child_added_after_one_was_freed_gets_a_name_of_its_own)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++)
        mlc_module_add(net, mlc_nn_linear(ctx, 3, 3));
    mlc_module_free(mlc_module_child(net, 1));
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 3, 7)), MLC_OK);
    check_names(net, (const char *const[]){"0.weight", "0.bias", "2.weight", "2.bias", "3.weight",
                "3.bias"}, 6);
    CHECK_EQ(mlc_dim(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3))), 1), 7);
    CHECK_OK(ctx);
}

TEST(nn, layers_too_large_for_memory_together_are_nomem)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = mlc_nn_sequential(ctx);
    const int64_t   side = (int64_t)1 << (sizeof(size_t) == 8 ? 29 : 13);
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(side, side);
    d.no_bias = d.has_dtype = true;
    d.dtype = MLC_F64;
    for (int i = 0; i < 8; i++)        /* 8 times 2^61 bytes (or 2^29) wrap to 0               */
        CHECK_EQ(mlc_module_add(net, mlc_nn_linear_ex(ctx, &d)), MLC_OK);
    CHECK_EQ(mlc_module_build(net), MLC_ERR_NOMEM);
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    CHECK(mlc_forward(mlc_nn_linear(ctx, 3, 2), mlc_zeros(ctx, MLC_F32, mlc_dims1(3))) != NULL);
    CHECK_OK(ctx);
}

/* ---- users' forwards that do what few do -------------------------------------------------- */

typedef mlc_tensor *(*body)(mlc_module *m, mlc_tensor *x);

/* The class of all of them: a parameter p of 3, 3, 3, and what its body makes of x. */
static mlc_status body_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = (*(body *)mlc_module_user(m))(m, in[0]);
    return out[0] ? MLC_OK : MLC_ERR_STATE;
}

static mlc_module *with_body(mlc_ctx *ctx, body b)
{
    static const mlc_module_class cls = {"Body", body_forward, NULL, NULL, 0, NULL};
    mlc_module    *m = mlc_module_create(ctx, &cls, &b, sizeof b);
    mlc_param_desc d = mlc_param_desc_make(mlc_dims1(3));
    d.init = MLC_INIT_CONSTANT;
    d.a = 3;
    mlc_module_declare(m, "p", &d);
    return m;
}

static float       borrowed[3] = {1, 2, 3};
static mlc_tensor *outer;              /* made outside of the forward that uses it             */

static mlc_tensor *body_wraps(mlc_module *m, mlc_tensor *x)
{
    return mlc_add(x, mlc_wrap(mlc_module_ctx(m), MLC_F32, mlc_dims1(3), NULL, borrowed));
}
static mlc_tensor *body_returns_p(mlc_module *m, mlc_tensor *x)
{
    (void)x;
    return mlc_module_param(m, "p");
}
static mlc_tensor *body_reads_a_file(mlc_module *m, mlc_tensor *x)
{
    (void)x;
    return mlc_csv_load(mlc_module_ctx(m), "examples/data/digits.csv", NULL);
}
static mlc_tensor *body_writes_a_pointer(mlc_module *m, mlc_tensor *x)
{
    float *v = mlc_f32(mlc_copy(x));
    (void)m;
    if (v == NULL)
        return NULL;
    v[0] = 1;
    return mlc_relu(x);
}
static mlc_tensor *body_returns_outer(mlc_module *m, mlc_tensor *x)
{
    (void)m;
    (void)x;
    return outer;
}
static mlc_tensor *body_goes_backward(mlc_module *m, mlc_tensor *x)
{
    (void)m;
    mlc_backward(mlc_sum(mlc_mul(outer, outer), mlc_dims0(), false));
    return mlc_mul(x, mlc_grad(outer));
}

TEST(nn, summary_of_any_forward_leaves_accounting_and_parameters_alone)
{
    static const double three[] = {3, 3, 3};
    static const body   bodies[] = {body_wraps, body_returns_p, body_reads_a_file,
                                    body_writes_a_pointer};
    static sink s;
    for (int i = 0; i < COUNT(bodies); i++) {
        mlc_memory  before, after;
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_module_add(net, with_body(ctx, bodies[i]));
        mlc_module_add(net, mlc_nn_relu(ctx));
        for (int pass = 0; pass < 3; pass++) {             /* the first one makes room         */
            mlc_memory_info(ctx, &before);
            const mlc_status got = mlc_summary(net, mlc_dims2(5, 3), collect, &s);
            CHECK(!test_on_host() || got == (i < 2 ? MLC_OK : MLC_ERR_STATE));
            mlc_error_clear(ctx);
            mlc_memory_info(ctx, &after);
            CHECK(pass == 0 || after.allocated == before.allocated);
            for (int k = MLC_MEM_PARAM; pass > 0 && k < MLC_MEM_COUNT; k++)
                CHECK_EQ(after.now[k], before.now[k]);
        }
        CHECK_VALUES(mlc_module_param(net, "0.p"), 3, three, 0, 0);
        CHECK(borrowed[0] == 1 && borrowed[1] == 2 && borrowed[2] == 3);
        CHECK_OK(ctx);
    }
}

TEST(nn, a_sequential_leaves_a_childs_tensor_alone_that_was_there_before)
{
    static const double seven[] = {7, 7, 7, 7, 7};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, with_body(ctx, body_returns_outer));
    mlc_module_add(net, mlc_nn_relu(ctx));
    outer = mlc_full(ctx, MLC_F32, mlc_dims1(5), 7);
    for (int i = 0; i < 3; i++) {
        mlc_scope_begin(ctx);
        mlc_no_grad_begin(ctx);
        CHECK_VALUES(mlc_forward(net, mlc_full(ctx, MLC_F32, mlc_dims1(5), 1)), 5, seven, 0, 0);
        mlc_no_grad_end(ctx);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_VALUES(outer, 5, seven, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_forward_may_run_a_backward_of_its_own)
{
    static const double six[] = {6, 6, 6}, seven[] = {7, 7, 7};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = with_body(ctx, body_goes_backward);
    outer = mlc_full(ctx, MLC_F32, mlc_dims1(3), 3);
    mlc_set_requires_grad(outer, true);
    CHECK_VALUES(mlc_forward(m, mlc_full(ctx, MLC_F32, mlc_dims1(3), 1)), 3, six, 0, 0);
    CHECK_VALUES(mlc_grad(outer), 3, six, 0, 0);
    CHECK_EQ(mlc_backward(mlc_sum(outer, mlc_dims0(), false)), MLC_OK);
    CHECK_VALUES(mlc_grad(outer), 3, seven, 0, 0);
    CHECK_OK(ctx);
}
