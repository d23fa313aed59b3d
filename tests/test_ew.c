/* test_ew.c -- tests of elementwise operations: IMPL.OPS.UNARY, BINARY, COMPARE
 *
 * Two tables. Values against libm in double, on each ISA level and dtype, for many arguments and
 * all layouts; special values; gradients by central differences. The same rows drive the
 * operations in place in test_inplace.c's checks at the end of this file.
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

typedef struct unary {
    const char *name, *name_;
    mlc_tensor *(*call)(mlc_tensor *), *(*call_)(mlc_tensor *);
    double    (*ref)(double);
    double      low, high;             /* where gradients are checked: no kinks                */
    double      ulp;                   /* of f32, over many arguments; 0: checked elsewhere    */
} unary;

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
    {"mlc_abs", "mlc_abs_", mlc_abs, mlc_abs_, fabs, 0.5, 3, 0.5},
    {"mlc_sign", "mlc_sign_", mlc_sign, mlc_sign_, sign_of, 0.5, 3, 0.5},
    {"mlc_square", "mlc_square_", mlc_square, mlc_square_, square_of, -3, 3, 0.5},
    {"mlc_reciprocal", "mlc_reciprocal_", mlc_reciprocal, mlc_reciprocal_, reciprocal_of, 0.3, 3,
     0.5},
    {"mlc_rsqrt", "mlc_rsqrt_", mlc_rsqrt, mlc_rsqrt_, rsqrt_of, 0.3, 3, 1.5},
    {"mlc_expm1", "mlc_expm1_", mlc_expm1, mlc_expm1_, expm1, -3, 3, 0.6},
    {"mlc_exp2", "mlc_exp2_", mlc_exp2, mlc_exp2_, exp2, -3, 3, 0.6},
    {"mlc_log1p", "mlc_log1p_", mlc_log1p, mlc_log1p_, log1p, -0.6, 3, 0.6},
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
static double floor_div(double a, double b) { return b == 0 ? a / b : (a - python_mod(a, b)) / b; }
static double add_of(double a, double b) { return a + b; }
static double sub_of(double a, double b) { return a - b; }
static double mul_of(double a, double b) { return a * b; }
static double div_of(double a, double b) { return a / b; }
static double min_of(double a, double b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }
static double max_of(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }

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
    if (isnan(exact) || isnan(got)) return isnan(exact) && isnan(got) ? 0 : INFINITY;
    if (isinf(got) || isinf(exact))
        return got == (float)exact || fabs(exact) > 3.4028234e38 ? 0 : INFINITY;
    frexp(exact, &e);
    if (fabs(exact) < 0x1p-125) return fabs((double)got - exact) <= 0x1p-125 ? 0 : INFINITY;
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
    if (!test_read(y, got)) return INFINITY;
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
                    if (!CHECK(same_special(got[i], UNARY[f].ref(a[i]), 3e-7)))
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
            CHECK_VALUES(mlc_clamp(x, -0.5, INFINITY), 5, low, 0, 0);
            CHECK_VALUES(mlc_clamp(x, 2, -1), 5, all, 0, 0);
            CHECK(isnan(mlc_item(mlc_clamp(mlc_full(ctx, FLOATS[d], mlc_dims0(), NAN), 0, 1))));
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
        static const int64_t shapes[4][4] = {{3, 5, 3, 5}, {3, 5, 1, 5}, {3, 1, 1, 5}, {1, 1, 3, 2}};
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
    CHECK_VALUES(mlc_lt_scalar(q, INFINITY), 2, both, 0, 0);
    CHECK_VALUES(mlc_eq_scalar(mlc_full(ctx, MLC_F32, mlc_dims1(2), 0.1), 0.1), 2, both, 0, 0);
    CHECK_VALUES(mlc_eq_scalar(mlc_full(ctx, MLC_F16, mlc_dims1(2), 0.1), 0.1), 2, both, 0, 0);
    mlc_tensor *nan = mlc_full(ctx, MLC_F32, mlc_dims1(2), NAN);
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

static const char *const CHOICES[] = {"mlc_where", "mlc_masked_fill", "mlc_masked_fill_",
                                      "mlc_div_scalar", "mlc_pow_scalar", "mlc_rsub_scalar",
                                      "mlc_clamp"};

TEST(ew, where_and_masked_fill_choose_by_element_in_every_dtype)
{
    CHECK_EQ(sizeof CHOICES / sizeof *CHOICES, 7);
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
        CHECK(mlc_where(mlc_zeros(ctx, MLC_F32, mlc_dims1(2)), mlc_zeros(ctx, MLC_F32, mlc_dims1(2)),
                        mlc_zeros(ctx, MLC_F32, mlc_dims1(2))) == NULL);
        CHECK_STR(mlc_error(ctx), "where: the mask is f32, not bool; write "
                                  "mlc_ne_scalar(mask, 0)");
        CHECK_STATUS(ctx, MLC_ERR_DTYPE);
        CHECK(mlc_masked_fill(mlc_zeros(ctx, MLC_F32, mlc_dims1(2)),
                              mlc_zeros(ctx, MLC_BOOL, mlc_dims1(3)), 0) == NULL);
        CHECK_STR(mlc_error(ctx), "masked_fill: the mask [3] does not fit x [2]");
        CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    }
}
