/* test_amp.c -- tests of section IMPL.AMP: autocast, and layers whose weights are f32 masters */
#include "mlc_test.h"

static mlc_module *mlp(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 40, 70));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 70, 33));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 33, 5));
    return net;
}

static const mlc_dtype LOW[] = {MLC_BF16, MLC_F16};

/* ---- a linear layer with masters ------------------------------------------------------------ */

/* On a card: but for the last bit, as the two products may be added up in another order. */
static bool near_bytes(const void *one, const void *other, mlc_dtype dtype, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = test_get(one, dtype, i), y = test_get(other, dtype, i);
        if (!CHECK(fabs(x - y) <= 0x1p-7 * fmax(fabs(x), 0.125))) return false;
    }
    return true;
}

static bool same_bytes(mlc_tensor *a, mlc_tensor *b)
{
    static char one[1 << 20], other[1 << 20];
    const size_t bytes = a ? (size_t)mlc_numel(a) * mlc_dtype_bytes(a->dtype) : 0;
    return CHECK(a != NULL && b != NULL && a->dtype == b->dtype) && CHECK(bytes <= sizeof one) &&
           CHECK_EQ(mlc_read(a, one, bytes), MLC_OK) &&
           CHECK_EQ(mlc_read(b, other, bytes), MLC_OK) &&
           (test_on_card() ? near_bytes(one, other, a->dtype, mlc_numel(a))
                           : CHECK(memcmp(one, other, bytes) == 0));
}

/* The layer's y, dx, dw, db; dy is not all ones, so that dw and dx are real products.           */
static void layer(mlc_tensor *x, mlc_tensor *w, mlc_tensor *b, const mlc_epilogue *e,
                  mlc_tensor *out[4])
{
    mlc_tensor *dy = mlc_cast(test_rand(x->ctx, MLC_F32, mlc_dims2(x->shape[0], w->shape[0]), 9,
                                        -1, 1), x->dtype);
    out[0] = mlc_linear_ex(x, w, b, e);
    CHECK_EQ(mlc_backward_from(out[0], dy), MLC_OK);
    out[1] = mlc_grad(x), out[2] = mlc_grad(w), out[3] = mlc_grad(b);
}

/* f32 parameters read in 16 bits: y and dx are, to the bit, those of a layer whose weights were
 * rounded first; dw and db come out in f32, and rounded they are that layer's.                   */
static void masters_at(mlc_ctx *ctx, mlc_dtype low, int64_t m, int64_t n, int64_t k, mlc_act act)
{
    mlc_module  *lin = mlc_nn_linear(ctx, k, n);
    mlc_tensor  *w = NULL, *b = NULL, *got[4], *want[4];
    mlc_epilogue e = {act, 0.0, NULL};
    CHECK_EQ(mlc_module_build(lin), MLC_OK);
    mlc_param_iter it = mlc_param_iter_make(lin);
    while (mlc_param_next(&it)) *(it.tensor->ndim == 2 ? &w : &b) = it.tensor;
    mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(m, k), 1, -1, 1), low);
    mlc_tensor *x2 = mlc_copy(x), *w2 = mlc_detach(mlc_cast(w, low));
    mlc_tensor *b2 = mlc_detach(mlc_cast(b, low));
    CHECK_EQ(mlc_copy_into(b, mlc_cast(b2, MLC_F32)), MLC_OK); /* no rounding */
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(x2, true);
    mlc_set_requires_grad(w2, true);
    mlc_set_requires_grad(b2, true);
    layer(x, w, b, &e, got);
    layer(x2, w2, b2, &e, want);
    CHECK_OK(ctx);
    same_bytes(got[0], want[0]);
    same_bytes(got[1], want[1]);
    CHECK(got[2]->dtype == MLC_F32 && got[3]->dtype == MLC_F32);
    same_bytes(mlc_cast(got[2], low), want[2]);
    same_bytes(mlc_cast(got[3], low), want[3]);
    mlc_module_free(lin);
}

