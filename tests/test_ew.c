/* test_ew.c -- tests of elementwise operations: IMPL.OPS.UNARY, BINARY, COMPARE
 *
 * Two tables. Values against libm in double, on each ISA level and dtype, for many arguments and
 * all layouts; special values; gradients by central differences. The same rows then drive the
 * operations in place, whose values and gradients must be those of the chain of new tensors.
 */
#include "ops.h"
#include "ew_table.h"

static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};

/* A row of ew_table.h, or of one with numbers beside the tensor. */
typedef struct unary {
    const char *name, *name_;
    mlc_tensor *(*call)(mlc_tensor *), *(*call_)(mlc_tensor *);
    double    (*ref)(double), (*slope)(double);
    double      low, high, ulp;
    ew_more     more;
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

#define FORMULAS(name, formula, derivative, ...) \
    static double ref_##name(double x) { return formula; } \
    static double slope_##name(double x) { (void)x; return derivative; }
EW_UNARY(FORMULAS, FORMULAS, FORMULAS)
FORMULAS(leaky_relu, x > 0 ? x : 0.0625 * x, EW_NONE, 0)
FORMULAS(elu, x > 0 ? x : 0.75 * expm1(x), x > 0 ? 1 : 0.75 * exp(x), 0)
FORMULAS(celu, x > 0 ? x : 0.5 * expm1(x / 0.5), x > 0 ? 1 : exp(x / 0.5), 0)
FORMULAS(leaky_down, x > 0 ? x : -0.5 * x, EW_NONE, 0)
FORMULAS(elu_down, x > 0 ? x : -0.75 * expm1(x), EW_NONE, 0)
FORMULAS(celu_down, x > 0 ? x : -2 * expm1(x / -2), EW_NONE, 0)

#define UNARY_ROW(name, formula, derivative, low, high, ulp, ...) \
    {"mlc_" #name, "mlc_" #name "_", mlc_##name, mlc_##name##_, ref_##name, slope_##name, \
     low, high, ulp, {__VA_ARGS__}},
#define NUMBER_ROW(name, f, number, low, high, ulp, ...) \
    {"mlc_" #f number, "mlc_" #f "_" number, name##_of, name##_of_, ref_##name, slope_##name, \
     low, high, ulp, {__VA_ARGS__}},
static const unary UNARY[] = {
    EW_UNARY(UNARY_ROW, UNARY_ROW, UNARY_ROW)
    NUMBER_ROW(leaky_relu, leaky_relu, "", -3, -0.5, 0.5, EW_RESULT,
               EW_LIMITS(-INF, INF, 0.0625, 1))
    NUMBER_ROW(elu, elu, "", -3, -0.5, 1.5, EW_RESULT, EW_SLOPE_WITHIN(1.2e-7),
               EW_LIMITS(-0.75, INF, 0, 1))
    NUMBER_ROW(celu, celu, "", -3, -0.5, 1.5, EW_RESULT, EW_SLOPE_WITHIN(1.8e-7),
               EW_LIMITS(-0.5, INF, 0, 1))
    NUMBER_ROW(leaky_down, leaky_relu, "(x, -0.5)", -3, -0.5, 0.5, EW_COPY)
    NUMBER_ROW(elu_down, elu, "(x, -0.75)", -3, -0.5, 1.5, EW_COPY)
    NUMBER_ROW(celu_down, celu, "(x, -2)", -3, -0.5, 1.5, EW_RESULT)
};
#define UNARIES ((int)(sizeof UNARY / sizeof *UNARY))

/* The exact result, at the infinities that of the row. */
static double exactly(const unary *f, double x)
{
    return f->more.limits && isinf(x) ? f->more.at[x > 0] : f->ref(x);
}

typedef struct binary {
    const char *name, *name_;
    mlc_tensor *(*call)(mlc_tensor *, mlc_tensor *), *(*call_)(mlc_tensor *, mlc_tensor *);
    double    (*ref)(double, double);
    double      low, high, ulp;
    ew_more     more;
} binary;

#define FORMULA(name, formula, ...) \
    static double ref_##name(double a, double b) { return formula; }
EW_BINARY(FORMULA, FORMULA)

#define BINARY_ROW(name, formula, low, high, ulp, ...) \
    {"mlc_" #name, "mlc_" #name "_", mlc_##name, mlc_##name##_, ref_##name, low, high, ulp, \
     {__VA_ARGS__}},
static const binary BINARY[] = { EW_BINARY(BINARY_ROW, BINARY_ROW) };
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

/* A card's exp and log are within 2 ulp, the CPU's within 1. */
static double more_ulps(void)
{
    return test_on_card() ? 2 : 0;
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
            if (!CHECK(most <= UNARY[f].ulp + more_ulps()))
                printf("  %s: %g ulp\n", UNARY[f].name, most);
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
                if (BINARY[f].ref == ref_floor_divide) exact[i] = (double)(float)exact[i];
            }
            const double most = worst(BINARY[f].call(x, y), exact, a, b);
            if (!CHECK(most <= BINARY[f].ulp)) printf("  %s: %g ulp\n", BINARY[f].name, most);
        }
        CHECK_OK(ctx);
    }
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
            const double want = ref_gelu(x[i]);
            const double part = x[i] > 0 ? 1.2e-6 : x[i] > -3 ? 3.2e-6 : 1;
            const double bound = fmin(fabs(x[i]) > 8 ? 1e-14 : 2.5e-7, part * fabs(want) + 1e-37);
            if (!CHECK(fabs(got[i] - want) <= bound) ||
                !CHECK(fabs(slope[i] - slope_gelu(x[i])) <= 5e-7))
                printf("  of %g: %.9g, %.9g, want %.9g, %.9g\n", x[i], got[i], slope[i], want,
                       slope_gelu(x[i]));
        }
        CHECK_OK(ctx);
    }
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
            const double want = ref_gelu_tanh(x[i]);
            if (!CHECK(fabs(got[i] - want) <= fmax(6e-7, 6e-8 * fabs(want))) ||
                !CHECK(fabs(slope[i] - slope_gelu_tanh(x[i])) <= 6e-7))
                printf("  of %g: %.9g, %.9g, want %.9g, %.9g\n", x[i], got[i], slope[i], want,
                       slope_gelu_tanh(x[i]));
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

