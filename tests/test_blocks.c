/* test_blocks.c -- tests of sections IMPL.NN.BLOCKS and IMPL.NN.VISION: residual blocks, and what
 * runs in their passes
 *
 * A whole ResNet-20 against PyTorch, in f64 to the last digits and in f32, bf16 as far as those go.
 */
#include "mlc_test.h"
#include "golden/golden.h"
#include "resnet20.h"

static double largest_difference(mlc_tensor *a, mlc_tensor *b)
{
    return mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false));
}

/* ---- ResNet-20 ------------------------------------------------------------------------------ */

enum { WEIGHTS = 64 * 64 * 9, IMAGES = 4, SIDE = 16 };

static mlc_tensor *spread_tensor(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, uint32_t stream,
                                 double scale, double shift)
{
    static double values[WEIGHTS];
    int64_t       n = 1;
    for (int32_t d = 0; d < shape.n; d++)
        n *= shape.v[d];
    if (!CHECK(n <= WEIGHTS))
        return NULL;
    for (int64_t i = 0; i < n; i++)
        values[i] = golden_spread(i, stream) * scale + shift;
    return test_tensor(ctx, dtype, shape, values);
}

static void spread_params(mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    uint32_t       stream = 0;
    while (mlc_param_next(&it)) {
        mlc_tensor   *p = it.tensor;
        const int32_t n = p->ndim;
        if (it.buffer)
            continue;
        const double fan = (double)mlc_numel(p) / (double)mlc_dim(p, 0);
        CHECK_EQ(mlc_copy_into(p, spread_tensor(mlc_module_ctx(net), p->dtype,
                                                mlc_dims_of(n, p->shape), ++stream,
                                                n == 1 ? 0.2 : sqrt(3 / fan), n == 1 ? 0.5 : 0)),
                 MLC_OK);
    }
    CHECK_EQ(stream, 65);
}

/* Every k-th element, as the golden has it; values of NULL do not count. */
static void check_samples(mlc_tensor *t, mlc_tensor *want, double tolerance, const char *name)
{
    static double got[WEIGHTS], samples[64];
    const int64_t n = mlc_numel(t), step = (n + 63) / 64;
    if (!CHECK(want != NULL && n <= WEIGHTS))
        return;
    test_read(mlc_contiguous(t), got);
    for (int64_t i = 0; i * step < n; i++)
        samples[i] = got[i * step];
    test_read(want, got);
    CHECK_EQ(mlc_numel(want), (n + step - 1) / step);
    for (int64_t i = 0; i < mlc_numel(want); i++)
        if (!(fabs(samples[i] - got[i]) <= tolerance * (1 + fabs(got[i])))) {
            printf("  %s[%d]: %.17g, want %.17g\n", name, (int)(i * step), samples[i], got[i]);
            CHECK(false);
            return;
        }
}

/* Gradients and statistics of the first step. */
static void check_first_step(mlc_module *net, const golden_file *f, double tolerance)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    int            grads = 0, stats = 0;
    while (mlc_param_next(&it))
        if (!it.buffer)
            check_samples(mlc_grad(it.tensor), golden_find(f, "grad.%d", grads++), tolerance,
                          it.name);
        else if (it.tensor->ndim == 1)
            check_samples(it.tensor, golden_find(f, "stat.%d", stats++), tolerance, it.name);
    CHECK_EQ(grads, 65);
    CHECK_EQ(stats, 42);
}

