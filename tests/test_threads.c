/* test_threads.c -- tests of IMPL.THREADS: bits do not depend on threads, contexts are apart */
#include "mlc_test.h"

#ifndef MLC_NO_THREADS

#include <pthread.h>

static mlc_ctx *threads_ctx(int32_t threads)
{
    mlc_ctx_desc d = test_desc();
    d.threads = threads;
    d.seed = 3;
    return mlc_ctx_create(&d);
}

/* ---- large operations, so that loops are split -------------------------------------------- */

#define MOST 400000

typedef mlc_tensor *(*large_op)(mlc_ctx *ctx);

static mlc_tensor *op_matmul(mlc_ctx *ctx)
{
    return mlc_matmul(test_rand(ctx, MLC_F32, mlc_dims2(301, 263), 1, -1, 1),
                      test_rand(ctx, MLC_F32, mlc_dims2(263, 517), 2, -1, 1));
}

static mlc_tensor *op_matmul_turned(mlc_ctx *ctx)
{
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims3(3, 97, 83), 1, -1, 1);
    return mlc_matmul(mlc_transpose(a, 1, 2), a);
}

static mlc_tensor *op_gelu(mlc_ctx *ctx)
{
    return mlc_gelu(test_rand(ctx, MLC_F32, mlc_dims2(401, 997), 3, -3, 3));
}

static mlc_tensor *op_add_turned(mlc_ctx *ctx)
{
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(601, 601), 4, -3, 3);
    return mlc_add(a, mlc_transpose(a, 0, 1));
}

static mlc_tensor *op_sum(mlc_ctx *ctx)
{
    return mlc_sum(test_rand(ctx, MLC_F32, mlc_dims1(399989), 5, -1, 1), mlc_dims0(), false);
}

static mlc_tensor *op_sum_rows(mlc_ctx *ctx)
{
    return mlc_sum(test_rand(ctx, MLC_F32, mlc_dims2(3989, 100), 6, -1, 1), mlc_dims1(0), false);
}

static mlc_tensor *op_max(mlc_ctx *ctx)
{
    return mlc_max(test_rand(ctx, MLC_F32, mlc_dims2(401, 997), 7, -1, 1), mlc_dims1(1), false);
}

static mlc_tensor *op_randn(mlc_ctx *ctx)
{
    return mlc_randn(ctx, MLC_F32, mlc_dims1(399989));
}

static mlc_tensor *op_dropout(mlc_ctx *ctx)
{
    return mlc_dropout(test_rand(ctx, MLC_F32, mlc_dims1(399989), 8, -1, 1), 0.3);
}

/* Gradients of a layer, too: its three products and the column sums.                          */
static mlc_tensor *op_linear_grad(mlc_ctx *ctx)
{
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(257, 300), 9, -1, 1);
    mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(311, 300), 10, -1, 1);
    mlc_tensor *b = test_rand(ctx, MLC_F32, mlc_dims1(311), 11, -1, 1);
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(b, true);
    mlc_backward(mlc_mean(mlc_relu(mlc_linear(x, w, b)), mlc_dims0(), false));
    return mlc_add(mlc_grad(w), mlc_reshape(mlc_grad(b), mlc_dims2(311, 1)));
}

static int64_t run_large(large_op op, int32_t threads, float *out)
{
    mlc_ctx    *ctx = threads_ctx(threads);
    mlc_tensor *y = op(ctx);
    int64_t     n = mlc_numel(y);
    CHECK_OK(ctx);
    if (!CHECK(n > 0 && n <= MOST) ||
        !CHECK_EQ(mlc_read(y, out, (size_t)n * mlc_dtype_bytes(y->dtype)), MLC_OK))
        n = 0;
    mlc_ctx_free(ctx);
    return n;
}

TEST(threads, operations_have_the_same_bits_for_1_2_and_3_threads)
{
    static const large_op ops[] = {op_matmul, op_matmul_turned, op_gelu, op_add_turned, op_sum,
                                   op_sum_rows, op_max, op_randn, op_dropout, op_linear_grad};
    static float one[2 * MOST], more[2 * MOST];
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        int64_t n = run_large(ops[i], 1, one);
        for (int32_t threads = 2; threads <= 3; threads++) {
            CHECK_EQ(run_large(ops[i], threads, more), n);
            if (!CHECK(memcmp(one, more, (size_t)n * sizeof *one) == 0))
                printf("  operation %d, %d threads\n", (int)i, (int)threads);
        }
    }
}

