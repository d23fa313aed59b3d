/* test_gemm.c -- tests of the kernel gemm: every form against plain sums of products in double
 *
 * Each buffer ends at an unreadable page or, every other time, begins behind one. What is not an
 * element (gaps between rows, memory beside a buffer, c under beta = 0, the workspace) holds NaN:
 * reading it shows, and so does writing it. The kernels are those of the best level, or of
 * MLC_ISA's: run.sh takes all levels in turn. `make soak` crosses the whole cube of sizes with all
 * layouts and sinks, and adds 5,000 large products.
 */
#define _GNU_SOURCE
#include "mlc_test.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- values --------------------------------------------------------------------------------- */

/* Element i of every operand is value (i + its own offset) % POOL of a table, so that a case costs
 * little but its products.                                                                      */
#define POOL 8191

typedef struct pool {
    double        value[POOL];         /* in [-1, 1), rounded to the dtype                       */
    unsigned char raw[POOL * 8];       /* the same as elements                                   */
    bool          ready;
} pool;

static const pool *pool_of(mlc_dtype dtype)
{
    static pool pools[MLC_DTYPE_COUNT];
    pool       *p = &pools[dtype];
    for (int64_t i = 0; !p->ready && i < POOL; i++) {
        const double v = test_random(71, i, -1, 1);
        test_put(p->raw, dtype, i, dtype == MLC_F64 ? v : (double)(float)v);     /* rounds once  */
        p->value[i] = test_get(p->raw, dtype, i);
    }
    p->ready = true;
    return p;
}

/* ---- a case --------------------------------------------------------------------------------- */

typedef enum layout { ROWS, COLUMNS, ROWS_APART, COLUMNS_APART, LAYOUTS } layout;

typedef enum aux { NO_AUX, BEFORE, AFTER } aux;

typedef struct sink {
    double  alpha, beta;
    bool    bias;
    aux     aux;                       /* what the activation meets or makes is wanted, too      */
    mlc_act act;
    double  drop;
    bool    residual;
    mlc_map grad;                      /* MLC_MAP_COPY: none                                     */
} sink;

typedef struct product {
    mlc_dtype dtype, c_dtype, bias_dtype;
    bool      pack;                    /* b is packed first, if the level has packs              */
    bool      a_f32, b_f32;            /* lie in f32, to be rounded                              */
    int64_t   m, n, k, batch;
    layout    a, b, c;
    int64_t   pad;                     /* elements between rows, or columns                      */
    bool      share_a, share_b;        /* one matrix for the whole batch                         */
    bool      at_end;                  /* of the buffer stands the guard page                    */
    sink      sink;
} product;

static const sink SINKS[] = {
    {1, 0, false, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_COPY},
    {1, 0, true, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_COPY},
    {1, 1, false, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_COPY},
    {0.5, 0, false, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_COPY},
    {-1.5, 1, true, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_COPY},
    {1, -0.5, true, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_COPY},
    {1, 0, true, NO_AUX, MLC_ACT_RELU, 0, false, MLC_MAP_COPY},
    {1, 0, true, BEFORE, MLC_ACT_RELU, 0, false, MLC_MAP_COPY},
    {1, 0, false, NO_AUX, MLC_ACT_GELU, 0, false, MLC_MAP_COPY},
    {1, 0, true, BEFORE, MLC_ACT_GELU, 0, false, MLC_MAP_COPY},
    {1, 0, true, NO_AUX, MLC_ACT_TANH, 0, false, MLC_MAP_COPY},
    {0.5, 0, false, BEFORE, MLC_ACT_TANH, 0, false, MLC_MAP_COPY},
    {1, 0, false, AFTER, MLC_ACT_SIGMOID, 0, false, MLC_MAP_COPY},
    {-1, 0, true, NO_AUX, MLC_ACT_SILU, 0, false, MLC_MAP_COPY},
    {1, 0, true, BEFORE, MLC_ACT_SILU, 0.25, false, MLC_MAP_COPY},
    {1, 0, true, AFTER, MLC_ACT_RELU, 0.5, true, MLC_MAP_COPY},
    {1, 0, false, NO_AUX, MLC_ACT_NONE, 0.75, false, MLC_MAP_COPY},
    {-1, 0, true, NO_AUX, MLC_ACT_NONE, 0, true, MLC_MAP_COPY},
    {1, 0, false, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_RELU_GRAD},
    {1, 0, false, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_TANH_GRAD},
    {0.5, 0, true, AFTER, MLC_ACT_TANH, 1, true, MLC_MAP_GELU_GRAD},
    {1, 0, true, BEFORE, MLC_ACT_GELU_TANH, 0, true, MLC_MAP_COPY},
    {1, 0, false, NO_AUX, MLC_ACT_NONE, 0, false, MLC_MAP_GELU_TANH_GRAD},
};
#define N_SINKS ((int)(sizeof SINKS / sizeof *SINKS))

static const mlc_dtype DTYPES[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};

/* Asked for once: a virtual machine takes 30 microseconds for CPUID.                            */
static const mlc_kernels *row(void)
{
    static const mlc_kernels *k;
    if (k == NULL)
        k = mlc_cpu_kernels(test_isa_top());
    return k;
}

/* ---- buffers -------------------------------------------------------------------------------- */

enum { IN_A, IN_B, IN_C, IN_BIAS, IN_AUX, IN_RESIDUAL, IN_GRAD_OF, PACK, WORKSPACE, ROLES };

#define ROOM  ((size_t)32 << 20)
#define FENCE ((size_t)256)            /* bytes watched on the side without a guard page         */

/* Each role has one buffer for the process.                                                     */
static char *guarded(int role, size_t bytes, bool at_end)
{
    static char *buffer[ROLES];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char        *p = buffer[role];
    if (bytes > ROOM - FENCE)
        abort();
    if (p == NULL) {
        p = (char *)mmap(NULL, ROOM + 2 * page, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || mprotect(p + page, ROOM, PROT_READ | PROT_WRITE) != 0)
            abort();
        buffer[role] = p += page;
    }
    p += at_end ? ROOM - bytes : 0;
    memset(at_end ? p - FENCE : p, 0xff, bytes + FENCE);
    return p;
}

static bool fenced(const void *buffer, size_t bytes, bool at_end)
{
    const unsigned char *p = (const unsigned char *)buffer;
    for (size_t i = 0; buffer != NULL && i < FENCE; i++)
        if ((at_end ? p - FENCE : p + bytes)[i] != 0xff)
            return false;
    return true;
}

/* A matrix as it lies in memory, and where its values begin in the pool.                        */
typedef struct matrix {
    mlc_dtype dtype;
    int64_t   row, col, batch, rows, cols, count, from;
    size_t    bytes;                   /* from its first element to its last                     */
} matrix;