/* tolerance: of the first step; loss_error: of all losses. */
static void train_resnet(mlc_ctx *ctx, const golden_file *f, mlc_dtype dtype, double tolerance,
                         double loss_error)
{
    static double losses[20];
    static const double labels[IMAGES] = {0, 1, 2, 3};
    const int           steps = 20 / (int)test_stride(5);
    mlc_module         *net = resnet20(ctx);
    mlc_sgd_desc        d = mlc_sgd_desc_make(0.02);
    d.momentum = 0.9;
    spread_params(net);
    mlc_tensor *x = spread_tensor(ctx, dtype, mlc_dims4(IMAGES, 3, SIDE, SIDE), 0, 1, 0);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(IMAGES), labels);
    mlc_optim  *opt = mlc_sgd_ex(net, &d);
    test_read(golden_find(f, "losses"), losses);
    for (int step = 0; step < steps; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *logits = mlc_forward(net, x), *loss = mlc_cross_entropy(logits, y);
        CHECK_NEAR(mlc_item(loss), losses[step], loss_error * (1 + losses[step]));
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        if (step == 0) {
            check_samples(logits, golden_find(f, "logits"), tolerance, "logits");
            check_first_step(net, f, tolerance);
        }
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    mlc_tensor *before = mlc_forward(net, x);
    if (steps == 20)
        check_samples(before, golden_find(f, "eval"), 10 * loss_error, "eval");
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    CHECK_NEAR(largest_difference(mlc_forward(net, x), before), 0, 100 * tolerance);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

static mlc_ctx *ctx_of(mlc_isa isa, mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.isa = isa;
    d.dtype = dtype;
    return test_own(mlc_ctx_create(&d));
}

TEST(blocks, a_resnet20_is_pytorchs_to_the_last_digits_in_f64_and_near_in_f32)
{
    static const mlc_dtype dtypes[2] = {MLC_F64, MLC_F32};
    FOR_EACH_LEVEL(isa) {
        for (int i = 0; i < 2; i++) {
            mlc_ctx    *ctx = ctx_of((mlc_isa)isa, dtypes[i]);
            golden_file f = golden_open(ctx, "resnet.safetensors");
            train_resnet(ctx, &f, dtypes[i], i == 0 ? 1e-11 : 1e-4, i == 0 ? 1e-9 : 1e-3);
        }
    }
}

/* The first loss is of the same weights, later ones of others by and by. */
TEST(blocks, a_resnet20_in_bf16_begins_near_and_learns)
{
    static const double labels[IMAGES] = {0, 1, 2, 3};
    static double       losses[20];
    const int           steps = 12 / (int)test_stride(3);
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "resnet.safetensors");
        mlc_module *net = resnet20(ctx);
        double      last = 0;
        spread_params(net);
        test_read(golden_find(&f, "losses"), losses);
        mlc_tensor *x = spread_tensor(ctx, MLC_F32, mlc_dims4(IMAGES, 3, SIDE, SIDE), 0, 1, 0);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(IMAGES), labels);
        mlc_optim  *opt = mlc_sgd(net, 0.02);
        for (int step = 0; step < steps; step++) {
            mlc_scope_begin(ctx);
            CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, x), y);
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
            last = mlc_item(loss);
            if (step == 0)
                CHECK_NEAR(last, losses[0], 0.05 * losses[0]);
            CHECK_EQ(mlc_backward(loss), MLC_OK);
            CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK(last < (steps == 12 ? 0.5 : 0.8) * losses[0]);
        CHECK_OK(ctx);
    }
}

/* ---- batch norm with a sum and a relu in its pass ------------------------------------------- */

typedef struct norm_case {
    mlc_dtype dtype;
    int64_t   channels;
    bool      sum, training;
} norm_case;

enum { NORM_MOST = 3 * 130 * 5 };

/* y and the gradients of x, weight, bias and what is added, with the pass or as operations. */
static void norm_results(mlc_ctx *ctx, const norm_case *c, bool fused, double to[5][NORM_MOST])
{
    const mlc_dims image = mlc_dims3(3, c->channels, 5), row = mlc_dims1(c->channels);
    mlc_module    *body = mlc_nn_sequential(ctx), *net = mlc_nn_sequential(ctx);
    mlc_tensor    *x = test_rand(ctx, c->dtype, image, 1, -1, 1), *y;
    mlc_tensor    *shortcut = test_rand(ctx, c->dtype, image, 2, -1, 1);
    mlc_module_add(body, mlc_nn_batch_norm(ctx, c->channels));
    if (!c->sum)
        mlc_module_add(body, mlc_nn_relu(ctx));
    mlc_module_add(net, c->sum ? mlc_nn_residual(ctx, body, NULL, true) : body);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    mlc_param_iter it = mlc_param_iter_make(net);
    mlc_tensor    *params[4] = {NULL, NULL, NULL, NULL};
    for (int i = 0; mlc_param_next(&it); i++)
        if (i < 4) {
            params[i] = it.tensor;
            CHECK_EQ(mlc_copy_into(it.tensor,
                                   test_rand(ctx, it.tensor->dtype, row, 10 + (uint32_t)i,
                                             i == 3 ? 0.5 : -1, 2)), MLC_OK);
        }
    mlc_module_train(net, c->training);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(shortcut, true);
    if (fused)
        y = mlc_forward(net, x);
    else {
        y = mlc_batch_norm(x, params[2], params[3], params[0], params[1], c->training, 0.1, 1e-5);
        y = mlc_relu(c->sum ? mlc_add(y, x) : y);
    }
    CHECK_EQ(mlc_backward_from(y, test_rand(ctx, c->dtype, image, 3, -1, 1)), MLC_OK);
    mlc_tensor *out[5] = {y, mlc_grad(x), mlc_grad(params[0]), mlc_grad(params[1]), params[3]};
    for (int i = 0; i < 5; i++)
        test_read(mlc_contiguous(out[i]), to[i]);
    mlc_module_free(net);
}

