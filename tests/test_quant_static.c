/* test_quant_static.c -- tests of sections IMPL.QUANT.OBSERVE, IMPL.QUANT.CALIBRATE,
 * IMPL.QUANT.FAKE, IMPL.QUANT.CHAIN, IMPL.KERNELS.QPOOL and IMPL.QUANT.AWARE: ranges that are
 * calibrated, layers that use them, floats rounded as integers, integers from layer to layer,
 * training with them
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/golden.h"
#include "guarded.h"
#include "quant.h"

static mlc_quantize_desc static_desc(const mlc_calibration *c, mlc_quant_convention convention)
{
    mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_STATIC);
    d.convention = convention;
    d.calibration = c;
    return d;
}

/* ---- the kernel quantize with a scale that is given ------------------------------------------ */

static struct mlc_k_quantize fixed_args(float *scale, int32_t *zero, const float fixed[2],
                                        int32_t most, int64_t n, uint8_t *out)
{
    struct mlc_k_quantize z;
    memset(&z, 0, sizeof z);
    z.convention = MLC_QUANT_ONNX;
    z.most = most;
    z.n = n;
    z.rows = 1;
    z.out = out;
    z.scale = scale;
    z.zero = zero;
    z.fixed = fixed;
    return z;
}

TEST(quant_static, numbers_become_integers_by_a_scale_that_is_given_and_saturate)
{
    static const int64_t sizes[] = {1, 7, 33, 64, 16384, 16385};
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < 12; s++) {
            const int64_t n = sizes[s / 2];
            const int32_t most = s % 2 ? 127 : 255;
            const float fixed[2] = {0.125f, s % 2 ? 60 : 131};
            float  *x = (float *)guarded_rand(0, MLC_F32, n, (uint64_t)s + 1, -30, 30), scale;
            uint8_t *q = (uint8_t *)caged(1, (size_t)n);
            int32_t zero;
            x[n - 1] = (float)INF;
            if (n > 2) { x[0] = -(float)INF; x[1] = 0.0625f; }
            struct mlc_k_quantize z = fixed_args(&scale, &zero, fixed, most, n, q);
            z.in = x;
            z.workspace_bytes = k->quantize_workspace(NULL, &z);
            z.workspace = guarded(2, z.workspace_bytes);
            CHECK_EQ(k->quantize(NULL, &z), MLC_OK);
            CHECK(cage_holds(q));
            CHECK(scale == fixed[0] && zero == (int32_t)fixed[1]);
            for (int64_t i = 0; i < n; i++) {
                const double v = nearbyint((double)x[i] / 0.125) + (double)fixed[1];
                CHECK_EQ(q[i], (int)(v < 0 ? 0 : v > most ? most : v));
            }
            x[n / 2] = (float)NO_NUMBER;
            CHECK_EQ(k->quantize(NULL, &z), MLC_OK);
            CHECK(scale != scale);
        }
    }
}

/* ---- the kernel qpool ------------------------------------------------------------------------ */

typedef struct window_case { int64_t c, in[3], kernel[3], stride[3], dilation[3], pad[3], out[3]; }
    window_case;
static const window_case WINDOWS[] = {
    {1, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}},
    {7, {1, 5, 6}, {1, 3, 2}, {1, 2, 1}, {1, 1, 1}, {0, 1, 1}, {1, 3, 7}},
    {33, {2, 3, 5}, {2, 3, 3}, {1, 1, 3}, {1, 1, 1}, {1, 1, 0}, {3, 3, 1}},
    {300, {1, 4, 4}, {1, 4, 4}, {1, 4, 4}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}},
    {16, {1, 1, 9}, {1, 1, 3}, {1, 1, 2}, {1, 1, 2}, {0, 0, 1}, {1, 1, 4}},
};
enum { WINDOW_COUNT = sizeof WINDOWS / sizeof *WINDOWS };

/* One number of the result: of the maximum, or of the mean in f32, rounded as all numbers are. */
static int window_at(const struct mlc_k_qpool *a, const uint8_t *x, int64_t image,
                     const int64_t o[3], int64_t c)
{
    const struct mlc_k_pool *g = &a->pool;
    int64_t at[3], from[3], to[3];
    int     most = g->relu ? (int)a->x_by[1] : 0, sum = 0, pixels = 0;
    double  divisor = 1;
    for (int d = 0; d < 3; d++) {
        from[d] = g->adaptive ? o[d] * g->in[d] / g->out[d] : o[d] * g->stride[d] - g->pad[d];
        to[d] = g->adaptive ? ((o[d] + 1) * g->in[d] + g->out[d] - 1) / g->out[d]
                            : from[d] + (g->kernel[d] - 1) * g->dilation[d] + 1;
        const int64_t end = g->adaptive ? to[d] : g->in[d] + g->pad[d];
        divisor *= (double)((to[d] < end ? to[d] : end) - from[d]);
    }
    for (at[0] = from[0]; at[0] < to[0]; at[0] += g->dilation[0])
        for (at[1] = from[1]; at[1] < to[1]; at[1] += g->dilation[1])
            for (at[2] = from[2]; at[2] < to[2]; at[2] += g->dilation[2]) {
                bool in = true;
                for (int d = 0; d < 3; d++)
                    in = in && at[d] >= 0 && at[d] < g->in[d];
                if (!in)
                    continue;
                const int64_t pixel = ((image * g->in[0] + at[0]) * g->in[1] + at[1]) * g->in[2] +
                                      at[2];
                most = x[pixel * g->c + c] > most ? x[pixel * g->c + c] : most;
                sum += x[pixel * g->c + c];
                pixels++;
            }
    if (g->max)
        return most;
    const float mean = a->x_by[0] * (float)(sum - pixels * (int)a->x_by[1]) /
                       (float)(g->count_pad ? divisor : pixels);
    const float by = 1.0f / a->y_by[0];
    const float v = rintf(a->convention == MLC_QUANT_ONNX ? mean / a->y_by[0] : mean * by) +
                    a->y_by[1];
    return (int)(v < 0 ? 0 : v > (float)a->most ? (float)a->most : v);
}

/* Maxima, with relu, and means, with and without padding in the divisor, adaptive ones, of either
 * convention; scales of no calibration. */
TEST(quant_static, windows_of_bytes_are_those_of_the_definition)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < WINDOW_COUNT * 6; s++) {
            const window_case *w = &WINDOWS[s / 6];
            const bool spread = w->dilation[2] > 1;
            const float x_by[2] = {0.02f, 37}, y_by[2] = {0.013f, s % 2 ? 3 : 90};
            struct mlc_k_qpool a;
            const int64_t n = 2;
            int64_t pixels = n, all = n;
            memset(&a, 0, sizeof a);
            a.pool.dtype = MLC_U8;
            a.pool.max = s % 6 < 2 || spread;
            a.pool.relu = s % 6 == 1;
            a.pool.adaptive = s % 6 == 5 && !spread;
            a.pool.count_pad = s % 6 == 3;
            a.pool.n = n;
            a.pool.c = w->c;
            for (int d = 0; d < 3; d++) {
                a.pool.in[d] = w->in[d];
                a.pool.out[d] = a.pool.adaptive ? (w->in[d] + 1) / 2 : w->out[d];
                a.pool.kernel[d] = w->kernel[d];
                a.pool.stride[d] = w->stride[d];
                a.pool.dilation[d] = w->dilation[d];
                a.pool.pad[d] = w->pad[d];
                all *= a.pool.in[d];
                pixels *= a.pool.out[d];
            }
            a.convention = s % 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH;
            a.most = s % 4 < 2 ? 127 : 255;
            a.x_by = x_by;
            a.y_by = y_by;
            uint8_t *x = (uint8_t *)guarded_rand(0, MLC_U8, all * w->c, (uint64_t)s + 1, 0, 255);
            uint8_t *y = (uint8_t *)caged(1, (size_t)(pixels * w->c));
            a.pool.x = x;
            a.pool.y = y;
            CHECK_EQ(k->qpool(NULL, &a), MLC_OK);
            CHECK(cage_holds(y));
            for (int64_t i = 0; i < pixels * w->c; i++) {
                int64_t p = i / w->c, o[3];
                for (int d = 2; d >= 0; d--) {
                    o[d] = p % a.pool.out[d];
                    p /= a.pool.out[d];
                }
                CHECK_EQ(y[i], window_at(&a, x, p, o, i % w->c));
            }
            const float none[2] = {0, 0};
            a.y_by = none;
            CHECK_EQ(k->qpool(NULL, &a), MLC_OK);
            CHECK(a.pool.max || y[0] == 0);
            a.pool.dtype = MLC_F32;
            CHECK_EQ(k->qpool(NULL, &a), MLC_ERR_UNSUPPORTED);
        }
    }
}

/* ---- observers ------------------------------------------------------------------------------- */

static const char *const CASES[] = {"grows", "shrinks", "plus", "minus", "tails"};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

/* A network whose one layer has the rows of x as its inputs. */
static mlc_module *one_layer(mlc_ctx *ctx, int64_t in)
{
    return in_sequence(ctx, 1, mlc_nn_linear(ctx, in, 2));
}

static mlc_module *two_ways(mlc_ctx *ctx)
{
    return in_sequence(ctx, 3, mlc_nn_linear(ctx, 8, 8), mlc_nn_relu(ctx),
                       mlc_nn_linear(ctx, 8, 8));
}

/* A calibration with the rows of x [..,n] as batches. */
static mlc_calibration *calibrated(mlc_module *net, const mlc_calibrate_desc *d, mlc_tensor *x)
{
    mlc_calibration *c = mlc_calibrate_begin(net, d);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    for (int64_t r = 0; r < x->shape[0]; r++)
        CHECK(mlc_forward(net, mlc_slice(x, 0, r, r + 1, 1)) != NULL);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    return c;
}

/* Range, scale and zero of a case by PyTorch's or ONNX Runtime's observer. */
static void check_observer(const golden_file *g, mlc_ctx *ctx, const char *name, const char *whose,
                           const char *kind, const mlc_calibrate_desc *d)
{
    static const char *const forms[] = {"affine", "symmetric", "reduced", "halved"};
    const bool torch = whose[0] == 't';
    mlc_tensor *x = golden_find(g, "%s.x", name);
    for (int f = 0; f < (torch ? 4 : 2); f++) {
        mlc_module        *net = one_layer(ctx, x->shape[1]);
        mlc_calibration   *c = calibrated(net, d, x);
        mlc_quantize_desc  q = static_desc(c, torch ? MLC_QUANT_TORCH : MLC_QUANT_ONNX);
        double             range[2];
        q.symmetric = f % 2 != 0;
        q.full_range = f < 2;
        CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
        const float *want = mlc_f32(golden_find(g, "%s.%s.%s.range", name, whose, kind));
        CHECK((float)range[0] == want[0] && (float)range[1] == want[1]);
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        const float *is = mlc_f32(mlc_module_param(net, "0.weight_input"));
        mlc_tensor  *scale = golden_find(g, "%s.%s.%s.%s.scale", name, whose, kind, forms[f]);
        mlc_tensor  *zero = golden_find(g, "%s.%s.%s.%s.zero", name, whose, kind, forms[f]);
        CHECK(is[0] == mlc_f32(scale)[0]);
        CHECK_EQ((int)is[1], mlc_i32(zero)[0]);
        CHECK_OK(ctx);
        mlc_calibration_free(c);
        mlc_module_free(net);
    }
}

TEST(quant_static, ranges_are_those_of_pytorchs_observers)
{
    ONLY_ON_HOST();
    static const char *const kinds[] = {"min_max", "moving", "squares"};
    static const mlc_quant_observer observers[] = {MLC_QUANT_MIN_MAX, MLC_QUANT_MOVING,
                                                   MLC_QUANT_SQUARES};
    mlc_ctx *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "quant_static.safetensors");
    for (int i = 0; i < CASE_COUNT * 3; i++) {
        mlc_calibrate_desc d = mlc_calibrate_desc_make(observers[i % 3]);
        d.rate = 0.3;
        check_observer(&g, ctx, CASES[i / 3], "torch", kinds[i % 3], &d);
    }
}

