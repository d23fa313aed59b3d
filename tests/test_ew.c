/* test_ew.c -- tests of elementwise operations: IMPL.OPS.UNARY, BINARY, COMPARE
 *
 * Two tables. Values against libm in double, on each ISA level and dtype, for many arguments and
 * all layouts; special values; gradients by central differences. The same rows then drive the
 * operations in place, whose values and gradients must be those of the chain of new tensors.
 */
#include "mlc_test.h"

static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};

static double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
static double square_of(double x) { return x * x; }
static double reciprocal_of(double x) { return 1 / x; }
static double rsqrt_of(double x) { return 1 / sqrt(x); }
static double neg_of(double x) { return -x; }
static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
static double relu_of(double x) { return x > 0 || isnan(x) ? x : 0; }
static double gelu_of(double x) { return 0.5 * x * erfc(-x / sqrt(2.0)); }
static double silu_of(double x) { return x / (1 + exp(-x)); }
static double gelu_tanh_of(double x)
{
    return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
static double mish_of(double x) { return x == -INF ? 0 : x * tanh(log1p(exp(x))); }
static double log_sigmoid_of(double x) { return fmin(x, 0) - log1p(exp(-fabs(x))); }
static double selu_of(double x)
{
    return 1.0507009873554804934 * (x <= 0 ? 1.6732632423543772848 * expm1(x) : x);
}
static double softsign_of(double x)
{
    return isinf(x) ? copysign(1, x) : x / (1 + fabs(x));
}
static double hardswish_of(double x)
{
    return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;
}
static double hardsigmoid_of(double x)
{
    return x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6;
}
static double softplus_of(double x) { return x > 20 ? x : log1p(exp(x)); }

typedef struct unary {
    const char *name, *name_;
    mlc_tensor *(*call)(mlc_tensor *), *(*call_)(mlc_tensor *);
    double    (*ref)(double);
    double      low, high;             /* where gradients are checked: no kinks                */
    double      ulp;                   /* of f32, over many arguments; 0: checked elsewhere    */
} unary;

/* Functions with numbers beside the tensor, as functions of the tensor alone. */
#define WITH_AS(name, f, ...) \
    static mlc_tensor *name##_of(mlc_tensor *x) { return mlc_##f(x, __VA_ARGS__); } \
    static mlc_tensor *name##_of_(mlc_tensor *x) { return mlc_##f##_(x, __VA_ARGS__); }
#define WITH(f, ...) WITH_AS(f, f, __VA_ARGS__)

/* With numbers that f32 has exactly; of one below 0 the gradient is had in another way. */
WITH(leaky_relu, 0.0625)
WITH(elu, 0.75)
WITH(celu, 0.5)
WITH_AS(leaky_down, leaky_relu, -0.5)
WITH_AS(elu_down, elu, -0.75)
WITH_AS(celu_down, celu, -2)
static double ref_leaky(double x) { return x > 0 ? x : 0.0625 * x; }
static double ref_elu(double x) { return x > 0 ? x : 0.75 * expm1(x); }
static double ref_celu(double x) { return x > 0 ? x : 0.5 * expm1(x / 0.5); }
static double ref_leaky_down(double x) { return x > 0 ? x : -0.5 * x; }
static double ref_elu_down(double x) { return x > 0 ? x : -0.75 * expm1(x); }
static double ref_celu_down(double x) { return x > 0 ? x : -2 * expm1(x / -2); }

static const unary UNARY[] = {
    {"mlc_neg", "mlc_neg_", mlc_neg, mlc_neg_, neg_of, -3, 3, 0.5},
    {"mlc_exp", "mlc_exp_", mlc_exp, mlc_exp_, exp, -3, 3, 1.5},
    {"mlc_log", "mlc_log_", mlc_log, mlc_log_, log, 0.2, 4, 1.5},
    {"mlc_sqrt", "mlc_sqrt_", mlc_sqrt, mlc_sqrt_, sqrt, 0.2, 4, 0.5},
    {"mlc_tanh", "mlc_tanh_", mlc_tanh, mlc_tanh_, tanh, -3, 3, 2},
    {"mlc_sigmoid", "mlc_sigmoid_", mlc_sigmoid, mlc_sigmoid_, sigmoid_of, -4, 4, 0},
    {"mlc_relu", "mlc_relu_", mlc_relu, mlc_relu_, relu_of, 0.5, 3, 0.5},
    {"mlc_gelu", "mlc_gelu_", mlc_gelu, mlc_gelu_, gelu_of, -3, 3, 0},
    {"mlc_silu", "mlc_silu_", mlc_silu, mlc_silu_, silu_of, -3, 3, 0},
    {"mlc_gelu_tanh", "mlc_gelu_tanh_", mlc_gelu_tanh, mlc_gelu_tanh_, gelu_tanh_of, -3, 3, 0},
    {"mlc_softplus", "mlc_softplus_", mlc_softplus, mlc_softplus_, softplus_of, -3, 3, 2},
    {"mlc_log_sigmoid", "mlc_log_sigmoid_", mlc_log_sigmoid, mlc_log_sigmoid_, log_sigmoid_of, -4,
     4, 2},
    {"mlc_selu", "mlc_selu_", mlc_selu, mlc_selu_, selu_of, -3, -0.5, 2},
    {"mlc_mish", "mlc_mish_", mlc_mish, mlc_mish_, mish_of, -4, 4, 0.6},
    {"mlc_softsign", "mlc_softsign_", mlc_softsign, mlc_softsign_, softsign_of, 0.5, 4, 1.5},
    {"mlc_hardswish", "mlc_hardswish_", mlc_hardswish, mlc_hardswish_, hardswish_of, -2.5, 2.5, 2},
    {"mlc_hardsigmoid", "mlc_hardsigmoid_", mlc_hardsigmoid, mlc_hardsigmoid_, hardsigmoid_of, -2.5,
     2.5, 1.5},
    {"mlc_leaky_relu", "mlc_leaky_relu_", leaky_relu_of, leaky_relu_of_, ref_leaky, -3, -0.5, 0.5},
    {"mlc_elu", "mlc_elu_", elu_of, elu_of_, ref_elu, -3, -0.5, 1.5},
    {"mlc_celu", "mlc_celu_", celu_of, celu_of_, ref_celu, -3, -0.5, 1.5},
    {"mlc_leaky_relu(x, -0.5)", "mlc_leaky_relu_(x, -0.5)", leaky_down_of, leaky_down_of_,
     ref_leaky_down, -3, -0.5, 0.5},
    {"mlc_elu(x, -0.75)", "mlc_elu_(x, -0.75)", elu_down_of, elu_down_of_, ref_elu_down, -3, -0.5,
     1.5},
    {"mlc_celu(x, -2)", "mlc_celu_(x, -2)", celu_down_of, celu_down_of_, ref_celu_down, -3, -0.5,
     1.5},
    {"mlc_abs", "mlc_abs_", mlc_abs, mlc_abs_, fabs, 0.5, 3, 0.5},
    {"mlc_sign", "mlc_sign_", mlc_sign, mlc_sign_, sign_of, 0.5, 3, 0.5},
    {"mlc_square", "mlc_square_", mlc_square, mlc_square_, square_of, -3, 3, 0.5},
    {"mlc_reciprocal", "mlc_reciprocal_", mlc_reciprocal, mlc_reciprocal_, reciprocal_of, 0.3, 3,
     0.5},
    {"mlc_rsqrt", "mlc_rsqrt_", mlc_rsqrt, mlc_rsqrt_, rsqrt_of, 0.3, 3, 1.5},
    {"mlc_expm1", "mlc_expm1_", mlc_expm1, mlc_expm1_, expm1, -3, 3, 0.6},
    {"mlc_exp2", "mlc_exp2_", mlc_exp2, mlc_exp2_, exp2, -3, 3, 1.1},
    {"mlc_log1p", "mlc_log1p_", mlc_log1p, mlc_log1p_, log1p, -0.6, 3, 1.5},
    {"mlc_log2", "mlc_log2_", mlc_log2, mlc_log2_, log2, 0.2, 4, 0.6},
    {"mlc_log10", "mlc_log10_", mlc_log10, mlc_log10_, log10, 0.2, 4, 0.6},
    {"mlc_sin", "mlc_sin_", mlc_sin, mlc_sin_, sin, -3, 3, 0.6},
    {"mlc_cos", "mlc_cos_", mlc_cos, mlc_cos_, cos, -3, 3, 0.6},
    {"mlc_tan", "mlc_tan_", mlc_tan, mlc_tan_, tan, -1, 1, 0.6},
    {"mlc_asin", "mlc_asin_", mlc_asin, mlc_asin_, asin, -0.9, 0.9, 0.6},
    {"mlc_acos", "mlc_acos_", mlc_acos, mlc_acos_, acos, -0.9, 0.9, 0.6},
    {"mlc_atan", "mlc_atan_", mlc_atan, mlc_atan_, atan, -3, 3, 0.6},
    {"mlc_sinh", "mlc_sinh_", mlc_sinh, mlc_sinh_, sinh, -2, 2, 0.6},
    {"mlc_cosh", "mlc_cosh_", mlc_cosh, mlc_cosh_, cosh, -2, 2, 0.6},
    {"mlc_erf", "mlc_erf_", mlc_erf, mlc_erf_, erf, -2, 2, 2},
    {"mlc_erfc", "mlc_erfc_", mlc_erfc, mlc_erfc_, erfc, -2, 2, 0.6},
    {"mlc_floor", "mlc_floor_", mlc_floor, mlc_floor_, floor, 0.2, 0.8, 0.5},
    {"mlc_ceil", "mlc_ceil_", mlc_ceil, mlc_ceil_, ceil, 0.2, 0.8, 0.5},
    {"mlc_round", "mlc_round_", mlc_round, mlc_round_, nearbyint, 0.6, 0.9, 0.5},
    {"mlc_trunc", "mlc_trunc_", mlc_trunc, mlc_trunc_, trunc, 0.2, 0.8, 0.5},
};
#define UNARIES ((int)(sizeof UNARY / sizeof *UNARY))

static double python_mod(double a, double b)
{
    double m = fmod(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
/* Rounded down, as Python's //: minus one where the remainder's sign is not that of b. */
static double floor_div(double a, double b)
{
    double m = fmod(a, b);
    return b == 0 ? a / b : (a - m) / b - (m != 0 && (b < 0) != (m < 0));
}
static double add_of(double a, double b) { return a + b; }
static double sub_of(double a, double b) { return a - b; }
static double mul_of(double a, double b) { return a * b; }
static double div_of(double a, double b) { return a / b; }
static double min_of(double a, double b) { return isnan(a) || isnan(b) ? a + b : a < b ? a : b; }
static double max_of(double a, double b) { return isnan(a) || isnan(b) ? a + b : a > b ? a : b; }

typedef struct binary {
    const char *name, *name_;
    mlc_tensor *(*call)(mlc_tensor *, mlc_tensor *), *(*call_)(mlc_tensor *, mlc_tensor *);
    double    (*ref)(double, double);
    double      low, high, ulp;
} binary;

static const binary BINARY[] = {
    {"mlc_add", "mlc_add_", mlc_add, mlc_add_, add_of, -2, 2, 0.5},
    {"mlc_sub", "mlc_sub_", mlc_sub, mlc_sub_, sub_of, -2, 2, 0.5},
    {"mlc_mul", "mlc_mul_", mlc_mul, mlc_mul_, mul_of, -2, 2, 0.5},
    {"mlc_div", "mlc_div_", mlc_div, mlc_div_, div_of, 0.5, 2, 0.5},
    {"mlc_pow", "mlc_pow_", mlc_pow, mlc_pow_, pow, 0.3, 2.5, 0.6},
    {"mlc_minimum", "mlc_minimum_", mlc_minimum, mlc_minimum_, min_of, -2, 2, 0.5},
    {"mlc_maximum", "mlc_maximum_", mlc_maximum, mlc_maximum_, max_of, -2, 2, 0.5},
    {"mlc_fmod", "mlc_fmod_", mlc_fmod, mlc_fmod_, fmod, 1.1, 1.9, 0.5},
    {"mlc_remainder", "mlc_remainder_", mlc_remainder, mlc_remainder_, python_mod, 1.1, 1.9, 0.5},
    {"mlc_floor_divide", "mlc_floor_divide_", mlc_floor_divide, mlc_floor_divide_, floor_div, 1.1,
     1.9, 0.5},
    {"mlc_atan2", "mlc_atan2_", mlc_atan2, mlc_atan2_, atan2, -2, 2, 0.6},
    {"mlc_hypot", "mlc_hypot_", mlc_hypot, mlc_hypot_, hypot, 0.3, 2, 0.6},
};
#define BINARIES ((int)(sizeof BINARY / sizeof *BINARY))

/* ---- values over many arguments ----------------------------------------------------------- */

#define MANY 60000

/* Distance of got from the exact result, in units of its last place in f32. */
static double ulps(float got, double exact)
{
    int e;
    if (isnan(exact) || isnan(got)) return isnan(exact) && isnan(got) ? 0 : INF;
    if (isinf(got) || isinf(exact))
        return got == (float)exact || fabs(exact) > 3.4028234e38 ? 0 : INF;
    frexp(exact, &e);
    /* Next to the denormals an intermediate result may have been flushed. */
    if (fabs(exact) < 0x1p-120) return fabs((double)got - exact) <= 0x1p-125 ? 0 : INF;
    return fabs((double)got - exact) / ldexp(1, e - 24);
}

/* A third around 1, a third of any exponent, a third in [-100, 100]. No denormals. */
static float argument(uint64_t seed, int64_t i)
{
    const double r = test_random(seed, i, -1, 1);
    if (i % 3 == 0) return (float)(3 * r);
    if (i % 3 == 1) return (float)ldexp(r < 0 ? r - 1 : r + 1, (int)(i / 3 % 250) - 125);
    return (float)(100 * r);
}

static double worst(mlc_tensor *y, const double *exact, const double *a, const double *b)
{
    static double got[MANY];
    double most = 0;
    if (!test_read(y, got)) return INF;
    for (int i = 0; i < MANY; i++) {
        const double d = ulps((float)got[i], exact[i]);
        if (!(d <= most)) {
            most = d;
            if (d > 2) {
                printf("  of %.9g %.9g: %.9g, want %.17g\n", a[i], b ? b[i] : 0, got[i], exact[i]);
                return d;
            }
        }
    }
    return most;
}

TEST(ew, functions_of_f32_are_within_their_error_for_all_sizes_of_arguments)
{
    static double x[MANY], exact[MANY];
    for (int i = 0; i < MANY; i++) x[i] = (double)argument(1, i);
    FOR_EACH_ISA(ctx) {
        mlc_tensor *in = test_tensor(ctx, MLC_F32, mlc_dims1(MANY), x);
        for (int f = 0; f < UNARIES; f++) {
            if (UNARY[f].ulp == 0) continue;
            for (int i = 0; i < MANY; i++) exact[i] = UNARY[f].ref(x[i]);
            const double most = worst(UNARY[f].call(in), exact, x, NULL);
            if (!CHECK(most <= UNARY[f].ulp)) printf("  %s: %g ulp\n", UNARY[f].name, most);
        }
        CHECK_OK(ctx);
    }
}

TEST(ew, functions_of_two_f32_are_within_their_error_for_all_sizes_of_arguments)
{
    static double a[MANY], b[MANY], exact[MANY];
    for (int i = 0; i < MANY; i++) {
        a[i] = (double)argument(2, i);
        b[i] = (double)argument(3, i + i / 7);
    }
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(MANY), a);
        mlc_tensor *y = test_tensor(ctx, MLC_F32, mlc_dims1(MANY), b);
        for (int f = 0; f < BINARIES; f++) {
            for (int i = 0; i < MANY; i++) {
                exact[i] = BINARY[f].ref(a[i], b[i]);
                /* The quotient of a floor_divide may be beyond f32's integers: rounded. */
                if (BINARY[f].ref == floor_div) exact[i] = (double)(float)exact[i];
            }
            const double most = worst(BINARY[f].call(x, y), exact, a, b);
            if (!CHECK(most <= BINARY[f].ulp)) printf("  %s: %g ulp\n", BINARY[f].name, most);
        }
        CHECK_OK(ctx);
    }
}

static double gelu_slope_of(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) * 0.3989422804014327;
}

