/* test_dataset.c -- tests of sections IMPL.DATA.SET, IMPL.DATA.READY: datasets by samples */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

/* ---- a dataset of the program ------------------------------------------------------------- */

/* Sample i is {i, 10 i} and the label i % 3; sample `bad` fails.                               */
typedef struct numbers { int64_t n, bad; int released; } numbers;

static int64_t numbers_count(void *user) { return ((numbers *)user)->n; }

static mlc_status numbers_get(void *user, mlc_sample *s)
{
    const float   x[2] = {(float)s->index, 10 * (float)s->index};
    const int64_t y = s->index % 3;
    if (s->index == ((numbers *)user)->bad) {
        snprintf(s->why, sizeof s->why, "the number %d is bad", (int)s->index);
        return MLC_ERR_VALUE;
    }
    memcpy(s->dst[0], x, sizeof x);
    memcpy(s->dst[1], &y, sizeof y);
    return MLC_OK;
}

static void numbers_release(void *user) { ((numbers *)user)->released++; }

static mlc_dataset numbers_set(numbers *of)
{
    mlc_dataset d;
    memset(&d, 0, sizeof d);
    d.user = of;
    d.count = numbers_count;
    d.n_fields = 2;
    d.field[0].dtype = MLC_F32;
    d.field[0].dims = mlc_dims1(2);
    d.field[1].dtype = MLC_I64;
    d.field[1].dims = mlc_dims0();
    d.get = numbers_get;
    d.release = numbers_release;
    return d;
}

/* The first value of field f of a sample, or NaN.                                              */
static double value(mlc_ctx *ctx, const mlc_dataset *d, int64_t i, int f)
{
    mlc_tensor *field[MLC_MAX_FIELDS];
    double      v[4096] = {NO_NUMBER};
    if (mlc_dataset_get(ctx, d, i, field) != MLC_OK || mlc_numel(field[f]) > 4096)
        return NO_NUMBER;
    return test_read(field[f], v) ? v[0] : NO_NUMBER;
}

/* ---- the sample itself --------------------------------------------------------------------- */

TEST(dataset, a_dataset_of_functions_gives_its_samples_and_is_released_once)
{
    mlc_ctx     *ctx = test_ctx();
    numbers      of = {5, -1, 0};
    mlc_dataset  d = numbers_set(&of), *own = mlc_dataset_create(ctx, &d);
    mlc_tensor  *field[2];
    const double x[2] = {3, 30};
    CHECK_EQ(mlc_dataset_count(&d), 5);
    CHECK_EQ(mlc_dataset_count(own), 5);
    CHECK_EQ(mlc_dataset_get(ctx, own, 3, field), MLC_OK);
    CHECK_VALUES(field[0], 2, x, 0, 0);
    CHECK_EQ(field[1]->ndim, 0);
    CHECK_NEAR(mlc_item(field[1]), 0, 0);
    CHECK_EQ(of.released, 0);
    mlc_dataset_free(own);
    CHECK_EQ(of.released, 1);
    mlc_ctx_desc desc = test_desc();
    mlc_ctx     *other = mlc_ctx_create(&desc);
    CHECK(mlc_dataset_create(other, &d) != NULL);
    mlc_ctx_free(other);
    CHECK_EQ(of.released, 2);
    CHECK_OK(ctx);
}

TEST(dataset, what_get_says_is_the_error_with_the_samples_number)
{
    mlc_ctx    *ctx = test_ctx();
    numbers     of = {5, 2, 0};
    mlc_dataset d = numbers_set(&of);
    mlc_tensor *field[2] = {NULL, NULL};
    CHECK_EQ(mlc_dataset_get(ctx, &d, 2, field), MLC_ERR_VALUE);
    CHECK(field[0] == NULL && field[1] == NULL);
    CHECK_HAS(mlc_error(ctx), "sample 2: the number 2 is bad");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, &d, 5, field), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "sample 5 of 5");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, &d, -1, field), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    d.get = NULL;
    CHECK(mlc_dataset_create(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    d = numbers_set(&of);
    d.n_fields = 0;
    CHECK(mlc_dataset_create(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "0 fields");
    mlc_error_clear(ctx);
    d = numbers_set(&of);
    d.field[1].ragged = true;
    CHECK(mlc_dataset_create(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "ragged");
    mlc_error_clear(ctx);
}

TEST(dataset, uniform_numbers_of_a_sample_are_even_and_depend_on_all_they_should)
{
    mlc_sample s, t;
    double     sum = 0, low = 1, high = 0;
    int        same = 0;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < 20000; i++) {
        const double u = mlc_sample_uniform(&s, i);
        sum += u;
        low = u < low ? u : low;
        high = u > high ? u : high;
    }
    CHECK_NEAR(sum / 20000, 0.5, 0.01);
    CHECK(low >= 0 && low < 0.001 && high < 1 && high > 0.999);
    for (int k = 0; k < 3; k++)
        for (uint32_t i = 0; i < 100; i++) {
            t = s;
            if (k == 0) t.index = 1;
            if (k == 1) t.epoch = 1;
            if (k == 2) t.seed = 1;
            same += mlc_sample_uniform(&s, i) == mlc_sample_uniform(&t, i);
            CHECK(mlc_sample_uniform(&s, i) == mlc_sample_uniform(&s, i));
        }
    CHECK_EQ(same, 0);
}

/* ---- over tensors and over others ---------------------------------------------------------- */

static mlc_dataset *counted(mlc_ctx *ctx, double from, int64_t n)
{
    mlc_tensor *t[2];
    t[0] = mlc_reshape(mlc_arange(ctx, MLC_F32, from, from + (double)n, 1), mlc_dims2(n, 1));
    t[1] = mlc_cast(mlc_arange(ctx, MLC_F64, from, from + (double)n, 1), MLC_I64);
    return mlc_dataset_tensors(ctx, t, 2);
}

TEST(dataset, tensors_of_any_dtype_and_view_give_their_rows)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *t[3], *field[3];
    double       want[6];
    t[0] = mlc_transpose(test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, -1, 1), 0, 1);
    t[1] = test_rand(ctx, MLC_BF16, mlc_dims3(4, 2, 3), 2, -1, 1);
    t[2] = mlc_cast(mlc_arange(ctx, MLC_F32, 0, 4, 1), MLC_U8);
    mlc_dataset *d = mlc_dataset_tensors(ctx, t, 3);
    CHECK_EQ(mlc_dataset_count(d), 4);
    for (int64_t i = 0; i < 4; i++) {
        CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK);
        for (int f = 0; f < 3; f++) {
            mlc_tensor *row = mlc_slice(t[f], 0, i, i + 1, 1);
            CHECK(test_read(row, want));
            CHECK_EQ(field[f]->dtype, t[f]->dtype);
            CHECK_VALUES(field[f], mlc_numel(row), want, 0, 0);
        }
    }
    CHECK_OK(ctx);
}