TEST(quant_static, ranges_are_those_of_onnxruntimes_calibrators)
{
    ONLY_ON_HOST();
    static const char *const kinds[] = {"min_max", "percentile", "entropy"};
    static const mlc_quant_observer observers[] = {MLC_QUANT_MIN_MAX, MLC_QUANT_PERCENTILE,
                                                   MLC_QUANT_ENTROPY};
    mlc_ctx *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "quant_static.safetensors");
    for (int i = 0; i < CASE_COUNT * 3; i++) {
        mlc_calibrate_desc d = mlc_calibrate_desc_make(observers[i % 3]);
        d.percentile = 98;
        d.levels = 64;
        check_observer(&g, ctx, CASES[i / 3], "onnx", kinds[i % 3], &d);
    }
}

/* Bins that grow, and those of zeros before small numbers. */
TEST(quant_static, ranges_after_growth_and_zeros_are_those_of_onnxruntime)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    const golden_file  g = golden_open(ctx, "quant_static.safetensors");
    mlc_tensor        *x = golden_find(&g, "growths.x"), *want = golden_find(&g, "growths.range");
    mlc_calibrate_desc d = mlc_calibrate_desc_make(MLC_QUANT_PERCENTILE);
    d.bins = 256;
    d.percentile = 80;
    for (int64_t i = 0; i < x->shape[0]; i++) {
        mlc_module      *net = one_layer(ctx, x->shape[2]);
        mlc_calibration *c = calibrated(net, &d, mlc_select(x, 0, i));
        const float     *is = mlc_f32(want) + 2 * i;
        double           range[2];
        CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
        CHECK((float)range[0] == is[0] && (float)range[1] == is[1]);
        mlc_calibration_free(c);
        mlc_module_free(net);
    }
    CHECK_OK(ctx);
}

/* 8192 bins become wider ones: counts stay whole, and so ENTROPY has the divergence of each. */
TEST(quant_static, entropy_has_whole_counts_where_bins_are_widened)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    const golden_file  g = golden_open(ctx, "quant_static.safetensors");
    mlc_tensor        *x = golden_find(&g, "widened.x");
    const float       *want = mlc_f32(golden_find(&g, "widened.range"));
    mlc_calibrate_desc d = mlc_calibrate_desc_make(MLC_QUANT_ENTROPY);
    double             range[2];
    d.bins = 8192;
    d.levels = 7900;
    mlc_calibration *c = calibrated(one_layer(ctx, x->shape[1]), &d, x);
    CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
    CHECK((float)range[0] == want[0] && (float)range[1] == want[1]);
    mlc_calibration_free(c);
    CHECK_OK(ctx);
}

/* The middle of a bin is a number of f32 as long as twice the largest number is. */
TEST(quant_static, numbers_beyond_bins_are_errors)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims2(1, 4), 1);
    for (int o = MLC_QUANT_PERCENTILE; o <= MLC_QUANT_SQUARES; o++)
        for (int far = 0; far < 2; far++) {
            mlc_module        *net = one_layer(ctx, 4);
            mlc_calibrate_desc d = mlc_calibrate_desc_make((mlc_quant_observer)o);
            double             range[2];
            CHECK_EQ(mlc_eval_begin(net), MLC_OK);
            mlc_calibration *c = mlc_calibrate_begin(net, &d);
            mlc_f32(x)[2] = -1;
            (void)mlc_forward(net, x);
            mlc_f32(x)[2] = far ? -9e37f : -8e37f;
            (void)mlc_forward(net, x);
            if (far)
                CHECK_ERROR(ctx, MLC_ERR_VALUE, "the input of 0.weight is from -9e+37 to 1");
            CHECK_OK(ctx);
            CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
            CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
            CHECK(range[0] >= -8e37 && range[0] <= range[1] && range[1] <= 1);
            mlc_calibration_free(c);
            mlc_module_free(net);
        }
}

/* Zeros alone have a scale; then numbers come. A range that outgrows the bins by a million has as
 * many numbers as before. */
TEST(quant_static, observers_take_zeros_constants_and_jumps)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int o = 0; o < 5; o++) {
        const mlc_calibrate_desc d = mlc_calibrate_desc_make((mlc_quant_observer)o);
        for (int s = 0; s < 4; s++) {
            mlc_module  *net = one_layer(ctx, 200);
            mlc_tensor  *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 200));
            mlc_quant_row row;
            mlc_quant_report report = {&row, 1, 0, 0, 0, 0};
            double range[2];
            for (int i = 0; i < 600; i++)
                mlc_f32(x)[i] = s == 0 ? 0 : s == 1 ? -2.5f : s == 2 ? (i > 399 ? i % 7 - 2 : 0)
                                : (i > 399 ? 1e6f : 1) * (float)(i % 9 - 4);
            mlc_calibration *c = calibrated(net, &d, x);
            CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
            CHECK(range[0] <= range[1]);
            if (s < 2)
                CHECK(range[0] == (s ? -2.5 : 0) && range[1] == range[0]);
            const mlc_quantize_desc q = static_desc(c, MLC_QUANT_ONNX);
            CHECK_EQ(mlc_quantize(net, &q, &report), MLC_OK);
            CHECK_EQ(row.batches, 3);
            CHECK_EQ(row.inputs, 600);
            CHECK(row.beyond >= 0 && row.beyond <= 600);
            if (o == MLC_QUANT_MIN_MAX)
                CHECK_EQ(row.beyond, 0);
            CHECK(mlc_forward(net, x) != NULL);
            CHECK_OK(ctx);
            mlc_calibration_free(c);
        }
    }
}

/* The report counts what a range leaves out. */
TEST(quant_static, numbers_beyond_the_range_are_counted)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 100));
    for (int i = 0; i < 200; i++)
        mlc_f32(x)[i] = i < 6 ? 50 : (float)(i % 20) * 0.05f;
    for (int o = 0; o < 2; o++) {
        mlc_module *net = one_layer(ctx, 100);
        mlc_calibrate_desc d = mlc_calibrate_desc_make(o ? MLC_QUANT_PERCENTILE : MLC_QUANT_MOVING);
        mlc_quant_row row;
        mlc_quant_report report = {&row, 1, 0, 0, 0, 0};
        d.percentile = 90;
        d.rate = 0.5;
        mlc_calibration *c = calibrated(net, &d, x);
        const mlc_quantize_desc q = static_desc(c, MLC_QUANT_ONNX);
        CHECK_EQ(mlc_quantize(net, &q, &report), MLC_OK);
        CHECK(o ? row.input_hi < 2 : fabs(row.input_hi - 0.5 * (50 + 0.95)) < 0.1);
        CHECK_EQ(row.beyond, o ? 6 + 10 : 0);        /* 0.95 is; the first average was 50 */
        mlc_calibration_free(c);
    }
    CHECK_OK(ctx);
}

/* ---- mlc_fake_quantize ----------------------------------------------------------------------- */

/* The same bits as PyTorch's, but for gradients of scales, which are sums. */
TEST(fake_quantize, values_and_gradients_are_those_of_pytorch)
{
    ONLY_ON_HOST();
    static const char *const kinds[] = {"plain", "learned"}, *const forms[] = {"tensor", "channel"};
    FOR_EACH_ISA(ctx) {
        const golden_file g = golden_open(ctx, "quant_static.safetensors");
        for (int i = 0; i < 4; i++) {
            const char *kind = kinds[i / 2], *form = forms[i % 2];
            mlc_fake_quantize_desc d = mlc_fake_quantize_desc_make();
            mlc_tensor *x = mlc_copy(golden_find(&g, "fake.x"));
            mlc_tensor *scale = golden_find(&g, "fake.scale"), *zero = golden_find(&g, "fake.zero");
            d.lo = -8;
            d.hi = 7;
            d.axis = -2;
            d.rate = i / 2 ? 0.25 : 0;
            scale = mlc_copy(i % 2 ? scale : mlc_slice(scale, 0, 0, 1, 1));
            zero = i % 2 ? zero : mlc_slice(zero, 0, 0, 1, 1);
            mlc_set_requires_grad(x, true);
            mlc_set_requires_grad(scale, i / 2 != 0);
            for (int twice = 1; twice <= 2; twice++) {     /* the second adds to the first */
                mlc_tensor *y = mlc_fake_quantize(x, scale, zero, &d);
                mlc_tensor *dy = golden_find(&g, "fake.dy");
                CHECK_EQ(mlc_backward_from(y, dy), MLC_OK);
                CHECK_OK(ctx);
                mlc_tensor *want = golden_find(&g, "fake.%s.%s.y", kind, form);
                mlc_tensor *dx = golden_find(&g, "fake.%s.%s.dx", kind, form);
                CHECK(memcmp(mlc_f32(y), mlc_f32(want), (size_t)mlc_numel(want) * 4) == 0);
                for (int64_t k = 0; k < mlc_numel(dx); k++)
                    CHECK(mlc_f32(mlc_grad(x))[k] == (float)twice * mlc_f32(dx)[k]);
                if (i / 2 == 0)
                    continue;
                const float *ds = mlc_f32(golden_find(&g, "fake.%s.%s.dscale", kind, form));
                for (int64_t k = 0; k < mlc_numel(scale); k++)
                    CHECK_NEAR((double)mlc_f32(mlc_grad(scale))[k],
                               twice * (double)ds[k], 1e-5);
            }
        }
    }
}

/* Rows, ends of the range, NaN and long lines at every level; ONNX divides. */
TEST(fake_quantize, rounds_clamps_and_keeps_nan)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int s = 0; s < 4; s++) {
            const int64_t n = s % 2 ? 40001 : 21;
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims1(n), 3, -20, 20);
            mlc_tensor *scale = mlc_full(ctx, MLC_F32, mlc_dims1(1), 0.1);
            mlc_fake_quantize_desc d = mlc_fake_quantize_desc_make();
            d.convention = (mlc_quant_convention)(s / 2);
            mlc_f32(x)[4] = (float)INF;
            mlc_f32(x)[n - 1] = (float)NO_NUMBER;
            mlc_tensor *y = mlc_fake_quantize(x, scale, NULL, &d);
            CHECK_OK(ctx);
            for (int64_t i = 0; i + 1 < n; i++) {
                const float v = mlc_f32(x)[i], k = 0.1f, by = 1.0f / k;
                float q = nearbyintf(s / 2 ? v / k : v * by);
                q = q < -128 ? -128 : q > 127 ? 127 : q;
                CHECK(mlc_f32(y)[i] == q * k);
            }
            CHECK(mlc_f32(y)[n - 1] != mlc_f32(y)[n - 1]);
            y = mlc_fake_quantize(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3)), scale, NULL, NULL);
            CHECK(y && mlc_numel(y) == 0);
        }
}

TEST(fake_quantize, scales_that_are_not_over_0_are_errors)
{
    ONLY_ON_HOST();
    const double bad[] = {0, -0.5, INF, NO_NUMBER};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 2), 1, -1, 1);
    mlc_tensor *scale = mlc_full(ctx, MLC_F32, mlc_dims1(3), 0.1);
    for (int i = 0; i < 4; i++) {
        mlc_f32(scale)[1] = (float)bad[i];
        CHECK(mlc_fake_quantize(x, scale, NULL, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "fake_quantize: scale 1 is ");
    }
}

