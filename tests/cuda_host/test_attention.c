/* test_attention.c -- CUDA.ATTENTION: attention and its gradients against the scalar kernels */
#include "kernels.h"

typedef enum part { Q, K, V, Y, LSE, DY, DQ, DK, DV, MASK, DMASK, PARTS } part;
typedef enum mask_kind { NO_MASK, BOOL_MASK, FLOAT_MASK, MASK_KINDS } mask_kind;
/* Heads apart, side by side, rows along memory, each second element. */
typedef enum place { APART, BESIDE, TURNED, HOLES, PLACES } place;

enum { ROOM = 1 << 19, SEQUENCES = 5, BATCHES = 4, HEADS = 8 };

typedef struct job {
    mlc_dtype dtype, mask_dtype;
    int64_t   b, h, hk, t, s, d, dv, window;
    bool      causal, lengths, alibi, packed, accumulate;
    mask_kind mask;
    int       thin;                    /* bit i: axis i of the mask is 1                        */
    double    drop;
    place     layout;
} job;

static char     g_own[PARTS][ROOM], g_got[PARTS][ROOM];
static int64_t  g_lengths[BATCHES], g_q_offsets[SEQUENCES + 1], g_k_offsets[SEQUENCES + 1];
static float    g_slopes[HEADS];
static uint64_t g_base;
static size_t   g_bytes[PARTS];        /* 0: it is not there                                    */

/* Strides of [a,b,c,d], and its bytes, at most the buffer; filled with numbers in [-1, 1]. */
static void *array(part p, mlc_dtype dtype, int64_t stride[4], int64_t a, int64_t b, int64_t c,
                   int64_t d, place layout)
{
    const int64_t step = layout == HOLES ? 2 : 1, n = a * b * c * d * step;
    stride[0] = b * c * d * step;
    stride[1] = layout == BESIDE ? d : c * d * step;
    stride[2] = layout == BESIDE ? b * d : layout == TURNED ? 1 : d * step;
    stride[3] = layout == TURNED ? c : step;
    g_bytes[p] = (size_t)n * mlc_dtype_bytes(dtype);
    if (!CHECK(g_bytes[p] <= ROOM)) abort();
    for (int64_t i = 0; i < n; i++)
        test_put(g_own[p], dtype, i, dtype == MLC_BOOL ? (double)(test_random(p, i, 0, 1) < 0.8)
                                                       : test_random(p, i, -1, 1));
    return g_own[p];
}

static void mask_make(const job *j, struct mlc_k_attention_grad *g)
{
    const int64_t all[4] = {j->b, j->h, j->t, j->s};
    int64_t      *m = g->mask_shape;
    for (int i = 0; i < 4; i++) m[i] = j->thin & 1 << i ? 1 : all[i];
    g->f.mask_dtype = j->mask == BOOL_MASK ? MLC_BOOL : j->mask_dtype;
    g->f.mask = array(MASK, g->f.mask_dtype, g->f.mask_stride, m[0], m[1], m[2], m[3], APART);
    for (int i = 0; i < 4; i++) if (m[i] == 1) g->f.mask_stride[i] = 0;
    if (j->mask == BOOL_MASK) return;
    for (int64_t i = 0; i < m[0] * m[1] * m[2] * m[3]; i++)
        if (test_random(77, i, 0, 1) < 0.1) test_put(g_own[MASK], j->mask_dtype, i, -INF);
    g->dmask = array(DMASK, j->mask_dtype, g->dmask_stride, m[0], m[1], m[2], m[3], APART);
}

/* Rising offsets of n elements, of which the last may be of no sequence. */
static void offsets_make(int64_t *offset, int64_t n, uint64_t seed)
{
    offset[0] = 0;
    for (int i = 1; i <= SEQUENCES; i++)
        offset[i] = offset[i - 1] + (int64_t)(test_random(seed, i, 0, 0.45) * (double)n);
    for (int i = 1; i <= SEQUENCES; i++) if (offset[i] > n) offset[i] = n;
}

