/* test_nn.c -- tests of section IMPL.NN: the module tree, layers, summary */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ew_table.h"
#include "flash.h"

#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static mlc_module *mlp(mlc_ctx *ctx, int64_t in, int64_t hidden, int64_t out)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, in, hidden));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, hidden, out));
    return net;
}

/* A user's class: y = x + child(x) * gain, with a buffer that counts calls. */
static mlc_status residual_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                   mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *gain = mlc_module_param(m, "gain"), *calls = mlc_module_param(m, "calls");
    (void)n_in;
    (void)n_out;
    mlc_no_grad_begin(mlc_module_ctx(m));
    mlc_copy_into(calls, mlc_add_scalar(calls, 1));
    mlc_no_grad_end(mlc_module_ctx(m));
    mlc_tensor *y = mlc_mul(mlc_forward(mlc_module_child(m, 0), in[0]), gain);
    out[0] = mlc_add(in[0], y);
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static int released;

static void residual_release(mlc_module *m)
{
    released += *(int *)mlc_module_user(m);
}

static const mlc_module_class RESIDUAL = {"Residual", residual_forward, residual_release, NULL,
                                          0, NULL};

static mlc_module *residual(mlc_ctx *ctx, mlc_module *inner, double gain)
{
    const int      one = 1;
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(ctx, &RESIDUAL, &one, sizeof one);
    d = mlc_param_desc_make(mlc_dims0());
    d.init = MLC_INIT_CONSTANT;
    d.a = gain;
    mlc_module_declare(m, "gain", &d);
    d.init = MLC_INIT_ZEROS;
    d.buffer = true;
    mlc_module_declare(m, "calls", &d);
    mlc_module_add_named(m, "inner", inner);
    return m;
}

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

/* ---- layers ------------------------------------------------------------------------------- */

TEST(nn, a_users_module_computes_trains_and_keeps_its_buffer)
{
    static const double x[] = {1, 2}, w[] = {1, 2, 3, 4}, b[] = {1, 1};
    static const double want[] = {1 + 0.5 * 6, 2 + 0.5 * 12}, two = 2;
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = residual(ctx, mlc_nn_linear(ctx, 2, 2), 0.5);
    mlc_tensor         *in = test_tensor(ctx, MLC_F32, mlc_dims2(1, 2), x);
    mlc_copy_into(mlc_module_param(m, "inner.weight"),
                  test_tensor(ctx, MLC_F32, mlc_dims2(2, 2), w));
    mlc_copy_into(mlc_module_param(m, "inner.bias"), test_tensor(ctx, MLC_F32, mlc_dims1(2), b));
    CHECK_VALUES(mlc_forward(m, in), 2, want, 1e-6, 0);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(m, in), mlc_dims0(), false)), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_grad(mlc_module_param(m, "gain"))), 18, 1e-5);
    CHECK_VALUES(mlc_module_param(m, "calls"), 1, &two, 0, 0);
    CHECK(mlc_grad(mlc_module_param(m, "calls")) == NULL);
    CHECK_OK(ctx);
}

static mlc_status swap_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    if (n_in != 2 || n_out != 2)
        return mlc_raise(mlc_module_ctx(m), MLC_ERR_ARG, "Swap: two in, two out");
    out[0] = mlc_mul_scalar(in[1], 2);
    out[1] = in[0];
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

TEST(nn, forward_takes_and_fills_arrays)
{
    static const mlc_module_class swap = {"Swap", swap_forward, NULL, NULL, 0, NULL};
    mlc_ctx                      *ctx = test_ctx();
    mlc_module                   *m = mlc_module_create(ctx, &swap, NULL, 0);
    mlc_tensor                   *in[2], *out[2];
    in[0] = mlc_full(ctx, MLC_F32, mlc_dims0(), 3);
    in[1] = mlc_full(ctx, MLC_F32, mlc_dims0(), 4);
    CHECK_EQ(mlc_module_forward(m, in, 2, out, 2), MLC_OK);
    CHECK_NEAR(mlc_item(out[0]), 8, 0);
    CHECK_NEAR(mlc_item(out[1]), 3, 0);
    CHECK(mlc_forward(m, in[0]) == NULL);
    CHECK_STR(mlc_error(ctx), "in Swap: Swap: two in, two out");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, modules_of_one_operation_are_their_operation)
{
#define NO_MODULE(name, ...)
#define MODULE(name, ...) {mlc_nn_##name, mlc_##name},
    const struct { mlc_module *(*make)(mlc_ctx *); mlc_tensor *(*call)(mlc_tensor *); } of[] = {
        EW_UNARY(NO_MODULE, MODULE, NO_MODULE)
    };
    double v[15];
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 5), 1, -4, 4);
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            mlc_module *net = mlc_nn_sequential(ctx);
            test_read(of[i].call(x), v);
            CHECK_VALUES(mlc_forward(of[i].make(ctx), x), 15, v, 0, 0);
            mlc_module_add(net, of[i].make(ctx));
            CHECK_VALUES(mlc_forward(net, x), 15, v, 0, 0);
            CHECK_EQ(mlc_module_numel(net, true), 0);
        }
        CHECK_OK(ctx);
    }
}

TEST(nn, activations_with_numbers_are_their_operations)
{
    double v[24];
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 1, -4, 4);
        mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims1(6), 0.25);
        const struct { mlc_module *m; mlc_tensor *y; } of[] = {
            {mlc_nn_elu(ctx, 0.7), mlc_elu(x, 0.7)}, {mlc_nn_celu(ctx, 0.7), mlc_celu(x, 0.7)},
            {mlc_nn_leaky_relu(ctx, 0.1), mlc_leaky_relu(x, 0.1)},
            {mlc_nn_glu(ctx, 0), mlc_glu(x, 0)}, {mlc_nn_glu(ctx, -1), mlc_glu(x, -1)},
            {mlc_nn_prelu(ctx, 6), mlc_prelu(x, w)}, {mlc_nn_prelu(ctx, 1), mlc_prelu(x, w)},
            {mlc_nn_softmax(ctx, 0), mlc_softmax(x, 0)},
            {mlc_nn_softmax(ctx, -1), mlc_softmax(x, -1)},
            {mlc_nn_log_softmax(ctx, 0), mlc_log_softmax(x, 0)},
            {mlc_nn_log_softmax(ctx, -1), mlc_log_softmax(x, -1)},
        };
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            mlc_module *net = mlc_nn_sequential(ctx);
            mlc_module_add(net, of[i].m);
            test_read(of[i].y, v);
            CHECK_VALUES(mlc_forward(net, x), mlc_numel(of[i].y), v, 0, 0);
            CHECK_EQ(mlc_module_numel(net, true), i == 5 ? 6 : i == 6);
        }
        CHECK_OK(ctx);
    }
}

/* Sequential knows those that it fuses: the others must not get lost behind a layer.          */
TEST(nn, an_activation_that_is_not_fused_runs_behind_a_layer)
{
    double v[20];
    FOR_EACH_ISA(ctx) {
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_module_add(net, mlc_nn_linear(ctx, 3, 5));
        mlc_module_add(net, mlc_nn_prelu(ctx, 5));
        mlc_module_add(net, mlc_nn_linear(ctx, 5, 4));
        mlc_module_add(net, mlc_nn_leaky_relu(ctx, 0.1));
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 1, -2, 2);
        mlc_tensor *h = mlc_prelu(mlc_linear(x, mlc_module_param(net, "0.weight"),
                                             mlc_module_param(net, "0.bias")),
                                  mlc_module_param(net, "1.weight"));
        test_read(mlc_leaky_relu(mlc_linear(h, mlc_module_param(net, "2.weight"),
                                            mlc_module_param(net, "2.bias")), 0.1), v);
        CHECK_VALUES(mlc_forward(net, x), 20, v, 0, 0);
        CHECK_OK(ctx);
    }
}

/* What the derivative is had from is the result: what went in is not kept.                    */
TEST(nn, a_layer_before_leaky_relu_does_not_keep_its_result)
{
    int64_t kept[2];
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_memory  mem;
        mlc_module_add(net, mlc_nn_linear(ctx, 8, 64));
        mlc_module_add(net, mlc_nn_leaky_relu(ctx, i ? -0.01 : 0.01));
        mlc_module_add(net, mlc_nn_linear(ctx, 64, 8));
        CHECK(mlc_forward(net, mlc_ones(ctx, MLC_F32, mlc_dims2(64, 8))) != NULL);
        CHECK_EQ(mlc_memory_info(ctx, &mem), MLC_OK);
        CHECK_OK(ctx);
        kept[i] = mem.now[MLC_MEM_ACTIVATION];
    }
    CHECK_EQ(kept[1] - kept[0], 64 * 64 * 4);
}

TEST(nn, prelu_learns_its_weight)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_prelu(ctx, 1);
    mlc_optim  *opt = mlc_sgd(m, 0.5);
    CHECK_NEAR(mlc_item(mlc_module_param(m, "weight")), 0.25, 0);
    mlc_tensor *y = mlc_forward(m, mlc_full(ctx, MLC_F32, mlc_dims1(1), -2));
    CHECK_NEAR(mlc_item(y), -0.5, 0);
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_module_param(m, "weight")), 1.25, 1e-6);
    CHECK_OK(ctx);
    CHECK(mlc_nn_prelu(ctx, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_prelu: channels is 0; it must be positive");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, flatten_keeps_the_first_axis)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_flatten(ctx);
    char        shape[64];
    mlc_tensor *y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims4(2, 3, 4, 5)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[2,60]");
    y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[2,3]");
    y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims3(0, 3, 2)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[0,6]");
    y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims1(3)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[3,1]");
    CHECK_OK(ctx);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims0())) == NULL);
    CHECK_HAS(mlc_error(ctx), "in Flatten: flatten: the input is a scalar");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

TEST(nn, unflatten_makes_several_axes_of_one)
{
    static const double three[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *last = mlc_nn_unflatten(ctx, -1, mlc_dims2(3, -1));
    mlc_module *first = mlc_nn_unflatten(ctx, 0, mlc_dims3(-1, 2, 1));
    char        shape[64];
    mlc_tensor *y = mlc_forward(last, mlc_arange(ctx, MLC_F32, 0, 12, 1));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[3,4]");
    CHECK_VALUES(y, 12, three, 0, 0);
    y = mlc_forward(last, mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 12)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[0,3,4]");
    y = mlc_forward(first, mlc_zeros(ctx, MLC_F32, mlc_dims2(6, 5)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[3,2,1,5]");
    y = mlc_forward(last, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 9)));
    y = mlc_forward(mlc_nn_flatten(ctx), y);
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[2,9]");
    CHECK_OK(ctx);
    CHECK(mlc_forward(last, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 10))) == NULL);
    CHECK_HAS(mlc_error(ctx), "unflatten: axis 1 of [2,10] does not become [3,-1]; the sizes must "
                              "make as many");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_forward(first, mlc_zeros(ctx, MLC_F32, mlc_dims0())) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_forward(first, mlc_zeros(ctx, MLC_F32, mlc_dims_of(7, (const int64_t[7]){
                                                         2, 1, 1, 1, 1, 1, 1}))) == NULL);
    CHECK_HAS(mlc_error(ctx), "a tensor has at most 8 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_nn_unflatten(ctx, 1, mlc_dims2(-1, -1)) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_unflatten: dims is [-1,-1]; its sizes must be positive");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_unflatten(ctx, 1, mlc_dims2(0, 3)) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_unflatten(ctx, 1, mlc_dims0()) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_unflatten: dims has 0 sizes; an axis becomes 1 to 8");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, a_class_without_a_name_is_refused)
{
    static const mlc_module_class no_name = {NULL, residual_forward, NULL, NULL, 0, NULL};
    static const mlc_module_class *const bad[] = {NULL, &no_name};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 2; i++) {
        CHECK(mlc_module_create(ctx, bad[i], NULL, 0) == NULL);
        CHECK_STR(mlc_error(ctx), "module_create: the class needs a name");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
}

/* y = layers.0(x) + layers.1(x), the layers in a container of their own. */
static mlc_tensor *parts_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    mlc_module *layers = mlc_module_child(m, 0);
    (void)e;
    return mlc_add(mlc_forward(mlc_module_child(layers, 0), x),
                   mlc_forward(mlc_module_child(layers, 1), x));
}

static void gather(void *user, const char *text, size_t n)
{
    strncat((char *)user, text, n);
}

