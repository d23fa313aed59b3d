/* The readers of IDX and of CIFAR. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    mlc_tensor *labels;
    fuzz_begin();
    fuzz_read(mlc_idx_load(fuzz_ctx, path));
    fuzz_end(size, true);
    for (int classes = 10; classes <= 100; classes += 90) {
        fuzz_begin();
        fuzz_read(mlc_cifar_load(fuzz_ctx, path, classes, &labels));
        fuzz_read(labels);
        fuzz_end(size, true);
    }
    return 0;
}