/* Also where a derivative is had from the result, which near -alpha has few digits left. */
TEST(ew, derivatives_of_activations_are_within_their_errors)
{
    static double x[MANY], y[MANY], slope[MANY];
    for (int i = 0; i < MANY; i++) x[i] = ldexp(i - MANY / 2, i % 64 ? -12 : -8);
    FOR_EACH_ISA(ctx)
        for (const unary *f = UNARY; f < UNARY + UNARIES; f++) {
            double most = 0;
            if (f->more.within == 0) continue;
            at_points(ctx, f, MLC_F32, MANY, x, y, slope);
            for (int i = 0; i < MANY; i++) most = fmax(most, fabs(slope[i] - f->slope(x[i])));
            if (!CHECK(most <= f->more.within)) printf("  %s: %g\n", f->name, most);
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
            most = fmax(most, ulps((float)got[i], x[i] * ref_sigmoid(x[MANY + i])));
        if (!CHECK(most <= 2.5 + more_ulps())) printf("  %g ulp\n", most);
        CHECK_OK(ctx);
    }
}

/* A card's exp of a large number may leave the last bit. */
static bool is_slope(double got, double want)
{
    return got == want || (test_on_card() && fabs(got - want) <= 0x1p-23);
}

/* The limits, where formulas have 0 times infinity, or divide it by itself. */
TEST(ew, activations_at_infinity)
{
    static const double x[3] = {-(double)INFINITY, (double)INFINITY, (double)NAN};
    double y[3], slope[3];
    FOR_EACH_ISA(ctx)
        for (int d = 0; d < 4; d++)
            for (const unary *f = UNARY; f < UNARY + UNARIES; f++) {
                if (!f->more.limits) continue;
                at_points(ctx, f, FLOATS[d], 3, x, y, slope);
                if (!CHECK(y[0] == f->more.at[0] && y[1] == f->more.at[1] && isnan(y[2]) &&
                           is_slope(slope[0], f->more.slope_at[0]) &&
                           is_slope(slope[1], f->more.slope_at[1])))
                    printf("  %s: %.9g %.9g %g, %.9g %.9g\n", f->name, y[0], y[1], y[2], slope[0],
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
                    if (!CHECK(same_special(got[i], exactly(&UNARY[f], a[i]), tolerance)))
                        printf("  %s(%g) is %g, want %g\n", UNARY[f].name, a[i], got[i],
                               exactly(&UNARY[f], a[i]));
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

/* ---- layouts and dtypes -------------------------------------------------------------------- */

typedef struct looked { int64_t rows, columns; char layout; const char *seen; } looked;
static const looked LOOKED[] = {{5, 7, 0, ""},  {7, 5, 'T', "s"}, {5, 14, 'S', "s"},
                                {1, 7, 'E', "s"}, {0, 3, 0, "e"},  {0, 0, 0, "0"}};
#define LOOKS ((int)(sizeof LOOKED / sizeof *LOOKED))

/* Uniform in the range of a row, looked at; the last one is a scalar. */
static mlc_tensor *look_at(mlc_ctx *ctx, mlc_dtype dtype, int k, uint64_t seed, const ew_more *m)
{
    const looked  *l = &LOOKED[k];
    const mlc_dims shape = k == LOOKS - 1 ? mlc_dims0() : mlc_dims2(l->rows, l->columns);
    return op_look(test_rand(ctx, dtype, shape, seed, ew_from(m), ew_to(m)), l->layout);
}

/* y has these values, but for the rounding to its dtype. */
static bool is_formula(mlc_tensor *y, const double *want, const char *name, int k)
{
    const double rounds[4] = {6e-7, 1e-12, 0x1p-7, 0x1p-10};                      /* as FLOATS */
    double       got[70], most = 1e-12;
    if (!CHECK(y != NULL && mlc_numel(y) <= 70) || !test_read(y, got)) return false;
    for (int d = 0; d < 4; d++)
        if (y->dtype == FLOATS[d]) most = rounds[d];
    for (int i = 0; i < mlc_numel(y); i++)
        if (!CHECK(fabs(got[i] - want[i]) <= most * fmax(1, fabs(want[i])))) {
            printf("  %s, %s, layout %d: element %d is %.17g, want %.17g\n", name,
                   mlc_dtype_name(y->dtype), k, i, got[i], want[i]);
            return false;
        }
    return true;
}

static void shown(mlc_ctx *ctx, const char *name, mlc_dtype dtype, const char *seen)
{
    char text[80];
    snprintf(text, sizeof text, "%s %s %s", mlc_isa_name(mlc_ctx_isa(ctx)), mlc_dtype_name(dtype),
             seen);
    op_seen("values", name, text);
}

TEST(ew, functions_are_their_formula_in_every_layout_and_dtype)
{
    double v[70];
    FOR_EACH_ISA(ctx)
        for (const unary *f = UNARY; f < UNARY + UNARIES; f++)
            for (int d = 0; d < 4; d++)
                for (int k = 0; k < LOOKS; k++) {
                    mlc_scope_begin(ctx);
                    mlc_tensor *x = look_at(ctx, FLOATS[d], k, 61, &f->more);
                    CHECK(test_read(x, v));
                    for (int i = 0; i < mlc_numel(x); i++) v[i] = f->ref(v[i]);
                    if (is_formula(f->call(x), v, f->name, k))
                        shown(ctx, f->name, FLOATS[d], LOOKED[k].seen);
                    if (LOOKED[k].layout == 'E') x = mlc_copy(x);
                    CHECK(f->call_(x) == x);
                    if (is_formula(x, v, f->name_, k))
                        shown(ctx, f->name_, FLOATS[d], LOOKED[k].seen);
                    CHECK_OK(ctx);
                    mlc_scope_end(ctx);
                }
}

TEST(ew, functions_of_two_are_their_formula_in_every_layout_and_dtype)
{
    double v[70], b[70];
    FOR_EACH_ISA(ctx)
        for (const binary *f = BINARY; f < BINARY + BINARIES; f++)
            for (int d = 0; d < 4; d++)
                for (int k = 0; k < 2 * LOOKS; k++) {
                    const bool row = k >= LOOKS;           /* b is one row, for all            */
                    mlc_scope_begin(ctx);
                    mlc_tensor *x = look_at(ctx, FLOATS[d], k % LOOKS, 62, &f->more);
                    mlc_tensor *y = look_at(ctx, FLOATS[d], k % LOOKS, 63, &f->more);
                    if (row && mlc_numel(y) > 1) y = mlc_slice(y, -2, 0, 1, 1);
                    if (row && y->ndim == 3) y = mlc_select(y, 0, 1);
                    CHECK(test_read(x, v) && test_read(y, b));
                    for (int i = 0; i < mlc_numel(x); i++) v[i] = f->ref(v[i], b[i % mlc_numel(y)]);
                    if (is_formula(f->call(x, y), v, f->name, k)) {
                        shown(ctx, f->name, FLOATS[d], LOOKED[k % LOOKS].seen);
                        if (row) shown(ctx, f->name, FLOATS[d], "b");
                    }
                    if (LOOKED[k % LOOKS].layout == 'E') x = mlc_copy(x);
                    CHECK(f->call_(x, y) == x);
                    if (is_formula(x, v, f->name_, k)) {
                        shown(ctx, f->name_, FLOATS[d], LOOKED[k % LOOKS].seen);
                        if (row) shown(ctx, f->name_, FLOATS[d], "b");
                    }
                    CHECK_OK(ctx);
                    mlc_scope_end(ctx);
                }
}

/* ---- integers ----------------------------------------------------------------------------- */

/* The low bits of a number of either dtype, as that dtype has them. */
static int64_t wrapped(mlc_dtype dtype, uint64_t bits)
{
    int32_t low;
    memcpy(&low, &(uint32_t){(uint32_t)bits}, sizeof low);
    return dtype == MLC_I64 ? (int64_t)bits : low;
}

/* Python's // and %, by the magnitudes. */
static int64_t python_of(mlc_dtype dtype, int64_t a, int64_t b, bool quotient)
{
    const uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a;
    const uint64_t y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    const bool     apart = (a < 0) != (b < 0), up = apart && x % y != 0;
    const uint64_t q = x / y + up, r = up ? y - x % y : x % y;
    return quotient ? wrapped(dtype, apart ? 0 - q : q) : wrapped(dtype, b < 0 ? 0 - r : r);
}

static int64_t whole_of(int f, mlc_dtype dtype, int64_t a, int64_t b)
{
    const uint64_t x = (uint64_t)a, y = (uint64_t)b;
    switch (f) {
    case 0:  return wrapped(dtype, x + y);
    case 1:  return wrapped(dtype, x - y);
    case 2:  return wrapped(dtype, x * y);
    case 3:  return a < b ? a : b;
    case 4:  return a > b ? a : b;
    case 5:  return python_of(dtype, a, b, true);
    case 6:  return python_of(dtype, a, b, false);
    case 7:  return wrapped(dtype, 0 - x);
    case 8:  return wrapped(dtype, a < 0 ? 0 - x : x);
    case 9:  return wrapped(dtype, x + 3);
    case 10: return wrapped(dtype, x * (uint64_t)-5);
    case 11: return wrapped(dtype, x + ((uint64_t)1 << 63));
    case 12: return wrapped(dtype, 7 - x);
    case 13: return python_of(dtype, a, -3, true);
    default: return python_of(dtype, a, 10, false);
    }
}

static mlc_tensor *whole_call(int f, bool place, mlc_tensor *a, mlc_tensor *b)
{
    switch (f) {
    case 0:  return place ? mlc_add_(a, b) : mlc_add(a, b);
    case 1:  return place ? mlc_sub_(a, b) : mlc_sub(a, b);
    case 2:  return place ? mlc_mul_(a, b) : mlc_mul(a, b);
    case 3:  return place ? mlc_minimum_(a, b) : mlc_minimum(a, b);
    case 4:  return place ? mlc_maximum_(a, b) : mlc_maximum(a, b);
    case 5:  return place ? mlc_floor_divide_(a, b) : mlc_floor_divide(a, b);
    case 6:  return place ? mlc_remainder_(a, b) : mlc_remainder(a, b);
    case 7:  return place ? mlc_neg_(a) : mlc_neg(a);
    case 8:  return place ? mlc_abs_(a) : mlc_abs(a);
    case 9:  return place ? mlc_add_scalar_(a, 3) : mlc_add_scalar(a, 3);
    case 10: return place ? mlc_mul_scalar_(a, -5) : mlc_mul_scalar(a, -5);
    case 11: return place ? mlc_sub_scalar_(a, -0x1p63) : mlc_sub_scalar(a, -0x1p63);
    case 12: return place ? mlc_rsub_scalar_(a, 7) : mlc_rsub_scalar(a, 7);
    case 13: return place ? mlc_floor_divide_scalar_(a, -3) : mlc_floor_divide_scalar(a, -3);
    default: return place ? mlc_remainder_scalar_(a, 10) : mlc_remainder_scalar(a, 10);
    }
}

static const char *const WHOLE[] = {
    "mlc_add", "mlc_sub", "mlc_mul", "mlc_minimum", "mlc_maximum", "mlc_floor_divide",
    "mlc_remainder", "mlc_neg", "mlc_abs", "mlc_add_scalar", "mlc_mul_scalar", "mlc_sub_scalar",
    "mlc_rsub_scalar", "mlc_floor_divide_scalar", "mlc_remainder_scalar"};

/* t has these numbers, to the last bit: doubles have fewer. */
static bool is_whole(mlc_tensor *t, int64_t n, const int64_t *want, const char *name)
{
    static int64_t wide[400];
    static int32_t narrow[400];
    const bool     i64 = t != NULL && t->dtype == MLC_I64;
    if (!CHECK(t != NULL && mlc_numel(t) == n && (i64 || t->dtype == MLC_I32)) ||
        !CHECK_EQ(mlc_read(t, i64 ? (void *)wide : (void *)narrow, (size_t)n * (i64 ? 8 : 4)),
                  MLC_OK))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (!CHECK((i64 ? wide[i] : narrow[i]) == want[i])) {
            printf("  %s: element %" PRId64 "\n", name, i);
            return false;
        }
    return true;
}

/* Each number with each one, broadcast, at the edges and where it wraps; transposed; empty; 0-d. */
TEST(ew, integers_are_added_multiplied_and_divided_modulo_their_bits)
{
    static const int64_t edge[14] = {0, 1, -1, 2, -2, 3, -7, 10, 46341, -46341, 1000000007,
                                     INT64_MAX, INT64_MIN, INT64_MIN + 1};
    enum { N = 14, M = 13 };                       /* a divisor is not 0                       */
    FOR_EACH_ISA(ctx)
        for (int d = 0; d < 2; d++)
            for (int f = 0; f < 15; f++)
                for (int place = 0; place < 2; place++) {
                    const mlc_dtype dtype = d ? MLC_I32 : MLC_I64;
                    int64_t a[N], b[M], full[N * M], want[N * M], turned[N * M];
                    char    name[40];
                    for (int i = 0; i < N; i++)
                        a[i] = d && i > 10 ? (i == 11 ? INT32_MAX : INT32_MIN + (i - 12)) : edge[i];
                    memcpy(b, a + 1, sizeof b);
                    for (int i = 0; i < N * M; i++) {
                        full[i] = a[i / M];
                        want[i] = whole_of(f, dtype, a[i / M], b[i % M]);
                        turned[i % M * N + i / M] = want[i];
                    }
                    snprintf(name, sizeof name, "%s%s", WHOLE[f], place ? "_" : "");
                    mlc_tensor *x = mlc_cast(mlc_from(ctx, MLC_I64, mlc_dims2(N, M), full), dtype);
                    mlc_tensor *row = mlc_cast(mlc_from(ctx, MLC_I64, mlc_dims1(M), b), dtype);
                    mlc_tensor *column = mlc_reshape(row, mlc_dims2(M, 1));
                    mlc_tensor *x2 = mlc_copy(x), *y = whole_call(f, place, x, row);
                    CHECK(!place || y == x);
                    if (is_whole(y, N * M, want, name)) shown(ctx, name, dtype, "b");
                    mlc_tensor *t = mlc_transpose(x2, 0, 1);
                    if (is_whole(whole_call(f, place, t, column), N * M, turned, name))
                        shown(ctx, name, dtype, "s");
                    mlc_tensor *none = mlc_zeros(ctx, dtype, mlc_dims2(0, 3));
                    mlc_tensor *one = mlc_full(ctx, dtype, mlc_dims0(), -7);
                    CHECK_EQ(mlc_numel(whole_call(f, place, none, none)), 0);
                    shown(ctx, name, dtype, "e");
                    const int64_t of_one = whole_of(f, dtype, -7, 2);
                    if (is_whole(whole_call(f, place, one, mlc_full(ctx, dtype, mlc_dims0(), 2)), 1,
                                 &of_one, name))
                        shown(ctx, name, dtype, "0");
                    CHECK(!mlc_requires_grad(y));
                    CHECK_OK(ctx);
                }
}

/* Threads share the rows, and both sides may be one tensor. */
TEST(ew, many_integers_and_one_tensor_on_both_sides)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_arange(ctx, MLC_I64, 1, 100001, 1), *y = mlc_mul(x, x);
        CHECK_NEAR(mlc_item_at(y, mlc_dims1(99999)), 1e10, 0);
        CHECK(mlc_sub_(x, x) == x);
        CHECK_NEAR(mlc_item(mlc_sum_all(x)), 0, 0);
        CHECK_NEAR(mlc_item(mlc_sum_all(y)), 333338333350000.0, 0);
        CHECK_OK(ctx);
    }
}

/* The divisor 0 is the last one of many: nothing has been written when it is found. */
TEST(ew, a_divisor_of_0_changes_nothing)
{
    static double divisor[1000], want[1000];
    FOR_EACH_ISA(ctx)
        for (int f = 5; f < 7; f++) {
            for (int i = 0; i < 1000; i++) {
                want[i] = i + 9;
                divisor[i] = i < 999;
            }
            mlc_tensor *x = test_tensor(ctx, MLC_I32, mlc_dims1(1000), want);
            mlc_tensor *b = test_tensor(ctx, MLC_I32, mlc_dims1(1000), divisor);
            mlc_scope_begin(ctx);
            CHECK(whole_call(f, false, x, b) == NULL || !test_on_host());
            mlc_ctx_sync(ctx);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
            CHECK_HAS(mlc_error(ctx), f == 5 ? "floor_divide: a divisor is 0"
                                             : "remainder: a divisor is 0");
            mlc_error_clear(ctx);
            mlc_scope_begin(ctx);
            CHECK(whole_call(f, true, x, b) == NULL || !test_on_host());
            mlc_ctx_sync(ctx);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
            mlc_error_clear(ctx);
            CHECK_VALUES(x, 1000, want, 0, 0);
            CHECK_OK(ctx);
        }
}

/* ---- scalars ------------------------------------------------------------------------------ */

TEST(ew, scalar_forms_and_clamp)
{
    static const double x0[5] = {-2, -0.5, 0, 1.5, 4}, div[5] = {-0.5, -0.125, 0, 0.375, 1};
    static const double cube[5] = {-8, -0.125, 0, 3.375, 64}, rsub[5] = {3, 1.5, 1, -0.5, -3};
    static const double sub[5] = {-2.25, -0.75, -0.25, 1.25, 3.75};
    static const double in[5] = {-1, -0.5, 0, 1.5, 2}, low[5] = {-0.5, -0.5, 0, 1.5, 4};
    static const double all[5] = {-1, -1, -1, -1, -1};
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < 4; d++) {
            mlc_tensor *x = test_tensor(ctx, FLOATS[d], mlc_dims1(5), x0);
            CHECK_VALUES(mlc_div_scalar(x, 4), 5, div, 0, 0);
            CHECK_VALUES(mlc_pow_scalar(x, 3), 5, cube, 0, 0);
            CHECK_VALUES(mlc_rsub_scalar(x, 1), 5, rsub, 0, 0);
            CHECK_VALUES(mlc_sub_scalar(x, 0.25), 5, sub, 0, 0);
            CHECK_VALUES(mlc_clamp(x, -1, 2), 5, in, 0, 0);
            CHECK_VALUES(mlc_clamp(x, -0.5, INF), 5, low, 0, 0);
            CHECK_VALUES(mlc_clamp(x, 2, -1), 5, all, 0, 0);
            mlc_tensor *nan = mlc_full(ctx, FLOATS[d], mlc_dims0(), NO_NUMBER);
            CHECK(isnan(mlc_item(mlc_clamp(nan, 0, 1))));
        }
        CHECK_OK(ctx);
    }
}