/* The errors that IMPL.KERNELS.MATH states, at every 2^-12 up to 8, and far out. */
TEST(ew, gelu_and_its_derivative_are_within_their_errors)
{
    static double x[MANY], got[MANY], slope[MANY];
    for (int i = 0; i < MANY; i++) x[i] = ldexp(i - MANY / 2, i % 64 ? -12 : -8);
    x[0] = -0x1p100;
    x[MANY - 1] = 0x1p100;
    FOR_EACH_ISA(ctx) {
        mlc_tensor *in = test_tensor(ctx, MLC_F32, mlc_dims1(MANY), x);
        mlc_set_requires_grad(in, true);
        mlc_tensor *y = mlc_gelu(in);
        CHECK_EQ(mlc_backward_from(y, mlc_ones(ctx, MLC_F32, mlc_dims1(MANY))), MLC_OK);
        CHECK(test_read(y, got) && test_read(mlc_grad(in), slope));
        for (int i = 0; i < MANY; i++) {
            const double want = gelu_of(x[i]);
            const double part = x[i] > 0 ? 1.2e-6 : x[i] > -3 ? 3.2e-6 : 1;
            const double bound = fmin(fabs(x[i]) > 8 ? 1e-14 : 2.5e-7, part * fabs(want) + 1e-37);
            if (!CHECK(fabs(got[i] - want) <= bound) ||
                !CHECK(fabs(slope[i] - gelu_slope_of(x[i])) <= 5e-7))
                printf("  of %g: %.9g, %.9g, want %.9g, %.9g\n", x[i], got[i], slope[i], want,
                       gelu_slope_of(x[i]));
        }
        CHECK_OK(ctx);
    }
}

