/* autoencoder.c -- digits of 64 pixels through 8 numbers and back
 *   build   make build/tasks/autoencoder
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/autoencoder.c -lm -pthread -o encoder
 *   run     ./encoder         from the folder of mlcore.h                                     */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

static void draw(mlc_tensor *digits)
{
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < 2; i++, printf(i < 2 ? "   " : "\n"))
            for (int col = 0; col < 8; col++) {
                const double ink = mlc_item_at(digits, mlc_dims2(i, 8 * row + col));
                printf("%s", ink > 0.6 ? "##" : ink > 0.3 ? "::" : "..");
            }
}

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *data = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor *x = mlc_mul_scalar(mlc_slice(data, 1, 0, 64, 1), 1.0 / 16);
    mlc_tensor *train = mlc_rows(x, 0, 1500), *test = mlc_rows(x, 1500, 1797);
    mlc_module *encoder = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 32), mlc_nn_relu(ctx),
                                         mlc_nn_linear(ctx, 32, 8));
    mlc_module *decoder = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 8, 32), mlc_nn_relu(ctx),
                                         mlc_nn_linear(ctx, 32, 64), mlc_nn_sigmoid(ctx));
    mlc_module *net = MLC_SEQUENTIAL(ctx, encoder, decoder);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_mse_loss);
    d.epochs = 40;
    mlc_fit(net, mlc_adam(net, 3e-3), mlc_loader_shuffled(ctx, train, train, 32), &d, NULL);

    mlc_tensor *code = mlc_forward(encoder, test), *again = mlc_forward(decoder, code);
    mlc_tensor *pair[2] = { mlc_rows(test, 0, 1), mlc_rows(again, 0, 1) };
    mlc_tensor *both = mlc_concat(pair, 2, 0);
    MLC_CHECK(ctx);
    draw(both);
    printf("%d pixels, %d numbers; mean squared error %.3f, of the mean image %.3f\n",
           (int)mlc_dim(test, 1), (int)mlc_dim(code, 1), mlc_item(mlc_mse_loss(again, test)),
           mlc_item(mlc_mean_all(mlc_var(test, mlc_dims1(0), 0, false))));
    mlc_ctx_free(ctx);
}
