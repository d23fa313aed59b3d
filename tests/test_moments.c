/* test_moments.c -- tests of sections IMPL.KERNELS.MOMENTS and IMPL.OPTIM.MOMENTS: states in bf16
 * and in codes of 8 bits
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

#include <float.h>
#ifndef _WIN32
#include <sys/mman.h>
#include <unistd.h>
#endif

/* What is computed here is rounded as in the library: Clang would make an fma of a sum of products,
 * where there is one. */
#ifdef __clang__
#  pragma STDC FP_CONTRACT OFF
#endif

enum { BLOCK = 256 };

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- the map, as bitsandbytes' create_dynamic_map(signed, 7, 8) makes it --------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void dynamic_map(bool with_sign, double map[256])
{
    int n = 0;
    map[n++] = 0;
    map[n++] = 1;
    for (int e = 0; e < 7; e++) {
        const int items = 1 << (with_sign ? e : e + 1);
        for (int j = 0; j < items; j++) {
            const double low = 0.1 + 0.9 * j / items, high = 0.1 + 0.9 * (j + 1) / items;
            const double v = (low + high) / 2 * pow(10, e - 6);
            map[n++] = v;
            if (with_sign)
                map[n++] = -v;
        }
    }
    CHECK_EQ(n, 256);
    qsort(map, 256, sizeof *map, by_value);
}

/* ---- one run of the kernel ------------------------------------------------------------------- */

enum { MOST = 5000, BLOCKS = (MOST + BLOCK - 1) / BLOCK };

typedef struct run {
    float    p[MOST], g[MOST];
    uint8_t  m[MOST], v[MOST];
    float    m_scale[BLOCKS], v_scale[BLOCKS];
    struct mlc_step_state step;
    struct mlc_k_optim    a;
} run;

static void run_begin(run *r, mlc_rule rule, int64_t n)
{
    memset(r, 0, sizeof *r);
    r->step.lr = r->step.bias1 = r->step.bias2 = r->step.grad_scale = r->step.ratio = 1;
    r->a.rule = rule;
    r->a.cpu = mlc_cpu_moments(rule);
    r->a.n_state = rule == MLC_RULE_ADAM ? 2 : 1;
    r->a.n = n;
    r->a.p = r->p;
    r->a.g = r->g;
    r->a.state[0] = r->m;
    r->a.state[1] = r->v;
    r->a.state_dtype = MLC_U8;
    r->a.scale[0] = r->m_scale;
    r->a.scale[1] = r->v_scale;
    r->a.step = &r->step;
}

/* Adam that leaves moments as they are: beta 1. p becomes -m / (sqrt v + eps). */
static void run_still(run *r, double eps)
{
    r->a.coefs[0] = r->a.coefs[1] = r->a.coefs[3] = 1;
    r->a.coefs[2] = eps;
}

TEST(moments, codes_stand_for_the_dynamic_map_and_return)
{
    static run r;
    double     map[2][256];
    for (int k = 0; k < 2; k++) dynamic_map(k == 0, map[k]);
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < 2; k++) {
            run_begin(&r, MLC_RULE_ADAM, 256);
            run_still(&r, k == 0 ? 1.0 : 0.0);
            for (int i = 0; i < 256; i++) {
                r.m[i] = (uint8_t)(k == 0 ? i : 255);
                r.v[i] = (uint8_t)(k == 0 ? 0 : i);
            }
            r.m_scale[0] = k == 0 ? 0.75f : 1;
            r.v_scale[0] = k == 0 ? 0 : 0.375f;
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &r.a), MLC_OK);
            for (int i = 0; i < 256; i++) {
                const double x = k == 0 ? -(double)r.p[i] / 0.75
                                        : 1 / ((double)r.p[i] * (double)r.p[i]) / 0.375;
                CHECK_NEAR(x, map[k][i], 2e-6 * fabs(map[k][i]));
                CHECK_EQ(k == 0 ? r.m[i] : r.v[i], i);
            }
            CHECK(r.m_scale[0] == (k == 0 ? 0.75f : 1));
            CHECK(r.v_scale[0] == (k == 0 ? 0.0f : 0.375f));
        }
    }
}

/* ---- a trace: decoded, stepped, encoded again ------------------------------------------------ */

/* What codes stand for: of the first moment read out of the kernel, p = -m / (0 + 1); of the second
 * by the formula, as p shows its root alone. */