TEST(dataset, tensors_that_have_no_equal_rows_are_refused)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *t[2] = {mlc_ones(ctx, MLC_F32, mlc_dims2(3, 2)), mlc_ones(ctx, MLC_F32,
                                                                          mlc_dims1(4))};
    CHECK(mlc_dataset_tensors(ctx, t, 2) == NULL);
    CHECK_HAS(mlc_error(ctx), "[3,2] and [4] differ in rows");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    t[0] = mlc_ones(ctx, MLC_F32, mlc_dims2(0, 2));
    CHECK(mlc_dataset_tensors(ctx, t, 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "must have rows");
    mlc_error_clear(ctx);
    CHECK(mlc_dataset_tensors(ctx, t, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

TEST(dataset, a_subset_has_the_samples_of_its_numbers)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_dataset  *d = counted(ctx, 0, 10);
    const int64_t rows[4] = {7, 0, 7, 9}, out[2] = {3, 10};
    mlc_dataset  *s = mlc_dataset_subset(ctx, d, mlc_from(ctx, MLC_I64, mlc_dims1(4), rows));
    CHECK_EQ(mlc_dataset_count(s), 4);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(value(ctx, s, i, 0), (double)rows[i], 0);
    CHECK_OK(ctx);
    CHECK(mlc_dataset_subset(ctx, d, mlc_from(ctx, MLC_I64, mlc_dims1(2), out)) == NULL);
    CHECK_HAS(mlc_error(ctx), "number 1 of rows is 10; the dataset has samples 0 to 9");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_error_clear(ctx);
    CHECK(mlc_dataset_subset(ctx, d, mlc_zeros(ctx, MLC_I64, mlc_dims1(0))) == NULL);
    CHECK_HAS(mlc_error(ctx), "no rows");
    mlc_error_clear(ctx);
    CHECK(mlc_dataset_subset(ctx, d, mlc_ones(ctx, MLC_F32, mlc_dims1(2))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
}

TEST(dataset, splits_and_folds_are_those_of_rows_and_an_empty_part_is_named)
{
    mlc_ctx            *ctx = test_ctx();
    mlc_dataset        *d = counted(ctx, 0, 20), *parts[2], *train, *held;
    const double        shares[2] = {0.75, 0.25}, few[2] = {0.99, 0.01};
    mlc_split_rows_desc split = mlc_split_rows_desc_make(shares, 2);
    mlc_tensor         *rows[2];
    double              want[15];
    split.seed = 3;
    CHECK_EQ(mlc_dataset_split(ctx, d, &split, parts), MLC_OK);
    CHECK_EQ(mlc_split_rows(ctx, 20, &split, rows), MLC_OK);
    for (int p = 0; p < 2; p++) {
        CHECK_EQ(mlc_dataset_count(parts[p]), p ? 5 : 15);
        CHECK(test_read(rows[p], want));
        for (int64_t i = 0; i < mlc_dataset_count(parts[p]); i++)
            CHECK_NEAR(value(ctx, parts[p], i, 0), want[i], 0);
    }
    mlc_k_fold_desc folds = mlc_k_fold_desc_make(4);
    bool            seen[20] = {false};
    for (int64_t k = 0; k < 4; k++) {
        CHECK_EQ(mlc_dataset_k_fold(ctx, d, &folds, k, &train, &held), MLC_OK);
        CHECK_EQ(mlc_dataset_count(train), 15);
        for (int64_t i = 0; i < mlc_dataset_count(held); i++) {
            const int at = (int)value(ctx, held, i, 1);
            CHECK(at >= 0 && at < 20 && !seen[at]);
            if (at >= 0 && at < 20) seen[at] = true;
        }
    }
    CHECK_OK(ctx);
    split.shares = few;
    CHECK_EQ(mlc_dataset_split(ctx, d, &split, parts), MLC_ERR_ARG);
    CHECK(parts[0] == NULL && parts[1] == NULL);
    CHECK_HAS(mlc_error(ctx), "part 1 has no rows");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_dataset_k_fold(ctx, d, &folds, 4, &train, &held), MLC_ERR_ARG);
    CHECK(train == NULL && held == NULL);
    mlc_error_clear(ctx);
}

static int64_t endless_count(void *user)
{
    (void)user;
    return INT64_MAX - 1;
}

static mlc_status endless_get(void *user, mlc_sample *s)
{
    (void)user;
    memset(s->dst[0], 0, 4);
    return MLC_OK;
}

TEST(dataset, concat_and_zip_join_samples_and_fields)
{
    mlc_ctx           *ctx = test_ctx();
    const mlc_dataset *of[3] = {counted(ctx, 0, 3), counted(ctx, 100, 1), counted(ctx, 200, 5)};
    const double       want[9] = {0, 1, 2, 100, 200, 201, 202, 203, 204};
    mlc_dataset       *all = mlc_dataset_concat(ctx, of, 3);
    CHECK_EQ(mlc_dataset_count(all), 9);
    for (int i = 0; i < 9; i++) {
        CHECK_NEAR(value(ctx, all, i, 0), want[i], 0);
        CHECK_NEAR(value(ctx, all, i, 1), want[i], 0);
    }
    const mlc_dataset *side[2] = {all, counted(ctx, 50, 9)};
    mlc_dataset       *zip = mlc_dataset_zip(ctx, side, 2);
    CHECK_EQ(mlc_dataset_count(zip), 9);
    CHECK(zip && zip->n_fields == 4 && zip->field[3].dtype == MLC_I64);
    for (int i = 0; i < 9; i++) {
        CHECK_NEAR(value(ctx, zip, i, 0), want[i], 0);
        CHECK_NEAR(value(ctx, zip, i, 3), 50 + i, 0);
    }
    CHECK_OK(ctx);
    CHECK(mlc_dataset_zip(ctx, of, 2) == NULL);
    CHECK_HAS(mlc_error(ctx), "of 3 and of 1 samples");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    mlc_tensor *t = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 2));
    mlc_tensor *pair[2] = {t, t};
    side[0] = of[0];
    side[1] = mlc_dataset_tensors(ctx, pair, 2);
    CHECK(mlc_dataset_concat(ctx, side, 2) == NULL);
    CHECK_HAS(mlc_error(ctx), "field 0 of dataset 1 is f32 [2], of the first f32 [1]");
    mlc_error_clear(ctx);
    const mlc_dataset  endless = {NULL, endless_count, 1, {{MLC_F32, {{0}, 0}, false}}, 0,
                                  endless_get, NULL, NULL};
    const mlc_dataset *far[2];
    far[0] = far[1] = mlc_dataset_create(ctx, &endless);
    CHECK(mlc_dataset_concat(ctx, far, 2) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_concat: the 2 datasets have more samples than an i64");
    mlc_dataset *both = mlc_dataset_zip(ctx, far, 2);
    CHECK(mlc_dataset_count(both) == INT64_MAX - 1);
    CHECK(mlc_dataset_concat(ctx, of, 0) == NULL);
    mlc_error_clear(ctx);
}

static int64_t falling_count(void *user)
{
    int64_t *n = user;
    return (*n)--;
}

/* A count that changes between two calls is no sample out of range.                             */
TEST(dataset, concat_of_a_count_that_falls)
{
    mlc_ctx           *ctx = test_ctx();
    int64_t            n = 1;
    const mlc_dataset  falls = {&n, falling_count, 1, {{MLC_F32, {{0}, 0}, false}}, 0,
                                endless_get, NULL, NULL};
    const mlc_dataset *of[1];
    mlc_tensor        *field = NULL;
    of[0] = mlc_dataset_create(ctx, &falls);
    n = 0;                             /* then -1, as of a stream                                */
    mlc_dataset *all = mlc_dataset_concat(ctx, of, 1);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_dataset_count(all), 0);
    CHECK_EQ(mlc_dataset_get(ctx, all, 0, &field), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_get: sample 0 of 0");
}

/* The error of a part of a zip comes out with its text.                                        */
TEST(dataset, errors_pass_through_what_is_made_of_datasets)
{
    mlc_ctx           *ctx = test_ctx();
    numbers            of = {4, 2, 0};
    mlc_dataset        d = numbers_set(&of);
    const mlc_dataset *side[2] = {counted(ctx, 0, 4), &d}, *after[2] = {&d, &d};
    mlc_dataset       *zip = mlc_dataset_zip(ctx, side, 2);
    mlc_dataset       *all = mlc_dataset_concat(ctx, after, 2);
    mlc_tensor        *field[4];
    CHECK_EQ(mlc_dataset_get(ctx, zip, 2, field), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "sample 2: the number 2 is bad");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, all, 6, field), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "sample 6: the number 2 is bad");
    mlc_error_clear(ctx);
}

/* x and its double, as f64, and a number at random; uses scratch.                              */
static mlc_status doubled(void *user, mlc_sample *s, void *const *in, const int64_t *in_len)
{
    float *room = (float *)s->scratch;
    (void)in_len;
    memcpy(room, in[0], sizeof *room);
    const double first = (double)room[0], x[2] = {first, 2 * first}, u = mlc_sample_uniform(s, 0);
    memcpy(s->dst[0], x, sizeof x);
    memcpy(s->dst[1], &u, sizeof u);
    ++*(int *)user;
    return MLC_OK;
}

