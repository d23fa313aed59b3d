/* module.c -- a layer of one's own: radial basis functions, with parameters and a forward
 *   build   make build/tasks/module
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/module.c -lm -pthread -o module
 *   run     ./module                                                                          */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct rbf { mlc_tensor *center, *scale; } rbf;

/* y[i][j] = exp(-|scale[j] (x[i] - center[j])|^2)                                             */
static mlc_tensor *rbf_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    const rbf  *p = (const rbf *)mlc_module_user(m);
    mlc_tensor *away = mlc_mul(mlc_sub(mlc_unsqueeze(x, 1), p->center), p->scale);
    (void)e;
    return mlc_exp(mlc_neg(mlc_sum(mlc_square(away), mlc_dims1(2), false)));
}

static mlc_module *rbf_create(mlc_ctx *ctx, int64_t in, int64_t out)
{
    static const mlc_module_class cls = { "RBF", NULL, NULL, rbf_call, 0, NULL };
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, sizeof(rbf));
    rbf           *p = (rbf *)mlc_module_user(m);
    mlc_param_desc center = mlc_param_desc_make(mlc_dims2(out, in));
    mlc_param_desc scale = mlc_param_desc_make(mlc_dims2(out, 1));
    center.init = MLC_INIT_UNIFORM, center.a = -2, center.b = 2;
    scale.init = MLC_INIT_CONSTANT, scale.a = 1;
    if (p) p->center = mlc_module_declare(m, "center", &center);
    if (p) p->scale = mlc_module_declare(m, "scale", &scale);
    return m;
}

static mlc_loader *rings(mlc_ctx *ctx)
{
    mlc_tensor *x = mlc_uniform(ctx, MLC_F32, mlc_dims2(512, 2), -2, 2);
    mlc_tensor *y = mlc_sin(mlc_mul_scalar(mlc_norm(x, 2, mlc_dims1(1), true), 3));
    return mlc_loader_shuffled(ctx, x, y, 32);
}

int main(void)
{
    mlc_ctx     *ctx = mlc_ctx_create(NULL);
    mlc_module  *net = MLC_SEQUENTIAL(ctx, rbf_create(ctx, 2, 32), mlc_nn_linear(ctx, 32, 1));
    mlc_tracker *history;
    mlc_fit_desc d = mlc_fit_desc_make(mlc_mse_loss);
    d.epochs = 60;
    d.validation = rings(ctx);
    mlc_fit(net, mlc_adam(net, 2e-2), rings(ctx), &d, &history);
    MLC_CHECK(ctx);
    printf("loss %.3f, val_loss %.3f\n", mlc_tracker_last(history, "loss"),
           mlc_tracker_last(history, "val_loss"));
    mlc_tracker_free(history);
    mlc_ctx_free(ctx);
}
