/* test_plan.c -- tests of section IMPL.PLAN: plans against the forwards that they were recorded
 * from: bits, memory, parameters that change, shapes that come later, what is refused */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "plans.h"

/* A run on x has the bits of the forward.                                                      */
static void check_run(mlc_plan *p, mlc_module *net, mlc_tensor *x)
{
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, x)) == 0);
}

/* A plan's output against the forward's, on new values, in turn for several batches.            */
static void check_network(mlc_ctx *ctx, const struct network *k, mlc_dtype dtype, uint32_t passes,
                          double tol)
{
    const mlc_plan_desc d = with(passes);
    mlc_module         *net = k->make(ctx);
    mlc_tensor         *x = sample(ctx, k, dtype, 2, 3), *y, *want;
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, &d);
    CHECK_OK(ctx);
    for (int64_t i = 0; i < 6 && p != NULL; i++) {
        mlc_scope_begin(ctx);
        x = sample(ctx, k, dtype, i % 3 + 1, 10 + (uint64_t)i);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        want = mlc_forward(net, x);
        y = mlc_plan_output(p, 0);
        const double off = y != NULL && want != NULL ? apart(y, want) : -1;
        if (!CHECK(off >= 0 && off <= tol)) printf("  %s: %g\n", k->name, off);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_no_grad_end(ctx);
    mlc_plan_free(p);
    mlc_module_free(net);
}

TEST(plan, networks_have_the_bits_of_their_forward)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++)
        check_network(test_ctx(), &NETWORKS[i], MLC_F32, PLAIN, 0);
}

TEST(plan, networks_with_all_passes)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++)
        check_network(test_ctx(), &NETWORKS[i], MLC_F32, MLC_PLAN_ALL, 1e-5);
}

TEST(plan, networks_in_f64)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        mlc_ctx_desc d = test_desc();
        d.dtype = MLC_F64;
        mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
        check_network(ctx, &NETWORKS[i], MLC_F64, PLAIN, 0);
        check_network(ctx, &NETWORKS[i], MLC_F64, MLC_PLAN_ALL, 1e-12);
    }
}

TEST(plan, every_level)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < COUNT(NETWORKS); i += 3)
            check_network(ctx, &NETWORKS[i], MLC_F32, PLAIN, 0);
}

/* ---- memory */

TEST(plan, a_run_allocates_nothing)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = NETWORKS[i].make(ctx);
        mlc_tensor *x = sample(ctx, &NETWORKS[i], MLC_F32, 2, 3);
        mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
        mlc_memory  before, after;
        if (!CHECK(p != NULL)) continue;
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_memory_info(ctx, &before);
        for (int k = 0; k < 3; k++) CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_memory_info(ctx, &after);
        CHECK_EQ(after.calls, before.calls);
        CHECK_EQ(after.allocated, before.allocated);
        CHECK_EQ(after.peak, before.peak);
    }
}

TEST(plan, memory_is_at_most_that_of_the_forward)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        mlc_ctx        *ctx = test_ctx();
        mlc_module     *net = NETWORKS[i].make(ctx);
        mlc_tensor     *x = sample(ctx, &NETWORKS[i], MLC_F32, 8, 3);
        mlc_plan       *p = mlc_plan_capture(net, &x, 1, NULL);
        mlc_plan_report r;
        mlc_memory      m;
        if (!CHECK(p != NULL)) continue;
        mlc_eval_begin(net);
        mlc_scope_begin(ctx);
        mlc_forward(net, x);
        mlc_scope_end(ctx);
        mlc_memory_info(ctx, &m);
        const int64_t held = m.now[MLC_MEM_ACTIVATION] + m.now[MLC_MEM_WORKSPACE];
        mlc_memory_peak_reset(ctx);
        mlc_scope_begin(ctx);
        mlc_forward(net, x);
        mlc_scope_end(ctx);
        mlc_memory_info(ctx, &m);
        CHECK_OK(ctx);
        CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
        const int64_t most = m.peak - m.allocated;
        if (!CHECK(r.bytes <= most))
            printf("  %s: %lld, forward %lld\n", NETWORKS[i].name, (long long)r.bytes,
                   (long long)most);
        CHECK(r.live <= r.bytes && (double)r.bytes <= 1.15 * (double)r.live);
        CHECK(held > 0 && r.calls > 0);
        mlc_eval_end(net);
    }
}

TEST(plan, runs_in_a_block_of_the_program)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    mlc_tensor *y = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 7));
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    const size_t bytes = mlc_plan_bytes(p);
    char        *room = malloc(bytes + 64), *block = room + (64 - (uintptr_t)room % 64) % 64;
    CHECK(bytes > 0);
    CHECK_EQ(mlc_plan_use_block(p, block, bytes - 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the plan takes");
    CHECK_EQ(mlc_plan_use_block(p, block + 4, bytes), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_plan_use_block(p, block, bytes), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &x, 1, &y, 1), MLC_OK);
    CHECK(apart(y, mlc_forward(net, x)) == 0);
    const char *at = (const char *)mlc_f32(mlc_plan_output(p, 0));
    CHECK(at >= block && at < block + bytes);
    mlc_tensor *more = test_rand(ctx, MLC_F32, mlc_dims2(40, 12), 1, -1, 1);
    CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_plan_use_block gave");
    CHECK_EQ(mlc_plan_use_block(p, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &more, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, more)) == 0);
    mlc_plan_free(p);
    free(room);
}

TEST(plan, in_a_context_of_a_fixed_block)
{
    ONLY_ON_HOST();
    const size_t bytes = (size_t)4 << 20;
    void        *room = malloc(bytes);
    mlc_ctx_desc d = test_desc();
    d.memory = room;
    d.memory_bytes = bytes;
    d.threads = 1;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    for (int i = 0; i < COUNT(NETWORKS) && CHECK(ctx != NULL); i++)
        if (i != 2) check_network(ctx, &NETWORKS[i], MLC_F32, MLC_PLAN_ALL, 1e-5);
    mlc_ctx_free(ctx);
    free(room);
}

/* Bytes in use, as a hook of memory counts them. */
static void count_bytes(void *user, mlc_mem mem, int64_t bytes)
{
    (void)mem;
    *(int64_t *)user += bytes;
}

TEST(plan, hooks_of_memory_see_what_a_plan_takes)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = cnn(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 16, 16), 1, -1, 1);
    mlc_memory  before, after;
    mlc_hooks   h = {0};
    int64_t     seen = 0;
    mlc_module_build(net);
    h.user = &seen;
    h.memory = count_bytes;
    mlc_hooks_add(ctx, &h);
    mlc_memory_info(ctx, &before);
    seen = 0;
    mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_memory_info(ctx, &after);
    CHECK(seen > 0);
    CHECK_EQ(seen, after.allocated - before.allocated);
    mlc_plan_free(p);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(seen, after.allocated - before.allocated);
}

/* ---- parameters */

TEST(plan, new_values_of_parameters_count)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    for (int i = 0; i < 3; i++) {
        mlc_scope_begin(ctx);
        mlc_backward(mlc_mean(mlc_square(mlc_forward(net, x)), mlc_dims0(), false));
        mlc_optim_step(opt);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, x)) == 0);
        mlc_scope_end(ctx);
    }
    CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, x)) == 0);
    mlc_plan_free(p);
}

/* y = x (w w^T), of which w w^T is the same in every run. */
static mlc_status folded(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *w = user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_matmul(in[0], mlc_matmul(w, mlc_transpose(w, 0, 1)));
    return mlc_ctx_status(ctx);
}

TEST(plan, constants_follow_their_parameters)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = mlc_nn_linear(ctx, 6, 5);
    mlc_module_build(net);
    mlc_tensor     *w = mlc_module_param(net, "weight"), *out;
    mlc_tensor     *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    mlc_plan       *p = mlc_plan_capture_fn(ctx, folded, w, &x, 1, NULL);
    mlc_plan_report r;
    if (!CHECK(p != NULL)) return;
    CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
    CHECK_EQ(r.constant, 1);
    CHECK_EQ(r.calls, 1);
    CHECK(r.constants > 0);
    for (int i = 0; i < 3; i++) {
        mlc_copy_into(w, test_rand(ctx, MLC_F32, mlc_dims2(5, 6), 5 + (uint64_t)i, -1, 1));
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        folded(ctx, w, &x, 1, &out, 1);
        CHECK(apart(mlc_plan_output(p, 0), out) == 0);
    }
    mlc_plan_free(p);
}

TEST(plan, outlives_its_network)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    mlc_tensor *more = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_tensor *want = mlc_forward(net, x);
    mlc_module_free(net);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(p, 0), want) == 0);
    CHECK_EQ(mlc_plan_run(p, &more, 1, NULL, 0), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the network was freed");
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan_free(p);
}

TEST(plan, another_dtype_of_a_parameter_is_an_error)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_module_to(net, MLC_F64), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "'0.weight' is f64 [20,12], and was f32 [20,12]");
    CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, x)) == 0);
    mlc_plan_free(p);
}

TEST(plan, packs_of_16_bits_follow)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 64, 64, 32);
    mlc_tensor *x = test_rand(ctx, MLC_BF16, mlc_dims2(4, 64), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_OK(ctx);
    if (!CHECK(p != NULL)) return;
    for (int i = 0; i < 4; i++) {
        if (i == 2) mlc_memory_trim(ctx);
        if (i == 3)
            mlc_copy_into(mlc_module_param(net, "0.weight"),
                          test_rand(ctx, MLC_F32, mlc_dims2(64, 64), 9, -1, 1));
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_no_grad_begin(ctx);
        CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, x)) == 0);
        mlc_no_grad_end(ctx);
    }
    mlc_plan_free(p);
}

/* ---- inputs */

/* One step of an LSTM, whose states are inputs and outputs. */
static mlc_status stream(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    (void)ctx;
    return mlc_module_forward(user, in, n_in, out, n_out);
}

TEST(plan, states_are_inputs_and_outputs)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = lstm(ctx);
    mlc_plan_desc d = mlc_plan_desc_make();
    mlc_tensor   *in[3], *out[3], *want[3], *old[3];
    d.n_out = 3;
    mlc_module_build(net);
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < 3; i++) {
        const mlc_dims dims = i ? mlc_dims3(1, 2, 9) : mlc_dims3(2, 1, 5);
        in[i] = mlc_zeros(ctx, MLC_F32, dims);
        old[i] = mlc_zeros(ctx, MLC_F32, dims);
        out[i] = mlc_zeros(ctx, MLC_F32, i ? dims : mlc_dims3(2, 1, 9));
    }
    mlc_plan *p = mlc_plan_capture_fn(ctx, stream, net, in, 3, &d);
    CHECK_OK(ctx);
    for (int k = 0; k < 4 && CHECK(p != NULL); k++) {
        in[0] = old[0] = test_rand(ctx, MLC_F32, mlc_dims3(2, 1, 5), 5 + (uint64_t)k, -1, 1);
        CHECK_EQ(mlc_plan_run(p, in, 3, out, 3), MLC_OK);
        CHECK_EQ(mlc_module_forward(net, old, 3, want, 3), MLC_OK);
        for (int i = 0; i < 3; i++) CHECK(apart(out[i], want[i]) == 0);
        for (int i = 1; i < 3; i++) {
            mlc_copy_into(in[i], out[i]);
            old[i] = want[i];
        }
    }
    mlc_no_grad_end(ctx);
}

TEST(plan, inputs_may_begin_anywhere)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *all = test_rand(ctx, MLC_F32, mlc_dims2(9, 12), 1, -1, 1), *x = all;
    x = mlc_slice(all, 0, 0, 4, 1);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
    for (int64_t at = 0; at < 5; at++) {
        x = mlc_slice(all, 0, at, at + 4, 1);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, x)) == 0);
    }
    mlc_plan_free(p);
}

TEST(plan, an_output_may_be_the_next_input)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 12, 20, 12);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1), *y = x, *want = x;
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(mlc_plan_run(p, &y, 1, NULL, 0), MLC_OK);
        y = mlc_plan_output(p, 0);
        want = mlc_forward(net, want);
        CHECK(apart(y, want) == 0);
    }
    mlc_no_grad_end(ctx);
    mlc_plan_free(p);
}

/* A plan within a capture. */
static mlc_status nested(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    (void)n_out;
    mlc_plan_run(user, in, n_in, NULL, 0);
    out[0] = mlc_relu(in[0]);
    return mlc_ctx_status(ctx);
}

