/* test_data.c -- tests of section IMPL.DATA: CSV files of numbers, batches from a loader */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "mlc_test.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- CSV ---------------------------------------------------------------------------------- */

static mlc_csv_desc csv_desc(mlc_dtype dtype)
{
    mlc_csv_desc d = mlc_csv_desc_make();
    d.dtype = dtype;
    return d;
}

/* Puts text into a temporary file and reads it; path, if given, takes its name. */
static mlc_tensor *csv_bytes(mlc_ctx *ctx, const char *text, size_t n, const mlc_csv_desc *d)
{
    char        path[256];
    const char *root = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/mlcore_csv_XXXXXX", root && *root ? root : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n) { perror(path); exit(2); }
    close(fd);
    mlc_tensor *t = mlc_csv_load(ctx, path, d);
    unlink(path);
    return t;
}

static mlc_tensor *csv(mlc_ctx *ctx, const char *text, const mlc_csv_desc *d)
{
    return csv_bytes(ctx, text, strlen(text), d);
}

static bool is_table(mlc_tensor *t, int64_t rows, int64_t columns)
{
    return CHECK(t != NULL) && CHECK_EQ(t->ndim, 2) && CHECK_EQ(mlc_dim(t, 0), rows)
        && CHECK_EQ(mlc_dim(t, 1), columns);
}

TEST(data, csv_line_ends_blank_lines_and_comments_do_not_matter)
{
    static const char *const texts[10] = {
        "1,2,3\n4,5,6\n", "1,2,3\n4,5,6", "1,2,3\r\n4,5,6\r\n", "1,2,3\r\n4,5,6",
        "1,2,3\r4,5,6\r", "1,2,3\n\n\n4,5,6\n\n", "# head\n#,x,\n1,2,3\n4,5,6\n",
        "#\r\n1,2,3\r\n\r\n4,5,6\r\n", " 1, 2 ,\t3 \n4 ,5,6\n", "1.0,2e0,+3\n4.,5E+0,.6e1\n" };
    const double want[6] = { 1, 2, 3, 4, 5, 6 };
    mlc_ctx     *ctx = test_ctx();
    for (int i = 0; i < 10; i++) {
        mlc_tensor *t = csv(ctx, texts[i], NULL);
        if (!is_table(t, 2, 3) || !CHECK_VALUES(t, 6, want, 0, 0)) printf("    text %d\n", i);
        CHECK_OK(ctx);
        if (t) CHECK_EQ(t->dtype, MLC_F32);
        mlc_error_clear(ctx);
    }
}

TEST(data, csv_takes_other_delimiters_and_skips_header_lines)
{
    static const char delimiters[5] = { ';', '\t', ' ', '|', ':' };
    const double      want[4] = { 1.5, -2, 3, 4e5 };
    mlc_ctx          *ctx = test_ctx();
    for (int i = 0; i < 5; i++) {
        mlc_csv_desc d = csv_desc(MLC_F64);
        char         text[64], c = delimiters[i];
        d.delimiter  = c;
        d.skip_lines = 2;
        snprintf(text, sizeof text, "a%cb\nunit, unit\n1.5%c-2\n3%c4e5\n", c, c, c);
        mlc_tensor *t = csv(ctx, text, &d);
        if (is_table(t, 2, 2)) CHECK_VALUES(t, 4, want, 0, 0);
        CHECK_OK(ctx);
        mlc_error_clear(ctx);
    }
}

/* More lines than there are end at the end of the text. */
TEST(data, csv_skips_all_lines_of_a_short_file)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = csv_desc(MLC_F32);
    d.skip_lines = INT32_MAX;
    CHECK(csv(ctx, "1,2\n3,4\n", &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "no rows");
}

TEST(data, csv_of_one_number_and_of_one_column)
{
    const double one[1] = { 7 }, three[3] = { 1, 2, 3 };
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *a = csv(ctx, "7", NULL), *b = csv(ctx, "1\n2\n3", NULL);
    if (is_table(a, 1, 1)) CHECK_VALUES(a, 1, one, 0, 0);
    if (is_table(b, 3, 1)) CHECK_VALUES(b, 3, three, 0, 0);
    CHECK_OK(ctx);
}

TEST(data, csv_mistakes_are_named_with_line_and_column)
{
    static const struct { const char *text, *line, *column; } bad[] = {
        { "1,2,3\n4,5\n", "line 2 has 2 columns", "first row 3" },
        { "# c\n1,2\n3,4\n\n5,6,7\n", "line 5 has 3 columns", "first row 2" },
        { "1,2\n3,abc\n", "line 2", "column 2" },
        { "a,b\n1,2\n", "line 1", "column 1" },
        { "1,2\r3,4x\r", "line 2", "column 2" },
        { "1,,2\n", "line 1", "column 2" },
        { "1,2,\n", "line 1", "column 3" },
        { ",1\n", "line 1", "column 1" },
        { "1, \n", "line 1", "column 2" },
        { "1,2 3\n", "line 1", "column 2" },
        { "1,--2\n", "line 1", "column 2" },
        { "1,2e\n", "line 1", "column 2" },
        { "1,2e+\n", "line 1", "column 2" },
        { "1,.\n", "line 1", "column 2" },
        { "1,1.2.3\n", "line 1", "column 2" },
        { "1,2\"\n", "line 1", "column 2" },
        { "1,nano\n", "line 1", "column 2" },
        { "1;2\n", "line 1", "column 1" } };
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bool ok = CHECK(csv(ctx, bad[i].text, NULL) == NULL);
        ok &= CHECK_HAS(mlc_error(ctx), "mlcore_csv_");           /* the path */
        ok &= CHECK_HAS(mlc_error(ctx), bad[i].line);
        ok &= CHECK_HAS(mlc_error(ctx), bad[i].column);
        ok &= CHECK_STATUS(ctx, MLC_ERR_IO);
        if (!ok) printf("    text: %s", bad[i].text);
    }
}

