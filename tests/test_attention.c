/* test_attention.c -- tests of sections IMPL.OPS.ATTENTION, IMPL.KERNELS.ATTENTION,
 * IMPL.KERNELS.FLASH
 *
 * Values and gradients against attention made of other operations, in f64; gradients against
 * central differences; sequences packed against each alone.
 */
#define _DEFAULT_SOURCE
#include "mlc_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef _WIN32
#  include <sys/mman.h>
#  include <unistd.h>
#endif

/* ---- attention made of other operations ------------------------------------------------------ */

typedef enum mask_kind { NO_MASK, BOOL_MASK, FLOAT_MASK } mask_kind;

typedef struct shape_case {
    int64_t   b, h, hk, t, s, d, dv, window;
    bool      causal, lengths, alibi;
    mask_kind mask;
    int       thin;                    /* bit i: axis i of the mask is 1                       */
} shape_case;

static const shape_case CASES[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, false, false, false, NO_MASK, 0},
    {2, 3, 3, 5, 7, 4, 6, 0, false, false, false, NO_MASK, 0},
    {2, 4, 2, 5, 5, 3, 3, 0, true, false, false, NO_MASK, 0},
    {1, 6, 1, 3, 9, 8, 5, 0, true, false, false, BOOL_MASK, 1},
    {2, 2, 2, 9, 4, 5, 5, 0, true, false, true, NO_MASK, 0},
    {3, 2, 1, 7, 7, 16, 16, 3, true, true, false, NO_MASK, 0},
    {2, 2, 2, 6, 8, 7, 1, 2, false, true, true, FLOAT_MASK, 3},
    {2, 2, 2, 33, 17, 31, 33, 0, false, true, false, FLOAT_MASK, 0},
    {1, 3, 3, 130, 129, 2, 3, 40, true, false, true, BOOL_MASK, 4},
    {2, 2, 2, 4, 6, 5, 5, 0, false, false, false, FLOAT_MASK, 8},
    {1, 2, 2, 19, 70, 96, 64, 0, true, false, false, FLOAT_MASK, 7},
    {2, 2, 1, 0, 5, 3, 3, 0, false, false, false, NO_MASK, 0},
    {2, 2, 1, 5, 0, 3, 3, 0, true, false, false, NO_MASK, 0},
    {0, 2, 2, 5, 4, 3, 3, 0, false, false, false, NO_MASK, 0},
    {0, 2, 2, 5, 4, 3, 3, 0, false, true, true, FLOAT_MASK, 1},
    {2, 0, 0, 5, 4, 3, 3, 0, true, false, false, FLOAT_MASK, 3},
    {1, 2, 1, 11, 530, 5, 4, 300, true, false, true, FLOAT_MASK, 2},
    {1, 4, 2, 33, 700, 16, 7, 0, false, true, false, NO_MASK, 0},
};

enum { CASE_COUNT = sizeof CASES / sizeof *CASES, MOST = 2 * 130 * 130 * 4, MAX_IN = 4 };

/* What a case is called with: leaves with gradients, and the desc. */
typedef struct scene {
    const shape_case  *c;
    mlc_tensor        *in[MAX_IN];     /* q, k, v, a float mask                                */
    int                n;
    mlc_attention_desc d;
    mlc_tensor        *seen;           /* bool [b,1,t,s]: causal, window, lengths, as they say */
} scene;

static mlc_dims mask_dims(const shape_case *c)
{
    mlc_dims m = mlc_dims4(c->b, c->h, c->t, c->s);
    for (int i = 0; i < 4; i++)
        if (c->thin & 1 << i) m.v[i] = 1;
    return m;
}

static int64_t length_of(const shape_case *c, int64_t batch)
{
    return c->lengths ? (batch * 3 + c->s / 2) % (c->s + 1) : c->s;
}

static mlc_tensor *seen_of(mlc_ctx *ctx, const shape_case *c)
{
    static double v[MOST];
    int64_t       n = 0;
    for (int64_t b = 0; b < c->b; b++)
        for (int64_t i = 0; i < c->t; i++)
            for (int64_t j = 0; j < c->s; j++) {
                const int64_t off = i + c->s - c->t - j;
                v[n++] = (!c->causal || off >= 0) && j < length_of(c, b) &&
                         (!c->window || (off < c->window && -off < c->window));
            }
    return test_tensor(ctx, MLC_BOOL, mlc_dims4(c->b, 1, c->t, c->s), v);
}

/* Rows as [b,n,h,d] in memory, so that heads are a view. */
static mlc_tensor *heads(mlc_ctx *ctx, mlc_dtype dtype, int64_t b, int64_t h, int64_t n, int64_t d,
                         uint64_t seed)
{
    mlc_tensor *x = mlc_permute(test_rand(ctx, dtype, mlc_dims4(b, n, h, d), seed, -1, 1),
                                mlc_dims4(0, 2, 1, 3));
    mlc_set_requires_grad(x, true);
    return x;
}