TEST(nn, a_class_without_forward_holds_children_that_others_run)
{
    static const mlc_module_class list = {"List", NULL, NULL, NULL, MLC_TAKES_ACT, NULL};
    static const mlc_module_class parts = {"Parts", NULL, NULL, parts_call, 0, NULL};
    static char text[2000];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *layers = mlc_module_create(ctx, &list, NULL, 0);
    mlc_module *m = mlc_module_create(ctx, &parts, NULL, 0);
    CHECK_EQ(mlc_module_add(layers, mlc_nn_linear(ctx, 3, 2)), MLC_OK);
    CHECK_EQ(mlc_module_add(layers, mlc_nn_linear(ctx, 3, 2)), MLC_OK);
    CHECK_EQ(mlc_module_add_named(m, "layers", layers), MLC_OK);
    mlc_module *net = MLC_SEQUENTIAL(ctx, m, mlc_nn_relu(ctx));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK(y && mlc_dim(y, 0) == 4 && mlc_dim(y, 1) == 2);
    CHECK_EQ(mlc_module_numel(net, true), 16);
    CHECK(mlc_module_find(net, "0.layers.1") == mlc_module_child(layers, 1));
    text[0] = 0;
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, 3), gather, text), MLC_OK);
    CHECK_HAS(text, "0.layers.0 (Linear)                [4,2]                             8");
    CHECK_OK(ctx);
    CHECK(mlc_forward(layers, x) == NULL);                 /* no one knows what it would do    */
    CHECK_HAS(mlc_error(ctx), "in 0.layers (List): forward: the class has no forward and no call");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_module *wrong = MLC_SEQUENTIAL(ctx, mlc_module_create(ctx, &list, NULL, 0),
                                       mlc_nn_relu(ctx));
    CHECK(mlc_forward(wrong, x) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
}

/* ---- sequentials of a list, identity, functions -------------------------------------------- */

TEST(nn, a_sequential_of_a_list_is_one_of_the_same_children)
{
    double      a[16], b[16];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *made = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 5), mlc_nn_relu(ctx),
                                      mlc_nn_linear(ctx, 5, 4));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    CHECK(mlc_module_child(made, 2) != NULL && mlc_module_child(made, 3) == NULL);
    test_read(mlc_forward(made, x), a);
    CHECK_OK(ctx);
    mlc_ctx *other = test_ctx();
    test_read(mlc_forward(mlp(other, 3, 5, 4),
                          test_rand(other, MLC_F32, mlc_dims2(4, 3), 1, -1, 1)), b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK(mlc_nn_sequential_of(ctx, 0, NULL) != NULL);
    CHECK(mlc_nn_sequential_of(NULL, 0, NULL) == NULL);
    CHECK_OK(ctx);
}

/* Arguments of a list may be evaluated in any order. */
TEST(nn, initial_values_do_not_depend_on_the_order_in_which_children_are_made)
{
    double v[2][2][15];
    for (int backwards = 0; backwards < 2; backwards++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *part[2];
        for (int i = 0; i < 2; i++) {
            const int at = backwards ? 1 - i : i;
            part[at] = at ? mlc_nn_linear(ctx, 5, 3) : mlc_nn_linear(ctx, 3, 5);
        }
        mlc_module *net = mlc_nn_sequential_of(ctx, 2, part);
        test_read(mlc_module_param(net, "0.weight"), v[backwards][0]);
        test_read(mlc_module_param(net, "1.weight"), v[backwards][1]);
        CHECK_OK(ctx);
    }
    CHECK(memcmp(v[0], v[1], sizeof v[0]) == 0 && memcmp(v[0][0], v[0][1], sizeof v[0][0]) != 0);
}

TEST(nn, a_list_with_a_child_that_is_missing_leaves_the_others_as_they_were)
{
    mlc_memory  before, after;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *owner = mlc_nn_sequential(ctx), *owned = mlc_nn_relu(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1);
    CHECK_EQ(mlc_module_add(owner, owned), MLC_OK);
    for (int i = -1; i < 4; i++) {                         /* -1: scopes take what they keep   */
        double was[6], is[6];
        mlc_scope_begin(ctx);
        mlc_module *list[4] = {mlc_nn_linear(ctx, 3, 3), NULL, mlc_nn_relu(ctx), NULL};
        list[3] = i == 3 ? mlc_nn_sequential(ctx) : mlc_nn_tanh(ctx);
        if (i == 1) { list[1] = owned; }                   /* stays where it is                */
        if (i == 2) { list[1] = list[0]; }                 /* twice                            */
        if (i == 3) { mlc_module_add(list[3], list[2]); }  /* within another, after a NULL     */
        test_read(mlc_forward(list[0], x), was);
        CHECK(mlc_nn_sequential_of(ctx, 4, list) == NULL);
        CHECK_HAS(mlc_error(ctx), i == 1 || i == 2 ? "already has a parent" : "child 1 is NULL");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        test_read(mlc_forward(list[0], x), is);
        CHECK(memcmp(was, is, sizeof was) == 0);
        CHECK(mlc_module_child(owner, 0) == owned);
        mlc_module *net = mlc_nn_sequential_of(ctx, 2, (mlc_module *[]){list[0], list[3]});
        CHECK(mlc_forward(net, x) != NULL);
        CHECK_OK(ctx);
        mlc_module_free(net);
        mlc_module_free(i == 3 ? NULL : list[2]);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        mlc_memory_info(ctx, &after);
        if (i < 0) before = after;
        CHECK_EQ(after.now[MLC_MEM_OBJECT], before.now[MLC_MEM_OBJECT]);
    }
    CHECK(MLC_SEQUENTIAL(ctx, mlc_nn_relu(ctx), mlc_nn_linear(ctx, 0, 3)) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_linear: in is 0");       /* the first error stays            */
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* A program that keeps its parts and looks for an error at the end of a step. */
TEST(nn, one_check_at_the_end_does_where_a_layer_could_not_be_made)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *body = mlc_nn_linear(ctx, 8, 3), *head = mlc_nn_dropout(ctx, 1.5);
    mlc_module *net = MLC_SEQUENTIAL(ctx, body, head);
    mlc_optim  *opt = mlc_adamw(net, 1e-3);
    CHECK(body && !head && !net && !opt);
    for (int step = 0; step < 2; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(body, mlc_ones(ctx, MLC_F32, mlc_dims2(4, 8)));
        CHECK(y != NULL);
        y = mlc_forward(head, y);
        CHECK(y == NULL);
        mlc_optim_minimize(opt, mlc_mean_all(y));
        CHECK(mlc_scope_end(ctx) == MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "nn_dropout: p is 1.5");
    }
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_module *both = MLC_SEQUENTIAL(ctx, body, body);    /* one module twice                 */
    CHECK(!both && mlc_forward(body, mlc_ones(ctx, MLC_F32, mlc_dims2(4, 8))) != NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

static mlc_tensor *scaled(void *user, mlc_tensor *x)
{
    return mlc_mul_scalar(x, *(const double *)user);
}

TEST(nn, identity_and_functions_are_modules)
{
    static double three = 3;
    double      got[6], want[6];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1);
    CHECK(mlc_forward(mlc_nn_identity(ctx), x) == x);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_identity(ctx), mlc_nn_lambda(ctx, scaled, &three),
                                     mlc_nn_identity(ctx));
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_forward(net, x);
    test_read(mlc_mul_scalar(x, 3), want);
    test_read(y, got);
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 6, ((const double[]){3, 3, 3, 3, 3, 3}), 0, 0);
    mlc_no_grad_begin(ctx);                                /* the input is not the net's       */
    CHECK(mlc_forward(MLC_SEQUENTIAL(ctx, mlc_nn_identity(ctx), mlc_nn_relu(ctx)), x) != NULL);
    test_read(mlc_mul_scalar(x, 3), got);
    CHECK(memcmp(got, want, sizeof got) == 0);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* ---- functions of the program's that end scopes of others */

enum { IN_LAMBDA, IN_CALLED_LAMBDA, IN_CUSTOM, IN_CUSTOM_BACK, IN_HOOK, PLACES };

static void end_scope(const mlc_tensor *x) { CHECK_EQ(mlc_scope_end(x->ctx), MLC_ERR_STATE); }

/* A scope of its own it may end. */
static mlc_tensor *ends_a_scope(void *user, mlc_tensor *x)
{
    (void)user;
    CHECK_EQ(mlc_scope_begin(x->ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(x->ctx), MLC_OK);
    end_scope(x);
    return mlc_ones(x->ctx, MLC_F32, mlc_dims1(4));
}

static mlc_status custom_forward(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor **out)
{
    (void)n;
    if (*(const int *)user == IN_CUSTOM) end_scope(in[0]);
    *out = mlc_copy(in[0]);
    return MLC_OK;
}

static mlc_status custom_backward(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor *out,
                                  mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)n, (void)out, (void)need;
    if (*(const int *)user == IN_CUSTOM_BACK) end_scope(in[0]);
    dx[0] = dy;
    return MLC_OK;
}

static void hook_ends_a_scope(void *user, const mlc_op_event *e)
{
    if (*(const int *)user == IN_HOOK) end_scope(e->in[0]);
}

TEST(nn, a_function_that_ends_a_scope_it_did_not_begin_is_an_error)
{
    static const mlc_custom_op op = {"copies", custom_forward, custom_backward};
    for (int place = 0; place < PLACES; place++) {
        mlc_ctx  *ctx = test_ctx();
        mlc_hooks hooks;
        memset(&hooks, 0, sizeof hooks);
        hooks.op_begin = hook_ends_a_scope;
        hooks.user = &place;
        mlc_module *m = mlc_nn_lambda(ctx, ends_a_scope, NULL), *net = m;
        if (place == IN_CALLED_LAMBDA) net = MLC_SEQUENTIAL(ctx, mlc_nn_relu(ctx), m);
        if (place == IN_HOOK) CHECK(mlc_hooks_add(ctx, &hooks) != 0);
        for (int step = 0; step < 3; step++) {
            mlc_scope_begin(ctx);
            mlc_scope_begin(ctx);
            mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
            mlc_set_requires_grad(x, true);
            if (place <= IN_CALLED_LAMBDA) mlc_forward(net, x);
            else if (place == IN_HOOK) mlc_relu(x);
            else mlc_backward(mlc_sum_all(mlc_custom(&op, &place, &x, 1)));
            CHECK_HAS(mlc_error(ctx), "scope_end: no scope is open here");
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);   /* none is open                     */
            mlc_error_clear(ctx);
        }
    }
}

