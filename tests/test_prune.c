/* test_prune.c -- tests of sections IMPL.COMPRESS.*: masks, schedules, networks that shrink
 *
 * Masks against torch.nn.utils.prune (tests/golden/make_prune_goldens.py). Masked elements are held
 * to exact zeros over steps of each optimizer.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "watch.h"
#include "nets.h"
#include "resnet20.h"
#include "rules.h"

static const mlc_dims SHAPES[] = {{{7, 9}, 2}, {{16, 5}, 2}, {{4, 3, 3, 3}, 4}, {{12, 2, 2}, 3}};
static const int      PERCENTS[] = {0, 25, 30, 50, 90, 100};

/* Tensor i of the goldens. */
static mlc_tensor *golden_weight(mlc_ctx *ctx, int i)
{
    double        values[128];
    const int64_t n = mlc_numel(mlc_zeros(ctx, MLC_F32, SHAPES[i]));
    for (int64_t k = 0; k < n; k++)
        values[k] = golden_spread(k, (uint32_t)i);
    return test_tensor(ctx, MLC_F32, SHAPES[i], values);
}

/* Elements of a bool tensor that are true. */
static int64_t trues(mlc_tensor *mask)
{
    return (int64_t)mlc_item(mlc_sum(mlc_cast(mask, MLC_F64), mlc_dims0(), false));
}

static bool equal(mlc_tensor *a, mlc_tensor *b)
{
    return a && b && mlc_numel(a) == mlc_numel(b) &&
           mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                            mlc_dims0(), false)) == 0;
}

/* Every masked element of net is 0, and at least one is masked. */
static bool holds(mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    int64_t        masked = 0;
    bool           zero = true;
    mlc_no_grad_begin(mlc_module_ctx(net));
    while (mlc_param_next(&it)) {
        char name[MLC_NAME_BYTES + 8];
        if (it.buffer)
            continue;
        snprintf(name, sizeof name, "%s_mask", it.name);
        mlc_param_iter at = mlc_param_iter_make(net);
        while (mlc_param_next(&at)) {
            if (strcmp(at.name, name) != 0)
                continue;
            mlc_scope_begin(mlc_module_ctx(net));
            mlc_tensor *gone = mlc_logical_not(at.tensor);
            masked += trues(gone);
            mlc_tensor *w = mlc_masked_fill(mlc_cast(it.tensor, MLC_F64),
                                            mlc_logical_not(gone), 0);
            zero = zero && mlc_item(mlc_max(mlc_abs(w), mlc_dims0(), false)) == 0;
            mlc_scope_end(mlc_module_ctx(net));
        }
    }
    mlc_no_grad_end(mlc_module_ctx(net));
    if (!masked)
        printf("  nothing is masked\n");
    return zero && masked > 0;
}

/* ---- one tensor ----------------------------------------------------------------------------- */

TEST(prune, unstructured_masks_are_torchs)
{
    mlc_ctx    *ctx = test_ctx();
    golden_file f = golden_open(ctx, "prune.safetensors");
    for (int p = 0; p < COUNT(PERCENTS); p++)
        for (int i = 0; i < COUNT(SHAPES); i++) {
            mlc_prune_desc d = mlc_prune_desc_make(PERCENTS[p] / 100.0);
            mlc_tensor    *mask, *w = golden_weight(ctx, i);
            mlc_tensor    *y = mlc_prune_tensor(w, &d, &mask);
            CHECK(equal(mask, golden_find(&f, "unstructured.%d.%d", i, PERCENTS[p])));
            CHECK(equal(y, mlc_mul(w, mlc_cast(mask, MLC_F32))));
        }
    CHECK_OK(ctx);
}

TEST(prune, structured_masks_are_torchs)
{
    mlc_ctx    *ctx = test_ctx();
    golden_file f = golden_open(ctx, "prune.safetensors");
    for (int p = 0; p < COUNT(PERCENTS); p++)
        for (int i = 0; i < COUNT(SHAPES); i++)
            for (int axis = 0; axis < SHAPES[i].n; axis++)
                for (int norm = 1; norm <= 2; norm++) {
                    mlc_prune_desc d = mlc_prune_desc_make(PERCENTS[p] / 100.0);
                    mlc_tensor    *mask;
                    d.unit = MLC_PRUNE_ROWS;
                    d.axis = axis;
                    d.norm = norm;
                    mlc_prune_tensor(golden_weight(ctx, i), &d, &mask);
                    CHECK(equal(mask, golden_find(&f, "structured.%d.%d.%d.%d", i, axis, norm,
                                                  PERCENTS[p])));
                }
    CHECK_OK(ctx);
}

TEST(prune, of_four_neighbours_the_two_largest_stay)
{
    mlc_ctx           *ctx = test_ctx();
    static const double w[] = {1, -3, 2, 0.5, 4, 4, 4, 4, 0, -1, 0, 2},
                        want[] = {0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 1};
    mlc_prune_desc d = mlc_prune_desc_make(0);
    mlc_tensor    *mask;
    d.unit = MLC_PRUNE_N_OF_M;
    mlc_prune_tensor(test_tensor(ctx, MLC_F64, mlc_dims2(1, 12), w), &d, &mask);
    CHECK_VALUES(mlc_cast(mask, MLC_F64), 12, want, 0, 0);
    d.n = 1;
    d.m = 3;
    static const double one[] = {0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1};
    mlc_prune_tensor(test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), w), &d, &mask);
    CHECK_VALUES(mlc_cast(mask, MLC_F64), 12, one, 0, 0);
}

TEST(prune, of_equal_scores_the_lowest_indices_go)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_tensor    *mask;
    static const double want[] = {0, 0, 0, 1, 1, 1};
    mlc_prune_tensor(mlc_ones(ctx, MLC_F32, mlc_dims1(6)), &d, &mask);
    CHECK_VALUES(mlc_cast(mask, MLC_F64), 6, want, 0, 0);
}

TEST(prune, random_masks_have_their_count_are_uniform_and_repeat)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_tensor    *w = mlc_ones(ctx, MLC_F32, mlc_dims2(64, 64)), *mask, *again, *other;
    mlc_prune_desc d = mlc_prune_desc_make(0.3);
    d.by = MLC_PRUNE_RANDOM;
    mlc_prune_tensor(w, &d, &mask);
    mlc_prune_tensor(w, &d, &again);
    d.seed = 1;
    mlc_prune_tensor(w, &d, &other);
    CHECK_EQ(trues(mask), 4096 - 1229);
    CHECK_EQ(trues(other), 4096 - 1229);
    CHECK(equal(mask, again));
    const int64_t both = trues(mlc_logical_and(mask, other));
    CHECK(both > 4096 * 0.49 - 5 * 32 && both < 4096 * 0.49 + 5 * 32);
    for (int64_t q = 0; q < 4; q++) {            /* each quarter has its share */
        const int64_t n = trues(mlc_copy(mlc_slice(mask, 0, 16 * q, 16 * q + 16, 1)));
        CHECK(n > 1024 * 0.7 - 5 * 15 && n < 1024 * 0.7 + 5 * 15);
    }
}

TEST(prune, gradients_times_weights_decide_and_gradients_flow_to_what_stays)
{
    mlc_ctx            *ctx = test_ctx();
    static const double w[] = {3, 1, -2, 4}, c[] = {0.1, -4, 1, 0.1}, want[] = {0, 1, 1, 0},
                        dw[] = {0.1, -8, 2, 0.1};
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_tensor    *mask, *x = test_tensor(ctx, MLC_F32, mlc_dims1(4), w);
    mlc_tensor    *scale = test_tensor(ctx, MLC_F32, mlc_dims1(4), c);
    d.by = MLC_PRUNE_GRADIENT;
    mlc_set_requires_grad(x, true);
    CHECK(mlc_prune_tensor(x, &d, &mask) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "no gradient");
    mlc_backward(mlc_sum(mlc_mul(x, scale), mlc_dims0(), false));
    mlc_tensor *y = mlc_prune_tensor(x, &d, &mask);
    CHECK_VALUES(mlc_cast(mask, MLC_F64), 4, want, 0, 0);
    mlc_backward(mlc_sum(mlc_mul(y, scale), mlc_dims0(), false));
    CHECK_VALUES(mlc_grad(x), 4, dw, 1e-6, 0);
}

TEST(prune, tensors_without_elements_have_masks)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    for (int i = 0; i < 8; i++) {
        mlc_tensor *mask, *w = mlc_zeros(ctx, MLC_F32, i % 2 ? mlc_dims2(0, 3) : mlc_dims2(3, 0));
        d.unit = i / 4 ? MLC_PRUNE_ROWS : MLC_PRUNE_ELEMENTS;
        d.axis = i / 4 ? i / 2 % 2 : 0;
        CHECK(mlc_prune_tensor(w, &d, &mask) != NULL);
        CHECK_EQ(mlc_numel(mask), 0);
    }
    CHECK_OK(ctx);
}

