/* test_platform.c -- tests of IMPL.PLATFORM and IMPL.CPU: what a hostile program gives the library:
 * little stack, short enums, its own floating-point mode. Flags, compilers and systems are in
 * hostile.sh. */
#define _POSIX_C_SOURCE 200809L        /* mkstemp, under -std=c11 */
#include "mlc_test.h"

#include <unistd.h>

TEST(platform, enums_have_32_bits_whatever_the_flags)
{
    CHECK_EQ(sizeof(mlc_status), 4);
    CHECK_EQ(sizeof(mlc_dtype), 4);
    CHECK_EQ(sizeof(mlc_act), 4);
    CHECK_EQ(sizeof(mlc_reduction), 4);
    CHECK_EQ(sizeof(mlc_isa), 4);
    CHECK_EQ(sizeof(mlc_log_level), 4);
    CHECK_EQ(sizeof(mlc_mem), 4);
    CHECK_EQ(sizeof(mlc_map), 4);
    CHECK_EQ(sizeof(mlc_reduce), 4);
    CHECK_EQ(sizeof(mlc_copy_kind), 4);
}

/* ---- a thread with 16 KiB of stack --------------------------------------------------------- */

/* OpenBLAS alone takes 60 KiB in a small product: the promise is of the library's own ones. */
#if !defined(MLC_NO_THREADS) && !defined(_WIN32) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(MLC_USE_CBLAS)
#  if defined(__has_feature)
#    if !__has_feature(address_sanitizer) && !__has_feature(memory_sanitizer) && \
        !__has_feature(thread_sanitizer)
#      define STACK_TEST
#    endif
#  else
#    define STACK_TEST
#  endif
#endif

#ifdef STACK_TEST

#include <pthread.h>

#define STACK_ROOM  (256 * 1024)       /* given, so that a failure is a number, not a crash     */
#if defined(__OPTIMIZE__)
#  define STACK_LIMIT (16 * 1024)      /* may be used, the system's own share included          */
#else
#  define STACK_LIMIT (20 * 1024)      /* -O0 keeps everything on the stack                     */
#endif
#define STACK_FILL  0xA5

static struct {
    mlc_ctx    *ctx;
    const char *path;                  /* of a file that may be written                         */
    mlc_status  status;
    char        error[256];
} stack_g;

static void stack_write(void *user, const char *text, size_t bytes)
{
    (void)user, (void)text, (void)bytes;
}

static mlc_tensor *stack_fill(mlc_dtype dtype, mlc_dims dims)
{
    return mlc_cast(mlc_uniform(stack_g.ctx, MLC_F32, dims, -1, 1), dtype);
}

/* Operations on tensors that are not dense: their rows go through blocks on the stack.        */
static void stack_ops(mlc_ctx *ctx)
{
    mlc_scope_begin(ctx);
    mlc_tensor *a = stack_fill(MLC_F64, mlc_dims4(2, 3, 40, 50));
    mlc_tensor *h = mlc_transpose(stack_fill(MLC_BF16, mlc_dims2(70, 50)), 0, 1);
    mlc_set_requires_grad(a, true);
    mlc_tensor *b = mlc_matmul(mlc_permute(a, mlc_dims4(1, 0, 3, 2)), mlc_transpose(a, 0, 1));
    b = mlc_add(mlc_sin(mlc_mul(b, b)), mlc_cast(mlc_select(h, 1, 0), MLC_F64));
    b = mlc_where(mlc_lt(b, mlc_transpose(b, 2, 3)), b, mlc_exp(mlc_transpose(b, 2, 3)));
    mlc_backward(mlc_sum(mlc_max(b, mlc_dims1(2), false), mlc_dims0(), false));
    h = mlc_where(mlc_gt_scalar(h, 0.1), h, mlc_mul(h, h));
    mlc_matmul(mlc_tanh(h), mlc_transpose(h, 0, 1));
    mlc_tensor *rows = mlc_transpose(stack_fill(MLC_BF16, mlc_dims2(300, 20)), 0, 1);
    mlc_set_requires_grad(rows, true);
    mlc_tensor *w = stack_fill(MLC_BF16, mlc_dims1(300));
    mlc_set_requires_grad(w, true);
    rows = mlc_layer_norm(mlc_log_softmax(rows, 0), w, w, 1e-5);
    rows = mlc_pad(mlc_softmax(rows, 1), mlc_dims2(2, 3), mlc_dims2(1, 1), MLC_PAD_REFLECT, 0);
    mlc_backward(mlc_sum(mlc_mul(rows, rows), mlc_dims0(), false));
    if (stack_g.status == MLC_OK) stack_g.status = mlc_scope_end(ctx);
}

/* Images: products of patches, lanes of channels, each with its blocks on the stack. A forward is a
 * function of its own, as in a program: its descs are gone when backward runs.                */
__attribute__((noinline)) static mlc_tensor *stack_forward(mlc_tensor *x, mlc_tensor *w,
                                                           mlc_tensor *deep)
{
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    mlc_conv_desc       d = mlc_conv_desc_make();
    d.padding = mlc_dims_all(3);
    d.groups = 150;
    d.act = MLC_ACT_GELU;
    mlc_tensor *y = mlc_max_pool(mlc_conv(x, w, NULL, NULL), &two);
    y = mlc_batch_norm(y, NULL, NULL, NULL, NULL, true, 0.1, 1e-5);
    return mlc_conv_transpose(mlc_avg_pool(mlc_conv(y, deep, NULL, &d), &two), w, NULL, NULL);
}

