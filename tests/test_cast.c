/* test_cast.c -- tests of dtypes: conversions on each ISA level, 16-bit arithmetic, accessors */
#include "mlc_test.h"

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};
static const char *const NAMES[] = {"f32", "f64", "i64", "bf16", "f16", "i32", "i8", "u8", "bool"};
static const int BYTES[] = {4, 8, 8, 2, 2, 4, 1, 1, 1};

static bool is_float(mlc_dtype d)
{
    return d == MLC_F32 || d == MLC_F64 || d == MLC_BF16 || d == MLC_F16;
}

static bool is_half(mlc_dtype d) { return d == MLC_BF16 || d == MLC_F16; }

TEST(cast, dtypes_have_their_names_and_sizes)
{
    CHECK_EQ(MLC_DTYPE_COUNT, 9);
    for (int i = 0; i < MLC_DTYPE_COUNT; i++) {
        CHECK_STR(mlc_dtype_name(ALL[i]), NAMES[i]);
        CHECK_EQ(mlc_dtype_bytes(ALL[i]), BYTES[i]);
    }
    CHECK_STR(mlc_dtype_name((mlc_dtype)MLC_DTYPE_COUNT), "unknown");
    CHECK_EQ(mlc_dtype_bytes((mlc_dtype)-1), 0);
}

/* ---- 16 bits: rounding -------------------------------------------------------------------- */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Every 16-bit value goes to f32 and back without a change, but for NaN, which stays NaN.      */
TEST(cast, all_65536_halves_survive_a_round_trip)
{
    int64_t wrong = 0;
    for (int32_t h = 0; h < 65536; h++) {
        uint16_t u = (uint16_t)h;
        float    b = mlc_bf16_to(u), f = mlc_f16_to(u);
        wrong += isnan(b) ? !isnan(mlc_bf16_to(mlc_bf16_from(b))) : mlc_bf16_from(b) != u;
        wrong += isnan(f) ? !isnan(mlc_f16_to(mlc_f16_from(f))) : mlc_f16_from(f) != u;
        wrong += !isnan(b) && (double)b != test_get(&u, MLC_BF16, 0);
        wrong += !isnan(f) && (double)f != test_get(&u, MLC_F16, 0);
    }
    CHECK_EQ(wrong, 0);
}

