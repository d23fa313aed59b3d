/* test_lora.c -- tests of sections IMPL.LORA.*: adapters of layers, over floats and integers,
 * merged, in PEFT's files
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/golden.h"
#include "hf.h"
#include "nets.h"

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                                     mlc_dims0(), false)) : 1e9;
}

static mlc_ctx *ctx_of(mlc_dtype dtype, int32_t threads)
{
    mlc_ctx_desc d = test_desc();
    d.dtype = dtype;
    if (threads) d.threads = threads;
    return test_own(mlc_ctx_create(&d));
}

static bool same_bits(mlc_tensor *a, mlc_tensor *b)
{
    static unsigned char x[1 << 16], y[1 << 16];
    const size_t n = a ? (size_t)mlc_numel(a) * mlc_dtype_bytes(a->dtype) : 0;
    return b && n && n <= sizeof x && a->dtype == b->dtype && mlc_numel(a) == mlc_numel(b) &&
           mlc_read(a, x, n) == MLC_OK && mlc_read(b, y, n) == MLC_OK && memcmp(x, y, n) == 0;
}

/* Values in all adapters, those that start as 0, too. */
static void fill(mlc_module *net, uint64_t seed)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) {
        if (!strstr(it.name, "lora_")) continue;
        mlc_tensor *t = it.tensor;
        mlc_no_grad_begin(mlc_module_ctx(net));
        mlc_copy_into(t, test_rand(t->ctx, t->dtype, mlc_dims_of(t->ndim, t->shape), seed++, -0.5,
                                   0.5));
        mlc_no_grad_end(mlc_module_ctx(net));
    }
}

/* The forward in evaluation. */
static mlc_tensor *eval(mlc_module *net, mlc_tensor *x)
{
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    return y;
}

static mlc_module *layered(mlc_ctx *ctx)
{
    mlc_module *net = mlp(ctx, 12, 10, 6);
    mlc_module_build(net);
    return net;
}

/* ---- the function stays, adapters alone are trained ----------------------------------------- */

TEST(lora, starts_without_changing_the_function_and_trains_nothing_else)
{
    mlc_ctx       *ctx = ctx_of(MLC_F32, 0);
    mlc_module    *net = layered(ctx);
    mlc_tensor    *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1), *before = eval(net, x);
    mlc_lora_desc  d = mlc_lora_desc_make(3, 6.0);
    mlc_lora_row   rows[4];
    mlc_lora_report report = {rows, 4, 0, 0, 0, 0};
    sink           out;
    memset(&out, 0, sizeof out);
    d.write = collect;
    d.user = &out;
    CHECK_EQ(mlc_lora(net, &d, &report), MLC_OK);
    CHECK_OK(ctx);
    CHECK(same_bits(eval(net, x), before));
    CHECK_EQ(report.n, 2);
    CHECK_STR(rows[0].name, "0");
    CHECK_EQ(rows[0].rank, 3);
    CHECK_EQ(rows[0].in, 12);
    CHECK_EQ(rows[0].out, 10);
    CHECK_EQ(report.numbers, 3 * (12 + 10) + 3 * (10 + 6));
    CHECK_EQ(report.base, 12 * 10 + 10 + 10 * 6 + 6);
    CHECK_HAS(out.text, "2 adapters of 114 numbers, 58");   /* and a point, or the locale's      */
    CHECK_HAS(out.text, "16 % of 196");
    CHECK_EQ(mlc_module_numel(net, true), report.numbers);

    mlc_optim *opt = mlc_adamw(net, 0.05);
    mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight"));
    mlc_tensor *a = mlc_copy(mlc_module_param(net, "0.lora_default.A"));
    mlc_tensor *b = mlc_copy(mlc_module_param(net, "2.lora_default.B"));
    double first = 0, last = 0;
    for (int step = 0; step < 30; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(5, 6), 2, -1, 1);
        mlc_tensor *loss = mlc_mse_loss(mlc_forward(net, x), y);
        last = mlc_item(loss);
        if (step == 0) first = last;
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(last < 0.5 * first);
    CHECK(same_bits(mlc_module_param(net, "0.weight"), w));
    CHECK(mlc_grad(mlc_module_param(net, "0.weight")) == NULL);
    CHECK(apart(mlc_module_param(net, "0.lora_default.A"), a) > 1e-3);
    CHECK(apart(mlc_module_param(net, "2.lora_default.B"), b) > 1e-3);
    /* A, uniform within 1 / sqrt(in) */
    const double most = mlc_item(mlc_max(mlc_abs(a), mlc_dims0(), false));
    CHECK(most <= 1 / sqrt(12.0) && most > 0.2);
    mlc_module_free(net);
}

/* y + scale (x A^T) B^T by operations. */
static mlc_tensor *by_hand(mlc_tensor *y, mlc_tensor *x, mlc_tensor *a, mlc_tensor *b, double scale)
{
    return mlc_add(y, mlc_mul_scalar(mlc_linear(mlc_linear(x, a, NULL), b, NULL), scale));
}

TEST(lora, adds_to_each_layer_before_what_is_fused_with_it)
{
    mlc_ctx      *ctx = ctx_of(MLC_F64, 0);
    mlc_module   *net = mlc_nn_sequential(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 3.0);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 8));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 8, 5));
    d.rank_stabilized = true;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 20);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(2, 3, 7), 1, -1, 1), *p[8], *y, *want;
    static const char *const names[8] = {"0.weight", "0.bias", "0.lora_default.A",
                                         "0.lora_default.B", "2.weight", "2.bias",
                                         "2.lora_default.A", "2.lora_default.B"};
    for (int i = 0; i < 8; i++) p[i] = mlc_module_param(net, names[i]);
    const double scale = 3.0 / sqrt(2.0);
    y = mlc_forward(net, x);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
    mlc_tensor *got[4];
    for (int i = 0; i < 4; i++) got[i] = mlc_copy(mlc_grad(p[i / 2 * 4 + 2 + i % 2]));
    for (int i = 0; i < 8; i++) mlc_zero_grad(p[i]);
    want = mlc_gelu(by_hand(mlc_linear(x, p[0], p[1]), x, p[2], p[3], scale));
    want = by_hand(mlc_linear(want, p[4], p[5]), want, p[6], p[7], scale);
    CHECK(apart(y, want) < 1e-14);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(want, want), mlc_dims0(), false)), MLC_OK);
    for (int i = 0; i < 4; i++)
        CHECK(apart(got[i], mlc_grad(p[i / 2 * 4 + 2 + i % 2])) < 1e-12);
}

/* ---- several adapters ------------------------------------------------------------------------ */

TEST(lora, several_by_name_are_switched_and_added)
{
    static const char *const both[2] = {"one", "two"};
    static const char *const last[1] = {"2"}, *const none[1] = {"three"};
    mlc_ctx      *ctx = ctx_of(MLC_F64, 0);
    mlc_module   *net = layered(ctx);
    mlc_tensor   *x = test_rand(ctx, MLC_F64, mlc_dims2(5, 12), 1, -1, 1), *base = eval(net, x);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    d.name = "one";
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 5);
    mlc_tensor *one = eval(net, x);
    d.name = "two";
    d.targets = last;
    d.n_targets = 1;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    CHECK(same_bits(eval(net, x), base));                    /* two alone is active, B is 0 */
    CHECK_EQ(mlc_module_numel(net, true), 2 * (10 + 6));
    fill(net, 9);
    CHECK_EQ(mlc_lora_switch(net, both, 1), MLC_OK);
    CHECK_EQ(mlc_module_numel(net, true), 2 * (12 + 10 + 10 + 6));
    mlc_tensor *now = eval(net, x);
    CHECK(apart(now, one) > 1e-3);
    CHECK_EQ(mlc_lora_switch(net, both, 2), MLC_OK);
    mlc_tensor *h = eval(mlc_module_child(net, 1), eval(mlc_module_child(net, 0), x));
    mlc_no_grad_begin(ctx);
    mlc_tensor *want = by_hand(now, h, mlc_module_param(net, "2.lora_two.A"),
                               mlc_module_param(net, "2.lora_two.B"), 1.0);
    mlc_no_grad_end(ctx);
    CHECK(apart(eval(net, x), want) < 1e-14);
    CHECK_EQ(mlc_lora_switch(net, none, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "lora_switch: there is no adapter 'three'");
    CHECK(apart(eval(net, x), want) < 1e-14);
    CHECK_EQ(mlc_lora_switch(net, NULL, 0), MLC_OK);
    CHECK(same_bits(eval(net, x), base));
    CHECK_EQ(mlc_module_numel(net, true), 0);
    CHECK_EQ(mlc_lora_switch(net, both, 2), MLC_OK);
    CHECK_EQ(mlc_lora_remove(net, "two"), MLC_OK);
    CHECK(same_bits(eval(net, x), now));
    CHECK_EQ(mlc_lora_remove(net, NULL), MLC_OK);
    CHECK(same_bits(eval(net, x), base));
    CHECK(mlc_module_child(mlc_module_child(net, 0), 0) == NULL);
    CHECK_EQ(mlc_lora_remove(net, "one"), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no adapter 'one'");
}

/* ---- attention ------------------------------------------------------------------------------- */

static mlc_module *attends(mlc_ctx *ctx, bool apart_weights)
{
    mlc_nn_multihead_attention_desc d = mlc_nn_multihead_attention_desc_make(8, 4);
    d.kv_heads = 2;
    if (apart_weights) d.key_size = 6;
    return mlc_nn_multihead_attention_ex(ctx, &d);
}

/* Adapters of q, k, v, of some of them, and of all three: the module whose weight is the sum says
 * what they add. */
TEST(lora, parts_of_attention_are_those_of_a_weight_that_is_the_sum)
{
    static const char *const sets[5][3] = {{"q_proj", "v_proj"}, {"k_proj"}, {"in_proj"},
                                           {"q_proj", "k_proj", "v_proj"}, {"v_proj", "out_proj"}};
    static const int n[5] = {2, 1, 1, 3, 2};
    for (int i = 0; i < 20; i++) {
        const bool    three = i / 5 % 2;
        mlc_ctx      *ctx = ctx_of(MLC_F64, 0);
        mlc_module   *net = attends(ctx, three);
        mlc_lora_desc d = mlc_lora_desc_make(2, 3.0);
        mlc_tensor   *in[3], *y = NULL, *merged = NULL;
        if (three && i % 5 == 2) continue;           /* no weight of all three */
        d.dora = i >= 10;
        d.targets = sets[i % 5];
        d.n_targets = n[i % 5];
        if (!CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK)) printf("  %s\n", mlc_error(ctx));
        fill(net, 40);
        in[0] = test_rand(ctx, MLC_F64, mlc_dims3(2, 5, 8), 1, -1, 1);
        in[1] = three ? test_rand(ctx, MLC_F64, mlc_dims3(2, 5, 6), 2, -1, 1) : in[0];
        in[2] = three ? in[0] : test_rand(ctx, MLC_F64, mlc_dims3(2, 5, 8), 3, -1, 1);
        CHECK_EQ(mlc_module_forward(net, in, 3, &y, 1), MLC_OK);
        if (!d.dora)                                 /* the tape has the weight; of DoRA x w^T */
            CHECK_EQ(mlc_lora_merge(net, NULL), MLC_ERR_STATE);
        mlc_error_clear(ctx);
        mlc_module *clone = mlc_module_clone(net);
        CHECK_EQ(mlc_lora_merge(clone, NULL), MLC_OK);
        CHECK_EQ(mlc_module_forward(clone, in, 3, &merged, 1), MLC_OK);
        CHECK(apart(y, merged) < 1e-13);
        CHECK_EQ(mlc_lora_switch(clone, NULL, 0), MLC_ERR_STATE);
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
        for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); )
            if (it.trainable)
                CHECK(apart(mlc_grad(it.tensor), mlc_mul_scalar(mlc_grad(it.tensor), 0)) > 1e-6);
    }
}

