/* test_print.c -- tests of section IMPL.PRINT: tensors as text, against what NumPy printed
 *
 * The texts are in tests/golden/print.safetensors, made by make_print_goldens.py.
 */
#define _POSIX_C_SOURCE 200809L        /* dup, fileno, under -std=c11 */
#include "mlc_test.h"

#include "golden/golden.h"

#include "../examples/embedded/vsnprintf.c"

#include <locale.h>
#include <stdarg.h>
#include <unistd.h>

typedef struct sink {
    char   text[1 << 16];
    size_t n;
} sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    CHECK(bytes > 0);
    if (s->n + bytes < sizeof s->text)
        memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n < sizeof s->text ? s->n : 0] = 0;
}

static const char *printed(mlc_tensor *t, const mlc_print_desc *desc)
{
    static sink s;
    s.n = 0;
    s.text[0] = 0;
    return mlc_print_ex(t, desc, collect, &s) == MLC_OK ? s.text : NULL;
}

/* ---- against NumPy ------------------------------------------------------------------------ */

#define CASE_COLUMNS 23

static mlc_tensor *reversed(mlc_tensor *x)
{
    int64_t axes[MLC_MAX_DIMS];
    for (int32_t d = 0; d < x->ndim; d++)
        axes[d] = x->ndim - 1 - d;
    return mlc_permute(x, mlc_dims_of(x->ndim, axes));
}

static mlc_tensor *repeated(mlc_tensor *x, int64_t n)
{
    int64_t shape[MLC_MAX_DIMS];
    shape[0] = n;
    for (int32_t d = 0; d < x->ndim; d++)
        shape[d + 1] = x->shape[d];
    return mlc_expand(x, mlc_dims_of(x->ndim + 1, shape));
}

/* One of VIEWS in make_print_goldens.py.                                                      */
static mlc_tensor *view(mlc_tensor *x, const int64_t *v)
{
    switch (v[0]) {
    case 1:  return reversed(x);
    case 2:  return mlc_slice(x, (int32_t)v[1], v[2], v[3], v[4]);
    case 3:  return repeated(x, v[1]);
    default: return mlc_select(x, (int32_t)v[1], v[2]);
    }
}

static bool check_case(int64_t i, mlc_tensor *x, const int64_t *row, const char *texts)
{
    mlc_print_desc d;
    char           want[8192];
    for (int64_t k = 0; k < row[7]; k++)
        x = view(x, row + 8 + 5 * k);
    d.precision = (int32_t)row[0];
    d.threshold = row[1];
    d.edge_items = (int32_t)row[2];
    d.line_width = (int32_t)row[3];
    d.suppress = row[4] != 0;
    memcpy(want, texts + row[5], (size_t)row[6]);
    want[row[6]] = 0;
    const bool held = CHECK_STR(printed(x, &d), want);
    if (!held)
        printf("  case %03d of print.safetensors\n", (int)i);
    return held;
}

TEST(print, seven_hundred_arrays_look_as_numpy_prints_them)
{
    mlc_ctx     *ctx = test_ctx();
    golden_file  file = golden_open(ctx, "print.safetensors");
    mlc_tensor  *rows = golden_find(&file, "cases"), *texts = golden_find(&file, "texts");
    const int64_t n = mlc_dim(rows, 0), bytes = mlc_numel(texts);
    int64_t     *row = (int64_t *)malloc((size_t)n * CASE_COLUMNS * sizeof *row);
    char        *text = (char *)malloc((size_t)bytes);
    CHECK(n > 700 && mlc_dim(rows, 1) == CASE_COLUMNS);
    CHECK_EQ(mlc_read(rows, row, (size_t)n * CASE_COLUMNS * sizeof *row), MLC_OK);
    CHECK_EQ(mlc_read(texts, text, (size_t)bytes), MLC_OK);
    for (int64_t i = 0; i < n; i++)
        if (!check_case(i, golden_find(&file, "%03d", (int)i), row + i * CASE_COLUMNS, text))
            break;
    CHECK_OK(ctx);
    free(text);
    free(row);
}