TEST(fake_quantize, wrong_inputs_are_errors)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_fake_quantize_desc d = mlc_fake_quantize_desc_make();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 3, -1, 1);
    mlc_tensor *scale = mlc_full(ctx, MLC_F32, mlc_dims1(1), 0.1);
    CHECK(mlc_fake_quantize(x, mlc_ones(ctx, MLC_F32, mlc_dims1(4)), NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "scale is [4], zero none; with x [3,4] and axis 0");
    CHECK(mlc_fake_quantize(x, scale, scale, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "x is f32, scale f32, zero f32");
    d.hi = d.lo;
    CHECK(mlc_fake_quantize(x, scale, NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "lo -128, hi -128");
    d = mlc_fake_quantize_desc_make();
    d.axis = 2;
    CHECK(mlc_fake_quantize(x, scale, NULL, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "axis 2 of x [3,4]");
    mlc_set_requires_grad(scale, true);
    CHECK(mlc_fake_quantize(x, scale, NULL, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the scale wants a gradient, and desc.rate is 0");
    CHECK(mlc_fake_quantize(x, NULL, NULL, NULL) == NULL);
    mlc_error_clear(ctx);
    CHECK(mlc_fake_quantize(NULL, scale, NULL, NULL) == NULL);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static mlc_module *golden_layer(mlc_ctx *ctx, const golden_file *g, const char *name)
{
    mlc_tensor *w = golden_find(g, "%s.weight", name);
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 3, 6, 3);
    d.conv.padding = mlc_dims_all(1);
    d.conv.stride = mlc_dims2(2, 1);
    mlc_module *net = in_sequence(ctx, 1, w->ndim == 2 ? mlc_nn_linear(ctx, 20, 7)
                                                       : mlc_nn_conv(ctx, &d));
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.weight"), w), MLC_OK);
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.bias"), golden_find(g, "%s.bias", name)),
             MLC_OK);
    return net;
}

/* Integers, scales and zeros bit for bit; theirs are rounded once more, to a step of the output. */
TEST(quant_static, layers_are_those_of_pytorch_and_onnx)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx) {
        const golden_file g = golden_open(ctx, "quant_static.safetensors");
        for (int i = 0; i < 4; i++) {
            const char *name = i / 2 ? "conv" : "linear", *whose = i % 2 ? "onnx" : "torch";
            mlc_module *net = golden_layer(ctx, &g, name);
            mlc_calibration *c = mlc_calibrate_begin(net, NULL);
            CHECK_EQ(mlc_eval_begin(net), MLC_OK);
            for (int b = 0; b < 2; b++)
                CHECK(mlc_forward(net, golden_find(&g, "%s.x%d", name, b)) != NULL);
            CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
            const mlc_quantize_desc d = static_desc(c, i % 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH);
            CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
            mlc_tensor *q = golden_find(&g, "%s.%s.q", name, whose);
            mlc_tensor *scale = golden_find(&g, "%s.%s.w_scale", name, whose);
            const float *input = mlc_f32(golden_find(&g, "%s.%s.input", name, whose));
            CHECK(memcmp(mlc_i8(mlc_module_param(net, "0.weight")), mlc_i8(q),
                         (size_t)mlc_numel(q)) == 0);
            CHECK(memcmp(mlc_f32(mlc_module_param(net, "0.weight_scale")), mlc_f32(scale),
                         (size_t)mlc_numel(scale) * 4) == 0);
            CHECK(memcmp(mlc_f32(mlc_module_param(net, "0.weight_input")), input, 8) == 0);
            mlc_tensor *y = mlc_contiguous(mlc_forward(net, golden_find(&g, "%s.x1", name)));
            mlc_tensor *want = golden_find(&g, "%s.%s.y", name, whose);
            const double step = (double)mlc_f32(golden_find(&g, "%s.%s.step", name, whose))[0];
            CHECK_OK(ctx);
            CHECK_EQ(mlc_numel(y), mlc_numel(want));
            for (int64_t k = 0; k < mlc_numel(want); k++)
                CHECK_NEAR((double)mlc_f32(y)[k], (double)mlc_f32(want)[k], 1.0001 * step);
            mlc_calibration_free(c);
            mlc_module_free(net);
        }
    }
}

static mlc_module *image_net(mlc_ctx *ctx)
{
    mlc_module *body = in_sequence(ctx, 3, mlc_nn_conv2d(ctx, 8, 8, 3, 1, 1), mlc_nn_relu(ctx),
                                   mlc_nn_conv2d(ctx, 8, 8, 3, 1, 1));
    return in_sequence(ctx, 6, mlc_nn_conv2d(ctx, 3, 8, 3, 2, 1), mlc_nn_batch_norm(ctx, 8),
                       mlc_nn_relu(ctx), mlc_nn_residual(ctx, body, NULL, true),
                       mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 8 * 4 * 5, 10));
}

/* Convolutions with folded norms, a residual and a linear: near the floats on other images, with a
 * loader, at every level; equal after a file and a clone. */
TEST(quant_static, networks_are_near_their_floats_and_in_files)
{
    ONLY_ON_HOST();
    const box file = box_open("quant_static.safetensors");
    FOR_EACH_ISA(ctx)
        for (int o = 0; o < 5; o++) {
            mlc_module *net = image_net(ctx), *other = image_net(ctx);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(40, 3, 7, 9), 5, -1, 1);
            mlc_tensor *held = test_rand(ctx, MLC_F32, mlc_dims4(4, 3, 7, 9), 6, -1, 1);
            mlc_loader *loader = mlc_loader_ordered(ctx, x, NULL, 8);
            CHECK_EQ(mlc_eval_begin(net), MLC_OK);
            CHECK_EQ(mlc_eval_begin(other), MLC_OK);
            CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
            CHECK_EQ(mlc_nn_fold_batch_norm(other), MLC_OK);
            mlc_tensor *want = mlc_forward(net, held);
            const mlc_calibrate_desc cd = mlc_calibrate_desc_make((mlc_quant_observer)o);
            mlc_calibration *c = mlc_calibrate(net, &cd, loader, 3);
            mlc_tensor *again = mlc_forward(net, held);
            CHECK(memcmp(mlc_f32(again), mlc_f32(want), (size_t)mlc_numel(want) * 4) == 0);
            mlc_quantize_desc d = static_desc(c, o % 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH);
            mlc_quant_row rows[4];
            mlc_quant_report report = {rows, 4, 0, 0, 0, 0};
            CHECK_EQ(mlc_quantize(net, &d, &report), MLC_OK);
            CHECK_EQ(report.n, 4);
            CHECK_EQ(rows[0].batches, 3);
            CHECK_EQ(rows[0].inputs, 3 * 8 * 3 * 7 * 9);
            mlc_tensor *y = mlc_forward(net, held);
            CHECK_OK(ctx);
            const double off = rms_apart(y, want);
            CHECK(off > 0 && off < 0.05);
            /* A network that has no ranges gets them from a file. */
            CHECK_EQ(mlc_save(net, file.path), MLC_OK);
            d.calibration = NULL;
            CHECK_EQ(mlc_quantize(other, &d, NULL), MLC_OK);
            CHECK(mlc_forward(other, held) == NULL);
            CHECK_ERROR(ctx, MLC_ERR_STATE, "quantized without a calibration");
            CHECK_EQ(mlc_load(other, file.path), MLC_OK);
            again = mlc_forward(other, held);
            CHECK(memcmp(mlc_f32(again), mlc_f32(y), (size_t)mlc_numel(y) * 4) == 0);
            mlc_calibration_free(c);
            mlc_module *clone = mlc_module_clone(net);
            mlc_module_free(net);
            again = mlc_forward(clone, held);
            CHECK(memcmp(mlc_f32(again), mlc_f32(y), (size_t)mlc_numel(y) * 4) == 0);
            CHECK_OK(ctx);
            mlc_module_free(other);
            mlc_loader_free(loader);
        }
    box_close(&file);
}

/* Each weight of blocks, of recurrent layers with states, and of a tied head has a range. */
TEST(quant_static, attention_and_recurrent_layers_are_near_their_floats)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int s = 0; s < 2 * 4; s++) {
        mlc_nn_transformer_desc t = mlc_nn_transformer_desc_make(32, 4);
        mlc_nn_rnn_desc r = mlc_nn_rnn_desc_make((mlc_rnn_kind)(s / 2), 32, 24);
        t.hidden = 64;
        r.bidirectional = s / 2 % 2 != 0;
        mlc_module *net = s % 2 ? mlc_nn_rnn_ex(ctx, &r)
                                : mlc_nn_transformer_encoder_layer(ctx, &t);
        mlc_module *q = mlc_module_clone(net);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(4, 6, 32), 3, -1, 1), *state[2];
        for (int i = 0; i < 2; i++)
            state[i] = test_rand(ctx, MLC_F32, mlc_dims3(r.bidirectional ? 2 : 1, 4, 24), 9, -2, 2);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        CHECK_EQ(mlc_eval_begin(q), MLC_OK);
        mlc_calibration *c = mlc_calibrate_begin(net, NULL);
        mlc_tensor *y, *z;
        if (s % 2)
            CHECK_EQ(mlc_rnn_forward(net, x, NULL, state, &y, NULL), MLC_OK);
        else
            y = mlc_forward(net, x);
        CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
        const mlc_quantize_desc d = static_desc(c, MLC_QUANT_ONNX);
        CHECK_EQ(mlc_quantize(q, &d, NULL), MLC_OK);
        if (s % 2)
            CHECK_EQ(mlc_rnn_forward(q, x, NULL, state, &z, NULL), MLC_OK);
        else
            z = mlc_forward(q, x);
        CHECK_OK(ctx);
        const double off = rms_apart(z, y);
        CHECK(off > 0 && off < 0.03);
        double range[2];
        if (s % 2) {                   /* the states of before are in the range */
            CHECK_EQ(mlc_calibration_range(c, "weight_hh_l0", range), MLC_OK);
            CHECK(range[1] > 1.5);
        }
        mlc_calibration_free(c);
    }
}

TEST(quant_static, tables_tied_heads_and_sketches_are_quantized_with_it)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    static const int64_t text[4] = {3, 1, 4, 1};
    mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(50, 24, 2, 64, 4);
    mlc_module *net = mlc_nn_gpt(ctx, &g);
    mlc_tensor *x = mlc_from(ctx, MLC_I64, mlc_dims2(1, 4), text);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    mlc_quantize_desc d = static_desc(c, MLC_QUANT_ONNX);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    mlc_tensor *tied = mlc_module_param(net, "embed.weight_input");
    CHECK(tied && tied == mlc_module_param(net, "head.weight_input"));
    CHECK(rms_apart(mlc_forward(net, x), y) < 0.05);
    CHECK_OK(ctx);
    mlc_calibration_free(c);
    /* A sketched layer is dynamic, an embedding has no activations. */
    mlc_nn_sklinear_desc k = mlc_nn_sklinear_desc_make(64, 96, 2, 16);
    net = in_sequence(ctx, 3, mlc_nn_embedding(ctx, 9, 64), mlc_nn_sklinear_ex(ctx, &k),
                      mlc_nn_linear(ctx, 96, 5));
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    c = mlc_calibrate_begin(net, NULL);
    y = mlc_forward(net, x);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    d.calibration = c;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK(mlc_module_param(net, "0.weight_input") == NULL);
    mlc_error_clear(ctx);
    CHECK(rms_apart(mlc_forward(net, x), y) < 0.05);
    CHECK_OK(ctx);
    mlc_calibration_free(c);
}

/* A plan replays the quantizing with the scale of the buffer. */
TEST(quant_static, plans_have_the_same_bits)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = image_net(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 7, 9), 5, -1, 1);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    const mlc_quantize_desc d = static_desc(c, MLC_QUANT_TORCH);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
    x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 7, 9), 8, -1, 1);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    CHECK(memcmp(mlc_f32(y), mlc_f32(mlc_plan_output(p, 0)), (size_t)mlc_numel(y) * 4) == 0);
    mlc_f32(x)[11] = (float)NO_NUMBER;
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    /* No values are checked: an integer of the range. */
    CHECK(mlc_f32(mlc_plan_output(p, 0))[0] == mlc_f32(mlc_plan_output(p, 0))[0]);
    CHECK_OK(ctx);
    mlc_plan_free(p);
    mlc_calibration_free(c);
}

/* A plan checks no values: without a scale it gives NaN, and results once there is one. */
TEST(quant_static, plans_without_a_calibration_give_nan)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    const mlc_quantize_desc d = static_desc(NULL, MLC_QUANT_TORCH);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 5, -1, 1);
    for (int s = 0; s < 2; s++) {
        mlc_module *net = s ? two_ways(ctx) : one_layer(ctx, 8);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
        CHECK(mlc_forward(net, x) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_STATE, "was quantized without a calibration");
        mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_tensor *y = mlc_plan_output(p, 0);
        for (int64_t i = 0; i < mlc_numel(y); i++)
            CHECK(mlc_f32(y)[i] != mlc_f32(y)[i]);
        for (int i = 0; i <= s; i++) {
            mlc_tensor *in = mlc_module_param(net, i ? "2.weight_input" : "0.weight_input");
            mlc_f32(in)[0] = 0.02f;
            mlc_f32(in)[1] = 60;
        }
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        mlc_tensor *want = mlc_forward(net, x);
        CHECK(memcmp(mlc_f32(y), mlc_f32(want), (size_t)mlc_numel(y) * 4) == 0);
        CHECK_OK(ctx);
        mlc_plan_free(p);
        mlc_module_free(net);
    }
}

/* ---- chains of integers ---------------------------------------------------------------------- */

/* Static by the ranges of x, in evaluation. */
static void make_static(mlc_module *net, mlc_tensor *x, mlc_quant_convention convention)
{
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    const mlc_quantize_desc d = static_desc(c, convention);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    mlc_calibration_free(c);
}