static void check_norm(mlc_ctx *ctx, const norm_case *c)
{
    static double fused[5][NORM_MOST], apart[5][NORM_MOST];
    int64_t       other_side = 0;
    const double  tolerance = c->dtype == MLC_F64 ? 1e-12 : c->dtype == MLC_F32 ? 1e-5 : 0.06;
    mlc_scope_begin(ctx);
    norm_results(ctx, c, true, fused);
    norm_results(ctx, c, false, apart);
    /* In 16 bits a sum is rounded once in the pass and twice apart: some fall on 0's other side. */
    const bool sums_differ = c->sum && c->dtype != MLC_F32 && c->dtype != MLC_F64;
    for (int i = 0; i < (sums_differ ? 1 : 5); i++)
        for (int64_t k = 0; k < c->channels * (i < 2 ? 15 : 1); k++)
            if (!CHECK_NEAR(fused[i][k], apart[i][k], tolerance * (1 + fabs(apart[i][k]))))
                printf("  %s, %d channels, result %d, element %d\n", mlc_dtype_name(c->dtype),
                       (int)c->channels, i, (int)k);
    for (int64_t k = 0; sums_differ && k < c->channels * 15; k++)
        other_side += !(fabs(fused[1][k] - apart[1][k]) <= tolerance * (1 + fabs(apart[1][k])));
    CHECK(other_side * 50 <= c->channels * 15 + 50);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(blocks, a_batch_norm_with_sum_and_relu_in_its_pass_is_the_three_of_them)
{
    static const int64_t   channels[] = {1, 3, 17, 128, 130};
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    FOR_EACH_LEVEL(isa) {
        for (int i = 0; i < 4; i++) {
            mlc_ctx *ctx = ctx_of((mlc_isa)isa, dtypes[i] == MLC_F64 ? MLC_F64 : MLC_F32);
            for (int c = 0; c < 5; c++)
                for (int k = 0; k < 4; k++) {
                    const norm_case one = {dtypes[i], channels[c], k % 2 != 0, k / 2 != 0};
                    check_norm(ctx, &one);
                }
            CHECK_OK(ctx);
        }
    }
}

/* ---- blocks by their formulas --------------------------------------------------------------- */

TEST(blocks, a_bottleneck_and_an_inverted_residual_have_the_shapes_of_torchvisions)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *a = mlc_nn_bottleneck(ctx, 8, 4, 16, 2);
    mlc_module *b = mlc_nn_inverted_residual(ctx, 8, 8, 1, 6);
    mlc_module *c = mlc_nn_inverted_residual(ctx, 8, 12, 2, 1);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 8, 7, 6), 1, -1, 1);
    CHECK_EQ(mlc_module_numel(a, true),
             8 * 4 + 4 * 4 * 9 + 4 * 16 + 8 * 16 + 2 * (4 + 4 + 16 + 16));
    CHECK_EQ(mlc_module_numel(b, true), 8 * 48 + 48 * 9 + 48 * 8 + 2 * (48 + 48 + 8));
    CHECK_EQ(mlc_module_numel(c, true), 8 * 9 + 8 * 12 + 2 * (8 + 12));
    mlc_tensor *y = mlc_forward(a, x), *z = mlc_forward(c, x);
    CHECK(mlc_dim(y, 1) == 16 && mlc_dim(y, 2) == 4 && mlc_dim(y, 3) == 3);
    CHECK(mlc_dim(z, 1) == 12 && mlc_dim(z, 2) == 4 && mlc_dim(z, 3) == 3);
    CHECK(mlc_item(mlc_min(y, mlc_dims0(), false)) >= 0);
    mlc_tensor *body = mlc_forward(mlc_module_child(b, 0), x);
    mlc_module_train(b, false);
    CHECK_NEAR(largest_difference(mlc_forward(b, x), mlc_add(mlc_forward(mlc_module_child(b, 0), x),
                                                             x)), 0, 1e-6);
    CHECK(body != NULL);
    CHECK_OK(ctx);
}