TEST(prune, wrong_calls_of_a_tensor_are_errors)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_tensor    *w = mlc_ones(ctx, MLC_F32, mlc_dims2(3, 5)), *mask = w;
    mlc_prune_desc d = mlc_prune_desc_make(1.5);
    CHECK(!mlc_prune_tensor(w, &d, &mask) && !mask);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "share is 1.5");
    d.share = NO_NUMBER;
    CHECK(!mlc_prune_tensor(w, &d, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "share is nan");
    d = mlc_prune_desc_make(0.5);
    d.unit = MLC_PRUNE_N_OF_M;
    CHECK(!mlc_prune_tensor(w, &d, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no multiple of 4");
    d.unit = MLC_PRUNE_ROWS;
    d.axis = 2;
    CHECK(!mlc_prune_tensor(w, &d, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "axis 2 of w [3,5]");
    d.unit = MLC_PRUNE_HEADS;
    CHECK(!mlc_prune_tensor(w, &d, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "of networks");
    d = mlc_prune_desc_make(0.5);
    CHECK(!mlc_prune_tensor(mlc_zeros(ctx, MLC_I64, mlc_dims1(4)), &d, NULL));
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "w is i64");
    CHECK(!mlc_prune_tensor(w, NULL, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "desc is NULL");
    mlc_fill_(w, NO_NUMBER);
    CHECK(!mlc_prune_tensor(w, &d, NULL));
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "NaN");
    CHECK(!mlc_prune_tensor(NULL, &d, NULL));
}

/* ---- networks ------------------------------------------------------------------------------- */

/* A module with the golden tensors as parameters. */
static mlc_module *golden_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < COUNT(SHAPES); i++) {
        static const mlc_module_class holder = {"Holder", NULL, NULL, NULL, 0, NULL};
        mlc_module          *m = mlc_module_create(ctx, &holder, NULL, 0);
        const mlc_param_desc d = mlc_param_desc_make(SHAPES[i]);
        mlc_module_declare(m, "weight", &d);
        mlc_module_add(net, m);
    }
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < COUNT(SHAPES); i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.weight", i);
        mlc_copy_into(mlc_module_param(net, name), golden_weight(ctx, i));
    }
    mlc_no_grad_end(ctx);
    return net;
}

TEST(prune, global_masks_are_torchs_and_one_share_follows_another)
{
    mlc_ctx    *ctx = test_ctx();
    golden_file f = golden_open(ctx, "prune.safetensors");
    mlc_module *kept = golden_net(ctx);
    for (int p = 0; p < COUNT(PERCENTS); p++) {
        mlc_module          *fresh = golden_net(ctx);
        const mlc_prune_desc d = mlc_prune_desc_make(PERCENTS[p] / 100.0);
        CHECK_EQ(mlc_prune(fresh, &d), MLC_OK);
        CHECK_EQ(mlc_prune(kept, &d), MLC_OK);
        for (int i = 0; i < COUNT(SHAPES); i++) {
            char name[32];
            snprintf(name, sizeof name, "%d.weight_mask", i);
            mlc_tensor *want = golden_find(&f, "global.%d.%d", PERCENTS[p], i);
            CHECK(equal(mlc_module_param(fresh, name), want));
            CHECK(equal(mlc_module_param(kept, name), want));
        }
        CHECK_NEAR(mlc_prune_zeros(fresh, NULL), PERCENTS[p] / 100.0, 0.003);
    }
    CHECK_NEAR(mlc_prune_zeros(kept, "0.*"), 1, 0);
    CHECK_OK(ctx);
}

/* PyTorch's second call prunes a share of what is left: 1 - 0.7 0.75 of all. */
TEST(prune, layer_by_layer_in_two_rounds_is_torchs)
{
    mlc_ctx       *ctx = test_ctx();
    golden_file    f = golden_open(ctx, "prune.safetensors");
    mlc_module    *net = golden_net(ctx);
    mlc_prune_desc d = mlc_prune_desc_make(0.3);
    d.per_layer = true;
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    for (int i = 0; i < COUNT(SHAPES); i++) {
        char         name[32];
        const double n = (double)mlc_numel(mlc_zeros(ctx, MLC_F32, SHAPES[i]));
        snprintf(name, sizeof name, "%d.weight", i);
        d.pattern = name;
        const double first = nearbyint(0.3 * n);
        d.share = (first + nearbyint(0.25 * (n - first))) / n;
        CHECK_EQ(mlc_prune(net, &d), MLC_OK);
        snprintf(name, sizeof name, "%d.weight_mask", i);
        CHECK(equal(mlc_module_param(net, name), golden_find(&f, "two.%d", i)));
    }
    CHECK_OK(ctx);
}

TEST(prune, by_pattern_leaves_the_others_alone)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 8, 3);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.pattern = "2.*";
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    CHECK_EQ(trues(mlc_module_param(net, "2.weight_mask")), 12);
    CHECK(mlc_module_param(net, "0.weight_mask") == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no '0.weight_mask'");
    CHECK_NEAR(mlc_prune_zeros(net, "0.*"), 0, 0);
}

/* Rows of a layer take the bias along, and the batch norm that follows: the output is 0 there. */
TEST(prune, channels_take_bias_and_norm_along)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1),
                                        mlc_nn_batch_norm(ctx, 8), mlc_nn_relu(ctx));
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.unit = MLC_PRUNE_ROWS;
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    mlc_tensor *mask = mlc_module_param(net, "0.bias_mask");
    CHECK_EQ(trues(mask), 4);
    CHECK(equal(mask, mlc_module_param(net, "1.weight_mask")));
    CHECK(equal(mask, mlc_module_param(net, "1.bias_mask")));
    CHECK_EQ(trues(mlc_module_param(net, "0.weight_mask")), 4 * 27);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 6, 6), 1, -1, 1));
    mlc_tensor *top = mlc_max(mlc_max(y, mlc_dims1(0), false), mlc_dims2(1, 2), false);
    for (int64_t c = 0; c < 8; c++) {
        const double kept = mlc_item(mlc_cast(mlc_slice(mask, 0, c, c + 1, 1), MLC_F32));
        const double most = mlc_item(mlc_slice(top, 0, c, c + 1, 1));
        CHECK(kept ? most > 0 : most == 0);
    }
    CHECK_OK(ctx);
}

TEST(prune, channels_by_the_scale_of_their_norm)
{
    mlc_ctx            *ctx = test_ctx();
    static const float  scale[] = {3, -0.5f, 1, 2};
    static const double want[] = {1, 0, 0, 1};
    mlc_module         *net = MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 2, 4, 3, 1, 1),
                                             mlc_nn_batch_norm(ctx, 4),
                                             mlc_nn_conv2d(ctx, 4, 2, 1, 1, 0));
    mlc_prune_desc      d = mlc_prune_desc_make(0.5);
    mlc_write(mlc_module_param(net, "1.weight"), scale, sizeof scale);
    d.unit = MLC_PRUNE_ROWS;
    d.by = MLC_PRUNE_SCALE;
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "after '2.weight' comes no batch norm");
    d.pattern = "0.*";
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    CHECK_VALUES(mlc_cast(mlc_module_param(net, "0.bias_mask"), MLC_F64), 4, want, 0, 0);
    CHECK_EQ(trues(mlc_module_param(net, "0.weight_mask")), 2 * 18);
}

TEST(prune, heads_are_pruned_with_their_columns)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_multihead_attention(ctx, 12, 3));
    mlc_tensor *w = mlc_module_param(net, "0.in_proj_weight");
    mlc_no_grad_begin(ctx);
    for (int64_t part = 0; part < 3; part++)     /* head 1 of 3 is the weakest */
        mlc_mul_scalar_(mlc_slice(w, 0, 12 * part + 4, 12 * part + 8, 1), 1e-3);
    mlc_no_grad_end(ctx);
    mlc_prune_desc d = mlc_prune_desc_make(0.34);
    d.unit = MLC_PRUNE_HEADS;
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    mlc_tensor *rows = mlc_module_param(net, "0.in_proj_weight_mask");
    CHECK_EQ(trues(rows), 24 * 12);
    CHECK_EQ(trues(mlc_copy(mlc_slice(rows, 0, 4, 8, 1))), 0);
    CHECK_EQ(trues(mlc_copy(mlc_slice(rows, 0, 28, 32, 1))), 0);
    mlc_tensor *columns = mlc_module_param(net, "0.out_proj.weight_mask");
    CHECK_EQ(trues(columns), 12 * 8);
    CHECK_EQ(trues(mlc_copy(mlc_slice(columns, 1, 4, 8, 1))), 0);
    CHECK(holds(net));
    CHECK_OK(ctx);
}

/* Heads that share keys, and numbers of heads that do not divide. */
TEST(prune, heads_that_cannot_be_pruned_are_errors)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_module      *net = mlc_nn_sequential(ctx);
    mlc_nn_multihead_attention_desc a = mlc_nn_multihead_attention_desc_make(12, 6);
    mlc_prune_desc   d = mlc_prune_desc_make(0.5);
    CHECK(!mlc_nn_multihead_attention(ctx, 12, 5));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    a.kv_heads = 3;
    mlc_module_add(net, mlc_nn_multihead_attention_ex(ctx, &a));
    const uint64_t want = hash_net(HASH_SEED, net);
    d.unit = MLC_PRUNE_HEADS;
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "6 heads over 3 of keys");
    CHECK(hash_net(HASH_SEED, net) == want);
}

TEST(prune, heads_of_integers_stay)
{
    ONLY_ON_HOST();
    static const char *const keep[] = {"*out_proj*"};
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = mlc_nn_sequential(ctx);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    mlc_prune_desc    d = mlc_prune_desc_make(0.34);
    int64_t           removed = 7;
    mlc_module_add(net, mlc_nn_multihead_attention(ctx, 12, 3));
    q.keep = keep;
    q.n_keep = 1;
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    d.unit = MLC_PRUNE_HEADS;
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "'0.in_proj_weight' is i8");
    CHECK_EQ(mlc_prune_shrink(net, &removed), MLC_OK);
    CHECK_EQ(removed, 0);
    CHECK_OK(ctx);
}

