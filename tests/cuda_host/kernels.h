/* kernels.h -- entries of mlcore_cuda.cu called directly, beside the CPU's scalar row */
#ifndef CUDA_HOST_KERNELS_H
#define CUDA_HOST_KERNELS_H

#include "../mlc_test.h"
#include "../../mlcore_cuda.h"

typedef struct unit {
    mlc_backend        b;
    const mlc_kernels *cpu;
    void              *dev;
    void              *block[64];      /* lent to one call                                      */
    size_t             bytes[64];
    int                blocks;
    unsigned           mode;           /* of floating point, before the CPU's row flushes       */
} unit;

static inline unit unit_open(void)
{
    unit u;
    memset(&u, 0, sizeof u);
    mlc_cuda_backend(&u.b);
    u.cpu = mlc_cpu_kernels(MLC_ISA_SCALAR);
    u.mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(u.mode | 0x8040);                 /* as mlcore runs its kernels      */
    CHECK_EQ(u.b.open(0, &u.dev), MLC_OK);
    return u;
}

/* Device memory that begins `shift` bytes past a multiple of 64, with a copy of `from`; NULL: as it
 * is. */
static inline void *unit_lend_at(unit *u, const void *from, size_t bytes, size_t shift)
{
    void *p = NULL;
    if (!CHECK(u->blocks < 64) || !CHECK_EQ(u->b.alloc(u->dev, bytes + shift + 1, &p), MLC_OK))
        return NULL;
    u->block[u->blocks] = p;
    u->bytes[u->blocks++] = bytes + shift + 1;
    p = (char *)p + shift;
    if (from && bytes)
        CHECK_EQ(u->b.copy(u->dev, p, from, bytes, MLC_COPY_TO_DEVICE), MLC_OK);
    return p;
}
/* NULL stays NULL. */
static inline void *unit_lend(unit *u, const void *from, size_t bytes)
{
    return from ? unit_lend_at(u, from, bytes, 0) : NULL;
}
static inline void *unit_room(unit *u, size_t bytes)
{
    return bytes ? unit_lend_at(u, NULL, bytes, 0) : NULL;
}

static inline void unit_fetch(unit *u, void *to, const void *from, size_t bytes)
{
    if (bytes)
        CHECK_EQ(u->b.copy(u->dev, to, from, bytes, MLC_COPY_TO_HOST), MLC_OK);
}

static inline void unit_return(unit *u)
{
    while (u->blocks > 0) {
        u->blocks--;
        u->b.release(u->dev, u->block[u->blocks], u->bytes[u->blocks]);
    }
}

static inline void unit_close(unit *u)
{
    unit_return(u);
    u->b.close(u->dev);
    __builtin_ia32_ldmxcsr(u->mode);
}

/* Random bytes; floats among them have any exponent. */
static inline void unit_bytes(void *to, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)(int)test_random(seed, (int64_t)i, 0, 256);
}

/* A layout of a tensor in a buffer of BUFFER elements. */
#define BUFFER 4096
typedef struct layout {
    int32_t ndim;
    int64_t shape[MLC_MAX_DIMS], out[MLC_MAX_DIMS], in[MLC_MAX_DIMS];
} layout;

/* Dense, odd, repeated, transposed by tiles and in small, permuted in both, empty, of no axes. */
static const layout LAYOUTS[] = {
    {1, {67}, {1}, {1}},
    {1, {2048}, {1}, {1}},
    {1, {300}, {2}, {3}},
    {2, {5, 16}, {16, 1}, {0, 1}},
    {2, {16, 5}, {8, 1}, {1, 0}},
    {2, {37, 45}, {45, 1}, {1, 37}},
    {3, {2, 33, 40}, {1320, 40, 1}, {1320, 1, 33}},
    {3, {40, 2, 33}, {80, 40, 1}, {1, 1320, 40}},
    {3, {3, 5, 7}, {1, 3, 15}, {1, 3, 15}},
    {4, {3, 4, 5, 6}, {120, 30, 6, 1}, {1, 90, 3, 15}},
    {2, {0, 4}, {4, 1}, {4, 1}},
    {0, {0}, {0}, {0}},
};
#define LAYOUT_COUNT ((int)(sizeof LAYOUTS / sizeof *LAYOUTS))

/* Makes each NaN among the first BUFFER elements of a buffer one NaN, where a card made it. */
static inline void unit_plain_nans(void *buffer, mlc_dtype dtype)
{
    if (!test_on_card() || (dtype != MLC_F32 && dtype != MLC_F64 && dtype != MLC_BF16 &&
                            dtype != MLC_F16))
        return;
    for (int64_t i = 0; i < BUFFER; i++)
        if (isnan(test_get(buffer, dtype, i)))
            test_put(buffer, dtype, i, (double)NAN);
}

static inline bool unit_same(const void *a, const void *b, size_t bytes, const char *what, int i,
                             int j)
{
    if (CHECK(memcmp(a, b, bytes) == 0))
        return true;
    printf("  %s %d %d\n", what, i, j);
    return false;
}

#endif