/* Each of the names is short enough; together they are not.                                   */
TEST(nn, a_dotted_name_that_is_too_long_is_an_error_of_the_build)
{
    char        part[61];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_linear(ctx, 2, 2);
    memset(part, 'n', sizeof part);
    part[sizeof part - 1] = 0;
    for (int i = 0; i < 5; i++) {
        mlc_module *outer = mlc_nn_sequential(ctx);
        CHECK_EQ(mlc_module_add_named(outer, part, m), MLC_OK);
        m = outer;
    }
    CHECK_EQ(mlc_module_build(m), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "build: name 'nnnnnnnn");
    CHECK_HAS(mlc_error(ctx), "is over 254 bytes");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, linear_without_bias_and_in_another_dtype)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(3, 4);
    d.no_bias = d.has_dtype = true;
    d.dtype = MLC_F64;
    mlc_module *m = mlc_nn_linear_ex(ctx, &d);
    CHECK_EQ(mlc_module_numel(m, false), 12);
    CHECK_EQ(mlc_module_param(m, "weight")->dtype, MLC_F64);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F64, mlc_dims1(3))) != NULL);
    CHECK_OK(ctx);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims1(3))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d.dtype = MLC_I64;
    CHECK(mlc_nn_linear_ex(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_nn_linear_ex(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_linear(ctx, 3, -1) == NULL);
    CHECK_HAS(mlc_error(ctx), "-1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, the_contexts_dtype_is_that_of_parameters_declared_without_one)
{
    mlc_ctx_desc d = test_desc();
    d.dtype = MLC_F64;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    CHECK_EQ(mlc_module_param(mlc_nn_linear(ctx, 2, 2), "weight")->dtype, MLC_F64);
    CHECK_OK(ctx);
}

/* ---- fusion ------------------------------------------------------------------------------- */

/* A sequential of linear and activation against the two operations: values and gradients agree
 * to the last bit, whatever the kernels fuse. */
static void check_fused(mlc_ctx *ctx, mlc_dtype dtype, mlc_module *act,
                        mlc_tensor *(*fn)(mlc_tensor *))
{
    enum { N = 9, IN = 33, OUT = 17 };
    static double   y[N * OUT], dx[N * IN], dw[OUT * IN], db[OUT];
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(IN, OUT);
    mlc_module     *net = mlc_nn_sequential(ctx);
    d.has_dtype = true;
    d.dtype = dtype;
    mlc_module_add(net, mlc_nn_linear_ex(ctx, &d));
    mlc_module_add(net, act);
    mlc_tensor *w = mlc_module_param(net, "0.weight"), *b = mlc_module_param(net, "0.bias");
    mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(N, IN), 1, -1, 1);
    mlc_tensor *dy = test_rand(ctx, dtype, mlc_dims2(N, OUT), 2, -1, 1);
    mlc_set_requires_grad(x, true);
    mlc_tensor *plain = fn(mlc_linear(x, w, b));
    CHECK_EQ(mlc_backward_from(plain, dy), MLC_OK);
    test_read(plain, y);
    test_read(mlc_grad(x), dx);
    test_read(mlc_grad(w), dw);
    test_read(mlc_grad(b), db);
    mlc_zero_grad(x);
    mlc_zero_grad(w);
    mlc_zero_grad(b);
    mlc_tensor *fused = mlc_forward(net, x);
    CHECK_EQ(mlc_backward_from(fused, dy), MLC_OK);
    CHECK_VALUES(fused, N * OUT, y, 0, 0);
    CHECK_VALUES(mlc_grad(x), N * IN, dx, 0, 0);
    CHECK_VALUES(mlc_grad(w), OUT * IN, dw, 0, 0);
    CHECK_VALUES(mlc_grad(b), OUT, db, 0, 0);
}

TEST(nn, sequential_fuses_with_the_same_bits)
{
    FOR_EACH_ISA(ctx) {
        const mlc_dtype dtypes[] = {MLC_F32, MLC_F64};
        for (int i = 0; i < 2; i++) {
            check_fused(ctx, dtypes[i], mlc_nn_relu(ctx), mlc_relu);
            check_fused(ctx, dtypes[i], mlc_nn_gelu(ctx), mlc_gelu);
            check_fused(ctx, dtypes[i], mlc_nn_tanh(ctx), mlc_tanh);
            check_fused(ctx, dtypes[i], mlc_nn_sigmoid(ctx), mlc_sigmoid);
            check_fused(ctx, dtypes[i], mlc_nn_silu(ctx), mlc_silu);
        }
        CHECK_OK(ctx);
    }
}

/* With a dropout, behind an activation or at once: the same stream, so the same mask. */
static void check_fused_dropout(mlc_ctx *ctx, bool act, bool training)
{
    enum { N = 9, IN = 33, OUT = 17 };
    double          y[N * OUT], dw[OUT * IN];
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(IN, OUT);
    mlc_module     *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear_ex(ctx, &d));
    if (act)
        mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.4));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_train(net, training);
    mlc_tensor *w = mlc_module_param(net, "0.weight"), *b = mlc_module_param(net, "0.bias");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, IN), 1, -1, 1);
    mlc_seed(ctx, 5);
    mlc_tensor *plain = mlc_linear(x, w, b);
    plain = act ? mlc_gelu(plain) : plain;
    plain = mlc_tanh(training ? mlc_dropout(plain, 0.4) : plain);
    CHECK_EQ(mlc_backward_from(plain, NULL), MLC_OK);
    test_read(plain, y);
    test_read(mlc_grad(w), dw);
    mlc_zero_grad(w);
    mlc_zero_grad(b);
    mlc_seed(ctx, 5);
    mlc_tensor *fused = mlc_forward(net, x);
    CHECK_EQ(mlc_backward_from(fused, NULL), MLC_OK);
    CHECK_VALUES(fused, N * OUT, y, 0, 0);
    CHECK_VALUES(mlc_grad(w), OUT * IN, dw, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, sequential_fuses_a_dropout_that_is_active)
{
    for (int i = 0; i < 4; i++)
        check_fused_dropout(test_ctx(), i & 1, i & 2);
}

/* ---- a user's class in a sequential ------------------------------------------------------- */

/* y = x w^T, with the epilogue it is given, which it notes.                                  */
static mlc_epilogue given;
static int          calls;

static mlc_tensor *product_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    given = *e;
    calls++;
    return mlc_linear_ex(x, *(mlc_tensor **)mlc_module_user(m), NULL, e);
}

static mlc_module *product(mlc_ctx *ctx, int64_t in, int64_t out, uint32_t takes)
{
    const mlc_module_class cls = {"Product", NULL, NULL, product_call, takes, NULL};
    mlc_param_desc         d;
    mlc_module            *m = mlc_module_create(ctx, &cls, NULL, sizeof(mlc_tensor *));
    d = mlc_param_desc_make(mlc_dims2(out, in));
    d.init = MLC_INIT_UNIFORM;
    d.a = -1;
    d.b = 1;
    *(mlc_tensor **)mlc_module_user(m) = mlc_module_declare(m, "weight", &d);
    return m;
}

/* What a product that takes something is given with an activation and a dropout behind it: values
 * and gradients are those of one that takes nothing, and of the operations.                  */
static void check_takes(uint32_t takes, mlc_module *(*act)(mlc_ctx *),
                        mlc_tensor *(*fn)(mlc_tensor *), mlc_act want, bool dropout, double p)
{
    enum { N = 9, IN = 33, OUT = 17 };
    double      y[N * OUT], dw[OUT * IN];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, product(ctx, IN, OUT, takes));
    mlc_module_add(net, act(ctx));
    if (dropout)
        mlc_module_add(net, mlc_nn_dropout(ctx, 0.4));
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, IN), 1, -1, 1);
    mlc_seed(ctx, 5);
    mlc_tensor *plain = fn(mlc_linear(x, w, NULL));
    plain = dropout ? mlc_dropout(plain, 0.4) : plain;
    CHECK_EQ(mlc_backward_from(plain, NULL), MLC_OK);
    test_read(plain, y);
    test_read(mlc_grad(w), dw);
    mlc_zero_grad(w);
    mlc_seed(ctx, 5);
    calls = 0;
    mlc_tensor *got = mlc_forward(net, x);
    CHECK_EQ(calls, 1);
    CHECK_EQ(given.act, want);
    CHECK(given.dropout == p && given.residual == NULL);
    CHECK_EQ(mlc_backward_from(got, NULL), MLC_OK);
    CHECK_VALUES(got, N * OUT, y, 0, 0);
    CHECK_VALUES(mlc_grad(w), OUT * IN, dw, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_users_class_is_handed_what_it_takes_and_no_more)
{
    const uint32_t all = MLC_TAKES_ACT | MLC_TAKES_DROPOUT;
    check_takes(MLC_TAKES_RELU, mlc_nn_relu, mlc_relu, MLC_ACT_RELU, false, 0);
    check_takes(0, mlc_nn_relu, mlc_relu, MLC_ACT_NONE, false, 0);
    check_takes(MLC_TAKES_RELU, mlc_nn_gelu, mlc_gelu, MLC_ACT_NONE, false, 0);
    check_takes(MLC_TAKES_ACT, mlc_nn_relu, mlc_relu, MLC_ACT_RELU, false, 0);
    check_takes(MLC_TAKES_ACT, mlc_nn_gelu, mlc_gelu, MLC_ACT_GELU, false, 0);
    check_takes(MLC_TAKES_RELU, mlc_nn_relu, mlc_relu, MLC_ACT_RELU, true, 0);
    check_takes(all, mlc_nn_tanh, mlc_tanh, MLC_ACT_TANH, true, 0.4);
    check_takes(MLC_TAKES_DROPOUT, mlc_nn_tanh, mlc_tanh, MLC_ACT_NONE, true, 0);
    check_takes(0, mlc_nn_tanh, mlc_tanh, MLC_ACT_NONE, true, 0);
}

static mlc_tensor *no_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    (void)m;
    (void)x;
    (void)e;
    return NULL;
}

/* Alone and in the pass of a container; and arrays that such a class does not take.          */
TEST(nn, a_call_that_makes_nothing_is_an_error)
{
    static const mlc_module_class cls = {"Nothing", NULL, NULL, no_call, MLC_TAKES_RELU, NULL};
    static const char             want[] = "forward left output 1 NULL without an error; make it, "
                                           "or say by mlc_raise why not";
    char        text[200];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *m = mlc_module_create(ctx, &cls, NULL, 0);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), *two[2] = {x, x};
    CHECK(mlc_forward(m, x) == NULL);
    snprintf(text, sizeof text, "in Nothing: %s", want);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_forward(m, two, 2, &x, 1), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "in Nothing: forward: one input and one output, not 2 and 1");
    mlc_error_clear(ctx);
    mlc_module_add_named(net, "gate", m);
    mlc_module_add(net, mlc_nn_relu(ctx));
    CHECK(mlc_forward(net, two[0]) == NULL);
    snprintf(text, sizeof text, "in gate (Nothing): %s", want);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
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

/* ---- dropout ------------------------------------------------------------------------------ */

TEST(nn, dropout_drops_in_training_and_does_nothing_in_evaluation)
{
    enum { N = 20000 };
    static double first[N], second[N];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_sequential(ctx);
    mlc_tensor   *x = mlc_full(ctx, MLC_F32, mlc_dims1(N), 2);
    int           zeros = 0, same = 0;
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.3));
    test_read(mlc_forward(net, x), first);
    test_read(mlc_forward(net, x), second);
    for (int i = 0; i < N; i++) {
        zeros += first[i] == 0;
        same += (first[i] == 0) == (second[i] == 0);
        CHECK(first[i] == 0 || fabs(first[i] - 2 / 0.7) < 1e-6);
    }
    CHECK_NEAR(zeros, 0.3 * N, 5 * sqrt(0.3 * 0.7 * N));
    CHECK_NEAR(same, (0.7 * 0.7 + 0.3 * 0.3) * N, 5 * sqrt(0.58 * 0.42 * N));
    mlc_module_train(net, false);
    for (int i = 0; i < N; i++)
        first[i] = 2;
    CHECK_VALUES(mlc_forward(net, x), N, first, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, dropout_refuses_what_is_no_probability)
{
    const double bad[] = {-0.5, 1.5, (double)NAN};
    mlc_ctx     *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        CHECK(mlc_nn_dropout(ctx, bad[i]) == NULL);
        CHECK_HAS(mlc_error(ctx), "dropout");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
}

/* ---- summary ------------------------------------------------------------------------------ */

typedef struct sink {
    char   text[8192];
    size_t n;
} sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    if (s->n + bytes < sizeof s->text)
        memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
}

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

/* ---- convolution, pooling, batch norm ------------------------------------------------------- */

static double largest_gap(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false)) : (double)NAN;
}

TEST(nn, layers_of_images_are_their_operations)
{
    static const mlc_pad_mode modes[] = {MLC_PAD_CONSTANT, MLC_PAD_REFLECT, MLC_PAD_REPLICATE,
                                         MLC_PAD_CIRCULAR};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 6, 7), 3, -1, 1);
        for (int i = 0; i < 4; i++) {
            mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 5, 3);
            d.conv.padding = mlc_dims2(1, 2), d.conv.stride = mlc_dims2(1, 2);
            d.padding_mode = modes[i];
            mlc_module *m = mlc_nn_conv(ctx, &d);
            mlc_tensor *w = mlc_module_param(m, "weight"), *b = mlc_module_param(m, "bias");
            mlc_dims    pad = mlc_dims4(0, 0, 1, 2);
            mlc_conv_desc plain = mlc_conv_desc_make();
            plain.stride = mlc_dims2(1, 2);
            mlc_tensor *want = mlc_conv(mlc_pad(x, pad, pad, modes[i], 0), w, b, &plain);
            CHECK_NEAR(largest_gap(mlc_forward(m, x), want), 0, 1e-6);
            mlc_tensor *most = mlc_max(mlc_abs(w), mlc_dims0(), false);
            CHECK(mlc_item(most) <= 1 / sqrt(27.0) && mlc_item(most) > 0.9 / sqrt(27.0));
        }
        mlc_nn_conv_desc t = mlc_nn_conv_desc_make(2, 3, 4, 2);
        t.transposed = true;
        t.conv.stride = mlc_dims_all(2);
        mlc_module *m = mlc_nn_conv(ctx, &t);
        CHECK_EQ(mlc_dim(mlc_forward(m, x), 2), 12);
        CHECK_EQ(mlc_dim(mlc_module_param(m, "weight"), 1), 4);
        CHECK_OK(ctx);
    }
}

/* conv, relu in one pass; pool; batch norm; the whole in training and in evaluation. */
static mlc_module *image_net(mlc_ctx *ctx)
{
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    mlc_module         *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 1, 4, 3, 1, 0));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &two));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 4));
    mlc_module_add(net, mlc_nn_conv2d(ctx, 4, 6, 2, 1, 0));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(2, 2)));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 24, 3));
    mlc_module_build(net);
    return net;
}

