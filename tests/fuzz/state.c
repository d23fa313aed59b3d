/* Loading a state dict into a network: whatever the file, the parameters are all old or all new. */
#include "fuzz.h"

static double checksum(mlc_module *net)
{
    double sum = 0;
    float  v[64];
    static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    for (int i = 0; i < 4; i++) {
        mlc_tensor  *t = mlc_module_param(net, names[i]);
        const size_t n = (size_t)mlc_numel(t);
        if (mlc_read(t, v, n * sizeof *v) != MLC_OK) fuzz_fail("a parameter cannot be read");
        for (size_t k = 0; k < n; k++) sum += (double)v[k] * (double)(k + 1);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mlc_module *net;
    static const mlc_rename renames[] = {{.from = "a.*", .to = "0.*"},
                                         {.from = "b*", .to = "2.*"},
                                         {.from = "*", .to = "*"}};
    static const mlc_rename cut[] = {
        {.from = "q|.*", .to = "0.*", .parts = 2, .size = 2},
        {.from = "0.*", .to = "0.*", .part = 1, .parts = 2},
        {.from = "2.weight", .to = "2.weight", .transpose = true, .axis = 1, .parts = 2},
        {.from = "b", .to = "2.weight", .axis = 1, .part = 1, .parts = 2, .like = "0.weight"},
        {.from = "a*", .to = ""}};
    mlc_load_report report;
    mlc_load_desc   d = mlc_load_desc_make();
    if (size == 0) return 0;
    const char *path = fuzz_file(data + 1, size - 1);
    d.partial = (data[0] & 1) != 0;
    d.cast = (data[0] & 2) != 0;
    d.skip_mismatched = (data[0] & 4) != 0;
    d.prefix = data[0] & 8 ? "module." : NULL;
    d.renames = data[0] & 64 ? cut : renames;
    d.n_renames = data[0] & 64 ? 5 : data[0] & 16 ? 3 : 0;
    d.report = &report;
    if (!net) {
        mlc_ctx_desc c;
        memset(&c, 0, sizeof c);
        c.threads = 1;
        fuzz_ctx = mlc_ctx_create(&c);
        net = mlc_nn_sequential(fuzz_ctx);
        mlc_module_add(net, mlc_nn_linear(fuzz_ctx, 3, 5));
        mlc_module_add(net, mlc_nn_relu(fuzz_ctx));
        mlc_module_add(net, mlc_nn_linear(fuzz_ctx, 5, 2));
        mlc_module_build(net);
    }
    fuzz_begin();
    const double before = checksum(net);
    const mlc_status st = data[0] & 32 ? mlc_load_memory(net, data + 1, size - 1, &d) :
                                         mlc_load_ex(net, path, &d);
    const double after = checksum(net);
    if (st != MLC_OK && !(before == after || (before != before && after != after)))
        fuzz_fail("a failed load changed the network");
    fuzz_end(size, true);
    return 0;
}