static matrix matrix_of(const product *p, mlc_dtype dtype, layout l, int64_t rows, int64_t cols,
                        bool shared, int64_t from)
{
    const int64_t step = l == ROWS_APART || l == COLUMNS_APART ? 2 : 1;
    const bool    turned = l == COLUMNS || l == COLUMNS_APART;
    const int64_t far = ((turned ? rows : cols) + p->pad) * step;
    matrix        x = {dtype, turned ? step : far, turned ? far : step, 0, rows, cols,
                       shared ? 1 : p->batch, from, 0};
    int64_t       last;
    x.batch = shared ? 0 : far * (turned ? cols : rows) + p->pad;
    last = (x.count - 1) * x.batch + (rows - 1) * x.row + (cols - 1) * x.col;
    x.bytes = rows > 0 && cols > 0 ? (size_t)(last + 1) * mlc_dtype_bytes(dtype) : 0;
    return x;
}

static int64_t pool_at(const matrix *x, int64_t b, int64_t i, int64_t j)
{
    return (x->from + ((x->count > 1 ? b : 0) * x->rows + i) * x->cols + j) % POOL;
}

static int64_t place(const matrix *x, int64_t b, int64_t i, int64_t j)
{
    return b * x->batch + i * x->row + j * x->col;
}

static void *matrix_new(const product *p, int role, const matrix *x, bool fill)
{
    const size_t size = mlc_dtype_bytes(x->dtype);
    const pool  *values = pool_of(x->dtype);
    char        *to = guarded(role, x->bytes, p->at_end);
    for (int64_t b = 0; fill && b < x->count; b++)
        for (int64_t i = 0; i < x->rows; i++)
            for (int64_t j = 0; j < x->cols; j++)
                memcpy(to + (size_t)place(x, b, i, j) * size,
                       values->raw + (size_t)pool_at(x, b, i, j) * size, size);
    return to;
}

/* ---- sums of products in double ------------------------------------------------------------- */

#define MOST ((size_t)5 << 18)         /* elements of an operand of a case, over its batch       */

static double ref_a[MOST], ref_b[MOST], ref_sum[MOST], ref_magnitude[MOST];

static void ref_values(const product *p, const matrix *x, double *to)
{
    const pool *values = pool_of(p->dtype);                 /* what lies in f32 is rounded to it */
    if ((double)x->count * (double)x->rows * (double)x->cols > (double)MOST)
        abort();
    for (int64_t b = 0; b < x->count; b++)
        for (int64_t i = 0; i < x->rows; i++)
            for (int64_t j = 0; j < x->cols; j++)
                *to++ = values->value[pool_at(x, b, i, j)];
}

static void ref_row(const double *a, const double *b, int64_t n, int64_t k, double *sum,
                    double *magnitude)
{
    memset(sum, 0, (size_t)n * sizeof *sum);
    memset(magnitude, 0, (size_t)n * sizeof *magnitude);
    for (int64_t q = 0; q < k; q++)
        for (int64_t j = 0; j < n; j++) {
            sum[j] += a[q] * b[q * n + j];
            magnitude[j] += fabs(a[q] * b[q * n + j]);
        }
}

/* Kept from case to case while sizes and values are the same: layouts and sinks do not matter.  */
static void ref_products(const product *p, const matrix *a, const matrix *b)
{
    static product last;
    if (last.dtype == p->dtype && last.m == p->m && last.n == p->n && last.k == p->k &&
        last.batch == p->batch && last.share_a == p->share_a && last.share_b == p->share_b)
        return;
    if ((double)p->batch * (double)p->m * (double)p->n > (double)MOST)
        abort();
    ref_values(p, a, ref_a);
    ref_values(p, b, ref_b);
    for (int64_t r = 0; r < p->batch * p->m; r++)
        ref_row(ref_a + (p->share_a ? r % p->m : r) * p->k,
                ref_b + (p->share_b ? 0 : r / p->m) * p->k * p->n, p->n, p->k,
                ref_sum + r * p->n, ref_magnitude + r * p->n);
    last = *p;
}

static double act_of(mlc_act act, double v)
{
    switch (act) {
    case MLC_ACT_RELU:    return v < 0 ? 0 : v;
    case MLC_ACT_GELU:    return 0.5 * v * (1 + erf(v * 0.70710678118654752));
    case MLC_ACT_TANH:    return tanh(v);
    case MLC_ACT_SIGMOID: return 1 / (1 + exp(-v));
    case MLC_ACT_SILU:    return v / (1 + exp(-v));
    case MLC_ACT_GELU_TANH: return v / (1 + exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)));
    default:              return v;
    }
}

/* Half a unit in the last place of a number near v, as the dtype stores it.                     */
static double storage_error(mlc_dtype dtype, double v)
{
    switch (dtype) {
    case MLC_BF16: return fabs(v) * 0x1p-8;
    case MLC_F16:  return fabs(v) * 0x1p-11 + 0x1p-25;
    default:       return 0;           /* counted among the roundings of the sum                 */
    }
}

/* Every rounding of a sum is at most eps times the magnitudes that it adds up; they are as often
 * up as down, hence the root of their number.                                                   */
static double sum_error(const product *p, double magnitude)
{
    const double eps = p->dtype == MLC_F64 ? 0x1p-52 : 0x1p-23;
    return eps * (2 * sqrt((double)p->k) + 4) *
           (fabs(p->sink.alpha) * magnitude + 1 + fabs(p->sink.beta)) /
           (p->sink.drop < 1 ? 1 - p->sink.drop : 1);
}

/* The derivative that a grad map multiplies by, from what the activation made, or met for gelu. */
static double grad_of(mlc_map grad, double v)
{
    switch (grad) {
    case MLC_MAP_RELU_GRAD: return v > 0;
    case MLC_MAP_TANH_GRAD: return 1 - v * v;
    case MLC_MAP_GELU_GRAD:
        return 0.5 * (1 + erf(v * 0.70710678118654752)) +
               v * 0.39894228040143268 * exp(-0.5 * v * v);
    case MLC_MAP_GELU_TANH_GRAD: {
        const double s = 1 / (1 + exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)));
        return s + v * s * (1 - s) * (1.5957691216057308 + 0.21406444881780073 * v * v);
    }
    default:                return 1;
    }
}

/* What the dropout kernel makes of ones: the mask of element i of a stream.                      */
static const float *mask_of(double p, int64_t n)
{
    static float  mask[1 << 21];
    static double last = -1;
    if (n > (1 << 21))
        abort();
    if (p != last) {
        struct mlc_k_dropout k = {MLC_F32, 0, 1 << 21, mask, mask, 7, 9, NULL, p};
        for (int64_t i = 0; i < 1 << 21; i++)
            mask[i] = 1;
        if (row()->dropout(NULL, &k) != MLC_OK)
            abort();
        last = p;
    }
    return mask;
}

/* ---- one run, and what must have come of it ------------------------------------------------- */

typedef struct run {
    const product    *p;
    matrix            a, b, c;
    struct mlc_k_gemm g;
} run;

/* b goes through the kernel pack; from then on nobody may look at it.                           */
static void pack(run *r, const mlc_kernels *kernels)
{
    struct mlc_k_gemm *g = &r->g;
    struct mlc_k_pack  k = {g->dtype, r->b.dtype, g->n, g->k, g->b, g->b_row, g->b_col,
                            NULL, NULL, NULL};
    const size_t       bytes = kernels->pack_workspace(NULL, &k);
    if (bytes == 0)
        abort();
    k.out = guarded(PACK, (bytes + 63) / 64 * 64, r->p->at_end);
    if (kernels->pack(NULL, &k) != MLC_OK)
        abort();
    g->b = NULL;
    g->b_pack = k.out;
}