TEST(data, csv_without_rows_or_without_a_file_is_an_error)
{
    static const char *const texts[4] = { "", "\n\n", "# only\n# comments", "\r\n" };
    mlc_ctx      *ctx = test_ctx();
    mlc_csv_desc  d = csv_desc(MLC_F32);
    for (int i = 0; i < 4; i++) {
        CHECK(csv(ctx, texts[i], NULL) == NULL);
        CHECK_HAS(mlc_error(ctx), "mlcore_csv_");
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    d.skip_lines = 3;
    CHECK(csv(ctx, "1,2\n3,4\n", &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_csv_load(ctx, "/nonexistent/numbers.csv", NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "/nonexistent/numbers.csv");
    CHECK_HAS(mlc_error(ctx), "No such file or directory");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_csv_load(ctx, "/", NULL) == NULL);                  /* a folder */
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_csv_load(ctx, NULL, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_csv_load(NULL, "x.csv", NULL) == NULL);
}

TEST(data, csv_with_a_zero_byte_is_an_error)
{
    mlc_ctx *ctx = test_ctx();
    CHECK(csv_bytes(ctx, "1,2\n3,\0004\n", 9, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(csv_bytes(ctx, "1,2\n3,4\0", 8, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* An infinity in the file is one; a number that would silently become one is an error. */
TEST(data, csv_numbers_too_large_for_the_dtype_are_errors)
{
    static const char *const bad[5] = { "1e39", "-3.5e38", "1e400", "-1e99999999999", "1e309" };
    mlc_ctx      *ctx = test_ctx();
    mlc_csv_desc  d = csv_desc(MLC_F64);
    const double  most[1] = { 3.4028234663852886e38 }, large[1] = { 1e39 };
    for (int i = 0; i < 5; i++) {
        if (!CHECK(csv(ctx, bad[i], NULL) == NULL)) printf("    %s\n", bad[i]);
        CHECK_HAS(mlc_error(ctx), "line 1, column 1");
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    CHECK(csv(ctx, "1e400", &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_VALUES(csv(ctx, "3.4028234663852886e38", NULL), 1, most, 0, 0);
    CHECK_VALUES(csv(ctx, "1e39", &d), 1, large, 0, 0);
    CHECK_OK(ctx);
}

/* Numbers at the edges of f64, and halfway cases that need exact arithmetic. */
TEST(data, csv_reads_hard_decimals_as_the_c_library_does)
{
    static const char *const texts[16] = {
        "0.1", "-0", "1.7976931348623157e308", "4.9406564584124654e-324", "2.2250738585072011e-308",
        "9007199254740993", "9007199254740992.9999999999999999999", "1e23", "8.5e-5",
        "0.1000000000000000055511151231257827021181583404541015625", "1e-400", "123456789012345678",
        "7.2057594037927933e16", "000000000000000000000000000000000000000000000000001e1",
        "2.47032822920623272088284396434110686182e-324", "6929495644600919.5" };
    mlc_ctx      *ctx = test_ctx();
    mlc_csv_desc  d = csv_desc(MLC_F64);
    for (int i = 0; i < 16; i++) {
        double      want = test_strtod(texts[i]), got = 0;
        mlc_tensor *t = csv(ctx, texts[i], &d);
        if (!is_table(t, 1, 1)) continue;
        test_read(t, &got);
        if (!CHECK(memcmp(&got, &want, sizeof got) == 0))
            printf("    %s: %.17g, want %.17g\n", texts[i], got, want);
    }
    CHECK_OK(ctx);
}

TEST(data, csv_round_trips_17_digits_exactly)
{
    enum { N = 1000 };
    mlc_ctx      *ctx = test_ctx();
    mlc_csv_desc  d = csv_desc(MLC_F64);
    char         *text = (char *)malloc(N * 32), *p = text;
    double       *want = (double *)malloc(N * sizeof *want);
    double       *got = (double *)malloc(N * sizeof *got);
    uint64_t      s = 88172645463325252u;
    for (int i = 0; i < N; i++) {                   /* random bits: every exponent comes up */
        uint64_t bits;
        do {
            s ^= s << 13; s ^= s >> 7; s ^= s << 17;
            bits = s;
        } while ((bits >> 52 & 2047) == 2047);
        memcpy(&want[i], &bits, sizeof bits);
        p += test_print_g17(p, want[i]);
        *p++ = i % 10 == 9 ? '\n' : ',';
        *p = 0;
    }
    mlc_tensor *t = csv(ctx, text, &d);
    if (is_table(t, N / 10, 10)) {
        test_read(t, got);
        for (int i = 0; i < N; i++)
            if (!CHECK(memcmp(&got[i], &want[i], sizeof(double)) == 0))
                printf("    %.17g, want %.17g\n", got[i], want[i]);
    }
    free(text);
    free(want);
    free(got);
}

TEST(data, csv_nan_and_inf_are_numbers)
{
    mlc_ctx    *ctx = test_ctx();
    double      v[8];
    mlc_tensor *t = csv(ctx, "nan,inf,-inf,NaN\nNAN,Inf,+inf,-INF\n", NULL);
    if (is_table(t, 2, 4)) {
        test_read(t, v);
        CHECK(isnan(v[0]) && isnan(v[3]) && isnan(v[4]));
        CHECK(isinf(v[1]) && v[1] > 0 && isinf(v[2]) && v[2] < 0);
        CHECK(isinf(v[5]) && v[5] > 0 && isinf(v[6]) && v[6] > 0 && isinf(v[7]) && v[7] < 0);
    }
    CHECK_OK(ctx);
}

TEST(data, csv_of_whole_numbers_is_exact_and_refuses_others)
{
    static const char *const bad[7] = { "9223372036854775808", "-9223372036854775809", "1.5",
                                        "nan", "inf", "1e30", "123456789012345678901" };
    mlc_ctx      *ctx = test_ctx();
    mlc_csv_desc  d = csv_desc(MLC_I64);
    int64_t       v[4];
    mlc_tensor   *t = csv(ctx, "9223372036854775807,-9223372036854775808\n-0,9007199254740993", &d);
    if (is_table(t, 2, 2) && CHECK_EQ(mlc_read(t, v, sizeof v), MLC_OK)) {
        CHECK_EQ(v[0], INT64_MAX);
        CHECK_EQ(v[1], INT64_MIN);
        CHECK_EQ(v[2], 0);
        CHECK_EQ(v[3], 9007199254740993);
    }
    CHECK_OK(ctx);
    for (int i = 0; i < 7; i++) {
        if (!CHECK(csv(ctx, bad[i], &d) == NULL)) printf("    %s\n", bad[i]);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
}

TEST(data, csv_does_not_depend_on_the_locale)
{
    static const char *const names[5] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8",
                                          "C" };
    const double want[2] = { 1.5, 2.25 };
    mlc_ctx     *ctx = test_ctx();
    char         before[1024];         /* a list of all categories where they differ       */
    snprintf(before, sizeof before, "%s", setlocale(LC_ALL, NULL));
    for (int i = 0; i < 5; i++)
        if (setlocale(LC_ALL, names[i])) break;     /* C where no decimal comma is installed */
    mlc_tensor *t = csv(ctx, "1.5,2.25\n", NULL);
    if (is_table(t, 1, 2)) CHECK_VALUES(t, 2, want, 0, 0);
    CHECK(csv(ctx, "1.5;2,25\n", NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(setlocale(LC_ALL, before) != NULL);
}

TEST(data, csv_of_digits_is_what_the_readme_says)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *t = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    if (!is_table(t, 1797, 66)) return;
    double *v = (double *)malloc((size_t)mlc_numel(t) * sizeof *v);
    int     held = 0, count[10] = { 0 }, wrong = 0;
    test_read(t, v);
    for (int i = 0; i < 1797; i++) {
        const double *row = v + 66 * i;
        for (int j = 0; j < 64; j++) wrong += row[j] < 0 || row[j] > 16 || row[j] != floor(row[j]);
        wrong += row[64] < 0 || row[64] > 9;
        held  += row[65] == 1;
        if (row[64] >= 0 && row[64] <= 9 && row[65] == 1) count[(int)row[64]]++;
    }
    CHECK_EQ(wrong, 0);
    CHECK(held >= 350 && held <= 370);
    for (int k = 0; k < 10; k++) CHECK(count[k] >= 33 && count[k] <= 39);
    free(v);
}

/* ---- loader ------------------------------------------------------------------------------- */

enum { ROWS = 23, WIDTH = 3 };

/* x[i] = { 10 i, 10 i + 1, 10 i + 2 } */
static mlc_tensor *rows(mlc_ctx *ctx)
{
    double v[ROWS * WIDTH];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++) v[i * WIDTH + j] = 10 * i + j;
    return test_tensor(ctx, MLC_F32, mlc_dims2(ROWS, WIDTH), v);
}

static mlc_tensor *labels(mlc_ctx *ctx)
{
    return mlc_arange(ctx, MLC_I64, 100, 100 + ROWS, 1);
}

/* Runs one epoch; order[i] is the i-th row delivered. Checks that x, y, n and index agree.
 * Returns the number of rows.                                                                */
static int epoch(mlc_loader *loader, int64_t batch, int *order)
{
    mlc_batch b;
    int       got = 0;
    int64_t   index = 0;
    while (mlc_loader_next(loader, &b)) {
        double  x[ROWS * WIDTH];
        int64_t y[ROWS];
        if (!CHECK(b.n > 0 && b.n <= batch && got + b.n <= ROWS)) return got;
        CHECK_EQ(b.index, index++);
        CHECK(b.x && b.y && b.x->ndim == 2 && b.y->ndim == 1);
        CHECK_EQ(mlc_dim(b.x, 0), b.n);
        CHECK_EQ(mlc_dim(b.x, 1), WIDTH);
        CHECK_EQ(mlc_dim(b.y, 0), b.n);
        CHECK_EQ(b.y->dtype, MLC_I64);
        test_read(b.x, x);
        CHECK_EQ(mlc_read(b.y, y, (size_t)b.n * sizeof *y), MLC_OK);
        for (int64_t i = 0; i < b.n; i++) {
            int row = (int)(x[i * WIDTH] / 10);
            CHECK(x[i * WIDTH + 1] == 10 * row + 1 && x[i * WIDTH + 2] == 10 * row + 2);
            CHECK_EQ(y[i], 100 + row);
            order[got++] = row;
        }
    }
    return got;
}

static bool each_row_once(const int *order, int n)
{
    int seen[ROWS] = { 0 };
    for (int i = 0; i < n; i++)
        if (order[i] < 0 || order[i] >= ROWS || seen[order[i]]++) return false;
    return true;
}

static mlc_loader *loader_of(mlc_ctx *ctx, int64_t batch, bool shuffle, uint64_t seed)
{
    mlc_loader_desc d = mlc_loader_desc_make(rows(ctx), labels(ctx), batch);
    d.shuffle = shuffle;
    d.seed    = seed;
    return mlc_loader_create(ctx, &d);
}

TEST(data, loader_gives_every_row_in_order_with_a_short_last_batch)
{
    static const int64_t batches[5] = { 1, 5, ROWS, ROWS + 1, 1000 };
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 5; i++) {
        mlc_loader *l = loader_of(ctx, batches[i], false, 0);
        int         order[ROWS];
        CHECK_EQ(mlc_loader_batches(l), (ROWS + batches[i] - 1) / batches[i]);
        for (int e = 0; e < 3; e++) {
            CHECK_EQ(epoch(l, batches[i], order), ROWS);
            for (int k = 0; k < ROWS; k++) CHECK_EQ(order[k], k);
        }
        mlc_loader_free(l);
    }
    CHECK_OK(ctx);
}

TEST(data, the_short_forms_are_loaders_that_shuffle_from_seed_0_or_the_one_given)
{
    mlc_ctx *ctx = test_ctx();
    int      order[2][ROWS], first[ROWS];
    CHECK_EQ(mlc_seed(ctx, 5), MLC_OK);             /* no matter                            */
    for (uint64_t seed = 0; seed < 8; seed += 7) {
        mlc_loader *l = seed ? mlc_loader_seeded(ctx, rows(ctx), labels(ctx), 5, seed)
                             : mlc_loader_shuffled(ctx, rows(ctx), labels(ctx), 5);
        mlc_loader *same = loader_of(ctx, 5, true, seed);
        for (int e = 0; e < 3; e++) {
            CHECK_EQ(epoch(l, 5, order[0]), ROWS);
            CHECK_EQ(epoch(same, 5, order[1]), ROWS);
            CHECK(each_row_once(order[0], ROWS) && !memcmp(order[0], order[1], sizeof first));
            CHECK((e == 0 && seed == 0) || memcmp(order[0], first, sizeof first) != 0);
            memcpy(first, order[0], sizeof first);
        }
    }
    CHECK_OK(ctx);
}

TEST(data, the_ordered_short_form_gives_the_rows_as_they_come)
{
    mlc_ctx    *ctx = test_ctx();
    CHECK_EQ(mlc_seed(ctx, 7), MLC_OK);
    mlc_loader *l = mlc_loader_ordered(ctx, rows(ctx), labels(ctx), 5);
    int         order[ROWS];
    for (int e = 0; e < 2; e++) {
        CHECK_EQ(epoch(l, 5, order), ROWS);
        for (int k = 0; k < ROWS; k++) CHECK_EQ(order[k], k);
    }
    CHECK_OK(ctx);
    CHECK(mlc_loader_ordered(ctx, rows(ctx), labels(ctx), 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_loader_ordered(NULL, NULL, NULL, 5) == NULL);
}

TEST(data, loader_drops_the_short_batch_when_asked)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_loader_desc d = mlc_loader_desc_make(rows(ctx), labels(ctx), 5);
    int             order[ROWS];
    d.drop_last = true;
    mlc_loader *l = mlc_loader_create(ctx, &d);
    CHECK_EQ(mlc_loader_batches(l), 4);
    CHECK_EQ(epoch(l, 5, order), 20);
    CHECK_EQ(epoch(l, 5, order), 20);
    d.batch = ROWS;
    mlc_loader *whole = mlc_loader_create(ctx, &d);
    CHECK_EQ(mlc_loader_batches(whole), 1);
    CHECK_EQ(epoch(whole, ROWS, order), ROWS);
    CHECK_OK(ctx);
}

TEST(data, loader_shuffle_is_a_permutation_that_seed_and_epoch_decide)
{
    mlc_ctx    *ctx = test_ctx(), *other = test_ctx();
    int         a[3][ROWS], b[3][ROWS], c[ROWS];
    mlc_loader *l = loader_of(ctx, 4, true, 7), *same = loader_of(other, 9, true, 7);
    mlc_loader *differs = loader_of(ctx, 4, true, 8);
    for (int e = 0; e < 3; e++) {
        CHECK_EQ(epoch(l, 4, a[e]), ROWS);
        CHECK(each_row_once(a[e], ROWS));
        mlc_randn(other, MLC_F32, mlc_dims1(5));    /* other use of the generator: no matter */
        CHECK_EQ(epoch(same, 9, b[e]), ROWS);
        CHECK_EQ(memcmp(a[e], b[e], sizeof a[e]), 0);
    }
    CHECK(memcmp(a[0], a[1], sizeof a[0]) != 0 && memcmp(a[1], a[2], sizeof a[0]) != 0);
    CHECK_EQ(epoch(differs, 4, c), ROWS);
    CHECK(memcmp(a[0], c, sizeof c) != 0);
    CHECK_OK(ctx);
}

/* Over many epochs each row comes first about equally often: 23 rows, 2300 epochs, 100 each. */
TEST(data, loader_shuffle_has_no_favourite)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_loader *l = loader_of(ctx, ROWS, true, 1);
    int         first[ROWS] = { 0 };
    mlc_batch   b;
    for (int e = 0; e < 100 * ROWS; e++) {
        double x[ROWS * WIDTH];
        if (!CHECK(mlc_loader_next(l, &b))) return;
        test_read(b.x, x);
        first[(int)(x[0] / 10)]++;
        CHECK(!mlc_loader_next(l, &b));
    }
    for (int i = 0; i < ROWS; i++) CHECK(first[i] > 50 && first[i] < 150);    /* 5 deviations */
}

TEST(data, loader_batches_stay_valid_across_scopes_until_the_next_call)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_loader  *l = loader_of(ctx, 2, false, 0);
    const double first[6] = { 0, 1, 2, 10, 11, 12 }, second[6] = { 20, 21, 22, 30, 31, 32 };
    mlc_batch    b;
    mlc_scope_begin(ctx);
    CHECK(mlc_loader_next(l, &b));
    for (int i = 0; i < 10; i++) mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_scope_begin(ctx);
    for (int i = 0; i < 10; i++) mlc_full(ctx, MLC_F32, mlc_dims2(2, 3), 5);
    CHECK_VALUES(b.x, 6, first, 0, 0);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(mlc_loader_next(l, &b));
    CHECK_VALUES(b.x, 6, second, 0, 0);
    CHECK_OK(ctx);
}

TEST(data, loader_copies_so_that_writing_to_a_batch_leaves_the_data_alone)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = rows(ctx);
    mlc_loader_desc d = mlc_loader_desc_make(x, NULL, ROWS);
    mlc_loader  *l = mlc_loader_create(ctx, &d);
    const double want[3] = { 0, 1, 2 };
    mlc_batch    b;
    CHECK(mlc_loader_next(l, &b));
    CHECK(b.y == NULL);
    CHECK_EQ(mlc_copy_into(b.x, mlc_zeros(ctx, MLC_F32, mlc_dims2(ROWS, WIDTH))), MLC_OK);
    CHECK_VALUES(mlc_select(x, 0, 0), 3, want, 0, 0);
    CHECK_OK(ctx);
}

TEST(data, loader_takes_views_one_axis_and_several)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_tensor     *x = rows(ctx);
    const double    column[2] = { 1, 11 }, cross[4] = { 0, 10, 20, 30 };
    const double    cube[6] = { 0, 1, 2, 10, 11, 12 };
    mlc_batch       b;
    mlc_loader_desc d = mlc_loader_desc_make(mlc_select(x, 1, 1), NULL, 2);
    mlc_loader     *l = mlc_loader_create(ctx, &d);
    if (CHECK(mlc_loader_next(l, &b)) && CHECK_EQ(b.x->ndim, 1)) CHECK_VALUES(b.x, 2, column, 0, 0);
    d = mlc_loader_desc_make(mlc_slice(mlc_transpose(x, 0, 1), 1, 0, 4, 1), NULL, 1);
    l = mlc_loader_create(ctx, &d);
    if (CHECK(mlc_loader_next(l, &b)) && CHECK_EQ(mlc_dim(b.x, 1), 4))
        CHECK_VALUES(b.x, 4, cross, 0, 0);
    d = mlc_loader_desc_make(mlc_reshape(x, mlc_dims3(ROWS, 1, 3)), x, 2);
    l = mlc_loader_create(ctx, &d);
    if (CHECK(mlc_loader_next(l, &b)) && CHECK_EQ(b.x->ndim, 3)) {
        CHECK_VALUES(b.x, 6, cube, 0, 0);
        CHECK_VALUES(b.y, 6, cube, 0, 0);           /* targets of several columns */
    }
    CHECK_OK(ctx);
}

/* ---- images that come another way each time */

enum { IMAGES = 5, SIDE = 15, PLANE = SIDE * SIDE };

/* One bright pixel in each of two equal channels, `off` behind the middle of its row. */
static mlc_loader *moved(mlc_ctx *ctx, mlc_dtype dtype, int off, int64_t batch, double shift,
                         double rotate)
{
    static double v[IMAGES * 2 * PLANE];
    memset(v, 0, sizeof v);
    for (int i = 0; i < IMAGES * 2; i++)
        v[i * PLANE + PLANE / 2 + off] = 200;
    mlc_tensor     *x = test_tensor(ctx, dtype, mlc_dims4(IMAGES, 2, SIDE, SIDE), v);
    mlc_loader_desc d = mlc_loader_desc_make(x, NULL, batch);
    d.seed = 3;
    d.shift = shift;
    d.rotate = rotate;
    return mlc_loader_create(ctx, &d);
}

/* The images of so many epochs, one behind the other. */
static void take_all(mlc_loader *l, int epochs, double *to)
{
    mlc_batch b;
    for (int e = 0; e < epochs; e++)
        while (mlc_loader_next(l, &b)) {
            test_read(b.x, to);
            to += b.n * 2 * PLANE;
        }
    mlc_loader_free(l);
}

/* The centre of an image behind its middle, in pixels; returns its sum. */
static double centre_of(const double *image, double at[2])
{
    double sum = 0;
    at[0] = at[1] = 0;
    for (int i = 0; i < PLANE; i++) {
        sum += image[i];
        at[0] += image[i] * (i / SIDE - SIDE / 2);
        at[1] += image[i] * (i % SIDE - SIDE / 2);
    }
    at[0] /= sum;
    at[1] /= sum;
    return sum;
}

TEST(data, loader_moves_and_turns_images_within_bounds)
{
    enum { EPOCHS = 20, ALL = EPOCHS * IMAGES * 2 };
    static double got[ALL * PLANE];
    mlc_ctx      *ctx = test_ctx();
    for (int way = 0; way < 4; way++) {    /* shift, rotate; u8, f32 */
        const bool turn = way & 1;
        double     most[2] = {0, 0}, last = 0;
        take_all(moved(ctx, way & 2 ? MLC_U8 : MLC_F32, turn ? 5 : 0, 2, turn ? 0 : 2,
                       turn ? 30 : 0), EPOCHS, got);
        for (int i = 0; i < ALL; i += 2) {
            double at[2];
            CHECK(memcmp(got + i * PLANE, got + (i + 1) * PLANE, PLANE * sizeof *got) == 0);
            CHECK_NEAR(centre_of(got + i * PLANE, at), 200, turn ? 30 : way & 2 ? 3 : 1e-3);
            CHECK(at[0] != last);          /* never twice the same */
            last = at[0];
            for (int d = 0; d < 2; d++)
                most[d] = fabs(at[d]) > most[d] ? fabs(at[d]) : most[d];
            if (turn) CHECK_NEAR(sqrt(at[0] * at[0] + at[1] * at[1]), 5, 0.3);
        }
        /* As far as it may, and no farther: sin 30 degrees is a half. */
        CHECK(most[0] > (turn ? 2.0 : 1.7) && most[0] < (turn ? 2.8 : 2.01));
        CHECK(turn || (most[1] > 1.7 && most[1] < 2.01));
    }
    CHECK_OK(ctx);
}

TEST(data, loader_moves_an_image_by_seed_epoch_and_row_alone)
{
    static double got[3][2 * IMAGES * 2 * PLANE];
    mlc_ctx      *ctx = test_ctx();
    take_all(moved(ctx, MLC_F32, 3, 1, 1, 10), 2, got[0]);
    take_all(moved(ctx, MLC_F32, 3, 4, 1, 10), 2, got[1]);
    take_all(moved(ctx, MLC_F32, 3, 4, 0, 0), 2, got[2]);
    CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
    CHECK(memcmp(got[0], got[0] + IMAGES * 2 * PLANE, sizeof got[0] / 2) != 0);
    for (int i = 0; i < 2 * IMAGES * 2 * PLANE; i++)
        CHECK_NEAR(got[2][i], i % PLANE == PLANE / 2 + 3 ? 200 : 0, 0);
    CHECK(moved(ctx, MLC_F64, 0, 1, 1, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "f64");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(moved(ctx, MLC_U8, 0, 1, -1, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "shift is -1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(moved(ctx, MLC_U8, 0, 1, 0, NO_NUMBER) == NULL);
    CHECK_HAS(mlc_error(ctx), "rotate");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_loader_desc d = mlc_loader_desc_make(mlc_ones(ctx, MLC_F32, mlc_dims2(3, 4)), NULL, 1);
    d.rotate = 1;
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "[3,4]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

TEST(data, loader_refuses_what_cannot_work)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_batch       b;
    mlc_loader_desc d = mlc_loader_desc_make(NULL, NULL, 4);
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_loader_desc_make(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3)), NULL, 4);
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "empty");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_loader_desc_make(rows(ctx), mlc_zeros(ctx, MLC_I64, mlc_dims1(ROWS - 1)), 4);
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "23");
    CHECK_HAS(mlc_error(ctx), "22");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    d = mlc_loader_desc_make(rows(ctx), NULL, 0);
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_loader_desc_make(rows(ctx), NULL, -1);
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_loader_desc_make(mlc_full(ctx, MLC_F32, mlc_dims0(), 1), NULL, 1);
    CHECK(mlc_loader_create(ctx, &d) == NULL);
    mlc_error_clear(ctx);
    CHECK(mlc_loader_create(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_loader_create(NULL, &d) == NULL);
    CHECK(!mlc_loader_next(NULL, &b));
    CHECK_EQ(mlc_loader_batches(NULL), 0);
    mlc_loader_free(NULL);
    CHECK_OK(ctx);
}

TEST(data, loader_asks_for_no_memory_after_the_first_epoch)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_loader *l = loader_of(ctx, 4, true, 3);
    int         order[ROWS];
    mlc_memory  before, after;
    CHECK_EQ(epoch(l, 4, order), ROWS);
    CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
    for (int e = 0; e < 3; e++) CHECK_EQ(epoch(l, 4, order), ROWS);
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(after.allocated, before.allocated);
}

TEST(data, loader_can_be_freed_before_and_after_its_epoch)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = rows(ctx), *y = labels(ctx);
    mlc_memory  before, after;
    mlc_batch   b;
    mlc_loader_desc d = mlc_loader_desc_make(x, y, 4);
    mlc_loader_free(mlc_loader_create(ctx, &d));
    CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
    for (int i = 0; i < 3; i++) {
        mlc_loader *l = mlc_loader_create(ctx, &d);
        CHECK(mlc_loader_next(l, &b));
        mlc_loader_free(l);
        CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
        CHECK_EQ(after.allocated, before.allocated);
    }
    CHECK_OK(ctx);
}

/* What was recorded with its batch is forgotten, as with a module's parameters. */
TEST(data, backward_after_the_loader_is_freed_is_an_error)
{
    mlc_ctx *ctx = test_ctx();
    for (int at = 0; at < 2; at++) {
        mlc_loader *l = loader_of(ctx, 4, false, 0);
        mlc_batch   b;
        mlc_scope_begin(ctx);
        mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims2(ROWS, WIDTH));
        mlc_set_requires_grad(w, true);
        if (!CHECK(mlc_loader_next(l, &b))) return;
        mlc_tensor *x = at ? mlc_reshape(b.x, mlc_dims2(-1, WIDTH)) : b.x;
        mlc_tensor *loss = mlc_sum(mlc_mul(mlc_slice(w, 0, 0, b.n, 1), x), mlc_dims0(), false);
        CHECK_OK(ctx);
        mlc_loader_free(l);
        CHECK_EQ(mlc_backward(loss), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "loader");
        CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
    }
    CHECK_OK(ctx);
}

/* The short batch of the first epoch comes before the long ones of the second. */
TEST(data, loader_batches_have_gradients_of_their_own_length)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_loader *l = loader_of(ctx, 5, false, 0);
    mlc_batch   b;
    for (int e = 0; e < 2; e++) {
        while (mlc_loader_next(l, &b)) {
            double want[5 * WIDTH] = { 0 };
            if (e == 0 && b.n == 5) continue;
            CHECK(!mlc_requires_grad(b.x) && mlc_grad(b.x) == NULL);
            CHECK_EQ(mlc_set_requires_grad(b.x, true), MLC_OK);
            test_read(b.x, want);
            for (int i = 0; i < 5 * WIDTH; i++) want[i] *= 2;
            mlc_scope_begin(ctx);
            CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(b.x, b.x), mlc_dims0(), false)), MLC_OK);
            CHECK_VALUES(mlc_grad(b.x), b.n * WIDTH, want, 0, 0);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
    CHECK_OK(ctx);
}

