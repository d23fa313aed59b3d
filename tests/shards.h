/* shards.h -- the tensors of a safetensors file in several, with their index
 *
 * Define _POSIX_C_SOURCE 200809L and _DEFAULT_SOURCE before any include.
 */
#ifndef SHARDS_H
#define SHARDS_H

#include "files.h"

#define SHARDS_INDEX "model.safetensors.index.json"

/* Name of shard i of n, as Hugging Face has it. */
FILES_FN const char *shard_name(int i, int n, char name[48])
{
    snprintf(name, 48, "model-%05d-of-%05d.safetensors", i + 1, n);
    return name;
}

/* Writes the tensors of `file`, by turns, to n shards in the folder, and the index. */
FILES_FN bool shards_save(mlc_ctx *ctx, const char *file, const char *folder, int n)
{
    char             name[48], path[512], *text = (char *)malloc(1 << 16);
    mlc_named        list[400];
    mlc_safetensors *f = mlc_safetensors_open(ctx, file);
    const int64_t    all = mlc_safetensors_count(f);
    mlc_status       st = MLC_OK;
    int              at = sprintf(text, "{\"metadata\":{\"total_size\":7},\"weight_map\":{");
    for (int i = 0; i < n; i++) {
        int64_t in_shard = 0;
        for (int64_t k = i; k < all && in_shard < 400; k += n) {
            const char *key = mlc_safetensors_name(f, k);
            list[in_shard].name = key;
            list[in_shard++].tensor = mlc_safetensors_get(f, key);
            at += snprintf(text + at, (size_t)((1 << 16) - at), "%s\n\"%s\": \"%s\"",
                           i || k ? "," : "", key, shard_name(i, n, name));
        }
        snprintf(path, sizeof path, "%s/%s", folder, shard_name(i, n, name));
        if (st == MLC_OK)
            st = mlc_safetensors_save(ctx, path, list, in_shard, NULL);
    }
    at += snprintf(text + at, (size_t)((1 << 16) - at), "}}\n");
    snprintf(path, sizeof path, "%s/" SHARDS_INDEX, folder);
    const bool done = put_file(path, text, (size_t)at);
    mlc_safetensors_close(f);
    free(text);
    return st == MLC_OK && done;
}

#endif
