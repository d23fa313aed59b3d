/* test_faults.c -- memory runs out at every allocation of every public function, once and for ever
 *
 * Each scenario is a small use of a function (two, with its backward). It runs once with memory
 * enough, which gives the result to compare with; then with the first allocation failing, the
 * second, ... until none fails any more. A failed call must say NOMEM and change nothing; the same
 * call with memory again must give the same bits; nothing may leak, neither at the context's end
 * nor from failed call to failed call. make lint wants a scenario for each function of the API.
 * Failing system calls are in tests/faults/.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ew_table.h"
#include "watch.h"

#include <fcntl.h>

/* ---- an allocator that fails where it is told to -------------------------------------------- */

typedef struct memory {
    int64_t live, blocks;              /* bytes and blocks not yet released                    */
    int64_t calls, fail_at;            /* while armed; fail_at 0: never                        */
    bool    armed, ever, hit;          /* ever: all later calls fail, too                      */
} memory;

static memory *g_memory;               /* for the device's memory: it has no user pointer      */

static bool memory_fails(memory *m)
{
    if (!m->armed)
        return false;
    m->calls++;
    if (m->fail_at == 0 || m->calls < m->fail_at || (m->calls > m->fail_at && !m->ever))
        return false;
    m->hit = true;
    return true;
}

static void *memory_alloc(void *user, size_t bytes, size_t align)
{
    memory *m = (memory *)user;
    void   *p = memory_fails(m) ? NULL
                                : test_aligned_alloc(align, bytes);
    if (p != NULL) {
        memset(p, 0xa5, bytes);        /* nothing may count on zeros                           */
        m->live += (int64_t)bytes;
        m->blocks++;
    }
    return p;
}

static void memory_release(void *user, void *ptr, size_t bytes)
{
    memory *m = (memory *)user;
    m->live -= (int64_t)bytes;
    m->blocks--;
    memset(ptr, 0xdd, bytes);
    test_aligned_free(ptr);
}

static bool device_refuses(void)
{
    return g_memory != NULL && memory_fails(g_memory);
}

static mlc_ctx_desc memory_desc(memory *m)
{
    mlc_ctx_desc d = test_desc();
    d.threads = 1;
    d.allocator.user = m;
    d.allocator.alloc = memory_alloc;
    d.allocator.release = memory_release;
    g_memory = m;
    test_device_refuses = device_refuses;
    return d;
}

static void memory_done(const memory *m, mlc_ctx *ctx)
{
    const int64_t leaked = test_device_leaked();
    mlc_ctx_free(ctx);
    CHECK_EQ(m->live, 0);
    CHECK_EQ(m->blocks, 0);
    CHECK_EQ(test_device_leaked(), leaked);
    g_memory = NULL;
    test_device_refuses = NULL;
}

/* ---- the world in which scenarios run ------------------------------------------------------- */

typedef struct world {
    memory       mem;
    mlc_ctx     *ctx;
    const box   *files;                /* in.npy, ...: to be read; out: to be replaced         */
    mlc_tensor  *leaf_x, *leaf_y;      /* f32 [3,4], which ask for gradients                   */
    mlc_tensor  *x, *y;                /* copies of them in the scope                          */
    mlc_tensor  *v, *w, *m;            /* f32 [4]; [4,3] by stride; [3,3]                      */
    mlc_tensor  *d;                    /* f64 [2,2] by stride, asks for gradients              */
    mlc_tensor  *mask, *mask2;         /* bool [3,4]                                           */
    mlc_tensor  *i, *rows, *labels;    /* i64 [3,4] and [2] in 0..2, [3] in 0..2               */
    mlc_module  *net;                  /* linear 4 5, relu, linear 5 3: built                  */
    mlc_optim   *opt;                  /* of it; its gradients are there                       */
    mlc_tensor  *out[4];               /* what the scenario made                               */
    int          n_out;
    uint64_t     text;                 /* hash of text that the scenario was given             */
    mlc_module  *module;               /* objects that it made, to be freed                    */
    mlc_optim   *optim;
    mlc_loader  *loader;
    mlc_dataset *sets[4];              /* datasets, before those that are made of them         */
    int          n_sets;
    mlc_table   *table;
    mlc_tokenizer *tokenizer;
    mlc_metric  *metric, *other;
    mlc_tracker *tracker;
    mlc_safetensors *file;
    char         in[340], to[340];     /* room for a path each                                 */
} world;

typedef mlc_status (*scenario_fn)(world *w);

typedef struct scenario {
    const char      *name;
    scenario_fn      run;
    bool             quiet;            /* allocates nothing                                    */
    struct scenario *next;
} scenario;

static scenario *g_first, **g_last = &g_first;

static void scenario_add(scenario *s)
{
    *g_last = s;
    g_last = &s->next;
}

#define SCENARIO(name, quiet) \
    static mlc_status run_##name(world *w); \
    __attribute__((constructor)) static void register_##name(void) \
    { \
        static scenario self = {#name, run_##name, quiet, NULL}; \
        scenario_add(&self); \
    } \
    static mlc_status run_##name(world *w)

#define DO(name)         SCENARIO(name, false)
/* The function makes a tensor, for which the runner calls backward if it can.                  */
#define CASE(name, call) SCENARIO(name, false) { return keep(w, call); }
#define UNARY(name)      CASE(name, name(w->x))
#define BINARY(name)     CASE(name, name(w->x, w->y))
#define SCALAR(name)     CASE(name, name(w->x, 0.5))

/* Status of a call that makes something: that of the context if there is nothing.              */
static mlc_status made(const world *w, const void *p)
{
    return p != NULL ? MLC_OK : mlc_ctx_status(w->ctx);
}

static mlc_status keep(world *w, mlc_tensor *t)
{
    if (t != NULL)
        w->out[w->n_out++] = t;
    return made(w, t);
}

static mlc_status first_of(mlc_status a, mlc_status b)
{
    return a != MLC_OK ? a : b;
}

static const char *in(world *w, const char *file)
{
    snprintf(w->in, sizeof w->in, "%s/%s", w->files->dir, file);
    return w->in;
}

static const char *to(world *w)
{
    snprintf(w->to, sizeof w->to, "%s/out", w->files->dir);
    return w->to;
}

/* ---- elementwise ---------------------------------------------------------------------------- */

#define EW_CASES1(name, ...) UNARY(mlc_##name) UNARY(mlc_##name##_)
#define EW_CASES2(name, ...) BINARY(mlc_##name) BINARY(mlc_##name##_)
EW_UNARY(EW_CASES1, EW_CASES1, EW_CASES1)
EW_BINARY(EW_CASES2, EW_CASES2)

UNARY(mlc_isnan)      UNARY(mlc_isinf)       UNARY(mlc_isfinite)

BINARY(mlc_eq)        BINARY(mlc_ne)         BINARY(mlc_lt)        BINARY(mlc_le)
BINARY(mlc_gt)        BINARY(mlc_ge)         BINARY(mlc_copy_)

SCALAR(mlc_add_scalar)  SCALAR(mlc_add_scalar_)  SCALAR(mlc_mul_scalar)  SCALAR(mlc_mul_scalar_)
SCALAR(mlc_div_scalar)  SCALAR(mlc_div_scalar_)  SCALAR(mlc_pow_scalar)  SCALAR(mlc_pow_scalar_)
SCALAR(mlc_sub_scalar)  SCALAR(mlc_sub_scalar_)
SCALAR(mlc_rsub_scalar) SCALAR(mlc_rsub_scalar_) SCALAR(mlc_elu)         SCALAR(mlc_elu_)
SCALAR(mlc_celu)        SCALAR(mlc_celu_)        SCALAR(mlc_leaky_relu)
SCALAR(mlc_eq_scalar)   SCALAR(mlc_ne_scalar)    SCALAR(mlc_lt_scalar)   SCALAR(mlc_le_scalar)
SCALAR(mlc_gt_scalar)   SCALAR(mlc_ge_scalar)    SCALAR(mlc_fill_)

CASE(mlc_clamp, mlc_clamp(w->x, 0.3, 0.6))
CASE(mlc_clamp_, mlc_clamp_(w->x, 0.3, 0.6))
CASE(mlc_leaky_relu_, mlc_leaky_relu_(w->x, -0.5))
CASE(mlc_prelu, mlc_prelu(w->x, mlc_select(w->y, 0, 1)))
CASE(mlc_glu, mlc_glu(w->x, 1))
CASE(mlc_zero_, mlc_zero_(w->x))
CASE(mlc_where, mlc_where(w->mask, w->x, w->y))
CASE(mlc_masked_fill, mlc_masked_fill(w->x, w->mask, 2))
CASE(mlc_masked_fill_, mlc_masked_fill_(w->x, w->mask, 2))
CASE(mlc_logical_and, mlc_logical_and(w->mask, w->mask2))
CASE(mlc_logical_or, mlc_logical_or(w->mask, w->mask2))
CASE(mlc_logical_xor, mlc_logical_xor(w->mask, w->mask2))
CASE(mlc_logical_not, mlc_logical_not(w->mask))
CASE(mlc_dropout, mlc_dropout(w->x, 0.5))

/* ---- reductions, products, indices ---------------------------------------------------------- */

CASE(mlc_sum, mlc_sum(w->x, mlc_dims1(0), false))
CASE(mlc_sum_all, mlc_sum_all(w->x))
CASE(mlc_mean_all, mlc_mean_all(w->x))
CASE(mlc_mean, mlc_mean(w->x, mlc_dims1(-1), true))
CASE(mlc_max, mlc_max(w->x, mlc_dims0(), false))
CASE(mlc_prod, mlc_prod(w->x, mlc_dims1(1), false))
CASE(mlc_min, mlc_min(w->x, mlc_dims1(0), true))
CASE(mlc_any, mlc_any(w->x, mlc_dims1(0), false))
CASE(mlc_all, mlc_all(w->x, mlc_dims0(), false))
CASE(mlc_var, mlc_var(w->x, mlc_dims1(1), 1, false))
CASE(mlc_std, mlc_std(w->x, mlc_dims0(), 0, true))
CASE(mlc_norm, mlc_norm(w->x, 2.5, mlc_dims1(1), false))
CASE(mlc_logsumexp, mlc_logsumexp(w->x, mlc_dims1(1), false))
CASE(mlc_argmax, mlc_argmax(w->x, 1, false))
CASE(mlc_argmin, mlc_argmin(w->x, 0, false))
CASE(mlc_cumsum, mlc_cumsum(w->x, 0))
CASE(mlc_cumprod, mlc_cumprod(w->x, 1))
CASE(mlc_softmax, mlc_softmax(w->x, 1))
CASE(mlc_log_softmax, mlc_log_softmax(mlc_transpose(w->x, 0, 1), 1))
CASE(mlc_layer_norm, mlc_layer_norm(w->x, mlc_select(w->y, 0, 1),
                                    mlc_select(mlc_transpose(w->x, 0, 1), 1, 0), 1e-5))
CASE(mlc_rms_norm, mlc_rms_norm(w->x, mlc_select(w->y, 0, 1), 1e-5))

CASE(mlc_matmul, mlc_matmul(w->x, w->w))
CASE(mlc_linear, mlc_linear(w->x, w->y, NULL))
CASE(mlc_conv, mlc_conv(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->m, 2), NULL, NULL))
CASE(mlc_conv_transpose, mlc_conv_transpose(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->m, 2), NULL,
                                            NULL))

DO(mlc_max_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    return keep(w, mlc_max_pool(mlc_unsqueeze(w->x, 0), &d));
}

DO(mlc_avg_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    return keep(w, mlc_avg_pool(mlc_unsqueeze(w->x, 0), &d));
}

CASE(mlc_adaptive_max_pool, mlc_adaptive_max_pool(mlc_unsqueeze(w->x, 0), mlc_dims1(2)))
CASE(mlc_adaptive_avg_pool, mlc_adaptive_avg_pool(mlc_unsqueeze(w->x, 0), mlc_dims1(2)))
CASE(mlc_batch_norm, mlc_batch_norm(w->x, NULL, NULL, w->v, NULL, true, 0.1, 1e-5))
CASE(mlc_group_norm, mlc_group_norm(w->x, 2, w->v, NULL, 1e-5))
CASE(mlc_instance_norm, mlc_instance_norm(mlc_unsqueeze(w->x, 0), NULL, NULL, 1e-5))
CASE(mlc_interpolate,
     mlc_interpolate(mlc_unsqueeze(w->x, 0), mlc_dims1(5), MLC_INTERPOLATE_LINEAR))
CASE(mlc_pixel_shuffle, mlc_pixel_shuffle(mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1)), 2))
CASE(mlc_pixel_unshuffle, mlc_pixel_unshuffle(mlc_reshape(w->x, mlc_dims4(1, 1, 6, 2)), 2))
CASE(mlc_channels_last, mlc_channels_last(mlc_unsqueeze(w->x, 0)))
CASE(mlc_outer, mlc_outer(w->v, mlc_reshape(w->x, mlc_dims1(12))))
CASE(mlc_dot, mlc_dot(w->v, mlc_select(w->x, 0, 1)))

DO(mlc_linear_ex)
{
    mlc_epilogue e = {MLC_ACT_GELU, 0.5, NULL};
    e.residual = mlc_matmul(w->x, mlc_transpose(w->y, 0, 1));
    return keep(w, mlc_linear_ex(w->x, w->y, mlc_select(w->m, 0, 0), &e));
}

DO(mlc_einsum)
{
    mlc_tensor *const in[3] = {w->x, w->w, w->v};
    return keep(w, mlc_einsum("ij,jk,j->ik", in, 3));
}

DO(mlc_concat)
{
    mlc_tensor *const in[2] = {w->x, w->y};
    return keep(w, mlc_concat(in, 2, 1));
}

DO(mlc_stack)
{
    mlc_tensor *const in[2] = {w->x, w->y};
    return keep(w, mlc_stack(in, 2, 1));
}

DO(mlc_split)
{
    mlc_tensor      *out[2] = {NULL, NULL};
    const mlc_status st = mlc_split(w->x, 2, 1, out, 2);
    CHECK_EQ(out[0] != NULL, st == MLC_OK);
    CHECK_EQ(out[1] != NULL, st == MLC_OK);
    return st != MLC_OK ? st : first_of(keep(w, out[0]), keep(w, out[1]));
}

DO(mlc_chunk)
{
    mlc_tensor   *out[2] = {NULL, NULL};
    const int32_t n = mlc_chunk(w->x, 2, 0, out);
    if (n == 0) {
        CHECK(out[0] == NULL && out[1] == NULL);
        return mlc_ctx_status(w->ctx);
    }
    CHECK_EQ(n, 2);
    return first_of(keep(w, out[1]), keep(w, out[0]));
}

DO(mlc_meshgrid)
{
    mlc_tensor *const in[2] = {w->v, mlc_select(w->x, 0, 0)};
    mlc_tensor       *out[2] = {NULL, NULL};
    const mlc_status  st = in[1] ? mlc_meshgrid(in, 2, out) : mlc_ctx_status(w->ctx);
    CHECK_EQ(out[0] != NULL, st == MLC_OK);
    CHECK_EQ(out[1] != NULL, st == MLC_OK);
    return st != MLC_OK ? st : first_of(keep(w, out[1]), keep(w, out[0]));
}

CASE(mlc_tile, mlc_tile(w->x, mlc_dims2(2, 1)))
CASE(mlc_repeat, mlc_repeat(w->x, 3, 1))
CASE(mlc_flip, mlc_flip(w->x, mlc_dims0()))
CASE(mlc_roll, mlc_roll(w->x, 1, 1))
CASE(mlc_pad, mlc_pad(w->x, mlc_dims2(1, 0), mlc_dims2(0, 2), MLC_PAD_REFLECT, 0))
CASE(mlc_diag, mlc_diag(w->v, 1))
CASE(mlc_gather, mlc_gather(w->x, 0, w->i))
CASE(mlc_scatter, mlc_scatter(w->x, 0, w->i, w->y))
CASE(mlc_scatter_, mlc_scatter_(w->x, 0, w->i, w->y))
CASE(mlc_scatter_add, mlc_scatter_add(w->x, 0, w->i, w->y))
CASE(mlc_scatter_add_, mlc_scatter_add_(w->x, 0, w->i, w->y))
CASE(mlc_index_select, mlc_index_select(w->x, 1, w->rows))
CASE(mlc_take, mlc_take(w->x, w->i))
CASE(mlc_embedding, mlc_embedding(w->i, w->x))

DO(mlc_embedding_ex)
{
    mlc_embedding_desc d = mlc_embedding_desc_make();
    d.has_padding_index = true;
    d.max_norm = 0.5;
    mlc_tensor *table = mlc_copy(mlc_detach(w->x));
    return keep(w, mlc_embedding_ex(w->i, table, &d));
}

CASE(mlc_embedding_bag, mlc_embedding_bag(w->rows, mlc_zeros(w->ctx, MLC_I64, mlc_dims1(2)), w->x))

DO(mlc_embedding_bag_ex)
{
    mlc_embedding_bag_desc d = mlc_embedding_bag_desc_make();
    d.reduction = MLC_REDUCTION_SUM;
    d.weights = w->y;
    return keep(w, mlc_embedding_bag_ex(w->i, NULL, w->x, &d));
}

DO(mlc_rotary)
{
    mlc_rotary_desc d = mlc_rotary_desc_make();
    d.dims = 2;
    return keep(w, mlc_rotary(w->x, w->labels, &d));
}

CASE(mlc_rotary_table, mlc_rotary_table(w->ctx, NULL, 3, 4, NULL))
CASE(mlc_sinusoidal, mlc_sinusoidal(w->ctx, 3, 4))
CASE(mlc_alibi_slopes, mlc_alibi_slopes(w->ctx, 6))
CASE(mlc_masked_select, mlc_masked_select(w->x, w->mask))
CASE(mlc_nonzero, mlc_nonzero(w->mask))
CASE(mlc_one_hot, mlc_one_hot(w->rows, 3))
CASE(mlc_tril, mlc_tril(w->x, 0))
CASE(mlc_triu, mlc_triu(w->x, 1))
CASE(mlc_argsort, mlc_argsort(w->x, 1, false))

DO(mlc_sort)
{
    mlc_tensor *index = NULL, *y = mlc_sort(w->x, 0, true, &index);
    CHECK_EQ(y != NULL, index != NULL);
    return y == NULL ? made(w, y) : first_of(keep(w, y), keep(w, index));
}

DO(mlc_topk)
{
    mlc_tensor *index = NULL, *y = mlc_topk(w->x, 2, 1, true, &index);
    CHECK_EQ(y != NULL, index != NULL);
    return y == NULL ? made(w, y) : first_of(keep(w, y), keep(w, index));
}

/* ---- tensors -------------------------------------------------------------------------------- */

CASE(mlc_zeros, mlc_zeros(w->ctx, MLC_I8, mlc_dims2(300, 70)))
CASE(mlc_full, mlc_full(w->ctx, MLC_F16, mlc_dims1(33), 1.5))
CASE(mlc_ones, mlc_ones(w->ctx, MLC_BF16, mlc_dims1(33)))
CASE(mlc_arange, mlc_arange(w->ctx, MLC_I64, 0, 40, 3))
CASE(mlc_linspace, mlc_linspace(w->ctx, MLC_F64, 0, 1, 11))
CASE(mlc_eye, mlc_eye(w->ctx, MLC_F32, 5, 6))
CASE(mlc_randn, mlc_randn(w->ctx, MLC_F32, mlc_dims1(33)))
CASE(mlc_uniform, mlc_uniform(w->ctx, MLC_F64, mlc_dims1(33), -1, 1))
CASE(mlc_normal, mlc_normal(w->ctx, MLC_F32, mlc_dims1(33), 1, 2))
CASE(mlc_truncated_normal, mlc_truncated_normal(w->ctx, MLC_F32, mlc_dims1(33), 0, 1, -1, 1))
CASE(mlc_bernoulli, mlc_bernoulli(w->ctx, MLC_BOOL, mlc_dims1(33), 0.5))
CASE(mlc_randint, mlc_randint(w->ctx, MLC_I64, mlc_dims1(33), 0, 9))
CASE(mlc_randperm, mlc_randperm(w->ctx, 33))
CASE(mlc_multinomial, mlc_multinomial(mlc_abs(w->x), 1, true))
CASE(mlc_reshape, mlc_reshape(mlc_transpose(w->x, 0, 1), mlc_dims2(2, 6)))
CASE(mlc_flatten, mlc_flatten(w->x, 0))
CASE(mlc_permute, mlc_permute(w->x, mlc_dims2(1, 0)))
CASE(mlc_transpose, mlc_transpose(w->x, 0, 1))
CASE(mlc_slice, mlc_slice(w->x, 1, 0, INT64_MAX, 2))
CASE(mlc_select, mlc_select(w->x, 1, -1))
CASE(mlc_expand, mlc_expand(w->v, mlc_dims3(2, 3, 4)))
CASE(mlc_squeeze, mlc_squeeze(mlc_unsqueeze(w->x, 0), 0))
CASE(mlc_unsqueeze, mlc_unsqueeze(w->x, -1))
CASE(mlc_movedim, mlc_movedim(w->x, 0, 1))
CASE(mlc_unfold, mlc_unfold(w->x, 1, 3, 1))
CASE(mlc_diagonal, mlc_diagonal(w->x, 1))
CASE(mlc_contiguous, mlc_contiguous(mlc_transpose(w->x, 0, 1)))
CASE(mlc_copy, mlc_copy(w->x))
CASE(mlc_detach, mlc_detach(w->x))
CASE(mlc_cast, mlc_cast(w->x, MLC_BF16))
CASE(mlc_keep, mlc_keep(w->x))

