/* The reader of .npy. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    fuzz_read(mlc_npy_load(fuzz_ctx, fuzz_file(data, size)));
    fuzz_end(size, true);
    return 0;
}