TEST(prune, wrong_calls_of_a_network_change_nothing)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 8, 3);
    const uint64_t want = hash_net(HASH_SEED, net);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.pattern = "encoder.*";
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "matches 'encoder.*'");
    d.pattern = NULL;
    d.by = MLC_PRUNE_GRADIENT;
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "'0.weight' has no gradient");
    d.by = MLC_PRUNE_MAGNITUDE;
    d.unit = MLC_PRUNE_N_OF_M;
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rows of '0.weight' [8,6] have 6 elements");
    d.unit = MLC_PRUNE_HEADS;
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no attention matches '*'");
    d = mlc_prune_desc_make(-0.1);
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "share is -0.1");
    d = mlc_prune_desc_make(0.5);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(2, 6), 1, -1, 1));
    CHECK_EQ(mlc_prune(net, &d), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "is an input of a recorded");
    CHECK(y != NULL);
    CHECK_EQ(mlc_prune(NULL, &d), MLC_ERR_ARG);
    CHECK_EQ(mlc_prune_apply(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_prune_remove(NULL, NULL), MLC_ERR_ARG);
    CHECK(mlc_module_param(net, "0.weight_mask") == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(hash_net(HASH_SEED, net) == want);
    static const float w[48] = {1};
    mlc_module        *bound = mlp(ctx, 6, 8, 3);
    if (!test_on_host()) return;       /* a device refuses to bind */
    mlc_module_bind(bound, "0.weight", w);
    CHECK_EQ(mlc_prune(bound, &d), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "bound to memory");
}

/* ---- masks that hold ------------------------------------------------------------------------ */

static double loss_of(mlc_module *net, mlc_tensor *x, mlc_tensor *t)
{
    mlc_tensor *loss = mlc_mse_loss(mlc_forward(net, x), t);
    mlc_backward(loss);
    return mlc_item(loss);
}

typedef struct batch {
    mlc_module *net;
    mlc_tensor *x, *t;
} batch;

static mlc_tensor *make_loss(void *user)
{
    const batch *b = (const batch *)user;
    return mlc_mse_loss(mlc_forward(b->net, b->x), b->t);
}

/* n steps of o; a rule that makes the loss itself gets a function. */
static void train(mlc_optim *o, batch *b, int n)
{
    mlc_ctx *ctx = mlc_module_ctx(b->net);
    for (int i = 0; i < n; i++) {
        mlc_scope_begin(ctx);
        if (mlc_optim_needs_loss(o)) {
            double loss;
            CHECK_EQ(mlc_optim_step_with(o, make_loss, b, &loss), MLC_OK);
        } else {
            loss_of(b->net, b->x, b->t);
            CHECK_EQ(mlc_optim_step(o), MLC_OK);
        }
        mlc_scope_end(ctx);
    }
}

static batch batch_of(mlc_module *net, int64_t in, int64_t out)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    batch    b = {net, test_rand(ctx, MLC_F32, mlc_dims2(16, in), 5, -1, 1),
                  test_rand(ctx, MLC_F32, mlc_dims2(16, out), 6, -1, 1)};
    return b;
}

/* Moments exist before the pruning: 20 steps, then half of the weights go, 200 steps, 80 %. */
static void holds_under(mlc_optim *(*make)(mlc_module *m), const char *name, int64_t width)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, width, 4);
    batch          b = batch_of(net, 6, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_optim     *o = make(net);
    train(o, &b, 20);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    if (!CHECK(holds(net)))
        printf("  %s: at first\n", name);
    loss_of(net, b.x, b.t);
    mlc_optim_zero_grad(o);
    train(o, &b, 200);
    if (!CHECK(holds(net)))
        printf("  %s: after 200 steps\n", name);
    d.share = 0.8;
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    train(o, &b, 5);
    if (!CHECK(holds(net)))
        printf("  %s: after the second share\n", name);
    mlc_optim_zero_grad(o);
    CHECK_NEAR(mlc_prune_zeros(net, NULL), 0.8, 0.01);
    mlc_optim_free(o);
    CHECK_OK(ctx);
}

TEST(prune, masks_hold_over_steps_of_all_rules)
{
    for (int i = 0; i < N_TRACES; i++)
        if (!TRACES[i].curvature)
            holds_under(TRACES[i].make, TRACES[i].name, 12);
}

static mlc_optim *make_sgd(mlc_module *m)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(0.05);
    d.momentum = 0.9;
    d.weight_decay = 0.01;
    return mlc_sgd_ex(m, &d);
}
static mlc_optim *make_adam(mlc_module *m) { return mlc_adam(m, 0.01); }
static mlc_optim *make_adamw(mlc_module *m) { return mlc_adamw(m, 0.01); }
static mlc_optim *make_lamb(mlc_module *m) { return mlc_lamb(m, 0.01); }
static mlc_optim *make_lbfgs(mlc_module *m) { return mlc_lbfgs(m, 0.1); }
static mlc_optim *make_sophia_plain(mlc_module *m) { return mlc_sophia(m, 0.01); }

static mlc_optim *make_lookahead(mlc_module *m)
{
    mlc_optim *o = mlc_adam(m, 0.01);
    mlc_optim_lookahead(o, 5, 0.5);
    return o;
}
static mlc_optim *make_sam(mlc_module *m)
{
    mlc_optim *o = mlc_sgd(m, 0.05);
    mlc_optim_sam(o, 0.05, false);
    return o;
}
static mlc_optim *make_noisy(mlc_module *m)
{
    mlc_optim *o = mlc_sgd(m, 0.05);
    mlc_optim_noise(o, 0.01, 0.55);
    return o;
}
static mlc_optim *make_clipped(mlc_module *m)
{
    mlc_optim    *o = mlc_adam(m, 0.01);
    mlc_clip_desc d = mlc_clip_desc_make();
    d.norm = 0.1;
    mlc_optim_clip(o, &d);
    return o;
}
static mlc_optim *small_adam(mlc_module *m, mlc_moments moments)
{
    mlc_adam_desc d = mlc_adam_desc_make(0.01);
    d.moments = moments;
    return mlc_adam_ex(m, &d);
}
static mlc_optim *make_adam_bf16(mlc_module *m) { return small_adam(m, MLC_MOMENTS_BF16); }
static mlc_optim *make_adam_8bit(mlc_module *m) { return small_adam(m, MLC_MOMENTS_8BIT); }
static mlc_optim *make_in_backward(mlc_module *m)
{
    mlc_optim *o = mlc_sgd(m, 0.01);
    mlc_optim_in_backward(o, true);
    return o;
}

TEST(prune, masks_hold_under_methods_of_a_step)
{
    holds_under(make_sgd, "sgd", 12);
    holds_under(make_adam, "adam", 12);
    holds_under(make_adamw, "adamw", 12);
    holds_under(make_lamb, "lamb", 12);
    holds_under(make_sophia_plain, "sophia", 12);
    holds_under(make_lbfgs, "lbfgs", 12);
    holds_under(make_lookahead, "lookahead", 12);
    holds_under(make_sam, "sam", 12);
    holds_under(make_noisy, "noise", 12);
    holds_under(make_clipped, "clip", 12);
    holds_under(make_adam_bf16, "adam, moments bf16", 12);
}

TEST(prune, masks_hold_in_large_layers)
{
    holds_under(make_adam_8bit, "adam, moments in 8 bits", 1100);
    holds_under(make_in_backward, "in backward", 4200);
}

/* A norm counts what stays: the step of a pruned network is that of one with zeros only there. */
TEST(prune, masked_gradients_are_zero_when_clipping_reads_them)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4);
    batch          b = batch_of(net, 6, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    for (int i = 0; i < 2; i++) {                /* gradients of two backwards add up */
        loss_of(net, b.x, b.t);
        mlc_tensor *g = mlc_grad(mlc_module_param(net, "0.weight"));
        mlc_tensor *mask = mlc_module_param(net, "0.weight_mask");
        CHECK(equal(g, mlc_mul(g, mlc_cast(mask, MLC_F32))));
        CHECK(mlc_item(mlc_max(mlc_abs(g), mlc_dims0(), false)) > 0);
    }
    CHECK_OK(ctx);
}

TEST(prune, averages_are_zero_where_parameters_are)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4);
    batch          b = batch_of(net, 6, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_optim     *o = mlc_adam(net, 0.01);
    mlc_average   *a = mlc_ema(o, 0.9);
    train(o, &b, 10);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    train(o, &b, 10);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    CHECK(holds(net));
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
    CHECK(holds(net));
}

TEST(prune, masks_hold_under_autocast_and_in_bf16)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4);
    batch          b = batch_of(net, 6, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_optim     *o = mlc_adamw(net, 0.01);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    mlc_autocast_begin(ctx, MLC_BF16);
    train(o, &b, 20);
    mlc_autocast_end(ctx);
    CHECK(holds(net));
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    b.x = mlc_cast(b.x, MLC_BF16);
    b.t = mlc_cast(b.t, MLC_BF16);
    train(o, &b, 20);
    CHECK(holds(net));
    d.share = 0.7;
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    train(o, &b, 20);
    CHECK(holds(net));
    CHECK_OK(ctx);
}