static scene scene_of(mlc_ctx *ctx, mlc_dtype dtype, const shape_case *c)
{
    static double rows[16];
    scene         s;
    memset(&s, 0, sizeof s);
    s.c = c;
    s.d = mlc_attention_desc_make();
    s.in[0] = heads(ctx, dtype, c->b, c->h, c->t, c->d, 1);
    s.in[1] = heads(ctx, dtype, c->b, c->hk, c->s, c->d, 2);
    s.in[2] = heads(ctx, dtype, c->b, c->hk, c->s, c->dv, 3);
    s.n = 3;
    s.seen = seen_of(ctx, c);
    s.d.causal = c->causal;
    s.d.window = c->window;
    s.d.has_scale = c->d == 5;
    s.d.scale = s.d.has_scale ? 0.7 : 0;
    for (int64_t b = 0; b < c->b; b++) rows[b] = (double)length_of(c, b);
    if (c->lengths) s.d.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(c->b), rows);
    for (int64_t h = 0; h < c->h; h++) rows[h] = 0.25 / (double)(h + 1);
    if (c->alibi) s.d.alibi = test_tensor(ctx, MLC_F32, mlc_dims1(c->h), rows);
    if (c->mask == BOOL_MASK)
        s.d.mask = mlc_cast(mlc_floor(test_rand(ctx, MLC_F32, mask_dims(c), 4, 0.3, 1.7)),
                            MLC_BOOL);
    if (c->mask == FLOAT_MASK) {
        s.d.mask = s.in[s.n++] = test_rand(ctx, dtype, mask_dims(c), 5, -1, 1);
        mlc_set_requires_grad(s.d.mask, true);
    }
    return s;
}

/* softmax over what is seen, 0 for rows that see nothing, times v. */
static mlc_tensor *by_parts(const scene *s)
{
    const shape_case *c = s->c;
    mlc_ctx          *ctx = s->in[0]->ctx;
    const int64_t     group = c->hk ? c->h / c->hk : 1;
    const double      scale = s->d.has_scale ? s->d.scale : 1 / sqrt((double)c->d);
    mlc_tensor       *k = mlc_repeat(s->in[1], group, 1), *v = mlc_repeat(s->in[2], group, 1);
    mlc_tensor *score = mlc_mul_scalar(mlc_matmul(s->in[0], mlc_transpose(k, 2, 3)), scale);
    mlc_tensor *seen = s->seen;
    if (s->d.alibi) {
        mlc_tensor *i = mlc_arange(ctx, MLC_F64, (double)(c->s - c->t), (double)c->s, 1);
        mlc_tensor *j = mlc_arange(ctx, MLC_F64, 0, (double)c->s, 1);
        mlc_tensor *far = mlc_abs(mlc_sub(mlc_unsqueeze(i, 1), j));
        mlc_tensor *slope = mlc_reshape(mlc_cast(s->d.alibi, MLC_F64), mlc_dims3(c->h, 1, 1));
        score = mlc_sub(score, mlc_mul(slope, far));
    }
    if (c->mask == FLOAT_MASK) score = mlc_add(score, s->d.mask);
    if (c->mask == BOOL_MASK) seen = mlc_logical_and(seen, s->d.mask);
    score = mlc_masked_fill(score, mlc_logical_not(seen), -1e30);
    mlc_tensor *p = mlc_mul(mlc_softmax(score, 3), mlc_cast(seen, MLC_F64));
    return mlc_matmul(p, v);
}

/* A sum whose gradient is another number for each element. */
static mlc_tensor *weighted(mlc_tensor *y)
{
    if (!y) return NULL;
    mlc_tensor *w = test_rand(y->ctx, MLC_F64, mlc_dims_of(y->ndim, y->shape), 7, -1, 1);
    return mlc_sum_all(mlc_mul(y, mlc_cast(w, y->dtype)));
}

static void check_close(mlc_tensor *a, mlc_tensor *want, double tolerance, int k, const char *what)
{
    if (!CHECK(a != NULL && want != NULL) || mlc_numel(a) == 0) return;
    mlc_tensor  *off = mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(want, MLC_F64)));
    const double most = mlc_item(mlc_max(off, mlc_dims0(), false));
    if (!CHECK(most <= tolerance)) printf("  case %d, %s: off by %g\n", k, what, most);
}

