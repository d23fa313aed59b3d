/* test_tcn.c -- tests of causal convolutions, temporal blocks and the networks made of them
 *
 * PyTorch's values and gradients are of golden/make_tcn_goldens.py. What is said of time is held to
 * the bit: no step sees a later one, and a step alone, with what it reaches, is the step of a whole
 * sequence.
 */
#include "mlc_test.h"
#include "golden/golden.h"

#define STEP 0.02                      /* of the training that the golden has                  */

enum { CASES = 8, FIELDS = 6, LOSSES = 20, MOST = 1 << 13 };
enum { B, IN, CHANNELS, LEVELS, KERNEL, T };

static const mlc_dtype FLOATS[4] = {MLC_F64, MLC_F32, MLC_BF16, MLC_F16};

static mlc_tensor *spread(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, uint32_t stream,
                          double scale)
{
    static double v[MOST];
    int64_t       n = 1;
    for (int32_t d = 0; d < shape.n; d++)
        n *= shape.v[d];
    if (!CHECK(n <= MOST))
        return NULL;
    for (int64_t i = 0; i < n; i++)
        v[i] = golden_spread(i, stream) * scale;
    return test_tensor(ctx, dtype, shape, v);
}

static mlc_module *tcn(mlc_ctx *ctx, int64_t in, int64_t channels, int64_t levels, int64_t kernel)
{
    mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(in, channels, levels);
    d.kernel = kernel;
    return mlc_nn_tcn(ctx, &d);
}

/* The network of a case, with the script's parameters. */
static mlc_module *tcn_of(mlc_ctx *ctx, const double *c)
{
    mlc_module    *net = tcn(ctx, (int64_t)c[IN], (int64_t)c[CHANNELS], (int64_t)c[LEVELS],
                             (int64_t)c[KERNEL]);
    mlc_param_iter it = mlc_param_iter_make(net);
    for (uint32_t stream = 2; mlc_param_next(&it); stream++) {
        mlc_tensor  *p = it.tensor;
        const double fan = (double)mlc_numel(p) / (double)mlc_dim(p, 0);
        CHECK_EQ(mlc_copy_into(p, spread(mlc_module_ctx(net), p->dtype,
                                         mlc_dims_of(p->ndim, p->shape), stream,
                                         p->ndim == 1 ? 0.2 : sqrt(3 / fan))), MLC_OK);
    }
    return net;
}

static mlc_tensor *x_of(mlc_ctx *ctx, const double *c, mlc_dtype dtype)
{
    return spread(ctx, dtype, mlc_dims3((int64_t)c[B], (int64_t)c[IN], (int64_t)c[T]), 0, 1);
}

static mlc_ctx *ctx_of(mlc_isa isa, mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.isa = isa;
    d.dtype = dtype;
    return test_own(mlc_ctx_create(&d));
}

