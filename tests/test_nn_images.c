/* test_nn_images.c -- tests of section IMPL.NN: layers of images */
#include "mlc_test.h"

/* ---- convolution, pooling, batch norm ------------------------------------------------------- */

static double largest_gap(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false)) : (double)NAN;
}

TEST(nn, layers_of_images_are_their_operations)
{
    static const mlc_pad_mode modes[] = {MLC_PAD_CONSTANT, MLC_PAD_REFLECT, MLC_PAD_REPLICATE,
                                         MLC_PAD_CIRCULAR};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 6, 7), 3, -1, 1);
        for (int i = 0; i < 4; i++) {
            mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 5, 3);
            d.conv.padding = mlc_dims2(1, 2), d.conv.stride = mlc_dims2(1, 2);
            d.padding_mode = modes[i];
            mlc_module *m = mlc_nn_conv(ctx, &d);
            mlc_tensor *w = mlc_module_param(m, "weight"), *b = mlc_module_param(m, "bias");
            mlc_dims    pad = mlc_dims4(0, 0, 1, 2);
            mlc_conv_desc plain = mlc_conv_desc_make();
            plain.stride = mlc_dims2(1, 2);
            mlc_tensor *want = mlc_conv(mlc_pad(x, pad, pad, modes[i], 0), w, b, &plain);
            CHECK_NEAR(largest_gap(mlc_forward(m, x), want), 0, 1e-6);
            mlc_tensor *most = mlc_max(mlc_abs(w), mlc_dims0(), false);
            CHECK(mlc_item(most) <= 1 / sqrt(27.0) && mlc_item(most) > 0.9 / sqrt(27.0));
        }
        mlc_nn_conv_desc t = mlc_nn_conv_desc_make(2, 3, 4, 2);
        t.transposed = true;
        t.conv.stride = mlc_dims_all(2);
        mlc_module *m = mlc_nn_conv(ctx, &t);
        CHECK_EQ(mlc_dim(mlc_forward(m, x), 2), 12);
        CHECK_EQ(mlc_dim(mlc_module_param(m, "weight"), 1), 4);
        CHECK_OK(ctx);
    }
}

/* conv, relu in one pass; pool; batch norm; the whole in training and in evaluation. */
static mlc_module *image_net(mlc_ctx *ctx)
{
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    mlc_module         *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 1, 4, 3, 1, 0));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &two));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 4));
    mlc_module_add(net, mlc_nn_conv2d(ctx, 4, 6, 2, 1, 0));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(2, 2)));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 24, 3));
    mlc_module_build(net);
    return net;
}

TEST(nn, a_network_of_images_runs_as_its_children_do_and_learns)
{
    static const double labels[4] = {0, 1, 2, 1};
    FOR_EACH_ISA(ctx) {
        mlc_module *net = image_net(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(4, 1, 12, 12), 3, -1, 1);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
        mlc_optim  *opt = mlc_adamw(net, 0.01);
        double      first = 0, last = 0;
        mlc_module_train(net, false);
        mlc_no_grad_begin(ctx);
        mlc_tensor *by_child = x, *at_once = mlc_forward(net, x);
        for (int i = 0; i < 9; i++)
            by_child = mlc_forward(mlc_module_child(net, i), by_child);
        CHECK_NEAR(largest_gap(by_child, at_once), 0, 1e-6);
        mlc_no_grad_end(ctx);
        mlc_module_train(net, true);
        for (int i = 0; i < 30; i++) {
            mlc_scope_begin(ctx);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, x), y);
            last = mlc_item(loss);
            if (i == 0)
                first = last;
            CHECK_EQ(mlc_backward(loss), MLC_OK);
            CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK(last < 0.5 * first);
        CHECK_NEAR(mlc_item(mlc_module_param(net, "3.num_batches_tracked")), 30, 0);
        CHECK(fabs(mlc_item(mlc_select(mlc_module_param(net, "3.running_mean"), 0, 0))) > 0);
        mlc_module_train(net, false);
        mlc_no_grad_begin(ctx);
        CHECK(largest_gap(mlc_forward(net, x), at_once) > 0.1);
        CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *low = mlc_forward(net, x);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK_EQ(low->dtype, MLC_BF16);
        CHECK(largest_gap(mlc_cast(low, MLC_F32), mlc_forward(net, x)) < 0.2);
        CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
        CHECK(largest_gap(mlc_cast(mlc_forward(net, mlc_cast(x, MLC_BF16)), MLC_F32),
                          mlc_cast(low, MLC_F32)) < 0.2);
        mlc_no_grad_end(ctx);
        CHECK_OK(ctx);
    }
}

