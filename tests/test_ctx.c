/* test_ctx.c -- tests of API.CTX: creation, errors, scopes, memory, random streams */
#include "mlc_test.h"

/* ---- an allocator that counts, and can fail ------------------------------------------------ */

typedef struct counter {
    int64_t calls, live, fail_at;      /* fail_at: this call and all later ones; 0: none       */
} counter;

static void *counter_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = (counter *)user;
    void    *p;
    c->calls++;
    if (c->fail_at != 0 && c->calls >= c->fail_at)
        return NULL;
    p = test_aligned_alloc(align, bytes);
    if (p != NULL) {
        memset(p, 0xa5, bytes);        /* nothing may count on zeros                           */
        c->live += (int64_t)bytes;
    }
    return p;
}

static void counter_release(void *user, void *ptr, size_t bytes)
{
    counter *c = (counter *)user;
    c->live -= (int64_t)bytes;
    test_aligned_free(ptr);
}

static mlc_ctx_desc counted_desc(counter *c)
{
    mlc_ctx_desc d = test_desc();
    memset(c, 0, sizeof *c);
    d.allocator.user = c;
    d.allocator.alloc = counter_alloc;
    d.allocator.release = counter_release;
    return d;
}

/* ---- a small training program -------------------------------------------------------------- */

typedef struct program {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    mlc_tensor *x, *y;
} program;

static mlc_status program_setup(program *p, mlc_ctx *ctx)
{
    static const double labels[9] = {0, 1, 2, 0, 1, 2, 0, 1, 2};
    mlc_module *first = mlc_nn_linear(ctx, 5, 33), *second = mlc_nn_linear(ctx, 33, 3);
    p->ctx = ctx;
    p->net = mlc_nn_sequential(ctx);
    mlc_module_add(p->net, first);
    mlc_module_add(p->net, mlc_nn_relu(ctx));
    mlc_module_add(p->net, mlc_nn_dropout(ctx, 0.1));
    mlc_module_add(p->net, second);
    p->opt = mlc_adamw(p->net, 1e-2);
    p->x = test_rand(ctx, MLC_F32, mlc_dims2(9, 5), 1, -1, 1);
    p->y = test_tensor(ctx, MLC_I64, mlc_dims1(9), labels);
    return mlc_ctx_status(ctx);
}

static mlc_status program_step(const program *p)
{
    mlc_scope_begin(p->ctx);
    mlc_backward(mlc_cross_entropy(mlc_forward(p->net, p->x), p->y));
    mlc_optim_step(p->opt);
    return mlc_scope_end(p->ctx);
}

/* ---- creation ------------------------------------------------------------------------------ */

TEST(ctx, null_desc_gives_all_defaults)
{
    mlc_ctx *ctx = test_own(mlc_ctx_create(NULL));
    if (!CHECK(ctx != NULL))
        return;
    CHECK_EQ(mlc_ctx_status(ctx), MLC_OK);
    CHECK_STR(mlc_error(ctx), "");
    CHECK(mlc_ctx_threads(ctx) >= 1);
    CHECK(mlc_ctx_isa(ctx) >= MLC_ISA_SCALAR);
    CHECK(mlc_ctx_on_host(ctx));
    CHECK(mlc_ctx_blas(ctx) != NULL && mlc_ctx_blas(ctx)[0] != 0);
    CHECK_STR(mlc_version(), MLC_VERSION_STRING);
}

TEST(ctx, the_desc_is_followed)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    d.threads = 3;
    d.dtype = MLC_F64;
    d.isa = MLC_ISA_SCALAR;
    ctx = test_own(mlc_ctx_create(&d));
#if !defined(MLC_NO_THREADS) && !defined(_WIN32)
    CHECK_EQ(mlc_ctx_threads(ctx), 3);
#endif
    CHECK_EQ(mlc_ctx_isa(ctx), MLC_ISA_SCALAR);
    CHECK_EQ(mlc_ctx_on_host(ctx), test_on_host());
    CHECK_EQ(mlc_module_param(mlc_nn_linear(ctx, 2, 3), "weight")->dtype, MLC_F64);
}

/* The desc says whether a CBLAS is called; results agree whoever makes them.                   */
TEST(ctx, the_desc_says_whether_a_cblas_is_called)
{
    mlc_ctx_desc d = test_desc();
    double       by[3][40 * 48];
    for (int how = MLC_BLAS_AUTO; how <= MLC_BLAS_ALWAYS; how++) {
        d.blas = (mlc_blas)how;
        mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
#ifdef MLC_USE_CBLAS
        if (how != MLC_BLAS_AUTO && test_on_host())
            CHECK_EQ(strcmp(mlc_ctx_blas(ctx), "none") != 0, how == MLC_BLAS_ALWAYS);
#else
        CHECK_STR(mlc_ctx_blas(ctx), "none");
#endif
        test_read(mlc_matmul(test_rand(ctx, MLC_F64, mlc_dims2(40, 90), 1, -1, 1),
                             test_rand(ctx, MLC_F64, mlc_dims2(90, 48), 2, -1, 1)), by[how]);
        CHECK_OK(ctx);
    }
    for (int i = 0; i < 40 * 48; i++)
        if (!CHECK_NEAR(by[MLC_BLAS_NEVER][i], by[MLC_BLAS_ALWAYS][i], 1e-13) ||
            !CHECK_NEAR(by[MLC_BLAS_NEVER][i], by[MLC_BLAS_AUTO][i], 1e-13))
            break;
}

static void check_refused(mlc_ctx_desc d, mlc_status want)
{
    mlc_status status = MLC_OK;
    d.status = &status;
    CHECK(test_own(mlc_ctx_create(&d)) == NULL);
    CHECK_EQ(status, want);
}

TEST(ctx, a_bad_desc_is_refused_with_the_reason)
{
    static char  small[256];
    counter      c;
    mlc_ctx_desc d;
    d = counted_desc(&c); d.allocator.release = NULL;
    check_refused(d, MLC_ERR_ARG);
    d = counted_desc(&c); d.allocator.alloc = NULL;
    check_refused(d, MLC_ERR_ARG);
    d = test_desc(); d.threads = -1;
    check_refused(d, MLC_ERR_ARG);
    d = test_desc(); d.dtype = MLC_I64;
    check_refused(d, MLC_ERR_ARG);
    d = test_desc(); d.isa = (mlc_isa)99;
    check_refused(d, MLC_ERR_ARG);
    d = test_desc(); d.blas = (mlc_blas)3;
    check_refused(d, MLC_ERR_ARG);
    d = test_desc(); d.device = "abacus";
    check_refused(d, MLC_ERR_DEVICE);
    d = test_desc(); d.memory = small; d.memory_bytes = sizeof small;
    check_refused(d, MLC_ERR_NOMEM);
    d = counted_desc(&c); c.fail_at = 1;
    check_refused(d, MLC_ERR_NOMEM);
}

TEST(ctx, no_context_is_an_error_not_a_crash)
{
    mlc_memory m;
    mlc_ctx_free(NULL);
    mlc_error_clear(NULL);
    mlc_memory_peak_reset(NULL);
    mlc_memory_trim(NULL);
    CHECK_EQ(mlc_ctx_status(NULL), MLC_ERR_ARG);
    CHECK(mlc_error(NULL) != NULL);
    CHECK_EQ(mlc_seed(NULL, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_scope_begin(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_scope_end(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_memory_info(NULL, &m), MLC_ERR_ARG);
    CHECK_EQ(mlc_raise(NULL, MLC_ERR_IO, "x"), MLC_ERR_IO);
    CHECK(mlc_zeros(NULL, MLC_F32, mlc_dims1(2)) == NULL);
    CHECK(mlc_nn_linear(NULL, 2, 3) == NULL);
    CHECK(!mlc_ctx_on_host(NULL));
}

/* ---- errors -------------------------------------------------------------------------------- */

static void discard_text(void *user, const char *text, size_t bytes)
{
    (void)user; (void)text; (void)bytes;
}

TEST(ctx, the_first_error_wins_and_stays_readable)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_raise(ctx, MLC_OK, "nothing"), MLC_OK);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_raise(ctx, MLC_ERR_IO, "mine: %s is %d", "x", 7), MLC_ERR_IO);
    CHECK_EQ(mlc_raise(ctx, MLC_ERR_SHAPE, "later"), MLC_ERR_SHAPE);
    CHECK_EQ(mlc_ctx_status(ctx), MLC_ERR_IO);
    CHECK_STR(mlc_error(ctx), "mine: x is 7");
    mlc_error_clear(ctx);
    CHECK_OK(ctx);
    CHECK_STR(mlc_error(ctx), "");
}

