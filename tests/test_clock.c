/* test_clock.c -- a clock of the tests' own, so that no test depends on the machine's speed
 *
 * The library reads the time by clock_gettime, which this file defines for the whole program. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "mlc_test.h"

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

TEST(clock, stands_still_until_time_passes)
{
    mlc_timer t = mlc_timer_make("own");
    CHECK(isnan(mlc_timer_mean(&t)));
    if (!test_clock_begin(0)) return;
    mlc_timer_begin(&t);
    mlc_timer_end(&t, 1);
    CHECK(mlc_timer_mean(&t) == 0);
    mlc_timer_begin(&t);
    test_clock_pass(3);
    mlc_timer_end(&t, 1);
    CHECK(mlc_timer_mean(&t) == 1.5);
    test_clock_end();
}
