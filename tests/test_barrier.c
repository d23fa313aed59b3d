/* test_barrier.c -- tests of section IMPL.THREADS, regions whose chunks wait for one another, and
 * of MLC_VSNPRINTF
 *
 * The functions of the former are private, the latter is for a file with the implementation: this
 * one has an implementation of its own, portable and small.
 */
#include <stdarg.h>
#include <stddef.h>

static int own_vsnprintf(char *to, size_t n, const char *format, va_list args);

#define MLC_VSNPRINTF own_vsnprintf
#define MLCORE_STATIC
#define MLC_NO_SIMD
#define MLC_ONLY_F32
#define MLCORE_IMPLEMENTATION
#include "mlc_test.h"

enum { MOST = 64, ROUNDS = 200 };

/* In each round a chunk takes over what its neighbour had after the round before, plus one. */
typedef struct ring {
    mlc__region region;
    int64_t     value[2][MOST];
    int32_t     worker[MOST];
    void       *dev;
} ring;

static void ring_chunk(void *arg, int64_t chunk, int32_t worker)
{
    ring         *r = (ring *)arg;
    const int64_t n = (int64_t)r->region.chunks;
    r->worker[chunk] = worker;
    for (int64_t i = 0; i < ROUNDS; i++) {
        r->value[(i + 1) % 2][chunk] = r->value[i % 2][(chunk + 1) % n] + 1;
        mlc__barrier(&r->region);
    }
}

static mlc_ctx *threads_ctx(int32_t threads)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = threads;
    return mlc_ctx_create(&d);
}

static void check_ring(mlc_ctx *ctx, double ns, uint32_t chunks)
{
    static ring r;
    memset(&r, 0, sizeof r);
    mlc__together(mlc__ctx_pool(ctx), &r.region, ns, ring_chunk, &r);
    CHECK_EQ(r.region.chunks, chunks);
    for (uint32_t i = 0; i < chunks; i++) {
        CHECK_EQ(r.value[ROUNDS % 2][i], ROUNDS);
        for (uint32_t k = 0; k < i; k++) CHECK(r.worker[i] != r.worker[k]);
    }
}

TEST(threads, chunks_of_a_region_wait_for_one_another)
{
    for (int32_t threads = 1; threads <= 5; threads += 2) {
        mlc_ctx *ctx = threads_ctx(threads);
        if (!CHECK(ctx != NULL)) return;
        for (int i = 0; i < 5; i++)
#ifdef MLC_NO_THREADS
            check_ring(ctx, 1e6, 1);
#else
            check_ring(ctx, 1e6, (uint32_t)threads);
#endif
        check_ring(ctx, 1, 1);         /* too short to pay */
        mlc_ctx_free(ctx);
    }
}

static ring g_inner[MOST];

/* A region inside one: a chunk of its own, whose barrier waits for no other. */
static void outer_chunk(void *arg, int64_t chunk, int32_t worker)
{
    ring *outer = (ring *)arg, *r = &g_inner[chunk];
    (void)worker;
    mlc__together(outer->dev, &r->region, 1e6, ring_chunk, r);
    mlc__barrier(&outer->region);
}

TEST(threads, a_region_inside_a_region_is_serial)
{
    static ring outer;
    mlc_ctx    *ctx = threads_ctx(4);
    if (!CHECK(ctx != NULL)) return;
    memset(&outer, 0, sizeof outer);
    memset(g_inner, 0, sizeof g_inner);
    outer.dev = ctx->dev;
    mlc__together(mlc__ctx_pool(ctx), &outer.region, 1e6, outer_chunk, &outer);
    for (uint32_t i = 0; i < outer.region.chunks; i++) {
        CHECK_EQ(g_inner[i].region.chunks, 1);
        CHECK_EQ(g_inner[i].value[ROUNDS % 2][0], ROUNDS);
    }
    mlc_ctx_free(ctx);
}

/* ---- the program's vsnprintf ---------------------------------------------------------------- */

static bool g_large;                   /* it makes large letters                                */

static int own_vsnprintf(char *to, size_t n, const char *format, va_list args)
{
    const int len = vsnprintf(to, n, format, args);
    for (size_t i = 0; g_large && i < n && to[i]; i++)
        if (to[i] >= 'a' && to[i] <= 'z') to[i] = (char)(to[i] - 'a' + 'A');
    return len;
}

TEST(errors, texts_are_made_by_the_vsnprintf_of_the_program)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.hard_limit = 1 << 20;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL)) return;
    g_large = true;
    mlc_raise(ctx, MLC_ERR_VALUE, "row %lld: %g is no %s", 5000000000LL, 2.0, "label");
    CHECK_STR(mlc_error(ctx), "ROW 5000000000: 2 IS NO LABEL");
    mlc_error_clear(ctx);
    CHECK(mlc_reshape(mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3)), mlc_dims1(7)) == NULL);
    CHECK_HAS(mlc_error(ctx), "RESHAPE: ");
    CHECK_HAS(mlc_error(ctx), "[2,3]");
    mlc_error_clear(ctx);
    /* A text within a text. */
    CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims2(1000, 1000)) == NULL);
    CHECK_HAS(mlc_error(ctx), "OUT OF MEMORY FOR 4000000 BYTES");
    CHECK_HAS(mlc_error(ctx), "OF THE LIMIT OF 1048576 ARE IN USE");
    g_large = false;
    mlc_ctx_free(ctx);
}
