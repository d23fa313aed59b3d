/* watch.h -- hashes of what may not change, and an allocator that counts
 *
 * Define _POSIX_C_SOURCE 200809L and _DEFAULT_SOURCE before any include.
 */
#ifndef WATCH_H
#define WATCH_H

#include "files.h"

#define HASH_SEED 14695981039346656037u

FILES_FN uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Shape and bits.                                                                              */
FILES_FN uint64_t hash_tensor(uint64_t h, mlc_tensor *t)
{
    if (t == NULL)
        return h * 31 + 1;
    const size_t n = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    void        *data = malloc(n + 1);
    h = hash_bytes(h, &t->dtype, sizeof t->dtype);
    h = hash_bytes(h, t->shape, (size_t)t->ndim * sizeof *t->shape);
    if (CHECK_EQ(mlc_read(t, data, n), MLC_OK))
        h = hash_bytes(h, data, n);
    free(data);
    return h;
}

FILES_FN uint64_t hash_net(uint64_t h, mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it))
        h = hash_tensor(h, it.tensor);
    return h;
}

/* The hash of a missing file: no file has it.                                                  */
FILES_FN uint64_t hash_file(uint64_t h, const char *path)
{
    size_t         n = 0;
    unsigned char *data = get_file(path, &n);
    h = data ? hash_bytes(h * 31 + 2, data, n) : h * 31 + 1;
    free(data);
    return h;
}

/* ---- what the context asks for -------------------------------------------------------------- */

typedef struct tally {
    int64_t live, blocks, peak;        /* bytes and blocks not yet released; peak: of live     */
    int64_t calls, fail_at;            /* that call gives nothing; 0: all do                   */
} tally;

FILES_FN void *tally_alloc(void *user, size_t bytes, size_t align)
{
    tally *m = (tally *)user;
    void  *p = ++m->calls == m->fail_at ? NULL : test_aligned_alloc(align, bytes);
    if (p == NULL)
        return NULL;
    memset(p, 0xa5, bytes);            /* nothing may count on zeros                           */
    m->live += (int64_t)bytes;
    m->blocks++;
    if (m->live > m->peak)
        m->peak = m->live;
    return p;
}

FILES_FN void tally_release(void *user, void *ptr, size_t bytes)
{
    tally *m = (tally *)user;
    m->live -= (int64_t)bytes;
    m->blocks--;
    test_aligned_free(ptr);
}

FILES_FN mlc_ctx_desc tally_desc(tally *m)
{
    mlc_ctx_desc d = test_desc();
    memset(m, 0, sizeof *m);
    d.threads = 1;
    d.allocator.user = m;
    d.allocator.alloc = tally_alloc;
    d.allocator.release = tally_release;
    return d;
}

/* Frees the context: nothing may be left, on a device neither.                                 */
FILES_FN void tally_done(const tally *m, mlc_ctx *ctx)
{
    const int64_t leaked = test_device_leaked();
    mlc_ctx_free(ctx);
    CHECK_EQ(m->live, 0);
    CHECK_EQ(m->blocks, 0);
    CHECK_EQ(test_device_leaked(), leaked);
}

/* Runs a call with each of its allocations failing in turn, until none does: each time NOMEM, and
 * nothing is kept.                                                                             */
FILES_FN void tally_fail_each(mlc_status (*run)(mlc_ctx *ctx, const void *user), const void *user)
{
    for (int64_t n = 1; n < 10000; n++) {
        tally              m;
        const mlc_ctx_desc d = tally_desc(&m);
        mlc_ctx           *ctx = mlc_ctx_create(&d);
        mlc_scope_begin(ctx);
        m.calls = 0;
        m.fail_at = n;
        const mlc_status st = run(ctx, user);
        const bool       hit = m.calls >= n;
        m.fail_at = 0;
        if (hit && st != MLC_OK) {
            CHECK_EQ(st, MLC_ERR_NOMEM);
            CHECK_STATUS(ctx, MLC_ERR_NOMEM);
        }
        CHECK(hit || st == MLC_OK);
        mlc_scope_end(ctx);
        tally_done(&m, ctx);
        if (!hit)
            return;
    }
    CHECK(!"allocations come to an end");
}

#endif