/* ---- rows in parts ------------------------------------------------------------------------- */

/* How often each of 0 .. n-1 is in the parts, which are of count[i] rows. */
static bool covers(mlc_tensor *const *parts, int n_parts, const int64_t *count, int64_t n,
                   int64_t *times)
{
    double row[128];
    memset(times, 0, (size_t)n * sizeof *times);
    for (int i = 0; i < n_parts; i++) {
        if (!CHECK(parts[i] != NULL) || !CHECK_EQ(mlc_numel(parts[i]), count[i])) return false;
        CHECK_EQ(parts[i]->dtype, MLC_I64);
        if (!test_read(parts[i], row)) return false;
        for (int64_t k = 0; k < count[i]; k++) times[(int64_t)row[k]]++;
    }
    return true;
}

TEST(data, split_cuts_all_rows_by_shares_in_an_order_of_the_seed)
{
    static const double  shares[3] = {0.7, 0.2, 0.1}, in_order[2] = {8, 9};
    static const int64_t count[3] = {7, 2, 1};
    mlc_ctx             *ctx = test_ctx();
    mlc_split_rows_desc       d = mlc_split_rows_desc_make(shares, 3);
    mlc_tensor          *parts[3], *again[3];
    int64_t              times[10];
    double               first[7], second[7];
    CHECK(d.shuffle && d.seed == 0 && d.labels == NULL);
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, parts), MLC_OK);
    if (!covers(parts, 3, count, 10, times)) return;
    for (int i = 0; i < 10; i++) CHECK_EQ(times[i], 1);
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, again), MLC_OK);
    test_read(parts[0], first);
    CHECK_VALUES(again[0], 7, first, 0, 0);
    d.seed = 1;
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, again), MLC_OK);
    test_read(again[0], second);
    CHECK(memcmp(first, second, sizeof first) != 0);
    d.shuffle = false;
    CHECK_EQ(mlc_split_rows(ctx, 11, &d, again), MLC_OK);       /* 7.7, 2.2, 1.1 */
    CHECK_VALUES(again[1], 2, in_order, 0, 0);
    CHECK_OK(ctx);
}