/* Layers one by one give floats; in a chain their integers are the same, and so are the outputs. */
TEST(quant_chain, outputs_are_those_of_layers_one_by_one)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int s = 0; s < 2; s++) {
            mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 12, 8, 3);
            d.conv.groups = 2;
            d.conv.act = MLC_ACT_TANH;
            d.no_bias = true;
            mlc_module *inner = in_sequence(ctx, 2, mlc_nn_conv2d(ctx, 8, 12, 3, 2, 1),
                                            mlc_nn_relu(ctx));
            mlc_module *net = in_sequence(ctx, 6, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1),
                                          mlc_nn_relu(ctx), inner, mlc_nn_conv(ctx, &d),
                                          mlc_nn_conv2d(ctx, 8, 5, 1, 1, 0), mlc_nn_sigmoid(ctx));
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(3, 3, 9, 11), 3, -1, 1);
            make_static(net, x, (mlc_quant_convention)s);
            x = test_rand(ctx, MLC_F32, mlc_dims4(3, 3, 9, 11), 4, -2, 2);
            mlc_tensor *y = mlc_forward(net, x), *z = x;
            for (int i = 0; i < 6; i++)
                if (i != 2)
                    z = mlc_forward(mlc_module_child(net, i), z);
                else
                    for (int k = 0; k < 2; k++)
                        z = mlc_forward(mlc_module_child(inner, k), z);
            CHECK_OK(ctx);
            CHECK_EQ(y->dtype, MLC_F32);
            CHECK(memcmp(mlc_f32(mlc_contiguous(y)), mlc_f32(mlc_contiguous(z)),
                         (size_t)mlc_numel(y) * 4) == 0);
            mlc_module_free(net);
        }
}

/* Numbers of operations that give floats, in a forward in evaluation. */
static void count_floats(void *user, const mlc_op_event *e)
{
    *(int *)user += e->n_out > 0 && e->out[0]->dtype == MLC_F32;
}

static int floats_in(mlc_module *net, mlc_tensor *x, mlc_tensor **y)
{
    mlc_hooks hooks;
    int       n = 0;
    memset(&hooks, 0, sizeof hooks);
    hooks.user = &n;
    hooks.op_end = count_floats;
    const int32_t id = mlc_hooks_add(mlc_module_ctx(net), &hooks);
    *y = mlc_forward(net, x);
    CHECK_EQ(mlc_hooks_remove(mlc_module_ctx(net), id), MLC_OK);
    return n;
}

/* The output of the n children of net, one after the other. */
static mlc_tensor *one_by_one(mlc_module *net, int n, mlc_tensor *x)
{
    for (int i = 0; i < n; i++)
        x = mlc_forward(mlc_module_child(net, i), x);
    return x;
}

static bool alike(mlc_tensor *a, mlc_tensor *b)
{
    if (!a || !b || a->dtype != b->dtype || mlc_numel(a) != mlc_numel(b))
        return false;
    const float *u = mlc_f32(mlc_contiguous(mlc_cast(a, MLC_F32)));
    const float *v = mlc_f32(mlc_contiguous(mlc_cast(b, MLC_F32)));
    return memcmp(u, v, (size_t)mlc_numel(a) * sizeof *u) == 0;
}

static mlc_module *pool_of_windows(mlc_ctx *ctx, bool max)
{
    mlc_pool_desc d = mlc_pool_desc_make(3);
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    d.ceil = true;
    return max ? mlc_nn_max_pool(ctx, &d) : mlc_nn_avg_pool(ctx, &d);
}

/* Maxima of 3 x 3 pixels, as many as x has. */
static mlc_module *pool_of_ones(mlc_ctx *ctx)
{
    mlc_pool_desc d = mlc_pool_desc_make(3);
    d.stride = d.padding = mlc_dims_all(1);
    return mlc_nn_max_pool(ctx, &d);
}

/* Two convolutions of x side by side, one of them after a relu. */
static mlc_module *two_branches(mlc_ctx *ctx, int64_t in, mlc_module *third)
{
    mlc_module *part[3] = {
        mlc_nn_conv2d(ctx, in, 5, 1, 1, 0),
        in_sequence(ctx, 3, mlc_nn_conv2d(ctx, in, 4, 3, 1, 1), mlc_nn_relu(ctx),
                    mlc_nn_identity(ctx)), third};
    return mlc_nn_concat(ctx, -3, third ? 3 : 2, part);
}

/* Maxima, relu after them, a dropout and a concat, between convolutions and before a linear layer:
 * bytes up to the last layer, with the bits of the layers one by one. */
TEST(quant_chain, maxima_and_concat_keep_bytes_with_the_same_bits)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int s = 0; s < 4; s++) {
            mlc_module *pool = s % 2 ? mlc_nn_adaptive_max_pool(ctx, mlc_dims2(3, 4))
                                     : pool_of_windows(ctx, true);
            mlc_module *net = in_sequence(ctx, 9, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1), pool,
                                          mlc_nn_relu(ctx), two_branches(ctx, 8, NULL),
                                          mlc_nn_relu(ctx), mlc_nn_conv2d(ctx, 9, 6, 3, 2, 1),
                                          mlc_nn_flatten(ctx), mlc_nn_dropout(ctx, 0.5),
                                          mlc_nn_linear(ctx, 6 * (s % 2 ? 4 : 6), 5));
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 6, 11), 3, -1, 1), *y;
            make_static(net, x, (mlc_quant_convention)(s / 2));
            x = test_rand(ctx, MLC_F32, mlc_dims4(3, 3, 6, 11), 4, -2, 2);
            const int floats = floats_in(net, x, &y);
            CHECK_EQ(floats, mlc_is_contiguous(x) ? 2 : 1);  /* channels last of x; the result */
            CHECK(alike(y, one_by_one(net, 9, x)));
            mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
            CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
            CHECK(alike(y, mlc_plan_output(p, 0)));
            mlc_plan_free(p);
            CHECK_EQ(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims4(0, 3, 6, 11)))->shape[0],
                     0);
            CHECK_OK(ctx);
            mlc_module_free(net);
        }
}

static mlc_module *net_of_means(mlc_ctx *ctx)
{
    return in_sequence(ctx, 9, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1), mlc_nn_relu(ctx),
                       pool_of_windows(ctx, false),
                       two_branches(ctx, 8, mlc_nn_identity(ctx)),
                       mlc_nn_conv2d(ctx, 17, 6, 3, 1, 1), mlc_nn_tanh(ctx),
                       mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(1, 1)), mlc_nn_flatten(ctx),
                       mlc_nn_linear(ctx, 6, 5));
}

/* Means, and x itself as part of a concat, change scales: near the floats, by the ranges of the
 * pools' own inputs, in bytes, the same from a file, in a clone and in a plan. A pool that is kept,
 * or that did not run, takes floats. */
TEST(quant_chain, means_are_bytes_near_their_floats)
{
    ONLY_ON_HOST();
    const box file = box_open("means.safetensors");
    static const char *const keep[] = {"2", "6"};
    FOR_EACH_ISA(ctx)
        for (int s = 0; s < 2; s++) {
            mlc_module *net = net_of_means(ctx), *was = mlc_module_clone(net);
            mlc_module *other = mlc_module_clone(net), *kept = mlc_module_clone(net);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(6, 3, 7, 8), 3, -1, 1), *y;
            mlc_quantize_desc d = static_desc(NULL, (mlc_quant_convention)s);
            double range[2];
            CHECK_EQ(mlc_eval_begin(was), MLC_OK);
            mlc_tensor *want = mlc_forward(was, x);
            make_static(net, x, d.convention);
            CHECK_EQ(mlc_numel(mlc_module_param(net, "2.pool_input")), 4);
            CHECK_EQ(floats_in(net, x, &y), 2);
            CHECK(rms_apart(y, want) < 0.05);
            CHECK_EQ(mlc_save(net, file.path), MLC_OK);
            CHECK_EQ(mlc_eval_begin(other), MLC_OK);
            CHECK_EQ(mlc_quantize(other, &d, NULL), MLC_OK);
            CHECK_EQ(mlc_load(other, file.path), MLC_OK);
            CHECK(alike(y, mlc_forward(other, x)));
            CHECK(alike(y, mlc_forward(mlc_module_clone(net), x)));
            mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
            CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
            CHECK(alike(y, mlc_plan_output(p, 0)));
            mlc_plan_free(p);
            /* Without ranges of their own, with those of the weights. */
            mlc_f32(mlc_module_param(other, "2.pool_input"))[0] = 0;
            mlc_f32(mlc_module_param(other, "6.pool_input"))[0] = 0;
            mlc_tensor *floats = mlc_forward(other, x);
            CHECK(!alike(y, floats));
            CHECK_EQ(mlc_eval_begin(kept), MLC_OK);
            mlc_calibration *c = mlc_calibrate_begin(kept, NULL);
            CHECK(mlc_forward(kept, x) != NULL);
            CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
            CHECK_EQ(mlc_calibration_range(c, "6.pool", range), MLC_OK);
            CHECK(range[0] >= -1 && range[0] < 0 && range[1] > 0 && range[1] <= 1);
            d.calibration = c;
            d.keep = keep;
            d.n_keep = 2;
            CHECK_EQ(mlc_quantize(kept, &d, NULL), MLC_OK);
            CHECK(alike(floats, mlc_forward(kept, x)));
            CHECK_OK(ctx);
            CHECK(mlc_module_param(kept, "2.pool_input") == NULL);
            mlc_error_clear(ctx);
            /* A file without ranges of pools. */
            CHECK_EQ(mlc_save(kept, file.path), MLC_OK);
            CHECK_EQ(mlc_load(other, file.path), MLC_OK);
            CHECK(alike(floats, mlc_forward(other, x)));
            CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims3(3, 7, 8))) == NULL);
            mlc_error_clear(ctx);
            mlc_calibration_free(c);
            mlc_module_free(net);
            mlc_module_free(was);
            mlc_module_free(other);
            mlc_module_free(kept);
        }
    box_close(&file);
}

/* x goes on beside a relu or maxima of it: its numbers are not cut to the range of these. */
TEST(quant_chain, branches_of_relu_leave_x_whole)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int s = 0; s < 3; s++) {
        mlc_module *body = in_sequence(ctx, 2, s == 1 ? pool_of_ones(ctx) : mlc_nn_relu(ctx),
                                       mlc_nn_conv2d(ctx, 6, 6, 3, 1, 1));
        mlc_module *part[2] = {mlc_nn_identity(ctx), body};
        mlc_module *net = in_sequence(ctx, 3, mlc_nn_conv2d(ctx, 3, 6, 3, 1, 1),
                                      s == 2 ? mlc_nn_concat(ctx, 1, 2, part)
                                             : mlc_nn_residual(ctx, body, NULL, false),
                                      mlc_nn_conv2d(ctx, s == 2 ? 12 : 6, 4, 3, 1, 1));
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 6, 7), 3, -1, 1);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        mlc_tensor *want = mlc_forward(net, x);
        make_static(net, x, MLC_QUANT_ONNX);
        CHECK(rms_apart(mlc_forward(net, x), want) < 0.03);
        CHECK(alike(mlc_forward(net, x), one_by_one(net, 3, x)));
        CHECK_OK(ctx);
        mlc_module_free(net);
    }
}

/* ResNet-20: three stages of three blocks, means of whole images. Noise that did not calibrate it
 * has the class of the floats, 99 images of 100, by either convention. */