/* ---- DoRA ------------------------------------------------------------------------------------ */

/* m (x w^T + c) / n + bias, n constant: the norms of rows of w + scale B A. */
static mlc_tensor *dora_by_hand(mlc_module *m, const char *name, mlc_tensor *x, double scale)
{
    char        text[96];
    mlc_tensor *p[3], *w = mlc_module_param(m, "weight");
    static const char *const of[3] = {"A", "B", "magnitude"};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "lora_%s.%s", name, of[i]);
        p[i] = mlc_module_param(m, text);
    }
    mlc_no_grad_begin(mlc_module_ctx(m));
    mlc_tensor *n = mlc_add(w, mlc_mul_scalar(mlc_matmul(p[1], p[0]), scale));
    n = mlc_sqrt(mlc_sum(mlc_mul(n, n), mlc_dims1(1), false));
    mlc_no_grad_end(mlc_module_ctx(m));
    mlc_tensor *y = by_hand(mlc_linear(x, w, NULL), x, p[0], p[1], scale);
    return mlc_add(mlc_mul(y, mlc_div(p[2], n)), mlc_module_param(m, "bias"));
}

static mlc_tensor *square_sum(mlc_tensor *y)
{
    return mlc_sum(mlc_mul(y, y), mlc_dims0(), false);
}

/* The function of the start to the bit, values and gradients as one would write them. */
TEST(lora, dora_scales_rows_to_magnitudes_that_are_trained)
{
    mlc_ctx      *ctx = ctx_of(MLC_F64, 0);
    mlc_module   *net = mlc_nn_linear(ctx, 7, 5), *both = attends(ctx, false);
    mlc_lora_desc d = mlc_lora_desc_make(2, 3.0);
    mlc_lora_row  row[4];
    mlc_lora_report report = {row, 4, 0, 0, 0, 0};
    mlc_tensor   *x = test_rand(ctx, MLC_F64, mlc_dims3(2, 3, 7), 1, -1, 1), *got[4];
    mlc_tensor   *z = test_rand(ctx, MLC_F64, mlc_dims3(2, 5, 8), 1, -1, 1), *before = eval(net, x);
    static const char *const names[3] = {"lora_default.A", "lora_default.B",
                                         "lora_default.magnitude"};
    d.dora = true;
    CHECK_EQ(mlc_lora(net, &d, &report), MLC_OK);
    CHECK_EQ(report.numbers, 2 * (7 + 5) + 5);
    CHECK_EQ(mlc_module_numel(net, true), report.numbers);
    CHECK(same_bits(eval(net, x), before));
    before = eval(both, z);
    CHECK_EQ(mlc_lora(both, &d, NULL), MLC_OK);
    CHECK(same_bits(eval(both, z), before));
    fill(net, 3);
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_backward(square_sum(y)), MLC_OK);
    for (int i = 0; i < 3; i++) got[i] = mlc_copy(mlc_grad(mlc_module_param(net, names[i])));
    got[3] = mlc_copy(mlc_grad(x));
    for (int i = 0; i < 3; i++) mlc_zero_grad(mlc_module_param(net, names[i]));
    mlc_zero_grad(x);
    mlc_tensor *want = dora_by_hand(net, "default", x, 1.5);
    CHECK(apart(y, want) < 1e-14);
    CHECK_EQ(mlc_backward(square_sum(want)), MLC_OK);
    for (int i = 0; i < 3; i++)
        CHECK(apart(got[i], mlc_grad(mlc_module_param(net, names[i]))) < 1e-13);
    CHECK(apart(got[3], mlc_grad(x)) < 1e-13);
    CHECK_OK(ctx);
}

static mlc_tensor *net_scalar(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)n_in;
    return square_sum(mlc_forward((mlc_module *)user, in[0]));
}

/* Several at once, each by what it makes of w; differences; merged; without bias and with zero
 * rows. */
TEST(lora, dora_adapters_are_added_and_merged)
{
    static const char *const name[2] = {"one", "two"};
    mlc_ctx           *ctx = ctx_of(MLC_F64, 0);
    mlc_nn_linear_desc l = mlc_nn_linear_desc_make(7, 5);
    mlc_lora_desc      d = mlc_lora_desc_make(2, 2.0);
    mlc_tensor        *x = test_rand(ctx, MLC_F64, mlc_dims2(3, 7), 1, -1, 1), *in[2];
    mlc_gradcheck_report r;
    d.dora = true;
    l.no_bias = true;
    mlc_module *net = mlc_nn_linear_ex(ctx, &l);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    mlc_no_grad_begin(ctx);
    mlc_fill_(mlc_slice(mlc_module_param(net, "weight"), 0, 2, 3, 1), 0);
    mlc_no_grad_end(ctx);
    mlc_tensor *base = eval(net, x), *alone[2];
    for (int i = 0; i < 2; i++) {
        d.name = name[i];
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        CHECK(same_bits(eval(net, x), base));        /* a row of zeros, too */
    }
    fill(net, 5);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_lora_switch(net, name + i, 1), MLC_OK);
        alone[i] = eval(net, x);
    }
    CHECK_EQ(mlc_lora_switch(net, name, 2), MLC_OK);
    mlc_tensor *y = eval(net, x);
    CHECK(apart(mlc_add(y, base), mlc_add(alone[0], alone[1])) < 1e-13);
    in[0] = x;
    in[1] = mlc_module_param(net, "lora_two.magnitude");
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_gradcheck(net_scalar, net, in, 2, NULL, &r), MLC_OK);
    CHECK(r.ok);
    mlc_set_requires_grad(x, false);
    mlc_tensor *w = mlc_copy(mlc_module_param(net, "weight"));
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    CHECK(apart(eval(net, x), y) < 1e-13);
    CHECK_EQ(mlc_lora_unmerge(net), MLC_OK);
    CHECK(same_bits(mlc_module_param(net, "weight"), w));
    mlc_module *clone = mlc_module_clone(net);
    fill(net, 50);
    CHECK(same_bits(eval(clone, x), y));
    CHECK_OK(ctx);
}

TEST(lora, dora_is_over_floats)
{
    ONLY_ON_HOST();
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_module       *net = mlp(ctx, 64, 32, 6);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    const int64_t numbers = mlc_module_numel(net, false);
    d.dora = true;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "the weight of '0' is of integers, over which there is "
                "no DoRA");
    CHECK_EQ(mlc_module_numel(net, false), numbers);
}

/* ---- merging --------------------------------------------------------------------------------- */