static void run_prepare(run *r, const product *p, const mlc_kernels *k)
{
    struct mlc_k_gemm *g = &r->g;
    product            dense = *p;
    const size_t       bias = (size_t)p->n * mlc_dtype_bytes(p->bias_dtype);
    memset(r, 0, sizeof *r);
    r->p = p;
    r->a = matrix_of(p, p->a_f32 ? MLC_F32 : p->dtype, p->a, p->m, p->k, p->share_a, 5);
    r->b = matrix_of(p, p->b_f32 ? MLC_F32 : p->dtype, p->b, p->k, p->n, p->share_b, 4007);
    dense.pad = 0;                     /* dropout numbers the elements of a c that is dense      */
    r->c = p->sink.drop > 0 ? matrix_of(&dense, p->c_dtype, ROWS, p->m, p->n, false, 2003)
                            : matrix_of(p, p->c_dtype, p->c, p->m, p->n, false, 2003);
    g->dtype = p->dtype, g->a_dtype = r->a.dtype, g->b_dtype = r->b.dtype;
    g->c_dtype = p->c_dtype, g->bias_dtype = p->bias_dtype;
    g->act = p->sink.act;
    g->m = p->m, g->n = p->n, g->k = p->k;
    g->batch[0] = g->batch[1] = 1, g->batch[2] = p->batch;
    g->a_row = r->a.row, g->a_col = r->a.col, g->a_batch[2] = r->a.batch;
    g->b_row = r->b.row, g->b_col = r->b.col, g->b_batch[2] = r->b.batch;
    g->c_row = r->c.row, g->c_col = r->c.col, g->c_batch[2] = r->c.batch;
    g->alpha = p->sink.alpha, g->beta = p->sink.beta;
    g->a = matrix_new(p, IN_A, &r->a, true);
    g->b = matrix_new(p, IN_B, &r->b, true);
    g->c = matrix_new(p, IN_C, &r->c, p->sink.beta != 0);
    g->aux = p->sink.aux ? matrix_new(p, IN_AUX, &r->c, false) : NULL;
    g->aux_after = p->sink.aux == AFTER;
    g->residual = p->sink.residual ? matrix_new(p, IN_RESIDUAL, &r->c, true) : NULL;
    g->drop = p->sink.drop, g->drop_seed = 7, g->drop_stream = 9;
    g->grad = p->sink.grad;
    g->grad_of = p->sink.grad != MLC_MAP_COPY ? matrix_new(p, IN_GRAD_OF, &r->c, true) : NULL;
    g->bias = p->sink.bias
                  ? memcpy(guarded(IN_BIAS, bias, p->at_end), pool_of(p->bias_dtype)->raw, bias)
                  : NULL;
    if (p->pack)
        pack(r, k);
    g->workspace_bytes = k->gemm_workspace ? k->gemm_workspace(NULL, g) : 0;
    g->workspace = guarded(WORKSPACE, (g->workspace_bytes + 63) / 64 * 64, p->at_end);
}

static bool element_held(const run *r, int64_t b, int64_t i, int64_t j)
{
    const product *p = r->p;
    const pool    *values = pool_of(p->c_dtype), *biases = pool_of(p->bias_dtype);
    const int64_t  at = place(&r->c, b, i, j), ref = (b * p->m + i) * p->n + j;
    const double   other = values->value[pool_at(&r->c, b, i, j)];  /* of c, residual, grad_of */
    const double   pre = p->sink.alpha * ref_sum[ref] + (p->sink.bias ? biases->value[j] : 0);
    const double   made = act_of(p->sink.act, pre), error = sum_error(p, ref_magnitude[ref]);
    const double   got = test_get(r->g.c, p->c_dtype, at);
    double         want = made, beside = p->sink.aux == AFTER ? made : pre;
    if (p->sink.drop > 0)
        want = mask_of(p->sink.drop, ref + 1)[ref] > 0 ? want / (1 - p->sink.drop) : 0;
    want += (p->sink.beta + p->sink.residual) * other;
    want *= grad_of(p->sink.grad, other);
    if (fabs(got - want) <= error + storage_error(p->c_dtype, want) &&
        (r->g.aux == NULL || fabs(test_get(r->g.aux, p->c_dtype, at) - beside) <=
                                 error + storage_error(p->c_dtype, beside)))
        return true;
    printf("  [%" PRId64 ",%" PRId64 ",%" PRId64 "] is %.9g, want %.9g +- %.2g", b, i, j, got,
           want, error + storage_error(p->c_dtype, want));
    if (r->g.aux != NULL)
        printf(", aux is %.9g, want %.9g", test_get(r->g.aux, p->c_dtype, at), beside);
    printf("\n");
    return false;
}

/* What lies between the elements of c or aux is as it was: all ones. Elements are counted, gaps are
 * what has these bits; a result may not be this very NaN.                                       */
static bool gaps_held(const run *r, const void *x)
{
    const size_t size = mlc_dtype_bytes(r->c.dtype);
    int64_t      written = 0;
    for (size_t i = 0; x != NULL && i < r->c.bytes; i += size) {
        uint64_t bits = UINT64_MAX;
        memcpy(&bits, (const char *)x + i, size);
        written += bits != UINT64_MAX;
    }
    return x == NULL || written == r->p->batch * r->p->m * r->p->n;
}

static bool run_held(const run *r)
{
    const product *p = r->p;
    ref_products(p, &r->a, &r->b);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                if (!element_held(r, b, i, j))
                    return false;
    return gaps_held(r, r->g.c) && gaps_held(r, r->g.aux) &&
           fenced(r->g.c, r->c.bytes, p->at_end) && fenced(r->g.aux, r->c.bytes, p->at_end) &&
           fenced(r->g.workspace, (r->g.workspace_bytes + 63) / 64 * 64, p->at_end);
}

static bool product_held(const product *p)
{
    run  r;
    bool held;
    run_prepare(&r, p, row());
    held = row()->gemm(NULL, &r.g) == MLC_OK && run_held(&r);
    if (!held)
        printf("  gemm %s%s%s to %s%s m %" PRId64 " n %" PRId64 " k %" PRId64 " batch %" PRId64
               " a %d%s b %d%s"
               " c %d pad %" PRId64 " alpha %g beta %g bias %d act %d aux %d drop %g residual %d"
               " grad %d at %s\n",
               mlc_dtype_name(p->dtype), p->a_f32 ? ", a f32" : "", p->b_f32 ? ", b f32" : "",
               mlc_dtype_name(p->c_dtype), p->pack ? " packed" : "",
               p->m, p->n, p->k, p->batch, p->a,
               p->share_a ? " shared" : "", p->b, p->share_b ? " shared" : "", p->c, p->pad,
               p->sink.alpha, p->sink.beta, p->sink.bias, p->sink.act, p->sink.aux, p->sink.drop,
               p->sink.residual, p->sink.grad,
               p->at_end ? "end" : "start");
    return held;
}