/* ---- training ------------------------------------------------------------------------------ */

#define WEIGHTS (20 * 129 + 129 + 129 * 7 + 7)

typedef struct training {
    int32_t    threads, steps;
    mlc_status status;
    float      weights[WEIGHTS];
} training;

static mlc_module *training_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 20, 129));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.2));
    mlc_module_add(net, mlc_nn_linear(ctx, 129, 7));
    return net;
}

static void training_read(training *t, mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    int64_t        at = 0;
    while (mlc_param_next(&it)) {
        int64_t n = mlc_numel(it.tensor);
        if (at + n > WEIGHTS ||
            mlc_read(it.tensor, t->weights + at, (size_t)n * sizeof(float)) != MLC_OK)
            t->status = MLC_ERR_INTERNAL;
        at += n;
    }
    if (at != WEIGHTS)
        t->status = MLC_ERR_INTERNAL;
}

/* A thread's body: makes no check itself, since checks belong to the test's thread.           */
static void *training_run(void *arg)
{
    training   *t = (training *)arg;
    mlc_ctx    *ctx = threads_ctx(t->threads);
    mlc_module *net = training_net(ctx);
    mlc_optim  *opt = mlc_adamw(net, 1e-2);
    mlc_tensor *x = mlc_randn(ctx, MLC_F32, mlc_dims2(211, 20));
    mlc_tensor *y = mlc_argmax(mlc_slice(x, 1, 0, 7, 1), 1, false);
    t->status = mlc_ctx_status(ctx);
    for (int i = 0; i < t->steps && t->status == MLC_OK; i++) {
        mlc_scope_begin(ctx);
        mlc_backward(mlc_cross_entropy(mlc_forward(net, x), y));
        mlc_optim_step(opt);
        t->status = mlc_scope_end(ctx);
    }
    if (t->status == MLC_OK)
        training_read(t, net);
    mlc_ctx_free(ctx);
    return NULL;
}

TEST(threads, weights_have_the_same_bits_after_50_steps_with_1_2_and_3_threads)
{
    static training one = {1, 50, MLC_OK, {0}}, more = {2, 50, MLC_OK, {0}};
    training_run(&one);
    CHECK_EQ(one.status, MLC_OK);
    for (more.threads = 2; more.threads <= 3; more.threads++) {
        memset(more.weights, 0, sizeof more.weights);
        training_run(&more);
        CHECK_EQ(more.status, MLC_OK);
        CHECK(memcmp(one.weights, more.weights, sizeof one.weights) == 0);
    }
}

TEST(threads, two_contexts_train_side_by_side)
{
    static training alone = {2, 10, MLC_OK, {0}}, pair[2] = {{2, 10, MLC_OK, {0}},
                                                            {2, 10, MLC_OK, {0}}};
    pthread_t other;
    training_run(&alone);
    if (!CHECK_EQ(pthread_create(&other, NULL, training_run, &pair[0]), 0))
        return;
    training_run(&pair[1]);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_EQ(alone.status, MLC_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pair[i].status, MLC_OK);
        CHECK(memcmp(alone.weights, pair[i].weights, sizeof alone.weights) == 0);
    }
}

/* ---- another number of threads -------------------------------------------------------------- */

/* As many as were asked for; one where mlcore has no threads.                                  */
static int32_t threads_there(int32_t asked)
{
#ifdef _WIN32
    return asked > 1 ? 1 : asked;
#else
    return asked;
#endif
}

/* Losses of a few steps, with another number of threads before each one.                       */
static bool steps_with(const int32_t *threads, int steps, float *loss)
{
    mlc_ctx    *ctx = threads_ctx(1);
    mlc_module *net = training_net(ctx);
    mlc_optim  *opt = mlc_adamw(net, 1e-2);
    mlc_tensor *x = mlc_randn(ctx, MLC_F32, mlc_dims2(211, 20));
    mlc_tensor *y = mlc_argmax(mlc_slice(x, 1, 0, 7, 1), 1, false);
    bool        ok = true;
    for (int i = 0; i < steps; i++) {
        ok = CHECK_EQ(mlc_ctx_set_threads(ctx, threads[i]), MLC_OK) &&
             CHECK_EQ(mlc_ctx_threads(ctx), threads_there(threads[i])) && ok;
        mlc_scope_begin(ctx);
        mlc_tensor *l = mlc_cross_entropy(mlc_forward(net, x), y);
        mlc_backward(l);
        mlc_optim_step(opt);
        loss[i] = (float)mlc_item(l);
        ok = CHECK_EQ(mlc_scope_end(ctx), MLC_OK) && ok;
    }
    mlc_ctx_free(ctx);
    return ok;
}