TEST(print, without_options_they_are_numpys)
{
    static const double x[] = {0.1, -2, 1e-3, 3};
    mlc_ctx       *ctx = test_ctx();
    mlc_print_desc zero = mlc_print_desc_make();
    mlc_tensor    *t = test_tensor(ctx, MLC_F64, mlc_dims2(2, 2), x);
    sink          *s = (sink *)calloc(1, sizeof *s);
    CHECK_EQ(mlc_print(t, collect, s), MLC_OK);
    CHECK_STR(s->text, "[[ 1.e-01 -2.e+00]\n [ 1.e-03  3.e+00]]\n");
    CHECK_STR(printed(t, NULL), s->text);
    CHECK_STR(printed(t, &zero), s->text);
    CHECK_STR(printed(mlc_arange(ctx, MLC_I32, 0, 1001, 1), &zero),
              "[   0    1    2 ...  998  999 1000]\n");
    zero.suppress = true;
    CHECK_STR(printed(t, &zero), "[[ 0.1   -2.   ]\n [ 0.001  3.   ]]\n");
    CHECK_OK(ctx);
    free(s);
}

/* The ratio is rounded to the dtype before it is compared with 1000. In f16, 1000.25 is between
 * 1000 and 1000.5, in bf16 1002 between 1000 and 1004.                                         */
TEST(print, the_ratio_that_makes_numbers_scientific_is_one_of_the_dtype)
{
    static const double f16[] = {547.5, 0.54736328125}, bf16[] = {91, 0.0908203125};
    static const double f16_over[] = {548, 0.54736328125}, bf16_over[] = {91.5, 0.0908203125};
    mlc_ctx *ctx = test_ctx();
    CHECK_STR(printed(test_tensor(ctx, MLC_F16, mlc_dims1(2), f16), NULL), "[547.5      0.5474]\n");
    CHECK_STR(printed(test_tensor(ctx, MLC_F16, mlc_dims1(2), f16_over), NULL),
              "[5.480e+02 5.474e-01]\n");
    CHECK_STR(printed(test_tensor(ctx, MLC_BF16, mlc_dims1(2), bf16), NULL), "[91.     0.091]\n");
    CHECK_STR(printed(test_tensor(ctx, MLC_BF16, mlc_dims1(2), bf16_over), NULL),
              "[9.15e+01 9.08e-02]\n");
    CHECK_OK(ctx);
}

/* ---- digits ------------------------------------------------------------------------------- */

/* The bits of a number of that dtype that text has.                                           */
static uint64_t bits_of(mlc_dtype dtype, const char *text)
{
    const double x = test_strtod(text);
    uint64_t     bits = 0;
    unsigned char raw[8] = {0};
    test_put(raw, dtype, 0, x);
    memcpy(&bits, raw, sizeof bits);
    return bits;
}