TEST(plan, plans_within_a_capture_are_refused)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1), *more;
    mlc_plan   *p = mlc_plan_capture(small_mlp(ctx), &x, 1, NULL);
    CHECK(mlc_plan_capture_fn(ctx, nested, p, &x, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "within a forward that is captured");
    more = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1);
    mlc_autocast_begin(ctx, MLC_BF16);
    CHECK_EQ(mlc_plan_run(p, &more, 1, NULL, 0), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "autocast");
    mlc_autocast_end(ctx);
    CHECK_EQ(mlc_plan_run(p, &more, 1, NULL, 0), MLC_OK);
}

/* ---- errors */

TEST(plan, wrong_inputs_and_outputs)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx(), *other = test_ctx();
    mlc_module   *net = small_mlp(ctx);
    mlc_plan_desc d = mlc_plan_desc_make();
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1), *bad;
    d.same_shapes = true;
    mlc_plan *p = mlc_plan_capture(net, &x, 1, &d);
    CHECK_EQ(mlc_plan_run(p, &x, 0, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "0 inputs; the plan has 1");
    bad = NULL;
    CHECK_EQ(mlc_plan_run(p, &bad, 1, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "input 1 is NULL");
    bad = test_rand(other, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    CHECK_EQ(mlc_plan_run(p, &bad, 1, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "another context");
    bad = test_rand(ctx, MLC_F64, mlc_dims2(4, 12), 1, -1, 1);
    CHECK_EQ(mlc_plan_run(p, &bad, 1, NULL, 0), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "input 1 is f64, the plan was captured with f32");
    bad = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1);
    CHECK_EQ(mlc_plan_run(p, &bad, 1, NULL, 0), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "input 1 is [5,12]");
    bad = mlc_transpose(test_rand(ctx, MLC_F32, mlc_dims2(12, 4), 1, -1, 1), 0, 1);
    CHECK_EQ(mlc_plan_run(p, &bad, 1, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "not dense");
    bad = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 8));
    CHECK_EQ(mlc_plan_run(p, &x, 1, &bad, 1), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "output 1 is [4,8], the plan makes [4,7]");
    bad = mlc_zeros(ctx, MLC_F64, mlc_dims2(4, 7));
    CHECK_EQ(mlc_plan_run(p, &x, 1, &bad, 1), MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_plan_run(p, &x, 1, &x, 2), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_plan_output(p, 1) == NULL && mlc_plan_output(NULL, 0) == NULL);
    CHECK_EQ(mlc_plan_run(NULL, &x, 1, NULL, 0), MLC_ERR_ARG);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan_free(p);
    mlc_plan_free(NULL);
    CHECK(mlc_plan_capture(NULL, &x, 1, NULL) == NULL);
    mlc_error_clear(ctx);
    d.n_out = 0;
    CHECK(mlc_plan_capture(net, &x, 1, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "n_out 0");
    bad = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    CHECK(mlc_plan_capture(net, &bad, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "linear: x [4,5]");
    CHECK_EQ(mlc_numel(mlc_forward(net, x)), 28);
    CHECK_OK(ctx);
}

/* Forwards that no list of kernels repeats. */
static mlc_status refused(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    float y[48];
    (void)n_in;
    (void)n_out;
    out[0] = mlc_add_scalar(in[0], 1);
    switch (*(int *)user) {
        case 0: mlc_read(out[0], y, sizeof y); break;
        case 1: if (mlc_item(mlc_sum(out[0], mlc_dims0(), false)) > 0) mlc_relu(out[0]); break;
        case 2: mlc_f32(out[0]); break;
        case 3: out[0] = mlc_add(out[0], mlc_randn(ctx, MLC_F32, mlc_dims2(4, 12))); break;
        case 4: out[0] = mlc_dropout(out[0], 0.5); break;
        case 5: mlc_copy_into(in[0], out[0]); break;
        case 6: mlc_relu_(in[0]); break;
        case 7: out[0] = NULL; break;
        case 8: out[0] = mlc_nonzero(out[0]); break;
        default: break;
    }
    return mlc_ctx_status(ctx);
}

TEST(plan, what_depends_on_values_is_refused)
{
    static const char *const says[] = {"reads values of a tensor on the host",
                                       "reads values of a tensor on the host", "mlc_read",
                                       "draws random numbers", "draws random numbers",
                                       "writes to an input", "writes to an input", "output 1",
                                       "'nonzero'"};
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < COUNT(says); i++) {
        mlc_memory before, after;
        mlc_scope_begin(ctx);
        mlc_tensor         *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
        const mlc_rng_state rng = mlc_ctx_rng(ctx);
        mlc_memory_info(ctx, &before);
        CHECK(mlc_plan_capture_fn(ctx, refused, &i, &x, 1, NULL) == NULL);
        CHECK_HAS(mlc_error(ctx), says[i]);
        CHECK(mlc_ctx_status(ctx) != MLC_OK);
        mlc_error_clear(ctx);
        mlc_memory_info(ctx, &after);
        CHECK_EQ(after.now[MLC_MEM_ACTIVATION], before.now[MLC_MEM_ACTIVATION]);
        CHECK_EQ(after.now[MLC_MEM_WORKSPACE], before.now[MLC_MEM_WORKSPACE]);
        CHECK(mlc_ctx_on_host(ctx) && mlc_ctx_rng(ctx).stream == rng.stream);
        mlc_relu(x);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* A tensor that is neither an input nor a parameter. */
static mlc_status captures(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = mlc_add(in[0], user);
    return mlc_ctx_status(ctx);
}

TEST(plan, other_tensors_must_be_inputs)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    CHECK(mlc_plan_capture_fn(ctx, captures, mlc_add_scalar(x, 1), &x, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "neither an input, nor a parameter");
    mlc_module *net = residual(ctx, mlc_nn_linear(ctx, 12, 12), 0.5);
    CHECK(mlc_plan_capture(net, &x, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "calls");
    CHECK(mlc_plan_capture_fn(NULL, captures, NULL, &x, 1, NULL) == NULL);
    CHECK(mlc_plan_capture_fn(ctx, NULL, NULL, &x, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "fn is NULL");
}

TEST(plan, operations_that_are_no_kernels_are_refused)
{
    ONLY_ON_HOST();
    mlc_ctx                *ctx = test_ctx();
    const mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    mlc_module             *net = gpt(ctx), *rnn = lstm(ctx);
    mlc_tensor             *x = test_tokens(ctx, mlc_dims2(2, 5), 30, 1);
    mlc_tensor             *y = test_rand(ctx, MLC_F32, mlc_dims3(2, 3, 5), 1, -1, 1);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK_EQ(mlc_quantize(rnn, &d, NULL), MLC_OK);
    CHECK(mlc_plan_capture(net, &x, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "'quant_rows' cannot be in a plan");
    CHECK(mlc_plan_capture(rnn, &y, 1, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "'quant_rnn' cannot be in a plan");
}

/* Quantizes a network and runs its plan on several inputs. False: there is no plan.             */
static bool runs_of_integers(mlc_module *net, mlc_quant_mode mode, mlc_dims dims)
{
    mlc_ctx                *ctx = mlc_module_ctx(net);
    const mlc_quantize_desc q = mlc_quantize_desc_make(mode);
    const mlc_plan_desc     d = with(PLAIN);
    mlc_tensor             *x = test_rand(ctx, MLC_F32, dims, 1, -1, 1);
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, &d);
    for (int i = 0; i < 3 && p != NULL; i++) {
        if (i == 1) mlc_memory_trim(ctx);
        check_run(p, net, x);
        x = test_rand(ctx, MLC_F32, dims, 5 + (uint64_t)i, -1, 1);
    }
    mlc_no_grad_end(ctx);
    return p != NULL;
}

/* Convolutions with weights only are not made of kernels alone.                                 */
TEST(plan, layers_of_integers)
{
    ONLY_ON_HOST();
    static const mlc_quant_mode modes[] = {MLC_QUANT_DYNAMIC, MLC_QUANT_WEIGHTS};
    for (int i = 0; i < 2; i++) {
        mlc_ctx *ctx = test_ctx();
        CHECK(runs_of_integers(mlp(ctx, 64, 96, 10), modes[i], mlc_dims2(4, 64)));
        CHECK_OK(ctx);
        CHECK_EQ(runs_of_integers(cnn(ctx), modes[i], mlc_dims4(2, 3, 16, 16)), i == 0);
        if (i == 0) CHECK_OK(ctx);
        else CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "quant_conv");
    }
}

/* Copies of pruned weights are read in a plan, too, also of a weight of zeros.                  */
TEST(plan, products_that_skip_zeros)
{
    ONLY_ON_HOST();
    mlc_ctx            *ctx = test_ctx();
    const mlc_plan_desc d = with(PLAIN);
    mlc_module         *net = mlp(ctx, 64, 96, 10);
    mlc_prune_desc      prune = mlc_prune_desc_make(0.9);
    mlc_sparsify_desc   s = mlc_sparsify_desc_make();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 1, -1, 1);
    CHECK_EQ(mlc_prune(net, &prune), MLC_OK);
    s.form = MLC_SPARSE_CSR;
    mlc_eval_begin(net);
    mlc_no_grad_begin(ctx);
    CHECK_EQ(mlc_sparsify(net, &s, NULL), MLC_OK);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, &d);
    CHECK_OK(ctx);
    for (int i = 0; i < 2 && CHECK(p != NULL); i++) {
        check_run(p, net, x);
        mlc_copy_into(mlc_module_param(net, "0.weight"),
                      test_rand(ctx, MLC_F32, mlc_dims2(96, 64), 5, -1, 1));
    }
    mlc_copy_into(mlc_module_param(net, "2.weight"), mlc_zeros(ctx, MLC_F32, mlc_dims2(10, 96)));
    check_run(p, net, x);
    mlc_no_grad_end(ctx);
    mlc_eval_end(net);
}

TEST(plan, errors_of_values_come_with_the_run)
{
    ONLY_ON_HOST();
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = gpt(ctx);
    mlc_tensor  *x = test_tokens(ctx, mlc_dims2(2, 5), 30, 1);
    mlc_plan    *p = mlc_plan_capture(net, &x, 1, NULL);
    const double over[] = {1, 2, 3, 4, 5, 6, 7, 8, 99, 10};
    mlc_tensor  *bad = test_tensor(ctx, MLC_I64, mlc_dims2(2, 5), over);
    CHECK_EQ(mlc_plan_run(p, &bad, 1, NULL, 0), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "99");
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan_free(p);
}

/* ---- passes and reports */

/* Twice the same product, a value that nothing reads, activations after products. */
static mlc_status wasteful(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *w = user, *a = mlc_linear(in[0], w, NULL), *b = mlc_linear(in[0], w, NULL);
    (void)n_in;
    (void)n_out;
    mlc_exp(in[0]);
    out[0] = mlc_tanh(mlc_linear(mlc_add(mlc_relu(a), mlc_neg(b)), w, NULL));
    return mlc_ctx_status(ctx);
}

TEST(plan, passes)
{
    static const struct { uint32_t passes; int32_t calls, removed, fused; } want[] = {
        {PLAIN, 8, 0, 0}, {MLC_PLAN_DEAD, 7, 1, 0}, {MLC_PLAN_SAME, 7, 1, 0},
        {MLC_PLAN_ACTIVATIONS, 6, 0, 2}, {MLC_PLAN_DEAD | MLC_PLAN_SAME, 6, 2, 0},
        {MLC_PLAN_ALL & ~MLC_PLAN_SUMS, 5, 2, 1},
    };
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 12, 12);
    mlc_module_build(net);
    mlc_tensor *w = mlc_module_param(net, "weight"), *out;
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    wasteful(ctx, w, &x, 1, &out, 1);
    for (int i = 0; i < COUNT(want); i++) {
        const mlc_plan_desc d = with(want[i].passes);
        mlc_plan           *p = mlc_plan_capture_fn(ctx, wasteful, w, &x, 1, &d);
        mlc_plan_report     r;
        if (!CHECK(p != NULL)) continue;
        CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
        CHECK_EQ(r.calls, want[i].calls);
        CHECK_EQ(r.removed, want[i].removed);
        CHECK_EQ(r.fused, want[i].fused);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        CHECK(apart(mlc_plan_output(p, 0), out) <= 1e-6);
        mlc_plan_free(p);
    }
}

/* Two equal calls of each kernel whose arguments are not all set. */
static mlc_status twice_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *y[2];
    (void)user;
    (void)n_in;
    (void)n_out;
    for (int i = 0; i < 2; i++) {
        mlc_tensor *m = mlc_mean(in[0], mlc_dims1(1), true);
        mlc_tensor *a = mlc_add(mlc_sub(in[0], m), mlc_erf(mlc_mul(in[0], in[1])));
        a = mlc_where(mlc_gt(in[0], in[1]), a, mlc_cast(mlc_cast(in[0], MLC_F64), MLC_F32));
        a = mlc_add(a, mlc_mul(mlc_index_select(in[0], 0, in[2]), mlc_max(a, mlc_dims0(), false)));
        y[i] = mlc_triu(mlc_add(a, mlc_full(ctx, MLC_F32, mlc_dims2(4, 1), 2)), 0);
    }
    out[0] = mlc_sub(y[0], y[1]);
    return mlc_ctx_status(ctx);
}

TEST(plan, equal_calls_are_found_whatever_the_stack_has)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    const double    order[] = {2, 0, 3, 1};
    mlc_plan_desc   d = with(PLAIN);
    mlc_plan_report plain, same;
    mlc_tensor     *in[3] = {test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 1, -2, 2),
                             test_rand(ctx, MLC_F32, mlc_dims2(4, 1), 2, -2, 2),
                             test_tensor(ctx, MLC_I64, mlc_dims1(4), order)};
    mlc_plan       *p = mlc_plan_capture_fn(ctx, twice_forward, NULL, in, 3, &d);
    CHECK_EQ(mlc_plan_report_of(p, &plain), MLC_OK);
    mlc_plan_free(p);
    d.passes = MLC_PLAN_SAME;
    p = mlc_plan_capture_fn(ctx, twice_forward, NULL, in, 3, &d);
    CHECK_EQ(mlc_plan_report_of(p, &same), MLC_OK);
    CHECK_EQ(2 * (same.calls - 1), plain.calls - 1);
    mlc_plan_free(p);
}

