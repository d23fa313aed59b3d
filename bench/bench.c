/* bench.c -- times mlcore: one case after the other, each verified first; see bench.h
 *
 *   make bench                           all cases
 *   make bench CASE='mlp_*'              some
 *   build/bench --list                   their names
 *   make cuda-bench                      on a GPU, beside PyTorch: cases that its kernels can run
 * Names begin with their family: row_ ew_ gemm_ mlp_ infer_ step_ conv_ net_ attn_ features_ sk_
 * overhead_ threads_ optim_ data_ loader_, in bench_train.h loss_ metric_ optim_sched_ callback_
 * train_ mem_, in bench_language.h net_encoder_ gpt_ gen_ mem_gpt_, in bench_recurrent.h rnn_, in
 * bench_quant.h infer_q8_ gen_q8_ gen_q4_, and in bench_sparse.h infer_sparse_.
 * One name may stand for f32 and f64. bench/compare.py runs the same work in PyTorch.        */
#define _GNU_SOURCE
#include "bench.h"
#ifdef BENCH_CUDA
#  include "../mlcore_cuda.h"
#endif
#include "../tests/ew_table.h"
#include "../tests/resnet20.h"

#include <fnmatch.h>

#define DIGITS "examples/data/digits.csv"

typedef struct bench_case bench_case;

/* The column that relates a case to the rate measured beside it: the share of that rate; the time
 * of the case over the time of the other; the microseconds more, for each of k.              */
typedef enum beside_form { BESIDE_SHARE, BESIDE_TIMES, BESIDE_MORE } beside_form;

typedef struct state {                    /* what a case sets up and its loop uses             */
    const bench_case *bc;
    mlc_ctx          *ctx;
    mlc_tensor       *a, *b, *labels;
    mlc_tensor       *p, *q, *row;        /* masks of positive values of a, b; a row of b      */
    mlc_tensor       *index, *rows;       /* [n,n]: an order of each row; [n]: an order of n   */
    mlc_module       *net, **nets;
    int64_t           n_nets, turn;       /* of nets; the next one                             */
    mlc_optim        *opt;
    mlc_loader       *loader;
    mlc_metric       *metric;
    mlc_callback     *callback;
    mlc_cache        *cache;
    mlc_tokenizer    *tokenizer;
    mlc_plan         *plan;
    bench_load        plain;              /* of optim_: a loop over memory of its own           */
    int64_t           inputs;             /* bytes of what setup left: no activations           */
} state;

struct bench_case {
    const char *name;
    mlc_dtype   dtype;
    const char *unit;                     /* of the rate: work per second                      */
    double      work;                     /* of one iteration, in that unit                    */
    double      flops, bytes;             /* of one iteration; 0: no share of that peak        */
    bench_probe probe;                    /* a rate in the same unit, measured between runs    */
    const char *beside;                   /* its name                                          */
    beside_form form;
    bool        one_thread;
    bool      (*setup)(state *s);         /* makes the data, verifies the result               */
    bench_run   run;
    mlc_tensor *(*apply)(state *s);       /* what run_apply repeats                            */
    int         op;                       /* row of the family's table                         */
    int64_t     m, n, k;                  /* sizes; m is the batch of a network                */
};

/* ---- data and checks ---------------------------------------------------------------------- */

static bool is_half(const state *s) { return s->bc->dtype == MLC_BF16 || s->bc->dtype == MLC_F16; }

/* x as the case's dtype holds it. */
static float rounded(const state *s, float x)
{
    if (s->bc->dtype == MLC_F16) return mlc_f16_to(mlc_f16_from(x));
    return s->bc->dtype == MLC_BF16 ? mlc_bf16_to(mlc_bf16_from(x)) : x;
}

/* A tensor of values in [lo, hi); *copy, if asked for, the same as doubles, to be freed. */
static mlc_tensor *values_in(state *s, mlc_dtype dtype, mlc_dims dims, double lo, double hi,
                             double **copy)
{
    static uint64_t seed = 0x9e3779b97f4a7c15u;
    uint64_t        r = seed += 0x632be59bd9b4e019u;
    int64_t         n = 1;
    for (int32_t i = 0; i < dims.n; i++) n *= dims.v[i];
    double *v = (double *)malloc((size_t)n * sizeof *v);
    float  *f = (float *)malloc((size_t)n * sizeof *f);
    for (int64_t i = 0; v && f && i < n; i++) {
        r ^= r << 13; r ^= r >> 7; r ^= r << 17;
        f[i] = (float)(lo + (hi - lo) * (double)(r >> 40) / 16777216.0);
        f[i] = rounded(s, f[i]);
        v[i] = (double)f[i];              /* one value for both dtypes                         */
    }
    mlc_tensor *t = !v || !f ? NULL : dtype == MLC_F64 ? mlc_from(s->ctx, dtype, dims, v)
                                                       : mlc_from(s->ctx, MLC_F32, dims, f);
    t = mlc_cast(t, dtype);
    free(f);
    if (copy) *copy = v;
    else free(v);
    return t;
}

static mlc_tensor *values(state *s, mlc_dims dims, double lo, double hi, double **copy)
{
    return values_in(s, s->bc->dtype, dims, lo, hi, copy);
}

/* Elements of t, of any dtype, as doubles, which the caller frees; NULL on error. */
static double *fetch(mlc_tensor *t)
{
    if (t && t->dtype != MLC_F32) t = mlc_cast(t, MLC_F64);
    size_t  n = (size_t)mlc_numel(t);
    double *v = t ? (double *)malloc((n + 1) * sizeof *v) : NULL;
    float  *f = t ? (float *)malloc((n + 1) * sizeof *f) : NULL;
    bool    ok = v && f;
    if (ok && t->dtype == MLC_F64) ok = mlc_read(t, v, n * sizeof *v) == MLC_OK;
    if (ok && t->dtype == MLC_F32) {
        ok = mlc_read(t, f, n * sizeof *f) == MLC_OK;
        for (size_t i = 0; i < n; i++) v[i] = (double)f[i];
    }
    free(f);
    if (ok) return v;
    free(v);
    return NULL;
}

static mlc_tensor *labels_of(state *s, int64_t n, int64_t classes)
{
    int64_t *y = (int64_t *)malloc((size_t)n * sizeof *y);
    for (int64_t i = 0; y && i < n; i++) y[i] = i * 7 % classes;
    mlc_tensor *t = y ? mlc_from(s->ctx, MLC_I64, mlc_dims1(n), y) : NULL;
    free(y);
    return t;
}

/* Compares to a few units in the last place of the result; scale: how many operations make it. */
static bool near(state *s, const char *what, double got, double want, double scale)
{
    double tol = (s->bc->dtype == MLC_F64 ? 4.5e-16 : 2.4e-7) * scale * fmax(1, fabs(want));
    if (is_half(s)) tol += 0.01 * fmax(1, fabs(want));
    if (fabs(got - want) <= tol) return true;
    fprintf(stderr, "%s %s: WRONG: %s is %.9g, want %.9g\n", s->bc->name,
            mlc_dtype_name(s->bc->dtype), what, got, want);
    return false;
}

/* Seconds since start, after the device has finished all queued work. */
static double spent_since(state *s, double start)
{
    mlc_ctx_sync(s->ctx);
    return bench_now() - start;
}

static double run_apply(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++) {
        mlc_scope_begin(s->ctx);
        s->bc->apply(s);
        mlc_scope_end(s->ctx);
    }
    return spent_since(s, start);
}

/* ---- ew_: elementwise --------------------------------------------------------------------- */

/* What a case calls: f(x), f(x, y) or anything over the state. */
typedef struct ew_op {
    const char  *name;                    /* of the case                                       */
    mlc_tensor *(*one)(mlc_tensor *);
    mlc_tensor *(*two)(mlc_tensor *, mlc_tensor *);
    mlc_tensor *(*any)(state *);
    double      (*ref)(double, double);   /* in doubles                                        */
    ew_more       more;                   /* the range of the inputs                           */
    double        read, written;          /* bytes of an element in f32                        */
} ew_op;

#define EW(name, formula) \
    static double ref_##name(double a, double b) { (void)a; (void)b; return formula; }
#define EW_ANY(name, call, formula) \
    static mlc_tensor *any_##name(state *s) { return call; } \
    EW(name, formula)

/* The rows of the tests' table. */
#define EW_ONE(name, formula, ...) \
    static double ref_##name(double x, double b) { (void)b; return formula; }
#define EW_TWO(name, formula, ...) EW(name, formula)
EW_UNARY(EW_ONE, EW_ONE, EW_ONE)
EW_BINARY(EW_TWO, EW_TWO)
EW(eq, a == b)
EW(ne, a != b)
EW(lt, a < b)
EW(le, a <= b)
EW(gt, a > b)
EW(ge, a >= b)
EW(isnan, 0)
EW(isinf, 0)
EW(isfinite, 1)
EW_ANY(leaky_relu, mlc_leaky_relu(s->a, 0.01), a > 0 ? a : 0.01 * a)
EW_ANY(elu, mlc_elu(s->a, 1), a > 0 ? a : expm1(a))
EW_ANY(celu, mlc_celu(s->a, 2), a > 0 ? a : 2 * expm1(a / 2))
EW_ANY(prelu, mlc_prelu(s->a, s->row), a > 0 ? a : a * b)
EW_ANY(add_scalar, mlc_add_scalar(s->a, 3), a + 3)
EW_ANY(sub_scalar, mlc_sub_scalar(s->a, 3), a - 3)
EW_ANY(mul_scalar, mlc_mul_scalar(s->a, 3), a * 3)
EW_ANY(div_scalar, mlc_div_scalar(s->a, 3), a / 3)
EW_ANY(rsub_scalar, mlc_rsub_scalar(s->a, 3), 3 - a)
EW_ANY(pow_scalar, mlc_pow_scalar(s->a, 2.5), pow(a, 2.5))
EW_ANY(clamp, mlc_clamp(s->a, -1, 1), fmax(-1, fmin(1, a)))
EW_ANY(lt_scalar, mlc_lt_scalar(s->a, 1), a < 1)
EW_ANY(logical_and, mlc_logical_and(s->p, s->q), a > 0 && b > 0)
EW_ANY(logical_or, mlc_logical_or(s->p, s->q), a > 0 || b > 0)
EW_ANY(logical_xor, mlc_logical_xor(s->p, s->q), (a > 0) != (b > 0))
EW_ANY(logical_not, mlc_logical_not(s->p), !(a > 0))
EW_ANY(where, mlc_where(s->p, s->a, s->b), a > 0 ? a : b)
EW_ANY(masked_fill, mlc_masked_fill(s->a, s->p, 3), a > 0 ? 3 : a)
/* Forward and backward: what the form in place saves is in the column of the activations. */
static mlc_tensor *leaky_step(state *s, bool place)
{
    mlc_set_requires_grad(s->a, true);
    mlc_tensor *h = mlc_mul_scalar(s->a, 2);
    mlc_tensor *y = place ? mlc_leaky_relu_(h, 0.01) : mlc_leaky_relu(h, 0.01);
    return mlc_backward_from(y, s->b) == MLC_OK ? y : NULL;
}
EW_ANY(leaky_relu_step, leaky_step(s, false), a > 0 ? 2 * a : 0.01 * 2 * a)
EW_ANY(in_place_leaky_relu_step, leaky_step(s, true), a > 0 ? 2 * a : 0.01 * 2 * a)
EW_ANY(in_place_leaky_relu, mlc_leaky_relu_(s->a, 0.01), a > 0 ? a : 0.01 * a)
EW_ANY(in_place_add, mlc_add_(s->a, s->b), a + b)
EW_ANY(in_place_sigmoid, mlc_sigmoid_(s->a), 1 / (1 + exp(-a)))
EW_ANY(in_place_clamp, mlc_clamp_(s->a, -1, 1), fmax(-1, fmin(1, a)))
EW_ANY(in_place_masked_fill, mlc_masked_fill_(s->a, s->p, 3), a > 0 ? 3 : a)
EW_ANY(in_place_copy, mlc_copy_(s->a, s->b), b)
EW_ANY(in_place_fill, mlc_fill_(s->a, 3), 3)
EW_ANY(add_row, mlc_add(s->a, s->row), a + b)
EW_ANY(add_transposed, mlc_add(s->a, mlc_transpose(s->b, 0, 1)), a + b)

