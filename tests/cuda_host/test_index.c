/* test_index.c -- CUDA.INDEX: take and index against the CPU's kernels, bit for bit */
#include "kernels.h"

enum { BYTES = 1 << 19 };
static char    g_data[BYTES], g_line[BYTES], g_data_got[BYTES], g_line_got[BYTES];
static int64_t g_index[BYTES / 8];

static const mlc_kernels *cpu_row(void) { return mlc_cpu_kernels(MLC_ISA_SCALAR); }

TEST(cuda, take_copies_rows_of_any_bytes_from_any_address)
{
    static const int64_t index[5] = {2, 0, 7, 1, -1};
    unit t = unit_open();
    for (size_t bytes = 1; bytes <= 4200; bytes += bytes < 20 ? 1 : bytes < 100 ? 13 : 2040) {
        const size_t shift = bytes % 3 ? bytes % 16 : 0;
        for (size_t i = 0; i < 3 * bytes; i++) g_data[i] = (char)(i * 7 + 1);
        struct mlc_k_take a = {5, 3, bytes, unit_lend_at(&t, g_data, 3 * bytes, shift),
                               (int64_t *)unit_lend(&t, index, sizeof index),
                               unit_room(&t, 5 * bytes)};
        CHECK_EQ(t.b.kernels.take(t.dev, &a), MLC_OK);
        unit_fetch(&t, g_line, a.out, 5 * bytes);
        memset(g_data_got, 0, bytes);  /* a row that is not there */
        for (size_t i = 0; i < 5; i++)
            CHECK(memcmp(g_line + i * bytes, i == 2 || i == 4 ? g_data_got
                         : g_data + (size_t)index[i] * bytes, bytes) == 0);
        unit_return(&t);
    }
    unit_close(&t);
}

/* Sizes of an index [m, b, c] along its first axis, or its last one; rows: one index a row. */
typedef struct job {
    mlc_index op;
    mlc_dtype dtype;
    int64_t   m, b, c, limit;
    bool      rows, last;
} job;

static void make(const job *j, struct mlc_k_index *a)
{
    const int64_t n = j->m * j->b * j->c;
    memset(a, 0, sizeof *a);
    a->op = j->op, a->dtype = j->dtype, a->ndim = 3, a->axis = j->last ? 2 : 0;
    a->limit = j->limit, a->kind = 258;
    const int64_t shape[3] = {j->last ? j->b : j->m, j->last ? j->c : j->b,
                              j->last ? j->m : j->c};
    int64_t data[3] = {shape[0], shape[1], shape[2]};
    data[a->axis] = j->limit;
    memcpy(a->shape, shape, sizeof shape);
    for (int d = 2, line = 1, to = 1; d >= 0; d--) {
        a->line_stride[d] = line, a->data_stride[d] = to;
        a->index_stride[d] = j->rows ? d == a->axis : line;
        line *= (int)shape[d], to *= (int)data[d];
    }
    for (int64_t i = 0; i < n; i++) {
        const uint64_t r = (uint64_t)(test_random(9, i, 0, 1) * 1e9);
        g_index[i] = (int64_t)(r % (uint64_t)(i % 3 ? j->limit : 1 + j->limit / 5));
        test_put(g_line, j->dtype, i, j->dtype == MLC_BOOL ? (double)(r & 1)
                 : test_random(10, i, 0, 50));
    }
    for (int64_t i = 0; i < j->limit * j->b * j->c; i++)
        test_put(g_data, j->dtype, i, j->dtype == MLC_BOOL ? (double)(i & 1)
                 : test_random(11, i, 0, 50));
}

/* Runs a copy of a on the device; its results go to g_data_got, g_line_got, word. */
static mlc_status run(unit *t, const struct mlc_k_index *a, size_t data, size_t line, size_t shift,
                      int64_t *word)
{
    struct mlc_k_index k = *a;
    k.data = unit_lend_at(t, g_data, data, shift);
    k.line = unit_lend_at(t, g_line, line, shift);
    k.index = (int64_t *)unit_lend(t, g_index,
                                  (size_t)(a->shape[0] * a->shape[1] * a->shape[2]) * 8);
    k.error = (int64_t *)unit_lend(t, word, 32);
    k.workspace_bytes = t->b.kernels.index_workspace(t->dev, &k);
    k.workspace = unit_room(t, k.workspace_bytes);
    const mlc_status st = t->b.kernels.index(t->dev, &k);
    unit_fetch(t, g_data_got, k.data, data);
    unit_fetch(t, g_line_got, k.line, line);
    unit_fetch(t, word, k.error, 32);
    unit_return(t);
    return st;
}