/* Three features, the first with a scale that f16 has no number for. */
static mlc_module *net_of_statistics(mlc_ctx *ctx, mlc_tensor *x)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_standardize(ctx, 3), mlc_nn_linear(ctx, 3, 4),
                                     mlc_nn_batch_norm(ctx, 4), mlc_nn_relu(ctx));
    CHECK_EQ(mlc_nn_scale_fit(mlc_module_child(net, 0), x), MLC_OK);
    return net;
}

/* Against the same network in f32, which stays as the clone. */
TEST(nn, statistics_stay_f32_in_a_network_of_16_bits)
{
    static const char *const names[4] = {"0.mean", "0.scale", "2.running_mean", "2.running_var"};
    static const mlc_dtype   to[2] = {MLC_BF16, MLC_F16};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 2; k++) {
            mlc_tensor *scales = test_tensor(ctx, MLC_F32, mlc_dims1(3), (double[]){1e-5, 1, 40});
            mlc_tensor *x = mlc_mul(test_rand(ctx, MLC_F32, mlc_dims2(16, 3), 3, -1, 2), scales);
            mlc_module *net = net_of_statistics(ctx, x), *full = mlc_module_clone(net);
            CHECK_EQ(mlc_module_to(net, to[k]), MLC_OK);
            CHECK_EQ(mlc_module_param(net, "2.weight")->dtype, to[k]);
            for (int training = 1; training >= 0; training--) {
                mlc_module_train(net, training != 0);
                mlc_module_train(full, training != 0);
                mlc_tensor *y = mlc_forward(net, mlc_cast(x, to[k]));
                if (!CHECK(y != NULL)) break;
                CHECK_EQ(y->dtype, to[k]);
                CHECK_NEAR(largest_gap(mlc_cast(y, MLC_F32), mlc_forward(full, x)), 0, 0.05);
                CHECK_EQ(mlc_backward(mlc_mean_all(mlc_mul(y, y))), MLC_OK);
                CHECK_EQ(mlc_grad(mlc_module_param(net, "1.weight"))->dtype, to[k]);
            }
            for (int i = 0; i < 4; i++) {
                CHECK_EQ(mlc_module_param(net, names[i])->dtype, MLC_F32);
                CHECK_NEAR(largest_gap(mlc_module_param(net, names[i]),
                                       mlc_module_param(full, names[i])), 0, 0.01);
            }
            mlc_module *clone = mlc_module_clone(net);
            CHECK_EQ(mlc_module_to(clone, to[k]), MLC_OK);
            CHECK_EQ(mlc_module_param(clone, "2.running_var")->dtype, MLC_F32);
            CHECK_EQ(mlc_module_copy(clone, net), MLC_OK);
            CHECK_EQ(mlc_module_to(clone, MLC_F64), MLC_OK);
            CHECK_EQ(mlc_module_param(clone, "2.running_var")->dtype, MLC_F64);
            CHECK_EQ(mlc_module_param(clone, "2.num_batches_tracked")->dtype, MLC_I64);
            CHECK_OK(ctx);
        }
    }
}