TEST(lora, merges_and_unmerges_to_the_same_bits)
{
    mlc_ctx       *ctx = ctx_of(MLC_F32, 0);
    mlc_module    *net = layered(ctx);
    mlc_lora_desc  d = mlc_lora_desc_make(2, 8.0);
    mlc_lora_row   row[2];
    mlc_lora_report report = {row, 2, 0, 0, 0, 0};
    mlc_tensor    *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 3);
    mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight")), *y = eval(net, x);
    CHECK_EQ(mlc_lora_unmerge(net), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "nothing is merged");
    CHECK_EQ(mlc_lora_merge(net, &report), MLC_OK);
    CHECK_EQ(report.n, 2);
    CHECK_EQ(report.requantized, 0);
    CHECK_STR(row[1].name, "2");
    CHECK(!same_bits(mlc_module_param(net, "0.weight"), w));
    CHECK(apart(eval(net, x), y) < 1e-5);
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "adapters are merged");
    mlc_module *clone = mlc_module_clone(net);
    CHECK_EQ(mlc_lora_unmerge(clone), MLC_OK);
    CHECK(same_bits(mlc_module_param(clone, "0.weight"), w));
    CHECK_EQ(mlc_lora_unmerge(net), MLC_OK);
    CHECK(same_bits(mlc_module_param(net, "0.weight"), w));
    CHECK(same_bits(eval(net, x), y));
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    mlc_tensor *merged = eval(net, x);
    CHECK_EQ(mlc_lora_remove(net, "default"), MLC_OK);       /* for good */
    CHECK(same_bits(eval(net, x), merged));
    CHECK(!same_bits(mlc_module_param(net, "0.weight"), w));
    CHECK_OK(ctx);
}

TEST(lora, refuses_to_merge_a_tied_or_masked_weight)
{
    static const char *const tied[2] = {"0", "1"};
    mlc_ctx       *ctx = ctx_of(MLC_F32, 0);
    mlc_module    *net = mlc_nn_sequential(ctx), *other = mlc_nn_linear(ctx, 6, 6);
    mlc_lora_desc  d = mlc_lora_desc_make(2, 2.0);
    mlc_prune_desc prune = mlc_prune_desc_make(0.5);
    mlc_module_add(net, mlc_nn_linear(ctx, 6, 6));
    mlc_module_add(net, other);
    CHECK_EQ(mlc_module_tie(other, "weight", mlc_module_param(net, "0.weight")), MLC_OK);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_ERR_ARG);          /* not of tied weights, unless named */
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no linear layer");
    d.targets = tied;
    d.n_targets = 2;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 2);
    mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight"));
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "is shared (mlc_module_tie)");
    CHECK(same_bits(mlc_module_param(net, "0.weight"), w));

    mlc_module *masked = layered(ctx);
    d = mlc_lora_desc_make(2, 2.0);
    CHECK_EQ(mlc_prune(masked, &prune), MLC_OK);
    CHECK_EQ(mlc_lora(masked, &d, NULL), MLC_OK);
    CHECK_EQ(mlc_lora_merge(masked, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "has a mask");
}

/* ---- over integers --------------------------------------------------------------------------- */

/* A layer of floats with the values that integers stand for. */
static mlc_module *float_twin(mlc_module *quant, int32_t bits)
{
    mlc_ctx      *ctx = mlc_module_ctx(quant);
    mlc_module   *net = mlp(ctx, 64, 32, 6);
    for (int i = 0; i < 2; i++) {
        mlc_quantized q;
        memset(&q, 0, sizeof q);
        q.q = mlc_module_param(quant, i ? "2.weight" : "0.weight");
        q.scale = mlc_module_param(quant, i ? "2.weight_scale" : "0.weight_scale");
        q.bits = bits;
        q.group = 32;
        q.ndim = 2;
        q.shape[0] = i ? 6 : 32;
        q.shape[1] = i ? 32 : 64;
        mlc_no_grad_begin(ctx);
        mlc_copy_into(mlc_module_param(net, i ? "2.weight" : "0.weight"),
                      mlc_dequantize_tensor(&q));
        mlc_copy_into(mlc_module_param(net, i ? "2.bias" : "0.bias"),
                      mlc_module_param(quant, i ? "2.bias" : "0.bias"));
        mlc_no_grad_end(ctx);
    }
    return net;
}

TEST(lora, gradients_go_through_integers_as_through_their_values)
{
    ONLY_ON_HOST();
    for (int bits = 4; bits <= 8; bits += 4) {
        mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
        mlc_module       *net = mlp(ctx, 64, 32, 6);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        mlc_lora_desc     d = mlc_lora_desc_make(3, 4.0);
        q.bits = bits;
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        mlc_module *twin = float_twin(net, bits);
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(twin, &d, NULL), MLC_OK);
        fill(net, 60);
        fill(twin, 60);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(70, 64), 1, -1, 1);
        mlc_set_requires_grad(x, true);
        mlc_tensor *got[5], *y = mlc_forward(net, x);
        static const char *const names[4] = {"0.lora_default.A", "0.lora_default.B",
                                             "2.lora_default.A", "2.lora_default.B"};
        if (!CHECK_EQ(mlc_backward(mlc_mean(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK))
            printf("  %s\n", mlc_error(ctx));
        for (int i = 0; i < 4; i++) got[i] = mlc_grad(mlc_module_param(net, names[i]));
        got[4] = mlc_copy(mlc_grad(x));
        mlc_tensor *x2 = test_rand(ctx, MLC_F32, mlc_dims2(70, 64), 1, -1, 1);
        mlc_set_requires_grad(x2, true);
        mlc_tensor *want = mlc_forward(twin, x2);
        CHECK(apart(y, want) < 1e-5);
        CHECK_EQ(mlc_backward(mlc_mean(mlc_mul(want, want), mlc_dims0(), false)), MLC_OK);
        for (int i = 0; i < 4; i++)
            CHECK(apart(got[i], mlc_grad(mlc_module_param(twin, names[i]))) < 2e-6);
        CHECK(apart(got[4], mlc_grad(x2)) < 2e-6);
        CHECK_OK(ctx);
    }
}

/* The same bits by any number of threads. */
TEST(lora, over_integers_trains_attention_and_layers_without_adapters)
{
    static const char *const targets[2] = {"q_proj", "v_proj"};
    mlc_tensor *kept[2] = {NULL, NULL};
    ONLY_ON_HOST();
    for (int threads = 1; threads <= 3; threads += 2) {
        mlc_ctx          *ctx = ctx_of(MLC_F32, threads);
        mlc_nn_gpt_desc   g = mlc_nn_gpt_desc_llama(40, 16, 2, 32, 4);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        mlc_lora_desc     d = mlc_lora_desc_make(2, 4.0);
        mlc_module       *net = mlc_nn_gpt(ctx, &g);
        double            first = 0, last = 0;
        q.bits = 4;
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        d.targets = targets;
        d.n_targets = 2;
        d.dropout = 0.1;
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        mlc_optim  *opt = mlc_adamw(net, 0.02);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 12), 40, 1);
        for (int step = 0; step < 12; step++) {
            mlc_scope_begin(ctx);
            mlc_tensor *y = mlc_forward(net, mlc_slice(x, 1, 0, 11, 1));
            mlc_tensor *loss = mlc_cross_entropy(y, mlc_slice(x, 1, 1, 12, 1));
            last = mlc_item(loss);
            if (step == 0) first = last;
            CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
            if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) { printf("  %s\n", mlc_error(ctx)); break; }
        }
        CHECK(last < first);
        kept[threads / 2] = mlc_module_param(net, "layers.0.self_attn.lora_default:2.B");
    }
    CHECK(same_bits(kept[0], kept[1]));
}

TEST(lora, a_merge_over_integers_says_that_it_requantizes)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 3; i++) {
        mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
        mlc_module       *net = mlp(ctx, 64, 32, 6);
        mlc_quantize_desc q = mlc_quantize_desc_make(i < 2 ? MLC_QUANT_WEIGHTS
                                                           : MLC_QUANT_DYNAMIC);
        mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
        mlc_lora_row      row[2];
        mlc_lora_report   report = {row, 2, 0, 0, 0, 0};
        q.bits = i ? 8 : 4;
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        fill(net, 8);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 1, -1, 1), *y = eval(net, x);
        mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight"));
        mlc_tensor *s = mlc_copy(mlc_module_param(net, "0.weight_scale"));
        CHECK_EQ(mlc_lora_merge(net, &report), MLC_OK);
        CHECK_EQ(report.requantized, 2);
        /* rounding to steps of the row's largest, under 0.3, / 127 or / 7: a step / sqrt(12) */
        CHECK(row[0].requantized && row[0].error > 0 && row[0].error < (i ? 0.001 : 0.015));
        mlc_tensor *merged = eval(net, x);
        const double far = apart(merged, y);
        /* sums of 64 products with x within 1: sqrt(64) times the rms of the weights' errors */
        CHECK(far > 0 && far < 8 * (row[0].error + row[1].error));
        CHECK_EQ(mlc_lora_unmerge(net), MLC_OK);
        CHECK(same_bits(mlc_module_param(net, "0.weight"), w));
        CHECK(same_bits(mlc_module_param(net, "0.weight_scale"), s));
        CHECK(same_bits(eval(net, x), y));
        CHECK_OK(ctx);
    }
}

TEST(lora, dynamic_integers_run_with_adapters_and_have_no_gradient)
{
    ONLY_ON_HOST();
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_module       *net = mlp(ctx, 64, 32, 6);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 1, -1, 1), *base = eval(net, x);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    CHECK(same_bits(eval(net, x), base));
    fill(net, 8);
    CHECK(apart(eval(net, x), base) > 1e-3);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "quantized layers have none");
}

/* ---- a run that goes on ---------------------------------------------------------------------- */