TEST(data, split_leaves_out_what_no_share_wants)
{
    static const double  shares[2] = {0.5, 0.25};
    static const int64_t count[2] = {6, 3};
    mlc_ctx             *ctx = test_ctx();
    const mlc_split_rows_desc d = mlc_split_rows_desc_make(shares, 2);
    mlc_tensor          *parts[2];
    int64_t              times[12], out = 0;
    CHECK_EQ(mlc_split_rows(ctx, 12, &d, parts), MLC_OK);
    if (!covers(parts, 2, count, 12, times)) return;
    for (int i = 0; i < 12; i++) out += times[i] == 0;
    CHECK_EQ(out, 3);
}

/* 100 rows: 60 of class -5, 27 of 7, 13 of 1000000007, mixed. */
static mlc_tensor *three_classes(mlc_ctx *ctx, double *label)
{
    for (int i = 0; i < 100; i++) {
        const int k = i * 37 % 100;
        label[i] = k < 60 ? -5 : k < 87 ? 7 : 1000000007;
    }
    return test_tensor(ctx, MLC_I64, mlc_dims1(100), label);
}

TEST(data, split_by_labels_gives_each_part_its_share_of_each_class)
{
    static const double  shares[3] = {0.8, 0.1, 0.1}, size[3] = {60, 27, 13};
    static const int64_t count[3] = {80, 10, 10};
    mlc_ctx             *ctx = test_ctx();
    mlc_split_rows_desc       d = mlc_split_rows_desc_make(shares, 3);
    mlc_tensor          *parts[3];
    int64_t              times[100];
    double               label[100], row[100];
    d.labels = three_classes(ctx, label);
    for (d.seed = 0; d.seed < 5; d.seed++) {
        CHECK_EQ(mlc_split_rows(ctx, 100, &d, parts), MLC_OK);
        if (!covers(parts, 3, count, 100, times)) return;
        for (int i = 0; i < 3; i++) {
            int of[3] = {0, 0, 0};
            test_read(parts[i], row);
            for (int k = 0; k < count[i]; k++)
                of[label[(int)row[k]] < 0 ? 0 : label[(int)row[k]] < 8 ? 1 : 2]++;
            for (int k = 0; k < 3; k++) CHECK_NEAR(of[k], shares[i] * size[k], 0.999);
        }
    }
    CHECK_OK(ctx);
}