DO(mlc_from)
{
    const float data[6] = {1, 2, 3, 4, 5, 6};
    return keep(w, mlc_from(w->ctx, MLC_F32, mlc_dims2(2, 3), data));
}

DO(mlc_wrap)
{
    static float data[6] = {1, 2, 3, 4, 5, 6};
    if (!mlc_ctx_on_host(w->ctx))
        return MLC_OK;
    return keep(w, mlc_wrap(w->ctx, MLC_F32, mlc_dims2(2, 3), NULL, data));
}

DO(mlc_copy_into)
{
    mlc_tensor *t = mlc_zeros(w->ctx, MLC_F32, mlc_dims2(3, 4));
    if (t == NULL)
        return made(w, t);
    return first_of(mlc_copy_into(t, mlc_transpose(w->w, 0, 1)), keep(w, t));
}

DO(mlc_read)
{
    float            got[12];
    const mlc_status st = mlc_read(mlc_transpose(w->w, 0, 1), got, sizeof got);
    if (st == MLC_OK)
        w->text = (uint64_t)(got[0] * 1000) * 1000 + (uint64_t)(got[7] * 1000);
    return st != MLC_ERR_ARG ? st : mlc_ctx_status(w->ctx);      /* NULL in: the first error  */
}

DO(mlc_write)
{
    static const float data[12] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    mlc_tensor        *t = mlc_zeros(w->ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor        *u = mlc_transpose(t, 0, 1);
    if (u == NULL)
        return made(w, u);
    return first_of(mlc_write(u, data, sizeof data), keep(w, t));
}

CASE(mlc_rows, mlc_copy(mlc_rows(w->x, 1, 3)))

DO(mlc_item_at)
{
    const double v = mlc_item_at(w->d, mlc_dims2(1, 0));       /* by stride                    */
    if (isnan(v))
        return mlc_ctx_status(w->ctx);
    w->text = (uint64_t)(v * 1e6);
    return MLC_OK;
}

DO(mlc_shape_of)
{
    const char *text = mlc_shape_of(w->x);
    CHECK_STR(text, mlc_ctx_status(w->ctx) == MLC_OK ? "[3,4]" : "");
    return mlc_ctx_status(w->ctx);
}

DO(mlc_item)
{
    const double v = mlc_item(mlc_sum(w->x, mlc_dims0(), false));
    if (isnan(v))
        return mlc_ctx_status(w->ctx);
    w->text = (uint64_t)(v * 1e6);
    return MLC_OK;
}

/* ---- gradients ------------------------------------------------------------------------------ */

DO(mlc_set_requires_grad)
{
    mlc_tensor *t = mlc_zeros(w->ctx, MLC_F32, mlc_dims1(3));
    if (t == NULL)
        return made(w, t);
    const mlc_status st = mlc_set_requires_grad(t, true);
    return first_of(st, keep(w, mlc_exp(t)));
}

/* A table: it has no context and takes no memory. */
DO(mlc_cpu_rule)
{
    CHECK(mlc_cpu_rule(MLC_RULE_LAMB) != NULL && mlc_cpu_rule(MLC_RULE_COUNT) == NULL);
    return mlc_ctx_status(w->ctx);
}
DO(mlc_cpu_moments)
{
    CHECK(mlc_cpu_moments(MLC_RULE_LION) != NULL && mlc_cpu_moments(MLC_RULE_LAMB) == NULL);
    return mlc_ctx_status(w->ctx);
}

DO(mlc_backward)
{
    mlc_tensor *y = mlc_matmul(mlc_tanh(w->leaf_x), w->w);
    mlc_tensor *loss = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
    return first_of(made(w, loss), loss ? mlc_backward(loss) : MLC_OK);
}

DO(mlc_backward_from)
{
    mlc_tensor *y = mlc_mul(w->leaf_x, mlc_exp(w->leaf_y));
    return first_of(made(w, y), y ? mlc_backward_from(y, w->y) : MLC_OK);
}

DO(mlc_grad)
{
    mlc_tensor *y = mlc_sum(mlc_square(w->leaf_x), mlc_dims0(), false);
    if (y == NULL || mlc_backward(y) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_grad(w->leaf_x));
}

static mlc_status twice_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_mul_scalar(in[0], 2);
    return *out ? MLC_OK : mlc_ctx_status(in[0]->ctx);
}

static mlc_status twice_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                 mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)n_in; (void)out; (void)need;
    dx[0] = mlc_mul_scalar(dy, 2);
    return dx[0] ? MLC_OK : mlc_ctx_status(in[0]->ctx);
}

static const mlc_custom_op TWICE = {"twice", twice_forward, twice_backward};

CASE(mlc_custom, mlc_custom(&TWICE, NULL, &w->x, 1))

static mlc_tensor *squares(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)user; (void)n_in;
    return mlc_sum(mlc_square(in[0]), mlc_dims0(), false);
}

DO(mlc_gradcheck)
{
    mlc_gradcheck_report report;
    memset(&report, 0, sizeof report);
    const mlc_status st = mlc_gradcheck(squares, NULL, &w->d, 1, NULL, &report);
    if (st == MLC_OK)
        CHECK(report.ok);
    return st;
}

DO(mlc_anomaly)
{
    mlc_anomaly(w->ctx, true);
    mlc_tensor *y = mlc_exp(mlc_sin(w->leaf_x));
    mlc_status  st = made(w, y);
    if (y)
        st = mlc_backward_from(y, NULL);
    mlc_anomaly(w->ctx, false);
    return st;
}

DO(mlc_no_grad_begin)
{
    mlc_no_grad_begin(w->ctx);
    mlc_tensor *y = mlc_exp(w->leaf_x);
    mlc_no_grad_end(w->ctx);
    return keep(w, y);
}

/* ---- losses, scores ------------------------------------------------------------------------- */

BINARY(mlc_mse_loss)
CASE(mlc_cross_entropy, mlc_cross_entropy(w->x, w->labels))

DO(mlc_cross_entropy_ex)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.label_smoothing = 0.1;
    d.reduction = MLC_REDUCTION_NONE;
    d.weight = w->v;
    return first_of(keep(w, mlc_cross_entropy_ex(w->x, w->labels, &d)),
                    keep(w, mlc_cross_entropy_ex(w->x, w->y, &d)));
}

/* A loss of a desc d, which `made` declares and `set` changes.                                 */
#define LOSS(name, made, set, ...) \
    DO(name) \
    { \
        made; \
        set; \
        return keep(w, name(__VA_ARGS__, &d)); \
    }

BINARY(mlc_l1_loss)
BINARY(mlc_smooth_l1_loss)
BINARY(mlc_huber_loss)
BINARY(mlc_bce_loss)
BINARY(mlc_bce_with_logits)
BINARY(mlc_focal_loss)
BINARY(mlc_kl_div)
BINARY(mlc_hinge_loss)
BINARY(mlc_hinge_embedding_loss)
LOSS(mlc_mse_loss_ex, mlc_loss_desc d = mlc_loss_desc_make(),
     d.reduction = MLC_REDUCTION_NONE, w->x, w->y)
LOSS(mlc_l1_loss_ex, mlc_loss_desc d = mlc_loss_desc_make(),
     d.reduction = MLC_REDUCTION_SUM, w->x, w->y)
LOSS(mlc_smooth_l1_loss_ex, mlc_smooth_l1_desc d = mlc_smooth_l1_desc_make(),
     d.beta = 0.5, w->x, w->y)
LOSS(mlc_huber_loss_ex, mlc_huber_desc d = mlc_huber_desc_make(),
     d.reduction = MLC_REDUCTION_BATCHMEAN, w->x, w->y)
LOSS(mlc_bce_loss_ex, mlc_bce_desc d = mlc_bce_desc_make(), d.weight = w->v, w->x, w->y)
LOSS(mlc_bce_with_logits_ex, mlc_bce_desc d = mlc_bce_desc_make(), d.weight = w->v;
     d.pos_weight = w->y, w->x, w->y)
LOSS(mlc_focal_loss_ex, mlc_focal_desc d = mlc_focal_desc_make(), d.gamma = 3, w->x, w->y)
LOSS(mlc_kl_div_ex, mlc_kl_div_desc d = mlc_kl_div_desc_make(), d.log_target = true;
     d.reduction = MLC_REDUCTION_BATCHMEAN, w->x, w->y)
LOSS(mlc_hinge_loss_ex, mlc_hinge_desc d = mlc_hinge_desc_make(), d.margin = 2, w->x, w->y)
LOSS(mlc_hinge_embedding_loss_ex, mlc_hinge_embedding_desc d = mlc_hinge_embedding_desc_make(),
     d.reduction = MLC_REDUCTION_SUM, w->x, w->y)
CASE(mlc_nll_loss, mlc_nll_loss(mlc_log_softmax(w->x, 1), w->labels))
LOSS(mlc_nll_loss_ex, mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make(),
     d.weight = w->v, mlc_log_softmax(w->x, 1), w->labels)
CASE(mlc_poly1_cross_entropy, mlc_poly1_cross_entropy(w->x, w->labels))

/* Logarithms of probabilities: 2 sequences of 3 steps, 2 classes.                             */
static mlc_tensor *small_paths(world *w)
{
    return mlc_log_softmax(mlc_reshape(w->x, mlc_dims3(2, 3, 2)), 2);
}

static mlc_tensor *ones_of(world *w, int64_t n)
{
    return mlc_cast(mlc_ones(w->ctx, MLC_F32, mlc_dims1(n)), MLC_I64);
}

CASE(mlc_ctc_loss, mlc_ctc_loss(small_paths(w), ones_of(w, 2), ones_of(w, 2), ones_of(w, 2)))

DO(mlc_ctc_loss_ex)
{
    mlc_ctc_desc d = mlc_ctc_desc_make();
    d.reduction = MLC_REDUCTION_NONE;
    d.zero_infinity = d.time_first = true;
    mlc_tensor *x = mlc_transpose(mlc_cast(small_paths(w), MLC_BF16), 0, 1);
    mlc_tensor *y = x ? mlc_reshape(ones_of(w, 4), mlc_dims2(2, 2)) : NULL;
    return y ? keep(w, mlc_ctc_loss_ex(x, y, ones_of(w, 2), ones_of(w, 2), &d)) : made(w, y);
}

DO(mlc_ctc_greedy)
{
    const mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
    int64_t           out[6] = {0}, n[2] = {0};
    mlc_tensor       *x = small_paths(w), *in = x ? ones_of(w, 2) : NULL;
    const mlc_status  st = in ? mlc_ctc_greedy(x, in, &d, out, n, NULL) : made(w, in);
    w->text = st == MLC_OK ? (uint64_t)(8 * n[0] + n[1]) : 0;
    return st;
}

DO(mlc_ctc_beam_search)
{
    int64_t          out[6] = {0}, n[2] = {0};
    mlc_tensor      *x = small_paths(w);
    const mlc_status st = x ? mlc_ctc_beam_search(x, NULL, NULL, out, n, NULL) : made(w, x);
    w->text = st == MLC_OK ? (uint64_t)(64 * out[0] + 8 * n[0] + n[1]) : 0;
    return st;
}

LOSS(mlc_poly1_cross_entropy_ex, mlc_poly1_desc d = mlc_poly1_desc_make(),
     d.epsilon = 2, w->x, w->labels)
CASE(mlc_distillation_loss, mlc_distillation_loss(w->x, w->y, w->labels))
LOSS(mlc_distillation_loss_ex, mlc_distillation_desc d = mlc_distillation_desc_make(),
     d.alpha = 1, w->x, w->y, NULL)
CASE(mlc_dice_loss, mlc_dice_loss(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0)))
LOSS(mlc_dice_loss_ex, mlc_dice_desc d = mlc_dice_desc_make(),
     d.squared = true, mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0))
CASE(mlc_tversky_loss, mlc_tversky_loss(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0)))
LOSS(mlc_tversky_loss_ex, mlc_tversky_desc d = mlc_tversky_desc_make(),
     d.reduction = MLC_REDUCTION_NONE, mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0))
CASE(mlc_triplet_margin_loss, mlc_triplet_margin_loss(w->x, w->y, mlc_exp(w->x)))
LOSS(mlc_triplet_margin_loss_ex, mlc_triplet_margin_desc d = mlc_triplet_margin_desc_make(),
     d.swap = true, w->x, w->y, mlc_exp(w->x))
CASE(mlc_contrastive_loss, mlc_contrastive_loss(w->x, w->y, w->labels))
LOSS(mlc_contrastive_loss_ex, mlc_contrastive_desc d = mlc_contrastive_desc_make(),
     d.margin = 3, w->x, w->y, w->labels)
CASE(mlc_cosine_embedding_loss, mlc_cosine_embedding_loss(w->x, w->y, w->labels))
LOSS(mlc_cosine_embedding_loss_ex, mlc_cosine_embedding_desc d = mlc_cosine_embedding_desc_make(),
     d.margin = -0.5, w->x, w->y, w->labels)
CASE(mlc_multilabel_margin_loss, mlc_multilabel_margin_loss(w->x, w->i))
LOSS(mlc_multilabel_margin_loss_ex, mlc_loss_desc d = mlc_loss_desc_make(),
     d.reduction = MLC_REDUCTION_NONE, w->x, w->i)

DO(mlc_accuracy)
{
    const double v = mlc_accuracy(w->x, w->labels);
    w->text = isnan(v) ? 0 : (uint64_t)(v * 1000);
    return isnan(v) ? mlc_ctx_status(w->ctx) : MLC_OK;
}

/* ---- metrics -------------------------------------------------------------------------------- */

static void hash_text(void *user, const char *text, size_t n);

/* A value as the scenario's result.                                                             */
static mlc_status hash_value(world *w, double v)
{
    w->text = (w->text ^ (isnan(v) ? 1 : (uint64_t)(int64_t)(v * 1e6))) * 1099511628211u;
    return mlc_ctx_status(w->ctx);
}

/* Two batches, with weights and without.                                                        */
static mlc_status feed_metric(world *w, mlc_metric *m, mlc_tensor *p, mlc_tensor *t)
{
    if (m == NULL)
        return made(w, m);
    mlc_tensor *weights = t != NULL ? mlc_select(w->y, 1, 0) : NULL;
    const mlc_status st = mlc_metric_update(m, p, t, NULL);
    return first_of(st, mlc_metric_update(m, p, t, weights));
}

static mlc_status run_metric(world *w, mlc_metric *m, mlc_tensor *p, mlc_tensor *t)
{
    w->metric = m;
    const mlc_status st = feed_metric(w, m, p, t);
    return st != MLC_OK ? st : hash_value(w, mlc_metric_value(m));
}

DO(mlc_metric_accuracy)   { return run_metric(w, mlc_metric_accuracy(w->ctx), w->x, w->labels); }
DO(mlc_metric_topk)       { return run_metric(w, mlc_metric_topk(w->ctx, 2), w->x, w->labels); }
DO(mlc_metric_log_loss)   { return run_metric(w, mlc_metric_log_loss(w->ctx), w->x, w->labels); }
DO(mlc_metric_perplexity) { return run_metric(w, mlc_metric_perplexity(w->ctx), w->x, w->labels); }
DO(mlc_metric_mse)        { return run_metric(w, mlc_metric_mse(w->ctx), w->x, w->y); }
DO(mlc_metric_rmse)       { return run_metric(w, mlc_metric_rmse(w->ctx), w->x, w->y); }
DO(mlc_metric_mae)        { return run_metric(w, mlc_metric_mae(w->ctx), w->x, w->y); }
DO(mlc_metric_r2)         { return run_metric(w, mlc_metric_r2(w->ctx), w->x, w->y); }
DO(mlc_metric_mean)       { return run_metric(w, mlc_metric_mean(w->ctx), w->x, NULL); }
DO(mlc_metric_like)
{
    w->other = mlc_metric_accuracy(w->ctx);
    return w->other ? run_metric(w, mlc_metric_like(w->other), w->x, w->labels) : made(w, NULL);
}
DO(mlc_metric_auc)        { return run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->labels); }
DO(mlc_metric_confusion)
{
    return run_metric(w, mlc_metric_confusion(w->ctx, 4), w->x, w->labels);
}
DO(mlc_metric_balanced_accuracy)
{
    return run_metric(w, mlc_metric_balanced_accuracy(w->ctx, 4), w->x, w->labels);
}
DO(mlc_metric_precision)
{
    return run_metric(w, mlc_metric_precision(w->ctx, 4, MLC_AVERAGING_MICRO), w->x, w->labels);
}
DO(mlc_metric_recall)
{
    return run_metric(w, mlc_metric_recall(w->ctx, 4, MLC_AVERAGING_WEIGHTED), w->x, w->labels);
}
DO(mlc_metric_f)
{
    return run_metric(w, mlc_metric_f(w->ctx, 4, 2, MLC_AVERAGING_MACRO), w->x, w->labels);
}
DO(mlc_metric_average_precision)
{
    return run_metric(w, mlc_metric_average_precision(w->ctx, 4), w->x, w->labels);
}

static mlc_status run_confusion(world *w)
{
    return run_metric(w, mlc_metric_confusion(w->ctx, 4), w->x, w->labels);
}

DO(mlc_metric_update) { return run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->i); }
DO(mlc_metric_value)  { return run_confusion(w); }

static mlc_status run_merge(world *w, mlc_metric *a, mlc_metric *b)
{
    w->metric = a;
    w->other = b;
    mlc_status st = feed_metric(w, a, w->x, w->labels);
    if (st == MLC_OK)
        st = feed_metric(w, b, w->x, w->labels);
    if (st == MLC_OK)
        st = mlc_metric_merge(a, b);
    return st != MLC_OK ? st : hash_value(w, mlc_metric_value(a));
}

DO(mlc_metric_merge)
{
    mlc_metric *a = mlc_metric_auc(w->ctx, 4);
    return run_merge(w, a, mlc_metric_auc(w->ctx, 4));
}

SCENARIO(merge_of_counts, false)
{
    mlc_metric *a = mlc_metric_confusion(w->ctx, 4);
    return run_merge(w, a, mlc_metric_confusion(w->ctx, 4));
}

DO(mlc_metric_reset)
{
    const mlc_status st = run_confusion(w);
    mlc_metric_reset(w->metric);
    return st;
}

DO(mlc_metric_free)
{
    const mlc_status st = run_confusion(w);
    mlc_metric_free(w->metric);
    w->metric = NULL;
    return st;
}

DO(mlc_metric_counts)
{
    double     counts[16] = {0};
    mlc_status st = run_confusion(w);
    if (st == MLC_OK)
        st = mlc_metric_counts(w->metric, counts, 16);
    return st != MLC_OK ? st : hash_value(w, counts[0] + counts[5] + 3 * counts[10]);
}

DO(mlc_metric_classes)
{
    mlc_class_score s[4];
    mlc_status      st = run_confusion(w);
    if (st == MLC_OK)
        st = mlc_metric_classes(w->metric, s, 4);
    return st != MLC_OK ? st : hash_value(w, s[0].f1 + s[1].support);
}

DO(mlc_classification_report)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_classification_report(w->metric, NULL, 2, hash_text, w);
}

DO(mlc_confusion_write)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_confusion_write(w->metric, NULL, hash_text, w);
}

DO(mlc_confusion_save)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_confusion_save(w->metric, to(w), NULL);
}

DO(mlc_metric_roc)
{
    double     x[8] = {0}, y[8] = {0};
    int64_t    n = 0;
    mlc_status st = run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->labels);
    if (st == MLC_OK)
        st = mlc_metric_roc(w->metric, 1, 8, x, y, NULL, &n);
    return st != MLC_OK ? st : hash_value(w, x[1] + y[1] + (double)n);
}

DO(mlc_metric_precision_recall)
{
    double     x[8] = {0}, y[8] = {0};
    int64_t    n = 0;
    mlc_status st = run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->labels);
    if (st == MLC_OK)
        st = mlc_metric_precision_recall(w->metric, 1, 8, x, y, NULL, &n);
    return st != MLC_OK ? st : hash_value(w, x[1] + y[1] + (double)n);
}

/* Two names, two epochs.                                                                        */
static mlc_status run_tracker(world *w)
{
    w->tracker = mlc_tracker_create(w->ctx);
    w->metric = w->tracker ? mlc_metric_accuracy(w->ctx) : NULL;
    mlc_status st = made(w, w->metric);
    if (st == MLC_OK)
        st = mlc_tracker_metric(w->tracker, "accuracy", w->metric, true);
    for (int epoch = 0; epoch < 2 && st == MLC_OK; epoch++) {
        st = mlc_tracker_update(w->tracker, w->x, w->labels, NULL);
        if (st == MLC_OK)
            st = mlc_tracker_feed(w->tracker, "loss", 0.5 - epoch);
        if (st == MLC_OK)
            st = mlc_tracker_step(w->tracker, epoch);
    }
    int64_t best = 0;
    if (st != MLC_OK)
        return st;
    hash_value(w, mlc_tracker_best(w->tracker, "loss", &best));
    return hash_value(w, (double)best);
}