static void read_map(const mlc_kernels *k, float map[2][256])
{
    static run r;
    run_begin(&r, MLC_RULE_ADAM, 256);
    run_still(&r, 1);
    for (int i = 0; i < 256; i++) r.m[i] = (uint8_t)i;
    r.m_scale[0] = 1;
    CHECK_EQ(k->optim(NULL, &r.a), MLC_OK);
    for (int i = 0; i < 256; i++) map[0][i] = -r.p[i];
    map[1][0] = 0;
    map[1][255] = 1;
    for (int i = 1; i < 255; i++) {
        int e = 0;
        while (i + 1 >= 4 << e) e++;                       /* decade e: 2^(e+1) numbers        */
        const double q = (double)(2 << e), ten = pow(10, e - 6);
        const float  times = (float)(0.9 * ten / q), less = (float)(0.8 * ten - 1.35 * ten / q);
        map[1][i] = (float)i * times - less;
    }
}

/* Is code the nearest of the map to x / scale, to rounding? Not 0 for what is over 0, with v. */
static bool nearest(const float map[256], uint8_t code, float x, float scale, bool v)
{
    const double r = scale > 0 ? (double)x / (double)scale : 0;
    double       best = 9;
    if (v && x > 0 && scale > 0 && code == 0) return false;
    for (int i = v && x > 0 && scale > 0; i < 256; i++) best = fmin(best, fabs(r - (double)map[i]));
    return fabs(r - (double)map[code]) <= best + 3e-6 * fabs(r);
}

typedef struct plain { float p[MOST], m[MOST], v[MOST]; } plain;

/* AdamW's step in f32, as the library rounds it. */
static void plain_step(plain *x, const run *r, int64_t n)
{
    const struct mlc_step_state *s = &r->step;
    const double *h = r->a.coefs;
    const float b1 = (float)h[0], c1 = (float)(1 - h[0]), b2 = (float)h[1], c2 = (float)(1 - h[1]);
    const float shrink = (float)(1 - s->lr * s->weight_decay), scale = (float)s->grad_scale;
    const float rate = (float)(s->lr / s->bias1), root = (float)(1 / sqrt(s->bias2));
    for (int64_t i = 0; i < n; i++) {
        const float d = scale * r->g[i];
        x->m[i] = b1 * x->m[i] + c1 * d;
        x->v[i] = b2 * x->v[i] + c2 * d * d;
        x->p[i] = shrink * x->p[i] - rate * (x->m[i] / (sqrtf(x->v[i]) * root + (float)h[2]));
    }
}

static void plain_decode(float *to, const uint8_t *codes, const float *scale, const float map[256],
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = map[codes[i]] * scale[i / BLOCK];
}

static bool encoded(const float *x, const uint8_t *codes, const float *scale, const float map[256],
                    int64_t n, bool v)
{
    for (int64_t from = 0; from < n; from += BLOCK) {
        float most = 0;
        for (int64_t i = from; i < n && i < from + BLOCK; i++) most = fmaxf(most, fabsf(x[i]));
        if (!CHECK(scale[from / BLOCK] == most)) return false;
        for (int64_t i = from; i < n && i < from + BLOCK; i++)
            if (!nearest(map, codes[i], x[i], most, v)) {
                printf("  %s: %.9g of %.9g is code %d\n", v ? "v" : "m", (double)x[i],
                       (double)most, codes[i]);
                return CHECK(false);
            }
    }
    return CHECK(true);
}

static void some_gradients(run *r, int64_t n, int turn)
{
    for (int64_t i = 0; i < n; i++) {
        const double size = pow(10, test_random(7, i, -9, 1));
        r->g[i] = i % 13 == 0 ? 0 : (float)(size * test_random((uint64_t)turn, i, -1, 1));
    }
}

TEST(moments, steps_are_those_of_decoded_states_on_every_level)
{
    static run      r, want[6];
    static plain    x;
    static float    map[2][256];
    const int64_t   n = 4321;
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        read_map(k, map);
        run_begin(&r, MLC_RULE_ADAM, n);
        const double coefs[4] = {0.9, 0.99, 1e-8, 1};
        memcpy(r.a.coefs, coefs, sizeof coefs);
        for (int64_t i = 0; i < n; i++) x.p[i] = r.p[i] = (float)test_random(3, i, -1, 1);
        for (int turn = 1; turn <= 5; turn++) {
            r.step.lr = 0.01;
            r.step.weight_decay = 0.1;
            r.step.grad_scale = 0.5;
            r.step.bias1 = 1 - pow(0.9, turn);
            r.step.bias2 = 1 - pow(0.99, turn);
            some_gradients(&r, n, turn);
            plain_decode(x.m, r.m, r.m_scale, map[0], n);
            plain_decode(x.v, r.v, r.v_scale, map[1], n);
            plain_step(&x, &r, n);
            CHECK_EQ(k->optim(NULL, &r.a), MLC_OK);
            CHECK(memcmp(r.p, x.p, (size_t)n * sizeof *r.p) == 0);
            encoded(x.m, r.m, r.m_scale, map[0], n, false);
            encoded(x.v, r.v, r.v_scale, map[1], n, true);
            if (isa == MLC_ISA_SCALAR) want[turn] = r;
            CHECK(memcmp(r.m, want[turn].m, sizeof r.m) == 0);
            CHECK(memcmp(r.v, want[turn].v, sizeof r.v) == 0);
            CHECK(memcmp(r.m_scale, want[turn].m_scale, sizeof r.m_scale) == 0);
            CHECK(memcmp(r.v_scale, want[turn].v_scale, sizeof r.v_scale) == 0);
        }
    }
}

