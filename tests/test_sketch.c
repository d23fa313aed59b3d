/* test_sketch.c -- tests of section IMPL.SKETCH: sketches, sketched layers
 *
 * Sketches against the matrices they stand for, sketched layers against Panther's formula, term by
 * term, here and in PyTorch, and their statistics against what was derived of them.
 */
#include "mlc_test.h"
#include "golden/golden.h"

static const mlc_dtype DTYPES[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};

/* Relative to the magnitudes that were added up. */
static double precision(mlc_dtype dtype)
{
    return dtype == MLC_F64 ? 1e-13 : dtype == MLC_F32 ? 2e-6 : dtype == MLC_BF16 ? 1.2e-2 : 1.5e-3;
}

/* max |a - b| <= tol max |b|, both in f64 */
static bool close_to(mlc_tensor *a, mlc_tensor *b, double tol)
{
    mlc_tensor  *x = mlc_cast(a, MLC_F64), *y = mlc_cast(b, MLC_F64);
    const double top = mlc_item(mlc_max(mlc_abs(y), mlc_dims0(), false));
    const double off = mlc_item(mlc_max(mlc_abs(mlc_sub(x, y)), mlc_dims0(), false));
    if (off <= tol * (top > 0 ? top : 1))
        return true;
    printf("  off by %g of %g, allowed %g\n", off, top, tol);
    return false;
}

/* ---- sketches ------------------------------------------------------------------------------- */

static const struct { int64_t rows, cols; } SHAPES[] = {
    {1, 1}, {3, 5}, {16, 33}, {7, 64}, {40, 100}, {1, 300}, {130, 128}, {64, 1500}};
enum { N_SHAPES = (int)(sizeof SHAPES / sizeof *SHAPES) };

/* What a seed makes. */
static const mlc_sketch_kind ALL[] = {MLC_SKETCH_SIGNS, MLC_SKETCH_GAUSSIAN, MLC_SKETCH_COUNT,
                                      MLC_SKETCH_SRHT, MLC_SKETCH_UNIFORM, MLC_SKETCH_SPARSE,
                                      MLC_SKETCH_SASO};
enum { KINDS = (int)(sizeof ALL / sizeof *ALL) };

static mlc_sketch sketch_of(int kind, int shape)
{
    const int64_t rows = SHAPES[shape].rows, cols = SHAPES[shape].cols;
    const bool    few = kind == MLC_SKETCH_SRHT && rows > cols;
    return mlc_sketch_make((mlc_sketch_kind)kind, few ? cols : rows, cols, 77 + (uint64_t)shape);
}

/* On every axis, there and back, in every dtype; gradients are the other way. */
TEST(sketch, is_its_matrix)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < N_SHAPES * 4; i++) {
            const mlc_sketch s = sketch_of(i % 4, i / 4);
            const mlc_dtype  dtype = DTYPES[(i / 4 + i) % 4], wide = mlc_dtype_bytes(dtype) == 8
                                                                       ? MLC_F64 : MLC_F32;
            mlc_scope_begin(ctx);
            mlc_tensor *m = mlc_sketch_matrix(ctx, &s, wide);
            mlc_tensor *x = test_rand(ctx, dtype, mlc_dims3(2, s.cols, 3), 5, -1, 1);
            mlc_tensor *y = test_rand(ctx, dtype, mlc_dims3(3, 2, s.rows), 6, -1, 1);
            mlc_set_requires_grad(x, true);
            mlc_set_requires_grad(y, true);
            mlc_tensor *sx = mlc_sketch_apply(x, &s, 1), *sy = mlc_sketch_apply_t(y, &s, -1);
            const double tol = precision(dtype) * sqrt((double)s.cols);
            CHECK(close_to(sx, mlc_matmul(m, mlc_cast(x, wide)), tol));
            CHECK(close_to(sy, mlc_matmul(mlc_cast(y, wide), m), tol));
            mlc_tensor *dy = test_rand(ctx, dtype, mlc_dims3(2, s.rows, 3), 7, -1, 1);
            mlc_tensor *dx = test_rand(ctx, dtype, mlc_dims3(3, 2, s.cols), 8, -1, 1);
            mlc_backward(mlc_sum(mlc_mul(sx, dy), mlc_dims0(), false));
            mlc_backward(mlc_sum(mlc_mul(sy, dx), mlc_dims0(), false));
            mlc_tensor *t = mlc_transpose(m, 0, 1);
            CHECK(close_to(mlc_grad(x), mlc_matmul(t, mlc_cast(dy, wide)), tol));
            CHECK(close_to(mlc_grad(y), mlc_matmul(mlc_cast(dx, wide), t), tol));
            if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
                return;
        }
    }
}

/* It looked for the last axis of a scalar without end. */
TEST(sketch, of_a_scalar_is_refused)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_sketch of[2] = {mlc_sketch_make(MLC_SKETCH_SIGNS, 1, 1, 3),
                              mlc_sketch_make(MLC_SKETCH_GAUSSIAN, 5, 3, 3)};
    for (int i = 0; i < 2; i++) {
        CHECK(mlc_sketch_apply(mlc_ones(ctx, MLC_F32, mlc_dims0()), &of[i], -1) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "sketch: x is []; it must have an axis to be sketched");
        CHECK(mlc_sketch_apply_t(mlc_ones(ctx, MLC_F64, mlc_dims0()), &of[i], 0) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "sketch: x is []; it must have an axis to be sketched");
    }
    mlc_tensor *none = mlc_sketch_apply(mlc_ones(ctx, MLC_F32, mlc_dims2(0, 3)), &of[1], 1);
    CHECK(none != NULL && none->shape[0] == 0 && none->shape[1] == 5);
    CHECK_OK(ctx);
}

/* The same numbers whoever makes them; another seed or stream makes others. */
TEST(sketch, is_a_function_of_its_seed)
{
    enum { ROWS = 24, COLS = 70 };
    static double first[4][ROWS * COLS], now[ROWS * COLS];
    for (int kind = 0; kind < 4; kind++) {
        mlc_sketch s = mlc_sketch_make((mlc_sketch_kind)kind, ROWS, COLS, 9);
        bool       begun = false;
        FOR_EACH_ISA(ctx) {
            test_read(mlc_sketch_matrix(ctx, &s, MLC_F32), begun ? now : first[kind]);
            CHECK(!begun || memcmp(now, first[kind], sizeof now) == 0);
            begun = true;
        }
        for (int other = 0; other < 2; other++) {
            mlc_ctx *ctx = test_ctx();
            s.seed = 9 + (uint64_t)other, s.stream = 1 - (uint64_t)other;
            test_read(mlc_sketch_matrix(ctx, &s, MLC_F32), now);
            CHECK(memcmp(now, first[kind], sizeof now) != 0);
        }
    }
}

TEST(sketch, of_bits_is_that_of_the_seed)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < N_SHAPES; i++) {
            const mlc_sketch s = sketch_of(MLC_SKETCH_SIGNS, i);
            mlc_sketch       stored = s;
            stored.stored = mlc_sketch_bits(ctx, &s);
            stored.seed = 1;           /* nobody looks at it                                     */
            CHECK_EQ(mlc_dim(stored.stored, 1), (s.cols + 31) / 32);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, s.cols), 5, -1, 1);
            mlc_tensor *a = mlc_sketch_apply(x, &s, 1), *b = mlc_sketch_apply(x, &stored, 1);
            CHECK(mlc_item(mlc_max(mlc_abs(mlc_sub(a, b)), mlc_dims0(), false)) == 0);
        }
        CHECK_OK(ctx);
    }
}

/* One entry in each column of a CountSketch; rows of an SRHT are orthogonal, those of signs +-. */
TEST(sketch, has_the_structure_of_its_kind)
{
    mlc_ctx    *ctx = test_ctx();
    const mlc_sketch count = mlc_sketch_make(MLC_SKETCH_COUNT, 9, 50, 3);
    const mlc_sketch srht = mlc_sketch_make(MLC_SKETCH_SRHT, 20, 64, 3);
    const mlc_sketch signs = mlc_sketch_make(MLC_SKETCH_SIGNS, 16, 40, 3);
    mlc_tensor *c = mlc_abs(mlc_sketch_matrix(ctx, &count, MLC_F64));
    mlc_tensor *h = mlc_sketch_matrix(ctx, &srht, MLC_F64);
    mlc_tensor *columns = mlc_sum(c, mlc_dims1(0), false);
    CHECK(mlc_item(mlc_min(columns, mlc_dims0(), false)) == 1);
    CHECK(mlc_item(mlc_max(columns, mlc_dims0(), false)) == 1);
    mlc_tensor *gram = mlc_matmul(h, mlc_transpose(h, 0, 1));
    CHECK(close_to(gram, mlc_mul_scalar(mlc_eye(ctx, MLC_F64, 20, 20), 64.0 / 20.0), 1e-12));
    mlc_tensor *s = mlc_abs(mlc_sketch_matrix(ctx, &signs, MLC_F64));
    CHECK(mlc_item(mlc_min(s, mlc_dims0(), false)) == 0.25);
    CHECK(mlc_item(mlc_max(s, mlc_dims0(), false)) == 0.25);
    CHECK_OK(ctx);
}

/* |S x|^2 / |x|^2 over many seeds: 1 on average, four deviations of the mean allowed. */
TEST(sketch, keeps_lengths_on_average)
{
    enum { ROWS = 16, COLS = 48, SEEDS = 1000 };
    for (int i = 0; i < KINDS; i++) {
        const int kind = (int)ALL[i];
        mlc_ctx *ctx = test_ctx();
        double   sum = 0, squares = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            const mlc_sketch s = mlc_sketch_make((mlc_sketch_kind)kind, ROWS, COLS, seed);
            mlc_scope_begin(ctx);
            mlc_tensor  *x = test_rand(ctx, MLC_F64, mlc_dims1(COLS), 4, -1, 1);
            mlc_tensor  *y = mlc_sketch_apply(x, &s, 0);
            const double ratio = mlc_item(mlc_sum(mlc_mul(y, y), mlc_dims0(), false)) /
                                 mlc_item(mlc_sum(mlc_mul(x, x), mlc_dims0(), false));
            sum += ratio, squares += ratio * ratio;
            mlc_scope_end(ctx);
        }
        const double mean = sum / SEEDS, deviation = sqrt(squares / SEEDS - mean * mean);
        CHECK_NEAR(mean, 1, 4 * deviation / sqrt(SEEDS));
        CHECK(deviation < 0.5);        /* sqrt(2/16) of normals; SPARSE: a little over that      */
    }
}

/* ---- sparse and uniform sketches, parts, pieces --------------------------------------------- */

