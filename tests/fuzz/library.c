/* library.c -- the implementation, compiled once for all targets, and what of it they look into */
#define _GNU_SOURCE
#define MLCORE_IMPLEMENTATION
#include "../../mlcore.h"
#include "fuzz.h"

int64_t fuzz_in_use(mlc_ctx *ctx, mlc_memory *m)
{
    int64_t objects = 0, descriptors = 0;
    for (mlc__object *o = ctx->objects; o; o = o->next) objects++;
    /* Descriptors of pool blocks come by chunks of 32, which stay: as many as ever were in use. */
    for (mlc__block *b = ctx->spare_blocks; b; b = b->next) descriptors++;
    for (int c = 0; c < ctx->tables.classes; c++)
        for (mlc__block *b = ctx->free_blocks[c]; b; b = b->next) descriptors++;
    mlc_memory_info(ctx, m);
    return objects - descriptors / 32 + m->now[MLC_MEM_ACTIVATION] + m->now[MLC_MEM_GRAD] +
           m->now[MLC_MEM_WORKSPACE];
}

uint64_t fuzz_run_hash(mlc_ctx *ctx, const mlc_run *run);
uint64_t fuzz_run_hash(mlc_ctx *ctx, const mlc_run *run)
{
    mlc__run_list l = { ctx, NULL, 0, 0 };
    uint64_t      h = 14695981039346656037u;
    mlc_scope_begin(ctx);
    if (mlc__run_gather(&l, run) != MLC_OK) fuzz_fail("a run cannot be gathered");
    for (int64_t i = 0; i < l.n; i++) {
        const size_t   n = (size_t)mlc_numel(l.list[i].tensor) *
                           mlc_dtype_bytes(l.list[i].tensor->dtype);
        unsigned char *data = (unsigned char *)malloc(n + 1);
        if (!data || mlc_read(l.list[i].tensor, data, n) != MLC_OK) fuzz_fail("no data");
        for (const char *c = l.list[i].name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
        for (size_t k = 0; k < n; k++) h = (h ^ data[k]) * 1099511628211u;
        free(data);
    }
    mlc_scope_end(ctx);
    return h;
}
