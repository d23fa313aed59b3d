/* test_move.c -- CUDA.MAP and CUDA.MOVE beside the CPU's scalar kernels */
#include "kernels.h"

#include <float.h>
#include <stddef.h>

static uint64_t g_in[3][BUFFER], g_got[BUFFER], g_want[BUFFER];

static void buffers_fill(uint64_t seed)
{
    for (int p = 0; p < 3; p++)
        unit_bytes(g_in[p], sizeof g_in[p], seed + (uint64_t)p);
    unit_bytes(g_got, sizeof g_got, seed + 3);
    memcpy(g_want, g_got, sizeof g_want);
}

/* Of f64 the CPU takes denormals for 0 and a card does not: both get 0. */
static void buffers_flush(mlc_dtype dtype)
{
    for (int64_t i = 0; test_on_card() && dtype == MLC_F64 && i < 3 * BUFFER; i++)
        if (fabs(test_get(g_in[i / BUFFER], MLC_F64, i % BUFFER)) < DBL_MIN)
            test_put(g_in[i / BUFFER], MLC_F64, i % BUFFER, 0);
}

/* What the unit wrote to `out` is what the CPU wrote to g_want; the blocks of the call go back. Of
 * `dtype` is what a kernel computes, not moves.                                                 */
static bool buffers_same(unit *u, const void *out, mlc_dtype dtype, const char *what, int i, int j)
{
    unit_fetch(u, g_got, out, sizeof g_got);
    unit_return(u);
    unit_plain_nans(g_got, dtype);
    unit_plain_nans(g_want, dtype);
    return unit_same(g_got, g_want, sizeof g_got, what, i, j);
}

/* An entry of one input on both: is it the same?                                               */
#define SAME_AS_CPU(u, kernel, a, dtype, what, i, j) \
    ((a).in = g_in[0], (a).out = g_want, CHECK_EQ((u)->cpu->kernel(NULL, &(a)), MLC_OK), \
     (a).in = unit_lend(u, g_in[0], sizeof g_in[0]), \
     (a).out = unit_lend(u, g_got, sizeof g_got), \
     CHECK_EQ((u)->b.kernels.kernel((u)->dev, &(a)), MLC_OK), \
     buffers_same(u, (a).out, dtype, what, i, j))

#define SET_LAYOUT(a, l) \
    do { \
        (a).ndim = (l)->ndim; \
        memcpy((a).shape, (l)->shape, sizeof (a).shape); \
        memcpy((a).out_stride, (l)->out, sizeof (a).out_stride); \
    } while (0)

TEST(cuda, cast_has_the_bits_of_the_cpu_for_all_pairs_of_dtypes)
{
    unit u = unit_open();
    for (int pair = 0; pair < MLC_DTYPE_COUNT * MLC_DTYPE_COUNT; pair++)
        for (int i = 0; i < LAYOUT_COUNT; i++) {
            struct mlc_k_cast a;
            memset(&a, 0, sizeof a);
            a.out_dtype = (mlc_dtype)(pair / MLC_DTYPE_COUNT);
            a.in_dtype = (mlc_dtype)(pair % MLC_DTYPE_COUNT);
            SET_LAYOUT(a, LAYOUTS + i);
            memcpy(a.in_stride, LAYOUTS[i].in, sizeof a.in_stride);
            buffers_fill((uint64_t)pair);
            if (!SAME_AS_CPU(&u, cast, a, a.out_dtype, "pair, layout", pair, i))
                break;
        }
    unit_close(&u);
}