/* ---- odd sizes, at the end of a page --------------------------------------------------------- */

enum { ROOM = 1 << 16, ARRAYS = 6 };

static void *at_page_end(int which, size_t bytes)
{
    static char *room[ARRAYS];
    if (room[which] == NULL) {
#ifdef _WIN32
        room[which] = (char *)malloc(ROOM);
#else
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *p = (char *)mmap(NULL, ROOM + page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + ROOM, page, PROT_NONE) != 0) abort();
        room[which] = p;
#endif
        if (room[which] == NULL) abort();
    }
    return room[which] + ROOM - bytes;
}

static uint64_t odd_size(const mlc_kernels *k, mlc_rule rule, mlc_dtype dtype, mlc_dtype states,
                         int64_t n)
{
    static run   r;
    const size_t size = mlc_dtype_bytes(dtype), each = mlc_dtype_bytes(states), count = (size_t)n;
    const size_t scales = (count + BLOCK - 1) / BLOCK * sizeof(float);
    uint64_t     h = HASH_SEED;
    run_begin(&r, rule, n);
    r.a.dtype = dtype;
    r.a.state_dtype = states;
    r.a.coefs[0] = 0.9, r.a.coefs[1] = 0.99, r.a.coefs[2] = 1e-8, r.a.coefs[3] = 1;
    r.a.p = at_page_end(0, count * size);
    r.a.g = at_page_end(1, count * size);
    for (int s = 0; s < 2; s++) {
        r.a.state[s] = at_page_end(2 + s, count * each);
        memset(r.a.state[s], 0, count * each);
        r.a.scale[s] = NULL;
        if (states != MLC_U8) continue;
        r.a.scale[s] = (float *)at_page_end(4 + s, scales);
        memset(r.a.scale[s], 0, scales);
    }
    for (int i = 0; i < 10; i++) r.step.k[i] = 0.1 + 0.05 * i;
    for (int64_t i = 0; i < n; i++) test_put(r.a.p, dtype, i, test_random(5, i, -1, 1));
    for (int turn = 0; turn < 3; turn++) {
        r.step.stream = (uint64_t)turn;
        for (int64_t i = 0; i < n; i++)
            test_put((void *)(uintptr_t)r.a.g, dtype, i, test_random(6, turn * n + i, -1, 1));
        if (!CHECK_EQ(k->optim(NULL, &r.a), MLC_OK)) return 0;
    }
    h = hash_bytes(h, r.a.p, count * size);
    for (int s = 0; s < r.a.n_state; s++) {
        h = hash_bytes(h, r.a.state[s], count * each);
        if (states == MLC_U8) h = hash_bytes(h, r.a.scale[s], scales);
    }
    return h;
}

TEST(moments, any_size_makes_the_same_bits_on_every_level_and_stays_within)
{
    static const mlc_dtype states[] = {MLC_U8, MLC_BF16};
    const int64_t          stride = test_stride(7);
    FOR_EACH_LEVEL(isa) {
        bool same = true;
        for (int64_t n = 1; n <= 600; n += stride)
            for (int bits = 0; bits < 8 && same; bits++) {
                const mlc_rule  rule = bits & 1 ? MLC_RULE_ADAM : MLC_RULE_LION;
                const mlc_dtype dtype = bits & 2 ? MLC_BF16 : MLC_F32;
                same = odd_size(mlc_cpu_kernels((mlc_isa)isa), rule, dtype, states[bits >> 2], n) ==
                       odd_size(mlc_cpu_kernels(MLC_ISA_SCALAR), rule, dtype, states[bits >> 2], n);
                if (!CHECK(same)) printf("  n %" PRId64 ", bits %d\n", n, bits);
            }
    }
}

TEST(moments, a_kernel_refuses_what_it_has_no_text_for)
{
    static run r;
    const mlc_kernels *k = mlc_cpu_kernels(MLC_ISA_SCALAR);
    run_begin(&r, MLC_RULE_ADAM, 8);
    r.a.cpu = mlc_cpu_rule(MLC_RULE_ADAM);                 /* of f32 states                    */
    CHECK_EQ(k->optim(NULL, &r.a), MLC_ERR_UNSUPPORTED);
    run_begin(&r, MLC_RULE_ADAM, 8);
    r.a.dtype = MLC_F64;
    CHECK_EQ(k->optim(NULL, &r.a), MLC_ERR_UNSUPPORTED);
    CHECK(mlc_cpu_moments(MLC_RULE_SGD) == NULL);
}

