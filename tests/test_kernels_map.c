/* test_kernels_map.c -- kernels that map, fill, cast and draw: the same bits on every ISA level */
#define _DEFAULT_SOURCE
#include "guarded.h"

/* ---- map ---------------------------------------------------------------------------------- */

/* Every seventh value is one of the special ones, at another place for each seed.             */
static void *map_input(int role, mlc_dtype dtype, int64_t n, uint64_t seed)
{
    void *p = guarded_rand(role, dtype, n, seed, -4, 4);
    for (int64_t i = (int64_t)(seed % 7); i < n; i += 7)
        put(p, dtype, i, SPECIAL[(i + (int64_t)seed) % SPECIALS]);
    return p;
}

static int map_inputs(mlc_map op)
{
    if (op <= MLC_MAP_MUL_S)
        return 1;
    return op < MLC_MAP_DIV_GRAD_B ? 2 : 3;
}

/* Runs op on rows x cols elements into role `out`, with these strides for columns.            */
static void *map_run(const mlc_kernels *k, mlc_map op, mlc_dtype dtype, int64_t rows,
                     int64_t cols, int64_t stride, bool accumulate, int out)
{
    struct mlc_k_map a;
    const int64_t span = rows * cols * stride;
    memset(&a, 0, sizeof a);
    a.op = op;
    a.dtype = dtype;
    a.ndim = 2;
    a.accumulate = accumulate;
    a.shape[0] = rows;
    a.shape[1] = cols;
    a.s = 0.37;
    for (int p = 0; p < map_inputs(op); p++) {
        a.in[p] = map_input(p, dtype, span, (uint64_t)(7 * (int)op + p));
        a.in_stride[p][0] = cols * stride;
        a.in_stride[p][1] = stride;
    }
    a.out = guarded_rand(out, dtype, rows * cols, 99, -1, 1);
    a.out_stride[0] = stride == 1 ? cols : 1;              /* the second form is transposed    */
    a.out_stride[1] = stride == 1 ? 1 : rows;
    return k->map(NULL, &a) == MLC_OK ? a.out : NULL;
}

static bool map_agrees(const mlc_kernels *k, mlc_map op, mlc_dtype dtype, int64_t rows,
                       int64_t cols, int64_t stride, bool accumulate)
{
    const void *want = map_run(scalar_row(), op, dtype, rows, cols, stride, accumulate, 3);
    const void *got = map_run(k, op, dtype, rows, cols, stride, accumulate, 4);
    if (want != NULL && got != NULL && same_bits(got, want, dtype, rows * cols))
        return true;
    printf("  map %d, %s, %" PRId64 " x %" PRId64 ", stride %" PRId64 "%s\n", (int)op,
           mlc_dtype_name(dtype), rows, cols, stride, accumulate ? ", accumulating" : "");
    return false;
}

static bool map_sizes_agree(const mlc_kernels *k, mlc_map op, mlc_dtype dtype)
{
    for (int64_t n = 1; n <= 70; n += test_stride(9))
        if (!map_agrees(k, op, dtype, 1, n, 1, false) || !map_agrees(k, op, dtype, 3, n, 1, true))
            return false;
    for (int64_t n = 1; n <= 70; n += 13)
        if (!map_agrees(k, op, dtype, 5, n, 3, false) || !map_agrees(k, op, dtype, n, 5, 2, true))
            return false;
    return map_agrees(k, op, dtype, 1, 1031, 1, false) &&
           map_agrees(k, op, dtype, 2, 20011, 1, true);
}

TEST(backend, map_kernels_have_the_same_bits_on_every_level)
{
    CHECK(scalar_row() != NULL);
    FOR_EACH_ROW(k, isa)
        for (int op = 0; op < MLC_MAP_COUNT; op++) {
            CHECK(map_sizes_agree(k, (mlc_map)op, MLC_F32));
            CHECK(map_sizes_agree(k, (mlc_map)op, MLC_F64));
        }
}

/* ---- the lists of formulas, as a device outside makes its kernels of them ------------------ */

static double dev_exp(double x) { return exp(x); }
static double dev_log(double x) { return log(x); }
static double dev_sqrt(double x) { return sqrt(x); }
static double dev_tanh(double x) { return tanh(x); }
static double dev_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double dev_gelu(double x) { return 0.5 * x * (1 + erf(x * sqrt(0.5))); }
static double dev_gelu_slope(double x)
{
    return 0.5 * (1 + erf(x * sqrt(0.5))) + x * exp(-0.5 * x * x) / sqrt(2 * acos(-1));
}