/* A linear layer taken apart: x w^T, + b, + r, relu, with the operands of sums in this order. */
static mlc_status apart_linear(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = user;
    mlc_tensor *b = mlc_module_param(net, "bias");
    mlc_tensor *y = mlc_matmul(in[0], mlc_transpose(mlc_module_param(net, "weight"), 0, 1));
    (void)n_out;
    y = n_in % 2 ? mlc_add(b, y) : mlc_add(y, b);
    out[0] = mlc_relu(n_in > 2 ? mlc_add(in[1], y) : mlc_add(y, in[1]));
    return mlc_ctx_status(ctx);
}

TEST(plan, sums_run_in_their_product)
{
    ONLY_ON_HOST();
    for (int32_t n_in = 2; n_in < 4; n_in++) {
        mlc_ctx        *ctx = test_ctx();
        mlc_module     *net = mlc_nn_linear(ctx, 6, 9);
        mlc_plan_report r;
        mlc_module_build(net);
        mlc_module_freeze(net, "*", true);
        mlc_copy_into(mlc_module_param(net, "bias"),
                      test_rand(ctx, MLC_F32, mlc_dims1(9), 5, -1, 1));
        mlc_tensor *in[3] = {test_rand(ctx, MLC_F32, mlc_dims3(3, 4, 6), 1, -1, 1),
                             test_rand(ctx, MLC_F32, mlc_dims3(3, 4, 9), 2, -1, 1),
                             test_rand(ctx, MLC_F32, mlc_dims1(2), 2, -1, 1)}, *want;
        mlc_plan   *p = mlc_plan_capture_fn(ctx, apart_linear, net, in, n_in, NULL);
        CHECK_OK(ctx);
        if (!CHECK(p != NULL)) continue;
        CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
        CHECK_EQ(r.calls, 1);
        CHECK_EQ(r.fused, 3);
        CHECK_EQ(mlc_plan_run(p, in, n_in, NULL, 0), MLC_OK);
        apart_linear(ctx, net, in, n_in, &want, 1);
        CHECK(apart(mlc_plan_output(p, 0), want) <= 1e-6);
    }
}

/* ---- formulas */

#define HALF_ROOT 0.70710678118654752
#define GELU_ROOT 0.79788456080286536

/* x g / 2, or g x / 2, with the half at one of three places. */
static mlc_tensor *halved(mlc_tensor *x, mlc_tensor *g, int form)
{
    if (form == 0) return mlc_mul_scalar(mlc_mul(x, g), 0.5);
    return form == 1 ? mlc_mul(mlc_mul_scalar(x, 0.5), g) : mlc_div_scalar(mlc_mul(g, x), 2.0);
}

static mlc_tensor *gelu_formula(mlc_tensor *x, int form, double root)
{
    mlc_tensor *in = form ? mlc_mul_scalar(x, root) : mlc_div_scalar(x, 1.0 / root);
    return halved(x, mlc_add_scalar(mlc_erf(in), 1.0), form);
}

/* The cube as a product, as a power, or taken into 1 + 0.044715 x^2. */
static mlc_tensor *gelu_tanh_formula(mlc_tensor *x, int form, double root)
{
    mlc_tensor *cube = form ? mlc_pow_scalar(x, 3.0) : mlc_mul(mlc_mul(x, x), x), *z;
    if (form < 2) z = mlc_mul_scalar(mlc_add(x, mlc_mul_scalar(cube, 0.044715)), root);
    else
        z = mlc_mul(mlc_mul_scalar(x, root),
                    mlc_add_scalar(mlc_mul_scalar(mlc_square(x), 0.044715), 1.0));
    return halved(x, mlc_add_scalar(mlc_tanh(z), 1.0), form);
}

static mlc_tensor *hardswish_formula(mlc_tensor *x, int form, double sixth)
{
    if (form == 0)
        return mlc_mul_scalar(mlc_mul(x, mlc_clamp(mlc_add_scalar(x, 3.0), 0.0, 6.0)), sixth);
    if (form == 1) return mlc_mul(x, mlc_hardsigmoid(x));
    return mlc_mul(mlc_clamp(mlc_add_scalar(mlc_mul_scalar(x, sixth), 0.5), 0.0, 1.0), x);
}

static mlc_tensor *silu_formula(mlc_tensor *x, int form, double one)
{
    mlc_tensor *g = mlc_sigmoid(one == 1 ? x : mlc_mul_scalar(x, one));
    return form ? mlc_mul(g, x) : mlc_mul(x, g);
}

/* Formulas with their constant, and one that is not theirs. */
static const struct formula {
    const char *name;
    mlc_tensor *(*make)(mlc_tensor *x, int form, double constant);
    double      constant, wrong;
    int         forms;
} FORMULAS[] = {
    {"gelu", gelu_formula, HALF_ROOT, 0.7, 3},
    {"gelu", gelu_tanh_formula, GELU_ROOT, 0.8, 3},
    {"hardswish", hardswish_formula, 1.0 / 6.0, 0.17, 3},
    {"silu", silu_formula, 1.0, 1.001, 2},
};

typedef struct formula_user { const struct formula *f; int form; double constant; } formula_user;

/* A formula of a product, as layers have them. */
static mlc_status formula_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                  mlc_tensor **out, int32_t n_out)
{
    const formula_user *u = user;
    mlc_tensor         *x = mlc_matmul(in[0], in[1]);
    (void)n_in;
    (void)n_out;
    out[0] = u->f->make(x, u->form, u->constant);
    return mlc_ctx_status(ctx);
}

/* The calls of a plan of a forward of two inputs, whose results are within tol of it; -1: an error
 * or other results. */
static int32_t calls_of(mlc_ctx *ctx, mlc_plan_fn fn, void *user, mlc_tensor **in, int32_t n_in,
                        const mlc_plan_desc *d, double tol)
{
    mlc_plan_report r;
    mlc_tensor     *want = NULL;
    mlc_plan       *p = mlc_plan_capture_fn(ctx, fn, user, in, n_in, d);
    CHECK_OK(ctx);
    if (p == NULL) return -1;
    CHECK_EQ(mlc_plan_run(p, in, n_in, NULL, 0), MLC_OK);
    mlc_no_grad_begin(ctx);
    CHECK_EQ(fn(ctx, user, in, n_in, &want, 1), MLC_OK);
    mlc_no_grad_end(ctx);
    const double off = apart(mlc_plan_output(p, 0), want);
    const bool   near = CHECK(off >= 0 && off <= tol);
    if (!near) printf("  off by %g\n", off);
    CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
    mlc_plan_free(p);
    return near ? r.calls : -1;
}

TEST(plan, activations_that_are_written_as_formulas)
{
    static const mlc_dtype DTYPES[] = {MLC_F32, MLC_F64, MLC_BF16};
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < COUNT(FORMULAS) * 9; k++) {
        const mlc_dtype dtype = DTYPES[k % 3];
        formula_user    u = {&FORMULAS[k / 9], k / 3 % 3, FORMULAS[k / 9].constant};
        if (u.form >= u.f->forms) continue;
        mlc_scope_begin(ctx);
        mlc_tensor *in[2] = {test_rand(ctx, dtype, mlc_dims3(2, 5, 7), 1, -3, 3),
                             test_rand(ctx, dtype, mlc_dims2(7, 9), 2, -1, 1)};
        const double  tol = dtype == MLC_F32 ? 1e-6 : dtype == MLC_F64 ? 1e-12 : 0;
        mlc_plan_desc d = mlc_plan_desc_make();
        const int32_t calls = calls_of(ctx, formula_forward, &u, in, 2, &d, tol);
        d.passes &= ~(uint32_t)MLC_PLAN_FORMULAS;
        const int32_t apart_calls = calls_of(ctx, formula_forward, &u, in, 2, &d, tol);
        if (!(dtype == MLC_BF16 ? CHECK_EQ(calls, apart_calls)
              : CHECK_EQ(calls, u.f->make == hardswish_formula ? 2 : 1)))
            printf("  %s, form %d\n", u.f->name, u.form);
        u.constant = u.f->wrong;
        d.passes = MLC_PLAN_ALL;
        CHECK(calls_of(ctx, formula_forward, &u, in, 2, &d, tol) > 2 ||
              (u.form == 1 && u.f->make == hardswish_formula));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* in[0] by itself and by a gate of in[1]: no formula of one operand. */
static mlc_status gated_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_mul(mlc_mul(in[0], mlc_sigmoid(in[1])),
                     mlc_mul(mlc_mul(in[0], in[0]), mlc_mul(in[0], in[0])));
    return mlc_ctx_status(ctx);
}

/* A value of a formula that is read elsewhere, and an operand that broadcasts. */
static mlc_status shared_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *g = mlc_sigmoid(in[0]);
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_add(mlc_mul(in[0], g), mlc_mul(g, in[1]));
    return mlc_ctx_status(ctx);
}

TEST(plan, formulas_of_other_operands_stay)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[2] = {test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 1, -2, 2),
                         test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 2, -2, 2)};
    CHECK_EQ(calls_of(ctx, gated_forward, NULL, in, 2, NULL, 1e-6), 5);
    CHECK_EQ(calls_of(ctx, shared_forward, NULL, in, 2, NULL, 1e-6), 4);
    in[1] = test_rand(ctx, MLC_F32, mlc_dims1(6), 2, -2, 2);
    CHECK_EQ(calls_of(ctx, shared_forward, NULL, in, 2, NULL, 1e-6), 4);
}

/* ---- norms and attention out of their parts */

typedef struct norm_form { bool rms; int root, square, order; } norm_form;

/* A norm by rows of in[0] with weight in[1] and bias in[2], written in one of several ways. */
static mlc_status norm_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    const norm_form *k = user;
    const mlc_dims   last = mlc_dims1(-1);
    mlc_tensor      *x = in[0], *d = k->rms ? x : mlc_sub(x, mlc_mean(x, last, true)), *v, *z;
    (void)n_out;
    if (k->square == 0) v = mlc_mean(mlc_mul(d, d), last, true);
    else if (k->square == 1) v = mlc_mean(mlc_pow_scalar(d, 2.0), last, true);
    else v = k->rms ? mlc_mean(mlc_square(x), last, true) : mlc_var(x, last, 0.0, true);
    v = mlc_add_scalar(v, 1e-5);
    if (k->root == 0) z = mlc_div(d, mlc_sqrt(v));
    else if (k->root == 1) z = mlc_mul(d, mlc_rsqrt(v));
    else z = mlc_mul(mlc_reciprocal(mlc_pow_scalar(v, 0.5)), d);
    if (n_in > 1) z = k->order ? mlc_mul(in[1], z) : mlc_mul(z, in[1]);
    if (n_in > 2) z = k->order ? mlc_add(in[2], z) : mlc_add(z, in[2]);
    out[0] = z;
    return mlc_ctx_status(ctx);
}