TEST(nn, a_network_of_images_runs_as_its_children_do_and_learns)
{
    static const double labels[4] = {0, 1, 2, 1};
    FOR_EACH_ISA(ctx) {
        mlc_module *net = image_net(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(4, 1, 12, 12), 3, -1, 1);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
        mlc_optim  *opt = mlc_adamw(net, 0.01);
        double      first = 0, last = 0;
        mlc_module_train(net, false);
        mlc_no_grad_begin(ctx);
        mlc_tensor *by_child = x, *at_once = mlc_forward(net, x);
        for (int i = 0; i < 9; i++)
            by_child = mlc_forward(mlc_module_child(net, i), by_child);
        CHECK_NEAR(largest_gap(by_child, at_once), 0, 1e-6);
        mlc_no_grad_end(ctx);
        mlc_module_train(net, true);
        for (int i = 0; i < 30; i++) {
            mlc_scope_begin(ctx);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, x), y);
            last = mlc_item(loss);
            if (i == 0)
                first = last;
            CHECK_EQ(mlc_backward(loss), MLC_OK);
            CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK(last < 0.5 * first);
        CHECK_NEAR(mlc_item(mlc_module_param(net, "3.num_batches_tracked")), 30, 0);
        CHECK(fabs(mlc_item(mlc_select(mlc_module_param(net, "3.running_mean"), 0, 0))) > 0);
        mlc_module_train(net, false);
        mlc_no_grad_begin(ctx);
        CHECK(largest_gap(mlc_forward(net, x), at_once) > 0.1);
        CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *low = mlc_forward(net, x);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK_EQ(low->dtype, MLC_BF16);
        CHECK(largest_gap(mlc_cast(low, MLC_F32), mlc_forward(net, x)) < 0.2);
        CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
        CHECK(largest_gap(mlc_cast(mlc_forward(net, mlc_cast(x, MLC_BF16)), MLC_F32),
                          mlc_cast(low, MLC_F32)) < 0.2);
        mlc_no_grad_end(ctx);
        CHECK_OK(ctx);
    }
}

/* Three features, the first with a scale that f16 has no number for. */
static mlc_module *net_of_statistics(mlc_ctx *ctx, mlc_tensor *x)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_standardize(ctx, 3), mlc_nn_linear(ctx, 3, 4),
                                     mlc_nn_batch_norm(ctx, 4), mlc_nn_relu(ctx));
    CHECK_EQ(mlc_nn_scale_fit(mlc_module_child(net, 0), x), MLC_OK);
    return net;
}

/* Against the same network in f32, which stays as the clone. */
TEST(nn, statistics_stay_f32_in_a_network_of_16_bits)
{
    static const char *const names[4] = {"0.mean", "0.scale", "2.running_mean", "2.running_var"};
    static const mlc_dtype   to[2] = {MLC_BF16, MLC_F16};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 2; k++) {
            mlc_tensor *scales = test_tensor(ctx, MLC_F32, mlc_dims1(3), (double[]){1e-5, 1, 40});
            mlc_tensor *x = mlc_mul(test_rand(ctx, MLC_F32, mlc_dims2(16, 3), 3, -1, 2), scales);
            mlc_module *net = net_of_statistics(ctx, x), *full = mlc_module_clone(net);
            CHECK_EQ(mlc_module_to(net, to[k]), MLC_OK);
            CHECK_EQ(mlc_module_param(net, "2.weight")->dtype, to[k]);
            for (int training = 1; training >= 0; training--) {
                mlc_module_train(net, training != 0);
                mlc_module_train(full, training != 0);
                mlc_tensor *y = mlc_forward(net, mlc_cast(x, to[k]));
                if (!CHECK(y != NULL)) break;
                CHECK_EQ(y->dtype, to[k]);
                CHECK_NEAR(largest_gap(mlc_cast(y, MLC_F32), mlc_forward(full, x)), 0, 0.05);
                CHECK_EQ(mlc_backward(mlc_mean_all(mlc_mul(y, y))), MLC_OK);
                CHECK_EQ(mlc_grad(mlc_module_param(net, "1.weight"))->dtype, to[k]);
            }
            for (int i = 0; i < 4; i++) {
                CHECK_EQ(mlc_module_param(net, names[i])->dtype, MLC_F32);
                CHECK_NEAR(largest_gap(mlc_module_param(net, names[i]),
                                       mlc_module_param(full, names[i])), 0, 0.01);
            }
            mlc_module *clone = mlc_module_clone(net);
            CHECK_EQ(mlc_module_to(clone, to[k]), MLC_OK);
            CHECK_EQ(mlc_module_param(clone, "2.running_var")->dtype, MLC_F32);
            CHECK_EQ(mlc_module_copy(clone, net), MLC_OK);
            CHECK_EQ(mlc_module_to(clone, MLC_F64), MLC_OK);
            CHECK_EQ(mlc_module_param(clone, "2.running_var")->dtype, MLC_F64);
            CHECK_EQ(mlc_module_param(clone, "2.num_batches_tracked")->dtype, MLC_I64);
            CHECK_OK(ctx);
        }
    }
}

/* A convolution that has one activation keeps it, whatever follows. */
TEST(nn, sequential_does_not_replace_an_activation)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 2, 3, 2);
    d.conv.act = MLC_ACT_RELU;
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv(ctx, &d));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 2, 9), 1, -1, 1);
    mlc_tensor *want = mlc_tanh(mlc_forward(mlc_module_child(net, 0), x));
    CHECK_NEAR(largest_gap(mlc_forward(net, x), want), 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, layers_of_images_refuse_sizes_that_are_none)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 5, 3);
    d.conv.groups = 2;
    CHECK(mlc_nn_conv(ctx, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_conv: 2 axes, in 3, out 5, kernel 3, groups 2: 1 to 3 axes, "
                              "positive sizes, a kernel below 2^20, a number of it for each axis "
                              "or mlc_dims_all, channels that are multiples "
                              "of groups, and padding with zeros where it is transposed; start "
                              "from mlc_nn_conv_desc_make()");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_conv(ctx, NULL) == NULL && mlc_nn_conv2d(ctx, 1, 1, 0, 1, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_nn_batch_norm(ctx, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_batch_norm: channels is 0; it must be positive; a desc starts "
                              "from mlc_nn_batch_norm_desc_make(channels)");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_conv1d(NULL, 1, 1, 1, 1, 0) == NULL && mlc_nn_conv3d(NULL, 1, 1, 1, 1, 0) == NULL);
}

/* ---- relu with the maxima behind it --------------------------------------------------------- */

/* Conv, relu, pool in one sequential, and the operations one by one; y is changed in place before
 * backward, which saved nothing of it. */
static void conv_relu_pool(mlc_ctx *ctx, mlc_dtype dtype)
{
    enum { N = 2, C = 3, SIDE = 9, OUT = 5, Y = N * OUT * 16, X = N * C * SIDE * SIDE };
    static double       y[2][Y], dx[2][X];
    mlc_pool_desc       two = mlc_pool_desc_make(3);
    mlc_tensor         *x = test_rand(ctx, dtype, mlc_dims4(N, C, SIDE, SIDE), 1, -1, 1);
    mlc_module         *net = mlc_nn_sequential(ctx), *conv = mlc_nn_conv2d(ctx, C, OUT, 3, 1, 0);
    two.stride = mlc_dims_all(2);
    two.padding = mlc_dims_all(1);
    mlc_set_requires_grad(x, true);
    mlc_module_add(net, conv);
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &two));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    for (int fused = 0; fused < 2; fused++) {
        mlc_tensor *out = fused ? mlc_forward(net, x)
                                : mlc_max_pool(mlc_relu(mlc_forward(conv, x)), &two);
        mlc_mul_scalar_(out, 2);
        test_read(mlc_contiguous(out), y[fused]);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(out, out), mlc_dims0(), false)), MLC_OK);
        test_read(mlc_contiguous(mlc_grad(x)), dx[fused]);
        mlc_zero_grad(x);
    }
    CHECK_OK(ctx);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    CHECK(memcmp(dx[0], dx[1], sizeof dx[0]) == 0);
    mlc_module_free(net);
}

TEST(nn, relu_with_the_maxima_behind_it_is_the_same_and_saves_nothing_of_them)
{
    FOR_EACH_ISA(ctx) {
        conv_relu_pool(ctx, MLC_F32);
        conv_relu_pool(ctx, MLC_F64);
        conv_relu_pool(ctx, MLC_BF16);
    }
}

/* ---- parameters bound to memory of the program ---------------------------------------------- */

enum { IN = 5, HIDDEN = 7, OUT = 3 };  /* odd: tails are where kernels read too far            */

static const char *const MLP_NAMES[] = {"0.weight", "0.bias", "2.weight", "2.bias"};

/* What is at a name, in memory that cannot be written, so many bytes before the end of a page.  */
static flash flash_param(mlc_module *net, const char *name, size_t short_of)
{
    mlc_tensor  *t = mlc_module_param(net, name);
    const size_t n = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    void        *copy = malloc(n);
    CHECK_EQ(mlc_read(t, copy, n), MLC_OK);
    const flash f = flash_of(copy, n, short_of);
    free(copy);
    return f;
}

/* Values of another net of the same shape: its first numbers differ from those of ours.        */
static flash flash_other(mlc_ctx *ctx, const char *name)
{
    mlc_module *other = mlp(ctx, IN, HIDDEN, OUT);
    const flash f = flash_param(other, name, 0);
    mlc_module_free(other);
    return f;
}

static void check_same_params(mlc_module *a, mlc_module *b)
{
    for (int i = 0; i < COUNT(MLP_NAMES); i++) {
        double       x[IN * HIDDEN], y[IN * HIDDEN];
        mlc_tensor  *t = mlc_module_param(a, MLP_NAMES[i]);
        test_read(t, x);
        test_read(mlc_module_param(b, MLP_NAMES[i]), y);
        CHECK_EQ(memcmp(x, y, (size_t)mlc_numel(t) * sizeof *x), 0);
    }
}

static int64_t param_bytes(mlc_ctx *ctx)
{
    mlc_memory mem;
    mlc_memory_info(ctx, &mem);
    return mem.now[MLC_MEM_PARAM];
}

static mlc_tensor *batch_of(mlc_ctx *ctx, int seed)
{
    return test_rand(ctx, MLC_F32, mlc_dims2(4, IN), (uint64_t)seed, -1, 1);
}

TEST(nn, a_bound_net_takes_no_memory_for_values_and_gives_the_same_bits)
{
    ONLY_ON_HOST();
    for (size_t short_of = 0; short_of < 12; short_of += 4)
        FOR_EACH_ISA(ctx) {
            flash       f[4];
            double      want[4 * OUT], got[4 * OUT];
            mlc_module *ref = mlp(ctx, IN, HIDDEN, OUT), *net = mlp(ctx, IN, HIDDEN, OUT);
            mlc_module *none = mlc_nn_relu(ctx);
            mlc_module_build(ref);
            const int64_t before = param_bytes(ctx);
            mlc_module_build(none);
            const int64_t empty = param_bytes(ctx) - before;
            for (int i = 0; i < 4; i++) {
                f[i] = flash_param(ref, MLP_NAMES[i], short_of);
                CHECK_EQ(mlc_module_bind(net, MLP_NAMES[i], f[i].data), MLC_OK);
            }
            CHECK_EQ(mlc_module_build(net), MLC_OK);
            CHECK_EQ(param_bytes(ctx) - before, 2 * empty);
            test_read(mlc_forward(ref, batch_of(ctx, 1)), want);
            mlc_tensor *y = mlc_forward(net, batch_of(ctx, 1));
            test_read(y, got);
            CHECK_EQ(memcmp(want, got, sizeof want), 0);
            CHECK(!mlc_requires_grad(y));
            for (int i = 0; i < 4; i++)
                CHECK((const void *)mlc_f32(mlc_module_param(net, MLP_NAMES[i])) == f[i].data);
            CHECK_EQ(mlc_module_rebuild(net), MLC_OK);     /* they stay where they are         */
            check_same_params(ref, net);
            CHECK_EQ(param_bytes(ctx) - before, 2 * empty);
            CHECK_EQ(mlc_module_numel(net, false), mlc_module_numel(ref, false));
            CHECK_EQ(mlc_module_numel(net, true), 0);
            CHECK_OK(ctx);
            mlc_module_free(net);
            for (int i = 0; i < 4; i++) flash_free(&f[i]);
        }
}