/* A convolution that has one activation keeps it, whatever follows. */
TEST(nn, sequential_does_not_replace_an_activation)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 2, 3, 2);
    d.conv.act = MLC_ACT_RELU;
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv(ctx, &d));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 2, 9), 1, -1, 1);
    mlc_tensor *want = mlc_tanh(mlc_forward(mlc_module_child(net, 0), x));
    CHECK_NEAR(largest_gap(mlc_forward(net, x), want), 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, layers_of_images_refuse_sizes_that_are_none)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 5, 3);
    d.conv.groups = 2;
    CHECK(mlc_nn_conv(ctx, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_conv: 2 axes, in 3, out 5, kernel 3, groups 2: 1 to 3 axes, "
                              "positive sizes, a kernel below 2^20, a number of it for each axis "
                              "or mlc_dims_all, channels that are multiples "
                              "of groups, and padding with zeros where it is transposed; start "
                              "from mlc_nn_conv_desc_make()");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_conv(ctx, NULL) == NULL && mlc_nn_conv2d(ctx, 1, 1, 0, 1, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_nn_batch_norm(ctx, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_batch_norm: channels is 0; it must be positive; a desc starts "
                              "from mlc_nn_batch_norm_desc_make(channels)");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_conv1d(NULL, 1, 1, 1, 1, 0) == NULL && mlc_nn_conv3d(NULL, 1, 1, 1, 1, 0) == NULL);
}

/* ---- relu with the maxima behind it --------------------------------------------------------- */

/* Conv, relu, pool in one sequential, and the operations one by one; y is changed in place before
 * backward, which saved nothing of it. */
static void conv_relu_pool(mlc_ctx *ctx, mlc_dtype dtype)
{
    enum { N = 2, C = 3, SIDE = 9, OUT = 5, Y = N * OUT * 16, X = N * C * SIDE * SIDE };
    static double       y[2][Y], dx[2][X];
    mlc_pool_desc       two = mlc_pool_desc_make(3);
    mlc_tensor         *x = test_rand(ctx, dtype, mlc_dims4(N, C, SIDE, SIDE), 1, -1, 1);
    mlc_module         *net = mlc_nn_sequential(ctx), *conv = mlc_nn_conv2d(ctx, C, OUT, 3, 1, 0);
    two.stride = mlc_dims_all(2);
    two.padding = mlc_dims_all(1);
    mlc_set_requires_grad(x, true);
    mlc_module_add(net, conv);
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &two));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    for (int fused = 0; fused < 2; fused++) {
        mlc_tensor *out = fused ? mlc_forward(net, x)
                                : mlc_max_pool(mlc_relu(mlc_forward(conv, x)), &two);
        mlc_mul_scalar_(out, 2);
        test_read(mlc_contiguous(out), y[fused]);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(out, out), mlc_dims0(), false)), MLC_OK);
        test_read(mlc_contiguous(mlc_grad(x)), dx[fused]);
        mlc_zero_grad(x);
    }
    CHECK_OK(ctx);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    CHECK(memcmp(dx[0], dx[1], sizeof dx[0]) == 0);
    mlc_module_free(net);
}

TEST(nn, relu_with_the_maxima_behind_it_is_the_same_and_saves_nothing_of_them)
{
    FOR_EACH_ISA(ctx) {
        conv_relu_pool(ctx, MLC_F32);
        conv_relu_pool(ctx, MLC_F64);
        conv_relu_pool(ctx, MLC_BF16);
    }
}

/* ---- layers of images in one call ----------------------------------------------------------- */

