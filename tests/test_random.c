/* test_random.c -- tests of IMPL.OPS.RANDOM and the kernels behind it, dropout's included
 *
 * The streams are public: element i is a formula over words of Philox4x32-10, written down here a
 * second time, so what a seed means cannot change unnoticed; a few numbers are stored besides. The
 * distributions are tested by moments and by chi-square with fixed seeds; the bounds are five
 * standard deviations of the statistic.
 */
#include "mlc_test.h"

#define MOST 100003                    /* elements of the largest tensor here                  */
static double g_v[MOST];               /* what was read last                                   */

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};
static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* ---- the reference ------------------------------------------------------------------------ */

/* Word i of a stream: Salmon et al., SC 2011. */
static uint32_t ref_word(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t block = i / 4;
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                     (uint32_t)(stream >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c[0] * 0xD2511F53u, p1 = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ key[0], (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ key[1], (uint32_t)p0};
        memcpy(c, next, sizeof c);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return c[i % 4];
}

static uint64_t ref_long(uint64_t seed, uint64_t stream, uint64_t i)
{
    return (uint64_t)ref_word(seed, stream, 2 * i) << 32 | ref_word(seed, stream, 2 * i + 1);
}

/* floor(a b / 2^64), a bit of b at a time. */
static uint64_t ref_mul_high(uint64_t a, uint64_t b)
{
    uint64_t high = 0, low = 0;
    for (int bit = 63; bit >= 0; bit--) {
        high = high << 1 | low >> 63;
        low <<= 1;
        if (b >> bit & 1) {
            low += a;
            high += low < a;
        }
    }
    return high;
}

/* P(Z <= z) for a standard normal Z. */
static double ref_cdf(double z)
{
    return 0.5 * erfc(-z / sqrt(2.0));
}

static mlc_ctx *seeded(uint64_t seed)
{
    mlc_ctx *ctx = test_ctx();
    mlc_seed(ctx, seed);
    return ctx;
}

/* Chi-square of counts against equal chances of cells, in standard deviations over its mean. */
static double chi_square(const int64_t *count, int cells, int64_t n)
{
    double sum = 0, want = (double)n / cells;
    for (int i = 0; i < cells; i++) sum += ((double)count[i] - want) * ((double)count[i] - want);
    return (sum / want - (cells - 1)) / sqrt(2.0 * (cells - 1));
}

/* Of values whose distribution is cdf((v - mean)/std) between two values of it. */
static double chi_normal(int64_t n, double mean, double std, double from, double to)
{
    enum { CELLS = 40 };
    int64_t count[CELLS] = {0};
    for (int64_t i = 0; i < n; i++) {
        double p = (ref_cdf((g_v[i] - mean) / std) - from) / (to - from);
        int    cell = (int)(p * CELLS);
        count[cell < 0 ? 0 : cell >= CELLS ? CELLS - 1 : cell]++;
    }
    return chi_square(count, CELLS, n);
}

static void check_moments(int64_t n, double mean, double deviation)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += g_v[i];
        squares += (g_v[i] - mean) * (g_v[i] - mean);
    }
    CHECK_NEAR(sum / (double)n, mean, 5 * deviation / sqrt((double)n));
    CHECK_NEAR(sqrt(squares / (double)n), deviation, 5 * deviation / sqrt((double)n));
}

/* ---- streams ------------------------------------------------------------------------------ */

/* Everything here that makes random tensors. */
typedef mlc_tensor *(*maker)(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims d);

static mlc_tensor *make_randn(mlc_ctx *c, mlc_dtype t, mlc_dims d) { return mlc_randn(c, t, d); }
static mlc_tensor *make_normal(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_normal(c, t, d, 3, 0.5);
}
static mlc_tensor *make_uniform(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_uniform(c, t, d, -0.3, 1.7);
}
static mlc_tensor *make_truncated(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_truncated_normal(c, t, d, 1, 2, -1, 4);
}
static mlc_tensor *make_bernoulli(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_bernoulli(c, t, d, 0.3);
}
static mlc_tensor *make_randint(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_randint(c, t, d, 0, t == MLC_BOOL ? 2 : 100);
}
static mlc_tensor *make_randperm(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    (void)t;
    return mlc_randperm(c, d.v[0]);
}
static mlc_tensor *make_multinomial(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    (void)t;
    mlc_tensor *w = test_rand(c, MLC_F32, mlc_dims2(7, 300), 1, 0, 1);
    return mlc_reshape(mlc_multinomial(w, 200, d.v[0] % 2 == 0), mlc_dims1(-1));
}
static mlc_tensor *make_dropout(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_dropout(test_rand(c, t, d, 1, -1, 1), 0.4);
}

typedef struct random_case { maker make; bool floats, whole; } random_case;
static const random_case cases[] = {
    {make_randn, true, false},     {make_normal, true, false},   {make_uniform, true, false},
    {make_truncated, true, false}, {make_bernoulli, true, true}, {make_randint, true, true},
    {make_randperm, false, false}, {make_multinomial, false, false}, {make_dropout, true, false},
};

static bool is_float(mlc_dtype d)
{
    return d == MLC_F32 || d == MLC_F64 || d == MLC_BF16 || d == MLC_F16;
}

static bool case_has(const random_case *c, mlc_dtype t)
{
    return is_float(t) ? c->floats : c->whole || (t == MLC_I64 && !c->floats);
}