TEST(threads, another_number_of_them_at_any_time_changes_no_bit)
{
    static const int32_t one[8] = {1, 1, 1, 1, 1, 1, 1, 1}, some[8] = {1, 3, 3, 2, 1, 5, 4, 2};
    float want[8], got[8];
    if (CHECK(steps_with(one, 8, want)) && CHECK(steps_with(some, 8, got)))
        CHECK(memcmp(got, want, sizeof got) == 0);
}

TEST(threads, a_number_below_0_is_refused_and_0_is_the_default)
{
    mlc_ctx     *ctx = test_own(threads_ctx(3));
    mlc_ctx_desc d = test_desc();
    d.threads = 0;
    CHECK_EQ(mlc_ctx_set_threads(NULL, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_ctx_set_threads(ctx, -2), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "ctx_set_threads: -2 threads; it takes 1 or more, or 0 for the");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_ctx_threads(ctx), threads_there(3));
    CHECK_EQ(mlc_ctx_set_threads(ctx, 0), MLC_OK);
    CHECK_EQ(mlc_ctx_threads(ctx), mlc_ctx_threads(test_own(mlc_ctx_create(&d))));
}

/* On most machines far more than cores: each loop ends, and with the same bits.                */
TEST(threads, thirty_two_of_them_do_the_same_on_any_number_of_cores)
{
    static training one = {1, 10, MLC_OK, {0}}, many = {0, 10, MLC_OK, {0}};
    many.threads = 32;
    training_run(&one);
    training_run(&many);
    CHECK_EQ(one.status, MLC_OK);
    CHECK_EQ(many.status, MLC_OK);
    CHECK(memcmp(one.weights, many.weights, sizeof one.weights) == 0);
}

/* ---- coming and going ---------------------------------------------------------------------- */

typedef struct storm { int rounds; int64_t right; } storm;

static void *storm_run(void *arg)
{
    storm *s = (storm *)arg;
    for (int i = 0; i < s->rounds; i++) {
        mlc_ctx    *ctx = threads_ctx(1 + i % 4);
        mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(i % 3 ? 100000 : 10), 1);
        if (i % 5 == 0 || mlc_item(mlc_sum(mlc_exp(x), mlc_dims0(), false)) > 0)
            s->right += ctx != NULL && mlc_ctx_status(ctx) == MLC_OK;
        mlc_ctx_free(ctx);
    }
    return NULL;
}

TEST(threads, contexts_come_and_go_in_a_storm)
{
    storm     a = {60, 0}, b = {60, 0};
    pthread_t other;
    if (!CHECK_EQ(pthread_create(&other, NULL, storm_run, &a), 0))
        return;
    storm_run(&b);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_EQ(a.right, 60);
    CHECK_EQ(b.right, 60);
}

TEST(threads, many_small_loops_follow_each_other)
{
    mlc_ctx    *ctx = test_own(threads_ctx(3));
    mlc_tensor *x = mlc_zeros(ctx, MLC_F64, mlc_dims1(40000));
    for (int i = 0; i < 300; i++) {
        mlc_scope_begin(ctx);
        mlc_copy_into(x, mlc_add_scalar(x, 1));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(mlc_item(mlc_sum(x, mlc_dims0(), false)) == 300.0 * 40000);
}

/* ---- two threads in one context ------------------------------------------------------------ */

typedef struct shared {
    mlc_ctx    *ctx;
    mlc_tensor *x;
    mlc_status  begun, ended, status;  /* what the second thread got                           */
    bool        made, applied, clears;
    char        text[400];
} shared;

/* What the second thread does while the first one is in a forward. */
static void *second_thread(void *user)
{
    shared *s = (shared *)user;
    s->begun = mlc_scope_begin(s->ctx);
    s->made = mlc_ones(s->ctx, MLC_F32, mlc_dims1(3)) != NULL;
    s->applied = mlc_exp(s->x) != NULL;
    s->ended = mlc_scope_end(s->ctx);
    s->status = mlc_ctx_status(s->ctx);
    snprintf(s->text, sizeof s->text, "%s", mlc_error(s->ctx));
    if (s->clears) mlc_error_clear(s->ctx);
    return NULL;
}

#ifdef MLC_DEBUG
/* A forward that lets another thread in, from begin to end. */
static mlc_tensor *lets_in(void *user, mlc_tensor *x)
{
    pthread_t other;
    if (CHECK_EQ(pthread_create(&other, NULL, second_thread, user), 0)) pthread_join(other, NULL);
    return mlc_mul_scalar(x, 2);
}

TEST(threads, a_second_thread_in_a_context_is_told_so_and_touches_nothing)
{
    static const char text[] = "another thread is in forward of the same context, which one thread "
                               "at a time may use; make a context for each thread";
    shared      s;
    mlc_ctx    *ctx = threads_ctx(1);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    memset(&s, 0, sizeof s);
    s.ctx = ctx;
    s.x = x;
    mlc_module *net = mlc_nn_lambda(ctx, lets_in, &s);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(s.begun, MLC_ERR_STATE);
    CHECK_EQ(s.ended, MLC_ERR_STATE);
    CHECK_EQ(s.status, MLC_ERR_STATE);
    CHECK(!s.made && !s.applied);
    CHECK_HAS(s.text, "exp: ");
    CHECK_HAS(s.text, text);
    if (CHECK(y != NULL)) CHECK_NEAR(mlc_item_at(y, mlc_dims1(3)), 2.0, 0);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), text);
    mlc_error_clear(ctx);
    CHECK(mlc_exp(x) != NULL);
    mlc_ctx_free(ctx);
}