#define OP(name, one, two, any, read, written, ...) \
    { "ew_" #name "_1000x1000", one, two, any, ref_##name, {__VA_ARGS__}, read, written }
#define ONE(name, formula, slope, low, high, ulp, ...) \
    OP(name, mlc_##name, NULL, NULL, 4, 4, __VA_ARGS__),
#define TWO(name, formula, low, high, ulp, ...) OP(name, NULL, mlc_##name, NULL, 8, 4, __VA_ARGS__),
#define TEST1(name)              OP(name, mlc_##name, NULL, NULL, 4, 1, EW_RANGE(-4, 4))
#define TEST2(name)              OP(name, NULL, mlc_##name, NULL, 8, 1, EW_RANGE(-4, 4))
#define ANY(name, read, written) OP(name, NULL, NULL, any_##name, read, written, EW_RANGE(-4, 4))

static const ew_op ews[] = {
    EW_UNARY(ONE, ONE, ONE)
    EW_BINARY(TWO, TWO)
    ANY(leaky_relu, 4, 4), ANY(elu, 4, 4), ANY(celu, 4, 4), ANY(prelu, 4, 4),
    TEST2(eq), TEST2(ne), TEST2(lt), TEST2(le), TEST2(gt), TEST2(ge),
    TEST1(isnan), TEST1(isinf), TEST1(isfinite),
    ANY(add_scalar, 4, 4), ANY(sub_scalar, 4, 4), ANY(mul_scalar, 4, 4), ANY(div_scalar, 4, 4),
    ANY(rsub_scalar, 4, 4),
    OP(pow_scalar, NULL, NULL, any_pow_scalar, 4, 4, EW_RANGE(0.5, 4)),
    ANY(clamp, 4, 4), ANY(lt_scalar, 4, 1),
    ANY(logical_and, 2, 1), ANY(logical_or, 2, 1), ANY(logical_xor, 2, 1), ANY(logical_not, 1, 1),
    ANY(where, 9, 4), ANY(masked_fill, 5, 4),
    ANY(leaky_relu_step, 24, 16), ANY(in_place_leaky_relu_step, 24, 16),
    ANY(in_place_leaky_relu, 4, 4), ANY(in_place_add, 8, 4), ANY(in_place_sigmoid, 4, 4),
    ANY(in_place_clamp, 4, 4),
    ANY(in_place_masked_fill, 5, 4), ANY(in_place_copy, 4, 4), ANY(in_place_fill, 0, 4),
    ANY(add_row, 4, 4), ANY(add_transposed, 8, 4),
};

static mlc_tensor *ew_apply(state *s)
{
    const ew_op *e = &ews[s->bc->op];
    return e->any ? e->any(s) : e->two ? e->two(s->a, s->b) : e->one(s->a);
}

/* b as the case reads it: the first row for every row, or transposed. */
static int64_t ew_at(const ew_op *e, int64_t i, int64_t n)
{
    if (e->any == any_add_row || e->any == any_prelu) return i % n;
    return e->any == any_add_transposed ? i % n * n + i / n : i;
}

static bool ew_setup(state *s)
{
    const ew_op *e = &ews[s->bc->op];
    mlc_dims     dims = mlc_dims2(s->bc->m, s->bc->n);
    double      *a = NULL, *b = NULL, *y;
    bool         ok;
    s->a = values(s, dims, ew_from(&e->more), ew_to(&e->more), &a);
    s->b = values(s, dims, ew_from(&e->more), ew_to(&e->more), &b);
    s->p = mlc_gt_scalar(s->a, 0);
    s->q = mlc_gt_scalar(s->b, 0);
    s->row = mlc_select(s->b, 0, 0);
    mlc_scope_begin(s->ctx);
    y  = fetch(ew_apply(s));
    ok = y && a && b;
    for (int64_t i = 0; ok && i < s->bc->m * s->bc->n; i++)
        ok = near(s, "an element", y[i], e->ref(a[i], b[ew_at(e, i, s->bc->n)]), 16);
    mlc_scope_end(s->ctx);
    free(a);
    free(b);
    free(y);
    return ok;
}

/* ---- ew_, row_: elements that move: joined, turned, picked by an index ---------------------- */

#define MOVE_N 1000                       /* index[r][c] = (7 c + r) % N, rows[r] = 7 r % N      */

typedef struct move_op {
    const char  *name;
    mlc_tensor *(*apply)(state *);
    void       (*ref)(const double *a, const double *b, double *want);
    double        read, written;          /* bytes for each element of a                       */
} move_op;

/* want[i] = formula for all i of a result of rows x cols; r and c its row and column. */
#define MOVE(name, call, rows_, cols_, formula) \
    static mlc_tensor *move_##name(state *s) { return call; } \
    static void ref_##name(const double *a, const double *b, double *want) \
    { \
        const int64_t n = MOVE_N; \
        for (int64_t i = 0; i < (rows_) * (cols_); i++) { \
            const int64_t r = i / (cols_), c = i % (cols_); \
            want[i] = formula; \
            (void)a; (void)b; (void)n; (void)r; (void)c; \
        } \
    }

static mlc_tensor *join(state *s, int32_t axis, bool stack)
{
    mlc_tensor *list[2] = { s->a, s->b };
    return stack ? mlc_stack(list, 2, axis) : mlc_concat(list, 2, axis);
}

static mlc_tensor *padded(state *s, int64_t border, mlc_pad_mode mode)
{
    return mlc_pad(s->a, mlc_dims2(border, border), mlc_dims2(border, border), mode, 3);
}

/* dy of an index_select added into the rows it came from: the gradient of an embedding. */
static mlc_tensor *embedding(state *s)
{
    mlc_tensor *y = mlc_index_select(s->a, 0, s->rows);
    mlc_backward_from(y, s->b);
    mlc_zero_grad(s->a);
    return y;
}

static mlc_tensor *einsum(state *s)
{
    mlc_tensor *in[2] = { mlc_reshape(s->a, mlc_dims4(10, 10, 100, 100)),
                          mlc_reshape(s->b, mlc_dims4(10, 10, 100, 100)) };
    return mlc_sum(mlc_einsum("bqhd,bkhd->bhqk", in, 2), mlc_dims1(-1), false);
}

static int64_t mirrored(int64_t i, int64_t n) { return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; }

MOVE(concat, join(s, 0, false), 2 * n, n, r < n ? a[i] : b[i - n * n])
MOVE(concat_columns, join(s, 1, false), n, 2 * n, c < n ? a[r * n + c] : b[r * n + c - n])
MOVE(stack_last, join(s, 2, true), n * n, 2, c ? b[r] : a[r])
MOVE(pad, padded(s, 1, MLC_PAD_CONSTANT), n + 2, n + 2,
     r < 1 || c < 1 || r > n || c > n ? 3 : a[(r - 1) * n + c - 1])
MOVE(pad_reflect, padded(s, 2, MLC_PAD_REFLECT), n + 4, n + 4,
     a[mirrored(r - 2, n) * n + mirrored(c - 2, n)])
MOVE(flip, mlc_flip(s->a, mlc_dims1(1)), n, n, a[r * n + n - 1 - c])
MOVE(flip_rows, mlc_flip(s->a, mlc_dims1(0)), n, n, a[(n - 1 - r) * n + c])
MOVE(roll, mlc_roll(s->a, 3, 1), n, n, a[r * n + (c + n - 3) % n])
MOVE(tile, mlc_tile(s->a, mlc_dims2(2, 2)), 2 * n, 2 * n, a[r % n * n + c % n])
MOVE(repeat, mlc_repeat(s->a, 2, 1), n, 2 * n, a[r * n + c / 2])
MOVE(tril, mlc_tril(s->a, 0), n, n, c <= r ? a[i] : 0)
MOVE(diag, mlc_diag(s->row, 0), n, n, r == c ? b[r] : 0)
MOVE(eye, mlc_eye(s->ctx, s->bc->dtype, MOVE_N, MOVE_N), n, n, r == c)
MOVE(linspace, mlc_linspace(s->ctx, s->bc->dtype, 0, MOVE_N * MOVE_N - 1, MOVE_N * MOVE_N), n, n,
     (double)i)
MOVE(one_hot, mlc_cast(mlc_one_hot(s->rows, MOVE_N), s->bc->dtype), n, n, c == 7 * r % n)
MOVE(unfold, mlc_copy(mlc_unfold(s->a, 1, 4, 4)), n, n, a[i])
MOVE(gather, mlc_gather(s->a, 1, s->index), n, n, a[r * n + (7 * c + r) % n])
MOVE(gather_columns, mlc_gather(s->a, 0, s->index), n, n, a[(7 * c + r) % n * n + c])
MOVE(scatter, mlc_scatter(s->a, 1, s->index, s->b), n, n, b[r * n + (c - r + n) * 143 % n])
MOVE(scatter_add, mlc_scatter_add(s->a, 1, s->index, s->b), n, n,
     a[i] + b[r * n + (c - r + n) * 143 % n])
MOVE(index_select, mlc_index_select(s->a, 0, s->rows), n, n, a[7 * r % n * n + c])
MOVE(index_select_columns, mlc_index_select(s->a, 1, s->rows), n, n, a[r * n + 7 * c % n])
MOVE(embedding_grad, embedding(s), n, n, a[7 * r % n * n + c])
MOVE(take, mlc_take(s->a, s->index), n, n, a[(7 * c + r) % n])
static mlc_tensor *move_masked_select(state *s) { return mlc_masked_select(s->a, s->p); }
static void ref_masked_select(const double *a, const double *b, double *want)
{
    (void)b;
    for (int64_t i = 0; i < MOVE_N * MOVE_N; i++) if (a[i] > 0) *want++ = a[i];
}

static mlc_tensor *move_nonzero(state *s)
{
    return mlc_cast(mlc_nonzero(s->p), s->bc->dtype);
}
static void ref_nonzero(const double *a, const double *b, double *want)
{
    (void)b;
    for (int64_t i = 0; i < MOVE_N * MOVE_N; i++) {
        if (!(a[i] > 0)) continue;
        *want++ = (double)(i / MOVE_N);
        *want++ = (double)(i % MOVE_N);
    }
}

static mlc_tensor *move_einsum(state *s) { return einsum(s); }
static void ref_einsum(const double *a, const double *b, double *want)
{
    for (int64_t i = 0; i < 10000; i++) {                  /* [batch, head, query]: see einsum */
        const int64_t batch = i / 1000, head = i / 10 % 100, query = i % 10;
        want[i] = 0;
        for (int64_t k = 0; k < 10; k++)
            for (int64_t d = 0; d < 100; d++)
                want[i] += a[((batch * 10 + query) * 100 + head) * 100 + d] *
                           b[((batch * 10 + k) * 100 + head) * 100 + d];
    }
}

#define EW_MOVE(name, read, written)  { "ew_" #name "_1000x1000", move_##name, ref_##name, read, \
                                        written }
#define ROW_MOVE(name, read, written) { "row_" #name "_1000x1000", move_##name, ref_##name, read, \
                                        written }

static const move_op moves[] = {
    EW_MOVE(concat, 8, 8), EW_MOVE(concat_columns, 8, 8), EW_MOVE(stack_last, 8, 8),
    EW_MOVE(pad, 4, 4), EW_MOVE(pad_reflect, 4, 4), EW_MOVE(flip, 4, 4), EW_MOVE(flip_rows, 4, 4),
    EW_MOVE(roll, 4, 4), EW_MOVE(tile, 4, 16), EW_MOVE(repeat, 4, 8), EW_MOVE(tril, 2, 4),
    EW_MOVE(diag, 0, 4), EW_MOVE(eye, 0, 4), EW_MOVE(linspace, 0, 4), EW_MOVE(one_hot, 0, 8),
    EW_MOVE(unfold, 4, 4),
    ROW_MOVE(gather, 12, 4), ROW_MOVE(gather_columns, 12, 4), ROW_MOVE(scatter, 16, 4),
    ROW_MOVE(scatter_add, 16, 4), ROW_MOVE(index_select, 4, 4),
    ROW_MOVE(index_select_columns, 4, 4), ROW_MOVE(embedding_grad, 8, 8), ROW_MOVE(take, 12, 4),
    ROW_MOVE(masked_select, 3, 2), ROW_MOVE(nonzero, 1, 8), ROW_MOVE(einsum, 8, 4),
};

static mlc_tensor *move_apply(state *s) { return moves[s->bc->op].apply(s); }

static mlc_tensor *indices(state *s, int64_t rows)
{
    int64_t    *v = (int64_t *)malloc((size_t)(rows * MOVE_N) * sizeof *v);
    mlc_tensor *t = NULL;
    for (int64_t i = 0; v && i < rows * MOVE_N; i++)
        v[i] = (7 * (i % MOVE_N) + i / MOVE_N) % MOVE_N;
    if (v) t = mlc_from(s->ctx, MLC_I64, mlc_dims2(rows, MOVE_N), v);
    free(v);
    return t;
}

static bool move_setup(state *s)
{
    const mlc_dims dims = mlc_dims2(MOVE_N, MOVE_N);
    double        *a = NULL, *b = NULL, *y, *want = (double *)malloc(4 * MOVE_N * MOVE_N * 8);
    bool           ok;
    s->a     = values(s, dims, -4, 4, &a);
    s->b     = values(s, dims, -4, 4, &b);
    s->p     = mlc_gt_scalar(s->a, 0);
    s->row   = mlc_select(s->b, 0, 0);
    s->index = indices(s, MOVE_N);
    s->rows  = mlc_select(indices(s, 1), 0, 0);
    mlc_set_requires_grad(s->a, strcmp(s->bc->name, "row_embedding_grad_1000x1000") == 0);
    mlc_scope_begin(s->ctx);
    mlc_tensor *t = move_apply(s);
    y  = fetch(t);
    ok = y && a && b && want;
    if (ok) moves[s->bc->op].ref(a, b, want);
    const bool sums = moves[s->bc->op].apply == move_einsum;          /* of 1000 products      */
    for (int64_t i = 0; ok && i < mlc_numel(t); i++)
        ok = near(s, "an element", y[i], want[i], sums ? 4096 : 64);
    mlc_scope_end(s->ctx);
    free(a);
    free(b);
    free(y);
    free(want);
    return ok;
}

/* ---- row_: lines of a matrix, each to a number or to numbers ------------------------------- */

#define LINE_TOP 10                       /* of topk                                            */

typedef struct line_op {
    const char  *name;
    mlc_tensor *(*apply)(state *);        /* along axis bc->k                                   */
    void       (*ref)(const double *x, int64_t n, double *y);
    int64_t      made;                    /* numbers a line makes                               */
    double       lo, hi;                  /* of the inputs                                      */
    double       read, written;           /* bytes of an element, of a number made, in f32      */
} line_op;

/* A line of n is folded: v begins as init, becomes step for each x[j], the result is formula. */
#define LINE(name, call, init, step, formula) \
    static mlc_tensor *line_##name(state *s) { return call; } \
    static void line_ref_##name(const double *x, int64_t n, double *y) \
    { \
        double v = init; \
        for (int64_t j = 0; j < n; j++) v = step; \
        *y = formula; \
    }
#define ALONG mlc_dims1(s->bc->k), false

LINE(sum, mlc_sum(s->a, ALONG), 0, v + x[j], v)
LINE(mean, mlc_mean(s->a, ALONG), 0, v + x[j], v / (double)n)
LINE(prod, mlc_prod(s->a, ALONG), 1, v * x[j], v)
LINE(max, mlc_max(s->a, ALONG), x[0], fmax(v, x[j]), v)
LINE(min, mlc_min(s->a, ALONG), x[0], fmin(v, x[j]), v)
LINE(any, mlc_any(s->p, ALONG), 0, v != 0 || x[j] > 0, v)
LINE(all, mlc_all(s->p, ALONG), 1, v != 0 && x[j] > 0, v)
LINE(norm, mlc_norm(s->a, 2, ALONG), 0, v + x[j] * x[j], sqrt(v))
LINE(norm_1, mlc_norm(s->a, 1, ALONG), 0, v + fabs(x[j]), v)
LINE(logsumexp, mlc_logsumexp(s->a, ALONG), 0, v + exp(x[j]), log(v))
LINE(argmax, mlc_argmax(s->a, (int32_t)s->bc->k, false), 0, x[j] > x[(int)v] ? (double)j : v, v)
LINE(argmin, mlc_argmin(s->a, (int32_t)s->bc->k, false), 0, x[j] < x[(int)v] ? (double)j : v, v)
LINE(cumsum, mlc_cumsum(s->a, (int32_t)s->bc->k), 0, y[j] = v + x[j], *y)
LINE(cumprod, mlc_cumprod(s->a, (int32_t)s->bc->k), 1, y[j] = v * x[j], *y)

static mlc_tensor *line_var(state *s) { return mlc_var(s->a, mlc_dims1(s->bc->k), 1, false); }
static mlc_tensor *line_std(state *s) { return mlc_std(s->a, mlc_dims1(s->bc->k), 1, false); }
static void line_ref_var(const double *x, int64_t n, double *y)
{
    double mean = 0;
    for (int64_t j = 0; j < n; j++) mean += x[j] / (double)n;
    for (int64_t j = *y = 0; j < n; j++) *y += (x[j] - mean) * (x[j] - mean) / (double)(n - 1);
}
static void line_ref_std(const double *x, int64_t n, double *y)
{
    line_ref_var(x, n, y);
    *y = sqrt(*y);
}

/* Places of numbers by value, equal ones by place: what a stable sort makes. */
static int by_value(const void *a, const void *b)
{
    const double *x = *(const double *const *)a, *y = *(const double *const *)b;
    return *x != *y ? (*x > *y) - (*x < *y) : (x > y) - (x < y);
}

static void line_ref_argsort(const double *x, int64_t n, double *y)
{
    const double *at[MOVE_N];
    for (int64_t j = 0; j < n; j++) at[j] = x + j;
    qsort(at, (size_t)n, sizeof *at, by_value);
    for (int64_t j = 0; j < n; j++) y[j] = (double)(at[j] - x);
}
static void line_ref_sort(const double *x, int64_t n, double *y)
{
    line_ref_argsort(x, n, y);
    for (int64_t j = 0; j < n; j++) y[j] = x[(int64_t)y[j]];
}
static void line_ref_topk(const double *x, int64_t n, double *y)
{
    double sorted[MOVE_N];
    line_ref_sort(x, n, sorted);
    for (int64_t j = 0; j < LINE_TOP; j++) y[j] = sorted[n - 1 - j];
}

static mlc_tensor *line_sort(state *s) { return mlc_sort(s->a, (int32_t)s->bc->k, false, NULL); }
static mlc_tensor *line_argsort(state *s) { return mlc_argsort(s->a, (int32_t)s->bc->k, false); }
static mlc_tensor *line_topk(state *s)
{
    return mlc_topk(s->a, LINE_TOP, (int32_t)s->bc->k, true, NULL);
}