TEST(moments, a_block_with_an_element_that_is_not_finite_is_nan_and_no_other)
{
    static run   r;
    const double bad[3] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    FOR_EACH_LEVEL(isa)
        for (int which = 0; which < 3; which++) {
            run_begin(&r, MLC_RULE_ADAM, 600);
            r.a.coefs[1] = 0.99, r.a.coefs[2] = 1e-8;
            for (int i = 0; i < 600; i++) r.g[i] = 1;
            r.g[300] = (float)bad[which];
            for (int turn = 0; turn < 2; turn++)
                CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &r.a), MLC_OK);
            for (int i = 0; i < 600; i++) CHECK(isnan(r.p[i]) == (i / BLOCK == 1));
            CHECK(isnan(r.m_scale[1]) && r.m_scale[0] == 1 && r.m_scale[2] == 1);
        }
}

/* Decays of a rule, and eps 1e-8; Lion's as the optimizer makes them for its kernel.             */
static void run_betas(run *r, double beta1, double beta2)
{
    const double k[7] = {1, 0, beta1, 1 - beta1, beta2, 1 - beta2, 1};
    memcpy(r->step.k, k, sizeof k);
    r->a.coefs[0] = beta1, r->a.coefs[1] = beta2, r->a.coefs[2] = 1e-8, r->a.coefs[3] = 1;
}

/* The element keeps moments of a gradient of 1.8e19, and elements of other blocks step on.      */
TEST(moments, a_finite_gradient_makes_no_nan_in_its_block)
{
    static run      r;
    const float     high[6] = {1e19f, -1e21f, 1e30f, -1e38f, FLT_MAX, -FLT_MAX};
    const mlc_dtype states[2] = {MLC_U8, MLC_BF16};
    static uint16_t half[2][600];
    for (int w = 0; w < 24; w++) FOR_EACH_LEVEL(isa) {
        const float    g = high[w % 6];
        const mlc_rule rule = w / 6 % 2 ? MLC_RULE_LION : MLC_RULE_ADAM;
        run_begin(&r, rule, 600);
        if ((r.a.state_dtype = states[w / 12]) == MLC_BF16) {
            memset(half, 0, sizeof half);
            for (int k = 0; k < 2; k++) r.a.state[k] = half[k], r.a.scale[k] = NULL;
        }
        run_betas(&r, 0.5, 0.75);
        for (int i = 0; i < 600; i++) r.g[i] = 1;
        for (int turn = 0; turn < 40; turn++) {
            r.g[300] = turn < 10 ? g : 1;
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &r.a), MLC_OK);
        }
        bool fine = true;
        for (int i = 0; i < 600; i++) fine = fine && fabsf(r.p[i]) < 60;
        if (!CHECK(fine)) printf("  case %d, p %g %g\n", w, (double)r.p[300], (double)r.p[301]);
        CHECK(r.p[0] <= -30 && r.p[599] <= -30);           /* of other blocks                  */
    }
}

TEST(moments, a_scale_of_2_to_126_and_more_has_the_codes_of_any_scale)
{
    static run r;
    for (int rule = 0; rule < 2; rule++) FOR_EACH_LEVEL(isa) {
        uint8_t want[2][256];
        for (int turn = 0; turn < 2; turn++) {
            run_begin(&r, rule ? MLC_RULE_LION : MLC_RULE_ADAM, 256);
            const float most = turn ? 3e38f : 3e38f / 64, up = rule ? 1 : sqrtf(most / 3);
            run_betas(&r, 0, 0);
            for (int i = 0; i < 256; i++) {
                const float x = (float)test_random(9, i, rule ? -1 : 0.01, 1);
                r.g[i] = (i ? x : 1) * (rule ? most : up);
            }
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &r.a), MLC_OK);
            for (int k = 0; k < r.a.n_state; k++) {
                const uint8_t *codes = k ? r.v : r.m;
                if (turn) CHECK(memcmp(want[k], codes, 256) == 0);
                memcpy(want[k], codes, 256);
            }
            CHECK(turn == 0 || (rule ? r.m_scale : r.v_scale)[0] > (rule ? 2.9e38f : 0.9e38f));
        }
    }
}

TEST(moments, what_is_below_normal_numbers_is_0_and_small_second_moments_are_not)
{
    static run r;
    FOR_EACH_LEVEL(isa) {
        run_begin(&r, MLC_RULE_ADAM, 512);
        r.a.coefs[2] = 1e-8;
        for (int i = 0; i < 256; i++) r.g[i] = i ? 1e-12f : 1;
        for (int i = 256; i < 512; i++) r.g[i] = float_of(0x00700000u);
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &r.a), MLC_OK);
        for (int i = 1; i < 256; i++) CHECK(r.v[i] == 1 && r.m[i] == 127);
        CHECK(r.v[0] == 255 && r.m[0] == 255 && r.v_scale[0] == 1);
        for (int i = 256; i < 512; i++) CHECK(r.v[i] == 0 && r.m[i] == 127);
        CHECK(r.m_scale[1] == 0 && r.v_scale[1] == 0);
    }
}