TEST(nn, binding_after_a_build_frees_the_room_with_the_next_and_rebinding_is_seen_at_once)
{
    static sink s;
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
    const flash other = flash_other(ctx, "0.weight"), third = flash_other(ctx, "0.weight");
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    const int64_t before = param_bytes(ctx);
    CHECK(memcmp(other.data, third.data, sizeof(float)) != 0);
    CHECK_EQ(mlc_module_bind(net, "0.weight", other.data), MLC_OK);
    CHECK(mlc_f32(w) == other.data);
    CHECK_EQ(param_bytes(ctx), before);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(param_bytes(ctx), before - 192);              /* 140 bytes in lines of 64         */
    CHECK(mlc_f32(w) == other.data);
    CHECK_EQ(mlc_module_bind(net, "0.weight", third.data), MLC_OK);
    flash_free(&other);
    CHECK(mlc_f32(w) == third.data);
    CHECK(mlc_forward(net, batch_of(ctx, 1)) != NULL);
    CHECK(mlc_f32(w) == third.data);
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, IN), collect, &s), MLC_OK);
    CHECK_HAS(s.text, "Total params: 66 (264 B)\nTrainable params: 31\nNon-trainable params: 35\n");
    int n = 0;
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); n++)
        CHECK(!it.buffer && it.trainable == (it.tensor != w));
    CHECK_EQ(n, 4);
    CHECK_OK(ctx);
    mlc_module_free(net);
    flash_free(&third);
}

/* -- training around what is bound -- */

typedef struct recipe { bool adamw, clip, in_backward, late; } recipe;

static mlc_optim *optim_of(mlc_module *net, const recipe *r)
{
    mlc_sgd_desc  d;
    mlc_clip_desc clip = {0.5, INF, false};
    d = mlc_sgd_desc_make(0.1);
    d.momentum = 0.9;
    d.weight_decay = 0.01;
    mlc_optim *o = r->adamw ? mlc_adamw(net, 0.01) : mlc_sgd_ex(net, &d);
    if (r->clip)
        CHECK_EQ(mlc_optim_clip(o, &clip), MLC_OK);
    if (r->in_backward)
        CHECK_EQ(mlc_optim_in_backward(o, true), MLC_OK);
    return o;
}

static void train(mlc_ctx *ctx, mlc_module *net, mlc_optim *o, int from, int to)
{
    for (int i = from; i < to; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, batch_of(ctx, i));
        CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
        CHECK_EQ(mlc_optim_step(o), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* Each parameter in turn: bound, or frozen where it lies; from the start or after two steps.    */
TEST(nn, training_around_a_bound_parameter_is_as_if_it_were_frozen)
{
    static const recipe recipes[] = {{false, false, false, false}, {false, false, false, true},
                                     {true, false, false, false},  {true, false, false, true},
                                     {true, true, false, false},   {false, false, true, true}};
    ONLY_ON_HOST();
    for (int k = 0; k < COUNT(recipes); k++)
        for (int i = 0; i < COUNT(MLP_NAMES); i++) {
            const recipe *r = &recipes[k];
            const int     late = r->late ? 2 : 0;
            mlc_ctx      *ctx = test_ctx();
            mlc_module   *ref = mlp(ctx, IN, HIDDEN, OUT), *net = mlp(ctx, IN, HIDDEN, OUT);
            for (int p = 0; p < COUNT(MLP_NAMES); p++)
                mlc_copy_into(mlc_module_param(net, MLP_NAMES[p]),
                              mlc_module_param(ref, MLP_NAMES[p]));
            mlc_optim *a = NULL, *b = NULL;
            if (late) {
                train(ctx, ref, a = optim_of(ref, r), 0, late);
                train(ctx, net, b = optim_of(net, r), 0, late);
            }
            const flash f = flash_param(ref, MLP_NAMES[i], 0);
            CHECK_EQ(mlc_module_freeze(ref, MLP_NAMES[i], true), MLC_OK);
            CHECK_EQ(mlc_module_bind(net, MLP_NAMES[i], f.data), MLC_OK);
            train(ctx, ref, a ? a : optim_of(ref, r), late, 6);
            train(ctx, net, b ? b : optim_of(net, r), late, 6);
            check_same_params(ref, net);
            CHECK(mlc_grad(mlc_module_param(net, MLP_NAMES[i])) == NULL);
            CHECK_OK(ctx);
            mlc_module_free(net);
            flash_free(&f);
        }
}

/* -- what would write to it -- */

typedef mlc_status (*write_fn)(mlc_module *net, mlc_tensor *w);

static mlc_status made(mlc_tensor *t) { return t ? MLC_OK : MLC_ERR_STATE; }

static mlc_status write_host(mlc_module *net, mlc_tensor *w)
{
    static const float v[IN * HIDDEN] = {0};
    (void)net;
    return mlc_write(w, v, sizeof v);
}

static mlc_status write_part(mlc_module *net, mlc_tensor *w)
{
    static const float v[2 * HIDDEN] = {0};
    (void)net;
    return mlc_write(mlc_slice(w, 1, 1, 3, 1), v, sizeof v);
}

static mlc_status write_copy_into(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return mlc_copy_into(w, mlc_zeros(w->ctx, MLC_F32, mlc_dims1(1)));
}

static mlc_status write_copy_in_place(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_copy_(mlc_detach(w), mlc_zeros(w->ctx, MLC_F32, mlc_dims1(1))));
}

static mlc_status write_fill(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_zero_(w));
}

static mlc_status write_relu(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_relu_(mlc_transpose(w, 0, 1)));
}

static mlc_status write_add(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_add_(w, w));
}

static mlc_status write_mask(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_masked_fill_(w, mlc_gt_scalar(w, 0), 1));
}

static mlc_status write_scatter(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_scatter_(w, 0, mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 1)),
                             mlc_zeros(w->ctx, MLC_F32, mlc_dims2(1, 1))));
}

static mlc_status write_gradient(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return mlc_set_requires_grad(w, true);
}

static mlc_status write_thaw(mlc_module *net, mlc_tensor *w)
{
    (void)w;
    return mlc_module_freeze(net, "0.w*", false);
}

static const write_fn WRITES[] = {write_host, write_part, write_copy_into, write_copy_in_place,
                                  write_fill, write_relu, write_add, write_mask, write_scatter,
                                  write_gradient, write_thaw};

TEST(nn, whatever_would_change_a_bound_parameter_is_an_error_that_says_what_to_do)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
    const flash f = flash_other(ctx, "0.weight");
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    CHECK_EQ(mlc_module_bind(net, "0.weight", f.data), MLC_OK);
    for (int built = 0; built < 2; built++) {
        for (int no_grad = 0; no_grad < 2; no_grad++)
            for (int i = 0; i < COUNT(WRITES); i++) {
                if (no_grad) mlc_no_grad_begin(ctx);
                CHECK_EQ(WRITES[i](net, w), MLC_ERR_STATE);
                if (no_grad) mlc_no_grad_end(ctx);
                CHECK_HAS(mlc_error(ctx), "weight' is bound to memory of the program "
                          "(mlc_module_bind), which is never written; leave it out, bind other "
                          "data, or change a mlc_copy of it");
                CHECK_STATUS(ctx, MLC_ERR_STATE);
            }
        CHECK_EQ(mlc_module_build(net), MLC_OK);
    }
    CHECK_EQ(mlc_module_freeze(net, "2.*", true), MLC_OK); /* all or none starts again         */
    CHECK_EQ(mlc_module_freeze(net, NULL, false), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "module_freeze: '0.weight' is bound");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_module_numel(net, true), HIDDEN);
    CHECK_EQ(mlc_module_freeze(net, NULL, true), MLC_OK);
    CHECK_EQ(mlc_module_freeze(net, "*bias", false), MLC_OK);
    CHECK(mlc_relu_(mlc_copy(w)) != NULL);
    CHECK_EQ(mlc_set_requires_grad(w, false), MLC_OK);
    CHECK(mlc_f32(w) == f.data);
    CHECK_OK(ctx);
    mlc_module_free(net);
    flash_free(&f);
}

static mlc_module *normed(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, IN, HIDDEN));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, HIDDEN));
    return net;
}

/* Each of a batch norm's buffers alone: training changes none of them.                        */
TEST(nn, batch_norm_with_bound_statistics_evaluates_and_does_not_train)
{
    static const char *const names[] = {"1.running_mean", "1.running_var",
                                        "1.num_batches_tracked"};
    static const float   means[HIDDEN] = {1, 2, 3, 4, 5, 6, 7};
    static const float   vars[HIDDEN] = {1, 1, 2, 2, 3, 3, 4};
    static const int64_t count = 5;
    static sink s;
    const void *const data[] = {means, vars, &count};
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(names); i++) {
        double      want[4 * HIDDEN], got[4 * HIDDEN];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *ref = normed(ctx), *net = normed(ctx);
        const flash f = flash_of(data[i], i < 2 ? sizeof means : sizeof count, 0);
        mlc_copy_into(mlc_module_param(net, "0.weight"), mlc_module_param(ref, "0.weight"));
        mlc_copy_into(mlc_module_param(net, "0.bias"), mlc_module_param(ref, "0.bias"));
        CHECK_EQ(mlc_write(mlc_module_param(ref, names[i]), f.data,
                           i < 2 ? sizeof means : sizeof count), MLC_OK);
        CHECK_EQ(mlc_module_bind(net, names[i], f.data), MLC_OK);
        CHECK(mlc_forward(net, batch_of(ctx, 1)) == NULL);
        CHECK_HAS(mlc_error(ctx), names[i] + 2);
        CHECK_HAS(mlc_error(ctx), "' is bound to memory of the program");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK_EQ(mlc_summary(net, mlc_dims2(4, IN), collect, &s), MLC_OK);
        mlc_module_train(ref, false);
        mlc_module_train(net, false);
        test_read(mlc_forward(ref, batch_of(ctx, 1)), want);
        test_read(mlc_forward(net, batch_of(ctx, 1)), got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);       /* the others are as they were      */
        CHECK_OK(ctx);
        mlc_module_free(net);
        flash_free(&f);
    }
}

TEST(nn, folding_into_a_bound_layer_is_an_error_before_anything_changes)
{
    static const char *const names[] = {"0.weight", "0.bias"};
    ONLY_ON_HOST();
    for (int i = 0; i < 2; i++) {
        double      want[4 * HIDDEN], got[4 * HIDDEN];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = normed(ctx);
        const flash f = flash_param(net, names[i], 0);
        mlc_module_train(net, false);
        CHECK_EQ(mlc_module_bind(net, names[i], f.data), MLC_OK);
        test_read(mlc_forward(net, batch_of(ctx, 1)), want);
        mlc_error_clear(ctx);
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "nn_fold_batch_norm: '");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        mlc_scope_end(ctx);
        CHECK(mlc_module_child(net, 1) != NULL);
        test_read(mlc_forward(net, batch_of(ctx, 1)), got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);
        CHECK_OK(ctx);
        mlc_module_free(net);
        flash_free(&f);
    }
}

TEST(nn, bind_refuses_what_it_cannot_read)
{
    static const double values[IN * HIDDEN + 1] = {0};     /* aligned for any dtype            */
    const char *const odd = (const char *)values + 2;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
    CHECK_EQ(mlc_module_bind(NULL, "0.weight", values), MLC_ERR_ARG);
    CHECK_EQ(mlc_module_bind(net, "1.weight", values), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "module_bind: there is no '1.weight'; mlc_param_next walks through "
              "all names");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_bind(net, NULL, values), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    if (!test_on_host()) {
        CHECK_EQ(mlc_module_bind(net, "0.weight", values), MLC_ERR_UNSUPPORTED);
        CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
        return;
    }
    CHECK_EQ(mlc_module_bind(net, "0.weight", NULL), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "module_bind: data for '0.weight' is NULL; give 35 elements of f32, "
              "at a multiple of 4 bytes");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_bind(net, "0.weight", odd), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "data for '0.weight' is not aligned");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    /* What the tape has: a bias is not saved, its gradient would have no place.               */
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, batch_of(ctx, 1));
    CHECK_EQ(mlc_module_bind(net, "0.bias", values), MLC_ERR_STATE);
    CHECK_STR(mlc_error(ctx), "module_bind: 'bias' is an input of a recorded linear; call it "
              "before, or when the scope of that has ended");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
    CHECK(mlc_grad(mlc_module_param(net, "0.bias")) != NULL);
    mlc_scope_end(ctx);
    CHECK_EQ(mlc_module_numel(net, true), mlc_module_numel(net, false));
    CHECK_EQ(mlc_module_bind(net, "0.bias", values), MLC_OK);
    CHECK(mlc_grad(mlc_module_param(net, "0.bias")) == NULL);
    CHECK(mlc_item(mlc_select(mlc_module_param(net, "0.bias"), 0, 6)) == 0);
    CHECK_OK(ctx);
}