/* Between two neighbours: just below, at and just above the middle. */
TEST(cast, halves_round_to_nearest_even)
{
    int64_t wrong = 0;
    for (int32_t h = 0; h < 0x7c00; h++) {
        uint16_t want;
        float    low = mlc_f16_to((uint16_t)h);
        float    high = h == 0x7bff ? 65536.0f : mlc_f16_to((uint16_t)(h + 1));
        float    middle = low + (high - low) / 2;
        wrong += mlc_f16_from(middle) != h + (h & 1);
        wrong += mlc_f16_from(float_of(bits_of(middle) - 1)) != h;
        wrong += mlc_f16_from(float_of(bits_of(middle) + 1)) != h + 1;
        wrong += mlc_f16_from(-middle) != ((h + (h & 1)) | 0x8000);
        test_put(&want, MLC_F16, 0, (double)middle);
        wrong += want != h + (h & 1);
    }
    for (int32_t h = 0; h < 0x7f80; h++) {
        float middle = float_of((uint32_t)h << 16 | 0x8000u);
        wrong += mlc_bf16_from(middle) != h + (h & 1);
        wrong += mlc_bf16_from(float_of(bits_of(middle) - 1)) != h;
        wrong += mlc_bf16_from(float_of(bits_of(middle) + 1)) != h + 1;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(mlc_f16_from(65519.996f), 0x7bff);
    CHECK_EQ(mlc_f16_from(65520.0f), 0x7c00);
    CHECK_EQ(mlc_f16_from(-INFINITY), 0xfc00);
    CHECK_EQ(mlc_bf16_from(3.4028235e38f), 0x7f80);
}

/* f64 to 16 bits is rounded once: through f32 these would become ties, and go the other way. */
TEST(cast, from_f64_there_is_one_rounding)
{
    static const double in[4] = {1 + 0x1p-8 + 0x1p-40, -1 - 0x1p-8 - 0x1p-40,
                                 1 + 3 * 0x1p-8 - 0x1p-40, 1 + 0x1p-8};
    static const double bf16[4] = {1 + 0x1p-7, -1 - 0x1p-7, 1 + 0x1p-7, 1};
    static const double fine[4] = {1 + 0x1p-11 + 0x1p-40, -1 - 0x1p-11 - 0x1p-40,
                                   1 + 3 * 0x1p-11 - 0x1p-40, 1 + 0x1p-11};
    static const double f16[4] = {1 + 0x1p-10, -1 - 0x1p-10, 1 + 0x1p-10, 1};
    FOR_EACH_ISA(ctx) {
        mlc_dims four = mlc_dims1(4);
        CHECK_VALUES(mlc_cast(test_tensor(ctx, MLC_F64, four, in), MLC_BF16), 4, bf16, 0, 0);
        CHECK_VALUES(mlc_cast(test_tensor(ctx, MLC_F64, four, fine), MLC_F16), 4, f16, 0, 0);
        CHECK_OK(ctx);
    }
}

/* i64 to bf16, too: f64 would make these ties. f16 has none so large. */
TEST(cast, from_i64_there_is_one_rounding)
{
    const int64_t one = INT64_C(1) << 62, tie = one + (one >> 8), past = one + 3 * (one >> 8);
    const int64_t in[8] = {tie, tie + 1, tie - 1, past - 1, -tie - 1, -past + 1, INT64_MAX,
                           INT64_MIN};
    const double  want[8] = {0x1p62, 0x1p62 + 0x1p55, 0x1p62, 0x1p62 + 0x1p55, -0x1p62 - 0x1p55,
                             -0x1p62 - 0x1p55, 0x1p63, -0x1p63};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_from(ctx, MLC_I64, mlc_dims1(8), in);
        CHECK_VALUES(mlc_cast(x, MLC_BF16), 8, want, 0, 0);
        for (int i = 0; i < 8; i++)
            CHECK_NEAR(mlc_item(mlc_cast(mlc_cast(mlc_rows(x, i, i + 1), MLC_BF16), MLC_F64)),
                       want[i], 0);
        CHECK_OK(ctx);
    }
}

/* ---- casts -------------------------------------------------------------------------------- */

#define N 300                          /* more than two tiles, and an odd rest                 */

/* What the documentation of mlc_cast says, in double. */
static double cast_to(mlc_dtype to, mlc_dtype from, double v)
{
    uint64_t raw = 0;
    if (to == MLC_BOOL) return v != 0;
    if (is_float(to)) {
        test_put(&raw, to, 0, v);
        return test_get(&raw, to, 0);
    }
    if (is_float(from) && to == MLC_I64)
        return isnan(v) || fabs(v) >= 0x1p63 ? -0x1p63 : trunc(v);
    if (is_float(from)) v = isnan(v) || trunc(v) < -0x1p31 || trunc(v) >= 0x1p31 ? -0x1p31
                                                                                : trunc(v);
    if (to == MLC_I8) return (double)(int8_t)(uint8_t)(uint64_t)(int64_t)v;
    if (to == MLC_U8) return (double)(uint8_t)(uint64_t)(int64_t)v;
    if (to == MLC_I32) return (double)(int32_t)(uint32_t)(uint64_t)(int64_t)v;
    return v;
}

