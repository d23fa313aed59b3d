/* test_quant.c -- tests of sections IMPL.KERNELS.QUANT and IMPL.QUANT.*: products of integers,
 * quantized tensors and networks
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/golden.h"
#include "guarded.h"
#include "quant.h"
#include "watch.h"

/* What is computed here is rounded as in the library. */
#ifdef __clang__
#  pragma STDC FP_CONTRACT OFF
#endif

/* ---- the kernel qproduct --------------------------------------------------------------------- */

typedef struct size3 { int64_t m, n, k; } size3;

static const size3 SIZES[] = {{1, 1, 1}, {1, 17, 33}, {2, 3, 64}, {3, 16, 65}, {4, 5, 31},
                              {5, 33, 130}, {8, 16, 128}, {17, 31, 70}, {33, 18, 63}, {9, 47, 257}};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

enum { A, B, C, SUM, MORE, ROOM };

static int32_t int_of(const void *p, mlc_dtype dtype, int64_t i)
{
    return dtype == MLC_U8 ? ((const uint8_t *)p)[i] : ((const int8_t *)p)[i];
}

/* Integers of the whole range, with both ends in them. */
static void *guarded_ints(int role, mlc_dtype dtype, int64_t n, uint64_t seed)
{
    uint8_t *p = (uint8_t *)guarded(role, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        const int v = (int)test_random(seed, i, 0, 256);
        p[i] = (uint8_t)(i % 7 == 0 ? (dtype == MLC_U8 ? 255 : 127) : i % 7 == 3 ? 128 : v);
    }
    return p;
}

/* Runs k with the workspace that it asks for, which ends at a page. */
static mlc_status run_qproduct(const mlc_kernels *k, struct mlc_k_qproduct *a)
{
    a->workspace_bytes = k->qproduct_workspace(NULL, a);
    a->workspace = guarded(ROOM, (a->workspace_bytes + 63) / 64 * 64);
    return k->qproduct(NULL, a);
}

/* Arguments of a product of integers that all cases share. */
static struct mlc_k_qproduct of_ints(size3 s, mlc_dtype dtype, uint64_t seed)
{
    struct mlc_k_qproduct a;
    memset(&a, 0, sizeof a);
    a.a_dtype = dtype;
    a.c_dtype = MLC_I32;
    a.bits = 8;
    a.m = s.m;
    a.n = s.n;
    a.k = a.group = s.k;
    a.a_row = s.k + 2;
    a.a = guarded_ints(A, dtype, (s.m - 1) * a.a_row + s.k, seed);
    a.b = guarded_ints(B, MLC_I8, s.n * s.k, seed + 1);
    a.b_scale_dtype = MLC_F32;
    a.c_row = s.n;
    int32_t *sum = (int32_t *)guarded(SUM, (size_t)s.n * 4);
    for (int64_t c = 0; c < s.n; c++) {
        sum[c] = 0;
        for (int64_t i = 0; i < s.k; i++)
            sum[c] += int_of(a.b, MLC_I8, c * s.k + i);
    }
    a.b_sum = sum;
    return a;
}

static int64_t int_product(const struct mlc_k_qproduct *a, int64_t r, int64_t c)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < a->k; i++)
        sum += (int64_t)(int_of(a->a, a->a_dtype, r * a->a_row + i) -
                         (a->a_zero ? a->a_zero[r * a->a_step] : 0)) *
               int_of(a->b, MLC_I8, c * a->k + i);
    return sum;
}

TEST(quant_kernels, integers_are_those_of_a_sum_at_every_level)
{
    static const int32_t zeros[2][40] = {{0}, {128, 7, 255, 0, 3, 200, 90, 1, 254, 77, 128, 7, 255,
                                         0, 3, 200, 90, 1, 254, 77, 128, 7, 255, 0, 3, 200, 90, 1,
                                         254, 77, 128, 7, 255, 0, 3, 200, 90, 1, 254, 77}};
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < SIZE_COUNT * 6; s++) {
            const size3 size = SIZES[s / 6];
            const mlc_dtype dtype = s % 2 ? MLC_U8 : MLC_I8;
            struct mlc_k_qproduct a = of_ints(size, dtype, (uint64_t)s + 1);
            int32_t zero[40];
            for (int i = 0; i < 40; i++)
                zero[i] = zeros[1][i] - (dtype == MLC_I8 ? 128 : 0);
            a.a_zero = s % 6 / 2 ? zero : NULL;
            a.a_step = s % 6 / 2 == 2;
            int32_t *c = (int32_t *)caged(C, (size_t)(size.m * size.n) * 4);
            a.c = c;
            CHECK_EQ(run_qproduct(k, &a), MLC_OK);
            CHECK(cage_holds(c));
            for (int64_t i = 0; i < size.m * size.n; i++)
                CHECK_EQ(c[i], int_product(&a, i / size.n, i % size.n));
        }
    }
}

/* 255 times -128, and the largest k: pairs overflow i16, and i32 holds the sum by a hair. */
TEST(quant_kernels, sums_of_extremes_do_not_saturate)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int sign = 0; k && sign < 2; sign++) {
            const size3 size = {9, 2, MLC_QUANT_MOST};
            struct mlc_k_qproduct a = of_ints(size, MLC_U8, 1);
            int32_t c[18], zero = 0, sum[2];
            memset((void *)(uintptr_t)a.a, 255, (size_t)(size.m * a.a_row - 2));
            memset((void *)(uintptr_t)a.b, sign ? 127 : -128, (size_t)(size.n * size.k));
            sum[0] = sum[1] = (int32_t)(size.k * (sign ? 127 : -128));
            a.b_sum = sum;
            a.a_zero = &zero;
            a.c = c;
            CHECK_EQ(run_qproduct(k, &a), MLC_OK);
            for (int i = 0; i < 18; i++)
                CHECK_EQ(c[i], (int32_t)(size.k * 255 * (sign ? 127 : -128)));
            zero = 255;
            CHECK_EQ(run_qproduct(k, &a), MLC_OK);
            for (int i = 0; i < 18; i++)
                CHECK_EQ(c[i], 0);
            a.k++;
            CHECK_EQ(k->qproduct(NULL, &a), MLC_ERR_UNSUPPORTED);
        }
    }
}

static double act_of(mlc_act act, double v)
{
    switch (act) {
        case MLC_ACT_RELU: return v > 0 ? v : 0;
        case MLC_ACT_TANH: return tanh(v);
        case MLC_ACT_SIGMOID: return 1 / (1 + exp(-v));
        case MLC_ACT_GELU: return 0.5 * v * (1 + erf(v * 0.70710678118654752));
        default: return v;
    }
}

/* A case of the epilogue: each dtype of c, scale for all or a row, bias, act, residual. */
static void check_epilogue(const mlc_kernels *k, int s)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_BF16, MLC_U8, MLC_I8};
    static const mlc_act acts[] = {MLC_ACT_NONE, MLC_ACT_RELU, MLC_ACT_TANH, MLC_ACT_GELU,
                                   MLC_ACT_SIGMOID};
    const size3 size = SIZES[s % SIZE_COUNT];
    const mlc_dtype dtype = dtypes[s % 4];
    const bool whole = dtype == MLC_U8 || dtype == MLC_I8;
    struct mlc_k_qproduct a = of_ints(size, MLC_U8, (uint64_t)s + 99);
    float a_scale[40], b_scale[50], bias[50];
    int32_t zero[40];
    for (int i = 0; i < 50; i++) {
        b_scale[i] = 0.001f + 0.0001f * (float)i;
        bias[i] = 0.5f - 0.03f * (float)i;
        if (i < 40) { a_scale[i] = 0.01f / (float)(i + 1); zero[i] = 100 + i; }
    }
    a.a_scale = a_scale;
    a.a_zero = zero;
    a.a_step = s % 3 == 0;
    a.b_scale = b_scale;
    a.b_step = s % 2;
    a.c_dtype = dtype;
    a.c_scale = 0.02f;
    a.c_zero = dtype == MLC_U8 ? 30 : -7;
    a.bias = s % 5 ? bias : NULL;
    a.act = acts[s % 5];
    a.c_row = size.n + 1;
    const int64_t all = (size.m - 1) * a.c_row + size.n;
    a.residual = !whole && s % 7 > 2 ? guarded_rand(MORE, dtype, all, 5, -1, 1) : NULL;
    a.c = guarded(C, (size_t)all * size_of(dtype));
    CHECK_EQ(run_qproduct(k, &a), MLC_OK);
    for (int64_t r = 0; r < size.m; r++)
        for (int64_t c = 0; c < size.n; c++) {
            const int64_t at = r * a.c_row + c;
            double v = (double)int_product(&a, r, c) *
                       ((double)a_scale[a.a_step * r] * (double)b_scale[a.b_step * c]);
            v = act_of(a.act, v + (a.bias ? (double)bias[c] : 0.0));
            if (a.residual)
                v += get(a.residual, dtype, at);
            if (!whole) {
                CHECK_NEAR(get(a.c, dtype, at), v,
                           (dtype == MLC_F32 ? 4e-6 : 0.005) * (1 + fabs(v)));
                continue;
            }
            const double lo = dtype == MLC_U8 ? 0 : -128;
            double q = v / 0.02 + a.c_zero;
            q = q < lo ? lo : q > lo + 255 ? lo + 255 : q;
            CHECK_NEAR((double)int_of(a.c, dtype, at), q, 0.5001);
        }
}

TEST(quant_kernels, epilogue_scales_adds_and_rounds)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < 40; s++)
            check_epilogue(k, s);
    }
}

/* ---- patches of images ----------------------------------------------------------------------- */

typedef struct image_case {
    int64_t n, groups, c, oc, in[3], kernel[3], stride[3], dilation[3], pad[3];
} image_case;