static double dev_gelu_tanh(double x)
{
    return x * dev_sigmoid(sqrt(8 / acos(-1)) * (x + 0.044715 * x * x * x));
}
static double dev_gelu_tanh_slope(double x)
{
    const double s = dev_sigmoid(sqrt(8 / acos(-1)) * (x + 0.044715 * x * x * x));
    return s + x * s * (1 - s) * sqrt(8 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
}

#define DEV(name) dev_##name
#define DEV_CASE(code, formula) case MLC_##code: return formula;
static double dev_map(mlc_map op, double a, double b, double c, double s)
{
    typedef double T;
    switch ((int)op) {
        MLC_MAP_FORMULAS(DEV_CASE, DEV_CASE, DEV_CASE, DEV)
    default: return (double)NAN;
    }
}

TEST(backend, a_device_makes_the_kernel_map_of_the_public_formulas)
{
    enum { N = 9 };
    double           in[3][N], out[N];
    struct mlc_k_map a;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 3; k++) in[k][i] = test_random(71 + (uint64_t)k, i, 0.25, 2);
    for (int op = 0; op < MLC_MAP_COUNT; op++) {
        memset(&a, 0, sizeof a);
        a.op = (mlc_map)op, a.dtype = MLC_F64, a.ndim = 1, a.shape[0] = N, a.s = 0.75;
        a.out = out, a.out_stride[0] = 1;
        for (int k = 0; k < 3; k++) a.in[k] = in[k], a.in_stride[k][0] = 1;
        CHECK_EQ(scalar_row()->map(NULL, &a), MLC_OK);
        for (int i = 0; i < N; i++)
            CHECK_NEAR(out[i], dev_map((mlc_map)op, in[0][i], in[1][i], in[2][i], 0.75), 1e-13);
    }
}

/* A device that was compiled against an older header knows formulas by number.                 */
#define ONE_MORE(code, formula) +1
TEST(backend, formulas_keep_their_numbers)
{
    CHECK_EQ(0 MLC_MAP_FORMULAS(ONE_MORE, ONE_MORE, ONE_MORE, DEV), MLC_MAP_COUNT);
    CHECK_EQ(0 MLC_FORMULAS(ONE_MORE, ONE_MORE, ONE_MORE, DEV), MLC_MATH_END);
    CHECK_EQ(MLC_MAP_COPY, 0);
    CHECK_EQ(MLC_MAP_SQDIFF_GRAD, 26);
    CHECK_EQ(MLC_MATH_ABS, 29);
    CHECK_EQ(MLC_MATH_POW, 69);
    CHECK_EQ(MLC_MATH_SMOOTH_L1, 104);
    CHECK_EQ(MLC_MATH_GLU_GRAD_B, 154);
}

/* ---- fill, cast, random, dropout ---------------------------------------------------------- */

static bool fill_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t n, double start,
                        double step)
{
    struct mlc_k_fill a = {dtype, n, caged(0, (size_t)n * size_of(dtype)), start, step, 0};
    struct mlc_k_fill b = {dtype, n, caged(1, (size_t)n * size_of(dtype)), start, step, 0};
    return scalar_row()->fill(NULL, &a) == MLC_OK && k->fill(NULL, &b) == MLC_OK &&
           cage_holds(a.out) && cage_holds(b.out) && same_bits(b.out, a.out, dtype, n);
}

TEST(backend, fill_kernels_have_the_same_bits_on_every_level)
{
    CHECK(fill_agrees(scalar_row(), MLC_F32, 7, 1, 2));
    FOR_EACH_ROW(k, isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 70; n++)
                CHECK(fill_agrees(k, (mlc_dtype)dtype, n, 0, 0) &&
                      fill_agrees(k, (mlc_dtype)dtype, n, -0.0, 0) &&
                      fill_agrees(k, (mlc_dtype)dtype, n, -3.7, 1.1));
}

