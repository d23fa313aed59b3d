/* test_speed.c -- five rows that may not take twice what they took
 *
 * A row's time is compared with that of a loop of the same kind: products, reads and writes, roots
 * and quotients, polynomials. Times are the processor's for this thread, which stand still while
 * others run, of many short runs of both in turns; of each the time counts that one run in eight is
 * below: the least of all may be wrong where a thread moved to another processor. A row fails only
 * where its ratio is over twice the stored one after all tries. Ratios are of an AMD EPYC 9004
 * (Zen 4); other processors have others, so that the test runs only where it is asked for by
 * MLC_TEST_SPEED=1, as .ci/full does on such a processor. MLC_TEST_SPEED=2 prints the ratios.
 */
#define _POSIX_C_SOURCE 200809L
#include "mlc_test.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__OPTIMIZE__) && !defined(MLC_NO_SIMD)
#include <immintrin.h>
#include <time.h>

#if defined(MLC_USE_CBLAS)
enum { FIRST = 2 };                    /* a library's products are its own                     */
#else
enum { FIRST = 0 };
#endif
enum { FLOATS = 16384, SHORT = 8, TRIES = 200, LEAST = 4 };

static float g_x[FLOATS] __attribute__((aligned(64))), g_y[FLOATS] __attribute__((aligned(64))),
             g_to[FLOATS] __attribute__((aligned(64)));

/* Ten sums of products in registers; z = x + y; x / (sqrt(x) + y); 12 steps of Horner for each. */
#define LOOPS(level, isa, vec, p, n) \
    static __attribute__((target(isa), noinline)) void products_##level(void) \
    { \
        const vec x = p##_load_ps(g_x), y = p##_load_ps(g_y); \
        vec       a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x; \
        for (int k = 0; k < 8192; k++) { \
            a = p##_fmadd_ps(a, x, y); b = p##_fmadd_ps(b, x, y); c = p##_fmadd_ps(c, x, y); \
            d = p##_fmadd_ps(d, x, y); e = p##_fmadd_ps(e, x, y); f = p##_fmadd_ps(f, x, y); \
            g = p##_fmadd_ps(g, x, y); h = p##_fmadd_ps(h, x, y); i = p##_fmadd_ps(i, x, y); \
            j = p##_fmadd_ps(j, x, y); \
        } \
        a = p##_add_ps(p##_add_ps(p##_add_ps(a, b), p##_add_ps(c, d)), p##_add_ps(e, f)); \
        a = p##_add_ps(a, p##_add_ps(p##_add_ps(g, h), p##_add_ps(i, j))); \
        p##_store_ps(g_to, a); \
    } \
    static __attribute__((target(isa), noinline)) void streams_##level(void) \
    { \
        for (int k = 0; k < 16; k++) \
            for (int i = 0; i < FLOATS; i += 2 * n) { \
                const vec a = p##_add_ps(p##_load_ps(g_x + i), p##_load_ps(g_y + i)); \
                const vec b = p##_add_ps(p##_load_ps(g_x + i + n), p##_load_ps(g_y + i + n)); \
                p##_store_ps(g_to + i, a); \
                p##_store_ps(g_to + i + n, b); \
            } \
    } \
    static __attribute__((target(isa), noinline)) void roots_##level(void) \
    { \
        for (int k = 0; k < 4; k++) \
            for (int i = 0; i < FLOATS; i += n) { \
                const vec x = p##_load_ps(g_x + i), y = p##_load_ps(g_y + i); \
                p##_store_ps(g_to + i, p##_div_ps(x, p##_add_ps(p##_sqrt_ps(x), y))); \
            } \
    } \
    static __attribute__((target(isa), noinline)) void powers_##level(void) \
    { \
        const vec y = p##_load_ps(g_y); \
        for (int k = 0; k < 4; k++) \
            for (int i = 0; i < FLOATS; i += 4 * n) { \
                const vec x = p##_load_ps(g_x + i), v = p##_load_ps(g_x + i + n); \
                const vec w = p##_load_ps(g_x + i + 2 * n), z = p##_load_ps(g_x + i + 3 * n); \
                vec a = y, b = y, c = y, d = y; \
                for (int h = 0; h < 12; h++) { \
                    a = p##_fmadd_ps(a, x, y); b = p##_fmadd_ps(b, v, y); \
                    c = p##_fmadd_ps(c, w, y); d = p##_fmadd_ps(d, z, y); \
                } \
                p##_store_ps(g_to + i, a); \
                p##_store_ps(g_to + i + n, b); \
                p##_store_ps(g_to + i + 2 * n, c); \
                p##_store_ps(g_to + i + 3 * n, d); \
            } \
    }

LOOPS(avx2, "avx2,fma", __m256, _mm256, 8)
LOOPS(avx512, "avx512f", __m512, _mm512, 16)

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct parts {                 /* what the rows work on                                */
    mlc_tensor *x, *w, *image, *filter, *y;
    mlc_module *net;
    mlc_optim  *opt;
} parts;