/* ---- bf16 ----------------------------------------------------------------------------------- */

TEST(moments, bf16_states_are_right_in_mean_and_have_streams_of_their_own)
{
    enum { N = 4096 };
    static uint16_t m[N], v[N];
    static run      r;
    const float     x = 1.0f + 0.3f / 128;                 /* 0.3 of the way to the next bf16  */
    int64_t         up[2] = {0, 0}, both = 0;
    run_begin(&r, MLC_RULE_ADAM, N);
    r.a.state_dtype = MLC_BF16;
    r.a.state[0] = m, r.a.state[1] = v;
    r.a.scale[0] = r.a.scale[1] = NULL;
    r.a.coefs[2] = 1e-8;                                   /* betas 0: states become g, g g    */
    for (int turn = 0; turn < 16; turn++) {
        r.step.stream = (uint64_t)turn;
        for (int i = 0; i < N; i++) r.g[i] = turn % 2 ? x : sqrtf(x);
        CHECK_EQ(mlc_cpu_kernels(test_isa_top())->optim(NULL, &r.a), MLC_OK);
        for (int i = 0; i < N; i++) {
            const bool odd = turn % 2 != 0;
            const uint16_t got = odd ? m[i] : v[i];
            if (got != 0x3f80 && got != 0x3f81) CHECK_EQ(got, 0x3f80);
            up[odd] += got == 0x3f81;
        }
        for (int i = 0; i < N && turn == 1; i++) both += (m[i] & 1) == (v[i] & 1);
    }
    CHECK_NEAR((double)up[1] / (8 * N), 0.3, 0.012);       /* five deviations                  */
    CHECK_NEAR((double)up[0] / (8 * N), 0.3, 0.012);
    CHECK(both < N);
}

/* ---- an optimizer --------------------------------------------------------------------------- */

typedef enum kind { ADAMW_BF16, ADAMW_8BIT, ADAM_8BIT, LION_BF16, LION_8BIT, KINDS } kind;

static mlc_optim *make(mlc_module *m, kind of)
{
    const bool eight = of == ADAMW_8BIT || of == ADAM_8BIT || of == LION_8BIT;
    const mlc_moments moments = eight ? MLC_MOMENTS_8BIT : MLC_MOMENTS_BF16;
    if (of == LION_BF16 || of == LION_8BIT) {
        mlc_lion_desc d = mlc_lion_desc_make(0.003);
        d.weight_decay = 0.1;
        d.moments = moments;
        return mlc_lion_ex(m, &d);
    }
    mlc_adam_desc d = of == ADAM_8BIT ? mlc_adam_desc_make(0.01) : mlc_adamw_desc_make(0.01);
    d.moments = moments;
    return of == ADAM_8BIT ? mlc_adam_ex(m, &d) : mlc_adamw_ex(m, &d);
}

/* Parameters of 4,800, 80, 5,040 and 63 elements: two have codes, two keep f32. */
static mlc_module *net_of(mlc_ctx *ctx, mlc_dtype dtype)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 60, 80));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 80, 63));
    mlc_module_build(net);
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    return net;
}

static mlc_status train(mlc_module *net, mlc_optim *opt, mlc_dtype dtype, int step)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(8, 60), (uint64_t)step, -1, 1);
    mlc_tensor *y = mlc_forward(net, x);
    const mlc_status st = mlc_optim_minimize(opt, mlc_mean(mlc_mul(y, y), mlc_dims0(), false));
    mlc_scope_end(ctx);
    return st;
}

static uint64_t hash_states(mlc_optim *opt)
{
    uint64_t h = HASH_SEED;
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it))
        h = hash_tensor(hash_bytes(h, it.name, strlen(it.name)), it.tensor);
    return h;
}

static uint64_t hash_of(mlc_module *net, mlc_optim *opt)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    const uint64_t h = hash_net(hash_states(opt), net);
    mlc_scope_end(ctx);
    return h;
}

static mlc_tensor *state(mlc_optim *opt, const char *name)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&it))
        if (strcmp(it.name, name) == 0) return it.tensor;
    return NULL;
}

static uint64_t trained(kind of, mlc_dtype dtype, int32_t threads, mlc_isa isa)
{
    mlc_ctx_desc d = test_desc();
    d.threads = threads;
    if (test_on_host()) d.isa = isa;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = net_of(ctx, dtype);
    mlc_optim  *opt = make(net, of);
    uint64_t    h = 0;
    for (int step = 0; step < 4; step++) CHECK_EQ(train(net, opt, dtype, step), MLC_OK);
    h = hash_of(net, opt);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return h;
}