static void *cast_run(const mlc_kernels *k, mlc_dtype to, mlc_dtype from, int64_t rows,
                      int64_t cols, int out)
{
    struct mlc_k_cast a;
    memset(&a, 0, sizeof a);
    a.out_dtype = to;
    a.in_dtype = from;
    a.ndim = 2;
    a.shape[0] = rows;
    a.shape[1] = cols;
    a.in_stride[0] = 1;                /* transposed, but for one row                          */
    a.in_stride[1] = rows;
    a.out_stride[0] = cols;
    a.out_stride[1] = 1;
    a.in = guarded(0, (size_t)(rows * cols) * size_of(from));
    for (int64_t i = 0; i < rows * cols; i++) {
        double v = i % 3 ? test_random(3, i, -1e9, 1e9) : SPECIAL[i % SPECIALS];
        if (from == MLC_I64)
            ((int64_t *)guarded(0, (size_t)(rows * cols) * 8))[i] = (int64_t)i * 12345677 - 5;
        else if (from == MLC_I32 || from == MLC_I8 || from == MLC_U8 || from == MLC_BOOL)
            put(guarded(0, (size_t)(rows * cols) * size_of(from)), from, i, (double)(i * 7 % 127));
        else
            put(guarded(0, (size_t)(rows * cols) * size_of(from)), from, i, v);
    }
    a.out = caged(out, (size_t)(rows * cols) * size_of(to));
    return k->cast(NULL, &a) == MLC_OK && cage_holds(a.out) ? a.out : NULL;
}

TEST(backend, cast_kernels_have_the_same_bits_on_every_level)
{
    for (int to = 0; to < MLC_DTYPE_COUNT; to++)
        for (int from = 0; from < MLC_DTYPE_COUNT; from++) {
            if (!CHECK(cast_run(scalar_row(), (mlc_dtype)to, (mlc_dtype)from, 3, 5, 1) != NULL))
                return;
            FOR_EACH_ROW(k, isa)
                for (int64_t n = 1; n <= 70; n += test_stride(3)) {
                    const void *want = cast_run(scalar_row(), (mlc_dtype)to, (mlc_dtype)from,
                                                1 + n % 3, n, 1);
                    const void *got = cast_run(k, (mlc_dtype)to, (mlc_dtype)from, 1 + n % 3, n, 2);
                    CHECK(got && want &&
                          same_bits(got, want, (mlc_dtype)to, n * (1 + n % 3)));
                }
        }
}

TEST(backend, cast_kernels_round_to_even_truncate_and_mark_what_does_not_fit)
{
    static const double  in[6] = {1.9, -1.9, NO_NUMBER, 1e19, 9007199254740993.0, 16777217.0};
    static const int64_t want[6] = {1, -1, INT64_MIN, INT64_MIN, 9007199254740992, 16777217};
    struct mlc_k_cast a;
    int64_t whole[6];
    float   narrow[6];
    memset(&a, 0, sizeof a);
    a.ndim = 1;
    a.shape[0] = 6;
    a.in_stride[0] = a.out_stride[0] = 1;
    a.in = in;
    a.in_dtype = MLC_F64;
    a.out = whole;
    a.out_dtype = MLC_I64;
    CHECK_EQ(scalar_row()->cast(NULL, &a), MLC_OK);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(whole[i], want[i]);
    a.out = narrow;
    a.out_dtype = MLC_F32;
    CHECK_EQ(scalar_row()->cast(NULL, &a), MLC_OK);
    CHECK(narrow[5] == 16777216.0f);   /* a tie, to the even side                              */
}

/* As devices do. */
TEST(backend, whole_kernels_divide_by_tensors_alone)
{
    const int64_t      in[2] = {7, -7};
    int64_t            out[2] = {9, 9}, error[4] = {0};
    struct mlc_k_whole a;
    memset(&a, 0, sizeof a);
    a.dtype = MLC_I64;
    a.ndim = 1;
    a.shape[0] = 2;
    a.out = out;
    a.in[0] = in;
    a.out_stride[0] = a.in_stride[0][0] = a.in_stride[1][0] = 1;
    a.s = 3;
    a.error = error;
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        a.op = MLC_WHOLE_FLOOR_DIV;
        CHECK_EQ(k->whole(NULL, &a), MLC_ERR_ARG);
        a.op = MLC_WHOLE_REMAINDER;
        CHECK_EQ(k->whole(NULL, &a), MLC_ERR_ARG);
        CHECK(out[0] == 9 && out[1] == 9);
        a.op = MLC_WHOLE_MUL;
        CHECK_EQ(k->whole(NULL, &a), MLC_OK);
        CHECK(out[0] == 21 && out[1] == -21);
        out[0] = out[1] = 9;
    }
}