TEST(ctx, the_text_of_an_error_is_readable_until_a_scope_ends_well)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_STR(mlc_error(ctx), "");
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "one");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_IO);
    CHECK_OK(ctx);
    CHECK_STR(mlc_error(ctx), "one");
    mlc_scope_begin(ctx);
    CHECK_STR(mlc_error(ctx), "one");
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_STR(mlc_error(ctx), "");
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "two");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_IO);
    mlc_raise(ctx, MLC_ERR_VALUE, "three");
    CHECK_STR(mlc_error(ctx), "three");
    mlc_error_clear(ctx);
    CHECK_STR(mlc_error(ctx), "");
}

TEST(ctx, a_scope_of_the_librarys_own_leaves_the_text_of_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 3, 2);
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "one");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_IO);
    CHECK_EQ(mlc_summary(net, mlc_dims2(1, 3), discard_text, NULL), MLC_OK);
    CHECK_STR(mlc_error(ctx), "one");
    CHECK_EQ(mlc_summary(net, mlc_dims2(1, 4), discard_text, NULL), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "linear: x [1,4]");
    mlc_error_clear(ctx);
}

TEST(ctx, raise_may_quote_the_last_error)
{
    mlc_ctx *ctx = test_ctx();
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "the first problem");
    mlc_scope_end(ctx);
    CHECK_EQ(mlc_raise(ctx, MLC_ERR_VALUE, "mine: %s, then %s", mlc_error(ctx), mlc_error(ctx)),
             MLC_ERR_VALUE);
    CHECK_STR(mlc_error(ctx), "mine: the first problem, then the first problem");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}

TEST(ctx, one_check_at_the_end_of_a_chain_is_enough)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_tensor *z = mlc_relu(mlc_exp(mlc_matmul(a, a)));
    CHECK(z == NULL);
    CHECK(mlc_add(a, z) == NULL);
    CHECK_EQ(mlc_backward(z), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "matmul");
    CHECK_HAS(mlc_error(ctx), "[2,3]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_add(a, NULL) == NULL);   /* now nothing stands: the NULL itself is the error     */
    CHECK_HAS(mlc_error(ctx), "add");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(ctx, scope_end_returns_and_clears_what_was_raised_inside)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    mlc_raise(ctx, MLC_ERR_VALUE, "inside");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    CHECK_OK(ctx);
    CHECK_STR(mlc_error(ctx), "inside");
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(ctx, an_error_from_before_the_scope_stays)
{
    mlc_ctx *ctx = test_ctx();
    mlc_raise(ctx, MLC_ERR_ARG, "at setup");
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "inside");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "at setup");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(ctx, nested_scopes_keep_their_errors_apart)
{
    mlc_ctx *ctx = test_ctx();
    mlc_scope_begin(ctx);
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_SHAPE, "inner");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_SHAPE);
    CHECK_OK(ctx);
    mlc_raise(ctx, MLC_ERR_DTYPE, "outer");
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_DTYPE);
    CHECK_EQ(mlc_ctx_status(ctx), MLC_ERR_DTYPE);          /* raised before the inner scope    */
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_DTYPE);
    CHECK_OK(ctx);
}

TEST(ctx, scopes_out_of_balance_are_state_errors)
{
    mlc_ctx *ctx = test_ctx();
    int      depth = 0;
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    while (depth < 100 && mlc_scope_begin(ctx) == MLC_OK)
        depth++;
    CHECK_EQ(depth, 60);
    CHECK_HAS(mlc_error(ctx), "scope");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    for (; depth > 0; depth--)
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(ctx, the_end_of_a_scope_that_did_not_begin_ends_nothing)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_memory before, after;
    for (int i = 0; i < 60; i++)
        CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    mlc_zeros(ctx, MLC_F32, mlc_dims1(1003));
    mlc_memory_info(ctx, &before);
    CHECK_EQ(mlc_scope_begin(ctx), MLC_ERR_STATE);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_ACTIVATION], before.now[MLC_MEM_ACTIVATION]);
    for (int i = 0; i < 60; i++)
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
}

TEST(ctx, a_bad_label_is_found_at_scope_end)
{
    static const double labels[2] = {1, 3};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(2), labels);
    mlc_scope_begin(ctx);
    mlc_cross_entropy(x, y);
    mlc_ctx_sync(ctx);                 /* of a device that is not done yet                     */
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "label 3 at row 1");
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

typedef struct journal { int errors, warnings; char last[256]; } journal;

static void journal_write(void *user, mlc_log_level level, const char *text)
{
    journal *j = (journal *)user;
    j->errors += level == MLC_LOG_ERROR;
    j->warnings += level == MLC_LOG_WARNING;
    snprintf(j->last, sizeof j->last, "%s", text);
}

TEST(ctx, the_logger_gets_each_error_that_is_recorded)
{
    journal      j = {0, 0, ""};
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    d.log = journal_write;
    d.log_user = &j;
    ctx = test_own(mlc_ctx_create(&d));
    mlc_raise(ctx, MLC_ERR_IO, "one");
    mlc_raise(ctx, MLC_ERR_IO, "two");
    CHECK_EQ(j.errors, 1);
    CHECK_STR(j.last, "one");
}

/* ---- scopes and tensors -------------------------------------------------------------------- */