DO(mlc_tracker_create) { return run_tracker(w); }
DO(mlc_tracker_free)   { return run_tracker(w); }
DO(mlc_tracker_metric) { return run_tracker(w); }
DO(mlc_tracker_update) { return run_tracker(w); }
DO(mlc_tracker_feed)   { return run_tracker(w); }
DO(mlc_tracker_step)   { return run_tracker(w); }
DO(mlc_tracker_best)   { return run_tracker(w); }
DO(mlc_tracker_last)
{
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : hash_value(w, mlc_tracker_last(w->tracker, "accuracy"));
}
DO(mlc_tracker_history)
{
    const double    *values;
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : hash_value(w, (double)mlc_tracker_history(w->tracker, "loss", NULL,
                                                                         &values));
}
DO(mlc_tracker_print)
{
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : mlc_tracker_print(w->tracker, hash_text, w);
}
DO(mlc_tracker_plot)
{
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : mlc_tracker_plot(w->tracker, to(w));
}

/* The state, which is then read back into the tracker itself.                                   */
static mlc_status run_tracker_state(world *w)
{
    static char names[3][96];
    mlc_named   list[3];
    int64_t     n = 0;
    mlc_status  st = run_tracker(w);
    if (st != MLC_OK)
        return st;
    mlc_tracker_state_iter it = mlc_tracker_state_iter_make(w->tracker);
    while (mlc_tracker_state_next(&it)) {
        memcpy(names[n], it.name, sizeof it.name);
        list[n].name = names[n];
        list[n++].tensor = it.tensor;
    }
    st = mlc_ctx_status(w->ctx);
    if (st == MLC_OK && CHECK_EQ(n, 3))
        st = mlc_tracker_restore(w->tracker, list, n);
    return st != MLC_OK ? st : hash_value(w, mlc_tracker_last(w->tracker, "loss"));
}

DO(mlc_tracker_state_iter_make) { return run_tracker_state(w); }
DO(mlc_tracker_state_next)      { return run_tracker_state(w); }
DO(mlc_tracker_restore)         { return run_tracker_state(w); }

/* ---- ready callbacks: an epoch of two batches with each -------------------------------------- */

typedef mlc_callback *(*ready_fn)(world *w, mlc_optim *opt);

/* At a rate of 0: a training that fails changes nothing.                                        */
static mlc_status run_ready_by(world *w, ready_fn make, mlc_fit_forward_fn forward)
{
    mlc_ctx        *ctx = w->ctx;
    mlc_optim      *opt = mlc_sgd(w->net, 0);
    mlc_loader_desc held = mlc_loader_desc_make(w->x, w->labels, 3);
    mlc_loader     *train = opt ? mlc_loader_shuffled(ctx, w->x, w->labels, 2) : NULL;
    mlc_fit_desc    d = mlc_fit_desc_make(mlc_cross_entropy);
    d.validation = train ? mlc_loader_create(ctx, &held) : NULL;
    mlc_callback *c = d.validation ? make(w, opt) : NULL;
    mlc_status    st = made(w, c);
    d.callbacks = &c;
    d.n_callbacks = 1;
    d.forward = forward;
    if (st == MLC_OK)
        st = mlc_fit(w->net, opt, train, &d, NULL);
    mlc_callback_free(ctx, c);
    mlc_loader_free(train);
    mlc_loader_free(d.validation);
    mlc_optim_zero_grad(opt);
    mlc_optim_free(opt);
    return st;
}

static mlc_status run_ready(world *w, ready_fn make) { return run_ready_by(w, make, NULL); }

#define READY(name, call) \
    static mlc_callback *ready_##name(world *w, mlc_optim *opt) { (void)opt; return call; } \
    DO(name) { return run_ready(w, ready_##name); }

static void unseen(void *user, const char *text, size_t n) { (void)user; (void)text; (void)n; }

static mlc_callback *ready_gradients(world *w)
{
    mlc_gradients_desc d = mlc_gradients_desc_make();
    d.every = 1;
    d.table = true;
    d.write = unseen;
    return mlc_on_gradients(w->ctx, &d);
}

static mlc_callback *ready_profile(world *w)
{
    mlc_profile_desc d = mlc_profile_desc_make();
    d.wait = d.warmup = 0;
    d.active = 1;
    d.repeat = 0;
    d.write = unseen;
    return mlc_on_profile(w->ctx, &d);
}

static mlc_callback *ready_average(world *w, mlc_optim *opt)
{
    mlc_average *a = mlc_ema(opt, 0.5);
    return a ? mlc_on_average(w->ctx, a) : NULL;
}

static mlc_plateau g_plateau;
static mlc_callback *ready_plateau(world *w)
{
    g_plateau = mlc_plateau_make();
    return mlc_on_plateau(w->ctx, "val_loss", &g_plateau);
}

READY(mlc_on_progress, mlc_on_progress(w->ctx, unseen, NULL))
READY(mlc_on_csv, mlc_on_csv(w->ctx, to(w)))
READY(mlc_on_json, mlc_on_json(w->ctx, to(w)))
READY(mlc_on_early_stop, mlc_on_early_stop(w->ctx, NULL))
READY(mlc_early_stop_desc_make, mlc_on_early_stop(w->ctx, NULL))
READY(mlc_on_validate, mlc_on_validate(w->ctx, 1))
READY(mlc_on_plateau, ready_plateau(w))
READY(mlc_on_average, ready_average(w, opt))
READY(mlc_on_gradients, ready_gradients(w))
READY(mlc_gradients_desc_make, ready_gradients(w))
READY(mlc_on_histograms, mlc_on_histograms(w->ctx, "/dev/null", 1))
READY(mlc_on_memory, mlc_on_memory(w->ctx, 1))
READY(mlc_on_time_limit, mlc_on_time_limit(w->ctx, 1e6))
READY(mlc_on_profile, ready_profile(w))
READY(mlc_profile_desc_make, ready_profile(w))

/* What is written by a thread is counted nowhere: the file cannot be. */
static mlc_callback *ready_checkpoint(world *w)
{
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make("/dev/fd/net");
    d.keep_going = d.async = true;
    return mlc_on_checkpoint(w->ctx, &d);
}

READY(mlc_on_checkpoint, ready_checkpoint(w))
READY(mlc_checkpoint_desc_make, ready_checkpoint(w))
READY(mlc_on_signal, mlc_on_signal(w->ctx, NULL))
READY(mlc_on_resume, mlc_on_resume(w->ctx, "/nowhere/at/all"))

static mlc_tensor *no_loss(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    (void)user;
    *output = mlc_forward(net, b->x);
    mlc_tensor *loss = mlc_cross_entropy(*output, b->y);
    return mlc_add(loss, mlc_log(mlc_mul_scalar(loss, -1)));
}

static mlc_callback *ready_nan(world *w, mlc_optim *opt)
{
    (void)opt;
    return mlc_on_nan(w->ctx, 1);
}

DO(mlc_on_nan)
{
    const mlc_status st = run_ready_by(w, ready_nan, no_loss);
    if (st != MLC_ERR_VALUE)
        return st == MLC_OK ? MLC_ERR_INTERNAL : st;
    mlc_error_clear(w->ctx);
    return MLC_OK;
}

DO(mlc_trace)
{
    const int32_t id = mlc_trace(w->ctx, true, unseen, NULL);
    if (id == 0)
        return mlc_ctx_status(w->ctx);
    const mlc_status st = keep(w, mlc_relu(w->x));
    CHECK_EQ(mlc_hooks_remove(w->ctx, id), MLC_OK);
    return st;
}

static mlc_status run_timer(world *w)
{
    mlc_timer t = mlc_timer_make("timer");
    mlc_timer_begin(&t);
    mlc_timer_end(&t, 1);
    CHECK(mlc_timer_mean(&t) >= 0 && !(mlc_timer_rate(&t) <= 0));
    CHECK(isnan(mlc_timer_deviation(&t)));
    return mlc_timer_print(w->ctx, &t, 1, unseen, NULL);
}

SCENARIO(mlc_timer_make, true)      { return run_timer(w); }
SCENARIO(mlc_timer_begin, true)     { return run_timer(w); }
SCENARIO(mlc_timer_end, true)       { return run_timer(w); }
SCENARIO(mlc_timer_mean, true)      { return run_timer(w); }
SCENARIO(mlc_timer_deviation, true) { return run_timer(w); }
SCENARIO(mlc_timer_rate, true)      { return run_timer(w); }
SCENARIO(mlc_timer_print, true)     { return run_timer(w); }

/* ---- modules -------------------------------------------------------------------------------- */

/* Initial values depend on how many networks there were before: these do not.                  */
static void set_values(world *w, mlc_module *m)
{
    static float   values[2048];
    const bool     armed = w->mem.armed;
    mlc_param_iter it = mlc_param_iter_make(m);
    w->mem.armed = false;
    for (int i = 0; i < 2048; i++)
        values[i] = (float)(i % 7) - 3;
    while (mlc_param_next(&it))
        if (it.tensor->dtype == MLC_F32 && CHECK(mlc_numel(it.tensor) <= 2048))
            CHECK_EQ(mlc_write(it.tensor, values, (size_t)mlc_numel(it.tensor) * 4), MLC_OK);
    w->mem.armed = armed;
}

/* The module is the scenario's from now on; true once it is built and has values.               */
static bool own_module(world *w, mlc_module *m)
{
    if (m != NULL)
        w->module = m;
    if (m == NULL || mlc_module_build(m) != MLC_OK)
        return false;
    set_values(w, m);
    return true;
}

/* What comes out of a module.                                                                   */
static mlc_status run_module(world *w, mlc_module *m)
{
    return own_module(w, m) ? keep(w, mlc_forward(m, w->x)) : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_linear)     { return run_module(w, mlc_nn_linear(w->ctx, 4, 300)); }
#define EW_NO_MODULE(name, ...)
#define EW_MODULE(name, ...) DO(mlc_nn_##name) { return run_module(w, mlc_nn_##name(w->ctx)); }
EW_UNARY(EW_NO_MODULE, EW_MODULE, EW_NO_MODULE)
DO(mlc_nn_elu)        { return run_module(w, mlc_nn_elu(w->ctx, 0.5)); }
DO(mlc_nn_celu)       { return run_module(w, mlc_nn_celu(w->ctx, 0.5)); }
DO(mlc_nn_leaky_relu) { return run_module(w, mlc_nn_leaky_relu(w->ctx, 0.5)); }
DO(mlc_nn_glu)        { return run_module(w, mlc_nn_glu(w->ctx, 1)); }
DO(mlc_nn_prelu)      { return run_module(w, mlc_nn_prelu(w->ctx, 4)); }
DO(mlc_nn_dropout)    { return run_module(w, mlc_nn_dropout(w->ctx, 0.5)); }
DO(mlc_nn_softmax)    { return run_module(w, mlc_nn_softmax(w->ctx, 1)); }
DO(mlc_nn_log_softmax) { return run_module(w, mlc_nn_log_softmax(w->ctx, 1)); }
DO(mlc_nn_unflatten)  { return run_module(w, mlc_nn_unflatten(w->ctx, 1, mlc_dims2(2, -1))); }
DO(mlc_nn_flatten)    { return run_module(w, mlc_nn_flatten(w->ctx)); }
DO(mlc_nn_sequential) { return run_module(w, mlc_nn_sequential(w->ctx)); }
DO(mlc_nn_identity)   { return run_module(w, mlc_nn_identity(w->ctx)); }

/* A part that is NULL becomes the error of m; the others stay the program's, which frees them.  */
static mlc_module *made_of(mlc_module *m, int n, mlc_module *const *part)
{
    for (int i = 0; i < n && !m; i++) mlc_module_free(part[i]);
    return m;
}

DO(mlc_nn_sequential_of)
{
    mlc_module *part[3] = {mlc_nn_linear(w->ctx, 4, 4), mlc_nn_relu(w->ctx),
                           mlc_nn_linear(w->ctx, 4, 2)};
    return run_module(w, made_of(mlc_nn_sequential_of(w->ctx, 3, part), 3, part));
}

static mlc_tensor *twice(void *user, mlc_tensor *x)
{
    return mlc_mul_scalar(x, *(const double *)user);
}

DO(mlc_nn_lambda)
{
    static double two = 2;
    return run_module(w, mlc_nn_lambda(w->ctx, twice, &two));
}

/* Fitted to x, then x itself. */
static mlc_status run_scale(world *w, mlc_module *m)
{
    w->module = m;
    mlc_status st = m ? mlc_nn_scale_fit(m, w->x) : mlc_ctx_status(w->ctx);
    return first_of(st, st ? st : keep(w, mlc_forward(m, w->x)));
}

DO(mlc_nn_standardize) { return run_module(w, mlc_nn_standardize(w->ctx, 4)); }
DO(mlc_nn_min_max)    { return run_scale(w, mlc_nn_min_max(w->ctx, 4, -1, 2)); }
DO(mlc_nn_scale_fit)  { return run_scale(w, mlc_nn_standardize(w->ctx, 4)); }

/* x as one image of three channels. */
static mlc_status run_on_image(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_unsqueeze(w->x, 0);
    return image ? keep(w, mlc_forward(m, image)) : made(w, image);
}

static mlc_status run_built(world *w, mlc_module *m)
{
    w->module = m;
    return made(w, m);
}

DO(mlc_nn_conv1d) { return run_on_image(w, mlc_nn_conv1d(w->ctx, 3, 2, 2, 1, 0)); }
DO(mlc_nn_conv2d) { return run_built(w, mlc_nn_conv2d(w->ctx, 3, 2, 2, 1, 0)); }
DO(mlc_nn_conv3d) { return run_built(w, mlc_nn_conv3d(w->ctx, 3, 2, 2, 1, 0)); }
DO(mlc_nn_conv_transpose1d)
{
    return run_on_image(w, mlc_nn_conv_transpose1d(w->ctx, 3, 2, 2, 2, 0));
}
DO(mlc_nn_conv_transpose2d)
{
    return run_built(w, mlc_nn_conv_transpose2d(w->ctx, 3, 2, 2, 1, 0));
}
DO(mlc_nn_conv_transpose3d)
{
    return run_built(w, mlc_nn_conv_transpose3d(w->ctx, 3, 2, 2, 1, 0));
}
DO(mlc_nn_max_pool1d) { return run_on_image(w, mlc_nn_max_pool1d(w->ctx, 2)); }
DO(mlc_nn_max_pool2d) { return run_built(w, mlc_nn_max_pool2d(w->ctx, 2)); }
DO(mlc_nn_max_pool3d) { return run_built(w, mlc_nn_max_pool3d(w->ctx, 2)); }
DO(mlc_nn_avg_pool1d) { return run_on_image(w, mlc_nn_avg_pool1d(w->ctx, 2)); }
DO(mlc_nn_avg_pool2d) { return run_built(w, mlc_nn_avg_pool2d(w->ctx, 2)); }
DO(mlc_nn_avg_pool3d) { return run_built(w, mlc_nn_avg_pool3d(w->ctx, 2)); }
DO(mlc_nn_batch_norm) { return run_on_image(w, mlc_nn_batch_norm(w->ctx, 3)); }

DO(mlc_nn_layer_norm)      { return run_module(w, mlc_nn_layer_norm(w->ctx, 4)); }
DO(mlc_nn_rms_norm)        { return run_module(w, mlc_nn_rms_norm(w->ctx, 4)); }
DO(mlc_nn_group_norm)      { return run_module(w, mlc_nn_group_norm(w->ctx, 2, 4)); }
DO(mlc_nn_instance_norm)   { return run_on_image(w, mlc_nn_instance_norm(w->ctx, 3, true)); }
DO(mlc_nn_layer_norm_ex)
{
    const mlc_nn_norm_desc d = mlc_nn_norm_desc_make(4);
    return run_module(w, mlc_nn_layer_norm_ex(w->ctx, &d));
}

DO(mlc_nn_rms_norm_ex)
{
    const mlc_nn_norm_desc d = mlc_nn_rms_norm_desc_make(4);
    return run_module(w, mlc_nn_rms_norm_ex(w->ctx, &d));
}

DO(mlc_nn_group_norm_ex)
{
    mlc_nn_norm_desc d = mlc_nn_norm_desc_make(4);
    d.groups = 2;
    d.no_bias = true;
    return run_module(w, mlc_nn_group_norm_ex(w->ctx, &d));
}

DO(mlc_nn_instance_norm_ex)
{
    const mlc_nn_norm_desc d = mlc_nn_norm_desc_make(3);
    return run_on_image(w, mlc_nn_instance_norm_ex(w->ctx, &d));
}

DO(mlc_nn_relu6)           { return run_module(w, mlc_nn_relu6(w->ctx)); }
DO(mlc_nn_spatial_dropout) { return run_on_image(w, mlc_nn_spatial_dropout(w->ctx, 0.5)); }
DO(mlc_nn_stochastic_depth) { return run_module(w, mlc_nn_stochastic_depth(w->ctx, 0.5)); }
DO(mlc_nn_squeeze_excite)  { return run_on_image(w, mlc_nn_squeeze_excite(w->ctx, 3, 2)); }

DO(mlc_nn_upsample)
{
    return run_on_image(w, mlc_nn_upsample(w->ctx, 2, MLC_INTERPOLATE_CORNERS));
}

/* x as one image of four channels.                                                              */
static mlc_status run_on_square(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1));
    return image ? keep(w, mlc_forward(m, image)) : made(w, image);
}

DO(mlc_nn_pixel_shuffle)     { return run_on_square(w, mlc_nn_pixel_shuffle(w->ctx, 2)); }
DO(mlc_nn_basic_block)       { return run_on_square(w, mlc_nn_basic_block(w->ctx, 4, 4, 1)); }
DO(mlc_nn_bottleneck)        { return run_on_square(w, mlc_nn_bottleneck(w->ctx, 4, 2, 3, 1)); }

DO(mlc_nn_inverted_residual)
{
    return run_on_square(w, mlc_nn_inverted_residual(w->ctx, 4, 4, 1, 2));
}

/* x as a sequence of four steps in three channels.                                              */
static mlc_status run_on_steps(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *steps = mlc_reshape(w->x, mlc_dims3(1, 3, 4));
    return steps ? keep(w, mlc_forward(m, steps)) : made(w, steps);
}

DO(mlc_nn_causal_conv1d) { return run_on_steps(w, mlc_nn_causal_conv1d(w->ctx, 3, 2, 2, 2)); }
DO(mlc_nn_tcn_block)     { return run_on_steps(w, mlc_nn_tcn_block(w->ctx, 3, 4, 2, 1, 0.5)); }

DO(mlc_nn_tcn)
{
    const mlc_nn_tcn_desc d = mlc_nn_tcn_desc_make(3, 4, 2);
    return run_on_steps(w, mlc_nn_tcn(w->ctx, &d));
}

DO(mlc_nn_residual)
{
    mlc_module *part[2] = {mlc_nn_linear(w->ctx, 4, 4), mlc_nn_linear(w->ctx, 4, 4)};
    mlc_module *m = part[0] && part[1] ? mlc_nn_residual(w->ctx, part[0], part[1], true) : NULL;
    return run_module(w, made_of(m, 2, part));
}

/* x as a sequence of three times four features.                                                 */
static mlc_tensor *sequence_of(world *w) { return mlc_reshape(w->x, mlc_dims3(1, 3, 4)); }

static mlc_status run_on_sequence(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_forward(m, x)) : made(w, x);
}

/* x as keys, queries and values of two heads.                                                   */
static mlc_tensor *heads_of(world *w)
{
    return mlc_permute(mlc_reshape(w->x, mlc_dims4(1, 3, 2, 2)), mlc_dims4(0, 2, 1, 3));
}

DO(mlc_attention)
{
    mlc_tensor *x = heads_of(w);
    return x ? keep(w, mlc_attention(x, x, x)) : made(w, x);
}

DO(mlc_attention_ex)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_tensor        *x = heads_of(w);
    d.causal = true;
    d.mask = w->m;
    return x ? keep(w, mlc_attention_ex(x, x, x, &d)) : made(w, x);
}

DO(mlc_nn_multihead_attention)
{
    return run_on_sequence(w, mlc_nn_multihead_attention(w->ctx, 4, 2));
}

DO(mlc_nn_multihead_attention_ex)
{
    mlc_nn_multihead_attention_desc d = mlc_nn_multihead_attention_desc_make(4, 2);
    d.kv_heads = 1;
    d.no_bias = d.causal = true;
    return run_on_sequence(w, mlc_nn_multihead_attention_ex(w->ctx, &d));
}

DO(mlc_attention_forward)
{
    mlc_attention_desc d = mlc_attention_desc_make();
    mlc_module        *m = mlc_nn_multihead_attention(w->ctx, 4, 2);
    d.causal = true;
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_attention_forward(m, x, NULL, NULL, &d)) : made(w, x);
}

DO(mlc_rnn)
{
    mlc_rnn_desc d = mlc_rnn_desc_make(MLC_RNN_LSTM);
    mlc_tensor  *out[3], *x = sequence_of(w), *weight = mlc_reshape(w->v, mlc_dims2(4, 1));
    d.bias = w->v;
    if (mlc_rnn(x, weight, &d, out) == MLC_OK)
        for (int i = 0; i < 3; i++)
            keep(w, out[i]);
    return mlc_ctx_status(w->ctx);
}