static const image_case IMAGES[] = {
    {2, 1, 3, 5, {1, 7, 6}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
    {1, 1, 16, 17, {1, 9, 8}, {1, 3, 2}, {1, 2, 3}, {1, 1, 2}, {0, 2, 1}},
    {3, 1, 1, 4, {1, 5, 5}, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 4, 6}},
    {1, 3, 2, 4, {1, 6, 5}, {1, 2, 3}, {1, 1, 2}, {1, 2, 1}, {0, 1, 0}},
    {2, 8, 1, 1, {1, 4, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
    {1, 1, 33, 20, {1, 1, 19}, {1, 1, 4}, {1, 1, 1}, {1, 1, 3}, {0, 0, 9}},
    {1, 1, 20, 3, {4, 5, 6}, {2, 3, 1}, {2, 1, 1}, {1, 1, 1}, {1, 0, 0}},
    {1, 1, 9, 6, {1, 12, 40}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {5, 1, 4, 2, {1, 12, 13}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
    /* Without padding, of bytes that come in fours: lines are read where they are. */
    {2, 1, 8, 40, {1, 9, 11}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},
    {1, 1, 4, 33, {1, 15, 14}, {1, 3, 2}, {1, 2, 1}, {1, 2, 3}, {0, 0, 0}},
    {1, 3, 4, 17, {3, 7, 8}, {2, 2, 3}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0}},
    /* Depthwise. */
    {1, 21, 1, 1, {1, 9, 7}, {1, 3, 3}, {1, 2, 1}, {1, 1, 2}, {0, 1, 2}},
    {2, 16, 1, 1, {3, 6, 5}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 0, 0}},
    {1, 35, 1, 1, {1, 20, 33}, {1, 5, 5}, {1, 1, 2}, {1, 1, 1}, {0, 2, 2}},
    /* Several tasks of lines; lines too long for a stage. */
    {1, 1, 3, 18, {1, 60, 40}, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 2, 2}},
    {1, 1, 2, 3, {1, 2, 700}, {1, 1, 3}, {1, 1, 1}, {1, 1, 4}, {0, 1, 5}},
    {2, 1, 80, 3, {1, 3, 5000}, {1, 3, 1}, {1, 2, 900}, {1, 1, 1}, {0, 1, 1}},
};
enum { IMAGE_COUNT = sizeof IMAGES / sizeof *IMAGES };

/* The patches of a case; the result's pixels of an image in *pixels. */
static struct mlc_k_patches patches_of(const image_case *s, int64_t *pixels)
{
    struct mlc_k_patches p;
    memset(&p, 0, sizeof p);
    p.groups = s->groups;
    p.c = s->c;
    *pixels = 1;
    for (int d = 0; d < 3; d++) {
        p.in[d] = s->in[d];
        p.kernel[d] = s->kernel[d];
        p.stride[d] = s->stride[d];
        p.dilation[d] = s->dilation[d];
        p.pad[d] = s->pad[d];
        p.out[d] = (s->in[d] + 2 * s->pad[d] - s->dilation[d] * (s->kernel[d] - 1) - 1) /
                   s->stride[d] + 1;
        *pixels *= p.out[d];
    }
    return p;
}

/* Number i of the patch of row r of group g, less the zero: 0 where the tap is padding. */
static int32_t patch_at(const struct mlc_k_qproduct *a, int64_t r, int64_t g, int64_t i)
{
    const struct mlc_k_patches *p = &a->patches;
    int64_t at[3], tap = i / p->c;
    for (int d = 2; d >= 0; d--) {
        at[d] = r % p->out[d] * p->stride[d] - p->pad[d] + tap % p->kernel[d] * p->dilation[d];
        r /= p->out[d];
        tap /= p->kernel[d];
        if (at[d] < 0 || at[d] >= p->in[d])
            return 0;
    }
    const int64_t pixel = ((r * p->in[0] + at[0]) * p->in[1] + at[1]) * p->in[2] + at[2];
    return int_of(a->a, a->a_dtype, pixel * a->a_row + g * p->c + i % p->c) - *a->a_zero;
}

static int64_t patch_product(const struct mlc_k_qproduct *a, int64_t r, int64_t col)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < a->k; i++)
        sum += (int64_t)patch_at(a, r, col / a->n, i) * int_of(a->b, MLC_I8, col * a->k + i);
    return sum;
}

/* Arguments of a convolution of integers; *p outlives them. */
static struct mlc_k_qproduct of_image(const image_case *s, struct mlc_k_patches *p,
                                      mlc_dtype dtype, uint64_t seed)
{
    int64_t pixels;
    *p = patches_of(s, &pixels);
    const int64_t all = s->groups * s->oc, k = s->c * s->kernel[0] * s->kernel[1] * s->kernel[2];
    struct mlc_k_qproduct a = of_ints((size3){1, all, k}, dtype, seed);
    a.patches = *p;
    a.m = s->n * pixels;
    a.n = s->oc;
    a.a_row = s->groups * s->c;
    a.a = guarded_ints(A, dtype, s->n * s->in[0] * s->in[1] * s->in[2] * a.a_row, seed + 5);
    a.c_row = all;
    return a;
}

TEST(quant_kernels, patches_are_gathered_as_a_convolution_reads_them_at_every_level)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < IMAGE_COUNT * 2; s++) {
            struct mlc_k_patches  p;
            const mlc_dtype       dtype = s % 2 ? MLC_U8 : MLC_I8;
            struct mlc_k_qproduct a = of_image(&IMAGES[s / 2], &p, dtype, (uint64_t)s + 3);
            const int32_t         zero = s % 2 ? 131 : -5;
            const int64_t         all = p.groups * a.n;
            a.a_zero = &zero;
            int32_t *c = (int32_t *)caged(C, (size_t)(a.m * all) * 4);
            a.c = c;
            CHECK_EQ(run_qproduct(k, &a), MLC_OK);
            CHECK(cage_holds(c));
            for (int64_t i = 0; i < a.m * all; i++)
                CHECK_EQ(c[i], patch_product(&a, i / all, i % all));
        }
    }
}

/* u8 to u8 with scales and zeros that are known: what chains of static layers run. */
static void check_static_image(const mlc_kernels *k, int s)
{
    struct mlc_k_patches  p;
    const mlc_dtype       dtype = s % 2 ? MLC_U8 : MLC_I8;
    struct mlc_k_qproduct a = of_image(&IMAGES[s % IMAGE_COUNT], &p, MLC_U8, (uint64_t)s + 3);
    const int64_t         all = p.groups * a.n;
    const float           a_scale = 0.02f;
    const int32_t         zero = 117;
    float                 b_scale[64], bias[64];
    for (int i = 0; i < 64; i++) {
        b_scale[i] = 0.002f + 0.0001f * (float)i;
        bias[i] = 0.1f * (float)i;
    }
    a.a_scale = &a_scale;
    a.a_zero = &zero;
    a.b_scale = b_scale;
    a.b_step = 1;
    a.bias = bias;
    a.act = s % 3 ? MLC_ACT_RELU : MLC_ACT_NONE;
    a.act_last = s % 4 < 2;
    a.c_dtype = dtype;
    a.c_scale = 0.11f;
    a.c_zero = dtype == MLC_U8 ? 40 : -20;
    a.residual = s % 5 ? guarded_ints(MORE, dtype, a.m * all, 77) : NULL;
    a.residual_scale = 0.03f;
    a.residual_zero = dtype == MLC_U8 ? 100 : 11;
    a.c = guarded(C, (size_t)(a.m * all));
    /* The same by scales and zeros at pointers; a residual of floats. */
    const float a_by[2] = {a_scale, (float)zero}, c_by[2] = {a.c_scale, (float)a.c_zero};
    const float more_by[2] = {a.residual_scale, (float)a.residual_zero};
    const bool  floats = s % 5 == 1, by_pointer = s % 3 == 0 && dtype == MLC_U8;
    if (floats) {
        a.residual = guarded_rand(MORE, MLC_F32, a.m * all, 5, -1, 1);
        a.residual_other = 1 + MLC_F32;
    }
    if (by_pointer) {
        a.a_scale = NULL;
        a.a_zero = NULL;
        a.c_scale = a.residual_scale = 0;
        a.a_by = a_by;
        a.c_by = c_by;
        a.residual_by = more_by;
        a.c_times = 1;
        a.c_most = 200;
    }
    CHECK_EQ(run_qproduct(k, &a), MLC_OK);
    a.a_zero = &zero;
    for (int64_t i = 0; i < a.m * all; i++) {
        const int64_t col = i % all;
        const int32_t add = a.residual && !floats ? int_of(a.residual, dtype, i) -
                                                        (int32_t)more_by[1] : 0;
        const double  by = (double)a_scale * (double)b_scale[col];
        const double  more = floats ? get(a.residual, MLC_F32, i) : 0.03 * add;
        double v = (double)patch_product(&a, i / all, col) * by + (double)bias[col];
        v = act_of(a.act, v + (a.act_last ? more : 0)) + (a.act_last ? 0 : more);
        const double lo = dtype == MLC_U8 ? 0 : -128, hi = by_pointer ? 200 : lo + 255;
        const double q = v / 0.11 + (double)c_by[1];
        CHECK_NEAR((double)int_of(a.c, dtype, i), q < lo ? lo : q > hi ? hi : q, 0.5005);
    }
}

TEST(quant_kernels, images_of_integers_become_images_of_integers)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < 2 * IMAGE_COUNT; s++)
            check_static_image(k, s);
    }
}

/* f32 times integers with scales by row and by group, of 8 and 4 bits. */
static void check_weights_only(const mlc_kernels *k, int s)
{
    static const size3 sizes[] = {{1, 5, 64}, {4, 17, 96}, {7, 33, 256}, {35, 18, 32},
                                  {8, 16, 64}, {3, 1, 7},  {5, 20, 45}};
    const size3 size = sizes[s % 7];
    const int bits = s % 7 < 5 && s % 2 ? 4 : 8;
    struct mlc_k_qproduct a = of_ints(size, MLC_U8, (uint64_t)s + 7);
    a.a_dtype = a.c_dtype = MLC_F32;
    a.bits = bits;
    a.group = s % 7 < 5 ? 32 : size.k;
    a.a_row = size.k + 1;
    const int64_t groups = size.k / a.group;
    a.a = guarded_rand(A, MLC_F32, (size.m - 1) * a.a_row + size.k, 3, -1, 1);
    a.b = guarded_ints(B, MLC_I8, size.n * size.k * bits / 8, (uint64_t)s);
    a.b_scale_dtype = s % 4 < 2 ? MLC_BF16 : MLC_F32;
    a.b_scale = guarded_rand(MORE, a.b_scale_dtype, size.n * groups, 9, 0.01, 0.02);
    a.c = guarded(C, (size_t)(size.m * size.n) * 4);
    CHECK_EQ(run_qproduct(k, &a), MLC_OK);
    for (int64_t at = 0; at < size.m * size.n; at++) {
        const int64_t r = at / size.n, c = at % size.n;
        double sum = 0, size_sum = 0;
        for (int64_t i = 0; i < size.k; i++) {
            const int64_t of = c * size.k + i;
            const int byte = ((const uint8_t *)a.b)[bits == 8 ? of : of / 2];
            const int half = of % 2 ? byte >> 4 : byte & 15;
            const int q = bits == 8 ? (int8_t)byte : half < 8 ? half : half - 16;
            const double v = q * get(a.b_scale, a.b_scale_dtype, c * groups + i / a.group) *
                             get(a.a, MLC_F32, r * a.a_row + i);
            sum += v;
            size_sum += fabs(v);
        }
        CHECK_NEAR(get(a.c, MLC_F32, at), sum, 1e-6 * size_sum);
    }
}