/* The names that the comments of the blocks give, which files are matched by. */
TEST(blocks, names_of_parameters_are_those_of_the_comments)
{
    mlc_ctx *ctx = test_ctx();
    char     text[2048] = "";
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_basic_block(ctx, 4, 8, 2),
                                     mlc_nn_bottleneck(ctx, 8, 2, 8, 1));
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it))
        if (!it.buffer && strlen(it.name) > 7 && !strcmp(strrchr(it.name, '.'), ".weight"))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", it.name);
    CHECK_STR(text, "0.body.0.weight 0.body.1.weight 0.body.3.weight 0.body.4.weight "
                    "0.shortcut.0.weight 0.shortcut.1.weight 1.body.0.weight 1.body.1.weight "
                    "1.body.3.weight 1.body.4.weight 1.body.6.weight 1.body.7.weight ");
    CHECK_OK(ctx);
}

TEST(blocks, squeeze_and_excite_is_a_gate_of_means)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_squeeze_excite(ctx, 6, 3);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 6, 3, 4), 1, -1, 1);
    mlc_tensor *s = mlc_mean(x, mlc_dims2(2, 3), false);
    s = mlc_relu(mlc_linear(s, mlc_module_param(m, "fc1.weight"), mlc_module_param(m, "fc1.bias")));
    s = mlc_sigmoid(mlc_linear(s, mlc_module_param(m, "fc2.weight"),
                               mlc_module_param(m, "fc2.bias")));
    mlc_tensor *want = mlc_mul(x, mlc_reshape(s, mlc_dims4(2, 6, 1, 1)));
    CHECK_NEAR(largest_difference(mlc_forward(m, x), want), 0, 1e-6);
    CHECK(mlc_forward(m, mlc_ones(ctx, MLC_F32, mlc_dims2(2, 6))) == NULL);
    CHECK_STR(mlc_error(ctx),
              "in SqueezeExcite: forward: x is [2,6]; it must be [n,c,..] with 1 to 3 more axes");
    mlc_error_clear(ctx);
}

static bool keep_values(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)m; (void)n_out;
    test_read(out[0], (double *)user);
    return true;
}

/* A hook sees what the linear layer makes, before the activation.                                */
TEST(blocks, linears_of_squeeze_and_excite_have_hooks_and_marks_of_their_own)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_squeeze_excite(ctx, 6, 3);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 6, 3, 4), 1, -1, 1);
    double      seen[2][12] = {{0}};
    mlc_tensor *want = mlc_forward(m, x);
    mlc_tensor *s = mlc_mean(x, mlc_dims2(2, 3), false);
    mlc_tensor *h = mlc_linear(s, mlc_module_param(m, "fc1.weight"),
                               mlc_module_param(m, "fc1.bias"));
    mlc_tensor *g = mlc_linear(mlc_relu(h), mlc_module_param(m, "fc2.weight"),
                               mlc_module_param(m, "fc2.bias"));
    for (int i = 0; i < 2; i++) mlc_module_hook(mlc_module_child(m, i), keep_values, seen[i]);
    CHECK_NEAR(largest_difference(mlc_forward(m, x), want), 0, 1e-6);
    CHECK_VALUES(h, 6, seen[0], 1e-6, 0);
    CHECK_VALUES(g, 12, seen[1], 1e-6, 0);
    CHECK(mlc_item(mlc_min(h, mlc_dims0(), false)) < 0);
    for (int i = 0; i < 2; i++) mlc_module_hook(mlc_module_child(m, i), NULL, NULL);
    mlc_nn_recompute(ctx, mlc_module_child(m, 0));
    mlc_tensor *y = mlc_forward(m, x);
    CHECK_NEAR(largest_difference(y, want), 0, 1e-6);
    CHECK_EQ(mlc_backward(mlc_sum_all(y)), MLC_OK);
    CHECK_OK(ctx);
}