TEST(attention, values_and_gradients_are_those_of_its_parts_in_f64)
{
    static const char *const name[] = {"dq", "dk", "dv", "dmask"};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < CASE_COUNT; k++) {
            mlc_tensor *grad[MAX_IN];
            mlc_scope_begin(ctx);
            scene s = scene_of(ctx, MLC_F64, &CASES[k]);
            mlc_tensor *want = by_parts(&s), *y = mlc_attention_ex(s.in[0], s.in[1], s.in[2], &s.d);
            check_close(y, want, 1e-13, k, "y");
            CHECK_EQ(mlc_backward(weighted(want)), MLC_OK);
            for (int i = 0; i < s.n; i++) {
                grad[i] = mlc_copy(mlc_grad(s.in[i]));
                mlc_zero_grad(s.in[i]);
            }
            CHECK_EQ(mlc_backward(weighted(y)), MLC_OK);
            for (int i = 0; i < s.n; i++)
                check_close(mlc_grad(s.in[i]), grad[i], 1e-12, k, name[i]);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* Of other dtypes against f64 of what they were rounded to. */
static void check_dtype(mlc_ctx *ctx, mlc_dtype dtype, double y_error, double grad_error)
{
    static const char *const name[] = {"dq", "dk", "dv", "dmask"};
    for (int k = 0; k < CASE_COUNT; k++) {
        mlc_scope_begin(ctx);
        scene s = scene_of(ctx, dtype, &CASES[k]), wide = s;
        for (int i = 0; i < s.n; i++) {
            wide.in[i] = mlc_detach(mlc_cast(s.in[i], MLC_F64));
            mlc_set_requires_grad(wide.in[i], true);
        }
        if (s.n > 3) wide.d.mask = wide.in[3];
        mlc_tensor *want = mlc_attention_ex(wide.in[0], wide.in[1], wide.in[2], &wide.d);
        mlc_tensor *y = mlc_attention_ex(s.in[0], s.in[1], s.in[2], &s.d);
        check_close(y, want, y_error, k, "y");
        CHECK_EQ(mlc_backward(weighted(want)), MLC_OK);
        CHECK_EQ(mlc_backward(weighted(y)), MLC_OK);
        for (int i = 0; i < s.n; i++)
            check_close(mlc_grad(s.in[i]), mlc_grad(wide.in[i]), grad_error, k, name[i]);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

TEST(attention, f32_is_near_f64)
{
    FOR_EACH_ISA(ctx) check_dtype(ctx, MLC_F32, 2e-6, 2e-5);
}

TEST(attention, bf16_and_f16_are_near_f64)
{
    FOR_EACH_ISA(ctx) {
        check_dtype(ctx, MLC_BF16, 0.02, 0.15);
        check_dtype(ctx, MLC_F16, 0.003, 0.02);
    }
}

/* ---- central differences --------------------------------------------------------------------- */

static const shape_case SMALL[] = {
    {2, 2, 1, 3, 4, 2, 3, 0, false, false, true, FLOAT_MASK, 0},
    {2, 2, 2, 4, 3, 2, 1, 0, true, true, false, FLOAT_MASK, 9},
    {1, 4, 2, 4, 5, 3, 2, 2, true, false, true, FLOAT_MASK, 6},
    {3, 2, 1, 3, 5, 2, 2, 3, false, true, true, BOOL_MASK, 1},
    {1, 2, 2, 5, 3, 5, 2, 0, true, false, false, FLOAT_MASK, 1},
    {1, 2, 1, 6, 5, 3, 2, 3, false, false, true, FLOAT_MASK, 2},   /* packed                   */
    {1, 2, 1, 6, 5, 3, 2, 0, true, false, false, NO_MASK, 0},
};

enum { SMALL_COUNT = sizeof SMALL / sizeof *SMALL, SMALL_PACKED = 5 };

static mlc_tensor *attention_of(void *user, mlc_tensor *const *in, int32_t n)
{
    (void)n;
    return mlc_attention_ex(in[0], in[1], in[2], &((const scene *)user)->d);
}

TEST(attention, gradients_match_central_differences)
{
    static const double q_offsets[] = {0, 2, 2, 5}, k_offsets[] = {1, 3, 4, 4};
    const int step = (int)(test_cpu_kernels() ? 1 : 3);
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 2 * SMALL_COUNT; k += step) {
            mlc_gradcheck_report r;
            memset(&r, 0, sizeof r);
            mlc_scope_begin(ctx);
            scene s = scene_of(ctx, MLC_F64, &SMALL[k / 2]);
            s.d.dropout = k % 2 ? 0.4 : 0;
            if (k / 2 >= SMALL_PACKED) {
                s.d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), q_offsets);
                s.d.k_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), k_offsets);
            }
            CHECK_EQ(mlc_gradcheck(attention_of, &s, s.in, s.n, NULL, &r), MLC_OK);
            if (!CHECK(r.ok && r.input >= 0))
                printf("  case %d: input %d, element %" PRId64 ": %g, differences say %g\n", k,
                       (int)r.input, r.index, r.analytic, r.numeric);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { BITS = 1 << 19 };

/* y and gradients, one behind the other; the bytes. */
static size_t bits_of(const shape_case *c, mlc_isa isa, int32_t threads, mlc_dtype dtype, char *to)
{
    mlc_ctx_desc d = test_desc();
    size_t       at = 0;
    d.isa = isa;
    d.threads = threads;
    d.seed = 3;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL)) return 0;
    scene s = scene_of(ctx, dtype, c);
    s.d.dropout = 0.2;
    mlc_tensor *y = mlc_attention_ex(s.in[0], s.in[1], s.in[2], &s.d);
    CHECK_EQ(mlc_backward(weighted(y)), MLC_OK);
    for (int i = -1; i < s.n; i++) {
        mlc_tensor  *x = i < 0 ? y : mlc_grad(s.in[i]);
        const size_t bytes = x ? (size_t)mlc_numel(x) * mlc_dtype_bytes(dtype) : 0;
        if (!CHECK(bytes > 0 && at + bytes <= BITS)) break;
        CHECK_EQ(mlc_read(x, to + at, bytes), MLC_OK);
        at += bytes;
    }
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return at;
}

