/* test_random.c -- CUDA.RANDOM: the numbers of the CPU's scalar kernels, bit for bit */
#include "kernels.h"

#define MOST 5000

static uint64_t g_in[MOST], g_got[MOST + 2], g_want[MOST + 2];

/* Normals of f64 come from the card's log, sin and cos: those that differ in last bits alone are
 * made the same.                                                                                */
static void normals_near(int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (fabs(test_get(g_got, MLC_F64, i) - test_get(g_want, MLC_F64, i)) <= 1e-14)
            g_got[i] = g_want[i];
}

/* Bits of n values on the device; they are elements off .. of a buffer that is compared whole. */
static bool random_holds(unit *u, struct mlc_k_random a, uint64_t base, int64_t off)
{
    const size_t size = mlc_dtype_bytes(a.dtype);
    size_t       bytes;
    memset(g_got, 0x5a, sizeof g_got);
    memset(g_want, 0x5a, sizeof g_want);
    a.out = (char *)g_want + (size_t)off * size;
    a.stream += base;
    const mlc_status st = u->cpu->random(NULL, &a);
    a.stream -= base;
    a.stream_base = base ? (const uint64_t *)unit_lend(u, &base, sizeof base) : NULL;
    char *p = (char *)unit_lend(u, g_got, sizeof g_got);
    a.out = p + (size_t)off * size;
    bytes = u->b.kernels.random_workspace(u->dev, &a);
    a.workspace = bytes ? unit_lend(u, g_in, bytes) : NULL;
    a.workspace_bytes = bytes;
    CHECK_EQ(u->b.kernels.random(u->dev, &a), st);
    unit_fetch(u, g_got, p, sizeof g_got);
    unit_return(u);
    if (test_on_card() && a.kind == MLC_RANDOM_NORMAL && a.dtype == MLC_F64)
        normals_near(a.n + off);
    return unit_same(g_got, g_want, sizeof g_got, "kind, dtype", (int)a.kind, (int)a.dtype);
}

TEST(cuda, random_numbers_have_the_bits_of_the_cpu)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 130, 1027};
    unit                 u = unit_open();
    for (int kind = 0; kind < MLC_RANDOM_PERMUTATION; kind++)
        for (int type = 0; type < MLC_DTYPE_COUNT; type++)
            for (int i = 0; i < 7 * 3; i++) {
                struct mlc_k_random a;
                memset(&a, 0, sizeof a);
                a.kind = (mlc_random)kind;
                a.dtype = (mlc_dtype)type;
                a.n = sizes[i % 7];
                a.seed = 0x123456789abcull + (uint64_t)i;
                a.stream = 0xfffffffffull;
                a.a = kind == MLC_RANDOM_BERNOULLI ? i / 7 * 0.5 : i / 7 - 1;
                a.b = i / 7 + 0.3;
                a.lo = i / 7 - 1.5;
                a.hi = i / 7 == 2 ? INF : 2;
                a.first = -5;
                a.count = i / 7 ? 12 : 1ull << 60;
                if (!random_holds(&u, a, i % 2 ? 77 : 0, i % 3 == 1))
                    break;
            }
    unit_close(&u);
}

TEST(cuda, permutations_are_those_of_the_cpu)
{
    unit u = unit_open();
    for (int64_t n = 0; n <= MOST / 2; n += n < 40 ? 1 : 820) {
        struct mlc_k_random a;
        memset(&a, 0, sizeof a);
        a.kind = MLC_RANDOM_PERMUTATION;
        a.dtype = MLC_I64;
        a.n = n;
        a.seed = (uint64_t)n;
        a.stream = 3;
        random_holds(&u, a, n % 2 ? 5 : 0, 0);
    }
    unit_close(&u);
}

TEST(cuda, a_permutation_without_workspace_is_an_internal_error)
{
    unit                u = unit_open();
    struct mlc_k_random a;
    memset(&a, 0, sizeof a);
    a.kind = MLC_RANDOM_PERMUTATION;
    a.dtype = MLC_I64;
    a.n = 10;
    a.out = unit_lend(&u, g_got, sizeof g_got);
    CHECK_EQ(u.b.kernels.random(u.dev, &a), MLC_ERR_INTERNAL);
    unit_close(&u);
}

TEST(cuda, dropout_has_the_bits_of_the_cpu)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static const double    chances[] = {0, 0.3, 0.9999999, 1};
    unit                   u = unit_open();
    for (int i = 0; i < 4 * 4 * 2 * 5; i++) {
        static const int64_t sizes[] = {0, 1, 6, 1000, 2051};
        struct mlc_k_dropout a;
        const uint64_t       base = i % 3;
        memset(&a, 0, sizeof a);
        a.dtype = dtypes[i % 4];
        a.p = chances[i / 4 % 4];
        a.accumulate = i / 16 % 2;
        a.n = sizes[i / 32];
        a.seed = 9;
        const size_t size = mlc_dtype_bytes(a.dtype), off = i % 5 == 1 ? size : 0;
        for (int64_t e = 0; e < MOST; e++) {
            test_put(g_in, a.dtype, e, e == 5 ? INF : test_random(1, e, -2, 2));
            test_put(g_got, a.dtype, e, test_random(2, e, -2, 2));
        }
        memcpy(g_want, g_got, sizeof g_got);
        a.in = (char *)g_in + off;
        a.out = (char *)g_want + off;
        a.stream = 40 + base;
        CHECK_EQ(u.cpu->dropout(NULL, &a), MLC_OK);
        a.stream = 40;
        a.stream_base = base ? (const uint64_t *)unit_lend(&u, &base, sizeof base) : NULL;
        char *p = (char *)unit_lend(&u, g_got, sizeof g_got);
        a.in = (char *)unit_lend(&u, g_in, sizeof g_in) + off;
        a.out = p + off;
        CHECK_EQ(u.b.kernels.dropout(u.dev, &a), MLC_OK);
        unit_fetch(&u, g_got, p, sizeof g_got);
        unit_return(&u);
        unit_same(g_got, g_want, sizeof g_got, "case, dtype", i, (int)a.dtype);
    }
    unit_close(&u);
}