/* x along axis 0 of a matrix or 1 of three, and back; gradients are the other way. */
static void check_any(mlc_ctx *ctx, const mlc_sketch *s, mlc_dtype dtype, bool matrix)
{
    const mlc_dtype wide = dtype == MLC_F64 ? MLC_F64 : MLC_F32;
    mlc_scope_begin(ctx);
    mlc_tensor *m = mlc_sketch_matrix(ctx, s, wide);
    mlc_tensor *x = test_rand(ctx, dtype, matrix ? mlc_dims2(s->cols, 131)
                                                 : mlc_dims3(2, s->cols, 3), 5, -1, 1);
    mlc_tensor *y = test_rand(ctx, dtype, matrix ? mlc_dims2(s->rows, 131)
                                                 : mlc_dims3(2, s->rows, 3), 6, -1, 1);
    const int32_t axis = matrix ? 0 : 1;
    const double  tol = precision(dtype) * sqrt((double)s->cols + (double)s->rows);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(y, true);
    mlc_tensor *sx = mlc_sketch_apply(x, s, axis), *sy = mlc_sketch_apply_t(y, s, axis);
    mlc_tensor *t = mlc_transpose(m, 0, 1);
    CHECK(close_to(sx, mlc_matmul(m, mlc_cast(x, wide)), tol));
    CHECK(close_to(sy, mlc_matmul(t, mlc_cast(y, wide)), tol));
    mlc_tensor *dy = test_rand(ctx, dtype, mlc_dims_of(sx->ndim, sx->shape), 7, -1, 1);
    mlc_tensor *dx = test_rand(ctx, dtype, mlc_dims_of(sy->ndim, sy->shape), 8, -1, 1);
    mlc_backward(mlc_sum(mlc_mul(sx, dy), mlc_dims0(), false));
    mlc_backward(mlc_sum(mlc_mul(sy, dx), mlc_dims0(), false));
    sy = mlc_sketch_apply_t(y, s, axis);                   /* its gradient is added to the first */
    mlc_backward(mlc_sum(mlc_mul(sy, dx), mlc_dims0(), false));
    CHECK(close_to(mlc_grad(x), mlc_matmul(t, mlc_cast(dy, wide)), tol));
    CHECK(close_to(mlc_grad(y), mlc_mul_scalar(mlc_matmul(m, mlc_cast(dx, wide)), 2), tol));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(sketch, sparse_and_uniform_ones_are_their_matrices)
{
    static const mlc_sketch_kind kinds[4] = {MLC_SKETCH_UNIFORM, MLC_SKETCH_SPARSE,
                                             MLC_SKETCH_SASO, MLC_SKETCH_COUNT};
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < N_SHAPES * 4; i++) {
            const mlc_sketch s = sketch_of((int)kinds[i % 4], i / 4);
            check_any(ctx, &s, DTYPES[(i / 4 + i) % 4], i % 3 == 0);
            check_any(ctx, &s, DTYPES[(i / 4 + i + 1) % 4], i % 3 != 0);
        }
}

TEST(sketch, sparse_ones_have_the_structure_of_their_kind)
{
    enum { ROWS = 20, COLS = 90 };
    static double m[ROWS * COLS];
    mlc_ctx   *ctx = test_ctx();
    mlc_sketch saso = mlc_sketch_make(MLC_SKETCH_SASO, ROWS, COLS, 3);
    mlc_sketch sparse = mlc_sketch_make(MLC_SKETCH_SPARSE, ROWS, COLS, 3);
    mlc_sketch uniform = mlc_sketch_make(MLC_SKETCH_UNIFORM, ROWS, COLS, 3);
    int        used[ROWS] = {0};
    CHECK_EQ(saso.nonzeros, 8);
    test_read(mlc_sketch_matrix(ctx, &saso, MLC_F64), m);
    for (int c = 0; c < COLS; c++) {
        int n = 0;
        for (int r = 0; r < ROWS; r++) {
            const double v = fabs(m[r * COLS + c]);
            CHECK(v == 0 || v == saso.scale);
            n += v != 0;
            used[r] += v != 0;
        }
        CHECK_EQ(n, 8);
    }
    for (int r = 0; r < ROWS; r++)     /* 36 on average, deviation 4.6                          */
        CHECK(used[r] > 16 && used[r] < 56);
    test_read(mlc_sketch_matrix(ctx, &sparse, MLC_F64), m);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int c = 0; c < COLS; c++) {
            const double v = fabs(m[r * COLS + c]) / sparse.scale;
            CHECK_NEAR(v, rint(v), 1e-12);
            sum += v;
        }
        CHECK(sum <= 8.001 && sum >= 1.999);
    }
    test_read(mlc_sketch_matrix(ctx, &uniform, MLC_F64), m);
    double squares = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        CHECK(fabs(m[i]) <= sqrt(3) * uniform.scale * (1 + 1e-7));
        squares += m[i] * m[i] / (uniform.scale * uniform.scale);
    }
    CHECK_NEAR(squares / (ROWS * COLS), 1, 0.1);           /* deviation 0.021 */
    saso.nonzeros = ROWS;                                  /* all rows of each column */
    test_read(mlc_sketch_matrix(ctx, &saso, MLC_F64), m);
    for (int i = 0; i < ROWS * COLS; i++)
        CHECK(m[i] != 0);
    CHECK_OK(ctx);
}

/* Rows and columns of a matrix, as a copy. */
static mlc_tensor *window(mlc_tensor *m, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    return mlc_contiguous(mlc_slice(mlc_slice(m, 0, row, row + rows, 1), 1, col, col + cols, 1));
}

static bool same_bits(mlc_tensor *a, mlc_tensor *b)
{
    static double x[1 << 16], y[1 << 16];
    if (!CHECK(a && b && mlc_numel(a) == mlc_numel(b) && mlc_numel(a) <= 1 << 16))
        return false;
    test_read(mlc_contiguous(a), x);
    test_read(mlc_contiguous(b), y);
    for (int64_t i = 0; i < mlc_numel(a); i++)
        if (x[i] != y[i])              /* 0 is -0 */
            return false;
    return true;
}

TEST(sketch, part_has_the_elements_of_the_whole)
{
    enum { ROWS = 21, COLS = 300 };
    static const int64_t at[][4] = {{0, 21, 0, 300}, {3, 5, 0, 300}, {0, 21, 128, 172},
                                    {20, 1, 299, 1}, {4, 9, 33, 131}, {1, 7, 250, 50}};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < KINDS * 6; i++) {
            const int64_t   *p = at[i / KINDS];
            const mlc_sketch s = mlc_sketch_make(ALL[i % KINDS], ROWS, COLS, 12);
            const mlc_sketch part = mlc_sketch_part(&s, p[0], p[1], p[2], p[3]);
            mlc_scope_begin(ctx);
            mlc_tensor *m = mlc_sketch_matrix(ctx, &s, MLC_F32);
            if (!CHECK(same_bits(mlc_sketch_matrix(ctx, &part, MLC_F32),
                                 window(m, p[0], p[1], p[2], p[3]))))
                printf("  kind %d, part %d\n", (int)s.kind, i / KINDS);
            check_any(ctx, &part, i % 2 ? MLC_F64 : MLC_F32, false);
            const int64_t    rows = (p[1] + 1) / 2, cols = (p[3] + 1) / 2;
            const mlc_sketch again = mlc_sketch_part(&part, p[1] - rows, rows, p[3] - cols, cols);
            CHECK(same_bits(mlc_sketch_matrix(ctx, &again, MLC_F32),
                            window(m, p[0] + p[1] - rows, rows, p[2] + p[3] - cols, cols)));
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

TEST(sketch, part_of_a_stored_one)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_sketch signs = mlc_sketch_make(MLC_SKETCH_SIGNS, 9, 150, 4), dense = signs;
    mlc_tensor *m = mlc_sketch_matrix(ctx, &signs, MLC_F32);
    signs.stored = mlc_sketch_bits(ctx, &signs);
    dense.kind = MLC_SKETCH_DENSE, dense.scale = 1, dense.stored = m;
    mlc_sketch a = mlc_sketch_part(&signs, 2, 5, 64, 70), b = mlc_sketch_part(&dense, 2, 5, 64, 70);
    CHECK(same_bits(mlc_sketch_matrix(ctx, &a, MLC_F32), window(m, 2, 5, 64, 70)));
    CHECK(same_bits(mlc_sketch_matrix(ctx, &b, MLC_F32), window(m, 2, 5, 64, 70)));
    mlc_sketch again = mlc_sketch_make(MLC_SKETCH_SIGNS, 5, 70, 0);
    again.scale = signs.scale;
    for (int i = 0; i < 3; i++) {      /* bits of a part are its own: stored, and from a seed    */
        mlc_sketch part = mlc_sketch_part(&signs, 2, 5, i < 2 ? 64 : 77, 70);
        if (i)
            part.stored = NULL;
        again.stored = mlc_sketch_bits(ctx, &part);
        CHECK(same_bits(mlc_sketch_matrix(ctx, &again, MLC_F32),
                        window(m, 2, 5, i < 2 ? 64 : 77, 70)));
    }
    a = mlc_sketch_part(&signs, 2, 5, 65, 70);
    CHECK(mlc_sketch_matrix(ctx, &a, MLC_F32) == NULL);
    CHECK_HAS(mlc_error(ctx), "multiple of 32");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Rows of data by pieces: the sum is the sketch of all, for listed ones to the bit. */
TEST(sketch, pieces_add_up_to_the_whole)
{
    enum { ROWS = 24, COLS = 200, N = 150 };
    static const int64_t cut[5] = {0, 1, 77, 128, COLS};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < KINDS * 2; i++) {
            const mlc_dtype  dtype = i < KINDS ? MLC_F32 : MLC_F64;
            const mlc_sketch s = mlc_sketch_make(ALL[i % KINDS], ROWS, COLS, 5);
            mlc_scope_begin(ctx);
            mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(COLS, N), 1, -1, 1);
            mlc_tensor *y = mlc_zeros(ctx, dtype, mlc_dims2(ROWS, N));
            mlc_tensor *z = test_rand(ctx, dtype, mlc_dims2(ROWS, N), 2, -1, 1);
            mlc_tensor *back = mlc_zeros(ctx, dtype, mlc_dims2(COLS, N));
            for (int p = 0; p < 4; p++) {
                const int64_t    n = cut[p + 1] - cut[p];
                const mlc_sketch part = mlc_sketch_part(&s, 0, ROWS, cut[p], n);
                CHECK_EQ(mlc_sketch_add(y, mlc_rows(x, cut[p], cut[p + 1]), &part, 0, false),
                         MLC_OK);
            }
            for (int p = 0; p < ROWS; p += 8) {
                const mlc_sketch part = mlc_sketch_part(&s, p, 8, 0, COLS);
                CHECK_EQ(mlc_sketch_add(back, mlc_rows(z, p, p + 8), &part, 0, true), MLC_OK);
            }
            mlc_tensor *all = mlc_sketch_apply(x, &s, 0), *all_t = mlc_sketch_apply_t(z, &s, 0);
            CHECK(close_to(y, all, precision(dtype) * 4));
            CHECK(close_to(back, all_t, precision(dtype) * 4));
            if (s.kind == MLC_SKETCH_COUNT || s.kind == MLC_SKETCH_SASO ||
                s.kind == MLC_SKETCH_SPARSE) {
                CHECK(same_bits(y, all));
                CHECK(same_bits(back, all_t));
            }
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* y that is x, or overlaps it, or has a row whose stride says nothing. */
TEST(sketch, adds_to_what_it_reads)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SASO, 16, 16, 3);
    mlc_tensor      *all = test_rand(ctx, MLC_F32, mlc_dims2(20, 7), 1, -1, 1);
    for (int from = 0; from < 5; from += 4) {
        mlc_tensor *y = mlc_rows(all, 0, 16), *x = mlc_rows(all, from, from + 16);
        mlc_tensor *want = mlc_add(mlc_copy(y), mlc_sketch_apply(mlc_copy(x), &s, 0));
        CHECK_EQ(mlc_sketch_add(y, x, &s, 0, false), MLC_OK);
        CHECK(close_to(y, want, 1e-6));
    }
    const mlc_sketch one = mlc_sketch_make(MLC_SKETCH_SASO, 4, 1, 3);
    mlc_tensor      *x = test_rand(ctx, MLC_F32, mlc_dims2(1, 6), 2, 1, 2);
    mlc_tensor      *y = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 6));
    x->stride[0] = 0;
    CHECK_EQ(mlc_sketch_add(y, x, &one, 0, false), MLC_OK);
    CHECK(close_to(y, mlc_matmul(mlc_sketch_matrix(ctx, &one, MLC_F32), mlc_copy(x)), 1e-6));
    CHECK_OK(ctx);
}

