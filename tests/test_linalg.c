/* test_linalg.c -- tests of sections IMPL.LINALG.*: QR, Cholesky, triangular systems, LU, eigenvalues,
 * singular values, determinants, least squares
 */
#include "mlc_test.h"
TEST(linalg, first)
{
    mlc_ctx *ctx = test_ctx();
    const int sizes[][2] = {{3,3},{8,8},{40,33},{33,40},{100,70},{200,130},{130,200},{1,5},{5,1},{0,3},{3,0}};
    for (int d = 0; d < 2; d++)
    for (int i = 0; i < 11; i++) {
        mlc_dtype dt = d ? MLC_F64 : MLC_F32;
        mlc_tensor *r, *a = test_rand(ctx, dt, mlc_dims3(2, sizes[i][0], sizes[i][1]), 1, -1, 1);
        mlc_tensor *q = mlc_linalg_qr(a, &r);
        CHECK_OK(ctx);
        if (!mlc_numel(a)) continue;
        double e = mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_matmul(q, r), a)), mlc_dims0(), false));
        mlc_tensor *g = mlc_matmul(mlc_transpose(q, -1, -2), q);
        double o = mlc_item(mlc_max(mlc_abs(mlc_sub(g, mlc_eye(ctx, dt, q->shape[2], q->shape[2]))), mlc_dims0(), false));
        mlc_tensor *u, *vh, *s = mlc_linalg_svd(a, &u, &vh);
        double v = mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_matmul(u, mlc_mul(vh, mlc_unsqueeze(s, -1))), a)), mlc_dims0(), false));
        printf("%d x %d: qr %g %g svd %g\n", sizes[i][0], sizes[i][1], e, o, v);
        CHECK_OK(ctx);
    }
    for (int d = 0; d < 2; d++)
    for (int n = 1; n < 300; n = n * 2 + 1) {
        mlc_dtype dt = d ? MLC_F64 : MLC_F32;
        mlc_tensor *a = test_rand(ctx, dt, mlc_dims3(2, n, n), 1, -1, 1);
        mlc_tensor *b = test_rand(ctx, dt, mlc_dims3(2, n, 5), 2, -1, 1);
        mlc_tensor *x = mlc_linalg_solve(a, b);
        double e1 = mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_matmul(a, x), b)), mlc_dims0(), false));
        mlc_tensor *u, *p, *l = mlc_linalg_lu(a, &u, &p);
        mlc_tensor *spd = mlc_add(mlc_matmul(a, mlc_transpose(a, -1, -2)), mlc_eye(ctx, dt, n, n));
        mlc_tensor *c = mlc_linalg_cholesky(spd, false);
        CHECK_OK(ctx);
        double e2 = mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_matmul(c, mlc_transpose(c, -1, -2)), spd)), mlc_dims0(), false));
        mlc_tensor *v, *w = mlc_linalg_eigh(spd, &v);
        double e3 = mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_matmul(spd, v), mlc_mul(v, mlc_unsqueeze(w, -2)))), mlc_dims0(), false));
        mlc_tensor *lg, *sg = mlc_linalg_slogdet(a, &lg);
        printf("%d: solve %g chol %g eigh %g det %g %g %g\n", n, e1, e2, e3, mlc_item(mlc_slice(mlc_linalg_det(a), 0, 0, 1, 1)), mlc_item(mlc_slice(sg, 0, 0, 1, 1)), mlc_item(mlc_slice(lg, 0, 0, 1, 1)));
        (void)l;
        CHECK_OK(ctx);
    }
}
