/* ew_table.h -- one row for each elementwise operation of one input, and for each of two
 *
 * EW_UNARY(ROW, LAYER, WHOLE) and EW_BINARY(ROW, WHOLE) call ROW once a row; in its place LAYER
 * where the operation has a module, mlc_nn_NAME(ctx), and WHOLE where it takes i64 and i32, too.
 * Each has its form in place, mlc_NAME_. From a row come: values, slopes, layouts, gradients and
 * what the form in place saves (test_ew.c), bad input (test_errors.c), the module
 * (test_nn_layers.c), calls without memory (test_faults_ops.c), the goldens if there are some
 * (test_goldens.c), the case of the bench (bench/bench.c, compare.py).
 *
 *     ROW(name, formula of x, slope, low, high, ulp, saved, more)       of one input
 *     ROW(name, formula of a and b, low, high, ulp, range)              of two
 *
 *   formula    in double; of finite x if the row has EW_LIMITS
 *   slope      its derivative, or EW_NONE: then differences alone check gradients
 *   low, high  where gradients are compared with differences: no kinks; of two inputs, b is there
 *              and a by 2 higher
 *   ulp        error of f32 over all sizes of arguments; 0: test_ew.c has a test of its own
 *   saved      what the form in place keeps for backward: EW_NOTHING, EW_RESULT or EW_COPY
 *   more       fields of ew_more by name, as saved and range are:
 *              EW_RANGE(from, to)     of arguments in the bench and in layouts: else -4 to 4
 *              EW_SLOPE_WITHIN(most)  the largest error of the slope in f32, up to |x| = 2^7
 *              EW_LIMITS(y, y, s, s)  values and slopes at -infinity and infinity
 */
#ifndef EW_TABLE_H
#define EW_TABLE_H

#include <math.h>

typedef struct ew_more {
    double from, to;                       /* both 0: -4 to 4; see ew_from, ew_to              */
    double within, at[2], slope_at[2];     /* at: used if limits is not 0                      */
    int    limits;
    char   saved;                          /* 0, 'y' the result, 'x' a copy of the input       */
} ew_more;

#define EW_INF     ((double)INFINITY)
#define EW_NONE    0
#define EW_NOTHING .saved = 0
#define EW_RESULT  .saved = 'y'
#define EW_COPY    .saved = 'x'
#define EW_RANGE(low, high) .from = low, .to = high
#define EW_SLOPE_WITHIN(most) .within = most
#define EW_LIMITS(y0, y1, s0, s1) .limits = 1, .at = {y0, y1}, .slope_at = {s0, s1}

#define EW_UNARY(ROW, LAYER, WHOLE) \
    WHOLE(neg, -x, EW_NONE, -3, 3, 0.5, EW_NOTHING) \
    ROW(exp, exp(x), EW_NONE, -3, 3, 1.5, EW_RESULT) \
    ROW(log, log(x), EW_NONE, 0.2, 4, 1.5, EW_COPY, EW_RANGE(0.1, 4)) \
    ROW(sqrt, sqrt(x), EW_NONE, 0.2, 4, 0.5, EW_RESULT, EW_RANGE(0, 4)) \
    LAYER(tanh, tanh(x), EW_NONE, -3, 3, 2, EW_RESULT) \
    LAYER(sigmoid, 1 / (1 + exp(-x)), EW_NONE, -4, 4, 0, EW_RESULT) \
    LAYER(relu, x > 0 || isnan(x) ? x : 0, EW_NONE, 0.5, 3, 0.5, EW_RESULT) \
    LAYER(gelu, 0.5 * x * erfc(-x / sqrt(2.0)), \
          0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) * 0.3989422804014327, \
          -3, 3, 0, EW_COPY) \
    LAYER(silu, x / (1 + exp(-x)), EW_NONE, -3, 3, 0, EW_COPY) \
    ROW(gelu_tanh, x / (1 + exp(-ew_gelu_angle(x))), \
        (1 + x / (1 + exp(ew_gelu_angle(x))) * 1.5957691216057308 * (1 + 0.134145 * x * x)) / \
            (1 + exp(-ew_gelu_angle(x))), \
        -3, 3, 0, EW_COPY) \
    LAYER(softplus, x > 20 ? x : log1p(exp(x)), EW_NONE, -3, 3, 2, EW_COPY) \
    ROW(log_sigmoid, fmin(x, 0) - log1p(exp(-fabs(x))), 1 / (1 + exp(x)), -4, 4, 2, EW_RESULT, \
        EW_SLOPE_WITHIN(2.4e-7), EW_LIMITS(-EW_INF, 0, 1, 0)) \
    LAYER(selu, 1.0507009873554804934 * (x <= 0 ? 1.6732632423543772848 * expm1(x) : x), EW_NONE, \
          -3, -0.5, 2, EW_RESULT) \
    LAYER(mish, x * tanh(log1p(exp(x))), ew_mish_slope(x), -4, 4, 0.6, EW_COPY, \
          EW_SLOPE_WITHIN(6e-7), EW_LIMITS(0, EW_INF, 0, 1)) \
    LAYER(softsign, x / (1 + fabs(x)), 1 / ((1 + fabs(x)) * (1 + fabs(x))), 0.5, 4, 1.5, EW_COPY, \
          EW_SLOPE_WITHIN(1.2e-7), EW_LIMITS(-1, 1, 0, 0)) \
    LAYER(hardswish, x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6, EW_NONE, -2.5, 2.5, 2, EW_COPY, \
          EW_LIMITS(0, EW_INF, 0, 1)) \
    LAYER(hardsigmoid, x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6, EW_NONE, -2.5, 2.5, 1.5, \
          EW_RESULT, EW_LIMITS(0, 1, 0, 0)) \
    WHOLE(abs, fabs(x), EW_NONE, 0.5, 3, 0.5, EW_COPY) \
    ROW(sign, x > 0 ? 1 : x < 0 ? -1 : 0, EW_NONE, 0.5, 3, 0.5, EW_NOTHING) \
    ROW(square, x * x, EW_NONE, -3, 3, 0.5, EW_COPY) \
    ROW(reciprocal, 1 / x, EW_NONE, 0.3, 3, 0.5, EW_RESULT, EW_RANGE(0.5, 4)) \
    ROW(rsqrt, 1 / sqrt(x), EW_NONE, 0.3, 3, 1.5, EW_RESULT, EW_RANGE(0.1, 4)) \
    ROW(expm1, expm1(x), EW_NONE, -3, 3, 0.6, EW_RESULT) \
    ROW(exp2, exp2(x), EW_NONE, -3, 3, 1.1, EW_RESULT) \
    ROW(log1p, log1p(x), EW_NONE, -0.6, 3, 1.5, EW_COPY, EW_RANGE(-0.5, 4)) \
    ROW(log2, log2(x), EW_NONE, 0.2, 4, 0.6, EW_COPY, EW_RANGE(0.1, 4)) \
    ROW(log10, log10(x), EW_NONE, 0.2, 4, 0.6, EW_COPY, EW_RANGE(0.1, 4)) \
    ROW(sin, sin(x), EW_NONE, -3, 3, 0.6, EW_COPY) \
    ROW(cos, cos(x), EW_NONE, -3, 3, 0.6, EW_COPY) \
    ROW(tan, tan(x), EW_NONE, -1, 1, 0.6, EW_RESULT, EW_RANGE(-1, 1)) \
    ROW(asin, asin(x), EW_NONE, -0.9, 0.9, 0.6, EW_COPY, EW_RANGE(-1, 1)) \
    ROW(acos, acos(x), EW_NONE, -0.9, 0.9, 0.6, EW_COPY, EW_RANGE(-1, 1)) \
    ROW(atan, atan(x), EW_NONE, -3, 3, 0.6, EW_COPY) \
    ROW(sinh, sinh(x), EW_NONE, -2, 2, 0.6, EW_COPY) \
    ROW(cosh, cosh(x), EW_NONE, -2, 2, 0.6, EW_COPY) \
    ROW(erf, erf(x), EW_NONE, -2, 2, 2, EW_COPY) \
    ROW(erfc, erfc(x), EW_NONE, -2, 2, 0.6, EW_COPY) \
    ROW(floor, floor(x), EW_NONE, 0.2, 0.8, 0.5, EW_NOTHING) \
    ROW(ceil, ceil(x), EW_NONE, 0.2, 0.8, 0.5, EW_NOTHING) \
    ROW(round, nearbyint(x), EW_NONE, 0.6, 0.9, 0.5, EW_NOTHING) \
    ROW(trunc, trunc(x), EW_NONE, 0.2, 0.8, 0.5, EW_NOTHING)