TEST(moments, bits_do_not_depend_on_threads)
{
    for (int of = 0; of < KINDS; of++)
        for (int low = 0; low < 2; low++) {
            const mlc_dtype dtype = low ? MLC_BF16 : MLC_F32;
            const uint64_t  want = trained((kind)of, dtype, 1, test_isa_top());
            for (int32_t threads = 2; threads <= 4; threads++)
                CHECK(trained((kind)of, dtype, threads, test_isa_top()) == want);
        }
}

/* way 1: a group; way 2: steps inside backward are asked for. A bias is frozen for a step. */
static uint64_t trained_in_a_way(kind of, int way)
{
    const mlc_ctx_desc d = test_desc();
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = net_of(ctx, MLC_F32);
    mlc_optim  *opt = make(net, of);
    CHECK_EQ(train(net, opt, MLC_F32, 0), MLC_OK);
    if (way == 1) CHECK_EQ(mlc_optim_group(opt, "2.bias", NULL), MLC_OK);
    if (way == 2) CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    for (int step = 1; step < 4; step++) {
        CHECK_EQ(mlc_module_freeze(net, "2.bias", step == 2), MLC_OK);
        CHECK_EQ(train(net, opt, MLC_F32, step), MLC_OK);
    }
    const uint64_t h = hash_of(net, opt);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return h;
}

TEST(moments, bits_do_not_depend_on_groups_and_in_backward)
{
    for (int of = 0; of < KINDS; of++) {
        const uint64_t want = trained_in_a_way((kind)of, 0);
        CHECK(trained_in_a_way((kind)of, 1) == want);
        CHECK(trained_in_a_way((kind)of, 2) == want);
    }
}

TEST(moments, states_follow_a_layout_and_averages_do_not_mind)
{
    for (int of = 0; of < KINDS; of++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = net_of(ctx, MLC_F32);
        mlc_optim  *opt = make(net, (kind)of);
        CHECK(mlc_ema(opt, 0) != NULL);
        for (int step = 0; step < 3; step++) CHECK_EQ(train(net, opt, MLC_F32, step), MLC_OK);
        mlc_scope_begin(ctx);
        const uint64_t was = hash_states(opt);
        CHECK(hash_tensor(0, state(opt, "average.0.2.weight")) ==
              hash_tensor(0, mlc_module_param(net, "2.weight")));
        CHECK(hash_tensor(0, state(opt, "average.0.2.bias")) ==
              hash_tensor(0, mlc_module_param(net, "2.bias")));
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        CHECK(hash_states(opt) == was);
        CHECK_EQ(mlc_optim_group(opt, "*.bias", NULL), MLC_OK);
        CHECK(hash_states(opt) == was);
        mlc_scope_end(ctx);
        CHECK_EQ(train(net, opt, MLC_F32, 3), MLC_OK);
        CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
        CHECK_EQ(train(net, opt, MLC_BF16, 4), MLC_OK);
        CHECK_EQ(mlc_optim_lookahead(opt, 2, 0.5), MLC_OK);
        CHECK_EQ(train(net, opt, MLC_BF16, 5), MLC_OK);
        CHECK_OK(ctx);
        mlc_module_to(net, MLC_F64);
        CHECK_EQ(train(net, opt, MLC_F64, 6), MLC_ERR_DTYPE);
        CHECK_HAS(mlc_error(ctx), "parameter 'weight' is f64, of which states are not kept in 16");
        mlc_error_clear(ctx);
    }
}

/* A parameter of 16 elements: 64 bytes in f32, 32 and as many of padding in bf16. Steps run across
 * padding, of states and of values, and it stays zero. */
TEST(moments, states_of_few_elements_follow_another_dtype_and_padding_stays_zero)
{
    for (int of = 0; of < KINDS; of++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlc_nn_sequential(ctx);
        for (int i = 0; i < 3; i++) mlc_module_add(net, mlc_nn_linear(ctx, 4, 4));
        mlc_optim *opt = make(net, (kind)of);
        for (int step = 0; step < 6; step++) {
            const mlc_dtype dtype = step % 4 < 2 ? MLC_F32 : MLC_BF16;
            mlc_scope_begin(ctx);
            const uint64_t was = hash_states(opt);
            CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
            CHECK(hash_states(opt) == was);
            mlc_tensor *y = mlc_forward(net, mlc_ones(ctx, dtype, mlc_dims2(3, 4)));
            CHECK_EQ(mlc_optim_minimize(opt, mlc_mean_all(mlc_mul(y, y))), MLC_OK);
            mlc_tensor *w = mlc_module_param(net, "1.weight");
            for (int i = 16; i < 32 && dtype == MLC_BF16 && test_on_host(); i++)
                CHECK_EQ(mlc_bf16(w)[i], 0);
            mlc_scope_end(ctx);
        }
        CHECK_OK(ctx);
    }
}