TEST(prune, tied_weights_have_one_mask)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *a = mlc_nn_linear(ctx, 6, 6), *c = mlc_nn_linear(ctx, 6, 6);
    mlc_module    *net = MLC_SEQUENTIAL(ctx, a, mlc_nn_tanh(ctx), c);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_module_tie(c, "weight", mlc_module_param(a, "weight"));
    batch      b = batch_of(net, 6, 6);
    mlc_optim *o = mlc_adam(net, 0.01);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    train(o, &b, 50);
    CHECK(holds(net));
    CHECK_EQ(trues(mlc_module_param(net, "0.weight_mask")), 18);
    CHECK(mlc_module_param(net, "2.weight_mask") == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Two networks that share a weight, each with an optimizer that has moments of it. */
TEST(prune, masks_hold_under_the_optimizer_of_another_network)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlc_nn_linear(ctx, 6, 4), *other = mlc_nn_linear(ctx, 6, 4);
    mlc_module    *apart = mlp(ctx, 6, 12, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_module_tie(other, "weight", mlc_module_param(net, "weight"));
    batch      b = batch_of(other, 6, 4), c = batch_of(apart, 6, 4);
    mlc_optim *o = mlc_adam(other, 0.01), *p = mlc_adam(apart, 0.01);
    train(o, &b, 10);
    train(p, &c, 3);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    train(o, &b, 10);
    train(p, &c, 3);
    CHECK(holds(net));
    CHECK_OK(ctx);
}

TEST(prune, a_clone_has_masks_that_hold)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    mlc_module *clone = mlc_module_clone(net);
    mlc_module_free(net);
    batch      b = batch_of(clone, 6, 4);
    mlc_optim *o = mlc_adam(clone, 0.01);
    train(o, &b, 20);
    CHECK(holds(clone));
    CHECK_OK(ctx);
}

TEST(prune, values_written_since_are_zeroed_by_apply_and_remove_ends_it)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4);
    batch          b = batch_of(net, 6, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_optim     *o = mlc_adam(net, 0.01);
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    mlc_no_grad_begin(ctx);
    mlc_fill_(mlc_module_param(net, "0.weight"), 1);
    mlc_no_grad_end(ctx);
    CHECK(!holds(net));
    CHECK_EQ(mlc_prune_apply(net), MLC_OK);
    CHECK(holds(net));
    CHECK_EQ(mlc_prune_remove(net, "4.*"), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no masked parameter matches '4.*'");
    CHECK_EQ(mlc_prune_remove(net, "0.*"), MLC_OK);
    CHECK_NEAR(mlc_prune_zeros(net, NULL), 0.5, 0.15);
    CHECK_NEAR(mlc_prune_zeros(net, "0.*"), 0, 0);
    CHECK_EQ(mlc_prune_remove(net, NULL), MLC_OK);
    train(o, &b, 1);
    CHECK(mlc_item(mlc_min(mlc_abs(mlc_module_param(net, "2.weight")), mlc_dims0(), false)) > 0);
    CHECK_OK(ctx);
}

TEST(prune, the_summary_shows_shares_of_zeros)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.75);
    sink           s = {"", 0};
    d.per_layer = true;
    d.pattern = "0.*";
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    CHECK_EQ(mlc_summary(net, mlc_dims2(1, 6), collect, &s), MLC_OK);
    CHECK_HAS(s.text, "84  75.0 % pruned\n");
    CHECK_HAS(s.text, "52\n");
    CHECK_HAS(s.text, "Pruned params: 54 of 72\n");
}

/* ---- schedules ------------------------------------------------------------------------------ */

TEST(prune, a_cubic_schedule_has_its_shares)
{
    const mlc_prune_schedule s = mlc_prune_schedule_make(0.8, 10, 50, 10);
    CHECK_NEAR(mlc_prune_share_at(&s, 9), 0, 0);
    CHECK_NEAR(mlc_prune_share_at(&s, 10), 0, 1e-15);
    CHECK_NEAR(mlc_prune_share_at(&s, 20), 0.8 - 0.8 * 0.421875, 1e-15);
    CHECK_NEAR(mlc_prune_share_at(&s, 29), 0.8 - 0.8 * 0.421875, 1e-15);
    CHECK_NEAR(mlc_prune_share_at(&s, 40), 0.8 - 0.8 / 64, 1e-15);
    CHECK_NEAR(mlc_prune_share_at(&s, 50), 0.8, 0);
    CHECK_NEAR(mlc_prune_share_at(&s, 5000), 0.8, 0);
}

/* A share of 20 % of what is left in each of four rounds. */
TEST(prune, rounds_take_the_same_share_of_what_is_left)
{
    mlc_prune_schedule s = mlc_prune_schedule_make(1 - pow(0.8, 4), 5, 35, 10);
    s.curve = MLC_PRUNE_ROUNDS;
    for (int r = 0; r < 4; r++)
        CHECK_NEAR(mlc_prune_share_at(&s, 5 + 10 * r), 1 - pow(0.8, r + 1), 1e-14);
    s.curve = MLC_PRUNE_ONCE;
    CHECK_NEAR(mlc_prune_share_at(&s, 4), 0, 0);
    CHECK_NEAR(mlc_prune_share_at(&s, 5), s.to, 0);
    s.curve = MLC_PRUNE_ROUNDS;        /* that mlc_prune refuses */
    s.begin = INT64_MIN;
    CHECK_NEAR(mlc_prune_share_at(&s, 5), s.to, 0);
}