/* Of 16-bit products some operands, results and biases are f32, and b may be packed first.       */
static product product_in(product p, mlc_dtype dtype, int64_t dice)
{
    const bool half = dtype == MLC_BF16 || dtype == MLC_F16;
    struct mlc_k_pack k = {dtype, dtype, p.n, p.k, NULL, 1, 1, NULL, NULL, NULL};
    p.dtype = dtype;
    p.c_dtype = half && dice % 3 == 0 ? MLC_F32 : dtype;
    p.bias_dtype = half && dice % 2 == 0 ? MLC_F32 : p.c_dtype;
    p.pack = p.batch == 1 && dice / 3 % 2 == 0 && row()->pack_workspace(NULL, &k) > 0;
    p.a_f32 = half && dice / 12 % 3 == 0;
    p.b_f32 = half && dice / 6 % 2 == 0;
    return p;
}

/* A form for these sizes that the seed picks; half of them in f32.                              */
static product product_drawn(int64_t m, int64_t n, int64_t k, int64_t seed)
{
    product p;
    int64_t dice[8];
    for (int64_t i = 0; i < 8; i++)
        dice[i] = (int64_t)test_random(72, seed * 8 + i, 0, 5040);
    memset(&p, 0, sizeof p);
    p.m = m, p.n = n, p.k = k;
    p.batch = dice[1] % 6 == 0 ? 3 : 1;
    p.share_a = p.batch > 1 && dice[1] / 6 % 4 == 0;
    p.share_b = p.batch > 1 && dice[1] / 6 % 4 == 1;
    p.a = (layout)(dice[2] % LAYOUTS);
    p.b = (layout)(dice[3] % LAYOUTS);
    p.c = (layout)(dice[4] % 3);
    p.pad = dice[5] % 2 ? 0 : dice[5] / 2 % 4;
    p.at_end = dice[6] % 3 != 0;
    p.sink = SINKS[dice[7] % N_SINKS];
    return product_in(p, dice[0] % 2 ? MLC_F32 : DTYPES[dice[0] / 2 % 4], dice[0] / 8);
}

/* ---- the cube of sizes ---------------------------------------------------------------------- */

static const int64_t SIZES[] = {1,  2,  3,  5,  7,  8,  15, 16, 17,
                                31, 32, 33, 47, 48, 63, 64, 65, 70};
#define N_SIZES ((int64_t)(sizeof SIZES / sizeof *SIZES))

static product cube_drawn(int64_t at, int64_t seed)
{
    return product_drawn(SIZES[at % N_SIZES], SIZES[at / N_SIZES % N_SIZES],
                         SIZES[at / N_SIZES / N_SIZES], seed);
}

/* Each triple of sizes once, each time in another form.                                         */
TEST(gemm, of_all_triples_of_18_sizes_is_the_sum_of_products)
{
    for (int64_t i = 0; i < N_SIZES * N_SIZES * N_SIZES; i += test_stride(11)) {
        product p = cube_drawn(i, i);
        if (!CHECK(product_held(&p)))
            return;
    }
}

/* Each layout of a, b and c with each sink, at the sizes of one triple.                         */
static bool forms_held(int64_t m, int64_t n, int64_t k, mlc_dtype dtype)
{
    const int forms = LAYOUTS * LAYOUTS * 3 * N_SINKS;
    for (int f = 0; f < forms; f += (int)test_stride(17)) {
        product p = product_drawn(m, n, k, f);
        p.batch = 1;
        p = product_in(p, dtype, f / 7);
        p.share_a = p.share_b = false;
        p.sink = SINKS[f % N_SINKS];
        p.a = (layout)(f / N_SINKS % LAYOUTS);
        p.b = (layout)(f / N_SINKS / LAYOUTS % LAYOUTS);
        p.c = (layout)(f / N_SINKS / LAYOUTS / LAYOUTS);
        if (!product_held(&p))
            return false;
    }
    return true;
}

TEST(gemm, takes_every_layout_with_every_sink)
{
    static const int64_t at[][3] = {{3, 5, 7}, {17, 33, 31}, {1, 70, 60}, {70, 1, 60}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++)
            if (!CHECK(forms_held(at[i][0], at[i][1], at[i][2], DTYPES[d])))
                return;
}

/* ---- larger ones ---------------------------------------------------------------------------- */

/* One size at an edge of a block or a tile, or one beside it, the others small: in all places.   */
TEST(gemm, at_the_edges_of_blocks)
{
    static const int64_t edge[] = {14, 28, 32, 96, 256, 384, 512, 1024, 2048};
    static const int64_t small[] = {1, 4, 9, 14, 15, 29, 33, 41};
    for (int64_t i = 0; i < 27 * 4; i++) {
        const int64_t large = edge[i / 3 % 9] + i / 27 % 3 - 1;
        const int64_t x = small[i * 5 / 3 % 8], y = small[i * 7 / 3 % 8];
        product       p = i % 3 == 0   ? product_drawn(large, x, y, i)
                          : i % 3 == 1 ? product_drawn(x, large, y, i)
                                       : product_drawn(x, y, large, i);
        if (!CHECK(product_held(&p)))
            return;
    }
}

TEST(gemm, of_shapes_that_fill_blocks_in_two_directions)
{
    static const int64_t at[][3] = {
        {257, 513, 14}, {14, 513, 257},  {385, 31, 513}, {129, 255, 257}, {391, 33, 20},
        {29, 65, 517},  {16, 31, 1025},  {6, 16, 257},   {14, 32, 256},   {5, 530, 300},
        {1, 1025, 513}, {1025, 1, 513},  {1, 1, 5000},   {8, 3, 4097},    {16, 32, 1024},
        {2, 1023, 65},  {1023, 2, 65},   {17, 1024, 16}, {1024, 17, 16},  {3, 515, 9},
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int64_t form = 0; form < 3; form++) {
            product p = product_drawn(at[i][0], at[i][1], at[i][2], (int64_t)i * 3 + form + 500);
            p.batch = 1;
            if (!CHECK(product_held(&p)))
                return;
        }
}

/* So many rows that b is packed as a whole first, and work enough to be read past L1; k in parts
 * of a block, and in several blocks, with 16-bit results.                                       */
TEST(gemm, of_bf16_with_many_rows_or_a_long_k)
{
    static const int64_t at[][3] = {
        {1130, 50, 1100}, {3, 40, 8200}, {33, 20, 16500}, {2, 70, 16500}, {33, 33, 513},
        {70, 70, 1057}, {150, 33, 1030}, {65, 64, 8800}};
    for (int64_t i = 0; i < 8 * LAYOUTS; i++) {
        const int64_t *size = at[i / LAYOUTS];
        product        p = product_drawn(size[0], size[1], size[2], i + 900);
        p.batch = 1;
        p.b = (layout)(i % LAYOUTS);
        p = product_in(p, MLC_BF16, i * 4 + 1);
        if (!CHECK(product_held(&p)))
            return;
    }
}