/* Fewer rows than 32 fit in a block, which words of stored signs begin at. */
TEST(sketch, stored_signs_pass_over_wide_data)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_sketch  s = mlc_sketch_make(MLC_SKETCH_SIGNS, 2, 70, 4);
    mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims2(70, 40000), 3, -1, 1), *out[2];
    mlc_tensor *want = mlc_sketch_apply(a, &s, 0);
    s.stored = mlc_sketch_bits(ctx, &s);
    CHECK_EQ(mlc_sketch_pass(a, &s, NULL, out), MLC_OK);
    CHECK(close_to(out[0], want, 1e-5));
    CHECK_OK(ctx);
}

/* A file that is mapped, in blocks; both sides at once. */
TEST(sketch, data_that_are_mapped_pass_once)
{
    enum { M = 1300, N = 2100 };       /* blocks of 384 rows */
    const char *path = "build_sketch_pass.safetensors";
    mlc_ctx    *ctx = test_ctx();
    for (int half = 0; half < 2; half++) {
        mlc_tensor *a = test_rand(ctx, half ? MLC_BF16 : MLC_F32, mlc_dims2(M, N), 3, -1, 1);
        const mlc_named list[1] = {{"a", a}};
        CHECK_EQ(mlc_safetensors_save(ctx, path, list, 1, NULL), MLC_OK);
        mlc_safetensors *file = mlc_safetensors_open(ctx, path);
        mlc_tensor      *view = mlc_safetensors_view(file, "a"), *out[2];
        for (int i = 0; i < KINDS; i++) {
            const mlc_sketch left = mlc_sketch_make(ALL[i], 13, M, 5);
            const mlc_sketch right = mlc_sketch_make(ALL[(i + 1) % KINDS], 11, N, 6);
            mlc_scope_begin(ctx);
            CHECK_EQ(mlc_sketch_pass(view, &left, i ? &right : NULL, out), MLC_OK);
            mlc_tensor *wide = mlc_cast(a, MLC_F32);
            CHECK(close_to(out[0], mlc_sketch_apply(wide, &left, 0), 1e-5));
            if (i)
                CHECK(close_to(out[1], mlc_sketch_apply(wide, &right, 1), 1e-5));
            else
                CHECK(out[1] == NULL);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        mlc_safetensors_close(file);
    }
    remove(path);
    CHECK_OK(ctx);
}

TEST(sketch, sparse_bits_do_not_depend_on_threads)
{
    static double first[40 * 700], now[40 * 700];
    ONLY_ON_HOST();
    for (int32_t threads = 1; threads <= 3; threads++) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        d.threads = threads;
        mlc_ctx         *ctx = mlc_ctx_create(&d);
        const mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SASO, 40, 1000, 7);
        mlc_tensor      *x = test_rand(ctx, MLC_F32, mlc_dims2(1000, 700), 1, -1, 1);
        test_read(mlc_sketch_apply(x, &s, 0), threads > 1 ? now : first);
        CHECK(threads == 1 || memcmp(now, first, sizeof now) == 0);
        test_read(mlc_transpose(mlc_sketch_apply(mlc_transpose(x, 0, 1), &s, 1), 0, 1), now);
        CHECK(memcmp(now, first, sizeof now) == 0);        /* by lines, too */
        mlc_ctx_free(ctx);
    }
}

/* S of the first half of an identity and of ones after it: x -> [first rows of x, sum of x]. */
static mlc_tensor *own_apply(void *user, const mlc_sketch *s, mlc_tensor *x, bool transposed)
{
    ++*(int *)user;
    const int64_t k = s->rows - 1, n = s->cols;
    const int32_t last = x->ndim - 1;
    if (!transposed) {
        mlc_tensor *parts[2] = {mlc_slice(x, last, 0, k, 1), mlc_sum(x, mlc_dims1(last), true)};
        return mlc_concat(parts, 2, last);
    }
    mlc_tensor *t = mlc_slice(x, last, 0, k, 1);
    mlc_dims    before = mlc_dims_of(x->ndim, NULL), after = before;
    after.v[last] = n - k;
    return mlc_add(mlc_pad(t, before, after, MLC_PAD_CONSTANT, 0),
                   mlc_slice(x, last, k, k + 1, 1));
}

TEST(sketch, operator_of_the_program_is_one_too)
{
    mlc_ctx             *ctx = test_ctx();
    int                  calls = 0;
    const mlc_sketch_own own = {own_apply, &calls};
    mlc_sketch           s = mlc_sketch_make(MLC_SKETCH_OWN, 4, 10, 0);
    s.own = &own;
    s.scale = 0.5;
    for (int i = 0; i < 4; i++)
        check_any(ctx, &s, DTYPES[i % 2], i / 2 == 0);
    CHECK(calls > 0);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 9));
    CHECK(mlc_sketch_apply(x, &s, 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "takes 10");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    s.cols = 9, s.rows = 3;            /* what it makes of x of 10 is not of 5 */
    s.own = NULL;
    CHECK(mlc_sketch_apply(x, &s, 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "without `own`");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* Singular values of S on a subspace stay within 1 +- epsilon in nine draws of ten, at the size
 * that is asked for. */
TEST(sketch, size_keeps_subspaces)
{
    enum { COLS = 4096, RANK = 4, DRAWS = 20 };
    ONLY_ON_HOST();                    /* QR, singular values                                    */
    const double epsilon = 0.5, delta = 0.1;
    for (int i = 0; i < KINDS; i++) {
        mlc_ctx      *ctx = test_ctx();
        const int64_t rows = mlc_sketch_size(ALL[i], COLS, RANK, epsilon, delta);
        int           missed = 0;
        if (ALL[i] == MLC_SKETCH_SPARSE) {
            CHECK_EQ(rows, 0);
            continue;
        }
        CHECK(rows > RANK && rows <= COLS);
        CHECK(mlc_sketch_size(ALL[i], COLS, RANK, epsilon, 0.01) >= rows);
        CHECK(mlc_sketch_size(ALL[i], COLS, 2 * RANK, epsilon, delta) >= rows);
        CHECK(mlc_sketch_size(ALL[i], COLS, RANK, 0.1, delta) >= rows);
        for (int draw = 0; draw < DRAWS; draw++) {
            const mlc_sketch s = mlc_sketch_make(ALL[i], rows, COLS, (uint64_t)draw);
            mlc_scope_begin(ctx);
            mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(COLS, RANK), (uint32_t)draw, -1, 1);
            mlc_tensor *q = mlc_linalg_qr(x, NULL);
            double      v[RANK];
            test_read(mlc_linalg_svd(mlc_sketch_apply(q, &s, 0), NULL, NULL), v);
            missed += v[0] > 1 + epsilon || v[RANK - 1] < 1 - epsilon;
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK(missed <= DRAWS / 10);
    }
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_GAUSSIAN, 1 << 20, 1, 0.5, 2 * exp(-2.0)), 36);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_COUNT, 1 << 20, 1, 0.5, 0.5), 8);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_GAUSSIAN, 100, 50, 0.1, 0.1), 100);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_SRHT, 100, 50, 0.1, 0.1), 128);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_DENSE, 100, 5, 0.1, 0.1), 0);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_GAUSSIAN, 100, 101, 0.1, 0.1), 0);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_GAUSSIAN, 100, 5, 1, 0.1), 0);
    CHECK_EQ(mlc_sketch_size(MLC_SKETCH_GAUSSIAN, 100, 5, 0.1, (double)NAN), 0);
}