/* Bytes of a run: level, threads and length may change, what is there may not. */
static int64_t run_case(mlc_ctx *ctx, const random_case *c, mlc_dtype t, int64_t n, void *bytes)
{
    mlc_seed(ctx, 77);
    mlc_scope_begin(ctx);
    mlc_tensor *y = c->make(ctx, t, mlc_dims1(n));
    int64_t     got = mlc_numel(y);
    CHECK_EQ(mlc_read(y, bytes, (size_t)got * mlc_dtype_bytes(t)), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return got;
}

/* ctx makes the same n elements of every case and dtype as `one` does. */
static void same_runs(mlc_ctx *one, mlc_ctx *ctx, int64_t n)
{
    static uint64_t want[MOST], got[MOST];
    for (int i = 0; i < COUNT(cases); i++)
        for (int t = 0; t < COUNT(ALL); t++) {
            if (!case_has(&cases[i], ALL[t])) continue;
            /* These two are no streams of elements: another length is another draw. */
            if (n < MOST && (cases[i].make == make_multinomial || cases[i].make == make_randperm))
                continue;
            const int64_t m = run_case(one, &cases[i], ALL[t], MOST, want);
            const int64_t k = run_case(ctx, &cases[i], ALL[t], n, got);
            CHECK(n < MOST ? k == n : k == m);
            CHECK(memcmp(got, want, (size_t)k * mlc_dtype_bytes(ALL[t])) == 0);
        }
}

TEST(random, bits_depend_on_seed_stream_and_element_only)
{
    mlc_ctx *one = test_ctx();
    FOR_EACH_ISA(ctx) same_runs(one, ctx, MOST);
    for (int threads = 1; threads <= 3; threads += 2) {
        mlc_ctx_desc d = test_desc();
        d.threads = threads;
        same_runs(one, test_own(mlc_ctx_create(&d)), MOST);
    }
    for (int64_t n = 0; n < 600; n += test_stride(97) + n / 5) same_runs(one, one, n);
}

/* Of a dtype, shapes or a size that do not fit; p is checked before. */
TEST(random, a_call_that_fails_takes_no_stream)
{
    const mlc_epilogue drops = {MLC_ACT_NONE, 0.5, NULL};
    mlc_attention_desc a = mlc_attention_desc_make();
    a.dropout = 0.5;
    FOR_EACH_ISA(ctx) {
        mlc_tensor    *x = mlc_ones(ctx, MLC_F32, mlc_dims2(3, 4));
        mlc_tensor    *q = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 1, 3, 4));
        const uint64_t stream = mlc_ctx_rng(ctx).stream;
        for (int k = 0; k < 6; k++) {
            mlc_tensor *y = k == 0 ? mlc_dropout(mlc_ones(ctx, MLC_I64, mlc_dims1(3)), 0.5)
                          : k == 1 ? mlc_linear_ex(x, mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)),
                                                   NULL, &drops)
                          : k == 2 ? mlc_attention_ex(q, x, q, &a)
                          : k == 3 ? mlc_multinomial(x, INT64_MAX / 2, true)
                          : k == 4 ? mlc_attention_ex(q, NULL, q, &a) : mlc_dropout(NULL, 0.5);
            CHECK(y == NULL);
            mlc_error_clear(ctx);
            CHECK_EQ(mlc_ctx_rng(ctx).stream, stream);
        }
        CHECK(mlc_linear_ex(x, mlc_ones(ctx, MLC_F32, mlc_dims2(2, 4)), NULL, &drops));
        CHECK_EQ(mlc_ctx_rng(ctx).stream, stream + 1);
        CHECK_OK(ctx);
    }
}

TEST(random, each_call_takes_the_next_stream)
{
    mlc_ctx *ctx = seeded(5);
    double   first[4], second[4], v[4];
    test_read(mlc_randn(ctx, MLC_F32, mlc_dims1(4)), first);
    test_read(mlc_randn(ctx, MLC_F32, mlc_dims1(4)), second);
    CHECK(memcmp(first, second, sizeof first) != 0);
    for (int i = 0; i < COUNT(cases); i++) {
        mlc_seed(ctx, 5);
        CHECK(cases[i].make(ctx, cases[i].floats ? MLC_F32 : MLC_I64, mlc_dims1(0)) != NULL);
        test_read(mlc_randn(ctx, MLC_F32, mlc_dims1(4)), v);
        CHECK(memcmp(v, second, sizeof v) == 0);
    }
    mlc_seed(ctx, 5);
    test_read(mlc_randn(ctx, MLC_F32, mlc_dims1(4)), v);
    CHECK(memcmp(v, first, sizeof v) == 0);
    mlc_seed(ctx, 6);
    test_read(mlc_randn(ctx, MLC_F32, mlc_dims1(4)), v);
    CHECK(memcmp(v, first, sizeof v) != 0);
}

