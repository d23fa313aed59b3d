/* size_cnn.c -- trains a small convolutional network; see size_train.c */
#include "mlcore.h"

int main(void)
{
    static float         x[4 * 64];
    static const int64_t y[4] = {0, 1, 1, 0};
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *in, *labels = mlc_from(ctx, MLC_I64, mlc_dims1(4), y);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_optim  *opt;
    const mlc_pool_desc half = mlc_pool_desc_make(2);
    mlc_status  status = MLC_OK;
    for (int i = 0; i < 4 * 64; i++) x[i] = (float)(i * i % 7) - 3.0f;
    in = mlc_from(ctx, MLC_F32, mlc_dims4(4, 1, 8, 8), x);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 1, 8, 3, 1, 0));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &half));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 8 * 3 * 3, 2));
    opt = mlc_sgd(net, 0.1);
    for (int i = 0; i < 100 && status == MLC_OK; i++) {
        mlc_scope_begin(ctx);
        mlc_backward(mlc_cross_entropy(mlc_forward(net, in), labels));
        mlc_optim_step(opt);
        status = mlc_scope_end(ctx);
    }
    mlc_ctx_free(ctx);
    return status != MLC_OK;
}