typedef struct stepping { mlc_optim *opt; mlc_status flushed, stepped; } stepping;

static void *second_step(void *user)
{
    stepping *s = (stepping *)user;
    s->flushed = mlc_optim_flush(s->opt);
    s->stepped = mlc_optim_step_with(s->opt, NULL, NULL, NULL);
    return NULL;
}

static mlc_tensor *loss_lets_in(void *user)
{
    pthread_t other;
    if (CHECK_EQ(pthread_create(&other, NULL, second_step, user), 0)) pthread_join(other, NULL);
    return NULL;
}

TEST(threads, a_second_thread_during_a_step_that_makes_its_loss_is_told_so)
{
    stepping    s;
    mlc_ctx    *ctx = threads_ctx(1);
    s.opt = mlc_sgd(mlc_nn_linear(ctx, 2, 2), 0.1);
    s.flushed = s.stepped = MLC_OK;
    CHECK_EQ(mlc_optim_step_with(s.opt, loss_lets_in, &s, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "optim_step_with: the loss is NULL");
    CHECK_EQ(s.flushed, MLC_ERR_STATE);
    CHECK_EQ(s.stepped, MLC_ERR_STATE);
    mlc_error_clear(ctx);
    mlc_ctx_free(ctx);
}

/* A forward that fails, and lets another thread in. */
static mlc_tensor *fails_and_lets_in(void *user, mlc_tensor *x)
{
    mlc_reshape(x, mlc_dims1(5));
    lets_in(user, x);
    return NULL;
}

TEST(threads, a_second_thread_clears_its_own_error_alone)
{
    shared   s;
    mlc_ctx *ctx = threads_ctx(1);
    memset(&s, 0, sizeof s);
    s.ctx = ctx;
    s.clears = true;
    s.x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    mlc_module *net = mlc_nn_lambda(ctx, fails_and_lets_in, &s);
    CHECK(mlc_forward(net, s.x) == NULL);
    CHECK_EQ(s.status, MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "reshape: ");
    CHECK(mlc_ctx_status(ctx) != MLC_OK);
    mlc_error_clear(ctx);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
}
#endif

TEST(threads, a_context_goes_from_one_thread_to_another_between_two_calls)
{
    shared      s;
    pthread_t   other;
    mlc_ctx    *ctx = threads_ctx(2);
    memset(&s, 0, sizeof s);
    s.ctx = ctx;
    mlc_scope_begin(ctx);              /* also within a scope                                  */
    s.x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    if (CHECK_EQ(pthread_create(&other, NULL, second_thread, &s), 0)) pthread_join(other, NULL);
    CHECK_EQ(s.begun, MLC_OK);
    CHECK_EQ(s.ended, MLC_OK);
    CHECK_EQ(s.status, MLC_OK);
    CHECK(s.made && s.applied);
    CHECK_STR(s.text, "");
    CHECK(mlc_exp(s.x) != NULL);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
}

#else

TEST(threads, without_threads_a_context_has_one)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_ctx_threads(ctx), 1);
    CHECK_EQ(mlc_ctx_set_threads(ctx, 3), MLC_OK);
    CHECK_EQ(mlc_ctx_threads(ctx), 1);
}

#endif /* MLC_NO_THREADS */