static double gelu_tanh_slope_of(double x)
{
    const double z = 1.5957691216057308 * (x + 0.044715 * x * x * x);
    const double s = 1 / (1 + exp(-z)), rest = 1 / (1 + exp(z));
    return s + x * s * rest * 1.5957691216057308 * (1 + 0.134145 * x * x);
}

TEST(ew, gelu_tanh_and_its_derivative_are_within_their_errors)
{
    static double x[MANY], got[MANY], slope[MANY];
    for (int i = 0; i < MANY; i++) x[i] = ldexp(i - MANY / 2, -12);
    FOR_EACH_ISA(ctx) {
        mlc_tensor *in = test_tensor(ctx, MLC_F32, mlc_dims1(MANY), x);
        mlc_set_requires_grad(in, true);
        mlc_tensor *y = mlc_gelu_tanh(in);
        CHECK_EQ(mlc_backward_from(y, mlc_ones(ctx, MLC_F32, mlc_dims1(MANY))), MLC_OK);
        CHECK(test_read(y, got) && test_read(mlc_grad(in), slope));
        for (int i = 0; i < MANY; i++) {
            const double want = gelu_tanh_of(x[i]);
            if (!CHECK(fabs(got[i] - want) <= fmax(6e-7, 6e-8 * fabs(want))) ||
                !CHECK(fabs(slope[i] - gelu_tanh_slope_of(x[i])) <= 6e-7))
                printf("  of %g: %.9g, %.9g, want %.9g, %.9g\n", x[i], got[i], slope[i], want,
                       gelu_tanh_slope_of(x[i]));
        }
        CHECK_OK(ctx);
    }
}

/* The limits, where the formula has 0 times infinity. */
TEST(ew, gelu_at_infinity)
{
    static const double x[3] = {-(double)INFINITY, (double)INFINITY, (double)NAN};
    static const double y[3] = {0, (double)INFINITY, (double)NAN};
    static const double slope[3] = {0, 1, (double)NAN};
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < 2; d++) {
            mlc_tensor *in = test_tensor(ctx, FLOATS[d], mlc_dims1(3), x);
            mlc_set_requires_grad(in, true);
            for (int form = 0; form < 2; form++) {
                mlc_tensor *out = form ? mlc_gelu_tanh(in) : mlc_gelu(in);
                mlc_zero_grad(in);
                CHECK_EQ(mlc_backward_from(out, mlc_ones(ctx, FLOATS[d], mlc_dims1(3))), MLC_OK);
                CHECK_VALUES(out, 3, y, 0, 0);
                CHECK_VALUES(mlc_grad(in), 3, slope, 0, 0);
            }
        }
        CHECK_OK(ctx);
    }
}

/* y and its derivative at n points, in a dtype. */
static void at_points(mlc_ctx *ctx, const unary *f, mlc_dtype dtype, int n, const double *x,
                      double *y, double *slope)
{
    mlc_tensor *in = test_tensor(ctx, dtype, mlc_dims1(n), x);
    mlc_set_requires_grad(in, true);
    mlc_tensor *out = f->call(in);
    CHECK_EQ(mlc_backward_from(out, mlc_ones(ctx, dtype, mlc_dims1(n))), MLC_OK);
    CHECK(test_read(out, y) && test_read(mlc_grad(in), slope));
    CHECK_OK(ctx);
}

static const unary *unary_named(const char *name)
{
    for (int f = 0; f < UNARIES; f++)
        if (strcmp(UNARY[f].name, name) == 0) return &UNARY[f];
    CHECK(false);
    return UNARY;
}

static double mish_slope_of(double x)
{
    const double t = tanh(log1p(exp(x)));
    return t + x * (1 - t * t) / (1 + exp(-x));
}
static double elu_slope_of(double x) { return x > 0 ? 1 : 0.75 * exp(x); }
static double celu_slope_of(double x) { return x > 0 ? 1 : exp(x / 0.5); }
static double log_sigmoid_slope_of(double x) { return 1 / (1 + exp(x)); }
static double softsign_slope_of(double x) { return 1 / ((1 + fabs(x)) * (1 + fabs(x))); }

/* Also where a derivative is had from the result, which near -alpha has few digits left. */
TEST(ew, derivatives_of_activations_are_within_their_errors)
{
    static const struct { const char *name; double (*slope)(double), most; } of[] = {
        {"mlc_mish", mish_slope_of, 6e-7},          {"mlc_elu", elu_slope_of, 1.2e-7},
        {"mlc_celu", celu_slope_of, 1.8e-7},        {"mlc_softsign", softsign_slope_of, 1.2e-7},
        {"mlc_log_sigmoid", log_sigmoid_slope_of, 2.4e-7},
    };
    static double x[MANY], y[MANY], slope[MANY];
    for (int i = 0; i < MANY; i++) x[i] = ldexp(i - MANY / 2, i % 64 ? -12 : -8);
    FOR_EACH_ISA(ctx)
        for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
            double most = 0;
            at_points(ctx, unary_named(of[k].name), MLC_F32, MANY, x, y, slope);
            for (int i = 0; i < MANY; i++) most = fmax(most, fabs(slope[i] - of[k].slope(x[i])));
            if (!CHECK(most <= of[k].most)) printf("  %s: %g\n", of[k].name, most);
        }
}