#ifndef MLC_DEBUG                      /* which fills the structs of an ended scope            */
TEST(ctx, a_tensor_whose_scope_has_ended_is_told_so)
{
    mlc_ctx *ctx = test_ctx();
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_tensor *y = mlc_sum(mlc_forward(mlc_nn_linear(ctx, 3, 2), x), mlc_dims0(), false);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(mlc_relu(x) == NULL);
    CHECK_STR(mlc_error(ctx), "relu: the scope in which a [2,3] tensor was made has ended; make it "
                              "outside of it, or take it out with mlc_keep");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK(mlc_reshape(x, mlc_dims1(6)) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "reshape: the scope in which a [2,3] tensor was made");
    CHECK(mlc_select(x, 0, 1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "select: the scope in which a [2,3] tensor was made");
    CHECK_EQ(mlc_backward(y), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "backward: the scope in which a [] tensor was made has ended");
    mlc_error_clear(ctx);
}

TEST(ctx, a_tensor_over_wrapped_memory_ends_with_its_scope)
{
    float    data[6] = {1, 2, 3, 4, 5, 6};
    mlc_ctx *ctx = test_ctx();
    if (!mlc_ctx_on_host(ctx)) {
        CHECK(true);
        return;
    }
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_wrap(ctx, MLC_F32, mlc_dims2(2, 3), NULL, data);
    mlc_tensor *view = mlc_slice(x, 1, 0, 3, 2);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(mlc_relu(x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "relu: the scope in which a [2,3] tensor was made has ended");
    mlc_error_clear(ctx);
    CHECK(mlc_exp(view) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "exp: the scope in which a [2,2] tensor was made has ended");
    mlc_error_clear(ctx);
    CHECK(data[5] == 6);
}
#endif

TEST(ctx, keep_takes_a_detached_copy_to_the_parent_scope)
{
    static const double v[6] = {1, 2, 3, 4, 5, 6}, turned[6] = {1, 4, 2, 5, 3, 6};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *kept, *x;
    mlc_scope_begin(ctx);
    mlc_scope_begin(ctx);
    x = test_tensor(ctx, MLC_F64, mlc_dims2(2, 3), v);
    mlc_set_requires_grad(x, true);
    kept = mlc_keep(mlc_transpose(x, 0, 1));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_VALUES(kept, 6, turned, 0, 0);
    CHECK(!mlc_requires_grad(kept));
    for (int i = 0; i < 20; i++) {     /* the memory of the inner scope is used again          */
        mlc_scope_begin(ctx);
        test_rand(ctx, MLC_F64, mlc_dims2(2, 3), (uint64_t)i, 0, 1);
        mlc_scope_end(ctx);
    }
    CHECK_VALUES(kept, 6, turned, 0, 0);
    CHECK(mlc_keep(NULL) == NULL);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_OK(ctx);
}

TEST(ctx, modules_made_in_a_scope_outlive_it)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net;
    double      before[6], after[6];
    mlc_scope_begin(ctx);
    net = mlc_nn_linear(ctx, 3, 2);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    test_read(mlc_module_param(net, "weight"), before);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    for (int i = 0; i < 5; i++) {
        mlc_scope_begin(ctx);
        mlc_full(ctx, MLC_F32, mlc_dims2(2, 3), 9);
        mlc_scope_end(ctx);
    }
    test_read(mlc_module_param(net, "weight"), after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(ctx);
}

/* ---- allocations --------------------------------------------------------------------------- */

TEST(ctx, a_steady_training_step_makes_no_allocator_call)
{
    counter      c;
    mlc_ctx_desc d = counted_desc(&c);
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    mlc_memory   before, after;
    program      p;
    int64_t      calls;
    if (!CHECK(ctx != NULL))
        return;
    CHECK_EQ(program_setup(&p, ctx), MLC_OK);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(program_step(&p), MLC_OK);
    calls = c.calls;
    mlc_memory_info(ctx, &before);
    for (int i = 0; i < 20; i++)
        CHECK_EQ(program_step(&p), MLC_OK);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(c.calls, calls);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(after.calls, c.calls);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(after.reserved, before.reserved);
    mlc_ctx_free(ctx);
    CHECK_EQ(c.live, 0);
}

TEST(ctx, a_step_that_ran_out_of_memory_can_be_made_again)
{
    counter      c;
    mlc_ctx_desc d = counted_desc(&c);
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    program      p;
    if (!CHECK(ctx != NULL) || !CHECK_EQ(program_setup(&p, ctx), MLC_OK))
        return;
    c.fail_at = c.calls + 1;
    CHECK_EQ(program_step(&p), MLC_ERR_NOMEM);
    c.fail_at = 0;
    mlc_optim_zero_grad(p.opt);
    CHECK_EQ(program_step(&p), MLC_OK);
    CHECK_EQ(mlc_optim_steps(p.opt), 1);
    mlc_ctx_free(ctx);
    CHECK_EQ(c.live, 0);
}

/* ---- a fixed block ------------------------------------------------------------------------- */

#define BLOCK ((size_t)1 << 20)

TEST(ctx, in_a_fixed_block_the_allocator_is_never_called)
{
    static char  memory[BLOCK];
    counter      c;
    mlc_ctx_desc d = counted_desc(&c);
    mlc_memory   m;
    mlc_ctx     *ctx;
    program      p;
    d.memory = memory;
    d.memory_bytes = sizeof memory;
    ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL) || !CHECK_EQ(program_setup(&p, ctx), MLC_OK))
        return;
    for (int i = 0; i < 50; i++)
        CHECK_EQ(program_step(&p), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    CHECK_EQ(c.calls, 0);
    CHECK_EQ(m.calls, 0);
    CHECK(m.peak > 0 && (!test_on_host() || m.peak <= (int64_t)sizeof memory));
    mlc_ctx_free(ctx);
    CHECK_EQ(c.calls, 0);
}

TEST(ctx, a_fixed_block_that_is_too_small_is_nomem_and_stays_usable)
{
    static char  memory[BLOCK];
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    ONLY_ON_HOST();                    /* the block holds host memory only                 */
    d.memory = memory + 1;             /* any alignment will do                                */
    d.memory_bytes = sizeof memory - 1;
    ctx = test_own(mlc_ctx_create(&d));
    if (!CHECK(ctx != NULL))
        return;
    for (int i = 0; i < 10; i++) {
        mlc_scope_begin(ctx);
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims2(1000, 1000)) == NULL);
        CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_NOMEM);
        mlc_scope_begin(ctx);
        CHECK(mlc_exp(mlc_zeros(ctx, MLC_F32, mlc_dims2(100, 100))) != NULL);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

TEST(ctx, steps_of_changing_shapes_do_not_use_up_a_fixed_block)
{
    static char  memory[BLOCK];
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    d.memory = memory;
    d.memory_bytes = sizeof memory;
    ctx = test_own(mlc_ctx_create(&d));
    if (!CHECK(ctx != NULL))
        return;
    for (int64_t n = 1; n < 400; n++) {
        mlc_scope_begin(ctx);
        mlc_exp(mlc_zeros(ctx, MLC_F32, mlc_dims2(n, 97)));
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
            return;
    }
}

static mlc_status no_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                             int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = in[0];
    return mlc_ctx_status(mlc_module_ctx(m));
}

/* Two neighbours become one gap, which takes what neither of them would; the rest of it, others. */
TEST(ctx, what_is_freed_in_a_fixed_block_is_used_again_whole_and_in_parts)
{
    static const mlc_module_class cls = {"Block", no_forward, NULL, NULL, 0, NULL};
    static char  memory[160 << 10];
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    mlc_module  *part[8], *last;
    d.threads = 1;
    d.memory = memory;
    d.memory_bytes = sizeof memory;
    ctx = test_own(mlc_ctx_create(&d));
    if (!CHECK(ctx != NULL))
        return;
    for (int pass = 0; pass < 20; pass++) {
        part[0] = mlc_module_create(ctx, &cls, NULL, 40000);
        part[1] = mlc_module_create(ctx, &cls, NULL, 40000);
        last = mlc_module_create(ctx, &cls, NULL, 8);
        CHECK(mlc_module_create(ctx, &cls, NULL, 80000) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_NOMEM);
        mlc_module_free(part[0]);
        mlc_module_free(part[1]);
        part[0] = mlc_module_create(ctx, &cls, NULL, 80000);
        CHECK(part[0] != NULL);
        mlc_module_free(part[0]);
        for (int i = 0; i < 8; i++)
            CHECK((part[i] = mlc_module_create(ctx, &cls, NULL, 9000)) != NULL);
        for (int i = 0; i < 8; i++)
            mlc_module_free(part[i]);
        mlc_module_free(last);
        CHECK_OK(ctx);
    }
}

/* A training step on n rows in a scope of its own.                                            */
static mlc_status sized_step(mlc_module *net, mlc_optim *opt, int64_t n)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, mlc_randn(ctx, MLC_F32, mlc_dims2(n, 7)));
    mlc_backward(mlc_mean(y, mlc_dims0(), false));
    mlc_optim_step(opt);
    return mlc_scope_end(ctx);
}

/* How many of those steps succeed in a fixed block, inside `outer` more scopes that hold a tensor
 * each, until one fails: all on n rows or, with n 0, on changing numbers of rows.             */