TEST(cuda, cast_rounds_every_f16_and_bf16_as_the_cpu)
{
    static uint16_t half[65536];
    static float    want[65536], got[65536];
    unit            u = unit_open();
    for (int i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    for (int d = 0; d < 2; d++) {
        struct mlc_k_cast a;
        memset(&a, 0, sizeof a);
        a.out_dtype = MLC_F32;
        a.in_dtype = d ? MLC_F16 : MLC_BF16;
        a.ndim = 1;
        a.shape[0] = 65536;
        a.out_stride[0] = a.in_stride[0] = 1;
        a.in = half;
        a.out = want;
        CHECK_EQ(u.cpu->cast(NULL, &a), MLC_OK);
        a.in = unit_lend(&u, half, sizeof half);
        a.out = unit_lend(&u, got, sizeof got);
        CHECK_EQ(u.b.kernels.cast(u.dev, &a), MLC_OK);
        unit_fetch(&u, got, a.out, sizeof got);
        unit_return(&u);
        for (int i = 0; i < 65536; i += BUFFER) {
            unit_plain_nans(got + i, MLC_F32);
            unit_plain_nans(want + i, MLC_F32);
        }
        unit_same(got, want, sizeof got, "dtype", d, 0);
    }
    unit_close(&u);
}

/* Scalars that a dtype has, rounds, or has not. */
static const double SCALARS[] = {0, 1, 3, -2, 0.5, 1e19, NO_NUMBER};

TEST(cuda, compare_has_the_bits_of_the_cpu)
{
    unit u = unit_open();
    for (int i = 0; i < 13 * MLC_DTYPE_COUNT * 4; i++) {
        struct mlc_k_compare a;
        const layout        *l = LAYOUTS + i % LAYOUT_COUNT;
        memset(&a, 0, sizeof a);
        a.op = (mlc_compare)(i % 13);
        a.dtype = (mlc_dtype)(i / 13 % MLC_DTYPE_COUNT);
        a.s = SCALARS[i % 7];
        SET_LAYOUT(a, l);
        memcpy(a.in_stride[0], l->in, sizeof a.in_stride[0]);
        memcpy(a.in_stride[1], l->in, sizeof a.in_stride[1]);
        buffers_fill((uint64_t)i);
        buffers_flush(a.dtype);
        memcpy(g_in[1], g_in[0], sizeof g_in[0] / 4);      /* some are equal */
        a.in[0] = g_in[0];
        a.in[1] = i & 1 ? g_in[1] : NULL;
        a.out = (uint8_t *)g_want;
        CHECK_EQ(u.cpu->compare(NULL, &a), MLC_OK);
        a.in[0] = unit_lend(&u, g_in[0], sizeof g_in[0]);
        a.in[1] = unit_lend(&u, i & 1 ? g_in[1] : NULL, sizeof g_in[1]);
        a.out = (uint8_t *)unit_lend(&u, g_got, sizeof g_got);
        CHECK_EQ(u.b.kernels.compare(u.dev, &a), MLC_OK);
        buffers_same(&u, a.out, MLC_U8, "case, dtype", i, (int)a.dtype);
    }
    unit_close(&u);
}

TEST(cuda, where_has_the_bits_of_the_cpu)
{
    unit u = unit_open();
    for (int i = 0; i < LAYOUT_COUNT * MLC_DTYPE_COUNT * 4; i++) {
        struct mlc_k_where a;
        const layout      *l = LAYOUTS + i % LAYOUT_COUNT;
        const int          kind = i / LAYOUT_COUNT / MLC_DTYPE_COUNT;
        memset(&a, 0, sizeof a);
        a.dtype = (mlc_dtype)(i / LAYOUT_COUNT % MLC_DTYPE_COUNT);
        a.s = 1.7;
        a.accumulate = kind == 3 && (a.dtype == MLC_F32 || a.dtype == MLC_F64 ||
                                     a.dtype == MLC_BF16 || a.dtype == MLC_F16);
        SET_LAYOUT(a, l);
        memcpy(a.mask_stride, kind & 1 ? l->in : l->out, sizeof a.mask_stride);
        memcpy(a.in_stride[0], l->in, sizeof a.in_stride[0]);
        memcpy(a.in_stride[1], l->out, sizeof a.in_stride[1]);
        buffers_fill((uint64_t)i);
        if (a.accumulate) {            /* numbers, or NaN have bits of whoever came first */
            for (int64_t e = 0; e < BUFFER; e++)
                for (int p = 0; p < 4; p++)
                    test_put(p < 3 ? g_in[p] : g_got, a.dtype, e, test_random(5, e + p, -9, 9));
            memcpy(g_want, g_got, sizeof g_want);
        }
        for (int e = 0; e < BUFFER; e += 3)
            ((uint8_t *)g_in[2])[e] = 0;
        a.mask = (const uint8_t *)g_in[2];
        a.in[0] = kind == 1 ? NULL : g_in[0];
        a.in[1] = kind == 2 ? NULL : g_in[1];
        a.out = g_want;
        CHECK_EQ(u.cpu->where(NULL, &a), MLC_OK);
        a.mask = (const uint8_t *)unit_lend(&u, g_in[2], sizeof g_in[2]);
        for (int p = 0; p < 2; p++)
            a.in[p] = unit_lend(&u, a.in[p], sizeof g_in[p]);
        a.out = unit_lend(&u, g_got, sizeof g_got);
        CHECK_EQ(u.b.kernels.where(u.dev, &a), MLC_OK);
        buffers_same(&u, a.out, MLC_U8, "case, dtype", i, (int)a.dtype);
    }
    unit_close(&u);
}

TEST(cuda, fill_has_the_bits_of_the_cpu)
{
    unit u = unit_open();
    for (int i = 0; i < MLC_DTYPE_COUNT * 5 * 3; i++) {
        static const int64_t sizes[] = {0, 1, 17, 1000, 4000};
        struct mlc_k_fill    a;
        const size_t         off = i % 2 ? 8 : 0;          /* not a multiple of 16 */
        memset(&a, 0, sizeof a);
        a.dtype = (mlc_dtype)(i % MLC_DTYPE_COUNT);
        a.n = sizes[i / MLC_DTYPE_COUNT % 5];
        a.start = i / 45 ? -2.7 : 0;
        a.step = i / 45 == 2 ? 0.1 : 0;
        a.origin = 3;
        buffers_fill((uint64_t)i);
        a.out = (char *)g_want + off;
        CHECK_EQ(u.cpu->fill(NULL, &a), MLC_OK);
        void *p = unit_lend(&u, g_got, sizeof g_got);
        a.out = (char *)p + off;
        CHECK_EQ(u.b.kernels.fill(u.dev, &a), MLC_OK);
        buffers_same(&u, p, MLC_U8, "case, dtype", i, (int)a.dtype);
    }
    unit_close(&u);
}

TEST(cuda, band_has_the_bits_of_the_cpu)
{
    static const int64_t bands[][2] = {
        {0, 0}, {-1, 2}, {INT64_MIN, 0}, {1, INT64_MAX}, {50, 60}, {INT64_MIN, INT64_MAX}};
    unit u = unit_open();
    for (int i = 0; i < LAYOUT_COUNT * 6 * 4; i++) {
        static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_BOOL};
        struct mlc_k_band      a;
        const layout          *l = LAYOUTS + i % LAYOUT_COUNT;
        if (l->ndim < 2)
            continue;
        memset(&a, 0, sizeof a);
        a.dtype = dtypes[i / LAYOUT_COUNT % 4];
        a.lo = bands[i / LAYOUT_COUNT / 4][0];
        a.hi = bands[i / LAYOUT_COUNT / 4][1];
        SET_LAYOUT(a, l);
        memcpy(a.in_stride, l->in, sizeof a.in_stride);
        buffers_fill((uint64_t)i);
        SAME_AS_CPU(&u, band, a, MLC_U8, "case, dtype", i, (int)a.dtype);
    }
    unit_close(&u);
}

