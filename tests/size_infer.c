/* size_infer.c -- an MLP with weights from an array, without gradients; see size_train.c */
#include "mlcore.h"

static const float w1[16] = {1, 1, 1, 1}, b1[8] = {0, -1};
static const float w2[16] = {1, -2, 0, 0, 0, 0, 0, 0, -1, 2};

int main(void)
{
    static const float x[2] = {1, 0};
    float       y[2] = {0, 0};
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 2, 8));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 8, 2));
    mlc_write(mlc_module_param(net, "0.weight"), w1, sizeof w1);
    mlc_write(mlc_module_param(net, "0.bias"), b1, sizeof b1);
    mlc_write(mlc_module_param(net, "2.weight"), w2, sizeof w2);
    mlc_no_grad_begin(ctx);
    mlc_scope_begin(ctx);
    mlc_read(mlc_forward(net, mlc_from(ctx, MLC_F32, mlc_dims2(1, 2), x)), y, sizeof y);
    const mlc_status status = mlc_scope_end(ctx);
    mlc_ctx_free(ctx);
    return status != MLC_OK || !(y[0] > y[1]);
}