static void make(const job *j, struct mlc_k_attention_grad *g)
{
    struct mlc_k_attention *a = &g->f;
    const mlc_dtype         wide = j->dtype == MLC_F64 ? MLC_F64 : MLC_F32;
    int64_t                 stride[4];
    memset(g, 0, sizeof *g);
    memset(g_bytes, 0, sizeof g_bytes);
    a->dtype = j->dtype;
    a->b = j->b, a->h = j->h, a->hk = j->hk, a->t = j->t, a->s = j->s, a->d = j->d, a->dv = j->dv;
    a->scale = 0.6, a->causal = j->causal, a->window = j->window;
    a->q = array(Q, j->dtype, a->q_stride, j->b, j->h, j->t, j->d, j->layout);
    a->k = array(K, j->dtype, a->k_stride, j->b, j->hk, j->s, j->d, j->layout);
    a->v = array(V, j->dtype, a->v_stride, j->b, j->hk, j->s, j->dv, j->layout);
    a->y = array(Y, j->dtype, a->y_stride, j->b, j->h, j->t, j->dv, BESIDE);
    a->lse = array(LSE, wide, stride, j->b, j->h, j->t, 1, APART);
    g->dy = array(DY, j->dtype, g->dy_stride, j->b, j->h, j->t, j->dv, j->layout);
    g->dq = array(DQ, j->dtype, g->dq_stride, j->b, j->h, j->t, j->d, j->layout);
    g->dk = array(DK, j->dtype, g->dk_stride, j->b, j->hk, j->s, j->d, j->layout);
    g->dv = array(DV, j->dtype, g->dv_stride, j->b, j->hk, j->s, j->dv, j->layout);
    if (j->mask) mask_make(j, g);
    g->dq_accumulate = g->dv_accumulate = j->accumulate;
    g->dk_accumulate = g->dmask_accumulate = !j->accumulate;
    for (int i = 0; i < BATCHES; i++)
        g_lengths[i] = (int64_t)(test_random(5, i, 0, 1) * (double)(j->s + 1));
    for (int i = 0; i < HEADS; i++) g_slopes[i] = 0.1f * (float)(i + 1);
    offsets_make(g_q_offsets, j->t, 8);
    offsets_make(g_k_offsets, j->s, 9);
    a->lengths = j->lengths ? g_lengths : NULL;
    a->alibi = j->alibi ? g_slopes : NULL;
    a->sequences = j->packed ? SEQUENCES : 0;
    a->q_offsets = j->packed ? g_q_offsets : NULL;
    a->k_offsets = j->packed ? g_k_offsets : NULL;
    a->drop = j->drop, a->drop_seed = 11, a->drop_stream = 3;
    a->drop_base = j->dtype == MLC_F32 ? &g_base : NULL;
    a->bad_length = 263, a->bad_offset = 264;
    g_base = 5;
}

/* The CPU's: y and gradients in g_own. */
static void run_own(struct mlc_k_attention_grad g)
{
    const mlc_kernels *cpu = mlc_cpu_kernels(MLC_ISA_SCALAR);
    int64_t            error[4] = {0};
    g.f.error = error;
    g.f.workspace_bytes = cpu->attention_workspace(NULL, &g.f);
    g.f.workspace = malloc(g.f.workspace_bytes + 1);
    CHECK_EQ(cpu->attention(NULL, &g.f), MLC_OK);
    free(g.f.workspace);
    g.workspace_bytes = cpu->attention_grad_workspace(NULL, &g);
    g.workspace = malloc(g.workspace_bytes + 1);
    CHECK_EQ(cpu->attention_grad(NULL, &g), MLC_OK);
    free(g.workspace);
}