/* By the second name, in two trees; the one that bound it goes first.                         */
TEST(nn, a_tied_parameter_is_bound_under_all_its_names)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *a = mlp(ctx, IN, HIDDEN, OUT), *b = mlp(ctx, IN, HIDDEN, OUT);
    const flash f = flash_other(ctx, "0.weight");
    mlc_tensor *w = mlc_module_param(a, "0.weight");
    CHECK_EQ(mlc_module_tie(mlc_module_child(a, 2), "same", w), MLC_OK);
    CHECK_EQ(mlc_module_tie(b, "shared", w), MLC_OK);
    CHECK_EQ(mlc_module_build(b), MLC_OK);
    CHECK(mlc_module_param(a, "2.same") == w);
    mlc_optim *o = mlc_sgd(b, 0.1);
    CHECK_EQ(mlc_module_bind(a, "2.same", f.data), MLC_OK);
    CHECK(mlc_f32(mlc_module_param(b, "shared")) == f.data);
    CHECK(mlc_f32(mlc_module_param(a, "0.weight")) == f.data);
    train(ctx, b, o, 0, 2);
    train(ctx, a, mlc_sgd(a, 0.1), 0, 2);
    mlc_module_free(a);
    CHECK_EQ(mlc_module_rebuild(b), MLC_OK);
    train(ctx, b, o, 2, 4);
    CHECK(mlc_f32(mlc_module_param(b, "shared")) == f.data);
    CHECK_OK(ctx);
    mlc_module_free(b);
    flash_free(&f);
}

TEST(nn, a_bound_child_stays_bound_in_a_larger_net)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT), *root = mlc_nn_sequential(ctx);
    const flash f = flash_other(ctx, "2.weight");
    CHECK_EQ(mlc_module_bind(net, "2.weight", f.data), MLC_OK);
    mlc_module_build(net);
    CHECK_EQ(mlc_module_add(root, net), MLC_OK);
    CHECK_EQ(mlc_module_add(root, mlc_nn_linear(ctx, OUT, 2)), MLC_OK);
    CHECK(mlc_f32(mlc_module_param(root, "0.2.weight")) == f.data);
    train(ctx, root, mlc_adamw(root, 0.1), 0, 2);
    mlc_module_free(net);
    CHECK_EQ(mlc_module_build(root), MLC_OK);
    flash_free(&f);
    CHECK_OK(ctx);
}

/* Rounded once, as what was not bound; the same dtype changes nothing.                        */
TEST(nn, module_to_copies_what_is_bound_to_another_dtype_and_it_can_be_trained)
{
    static const mlc_dtype dtypes[] = {MLC_F64, MLC_BF16, MLC_F16};
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(dtypes); i++) {
        double      want[IN * HIDDEN], got[IN * HIDDEN];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
        const flash f = flash_other(ctx, "0.weight");
        CHECK_EQ(mlc_module_bind(net, "0.weight", f.data), MLC_OK);
        mlc_tensor *w = mlc_module_param(net, "0.weight");
        test_read(mlc_cast(w, dtypes[i]), want);
        CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
        CHECK(mlc_f32(w) == f.data);
        const int64_t before = param_bytes(ctx);
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, batch_of(ctx, 1));
        CHECK_EQ(mlc_module_to(net, dtypes[i]), MLC_ERR_STATE);      /* the tape has others    */
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK(y != NULL && mlc_f32(w) == f.data);
        mlc_scope_end(ctx);
        CHECK_EQ(mlc_module_to(net, dtypes[i]), MLC_OK);
        flash_free(&f);
        CHECK(w->dtype == dtypes[i] && (dtypes[i] != MLC_F64 || param_bytes(ctx) > before));
        test_read(w, got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);
        CHECK(!mlc_requires_grad(w));
        CHECK(mlc_zero_(w) != NULL);
        CHECK_EQ(mlc_module_freeze(net, NULL, false), MLC_OK);
        CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        train(ctx, net, mlc_sgd(net, 0.1), 0, 2);
        CHECK_OK(ctx);
    }
}

/* The 16-bit copy of a weight is of what was bound before.                                    */
TEST(nn, binding_drops_the_packs_of_the_old_values)
{
    enum { N = 64 };
    ONLY_ON_HOST();
    for (int pass = 0; pass < 2; pass++)
        FOR_EACH_ISA(ctx) {
            double      want[N * N], got[N * N];
            mlc_memory  mem;
            mlc_module *net = mlc_nn_linear(ctx, N, N), *ref = mlc_nn_linear(ctx, N, N);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, N), 1, -1, 1);
            const flash w = flash_param(ref, "weight", 0), b = flash_param(ref, "bias", 0);
            if (pass)
                CHECK_EQ(mlc_module_bind(net, "weight", mlc_f32(x)), MLC_OK);
            mlc_no_grad_begin(ctx);
            mlc_autocast_begin(ctx, MLC_BF16);
            test_read(mlc_forward(ref, x), want);
            mlc_module_free(ref);
            CHECK(mlc_forward(net, x) != NULL);
            CHECK_EQ(mlc_module_bind(net, "weight", w.data), MLC_OK);
            CHECK_EQ(mlc_module_bind(net, "bias", b.data), MLC_OK);
            mlc_memory_info(ctx, &mem);
            CHECK_EQ(mem.now[MLC_MEM_PACK], 0);
            test_read(mlc_forward(net, x), got);
            CHECK_EQ(memcmp(want, got, sizeof want), 0);
            mlc_autocast_end(ctx);
            mlc_no_grad_end(ctx);
            CHECK_OK(ctx);
            mlc_module_free(net);
            flash_free(&w);
            flash_free(&b);
        }
}

/* ---- clones, copies, states ---------------------------------------------------------------- */

/* Gate of itself and a partner: knows its parameter and a module by pointers. */
typedef struct gate_user { double gain; mlc_tensor *w; mlc_module *inner; } gate_user;

static mlc_tensor *gate_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    const gate_user *u = (const gate_user *)mlc_module_user(m);
    (void)e;
    return mlc_mul(mlc_mul_scalar(mlc_forward(u->inner, x), u->gain), u->w);
}

static mlc_module *gate(mlc_ctx *ctx)
{
    static const mlc_module_class cls = {"Gate", NULL, NULL, gate_call, 0, NULL};
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, sizeof(gate_user));
    gate_user     *u = (gate_user *)mlc_module_user(m);
    memset(&d, 0, sizeof d);
    d.shape = mlc_dims1(4);
    d.init = MLC_INIT_UNIFORM;
    d.a = 1;
    d.b = 2;
    u->gain = 0.5;
    u->w = mlc_module_declare(m, "w", &d);
    u->inner = mlc_nn_linear(ctx, 4, 4);
    CHECK_EQ(mlc_module_add_named(m, "inner", u->inner), MLC_OK);
    return m;
}

/* Each kind of layer that knows its parameters, and ties. */
static mlc_module *zoo(mlc_ctx *ctx)
{
    mlc_module *first = mlc_nn_linear(ctx, 4, 4), *again = mlc_nn_linear(ctx, 4, 4);
    mlc_module *block = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 4), mlc_nn_layer_norm(ctx, 4));
    mlc_module *net = MLC_SEQUENTIAL(ctx, first, mlc_nn_batch_norm(ctx, 4), mlc_nn_relu(ctx),
        mlc_nn_residual(ctx, block, NULL, true), mlc_nn_sklinear(ctx, 4, 4, 1, 2),
        gate(ctx), mlc_nn_dropout(ctx, 0.5), mlc_nn_prelu(ctx, 4), again);
    CHECK_EQ(mlc_module_tie(again, "shared", mlc_module_param(first, "weight")), MLC_OK);
    mlc_module_freeze(net, "3.*", true);
    return net;
}

/* All values, one after the other; how many. */
static int read_all(mlc_module *m, double *to, int room)
{
    mlc_param_iter it = mlc_param_iter_make(m);
    int            n = 0;
    while (mlc_param_next(&it))
        if (CHECK(n + mlc_numel(it.tensor) <= room)) {
            test_read(it.tensor, to + n);
            n += (int)mlc_numel(it.tensor);
        }
    return n;
}

static void same_names(mlc_module *a, mlc_module *b)
{
    mlc_param_iter i = mlc_param_iter_make(a), k = mlc_param_iter_make(b);
    while (mlc_param_next(&i)) {
        if (!CHECK(mlc_param_next(&k)))
            return;
        CHECK_STR(k.name, i.name);
        CHECK(i.tensor != k.tensor && i.buffer == k.buffer && i.trainable == k.trainable);
        CHECK_EQ(i.tensor->dtype, k.tensor->dtype);
    }
    CHECK(!mlc_param_next(&k));
}