/* Two blocks of keys and some of rows; a mask's gradient is summed over batches and heads. */
TEST(attention, bits_are_those_of_any_number_of_threads)
{
    static const shape_case cases[] = {
        {2, 4, 2, 70, 530, 12, 7, 0, true, true, true, NO_MASK, 0},
        {2, 4, 2, 33, 530, 9, 12, 400, true, false, true, FLOAT_MASK, 3},
        {2, 4, 2, 33, 130, 9, 12, 0, false, true, false, FLOAT_MASK, 4},
    };
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_BF16};
    static const int32_t   threads[] = {2, 3, 5};
    static char            one[BITS], more[BITS];
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < (test_cpu_kernels() ? 6 : 2); k++) {
            const shape_case *c = &cases[k / 2];
            const size_t      n = bits_of(c, (mlc_isa)isa, 1, dtypes[k % 2], one);
            for (int t = 0; t < 3; t++) {
                CHECK_EQ(bits_of(c, (mlc_isa)isa, threads[t], dtypes[k % 2], more), n);
                if (!CHECK(memcmp(one, more, n) == 0))
                    printf("  case %d, level %d, %d threads\n", k, isa, (int)threads[t]);
            }
        }
    }
}

/* Rows whose scores are NaN are NaN, whatever its bits are, and no others. */
TEST(attention, a_nan_of_any_bits_stays_in_its_rows)
{
    enum { T = 9, D = 16 };
    double v[T * D], y[T * D];
    FOR_EACH_ISA(ctx)
        for (uint32_t bits = 0; bits < 512; bits += 7) {
            mlc_tensor *in[3];
            for (int k = 0; k < 3; k++) {
                for (int i = 0; i < T * D; i++) v[i] = test_random(k, i, -1, 1);
                if (k == 0) v[3 * D + 5] = no_number_of(bits);
                in[k] = test_tensor(ctx, MLC_F32, mlc_dims4(1, 1, T, D), v);
            }
            CHECK(test_read(mlc_attention(in[0], in[1], in[2]), y));
            for (int i = 0; i < T * D; i++) CHECK((isnan(y[i]) != 0) == (i / D == 3));
        }
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* A row of ones in v: y is the sum of the weights that stay, whose mean is 1. */
TEST(attention, dropout_keeps_the_mean)
{
    FOR_EACH_ISA(ctx) {
        mlc_attention_desc d = mlc_attention_desc_make();
        d.dropout = 0.25;
        mlc_tensor *q = mlc_zeros(ctx, MLC_F32, mlc_dims4(2, 2, 64, 4));
        mlc_tensor *v = mlc_ones(ctx, MLC_F32, mlc_dims4(2, 2, 64, 1));
        mlc_tensor *y = mlc_attention_ex(q, q, v, &d);
        CHECK_NEAR(mlc_item(mlc_mean_all(y)), 1, 0.02);
        CHECK(mlc_item(mlc_std(y, mlc_dims0(), false, 1)) > 0.03);
        d.dropout = 1;
        CHECK(mlc_item(mlc_max(mlc_abs(mlc_attention_ex(q, q, v, &d)), mlc_dims0(), false)) == 0);
        CHECK_OK(ctx);
    }
}

/* ---- packed sequences ------------------------------------------------------------------------ */

enum { SEQUENCES = 4 };
static const double Q_OFFSETS[SEQUENCES + 1] = {0, 3, 3, 9, 14};
static const double K_OFFSETS[SEQUENCES + 1] = {0, 5, 6, 12, 15};

TEST(attention, packed_sequences_are_those_alone)
{
    FOR_EACH_ISA(ctx) {
        for (int causal = 0; causal < 2; causal++) {
            mlc_attention_desc d = mlc_attention_desc_make(), each = d;
            d.causal = each.causal = causal;
            d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(SEQUENCES + 1), Q_OFFSETS);
            d.k_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(SEQUENCES + 1), K_OFFSETS);
            mlc_tensor *q = heads(ctx, MLC_F64, 1, 2, 16, 3, 1), *y;   /* two rows of none */
            mlc_tensor *k = heads(ctx, MLC_F64, 1, 1, 15, 3, 2);
            mlc_tensor *v = heads(ctx, MLC_F64, 1, 1, 15, 4, 3);
            y = mlc_attention_ex(q, k, v, &d);
            for (int z = 0; z < SEQUENCES; z++) {
                const int64_t q0 = (int64_t)Q_OFFSETS[z], q1 = (int64_t)Q_OFFSETS[z + 1];
                const int64_t k0 = (int64_t)K_OFFSETS[z], k1 = (int64_t)K_OFFSETS[z + 1];
                mlc_tensor *want = mlc_attention_ex(mlc_slice(q, 2, q0, q1, 1),
                                                    mlc_slice(k, 2, k0, k1, 1),
                                                    mlc_slice(v, 2, k0, k1, 1), &each);
                check_close(mlc_slice(y, 2, q0, q1, 1), want, 1e-14, z, "y");
            }
            CHECK(mlc_item(mlc_max(mlc_abs(mlc_slice(y, 2, 14, 16, 1)), mlc_dims0(), false)) == 0);
            CHECK_EQ(mlc_backward(weighted(y)), MLC_OK);
            CHECK_OK(ctx);
        }
    }
}