TEST(amp, a_layer_with_f32_masters_is_that_of_rounded_ones)
{
    static const int64_t at[][3] = {{1, 3, 2},    {5, 7, 9},     {33, 40, 64}, {70, 33, 31},
                                    {32, 16, 128}, {17, 100, 65}, {64, 96, 96}, {1, 130, 200}};
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < 16; i++)
            masters_at(ctx, LOW[i % 2], at[i / 2][0], at[i / 2][1], at[i / 2][2],
                       (mlc_act)(i % 3 == 0 ? MLC_ACT_NONE : MLC_ACT_RELU));
}

/* To the bit what a layer makes of an x that was rounded before; but no copy of x is kept.       */
static void rounded_at(mlc_ctx *ctx, mlc_dtype low, int64_t m, int64_t n, int64_t k)
{
    mlc_module *lin = mlc_nn_linear(ctx, k, n);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(m, k), 1, -1, 1), *y[2], *dw[2], *w;
    mlc_memory  before, after;
    int64_t     room[2];
    CHECK_EQ(mlc_module_build(lin), MLC_OK);
    w = mlc_module_param(lin, "weight");
    for (int i = 0; i < 2; i++) {
        mlc_tensor *in = i ? mlc_cast(x, low) : x;
        mlc_memory_info(ctx, &before);
        CHECK_EQ(mlc_autocast_begin(ctx, low), MLC_OK);
        y[i] = mlc_forward(lin, in);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        mlc_memory_info(ctx, &after);
        CHECK(y[i] != NULL && y[i]->dtype == low);
        room[i] = after.now[MLC_MEM_ACTIVATION] - before.now[MLC_MEM_ACTIVATION];
        CHECK_EQ(mlc_backward_from(y[i], mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(m, n), 9, -1,
                                                            1), low)), MLC_OK);
        dw[i] = mlc_copy(mlc_grad(w));
        mlc_zero_grad(w);
    }
    CHECK_EQ(room[0], room[1]);
    same_bytes(y[0], y[1]);
    same_bytes(dw[0], dw[1]);
    CHECK_OK(ctx);
    mlc_module_free(lin);
}

TEST(amp, an_x_in_f32_is_rounded_as_it_is_read)
{
    static const int64_t at[][3] = {{1, 3, 2},      {5, 7, 9},     {33, 40, 64},   {70, 33, 31},
                                    {128, 96, 784}, {17, 100, 65}, {300, 64, 130}, {2, 130, 200}};
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < 16; i++) rounded_at(ctx, LOW[i % 2], at[i / 2][0], at[i / 2][1],
                                                at[i / 2][2]);
}

/* A weight that changed is read anew, whoever changed it.                                       */
TEST(amp, packs_follow_the_parameter)
{
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *lin = mlc_nn_linear(ctx, 70, 40);
        mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(50, 70), 1, -1, 1), LOW[i]);
        mlc_tensor *dy = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(50, 40), 2, -1, 1), LOW[i]);
        mlc_tensor *x2 = mlc_copy(x);
        mlc_optim  *opt = i ? mlc_sgd(lin, 0.5) : mlc_adamw(lin, 0.1);
        mlc_set_requires_grad(x, true);
        mlc_set_requires_grad(x2, true);
        static float v[2800];
        mlc_param_iter it;
        for (int step = 0; step < 4; step++) {
            mlc_tensor *w = NULL, *b = NULL, *y = mlc_forward(lin, x);
            it = mlc_param_iter_make(lin);
            while (mlc_param_next(&it)) *(it.tensor->ndim == 2 ? &w : &b) = it.tensor;
            mlc_tensor *y2 = mlc_linear(x2, mlc_detach(mlc_cast(w, LOW[i])), mlc_detach(b));
            same_bytes(y, y2);
            CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
            CHECK_EQ(mlc_backward_from(y2, dy), MLC_OK);
            same_bytes(mlc_grad(x), mlc_grad(x2));
            if (step == 1) {
                CHECK_EQ(mlc_write(w, v, sizeof v), MLC_OK);
                mlc_optim_zero_grad(opt);
            } else {
                CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            }
        }
        CHECK_OK(ctx);
    }
}

