/* mnist.c -- a convolutional network on MNIST's files, whose training images are moved and turned
 *   build   make build/tasks/mnist
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/mnist.c -lm -pthread -o mnist
 *   run     ./mnist           from a folder whose data/MNIST/raw has the four files, unpacked;
 *           python3 tests/make_idx.py examples/data/digits.csv data/MNIST/raw makes small ones*/
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

static mlc_loader *loader(mlc_ctx *ctx, const char *images, const char *labels, bool train)
{
    static const double mean = 0.1307, deviation = 0.3081;
    mlc_augment_desc a = mlc_augment_desc_make();
    a.scale = 1.0 / 255;
    a.mean = &mean;
    a.std = &deviation;
    if (train) a.shift = 2, a.rotate = 10;
    mlc_loader_from_desc l = mlc_loader_from_desc_make(64);
    l.shuffle = train;
    mlc_dataset *data = mlc_dataset_mnist(ctx, images, labels, 10);
    return mlc_loader_from(ctx, mlc_dataset_augment(ctx, data, &a), &l);
}

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = MLC_SEQUENTIAL(ctx,
        mlc_nn_conv2d(ctx, 1, 16, 3, 1, 1), mlc_nn_batch_norm(ctx, 16), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2), mlc_nn_conv2d(ctx, 16, 32, 3, 1, 1),
        mlc_nn_batch_norm(ctx, 32), mlc_nn_relu(ctx), mlc_nn_max_pool2d(ctx, 2),
        mlc_nn_flatten(ctx), mlc_nn_dropout(ctx, 0.25), mlc_nn_linear(ctx, 32 * 7 * 7, 10));
    mlc_fit_metric accuracy = { "accuracy", mlc_metric_accuracy(ctx), true };
    mlc_tracker   *history;
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 3;
    d.validation = loader(ctx, "data/MNIST/raw/t10k-images-idx3-ubyte",
                          "data/MNIST/raw/t10k-labels-idx1-ubyte", false);
    d.metrics = &accuracy, d.n_metrics = 1;
    mlc_loader *train = loader(ctx, "data/MNIST/raw/train-images-idx3-ubyte",
                               "data/MNIST/raw/train-labels-idx1-ubyte", true);
    mlc_fit(net, mlc_adamw(net, 2e-3), train, &d, &history);
    mlc_tracker_print(history, NULL, NULL);
    MLC_CHECK(ctx);
    mlc_tracker_free(history);
    mlc_ctx_free(ctx);
}
