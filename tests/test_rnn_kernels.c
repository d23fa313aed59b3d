/* test_rnn_kernels.c -- tests of section IMPL.KERNELS.RNN_TILES
 *
 * Kernels of all levels against the definition, which the scalar level has, in arrays that end
 * where their pages do; and bits for any number of threads.
 */
#ifndef _DEFAULT_SOURCE
#  define _DEFAULT_SOURCE
#endif
#include "mlc_test.h"

#if defined(__unix__) || defined(__APPLE__)
#  include <sys/mman.h>
#  include <unistd.h>
#endif
#if !defined(MAP_ANONYMOUS) && defined(MAP_ANON)
#  define MAP_ANONYMOUS MAP_ANON
#endif

typedef enum rows_of { ALL, LENGTHS, PACKED } rows_of;

typedef struct kernel_case {
    mlc_rnn_kind kind;
    int64_t      b, t, h, p;           /* p: h without a projection                            */
    rows_of      rows;
    bool         reverse, time_first, bias, peep, states, accumulate;
} kernel_case;

static const kernel_case CASES[] = {
    {MLC_RNN_TANH, 1, 1, 1, 1, ALL, false, false, false, false, false, false},
    {MLC_RNN_TANH, 5, 4, 70, 70, LENGTHS, true, false, true, false, true, true},
    {MLC_RNN_TANH, 2, 3, 150, 150, ALL, false, true, true, false, true, false},
    {MLC_RNN_RELU, 9, 3, 33, 33, PACKED, false, false, true, false, true, false},
    {MLC_RNN_RELU, 3, 5, 16, 16, LENGTHS, true, true, false, false, false, true},
    {MLC_RNN_GRU, 1, 3, 40, 40, ALL, false, false, true, false, true, false},
    {MLC_RNN_GRU, 17, 5, 21, 21, LENGTHS, false, true, true, false, true, true},
    {MLC_RNN_GRU, 40, 2, 64, 64, ALL, true, false, true, false, false, false},
    {MLC_RNN_GRU, 6, 7, 8, 8, PACKED, true, false, true, false, true, true},
    {MLC_RNN_GRU, 4, 3, 70, 70, LENGTHS, true, false, false, false, true, false},
    {MLC_RNN_LSTM, 1, 4, 64, 64, ALL, false, false, true, false, true, false},
    {MLC_RNN_LSTM, 3, 4, 20, 20, LENGTHS, true, true, true, false, true, true},
    {MLC_RNN_LSTM, 33, 3, 66, 66, LENGTHS, false, false, true, false, true, false},
    {MLC_RNN_LSTM, 16, 6, 8, 8, ALL, false, true, true, false, false, true},
    {MLC_RNN_LSTM, 8, 9, 32, 32, PACKED, false, false, true, false, true, false},
    {MLC_RNN_LSTM, 35, 2, 96, 96, ALL, true, false, false, false, true, true},
    {MLC_RNN_LSTM, 7, 5, 34, 34, LENGTHS, true, false, true, true, true, true},
    {MLC_RNN_LSTM, 5, 4, 37, 18, LENGTHS, false, false, true, true, true, true},
    {MLC_RNN_LSTM, 19, 3, 70, 35, PACKED, true, false, true, false, true, false},
    {MLC_RNN_LSTM, 2, 5, 24, 5, ALL, false, true, false, false, false, false},
    {MLC_RNN_LSTM, 4, 0, 9, 9, ALL, false, false, true, false, true, false},
    {MLC_RNN_GRU, 0, 4, 9, 9, LENGTHS, false, false, true, false, true, false},
};

enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

/* Arrays; those from Y to MORE and from DX on are results. */
enum { X, W, BIAS, PROJECT, PEEP, H0, C0, DY, DHN, DCN, Y, HN, CN, GATES, MORE, DX, DH0, DC0, DW,
       DBIAS, DPROJECT, DPEEP, SPACE, PARTS };

static const char *const NAMES[] = {"x", "w", "bias", "project", "peep", "h0", "c0", "dy", "dhn",
                                    "dcn", "y", "hn", "cn", "gates", "more", "dx", "dh0", "dc0",
                                    "dw", "dbias", "dproject", "dpeep"};

static int64_t gates_of(const kernel_case *c)
{
    return c->kind == MLC_RNN_LSTM ? 4 : c->kind == MLC_RNN_GRU ? 3 : 1;
}

static int64_t length_of(const kernel_case *c, int64_t s)
{
    return c->rows == ALL ? c->t : (s * 5 + c->t / 2) % (c->t + 1);
}