#define EW_BINARY(ROW, WHOLE) \
    WHOLE(add, a + b, -2, 2, 0.5, EW_RANGE(-4, 4)) \
    WHOLE(sub, a - b, -2, 2, 0.5, EW_RANGE(-4, 4)) \
    WHOLE(mul, a * b, -2, 2, 0.5, EW_RANGE(-4, 4)) \
    ROW(div, a / b, 0.5, 2, 0.5, EW_RANGE(0.5, 4)) \
    ROW(pow, pow(a, b), 0.3, 2.5, 0.6, EW_RANGE(0.5, 4)) \
    WHOLE(minimum, isnan(a) || isnan(b) ? a + b : a < b ? a : b, -2, 2, 0.5, EW_RANGE(-4, 4)) \
    WHOLE(maximum, isnan(a) || isnan(b) ? a + b : a > b ? a : b, -2, 2, 0.5, EW_RANGE(-4, 4)) \
    ROW(fmod, fmod(a, b), 1.1, 1.9, 0.5, EW_RANGE(0.5, 4)) \
    WHOLE(remainder, ew_remainder(a, b), 1.1, 1.9, 0.5, EW_RANGE(0.5, 4)) \
    WHOLE(floor_divide, ew_floor_divide(a, b), 1.1, 1.9, 0.5, EW_RANGE(0.5, 4)) \
    ROW(atan2, atan2(a, b), -2, 2, 0.6, EW_RANGE(-4, 4)) \
    ROW(hypot, hypot(a, b), 0.3, 2, 0.6, EW_RANGE(-4, 4))

static inline double ew_from(const ew_more *m) { return m->from == 0 && m->to == 0 ? -4 : m->from; }
static inline double ew_to(const ew_more *m) { return m->from == 0 && m->to == 0 ? 4 : m->to; }

/* Formulas that do not fit in a row. */
static inline double ew_gelu_angle(double x)
{
    return 1.5957691216057308 * (x + 0.044715 * x * x * x);
}
static inline double ew_mish_slope(double x)
{
    const double t = tanh(log1p(exp(x)));
    return t + x * (1 - t * t) / (1 + exp(-x));
}
/* The sign of b, as Python's %. */
static inline double ew_remainder(double a, double b)
{
    const double m = fmod(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
/* Rounded down, as Python's //: minus one where the remainder's sign is not that of b. */
static inline double ew_floor_divide(double a, double b)
{
    const double m = fmod(a, b);
    return b == 0 ? a / b : (a - m) / b - (m != 0 && (b < 0) != (m < 0));
}

#endif /* EW_TABLE_H */