TEST(cuda, pad_has_the_bits_of_the_cpu)
{
    static const int64_t in[][3] = {{3, 4, 5}, {4, 7, 6}, {1, 3, 16}, {6, 5, 1}};
    static const int64_t border[][6] = {
        {0, 0, 0, 0, 0, 0}, {0, 0, 1, 2, 0, 0}, {0, 0, 2, 1, 0, 0}, {0, 0, 0, 0, 0, 0}};
    unit u = unit_open();
    for (int i = 0; i < 4 * 4 * 4 * 2; i++) {
        static const mlc_dtype dtypes[] = {MLC_F32, MLC_I64, MLC_F16, MLC_U8};
        struct mlc_k_pad       a;
        const int              at = i / 4 % 4;
        const bool             constant = i / 64 != 0;
        memset(&a, 0, sizeof a);
        a.dtype = dtypes[i % 4];
        a.mode = constant ? MLC_PAD_CONSTANT : (mlc_pad_mode)(i / 16 % 4);
        a.ndim = 3;
        a.value = 2.5;
        for (int d = 0; d < 3; d++) {
            a.in_shape[d] = in[at][d];
            a.before[d] = constant ? i / 16 % 4 - 1 : border[at][2 * d];
            a.shape[d] = a.in_shape[d] + a.before[d] + (constant ? 2 : border[at][2 * d + 1]);
        }
        a.in_stride[2] = i & 1 ? 1 : in[at][1];
        a.in_stride[1] = i & 1 ? in[at][2] : 1;
        a.in_stride[0] = in[at][1] * in[at][2];
        buffers_fill((uint64_t)i);
        SAME_AS_CPU(&u, pad, a, MLC_U8, "case, dtype", i, (int)a.dtype);
    }
    unit_close(&u);
}

