/* The reader of .npz: the zip and the arrays in it. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const mlc_named *list;
    int64_t          n;
    fuzz_begin();
    if (mlc_npz_load(fuzz_ctx, fuzz_file(data, size), &list, &n) == MLC_OK)
        for (int64_t i = 0; i < n; i++) fuzz_read(list[i].tensor);
    fuzz_end(size, true);
    return 0;
}
