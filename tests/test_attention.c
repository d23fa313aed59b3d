/* test_attention.c -- tests of sections IMPL.OPS.ATTENTION, IMPL.KERNELS.ATTENTION
 *
 * Values and gradients against attention made of other operations, in f64; gradients against
 * central differences; sequences packed against each alone.
 */
#include "mlc_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    s.d.scale = 0.7;
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

/* ---- dropout --------------------------------------------------------------------------------- */

typedef struct drop_case { mlc_attention_desc d; mlc_rng_state rng; } drop_case;

static mlc_tensor *drop_loss(void *user, mlc_tensor *const *in, int32_t n)
{
    const drop_case *c = (const drop_case *)user;
    (void)n;
    mlc_ctx_set_rng(in[0]->ctx, c->rng);
    return weighted(mlc_attention_ex(in[0], in[1], in[2], &c->d));
}

TEST(attention, gradients_with_dropout_match_central_differences)
{
    mlc_ctx             *ctx = test_ctx();
    drop_case            c = {mlc_attention_desc_make(), mlc_ctx_rng(ctx)};
    mlc_gradcheck_report r;
    mlc_tensor *in[3] = {heads(ctx, MLC_F64, 2, 2, 4, 3, 1), heads(ctx, MLC_F64, 2, 1, 5, 3, 2),
                         heads(ctx, MLC_F64, 2, 1, 5, 2, 3)};
    c.d.dropout = 0.4;
    memset(&r, 0, sizeof r);
    CHECK_EQ(mlc_gradcheck(drop_loss, &c, in, 3, NULL, &r), MLC_OK);
    CHECK(r.ok);
    CHECK_OK(ctx);
}

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
                    "v [2,2,7,3]");
        check_error(ctx, mlc_attention(q, mlc_cast(k, MLC_F64), k), MLC_ERR_DTYPE, "k f64");
        check_error(ctx, mlc_attention(flat, k, k), MLC_ERR_SHAPE, "[5,3]");
        check_error(ctx, mlc_attention(NULL, k, k), MLC_ERR_ARG, "attention");
        d.mask = mlc_zeros(ctx, MLC_F64, mlc_dims2(5, 6));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_DTYPE, "the mask is f64");
        d.mask = mlc_zeros(ctx, MLC_BOOL, mlc_dims2(5, 7));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE, "the mask [5,7]");
        d = mlc_attention_desc_make();
        d.alibi = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE, "alibi is [3]");
        d.alibi = mlc_zeros(ctx, MLC_F32, mlc_dims1(4));
        mlc_set_requires_grad(d.alibi, true);
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "alibi asks for a gradient");
        d = mlc_attention_desc_make();
        d.window = -1;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "window -1");
        d = mlc_attention_desc_make();
        d.has_scale = true;
        d.scale = NO_NUMBER;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "scale is nan");
        d = mlc_attention_desc_make();
        d.dropout = 2;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "p is 2");
        d = mlc_attention_desc_make();
        d.k_offsets = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_ARG, "k_offsets without");
        d.q_offsets = d.k_offsets;
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_SHAPE, "a batch of 1");
    }
}

TEST(attention, values_of_lengths_and_offsets_are_checked)
{
    static const double over[2] = {6, 7}, below[2] = {-1, 3};
    static const double falls[4] = {0, 3, 2, 5}, leaves[4] = {0, 3, 4, 6};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *q = zeros4(ctx, 2, 4, 5, 3), *k = zeros4(ctx, 2, 2, 6, 3);
        mlc_tensor *one = zeros4(ctx, 1, 2, 5, 3);
        mlc_attention_desc d = mlc_attention_desc_make();
        d.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), over);
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_VALUE, "key_lengths[1] is 7");
        d.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), below);
        check_error(ctx, mlc_attention_ex(q, k, k, &d), MLC_ERR_VALUE, "key_lengths[0] is -1");
        d = mlc_attention_desc_make();
        d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), falls);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE, "offset 2 is 2");
        d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(4), leaves);
        check_error(ctx, mlc_attention_ex(one, one, one, &d), MLC_ERR_VALUE, "offset 3 is 6");
    }
}