/* Each channel, or image, is all there or not at all, and as many are as p says. */
TEST(blocks, whole_channels_and_whole_images_are_left_out)
{
    FOR_EACH_ISA(ctx) {
        static double y[400 * 6];
        for (int32_t axes = 1; axes <= 2; axes++) {
            mlc_module *m = axes == 2 ? mlc_nn_spatial_dropout(ctx, 0.25)
                                      : mlc_nn_stochastic_depth(ctx, 0.25);
            const int64_t each = axes == 2 ? 3 : 6;
            int           left = 0;
            mlc_tensor   *x = mlc_ones(ctx, MLC_F32, mlc_dims3(400, 2, 3));
            test_read(mlc_contiguous(mlc_forward(m, x)), y);
            for (int64_t i = 0; i < 2400; i += each) {
                for (int64_t k = 1; k < each; k++)
                    CHECK_NEAR(y[i + k], y[i], 0);
                CHECK(y[i] == 0 || fabs(y[i] - 4.0 / 3) < 1e-6);
                left += y[i] == 0;
            }
            CHECK_NEAR(left * (double)each / 2400, 0.25, 0.07);
            mlc_module_train(m, false);
            CHECK(mlc_forward(m, x) == x);
        }
        CHECK(mlc_nn_spatial_dropout(ctx, 1.5) == NULL);
        CHECK_STR(mlc_error(ctx), "SpatialDropout: p is 1.5, not in [0, 1]");
        mlc_error_clear(ctx);
    }
}

TEST(blocks, upsample_and_pixel_shuffle_are_their_operations)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 4, 3, 5), 1, -1, 1);
    mlc_module *up = mlc_nn_upsample(ctx, 2, MLC_INTERPOLATE_LINEAR);
    CHECK_NEAR(largest_difference(mlc_forward(up, x), mlc_interpolate(x, mlc_dims2(6, 10),
                                                                      MLC_INTERPOLATE_LINEAR)),
               0, 0);
    CHECK_NEAR(largest_difference(mlc_forward(mlc_nn_pixel_shuffle(ctx, 2), x),
                                  mlc_pixel_shuffle(x, 2)), 0, 0);
    CHECK_NEAR(largest_difference(mlc_pixel_unshuffle(mlc_pixel_shuffle(x, 2), 2), x), 0, 0);
    CHECK(mlc_nn_upsample(ctx, 0, MLC_INTERPOLATE_LINEAR) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_upsample: scale is 0; it must be 1 to 2^15");
    mlc_error_clear(ctx);
}

TEST(blocks, norms_as_modules_are_their_operations)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 4, 6), 1, -1, 1);
    mlc_module *m[4] = {mlc_nn_layer_norm(ctx, 6), mlc_nn_rms_norm(ctx, 6),
                        mlc_nn_group_norm(ctx, 2, 4), mlc_nn_instance_norm(ctx, 4, false)};
    mlc_tensor *want[4] = {mlc_layer_norm(x, NULL, NULL, 1e-5), mlc_rms_norm(x, NULL, 1e-6),
                           mlc_group_norm(x, 2, NULL, NULL, 1e-5),
                           mlc_instance_norm(x, NULL, NULL, 1e-5)};
    static const int64_t params[4] = {12, 6, 8, 0};
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(largest_difference(mlc_forward(m[i], x), want[i]), 0, 1e-6);
        CHECK_EQ(mlc_module_numel(m[i], true), params[i]);
    }
    CHECK(mlc_nn_group_norm(ctx, 3, 4) == NULL);
    CHECK_STR(mlc_error(ctx),
              "GroupNorm: size 4, groups 3; the size must be positive, and the groups must divide "
              "it");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_group_norm(ctx, 0, 4) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "GroupNorm: groups is 0; it must be 1 or more");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_layer_norm(ctx, 0) == NULL && mlc_nn_group_norm(ctx, 1, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

TEST(blocks, norms_of_a_desc_take_each_value_as_it_is)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 4, 6), 1, -1, 1);
    for (int i = 0; i < 12; i++) {
        const int64_t    size = i / 3 < 2 ? 6 : 4;
        const double     eps = i % 3 == 0 ? 1e-5 : i % 3 == 1 ? 0.0 : 0.25;
        mlc_nn_norm_desc d = mlc_nn_norm_desc_make(size);
        CHECK(d.size == size && d.groups == 1 && d.eps == 1e-5 && !d.no_affine && !d.no_bias);
        d.eps = eps;
        d.no_bias = i % 3 == 1;
        d.no_affine = i % 3 == 2;
        if (i / 3 == 2) d.groups = 2;
        mlc_module *m = i / 3 == 0   ? mlc_nn_layer_norm_ex(ctx, &d)
                        : i / 3 == 1 ? mlc_nn_rms_norm_ex(ctx, &d)
                        : i / 3 == 2 ? mlc_nn_group_norm_ex(ctx, &d)
                                     : mlc_nn_instance_norm_ex(ctx, &d);
        mlc_tensor *want = i / 3 == 0   ? mlc_layer_norm(x, NULL, NULL, eps)
                           : i / 3 == 1 ? mlc_rms_norm(x, NULL, eps)
                           : i / 3 == 2 ? mlc_group_norm(x, 2, NULL, NULL, eps)
                                        : mlc_instance_norm(x, NULL, NULL, eps);
        const int64_t params = d.no_affine ? 0 : d.no_bias || i / 3 == 1 ? size : 2 * size;
        CHECK_NEAR(largest_difference(mlc_forward(m, x), want), 0, 1e-6);
        CHECK_EQ(mlc_module_numel(m, true), params);
    }
    CHECK_OK(ctx);
}