/* Packs of a weight that another optimizer has changed are not taken for those of its new values:
 * a pass that writes none, of a mean, leaves no mark for the step of small states after it. */
TEST(moments, a_step_after_a_mean_of_another_optimizer_leaves_no_packs_of_old_values)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 256, 256);
    mlc_optim  *mean = mlc_schedule_free_sgd(net, 0.5), *opt = make(net, ADAMW_8BIT);
    for (int step = 0; step < 2; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(64, 256), 3, -1, 1);
        mlc_autocast_begin(ctx, MLC_BF16);
        mlc_tensor *y = mlc_forward(net, x);
        mlc_autocast_end(ctx);
        CHECK_EQ(mlc_backward(mlc_mean_all(mlc_mul(y, y))), MLC_OK);
        if (step) CHECK_EQ(mlc_optim_mean(mean, true), MLC_OK);
        CHECK_EQ(mlc_optim_step(step ? opt : mean), MLC_OK);
        mlc_scope_end(ctx);
    }
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(64, 256), 3, -1, 1);
    mlc_module *copy = mlc_module_clone(net);
    mlc_autocast_begin(ctx, MLC_BF16);
    CHECK(hash_tensor(0, mlc_forward(net, x)) == hash_tensor(0, mlc_forward(copy, x)));
    mlc_autocast_end(ctx);
    mlc_scope_end(ctx);
    CHECK_OK(ctx);
}

TEST(moments, a_skipped_step_leaves_all_bits)
{
    for (int of = 0; of < KINDS; of++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = net_of(ctx, MLC_F32);
        mlc_optim  *opt = make(net, (kind)of);
        mlc_clip_desc clip = mlc_clip_desc_make();
        mlc_scaler_desc s = mlc_scaler_desc_make();
        clip.norm = 0.1;
        s.init = 4;
        CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
        CHECK_EQ(mlc_optim_scaler(opt, &s), MLC_OK);
        for (int step = 0; step < 2; step++) CHECK_EQ(train(net, opt, MLC_F32, step), MLC_OK);
        mlc_scope_begin(ctx);
        const uint64_t was = hash_tensor(hash_tensor(0, state(opt, "state.0.weight.exp_avg")),
                                         state(opt, "state.0.bias.exp_avg"));
        mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(8, 60), 9, -1, 1));
        mlc_tensor *loss = mlc_mul_scalar(mlc_sum(y, mlc_dims0(), false), INF);
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK(hash_tensor(hash_tensor(0, state(opt, "state.0.weight.exp_avg")),
                          state(opt, "state.0.bias.exp_avg")) == was);
        mlc_scope_end(ctx);
        CHECK_EQ(mlc_optim_steps(opt), 2);
        CHECK_EQ(mlc_optim_scaler_state(opt).skipped, 1);
        CHECK_OK(ctx);
    }
}

TEST(moments, the_walk_has_codes_and_scales)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx, MLC_F32);
    mlc_optim  *opt = make(net, ADAMW_8BIT), *half = make(net, LION_BF16);
    CHECK_EQ(train(net, opt, MLC_F32, 0), MLC_OK);
    mlc_tensor *codes = state(opt, "state.2.weight.exp_avg_sq");
    mlc_tensor *scale = state(opt, "state.2.weight.exp_avg_sq_scale");
    CHECK(codes && codes->dtype == MLC_U8 && codes->ndim == 2 && codes->shape[0] == 63);
    CHECK(scale && scale->dtype == MLC_F32 && scale->ndim == 1 && scale->shape[0] == 20);
    CHECK(mlc_item(mlc_min(scale, mlc_dims0(), false)) > 0);
    mlc_tensor *small = state(opt, "state.0.bias.exp_avg");
    CHECK(small && small->dtype == MLC_F32 && !state(opt, "state.0.bias.exp_avg_scale"));
    mlc_tensor *bf16 = state(half, "state.0.bias.exp_avg");
    CHECK(bf16 && bf16->dtype == MLC_BF16 && !state(half, "state.0.weight.exp_avg_scale"));
    CHECK_OK(ctx);
}

TEST(moments, a_file_of_other_moments_is_refused)
{
    const box   b = box_open_fast("opt.safetensors"), c = box_open_fast("full.safetensors");
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx, MLC_F32);
    mlc_optim  *opt = make(net, ADAMW_8BIT), *full = mlc_adamw(net, 0.01);
    mlc_optim  *half = make(net, ADAMW_BF16);
    mlc_load_desc d = mlc_load_desc_make();
    CHECK_EQ(train(net, opt, MLC_F32, 0), MLC_OK);
    CHECK_EQ(mlc_optim_save(opt, b.path), MLC_OK);
    CHECK_EQ(mlc_optim_save(full, c.path), MLC_OK);
    d.partial = d.cast = true;
    CHECK_EQ(mlc_optim_load_ex(full, b.path, &d), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "moments are 8-bit codes in the file and floats in the optimizer");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_load_ex(opt, c.path, &d), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "moments are floats in the file and 8-bit codes in the optimizer; "
                              "make it with another desc.moments");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_load(half, c.path), MLC_ERR_DTYPE);
    CHECK_HAS(mlc_error(ctx), "state.0.weight.exp_avg (f32 in the file, bf16 in the model)");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_load_ex(half, c.path, &d), MLC_OK);
    CHECK_OK(ctx);
    box_close(&b);
    box_close(&c);
}

