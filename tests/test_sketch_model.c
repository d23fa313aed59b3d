/* test_sketch_model.c -- tests of section IMPL.SKETCH.WITHIN: networks within a budget
 *
 * Errors of layers against the weights that the new layers stand for, budgets in bytes, choices
 * between forms by spectra that are made for each, inputs that count, and files.
 */
#include "mlc_test.h"


/* |a - b| / |b|. */
static double apart(mlc_tensor *a, mlc_tensor *b)
{
    mlc_tensor  *x = mlc_cast(a, MLC_F64), *y = mlc_cast(b, MLC_F64);
    const double all = mlc_item(mlc_norm(y, 2, mlc_dims0(), false));
    return mlc_item(mlc_norm(mlc_sub(x, y), 2, mlc_dims0(), false)) / (all > 0 ? all : 1);
}

/* Orthonormal columns [m,n]. */
static mlc_tensor *orthonormal(mlc_ctx *ctx, int64_t m, int64_t n, uint32_t seed)
{
    return mlc_linalg_qr(test_rand(ctx, MLC_F64, mlc_dims2(m, n), seed, -1, 1), NULL);
}

/* A weight [out,in] with singular values by^i. */
static mlc_tensor *graded(mlc_ctx *ctx, int64_t out, int64_t in, double by, uint32_t seed)
{
    const int64_t k = out < in ? out : in;
    mlc_tensor   *s = mlc_exp(mlc_mul_scalar(mlc_arange(ctx, MLC_F64, 0, (double)k, 1), log(by)));
    mlc_tensor   *u = mlc_mul(orthonormal(ctx, out, k, seed), s);
    return mlc_matmul(u, mlc_transpose(orthonormal(ctx, in, k, seed + 1), 0, 1));
}

static void set(mlc_module *m, const char *name, mlc_tensor *value)
{
    mlc_tensor *p = mlc_module_param(m, name);
    if (CHECK(p != NULL))
        CHECK_EQ(mlc_copy_into(p, mlc_cast(value, p->dtype)), MLC_OK);
}

static int64_t bytes_of(mlc_module *m)
{
    int64_t bytes = 0;
    for (mlc_param_iter it = mlc_param_iter_make(m); mlc_param_next(&it);)
        bytes += mlc_numel(it.tensor) * (int64_t)mlc_dtype_bytes(it.tensor->dtype);
    return bytes;
}

/* What a layer that was replaced stands for: up down. */
static mlc_tensor *product_of(mlc_module *m, const char *name)
{
    char path[2][64];
    snprintf(path[0], sizeof path[0], "%s.down.weight", name);
    snprintf(path[1], sizeof path[1], "%s.up.weight", name);
    mlc_tensor *down = mlc_module_param(m, path[0]), *up = mlc_module_param(m, path[1]);
    if (!CHECK(down && up))
        return NULL;
    down = mlc_reshape(down, mlc_dims2(down->shape[0], -1));
    return mlc_matmul(mlc_reshape(up, mlc_dims2(up->shape[0], -1)), down);
}

/* Not timed: the same choice each time. */
static mlc_sketch_budget untimed(int64_t bytes)
{
    mlc_sketch_budget b = mlc_sketch_budget_make(bytes);
    b.rows = 0;
    b.multiple = 1;
    return b;
}

/* Two layers, the first of which has a steep spectrum and the second a flat one. */
static mlc_module *steep_and_flat(mlc_ctx *ctx)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 40, 60), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, 60, 24));
    mlc_module_build(net);
    set(net, "0.weight", graded(ctx, 60, 40, 0.6, 1));
    set(net, "2.weight", mlc_transpose(orthonormal(ctx, 60, 24, 5), 0, 1));
    return net;
}