TEST(ew, glu_is_within_its_error)
{
    static double x[2 * MANY], got[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = (double)(float)test_random(51, i, -2, 2);
        x[MANY + i] = (double)(float)test_random(52, i, -80, 80);
    }
    FOR_EACH_ISA(ctx) {
        double most = 0;
        CHECK(test_read(mlc_glu(test_tensor(ctx, MLC_F32, mlc_dims1(2 * MANY), x), 0), got));
        for (int i = 0; i < MANY; i++)
            most = fmax(most, ulps((float)got[i], x[i] * sigmoid_of(x[MANY + i])));
        if (!CHECK(most <= 2.5)) printf("  %g ulp\n", most);
        CHECK_OK(ctx);
    }
}

/* The limits, where formulas have 0 times infinity, or divide it by itself. */
TEST(ew, activations_at_infinity)
{
    static const double x[3] = {-(double)INFINITY, (double)INFINITY, (double)NAN};
    static const struct { const char *name; double y[2], slope[2]; } at[] = {
        {"mlc_mish", {0, (double)INFINITY}, {0, 1}},
        {"mlc_softsign", {-1, 1}, {0, 0}},
        {"mlc_hardswish", {0, (double)INFINITY}, {0, 1}},
        {"mlc_hardsigmoid", {0, 1}, {0, 0}},
        {"mlc_log_sigmoid", {-(double)INFINITY, 0}, {1, 0}},
        {"mlc_elu", {-0.75, (double)INFINITY}, {0, 1}},
        {"mlc_celu", {-0.5, (double)INFINITY}, {0, 1}},
        {"mlc_leaky_relu", {-(double)INFINITY, (double)INFINITY}, {0.0625, 1}},
    };
    double y[3], slope[3];
    FOR_EACH_ISA(ctx)
        for (int d = 0; d < 4; d++)
            for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
                at_points(ctx, unary_named(at[k].name), FLOATS[d], 3, x, y, slope);
                if (!CHECK(y[0] == at[k].y[0] && y[1] == at[k].y[1] && isnan(y[2]) &&
                           slope[0] == at[k].slope[0] && slope[1] == at[k].slope[1]))
                    printf("  %s: %g %g %g, %g %g\n", at[k].name, y[0], y[1], y[2], slope[0],
                           slope[1]);
            }
}

/* Beside its ends in each dtype the result, which is what is saved, is neither 0 nor 1. */
TEST(ew, hardsigmoid_tells_its_ends_from_their_neighbours)
{
    static const double step[4] = {0x1p-22, 0x1p-51, 0x1p-6, 0x1p-9};     /* below 3, as FLOATS */
    double y[4], slope[4];
    FOR_EACH_ISA(ctx)
        for (int d = 0; d < 4; d++) {
            const double x[4] = {-3, -3 + step[d], 3 - step[d], 3};
            at_points(ctx, unary_named("mlc_hardsigmoid"), FLOATS[d], 4, x, y, slope);
            CHECK(y[0] == 0 && y[1] > 0 && y[2] < 1 && y[3] == 1);
            CHECK(slope[0] == 0 && slope[1] > 0.16 && slope[2] > 0.16 && slope[3] == 0);
        }
}

/* ---- special values ----------------------------------------------------------------------- */

static const double SPECIAL[] = {0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2, -2, 2.5, 3, 1e-30, -1e-30,
                                 1e30, -1e30, 88.5, 89, -87, -104, 1e7, 12345678, 8388608.5,
                                 3.4028234e38, -3.4028234e38, (double)INFINITY, -(double)INFINITY,
                                 (double)NAN};
#define SPECIALS ((int)(sizeof SPECIAL / sizeof *SPECIAL))

/* Zeros also agree in sign where both are zeros: what atan2 and 1/x do with them differs. */
static bool same_special(double got, double want, double tolerance)
{
    if (isnan(want)) return isnan(got);
    if (isinf(want) || want == 0) return got == want;
    return fabs(got - want) <= tolerance * fabs(want) || fabs(want) < 0x1p-125 ||
           (fabs(want) > 3.4028235e38 && isinf(got));
}

TEST(ew, special_values_give_what_libm_gives)
{
    double got[SPECIALS * SPECIALS], a[SPECIALS * SPECIALS], b[SPECIALS * SPECIALS];
    for (int i = 0; i < SPECIALS * SPECIALS; i++) {
        a[i] = (double)(float)SPECIAL[i % SPECIALS];
        b[i] = (double)(float)SPECIAL[i / SPECIALS];
    }
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < 2; d++) {
            mlc_tensor *x = test_tensor(ctx, FLOATS[d], mlc_dims1(SPECIALS), a);
            for (int f = 0; f < UNARIES; f++) {
                CHECK(test_read(UNARY[f].call(x), got));
                for (int i = 0; i < SPECIALS; i++) {
                    /* gelu, silu and sigmoid: 0 times infinity is their formulas' own affair. */
                    if (UNARY[f].ulp == 0 && (isinf(a[i]) || fabs(a[i]) > 80)) continue;
                    const double tolerance = UNARY[f].ulp == 0 ? 1e-5 : 3e-7;
                    if (!CHECK(same_special(got[i], UNARY[f].ref(a[i]), tolerance)))
                        printf("  %s(%g) is %g, want %g\n", UNARY[f].name, a[i], got[i],
                               UNARY[f].ref(a[i]));
                }
            }
            x = test_tensor(ctx, FLOATS[d], mlc_dims1(SPECIALS * SPECIALS), a);
            mlc_tensor *y = test_tensor(ctx, FLOATS[d], mlc_dims1(SPECIALS * SPECIALS), b);
            for (int f = 0; f < BINARIES; f++) {
                CHECK(test_read(BINARY[f].call(x, y), got));
                for (int i = 0; i < SPECIALS * SPECIALS; i++)
                    if (!CHECK(same_special(got[i], BINARY[f].ref(a[i], b[i]), 3e-7)))
                        printf("  %s(%g, %g) is %g, want %g\n", BINARY[f].name, a[i], b[i], got[i],
                               BINARY[f].ref(a[i], b[i]));
            }
        }
        CHECK_OK(ctx);
    }
}

/* ---- scalars ------------------------------------------------------------------------------ */

TEST(ew, scalar_forms_and_clamp)
{
    static const double x0[5] = {-2, -0.5, 0, 1.5, 4}, div[5] = {-0.5, -0.125, 0, 0.375, 1};
    static const double cube[5] = {-8, -0.125, 0, 3.375, 64}, rsub[5] = {3, 1.5, 1, -0.5, -3};
    static const double in[5] = {-1, -0.5, 0, 1.5, 2}, low[5] = {-0.5, -0.5, 0, 1.5, 4};
    static const double all[5] = {-1, -1, -1, -1, -1};
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < 4; d++) {
            mlc_tensor *x = test_tensor(ctx, FLOATS[d], mlc_dims1(5), x0);
            CHECK_VALUES(mlc_div_scalar(x, 4), 5, div, 0, 0);
            CHECK_VALUES(mlc_pow_scalar(x, 3), 5, cube, 0, 0);
            CHECK_VALUES(mlc_rsub_scalar(x, 1), 5, rsub, 0, 0);
            CHECK_VALUES(mlc_clamp(x, -1, 2), 5, in, 0, 0);
            CHECK_VALUES(mlc_clamp(x, -0.5, INF), 5, low, 0, 0);
            CHECK_VALUES(mlc_clamp(x, 2, -1), 5, all, 0, 0);
            mlc_tensor *nan = mlc_full(ctx, FLOATS[d], mlc_dims0(), NO_NUMBER);
            CHECK(isnan(mlc_item(mlc_clamp(nan, 0, 1))));
        }
        CHECK_OK(ctx);
    }
}