/* A parameter that is used in both 16-bit dtypes, and one that is written through its pointer.   */
TEST(amp, copies_of_a_parameter_do_not_outlive_its_values)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *lin = mlc_nn_linear(ctx, 64, 64);
    mlc_optim  *opt = mlc_sgd(lin, 1.0);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(50, 64), 1, -1, 1);
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_forward(lin, mlc_cast(x, MLC_BF16));
    mlc_tensor *h = mlc_detach(mlc_cast(x, MLC_F16)), *w, *b;
    mlc_forward(lin, h);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_cast(y, MLC_F32), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    w = mlc_module_param(lin, "weight"), b = mlc_module_param(lin, "bias");
    same_bytes(mlc_forward(lin, h), mlc_linear(h, mlc_cast(w, MLC_F16), b));
    for (int i = 0; i < 3 && test_on_host(); i++) {
        float *p = mlc_f32(i == 2 ? mlc_detach(w) : w);
        for (int k = 0; k < 64 * 64; k++)
            p[k] = (float)(i + k % 7);
        same_bytes(mlc_forward(lin, h), mlc_linear(h, mlc_cast(w, MLC_F16), b));
    }
    CHECK_OK(ctx);
}

static mlc_status product(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor **out)
{
    (void)user, (void)n;
    *out = mlc_matmul(in[0], in[1]);
    return MLC_OK;
}

static mlc_status product_back(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor *out,
                               mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user, (void)n, (void)out;
    if (need[0])
        dx[0] = mlc_matmul(dy, mlc_transpose(in[1], 0, 1));
    if (need[1])
        dx[1] = mlc_matmul(mlc_transpose(in[0], 0, 1), dy);
    return MLC_OK;
}

TEST(amp, custom_operations_do_as_they_like)
{
    static const mlc_custom_op op = {"product", product, product_back};
    for (int inside = 0; inside < 2; inside++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *in[2];
        for (int i = 0; i < 2; i++) {
            in[i] = test_rand(ctx, MLC_F32, mlc_dims2(8, 8), 1 + i, -1, 1);
            mlc_set_requires_grad(in[i], true);
        }
        CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *y = mlc_custom(&op, NULL, in, 2);
        if (!inside)
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK(y != NULL && y->dtype == MLC_F32);
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        if (inside)
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK_OK(ctx);
    }
}

TEST(amp, weights_are_read_through_memory_of_their_own_class)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *lin = mlc_nn_linear(ctx, 64, 64);
    mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(64, 64), 1, -1, 1), MLC_BF16);
    mlc_memory  before, after;
    mlc_forward(lin, x);
    mlc_memory_info(ctx, &before);
    CHECK(before.now[MLC_MEM_PACK] >= 64 * 64 * 2 && before.now[MLC_MEM_PACK] <= 64 * 64 * 2 + 256);
    mlc_forward(lin, x);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_PACK], before.now[MLC_MEM_PACK]);
    mlc_memory_trim(ctx);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_PACK], 0);
    mlc_forward(lin, x);
    mlc_module_free(lin);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_PACK], 0);
    CHECK_OK(ctx);
}

/* ---- which operation in which dtype --------------------------------------------------------- */