TEST(cuda, whole_has_the_bits_of_the_cpu_and_says_where_a_divisor_is_0)
{
    unit u = unit_open();
    for (int i = 0; i < 9 * 2 * LAYOUT_COUNT * 2; i++) {
        struct mlc_k_whole a;
        const layout      *l = LAYOUTS + i / 18 % LAYOUT_COUNT;
        const bool         zero = i / 18 / LAYOUT_COUNT != 0;
        int64_t            error[2] = {0, 0};
        memset(&a, 0, sizeof a);
        a.op = (mlc_whole)(i % 9);
        a.dtype = i / 9 % 2 ? MLC_I64 : MLC_I32;
        a.s = -7;
        a.kind = 5;
        SET_LAYOUT(a, l);
        memcpy(a.in_stride[0], l->in, sizeof a.in_stride[0]);
        memcpy(a.in_stride[1], l->out, sizeof a.in_stride[1]);
        buffers_fill((uint64_t)i);
        for (int64_t e = 0; e < BUFFER; e++)               /* small divisors, some -1 */
            test_put(g_in[1], a.dtype, e, e % 5 == 1 ? -1 : (double)(e % 9 + 1));
        if (zero)
            test_put(g_in[1], a.dtype, 0, 0);
        const bool scalar = a.op < MLC_WHOLE_FLOOR_DIV && i % 2;
        a.in[0] = g_in[0];
        a.in[1] = scalar ? NULL : g_in[1];
        a.out = g_want;
        a.error = error;
        CHECK_EQ(u.cpu->whole(NULL, &a), MLC_OK);
        a.in[0] = unit_lend(&u, g_in[0], sizeof g_in[0]);
        a.in[1] = unit_lend(&u, a.in[1], sizeof g_in[1]);
        a.out = unit_lend(&u, g_got, sizeof g_got);
        error[1] = 0;
        a.error = (int64_t *)unit_lend(&u, error + 1, sizeof *error);
        CHECK_EQ(u.b.kernels.whole(u.dev, &a), MLC_OK);
        unit_fetch(&u, g_got, a.out, sizeof g_got);
        unit_fetch(&u, error + 1, a.error, sizeof *error);
        unit_return(&u);
        CHECK_EQ(error[1], error[0]);
        unit_same(g_got, g_want, sizeof g_got, "op, case", i % 9, i / 18);
    }
    unit_close(&u);
}

/* ---- map and math ------------------------------------------------------------------------- */

static bool map_near(double got, double want, double tol)
{
    if (isnan(got) || isnan(want) || isinf(got) || isinf(want))
        return (isnan(got) && isnan(want)) || got == want;
    return fabs(got - want) <= tol * (fabs(want) > 1 ? fabs(want) : 1);
}

/* Element e of a formula is that of the CPU. A card's pow and exp are less exact, and it makes a
 * product and a sum by one fma: where huge numbers cancel, the rest is of their size.           */