/* Prints each number alone, so that it has the digits it needs and no more; reads it back.    */
static void check_reads_back(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, uint64_t (*number)(int64_t))
{
    const size_t size = mlc_dtype_bytes(dtype);
    int64_t      wrong = 0;
    for (int64_t i = 0; i < n && wrong < 3; i++) {
        const uint64_t bits = number(i);
        mlc_scope_begin(ctx);
        const char *text = printed(mlc_from(ctx, dtype, mlc_dims0(), &bits), NULL);
        const bool  same = text != NULL && (strstr(text, "nan") != NULL ||
                                            bits_of(dtype, text) == bits);
        if (!CHECK(same && strlen(text) < 30)) {
            printf("  %zu bytes %016" PRIx64 ": %s", size, bits, text ? text : "(NULL)\n");
            wrong++;
        }
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

static uint64_t each(int64_t i) { return (uint64_t)i; }

/* Any exponent, and fractions near a power of two as often as any others.                     */
static uint64_t hard(int64_t i, int exponent_bits, int fraction_bits)
{
    const uint64_t one = (uint64_t)1 << fraction_bits;
    const uint64_t exponent = (uint64_t)test_random(1, i, 0, (double)(1 << exponent_bits));
    const uint64_t any = (uint64_t)test_random(2, i, 0, (double)one);
    const uint64_t fraction = i % 4 == 0 ? 0 : i % 4 == 1 ? one - 1 : i % 4 == 2 ? 1 : any;
    const uint64_t sign = (uint64_t)(i / 4 % 2) << (exponent_bits + fraction_bits);
    return sign | exponent << fraction_bits | fraction;
}

static uint64_t hard_f32(int64_t i) { return hard(i, 8, 23); }
static uint64_t hard_f64(int64_t i) { return hard(i, 11, 52); }

TEST(print, what_is_printed_reads_back_to_the_same_bits)
{
    mlc_ctx *ctx = test_ctx();
    check_reads_back(ctx, MLC_F16, 65536, each);
    check_reads_back(ctx, MLC_BF16, 65536, each);
    check_reads_back(ctx, MLC_F32, 10000, hard_f32);
    check_reads_back(ctx, MLC_F64, 10000, hard_f64);
    CHECK_OK(ctx);
}

/* ---- tensors of all kinds ----------------------------------------------------------------- */

TEST(print, a_huge_tensor_is_not_copied)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_memory  before, after;
    mlc_tensor *x = mlc_arange(ctx, MLC_F32, 0, 100, 1);
    x = mlc_expand(x, mlc_dims3(1000, 1000, 100));
    mlc_memory_peak_reset(ctx);
    mlc_memory_info(ctx, &before);
    CHECK_STR(printed(mlc_select(x, 0, 7), NULL),
              "[[ 0.  1.  2. ... 97. 98. 99.]\n [ 0.  1.  2. ... 97. 98. 99.]\n"
              " [ 0.  1.  2. ... 97. 98. 99.]\n ...\n [ 0.  1.  2. ... 97. 98. 99.]\n"
              " [ 0.  1.  2. ... 97. 98. 99.]\n [ 0.  1.  2. ... 97. 98. 99.]]\n");
    CHECK(strlen(printed(x, NULL)) > 1000);
    mlc_memory_info(ctx, &after);
    CHECK(after.peak - before.allocated < 65536);
    CHECK_OK(ctx);
}

TEST(print, the_tensor_its_gradient_and_the_tape_stay)
{
    static const double x[] = {1, 2, 3, 4}, two[] = {2, 2, 2, 2};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *t = test_tensor(ctx, MLC_F64, mlc_dims2(2, 2), x);
    mlc_set_requires_grad(t, true);
    mlc_tensor *y = mlc_mul_scalar(mlc_transpose(t, 0, 1), 2);
    CHECK_STR(printed(y, NULL), "[[2. 6.]\n [4. 8.]]\n");
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_STR(printed(mlc_grad(t), NULL), "[[2. 2.]\n [2. 2.]]\n");
    CHECK_VALUES(t, 4, x, 0, 0);
    CHECK_VALUES(mlc_grad(t), 4, two, 0, 0);
    CHECK_OK(ctx);
}

static mlc_status print_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = in[0];
    return mlc_print(in[0], collect, mlc_module_user(m));
}

static const mlc_module_class PRINTER = {"printer", print_forward, NULL, NULL, 0, NULL};

/* mlc_summary runs forward without data.                                                      */
TEST(print, there_is_nothing_to_print_in_a_dry_run)
{
    static const double one[] = {1};
    mlc_ctx    *ctx = test_ctx();
    sink       *table = (sink *)calloc(1, sizeof *table), *none = (sink *)calloc(1, sizeof *none);
    mlc_module *m = mlc_module_create(ctx, &PRINTER, none, sizeof *none);
    CHECK_EQ(mlc_summary(m, mlc_dims1(3), collect, table), MLC_OK);
    CHECK_EQ((int64_t)((sink *)mlc_module_user(m))->n, 0);
    CHECK(mlc_forward(m, test_tensor(ctx, MLC_F32, mlc_dims1(1), one)) != NULL);
    CHECK_STR(((sink *)mlc_module_user(m))->text, "[1.]\n");
    CHECK_OK(ctx);
    free(table);
    free(none);
}