/* ---- views, and inputs that are one tensor --------------------------------------------------- */

/* Part i of [2,5,3,8] as two heads of four features. */
static mlc_tensor *part_of(mlc_tensor *x, int i)
{
    return mlc_permute(mlc_reshape(mlc_select(x, 2, i), mlc_dims4(2, 5, 2, 4)),
                       mlc_dims4(0, 2, 1, 3));
}

TEST(attention, parts_of_one_projection_need_no_copy)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims4(2, 5, 3, 8), 1, -1, 1), *part[3], *own[3];
        mlc_set_requires_grad(x, true);
        for (int i = 0; i < 3; i++) {
            part[i] = part_of(x, i);
            own[i] = mlc_detach(mlc_contiguous(mlc_copy(part[i])));
            mlc_set_requires_grad(own[i], true);
        }
        mlc_tensor *y = mlc_attention(part[0], part[1], part[2]);
        check_close(y, mlc_attention(own[0], own[1], own[2]), 0, 0, "y");
        CHECK_EQ(mlc_backward(weighted(y)), MLC_OK);
        CHECK_EQ(mlc_backward(weighted(mlc_attention(own[0], own[1], own[2]))), MLC_OK);
        for (int i = 0; i < 3; i++) {
            check_close(part_of(mlc_grad(x), i), mlc_grad(own[i]), 0, i, "gradient");
        }
        CHECK_OK(ctx);
    }
}

static mlc_tensor *same_loss(void *user, mlc_tensor *const *in, int32_t n)
{
    (void)user;
    (void)n;
    mlc_tensor *turned = mlc_slice(in[0], 2, 1, 4, 1);                 /* overlaps the keys     */
    return weighted(mlc_attention(turned, in[0], in[0]));
}

TEST(attention, inputs_may_be_one_tensor_or_overlap)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_tensor          *in[1] = {heads(ctx, MLC_F64, 2, 2, 4, 3, 1)};
    mlc_gradcheck_report r;
    memset(&r, 0, sizeof r);
    CHECK_EQ(mlc_gradcheck(same_loss, NULL, in, 1, NULL, &r), MLC_OK);
    CHECK(r.ok);
    CHECK_OK(ctx);
}

/* ---- bad input ------------------------------------------------------------------------------- */

static mlc_tensor *zeros4(mlc_ctx *ctx, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return mlc_zeros(ctx, MLC_F32, mlc_dims4(b, h, t, d));
}

static void check_error(mlc_ctx *ctx, mlc_tensor *y, mlc_status want, const char *text)
{
    CHECK(y == NULL || !test_on_host());
    mlc_ctx_sync(ctx);
    CHECK_EQ(mlc_ctx_status(ctx), want);
    CHECK_HAS(mlc_error(ctx), text);
    mlc_error_clear(ctx);
}

TEST(attention, what_does_not_fit_is_named)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *q = zeros4(ctx, 2, 4, 5, 3), *k = zeros4(ctx, 2, 2, 6, 3);
        mlc_attention_desc d = mlc_attention_desc_make();
        mlc_tensor *odd = zeros4(ctx, 2, 3, 6, 3), *flat = mlc_zeros(ctx, MLC_F32, mlc_dims2(5, 3));
        check_error(ctx, mlc_attention(q, odd, odd), MLC_ERR_SHAPE,
                    "the 3 heads of k [2,3,6,3] do not divide the 4 of q [2,4,5,3]");
        check_error(ctx, mlc_attention(q, k, zeros4(ctx, 2, 2, 7, 3)), MLC_ERR_SHAPE,
                    "q [2,4,5,3], k [2,2,6,3], v [2,2,7,3] do not go together");
        check_error(ctx, mlc_attention(q, zeros4(ctx, 2, 2, 6, 4), k), MLC_ERR_SHAPE,
                    "q [2,4,5,3], k [2,2,6,4], v [2,2,6,3] do not go together");
        check_error(ctx, mlc_attention(q, zeros4(ctx, 1, 2, 6, 3), k), MLC_ERR_SHAPE,
                    "q [2,4,5,3], k [1,2,6,3], v [2,2,6,3] do not go together");
        check_error(ctx, mlc_attention(q, mlc_cast(k, MLC_F64), k), MLC_ERR_DTYPE, "k f64");
        check_error(ctx, mlc_attention(flat, k, k), MLC_ERR_SHAPE, "[5,3]");
        check_error(ctx, mlc_attention(NULL, k, k), MLC_ERR_ARG, "attention");
        d.mask = mlc_zeros(ctx, MLC_F64, mlc_dims2(5, 6));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_DTYPE,
                    "the mask is f64; it must be bool, f32 or q's dtype, f32");
        d.mask = mlc_zeros(ctx, MLC_I64, mlc_dims2(5, 6));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_DTYPE,
                    "the mask is i64; it must be bool, f32 or q's dtype, f32");
        d.mask = mlc_zeros(ctx, MLC_BOOL, mlc_dims2(5, 7));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE,
                    "the mask [5,7] does not broadcast to [b,h,t,s] [2,4,5,6]");
        d = mlc_attention_desc_make();
        d.alibi = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE,
                    "alibi is [3]; it must be [4] for q [2,4,5,3]");
        d.alibi = mlc_zeros(ctx, MLC_F64, mlc_dims1(4));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_DTYPE,
                    "alibi is f64; it must be f32");
        d.alibi = mlc_zeros(ctx, MLC_F32, mlc_dims1(4));
        mlc_set_requires_grad(d.alibi, true);
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "alibi asks for a gradient");
        d = mlc_attention_desc_make();
        d.window = INT64_MAX;          /* is no limit                                          */
        CHECK(mlc_attention_ex(q, k, k, &d) != NULL);
        d.window = -1;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "window -1");
        d = mlc_attention_desc_make();
        d.has_scale = true;
        d.scale = NO_NUMBER;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "scale is nan");
        d = mlc_attention_desc_make();
        d.dropout = 2;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "p is 2");
    }
}