static void stack_images(mlc_ctx *ctx, mlc_dtype dtype)
{
    mlc_scope_begin(ctx);
    mlc_tensor *x = stack_fill(dtype, mlc_dims4(3, 8, 13, 14));
    mlc_tensor *w = stack_fill(dtype, mlc_dims4(150, 8, 3, 3));
    mlc_tensor *deep = stack_fill(dtype, mlc_dims4(150, 1, 7, 7));
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(deep, true);
    mlc_tensor *y = stack_forward(x, w, deep);
    mlc_backward(mlc_sum(mlc_mul(y, y), mlc_dims0(), false));
    if (stack_g.status == MLC_OK) stack_g.status = mlc_scope_end(ctx);
}

/* One of everything that a training program does.                                             */
/* Layers of integers, as evaluation in a program that trains may have them. */
static void stack_integers(mlc_ctx *ctx)
{
#if !defined(MLC_NO_QUANT) && !defined(MLC_NO_VISION)
    mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    mlc_module       *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 8, 20, 3, 1, 1));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 1280, 30));
    mlc_scope_begin(ctx);
    mlc_quantize(net, &d, NULL);
    mlc_eval_begin(net);
    mlc_forward(net, stack_fill(MLC_F32, mlc_dims4(3, 8, 8, 8)));
    mlc_scope_end(ctx);
    mlc_module_free(net);
#else
    (void)ctx;
#endif
}

static void *stack_train(void *unused)
{
    mlc_ctx    *ctx = stack_g.ctx;
    mlc_module *net = mlc_nn_sequential(ctx);
    (void)unused;
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 300));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.1));
    mlc_module_add(net, mlc_nn_linear(ctx, 300, 10));
    mlc_optim *opt = mlc_adamw(net, 1e-3);
    mlc_optim_in_backward(opt, true);
    for (int i = 0; i < 3; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = stack_fill(MLC_F32, mlc_dims2(64, 64));
        mlc_tensor *labels = mlc_zeros(ctx, MLC_I64, mlc_dims1(64));
        mlc_tensor *logits = mlc_forward(net, x);
        mlc_accuracy(logits, labels);
        mlc_backward(mlc_cross_entropy(logits, labels));
        mlc_optim_step(opt);
        if ((stack_g.status = mlc_scope_end(ctx)) != MLC_OK) break;
    }
    stack_ops(ctx);
    stack_images(ctx, MLC_F32);
    stack_images(ctx, MLC_BF16);
    if (test_on_host()) stack_integers(ctx);
    mlc_summary(net, mlc_dims2(1, 64), stack_write, NULL);
    if (test_on_host()) {
        mlc_save(net, stack_g.path);
        mlc_load(net, stack_g.path);
    }
    if (stack_g.status == MLC_OK) stack_g.status = mlc_ctx_status(ctx);
    mlc_raise(ctx, MLC_ERR_VALUE, "%s %d %g", "an error has a message", 7, 1e9);
    snprintf(stack_g.error, sizeof stack_g.error, "%s", mlc_error(ctx));
    mlc_error_clear(ctx);
    return NULL;
}

/* How much of a stack that grows down lost its fill.                                          */
static int64_t stack_used(const unsigned char *stack)
{
    int64_t at = 0;
    while (at < STACK_ROOM && stack[at] == STACK_FILL) at++;
    return STACK_ROOM - at;
}

/* Of the library: what a device's kernels are launched with is not counted. */
TEST(platform, training_fits_in_a_stack_of_16_kib_on_every_level)
{
    CHECK(true);
    if (!test_cpu_kernels()) return;
    unsigned char *stack = (unsigned char *)test_aligned_alloc(4096, STACK_ROOM);
    const char    *root = getenv("TMPDIR");
    char           path[512];
    int            fd;
    snprintf(path, sizeof path, "%s/mlcore_stack_XXXXXX", root && *root ? root : "/tmp");
    fd = mkstemp(path);
    if (!CHECK(stack != NULL && fd >= 0)) return;
    close(fd);
    stack_g.path = path;
    stack_g.status = MLC_OK;
    FOR_EACH_ISA(ctx) {
        pthread_attr_t attr;
        pthread_t      thread;
        stack_g.ctx = ctx;
        memset(stack, STACK_FILL, STACK_ROOM);
        pthread_attr_init(&attr);
        CHECK_EQ(pthread_attr_setstack(&attr, stack, STACK_ROOM), 0);
        if (!CHECK_EQ(pthread_create(&thread, &attr, stack_train, NULL), 0)) break;
        pthread_join(thread, NULL);
        pthread_attr_destroy(&attr);
        CHECK_EQ(stack_g.status, MLC_OK);
        CHECK_STR(stack_g.error, "an error has a message 7 1e+09");
        if (!CHECK(stack_used(stack) <= STACK_LIMIT))
            printf("    %" PRId64 " bytes on level %s\n", stack_used(stack),
                   mlc_isa_name(mlc_ctx_isa(ctx)));
    }
    unlink(path);
    test_aligned_free(stack);
}

#endif /* STACK_TEST */
