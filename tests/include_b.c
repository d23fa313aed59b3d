/* include_b.c -- valid C and C++: uses the library that include_a.c implements */
#include "mlcore.h"

#ifdef __cplusplus
extern "C"
#endif
double include_b_xor(mlc_ctx *ctx);

double include_b_xor(mlc_ctx *ctx)
{
    static const float   x[8] = {0, 0, 0, 1, 1, 0, 1, 1};
    static const int64_t y[4] = {0, 1, 1, 0};
    mlc_tensor *in = mlc_from(ctx, MLC_F32, mlc_dims2(4, 2), x);
    mlc_tensor *labels = mlc_from(ctx, MLC_I64, mlc_dims1(4), y);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 16), mlc_nn_tanh(ctx),
                                     mlc_nn_linear(ctx, 16, 2));
    mlc_optim  *opt;
    opt = mlc_adamw(net, 0.05);
    for (int i = 0; i < 200; i++) {
        mlc_scope_begin(ctx);
        mlc_backward(mlc_cross_entropy(mlc_forward(net, in), labels));
        mlc_optim_step(opt);
        if (mlc_scope_end(ctx) != MLC_OK)
            return -1;
    }
    return mlc_accuracy(mlc_forward(net, in), labels);
}