TEST(prune, wrong_schedules_are_errors)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = mlp(ctx, 6, 8, 3);
    const mlc_prune_desc d = mlc_prune_desc_make(0);
    mlc_prune_desc       pairs = d;
    mlc_prune_schedule   s = mlc_prune_schedule_make(0.8, 10, 50, 10);
    s.from = 0.9;
    CHECK_EQ(mlc_prune_begin(net, &d, &s), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "from 0.9 to 0.8");
    s = mlc_prune_schedule_make(0.8, 10, 10, 1);
    CHECK_EQ(mlc_prune_step(net, &d, &s, 0), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "begin 10, end 10");
    s = mlc_prune_schedule_make(0.8, 10, 50, 0);
    CHECK(mlc_on_prune(net, &d, &s) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "every 0");
    s = mlc_prune_schedule_make(0.8, 10, 50, 10);
    s.rewind = true;
    s.keep = 11;
    CHECK_EQ(mlc_prune_begin(net, &d, &s), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "keep 11 is after begin 10");
    s.keep = 0;
    CHECK_EQ(mlc_prune_step(net, &d, &s, -1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "step -1");
    pairs.unit = MLC_PRUNE_N_OF_M;
    CHECK_EQ(mlc_prune_begin(net, &pairs, &s), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "MLC_PRUNE_ONCE");
    mlc_prune_schedule once = s;
    once.curve = MLC_PRUNE_ONCE;
    once.rewind = false;
    CHECK_EQ(mlc_prune_begin(net, &pairs, &once), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no multiple of 4");     /* rows of 6 */
    CHECK_EQ(mlc_prune_begin(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "schedule is NULL");
    CHECK_EQ(mlc_prune_rewind(net), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "no values were kept");
    CHECK_EQ(mlc_prune_step(net, &d, &s, 10), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "no values were kept");
    CHECK(isnan(mlc_prune_share_at(NULL, 1)));
    CHECK_EQ(mlc_prune_begin(NULL, &d, &s), MLC_ERR_ARG);
    CHECK_EQ(mlc_prune_step(NULL, &d, &s, 0), MLC_ERR_ARG);
    CHECK_EQ(mlc_prune_keep(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_prune_rewind(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_prune_zeros(net, NULL) > 0, 0);
    CHECK(mlc_module_param(net, "0.weight_mask") == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(prune, rewinding_goes_back_to_kept_values_that_stay)
{
    mlc_ctx           *ctx = test_ctx();
    mlc_module        *net = mlp(ctx, 6, 12, 4);
    batch              b = batch_of(net, 6, 4);
    mlc_prune_desc     d = mlc_prune_desc_make(0);
    mlc_prune_schedule s = mlc_prune_schedule_make(0.75, 6, 12, 6);
    mlc_tensor        *early = NULL, *bias = NULL;
    s.curve = MLC_PRUNE_ROUNDS;
    s.rewind = true;
    s.keep = 2;
    CHECK_EQ(mlc_prune_begin(net, &d, &s), MLC_OK);
    mlc_optim *o = mlc_adam(net, 0.01);
    for (int64_t step = 0; step <= 12; step++) {
        if (step == 2) {
            early = mlc_copy(mlc_detach(mlc_module_param(net, "0.weight")));
            bias = mlc_copy(mlc_detach(mlc_module_param(net, "0.bias")));
        }
        CHECK_EQ(mlc_prune_step(net, &d, &s, step), MLC_OK);
        if (step == 6)
            CHECK_NEAR(mlc_prune_zeros(net, NULL), 0.5, 0.01);
        if (step == 6 || step == 12) {
            mlc_tensor *mask = mlc_module_param(net, "0.weight_mask");
            mlc_no_grad_begin(ctx);
            CHECK(equal(mlc_module_param(net, "0.weight"),
                        mlc_mul(early, mlc_cast(mask, MLC_F32))));
            CHECK(equal(mlc_module_param(net, "0.bias"), bias));
            mlc_no_grad_end(ctx);
            CHECK(holds(net));
        }
        train(o, &b, 1);
    }
    CHECK_NEAR(mlc_prune_zeros(net, NULL), 0.75, 0.01);
    CHECK_OK(ctx);
    mlc_optim_free(o);
    o = mlc_schedule_free_adamw(net, 0.01);
    CHECK_EQ(mlc_prune_rewind(net), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "schedule_free");
}

/* A network with its training, of 8 batches. */
typedef struct scene {
    mlc_module    *net;
    mlc_callback  *prune;
    mlc_optim     *o;
    mlc_loader    *loader;
    mlc_fit_desc   d;
    mlc_fit_state *s;
} scene;

static void scene_open(scene *c, mlc_ctx *ctx, mlc_prune_by by, bool rewind)
{
    mlc_prune_desc     p = mlc_prune_desc_make(0);
    mlc_prune_schedule s = mlc_prune_schedule_make(0.7, 2, 8, 2);
    memset(c, 0, sizeof *c);
    mlc_seed(ctx, 7);
    p.by = by;
    s.rewind = rewind;
    s.keep = 1;
    c->net = mlp(ctx, 6, 12, 4);
    c->prune = mlc_on_prune(c->net, &p, &s);
    c->o = mlc_adamw(c->net, 0.01);
    mlc_optim_accumulate(c->o, 2);
    mlc_ema(c->o, 0.9);
    c->loader = mlc_loader_shuffled(ctx, test_rand(ctx, MLC_F32, mlc_dims2(64, 6), 1, -1, 1),
                                    test_rand(ctx, MLC_F32, mlc_dims2(64, 4), 2, -1, 1), 8);
    c->d = mlc_fit_desc_make(mlc_mse_loss);
    c->d.epochs = 3;
    c->d.callbacks = &c->prune;
    c->d.n_callbacks = 1;
    c->s = mlc_fit_begin(c->net, c->o, c->loader, &c->d);
}

static void scene_close(scene *c, mlc_ctx *ctx)
{
    CHECK_EQ(mlc_fit_end(c->s, NULL), MLC_OK);
    mlc_callback_free(ctx, c->prune);
    mlc_loader_free(c->loader);
    mlc_optim_free(c->o);
}

static uint64_t bits_of(mlc_module *net)
{
    return hash_net(HASH_SEED, net);
}

/* Run files after each of the first 17 batches end with the bits of the whole run. */
static void resumes(mlc_prune_by by, bool rewind)
{
    mlc_ctx *ctx = test_ctx();
    scene    whole;
    box      b = box_open_fast("run");
    int      batches = 0;
    scene_open(&whole, ctx, by, rewind);
    while (mlc_fit_step(whole.s))
        batches++;
    const uint64_t want = bits_of(whole.net);
    CHECK(holds(whole.net));
    CHECK_NEAR(mlc_prune_zeros(whole.net, NULL), 0.7, 0.01);
    CHECK(batches >= 23);
    for (int at = 0; at <= 17; at++) {
        scene    c;
        mlc_ctx *own = test_ctx(), *again = test_ctx();
        scene_open(&c, own, by, rewind);
        for (int i = 0; i < at; i++)
            mlc_fit_step(c.s);
        const mlc_run run = mlc_fit_run(c.s);
        CHECK_EQ(mlc_run_save(own, b.path, &run), MLC_OK);
        scene_close(&c, own);
        scene_open(&c, again, by, rewind);
        CHECK_EQ(mlc_fit_resume(c.s, b.path), MLC_OK);
        while (mlc_fit_step(c.s)) {}
        if (!CHECK(bits_of(c.net) == want))
            printf("  resumed after %d batches, by %d, rewind %d\n", at, (int)by, rewind);
        scene_close(&c, again);
        CHECK_OK(again);
    }
    scene_close(&whole, ctx);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(prune, a_resumed_run_has_the_same_bits)
{
    resumes(MLC_PRUNE_MAGNITUDE, false);
    resumes(MLC_PRUNE_MAGNITUDE, true);
    resumes(MLC_PRUNE_GRADIENT, false);
}

TEST(prune, files_keep_masks)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlp(ctx, 6, 12, 4), *other = mlp(ctx, 6, 12, 4);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    box            b = box_open("net.safetensors");
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    d.share = 0;
    CHECK_EQ(mlc_prune(other, &d), MLC_OK);
    CHECK_EQ(mlc_load(other, b.path), MLC_OK);
    CHECK_EQ(bits_of(net) == bits_of(other), 1);
    batch      t = batch_of(other, 6, 4);
    mlc_optim *o = mlc_adam(other, 0.01);
    train(o, &t, 10);
    CHECK(holds(other));
    CHECK_NEAR(mlc_prune_zeros(other, NULL), 0.5, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- networks that shrink ------------------------------------------------------------------- */

/* Rows of all layers whose names match, a share of each layer. */
static void prune_rows(mlc_module *net, const char *pattern, double share, mlc_prune_unit unit)
{
    mlc_prune_desc d = mlc_prune_desc_make(share);
    d.unit = unit;
    d.pattern = pattern;
    d.per_layer = true;
    CHECK_EQ(mlc_prune(net, &d), MLC_OK);
}

/* The output in evaluation. */
static mlc_tensor *output_of(mlc_module *net, mlc_tensor *x)
{
    mlc_eval_begin(net);
    mlc_tensor *y = mlc_forward(net, x);
    mlc_eval_end(net);
    return y;
}

static double distance(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false)) : INF;
}

/* Shrinks a network: the output stays, so many elements are gone, and it can be trained. A copy in
 * f32 of a network in f64 shrinks as well. */
static int64_t shrinks(mlc_module *net, mlc_tensor *x)
{
    mlc_ctx      *ctx = mlc_module_ctx(net);
    const bool    wide = x->dtype == MLC_F64;
    mlc_module   *narrow = wide ? mlc_module_clone(net) : NULL;
    mlc_tensor   *before = output_of(net, x);
    const int64_t n = mlc_module_numel(net, false);
    int64_t       removed = -1;
    if (narrow) {
        CHECK_EQ(mlc_module_to(narrow, MLC_F32), MLC_OK);
        shrinks(narrow, mlc_cast(x, MLC_F32));
        mlc_module_free(narrow);
    }
    CHECK_EQ(mlc_prune_shrink(net, &removed), MLC_OK);
    mlc_tensor *after = output_of(net, x);
    CHECK(distance(before, after) < (wide ? 1e-12 : 1e-6));
    CHECK_EQ(mlc_module_numel(net, false), n - removed);
    mlc_scope_begin(ctx);
    mlc_optim *o = mlc_adam(net, 0.001);
    mlc_backward(mlc_mean(mlc_square(mlc_forward(net, x)), mlc_dims0(), false));
    CHECK_EQ(mlc_optim_step(o), MLC_OK);
    mlc_optim_free(o);
    mlc_scope_end(ctx);
    CHECK_OK(ctx);
    return removed;
}

TEST(prune, an_mlp_shrinks)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 6, 20), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, 20, 16), mlc_nn_tanh(ctx),
                                     mlc_nn_dropout(ctx, 0.1), mlc_nn_linear(ctx, 16, 3));
    mlc_module_to(net, MLC_F64);
    prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
    prune_rows(net, "2.*", 0.25, MLC_PRUNE_ROWS);
    const int64_t n = shrinks(net, test_rand(ctx, MLC_F64, mlc_dims2(5, 6), 1, -1, 1));
    CHECK_EQ(n, 6 * 10 + 10 + 20 * 16 - 10 * 12 + 4 + 4 * 3);
    CHECK_EQ(mlc_dim(mlc_module_param(net, "2.weight"), 0), 12);
    CHECK_EQ(mlc_dim(mlc_module_param(net, "2.weight_mask"), 1), 10);
    CHECK_NEAR(mlc_prune_zeros(net, NULL), 0, 0);
}

/* Convolutions, their norms, a depthwise one, a pool, and the columns of a flattened image. */
TEST(prune, a_convolutional_network_shrinks)
{
    ONLY_ON_HOST();
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 16, 16, 3);
    d.conv.padding = mlc_dims_all(1);
    d.conv.groups = 16;
    mlc_module *part[] = {mlc_nn_conv2d(ctx, 3, 16, 3, 1, 1), mlc_nn_batch_norm(ctx, 16),
                          mlc_nn_relu(ctx), mlc_nn_conv(ctx, &d), mlc_nn_batch_norm(ctx, 16),
                          mlc_nn_relu(ctx), mlc_nn_max_pool2d(ctx, 2),
                          mlc_nn_conv2d(ctx, 16, 12, 3, 1, 0), mlc_nn_relu(ctx),
                          mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 12 * 9, 10)};
    mlc_module *net = mlc_nn_sequential_of(ctx, COUNT(part), part);
    mlc_module_to(net, MLC_F64);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims4(4, 3, 10, 10), 1, -1, 1);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < 3; i++)
        mlc_forward(net, x);                     /* statistics of the norms */
    mlc_no_grad_end(ctx);
    prune_rows(net, NULL, 0.25, MLC_PRUNE_CHANNELS);
    CHECK(equal(mlc_module_param(net, "0.bias_mask"), mlc_module_param(net, "4.bias_mask")));
    CHECK_EQ(trues(mlc_module_param(net, "7.bias_mask")), 9);
    CHECK_EQ(shrinks(net, x), 4 * (27 + 1 + 2 + 9 + 1 + 2) + 12 * 16 * 9 - 9 * 12 * 9 + 3 + 3 * 90);
    CHECK_EQ(mlc_dim(mlc_module_param(net, "1.running_var"), 0), 12);
    CHECK_EQ(mlc_dim(mlc_module_param(net, "10.weight"), 1), 81);
    CHECK_OK(ctx);
}

TEST(prune, resnet20_shrinks_through_its_sums)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = resnet20(ctx);
    mlc_module_to(net, MLC_F64);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims4(2, 3, 16, 16), 1, -1, 1);
    mlc_no_grad_begin(ctx);
    mlc_forward(net, x);
    mlc_no_grad_end(ctx);
    const int64_t n = mlc_module_numel(net, false);
    prune_rows(net, NULL, 0.5, MLC_PRUNE_CHANNELS);
    const int64_t removed = shrinks(net, x);
    CHECK((double)removed > 0.73 * (double)n);
    CHECK_EQ(mlc_dim(mlc_module_param(net, "0.weight"), 0), 8);
    CHECK_OK(ctx);
}