/* Rows of x: packed, one more than the sequences have. */
static int64_t rows_in(const kernel_case *c)
{
    int64_t n = 1;
    for (int64_t s = 0; s < c->b; s++) n += length_of(c, s);
    return c->rows == PACKED ? n : c->b * c->t;
}

enum { Y_GAP = 3 };

/* Elements of an array; 0: there is none. */
static int64_t size_of(const kernel_case *c, int part)
{
    const int64_t rows = rows_in(c), n = gates_of(c) * c->h, b = c->b;
    const bool    lstm = c->kind == MLC_RNN_LSTM, kept = c->kind >= MLC_RNN_GRU;
    switch (part) {
        case X: case DX: return rows * n;
        case GATES: return kept ? rows * n : 0;
        case MORE: return kept ? rows * c->h : 0;
        case W: case DW: return n * c->p;
        case BIAS: case DBIAS: return c->bias ? n : 0;
        case PROJECT: case DPROJECT: return c->p != c->h ? c->p * c->h : 0;
        case PEEP: case DPEEP: return c->peep ? 3 * c->h : 0;
        case Y: case DY: return rows ? (rows - 1) * (c->p + Y_GAP) + c->p : 0;
        case HN: return b * c->p;
        case CN: return lstm ? b * c->h : 0;
        case H0: case DHN: case DH0: return c->states ? b * c->p : 0;
        default: return lstm && c->states ? b * c->h : 0;
    }
}

static bool of_weights(int part)
{
    return part == W || part == BIAS || part == PROJECT || part == PEEP || part >= DW;
}

/* The dtype of an array: c is f32 beside 16 bits. */
static mlc_dtype dtype_of(int part, mlc_dtype dtype, mlc_dtype w)
{
    if (of_weights(part)) return w;
    if (part != C0 && part != DCN && part != CN && part != DC0) return dtype;
    return dtype == MLC_F64 ? MLC_F64 : MLC_F32;
}