static bool map_agrees(mlc_dtype dtype, int64_t e, double tol)
{
    const double got = test_get(g_got, dtype, e), want = test_get(g_want, dtype, e);
    double       most = 1;
    if (!test_on_card() || map_near(got, want, tol))
        return map_near(got, want, tol);
    for (int p = 0; p < 3; p++) {
        const double x = fabs(test_get(g_in[p], dtype, e));
        if (isfinite(x)) most = fmax(most, x);
    }
    return fabs(got - want) <= 4 * tol * fmax(most, fabs(want));
}

/* One formula on the CPU and on the device. */
static void map_runs(unit *u, struct mlc_k_map *a, double s, bool of_device)
{
    struct mlc_k_math m;
    const void       *in[3] = {a->in[0], a->in[1], a->in[2]};
    const bool        math = a->op >= MLC_MAP_COUNT;
    a->s = s;
    a->out = g_want;
    m.map = *a;
    CHECK_EQ(math ? u->cpu->math(NULL, &m) : u->cpu->map(NULL, a), MLC_OK);
    if (of_device) {
        a->s = 77;
        a->s_dev = (const double *)unit_lend(u, &s, sizeof s);
    }
    for (int p = 0; p < 3; p++)
        a->in[p] = unit_lend(u, in[p], sizeof g_in[p]);
    a->out = unit_lend(u, g_got, sizeof g_got);
    m.map = *a;
    CHECK_EQ(math ? u->b.kernels.math(u->dev, &m) : u->b.kernels.map(u->dev, a), MLC_OK);
    unit_fetch(u, g_got, a->out, sizeof g_got);
    unit_return(u);
}

TEST(cuda, formulas_agree_with_the_cpu_in_all_dtypes_and_layouts)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static const double    tols[] = {1e-5, 1e-13, 0.016, 0.002};
    static const double    odd[] = {0, 1, -1, INF, -INF, NO_NUMBER, 0.5, 3e38, -30};
    unit u = unit_open();
    for (int op = 0; op < MLC_MATH_END; op++)
        for (int i = 0; i < 2 * LAYOUT_COUNT; i++) {
            const layout    *l = LAYOUTS + i % LAYOUT_COUNT;
            const int        d = (op + i) % 4;
            const size_t     size = mlc_dtype_bytes(dtypes[d]);
            struct mlc_k_map a;
            int64_t          worst = -1;
            if (op == MLC_MAP_COUNT)                       /* its place is MATH's first */
                CHECK_EQ(MLC_MAP_COUNT, MLC_MATH_ABS);
            memset(&a, 0, sizeof a);
            a.op = (mlc_map)op;
            a.dtype = dtypes[d];
            a.t = 0.25;
            a.accumulate = i & 1;
            SET_LAYOUT(a, l);
            for (int p = 0; p < 3; p++) {
                memcpy(a.in_stride[p], p == 1 ? l->out : l->in, sizeof a.in_stride[p]);
                a.in[p] = g_in[p];
                for (int64_t e = 0; e < BUFFER; e++)
                    test_put(g_in[p], a.dtype, e, e % 7 ? test_random((uint64_t)p + 1, e, -3, 3)
                                                        : odd[e / 7 % 9]);
            }
            for (int64_t e = 0; e < BUFFER; e++)
                test_put(g_got, a.dtype, e, test_random(4, e, -1, 1));
            memcpy(g_want, g_got, sizeof g_want);
            map_runs(&u, &a, i % 3 == 0 ? 2 : 0.75, i % 4 == 1);
            for (int64_t e = 0; e < BUFFER && worst < 0; e++)
                if (!map_agrees(a.dtype, e, tols[d]))
                    worst = e;
            CHECK(memcmp((char *)g_got + BUFFER * size, (char *)g_want + BUFFER * size,
                         sizeof g_got - BUFFER * size) == 0);
            if (!CHECK(worst < 0)) {
                printf("  op %d dtype %d layout %d at %d: %g, want %g\n", op, d, i, (int)worst,
                       test_get(g_got, a.dtype, worst), test_get(g_want, a.dtype, worst));
                break;
            }
        }
    unit_close(&u);
}