TEST(sketch, parts_and_pieces_say_what_is_wrong)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SASO, 4, 6, 1), p = mlc_sketch_part(&s, 2, 3, 0, 6);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(6, 5)), *out[2];
    CHECK(mlc_sketch_apply(x, &p, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "3 rows and 6 columns that is not in its sketch [4,6]");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    p = mlc_sketch_part(&s, 0, 4, INT64_MAX, 2);
    CHECK(mlc_sketch_apply(x, &p, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    p = mlc_sketch_part(&p, 1, 1, 1, 1);                   /* of one that is none */
    CHECK(mlc_sketch_matrix(ctx, &p, MLC_F32) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    s.nonzeros = 5;
    CHECK(mlc_sketch_apply(x, &s, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "5 nonzeros in a column of 4");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    s.nonzeros = 2;
    mlc_tensor *y = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 5));
    CHECK_EQ(mlc_sketch_add(y, x, &s, 0, false), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "y is [3,5]; S x is [4,5]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_sketch_pass(x, &s, &s, out), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "one on the right 6 columns");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(out[0] == NULL && out[1] == NULL);
    CHECK_EQ(mlc_sketch_pass(mlc_zeros(ctx, MLC_F32, mlc_dims2(6, 0)), &s, NULL, out), MLC_OK);
    CHECK(out[0] && mlc_numel(out[0]) == 0);
    CHECK_OK(ctx);
}

/* ---- the layer ------------------------------------------------------------------------------ */

typedef struct layer {
    mlc_tensor *x, *s1, *s2, *b, *u1, *u2;     /* U as matrices, in f64                          */
    mlc_sketch  u[2];
    int64_t     terms;
} layer;

/* Panther's forward: the mean over the terms of each half, times 0.5. U_i scaled by 1/sqrt(k). */
static mlc_tensor *panther(const layer *l, mlc_tensor *x, mlc_tensor *s1, mlc_tensor *s2,
                           mlc_tensor *b)
{
    const int64_t k = mlc_dim(s1, 0) / l->terms;
    mlc_tensor   *y = NULL;
    for (int64_t i = 0; i < l->terms; i++) {
        mlc_tensor *s1i = mlc_transpose(mlc_slice(s1, 0, i * k, (i + 1) * k, 1), 0, 1);
        mlc_tensor *s2i = mlc_slice(s2, 0, i * k, (i + 1) * k, 1);
        mlc_tensor *u1i = mlc_slice(l->u1, 0, i * k, (i + 1) * k, 1);
        mlc_tensor *u2i = mlc_transpose(mlc_slice(l->u2, 0, i * k, (i + 1) * k, 1), 0, 1);
        mlc_tensor *both = mlc_add(mlc_matmul(mlc_matmul(x, s1i), u1i),
                                   mlc_matmul(mlc_matmul(x, u2i), s2i));
        y = y ? mlc_add(y, both) : both;
    }
    y = mlc_mul_scalar(y, 0.5 / (double)l->terms);
    return b ? mlc_add(y, b) : y;
}

static layer layer_made(mlc_ctx *ctx, mlc_dtype dtype, mlc_sketch_kind kind, int64_t rows,
                        int64_t in, int64_t out, int64_t terms, int64_t rank)
{
    layer         l;
    const int64_t r = terms * rank;
    mlc_tensor  **all[4] = {&l.x, &l.s1, &l.s2, &l.b};
    l.x = test_rand(ctx, dtype, mlc_dims2(rows, in), 1, -1, 1);
    l.s1 = test_rand(ctx, dtype, mlc_dims2(r, in), 2, -1, 1);
    l.s2 = test_rand(ctx, dtype, mlc_dims2(r, out), 3, -1, 1);
    l.b = test_rand(ctx, dtype, mlc_dims1(out), 4, -1, 1);
    for (int i = 0; i < 4; i++)
        mlc_set_requires_grad(*all[i], true);
    for (int i = 0; i < 2; i++) {
        l.u[i] = mlc_sketch_make(kind, r, i ? in : out, 31);
        l.u[i].scale *= sqrt((double)terms);
        l.u[i].stream = (uint64_t)i;
    }
    l.u1 = mlc_sketch_matrix(ctx, &l.u[0], MLC_F64);
    l.u2 = mlc_sketch_matrix(ctx, &l.u[1], MLC_F64);
    l.terms = terms;
    return l;
}

/* y and all gradients against Panther's formula on f64 copies. */
static bool layer_held(mlc_ctx *ctx, mlc_dtype dtype, mlc_sketch_kind kind, int64_t rows,
                       int64_t in, int64_t out, int64_t terms, int64_t rank, mlc_act act, bool bias)
{
    static mlc_tensor *(*const acts[])(mlc_tensor *) = {NULL, mlc_relu, mlc_gelu, mlc_tanh,
                                                        mlc_sigmoid, mlc_silu, mlc_gelu_tanh};
    mlc_scope_begin(ctx);
    layer              l = layer_made(ctx, dtype, kind, rows, in, out, terms, rank);
    const mlc_epilogue e = {act, 0, NULL};
    mlc_tensor        *leaf[4] = {l.x, l.s1, l.s2, l.b}, *wide[4];
    for (int i = 0; i < 4; i++) {
        wide[i] = mlc_cast(mlc_detach(leaf[i]), MLC_F64);
        mlc_set_requires_grad(wide[i], true);
    }
    mlc_tensor *y = mlc_sklinear(l.x, l.s1, l.s2, bias ? l.b : NULL, &l.u[0], &l.u[1], terms, &e);
    mlc_tensor *want = panther(&l, wide[0], wide[1], wide[2], bias ? wide[3] : NULL);
    want = acts[act] ? acts[act](want) : want;
    mlc_tensor *dy = test_rand(ctx, dtype, mlc_dims2(rows, out), 9, -1, 1);
    mlc_backward(mlc_sum(mlc_mul(y, dy), mlc_dims0(), false));
    mlc_backward(mlc_sum(mlc_mul(want, mlc_cast(dy, MLC_F64)), mlc_dims0(), false));
    /* Roundings of 16 bits before a kink of relu may move its gradient: f32 and f64 only. */
    const double tol = precision(dtype) * (mlc_dtype_bytes(dtype) == 2 ? 2 : 8);
    bool held = close_to(y, want, tol);
    for (int i = 0; i < (bias ? 4 : 3); i++)
        held = close_to(mlc_grad(leaf[i]), mlc_grad(wide[i]), tol) && held;
    held = mlc_scope_end(ctx) == MLC_OK && held;
    if (!held)
        printf("  %s kind %d: %" PRId64 " x %" PRId64 " -> %" PRId64 ", %" PRId64 " x %"
               PRId64 ", act %d: %s\n", mlc_dtype_name(dtype), (int)kind, rows, in, out, terms,
               rank, (int)act, mlc_error(ctx));
    return held;
}

/* Terms 1 to 4, ranks 1 to 70, odd sizes, 1 to 33 rows, every way to make U. */
TEST(sketch, layer_is_panthers_formula)
{
    static const int64_t ranks[] = {1, 2, 3, 7, 8, 16, 17, 32, 33, 64, 70};
    static const int64_t sizes[] = {1, 5, 31, 33, 64, 129, 200};
    FOR_EACH_ISA(ctx) {
        for (int64_t i = 0; i < 88; i += test_stride(3)) {
            const mlc_dtype dtype = DTYPES[i % 4];
            const bool      half = mlc_dtype_bytes(dtype) == 2;
            const mlc_act   act = half ? MLC_ACT_NONE : (mlc_act)(i / 4 % 7);
            const int64_t   rank = ranks[i % 11], terms = 1 + i / 11 % 4;
            const int64_t   in = sizes[i * 5 % 7], out = sizes[(i * 3 + i / 7) % 7];
            mlc_sketch_kind kind = i % 5 < 2 ? MLC_SKETCH_SIGNS : (mlc_sketch_kind)(i % 5 - 1);
            if (kind == MLC_SKETCH_SRHT && rank * terms > (in < out ? in : out))
                kind = MLC_SKETCH_SIGNS;
            if (!CHECK(layer_held(ctx, dtype, kind, 1 + i * 7 % 33, in, out, terms, rank, act,
                                  i % 3 > 0)))
                return;
        }
    }
}

/* The fused operation beside finite differences. */
static mlc_tensor *sum_of(void *user, mlc_tensor *const *in, int32_t n)
{
    const layer       *l = (const layer *)user;
    const mlc_epilogue e = {MLC_ACT_TANH, 0, NULL};
    (void)n;
    return mlc_sum(mlc_sklinear(in[0], in[1], in[2], in[3], &l->u[0], &l->u[1], l->terms, &e),
                   mlc_dims0(), false);
}

TEST(sketch, layer_agrees_with_finite_differences)
{
    for (int i = 0; i < 8; i++) {
        mlc_ctx             *ctx = test_ctx();
        mlc_gradcheck_report report;
        layer l = layer_made(ctx, MLC_F64, (mlc_sketch_kind)(i % 4), 1 + i * 2, 7 + i, 12 - i,
                             1 + i % 4, i % 2 ? 1 : 1 + i % 3);
        mlc_tensor *const in[4] = {l.x, l.s1, l.s2, l.b};
        CHECK_EQ(mlc_gradcheck(sum_of, &l, in, 4, NULL, &report), MLC_OK);
        CHECK(report.ok);
    }
}

/* Inputs as users have them: more axes, one axis, slices with strides. */
TEST(sketch, layer_takes_inputs_of_any_rank)
{
    FOR_EACH_ISA(ctx) {
        layer       l = layer_made(ctx, MLC_F32, MLC_SKETCH_SIGNS, 12, 33, 20, 2, 9);
        mlc_tensor *y = mlc_sklinear(l.x, l.s1, l.s2, l.b, &l.u[0], &l.u[1], 2, NULL);
        mlc_tensor *cube = mlc_sklinear(mlc_reshape(l.x, mlc_dims3(3, 4, 33)), l.s1, l.s2, l.b,
                                        &l.u[0], &l.u[1], 2, NULL);
        mlc_tensor *one = mlc_sklinear(mlc_select(l.x, 0, 5), l.s1, l.s2, l.b, &l.u[0], &l.u[1], 2,
                                       NULL);
        mlc_tensor *turned = mlc_contiguous(mlc_transpose(l.x, 0, 1));
        mlc_tensor *strided = mlc_sklinear(mlc_transpose(turned, 0, 1), l.s1, l.s2, l.b, &l.u[0],
                                           &l.u[1], 2, NULL);
        CHECK_EQ(cube->ndim, 3);
        CHECK_EQ(one->ndim, 1);
        CHECK(close_to(mlc_reshape(cube, mlc_dims2(12, 20)), y, 1e-6));
        CHECK(close_to(one, mlc_select(y, 0, 5), 1e-6));
        CHECK(close_to(strided, y, 1e-6));
        CHECK_OK(ctx);
    }
}

/* No rows: gradients of parameters are there, and 0. */
TEST(sketch, layer_of_no_rows_has_gradients)
{
    for (int i = 0; i < 4; i++) {
        mlc_ctx    *ctx = test_ctx();
        layer       l = layer_made(ctx, i % 2 ? MLC_BF16 : MLC_F32, (mlc_sketch_kind)(i / 2 * 2), 0,
                                   20, 10, 1, 3);
        mlc_tensor *leaf[3] = {l.s1, l.s2, l.b};
        mlc_tensor *y = mlc_sklinear(l.x, l.s1, l.s2, l.b, &l.u[0], &l.u[1], 1, NULL);
        mlc_backward(mlc_sum(y, mlc_dims0(), false));
        for (int n = 0; n < 3; n++)
            if (CHECK(mlc_grad(leaf[n]) != NULL))
                CHECK(mlc_item(mlc_max(mlc_abs(mlc_grad(leaf[n])), mlc_dims0(), false)) == 0);
        CHECK_OK(ctx);
    }
}

/* ---- the module ----------------------------------------------------------------------------- */

static mlc_nn_sklinear_desc desc_of(int64_t in, int64_t out, int64_t terms, int64_t rank)
{
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(in, out, terms, rank);
    d.has_seed = true;
    d.seed = 12345;
    return d;
}

static void ignore_text(void *user, const char *text, size_t bytes)
{
    (void)user, (void)text, (void)bytes;
}

/* What lies in it: S alone is trained; a seed, bits or floats stand for U, and give the same. */
TEST(sketch, module_keeps_u_as_it_is_told)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *y[3], *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 40), 1, -1, 1);
        for (int store = 0; store < 3; store++) {
            mlc_nn_sklinear_desc d = desc_of(40, 30, 2, 5);
            d.store = (mlc_sketch_store)store;
            mlc_module *m = mlc_nn_sklinear_ex(ctx, &d);
            const int64_t numbers = 10 * 70 + 30;
            CHECK_EQ(mlc_module_numel(m, true), numbers);
            CHECK_EQ(mlc_module_numel(m, false), numbers);
            CHECK((mlc_module_param(m, store ? "u1" : "seed")) != NULL);
            mlc_copy_into(mlc_module_param(m, "s1"),
                          test_rand(ctx, MLC_F32, mlc_dims2(10, 40), 2, -1, 1));
            mlc_copy_into(mlc_module_param(m, "s2"),
                          test_rand(ctx, MLC_F32, mlc_dims2(10, 30), 3, -1, 1));
            mlc_copy_into(mlc_module_param(m, "bias"),
                          test_rand(ctx, MLC_F32, mlc_dims1(30), 4, -1, 1));
            y[store] = mlc_forward(m, x);
        }
        CHECK(close_to(y[1], y[0], 0));
        CHECK(close_to(y[2], y[0], 1e-6));
        CHECK_OK(ctx);
    }
}