/* As torch.clamp: bounds in the wrong order give the upper one, but of a NaN, which stays. */
TEST(ew, nan_stays_where_a_range_is_empty_or_not)
{
    enum { N = 37 };                                       /* vectors and what is behind them  */
    static const double BOUNDS[][2] = {{1, -1}, {0, 6}, {-1, 1}, {2, 2}, {INF, -INF}, {-INF, INF}};
    double x0[N], y[N], slope[N];
    for (int i = 0; i < N; i++) x0[i] = i % 3 ? 0.25 * i - 4 : NO_NUMBER;
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 4 * 6 * 2; k++) {
            const double lo = BOUNDS[k / 4 % 6][0], hi = BOUNDS[k / 4 % 6][1];
            mlc_tensor  *x = test_tensor(ctx, FLOATS[k % 4], mlc_dims1(N), x0), *out;
            mlc_set_requires_grad(x, true);
            out = k < 24 ? mlc_clamp(x, lo, hi) : mlc_clamp_(mlc_copy(x), lo, hi);
            CHECK_EQ(mlc_backward(mlc_sum_all(out)), MLC_OK);
            test_read(out, y);
            test_read(mlc_grad(x), slope);
            for (int i = 0; i < N; i++) {
                const double want = x0[i] > hi || lo > hi ? hi : x0[i] < lo ? lo : x0[i];
                CHECK(isnan(x0[i]) ? isnan(y[i]) : y[i] == want);
                CHECK(slope[i] == (x0[i] > lo && x0[i] < hi));
            }
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
    int           scalar;              /* 1 div 2 pow 3 rsub 4 clamp 5 where 6 sub 7 masked_fill
                                          8 floor_divide 9 remainder                           */
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
    case 6:  return mlc_sub_scalar(in[0], 3);
    case 8:  return mlc_floor_divide_scalar(in[0], 3);
    case 9:  return mlc_remainder_scalar(in[0], 3);
    default: return mlc_masked_fill(in[0], c->mask, 7);
    }
}

