/* Plans from files. An input is a file as it is, or, after a first byte below 128, the operations
 * of one whose inputs and tensors are those below: such a plan runs, too, if its sizes are small.
 * Seeds are operations of the files of tests/test_plan.c. */
#include "fuzz.h"

static const char INPUTS[] =
    "{\"inputs\":[{\"dtype\":\"F32\",\"shape\":[2,3,4]},{\"dtype\":\"F32\",\"shape\":[2,3,4]},"
    "{\"dtype\":\"I64\",\"shape\":[2,3,4]},{\"dtype\":\"F32\",\"shape\":[2,4,6,6]}],\n\"nodes\":[";

/* Floats in [0,1), indices 0 and 1, an image. */
static void inputs(mlc_tensor *in[4])
{
    float   x[2 * 4 * 6 * 6];
    int64_t i[24];
    for (int k = 0; k < 2 * 4 * 6 * 6; k++) x[k] = (float)(k % 13) / 13;
    for (int k = 0; k < 24; k++) i[k] = k % 2;
    in[0] = mlc_from(fuzz_ctx, MLC_F32, mlc_dims3(2, 3, 4), x);
    in[1] = mlc_from(fuzz_ctx, MLC_F32, mlc_dims3(2, 3, 4), x + 24);
    in[2] = mlc_from(fuzz_ctx, MLC_I64, mlc_dims3(2, 3, 4), i);
    in[3] = mlc_from(fuzz_ctx, MLC_F32, mlc_dims4(2, 4, 6, 6), x);
}

/* Tells whether no list of the text has a product over 20,000: a run then ends soon. */
static int is_small(const char *text)
{
    double product = 1;
    for (const char *s = text; *s;) {
        if (*s == '[') product = 1;
        char        *end;
        const double v = strtod(s, &end);
        if (end == s) { s++; continue; }
        s = end;
        if (v > 1 || v < -1) product *= v;
        if (product > 2e4 || product < -2e4 || product != product) return 0;
    }
    return 1;
}

/* A file of these operations. */
static void write_file(const char *path, const char *text)
{
    const char *const size = strstr(text, "{\"n\":") ? "size" : NULL;
    const char *const metadata[] = {"format", "mlcore plan", "version", "1", "graph", text, size,
                                    "0 0 2 1", NULL};
    mlc_named         list[2];
    list[0].name = "constant.0";
    list[0].tensor = mlc_ones(fuzz_ctx, MLC_F32, mlc_dims1(4));
    list[1].name = "w";
    list[1].tensor = mlc_full(fuzz_ctx, MLC_F32, mlc_dims2(4, 4), 0.5);
    const int64_t n = strstr(text, "\"w\"") ? 2 : strstr(text, "constant.0") ? 1 : 0;
    mlc_safetensors_save(fuzz_ctx, path, list, n, metadata);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char         path[64];
    const mlc_plan_desc d = mlc_plan_desc_make();
    mlc_plan           *p = NULL;
    mlc_ctx_desc        c;
    if (size == 0) return 0;
    memset(&c, 0, sizeof c);
    c.threads = 1;
    c.hard_limit = 4 << 20;
    if (!fuzz_ctx) fuzz_ctx = mlc_ctx_create(&c);
    fuzz_begin();
    if (data[0] >= 128) {
        p = mlc_plan_load(fuzz_ctx, fuzz_file(data + 1, size - 1), &d);
    } else {
        char *text = (char *)malloc(sizeof INPUTS + size);
        memcpy(text, INPUTS, sizeof INPUTS - 1);
        memcpy(text + sizeof INPUTS - 1, data + 1, size - 1);
        text[sizeof INPUTS - 1 + size - 1] = 0;
        snprintf(path, sizeof path, "/dev/shm/mlcore-fuzz-%d", (int)getpid());
        write_file(path, text);
        if (mlc_ctx_status(fuzz_ctx) == MLC_OK) p = mlc_plan_load(fuzz_ctx, path, &d);
        unlink(path);
        if (p && is_small(text)) {
            mlc_tensor *in[4];
            inputs(in);
            if (mlc_plan_run(p, in, 4, NULL, 0) == MLC_OK)
                for (int i = 0; i < 64 && mlc_plan_output(p, i); i++)
                    fuzz_read(mlc_plan_output(p, i));
        }
        free(text);
    }
    mlc_plan_free(p);
    fuzz_end(size, false);
    return 0;
}