/* Bernoulli: a is its probability; truncated: within [lo,hi]; integers: -3 .. 93.             */
static void *random_run(const mlc_kernels *k, mlc_random kind, mlc_dtype dtype, int64_t n, int out)
{
    struct mlc_k_random a = {kind, dtype, n, caged(out, (size_t)n * size_of(dtype)),
                             42, 7, NULL, kind == MLC_RANDOM_BERNOULLI ? 0.375 : -1.5, 2.5, -2, 4,
                             -3, 97, NULL, 0, 0};
    return k->random(NULL, &a) == MLC_OK && cage_holds(a.out) ? a.out : NULL;
}

static bool random_makes(mlc_random kind, mlc_dtype dtype)
{
    const bool floats = dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 ||
                        dtype == MLC_F16;
    return kind == MLC_RANDOM_PERMUTATION ? dtype == MLC_I64
                                          : floats || kind >= MLC_RANDOM_BERNOULLI;
}

/* A permutation hangs on its length, too.                                                     */
TEST(backend, random_kernels_depend_on_seed_stream_and_index_only)
{
    for (int kind = 0; kind <= MLC_RANDOM_PERMUTATION; kind++)
        for (int type = 0; type < MLC_DTYPE_COUNT; type++) {
            const mlc_dtype dtype = (mlc_dtype)type;
            const mlc_random r = (mlc_random)kind;
            const void     *whole = random_run(scalar_row(), r, dtype, 300, 0);
            if (!random_makes(r, dtype)) {
                CHECK(r == MLC_RANDOM_TRUNCATED || whole == NULL);
                continue;
            }
            if (!CHECK(whole != NULL))
                return;
            for (int64_t n = 1; n <= 300; n += n < 70 ? test_stride(3) : 23) {
                const void *part = random_run(scalar_row(), r, dtype, n, 1);
                CHECK(part && (r == MLC_RANDOM_PERMUTATION || same_bits(part, whole, dtype, n)));
                FOR_EACH_ROW(k, isa) {
                    const void *got = random_run(k, r, dtype, n, 2);
                    CHECK(got && same_bits(got, part, dtype, n));
                }
            }
        }
}

/* The published test vectors of Philox4x32-10 in Random123 fix the words; here their use.     */
TEST(backend, random_values_have_the_moments_they_should)
{
    enum { N = 40000 };
    for (int dtype = 0; dtype < 2; dtype++) {
        for (int kind = 0; kind < 2; kind++) {
            const void *p = random_run(scalar_row(), (mlc_random)kind, (mlc_dtype)dtype, N, 0);
            double sum = 0, squares = 0, least = INF, most = -INF;
            double mean = kind ? -1.5 : 0.5, deviation = kind ? 2.5 : 4 / sqrt(12);
            for (int64_t i = 0; i < N; i++) {
                double v = get(p, (mlc_dtype)dtype, i);
                sum += v;
                squares += (v - mean) * (v - mean);
                least = v < least ? v : least;
                most = v > most ? v : most;
            }
            CHECK_NEAR(sum / N, mean, 4 * deviation / sqrt(N));
            CHECK_NEAR(sqrt(squares / N), deviation, 4 * deviation / sqrt(2.0 * N));
            CHECK(kind || (least >= -1.5 && most < 2.5));
        }
    }
}