static void agrees(unit *t, const job *j)
{
    struct mlc_k_index a;
    const size_t size = mlc_dtype_bytes(j->dtype);
    const size_t data = (size_t)(j->limit * j->b * j->c) * size;
    const size_t line = (size_t)(j->m * j->b * j->c) * size;
    int64_t word[4] = {0}, none[4] = {0};
    if (!CHECK(data <= BYTES && line <= BYTES && line / size <= BYTES / 8)) return;
    make(j, &a);
    CHECK_EQ(run(t, &a, data, line, j->b % 2 ? 0 : size, word), MLC_OK);
    a.data = g_data, a.line = g_line, a.index = g_index, a.error = none;
    CHECK_EQ(cpu_row()->index(NULL, &a), MLC_OK);
    const bool held = CHECK(memcmp(g_data, g_data_got, data) == 0) &
                      CHECK(memcmp(g_line, g_line_got, line) == 0);
    CHECK_EQ(word[0], 0);
    if (!held)
        printf("    op %d dtype %d m %d b %d c %d limit %d rows %d last %d\n", (int)j->op,
               (int)j->dtype, (int)j->m, (int)j->b, (int)j->c, (int)j->limit, j->rows, j->last);
}

/* One line of the axis a thread; sorted, of one tile and of several, with one digit and three. */
TEST(cuda, an_index_moves_and_adds_in_the_order_of_its_axis)
{
    static const int64_t sizes[][4] = {{1, 3, 5, 4}, {16, 2, 8, 7}, {17, 1, 1, 3}, {300, 3, 4, 40},
                                       {19, 5, 1, 300}, {5000, 1, 1, 65600}, {2100, 1, 8, 70}};
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_I64, MLC_I32, MLC_BOOL, MLC_U8,
                                       MLC_I8, MLC_BF16};
    unit t = unit_open();
    for (int s = 0; s < 7; s++)
        for (int op = 0; op < 4; op++)
            for (int form = 0; form < 4; form++) {
                job j = {(mlc_index)op, dtypes[(s + op + 3 * form) % 8], sizes[s][0], sizes[s][1],
                         sizes[s][2], sizes[s][3], form & 1, (form & 2) != 0};
                if (j.op == MLC_INDEX_ADD && j.dtype == MLC_BF16) j.dtype = MLC_F32;
                if (sizes[s][3] * sizes[s][2] > 60000) j.dtype = MLC_F32;
                agrees(&t, &j);
            }
    unit_close(&t);
}

TEST(cuda, an_index_outside_leaves_all_as_it_is_but_for_a_gather)
{
    unit t = unit_open();
    for (int op = 0; op < 4; op++)
        for (int64_t m = 9; m <= 9000; m *= 30) {
            job j = {(mlc_index)op, MLC_F32, m, 2, 1, 11, op % 2 == 0, false};
            struct mlc_k_index a;
            int64_t word[4] = {0};
            const size_t bytes = (size_t)(m * 2) * 4;
            make(&j, &a);
            g_index[m - 2] = 11, g_index[m - 1] = -3;
            CHECK_EQ(run(&t, &a, 88, bytes, 0, word), MLC_OK);
            CHECK(word[0] == 258 && word[1] == m - 2 && word[2] == 11 && word[3] == 11);
            CHECK(memcmp(g_data, g_data_got, 88) == 0);
            if (op == MLC_INDEX_GATHER) {
                CHECK(test_get(g_line_got, MLC_F32, 2 * (m - 2)) == 0);
                CHECK(test_get(g_line_got, MLC_F32, 0) != 0);
            } else {
                CHECK(memcmp(g_line, g_line_got, bytes) == 0);
            }
            word[0] = 77, g_index[0] = 12;
            CHECK_EQ(run(&t, &a, 88, bytes, 0, word), MLC_OK);
            CHECK_EQ(word[0], 77);     /* the first error stands */
        }
    unit_close(&t);
}

TEST(cuda, an_index_that_cannot_be_is_refused_before_anything_runs)
{
    unit t = unit_open();
    int64_t word[4] = {0};
    struct mlc_k_index a;
    job j = {MLC_INDEX_ADD, MLC_BF16, 20, 2, 3, 5, false, false};
    make(&j, &a);
    CHECK_EQ(run(&t, &a, 60, 240, 0, word), MLC_ERR_UNSUPPORTED);
    a.dtype = MLC_F32, a.op = MLC_INDEX_SCATTER, a.data_stride[1] = 0;   /* two write one place */
    CHECK_EQ(run(&t, &a, 60, 240, 0, word), MLC_ERR_UNSUPPORTED);
    a.workspace_bytes = 8, a.op = MLC_INDEX_GATHER;
    CHECK_EQ(t.b.kernels.index(t.dev, &a), MLC_ERR_INTERNAL);
    a.shape[1] = 0;
    CHECK_EQ(t.b.kernels.index(t.dev, &a), MLC_OK);
    unit_close(&t);
}