TEST(random, elements_are_the_formulas_of_their_words)
{
    enum { N = 3000 };
    const uint64_t seed = 0x123456789abcdefu;
    mlc_ctx       *ctx = seeded(seed);
    int64_t        order[N];
    uint64_t       i;
    test_read(mlc_uniform(ctx, MLC_F32, mlc_dims1(N), -1, 3), g_v);
    for (i = 0; i < N; i++)
        CHECK(g_v[i] == (double)(-1.0f + 4.0f * ((float)(ref_word(seed, 0, i) >> 8) * 0x1p-24f)));
    test_read(mlc_uniform(ctx, MLC_F64, mlc_dims1(N), -1, 3), g_v);
    for (i = 0; i < N; i++) {
        uint64_t u = (uint64_t)(ref_word(seed, 1, 2 * i) >> 5) << 26 |
                     ref_word(seed, 1, 2 * i + 1) >> 6;
        CHECK(g_v[i] == -1.0 + 4.0 * ((double)u * 0x1p-53));
    }
    test_read(mlc_bernoulli(ctx, MLC_U8, mlc_dims1(N), 0.25), g_v);
    for (i = 0; i < N; i++) CHECK(g_v[i] == (ref_word(seed, 2, i) < 1u << 30));
    test_read(mlc_randint(ctx, MLC_I32, mlc_dims1(N), -1000, 1000000), g_v);
    for (i = 0; i < N; i++)
        CHECK(g_v[i] == (double)ref_mul_high(ref_long(seed, 3, i), 1001000) - 1000);
    test_read(mlc_randperm(ctx, N), g_v);
    for (i = 0; i < N; i++) {
        uint64_t at = ref_mul_high(ref_long(seed, 4, i), i + 1);
        order[i] = order[at];
        order[at] = (int64_t)i;
    }
    for (i = 0; i < N; i++) CHECK(g_v[i] == (double)order[i]);
    test_read(mlc_normal(ctx, MLC_F32, mlc_dims1(N), 2, 3), g_v);
    for (i = 0; i < N; i += 2) {
        double u = (ref_word(seed, 5, i) >> 8) * 0x1p-24;
        double a = (ref_word(seed, 5, i + 1) >> 8) * 0x1p-24;
        double r = sqrt(-2 * log(1 - u));
        CHECK_NEAR(g_v[i], 2 + 3 * r * cos(2 * acos(-1.0) * a), 5e-6);
        CHECK_NEAR(g_v[i + 1], 2 + 3 * r * sin(2 * acos(-1.0) * a), 5e-6);
    }
    test_read(mlc_dropout(mlc_full(ctx, MLC_F32, mlc_dims1(N), 3), 0.25), g_v);
    for (i = 0; i < N; i++) CHECK(g_v[i] == (ref_word(seed, 6, i) < 1u << 30 ? 0 : 4));
    CHECK_OK(ctx);
}

/* So that no change of the formulas, here and there, goes unnoticed. */
typedef struct golden { maker make; mlc_dtype dtype; double want[6], tolerance; } golden;

static mlc_tensor *make_half(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_bernoulli(c, t, d, 0.5);
}
static mlc_tensor *make_unit(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_uniform(c, t, d, 0, 1);
}
static mlc_tensor *make_million(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_randint(c, t, d, 0, 1000000);
}
static mlc_tensor *make_two(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_truncated_normal(c, t, d, 0, 1, -2, 2);
}
static mlc_tensor *make_draws(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    static const double w[6] = {1, 2, 3, 4, 5, 6};
    return mlc_multinomial(test_tensor(c, t == MLC_I64 ? MLC_F32 : t, d, w), 6, t == MLC_I64);
}
static mlc_tensor *make_kept(mlc_ctx *c, mlc_dtype t, mlc_dims d)
{
    return mlc_dropout(mlc_full(c, t, d, 1), 0.5);
}

#define F32(x) ((double)x##f)
static const golden goldens[] = {
    {make_randn, MLC_F32, {F32(-1.3510921), F32(0.270192087), F32(-0.210754141),
                           F32(0.328155577), F32(-1.38085437), F32(2.6253736)}, 0},
    {make_randn, MLC_F64, {1.2345418209781556, 0.61184993026847578, -2.9550533674680803,
                           -0.25885655924451106, -1.4934674775718375, -1.1249109999318101}, 2e-15},
    {make_unit, MLC_F32, {F32(0.612959862), F32(0.468586504), F32(0.0732316971),
                          F32(0.340861499), F32(0.987718642), F32(0.327063322)}, 0},
    {make_unit, MLC_F64, {0.61295988014777381, 0.073231736875038922, 0.98771865164535766,
                          0.51390614699062398, 0.82586683078345302, 0.6027439592300704}, 0},
    {make_two, MLC_F32, {F32(0.273642153), F32(-1.32461274), F32(1.81877768),
                         F32(0.0332776532), F32(0.88173449), F32(0.248352304)}, 0},
    {make_half, MLC_F32, {0, 1, 1, 1, 0, 1}, 0},
    {make_million, MLC_I64, {612959, 73231, 987718, 513906, 825866, 602743}, 0},
    {make_randperm, MLC_I64, {1, 0, 3, 5, 4, 2}, 0},
    {make_draws, MLC_I64, {4, 1, 5, 4, 5, 4}, 0},
    {make_draws, MLC_F32, {1, 5, 3, 4, 0, 2}, 0},
    {make_kept, MLC_F32, {2, 0, 0, 0, 2, 0}, 0},
};

TEST(random, the_first_numbers_of_seed_42)
{
    for (int i = 0; i < COUNT(goldens); i++) {
        const golden *g = &goldens[i];
        CHECK_VALUES(g->make(seeded(42), g->dtype, mlc_dims1(6)), 6, g->want, g->tolerance, 0);
    }
}