TEST(quant_chain, a_resnet20_finds_the_same_classes_of_noise)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    enum { IMAGES = 200 };
    for (int s = 0; s < 2; s++) {
        mlc_module *net = in_sequence(ctx, 3, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1),
                                      mlc_nn_batch_norm(ctx, 8), mlc_nn_relu(ctx));
        for (int b = 0; b < 9; b++)
            CHECK_EQ(mlc_module_add(net, mlc_nn_basic_block(ctx, 8 << (b ? (b - 1) / 3 : 0),
                                                            8 << b / 3, b && b % 3 == 0 ? 2 : 1)),
                     MLC_OK);
        CHECK_EQ(mlc_module_add(net, mlc_nn_adaptive_avg_pool(ctx, mlc_dims2(1, 1))), MLC_OK);
        CHECK_EQ(mlc_module_add(net, mlc_nn_flatten(ctx)), MLC_OK);
        CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, 32, 10)), MLC_OK);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(32, 3, 12, 12), 3, -1, 1), *y;
        mlc_module *was = mlc_module_clone(net);
        CHECK_EQ(mlc_eval_begin(was), MLC_OK);
        make_static(net, x, (mlc_quant_convention)s);
        x = test_rand(ctx, MLC_F32, mlc_dims4(IMAGES, 3, 12, 12), 4, -1, 1);
        /* Channels last of x, the result, and two shortcuts, which are added as floats. */
        CHECK_EQ(floats_in(net, x, &y), 4);
        mlc_tensor *is = mlc_argmax(y, 1, false), *want = mlc_argmax(mlc_forward(was, x), 1, false);
        int same = 0;
        for (int i = 0; i < IMAGES; i++)
            same += mlc_i64(is)[i] == mlc_i64(want)[i];
        CHECK_OK(ctx);
        CHECK(same >= IMAGES * 99 / 100);
        mlc_module_free(net);
        mlc_module_free(was);
    }
}

/* Linear layers, of rows and of images that were flattened. */
TEST(quant_chain, linear_layers_give_integers_to_each_other)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int s = 0; s < 4; s++) {
            mlc_module *net =
                s % 2 ? in_sequence(ctx, 5, mlc_nn_conv2d(ctx, 2, 3, 3, 1, 1), mlc_nn_gelu(ctx),
                                    mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 3 * 4 * 5, 17),
                                    mlc_nn_linear(ctx, 17, 4))
                      : in_sequence(ctx, 5, mlc_nn_linear(ctx, 40, 33), mlc_nn_relu(ctx),
                                    mlc_nn_linear(ctx, 33, 20), mlc_nn_tanh(ctx),
                                    mlc_nn_linear(ctx, 20, 3));
            const mlc_dims shape = s % 2 ? mlc_dims4(3, 2, 4, 5) : mlc_dims2(7, 40);
            mlc_tensor *x = test_rand(ctx, MLC_F32, shape, 3, -1, 1);
            make_static(net, x, (mlc_quant_convention)(s / 2));
            x = test_rand(ctx, MLC_F32, shape, 4, -2, 2);
            mlc_tensor *y = mlc_forward(net, x), *z = x;
            for (int i = 0; i < 5; i++)
                z = mlc_forward(mlc_module_child(net, i), z);
            CHECK_OK(ctx);
            CHECK(memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
            mlc_module_free(net);
        }
}

static bool count_calls(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)m;
    (void)n_out;
    CHECK_EQ(out[0]->dtype, MLC_F32);
    ++*(int *)user;
    return false;
}

/* Blocks with a shortcut and without one, hooks that see floats, plans, clones. */
TEST(quant_chain, residuals_stay_integers_near_their_floats)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx) {
        mlc_module *net = in_sequence(ctx, 7, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1),
                                      mlc_nn_batch_norm(ctx, 8), mlc_nn_relu(ctx),
                                      mlc_nn_basic_block(ctx, 8, 8, 1),
                                      mlc_nn_basic_block(ctx, 8, 16, 2), mlc_nn_flatten(ctx),
                                      mlc_nn_linear(ctx, 16 * 4 * 4, 10));
        mlc_module *was = mlc_module_clone(net);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(6, 3, 8, 8), 3, -1, 1);
        int calls = 0;
        CHECK_EQ(mlc_eval_begin(was), MLC_OK);
        make_static(net, x, MLC_QUANT_ONNX);
        mlc_tensor *y = mlc_forward(net, x), *want = mlc_forward(was, x);
        CHECK_OK(ctx);
        CHECK(rms_apart(y, want) < 0.03);
        mlc_module *clone = mlc_module_clone(net);
        mlc_tensor *z = mlc_forward(clone, x);
        CHECK(memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
        mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
        z = mlc_plan_output(p, 0);
        CHECK(z && memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
        mlc_plan_free(p);
        mlc_module_hook(mlc_module_child(mlc_module_child(net, 2), 0), count_calls, &calls);
        mlc_module_hook(mlc_module_child(net, 1), count_calls, &calls);
        z = mlc_forward(net, x);
        CHECK_OK(ctx);
        CHECK_EQ(calls, 2);
        CHECK(rms_apart(z, want) < 0.03);
        CHECK_EQ(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims4(0, 3, 8, 8)))->shape[0], 0);
        CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims4(1, 4, 8, 8))) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "has 4 channels");
        mlc_module_free(net);
        mlc_module_free(was);
        mlc_module_free(clone);
    }
}

/* Three linear layers with a flatten and a dropout between them. */
static mlc_module *chain_of_linears(mlc_ctx *ctx)
{
    return in_sequence(ctx, 6, mlc_nn_linear(ctx, 9, 8), mlc_nn_relu(ctx), mlc_nn_flatten(ctx),
                       mlc_nn_linear(ctx, 16, 6), mlc_nn_dropout(ctx, 1), mlc_nn_linear(ctx, 6, 4));
}

/* A layer with adapters, a flatten with a hook and a dropout that trains get and give floats. */
TEST(quant_chain, adapters_hooks_and_dropout_run_as_by_themselves)
{
    ONLY_ON_HOST();
    static const char *const targets[] = {"3"};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = chain_of_linears(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(5, 2, 9), 3, -1, 1);
    int         calls = 0;
    make_static(net, x, MLC_QUANT_TORCH);
    mlc_tensor *plain = mlc_forward(net, x);
    CHECK(alike(plain, one_by_one(net, 6, x)));
    mlc_module_hook(mlc_module_child(net, 2), count_calls, &calls);
    CHECK(alike(plain, mlc_forward(net, x)));
    CHECK_EQ(calls, 1);
    mlc_module_hook(mlc_module_child(net, 2), NULL, NULL);
    mlc_module_train(mlc_module_child(net, 4), true);
    mlc_tensor *dropped = mlc_forward(net, x);
    CHECK(alike(dropped, one_by_one(net, 6, x)));
    CHECK(!alike(dropped, plain));
    mlc_module_train(mlc_module_child(net, 4), false);
    mlc_lora_desc l = mlc_lora_desc_make(2, 4);
    l.targets = targets;
    l.n_targets = 1;
    CHECK_EQ(mlc_lora(net, &l, NULL), MLC_OK);
    mlc_param_iter at = mlc_param_iter_make(net);
    while (mlc_param_next(&at))
        if (strstr(at.name, ".B"))
            for (int64_t i = 0; i < mlc_numel(at.tensor); i++)
                mlc_f32(at.tensor)[i] = 0.1f * (float)(i % 5);
    mlc_tensor *adapted = mlc_forward(net, x);
    CHECK(alike(adapted, one_by_one(net, 6, x)));
    CHECK(!alike(adapted, plain));
    CHECK_EQ(mlc_lora_remove(net, NULL), MLC_OK);
    CHECK(alike(plain, mlc_forward(net, x)));
    CHECK_OK(ctx);
}

static mlc_tensor *to_bf16(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    (void)m;
    (void)e;
    return mlc_cast(x, MLC_BF16);
}

static mlc_tensor *to_u8(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    (void)m;
    (void)e;
    return mlc_cast(mlc_abs(x), MLC_U8);
}

/* A module of a class of this call. */
static mlc_module *of_call(mlc_ctx *ctx, mlc_tensor *(*call)(mlc_module *m, mlc_tensor *x,
                                                             const mlc_epilogue *e))
{
    const mlc_module_class cls = {"Own", NULL, NULL, call, 0, NULL};
    return mlc_module_create(ctx, &cls, NULL, 0);
}

/* Tensors of other dtypes between layers, a bias of 16 bits, scales of f64. */
TEST(quant_chain, other_dtypes_are_as_by_themselves_or_errors)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *body = in_sequence(ctx, 2, mlc_nn_relu(ctx), mlc_nn_conv2d(ctx, 3, 3, 3, 1, 1));
    mlc_module *net = in_sequence(ctx, 5, of_call(ctx, to_bf16), mlc_nn_conv2d(ctx, 2, 3, 3, 1, 1),
                                  mlc_nn_residual(ctx, body, NULL, true), mlc_nn_flatten(ctx),
                                  mlc_nn_linear(ctx, 3 * 4 * 5, 7));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 2, 4, 5), 3, -1, 1);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_STATIC);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    static const char *const inputs[] = {"1.weight_input", "2.body.1.weight_input",
                                         "4.weight_input"};
    for (int i = 0; i < 3; i++) {
        mlc_f32(mlc_module_param(net, inputs[i]))[0] = 0.02f;
        mlc_f32(mlc_module_param(net, inputs[i]))[1] = 64;
    }
    mlc_tensor *y = mlc_forward(net, x);
    CHECK(alike(y, one_by_one(net, 5, x)));
    CHECK_EQ(y->dtype, MLC_BF16);
    /* Integers that are no chain's. */
    mlc_module *own = in_sequence(ctx, 2, of_call(ctx, to_u8), mlc_nn_linear(ctx, 5, 3));
    CHECK_EQ(mlc_eval_begin(own), MLC_OK);
    CHECK_EQ(mlc_quantize(own, &d, NULL), MLC_OK);
    mlc_f32(mlc_module_param(own, "1.weight_input"))[0] = 0.02f;
    CHECK(mlc_forward(own, mlc_ones(ctx, MLC_F32, mlc_dims2(2, 5))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "linear: x is u8, scales are f32");
    /* A zero that is no integer of the layer. */
    mlc_f32(mlc_module_param(own, "1.weight_input"))[1] = 200;
    CHECK(mlc_forward(mlc_module_child(own, 1), mlc_ones(ctx, MLC_F32, mlc_dims2(2, 5))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "02, zero 200");    /* after "0." */
    /* Biases of 16 bits: those of linear layers are widened. */
    mlc_module *rows = chain_of_linears(ctx);
    mlc_tensor *r = test_rand(ctx, MLC_F32, mlc_dims3(5, 2, 9), 4, -1, 1);
    make_static(rows, r, MLC_QUANT_ONNX);
    CHECK_EQ(mlc_module_to(rows, MLC_BF16), MLC_OK);
    CHECK(alike(mlc_forward(rows, r), one_by_one(rows, 6, r)));
    CHECK_OK(ctx);
    mlc_module *image = in_sequence(ctx, 1, mlc_nn_conv2d(ctx, 2, 3, 3, 1, 1));
    make_static(image, x, MLC_QUANT_ONNX);
    CHECK_EQ(mlc_module_to(image, MLC_BF16), MLC_OK);
    CHECK(mlc_forward(image, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "b bf16; quantized layers take f32 and bf16, b must be f32");
    CHECK_EQ(mlc_module_to(rows, MLC_F64), MLC_OK);
    CHECK(mlc_forward(rows, r) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "linear: x is f32, scales are f64");
    mlc_nn_conv_desc plain = mlc_nn_conv_desc_make(2, 2, 3, 3);
    plain.no_bias = true;
    image = in_sequence(ctx, 1, mlc_nn_conv(ctx, &plain));
    make_static(image, x, MLC_QUANT_ONNX);
    CHECK_EQ(mlc_module_to(image, MLC_F64), MLC_OK);
    CHECK(mlc_forward(image, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "conv: scale and zero of the input are f64");
}

/* Bodies that end in a linear layer, or in a convolution with an activation of its own, add x as
 * it is: with the bits of the parts. */
TEST(quant_chain, residuals_that_cannot_add_integers_add_floats)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int s = 0; s < 4; s++) {
        const bool       conv = s % 2 != 0;
        mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 6, 6, 1);
        d.conv.act = MLC_ACT_TANH;
        mlc_module *first = conv ? mlc_nn_conv2d(ctx, 2, 6, 3, 1, 1) : mlc_nn_linear(ctx, 7, 6);
        mlc_module *body = in_sequence(ctx, 2, conv ? mlc_nn_conv2d(ctx, 6, 6, 3, 1, 1)
                                                    : mlc_nn_linear(ctx, 6, 6),
                                       conv ? mlc_nn_conv(ctx, &d) : mlc_nn_linear(ctx, 6, 6));
        mlc_module *net = in_sequence(ctx, 2, first, mlc_nn_residual(ctx, body, NULL, s < 2));
        const mlc_dims shape = conv ? mlc_dims4(2, 2, 4, 5) : mlc_dims2(5, 7);
        mlc_tensor *x = test_rand(ctx, MLC_F32, shape, 3, -1, 1);
        make_static(net, x, MLC_QUANT_TORCH);
        CHECK(alike(mlc_forward(net, x), one_by_one(net, 2, x)));
        CHECK_OK(ctx);
        mlc_module_free(net);
    }
}