/* Some powers have formulas of their own: each still has C's rules for every special value. */
TEST(ew, one_power_for_all_elements)
{
    static const double powers[] = {2, 3, 0.5, -1, 0, 1, -2, -0.5, 2.5, 4, -3, 1e9, 16777215,
                                    (double)INFINITY, -(double)INFINITY, (double)NAN};
    double got[SPECIALS], a[SPECIALS];
    for (int i = 0; i < SPECIALS; i++) a[i] = (double)(float)SPECIAL[i];
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < 2; d++)
            for (int p = 0; p < (int)(sizeof powers / sizeof *powers); p++) {
                mlc_tensor *x = test_tensor(ctx, FLOATS[d], mlc_dims1(SPECIALS), a);
                CHECK(test_read(mlc_pow_scalar(x, powers[p]), got));
                for (int i = 0; i < SPECIALS; i++) {
                    const double want = pow(a[i], powers[p]);
                    if (!CHECK(same_special(got[i], want, 3e-7) &&
                               (want != 0 || signbit(want) == 0 || signbit(got[i]) != 0)))
                        printf("  %g to the power of %g is %g, want %g\n", a[i], powers[p], got[i],
                               want);
                }
            }
        CHECK_OK(ctx);
    }
}

/* ---- gradients ---------------------------------------------------------------------------- */

typedef struct call {                  /* for gradcheck                                        */
    const unary  *u;
    const binary *b;
    int           scalar;              /* 1 div 2 pow 3 rsub 4 clamp 5 where 6 masked_fill     */
    mlc_tensor   *mask;
} call;

static mlc_tensor *run(void *user, mlc_tensor *const *in, int32_t n)
{
    const call *c = (const call *)user;
    (void)n;
    if (c->u) return c->u->call(in[0]);
    if (c->b) return c->b->call(in[0], in[1]);
    switch (c->scalar) {
    case 1:  return mlc_div_scalar(in[0], 3);
    case 2:  return mlc_pow_scalar(in[0], 2.5);
    case 3:  return mlc_rsub_scalar(in[0], 3);
    case 4:  return mlc_clamp(in[0], 0.9, 1.6);
    case 5:  return mlc_where(c->mask, in[0], in[1]);
    default: return mlc_masked_fill(in[0], c->mask, 7);
    }
}

static void check_gradient(mlc_ctx *ctx, call *c, const char *name, mlc_tensor *a, mlc_tensor *b)
{
    mlc_gradcheck_report report;
    mlc_tensor *in[2] = {a, b};
    CHECK_EQ(mlc_set_requires_grad(a, true), MLC_OK);
    if (b) CHECK_EQ(mlc_set_requires_grad(b, true), MLC_OK);
    CHECK_EQ(mlc_gradcheck(run, c, in, b ? 2 : 1, NULL, &report), MLC_OK);
    CHECK_OK(ctx);
    if (!CHECK(report.ok))
        printf("  %s: input %d, element %d: %g, numerically %g\n", name, report.input,
               (int)report.index, report.analytic, report.numeric);
}

TEST(ew, gradients_match_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    call     c = {NULL, NULL, 0, NULL};
    for (int f = 0; f < UNARIES; f++) {
        c.u = &UNARY[f];
        check_gradient(ctx, &c, c.u->name, test_rand(ctx, MLC_F64, mlc_dims2(3, 5), 4, c.u->low,
                                                     c.u->high), NULL);
        check_gradient(ctx, &c, c.u->name,
                       mlc_transpose(test_rand(ctx, MLC_F64, mlc_dims2(5, 3), 5, c.u->low,
                                               c.u->high), 0, 1), NULL);
    }
    c.u = NULL;
    for (int f = 0; f < BINARIES; f++) {
        static const int64_t shapes[4][4] = {{3, 5, 3, 5}, {3, 5, 1, 5}, {3, 1, 1, 5},
                                             {1, 1, 3, 2}};
        c.b = &BINARY[f];
        for (int i = 0; i < 4; i++)    /* apart by the ranges, so that no two are equal        */
            check_gradient(ctx, &c, c.b->name,
                           test_rand(ctx, MLC_F64, mlc_dims2(shapes[i][0], shapes[i][1]), 6,
                                     c.b->low + 2, c.b->high + 2),
                           test_rand(ctx, MLC_F64, mlc_dims2(shapes[i][2], shapes[i][3]), 7,
                                     c.b->low, c.b->high));
    }
    c.b = NULL;
    c.mask = mlc_gt_scalar(test_rand(ctx, MLC_F32, mlc_dims2(3, 5), 8, -1, 1), 0);
    for (c.scalar = 1; c.scalar <= 6; c.scalar++)
        check_gradient(ctx, &c, "scalar form", test_rand(ctx, MLC_F64, mlc_dims2(3, 5), 9, 1, 1.5),
                       c.scalar == 5 ? test_rand(ctx, MLC_F64, mlc_dims1(5), 10, 1, 2) : NULL);
}

/* ---- comparison and logic ----------------------------------------------------------------- */

typedef struct comparison {
    const char *name, *scalar;
    mlc_tensor *(*call)(mlc_tensor *, mlc_tensor *), *(*call_s)(mlc_tensor *, double);
} comparison;

static const comparison COMPARE[] = {
    {"mlc_eq", "mlc_eq_scalar", mlc_eq, mlc_eq_scalar},
    {"mlc_ne", "mlc_ne_scalar", mlc_ne, mlc_ne_scalar},
    {"mlc_lt", "mlc_lt_scalar", mlc_lt, mlc_lt_scalar},
    {"mlc_le", "mlc_le_scalar", mlc_le, mlc_le_scalar},
    {"mlc_gt", "mlc_gt_scalar", mlc_gt, mlc_gt_scalar},
    {"mlc_ge", "mlc_ge_scalar", mlc_ge, mlc_ge_scalar},
};

static double compared(int op, double a, double b)
{
    const bool r[6] = {a == b, a != b, a < b, a <= b, a > b, a >= b};
    return r[op];
}

TEST(ew, comparisons_of_every_dtype_and_layout)
{
    static double a[6 * 70], b[6 * 70], want[6 * 70];
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++)
            for (int64_t n = 1; n <= 70; n += 23) {
                uint64_t raw = 0;
                for (int i = 0; i < 6 * n; i++) {
                    test_put(&raw, ALL[d], 0, (double)(i % 5));
                    a[i] = test_get(&raw, ALL[d], 0);
                    test_put(&raw, ALL[d], 0, (double)(i % 3));
                    b[i] = test_get(&raw, ALL[d], 0);
                }
                mlc_tensor *x = test_tensor(ctx, ALL[d], mlc_dims2(6, n), a);
                mlc_tensor *y = test_tensor(ctx, ALL[d], mlc_dims2(6, n), b);
                for (int op = 0; op < 6; op++) {
                    for (int i = 0; i < 6 * n; i++) want[i] = compared(op, a[i], b[i]);
                    mlc_tensor *dense = COMPARE[op].call(x, y);
                    CHECK_EQ(dense->dtype, MLC_BOOL);
                    CHECK_VALUES(dense, 6 * n, want, 0, 0);
                    CHECK_VALUES(mlc_transpose(COMPARE[op].call(mlc_transpose(x, 0, 1),
                                                                mlc_transpose(y, 0, 1)), 0, 1),
                                 6 * n, want, 0, 0);
                    for (int i = 0; i < 6 * n; i++) want[i] = compared(op, a[i], b[i / n * n]);
                    CHECK_VALUES(COMPARE[op].call(x, mlc_slice(y, 1, 0, 1, 1)), 6 * n, want, 0, 0);
                    for (int i = 0; i < 6 * n; i++) want[i] = compared(op, a[i], 1);
                    CHECK_VALUES(COMPARE[op].call_s(x, 1), 6 * n, want, 0, 0);
                }
            }
        CHECK_OK(ctx);
    }
}