/* ---- distributions ------------------------------------------------------------------------ */

TEST(random, normals_have_mean_deviation_and_shape)
{
    for (int t = 0; t < COUNT(FLOATS); t++) {
        mlc_ctx *ctx = seeded(100 + (uint64_t)t);
        test_read(mlc_normal(ctx, FLOATS[t], mlc_dims1(MOST), 0.5, 2), g_v);
        check_moments(MOST, 0.5, 2);
        /* 16-bit values are few: cells between them would be uneven. */
        if (t < 2) CHECK(chi_normal(MOST, 0.5, 2, 0, 1) < 5);
        test_read(mlc_randn(ctx, FLOATS[t], mlc_dims1(MOST)), g_v);
        check_moments(MOST, 0, 1);
        test_read(mlc_normal(ctx, FLOATS[t], mlc_dims1(9), 7, 0), g_v);
        for (int i = 0; i < 9; i++) CHECK(g_v[i] == 7);
    }
}

TEST(random, sixteen_bit_normals_are_f32_normals_rounded)
{
    static double wide[999];
    for (int t = 2; t < COUNT(FLOATS); t++) {
        test_read(mlc_randn(seeded(9), FLOATS[t], mlc_dims1(999)), g_v);
        test_read(mlc_cast(mlc_randn(seeded(9), MLC_F32, mlc_dims1(999)), FLOATS[t]), wide);
        CHECK(memcmp(g_v, wide, sizeof wide) == 0);
    }
}

TEST(random, uniform_values_stay_under_hi)
{
    static const double ranges[][2] = {{0, 1}, {-1, 0}, {-0.001, 0.002}, {100, 101}, {-3, -2.99},
                                       {5, 5}, {0, 65504}};
    for (int t = 0; t < COUNT(FLOATS); t++)
        for (int r = 0; r < COUNT(ranges); r++) {
            double lo = ranges[r][0], hi = ranges[r][1], least = hi, most = lo, low;
            test_read(mlc_full(test_ctx(), FLOATS[t], mlc_dims1(1), lo), &low);
            test_read(mlc_uniform(seeded(3), FLOATS[t], mlc_dims1(50000), lo, hi), g_v);
            for (int i = 0; i < 50000; i++) {
                least = g_v[i] < least ? g_v[i] : least;
                most = g_v[i] > most ? g_v[i] : most;
            }
            CHECK(least >= low && (most < hi || most == low));
        }
    int64_t count[64] = {0};
    test_read(mlc_uniform(seeded(3), MLC_F32, mlc_dims1(MOST), 0, 64), g_v);
    for (int i = 0; i < MOST; i++) count[(int)g_v[i]]++;
    CHECK(chi_square(count, 64, MOST) < 5);
    check_moments(MOST, 32, 64 / sqrt(12));
}

typedef struct bounds { double mean, std, lo, hi; } bounds;
static const bounds truncations[] = {
    {0, 1, -2, 2},      {0, 1, -0.1, 0.3},  {1, 2, 0, HUGE_VAL}, {1, 2, -HUGE_VAL, 0},
    {0, 1, 3, 4},       {0, 1, -9, -8},     {0, 1, 30, HUGE_VAL}, {-2, 0.5, 10, 10.5},
    {0, 1, -HUGE_VAL, HUGE_VAL}, {0, 1, 36.9, 50},
};

/* Each element has the probability below it that its words say. */
TEST(random, truncated_normals_invert_the_distribution)
{
    enum { N = 2000 };
    for (int b = 0; b < COUNT(truncations); b++) {
        const bounds *t = &truncations[b];
        double sign = t->lo > t->mean ? -1 : 1;            /* the tail where p has its digits   */
        double lo = (t->lo - t->mean) / t->std, hi = (t->hi - t->mean) / t->std;
        double from = ref_cdf(sign > 0 ? lo : -hi), to = ref_cdf(sign > 0 ? hi : -lo);
        test_read(mlc_truncated_normal(seeded(4), MLC_F64, mlc_dims1(N), t->mean, t->std, t->lo,
                                       t->hi), g_v);
        for (uint64_t i = 0; i < N; i++) {
            double u = ((double)(ref_long(4, 0, i) >> 12) + 0.5) * 0x1p-52;
            double p = from + (to - from) * u, z = sign * (g_v[i] - t->mean) / t->std;
            /* An error d of z changes p by the density, at most p (|z| + 1), times d. */
            CHECK_NEAR(ref_cdf(z), p, 1e-15 * (1 + z * z) * (p < 0.5 ? p : 1) * 8);
            CHECK(g_v[i] >= t->lo && g_v[i] <= t->hi);
        }
    }
}