/* Each number of rows and of columns up to past two tiles, deep enough to be worth packing.      */
TEST(gemm, tiles_of_every_height_and_width)
{
    for (int64_t m = 1; m <= 33; m++)
        for (int64_t form = 0; form < 8; form++) {
            const int64_t n = 15 + form % 4 + form / 4 * 16, k = 1 + 18000 / (m * n);
            product       p = product_drawn(form % 2 ? m : n, form % 2 ? n : m, k, m * 8 + form);
            p.a = form % 4 < 2 ? ROWS_APART : COLUMNS;     /* neither dots nor sums of rows      */
            p.b = form % 4 < 2 ? ROWS_APART : COLUMNS_APART;
            if (!CHECK(product_held(&p)))
                return;
        }
}

TEST(gemm, of_no_inner_elements_is_the_bias)
{
    for (int64_t i = 0; i < 4 * N_SINKS; i++) {
        product p = product_drawn(1 + i % 5, 5 + i % 3, 0, i);
        p.sink = SINKS[i % N_SINKS];
        if (!CHECK(product_held(&p)))
            return;
    }
}

TEST(gemm, of_no_rows_columns_or_products_touches_nothing)
{
    for (int64_t i = 0; i < 3; i++) {
        product p = product_drawn(7, 9, 11, 1);
        run     r;
        run_prepare(&r, &p, row());
        r.g.m = i == 0 ? 0 : 7;
        r.g.n = i == 1 ? 0 : 9;
        r.g.batch[2] = i == 2 ? 0 : 1;
        r.g.a = r.g.b = r.g.b_pack = NULL;
        CHECK_EQ(row()->gemm(NULL, &r.g), MLC_OK);
    }
}

/* ---- three axes of products ------------------------------------------------------------------ */

/* Heads, as attention permutes them: a [1][m][2][0][k], b [0][2][k][n] without axis 1, c and aux
 * [0][m][1][2][n]. In one call, or in one for each pair of the outer axes.                      */
typedef struct axes {
    mlc_dtype dtype, c_dtype;
    int64_t   m, n, k, batch[3];
    mlc_act   act;
} axes;

static void axes_call(const axes *p, struct mlc_k_gemm g, int64_t i, int64_t j)
{
    const size_t in = mlc_dtype_bytes(p->dtype), out = mlc_dtype_bytes(p->c_dtype);
    const size_t c_at = (size_t)(i * g.c_batch[0] + j * g.c_batch[1]) * out;
    g.a = (const char *)g.a + (size_t)(i * g.a_batch[0] + j * g.a_batch[1]) * in;
    g.b = (const char *)g.b + (size_t)(i * g.b_batch[0] + j * g.b_batch[1]) * in;
    g.c = (char *)g.c + c_at;
    g.aux = g.aux ? (char *)g.aux + c_at : NULL;
    g.workspace_bytes = row()->gemm_workspace(NULL, &g);
    g.workspace = guarded(WORKSPACE, (g.workspace_bytes + 63) / 64 * 64, true);
    CHECK_EQ(row()->gemm(NULL, &g), MLC_OK);
    CHECK(fenced(g.workspace, (g.workspace_bytes + 63) / 64 * 64, true));
}

static bool axes_held(const axes *p)
{
    const int64_t m = p->m, n = p->n, k = p->k, *batch = p->batch;
    const int64_t all = batch[0] * batch[1] * batch[2];
    const size_t  bytes = (size_t)(all * m * n) * mlc_dtype_bytes(p->c_dtype);
    char         *made[4] = {malloc(bytes), malloc(bytes), malloc(bytes), malloc(bytes)};
    struct mlc_k_gemm g = {0};
    g.dtype = g.a_dtype = g.b_dtype = p->dtype, g.c_dtype = g.bias_dtype = p->c_dtype;
    g.m = m, g.n = n, g.k = k, g.alpha = 0.5, g.act = p->act;
    g.a_col = 1, g.a_batch[0] = k, g.a_batch[2] = batch[0] * k;
    g.a_row = batch[2] * g.a_batch[2], g.a_batch[1] = m * g.a_row;
    g.b_col = 1, g.b_row = n, g.b_batch[2] = k * n, g.b_batch[0] = batch[2] * k * n;
    g.c_col = 1, g.c_batch[2] = n, g.c_batch[1] = batch[2] * n;
    g.c_row = batch[1] * g.c_batch[1], g.c_batch[0] = m * g.c_row;
    char *a = guarded(IN_A, (size_t)(all * m * k) * mlc_dtype_bytes(p->dtype), true);
    char *b = guarded(IN_B, (size_t)(all / batch[1] * k * n) * mlc_dtype_bytes(p->dtype), true);
    for (int64_t i = 0; i < all * m * k; i++)
        test_put(a, p->dtype, i, test_random(5, i, -1, 1));
    for (int64_t i = 0; i < all / batch[1] * k * n; i++)
        test_put(b, p->dtype, i, test_random(6, i, -1, 1));
    for (int i = 0; i < 4; i++)
        memset(made[i], 0xff, bytes);
    g.a = a, g.b = b, g.c = made[0], g.aux = p->act ? made[1] : NULL;
    memcpy(g.batch, batch, sizeof g.batch);
    axes_call(p, g, 0, 0);
    g.c = made[2], g.aux = p->act ? made[3] : NULL;
    g.batch[0] = g.batch[1] = 1;
    for (int64_t i = 0; i < batch[0]; i++)
        for (int64_t j = 0; j < batch[1]; j++)
            axes_call(p, g, i, j);
    const bool held = memcmp(made[0], made[2], bytes) == 0 && memcmp(made[1], made[3], bytes) == 0;
    if (!held)
        printf("  %s to %s m %" PRId64 " n %" PRId64 " k %" PRId64 " act %d\n",
               mlc_dtype_name(p->dtype), mlc_dtype_name(p->c_dtype), m, n, k, (int)p->act);
    for (int i = 0; i < 4; i++)
        free(made[i]);
    return held;
}

/* Products with no tiles, small ones that have them as many, large ones, and a long k.         */
TEST(gemm, of_three_axes_is_a_call_for_each_of_the_outer_to_the_bit)
{
    static const int64_t at[][3] = {{5, 4, 3}, {9, 17, 20}, {33, 40, 64}, {40, 33, 1030},
                                    {3, 70, 33}, {64, 32, 32}};
    for (size_t i = 0; i < 5 * 6; i++) {
        const int64_t *size = at[i / 5];
        const axes     p = {i % 5 == 4 ? MLC_BF16 : DTYPES[i % 5],
                            i % 5 == 4 ? MLC_F32 : DTYPES[i % 5],
                            size[0], size[1], size[2], {2, 3, 4},
                            i % 2 ? MLC_ACT_NONE : MLC_ACT_SILU};
        if (!CHECK(axes_held(&p)))
            return;
    }
}