TEST(plan, norms_out_of_their_parts)
{
    static const mlc_dtype DTYPES[] = {MLC_F32, MLC_F64};
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_plan_desc d = mlc_plan_desc_make();
    for (int i = 0; i < 2 * 2 * 3 * 3 * 2; i++) {
        const mlc_dtype dtype = DTYPES[i % 2];
        norm_form       k = {i / 2 % 2 != 0, i / 4 % 3, i / 12 % 3, i / 36};
        const int32_t   n_in = 1 + i % 3;
        mlc_scope_begin(ctx);
        mlc_tensor  *in[3] = {test_rand(ctx, dtype, mlc_dims3(3, i % 4 + 1, 11), 1, -1, 3),
                              test_rand(ctx, dtype, mlc_dims1(11), 2, -1, 1),
                              test_rand(ctx, dtype, mlc_dims1(11), 3, -1, 1)};
        const double tol = dtype == MLC_F32 ? 2e-6 : 1e-12;
        d.parts = NULL;
        CHECK(calls_of(ctx, norm_forward, &k, in, n_in, &d, tol) > 2);
        d.parts = mlc_plan_parts;
        if (!CHECK_EQ(calls_of(ctx, norm_forward, &k, in, n_in, &d, tol), 1))
            printf("  rms %d root %d square %d order %d\n", k.rms, k.root, k.square, k.order);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* RMS norms of x less another mean, and no norms: a variance over another axis or of other numbers,
 * a negative eps. */
static mlc_status no_norm_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                  mlc_tensor **out, int32_t n_out)
{
    const int *k = user;
    mlc_tensor *x = in[0], *of = *k == 0 ? in[1] : x;
    mlc_tensor *d = mlc_sub(x, mlc_mean(of, mlc_dims1(*k == 1 ? -2 : -1), true));
    mlc_tensor *v = mlc_mean(mlc_mul(d, *k == 2 ? x : d), mlc_dims1(*k == 3 ? -2 : -1), true);
    (void)n_in;
    (void)n_out;
    if (*k == 4) v = mlc_mul_scalar(v, 1.25);              /* unbiased                          */
    if (*k == 5) v = mlc_var(x, mlc_dims1(-1), 1.0, true);
    out[0] = mlc_div(d, mlc_sqrt(mlc_add_scalar(v, *k == 6 ? -1e-3 : 1e-3)));
    return mlc_ctx_status(ctx);
}

TEST(plan, what_is_almost_a_norm_stays)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_plan_desc d = mlc_plan_desc_make();
    mlc_tensor   *in[2] = {test_rand(ctx, MLC_F32, mlc_dims3(2, 5, 5), 1, -1, 3),
                           test_rand(ctx, MLC_F32, mlc_dims3(2, 5, 5), 2, -1, 3)};
    d.parts = mlc_plan_parts;
    for (int k = 0; k < 7; k++)
    {
        const int32_t calls = calls_of(ctx, no_norm_forward, &k, in, 2, &d, 1e-5);
        if (!CHECK(k < 2 ? calls == 3 : calls > 3)) printf("  %d: %d calls\n", k, calls);
    }
}

typedef struct attention_form { int scale, mask; bool shared; } attention_form;

/* Attention of in[0], in[1], in[2] with a mask in[3], written in one of several ways. */
static mlc_status attention_forward(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                    mlc_tensor **out, int32_t n_out)
{
    const attention_form *k = user;
    mlc_tensor           *q = in[0];
    (void)n_in;
    (void)n_out;
    if (k->scale == 0) q = mlc_mul_scalar(q, 0.4);
    mlc_tensor *s = mlc_matmul(q, mlc_transpose(in[1], 2, 3));
    if (k->scale == 1) s = mlc_mul_scalar(s, 0.4);
    if (k->scale == 2) s = mlc_div_scalar(s, 2.5);
    if (k->mask) s = k->mask == 2 ? mlc_add(in[3], s) : mlc_add(s, in[3]);
    mlc_tensor *w = mlc_softmax(s, -1), *y = mlc_matmul(w, in[2]);
    out[0] = k->shared ? mlc_add(y, mlc_mean(mlc_square(w), mlc_dims1(-1), true)) : y;
    return mlc_ctx_status(ctx);
}

TEST(plan, attention_out_of_its_parts)
{
    static const mlc_dtype DTYPES[] = {MLC_F32, MLC_F64};
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_plan_desc d = mlc_plan_desc_make();
    d.parts = mlc_plan_parts;
    for (int i = 0; i < 2 * 3 * 3 * 2 * 3; i++) {
        const mlc_dtype dtype = DTYPES[i % 2];
        attention_form  k = {i / 2 % 3, i / 6 % 3, i / 18 % 2 != 0};
        const int64_t   t = 1 + i % 7, b = 1 + i % 3, h = 1 + i / 3 % 3;
        const int       wide = i / 36;
        mlc_scope_begin(ctx);
        mlc_tensor *packed = test_rand(ctx, dtype, mlc_dims4(b, t, h, 8), 1, -1, 1);
        mlc_tensor *in[4] = {mlc_contiguous(mlc_transpose(packed, 1, 2)),
                             test_rand(ctx, dtype, mlc_dims4(b, h, 6, 8), 2, -1, 1),
                             test_rand(ctx, dtype, mlc_dims4(b, h, 6, 5), 3, -1, 1),
                             test_rand(ctx, dtype, wide == 0   ? mlc_dims2(t, 6)
                                                   : wide == 1 ? mlc_dims4(b, 1, 1, 6)
                                                               : mlc_dims4(b, h, t, 6), 4, -2, 2)};
        const int32_t calls = calls_of(ctx, attention_forward, &k, in, 4, &d,
                                       dtype == MLC_F32 ? 2e-6 : 1e-12);
        if (!CHECK(k.shared ? calls > 4 : calls == 1 + (k.scale == 0)))
            printf("  scale %d mask %d wide %d calls %d\n", k.scale, k.mask, wide, calls);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* What looks like attention: 0: keys of no numbers, 1: a sketch in the place of v, 2: of 3 axes
 * with one v for all, 3: a row of -inf in the mask. */
static mlc_status near_attention(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    const int  *k = user;
    mlc_tensor *s = mlc_matmul(in[0], mlc_transpose(in[1], -2, -1));
    (void)n_in;
    (void)n_out;
    if (*k == 1) {
        const mlc_sketch sketch = mlc_sketch_make(MLC_SKETCH_SIGNS, 8, 6, 3);
        out[0] = mlc_sketch_apply(mlc_softmax(s, -1), &sketch, -1);
    } else {
        if (*k == 3) s = mlc_add(s, in[3]);
        out[0] = mlc_matmul(mlc_softmax(s, -1), in[2]);
    }
    return mlc_ctx_status(ctx);
}

/* x clamp(-x - 3, 0, -6) / -6 is x: the upper bound of a clamp wins. */
static mlc_status upside_down(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *c = mlc_clamp(mlc_add_scalar(mlc_mul_scalar(in[0], -1), -3), 0, -6);
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_mul_scalar(mlc_mul(in[0], c), -1.0 / 6);
    return mlc_ctx_status(ctx);
}

TEST(plan, clamps_upside_down_are_no_hardswish)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 1, -2, 2);
    CHECK(calls_of(ctx, upside_down, NULL, &x, 1, NULL, 1e-6) > 3);
}

TEST(plan, what_is_almost_attention)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_plan_desc d = mlc_plan_desc_make();
    d.parts = mlc_plan_parts;
    for (int k = 0; k < 3; k++) {
        const int64_t width = k == 0 ? 0 : 4;
        mlc_tensor   *in[3] = {test_rand(ctx, MLC_F32, mlc_dims3(2, 3, width), 1, -1, 1),
                               test_rand(ctx, MLC_F32, mlc_dims3(2, 6, width), 2, -1, 1),
                               test_rand(ctx, MLC_F32, k == 2 ? mlc_dims2(6, 5)
                                                              : mlc_dims3(2, 6, 5), 3, -1, 1)};
        CHECK(calls_of(ctx, near_attention, &k, in, 3, &d, 1e-6) > 0);
    }
}

/* A row that sees no key is 0, and NaN by the formula; the others are as by the formula. */
TEST(plan, attention_of_rows_without_keys)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    const double  mask[] = {0, 0, -INF, -INF, 0, -INF};
    int           k = 3;
    mlc_plan_desc d = mlc_plan_desc_make();
    mlc_tensor   *in[4] = {test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 3, 4), 1, -1, 1),
                           test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 2, 4), 2, -1, 1),
                           test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 2, 5), 3, -1, 1),
                           test_tensor(ctx, MLC_F32, mlc_dims2(3, 2), mask)}, *want;
    d.parts = mlc_plan_parts;
    mlc_plan *p = mlc_plan_capture_fn(ctx, near_attention, &k, in, 4, &d);
    CHECK_EQ(mlc_plan_run(p, in, 4, NULL, 0), MLC_OK);
    near_attention(ctx, &k, in, 4, &want, 1);
    const float *y = mlc_f32(mlc_plan_output(p, 0)), *w = mlc_f32(want);
    for (int i = 0; i < 15; i++)
        CHECK(i / 5 == 1 ? y[i] == 0 && isnan(w[i]) : fabsf(y[i] - w[i]) < 1e-6f);
    mlc_plan_free(p);
}

TEST(plan, parts_are_a_pass)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_plan_parts(p), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "mlc_plan_desc.parts");
    CHECK_EQ(mlc_plan_parts(NULL), MLC_ERR_ARG);
    mlc_plan_free(p);
    mlc_module_free(net);
}

/* relu(norm(conv(h)) + h) of h = conv(x). */
static mlc_status apart_block(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = user;
    (void)n_in;
    (void)n_out;
    mlc_tensor *h = mlc_forward(mlc_module_child(net, 0), in[0]);
    mlc_tensor *y = mlc_forward(mlc_module_child(net, 1),
                                mlc_forward(mlc_module_child(net, 0), h));
    out[0] = mlc_relu(mlc_add(y, h));
    return mlc_ctx_status(ctx);
}

/* A norm of some images of a convolution, and one whose weight is made after it: not folded.    */
static mlc_status part_normed(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    mlc_module *net = user;
    (void)n_in;
    (void)n_out;
    mlc_tensor *y = mlc_forward(mlc_module_child(net, 0), in[0]);
    out[0] = mlc_relu(mlc_forward(mlc_module_child(net, 1), mlc_slice(y, 0, 0, 2, 1)));
    return mlc_ctx_status(ctx);
}

TEST(plan, a_norm_of_a_part_is_not_folded)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 4, 4, 3, 1, 1));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 4));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(4, 4, 6, 5), 1, -1, 2), *want;
    for (int i = 0; i < 3; i++) mlc_forward(net, x);
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    mlc_plan *p = mlc_plan_capture_fn(ctx, part_normed, net, &x, 1, NULL);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    part_normed(ctx, net, &x, 1, &want, 1);
    CHECK(apart(mlc_plan_output(p, 0), want) <= 1e-5);
    mlc_no_grad_end(ctx);
}

TEST(plan, batch_norms_are_folded)
{
    ONLY_ON_HOST();
    for (int bias = 0; bias < 2; bias++) {
        mlc_ctx         *ctx = test_ctx();
        mlc_module      *net = mlc_nn_sequential(ctx);
        mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 4, 4, 3);
        mlc_plan_report  r;
        d.conv.padding = mlc_dims_all(1);
        d.no_bias = bias == 0;
        mlc_module_add(net, mlc_nn_conv(ctx, &d));
        mlc_module_add(net, mlc_nn_batch_norm(ctx, 4));
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(3, 4, 6, 5), 1, -1, 2), *want;
        for (int i = 0; i < 3; i++) mlc_forward(net, x);
        mlc_copy_into(mlc_module_param(net, "1.weight"),
                      test_rand(ctx, MLC_F32, mlc_dims1(4), 5, -1, 1));
        mlc_module_train(net, false);
        mlc_no_grad_begin(ctx);
        mlc_plan *p = mlc_plan_capture_fn(ctx, apart_block, net, &x, 1, NULL);
        CHECK_OK(ctx);
        if (!CHECK(p != NULL)) continue;
        CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
        CHECK_EQ(r.constant, 1);
        CHECK_EQ(r.fused, 3);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
            apart_block(ctx, net, &x, 1, &want, 1);
            CHECK(apart(mlc_plan_output(p, 0), want) <= 1e-5);
            mlc_copy_into(mlc_module_param(net, "1.bias"),
                          test_rand(ctx, MLC_F32, mlc_dims1(4), 9, -1, 1));
        }
        mlc_no_grad_end(ctx);
    }
}

