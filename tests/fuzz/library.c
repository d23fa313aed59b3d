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