TEST(nn, a_clone_is_the_same_network_and_another_one)
{
    enum { ROOM = 200 };
    double      a[ROOM], b[ROOM], y[2][20];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = zoo(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 1, -1, 1);
    CHECK(mlc_forward(net, x) != NULL);                    /* batch norm counts                */
    mlc_module_train(mlc_module_child(net, 6), false);
    mlc_module *clone = mlc_module_clone(net);
    if (!CHECK(clone != NULL))
        return;
    CHECK_OK(ctx);
    same_names(net, clone);
    CHECK(mlc_module_is_training(clone) && !mlc_module_is_training(mlc_module_child(clone, 6)));
    CHECK(mlc_module_param(clone, "8.shared") == mlc_module_param(clone, "0.weight"));
    const int n = read_all(net, a, ROOM);
    CHECK_EQ(read_all(clone, b, ROOM), n);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    test_read(mlc_forward(net, x), y[0]);
    test_read(mlc_forward(clone, x), y[1]);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    CHECK_NEAR(mlc_item(mlc_module_param(net, "1.num_batches_tracked")), 2, 0);
    CHECK_NEAR(mlc_item(mlc_module_param(clone, "1.num_batches_tracked")), 2, 0);
    read_all(net, a, ROOM);
    mlc_optim *opt = mlc_sgd(clone, 0.1);                  /* what is trained is not the first */
    CHECK_EQ(mlc_backward(mlc_sum(mlc_square(mlc_forward(clone, x)), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    read_all(net, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    read_all(clone, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) != 0);
    mlc_module_free(net);                                  /* nothing of it is in the clone    */
    CHECK(mlc_forward(clone, x) != NULL);
    CHECK_OK(ctx);
    CHECK(mlc_module_clone(NULL) == NULL);
}

TEST(nn, a_clone_has_16_bit_parameters_too_and_reads_what_is_bound)
{
    static const float v[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    double      y[2][20];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 4), mlc_nn_batch_norm(ctx, 4));
    mlc_tensor *x = test_rand(ctx, MLC_BF16, mlc_dims2(5, 4), 1, -1, 1);
    mlc_module_train(net, false);
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    mlc_module *clone = mlc_module_clone(net);
    test_read(mlc_forward(net, x), y[0]);
    test_read(mlc_forward(clone, x), y[1]);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    if (mlc_ctx_on_host(ctx)) {
        mlc_module *bound = mlc_nn_linear(ctx, 4, 4);
        CHECK_EQ(mlc_module_bind(bound, "weight", v), MLC_OK);
        mlc_module *other = mlc_module_clone(bound);
        CHECK(mlc_f32(mlc_module_param(other, "weight")) == v);
        CHECK_EQ(mlc_module_copy(other, bound), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "module_copy: 'weight' is bound");
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_state_bytes(other), 24 + 8 + 16);     /* without what does not change     */
    }
    CHECK_OK(ctx);
}

/* A class whose user data owns memory of the program. */
typedef struct owner_user { double *own; } owner_user;

static int  owner_blocks;
static bool owner_fails;

static void owner_release(mlc_module *m)
{
    free(((owner_user *)mlc_module_user(m))->own);
    owner_blocks--;
}

static mlc_status owner_clone(mlc_module *m, mlc_module *from)
{
    if (owner_fails)
        return MLC_ERR_NOMEM;
    ((owner_user *)mlc_module_user(m))->own = (double *)malloc(sizeof(double));
    *((owner_user *)mlc_module_user(m))->own = *((owner_user *)mlc_module_user(from))->own;
    owner_blocks++;
    return MLC_OK;
}

TEST(nn, a_class_that_owns_memory_clones_it_itself)
{
    static const mlc_module_class cls = {"Owner", NULL, owner_release, NULL, 0, owner_clone};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    owner_blocks = 0;
    for (int i = 0; i < 2; i++) {
        owner_user u;
        u.own = (double *)malloc(sizeof(double));
        *u.own = i + 5;
        owner_blocks++;
        CHECK_EQ(mlc_module_add(net, mlc_module_create(ctx, &cls, &u, sizeof u)), MLC_OK);
    }
    mlc_module *clone = mlc_module_clone(net);
    CHECK_EQ(owner_blocks, 4);
    owner_fails = true;                                    /* then nothing is released twice   */
    CHECK(mlc_module_clone(net) == NULL);
    CHECK_HAS(mlc_error(ctx), "module_clone: the clone of class Owner returned NOMEM");
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    owner_fails = false;
    CHECK_EQ(owner_blocks, 4);
    mlc_module_free(net);
    CHECK_EQ(owner_blocks, 2);
    const owner_user *u = (const owner_user *)mlc_module_user(mlc_module_child(clone, 1));
    CHECK(u && *u->own == 6);
    mlc_module_free(clone);
    CHECK_EQ(owner_blocks, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_state_is_the_same_bytes_whatever_the_block_held)
{
    char         block[2][256];
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *m = mlc_nn_linear(ctx, 3, 3);             /* 9 and 3 numbers: space after both */
    const size_t bytes = mlc_state_bytes(m);
    if (!CHECK(bytes > 0 && bytes <= sizeof block[0])) return;
    for (int i = 0; i < 2; i++) {
        memset(block[i], 85 * i, sizeof block[i]);
        CHECK_EQ(mlc_state_save(m, block[i], bytes), MLC_OK);
    }
    CHECK(memcmp(block[0], block[1], bytes) == 0);
    CHECK(block[0][bytes] == 0 && block[1][bytes] == 85);
    CHECK_OK(ctx);
}

TEST(nn, a_state_brings_all_values_back)
{
    enum { ROOM = 200 };
    double      a[ROOM], b[ROOM];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = zoo(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 1, -1, 1);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    const size_t bytes = mlc_state_bytes(net);
    char       *block = (char *)malloc(bytes + 1);
    const int   n = read_all(net, a, ROOM);
    CHECK_EQ(mlc_state_save(net, block + 1, bytes), MLC_OK);           /* aligned or not       */
    CHECK_EQ(mlc_backward(mlc_sum(mlc_square(mlc_forward(net, x)), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    read_all(net, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) != 0);
    block[1 + 24]++;                                       /* a hash                           */
    CHECK_EQ(mlc_state_load(net, block + 1, bytes), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "the block has no '0.weight'");
    mlc_error_clear(ctx);
    double      c[ROOM];
    read_all(net, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
    block[1 + 24]--;
    CHECK_EQ(mlc_state_load(net, block + 1, bytes), MLC_OK);
    read_all(net, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    CHECK(mlc_state_bytes(NULL) == 0 && mlc_state_save(NULL, block, bytes) == MLC_ERR_ARG);
    CHECK_EQ(mlc_state_load(NULL, block, bytes), MLC_ERR_ARG);
    free(block);
    CHECK_OK(ctx);
}

/* Products of 16 bits read packed copies of weights. */
TEST(nn, packed_weights_notice_copies_states_and_mixes)
{
    enum { WIDE = 64, ROWS = 40 };
    static double y[4][ROWS * WIDE], want[ROWS * WIDE];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, WIDE, WIDE), *other = mlc_nn_linear(ctx, WIDE, WIDE);
    const size_t  bytes = mlc_state_bytes(net);
    char         *block = (char *)malloc(bytes);
    mlc_tensor   *x = test_rand(ctx, MLC_BF16, mlc_dims2(ROWS, WIDE), 1, -1, 1);
    mlc_no_grad_begin(ctx);
    test_read(mlc_forward(net, x), y[0]);
    test_read(mlc_forward(other, x), want);
    CHECK(memcmp(y[0], want, sizeof want) != 0);
    CHECK_EQ(mlc_state_save(net, block, bytes), MLC_OK);
    CHECK_EQ(mlc_module_copy(net, other), MLC_OK);
    test_read(mlc_forward(net, x), y[1]);
    CHECK(memcmp(y[1], want, sizeof want) == 0);
    CHECK_EQ(mlc_state_load(net, block, bytes), MLC_OK);
    test_read(mlc_forward(net, x), y[2]);
    CHECK(memcmp(y[2], y[0], sizeof want) == 0);
    CHECK_EQ(mlc_module_mix(net, other, 0.5), MLC_OK);
    test_read(mlc_forward(net, x), y[3]);
    CHECK(memcmp(y[3], y[0], sizeof want) != 0 && memcmp(y[3], want, sizeof want) != 0);
    mlc_no_grad_end(ctx);
    free(block);
    CHECK_OK(ctx);
}

TEST(nn, a_mix_is_a_running_average_of_floats_and_copies_counts)
{
    enum { ROOM = 200 };
    double      a[ROOM], b[ROOM], c[ROOM];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *to = zoo(ctx), *from = mlc_module_clone(to);
    mlc_param_iter it = mlc_param_iter_make(from);
    for (uint32_t i = 0; mlc_param_next(&it); i++)
        if (it.tensor->dtype == MLC_F32)
            CHECK_EQ(mlc_copy_into(it.tensor, test_rand(ctx, MLC_F32, mlc_dims_of(it.tensor->ndim,
                                   it.tensor->shape), i, -2, 2)), MLC_OK);
    mlc_fill_(mlc_module_param(from, "1.num_batches_tracked"), 7);
    const int n = read_all(to, a, ROOM);
    read_all(from, b, ROOM);
    CHECK_EQ(mlc_module_mix(to, from, 0), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_module_param(to, "1.num_batches_tracked")), 7, 0);
    CHECK_EQ(mlc_module_mix(to, from, 0.25), MLC_OK);
    read_all(to, c, ROOM);
    for (int i = 0; i < n; i++)
        if (fabs(a[i]) < 100 && b[i] != 7)                 /* not a seed, not the count        */
            CHECK_NEAR(c[i], 0.75 * a[i] + 0.25 * b[i], 1e-6);
    CHECK_EQ(mlc_module_mix(to, from, 1), MLC_OK);
    read_all(to, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
    CHECK_EQ(mlc_module_mix(to, to, 0.5), MLC_OK);         /* itself                           */
    read_all(to, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
    CHECK_OK(ctx);
    /* Nothing has changed where the last name does not fit. */
    CHECK_EQ(mlc_module_add(from, mlc_nn_prelu(ctx, 3)), MLC_OK);
    CHECK(mlc_fill_(mlc_detach(mlc_module_param(from, "7.weight")), 3) != NULL);
    CHECK_EQ(mlc_module_copy(to, from), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "module_copy: to has no '9.weight'");
    mlc_error_clear(ctx);
    read_all(to, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
}

/* ---- parameters that start anew ------------------------------------------------------------- */

/* Largest magnitude, mean and deviation of n values. */
typedef struct moments { double most, mean, deviation; } moments;

static moments moments_of(const double *v, int64_t n)
{
    moments m = {0, 0, 0};
    for (int64_t i = 0; i < n; i++) {
        m.most = fmax(m.most, fabs(v[i]));
        m.mean += v[i] / (double)n;
        m.deviation += v[i] * v[i] / (double)n;
    }
    m.deviation = sqrt(m.deviation - m.mean * m.mean);
    return m;
}

/* Bounds of 5 deviations of what is estimated of n = 36864 or 32768 values: one run in 10^6. The
 * deviation of a deviation is at most that of normals, sigma / sqrt(2 n).                       */
TEST(nn, initialisers_have_the_deviations_of_torchs)
{
    enum { MOST = 36864 };
    static double v[MOST];
    mlc_ctx    *ctx = test_ctx();
    mlc_nn_conv_desc c = mlc_nn_conv_desc_make(2, 32, 256, 3);
    c.conv.groups = 2;                                     /* weight [256,16,3,3]              */
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 256, 128), mlc_nn_conv(ctx, &c));
    for (int i = 0; i < 12; i++) {
        const bool    conv = i >= 6, out = i % 6 >= 4;
        const double  fan_in = conv ? 16 * 9 : 256, fan_out = conv ? 256 * 9 : 128;
        const int     which = i % 6;
        const int64_t n = conv ? 36864 : 32768;
        mlc_init_desc d = mlc_init_desc_make(which == 0   ? MLC_INIT_XAVIER_UNIFORM
                                             : which == 1 ? MLC_INIT_XAVIER_NORMAL
                                             : which == 2 || which == 4 ? MLC_INIT_KAIMING_UNIFORM
                                                                        : MLC_INIT_KAIMING_NORMAL);
        d.fan_out = out;
        if (which < 2) d.gain = 1.5;
        const double want = which < 2 ? 1.5 * sqrt(2 / (fan_in + fan_out))
                                      : sqrt(2 / (out ? fan_out : fan_in));
        CHECK_EQ(mlc_module_init(net, conv ? "1.weight" : "0.weight", &d), MLC_OK);
        test_read(mlc_module_param(net, conv ? "1.weight" : "0.weight"), v);
        const moments m = moments_of(v, n);
        CHECK_NEAR(m.mean, 0, 5 * want / sqrt((double)n));
        CHECK_NEAR(m.deviation, want, 5 * want / sqrt(2 * (double)n));
        if (which % 2 == 0)
            CHECK(m.most <= sqrt(3.0) * want * (1 + 1e-6) && m.most > 0.99 * sqrt(3.0) * want);
        else
            CHECK(m.most > 3 * want);
    }
    CHECK_OK(ctx);
}

TEST(nn, initialisers_of_numbers_are_what_they_say)
{
    enum { N = 32768 };
    static double v[N], again[N], bias[128];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, 256, 128);
    mlc_init_desc d = mlc_init_desc_make(MLC_INIT_CONSTANT);
    test_read(mlc_module_param(net, "bias"), bias);
    d.a = 0.3;
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    const moments c = moments_of(v, N);
    CHECK(v[0] == (double)0.3f && v[N - 1] == v[0] && c.most == v[0]);
    d = mlc_init_desc_make(MLC_INIT_ZEROS);
    d.a = 5;
    CHECK_EQ(mlc_module_init(net, "w*", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    CHECK(moments_of(v, N).most == 0);
    d = mlc_init_desc_make(MLC_INIT_TRUNCATED);
    d.a = 1;
    d.lo = 0;
    d.hi = 2;                                              /* one deviation to each side       */
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    const moments t = moments_of(v, N);
    CHECK(t.most <= 2);
    CHECK_NEAR(t.mean, 1, 5 * 0.5396 / sqrt((double)N));
    CHECK_NEAR(t.deviation, 0.539560, 5 * 0.5396 / sqrt(2 * (double)N));
    d = mlc_init_desc_make(MLC_INIT_UNIFORM);
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    const moments u = moments_of(v, N);
    CHECK(u.most < 1);
    CHECK_NEAR(u.mean, 0.5, 5 * 0.2887 / sqrt((double)N));
    d = mlc_init_desc_make(MLC_INIT_NORMAL);
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    CHECK_NEAR(moments_of(v, N).deviation, 1, 5 / sqrt(2 * (double)N));
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);  /* the same each time               */
    test_read(mlc_module_param(net, "weight"), again);
    CHECK(memcmp(v, again, sizeof v) == 0);
    mlc_module *other = mlc_nn_linear(ctx, 256, 128);      /* whatever root it is              */
    CHECK_EQ(mlc_module_init(other, "weight", &d), MLC_OK);
    test_read(mlc_module_param(other, "weight"), again);
    CHECK(memcmp(v, again, sizeof v) == 0);
    CHECK_EQ(mlc_seed(ctx, 3), MLC_OK);
    CHECK_EQ(mlc_module_init(other, "weight", &d), MLC_OK);
    test_read(mlc_module_param(other, "weight"), again);
    CHECK(memcmp(v, again, sizeof v) != 0);
    test_read(mlc_module_param(net, "bias"), again);
    CHECK(memcmp(bias, again, sizeof bias) == 0);
    CHECK_OK(ctx);
}

TEST(nn, orthogonal_rows_or_columns_are_orthonormal)
{
    static const int64_t shape[4][2] = {{24, 40}, {40, 24}, {32, 32}, {1, 7}};
    double v[1600], again[1600];
    for (int i = 0; i < 5; i++) {
        mlc_ctx         *ctx = test_ctx();
        mlc_nn_conv_desc c = mlc_nn_conv_desc_make(2, 4, 40, 3);       /* [40,4,3,3] is 40 x 36 */
        mlc_module      *m = i < 4 ? mlc_nn_linear(ctx, shape[i][1], shape[i][0])
                                   : mlc_nn_conv(ctx, &c);
        mlc_init_desc    d = mlc_init_desc_make(MLC_INIT_ORTHOGONAL);
        const int64_t    rows = i < 4 ? shape[i][0] : 40, cols = i < 4 ? shape[i][1] : 36;
        const int64_t    n = rows < cols ? rows : cols, len = rows < cols ? cols : rows;
        d.gain = i == 2 ? 3 : 1;
        CHECK_EQ(mlc_module_init(m, "weight", &d), MLC_OK);
        test_read(mlc_module_param(m, "weight"), v);
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = 0; b <= a; b++) {
                double dot = 0;
                for (int64_t k = 0; k < len; k++)
                    dot += rows <= cols ? v[a * cols + k] * v[b * cols + k]
                                        : v[k * cols + a] * v[k * cols + b];
                CHECK_NEAR(dot / (d.gain * d.gain), a == b, 1e-6);
            }
        CHECK_EQ(mlc_module_init(m, "weight", &d), MLC_OK);
        test_read(mlc_module_param(m, "weight"), again);
        CHECK(memcmp(v, again, (size_t)(rows * cols) * sizeof *v) == 0);
        CHECK_OK(ctx);
    }
}

TEST(nn, an_initialiser_that_fails_changes_nothing)
{
    static const float w[9];
    double      a[18], b[18];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 3), mlc_nn_batch_norm(ctx, 3));
    mlc_init_desc d = mlc_init_desc_make(MLC_INIT_ORTHOGONAL);
    test_read(mlc_module_param(net, "0.weight"), a);
    CHECK_EQ(mlc_module_init(net, "*weight", &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'1.weight' is [3]");
    mlc_error_clear(ctx);
    test_read(mlc_module_param(net, "0.weight"), b);
    CHECK(memcmp(a, b, 9 * sizeof *a) == 0);
    CHECK_EQ(mlc_module_init(NULL, NULL, &d), MLC_ERR_ARG);
    if (mlc_ctx_on_host(ctx)) {
        mlc_module *two = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 3), mlc_nn_linear(ctx, 3, 3));
        CHECK_EQ(mlc_module_bind(two, "1.weight", w), MLC_OK);
        test_read(mlc_module_param(two, "0.weight"), a);
        CHECK_EQ(mlc_module_init(two, "*weight", &d), MLC_ERR_STATE);
        mlc_error_clear(ctx);
        test_read(mlc_module_param(two, "0.weight"), b);
        CHECK(memcmp(a, b, 9 * sizeof *a) == 0);
    }
    CHECK_OK(ctx);
}

/* ---- scales of features --------------------------------------------------------------------- */

static const double SCALE_X[12] = {1, 7, -2, 3, 7, 0, 5, 7, 5, 7, 7, 1};     /* [4,3]             */

TEST(nn, standardize_gives_each_feature_mean_0_and_deviation_1)
{
    const double s = sqrt(5), t = sqrt(6.5);               /* as StandardScaler, ddof 0         */
    const double want[12] = {-3 / s, 0, -3 / t, -1 / s, 0, -1 / t, 1 / s, 0, 4 / t, 3 / s, 0, 0};
    for (int dtype = MLC_F32; dtype <= MLC_F64; dtype++) {
        mlc_ctx_desc d = test_desc();
        d.dtype = (mlc_dtype)dtype;
        mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
        mlc_tensor *x = test_tensor(ctx, (mlc_dtype)dtype, mlc_dims2(4, 3), SCALE_X);
        mlc_module *m = mlc_nn_standardize(ctx, 3);
        CHECK(mlc_forward(m, x) == NULL);
        CHECK_STR(mlc_error(ctx), "in Standardize: standardize: it has no numbers yet; call "
                  "mlc_nn_scale_fit with the training data, or load a model that was fitted");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
        CHECK_VALUES(mlc_forward(m, x), 12, want, 1e-6, 0);
        CHECK_VALUES(mlc_forward(m, mlc_reshape(x, mlc_dims3(2, 2, 3))), 12, want, 1e-6, 0);
        CHECK_VALUES(mlc_forward(m, mlc_select(x, 0, 1)), 3, want + 3, 1e-6, 0);
        CHECK_OK(ctx);
    }
}

TEST(nn, min_max_moves_each_feature_into_its_range)
{
    const double want[12] = {-1, -1, -1, 0, -1, -1 + 6 / 7.0, 1, -1, 2, 2, -1, -1 + 9 / 7.0};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    mlc_module  *m = mlc_nn_min_max(ctx, 3, -1, 2);
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    CHECK_VALUES(mlc_forward(m, x), 12, want, 1e-6, 0);
    CHECK(mlc_nn_min_max(ctx, 3, 1, 1) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_min_max: lo is 1, hi 1; lo must be below hi, both finite");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_min_max(ctx, 0, 0, 1) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_min_max: features is 0; it must be positive");
    mlc_error_clear(ctx);
}

TEST(nn, a_scale_is_saved_with_its_model_and_moves_into_a_larger_one)
{
    char         path[] = "/tmp/mlcore_scale_XXXXXX";
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    mlc_module  *nets[2];
    double       want[12];
    const int    fd = mkstemp(path);
    close(fd);                         /* Windows replaces no open file                       */
    for (int i = 0; i < 2; i++) {
        mlc_module *m = mlc_nn_standardize(ctx, 3);
        if (i == 0) {
            CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
            test_read(mlc_forward(m, x), want);
        }
        nets[i] = mlc_nn_sequential(ctx);
        mlc_module_add(nets[i], m);
    }
    CHECK_VALUES(mlc_forward(nets[0], x), 12, want, 0, 0);
    CHECK_EQ(mlc_save(nets[0], path), MLC_OK);
    CHECK_EQ(mlc_load(nets[1], path), MLC_OK);
    CHECK_VALUES(mlc_forward(nets[1], x), 12, want, 0, 0);
    CHECK(mlc_module_param(nets[1], "0.mean") && mlc_module_param(nets[1], "0.scale"));
    CHECK_EQ(mlc_module_numel(nets[1], true), 0);
    CHECK_OK(ctx);
    unlink(path);
}

TEST(nn, gradients_flow_through_a_scale_to_x)
{
    const double want[3] = {1 / sqrt(5), 0, 1 / sqrt(6.5)};
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *m = mlc_nn_standardize(ctx, 3);
    mlc_tensor  *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X)), MLC_OK);
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(m, x), mlc_dims0(), false)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, want, 1e-6, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_scale_that_loses_its_numbers_says_so)
{
    char        block[256];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    mlc_module *m = mlc_nn_standardize(ctx, 3);
    const size_t bytes = mlc_state_bytes(m);
    if (!CHECK(bytes > 0 && bytes <= sizeof block)) return;
    CHECK_EQ(mlc_state_save(m, block, bytes), MLC_OK);     /* before the fit                   */
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    CHECK(mlc_forward(m, x) != NULL);
    CHECK_EQ(mlc_state_load(m, block, bytes), MLC_OK);
    CHECK(mlc_forward(m, x) == NULL);
    CHECK_HAS(mlc_error(ctx), "it has no numbers yet");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    CHECK(mlc_forward(m, x) != NULL);
    CHECK_OK(ctx);
}