TEST(plan, a_table_of_calls)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    sink        s = {{0}, 0};
    CHECK_EQ(mlc_plan_print(p, collect, &s), MLC_OK);
    CHECK_HAS(s.text, "linear           0                    gemm");
    CHECK_HAS(s.text, "[4,20] <- x0, 0.weight, 0.bias\n");
    CHECK_HAS(s.text, "2.weight, 2.bias\n");
    CHECK_HAS(s.text, "2 calls a run, 0 once");
    CHECK_EQ(mlc_plan_print(NULL, collect, &s), MLC_ERR_ARG);
    CHECK_EQ(mlc_plan_report_of(p, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "out is NULL");
    mlc_plan_free(p);
}

TEST(plan, keeps_as_many_shapes_as_asked)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = small_mlp(ctx);
    mlc_plan_desc d = mlc_plan_desc_make();
    d.sizes = 2;
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(1, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, &d);
    CHECK(mlc_plan_output(p, 0) == NULL);                  /* of no run */
    for (int64_t i = 0; i < 12; i++)
        check_run(p, net, test_rand(ctx, MLC_F32, mlc_dims2(1 + 7 * i % 5, 12), 1, -1, 1));
    check_run(p, net, test_rand(ctx, MLC_F32, mlc_dims2(1, 12), 1, -1, 1));
    check_run(p, net, test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1));
    for (int i = 0; i < 3; i++) {      /* 1 and 3 are kept, 2 is not */
        static const int64_t rows[] = {3, 1, 2};
        mlc_memory           before, after;
        x = test_rand(ctx, MLC_F32, mlc_dims2(rows[i], 12), 1, -1, 1);
        mlc_memory_info(ctx, &before);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_memory_info(ctx, &after);
        CHECK_EQ(after.calls == before.calls, rows[i] != 2);
    }
    x = test_rand(ctx, MLC_F32, mlc_dims2(0, 12), 1, -1, 1);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(mlc_plan_output(p, 0) != NULL && mlc_numel(mlc_plan_output(p, 0)) == 0);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_ctx_set_threads(ctx, 2), MLC_OK);
    check_run(p, net, test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1));
}

/* A recording that has to be made again is of the same shapes.                                  */
TEST(plan, a_plan_of_the_same_shapes_is_recorded_again)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = small_mlp(ctx);
    mlc_plan_desc d = mlc_plan_desc_make();
    d.same_shapes = true;
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, &d);
    check_run(p, net, x);
    CHECK_EQ(mlc_ctx_set_threads(ctx, 2), MLC_OK);
    check_run(p, net, x);
    x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "same_shapes");
}

/* An output that grows cannot be the next input.                                                */
static mlc_status grows(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                        mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *two[] = {in[0], in[0]};
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_exp(mlc_concat(two, 2, 0));
    return mlc_ctx_status(ctx);
}

TEST(plan, an_output_is_no_input_of_new_shapes)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture_fn(ctx, grows, NULL, &x, 1, NULL);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    x = mlc_plan_output(p, 0);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "an output of this plan");
    x = mlc_copy(mlc_plan_output(p, 0));
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(p, 0), mlc_exp(mlc_concat((mlc_tensor *[]){x, x}, 2, 0))) == 0);
}

/* Memory that a scope gives back, and a larger tensor of the same size class.                   */
static mlc_status takes_again(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    mlc_scope_begin(ctx);
    mlc_tensor *sum = mlc_keep(mlc_sum(mlc_exp(in[0]), mlc_dims0(), false));
    mlc_scope_end(ctx);
    mlc_tensor *ones = mlc_full(ctx, MLC_F32, mlc_dims1(1280), 1.0);
    out[0] = mlc_add(mlc_mul(ones, sum), mlc_exp(ones));
    return mlc_ctx_status(ctx);
}

TEST(plan, memory_of_a_scope_is_not_used_again)
{
    ONLY_ON_HOST();
    mlc_ctx            *ctx = test_ctx();
    const mlc_plan_desc d = with(PLAIN);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims1(1040), 1, -1, 1), *want;
    mlc_no_grad_begin(ctx);
    mlc_plan *p = mlc_plan_capture_fn(ctx, takes_again, NULL, &x, 1, &d);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    takes_again(ctx, NULL, &x, 1, &want, 1);
    CHECK(apart(mlc_plan_output(p, 0), want) == 0);
    mlc_no_grad_end(ctx);
}

/* ---- for production */

TEST(plan, production)
{
    ONLY_ON_HOST();
    for (int level = MLC_PRODUCTION_EXACT; level <= MLC_PRODUCTION_INT8; level++) {
        mlc_ctx              *ctx = test_ctx();
        mlc_module           *net = mlp(ctx, 64, 96, 10);
        mlc_production_report r;
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 1, -1, 1);
        mlc_tensor *more = test_rand(ctx, MLC_F32, mlc_dims2(7, 64), 2, -1, 1);
        mlc_tensor *before = mlc_forward(net, x);
        mlc_plan   *p = mlc_optimize_for_production(net, x, (mlc_production)level, &r);
        CHECK_OK(ctx);
        if (!CHECK(p != NULL)) continue;
        CHECK(r.forward > 0 && r.plan > 0 && r.calls.calls >= 2);
        CHECK(level == MLC_PRODUCTION_EXACT ? r.error == 0 : r.error < 0.03);
        CHECK((r.error > 1e-5) == (level == MLC_PRODUCTION_INT8));
        CHECK((r.weights_after < r.weights_before) == (level == MLC_PRODUCTION_INT8));
        CHECK_EQ(mlc_plan_run(p, &more, 1, NULL, 0), MLC_OK);
        CHECK(apart(mlc_plan_output(p, 0), mlc_forward(net, more)) < 0.03);
        CHECK(apart(mlc_forward(net, x), before) == 0 && mlc_module_is_training(net));
        if (level != MLC_PRODUCTION_FUSED) mlc_plan_free(p);
    }
}

TEST(plan, production_refuses)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 12), 1, -1, 1);
    mlc_module *net = small_mlp(ctx), *none = mlc_nn_relu(ctx);
    CHECK(mlc_optimize_for_production(NULL, x, MLC_PRODUCTION_EXACT, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the network");
    CHECK(mlc_optimize_for_production(net, NULL, MLC_PRODUCTION_EXACT, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the sample");
    CHECK(mlc_optimize_for_production(net, x, (mlc_production)3, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "level 3");
    CHECK(mlc_optimize_for_production(none, x, MLC_PRODUCTION_INT8, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "quantize");
    x = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    CHECK(mlc_optimize_for_production(net, x, MLC_PRODUCTION_FUSED, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "linear");
}

/* ---- with loaders */

TEST(plan, evaluates_a_loader)
{
    ONLY_ON_HOST();
    mlc_ctx              *ctx = test_ctx();
    mlc_module           *net = small_mlp(ctx);
    mlc_tensor           *x = test_rand(ctx, MLC_F32, mlc_dims2(23, 12), 1, -1, 1);
    mlc_tensor           *y = test_tokens(ctx, mlc_dims1(23), 7, 1);
    const mlc_loader_desc rows = mlc_loader_desc_make(x, y, 5);
    mlc_loader           *loader = mlc_loader_create(ctx, &rows);
    mlc_fit_desc          d = mlc_fit_desc_make(mlc_cross_entropy);
    const mlc_plan_desc   plain = with(PLAIN);
    mlc_plan_evaluation u = {NULL, mlc_cross_entropy};
    double                want = 0, got = 0;
    mlc_tensor           *five = mlc_slice(x, 0, 0, 5, 1), *out = NULL;
    u.plan = mlc_plan_capture(net, &five, 1, &plain);
    CHECK_EQ(mlc_evaluate(net, loader, &d, &want), MLC_OK);
    d.forward = mlc_plan_forward;
    d.user = &u;
    CHECK_EQ(mlc_evaluate(net, loader, &d, &got), MLC_OK);
    CHECK(want > 0 && got == want);
    CHECK(mlc_plan_forward(NULL, net, NULL, &out) == NULL);
    mlc_loader_free(loader);
}

/* ---- random graphs */

/* A graph of operations on square tensors that seed decides, and so the same in each run. */
static mlc_status graph(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                        mlc_tensor **out, int32_t n_out)
{
    uint64_t    seed = *(uint64_t *)user;
    mlc_tensor *t[80] = {in[0], in[1]};
    const int   n = 5 + (int)(test_random(seed, 0, 0, 1) * 56);
    (void)n_in;
    for (int i = 2; i < n + 2; i++) {
        const int   op = (int)test_random(seed, 3 * i, 0, 16);
        mlc_tensor *a = t[(int)test_random(seed, 3 * i + 1, 0, i)];
        mlc_tensor *b = t[(int)test_random(seed, 3 * i + 2, 0, i)], *both[2] = {a, b};
        switch (op) {
            case 0: t[i] = mlc_add(a, b); break;
            case 1: t[i] = mlc_mul(mlc_tanh(a), b); break;
            case 2: t[i] = mlc_relu(mlc_sub(a, b)); break;
            case 3: t[i] = mlc_tanh(mlc_matmul(a, b)); break;
            case 4: t[i] = mlc_softmax(a, 1); break;
            case 5: t[i] = mlc_transpose(a, 0, 1); break;
            case 6: t[i] = mlc_mul(a, mlc_mean(b, mlc_dims1(0), true)); break;
            case 7: t[i] = mlc_slice(mlc_concat(both, 2, 0), 0, 2, mlc_dim(a, 0) + 2, 1); break;
            case 8: t[i] = mlc_layer_norm(a, NULL, NULL, 1e-5); break;
            case 9: t[i] = mlc_sigmoid(mlc_linear(a, b, NULL)); break;
            case 10: t[i] = mlc_flip(a, mlc_dims1(1)); break;
            case 11: t[i] = mlc_where(mlc_gt(a, b), a, b); break;
            case 12: t[i] = mlc_cumsum(mlc_tanh(a), 0); break;
            case 13: t[i] = mlc_abs(mlc_mul_scalar(a, 0.5)); break;
            case 14: t[i] = mlc_relu_(mlc_mul_scalar(b, -0.5)); break;
            default: t[i] = mlc_add(a, mlc_full(ctx, a->dtype, mlc_dims1(1), 0.25)); break;
        }
    }
    for (int i = 0; i < n_out; i++) out[i] = t[n + 1 - i];
    return mlc_ctx_status(ctx);
}

static void check_graph(mlc_ctx *ctx, uint64_t seed, mlc_dtype dtype, uint32_t passes, double tol)
{
    mlc_plan_desc   d = with(passes);
    mlc_plan_report r;
    mlc_tensor     *in[2], *out[2] = {NULL, NULL};
    d.n_out = 2;
    mlc_scope_begin(ctx);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < 2; i++)
        in[i] = test_rand(ctx, dtype, mlc_dims2(5, 5), seed + (uint64_t)i, -1, 1);
    mlc_plan *p = mlc_plan_capture_fn(ctx, graph, &seed, in, 2, &d);
    for (int k = 0; k < 2 && CHECK(p != NULL); k++) {
        for (int i = 0; i < 2; i++)
            in[i] = test_rand(ctx, dtype, mlc_dims2(5, 5), seed + 7 + (uint64_t)(2 * k + i), -1, 1);
        CHECK_EQ(graph(ctx, &seed, in, 2, out, 2), MLC_OK);
        CHECK_EQ(mlc_plan_run(p, in, 2, NULL, 0), MLC_OK);
        for (int i = 0; i < 2; i++) {
            const double off = apart(mlc_plan_output(p, i), out[i]);
            if (!CHECK(off >= 0 && off <= tol))
                printf("  graph %llu: %g\n", (unsigned long long)seed, off);
        }
    }
    if (p != NULL) CHECK_EQ(mlc_plan_report_of(p, &r), MLC_OK);
    mlc_plan_free(p);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(plan, random_graphs)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    const uint64_t n = test_soak() ? 10000 : 400;
    for (uint64_t seed = 1; seed <= n; seed++) {
        check_graph(ctx, 100 * seed, MLC_F32, PLAIN, 0);
        check_graph(ctx, 100 * seed, MLC_F64, MLC_PLAN_ALL, 1e-12);
    }
}

TEST(plan, blocks_of_random_graphs_are_near_the_largest_live_set)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    double   sum = 0;
    const int n = 1000;
    for (int k = 1; k <= n; k++) {
        uint64_t        seed = 1000u + (uint64_t)k;
        mlc_plan_report r;
        mlc_plan_desc   d = mlc_plan_desc_make();
        d.n_out = 2;
        mlc_scope_begin(ctx);
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(16, 16)), *in[2] = {x, x};
        mlc_plan   *p = mlc_plan_capture_fn(ctx, graph, &seed, in, 2, &d);
        CHECK(p != NULL && mlc_plan_report_of(p, &r) == MLC_OK);
        if (p != NULL && r.live > 0) sum += log((double)r.bytes / (double)r.live);
        mlc_plan_free(p);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(exp(sum / n) <= 1.1);
}

/* ---- files */

/* The plan of a file, in a context of its own, has the bits of the plan that was saved on x.    */
static void check_file(mlc_ctx *ctx, mlc_plan *p, mlc_tensor *x, const char *path)
{
    const mlc_plan_desc d = with(PLAIN);
    const mlc_ctx_desc  c = test_desc();
    mlc_ctx            *other = mlc_ctx_create(&c);
    const mlc_named     in = {"x", x};
    char                of_x[400];
    snprintf(of_x, sizeof of_x, "%s.x", path);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_plan_save(p, path), MLC_OK);
    CHECK_EQ(mlc_safetensors_save(ctx, of_x, &in, 1, NULL), MLC_OK);
    mlc_safetensors *file = mlc_safetensors_open(other, of_x);
    mlc_tensor      *y = mlc_safetensors_get(file, "x");
    mlc_plan        *q = mlc_plan_load(other, path, &d);
    if (CHECK(q != NULL) && CHECK_EQ(mlc_plan_run(q, &y, 1, NULL, 0), MLC_OK))
        CHECK(apart(mlc_plan_output(q, 0), mlc_plan_output(p, 0)) == 0);
    else
        printf("  %s %s\n", mlc_error(ctx), mlc_error(other));
    mlc_plan_free(q);
    mlc_ctx_free(other);
}

TEST(plan, files_of_networks)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("plan.safetensors");
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        mlc_ctx            *ctx = test_ctx();
        const mlc_plan_desc d = with(PLAIN);
        mlc_module         *net = NETWORKS[i].make(ctx);
        mlc_tensor         *x = sample(ctx, &NETWORKS[i], MLC_F32, 2, 3);
        mlc_plan           *p = mlc_plan_capture(net, &x, 1, &d);
        if (CHECK(p != NULL)) check_file(ctx, p, x, b.path);
        mlc_plan_free(p);
        mlc_module_free(net);
    }
    box_close(&b);
}

/* A file of a plan that has run with two batches takes any batch; a language model that has run
 * with two lengths, any length.                                                                */
static void check_sizes(const struct network *k, int axis, const char *path)
{
    static const int64_t sizes[] = {1, 2, 4, 5, 7};
    mlc_ctx             *ctx = test_ctx();
    const mlc_plan_desc  d = with(PLAIN);
    struct network       at = *k;
    mlc_module          *net = k->make(ctx);
    /* Heads of one row are dense, and not copied before a product: a file refuses that length.  */
    const bool           refuses = axis && strstr(k->name, "features") != NULL;
    mlc_plan            *p = NULL, *q;
    for (int64_t n = 3; n >= 2; n--) {
        at.in[0] = axis ? n + 2 : k->in[0];
        mlc_tensor *x = sample(ctx, &at, MLC_F32, axis ? 2 : n, 3);
        if (p == NULL) p = mlc_plan_capture(net, &x, 1, &d);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    }
    CHECK_EQ(mlc_plan_save(p, path), MLC_OK);
    mlc_plan_free(p);
    q = mlc_plan_load(ctx, path, &d);
    mlc_eval_begin(net);
    for (int i = 0; i < COUNT(sizes) && CHECK(q != NULL); i++) {
        at.in[0] = axis ? sizes[i] : k->in[0];
        mlc_tensor *x = sample(ctx, &at, MLC_F32, axis ? 2 : sizes[i], 4);
        mlc_status  st = mlc_plan_run(q, &x, 1, NULL, 0);
        if (refuses && sizes[i] == 1)
            CHECK_ERROR(ctx, MLC_ERR_SHAPE, "is for sizes from 2 on");
        else if (!CHECK_EQ(st, MLC_OK) ||
                 !CHECK(apart(mlc_plan_output(q, 0), mlc_forward(net, x)) == 0))
            printf("  %s of %d: %s\n", k->name, (int)sizes[i], mlc_error(ctx));
    }
    mlc_eval_end(net);
    mlc_plan_free(q);
    mlc_module_free(net);
}

TEST(plan, files_of_all_sizes)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("plan.safetensors");
    for (int i = 0; i < COUNT(NETWORKS); i++) check_sizes(&NETWORKS[i], 0, b.path);
    for (int i = 0; i < COUNT(NETWORKS); i++)
        if (NETWORKS[i].n < 3 && strcmp(NETWORKS[i].name, "mlp") != 0 &&
            strcmp(NETWORKS[i].name, "sketched") != 0) check_sizes(&NETWORKS[i], 1, b.path);
    box_close(&b);
}

