/* threads.c -- a system that refuses threads: loops run with those there are, to the same bits
 *
 * Linked into the program of io.c, with --wrap for pthread_create.
 */
#include "../mlc_test.h"

#include <errno.h>
#include <pthread.h>

static int g_allowed = -1;             /* so many more; -1: any number                          */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    if (g_allowed == 0)
        return EAGAIN;
    g_allowed -= g_allowed > 0;
    return __real_pthread_create(thread, attr, run, arg);
}

enum { SIDE = 200 };

static void product(mlc_ctx *ctx, float *out)
{
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(SIDE, SIDE), 1, -1, 1);
    CHECK_EQ(mlc_read(mlc_tanh(mlc_matmul(x, x)), out, SIDE * SIDE * sizeof *out), MLC_OK);
    CHECK_OK(ctx);
}

TEST(iofaults, threads_that_are_refused_are_done_without)
{
    static float want[SIDE * SIDE], got[SIDE * SIDE];
    mlc_ctx_desc d = test_desc();
    d.threads = 4;
    product(test_own(mlc_ctx_create(&d)), want);
    for (int allowed = 0; allowed < 4; allowed++) {
        mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
        g_allowed = allowed;
        product(ctx, got);
        g_allowed = -1;
        CHECK(memcmp(got, want, sizeof want) == 0);
        if (test_on_host())            /* the test device has no threads                       */
            CHECK_EQ(mlc_ctx_threads(ctx), allowed + 1);
        product(ctx, got);             /* and it does not ask again                            */
        CHECK(memcmp(got, want, sizeof want) == 0);
        if (test_on_host())
            CHECK_EQ(mlc_ctx_threads(ctx), allowed + 1);
    }
}