TEST(random, truncated_normals_stay_inside_and_have_their_shape)
{
    for (int t = 0; t < COUNT(FLOATS); t++) {
        double end[2];
        test_read(mlc_truncated_normal(seeded(8), FLOATS[t], mlc_dims1(MOST), 0, 1, -0.7, 1.3),
                  g_v);
        test_read(test_tensor(test_ctx(), FLOATS[t], mlc_dims1(2), (double[]){-0.7, 1.3}), end);
        bool inside = true;
        for (int i = 0; i < MOST; i++) inside = inside && g_v[i] >= end[0] && g_v[i] <= end[1];
        CHECK(inside);
        if (t < 2) CHECK(chi_normal(MOST, 0, 1, ref_cdf(-0.7), ref_cdf(1.3)) < 5);
    }
    /* The mean beyond 10 is phi(10)/Q(10). */
    double sum = 0;
    test_read(mlc_truncated_normal(seeded(8), MLC_F32, mlc_dims1(MOST), 0, 1, 10, HUGE_VAL), g_v);
    for (int i = 0; i < MOST; i++) sum += g_v[i];
    CHECK_NEAR(sum / MOST, 10.098093233962512, 5 * 0.0975 / sqrt(MOST));
    test_read(mlc_truncated_normal(seeded(8), MLC_F32, mlc_dims1(9), 0, 1, 0.25, 0.25), g_v);
    for (int i = 0; i < 9; i++) CHECK(g_v[i] == 0.25);
}

TEST(random, bernoulli_has_its_share_in_every_dtype)
{
    static const double p[] = {0, 1, 0.5, 0.3, 0.999, 0x1p-12};
    for (int t = 0; t < COUNT(ALL); t++)
        for (int k = 0; k < COUNT(p); k++) {
            int64_t ones = 0, others = 0;
            test_read(mlc_bernoulli(seeded(21), ALL[t], mlc_dims1(MOST), p[k]), g_v);
            for (int i = 0; i < MOST; i++) {
                ones += g_v[i] == 1;
                others += g_v[i] != 0 && g_v[i] != 1;
            }
            CHECK_EQ(others, 0);
            CHECK_NEAR((double)ones / MOST, p[k], 5 * sqrt(p[k] * (1 - p[k]) / MOST));
        }
}

TEST(random, randint_hits_each_number_alike_in_every_dtype)
{
    for (int t = 0; t < COUNT(ALL); t++) {
        int64_t lo = ALL[t] == MLC_U8 ? 249 : ALL[t] == MLC_BOOL ? 0 : ALL[t] == MLC_I8 ? -128 : -3;
        int     n = ALL[t] == MLC_BOOL ? 2 : 7;
        int64_t count[7] = {0};
        mlc_tensor *y = mlc_randint(seeded(31), ALL[t], mlc_dims1(MOST), lo, lo + n);
        CHECK(y != NULL && y->dtype == ALL[t]);
        test_read(y, g_v);
        for (int i = 0; i < MOST; i++) {
            int at = (int)(g_v[i] - (double)lo);
            if (!CHECK(at >= 0 && at < n && g_v[i] == floor(g_v[i]))) return;
            count[at]++;
        }
        CHECK(chi_square(count, n, MOST) < 5);
    }
}

/* The words of the largest range come through as they are. */
TEST(random, randint_of_wide_ranges)
{
    static int64_t v[4000];
    test_ctx();
    CHECK_EQ(mlc_read(mlc_randint(seeded(1), MLC_I64, mlc_dims1(4000), INT64_MIN, INT64_MAX), v,
                      sizeof v), MLC_OK);
    for (uint64_t i = 0; i < 4000; i++) {
        uint64_t u = ref_mul_high(ref_long(1, 0, i), UINT64_MAX);
        CHECK((uint64_t)v[i] == u + ((uint64_t)1 << 63));
    }
    CHECK_EQ(mlc_read(mlc_randint(seeded(1), MLC_I64, mlc_dims1(4000), 0, INT64_MAX), v, sizeof v),
             MLC_OK);
    for (uint64_t i = 0; i < 4000; i++)
        CHECK((uint64_t)v[i] == ref_mul_high(ref_long(1, 0, i), INT64_MAX));
    test_read(mlc_randint(seeded(1), MLC_F32, mlc_dims1(4000), -(1 << 24), (1 << 24) + 1), g_v);
    for (uint64_t i = 0; i < 4000; i++)
        CHECK(g_v[i] == (double)ref_mul_high(ref_long(1, 0, i), (1 << 25) + 1) - (1 << 24));
}

TEST(random, randperm_is_a_permutation_and_every_one_is_as_likely)
{
    static bool seen[MOST];
    mlc_ctx    *ctx = seeded(12);
    int64_t     count[24] = {0};
    mlc_tensor *y = mlc_randperm(ctx, MOST);
    CHECK(y != NULL && y->dtype == MLC_I64);
    test_read(y, g_v);
    for (int i = 0; i < MOST; i++) {
        if (!CHECK(g_v[i] >= 0 && g_v[i] < MOST && !seen[(int)g_v[i]])) return;
        seen[(int)g_v[i]] = true;
    }
    for (int draw = 0; draw < 24000; draw++) {
        double p[4];
        mlc_scope_begin(ctx);
        test_read(mlc_randperm(ctx, 4), p);
        int rank = 0;
        for (int i = 0; i < 4; i++) {
            int less = 0;
            for (int j = i + 1; j < 4; j++) less += p[j] < p[i];
            rank = rank * (4 - i) + less;
        }
        count[rank]++;
        mlc_scope_end(ctx);
    }
    CHECK(chi_square(count, 24, 24000) < 5);
    CHECK_EQ(mlc_numel(mlc_randperm(ctx, 0)), 0);
    test_read(mlc_randperm(ctx, 1), g_v);
    CHECK(g_v[0] == 0);
    CHECK_OK(ctx);
}