/* Halves of one row each: no class can be cut, all of them together are. */
TEST(data, split_carries_over_what_small_classes_cannot_give)
{
    static const double  halves[2] = {0.5, 0.5}, label[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const int64_t count[2] = {5, 5};
    mlc_ctx             *ctx = test_ctx();
    mlc_split_rows_desc       d = mlc_split_rows_desc_make(halves, 2);
    mlc_tensor          *parts[2];
    int64_t              times[10];
    d.labels = test_tensor(ctx, MLC_I64, mlc_dims1(10), label);
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, parts), MLC_OK);
    covers(parts, 2, count, 10, times);
}

TEST(data, split_refuses_what_cannot_work)
{
    static const double shares[2] = {0.9, 0.1}, over[2] = {0.9, 0.2}, wrong[2] = {0.5, 0};
    mlc_ctx            *ctx = test_ctx();
    mlc_split_rows_desc      d = mlc_split_rows_desc_make(shares, 2);
    mlc_tensor         *parts[2] = {NULL, NULL};
    CHECK_EQ(mlc_split_rows(ctx, 4, &d, parts), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "split_rows: part 1 has no rows: its share of 4 is 0.4; it takes "
                              "more rows, or a larger share");
    CHECK(parts[0] == NULL && parts[1] == NULL);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split_rows(ctx, 0, &d, parts), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "split_rows: n is 0; there must be rows");
    mlc_error_clear(ctx);
    d.shares = over;
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, parts), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "split_rows: the sum of 2 shares is 1.1; it must be at most 1");
    mlc_error_clear(ctx);
    d.shares = wrong;
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, parts), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "split_rows: share 1 is 0; it must be over 0 and at most 1");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split_rows(ctx, 10, NULL, parts), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    d.shares = shares;
    d.labels = mlc_zeros(ctx, MLC_F32, mlc_dims1(10));
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, parts), MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    d.labels = mlc_zeros(ctx, MLC_I64, mlc_dims1(9));
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, parts), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "split_rows: labels are [9]; they must be [10], one for each row");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_split_rows(ctx, 10, &d, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_split_rows(NULL, 10, &d, parts), MLC_ERR_ARG);
}