TEST(prune, a_transformer_loses_heads_and_hidden_features)
{
    ONLY_ON_HOST();
    mlc_ctx                *ctx = test_ctx();
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(12, 3);
    d.hidden = 20;
    d.dropout = 0;
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 5, 12),
                                     mlc_nn_transformer_encoder_layer(ctx, &d),
                                     mlc_nn_transformer_encoder_layer(ctx, &d),
                                     mlc_nn_linear(ctx, 12, 4));
    mlc_module_to(net, MLC_F64);
    prune_rows(net, NULL, 0.34, MLC_PRUNE_HEADS);
    prune_rows(net, "*.linear1.*", 0.5, MLC_PRUNE_ROWS);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(2, 7, 5), 1, -1, 1);
    CHECK_EQ(shrinks(net, x), 2 * (12 * 13 + 4 * 12 + 10 * 13 + 10 * 12));
    CHECK_EQ(mlc_dim(mlc_module_param(net, "1.self_attn.in_proj_weight"), 0), 24);
    CHECK_OK(ctx);
    prune_rows(net, "1.linear2.weight", 0.5, MLC_PRUNE_ROWS);
    const int64_t n = mlc_module_numel(net, false);
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "outputs of '1.linear2' (Linear) are pruned and go "
                "through '1' (TransformerEncoderLayer)");
    CHECK_EQ(mlc_module_numel(net, false), n);
}

static mlc_tensor *double_of(void *user, mlc_tensor *x)
{
    (void)user;
    return mlc_mul_scalar(x, 2);
}

TEST(prune, what_cannot_be_followed_is_named)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 6),
                                     mlc_nn_lambda(ctx, double_of, NULL), mlc_nn_linear(ctx, 6, 3));
    int64_t     removed = 7;
    prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
    CHECK_EQ(mlc_prune_shrink(net, &removed), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "outputs of '0' (Linear) are pruned and go through '1' "
                "(Lambda)");
    CHECK_EQ(removed, 0);
    mlc_module *features = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 6), mlc_nn_avg_pool1d(ctx, 1),
                                          mlc_nn_linear(ctx, 6, 3));
    prune_rows(features, "0.*", 0.5, MLC_PRUNE_ROWS);      /* the pool joins features, not pixels */
    CHECK_EQ(mlc_prune_shrink(features, &removed), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "go through '1' (AvgPool)");
    CHECK_EQ(mlc_prune_shrink(NULL, NULL), MLC_ERR_ARG);
    mlc_module *plain = mlp(ctx, 4, 6, 2);
    prune_rows(plain, NULL, 1, MLC_PRUNE_ROWS);            /* one stays, and all outputs */
    mlc_optim *o = mlc_adafactor(plain, 0.01);
    CHECK_EQ(mlc_prune_shrink(plain, &removed), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "adafactor");
    mlc_optim_free(o);
    CHECK_EQ(mlc_prune_shrink(plain, &removed), MLC_OK);
    CHECK_EQ(removed, 5 * 4 + 5 + 5 * 2);
    CHECK_OK(ctx);
}

/* A recurrent module of the desc between two linear layers, in f64. */
static mlc_module *recurrent_net(mlc_ctx *ctx, const mlc_nn_rnn_desc *d)
{
    const int64_t width = d->projection ? d->projection : d->hidden;
    mlc_module   *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, d->in), mlc_nn_relu(ctx),
                                       mlc_nn_rnn_ex(ctx, d), mlc_nn_dropout(ctx, 0.1),
                                       mlc_nn_linear(ctx, d->bidirectional ? 2 * width : width, 4));
    mlc_module_to(net, MLC_F64);
    return net;
}

/* The size that an axis of a parameter has. */
static int64_t size_of(mlc_module *net, const char *name, int32_t axis)
{
    return mlc_dim(mlc_module_param(net, name), axis);
}

/* The sizes that axes of parameters have. */
typedef struct axis_size { const char *name; int32_t axis; int64_t size; } axis_size;

static void check_sizes(mlc_module *net, int n, const axis_size *want)
{
    for (int i = 0; i < n; i++)
        if (!CHECK_EQ(size_of(net, want[i].name, want[i].axis), want[i].size))
            printf("  %s, axis %d\n", want[i].name, (int)want[i].axis);
}
#define CHECK_SIZES(net, ...) do { \
        static const axis_size want_[] = {__VA_ARGS__}; \
        check_sizes(net, COUNT(want_), want_); \
    } while (0)

/* Rows of weight_ih are hidden units: all gates, both weights, both biases. */
TEST(prune, hidden_units_are_rows_of_all_gates)
{
    static const mlc_rnn_kind KINDS[] = {MLC_RNN_TANH, MLC_RNN_RELU, MLC_RNN_GRU, MLC_RNN_LSTM};
    static const int64_t      GATES[] = {1, 1, 3, 4};
    for (int kind = 0; kind < COUNT(KINDS); kind++) {
        mlc_ctx        *ctx = test_ctx();
        mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(KINDS[kind], 6, 8);
        mlc_module     *net = mlc_nn_sequential(ctx);
        mlc_module_add(net, mlc_nn_rnn_ex(ctx, &d));
        prune_rows(net, "*", 0.25, MLC_PRUNE_ROWS);
        mlc_tensor *ih = mlc_module_param(net, "0.weight_ih_l0_mask");
        mlc_tensor *hh = mlc_module_param(net, "0.weight_hh_l0_mask");
        mlc_tensor *bias = mlc_module_param(net, "0.bias_ih_l0_mask");
        CHECK_EQ(trues(bias), 6 * GATES[kind]);
        CHECK_EQ(trues(ih), 6 * GATES[kind] * 6);
        CHECK_EQ(trues(hh), 6 * GATES[kind] * 8);
        CHECK(equal(bias, mlc_module_param(net, "0.bias_hh_l0_mask")));
        CHECK(equal(bias, mlc_copy(mlc_select(ih, 1, 3))));
        for (int64_t g = 1; g < GATES[kind]; g++)
            CHECK(equal(mlc_copy(mlc_slice(bias, 0, 0, 8, 1)),
                        mlc_copy(mlc_slice(bias, 0, 8 * g, 8 * g + 8, 1))));
        CHECK(holds(net));
        mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims3(2, 5, 6), 1, -1, 1));
        mlc_tensor *top = mlc_max(mlc_abs(y), mlc_dims2(0, 1), false);
        for (int64_t i = 0; i < 8; i++) {        /* a pruned unit stays 0 over all steps */
            const double kept = mlc_item(mlc_cast(mlc_slice(bias, 0, i, i + 1, 1), MLC_F32));
            CHECK(kept == 0 ? mlc_item(mlc_slice(top, 0, i, i + 1, 1)) == 0 : true);
        }
        CHECK_OK(ctx);
    }
}

TEST(prune, recurrent_layers_lose_hidden_units)
{
    ONLY_ON_HOST();
    static const mlc_rnn_kind KINDS[] = {MLC_RNN_TANH, MLC_RNN_RELU, MLC_RNN_GRU, MLC_RNN_LSTM};
    static const int64_t      GATES[] = {1, 1, 3, 4};
    for (int kind = 0; kind < COUNT(KINDS); kind++)
        for (int ways = 1; ways <= 2; ways++) {
            mlc_ctx        *ctx = test_ctx();
            mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(KINDS[kind], 6, 8);
            const int64_t   g = GATES[kind];
            d.layers = 2;
            d.bidirectional = ways == 2;
            mlc_module *net = recurrent_net(ctx, &d);
            mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 3), 1, -1, 1);
            prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
            prune_rows(net, "2.*", 0.5, MLC_PRUNE_ROWS);
            /* 0: 3 of 6 outputs; a layer: rows of ih, hh, two biases, and columns */
            const int64_t first = g * (8 * (6 + 8 + 2) - 4 * (3 + 4 + 2));
            const int64_t second = g * (8 * (8 * ways + 8 + 2) - 4 * (4 * ways + 4 + 2));
            CHECK_EQ(shrinks(net, x), 3 * 4 + ways * (first + second) + 4 * 4 * ways);
            CHECK_EQ(size_of(net, "2.weight_hh_l1", 1), 4);
            CHECK_EQ(size_of(net, "4.weight", 1), 4 * ways);
            mlc_tensor *y, *state[2];
            mlc_module *m = mlc_module_find(net, "2");
            mlc_tensor *h = test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 3), 2, -1, 1);
            CHECK_EQ(mlc_rnn_forward(m, h, NULL, NULL, &y, state), MLC_OK);
            CHECK_EQ(mlc_dim(state[0], 0), 2 * ways);
            CHECK_EQ(mlc_dim(state[0], 2), 4);
            CHECK_OK(ctx);
        }
}

TEST(prune, an_lstm_with_projection_and_peepholes_shrinks)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 6, 10);
    d.projection = 4;
    d.peepholes = true;
    d.layers = 2;
    d.bidirectional = true;
    mlc_module *net = recurrent_net(ctx, &d);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 3), 1, -1, 1);
    prune_rows(net, "2.*", 0.5, MLC_PRUNE_ROWS);           /* 5 of 10 units, 2 of 4 outputs */
    CHECK(shrinks(net, x) > 0);
    CHECK_SIZES(net, {"2.weight_ih_l0", 0, 20}, {"2.weight_hr_l0", 0, 2},
                {"2.weight_hr_l1_reverse", 1, 5}, {"2.weight_ih_l1", 1, 4},
                {"2.weight_peep_l0", 1, 5}, {"4.weight", 1, 4});
    CHECK_OK(ctx);
}