/* 16-bit floats: what f32 gives, rounded; added to a gradient that is there, rounded once. */
TEST(random, dropout_of_sixteen_bit_floats)
{
    static double wide[MOST];
    for (int t = 2; t < COUNT(FLOATS); t++) {
        mlc_tensor *x = test_rand(seeded(9), FLOATS[t], mlc_dims1(999), 1, -1, 1);
        CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
        mlc_tensor *y = mlc_dropout(x, 0.3);
        test_read(y, g_v);
        mlc_seed(x->ctx, 9);
        test_read(mlc_cast(mlc_dropout(mlc_cast(x, MLC_F32), 0.3), FLOATS[t]), wide);
        CHECK(memcmp(g_v, wide, 999 * sizeof *wide) == 0);
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        mlc_seed(x->ctx, 9);
        mlc_tensor *z = mlc_dropout(x, 0.3);
        CHECK_EQ(mlc_backward_from(z, NULL), MLC_OK);
        test_read(mlc_grad(x), g_v);
        test_read(mlc_full(x->ctx, FLOATS[t], mlc_dims1(1), 1 / 0.7), wide);
        for (int i = 0; i < 999; i++) {
            double kept = 2 * wide[0], half = FLOATS[t] == MLC_BF16 ? 0x1p-8 : 0x1p-11;
            CHECK(g_v[i] == 0 || fabs(g_v[i] - kept) <= half * kept);
        }
        CHECK_OK(x->ctx);
    }
}

/* ---- multinomial -------------------------------------------------------------------------- */

/* Counts against n times chance; cells without a chance must be empty. */
static double chi_chances(const int64_t *count, const double *chance, int cells, int64_t n)
{
    double sum = 0;
    int    some = 0;
    for (int i = 0; i < cells; i++) {
        if (chance[i] == 0) {
            if (count[i]) return (double)INFINITY;
            continue;
        }
        double want = (double)n * chance[i];
        sum += ((double)count[i] - want) * ((double)count[i] - want) / want;
        some++;
    }
    return (sum - (some - 1)) / sqrt(2.0 * (some - 1));
}

TEST(random, multinomial_draws_by_weight)
{
    enum { N = 40000 };
    static const double w[8] = {0, 1, 2, 0, 4, 0.5, 2.5, 0};
    static const double chance[8] = {0, .1, .2, 0, .4, .05, .25, 0};
    static const double scales[] = {1, 1e-30, 1e30};
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < COUNT(scales); k++) {
            double  scaled[8];
            int64_t count[8] = {0};
            for (int i = 0; i < 8; i++) scaled[i] = w[i] * scales[k];
            mlc_tensor *y = mlc_multinomial(test_tensor(seeded(2), FLOATS[t], mlc_dims1(8), scaled),
                                            N, true);
            CHECK(y != NULL && y->ndim == 1 && y->dtype == MLC_I64);
            if (!test_read(y, g_v)) return;
            for (int i = 0; i < N; i++) count[(int)g_v[i]]++;
            CHECK(chi_chances(count, chance, 8, N) < 5);
        }
}

/* The sums of these overflow; the chances do not. */
TEST(random, multinomial_of_the_largest_and_the_smallest_weights)
{
    static const double w[4] = {1.7e308, 0.85e308, 1.7e308, 0.85e308};
    static const double chance[4] = {1 / 3., 1 / 6., 1 / 3., 1 / 6.};
    static const double tiny[3] = {1e-300, 0, 3e-300}, tiny_chance[3] = {0.25, 0, 0.75};
    int64_t count[4] = {0};
    test_read(mlc_multinomial(test_tensor(seeded(2), MLC_F64, mlc_dims1(4), w), 20000, true), g_v);
    for (int i = 0; i < 20000; i++) count[(int)g_v[i]]++;
    CHECK(chi_chances(count, chance, 4, 20000) < 5);
    memset(count, 0, sizeof count);
    test_read(mlc_multinomial(test_tensor(seeded(2), MLC_F64, mlc_dims1(3), tiny), 20000, true),
              g_v);
    for (int i = 0; i < 20000; i++) count[(int)g_v[i]]++;
    CHECK(chi_chances(count, tiny_chance, 3, 20000) < 5);
}

/* Rows of three: the chance of an ordered triple is w_a w_b w_c, each over what was left. */
TEST(random, multinomial_without_replacement_draws_in_order)
{
    enum { ROWS = 20000 };
    static const double w[5] = {1, 2, 0, 3, 4};
    double      chance[125] = {0};
    int64_t     count[125] = {0};
    mlc_ctx    *ctx = seeded(6);
    mlc_tensor *p = mlc_expand(test_tensor(ctx, MLC_F32, mlc_dims1(5), w), mlc_dims2(ROWS, 5));
    mlc_tensor *y = mlc_multinomial(p, 3, false);
    CHECK(y != NULL && y->ndim == 2 && mlc_dim(y, 0) == ROWS && mlc_dim(y, 1) == 3);
    if (!test_read(y, g_v)) return;
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++)
            for (int c = 0; c < 5; c++)
                if (a != b && b != c && a != c)
                    chance[a * 25 + b * 5 + c] = w[a] / 10 * w[b] / (10 - w[a]) * w[c] /
                                                 (10 - w[a] - w[b]);
    for (int r = 0; r < ROWS; r++)
        count[(int)g_v[3 * r] * 25 + (int)g_v[3 * r + 1] * 5 + (int)g_v[3 * r + 2]]++;
    CHECK(chi_chances(count, chance, 125, ROWS) < 5);
}