DO(mlc_nn_rnn)  { return run_on_sequence(w, mlc_nn_rnn(w->ctx, 4, 3)); }
DO(mlc_nn_gru)  { return run_on_sequence(w, mlc_nn_gru(w->ctx, 4, 2)); }
DO(mlc_nn_lstm) { return run_on_sequence(w, mlc_nn_lstm(w->ctx, 4, 2)); }

DO(mlc_nn_rnn_ex)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 4, 3);
    d.layer_norm = d.peepholes = d.time_first = true;
    d.layers = d.projection = 2;
    d.dropout = 0.5;
    return run_on_sequence(w, mlc_nn_rnn_ex(w->ctx, &d));
}

DO(mlc_nn_rnn_cell)
{
    const mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_GRU, 4, 3);
    return run_module(w, mlc_nn_rnn_cell(w->ctx, &d));
}

DO(mlc_nn_bidirectional)
{
    mlc_module *part[2] = {mlc_nn_gru(w->ctx, 4, 2), mlc_nn_linear(w->ctx, 4, 2)};
    mlc_module *m = part[0] && part[1] ? mlc_nn_bidirectional(w->ctx, part[0], part[1]) : NULL;
    return run_on_sequence(w, made_of(m, 2, part));
}

/* Three sequences of length 2, 0 and 1.                                                        */
DO(mlc_rnn_forward)
{
    static const int64_t length[3] = {2, 0, 1};
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 2, 3);
    mlc_tensor     *y, *state[2];
    d.bidirectional = true;
    d.layers = 2;
    mlc_module *m = mlc_nn_rnn_ex(w->ctx, &d);
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = mlc_reshape(w->x, mlc_dims3(3, 2, 2));
    mlc_tensor *lengths = x ? mlc_from(w->ctx, MLC_I64, mlc_dims1(3), length) : NULL;
    if (!lengths || mlc_rnn_forward(m, x, lengths, NULL, &y, state) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    keep(w, state[0]);
    keep(w, state[1]);
    return keep(w, y);
}

static mlc_nn_transformer_desc small_transformer(void)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(4, 2);
    d.hidden = 5;
    d.dropout = 0;
    return d;
}

DO(mlc_nn_transformer_encoder_layer)
{
    mlc_nn_transformer_desc d = small_transformer();
    d.gated = d.norm_first = d.rms_norm = true;
    return run_on_sequence(w, mlc_nn_transformer_encoder_layer(w->ctx, &d));
}

DO(mlc_nn_transformer_encoder)
{
    const mlc_nn_transformer_desc d = small_transformer();
    return run_on_sequence(w, mlc_nn_transformer_encoder(w->ctx, &d, 2));
}

static mlc_status run_decoder(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_transformer_forward(m, x, x, NULL, NULL)) : made(w, x);
}

DO(mlc_nn_transformer_decoder_layer)
{
    const mlc_nn_transformer_desc d = small_transformer();
    return run_decoder(w, mlc_nn_transformer_decoder_layer(w->ctx, &d));
}

DO(mlc_nn_transformer_decoder)
{
    const mlc_nn_transformer_desc d = small_transformer();
    return run_decoder(w, mlc_nn_transformer_decoder(w->ctx, &d, 1));
}

DO(mlc_transformer_forward)
{
    const mlc_nn_transformer_desc d = small_transformer();
    mlc_attention_desc            a = mlc_attention_desc_make();
    mlc_module                   *m = mlc_nn_transformer_encoder_layer(w->ctx, &d);
    a.causal = true;
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = sequence_of(w);
    return x ? keep(w, mlc_transformer_forward(m, x, NULL, &a, NULL)) : made(w, x);
}

/* Three tokens, and a model of them.                                                            */
static mlc_status run_on_tokens(world *w, mlc_module *m)
{
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    mlc_tensor *x = mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 3));
    return x ? keep(w, mlc_forward(m, x)) : made(w, x);
}

static mlc_nn_gpt_desc small_gpt(void)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(5, 4, 1, 4, 2);
    d.layer.hidden = 5;
    d.layer.dropout = 0;
    return d;
}

DO(mlc_nn_gpt)
{
    const mlc_nn_gpt_desc d = small_gpt();
    return run_on_tokens(w, mlc_nn_gpt(w->ctx, &d));
}

DO(mlc_nn_gpt_desc_llama)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_llama(5, 4, 1, 4, 2);
    CHECK_EQ(mlc_nn_gpt_desc_make(5, 4, 1, 4, 2).layer.hidden, 16);
    d.layer.hidden = 3;
    return run_on_tokens(w, mlc_nn_gpt(w->ctx, &d));
}

DO(mlc_nn_bert)
{
    mlc_nn_bert_desc d = mlc_nn_bert_desc_make(5, 4, 1, 4, 2);
    d.layer.hidden = 5;
    d.layer.dropout = 0;
    return run_on_tokens(w, mlc_nn_bert(w->ctx, &d));
}

/* A cache with padding, whose sequence is taken twice, cut, and read on.                         */
static mlc_status read_cached(world *w, mlc_module *m, mlc_cache *c)
{
    static const int64_t padding[] = {1}, rows[] = {0, 0};
    mlc_status   st = mlc_cache_padding(c, padding, 1);
    mlc_tensor  *x = st == MLC_OK ? mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 3)) : NULL;
    mlc_tensor  *two = x ? mlc_expand(mlc_slice(x, 1, 0, 1, 1), mlc_dims2(2, 1)) : NULL;
    if (!two || !mlc_forward_cached(m, x, c))
        return mlc_ctx_status(w->ctx);
    st = mlc_cache_select(c, rows, 2);
    if (st == MLC_OK)
        st = mlc_cache_reset(c, 2);
    CHECK(st != MLC_OK || mlc_cache_length(c) == 2);
    return st == MLC_OK ? keep(w, mlc_forward_cached(m, two, c)) : st;
}

DO(mlc_forward_cached)
{
    const mlc_nn_gpt_desc d = small_gpt();
    const mlc_cache_desc  k = mlc_cache_desc_make(2, 4);
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    if (!own_module(w, m))
        return mlc_ctx_status(w->ctx);
    CHECK_EQ(mlc_cache_bytes(m, &k), 2 * 2 * 4 * 4 * 4 + 2 * 4 * 4);
    mlc_cache *c = mlc_cache_create(m, &k);
    if (!c)
        return mlc_ctx_status(w->ctx);
    const mlc_status st = read_cached(w, m, c);
    mlc_cache_free(c);
    return st;
}

/* States instead of keys and values: padding turns rows round, rows are taken twice.             */
DO(mlc_cache_create)
{
    static const int64_t padding[] = {1}, rows[] = {0, 0};
    const mlc_cache_desc k = mlc_cache_desc_make(2, 0);
    mlc_module          *m = mlc_nn_lstm(w->ctx, 2, 2);
    mlc_cache           *c = own_module(w, m) ? mlc_cache_create(m, &k) : NULL;
    mlc_tensor          *x = c ? mlc_ones(w->ctx, MLC_F32, mlc_dims3(1, 3, 2)) : NULL;
    mlc_tensor          *two = x ? mlc_ones(w->ctx, MLC_F32, mlc_dims3(2, 1, 2)) : NULL;
    mlc_status           st = two ? mlc_cache_padding(c, padding, 1) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK && !mlc_forward_cached(m, x, c))
        st = mlc_ctx_status(w->ctx);
    if (st == MLC_OK)
        st = mlc_cache_select(c, rows, 2);
    if (st == MLC_OK)
        st = keep(w, mlc_forward_cached(m, two, c));
    mlc_cache_free(c);
    return st;
}

DO(mlc_generate)
{
    const mlc_nn_gpt_desc d = small_gpt();
    const mlc_cache_desc  k = mlc_cache_desc_make(1, 4);
    mlc_generate_desc     g = mlc_generate_desc_make(2);
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    int64_t               out[2] = {0};
    mlc_cache            *c = own_module(w, m) ? mlc_cache_create(m, &k) : NULL;
    mlc_tensor           *x = c ? mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 2)) : NULL;
    g.repetition = 1.5;
    g.out = out;
    const mlc_status st = x ? mlc_generate(m, c, x, &g, NULL, NULL) : mlc_ctx_status(w->ctx);
    w->text = (uint64_t)(out[0] * 8 + out[1]);
    mlc_cache_free(c);
    return st;
}

DO(mlc_beam_search)
{
    const mlc_nn_gpt_desc d = small_gpt();
    const mlc_cache_desc  k = mlc_cache_desc_make(2, 4);
    const mlc_beam_desc   b = mlc_beam_desc_make(2, 2);
    mlc_module           *m = mlc_nn_gpt(w->ctx, &d);
    int64_t               out[2] = {0};
    mlc_cache            *c = own_module(w, m) ? mlc_cache_create(m, &k) : NULL;
    mlc_tensor           *x = c ? mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 2)) : NULL;
    const mlc_status st = x ? mlc_beam_search(m, c, x, &b, out, NULL) : mlc_ctx_status(w->ctx);
    w->text = st == MLC_OK ? (uint64_t)(out[0] * 8 + out[1]) : 0;
    mlc_cache_free(c);
    return st;
}

/* A convolution with a norm behind it, folded; its weight is also that of another module.        */
DO(mlc_nn_fold_batch_norm)
{
    mlc_module *net = mlc_nn_inverted_residual(w->ctx, 4, 3, 1, 1);
    if (!own_module(w, net) || mlc_module_tie(mlc_module_child(net, 2), "same",
                                              mlc_module_param(net, "0.weight")) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_fill_(mlc_module_param(net, "1.running_var"), 2);
    mlc_fill_(mlc_module_param(net, "4.running_var"), 2);
    if (mlc_nn_fold_batch_norm(net) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1));
    return image ? keep(w, mlc_forward(net, image)) : made(w, image);
}

DO(mlc_nn_refresh_batch_norm)
{
    mlc_module *net = mlc_nn_inverted_residual(w->ctx, 4, 3, 1, 1);
    if (!own_module(w, net))
        return mlc_ctx_status(w->ctx);
    if (mlc_nn_refresh_batch_norm(net, true) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1));
    return image ? keep(w, mlc_forward(net, image)) : made(w, image);
}

DO(mlc_nn_conv)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(1, 3, 3, 3);
    d.conv.padding = mlc_dims1(1);
    d.padding_mode = MLC_PAD_REFLECT;
    d.no_bias = true;
    return run_on_image(w, mlc_nn_conv(w->ctx, &d));
}

DO(mlc_nn_batch_norm_ex)
{
    mlc_nn_batch_norm_desc d = mlc_nn_batch_norm_desc_make(3);
    d.no_affine = d.no_statistics = true;
    return run_on_image(w, mlc_nn_batch_norm_ex(w->ctx, &d));
}

DO(mlc_nn_max_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    d.stride = mlc_dims_all(1);
    return run_on_image(w, mlc_nn_max_pool(w->ctx, &d));
}

DO(mlc_nn_avg_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    d.padding = mlc_dims1(1);
    return run_on_image(w, mlc_nn_avg_pool(w->ctx, &d));
}

DO(mlc_nn_adaptive_avg_pool)
{
    return run_on_image(w, mlc_nn_adaptive_avg_pool(w->ctx, mlc_dims1(2)));
}

DO(mlc_nn_adaptive_max_pool)
{
    return run_on_image(w, mlc_nn_adaptive_max_pool(w->ctx, mlc_dims1(2)));
}

/* Of numbers alone, there is nothing to fail: mlc_sketch_cost_of, mlc_sketch_round.              */
static mlc_sketch sketch_of(mlc_sketch_kind kind, int64_t rows, int64_t cols)
{
    return mlc_sketch_make(kind, rows, cols, 3);
}

DO(mlc_sketch_apply)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_GAUSSIAN, 2, 3);
    return keep(w, mlc_sketch_apply(w->x, &s, 0));
}

DO(mlc_sketch_apply_t)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_SRHT, 4, 5);
    return keep(w, mlc_sketch_apply_t(w->x, &s, 1));
}

DO(mlc_sketch_matrix)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_COUNT, 4, 5);
    return made(w, mlc_sketch_matrix(w->ctx, &s, MLC_F32));
}

DO(mlc_sketch_bits)
{
    const mlc_sketch s = sketch_of(MLC_SKETCH_SIGNS, 4, 35);
    return made(w, mlc_sketch_bits(w->ctx, &s));
}

DO(mlc_sklinear)
{
    const mlc_sketch   u = sketch_of(MLC_SKETCH_SIGNS, 3, 4);
    const mlc_epilogue e = {MLC_ACT_GELU, 0.5, w->y};
    return keep(w, mlc_sklinear(w->x, w->y, w->x, w->v, &u, &u, 1, &e));
}

