/* Datasets of files: arrays, CIFAR, tokens, images, tables. The first byte says of which kind, the
 * second and third what is asked for; what can be opened gives samples, or says why not. */
#include "fuzz.h"

static char folder[] = "/tmp/fuzz-data-XXXXXX", image[2][sizeof folder + 8];

static void clear_folder(void)
{
    unlink(image[0]);
    unlink(image[1]);
    rmdir(folder);
}

/* Two images: the input, and one of 2 by 2. */
static const char *images(const char *path)
{
    static const char second[] = "P5 2 2 255 abcd";
    if (image[0][0]) return folder;
    if (!mkdtemp(folder)) abort();
    for (int i = 0; i < 2; i++)
        snprintf(image[i], sizeof image[i], "%s/%d.pnm", folder, i);
    if (symlink(path, image[0]) != 0) abort();
    FILE *f = fopen(image[1], "wb");
    if (!f || fwrite(second, 1, sizeof second - 1, f) == 0 || fclose(f) != 0) abort();
    atexit(clear_folder);
    return folder;
}

static mlc_dataset *tokens(const char *path, uint8_t a, uint8_t b)
{
    mlc_dataset_tokens_desc d = mlc_dataset_tokens_desc_make((mlc_token_kind)(a % 3), 1 + b % 7);
    d.stride = 1 + a / 3 % 9;
    d.vocabulary = b & 128 ? 300 : 0;
    d.jitter = (b & 64) != 0;
    d.skip = a / 64;
    return mlc_dataset_tokens(fuzz_ctx, path, &d);
}

static mlc_dataset *table(const char *path, uint8_t a, mlc_table **t)
{
    mlc_dataset_table_desc d = mlc_dataset_table_desc_make(a & 1 ? "y" : NULL);
    d.missing = (mlc_missing)(a / 2 % 4);
    *t = mlc_table_load(fuzz_ctx, path, NULL);
    return *t ? mlc_dataset_table(fuzz_ctx, *t, &d) : NULL;
}

static mlc_dataset *opened(const uint8_t *about, const char *path, mlc_table **t)
{
    static const char *const names[] = {"x", "a", "c", ""};
    const char *name = names[about[1] % 4];
    switch (about[0] % 8) {
    case 0: return mlc_dataset_npy(fuzz_ctx, path);
    case 1: return mlc_dataset_npz(fuzz_ctx, path, name);
    case 2: return mlc_dataset_safetensors(fuzz_ctx, path, name);
    case 3: return mlc_dataset_idx(fuzz_ctx, path);
    case 4: return mlc_dataset_cifar(fuzz_ctx, path, about[1] & 1 ? 10 : 100);
    case 5: return tokens(path, about[1], about[2]);
    case 6: return table(path, about[1], t);
    default: return mlc_dataset_pnm(fuzz_ctx, images(path));
    }
}

/* A sample, of field 1 as a label where it is one. */
static void get(mlc_dataset *d, int64_t i)
{
    mlc_tensor *field[MLC_MAX_FIELDS] = {NULL};
    mlc_scope_begin(fuzz_ctx);
    if (mlc_dataset_get(fuzz_ctx, d, i, field) == MLC_OK)
        for (int32_t f = 0; f < d->n_fields; f++) fuzz_read(field[f]);
    else if (mlc_error(fuzz_ctx)[0] == 0) fuzz_fail("a sample without a reason");
    mlc_scope_end(fuzz_ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mlc_table *t = NULL;
    if (size < 3) return 0;
    fuzz_begin();
    mlc_dataset  *d = opened(data, fuzz_file(data + 3, size - 3), &t);
    const int64_t n = d ? mlc_dataset_count(d) : 0;
    if (d && n <= 0) fuzz_fail("a dataset without samples");
    if (!d && mlc_ctx_status(fuzz_ctx) == MLC_OK) fuzz_fail("no dataset and no error");
    for (int64_t i = 0; i < n && i < 3; i++) get(d, i);
    if (n > 3) get(d, n / 2);
    if (n > 3) get(d, n - 1);
    mlc_dataset_free(d);
    mlc_table_free(t);
    fuzz_end(size, true);
    return 0;
}