TEST(dataset, a_map_makes_samples_of_samples_also_of_another_map)
{
    mlc_ctx      *ctx = test_ctx();
    int           calls = 0;
    mlc_transform map;
    const double  want[2] = {4, 8};
    mlc_tensor   *field[2];
    memset(&map, 0, sizeof map);
    map.user = &calls;
    map.run = doubled;
    map.n_fields = 2;
    map.field[0].dtype = map.field[1].dtype = MLC_F64;
    map.field[0].dims = mlc_dims1(2);
    map.scratch = 100;
    mlc_dataset *d = mlc_dataset_map(ctx, counted(ctx, 0, 6), &map);
    CHECK_EQ(mlc_dataset_count(d), 6);
    CHECK_EQ(mlc_dataset_get(ctx, d, 4, field), MLC_OK);
    CHECK_VALUES(field[0], 2, want, 0, 0);
    CHECK_EQ(calls, 1);
    CHECK(value(ctx, d, 3, 1) != value(ctx, d, 4, 1));
    CHECK_OK(ctx);
    map.run = NULL;
    CHECK(mlc_dataset_map(ctx, d, &map) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
}

static void check_cache(mlc_ctx *ctx, const char *path)
{
    int           calls = 0;
    mlc_transform map;
    memset(&map, 0, sizeof map);
    map.user = &calls;
    map.run = doubled;
    map.n_fields = 2;
    map.field[0].dtype = map.field[1].dtype = MLC_F64;
    map.field[0].dims = mlc_dims1(2);
    map.scratch = 4;
    mlc_dataset *d = mlc_dataset_map(ctx, counted(ctx, 0, 6), &map);
    mlc_dataset *cache = mlc_dataset_cache(ctx, d, path);
    for (int round = 0; round < 3; round++)
        for (int64_t i = 0; i < 6; i++) {
            CHECK_NEAR(value(ctx, cache, i, 0), (double)i, 0);
            CHECK_EQ(calls, round ? 6 : i + 1);
        }
    CHECK_NEAR(value(ctx, cache, 5, 1), value(ctx, d, 5, 1), 0);
    mlc_dataset_free(cache);
    mlc_dataset_free(d);
}

TEST(dataset, a_cache_asks_once_for_a_sample)
{
    mlc_ctx *ctx = test_ctx();
    check_cache(ctx, NULL);
    CHECK_OK(ctx);
}

TEST(dataset, a_cache_in_a_file_leaves_no_file)
{
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("cache");
#ifdef _WIN32                          /* no files are mapped there                            */
    CHECK(mlc_dataset_cache(ctx, counted(ctx, 0, 3), b.path) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
    mlc_error_clear(ctx);
    box_close(&b);
    return;
#endif
    check_cache(ctx, b.path);
    CHECK_OK(ctx);
    CHECK_EQ(box_count(&b), 0);
    CHECK(put_file(b.path, "mine", 4));
    CHECK(mlc_dataset_cache(ctx, counted(ctx, 0, 3), b.path) == NULL);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    mlc_error_clear(ctx);
    box_close(&b);
}

/* ---- files of arrays ------------------------------------------------------------------------ */

/* Every row of t, at field f of the dataset.                                                   */
static void check_rows(mlc_ctx *ctx, const mlc_dataset *d, mlc_tensor *t, mlc_dtype dtype)
{
    double      want[512];
    mlc_tensor *field[MLC_MAX_FIELDS];
    if (!CHECK(d != NULL) || !CHECK_EQ(mlc_dataset_count(d), mlc_dim(t, 0)))
        printf("  %s\n", mlc_error(ctx));
    for (int64_t i = 0; d && i < mlc_dim(t, 0); i++) {
        mlc_tensor *row = mlc_slice(t, 0, i, i + 1, 1);
        if (!CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK))
            return;
        CHECK_EQ(field[0]->dtype, dtype);
        CHECK_EQ(field[0]->ndim, t->ndim - 1);
        CHECK(test_read(row, want));
        CHECK_VALUES(field[0], mlc_numel(row), want, 0, 0);
    }
}

TEST(dataset, rows_of_npy_npz_safetensors_and_idx_files_of_all_dtypes)
{
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("a.npy");
    char      path[340];
    for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++) {
        mlc_tensor *t = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims3(5, 3, 2), 3, 0, 100),
                                 (mlc_dtype)dtype);
        const mlc_named list[3] = {{"a", mlc_zeros(ctx, MLC_U8, mlc_dims1(3))}, {"x", t},
                                   {"z", mlc_zeros(ctx, MLC_F64, mlc_dims1(9))}};
        const mlc_dtype npy = dtype == MLC_BF16 ? MLC_F32 : (mlc_dtype)dtype;
        CHECK_EQ(mlc_npy_save(t, b.path), MLC_OK);
        check_rows(ctx, mlc_dataset_npy(ctx, b.path), t, npy);
        snprintf(path, sizeof path, "%s/a.npz", b.dir);
        CHECK_EQ(mlc_npz_save(ctx, path, list, 3), MLC_OK);
        check_rows(ctx, mlc_dataset_npz(ctx, path, "x"), t, npy);
        snprintf(path, sizeof path, "%s/a.safetensors", b.dir);
        CHECK_EQ(mlc_safetensors_save(ctx, path, list, 3, NULL), MLC_OK);
        check_rows(ctx, mlc_dataset_safetensors(ctx, path, "x"), t, (mlc_dtype)dtype);
        snprintf(path, sizeof path, "%s/a.idx", b.dir);
        if (dtype == MLC_BF16 || dtype == MLC_F16 || dtype == MLC_I64 || dtype == MLC_BOOL)
            continue;
        CHECK_EQ(mlc_idx_save(t, path), MLC_OK);
        check_rows(ctx, mlc_dataset_idx(ctx, path), t, (mlc_dtype)dtype);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

/* As other programs write them: 16 bits, big-endian, unsigned 32.                              */
TEST(dataset, foreign_integers_are_swapped_and_widened)
{
    static const char head[] = "\x93NUMPY\1\0\x46\0{'descr': '%s', 'fortran_order': %s, 'shape': "
                               "(2, 2), }";
    static const struct { const char *descr; int bytes; mlc_dtype dtype; double want[4]; }
    kinds[] = {
        {"<u2", 2, MLC_I32, {0x0201, 0x0403, 0x0605, 0x0807}},
        {">i2", 2, MLC_I32, {0x0102, 0x0304, 0x0506, 0x0708}},
        {">u4", 4, MLC_I64, {0x01020304, 0x05060708, 0x090a0b0c, 0x0d0e0f10}},
        {">i4", 4, MLC_I32, {0x01020304, 0x05060708, 0x090a0b0c, 0x0d0e0f10}},
        {"|u1", 1, MLC_U8, {1, 2, 3, 4}}};
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("a.npy");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int fortran = 0; fortran < 2; fortran++) {
            char file[128];
            memset(file, ' ', sizeof file);
            memcpy(file, head, 10);
            const int n = snprintf(file + 10, 100, head + 10, kinds[i].descr,
                                   fortran ? "True" : "False");
            file[10 + n] = ' ';
            file[79] = '\n';
            for (int k = 0; k < 4 * kinds[i].bytes; k++)
                file[80 + k] = (char)(k + 1);
            CHECK(put_file(b.path, file, (size_t)(80 + 4 * kinds[i].bytes)));
            mlc_dataset *d = mlc_dataset_npy(ctx, b.path);
            if (fortran) {
                CHECK(d == NULL);
                CHECK_HAS(mlc_error(ctx), "column order");
                CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
                continue;
            }
            check_rows(ctx, d, test_tensor(ctx, MLC_F64, mlc_dims2(2, 2), kinds[i].want),
                       kinds[i].dtype);
        }
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(dataset, arrays_that_are_no_rows_and_files_that_are_none_are_refused)
{
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("a.npy");
    mlc_tensor *t = mlc_ones(ctx, MLC_F32, mlc_dims2(3, 2));
    const mlc_named list[1] = {{"x", t}};
    char      path[340];
    CHECK(mlc_dataset_npy(ctx, b.path) == NULL);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_dataset_npy(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 2)), b.path), MLC_OK);
    CHECK(mlc_dataset_npy(ctx, b.path) == NULL);
    CHECK_HAS(mlc_error(ctx), "no rows");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_F32, mlc_dims0()), b.path), MLC_OK);
    CHECK(mlc_dataset_npy(ctx, b.path) == NULL);
    CHECK_HAS(mlc_error(ctx), "no axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    snprintf(path, sizeof path, "%s/a.npz", b.dir);
    CHECK_EQ(mlc_npz_save(ctx, path, list, 1), MLC_OK);
    CHECK(mlc_dataset_npz(ctx, path, "y") == NULL);
    CHECK_HAS(mlc_error(ctx), "no array named 'y'");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    snprintf(path, sizeof path, "%s/a.safetensors", b.dir);
    CHECK_EQ(mlc_safetensors_save(ctx, path, list, 1, NULL), MLC_OK);
    CHECK(mlc_dataset_safetensors(ctx, path, "y") == NULL);
    CHECK_HAS(mlc_error(ctx), "no tensor named 'y'");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    snprintf(path, sizeof path, "%s/a.idx", b.dir);
    CHECK_EQ(mlc_idx_save(t, path), MLC_OK);
    size_t         n = 0;
    unsigned char *file = get_file(path, &n);
    CHECK(put_file(path, file, n - 1));
    free(file);
    CHECK(mlc_dataset_idx(ctx, path) == NULL);
    CHECK_HAS(mlc_error(ctx), "shorter");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    box_close(&b);
}

TEST(dataset, sequences_of_several_lengths_are_padded_in_batches_and_masked)
{
    static const double rows[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    static const double length[4] = {2, 0, 3, 1}, label[4] = {5, 6, 7, 8};
    static const double padded[24] = {1, 2, 3, 4, -1, -1, -1, -1, -1, -1, -1, -1,
                                      5, 6, 7, 8, 9, 10, 11, 12, -1, -1, -1, -1};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(6, 2), rows);
    mlc_tensor *n = test_tensor(ctx, MLC_I64, mlc_dims1(4), length), *field[2];
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), label);
    mlc_dataset *d = mlc_dataset_ragged(ctx, x, n, y);
    CHECK(d && mlc_dataset_count(d) == 4 && d->n_fields == 2 && d->field[0].ragged);
    CHECK(d && d->field[0].dims.n == 2 && d->field[0].dims.v[0] == 3 && d->field[0].dims.v[1] == 2);
    CHECK_EQ(mlc_dataset_get(ctx, d, 2, field), MLC_OK);
    CHECK(field[0]->ndim == 2 && field[0]->shape[0] == 3);
    CHECK_VALUES(field[0], 6, rows + 4, 0, 0);
    CHECK_NEAR(mlc_item(field[1]), 7, 0);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    desc.pad[0] = -1;
    mlc_loader *loader = mlc_loader_from(ctx, d, &desc);
    mlc_batch   b;
    CHECK(loader && mlc_loader_next(loader, &b) && b.x->ndim == 3 && b.x->shape[1] == 3);
    CHECK_VALUES(b.length[0], 4, length, 0, 0);
    CHECK_VALUES(b.y, 4, label, 0, 0);
    CHECK_VALUES(b.x, 24, padded, 0, 0);
    mlc_loader_free(loader);
    d = mlc_dataset_ragged(ctx, mlc_cast(mlc_select(x, 1, 0), MLC_I64), n, NULL);
    CHECK(d && d->n_fields == 1 && d->field[0].dtype == MLC_I64 && d->field[0].dims.n == 1);
    CHECK_OK(ctx);
}