/* Numbers that do not grow with the size: a further one shows it, and the file has one size.    */
static mlc_status square_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    const double n = (double)mlc_dim(in[0], 0);
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_add_scalar(in[0], n * n);
    return mlc_ctx_status(ctx);
}

TEST(plan, files_of_one_size)
{
    ONLY_ON_HOST();
    const box  b = box_open_fast("plan.safetensors");
    mlc_ctx   *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 2)), *y = mlc_ones(ctx, MLC_F32,
                                                                         mlc_dims2(3, 2));
    mlc_plan  *p = mlc_plan_capture_fn(ctx, square_of, NULL, &x, 1, NULL);
    CHECK_EQ(mlc_plan_prepare(p, &y, 1), MLC_OK);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
    mlc_plan *q = mlc_plan_load(ctx, b.path, NULL);
    CHECK_EQ(mlc_plan_run(q, &y, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(q, 0), mlc_full(ctx, MLC_F32, mlc_dims2(3, 2), 10)) == 0);
    CHECK_EQ(mlc_plan_run(q, &x, 1, NULL, 0), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "input 1 is [2,2], the file has a plan of [3,2]");
    mlc_plan_free(p);
    mlc_plan_free(q);
    box_close(&b);
}

/* A convolution of stride 2, whose rows an axis of 4 n numbers has for even sizes alone. */
static mlc_status rows_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *y = mlc_forward((mlc_module *)user, in[0]);
    (void)n_in, (void)n_out;
    y = mlc_reshape(y, mlc_dims2(mlc_dim(in[0], 0), -1));
    out[0] = mlc_max(y, mlc_dims1(1), false);
    return mlc_ctx_status(ctx);
}

/* The last 24 rows, or all of fewer. */
static mlc_status last_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_exp(mlc_slice(in[0], 0, -24, INT64_MAX, 1));
    return mlc_ctx_status(ctx);
}

/* The same; at fewer than 4 rows other numbers. */
static mlc_status scaled_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    const double n = (double)mlc_dim(in[0], 0);
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_mul_scalar(in[0], 1 / (n > 4 ? n : 4));
    return mlc_ctx_status(ctx);
}

/* Without an axis of one row. */
static mlc_status squeezed_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_squeeze(mlc_exp(in[0]), 0);
    return mlc_ctx_status(ctx);
}

/* Rows but the first 3. */
static mlc_status later_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_exp(mlc_slice(in[0], 0, 3, INT64_MAX, 1));
    return mlc_ctx_status(ctx);
}

/* The plan of fn's file, saved for shape a after b and, unless that has no axes, c. */
static mlc_plan *plan_of_sizes(mlc_ctx *ctx, mlc_plan_fn fn, void *user, mlc_dims a, mlc_dims b,
                               mlc_dims c, const char *path)
{
    const mlc_plan_desc d = with(PLAIN);
    mlc_tensor         *x = mlc_ones(ctx, MLC_F32, b), *y = mlc_ones(ctx, MLC_F32, a);
    mlc_tensor         *z = mlc_ones(ctx, MLC_F32, c);
    mlc_plan           *p = mlc_plan_capture_fn(ctx, fn, user, &x, 1, &d);
    if (c.n) CHECK_EQ(mlc_plan_prepare(p, &z, 1), MLC_OK);
    CHECK_EQ(mlc_plan_prepare(p, &y, 1), MLC_OK);
    CHECK_EQ(mlc_plan_save(p, path), MLC_OK);
    CHECK_OK(ctx);
    mlc_plan_free(p);
    return mlc_plan_load(ctx, path, &d);
}

/* A run of a file's plan on a tensor of this shape is an error of this text, or, for NULL, has the
 * bits of fn. */
static void check_size(mlc_ctx *ctx, mlc_plan *q, mlc_plan_fn fn, mlc_dims shape, const char *says)
{
    mlc_tensor *x = test_rand(ctx, MLC_F32, shape, 5, -1, 1), *y = NULL;
    const mlc_status st = mlc_plan_run(q, &x, 1, NULL, 0);
    CHECK_EQ(st, says ? MLC_ERR_SHAPE : MLC_OK);
    if (says) {
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, says);
        return;
    }
    CHECK_EQ(fn(ctx, NULL, &x, 1, &y, 1), MLC_OK);
    CHECK(apart(mlc_plan_output(q, 0), y) == 0);
}

TEST(plan, files_of_sizes_that_are_not_all)
{
    ONLY_ON_HOST();
    const box     b = box_open_fast("plan.safetensors");
    mlc_ctx      *ctx = test_ctx();
    const mlc_dims none = mlc_dims0();
    mlc_module   *net = mlc_nn_conv1d(ctx, 1, 8, 3, 2, 1);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    mlc_plan *q = plan_of_sizes(ctx, rows_of, net, mlc_dims3(2, 1, 8), mlc_dims3(2, 1, 16), none,
                                  b.path);
    check_size(ctx, q, NULL, mlc_dims3(2, 1, 9), "is [2,1,9], the file has a plan of [2,1,8]; ");
    mlc_plan_free(q);
    q = plan_of_sizes(ctx, last_of, NULL, mlc_dims2(2, 3), mlc_dims2(3, 3), none, b.path);
    check_size(ctx, q, last_of, mlc_dims2(2, 3), NULL);
    check_size(ctx, q, last_of, mlc_dims2(30, 3), "is [30,3], the file has a plan of [2,3]; save");
    mlc_plan_free(q);
    q = plan_of_sizes(ctx, scaled_of, NULL, mlc_dims2(2, 3), mlc_dims2(3, 3), none, b.path);
    check_size(ctx, q, scaled_of, mlc_dims2(9, 3), "is [9,3], the file has a plan of [2,3]; save");
    mlc_plan_free(q);
    mlc_module_free(net);
    box_close(&b);
}

TEST(plan, files_of_sizes_from_two_on)
{
    ONLY_ON_HOST();
    const box      b = box_open_fast("plan.safetensors");
    mlc_ctx       *ctx = test_ctx();
    const mlc_dims none = mlc_dims0();
    mlc_plan *q = plan_of_sizes(ctx, squeezed_of, NULL, mlc_dims2(2, 3), mlc_dims2(3, 3), none,
                                b.path);
    check_size(ctx, q, squeezed_of, mlc_dims2(2, 3), NULL);
    check_size(ctx, q, squeezed_of, mlc_dims2(7, 3), NULL);
    check_size(ctx, q, NULL, mlc_dims2(1, 3), "axis 0 of input 1 is 1; the plan of '");
    check_size(ctx, q, NULL, mlc_dims2(2, 4), "in which axis 0 of input 1 alone may have other");
    mlc_plan_free(q);
    q = plan_of_sizes(ctx, later_of, NULL, mlc_dims2(8, 3), mlc_dims2(9, 3), none, b.path);
    check_size(ctx, q, later_of, mlc_dims2(5, 3), NULL);
    check_size(ctx, q, NULL, mlc_dims2(2, 3), "axis 0 of input 1 is 2, which does not fit");
    mlc_plan_free(q);
    box_close(&b);
}

/* Of several recordings that of one other axis is taken, and one that can no longer be made is no
 * error. */
