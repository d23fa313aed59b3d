/* test_csv.c -- tests of sections IMPL.IO.CSV, beyond plain numbers, and IMPL.IO.TABLE */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

#include <locale.h>

static mlc_tensor *numbers(mlc_ctx *ctx, const char *text, const mlc_csv_desc *desc)
{
    box         b = box_open("a.csv");
    CHECK(put_file(b.path, text, strlen(text)));
    mlc_tensor *t = mlc_csv_load(ctx, b.path, desc);
    box_close(&b);
    return t;
}

static mlc_table *table(mlc_ctx *ctx, const char *text, const mlc_csv_desc *desc)
{
    box        b = box_open("a.csv");
    CHECK(put_file(b.path, text, strlen(text)));
    mlc_table *t = mlc_table_load(ctx, b.path, desc);
    box_close(&b);
    return t;
}

TEST(csv, quoted_numbers_headers_and_gaps_make_a_tensor)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    const double want[4] = {1, 2.5, -3, 4};
    const double gaps[6] = {1, NO_NUMBER, NO_NUMBER, NO_NUMBER, 5, NO_NUMBER};
    CHECK_VALUES(numbers(ctx, "\"1\",\"2.5\"\r\n \"-3\" ,4", NULL), 4, want, 0, 0);
    d.header = true;
    CHECK_VALUES(numbers(ctx, "\"a, b\",\"c\n\"\"d\"\"\"\r\n1,2.5\r\n-3,4\r\n", &d), 4, want, 0, 0);
    d.missing = true;
    d.dtype = MLC_F64;
    CHECK_VALUES(numbers(ctx, "a,b\n1,\nNA,N/A\n5,null\n", &d), 6, gaps, 0, 0);
    CHECK_OK(ctx);
    d.header = d.missing = false;
    CHECK(numbers(ctx, "1,\n2,3\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "line 1, column 2: '' is not a number; to read it as NaN, set "
                              "desc.missing; if the first row has names, set desc.header");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* Each with the desc that it asks for is read. */
TEST(csv, an_error_names_the_field_of_the_desc_that_the_file_takes)
{
    static const struct { const char *text, *error; char delimiter; bool header, missing, whole; }
    of[] = {
        {"1,2\n3,\n", "line 2, column 2: '' is not a number; to read it as NaN, set desc.missing",
         0, 0, 1, 0},
        {"1,2\n3,NA\n", "column 2: 'NA' is not a number; to read it as NaN, set desc.missing", 0, 0,
         1, 0},
        {"1,2\n3,\n", "column 2: '' is not a whole number of 64 bits; f32 and f64 read it as NaN "
         "where desc.missing is set", 0, 0, 1, 1},
        {"1.5;2\n3;4\n", "line 1, column 1: '1.5;2' is not a number; if columns are separated by "
         "';', set desc.delimiter = ';'; if the first row has names, set desc.header", ';', 0, 0,
         0},
        {"a;b\n3;4\n", "column 1: 'a;b' is not a number; if columns are separated by ';', set "
         "desc.delimiter = ';'; if the first row has names, set desc.header", ';', 1, 0, 0},
        {"1\t2\n3\t4\n", "if columns are separated by tabs, set desc.delimiter = '\\t'", '\t', 0, 0,
         0},
        {"1|2\n3|4\n", "if columns are separated by '|', set desc.delimiter = '|'", '|', 0, 0, 0},
        {"1 2\n3 4\n", "separated by single blanks, set desc.delimiter = ' '", ' ', 0,
         0, 0},
    };
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < (int)(sizeof of / sizeof *of); i++) {
        mlc_csv_desc d = mlc_csv_desc_make();
        if (of[i].whole) d.dtype = MLC_I64;
        CHECK(numbers(ctx, of[i].text, &d) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_IO, of[i].error);
        if (of[i].delimiter) d.delimiter = of[i].delimiter;
        d.header = of[i].header;
        d.missing = of[i].missing;
        d.dtype = MLC_F32;
        mlc_tensor *t = numbers(ctx, of[i].text, &d);
        CHECK(t != NULL && mlc_dim(t, 1) == 2 && mlc_dim(t, 0) == (of[i].header ? 1 : 2));
        CHECK_OK(ctx);
    }
    mlc_csv_desc d = mlc_csv_desc_make();
    CHECK(numbers(ctx, "a b\n1\n", NULL) == NULL);        /* a name                           */
    CHECK_ERROR(ctx, MLC_ERR_IO, "'a b' is not a number; if the first row has names");
    d.delimiter = ';';
    CHECK(numbers(ctx, "1,5;2\n", &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "column 1: '1,5' is not a number; decimals are written with a");
    CHECK(numbers(ctx, "1\n2,3\n", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 2 has 2 columns, the first row 1; rows must have as many; "
                                 "if another character separates them, set desc.delimiter");
}

TEST(csv, a_table_of_one_column_that_seems_to_be_several_says_which_delimiter)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_table *t = table(ctx, "x;price\n1;2\n3;4\n", NULL);
    mlc_dataset_table_desc d = mlc_dataset_table_desc_make("price");
    CHECK_EQ(mlc_table_columns(t), 1);
    CHECK(mlc_dataset_table(ctx, t, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "it has no column 'price'; there is 'x;price'; if columns are "
                                  "separated by ';', set desc.delimiter = ';'");
    CHECK(mlc_table_column(t, 1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "column 1 of 1; they count from 0; if columns are separated");
    mlc_column   types[] = { MLC_COLUMN_F64 };
    mlc_csv_desc c = mlc_table_desc_make();
    c.types = types;
    c.n_types = 1;
    CHECK(table(ctx, "x;price\n1;2\n", &c) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "'1;2' is not a number; if columns are separated by ';', set");
    c = mlc_table_desc_make();
    c.delimiter = ';';
    t = table(ctx, "x;price\n1;2\n3;4\n", &c);
    CHECK(mlc_dataset_table(ctx, t, &d) != NULL);
    CHECK_OK(ctx);
}

typedef struct mistake { const char *text, *why; } mistake;

TEST(csv, mistakes_in_quotes_are_named_with_line_and_column)
{
    static const mistake table_of[] = {
        {"a,b\n1,\"2", "line 2, column 2: a quote has no end"},
        {"a,b\n\"x\ny\"z,2", "line 3, column 1: text after a closing quote"},
        {"a,b\n1,2\"3\n", "line 2, column 2: a quote within a field that has none around it"},
        {"a,b\n1,2\n1,2,3\n", "line 3 has 3 columns, the first row 2"},
        {"a,b\n\"1\n\n2\",x\n1\n", "line 5 has 1 columns, the first row 2"},
        {"a,b\n", "no rows"},
        {"a,b\n1,\"2\n\r\n\r3", "line 2, column 2: a quote has no end"},
        {"", "no rows"},
    };
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof table_of / sizeof *table_of; i++) {
        CHECK(table(ctx, table_of[i].text, NULL) == NULL);
        CHECK_HAS(mlc_error(ctx), table_of[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    box b = box_open("a.csv");
    CHECK(put_file(b.path, "a\n\"x\0y\"\n", 8));
    CHECK(mlc_table_load(ctx, b.path, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "line 2, column 1: a NUL byte");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(put_file(b.path, "\x1f\x8b\x08", 3));
    CHECK(mlc_table_load(ctx, b.path, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "looks like gzip (1F 8B); gunzip it first");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    box_close(&b);
}

static const char TITANIC[] =
    "\xEF\xBB\xBFid,age,fare,\"name, first\",class\r\n"
    "1,22,7.25,\"Braund, Mr. \"\"Owen\"\"\",third\r\n"
    "2,38,71.2833,Cumings,first\r\n"
    "# a comment\r\n"
    "\r\n"
    "3,,7.925,\"two\r\nlines\",third\r\n"
    "4,35,NA,\"\",first\r\n";

TEST(csv, a_table_finds_names_types_and_gaps)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_table_desc_make();
    d.comments = MLC_COMMENTS_ALL;
    mlc_table   *t = table(ctx, TITANIC, &d);
    const double id[4] = {1, 2, 3, 4}, age[4] = {22, 38, NO_NUMBER, 35}, gap[4] = {0, 0, 1, 0};
    const double fare[4] = {7.25, 71.2833, 7.925, NO_NUMBER}, cls[4] = {1, 0, 1, 0};
    const double name[4] = {0, 1, 2, -1};
    if (!CHECK(t != NULL)) { CHECK_OK(ctx); return; }
    CHECK_EQ(mlc_table_rows(t), 4);
    CHECK_EQ(mlc_table_columns(t), 5);
    CHECK_STR(mlc_table_name(t, 0), "id");
    CHECK_STR(mlc_table_name(t, 3), "name, first");
    CHECK_EQ(mlc_table_find(t, "class"), 4);
    CHECK_EQ(mlc_table_find(t, "none"), -1);
    CHECK_EQ(mlc_table_type(t, 0), MLC_COLUMN_I64);
    CHECK_EQ(mlc_table_type(t, 1), MLC_COLUMN_F64);
    CHECK_EQ(mlc_table_type(t, 3), MLC_COLUMN_TEXT);
    CHECK_VALUES(mlc_table_column(t, 0), 4, id, 0, 0);
    CHECK_VALUES(mlc_table_column(t, 1), 4, age, 0, 0);
    CHECK_VALUES(mlc_table_missing(t, 1), 4, gap, 0, 0);
    CHECK_VALUES(mlc_table_column(t, 2), 4, fare, 0, 0);
    CHECK_VALUES(mlc_table_column(t, 3), 4, name, 0, 0);
    CHECK_VALUES(mlc_table_column(t, 4), 4, cls, 0, 0);
    CHECK_EQ(mlc_table_categories(t, 4), 2);
    CHECK_STR(mlc_table_category(t, 4, 0), "first");
    CHECK_STR(mlc_table_category(t, 4, 1), "third");
    CHECK(mlc_table_category(t, 4, 2) == NULL);
    CHECK_EQ(mlc_table_categories(t, 0), 0);
    CHECK_STR(mlc_table_text(t, 0, 3), "Braund, Mr. \"Owen\"");
    CHECK_STR(mlc_table_text(t, 2, 3), "two\r\nlines");
    CHECK_OK(ctx);
    CHECK(mlc_table_column(t, 5) == NULL);
    CHECK_STR(mlc_error(ctx), "table_column: column 5 of 5; they count from 0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_table_text(t, 4, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "table_text: row 4 of 4; they count from 0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_table_name(t, -1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_table_free(t);
    mlc_table_free(NULL);
    CHECK_EQ(mlc_table_rows(NULL), 0);
    CHECK(mlc_table_column(NULL, 0) == NULL && mlc_table_missing(NULL, 0) == NULL);
}

TEST(csv, comments_are_passed_over_where_the_desc_says_so)
{
    static const char text[] = "# made by us\n#\na,b\n#N/A,1\n2,3\n# 4,5\n";
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_table_desc_make();
    mlc_table   *t = table(ctx, text, &d);
    CHECK_EQ(mlc_table_rows(t), 3);
    CHECK_STR(mlc_table_name(t, 0), "a");
    CHECK_STR(mlc_table_text(t, 0, 0), "#N/A");
    CHECK_STR(mlc_table_text(t, 2, 0), "# 4");
    d.comments = MLC_COMMENTS_ALL;
    t = table(ctx, text, &d);
    CHECK_EQ(mlc_table_rows(t), 1);
    CHECK_STR(mlc_table_text(t, 0, 1), "3");
    d.comments = MLC_COMMENTS_NONE;
    t = table(ctx, text + 15, &d);
    CHECK_EQ(mlc_table_rows(t), 3);
    CHECK_OK(ctx);
    CHECK(table(ctx, "# a\n1,2\n", &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 2 has 2 columns, the first row 1; rows must have as many");
    CHECK(numbers(ctx, "1,2\n# end\n", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 2, column 1: '# end' is not a number; to pass over lines "
                                 "that begin with #, set desc.comments");
    CHECK(table(ctx, "a,b\n1,2\n# end\n", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 3 has 1 columns, the first row 2; rows must have as many; "
                                 "to pass over lines that begin with #, set desc.comments");
    d.comments = (mlc_comments)3;
    CHECK(table(ctx, "a\n1\n", &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "table_load: comments is 3, which is no mlc_comments");
}

/* "# a,b" of numpy.savetxt; and what is no row of names. */
TEST(csv, a_comment_with_as_many_names_as_the_first_row_has_numbers_is_the_header)
{
    static const struct { const char *text, *first, *last; int rows, cols; } cases[] = {
        {"# a,b\n1.0,2.0\n3,4\n", "a", "b", 2, 2},
        {"# a note\n# a b, c\r\n\r\n1,2\r\n", "a b", "c", 1, 2},
        {"\xEF\xBB\xBF#\"a,b\",c\n1,\"2\"\n3,4\n", "a,b", "c", 2, 2},
        {"## a\n1\n2\n", "a", "a", 2, 1},
        {"# a,b,c\nx,y\n1,2\n", "x", "y", 1, 2},         /* as many as the row has           */
        {"# a,b\nx,y\n1,2\n", "x", "y", 1, 2},           /* the first row has no number      */
        {"# a,b\nx,y\nBob,Graz\n", "x", "y", 1, 2},
        {"# GDP, thousands\ncountry,2019\nfr,1\n", "country", "2019", 1, 2},      /* one has none */
        {"# made by tool, 2024\n2019,2020\n1,2\n", "2019", "2020", 1, 2},   /* a number in it  */
        {"# a, b\nid,nan\n1,2\n", "id", "nan", 1, 2},
        {"# a, b\n7,inf\n1,2\n", "7", "inf", 1, 2},
        {"# a, b\n,5\n1,2\n", "", "5", 1, 2},
        {"# a,b,c\n1,2\n3,4\n", "1", "2", 1, 2},
        {"# a,b\n#\n1,2\n3,4\n", "1", "2", 1, 2},        /* it is not the last comment       */
    };
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mlc_table *t = table(ctx, cases[i].text, NULL);
        CHECK_EQ(mlc_table_rows(t), cases[i].rows);
        CHECK_EQ(mlc_table_columns(t), cases[i].cols);
        CHECK_STR(mlc_table_name(t, 0), cases[i].first);
        CHECK_STR(mlc_table_name(t, cases[i].cols - 1), cases[i].last);
    }
    CHECK_OK(ctx);
    const double want[4] = {1, 2, 3, 4};
    mlc_csv_desc d = mlc_csv_desc_make();
    CHECK_VALUES(numbers(ctx, "# a,b\n1,2\n3,4\n", NULL), 4, want, 0, 0);
    d.header = true;
    CHECK_VALUES(numbers(ctx, "# a,b\n1,2\n3,4\n", &d), 4, want, 0, 0);
    d.delimiter = ' ';
    CHECK_VALUES(numbers(ctx, "# a b\n1.0e+00 2.0e+00\n3.0e+00 4.0e+00\n", &d), 4, want, 0, 0);
    CHECK_OK(ctx);
}

TEST(csv, types_that_are_asked_for_must_hold)
{
    static const mlc_column text_first[] = {MLC_COLUMN_TEXT, MLC_COLUMN_F64};
    static const mlc_column whole[] = {MLC_COLUMN_I64};
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    const double codes[3] = {1, 0, 2}, second[3] = {1, 2, 3};
    d.types = text_first;
    d.n_types = 2;
    mlc_table *t = table(ctx, "02,1\n01,2\n10,3\n", &d);
    CHECK_VALUES(mlc_table_column(t, 0), 3, codes, 0, 0);
    CHECK_VALUES(mlc_table_column(t, 1), 3, second, 0, 0);
    CHECK_EQ(mlc_table_type(t, 1), MLC_COLUMN_F64);
    CHECK_STR(mlc_table_name(t, 0), "");
    CHECK_STR(mlc_table_text(t, 0, 0), "02");
    d.types = whole;
    d.n_types = 1;
    CHECK(table(ctx, "1\n2.5\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "line 2, column 1: '2.5' is not a whole number of 64 bits");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(table(ctx, "1\nNA\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "column 1 is to be i64 and has 1 missing values; read it as f64");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    d.types = text_first + 1;
    CHECK(table(ctx, "1\nx\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "line 2, column 1: 'x' is not a number");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* More rows than the index has marks for one by one. */
TEST(csv, an_error_shows_the_first_line_of_a_field)
{
    static const mlc_column types[] = {MLC_COLUMN_F64};
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    CHECK(numbers(ctx, "\"a\nb\"\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "column 1: 'a' is not a number");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    d.types = types;
    d.n_types = 1;
    CHECK(table(ctx, "\"x\r\ny\"\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "column 1: 'x' is not a number");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

TEST(csv, every_row_of_a_long_table_is_found)
{
    static char text[20000];
    size_t      n = 0;
    mlc_ctx    *ctx = test_ctx();
    for (int i = 0; i < 1000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%d,\"t%d\"\n", i, i % 7);
    mlc_csv_desc d = mlc_csv_desc_make();
    mlc_table *t = table(ctx, text, &d);
    CHECK_EQ(mlc_table_rows(t), 1000);
    CHECK_STR(mlc_table_text(t, 999, 0), "999");
    CHECK_STR(mlc_table_text(t, 17, 1), "t3");
    CHECK_EQ(mlc_table_categories(t, 1), 7);
    CHECK_NEAR(mlc_item(mlc_select(mlc_table_column(t, 0), 0, 513)), 513, 0);
    CHECK_NEAR(mlc_item(mlc_select(mlc_table_column(t, 1), 0, 513)), 513 % 7, 0);
    CHECK_OK(ctx);
}

TEST(csv, what_is_written_reads_back_to_the_same_bits_in_any_locale)
{
    static const double hard[6] = {0.1, -1e-300, 1.0 / 3, 123456789.123, 5e-324, INF};
    static const char *const names[3] = {"plain", "with \"quotes\", comma", "=formula"};
    static const char *const locales[] = {"C", "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    mlc_ctx     *ctx = test_ctx();
    box          b = box_open("a.csv");
    mlc_csv_desc d = mlc_csv_desc_make();
    size_t       n = 0;
    char         before[64];
    snprintf(before, sizeof before, "%s", setlocale(LC_NUMERIC, NULL));
    d.header = true;
    d.dtype = MLC_F64;
    for (int i = 0; i < 4; i++) {
        if (!setlocale(LC_NUMERIC, locales[i])) continue;
        CHECK_EQ(mlc_csv_save(test_tensor(ctx, MLC_F64, mlc_dims2(2, 3), hard), b.path, names),
                 MLC_OK);
        CHECK_VALUES(mlc_csv_load(ctx, b.path, &d), 6, hard, 0, 0);
    }
    setlocale(LC_NUMERIC, before);
    unsigned char *f = get_file(b.path, &n);
    CHECK_HAS((char *)f, "plain,\"with \"\"quotes\"\", comma\",\"=formula\"\r\n"
                         "0.1,-1e-300,0.3333333333333333\r\n");
    free(f);
    double f32[6];
    for (int i = 0; i < 6; i++) f32[i] = (double)(float)hard[i];
    d.header = false;
    d.dtype = MLC_F32;
    CHECK_EQ(mlc_csv_save(test_tensor(ctx, MLC_F32, mlc_dims1(6), f32), b.path, NULL), MLC_OK);
    CHECK_VALUES(mlc_csv_load(ctx, b.path, &d), 6, f32, 0, 0);
    const int64_t big[2] = {INT64_MIN, INT64_MAX};
    int64_t       back[2] = {0, 0};
    d.dtype = MLC_I64;
    CHECK_EQ(mlc_csv_save(mlc_from(ctx, MLC_I64, mlc_dims1(2), big), b.path, NULL), MLC_OK);
    CHECK_EQ(mlc_read(mlc_csv_load(ctx, b.path, &d), back, sizeof back), MLC_OK);
    CHECK(back[0] == big[0] && back[1] == big[1]);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_csv_save(mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 1, 1)), b.path, NULL),
             MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "csv_save: the tensor is [1,1,1]; it must be [rows] or "
                              "[rows,columns], not empty");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_csv_save(mlc_zeros(ctx, MLC_F32, mlc_dims1(1)), "/nonexistent/x.csv", NULL),
             MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(mlc_csv_save(NULL, b.path, NULL), MLC_ERR_ARG);
    box_close(&b);
}

/* ---- numbers, one by one -------------------------------------------------------------------- */

TEST(csv, numbers_of_every_form_are_read_with_one_rounding)
{
    static const struct { const char *text; double want; } right[] = {
        {"1e5", 1e5}, {"1e+5", 1e5}, {"1E-5", 1e-5}, {"+.5", 0.5}, {"5.", 5}, {"-0", -0.0},
        {"00012", 12}, {"0.000123", 0.000123}, {"1e22", 1e22}, {"1e23", 1e23}, {"1e-22", 1e-22},
        {"1e-23", 1e-23}, {"123456789012345678901234567890", 123456789012345678901234567890.0},
        {"9007199254740993", 9007199254740993.0}, {"0.1234567890123456789", 0.1234567890123456789},
        {"1e-400", 0}, {"0e999999999999", 0}, {"1e-1000000", 0}, {"INF", INF},
        {"-inf", -INF}, {"nAn", NO_NUMBER}, {"+nan", NO_NUMBER},
        {"1.7976931348623157e308", 1.7976931348623157e308},
    };
    static const struct { const char *text, *why; } wrong[] = {
        {"1.2.3", "'1.2.3' is not a number"}, {".", "'.' is not a number"}, {"+", "'+' is not"},
        {"1e", "'1e' is not a number"}, {"1e+", "'1e+' is not"}, {"1x", "'1x' is not"},
        {"0x10", "is not a number"}, {"infinity", "is not a number"}, {"nam", "is not a number"},
        {"nbn", "is not a number"}, {"inx", "is not a number"}, {"ixf", "is not a number"},
        {"1e5x", "is not a number"}, {"1e1000000", "'1e1000000' is too large for the dtype"},
        {"-1e309", "is too large for the dtype"},
        {"1234567890123456789012345678901234567890123", "1234567890' is too large"},
    };
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    d.dtype = MLC_F64;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        mlc_tensor *t = numbers(ctx, right[i].text, &d);
        if (!CHECK_VALUES(t, 1, &right[i].want, 0, 0)) printf("  %s\n", right[i].text);
        if (t && right[i].want == 0) {
            double x = 1;
            mlc_read(t, &x, sizeof x);
            CHECK_EQ(signbit(x) != 0, right[i].text[0] == '-');
        }
    }
    CHECK_OK(ctx);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        d.dtype = i == 15 ? MLC_F32 : MLC_F64;
        CHECK(numbers(ctx, wrong[i].text, &d) == NULL);
        CHECK_HAS(mlc_error(ctx), wrong[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
}

/* Bits of a dtype's numbers at both ends: the least and the largest denormal, the least normal, a
 * denormal between, the two largest. */
static const uint64_t ENDS[4][6] = {
    {1, 0x007FFFFF, 0x00800000, 0x000116C2, 0x7F7FFFFF, 0x7F7FFFFE},
    {1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x00000000000316C2, 0x7FEFFFFFFFFFFFFF,
     0x7FEFFFFFFFFFFFFE},
    {1, 0x007F, 0x0080, 0x0011, 0x7F7F, 0x7F7E},
    {1, 0x03FF, 0x0400, 0x0011, 0x7BFF, 0x7BFE},
};
static const mlc_dtype FLOATS[4] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};

/* [6,2] of them; transposed from [2,6], so that it is not dense. */
static mlc_tensor *ends_of(mlc_ctx *ctx, int f)
{
    const size_t  bytes = mlc_dtype_bytes(FLOATS[f]);
    unsigned char data[2 * 6 * 8];
    for (size_t i = 0; i < 12; i++) {
        const uint64_t bits = ENDS[f][i % 6] | (uint64_t)(i / 6) << (8 * bytes - 1);
        memcpy(data + i * bytes, &bits, bytes);
    }
    return mlc_transpose(mlc_from(ctx, FLOATS[f], mlc_dims2(2, 6), data), 0, 1);
}

/* Bits of a float's magnitude and sign as f32 or f64, by ldexp alone. */
static double end_value(int f, int64_t i)
{
    const int      fraction = (int[]){23, 52, 7, 10}[f], bias = (int[]){127, 1023, 127, 15}[f];
    const uint64_t bits = ENDS[f][i / 2], low = bits & ((1ull << fraction) - 1);
    const int      e = (int)(bits >> fraction);
    const double   v = ldexp((double)(low | (uint64_t)(e > 0) << fraction),
                             (e > 0 ? e : 1) - bias - fraction);
    return i % 2 ? -v : v;
}

TEST(csv, numbers_at_the_ends_of_a_dtype_come_back_to_the_same_bits)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("a.csv");
    for (int f = 0; f < 4; f++) {
        mlc_csv_desc d = mlc_csv_desc_make();
        d.dtype = FLOATS[f] == MLC_F64 ? MLC_F64 : MLC_F32;
        CHECK_EQ(mlc_csv_save(ends_of(ctx, f), b.path, NULL), MLC_OK);
        mlc_tensor *back = mlc_csv_load(ctx, b.path, &d);
        CHECK_OK(ctx);
        if (!CHECK(back)) continue;
        CHECK_EQ(mlc_numel(back), 12);
        for (int64_t i = 0; i < 12; i++) {
            float  x;
            double v = end_value(f, i), got;
            char   raw[12 * 8];
            CHECK_EQ(mlc_read(back, raw, 12 * mlc_dtype_bytes(d.dtype)), MLC_OK);
            memcpy(&x, raw + 4 * i, 4);
            memcpy(&got, raw + 8 * i * (d.dtype == MLC_F64), 8);
            if (d.dtype == MLC_F32) got = (double)x;
            CHECK(memcmp(&got, &v, 8) == 0);
        }
    }
    box_close(&b);
}

TEST(csv, text_is_rounded_to_f32_once_and_refused_only_where_it_rounds_to_infinity)
{
    mlc_ctx *ctx = test_ctx();
    /* The first is above the middle of 1 and the next f32, but not in f64. */
    const double want[5] = {1 + ldexp(1, -23), 1, (double)3.40282347e+38f, ldexp(1, -149), 0};
    CHECK_VALUES(numbers(ctx, "1.00000005960464477540\n1.000000059604644775390625\n"
                              "3.4028235e+38\n7.1e-46\n7e-46\n", NULL), 5, want, 0, 0);
    CHECK_OK(ctx);
    CHECK(numbers(ctx, "1\n-3.4028236e38\n", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 2, column 1: '-3.4028236e38' is too large for the dtype");
    CHECK(numbers(ctx, "1\n1e400\n", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 2, column 1: '1e400' is too large for the dtype");
}

TEST(csv, a_number_of_hundreds_of_digits_is_one_and_a_longer_one_is_none)
{
    mlc_ctx     *ctx = test_ctx();
    char         text[700];
    mlc_csv_desc d = mlc_csv_desc_make();
    d.dtype = MLC_F64;
    memset(text, '0', sizeof text);
    memcpy(text, "0.5", 3);
    text[400] = '1';
    text[500] = 0;
    const double half = 0.5;
    CHECK_VALUES(numbers(ctx, text, &d), 1, &half, 0, 0);
    text[500] = '0';
    text[699] = 0;
    CHECK(numbers(ctx, text, &d) == NULL);
    CHECK_HAS(mlc_error(ctx),
              "column 1: '0.50000000000000000000000000000000000000' is not a number");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    memset(text, '0', sizeof text);    /* midway between two of f32: to the even one           */
    memcpy(text + 600, "16777217", 9);
    const double even = 16777216;
    CHECK_VALUES(numbers(ctx, text, NULL), 1, &even, 0, 0);
}

TEST(csv, whole_numbers_are_exact_to_the_last_of_64_bits)
{
    static const struct { const char *text; int64_t want; } right[] = {
        {"9223372036854775807", INT64_MAX}, {"-9223372036854775808", INT64_MIN}, {"+7", 7},
        {"-0", 0}, {"007", 7}};
    static const char *const wrong[] = {"9223372036854775808", "-9223372036854775809",
                                        "99999999999999999999", "-99999999999999999999", "+", "-",
                                        "1.0", "1e3", "1-", "\"\"", "/", ":"};
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    d.dtype = MLC_I64;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        int64_t     got = 1;
        mlc_tensor *t = numbers(ctx, right[i].text, &d);
        if (CHECK(t != NULL)) CHECK_EQ(mlc_read(t, &got, sizeof got), MLC_OK);
        CHECK_EQ(got, right[i].want);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(numbers(ctx, wrong[i], &d) == NULL);
        CHECK_HAS(mlc_error(ctx), "is not a whole number of 64 bits");
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
}

/* ---- descriptions --------------------------------------------------------------------------- */

TEST(csv, other_delimiters_and_lines_to_skip)
{
    const double want[4] = {1, 2, 3, 4};
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    d.skip_lines = 2;
    d.delimiter = '\t';
    CHECK_VALUES(numbers(ctx, "a\rb\r\n1\t 2 \n 3\t4", &d), 4, want, 0, 0);
    d.skip_lines = 0;
    d.delimiter = ' ';
    CHECK_VALUES(numbers(ctx, "1 2\n\"3\" 4\n\t\n", &d), 4, want, 0, 0);
    d.delimiter = ';';
    CHECK_VALUES(numbers(ctx, "1;2\n\t3;\t4\t\n", &d), 4, want, 0, 0);
    d.delimiter = '#';
    CHECK_VALUES(numbers(ctx, "1#2\n3#4\n", &d), 4, want, 0, 0);
    CHECK_OK(ctx);
    for (int i = 0; i < 2; i++) {      /* no time goes into lines that are not there */
        d.skip_lines = i ? INT32_MAX : 9;
        CHECK(numbers(ctx, "1;2\n3;4\n", &d) == NULL);
        CHECK_HAS(mlc_error(ctx), "no rows");
        CHECK_STATUS(ctx, MLC_ERR_IO);
        mlc_error_clear(ctx);
    }
}

TEST(csv, what_cannot_be_asked_for_is_refused)
{
    static const char delimiters[] = "\"\r\n";
    mlc_ctx          *ctx = test_ctx();
    mlc_table        *t = table(ctx, "a\n1\n", NULL);
    mlc_csv_desc      d = mlc_csv_desc_make();
    for (int i = 0; i < 5; i++) {
        d.delimiter = i < 3 ? delimiters[i] : ',';
        d.skip_lines = i == 3 ? -1 : 0;
        CHECK(mlc_csv_load(ctx, i == 4 ? NULL : "x", &d) == NULL);
        CHECK_STR(mlc_error(ctx), "csv_load: no path, negative skip_lines, or a delimiter that "
                                  "ends fields");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    d.delimiter = 0;
    d.skip_lines = 0;
    CHECK(mlc_csv_load(ctx, "x", &d) == NULL);
    CHECK_STR(mlc_error(ctx), "csv_load: delimiter is 0; start from mlc_csv_desc_make() or "
                              "mlc_table_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.delimiter = ',';
    d.dtype = MLC_BF16;
    CHECK(mlc_csv_load(ctx, "x", &d) == NULL);
    CHECK_STR(mlc_error(ctx), "csv_load: dtype bf16; it reads f32, f64 or i64");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_column types[2] = {MLC_COLUMN_TEXT, MLC_COLUMN_AUTO};
    d = mlc_table_desc_make();
    for (int i = 0; i < 4; i++) {
        types[1] = (mlc_column)(i == 2 ? -1 : i == 3 ? 4 : 0);
        d.types = i == 0 ? NULL : types;
        d.n_types = i == 1 ? -1 : 2;
        CHECK(table(ctx, "a,b\n1,2\n", &d) == NULL);
        CHECK_HAS(mlc_error(ctx), i < 2 ? " types" : "which is no mlc_column");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    CHECK(mlc_table_load(ctx, "tests/golden/none", NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_csv_load(NULL, "x", NULL) == NULL && mlc_table_load(NULL, "x", NULL) == NULL);
    CHECK_EQ(mlc_table_find(NULL, "a"), -1);
    CHECK_EQ(mlc_table_find(t, NULL), -1);
    CHECK_EQ(mlc_table_type(NULL, 0), MLC_COLUMN_AUTO);
    CHECK(mlc_table_text(NULL, 0, 0) == NULL && mlc_table_name(NULL, 0) == NULL);
    CHECK_EQ(mlc_table_categories(NULL, 0), 0);
    CHECK_EQ(mlc_table_columns(NULL), 0);
    CHECK_OK(ctx);
    CHECK(mlc_table_text(t, -1, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "table_text: row -1 of 1; they count from 0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_table_text(t, 0, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_table_type(t, 1), MLC_COLUMN_AUTO);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_table_categories(t, 1), 0);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_table_missing(t, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_table_category(t, 0, -1) == NULL);
    CHECK_OK(ctx);
    mlc_table_free(t);
}

TEST(csv, a_column_asked_for_as_text_may_have_nothing_in_it)
{
    static const mlc_column types[] = {MLC_COLUMN_TEXT, MLC_COLUMN_I64, MLC_COLUMN_AUTO};
    const double none[2] = {-1, -1}, whole[2] = {1, 2}, gaps[2] = {NO_NUMBER, NO_NUMBER};
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    d.header = true;
    d.types = types;
    d.n_types = 3;
    mlc_table *t = table(ctx, "a,b,c\nNA,1,null\n,2,N/A\n", &d);
    CHECK_EQ(mlc_table_type(t, 0), MLC_COLUMN_TEXT);
    CHECK_EQ(mlc_table_categories(t, 0), 0);
    CHECK_VALUES(mlc_table_column(t, 0), 2, none, 0, 0);
    CHECK_VALUES(mlc_table_column(t, 1), 2, whole, 0, 0);
    CHECK_EQ(mlc_table_type(t, 2), MLC_COLUMN_F64);
    CHECK_VALUES(mlc_table_column(t, 2), 2, gaps, 0, 0);
    mlc_table_free(t);
    CHECK(table(ctx, "a,b\n,1\n,\n", &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "column 2 is to be i64 and has 1 missing values; read it as f64");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* ---- writing -------------------------------------------------------------------------------- */

TEST(csv, what_cannot_be_written_is_refused)
{
    static const char *const names[] = {"a", NULL};
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("a.csv");
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 2));
    CHECK_EQ(mlc_csv_save(x, b.path, names), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "csv_save: name 1 is NULL; give one a column, or no names");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_csv_save(x, NULL, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_csv_save(x, "", NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_csv_save(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 2)), b.path, NULL), MLC_ERR_SHAPE);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_csv_save(mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 1, 1)), b.path, NULL),
             MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "the tensor is [1,1,1]; it must be [rows] or [rows,columns]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_csv_save(NULL, b.path, NULL), MLC_ERR_ARG);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}

TEST(csv, dtypes_nan_and_names_are_written_so_that_they_read_back)
{
    static const char *const names[] = {"", "=1+1", "a\"b", "plain"};
    static const mlc_dtype dtypes[] = {MLC_F64, MLC_F32, MLC_BF16, MLC_F16, MLC_BOOL, MLC_I8};
    const double v[4] = {1, NO_NUMBER, -INF, 0.5}, whole[4] = {1, 0, 1, 1};
    mlc_ctx     *ctx = test_ctx();
    box          b = box_open("a.csv");
    mlc_csv_desc d = mlc_csv_desc_make();
    d.header = true;
    for (int i = 0; i < 6; i++) {
        const double *want = i < 4 ? v : whole;
        mlc_tensor   *x = test_tensor(ctx, dtypes[i], mlc_dims2(1, 4), want);
        d.dtype = i ? MLC_F32 : MLC_F64;
        CHECK_EQ(mlc_csv_save(x, b.path, names), MLC_OK);
        CHECK_VALUES(mlc_csv_load(ctx, b.path, &d), 4, want, 0, 0);
    }
    mlc_table *t = mlc_table_load(ctx, b.path, NULL);
    for (int k = 0; k < 4; k++) CHECK_STR(mlc_table_name(t, k), names[k]);
    mlc_table_free(t);
    CHECK_OK(ctx);
    for (int i = 0; i < 100 && mlc_scope_begin(ctx) == MLC_OK; i++) {}
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_csv_save(mlc_ones(ctx, MLC_F32, mlc_dims1(1)), b.path, NULL), MLC_OK);
    CHECK_OK(ctx);                     /* it needs no scope of its own */
    box_close(&b);
}

typedef struct rows { const char *path; int n, cols, length; } rows;

static mlc_status save_rows(mlc_ctx *ctx, const void *user)
{
    const rows *r = (const rows *)user;
    char        name[512];
    const char *names[4] = {name, name, name, name};
    mlc_tensor *x = mlc_full(ctx, MLC_F64, mlc_dims2(r->n, r->cols), 0.1);
    memset(name, 'n', sizeof name);
    name[0] = r->length % 3 ? 'a' : '=';
    if (r->length > 8 && r->length % 3 == 0) memset(name + 1, '"', (size_t)r->length - 5);
    name[r->length] = 0;
    return x ? mlc_csv_save(x, r->path, names) : mlc_ctx_status(ctx);
}

static mlc_status load_rows(mlc_ctx *ctx, const void *user)
{
    const rows *r = (const rows *)user;
    mlc_csv_desc d = mlc_csv_desc_make();
    d.header = true;
    if (!mlc_csv_load(ctx, r->path, &d)) return mlc_ctx_status(ctx);
    mlc_table *t = mlc_table_load(ctx, r->path, NULL);
    if (t) mlc_table_missing(t, 0);
    if (t) mlc_table_column(t, r->cols - 1);
    mlc_table_free(t);
    return mlc_ctx_status(ctx);
}

TEST(csv, texts_of_any_length_survive_that_any_allocation_fails)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("a.csv");
    rows     r = {b.path, 3, 2, 1};
    for (; r.length < (test_on_host() ? 250 : 12); r.length++) {
        tally_fail_each(save_rows, &r);
        r.n = 1 + r.length % 5;
        r.cols = 1 + r.length % 4;
    }
    r.n = 5000;                        /* written in several pieces                            */
    CHECK_EQ(save_rows(ctx, &r), MLC_OK);
    tally_fail_each(save_rows, &r);
    tally_fail_each(load_rows, &r);
    CHECK_OK(ctx);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* Blanks that are the delimiter end a field, around quotes and in rows of names, too. */
TEST(csv, a_blank_that_is_the_delimiter_is_none)
{
    static const double gaps[6] = {NO_NUMBER, 2, 3, NO_NUMBER, 5, 6};
    mlc_ctx     *ctx = test_ctx();
    mlc_csv_desc d = mlc_csv_desc_make();
    for (int tab = 0; tab < 2; tab++) {
        static const char *const texts[2] = {
            "# \"a b\" c\n \"2\"\n3 \n\t\"5\"\t 6\t\n",
            "#\ta\t\"c\"\n\t\"2\"\n3\t\n \"5\" \t 6 \n"};
        d = mlc_csv_desc_make();
        d.delimiter = tab ? '\t' : ' ';
        d.missing = true;
        CHECK_VALUES(numbers(ctx, texts[tab], &d), 6, gaps, 0, 0);
        mlc_csv_desc   t = mlc_table_desc_make();
        t.delimiter = d.delimiter;
        mlc_table *named = table(ctx, tab ? "#a\t\"c d\"\n1\t2\n" : "# \"a\tb\" c\n1 2\n",
                                 &t);
        CHECK_EQ(mlc_table_rows(named), 1);
        CHECK_STR(mlc_table_name(named, 1), tab ? "c d" : "c");
        named = table(ctx, tab ? "#\"\ta\t\"\tc\n1\t2\n" : "# \" a \" c\n1 2\n", &t);
        CHECK_EQ(mlc_table_rows(named), 1);
        CHECK_STR(mlc_table_name(named, 0), tab ? "\ta\t" : " a ");
    }
    CHECK_OK(ctx);
}

/* What the last line has and whether it has an end. */
TEST(csv, files_may_end_anywhere)
{
    static const char *const texts[] = {
        "1,2\n  ", "1,2\n\t", "# x\n1,2", "# a,b\n1,2 ", "#\n1,2", "# a,b\n1,\"2\"",
        "#a,b,c\n1,2\n", "1,2\n \n", "#a\n1,2"};
    static const char *const none[] = {
        "#", "# a", "# a,b\n  ", "#\n", "  ", "# a,b\n\n", "#a\n\t#"};
    static const double want[2] = {1, 2};
    mlc_ctx     *ctx = test_ctx();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        CHECK_VALUES(numbers(ctx, texts[i], NULL), 2, want, 0, 0);
    CHECK_OK(ctx);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        CHECK(numbers(ctx, none[i], NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_IO, "no rows");
        CHECK(table(ctx, none[i], NULL) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
}