TEST(ew, comparisons_are_exact_at_the_edges)
{
    mlc_ctx      *ctx = test_ctx();
    const int64_t big[2] = {9007199254740993, 9007199254740992};      /* 2^53 + 1: no double   */
    mlc_tensor   *q = mlc_from(ctx, MLC_I64, mlc_dims1(2), big);
    static const double first[2] = {1, 0}, second[2] = {0, 1}, none[2] = {0, 0}, both[2] = {1, 1};
    CHECK_VALUES(mlc_gt(q, mlc_slice(q, 0, 1, 2, 1)), 2, first, 0, 0);
    CHECK_VALUES(mlc_eq_scalar(q, 9007199254740992.0), 2, second, 0, 0);
    CHECK_VALUES(mlc_eq_scalar(mlc_full(ctx, MLC_I32, mlc_dims1(2), 2), 2.5), 2, none, 0, 0);
    CHECK_VALUES(mlc_lt_scalar(mlc_full(ctx, MLC_I8, mlc_dims1(2), 2), 2.5), 2, both, 0, 0);
    CHECK_VALUES(mlc_lt_scalar(q, INF), 2, both, 0, 0);
    CHECK_VALUES(mlc_eq_scalar(mlc_full(ctx, MLC_F32, mlc_dims1(2), 0.1), 0.1), 2, both, 0, 0);
    CHECK_VALUES(mlc_eq_scalar(mlc_full(ctx, MLC_F16, mlc_dims1(2), 0.1), 0.1), 2, both, 0, 0);
    mlc_tensor *nan = mlc_full(ctx, MLC_F32, mlc_dims1(2), NO_NUMBER);
    CHECK_VALUES(mlc_eq(nan, nan), 2, none, 0, 0);
    CHECK_VALUES(mlc_ne(nan, nan), 2, both, 0, 0);
    CHECK_VALUES(mlc_le(nan, nan), 2, none, 0, 0);
    CHECK_OK(ctx);
}

typedef struct test_of {               /* what looks at one element                            */
    const char *name;
    mlc_tensor *(*call)(mlc_tensor *);
} test_of;
static const test_of TESTS[] = {{"mlc_isnan", mlc_isnan},
                                {"mlc_isinf", mlc_isinf},
                                {"mlc_isfinite", mlc_isfinite},
                                {"mlc_logical_not", mlc_logical_not}};
static const comparison LOGIC[] = {{"mlc_logical_and", "", mlc_logical_and, NULL},
                                   {"mlc_logical_or", "", mlc_logical_or, NULL},
                                   {"mlc_logical_xor", "", mlc_logical_xor, NULL}};

TEST(ew, kinds_of_values_and_logic)
{
    static const double x[5] = {1, (double)INFINITY, -(double)INFINITY, (double)NAN, 0};
    static const double want[3][5] = {{0, 0, 0, 1, 0}, {0, 1, 1, 0, 0}, {1, 0, 0, 0, 1}};
    static const double ones[5] = {1, 1, 1, 1, 1}, zeros[5] = {0, 0, 0, 0, 0};
    static const double p[4] = {0, 0, 1, 1}, q[4] = {0, 1, 0, 1};
    static const double logic[3][4] = {{0, 0, 0, 1}, {0, 1, 1, 1}, {0, 1, 1, 0}};
    static const double not_p[4] = {1, 1, 0, 0};
    FOR_EACH_ISA(ctx) {
        for (int t = 0; t < 3; t++) {
            for (int d = 0; d < 4; d++)
                CHECK_VALUES(TESTS[t].call(test_tensor(ctx, FLOATS[d], mlc_dims1(5), x)), 5,
                             want[t], 0, 0);
            CHECK_VALUES(TESTS[t].call(mlc_full(ctx, MLC_I32, mlc_dims1(5), 7)), 5,
                         t == 2 ? ones : zeros, 0, 0);
        }
        mlc_tensor *a = test_tensor(ctx, MLC_BOOL, mlc_dims1(4), p);
        mlc_tensor *b = test_tensor(ctx, MLC_BOOL, mlc_dims1(4), q);
        for (int l = 0; l < 3; l++) CHECK_VALUES(LOGIC[l].call(a, b), 4, logic[l], 0, 0);
        CHECK_VALUES(TESTS[3].call(a), 4, not_p, 0, 0);
        CHECK_OK(ctx);
        CHECK(mlc_logical_and(a, mlc_zeros(ctx, MLC_U8, mlc_dims1(4))) == NULL);
        CHECK_STR(mlc_error(ctx), "logical_and: input 2 is u8, not bool; write "
                                  "mlc_ne_scalar(x, 0)");
        CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    }
}

/* ---- where and masked_fill ---------------------------------------------------------------- */

TEST(ew, where_and_masked_fill_choose_by_element_in_every_dtype)
{
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++)
            for (int64_t n = 1; n <= 300; n += 149) {
                double *m = (double *)malloc((size_t)n * 5 * sizeof *m);
                double *a = m + n, *b = m + 2 * n, *want = m + 3 * n, *fill = m + 4 * n;
                for (int i = 0; i < n; i++) {
                    m[i] = i % 3 == 1;
                    a[i] = i % 2;
                    b[i] = (i + 1) % 2;
                    want[i] = m[i] != 0 ? a[i] : b[i];
                    fill[i] = m[i] != 0 ? 1 : b[i];
                }
                mlc_tensor *mask = test_tensor(ctx, MLC_BOOL, mlc_dims1(n), m);
                mlc_tensor *x = test_tensor(ctx, ALL[d], mlc_dims1(n), a);
                mlc_tensor *y = test_tensor(ctx, ALL[d], mlc_dims1(n), b);
                CHECK_VALUES(mlc_where(mask, x, y), n, want, 0, 0);
                CHECK_VALUES(mlc_masked_fill(y, mask, 1), n, fill, 0, 0);
                mlc_tensor *wide = mlc_where(mask, mlc_reshape(x, mlc_dims2(n, 1)), y);
                CHECK_EQ(mlc_dim(wide, 0), n);
                CHECK(mlc_masked_fill_(y, mask, 1) == y);
                CHECK_VALUES(y, n, fill, 0, 0);
                free(m);
            }
        CHECK_OK(ctx);
        mlc_tensor *two = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
        CHECK(mlc_where(two, two, two) == NULL);
        CHECK_STR(mlc_error(ctx), "where: the mask is f32, not bool; write "
                                  "mlc_ne_scalar(mask, 0)");
        CHECK_STATUS(ctx, MLC_ERR_DTYPE);
        CHECK(mlc_masked_fill(mlc_zeros(ctx, MLC_F32, mlc_dims1(2)),
                              mlc_zeros(ctx, MLC_BOOL, mlc_dims1(3)), 0) == NULL);
        CHECK_STR(mlc_error(ctx), "masked_fill: the mask [3] does not fit x [2]; it must broadcast "
                                  "to it");
        CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    }
}

/* ---- in place ----------------------------------------------------------------------------- */

#define K 15

static void read_all(mlc_tensor *t, double *v) { CHECK(mlc_numel(t) == K && test_read(t, v)); }

/* y = f(2 x), z = sum(w y): the gradient of x, and y; in place or not. */
static void unary_run(mlc_ctx *ctx, const unary *u, mlc_dtype dtype, bool place, bool view,
                      double *y, double *dx)
{
    mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(3, 5), 21, u->low / 2, u->high / 2);
    mlc_tensor *w = test_rand(ctx, dtype, mlc_dims2(3, 5), 22, -1, 1);
    mlc_set_requires_grad(x, true);
    mlc_tensor *h = mlc_mul_scalar(x, 2), *v = h;
    if (view) v = mlc_transpose(h, 0, 1);
    if (place) CHECK(u->call_(v) == v);
    else h = u->call(h);
    read_all(mlc_detach(h), y);
    mlc_backward_from(mlc_mul(h, w), NULL);
    read_all(mlc_grad(x), dx);
    CHECK_OK(ctx);
}