/* Word i of dropout is of element i of all of c, also where products go through copies.          */
TEST(gemm, of_three_axes_drops_what_one_axis_drops)
{
    for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
        const axes        p = {DTYPES[d], DTYPES[d], 20, 24, 40, {1, 1, 1}, MLC_ACT_NONE};
        const size_t      size = mlc_dtype_bytes(p.dtype), bytes = 6 * 20 * 24 * size;
        char             *one = guarded(IN_C, bytes, true), *three = guarded(IN_AUX, bytes, true);
        struct mlc_k_gemm g = {0};
        char             *a = guarded(IN_A, 6 * 20 * 40 * size, true);
        char             *b = guarded(IN_B, 6 * 40 * 24 * size, true);
        for (int64_t i = 0; i < 6 * 20 * 40; i++)
            test_put(a, p.dtype, i, test_random(7, i, -1, 1));
        for (int64_t i = 0; i < 6 * 40 * 24; i++)
            test_put(b, p.dtype, i, test_random(8, i, -1, 1));
        g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = p.dtype;
        g.m = 20, g.n = 24, g.k = 40, g.alpha = 1, g.drop = 0.5, g.drop_seed = 3;
        g.a = a, g.a_row = 40, g.a_col = 1, g.a_batch[2] = 20 * 40;
        g.b = b, g.b_row = 24, g.b_col = 1, g.b_batch[2] = 40 * 24;
        g.c = one, g.c_row = 24, g.c_col = 1, g.c_batch[2] = 20 * 24;
        g.batch[0] = g.batch[1] = 1, g.batch[2] = 6;
        axes_call(&p, g, 0, 0);
        g.c = three;
        g.batch[0] = 3, g.batch[1] = 1, g.batch[2] = 2;
        g.a_batch[0] = 2 * 20 * 40, g.b_batch[0] = 2 * 40 * 24, g.c_batch[0] = 2 * 20 * 24;
        axes_call(&p, g, 0, 0);
        CHECK(memcmp(one, three, bytes) == 0);
    }
}

/* ---- zero strides: operands that were expanded ---------------------------------------------- */

/* All rows, or all columns, of a (or b) are one: the product repeats along them.                */
static bool repeats(mlc_dtype dtype, int64_t m, int64_t n, int64_t k, int which)
{
    product p = product_drawn(m, n, k, which);
    run     r;
    double  sum = 0, magnitude = 0;
    p.batch = 1;
    p = product_in(p, dtype, 4);
    p.pack = p.a_f32 = p.b_f32 = false;
    p.sink = SINKS[0];
    run_prepare(&r, &p, row());
    *(which == 0 ? &r.g.a_row : which == 1 ? &r.g.a_col : which == 2 ? &r.g.b_row : &r.g.b_col) = 0;
    r.g.workspace_bytes = row()->gemm_workspace ? row()->gemm_workspace(NULL, &r.g) : 0;
    r.g.workspace = guarded(WORKSPACE, (r.g.workspace_bytes + 63) / 64 * 64, p.at_end);
    if (row()->gemm(NULL, &r.g) != MLC_OK)
        return false;
    for (int64_t at = 0; at < m * n; at++, sum = magnitude = 0) {
        const int64_t i = at / n, j = at % n;
        double        got = test_get(r.g.c, dtype, place(&r.c, 0, i, j));
        for (int64_t q = 0; q < k; q++) {
            double v = test_get(r.g.a, dtype, i * r.g.a_row + q * r.g.a_col) *
                       test_get(r.g.b, dtype, q * r.g.b_row + j * r.g.b_col);
            sum += v;
            magnitude += fabs(v);
        }
        if (!(fabs(got - sum) <= sum_error(&p, magnitude) + storage_error(dtype, sum)))
            return false;
    }
    return true;
}

TEST(gemm, takes_zero_strides)
{
    static const int64_t at[][3] = {{3, 5, 7}, {33, 47, 31}, {1, 70, 300}, {70, 1, 300},
                                    {5, 70, 90}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int which = 0; which < 4; which++)
            for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++)
                if (!CHECK(repeats(DTYPES[d], at[i][0], at[i][1], at[i][2], which)))
                    return;
}

/* ---- numbers that are none ------------------------------------------------------------------ */

static const double SPECIAL[] = {0, -0.0, INF, -INF, NO_NUMBER, 1, -1};

/* A fifth of rows 1, 4, 7.. of a is special, and a seventh of columns 2, 7, 12.. of b.           */
static void put_special(const run *r, int64_t seed)
{
    const product *p = r->p;
    for (int64_t i = 1; i < p->m; i += 3)
        for (int64_t q = seed % 5; q < p->k; q += 5)
            test_put((void *)(uintptr_t)r->g.a, p->dtype, place(&r->a, 0, i, q),
                     SPECIAL[(i + q + seed) % 7]);
    for (int64_t j = 2; j < p->n; j += 5)
        for (int64_t q = seed % 7; q < p->k; q += 7)
            test_put((void *)(uintptr_t)r->g.b, p->dtype, place(&r->b, 0, q, j),
                     SPECIAL[(j + q + seed) % 7]);
}

static double special_element(const run *r, int64_t i, int64_t j, double *magnitude)
{
    const product *p = r->p;
    double         sum = 0;
    for (int64_t q = 0; q < p->k; q++) {
        double v = test_get(r->g.a, p->dtype, place(&r->a, 0, i, q)) *
                   test_get(r->g.b, p->dtype, place(&r->b, 0, q, j));
        sum += v;
        *magnitude += fabs(v);
    }
    return sum;
}

/* NaN for NaN, infinity for infinity, and nothing of either in rows and columns that have none.  */
static bool special_held(int64_t m, int64_t n, int64_t k, int64_t seed)
{
    static const mlc_act acts[] = {MLC_ACT_NONE, MLC_ACT_RELU, MLC_ACT_TANH, MLC_ACT_SIGMOID};
    product p = product_drawn(m, n, k, seed);
    run     r;
    p.batch = 1;
    p.pack = p.a_f32 = p.b_f32 = false;
    p.sink = SINKS[seed % 2];
    p.sink.act = acts[seed % 4];
    run_prepare(&r, &p, row());
    put_special(&r, seed);
    if (row()->gemm(NULL, &r.g) != MLC_OK)
        return false;
    for (int64_t at = 0; at < m * n; at++) {
        double magnitude = 0, sum = special_element(&r, at / n, at % n, &magnitude);
        double bias = p.sink.bias ? pool_of(p.bias_dtype)->value[at % n] : 0;
        double want = act_of(p.sink.act, sum + bias);
        double got = test_get(r.g.c, p.c_dtype, place(&r.c, 0, at / n, at % n));
        double error = isfinite(sum) ? sum_error(&p, magnitude) : 0x1p-23;
        if (got == want || fabs(got - want) <= error + storage_error(p.c_dtype, want) ||
            (isnan(got) && isnan(want)))
            continue;
        printf("  %s %" PRId64 " %" PRId64 " %" PRId64 ", seed %" PRId64 ": element %" PRId64
               " is %g, want %g\n", mlc_dtype_name(p.dtype), m, n, k, seed, at, got, want);
        return false;
    }
    return true;
}

TEST(gemm, of_nan_and_infinity_is_as_ieee_says)
{
    static const int64_t at[][3] = {{1, 1, 1},    {5, 7, 3},    {15, 33, 9},   {29, 35, 40},
                                    {1, 70, 300}, {70, 1, 300}, {33, 31, 520}, {2, 40, 64}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int64_t seed = 0; seed < 16; seed++)
            if (!CHECK(special_held(at[i][0], at[i][1], at[i][2], seed)))
                return;
}