TEST(nn, scale_fit_names_the_feature_that_cannot_be_scaled)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_standardize(ctx, 3);
    double      bad[12], want[12];
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    test_read(mlc_forward(m, x), want);
    memcpy(bad, SCALE_X, sizeof bad);
    bad[5] = NO_NUMBER;
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), bad)), MLC_ERR_VALUE);
    CHECK_STR(mlc_error(ctx), "nn_scale_fit: feature 2 of x has a value that is nan; replace it, "
                              "or leave its rows out");
    mlc_error_clear(ctx);
    bad[5] = 0;
    bad[4] = -INF;
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), bad)), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "feature 1 of x has a value that is -inf");
    mlc_error_clear(ctx);
    bad[4] = 7;
    bad[0] = 1e30;
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), bad)), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "feature 0 of x is from 3 to 1e+30, which f32 cannot scale");
    mlc_error_clear(ctx);
    CHECK_VALUES(mlc_forward(m, x), 12, want, 0, 0);
    CHECK_EQ(mlc_nn_scale_fit(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3))), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "nn_scale_fit: x [0,3] must have rows and end in 3 features");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_nn_scale_fit(m, mlc_zeros(ctx, MLC_I64, mlc_dims2(4, 3))), MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_nn_scale_fit(m, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_nn_scale_fit(mlc_nn_relu(ctx), x), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "a ReLU has no scale");
    mlc_error_clear(ctx);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 2))) == NULL);
    CHECK_STR(mlc_error(ctx), "in Standardize: standardize: x [4,2] must end in 3 features");
    mlc_error_clear(ctx);
}

/* ---- layers of images in one call ----------------------------------------------------------- */

TEST(nn, short_forms_of_layers_of_images_are_the_long_ones)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x[3] = {test_rand(ctx, MLC_F32, mlc_dims3(2, 3, 9), 1, -1, 1),
                        test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 9, 8), 2, -1, 1), NULL};
    x[2] = test_rand(ctx, MLC_F32, mlc_dims_of(5, (const int64_t[]){2, 3, 5, 6, 7}), 3, -1, 1);
    mlc_module *m[4][3] = {
        {mlc_nn_conv1d(ctx, 3, 4, 3, 2, 1), mlc_nn_conv2d(ctx, 3, 4, 3, 2, 1),
         mlc_nn_conv3d(ctx, 3, 4, 3, 2, 1)},
        {mlc_nn_conv_transpose1d(ctx, 3, 4, 3, 2, 1), mlc_nn_conv_transpose2d(ctx, 3, 4, 3, 2, 1),
         mlc_nn_conv_transpose3d(ctx, 3, 4, 3, 2, 1)},
        {mlc_nn_max_pool1d(ctx, 2), mlc_nn_max_pool2d(ctx, 2), mlc_nn_max_pool3d(ctx, 2)},
        {mlc_nn_avg_pool1d(ctx, 2), mlc_nn_avg_pool2d(ctx, 2), mlc_nn_avg_pool3d(ctx, 2)}};
    mlc_conv_desc       d = mlc_conv_desc_make();
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    for (int i = 0; i < 12; i++) {
        mlc_module *layer = m[i / 3][i % 3];
        mlc_tensor *in = x[i % 3], *want = NULL;
        mlc_tensor *w = i < 6 ? mlc_module_param(layer, "weight") : NULL;
        mlc_tensor *b = i < 6 ? mlc_module_param(layer, "bias") : NULL;
        mlc_module_build(layer);
        if (i / 3 == 0) want = mlc_conv(in, w, b, &d);
        if (i / 3 == 1) want = mlc_conv_transpose(in, w, b, &d);
        if (i / 3 == 2) want = mlc_max_pool(in, &two);
        if (i / 3 == 3) want = mlc_avg_pool(in, &two);
        CHECK_NEAR(largest_gap(mlc_forward(layer, in), want), 0, 0);
    }
    CHECK_OK(ctx);
    CHECK(mlc_forward(m[2][1], x[0]) == NULL);
    CHECK_HAS(mlc_error(ctx), "kernel has 2 numbers, the image 1 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_nn_max_pool2d(NULL, 2) == NULL);
    CHECK(mlc_nn_conv_transpose2d(NULL, 1, 1, 1, 1, 0) == NULL);
}

/* What a zeroed struct or a list of another length has is found when the layer is made. */
TEST(nn, layers_of_images_refuse_descs_that_were_not_made)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d;
    memset(&d, 0, sizeof d);
    d.axes = 2, d.in = d.out = 3, d.kernel = mlc_dims_all(3);
    CHECK(mlc_nn_conv(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_nn_conv_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_nn_conv_desc_make(2, 3, 3, 3);
    d.conv.stride = mlc_dims1(2);
    CHECK(mlc_nn_conv(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_conv: stride has 1 numbers, the image 2 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 3, 5, 5));
    CHECK(mlc_forward(mlc_nn_conv2d(ctx, 3, 3, 3, 0, 0), x) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_forward(mlc_nn_avg_pool(ctx, NULL), x) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_pool_desc_make(kernel)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* With momentum 0 the statistics stay; with eps 0 a channel of two values becomes -1 and 1. */
TEST(nn, batch_norm_takes_a_momentum_and_an_eps_of_0)
{
    static const double    v[4] = {3, 3.5, 3, 3.5}, want[4] = {-1, 1, -1, 1}, zero = 0, one = 1;
    mlc_ctx               *ctx = test_ctx();
    mlc_nn_batch_norm_desc d = mlc_nn_batch_norm_desc_make(1);
    d.momentum = d.eps = 0;
    mlc_module *m = mlc_nn_batch_norm_ex(ctx, &d);
    mlc_tensor *y = mlc_forward(m, test_tensor(ctx, MLC_F32, mlc_dims3(2, 1, 2), v));
    CHECK_VALUES(y, 4, want, 1e-7, 0);
    CHECK_VALUES(mlc_module_param(m, "running_mean"), 1, &zero, 0, 0);
    CHECK_VALUES(mlc_module_param(m, "running_var"), 1, &one, 0, 0);
    d.eps = -1e-5;
    CHECK(mlc_nn_batch_norm_ex(ctx, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_batch_norm: momentum is 0, eps -1e-05; momentum must be in "
                              "[0, 1], eps finite and not negative");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Whatever the module is: an LSTM took the states of a step that had failed.                     */
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