TEST(sketch_model, error_of_each_layer_is_that_of_its_weight)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    FOR_EACH_ISA(ctx) {
        mlc_scope_begin(ctx);
        mlc_module       *net = steep_and_flat(ctx);
        mlc_tensor       *w[2], *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 40), 9, -1, 1);
        mlc_sketch_budget b = untimed(0);
        mlc_sketch_choice c[2];
        int64_t           n = 0;
        for (int i = 0; i < 2; i++)
            w[i] = mlc_copy(mlc_module_param(net, i ? "2.weight" : "0.weight"));
        mlc_tensor *y = mlc_forward(net, x);
        b.error = 0.05;
        CHECK_EQ(mlc_sketch_model_within(net, &b, c, 2, &n), MLC_OK);
        CHECK_EQ(n, 2);
        CHECK_STR(c[0].name, "0");
        CHECK_EQ(c[0].form, MLC_SKETCH_AS_LOWRANK);
        CHECK_EQ(c[0].rank, 6);        /* 0.6^6 is 0.047 of the norm */
        CHECK_NEAR(c[0].error, pow(0.6, 6), 1e-6);
        CHECK_NEAR(c[0].error, apart(product_of(net, "0"), w[0]), 1e-5);
        CHECK_EQ(c[0].bytes, 6 * 100 * 4);
        CHECK(isnan(c[0].ms) && isnan(c[0].dense_ms));
        CHECK_EQ(c[1].form, MLC_SKETCH_AS_DENSE);          /* gains nothing, and stays */
        CHECK_EQ(c[1].bytes, c[1].dense_bytes);
        CHECK(apart(mlc_module_param(net, "2.weight"), w[1]) == 0);
        CHECK(apart(mlc_forward(net, x), y) < 0.1);
        mlc_module_free(net);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
            return;
    }
}

/* The same bytes: a spectrum that falls is cut, a flat one is fitted to random signs. */
TEST(sketch_model, form_follows_the_spectrum)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64),
                                           mlc_nn_linear(ctx, 64, 64));
    mlc_sketch_budget b = untimed(0);
    mlc_sketch_choice c[2];
    mlc_module_build(net);
    set(net, "0.weight", graded(ctx, 64, 64, 0.8, 1));
    set(net, "1.weight", orthonormal(ctx, 64, 64, 5));
    b.bytes = bytes_of(net) - 64 * 64 * 4;                 /* half of the weights' */
    CHECK_EQ(mlc_sketch_model_within(net, &b, c, 2, NULL), MLC_OK);
    CHECK(bytes_of(net) <= b.bytes && bytes_of(net) > b.bytes - 1200);
    CHECK_EQ(c[0].form, MLC_SKETCH_AS_LOWRANK);
    CHECK(c[0].error < 0.1);
    CHECK(c[1].form == MLC_SKETCH_AS_SKLINEAR || c[1].form == MLC_SKETCH_AS_DENSE);
    net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64));
    mlc_module_build(net);
    set(net, "0.weight", orthonormal(ctx, 64, 64, 5));
    b.bytes = bytes_of(net) - 64 * 64 * 2;
    CHECK_EQ(mlc_sketch_model_within(net, &b, c, 1, NULL), MLC_OK);
    CHECK_EQ(c[0].form, MLC_SKETCH_AS_SKLINEAR);
    CHECK(c[0].rank <= 16 && c[0].rank > 14);
    CHECK_NEAR(c[0].error, 0.75, 0.06);                    /* cut at 16: 0.87 */
    CHECK(bytes_of(net) <= b.bytes);
    CHECK_OK(ctx);
}

TEST(sketch_model, budget_of_bytes_is_kept_with_the_least_errors)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    mlc_ctx   *ctx = test_ctx();
    double     last = 0;
    for (int part = 9; part >= 2; part--) {
        mlc_module       *net = steep_and_flat(ctx);
        const int64_t     all = bytes_of(net);
        mlc_sketch_budget b = untimed(all * part / 10);
        mlc_sketch_choice c[2];
        CHECK_EQ(mlc_sketch_model_within(net, &b, c, 2, NULL), MLC_OK);
        const int64_t now = bytes_of(net);
        CHECK(now <= b.bytes);
        CHECK_EQ(now, all + c[0].bytes - c[0].dense_bytes + c[1].bytes - c[1].dense_bytes);
        const double sum = c[0].error * c[0].error + c[1].error * c[1].error;
        CHECK(sum >= last - 1e-9);     /* fewer bytes, more error */
        last = sum;
        CHECK(c[0].error < 0.5);       /* the steep one gives up bytes first */
        mlc_module_free(net);
    }
    mlc_module       *net = steep_and_flat(ctx);
    const int64_t     all = bytes_of(net);
    mlc_sketch_budget b = untimed(400);
    CHECK_EQ(mlc_sketch_model_within(net, &b, NULL, 0, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "400 bytes at most");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_EQ(bytes_of(net), all);
    b = untimed(all);
    b.error = 0;                       /* exact ones alone */
    CHECK_EQ(mlc_sketch_model_within(net, &b, NULL, 0, NULL), MLC_OK);
    CHECK_EQ(bytes_of(net), all);
    CHECK_OK(ctx);
}