static void *dropout_run(const mlc_kernels *k, mlc_dtype dtype, int64_t n, double p, bool add,
                         int out)
{
    struct mlc_k_dropout a;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.accumulate = add;
    a.n = n;
    a.in = guarded_rand(0, dtype, n, 5, 1, 2);
    a.out = caged(out, (size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++)
        put(a.out, dtype, i, test_random(6, i, -1, 1));
    a.seed = 3;
    a.stream = 9;
    a.p = p;
    return k->dropout(NULL, &a) == MLC_OK && cage_holds(a.out) ? a.out : NULL;
}

TEST(backend, dropout_kernels_have_the_same_bits_on_every_level)
{
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    for (int d = 0; d < 4; d++)
        for (int64_t n = 1; n <= 70; n++)
            for (int add = 0; add < 2; add++) {
                const mlc_dtype dtype = floats[d];
                const void *want = dropout_run(scalar_row(), dtype, n, 0.3, add, 1);
                if (!CHECK(want != NULL))
                    return;
                FOR_EACH_ROW(k, isa) {
                    const void *got = dropout_run(k, dtype, n, 0.3, add, 2);
                    CHECK(got && same_bits(got, want, dtype, n));
                }
            }
}

TEST(backend, dropout_keeps_its_share_and_scales_it)
{
    enum { N = 40000 };
    const float *in = (const float *)guarded(0, N * 4);
    const float *out = (const float *)dropout_run(scalar_row(), MLC_F32, N, 0.3, false, 1);
    int64_t kept = 0;
    bool    right = true;
    for (int i = 0; i < N; i++) {
        kept += out[i] != 0;
        right = right && (out[i] == 0 || fabs((double)out[i] * 0.7 - (double)in[i]) < 1e-6);
    }
    CHECK(right);
    CHECK_NEAR((double)kept / N, 0.7, 4 * sqrt(0.21 / N));
    out = (const float *)dropout_run(scalar_row(), MLC_F32, 70, 0, false, 1);
    CHECK(memcmp(out, guarded(0, 70 * 4), 70 * 4) == 0);
    out = (const float *)dropout_run(scalar_row(), MLC_F32, 70, 1, false, 1);
    for (int i = 0; i < 70; i++)
        CHECK(out[i] == 0);
}

/* ---- streams with a base ------------------------------------------------------------------- */

enum { DRAW_BYTES = 4096, DRAW_KINDS = 15 };

typedef struct draw {                  /* a kernel that draws, and the stream it is given      */
    int             what;              /* below DRAW_KINDS                                     */
    uint64_t        stream;
    const uint64_t *base;
    char            out[DRAW_BYTES], workspace[1 << 20];
} draw;

/* Kinds 0 to 5: those of random.                                                              */
static mlc_status draw_random(const mlc_kernels *k, draw *d)
{
    const mlc_random    kind = (mlc_random)d->what;
    const bool          whole = kind == MLC_RANDOM_INTEGER || kind == MLC_RANDOM_PERMUTATION;
    struct mlc_k_random a = {kind, whole ? MLC_I64 : MLC_F32, 300, d->out, 42, d->stream, d->base,
                             kind == MLC_RANDOM_BERNOULLI ? 0.375 : -1.5, 2.5, -2, 4, -3, 97,
                             NULL, 0, 0};
    return k->random(NULL, &a);
}

/* 6 and 7: in f32 and bf16.                                                                   */
static mlc_status draw_dropout(const mlc_kernels *k, draw *d)
{
    const mlc_dtype      dtype = d->what == 6 ? MLC_F32 : MLC_BF16;
    struct mlc_k_dropout a = {dtype, 0, 300, d->out, guarded_rand(0, dtype, 300, 5, 1, 2), 42,
                              d->stream, d->base, 0.4};
    return k->dropout(NULL, &a);
}

/* 8 and 9: CountSketch and a Walsh-Hadamard transform of 3 lines of 200 elements.              */
static mlc_status draw_sketch(const mlc_kernels *k, draw *d)
{
    struct mlc_k_sketch a;
    int64_t             index[200];
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 200; i++)
        index[i] = i * 7 % 16;
    a.srht = d->what == 9;
    a.dtype = MLC_F32;
    a.lines = 3, a.rows = 16, a.cols = 200;
    a.in = guarded_rand(0, MLC_F32, 600, 5, 1, 2), a.in_row = 200;
    a.out = d->out, a.out_row = 16;
    a.index = index;
    a.seed = 42, a.stream = d->stream, a.stream_base = d->base;
    a.scale = 1;
    a.workspace = d->workspace, a.workspace_bytes = k->sketch_workspace(NULL, &a);
    return k->sketch(NULL, &a);
}

/* 10 and 11: with replacement and without.                                                    */
static mlc_status draw_multinomial(const mlc_kernels *k, draw *d)
{
    struct mlc_k_multinomial a;
    int64_t                  error[4] = {0};
    memset(&a, 0, sizeof a);
    a.dtype = MLC_F32;
    a.replacement = d->what == 10;
    a.n = 4, a.c = 50, a.k = 20;
    a.weights = guarded_rand(0, MLC_F32, 200, 5, 1, 2), a.row = 50, a.col = 1;
    a.out = (int64_t *)(void *)d->out;
    a.seed = 42, a.stream = d->stream, a.stream_base = d->base;
    a.error = error;
    a.workspace = d->workspace, a.workspace_bytes = k->multinomial_workspace(NULL, &a);
    return k->multinomial(NULL, &a);
}