static mlc_status at_most_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                             mlc_tensor **out, int32_t n_out)
{
    if (mlc_dim(in[0], 0) > *(const int64_t *)user)
        return mlc_raise(ctx, MLC_ERR_VALUE, "too many rows");
    return last_of(ctx, NULL, in, n_in, out, n_out);
}

TEST(plan, files_by_the_size_of_one_axis)
{
    ONLY_ON_HOST();
    const box  b = box_open_fast("plan.safetensors");
    mlc_ctx   *ctx = test_ctx();
    int64_t    most = 100;
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(5, 3)), *y = mlc_ones(ctx, MLC_F32,
                                                                         mlc_dims2(2, 3));
    mlc_plan *q = plan_of_sizes(ctx, later_of, NULL, mlc_dims2(8, 3), mlc_dims2(9, 3),
                                mlc_dims2(7, 4), b.path);
    check_size(ctx, q, later_of, mlc_dims2(11, 3), NULL);
    check_size(ctx, q, NULL, mlc_dims2(8, 4), "in which axis 0 of input 1 alone may have other");
    mlc_plan_free(q);
    mlc_plan *p = mlc_plan_capture_fn(ctx, at_most_of, &most, &x, 1, NULL);
    CHECK_EQ(mlc_plan_prepare(p, &y, 1), MLC_OK);
    most = 4;
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
    CHECK_OK(ctx);
    q = mlc_plan_load(ctx, b.path, NULL);
    check_size(ctx, q, last_of, mlc_dims2(2, 3), NULL);
    check_size(ctx, q, NULL, mlc_dims2(5, 3), "is [5,3], the file has a plan of [2,3]; save");
    mlc_plan_free(p);
    mlc_plan_free(q);
    box_close(&b);
}

/* Weights of 16 bits, and autocast: the casts are in the file, and so is what products round.   */
TEST(plan, files_of_16_bits)
{
    ONLY_ON_HOST();
    const box           b = box_open_fast("plan.safetensors");
    const mlc_plan_desc d = with(PLAIN);
    for (int i = 0; i < COUNT(NETWORKS); i++)
        for (int cast = 0; cast < 2; cast++) {
            mlc_ctx    *ctx = test_ctx();
            mlc_module *net = NETWORKS[i].make(ctx);
            mlc_tensor *x = sample(ctx, &NETWORKS[i], cast ? MLC_F32 : MLC_BF16, 2, 3);
            if (cast) mlc_autocast_begin(ctx, MLC_BF16);
            else CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
            mlc_plan *p = mlc_plan_capture(net, &x, 1, &d);
            if (!CHECK(p != NULL)) printf("  %s: %s\n", NETWORKS[i].name, mlc_error(ctx));
            else check_file(ctx, p, x, b.path);
            if (cast) mlc_autocast_end(ctx);
            mlc_plan_free(p);
            mlc_module_free(net);
        }
    box_close(&b);
}

/* Two networks with the same names; outputs that are inputs, parameters, or empty.              */
static mlc_status odd_outputs(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    mlc_module *const *nets = (mlc_module *const *)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_forward(nets[1], mlc_forward(nets[0], in[0]));
    out[1] = in[0];
    out[2] = mlc_module_param(nets[1], "weight");
    out[3] = mlc_slice(in[0], 0, 1, 1, 1);
    out[4] = mlc_concat((mlc_tensor *[]){out[3], in[0], mlc_relu(out[3])}, 3, 0);
    out[5] = mlc_slice(out[2], 1, 1, 3, 1);
    return mlc_ctx_status(ctx);
}

TEST(plan, files_of_odd_outputs)
{
    ONLY_ON_HOST();
    const box     b = box_open_fast("plan.safetensors");
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *nets[2] = {mlc_nn_linear(ctx, 4, 4), mlc_nn_linear(ctx, 4, 4)};
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 5, -1, 1);
    mlc_plan_desc d = with(PLAIN);
    d.n_out = 6;
    for (int i = 0; i < 2; i++) CHECK_EQ(mlc_module_build(nets[i]), MLC_OK);
    for (int i = 0; i < 2; i++) mlc_eval_begin(nets[i]);
    mlc_plan *p = mlc_plan_capture_fn(ctx, odd_outputs, nets, &x, 1, &d);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan *q = mlc_plan_load(ctx, b.path, &d);
    CHECK_EQ(mlc_plan_run(q, &x, 1, NULL, 0), MLC_OK);
    for (int32_t i = 0; i < d.n_out && q != NULL; i++)
        CHECK(apart(mlc_plan_output(q, i), mlc_plan_output(p, i)) == 0);
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path);
    CHECK_STR(mlc_safetensors_name(f, 1), "1#weight");
    mlc_safetensors_close(f);
    for (int i = 0; i < 2; i++) mlc_eval_end(nets[i]);
    mlc_plan_free(p);
    mlc_plan_free(q);
    for (int i = 0; i < 2; i++) mlc_module_free(nets[i]);
    box_close(&b);
}

/* ---- every operation that a file has a form of */

/* Names of operations in files that the groups must have. */
static const char *const NAMES[] = {
#define X(name) #name, #name "_",
    UNARIES(X) SCALARS(X) BINARIES(X)
#undef X
#define X(name) "whole." #name, "whole." #name "_",
    WHOLES(X) WHOLE_SCALARS(X)
#undef X
#define X(name) #name, #name "_scalar",
    COMPARISONS(X)
#undef X
#define X(name) #name,
    REDUCTIONS(X)
#undef X
    "whole.neg", "whole.neg_", "whole.abs", "whole.abs_", "leaky_relu_x", "leaky_relu_x_", "elu_x",
    "elu_x_", "clamp", "clamp_", "prelu", "glu", "logical_and", "logical_or", "logical_xor",
    "logical_not", "isnan", "isinf", "isfinite", "where", "masked_fill", "masked_fill_", "fill_",
    "zero_", "copy_", "norm", "var", "std", "argmax", "cumsum", "cumprod", "softmax", "log_softmax",
    "layer_norm", "rms_norm", "sort", "argsort", "topk", "concat", "copy", "cast", "channels_last",
    "flip", "pad", "diag", "tril", "triu", "gather", "index_select", "take", "scatter",
    "scatter_add", "scatter_", "scatter_add_", "embedding", "view", "steps", "constant", "matmul",
    "linear",
#ifndef MLC_NO_ATTENTION
    "attention", "rotary",
#endif
#ifndef MLC_NO_RECURRENT
    "rnn",
#endif
#ifndef MLC_NO_VISION
    "conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool",
    "interpolate", "batch_norm", "group_norm", "instance_norm",
#endif
#ifndef MLC_NO_SKETCH
    "sketch", "sklinear",
#ifndef MLC_NO_ATTENTION
    "features_attention",
#endif
#endif
};

/* Marks the operations of a file. */
static void names_of(mlc_ctx *ctx, const char *path, bool *seen)
{
    mlc_safetensors *f = mlc_safetensors_open(ctx, path);
    const char      *text = mlc_safetensors_metadata(f, "graph");
    for (int i = 0; text != NULL && i < COUNT(NAMES); i++) {
        char want[60];
        snprintf(want, sizeof want, "{\"op\":\"%s\",", NAMES[i]);
        seen[i] = seen[i] || strstr(text, want) != NULL;
    }
    mlc_safetensors_close(f);
}

/* A group against the plan of its file, in a context of its own. */
static void check_group(int g, const char *path, bool *seen)
{
    mlc_ctx            *ctx = test_ctx();
    const mlc_ctx_desc  c = test_desc();
    mlc_ctx            *other = mlc_ctx_create(&c);
    mlc_tensor         *in[4], *again[4], *out[64];
    mlc_plan_desc       d = with(PLAIN);
    group_inputs(ctx, in);
    group_inputs(other, again);
    operands o = {ctx, in[0], in[1], in[2], in[3], out};
    mlc_no_grad_begin(ctx);
    GROUPS[g].make(&o);
    d.n_out = (int32_t)(o.out - out);
    mlc_plan *p = mlc_plan_capture_fn(ctx, grouped, (void *)(uintptr_t)&GROUPS[g].make, in, 4, &d);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_plan_save(p, path), MLC_OK);
    names_of(ctx, path, seen);
    mlc_plan *q = mlc_plan_load(other, path, &d);
    if (q == NULL || mlc_plan_run(q, again, 4, NULL, 0) != MLC_OK) {
        CHECK(false);
        printf("  group %d: %s %s\n", g, mlc_error(ctx), mlc_error(other));
    }
    for (int32_t i = 0; i < d.n_out && q != NULL; i++)
        if (!CHECK(apart(mlc_plan_output(q, i), out[i]) == 0)) printf("  group %d, %d\n", g, i);
    mlc_no_grad_end(ctx);
    mlc_plan_free(p);
    mlc_plan_free(q);
    mlc_ctx_free(other);
}

TEST(plan, files_of_every_operation)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("plan.safetensors");
    bool      seen[COUNT(NAMES)] = {false};
    for (int g = 0; g < COUNT(GROUPS); g++) check_group(g, b.path, seen);
    for (int i = 0; i < COUNT(NAMES); i++)
        if (!CHECK(seen[i])) printf("  no call of %s\n", NAMES[i]);
    box_close(&b);
}

/* ---- files that are wrong */

/* A loaded plan, saved again, is the same file; its parameters are its own. */
TEST(plan, files_of_loaded_plans)
{
    ONLY_ON_HOST();
    const box      b = box_open_fast("plan.safetensors");
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = cnn(ctx);
    mlc_tensor    *x = sample(ctx, &NETWORKS[1], MLC_F32, 2, 3), *y;
    mlc_plan      *p = mlc_plan_capture(net, &x, 1, NULL);
    char           again[400];
    size_t         n, m;
    snprintf(again, sizeof again, "%s.again", b.path);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan *q = mlc_plan_load(ctx, b.path, NULL);
    mlc_module_freeze(net, "*", true);
    mlc_fill_(mlc_module_param(net, "0.weight"), 0);
    CHECK_EQ(mlc_plan_run(q, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(q, 0), mlc_plan_output(p, 0)) == 0);
    CHECK_EQ(mlc_plan_save(q, again), MLC_OK);
    unsigned char *one = get_file(b.path, &n), *two = get_file(again, &m);
    CHECK(n == m && n > 0 && memcmp(one, two, n) == 0);
    y = sample(ctx, &NETWORKS[1], MLC_F32, 3, 3);
    CHECK_EQ(mlc_plan_run(q, &y, 1, NULL, 0), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "input 1 is [3,3,16,16]");
    CHECK_EQ(mlc_plan_run(q, &x, 1, NULL, 0), MLC_OK);
    mlc_plan_free(p);
    mlc_plan_free(q);
    mlc_module_free(net);
    free(one);
    free(two);
    box_close(&b);
}

/* A small plan, as a file. */
static void put_small(mlc_ctx *ctx, const char *path)
{
    mlc_module *net = mlp(ctx, 2, 3, 2);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(1, 2));
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_plan_save(p, path), MLC_OK);
    mlc_plan_free(p);
    mlc_module_free(net);
}

/* The file with `from` of the graph replaced by `to`, in another file. tensors: of the list; size:
 * NULL, or the text of the axis that is free.                                                   */
static void put_sized(mlc_ctx *ctx, const char *path, const char *from, const char *to,
                      const char *version, int64_t tensors, const char *size, const char *changed)
{
    mlc_safetensors *f = mlc_safetensors_open(ctx, path);
    const char      *graph = mlc_safetensors_metadata(f, "graph"), *at = strstr(graph, from);
    char            *text = malloc(strlen(graph) + strlen(to) + 1);
    const char      *metadata[] = {"format", "mlcore plan", "version", version, "graph", text,
                                   size ? "size" : NULL, size, NULL};
    mlc_named        list[8];
    CHECK(at != NULL);
    sprintf(text, "%.*s%s%s", (int)(at - graph), graph, to, at + strlen(from));
    for (int64_t i = 0; i < tensors; i++) {
        list[i].name = mlc_safetensors_name(f, i);
        list[i].tensor = mlc_safetensors_get(f, list[i].name);
    }
    CHECK_EQ(mlc_safetensors_save(ctx, changed, list, tensors, metadata), MLC_OK);
    mlc_safetensors_close(f);
    free(text);
}

static void put_changed(mlc_ctx *ctx, const char *path, const char *from, const char *to,
                        const char *version, int64_t tensors, const char *changed)
{
    put_sized(ctx, path, from, to, version, tensors, NULL, changed);
}