static char *at_page_end(int which, size_t bytes)
{
    static char *room[PARTS];
    const size_t size = which == SPACE ? 1 << 24 : 1 << 20;
    if (room[which] == NULL) {
#if defined(_WIN32)
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

/* An array, filled from a formula whose values f32 has; NULL if the case has none. */
static char *array(const kernel_case *c, int part, mlc_dtype dtype)
{
    const int64_t n = size_of(c, part);
    char         *x = at_page_end(part, (size_t)n * mlc_dtype_bytes(dtype));
    const float   by = part == W || part == PROJECT ? 1.5f / (1.0f + 0.1f * (float)c->p) : 1.0f;
    for (int64_t i = 0; i < n; i++)
        test_put(x, dtype, i, (double)(by * ((float)((i * 37 + part * 11) % 101) / 50.0f - 1.0f)));
    return n ? x : NULL;
}

static void take_workspace(void **workspace, size_t *bytes, size_t need)
{
    *workspace = at_page_end(SPACE, (need + 63) / 64 * 64);
    *bytes = need;
    memset(*workspace, 0xff, need);
}

static void take_arrays(const kernel_case *c, mlc_dtype dtype, mlc_dtype w,
                        struct mlc_k_rnn_grad *g, char **x)
{
    struct mlc_k_rnn *a = &g->f;
    for (int part = X; part < SPACE; part++) x[part] = array(c, part, dtype_of(part, dtype, w));
    a->x = x[X]; a->w = x[W]; a->bias = x[BIAS]; a->project = x[PROJECT]; a->peep = x[PEEP];
    a->h0 = x[H0]; a->c0 = x[C0]; a->y = x[Y]; a->hn = x[HN]; a->cn = x[CN];
    a->gates = x[GATES]; a->more = x[MORE];
    g->dy = x[DY]; g->dhn = x[DHN]; g->dcn = x[DCN]; g->dx = x[DX]; g->dh0 = x[DH0];
    g->dc0 = x[DC0]; g->dw = x[DW]; g->dbias = x[DBIAS]; g->dproject = x[DPROJECT];
    g->dpeep = x[DPEEP];
}

static void take_case(const kernel_case *c, mlc_dtype dtype, mlc_dtype w,
                      struct mlc_k_rnn_grad *g, int64_t *rows)
{
    struct mlc_k_rnn *a = &g->f;
    a->kind = c->kind;
    a->dtype = dtype;
    a->w_dtype = w;
    a->b = c->b; a->t = c->rows == PACKED ? rows_in(c) : c->t; a->h = c->h; a->p = c->p;
    a->row[0] = c->time_first ? 1 : c->t;
    a->row[1] = c->time_first ? c->b : 1;
    a->reverse = c->reverse;
    a->y_row = g->dy_row = c->p + Y_GAP;
    for (int64_t s = 0, all = 0; s <= c->b; s++) {
        rows[s] = c->rows == PACKED ? all : length_of(c, s);
        all += s < c->b ? length_of(c, s) : 0;
    }
    if (c->rows == LENGTHS) a->lengths = rows;
    if (c->rows == PACKED) a->offsets = rows;
    g->dx_accumulate = g->dw_accumulate = g->dpeep_accumulate = g->dc0_accumulate = c->accumulate;
    g->dbias_accumulate = g->dh0_accumulate = g->dproject_accumulate = c->accumulate;
}

/* What is read and written of the case's arrays by both kernels of a level; results as doubles. */
static void run_level(mlc_isa isa, mlc_dtype dtype, mlc_dtype w, const kernel_case *c,
                      bool infer, double *out)
{
    const mlc_kernels    *kernels = mlc_cpu_kernels(isa);
    struct mlc_k_rnn_grad g;
    struct mlc_k_rnn     *a = &g.f;
    int64_t               rows[64], error[4] = {0};
    char                 *x[PARTS];
    memset(&g, 0, sizeof g);
    take_case(c, dtype, w, &g, rows);
    take_arrays(c, dtype, w, &g, x);
    a->error = error;
    if (infer) a->gates = a->more = NULL;
    take_workspace(&a->workspace, &a->workspace_bytes, kernels->rnn_workspace(NULL, a));
    CHECK_EQ(kernels->rnn(NULL, a), MLC_OK);
    CHECK_EQ(error[0], 0);
    if (!infer) {
        take_workspace(&g.workspace, &g.workspace_bytes, kernels->rnn_grad_workspace(NULL, &g));
        CHECK_EQ(kernels->rnn_grad(NULL, &g), MLC_OK);
    }
    for (int part = Y; part < SPACE; part++)
        for (int64_t i = 0; i < size_of(c, part); i++)
            *out++ = test_get(x[part], dtype_of(part, dtype, w), i);
}

/* The numbers of a level against those wanted, array by array; gates past a length are nobody's. */
static void compare(const kernel_case *c, const double *want, const double *got, double tolerance,
                    const char *what, int k, int isa)
{
    for (int part = Y; part < SPACE; part++) {
        const int64_t n = size_of(c, part);
        double        most = 0, size = 1;
        for (int64_t i = 0; i < n; i++) {
            const double off = want[i] == got[i] ? 0 : fabs(want[i] - got[i]);
            if (!(off <= most)) most = off;
            size = fmax(size, fabs(want[i]));
        }
        if (!CHECK(most <= tolerance * size))
            printf("  case %d, %s, level %d, %s: off by %g of %g\n", k, what, isa, NAMES[part],
                   most, size);
        want += n;
        got += n;
    }
}

TEST(rnn_kernels, all_levels_are_near_the_definition_and_stay_in_their_arrays)
{
    static const struct { mlc_dtype dtype, w, definition; double error; const char *what; } runs[] =
        {{MLC_F32, MLC_F32, MLC_F64, 1e-5, "f32"},
         {MLC_BF16, MLC_BF16, MLC_BF16, 0.02, "bf16"},
         {MLC_BF16, MLC_F32, MLC_BF16, 0.02, "bf16 with f32"},
         {MLC_F16, MLC_F16, MLC_F16, 0.003, "f16"},
         {MLC_F16, MLC_F32, MLC_F16, 0.003, "f16 with f32"},
         {MLC_F64, MLC_F64, MLC_F64, 0, "f64"}};
    static double want[1 << 20], got[1 << 20];
    for (int k = 0; k < CASE_COUNT; k++)
        for (int t = 0; t < 6; t++) {
            const mlc_dtype w = runs[t].w == runs[t].dtype ? runs[t].definition : runs[t].w;
            const bool      infer = (k + t) % 3 == 0;
            if (t > 0 && (k + t) % test_stride(3) != 0) continue;
            run_level(MLC_ISA_SCALAR, runs[t].definition, w, &CASES[k], infer, want);
            for (int isa = MLC_ISA_SCALAR; isa <= (int)test_isa_top(); isa++) {
                if (mlc_cpu_kernels((mlc_isa)isa) == NULL) continue;
                run_level((mlc_isa)isa, runs[t].dtype, runs[t].w, &CASES[k], infer, got);
                compare(&CASES[k], want, got, runs[t].error, runs[t].what, k, isa);
            }
        }
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct thread_case {
    mlc_rnn_kind kind;
    int64_t      b, t, h;
    bool         lengths;
} thread_case;

/* A few sequences, whose units are shared; groups of sequences, and both. */
static const thread_case THREADED[] = {
    {MLC_RNN_LSTM, 1, 3, 256, false}, {MLC_RNN_GRU, 3, 4, 192, true},
    {MLC_RNN_LSTM, 37, 3, 40, true},  {MLC_RNN_GRU, 64, 2, 48, false},
    {MLC_RNN_LSTM, 9, 3, 200, true},  {MLC_RNN_GRU, 12, 3, 224, false},
    {MLC_RNN_TANH, 12, 3, 320, true},
};

enum { THREADED_COUNT = sizeof THREADED / sizeof *THREADED, LEAVES = 4 };

/* y and all gradients in one row of f64. */
static mlc_tensor *all_of(mlc_ctx *ctx, const thread_case *c, mlc_dtype dtype)
{
    const int64_t n = (c->kind == MLC_RNN_LSTM ? 4 : c->kind == MLC_RNN_GRU ? 3 : 1) * c->h;
    double        lengths[64];
    mlc_tensor   *leaf[LEAVES], *out[3], *row[LEAVES + 1];
    mlc_rnn_desc  d = mlc_rnn_desc_make(c->kind);
    leaf[0] = test_rand(ctx, dtype, mlc_dims3(c->b, c->t, n), 1, -1, 1);
    leaf[1] = test_rand(ctx, dtype, mlc_dims2(n, c->h), 2, -0.2, 0.2);
    leaf[2] = d.bias = test_rand(ctx, dtype, mlc_dims1(n), 3, -1, 1);
    leaf[3] = d.h = test_rand(ctx, dtype, mlc_dims2(c->b, c->h), 4, -1, 1);
    for (int i = 0; i < LEAVES; i++) CHECK_EQ(mlc_set_requires_grad(leaf[i], true), MLC_OK);
    for (int64_t s = 0; s < c->b; s++) lengths[s] = (double)((s * 5 + 2) % (c->t + 1));
    if (c->lengths) d.lengths = test_tensor(ctx, MLC_I64, mlc_dims1(c->b), lengths);
    CHECK_EQ(mlc_rnn(leaf[0], leaf[1], &d, out), MLC_OK);
    mlc_tensor *y = mlc_cast(out[0], MLC_F32), *end = mlc_cast(out[1], MLC_F32);
    CHECK_EQ(mlc_backward(mlc_add(mlc_sum_all(mlc_mul(y, y)), mlc_sum_all(mlc_mul(end, end)))),
             MLC_OK);
    row[LEAVES] = out[0];
    for (int i = 0; i < LEAVES; i++) row[i] = mlc_grad(leaf[i]);
    for (int i = 0; i <= LEAVES; i++)
        row[i] = mlc_reshape(mlc_cast(mlc_detach(row[i]), MLC_F64), mlc_dims1(mlc_numel(row[i])));
    return mlc_concat(row, LEAVES + 1, 0);
}

static double *numbers_of(const thread_case *c, mlc_dtype dtype, mlc_isa isa, int32_t threads,
                          int64_t *n)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.isa = isa;
    d.threads = threads;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_tensor *all = all_of(ctx, c, dtype);
    *n = mlc_numel(all);
    double *out = (double *)calloc((size_t)*n + 1, sizeof *out);
    CHECK_EQ(mlc_read(all, out, (size_t)*n * sizeof *out), MLC_OK);
    mlc_ctx_free(ctx);
    return out;
}

TEST(rnn_kernels, bits_do_not_depend_on_threads)
{
    static const int32_t threads[] = {2, 3, 5};
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < 2 * THREADED_COUNT; k++) {
            const thread_case *c = &THREADED[k / 2];
            const mlc_dtype    dtype = k % 2 ? MLC_BF16 : MLC_F32;
            int64_t            n, m;
            if (isa == MLC_ISA_SCALAR && dtype == MLC_BF16) continue;      /* one thread      */
            double *want = numbers_of(c, dtype, (mlc_isa)isa, 1, &n);
            for (int64_t t = 0; t < 3; t += test_stride(2)) {
                double *got = numbers_of(c, dtype, (mlc_isa)isa, threads[t], &m);
                CHECK_EQ(m, n);
                if (!CHECK(memcmp(got, want, (size_t)n * sizeof *got) == 0))
                    printf("  case %d, level %d, %d threads\n", k, (int)isa, (int)threads[t]);
                free(got);
            }
            free(want);
        }
    }
}
