/* corpus.h -- a text as tokens, one for each kind of byte in it, and loaders of its windows */
#ifndef EXAMPLES_CORPUS_H
#define EXAMPLES_CORPUS_H

#include "../mlcore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text, and the bytes that occur in it, which are the tokens. */
typedef struct corpus {
    int64_t *token, n, vocabulary;
    uint8_t  byte[256];
} corpus;

static inline bool corpus_read(corpus *c, const char *path)
{
    int   at[256], known = 0;
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) { if (f) fclose(f); return false; }
    c->n = ftell(f);
    rewind(f);
    c->token = c->n > 0 ? (int64_t *)malloc((size_t)c->n * sizeof(int64_t)) : NULL;
    memset(at, -1, sizeof at);
    for (int64_t i = 0; c->token && i < c->n; i++) {
        const int b = fgetc(f);
        if (b == EOF) { c->n = i; break; }
        if (at[b] < 0) { c->byte[known] = (uint8_t)b; at[b] = known++; }
        c->token[i] = at[b];
    }
    c->vocabulary = known;
    fclose(f);
    return c->token && known > 1;
}

/* Windows of tokens [from, to), `step` apart, and in y the tokens that follow. */
static inline mlc_loader *windows(mlc_ctx *ctx, const corpus *c, int64_t from, int64_t to,
                                  int64_t t, int64_t step, int64_t batch, bool shuffle)
{
    mlc_tensor *all = mlc_from(ctx, MLC_I64, mlc_dims1(to - from), c->token + from);
    mlc_tensor *x = mlc_unfold(mlc_rows(all, 0, to - from - 1), 0, t, step);
    mlc_tensor *y = mlc_unfold(mlc_rows(all, 1, to - from), 0, t, step);
    mlc_loader_desc d = mlc_loader_desc_make(x, y, batch);
    d.shuffle = shuffle;
    return mlc_loader_create(ctx, &d);
}

#endif