static void row_matmul(const parts *p) { mlc_matmul(p->x, p->w); }
static void row_conv(const parts *p)
{
    mlc_conv_desc d = mlc_conv_desc_make();
    d.padding = mlc_dims2(1, 1);
    mlc_conv(p->image, p->filter, NULL, &d);
}
static void row_add(const parts *p)
{
    for (int i = 0; i < 16; i++) mlc_add_(p->y, p->x);
}
static void row_softmax(const parts *p)
{
    for (int i = 0; i < 4; i++) mlc_softmax(p->x, 1);
}
static void row_adamw(const parts *p)
{
    mlc_backward(mlc_sum_all(mlc_module_param(p->net, "weight")));
    mlc_optim_step(p->opt);
}

typedef struct row {
    const char *name;
    void (*run)(const parts *);
    void (*like[2])(void);             /* of avx2, of avx512                                   */
    double      ratio[2];
} row;

static const row ROWS[5] = {
    {"matmul 64 x 256 x 256", row_matmul, {products_avx2, products_avx512}, {7.5, 7.8}},
    {"conv 32 of 32 x 16 x 16, 3 x 3", row_conv, {products_avx2, products_avx512}, {4.5, 3.8}},
    {"add_ 16384", row_add, {streams_avx2, streams_avx512}, {0.74, 0.74}},
    {"softmax 64 x 256", row_softmax, {powers_avx2, powers_avx512}, {2.34, 1.79}},
    {"adamw 16384", row_adamw, {roots_avx2, roots_avx512}, {0.66, 0.65}},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The times of a row and of its loop, of all tries.                                            */
typedef struct times { double own[TRIES * SHORT], like[TRIES * SHORT]; int n; } times;

static void measure(mlc_ctx *ctx, const row *r, const parts *p, int level, times *t)
{
    for (int i = 0; i < SHORT; i++, t->n++) {
        const double a = now();
        r->like[level]();
        const double b = now();
        mlc_scope_begin(ctx);
        r->run(p);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        t->own[t->n] = now() - b;
        t->like[t->n] = b - a;
    }
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How many times its loop a row takes.                                                         */
static double ratio_of(times *t)
{
    qsort(t->own, (size_t)t->n, sizeof *t->own, by_size);
    qsort(t->like, (size_t)t->n, sizeof *t->like, by_size);
    return t->own[t->n / 8] / t->like[t->n / 8];
}

static parts parts_of(mlc_ctx *ctx)
{
    parts p = {test_rand(ctx, MLC_F32, mlc_dims2(64, 256), 1, -1, 1),
               test_rand(ctx, MLC_F32, mlc_dims2(256, 256), 2, -1, 1),
               test_rand(ctx, MLC_F32, mlc_dims4(1, 32, 16, 16), 3, -1, 1),
               test_rand(ctx, MLC_F32, mlc_dims4(32, 32, 3, 3), 4, -1, 1),
               test_rand(ctx, MLC_F32, mlc_dims2(64, 256), 5, -1, 1),
               mlc_nn_linear(ctx, 128, 128), NULL};
    p.opt = mlc_adamw(p.net, 1e-6);
    return p;
}

/* Tries of a row, each with memory of its own; between those after the first LEAST there is time
 * for what else the machine does to end. */
static void check_row(const row *r, mlc_isa isa, int level, bool print)
{
    const struct timespec pause = {0, 20000000};
    mlc_ctx_desc          d = test_desc();
    static times          t;
    double                ratio = 1e9;
    t.n = 0;
    d.isa = isa;
    d.threads = 1;
    for (int i = 0; i < TRIES && (print || i < LEAST || ratio > 2 * r->ratio[level]); i++) {
        mlc_ctx *ctx = mlc_ctx_create(&d);
        if (!CHECK(ctx != NULL)) return;
        const parts p = parts_of(ctx);
        if (i >= LEAST && !print) nanosleep(&pause, NULL);
        measure(ctx, r, &p, level, &t);
        ratio = ratio_of(&t);
        CHECK_OK(ctx);
        mlc_ctx_free(ctx);
    }
    if (!print && CHECK(ratio <= 2 * r->ratio[level])) return;
    printf("%s on %s: %.3f times its loop, stored is %.2f\n", r->name, mlc_isa_name(isa), ratio,
           r->ratio[level]);
}

TEST(speed, five_rows_take_less_than_twice_their_time)
{
    const char *asked = getenv("MLC_TEST_SPEED");
    CHECK(true);
    if (!asked || !*asked || !test_on_host()) return;
    for (int i = 0; i < FLOATS; i++) {
        g_x[i] = 0.5f + 0.25f * (float)(i % 3);
        g_y[i] = 0.25f;
    }
    for (int level = 0; level < 2; level++) {
        const mlc_isa isa = level ? MLC_ISA_AVX512 : MLC_ISA_AVX2;
        if (test_isa_top() < isa || !mlc_cpu_kernels(isa)) continue;
        for (int i = FIRST; i < 5; i++) check_row(&ROWS[i], isa, level, *asked == '2');
    }
}
#else
TEST(speed, five_rows_take_less_than_twice_their_time) { CHECK(true); }
#endif
