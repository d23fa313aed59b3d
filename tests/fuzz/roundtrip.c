/* What is written reads back to the same bits: safetensors, npy, npz, csv, idx. The first bytes
 * choose dtype and shape, the rest is data. */
#include "fuzz.h"

static uint8_t before[4096], after[4096];
static char    path[64];

static void same(mlc_tensor *t, size_t bytes, const char *what)
{
    if (!t) fuzz_fail(what);
    memset(after, 0, sizeof after);
    if ((size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype) != bytes ||
        mlc_read(t, after, bytes) != MLC_OK || memcmp(before, after, bytes) != 0)
        fuzz_fail(what);
}

static void named(mlc_tensor *t, size_t bytes)
{
    mlc_named        in = {"x", t};
    const mlc_named *list = NULL;
    int64_t          n = 0;
    if (mlc_safetensors_save(fuzz_ctx, path, &in, 1, NULL) != MLC_OK ||
        mlc_safetensors_load(fuzz_ctx, path, &list, &n) != MLC_OK) fuzz_fail("safetensors");
    same(list[0].tensor, bytes, "safetensors");
    if (mlc_npz_save(fuzz_ctx, path, &in, 1) != MLC_OK ||
        mlc_npz_load(fuzz_ctx, path, &list, &n) != MLC_OK) fuzz_fail("npz");
    if (t->dtype != MLC_BF16) same(list[0].tensor, bytes, "npz");
    if (mlc_npy_save(t, path) != MLC_OK) fuzz_fail("npy");
    if (t->dtype != MLC_BF16) same(mlc_npy_load(fuzz_ctx, path), bytes, "npy");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mlc_dims shape = mlc_dims2(0, 1);
    if (size < 3) return 0;
    const mlc_dtype dtype = (mlc_dtype)(data[0] % MLC_DTYPE_COUNT);
    const size_t    element = mlc_dtype_bytes(dtype);
    snprintf(path, sizeof path, "/dev/shm/mlcore_fuzz_%ld", (long)getpid());
    size = size - 2 < sizeof before ? size - 2 : sizeof before;
    memcpy(before, data + 2, size);
    shape.v[1] = 1 + data[1] % 4;
    shape.v[0] = (int64_t)(size / element) / shape.v[1];
    const size_t bytes = (size_t)(shape.v[0] * shape.v[1]) * element;
    for (size_t i = 0; dtype == MLC_BOOL && i < bytes; i++) before[i] &= 1;
    fuzz_begin();
    mlc_tensor *t = mlc_from(fuzz_ctx, dtype, shape, before);
    if (bytes == 0) t = mlc_zeros(fuzz_ctx, dtype, shape);
    named(t, bytes);
    if (dtype == MLC_U8 || dtype == MLC_I8 || dtype == MLC_I32 || dtype == MLC_F32) {
        if (mlc_idx_save(t, path) != MLC_OK) fuzz_fail("idx");
        same(mlc_idx_load(fuzz_ctx, path), bytes, "idx");
    }
    if (dtype == MLC_I64 && bytes) {
        mlc_csv_desc d = mlc_csv_desc_make();
        d.dtype = MLC_I64;
        if (mlc_csv_save(t, path, NULL) != MLC_OK) fuzz_fail("csv");
        same(mlc_csv_load(fuzz_ctx, path, &d), bytes, "csv");
    }
    unlink(path);
    fuzz_end(size, false);
    return 0;
}