TEST(amp, operations_run_in_the_dtype_that_suits_them)
{
    for (int i = 0; i < 2; i++) {
        const mlc_dtype low = LOW[i];
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 4), 1, -1, 1);
        mlc_tensor *half = mlc_cast(x, low), *wide = mlc_cast(x, MLC_F64);
        mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
        CHECK_EQ(mlc_autocast_begin(ctx, low), MLC_OK);
        CHECK_EQ(mlc_linear(x, x, NULL)->dtype, low);
        CHECK_EQ(mlc_matmul(x, half)->dtype, low);
        CHECK_EQ(mlc_layer_norm(x, NULL, NULL, 1e-5)->dtype, MLC_F32);
        CHECK_EQ(mlc_rms_norm(half, NULL, 1e-5)->dtype, low);
        mlc_tensor *gain = mlc_ones(ctx, MLC_F32, mlc_dims1(mlc_dim(x, -1)));
        mlc_set_requires_grad(gain, true);
        mlc_tensor *normal = mlc_layer_norm(half, gain, NULL, 1e-5);
        CHECK_EQ(normal->dtype, low);
        CHECK_EQ(mlc_backward_from(normal, normal), MLC_OK);
        CHECK_EQ(mlc_grad(gain)->dtype, MLC_F32);
        CHECK_EQ(mlc_relu(x)->dtype, MLC_F32);
        CHECK_EQ(mlc_relu(half)->dtype, low);
        CHECK_EQ(mlc_prelu(half, gain)->dtype, low);
        CHECK_EQ(mlc_glu(half, 1)->dtype, low);
        CHECK_EQ(mlc_add(x, half)->dtype, MLC_F32);
        CHECK_EQ(mlc_sub(half, half)->dtype, low);
        CHECK_EQ(mlc_add(x, x)->dtype, MLC_F32);
        CHECK_EQ(mlc_mul(x, half)->dtype, MLC_F32);
        CHECK_EQ(mlc_sum(half, mlc_dims0(), false)->dtype, MLC_F32);
        CHECK_EQ(mlc_mse_loss(half, half)->dtype, MLC_F32);
        CHECK_EQ(mlc_cross_entropy(half, y)->dtype, MLC_F32);
        CHECK_EQ(mlc_matmul(wide, wide)->dtype, MLC_F64);
        CHECK_EQ(mlc_cast(x, MLC_F64)->dtype, MLC_F64);
        CHECK(mlc_add_(x, x) == x);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK_EQ(mlc_linear(x, x, NULL)->dtype, MLC_F32);
        CHECK_OK(ctx);
    }
}

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    return mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false));
}

