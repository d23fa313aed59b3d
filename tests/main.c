/* main.c -- the test program: the harness of mlc_test.h, linked with every tests/test_*.c */
#define _POSIX_C_SOURCE 200809L        /* sigaction, under -std=c11 */
#define MLC_TEST_MAIN
#include "mlc_test.h"

int main(int argc, char **argv)
{
    return test_main(argc, argv);
}
