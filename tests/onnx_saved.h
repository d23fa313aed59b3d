/* onnx_saved.h -- what tests of files that mlc_onnx_save wrote share
 *
 * With MLC_TEST_OUT=FOLDER files, inputs and outputs stay there for tests/python_runs_onnx.py.
 */
#ifndef ONNX_SAVED_H
#define ONNX_SAVED_H

#include "files.h"
#include "plans.h"

#define NEAR 1e-5

PLANS_FN bool half(const mlc_tensor *t) { return t->dtype == MLC_F16 || t->dtype == MLC_BF16; }

/* Outputs of a module of these inputs; false with an error of ctx. An import has f32 for halves. */
PLANS_FN bool all_of_module(mlc_module *m, mlc_tensor *const *in, int32_t n, mlc_tensor **out,
                            int32_t n_out)
{
    mlc_tensor *as[4];
    for (int32_t i = 0; i < n; i++) as[i] = half(in[i]) ? mlc_cast(in[i], MLC_F32) : in[i];
    return mlc_module_forward(m, as, n, out, n_out) == MLC_OK;
}

/* A module's output 0; NULL with an error of ctx. */
PLANS_FN mlc_tensor *first_of_module(mlc_module *m, mlc_tensor *const *in, int32_t n)
{
    mlc_tensor *out = NULL;
    return all_of_module(m, in, n, &out, 1) ? out : NULL;
}

/* Keeps a case for Python: NAME.onnx, NAME.npz with x0, x1, .. and y0, y1, .. */
PLANS_FN void keep(mlc_ctx *ctx, const char *name, const char *path, mlc_tensor *const *in,
                   int32_t n, mlc_tensor *const *out, int32_t n_out)
{
    static const char *const names[2][4] = {{"x0", "x1", "x2", "x3"}, {"y0", "y1", "y2", "y3"}};
    const char              *folder = getenv("MLC_TEST_OUT");
    char                     to[400];
    mlc_named                list[8];
    size_t                   bytes;
    bool                     npz = true;
    if (folder == NULL || out[0] == NULL) return;
    unsigned char *file = get_file(path, &bytes);
    snprintf(to, sizeof to, "%s/%s.onnx", folder, name);
    CHECK(put_file(to, file, bytes));
    free(file);
    for (int32_t i = 0; i < n + n_out; i++) {
        list[i].name = i < n ? names[0][i] : names[1][i - n];
        list[i].tensor = i < n ? in[i] : out[i - n];
        npz = npz && list[i].tensor->dtype != MLC_BF16;
    }
    if (!npz) return;                  /* NumPy has no bf16                                     */
    snprintf(to, sizeof to, "%s/%s.npz", folder, name);
    CHECK_EQ(mlc_npz_save(ctx, to, list, n + n_out), MLC_OK);
}

#endif