/* Each layer made draws another seed: the same for all here.                                     */
DO(mlc_nn_sklinear)
{
    const int64_t seed = 5;
    mlc_module   *m = mlc_nn_sklinear(w->ctx, 4, 2, 1, 2);
    if (!own_module(w, m) || mlc_write(mlc_module_param(m, "seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(m, w->x));
}

static mlc_status run_sklinear(world *w, mlc_sketch_start start, mlc_sketch_store store)
{
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(4, 3, 1, 2);
    d.weight = w->y;
    d.start = start;
    d.store = store;
    d.has_seed = true;
    return run_module(w, mlc_nn_sklinear_ex(w->ctx, &d));
}
DO(mlc_nn_sklinear_ex) { return run_sklinear(w, MLC_SKETCH_FIT, MLC_SKETCH_AS_BITS); }
DO(mlc_nn_sklinear_of_a_subspace)
{
    return run_sklinear(w, MLC_SKETCH_SUBSPACE, MLC_SKETCH_AS_FLOATS);
}

DO(mlc_nn_sklinear_panther)
{
    mlc_tensor *S1s = mlc_reshape(w->x, mlc_dims3(1, 4, 3)), *S2s = mlc_reshape(w->y,
                                                                               mlc_dims3(1, 3, 4));
    mlc_tensor *U1s = mlc_reshape(w->x, mlc_dims3(1, 3, 4)), *U2s = mlc_reshape(w->y,
                                                                               mlc_dims3(1, 4, 3));
    if (S1s == NULL || S2s == NULL || U1s == NULL || U2s == NULL)
        return mlc_ctx_status(w->ctx);
    return run_module(w, mlc_nn_sklinear_panther(w->ctx, S1s, S2s, U1s, U2s, w->v));
}

DO(mlc_sklinear_to_panther)
{
    mlc_tensor       *t[4];
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(4, 3, 2, 1);
    d.has_seed = true;
    mlc_module *m = mlc_nn_sklinear_ex(w->ctx, &d);
    if (!own_module(w, m) || mlc_sklinear_to_panther(m, t) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    for (int i = 0; i < 4; i++)
        made(w, t[i]);
    return MLC_OK;
}

DO(mlc_nn_skconv)
{
    mlc_nn_skconv_desc d = mlc_nn_skconv_desc_make(1, 3, 2, 3, 1, 1);
    d.has_seed = true;
    d.weight = mlc_randn(w->ctx, MLC_F32, mlc_dims3(2, 3, 3));
    return d.weight ? run_on_image(w, mlc_nn_skconv(w->ctx, &d)) : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_skconv2d)
{
    const int64_t seed = 5;
    mlc_module   *m = mlc_nn_skconv2d(w->ctx, 1, 3, 3, 1, 1);
    if (!own_module(w, m) || mlc_write(mlc_module_param(m, "seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *image = mlc_reshape(w->x, mlc_dims4(1, 1, 4, 3));
    return image ? keep(w, mlc_forward(m, image)) : made(w, image);
}

DO(mlc_sketch_model)
{
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 1);
    const int64_t         seed = 5;
    mlc_module           *net = mlc_nn_sequential(w->ctx);
    if (net == NULL)
        return mlc_ctx_status(w->ctx);
    w->module = net;
    mlc_module *leaf = mlc_nn_linear(w->ctx, 4, 6);
    if (leaf == NULL || mlc_module_add(net, leaf) != MLC_OK) {
        mlc_module_free(leaf);
        return mlc_ctx_status(w->ctx);
    }
    if (!own_module(w, net))
        return mlc_ctx_status(w->ctx);
    d.fresh = true;
    if (mlc_sketch_model(net, &d, NULL) != MLC_OK || !own_module(w, net) ||
        mlc_write(mlc_module_param(net, "0.seed"), &seed, 8) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(net, w->x));
}

DO(mlc_nn_embedding_ex)
{
    mlc_nn_embedding_desc d = mlc_nn_embedding_desc_make(5, 2);
    d.embedding.has_padding_index = true;
    mlc_module *m = mlc_nn_embedding_ex(w->ctx, &d);
    mlc_tensor *y = own_module(w, m) ? mlc_forward(w->module, w->i) : NULL;
    if (y == NULL)
        return mlc_ctx_status(w->ctx);
    CHECK_EQ(mlc_ctx_status(w->ctx), MLC_OK);
    const mlc_status st = mlc_backward_from(y, NULL);
    return st != MLC_OK ? st : keep(w, mlc_grad(mlc_module_param(w->module, "weight")));
}

DO(mlc_nn_embedding)
{
    return own_module(w, mlc_nn_embedding(w->ctx, 5, 2)) ? keep(w, mlc_forward(w->module, w->i))
                                                         : mlc_ctx_status(w->ctx);
}

DO(mlc_nn_linear_ex)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(4, 2);
    d.no_bias = true;
    return run_module(w, mlc_nn_linear_ex(w->ctx, &d));
}

static mlc_status scale_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)n_in; (void)n_out;
    out[0] = mlc_mul(in[0], mlc_add_scalar(mlc_module_param(m, "scale"),
                                           *(const double *)mlc_module_user(m)));
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static const mlc_module_class SCALE = {"Scale", scale_forward, NULL, NULL, 0, NULL};

static mlc_module *scale(world *w)
{
    const double   shift = 2;
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(w->ctx, &SCALE, &shift, sizeof shift);
    d = mlc_param_desc_make(mlc_dims1(4));
    d.init = MLC_INIT_CONSTANT;
    d.a = 3;
    if (m && mlc_module_declare(m, "scale", &d))
        return m;
    mlc_module_free(m);
    return NULL;
}

DO(mlc_module_create)  { return run_module(w, scale(w)); }
DO(mlc_module_declare) { return run_module(w, scale(w)); }

DO(mlc_module_tie)
{
    mlc_module *a = scale(w), *b = a ? mlc_module_create(w->ctx, &SCALE, NULL, 8) : NULL;
    mlc_module *root = b ? mlc_nn_sequential(w->ctx) : NULL;
    w->module = root;
    if (!root || mlc_module_add(root, a) != MLC_OK || mlc_module_add(root, b) != MLC_OK) {
        if (a && (!root || !mlc_module_child(root, 0))) mlc_module_free(a);
        if (b && (!root || !mlc_module_child(root, 1))) mlc_module_free(b);
        return mlc_ctx_status(w->ctx);
    }
    const mlc_status st = mlc_module_tie(b, "scale", mlc_module_param(a, "scale"));
    return st != MLC_OK ? mlc_ctx_status(w->ctx) : run_module(w, root);
}

DO(mlc_module_bind)
{
    static const float v[4] = {1, 2, 3, 4};
    mlc_module *a = scale(w);
    if (!own_module(w, a))
        return mlc_ctx_status(w->ctx);
    if (mlc_ctx_on_host(w->ctx) && mlc_module_bind(a, "scale", v) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(a, w->x));
}

/* Four linear layers, one of them three modules deep; NULL children become the error.          */
static mlc_module *tower(world *w)
{
    mlc_module *root = mlc_nn_sequential(w->ctx), *inner = mlc_nn_sequential(w->ctx);
    mlc_module *leaf = mlc_nn_linear(w->ctx, 4, 4);
    w->module = root;
    if (mlc_module_add_named(inner, "leaf", leaf) != MLC_OK)
        mlc_module_free(leaf);
    if (mlc_module_add(root, inner) != MLC_OK)
        mlc_module_free(inner);
    for (int i = 0; i < 3; i++) {
        leaf = mlc_nn_linear(w->ctx, 4, 4);
        if (mlc_module_add(root, leaf) != MLC_OK)
            mlc_module_free(leaf);
    }
    return mlc_ctx_status(w->ctx) == MLC_OK ? root : NULL;
}

DO(mlc_module_add)       { return made(w, tower(w)); }
DO(mlc_module_add_named) { return run_module(w, tower(w)); }

DO(mlc_module_build)
{
    mlc_module *m = tower(w);
    return m ? mlc_module_build(m) : made(w, m);
}

DO(mlc_module_find)
{
    mlc_module *m = tower(w), *leaf = m ? mlc_module_find(m, "0.leaf") : NULL;
    return leaf ? mlc_module_build(leaf) : made(w, m);
}

static bool keep_output(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)m;
    *(mlc_tensor **)user = out[n_out - 1];
    return true;
}

DO(mlc_module_hook)
{
    mlc_tensor *made_in = NULL;
    mlc_module_hook(mlc_module_child(w->net, 0), keep_output, &made_in);
    mlc_tensor *y = mlc_forward(w->net, w->v);
    mlc_module_hook(mlc_module_child(w->net, 0), NULL, NULL);
    return keep(w, y ? mlc_sum(made_in, mlc_dims0(), false) : NULL);
}

DO(mlc_module_param)
{
    mlc_module *m = tower(w);
    mlc_tensor *t = m ? mlc_module_param(m, "0.leaf.weight") : NULL;
    if (t)
        set_values(w, m);
    return keep(w, t);
}

DO(mlc_eval_begin)
{
    if (mlc_eval_begin(w->net) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    mlc_tensor *y = mlc_forward(w->net, w->x);
    CHECK_EQ(mlc_eval_end(w->net), MLC_OK);
    return keep(w, y);
}

CASE(mlc_eval_end, (mlc_eval_begin(w->net), mlc_eval_end(w->net), mlc_forward(w->net, w->x)))

static mlc_tensor *sum_of_parts(mlc_tensor *x)
{
    mlc_no_grad_begin(x->ctx);
    mlc_tensor *a = mlc_exp(x), *b = mlc_add(x, a);
    mlc_drop(a);
    mlc_no_grad_end(x->ctx);
    return b;
}

CASE(mlc_drop, sum_of_parts(w->x))

static mlc_status start_anew(world *w, mlc_init kind)
{
    const mlc_init_desc d = mlc_init_desc_make(kind);
    w->module = mlc_module_clone(w->net);
    if (!w->module || mlc_module_init(w->module, "*.weight", &d) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(w->module, w->x));
}

DO(mlc_module_init) { return start_anew(w, MLC_INIT_ORTHOGONAL); }
DO(mlc_module_init_of_normals) { return start_anew(w, MLC_INIT_KAIMING_NORMAL); }

DO(mlc_module_clone)
{
    mlc_module *clone = mlc_module_clone(w->net);
    w->module = clone;
    return clone ? keep(w, mlc_forward(clone, w->x)) : mlc_ctx_status(w->ctx);
}

/* A clone of other values takes the net's, or a share of them. */
static mlc_status into_a_clone(world *w, double share)
{
    w->module = mlc_module_clone(w->net);
    if (!w->module)
        return mlc_ctx_status(w->ctx);
    set_values(w, w->module);
    const mlc_status st = share == 1 ? mlc_module_copy(w->module, w->net)
                                     : mlc_module_mix(w->module, w->net, share);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_module_copy) { return into_a_clone(w, 1); }
DO(mlc_module_mix)  { return into_a_clone(w, 0.5); }

DO(mlc_state_bytes)
{
    w->module = mlc_nn_linear(w->ctx, 4, 4);
    if (!w->module)
        return mlc_ctx_status(w->ctx);
    const size_t bytes = mlc_state_bytes(w->module);
    CHECK((bytes > 80) == (mlc_ctx_status(w->ctx) == MLC_OK));
    return mlc_ctx_status(w->ctx);
}

static mlc_status save_and_load(world *w)
{
    char         block[512];
    const size_t bytes = mlc_state_bytes(w->net);
    if (!CHECK(bytes <= sizeof block))
        return MLC_ERR_INTERNAL;
    if (mlc_state_save(w->net, block, bytes) != MLC_OK ||
        mlc_state_load(w->net, block, bytes) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_forward(w->net, w->x));
}

DO(mlc_state_save) { return save_and_load(w); }
DO(mlc_state_load) { return save_and_load(w); }

DO(mlc_module_rebuild)
{
    mlc_module_freeze(w->net, "0.*", true);
    return mlc_module_rebuild(w->net);
}

DO(mlc_module_to) { return mlc_module_to(w->net, MLC_F64); }

DO(mlc_module_freeze)
{
    mlc_status st = mlc_module_freeze(w->net, "0.*", true);
    st = first_of(st, mlc_module_rebuild(w->net));
    mlc_optim_zero_grad(w->opt);
    st = first_of(st, mlc_optim_step(w->opt));             /* makes memory for gradients       */
    st = first_of(st, mlc_module_freeze(w->net, "2.bias", true));
    if (st != MLC_OK) return st;
    st = mlc_module_freeze(w->net, NULL, false);
    CHECK_EQ(mlc_module_numel(w->net, true), st == MLC_OK ? 43 : 15);
    mlc_module_freeze(w->net, "2.bias", false);            /* as it was, also after a failure  */
    return st;
}

DO(mlc_module_forward)
{
    mlc_tensor *out = NULL;
    mlc_status  st = mlc_module_forward(w->net, &w->x, 1, &out, 1);
    CHECK_EQ(out != NULL, st == MLC_OK);
    return st == MLC_OK ? keep(w, out) : st;
}

CASE(mlc_forward, mlc_forward(w->net, w->x))

DO(mlc_param_next)
{
    mlc_module *m = tower(w);
    if (m == NULL)
        return made(w, m);
    mlc_param_iter it = mlc_param_iter_make(m);
    int            n = 0;
    while (mlc_param_next(&it))
        n++;
    if (n == 0)
        return mlc_ctx_status(w->ctx);
    CHECK_EQ(n, 8);
    return MLC_OK;
}

DO(mlc_module_numel)
{
    mlc_module *m = tower(w);
    if (m)
        CHECK_EQ(mlc_module_numel(m, true), 80);
    return made(w, m);
}

static void hash_text(void *user, const char *text, size_t n)
{
    world *w = (world *)user;
    for (size_t i = 0; i < n; i++)
        w->text = (w->text ^ (unsigned char)text[i]) * 1099511628211u;
}

DO(mlc_summary) { return mlc_summary(w->net, mlc_dims2(7, 4), hash_text, w); }

/* Summarised, so that there is a copy on the device as well.                                   */
DO(mlc_print_ex)
{
    mlc_print_desc d = mlc_print_desc_make();
    d.threshold = 2;
    d.edge_items = 1;
    return mlc_print_ex(w->w, &d, hash_text, w);
}

DO(mlc_print) { return mlc_print(w->w, hash_text, w); }

/* Not to the standard output of the tests.                                                     */
DO(mlc_show)
{
    fflush(stdout);
    const int  kept = dup(1), away = open("/dev/null", O_WRONLY);
    CHECK(kept >= 0 && away >= 0 && dup2(away, 1) == 1);
    close(away);
    const mlc_status st = mlc_show(w->w);
    fflush(stdout);
    CHECK_EQ(dup2(kept, 1), 1);
    close(kept);
    return st;
}

/* ---- optimizers ----------------------------------------------------------------------------- */

/* An optimizer of the net, which has gradients; one step with it.                              */
static mlc_status run_optim(world *w, mlc_optim *opt)
{
    w->optim = opt;
    return opt ? mlc_optim_step(opt) : made(w, opt);
}

DO(mlc_sgd)   { return run_optim(w, mlc_sgd(w->net, 0.1)); }
DO(mlc_adam)  { return run_optim(w, mlc_adam(w->net, 0.1)); }
DO(mlc_adamw) { return run_optim(w, mlc_adamw(w->net, 0.1)); }
DO(mlc_lamb)  { return run_optim(w, mlc_lamb(w->net, 0.1)); }
DO(mlc_amsgrad) { return run_optim(w, mlc_amsgrad(w->net, 0.1)); }
DO(mlc_radam) { return run_optim(w, mlc_radam(w->net, 0.1)); }
DO(mlc_adamax) { return run_optim(w, mlc_adamax(w->net, 0.1)); }
DO(mlc_nadam) { return run_optim(w, mlc_nadam(w->net, 0.1)); }
DO(mlc_rmsprop) { return run_optim(w, mlc_rmsprop(w->net, 0.1)); }
DO(mlc_adagrad) { return run_optim(w, mlc_adagrad(w->net, 0.1)); }
DO(mlc_adadelta) { return run_optim(w, mlc_adadelta(w->net, 0.1)); }
DO(mlc_rprop) { return run_optim(w, mlc_rprop(w->net, 0.1)); }
DO(mlc_sophia) { return run_optim(w, mlc_sophia(w->net, 0.1)); }
DO(mlc_lars) { return run_optim(w, mlc_lars(w->net, 0.1)); }
DO(mlc_lion) { return run_optim(w, mlc_lion(w->net, 0.1)); }
DO(mlc_adafactor) { return run_optim(w, mlc_adafactor(w->net, 0.1)); }
DO(mlc_muon) { return run_optim(w, mlc_muon(w->net, 0.1)); }
DO(mlc_schedule_free_sgd) { return run_optim(w, mlc_schedule_free_sgd(w->net, 0.1)); }
DO(mlc_schedule_free_adamw) { return run_optim(w, mlc_schedule_free_adamw(w->net, 0.1)); }

DO(mlc_sgd_ex)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(1e-3);
    d.momentum = 0.9;
    return run_optim(w, mlc_sgd_ex(w->net, &d));
}

DO(mlc_adam_ex)
{
    mlc_adam_desc d = mlc_adam_desc_make(1e-3);
    d.beta1 = 0.8;
    d.moments = MLC_MOMENTS_BF16;
    return run_optim(w, mlc_adam_ex(w->net, &d));
}

DO(mlc_adamw_ex)
{
    mlc_adam_desc d = mlc_adamw_desc_make(1e-3);
    d.weight_decay = 0.5;
    return run_optim(w, mlc_adamw_ex(w->net, &d));
}

DO(mlc_lamb_ex)
{
    const mlc_adam_desc d = mlc_lamb_desc_make(1e-3);
    return run_optim(w, mlc_lamb_ex(w->net, &d));
}

DO(mlc_amsgrad_ex)
{
    const mlc_amsgrad_desc d = mlc_amsgrad_desc_make(1e-3);
    return run_optim(w, mlc_amsgrad_ex(w->net, &d));
}

DO(mlc_radam_ex)
{
    const mlc_amsgrad_desc d = mlc_radam_desc_make(1e-3);
    return run_optim(w, mlc_radam_ex(w->net, &d));
}

DO(mlc_adamax_ex)
{
    const mlc_adam_desc d = mlc_adamax_desc_make(1e-3);
    return run_optim(w, mlc_adamax_ex(w->net, &d));
}

DO(mlc_nadam_ex)
{
    const mlc_nadam_desc d = mlc_nadam_desc_make(1e-3);
    return run_optim(w, mlc_nadam_ex(w->net, &d));
}

DO(mlc_rmsprop_ex)
{
    const mlc_rmsprop_desc d = mlc_rmsprop_desc_make(1e-3);
    return run_optim(w, mlc_rmsprop_ex(w->net, &d));
}

DO(mlc_adagrad_ex)
{
    const mlc_adagrad_desc d = mlc_adagrad_desc_make(1e-3);
    return run_optim(w, mlc_adagrad_ex(w->net, &d));
}

DO(mlc_adadelta_ex)
{
    const mlc_adadelta_desc d = mlc_adadelta_desc_make(1e-3);
    return run_optim(w, mlc_adadelta_ex(w->net, &d));
}

DO(mlc_rprop_ex)
{
    const mlc_rprop_desc d = mlc_rprop_desc_make(1e-3);
    return run_optim(w, mlc_rprop_ex(w->net, &d));
}

DO(mlc_lars_ex)
{
    const mlc_lars_desc d = mlc_lars_desc_make(1e-3);
    return run_optim(w, mlc_lars_ex(w->net, &d));
}

DO(mlc_lion_ex)
{
    mlc_lion_desc d = mlc_lion_desc_make(1e-3);
    d.moments = MLC_MOMENTS_8BIT;
    return run_optim(w, mlc_lion_ex(w->net, &d));
}

DO(mlc_adafactor_ex)
{
    mlc_adafactor_desc d = mlc_adafactor_desc_make(1e-3);
    d.fixed = true;
    return run_optim(w, mlc_adafactor_ex(w->net, &d));
}

DO(mlc_muon_ex)
{
    mlc_muon_desc d = mlc_muon_desc_make(1e-3);
    d.nesterov = false;
    return run_optim(w, mlc_muon_ex(w->net, &d));
}

DO(mlc_schedule_free_sgd_ex)
{
    const mlc_schedule_free_sgd_desc d = mlc_schedule_free_sgd_desc_make(1e-3);
    return run_optim(w, mlc_schedule_free_sgd_ex(w->net, &d));
}

DO(mlc_schedule_free_adamw_ex)
{
    const mlc_schedule_free_adamw_desc d = mlc_schedule_free_adamw_desc_make(1e-3);
    return run_optim(w, mlc_schedule_free_adamw_ex(w->net, &d));
}

DO(mlc_sophia_ex)
{
    const mlc_sophia_desc d = mlc_sophia_desc_make(1e-3);
    return run_optim(w, mlc_sophia_ex(w->net, &d));
}

DO(mlc_optim_curvature)
{
    w->optim = mlc_sophia(w->net, 0.1);
    return w->optim ? mlc_optim_curvature(w->optim, 4) : made(w, w->optim);
}

DO(mlc_optim_mean)
{
    w->optim = mlc_schedule_free_sgd(w->net, 0.1);
    return w->optim ? mlc_optim_mean(w->optim, true) : made(w, w->optim);
}

static mlc_tensor *world_loss(void *user)
{
    world *w = (world *)user;
    return mlc_sum_all(mlc_forward(w->net, mlc_detach(w->x)));
}

static mlc_tensor *world_fit(void *user)
{
    mlc_tensor *y = mlc_forward(((world *)user)->net, mlc_detach(((world *)user)->x));
    return mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
}

DO(mlc_optim_step_with)
{
    mlc_optim_zero_grad(w->opt);
    return mlc_optim_step_with(w->opt, world_loss, w, NULL);
}
DO(mlc_optim_sam)
{
    mlc_optim_sam(w->opt, 0.1, true);
    const mlc_status st = mlc_optim_step_with(w->opt, world_loss, w, NULL);
    mlc_optim_sam(w->opt, 0, false);
    return st;
}
/* What fails in a later iteration leaves those before it: parameters are put back here.         */
static mlc_status run_lbfgs(world *w, mlc_optim *opt)
{
    static unsigned char was[16][1024];
    mlc_param_iter       it = mlc_param_iter_make(w->net), again = it;
    w->optim = opt;
    if (opt == NULL)
        return made(w, opt);
    for (int n = 0; mlc_param_next(&it); n++)
        mlc_read(it.tensor, was[n],
                 (size_t)mlc_numel(it.tensor) * mlc_dtype_bytes(it.tensor->dtype));
    const mlc_status st = mlc_optim_step_with(opt, world_fit, w, NULL);
    for (int n = 0; st != MLC_OK && mlc_param_next(&again); n++)
        mlc_write(again.tensor, was[n],
                  (size_t)mlc_numel(again.tensor) * mlc_dtype_bytes(again.tensor->dtype));
    return st;
}

DO(mlc_lbfgs) { return run_lbfgs(w, mlc_lbfgs(w->net, 0.1)); }
DO(mlc_lbfgs_ex)
{
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(1e-3);
    d.max_iter = 3;
    d.history = 1;
    d.strong_wolfe = false;
    return run_lbfgs(w, mlc_lbfgs_ex(w->net, &d));
}
DO(mlc_optim_curvature_with)
{
    w->optim = mlc_sophia(w->net, 0.1);
    return w->optim ? mlc_optim_curvature_with(w->optim, world_loss, w, 1) : made(w, w->optim);
}
DO(mlc_optim_step) { return mlc_optim_step(w->opt); }

/* A step, and the average in the parameters' place and back; then it goes: w->opt stays.        */
static mlc_status run_average(world *w, mlc_average *a)
{
    mlc_status st = made(w, a);
    if (a) st = first_of(st, mlc_optim_step(w->opt));
    if (a) st = first_of(st, mlc_average_swap(a, true));
    if (a) st = first_of(st, mlc_average_swap(a, false));
    mlc_average_free(a);
    return st;
}

DO(mlc_ema) { return run_average(w, mlc_ema(w->opt, 0.9)); }
DO(mlc_swa) { return run_average(w, mlc_swa(w->opt, 0, 2)); }

/* Two of them follow a new layout, or both stay.                                               */
DO(mlc_average_ex)
{
    mlc_average_desc d = mlc_average_desc_make();
    d.warmup = true;
    mlc_average *a = mlc_average_ex(w->opt, &d), *b = a ? mlc_average_ex(w->opt, NULL) : NULL;
    mlc_status   st = b ? mlc_optim_group(w->opt, "*.bias", NULL) : made(w, b);
    mlc_average_free(b);
    return first_of(st, run_average(w, a));
}

DO(mlc_optim_lookahead)
{
    mlc_status st = mlc_optim_lookahead(w->opt, 1, 0.5);
    st = first_of(st, mlc_optim_step(w->opt));
    mlc_optim_lookahead(w->opt, 0, 0.5);
    return st;
}

DO(mlc_optim_group)
{
    mlc_group_desc d = mlc_group_desc_make();
    d.lr_scale = 0.5;
    mlc_status st = mlc_optim_group(w->opt, "*.bias", &d);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_no_decay)
{
    mlc_status st = mlc_optim_no_decay(w->opt, true);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_layer_decay)
{
    mlc_status st = mlc_optim_layer_decay(w->opt, 0.5);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_noise)
{
    mlc_status st = mlc_optim_noise(w->opt, 0.1, 0.5);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_report)
{
    mlc_grad_report r[2];
    int64_t         n = 0;
    mlc_status      st = mlc_optim_report(w->opt, r, 2, &n);
    return first_of(st, mlc_grad_report_print(w->ctx, r, st == MLC_OK ? 2 : 0, hash_text, w));
}

DO(mlc_optim_step_report)
{
    mlc_grad_report r[2];
    return mlc_optim_step_report(w->opt, r, 2, NULL);
}

DO(mlc_optim_clip)
{
    mlc_clip_desc d = mlc_clip_desc_make();
    d.norm = 1;
    d.each = true;
    mlc_status st = mlc_optim_clip(w->opt, &d);
    return first_of(st, mlc_optim_step(w->opt));
}

/* A matrix of its own, large enough to be stepped inside backward.                             */
DO(mlc_optim_in_backward)
{
    w->module = mlc_nn_linear(w->ctx, 128, 128);
    w->optim = mlc_sgd(w->module, 0.1);
    if (w->optim == NULL)
        return made(w, w->optim);
    mlc_status  st = mlc_optim_in_backward(w->optim, true);
    mlc_tensor *x = mlc_full(w->ctx, MLC_F32, mlc_dims2(2, 128), 0.5);
    mlc_tensor *loss = mlc_mean(mlc_forward(w->module, x), mlc_dims0(), false);
    if (loss == NULL)
        return made(w, loss);
    st = first_of(st, mlc_backward(loss));
    return first_of(st, mlc_optim_step(w->optim));
}

DO(mlc_optim_scaler)
{
    mlc_scaler_desc d = mlc_scaler_desc_make();
    mlc_status st = mlc_optim_scaler(w->opt, &d);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_accumulate)
{
    mlc_status st = mlc_optim_accumulate(w->opt, 2);
    st = first_of(st, mlc_optim_step(w->opt));
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_split_rows)
{
    static const double shares[2] = {0.5, 0.5};
    mlc_split_rows_desc d = mlc_split_rows_desc_make(shares, 2);
    mlc_tensor    *parts[2];
    d.labels = w->labels;
    mlc_status st = mlc_split_rows(w->ctx, mlc_numel(w->labels), &d, parts);
    st = first_of(st, keep(w, parts[0]));
    return first_of(st, keep(w, parts[1]));
}

DO(mlc_k_fold)
{
    const mlc_k_fold_desc d = mlc_k_fold_desc_make(2);
    mlc_tensor *train, *held_out;
    mlc_status  st = mlc_k_fold(w->ctx, 6, &d, 1, &train, &held_out);
    st = first_of(st, keep(w, train));
    return first_of(st, keep(w, held_out));
}

CASE(mlc_gather_rows, mlc_gather_rows(w->x, w->rows))

DO(mlc_optim_flush)
{
    mlc_status st = mlc_optim_accumulate(w->opt, 2);
    st = first_of(st, mlc_optim_step(w->opt));
    return first_of(st, mlc_optim_flush(w->opt));
}

DO(mlc_optim_minimize)
{
    mlc_optim_zero_grad(w->opt);       /* a backward that failed asks for it                  */
    mlc_tensor *y = mlc_forward(w->net, w->x);
    mlc_tensor *loss = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
    return first_of(made(w, loss), loss ? mlc_optim_minimize(w->opt, loss) : MLC_OK);
}

DO(mlc_optim_schedule)
{
    static const int64_t starts[2] = {0, 1};
    const mlc_sched      parts[2] = {mlc_sched_constant(1), mlc_sched_cosine(9, 0.5)};
    const mlc_sched      s = mlc_sched_sequence(parts, starts, 2);
    mlc_status           st = mlc_optim_schedule(w->opt, MLC_KNOB_LR, &s);
    return first_of(st, mlc_optim_step(w->opt));
}

static double range_step(void *user)
{
    world      *w = (world *)user;
    mlc_tensor *loss = mlc_sum_all(mlc_forward(w->net, mlc_detach(w->x)));
    return loss && mlc_optim_minimize(w->opt, loss) == MLC_OK ? mlc_item(loss) : 0;
}

DO(mlc_lr_range)
{
    double                  rates[2], losses[2];
    const mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 2);
    mlc_optim_zero_grad(w->opt);
    return mlc_lr_range(w->opt, &d, range_step, w, NULL, NULL);
}

DO(mlc_optim_scaled)
{
    mlc_scaler_desc d = mlc_scaler_desc_make();
    mlc_status st = mlc_optim_scaler(w->opt, &d);
    return first_of(st, keep(w, mlc_optim_scaled(w->opt, w->x)));
}

/* ---- autocast ------------------------------------------------------------------------------- */

DO(mlc_autocast_begin)
{
    mlc_status  st = mlc_autocast_begin(w->ctx, MLC_BF16);
    mlc_tensor *y = st == MLC_OK ? mlc_forward(w->net, w->x) : NULL;
    if (st != MLC_OK)
        return st;
    mlc_tensor *loss = y != NULL ? mlc_mean(y, mlc_dims0(), false) : NULL;
    st = first_of(made(w, loss), loss != NULL ? mlc_backward(loss) : MLC_OK);
    CHECK_EQ(mlc_autocast_end(w->ctx), MLC_OK);
    return first_of(st, mlc_ctx_status(w->ctx));
}

DO(mlc_autocast_begin_ex)
{
    const mlc_autocast_desc d = mlc_autocast_desc_make(MLC_F16);
    mlc_status              st = mlc_autocast_begin_ex(w->ctx, &d);
    if (st != MLC_OK)
        return st;
    st = keep(w, mlc_forward(w->net, w->x));
    CHECK_EQ(mlc_autocast_end(w->ctx), MLC_OK);
    return st;
}

DO(mlc_autocast_report)
{
    mlc_status st = mlc_autocast_begin(w->ctx, MLC_BF16);
    if (st != MLC_OK)
        return st;
    CHECK_EQ(mlc_autocast_end(w->ctx), MLC_OK);
    return mlc_autocast_report(w->ctx, hash_text, w);
}

/* ---- pieces that run twice ------------------------------------------------------------------ */

static mlc_status twice_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    (void)n_in; (void)n_out;
    out[0] = mlc_dropout(mlc_forward((mlc_module *)user, in[0]), 0.5);
    return mlc_ctx_status(ctx);
}

DO(mlc_recompute)
{
    mlc_tensor      *y = NULL;
    const mlc_status st = mlc_recompute(w->ctx, twice_piece, w->net, &w->x, 1, &y, 1);
    CHECK((y != NULL) == (st == MLC_OK));
    CHECK(!mlc_recomputing(w->ctx));
    return first_of(st, y != NULL ? keep(w, y) : MLC_OK);
}

SCENARIO(mlc_recomputing, true) { return mlc_recomputing(w->ctx) ? MLC_ERR_STATE : MLC_OK; }

DO(mlc_nn_recompute)
{
    CHECK(mlc_nn_recompute(w->ctx, w->net) == w->net);
    return keep(w, mlc_forward(w->net, w->x));
}

DO(mlc_module_recompute_budget)
{
    const mlc_status st = mlc_module_recompute_budget(w->net, mlc_dims2(3, 4), 1);
    if (st != MLC_ERR_ARG) return st;
    mlc_error_clear(w->ctx);
    return mlc_module_recompute_budget(w->net, mlc_dims2(3, 4), 1 << 20);
}

DO(mlc_module_recompute)
{
    CHECK_EQ(mlc_module_recompute(w->net, 1), MLC_OK);
    return keep(w, mlc_forward(w->net, w->x));
}

DO(mlc_module_recompute_segments)
{
    CHECK_EQ(mlc_module_recompute_segments(w->net, 2), MLC_OK);
    return keep(w, mlc_forward(w->net, w->x));
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void reads_arguments(void *user, const mlc_op_event *e)
{
    mlc_op_arg a;
    *(int64_t *)user += mlc_op_event_arg(e, 0, &a) && a.i[0] == 1;
}

DO(mlc_hooks_add)
{
    int64_t   axes = 0;
    mlc_hooks h;
    memset(&h, 0, sizeof h);
    h.user = &axes;
    h.op_end = reads_arguments;        /* mlc_op_event_arg                                     */
    const int32_t id = mlc_hooks_add(w->ctx, &h);
    if (id == 0)
        return mlc_ctx_status(w->ctx);
    mlc_status st = keep(w, mlc_softmax(w->x, 1));
    CHECK(st != MLC_OK || axes == 1);
    return first_of(st, mlc_hooks_remove(w->ctx, id));
}

static void counts_operations(void *user, const mlc_op_event *e)
{
    *(int64_t *)user += e->n_out;
}

/* mlc_tape_end, mlc_tape_each: a piece is run, looked at and differentiated on its own tape.   */
DO(mlc_tape_begin)
{
    int64_t    outputs = 0;
    mlc_status st = mlc_tape_begin(w->ctx, true);
    if (st != MLC_OK)
        return st;
    mlc_tensor *y = mlc_mean(mlc_exp(w->x), mlc_dims0(), false);
    st = y ? mlc_tape_each(w->ctx, counts_operations, &outputs) : mlc_ctx_status(w->ctx);
    CHECK(st != MLC_OK || outputs == 2);
    if (st == MLC_OK && mlc_requires_grad(y))
        st = mlc_backward(y);
    return first_of(st, mlc_tape_end(w->ctx));
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Two batches of two rows, summed.                                                             */
static mlc_status run_loader(world *w)
{
    mlc_tensor     *images = mlc_ones(w->ctx, MLC_F32, mlc_dims3(mlc_dim(w->labels, 0), 3, 3));
    mlc_loader_desc d = mlc_loader_desc_make(images, w->labels, 2);
    mlc_tensor     *sum = mlc_zeros(w->ctx, MLC_F32, mlc_dims0());
    mlc_batch       b;
    d.shuffle = true;
    d.shift = 1;
    w->loader = mlc_loader_create(w->ctx, &d);
    if (w->loader == NULL)
        return made(w, w->loader);
    while (mlc_loader_next(w->loader, &b))
        sum = mlc_add(sum, mlc_mul_scalar(mlc_sum(b.x, mlc_dims0(), false), (double)b.n));
    return keep(w, sum);
}

DO(mlc_loader_create) { return run_loader(w); }
DO(mlc_loader_next)   { return run_loader(w); }
DO(mlc_loader_shuffled)
{
    w->loader = mlc_loader_shuffled(w->ctx, w->x, NULL, 2);
    return made(w, w->loader);
}

DO(mlc_loader_seeded)
{
    w->loader = mlc_loader_seeded(w->ctx, w->x, NULL, 2, 7);
    return made(w, w->loader);
}

DO(mlc_loader_ordered)
{
    w->loader = mlc_loader_ordered(w->ctx, w->x, NULL, 2);
    return made(w, w->loader);
}

/* ---- datasets ------------------------------------------------------------------------------- */

/* Of the copies x and v beside labels: 3 samples of 2 fields.                                  */
static mlc_dataset *three(world *w)
{
    mlc_tensor *const t[2] = {w->x, w->labels};
    return mlc_dataset_tensors(w->ctx, t, 2);
}

/* The fields of sample 1; what was made goes with the scenario.                                */
static mlc_status see_sample(world *w, mlc_dataset *d)
{
    mlc_tensor *field[MLC_MAX_FIELDS];
    if (d == NULL)
        return made(w, d);
    if (w->n_sets < 4)
        w->sets[w->n_sets++] = d;
    const mlc_status st = mlc_dataset_get(w->ctx, d, 1, field);
    return st == MLC_OK ? keep(w, field[0]) : st;
}

static mlc_dataset *over(world *w, mlc_dataset *of)
{
    if (of != NULL && w->n_sets < 4)
        w->sets[w->n_sets++] = of;
    return of;
}

static mlc_status itself(void *user, mlc_sample *s, void *const *in, const int64_t *in_len)
{
    (void)user;
    (void)in_len;
    memcpy(s->dst[0], in[0], 16);
    memcpy(s->dst[1], in[1], 8);
    return MLC_OK;
}

DO(mlc_dataset_tensors) { return see_sample(w, three(w)); }
DO(mlc_dataset_get)     { return see_sample(w, three(w)); }
DO(mlc_dataset_field)
{
    mlc_dataset *d = over(w, three(w));
    return made(w, d ? mlc_dataset_field(w->ctx, d, 0) : NULL);
}

DO(mlc_dataset_create)
{
    mlc_dataset *d = over(w, three(w)), plain;
    if (d == NULL)
        return made(w, d);
    plain = *d;
    plain.release = NULL;
    return see_sample(w, mlc_dataset_create(w->ctx, &plain));
}

DO(mlc_dataset_subset)
{
    mlc_dataset *d = over(w, three(w));
    return d ? see_sample(w, mlc_dataset_subset(w->ctx, d, w->rows)) : made(w, d);
}

DO(mlc_dataset_split)
{
    static const double shares[2] = {0.6, 0.4};
    const mlc_split_rows_desc desc = mlc_split_rows_desc_make(shares, 2);
    mlc_dataset *d = over(w, three(w)), *parts[2];
    if (d == NULL)
        return made(w, d);
    const mlc_status st = mlc_dataset_split(w->ctx, d, &desc, parts);
    over(w, parts[1]);
    return st == MLC_OK ? see_sample(w, parts[0]) : st;
}

DO(mlc_dataset_k_fold)
{
    const mlc_k_fold_desc desc = mlc_k_fold_desc_make(3);
    mlc_dataset *d = over(w, three(w)), *train, *held;
    if (d == NULL)
        return made(w, d);
    const mlc_status st = mlc_dataset_k_fold(w->ctx, d, &desc, 0, &train, &held);
    over(w, held);
    return st == MLC_OK ? see_sample(w, train) : st;
}

DO(mlc_dataset_concat)
{
    mlc_dataset *d = over(w, three(w));
    const mlc_dataset *const both[2] = {d, d};
    return d ? see_sample(w, mlc_dataset_concat(w->ctx, both, 2)) : made(w, d);
}

DO(mlc_dataset_zip)
{
    mlc_dataset *d = over(w, three(w));
    const mlc_dataset *const both[2] = {d, d};
    return d ? see_sample(w, mlc_dataset_zip(w->ctx, both, 2)) : made(w, d);
}

DO(mlc_dataset_map)
{
    mlc_dataset  *d = over(w, three(w));
    mlc_transform map;
    memset(&map, 0, sizeof map);
    map.run = itself;
    return d ? see_sample(w, mlc_dataset_map(w->ctx, d, &map)) : made(w, d);
}

DO(mlc_dataset_cache)
{
    mlc_dataset *d = over(w, three(w));
    return d ? see_sample(w, mlc_dataset_cache(w->ctx, d, NULL)) : made(w, d);
}

DO(mlc_dataset_labels)
{
    mlc_dataset *d = over(w, three(w));
    return d ? see_sample(w, mlc_dataset_labels(w->ctx, d, 1, 3)) : made(w, d);
}

DO(mlc_dataset_npy)   { return see_sample(w, mlc_dataset_npy(w->ctx, in(w, "in.npy"))); }
DO(mlc_dataset_npz)   { return see_sample(w, mlc_dataset_npz(w->ctx, in(w, "in.npz"), "one")); }
DO(mlc_dataset_idx)   { return see_sample(w, mlc_dataset_idx(w->ctx, in(w, "in.idx"))); }
DO(mlc_dataset_idx_images)
{
    return see_sample(w, mlc_dataset_idx_images(w->ctx, in(w, "in.images")));
}
DO(mlc_dataset_mnist)
{
    return see_sample(w, mlc_dataset_mnist(w->ctx, in(w, "in.images"), in(w, "in.labels"), 10));
}
DO(mlc_dataset_cifar)
{
    mlc_dataset *d = mlc_dataset_cifar(w->ctx, in(w, "in.cifar"), 10);
    return made(w, over(w, d));
}
DO(mlc_dataset_safetensors)
{
    return see_sample(w, mlc_dataset_safetensors(w->ctx, in(w, "in.safetensors"), "one"));
}

DO(mlc_dataset_tokens)
{
    const mlc_dataset_tokens_desc d = mlc_dataset_tokens_desc_make(MLC_TOKENS_I32, 4);
    return see_sample(w, mlc_dataset_tokens(w->ctx, in(w, "in.tokens"), &d));
}

DO(mlc_dataset_table)
{
    mlc_dataset_table_desc d = mlc_dataset_table_desc_make("colour");
    d.missing = MLC_MISSING_MEAN;
    w->table = mlc_table_load(w->ctx, in(w, "in.table"), NULL);
    return w->table ? see_sample(w, mlc_dataset_table(w->ctx, w->table, &d)) : made(w, w->table);
}

DO(mlc_dataset_pnm) { return see_sample(w, mlc_dataset_pnm(w->ctx, w->files->dir)); }

/* x as 3 images, beside labels.                                                                */
static mlc_dataset *three_images(world *w)
{
    mlc_tensor *const t[2] = {mlc_reshape(w->x, mlc_dims3(3, 2, 2)), w->labels};
    return t[0] ? mlc_dataset_tensors(w->ctx, t, 2) : NULL;
}

DO(mlc_dataset_augment)
{
    mlc_dataset     *d = over(w, three_images(w));
    mlc_augment_desc desc = mlc_augment_desc_make();
    desc.shift = desc.noise = 1;
    return d ? see_sample(w, mlc_dataset_augment(w->ctx, d, &desc)) : made(w, d);
}

DO(mlc_mixup)
{
    mlc_dataset         *d = over(w, three_images(w));
    const mlc_mixup_desc desc = mlc_mixup_desc_make(3);
    mlc_loader_from_desc from = mlc_loader_from_desc_make(3);
    mlc_collate          collate;
    mlc_batch            b;
    if (d == NULL)
        return made(w, d);
    const mlc_status st = mlc_mixup(w->ctx, d, &desc, &collate);
    if (st != MLC_OK)
        return st;
    from.collate = &collate;
    w->loader = mlc_loader_from(w->ctx, d, &from);
    if (w->loader == NULL || !mlc_loader_next(w->loader, &b))
        return made(w, w->loader);
    return keep(w, mlc_copy(b.y));
}

/* Batches of 2 and 1 rows, drawn by labels.                                                    */
static mlc_status run_loader_from(world *w)
{
    mlc_dataset         *d = over(w, three(w));
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(2);
    mlc_tensor          *sum = mlc_zeros(w->ctx, MLC_F32, mlc_dims0());
    mlc_batch            b;
    desc.labels = w->labels;
    desc.workers = 1;
    w->loader = d ? mlc_loader_from(w->ctx, d, &desc) : NULL;
    if (w->loader == NULL)
        return made(w, w->loader);
    mlc_loader_state at = mlc_loader_position(w->loader);
    at.batch = 1;
    CHECK_EQ(mlc_loader_seek(w->loader, &at), MLC_OK);
    while (mlc_loader_next(w->loader, &b))
        sum = mlc_add(sum, mlc_mul_scalar(mlc_sum(b.x, mlc_dims0(), false), (double)b.n));
    return keep(w, sum);
}

DO(mlc_loader_from)     { return run_loader_from(w); }
DO(mlc_loader_position) { return run_loader_from(w); }
DO(mlc_loader_seek)     { return run_loader_from(w); }

CASE(mlc_csv_load, mlc_csv_load(w->ctx, in(w, "in.csv"), NULL))
CASE(mlc_idx_load, mlc_idx_load(w->ctx, in(w, "in.idx")))

DO(mlc_csv_save)
{
    static const char *const names[3] = {"a", "b,c", "d"};
    return mlc_csv_save(w->w, to(w), names);
}

DO(mlc_idx_save) { return mlc_idx_save(w->w, to(w)); }

DO(mlc_cifar_load)
{
    mlc_tensor *labels = NULL, *x = mlc_cifar_load(w->ctx, in(w, "in.cifar"), 10, &labels);
    if (x == NULL)
        return made(w, x);
    return first_of(keep(w, x), keep(w, labels));
}

static mlc_status run_table(world *w)
{
    w->table = mlc_table_load(w->ctx, in(w, "in.table"), NULL);
    return made(w, w->table);
}

DO(mlc_table_load) { return run_table(w); }

/* The columns: whole numbers, numbers with a gap, text.                                        */
DO(mlc_table_column)
{
    mlc_status st = run_table(w);
    for (int64_t k = 0; k < 3 && st == MLC_OK; k++)
        st = keep(w, mlc_table_column(w->table, k));
    return st;
}

DO(mlc_table_missing)
{
    const mlc_status st = run_table(w);
    return st != MLC_OK ? st : keep(w, mlc_table_missing(w->table, 1));
}

DO(mlc_table_categories)
{
    const mlc_status st = run_table(w);
    if (st != MLC_OK)
        return st;
    const int64_t n = mlc_table_categories(w->table, 2);
    if (n > 0)
        CHECK_EQ(n, 2);
    return n > 0 ? MLC_OK : mlc_ctx_status(w->ctx);
}

DO(mlc_table_category)
{
    mlc_status  st = run_table(w);
    const char *text = st == MLC_OK ? mlc_table_category(w->table, 2, 1) : NULL;
    if (text)
        CHECK_STR(text, "red");
    return made(w, text);
}

/* ---- text ----------------------------------------------------------------------------------- */

static mlc_status run_bytes(world *w)
{
    static const char *const specials[1] = {"<end>"};
    mlc_tokenizer_desc       d = mlc_tokenizer_desc_make();
    d.specials = specials;
    d.n_specials = 1;
    w->tokenizer = mlc_tokenizer_bytes(w->ctx, &d);
    return made(w, w->tokenizer);
}

static mlc_status run_bpe(world *w)
{
    w->tokenizer = mlc_tokenizer_bpe(w->ctx, "tests/golden/text.vocab.json",
                                     "tests/golden/text.merges.txt", NULL);
    return made(w, w->tokenizer);
}

DO(mlc_tokenizer_bytes) { return run_bytes(w); }
DO(mlc_tokenizer_bpe)   { return run_bpe(w); }

DO(mlc_tokenizer_wordpiece)
{
    w->tokenizer = mlc_tokenizer_wordpiece(w->ctx, "tests/golden/text.vocab.txt", NULL);
    return made(w, w->tokenizer);
}

/* Room for a copy without invalid bytes, for a word, for a longer one.                         */
DO(mlc_tokenizer_encode)
{
    char       text[400];
    int64_t    ids[800], n = 0;
    mlc_status st = run_bpe(w);
    memset(text, 'e', sizeof text);
    text[1] = (char)0xFF;
    text[2] = ' ';
    for (size_t k = 10; k <= sizeof text && st == MLC_OK; k += 390) {
        n = mlc_tokenizer_encode(w->tokenizer, text, k, ids, 800);
        st = n < 0 ? mlc_ctx_status(w->ctx) : MLC_OK;
    }
    CHECK(n <= 800);
    for (int64_t i = 0; i < n && n <= 800; i++) w->text = w->text * 31 + (uint64_t)ids[i];
    return st;
}

DO(mlc_tokenizer_tensor)
{
    const mlc_status st = run_bytes(w);
    return st != MLC_OK ? st : keep(w, mlc_tokenizer_tensor(w->tokenizer, "ab<end>", 7));
}

/* Of the tokenizer alone: these take no memory.                                                */
DO(mlc_tokenizer_decode)
{
    const int64_t    ids[3] = {97, 256, 98};
    char             text[8];
    const mlc_status st = run_bytes(w);
    if (st != MLC_OK)
        return st;
    const int64_t calls = w->mem.calls;
    CHECK_EQ(mlc_tokenizer_decode(w->tokenizer, ids, 3, text, sizeof text), 2);
    CHECK_EQ(mlc_tokenizer_piece(w->tokenizer, 98, true, text, sizeof text), 1);
    CHECK_EQ(w->mem.calls, calls);
    return st;
}

/* ---- files ---------------------------------------------------------------------------------- */

static mlc_status keep_list(world *w, mlc_status st, const mlc_named *list, int64_t n)
{
    CHECK_EQ(list != NULL, st == MLC_OK);
    CHECK_EQ(n, st == MLC_OK ? 2 : 0);
    return st != MLC_OK ? st : first_of(keep(w, list[0].tensor), keep(w, list[1].tensor));
}

DO(mlc_safetensors_save)
{
    static const char *const metadata[] = {"key", "value", NULL};
    const mlc_named          list[2] = {{"one", w->w}, {"two \"q\"", w->mask}};
    return mlc_safetensors_save(w->ctx, to(w), list, 2, metadata);
}

DO(mlc_safetensors_load)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_safetensors_load(w->ctx, in(w, "in.safetensors"), &list, &n);
    return keep_list(w, st, list, n);
}

static mlc_status run_open(world *w)
{
    w->file = mlc_safetensors_open(w->ctx, in(w, "in.safetensors"));
    return made(w, w->file);
}

DO(mlc_safetensors_open) { return run_open(w); }

DO(mlc_safetensors_get)
{
    const mlc_status st = run_open(w);
    return st != MLC_OK ? st : keep(w, mlc_safetensors_get(w->file, "two"));
}

DO(mlc_safetensors_view)
{
    mlc_status st = run_open(w);
    if (st == MLC_OK)
        st = keep(w, mlc_safetensors_view(w->file, "one"));
    return st != MLC_OK ? st : keep(w, mlc_safetensors_view(w->file, "two"));
}

static const double     STEPS[2] = {1, 2};
static const mlc_plot_series LOSSES = {"loss", STEPS, STEPS, 2, MLC_PLOT_LINE};
static const mlc_plot   LOSS_CHART = {"loss", NULL, NULL, false, false, &LOSSES, 1};

DO(mlc_plot_write) { return mlc_plot_write(w->ctx, &LOSS_CHART, 1, 1, hash_text, w); }

DO(mlc_plot_save) { return mlc_plot_save(w->ctx, to(w), &LOSS_CHART, 1, 1); }

DO(mlc_sched_plot)
{
    const mlc_sched s = mlc_sched_cosine(10, 0.1);
    return mlc_sched_plot(w->ctx, &s, 12, to(w));
}

DO(mlc_npy_save) { return mlc_npy_save(w->w, to(w)); }

CASE(mlc_npy_load, mlc_npy_load(w->ctx, in(w, "in.npy")))

DO(mlc_npz_save)
{
    const mlc_named list[2] = {{"one", w->w}, {"two", w->mask}};
    return mlc_npz_save(w->ctx, to(w), list, 2);
}

DO(mlc_npz_load)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(w->ctx, in(w, "in.npz"), &list, &n);
    return keep_list(w, st, list, n);
}

DO(mlc_save) { return mlc_save(w->net, to(w)); }
DO(mlc_load) { return mlc_load(w->net, in(w, "net.safetensors")); }

DO(mlc_load_ex)
{
    const mlc_rename renames[1] = {{.from = "*", .to = "*"}};
    mlc_load_desc    d = mlc_load_desc_make();
    d.cast = d.partial = true;
    d.renames = renames;
    d.n_renames = 1;
    return mlc_load_ex(w->net, in(w, "net.safetensors"), &d);
}

/* Of 5 rows b has 4, as many as there are columns. */
DO(mlc_save_ex)
{
    const mlc_rename renames[2] = {{.from = "a", .to = "0.weight", .transpose = true, .parts = 2},
                                   {.from = "b", .to = "0.weight", .part = 1, .parts = 2,
                                    .like = "0.weight"}};
    mlc_save_desc    d = mlc_save_desc_make();
    d.renames = renames;
    d.n_renames = 2;
    return mlc_save_ex(w->net, to(w), &d);
}

static double one_at(void *user, int64_t t) { (void)user; (void)t; return 1; }

/* All are 1 at t = 0, or times what makes them so.                                             */
SCENARIO(schedules, true)
{
    static const int64_t starts[1] = {0};
    mlc_one_cycle_desc   one = mlc_one_cycle_desc_make(9);
    const mlc_cyclic_desc cyclic = mlc_cyclic_desc_make(3, 1);
    mlc_plateau          p = mlc_plateau_make();
    one.start = 1;
    const mlc_sched constant = mlc_sched_constant(1), all[] = {
        mlc_sched_step(3, 0.5), mlc_sched_multi_step(NULL, 0, 0.5), mlc_sched_exponential(0.5),
        mlc_sched_cosine(9, 0), mlc_sched_cosine_restarts(3, 2, 0), mlc_sched_polynomial(9, 2, 0),
        mlc_sched_linear(9, 1, 0), mlc_sched_wsd(1, 2, 3, 0, MLC_CURVE_SQRT),
        mlc_sched_noam(1, 1), mlc_sched_inverse_sqrt(1), mlc_sched_user(one_at, NULL),
        mlc_sched_one_cycle_ex(&one), mlc_sched_cyclic(3, 1), mlc_sched_cyclic_ex(&cyclic),
        mlc_sched_warmup(1, NULL), mlc_sched_sequence(&constant, starts, 1) };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK_NEAR(mlc_sched_at(&all[i], 0), 1, 1e-15);
    const mlc_sched cycle = mlc_sched_one_cycle(10);
    CHECK_NEAR(mlc_sched_at(&cycle, 2), 1, 0);
    CHECK_EQ(mlc_plateau_feed(&p, w->opt, 1), MLC_OK);
    return MLC_OK;
}

/* The state that there is, into the scenario's hash.                                           */
static mlc_status hash_optim(world *w)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(w->opt);
    uint64_t             h = HASH_SEED;
    while (mlc_optim_state_next(&it))
        h = hash_tensor(hash_bytes(h, it.name, strlen(it.name)), it.tensor);
    w->text = h;
    return mlc_ctx_status(w->ctx);
}