/* ---- training aware of integers -------------------------------------------------------------- */

/* One step of training on rows x, y. */
static double aware_step(mlc_module *net, mlc_optim *o, mlc_tensor *x, mlc_tensor *y)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    mlc_tensor  *loss = mlc_mse_loss(mlc_forward(net, x), y);
    const double is = loss ? mlc_item(loss) : 0;
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    CHECK_EQ(mlc_optim_step(o), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return is;
}

TEST(quant_aware, a_layer_trains_as_pytorchs)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx) {
        const golden_file g = golden_open(ctx, "quant_static.safetensors");
        mlc_module *net = in_sequence(ctx, 1, mlc_nn_linear(ctx, 6, 3));
        mlc_tensor *w = mlc_module_param(net, "0.weight"), *x = golden_find(&g, "aware.x");
        mlc_tensor *y = golden_find(&g, "aware.target"), *want = golden_find(&g, "aware.trained");
        mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
        double loss = 0;
        CHECK_EQ(mlc_copy_into(w, golden_find(&g, "aware.weight")), MLC_OK);
        CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.bias"), golden_find(&g, "aware.bias")),
                 MLC_OK);
        d.rate = 0.2;
        CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
        mlc_optim *o = mlc_sgd(net, 0.1);
        for (int64_t i = 0; i < 4; i++)
            loss = aware_step(net, o, mlc_select(x, 0, i), mlc_select(y, 0, i));
        CHECK_NEAR(loss, (double)mlc_f32(golden_find(&g, "aware.loss"))[0], 1e-6);
        for (int64_t i = 0; i < 18; i++)
            CHECK_NEAR((double)mlc_f32(w)[i], (double)mlc_f32(want)[i], 1e-6);
        mlc_optim_free(o);
        CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_OK);
        CHECK(memcmp(mlc_f32(mlc_module_param(net, "0.weight_input")),
                     mlc_f32(golden_find(&g, "aware.input")), 8) == 0);
        CHECK(mlc_module_param(net, "0.weight_range") == NULL);
        mlc_error_clear(ctx);
        mlc_module_free(net);
    }
}

static mlc_module *aware_net(mlc_ctx *ctx)
{
    mlc_module *body = in_sequence(ctx, 3, mlc_nn_conv2d(ctx, 6, 6, 3, 1, 1), mlc_nn_relu(ctx),
                                   mlc_nn_conv2d(ctx, 6, 6, 3, 1, 1));
    return in_sequence(ctx, 5, mlc_nn_conv2d(ctx, 2, 6, 3, 2, 1), mlc_nn_relu(ctx),
                       mlc_nn_residual(ctx, body, NULL, true), mlc_nn_flatten(ctx),
                       mlc_nn_linear(ctx, 6 * 3 * 4, 5));
}

/* Outputs of the static network are those of the last forward but for the order of sums, with the
 * integers of the trained weights; the loss fell. Either convention, both kinds of scales. */
TEST(quant_aware, the_static_network_has_the_same_integers)
{
    ONLY_ON_HOST();
    for (int s = 0; s < 8; s++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = aware_net(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(16, 2, 6, 8), 3, -1, 1);
        mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(16, 5), 4, -1, 1);
        mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
        mlc_quantize_tensor_desc t = mlc_quantize_tensor_desc_make(8);
        mlc_quantized q;
        d.quantize.convention = t.convention = (mlc_quant_convention)(s % 2);
        d.quantize.per_tensor = t.per_tensor = s / 2 % 2 != 0;
        d.quantize.symmetric = s / 4 != 0;
        d.quantize.full_range = s == 4;
        CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
        mlc_optim *o = mlc_adam(net, 5e-3);
        const double first = aware_step(net, o, x, y);
        double last = first;
        for (int i = 0; i < 20; i++)
            last = aware_step(net, o, x, y);
        CHECK(last < 0.5 * first);
        mlc_optim_free(o);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        mlc_tensor *fake = mlc_copy(mlc_forward(net, x));
        CHECK_EQ(mlc_quantize_tensor(mlc_module_param(net, "2.body.0.weight"), &t, &q), MLC_OK);
        mlc_quant_row rows[4];
        mlc_quant_report report = {rows, 4, 0, 0, 0, 0};
        CHECK_EQ(mlc_quant_aware_end(net, &report), MLC_OK);
        CHECK_EQ(report.n, 4);
        CHECK_EQ(rows[0].batches, 21);
        CHECK(memcmp(mlc_i8(mlc_module_param(net, "2.body.0.weight")), mlc_i8(q.q),
                     (size_t)mlc_numel(q.q)) == 0);
        CHECK(rms_apart(mlc_forward(net, x), fake) < 2e-3);
        CHECK_OK(ctx);
    }
}

/* Adam; learned scales, some thousandths, go at a hundredth of its rate. */
static mlc_optim *aware_adam(mlc_module *net, double rate, bool learned)
{
    mlc_optim     *o = mlc_adam(net, rate);
    mlc_group_desc g = mlc_group_desc_make();
    g.lr_scale = 0.01;
    if (learned)
        CHECK_EQ(mlc_optim_group(o, "*_step", &g), MLC_OK);
    return o;
}

/* Six steps, and some, a file, and the rest: files of each step, the one before the first batch,
 * too, with scales by ranges and learned. */
static void check_resumed(mlc_ctx *ctx, const box file, const box state, int from, bool learned)
{
    mlc_module *net[2] = {aware_net(ctx), aware_net(ctx)};
    mlc_optim  *o[2];
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(8, 2, 6, 8), 3, -1, 1);
    mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(8, 5), 4, -1, 1);
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    d.learned = learned;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_quant_aware_begin(net[i], &d), MLC_OK);
        o[i] = aware_adam(net[i], 5e-3, learned);
    }
    for (int i = 0; i < 6; i++) {
        if (i == from) {
            CHECK_EQ(mlc_save(net[0], file.path), MLC_OK);
            CHECK_EQ(mlc_optim_save(o[0], state.path), MLC_OK);
        }
        (void)aware_step(net[0], o[0], mlc_mul_scalar(x, 1 + i), y);
    }
    CHECK_EQ(mlc_load(net[1], file.path), MLC_OK);
    CHECK_EQ(mlc_optim_load(o[1], state.path), MLC_OK);
    for (int i = from; i < 6; i++)
        (void)aware_step(net[1], o[1], mlc_mul_scalar(x, 1 + i), y);
    mlc_param_iter a = mlc_param_iter_make(net[0]), b = mlc_param_iter_make(net[1]);
    int n = 0;
    while (mlc_param_next(&a) && mlc_param_next(&b)) {
        CHECK(memcmp(mlc_f32(a.tensor), mlc_f32(b.tensor), (size_t)mlc_numel(a.tensor) * 4) == 0);
        n++;
    }
    CHECK_EQ(n, 4 * (learned ? 5 : 3));
    for (int i = 0; i < 2; i++) {
        mlc_optim_free(o[i]);
        CHECK_EQ(mlc_quant_aware_end(net[i], NULL), MLC_OK);
    }
    CHECK_EQ(mlc_eval_begin(net[0]), MLC_OK);
    CHECK_EQ(mlc_eval_begin(net[1]), MLC_OK);
    mlc_tensor *z = mlc_forward(net[0], x), *again = mlc_forward(net[1], x);
    CHECK(memcmp(mlc_f32(z), mlc_f32(again), (size_t)mlc_numel(z) * 4) == 0);
    CHECK_OK(ctx);
    for (int i = 0; i < 2; i++)
        mlc_module_free(net[i]);
}

TEST(quant_aware, training_goes_on_from_a_file_with_the_same_bits)
{
    ONLY_ON_HOST();
    const box file = box_open("aware.safetensors"), state = box_open("aware_optim.safetensors");
    for (int s = 0; s < 12; s++)
        check_resumed(test_ctx(), file, state, s / 2, s % 2 != 0);
    box_close(&file);
    box_close(&state);
}

/* With learned scales the static network has these, and the integers of weights by them; the loss
 * fell and scales moved. */
TEST(quant_aware, learned_scales_are_those_of_the_static_network)
{
    ONLY_ON_HOST();
    for (int s = 0; s < 8; s++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = aware_net(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(16, 2, 6, 8), 3, -1, 1);
        mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(16, 5), 4, -1, 1);
        mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
        const bool onnx = s % 2 != 0, single = s / 2 % 2 != 0;
        d.quantize.convention = (mlc_quant_convention)(s % 2);
        d.quantize.per_tensor = single;
        d.quantize.symmetric = s / 4 != 0;
        d.learned = true;
        CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
        mlc_tensor *w = mlc_module_param(net, "2.body.0.weight");
        mlc_tensor *step = mlc_module_param(net, "2.body.0.weight_step");
        mlc_tensor *input = mlc_module_param(net, "2.body.0.weight_input_step");
        CHECK_EQ(mlc_numel(step), single ? 1 : 6);
        const float start = mlc_f32(step)[0];
        CHECK(mlc_f32(input)[0] == 1);
        mlc_optim *o = aware_adam(net, 5e-3, true);
        const double first = aware_step(net, o, x, y);
        const float  input_start = mlc_f32(input)[0];
        double       last = first;
        for (int i = 0; i < 20; i++)
            last = aware_step(net, o, x, y);
        CHECK(last < 0.5 * first);
        CHECK(mlc_f32(step)[0] != start && mlc_f32(input)[0] != input_start);
        mlc_optim_free(o);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        mlc_tensor *fake = mlc_copy(mlc_forward(net, x));
        w = mlc_copy(w);
        step = mlc_copy(step);
        const float is = mlc_f32(input)[0];
        mlc_module *clone = mlc_module_clone(net);
        CHECK(alike(mlc_forward(clone, x), fake));
        CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_OK);
        CHECK_EQ(mlc_quant_aware_end(clone, NULL), MLC_OK);
        const int8_t *q = mlc_i8(mlc_module_param(net, "2.body.0.weight"));
        for (int64_t i = 0; i < mlc_numel(w); i++) {
            const float by = mlc_f32(step)[single ? 0 : i / 54], v = mlc_f32(w)[i];
            const float r = rintf(onnx ? v / by : v * (1.0f / by)), least = onnx ? -127 : -128;
            CHECK_EQ(q[i], (int)(r < least ? least : r > 127 ? 127 : r));
        }
        CHECK(alike(step, mlc_module_param(net, "2.body.0.weight_scale")));
        CHECK(mlc_f32(mlc_module_param(net, "2.body.0.weight_input"))[0] == is);
        CHECK(rms_apart(mlc_forward(net, x), fake) < 2e-3);
        CHECK(alike(mlc_forward(net, x), mlc_forward(clone, x)));
        CHECK_OK(ctx);
        CHECK(mlc_module_param(net, "2.body.0.weight_step") == NULL);
        CHECK(mlc_module_param(net, "2.body.0.weight_input_step") == NULL);
        mlc_error_clear(ctx);
    }
}

/* Gradients of learned scales are those of mlc_fake_quantize with LSQ's factor; none where they are
 * frozen. Weight decay leaves scales as they are, a group's does not. */