#define LINE_OP(name, made, lo, hi, read, written) \
    { #name, line_##name, line_ref_##name, made, lo, hi, read, written }

static const line_op lines[] = {
    LINE_OP(sum, 1, -4, 4, 4, 4), LINE_OP(mean, 1, -4, 4, 4, 4), LINE_OP(prod, 1, 0.9, 1.1, 4, 4),
    LINE_OP(max, 1, -4, 4, 4, 4), LINE_OP(min, 1, -4, 4, 4, 4),
    LINE_OP(any, 1, -4, -0.1, 1, 1), LINE_OP(all, 1, 0.1, 4, 1, 1),
    LINE_OP(var, 1, -4, 4, 4, 4), LINE_OP(std, 1, -4, 4, 4, 4), LINE_OP(norm, 1, -4, 4, 4, 4),
    LINE_OP(norm_1, 1, -4, 4, 4, 4), LINE_OP(logsumexp, 1, -4, 4, 4, 4),
    LINE_OP(argmax, 1, -4, 4, 4, 8), LINE_OP(argmin, 1, -4, 4, 4, 8),
    LINE_OP(cumsum, MOVE_N, -4, 4, 4, 4), LINE_OP(cumprod, MOVE_N, 0.9, 1.1, 4, 4),
    LINE_OP(sort, MOVE_N, -4, 4, 4, 4), LINE_OP(argsort, MOVE_N, -4, 4, 4, 8),
    LINE_OP(topk, LINE_TOP, -4, 4, 4, 4),
};

static mlc_tensor *line_apply(state *s) { return lines[s->bc->op].apply(s); }

/* Line i of n numbers, at x: of a row their step is 1. Writes what the case should have made. */
static bool line_check(state *s, const double *x, int64_t step, const double *got)
{
    const line_op *op = &lines[s->bc->op];
    double         line[MOVE_N], want[MOVE_N];
    for (int64_t j = 0; j < MOVE_N; j++) line[j] = x[j * step];
    op->ref(line, MOVE_N, want);
    for (int64_t j = 0; j < op->made; j++)
        if (!near(s, "a line", got[j * step], want[j], op->ref == line_ref_cumsum ? 4096 : 128))
            return false;
    return true;
}

static bool line_setup(state *s)
{
    const line_op *op = &lines[s->bc->op];
    const bool     rows = s->bc->k == 1;
    double        *x = NULL, *y;
    bool           ok;
    s->a = values(s, mlc_dims2(MOVE_N, MOVE_N), op->lo, op->hi, &x);
    s->p = mlc_gt_scalar(s->a, 0);
    mlc_scope_begin(s->ctx);
    y  = fetch(line_apply(s));
    ok = x && y;
    for (int64_t i = 0; ok && i < MOVE_N; i++)
        ok = rows ? line_check(s, x + i * MOVE_N, 1, y + i * op->made)
                  : line_check(s, x + i, MOVE_N, y + i);
    mlc_scope_end(s->ctx);
    free(x);
    free(y);
    return ok;
}

/* ---- ew_, row_: random numbers ------------------------------------------------------------- */

typedef struct draw_op {
    const char  *name;
    mlc_tensor *(*apply)(state *);
    double       mean, lo, hi;            /* of the values drawn                                */
    double       written;                 /* bytes of an element                                */
} draw_op;

#define DRAW(name, call) \
    static mlc_tensor *draw_##name(state *s) { return call; }
#define DRAWN s->ctx, MLC_F32, mlc_dims2(MOVE_N, MOVE_N)

DRAW(uniform, mlc_uniform(DRAWN, 0, 1))
DRAW(normal, mlc_normal(DRAWN, 0, 1))
DRAW(truncated_normal, mlc_truncated_normal(DRAWN, 0, 1, -2, 2))
DRAW(bernoulli, mlc_bernoulli(DRAWN, 0.5))
DRAW(dropout, mlc_dropout(s->p, 0.5))
DRAW(randint, mlc_randint(s->ctx, MLC_I64, mlc_dims2(MOVE_N, MOVE_N), 0, 100))
DRAW(randperm, mlc_randperm(s->ctx, MOVE_N * MOVE_N))
DRAW(multinomial, mlc_multinomial(s->p, MOVE_N, true))

static const draw_op draws[] = {
    { "ew_uniform", draw_uniform, 0.5, 0, 1, 4 }, { "ew_normal", draw_normal, 0, -9, 9, 4 },
    { "ew_truncated_normal", draw_truncated_normal, 0, -2, 2, 4 },
    { "ew_bernoulli", draw_bernoulli, 0.5, 0, 1, 4 }, { "ew_dropout", draw_dropout, 1, 0, 2, 8 },
    { "ew_randint", draw_randint, 49.5, 0, 99, 8 },
    { "row_randperm", draw_randperm, 499999.5, 0, 999999, 8 },
    { "row_multinomial", draw_multinomial, 499.5, 0, 999, 8 },
};

static mlc_tensor *draw_apply(state *s) { return draws[s->bc->op].apply(s); }

/* The values themselves are the test program's care: here their range and mean. */
static bool draw_setup(state *s)
{
    const draw_op *op = &draws[s->bc->op];
    double         sum = 0, *y;
    bool           ok;
    s->p = mlc_ones(s->ctx, MLC_F32, mlc_dims2(MOVE_N, MOVE_N));
    mlc_scope_begin(s->ctx);
    y  = fetch(draw_apply(s));
    ok = y != NULL;
    for (int64_t i = 0; ok && i < MOVE_N * MOVE_N; i++) {
        ok = y[i] >= op->lo && y[i] <= op->hi;
        sum += y[i] / (MOVE_N * MOVE_N);
    }
    if (!ok || fabs(sum - op->mean) > 0.01 * fmax(1, op->mean)) {
        fprintf(stderr, "%s: WRONG: the mean is %.9g, want about %g\n", op->name, sum, op->mean);
        ok = false;
    }
    mlc_scope_end(s->ctx);
    free(y);
    return ok;
}

/* ---- ew_, row_: one function there and back, its gradient from one that comes in ------------- */

#define NORM_EPS    1e-5
#define GRAD_WIDTHS 7
#define GRAD_MOST   1024

/* Elements of a row; rows of about a million in all. */
static const int grad_widths[GRAD_WIDTHS] = { 1000, 16, 54, 64, 128, 256, 1024 };

typedef struct grad_op {
    const char  *name;                    /* of both cases; the second one ends in _grad        */
    mlc_tensor *(*apply)(state *);
    /* Row x of n to y and, from dy, to dx; s->row is the weight and the bias.                   */
    void       (*ref)(state *s, const double *x, const double *dy, const double *w, int64_t n,
                      double *y, double *dx);
} grad_op;

static void grad_ref_gelu(state *s, const double *x, const double *dy, const double *w,
                          int64_t n, double *y, double *dx)
{
    (void)s;
    (void)w;
    for (int64_t j = 0; j < n; j++) {
        const double half = 0.5 * erfc(-x[j] / sqrt(2.0));
        y[j]  = x[j] * half;
        dx[j] = dy[j] * (half + x[j] * exp(-0.5 * x[j] * x[j]) * 0.3989422804014327);
    }
}
static void grad_ref_tanh(state *s, const double *x, const double *dy, const double *w,
                          int64_t n, double *y, double *dx)
{
    (void)s;
    (void)w;
    for (int64_t j = 0; j < n; j++) {
        y[j]  = tanh(x[j]);
        dx[j] = dy[j] * (1 - y[j] * y[j]);
    }
}
static void grad_ref_softmax(state *s, const double *x, const double *dy, const double *w,
                             int64_t n, double *y, double *dx)
{
    (void)s;
    double lse, dot = 0;
    (void)w;
    line_ref_logsumexp(x, n, &lse);
    for (int64_t j = 0; j < n; j++) y[j] = exp(x[j] - lse);
    for (int64_t j = 0; j < n; j++) dot += y[j] * dy[j];
    for (int64_t j = 0; j < n; j++) dx[j] = y[j] * (dy[j] - dot);
}
static void grad_ref_log_softmax(state *s, const double *x, const double *dy, const double *w,
                                 int64_t n, double *y, double *dx)
{
    double lse, sum = 0;
    (void)w;
    line_ref_logsumexp(x, n, &lse);
    for (int64_t j = 0; j < n; j++) sum += dy[j];
    for (int64_t j = 0; j < n; j++) y[j] = x[j] - lse;
    for (int64_t j = 0; j < n; j++) {     /* of the result as backward finds it                 */
        const double kept = is_half(s) ? (double)rounded(s, (float)y[j]) : y[j];
        dx[j] = dy[j] - exp(kept) * sum;
    }
}
static void norm_ref(const double *x, const double *dy, const double *w, int64_t n, double *y,
                     double *dx, bool rms)
{
    double mean = 0, var = 0, g = 0, gh = 0;
    for (int64_t j = 0; j < n && !rms; j++) mean += x[j] / (double)n;
    for (int64_t j = 0; j < n; j++) var += (x[j] - mean) * (x[j] - mean) / (double)n;
    const double r = 1 / sqrt(var + NORM_EPS);
    for (int64_t j = 0; j < n; j++) {
        const double h = (x[j] - mean) * r;
        y[j] = h * w[j] + (rms ? 0 : w[j]);
        if (!rms) g += dy[j] * w[j] / (double)n;
        gh += dy[j] * w[j] * h / (double)n;
    }
    for (int64_t j = 0; j < n; j++) dx[j] = r * (dy[j] * w[j] - g - (x[j] - mean) * r * gh);
}
static void grad_ref_layer_norm(state *s, const double *x, const double *dy, const double *w,
                                int64_t n, double *y, double *dx)
{
    (void)s;
    norm_ref(x, dy, w, n, y, dx, false);
}
static void grad_ref_rms_norm(state *s, const double *x, const double *dy, const double *w,
                              int64_t n, double *y, double *dx)
{
    (void)s;
    norm_ref(x, dy, w, n, y, dx, true);
}

static mlc_tensor *grad_gelu(state *s) { return mlc_gelu(s->a); }
static mlc_tensor *grad_tanh(state *s) { return mlc_tanh(s->a); }
static mlc_tensor *grad_softmax(state *s) { return mlc_softmax(s->a, 1); }
static mlc_tensor *grad_log_softmax(state *s) { return mlc_log_softmax(s->a, 1); }
static mlc_tensor *grad_layer_norm(state *s)
{
    return mlc_layer_norm(s->a, s->row, s->row, NORM_EPS);
}
static mlc_tensor *grad_rms_norm(state *s) { return mlc_rms_norm(s->a, s->row, NORM_EPS); }

/* The forward of an elementwise function is a case of its own: see ews.   */
static const grad_op grads[] = {
    { "ew_gelu", grad_gelu, grad_ref_gelu }, { "ew_tanh", grad_tanh, grad_ref_tanh },
    { "row_softmax", grad_softmax, grad_ref_softmax },
    { "row_log_softmax", grad_log_softmax, grad_ref_log_softmax },
    { "row_layer_norm", grad_layer_norm, grad_ref_layer_norm },
    { "row_rms_norm", grad_rms_norm, grad_ref_rms_norm },
};

static mlc_tensor *grad_apply(state *s)
{
    mlc_tensor *y = grads[s->bc->op].apply(s);
    if (s->bc->k == 0) return y;
    mlc_backward_from(y, s->b);
    mlc_zero_grad(s->a);
    mlc_zero_grad(s->row);
    return y;
}

static bool grad_setup(state *s)
{
    const int64_t m = s->bc->m, n = s->bc->n;
    double *x = NULL, *dy = NULL, *w = NULL, *y, *dx, want[2][GRAD_MOST];
    bool    ok;
    s->a   = values(s, mlc_dims2(m, n), -4, 4, &x);
    s->b   = values(s, mlc_dims2(m, n), -1, 1, &dy);
    s->row = values(s, mlc_dims1(n), -1, 1, &w);
    mlc_set_requires_grad(s->a, s->bc->k != 0);
    mlc_set_requires_grad(s->row, s->bc->k != 0);
    mlc_scope_begin(s->ctx);
    mlc_tensor *t = grads[s->bc->op].apply(s);
    if (s->bc->k) mlc_backward_from(t, s->b);
    y  = fetch(t);
    dx = s->bc->k ? fetch(mlc_grad(s->a)) : NULL;
    ok = x && dy && w && y && (dx || !s->bc->k);
    for (int64_t i = 0; ok && i < m * n; i++) {
        if (i % n == 0) grads[s->bc->op].ref(s, x + i, dy + i, w, n, want[0], want[1]);
        ok = near(s, "an element", y[i], want[0][i % n], 32) &&
             (!dx || near(s, "a gradient", dx[i], want[1][i % n], 32));
    }
    mlc_zero_grad(s->a);
    mlc_zero_grad(s->row);
    mlc_scope_end(s->ctx);
    free(x);
    free(dy);
    free(w);
    free(y);
    free(dx);
    return ok;
}

/* ---- attn_: attention of random q, k, v; attn_step_: with their gradients -------------------- */

typedef struct attn_of { const char *name; int64_t b, h, t, d; bool causal; } attn_of;

static const attn_of attns[] = {
    { "b8_h6_t256_d64", 8, 6, 256, 64, false }, { "b1_h12_t1024_d64", 1, 12, 1024, 64, false },
    { "b1_h8_t4096_d64_causal", 1, 8, 4096, 64, true },
};

static mlc_tensor *attn_back(state *s, mlc_tensor *y)
{
    if (!s->bc->k) return y;
    mlc_backward_from(y, s->q);
    mlc_zero_grad(s->a);
    mlc_zero_grad(s->b);
    mlc_zero_grad(s->p);
    return y;
}

static mlc_tensor *attn_apply(state *s)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    d.causal = attns[s->bc->op].causal;
    return attn_back(s, mlc_attention_ex(s->a, s->b, s->p, &d));
}

/* Row i of one head, y and dq of d elements each; x: q, k, v, dy of the head. */
static void attn_ref(const attn_of *o, double *const x[4], int64_t i, double *y, double *dq)
{
    static double  p[4096];
    const int64_t  d = o->d, n = o->causal ? i + 1 : o->t;
    const double  *q = x[0] + i * d, *dy = x[3] + i * d;
    double         sum = 0, less = 0;
    for (int64_t j = 0; j < n; j++) {
        double dot = 0;
        for (int64_t e = 0; e < d; e++) dot += q[e] * x[1][j * d + e];
        sum += p[j] = exp(dot / sqrt((double)d));
    }
    for (int64_t e = 0; e < d; e++) y[e] = dq[e] = 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t e = 0; e < d; e++) y[e] += p[j] / sum * x[2][j * d + e];
    for (int64_t e = 0; e < d; e++) less += y[e] * dy[e];
    for (int64_t j = 0; j < n; j++) {
        double dp = -less;
        for (int64_t e = 0; e < d; e++) dp += dy[e] * x[2][j * d + e];
        for (int64_t e = 0; e < d; e++)
            dq[e] += p[j] / sum * dp * x[1][j * d + e] / sqrt((double)d);
    }
}

static bool attn_setup(state *s)
{
    const attn_of *o = &attns[s->bc->op];
    const mlc_dims dims = mlc_dims4(o->b, o->h, o->t, o->d);
    const int64_t  size = o->t * o->d, head = (o->b * o->h - 1) * size, i = o->t - 2;
    double        *x[4] = { NULL }, want[2][64], *y, *dq;
    mlc_attention_desc d = mlc_attention_desc_make();
    d.causal = o->causal;
    s->a = values(s, dims, -1, 1, &x[0]);
    s->b = values(s, dims, -1, 1, &x[1]);
    s->p = values(s, dims, -1, 1, &x[2]);
    s->q = values(s, dims, -1, 1, &x[3]);
    mlc_set_requires_grad(s->a, s->bc->k);
    mlc_set_requires_grad(s->b, s->bc->k);
    mlc_set_requires_grad(s->p, s->bc->k);
    mlc_scope_begin(s->ctx);
    mlc_tensor *t = mlc_attention_ex(s->a, s->b, s->p, &d);
    if (s->bc->k) mlc_backward_from(t, s->q);
    y  = fetch(mlc_contiguous(t));
    dq = s->bc->k ? fetch(mlc_grad(s->a)) : NULL;
    bool ok = x[0] && x[1] && x[2] && x[3] && y && (dq || !s->bc->k);
    double *last[4];
    for (int k = 0; k < 4; k++) last[k] = x[k] + head;
    if (ok) attn_ref(o, last, i, want[0], want[1]);
    for (int64_t e = 0; ok && e < o->d; e++)
        ok = near(s, "an element", y[head + i * o->d + e], want[0][e], 32) &&
             (!dq || near(s, "a gradient", dq[head + i * o->d + e], want[1][e], 32));
    mlc_zero_grad(s->a);
    mlc_zero_grad(s->b);
    mlc_zero_grad(s->p);
    mlc_scope_end(s->ctx);
    for (int k = 0; k < 4; k++) free(x[k]);
    free(y);
    free(dq);
    return ok;
}

/* ---- features_: causal attention by random features, beside exact attention ------------------ */

enum { FEATURES_HEADS = 4, FEATURES_ROWS = 4096, FEATURES_SIZE = 64 };

/* Of scores times scale, whose deviation is 1 without it. */
static mlc_tensor *features_y(state *s, bool exact, double scale)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    d.causal    = true;
    d.has_scale = true;
    d.scale     = scale / sqrt((double)FEATURES_SIZE);
    return exact ? mlc_attention_ex(s->a, s->b, s->p, &d)
                 : mlc_features_attention(s->a, s->b, s->p, s->row, MLC_FEATURES_SOFTMAX, &d);
}

