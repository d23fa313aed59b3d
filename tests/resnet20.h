/* resnet20.h -- the ResNet-20 of CIFAR's images, for test_blocks.c and bench/bench.c */
#ifndef RESNET20_H
#define RESNET20_H

#include "../mlcore.h"

/* The first convolution, norm and relu are children of the network, or of its first child. */
static mlc_module *resnet20_with(mlc_ctx *ctx, bool first_child)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 16, 3);
    mlc_module      *net = mlc_nn_sequential(ctx), *first = net;
    d.conv.padding = mlc_dims_all(1);
    d.no_bias = true;
    if (first_child) mlc_module_add(net, first = mlc_nn_sequential(ctx));
    mlc_module_add(first, mlc_nn_conv(ctx, &d));
    mlc_module_add(first, mlc_nn_batch_norm(ctx, 16));
    mlc_module_add(first, mlc_nn_relu(ctx));
    for (int64_t i = 0; i < 9; i++)
        mlc_module_add(net, mlc_nn_basic_block(ctx, i < 4 ? 16 : i < 7 ? 32 : 64, 16 << i / 3,
                                               i == 3 || i == 6 ? 2 : 1));
    mlc_module_add(net, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(1, 1)));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 10));
    return net;
}

static inline mlc_module *resnet20(mlc_ctx *ctx) { return resnet20_with(ctx, false); }

#endif
