/* fuzz.h -- what the libFuzzer targets share: a context, inputs as files, the bound on memory
 *
 * Each target is one file, linked with library.c; run.sh builds and runs them. A target
 * fails by a crash, a sanitizer's report, a leak, an error without a text, or by asking for more
 * memory than four times its input and 1 MiB.
 */
#ifndef FUZZ_H
#define FUZZ_H

#define _GNU_SOURCE
#include "../../mlcore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mlc_ctx *fuzz_ctx;

static void fuzz_fail(const char *why)
{
    fprintf(stderr, "fuzz: %s; last error: %s\n", why, mlc_error(fuzz_ctx));
    abort();
}

/* fuzz_in_use: heap objects, and bytes of tensors and workspace: what a leak would show in. */
int64_t fuzz_in_use(mlc_ctx *ctx, mlc_memory *m);

static int64_t fuzz_used, fuzz_allocated;

/* One context for all inputs, so that what an input leaves behind shows in a later one. */
static void fuzz_begin(void)
{
    mlc_ctx_desc d;
    memset(&d, 0, sizeof d);
    d.threads = 1;
    if (!fuzz_ctx) fuzz_ctx = mlc_ctx_create(&d);
    mlc_memory m;
    fuzz_used = fuzz_in_use(fuzz_ctx, &m);
    fuzz_allocated = m.allocated;
    mlc_memory_peak_reset(fuzz_ctx);
    mlc_scope_begin(fuzz_ctx);
}

static void fuzz_end(size_t size, bool bounded)
{
    mlc_memory       m;
    const mlc_status status = mlc_ctx_status(fuzz_ctx);
    if (status != MLC_OK && mlc_error(fuzz_ctx)[0] == 0) fuzz_fail("an error without a text");
    if (mlc_scope_end(fuzz_ctx) != status) fuzz_fail("the scope ends with another status");
    if (fuzz_in_use(fuzz_ctx, &m) != fuzz_used) fuzz_fail("memory is left behind");
    if (bounded && m.peak - fuzz_allocated > 4 * (int64_t)size + (1 << 20))
        fuzz_fail("too much memory");
}

/* The input as a file, which lives in memory. */
static const char *fuzz_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int  fd = -1;
    if (fd < 0) fd = memfd_create("input", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    return path;
}

/* Looks at every element: what was read must be there. */
static void fuzz_read(mlc_tensor *t)
{
    if (!t) return;
    const size_t bytes = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    char        *copy = (char *)malloc(bytes + 1);
    if (copy && mlc_read(t, copy, bytes) != MLC_OK) fuzz_fail("a tensor cannot be read");
    free(copy);
}

#endif