TEST(quant_kernels, weights_only_sums_floats_by_groups)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < 28; s++)
            check_weights_only(k, s);
    }
}

TEST(quant_kernels, what_no_kernel_has_is_unsupported)
{
    const mlc_kernels *k = scalar_row();
    struct mlc_k_qproduct a = of_ints(SIZES[2], MLC_U8, 1), b = a;
    b.c_dtype = MLC_F64;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.bits = 4;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.a_dtype = MLC_F32;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);  /* sums of floats are no i32 */
    b.c_dtype = MLC_F32;
    b.group = 33;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.b_sum = NULL;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.workspace_bytes = 0;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_INTERNAL);
    struct mlc_k_patches p;
    a = b = of_image(&IMAGES[0], &p, MLC_U8, 1);
    b.a_step = 1;                      /* an image has one zero */
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.patches.c--;
    CHECK_EQ(k->qproduct(NULL, &b), MLC_ERR_UNSUPPORTED);
}

/* ---- the kernel quantize --------------------------------------------------------------------- */

typedef struct dynamic { float scale; int32_t zero; uint8_t q[70000]; } dynamic;

static void run_quantize(const mlc_kernels *k, mlc_quant_convention convention, int32_t most,
                         const float *x, int64_t n, dynamic *d)
{
    struct mlc_k_quantize a;
    memset(&a, 0, sizeof a);
    a.convention = convention;
    a.most = most;
    a.n = n;
    a.rows = 1;
    float *in = (float *)guarded(A, (size_t)n * 4);
    memcpy(in, x, (size_t)n * 4);
    a.in = in;
    a.out = (uint8_t *)caged(C, (size_t)n);
    a.scale = &d->scale;
    a.zero = &d->zero;
    a.workspace_bytes = k->quantize_workspace(NULL, &a);
    a.workspace = guarded(ROOM, a.workspace_bytes);
    CHECK_EQ(k->quantize(NULL, &a), MLC_OK);
    CHECK(cage_holds(a.out));
    memcpy(d->q, a.out, (size_t)n);
}

static dynamic one, second;

/* x, by hand: scale, zero, integers. */
static void check_dynamic(mlc_quant_convention convention, int32_t most, const float *x, int64_t n,
                          double scale, int32_t zero, const int *q)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        if (k == NULL)
            continue;
        run_quantize(k, convention, most, x, n, &one);
        CHECK_NEAR((double)one.scale, scale, scale * 1e-7);
        CHECK_EQ(one.zero, zero);
        for (int64_t i = 0; i < n; i++)
            CHECK_EQ(one.q[i], q[i]);
    }
}

TEST(quant_kernels, ranges_of_zeros_of_one_sign_and_of_one_value)
{
    static const float zeros[3] = {0}, plus[2] = {2, 3}, minus[2] = {-4, -1}, value[1] = {5};
    static const float onnx[4] = {0, 2, -3, -2.5f}, small[2] = {0, 1e-6f};
    static const int none[4] = {0};
    static const int p255[2] = {170, 255}, m255[2] = {0, 191}, v255[1] = {255}, s255[2] = {0, 0};
    static const int of_onnx[4] = {153, 255, 0, 26};
    static const int top[3] = {0, 0, 0};
    check_dynamic(MLC_QUANT_ONNX, 255, zeros, 3, 1.0, 0, top);
    check_dynamic(MLC_QUANT_TORCH, 127, zeros, 3, (double)0.1f, 0, none);
    check_dynamic(MLC_QUANT_ONNX, 255, plus, 2, 3.0 / 255, 0, p255);
    check_dynamic(MLC_QUANT_TORCH, 255, plus, 2, 3.0 / 255, 0, p255);
    check_dynamic(MLC_QUANT_ONNX, 255, minus, 2, 4.0 / 255, 255, m255);
    check_dynamic(MLC_QUANT_TORCH, 255, value, 1, 5.0 / 255, 0, v255);
    check_dynamic(MLC_QUANT_ONNX, 255, onnx, 4, 5.0 / 255, 153, of_onnx);
    check_dynamic(MLC_QUANT_TORCH, 255, small, 2, (double)6.1e-5f, 0, s255);
}

/* Scale 1: halves go to the even neighbour, and integers are clamped. */
TEST(quant_kernels, rounds_half_to_even)
{
    static const float x[8] = {0.5f, 1.5f, 2.5f, 254.5f, 255, 0, 3.49f, 100.5f};
    static const int q[8] = {0, 2, 2, 254, 255, 0, 3, 100};
    check_dynamic(MLC_QUANT_ONNX, 255, x, 8, 1.0, 0, q);
    check_dynamic(MLC_QUANT_TORCH, 255, x, 8, 1.0, 0, q);
}

TEST(quant_kernels, quantize_is_the_same_at_every_level_and_size)
{
    static float x[70000];
    for (int i = 0; i < 70000; i++)
        x[i] = (float)test_random(3, i, -2, 5);
    for (int c = 0; c < 2; c++)
        for (int64_t n = 1; n < 70000; n = n * 3 + 1) {
            const int32_t most = c ? 255 : 127;
            run_quantize(scalar_row(), c ? MLC_QUANT_ONNX : MLC_QUANT_TORCH, most, x, n, &one);
            FOR_EACH_ROW(k, isa) {
                run_quantize(k, c ? MLC_QUANT_ONNX : MLC_QUANT_TORCH, most, x, n, &second);
                CHECK(one.scale == second.scale);
                CHECK_EQ(one.zero, second.zero);
                CHECK(memcmp(one.q, second.q, (size_t)n) == 0);
            }
        }
}

/* Ranges of rows are those of each row alone; a row that has none leaves the others theirs. */
TEST(quant_kernels, rows_have_ranges_of_their_own)
{
    ONLY_ON_HOST();
    enum { N = 37, ROWS = 5 };
    float x[ROWS * N];
    for (int i = 0; i < ROWS * N; i++)
        x[i] = (float)test_random(3, i, -1, 1) * (float)(1 + i / N * 10);
    x[3 * N + 5] = (float)NO_NUMBER;
    FOR_EACH_ROW(k, isa) {
        float                 scale[ROWS];
        int32_t               zero[ROWS];
        uint8_t              *q = (uint8_t *)caged(C, ROWS * N);
        struct mlc_k_quantize a;
        memset(&a, 0, sizeof a);
        a.most = 255;
        a.n = ROWS * N;
        a.rows = ROWS;
        a.in = x;
        a.out = q;
        a.scale = scale;
        a.zero = zero;
        a.workspace_bytes = k->quantize_workspace(NULL, &a);
        a.workspace = guarded(ROOM, a.workspace_bytes);
        CHECK_EQ(k->quantize(NULL, &a), MLC_OK);
        CHECK(cage_holds(q));
        memcpy(second.q, q, ROWS * N);
        for (int r = 0; r < ROWS; r++) {
            CHECK((scale[r] > 0) == (r != 3));
            if (r == 3)
                continue;
            run_quantize(k, MLC_QUANT_TORCH, 255, x + r * N, N, &one);
            CHECK(scale[r] == one.scale && zero[r] == one.zero);
            CHECK(memcmp(second.q + r * N, one.q, N) == 0);
        }
    }
}

TEST(quant_kernels, a_nan_or_inf_leaves_no_scale)
{
    for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < 40; s++) {
            float x[20];
            for (int i = 0; i < 20; i++)
                x[i] = (float)i;
            x[s / 2] = s % 2 ? (float)INF : (float)NO_NUMBER;
            run_quantize(k, MLC_QUANT_TORCH, 127, x, 20, &one);
            CHECK(one.scale != one.scale);
        }
    }
}

/* ---- one tensor: mlc_quantize_tensor --------------------------------------------------------- */

static const char *const WEIGHTS[] = {"normal", "zero_row", "zeros", "plus", "one", "halves"};

/* Integers, scales and zeros of one case are those of the golden, bit for bit. */
static void check_tensor(const golden_file *g, const char *kind, const char *name)
{
    mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(8);
    mlc_quantized q;
    d.convention = kind[0] == 'o' ? MLC_QUANT_ONNX : MLC_QUANT_TORCH;
    d.affine = strstr(kind, "affine") != NULL;
    d.per_tensor = strstr(kind, "rows") == NULL;
    mlc_tensor *w = golden_find(g, "w.%s", name), *want = golden_find(g, "%s.%s.q", kind, name);
    mlc_tensor *scale = golden_find(g, "%s.%s.scale", kind, name);
    mlc_tensor *zero = golden_find(g, "%s.%s.zero", kind, name);
    CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_OK);
    CHECK_EQ(mlc_numel(q.q), mlc_numel(want));
    CHECK_EQ(q.q->dtype, want->dtype);
    CHECK_EQ(mlc_numel(q.scale), mlc_numel(scale));
    for (int64_t i = 0; i < mlc_numel(scale); i++) {
        CHECK(mlc_f32(q.scale)[i] == mlc_f32(scale)[i]);
        CHECK_EQ(q.zero ? mlc_i32(q.zero)[i] : 0, mlc_i32(zero)[i]);
    }
    const bool is_u8 = want->dtype == MLC_U8;
    CHECK(memcmp(is_u8 ? (void *)mlc_u8(q.q) : (void *)mlc_i8(q.q),
                 is_u8 ? (void *)mlc_u8(want) : (void *)mlc_i8(want),
                 (size_t)mlc_numel(want)) == 0);
    /* Back: half a step at most, but where a number was clamped. */
    mlc_tensor *back = mlc_dequantize_tensor(&q);
    for (int64_t i = 0; i < mlc_numel(w); i++) {
        const int64_t row = i / w->shape[1];
        const double step = (double)mlc_f32(q.scale)[d.per_tensor ? 0 : row];
        CHECK_NEAR((double)mlc_f32(back)[i], (double)mlc_f32(w)[i], 0.501 * step);
    }
}

