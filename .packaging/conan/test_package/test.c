/* test.c -- learns XOR; succeeds if the loss is small */
#include <mlcore.h>

int main(void)
{
    static const float   x[8] = { 0, 0,  0, 1,  1, 0,  1, 1 };
    static const int64_t y[4] = { 0, 1, 1, 0 };
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_tensor *in = mlc_from(ctx, MLC_F32, mlc_dims2(4, 2), x);
    mlc_tensor *labels = mlc_from(ctx, MLC_I64, mlc_dims1(4), y);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 16), mlc_nn_tanh(ctx),
                                     mlc_nn_linear(ctx, 16, 2));
    mlc_optim  *opt = mlc_adamw(net, 0.05);
    double      loss;
    for (int i = 0; i < 200 && mlc_scope_begin(ctx) == MLC_OK; i++) {
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, in), labels));
        mlc_scope_end(ctx);
    }
    loss = mlc_item(mlc_cross_entropy(mlc_forward(net, in), labels));
    mlc_ctx_free(ctx);
    return loss < 0.1 ? 0 : 1;
}