DO(mlc_optim_state_iter_make) { return hash_optim(w); }
DO(mlc_optim_state_next)      { return hash_optim(w); }

DO(mlc_optim_save) { return mlc_optim_save(w->opt, to(w)); }
DO(mlc_optim_load)
{
    mlc_status st = mlc_optim_load(w->opt, in(w, "optim.safetensors"));
    return first_of(st, hash_optim(w));
}

DO(mlc_optim_load_ex)
{
    mlc_load_desc d = mlc_load_desc_make();
    d.partial = d.cast = true;
    return mlc_optim_load_ex(w->opt, in(w, "optim.safetensors"), &d);
}

DO(mlc_save_memory)
{
    size_t     n = 0;
    mlc_status st = mlc_save_memory(w->net, NULL, &n, NULL);
    if (st != MLC_OK) return st;
    unsigned char *file = (unsigned char *)malloc(n);
    st = mlc_save_memory(w->net, file, &n, NULL);
    if (st == MLC_OK) w->text = hash_bytes(HASH_SEED, file, n);
    free(file);
    return st;
}

DO(mlc_load_memory)
{
    size_t         n;
    unsigned char *file = get_file(in(w, "net.safetensors"), &n);
    const mlc_status st = mlc_load_memory(w->net, file, n, NULL);
    free(file);
    return st;
}