/* Inputs in a subspace of 5 dimensions: that rank is exact for them, and not for the weight. */
TEST(sketch_model, inputs_count_where_they_are_given)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *mix = test_rand(ctx, MLC_F32, mlc_dims2(5, 40), 3, -1, 1);
    mlc_tensor *x = mlc_matmul(test_rand(ctx, MLC_F32, mlc_dims2(200, 5), 4, -1, 1), mix);
    mlc_module *net[2];
    double      off[2];
    for (int i = 0; i < 2; i++) {
        net[i] = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 40, 30));
        mlc_module_build(net[i]);
        set(net[i], "0.weight", graded(ctx, 30, 40, 0.98, 11));
        mlc_tensor       *y = mlc_forward(net[i], x);
        mlc_sketch_budget b = untimed(5 * 70 * 4 + 120);
        mlc_sketch_choice c;
        mlc_loader       *loader = mlc_loader_ordered(ctx, x, NULL, 64);
        if (i)
            b.loader = loader;
        b.slower_too = true;
        CHECK_EQ(mlc_sketch_model_within(net[i], &b, &c, 1, NULL), MLC_OK);
        off[i] = apart(mlc_forward(net[i], x), y);
        if (i) {
            CHECK_EQ(c.form, MLC_SKETCH_AS_LOWRANK);
            CHECK_EQ(c.rank, 5);
            CHECK(c.error < 2e-3);     /* the millionth on the diagonal */
        }
        CHECK(mlc_module_is_training(net[i]));
        mlc_loader_free(loader);
    }
    CHECK(off[1] < 1e-3 && off[0] > 0.3);
    CHECK_OK(ctx);
}

/* Errors of outputs of a convolution, over the inputs that were given. */
TEST(sketch_model, convolutions_become_two)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 8; i++) {
        mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 6, 20, 3);
        const bool       weighted = i & 1, same = i & 2;
        d.conv.same = same;
        d.no_bias = i & 4;
        if (!same)
            d.conv.padding = mlc_dims_all(1), d.conv.stride = mlc_dims2(2, 1);
        mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_conv(ctx, &d), mlc_nn_relu(ctx));
        mlc_module *conv = mlc_module_child(net, 0);
        mlc_module_build(net);
        set(net, "0.weight", mlc_reshape(graded(ctx, 20, 54, 0.8, 7), mlc_dims4(20, 6, 3, 3)));
        mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims4(5, 6, 8, 7), 2, 0, 1);
        mlc_tensor       *bias = d.no_bias ? NULL : mlc_module_param(net, "0.bias");
        mlc_tensor       *y = mlc_forward(conv, x), *w = mlc_copy(mlc_module_param(net,
                                                                                  "0.weight"));
        mlc_loader       *loader = mlc_loader_ordered(ctx, x, NULL, 2);
        mlc_sketch_budget b = untimed(0);
        mlc_sketch_choice c;
        if (bias)
            y = mlc_sub(y, mlc_reshape(mlc_copy(bias), mlc_dims4(1, 20, 1, 1)));
        b.error = 0.1;
        b.loader = weighted ? loader : NULL;
        CHECK_EQ(mlc_sketch_model_within(net, &b, &c, 1, NULL), MLC_OK);
        CHECK_EQ(c.form, MLC_SKETCH_AS_LOWRANK);
        CHECK(c.error <= 0.1);
        mlc_tensor *made = mlc_forward(mlc_module_child(net, 0), x);
        bias = d.no_bias ? NULL : mlc_module_param(net, "0.up.bias");
        if (bias)
            made = mlc_sub(made, mlc_reshape(bias, mlc_dims4(1, 20, 1, 1)));
        if (weighted)
            CHECK_NEAR(apart(made, y), c.error, 1e-3);
        else
            CHECK_NEAR(apart(product_of(net, "0"), mlc_reshape(w, mlc_dims2(20, 54))), c.error,
                       1e-4);
        CHECK(apart(mlc_forward(net, x), mlc_relu(mlc_forward(mlc_module_child(net, 0), x))) == 0);
        mlc_loader_free(loader);
        mlc_module_free(net);
        CHECK_OK(ctx);
    }
}