/* By channels: shares of a layer, and of all together, of which layers of a module lose as many. */
TEST(prune, layers_of_a_recurrent_module_lose_as_many_units_each)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 6, 8);
    d.layers = 2;
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 3), 1, -1, 1);
    mlc_module *net = recurrent_net(ctx, &d);
    prune_rows(net, "2.*", 0.25, MLC_PRUNE_CHANNELS);
    CHECK_EQ(trues(mlc_module_param(net, "2.bias_ih_l1_mask")), 24);
    CHECK(mlc_module_param(net, "0.weight_mask") == NULL);
    mlc_error_clear(ctx);
    CHECK(shrinks(net, x) > 0);
    CHECK_EQ(size_of(net, "2.weight_hh_l0", 1), 6);
    net = recurrent_net(ctx, &d);
    prune_rows(net, "2.*_l0", 0.5, MLC_PRUNE_ROWS);        /* four, and two: two go */
    prune_rows(net, "2.*_l1", 0.25, MLC_PRUNE_ROWS);
    CHECK(shrinks(net, x) > 0);
    CHECK_EQ(size_of(net, "2.weight_hh_l0", 1), 6);
    CHECK_EQ(size_of(net, "2.weight_hh_l1", 1), 6);
    CHECK_EQ(trues(mlc_module_param(net, "2.bias_ih_l0_mask")), 16);
    net = recurrent_net(ctx, &d);
    prune_rows(net, "2.*_l0", 0.5, MLC_PRUNE_ROWS);        /* nothing of layer 1 is pruned */
    CHECK_EQ(shrinks(net, x), 0);
    CHECK_OK(ctx);
}

TEST(prune, both_directions_of_a_bidirectional_module_shrink)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx,
                                     mlc_nn_bidirectional(ctx, mlc_nn_lstm(ctx, 3, 8),
                                                          mlc_nn_gru(ctx, 3, 6)),
                                     mlc_nn_linear(ctx, 14, 4));
    mlc_module_to(net, MLC_F64);
    prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
    CHECK(shrinks(net, test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 3), 1, -1, 1)) > 0);
    CHECK_EQ(size_of(net, "0.forward.weight_hh_l0", 1), 4);
    CHECK_EQ(size_of(net, "0.backward.weight_hh_l0", 1), 3);
    CHECK_EQ(size_of(net, "1.weight", 1), 7);
    CHECK_OK(ctx);
}

/* A layer norm over the gates, and one after the module. */
TEST(prune, recurrent_modules_that_cannot_be_followed_are_named)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_GRU, 6, 8);
    d.layer_norm = true;
    mlc_module   *net = recurrent_net(ctx, &d);
    const int64_t n = mlc_module_numel(net, false);
    prune_rows(net, "2.*", 0.5, MLC_PRUNE_ROWS);
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "outputs of '2' (GRU) are pruned and go through '2' "
                "(GRU)");
    CHECK_EQ(mlc_module_numel(net, false), n);
    net = MLC_SEQUENTIAL(ctx, mlc_nn_lstm(ctx, 3, 8), mlc_nn_layer_norm(ctx, 8));
    prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "outputs of '0' (LSTM) are pruned and go through '1' "
                "(LayerNorm)");
    CHECK_EQ(size_of(net, "0.weight_hh_l0", 1), 8);
}

/* A clone of a network that shrank, and its file, have the new sizes. */
TEST(prune, what_shrank_is_cloned_saved_and_trained)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 6, 8);
    mlc_module     *net = recurrent_net(ctx, &d), *small;
    mlc_tensor     *x = test_rand(ctx, MLC_F64, mlc_dims3(3, 7, 3), 1, -1, 1);
    box             b = box_open("net.safetensors");
    prune_rows(net, "2.*", 0.5, MLC_PRUNE_ROWS);
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_OK);
    CHECK_EQ(mlc_prune_remove(net, NULL), MLC_OK);
    mlc_tensor *want = output_of(net, x);
    CHECK(distance(want, output_of(mlc_module_clone(net), x)) == 0);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    d.hidden = 4;
    small = recurrent_net(ctx, &d);
    CHECK_EQ(mlc_load(small, b.path), MLC_OK);
    CHECK(distance(want, output_of(small, x)) == 0);
    CHECK_OK(ctx);
    box_close(&b);
}

/* A block of DenseNet: x, then what a norm, relu and convolution make of all before. */
static mlc_module *dense_block(mlc_ctx *ctx, int64_t in, int64_t out)
{
    mlc_module *part[] = {mlc_nn_identity(ctx),
                          MLC_SEQUENTIAL(ctx, mlc_nn_batch_norm(ctx, in), mlc_nn_relu(ctx),
                                         mlc_nn_conv2d(ctx, in, out, 3, 1, 1))};
    return mlc_nn_concat(ctx, 1, 2, part);
}

static mlc_tensor *warm(mlc_module *net, mlc_tensor *x)
{
    mlc_no_grad_begin(mlc_module_ctx(net));
    for (int i = 0; i < 3; i++)
        mlc_forward(net, x);                     /* statistics of the norms */
    mlc_no_grad_end(mlc_module_ctx(net));
    return x;
}

TEST(prune, a_densenet_shrinks_through_its_concatenations)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1),
                                     dense_block(ctx, 8, 4), dense_block(ctx, 12, 4),
                                     mlc_nn_batch_norm(ctx, 16), mlc_nn_relu(ctx),
                                     mlc_nn_conv2d(ctx, 16, 6, 1, 1, 0), mlc_nn_relu(ctx),
                                     mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx),
                                     mlc_nn_linear(ctx, 6 * 9, 5));
    mlc_module_to(net, MLC_F64);
    mlc_tensor *x = warm(net, test_rand(ctx, MLC_F64, mlc_dims4(4, 3, 6, 6), 1, -1, 1));
    prune_rows(net, "*", 0.5, MLC_PRUNE_CHANNELS);
    CHECK_EQ(trues(mlc_module_param(net, "0.bias_mask")), 4);
    CHECK_EQ(trues(mlc_module_param(net, "1.1.2.bias_mask")), 2);
    CHECK_EQ(trues(mlc_module_param(net, "3.bias_mask")), 8);
    mlc_tensor *norm = mlc_module_param(net, "3.bias_mask");
    CHECK(equal(mlc_copy(mlc_slice(norm, 0, 0, 8, 1)), mlc_module_param(net, "0.bias_mask")));
    CHECK(equal(mlc_copy(mlc_slice(norm, 0, 12, 16, 1)),
                mlc_module_param(net, "2.1.2.bias_mask")));
    CHECK(shrinks(net, x) > 0);
    CHECK_SIZES(net, {"2.1.2.weight", 0, 2}, {"2.1.2.weight", 1, 6}, {"3.running_mean", 0, 8},
                {"9.weight", 1, 27});
    CHECK_OK(ctx);
}

/* Branches of other widths; one alone is pruned, the others keep their places. */
TEST(prune, an_inception_module_shrinks_branch_by_branch)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *part[] = {mlc_nn_conv2d(ctx, 6, 4, 1, 1, 0),
                          MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 6, 8, 1, 1, 0), mlc_nn_relu(ctx),
                                         mlc_nn_conv2d(ctx, 8, 6, 3, 1, 1)),
                          MLC_SEQUENTIAL(ctx, mlc_nn_max_pool2d(ctx, 1),
                                         mlc_nn_conv2d(ctx, 6, 5, 1, 1, 0))};
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 3, 6, 3, 1, 1), mlc_nn_relu(ctx),
                                     mlc_nn_concat(ctx, 1, COUNT(part), part), mlc_nn_relu(ctx),
                                     mlc_nn_conv2d(ctx, 15, 7, 3, 1, 1));
    mlc_module_to(net, MLC_F64);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims4(2, 3, 6, 6), 1, -1, 1);
    prune_rows(net, "2.1.2.*", 0.5, MLC_PRUNE_ROWS);
    CHECK_EQ(shrinks(net, x), 3 * (8 * 9 + 1) + 3 * 7 * 9);
    CHECK_EQ(size_of(net, "4.weight", 1), 12);
    prune_rows(net, "*", 0.5, MLC_PRUNE_CHANNELS);
    CHECK(shrinks(net, x) > 0);
    CHECK_EQ(size_of(net, "4.weight", 1), 2 + 1 + 3);      /* halves of 4, 3, 5: half to even */
    CHECK_EQ(size_of(net, "2.1.0.weight", 1), 3);
    CHECK_OK(ctx);
}

/* Features side by side on the last axis, summed with one layer over all of them. */
TEST(prune, branches_that_are_summed_with_a_layer_go_together)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *part[] = {mlc_nn_linear(ctx, 5, 4), mlc_nn_linear(ctx, 5, 6)};
    mlc_module *net = MLC_SEQUENTIAL(ctx,
                                     mlc_nn_residual(ctx, mlc_nn_concat(ctx, -1, 2, part),
                                                     mlc_nn_linear(ctx, 5, 10), true),
                                     mlc_nn_linear(ctx, 10, 3));
    mlc_module_to(net, MLC_F64);
    prune_rows(net, "0.*", 0.5, MLC_PRUNE_CHANNELS);
    mlc_tensor *all = mlc_module_param(net, "0.shortcut.bias_mask");
    CHECK_EQ(trues(all), 5);
    CHECK(equal(mlc_copy(mlc_slice(all, 0, 0, 4, 1)),
                mlc_module_param(net, "0.body.0.bias_mask")));
    CHECK(equal(mlc_copy(mlc_slice(all, 0, 4, 10, 1)),
                mlc_module_param(net, "0.body.1.bias_mask")));
    const int64_t left = trues(mlc_module_param(net, "0.body.0.bias_mask"));
    const int64_t gone = left % 5 == 0 ? 4 : 5;  /* one of a branch that is all pruned stays */
    CHECK_EQ(shrinks(net, test_rand(ctx, MLC_F64, mlc_dims2(7, 5), 1, -1, 1)), gone * (12 + 3));
    CHECK_OK(ctx);
}

