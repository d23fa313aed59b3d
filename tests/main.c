/* main.c -- the test program: the harness of mlc_test.h, and what tables of operations share,
 * linked with every tests/test_*.c */
#define _POSIX_C_SOURCE 200809L        /* sigaction, under -std=c11 */
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

int main(int argc, char **argv)
{
    return test_main(argc, argv);
}