static const char *scalar_name(int scalar)
{
    return scalar == 6 ? "mlc_sub_scalar" : scalar == 8 ? "mlc_floor_divide_scalar"
         : scalar == 9 ? "mlc_remainder_scalar" : "scalar form";
}

static void check_gradient(mlc_ctx *ctx, call *c, const char *name, mlc_tensor *a, mlc_tensor *b)
{
    mlc_gradcheck_report report;
    mlc_tensor *in[2] = {a, b};
    CHECK_EQ(mlc_set_requires_grad(a, true), MLC_OK);
    if (b) CHECK_EQ(mlc_set_requires_grad(b, true), MLC_OK);
    CHECK_EQ(mlc_gradcheck(run, c, in, b ? 2 : 1, NULL, &report), MLC_OK);
    CHECK_OK(ctx);
    if (CHECK(report.ok))
        op_seen("gradient", name, "");
    else
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
    for (c.scalar = 1; c.scalar <= 9; c.scalar++)
        check_gradient(ctx, &c, scalar_name(c.scalar),
                       test_rand(ctx, MLC_F64, mlc_dims2(3, 5), 9, 1, 1.5),
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
WITH(sub_scalar, 0.6)
WITH(mul_scalar, -1.3)
WITH(div_scalar, 3)
WITH(pow_scalar, 2.5)
WITH(rsub_scalar, 0.3)
WITH(floor_divide_scalar, 0.75)
WITH(remainder_scalar, -0.75)
WITH(clamp, 1, 2)

#define SCALAR_ROW(name, low, high) \
    {"mlc_" #name, "mlc_" #name "_", name##_of, name##_of_, NULL, NULL, low, high, 0, {EW_NOTHING}}
static const unary SCALAR[] = {
    SCALAR_ROW(add_scalar, -3, 3),  SCALAR_ROW(mul_scalar, -3, 3),
    SCALAR_ROW(div_scalar, -3, 3),  SCALAR_ROW(pow_scalar, 0.2, 4),
    SCALAR_ROW(rsub_scalar, -3, 3), SCALAR_ROW(clamp, 0, 4),
    SCALAR_ROW(sub_scalar, -3, 3),  SCALAR_ROW(floor_divide_scalar, -3, 3),
    SCALAR_ROW(remainder_scalar, -3, 3),
};
#define SCALARS ((int)(sizeof SCALAR / sizeof *SCALAR))

static double of_sub(double x) { return x - 0.6; }
static double of_floor_divide(double x) { return ew_floor_divide(x, 0.75); }
static double of_remainder(double x) { return ew_remainder(x, -0.75); }

/* The goldens have the other scalar forms. */
TEST(ew, scalar_forms_without_goldens_are_their_formulas_in_every_layout_and_dtype)
{
    static double (*const formula[3])(double) = {of_sub, of_floor_divide, of_remainder};
    const ew_more more = {EW_NOTHING};
    double        v[70];
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < 3 * 4 * LOOKS; i++) {
            const int       f = i / (4 * LOOKS), k = i % LOOKS;
            const mlc_dtype dtype = FLOATS[i / LOOKS % 4];
            const unary    *u = &SCALAR[6 + f];
            mlc_scope_begin(ctx);
            mlc_tensor *x = look_at(ctx, dtype, k, 64, &more);
            CHECK(test_read(x, v));
            for (int e = 0; e < mlc_numel(x); e++) v[e] = formula[f](v[e]);
            if (is_formula(u->call(x), v, u->name, k)) shown(ctx, u->name, dtype, LOOKED[k].seen);
            if (LOOKED[k].layout == 'E') x = mlc_copy(x);
            CHECK(u->call_(x) == x);
            if (is_formula(x, v, u->name_, k)) shown(ctx, u->name_, dtype, LOOKED[k].seen);
            CHECK_OK(ctx);
            mlc_scope_end(ctx);
        }
}

/* A gradient in place is that of the new tensor, which differences have checked. */
static void same(const double *a, const double *b, const char *name)
{
    for (int i = 0; i < K; i++)
        if (!CHECK(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))) {
            printf("  %s: element %d: %g in place, %g not\n", name, i, a[i], b[i]);
            return;
        }
    op_seen("gradient", name, "");
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
TEST(ew, functions_in_place_save_nothing_or_a_copy_as_their_row_says)
{
    enum { N = 4096, BYTES = 4 * N };
    mlc_ctx *ctx = test_ctx();
    for (const unary *f = UNARY; f < UNARY + UNARIES; f++) {
        const int64_t kept = f->more.saved == 'x' ? BYTES : 0;
        if (!CHECK(bytes_of(ctx, f->call, N) == BYTES) ||
            !CHECK(bytes_of(ctx, f->call_, N) == kept))
            printf("  %s\n", f->name);
    }
    mlc_no_grad_begin(ctx);            /* without backward none needs one                      */
    for (const unary *f = UNARY; f < UNARY + UNARIES; f++)
        if (!CHECK(bytes_of(ctx, f->call_, N) == 0)) printf("  %s\n", f->name);
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