TEST(attention, lengths_and_offsets_that_do_not_fit_are_named)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *q = zeros4(ctx, 2, 4, 5, 3), *k = zeros4(ctx, 2, 2, 6, 3);
        mlc_tensor *one = zeros4(ctx, 1, 4, 5, 3), *keys = zeros4(ctx, 1, 2, 6, 3);
        mlc_attention_desc d = mlc_attention_desc_make();
        d.key_lengths = mlc_zeros(ctx, MLC_I32, mlc_dims1(2));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_DTYPE,
                    "key_lengths is i32; it must be i64");
        d.key_lengths = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE,
                    "key_lengths is [4]; it must be [2] for q [2,4,5,3]");
        d = mlc_attention_desc_make();
        d.k_offsets = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "k_offsets without");
        d.q_offsets = d.k_offsets;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE,
                    "q_offsets [2] with q [2,4,5,3]; packed sequences are a batch of 1");
        d.k_offsets = mlc_zeros(ctx, MLC_I64, mlc_dims1(3));
        check_error(ctx, mlc_attention_ex(one, keys, keys, &d), MLC_ERR_SHAPE,
                    "k_offsets is [3]; it must be [2] for q [1,4,5,3]");
        d.k_offsets = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
        check_error(ctx, mlc_attention_ex(one, keys, keys, &d), MLC_ERR_DTYPE,
                    "k_offsets is f32; it must be i64");
        d.k_offsets = NULL;
        check_error(ctx, mlc_attention_ex(one, keys, keys, &d), MLC_ERR_ARG,
                    "q [1,4,5,3] and k [1,2,6,3] have other lengths; give k_offsets");
        d.k_offsets = d.q_offsets;
        d.key_lengths = mlc_zeros(ctx, MLC_I64, mlc_dims1(1));
        check_error(ctx, mlc_attention_ex(one, keys, keys, &d), MLC_ERR_ARG,
                    "key_lengths and q_offsets");
        d.key_lengths = NULL;
        d.q_offsets = mlc_zeros(ctx, MLC_I64, mlc_dims1(0));
        check_error(ctx, mlc_attention_ex(one, keys, keys, &d), MLC_ERR_SHAPE, "q_offsets [0]");
    }
}

TEST(attention, values_of_lengths_and_offsets_are_checked)
{
    static const double over[2] = {6, 7}, below[2] = {-1, 3};
    static const double falls[4] = {0, 3, 2, 5}, leaves[4] = {0, 3, 4, 6}, fine[4] = {0, 3, 4, 5};
    static const double before[4] = {-1, 3, 4, 5};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *q = zeros4(ctx, 2, 4, 5, 3), *k = zeros4(ctx, 2, 2, 6, 3);
        mlc_tensor *one = zeros4(ctx, 1, 2, 5, 3);
        mlc_attention_desc d = mlc_attention_desc_make();
        d.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), over);
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_VALUE,
                    "key_lengths[1] is 7; it must be in [0, 6], the keys of k");
        d.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), below);
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_VALUE,
                    "key_lengths[0] is -1; it must be in [0, 6], the keys of k");
        d = mlc_attention_desc_make();
        d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), falls);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE,
                    "q_offsets[2] is 2; offsets must rise from 0 to 5 at most, the rows of q");
        d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), leaves);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE,
                    "q_offsets[3] is 6; offsets must rise from 0 to 5 at most, the rows of q");
        d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), before);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE, "q_offsets[0] is -1");
        d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), fine);
        d.k_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), leaves);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE,
                    "k_offsets[3] is 6; offsets must rise from 0 to 5 at most, the keys of k");
        d.k_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), falls);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE, "k_offsets[2] is 2");
        CHECK_OK(ctx);
    }
}

/* ---- kernels of all levels against the scalar ones, arrays at the end of a page ------------- */

enum { PAGED = 1 << 20, ROOM = 1 << 25, WORKSPACE = 1 << 24 };
typedef enum part { Q, K, V, Y, LSE, DY, DQ, DK, DV, MASK, DMASK, PARTS } part;