TEST(gemm, adds_what_is_no_number_in_c_if_beta_is_not_zero)
{
    for (int64_t i = 0; i < 24; i++) {
        product p = product_drawn(1 + i * 3, 40 - i, 30 + i, i);
        run     r;
        bool    held = true;
        p.batch = 1;
        p.sink = SINKS[2];
        run_prepare(&r, &p, row());
        for (int64_t at = 0; at < p.m * p.n; at += 3)
            test_put(r.g.c, p.c_dtype, place(&r.c, 0, at / p.n, at % p.n),
                     at % 2 ? NO_NUMBER : INF);
        CHECK_EQ(row()->gemm(NULL, &r.g), MLC_OK);
        for (int64_t at = 0; at < p.m * p.n; at++) {
            double got = test_get(r.g.c, p.c_dtype, place(&r.c, 0, at / p.n, at % p.n));
            held = held && (at % 3 ? isfinite(got) : at % 2 ? isnan(got) : isinf(got) && got > 0);
        }
        CHECK(held);
    }
}

/* ---- threads -------------------------------------------------------------------------------- */

/* The elements of all, one tensor after the other.                                              */
static size_t bytes_of(mlc_tensor *const *all, int n, char *out, size_t room)
{
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)mlc_numel(all[i]) * mlc_dtype_bytes(all[i]->dtype);
        if (CHECK(bytes > 0 && used + bytes <= room) &&
            CHECK_EQ(mlc_read(all[i], out + used, bytes), MLC_OK))
            used += bytes;
    }
    return used;
}

/* A layer forward and back, and a plain product, by so many threads; the bytes of all results.  */
static size_t layer_bytes(int32_t threads, int64_t m, int64_t n, int64_t k, char *out, size_t room)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    mlc_tensor  *x, *w, *b, *y, *all[5];
    size_t       used;
    d.threads = threads;
    ctx = mlc_ctx_create(&d);
    x = test_rand(ctx, MLC_F32, mlc_dims2(m, k), 1, -1, 1);
    w = test_rand(ctx, MLC_F32, mlc_dims2(n, k), 2, -1, 1);
    b = test_rand(ctx, MLC_F32, mlc_dims1(n), 3, -1, 1);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(w, true);
    mlc_set_requires_grad(b, true);
    y = mlc_linear(x, w, b);
    mlc_backward(mlc_mean(mlc_tanh(y), mlc_dims0(), false));
    all[0] = y, all[1] = mlc_grad(x), all[2] = mlc_grad(w), all[3] = mlc_grad(b);
    all[4] = mlc_matmul(mlc_grad(x), mlc_transpose(mlc_grad(w), 0, 1));
    CHECK_OK(ctx);
    used = bytes_of(all, 5, out, room);
    mlc_ctx_free(ctx);
    return used;
}

TEST(gemm, bits_do_not_depend_on_the_number_of_threads)
{
    static const int64_t at[][3] = {{32, 512, 784}, {128, 256, 392}, {128, 512, 512},
                                    {32, 255, 513}, {256, 192, 193}, {257, 257, 257},
                                    {128, 64, 1024}, {128, 16, 512}, {1, 512, 784}, {3, 1000, 300}};
    static char one[(size_t)5 << 20], more[(size_t)5 << 20];
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        const size_t used = layer_bytes(1, at[i][0], at[i][1], at[i][2], one, sizeof one);
        for (int32_t threads = 2; threads <= 3; threads++) {
            CHECK_EQ(layer_bytes(threads, at[i][0], at[i][1], at[i][2], more, sizeof more), used);
            if (!CHECK(memcmp(one, more, used) == 0))
                printf("  %" PRId64 " x %" PRId64 " x %" PRId64 " with %d threads\n", at[i][0],
                       at[i][1], at[i][2], (int)threads);
        }
    }
}

/* Three products of one batch, once b, once a being one matrix for all; all results' bytes.     */
static size_t batch_bytes(int32_t threads, mlc_dtype dtype, const int64_t *at, char *out,
                          size_t room)
{
    const int64_t m = at[0], n = at[1], k = at[2];
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx;
    mlc_tensor  *a, *b, *all[4];
    size_t       used;
    d.threads = threads;
    ctx = mlc_ctx_create(&d);
    a = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims3(3, m, k), 1, -1, 1), dtype);
    b = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(k, n), 2, -1, 1), dtype);
    mlc_set_requires_grad(a, true);
    mlc_set_requires_grad(b, true);
    all[0] = mlc_matmul(a, b);
    mlc_backward(mlc_sum(mlc_mul(all[0], all[0]), mlc_dims0(), false));
    all[1] = mlc_grad(a), all[2] = mlc_grad(b);
    all[3] = mlc_matmul(mlc_select(a, 0, 1), mlc_expand(b, mlc_dims3(3, k, n)));
    CHECK_OK(ctx);
    used = bytes_of(all, 4, out, room);
    mlc_ctx_free(ctx);
    return used;
}

TEST(gemm, bits_of_batches_do_not_depend_on_the_number_of_threads)
{
    static const mlc_dtype dtypes[3] = {MLC_F32, MLC_F64, MLC_BF16};
    static const int64_t at[][3] = {{5, 7, 9}, {17, 33, 65}, {64, 100, 130}, {3, 40, 5000},
                                    {40, 3, 4500}, {130, 20, 70}, {70, 40, 1100}};
    static char one[(size_t)5 << 20], more[(size_t)5 << 20];
    for (size_t i = 0; i < 3 * (sizeof at / sizeof *at); i++) {
        const int64_t *size = at[i / 3];
        const size_t   used = batch_bytes(1, dtypes[i % 3], size, one, sizeof one);
        for (int32_t threads = 2; threads <= 8; threads += threads == 3 ? 5 : 1) {
            CHECK_EQ(batch_bytes(threads, dtypes[i % 3], size, more, sizeof more), used);
            if (!CHECK(memcmp(one, more, used) == 0))
                printf("  3 x %" PRId64 " x %" PRId64 " x %" PRId64 " %s with %d threads\n",
                       size[0], size[1], size[2], mlc_dtype_name(dtypes[i % 3]), (int)threads);
        }
    }
}

/* ---- signs ---------------------------------------------------------------------------------- */

/* Philox4x32-10 once more, from the paper: word w of block (row, column / 128), stream 9.       */
static uint32_t sign_word(uint64_t seed, uint32_t row, uint32_t column)
{
    uint32_t c[4] = {column / 128, row, 9, 0}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        const uint64_t p = UINT64_C(0xD2511F53) * c[0], q = UINT64_C(0xCD9E8D57) * c[2];
        const uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q,
                                  (uint32_t)(p >> 32) ^ c[3] ^ k[1], (uint32_t)p};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
    return c[column / 32 % 4];
}

typedef struct signed_product {
    mlc_dtype dtype;
    bool      turned, stored, apart;   /* stored: as bits; apart: columns of b are dense          */
    int64_t   m, n, k, rows;
} signed_product;

