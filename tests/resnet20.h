/* resnet20.h -- the ResNet-20 of CIFAR's images, for test_blocks.c and bench/bench.c */
#ifndef RESNET20_H
#define RESNET20_H

#include "../mlcore.h"

static mlc_module *resnet20(mlc_ctx *ctx)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 16, 3);
    mlc_module      *net = mlc_nn_sequential(ctx);
    d.conv.padding = mlc_dims_all(1);
    d.no_bias = true;
    mlc_module_add(net, mlc_nn_conv(ctx, &d));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 16));
    mlc_module_add(net, mlc_nn_relu(ctx));
    for (int64_t i = 0; i < 9; i++)
        mlc_module_add(net, mlc_nn_basic_block(ctx, i < 4 ? 16 : i < 7 ? 32 : 64, 16 << i / 3,
                                               i == 3 || i == 6 ? 2 : 1));
    mlc_module_add(net, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(1, 1)));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 10));
    return net;
}

#endif