static void check_near(mlc_tensor *t, mlc_tensor *want, double tolerance, const char *name)
{
    static double v[MOST];
    if (!CHECK(want != NULL && test_read(want, v)))
        return;
    CHECK(golden_values(mlc_contiguous(t), mlc_numel(want), v, tolerance, tolerance, name));
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

static void check_case(mlc_ctx *ctx, const golden_file *f, int i, const double *c, mlc_dtype dtype)
{
    const double tolerance = dtype == MLC_F64 ? 1e-12 : 2e-5;
    mlc_module  *net = tcn_of(ctx, c);
    mlc_tensor  *x = x_of(ctx, c, dtype);
    int          k = 0;
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_forward(net, x);
    if (!CHECK(y != NULL))
        return;
    check_near(y, golden_find(f, "%d.y", i), tolerance, "y");
    CHECK_EQ(mlc_backward_from(y, spread(ctx, dtype, mlc_dims_of(3, y->shape), 1, 1)), MLC_OK);
    check_near(mlc_grad(x), golden_find(f, "%d.dx", i), tolerance, "dx");
    mlc_param_iter it = mlc_param_iter_make(net);
    for (; mlc_param_next(&it); k++)
        check_near(mlc_grad(it.tensor), golden_find(f, "%d.grad.%d", i, k), 4 * tolerance, it.name);
    CHECK(golden_find(f, "%d.grad.%d", i, k) == NULL);
    CHECK_OK(ctx);
}

TEST(tcn, values_and_gradients_are_pytorchs)
{
    double c[CASES * FIELDS];
    FOR_EACH_LEVEL(isa) {
        for (int wide = 0; wide < 2; wide++) {
            mlc_ctx    *ctx = ctx_of((mlc_isa)isa, FLOATS[wide]);
            golden_file f = golden_open(ctx, "tcn.safetensors");
            test_read(golden_find(&f, "cases"), c);
            for (int i = 0; i < CASES; i++)
                check_case(ctx, &f, i, c + i * FIELDS, FLOATS[wide]);
        }
    }
}

TEST(tcn, the_first_losses_of_a_training_are_pytorchs)
{
    double c[CASES * FIELDS], want[LOSSES];
    FOR_EACH_LEVEL(isa) {
        mlc_ctx     *ctx = ctx_of((mlc_isa)isa, MLC_F64);
        golden_file  f = golden_open(ctx, "tcn.safetensors");
        mlc_sgd_desc d = mlc_sgd_desc_make(STEP);
        d.momentum = 0.9;
        test_read(golden_find(&f, "cases"), c);
        test_read(golden_find(&f, "losses"), want);
        mlc_module *net = tcn_of(ctx, c + 2 * FIELDS);
        mlc_tensor *x = x_of(ctx, c + 2 * FIELDS, MLC_F64);
        const int64_t ahead[3] = {x->shape[0], 8, x->shape[2]};
        mlc_tensor *y = mlc_contiguous(mlc_expand(mlc_roll(x, -4, 2), mlc_dims_of(3, ahead)));
        mlc_optim  *opt = mlc_sgd_ex(net, &d);
        for (int i = 0; i < LOSSES; i++) {
            mlc_scope_begin(ctx);
            mlc_tensor *loss = mlc_mse_loss(mlc_forward(net, x), y);
            CHECK_NEAR(mlc_item(loss), want[i], 1e-12);
            CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* ---- causal convolutions of one to three axes ------------------------------------------------ */

typedef struct causal_case {
    int32_t axes;
    int64_t c, out, groups, size[3], kernel, dilation;
} causal_case;

/* Each channel by itself; a reach beyond the sequence; 3x3 in 16 channels, a way of its own. */
static const causal_case CAUSAL[] = {
    {1, 3, 5, 1, {11, 1, 1}, 3, 2},  {1, 16, 16, 1, {40, 1, 1}, 2, 8},
    {1, 6, 6, 6, {9, 1, 1}, 3, 1},   {1, 4, 6, 2, {7, 1, 1}, 4, 3},
    {1, 2, 3, 1, {5, 1, 1}, 3, 100}, {1, 8, 8, 1, {1, 1, 1}, 5, 1},
    {2, 16, 32, 1, {9, 7, 1}, 3, 1}, {2, 3, 4, 1, {5, 6, 1}, 2, 2},
    {2, 8, 8, 8, {6, 5, 1}, 3, 1},   {3, 2, 3, 1, {4, 3, 5}, 2, 1},
};

/* y, dx, dw, by the desc's causal or by an operation that pads. */
static void causal_results(mlc_ctx *ctx, const causal_case *k, mlc_dtype dtype, bool pads,
                           double to[3][MOST])
{
    int64_t  xs[5] = {2, k->c, 0, 0, 0}, ws[5] = {k->out, k->c / k->groups, 0, 0, 0};
    mlc_dims before = mlc_dims_of(2 + k->axes, NULL), after = before;
    mlc_conv_desc d = mlc_conv_desc_make();
    for (int i = 0; i < k->axes; i++) {
        xs[2 + i] = k->size[i];
        ws[2 + i] = k->kernel;
        before.v[2 + i] = k->dilation * (k->kernel - 1);
    }
    d.dilation = mlc_dims_all(k->dilation);
    d.groups = k->groups;
    d.causal = !pads;
    mlc_tensor *x = spread(ctx, dtype, mlc_dims_of(2 + k->axes, xs), 1, 1);
    mlc_tensor *w = spread(ctx, dtype, mlc_dims_of(2 + k->axes, ws), 2, 1);
    mlc_tensor *b = spread(ctx, dtype, mlc_dims1(k->out), 3, 1);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    mlc_tensor *in = pads ? mlc_pad(x, before, after, MLC_PAD_CONSTANT, 0) : x;
    mlc_tensor *y = mlc_conv(in, w, b, &d);
    if (!CHECK(y != NULL))
        return;
    CHECK_EQ(y->shape[2], k->size[0]);
    mlc_tensor *dy = spread(ctx, dtype, mlc_dims_of(y->ndim, y->shape), 4, 1);
    CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
    test_read(mlc_contiguous(y), to[0]);
    test_read(mlc_contiguous(mlc_grad(x)), to[1]);
    test_read(mlc_contiguous(mlc_grad(w)), to[2]);
}

TEST(tcn, a_causal_convolution_is_one_of_what_is_padded_before)
{
    static const double tolerance[4] = {1e-13, 2e-5, 0.15, 0.02};
    static double       got[3][MOST], want[3][MOST];
    FOR_EACH_ISA(ctx) {
        for (size_t k = 0; k < sizeof CAUSAL / sizeof *CAUSAL; k++)
            for (int i = 0; i < 4; i++) {
                int wrong = 0;
                memset(got, 0, sizeof got);
                memset(want, 0, sizeof want);
                mlc_scope_begin(ctx);
                causal_results(ctx, &CAUSAL[k], FLOATS[i], false, got);
                causal_results(ctx, &CAUSAL[k], FLOATS[i], true, want);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
                for (int part = 0; part < 3; part++)
                    for (int e = 0; e < MOST; e++)
                        wrong += !(fabs(got[part][e] - want[part][e]) <=
                                   tolerance[i] * (1 + fabs(want[part][e])));
                if (!CHECK_EQ(wrong, 0))
                    printf("  case %d of %s\n", (int)k, mlc_dtype_name(FLOATS[i]));
            }
    }
}

static mlc_tensor *causal_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)n_in;
    return mlc_conv(in[0], in[1], in[2], (const mlc_conv_desc *)user);
}

TEST(tcn, gradients_of_a_causal_convolution_are_differences)
{
    FOR_EACH_ISA(ctx) {
        mlc_conv_desc        d = mlc_conv_desc_make();
        mlc_gradcheck_report r = {false, 0, 0, 0, 0, 0};
        mlc_tensor *in[3] = {test_rand(ctx, MLC_F64, mlc_dims3(2, 3, 6), 1, -1, 1),
                             test_rand(ctx, MLC_F64, mlc_dims3(4, 3, 3), 2, -1, 1),
                             test_rand(ctx, MLC_F64, mlc_dims1(4), 3, -1, 1)};
        for (int i = 0; i < 3; i++)
            mlc_set_requires_grad(in[i], true);
        d.dilation = mlc_dims_all(2);
        d.causal = true;
        CHECK_EQ(mlc_gradcheck(causal_loss, &d, in, 3, NULL, &r), MLC_OK);
        CHECK(r.ok);
    }
}

/* Of a layer, what is before the first step may be that step again. */
TEST(tcn, a_causal_layer_may_be_padded_by_its_first_step)
{
    FOR_EACH_ISA(ctx) {
        mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 1, 1, 3);
        d.conv.causal = d.no_bias = true;
        d.conv.dilation = mlc_dims_all(2);
        d.padding_mode = MLC_PAD_REPLICATE;
        static const double one[3] = {1, 1, 1}, x[5] = {1, 2, 4, 8, 16};
        static const double want[5] = {3, 4, 6, 11, 21};
        mlc_module *m = mlc_nn_conv(ctx, &d);
        CHECK_EQ(mlc_copy_into(mlc_module_param(m, "weight"),
                               test_tensor(ctx, MLC_F32, mlc_dims3(1, 1, 3), one)), MLC_OK);
        mlc_tensor *y = mlc_forward(m, test_tensor(ctx, MLC_F32, mlc_dims3(1, 1, 5), x));
        CHECK_VALUES(mlc_contiguous(y), 5, want, 0, 0);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

enum { WIDTH = 12, REACH = 29, LONG = 61 };    /* three levels of kernel 3 reach 1 + 2 2 7     */

static mlc_tensor *output(mlc_module *net, mlc_tensor *x)
{
    mlc_no_grad_begin(x->ctx);
    mlc_tensor *y = mlc_contiguous(mlc_forward(net, x));
    mlc_no_grad_end(x->ctx);
    return y;
}

/* x [1,3,n] with one step replaced, in all channels. */
static mlc_tensor *altered(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int64_t at, double by)
{
    static double v[3 * LONG];
    for (int64_t i = 0; i < 3 * n; i++)
        v[i] = i % n == at ? by : golden_spread(i, 5);
    return test_tensor(ctx, dtype, mlc_dims3(1, 3, n), v);
}

TEST(tcn, no_step_of_the_output_knows_a_later_one)
{
    static double was[WIDTH * LONG], is[WIDTH * LONG];
    FOR_EACH_LEVEL(isa) {
        for (int i = 0; i < 4; i++) {
            mlc_ctx    *ctx = ctx_of((mlc_isa)isa, MLC_F32);
            mlc_module *net = tcn(ctx, 3, WIDTH, 3, 3);
            CHECK_EQ(mlc_module_to(net, FLOATS[i]), MLC_OK);
            test_read(output(net, altered(ctx, FLOATS[i], LONG, -1, 0)), was);
            for (int64_t at = 0; at < LONG; at += test_stride(7)) {
                int early = 0, same = 0;
                test_read(output(net, altered(ctx, FLOATS[i], LONG, at, at % 2 ? 100 : NO_NUMBER)),
                          is);
                for (int64_t e = 0; e < WIDTH * LONG; e++) {
                    const bool before = e % LONG < at, beyond = e % LONG >= at + REACH;
                    const bool equal = memcmp(&was[e], &is[e], sizeof *is) == 0;
                    early += (before || beyond) && !equal;
                    same += e % LONG == at && equal;
                }
                CHECK_EQ(early, 0);
                CHECK(same < WIDTH);
            }
            CHECK_OK(ctx);
        }
    }
}

/* The last of REACH steps, and each step of a beginning, has the bits of the whole. */
TEST(tcn, one_step_at_a_time_has_the_bits_of_the_whole_sequence)
{
    static double whole[WIDTH * LONG], part[WIDTH * LONG];
    FOR_EACH_LEVEL(isa) {
        for (int i = 0; i < 4; i++) {
            mlc_ctx    *ctx = ctx_of((mlc_isa)isa, MLC_F32);
            mlc_module *net = tcn(ctx, 3, WIDTH, 3, 3);
            CHECK_EQ(mlc_module_to(net, FLOATS[i]), MLC_OK);
            mlc_tensor *x = altered(ctx, FLOATS[i], LONG, -1, 0);
            int         wrong = 0;
            test_read(output(net, x), whole);
            for (int64_t t = 0; t < LONG; t++) {
                const int64_t from = t < REACH ? 0 : t - REACH + 1, n = t + 1 - from;
                test_read(output(net, mlc_slice(x, 2, from, t + 1, 1)), part);
                for (int64_t c = 0; c < WIDTH; c++)
                    wrong += memcmp(&part[c * n + n - 1], &whole[c * LONG + t], sizeof *part) != 0;
            }
            CHECK_EQ(wrong, 0);
            CHECK_OK(ctx);
        }
    }
}

TEST(tcn, sequences_of_one_step_and_of_none)
{
    FOR_EACH_ISA(ctx) {
        mlc_module *net = tcn(ctx, 2, 4, 5, 3), *conv = mlc_nn_causal_conv1d(ctx, 2, 3, 4, 7);
        for (int64_t t = 0; t < 2; t++) {
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(3, 2, t), 1, -1, 1), *y;
            mlc_set_requires_grad(x, true);
            y = mlc_forward(net, x);
            CHECK(y && y->shape[0] == 3 && y->shape[1] == 4 && y->shape[2] == t);
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
            CHECK_OK(ctx);
        }
        /* One step: the last tap alone, as a product of its own. */
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(3, 2, 1), 1, -1, 1);
        mlc_tensor *tap = mlc_select(mlc_module_param(conv, "weight"), 2, 3);
        mlc_tensor *want = mlc_linear(mlc_select(x, 2, 0), tap, mlc_module_param(conv, "bias"));
        double      v[9];
        test_read(want, v);
        CHECK_VALUES(mlc_contiguous(mlc_forward(conv, x)), 9, v, 1e-6, 1e-6);
        CHECK_OK(ctx);
    }
}

/* ---- a module among others ------------------------------------------------------------------- */

TEST(tcn, dropout_is_in_training_alone_and_names_do_not_depend_on_it)
{
    static double a[WIDTH * LONG], b[WIDTH * LONG];
    FOR_EACH_ISA(ctx) {
        mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(3, WIDTH, 2);
        d.dropout = 0.5;
        mlc_module *net = mlc_nn_tcn(ctx, &d), *plain = tcn(ctx, 3, WIDTH, 2, 3);
        mlc_tensor *x = altered(ctx, MLC_F32, LONG, -1, 0);
        CHECK_EQ(mlc_module_copy(plain, net), MLC_OK);     /* by names                         */
        CHECK(mlc_module_param(net, "1.body.3.bias") && mlc_module_param(net, "0.shortcut.weight"));
        test_read(output(plain, x), a);
        test_read(output(net, x), b);
        CHECK(memcmp(a, b, sizeof a) != 0);
        mlc_module_train(net, false);
        test_read(output(net, x), b);
        CHECK(memcmp(a, b, sizeof a) == 0);
        CHECK_OK(ctx);
    }
}

TEST(tcn, in_bf16_a_network_is_near_and_its_gradients_too)
{
    static double want[3 * LONG], got[3 * LONG];
    FOR_EACH_ISA(ctx) {
        mlc_module *net = tcn(ctx, 3, 16, 3, 3);
        for (int low = 0; low < 2; low++) {
            mlc_tensor *x = altered(ctx, MLC_F32, LONG, -1, 0), *y;
            mlc_set_requires_grad(x, true);
            if (low)
                CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
            y = mlc_forward(net, x);
            if (low)
                CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
            CHECK_EQ(mlc_backward(mlc_mean(mlc_cast(y, MLC_F32), mlc_dims0(), false)), MLC_OK);
            test_read(mlc_contiguous(mlc_grad(x)), low ? got : want);
        }
        double worst = 0, most = 0;
        for (int i = 0; i < 3 * LONG; i++) {
            worst = fmax(worst, fabs(got[i] - want[i]));
            most = fmax(most, fabs(want[i]));
        }
        CHECK(most > 0 && worst < 0.1 * most);
        CHECK_OK(ctx);
    }
}

TEST(tcn, what_cannot_be_made_says_why)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(3, 4, 25);
    mlc_memory      before, after;
    mlc_memory_info(ctx, &before);
    CHECK(mlc_nn_tcn(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_tcn: levels is 25; it must be 1 to 24");
    CHECK(mlc_nn_tcn(ctx, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_nn_tcn_desc_make(in, channels, levels)");
    d.levels = 2;
    d.channels = 0;
    CHECK(mlc_nn_tcn(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "in 3, out 0");
    d.channels = 4;
    d.dropout = 2;
    CHECK(mlc_nn_tcn(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_dropout: p is 2");
    CHECK(mlc_nn_tcn_block(ctx, 3, 4, 0, 1, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "kernel 0");
    CHECK(mlc_nn_causal_conv1d(ctx, 3, 4, 2, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_causal_conv1d: stride 1, dilation 0");
    CHECK(mlc_nn_causal_conv1d(NULL, 3, 4, 2, 1) == NULL && mlc_nn_tcn(NULL, &d) == NULL);
    CHECK(mlc_nn_tcn_block(NULL, 3, 4, 2, 1, 0) == NULL);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
}

TEST(tcn, what_a_network_does_not_take_is_refused_with_its_place)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = tcn(ctx, 3, 4, 2, 3);
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 5, 7))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "in 0.shortcut (Conv): conv: x [2,5,7] has 5 channels");
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 7))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "conv: x [3,7], w [4,3,1]: x must be [n,c,..]");
}

TEST(tcn, causal_goes_with_no_stride_no_padding_and_not_with_same)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_tensor   *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 2, 5));
    mlc_tensor   *w = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 2, 3));
    mlc_conv_desc d = mlc_conv_desc_make();
    d.causal = true;
    CHECK(mlc_conv_transpose(x, w, NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "same or causal asks for stride 1 and no padding, not transp");
    d.stride = mlc_dims_all(2);
    CHECK(mlc_conv(x, w, NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "same or causal asks for stride 1");
    d.stride = mlc_dims_all(1);
    d.padding = mlc_dims_all(1);
    CHECK(mlc_conv(x, w, NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "same or causal asks for stride 1 and no padding");
    d.padding = mlc_dims_all(0);
    d.same = true;
    CHECK(mlc_conv(x, w, NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "not both");
}