/* A seed that a load brings is the one that counts; two layers do not share theirs. */
TEST(sketch, module_follows_its_seed)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_sklinear(ctx, 20, 20, 1, 4));
    mlc_module_add(net, mlc_nn_sklinear(ctx, 20, 20, 1, 4));
    mlc_tensor *seed[2] = {mlc_module_param(net, "0.seed"), mlc_module_param(net, "1.seed")};
    CHECK(mlc_item(seed[0]) != mlc_item(seed[1]));
    CHECK(mlc_item(seed[0]) >= 0 && mlc_item(seed[0]) < 9007199254740992.0);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 20), 1, -1, 1);
    mlc_tensor *before = mlc_forward(net, x);
    const int64_t other = 5;
    const double  old = mlc_item(seed[1]);
    CHECK_EQ(mlc_write(seed[1], &other, sizeof other), MLC_OK);
    mlc_tensor *off = mlc_abs(mlc_sub(mlc_forward(net, x), before));
    CHECK(mlc_item(mlc_max(off, mlc_dims0(), false)) > 0.1);
    const int64_t again = (int64_t)old;
    CHECK_EQ(mlc_write(seed[1], &again, sizeof again), MLC_OK);
    CHECK(close_to(mlc_forward(net, x), before, 0));
    CHECK_OK(ctx);
}

/* What a summary computes is shapes: the layers are as they were, and a file brings them back. */
TEST(sketch, module_survives_a_summary_and_a_file)
{
    const char *path = "build_sketch_test.safetensors";
    mlc_tensor *x, *y[2];
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_seed(ctx, 5 + (uint64_t)i);
        mlc_module_add(net, mlc_nn_skconv2d(ctx, 3, 4, 3, 1, 2));
        mlc_module_add(net, mlc_nn_flatten(ctx));
        mlc_module_add(net, mlc_nn_sklinear(ctx, 64, 10, 1, 4));
        CHECK_EQ(mlc_summary(net, mlc_dims4(2, 3, 4, 4), ignore_text, NULL), MLC_OK);
        if (i)
            CHECK_EQ(mlc_load(net, path), MLC_OK);
        x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 4, 4), 1, -1, 1);
        y[i] = mlc_forward(net, x);
        static double v[2][20];
        test_read(y[i], v[i]);
        if (i)
            CHECK(memcmp(v[0], v[1], sizeof v[0]) == 0);
        else
            CHECK_EQ(mlc_save(net, path), MLC_OK);
        CHECK_OK(ctx);
    }
    remove(path);
}

/* Bits that change before backward are found out, as for any tensor. */
TEST(sketch, layer_watches_its_bits)
{
    mlc_ctx *ctx = test_ctx();
    layer    l = layer_made(ctx, MLC_F32, MLC_SKETCH_SIGNS, 3, 40, 20, 1, 4);
    for (int i = 0; i < 2; i++)
        l.u[i].stored = mlc_sketch_bits(ctx, &l.u[i]);
    mlc_tensor *y = mlc_sklinear(l.x, l.s1, l.s2, NULL, &l.u[0], &l.u[1], 1, NULL);
    mlc_fill_(l.u[1].stored, 0);
    CHECK(mlc_backward(mlc_sum(y, mlc_dims0(), false)) != MLC_OK);
    CHECK_HAS(mlc_error(ctx), "sklinear");
    mlc_error_clear(ctx);
}

/* A parameter may be the residual of a linear layer; x may have other axes than 2. */
TEST(sketch, autocast_rounds_what_is_no_weight)
{
    mlc_ctx           *ctx = test_ctx();
    layer              l = layer_made(ctx, MLC_F32, MLC_SKETCH_SIGNS, 4, 8, 8, 1, 4);
    mlc_module        *m = mlc_nn_linear(ctx, 8, 4);
    const mlc_epilogue e = {MLC_ACT_NONE, 0, mlc_module_param(m, "weight")};
    mlc_autocast_begin(ctx, MLC_BF16);
    CHECK(mlc_linear_ex(l.x, l.s1, NULL, NULL) != NULL);
    CHECK(mlc_linear_ex(mlc_slice(l.x, 0, 0, 4, 1), mlc_module_param(mlc_nn_linear(ctx, 8, 8),
                                                                     "weight"), NULL, &e) != NULL);
    mlc_tensor *cube = mlc_reshape(l.x, mlc_dims3(2, 2, 8));
    CHECK(mlc_sklinear(cube, l.s1, l.s2, l.b, &l.u[0], &l.u[1], 1, NULL) != NULL);
    mlc_nn_sklinear_desc d = desc_of(8, 8, 1, 2);
    d.store = MLC_SKETCH_AS_FLOATS;
    CHECK(mlc_forward(mlc_nn_sklinear_ex(ctx, &d), l.x) != NULL);
    mlc_autocast_end(ctx);
    CHECK_OK(ctx);
}

/* In a sequential an activation and a dropout run in the layer's pass, with the same values. */
TEST(sketch, module_fuses_in_a_sequential)
{
    FOR_EACH_ISA(ctx) {
        mlc_module *net = mlc_nn_sequential(ctx), *layer_alone;
        mlc_module_add(net, mlc_nn_sklinear(ctx, 40, 40, 1, 8));
        mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_module_add(net, mlc_nn_sklinear(ctx, 40, 24, 2, 4));
        mlc_module_add(net, mlc_nn_gelu(ctx));
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(9, 40), 1, -1, 1);
        mlc_set_requires_grad(x, true);
        mlc_tensor *h = x;
        for (int i = 0; i < 4; i++) {
            layer_alone = mlc_module_child(net, i);
            h = mlc_forward(layer_alone, h);
        }
        mlc_tensor *dy = test_rand(ctx, MLC_F32, mlc_dims2(9, 24), 2, -1, 1);
        mlc_tensor *names[2] = {mlc_module_param(net, "0.s1"), mlc_module_param(net, "0.s2")};
        mlc_tensor *g[3];
        mlc_backward(mlc_sum(mlc_mul(h, dy), mlc_dims0(), false));
        for (int i = 0; i < 3; i++) {
            g[i] = mlc_copy(mlc_grad(i < 2 ? names[i] : x));
            mlc_zero_grad(i < 2 ? names[i] : x);
        }
        mlc_tensor *fused = mlc_forward(net, x);
        mlc_backward(mlc_sum(mlc_mul(fused, dy), mlc_dims0(), false));
        CHECK(close_to(fused, h, 0));
        for (int i = 0; i < 3; i++)
            CHECK(close_to(mlc_grad(i < 2 ? names[i] : x), g[i], 1e-6));
        CHECK_OK(ctx);
    }
}

/* Under autocast: 16-bit y, f32 gradients of parameters; the values of f32 within 16 bits. */
TEST(sketch, module_runs_under_autocast)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 2; i++) {
            mlc_module *m = mlc_nn_sklinear(ctx, 100, 70, 1, i ? 33 : 64);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(37, 100), 1, -1, 1);
            mlc_tensor *dy = test_rand(ctx, MLC_F32, mlc_dims2(37, 70), 2, -1, 1), *g[3];
            const char *const names[3] = {"s1", "s2", "bias"};
            mlc_tensor *want = mlc_forward(m, x);
            mlc_backward(mlc_sum(mlc_mul(want, dy), mlc_dims0(), false));
            for (int n = 0; n < 3; n++) {
                g[n] = mlc_copy(mlc_grad(mlc_module_param(m, names[n])));
                mlc_zero_grad(mlc_module_param(m, names[n]));
            }
            mlc_autocast_begin(ctx, MLC_BF16);
            mlc_tensor *y = mlc_forward(m, x);
            mlc_autocast_end(ctx);
            CHECK_EQ(y->dtype, MLC_BF16);
            CHECK(close_to(y, want, 0.02));
            mlc_backward(mlc_sum(mlc_mul(mlc_cast(y, MLC_F32), dy), mlc_dims0(), false));
            for (int n = 0; n < 3; n++) {
                CHECK_EQ(mlc_grad(mlc_module_param(m, names[n]))->dtype, MLC_F32);
                CHECK(close_to(mlc_grad(mlc_module_param(m, names[n])), g[n], 0.02));
            }
        }
        CHECK_OK(ctx);
    }
}

/* ---- starts --------------------------------------------------------------------------------- */

/* A fresh layer's outputs spread as a dense layer's, within 2 %. */
TEST(sketch, fresh_start_has_the_scale_of_a_dense_layer)
{
    static const int64_t pairs[][2] = {{1, 16}, {3, 32}, {1, 64}};
    mlc_ctx *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(400, 256), 1, -1, 1);
    for (int i = 0; i < 3 * 3; i++) {
        const mlc_sketch_kind kinds[3] = {MLC_SKETCH_SIGNS, MLC_SKETCH_COUNT, MLC_SKETCH_SRHT};
        double var[2] = {0, 0};
        for (int seed = 0; seed < 12; seed++) {
            mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(256, 512, pairs[i % 3][0],
                                                         pairs[i % 3][1]);
            d.u = kinds[i / 3];
            d.no_bias = d.has_seed = true;
            d.seed = (uint64_t)seed;
            mlc_nn_linear_desc dense = mlc_nn_linear_desc_make(256, 512);
            dense.no_bias = true;
            mlc_module *m[2] = {mlc_nn_linear_ex(ctx, &dense), mlc_nn_sklinear_ex(ctx, &d)};
            for (int k = 0; k < 2; k++) {
                mlc_scope_begin(ctx);
                mlc_tensor *y = mlc_forward(m[k], x);
                var[k] += mlc_item(mlc_mean(mlc_mul(y, y), mlc_dims0(), false));
                mlc_scope_end(ctx);
                mlc_module_free(m[k]);
            }
        }
        CHECK_NEAR(sqrt(var[1] / var[0]), 1, 0.02);
    }
    CHECK_OK(ctx);
}