/* A residual in f32 makes the sum f32; what is multiplied is rounded as ever.                   */
TEST(amp, residuals_are_f32_or_16_bits)
{
    for (int k = 0; k < 4; k++) {
        const mlc_dtype   low = LOW[k / 2], residual = k % 2 ? low : MLC_F32;
        mlc_autocast_desc d = mlc_autocast_desc_make(low);
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(37, 19), 1, -1, 1);
        mlc_tensor *h = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(37, 24), 2, -1, 1), low);
        mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(19, 24), 3, -1, 1);
        mlc_tensor *b = test_rand(ctx, MLC_F32, mlc_dims1(19), 4, -1, 1), *in[4] = {x, h, w, b};
        mlc_tensor *dy = test_rand(ctx, MLC_F32, mlc_dims2(37, 19), 5, -1, 1), *grad[4];
        for (int i = 0; i < 4; i++) mlc_set_requires_grad(in[i], true);
        CHECK_EQ(d.residual, MLC_F32);
        d.residual = residual;
        CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_OK);
        const mlc_epilogue e = {MLC_ACT_NONE, 0.0, x};
        mlc_tensor *y = mlc_linear_ex(h, w, b, &e);
        CHECK_EQ(mlc_layer_norm(x, NULL, NULL, 1e-5)->dtype, residual);
        CHECK_EQ(mlc_add(x, mlc_slice(h, 1, 0, 19, 1))->dtype, residual);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        if (!CHECK(y != NULL && y->dtype == residual)) continue;
        CHECK_EQ(mlc_backward_from(y, mlc_cast(dy, residual)), MLC_OK);
        for (int i = 0; i < 4; i++) {
            grad[i] = mlc_cast(mlc_grad(in[i]), MLC_F64);
            CHECK_EQ(mlc_grad(in[i])->dtype, i == 1 ? low : MLC_F32);
            mlc_zero_grad(in[i]);
        }
        /* The same in f64, from what was rounded. */
        mlc_tensor *w16 = mlc_cast(mlc_cast(w, low), MLC_F64), *h64 = mlc_cast(h, MLC_F64);
        mlc_tensor *x64 = mlc_cast(mlc_cast(x, residual), MLC_F64);
        mlc_tensor *d16 = mlc_cast(mlc_cast(dy, low), MLC_F64);
        mlc_tensor *y64 = mlc_cast(mlc_cast(dy, residual), MLC_F64);
        mlc_tensor *want = mlc_add(mlc_linear(h64, w16, mlc_cast(b, MLC_F64)), x64);
        const double ulp = low == MLC_BF16 ? 0x1p-8 : 0x1p-11, step = k % 2 ? ulp : 3e-7;
        CHECK(apart(mlc_cast(y, MLC_F64), want) <= step * 8);
        CHECK(apart(grad[0], y64) == 0);
        CHECK(apart(grad[1], mlc_matmul(d16, w16)) <= ulp * 8);
        CHECK(apart(grad[2], mlc_matmul(mlc_transpose(d16, 0, 1), h64)) <= ulp * 8);
        CHECK(apart(grad[3], mlc_sum(y64, mlc_dims1(0), false)) <= 1e-5);
        CHECK_OK(ctx);
    }
    mlc_ctx          *ctx = test_ctx();
    mlc_autocast_desc d = mlc_autocast_desc_make(MLC_BF16);
    d.residual = MLC_F16;
    CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_ERR_DTYPE);
    CHECK(strstr(mlc_error(ctx), "residual is f16") != NULL);
}

/* What is 16-bit already, but not the 16 bits that were asked for.                              */
TEST(amp, both_16_bit_dtypes_meet)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(6, 40), 1, -1, 1);
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(40)), *low[2];
    for (int i = 0; i < 2; i++) low[i] = mlc_cast(w, LOW[i]);
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    for (int i = 0; i < 2; i++) {
        mlc_autocast_desc d = mlc_autocast_desc_make(LOW[i]);
        d.residual = LOW[i];
        CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_OK);
        mlc_tensor *y = mlc_forward(net, x);
        CHECK(y != NULL && y->dtype == LOW[i]);
        for (int k = 0; k < 9; k++) {
            mlc_tensor *one[3] = {w, low[0], low[1]};
            mlc_tensor *n = mlc_layer_norm(x, one[k % 3], one[k / 3], 1e-5);
            CHECK(n != NULL && n->dtype == LOW[i]);
        }
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    }
    CHECK_OK(ctx);
}

/* Two gradients add up; rows that fill tiles and rows that do not.                              */
TEST(amp, sums_of_gradients_do_not_depend_on_the_number_of_threads)
{
    static const int64_t rows[] = {96, 128, 70};
    static float one[8192], more[8192];
    for (int i = 0; i < 3; i++)
        for (int32_t threads = 1; threads <= 3; threads++) {
            mlc_ctx_desc    d = test_desc();
            mlc_nn_linear_desc l = mlc_nn_linear_desc_make(128, 64);
            l.no_bias = true;
            d.threads = threads;
            mlc_ctx    *ctx = mlc_ctx_create(&d);
            mlc_module *lin = mlc_nn_linear_ex(ctx, &l);
            for (uint64_t step = 0; step < 2; step++) {
                mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(rows[i], 128), step, -1, 1);
                mlc_autocast_begin(ctx, MLC_BF16);
                mlc_tensor *y = mlc_forward(lin, x);
                mlc_autocast_end(ctx);
                CHECK_EQ(mlc_backward_from(y, y), MLC_OK);
            }
            CHECK_EQ(mlc_read(mlc_grad(mlc_module_param(lin, "weight")),
                              threads == 1 ? one : more, sizeof one), MLC_OK);
            if (threads > 1) CHECK(memcmp(one, more, sizeof one) == 0);
            mlc_ctx_free(ctx);
        }
}