static char *at_page_end(int which, size_t bytes)
{
    static char *room[PARTS + 1];
    const size_t size = which == PARTS ? WORKSPACE : PAGED;
    if (room[which] == NULL) {
#ifdef _WIN32
        room[which] = (char *)malloc(size);
#else
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *p = (char *)mmap(NULL, size + page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + size, page, PROT_NONE) != 0) abort();
        room[which] = p;
#endif
        if (room[which] == NULL) abort();
    }
    if (bytes > size) abort();
    return room[which] + size - bytes;
}

static double value(mlc_dtype dtype, const char *x, int64_t i)
{
    const char *at = x + (size_t)i * mlc_dtype_bytes(dtype);
    double      d;
    float       f;
    uint16_t    h;
    memcpy(&h, at, sizeof h);
    if (dtype == MLC_BF16) return (double)mlc_bf16_to(h);
    if (dtype == MLC_F16) return (double)mlc_f16_to(h);
    if (dtype == MLC_F32) { memcpy(&f, at, sizeof f); return (double)f; }
    memcpy(&d, at, sizeof d);
    return d;
}

/* Array `which` of [a,b,c,d], heads apart or side by side, filled from a formula. */
static char *array(int which, mlc_dtype dtype, int64_t stride[4], int64_t a, int64_t b, int64_t c,
                   int64_t d, bool beside)
{
    const int64_t n = a * b * c * d;
    const size_t  size = mlc_dtype_bytes(dtype);
    char         *x = at_page_end(which, (size_t)n * size);
    stride[0] = b * c * d;
    stride[1] = beside ? d : c * d;
    stride[2] = beside ? b * d : d;
    stride[3] = 1;
    for (int64_t i = 0; i < n; i++) {
        const float    f = (float)((i * 37 + which * 11) % 101) / 50.0f - 1.0f;
        const double   v = (double)f;
        const uint16_t h = dtype == MLC_BF16 ? mlc_bf16_from(f) : mlc_f16_from(f);
        const void    *from = dtype == MLC_F64 ? (const void *)&v : size == 2 ? (const void *)&h
                                                                  : (const void *)&f;
        memcpy(x + (size_t)i * size, from, size);
    }
    return x;
}

static void take_workspace(void **workspace, size_t *bytes, size_t need)
{
    *workspace = at_page_end(PARTS, (need + 63) / 64 * 64);
    *bytes = need;
    memset(*workspace, 0xff, need);
}

/* Runs both kernels of a level; the outputs go to out, one behind the other, as doubles. */
static int64_t run_level(mlc_isa isa, mlc_dtype dtype, const shape_case *c, bool drop, double *out)
{
    static const int        parts[] = {Y, LSE, DQ, DK, DV, DMASK};
    static float            slopes[8];
    const mlc_kernels      *kernels = mlc_cpu_kernels(isa);
    const mlc_dtype         wide = dtype == MLC_F64 ? MLC_F64 : MLC_F32;
    struct mlc_k_attention_grad g;
    int64_t                 lengths[4], stride[4], error[4] = {0}, n = 0;
    struct mlc_k_attention *a = &g.f;
    const mlc_dims          m = mask_dims(c);
    const bool              beside = c->d % 2 == 0;
    char                   *x[PARTS];
    memset(&g, 0, sizeof g);
    a->dtype = dtype;
    a->b = c->b; a->h = c->h; a->hk = c->hk; a->t = c->t; a->s = c->s; a->d = c->d; a->dv = c->dv;
    a->scale = 0.7;
    a->causal = c->causal;
    a->window = c->window;
    a->error = error;
    a->drop = drop ? 0.3 : 0;
    a->drop_seed = 3;
    for (int64_t b = 0; b < c->b; b++) lengths[b] = length_of(c, b);
    for (int h = 0; h < 8; h++) slopes[h] = 0.1f * (float)(h + 1);
    a->lengths = c->lengths ? lengths : NULL;
    a->alibi = c->alibi ? slopes : NULL;
    a->q = array(Q, dtype, a->q_stride, c->b, c->h, c->t, c->d, beside);
    a->k = array(K, dtype, a->k_stride, c->b, c->hk, c->s, c->d, beside);
    a->v = array(V, dtype, a->v_stride, c->b, c->hk, c->s, c->dv, beside);
    a->y = x[Y] = array(Y, dtype, a->y_stride, c->b, c->h, c->t, c->dv, true);
    a->lse = x[LSE] = array(LSE, wide, stride, c->b, c->h, c->t, 1, false);
    g.dy = array(DY, dtype, g.dy_stride, c->b, c->h, c->t, c->dv, true);
    g.dq = x[DQ] = array(DQ, dtype, g.dq_stride, c->b, c->h, c->t, c->d, beside);
    g.dk = x[DK] = array(DK, dtype, g.dk_stride, c->b, c->hk, c->s, c->d, beside);
    g.dv = x[DV] = array(DV, dtype, g.dv_stride, c->b, c->hk, c->s, c->dv, beside);
    g.dk_accumulate = g.dmask_accumulate = 1;
    if (c->mask == FLOAT_MASK) {
        a->mask_dtype = dtype;
        a->mask = array(MASK, dtype, a->mask_stride, m.v[0], m.v[1], m.v[2], m.v[3], false);
        g.dmask = x[DMASK] = array(DMASK, dtype, g.dmask_stride, m.v[0], m.v[1], m.v[2], m.v[3],
                                   false);
        for (int i = 0; i < 4; i++) {
            g.mask_shape[i] = m.v[i];
            if (m.v[i] == 1) a->mask_stride[i] = 0;
        }
    }
    take_workspace(&a->workspace, &a->workspace_bytes, kernels->attention_workspace(NULL, a));
    CHECK_EQ(kernels->attention(NULL, a), MLC_OK);
    take_workspace(&g.workspace, &g.workspace_bytes, kernels->attention_grad_workspace(NULL, &g));
    CHECK_EQ(kernels->attention_grad(NULL, &g), MLC_OK);
    const int64_t rows = c->b * c->h * c->t, keys = c->b * c->hk * c->s;
    const int64_t count[] = {rows * c->dv, rows, rows * c->d, keys * c->d, keys * c->dv,
                             g.dmask ? m.v[0] * m.v[1] * m.v[2] * m.v[3] : 0};
    for (int p = 0; p < 6; p++)
        for (int64_t i = 0; i < count[p]; i++)
            out[n++] = value(parts[p] == LSE ? wide : dtype, x[parts[p]], i);
    return n;
}