/* 12: a product with dropout; 13 and 14: with signs, in f32 and bf16.                         */
static mlc_status draw_gemm(const mlc_kernels *k, draw *d)
{
    struct mlc_k_gemm g;
    const mlc_dtype   dtype = d->what == 14 ? MLC_BF16 : MLC_F32;
    memset(&g, 0, sizeof g);
    g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = g.bias_dtype = dtype;
    g.m = 17, g.n = 33, g.k = 32, g.batch[0] = g.batch[1] = g.batch[2] = 1, g.alpha = 1;
    g.a = guarded_rand(0, dtype, 17 * 32, 5, 1, 2), g.a_row = 32, g.a_col = 1;
    g.b = guarded_rand(1, dtype, 32 * 33, 6, 1, 2), g.b_row = 33, g.b_col = 1;
    g.c = d->out, g.c_row = 33, g.c_col = 1;
    if (d->what == 12)
        g.drop = 0.4, g.drop_seed = 42, g.drop_stream = d->stream, g.drop_base = d->base;
    else
        g.signs.rows = 32, g.signs.seed = 42, g.signs.stream = d->stream,
        g.signs.stream_base = d->base;
    g.workspace = d->workspace, g.workspace_bytes = k->gemm_workspace(NULL, &g);
    return g.workspace_bytes <= sizeof d->workspace ? k->gemm(NULL, &g) : MLC_ERR_NOMEM;
}

static const char *draw_made(const mlc_kernels *k, draw *d, int what, uint64_t stream,
                             const uint64_t *base)
{
    d->what = what;
    d->stream = stream;
    d->base = base;
    memset(d->out, 0, sizeof d->out);
    CHECK_EQ((what < 6    ? draw_random
              : what < 8  ? draw_dropout
              : what < 10 ? draw_sketch
              : what < 12 ? draw_multinomial
                          : draw_gemm)(k, d), MLC_OK);
    return d->out;
}

TEST(backend, a_base_is_added_to_the_stream_of_each_kernel_that_draws)
{
    static const uint64_t base = (UINT64_C(5) << 32) + 3;
    static draw d[3];
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int what = 0; what < DRAW_KINDS; what++) {
            const char *want = draw_made(k, &d[0], what, 7 + base, NULL);
            const bool  same = memcmp(draw_made(k, &d[1], what, 7, &base), want, DRAW_BYTES) == 0;
            const bool  other = memcmp(draw_made(k, &d[2], what, 7, NULL), want, DRAW_BYTES) != 0;
            if (!CHECK(same) || !CHECK(other)) {
                printf("  draw %d\n", what);
                return;
            }
        }
    }
}

/* ---- a scalar in memory ------------------------------------------------------------------- */

TEST(backend, map_and_math_take_their_scalar_from_memory)
{
    static const float x[3] = {2, -3, 4};
    for (int isa = 0; isa < MLC_ISA_COUNT; isa++)
        for (int math = 0; math < 2 && mlc_cpu_kernels((mlc_isa)isa) != NULL; math++) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            const double       two = 2;
            float              out[3];
            struct mlc_k_math  a;
            memset(&a, 0, sizeof a);
            a.map.op = math ? MLC_MATH_DIV_S : MLC_MAP_MUL_S;
            a.map.dtype = MLC_F32;
            a.map.ndim = 1;
            a.map.shape[0] = 3;
            a.map.out_stride[0] = a.map.in_stride[0][0] = 1;
            a.map.out = out;
            a.map.in[0] = x;
            a.map.s = 100;
            a.map.s_dev = &two;
            CHECK_EQ(math ? k->math(NULL, &a) : k->map(NULL, &a.map), MLC_OK);
            CHECK(out[0] == (math ? 1 : 4) && out[1] == (math ? -1.5f : -6));
            a.map.accumulate = 1;                          /* another way through the kernel   */
            CHECK_EQ(math ? k->math(NULL, &a) : k->map(NULL, &a.map), MLC_OK);
            CHECK(out[2] == (math ? 4 : 16));
        }
}