TEST(quant, tensors_are_those_of_pytorch_and_onnxruntime)
{
    ONLY_ON_HOST();
    static const char *const kinds[] = {"torch", "torch_rows", "torch_affine", "onnx", "onnx_rows"};
    mlc_ctx *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "quant.safetensors");
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < 6; i++)
            check_tensor(&g, kinds[k], WEIGHTS[i]);
    CHECK_OK(ctx);
}

TEST(quant, ranges_of_activations_are_those_of_pytorch_and_onnxruntime)
{
    ONLY_ON_HOST();
    static const char *const cases[] = {"normal", "zeros", "plus", "minus", "one", "small", "mixed",
                                        "onnx"};
    static const char *const kinds[] = {"torch", "torch_full", "onnx"};
    mlc_ctx *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "quant.safetensors");
    for (int i = 0; i < 24; i++) {
        const char *kind = kinds[i / 8], *name = cases[i % 8];
        mlc_tensor *x = golden_find(&g, "x.%s", name);
        mlc_tensor *q = golden_find(&g, "dynamic.%s.%s.q", kind, name);
        run_quantize(mlc_cpu_kernels(test_isa_top()),
                     i / 8 == 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH, i / 8 ? 255 : 127, mlc_f32(x),
                     mlc_numel(x), &one);
        CHECK(one.scale == mlc_f32(golden_find(&g, "dynamic.%s.%s.scale", kind, name))[0]);
        CHECK_EQ(one.zero, mlc_i32(golden_find(&g, "dynamic.%s.%s.zero", kind, name))[0]);
        CHECK(memcmp(one.q, mlc_u8(q), (size_t)mlc_numel(x)) == 0);
    }
    CHECK_OK(ctx);
}

/* The cases of PyTorch's MinMaxObserver and ONNX's rules that are known by numbers. */
TEST(quant, ranges_of_tensors_are_those_of_the_rules)
{
    ONLY_ON_HOST();
    static const struct {
        float  x[4];
        bool   affine;
        int    convention;
        double scale;
        int    zero;
    } is[] = {
        {{-1, 0, 2, 3}, true, MLC_QUANT_TORCH, 4.0 / 255, 64},
        {{2, 3, 2, 3}, true, MLC_QUANT_TORCH, 3.0 / 255, 0},
        {{0, 0, 0, 0}, true, MLC_QUANT_TORCH, 1.1920928955078125e-7, 0},
        {{0, 0, 0, 0}, true, MLC_QUANT_ONNX, 1, 0},
        {{-7, -7, -7, -7}, true, MLC_QUANT_TORCH, 7.0 / 255, 255},
        {{-1, 0, 2, 3}, false, MLC_QUANT_TORCH, 3.0 / 127.5, 0},
        {{-1, 0, 2, 3}, false, MLC_QUANT_ONNX, 3.0 / 127, 0},
        {{0, 0, 0, 0}, false, MLC_QUANT_TORCH, 1.1920928955078125e-7, 0},
        {{0, 0, 0, 0}, false, MLC_QUANT_ONNX, 1, 0},
    };
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(8);
        mlc_quantized q;
        d.affine = is[i].affine;
        d.convention = (mlc_quant_convention)is[i].convention;
        CHECK_EQ(mlc_quantize_tensor(mlc_from(ctx, MLC_F32, mlc_dims2(1, 4), is[i].x), &d, &q),
                 MLC_OK);
        CHECK_NEAR((double)mlc_f32(q.scale)[0], is[i].scale, 1e-7 * is[i].scale);
        CHECK_EQ(q.zero ? mlc_i32(q.zero)[0] : 0, is[i].zero);
        mlc_tensor *back = mlc_dequantize_tensor(&q);
        CHECK_OK(ctx);
        for (int k = 0; k < 4; k++)
            CHECK_NEAR((double)mlc_f32(back)[k], (double)is[i].x[k], 0.5001 * is[i].scale);
    }
}

/* Channels of zeros give their bias, whatever the other rows are. */
TEST(quant, channels_of_zeros_give_their_bias)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 8; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlc_nn_linear(ctx, 64, 5);
        mlc_quantize_desc d =
            mlc_quantize_desc_make(i < 4 ? MLC_QUANT_DYNAMIC : MLC_QUANT_WEIGHTS);
        d.convention = i % 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH;
        d.per_tensor = i < 4 && i / 2;
        if (i / 2 == 3)
            d.bits = 4;
        memset(mlc_f32(mlc_module_param(net, "weight")) + 64, 0, 64 * 4);
        const float bias = mlc_f32(mlc_module_param(net, "bias"))[1];
        mlc_module *root = mlc_nn_sequential(ctx);
        CHECK_EQ(mlc_module_add(root, net), MLC_OK);
        CHECK_EQ(mlc_quantize(root, &d, NULL), MLC_OK);
        mlc_tensor *y = mlc_forward(root, test_rand(ctx, MLC_F32, mlc_dims2(9, 64), 5, -1, 1));
        CHECK_OK(ctx);
        for (int64_t r = 0; r < 9; r++)
            CHECK(mlc_f32(y)[5 * r + 1] == bias && mlc_f32(y)[5 * r] != bias);
    }
}

/* 2 to 8 bits, in groups: each number is within half a step, and 4 bits are two to a byte. */
TEST(quant, few_bits_in_groups_come_back_within_half_a_step)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(5, 128), 1, -2, 3);
    for (int s = 0; s < 7 * 2 * 2; s++) {
        mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(2 + s % 7);
        mlc_quantized q;
        d.convention = (mlc_quant_convention)(s / 7 % 2);
        d.group = s / 14 ? 0 : 32;
        CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_OK);
        CHECK_EQ(mlc_numel(q.q), d.bits > 4 ? 640 : 320);
        CHECK_EQ(q.scale->dtype, d.group ? MLC_BF16 : MLC_F32);
        CHECK_EQ(mlc_numel(q.scale), d.group ? 20 : 5);
        mlc_tensor *back = mlc_dequantize_tensor(&q), *scale = mlc_cast(q.scale, MLC_F32);
        for (int64_t i = 0; i < 640; i++) {
            /* But where it is clamped: PyTorch's range has no +2^(b-1), bf16 rounds the scale. */
            const double step = (double)mlc_f32(scale)[i / q.group], v = (double)mlc_f32(w)[i];
            const double half = (double)(1 << (d.bits - 1)), hi = step * (half - 1);
            const double lo = -step * (d.convention == MLC_QUANT_ONNX ? half - 1 : half);
            CHECK_NEAR((double)mlc_f32(back)[i], v < lo ? lo : v > hi ? hi : v, 0.501 * step);
        }
    }
    CHECK_OK(ctx);
}

/* Zeros with halves; scales that bf16 has not: of the smallest numbers and of the largest. */
TEST(quant, affine_groups_come_back_and_scales_are_numbers)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(3, 64), 1, -2, 3);
    mlc_quantized q;
    for (int s = 0; s < 7 * 2; s++) {
        mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(2 + s % 7);
        d.convention = (mlc_quant_convention)(s / 7);
        d.affine = true;
        d.group = 32;
        CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_OK);
        mlc_tensor *back = mlc_dequantize_tensor(&q), *scale = mlc_cast(q.scale, MLC_F32);
        for (int64_t i = 0; i < 192; i++)    /* the zero is rounded, and so is the scale         */
            CHECK_NEAR((double)mlc_f32(back)[i], (double)mlc_f32(w)[i],
                       1.6 * (double)mlc_f32(scale)[i / 32]);
        mlc_tensor *tiny = mlc_full(ctx, MLC_F32, mlc_dims2(1, 32), 1e-40);
        CHECK_EQ(mlc_quantize_tensor(tiny, &d, &q), MLC_OK);
        CHECK((double)mlc_item(mlc_sum_all(mlc_abs(mlc_dequantize_tensor(&q)))) < 1e-37);
    }
    mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(2);
    d.convention = MLC_QUANT_ONNX;
    d.group = 32;
    CHECK_EQ(mlc_quantize_tensor(mlc_full(ctx, MLC_F32, mlc_dims2(1, 32), 3.4028234e38), &d, &q),
             MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "a range beyond f32");
}

TEST(quant, tensors_of_no_integers_are_errors)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(4, 30), 1, -1, 1);
    mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(8);
    mlc_quantized q;
    memset(&q, 0, sizeof q);
    d.group = 32;
    CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "groups of 32 do not divide a row of w, which has 30 numbers");
    d = mlc_quantize_tensor_desc_make(9);
    CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bits must be 2 to 8");
    d = mlc_quantize_tensor_desc_make(4);
    CHECK_EQ(mlc_quantize_tensor(mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)), &d, &q), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "must be even");
    CHECK_EQ(mlc_quantize_tensor(mlc_ones(ctx, MLC_F64, mlc_dims2(2, 2)), &d, &q), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "w is f64");
    CHECK_EQ(mlc_quantize_tensor(mlc_ones(ctx, MLC_F32, mlc_dims0()), &d, &q), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "must have rows");
    CHECK_EQ(mlc_quantize_tensor(w, NULL, &q), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the desc is NULL");
    for (int i = 0; i < 2; i++) {
        mlc_f32(w)[77] = i ? (float)INF : (float)NO_NUMBER;
        d = mlc_quantize_tensor_desc_make(8);
        CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "w has a NaN or inf, or a range beyond f32, from number 6");
    }
    CHECK(q.q == NULL);
    mlc_f32(w)[77] = 0;
    CHECK_EQ(mlc_quantize_tensor(w, &d, &q), MLC_OK);
    q.group = 7;
    CHECK(mlc_dequantize_tensor(&q) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "these are not of one mlc_quantize_tensor");
    q.group = 30;
    q.bits = 1;
    CHECK(mlc_dequantize_tensor(&q) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "1 bits");
    q.bits = 8;
    q.q = w;
    CHECK(mlc_dequantize_tensor(&q) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "q is f32");
    CHECK(mlc_dequantize_tensor(NULL) == NULL);
}

