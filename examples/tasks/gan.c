/* gan.c -- a generator puts points near eight places of a circle, against a critic of them
 *   build   make build/tasks/gan
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/gan.c -lm -pthread -o gan
 *   run     ./gan                                                                             */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 128, NOISE = 8 };

static mlc_tensor *real(mlc_ctx *ctx)
{
    mlc_tensor *place = mlc_randint(ctx, MLC_F32, mlc_dims2(BATCH, 1), 0, 8);
    mlc_tensor *t = mlc_mul_scalar(place, 2 * 3.14159265 / 8);
    mlc_tensor *xy[2] = { mlc_cos(t), mlc_sin(t) };
    return mlc_add(mlc_concat(xy, 2, 1), mlc_normal(ctx, MLC_F32, mlc_dims2(BATCH, 2), 0, 0.05));
}

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *generator = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, NOISE, 64), mlc_nn_relu(ctx),
        mlc_nn_linear(ctx, 64, 64), mlc_nn_relu(ctx), mlc_nn_linear(ctx, 64, 2));
    mlc_module *critic = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 64), mlc_nn_leaky_relu(ctx, 0.2),
        mlc_nn_linear(ctx, 64, 64), mlc_nn_leaky_relu(ctx, 0.2), mlc_nn_linear(ctx, 64, 1));
    mlc_adam_desc adam = mlc_adam_desc_make(2e-3);
    adam.beta1 = 0.5;
    mlc_optim  *opt_g = mlc_adam_ex(generator, &adam), *opt_c = mlc_adam_ex(critic, &adam);
    mlc_tensor *one = mlc_ones(ctx, MLC_F32, mlc_dims2(BATCH, 1));
    mlc_tensor *zero = mlc_zeros(ctx, MLC_F32, mlc_dims2(BATCH, 1));
    for (int step = 0; step < 1000; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *fake = mlc_forward(generator, mlc_randn(ctx, MLC_F32, mlc_dims2(BATCH, NOISE)));
        mlc_tensor *loss_c = mlc_add(mlc_bce_with_logits(mlc_forward(critic, real(ctx)), one),
            mlc_bce_with_logits(mlc_forward(critic, mlc_detach(fake)), zero));
        mlc_optim_minimize(opt_c, loss_c);
        mlc_tensor *loss_g = mlc_bce_with_logits(mlc_forward(critic, fake), one);
        mlc_optim_minimize(opt_g, loss_g);
        if (step % 250 == 249) printf("%d: critic %.2f, generator %.2f\n", step + 1,
                                      mlc_item(loss_c), mlc_item(loss_g));
        mlc_scope_end(ctx); MLC_CHECK(ctx);
    }
    mlc_tensor *points = mlc_forward(generator, mlc_randn(ctx, MLC_F32, mlc_dims2(1000, NOISE)));
    mlc_tensor *radius = mlc_norm(points, 2, mlc_dims1(1), false);
    printf("radius %.2f +- %.2f\n", mlc_item(mlc_mean_all(radius)),
           mlc_item(mlc_std(radius, mlc_dims0(), 1, false)));
    mlc_ctx_free(ctx);
}