/* Few draws of many, many of many, all: no index twice, none without weight. */
TEST(random, multinomial_without_replacement_takes_each_once)
{
    enum { C = 3000 };
    static double w[C];
    for (int i = 0; i < C; i++) w[i] = i % 3 == 0 ? 0 : test_random(1, i, 0.5, 1);
    for (int64_t n = 1; n <= 2000; n = n < 40 ? n * 7 : n * 2 > 2000 && n < 2000 ? 2000 : n * 2) {
        static bool seen[C];
        memset(seen, 0, sizeof seen);
        mlc_tensor *y = mlc_multinomial(test_tensor(seeded(7), MLC_F64, mlc_dims1(C), w), n, false);
        if (!test_read(y, g_v)) return;
        for (int64_t i = 0; i < n; i++) {
            int at = (int)g_v[i];
            if (!CHECK(at >= 0 && at < C && at % 3 != 0 && !seen[at])) return;
            seen[at] = true;
        }
    }
}

TEST(random, multinomial_reads_weights_where_they_lie)
{
    static double dense[60];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *p = test_rand(ctx, MLC_F32, mlc_dims2(6, 10), 3, 0, 1);
    mlc_tensor *turned = mlc_transpose(mlc_contiguous(mlc_transpose(p, 0, 1)), 0, 1);
    mlc_tensor *wide = mlc_zeros(ctx, MLC_F32, mlc_dims2(6, 21));
    mlc_tensor *holes = mlc_slice(wide, 1, 1, INT64_MAX, 2);
    mlc_copy_into(holes, p);
    for (int replacement = 0; replacement < 2; replacement++) {
        mlc_seed(ctx, 3);
        test_read(mlc_multinomial(p, 9, replacement), dense);
        mlc_seed(ctx, 3);
        CHECK_VALUES(mlc_multinomial(turned, 9, replacement), 54, dense, 0, 0);
        mlc_seed(ctx, 3);
        CHECK_VALUES(mlc_multinomial(holes, 9, replacement), 54, dense, 0, 0);
    }
    mlc_tensor *none = mlc_multinomial(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 4)), 2, true);
    CHECK(none != NULL && mlc_dim(none, 0) == 0 && mlc_dim(none, 1) == 2);
    CHECK_OK(ctx);
}

/* What the kernel finds: at once on the host, when it has run on a device. */
static void check_weights(const double *w, int64_t n, bool replacement, mlc_status status,
                          const char *text)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_multinomial(test_tensor(ctx, MLC_F64, mlc_dims2(2, 3), w), n, replacement);
    CHECK(test_on_host() ? y == NULL : y != NULL);
    mlc_ctx_sync(ctx);
    CHECK_EQ(mlc_scope_end(ctx), status);
    CHECK_STR(mlc_error(ctx), text);
}

TEST(random, multinomial_names_bad_weights)
{
    const double nan = (double)NAN, inf = (double)INFINITY;
    for (int r = 0; r < 2; r++) {
        check_weights((double[]){1, 1, 1, 1, -1, nan}, 1, r, MLC_ERR_VALUE,
                      "multinomial: weight 1 of row 1 is negative, infinite or NaN");
        check_weights((double[]){1, 1, nan, -1, 1, 1}, 1, r, MLC_ERR_VALUE,
                      "multinomial: weight 2 of row 0 is negative, infinite or NaN");
        check_weights((double[]){inf, 1, 1, 0, 0, 0}, 1, r, MLC_ERR_VALUE,
                      "multinomial: weight 0 of row 0 is negative, infinite or NaN");
        check_weights((double[]){1, 1, 1, 0, 0, -0.0}, 1, r, MLC_ERR_VALUE,
                      "multinomial: no weight of row 1 is over 0; one must be");
    }
    check_weights((double[]){1, 1, 1, 0, 1, 0}, 2, false, MLC_ERR_ARG,
                  "multinomial: 2 draws without replacement, but only 1 weights of row 1 are over "
                  "0; draw fewer");
}

/* ---- what is wrong ------------------------------------------------------------------------ */

static void check_error(mlc_ctx *ctx, mlc_tensor *t, mlc_status status, const char *text)
{
    CHECK(t == NULL);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, status);
}