TEST(data, k_fold_holds_each_row_out_once)
{
    static const int64_t held_out_of[4] = {3, 3, 2, 2};
    mlc_ctx             *ctx = test_ctx();
    mlc_k_fold_desc      d = mlc_k_fold_desc_make(4);
    mlc_tensor          *fold[2];
    int64_t              times[10], held[10] = {0};
    double               row[10];
    CHECK(d.shuffle && d.seed == 0 && d.labels == NULL);
    for (int i = 0; i < 4; i++) {
        const int64_t count[2] = {10 - held_out_of[i], held_out_of[i]};
        CHECK_EQ(mlc_k_fold(ctx, 10, &d, i, &fold[0], &fold[1]), MLC_OK);
        if (!covers(fold, 2, count, 10, times) || !test_read(fold[1], row)) return;
        for (int k = 0; k < 10; k++) CHECK_EQ(times[k], 1);
        for (int k = 0; k < held_out_of[i]; k++) held[(int)row[k]]++;
    }
    for (int k = 0; k < 10; k++) CHECK_EQ(held[k], 1);
    CHECK_OK(ctx);
}

TEST(data, k_fold_by_labels_spreads_each_class_over_the_folds)
{
    static const double size[3] = {60, 27, 13};
    mlc_ctx            *ctx = test_ctx();
    mlc_k_fold_desc     d = mlc_k_fold_desc_make(5);
    mlc_tensor         *train, *held_out;
    double              label[100], row[100];
    d.labels = three_classes(ctx, label);
    for (int i = 0; i < 5; i++) {
        int of[3] = {0, 0, 0};
        CHECK_EQ(mlc_k_fold(ctx, 100, &d, i, &train, &held_out), MLC_OK);
        if (!CHECK_EQ(mlc_numel(held_out), 20) || !test_read(held_out, row)) return;
        for (int k = 0; k < 20; k++)
            of[label[(int)row[k]] < 0 ? 0 : label[(int)row[k]] < 8 ? 1 : 2]++;
        for (int k = 0; k < 3; k++) CHECK_NEAR(of[k], size[k] / 5, 0.999);
    }
    CHECK_OK(ctx);
}