TEST(amp, rules_win_and_calls_nest)
{
    static const mlc_autocast_rule rules[] = {{"matmul", MLC_F32}, {"relu", MLC_BF16},
                                              {"linear", MLC_F32}};
    mlc_ctx          *ctx = test_ctx();
    mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 4), 1, -1, 1);
    mlc_autocast_desc d = mlc_autocast_desc_make(MLC_BF16);
    d.rules = rules;
    d.n_rules = 3;
    CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_OK);
    CHECK_EQ(mlc_matmul(x, x)->dtype, MLC_F32);
    CHECK_EQ(mlc_linear(x, x, NULL)->dtype, MLC_F32);
    CHECK_EQ(mlc_relu(x)->dtype, MLC_BF16);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_F16), MLC_OK);
    CHECK_EQ(mlc_matmul(x, x)->dtype, MLC_F16);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_F32), MLC_OK);
    CHECK_EQ(mlc_matmul(x, x)->dtype, MLC_F32);
    CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK_EQ(mlc_matmul(x, x)->dtype, MLC_F16);
    CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK_EQ(mlc_matmul(x, x)->dtype, MLC_F32);
    CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK_EQ(mlc_relu(x)->dtype, MLC_F32);
    CHECK_OK(ctx);
}

static void append(void *user, const char *text, size_t bytes)
{
    char *to = (char *)user;
    strncat(to, text, bytes);
}

TEST(amp, the_report_tells_what_ran_in_which_dtype)
{
    char        text[400] = "";
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 4), 1, -1, 1);
    CHECK_EQ(mlc_autocast_report(ctx, append, text), MLC_OK);
    CHECK_STR(text, "");
    mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *y = mlc_relu(mlc_matmul(mlc_matmul(x, x), x));
    mlc_mean(y, mlc_dims0(), false);
    mlc_cross_entropy(y, mlc_zeros(ctx, MLC_I64, mlc_dims1(4)));
    mlc_autocast_end(ctx);
    mlc_matmul(x, x);
    CHECK_EQ(mlc_autocast_report(ctx, append, text), MLC_OK);
    CHECK_STR(text, "matmul           bf16  2\nrelu             bf16  1\n"
                    "mean             f32   1\ncross_entropy    bf16  1\n");
}