/* Row i of values that a dtype can hold; floats get special ones, too. */
static void fill_row(mlc_dtype from, double *v)
{
    static const double special[] = {0, -0.0, 1, -1, 0.5, -0.5, 255, 256, 300, -129, 65504, 65520,
                                     1e10, -1e10, 3e9, 2147483647, -2147483648.0, 1e19, -1e19, 1e30,
                                     (double)INFINITY, -(double)INFINITY, (double)NAN, 1e-5};
    for (int i = 0; i < N; i++) {
        uint64_t raw = 0;
        double   x = test_random(5, i, -400, 400);
        if (i < (int)(sizeof special / sizeof *special)) x = special[i];
        if (!is_float(from)) {
            double most = from == MLC_I64 ? 1e15 : from == MLC_I32 ? 2e9 : from == MLC_I8 ? 127
                                                                                          : 255;
            double least = from == MLC_U8 || from == MLC_BOOL ? 0 : -most;
            x = isfinite(x) && x >= least && x <= most ? trunc(x) : 7;
        }
        test_put(&raw, from, 0, x);
        v[i] = test_get(&raw, from, 0);
    }
}

TEST(cast, every_pair_of_dtypes_on_each_isa_level)
{
    static double in[N], want[N];
    FOR_EACH_ISA(ctx) {
        for (int f = 0; f < MLC_DTYPE_COUNT; f++) {
            fill_row(ALL[f], in);
            mlc_tensor *x = test_tensor(ctx, ALL[f], mlc_dims1(N), in);
            for (int t = 0; t < MLC_DTYPE_COUNT; t++) {
                for (int i = 0; i < N; i++) want[i] = cast_to(ALL[t], ALL[f], in[i]);
                mlc_tensor *y = mlc_cast(x, ALL[t]);
                CHECK_EQ(y->dtype, ALL[t]);
                if (!CHECK_VALUES(y, N, want, 0, 0))
                    printf("  %s to %s\n", NAMES[f], NAMES[t]);
            }
        }
        CHECK_OK(ctx);
    }
}

/* Sizes around a tile, from and into strided memory. */
TEST(cast, strided_rows_of_every_size_are_cast_alike)
{
    static double in[2 * 131], want[131];
    FOR_EACH_ISA(ctx) {
        for (int f = 0; f < MLC_DTYPE_COUNT; f++)
            for (int64_t n = 1; n <= 131; n += n < 9 ? 1 : 61) {
                for (int64_t i = 0; i < 2 * n; i++) in[i] = (double)(i * 5 % 120);
                mlc_tensor *x = test_tensor(ctx, ALL[f], mlc_dims2(n, 2), in);
                for (int t = 0; t < MLC_DTYPE_COUNT; t++) {
                    for (int64_t i = 0; i < n; i++)
                        want[i] = cast_to(ALL[t], ALL[f], ALL[f] == MLC_BOOL ? in[2 * i + 1] != 0
                                                                             : in[2 * i + 1]);
                    mlc_tensor *y = mlc_cast(mlc_select(x, 1, 1), ALL[t]);
                    mlc_tensor *into = mlc_zeros(ctx, ALL[t], mlc_dims2(n, 3));
                    CHECK_VALUES(y, n, want, 0, 0);
                    CHECK_EQ(mlc_copy_into(mlc_select(into, 1, 2), y), MLC_OK);
                    CHECK_VALUES(mlc_select(into, 1, 2), n, want, 0, 0);
                }
            }
        CHECK_OK(ctx);
    }
}

TEST(cast, a_bool_that_is_not_0_or_1_counts_as_true)
{
    static const uint8_t odd[4] = {0, 2, 255, 1};
    static const double  want[4] = {0, 1, 1, 1};
    mlc_tensor *x = mlc_from(test_ctx(), MLC_BOOL, mlc_dims1(4), odd);
    CHECK_VALUES(mlc_cast(x, MLC_F32), 4, want, 0, 0);
    CHECK_VALUES(mlc_cast(x, MLC_U8), 4, want, 0, 0);
}

/* ---- arithmetic in 16 bits ---------------------------------------------------------------- */

/* In f32 and rounded once: the reference does the same in double, whose result is closer to the
 * exact one than a tie can be missed for sums and products of 16-bit values. */
