/* main.c -- the test program: the harness of mlc_test.h, and what tables of operations share,
 * linked with every tests/test_*.c */
#define _GNU_SOURCE                    /* sigaction, syscall, under -std=c11 */
#define MLC_TEST_MAIN
#include "mlc_test.h"
#include "ops.h"

mlc_tensor *op_look(mlc_tensor *t, char layout)
{
    int64_t shape[MLC_MAX_DIMS] = {2};
    if (layout == 'T')
        return mlc_transpose(t, -1, -2);
    if (layout == 'S')
        return mlc_slice(t, -1, 1, INT64_MAX, 2);
    if (layout != 'E' || t == NULL)
        return t;
    memcpy(shape + 1, t->shape, sizeof *shape * (size_t)t->ndim);
    return mlc_expand(t, mlc_dims_of(t->ndim + 1, shape));
}

/* Lines for tests/matrix.py, where it asks for them. */
void op_seen(const char *what, const char *name, const char *detail)
{
    if (getenv("MLC_TEST_MATRIX") != NULL)
        printf("@ %s %s %s\n", what, name, detail);
}

/* ---- a clock of the tests' own -----------------------------------------------------------------
 * The library reads the time by clock_gettime, which is this one in the whole program. */

#if defined(__linux__) && defined(__LP64__)
#include <sys/syscall.h>
#include <unistd.h>

static bool   g_own;                   /* else the system's                                    */
static double g_now, g_step;

int clock_gettime(clockid_t id, struct timespec *to)
{
    struct timespec now = {0, 0};
    int             status = 0;
    if (!g_own) {
        status = (int)syscall(SYS_clock_gettime, id, &now);
    } else {
        g_now += g_step;
        now.tv_sec = (time_t)g_now;
        now.tv_nsec = (long)((g_now - (double)now.tv_sec) * 1e9 + 0.5);
    }
    *to = now;
    return status;
}

bool test_clock_begin(double step)
{
    g_own = true;
    g_now = 1024;
    g_step = step;
    return true;
}

void test_clock_pass(double seconds) { g_now += seconds; }
void test_clock_end(void) { g_own = false; }
#else
bool test_clock_begin(double step) { (void)step; return false; }
void test_clock_pass(double seconds) { (void)seconds; }
void test_clock_end(void) {}
#endif

int main(int argc, char **argv)
{
    return test_main(argc, argv);
}