static int steps_in_block(size_t bytes, int outer, int64_t n, int steps)
{
    static char  memory[BLOCK];
    mlc_ctx_desc d = test_desc();
    int          done = 0;
    d.memory = memory;
    d.memory_bytes = bytes;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (ctx == NULL)
        return 0;
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 33));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 33, 5));
    mlc_optim *opt = mlc_adamw(net, 1e-3);
    for (int i = 0; i < outer; i++) {
        mlc_scope_begin(ctx);
        mlc_zeros(ctx, MLC_F32, mlc_dims1(11));
    }
    while (opt != NULL && done < steps &&
           sized_step(net, opt, n ? n : (int64_t)test_random(1, done, 1, 202)) == MLC_OK)
        done++;
    mlc_ctx_free(ctx);
    return done;
}

/* A step's size classes depend on its rows, so that the most rows need not take the most memory: a
 * fifth more, as the manual says. */
TEST(ctx, a_block_that_fits_each_size_of_batch_alone_fits_them_in_any_order)
{
    for (int outer = 0; outer < 3; outer++) {
        size_t bytes = 1 << 16;
        for (int64_t n = 201; n > 0; n--)
            while (bytes < BLOCK && steps_in_block(bytes, outer, n, 1) == 0)
                bytes += 8192;
        CHECK_EQ(steps_in_block(bytes + bytes / 5, outer, 0, 2000), 2000);
    }
}

/* ---- a small fixed block ------------------------------------------------------------------- */

/* A context of one thread in the first bytes of a block, with a journal; NULL if it takes more. */
static mlc_ctx *small_ctx(size_t bytes, size_t limit, journal *j)
{
    static char  memory[BLOCK];
    mlc_ctx_desc d = test_desc();
    memset(j, 0, sizeof *j);
    d.threads = 1;
    d.memory = bytes ? memory : NULL;
    d.memory_bytes = bytes;
    d.hard_limit = limit;
    d.log = journal_write;
    d.log_user = j;
    return mlc_ctx_create(&d);
}

/* The loss after so many steps on XOR, or -1: an error stands.                                */
static double train_xor(mlc_ctx *ctx, int steps)
{
    static const float   x[8] = {0, 0, 0, 1, 1, 0, 1, 1};
    static const int64_t y[4] = {0, 1, 1, 0};
    double       loss = -1;
    mlc_sgd_desc d = mlc_sgd_desc_make(0.1);
    d.momentum = 0.9;
    mlc_tensor *in = mlc_from(ctx, MLC_F32, mlc_dims2(4, 2), x);
    mlc_tensor *labels = mlc_from(ctx, MLC_I64, mlc_dims1(4), y);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 2, 8));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 8, 2));
    mlc_optim *opt = mlc_sgd_ex(net, &d);
    for (int i = 0; i < steps && mlc_ctx_status(ctx) == MLC_OK; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *l = mlc_cross_entropy(mlc_forward(net, in), labels);
        mlc_backward(l);
        mlc_optim_step(opt);
        loss = mlc_item(l);
        if (mlc_scope_end(ctx) != MLC_OK)
            return -1;
    }
    return mlc_ctx_status(ctx) == MLC_OK ? loss : -1;
}

/* On 64 bits; with 32 and without a system 12 KB do. A context of a debug build also knows which
 * thread is in it. */
#ifdef MLC_DEBUG
enum { XOR_BYTES = (18 << 10) + 64 };
#else
enum { XOR_BYTES = 18 << 10 };
#endif

TEST(ctx, xor_is_learned_in_a_block_of_18_kilobytes)
{
    journal  j;
    mlc_ctx *ctx = small_ctx(XOR_BYTES, 0, &j);
    if (!test_on_host()) {             /* the block holds host memory only                     */
        CHECK(ctx == NULL || !mlc_ctx_on_host(ctx));
        mlc_ctx_free(ctx);
        return;
    }
    if (!CHECK(test_own(ctx) != NULL))
        return;
    const double loss = train_xor(ctx, 300);
    CHECK_STR(j.last, "");
    CHECK(loss >= 0 && loss < 0.05);
}

/* The number behind `before` in text; 0: there is none.                                       */
static size_t figure(const char *text, const char *before)
{
    const char *at = strstr(text, before);
    return at != NULL ? (size_t)strtoull(at + strlen(before), NULL, 10) : 0;
}

/* How many calls succeed, of which each makes one tensor or module, in scopes that begin and end.*/
static int calls_until_nomem(mlc_ctx *ctx)
{
    static const mlc_module_class cls = {"Block", no_forward, NULL, NULL, 0, NULL};
    mlc_module *part[8] = {NULL};
    int         done = 0;
    for (int step = 0; step < 6; step++) {
        for (int i = 0; i < 8; i++, done++) {
            const int64_t n = (int64_t)test_random(7, step * 8 + i, 1, 900);
            if (i % 4 == 1)
                mlc_scope_begin(ctx);
            if (i == 2)
                mlc_module_free(part[step]);
            if (i % 3 == 0 ? (part[step] = mlc_module_create(ctx, &cls, NULL, (size_t)n)) == NULL
                           : mlc_zeros(ctx, MLC_F32, mlc_dims1(n)) == NULL)
                return done;
            if (i % 4 == 3)
                mlc_scope_end(ctx);
        }
    }
    return done;
}

/* Follows the messages of NOMEM until those calls and the training run. Each figure gets past what
 * failed: a call takes three pieces of memory at most.                                        */
static size_t follow_figures(bool limit)
{
    size_t  bytes = 1;
    journal j;
    int     before = -1, rounds = 0;
    for (bool done = false; !done;) {
        mlc_ctx *ctx = small_ctx(limit ? 0 : bytes, limit ? bytes : 0, &j);
        const int calls = ctx != NULL ? calls_until_nomem(ctx) : -1;
        done = calls == 48 && train_xor(ctx, 3) >= 0;
        mlc_ctx_free(ctx);
        if (done)
            break;
        const size_t next = figure(j.last, limit ? "a limit of "
                                           : calls < 0 ? "at least " : "a block of ");
        rounds = calls > before ? 0 : rounds + 1;
        if (!CHECK(next > bytes) || !CHECK(calls >= before && (calls == 48 || rounds < 4))) {
            CHECK_STR(j.last, "");
            return 0;
        }
        before = calls;
        bytes = next;
    }
    return bytes;
}

TEST(ctx, each_block_that_nomem_names_does_and_the_last_is_the_smallest)
{
    journal j;
    ONLY_ON_HOST();                    /* the block holds host memory only                 */
    const size_t bytes = follow_figures(false);
    mlc_ctx *ctx = small_ctx(bytes - 1, 0, &j);
    CHECK(bytes > 0 && (calls_until_nomem(ctx) < 48 || train_xor(ctx, 3) < 0));
    CHECK_HAS(j.last, " bytes");
    CHECK_HAS(j.last, " of the block's ");
    mlc_ctx_free(ctx);
}

TEST(ctx, each_limit_that_nomem_names_does)
{
    ONLY_ON_HOST();                    /* devices count otherwise                          */
    CHECK(follow_figures(true) > 0);
}

TEST(ctx, nomem_in_a_fixed_block_tells_what_was_wanted_and_free)
{
    journal  j;
    mlc_ctx *ctx = test_own(small_ctx(BLOCK, 0, &j));
    if (!test_on_host() || !CHECK(ctx != NULL)) {
        CHECK(!test_on_host());
        return;
    }
    CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(BLOCK)) == NULL);
    CHECK_HAS(mlc_error(ctx), "out of memory for 4194304 bytes of tensor data; ");
    CHECK_HAS(mlc_error(ctx), " of the block's 1048576 are free in one piece, a block of ");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_linear(ctx, 1000, 1000) != NULL);
    CHECK(mlc_sgd(mlc_nn_linear(ctx, 1000, 1000), 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "build: out of memory for ");
    CHECK_STR(j.last, mlc_error(ctx));
    CHECK(figure(mlc_error(ctx), "a block of ") > figure(mlc_error(ctx), "out of memory for "));
}