static void text_of(void *user, const char *text, size_t bytes)
{
    char *all = user;
    const size_t n = strlen(all);
    if (CHECK(n + bytes < 4096)) {
        memcpy(all + n, text, bytes);
        all[n + bytes] = 0;
    }
}

/* Of a GPT, whose head is tied and stays; names in attention and feed-forward. */
TEST(sketch_model, language_models_are_timed_and_told)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    static char       text[4096];
    mlc_ctx          *ctx = test_ctx();
    mlc_nn_gpt_desc   g = mlc_nn_gpt_desc_make(50, 16, 2, 64, 2);
    mlc_module       *net = mlc_nn_gpt(ctx, &g);
    mlc_tensor       *x = test_tokens(ctx, mlc_dims2(8, 16), 50, 3);
    mlc_loader       *loader = mlc_loader_ordered(ctx, x, NULL, 4);
    mlc_sketch_choice c[16];
    mlc_sketch_budget b = mlc_sketch_budget_make(0);
    int64_t           n = 0;
    *text = 0;
    mlc_module_train(net, false);
    mlc_tensor *y = mlc_forward(net, x);
    b.loader = loader;
    b.error = 0.5;
    b.write = text_of;
    b.user = text;
    CHECK_EQ(mlc_sketch_model_within(net, &b, c, 16, &n), MLC_OK);
    CHECK_EQ(n, 6);
    for (int64_t i = 0; i < n; i++) {
        if (test_on_host())
            CHECK(c[i].dense_ms > 0);
        CHECK(c[i].error <= 0.5);
        CHECK((c[i].form != MLC_SKETCH_AS_DENSE) == (c[i].bytes < c[i].dense_bytes));
        CHECK_HAS(text, c[i].name);
    }
    CHECK_HAS(text, " of 6 layers: ");
    CHECK(!mlc_module_is_training(net));
    CHECK(apart(mlc_forward(net, x), y) < 1);
    mlc_loader_free(loader);
    CHECK_OK(ctx);
}

TEST(sketch_model, frozen_tied_and_other_layers_stay_as_they_were)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 40, 30),
                                           mlc_nn_linear(ctx, 30, 40), mlc_nn_linear(ctx, 40, 30));
    mlc_sketch_budget b = untimed(0);
    mlc_sketch_choice c[3];
    int64_t           n = 0;
    CHECK_EQ(mlc_module_tie(mlc_module_child(net, 2), "weight",
                            mlc_module_param(mlc_module_child(net, 0), "weight")), MLC_OK);
    mlc_module_build(net);
    CHECK_EQ(mlc_module_freeze(net, "1.*", true), MLC_OK);
    b.error = 0.9;
    CHECK_EQ(mlc_sketch_model_within(net, &b, c, 3, &n), MLC_OK);
    CHECK_EQ(n, 1);
    CHECK_STR(c[0].name, "1");
    CHECK(c[0].form != MLC_SKETCH_AS_DENSE);
    CHECK_EQ(mlc_module_numel(net, true), 40 * 30 + 2 * 30);       /* of 0 and 2 alone */
    CHECK_OK(ctx);
}