/* ---- networks -------------------------------------------------------------------------------- */

static mlc_quantize_desc dynamic_desc(mlc_quant_convention convention, bool per_tensor)
{
    mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    d.convention = convention;
    d.per_tensor = per_tensor;
    return d;
}

/* A linear layer alone in a Sequential, with the golden's weight and bias. */
static mlc_module *golden_linear(mlc_ctx *ctx, const golden_file *g)
{
    mlc_tensor *w = golden_find(g, "linear.weight");
    mlc_module *net = in_sequence(ctx, 1, mlc_nn_linear(ctx, w->shape[1], w->shape[0]));
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.weight"), w), MLC_OK);
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.bias"), golden_find(g, "linear.bias")), MLC_OK);
    return net;
}

TEST(quant, dynamic_linear_is_that_of_pytorch_and_onnx)
{
    ONLY_ON_HOST();
    static const char *const kinds[] = {"torch", "onnx", "onnx_rows"};
    FOR_EACH_ISA(ctx) {
        const golden_file g = golden_open(ctx, "quant.safetensors");
        for (int k = 0; k < 3; k++) {
            mlc_module *net = golden_linear(ctx, &g);
            const mlc_quantize_desc d =
                dynamic_desc(k ? MLC_QUANT_ONNX : MLC_QUANT_TORCH, k != 2);
            CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
            mlc_tensor *y = mlc_forward(net, golden_find(&g, "x.normal"));
            mlc_tensor *want = golden_find(&g, "linear.%s", kinds[k]);
            CHECK_OK(ctx);
            for (int64_t i = 0; i < mlc_numel(want); i++)
                CHECK_NEAR((double)mlc_f32(y)[i], (double)mlc_f32(want)[i], 2e-6);
            mlc_module_free(net);
        }
    }
}

static mlc_module *small_net(mlc_ctx *ctx)
{
    return in_sequence(ctx, 5, mlc_nn_linear(ctx, 64, 96), mlc_nn_gelu(ctx),
                       mlc_nn_linear(ctx, 96, 32), mlc_nn_layer_norm(ctx, 32),
                       mlc_nn_linear(ctx, 32, 10));
}

typedef struct way { mlc_quant_mode mode; int32_t bits; int64_t group; bool full; double off; } way;
static const way WAYS[] = {
    {MLC_QUANT_DYNAMIC, 8, 0, false, 0.03}, {MLC_QUANT_DYNAMIC, 8, 0, true, 0.02},
    {MLC_QUANT_WEIGHTS, 8, 0, false, 0.01}, {MLC_QUANT_WEIGHTS, 8, 32, false, 0.01},
    {MLC_QUANT_WEIGHTS, 4, 32, false, 0.12},
};
enum { WAY_COUNT = sizeof WAYS / sizeof *WAYS };

static mlc_quantize_desc way_desc(int i)
{
    mlc_quantize_desc d = mlc_quantize_desc_make(WAYS[i].mode);
    d.bits = WAYS[i].bits;
    d.group = WAYS[i].group;
    d.full_range = WAYS[i].full;
    return d;
}

TEST(quant, networks_are_near_their_floats_and_smaller)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < WAY_COUNT; i++) {
            mlc_module *net = small_net(ctx), *was = mlc_module_clone(net);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(3, 7, 64), 5, -1, 1);
            const mlc_quantize_desc d = way_desc(i);
            mlc_quant_row rows[2];
            mlc_quant_report report = {rows, 2, 0, 0, 0, 0};
            CHECK_EQ(mlc_quantize(net, &d, &report), MLC_OK);
            CHECK_EQ(report.n, 3);
            CHECK_EQ(report.numbers, 64 * 96 + 96 * 32 + 32 * 10);
            CHECK_EQ(report.before, 4 * report.numbers);
            CHECK_STR(rows[0].name, "0.weight");
            CHECK_STR(rows[1].name, "2.weight");
            CHECK_EQ(rows[0].after, 64 * 96 * d.bits / 8 + (d.group ? 64 * 96 / 16 : 96 * 4));
            CHECK(rows[0].lo < 0 && rows[0].hi > 0 && rows[0].noise > (d.bits == 8 ? 35 : 15));
            mlc_tensor *y = mlc_forward(net, x), *want = mlc_forward(was, x);
            const double off = rms_apart(y, want);
            CHECK(off > 0 && off < WAYS[i].off);
            CHECK_OK(ctx);
            mlc_module_free(net);
            mlc_module_free(was);
        }
}

/* An activation, a residual and dropout in evaluation are what the same operations are alone. */
TEST(quant, layers_join_activations_and_take_bf16)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = in_sequence(ctx, 2, mlc_nn_linear(ctx, 40, 24), mlc_nn_relu(ctx));
    const mlc_quantize_desc d = way_desc(0);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(6, 40), 5, -1, 1);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    mlc_tensor *y = mlc_forward(net, x);
    mlc_tensor *alone = mlc_relu(mlc_forward(mlc_module_child(net, 0), x));
    CHECK(memcmp(mlc_f32(y), mlc_f32(alone), (size_t)mlc_numel(y) * 4) == 0);
    mlc_tensor *low = mlc_forward(net, mlc_cast(x, MLC_BF16));
    CHECK_EQ(low->dtype, MLC_BF16);
    CHECK(rms_apart(mlc_cast(low, MLC_F32), y) < 0.02);
    low = mlc_forward(net, mlc_cast(x, MLC_F16));
    CHECK_EQ(low->dtype, MLC_F16);
    CHECK(rms_apart(mlc_cast(low, MLC_F32), y) < 0.02);
    /* Rows that are no rows of memory. */
    mlc_tensor *turned = mlc_transpose(mlc_contiguous(mlc_transpose(x, 0, 1)), 0, 1);
    CHECK(memcmp(mlc_f32(mlc_forward(net, turned)), mlc_f32(y), (size_t)mlc_numel(y) * 4) == 0);
    CHECK_EQ(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 40)))->shape[0], 0);
    CHECK_OK(ctx);
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 41))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "must end in 40");
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F64, mlc_dims2(2, 40))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "quantized layers take f32 and bf16");
    mlc_f32(x)[3] = (float)NO_NUMBER;
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "x has a NaN or inf");
}

/* With a range for each row, a row is what it is alone; ranges of all rows make it another. */
TEST(quant, rows_of_a_batch_may_have_ranges_of_their_own)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int per_row = 0; per_row < 2; per_row++) {
            mlc_module *net = small_net(ctx);
            mlc_quantize_desc d = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(11, 64), 5, -1, 1);
            d.per_row = per_row != 0;
            for (int64_t i = 0; i < 64; i++)
                mlc_f32(x)[i] *= 20;
            CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
            mlc_tensor *y = mlc_forward(net, x);
            CHECK_OK(ctx);
            for (int64_t r = 0; r < 11; r++) {
                mlc_tensor *one_y = mlc_forward(net, mlc_contiguous(mlc_slice(x, 0, r, r + 1, 1)));
                const bool same = memcmp(mlc_f32(y) + 10 * r, mlc_f32(one_y), 40) == 0;
                if (per_row)
                    CHECK(same);
                else if (r)
                    CHECK(!same);
            }
            mlc_f32(x)[200] = (float)NO_NUMBER;
            CHECK(mlc_forward(net, x) == NULL);
            CHECK_ERROR(ctx, MLC_ERR_VALUE, "x has a NaN or inf");
            mlc_module_free(net);
        }
}

/* What the network was: values of all parameters, and its outputs. */
static void check_unchanged(mlc_module *net, mlc_tensor *x, mlc_tensor *y)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_F32);
    mlc_tensor *again = mlc_forward(net, x);
    CHECK_OK(ctx);
    CHECK(again && memcmp(mlc_f32(again), mlc_f32(y), (size_t)mlc_numel(y) * 4) == 0);
    int64_t n = 0;
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); n++)
        CHECK(!it.buffer && it.trainable);
    CHECK_EQ(n, 8);
}

TEST(quant, errors_leave_the_network_as_it_was)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = small_net(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 5, -1, 1);
    mlc_no_grad_begin(ctx);
    mlc_tensor *y = mlc_forward(net, x);
    const char *const none[] = {"0", "head.*"}, *const most[] = {"0", "2*"};
    mlc_quantize_desc d = way_desc(0);
    d.keep = none;
    d.n_keep = 2;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "keep 'head.*' matches no layer and no weight");
    check_unchanged(net, x, y);
    d = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    d.group = 128;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "groups of 128 do not divide a row of 0.weight, which has 64");
    check_unchanged(net, x, y);
    d.group = 33;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "it may be 32, 64, 96 or 128");
    d.group = 0;
    d.bits = 4;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "4 bits");
    CHECK_EQ(mlc_quantize(net, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_quantize_desc_make(mode)");
    d = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    d.per_row = true;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "per_tensor and per_row are of dynamic");
    mlc_tensor *last = mlc_module_param(net, "4.weight");
    mlc_f32(last)[9] = (float)NO_NUMBER;
    d = way_desc(0);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "4.weight has a NaN or inf");
    mlc_f32(last)[9] = 0;
    y = mlc_forward(net, x);
    mlc_optim *o = mlc_sgd(net, 0.1);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "an optimizer steps this network");
    mlc_optim_free(o);
    check_unchanged(net, x, y);
    mlc_module *relu = mlc_nn_relu(ctx);
    CHECK_EQ(mlc_quantize(relu, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no weight to quantize");
    /* Layers that are kept stay, the others are quantized once. */
    d.keep = most;
    d.n_keep = 2;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_F32);
    CHECK_EQ(mlc_module_param(net, "4.weight")->dtype, MLC_I8);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_OK(ctx);
    d.n_keep = 0;
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "4.weight is quantized already");
    CHECK_EQ(mlc_quantize(NULL, &d, NULL), MLC_ERR_ARG);
}