TEST(data, k_fold_refuses_what_cannot_work)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_k_fold_desc d = mlc_k_fold_desc_make(1);
    mlc_tensor     *train, *held_out;
    CHECK_EQ(mlc_k_fold(ctx, 5, &d, 0, &train, &held_out), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "k_fold: 1 folds of 5 rows; there must be 2 to 5");
    CHECK(train == NULL && held_out == NULL);
    mlc_error_clear(ctx);
    d.folds = 5;
    CHECK_EQ(mlc_k_fold(ctx, 5, &d, 5, &train, &held_out), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "k_fold: fold is 5; the folds are 0 to 4");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_k_fold(ctx, 5, &d, 4, &train, &held_out), MLC_OK);
    CHECK_EQ(mlc_numel(train), 4);
    CHECK_EQ(mlc_k_fold(ctx, 5, NULL, 0, &train, &held_out), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_k_fold(ctx, 5, &d, 0, &train, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "k_fold: held_out is NULL");
    mlc_error_clear(ctx);
}

TEST(data, gather_rows_takes_rows_of_any_dtype_by_number)
{
    static const double number[3] = {2, 0, 2};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *rows_of = test_tensor(ctx, MLC_I64, mlc_dims1(3), number);
    for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++) {
        const double v[6] = {1, 0, 0, 1, dtype == MLC_BOOL ? 1 : 5, 1};
        const double want[6] = {v[4], v[5], v[0], v[1], v[4], v[5]};
        mlc_tensor  *x = test_tensor(ctx, (mlc_dtype)dtype, mlc_dims2(3, 2), v);
        CHECK_VALUES(mlc_gather_rows(x, rows_of), 6, want, 0, 0);
    }
    CHECK_OK(ctx);
    CHECK(mlc_gather_rows(NULL, rows_of) == NULL);
}