/* Choices make the same form again, which loads the file; training goes on. */
TEST(sketch_model, files_are_loaded_into_the_same_choices)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    const char       *path = "build_sketch_model.safetensors";
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = steep_and_flat(ctx), *again = steep_and_flat(ctx);
    mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 40), 9, -1, 1);
    mlc_sketch_budget b = untimed(bytes_of(net) / 3);
    mlc_sketch_choice c[2];
    CHECK_EQ(mlc_sketch_model_within(net, &b, c, 2, NULL), MLC_OK);
    CHECK_EQ(mlc_save(net, path), MLC_OK);
    CHECK_EQ(mlc_sketch_model_as(again, c, 2), MLC_OK);
    CHECK_EQ(mlc_load(again, path), MLC_OK);
    CHECK(apart(mlc_forward(again, x), mlc_forward(net, x)) == 0);
    mlc_module *copy = mlc_module_clone(net);
    CHECK(apart(mlc_forward(copy, x), mlc_forward(net, x)) == 0);
    mlc_optim *opt = mlc_adamw(net, 1e-2);
    double     loss[2] = {0, 0};
    for (int i = 0; i < 20; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, x), *t = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
        mlc_optim_minimize(opt, t);
        loss[i > 0] = mlc_item(t);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(loss[1] < 0.5 * loss[0]);
    c[0].rank = 41;
    again = steep_and_flat(ctx);
    CHECK_EQ(mlc_sketch_model_as(again, c, 2), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "rank 41 of '0'");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_module_param(again, "2.weight") != NULL);
    snprintf(c[0].name, sizeof c[0].name, "1");
    CHECK_EQ(mlc_sketch_model_as(again, c, 1), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'1' is no layer");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (int i = 0; i < 2; i++) {
        snprintf(c[i].name, sizeof c[i].name, "0");
        c[i].form = MLC_SKETCH_AS_LOWRANK;
        c[i].rank = 2;
    }
    CHECK_EQ(mlc_sketch_model_as(again, c, 2), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'0' is chosen twice");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_module_param(again, "0.weight") != NULL);
    c[0].name[0] = 0;                  /* the module itself */
    CHECK_EQ(mlc_sketch_model_as(mlc_module_child(again, 0), c, 1), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'' is no layer");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    b.multiple = 0;
    CHECK_EQ(mlc_sketch_model_within(again, &b, NULL, 0, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "multiple 0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    remove(path);
    CHECK_OK(ctx);
}

/* Weights or inputs with a NaN, and a loader without a batch: an error that names the layer, and
 * nothing has changed. */
TEST(sketch_model, numbers_that_are_none_are_refused)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = steep_and_flat(ctx);
    mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(8, 40), 9, -1, 1);
    mlc_tensor       *nan = mlc_full(ctx, MLC_F32, mlc_dims1(1), NO_NUMBER);
    mlc_loader       *loader = mlc_loader_ordered(ctx, x, NULL, 4);
    mlc_sketch_budget b = untimed(0);
    mlc_batch         batch;
    b.loader = loader;
    for (int i = 0; i < 2; i++)
        CHECK(mlc_loader_next(loader, &batch));
    CHECK_EQ(mlc_sketch_model_within(net, &b, NULL, 0, NULL), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "gave no batch");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_copy_into(mlc_rows(x, 3, 4), nan), MLC_OK);
    mlc_loader_free(loader);
    b.loader = loader = mlc_loader_ordered(ctx, x, NULL, 4);
    CHECK_EQ(mlc_sketch_model_within(net, &b, NULL, 0, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "inputs of '0' are not finite");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK(mlc_module_is_training(net));
    b.loader = NULL;
    CHECK_EQ(mlc_copy_into(mlc_rows(mlc_module_param(net, "2.weight"), 3, 4), nan), MLC_OK);
    CHECK_EQ(mlc_sketch_model_within(net, &b, NULL, 0, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "weight of '2' is not finite");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK(mlc_module_param(net, "0.weight") && mlc_module_param(net, "2.weight"));
    mlc_loader_free(loader);
    CHECK_OK(ctx);
}