static mlc_tensor *features_apply(state *s) { return attn_back(s, features_y(s, false, 1)); }

static void features_probe(void *arg, double rate[2])
{
    state       *s     = (state *)arg;
    const double start = bench_now();
    mlc_scope_begin(s->ctx);
    attn_back(s, features_y(s, true, 1));
    mlc_scope_end(s->ctx);
    rate[0] = s->bc->work / spent_since(s, start);
}

/* |y - exact| / |exact|. */
static double features_error(state *s, double scale)
{
    mlc_scope_begin(s->ctx);
    mlc_tensor  *exact = features_y(s, true, scale);
    mlc_tensor  *apart = mlc_sub(features_y(s, false, scale), exact);
    const double error = sqrt(mlc_item(mlc_sum_all(mlc_square(apart))) /
                              mlc_item(mlc_sum_all(mlc_square(exact))));
    mlc_scope_end(s->ctx);
    return error;
}

/* Prints errors, and holds that of small scores to 1/2: y = 0 has 1. */
static bool features_setup(state *s)
{
    const mlc_dims     dims = mlc_dims4(1, FEATURES_HEADS, FEATURES_ROWS, FEATURES_SIZE);
    mlc_tensor       **of[] = { &s->a, &s->b, &s->p };
    mlc_features_desc  f    = mlc_features_desc_make();
    f.n        = s->bc->n;
    f.has_seed = true;
    for (int i = 0; i < 3; i++) {
        *of[i] = values(s, dims, -1.7320508, 1.7320508, NULL);
        mlc_set_requires_grad(*of[i], s->bc->k);
    }
    s->q   = values(s, dims, -1, 1, NULL);
    s->row = mlc_features(s->ctx, FEATURES_SIZE, &f);
    const double small = features_error(s, 1.0 / 16);
    fprintf(stderr, "%s: |y - exact| / |exact| where scores deviate by 1/16, 1/4, 1: %.3f, %.3f, "
            "%.2f\n", s->bc->name, small, features_error(s, 0.25), features_error(s, 1));
    return small < 0.5;
}

/* ---- row_: a loss; with gradients: loss_ in bench_train.h ----------------------------------- */

static double entropy_ref(const double *x, int64_t n, int64_t label)
{
    double y;
    line_ref_logsumexp(x, n, &y);
    return y - x[label];
}

static mlc_tensor *entropy_apply(state *s) { return mlc_cross_entropy(s->a, s->labels); }

static bool entropy_setup(state *s)
{
    const int64_t m = s->bc->m, n = s->bc->n;
    double       *x = NULL, *y, mean = 0;
    bool          ok;
    s->a      = values(s, mlc_dims2(m, n), -4, 4, &x);
    s->labels = labels_of(s, m, n);
    mlc_scope_begin(s->ctx);
    y = fetch(entropy_apply(s));
    for (int64_t i = 0; x && i < m; i++) mean += entropy_ref(x + i * n, n, i * 7 % n) / (double)m;
    ok = x && y && near(s, "the loss", y[0], mean, 16);
    mlc_scope_end(s->ctx);
    free(x);
    free(y);
    return ok;
}

/* ---- gemm_: the products of a linear layer -------------------------------------------------- */

/* In a name stand M, N, K of y[M,N] = x[M,K] W[N,K]^T, as it was stored for all three forms. Here
 * m, n, k are those of the product itself: c[m,n] = a[m,k] b[k,n], where NT has b stored as [n,k]
 * and TN has a stored as [k,m]. PRE: a layer with its bias, whose weights stay as they are. COLD:
 * many such layers in turns, more than the caches of all cores hold. YDX: y, then dx, of a layer
 * whose weights want no gradient. */
enum { GEMM_NT, GEMM_NN, GEMM_TN, GEMM_PRE, GEMM_COLD, GEMM_YDX, GEMM_FORMS };

enum { COLD_BYTES = 32 << 20, COLD_MOST = 1024 };

static mlc_tensor *gemm_apply(state *s)
{
    switch (s->bc->op) {
    case GEMM_NT:   return mlc_linear(s->a, s->b, NULL);                   /* y  = x W^T  */
    case GEMM_NN:   return mlc_matmul(s->a, s->b);                         /* dx = dy W   */
    case GEMM_TN:   return mlc_matmul(mlc_transpose(s->a, 0, 1), s->b);    /* dW = dy^T x */
    case GEMM_COLD: return mlc_forward(s->nets[s->turn++ % s->n_nets], s->a);
    default:        return mlc_forward(s->net, s->a);
    }
}

static mlc_tensor *gemm_ydx_apply(state *s)
{
    mlc_tensor *y = gemm_apply(s);
    mlc_backward_from(y, s->b);
    mlc_zero_grad(s->a);
    return y;
}

/* One element of the result; *size: of the sum of absolute values, as rounding goes with it. */
static double gemm_ref(const bench_case *bc, const double *a, const double *b, int64_t at,
                       double *size)
{
    const int64_t m = bc->m, n = bc->n, k = bc->k, i = at / n, j = at % n;
    const bool    at_rows = bc->op == GEMM_TN, bt = bc->op != GEMM_NN && bc->op != GEMM_TN;
    double        sum = 0;
    *size = 0;
    for (int64_t l = 0; l < k; l++) {
        const double x = a[at_rows ? l * m + i : i * k + l] * b[bt ? j * k + l : l * n + j];
        sum += x;
        *size += fabs(x);
    }
    return sum;
}

/* All elements, or of a big product some thousand, drawn. */
static bool gemm_check(state *s, const bench_case *bc, const double *a, const double *b,
                       const double *bias, const double *c)
{
    const int64_t mn = bc->m * bc->n;
    const int64_t most = 1 + 20000000 / bc->k, n = mn < most ? mn : most / 4;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t r = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
        const int64_t  at = n == mn ? i : (int64_t)((r ^ r >> 31) % (uint64_t)mn);
        double         size, want = gemm_ref(bc, a, b, at, &size);
        if (bias) want += bias[at % bc->n];
        if (!near(s, "an element", c[at], want, 2 * fmax(1, size) / fmax(1, fabs(want))))
            return false;
    }
    return true;
}

/* Further layers like s->net, of which COLD takes one after the other. */
static bool gemm_more_layers(state *s)
{
    const int64_t bytes = s->bc->n * s->bc->k * (is_half(s) ? 2 : 4);
    s->n_nets = COLD_BYTES / bytes < 2 ? 2 : COLD_BYTES / bytes;
    s->n_nets = s->n_nets > COLD_MOST ? COLD_MOST : s->n_nets;
    s->nets   = (mlc_module **)calloc((size_t)s->n_nets, sizeof *s->nets);
    bool ok   = s->nets != NULL;
    if (ok) s->nets[0] = s->net;
    for (int64_t i = 1; ok && i < s->n_nets; i++) {
        s->nets[i] = mlc_nn_linear(s->ctx, s->bc->k, s->bc->n);
        ok         = mlc_module_build(s->nets[i]) == MLC_OK;
    }
    return ok;
}

/* The layer, its weights as products see them, its bias. */
static bool gemm_layer(state *s, double **w, double **bias)
{
    const int64_t n = s->bc->n, k = s->bc->k;
    if (s->bc->op != GEMM_YDX) mlc_no_grad_begin(s->ctx);
    s->net = mlc_nn_linear(s->ctx, k, n);
    bool ok = mlc_module_build(s->net) == MLC_OK;
    mlc_tensor *weight = mlc_module_param(s->net, "weight");
    *w    = fetch(weight);
    *bias = fetch(mlc_module_param(s->net, "bias"));
    for (int64_t i = 0; is_half(s) && *w && i < n * k; i++)
        (*w)[i] = (double)rounded(s, (float)(*w)[i]);
    if (s->bc->op == GEMM_YDX)
        return ok && mlc_set_requires_grad(weight, false) == MLC_OK
                  && mlc_set_requires_grad(mlc_module_param(s->net, "bias"), false) == MLC_OK
                  && mlc_set_requires_grad(s->a, true) == MLC_OK;
    return ok && (s->bc->op != GEMM_COLD || gemm_more_layers(s));
}

/* dx = dy W, as a product of its own. */
static bool gemm_check_dx(state *s, const double *dy, const double *w)
{
    bench_case of = *s->bc;
    of.op = GEMM_NN;
    of.n  = s->bc->k;
    of.k  = s->bc->n;
    bool    ok = mlc_backward_from(gemm_apply(s), s->b) == MLC_OK;
    double *dx = ok ? fetch(mlc_grad(s->a)) : NULL;
    ok = dx && gemm_check(s, &of, dy, w, NULL, dx);
    mlc_zero_grad(s->a);
    free(dx);
    return ok;
}

static bool gemm_setup(state *s)
{
    const int64_t m = s->bc->m, n = s->bc->n, k = s->bc->k;
    const int     op = s->bc->op;
    double       *a = NULL, *b = NULL, *bias = NULL, *dy = NULL, *c;
    bool          ok = true;
    s->a = values(s, op == GEMM_TN ? mlc_dims2(k, m) : mlc_dims2(m, k), -1, 1, &a);
    if (op >= GEMM_PRE) ok = gemm_layer(s, &b, &bias);
    else s->b = values(s, op == GEMM_NT ? mlc_dims2(n, k) : mlc_dims2(k, n), -1, 1, &b);
    if (op == GEMM_YDX) s->b = values(s, mlc_dims2(m, n), -1, 1, &dy);
    mlc_scope_begin(s->ctx);
    c  = fetch(gemm_apply(s));
    ok = ok && a && b && c && gemm_check(s, s->bc, a, b, bias, c);
    if (op == GEMM_YDX) ok = ok && dy && gemm_check_dx(s, dy, b);
    mlc_scope_end(s->ctx);
    free(dy);
    free(a);
    free(b);
    free(bias);
    free(c);
    return ok;
}

/* Peak multiply-adds with all threads and with one. */
static void gemm_probe(void *arg, double rate[2])
{
    const state *s = (const state *)arg;
    if (s->bc->dtype == MLC_BF16) {
        rate[0] = bench_bf16_peak(mlc_ctx_isa(s->ctx), mlc_ctx_threads(s->ctx), 3);
        rate[1] = bench_bf16_peak(mlc_ctx_isa(s->ctx), 1, 3);
        return;
    }
    const int    f64 = s->bc->dtype == MLC_F64;
    const int32_t threads = mlc_ctx_threads(s->ctx);
    rate[0] = bench_fma_peak(mlc_ctx_isa(s->ctx), f64, threads, 3);
    rate[1] = threads == 1 ? rate[0] : bench_fma_peak(mlc_ctx_isa(s->ctx), f64, 1, 3);
}

/* ---- mlp_, infer_, overhead_: small networks ----------------------------------------------- */

typedef struct shape { int64_t width[5]; int layers; bool sgd; } shape;

static const shape shapes[] = {
    { { 784, 512, 512, 10, 0 }, 3, false },
    { { 4, 4, 3, 0, 0 }, 2, true },
    { { 784, 784, 512, 10, 0 }, 3, false },
    { { 1024, 2048, 2048, 2048, 10 }, 4, false },
};

static mlc_module *net_of(mlc_ctx *ctx, const shape *p)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < p->layers; i++) {
        if (i) mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_module_add(net, mlc_nn_linear(ctx, p->width[i], p->width[i + 1]));
    }
    return net;
}

static mlc_tensor *net_apply(state *s)
{
    if (is_half(s)) mlc_autocast_begin(s->ctx, s->bc->dtype);
    mlc_tensor *y = mlc_forward(s->net, s->a);
    if (is_half(s)) mlc_autocast_end(s->ctx);
    return y;
}

/* Of a network whose parameters are 16-bit themselves. */
static mlc_tensor *stored_apply(state *s) { return mlc_forward(s->net, s->a); }

static mlc_tensor *backward_apply(state *s)
{
    if (is_half(s)) mlc_autocast_begin(s->ctx, s->bc->dtype);
    mlc_tensor *loss = mlc_cross_entropy(mlc_forward(s->net, s->a), s->labels);
    if (is_half(s)) mlc_autocast_end(s->ctx);
    mlc_backward(loss);
    return loss;
}

static mlc_tensor *train_apply(state *s)
{
    mlc_tensor *loss = backward_apply(s);
    mlc_optim_step(s->opt);
    return loss;
}

/* One linear layer in doubles, with the parameters the network has now; frees x. */
static double *ref_layer(state *s, int i, double *x, int64_t rows, int64_t in, int64_t out,
                         bool relu)
{
    char    name[32];
    double *w, *b, *y = (double *)malloc((size_t)(rows * out) * sizeof *y);
    snprintf(name, sizeof name, "%d.weight", 2 * i);
    w = fetch(mlc_module_param(s->net, name));
    snprintf(name, sizeof name, "%d.bias", 2 * i);
    b = fetch(mlc_module_param(s->net, name));
    for (int64_t r = 0; w && b && x && y && r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum[8] = { b[o] }; /* eight chains: one would wait for each addition    */
            for (int64_t j = 0; j < in; j++) sum[j % 8] += x[r * in + j] * w[o * in + j];
            for (int j = 1; j < 8; j++) sum[0] += sum[j];
            y[r * out + o] = relu && sum[0] < 0 ? 0 : sum[0];
        }
    free(w);
    free(b);
    free(x);
    return y;
}

static double *ref_forward(state *s, const shape *p)
{
    double *x = fetch(s->a);
    for (int i = 0; i < p->layers; i++)
        x = ref_layer(s, i, x, s->bc->m, p->width[i], p->width[i + 1], i + 1 < p->layers);
    return x;
}

static bool net_check(state *s, const shape *p)
{
    const int64_t c = p->width[p->layers];
    double       *want = ref_forward(s, p), *got;
    bool          ok;
    mlc_scope_begin(s->ctx);
    got = fetch(net_apply(s));
    ok  = want && got;
    for (int64_t i = 0; ok && i < s->bc->m * c; i++) ok = near(s, "a score", got[i], want[i], 64);
    mlc_scope_end(s->ctx);
    free(want);
    free(got);
    return ok;
}

/* Some steps: each loss as the reference has it for the weights of that moment, and falling. */
static bool train_check(state *s, const shape *p)
{
    const int64_t c = p->width[p->layers];
    double        first = 0, last = 0;
    for (int i = 0; i < 20; i++) {
        double *want = i % 5 == 0 ? ref_forward(s, p) : NULL, sum = 0;
        mlc_scope_begin(s->ctx);
        last = mlc_item(train_apply(s));
        if (mlc_scope_end(s->ctx) != MLC_OK) return false;
        for (int64_t r = 0; want && r < s->bc->m; r++)
            sum += entropy_ref(want + r * c, c, r * 7 % c) / (double)s->bc->m;
        bool ok = !want || near(s, "a loss", last, sum, 64);
        free(want);
        if (!ok) return false;
        if (i == 0) first = last;
    }
    if (last < first) return true;
    fprintf(stderr, "%s: WRONG: the loss rises, %g to %g\n", s->bc->name, first, last);
    return false;
}

static bool infer_setup(state *s)
{
    const shape *p = &shapes[s->bc->op];
    s->a   = values_in(s, is_half(s) ? MLC_F32 : s->bc->dtype, mlc_dims2(s->bc->m, p->width[0]), 0,
                       1, NULL);
    s->net = net_of(s->ctx, p);
    mlc_module_train(s->net, false);
    mlc_no_grad_begin(s->ctx);
    return mlc_module_build(s->net) == MLC_OK && net_check(s, p);
}

static bool train_setup(state *s)
{
    const shape *p = &shapes[s->bc->op];
    s->a      = values_in(s, is_half(s) ? MLC_F32 : s->bc->dtype,
                          mlc_dims2(s->bc->m, p->width[0]), 0, 1, NULL);
    s->labels = labels_of(s, s->bc->m, p->width[p->layers]);
    s->net    = net_of(s->ctx, p);
    s->opt    = p->sgd ? mlc_sgd(s->net, 0.01) : mlc_adamw(s->net, 1e-3);
    if (strstr(s->bc->name, "_in_backward")) mlc_optim_in_backward(s->opt, true);
    return mlc_ctx_status(s->ctx) == MLC_OK && net_check(s, p) && train_check(s, p);
}