/* ---- what allocates nothing ----------------------------------------------------------------- */

static void discard(void *user, const char *text, size_t n) { (void)user; (void)text; (void)n; }

/* -- the training loop: without steps, as a step that was made before memory ran out stays -- */

static mlc_status skip_step(void *user, mlc_event e, mlc_fit_state *s)
{
    (void)user; (void)e;
    s->skip = true;
    return MLC_OK;
}

/* What to do with a training. */
enum { WHOLE, PIECES, SAVED, WRITTEN, RESUMED };

static mlc_status save_by_saver(world *w, const mlc_run *run)
{
    mlc_run_saver *saver = mlc_run_saver_create(w->ctx);
    mlc_status     st = made(w, saver);
    if (st == MLC_OK) st = mlc_run_saver_save(saver, to(w), run);
    if (st == MLC_OK) st = mlc_run_saver_wait(saver);
    mlc_run_saver_free(saver);
    return st;
}

static mlc_status fit_with(world *w, int what)
{
    const mlc_callback skip = {"skip", NULL, 1u << MLC_EVENT_STEP_BEGIN, skip_step, NULL, 0, NULL};
    mlc_callback      *list[1];
    mlc_fit_metric     metric = {"accuracy", NULL, true};
    mlc_fit_desc       d = mlc_fit_desc_make(mlc_cross_entropy);
    double             value = 0;
    mlc_optim_zero_grad(w->opt);
    w->loader = mlc_loader_shuffled(w->ctx, w->x, w->labels, 2);
    w->metric = metric.metric = mlc_metric_accuracy(w->ctx);
    list[0] = w->loader && w->metric ? mlc_callback_create(w->ctx, &skip) : NULL;
    if (!list[0]) return made(w, NULL);
    d.validation = w->loader;
    d.metrics = &metric;
    d.callbacks = list;
    d.n_metrics = d.n_callbacks = 1;
    mlc_status st = MLC_OK;
    if (what == WHOLE) st = mlc_fit(w->net, w->opt, w->loader, &d, NULL);
    else if (what != PIECES) {
        mlc_fit_state *s = mlc_fit_begin(w->net, w->opt, w->loader, &d);
        const mlc_run  run = mlc_fit_run(s);
        st = made(w, s);
        if (s && what == SAVED) st = mlc_run_save(w->ctx, to(w), &run);
        if (s && what == WRITTEN) st = save_by_saver(w, &run);
        if (s && what == RESUMED) st = mlc_fit_resume(s, in(w, "run.safetensors"));
        if (s) st = first_of(mlc_fit_end(s, NULL), st);
    } else {
        mlc_fit_state *s = mlc_fit_begin(w->net, w->opt, w->loader, &d);
        st = made(w, s);
        mlc_fit_step(s);
        if (s && st == MLC_OK) value = mlc_fit_loss(s);
        if (s && st == MLC_OK) st = mlc_fit_validate(s);
        if (s && st == MLC_OK) value += mlc_fit_value(s, "val_loss");
        if (s) st = first_of(mlc_fit_end(s, NULL), st);
    }
    mlc_callback_free(w->ctx, list[0]);
    return st != MLC_OK ? st : hash_value(w, value);
}

DO(mlc_fit)             { return fit_with(w, WHOLE); }
DO(mlc_fit_begin)       { return fit_with(w, PIECES); }
DO(mlc_fit_step)        { return fit_with(w, PIECES); }
DO(mlc_fit_end)         { return fit_with(w, PIECES); }
DO(mlc_fit_loss)        { return fit_with(w, PIECES); }
DO(mlc_fit_validate)    { return fit_with(w, PIECES); }
DO(mlc_fit_value)       { return fit_with(w, PIECES); }
DO(mlc_callback_create) { return fit_with(w, WHOLE); }
DO(mlc_fit_run)         { return fit_with(w, SAVED); }
DO(mlc_run_save)        { return fit_with(w, SAVED); }
DO(mlc_run_load)        { return fit_with(w, RESUMED); }
DO(mlc_run_saver_create) { return fit_with(w, WRITTEN); }
DO(mlc_run_saver_save)  { return fit_with(w, WRITTEN); }
DO(mlc_run_saver_wait)  { return fit_with(w, WRITTEN); }
DO(mlc_run_saver_free)  { return fit_with(w, WRITTEN); }
DO(mlc_fit_resume)      { return fit_with(w, RESUMED); }

/* -- a sweep, whose trials take their memory from where it runs out, too -- */

static mlc_status sweep_trial(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    (void)user;
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(3), t->values[0]);
    results[0] = mlc_item(mlc_sum_all(x));
    return mlc_ctx_status(ctx);
}

static mlc_status run_sweep(world *w, bool files)
{
    static const double      v[2] = {0.5, 0.25};
    static const char *const names[1] = {"loss"};
    const mlc_sweep_axis     axis = {"lr", v, 2};
    mlc_sweep_desc           d = mlc_sweep_desc_make(&axis, 1, names, 1);
    mlc_sweep               *s = NULL;
    d.ctx = test_desc();
    d.ctx.threads = 1;
    d.ctx.allocator.user = &w->mem;
    d.ctx.allocator.alloc = memory_alloc;
    d.ctx.allocator.release = memory_release;
    d.workers = 1;
    d.stop = true;
    mlc_status st = mlc_sweep_run(w->ctx, &d, sweep_trial, NULL, &s);
    if (st == MLC_OK) hash_value(w, mlc_sweep_trial(s, 0)->results[0]);
    if (st == MLC_OK) hash_value(w, mlc_sweep_point_at(s, 0)->mean[0]);
    if (st == MLC_OK) st = mlc_sweep_print(s, hash_text, w);
    if (st == MLC_OK && files) st = mlc_sweep_csv(s, to(w));
    mlc_sweep_free(s);
    return st;
}

DO(mlc_sweep_desc_make) { return run_sweep(w, false); }
DO(mlc_sweep_run)       { return run_sweep(w, false); }
DO(mlc_sweep_free)      { return run_sweep(w, false); }
DO(mlc_sweep_trial)     { return run_sweep(w, false); }
DO(mlc_sweep_point_at)  { return run_sweep(w, false); }
DO(mlc_sweep_print)     { return run_sweep(w, false); }
DO(mlc_sweep_csv)       { return run_sweep(w, true); }

static mlc_status run_estimate(world *w)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    mlc_memory              out;
    const mlc_status        st = mlc_estimate_memory(w->net, mlc_dims2(7, 4), &d, &out);
    if (st == MLC_OK)
        w->text = hash_bytes(w->text, &out, sizeof out);
    return st;
}

DO(mlc_estimate_desc_make) { return run_estimate(w); }
DO(mlc_estimate_memory)    { return run_estimate(w); }

DO(mlc_estimate_batches)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    const int64_t           batches[2] = {1, 3};
    mlc_memory              out[2];
    return mlc_estimate_batches(w->net, mlc_dims2(7, 4), &d, batches, 2, out);
}

DO(mlc_estimate_print)
{
    const int64_t batch = 3;
    mlc_memory    out;
    memset(&out, 0, sizeof out);
    return mlc_estimate_print(w->ctx, &batch, 1, &out, hash_text, w);
}

/* The fastest batch, which takes its time, fails in test_memory_plan.c.                        */
DO(mlc_find_batch_size)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    mlc_batch_size_desc     f = mlc_batch_size_desc_make(w->ctx);
    int64_t                 batch = 0;
    f.bytes = 200000;
    f.most = 4;
    const mlc_status st = mlc_find_batch_size(w->net, mlc_dims2(1, 4), &d, &f, &batch);
    w->text = hash_bytes(w->text, &batch, sizeof batch);
    return st;
}

SCENARIO(mlc_batch_size_desc_make, true)
{
    return mlc_batch_size_desc_make(w->ctx).least == 1 ? MLC_OK : MLC_ERR_ARG;
}

DO(mlc_fixed_block_bytes)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    size_t                  bytes = 0;
    if (!mlc_ctx_on_host(w->ctx))
        return MLC_OK;
    const mlc_status st = mlc_fixed_block_bytes(w->net, mlc_dims2(7, 4), &d, &bytes);
    w->text = hash_bytes(w->text, &bytes, sizeof bytes);
    return st;
}

SCENARIO(mlc_machine_memory, true)
{
    (void)w;
    return mlc_machine_memory(NULL) >= 0 ? MLC_OK : MLC_ERR_ARG;
}

SCENARIO(mlc_memory_limit, true) { return mlc_memory_limit(w->ctx) >= 0 ? MLC_OK : MLC_ERR_ARG; }

/* A forward under a timeline. save: its chart, too, which is of what there was before and so is not
 * compared. */
static mlc_status run_timeline(world *w, bool save)
{
    int64_t       now[MLC_MEM_COUNT] = {0};
    mlc_timeline *t = mlc_timeline_begin(w->ctx, 50);
    if (t == NULL)
        return mlc_ctx_status(w->ctx);
    mlc_status st = made(w, mlc_forward(w->net, w->x));
    if (st == MLC_OK) {
        CHECK(mlc_timeline_count(t, NULL) > 0 && mlc_timeline_at(t, 0) != NULL);
        CHECK(mlc_timeline_peak(t, now) != NULL);
        CHECK_EQ(mlc_timeline_end(t), MLC_OK);
        st = save ? mlc_timeline_save(t, to(w)) : mlc_timeline_print(t, 0, discard, NULL);
    }
    mlc_timeline_free(t);
    if (st == MLC_OK && save)
        put_file(to(w), "new", 3);
    return st;
}

DO(mlc_timeline_begin) { return run_timeline(w, false); }
DO(mlc_timeline_end)   { return run_timeline(w, false); }
DO(mlc_timeline_free)  { return run_timeline(w, false); }
DO(mlc_timeline_count) { return run_timeline(w, false); }
DO(mlc_timeline_at)    { return run_timeline(w, false); }
DO(mlc_timeline_peak)  { return run_timeline(w, false); }
DO(mlc_timeline_print) { return run_timeline(w, false); }
DO(mlc_timeline_save)  { return run_timeline(w, true); }

DO(mlc_evaluate)
{
    const mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    double             loss;
    w->loader = mlc_loader_shuffled(w->ctx, w->x, w->labels, 2);
    if (!w->loader) return made(w, NULL);
    const mlc_status st = mlc_evaluate(w->net, w->loader, &d, &loss);
    return st != MLC_OK ? st : hash_value(w, loss);
}

/* One row, so that bits are the same: what runs out has its layers recomputed, or is an error. */
DO(mlc_budget_step)
{
    const mlc_fit_desc d = mlc_fit_desc_make(mlc_mse_loss);
    mlc_module        *part[2] = {mlc_nn_linear(w->ctx, 3, 2), mlc_nn_batch_norm(w->ctx, 2)};
    mlc_module        *m = made_of(mlc_nn_sequential_of(w->ctx, 2, part), 2, part);
    mlc_budget         budget = mlc_budget_make(m);
    mlc_optim         *o = own_module(w, m) ? mlc_sgd(m, 0.1) : NULL;
    mlc_batch          b;
    double             loss = 0;
    memset(&b, 0, sizeof b);
    b.n = 1;
    b.x = o ? mlc_ones(w->ctx, MLC_F32, mlc_dims2(1, 3)) : NULL;
    b.y = b.x ? mlc_ones(w->ctx, MLC_F32, mlc_dims2(1, 2)) : NULL;
    mlc_module_train(m, false);
    const mlc_status st = b.y ? mlc_budget_step(m, o, &b, &d, &budget, &loss)
                              : mlc_ctx_status(w->ctx);
    mlc_optim_free(o);
    return st != MLC_OK ? st : hash_value(w, loss);
}

DO(mlc_budget_make)
{
    return hash_value(w, (double)mlc_budget_make(w->net).parts);
}

DO(mlc_predict)
{
    w->loader = mlc_loader_shuffled(w->ctx, w->x, NULL, 2);
    return w->loader ? keep(w, mlc_predict(w->net, w->loader)) : made(w, NULL);
}

DO(mlc_fit_cross_entropy)
{
    mlc_cross_entropy_desc ce = mlc_cross_entropy_desc_make();
    mlc_batch              b;
    mlc_tensor            *output;
    memset(&b, 0, sizeof b);
    b.x = w->x;
    b.y = w->labels;
    return keep(w, mlc_fit_cross_entropy(&ce, w->net, &b, &output));
}

SCENARIO(types, true)
{
    const int64_t sizes[2] = {1, 2};
    char          text[64];
    CHECK_STR(mlc_version(), MLC_VERSION_STRING);
    CHECK_EQ(mlc_dims0().n + mlc_dims1(1).n + mlc_dims2(1, 2).n + mlc_dims3(1, 2, 3).n +
             mlc_dims4(1, 2, 3, 4).n + mlc_dims_of(2, sizes).n, 12);
    CHECK_EQ(mlc_dtype_bytes(MLC_F64), 8);
    CHECK_STR(mlc_dtype_name(MLC_F32), "f32");
    CHECK(mlc_bf16_to(mlc_bf16_from(1)) + mlc_f16_to(mlc_f16_from(1)) == 2);
    CHECK_STR(mlc_status_name(MLC_OK), "OK");
    CHECK_STR(mlc_isa_name(MLC_ISA_SCALAR), "scalar");
    CHECK_EQ(mlc_dim(w->x, 1) + mlc_numel(w->x), 16);
    CHECK(mlc_is_contiguous(w->x) && mlc_requires_grad(w->x));
    CHECK_STR(mlc_shape_text(w->x, text, sizeof text), "[3,4]");
    if (mlc_ctx_on_host(w->ctx)) {
        CHECK(mlc_f32(w->x) && mlc_i64(w->i) && mlc_bool(w->mask) && mlc_f64(w->d));
        CHECK(!mlc_bf16(w->x) && !mlc_f16(w->x) && !mlc_i32(w->x) && !mlc_i8(w->x));
        CHECK(!mlc_u8(w->x));
        mlc_error_clear(w->ctx);
    }
    return MLC_OK;
}