/* Panther's copy: unbiased, and as far off as (n+m-2)/(4r), (n+m-2r)/(4r) if U is orthogonal. */
TEST(sketch, copy_is_unbiased_with_the_variance_derived)
{
    enum { IN = 96, OUT = 64, SEEDS = 60 };
    for (int kind = 0; kind < 2; kind++)
        for (int64_t terms = 1; terms <= 3; terms += 2) {
            mlc_ctx      *ctx = test_ctx();
            const int64_t r = 12 * terms;
            double        squares = 0, error;
            mlc_tensor   *w = test_rand(ctx, MLC_F32, mlc_dims2(OUT, IN), 1, -1, 1);
            mlc_tensor   *eye = mlc_eye(ctx, MLC_F32, IN, IN), *sum = mlc_zeros(ctx, MLC_F32,
                                                                         mlc_dims2(IN, OUT));
            for (int seed = 0; seed < SEEDS; seed++) {
                mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(IN, OUT, terms, 12);
                d.u = kind ? MLC_SKETCH_SRHT : MLC_SKETCH_SIGNS;
                d.no_bias = d.has_seed = true, d.seed = (uint64_t)seed + 100;
                d.weight = w, d.start = MLC_SKETCH_COPY, d.error = &error;
                mlc_module *m = mlc_nn_sklinear_ex(ctx, &d);
                mlc_no_grad_begin(ctx);
                mlc_copy_into(sum, mlc_add(sum, mlc_forward(m, eye)));
                mlc_no_grad_end(ctx);
                squares += error * error;
                mlc_module_free(m);
            }
            const double n = IN + OUT, want = kind ? (n - 2 * (double)r) / (4 * (double)r)
                                                   : (n - 2) / (4 * (double)r);
            /* An SRHT of 96 columns is one of 128: its rows are not quite orthogonal then.      */
            CHECK_NEAR(squares / SEEDS / want, 1, kind ? 0.12 : 0.04);
            mlc_tensor  *off = mlc_sub(mlc_mul_scalar(sum, 1.0 / SEEDS), mlc_transpose(w, 0, 1));
            const double bias = mlc_item(mlc_norm(off, 2, mlc_dims0(), false)) /
                                mlc_item(mlc_norm(w, 2, mlc_dims0(), false));
            CHECK_NEAR(bias * bias * SEEDS / want, 1, 0.2);        /* what a mean of SEEDS has   */
            CHECK_OK(ctx);
        }
}

/* From a weight: what each start reports is what the layer does, and in this order of errors. */
TEST(sketch, starts_from_a_weight)
{
    enum { IN = 60, OUT = 48 };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(OUT, IN), 1, -1, 1);
    mlc_tensor *b = test_rand(ctx, MLC_F32, mlc_dims1(OUT), 2, -1, 1);
    mlc_tensor *eye = mlc_eye(ctx, MLC_F32, IN, IN);
    double      error[5];
    for (int start = MLC_SKETCH_COPY; start <= MLC_SKETCH_SUBSPACE; start++) {
        mlc_nn_sklinear_desc d = desc_of(IN, OUT, 2, 7);
        d.weight = w, d.bias = b, d.start = (mlc_sketch_start)start, d.error = &error[start];
        mlc_module *m = mlc_nn_sklinear_ex(ctx, &d);
        mlc_tensor *made = mlc_sub(mlc_forward(m, eye), b);
        mlc_tensor *off = mlc_sub(made, mlc_transpose(w, 0, 1));
        CHECK_NEAR(mlc_item(mlc_norm(off, 2, mlc_dims0(), false)) /
                       mlc_item(mlc_norm(w, 2, mlc_dims0(), false)), error[start], 1e-4);
    }
    CHECK(error[MLC_SKETCH_COPY] > error[MLC_SKETCH_COPY_SCALED]);
    CHECK(error[MLC_SKETCH_COPY_SCALED] > error[MLC_SKETCH_FIT]);
    CHECK(error[MLC_SKETCH_FIT] > error[MLC_SKETCH_SUBSPACE]);
    /* Generic: (1 - r/n)(1 - r/m) of the squares are left by the best S for a random U.         */
    CHECK_NEAR(error[MLC_SKETCH_FIT], sqrt((1 - 14.0 / IN) * (1 - 14.0 / OUT)), 0.03);
    CHECK_OK(ctx);
}

/* A weight of rank 2r is taken over exactly by a subspace start, and by a fit if U is large. */
TEST(sketch, subspace_of_a_weight_of_low_rank_is_exact)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = mlc_matmul(test_rand(ctx, MLC_F64, mlc_dims2(50, 10), 1, -1, 1),
                               test_rand(ctx, MLC_F64, mlc_dims2(10, 70), 2, -1, 1));
    double      error;
    mlc_nn_sklinear_desc d = desc_of(70, 50, 1, 5);
    d.weight = w, d.start = MLC_SKETCH_SUBSPACE, d.error = &error;
    d.has_dtype = true, d.dtype = MLC_F64;
    CHECK(mlc_nn_sklinear_ex(ctx, &d) != NULL);
    CHECK(error < 1e-6);
    d.low_rank = 64, d.start = MLC_SKETCH_FIT;             /* more rows than the outputs have     */
    CHECK(mlc_nn_sklinear_ex(ctx, &d) != NULL);
    CHECK(error < 1e-6);
    CHECK_OK(ctx);
}

/* ---- Panther's tensors ---------------------------------------------------------------------- */

/* There and back: the same outputs, the same tensors. */
TEST(sketch, panthers_tensors_come_and_go)
{
    mlc_ctx          *ctx = test_ctx();
    mlc_nn_sklinear_desc d = desc_of(21, 13, 3, 4);
    mlc_tensor       *t[4], *u[4], *x = test_rand(ctx, MLC_F32, mlc_dims2(6, 21), 1, -1, 1);
    mlc_module       *m = mlc_nn_sklinear_ex(ctx, &d);
    CHECK_EQ(mlc_sklinear_to_panther(m, t), MLC_OK);
    const int64_t shapes[4][3] = {{3, 21, 4}, {3, 4, 13}, {3, 4, 13}, {3, 21, 4}};
    for (int i = 0; i < 12; i++)
        CHECK_EQ(mlc_dim(t[i / 3], i % 3), shapes[i / 3][i % 3]);
    /* y of one term and input by Panther's own formula. */
    mlc_tensor *y = mlc_forward(m, x), *sum = mlc_zeros(ctx, MLC_F32, mlc_dims2(6, 13));
    for (int64_t i = 0; i < 3; i++) {
        mlc_tensor *one = mlc_matmul(mlc_matmul(x, mlc_select(t[0], 0, i)), mlc_select(t[2], 0, i));
        mlc_tensor *two = mlc_matmul(mlc_matmul(x, mlc_select(t[3], 0, i)), mlc_select(t[1], 0, i));
        sum = mlc_add(sum, mlc_add(one, two));
    }
    sum = mlc_add(mlc_mul_scalar(sum, 1.0 / 6), mlc_module_param(m, "bias"));
    CHECK(close_to(y, sum, 1e-5));
    mlc_module *again = mlc_nn_sklinear_panther(ctx, t[0], t[1], t[2], t[3],
                                                mlc_module_param(m, "bias"));
    CHECK(close_to(mlc_forward(again, x), y, 1e-5));
    CHECK_EQ(mlc_sklinear_to_panther(again, u), MLC_OK);
    for (int i = 0; i < 4; i++)
        CHECK(close_to(u[i], t[i], 0));
    CHECK(mlc_nn_sklinear_panther(ctx, t[0], t[1], t[3], t[2], NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "[l,k,out]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_sklinear_to_panther(m, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "sklinear_to_panther: out is NULL; it takes 4 tensors");
    CHECK_EQ(mlc_sklinear_to_panther(mlc_nn_relu(ctx), u), MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

/* ---- convolutions --------------------------------------------------------------------------- */

/* A convolution, then the signs as a 1x1 convolution over 2 l, and the bias; groups share them. */
TEST(sketch, convolution_is_panthers)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 4; i++) {
            const int64_t   groups = i % 2 ? 2 : 1, c = 6, m = 10;
            const int64_t   l = 1 + i / 2, k = 3, r = 2 * l * k;
            mlc_nn_skconv_desc d = mlc_nn_skconv_desc_make(2, c, m, 3, l, k);
            d.conv.conv.groups = groups, d.conv.conv.padding = mlc_dims2(2, 0);
            d.conv.conv.stride = mlc_dims2(1, 2), d.conv.conv.dilation = mlc_dims2(1 + i % 2, 1);
            d.has_seed = true, d.seed = 9;
            mlc_module *net = mlc_nn_skconv(ctx, &d);
            mlc_sketch  u = mlc_sketch_make(MLC_SKETCH_SIGNS, r, m / groups, 9);
            u.stream = 1, u.scale = 1 / sqrt((double)k) / (2.0 * (double)l);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, c, 7, 8), 1, -1, 1);
            mlc_set_requires_grad(x, true);
            mlc_tensor *y = mlc_forward(net, x), *dy = NULL, *g[3];
            mlc_tensor *one = mlc_reshape(mlc_contiguous(mlc_transpose(
                                  mlc_sketch_matrix(ctx, &u, MLC_F32), 0, 1)),
                                          mlc_dims4(m / groups, r, 1, 1));
            if (groups == 2)
                one = mlc_concat((mlc_tensor *const[2]){one, one}, 2, 0);
            mlc_conv_desc spread = mlc_conv_desc_make();
            spread.groups = groups;
            mlc_tensor *s = mlc_module_param(net, "s.weight"), *b = mlc_module_param(net, "bias");
            mlc_tensor *const leaf[3] = {x, s, b};
            dy = test_rand(ctx, MLC_F32, mlc_dims_of(4, y->shape), 3, -1, 1);
            mlc_backward(mlc_sum(mlc_mul(y, dy), mlc_dims0(), false));
            for (int n = 0; n < 3; n++) {
                g[n] = mlc_copy(mlc_grad(leaf[n]));
                mlc_zero_grad(leaf[n]);
            }
            mlc_tensor *want = mlc_conv(mlc_conv(x, s, NULL, &d.conv.conv), one, b, &spread);
            mlc_backward(mlc_sum(mlc_mul(want, dy), mlc_dims0(), false));
            CHECK(close_to(y, want, 1e-5));
            for (int n = 0; n < 3; n++)
                CHECK(close_to(g[n], mlc_grad(leaf[n]), 1e-5));
        }
        CHECK_OK(ctx);
    }
}