TEST(quant, nothing_of_a_quantized_network_is_trained)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = small_net(ctx);
    const mlc_quantize_desc d = way_desc(3);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 5, -1, 1);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK(mlc_sgd(net, 0.1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the module is quantized");
    mlc_tensor *y = mlc_mean(mlc_forward(net, x), mlc_dims0(), false);
    CHECK_EQ(mlc_backward(y), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    mlc_set_requires_grad(x, true);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "quantized layers have none");
    mlc_no_grad_begin(ctx);
    CHECK(mlc_forward(net, x) != NULL);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

TEST(quant, files_have_integers_and_scales)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 64), 5, -1, 1);
    mlc_module *floats = small_net(ctx);
    const box   plain = box_open("f32.safetensors"), whole = box_open("quant.safetensors");
    CHECK_EQ(mlc_save(floats, plain.path), MLC_OK);
    for (int i = 0; i < WAY_COUNT; i++) {
        const mlc_quantize_desc d = way_desc(i);
        mlc_module *net = mlc_module_clone(floats), *other = small_net(ctx);
        CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_quantize(other, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_save(net, whole.path), MLC_OK);
        mlc_tensor *y = mlc_forward(net, x), *before = mlc_forward(other, x);
        CHECK(memcmp(mlc_f32(y), mlc_f32(before), (size_t)mlc_numel(y) * 4) != 0);
        CHECK_EQ(mlc_load(other, whole.path), MLC_OK);
        mlc_tensor *z = mlc_forward(other, x), *w = mlc_module_param(other, "0.weight");
        CHECK(memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
        CHECK_EQ(w->dtype, d.bits == 8 ? MLC_I8 : MLC_U8);
        CHECK_EQ(w->shape[1], 64 * d.bits / 8);
        CHECK_EQ(mlc_module_param(other, "0.weight_scale")->dtype, d.group ? MLC_BF16 : MLC_F32);
        /* A clone has the same weights, and keeps them when the original goes. */
        mlc_module *clone = mlc_module_clone(net);
        mlc_module_free(net);
        z = mlc_forward(clone, x);
        CHECK(memcmp(mlc_f32(y), mlc_f32(z), (size_t)mlc_numel(y) * 4) == 0);
        CHECK_OK(ctx);
        mlc_load_desc load = mlc_load_desc_make();
        for (int cast = 0; cast < 2; cast++) {
            load.cast = cast != 0;
            CHECK_EQ(mlc_load_ex(other, plain.path, &load), MLC_ERR_DTYPE);
            CHECK_ERROR(ctx, MLC_ERR_DTYPE, "weights of integers do not take floats");
        }
        CHECK(mlc_load(floats, whole.path) != MLC_OK);
        mlc_error_clear(ctx);
        mlc_module_free(other);
        mlc_module_free(clone);
    }
    box_close(&plain);
    box_close(&whole);
}

static double score_of(void *user, mlc_module *net)
{
    mlc_tensor **xy = (mlc_tensor **)user;
    return rms_apart(mlc_forward(net, xy[0]), xy[1]);
}

TEST(quant, sensitivity_scores_each_weight_alone)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = small_net(ctx);
    mlc_no_grad_begin(ctx);
    mlc_tensor *xy[2] = {test_rand(ctx, MLC_F32, mlc_dims2(9, 64), 5, -1, 1), NULL};
    xy[1] = mlc_forward(net, xy[0]);
    const char *const keep[] = {"4"};
    mlc_quantize_desc d = way_desc(4);
    mlc_quant_row rows[4];
    mlc_quant_report report = {rows, 4, 0, 0, 0, 0};
    d.keep = keep;
    d.n_keep = 1;
    CHECK_EQ(mlc_quant_sensitivity(net, &d, score_of, xy, &report), MLC_OK);
    CHECK_EQ(report.n, 2);
    CHECK_STR(rows[0].name, "0.weight");
    CHECK_STR(rows[1].name, "2.weight");
    CHECK(rows[0].score > 0.005 && rows[1].score > 0.005);
    CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_F32);
    CHECK_EQ(mlc_quant_sensitivity(net, &d, NULL, xy, &report), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no score");
}

/* ---- recurrent layers, attention, embeddings, sketched layers, ties -------------------------- */

static mlc_module *golden_rnn(mlc_ctx *ctx, const golden_file *g, const char *kind)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind[0] == 'l' ? MLC_RNN_LSTM : MLC_RNN_GRU, 13, 24);
    d.layers = 2;
    mlc_module *m = mlc_nn_rnn_ex(ctx, &d);
    for (mlc_param_iter it = mlc_param_iter_make(m); mlc_param_next(&it);)
        CHECK_EQ(mlc_copy_into(it.tensor, golden_find(g, "%s.%s", kind, it.name)), MLC_OK);
    return m;
}

/* PyTorch's integers are ours; a step of an activation may differ where a sum is rounded twice. */
TEST(quant, dynamic_lstm_and_gru_are_those_of_pytorch)
{
    ONLY_ON_HOST();
    static const char *const kinds[] = {"lstm", "gru"};
    FOR_EACH_ISA(ctx) {
        const golden_file g = golden_open(ctx, "quant.safetensors");
        for (int k = 0; k < 2; k++) {
            mlc_module *m = golden_rnn(ctx, &g, kinds[k]);
            const mlc_quantize_desc d = dynamic_desc(MLC_QUANT_TORCH, true);
            mlc_tensor *x = golden_find(&g, "%s.x", kinds[k]), *y, *state[2];
            mlc_no_grad_begin(ctx);
            mlc_tensor *was = mlc_forward(m, x);
            CHECK_EQ(mlc_quantize(m, &d, NULL), MLC_OK);
            CHECK_EQ(mlc_rnn_forward(m, x, NULL, NULL, &y, state), MLC_OK);
            mlc_tensor *want = golden_find(&g, "%s.y", kinds[k]);
            for (int64_t i = 0; i < mlc_numel(want); i++)
                CHECK_NEAR((double)mlc_f32(y)[i], (double)mlc_f32(want)[i], 2e-3);
            CHECK(rms_apart(y, want) < 5e-4);
            CHECK(rms_apart(state[0], golden_find(&g, "%s.h", kinds[k])) < 5e-4);
            if (k == 0)
                CHECK(rms_apart(state[1], golden_find(&g, "lstm.c")) < 5e-4);
            CHECK(rms_apart(was, want) > 5e-4);            /* the floats are farther off */
            mlc_no_grad_end(ctx);
            CHECK_OK(ctx);
        }
    }
}

/* All kinds, directions, lengths and states, of weights only: near what floats give. */
TEST(quant, recurrent_layers_take_lengths_states_and_directions)
{
    ONLY_ON_HOST();
    for (int s = 0; s < 4 * 2 * 2 * 2; s++) {
        mlc_ctx *ctx = test_ctx();
        mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make((mlc_rnn_kind)(s % 4), 32, 64);
        d.bidirectional = s / 4 % 2 != 0;
        d.layers = 2;
        d.time_first = s / 8 % 2 != 0;
        d.no_bias = s % 5 == 1;
        mlc_module *m = mlc_nn_rnn_ex(ctx, &d), *q = mlc_module_clone(m);
        mlc_quantize_desc w = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        const int64_t n[3] = {5, 0, 3}, count = d.bidirectional ? 4 : 2;
        mlc_tensor *x = test_rand(ctx, MLC_F32, d.time_first ? mlc_dims3(5, 3, 32)
                                                             : mlc_dims3(3, 5, 32), 7, -1, 1);
        mlc_tensor *lengths = s / 16 ? mlc_from(ctx, MLC_I64, mlc_dims1(3), n) : NULL;
        mlc_tensor *state[2], *y[2], *after[2][2];
        for (int i = 0; i < 2; i++)
            state[i] = test_rand(ctx, MLC_F32, mlc_dims3(count, 3, 64), 9, -1, 1);
        mlc_no_grad_begin(ctx);
        CHECK_EQ(mlc_quantize(q, &w, NULL), MLC_OK);
        CHECK_EQ(mlc_rnn_forward(m, x, lengths, state, &y[0], after[0]), MLC_OK);
        CHECK_EQ(mlc_rnn_forward(q, x, lengths, state, &y[1], after[1]), MLC_OK);
        const double off = rms_apart(y[1], y[0]);
        CHECK(off > 0 && off < 0.02);
        CHECK(rms_apart(after[1][0], after[0][0]) < 0.02);
        if (d.kind == MLC_RNN_LSTM)
            CHECK(rms_apart(after[1][1], after[0][1]) < 0.02);
        for (int64_t i = 0; lengths && d.kind != MLC_RNN_RELU && i < mlc_numel(y[0]); i++)
            CHECK_EQ(mlc_f32(y[0])[i] == 0, mlc_f32(y[1])[i] == 0);
        CHECK_OK(ctx);
    }
}

/* Peepholes, projections and norms are no layers of integers. */
TEST(quant, other_recurrent_layers_stay_floats)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    const mlc_quantize_desc q = way_desc(0);
    for (int i = 0; i < 3; i++) {
        mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 4, 8);
        d.peepholes = i == 0;
        d.projection = i == 1 ? 3 : 0;
        d.layer_norm = i == 2;
        CHECK_EQ(mlc_quantize(mlc_nn_rnn_ex(ctx, &d), &q, NULL), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no weight to quantize");
    }
}

TEST(quant, attention_and_blocks_are_near_their_floats)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < WAY_COUNT; i++) {
            mlc_nn_transformer_desc t = mlc_nn_transformer_desc_make(64, 4);
            t.hidden = 128;
            t.norm_first = true;
            mlc_module *m = mlc_nn_transformer_decoder_layer(ctx, &t), *q = mlc_module_clone(m);
            const mlc_quantize_desc d = way_desc(i);
            mlc_quant_report report;
            memset(&report, 0, sizeof report);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 6, 64), 3, -1, 1);
            mlc_tensor *memory = test_rand(ctx, MLC_F32, mlc_dims3(2, 9, 64), 4, -1, 1);
            CHECK_EQ(mlc_eval_begin(m), MLC_OK);
            CHECK_EQ(mlc_eval_begin(q), MLC_OK);
            CHECK_EQ(mlc_quantize(q, &d, &report), MLC_OK);
            CHECK_EQ(report.n, 6);     /* two projections, two outputs, two linears            */
            mlc_tensor *y = mlc_transformer_forward(q, x, memory, NULL, NULL);
            const double off = rms_apart(y, mlc_transformer_forward(m, x, memory, NULL, NULL));
            CHECK(off > 0 && off < WAYS[i].off);
            CHECK_OK(ctx);
        }
}

