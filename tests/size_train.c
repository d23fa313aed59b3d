/* size_train.c -- trains an MLP: a program whose code of mlcore tests/size.sh sums up */
#include "mlcore.h"

int main(void)
{
    static const float   x[8] = {0, 0, 0, 1, 1, 0, 1, 1};
    static const int64_t y[4] = {0, 1, 1, 0};
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *in = mlc_from(ctx, MLC_F32, mlc_dims2(4, 2), x);
    mlc_tensor *labels = mlc_from(ctx, MLC_I64, mlc_dims1(4), y);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_optim  *opt;
    mlc_status  status = MLC_OK;
    mlc_module_add(net, mlc_nn_linear(ctx, 2, 8));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 8, 2));
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