/* ---- standard output ---------------------------------------------------------------------- */

/* Everything that shows something, with its writer and without. */
static void show_all(mlc_ctx *ctx, mlc_writer write, void *user)
{
    static const double  loss[2] = {1, 0.5};
    const mlc_plot_series line = {"loss", loss, loss, 2, MLC_PLOT_LINE};
    mlc_plot             chart;
    mlc_tensor          *t = mlc_arange(ctx, MLC_F32, 0, 3, 1);
    mlc_module          *net = mlc_nn_linear(ctx, 3, 2);
    memset(&chart, 0, sizeof chart);
    chart.series = &line;
    chart.count = 1;
    CHECK_EQ(mlc_print(t, write, user), MLC_OK);
    CHECK_EQ(mlc_print_ex(t, NULL, write, user), MLC_OK);
    CHECK_EQ(write ? mlc_print(t, write, user) : mlc_show(t), MLC_OK);
    CHECK_EQ(mlc_summary(net, mlc_dims2(1, 3), write, user), MLC_OK);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 3)));
    CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK_EQ(mlc_autocast_report(ctx, write, user), MLC_OK);
    CHECK_EQ(mlc_plot_write(ctx, &chart, 1, 1, write, user), MLC_OK);
    CHECK_OK(ctx);
}

TEST(print, a_writer_of_null_is_standard_output_everywhere)
{
    static sink want, got;
    FILE       *file = tmpfile();
    want.n = 0;
    show_all(test_ctx(), collect, &want);
    if (!CHECK(file != NULL)) return;
    fflush(stdout);
    const int kept = dup(1);
    CHECK_EQ(dup2(fileno(file), 1), 1);
    show_all(test_ctx(), NULL, NULL);
    fflush(stdout);
    CHECK_EQ(dup2(kept, 1), 1);
    close(kept);
    rewind(file);
    got.n = fread(got.text, 1, sizeof got.text - 1, file);
    got.text[got.n] = 0;
    fclose(file);
    CHECK(want.n > 0);
    CHECK_STR(got.text, want.text);
}

/* ---- errors ------------------------------------------------------------------------------- */

TEST(print, what_shows_an_object_that_is_null_says_so)
{
    static sink to;
    CHECK_EQ(mlc_print(NULL, collect, &to), MLC_ERR_ARG);
    CHECK_STR(to.text, "(no tensor: it is NULL; mlc_error(ctx) says why)\n");
    to.n = 0;
    CHECK_EQ(mlc_summary(NULL, mlc_dims0(), collect, &to), MLC_ERR_ARG);
    CHECK_STR(to.text, "(no module: it is NULL; mlc_error(ctx) says why)\n");
    to.n = 0;
    CHECK_EQ(mlc_tracker_print(NULL, collect, &to), MLC_ERR_ARG);
    CHECK_STR(to.text, "(no tracker: it is NULL; mlc_error(ctx) says why)\n");
    to.n = 0;
    CHECK_EQ(mlc_classification_report(NULL, NULL, 2, collect, &to), MLC_ERR_ARG);
    CHECK_STR(to.text, "(no metric: it is NULL; mlc_error(ctx) says why)\n");
    to.n = 0;
    CHECK_EQ(mlc_sweep_print(NULL, collect, &to), MLC_ERR_ARG);
    CHECK_STR(to.text, "(no sweep: it is NULL; mlc_error(ctx) says why)\n");
    to.n = 0;
    CHECK_EQ(mlc_timeline_print(NULL, 1, collect, &to), MLC_ERR_ARG);
    CHECK_STR(to.text, "(no timeline: it is NULL; mlc_error(ctx) says why)\n");
}