static mlc_module *adapted(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(30, 16, 2, 16, 2);
    mlc_lora_desc   d = mlc_lora_desc_make(2, 4.0);
    mlc_module     *net = mlc_nn_gpt(ctx, &g);
    d.dropout = 0.2;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    return net;
}

static double trained(mlc_module *net, mlc_optim *opt, int from, int to)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    double   last = 0;
    for (int step = from; step < to; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 9), 30, step);
        mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, mlc_slice(x, 1, 0, 8, 1)),
                                             mlc_slice(x, 1, 1, 9, 1));
        last = mlc_item(loss);
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    return last;
}

TEST(lora, a_run_that_goes_on_has_the_same_bits)
{
    box         b = box_open_fast("run.safetensors");
    mlc_ctx    *one = ctx_of(MLC_F32, 0), *two = ctx_of(MLC_F32, 0);
    mlc_module *net = adapted(one), *again = adapted(two);
    mlc_optim  *opt = mlc_adamw(net, 0.01), *next = mlc_adamw(again, 0.01);
    mlc_run     run, resumed;
    memset(&run, 0, sizeof run);
    run.net = net;
    run.optim = opt;
    resumed = run;
    resumed.net = again;
    resumed.optim = next;
    trained(net, opt, 0, 4);
    CHECK_EQ(mlc_run_save(one, b.path, &run), MLC_OK);
    const double straight = trained(net, opt, 4, 8);
    if (!CHECK_EQ(mlc_run_load(two, b.path, &resumed), MLC_OK)) printf("  %s\n", mlc_error(two));
    CHECK(trained(again, next, 4, 8) == straight);
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); )
        CHECK(same_bits(it.tensor, mlc_module_param(again, it.name)));
    box_close(&b);
}

/* ---- copies ---------------------------------------------------------------------------------- */

TEST(lora, clones_and_shares_have_the_adapters)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0), *other = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 4);
    mlc_tensor *y = eval(net, x);
    mlc_module *clone = mlc_module_clone(net), *share = mlc_module_share(other, net);
    CHECK(same_bits(eval(clone, x), y));
    CHECK(same_bits(eval(share, test_rand(other, MLC_F32, mlc_dims2(3, 12), 1, -1, 1)), y));
    fill(net, 44);                               /* the share sees it, the clone does not */
    CHECK(same_bits(eval(clone, x), y));
    CHECK(same_bits(eval(share, test_rand(other, MLC_F32, mlc_dims2(3, 12), 1, -1, 1)),
                    eval(net, x)));
    CHECK_EQ(mlc_lora_merge(share, NULL), MLC_ERR_STATE);
    CHECK_ERROR(other, MLC_ERR_STATE, "mlc_module_share");
    mlc_module_free(share);
    CHECK_EQ(mlc_lora_remove(clone, NULL), MLC_OK);
    CHECK(!same_bits(eval(clone, x), y));
}

/* Adapters of a share are its own: the network's weights serve several. */
TEST(lora, a_share_gets_adapters_of_its_own)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0), *other = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx), *share = mlc_module_share(other, net);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    CHECK_EQ(mlc_lora(share, &d, NULL), MLC_OK);
    mlc_optim  *opt = mlc_adamw(share, 0.01);
    mlc_tensor *x = test_rand(other, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mean(mlc_forward(share, x), mlc_dims0(), false)), MLC_OK);
    CHECK_OK(other);
    CHECK(apart(mlc_module_param(share, "2.lora_default.B"),
                mlc_zeros(other, MLC_F32, mlc_dims2(6, 2))) > 1e-4);
}

/* ---- beside other parts of the library ------------------------------------------------------- */

/* kind: 0 floats, 1 integers, 2 floats and DoRA. */
static mlc_module *small_gpt(mlc_ctx *ctx, int kind)
{
    static const char *const keep[1] = {"embed"};      /* no plan has an embedding of integers */
    mlc_nn_gpt_desc   g = mlc_nn_gpt_desc_llama(30, 16, 2, 32, 4);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 4.0);
    g.layer.kv_heads = 2;
    g.layer.hidden = 32;
    mlc_module *net = mlc_nn_gpt(ctx, &g);
    q.bits = 4;
    q.keep = keep;
    q.n_keep = 1;
    if (kind == 1) CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    d.dora = kind == 2;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 70);
    return net;
}

/* Plans, caches of keys and values. */
TEST(lora, plans_and_caches_know_adapters)
{
    ONLY_ON_HOST();
    for (int kind = 0; kind < 3; kind++) {
        mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
        mlc_module       *net = small_gpt(ctx, kind);
        mlc_cache_desc    room = mlc_cache_desc_make(2, 16);
        mlc_tensor       *x = test_tokens(ctx, mlc_dims2(2, 8), 30, 1), *y = eval(net, x);
        mlc_cache        *cache = mlc_cache_create(net, &room);
        mlc_tensor       *part = mlc_forward_cached(net, mlc_slice(x, 1, 0, 5, 1), cache);
        CHECK(apart(part, mlc_slice(y, 1, 0, 5, 1)) < 1e-4);
        part = mlc_forward_cached(net, mlc_slice(x, 1, 5, 8, 1), cache);
        CHECK(apart(part, mlc_slice(y, 1, 5, 8, 1)) < 1e-4);
        mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
        if (!CHECK(p != NULL)) { printf("  %s\n", mlc_error(ctx)); continue; }
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        CHECK(apart(mlc_plan_output(p, 0), y) < 1e-5);
        mlc_plan_free(p);
        CHECK_OK(ctx);
    }
}

/* Bytes by class after two steps of AdamW, really and as mlc_estimate_memory says; with adapters,
 * or of all parameters. */
static void step_bytes(bool adapters, mlc_memory *real, mlc_memory *said)
{
    static const char *const targets[2] = {"q_proj", "v_proj"};
    mlc_ctx           *ctx = ctx_of(MLC_F32, 0);
    mlc_nn_gpt_desc    g = mlc_nn_gpt_desc_make(61, 16, 2, 64, 4);
    mlc_module        *net = mlc_nn_gpt(ctx, &g);
    mlc_estimate_desc  how = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    mlc_lora_desc      d = mlc_lora_desc_make(4, 4.0);
    d.targets = targets;
    d.n_targets = 2;
    if (adapters) CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    how.input = MLC_I64;
    if (!CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(2, 8), &how, said), MLC_OK))
        printf("  %s\n", mlc_error(ctx));
    mlc_optim *opt = mlc_adamw(net, 0.01);
    for (int i = 0; i < 2; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 8), 61, i);
        CHECK_EQ(mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, x), x)), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_EQ(mlc_memory_info(ctx, real), MLC_OK);
}

/* Gradients and optimizer state take at most 5 % of the bytes of full training, and estimates know
 * it. */
TEST(lora, gradients_and_optimizer_state_are_of_adapters_alone)
{
    static const mlc_mem class_of[3] = {MLC_MEM_PARAM, MLC_MEM_GRAD, MLC_MEM_OPTIM};
    mlc_memory real[2], said[2];
    for (int i = 0; i < 2; i++) {
        step_bytes(i == 1, &real[i], &said[i]);
        for (int k = 0; k < 3; k++) {
            const int64_t was = real[i].now[class_of[k]], is = said[i].now[class_of[k]];
            if (!CHECK(was > 0 && 100 * llabs(is - was) <= was))
                printf("  class %d: %lld, estimate %lld\n", (int)class_of[k], (long long)was,
                       (long long)is);
        }
    }
    CHECK(20 * real[1].now[MLC_MEM_GRAD] <= real[0].now[MLC_MEM_GRAD]);
    CHECK(20 * real[1].now[MLC_MEM_OPTIM] <= real[0].now[MLC_MEM_OPTIM]);
}

/* Gradients with layers recomputed, and under autocast, beside plain ones. */
TEST(lora, recomputation_and_autocast_train_adapters)
{
    ONLY_ON_HOST();
    for (int kind = 0; kind < 3; kind++) {
        mlc_ctx    *ctx = ctx_of(MLC_F32, 0);
        mlc_module *net[3];
        for (int i = 0; i < 3; i++)
            net[i] = i ? mlc_module_clone(net[0]) : small_gpt(ctx, kind);
        CHECK_EQ(mlc_module_recompute(mlc_module_find(net[1], "layers"), 1), MLC_OK);
        for (int i = 0; i < 3; i++) {
            if (i == 2) CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
            mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 9), 30, 1);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net[i], mlc_slice(x, 1, 0, 8, 1)),
                                                 mlc_slice(x, 1, 1, 9, 1));
            if (i == 2) mlc_autocast_end(ctx);
            if (!CHECK_EQ(mlc_backward(loss), MLC_OK))
                printf("  %d %d: %s\n", kind, i, mlc_error(ctx));
        }
        double most = 0, far = 0;
        for (mlc_param_iter it = mlc_param_iter_make(net[0]); mlc_param_next(&it); ) {
            if (!it.trainable) continue;
            mlc_tensor *g = mlc_grad(it.tensor);
            CHECK(same_bits(g, mlc_grad(mlc_module_param(net[1], it.name))));
            most = fmax(most, mlc_item(mlc_max(mlc_abs(g), mlc_dims0(), false)));
            far = fmax(far, apart(g, mlc_grad(mlc_module_param(net[2], it.name))));
        }
        /* some ten roundings of 2^-9 in a row through the layers */
        if (!CHECK(most > 0 && far < 0.02 * most)) printf("  %d: %g of %g\n", kind, far, most);
    }
}