/* A copy of g whose arrays are of the device. */
static struct mlc_k_attention_grad lent(unit *t, const struct mlc_k_attention_grad *g,
                                        int64_t *word)
{
    struct mlc_k_attention_grad l = *g;
    const size_t                offsets = (size_t)(g->f.sequences + 1) * 8;
    void                       *at[PARTS];
    for (int p = 0; p < PARTS; p++) {
        const mlc_dtype d = p < MASK ? g->f.dtype : g->f.mask_dtype;
        const size_t    shift = g->f.d % 3 == 0 && p != LSE ? mlc_dtype_bytes(d) : 0;
        at[p] = g_bytes[p] ? unit_lend_at(t, g_own[p], g_bytes[p], shift) : NULL;
    }
    l.f.q = at[Q], l.f.k = at[K], l.f.v = at[V], l.f.y = at[Y], l.f.lse = at[LSE];
    l.f.mask = at[MASK], l.dy = at[DY], l.dq = at[DQ], l.dk = at[DK], l.dv = at[DV];
    l.dmask = at[DMASK];
    l.f.lengths = (int64_t *)unit_lend(t, g->f.lengths, (size_t)g->f.b * 8);
    l.f.alibi = (float *)unit_lend(t, g->f.alibi, sizeof g_slopes);
    l.f.q_offsets = (int64_t *)unit_lend(t, g->f.q_offsets, offsets);
    l.f.k_offsets = (int64_t *)unit_lend(t, g->f.k_offsets, offsets);
    l.f.drop_base = (uint64_t *)unit_lend(t, g->f.drop_base, 8);
    l.f.error = (int64_t *)unit_lend(t, word, 32);
    l.f.workspace_bytes = t->b.kernels.attention_workspace(t->dev, &l.f);
    l.f.workspace = unit_room(t, l.f.workspace_bytes);
    l.workspace_bytes = t->b.kernels.attention_grad_workspace(t->dev, &l);
    l.workspace = unit_room(t, l.workspace_bytes);
    return l;
}
static void fetch(unit *t, const struct mlc_k_attention_grad *l)
{
    const void *const at[PARTS] = {l->f.q, l->f.k, l->f.v, l->f.y, l->f.lse, l->dy, l->dq, l->dk,
                                   l->dv, l->f.mask, l->dmask};
    for (int p = 0; p < PARTS; p++)
        if (at[p]) unit_fetch(t, g_got[p], at[p], g_bytes[p]);
}

/* All bytes are as on the CPU, those between elements included.   */
static void near_own(const job *j, const char *what)
{
    static const char *const name[] = {"q", "k", "v", "y", "lse", "dy", "dq", "dk", "dv", "mask",
                                       "dmask"};
    const double tol = j->dtype == MLC_F64 ? 1e-13 : j->dtype == MLC_F32 ? 4e-6
                     : j->dtype == MLC_F16 ? 1e-3 : 8e-3;
    for (int p = 0; p < PARTS; p++) {
        mlc_dtype d = p == LSE && j->dtype != MLC_F64 ? MLC_F32 : j->dtype;
        if (p == MASK || p == DMASK) d = j->mask == BOOL_MASK ? MLC_BOOL : j->mask_dtype;
        double most = 0, size = 1;
        for (int64_t i = 0; i < (int64_t)(g_bytes[p] / mlc_dtype_bytes(d)); i++) {
            const double want = test_get(g_own[p], d, i), got = test_get(g_got[p], d, i);
            if (want == got || (want != want && got != got)) continue;
            most = fabs(got - want) <= most ? most : fabs(got - want);
            size = fmax(size, fabs(want));
        }
        if (CHECK(most <= tol * size)) continue;
        printf("  %s: %s of dtype %d, b %d h %d/%d t %d s %d d %d/%d window %d causal %d packed %d "
               "mask %d thin %d layout %d drop %g: off by %g\n", what, name[p], (int)j->dtype,
               (int)j->b, (int)j->h, (int)j->hk, (int)j->t, (int)j->s, (int)j->d, (int)j->dv,
               (int)j->window, j->causal, j->packed, (int)j->mask, j->thin, (int)j->layout, j->drop,
               most);
    }
}