/* The copy is unbiased; a fit with as many signs as channels is exact. */
TEST(sketch, convolution_starts_from_a_weight)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_tensor     *w = test_rand(ctx, MLC_F32, mlc_dims4(8, 3, 3, 3), 1, -1, 1);
    mlc_tensor     *b = test_rand(ctx, MLC_F32, mlc_dims1(8), 2, -1, 1);
    mlc_tensor     *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 6, 5, 5), 3, -1, 1), *sum = NULL;
    double          error;
    mlc_nn_skconv_desc d = mlc_nn_skconv_desc_make(2, 6, 8, 3, 1, 8);
    d.conv.conv.groups = 2, d.conv.conv.same = true;
    d.weight = w, d.bias = b, d.error = &error, d.has_seed = true;
    mlc_tensor *want = mlc_conv(x, w, b, &d.conv.conv);
    CHECK(close_to(mlc_forward(mlc_nn_skconv(ctx, &d), x), want, 1e-4));
    CHECK(error < 1e-6);
    d.start = MLC_SKETCH_COPY, d.low_rank = 4;
    for (d.seed = 0; d.seed < 200; d.seed++) {
        mlc_module *m = mlc_nn_skconv(ctx, &d);
        mlc_tensor *y = mlc_forward(m, x);
        sum = mlc_detach(sum ? mlc_add(sum, y) : y);
        mlc_module_free(m);
    }
    CHECK(close_to(mlc_mul_scalar(sum, 1.0 / 200), want, 0.25));
    CHECK(mlc_nn_skconv2d(ctx, 3, 5, 3, 0, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    mlc_tensor *y = mlc_forward(mlc_nn_skconv2d(ctx, 6, 5, 3, 2, 2), x);
    CHECK_EQ(mlc_dim(y, 1), 5);
    CHECK_EQ(mlc_dim(y, 3), 5);
    CHECK_OK(ctx);
}

/* ---- whole models --------------------------------------------------------------------------- */

static char   table[4096];
static void into_table(void *user, const char *text, size_t bytes)
{
    (void)user;
    const size_t at = strlen(table);
    if (at + bytes < sizeof table) {
        memcpy(table + at, text, bytes);
        table[at + bytes] = 0;
    }
}

/* What was frozen is not trained as a sketch; what another layer shares stays. */
TEST(sketch, model_keeps_frozen_and_tied_layers)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *tied = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 64));
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 64));
    mlc_module_add(net, tied);
    mlc_module_add(net, mlc_nn_conv1d(ctx, 64, 64, 3, 1, 0));
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 64));
    mlc_module_tie(tied, "weight", mlc_module_param(net, "1.weight"));
    mlc_module_tie(tied, "bias", mlc_module_param(net, "4.bias"));
    CHECK_EQ(mlc_module_freeze(net, "0.*", true), MLC_OK);
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 4);
    int32_t               n;
    d.start = MLC_SKETCH_COPY_SCALED;
    const int64_t before = mlc_module_numel(net, true);
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 2);
    CHECK_EQ(mlc_module_numel(net, true), before - 64 * 64 * 3 + 8 * 64 * 3);
    CHECK_EQ(mlc_module_param(net, "1.weight")->shape[0], 64);
    CHECK_EQ(mlc_module_param(net, "4.weight")->shape[0], 64);
    CHECK_OK(ctx);
    d.fresh = true;
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    d = mlc_sketch_model_desc_make((int64_t)1 << 40, (int64_t)1 << 40);
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_sketch_cost_of((int64_t)1 << 40, (int64_t)1 << 40, 1, 1).dense == INT64_MAX);
    CHECK(mlc_sketch_cost_of(INT64_MIN, 4, 1, 1).dense == INT64_MIN);
    CHECK(mlc_sketch_cost_of(4, 4, INT64_MIN, 2).trainable == INT64_MIN);
}

/* Only what the pattern names and what gains; the others keep values and optimizer state. */
TEST(sketch, model_is_sketched_by_name_and_size)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *body = mlc_nn_sequential(ctx);
    mlc_module_add_named(net, "stem", mlc_nn_conv2d(ctx, 3, 64, 3, 1, 0));
    mlc_module_add(body, mlc_nn_conv2d(ctx, 64, 64, 3, 1, 0));
    mlc_module_add(body, mlc_nn_relu(ctx));
    mlc_module_add_named(net, "body", body);
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add_named(net, "wide", mlc_nn_linear(ctx, 1024, 256));
    mlc_module_add_named(net, "head", mlc_nn_linear(ctx, 256, 10));
    mlc_optim  *opt = mlc_adamw(net, 1e-3);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 3, 8, 8), 1, -1, 1);
    for (int i = 0; i < 2; i++) {
        mlc_scope_begin(ctx);
        mlc_backward(mlc_mean(mlc_forward(net, x), mlc_dims0(), false));
        mlc_optim_step(opt);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_tensor *head = mlc_copy(mlc_module_param(net, "head.weight"));
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 8);
    int32_t               n = -1;
    d.write = into_table;
    d.pattern = "nothing*";
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 0);
    d.pattern = NULL;
    table[0] = 0;
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 3);                    /* stem, body.0 and wide gain, the head does not          */
    CHECK_HAS(table, "body.0");
    CHECK_HAS(table, "262,144");
    CHECK_HAS(table, "3 layers: 300,736 numbers became 19,888");
    CHECK(close_to(mlc_module_param(net, "head.weight"), head, 0));
    CHECK_EQ(mlc_module_param(net, "wide.s1")->shape[0], 8);
    for (int i = 0; i < 2; i++) {
        mlc_scope_begin(ctx);
        mlc_backward(mlc_mean(mlc_forward(net, x), mlc_dims0(), false));
        mlc_optim_step(opt);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);       /* nothing is left to do              */
    CHECK_EQ(n, 0);
    CHECK_EQ(mlc_sketch_model(mlc_nn_linear(ctx, 4, 4), &d, &n), MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

/* Heads of language models are children that may be replaced.                                   */
TEST(sketch, model_replaces_heads_of_language_models)
{
    mlc_ctx              *ctx = test_ctx();
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 2);
    mlc_nn_gpt_desc       g = mlc_nn_gpt_desc_make(64, 8, 1, 16, 2);
    mlc_nn_bert_desc      b = mlc_nn_bert_desc_make(64, 8, 1, 16, 2);
    g.tied = false;
    mlc_module *nets[2] = {mlc_nn_gpt(ctx, &g), mlc_nn_bert(ctx, &b)};
    const char *patterns[2] = {"head", "pooler"};
    for (int i = 0; i < 2; i++) {
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 5), 60, 3), *in[1] = {x}, *out[2];
        int32_t     n = 0;
        d.pattern = patterns[i];
        mlc_module_train(nets[i], false);
        CHECK_EQ(mlc_sketch_model(nets[i], &d, &n), MLC_OK);
        CHECK_EQ(n, 1);
        CHECK_EQ(mlc_module_forward(nets[i], in, 1, out, i + 1), MLC_OK);
        CHECK_OK(ctx);
        CHECK_EQ(out[i]->shape[out[i]->ndim - 1], i ? 16 : 64);
    }
}

/* ---- Panther in PyTorch ---------------------------------------------------------------------
 * golden/make_sketch_goldens.py has the same cases, and gives all tensors Panther's shapes: S1s
 * (l,n,k), S2s (l,k,m). Faults (a) to (g) are those of Panther's own paths, by reading. */

enum { GOLDEN_WHOLE = 400, GOLDEN_STEP = 11 };

static const struct { int64_t rows, in, out, terms, rank, bias; } PANTHER[] = {
    {5, 24, 40, 1, 16, 1},             /* (a) one term, k <= 96: y without 1/(2l)                */
    {8, 29, 71, 1, 70, 1},             /* the same                                               */
    {3, 41, 37, 2, 97, 1},             /* (b) more terms, k > 96: y with 1/(2l) twice            */
    {3, 40, 130, 1, 2, 1},             /* (c) columns 16 to 63 of 64 with the bias of 0 to 15;   */
                                       /*     rows of U1 of over one block of Philox             */
    {2, 260, 3, 2, 5, 1},              /* rows of U2 of three blocks                             */
    {4, 150, 19, 4, 17, 1},            /* (d) U2 over sqrt(n), n nine times k                    */
    {33, 31, 35, 2, 3, 1},             /* (e) db over 2l                                         */
    {17, 65, 48, 4, 8, 1},             /* (f), (g) dS1, dS2 without 1/(2l): eight times as large */
    {16, 64, 64, 1, 64, 1},            /* whole tiles everywhere                                 */
    {6, 47, 35, 2, 39, 0},
    {9, 31, 21, 3, 32, 0},
    {2, 1, 9, 3, 7, 0},
    {1, 7, 5, 1, 1, 0},
    {1, 1037, 1031, 1, 3, 0}};         /* more words of a row than are made at a time            */
enum { N_PANTHER = (int)(sizeof PANTHER / sizeof *PANTHER) };

static mlc_tensor *spread_tensor(mlc_ctx *ctx, mlc_dims shape, int stream)
{
    static double values[GOLDEN_MOST];
    int64_t       n = 1;
    for (int32_t d = 0; d < shape.n; d++)
        n *= shape.v[d];
    if (!CHECK(n <= GOLDEN_MOST))
        return NULL;
    for (int64_t i = 0; i < n; i++)
        values[i] = golden_spread(i, (uint32_t)stream);
    return test_tensor(ctx, MLC_F64, shape, values);
}

/* The stored elements of t, within tol of the largest of them. */
static bool stored_agree(mlc_tensor *t, mlc_tensor *want, double tol)
{
    static double got[GOLDEN_MOST], stored[GOLDEN_MOST];
    const int64_t n = mlc_numel(t), step = n > GOLDEN_WHOLE ? GOLDEN_STEP : 1;
    double        top = 0;
    if (!CHECK(t != NULL && want != NULL && n <= GOLDEN_MOST) ||
        !CHECK_EQ(mlc_numel(want), (n + step - 1) / step))
        return false;
    test_read(mlc_contiguous(t), got);
    test_read(want, stored);
    for (int64_t i = 0; i < mlc_numel(want); i++)
        top = fmax(top, fabs(stored[i]));
    for (int64_t i = 0; i < mlc_numel(want); i++)
        if (!(fabs(got[i * step] - stored[i]) <= tol * top)) {
            printf("  element %" PRId64 " is %.17g, want %.17g, of %g\n", i * step, got[i * step],
                   stored[i], top);
            return false;
        }
    return true;
}

/* Of s1 or its gradient, [r,n]: as Panther's S1s. */
static mlc_tensor *panthers_s1(mlc_tensor *s1, int64_t terms)
{
    const int64_t k = mlc_dim(s1, 0) / terms;
    return mlc_transpose(mlc_reshape(s1, mlc_dims3(terms, k, mlc_dim(s1, 1))), 1, 2);
}

/* x, s1, s2, b of a case as leaves. */
static void panther_leaves(mlc_ctx *ctx, int c, mlc_dtype dtype, mlc_tensor *leaf[4])
{
    const int64_t in = PANTHER[c].in, out = PANTHER[c].out, l = PANTHER[c].terms;
    const int64_t k = PANTHER[c].rank;
    mlc_tensor   *s1 = spread_tensor(ctx, mlc_dims3(l, in, k), 10 * c + 1);
    leaf[0] = spread_tensor(ctx, mlc_dims2(PANTHER[c].rows, in), 10 * c);
    leaf[1] = mlc_reshape(mlc_contiguous(mlc_transpose(s1, 1, 2)), mlc_dims2(l * k, in));
    leaf[2] = spread_tensor(ctx, mlc_dims2(l * k, out), 10 * c + 2);
    leaf[3] = PANTHER[c].bias ? spread_tensor(ctx, mlc_dims1(out), 10 * c + 3) : NULL;
    for (int i = 0; i < 3 + PANTHER[c].bias; i++) {
        leaf[i] = mlc_cast(leaf[i], dtype);
        mlc_set_requires_grad(leaf[i], true);
    }
}