TEST(ctx, nomem_in_a_fixed_block_never_names_fewer_bytes_than_are_free)
{
    journal j;
    int     said = 0, fitted = 0;
    ONLY_ON_HOST();                    /* the block holds host memory only                     */
    for (size_t bytes = 5 << 10; bytes < XOR_BYTES; bytes += 64) {
        mlc_ctx *ctx = small_ctx(bytes, 0, &j);
        if (ctx != NULL && train_xor(ctx, 3) < 0) {
            const size_t wanted = figure(j.last, "out of memory for "), left = figure(j.last, "; ");
            said++;
            fitted += wanted <= left;
            CHECK(wanted > 0 && figure(j.last, "a block of ") > bytes);
        }
        mlc_ctx_free(ctx);
    }
    CHECK(said > 50);
    CHECK_EQ(fitted, 0);
}

TEST(ctx, a_block_too_small_for_a_context_is_logged_with_what_it_takes)
{
    journal  j;
    mlc_ctx *ctx = small_ctx(100, 0, &j);
    const size_t least = figure(j.last, "ctx_create: a context takes a block of at least ");
    CHECK(ctx == NULL);
    CHECK_EQ(j.errors, 1);
    CHECK_HAS(j.last, "this one has 100");
    CHECK(least > 100 && least < 8192);
    if (!test_on_host())
        return;
    CHECK(small_ctx(least - 1, 0, &j) == NULL);
    CHECK_EQ(figure(j.last, "at least "), least);
    CHECK(test_own(small_ctx(least, 0, &j)) != NULL);
    CHECK_STR(j.last, "");
}

static void *no_memory(void *user, size_t bytes, size_t align)
{
    (void)user;
    (void)bytes;
    (void)align;
    return NULL;
}

/* Gives no block of over a million bytes. */
static void *small_blocks(void *user, size_t bytes, size_t align)
{
    (void)user;
    return bytes > 1000000 ? NULL : test_aligned_alloc(align, bytes);
}
static void free_block(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    test_aligned_free(ptr);
}

TEST(ctx, nomem_of_the_system_tells_what_is_in_use)
{
    ONLY_ON_HOST();                    /* the allocator is that of host memory                 */
    for (int i = 0; i < 2; i++) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        char         want[160];
        d.allocator.alloc = small_blocks;
        d.allocator.release = free_block;
        d.hard_limit = i ? 100000000 : 0;
        mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
        if (!CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(100000)) != NULL)) return;
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(500000)) == NULL);
        mlc_memory m;
        CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
        const int64_t used = m.allocated;
        CHECK(used >= 400000 && used < 500000);
        snprintf(want, sizeof want, "out of memory for 2000000 bytes of tensor data; %lld are in "
                 "use", (long long)used);
        CHECK_ERROR(ctx, MLC_ERR_NOMEM, want);
    }
}

/* Is a desc refused with one text in its log that has these words? */
static void creation_says(mlc_ctx_desc d, mlc_status want, const char *words)
{
    journal    j;
    mlc_status st = MLC_OK;
    memset(&j, 0, sizeof j);
    d.log = journal_write;
    d.log_user = &j;
    d.status = &st;
    CHECK(mlc_ctx_create(&d) == NULL);
    CHECK_EQ(st, want);
    CHECK_EQ(j.errors, 1);
    CHECK_HAS(j.last, words);
}

TEST(ctx, a_context_that_cannot_be_made_says_in_the_log_what_is_wrong)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = -1;
    creation_says(d, MLC_ERR_ARG, "ctx_create: threads is below 0");
    d = mlc_ctx_desc_make();
    d.dtype = MLC_BF16;
    creation_says(d, MLC_ERR_ARG, "ctx_create: dtype must be MLC_F32 or MLC_F64");
    d = mlc_ctx_desc_make();
    d.isa = MLC_ISA_COUNT;
    creation_says(d, MLC_ERR_ARG, "ctx_create: isa or blas");
    d = mlc_ctx_desc_make();
    d.allocator.alloc = no_memory;
    creation_says(d, MLC_ERR_ARG, "ctx_create: allocator has one of alloc and release");
    d = mlc_ctx_desc_make();
    d.device = "abacus";
    creation_says(d, MLC_ERR_DEVICE, "there is no device 'abacus'");
    CHECK_HAS(mlc_error(NULL), "desc.status says why");
}

TEST(ctx, a_small_block_has_fewer_scopes_and_says_so)
{
    journal  j;
    mlc_ctx *ctx = test_own(small_ctx(24 << 10, 0, &j));
    int      open = 0;
    if (!CHECK(ctx != NULL))
        return;
    while (open < 100 && mlc_scope_begin(ctx) == MLC_OK)
        open++;
    CHECK(open >= 6 && open < 60);
    CHECK_EQ(figure(mlc_error(ctx), "scope_begin: "), (size_t)open);
    CHECK_HAS(mlc_error(ctx), " scopes are open; is a mlc_scope_end missing? A larger fixed block "
                              "has more");
    mlc_scope_end(ctx);                /* of the one that did not begin                        */
    for (int i = 0; i < open; i++)
        mlc_scope_end(ctx);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
}

TEST(ctx, a_small_block_cuts_a_long_message_and_may_quote_it)
{
    char     text[2000];
    journal  j;
    mlc_ctx *ctx = test_own(small_ctx(16 << 10, 0, &j));
    if (!CHECK(ctx != NULL))
        return;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "%s", text);
    const size_t n = strlen(mlc_error(ctx));
    CHECK(n >= 127 && n < 1023);
    CHECK(strspn(mlc_error(ctx), "x") == n);
    mlc_scope_end(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "mine: %s", mlc_error(ctx));
    CHECK_EQ(strlen(mlc_error(ctx)), n);
    CHECK(strncmp(mlc_error(ctx), "mine: xxx", 9) == 0 && mlc_error(ctx)[n - 1] == 'x');
}

/* Tensors, and so chunks, of many numbers: a scope's end takes all of them back. */
TEST(ctx, scopes_of_a_small_block_give_their_small_chunks_back)
{
    journal    j;
    mlc_memory before, after;
    ONLY_ON_HOST();                    /* what a device gave its pool keeps                    */
    mlc_ctx   *ctx = test_own(small_ctx(64 << 10, 0, &j));
    if (!CHECK(ctx != NULL))
        return;
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    mlc_set_requires_grad(x, true);
    mlc_scope_begin(ctx);              /* descriptors of blocks stay                           */
    for (int i = 0; i < 40; i++)
        mlc_neg(x);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_memory_info(ctx, &before);
    for (int step = 0; step < 200; step++) {
        mlc_scope_begin(ctx);
        for (int i = 0; i < step % 40; i++)
            mlc_neg(x);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
            return;
        mlc_memory_info(ctx, &after);
        if (!CHECK_EQ(after.reserved, before.reserved) ||
            !CHECK_EQ(after.allocated, before.allocated))
            return;
    }
}

/* Makes what it returns, and then a tensor as large as its input says, which dies with it.    */
static mlc_status large_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    (void)n_in;
    (void)n_out;
    out[0] = mlc_zeros(ctx, MLC_F32, mlc_dims1(1));
    mlc_zeros(ctx, MLC_F32, mlc_dims1(in[0]->shape[0]));
    return mlc_ctx_status(ctx);
}

TEST(ctx, what_dies_last_in_a_fixed_block_makes_room_for_any_size)
{
    static const mlc_module_class cls = {"Large", large_forward, NULL, NULL, 0, NULL};
    journal     j;
    mlc_ctx    *ctx = test_own(small_ctx(200 << 10, 0, &j));
    mlc_module *m = mlc_module_create(ctx, &cls, NULL, 0);
    if (!CHECK(ctx != NULL))
        return;
    for (int64_t n = 20000; n < 40000; n += 2000)
        CHECK(mlc_forward(m, mlc_expand(mlc_zeros(ctx, MLC_F32, mlc_dims1(1)), mlc_dims1(n))) !=
              NULL);
    CHECK_STR(j.last, "");
}