TEST(dataset, sequences_whose_lengths_do_not_fit_their_rows_are_refused)
{
    static const double length[3][2] = {{2, 3}, {5, -1}, {1, 2}};
    static const char *const why[3] = {
        "dataset_ragged: length 3 of sequence 1; x has 2 of 4 rows left for it",
        "dataset_ragged: length 5 of sequence 0; x has 4 of 4 rows left for it",
        "dataset_ragged: lengths add up to 3, x has 4 rows; they must be as many"};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    for (int k = 0; k < 3; k++) {
        mlc_tensor *n = test_tensor(ctx, MLC_I64, mlc_dims1(2), length[k]);
        CHECK(mlc_dataset_ragged(ctx, x, n, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, why[k]);
    }
    mlc_tensor *n = mlc_ones(ctx, MLC_I64, mlc_dims1(4));
    CHECK(mlc_dataset_ragged(ctx, NULL, n, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_ragged: x is NULL");
    CHECK(mlc_dataset_ragged(ctx, x, NULL, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_ragged: lengths is NULL");
    CHECK(mlc_dataset_ragged(ctx, x, x, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "dataset_ragged: lengths are f32; they must be i64");
    CHECK(mlc_dataset_ragged(ctx, x, n, mlc_ones(ctx, MLC_F32, mlc_dims1(3))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "dataset_ragged: lengths are [4], y is [3]; they must be [n] ");
}

TEST(dataset, images_of_an_idx_file_have_the_channel_that_a_convolution_takes)
{
    const mlc_dims all[4] = {mlc_dims3(6, 3, 2), mlc_dims4(6, 2, 3, 2), mlc_dims2(6, 3),
                             mlc_dims1(6)};
    const mlc_dims row[2] = {mlc_dims3(1, 3, 2), mlc_dims3(2, 3, 2)};
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("a.idx");
    mlc_tensor *field[1];
    for (int k = 0; k < 4; k++) {
        mlc_tensor *t = mlc_cast(test_rand(ctx, MLC_F32, all[k], 3, 0, 255), MLC_U8);
        CHECK_EQ(mlc_idx_save(t, b.path), MLC_OK);
        mlc_dataset *d = mlc_dataset_idx_images(ctx, b.path);
        CHECK((d != NULL) == (k < 2));
        for (int i = 0; d && i < 6; i++) {
            double was[12];
            CHECK(test_read(mlc_select(t, 0, i), was));
            CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK);
            CHECK(field[0]->ndim == 3 && memcmp(field[0]->shape, row[k].v, 24) == 0);
            CHECK_VALUES(field[0], k ? 12 : 6, was, 0, 0);
        }
        if (d) continue;
        CHECK_HAS(mlc_error(ctx), b.path);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, k == 2 ? "its rows are [3]; images are [h,w] or [c,h,w]"
                                               : "its rows are []; images are [h,w] or [c,h,w]");
    }
    CHECK_EQ(mlc_idx_save(mlc_zeros(ctx, MLC_F32, mlc_dims3(4, 5, 5)), b.path), MLC_OK);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(2);
    mlc_loader *loader = mlc_loader_from(ctx, mlc_dataset_idx_images(ctx, b.path), &desc);
    mlc_batch   batch;
    CHECK(loader && mlc_loader_next(loader, &batch));
    mlc_tensor *y = mlc_forward(mlc_nn_conv2d(ctx, 1, 2, 3, 1, 1), loader ? batch.x : NULL);
    CHECK(y && y->ndim == 4 && y->shape[0] == 2 && y->shape[1] == 2 && y->shape[3] == 5);
    CHECK_OK(ctx);
    mlc_loader_free(loader);
    box_close(&b);
}

TEST(dataset, mnist_is_images_with_a_channel_and_i64_labels_of_two_files)
{
    static const double label[4] = {7, 0, 9, 10};
    mlc_ctx    *ctx = test_ctx();
    const box   a = box_open("images"), b = box_open("labels");
    mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims3(4, 3, 2), 3, 0, 255), MLC_U8);
    mlc_tensor *y = test_tensor(ctx, MLC_U8, mlc_dims1(4), label), *field[2];
    CHECK(mlc_idx_save(x, a.path) == MLC_OK && mlc_idx_save(y, b.path) == MLC_OK);
    mlc_dataset *d = mlc_dataset_mnist(ctx, a.path, b.path, 10);
    CHECK(d && mlc_dataset_count(d) == 4 && d->n_fields == 2 && d->field[1].dtype == MLC_I64);
    for (int i = 0; d && i < 3; i++) {
        double was[6];
        CHECK(test_read(mlc_select(x, 0, i), was));
        CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK);
        CHECK(field[0]->dtype == MLC_U8 && field[0]->ndim == 3 && field[0]->shape[0] == 1);
        CHECK_VALUES(field[0], 6, was, 0, 0);
        CHECK_NEAR(mlc_item(field[1]), label[i], 0);
    }
    CHECK(mlc_dataset_get(ctx, d, 3, field) == MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "labels'");
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "sample 3: label 10; classes are 0 to 9; labels of '");
    mlc_dataset_free(d);
    d = mlc_dataset_mnist(ctx, a.path, b.path, 11);        /* goes with the context            */
    CHECK_NEAR(value(ctx, d, 3, 1), 10, 0);
    CHECK(mlc_dataset_mnist(ctx, a.path, b.path, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "0 classes");
    CHECK(mlc_dataset_mnist(ctx, b.path, b.path, 10) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "its rows are []; images are [h,w] or [c,h,w]");
    CHECK(mlc_dataset_mnist(ctx, a.path, NULL, 10) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_mnist: path is NULL");
    CHECK(mlc_dataset_mnist(ctx, a.path, a.path, 10) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "images': its rows are [3,2]; labels are single numbers; is ");
    CHECK_EQ(mlc_idx_save(mlc_cast(y, MLC_F32), b.path), MLC_OK);
    CHECK(mlc_dataset_mnist(ctx, a.path, b.path, 10) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "labels': it is f32; labels are whole numbers");
    CHECK_EQ(mlc_idx_save(mlc_rows(y, 0, 3), b.path), MLC_OK);
    CHECK(mlc_dataset_mnist(ctx, a.path, b.path, 10) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "images' has 4 images, '");
    box_close(&a);
    box_close(&b);
}

TEST(dataset, labels_become_i64_and_one_out_of_range_is_named)
{
    mlc_ctx      *ctx = test_ctx();
    const double  y[4] = {3, 0, 9, 10};
    mlc_tensor   *t[2] = {mlc_ones(ctx, MLC_F32, mlc_dims2(4, 2)),
                          test_tensor(ctx, MLC_U8, mlc_dims1(4), y)};
    mlc_dataset  *d = mlc_dataset_tensors(ctx, t, 2), *labels = mlc_dataset_labels(ctx, d, 1, 10);
    mlc_tensor   *field[2];
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(mlc_dataset_get(ctx, labels, i, field), MLC_OK);
        CHECK_EQ(field[1]->dtype, MLC_I64);
        CHECK_NEAR(mlc_item(field[1]), y[i], 0);
        CHECK_NEAR(mlc_item(mlc_sum(field[0], mlc_dims0(), false)), 2, 0);
    }
    CHECK_OK(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, labels, 3, field), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "sample 3: label 10; classes are 0 to 9");
    mlc_error_clear(ctx);
    CHECK(mlc_dataset_labels(ctx, d, 0, 10) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_dataset_labels(ctx, d, 2, 10) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(dataset, cifar_records_are_images_and_labels)
{
    mlc_ctx       *ctx = test_ctx();
    const box      b = box_open("cifar.bin");
    unsigned char *file = (unsigned char *)malloc(3 * 3074);
    mlc_tensor    *field[2];
    for (int classes = 10; classes <= 100; classes += 90) {
        const int front = classes == 10 ? 1 : 2, record = front + 3072;
        for (int i = 0; i < 3 * record; i++)
            file[i] = (unsigned char)(i * 7);
        for (int r = 0; r < 3; r++)
            file[r * record + front - 1] = (unsigned char)(r == 2 ? classes : 4 * r);
        CHECK(put_file(b.path, file, (size_t)(3 * record)));
        mlc_dataset *d = mlc_dataset_cifar(ctx, b.path, classes);
        CHECK_EQ(mlc_dataset_count(d), 3);
        double image[3072];
        CHECK_EQ(mlc_dataset_get(ctx, d, 1, field), MLC_OK);
        CHECK(test_read(field[0], image));
        CHECK_NEAR(mlc_item(field[1]), 4, 0);
        for (int i = 0; i < 3072; i++)
            CHECK_NEAR(image[i], (unsigned char)((record + front + i) * 7), 0);
        CHECK_EQ(mlc_dataset_get(ctx, d, 2, field), MLC_ERR_VALUE);
        CHECK_HAS(mlc_error(ctx), b.path);
        CHECK_HAS(mlc_error(ctx), "record 2 has label");
        mlc_error_clear(ctx);
        CHECK(put_file(b.path, file, (size_t)(3 * record - 1)));
        CHECK(mlc_dataset_cifar(ctx, b.path, classes) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    CHECK(mlc_dataset_cifar(ctx, b.path, 11) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    free(file);
    box_close(&b);
}

TEST(dataset, token_files_give_windows_and_the_tokens_that_follow)
{
    static const int bytes[3] = {2, 4, 4};
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("tokens.bin");
    mlc_tensor *field[2];
    for (int kind = 0; kind < 3; kind++) {
        unsigned char file[3 + 4 * 20];
        memset(file, 0, sizeof file);
        for (int i = 0; i < 20; i++)
            file[3 + bytes[kind] * i] = (unsigned char)(10 + i);
        CHECK(put_file(b.path, file, (size_t)(3 + 20 * bytes[kind])));
        mlc_dataset_tokens_desc desc = mlc_dataset_tokens_desc_make((mlc_token_kind)kind, 4);
        desc.stride = 3;
        desc.skip = 3;
        desc.vocabulary = 30;
        mlc_dataset *d = mlc_dataset_tokens(ctx, b.path, &desc);
        CHECK_EQ(mlc_dataset_count(d), 6);                 /* 0 3 6 9 12 15: 15 + 4 is the last */
        for (int64_t i = 0; i < 6; i++) {
            const double x[5] = {10. + 3. * (double)i, 11. + 3. * (double)i, 12. + 3. * (double)i,
                                 13. + 3. * (double)i, 14. + 3. * (double)i};
            CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK);
            CHECK_VALUES(field[0], 4, x, 0, 0);
            CHECK_VALUES(field[1], 4, x + 1, 0, 0);
        }
        desc.jitter = true;
        mlc_dataset *moved = mlc_dataset_tokens(ctx, b.path, &desc);
        for (int64_t i = 0; i < 6; i++) {
            const double first = value(ctx, moved, i, 0) - 10;
            CHECK(first >= 3 * (double)i && first < 3 * (double)i + 3 && first <= 15);
        }
        desc.jitter = false;
        desc.vocabulary = 29;
        d = mlc_dataset_tokens(ctx, b.path, &desc);
        CHECK_OK(ctx);
        CHECK_EQ(mlc_dataset_get(ctx, d, 5, field), MLC_ERR_VALUE);
        CHECK_HAS(mlc_error(ctx), "token 19 of the file is 29; the vocabulary has 0 to 28");
        CHECK_HAS(mlc_error(ctx), b.path);
        mlc_error_clear(ctx);
        desc.window = 20;
        CHECK(mlc_dataset_tokens(ctx, b.path, &desc) == NULL);
        CHECK_HAS(mlc_error(ctx), "20 tokens; a window of 20");
        CHECK_STATUS(ctx, MLC_ERR_IO);
        desc.skip = 2;
        CHECK(mlc_dataset_tokens(ctx, b.path, &desc) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_IO);
        desc.stride = 0;
        CHECK(mlc_dataset_tokens(ctx, b.path, &desc) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    box_close(&b);
}

/* ---- tables --------------------------------------------------------------------------------- */

/* Comments, empty lines and line breaks in quotes are lines of the file. */
TEST(dataset, a_table_and_a_load_of_numbers_name_the_same_line_of_the_file)
{
    static const struct { const char *text, *says; } bad[] = {
        {"x,y\n1,2\nNA,3\n", "r.csv': line 3, column 1"},
        {"# c\n# d\nx,y\n1,2\n\n\nNA,3\n", "r.csv': line 7, column 1"},
        {"\"x\ny\",y\n1,2\n3,NA\n", "r.csv': line 4, column 2"},
        {"x,y\r\n1,2\r\n\r\nNA,3\r\n", "r.csv': line 4, column 1"},
        {"x,y\n1,\n", "r.csv': line 2, column 2"}};
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("r.csv");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mlc_csv_desc           csv = mlc_csv_desc_make();
        mlc_dataset_table_desc d = mlc_dataset_table_desc_make("y");
        csv.header = true;
        CHECK(put_file(b.path, bad[i].text, strlen(bad[i].text)));
        CHECK(mlc_csv_load(ctx, b.path, &csv) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_IO, bad[i].says);
        CHECK(mlc_dataset_table(ctx, mlc_table_load(ctx, b.path, NULL), &d) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, bad[i].says);
    }
    box_close(&b);
}

/* All errors of a table name its file. */
TEST(dataset, a_table_says_which_columns_its_file_has)
{
    mlc_ctx   *ctx = test_ctx();
    const box  b = box_open("r.csv");
    const char text[] = "x,z\n1,\n";
    mlc_dataset_table_desc d = mlc_dataset_table_desc_make("y");
    CHECK(put_file(b.path, text, sizeof text - 1));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    CHECK(mlc_dataset_table(ctx, t, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "r.csv': it has no column 'y'; there are 'x', 'z'");
    d.target = NULL;
    d.missing = MLC_MISSING_DROP;
    CHECK(mlc_dataset_table(ctx, t, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "r.csv': no row is left of 1; each has an empty cell");
    box_close(&b);
}

TEST(dataset, a_table_is_numbers_and_a_target_with_empty_cells_by_policy)
{
    static const char text[] = "a,b,kind,t\n1,0.5,red,0\n2,,blue,1\n3,2.5,red,\n4,nan,green,2\n";
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("a.csv");
    mlc_tensor *field[2];
    CHECK(put_file(b.path, text, sizeof text - 1));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("kind");
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "a.csv': line 3, column 2 'b' is empty or NaN");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    desc.missing = MLC_MISSING_DROP;
    mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
    const double first[3] = {1, 0.5, 0};
    CHECK_EQ(mlc_dataset_count(d), 1);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_VALUES(field[0], 3, first, 0, 0);
    CHECK_NEAR(mlc_item(field[1]), 2, 0);                  /* blue, green, red                 */
    static const char *const columns[2] = {"b", "a"};
    desc.columns = columns;
    desc.n_columns = 2;
    desc.missing = MLC_MISSING_MEAN;
    d = mlc_dataset_table(ctx, t, &desc);
    const double mean[4] = {0.5, 1.5, 2.5, 1.5};
    CHECK_EQ(mlc_dataset_count(d), 4);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(value(ctx, d, i, 0), mean[i], 0);
    desc.missing = MLC_MISSING_VALUE;
    desc.value = -7;
    d = mlc_dataset_table(ctx, t, &desc);
    CHECK_NEAR(value(ctx, d, 1, 0), -7, 0);
    CHECK_NEAR(value(ctx, d, 1, 1), 0, 0);
    CHECK_OK(ctx);
    desc.target = "t";                                     /* an empty target is never filled  */
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "a.csv': line 4, column 4 't' is empty or NaN");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    desc.missing = MLC_MISSING_DROP;
    d = mlc_dataset_table(ctx, t, &desc);
    CHECK(d && d->field[1].dtype == MLC_F32);
    CHECK_EQ(mlc_dataset_count(d), 1);
    desc.target = "u";
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "no column 'u'");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(put_file(b.path, "a,b\n,1\n,2\n", 10));
    mlc_table *holes = mlc_table_load(ctx, b.path, NULL);
    desc = mlc_dataset_table_desc_make("b");
    desc.missing = MLC_MISSING_DROP;
    CHECK(mlc_dataset_table(ctx, holes, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "no row is left of 2");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    box_close(&b);
}

/* Comments, empty lines and texts of several lines above it; a table without names. */
TEST(dataset, an_empty_cell_is_named_by_its_line_of_the_file)
{
    static const char text[] = "# a note\n\na,b\r\n\"x\n\ny\",1\n\n\"z\r\n\",\nw,3\n";
    mlc_ctx     *ctx = test_ctx();
    const box    b = box_open("a.csv");
    mlc_csv_desc d = mlc_table_desc_make();
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("b");
    static const mlc_column types[2] = {MLC_COLUMN_AUTO, MLC_COLUMN_I64};
    CHECK(put_file(b.path, text, sizeof text - 1));
    CHECK(mlc_dataset_table(ctx, mlc_table_load(ctx, b.path, &d), &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "a.csv': line 8, column 2 'b' is empty or NaN; set missing ");
    d.header = false;
    d.types = types;
    d.n_types = 2;
    CHECK(mlc_table_load(ctx, b.path, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "a.csv': line 3, column 2: 'b' is not a whole number of 64 bits");
    d.skip_lines = 3;
    d.types = NULL;
    d.n_types = 0;
    desc = mlc_dataset_table_desc_make(NULL);
    CHECK(mlc_dataset_table(ctx, mlc_table_load(ctx, b.path, &d), &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "a.csv': line 8, column 2 '' is empty or NaN; set missing to ");
    box_close(&b);
}

TEST(dataset, a_mean_is_of_numbers_and_a_missing_text_is_a_category_of_its_own)
{
    static const char text[] = "city,none,price\nGraz,,1\nWien,NA,2\nNA,,3\nLinz,nan,4\n";
    static const char *const city[1] = {"city"}, *const none[2] = {"price", "none"};
    static const double codes[4] = {0, 2, 3, 1};
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("a.csv");
    CHECK(put_file(b.path, text, sizeof text - 1));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("price");
    desc.missing = MLC_MISSING_MEAN;
    desc.columns = city;
    desc.n_columns = 1;
    mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
    for (int i = 0; i < 4; i++) CHECK_NEAR(value(ctx, d, i, 0), codes[i], 0);
    desc.missing = MLC_MISSING_VALUE;
    desc.value = 1;                    /* which is Linz                                        */
    d = mlc_dataset_table(ctx, t, &desc);
    for (int i = 0; i < 4; i++) CHECK_NEAR(value(ctx, d, i, 0), codes[i], 0);
    desc.missing = MLC_MISSING_MEAN;
    desc.columns = none;
    desc.n_columns = 2;
    desc.target = NULL;
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "a.csv': column 'none' has no value in 4 rows, and so "
                                    "no mean; leave it out of columns, or set missing to ");
    desc.n_columns = 1;                /* without gaps there is nothing to fill in             */
    CHECK(mlc_dataset_table(ctx, t, &desc) != NULL);
    CHECK_OK(ctx);
    box_close(&b);
}

static mlc_status length_get(void *user, mlc_sample *s)
{
    (void)user;
    s->len[0] = 1;
    return MLC_OK;
}

TEST(dataset, a_field_of_all_samples_is_one_tensor)
{
    static const double x[8] = {3, 30, 0, 0, 3, 30, 1, 10}, y[4] = {0, 0, 0, 1};
    static const double which[4] = {3, 0, 3, 1};
    mlc_ctx    *ctx = test_ctx();
    numbers     of = {5, -1, 0};
    mlc_dataset d = numbers_set(&of);
    mlc_dataset *part = mlc_dataset_subset(ctx, &d, test_tensor(ctx, MLC_I64, mlc_dims1(4), which));
    mlc_tensor *t = mlc_dataset_field(ctx, part, 0);
    CHECK(t && t->dtype == MLC_F32 && t->ndim == 2 && t->shape[0] == 4 && t->shape[1] == 2);
    CHECK_VALUES(t, 8, x, 0, 0);
    t = mlc_dataset_field(ctx, part, 1);
    CHECK(t && t->dtype == MLC_I64 && t->ndim == 1);
    CHECK_VALUES(t, 4, y, 0, 0);
    CHECK(mlc_dataset_field(ctx, part, 2) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_field: field 2; the dataset has 2, which count from 0");
    CHECK(mlc_dataset_field(ctx, NULL, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_field: the dataset is NULL");
    of.bad = 2;
    CHECK(mlc_dataset_field(ctx, &d, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "dataset_field: sample 2: the number 2 is bad");
    d.count = NULL;
    CHECK(mlc_dataset_field(ctx, &d, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_field: the dataset is a stream");
    d = numbers_set(&of);
    d.field[0].ragged = true;
    d.get = length_get;
    CHECK(mlc_dataset_field(ctx, &d, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_field: field 0 is ragged");
    d = numbers_set(&of);
    of.n = INT64_MAX;
    CHECK(mlc_dataset_field(ctx, &d, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "has more elements than memory can hold");
}

TEST(dataset, texts_are_one_hot_where_asked_for_and_numbers_beside_them_are_filled_in)
{
    static const char text[] = "size,city,rooms,heat,price\n50,Graz,2,gas,1\n70,NA,,oil,2\n"
                               "90,Wien,4,,3\n,Linz,3,gas,4\n";
    static const double x[4][7] = {{50, 1, 0, 0, 2, 1, 0}, {70, 0, 0, 0, 3, 0, 1},
                                   {90, 0, 0, 1, 4, 0, 0}, {70, 0, 1, 0, 3, 1, 0}};
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("a.csv");
    mlc_tensor *field[2];
    CHECK(put_file(b.path, text, sizeof text - 1));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("price");
    CHECK(!desc.one_hot);
    desc.one_hot = true;
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "a.csv': line 3, column 2 'city' is empty or NaN; set ");
    desc.missing = MLC_MISSING_MEAN;
    mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
    CHECK(d && d->field[0].dims.n == 1 && d->field[0].dims.v[0] == 7);
    for (int i = 0; d && i < 4; i++) {
        CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK);
        CHECK_VALUES(field[0], 7, x[i], 0, 0);
        CHECK_NEAR(mlc_item(field[1]), i + 1, 0);
    }
    desc.missing = MLC_MISSING_DROP;
    d = mlc_dataset_table(ctx, t, &desc);
    CHECK_EQ(mlc_dataset_count(d), 1);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_VALUES(field[0], 7, x[0], 0, 0);
    box_close(&b);
}

TEST(dataset, a_target_of_whole_numbers_or_texts_is_f32_where_asked_for)
{
    static const char text[] = "a,price,kind,r\n1,100,no,0.5\n2,250,yes,1.5\n3,-7,no,2.5\n";
    static const char *const target[3] = {"price", "kind", "r"};
    static const double y[3][3] = {{100, 250, -7}, {0, 1, 0}, {0.5, 1.5, 2.5}};
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("a.csv");
    CHECK(put_file(b.path, text, sizeof text - 1));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    for (int k = 0; k < 6; k++) {
        mlc_dataset_table_desc desc = mlc_dataset_table_desc_make(target[k / 2]);
        CHECK(!desc.target_f32);
        desc.target_f32 = k % 2;
        mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
        CHECK(d && d->field[1].dtype == (k % 2 || k == 4 ? MLC_F32 : MLC_I64));
        for (int i = 0; d && i < 3; i++) CHECK_NEAR(value(ctx, d, i, 1), y[k / 2][i], 0);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(dataset, a_table_like_another_has_its_categories_means_and_order_of_columns)
{
    static const char train[] = "size,city,price\n50,Wien,1\n70,Graz,2\n,Linz,3\n";
    static const char test[]  = "price,note,city,size\n4,a,Linz,10\n5,b,Graz,NA\n6,c,NA,30\n"
                                "7,d,Bonn,40\n";
    static const double codes[4][2] = {{10, 1}, {60, 0}, {30, 3}, {40, 3}};
    static const double places[4][4] = {{10, 0, 1, 0}, {60, 1, 0, 0}, {30, 0, 0, 0}, {40, 0, 0, 0}};
    mlc_ctx    *ctx = test_ctx();
    const box   a = box_open("a.csv"), b = box_open("b.csv");
    mlc_tensor *field[2];
    CHECK(put_file(a.path, train, sizeof train - 1) && put_file(b.path, test, sizeof test - 1));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("price");
    CHECK(desc.like == NULL);
    desc.like = mlc_table_load(ctx, a.path, NULL);
    desc.missing = MLC_MISSING_MEAN;
    for (int hot = 0; hot < 2; hot++) {
        desc.one_hot = hot;
        mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
        CHECK(d && d->field[0].dims.v[0] == (hot ? 4 : 2) && d->field[1].dtype == MLC_I64);
        for (int i = 0; d && i < 4; i++) {
            CHECK_EQ(mlc_dataset_get(ctx, d, i, field), MLC_OK);
            CHECK_VALUES(field[0], hot ? 4 : 2, hot ? places[i] : codes[i], 0, 0);
            CHECK_NEAR(mlc_item(field[1]), i + 4, 0);
        }
    }
    desc.missing = MLC_MISSING_DROP;
    mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
    CHECK_EQ(mlc_dataset_count(d), 1);
    CHECK_NEAR(value(ctx, d, 0, 1), 4, 0);
    static const char *const city[1] = {"city"};
    desc.missing = MLC_MISSING_ERROR;
    desc.columns = city;
    desc.n_columns = 1;
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "line 4, column 3 'city' is empty or NaN; set missing to drop");
    CHECK(put_file(b.path, "city,price\nLinz,1\nBonn,2\n", 25));
    t = mlc_table_load(ctx, b.path, NULL);
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "b.csv': line 3, column 1 'city' is 'Bonn', no category of the "
                                    "table that is `like`; set missing to drop such rows, or to ");
    box_close(&a);
    box_close(&b);
}

TEST(dataset, a_table_like_another_must_have_its_columns_and_their_kind)
{
    static const struct { const char *text, *why; mlc_status st; } bad[] = {
        {"size,price\n1,2\n", "it has no column 'kind'; there are 'size', 'price'", MLC_ERR_ARG},
        {"size,kind,price\nbig,a,2\n", "b.csv': column 'size' has texts, and numbers in the ",
         MLC_ERR_DTYPE},
        {"size,kind,price\n1,a,2.5\n", "the target 'price' is not of whole numbers alone, and in ",
         MLC_ERR_DTYPE},
    };
    mlc_ctx  *ctx = test_ctx();
    const box a = box_open("a.csv"), b = box_open("b.csv");
    CHECK(put_file(a.path, "size,kind,price\n1,7,2\n3,x,4\n", 28));
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("price");
    desc.like = mlc_table_load(ctx, a.path, NULL);
    for (int k = 0; k < 3; k++) {
        CHECK(put_file(b.path, bad[k].text, strlen(bad[k].text)));
        mlc_table *t = mlc_table_load(ctx, b.path, NULL);
        CHECK(t && mlc_dataset_table(ctx, t, &desc) == NULL);
        CHECK_ERROR(ctx, bad[k].st, bad[k].why);
    }
    desc.target_f32 = true;            /* what was refused last is numbers now                 */
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    desc.missing = MLC_MISSING_VALUE;
    mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
    CHECK_NEAR(value(ctx, d, 0, 1), 2.5, 0);
    CHECK(put_file(b.path, "size,kind,price\n1,7,2\n", 22));  /* kind is whole numbers here   */
    d = mlc_dataset_table(ctx, mlc_table_load(ctx, b.path, NULL), &desc);
    mlc_tensor *field[2];
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_NEAR(mlc_item_at(field[0], mlc_dims1(1)), 0, 0);
    desc.target = "cost";
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the table that is `like` has no column 'cost'; there are");
    box_close(&a);
    box_close(&b);
}

TEST(dataset, columns_of_one_name_or_of_none_are_matched_in_their_order)
{
    static const struct { const char *like, *text, *target; double x[3], y; } good[] = {
        {"a,a,b\n1,2,3\n", "b,a,a\n30,10,20\n", "b", {10, 20, 0}, 30},
        {"a,a,b\n1,2,3\n", "b,a,a\n30,10,20\n", NULL, {10, 20, 30}, 0},
        {"y,x,y\n1,2,3\n", "x,y,y\n20,10,30\n", "y", {20, 30, 0}, 10},
        {",a,\n1,2,3\n", ",,a\n10,30,20\n", "a", {10, 30, 0}, 20},
        {"1,2,3\n", "10,20,30\n", NULL, {10, 20, 30}, 0},
    };
    static const struct { const char *like, *text, *why; } bad[] = {
        {"1,2,3\n", "10,20\n", "a.csv' has 3 columns that are named '', and "},
        {"1,2\n", "10,20,30\n", "a.csv' has 2 columns that are named '', and "},
        {"a,a,b\n1,2,3\n", "a,b\n1,2\n", "a.csv' has 2 columns that are named 'a', and "},
        {"a,b\n1,2\n", "b,a,a\n1,2,3\n", "b.csv' has 2; they are matched in their order, so "},
    };
    mlc_ctx     *ctx = test_ctx();
    const box    a = box_open("a.csv"), b = box_open("b.csv");
    mlc_csv_desc csv = mlc_table_desc_make();
    mlc_tensor  *field[2];
    for (size_t i = 0; i < sizeof good / sizeof *good + sizeof bad / sizeof *bad; i++) {
        const size_t goods = sizeof good / sizeof *good, k = i < goods ? i : i - goods;
        const char *like = i < goods ? good[k].like : bad[k].like;
        const char *text = i < goods ? good[k].text : bad[k].text;
        CHECK(put_file(a.path, like, strlen(like)) && put_file(b.path, text, strlen(text)));
        csv.header = like[0] != '1';
        mlc_dataset_table_desc desc = mlc_dataset_table_desc_make(NULL);
        if (i < goods) desc.target = good[k].target;
        desc.like = mlc_table_load(ctx, a.path, &csv);
        mlc_dataset *d = mlc_dataset_table(ctx, mlc_table_load(ctx, b.path, &csv), &desc);
        CHECK((d != NULL) == (i < goods));
        if (i >= goods) CHECK_ERROR(ctx, MLC_ERR_ARG, bad[k].why);
        if (!d) continue;
        CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
        CHECK_VALUES(field[0], desc.target ? 2 : 3, good[k].x, 0, 0);
        if (desc.target) CHECK_NEAR(mlc_item(field[1]), good[k].y, 0);
    }
    box_close(&a);
    box_close(&b);
}

TEST(dataset, a_policy_of_empty_cells_that_there_is_not_is_refused)
{
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("r.csv");
    CHECK(put_file(b.path, "a,b\n1,\n", 7));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("a");
    for (int k = 0; k < 2; k++) {
        desc.missing = (mlc_missing)(k ? 99 : 4);
        CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, k ? "missing is 99; the values of mlc_missing are 0 to 3"
                                        : "missing is 4; ");
    }
    box_close(&b);
}

TEST(dataset, a_file_to_be_predicted_like_another_needs_no_column_of_the_target)
{
    static const double x[2] = {20, 10};
    mlc_ctx    *ctx = test_ctx();
    const box   a = box_open("a.csv"), b = box_open("b.csv");
    mlc_tensor *field[2];
    CHECK(put_file(a.path, "size,price,city\n1,2,3\n", 22));
    CHECK(put_file(b.path, "city,size\n10,20\n", 16));
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    mlc_dataset_table_desc desc = mlc_dataset_table_desc_make("price");
    desc.like = mlc_table_load(ctx, a.path, NULL);
    mlc_dataset *d = mlc_dataset_table(ctx, t, &desc);
    CHECK(d && d->n_fields == 1);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_VALUES(field[0], 2, x, 0, 0);
    desc.target = "prise";
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the table that is `like` has no column 'prise'; there are");
    desc.target = "price";
    desc.like = NULL;
    CHECK(mlc_dataset_table(ctx, t, &desc) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "b.csv': it has no column 'price'; there are 'city', 'size'");
    box_close(&a);
    box_close(&b);
}

/* ---- folders of images ---------------------------------------------------------------------- */

static void put_image(const box *b, const char *name, const char *head, int n, int first)
{
    char path[340], file[128];
    int  at = snprintf(file, sizeof file, "%s", head);
    for (int i = 0; i < n; i++)
        file[at++] = (char)(first + i);
    snprintf(path, sizeof path, "%s/%s", b->dir, name);
    CHECK(put_file(path, file, (size_t)at));
}

TEST(dataset, a_folder_of_images_gives_them_in_the_order_of_their_names)
{
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("x");
    mlc_tensor *field[2];
    CHECK(mlc_dataset_pnm(ctx, b.dir) == NULL);
    CHECK_HAS(mlc_error(ctx), "no images");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    put_image(&b, "b.ppm", "P6\n# colours\n2 1 255\n", 6, 1);
    put_image(&b, "a.ppm", "P6 2 1\n255\n", 6, 11);
    put_image(&b, "c.ppm", "P6 1 2 255 ", 6, 21);
    put_image(&b, "d.ppm", "P6 2 1 255 ", 5, 21);
    put_image(&b, "e.ppm", "P6 2 1 15 ", 6, 10);
    put_image(&b, "f.ppm", "P3 2 1 255 ", 6, 21);
    put_image(&b, "notes.txt", "no image", 0, 0);
    mlc_dataset *d = mlc_dataset_pnm(ctx, b.dir);
    const double a[6] = {11, 14, 12, 15, 13, 16};
    CHECK_EQ(mlc_dataset_count(d), 6);
    CHECK(d && d->n_fields == 1);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK(field[0]->ndim == 3 && mlc_dim(field[0], 0) == 3 && mlc_dim(field[0], 2) == 2);
    CHECK_VALUES(field[0], 6, a, 0, 0);
    CHECK_NEAR(value(ctx, d, 1, 0), 1, 0);
    CHECK_NEAR(value(ctx, d, 4, 0), 170, 0);               /* 10 of 15                         */
    CHECK_OK(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, d, 2, field), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "c.ppm' is [3,2,1], the first image [3,1,2]");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, d, 3, field), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "d.ppm' is cut short");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_dataset_get(ctx, d, 5, field), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "f.ppm': no binary");
    mlc_error_clear(ctx);
    box_close(&b);
    CHECK(mlc_dataset_pnm(ctx, b.dir) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

TEST(dataset, a_pixel_over_the_maximum_is_an_error_and_capitals_are_read)
{
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("x");
    mlc_tensor *field[1];
    put_image(&b, "a.PGM", "P5 2 1 12 ", 2, 11);
    put_image(&b, "b.Pgm", "P5 2 1 12 ", 2, 12);
    put_image(&b, "c.pam", "P5 2 1 12 ", 2, 12);
    put_image(&b, "d.pgmx", "P5 2 1 12 ", 2, 12);
    put_image(&b, "e.p", "P5 2 1 12 ", 2, 12);
    mlc_dataset *d = mlc_dataset_pnm(ctx, b.dir);
    const double a[2] = {234, 255};
    CHECK_EQ(mlc_dataset_count(d), 2);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_VALUES(field[0], 2, a, 0, 0);
    CHECK_EQ(mlc_dataset_get(ctx, d, 1, field), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "b.Pgm': pixel 1 is 13, over the header's maximum of 12");
    box_close(&b);
}

TEST(dataset, folders_of_images_are_classes)
{
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("x");
    char      dog[340], cat[340];
    snprintf(dog, sizeof dog, "%s/dog", b.dir);
    snprintf(cat, sizeof cat, "%s/cat-a", b.dir);
    CHECK_EQ(folder_make(dog), 0);
    CHECK_EQ(folder_make(cat), 0);
    put_image(&b, "dog/2.pgm", "P5 1 1 255 ", 1, 3);
    put_image(&b, "dog/1.pgm", "P5 1 1 255 ", 1, 2);
    put_image(&b, "cat-a/9.pgm", "P5 1 1 255 ", 1, 1);
    mlc_dataset *d = mlc_dataset_pnm(ctx, b.dir);
    CHECK_EQ(mlc_dataset_count(d), 3);
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(value(ctx, d, i, 0), i + 1, 0);
        CHECK_NEAR(value(ctx, d, i, 1), i > 0, 0);
    }
    CHECK_OK(ctx);
    folder_remove(dog);
    folder_remove(cat);
    box_close(&b);
}

/* ---- larger than memory ---------------------------------------------------------------------- */

/* 8 MB of rows in a file, a context that may have 4.                                           */
TEST(dataset, a_file_of_twice_the_hard_limit_trains_within_it)
{
    const box    b = box_open("x.npy");
    mlc_ctx     *full = test_ctx();
    mlc_ctx_desc desc = test_desc();
    const int64_t n = 8192, c = 256;
    mlc_tensor  *x = test_rand(full, MLC_F32, mlc_dims2(n, c), 1, -1, 1);
    CHECK_EQ(mlc_npy_save(x, b.path), MLC_OK);
    desc.hard_limit = (size_t)4 << 20;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&desc));
    mlc_dataset *rows = mlc_dataset_npy(ctx, b.path);
#ifdef _WIN32                          /* no files are mapped there: all of it would be read   */
    CHECK(rows == NULL);
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    return;
#endif
    CHECK(mlc_npy_load(ctx, b.path) == NULL);              /* it does not fit                  */
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    mlc_module *net = mlc_nn_linear(ctx, c, 1);
    mlc_optim  *opt = mlc_sgd(net, 0.05);
    mlc_loader_from_desc from = mlc_loader_from_desc_make(64);
    from.shuffle = true;
    from.workers = 2;
    mlc_loader *l = mlc_loader_from(ctx, rows, &from);
    double      first = 0, last = 0;
    for (int epoch = 0; epoch < 3; epoch++)
        for (mlc_batch batch; mlc_loader_next(l, &batch);) {
            mlc_scope_begin(ctx);                          /* y: the sum of a row's first two  */
            mlc_tensor *y = mlc_sum(mlc_slice(batch.x, 1, 0, 2, 1), mlc_dims1(1), true);
            mlc_tensor *loss = mlc_mse_loss(mlc_forward(net, batch.x), y);
            mlc_backward(loss);
            mlc_optim_step(opt);
            last = mlc_item(loss);
            if (first <= 0)
                first = last;
            if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
                break;
        }
    mlc_memory info;
    mlc_memory_info(ctx, &info);
    CHECK(info.peak <= 4 << 20);
    CHECK(last < 0.1 * first);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- augmentation --------------------------------------------------------------------------- */

/* n images [c,4,5]: pixel v of image i is 10 (i + 1) + v, or all of them 1.                    */
static mlc_dataset *images(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int64_t c, bool ones)
{
    mlc_tensor *x = mlc_reshape(mlc_arange(ctx, MLC_F32, 0, (double)(c * 20), 1),
                                mlc_dims4(1, c, 4, 5));
    mlc_tensor *first = mlc_reshape(mlc_arange(ctx, MLC_F32, 10, (double)(10 + 10 * n), 10),
                                    mlc_dims4(n, 1, 1, 1));
    mlc_tensor *all = ones ? mlc_ones(ctx, MLC_F32, mlc_dims4(n, c, 4, 5)) : mlc_add(x, first);
    mlc_tensor *t[2] = {mlc_cast(all, dtype), mlc_cast(mlc_arange(ctx, MLC_F32, 0, (double)n, 1),
                                                       MLC_I64)};
    return mlc_dataset_tensors(ctx, t, 2);
}

static bool image(mlc_ctx *ctx, const mlc_dataset *d, int64_t i, double *to)
{
    mlc_tensor *field[MLC_MAX_FIELDS];
    return mlc_dataset_get(ctx, d, i, field) == MLC_OK && test_read(field[0], to);
}

TEST(dataset, an_augmentation_of_nothing_is_the_image_in_f32_scaled_and_normalised)
{
    mlc_ctx     *ctx = test_ctx();
    const double mean[3] = {0.1, 0.2, 0.3}, std[3] = {0.5, 1, 2};
    double       v[60];
    for (int dtype = 0; dtype < 2; dtype++) {
        mlc_dataset     *d = images(ctx, dtype ? MLC_U8 : MLC_F32, 2, 3, false);
        mlc_augment_desc desc = mlc_augment_desc_make();
        mlc_dataset     *a = mlc_dataset_augment(ctx, d, &desc);
        CHECK(a && a->field[0].dtype == MLC_F32 && a->n_fields == 2);
        CHECK(image(ctx, a, 1, v));
        for (int i = 0; i < 60; i++)
            CHECK_NEAR(v[i], 20 + i, 0);
        CHECK_NEAR(value(ctx, a, 1, 1), 1, 0);
        desc.scale = 1.0 / 255;
        desc.mean = mean;
        desc.std = std;
        a = mlc_dataset_augment(ctx, d, &desc);
        CHECK(image(ctx, a, 1, v));
        for (int i = 0; i < 60; i++)
            CHECK_NEAR(v[i], ((20 + i) / 255.0 - mean[i / 20]) / std[i / 20], 1e-6);
    }
    CHECK_OK(ctx);
}

TEST(dataset, flips_and_crops_are_exact)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_dataset     *d = images(ctx, MLC_F32, 200, 2, false);
    mlc_augment_desc desc = mlc_augment_desc_make();
    double           v[80];
    desc.flip = 1;
    CHECK(image(ctx, mlc_dataset_augment(ctx, d, &desc), 0, v));
    for (int i = 0; i < 40; i++)
        CHECK_NEAR(v[i], 10 + i / 5 * 5 + 4 - i % 5, 0);
    desc.flip = 0;
    desc.flip_down = 1;
    CHECK(image(ctx, mlc_dataset_augment(ctx, d, &desc), 0, v));
    for (int i = 0; i < 40; i++)
        CHECK_NEAR(v[i], 10 + i / 20 * 20 + (3 - i / 5 % 4) * 5 + i % 5, 0);
    desc.flip_down = 0;
    desc.flip = 0.5;
    mlc_dataset *half = mlc_dataset_augment(ctx, d, &desc);
    int          flipped = 0;
    for (int i = 0; i < 24; i++)
        if (CHECK(image(ctx, half, i, v)))
            flipped += v[0] > v[1];
    CHECK(flipped > 4 && flipped < 20);
    desc = mlc_augment_desc_make();
    desc.crop_h = 2;
    desc.crop_w = 3;
    desc.centre = true;
    mlc_dataset *part = mlc_dataset_augment(ctx, d, &desc);
    CHECK(part && part->field[0].dims.v[1] == 2 && part->field[0].dims.v[2] == 3);
    CHECK(image(ctx, part, 0, v));
    for (int i = 0; i < 12; i++)
        CHECK_NEAR(v[i], 10 + i / 6 * 20 + (1 + i / 3 % 2) * 5 + 1 + i % 3, 0);
    desc.centre = false;
    part = mlc_dataset_augment(ctx, d, &desc);
    bool seen[3][3] = {{false}};
    for (int64_t i = 0; i < 24; i++)
        if (CHECK(image(ctx, part, i, v))) {
            const int at = (int)v[0] - 10 * (int)(i + 1);
            CHECK(at >= 0 && at / 5 <= 2 && at % 5 <= 2);
            CHECK_NEAR(v[5], v[0] + 7, 0);
            seen[at / 5 % 3][at % 5 % 3] = true;
        }
    for (int i = 0; i < 9; i++)
        CHECK(seen[i / 3][i % 3]);
    desc = mlc_augment_desc_make();
    desc.pad = 2;
    part = mlc_dataset_augment(ctx, images(ctx, MLC_F32, 100, 1, true), &desc);
    int least = 20, most = 0;
    for (int64_t i = 0; i < 100; i++)
        if (CHECK(image(ctx, part, i, v))) {
            int ones = 0;
            for (int k = 0; k < 20; k++)
                ones += v[k] > 0;
            least = ones < least ? ones : least;
            most = ones > most ? ones : most;
        }
    CHECK(least == 6 && most == 20);                       /* moved by 2 and 2; not at all     */
    CHECK_OK(ctx);
}

TEST(dataset, noise_cutout_and_rotation_do_what_they_say)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_dataset     *d = images(ctx, MLC_F32, 200, 3, true);
    mlc_augment_desc desc = mlc_augment_desc_make();
    double           v[60], sum = 0, squares = 0;
    desc.noise = 0.5;
    mlc_dataset *a = mlc_dataset_augment(ctx, d, &desc);
    for (int64_t i = 0; i < 200; i++)
        if (CHECK(image(ctx, a, i, v)))
            for (int k = 0; k < 60; k++) {
                sum += v[k] - 1;
                squares += (v[k] - 1) * (v[k] - 1);
            }
    CHECK_NEAR(sum / 12000, 0, 0.02);
    CHECK_NEAR(squares / 12000, 0.25, 0.015);
    desc = mlc_augment_desc_make();
    desc.cutout = 2;
    a = mlc_dataset_augment(ctx, d, &desc);
    for (int64_t i = 0; i < 50; i++)
        if (CHECK(image(ctx, a, i, v))) {
            int zeros = 0;
            for (int k = 0; k < 20; k++) {
                CHECK(v[k] == v[k + 20] && v[k] == v[k + 40]);
                zeros += v[k] < 0.5;
            }
            CHECK(zeros == 4 || zeros == 2 || zeros == 1);
        }
    desc = mlc_augment_desc_make();
    desc.shift = 1;
    desc.rotate = 30;
    a = mlc_dataset_augment(ctx, d, &desc);
    for (int64_t i = 0; i < 20; i++)
        if (CHECK(image(ctx, a, i, v)))
            for (int k = 0; k < 60; k++)
                CHECK(v[k] >= 0 && v[k] <= 1.0001);
    mlc_augment_desc other = desc;
    double           w[60];
    other.seed = 1;
    CHECK(image(ctx, mlc_dataset_augment(ctx, d, &other), 0, w) && image(ctx, a, 0, v));
    CHECK(memcmp(v, w, sizeof v) != 0);
    CHECK_OK(ctx);
}

TEST(dataset, an_augmentation_that_cannot_be_is_refused)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_dataset     *d = images(ctx, MLC_U8, 2, 3, false);
    const double     one[3] = {1, 1, 1}, zero[3] = {1, 0, 1};
    const mlc_augment_desc plain = mlc_augment_desc_make();
    mlc_augment_desc desc = plain;
    desc.flip = 1.5;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "flip is 1.5");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    desc = plain;
    desc.scale = 0;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "scale is 0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    desc = plain;
    desc.crop_h = 5;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "crop of [5,0] of images u8 [3,4,5]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    desc = plain;
    desc.mean = one;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "std is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    desc.std = zero;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "channel 1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    desc = plain;
    desc.field = 1;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    desc.field = 2;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    desc = plain;
    desc.noise = -1;
    CHECK(mlc_dataset_augment(ctx, d, &desc) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}
