/* test_clock.c -- tests of the clock that tests have of their own */
#include "mlc_test.h"

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