static const struct {
    const char *from, *to;             /* of the graph                                          */
    const char *says;
} WRONG_GRAPHS[] = {
    {"\"op\":\"linear\"", "\"op\":\"lienar\"", "node 2 (lienar), byte"},
    {"\"op\":\"linear\"", "\"op\":\"matmul\"", "node 2 (matmul), byte"},
    {"\"in\":[0,1,2]", "\"in\":[0,1,3]", "node 2 (linear), byte"},
    {"\"in\":[0,1,2]", "\"in\":[0,1,-1]", "out of range"},
    {"\"in\":[0,1,2]", "\"in\":[0]", "another number of inputs"},
    {"\"in\":[0,1,2]", "\"in\":[0,1]", "node 2 (linear): 2 inputs, by its arguments there are 3"},
    {"\"in\":[0,1,2]", "\"in\":[1,0,2]", "node 2 (linear): linear: b must be [1] for x [3,2]"},
    {"\"bias\":true", "\"bias\":1", "true or false is missing"},
    {"\"bias\":true,", "", "an argument is missing"},
    {"\"bias\":true", "\"bias\":true,\"bias\":true", "an argument twice"},
    {"\"bias\":true", "\"bios\":true", "an unknown argument"},
    {"\"act\":", "\"act\":99999999999", "out of range"},
    {"\"act\":", "\"act\":7", "unknown activation 7"},
    {"\"dtype\":\"F32\",\"act", "\"dtype\":\"F23\",\"act", "an unknown dtype"},
    {"\"dtype\":\"F32\",\"act", "\"dtype\":\"F64\",\"act", "node 2 (linear): f32 rounded to f64"},
    {"\"shape\":[1,2]", "\"shape\":[1,3]", "node 2 (linear): linear: x [1,3]"},
    {"\"shape\":[1,2]", "\"shape\":[1,2,1,1,1,1,1,1,1]", "more axes than a tensor may have"},
    {"\"shape\":[1,2]", "\"shape\":[4611686018427387904,2]", "too large"},
    {"\"name\":\"0.weight\"", "\"name\":\"0.weigth\"", "'0.weigth', which the file lacks"},
    {"\"name\":\"0.weight\"", "\"name\":\"0.bias\"", "reads the tensor '0.bias' a second time"},
    {"\"op\":\"param\"", "\"op\":\"constant\"", "a constant that is no row"},
    {"\"outputs\":[", "\"outputs\":[99,", "out of range"},
    {"\"outputs\"", "\"output\"", "another key"},
    {"]}", "]},", "'{' is missing"},
};

static const char *const WRONG_SIZES[] = {"0 0 3", "0 0 3 4", "0 0 3 0", "0 0 -3 1", "0 0 3 2 ",
                                          "0 9 3 1", "7 0 3 1"};

TEST(plan, wrong_files)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("plan.safetensors");
    mlc_ctx  *ctx = test_ctx();
    char      other[400];
    snprintf(other, sizeof other, "%s.other", b.path);
    put_small(ctx, b.path);
    for (int i = 0; i < COUNT(WRONG_GRAPHS); i++) {
        const char *from = WRONG_GRAPHS[i].from;
        mlc_memory  before, after;
        mlc_scope_begin(ctx);
        put_changed(ctx, b.path, from, WRONG_GRAPHS[i].to, "1", 4, other);
        mlc_memory_trim(ctx);
        mlc_memory_info(ctx, &before);
        CHECK(mlc_plan_load(ctx, other, NULL) == NULL);
        mlc_memory_info(ctx, &after);
        CHECK_HAS(mlc_error(ctx), WRONG_GRAPHS[i].says);
        CHECK(mlc_ctx_status(ctx) != MLC_OK && mlc_ctx_status(ctx) != MLC_ERR_INTERNAL);
        CHECK_EQ(after.now[MLC_MEM_PARAM], before.now[MLC_MEM_PARAM]);
        mlc_error_clear(ctx);
        mlc_scope_end(ctx);
    }
    put_changed(ctx, b.path, "linear", "linear", "2", 4, other);
    CHECK(mlc_plan_load(ctx, other, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "a plan of version 2; this mlcore reads version 1");
    put_changed(ctx, b.path, "linear", "linear", "1", 3, other);
    CHECK(mlc_plan_load(ctx, other, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "which the file lacks");
    for (int i = 0; i < COUNT(WRONG_SIZES); i++) {
        put_sized(ctx, b.path, "linear", "linear", "1", 4, WRONG_SIZES[i], other);
        CHECK(mlc_plan_load(ctx, other, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_IO, i < 5 ? "a size that is not input, axis, number and least"
                                           : "which it does not have");
    }
    put_sized(ctx, b.path, "linear", "linear", "1", 4, "0 0 1 1", other);
    mlc_plan_free(mlc_plan_load(ctx, other, NULL));
    CHECK_OK(ctx);
    CHECK_EQ(mlc_safetensors_save(ctx, other, NULL, 0, NULL), MLC_OK);
    CHECK(mlc_plan_load(ctx, other, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "no plan");
    box_close(&b);
}

#if !defined(MLC_NO_SKETCH) && !defined(MLC_NO_ATTENTION)
/* Inputs of attention by features that do not fit one another.                                  */
TEST(plan, wrong_files_of_features)
{
    ONLY_ON_HOST();
    static const char *const wrong[][3] = {
        {"\"shape\":[2,2,3,6]", "\"shape\":[2,2,4,6]", "q f32 [2,2,2,3,12], k f32"},
        {"\"shape\":[2,2,3,5]", "\"shape\":[2,1,3,5]", "k f32 [2,2,3,12], v f32 [2,1,3,5] and 0"},
        {"\"shape\":[2,2,3,5]", "\"shape\":[2,6,5]", "k f32 [2,2,3,12], v f32 [2,6,5] and 0"},
        {"\"F32\",\"shape\":[2,2,3,5]", "\"F64\",\"shape\":[2,2,3,5]",
         "v f64 [2,2,3,5] and 0 shifts do not fit"},
        {"[16,7,2,15,14]", "[16,7,2,14,15]", "v f32 [2,2,3,5] and 2 shifts do not fit"},
        {"[16,7,2,15,14]", "[16,7,2,15]", "and 1 shifts do not fit"}};
    const box           b = box_open_fast("plan.safetensors");
    mlc_ctx            *ctx = test_ctx();
    const mlc_plan_desc d = with(PLAIN);
    mlc_tensor         *in[3];
    char                other[400];
    snprintf(other, sizeof other, "%s.other", b.path);
    features_inputs(ctx, 3, in);
    for (int i = 0; i < COUNT(wrong); i++) {
        mlc_features_kernel kernel = i < 4 ? MLC_FEATURES_RELU : MLC_FEATURES_SOFTMAX;
        mlc_plan           *p = mlc_plan_capture_fn(ctx, by_features, &kernel, in, 3, &d);
        CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
        mlc_plan_free(p);
        put_changed(ctx, b.path, wrong[i][0], wrong[i][1], "1", 1, other);
        CHECK(mlc_plan_load(ctx, other, NULL) == NULL);
        CHECK_HAS(mlc_error(ctx), "(features_attention)");
        CHECK_ERROR(ctx, MLC_ERR_IO, wrong[i][2]);
    }
    box_close(&b);
}
#endif

/* Cut off at any byte, or with any bit of the header changed, a file is an error or a plan.     */
TEST(plan, damaged_files)
{
    ONLY_ON_HOST();
    const box      b = box_open_fast("plan.safetensors");
    mlc_ctx       *ctx = test_ctx();
    size_t         n;
    put_small(ctx, b.path);
    unsigned char *bytes = get_file(b.path, &n);
    for (size_t i = 0; i < n; i++) {
        put_file(b.path, bytes, i);
        CHECK(mlc_plan_load(ctx, b.path, NULL) == NULL);
        CHECK(mlc_ctx_status(ctx) == MLC_ERR_IO && mlc_error(ctx)[0] != 0);
        mlc_error_clear(ctx);
    }
    for (size_t i = 0; i < 8 * n; i++) {
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        put_file(b.path, bytes, n);
        mlc_plan *p = mlc_plan_load(ctx, b.path, NULL);
        CHECK((p != NULL) == (mlc_ctx_status(ctx) == MLC_OK));
        CHECK(mlc_ctx_status(ctx) != MLC_ERR_INTERNAL);
        mlc_error_clear(ctx);
        mlc_plan_free(p);
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    free(bytes);
    box_close(&b);
}

static mlc_status unsaved(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    mlc_tensor *x = in[0];
    switch (*(const int *)user) {
        case 0: out[0] = mlc_add(x, mlc_linspace(ctx, MLC_F32, 0, 1, 4)); break;
        case 1: out[0] = mlc_mul(mlc_eye(ctx, MLC_F32, 4, 4), x); break;
        case 2: out[0] = mlc_mse_loss(x, mlc_relu(x)); break;
        default:
            out[0] = mlc_relu(x);
            mlc_copy_into(out[0], x);
    }
    return mlc_ctx_status(ctx);
}

TEST(plan, what_has_no_form_in_a_file)
{
    ONLY_ON_HOST();
    static const char *const says[] = {"'linspace' makes a tensor", "'eye' makes a tensor",
                                       "'mse_loss' has no form", "writes to a tensor outside"};
    const box   b = box_open_fast("plan.safetensors");
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    for (int i = 0; i < COUNT(says); i++) {
        mlc_plan *p = mlc_plan_capture_fn(ctx, unsaved, &i, &x, 1, NULL);
        CHECK_EQ(mlc_plan_save(p, b.path), MLC_ERR_UNSUPPORTED);
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, says[i]);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_plan_free(p);
    }
    mlc_module *net = small_mlp(ctx);
    x = sample(ctx, &NETWORKS[0], MLC_F32, 2, 3);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_plan_save(p, ""), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no path");
    CHECK_EQ(mlc_plan_save(NULL, b.path), MLC_ERR_ARG);
    CHECK(mlc_plan_load(NULL, b.path, NULL) == NULL);
    mlc_module_free(net);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the network was freed");
    mlc_plan_free(p);
    CHECK(mlc_plan_load(ctx, b.path, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, b.path);
    box_close(&b);
}

/* A module named as constants are is one of parameters.                                         */
TEST(plan, files_of_names_that_collide)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("plan.safetensors");
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 4), 1, -1, 1);
    mlc_module *root = mlc_nn_sequential(ctx);
    mlc_module_add_named(root, "constant", mlc_nn_linear(ctx, 4, 4));
    mlc_plan *p = mlc_plan_capture(root, &x, 1, NULL);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
    mlc_plan *q = mlc_plan_load(ctx, b.path, NULL);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_plan_run(q, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(q, 0), mlc_plan_output(p, 0)) == 0);
    mlc_plan_free(p);
    mlc_plan_free(q);
    box_close(&b);
}

/* A copy that no file has, in a scope whose error is not looked at.                             */
static mlc_status loses(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                        mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_relu(in[0]);
    mlc_scope_begin(ctx);
    mlc_copy_into(out[0], mlc_exp(in[0]));
    mlc_scope_end(ctx);
    return mlc_ctx_status(ctx);
}

TEST(plan, no_file_of_what_was_lost)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("plan.safetensors");
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 4), 1, -1, 1);
    mlc_plan   *p = mlc_plan_capture_fn(ctx, loses, NULL, &x, 1, NULL);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "plan_save: ");
    CHECK(mlc_plan_load(ctx, b.path, NULL) == NULL);
    mlc_error_clear(ctx);
    mlc_plan_free(p);
    box_close(&b);
}

TEST(plan, files_and_autocast)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("plan.safetensors");
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, 8, 16, 4);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 8), 1, -1, 1);
    mlc_autocast_begin(ctx, MLC_BF16);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_OK);
    mlc_autocast_end(ctx);
    CHECK_EQ(mlc_plan_save(p, b.path), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "plan_save: autocast is another than at the capture");
    mlc_plan *q = mlc_plan_load(ctx, b.path, NULL);
    mlc_autocast_begin(ctx, MLC_BF16);
    CHECK_EQ(mlc_plan_save(q, b.path), MLC_OK);
    mlc_autocast_end(ctx);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_plan_run(q, &x, 1, NULL, 0), MLC_OK);
    CHECK(apart(mlc_plan_output(q, 0), mlc_plan_output(p, 0)) == 0);
    mlc_plan_free(p);
    mlc_plan_free(q);
    box_close(&b);
}
