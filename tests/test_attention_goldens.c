/* test_attention_goldens.c -- tests of section IMPL.OPS.ATTENTION: all masks together, by PyTorch
 *
 * Configurations, and what f64 gives, are of golden/make_attention_goldens.py. Of y and of each
 * gradient the file has sums with random weights, in which every element has a part. Inputs are
 * made here, multiples that bf16 holds; other dtypes are held against f64, element by element.
 */
#include "mlc_test.h"
#include "golden/golden.h"

enum { B, H, HK, T, S, D, DV, CAUSAL, WINDOW, HAS_SCALE, SCALE, ALIBI, MASK, THIN, AXES, HOLES,
       LAYOUT, WIDE, FIELDS };
enum { STREAM_Q, STREAM_K, STREAM_V, STREAM_DY, STREAM_MASK, STREAM_HOLES, STREAM_ALIBI };
enum { CASES = 160, PARTS = 5, SUMS = 8, ELEMENTS = 4, DIGEST = 1 + SUMS + ELEMENTS,
       MOST = 1 << 17 };

static const char *const PART[PARTS] = {"y", "dq", "dk", "dv", "dmask"};

typedef struct book {
    golden_file f;
    double      c[CASES * FIELDS], want[CASES * PARTS * DIGEST];
} book;

/* y and gradients of q, k, v and a float mask. */
typedef struct result {
    int     parts;
    int64_t n[PARTS];
    double  v[PARTS][MOST];
} result;

static bool book_open(mlc_ctx *ctx, book *b)
{
    b->f = golden_open(ctx, "attention.safetensors");
    mlc_tensor *c = golden_find(&b->f, "cases"), *want = golden_find(&b->f, "want");
    return CHECK_EQ(mlc_numel(c), CASES * FIELDS) && test_read(c, b->c) &&
           CHECK_EQ(mlc_numel(want), CASES * PARTS * DIGEST) && test_read(want, b->want);
}

/* ---- a configuration's inputs ---------------------------------------------------------------- */

/* scale times a number from -64 to 64, plus shift; with holes of that percentage. */
static mlc_tensor *drawn(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, int k, int stream,
                         double scale, double shift, double holes)
{
    static double v[MOST];
    int64_t       n = 1;
    for (int32_t i = 0; i < dims.n; i++) n *= dims.v[i];
    if (!CHECK(n <= MOST)) return NULL;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t seed = (uint64_t)(1000 * k);
        const bool hole = floor(test_random(seed + STREAM_HOLES, i, 0, 100)) < holes;
        v[i] = (floor(test_random(seed + (uint64_t)stream, i, 0, 129)) - 64) * scale + shift;
        if (dtype == MLC_BOOL) v[i] = !hole;
        else if (hole) v[i] = -INF;
    }
    return test_tensor(ctx, dtype, dims, v);
}

/* Heads behind each other, rows of all heads, or columns of a head. */
static mlc_tensor *laid(mlc_tensor *x, int layout)
{
    const mlc_dims order = layout == 1 ? mlc_dims4(0, 2, 1, 3) : mlc_dims4(0, 1, 3, 2);
    mlc_tensor *y = layout ? mlc_permute(mlc_contiguous(mlc_permute(x, order)), order) : x;
    CHECK_EQ(mlc_set_requires_grad(y, true), MLC_OK);
    return y;
}

static mlc_tensor *mask_of(mlc_ctx *ctx, mlc_dtype dtype, const double *c, int k)
{
    const int at[4] = {B, H, T, S}, thin = (int)c[THIN];
    mlc_dims  dims = mlc_dims0();
    if (c[MASK] == 0) return NULL;
    for (int i = 4 - (int)c[AXES]; i < 4; i++)
        dims.v[dims.n++] = thin & 1 << i ? 1 : (int64_t)c[at[i]];
    if (c[MASK] == 1) return drawn(ctx, MLC_BOOL, dims, k, STREAM_MASK, 0, 0, c[HOLES]);
    if (c[WIDE] != 0 && dtype != MLC_F64) dtype = MLC_F32;
    mlc_tensor *mask = drawn(ctx, dtype, dims, k, STREAM_MASK, 1 / 16.0, 0, c[HOLES]);
    CHECK_EQ(mlc_set_requires_grad(mask, true), MLC_OK);
    return mask;
}

static mlc_attention_desc desc_of(mlc_ctx *ctx, mlc_dtype dtype, const book *b, int k)
{
    const double      *c = b->c + k * FIELDS;
    mlc_attention_desc d = mlc_attention_desc_make();
    d.causal = c[CAUSAL] != 0;
    d.window = (int64_t)c[WINDOW];
    d.has_scale = c[HAS_SCALE] != 0;
    d.scale = !d.has_scale ? 0 : c[SCALE] / 64;
    d.mask = mask_of(ctx, dtype, c, k);
    d.key_lengths = golden_find(&b->f, "%d.key_lengths", k);
    d.q_offsets = golden_find(&b->f, "%d.q_offsets", k);
    d.k_offsets = golden_find(&b->f, "%d.k_offsets", k);
    if (c[ALIBI] != 0)
        d.alibi = drawn(ctx, MLC_F32, mlc_dims1((int64_t)c[H]), k, STREAM_ALIBI, 1 / 128.0,
                        65 / 128.0, 0);
    return d;
}