TEST(random, bad_parameters_are_named)
{
    const double nan = (double)NAN, inf = (double)INFINITY;
    mlc_ctx     *ctx = test_ctx();
    mlc_dims     d = mlc_dims1(3);
    check_error(ctx, mlc_normal(ctx, MLC_F32, d, 0, -1), MLC_ERR_ARG,
                "normal: mean 0, std -1; they must be finite, std not negative");
    check_error(ctx, mlc_normal(ctx, MLC_F32, d, nan, 1), MLC_ERR_ARG,
                "normal: mean nan, std 1; they must be finite, std not negative");
    check_error(ctx, mlc_normal(ctx, MLC_I32, d, 0, 1), MLC_ERR_DTYPE,
                "normal: dtype i32; it makes floats: f32, f64, bf16, f16");
    check_error(ctx, mlc_uniform(ctx, MLC_F16, d, 0, 1e5), MLC_ERR_ARG,
                "uniform: [0, 100000) is no interval of f16; lo must be at most hi, and both "
                "finite there");
    check_error(ctx, mlc_uniform(ctx, MLC_F64, d, nan, 1), MLC_ERR_ARG,
                "uniform: [nan, 1) is no interval of f64; lo must be at most hi, and both finite "
                "there");
    check_error(ctx, mlc_truncated_normal(ctx, MLC_F32, d, 0, 0, -1, 1), MLC_ERR_ARG,
                "truncated_normal: mean 0, std 0, [-1, 1]; mean and std must be finite, std "
                "positive, lo <= hi");
    check_error(ctx, mlc_truncated_normal(ctx, MLC_F32, d, 0, 1, 1, -1), MLC_ERR_ARG,
                "truncated_normal: mean 0, std 1, [1, -1]; mean and std must be finite, std "
                "positive, lo <= hi");
    check_error(ctx, mlc_truncated_normal(ctx, MLC_F32, d, 0, 1, 38, inf), MLC_ERR_ARG,
                "truncated_normal: [38, inf] is over 37 std of 1 from the mean 0: no normal "
                "value is there; move the interval");
    check_error(ctx, mlc_truncated_normal(ctx, MLC_F32, d, 0, 1, -inf, -37), MLC_ERR_ARG,
                "truncated_normal: [-inf, -37] is over 37 std of 1 from the mean 0: no normal "
                "value is there; move the interval");
    check_error(ctx, mlc_truncated_normal(ctx, MLC_BOOL, d, 0, 1, 0, 1), MLC_ERR_DTYPE,
                "truncated_normal: dtype bool; it makes floats: f32, f64, bf16, f16");
    check_error(ctx, mlc_bernoulli(ctx, MLC_U8, d, 1.5), MLC_ERR_ARG,
                "bernoulli: p is 1.5, not in [0, 1]");
    check_error(ctx, mlc_bernoulli(ctx, MLC_U8, d, nan), MLC_ERR_ARG,
                "bernoulli: p is nan, not in [0, 1]");
    check_error(ctx, mlc_randint(ctx, MLC_I64, d, 5, 5), MLC_ERR_ARG,
                "randint: [5, 5) is empty; hi must be over lo");
    check_error(ctx, mlc_randint(ctx, MLC_U8, d, 0, 257), MLC_ERR_ARG,
                "randint: [0, 257) is not within [0, 255], the integers that u8 holds");
    check_error(ctx, mlc_randint(ctx, MLC_I8, d, -129, 0), MLC_ERR_ARG,
                "randint: [-129, 0) is not within [-128, 127], the integers that i8 holds");
    check_error(ctx, mlc_randint(ctx, MLC_F16, d, 0, 2050), MLC_ERR_ARG,
                "randint: [0, 2050) is not within [-2048, 2048], the integers that f16 holds");
    check_error(ctx, mlc_randint(ctx, (mlc_dtype)99, d, 0, 1), MLC_ERR_DTYPE,
                "randint: unknown dtype 99; it is one of MLC_F32 to MLC_BOOL");
    check_error(ctx, mlc_randperm(ctx, -1), MLC_ERR_ARG, "randperm: size -1 of axis 0 is negative; "
                                                         "it must be 0 or more");
    check_error(ctx, mlc_randn(ctx, MLC_F32, mlc_dims1(-2)), MLC_ERR_ARG,
                "randn: size -2 of axis 0 is negative; it must be 0 or more");
    CHECK(mlc_normal(NULL, MLC_F32, d, 0, -1) == NULL && mlc_randperm(NULL, 1) == NULL);
    CHECK(mlc_randint(NULL, MLC_F32, d, 1, 0) == NULL);
    CHECK(mlc_bernoulli(NULL, MLC_F32, d, 2) == NULL);
}

TEST(random, bad_calls_of_multinomial_are_named)        /* "mlc_multinomial" */
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *p = test_rand(ctx, MLC_F32, mlc_dims1(4), 1, 0, 1);
    check_error(ctx, mlc_multinomial(p, 0, true), MLC_ERR_ARG,
                "multinomial: 0 draws; it must be at least 1");
    check_error(ctx, mlc_multinomial(p, 5, false), MLC_ERR_ARG,
                "multinomial: 5 draws from 4 categories without replacement; draw fewer");
    check_error(ctx, mlc_multinomial(mlc_zeros(ctx, MLC_I64, mlc_dims1(4)), 1, true), MLC_ERR_DTYPE,
                "multinomial: the weights are i64; write mlc_cast(p, MLC_F32)");
    check_error(ctx, mlc_multinomial(mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 2, 2)), 1, true),
                MLC_ERR_SHAPE,
                "multinomial: the weights are [2,2,2]; they must be [c] or [r,c], c at least 1");
    check_error(ctx, mlc_multinomial(mlc_zeros(ctx, MLC_F32, mlc_dims0()), 1, true), MLC_ERR_SHAPE,
                "multinomial: the weights are []; they must be [c] or [r,c], c at least 1");
    check_error(ctx, mlc_multinomial(mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 0)), 1, true),
                MLC_ERR_SHAPE,
                "multinomial: the weights are [3,0]; they must be [c] or [r,c], c at least 1");
    CHECK(mlc_multinomial(NULL, 1, true) == NULL);
    CHECK_OK(ctx);
}