/* Sums of whole numbers: every way of adding gives the same. words: of a row of signs.          */
static double signed_want(const signed_product *p, const char *a, const char *b, int64_t i,
                          int64_t x, const uint32_t *bits, int64_t words)
{
    double sum = 0;
    for (int64_t q = 0; q < p->k; q++) {
        double v;
        if (q < p->rows) {
            const int64_t row = p->turned ? x : q, column = p->turned ? q : x;
            v = bits[row * words + column / 32] >> column % 32 & 1 ? -1 : 1;
        } else {
            v = test_get(b, p->dtype,
                         p->apart ? x * p->k + q - p->rows : (q - p->rows) * p->n + x);
        }
        sum += test_get(a, p->dtype, i * p->k + q) * v;
    }
    return sum;
}

static bool signed_held(const signed_product *p, bool at_end)
{
    const uint64_t seed = UINT64_C(0x123456789ABCDEF);
    const int64_t  count = p->turned ? p->n : p->rows, length = p->turned ? p->rows : p->n;
    const int64_t  words = (length + 31) / 32;
    const size_t   size = mlc_dtype_bytes(p->dtype);
    const size_t   b_count = (size_t)(p->apart ? p->n * p->k - p->rows : (p->k - p->rows) * p->n);
    char          *a = guarded(IN_A, (size_t)(p->m * p->k) * size, at_end);
    char          *b = guarded(IN_B, b_count * size, at_end);
    char          *c = guarded(IN_C, (size_t)(p->m * p->n) * size, at_end);
    char          *bits = guarded(IN_BIAS, (size_t)(count * words) * 4, at_end);
    struct mlc_k_gemm g = {0};
    for (int64_t i = 0; i < p->m * p->k; i++)
        test_put(a, p->dtype, i, (double)(i * 7 % 11 - 5));
    for (int64_t i = 0; i < (int64_t)b_count; i++)
        test_put(b, p->dtype, i, (double)(i * 5 % 7 - 3));
    for (int64_t i = 0; i < count * words; i++) {
        const uint32_t w = sign_word(seed, (uint32_t)(i / words), (uint32_t)(i % words * 32));
        memcpy(bits + 4 * i, &w, 4);
    }
    memset(c, 0xff, (size_t)(p->m * p->n) * size);
    g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = g.bias_dtype = p->dtype;
    g.m = p->m, g.n = p->n, g.k = p->k, g.alpha = 1;
    g.batch[0] = g.batch[1] = g.batch[2] = 1;
    g.a = a, g.a_row = p->k, g.a_col = 1;
    g.b = b_count ? b : NULL, g.b_row = p->apart ? 1 : p->n, g.b_col = p->apart ? p->k : 1;
    g.c = c, g.c_row = p->n, g.c_col = 1;
    g.signs.rows = p->rows, g.signs.turned = p->turned, g.signs.stream = 9;
    if (p->stored)
        g.signs.bits = (const uint32_t *)(void *)bits, g.signs.bits_row = words,
        g.signs.bits_rows = count;
    else
        g.signs.seed = seed;
    g.workspace_bytes = row()->gemm_workspace(NULL, &g);
    g.workspace = guarded(WORKSPACE, (g.workspace_bytes + 63) / 64 * 64, at_end);
    bool held = row()->gemm(NULL, &g) == MLC_OK;
    for (int64_t i = 0; held && i < p->m; i++)
        for (int64_t x = 0; x < p->n; x++) {
            const double want = signed_want(p, a, b, i, x, (const uint32_t *)(void *)bits, words);
            const double got = test_get(c, p->dtype, i * p->n + x);
            held = held && fabs(got - want) <= storage_error(p->dtype, want);
        }
    if (!held)
        printf("  signs %s%s%s m %" PRId64 " n %" PRId64 " k %" PRId64 " of them %" PRId64 "\n",
               mlc_dtype_name(p->dtype), p->turned ? " turned" : "", p->stored ? " stored" : "",
               p->m, p->n, p->k, p->rows);
    return held && fenced(c, (size_t)(p->m * p->n) * size, at_end) &&
           fenced(g.workspace, (g.workspace_bytes + 63) / 64 * 64, at_end);
}

/* Row and column decide a sign, wherever the operand is cut: sizes about words, panels, chunks. */
TEST(gemm, of_signs_that_are_nowhere)
{
    static const int64_t sizes[][4] = {{1, 1, 1, 1}, {1, 33, 5, 2}, {5, 16, 32, 32}, {4, 7, 3, 3},
                                       {3, 31, 70, 64}, {33, 70, 65, 64}, {128, 64, 129, 128},
                                       {7, 1030, 40, 32}, {6, 12, 1100, 1100}, {2, 45, 2080, 2048},
                                       {40, 300, 96, 32}, {17, 2100, 3, 3}, {13, 97, 1025, 1025}};
    const size_t every = (size_t)test_stride(7);
    for (size_t i = 0; i < 64 * (sizeof sizes / sizeof *sizes); i += every) {
        const int64_t  *at = sizes[i / 64];
        signed_product  p = {DTYPES[i % 4], i / 4 % 2, i / 8 % 2, i / 16 % 2,
                             at[0], at[1], at[2], at[3]};
        if ((p.dtype == MLC_BF16 || p.dtype == MLC_F16) && p.rows % 32)
            p.k = p.rows;
        if (!CHECK(signed_held(&p, i / 32 % 2)))
            return;
    }
}

TEST(gemm, of_signs_refuses_what_it_cannot)
{
    float             x[64 * 64] = {0};
    struct mlc_k_gemm g = {0};
    g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = g.bias_dtype = MLC_F32;
    g.m = g.n = g.k = 8, g.alpha = 1;
    g.batch[0] = g.batch[1] = g.batch[2] = 1;
    g.a = g.b = x, g.c = x + 1024;
    g.a_row = g.b_row = g.c_row = 8, g.a_col = g.b_col = g.c_col = 1;
    g.signs.rows = 9;                  /* more than k                                            */
    CHECK_EQ(row()->gemm(NULL, &g), MLC_ERR_UNSUPPORTED);
    g.signs.rows = 4, g.batch[2] = 2;
    CHECK_EQ(row()->gemm(NULL, &g), MLC_ERR_UNSUPPORTED);
    g.batch[2] = 1;
    g.dtype = g.a_dtype = g.b_dtype = MLC_BF16;            /* the rest begins in a cell       */
    CHECK_EQ(row()->gemm(NULL, &g), MLC_ERR_UNSUPPORTED);
}

/* ---- make soak ------------------------------------------------------------------------------ */

TEST(gemm, soak_of_the_whole_cube)
{
    for (int64_t i = 0; i < (test_soak() ? N_SIZES * N_SIZES * N_SIZES : 1); i++)
        for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
            const product p = cube_drawn(i, i);
            if (!CHECK(forms_held(p.m, p.n, p.k, DTYPES[d])))
                return;
        }
}

/* Sizes whose logarithm is uniform: as many of 8 to 16 as of 512 to 1024.                       */
TEST(gemm, soak_of_large_products)
{
    for (int64_t i = 0; i < (test_soak() ? 5000 : 5); i++) {
        int64_t size[3];
        product p;
        for (int64_t d = 0; d < 3; d++)
            size[d] = (int64_t)exp2(test_random(73, 3 * i + d, 3, 10.1));
        p = product_drawn(size[0], size[1], size[2], i);
        p.batch = 1;
        if (!CHECK(product_held(&p)))
            return;
    }
}