TEST(quant_aware, learned_scales_have_lsqs_gradient_and_no_decay)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 6), 3, -1, 1);
    mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 4, -1, 1);
    mlc_module *was = in_sequence(ctx, 1, mlc_nn_linear(ctx, 6, 3));
    float       after[4][2];
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    d.learned = true;
    d.quantize.convention = MLC_QUANT_ONNX;
    for (int s = 0; s < 4; s++) {
        mlc_module *net = mlc_module_clone(was);
        CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
        mlc_tensor *w = mlc_module_param(net, "0.weight");
        mlc_tensor *step = mlc_module_param(net, "0.weight_step");
        mlc_tensor *input = mlc_module_param(net, "0.weight_input_step");
        CHECK_EQ(mlc_backward(mlc_mse_loss(mlc_forward(net, x), y)), MLC_OK);
        if (s == 0) {
            const float *r = mlc_f32(mlc_module_param(net, "0.weight_range"));
            const double by = (double)mlc_f32(input)[0];
            mlc_fake_quantize_desc of_x = mlc_fake_quantize_desc_make(), of_w = of_x;
            of_x.convention = of_w.convention = MLC_QUANT_ONNX;
            of_x.lo = 0;
            of_x.hi = 255;
            of_x.rate = 1 / sqrt(6 * 255.0);
            of_w.lo = -127;
            of_w.rate = 1 / sqrt(6 * 127.0);
            const double range = ((double)r[1] - (double)r[0]) / 255;
            const int32_t zero = (int32_t)rint(-(double)r[0] / range);
            mlc_tensor *z = mlc_from(ctx, MLC_I32, mlc_dims1(1), &zero);
            mlc_tensor *sx = mlc_from(ctx, MLC_F32, mlc_dims1(1), mlc_f32(input));
            mlc_tensor *sw = mlc_from(ctx, MLC_F32, mlc_dims1(3), mlc_f32(step));
            CHECK_EQ(mlc_set_requires_grad(sx, true), MLC_OK);
            CHECK_EQ(mlc_set_requires_grad(sw, true), MLC_OK);
            CHECK_NEAR(by, range, 1e-9);
            mlc_tensor *out = mlc_linear(mlc_fake_quantize(x, sx, z, &of_x),
                                         mlc_fake_quantize(mlc_detach(w), sw, NULL, &of_w),
                                         mlc_detach(mlc_module_param(net, "0.bias")));
            CHECK_EQ(mlc_backward(mlc_mse_loss(out, y)), MLC_OK);
            CHECK(alike(mlc_grad(sx), mlc_grad(input)) && alike(mlc_grad(sw), mlc_grad(step)));
            CHECK(mlc_f32(mlc_grad(step))[1] != 0 && mlc_f32(mlc_grad(input))[0] != 0);
            CHECK_OK(ctx);
        }
        mlc_adam_desc a = mlc_adamw_desc_make(1e-4);
        a.weight_decay = s ? 100 : 0;
        mlc_optim *o = mlc_adamw_ex(net, &a);
        if (s == 2)
            CHECK_EQ(mlc_optim_no_decay(o, false), MLC_OK);
        mlc_group_desc g = mlc_group_desc_make();
        g.has_weight_decay = true;
        g.weight_decay = 100;
        if (s == 3)
            CHECK_EQ(mlc_optim_group(o, "*_step", &g), MLC_OK);
        CHECK_EQ(mlc_optim_step(o), MLC_OK);
        after[s][0] = mlc_f32(step)[1];
        after[s][1] = mlc_f32(w)[1];
        if (s == 3) {
            mlc_optim_zero_grad(o);
            CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_OK);
            CHECK_EQ(mlc_backward(mlc_mse_loss(mlc_forward(net, x), y)), MLC_OK);
            CHECK_OK(ctx);
            CHECK(mlc_grad(step) == NULL || mlc_f32(mlc_grad(step))[1] == 0);
            mlc_error_clear(ctx);
        }
        mlc_optim_free(o);
        mlc_f32(step)[1] = -1e-3f;
        CHECK(mlc_forward(net, x) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "number 1 of weight_step is -0.001");
        CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_ERR_VALUE);
        mlc_error_clear(ctx);
        mlc_module_free(net);
    }
    CHECK(after[1][0] == after[0][0] && after[2][0] == after[0][0] && after[3][0] < after[0][0]);
    CHECK(after[1][1] != after[0][1]);
}

/* With any rate the range is that of MLC_QUANT_MOVING. */
TEST(quant_aware, ranges_are_those_of_a_moving_average)
{
    ONLY_ON_HOST();
    static const double rates[] = {1, 0.3};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 40), 3, -1, 1);
    for (int64_t i = 0; i < mlc_numel(x); i++)
        mlc_f32(x)[i] *= (float)(1 + i / 40 % 3 * 20);
    for (int s = 0; s < 2; s++) {
        mlc_module          *net = one_layer(ctx, 40), *aware = mlc_module_clone(net);
        mlc_calibrate_desc   d = mlc_calibrate_desc_make(MLC_QUANT_MOVING);
        mlc_quant_aware_desc a = mlc_quant_aware_desc_make();
        double               range[2];
        a.rate = d.rate = rates[s];
        mlc_calibration *c = calibrated(net, &d, x);
        CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
        CHECK_EQ(mlc_quant_aware_begin(aware, &a), MLC_OK);
        mlc_no_grad_begin(ctx);
        for (int64_t r = 0; r < 5; r++)
            CHECK(mlc_forward(aware, mlc_slice(x, 0, r, r + 1, 1)) != NULL);
        mlc_no_grad_end(ctx);
        const float *is = mlc_f32(mlc_module_param(aware, "0.weight_range"));
        CHECK((double)is[0] == range[0] && (double)is[1] == range[1]);
        mlc_calibration_free(c);
    }
    CHECK_OK(ctx);
}

/* Ranges move in training alone, and not where they are frozen; a calibration begins them; a clone
 * has its own. */
TEST(quant_aware, ranges_move_in_training_until_they_are_frozen)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = in_sequence(ctx, 2, mlc_nn_linear(ctx, 8, 4), mlc_nn_relu(ctx));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 3, -1, 1);
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    mlc_tensor *floats = mlc_forward(net, x);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    d.quantize.calibration = c;
    d.rate = 0.5;
    mlc_module *blank = mlc_module_clone(net);
    CHECK_EQ(mlc_quant_aware_begin(blank, NULL), MLC_OK);
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
    mlc_tensor *range = mlc_module_param(net, "0.weight_range");
    const float lo = mlc_f32(range)[0], hi = mlc_f32(range)[1];
    CHECK(lo < 0 && hi > 0 && hi <= 1);
    mlc_no_grad_begin(ctx);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK_EQ(mlc_eval_begin(blank), MLC_OK);
    mlc_tensor *big = mlc_mul_scalar(x, 3), *y = mlc_forward(net, big);
    CHECK(mlc_f32(range)[1] == hi);
    /* Before the first batch inputs are as they are. */
    CHECK(rms_apart(mlc_forward(blank, x), floats) < 0.02);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_OK);
    mlc_tensor *z = mlc_forward(net, big);
    CHECK(mlc_f32(range)[1] == hi);
    CHECK(memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
    mlc_module *clone = mlc_module_clone(net);
    CHECK_EQ(mlc_quant_aware_freeze(net, false), MLC_OK);
    CHECK(mlc_forward(net, big) != NULL);
    CHECK_NEAR((double)mlc_f32(range)[1], 2 * (double)hi, 1e-6);
    z = mlc_forward(clone, big);
    CHECK(memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
    CHECK_OK(ctx);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_quant_aware_end(blank, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the layer of 0.weight did not run");
    CHECK_EQ(mlc_module_param(blank, "0.weight")->dtype, MLC_F32);
    CHECK(mlc_forward(blank, x) != NULL);
    CHECK_OK(ctx);
    mlc_calibration_free(c);
}

TEST(quant_aware, wrong_calls_leave_the_network_as_it_was)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = in_sequence(ctx, 2, mlc_nn_linear(ctx, 8, 8),
                                  mlc_nn_multihead_attention(ctx, 8, 2));
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "is of an attention or recurrent layer");
    CHECK(mlc_module_param(net, "0.weight_range") == NULL);
    mlc_error_clear(ctx);
    const char *const keep[] = {"1*"};
    d.quantize.keep = keep;
    d.quantize.n_keep = 1;
    d.rate = 0;
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rate 0");
    d.rate = 0.1;
    d.quantize.mode = MLC_QUANT_DYNAMIC;
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "training is aware of MLC_QUANT_STATIC");
    d.quantize.mode = MLC_QUANT_STATIC;
    mlc_optim *o = mlc_sgd(net, 0.1);
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "an optimizer steps this network");
    mlc_optim_free(o);
    CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the network has no ranges");
    CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the network has no ranges");
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "0.weight trains aware of its integers");
    const mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "0.weight trains aware of its integers");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(1, 3, 8), 3, -1, 1);
    mlc_f32(x)[4] = (float)NO_NUMBER;
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "an input has a NaN or inf");
    CHECK_EQ(mlc_quant_aware_begin(NULL, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_quant_aware_freeze(NULL, true), MLC_ERR_ARG);
    CHECK_EQ(mlc_quant_aware_end(NULL, NULL), MLC_ERR_ARG);
}

/* Adapters and sparse copies change calls, which the end would take for its own. */
TEST(quant_aware, layers_of_other_calls_are_not_ended)
{
    ONLY_ON_HOST();
    static const char *const targets[] = {"0"};
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = two_ways(ctx);
    mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 5, -1, 1);
    mlc_lora_desc     l = mlc_lora_desc_make(2, 4);
    mlc_sparsify_desc s = mlc_sparsify_desc_make();
    l.targets = targets;
    l.n_targets = 1;
    s.form = MLC_SPARSE_CSR;
    mlc_no_grad_begin(ctx);
    CHECK_EQ(mlc_quant_aware_begin(net, NULL), MLC_OK);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_OK);
    CHECK_EQ(mlc_sparsify(net, &s, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "sparsify: 0.weight trains aware of its integers");
    CHECK(alike(y, mlc_forward(net, x)));
    CHECK_EQ(mlc_lora(net, &l, NULL), MLC_OK);
    CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "'0' has adapters");
    CHECK_EQ(mlc_module_param(net, "2.weight")->dtype, MLC_F32);
    CHECK(alike(y, mlc_forward(net, x)));
    CHECK_EQ(mlc_lora_remove(net, NULL), MLC_OK);
    CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_OK);
    CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_I8);
    CHECK(rms_apart(mlc_forward(net, x), y) < 2e-3);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* Parts that were begun apart are ended apart; a table that is tied to a head stays as it is. */
TEST(quant_aware, other_descs_and_tied_tables_are_errors)
{
    ONLY_ON_HOST();
    static const char *const keep[] = {"1.weight"};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_ways(ctx);
    mlc_quant_aware_desc d = mlc_quant_aware_desc_make();
    CHECK_EQ(mlc_quant_aware_begin(mlc_module_child(net, 0), &d), MLC_OK);
    d.quantize.symmetric = true;
    CHECK_EQ(mlc_quant_aware_begin(mlc_module_child(net, 2), &d), MLC_OK);
    mlc_no_grad_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 5, -1, 1), *y = mlc_forward(net, x);
    CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "'2' was begun with another desc");
    CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_F32);
    CHECK_EQ(mlc_quant_aware_end(mlc_module_child(net, 2), NULL), MLC_OK);
    CHECK_EQ(mlc_quant_aware_end(mlc_module_child(net, 0), NULL), MLC_OK);
    CHECK(rms_apart(mlc_forward(net, x), y) < 2e-3);
    CHECK(mlc_f32(mlc_module_param(net, "2.weight_input"))[1] == 63);
    mlc_no_grad_end(ctx);
    net = in_sequence(ctx, 3, mlc_nn_embedding(ctx, 5, 4), mlc_nn_linear(ctx, 4, 5),
                      mlc_nn_linear(ctx, 5, 3));
    CHECK_EQ(mlc_module_tie(mlc_module_child(net, 1), "weight", mlc_module_param(net, "0.weight")),
             MLC_OK);
    d = mlc_quant_aware_desc_make();
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "0.weight is tied to the table of an embedding");
    d.quantize.keep = keep;
    d.quantize.n_keep = 1;
    CHECK_EQ(mlc_quant_aware_begin(net, &d), MLC_OK);
    CHECK(mlc_module_param(net, "2.weight_range") != NULL);
    CHECK_OK(ctx);
}