static void agrees(unit *t, const job *j, const char *what)
{
    struct mlc_k_attention_grad g, l;
    int64_t                     word[4] = {0};
    make(j, &g);
    l = lent(t, &g, word);
    CHECK_EQ(t->b.kernels.attention(t->dev, &l.f), MLC_OK);
    CHECK_EQ(t->b.kernels.attention_grad(t->dev, &l), MLC_OK);
    fetch(t, &l);
    unit_fetch(t, word, l.f.error, sizeof word);
    CHECK_EQ(word[0], 0);
    run_own(g);
    near_own(j, what);
    unit_return(t);
}

static int64_t g_draw;
static int64_t draw(int64_t n) { return (int64_t)test_random(23, g_draw++, 0, (double)n); }

static job drawn(void)
{
    static const int64_t   rows[] = {1, 2, 5, 17, 31, 33, 40, 70}, widths[] = {1, 3, 8, 16, 20, 33};
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    job j;
    memset(&j, 0, sizeof j);
    j.dtype = j.mask_dtype = dtypes[draw(5)];
    j.hk = 1 + draw(2);
    j.h = j.hk * (1 + draw(2));
    j.t = draw(20) ? rows[draw(8)] : 0;
    j.s = draw(20) ? rows[draw(8)] : 0;
    j.d = widths[draw(6)];
    j.dv = draw(2) ? j.d : widths[draw(6)];
    j.packed = draw(4) == 0;
    j.lengths = !j.packed && draw(4) == 0;
    j.b = j.packed ? 1 : 1 + draw(2);
    j.causal = draw(2) != 0;
    j.window = draw(3) ? 0 : 1 + draw(20);
    j.alibi = draw(4) == 0;
    j.mask = (mask_kind)draw(MASK_KINDS);
    j.thin = (int)draw(16);
    if (draw(2) && j.dtype != MLC_F64) j.mask_dtype = MLC_F32;
    j.drop = draw(2) ? 0 : draw(8) ? 0.3 : 1;
    j.layout = (place)draw(PLACES);
    j.accumulate = draw(2) != 0;
    return j;
}

TEST(cuda, attention_with_all_it_may_have_is_that_of_the_cpu)
{
    unit t = unit_open();
    g_draw = 0;
    for (int i = 0; i < 60; i++) {
        const job j = drawn();
        agrees(&t, &j, "drawn");
    }
    unit_close(&t);
}

/* Columns of several blocks, of none, d unlike dv; rows and keys of several tiles. */
TEST(cuda, attention_of_wide_heads_and_long_rows_is_that_of_the_cpu)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static const int64_t   sizes[][4] = {{9, 70, 131, 260}, {70, 9, 256, 64}, {150, 140, 5, 130},
                                         {130, 200, 64, 64}, {70, 190, 0, 9},
                                         {1, 64, 4, 4}, {1, 65, 4, 4}};
    unit t = unit_open();
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < 2; k++) {
            job j;
            memset(&j, 0, sizeof j);
            j.dtype = j.mask_dtype = dtypes[(i + 3 * k) % 4];
            j.b = j.h = j.hk = 1;
            j.t = sizes[i][0], j.s = sizes[i][1], j.d = sizes[i][2], j.dv = sizes[i][3];
            j.causal = k == 0;
            j.mask = k ? FLOAT_MASK : NO_MASK;
            j.thin = i % 2 ? 8 : 4;
            j.window = j.t == 1;       /* the last key of a tile, the first one */
            agrees(&t, &j, "long");
        }
    unit_close(&t);
}