/* ---- step_plan_: the same steps, captured; beside them the cases overhead_ and mlp_ ---------- */

static mlc_status captured_loss(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    const state *s = user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_cross_entropy(mlc_forward(s->net, in[0]), in[1]);
    return mlc_ctx_status(ctx);
}

static mlc_tensor *captured_apply(state *s)
{
    mlc_tensor *in[2] = { s->a, s->labels };
    mlc_plan_run(s->plan, in, 2, NULL, 0);
    return mlc_plan_output(s->plan, 0);
}

static bool captured_setup(state *s)
{
    if (!train_setup(s)) return false;
    mlc_tensor *in[2] = { s->a, s->labels };
    s->plan = mlc_plan_capture_step(s->opt, captured_loss, s, in, 2, NULL);
    return s->plan != NULL;
}

/* ---- optim_: the step alone ----------------------------------------------------------------- */

/* Each row of the gradient is one number of b. */
static void optim_gradient(state *s)
{
    mlc_scope_begin(s->ctx);
    mlc_backward_from(mlc_sum(s->a, mlc_dims1(1), false), s->b);
    mlc_scope_end(s->ctx);
}

/* Steps alone, as PyTorch is given them: a user has no way to call a gradient fresh again, but a
 * backward in between would measure on which core it wrote the gradient. */
static double optim_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++) {
        s->a->grad_fresh = 1;
        mlc_optim_step(s->opt);
    }
    return spent_since(s, start);
}

/* Rows row, row + stride, ... of the parameters, copied; the caller frees. */
static double *optim_rows(state *s, int64_t stride)
{
    mlc_scope_begin(s->ctx);
    double *v = fetch(mlc_copy(mlc_slice(s->a, 0, 0, s->bc->m, stride)));
    mlc_scope_end(s->ctx);
    return v;
}

/* The same loads and stores over as much memory; Adam's only. */
static bool optim_plain(state *s)
{
    const int64_t n = s->bc->m * s->bc->n, pitch = (n + 15) / 16 * 16;
    float        *data = (float *)aligned_alloc(64, (size_t)(4 * pitch) * sizeof *data);
    if (!data) return false;
    memset(data, 0, (size_t)(4 * pitch) * sizeof *data);
    s->plain.part   = bench_part_plain;
    s->plain.isa    = mlc_ctx_isa(s->ctx);
    s->plain.n      = n;
    s->plain.passes = 1 + (int)(10000000 / n);
    s->plain.warm   = true;
    for (int i = 0; i < 4; i++) s->plain.data[i] = data + i * pitch;
    return true;
}

static void optim_probe(void *arg, double rate[2])
{
    const state *s = (const state *)arg;
    rate[0] = 1e-6 * bench_together(&s->plain, mlc_ctx_threads(s->ctx),
                                    s->plain.n > 50000000 ? 1 : 3);
}

static mlc_optim *adamw_bf16(mlc_module *m, double lr)
{
    mlc_adam_desc d = mlc_adamw_desc_make(lr);
    d.moments = MLC_MOMENTS_BF16;
    return mlc_adamw_ex(m, &d);
}
static mlc_optim *adamw_8bit(mlc_module *m, double lr)
{
    mlc_adam_desc d = mlc_adamw_desc_make(lr);
    d.moments = MLC_MOMENTS_8BIT;
    return mlc_adamw_ex(m, &d);
}
static mlc_optim *lion_8bit(mlc_module *m, double lr)
{
    mlc_lion_desc d = mlc_lion_desc_make(lr);
    d.moments = MLC_MOMENTS_8BIT;
    return mlc_lion_ex(m, &d);
}

/* Rules by the number of their case, from 2 on; SGD and AdamW are 1 and 0. */
static const struct { const char *name; mlc_optim *(*make)(mlc_module *m, double lr); } RULES[] = {
    {"adam", mlc_adam}, {"amsgrad", mlc_amsgrad}, {"adamax", mlc_adamax}, {"nadam", mlc_nadam},
    {"radam", mlc_radam}, {"rmsprop", mlc_rmsprop}, {"adagrad", mlc_adagrad},
    {"adadelta", mlc_adadelta}, {"rprop", mlc_rprop}, {"lion", mlc_lion}, {"lamb", mlc_lamb},
    {"lars", mlc_lars}, {"sophia", mlc_sophia}, {"sf_sgd", mlc_schedule_free_sgd},
    {"sf_adamw", mlc_schedule_free_adamw}, {"adafactor", mlc_adafactor}, {"muon", mlc_muon},
    {"adamw_bf16", adamw_bf16}, {"adamw_8bit", adamw_8bit}, {"lion_8bit", lion_8bit} };
enum { RULE_COUNT = sizeof RULES / sizeof *RULES };

/* tests/test_rules.c has the values; here they have moved and are numbers. */
static bool rule_setup(state *s)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(s->bc->n, s->bc->m);
    double *g = NULL;
    d.no_bias = true;
    s->net = mlc_nn_linear_ex(s->ctx, &d);
    s->opt = RULES[s->bc->op - 2].make(s->net, 1e-3);
    s->a = mlc_module_param(s->net, "weight");
    s->b = values(s, mlc_dims1(s->bc->m), 1, 2, &g);
    const double before = mlc_item_at(s->a, mlc_dims2(0, 0));
    optim_gradient(s);
    optim_run(s, 3);
    const double after = mlc_item_at(s->a, mlc_dims2(0, 0));
    free(g);
    return g && after != before && after - after == 0;
}

static bool optim_setup(state *s)
{
    const int64_t   m = s->bc->m, n = s->bc->n, stride = 1 + m * n / 1000001;
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(n, m);
    double         *g = NULL, *before, *after;
    bool            ok;
    d.no_bias = true;
    s->net = mlc_nn_linear_ex(s->ctx, &d);
    mlc_module_to(s->net, s->bc->dtype);
    s->opt = s->bc->op ? mlc_sgd(s->net, 1e-3) : mlc_adamw(s->net, 1e-3);
    s->a   = mlc_module_param(s->net, "weight");
    s->b   = values(s, mlc_dims1(m), 1, 2, &g);
    before = optim_rows(s, stride);
    optim_gradient(s);
    optim_run(s, 1);
    after  = optim_rows(s, stride);
    ok     = g && before && after;
    for (int64_t i = 0; ok && i < (m + stride - 1) / stride * n; i++) {
        double lr = (double)1e-3, row = g[i / n * stride];
        double want = s->bc->op ? before[i] - lr * row : before[i] * (1 - lr * 0.01) - lr;
        ok = near(s, "a parameter", after[i], want, 8);
    }
    free(g);
    free(before);
    free(after);
    return ok && (s->bc->op || is_half(s) || optim_plain(s));
}

/* ---- embedding_: a step of k rows of a table m x n ------------------------------------------- */

/* A quarter of the indices come twice. */
static int64_t embedding_index(const state *s, int64_t i)
{
    return i % (s->bc->k * 3 / 4) * 7919 % s->bc->m;
}

static double embedding_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++) {
        mlc_scope_begin(s->ctx);
        mlc_backward_from(mlc_forward(s->net, s->index), s->b);
        mlc_optim_step(s->opt);
        mlc_scope_end(s->ctx);
    }
    return spent_since(s, start);
}

static bool embedding_setup(state *s)
{
    const int64_t k = s->bc->k, n = s->bc->n;
    int64_t *index = (int64_t *)malloc((size_t)k * sizeof *index);
    double  *g = NULL;
    s->net = mlc_nn_embedding(s->ctx, s->bc->m, n);
    s->opt = mlc_sgd(s->net, 1e-3);
    s->a   = mlc_module_param(s->net, "weight");
    s->b   = values(s, mlc_dims2(k, n), 1, 2, &g);
    for (int64_t i = 0; index && i < k; i++) index[i] = embedding_index(s, i);
    if (index) s->index = mlc_from(s->ctx, MLC_I64, mlc_dims1(k), index);
    double  before = mlc_item_at(s->a, mlc_dims2(embedding_index(s, 0), 1));
    embedding_run(s, 2);
    double  after = mlc_item_at(s->a, mlc_dims2(embedding_index(s, 0), 1));
    bool    ok = index && g && near(s, "a row that is taken twice", after, before - 2e-3 *
                                    (g[1] + g[k * 3 / 4 * n + 1]), 8);
    free(index);
    free(g);
    return ok;
}

/* ---- optim_ema_: an average alone ------------------------------------------------------------ */

/* Steps without a gradient: no parameter is due, the average is. */
static double ema_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++) mlc_optim_step(s->opt);
    return spent_since(s, start);
}

/* By 12 halves of the way to parameters that have become 0 in between. */
static bool ema_setup(state *s)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(s->bc->n, s->bc->m);
    d.no_bias = true;
    s->net = mlc_nn_linear_ex(s->ctx, &d);
    s->opt = mlc_sgd(s->net, 1e-3);
    s->a   = mlc_module_param(s->net, "weight");
    mlc_no_grad_begin(s->ctx);
    mlc_fill_(s->a, 1);
    mlc_average *a = mlc_ema(s->opt, 0.5);
    mlc_fill_(s->a, 0);
    mlc_no_grad_end(s->ctx);
    ema_run(s, 12);
    mlc_average_swap(a, true);
    double *v = optim_rows(s, s->bc->m), got = v ? v[0] : 0;
    mlc_average_swap(a, false);
    free(v);
    return near(s, "the average", got, 0x1p-12, 1);
}

/* ---- optim_lbfgs_: an iteration with 10 pairs, and the loss sum p p -------------------------- */

static mlc_tensor *lbfgs_loss(void *user)
{
    const state *s = (const state *)user;
    return mlc_sum_all(mlc_mul(s->a, s->a));
}

static double lbfgs_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++) mlc_optim_step_with(s->opt, lbfgs_loss, s, NULL);
    return spent_since(s, start);
}

/* Short steps without a search, so that it goes on: with pairs, each takes off 1/10000.         */
static bool lbfgs_setup(state *s)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(s->bc->n, s->bc->m);
    mlc_lbfgs_desc     l = mlc_lbfgs_desc_make(1e-4);
    d.no_bias = true;
    l.max_iter = l.max_eval = 1;
    l.history = 10;
    l.tolerance_grad = l.tolerance_change = 0;
    l.strong_wolfe = false;
    s->net = mlc_nn_linear_ex(s->ctx, &d);
    s->opt = mlc_lbfgs_ex(s->net, &l);
    s->a   = mlc_module_param(s->net, "weight");
    lbfgs_run(s, 3);
    const double before = mlc_item_at(s->a, mlc_dims2(0, 0));
    lbfgs_run(s, 12);
    const double after = mlc_item_at(s->a, mlc_dims2(0, 0));
    return near(s, "a parameter's change", after / before, 1 - 12e-4, 40);
}

/* ---- data_: the loader and the CSV reader --------------------------------------------------- */

static double loader_run(void *arg, int64_t loops)
{
    state    *s = (state *)arg;
    mlc_batch b;
    double    start = bench_now();
    for (int64_t i = 0; i < loops; i++)
        while (mlc_loader_next(s->loader, &b)) { }
    return spent_since(s, start);
}

static bool loader_setup(state *s)
{
    mlc_tensor     *x = mlc_arange(s->ctx, MLC_F32, 0, (double)(s->bc->m * s->bc->n), 1);
    mlc_loader_desc d = mlc_loader_desc_make(mlc_reshape(x, mlc_dims2(s->bc->m, s->bc->n)),
                                             labels_of(s, s->bc->m, 10), s->bc->k);
    mlc_batch       b;
    double          sum = 0, n = (double)(s->bc->m * s->bc->n);
    d.shuffle = true;
    s->loader = mlc_loader_create(s->ctx, &d);
    while (mlc_loader_next(s->loader, &b)) {
        double *v = fetch(b.x);
        for (int64_t i = 0; v && i < mlc_numel(b.x); i++) sum += v[i];
        free(v);
    }
    return near(s, "the sum of an epoch", sum, n * (n - 1) / 2, 1);
}

/* ---- loader_: of datasets; op: how many workers, and what a sample is ------------------------ */

enum { LOADER_ROWS, LOADER_IMAGES, LOADER_TOKENS, LOADER_WAITS };

#define WORKERS(op) ((op) % 8)
#define SAMPLE(op)  ((op) / 8)
#define STEP_NS     8000000               /* of loader_waits: the step; a batch waits for half  */

static void sleep_ns(long ns)
{
    const struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

/* Samples that wait, as for a disk or a network. */
static mlc_status waits(void *user, mlc_sample *s, void *const *in, const int64_t *in_len)
{
    const bench_case *bc = (const bench_case *)user;
    (void)in_len;
    memcpy(s->dst[0], in[0], (size_t)bc->n * sizeof(float));
    memcpy(s->dst[1], in[1], sizeof(int64_t));
    sleep_ns(STEP_NS / 2 / (long)bc->k);
    return MLC_OK;
}

static mlc_dataset *rows_of(state *s)
{
    const int64_t m = s->bc->m, n = s->bc->n;
    mlc_tensor   *t[2] = {mlc_reshape(mlc_arange(s->ctx, MLC_F32, 0, (double)(m * n), 1),
                                      mlc_dims2(m, n)), labels_of(s, m, 10)};
    mlc_transform map;
    mlc_dataset  *d = mlc_dataset_tensors(s->ctx, t, 2);
    if (SAMPLE(s->bc->op) != LOADER_WAITS) return d;
    memset(&map, 0, sizeof map);
    map.user = (void *)(uintptr_t)s->bc;
    map.run = waits;
    return mlc_dataset_map(s->ctx, d, &map);
}

/* Images as those of CIFAR: padded, cropped, mirrored, normalised. */
static mlc_dataset *images_of(state *s)
{
    const double     mean[3] = {0.49, 0.48, 0.45}, std[3] = {0.25, 0.24, 0.26};
    mlc_augment_desc d = mlc_augment_desc_make();
    mlc_tensor      *t[2] = {mlc_zeros(s->ctx, MLC_U8, mlc_dims4(s->bc->m, 3, 32, 32)),
                             labels_of(s, s->bc->m, 10)};
    d.pad = 4;
    d.flip = 0.5;
    d.scale = 1.0 / 255;
    d.mean = mean;
    d.std = std;
    return mlc_dataset_augment(s->ctx, mlc_dataset_tensors(s->ctx, t, 2), &d);
}

/* A file of tokens in windows of n. */
static mlc_dataset *tokens_of(state *s)
{
    const char *path = "build/bench_tokens.bin";
    const mlc_dataset_tokens_desc d = mlc_dataset_tokens_desc_make(MLC_TOKENS_U16, s->bc->n);
    FILE *f = fopen(path, "wb");
    for (int64_t i = 0; f && i <= s->bc->m * s->bc->n; i++) {
        const uint16_t token = (uint16_t)(i % 50257);
        fwrite(&token, sizeof token, 1, f);
    }
    if (f) fclose(f);
    return mlc_dataset_tokens(s->ctx, path, &d);
}

static double from_run(void *arg, int64_t loops)
{
    state    *s = (state *)arg;
    mlc_batch b;
    double    start = bench_now();
    for (int64_t i = 0; i < loops; i++)
        while (mlc_loader_next(s->loader, &b))
            if (SAMPLE(s->bc->op) == LOADER_WAITS) sleep_ns(STEP_NS);
    return spent_since(s, start);
}

static bool from_setup(state *s)
{
    const int            sample = SAMPLE(s->bc->op);
    mlc_loader_from_desc d = mlc_loader_from_desc_make(s->bc->k);
    mlc_batch            b;
    int64_t              rows = 0;
    d.shuffle = true;
    d.workers = WORKERS(s->bc->op);
    s->loader = mlc_loader_from(s->ctx, sample == LOADER_IMAGES ? images_of(s)
                                : sample == LOADER_TOKENS ? tokens_of(s) : rows_of(s), &d);
    while (mlc_loader_next(s->loader, &b)) rows += b.n;
    return near(s, "the rows of an epoch", (double)rows, (double)s->bc->m, 0);
}

static mlc_tensor *csv_apply(state *s) { return mlc_csv_load(s->ctx, DIGITS, NULL); }

static bool csv_setup(state *s)
{
    mlc_scope_begin(s->ctx);
    mlc_tensor *t = csv_apply(s);
    bool        ok = t && near(s, "the number of rows", (double)mlc_dim(t, 0), 1797, 0)
                       && near(s, "the number of columns", (double)mlc_dim(t, 1), 66, 0);
    return mlc_scope_end(s->ctx) == MLC_OK && ok;
}

/* ---- text_: a megabyte of README.md over and over, the vocabularies of the tests ------------ */

enum { TEXT_BYTES = 1 << 20 };
#define TEXT_OF "tests/golden/text."

static char    text_in[TEXT_BYTES];
static int64_t text_ids[TEXT_BYTES];

static bool text_setup(state *s)
{
    char  *back = (char *)malloc(TEXT_BYTES + 1);
    FILE  *f = fopen("README.md", "rb");
    size_t n = f ? fread(text_in, 1, TEXT_BYTES, f) : 0;
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    d.keep_specials = true;
    if (f) fclose(f);
    s->tokenizer = s->bc->op ? mlc_tokenizer_wordpiece(s->ctx, TEXT_OF "vocab.txt", &d)
                             : mlc_tokenizer_bpe(s->ctx, TEXT_OF "vocab.json",
                                                 TEXT_OF "merges.txt", &d);
    for (size_t i = n; n && i < TEXT_BYTES; i++) text_in[i] = text_in[i - n];
    const int64_t k = mlc_tokenizer_encode(s->tokenizer, text_in, TEXT_BYTES, text_ids,
                                           TEXT_BYTES);
    const int64_t m = mlc_tokenizer_decode(s->tokenizer, text_ids, k, back, TEXT_BYTES + 1);
    const bool    same = s->bc->op || (m >= TEXT_BYTES - 3 &&
                                       memcmp(back, text_in, TEXT_BYTES - 9) == 0);
    const bool    ok = n && back && k > 0 && k < TEXT_BYTES && same;
    if (!ok) fprintf(stderr, "%s: another text, or no README.md here\n", s->bc->name);
    free(back);
    return ok;
}

static double text_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++)
        mlc_tokenizer_encode(s->tokenizer, text_in, TEXT_BYTES, text_ids, TEXT_BYTES);
    return spent_since(s, start);
}