/* ---- memory_info --------------------------------------------------------------------------- */

TEST(ctx, memory_is_counted_by_class)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_memory m;
    program    p;
    int64_t    sum = 0, weights = (5 * 33 + 33 + 33 * 3 + 3) * 4;
    CHECK_EQ(program_setup(&p, ctx), MLC_OK);
    CHECK_EQ(program_step(&p), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    for (int i = 0; i < MLC_MEM_COUNT; i++) {
        CHECK(m.now[i] >= 0 && m.top[i] >= m.now[i]);
        sum += m.now[i];
    }
    CHECK_EQ(m.allocated, sum);
    CHECK(m.peak >= m.allocated);
    CHECK(m.now[MLC_MEM_PARAM] >= weights && m.now[MLC_MEM_PARAM] < 2 * weights);
    CHECK(m.now[MLC_MEM_GRAD] >= weights && m.now[MLC_MEM_GRAD] < 2 * weights);
    CHECK(m.now[MLC_MEM_OPTIM] >= 2 * weights && m.now[MLC_MEM_OPTIM] < 4 * weights);
    CHECK(m.top[MLC_MEM_ACTIVATION] >= 9 * 33 * 4);
    CHECK_EQ(m.now[MLC_MEM_WORKSPACE], 0);
    mlc_optim_free(p.opt);
    mlc_module_free(p.net);
    mlc_memory_info(ctx, &m);
    CHECK_EQ(m.now[MLC_MEM_PARAM], 0);
    CHECK_EQ(m.now[MLC_MEM_GRAD], 0);
    CHECK_EQ(m.now[MLC_MEM_OPTIM], 0);
    CHECK_EQ(mlc_memory_info(ctx, NULL), MLC_ERR_ARG);
}

TEST(ctx, peak_resets_and_trim_gives_back)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_memory before, during, after, trimmed;
    mlc_memory_info(ctx, &before);
    mlc_scope_begin(ctx);
    mlc_zeros(ctx, MLC_F32, mlc_dims2(500, 500));
    mlc_memory_info(ctx, &during);
    mlc_scope_end(ctx);
    CHECK(during.now[MLC_MEM_ACTIVATION] >= 1000000);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_ACTIVATION], before.now[MLC_MEM_ACTIVATION]);
    CHECK_EQ(after.peak, during.peak);
    CHECK(after.reserved >= 1000000);  /* the pool keeps it for the next step                  */
    mlc_memory_peak_reset(ctx);
    mlc_memory_trim(ctx);
    mlc_memory_info(ctx, &trimmed);
    CHECK_EQ(trimmed.peak, trimmed.allocated);
    CHECK_EQ(trimmed.top[MLC_MEM_ACTIVATION], trimmed.now[MLC_MEM_ACTIVATION]);
    CHECK(trimmed.reserved <= after.reserved - 1000000);
    CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims2(500, 500)) != NULL);
    CHECK_OK(ctx);
}

TEST(ctx, the_hard_limit_is_nomem_and_the_soft_one_warns_once)
{
    journal      j = {0, 0, ""};
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    d.hard_limit = 4000000;
    d.soft_limit = 2000000;
    d.log = journal_write;
    d.log_user = &j;
    ctx = test_own(mlc_ctx_create(&d));
    if (!CHECK(ctx != NULL))
        return;
    for (int i = 0; i < 3; i++) {
        mlc_scope_begin(ctx);
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(650000)) != NULL);
        CHECK_EQ(j.warnings, 1);
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(650000)) == NULL);
        CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_NOMEM);
    }
    CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(1000)) != NULL);
    CHECK_OK(ctx);
}

TEST(ctx, the_hard_limit_is_never_exceeded)
{
    enum { LIMIT = 1 << 20 };
    mlc_ctx_desc d = test_desc();
    mlc_memory   m;
    int          made = 0;
    d.hard_limit = LIMIT;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    while (mlc_zeros(ctx, MLC_F32, mlc_dims1(4100)) || mlc_zeros(ctx, MLC_F32, mlc_dims1(17)))
        made++;
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    while (mlc_nn_linear(ctx, 3, 2) != NULL)
        made++;
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    CHECK(made > 40 && m.peak <= LIMIT && m.peak > LIMIT / 2);
}

static void write_nowhere(void *user, const char *text, size_t bytes)
{
    (void)text;
    *(size_t *)user += bytes;
}

TEST(ctx, the_soft_limit_warns_once_and_not_of_a_summary)
{
    journal      j = {0, 0, ""};
    size_t       written = 0;
    mlc_ctx_desc d = test_desc();
    d.soft_limit = 1 << 20;
    d.log = journal_write;
    d.log_user = &j;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    CHECK_EQ(mlc_summary(mlc_nn_linear(ctx, 3, 5), mlc_dims2(1000003, 3), write_nowhere, &written),
             MLC_OK);
    CHECK(written > 0);
    CHECK_EQ(j.warnings, 0);
    for (int i = 0; i < 3; i++)
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(1 << 18)) != NULL);
    CHECK_EQ(j.warnings, 1);
    CHECK_EQ(j.errors, 0);
}

/* A training loop without its scopes, or with one around all of it.                           */
static void train_long(mlc_ctx *ctx, int64_t steps, bool scope, bool each)
{
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(1));
    mlc_set_requires_grad(w, true);
    if (scope)
        mlc_scope_begin(ctx);
    for (int64_t i = 0; i < steps; i++) {
        if (each)
            mlc_scope_begin(ctx);
        mlc_sum(mlc_mul_scalar(w, 2), mlc_dims0(), false);
        if (each)
            mlc_scope_end(ctx);
    }
    if (scope)
        mlc_scope_end(ctx);
}

TEST(ctx, a_loop_without_scopes_is_warned_of_once)
{
    journal      j = {0, 0, ""};
    mlc_ctx_desc d = test_desc();
    d.log = journal_write;
    d.log_user = &j;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    train_long(ctx, 10000, true, true);
    train_long(ctx, 8191, true, false);
    train_long(ctx, 8191, false, false);
    CHECK_EQ(j.warnings, 0);
    train_long(ctx, 1, true, false);
    CHECK_EQ(j.warnings, 1);
    CHECK_STR(j.last, "tape: thousands of operations are recorded in a scope that has not ended; "
                      "does each step of a loop have its mlc_scope_begin and mlc_scope_end?");
    train_long(ctx, 9000, false, false);
    CHECK_EQ(j.warnings, 1);
    CHECK_OK(ctx);
}

/* ---- random streams ------------------------------------------------------------------------ */

TEST(ctx, a_seed_gives_the_same_values_again)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *a, *b, *other;
    double       x[4][50];
    d.seed = 5;
    a = test_own(mlc_ctx_create(&d));
    b = test_own(mlc_ctx_create(&d));
    d.seed = 6;
    other = test_own(mlc_ctx_create(&d));
    test_read(mlc_randn(a, MLC_F32, mlc_dims1(50)), x[0]);
    test_read(mlc_randn(a, MLC_F32, mlc_dims1(50)), x[1]);
    CHECK(memcmp(x[0], x[1], sizeof x[0]) != 0);           /* each call has its own stream     */
    test_read(mlc_randn(b, MLC_F32, mlc_dims1(50)), x[2]);
    CHECK(memcmp(x[0], x[2], sizeof x[0]) == 0);
    test_read(mlc_randn(other, MLC_F32, mlc_dims1(50)), x[3]);
    CHECK(memcmp(x[0], x[3], sizeof x[0]) != 0);
    CHECK_EQ(mlc_seed(a, 5), MLC_OK);
    test_read(mlc_randn(a, MLC_F32, mlc_dims1(50)), x[2]);
    CHECK(memcmp(x[0], x[2], sizeof x[0]) == 0);
}