/* Of so small an x that eps decides. */
TEST(blocks, a_desc_of_a_norm_makes_the_module_of_its_short_form)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 1, -1e-3, 1e-3);
    const mlc_nn_norm_desc d = mlc_nn_norm_desc_make(6), r = mlc_nn_rms_norm_desc_make(6);
    mlc_module            *made[2] = {mlc_nn_layer_norm_ex(ctx, &d), mlc_nn_rms_norm_ex(ctx, &r)};
    mlc_module *is[2] = {mlc_nn_layer_norm(ctx, 6), mlc_nn_rms_norm(ctx, 6)};
    for (int i = 0; i < 2; i++) {
        CHECK(largest_difference(mlc_forward(made[i], x), mlc_forward(is[i], x)) == 0);
        CHECK_EQ(mlc_module_numel(made[i], false), mlc_module_numel(is[i], false));
    }
    CHECK(mlc_nn_rms_norm_ex(ctx, NULL) == NULL);
    CHECK(strstr(mlc_error(ctx), "starts from mlc_nn_rms_norm_desc_make(size)") != NULL);
    mlc_error_clear(ctx);
}

/* ---- folding -------------------------------------------------------------------------------- */

/* Convolutions with a bias and without, in groups, a linear; names of what is left stay. */
static mlc_module *foldable(mlc_ctx *ctx)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 4, 6, 3);
    mlc_module      *net = mlc_nn_sequential(ctx);
    d.no_bias = true;
    d.conv.groups = 2;
    mlc_module_add(net, mlc_nn_conv(ctx, &d));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 6));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_conv1d(ctx, 6, 5, 2, 1, 0));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 5));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 25, 3));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 3));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    mlc_param_iter it = mlc_param_iter_make(net);
    for (uint32_t i = 0; mlc_param_next(&it); i++)
        if (it.tensor->ndim == 1)
            CHECK_EQ(mlc_copy_into(it.tensor, test_rand(ctx, it.tensor->dtype,
                                                        mlc_dims_of(1, it.tensor->shape), i, 0.5,
                                                        1.5)), MLC_OK);
    mlc_module_train(net, false);
    return net;
}

TEST(blocks, a_folded_batch_norm_is_gone_and_outputs_stay)
{
    FOR_EACH_ISA(ctx) {
        mlc_module *net = foldable(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(3, 4, 8), 1, -1, 1);
        mlc_tensor *want = mlc_forward(net, x);
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
        CHECK_NEAR(largest_difference(mlc_forward(net, x), want), 0, 1e-5);
        CHECK_EQ(mlc_dim(mlc_module_param(net, "0.bias"), 0), 6);
        CHECK_EQ(mlc_dim(mlc_module_param(net, "6.bias"), 0), 3);
        CHECK_EQ(mlc_module_numel(net, false), 6 * 2 * 3 + 6 + 5 * 6 * 2 + 5 + 25 * 3 + 3);
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
        CHECK_NEAR(largest_difference(mlc_forward(net, x), want), 0, 1e-5);
        CHECK_OK(ctx);
    }
    CHECK_EQ(mlc_nn_fold_batch_norm(NULL), MLC_ERR_ARG);
}

/* linear 1 1 of 2, a norm of variance 3, and linears of the same weight and bias, one of them in
 * another tree: of 0.25 the first makes 0.5 + 1, over sqrt 3. The fold of a network that is not yet
 * built is that of its first values. */
