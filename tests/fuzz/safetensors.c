/* The reader of safetensors: whole files, and single tensors of an open one. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char      *path = fuzz_file(data, size);
    const mlc_named *list;
    int64_t          n;
    fuzz_begin();
    if (mlc_safetensors_load(fuzz_ctx, path, &list, &n) == MLC_OK)
        for (int64_t i = 0; i < n; i++) fuzz_read(list[i].tensor);
    fuzz_end(size, true);
    fuzz_begin();
    mlc_safetensors *f = mlc_safetensors_open(fuzz_ctx, path);
    for (int64_t i = 0; i < mlc_safetensors_count(f) && i < 8; i++) {
        const char *name = mlc_safetensors_name(f, i);
        fuzz_read(mlc_safetensors_get(f, name));
        fuzz_read(mlc_safetensors_view(f, name));
    }
    mlc_safetensors_metadata(f, "format");
    mlc_safetensors_close(f);
    fuzz_end(size, false);             /* each tensor is read twice                            */
    return 0;
}