SCENARIO(contexts, true)
{
    mlc_memory info;
    int32_t n = 0;
    CHECK(mlc_rename_gpt2(&n) && mlc_rename_llama(&n) && mlc_rename_bert(&n) && n > 0);
    CHECK_EQ(mlc_ctx_desc_make().threads, 0);
    CHECK(mlc_gradcheck_desc_make().eps > 0 && mlc_conv_desc_make().groups == 1);
    CHECK(mlc_table_desc_make().header && !mlc_csv_desc_make().header);
    CHECK(mlc_ctx_isa(w->ctx) >= MLC_ISA_SCALAR);
    CHECK_EQ(mlc_ctx_threads(w->ctx), 1);
    CHECK(mlc_ctx_blas(w->ctx) != NULL);
    CHECK_EQ(mlc_ctx_on_host(w->ctx), test_on_host());
    CHECK_EQ(mlc_ctx_sync(w->ctx), MLC_OK);
    CHECK_EQ(mlc_seed(w->ctx, 3), MLC_OK);
    CHECK_EQ(mlc_ctx_set_rng(w->ctx, mlc_ctx_rng(w->ctx)), MLC_OK);
    CHECK_EQ(mlc_raise(w->ctx, MLC_ERR_ARG, "mine"), MLC_ERR_ARG);
    CHECK_STR(mlc_error(w->ctx), "mine");
    CHECK_STATUS(w->ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_memory_info(w->ctx, &info), MLC_OK);
    mlc_memory_peak_reset(w->ctx);
    mlc_memory_trim(w->ctx);
    CHECK_EQ(mlc_scope_begin(w->ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(w->ctx), MLC_OK);
    mlc_stdout(NULL, "", 0);
    CHECK(mlc_cpu_kernels(MLC_ISA_SCALAR) != NULL);
    CHECK(mlc_cpu_rule(MLC_RULE_SGD) != NULL && mlc_cpu_rule(MLC_RULE_COUNT) == NULL);
    CHECK_EQ(mlc_backend_register(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_backend_count("cpu"), 1);
    return MLC_OK;
}

DO(set_threads)
{
    const int32_t    before = mlc_ctx_threads(w->ctx);
    const mlc_status st = mlc_ctx_set_threads(w->ctx, 3);
    if (st != MLC_OK)
        CHECK_EQ(mlc_ctx_threads(w->ctx), before);
    return st;
}

SCENARIO(objects, true)
{
    mlc_param_iter it = mlc_param_iter_make(w->net);
    mlc_progress   p = mlc_progress_make("here", 3, discard, NULL);
    mlc_progress_update(&p, 1, "loss 3");
    CHECK_EQ(it.root == w->net, 1);
    CHECK(mlc_module_user(w->net) != w->net && mlc_module_ctx(w->net) == w->ctx);
    mlc_module_train(w->net, true);
    CHECK(mlc_module_is_training(w->net));
    CHECK_EQ(mlc_optim_set_lr(w->opt, 0.1), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(w->opt), 0.1, 0);
    CHECK_EQ(mlc_optim_steps(w->opt), 0);
    CHECK(isnan(mlc_optim_grad_norm(w->opt)));
    mlc_error_clear(w->ctx);
    mlc_optim_scaler_off(w->opt);
    mlc_scaler_state scaler = mlc_optim_scaler_state(w->opt);
    CHECK_NEAR(scaler.scale, 1, 0);
    CHECK_EQ(mlc_optim_scaler_resume(w->opt, &scaler), MLC_ERR_STATE);
    mlc_error_clear(w->ctx);
    mlc_optim_zero_grad(w->opt);
    mlc_zero_grad(w->leaf_x);
    mlc_no_grad_begin(w->ctx);
    mlc_no_grad_end(w->ctx);
    CHECK(mlc_optim_pending(w->opt) == 0 && !mlc_optim_needs_loss(w->opt));
    CHECK_EQ(mlc_fit_desc_make(mlc_cross_entropy).epochs, 1);
    mlc_callback_free(w->ctx, NULL);
    mlc_module_free(NULL);
    mlc_optim_free(NULL);
    mlc_loader_free(NULL);
    mlc_table_free(NULL);
    mlc_tokenizer_free(NULL);
    CHECK_EQ(mlc_tokenizer_size(NULL), 0);
    CHECK_EQ(mlc_tokenizer_id(NULL, "a"), -1);
    CHECK(mlc_tokenizer_token(NULL, 0, NULL) == NULL);
    mlc_safetensors_close(NULL);
    CHECK_EQ(mlc_loader_batches(NULL), 0);
    mlc_dataset_free(NULL);
    CHECK_EQ(mlc_dataset_count(NULL), 0);
    CHECK_NEAR(mlc_sample_uniform(NULL, 0), 0, 0);
    return MLC_OK;
}

/* Those that read what a load has made.                                                        */
DO(accessors)
{
    mlc_dtype  dtype = MLC_F32;
    mlc_dims   dims = mlc_dims0();
    mlc_status st = first_of(run_table(w), run_open(w));
    if (st != MLC_OK)
        return st;
    const int64_t calls = w->mem.calls;
    CHECK_EQ(mlc_table_rows(w->table), 3);
    CHECK_EQ(mlc_table_columns(w->table), 3);
    CHECK_STR(mlc_table_name(w->table, 2), "colour");
    CHECK_EQ(mlc_table_find(w->table, "colour"), 2);
    CHECK_EQ(mlc_table_type(w->table, 2), MLC_COLUMN_TEXT);
    CHECK_STR(mlc_table_text(w->table, 0, 2), "red");
    CHECK_EQ(mlc_safetensors_count(w->file), 2);
    CHECK_STR(mlc_safetensors_name(w->file, 1), "two");
    CHECK_EQ(mlc_safetensors_info(w->file, "two", &dtype, &dims), MLC_OK);
    CHECK_EQ(dtype, MLC_BOOL);
    CHECK(mlc_safetensors_metadata(w->file, "none") == NULL);
    CHECK_EQ(w->mem.calls, calls);
    return MLC_OK;
}

/* ---- worlds --------------------------------------------------------------------------------- */

static mlc_module *small_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 5));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    return net;
}

static void world_open(world *w, const box *files)
{
    static const double some[12] = {1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0};
    static const double index[12] = {0, 1, 2, 0, 1, 1, 0, 2, 2, 0, 1, 1};
    memset(w, 0, sizeof *w);
    const mlc_ctx_desc d = memory_desc(&w->mem);
    mlc_ctx           *ctx = w->ctx = mlc_ctx_create(&d);
    w->files = files;
    w->leaf_x = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, 0.1, 0.9);
    w->leaf_y = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 2, 0.1, 0.9);
    w->v = test_rand(ctx, MLC_F32, mlc_dims1(4), 3, 0.1, 0.9);
    w->w = mlc_transpose(test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 4, 0.1, 0.9), 0, 1);
    w->m = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 5, 0.1, 0.9);
    w->d = mlc_transpose(test_rand(ctx, MLC_F64, mlc_dims2(2, 2), 6, 0.1, 0.9), 0, 1);
    w->mask = test_tensor(ctx, MLC_BOOL, mlc_dims2(3, 4), some);
    w->mask2 = test_tensor(ctx, MLC_BOOL, mlc_dims2(3, 4), index);
    w->i = test_tensor(ctx, MLC_I64, mlc_dims2(3, 4), index);
    w->rows = test_tensor(ctx, MLC_I64, mlc_dims1(2), index + 1);
    w->labels = test_tensor(ctx, MLC_I64, mlc_dims1(3), index);
    mlc_set_requires_grad(w->leaf_x, true);
    mlc_set_requires_grad(w->leaf_y, true);
    mlc_set_requires_grad(w->d, true);
    w->net = small_net(ctx);
    w->opt = mlc_adamw(w->net, 0.1);
    mlc_scope_begin(ctx);
    mlc_backward(mlc_cross_entropy(mlc_forward(w->net, w->v), mlc_select(w->labels, 0, 1)));
    mlc_scope_end(ctx);
    CHECK_OK(ctx);
}

static void world_close(world *w)
{
    memory_done(&w->mem, w->ctx);
}

/* Everything that a failed call may not change.                                                */
static uint64_t hash_world(world *w)
{
    mlc_tensor *const all[] = {w->leaf_x, w->leaf_y, w->x, w->y, w->v, w->w, w->m, w->d, w->mask,
                               w->mask2, w->i, w->rows, w->labels};
    uint64_t          h = HASH_SEED;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h = hash_tensor(h, all[i]);
    return hash_net(h, w->net);
}

/* What came out: tensors, gradients, parameters, the file that was written.                    */
static uint64_t hash_result(world *w)
{
    uint64_t h = w->text;
    size_t   n = 0;
    for (int i = 0; i < w->n_out; i++)
        h = hash_tensor(h, w->out[i]);
    h = hash_tensor(h, mlc_grad(w->leaf_x));
    h = hash_tensor(h, mlc_grad(w->leaf_y));
    h = hash_net(h, w->net);
    unsigned char *file = get_file(to(w), &n);
    h = hash_bytes(h, file, n);
    free(file);
    return h;
}

/* ---- one run of a scenario ------------------------------------------------------------------ */

static bool old_file_is_there(world *w)
{
    size_t         n = 0;
    unsigned char *file = get_file(to(w), &n);
    const bool     same = file && n == 3 && memcmp(file, "old", 3) == 0;
    free(file);
    return same;
}

/* The call, then backward from its first result. changed: not allowed after the call failed.   */
static mlc_status run_armed(world *w, const scenario *s, uint64_t *before)
{
    w->mem.armed = true;
    mlc_status st = s->run(w);
    w->mem.armed = false;
    if (st != MLC_OK || w->n_out == 0 || !mlc_requires_grad(w->out[0]))
        return st;
    *before = hash_world(w);           /* in-place operations changed x                        */
    mlc_memory_trim(w->ctx);
    w->mem.armed = true;
    st = mlc_backward_from(w->out[0], NULL);
    w->mem.armed = false;
    return st;
}

static void free_objects(world *w)
{
    mlc_optim_free(w->optim);
    mlc_module_free(w->module);
    mlc_loader_free(w->loader);
    while (w->n_sets > 0)
        mlc_dataset_free(w->sets[--w->n_sets]);
    mlc_table_free(w->table);
    mlc_tokenizer_free(w->tokenizer);
    mlc_metric_free(w->metric);
    mlc_metric_free(w->other);
    mlc_tracker_free(w->tracker);
    mlc_safetensors_close(w->file);
    w->optim = NULL;
    w->module = NULL;
    w->loader = NULL;
    w->table = NULL;
    w->tokenizer = NULL;
    w->metric = w->other = NULL;
    w->tracker = NULL;
    w->file = NULL;
}

/* Runs a scenario in a scope of its own; with fail_at > 0 that allocation fails. out: the hash of
 * the result if the status is OK.                                                              */
static mlc_status run(world *w, const scenario *s, int64_t fail_at, bool ever, uint64_t *result)
{
    mlc_seed(w->ctx, 7);
    mlc_scope_begin(w->ctx);
    w->x = mlc_copy(w->leaf_x);
    w->y = mlc_copy(w->leaf_y);
    w->n_out = 0;
    w->text = 0;
    put_file(to(w), "old", 3);
    const int files = box_count(w->files);
    uint64_t  before = hash_world(w);
    mlc_memory_trim(w->ctx);           /* nothing in stock: all comes from the allocator       */
    w->mem.calls = 0;
    w->mem.fail_at = fail_at;
    w->mem.ever = ever;
    w->mem.hit = false;
    const mlc_status st = run_armed(w, s, &before);
    const mlc_status stands = mlc_ctx_status(w->ctx);
    if (st != MLC_OK) {
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK_EQ(stands, MLC_ERR_NOMEM);
        CHECK_HAS(mlc_error(w->ctx), "memory");
        mlc_error_clear(w->ctx);
        CHECK(hash_world(w) == before);
        CHECK(old_file_is_there(w));
    } else {
        CHECK_EQ(stands, MLC_OK);
        *result = hash_result(w);
    }
    mlc_zero_grad(w->leaf_x);
    mlc_zero_grad(w->leaf_y);
    free_objects(w);
    CHECK_EQ(box_count(w->files), files);
    CHECK_EQ(mlc_scope_end(w->ctx), MLC_OK);
    return st;
}

/* But for what is there to be given back.                                                      */
static int64_t allocated(const world *w)
{
    mlc_memory info;
    mlc_memory_trim(w->ctx);
    mlc_memory_info(w->ctx, &info);
    return info.allocated;
}

/* With allocation n failing, in a world of its own. True once there was none to fail.          */
static bool survives(const scenario *s, const box *files, int64_t n, bool ever, uint64_t want)
{
    world         w;
    uint64_t      got = 0;
    const int64_t failures = test_failures();
    world_open(&w, files);
    const mlc_status st = run(&w, s, n, ever, &got);
    const bool       hit = w.mem.hit;
    if (st == MLC_OK)                  /* a spare block did, or none failed                    */
        CHECK(got == want);
    if (st != MLC_OK) {
        if (CHECK_EQ(run(&w, s, 0, false, &got), MLC_OK))
            CHECK(got == want);
        int64_t steady = allocated(&w);
        /* Descriptors of blocks stay in stock: a failure may need some more of them, once.      */
        for (int more = 0; more < 2 && run(&w, s, n, ever, &got) != MLC_OK; more++) {
            if (allocated(&w) == steady)
                break;
            if (more)
                CHECK_EQ(allocated(&w), steady);
            steady = allocated(&w);
        }
    }
    world_close(&w);
    if (test_failures() > failures)
        printf("  %s with allocation %d failing%s\n", s->name, (int)n,
               ever ? " and all later" : "");
    return !hit;
}

#define MOST 400                       /* allocations of a scenario                            */

static void fail_everywhere(const scenario *s, const box *files)
{
    world    w;
    uint64_t want = 0;
    int64_t  n, calls;
    world_open(&w, files);
    CHECK_EQ(run(&w, s, 0, false, &want), MLC_OK);
    calls = w.mem.calls;
    world_close(&w);
    if (s->quiet)
        CHECK_EQ(calls, 0);
    for (int ever = 0; ever < 2; ever++) {
        n = 1;
        while (n < MOST && !survives(s, files, n, ever != 0, want))
            n++;
        CHECK(n == calls + 1);
    }
}

/* Of the training of fit_with, at its begin. */
static void put_run(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    const double    labels[3] = {0, 1, 2};
    mlc_loader     *loader = mlc_loader_shuffled(ctx, mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 4)),
                                                 test_tensor(ctx, MLC_I64, mlc_dims1(3), labels),
                                                 2);
    mlc_fit_metric  metric = {"accuracy", mlc_metric_accuracy(ctx), true};
    mlc_fit_desc    d = mlc_fit_desc_make(mlc_cross_entropy);
    d.validation = loader;
    d.metrics = &metric;
    d.n_metrics = 1;
    mlc_fit_state *s = mlc_fit_begin(net, mlc_adamw(net, 0.1), loader, &d);
    const mlc_run  run = mlc_fit_run(s);
    mlc_run_save(ctx, path, &run);
    mlc_fit_end(s, NULL);
}

static void put_inputs(const box *b)
{
    char              path[340];
    const mlc_ctx_desc d = test_desc();
    mlc_ctx          *ctx = mlc_ctx_create(&d);
    mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 9, -1, 1);
    mlc_tensor       *mask = mlc_lt_scalar(x, 0);
    const mlc_named   list[2] = {{"one", x}, {"two", mask}};
    unsigned char     image[3073] = {4, 5, 6};
    const char       *table = "n,x,colour\n1,0.5,red\n2,,blue\n3,7,red\n";
#define PATH(name) (snprintf(path, sizeof path, "%s/" name, b->dir), path)
    mlc_csv_save(x, PATH("in.csv"), NULL);
    mlc_idx_save(x, PATH("in.idx"));
    mlc_idx_save(mlc_unsqueeze(x, 2), PATH("in.images"));
    mlc_idx_save(mlc_zeros(ctx, MLC_U8, mlc_dims1(5)), PATH("in.labels"));
    mlc_npy_save(mask, PATH("in.npy"));
    mlc_npz_save(ctx, PATH("in.npz"), list, 2);
    mlc_safetensors_save(ctx, PATH("in.safetensors"), list, 2, NULL);
    mlc_module *net = small_net(ctx);
    mlc_save(net, PATH("net.safetensors"));
    mlc_optim_save(mlc_adamw(net, 0.1), PATH("optim.safetensors"));
    put_run(ctx, net, PATH("run.safetensors"));
    put_file(PATH("in.cifar"), image, sizeof image);
    put_file(PATH("in.table"), table, strlen(table));
    put_file(PATH("in.tokens"), image, 64);
    put_file(PATH("1.pgm"), "P5 1 1 255 x", 12);
    put_file(PATH("2.pgm"), "P5 1 1 255 y", 12);
#undef PATH
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
}

TEST(faults, every_function_survives_that_any_of_its_allocations_fails)
{
    const box files = box_open_fast("out");
    put_inputs(&files);
    for (const scenario *s = g_first; s != NULL; s = s->next)
        fail_everywhere(s, &files);
    box_close(&files);
}

/* ---- a whole program ------------------------------------------------------------------------ */

/* Creates, trains, saves, loads, evaluates. What fails is done again when memory is back, and then
 * everything must come out as if nothing had happened.                                         */
typedef struct life {
    memory      mem;
    box         files;
    mlc_ctx    *ctx;
    mlc_loader *loader;
    mlc_module *net, *copy;
    mlc_optim  *opt;
    mlc_batch   batch;
    double      accuracy;
    int         failures;
} life;

typedef mlc_status (*stage_fn)(life *l);

/* Hash of the parameters, taken with memory enough.                                            */
static uint64_t life_hash(life *l, mlc_module *net)
{
    const bool armed = l->mem.armed;
    l->mem.armed = false;
    const uint64_t h = hash_net(1, net);
    l->mem.armed = armed;
    return h;
}

static mlc_status stage_context(life *l)
{
    mlc_ctx_desc d = memory_desc(&l->mem);
    mlc_status   st = MLC_OK;
    d.status = &st;
    l->ctx = mlc_ctx_create(&d);
    CHECK_EQ(l->ctx != NULL, st == MLC_OK);
    if (l->ctx == NULL)
        CHECK_EQ(l->mem.live, 0);
    return st;
}

/* 10 rows of 4: three batches of 4, 4 and 2.                                                   */
static mlc_status stage_data(life *l)
{
    float   x[40];
    int64_t y[10];
    for (int i = 0; i < 40; i++)
        x[i] = (float)test_random(1, i, -1, 1);
    for (int i = 0; i < 10; i++)
        y[i] = x[4 * i] > 0 ? 2 : x[4 * i + 1] > 0;
    mlc_scope_begin(l->ctx);
    mlc_loader_desc d = mlc_loader_desc_make(mlc_from(l->ctx, MLC_F32, mlc_dims2(10, 4), x),
                                             mlc_from(l->ctx, MLC_I64, mlc_dims1(10), y), 4);
    d.shuffle = true;
    l->loader = d.x && d.y ? mlc_loader_create(l->ctx, &d) : NULL;
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_nets(life *l)
{
    mlc_scope_begin(l->ctx);
    l->net = small_net(l->ctx);
    l->copy = small_net(l->ctx);
    const mlc_status st = mlc_scope_end(l->ctx);
    if (st != MLC_OK) {
        mlc_module_free(l->net);
        mlc_module_free(l->copy);
    }
    return st;
}

static mlc_status stage_optim(life *l)
{
    mlc_scope_begin(l->ctx);
    l->opt = mlc_adamw(l->net, 0.05);
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_batch(life *l)
{
    mlc_scope_begin(l->ctx);
    const bool more = mlc_loader_next(l->loader, &l->batch);
    if (!more && mlc_ctx_status(l->ctx) == MLC_OK)
        mlc_loader_next(l->loader, &l->batch);             /* the next epoch                   */
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_step(life *l)
{
    const uint64_t before = life_hash(l, l->net);
    const int64_t  steps = mlc_optim_steps(l->opt);
    mlc_scope_begin(l->ctx);
    mlc_backward(mlc_cross_entropy(mlc_forward(l->net, l->batch.x), l->batch.y));
    mlc_optim_step(l->opt);
    const mlc_status st = mlc_scope_end(l->ctx);
    if (st != MLC_OK) {
        CHECK(life_hash(l, l->net) == before);
        CHECK_EQ(mlc_optim_steps(l->opt), steps);
        mlc_optim_zero_grad(l->opt);
    }
    return st;
}

static mlc_status stage_save(life *l)
{
    mlc_scope_begin(l->ctx);
    mlc_save(l->net, l->files.path);
    const mlc_status st = mlc_scope_end(l->ctx);
    CHECK_EQ(box_count(&l->files), st == MLC_OK ? 1 : 0);
    return st;
}

static mlc_status stage_load(life *l)
{
    mlc_scope_begin(l->ctx);
    const mlc_status st = mlc_module_build(l->copy);
    const uint64_t   before = st == MLC_OK ? life_hash(l, l->copy) : 0;
    const mlc_status loaded = mlc_load(l->copy, l->files.path);
    if (st == MLC_OK && loaded != MLC_OK)
        CHECK(life_hash(l, l->copy) == before);
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_evaluate(life *l)
{
    mlc_scope_begin(l->ctx);
    l->accuracy = mlc_accuracy(mlc_forward(l->copy, l->batch.x), l->batch.y);
    return mlc_scope_end(l->ctx);
}

/* Allocation n fails, for ever: until the failure was seen. Returns a hash of all results.     */
static uint64_t live(int64_t n, bool ever, int64_t *calls, bool *hit)
{
    static const stage_fn stages[] = {stage_context, stage_data, stage_nets, stage_optim,
                                      stage_batch, stage_step, stage_batch, stage_step,
                                      stage_batch, stage_step, stage_batch, stage_step,
                                      stage_save, stage_load, stage_evaluate};
    life l;
    memset(&l, 0, sizeof l);
    l.files = box_open_fast("net.safetensors");
    l.mem.armed = true;
    l.mem.fail_at = n;
    l.mem.ever = ever;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        const mlc_status st = stages[i](&l);
        if (st == MLC_OK)
            continue;
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK(l.mem.hit);
        l.mem.armed = false;
        if (!CHECK_EQ(stages[i](&l), MLC_OK))
            printf("  stage %d does not work again\n", (int)i);
    }
    l.mem.armed = false;
    uint64_t h = hash_net(hash_net(1, l.net), l.copy);
    h = hash_bytes(h, &l.accuracy, sizeof l.accuracy);
    *calls = l.mem.calls;
    *hit = l.mem.hit;
    memory_done(&l.mem, l.ctx);
    box_close(&l.files);
    return h;
}

TEST(faults, a_program_goes_on_after_any_allocation_failed_as_if_it_had_not)
{
    int64_t        calls, ignored;
    bool           hit;
    const uint64_t want = live(0, false, &calls, &hit);
    CHECK(!hit && calls > 50);
    for (int ever = 0; ever < 2; ever++)
        for (int64_t n = 1; n <= calls + 1; n++) {
            if (!CHECK(live(n, ever != 0, &ignored, &hit) == want))
                printf("  with allocation %d failing%s\n", (int)n, ever ? " and all later" : "");
            CHECK_EQ(hit, n <= calls);
        }
}