TEST(attention, kernels_of_all_levels_are_near_the_scalar_ones_and_stay_in_their_arrays)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static const double    error[] = {1e-5, 1e-13, 0.016, 0.002};
    double *want = (double *)malloc(ROOM), *got = (double *)malloc(ROOM);
    CHECK(want != NULL && got != NULL);
    for (int k = 0; want && got && k < CASE_COUNT; k++)
        for (int t = 0; t < 4; t++)
            for (int isa = MLC_ISA_SCALAR + 1; isa <= (int)test_isa_top(); isa++) {
                if (mlc_cpu_kernels((mlc_isa)isa) == NULL) continue;
                const bool    drop = (k + t) % 2 == 0;
                const int64_t n = run_level(MLC_ISA_SCALAR, dtypes[t], &CASES[k], drop, want);
                double        most = 0, size = 1;
                CHECK_EQ(run_level((mlc_isa)isa, dtypes[t], &CASES[k], drop, got), n);
                for (int64_t i = 0; i < n; i++) {
                    const double off = want[i] == got[i] ? 0 : fabs(want[i] - got[i]);
                    if (!(off <= most)) most = off;
                    if (fabs(want[i]) < 1e6) size = fmax(size, fabs(want[i]));
                }
                if (!CHECK(most <= error[t] * size))
                    printf("  case %d, %s, level %d: off by %g of %g\n", k,
                           mlc_dtype_name(dtypes[t]), isa, most, size);
            }
    free(want);
    free(got);
}

/* Values of no columns give rows of none, and keys a gradient of 0. */
TEST(attention, values_may_have_no_columns)
{
    FOR_EACH_ISA(ctx) {
        const double zeros[20] = {0};
        mlc_tensor *q = test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 3, 4), 1, -1, 1);
        mlc_tensor *k = test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 5, 4), 2, -1, 1);
        mlc_set_requires_grad(k, true);
        mlc_tensor *y = mlc_attention(q, k, mlc_zeros(ctx, MLC_F32, mlc_dims4(1, 1, 5, 0)));
        CHECK(mlc_dim(y, 2) == 3 && mlc_dim(y, 3) == 0);
        CHECK_EQ(mlc_backward(mlc_sum_all(y)), MLC_OK);
        if (mlc_grad(k)) CHECK_VALUES(mlc_grad(k), 20, zeros, 0, 0);
        CHECK_OK(ctx);
    }
}

/* Its numbers and its gradient are those of the same mask in f64. */
TEST(attention, a_mask_of_f32_goes_with_every_float)
{
    FOR_EACH_ISA(ctx) {
        double y[2][24], g[2][15];
        mlc_tensor *q = test_rand(ctx, MLC_F64, mlc_dims4(1, 2, 3, 4), 1, -1, 1);
        mlc_tensor *k = test_rand(ctx, MLC_F64, mlc_dims4(1, 2, 5, 4), 2, -1, 1);
        mlc_tensor *narrow = test_rand(ctx, MLC_F32, mlc_dims2(3, 5), 3, -1, 1);
        for (int wide = 0; wide < 2; wide++) {
            mlc_attention_desc d = mlc_attention_desc_make();
            d.mask = mlc_detach(mlc_cast(narrow, wide ? MLC_F64 : MLC_F32));
            mlc_set_requires_grad(d.mask, true);
            mlc_tensor *out = mlc_attention_ex(q, k, k, &d);
            CHECK_EQ(mlc_backward(mlc_sum_all(mlc_square(out))), MLC_OK);
            test_read(out, y[wide]);
            test_read(mlc_grad(d.mask), g[wide]);
        }
        CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
        for (int i = 0; i < 15; i++) CHECK(g[0][i] == (double)(float)g[1][i]);
        CHECK_OK(ctx);
    }
}