TEST(ctx, a_generator_goes_on_in_another_context)
{
    mlc_ctx *a = test_ctx(), *b = test_ctx();
    double   x[2][50];
    CHECK_EQ(mlc_seed(a, 9), MLC_OK);
    mlc_randn(a, MLC_F32, mlc_dims1(50));
    CHECK_EQ(mlc_ctx_set_rng(b, mlc_ctx_rng(a)), MLC_OK);
    test_read(mlc_randn(a, MLC_F32, mlc_dims1(50)), x[0]);
    test_read(mlc_randn(b, MLC_F32, mlc_dims1(50)), x[1]);
    CHECK(memcmp(x[0], x[1], sizeof x[0]) == 0);
    CHECK_EQ(mlc_ctx_rng(NULL).seed, 0);
    CHECK_EQ(mlc_ctx_set_rng(NULL, mlc_ctx_rng(a)), MLC_ERR_ARG);
}

TEST(ctx, every_isa_level_draws_the_same_bits)
{
    double first[70], again[70];
    bool   seen = false;
    FOR_EACH_ISA(ctx) {
        test_read(mlc_randn(ctx, MLC_F32, mlc_dims1(70)), seen ? again : first);
        CHECK(!seen || memcmp(first, again, sizeof first) == 0);
        seen = true;
    }
}

/* From the known answers of Random123: counter 0, key 0, and all ones.                        */
TEST(ctx, uniform_words_are_those_of_philox4x32_10)
{
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    mlc_ctx *ctx = test_ctx();
    double   v[4];
    CHECK_EQ(mlc_seed(ctx, 0), MLC_OK);
    test_read(mlc_uniform(ctx, MLC_F32, mlc_dims1(4), 0, 1), v);
    for (int i = 0; i < 4; i++)
        CHECK(v[i] == (double)(zero[i] >> 8) / 16777216.0);
}

/* ---- names --------------------------------------------------------------------------------- */

TEST(ctx, names_and_sizes_of_enums)
{
    CHECK_STR(mlc_dtype_name(MLC_F32), "f32");
    CHECK_STR(mlc_dtype_name(MLC_F64), "f64");
    CHECK_STR(mlc_dtype_name(MLC_I64), "i64");
    CHECK(mlc_dtype_name((mlc_dtype)77) != NULL);
    CHECK_EQ(mlc_dtype_bytes(MLC_F32), 4);
    CHECK_EQ(mlc_dtype_bytes(MLC_F64), 8);
    CHECK_EQ(mlc_dtype_bytes(MLC_I64), 8);
    CHECK_EQ(mlc_dtype_bytes((mlc_dtype)77), 0);
    CHECK_STR(mlc_status_name(MLC_OK), "OK");
    CHECK_STR(mlc_status_name(MLC_ERR_SHAPE), "SHAPE");
    CHECK_STR(mlc_status_name(MLC_ERR_INTERNAL), "INTERNAL");
    CHECK(mlc_status_name((mlc_status)77) != NULL);
    CHECK_STR(mlc_isa_name(MLC_ISA_SCALAR), "scalar");
    CHECK_STR(mlc_isa_name(MLC_ISA_AVX2), "avx2");
    CHECK_STR(mlc_isa_name(MLC_ISA_AVX512), "avx512");
    CHECK_STR(mlc_isa_name(MLC_ISA_AVX512X), "avx512x");
    CHECK_STR(mlc_isa_name(MLC_ISA_AMX), "amx");
    CHECK_STR(mlc_isa_name(MLC_ISA_NEON), "neon");
    CHECK_STR(mlc_isa_name(MLC_ISA_COUNT), "unknown");
}

/* ---- descs -------------------------------------------------------------------------------- */

static bool all_axes(const mlc_dims *d, int64_t v)
{
    return d->n == MLC_ALL_AXES && d->v[0] == v;
}

TEST(ctx, descs_are_made_with_the_defaults_that_their_comments_name)
{
    const mlc_print_desc     print = mlc_print_desc_make();
    const mlc_gradcheck_desc check = mlc_gradcheck_desc_make();
    const mlc_param_desc     param = mlc_param_desc_make(mlc_dims2(2, 3));
    const mlc_sgd_desc       sgd = mlc_sgd_desc_make(0.5);
    const mlc_adam_desc      adam = mlc_adam_desc_make(0.5), adamw = mlc_adamw_desc_make(0.25);
    const mlc_group_desc     group = mlc_group_desc_make();
    const mlc_clip_desc      clip = mlc_clip_desc_make();
    const mlc_scaler_desc    s = mlc_scaler_desc_make();
    const mlc_csv_desc       csv = mlc_csv_desc_make(), table = mlc_table_desc_make();
    const mlc_load_desc      load = mlc_load_desc_make();
    CHECK(print.precision == 8 && print.edge_items == 3 && print.threshold == 1000);
    CHECK(print.line_width == 75 && !print.suppress);
    CHECK(check.eps == 1e-6 && check.atol == 1e-5 && check.rtol == 1e-3);
    CHECK(param.shape.n == 2 && param.shape.v[1] == 3 && param.init == MLC_INIT_ZEROS);
    CHECK(!param.has_dtype && !param.buffer);
    CHECK(sgd.lr == 0.5 && sgd.momentum == 0 && sgd.dampening == 0 && sgd.weight_decay == 0);
    CHECK(adam.lr == 0.5 && adam.beta1 == 0.9 && adam.beta2 == 0.999 && adam.eps == 1e-8);
    CHECK(adam.weight_decay == 0 && adamw.lr == 0.25 && adamw.weight_decay == 0.01);
    CHECK(group.lr_scale == 1 && !group.has_weight_decay);
    CHECK(clip.norm == INF && clip.value == INF && !clip.each);
    CHECK(s.init == 65536 && s.growth == 2 && s.backoff == 0.5 && s.interval == 2000);
    CHECK(s.floor == 0x1p-24 && s.cap == 0x1p24 && s.patience == 50);
    CHECK(csv.dtype == MLC_F32 && csv.delimiter == ',' && !csv.header && !csv.missing);
    CHECK(table.delimiter == ',' && table.header);
    CHECK(csv.comments == MLC_COMMENTS_BEFORE && table.comments == MLC_COMMENTS_BEFORE);
    CHECK(!load.partial && !load.skip_mismatched && !load.cast && load.n_renames == 0);
}

TEST(ctx, descs_of_layers_are_made_with_the_defaults_that_their_comments_name)
{
    const mlc_conv_desc          conv = mlc_conv_desc_make();
    const mlc_pool_desc          pool = mlc_pool_desc_make(3);
    const mlc_nn_conv_desc       layer = mlc_nn_conv_desc_make(2, 4, 6, 5);
    const mlc_nn_batch_norm_desc norm = mlc_nn_batch_norm_desc_make(7);
    const mlc_nn_tcn_desc        tcn = mlc_nn_tcn_desc_make(3, 4, 5);
    CHECK(all_axes(&conv.stride, 1) && all_axes(&conv.padding, 0) && all_axes(&conv.dilation, 1));
    CHECK(all_axes(&conv.output_padding, 0) && conv.groups == 1 && !conv.same);
    CHECK(!conv.causal && conv.act == MLC_ACT_NONE);
    CHECK(all_axes(&pool.kernel, 3) && all_axes(&pool.stride, 3) && all_axes(&pool.padding, 0));
    CHECK(all_axes(&pool.dilation, 1) && !pool.ceil && !pool.exclude_padding);
    CHECK(layer.axes == 2 && layer.in == 4 && layer.out == 6 && all_axes(&layer.kernel, 5));
    CHECK(all_axes(&layer.conv.stride, 1) && layer.conv.groups == 1 && !layer.no_bias);
    CHECK(norm.channels == 7 && norm.momentum == 0.1 && norm.eps == 1e-5 && !norm.no_affine);
    CHECK(tcn.in == 3 && tcn.channels == 4 && tcn.levels == 5 && tcn.kernel == 3);
    CHECK(tcn.dropout == 0);
}