TEST(blocks, folding_copies_what_is_tied_and_leaves_the_others_their_values)
{
    for (int built = 0; built < 2; built++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *first = mlc_nn_linear(ctx, 1, 1), *last = mlc_nn_linear(ctx, 1, 1);
        mlc_module *other = mlc_nn_linear(ctx, 1, 1);
        mlc_module *net = MLC_SEQUENTIAL(ctx, first, mlc_nn_batch_norm(ctx, 1), last);
        mlc_tensor *w = mlc_module_param(net, "0.weight"), *b = mlc_module_param(net, "0.bias");
        mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims2(1, 1), 0.25);
        mlc_no_grad_begin(ctx);
        mlc_fill_(w, 2);
        mlc_fill_(b, 1);
        mlc_fill_(mlc_module_param(other, "bias"), 0);
        mlc_no_grad_end(ctx);
        mlc_fill_(mlc_module_param(net, "1.running_var"), 3);
        CHECK_EQ(mlc_module_tie(last, "weight", w), MLC_OK);
        CHECK_EQ(mlc_module_tie(last, "bias", b), MLC_OK);
        CHECK_EQ(mlc_module_tie(other, "weight", w), MLC_OK);
        if (built) CHECK_EQ(mlc_module_build(net), MLC_OK);
        mlc_module_freeze(net, "0.weight", true);
        mlc_module_train(net, false);
        const double want = 1.5 / sqrt(3 + 1e-5);
        CHECK_NEAR(mlc_item(mlc_forward(net, x)), 2 * want + 1, 1e-6);
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
        CHECK_NEAR(mlc_item(mlc_forward(first, x)), want, 1e-6);
        CHECK_NEAR(mlc_item(mlc_forward(net, x)), 2 * want + 1, 1e-6);
        CHECK_NEAR(mlc_item(mlc_forward(last, x)), 1.5, 0);
        CHECK_NEAR(mlc_item(mlc_forward(other, x)), 0.5, 0);
        CHECK_EQ(mlc_module_numel(net, false), 4);          /* what was one is two             */
        CHECK_EQ(mlc_module_numel(net, true), 2);          /* a copy is as frozen as it was   */
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
        CHECK_NEAR(mlc_item(mlc_forward(net, x)), 2 * want + 1, 1e-6);
        CHECK_OK(ctx);
    }
}

/* In 16 bits, too; a norm without running statistics stays. */
TEST(blocks, folding_is_done_in_f32_and_leaves_what_it_cannot_fold)
{
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *net = foldable(ctx), *own = mlc_nn_sequential(ctx);
    mlc_tensor         *x = test_rand(ctx, MLC_BF16, mlc_dims3(3, 4, 8), 1, -1, 1);
    mlc_nn_batch_norm_desc d = mlc_nn_batch_norm_desc_make(2);
    d.no_statistics = true;
    mlc_module_add(own, mlc_nn_conv1d(ctx, 4, 2, 3, 1, 0));
    mlc_module_add(own, mlc_nn_batch_norm_ex(ctx, &d));
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    mlc_tensor *want = mlc_cast(mlc_forward(net, x), MLC_F32);
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    CHECK_NEAR(largest_difference(mlc_cast(mlc_forward(net, x), MLC_F32), want), 0, 0.1);
    CHECK_EQ(mlc_module_param(net, "0.bias")->dtype, MLC_F32);
    CHECK_EQ(mlc_nn_fold_batch_norm(own), MLC_OK);
    CHECK(mlc_module_child(own, 1) != NULL);
    CHECK_OK(ctx);
}

TEST(blocks, a_residual_that_cannot_be_made_leaves_its_parts_as_they_were)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *body = mlc_nn_linear(ctx, 2, 2), *owned = mlc_nn_linear(ctx, 2, 2);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 2), 1, -1, 1);
    mlc_memory  before, after;
    mlc_module *owner = MLC_SEQUENTIAL(ctx, owned);
    CHECK(mlc_forward(body, x) != NULL && mlc_forward(owner, x) != NULL);
    mlc_memory_info(ctx, &before);
    for (int i = 0; i < 3; i++) {
        CHECK(mlc_nn_residual(ctx, i ? body : NULL, i == 1 ? body : i ? owned : body, false) ==
              NULL);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        mlc_error_clear(ctx);
        mlc_scope_begin(ctx);
        CHECK(mlc_forward(body, x) != NULL && mlc_forward(owner, x) != NULL);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_OBJECT], before.now[MLC_MEM_OBJECT]);
    CHECK(mlc_nn_basic_block(ctx, 4, 0, 1) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_basic_block: channels 4, 0, 0, stride 1: all must be positive");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_inverted_residual(ctx, INT64_MIN, 4, 1, 2) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_inverted_residual: channels -9223372036854775808, 0, 4");
    CHECK(mlc_nn_inverted_residual(ctx, 4, 4, 1, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_OBJECT], before.now[MLC_MEM_OBJECT]);
    mlc_module *net = mlc_nn_residual(ctx, body, NULL, true);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_OK(ctx);
    mlc_module_free(net);
}

