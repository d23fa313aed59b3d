/* tiny.h -- MLPerf Tiny's networks with random weights, for export.c and tests/test_export.c
 *
 * Sizes as in github.com/mlcommons/tiny: of the autoencoder for sounds of machines, of the DS-CNN
 * for keywords, of the ResNet-8 for CIFAR-10's images. Batch norms are folded into the convolutions
 * before them, layers become static integers by the ranges of one random input. */
#ifndef EMBEDDED_TINY_H
#define EMBEDDED_TINY_H

#include "../../mlcore.h"

/* A network, and the shape of its input. */
typedef struct tiny_net {
    const char *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    int         n;
    int64_t     shape[4];
} tiny_net;

/* 64-32-10, for digits of 8 x 8 pixels. */
static inline mlc_module *tiny_mlp(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 32), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 32, 10));
}

/* 640-128x4-8-128x4-640. */
static inline mlc_module *tiny_autoencoder(mlc_ctx *ctx)
{
    static const int64_t sizes[] = { 640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640 };
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 10; i++) {
        mlc_module_add(net, mlc_nn_linear(ctx, sizes[i], sizes[i + 1]));
        if (i < 9) mlc_module_add(net, mlc_nn_relu(ctx));
    }
    return net;
}

/* Adds a convolution with its norm and relu. */
static inline void tiny_conv(mlc_module *net, mlc_nn_conv_desc d)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_module_add(net, mlc_nn_conv(ctx, &d));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, d.out));
    mlc_module_add(net, mlc_nn_relu(ctx));
}

/* The mean of each channel, then a linear layer. */
static inline mlc_module *tiny_head(mlc_module *net, int64_t classes)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_module_add(net, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(1, 1)));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 64, classes));
    return net;
}

/* [1,49,10]: a convolution of 10 x 4 to [64,25,5], four of 3 x 3 by channels with one of 1 x 1. */
static inline mlc_module *tiny_ds_cnn(mlc_ctx *ctx)
{
    mlc_module      *net = mlc_nn_sequential(ctx);
    mlc_nn_conv_desc first = mlc_nn_conv_desc_make(2, 1, 64, 3);
    mlc_nn_conv_desc apart = mlc_nn_conv_desc_make(2, 64, 64, 3);
    const mlc_nn_conv_desc point = mlc_nn_conv_desc_make(2, 64, 64, 1);
    first.kernel = mlc_dims2(10, 4);
    first.conv.stride = mlc_dims_all(2);
    first.conv.padding = mlc_dims2(5, 1);
    apart.conv.padding = mlc_dims_all(1);
    apart.conv.groups = 64;
    tiny_conv(net, first);
    for (int i = 0; i < 4; i++) {
        tiny_conv(net, apart);
        tiny_conv(net, point);
    }
    return tiny_head(net, 12);
}

/* [3,32,32]: a convolution, three residual blocks of 16, 32 and 64 channels. */
static inline mlc_module *tiny_resnet8(mlc_ctx *ctx)
{
    mlc_module      *net = mlc_nn_sequential(ctx);
    mlc_nn_conv_desc first = mlc_nn_conv_desc_make(2, 3, 16, 3);
    first.conv.padding = mlc_dims_all(1);
    tiny_conv(net, first);
    mlc_module_add(net, mlc_nn_basic_block(ctx, 16, 16, 1));
    mlc_module_add(net, mlc_nn_basic_block(ctx, 16, 32, 2));
    mlc_module_add(net, mlc_nn_basic_block(ctx, 32, 64, 2));
    return tiny_head(net, 10);
}

static const tiny_net tiny_nets[] = {
    { "mlp", tiny_mlp, 2, { 1, 64, 0, 0 } },
    { "autoencoder", tiny_autoencoder, 2, { 1, 640, 0, 0 } },
    { "ds_cnn", tiny_ds_cnn, 4, { 1, 1, 49, 10 } },
    { "resnet8", tiny_resnet8, 4, { 1, 3, 32, 32 } }
};
enum { TINY_NETS = sizeof tiny_nets / sizeof tiny_nets[0] };

/* Makes layers static integers by the ranges of x. */
static inline mlc_status tiny_to_integers(mlc_module *net, mlc_tensor *x,
                                          mlc_quant_convention convention)
{
    const mlc_calibrate_desc c = mlc_calibrate_desc_make(MLC_QUANT_MIN_MAX);
    mlc_quantize_desc        d = mlc_quantize_desc_make(MLC_QUANT_STATIC);
    mlc_calibration         *ranges = mlc_calibrate_begin(net, &c);
    mlc_eval_begin(net);
    mlc_forward(net, x);
    mlc_eval_end(net);
    mlc_status st = mlc_calibrate_end(ranges);
    d.calibration = ranges;
    d.convention = convention;
    if (st == MLC_OK) st = mlc_quantize(net, &d, NULL);
    mlc_calibration_free(ranges);
    return st;
}

/* Writes a network as C, f32 or static integers with bytes as its input, with its self-test. */
static inline mlc_status tiny_write(mlc_ctx *ctx, const tiny_net *t, bool integers,
                                    const char *path)
{
    mlc_plan_c_desc d = mlc_plan_c_desc_make();
    mlc_module     *net = t->make(ctx);
    mlc_tensor     *x = mlc_uniform(ctx, MLC_F32, mlc_dims_of(t->n, t->shape), -1, 1);
    mlc_status      st = mlc_nn_fold_batch_norm(net);
    d.self_test = true;
    d.integers = integers;
    d.inputs = &x;
    if (st == MLC_OK && integers) st = tiny_to_integers(net, x, MLC_QUANT_TORCH);
    mlc_plan *p = st == MLC_OK ? mlc_plan_capture(net, &x, 1, NULL) : NULL;
    if (p) st = mlc_plan_write_c(p, path, &d);
    mlc_plan_free(p);
    mlc_module_free(net);
    return mlc_ctx_status(ctx) != MLC_OK ? mlc_ctx_status(ctx) : st;
}

#endif