static void run(mlc_ctx *ctx, mlc_dtype dtype, const book *b, int k, result *r)
{
    const double  *c = b->c + k * FIELDS;
    const int64_t  batch = (int64_t)c[B], h = (int64_t)c[H], hk = (int64_t)c[HK];
    const int64_t  t = (int64_t)c[T], s = (int64_t)c[S], d = (int64_t)c[D], dv = (int64_t)c[DV];
    const mlc_dims q = mlc_dims4(batch, h, t, d), y = mlc_dims4(batch, h, t, dv);
    const mlc_dims keys = mlc_dims4(batch, hk, s, d), values = mlc_dims4(batch, hk, s, dv);
    const int      layout = (int)c[LAYOUT];
    mlc_tensor    *part[PARTS], *in[3];
    mlc_scope_begin(ctx);
    const mlc_attention_desc a = desc_of(ctx, dtype, b, k);
    in[0] = laid(drawn(ctx, dtype, q, k, STREAM_Q, 1 / 32.0, 0, 0), layout);
    in[1] = laid(drawn(ctx, dtype, keys, k, STREAM_K, 1 / 32.0, 0, 0), layout);
    in[2] = laid(drawn(ctx, dtype, values, k, STREAM_V, 1 / 64.0, 0, 0), layout);
    part[0] = mlc_attention_ex(in[0], in[1], in[2], &a);
    CHECK_EQ(mlc_backward_from(part[0], drawn(ctx, dtype, y, k, STREAM_DY, 1 / 64.0, 0, 0)),
             MLC_OK);
    for (int i = 0; i < 3; i++) part[1 + i] = mlc_grad(in[i]);
    r->parts = c[MASK] == 2 ? 5 : 4;
    r->n[4] = 1;
    part[4] = mlc_grad(a.mask);
    for (int i = 0; i < r->parts; i++) {
        r->n[i] = mlc_numel(part[i]);
        if (!CHECK(r->n[i] > 0 && r->n[i] <= MOST) || !test_read(part[i], r->v[i])) r->n[i] = 0;
    }
    if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  case %d: %s\n", k, mlc_error(ctx));
}

/* ---- f64 against PyTorch, others against f64 ------------------------------------------------- */

static void check_digest(const result *r, const double *want, int k, int part)
{
    const uint64_t seed = (uint64_t)(1000 * k + 100 + 10 * part);
    const uint64_t places = (uint64_t)(1000 * k + 200 + part);
    const int64_t  n = r->n[part];
    double         got[DIGEST] = {0};
    for (int64_t i = 0; i < n; i++) {
        const double x = r->v[part][i];
        got[0] += x * x;
        for (int p = 0; p < SUMS; p++)
            got[1 + p] += (test_random(seed + (uint64_t)p, i, 0, 2) - 1) * x;
    }
    got[0] = sqrt(got[0]);
    for (int e = 0; e < ELEMENTS && n > 0; e++)
        got[1 + SUMS + e] = r->v[part][(int64_t)floor(test_random(places, e, 0, (double)n))];
    for (int i = 0; i < DIGEST; i++)
        if (!CHECK(fabs(got[i] - want[i]) <= 1e-12 * (1 + want[0])))
            printf("  case %d, %s, number %d: %.17g, want %.17g\n", k, PART[part], i, got[i],
                   want[i]);
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(x[i]) <= most)) most = fabs(x[i]);
    return most;
}

/* error: of y and dv, of the others. It adds up over the scores that an element sums. */
static void check_near(const result *r, const result *want, mlc_dtype dtype, const double error[2],
                       const double *c, int k)
{
    static double off[MOST];
    const double  rows = c[T] * c[H] / c[HK], scores = c[B] * c[H] * c[T] * c[S];
    const double  terms[PARTS] = {1, 1, rows, rows, scores / (double)r->n[4]};
    for (int p = 0; p < r->parts; p++) {
        const double size = largest(want->v[p], want->n[p]) + sqrt(terms[p]);
        if (!CHECK_EQ(r->n[p], want->n[p])) continue;
        for (int64_t i = 0; i < r->n[p]; i++) off[i] = r->v[p][i] - want->v[p][i];
        if (!CHECK(largest(off, r->n[p]) <= error[p != 0 && p != 3] * size))
            printf("  case %d, %s of %s: off by %g of %g\n", k, PART[p], mlc_dtype_name(dtype),
                   largest(off, r->n[p]), size);
    }
}

TEST(attention_goldens, all_kinds_of_masks_together_are_pytorchs)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_BF16, MLC_F16};
    static const double    error[][2] = {{1e-6, 2e-6}, {0.003, 0.03}, {0.0003, 0.002}};
    static book            b;
    static result          wide, r;
    const int step = (int)test_stride(8) * (test_cpu_kernels() ? 1 : 4);
    FOR_EACH_ISA(ctx) {
        if (!book_open(ctx, &b)) return;
        for (int k = 0; k < CASES; k += step) {
            run(ctx, MLC_F64, &b, k, &wide);
            for (int p = 0; p < wide.parts; p++)
                check_digest(&wide, b.want + (k * PARTS + p) * DIGEST, k, p);
            for (int t = 0; t < 3; t++) {
                run(ctx, dtypes[t], &b, k, &r);
                check_near(&r, &wide, dtypes[t], error[t], b.c + k * FIELDS, k);
            }
        }
        CHECK_OK(ctx);
    }
}