/* ---- branches side by side ------------------------------------------------------------------- */

TEST(blocks, a_concat_is_its_branches_side_by_side)
{
    FOR_EACH_ISA(ctx) {
        mlc_module *part[] = {mlc_nn_conv2d(ctx, 3, 2, 3, 1, 1), mlc_nn_identity(ctx),
                              mlc_nn_conv2d(ctx, 3, 4, 1, 1, 0)};
        mlc_module *net = mlc_nn_concat(ctx, 1, 3, part);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 5, 4), 1, -1, 1);
        mlc_set_requires_grad(x, true);
        mlc_tensor *y[] = {mlc_forward(part[0], x), x, mlc_forward(part[2], x)};
        mlc_tensor *want = mlc_concat(y, 3, 1), *all = mlc_forward(net, x);
        CHECK_EQ(mlc_dim(all, 1), 9);
        CHECK_NEAR(largest_difference(all, want), 0, 0);
        mlc_backward(mlc_sum(mlc_square(want), mlc_dims0(), false));
        mlc_tensor *grad = mlc_copy(mlc_grad(x));
        mlc_zero_grad(x);
        mlc_backward(mlc_sum(mlc_square(mlc_forward(net, x)), mlc_dims0(), false));
        CHECK_NEAR(largest_difference(mlc_grad(x), grad), 0, 1e-5);
        CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);       /* x is f32, the rest bf16 */
        mlc_tensor *low = mlc_forward(net, x);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK_NEAR(largest_difference(low, want), 0, 0.05);
        CHECK_OK(ctx);
    }
}

TEST(blocks, a_concat_that_cannot_be_made_leaves_its_branches)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *part[] = {mlc_nn_linear(ctx, 3, 2), NULL};
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    CHECK(!mlc_nn_concat(ctx, 1, 2, part));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_concat: child 1 is NULL");
    CHECK(!mlc_nn_concat(ctx, 1, 0, part));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_concat: 0 branches");
    CHECK(!mlc_nn_concat(ctx, 1, 1, NULL) && !mlc_nn_concat(NULL, 1, 1, part));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "branches in NULL");
    part[1] = part[0];
    CHECK(!mlc_nn_concat(ctx, 1, 2, part));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_forward(part[0], x) != NULL);      /* its own again */
    mlc_module *net = mlc_nn_concat(ctx, 2, 1, part);
    CHECK(!mlc_forward(net, x));
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    mlc_module_free(net);
}

/* ---- what a review found -------------------------------------------------------------------- */

/* relu, then a convolution: x is f32 where autocast makes the rest bf16, or of one channel where
 * the convolution makes four. */
TEST(blocks, a_residual_is_a_sum_also_where_dtypes_or_shapes_differ)
{
    FOR_EACH_ISA(ctx) {
        for (int64_t c = 1; c <= 4; c += 3) {
            mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, c, 4, 3);
            d.conv.padding = mlc_dims_all(1);
            mlc_module *body = mlc_nn_sequential(ctx);
            mlc_module_add(body, mlc_nn_relu(ctx));
            mlc_module_add(body, mlc_nn_conv(ctx, &d));
            mlc_module *net = mlc_nn_residual(ctx, body, NULL, true);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, c, 5, 4), 1, -1, 1);
            mlc_tensor *want = mlc_relu(mlc_add(mlc_forward(body, x), x));
            mlc_no_grad_begin(ctx);
            CHECK_NEAR(largest_difference(mlc_forward(net, x), want), 0, 1e-6);
            CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
            mlc_tensor *low = mlc_forward(net, x);
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
            CHECK_NEAR(largest_difference(mlc_cast(low, MLC_F32), want), 0, 0.05);
            mlc_no_grad_end(ctx);
            CHECK_OK(ctx);
        }
    }
}

/* A norm of another number of channels is not folded: the forward refuses it as before. */
TEST(blocks, folding_leaves_a_norm_of_another_number_of_channels)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 4));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 1));
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    CHECK(mlc_module_child(net, 1) != NULL);
    CHECK_OK(ctx);
}