TEST(nn, short_forms_of_layers_of_images_are_the_long_ones)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x[3] = {test_rand(ctx, MLC_F32, mlc_dims3(2, 3, 9), 1, -1, 1),
                        test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 9, 8), 2, -1, 1), NULL};
    x[2] = test_rand(ctx, MLC_F32, mlc_dims_of(5, (const int64_t[]){2, 3, 5, 6, 7}), 3, -1, 1);
    mlc_module *m[4][3] = {
        {mlc_nn_conv1d(ctx, 3, 4, 3, 2, 1), mlc_nn_conv2d(ctx, 3, 4, 3, 2, 1),
         mlc_nn_conv3d(ctx, 3, 4, 3, 2, 1)},
        {mlc_nn_conv_transpose1d(ctx, 3, 4, 3, 2, 1), mlc_nn_conv_transpose2d(ctx, 3, 4, 3, 2, 1),
         mlc_nn_conv_transpose3d(ctx, 3, 4, 3, 2, 1)},
        {mlc_nn_max_pool1d(ctx, 2), mlc_nn_max_pool2d(ctx, 2), mlc_nn_max_pool3d(ctx, 2)},
        {mlc_nn_avg_pool1d(ctx, 2), mlc_nn_avg_pool2d(ctx, 2), mlc_nn_avg_pool3d(ctx, 2)}};
    mlc_conv_desc       d = mlc_conv_desc_make();
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    for (int i = 0; i < 12; i++) {
        mlc_module *layer = m[i / 3][i % 3];
        mlc_tensor *in = x[i % 3], *want = NULL;
        mlc_tensor *w = i < 6 ? mlc_module_param(layer, "weight") : NULL;
        mlc_tensor *b = i < 6 ? mlc_module_param(layer, "bias") : NULL;
        mlc_module_build(layer);
        if (i / 3 == 0) want = mlc_conv(in, w, b, &d);
        if (i / 3 == 1) want = mlc_conv_transpose(in, w, b, &d);
        if (i / 3 == 2) want = mlc_max_pool(in, &two);
        if (i / 3 == 3) want = mlc_avg_pool(in, &two);
        CHECK_NEAR(largest_gap(mlc_forward(layer, in), want), 0, 0);
    }
    CHECK_OK(ctx);
    CHECK(mlc_forward(m[2][1], x[0]) == NULL);
    CHECK_HAS(mlc_error(ctx), "kernel has 2 numbers, the image 1 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_nn_max_pool2d(NULL, 2) == NULL);
    CHECK(mlc_nn_conv_transpose2d(NULL, 1, 1, 1, 1, 0) == NULL);
}

/* What a zeroed struct or a list of another length has is found when the layer is made. */
TEST(nn, layers_of_images_refuse_descs_that_were_not_made)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d;
    memset(&d, 0, sizeof d);
    d.axes = 2, d.in = d.out = 3, d.kernel = mlc_dims_all(3);
    CHECK(mlc_nn_conv(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_nn_conv_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_nn_conv_desc_make(2, 3, 3, 3);
    d.conv.stride = mlc_dims1(2);
    CHECK(mlc_nn_conv(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_conv: stride has 1 numbers, the image 2 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 3, 5, 5));
    CHECK(mlc_forward(mlc_nn_conv2d(ctx, 3, 3, 3, 0, 0), x) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_forward(mlc_nn_avg_pool(ctx, NULL), x) == NULL);
    CHECK_HAS(mlc_error(ctx), "start from mlc_pool_desc_make(kernel)");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* With momentum 0 the statistics stay; with eps 0 a channel of two values becomes -1 and 1. */
TEST(nn, batch_norm_takes_a_momentum_and_an_eps_of_0)
{
    static const double    v[4] = {3, 3.5, 3, 3.5}, want[4] = {-1, 1, -1, 1}, zero = 0, one = 1;
    mlc_ctx               *ctx = test_ctx();
    mlc_nn_batch_norm_desc d = mlc_nn_batch_norm_desc_make(1);
    d.momentum = d.eps = 0;
    mlc_module *m = mlc_nn_batch_norm_ex(ctx, &d);
    mlc_tensor *y = mlc_forward(m, test_tensor(ctx, MLC_F32, mlc_dims3(2, 1, 2), v));
    CHECK_VALUES(y, 4, want, 1e-7, 0);
    CHECK_VALUES(mlc_module_param(m, "running_mean"), 1, &zero, 0, 0);
    CHECK_VALUES(mlc_module_param(m, "running_var"), 1, &one, 0, 0);
    d.eps = -1e-5;
    CHECK(mlc_nn_batch_norm_ex(ctx, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_batch_norm: momentum is 0, eps -1e-05; momentum must be in "
                              "[0, 1], eps finite and not negative");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Whatever the module is: an LSTM took the states of a step that had failed.                     */