TEST(amp, nonsense_is_an_error)
{
    static const mlc_autocast_rule strange = {"matmul", MLC_F16};
    mlc_ctx          *ctx = test_ctx();
    mlc_autocast_desc d = mlc_autocast_desc_make(MLC_BF16);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_I32), MLC_ERR_DTYPE);
    CHECK_HAS(mlc_error(ctx), "autocast_begin: the dtype is i32; it must be bf16, f16, or f32");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_autocast_end(ctx), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_autocast_begin_ex(ctx, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "start from mlc_autocast_desc_make(MLC_BF16)");
    mlc_error_clear(ctx);
    d.n_rules = 1;
    CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    d.rules = &strange;
    CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "rule 0, of 'matmul', asks for f16; it may be f32 or bf16");
    mlc_error_clear(ctx);
    static const mlc_autocast_rule unnamed = {NULL, MLC_BF16};
    d.rules = &unnamed;
    CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "rule 0 has no operation");
    mlc_error_clear(ctx);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_autocast_begin(NULL, MLC_BF16), MLC_ERR_ARG);
    CHECK_EQ(mlc_autocast_end(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_autocast_report(NULL, append, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

static mlc_tensor *fixed_call(int i, mlc_tensor *x)
{
    mlc_tensor *list[2] = {x, x};
    switch (i) {
        case 0: return mlc_cast(x, MLC_F64);
        case 1: return mlc_concat(list, 2, 0);
        case 2: return mlc_add_(x, mlc_detach(x));
        case 3: return mlc_expand(x, mlc_dims2(2, 3));
        default: return mlc_copy(x);
    }
}

TEST(amp, a_rule_of_what_only_moves_elements_fails_where_that_runs)
{
    static const char *const fixed[] = {"cast", "concat", "add_", "view", "copy"};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 5; i++) {
        mlc_tensor             *x = test_rand(ctx, MLC_F32, mlc_dims1(3), 1, -1, 1);
        const mlc_autocast_rule r = {fixed[i], MLC_BF16};
        mlc_autocast_desc       d = mlc_autocast_desc_make(MLC_BF16);
        char                    want[64];
        d.rules = &r;
        d.n_rules = 1;
        if (i != 2) mlc_set_requires_grad(x, true);
        CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_OK);
        CHECK(fixed_call(i, x) == NULL);
        snprintf(want, sizeof want, "autocast: rule 0, of '%s': what it does must", fixed[i]);
        CHECK_HAS(mlc_error(ctx), want);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    }
}

/* ---- training ------------------------------------------------------------------------------- */

static void train(mlc_ctx *ctx, mlc_dtype dtype, int steps, double *loss)
{
    mlc_module *net = mlp(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(48, 40), 1, -1, 1);
    mlc_tensor *y = mlc_argmax(mlc_slice(x, 1, 0, 5, 1), 1, false);
    if (dtype == MLC_F16) {
        mlc_scaler_desc d = mlc_scaler_desc_make();
        CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
    }
    for (int i = 0; i < steps; i++) {
        float v = 0;
        mlc_scope_begin(ctx);
        mlc_autocast_begin(ctx, dtype);
        mlc_tensor *l = mlc_cross_entropy(mlc_forward(net, x), y);
        mlc_autocast_end(ctx);
        mlc_backward(mlc_optim_scaled(opt, l));
        mlc_optim_step(opt);
        CHECK_EQ(mlc_read(l, &v, sizeof v), MLC_OK);
        loss[i] = (double)v;
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) {
            printf("  %s\n", mlc_error(ctx));
            return;
        }
    }
}

/* From the same weights, losses stay within 2 % of those of f32, small ones within 2 % of a
 * hundredth of the first.                                                                       */
TEST(amp, training_in_16_bits_follows_that_in_f32)
{
    double want[30] = {0}, got[30] = {0};
    for (mlc_ctx *ctx = test_isa_ctx(MLC_ISA_SCALAR); ctx != NULL;
         ctx = test_isa_ctx(test_level_after(test_isa_now()))) {
        CHECK_EQ(mlc_seed(ctx, 5), MLC_OK);
        train(ctx, MLC_F32, 30, want);
        CHECK(want[29] < 0.7 * want[0]);
        for (int d = 0; d < 2; d++) {
            mlc_ctx *other = test_isa_ctx(test_isa_now());
            CHECK_EQ(mlc_seed(other, 5), MLC_OK);
            train(other, LOW[d], 30, got);
            for (int i = 0; i < 30; i++)
                if (!CHECK_NEAR(got[i], want[i], 0.02 * want[i] + 0.0002 * want[0]))
                    printf("  %s, step %d\n", mlc_dtype_name(LOW[d]), i);
        }
    }
}

TEST(amp, bits_do_not_depend_on_the_number_of_threads)
{
    double loss[3][20] = {{0}};
    for (int32_t i = 0; i < 3; i++) {
        mlc_ctx_desc d = test_desc();
        d.threads = i + 1;
        mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
        CHECK_EQ(mlc_seed(ctx, 5), MLC_OK);
        train(ctx, MLC_BF16, 20, loss[i]);
        CHECK(memcmp(loss[0], loss[i], sizeof loss[0]) == 0);
    }
}