WITH(add_scalar, 0.7)
WITH(mul_scalar, -1.3)
WITH(div_scalar, 3)
WITH(pow_scalar, 2.5)
WITH(rsub_scalar, 0.3)
WITH(clamp, 1, 2)

static const unary SCALAR[] = {
    {"mlc_add_scalar", "mlc_add_scalar_", add_scalar_of, add_scalar_of_, NULL, -3, 3, 0},
    {"mlc_mul_scalar", "mlc_mul_scalar_", mul_scalar_of, mul_scalar_of_, NULL, -3, 3, 0},
    {"mlc_div_scalar", "mlc_div_scalar_", div_scalar_of, div_scalar_of_, NULL, -3, 3, 0},
    {"mlc_pow_scalar", "mlc_pow_scalar_", pow_scalar_of, pow_scalar_of_, NULL, 0.2, 4, 0},
    {"mlc_rsub_scalar", "mlc_rsub_scalar_", rsub_scalar_of, rsub_scalar_of_, NULL, -3, 3, 0},
    {"mlc_clamp", "mlc_clamp_", clamp_of, clamp_of_, NULL, 0, 4, 0},
};
#define SCALARS ((int)(sizeof SCALAR / sizeof *SCALAR))

static void same(const double *a, const double *b, const char *name)
{
    for (int i = 0; i < K; i++)
        if (!CHECK(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))) {
            printf("  %s: element %d: %g in place, %g not\n", name, i, a[i], b[i]);
            return;
        }
}

/* f in place has the bits and the gradients of f that makes a new tensor. */
static void in_place_agrees(mlc_ctx *ctx, const unary *f)
{
    double y[2][K], dx[2][K];
    for (int d = 0; d < 4; d++)
        for (int view = 0; view < 2; view++) {
            unary_run(ctx, f, FLOATS[d], false, false, y[0], dx[0]);
            unary_run(ctx, f, FLOATS[d], true, view == 1, y[1], dx[1]);
            same(y[1], y[0], f->name_);
            same(dx[1], dx[0], f->name_);
        }
}

TEST(ew, functions_in_place_have_the_bits_and_gradients_of_new_tensors)
{
    FOR_EACH_ISA(ctx) {
        for (int f = 0; f < UNARIES; f++) in_place_agrees(ctx, &UNARY[f]);
        for (int f = 0; f < SCALARS; f++) in_place_agrees(ctx, &SCALAR[f]);
    }
}

/* Bytes that a call adds to those in use, while its input is needed for nothing else. */
static int64_t bytes_of(mlc_ctx *ctx, mlc_tensor *(*op)(mlc_tensor *), int64_t n)
{
    mlc_memory  before, after;
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(n));
    mlc_set_requires_grad(x, true);
    mlc_tensor *h = mlc_mul_scalar(x, -2);
    CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
    CHECK(op(h) != NULL);
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_OK(ctx);
    return after.now[MLC_MEM_ACTIVATION] - before.now[MLC_MEM_ACTIVATION];
}

/* In place they take nothing where the derivative can be had from the result; else a copy. */
TEST(ew, activations_in_place_save_the_memory_of_their_result)
{
    static const char *const all[] = {"mlc_relu", "mlc_sigmoid", "mlc_tanh", "mlc_leaky_relu",
                                      "mlc_elu", "mlc_selu", "mlc_celu", "mlc_hardsigmoid",
                                      "mlc_log_sigmoid", "mlc_celu(x, -2)"};
    static const char *const copy[] = {"mlc_leaky_relu(x, -0.5)", "mlc_elu(x, -0.75)", "mlc_mish",
                                       "mlc_softsign", "mlc_hardswish"};
    enum { N = 4096, BYTES = 4 * N };
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const unary *f = unary_named(all[i]);
        if (!CHECK(bytes_of(ctx, f->call, N) == BYTES) || !CHECK(bytes_of(ctx, f->call_, N) == 0))
            printf("  %s\n", f->name);
    }
    for (size_t i = 0; i < sizeof copy / sizeof *copy; i++)
        if (!CHECK(bytes_of(ctx, unary_named(copy[i])->call_, N) == BYTES))
            printf("  %s\n", copy[i]);
    mlc_no_grad_begin(ctx);            /* without backward none needs one                      */
    for (size_t i = 0; i < sizeof copy / sizeof *copy; i++)
        if (!CHECK(bytes_of(ctx, unary_named(copy[i])->call_, N) == 0)) printf("  %s\n", copy[i]);
    mlc_no_grad_end(ctx);
}

/* Gradients of both sides; b may be broadcast, or need none, or only b may need one. */
static void binary_run(mlc_ctx *ctx, const binary *f, mlc_dtype dtype, bool place, bool row,
                       int needs, double *y, double *da, double *db)
{
    mlc_tensor *a = test_rand(ctx, dtype, mlc_dims2(3, 5), 23, f->low + 2, f->high + 2);
    mlc_dims    shape = row ? mlc_dims1(5) : mlc_dims2(3, 5);
    mlc_tensor *b = test_rand(ctx, dtype, shape, 24, f->low, f->high);
    mlc_tensor *w = test_rand(ctx, dtype, mlc_dims2(3, 5), 25, -1, 1), *h = mlc_mul_scalar(a, 1);
    mlc_set_requires_grad(a, (needs & 1) != 0);
    mlc_set_requires_grad(b, (needs & 2) != 0);
    if (needs & 1) h = mlc_mul_scalar(a, 1);
    if (place) CHECK(f->call_(h, b) == h);
    else h = f->call(h, b);
    read_all(mlc_detach(h), y);
    mlc_backward_from(mlc_mul(h, w), NULL);
    memset(da, 0, K * sizeof *da);
    memset(db, 0, K * sizeof *db);
    if (needs & 1) read_all(mlc_grad(a), da);
    if (needs & 2) CHECK(test_read(mlc_grad(b), db));
    CHECK_OK(ctx);
}

TEST(ew, functions_of_two_in_place_have_the_bits_and_gradients_of_new_tensors)
{
    double y[2][K], da[2][K], db[2][K];
    FOR_EACH_ISA(ctx) {
        for (int f = 0; f < BINARIES; f++)
            for (int d = 0; d < 4; d++)
                for (int row = 0; row < (d < 2 ? 2 : 1); row++)
                    for (int needs = 1; needs < 4; needs++) {
                        for (int place = 0; place < 2; place++)
                            binary_run(ctx, &BINARY[f], FLOATS[d], place == 1, row == 1, needs,
                                       y[place], da[place], db[place]);
                        same(y[1], y[0], BINARY[f].name_);
                        same(da[1], da[0], BINARY[f].name_);
                        same(db[1], db[0], BINARY[f].name_);
                    }
    }
}