/* ---- threads_: an almost empty loop ---------------------------------------------------------- */

/* Sets one chunk of 16 KB a thread to zero, in L1: the time is that of fork and join, and of the
 * operation around them, which is measured beside it on one thread.                          */
static bool fork_setup(state *s)
{
    s->a = mlc_ones(s->ctx, MLC_U8, mlc_dims1(16384 * (int64_t)mlc_ctx_threads(s->ctx)));
    mlc_zero_(s->a);
    return near(s, "what is left", mlc_item(mlc_any(s->a, mlc_dims0(), false)), 0, 0);
}

/* So many microseconds after the loop before; of many iterations only some are made. */
static double fork_run(void *arg, int64_t loops)
{
    state       *s = (state *)arg;
    const double gap = 1e-6 * s->bc->op;
    const double most = gap > 0 ? 0.05 / gap : 1e9;
    int64_t      made = (double)loops < most ? loops : (int64_t)most;
    double       spent = 0, start = bench_now();
    for (int64_t i = 0; i < made; i++) {
        if (s->bc->op == 0) {
            mlc_zero_(s->a);
            continue;
        }
        while (bench_now() < start + gap) { }
        start = bench_now();
        mlc_zero_(s->a);
        spent -= start;
        start = bench_now();
        spent += start;
    }
    if (s->bc->op == 0) spent = spent_since(s, start);
    return spent / (double)made * (double)loops;
}

static void fork_probe(void *arg, double rate[2])
{
    state  *s = (state *)arg;
    int32_t threads = mlc_ctx_threads(s->ctx);
    mlc_ctx_set_threads(s->ctx, 1);
    rate[0] = 10000 / fork_run(s, 10000);
    mlc_ctx_set_threads(s->ctx, threads);
    fork_run(s, 10);                      /* new threads start */
}

/* ---- conv_, net_: images ------------------------------------------------------------------- */

typedef struct image_shape {
    const char *name;
    int64_t     n, c, size, out, kernel, stride, pad, groups;
} image_shape;

static const image_shape images[] = {
    { "16x64x56x56_64_3x3", 16, 64, 56, 64, 3, 1, 1, 1 },
    { "16x128x28x28_128_3x3_s2", 16, 128, 28, 128, 3, 2, 1, 1 },
    { "16x256x14x14_256_1x1", 16, 256, 14, 256, 1, 1, 0, 1 },
    { "16x144x56x56_depthwise_3x3", 16, 144, 56, 144, 3, 1, 1, 144 },
};

typedef enum image_part { CONV_Y, CONV_DX, CONV_TRAIN, CONV_PARTS } image_part;

static mlc_conv_desc conv_desc_of(const image_shape *p)
{
    mlc_conv_desc d = mlc_conv_desc_make();
    d.stride = mlc_dims_all(p->stride);
    d.padding = mlc_dims_all(p->pad);
    d.groups = p->groups;
    return d;
}

/* a is x, or for dx dy; b is w; p, in training, is dy. */
static mlc_tensor *conv_apply(state *s)
{
    const image_shape *p = &images[s->bc->op];
    mlc_conv_desc      d = conv_desc_of(p);
    if (s->bc->k == CONV_DX) {
        d.output_padding = mlc_dims_all((p->size + 2 * p->pad - p->kernel) % p->stride);
        return mlc_conv_transpose(s->a, s->b, NULL, &d);
    }
    mlc_tensor *y = mlc_conv(s->a, s->b, NULL, &d);
    if (s->bc->k == CONV_TRAIN) {
        mlc_zero_grad(s->a);
        mlc_zero_grad(s->b);
        mlc_backward_from(y, s->p);
    }
    return y;
}

/* One element in the middle of the result of a convolution, by hand. */
static bool conv_check(state *s, const image_shape *p, const double *x, const double *w)
{
    double         want = 0;
    const int64_t  c = p->c / p->groups, at = p->size / p->stride / 2 * p->stride - p->pad;
    mlc_scope_begin(s->ctx);
    mlc_tensor    *y = conv_apply(s);
    const int64_t  o = y ? y->shape[2] : 0, mid = p->size / p->stride / 2;
    double        *got = fetch(y);
    for (int64_t i = 0; x && w && i < c; i++)
        for (int64_t k = 0; k < p->kernel * p->kernel; k++)
            want += x[(i * p->size + at + k / p->kernel) * p->size + at + k % p->kernel]
                    * w[i * p->kernel * p->kernel + k];
    bool ok = got && near(s, "y", got[mid * o + mid], want, 64);
    mlc_scope_end(s->ctx);
    free(got);
    return ok;
}

static bool conv_setup(state *s)
{
    const image_shape *p = &images[s->bc->op];
    const int64_t      o = (p->size + 2 * p->pad - p->kernel) / p->stride + 1;
    const bool         dx = s->bc->k == CONV_DX;
    double            *x = NULL, *w = NULL;
    s->a = mlc_channels_last(values(s, mlc_dims4(p->n, dx ? p->out : p->c, dx ? o : p->size,
                                                 dx ? o : p->size), -1, 1, &x));
    s->b = values(s, mlc_dims4(p->out, p->c / p->groups, p->kernel, p->kernel), -1, 1, &w);
    s->p = mlc_channels_last(values(s, mlc_dims4(p->n, p->out, o, o), -1, 1, NULL));
    mlc_set_requires_grad(s->a, s->bc->k == CONV_TRAIN);
    mlc_set_requires_grad(s->b, s->bc->k == CONV_TRAIN);
    bool ok = mlc_ctx_status(s->ctx) == MLC_OK && (dx || conv_check(s, p, x, w));
    free(x);
    free(w);
    return ok;
}

/* 1x28x28: conv 32, pool, conv 64, pool, 128, 10. */
static mlc_module *cnn28(mlc_ctx *ctx)
{
    const mlc_pool_desc two = mlc_pool_desc_make(2);
    mlc_module         *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_conv2d(ctx, 1, 32, 3, 1, 0));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &two));
    mlc_module_add(net, mlc_nn_conv2d(ctx, 32, 64, 3, 1, 0));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_max_pool(ctx, &two));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 1600, 128));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 128, 10));
    return net;
}

/* op: the ResNet-20 of CIFAR's images, else the network of MNIST's. */
static void image_net(state *s)
{
    const bool     resnet = s->bc->op != 0;
    const mlc_dims mnist = mlc_dims4(s->bc->m, 1, 28, 28), cifar = mlc_dims4(s->bc->m, 3, 32, 32);
    s->a   = values_in(s, is_half(s) ? MLC_F32 : s->bc->dtype, resnet ? cifar : mnist, 0, 1, NULL);
    s->net = resnet ? resnet20_with(s->ctx, s->bc->k == 1) : cnn28(s->ctx);
}

static bool loss_falls(state *s)
{
    double first = 0, last = 0;
    for (int i = 0; i < 10; i++) {
        mlc_scope_begin(s->ctx);
        last = mlc_item(train_apply(s));
        if (mlc_scope_end(s->ctx) != MLC_OK) return false;
        if (i == 0) first = last;
    }
    if (last < first) return true;
    fprintf(stderr, "%s: WRONG: the loss rises, %g to %g\n", s->bc->name, first, last);
    return false;
}

enum { GRADS_MOST = 128 };

/* Copies gradients of all parameters, GRADS_MOST at most; returns their number. */
static int copy_grads(state *s, mlc_tensor **g)
{
    mlc_param_iter it = mlc_param_iter_make(s->net);
    int            n = 0;
    while (n < GRADS_MOST && mlc_param_next(&it))
        if (it.trainable) g[n++] = mlc_copy(mlc_grad(it.tensor));
    return n;
}

static double square_of(mlc_tensor *x)
{
    return mlc_item(mlc_sum(mlc_mul(x, x), mlc_dims0(), false));
}

/* Marks modules by mark; the loss and the gradients stay what they are without marks. */
static bool recompute_check(state *s, void (*mark)(state *s))
{
    mlc_tensor *plain[GRADS_MOST], *marked[GRADS_MOST];
    double      off = 0, size = 0;
    mlc_scope_begin(s->ctx);
    const double want = mlc_item(backward_apply(s));
    const int    n = copy_grads(s, plain);
    mlc_optim_zero_grad(s->opt);
    mark(s);
    const double got = mlc_item(backward_apply(s));
    bool         ok = near(s, "a loss", got, want, 1) && copy_grads(s, marked) == n;
    mlc_optim_zero_grad(s->opt);
    for (int i = 0; ok && i < n; i++) {
        off  += square_of(mlc_sub(marked[i], plain[i]));
        size += square_of(plain[i]);
    }
    ok = ok && size > 0 && sqrt(off / size) <= (is_half(s) ? 1e-3 : 0);
    if (!ok) fprintf(stderr, "%s: WRONG: gradients are off by %g of their norm\n", s->bc->name,
                     sqrt(off / size));
    return mlc_scope_end(s->ctx) == MLC_OK && ok;
}

/* k 1: all blocks, children 0 to 9, the first a convolution with norm and relu. 2: every second of
 * children 3 to 11. */
static void mark_blocks(state *s)
{
    const int32_t k = (int32_t)s->bc->k, from = k == 1 ? 0 : 3;
    for (int32_t i = from; i < (k == 1 ? 10 : 12); i += k)
        mlc_nn_recompute(s->ctx, mlc_module_child(s->net, i));
}

/* k: blocks that are recomputed, 0: none. */
static bool image_train_setup(state *s)
{
    image_net(s);
    s->labels = labels_of(s, s->bc->m, 10);
    s->opt    = mlc_adamw(s->net, 1e-3);
    return (!s->bc->k || recompute_check(s, mark_blocks)) && loss_falls(s);
}

/* Half of all channels are masked, and then removed: outputs must stay. */
static bool halve_channels(state *s)
{
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.unit      = MLC_PRUNE_CHANNELS;
    d.per_layer = true;
    if (mlc_prune(s->net, &d) != MLC_OK) return false;
    mlc_tensor *before = mlc_forward(s->net, s->a);
    if (mlc_prune_shrink(s->net, NULL) != MLC_OK || mlc_prune_remove(s->net, NULL) != MLC_OK)
        return false;
    mlc_tensor  *gap = mlc_abs(mlc_sub(mlc_forward(s->net, s->a), before));
    const double off = mlc_item(mlc_max(gap, mlc_dims0(), false));
    if (off < 1e-4) return true;
    fprintf(stderr, "%s: WRONG: shrunk, outputs move by %g\n", s->bc->name, off);
    return false;
}

/* Batch norms are folded and parameters stored in 16 bits, as for deployment: outputs must stay.
 * k 2: half of the channels. */
static bool image_infer_setup(state *s)
{
    image_net(s);
    mlc_module_train(s->net, false);
    mlc_no_grad_begin(s->ctx);
    if (s->bc->k == 2 && !halve_channels(s)) return false;
    mlc_tensor *before = mlc_forward(s->net, s->a);
    if (mlc_nn_fold_batch_norm(s->net) != MLC_OK) return false;
    mlc_tensor  *gap = mlc_abs(mlc_sub(mlc_forward(s->net, s->a), before));
    const double off = mlc_item(mlc_max(gap, mlc_dims0(), false));
    if (is_half(s)) s->a = mlc_cast(s->a, s->bc->dtype);
    if (is_half(s) && mlc_module_to(s->net, s->bc->dtype) != MLC_OK) return false;
    if (off < 1e-4) return true;
    fprintf(stderr, "%s: WRONG: folded, outputs move by %g\n", s->bc->name, off);
    return false;
}

/* ---- sk_: sketched layers, and dense ones in their place ------------------------------------- */

typedef struct sketched { int64_t in, out, terms, rank, batch; } sketched;     /* terms 0: dense */

static sketched sketches[64];
static int      n_sketches;

static mlc_module *sketched_layer(mlc_ctx *ctx, const sketched *p)
{
    return p->terms ? mlc_nn_sklinear(ctx, p->in, p->out, p->terms, p->rank)
                    : mlc_nn_linear(ctx, p->in, p->out);
}

/* One row of the layer in doubles, by the matrices that its seed stands for. */
static bool sketched_check(state *s, const sketched *p, mlc_module *layer, mlc_tensor *x)
{
    if (!p->terms) return true;
    mlc_scope_begin(s->ctx);
    mlc_no_grad_begin(s->ctx);
    mlc_tensor *u[2], *f[3], *row = mlc_cast(mlc_slice(x, 0, 1, 2, 1), MLC_F64);
    const char *names[3] = { "s1", "s2", "bias" };
    for (int i = 0; i < 3; i++) f[i] = mlc_cast(mlc_module_param(layer, names[i]), MLC_F64);
    for (int i = 0; i < 2; i++) {
        mlc_sketch k = mlc_sketch_make(MLC_SKETCH_SIGNS, p->terms * p->rank, i ? p->in : p->out,
                                       (uint64_t)mlc_item(mlc_module_param(layer, "seed")));
        k.stream = (uint64_t)i + 1;
        k.scale *= sqrt((double)p->terms);
        u[i] = mlc_sketch_matrix(s->ctx, &k, MLC_F64);
    }
    mlc_tensor *one = mlc_matmul(mlc_matmul(row, mlc_transpose(f[0], 0, 1)), u[0]);
    mlc_tensor *two = mlc_matmul(mlc_matmul(row, mlc_transpose(u[1], 0, 1)), f[1]);
    double *want = fetch(mlc_add(mlc_mul_scalar(mlc_add(one, two), 0.5 / (double)p->terms), f[2]));
    double *got = fetch(mlc_forward(layer, x));
    bool    ok = want && got;
    for (int64_t i = 0; ok && i < p->out; i++)
        ok = near(s, "an output", got[p->out + i], want[i], 64);
    free(want);
    free(got);
    mlc_no_grad_end(s->ctx);
    mlc_scope_end(s->ctx);
    return ok;
}