/* A network of bf16: adapters are f32 until mlc_module_to makes them 16-bit, too. */
TEST(lora, networks_of_16_bits_have_adapters)
{
    ONLY_ON_HOST();
    for (int dora = 0; dora < 2; dora++) {
        mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
        mlc_module   *net = layered(ctx), *wide = mlc_module_clone(net);
        mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
        d.dora = dora != 0;
        CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(wide, &d, NULL), MLC_OK);
        fill(net, 3);
        fill(wide, 3);
        CHECK_EQ(mlc_module_param(net, "0.lora_default.A")->dtype, MLC_F32);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1), *y = eval(wide, x);
        mlc_tensor *low = mlc_cast(x, MLC_BF16);
        CHECK(apart(eval(net, low), y) < 0.05);
        mlc_optim *opt = mlc_adamw(net, 0.01);
        mlc_tensor *loss = mlc_mean(mlc_cast(mlc_forward(net, low), MLC_F32), mlc_dims0(), false);
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight"));
        mlc_tensor *now = eval(net, low);
        mlc_module *clone = mlc_module_clone(net);
        CHECK_EQ(mlc_lora_merge(clone, NULL), MLC_OK);
        CHECK(apart(eval(clone, low), now) < 0.05);
        CHECK_EQ(mlc_lora_unmerge(clone), MLC_OK);
        CHECK(same_bits(mlc_module_param(clone, "0.weight"), w));
        CHECK_OK(ctx);
    }
}

/* ---- what others leave alone ----------------------------------------------------------------- */

TEST(lora, others_leave_layers_with_adapters_as_they_are)
{
    ONLY_ON_HOST();
    static const char *const last[1] = {"2"};
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_module       *net = mlp(ctx, 64, 32, 6);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_sparsify_desc s = mlc_sparsify_desc_make();
    mlc_quant_report  report = {NULL, 0, 0, 0, 0, 0};
    d.targets = last;
    d.n_targets = 1;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 4);
    CHECK_EQ(mlc_quantize(net, &q, &report), MLC_OK);
    CHECK_EQ(report.n, 1);
    CHECK_EQ(mlc_module_param(net, "2.weight")->dtype, MLC_F32);
    s.form = MLC_SPARSE_CSR;
    CHECK_EQ(mlc_sparsify(net, &s, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_lora_remove(net, NULL), MLC_OK);
    CHECK_EQ(mlc_sparsify(net, &s, NULL), MLC_OK);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "lora: '2' has a sparse copy");
}

/* ---- what changes between a merge and its end ------------------------------------------------ */

TEST(lora, unmerges_in_the_dtypes_that_weights_have_then)
{
    ONLY_ON_HOST();
    for (int bits = 4; bits <= 32; bits *= 2) {              /* 16: f32, then bf16; 32: then f64 */
        mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
        mlc_module       *net = mlp(ctx, 64, 32, 6);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
        const mlc_dtype   to = bits == 16 ? MLC_BF16 : MLC_F64;
        const bool        quant = bits < 16;
        q.bits = bits;
        mlc_module_build(net);
        if (quant) CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        fill(net, 8);
        mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight")), *s = NULL;
        if (quant) s = mlc_copy(mlc_module_param(net, "0.weight_scale"));
        CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
        CHECK_EQ(mlc_module_to(net, to), MLC_OK);
        CHECK_EQ(mlc_lora_unmerge(net), MLC_OK);
        mlc_tensor *now = mlc_module_param(net, "0.weight");
        CHECK_EQ(now->dtype, quant ? w->dtype : to);
        CHECK(same_bits(now, quant ? w : mlc_cast(w, to)));
        if (!quant) continue;
        mlc_tensor *scale = mlc_module_param(net, "0.weight_scale");
        CHECK(same_bits(scale, mlc_cast(s, scale->dtype)));
    }
}

TEST(lora, leaves_weights_of_another_network_as_they_are)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0), *other = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 8);
    mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight"));
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    mlc_tensor *merged = mlc_copy(mlc_module_param(net, "0.weight"));
    mlc_module *near = mlc_module_share(ctx, net), *far = mlc_module_share(other, net);
    CHECK_EQ(mlc_lora_unmerge(near), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "is of another network (mlc_module_share)");
    CHECK_EQ(mlc_lora_unmerge(far), MLC_ERR_STATE);
    CHECK_ERROR(other, MLC_ERR_STATE, "is of another network (mlc_module_share)");
    CHECK(same_bits(mlc_module_param(net, "0.weight"), merged));
    mlc_module_free(near);
    mlc_module_free(far);
    mlc_module_free(mlc_module_child(mlc_module_child(net, 0), 0));
    CHECK_EQ(mlc_lora_unmerge(net), MLC_OK);                 /* of layer "2" */
    CHECK(!same_bits(mlc_module_param(net, "0.weight"), w));
    CHECK_OK(ctx);
}

/* Scales of groups are bf16, and f32 after mlc_module_to: the same integers and values. */
TEST(lora, a_merge_takes_scales_of_either_dtype)
{
    ONLY_ON_HOST();
    for (int bits = 4; bits <= 8; bits += 4) {
        mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
        mlc_module       *net = mlp(ctx, 64, 32, 6);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
        q.bits = bits;
        q.group = 32;
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        fill(net, 8);
        mlc_module *twin = mlc_module_clone(net);
        CHECK_EQ(mlc_module_param(net, "0.weight_scale")->dtype, MLC_BF16);
        CHECK_EQ(mlc_module_to(twin, MLC_BF16), MLC_OK);
        CHECK_EQ(mlc_module_to(twin, MLC_F32), MLC_OK);
        CHECK_EQ(mlc_module_param(twin, "0.weight_scale")->dtype, MLC_F32);
        fill(twin, 8);                           /* without what bf16 has rounded */
        CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
        CHECK_EQ(mlc_lora_merge(twin, NULL), MLC_OK);
        CHECK(same_bits(mlc_module_param(net, "0.weight"), mlc_module_param(twin, "0.weight")));
        CHECK(same_bits(mlc_cast(mlc_module_param(net, "0.weight_scale"), MLC_F32),
                        mlc_module_param(twin, "0.weight_scale")));
        CHECK_OK(ctx);
    }
}

TEST(lora, autocast_takes_integers_with_adapters)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 2; i++) {
        mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
        mlc_module       *net = mlp(ctx, 64, 32, 6);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        mlc_lora_desc     d = mlc_lora_desc_make(3, 4.0);
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        fill(net, 60);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 64), 1, -1, 1), *y = eval(net, x);
        mlc_tensor *b = mlc_module_param(net, "2.lora_default.B"), *g[2];
        const double size = mlc_item(mlc_max(mlc_abs(y), mlc_dims0(), false));
        const double bit = i ? 1.0 / 2048 : 1.0 / 256;       /* a rounding, of 11 or 8 bits */
        for (int low = 0; low < 2; low++) {
            if (low) CHECK_EQ(mlc_autocast_begin(ctx, i ? MLC_F16 : MLC_BF16), MLC_OK);
            mlc_tensor *z = mlc_forward(net, x);
            /* x and what is between two layers are rounded; without autocast nothing is */
            if (!CHECK(apart(z, y) <= (low ? 2 * bit * size : 0))) printf("  %s\n", mlc_error(ctx));
            CHECK_EQ(mlc_backward(mlc_mean(mlc_mul(z, z), mlc_dims0(), false)), MLC_OK);
            g[low] = mlc_copy(mlc_grad(b));
            mlc_zero_grad(b);
            if (low) CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        }
        const double most = mlc_item(mlc_max(mlc_abs(g[0]), mlc_dims0(), false));
        /* of z, its gradient, what B and A take: six roundings, each at most a bit */
        CHECK(most > 0 && apart(g[0], g[1]) < 6 * bit * most);
        CHECK_OK(ctx);
    }
}

TEST(lora, a_merge_inside_autocast_has_the_same_bits)
{
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 8);
    mlc_module *twin = mlc_module_clone(net);
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_lora_merge(twin, NULL), MLC_OK);
    CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK(same_bits(mlc_module_param(net, "0.weight"), mlc_module_param(twin, "0.weight")));
}

TEST(lora, weights_of_a_plan_are_neither_merged_nor_unmerged)
{
    ONLY_ON_HOST();
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 8);
    mlc_tensor *w = mlc_copy(mlc_module_param(net, "0.weight"));
    mlc_plan   *plan = mlc_plan_capture(net, &x, 1, NULL);
    CHECK(plan != NULL);
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "a plan has the weight of '0'");
    CHECK(same_bits(mlc_module_param(net, "0.weight"), w));
    mlc_plan_free(plan);
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    mlc_tensor *merged = mlc_copy(mlc_module_param(net, "0.weight"));
    plan = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_lora_unmerge(net), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "lora_unmerge: a plan has the weight of '0'");
    CHECK(same_bits(mlc_module_param(net, "0.weight"), merged));
    mlc_plan_free(plan);
    CHECK_EQ(mlc_lora_unmerge(net), MLC_OK);
    CHECK(same_bits(mlc_module_param(net, "0.weight"), w));
}