/* One chain with everything: scalars, a view written to, overwriting, x used before and after. */
static mlc_tensor *chain(void *user, mlc_tensor *const *in, int32_t n)
{
    const bool place = *(const bool *)user;
    mlc_ctx    *ctx = in[0]->ctx;
    mlc_tensor *x = in[0], *w = in[1], *h = mlc_mul_scalar(x, 1), *part, *old;
    mlc_tensor *mask = mlc_gt_scalar(mlc_detach(w), 0);
    (void)n;
    old = mlc_sin(h);                  /* uses h before it changes: saves it                   */
    if (place) {
        h = mlc_mul_scalar(x, 1);
        mlc_add_scalar_(h, 0.5);
        mlc_mul_scalar_(h, 3);
        mlc_div_scalar_(h, 2);
        mlc_pow_scalar_(h, 2);
        mlc_rsub_scalar_(h, 10);
        mlc_clamp_(h, -50, 50);
        mlc_mul_(h, h);
        part = mlc_slice(h, 1, 1, 3, 1);
        mlc_mul_(part, mlc_slice(w, 1, 0, 2, 1));
        mlc_zero_(mlc_select(h, 0, 0));
        mlc_copy_(mlc_select(h, 0, 1), mlc_select(w, 0, 1));
        mlc_fill_(mlc_select(mlc_select(h, 0, 2), 0, 4), 3);
        mlc_masked_fill_(h, mask, 2);
        return mlc_add(mlc_exp(mlc_mul_scalar(h, 0.01)), old);
    }
    h = mlc_rsub_scalar(mlc_pow_scalar(mlc_div_scalar(mlc_mul_scalar(mlc_add_scalar(h, 0.5), 3), 2),
                                       2), 10);
    h = mlc_mul(h, h);
    static const double keep[K] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0};
    static const double third[K] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3};
    static const double second[K] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    mlc_dims    d = mlc_dims2(3, 5);
    /* Columns 1 and 2 take the factors of columns 0 and 1. */
    mlc_tensor *left = mlc_select(w, 1, 0), *next = mlc_select(w, 1, 1);
    static const double c1[K] = {0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0};
    static const double c2[K] = {0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0};
    static const double rest[K] = {1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1};
    mlc_tensor *scale = mlc_add(mlc_mul(mlc_reshape(left, mlc_dims2(3, 1)),
                                        test_tensor(ctx, MLC_F64, d, c1)),
                                mlc_mul(mlc_reshape(next, mlc_dims2(3, 1)),
                                        test_tensor(ctx, MLC_F64, d, c2)));
    h = mlc_mul(h, mlc_add(scale, test_tensor(ctx, MLC_F64, d, rest)));
    h = mlc_mul(h, test_tensor(ctx, MLC_F64, d, keep));
    h = mlc_add(h, mlc_mul(w, test_tensor(ctx, MLC_F64, d, second)));
    h = mlc_add(h, test_tensor(ctx, MLC_F64, d, third));
    h = mlc_masked_fill(h, mask, 2);
    return mlc_add(mlc_exp(mlc_mul_scalar(h, 0.01)), old);
}

TEST(ew, a_chain_in_place_with_views_has_the_gradients_of_new_tensors)
{
    double y[2][K], dx[2][K], dw[2][K];
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 2; i++) {
            bool        place = i == 1;
            mlc_tensor *in[2] = {test_rand(ctx, MLC_F64, mlc_dims2(3, 5), 31, 0.2, 1),
                                 test_rand(ctx, MLC_F64, mlc_dims2(3, 5), 32, -1, 1)};
            mlc_gradcheck_report report;
            mlc_set_requires_grad(in[0], true);
            mlc_set_requires_grad(in[1], true);
            mlc_tensor *out = chain(&place, in, 2);
            CHECK_OK(ctx);
            read_all(mlc_detach(out), y[i]);
            CHECK_EQ(mlc_backward_from(out, NULL), MLC_OK);
            read_all(mlc_grad(in[0]), dx[i]);
            read_all(mlc_grad(in[1]), dw[i]);
            CHECK_EQ(mlc_gradcheck(chain, &place, in, 2, NULL, &report), MLC_OK);
            CHECK(report.ok);
        }
        for (int i = 0; i < K; i++) {
            CHECK_NEAR(y[1][i], y[0][i], 1e-12);
            CHECK_NEAR(dx[1][i], dx[0][i], 1e-12);
            CHECK_NEAR(dw[1][i], dw[0][i], 1e-12);
        }
        CHECK_OK(ctx);
    }
}

/* A buffer that needs no gradient takes one that does: rows written one by one, as in PyTorch. */
TEST(ew, a_plain_buffer_filled_by_rows_passes_the_gradients_on)
{
    static const double want[3] = {2, 4, 6};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims1(3), 41, 1, 2);
        mlc_tensor *scale = mlc_arange(ctx, MLC_F32, 1, 4, 1);
        mlc_tensor *buffer = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
        mlc_tensor *early = mlc_select(buffer, 0, 0);
        mlc_set_requires_grad(w, true);
        for (int i = 0; i < 2; i++) CHECK(mlc_copy_(mlc_select(buffer, 0, i), w) != NULL);
        CHECK(mlc_requires_grad(buffer));
        CHECK(mlc_requires_grad(early));
        mlc_backward_from(mlc_mul(mlc_add(early, mlc_select(buffer, 0, 1)), scale), NULL);
        CHECK_OK(ctx);
        CHECK_VALUES(mlc_grad(w), 3, want, 1e-6, 0);
    }
}

TEST(ew, what_cannot_be_changed_in_place_says_why)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *leaf = mlc_full(ctx, MLC_F32, mlc_dims1(3), 1), *h;
    mlc_set_requires_grad(leaf, true);
    CHECK(mlc_exp_(leaf) == NULL);
    CHECK_STR(mlc_error(ctx), "exp_: [3] is a leaf that requires a gradient; change it under "
                              "mlc_no_grad_begin, or a copy of it");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_no_grad_begin(ctx);
    CHECK(mlc_mul_scalar_(leaf, 2) == leaf);
    mlc_no_grad_end(ctx);
    h = mlc_mul_scalar(leaf, 1);
    mlc_tensor *seen = mlc_detach(h);
    CHECK(mlc_exp_(h) == NULL);
    CHECK_HAS(mlc_error(ctx), "exp_: [3] shares its memory with a tensor that the tape does not");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_NEAR(mlc_item(mlc_select(seen, 0, 0)), 2, 0);
    mlc_tensor *twice = mlc_expand(mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), mlc_dims2(2, 3));
    CHECK(mlc_add_(twice, leaf) == NULL);
    CHECK_HAS(mlc_error(ctx), "repeats elements");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    h = mlc_mul_scalar(leaf, 1);
    CHECK(mlc_add_(h, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3))) == NULL);
    CHECK_STR(mlc_error(ctx), "add_: b [2,3] does not broadcast to [3], which is changed in place; "
                              "make a new tensor instead");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    /* What an older operation saved is gone: an error, no wrong gradient. */
    h = mlc_mul_scalar(leaf, 1);
    mlc_tensor *y = mlc_sin(h);
    mlc_add_scalar_(h, 1);
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "backward of sin: saved tensor [3] was overwritten");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_zero_grad(leaf);
    /* In place and then through what came before is fine, if nothing old was saved. */
    h = mlc_mul_scalar(leaf, 1);
    y = mlc_add_scalar(h, 1);
    mlc_mul_scalar_(h, 5);
    CHECK_EQ(mlc_backward_from(mlc_add(y, h), NULL), MLC_OK);
    static const double want[3] = {6, 6, 6};
    CHECK_VALUES(mlc_grad(leaf), 3, want, 0, 0);
    CHECK_OK(ctx);
}

/* One angle of a block is too large for f32: the block goes through f64, the rest does not. */
TEST(ew, blocks_with_an_angle_too_large_for_f32_have_the_same_bits_on_every_level)
{
    double x[31], want[31], got[31];
    for (int k = 0; k < 100; k++) {
        bool first = true;
        for (int i = 0; i < 31; i++) x[i] = i == k % 31 ? 1e7 : 0.37 * i + 0.013 * k - 4;
        FOR_EACH_ISA(ctx) {
            CHECK(test_read(mlc_sin(test_tensor(ctx, MLC_F32, mlc_dims1(31), x)), got));
            if (first) memcpy(want, got, sizeof want);
            first = false;
            CHECK_EQ(memcmp(got, want, sizeof want), 0);
            CHECK_OK(ctx);
        }
    }
}