/* Forward and backward of a layer: y for the caller, gradients of the input and of S. */
static mlc_tensor *sketched_apply(state *s)
{
    if (is_half(s)) mlc_autocast_begin(s->ctx, s->bc->dtype);
    mlc_tensor *y = mlc_forward(s->net, s->a);
    if (is_half(s)) mlc_autocast_end(s->ctx);
    mlc_zero_grad(s->a);
    mlc_optim_zero_grad(s->opt);
    mlc_backward_from(y, s->b);
    return y;
}

static bool sketched_setup(state *s)
{
    const sketched *p = &sketches[s->bc->op];
    s->net = sketched_layer(s->ctx, p);
    s->opt = mlc_sgd(s->net, 0.01);       /* for its zero_grad only                            */
    s->a   = values_in(s, is_half(s) ? s->bc->dtype : MLC_F32, mlc_dims2(p->batch, p->in), -1, 1,
                       NULL);
    s->b   = values_in(s, s->bc->dtype, mlc_dims2(p->batch, p->out), -1, 1, NULL);
    bool ok = mlc_module_build(s->net) == MLC_OK &&
              (is_half(s) || sketched_check(s, p, s->net, s->a));
    mlc_set_requires_grad(s->a, true);
    return ok;
}

/* Two layers of this kind and a dense one of 10, with AdamW. */
static bool sketched_train_setup(state *s)
{
    const sketched *p = &sketches[s->bc->op];
    s->net = mlc_nn_sequential(s->ctx);
    for (int i = 0; i < 2; i++) {
        mlc_module_add(s->net, sketched_layer(s->ctx, p));
        mlc_module_add(s->net, mlc_nn_relu(s->ctx));
    }
    mlc_module_add(s->net, mlc_nn_linear(s->ctx, p->out, 10));
    s->a      = values_in(s, MLC_F32, mlc_dims2(p->batch, p->in), 0, 1, NULL);
    s->labels = labels_of(s, p->batch, 10);
    s->opt    = mlc_adamw(s->net, 1e-3);
    if (mlc_ctx_status(s->ctx) != MLC_OK ||
        (!is_half(s) && !sketched_check(s, p, mlc_module_child(s->net, 0), s->a))) return false;
    return loss_falls(s);
}

/* ---- the list ------------------------------------------------------------------------------- */

static bench_case cases[1000];
static int        n_cases;

static bench_case *add(const char *name, mlc_dtype dtype, const char *unit, double work)
{
    if (n_cases == (int)(sizeof cases / sizeof *cases)) {
        fputs("bench: more cases than the list has room for\n", stderr);
        exit(2);
    }
    bench_case *c = &cases[n_cases++];
    c->name  = name;
    c->dtype = dtype;
    c->unit  = unit;
    c->work  = work;
    return c;
}

static void add_ew(int op, mlc_dtype dtype)
{
    double      size = (double)mlc_dtype_bytes(dtype) / 4;
    double      moved = 1e6 * size * (ews[op].read + ews[op].written);
    bench_case *c = add(ews[op].name, dtype, "GB/s", 1e-9 * moved);
    c->bytes = moved;
    c->setup = ew_setup;
    c->run   = run_apply;
    c->apply = ew_apply;
    c->op    = op;
    c->m     = c->n = 1000;
}

static void add_move(int op)
{
    double      moved = 1e6 * (moves[op].read + moves[op].written);
    bench_case *c = add(moves[op].name, MLC_F32, "GB/s", 1e-9 * moved);
    c->bytes = moved;
    c->setup = move_setup;
    c->run   = run_apply;
    c->apply = move_apply;
    c->op    = op;
}

/* Along the rows (axis 1) or columns (axis 0) of a matrix. */
static void add_line(int op, int axis, mlc_dtype dtype)
{
    static char names[2][sizeof lines / sizeof *lines][64];
    const char *at = axis ? "" : "_columns";
    const double size = (double)mlc_dtype_bytes(dtype) / 4;
    const double moved = size * (1e6 * lines[op].read + 1e3 * lines[op].written
                                                       * (double)lines[op].made);
    snprintf(names[axis][op], sizeof names[axis][op], "row_%s%s_1000x1000", lines[op].name, at);
    bench_case *c = add(names[axis][op], dtype, "GB/s", 1e-9 * moved);
    c->bytes = moved;
    c->setup = line_setup;
    c->run   = run_apply;
    c->apply = line_apply;
    c->op    = op;
    c->k     = axis;
}

static void add_draw(int op)
{
    bench_case *c = add(draws[op].name, MLC_F32, "GB/s", 1e-3 * draws[op].written);
    c->bytes = 1e6 * draws[op].written;
    c->setup = draw_setup;
    c->run   = run_apply;
    c->apply = draw_apply;
    c->op    = op;
}

/* Forward, or forward and backward. */
static void add_grad(int op, bool back, mlc_dtype dtype, int width)
{
    static char names[2][GRAD_WIDTHS][sizeof grads / sizeof *grads][64];
    char       *name = names[back][width][op];
    const int   n = grad_widths[width], m = 1000000 / n;
    snprintf(name, sizeof names[0][0][0], "%s%s_%dx%d", grads[op].name, back ? "_grad" : "", m, n);
    bench_case *c = add(name, dtype, "Melem/s", 1e-6 * m * n);
    c->setup = grad_setup;
    c->run   = run_apply;
    c->apply = grad_apply;
    c->op    = op;
    c->m     = m;
    c->n     = n;
    c->k     = back;
}

static void add_attn(int op, bool step, mlc_dtype dtype)
{
    static char    names[2][sizeof attns / sizeof *attns][64];
    const attn_of *o = &attns[op];
    snprintf(names[step][op], sizeof names[step][op], "attn_%s%s", step ? "step_" : "", o->name);
    bench_case *c = add(names[step][op], dtype, "GFLOP/s", 0);
    c->flops = 4.0 * (double)(o->b * o->h * o->d) * (double)o->t * (double)o->t *
               (o->causal ? 0.5 : 1) * (step ? 3.5 : 1);
    c->work  = 1e-9 * c->flops;
    c->setup = attn_setup;
    c->run   = run_apply;
    c->apply = attn_apply;
    c->op    = op;
    c->k     = step;
}

static void add_features(int n, bool step)
{
    static char names[2][2][48];
    char       *name = names[step][n > 128];
    snprintf(name, sizeof names[0][0], "features_%s%d_h4_t4096_d64_causal", step ? "step_" : "", n);
    bench_case *c = add(name, MLC_F32, "rows/s", FEATURES_HEADS * FEATURES_ROWS);
    c->setup  = features_setup;
    c->run    = run_apply;
    c->apply  = features_apply;
    c->probe  = features_probe;
    c->beside = "exact";
    c->form   = BESIDE_TIMES;
    c->n      = n;
    c->k      = step;
}

static void add_entropy(mlc_dtype dtype)
{
    bench_case *c = add("row_cross_entropy_1000x1000", dtype, "Melem/s", 1);
    c->setup = entropy_setup;
    c->run   = run_apply;
    c->apply = entropy_apply;
    c->m     = c->n = 1000;
}

static void add_gemm(const char *name, int op, int64_t m, int64_t n, int64_t k, mlc_dtype dtype)
{
    double      flops = (op == GEMM_YDX ? 4.0 : 2.0) * (double)(m * n * k);
    bench_case *c = add(name, dtype, "GFLOP/s", 1e-9 * flops);
    c->flops  = flops;
    c->setup  = gemm_setup;
    c->run    = run_apply;
    c->apply  = op == GEMM_YDX ? gemm_ydx_apply : gemm_apply;
    c->probe  = gemm_probe;
    c->beside = dtype == MLC_BF16 ? "bf16 peak" : "FMA";
    c->op     = op;
    c->m = m;
    c->n = n;
    c->k = k;
}

/* The shapes of issue 5: M rows of a batch, N outputs, K inputs. */
static void add_gemms(void)
{
    static const int64_t shape_of[][3] = {
        { 32, 512, 784 }, { 32, 512, 512 }, { 128, 512, 784 }, { 128, 1024, 1024 },
        { 32, 1024, 1024 }, { 256, 768, 768 }, { 256, 3072, 768 }, { 1024, 1024, 1024 },
        { 2048, 2048, 2048 }, { 128, 64, 1024 }, { 128, 16, 512 },
    };
    enum { SHAPES = sizeof shape_of / sizeof *shape_of };
    static const char *const form[GEMM_FORMS] = { "nt", "nn", "tn", "pre", "cold", "ydx" };
    static char              name[GEMM_FORMS][SHAPES][40];
    for (int op = 0; op < GEMM_FORMS; op++)
        for (int i = 0; i < SHAPES; i++) {
            const int64_t m = shape_of[i][0], n = shape_of[i][1], k = shape_of[i][2];
            snprintf(name[op][i], sizeof name[op][i], "gemm_%s_%dx%dx%d", form[op], (int)m, (int)n,
                     (int)k);
            const bool wide = op < GEMM_PRE || (op == GEMM_PRE && m <= 128);
            for (int d = wide ? 0 : 1; d < (op == GEMM_NT ? 3 : 2); d++) {
                const mlc_dtype dtype = d == 0 ? MLC_F32 : d == 1 ? MLC_BF16 : MLC_F16;
                if (op == GEMM_NN)      add_gemm(name[op][i], op, m, k, n, dtype);
                else if (op == GEMM_TN) add_gemm(name[op][i], op, n, k, m, dtype);
                else                    add_gemm(name[op][i], op, m, n, k, dtype);
            }
        }
}

/* Training does three products a layer, but no gradient of the data. */
static void add_net(const char *name, mlc_dtype dtype, int op, int64_t batch, bool train)
{
    const shape *p = &shapes[op];
    bool         tiny = p->sgd, captured = strstr(name, "step_plan_") == name;
    bench_case  *c = add(name, dtype, tiny ? "steps/s" : "samples/s", tiny ? 1 : (double)batch);
    for (int i = 0; i < p->layers; i++)
        c->flops += 2.0 * (double)(batch * p->width[i] * p->width[i + 1])
                  * (train ? i ? 3 : 2 : 1);
    if (tiny) c->flops = 0;
    c->one_thread = tiny;
    c->setup = captured ? captured_setup : train ? train_setup : infer_setup;
    c->run   = run_apply;
    c->apply = captured ? captured_apply : train ? train_apply : net_apply;
    c->op    = op;
    c->m     = batch;
}

static void add_conv(int op, int part, mlc_dtype dtype)
{
    static const char *const what[] = { "y", "dx", "train" };
    static char              names[CONV_PARTS][sizeof images / sizeof *images][48];
    const image_shape       *p = &images[op];
    const int64_t            o = (p->size + 2 * p->pad - p->kernel) / p->stride + 1;
    snprintf(names[part][op], sizeof names[part][op], "conv_%s_%s", what[part], p->name);
    bench_case *c = add(names[part][op], dtype, "GFLOP/s", 0);
    c->flops = 2.0 * (double)(p->n * o * o * p->out * p->c / p->groups * p->kernel * p->kernel)
             * (part == CONV_TRAIN ? 3 : 1);
    c->work  = 1e-9 * c->flops;
    c->setup = conv_setup;
    c->run   = run_apply;
    c->apply = conv_apply;
    c->op    = op;
    c->k     = part;
}

/* resnet: else the network of MNIST's images. */
static void add_image_net(const char *name, bool resnet, int64_t batch, bool train, mlc_dtype dtype)
{
    bench_case *c = add(name, dtype, "samples/s", (double)batch);
    c->setup = train ? image_train_setup : image_infer_setup;
    c->run   = run_apply;
    c->apply = train ? train_apply : stored_apply;
    c->op    = resnet;
    c->m     = batch;
}

/* Names tell all: sk_[train_]IN[xOUT]_TERMS_RANK_bBATCH, or dense in place of both. */
static void add_sketched(bool train, int64_t in, int64_t out, int64_t terms, int64_t rank,
                         int64_t batch)
{
    static char    names[sizeof sketches / sizeof *sketches][64];
    const sketched p = { in, out, terms, rank, batch };
    char           size[24], kind[24];
    snprintf(size, sizeof size, in == out ? "%d" : "%dx%d", (int)in, (int)out);
    snprintf(kind, sizeof kind, terms ? "%d_%d" : "dense", (int)terms, (int)rank);
    snprintf(names[n_sketches], sizeof names[0], "sk_%s%s_%s_b%d", train ? "train_" : "", size,
             kind, (int)batch);
    for (int half = 0; half < 2; half++) {
        const mlc_sketch_cost cost = mlc_sketch_cost_of(in, out, terms, rank);
        bench_case *c = add(names[n_sketches], half ? MLC_BF16 : MLC_F32, "samples/s",
                            (double)batch);
        c->flops = (double)batch * (terms ? cost.step : cost.dense_step);
        /* Two layers and the last one; the first makes no gradient of its input. */
        if (train)
            c->flops += (double)batch * ((terms ? 6.0 * (double)(terms * rank * (in + out))
                                                : 4.0 * (double)(in * out)) + 60.0 * (double)out);
        c->setup = train ? sketched_train_setup : sketched_setup;
        c->run   = run_apply;
        c->apply = train ? train_apply : sketched_apply;
        c->op    = n_sketches;
        c->m     = batch;
    }
    sketches[n_sketches++] = p;
}

/* Panther's grid, its tutorial's layers, and where sketches are for. */
static void add_sketches(void)
{
    static const int64_t terms[] = { 2, 4, 6, 8, 12, 16 }, rank[] = { 16, 32, 48, 64, 96, 128 };
    static const int64_t other[][5] = { { 8192, 8192, 1, 16, 64 },  { 8192, 8192, 0, 0, 64 },
                                        { 4096, 4096, 1, 64, 128 }, { 4096, 4096, 1, 512, 128 },
                                        { 4096, 4096, 0, 0, 128 },  { 768, 3072, 1, 16, 512 },
                                        { 768, 3072, 3, 32, 512 },  { 768, 3072, 0, 0, 512 },
                                        { 1024, 1024, 1, 64, 128 }, { 1024, 1024, 0, 0, 128 },
                                        { 2048, 1024, 8, 128, 256 }, { 2048, 1024, 0, 0, 256 },
                                        { 1024, 512, 0, 0, 128 } };
    add_sketched(true, 4096, 4096, 1, 64, 128);
    add_sketched(true, 4096, 4096, 0, 0, 128);
    for (int i = 0; i < (int)(sizeof other / sizeof *other); i++)
        add_sketched(false, other[i][0], other[i][1], other[i][2], other[i][3], other[i][4]);
    for (int i = 0; i < 36; i++) add_sketched(false, 1024, 512, terms[i / 6], rank[i % 6], 128);
}

static void add_other(const char *name, const char *unit, double work, bool (*setup)(state *),
                      bench_run run, int64_t m, int64_t n, int64_t k, int op)
{
    bench_case *c = add(name, MLC_F32, unit, work);
    c->setup = setup;
    c->run   = run;
    c->op    = op;
    c->m = m;
    c->n = n;
    c->k = k;
}

static void add_adamw(const char *name, int64_t m, int64_t n)
{
    const double work = 1e-6 * (double)(m * n);
    add_other(name, "Mparam/s", work, optim_setup, optim_run, m, n, 0, 0);
    cases[n_cases - 1].dtype = MLC_BF16;
    add_other(name, "Mparam/s", work, optim_setup, optim_run, m, n, 0, 0);
    cases[n_cases - 1].probe  = optim_probe;
    cases[n_cases - 1].beside = "plain loop";
}

static void add_fork(const char *name, int microseconds)
{
    add_other(name, "loops/s", 1, fork_setup, fork_run, 0, 0, 0, microseconds);
    cases[n_cases - 1].probe  = fork_probe;
    cases[n_cases - 1].beside = "one thread";
}

#include "bench_train.h"
#include "bench_language.h"
#include "bench_recurrent.h"
#include "bench_quant.h"
#include "bench_sparse.h"
#include "bench_plan.h"