TEST(quant, embeddings_give_rows_of_their_integers)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < WAY_COUNT; i++) {
        mlc_module *m = mlc_nn_embedding(ctx, 11, 64), *q = mlc_module_clone(m);
        const mlc_quantize_desc d = way_desc(i);
        static const int64_t at[6] = {0, 10, 3, 3, 7, 1}, bad[1] = {11};
        mlc_tensor *x = mlc_from(ctx, MLC_I64, mlc_dims2(2, 3), at);
        CHECK_EQ(mlc_quantize(q, &d, NULL), MLC_OK);
        mlc_tensor *y = mlc_forward(q, x);
        CHECK_EQ(y->ndim, 3);
        CHECK(rms_apart(y, mlc_forward(m, x)) < WAYS[i].off);
        CHECK_OK(ctx);
        CHECK(mlc_forward(q, mlc_from(ctx, MLC_I64, mlc_dims1(1), bad)) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "index 11 at position 0");
        CHECK(mlc_forward(q, mlc_zeros(ctx, MLC_F32, mlc_dims1(2))) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_DTYPE, "it must be i64");
    }
}

/* s2 is quantized as its transpose; a second call finds it. */
TEST(quant, sketched_layers_are_near_their_floats)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        mlc_nn_sklinear_desc k = mlc_nn_sklinear_desc_make(64, 96, 2, 16);
        k.store = i == 1 ? MLC_SKETCH_AS_BITS : MLC_SKETCH_FROM_SEED;
        k.u = i == 2 ? MLC_SKETCH_GAUSSIAN : MLC_SKETCH_SIGNS;
        mlc_module *net = in_sequence(ctx, 2, mlc_nn_sklinear_ex(ctx, &k), mlc_nn_relu(ctx));
        mlc_module *q = mlc_module_clone(net);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 64), 3, -1, 1);
        const mlc_quantize_desc d = way_desc(i == 2 ? 3 : 1);
        mlc_no_grad_begin(ctx);
        CHECK_EQ(mlc_quantize(q, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_module_param(q, "0.s1")->dtype, MLC_I8);
        CHECK_EQ(mlc_module_param(q, "0.s2")->shape[0], 96);
        const double off = rms_apart(mlc_forward(q, x), mlc_forward(net, x));
        CHECK(off > 0 && off < 0.02);
        CHECK_OK(ctx);
        CHECK_EQ(mlc_quantize(q, &d, NULL), MLC_ERR_STATE);
        mlc_error_clear(ctx);
        mlc_no_grad_end(ctx);
    }
}

static mlc_module *small_gpt(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(50, 24, 2, 64, 4);
    return mlc_nn_gpt(ctx, &d);
}

TEST(quant, a_tied_weight_is_quantized_once)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = small_gpt(ctx), *other = mlc_nn_linear(ctx, 64, 50);
    mlc_quantize_desc d = way_desc(3);
    mlc_quant_row rows[20];
    mlc_quant_report report = {rows, 20, 0, 0, 0, 0};
    CHECK_EQ(mlc_quantize(net, &d, &report), MLC_OK);
    for (int i = 0; i < report.n; i++)
        for (int k = 0; k < i; k++)
            CHECK(strcmp(rows[i].name, rows[k].name) != 0);
    CHECK(mlc_module_param(net, "head.weight") == mlc_module_param(net, "embed.weight"));
    CHECK_EQ(report.n, 2 + 2 * 4);
    mlc_module_free(net);
    /* Shared with a layer outside: refused. */
    net = small_gpt(ctx);
    CHECK_EQ(mlc_module_tie(other, "weight", mlc_module_param(net, "embed.weight")), MLC_OK);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "is shared (mlc_module_tie) with a layer that is not");
}

/* A layer that goes leaves the other its scale, and so does a network that a clone of a layer of it
 * outlives. */
TEST(quant, scales_are_tied_as_their_weights_are)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 32), 5, -1, 1);
    mlc_module *net = mlc_nn_sequential(ctx), *a = mlc_nn_linear(ctx, 32, 32);
    mlc_module *b = mlc_nn_linear(ctx, 32, 32);
    const mlc_quantize_desc d = way_desc(0);
    CHECK_EQ(mlc_module_tie(b, "weight", mlc_module_param(a, "weight")), MLC_OK);
    CHECK_EQ(mlc_module_add(net, a), MLC_OK);
    CHECK_EQ(mlc_module_add(net, b), MLC_OK);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK(mlc_module_param(b, "weight_scale") == mlc_module_param(a, "weight_scale"));
    mlc_tensor *want = mlc_forward(b, x);
    mlc_module *clone = mlc_module_clone(b);
    CHECK_EQ(mlc_module_build(clone), MLC_OK);
    mlc_module_free(a);
    mlc_tensor *left = mlc_forward(b, x);
    mlc_module_free(net);
    mlc_tensor *copied = mlc_forward(clone, x);
    CHECK(memcmp(mlc_f32(want), mlc_f32(left), 96 * 4) == 0);
    CHECK(memcmp(mlc_f32(want), mlc_f32(copied), 96 * 4) == 0);
    CHECK(mlc_module_param(clone, "weight_scale") != NULL);
    mlc_module_free(clone);
    CHECK_OK(ctx);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

/* The convolution of a golden, alone in a Sequential. */
static mlc_module *golden_conv(mlc_ctx *ctx, const golden_file *g, const char *name)
{
    mlc_tensor *w = golden_find(g, "conv.%s.weight", name);
    const bool        line = w->ndim == 3;
    mlc_nn_conv_desc  d = mlc_nn_conv_desc_make(w->ndim - 2, 0, w->shape[0], w->shape[2]);
    d.conv.groups = name[0] == 'g' ? 3 : 1;
    d.in = w->shape[1] * d.conv.groups;
    d.conv.padding = mlc_dims_all(line ? 4 : name[0] == 'g' ? 2 : 1);
    if (name[0] == 's') {
        d.kernel = mlc_dims2(3, 2);
        d.conv.stride = mlc_dims_all(2);
        d.conv.dilation = mlc_dims2(2, 1);
    }
    mlc_module *net = in_sequence(ctx, 1, mlc_nn_conv(ctx, &d));
    mlc_tensor *b = golden_find(g, "conv.%s.bias", name);
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.weight"), w), MLC_OK);
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.bias"), b), MLC_OK);
    return net;
}

TEST(quant, dynamic_convolutions_are_those_of_pytorch_and_onnxruntime)
{
    ONLY_ON_HOST();
    static const char *const names[] = {"plain", "stride", "groups", "line"};
    FOR_EACH_ISA(ctx) {
        const golden_file g = golden_open(ctx, "quant.safetensors");
        for (int i = 0; i < 8; i++) {
            const char *name = names[i / 2], *kind = i % 2 ? "onnx" : "torch";
            mlc_module *net = golden_conv(ctx, &g, name);
            const mlc_quantize_desc d =
                dynamic_desc(i % 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH, true);
            CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
            mlc_tensor *w = mlc_module_param(net, "0.weight");
            mlc_tensor *q = golden_find(&g, "conv.%s.%s.q", name, kind);
            CHECK_EQ(mlc_numel(w), mlc_numel(q));
            CHECK(memcmp(mlc_i8(w), mlc_i8(q), (size_t)mlc_numel(q)) == 0);
            mlc_tensor *y = mlc_contiguous(mlc_forward(net, golden_find(&g, "conv.%s.x", name)));
            mlc_tensor *want = golden_find(&g, "conv.%s.%s", name, kind);
            CHECK_OK(ctx);
            CHECK_EQ(mlc_numel(y), mlc_numel(want));
            /* PyTorch's are u8 of x's scale and zero. */
            const float *step =
                i % 2 ? NULL : mlc_f32(golden_find(&g, "conv.%s.torch.step", name));
            const double s = step ? (double)step[0] : 0, z = step ? (double)step[1] : 0;
            for (int64_t k = 0; k < mlc_numel(want); k++) {
                double v = (double)mlc_f32(y)[k];
                if (step)
                    v = v < -z * s ? -z * s : v > (255 - z) * s ? (255 - z) * s : v;
                CHECK_NEAR(v, (double)mlc_f32(want)[k], step ? 0.5001 * s : 4e-6);
            }
            mlc_module_free(net);
        }
    }
}

/* A residual block after its norm was folded: convolutions take an activation and an addend. */
static mlc_module *image_net(mlc_ctx *ctx)
{
    mlc_module *body = in_sequence(ctx, 3, mlc_nn_conv2d(ctx, 8, 8, 3, 1, 1), mlc_nn_relu(ctx),
                                   mlc_nn_conv2d(ctx, 8, 8, 3, 1, 1));
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, 8, 6, 3);
    d.padding_mode = MLC_PAD_REFLECT;
    d.conv.padding = mlc_dims_all(1);
    d.conv.act = MLC_ACT_SILU;
    return in_sequence(ctx, 5, mlc_nn_conv2d(ctx, 3, 8, 3, 2, 1), mlc_nn_relu(ctx),
                       mlc_nn_residual(ctx, body, NULL, true), mlc_nn_conv(ctx, &d),
                       mlc_nn_conv_transpose2d(ctx, 6, 2, 2, 2, 0));
}