TEST(cast, sums_and_products_of_halves_are_rounded_once)
{
    static double a[N], b[N], sum[N], product[N], row[N];
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
            uint64_t raw = 0;
            if (!is_half(ALL[d])) continue;
            for (int i = 0; i < N; i++) {
                test_put(&raw, ALL[d], 0, test_random(1, i, -2, 2));
                a[i] = test_get(&raw, ALL[d], 0);
                test_put(&raw, ALL[d], 0, test_random(2, i, -2, 2));
                b[i] = test_get(&raw, ALL[d], 0);
                test_put(&raw, ALL[d], 0, (double)((float)a[i] + (float)b[i]));
                sum[i] = test_get(&raw, ALL[d], 0);
                test_put(&raw, ALL[d], 0, (double)((float)a[i] * (float)b[i]));
                product[i] = test_get(&raw, ALL[d], 0);
            }
            mlc_tensor *x = test_tensor(ctx, ALL[d], mlc_dims2(15, 20), a);
            mlc_tensor *y = test_tensor(ctx, ALL[d], mlc_dims2(15, 20), b);
            CHECK_VALUES(mlc_add(x, y), N, sum, 0, 0);
            CHECK_VALUES(mlc_mul(x, y), N, product, 0, 0);
            /* Through strides, and with a broadcast operand. */
            CHECK_VALUES(mlc_transpose(mlc_mul(mlc_transpose(x, 0, 1), mlc_transpose(y, 0, 1)), 0,
                                       1), N, product, 0, 0);
            for (int i = 0; i < 20; i++) {
                test_put(&raw, ALL[d], 0, (double)((float)a[20 + i] + (float)b[i]));
                row[i] = test_get(&raw, ALL[d], 0);
            }
            CHECK_VALUES(mlc_select(mlc_add(x, mlc_select(y, 0, 0)), 0, 1), 20, row, 0, 0);
        }
        CHECK_OK(ctx);
    }
}

/* dx = 3 dy x^2 by way of two products: the gradient adds up in the tensor's own dtype. */
TEST(cast, gradients_flow_through_halves_and_casts)
{
    static const double x0[3] = {1, -2, 3}, want[3] = {3, 12, 27};
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
            if (!is_half(ALL[d])) continue;
            mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(3), x0);
            mlc_set_requires_grad(x, true);
            mlc_tensor *h = mlc_cast(x, ALL[d]);
            mlc_backward(mlc_sum(mlc_cast(mlc_mul(mlc_mul(h, h), h), MLC_F32), mlc_dims0(), false));
            CHECK_OK(ctx);
            CHECK_VALUES(mlc_grad(x), 3, want, 0, 0);
            mlc_tensor *leaf = test_tensor(ctx, ALL[d], mlc_dims1(3), x0);
            CHECK_EQ(mlc_set_requires_grad(leaf, true), MLC_OK);
            mlc_backward_from(mlc_mul(mlc_mul(leaf, leaf), leaf), NULL);
            CHECK_VALUES(mlc_grad(leaf), 3, want, 0, 0);
        }
        CHECK_OK(ctx);
    }
}

/* A product of 16-bit matrices is that of their f32 casts, rounded once, whatever the sizes,
 * strides and batches; so are both gradients. A library that makes the product of the casts adds up
 * in another order: then the last bit of a result may differ. */