static void add_all(void)
{
    for (int i = 0; i < (int)(sizeof ews / sizeof ews[0]); i++) {
        add_ew(i, MLC_F32);
        if (ews[i].ref == ref_add || ews[i].ref == ref_exp || ews[i].ref == ref_tanh)
            add_ew(i, MLC_F64);
    }
    for (int i = 0; i < (int)(sizeof moves / sizeof moves[0]); i++) add_move(i);
    for (int i = 0; i < (int)(sizeof lines / sizeof lines[0]); i++) {
        add_line(i, 1, MLC_F32);
        add_line(i, 0, MLC_F32);
        if (lines[i].apply == line_sum) add_line(i, 1, MLC_F64);
    }
    for (int i = 0; i < (int)(sizeof draws / sizeof draws[0]); i++) add_draw(i);
    for (int i = 0; i < (int)(sizeof grads / sizeof *grads); i++) {
        const bool rows = strncmp(grads[i].name, "row_", 4) == 0;
        if (rows) add_grad(i, false, MLC_F32, 0);
        add_grad(i, true, MLC_F32, 0);
        for (int c = 0; rows && c < 4 * GRAD_WIDTHS; c++)
            if (c / 4 || c % 2) add_grad(i, c / 2 % 2, c % 2 ? MLC_BF16 : MLC_F32, c / 4);
    }
    add_entropy(MLC_F32);
    add_entropy(MLC_F64);
    add_losses();
    add_ctc();
    add_gemms();
    add_gemm("gemm_1000x200x500", GEMM_NN, 1000, 200, 500, MLC_F64);
    for (int half = 0; half < 2; half++) {
        const mlc_dtype dtype = half ? MLC_BF16 : MLC_F32;
        add_net("mlp_784_512_512_10_b128_adamw", dtype, 0, 128, true);
        add_net("mlp_784_512_512_10_b128_adamw_in_backward", dtype, 0, 128, true);
        add_net("mlp_784_784_512_10_b32_adamw", dtype, 2, 32, true);
        add_net("mlp_784_784_512_10_b32_adamw_in_backward", dtype, 2, 32, true);
        add_net("mlp_1024_2048x3_10_b32_adamw", dtype, 3, 32, true);
        add_net("mlp_1024_2048x3_10_b32_adamw_in_backward", dtype, 3, 32, true);
        add_net("infer_mlp_784_512_512_10_b1", dtype, 0, 1, false);
        add_net("infer_mlp_784_512_512_10_b128", dtype, 0, 128, false);
    }
    for (int half = 0; half < 2; half++) {
        const mlc_dtype dtype = half ? MLC_BF16 : MLC_F32;
        for (int i = 0; i < (int)(sizeof images / sizeof *images); i++)
            for (int part = 0; part < CONV_PARTS; part++) add_conv(i, part, dtype);
        add_image_net("net_cnn28_b64_adamw", false, 64, true, dtype);
        add_image_net("net_resnet20_b64_adamw", true, 64, true, dtype);
        add_image_net("net_resnet20_b64_adamw_recompute_2", true, 64, true, dtype);
        cases[n_cases - 1].k = 2;
        add_image_net("net_resnet20_b64_adamw_recompute_1", true, 64, true, dtype);
        cases[n_cases - 1].k = 1;
        add_image_net("infer_resnet20_b1", true, 1, false, dtype);
        add_image_net("infer_resnet20_b64", true, 64, false, dtype);
        add_image_net("infer_resnet20_half_b1", true, 1, false, dtype);
        cases[n_cases - 1].k = 2;
        add_image_net("infer_resnet20_half_b64", true, 64, false, dtype);
        cases[n_cases - 1].k = 2;
    }
    add_language();
    add_recurrent();
    add_quants();
    add_sparses();
    for (int i = 0; i < 4 * (int)(sizeof attns / sizeof *attns); i++)
        add_attn(i / 4, i & 1, i & 2 ? MLC_BF16 : MLC_F32);
    for (int i = 0; i < 4; i++) add_features(i & 1 ? 256 : 128, i > 1);
    add_sketches();
    add_net("overhead_4_4_3_b1_sgd", MLC_F32, 1, 1, true);
    add_net("infer_4_4_3_b1", MLC_F32, 1, 1, false);
    add_plans();
    add_net("step_plan_4_4_3_b1", MLC_F32, 1, 1, true);
    add_net("step_plan_mlp_784_784_512_10_b32", MLC_F32, 2, 32, true);
    add_fork("threads_fork_join", 0);
    add_fork("threads_fork_join_20us", 20);
    add_fork("threads_fork_join_500us", 500);
    add_adamw("optim_adamw_1m", 1000, 1000);
    add_adamw("optim_adamw_10m", 2500, 4000);
    if (bench_free_memory() > 6e9) add_adamw("optim_adamw_100m", 10000, 10000);
    add_other("embedding_50000x768_8192", "Mrow/s", 8192e-6, embedding_setup, embedding_run, 50000,
              768, 8192, 0);
    add_other("optim_sgd_1000x1000", "Mparam/s", 1, optim_setup, optim_run, 1000, 1000, 0, 1);
    for (int i = 0; i < 2 * RULE_COUNT; i++) {
        static char names[2 * RULE_COUNT][40];
        const bool  large = i >= RULE_COUNT;
        snprintf(names[i], sizeof names[i], "optim_%s_%s", RULES[i % RULE_COUNT].name,
                 large ? "10m" : "1m");
        add_other(names[i], "Mparam/s", large ? 10 : 1, rule_setup, optim_run, large ? 2500 : 1000,
                  large ? 4000 : 1000, 0, 2 + i % RULE_COUNT);
    }
    add_other("optim_ema_1m", "Mparam/s", 1, ema_setup, ema_run, 1000, 1000, 0, 0);
    add_other("optim_lbfgs_1m", "Mparam/s", 1, lbfgs_setup, lbfgs_run, 1000, 1000, 0, 0);
    add_other("optim_ema_10m", "Mparam/s", 10, ema_setup, ema_run, 2500, 4000, 0, 0);
    add_scheds();
    add_other("data_loader_1797x64_b32", "samples/s", 1797, loader_setup, loader_run, 1797, 64, 32,
              0);
    add_callbacks();
    add_metrics();
    add_trainings();
    add_mem();
    for (int w = 0; w <= 2; w += 2) {
        static char names[4][4][40];
        static const struct { const char *name; int64_t m, n, k; } of[4] = {
            {"rows_1797x64_b32", 1797, 64, 32}, {"images_2000_b128", 2000, 0, 128},
            {"tokens_500x256_b16", 500, 256, 16}, {"waits_1280x64_b32", 1280, 64, 32}};
        for (int i = 0; i < 4; i++) {
            snprintf(names[i][w], sizeof names[i][w], "loader_%s_w%d", of[i].name, w);
            add_other(names[i][w], "samples/s", (double)of[i].m, from_setup, from_run, of[i].m,
                      of[i].n, of[i].k, 8 * i + w);
        }
    }
    add_other("data_csv_digits", "rows/s", 1797, csv_setup, run_apply, 0, 0, 0, 0);
    cases[n_cases - 1].apply = csv_apply;
    for (int i = 0; i < 2; i++)
        add_other(i ? "text_wordpiece_1mb" : "text_bpe_1mb", "MB/s", TEXT_BYTES * 1e-6, text_setup,
                  text_run, 0, 0, 0, i);
}

/* ---- running -------------------------------------------------------------------------------- */

static mlc_ctx *context(const bench_options *o, bool one_thread)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    mlc_status   status = MLC_OK;
    d.threads = one_thread ? 1 : o->threads;
    d.isa     = o->isa;
    d.device  = o->device;
    d.status  = &status;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!ctx) fprintf(stderr, "bench: no context: %s\n", mlc_status_name(status));
    return ctx;
}

/* top_bytes: peaks by class, not at the same time. rss_bytes: most that the process had in RAM. */
static void report_memory(const mlc_memory *mem, int64_t made, FILE *json)
{
    static const char *const of[MLC_MEM_COUNT] = { "objects", "parameters", "gradients",
        "optimizer", "activations", "workspace", "packs" };
    fprintf(json, "\"peak_bytes\":%lld,\"activation_bytes\":%lld,\"top_bytes\":{",
            (long long)mem->peak, (long long)made);
    for (int i = 0; i < MLC_MEM_COUNT; i++)
        fprintf(json, "%s\"%s\":%lld", i ? "," : "", of[i], (long long)mem->top[i]);
    fprintf(json, "},\"rss_bytes\":%.0f}\n", bench_proc_bytes("/proc/self/status", "VmHWM", 0));
}

static void report(const state *s, const bench_result *r, const bench_peaks *p, FILE *json)
{
    const bench_case *c = s->bc;
    char              time[32], best[32], share_text[16] = "-";
    double            rate = c->work / r->median, share = -1;
    mlc_memory        mem;
    mlc_memory_info(s->ctx, &mem);
    const int64_t made = mem.top[MLC_MEM_ACTIVATION] - s->inputs;
    double peak = c->flops > 0 ? p->gflops[c->dtype == MLC_F64] : p->gbytes;
    const double times = r->paired / c->work;
    const double more  = 1e6 * (times - 1) / r->beside[0] / (double)(c->k > 0 ? c->k : 1);
    if (c->flops > 0 && c->dtype == MLC_BF16) peak = p->amx;
    if (peak > 0 && c->flops + c->bytes > 0)
        share = 1e-9 * (c->flops + c->bytes) / r->median / peak;
    if (r->beside[0] > 0 && c->form == BESIDE_SHARE) share = rate / r->beside[0];
    if (share >= 0) snprintf(share_text, sizeof share_text, "%.0f %%", 100 * share);
    printf("%-40s %-4s %12s %12s %7.1f %% %12.5g %-10s %6s %11.1f %8.2f", c->name,
           mlc_dtype_name(c->dtype), bench_time_text(r->median, time, sizeof time),
           bench_time_text(r->best, best, sizeof best), 100 * r->spread, rate, c->unit, share_text,
           (double)mem.peak / 1048576, (double)made / 1048576);
    if (r->beside[0] > 0) printf("  %s %.5g", c->beside, r->beside[0]);
    if (r->beside[1] > 0) printf(", one thread %.5g", r->beside[1]);
    if (r->beside[0] > 0 && c->form == BESIDE_TIMES) printf(", of %s %.2f", c->beside, times);
    if (r->beside[0] > 0 && c->form == BESIDE_MORE) printf(", %.3f us more", more);
    printf("\n");
    fflush(stdout);
    if (!json) return;
    fprintf(json, "{\"case\":\"%s\",\"dtype\":\"%s\",\"isa\":\"%s\",\"threads\":%d,", c->name,
            mlc_dtype_name(c->dtype), mlc_isa_name(mlc_ctx_isa(s->ctx)),
            (int)mlc_ctx_threads(s->ctx));
    bench_json_number(json, "median_ms", 1e3 * r->median, ",");
    bench_json_number(json, "best_ms", 1e3 * r->best, ",");
    bench_json_number(json, "spread", r->spread, ",");
    bench_json_number(json, "rate", rate, ",");
    fprintf(json, "\"unit\":\"%s\",", c->unit);
    bench_json_number(json, "peak_share", share, ",");
    if (r->beside[0] > 0) {
        fprintf(json, "\"beside\":\"%s\",", c->beside);
        bench_json_number(json, "beside_rate", r->beside[0], ",");
        bench_json_number(json, "beside_rate_one", r->beside[1] > 0 ? r->beside[1] : -1, ",");
        bench_json_number(json, "beside_times", c->form == BESIDE_TIMES ? times : -1, ",");
        if (c->form == BESIDE_MORE) fprintf(json, "\"beside_more_us\":%.4g,", more);
    }
    report_memory(&mem, made, json);
    fflush(json);
}

static bool run_case(const bench_case *c, const bench_options *o, const bench_peaks *p, FILE *json)
{
    state s;
    memset(&s, 0, sizeof s);
    s.bc  = c;
    s.ctx = context(o, c->one_thread);
    bool ok = s.ctx && c->setup(&s) && mlc_ctx_status(s.ctx) == MLC_OK;
    if (ok) {
        mlc_memory mem;
        mlc_memory_peak_reset(s.ctx);
        mlc_memory_info(s.ctx, &mem);
        s.inputs = mem.now[MLC_MEM_ACTIVATION];
        bench_result r = bench_measure(c->run, o->device ? NULL : c->probe, &s, o->seconds);
        ok = *mlc_error(s.ctx) == 0;
        if (ok) report(&s, &r, p, json);
    }
    if (!ok) fprintf(stderr, "%s %s: FAILED: %s\n", c->name, mlc_dtype_name(c->dtype),
                     s.ctx && *mlc_error(s.ctx) ? mlc_error(s.ctx) : "wrong result");
    if (s.callback) mlc_callback_free(s.ctx, s.callback);
    mlc_ctx_free(s.ctx);
    free(s.plain.data[0]);
    free(s.nets);
    return ok;
}

static bool chosen(const bench_case *c, const bench_options *o)
{
    return fnmatch(o->glob, c->name, 0) == 0
        && (!o->dtype || strcmp(o->dtype, mlc_dtype_name(c->dtype)) == 0);
}

static int run_all(const bench_options *o)
{
    int      bad = 0, done = 0;
    FILE    *json = o->json ? fopen(o->json, "w") : NULL;
    mlc_ctx *ctx = context(o, false);
    if (o->json && !json) perror(o->json);
    if (!ctx || (o->json && !json)) return 1;
    bench_peaks p = { { -1, -1 }, 0, -1 };
    if (!o->no_peaks && !o->device) p = bench_peaks_of(mlc_ctx_isa(ctx), mlc_ctx_threads(ctx));
    bench_print_machine(ctx, &p);
    mlc_ctx_free(ctx);
    printf("%-40s %-4s %12s %12s %9s %12s %-10s %6s %11s %8s  %s\n", "case", "type", "median",
           "best", "spread", "rate", "unit", "peak", "peak MB", "act. MB", "measured beside it");
    for (int i = 0; i < n_cases; i++) {
        if (!chosen(&cases[i], o)) continue;
        done++;
        if (!run_case(&cases[i], o, &p, json)) bad++;
    }
    if (json) fclose(json);
    if (!done) fprintf(stderr, "bench: no case matches %s; --list shows them\n", o->glob);
    return bad || !done;
}

static const char HELP[] =
    "usage: bench [--list] [--case GLOB] [--dtype f32|f64|bf16|f16] [--seconds S] [--threads N]\n"
    "             [--isa scalar|avx2|avx512|avx512x|amx|neon] [--json FILE] [--no-peaks]\n"
    "             [--device cuda:0]: where bench was compiled with -DBENCH_CUDA\n";

static bool parse_isa(const char *text, mlc_isa *isa)
{
    for (int i = MLC_ISA_AUTO; i < MLC_ISA_COUNT; i++)
        if (strcmp(text, mlc_isa_name((mlc_isa)i)) == 0) {
            *isa = (mlc_isa)i;
            return true;
        }
    return false;
}

static bool parse(bench_options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--list") == 0)     { o->list = true;     continue; }
        if (strcmp(a, "--no-peaks") == 0) { o->no_peaks = true; continue; }
        if (!v) return false;
        if (strcmp(a, "--case") == 0)         o->glob    = v;
        else if (strcmp(a, "--dtype") == 0)   o->dtype   = v;
        else if (strcmp(a, "--device") == 0)  o->device  = v;
        else if (strcmp(a, "--json") == 0)    o->json    = v;
        else if (strcmp(a, "--seconds") == 0) o->seconds = atof(v);
        else if (strcmp(a, "--threads") == 0) o->threads = (int32_t)atoi(v);
        else if (strcmp(a, "--isa") != 0 || !parse_isa(v, &o->isa)) return false;
        i++;
    }
    return o->seconds > 0 && o->threads >= 0;
}

int main(int argc, char **argv)
{
    bench_options o = { "*", NULL, NULL, NULL, 3, 0, MLC_ISA_AUTO, false, false };
    if (!parse(&o, argc, argv)) {
        fputs(HELP, stderr);
        return 2;
    }
#ifdef BENCH_CUDA
    if (o.device && mlc_backend_count("cuda") == 0 && mlc_cuda_register() != MLC_OK)
        fprintf(stderr, "bench: cuda: %s\n", mlc_cuda_error());
#endif
    add_all();
    if (!o.list) return run_all(&o);
    for (int i = 0; i < n_cases; i++)
        if (chosen(&cases[i], &o)) printf("%s %s\n", cases[i].name, mlc_dtype_name(cases[i].dtype));
    return 0;
}