TEST(lora, attentions_with_one_weight_have_adapters_of_their_own)
{
    static const char *const targets[1] = {"in_proj"};
    mlc_ctx          *ctx = ctx_of(MLC_F64, 0);
    mlc_module       *a = attends(ctx, false), *b = attends(ctx, false), *c = attends(ctx, false);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 2.0);
    mlc_sparsify_desc s = mlc_sparsify_desc_make();
    mlc_tensor       *x = test_rand(ctx, MLC_F64, mlc_dims3(2, 5, 8), 1, -1, 1);
    mlc_tensor       *w = mlc_module_param(a, "in_proj_weight"), *in[3] = {x, x, x}, *y, *z;
    CHECK_EQ(mlc_module_tie(b, "in_proj_weight", w), MLC_OK);
    d.targets = targets;
    d.n_targets = 1;
    CHECK_EQ(mlc_lora(a, &d, NULL), MLC_OK);
    s.form = MLC_SPARSE_CSR;
    s.pattern = "in_proj_weight";
    if (mlc_ctx_on_host(ctx))          /* it would run a's products, too                         */
        CHECK_EQ(mlc_sparsify(b, &s, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_lora(b, &d, NULL), MLC_OK);
    fill(b, 8);
    mlc_no_grad_begin(ctx);
    CHECK_EQ(mlc_module_forward(b, in, 3, &y, 1), MLC_OK);
    CHECK_EQ(mlc_lora_remove(a, NULL), MLC_OK);
    CHECK_EQ(mlc_module_forward(b, in, 3, &z, 1), MLC_OK);
    CHECK(same_bits(y, z));
    CHECK_EQ(mlc_lora_switch(b, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_module_forward(b, in, 3, &z, 1), MLC_OK);
    CHECK(apart(y, z) > 1e-3);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_module_tie(b, "in_proj_weight", mlc_module_param(c, "in_proj_weight")),
             MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "module_tie: 'in_proj_weight' has adapters");
    CHECK_EQ(mlc_lora_remove(b, NULL), MLC_OK);
    if (test_on_host()) CHECK_EQ(mlc_sparsify(b, &s, NULL), MLC_OK);
}

TEST(lora, a_network_in_evaluation_gets_adapters_with_dropout)
{
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1);
    d.dropout = 0.5;
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 3);
    CHECK(same_bits(mlc_forward(net, x), mlc_forward(net, x)));
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK(apart(mlc_forward(net, x), mlc_forward(net, x)) > 1e-3);
}

TEST(lora, an_adapter_is_neither_cloned_alone_nor_freed)
{
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 12), 1, -1, 1);
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    mlc_module *adapter = mlc_module_child(mlc_module_child(net, 0), 0);
    CHECK(mlc_module_clone(adapter) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "module_clone: an adapter alone");
    mlc_module_free(adapter);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "make the network anew");
}

/* The bias of a layer of integers, which alone wants a gradient there. */
TEST(lora, a_bias_over_integers_is_trained)
{
    ONLY_ON_HOST();
    static const char *const last[1] = {"2"};
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_module       *net = mlp(ctx, 64, 32, 6);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     d = mlc_lora_desc_make(3, 4.0);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    mlc_module *twin = float_twin(net, 8);
    d.targets = last;
    d.n_targets = 1;
    mlc_tensor *g[2];
    for (int i = 0; i < 2; i++) {
        mlc_module *m = i ? twin : net;
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 64), 1, -1, 1);
        CHECK_EQ(mlc_lora(m, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_module_freeze(m, "0.bias", false), MLC_OK);
        mlc_tensor *y = mlc_forward(m, x);
        if (!CHECK_EQ(mlc_backward(mlc_mean(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK))
            printf("  %s\n", mlc_error(ctx));
        g[i] = mlc_grad(mlc_module_param(m, "0.bias"));
    }
    CHECK(apart(g[0], g[1]) < 1e-6);
    CHECK(apart(g[0], mlc_mul_scalar(g[0], 0)) > 1e-4);
}

/* Other layers of integers may come before adapters; where a gradient would go through them, the
 * forward says so. */
TEST(lora, convolutions_of_integers_are_before_adapters_only)
{
    ONLY_ON_HOST();
    static const char *const last[1] = {"3"};
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 4.0);
    mlc_nn_conv_desc  c = mlc_nn_conv_desc_make(2, 3, 4, 3);
    mlc_module       *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv(ctx, &c));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 256, 5));
    mlc_module_build(net);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    d.targets = last;
    d.n_targets = 1;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 10, 10), 1, -1, 1);
    mlc_tensor *b = mlc_module_param(net, "3.lora_default.B");
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mean(mlc_forward(net, x), mlc_dims0(), false)), MLC_OK);
    CHECK(apart(b, mlc_mul_scalar(b, 0)) > 1e-4);
    mlc_set_requires_grad(x, true);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "quantized layers have none");
}

/* mlc_quantize freezes all; a switch thaws adapters, and lets gradients through what is new. */
TEST(lora, the_other_layers_are_quantized_before_a_switch)
{
    ONLY_ON_HOST();
    static const char *const first[1] = {"0"}, *const name[1] = {"default"};
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_module       *net = mlp(ctx, 64, 32, 6);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     d = mlc_lora_desc_make(2, 4.0);
    d.targets = first;
    d.n_targets = 1;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    CHECK_EQ(mlc_module_numel(net, true), 0);
    CHECK_EQ(mlc_lora_switch(net, name, 1), MLC_OK);
    CHECK_EQ(mlc_module_numel(net, true), 2 * (64 + 32));
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 64), 1, -1, 1);
    mlc_tensor *b = mlc_module_param(net, "0.lora_default.B");
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mean(mlc_forward(net, x), mlc_dims0(), false)), MLC_OK);
    CHECK(apart(b, mlc_mul_scalar(b, 0)) > 1e-4);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void refused(mlc_module *net, mlc_lora_desc d, mlc_status status, const char *text)
{
    mlc_ctx      *ctx = mlc_module_ctx(net);
    const int64_t trainable = mlc_module_numel(net, true), all = mlc_module_numel(net, false);
    CHECK_EQ(mlc_lora(net, &d, NULL), status);
    CHECK_ERROR(ctx, status, text);
    CHECK_EQ(mlc_module_numel(net, true), trainable);
    CHECK_EQ(mlc_module_numel(net, false), all);
}