/* y and all gradients. Seed and stream have bits above 2^32, so that all words of a block count. */
static void check_panther_case(mlc_ctx *ctx, const golden_file *f, int c, mlc_dtype dtype,
                               double tol)
{
    static const char *const names[4] = {"dx", "ds1", "ds2", "db"};
    const int64_t out = PANTHER[c].out, l = PANTHER[c].terms, r = l * PANTHER[c].rank;
    mlc_tensor   *leaf[4];
    mlc_sketch    u[2];
    panther_leaves(ctx, c, dtype, leaf);
    for (int i = 0; i < 2; i++) {
        u[i] = mlc_sketch_make(MLC_SKETCH_SIGNS, r, i ? PANTHER[c].in : out, 0x9E3779B97F4A7C15u);
        u[i].scale *= sqrt((double)l);
        u[i].stream = (uint64_t)c << 32 | (uint64_t)(i + 1);
    }
    mlc_tensor *y = mlc_sklinear(leaf[0], leaf[1], leaf[2], leaf[3], &u[0], &u[1], l, NULL);
    mlc_tensor *dy = spread_tensor(ctx, mlc_dims2(PANTHER[c].rows, out), 10 * c + 4);
    mlc_backward(mlc_sum(mlc_mul(y, mlc_cast(dy, dtype)), mlc_dims0(), false));
    bool held = CHECK(stored_agree(y, golden_find(f, "%d.y", c), tol));
    for (int i = 0; i < 3 + PANTHER[c].bias; i++) {
        mlc_tensor *g = i == 1 ? panthers_s1(mlc_grad(leaf[i]), l) : mlc_grad(leaf[i]);
        if (!CHECK(stored_agree(g, golden_find(f, "%d.%s", c, names[i]), tol))) {
            printf("  %s\n", names[i]);
            held = false;
        }
    }
    if (!held)
        printf("  case %d in %s\n", c, mlc_dtype_name(dtype));
}

/* Panther's start, S1 = W U1^T and S2 = U2^T W. Seen here alone: (d) where the module scales its U,
 * streams of U1 and U2 exchanged, a copy with a factor. */
static void check_copied_start(mlc_ctx *ctx, const golden_file *f, mlc_dtype dtype, double tol)
{
    enum { ROWS = 7, IN = 37, OUT = 29, TERMS = 3, RANK = 10 };
    mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(IN, OUT, TERMS, RANK);
    d.start = MLC_SKETCH_COPY;
    d.weight = spread_tensor(ctx, mlc_dims2(OUT, IN), 202);
    d.bias = spread_tensor(ctx, mlc_dims1(OUT), 203);
    d.has_seed = d.has_dtype = true;
    d.seed = 0x1B2C3D4E5F6071u;
    d.dtype = dtype == MLC_F64 ? MLC_F64 : MLC_F32;
    mlc_module *m = mlc_nn_sklinear_ex(ctx, &d);
    CHECK_EQ(mlc_module_to(m, dtype), MLC_OK);
    mlc_tensor *x = mlc_cast(spread_tensor(ctx, mlc_dims2(ROWS, IN), 201), dtype);
    CHECK(stored_agree(mlc_forward(m, x), golden_find(f, "copy.y"), tol));
    CHECK(stored_agree(panthers_s1(mlc_module_param(m, "s1"), TERMS), golden_find(f, "copy.s1"),
                       tol));
    CHECK(stored_agree(mlc_module_param(m, "s2"), golden_find(f, "copy.s2"), tol));
}

TEST(sketch, layer_agrees_with_panther_in_pytorch)
{
    static const struct { mlc_dtype dtype; double tol; } precisions[] = {
        {MLC_F64, 1e-12}, {MLC_F32, 2e-5}, {MLC_BF16, 2e-2}};
    FOR_EACH_ISA(ctx) {
        const golden_file f = golden_open(ctx, "sketch.safetensors");
        for (int p = 0; p < 3; p++) {
            for (int c = 0; c < N_PANTHER; c++) {
                mlc_scope_begin(ctx);
                check_panther_case(ctx, &f, c, precisions[p].dtype, precisions[p].tol);
                CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            }
            check_copied_start(ctx, &f, precisions[p].dtype, precisions[p].tol);
        }
        CHECK_OK(ctx);
    }
}

/* ---- costs, errors -------------------------------------------------------------------------- */

static char said[512];
static void listen(void *user, mlc_log_level level, const char *text)
{
    (void)user;
    if (level == MLC_LOG_WARNING)
        snprintf(said, sizeof said, "%s", text);
}

/* Panther's own inequality: 2 l k (n + m) > n m, strictly. */
TEST(sketch, layer_larger_than_dense_is_said_so)
{
    mlc_ctx_desc desc = test_desc();
    desc.log = listen;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&desc));
    said[0] = 0;
    CHECK(mlc_nn_sklinear(ctx, 64, 64, 1, 16) != NULL);    /* as large                            */
    CHECK_STR(said, "");
    CHECK(mlc_nn_sklinear(ctx, 64, 64, 1, 17) != NULL);
    CHECK_HAS(said, "64 -> 64");
    CHECK_HAS(said, "4,352");
    CHECK_HAS(said, "below rank 16");
    CHECK_OK(ctx);
}

TEST(sketch, costs_are_those_of_the_model)
{
    const mlc_sketch_cost c = mlc_sketch_cost_of(768, 3072, 2, 8);
    CHECK_EQ(c.trainable, 16 * 3840);
    CHECK_EQ(c.stored, 2 * 16 * 3840);
    CHECK_EQ(c.dense, 768 * 3072);
    CHECK_NEAR(c.step / c.dense_step, 0.0434, 0.0001);
    CHECK_NEAR(c.forward, 4.0 * 16 * 3840, 0);
    CHECK_NEAR(c.rank_forward, 768.0 * 3072 / 3840 / 2, 1e-9);
    CHECK_EQ(mlc_sketch_round(1000, 8), 1000);
    CHECK_EQ(mlc_sketch_round(1001, 8), 1008);
    CHECK_EQ(mlc_sketch_round(13, 16), 13);
    CHECK_EQ(mlc_sketch_round(14, 16), 16);
    CHECK_EQ(mlc_sketch_round(5, 0), 5);
}

/* Adam's bytes: 16 for each number that is trained, none for U. */
TEST(sketch, stores_what_is_trained_and_a_seed)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_memory  before, after;
    mlc_memory_info(ctx, &before);
    mlc_module *m = mlc_nn_sklinear(ctx, 512, 256, 1, 16);
    mlc_optim  *opt = mlc_adamw(m, 1e-3);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 512), 1, -1, 1);
    mlc_scope_begin(ctx);
    mlc_backward(mlc_sum(mlc_forward(m, x), mlc_dims0(), false));
    mlc_optim_step(opt);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_memory_info(ctx, &after);
    const size_t     numbers = 16 * 768 + 256;
    size_t           used = 0;
    const mlc_mem    parts[3] = {MLC_MEM_PARAM, MLC_MEM_GRAD, MLC_MEM_OPTIM};
    for (int i = 0; i < 3; i++)
        used += (size_t)(after.now[parts[i]] - before.now[parts[i]]);
    CHECK(used >= 16 * numbers && used <= 16 * numbers + 1024);
}

TEST(sketch, says_what_is_wrong)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SIGNS, 4, 6, 1);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 5)), *w = mlc_zeros(ctx, MLC_F32,
                                                                         mlc_dims2(4, 5));
#define WRONG(call, code, text) \
    do { CHECK((call) == NULL); CHECK_HAS(mlc_error(ctx), text); CHECK_STATUS(ctx, code); } \
    while (0)
    WRONG(mlc_sketch_apply(x, &s, 1), MLC_ERR_SHAPE, "takes 6");
    WRONG(mlc_sketch_apply(x, NULL, 1), MLC_ERR_ARG, "NULL");
    WRONG(mlc_sketch_apply(mlc_zeros(ctx, MLC_I64, mlc_dims1(6)), &s, 0), MLC_ERR_DTYPE, "i64");
    s.kind = (mlc_sketch_kind)9;
    WRONG(mlc_sketch_apply(x, &s, 1), MLC_ERR_ARG, "kind");
    s = mlc_sketch_make(MLC_SKETCH_SRHT, 9, 6, 1);
    WRONG(mlc_sketch_apply(x, &s, 1), MLC_ERR_ARG, "9 rows");
    s = mlc_sketch_make(MLC_SKETCH_DENSE, 4, 5, 1);
    WRONG(mlc_sketch_apply(x, &s, 1), MLC_ERR_ARG, "stored");
    s.stored = x;
    WRONG(mlc_sketch_apply(x, &s, 1), MLC_ERR_SHAPE, "[4,5]");
    s = mlc_sketch_make(MLC_SKETCH_SIGNS, 0, 5, 1);
    WRONG(mlc_sketch_matrix(ctx, &s, MLC_F32), MLC_ERR_ARG, "0 rows");
    s = mlc_sketch_make(MLC_SKETCH_COUNT, 3, 5, 1);
    WRONG(mlc_sketch_bits(ctx, &s), MLC_ERR_ARG, "signs");
    mlc_sketch u1 = mlc_sketch_make(MLC_SKETCH_SIGNS, 4, 5, 1), u2 = u1;
    WRONG(mlc_sklinear(x, w, mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 5)), NULL, &u1, &u2, 1, NULL),
          MLC_ERR_SHAPE, "s2");
    WRONG(mlc_sklinear(x, w, w, NULL, &u1, &u2, 0, NULL), MLC_ERR_ARG, "terms");
    WRONG(mlc_sklinear(x, w, w, x, &u1, &u2, 1, NULL), MLC_ERR_SHAPE, "b must be [5]");
    u1.cols = 7;
    WRONG(mlc_sklinear(x, w, w, NULL, &u1, &u2, 1, NULL), MLC_ERR_SHAPE, "U1");
    WRONG(mlc_nn_sklinear(ctx, 5, 0, 1, 1), MLC_ERR_ARG, "out 0");
    mlc_nn_sklinear_desc d = desc_of(5, 4, 1, 2);
    d.start = MLC_SKETCH_FIT;
    WRONG(mlc_nn_sklinear_ex(ctx, &d), MLC_ERR_ARG, "weight");
    d.weight = x;
    WRONG(mlc_nn_sklinear_ex(ctx, &d), MLC_ERR_SHAPE, "[4,5]");
    d = desc_of(5, 4, 1, 2);
    d.u = MLC_SKETCH_COUNT, d.store = MLC_SKETCH_AS_BITS;
    WRONG(mlc_nn_sklinear_ex(ctx, &d), MLC_ERR_ARG, "bits");
}

TEST(sketch, layers_replaced_during_an_evaluation_train_again_after_it)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64),
                                     mlc_nn_conv2d(ctx, 32, 32, 3, 1, 0));
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 2);
    int32_t     n = 0;
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 2);
    CHECK(!mlc_module_is_training(mlc_module_child(net, 0)));
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK(mlc_module_is_training(mlc_module_child(net, 0)));
    CHECK(mlc_module_is_training(mlc_module_find(net, "1.s")));
    CHECK_OK(ctx);
}