/* ---- the status of the text ------------------------------------------------------------------ */

TEST(ctx, the_status_of_an_error_is_known_as_long_as_its_text)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_error_status(ctx), MLC_OK);
    CHECK_EQ(mlc_error_status(NULL), MLC_ERR_ARG);
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_ERR_IO, "mine");
    CHECK_EQ(mlc_error_status(ctx), MLC_ERR_IO);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_IO);
    CHECK_EQ(mlc_ctx_status(ctx), MLC_OK);
    CHECK_EQ(mlc_error_status(ctx), MLC_ERR_IO);
    CHECK_STR(mlc_error(ctx), "mine");
    mlc_raise(ctx, MLC_ERR_SHAPE, "yours");
    CHECK_EQ(mlc_error_status(ctx), MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_error_status(ctx), MLC_OK);
    mlc_scope_begin(ctx);
    mlc_raise(ctx, MLC_INTERRUPTED, "his");
    mlc_scope_end(ctx);
    CHECK_EQ(mlc_error_status(ctx), MLC_INTERRUPTED);
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_EQ(mlc_error_status(ctx), MLC_OK);
    CHECK_STR(mlc_error(ctx), "");
}

/* ---- handles of a debug build -------------------------------------------------------------- */

#if defined(MLC_DEBUG) && !defined(MLC_NO_STDIO)
TEST(ctx, a_handle_that_was_freed_is_an_error_of_its_context_and_changes_nothing)
{
    program  p;
    mlc_ctx *ctx = test_ctx();
    if (!CHECK_EQ(program_setup(&p, ctx), MLC_OK)) return;
    mlc_module *part = mlc_module_child(p.net, 0), *other = mlc_nn_linear(ctx, 5, 33);
    mlc_module_free(other);
    mlc_module *next = mlc_nn_linear(ctx, 5, 33);
    CHECK(next != other);              /* its address waits                                    */
    mlc_module_free(other);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "module_free: the module was freed before, by itself or with");
    CHECK(mlc_forward(other, p.x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "forward: the module was freed before");
    CHECK_EQ(mlc_module_add(p.net, other), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "module_add: the child was freed before");
    mlc_module_free(next);
    mlc_optim_free(p.opt);
    mlc_optim_free(p.opt);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optim_free: the optimizer was freed before");
    CHECK_EQ(mlc_optim_step(p.opt), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optim_step: the optimizer was freed before");
    CHECK_EQ(mlc_budget_step(p.net, p.opt, NULL, NULL, NULL, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "budget_step: the optimizer was freed before");
    mlc_run run;
    memset(&run, 0, sizeof run);
    run.optim = p.opt;
    CHECK_EQ(mlc_run_save(ctx, "none.safetensors", &run), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "run_save: the optimizer was freed before");
    mlc_knob lr = MLC_KNOB_LR;
#define GONE(name, ...) \
    do { \
        CHECK_EQ(mlc_##name(p.opt, __VA_ARGS__), MLC_ERR_STATE); \
        CHECK_ERROR(ctx, MLC_ERR_STATE, #name ": the optimizer was freed before"); \
    } while (0)
    CHECK_EQ(mlc_optim_flush(p.opt), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optim_flush: the optimizer was freed before");
    CHECK(mlc_optim_scaled(p.opt, p.x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optim_scaled: the optimizer was freed before");
    mlc_optim_scaler_off(p.opt);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optim_scaler_off: the optimizer was freed before");
    CHECK(mlc_ema(p.opt, 0.9) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "average: the optimizer was freed before");
    CHECK(mlc_optim_state_iter_make(p.opt).optim == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optim_state_iter_make: the optimizer was freed before");
    CHECK_EQ(mlc_plateau_feed(NULL, p.opt, 1), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "plateau_feed: the optimizer was freed before");
    CHECK(mlc_fit_begin(p.net, p.opt, NULL, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "fit: the optimizer was freed before");
    GONE(optim_step_with, NULL, NULL, NULL);
    GONE(optim_group, "*", NULL);
    GONE(optim_set_lr, 0.1);
    GONE(optim_in_backward, true);
    GONE(optim_clip, NULL);
    GONE(optim_accumulate, 2);
    GONE(optim_scaler, NULL);
    GONE(optim_scaler_resume, NULL);
    GONE(optim_curvature, 1);
    GONE(optim_curvature_with, NULL, NULL, 1);
    GONE(optim_mean, true);
    GONE(optim_sam, 0.1, false);
    GONE(optim_lookahead, 5, 0.5);
    GONE(optim_no_decay, true);
    GONE(optim_layer_decay, 0.5);
    GONE(optim_noise, 0.1, 0.5);
    GONE(optim_report, NULL, 0, NULL);
    GONE(optim_step_report, NULL, 0, NULL);
    GONE(lr_range, NULL, NULL, NULL, NULL, NULL);
    GONE(optim_save, "none.safetensors");
    GONE(optim_load, "none.safetensors");
    GONE(optim_schedule, lr, NULL);
#undef GONE
    mlc_module_free(p.net);
    mlc_module_free(part);             /* went with its parent                                 */
    CHECK_ERROR(ctx, MLC_ERR_STATE, "module_free: the module was freed before");
    CHECK_EQ(mlc_save(p.net, "none.safetensors"), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "save: the module was freed before");
    CHECK(mlc_adam(p.net, 1e-3) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "optimizer: the module was freed before");
    CHECK_EQ(mlc_budget_step(p.net, NULL, NULL, NULL, NULL, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "budget_step: the network was freed before");
    mlc_module  *m = mlc_nn_linear(ctx, 2, 2);
    mlc_average *average = mlc_ema(mlc_adam(m, 1e-3), 0.9);
    mlc_average_free(average);
    CHECK_EQ(mlc_average_swap(average, true), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "average_swap: the average was freed before");
}

TEST(ctx, each_function_that_frees_knows_what_was_freed)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(6, 3));
    mlc_module *net = mlc_nn_linear(ctx, 3, 2);
#define TWICE(type, object, made, free_it) \
    do { \
        type *h = made; \
        CHECK(h != NULL); \
        free_it; \
        CHECK_OK(ctx); \
        free_it; \
        CHECK_ERROR(ctx, MLC_ERR_STATE, "the " object " was freed before"); \
    } while (0)
    mlc_optim *opt = mlc_adam(net, 1e-3);
    TWICE(mlc_average, "average", mlc_ema(opt, 0.9), mlc_average_free(h));
    TWICE(mlc_loader, "loader", mlc_loader_ordered(ctx, x, x, 2), mlc_loader_free(h));
    TWICE(mlc_dataset, "dataset", mlc_dataset_tensors(ctx, &x, 1), mlc_dataset_free(h));
    TWICE(mlc_metric, "metric", mlc_metric_accuracy(ctx), mlc_metric_free(h));
    TWICE(mlc_tracker, "tracker", mlc_tracker_create(ctx), mlc_tracker_free(h));
    TWICE(mlc_callback, "callback", mlc_on_nan(ctx, 1), mlc_callback_free(ctx, h));
    TWICE(mlc_run_saver, "saver", mlc_run_saver_create(ctx), mlc_run_saver_free(h));
    TWICE(mlc_timeline, "timeline", mlc_timeline_begin(ctx, 16), mlc_timeline_free(h));
#undef TWICE
}

TEST(ctx, memory_of_freed_handles_goes_back_to_the_allocator_with_the_context)
{
    counter      c;
    mlc_ctx_desc d = counted_desc(&c);
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL)) return;
    for (int i = 0; i < 400; i++) mlc_module_free(mlc_nn_linear(ctx, 4, 4));
    CHECK_OK(ctx);
    CHECK(c.live > 256 * 64);          /* the last 256 wait                                    */
    mlc_ctx_free(ctx);
    CHECK_EQ(c.live, 0);
}
#endif