TEST(prune, concatenations_that_cannot_be_followed_are_named)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *steps[] = {mlc_nn_linear(ctx, 5, 4), mlc_nn_linear(ctx, 5, 4)};
    mlc_module   *net = MLC_SEQUENTIAL(ctx, mlc_nn_concat(ctx, 1, 2, steps),
                                       mlc_nn_linear(ctx, 4, 3));
    const int64_t n = mlc_module_numel(net, false);
    prune_rows(net, "0.0.*", 0.5, MLC_PRUNE_ROWS);         /* joins steps, not features */
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "outputs of '0.0' (Linear) are pruned and go through "
                "'0' (Concat)");
    CHECK_EQ(mlc_module_numel(net, false), n);
    mlc_module *part[] = {mlc_nn_conv2d(ctx, 2, 4, 1, 1, 0),
                          mlc_nn_lambda(ctx, double_of, NULL)};
    net = MLC_SEQUENTIAL(ctx, mlc_nn_concat(ctx, 1, 2, part), mlc_nn_conv2d(ctx, 6, 3, 1, 1, 0));
    prune_rows(net, "0.0.*", 0.5, MLC_PRUNE_ROWS);
    CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "go through '0' (Concat)");
    CHECK_EQ(size_of(net, "0.0.weight", 0), 4);
}

/* The last layer's units are outputs of the network: none of the first layer's could go. */
TEST(prune, channels_are_units_that_can_go)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 6, 8);
    mlc_prune_desc  p = mlc_prune_desc_make(0.5);
    d.layers = 2;
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 6), mlc_nn_rnn_ex(ctx, &d));
    p.unit = MLC_PRUNE_CHANNELS;
    CHECK_EQ(mlc_prune(net, &p), MLC_OK);
    CHECK_EQ(trues(mlc_module_param(net, "0.bias_mask")), 3);
    CHECK(mlc_module_param(net, "1.weight_ih_l0_mask") == NULL);
    mlc_error_clear(ctx);
    net = recurrent_net(ctx, &d);
    p.pattern = "2.*_l0";
    CHECK_EQ(mlc_prune(net, &p), MLC_ERR_ARG);   /* layer 1 does not match */
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Seeds and names decide, not the order of parameters; what was pruned before stays so. */
TEST(prune, random_heads_and_channels_keep_what_was_pruned_before)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlc_nn_sequential(ctx);
    mlc_prune_desc d = mlc_prune_desc_make(0.25);
    mlc_module_add(net, mlc_nn_multihead_attention(ctx, 16, 8));
    d.unit = MLC_PRUNE_HEADS;
    d.by = MLC_PRUNE_RANDOM;
    for (int i = 0; i < 4; i++) {
        mlc_tensor *before = i ? mlc_copy(mlc_module_param(net, "0.in_proj_weight_mask")) : NULL;
        d.share = 0.25 * (i + 1);
        d.seed = (uint64_t)i;
        CHECK_EQ(mlc_prune(net, &d), MLC_OK);
        mlc_tensor *mask = mlc_module_param(net, "0.in_proj_weight_mask");
        CHECK_EQ(trues(mask), (8 - 2 * (i + 1)) * 6 * 16);
        CHECK(!i || equal(mask, mlc_logical_and(mask, before)));
    }
    mlc_module *conv = MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 3, 16, 3, 1, 1),
                                      mlc_nn_batch_norm(ctx, 16),
                                      mlc_nn_conv2d(ctx, 16, 2, 1, 1, 0));
    d.unit = MLC_PRUNE_CHANNELS;
    for (int i = 0; i < 3; i++) {
        mlc_tensor *before = i ? mlc_copy(mlc_module_param(conv, "0.bias_mask")) : NULL;
        d.share = 0.25 * (i + 1);
        d.seed = (uint64_t)i;
        CHECK_EQ(mlc_prune(conv, &d), MLC_OK);
        mlc_tensor *mask = mlc_module_param(conv, "0.bias_mask");
        CHECK_EQ(trues(mask), 16 - 4 * (i + 1));
        CHECK(!i || equal(mask, mlc_logical_and(mask, before)));
    }
    CHECK_OK(ctx);
}


/* States that are not of their parameters' shapes: an error before anything changes. */
TEST(prune, states_of_matrices_and_in_codes_are_refused)
{
    ONLY_ON_HOST();
    static mlc_optim *(*const make[])(mlc_module *) = {make_adafactor, make_muon, make_adam_8bit};
    for (int i = 0; i < COUNT(make); i++) {
        mlc_ctx      *ctx = test_ctx();
        mlc_module   *net = mlp(ctx, 6, 12, 4);
        batch         b = batch_of(net, 6, 4);
        mlc_optim    *o = make[i](net);
        const int64_t n = mlc_module_numel(net, false);
        int64_t       removed = 7;
        train(o, &b, 3);
        prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
        const uint64_t want = bits_of(net);
        CHECK_EQ(mlc_prune_shrink(net, &removed), MLC_ERR_STATE);
        CHECK_ERROR(ctx, MLC_ERR_STATE, "free it before");
        CHECK_EQ(removed, 0);
        CHECK_EQ(mlc_module_numel(net, false), n);
        CHECK(bits_of(net) == want);
        train(o, &b, 3);
        CHECK(holds(net));
        mlc_optim_free(o);
        CHECK_EQ(mlc_prune_shrink(net, &removed), MLC_OK);
        CHECK_EQ(removed, 6 * 6 + 6 + 4 * 6);
        o = make[i](net);
        train(o, &b, 3);
        CHECK_OK(ctx);
    }
}

/* Steps after it are those of the masked network, with the moments and the average of before. */
TEST(prune, states_shrink_with_their_parameters)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net[2];
    mlc_optim  *o[2];
    mlc_average *a[2];
    batch       b[2];
    for (int i = 0; i < 2; i++) {
        net[i] = mlp(ctx, 6, 12, 4);
        if (i)
            CHECK_EQ(mlc_module_copy(net[1], net[0]), MLC_OK);
    }
    for (int i = 0; i < 2; i++) {
        o[i] = mlc_adam(net[i], 0.01);
        a[i] = mlc_ema(o[i], 0.8);
        b[i] = batch_of(net[i], 6, 4);
        train(o[i], &b[i], 5);
        prune_rows(net[i], "0.*", 0.5, MLC_PRUNE_ROWS);
        train(o[i], &b[i], 5);
        if (i)
            CHECK_EQ(mlc_prune_shrink(net[i], NULL), MLC_OK);
        train(o[i], &b[i], 5);
        CHECK_EQ(mlc_average_swap(a[i], true), MLC_OK);
    }
    CHECK_EQ(mlc_dim(mlc_module_param(net[1], "2.weight"), 1), 6);
    CHECK(distance(output_of(net[0], b[0].x), output_of(net[1], b[1].x)) < 1e-6);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(mlc_average_swap(a[i], false), MLC_OK);
    CHECK(distance(output_of(net[0], b[0].x), output_of(net[1], b[1].x)) < 1e-6);
    CHECK_OK(ctx);
}

/* A copy of an item of an optimizer's state. */
static mlc_tensor *state_of(mlc_optim *o, const char *name)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(o);
    while (mlc_optim_state_next(&it))
        if (strcmp(it.name, name) == 0)
            return mlc_cast(mlc_copy(it.tensor), MLC_F32);
    return NULL;
}

/* Moments in bf16, whose steps round at random by place, are compared themselves. */
TEST(prune, moments_of_what_stays_keep_their_values)
{
    ONLY_ON_HOST();
    static mlc_optim *(*const make[])(mlc_module *) = {make_adam, make_adam_bf16, make_lamb};
    for (int i = 0; i < COUNT(make); i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlp(ctx, 6, 12, 4);
        batch       b = batch_of(net, 6, 4);
        mlc_optim  *o = make[i](net);
        train(o, &b, 5);
        prune_rows(net, "0.*", 0.5, MLC_PRUNE_ROWS);
        train(o, &b, 5);
        mlc_tensor *mask = mlc_module_param(net, "0.bias_mask");
        mlc_tensor *at = mlc_select(mlc_nonzero(mask), 1, 0);
        mlc_tensor *rows = mlc_index_select(state_of(o, "state.0.weight.exp_avg"), 0, at);
        mlc_tensor *columns = mlc_index_select(state_of(o, "state.2.weight.exp_avg_sq"), 1, at);
        CHECK_EQ(mlc_prune_shrink(net, NULL), MLC_OK);
        CHECK(equal(state_of(o, "state.0.weight.exp_avg"), rows));
        CHECK(equal(state_of(o, "state.2.weight.exp_avg_sq"), columns));
        CHECK(mlc_item(mlc_min(mlc_abs(rows), mlc_dims0(), false)) > 0);
        train(o, &b, 5);
        CHECK_OK(ctx);
    }
}