TEST(quant, networks_of_images_are_near_their_floats)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < WAY_COUNT; i++) {
            mlc_module *net = image_net(ctx), *was = mlc_module_clone(net);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 11, 14), 5, -1, 1);
            const mlc_quantize_desc d = way_desc(i);
            mlc_quant_report report;
            memset(&report, 0, sizeof report);
            mlc_no_grad_begin(ctx);
            if (d.bits == 4) {         /* convolutions stay, and there is nothing else */
                CHECK_EQ(mlc_quantize(net, &d, &report), MLC_ERR_ARG);
                CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no weight to quantize");
                mlc_no_grad_end(ctx);
                mlc_module_free(net);
                mlc_module_free(was);
                continue;
            }
            CHECK_EQ(mlc_quantize(net, &d, &report), MLC_OK);
            CHECK_EQ(report.n, 4);
            CHECK_EQ(mlc_module_param(net, "0.weight")->dtype, MLC_I8);
            CHECK_EQ(mlc_module_param(net, "0.weight")->ndim, 4);
            CHECK_EQ(mlc_module_param(net, "4.weight")->dtype, MLC_F32);
            mlc_tensor *y = mlc_contiguous(mlc_forward(net, x));
            mlc_tensor *want = mlc_contiguous(mlc_forward(was, x));
            CHECK_OK(ctx);
            const double off = rms_apart(y, want);
            CHECK(off > 0 && off < 2 * WAYS[i].off);
            mlc_tensor *low = mlc_contiguous(mlc_forward(mlc_module_child(net, 0),
                                                         mlc_cast(x, MLC_BF16)));
            CHECK(low && low->dtype == MLC_BF16);
            want = mlc_contiguous(mlc_forward(mlc_module_child(was, 0), x));
            CHECK(rms_apart(mlc_cast(low, MLC_F32), want) < 0.03);
            y = mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims4(0, 3, 11, 14)));
            CHECK(y && y->shape[0] == 0);
            CHECK_OK(ctx);
            CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims4(1, 4, 11, 14))) == NULL);
            CHECK_ERROR(ctx, MLC_ERR_SHAPE, "has 4 channels");
            CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F64, mlc_dims4(1, 3, 11, 14))) == NULL);
            CHECK_ERROR(ctx, MLC_ERR_DTYPE, "quantized layers take f32 and bf16");
            if (d.mode == MLC_QUANT_DYNAMIC) {
                mlc_f32(x)[3] = (float)NO_NUMBER;
                CHECK(mlc_forward(net, x) == NULL);
                CHECK_ERROR(ctx, MLC_ERR_VALUE, "conv: x has a NaN or inf");
            }
            mlc_no_grad_end(ctx);
            mlc_module_free(net);
            mlc_module_free(was);
        }
}

/* Files and clones have the integers; the copy in the order of patches follows a load. */
TEST(quant, files_of_convolutions_have_integers_and_scales)
{
    ONLY_ON_HOST();
    mlc_ctx   *ctx = test_ctx();
    const box  file = box_open("quant_conv.safetensors");
    mlc_module *net = image_net(ctx), *other = image_net(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(1, 3, 8, 8), 5, -1, 1);
    const mlc_quantize_desc d = way_desc(0);
    CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
    CHECK_EQ(mlc_quantize(other, &d, NULL), MLC_OK);
    mlc_no_grad_begin(ctx);
    mlc_tensor *y = mlc_forward(net, x), *z = mlc_forward(other, x);
    const size_t bytes = (size_t)mlc_numel(y) * 4;
    CHECK(memcmp(mlc_f32(y), mlc_f32(z), bytes) != 0);
    CHECK_EQ(mlc_save(net, file.path), MLC_OK);
    CHECK_EQ(mlc_load(other, file.path), MLC_OK);
    z = mlc_forward(other, x);
    CHECK(memcmp(mlc_f32(y), mlc_f32(z), bytes) == 0);
    mlc_module *clone = mlc_module_clone(net);
    mlc_module_free(net);
    z = mlc_forward(clone, x);
    CHECK(memcmp(mlc_f32(y), mlc_f32(z), bytes) == 0);
    CHECK_EQ(mlc_quantize(clone, &d, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "is quantized already");
    mlc_no_grad_end(ctx);
    box_close(&file);
}

/* ---- generation ------------------------------------------------------------------------------ */

TEST(quant, generates_from_integers_of_weights)
{
    ONLY_ON_HOST();
    for (int i = 0; i < WAY_COUNT; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = small_gpt(ctx);
        const mlc_quantize_desc d = way_desc(i);
        const mlc_cache_desc    room = mlc_cache_desc_make(1, 24);
        mlc_generate_desc       g = mlc_generate_desc_make(12);
        int64_t                 text[24] = {3, 1, 4}, out[12];
        CHECK_EQ(mlc_quantize(net, &d, NULL), MLC_OK);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        mlc_cache *c = mlc_cache_create(net, &room);
        g.temperature = 0;
        g.out = out;
        mlc_tensor *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(1, 3), text);
        CHECK_EQ(mlc_generate(net, c, prompt, &g, NULL, NULL), MLC_OK);
        CHECK_OK(ctx);
        /* Activations in floats: rows do not depend on each other. */
        for (int k = 0; k < 12 && d.mode == MLC_QUANT_WEIGHTS; k++) {
            mlc_tensor *y = mlc_forward(net, mlc_from(ctx, MLC_I64, mlc_dims2(1, 3 + k), text));
            y = mlc_slice(y, 1, 2 + k, 3 + k, 1);
            CHECK_EQ(out[k], (int64_t)mlc_item(mlc_argmax(y, 2, false)));
            text[3 + k] = out[k];
        }
        CHECK_OK(ctx);
    }
}

/* Bytes of a network's weights in a file against f32. */
TEST(quant, bytes_are_those_promised)
{
    ONLY_ON_HOST();
    static const double most[WAY_COUNT] = {0.26, 0.26, 0.26, 0.27, 0.16};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < WAY_COUNT; i++) {
        mlc_module *net = in_sequence(ctx, 1, mlc_nn_linear(ctx, 512, 256));
        const mlc_quantize_desc d = way_desc(i);
        mlc_quant_report report;
        memset(&report, 0, sizeof report);
        CHECK_EQ(mlc_quantize(net, &d, &report), MLC_OK);
        CHECK((double)report.after <= most[i] * (double)report.before);
    }
}

/* ---- accuracy -------------------------------------------------------------------------------- */

TEST(quant, digits_lose_less_than_half_a_point)
{
    ONLY_ON_HOST();
    double off[WAY_COUNT] = {0};
    enum { SEEDS = 4 };
    for (int seed = 1; seed <= SEEDS; seed++) {
        mlc_ctx     *ctx = test_ctx();
        const digits d = digits_of(ctx);
        mlc_module  *net = in_sequence(ctx, 3, mlc_nn_linear(ctx, PIXELS, 96), mlc_nn_relu(ctx),
                                       mlc_nn_linear(ctx, 96, CLASSES));
        mlc_loader_desc rows = mlc_loader_desc_make(d.x[0], d.y[0], 32);
        mlc_fit_desc    f = mlc_fit_desc_make(NULL);
        rows.shuffle = true;
        rows.seed = (uint64_t)seed;
        f.epochs = 6;
        f.forward = mlc_fit_cross_entropy;
        mlc_optim *o = mlc_adamw(net, 5e-3);
        CHECK_EQ(mlc_fit(net, o, mlc_loader_create(ctx, &rows), &f, NULL), MLC_OK);
        mlc_optim_free(o);
        const double was = accuracy(net, &d);
        CHECK(was > 0.9);
        for (int i = 0; i < WAY_COUNT; i++) {
            const mlc_quantize_desc q = way_desc(i);
            mlc_module *clone = mlc_module_clone(net);
            CHECK_EQ(mlc_quantize(clone, &q, NULL), MLC_OK);
            off[i] += (was - accuracy(clone, &d)) / SEEDS;
            mlc_module_free(clone);
        }
        CHECK_OK(ctx);
    }
    for (int i = 0; i < WAY_COUNT; i++)
        CHECK(off[i] < 0.005);
}

/* ---- straight from a file -------------------------------------------------------------------- */

/* A file of 8 MB of f32, mapped, becomes integers: of the bits that a load and mlc_quantize make,
 * and with no second copy of them in memory, but of their scales. */
TEST(quant, a_mapped_file_goes_straight_into_integers)
{
    ONLY_ON_HOST();
    enum { WIDE = 1024, REST = 1 << 16 };
    tally              mem;
    const mlc_ctx_desc cd = tally_desc(&mem);
    box                b = box_open_fast("s.safetensors");
    mlc_ctx           *ctx = mlc_ctx_create(&cd);
    for (int form = 0; form < 4; form++) {
        mlc_quantize_desc d = mlc_quantize_desc_make(form < 2 ? MLC_QUANT_DYNAMIC
                                                             : MLC_QUANT_WEIGHTS);
        mlc_module *net[2];
        uint64_t    hash[2];
        if (form == 1) d.per_tensor = true;
        if (form == 3) d.bits = 4;
        for (int i = 0; i < 2; i++) {
            net[i] = in_sequence(ctx, 3, mlc_nn_linear(ctx, WIDE, WIDE), mlc_nn_relu(ctx),
                                 mlc_nn_linear(ctx, WIDE, WIDE));
            if (!i && !form) CHECK_EQ(mlc_save(net[0], b.path), MLC_OK);
            if (!i) CHECK_EQ(mlc_load(net[0], b.path), MLC_OK);
        }
        CHECK_EQ(mlc_quantize(net[0], &d, NULL), MLC_OK);
        mlc_memory_trim(ctx);
        const int64_t live = mem.live, ints = 2 * WIDE * WIDE * d.bits / 8;
        const int64_t scales = 2 * WIDE * (form < 2 ? 4 : WIDE / 32 * 2), biases = 2 * WIDE * 4;
        mem.peak = live;
        CHECK_EQ(mlc_load_mapped(net[1], b.path, NULL), MLC_OK);
        CHECK_EQ(mlc_quantize(net[1], &d, NULL), MLC_OK);
        CHECK(mem.peak - live < ints + biases + 2 * scales + REST);
        for (int i = 0; i < 2; i++) {
            hash[i] = hash_net(1, net[i]);
            mlc_no_grad_begin(ctx);
            mlc_tensor *y = mlc_forward(net[i], mlc_ones(ctx, MLC_F32, mlc_dims2(2, WIDE)));
            hash[i] = hash_tensor(hash[i], y);
            mlc_no_grad_end(ctx);
        }
        CHECK_EQ(hash[0], hash[1]);
        mlc_module_free(net[0]);
        mlc_module_free(net[1]);
    }
    CHECK_OK(ctx);
    tally_done(&mem, ctx);
    box_close(&b);
}