TEST(lora, errors_change_nothing)
{
    static const char *const no[1] = {"3"}, *const relu[1] = {"1"}, *const null[1] = {NULL};
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = layered(ctx);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0), e = d;
    CHECK_EQ(mlc_lora(net, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "lora: desc is NULL");
    e.rank = 7;                                  /* of [6,10] */
    refused(net, e, MLC_ERR_ARG, "rank 7 for '2' [6,10]; it must be from 1 to the smaller side, 6");
    e.rank = 0;
    refused(net, e, MLC_ERR_ARG, "rank 0 for '0'");
    e = d;
    e.name = "a.b";
    refused(net, e, MLC_ERR_ARG, "name 'a.b' must have");
    e.name = NULL;
    refused(net, e, MLC_ERR_ARG, "name 'NULL'");
    e = d;
    e.alpha = NO_NUMBER;
    refused(net, e, MLC_ERR_ARG, "alpha must be finite");
    e = d;
    e.dropout = 1.0;
    refused(net, e, MLC_ERR_ARG, "dropout in [0, 1)");
    e = d;
    e.n_targets = 1;
    e.targets = no;
    refused(net, e, MLC_ERR_ARG, "target '3' matches no layer");
    e.targets = relu;
    refused(net, e, MLC_ERR_ARG, "target '1' matches no layer");
    e.targets = null;
    refused(net, e, MLC_ERR_ARG, "target 0 is NULL");
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    refused(net, d, MLC_ERR_ARG, "'0' has an adapter 'default'");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    d.name = "more";
    mlc_forward(net, x);
    refused(net, d, MLC_ERR_STATE, "is an input of a recorded");
    CHECK_EQ(mlc_lora_remove(net, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "lora_remove: ");
    CHECK_EQ(mlc_lora(mlc_nn_relu(ctx), &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no linear layer");
    CHECK_EQ(mlc_lora_switch(net, NULL, 2), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_lora_merge(layered(ctx), NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no adapter is active");
    CHECK_EQ(mlc_lora(NULL, &d, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_lora_remove(NULL, NULL), MLC_ERR_ARG);
}

/* ---- PEFT's files ---------------------------------------------------------------------------- */

/* Adapters: those of each model, and DoRA of Llama. */
enum { ADAPTERS = 4 };
static const char *const peft_name[ADAPTERS] = {"gpt2", "llama", "bert", "dora"};

/* The place of adapter k's model in hf_name. */
static int hf_of(int k) { return k == 3 ? 1 : k; }

/* A model with the values of its golden. */
static mlc_module *hf_base(mlc_ctx *ctx, int k)
{
    mlc_module *net = hf_net(ctx, hf_of(k));
    if (!CHECK_EQ(hf_load(net, hf_of(k), ""), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    return net;
}

static mlc_lora_file hf_file(int k)
{
    mlc_lora_file f = mlc_lora_file_make();
    f.renames = hf_renames(hf_of(k), &f.n_renames);
    f.bare = k == 2;                             /* BertModel, without "bert." */
    return f;
}

/* Gradients take the place of factors, so that a save writes them under PEFT's keys. */
static void hf_check_grads(mlc_module *net, int k, const golden_file *want)
{
    box           b = box_open_fast("adapter_model.safetensors");
    mlc_lora_file f = hf_file(k);
    const mlc_named *list = NULL;
    int64_t       n = 0;
    mlc_ctx      *ctx = mlc_module_ctx(net);
    mlc_no_grad_begin(ctx);
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); )
        if (it.trainable) mlc_copy_into(it.tensor, mlc_copy(mlc_grad(it.tensor)));
    mlc_no_grad_end(ctx);
    if (!CHECK_EQ(mlc_lora_save(net, b.dir, &f), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    CHECK(n >= 18);
    for (int64_t i = 0; i < n; i++) {
        mlc_tensor  *g = golden_find(want, "%s:%s", peft_name[k], list[i].name);
        const double far = apart(list[i].tensor, g);
        const double size = g ? mlc_item(mlc_max(mlc_abs(g), mlc_dims0(), false)) : 0;
        if (!CHECK(far <= 1e-12 * (1 + size)))
            printf("  %s differs by %g of %g\n", list[i].name, far, size);
    }
    box_close(&b);
}

TEST(lora, files_of_peft_have_its_outputs_and_gradients)
{
    for (int k = 0; k < ADAPTERS; k++) {
        mlc_ctx      *ctx = ctx_of(MLC_F64, 0);
        golden_file   f = golden_open(ctx, "lora.safetensors");
        mlc_module   *net = hf_base(ctx, k);
        mlc_lora_file file = hf_file(k);
        char          folder[64];
        mlc_tensor   *y[2] = {NULL, NULL};
        snprintf(folder, sizeof folder, "tests/golden/lora_%s", peft_name[k]);
        if (!CHECK_EQ(mlc_lora_load(net, folder, &file), MLC_OK)) {
            printf("  %s\n", mlc_error(ctx));
            continue;
        }
        mlc_tensor *loss = hf_run(net, hf_of(k), y);
        const double far = apart(y[0], golden_find(&f, "%s.y", peft_name[k]));
        if (!CHECK(far < 1e-12)) printf("  %s differs by %g\n", peft_name[k], far);
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        hf_check_grads(net, k, &f);
    }
}

/* In f32: outputs to 1e-5, and files with the same bits. */
TEST(lora, files_of_peft_are_written_back_with_the_same_bits)
{
    for (int k = 0; k < ADAPTERS; k++) {
        mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
        golden_file   f = golden_open(ctx, "lora.safetensors"), peft;
        mlc_module   *net = hf_base(ctx, k), *again = hf_base(ctx, k);
        mlc_lora_file file = hf_file(k);
        box           b = box_open_fast("adapter_model.safetensors");
        char          folder[64], name[96];
        mlc_tensor   *y[2] = {NULL, NULL};
        const mlc_named *list = NULL;
        int64_t       n = 0;
        snprintf(folder, sizeof folder, "tests/golden/lora_%s", peft_name[k]);
        snprintf(name, sizeof name, "lora_%s/adapter_model.safetensors", peft_name[k]);
        peft = golden_open(ctx, name);
        if (!CHECK_EQ(mlc_lora_load(net, folder, &file), MLC_OK)) printf("  %s\n", mlc_error(ctx));
        hf_run(net, hf_of(k), y);
        mlc_tensor  *want = golden_find(&f, "%s.y", peft_name[k]);
        const double size = mlc_item(mlc_max(mlc_abs(want), mlc_dims0(), false));
        CHECK(apart(y[0], want) < 1e-5 * (1 + size));
        CHECK_EQ(mlc_lora_save(net, b.dir, &file), MLC_OK);
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
        CHECK_EQ(n, peft.n);
        for (int64_t i = 0; i < n; i++)
            CHECK(same_bits(list[i].tensor, golden_find(&peft, "%s", list[i].name)));
        CHECK_EQ(mlc_lora_load(again, b.dir, &file), MLC_OK);
        mlc_tensor *z[2] = {NULL, NULL};
        hf_run(again, hf_of(k), z);
        CHECK(same_bits(y[0], z[0]));
        box_close(&b);
    }
}

/* The network of make_lora_goldens.py: an embedding and a convolution. */
static void check_small(const char *what, bool dora)
{
    static const char *const targets[2] = {"0", "1"};
    static const char *const names[10][2] = {
        {"0.weight", "table.base_layer.weight"}, {"1.weight", "conv.base_layer.weight"},
        {"1.bias", "conv.base_layer.bias"}, {"0.lora_default.A", "table.lora_embedding_A"},
        {"0.lora_default.B", "table.lora_embedding_B"}, {"1.lora_default.A", "conv.lora_A.weight"},
        {"1.lora_default.B", "conv.lora_B.weight"},
        {"0.lora_default.magnitude", "table.lora_magnitude_vector"},
        {"1.lora_default.magnitude", "conv.lora_magnitude_vector"}, {NULL, NULL}};
    const int        n = dora ? 9 : 7;
    mlc_ctx         *ctx = ctx_of(MLC_F64, 0);
    golden_file      f = golden_open(ctx, "lora.safetensors");
    mlc_module      *net = mlc_nn_sequential(ctx);
    mlc_nn_conv_desc c = mlc_nn_conv_desc_make(2, 2, 5, 3);
    mlc_lora_desc    d = mlc_lora_desc_make(2, 3.0);
    double           v[20];
    c.conv.stride = mlc_dims_all(2);
    c.conv.padding = mlc_dims_all(1);
    mlc_module_add(net, mlc_nn_embedding(ctx, 9, 4));
    mlc_module_add(net, mlc_nn_conv(ctx, &c));
    d.targets = targets;
    d.n_targets = 2;
    d.dora = dora;
    if (!CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < n; i++) {
        mlc_tensor *p = mlc_module_param(net, names[i][0]);
        mlc_tensor *from = golden_find(&f, "%s:base_model.model.%s", what, names[i][1]);
        CHECK_EQ(mlc_copy_into(p, mlc_reshape(from, mlc_dims_of(p->ndim, p->shape))), MLC_OK);
    }
    mlc_no_grad_end(ctx);
    for (int i = 0; i < 20; i++) v[i] = i * 5 % 9;
    mlc_tensor *x = test_tensor(ctx, MLC_I64, mlc_dims3(2, 2, 5), v), *y = mlc_forward(net, x);
    mlc_tensor *want = golden_find(&f, "%s.y", what);
    CHECK(apart(y, want) < 1e-13);
    CHECK_EQ(mlc_backward(mlc_mse_loss(y, hf_target(y, 7))), MLC_OK);
    for (int i = 3; i < n; i++) {
        mlc_tensor *g = mlc_grad(mlc_module_param(net, names[i][0]));
        mlc_tensor *theirs = golden_find(&f, "%s.grad:base_model.model.%s", what, names[i][1]);
        CHECK(apart(g, mlc_reshape(theirs, mlc_dims_of(g->ndim, g->shape))) < 1e-13);
    }
    CHECK_EQ(mlc_lora_merge(net, NULL), MLC_OK);
    for (int i = 0; i < 2; i++)
        CHECK(apart(mlc_module_param(net, names[i][0]),
                    golden_find(&f, "%s.merged:base_model.model.%s", what,
                                names[i][1])) < 1e-14);
    CHECK(apart(eval(net, x), want) < 1e-13);
    CHECK_OK(ctx);
}

TEST(lora, embeddings_and_convolutions_are_those_of_peft)
{
    check_small("small", false);
    check_small("small_dora", true);
}

/* Magnitudes of an embedding and a convolution in files. */
TEST(lora, magnitudes_are_written_in_the_shapes_of_peft)
{
    static const char *const targets[2] = {"0", "1"};
    box              b = box_open_fast("adapter_model.safetensors");
    mlc_ctx         *ctx = ctx_of(MLC_F32, 0);
    mlc_module      *net = mlc_nn_sequential(ctx), *again;
    mlc_nn_conv_desc c = mlc_nn_conv_desc_make(2, 2, 5, 3);
    mlc_lora_desc    d = mlc_lora_desc_make(2, 3.0);
    const mlc_named *list = NULL;
    int64_t          n = 0;
    mlc_module_add(net, mlc_nn_embedding(ctx, 9, 4));
    mlc_module_add(net, mlc_nn_conv(ctx, &c));
    again = mlc_module_clone(net);
    d.targets = targets;
    d.n_targets = 2;
    d.dora = true;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 3);
    if (!CHECK_EQ(mlc_lora_save(net, b.dir, NULL), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    CHECK_EQ(n, 6);
    for (int64_t i = 0; i < n; i++)
        if (strstr(list[i].name, ".1.lora_magnitude_vector"))
            CHECK(list[i].tensor->ndim == 4 && mlc_dim(list[i].tensor, 1) == 5);
    if (!CHECK_EQ(mlc_lora_load(again, b.dir, NULL), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); )
        if (it.trainable) CHECK(same_bits(it.tensor, mlc_module_param(again, it.name)));
    box_close(&b);
}

TEST(lora, files_go_from_floats_to_integers_and_back)
{
    ONLY_ON_HOST();
    box               b = box_open_fast("adapter_model.safetensors");
    mlc_ctx          *ctx = ctx_of(MLC_F32, 0);
    mlc_module       *net = mlp(ctx, 64, 32, 6), *quant = mlp(ctx, 64, 32, 6);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    mlc_lora_desc     d = mlc_lora_desc_make(3, 5.5);
    mlc_lora_file     file = mlc_lora_file_make();
    d.name = file.name = "mine";
    d.dropout = 0.05;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 3);
    CHECK_EQ(mlc_lora_save(net, b.dir, &file), MLC_OK);
    q.bits = 4;
    CHECK_EQ(mlc_quantize(quant, &q, NULL), MLC_OK);
    if (!CHECK_EQ(mlc_lora_load(quant, b.dir, &file), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    CHECK(same_bits(mlc_module_param(net, "2.lora_mine.B"),
                    mlc_module_param(quant, "2.lora_mine.B")));
    /* another base: other names, other shapes */
    mlc_module *other = mlp(ctx, 64, 30, 6);
    const int64_t numbers = mlc_module_numel(other, false);
    CHECK_EQ(mlc_lora_load(other, b.dir, &file), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "it is an adapter of another base");
    CHECK_EQ(mlc_module_numel(other, false), numbers);
    CHECK_EQ(mlc_lora_save(net, b.dir, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no adapter 'default'");
    CHECK_EQ(mlc_lora_save(net, "/nowhere/at/all", &file), MLC_ERR_IO);
    mlc_error_clear(ctx);
    box_close(&b);
}

/* A file with a config, tensors of one factor of layer "0", and metadata of no base. */
static mlc_status loads(mlc_module *net, const box *b, const char *config, const mlc_named *list,
                        int64_t n)
{
    char path[400];
    snprintf(path, sizeof path, "%s/adapter_config.json", b->dir);
    CHECK(put_file(path, config, strlen(config)));
    CHECK_EQ(mlc_safetensors_save(mlc_module_ctx(net), b->path, list, n, NULL), MLC_OK);
    return mlc_lora_load(net, b->dir, NULL);
}

TEST(lora, files_that_do_not_fit_are_errors_that_say_why)
{
    static const char *const config[] = {
        "{\"peft_type\": \"LORA\", \"use_dora\": true}", "{\"peft_type\":\"IA3\"}",
        "{\"bias\":\"all\"}", "{\"modules_to_save\":[\"head\"]}", "{\"alpha_pattern\":{\"q\":1}}",
        "{\"init_lora_weights\":\"pissa_niter_4\"}", "{\"init_lora_weights\":\"olora\"}",
        "{\"init_lora_weights\":\"loftq\"}", "{\"alora_invocation_tokens\":[7]}",
        "{\"use_qalora\":true}", "{\"lora_alpha\":\"16\"}", "{\"lora_alpha\":null}",
        "{\"lora_dropout\":false}", "{\"r\":[4]}", "{\"r\":4", "{\"x\":[1,{\"y\":\"]\"}",
        "[]", "{\"lora_alpha\": }", "{\"lora_dropout\": 1.5}"};
    static const mlc_status status[] = {MLC_ERR_IO, MLC_ERR_UNSUPPORTED,
        MLC_ERR_UNSUPPORTED, MLC_ERR_UNSUPPORTED, MLC_ERR_UNSUPPORTED, MLC_ERR_UNSUPPORTED,
        MLC_ERR_UNSUPPORTED, MLC_ERR_UNSUPPORTED, MLC_ERR_UNSUPPORTED, MLC_ERR_UNSUPPORTED,
        MLC_ERR_IO, MLC_ERR_IO, MLC_ERR_IO, MLC_ERR_IO, MLC_ERR_IO, MLC_ERR_IO, MLC_ERR_IO,
        MLC_ERR_IO, MLC_ERR_ARG};
    static const char *const fine =
        "{\"lora_alpha\": 1.25e1, \"x\": [1, {\"y\": \"]\"}], \"lora_dropout\": 0.05, \"z\": -2E-3,"
        " \"use_rslora\": false, \"bias\": \"none\", \"modules_to_save\": null, \"r\": 2,"
        " \"init_lora_weights\": \"gaussian\", \"alora_invocation_tokens\": null}";
    box         b = box_open_fast("adapter_model.safetensors");
    mlc_ctx    *ctx = ctx_of(MLC_F32, 0);
    mlc_module *net = layered(ctx);
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(2, 12), 1, -1, 1);
    mlc_tensor *c = test_rand(ctx, MLC_F32, mlc_dims2(10, 2), 2, -1, 1);
    mlc_named   list[3] = {{"base_model.model.0.lora_A.weight", a},
                           {"base_model.model.0.lora_B.weight", c},
                           {"base_model.model.7.lora_A.weight", a}};
    for (int i = 0; i < COUNT(config); i++) {
        CHECK_EQ(loads(net, &b, config[i], list, 2), status[i]);
        mlc_error_clear(ctx);
    }
    CHECK_EQ(loads(net, &b, config[0], list, 2), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "of '0' lora_magnitude_vector is not there");
    CHECK_EQ(loads(net, &b, fine, list, 3), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "\"base_model.model.7.lora_A.weight\"");
    CHECK_EQ(loads(net, &b, fine, list, 1), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "only one factor is there");
    CHECK_EQ(loads(net, &b, fine, list, 0), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "has no tensor");
    list[1].tensor = a;
    CHECK_EQ(loads(net, &b, fine, list, 2), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "must be [10,2]");
    list[1].tensor = mlc_cast(c, MLC_I32);
    CHECK_EQ(loads(net, &b, fine, list, 2), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "adapters are of floats");
    list[0].tensor = test_rand(ctx, MLC_F32, mlc_dims2(11, 12), 1, -1, 1);
    list[1].tensor = test_rand(ctx, MLC_F32, mlc_dims2(10, 11), 1, -1, 1);
    CHECK_EQ(loads(net, &b, fine, list, 2), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rank 11 for '0' [10,12]");
    CHECK_EQ(mlc_module_numel(net, true), mlc_module_numel(net, false));      /* not frozen */
    list[0].tensor = a;
    list[1].tensor = c;
    CHECK_EQ(loads(net, &b, fine, list, 2), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 12), 1, -1, 1);
    mlc_module *first = mlc_module_child(net, 0);
    CHECK(apart(eval(first, x), by_hand(mlc_linear(x, mlc_module_param(net, "0.weight"),
                                                   mlc_module_param(net, "0.bias")), x, a, c,
                                        12.5 / 2)) < 1e-5);
    CHECK_EQ(mlc_lora_load(net, NULL, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    box_close(&b);
}

/* A part that a table has in one with others cannot be written. */
TEST(lora, parts_that_a_file_has_as_one_are_unsupported)
{
    static const char *const targets[1] = {"q_proj"};
    box           b = box_open_fast("adapter_model.safetensors");
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = hf_base(ctx, 0);
    mlc_lora_file file = hf_file(0), own = mlc_lora_file_make();
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    d.targets = targets;
    d.n_targets = 1;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 3);
    CHECK_EQ(mlc_lora_save(net, b.dir, &file), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "adapt in_proj");
    CHECK_EQ(mlc_lora_save(net, b.dir, &own), MLC_OK);
    mlc_module *again = hf_base(ctx, 0);
    CHECK_EQ(mlc_lora_load(again, b.dir, &own), MLC_OK);
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 5), HF_VOCAB, 1);
    CHECK(same_bits(eval(net, x), eval(again, x)));
    box_close(&b);
}

/* Two calls under one name, of which the file would have one alpha. */
TEST(lora, a_file_has_one_alpha_of_a_name)
{
    static const char *const first[1] = {"0"}, *const last[1] = {"2"};
    box           b = box_open_fast("adapter_model.safetensors");
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    for (int i = 0; i < 5; i++) {
        mlc_module   *net = layered(ctx);
        mlc_lora_desc d = mlc_lora_desc_make(2, 2.0), e = mlc_lora_desc_make(3, 2.0);
        d.targets = first;
        e.targets = last;
        d.n_targets = e.n_targets = 1;
        if (i == 1) e.alpha = 3.0;
        if (i == 2) e.dropout = 0.1;
        if (i == 3) e.rank_stabilized = true;
        if (i == 4) e.dora = true;
        CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_lora(net, &e, NULL), MLC_OK);
        CHECK_EQ(mlc_lora_save(net, b.dir, NULL), i ? MLC_ERR_UNSUPPORTED : MLC_OK);
        if (i) CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "have several alphas");
    }
    box_close(&b);
}

/* A table for attention whose weights are three tensors, of which none is cut. */
TEST(lora, separate_weights_of_attention_have_names_of_files)
{
    static const char *const targets[2] = {"q_proj", "v_proj"};
    const mlc_rename r[3] = {mlc_rename_make("attn.query.weight", "q_proj_weight"),
                             mlc_rename_make("attn.key.weight", "k_proj_weight"),
                             mlc_rename_make("attn.value.weight", "v_proj_weight")};
    box           b = box_open_fast("adapter_model.safetensors");
    mlc_ctx      *ctx = ctx_of(MLC_F32, 0);
    mlc_module   *net = attends(ctx, true), *again = mlc_module_clone(net);
    mlc_lora_desc d = mlc_lora_desc_make(2, 2.0);
    mlc_lora_file file = mlc_lora_file_make();
    const mlc_named *list = NULL;
    int64_t       n = 0;
    file.renames = r;
    file.n_renames = 3;
    d.targets = targets;
    d.n_targets = 2;
    CHECK_EQ(mlc_lora(net, &d, NULL), MLC_OK);
    fill(net, 3);
    if (!CHECK_EQ(mlc_lora_save(net, b.dir, &file), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    CHECK_EQ(n, 4);
    for (int64_t i = 0; i < n; i++)
        CHECK_HAS(list[i].name, i % 2 ? ".lora_B.weight" : ".lora_A.weight");
    CHECK_HAS(list[0].name, "base_model.model.attn.query.");
    if (!CHECK_EQ(mlc_lora_load(again, b.dir, &file), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); )
        CHECK(same_bits(it.tensor, mlc_module_param(again, it.name)));
    box_close(&b);
}
