/* kernel_test.h -- calls kernels of the unit itself, beside the CPU's, for tests in tests/cuda_host
 *
 * A bench holds a device and its blocks; up() copies host memory to a block, down() back. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include "../mlc_test.h"

#include "../../mlcore_cuda.h"

typedef struct bench {
    mlc_backend b;
    void       *dev, *block[64];
    size_t      bytes[64];
    int         blocks;
} bench;

static bool bench_open(bench *t)
{
    memset(t, 0, sizeof *t);
    mlc_cuda_backend(&t->b);
    return CHECK_EQ(t->b.open(0, &t->dev), MLC_OK);
}
static void bench_close(bench *t)
{
    while (t->blocks-- > 0) t->b.release(t->dev, t->block[t->blocks], t->bytes[t->blocks]);
    t->b.close(t->dev);
}
/* A block of device memory that begins `shift` bytes past a multiple of 64; host NULL: as it is. */
static void *bench_up_at(bench *t, const void *host, size_t bytes, size_t shift)
{
    char *p = NULL;
    const size_t all = bytes + shift + 1;
    if (!CHECK(t->blocks < 64) || !CHECK_EQ(t->b.alloc(t->dev, all, (void **)&p), MLC_OK))
        return NULL;
    t->block[t->blocks] = p;
    t->bytes[t->blocks++] = all;
    if (host && bytes)
        CHECK_EQ(t->b.copy(t->dev, p + shift, host, bytes, MLC_COPY_TO_DEVICE), MLC_OK);
    return p + shift;
}
static void *bench_up(bench *t, const void *host, size_t bytes)
{
    return host || bytes ? bench_up_at(t, host, bytes, 0) : NULL;
}
static void bench_down(bench *t, void *host, const void *dev, size_t bytes)
{
    if (bytes) CHECK_EQ(t->b.copy(t->dev, host, dev, bytes, MLC_COPY_TO_HOST), MLC_OK);
}
/* Gives all blocks back, keeps the device. */
static void bench_clear(bench *t)
{
    for (; t->blocks > 0; t->blocks--)
        t->b.release(t->dev, t->block[t->blocks - 1], t->bytes[t->blocks - 1]);
}

#endif