/* Ranges of a file, and other dtypes than those of the begin. */
TEST(quant_aware, wrong_ranges_and_dtypes_are_errors)
{
    ONLY_ON_HOST();
    static const struct { int at; float is; } wrong[] = {
        {0, -(float)INFINITY}, {1, (float)NAN}, {2, 1e30f}, {2, -1}, {3, 0}, {3, 2}};
    static const mlc_dtype others[] = {MLC_BF16, MLC_F64};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = two_ways(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 5, -1, 1);
    mlc_no_grad_begin(ctx);
    CHECK_EQ(mlc_quant_aware_begin(net, NULL), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);
    for (int i = 0; i < 6; i++) {
        float      *r = mlc_f32(mlc_module_param(net, "2.weight_range"));
        const float was = r[wrong[i].at];
        r[wrong[i].at] = wrong[i].is;
        CHECK(mlc_forward(net, x) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "quant_aware: weight_range has [");
        CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "quant_aware_freeze: weight_range has [");
        CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "quant_aware_end: weight_range has [");
        r[wrong[i].at] = was;
    }
    float *first = mlc_f32(mlc_module_param(net, "0.weight_range"));
    CHECK(first[4] == 0);                        /* not frozen by any of them */
    const float ends[2] = {first[0], first[1]};
    first[0] = -3e38f;
    first[1] = 3e38f;
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "inputs are from -3e+38 to 3e+38, a range beyond f32");
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    memcpy(first, ends, sizeof ends);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_module_to(net, others[i]), MLC_OK);
        CHECK(mlc_forward(net, x) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_DTYPE, "quant_aware: a weight is ");
        CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_ERR_DTYPE);
        CHECK_ERROR(ctx, MLC_ERR_DTYPE, "quant_aware_freeze: a weight is ");
        CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_ERR_DTYPE);
        CHECK_ERROR(ctx, MLC_ERR_DTYPE, "quant_aware_end: a weight is ");
    }
    CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_OK);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* Ranges that the program or another network has are read, and never written. */
TEST(quant_aware, ranges_of_others_are_not_written)
{
    ONLY_ON_HOST();
    static const float range[9] = {-1.5f, 1.5f, 3, 0.01f, 0, 127, 0, 0, 0};
    mlc_ctx    *ctx = test_ctx(), *other = test_ctx();
    mlc_module *net = aware_net(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 2, 6, 8), 3, -1, 1);
    mlc_tensor *x2 = test_rand(other, MLC_F32, mlc_dims4(2, 2, 6, 8), 3, -1, 1);
    mlc_no_grad_begin(ctx);
    mlc_no_grad_begin(other);
    CHECK_EQ(mlc_quant_aware_begin(net, NULL), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);
    mlc_module *share = mlc_module_share(other, net);
    CHECK(mlc_forward(share, x2) == NULL);
    CHECK_ERROR(other, MLC_ERR_STATE, "weight_range' is of another network");
    CHECK_EQ(mlc_quant_aware_freeze(share, true), MLC_ERR_STATE);
    CHECK_ERROR(other, MLC_ERR_STATE, "weight_range' is of another network");
    CHECK(mlc_f32(mlc_module_param(net, "0.weight_range"))[2] == 1);
    mlc_module_train(share, false);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *y = mlc_forward(net, x), *z = mlc_forward(share, x2);
    CHECK(alike(y, z));
    CHECK_OK(other);
    mlc_module_free(share);
    CHECK_EQ(mlc_module_bind(net, "2.body.0.weight_range", range), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);          /* the residual adds with it */
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "weight_range' is bound to memory of the program");
    CHECK_EQ(mlc_quant_aware_freeze(net, true), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "weight_range' is bound to memory of the program");
    CHECK(mlc_f32(mlc_module_param(net, "0.weight_range"))[4] == 0);
    mlc_no_grad_end(other);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* A piece's second run has the ranges of the first one, or fails. */
TEST(quant_aware, recomputed_layers_have_their_ranges)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net[2] = {aware_net(ctx), NULL};
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(8, 2, 6, 8), 3, -1, 1);
    mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(8, 5), 4, -1, 1);
    CHECK_EQ(mlc_quant_aware_begin(net[0], NULL), MLC_OK);
    net[1] = mlc_module_clone(net[0]);
    CHECK_EQ(mlc_module_recompute(net[1], 1), MLC_OK);
    for (int i = 0; i < 2; i++) {
        mlc_optim *o = mlc_sgd(net[i], 0.1);
        for (int k = 0; k < 3; k++)
            (void)aware_step(net[i], o, mlc_mul_scalar(x, 1 + k), y);
        mlc_optim_free(o);
    }
    mlc_param_iter a = mlc_param_iter_make(net[0]), b = mlc_param_iter_make(net[1]);
    while (mlc_param_next(&a) && mlc_param_next(&b))
        CHECK(alike(a.tensor, b.tensor));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
        mlc_tensor *early = mlc_mse_loss(mlc_forward(net[i], x), y);
        mlc_tensor *late = mlc_mse_loss(mlc_forward(net[i], mlc_mul_scalar(x, 9)), y);
        CHECK_EQ(mlc_backward(mlc_add(early, late)), i ? MLC_ERR_STATE : MLC_OK);
        if (i)
            CHECK_ERROR(ctx, MLC_ERR_STATE, "recompute: [9], which the piece reads");
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_OK(ctx);
}

/* ---- accuracy -------------------------------------------------------------------------------- */

static mlc_module *digits_cnn(mlc_ctx *ctx)
{
    return in_sequence(ctx, 8, mlc_nn_conv2d(ctx, 1, 8, 3, 1, 1), mlc_nn_batch_norm(ctx, 8),
                       mlc_nn_relu(ctx), mlc_nn_max_pool2d(ctx, 2),
                       mlc_nn_conv2d(ctx, 8, 16, 3, 1, 1), mlc_nn_relu(ctx), mlc_nn_flatten(ctx),
                       mlc_nn_linear(ctx, 16 * 16, CLASSES));
}

static void fit_digits(mlc_module *net, const digits *d, uint64_t seed, double rate, int64_t epochs)
{
    mlc_loader_desc rows = mlc_loader_desc_make(d->x[0], d->y[0], 32);
    mlc_fit_desc    f = mlc_fit_desc_make(NULL);
    rows.shuffle = true;
    rows.seed = seed;
    f.epochs = epochs;
    f.forward = mlc_fit_cross_entropy;
    mlc_optim *o = mlc_adamw(net, rate);
    mlc_loader *loader = mlc_loader_create(mlc_module_ctx(net), &rows);
    CHECK_EQ(mlc_fit(net, o, loader, &f, NULL), MLC_OK);
    mlc_optim_free(o);
    mlc_loader_free(loader);
}

/* A CNN with its norm folded: static within half a point, aware within 0.3, in the mean. */
TEST(quant_static, digits_keep_their_accuracy)
{
    ONLY_ON_HOST();
    enum { SEEDS = 3 };
    double off[6] = {0};
    for (int seed = 1; seed <= SEEDS; seed++) {
        mlc_ctx    *ctx = test_ctx();
        digits      d = digits_of(ctx);
        mlc_module *net = digits_cnn(ctx);
        for (int i = 0; i < 2; i++)
            d.x[i] = mlc_reshape(d.x[i], mlc_dims4(mlc_dim(d.x[i], 0), 1, 8, 8));
        fit_digits(net, &d, (uint64_t)seed, 3e-3, 4);
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_OK);
        const double was = accuracy(net, &d);
        CHECK(was > 0.9);
        mlc_loader *loader = mlc_loader_ordered(ctx, d.x[0], NULL, 32);
        for (int o = 0; o < 5; o++) {
            const mlc_calibrate_desc how = mlc_calibrate_desc_make((mlc_quant_observer)o);
            mlc_calibration *c = mlc_calibrate(net, &how, loader, 8);
            mlc_module      *clone = mlc_module_clone(net);
            const mlc_quantize_desc q = static_desc(c, (mlc_quant_convention)(o % 2));
            CHECK_EQ(mlc_quantize(clone, &q, NULL), MLC_OK);
            off[o] += (was - accuracy(clone, &d)) / SEEDS;
            mlc_calibration_free(c);
            mlc_module_free(clone);
        }
        CHECK_EQ(mlc_quant_aware_begin(net, NULL), MLC_OK);
        fit_digits(net, &d, (uint64_t)seed, 5e-4, 1);
        CHECK_EQ(mlc_quant_aware_end(net, NULL), MLC_OK);
        off[5] += (was - accuracy(net, &d)) / SEEDS;
        CHECK_OK(ctx);
    }
    for (int i = 0; i < 6; i++)
        CHECK(off[i] < (i == 5 ? 0.003 : 0.005));
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* One batch: the range of its numbers; by percentile and entropy within it, by squares about it. */
TEST(quant_static, one_batch_calibrates)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(1, 400), 5, -1, 3);
    float lo = 0, hi = 0;
    for (int i = 0; i < 400; i++) {
        lo = fminf(lo, mlc_f32(x)[i]);
        hi = fmaxf(hi, mlc_f32(x)[i]);
    }
    for (int o = 0; o < 5; o++) {
        const mlc_calibrate_desc d = mlc_calibrate_desc_make((mlc_quant_observer)o);
        mlc_module      *net = one_layer(ctx, 400);
        mlc_calibration *c = calibrated(net, &d, x);
        double           range[2];
        CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_OK);
        if (o <= MLC_QUANT_MOVING)
            CHECK((float)range[0] == lo && (float)range[1] == hi);
        CHECK(fabs(range[0] - (double)lo) < 0.05 && fabs(range[1] - (double)hi) < 0.05);
        const mlc_quantize_desc q = static_desc(c, MLC_QUANT_ONNX);
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        CHECK(mlc_forward(net, x) != NULL);
        CHECK_OK(ctx);
        mlc_calibration_free(c);
        mlc_module_free(net);
    }
}

TEST(quant_static, calibrations_without_data_are_errors)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = two_ways(ctx);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 5, -1, 1);
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    mlc_quantize_desc d = static_desc(c, MLC_QUANT_TORCH);
    double range[2];
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the calibration has seen no batch");
    CHECK_EQ(mlc_calibrate_end(c), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "there was no batch");
    CHECK_EQ(mlc_calibrate_end(c), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "it was ended before");
    CHECK_EQ(mlc_calibration_range(c, "0.weight", range), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the layer of 0.weight did not run");
    CHECK_EQ(mlc_calibration_range(c, "1.weight", range), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no weight '1.weight'");
    mlc_calibration_free(c);
    /* A layer that never ran. */
    c = mlc_calibrate_begin(net, NULL);
    CHECK(mlc_forward(mlc_module_child(net, 0), x) != NULL);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    d.calibration = c;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the layer of 2.weight did not run while calibrating");
    CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_F32);
    const char *const keep[] = {"2"};
    d.keep = keep;
    d.n_keep = 1;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK(mlc_calibrate_begin(net, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "0.weight is quantized already");
    d.n_keep = 0;
    mlc_module *other = in_sequence(ctx, 2, two_ways(ctx), mlc_nn_linear(ctx, 8, 8));
    CHECK_EQ(mlc_quantize(other, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the calibration has no '0.0.weight'");
    mlc_calibration_free(c);
    mlc_calibration_free(NULL);
    CHECK_EQ(mlc_calibrate_end(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_calibration_range(NULL, "0", range), MLC_ERR_ARG);
    CHECK(mlc_calibrate_begin(NULL, NULL) == NULL);
}

TEST(quant_static, wrong_descs_and_numbers_are_errors)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = two_ways(ctx);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 8), 5, -1, 1);
    mlc_calibrate_desc d = mlc_calibrate_desc_make(MLC_QUANT_MOVING);
    d.rate = 0;
    CHECK(mlc_calibrate_begin(net, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rate 0");
    d = mlc_calibrate_desc_make(MLC_QUANT_ENTROPY);
    d.levels = 130;
    CHECK(mlc_calibrate_begin(net, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bins 128, levels 130");
    CHECK(mlc_calibrate_begin(mlc_nn_relu(ctx), NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no weight of a linear layer");
    CHECK(mlc_calibrate(net, NULL, NULL, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no loader");
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    q.calibration = c;
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a calibration and symmetric are of MLC_QUANT_STATIC");
    q = static_desc(c, MLC_QUANT_TORCH);
    q.per_row = true;
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "per_tensor and per_row are of dynamic");
    mlc_f32(x)[7] = (float)NO_NUMBER;
    (void)mlc_forward(net, x);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "the input of 0.weight has a NaN or inf");
    mlc_f32(x)[7] = 1;
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_calibrate_end(c), MLC_OK);
    q.per_row = false;
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    /* Beyond the range: the end of it. NaN: refused. */
    mlc_tensor *far = mlc_mul_scalar(x, 1000), *farther = mlc_mul_scalar(x, 4000);
    mlc_no_grad_begin(ctx);
    mlc_tensor *y = mlc_forward(net, far), *z = mlc_forward(net, farther);
    CHECK(y && z && memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
    CHECK_OK(ctx);
    mlc_f32(far)[7] = (float)NO_NUMBER;
    CHECK(mlc_forward(net, far) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "x has a NaN");
    mlc_no_grad_end(ctx);
    mlc_calibration_free(c);
}