TEST(print, wrong_calls_are_errors_and_write_nothing)
{
    static sink    none;
    mlc_ctx       *ctx = test_ctx();
    mlc_tensor    *t = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    mlc_print_desc d = mlc_print_desc_make();
    CHECK_OK(ctx);
    d.precision = -2;
    d.edge_items = 4;
    CHECK_EQ(mlc_print_ex(t, &d, collect, &none), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "print: precision -2, edge_items 4, threshold 1000, line_width 75: "
                              "none may be negative, edge_items and the width not 0; start from "
                              "mlc_print_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (int i = 0; i < 4; i++) {
        d = mlc_print_desc_make();
        if (i == 0) d.edge_items = -1;
        if (i == 1) d.line_width = -1;
        if (i == 2) d.threshold = -1;
        if (i == 3) memset(&d, 0, sizeof d);
        CHECK_EQ(mlc_print_ex(t, &d, collect, &none), MLC_ERR_ARG);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    mlc_module    *m = mlc_module_create(ctx, &PRINTER, NULL, 0);
    mlc_param_desc p = mlc_param_desc_make(mlc_dims1(3));
    CHECK_EQ(mlc_print(mlc_module_declare(m, "p", &p), collect, &none), MLC_ERR_STATE);
    CHECK_STR(mlc_error(ctx), "print: a parameter is not built yet; call mlc_module_build");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ((int64_t)none.n, 0);
}

TEST(print, in_a_desc_0_is_0)
{
    static const double x[] = {1.26, -2.5, 3.75};
    mlc_ctx       *ctx = test_ctx();
    mlc_tensor    *t = test_tensor(ctx, MLC_F64, mlc_dims1(3), x);
    mlc_print_desc d = mlc_print_desc_make();
    d.precision = 0;
    CHECK_STR(printed(t, &d), "[ 1. -2.  4.]\n");
    d.edge_items = 1;
    d.threshold = 0;
    CHECK_STR(printed(t, &d), "[1. ... 4.]\n");
    CHECK_OK(ctx);
}

/* ---- vsnprintf of examples/embedded ------------------------------------------------------- */

/* Room for n bytes of both: the C library's and that of boards write the same.               */
static void same_in(size_t n, const char *format, va_list args)
{
    char    want[1200], got[1200];
    va_list again;
    memset(want, '#', sizeof want);
    memset(got, '#', sizeof got);
    va_copy(again, args);
    const int length = vsnprintf(want, n, format, args);
    CHECK_EQ(board_vsnprintf(got, n, format, again), length);
    va_end(again);
    if (memcmp(want, got, sizeof want) != 0) {
        want[sizeof want - 1] = got[sizeof got - 1] = 0;
        CHECK_STR(format, "");
        CHECK_STR(got, want);
    }
}

static void same(const char *format, ...)
{
    static const size_t rooms[] = {1200, 9, 1, 0};
    for (int i = 0; i < 4; i++) {
        va_list args;
        va_start(args, format);
        same_in(rooms[i], format, args);
        va_end(args);
    }
}

/* A conversion of this kind, with as many * before it, of values of all sizes.                */
static void same_reals(const char *f, int stars)
{
    static const double edges[] = {0, -0.0, 1, 0.5, 1.5, 2.5, 9.995, 0.00001, 0.0001, 99999.5, 1e5,
                                   1e6, 123456789, 1e21, 1e22, 1e23, 1e300, 1.7976931348623157e308,
                                   5e-324, 2.2250738585072014e-308, 0.1, 1e-7, 999999.5, 0.00099995,
                                   -3.25};
    for (int i = 0; i < 25 + 300; i++) {
        const double power = test_random(11, i, -300, 300), m = test_random(12, i, -10, 10);
        const double plain = test_random(13, i, -1e6, 1e6);
        const double x = i < 25 ? edges[i] : i % 2 ? m * pow(10, power) : (double)(float)plain;
        for (int p = -1; p <= 17 && stars; p += p < 3 ? 1 : 7) same(f, p, x);
        if (!stars) same(f, x);
    }
    if (stars) same(f, 3, INF);
    else same(f, -INF);
    if (stars) same(f, 3, NO_NUMBER);
}

#define WHOLE_OF(type, list) \
    do { \
        static const type v[] = list; \
        for (size_t i = 0; i < sizeof v / sizeof *v; i++) { \
            if (stars) same(f, 5, v[i]); \
            else same(f, v[i]); \
        } \
    } while (0)
#define SIGNED_ONES(least, most) {0, 1, -1, 7, -42, 123456, most, least}
#define UNSIGNED_ONES(most)      {0, 1, 7, 255, 123456, most}
#define LIST(...)                __VA_ARGS__

static void same_whole(const char *f, int stars, int longs, bool minus)
{
    if (minus && longs == 2) WHOLE_OF(long long, LIST(SIGNED_ONES(INT64_MIN, INT64_MAX)));
    else if (minus && longs) WHOLE_OF(long, LIST(SIGNED_ONES(INT32_MIN, INT32_MAX)));
    else if (minus) WHOLE_OF(int, LIST(SIGNED_ONES(INT32_MIN, INT32_MAX)));
    else if (longs == 2) WHOLE_OF(unsigned long long, LIST(UNSIGNED_ONES(UINT64_MAX)));
    else if (longs) WHOLE_OF(unsigned long, LIST(UNSIGNED_ONES(UINT32_MAX)));
    else WHOLE_OF(unsigned, LIST(UNSIGNED_ONES(UINT32_MAX)));
}

static void same_texts(const char *f, int stars)
{
    static const char *const texts[] = {"", "a", "layer", "a text of more than thirty-four bytes"};
    for (int i = 0; i < 4; i++) {
        for (int n = -12; n <= 12 && stars; n += 6) same(f, n, texts[i]);
        if (!stars) same(f, texts[i]);
    }
}

/* spec: "%-8lld", from % to the letter.                                                       */
static bool same_of(const char *spec)
{
    char      f[64];
    const int n = (int)strlen(spec);
    int       stars = 0, longs = 0;
    for (int i = 0; i < n; i++) {
        stars += spec[i] == '*';
        longs += spec[i] == 'l';
    }
    snprintf(f, sizeof f, "<%s, 100%%%%>", spec);
    switch (spec[n - 1]) {
    case 'd': same_whole(f, stars, longs, true); return true;
    case 'u':
    case 'x': same_whole(f, stars, longs, false); return true;
    case 'e':
    case 'f':
    case 'g': same_reals(f, stars); return true;
    case 's': same_texts(f, stars); return true;
    case 'c': same(f, 'c'); return true;
    case 'p': same(f, (void *)f); return true;
    default: return false;
    }
}

/* The next conversion in a string of C in this line: its length, or 0.                        */
static int next_spec(const char **at)
{
    for (const char *c = *at; *c; c++) {
        if (*c != '%') continue;
        if (c[1] == '%') {
            c++;
            continue;
        }
        int n = 1 + (int)strspn(c + 1, "-0123456789.*l");
        if (strchr("sdcuxefgp", c[n]) == NULL || c[n] == 0) continue;
        if (c[1] == ' ' || c[n] == 0) continue;
        *at = c;
        return n + 1;
    }
    return 0;
}

TEST(print, the_vsnprintf_of_boards_does_what_the_library_of_c_does_for_each_format_of_the_header)
{
#ifndef _WIN32                         /* whose printf is not C99's                            */
    static char line[4096], seen[128][24];
    int         n = 0;
    char        before[64];
    FILE       *file = fopen("mlcore.h", "r");
    if (!CHECK(file != NULL)) return;
    snprintf(before, sizeof before, "%s", setlocale(LC_NUMERIC, NULL));
    setlocale(LC_NUMERIC, "C");
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = strchr(line, '"');
        for (int length; at != NULL && (length = next_spec(&at)) > 0; at += length) {
            char spec[24];
            if (length > 20) continue;
            snprintf(spec, sizeof spec, "%.*s", length, at);
            int i = 0;
            while (i < n && strcmp(seen[i], spec) != 0) i++;
            if (i < n || !CHECK(n < 128)) continue;
            memcpy(seen[n++], spec, sizeof spec);
            CHECK(same_of(spec));
        }
    }
    fclose(file);
    CHECK(n > 60);                     /* it is the header that was read                       */
    setlocale(LC_NUMERIC, before);
#else
    CHECK(board_vsnprintf(NULL, 0, "none", NULL) == 4);
#endif
}