TEST(moments, other_rules_and_values_are_refused_by_name)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = net_of(ctx, MLC_F32), *wide = net_of(ctx, MLC_F64);
    mlc_adam_desc d = mlc_lamb_desc_make(0.1);
    d.moments = MLC_MOMENTS_8BIT;
    CHECK(mlc_lamb_ex(net, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "lamb: moments is 2");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_adamax_ex(net, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "adamax: moments is 2");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_adamw_ex(wide, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "adamw: parameter 'weight' is f64");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d.moments = (mlc_moments)3;
    CHECK(mlc_adamw_ex(net, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "adamw: moments is 3");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

static double bytes_a_parameter(mlc_moments moments)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, 1000, 1000);
    mlc_adam_desc d = mlc_adamw_desc_make(1e-3);
    mlc_memory    before, after;
    mlc_module_build(net);
    mlc_memory_info(ctx, &before);
    d.moments = moments;
    CHECK(mlc_adamw_ex(net, &d) != NULL);
    mlc_memory_info(ctx, &after);
    return (double)(after.now[MLC_MEM_OPTIM] - before.now[MLC_MEM_OPTIM]) / 1001000;
}

TEST(moments, a_million_parameters_take_two_bytes_each)
{
    CHECK(bytes_a_parameter(MLC_MOMENTS_8BIT) <= 2.1);
    CHECK(bytes_a_parameter(MLC_MOMENTS_BF16) <= 4.1);
    CHECK(bytes_a_parameter(MLC_MOMENTS_FULL) > 8);
}

/* ---- digits ---------------------------------------------------------------------------------- */

enum { ROWS = 1797, EPOCHS = 4 };

static bool digits_read(mlc_ctx *ctx, mlc_tensor **x, mlc_tensor **y)
{
    static double table[ROWS * 66], px[ROWS * 64], label[ROWS];
    mlc_tensor   *csv = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    if (!CHECK_EQ(mlc_numel(csv), ROWS * 66) || !test_read(csv, table)) return false;
    for (int64_t i = 0; i < ROWS; i++) {
        for (int k = 0; k < 64; k++) px[i * 64 + k] = table[i * 66 + k] / 16;
        label[i] = table[i * 66 + 64];
    }
    *x = test_tensor(ctx, MLC_F32, mlc_dims2(ROWS, 64), px);
    *y = test_tensor(ctx, MLC_I64, mlc_dims1(ROWS), label);
    return true;
}

/* Mean loss of the last epoch. */
static double digits_loss(uint64_t seed, mlc_moments moments)
{
    mlc_ctx_desc d = test_desc();
    d.seed = seed;
    mlc_ctx      *ctx = test_own(mlc_ctx_create(&d));
    mlc_tensor   *x, *y;
    mlc_batch     b;
    mlc_adam_desc a = mlc_adamw_desc_make(2e-3);
    double        sum = 0;
    int           n = 0;
    if (!digits_read(ctx, &x, &y)) return 0;
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 128));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 128, 10));
    a.moments = moments;
    mlc_optim      *opt = mlc_adamw_ex(net, &a);
    mlc_loader_desc l = mlc_loader_desc_make(x, y, 32);
    mlc_loader     *loader = mlc_loader_create(ctx, &l);
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        while (mlc_loader_next(loader, &b)) {
            mlc_scope_begin(ctx);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, b.x), b.y);
            if (epoch == EPOCHS - 1) { sum += mlc_item(loss); n++; }
            mlc_optim_minimize(opt, loss);
            mlc_scope_end(ctx);
        }
    CHECK_OK(ctx);
    return sum / n;
}

TEST(moments, digits_are_learned_as_well_as_with_f32)
{
    double least = 9, most = 0, first = 0;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        const double loss = digits_loss(seed, MLC_MOMENTS_FULL);
        if (seed == 1) first = loss;
        least = fmin(least, loss);
        most = fmax(most, loss);
    }
    CHECK(least > 0 && most < 0.5);
    CHECK_NEAR(digits_loss(1, MLC_MOMENTS_BF16), first, most - least);
    const double eight = digits_loss(1, MLC_MOMENTS_8BIT);
    CHECK_NEAR(eight, first, most - least);
    CHECK(eight != first);
}