/* Rows of q, of keys that some rows do not see, and an additive mask. */
TEST(cuda, attention_of_nan_and_infinities_ends_as_on_the_cpu)
{
    unit t = unit_open();
    for (int k = 0; k < 4; k++) {
        struct mlc_k_attention_grad g, l;
        int64_t                     word[4] = {0};
        job                         j = {MLC_F32, MLC_F32, 1, 1, 1, 9, 9, 4, 4, 0, k == 1, false,
                                         false, false, false, FLOAT_MASK, 0, 0, APART};
        make(&j, &g);
        if (k == 0) test_put(g_own[Q], MLC_F32, 4, NO_NUMBER);
        if (k == 1) test_put(g_own[K], MLC_F32, 5 * 4, NO_NUMBER);
        if (k == 2) test_put(g_own[MASK], MLC_F32, 12, INF);
        for (int64_t i = 0; k == 3 && i < 18; i++) test_put(g_own[MASK], MLC_F32, i, -INF);
        l = lent(&t, &g, word);
        CHECK_EQ(t.b.kernels.attention(t.dev, &l.f), MLC_OK);
        fetch(&t, &l);
        run_own(g);
        for (int64_t i = 0; i < 36; i++) {
            const double want = test_get(g_own[Y], MLC_F32, i);
            const double got = test_get(g_got[Y], MLC_F32, i);
            CHECK(want != want ? got != got : fabs(want - got) < 1e-6);
        }
        CHECK(k != 3 || (test_get(g_got[Y], MLC_F32, 5) == 0 &&
                         test_get(g_got[LSE], MLC_F32, 1) == -INF));
        unit_return(&t);
    }
    unit_close(&t);
}

/* The error word of a call whose arrays then are as they were; offset row of keys is -1 - row. */
static void refused(unit *t, const job *j, int64_t kind, int64_t row, int64_t value,
                    int64_t limit)
{
    struct mlc_k_attention_grad g, l;
    int64_t                     word[4] = {0};
    make(j, &g);
    if (kind == 263) g_lengths[row] = value;
    else if (limit == j->t) g_q_offsets[row] = value;
    else g_k_offsets[row] = value;
    l = lent(t, &g, word);
    CHECK_EQ(t->b.kernels.attention(t->dev, &l.f), MLC_OK);
    fetch(t, &l);
    unit_fetch(t, word, l.f.error, sizeof word);
    const int64_t place = kind == 264 && limit == j->s ? -1 - row : row;
    CHECK(word[0] == kind && word[1] == place && word[2] == value && word[3] == limit);
    CHECK(memcmp(g_own[Y], g_got[Y], g_bytes[Y]) == 0);
    CHECK(memcmp(g_own[LSE], g_got[LSE], g_bytes[LSE]) == 0);
    unit_return(t);
}

TEST(cuda, attention_writes_nothing_where_lengths_or_offsets_are_wrong)
{
    unit t = unit_open();
    job  j = {MLC_F32, MLC_F32, 3, 2, 1, 20, 30, 4, 4, 0, false, true, false, false, false, NO_MASK,
              0, 0, APART};
    refused(&t, &j, 263, 1, 31, 30);
    refused(&t, &j, 263, 2, -1, 30);
    j.b = 1, j.lengths = false, j.packed = true;
    refused(&t, &j, 264, SEQUENCES, 21, 20);
    refused(&t, &j, 264, SEQUENCES, 31, 30);
    refused(&t, &j, 264, 0, -4, 30);
    refused(&t, &j, 264, 2, -7, 20);
    unit_close(&t);
}

TEST(cuda, attention_that_cannot_be_is_refused_before_anything_runs)
{
    unit                        t = unit_open();
    struct mlc_k_attention_grad g;
    memset(&g, 0, sizeof g);
    g.f.dtype = MLC_I32;
    g.f.b = g.f.h = g.f.hk = g.f.t = g.f.s = g.f.d = g.f.dv = 1;
    CHECK_EQ(t.b.kernels.attention(t.dev, &g.f), MLC_ERR_UNSUPPORTED);
    CHECK_EQ(t.b.kernels.attention_grad(t.dev, &g), MLC_ERR_UNSUPPORTED);
    g.f.dtype = MLC_F32;
    g.f.lengths = g_lengths;
    CHECK_EQ(t.b.kernels.attention(t.dev, &g.f), MLC_ERR_INTERNAL);
    CHECK_EQ(t.b.kernels.attention_grad(t.dev, &g), MLC_ERR_INTERNAL);
    unit_close(&t);
}
