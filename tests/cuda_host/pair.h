/* pair.h -- a context of the device "cuda" beside one of the CPU: the same operands, results of
 * which are compared */
#ifndef PAIR_H
#define PAIR_H

#include "mlc_test.h"

#define COUNT_OF(list) ((int)(sizeof(list) / sizeof *(list)))

typedef enum layout { DENSE, TURNED, HOLES, LAYOUTS } layout;

static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};

/* ctx[0]: the CPU's. */
static void pair_make(mlc_ctx **ctx)
{
    mlc_ctx_desc desc = mlc_ctx_desc_make();
    ctx[0] = test_own(mlc_ctx_create(&desc));
    desc.device = "cuda:0";
    ctx[1] = test_own(mlc_ctx_create(&desc));
    CHECK(ctx[0] != NULL && ctx[1] != NULL);
}

static double pair_tol(mlc_dtype d)
{
    return d == MLC_F64 ? 1e-12 : d == MLC_F32 ? 2e-5 : d == MLC_F16 ? 2e-3 : d == MLC_BF16 ? 2e-2
                                                                                         : 0;
}

/* [a,b] of random numbers, stored dense, transposed, or as each second of a row. */
static mlc_tensor *pair_rand(mlc_ctx *ctx, mlc_dtype dtype, int64_t a, int64_t b, layout how,
                             uint64_t seed, double lo, double hi)
{
    if (how == TURNED)
        return mlc_transpose(test_rand(ctx, dtype, mlc_dims2(b, a), seed, lo, hi), 0, 1);
    if (how == HOLES)
        return mlc_slice(test_rand(ctx, dtype, mlc_dims2(a, 2 * b), seed, lo, hi), 1, 0, 2 * b, 2);
    return test_rand(ctx, dtype, mlc_dims2(a, b), seed, lo, hi);
}

/* Elements differ by at most tol, relative to those over 1; NaN and infinities are the same. */
static bool pair_same(const char *what, mlc_tensor *want, mlc_tensor *got, double tol)
{
    const int64_t n = want && got ? mlc_numel(want) : 0;
    double       *w = (double *)malloc((size_t)(2 * n + 1) * sizeof *w);
    double       *g = w + n;
    int64_t       bad = -1;
    if (!CHECK(want && got && mlc_numel(got) == n) || !test_read(want, w) || !test_read(got, g)) {
        printf("  %s\n", what);
        free(w);
        return false;
    }
    for (int64_t i = 0; i < n && bad < 0; i++)
        if (!(w[i] == g[i] || (w[i] != w[i] && g[i] != g[i]) ||
              fabs(w[i] - g[i]) <= tol * fmax(1, fabs(w[i]))))
            bad = i;
    if (!CHECK(bad < 0))
        printf("  %s: element %lld is %g, not %g\n", what, (long long)bad, g[bad], w[bad]);
    free(w);
    return bad < 0;
}

/* dx of x, with random dy. */
static mlc_tensor *pair_grad(mlc_tensor *x, mlc_tensor *y, uint64_t seed)
{
    mlc_ctx    *ctx = x->ctx;
    mlc_tensor *dy = test_rand(ctx, MLC_F32, mlc_dims1(mlc_numel(y)), seed, -1, 1);
    mlc_tensor *flat = mlc_cast(mlc_reshape(y, mlc_dims1(mlc_numel(y))), MLC_F32);
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_mul(flat, dy))), MLC_OK);
    return mlc_grad(x);
}

#endif