static void product_agrees(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims da, mlc_dims db, bool flip)
{
    const bool   own = strcmp(mlc_ctx_blas(ctx), "none") == 0 && !test_on_card();
    const double last = own ? 0 : dtype == MLC_F16 ? 0.0009765625 : 0.0078125;
    mlc_tensor *h[2], *f[2], *y[2];
    for (int i = 0; i < 2; i++) {
        h[i] = test_rand(ctx, dtype, i ? db : da, 3 + (uint64_t)i, -1, 1);
        f[i] = mlc_cast(h[i], MLC_F32);
        mlc_set_requires_grad(h[i], true);
        mlc_set_requires_grad(f[i], true);
    }
    for (int i = 0; i < 2; i++) {
        mlc_tensor **in = i ? f : h;
        y[i] = flip ? mlc_matmul(mlc_transpose(in[0], -1, -2), mlc_transpose(in[1], -1, -2))
                    : mlc_matmul(in[0], in[1]);
        mlc_backward_from(y[i], NULL);
    }
    for (int i = 0; i < 3; i++) {
        mlc_tensor *got = i == 2 ? y[0] : mlc_grad(h[i]), *want = i == 2 ? y[1] : mlc_grad(f[i]);
        int64_t     n = mlc_numel(want);
        double     *v = (double *)malloc((size_t)(n + 1) * sizeof *v);
        CHECK(test_read(mlc_cast(want, dtype), v));
        CHECK_VALUES(mlc_detach(got), n, v, own ? 0 : 1e-5, last);
        free(v);
    }
    CHECK_OK(ctx);
}

TEST(cast, products_of_halves_are_those_of_f32_rounded_once)
{
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
            if (!is_half(ALL[d])) continue;
            product_agrees(ctx, ALL[d], mlc_dims2(3, 5), mlc_dims2(5, 7), false);
            product_agrees(ctx, ALL[d], mlc_dims2(70, 300), mlc_dims2(300, 65), false);
            product_agrees(ctx, ALL[d], mlc_dims2(300, 70), mlc_dims2(65, 300), true);
            product_agrees(ctx, ALL[d], mlc_dims3(4, 9, 33), mlc_dims3(4, 33, 8), false);
            product_agrees(ctx, ALL[d], mlc_dims2(1, 1), mlc_dims2(1, 1), false);
        }
    }
}

/* ---- the host's view ---------------------------------------------------------------------- */

TEST(cast, accessors_point_at_the_data_and_name_the_right_one)
{
    mlc_ctx *ctx = test_ctx();
    if (!test_on_host()) {
        CHECK(mlc_bf16(mlc_zeros(ctx, MLC_BF16, mlc_dims1(1))) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_DEVICE);
        return;
    }
    CHECK_EQ(mlc_bf16(mlc_full(ctx, MLC_BF16, mlc_dims1(2), 1.5))[1], 0x3fc0);
    CHECK_EQ(mlc_f16(mlc_full(ctx, MLC_F16, mlc_dims1(2), 1.5))[1], 0x3e00);
    CHECK_EQ(mlc_i32(mlc_full(ctx, MLC_I32, mlc_dims1(2), -7))[1], -7);
    CHECK_EQ(mlc_i8(mlc_full(ctx, MLC_I8, mlc_dims1(2), -7))[1], -7);
    CHECK_EQ(mlc_u8(mlc_full(ctx, MLC_U8, mlc_dims1(2), 200))[1], 200);
    CHECK_EQ(mlc_bool(mlc_full(ctx, MLC_BOOL, mlc_dims1(2), 3))[1], 1);
    CHECK(mlc_u8(mlc_zeros(ctx, MLC_BOOL, mlc_dims1(1))) == NULL);
    CHECK_STR(mlc_error(ctx), "u8: the tensor is bool; write mlc_bool(t)");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
}

TEST(cast, item_reads_one_element_of_every_dtype)
{
    mlc_ctx *ctx = test_ctx();
    for (int d = 0; d < MLC_DTYPE_COUNT; d++)
        CHECK_NEAR(mlc_item(mlc_full(ctx, ALL[d], mlc_dims0(), 1)), 1, 0);
}

TEST(cast, anomaly_mode_sees_a_half_overflow)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_full(ctx, MLC_F16, mlc_dims1(3), 300);
    mlc_anomaly(ctx, true);
    CHECK(mlc_mul(x, x) == NULL);
    CHECK_HAS(mlc_error(ctx), "mul: forward made the first NaN or Inf, at element 0 of [3]");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}
