/* size_only.c -- MLC_ONLY_F32: other floats are stored and cast; what computes refuses them; f32 is
 * factorised */
#include <stdio.h>
#include <string.h>
#include "mlcore.h"

/* Was the last operation refused, with a text that names the macro? Clears the error. */
static int refused(mlc_ctx *ctx, const mlc_tensor *t, const char *name)
{
    const int fine = !t && mlc_ctx_status(ctx) == MLC_ERR_UNSUPPORTED &&
                     strstr(mlc_error(ctx), "MLC_ONLY_F32");
    if (!fine) printf("%s: status %d, %s\n", name, (int)mlc_ctx_status(ctx), mlc_error(ctx));
    mlc_error_clear(ctx);
    return fine ? 0 : 1;
}

static int of(mlc_ctx *ctx, mlc_dtype dtype)
{
    static const float v[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int64_t y[2] = {0, 1};
    const char *name = mlc_dtype_name(dtype);
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims2(2, 4), v), *low = mlc_cast(x, dtype), *w;
    int bad = !low || mlc_item(mlc_select(mlc_select(mlc_cast(low, MLC_F32), 0, 1), 0, 3)) != 8.0;
    bad += refused(ctx, mlc_add(low, low), name);
    bad += refused(ctx, mlc_exp(low), name);
    bad += refused(ctx, mlc_sin(low), name);
    bad += refused(ctx, mlc_mean(low, mlc_dims0(), false), name);
    bad += refused(ctx, mlc_softmax(low, 1), name);
    bad += refused(ctx, mlc_layer_norm(low, NULL, NULL, 1e-5), name);
    bad += refused(ctx, mlc_dropout(low, 0.5), name);
    bad += refused(ctx, mlc_randn(ctx, dtype, mlc_dims1(4)), name);
    bad += refused(ctx, mlc_linear(low, low, NULL), name);
    bad += refused(ctx, mlc_matmul(low, mlc_transpose(low, 0, 1)), name);
    w = mlc_reshape(low, mlc_dims4(1, 2, 2, 2));
    bad += refused(ctx, mlc_conv(w, w, NULL, NULL), name);
    bad += refused(ctx, mlc_adaptive_avg_pool(w, mlc_dims2(1, 1)), name);
    if (dtype == MLC_F64)
        bad += refused(ctx, mlc_cross_entropy(low, mlc_from(ctx, MLC_I64, mlc_dims1(2), y)), name);
    return bad;
}

/* Are t's numbers other than these n, by 1e-5 or more? */
static int differs(mlc_tensor *t, int64_t n, const float *want)
{
    float got[6];
    int bad = !t || mlc_numel(t) != n || mlc_read(t, got, (size_t)n * sizeof *got) != MLC_OK;
    for (int64_t i = 0; i < n && !bad; i++)
        bad = !(got[i] - want[i] < 1e-5f && want[i] - got[i] < 1e-5f);
    return bad;
}

/* Factorisations of f32, whose leaves are of f64. */
static int factors(mlc_ctx *ctx)
{
    static const float a[4] = {4, 2, 2, 5}, l[4] = {2, 0, 1, 2}, x[4] = {2, 1, 0, 2};
    static const float tall[6] = {3, 0, 4, 0, 0, 2}, s[2] = {5, 2};
    mlc_tensor *t = mlc_from(ctx, MLC_F32, mlc_dims2(2, 2), a), *r;
    mlc_tensor *left = mlc_linalg_cholesky(t, false);
    mlc_tensor *b = mlc_from(ctx, MLC_F32, mlc_dims2(3, 2), tall), *q = mlc_linalg_qr(b, &r);
    int bad = differs(left, 4, l);
    bad += differs(mlc_linalg_solve_triangular(left, t, false, true, false), 4, x);
    bad += differs(q && r ? mlc_matmul(q, r) : NULL, 6, tall);
    bad += differs(mlc_linalg_svd(b, NULL, NULL), 2, s);
    if (bad) printf("factors: %d differ: %s\n", bad, mlc_error(ctx));
    return bad;
}

int main(void)
{
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    const int bad = of(ctx, MLC_F64) + of(ctx, MLC_BF16) + of(ctx, MLC_F16) + factors(ctx);
    mlc_ctx_free(ctx);
    return bad != 0;
}
