/* Files of ONNX. An input is a file as it is; a module that comes out runs on inputs of zeros, with
 * sizes 2 where the file leaves them free, if they are small. Seeds are files of
 * tests/golden/onnx.safetensors. */
#include "fuzz.h"

/* Zeros for input i; NULL: it is too large. */
static mlc_tensor *zeros_of(mlc_module *m, int32_t i)
{
    mlc_onnx_value v;
    int64_t        n = 1;
    mlc_dims       shape = mlc_dims0();
    if (!mlc_onnx_input(m, i, &v)) return NULL;
    for (int32_t d = 0; d < v.ndim; d++) {
        shape.v[shape.n] = v.shape[d] < 0 ? 2 : v.shape[d];
        if (shape.v[shape.n] > 1000) return NULL;
        n *= shape.v[shape.n++];
        if (n > 10000) return NULL;
    }
    return mlc_zeros(fuzz_ctx, v.dtype, shape);
}

/* Runs a module whose inputs are small; its outputs must be there. */
static void run(mlc_module *m)
{
    mlc_tensor *in[8], *out = NULL;
    int32_t     n = 0;
    while (n < 8 && (in[n] = zeros_of(m, n)) != NULL) n++;
    if (n == 0 || mlc_module_forward(m, in, n, &out, 1) != MLC_OK) return;
    fuzz_read(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mlc_ctx_desc c;
    memset(&c, 0, sizeof c);
    c.threads = 1;
    c.hard_limit = 16 << 20;
    if (!fuzz_ctx) fuzz_ctx = mlc_ctx_create(&c);
    fuzz_begin();
    mlc_module *m = mlc_onnx_load(fuzz_ctx, fuzz_file(data, size), NULL);
    if (m != NULL) run(m);
    mlc_module_free(m);
    fuzz_end(size, false);
    return 0;
}
