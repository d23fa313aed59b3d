/* test_io.c -- tests of section IMPL.IO: safetensors both ways, atomic writes, modules */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN "tests/golden/io_python.safetensors"

/* Length, header and data zeros counting up from 1, as a file. */
static bool put_tensors(const char *path, const void *header, size_t n, size_t data)
{
    unsigned char bytes[8192];
    if (8 + n + data > sizeof bytes) return false;
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data; i++) bytes[8 + n + i] = (unsigned char)(i % 100 + 1);
    return put_file(path, bytes, 8 + n + data);
}

static mlc_tensor *get(const mlc_named *list, int64_t n, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return list[i].tensor;
    return NULL;
}

static mlc_tensor *counting(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, double first)
{
    double v[64];
    for (int i = 0; i < 64; i++) v[i] = first + i;
    return test_tensor(ctx, dtype, dims, v);
}

static bool same_dims(const mlc_tensor *t, mlc_dims d)
{
    bool ok = t && t->ndim == d.n;
    for (int32_t i = 0; ok && i < d.n; i++) ok = t->shape[i] == d.v[i];
    return ok;
}

/* ---- round trips -------------------------------------------------------------------------- */

TEST(io, every_dtype_0d_and_empty_come_back_as_they_were)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("a.safetensors");
    const double     v32[6] = { 1, -0.0, 0x1p-140, 3.4028234663852886e38, 0.125, -7 };
    const double     v64[3] = { 0.1, 5e-324, -1.7976931348623157e308 }, one[1] = { 2.5 };
    const int64_t    v[3]   = { INT64_MIN, -1, INT64_MAX };
    int64_t          back[3];
    const mlc_named *list = NULL;
    int64_t          n = 0;
    mlc_named        in[5] = {
        { "f32", test_tensor(ctx, MLC_F32, mlc_dims2(2, 3), v32) },
        { "f64", test_tensor(ctx, MLC_F64, mlc_dims1(3), v64) },
        { "i64", mlc_from(ctx, MLC_I64, mlc_dims3(1, 3, 1), v) },
        { "scalar", test_tensor(ctx, MLC_F64, mlc_dims0(), one) },
        { "empty", mlc_zeros(ctx, MLC_F32, mlc_dims3(4, 0, 2)) } };
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, in, 5, NULL), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    if (CHECK_OK(ctx) && CHECK_EQ(n, 5)) {
        const char *sorted[5] = { "empty", "f32", "f64", "i64", "scalar" };
        for (int i = 0; i < 5; i++) CHECK_STR(list[i].name, sorted[i]);
        CHECK(same_dims(list[0].tensor, mlc_dims3(4, 0, 2)));
        CHECK(same_dims(list[1].tensor, mlc_dims2(2, 3)));
        CHECK(same_dims(list[3].tensor, mlc_dims3(1, 3, 1)));
        CHECK(same_dims(list[4].tensor, mlc_dims0()));
        CHECK_EQ(list[1].tensor->dtype, MLC_F32);
        CHECK_EQ(list[2].tensor->dtype, MLC_F64);
        CHECK_EQ(list[3].tensor->dtype, MLC_I64);
        CHECK_VALUES(list[1].tensor, 6, v32, 0, 0);
        CHECK_VALUES(list[2].tensor, 3, v64, 0, 0);
        CHECK_VALUES(list[4].tensor, 1, one, 0, 0);
        CHECK_EQ(mlc_read(list[3].tensor, back, sizeof back), MLC_OK);
        for (int i = 0; i < 3; i++) CHECK_EQ(back[i], v[i]);
    }
    box_close(&b);
}

TEST(io, nan_payloads_and_negative_zero_keep_their_bits)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("bits.safetensors");
    const uint32_t   bits[4] = { 0x7fc12345u, 0xff800000u, 0x80000000u, 0x7f812345u };
    uint32_t         back[4];
    const mlc_named *list = NULL;
    int64_t          n = 0;
    mlc_named        in = { "x", mlc_from(ctx, MLC_F32, mlc_dims1(4), bits) };
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, &in, 1, NULL), MLC_OK);
    if (CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK) && CHECK_EQ(n, 1)) {
        CHECK_EQ(mlc_read(list[0].tensor, back, sizeof back), MLC_OK);
        for (int i = 0; i < 4; i++) CHECK_EQ(back[i], bits[i]);
    }
    box_close(&b);
}

TEST(io, names_that_need_escapes_round_trip)
{
    static const char *const names[7] = {
        "", "a\"b\\c/d", "tab\tline\nfeed\r", "\x01\x1f\x7f", "na\xc3\xafve", "\xcf\x80.weight",
        "\xf0\x9f\x98\x80" };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("names.safetensors");
    mlc_named        in[7];
    const mlc_named *list = NULL;
    int64_t          n = 0;
    for (int i = 0; i < 7; i++) {
        in[i].name   = names[i];
        in[i].tensor = counting(ctx, MLC_F32, mlc_dims1(2), 10 * i);
    }
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, in, 7, NULL), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    CHECK_EQ(n, 7);
    for (int i = 0; i < 7; i++) {
        const double want[2] = { 10 * i, 10 * i + 1 };
        mlc_tensor  *t = get(list, n, names[i]);
        if (CHECK(t != NULL)) CHECK_VALUES(t, 2, want, 0, 0);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(io, the_values_of_a_transposed_view_are_written_row_by_row)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("view.safetensors");
    const double     want[6] = { 1, 4, 2, 5, 3, 6 };
    mlc_tensor      *x = counting(ctx, MLC_F32, mlc_dims2(2, 3), 1);
    mlc_named        in = { "t", mlc_transpose(x, 0, 1) };
    const mlc_named *list = NULL;
    int64_t          n = 0;
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, &in, 1, NULL), MLC_OK);
    if (CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK) && CHECK_EQ(n, 1)) {
        CHECK(same_dims(list[0].tensor, mlc_dims2(3, 2)));
        CHECK_VALUES(list[0].tensor, 6, want, 0, 0);
    }
    box_close(&b);
}

TEST(io, an_empty_list_is_a_file_without_tensors)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("none.safetensors");
    const mlc_named *list = NULL;
    int64_t          n = -1;
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, NULL, 0, NULL), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    CHECK_EQ(n, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

/* Layout of the file: what the reference writer does (formats.md 1.1). */
TEST(io, the_header_has_metadata_first_then_dtypes_by_rank_then_names)
{
    static const char *const meta[5] = { "made \"by\"", "mlc\n", "k2", "v2", NULL };
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("order.safetensors");
    mlc_named      in[4] = { { "b32", counting(ctx, MLC_F32, mlc_dims1(3), 0) },
                             { "a32", counting(ctx, MLC_F32, mlc_dims1(1), 0) },
                             { "z64", counting(ctx, MLC_F64, mlc_dims1(2), 0) },
                             { "i", counting(ctx, MLC_I64, mlc_dims1(1), 0) } };
    size_t         size = 0;
    unsigned char *f;
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, in, 4, meta), MLC_OK);
    f = get_file(b.path, &size);
    if (CHECK(f != NULL && size > 8)) {
        const char *h = (const char *)f + 8, *at[5];
        size_t      n = f[0] + 256u * f[1];
        CHECK_EQ(n % 8, 0);
        CHECK_EQ(size, 8 + n + 12 + 4 + 16 + 8);
        CHECK_EQ(strncmp(h, "{\"__metadata__\":{", 17), 0);
        CHECK_HAS(h, "\"made \\\"by\\\"\":\"mlc\\n\"");
        CHECK_HAS(h, "\"k2\":\"v2\"");
        at[0] = strstr(h, "\"i\":");
        at[1] = strstr(h, "\"z64\":");
        at[2] = strstr(h, "\"a32\":");
        at[3] = strstr(h, "\"b32\":");
        CHECK(at[0] && at[0] < at[1] && at[1] < at[2] && at[2] < at[3]);
    }
    free(f);
    box_close(&b);
}

/* ---- files from Python -------------------------------------------------------------------- */

TEST(io, a_file_written_by_python_is_read)
{
    mlc_ctx         *ctx = test_ctx();
    const double     f32[6] = { 0, 0.5, 1, 1.5, 2, -2.5 }, f64[3] = { 0.1, 1e300, -5e-324 };
    const double     i64[4] = { 1, -2, 3, 4503599627370497.0 }, pi[1] = { 3.141592653589793 };
    const mlc_named *list = NULL;
    int64_t          n = 0;
    if (!CHECK_EQ(mlc_safetensors_load(ctx, GOLDEN, &list, &n), MLC_OK)) { CHECK_OK(ctx); return; }
    CHECK_EQ(n, 6);
    CHECK(same_dims(get(list, n, "f32"), mlc_dims2(2, 3)));
    CHECK_VALUES(get(list, n, "f32"), 6, f32, 0, 0);
    CHECK(same_dims(get(list, n, "layer.0.f64"), mlc_dims1(3)));
    CHECK_VALUES(get(list, n, "layer.0.f64"), 3, f64, 0, 0);
    CHECK(same_dims(get(list, n, "i64"), mlc_dims2(2, 2)));
    CHECK_VALUES(get(list, n, "i64"), 4, i64, 0, 0);
    CHECK(same_dims(get(list, n, "scalar \"\xcf\x80\"\n"), mlc_dims0()));
    CHECK_VALUES(get(list, n, "scalar \"\xcf\x80\"\n"), 1, pi, 0, 0);
    CHECK(same_dims(get(list, n, "empty"), mlc_dims2(0, 4)));
    CHECK(same_dims(get(list, n, "na\xc3\xafve"), mlc_dims3(1, 1, 1)));
    CHECK_OK(ctx);
}

TEST(io, the_same_tensors_give_the_same_bytes_as_python)
{
    static const char *const meta[3] = { "made by", "safetensors", NULL };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("same.safetensors");
    const mlc_named *list = NULL;
    int64_t          n = 0;
    size_t           size_a = 0, size_b = 0;
    unsigned char   *f, *g;
    CHECK_EQ(mlc_safetensors_load(ctx, GOLDEN, &list, &n), MLC_OK);
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, n, meta), MLC_OK);
    f = get_file(GOLDEN, &size_a);
    g = get_file(b.path, &size_b);
    if (CHECK(f && g) && CHECK_EQ(size_b, size_a)) CHECK_EQ(memcmp(f, g, size_a), 0);
    free(f);
    free(g);
    box_close(&b);
}

/* ---- files made by hand ------------------------------------------------------------------- */

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define A4 T("a", "F32", "[1]", "[0,4]")            /* one float, bytes 0 to 4 */
#define ONE(shape, offsets, data) { "{" T("a", "F32", shape, offsets) "}", data, 0 }
#define META(value) { "{\"__metadata__\":" value "," A4 "}", 4, 0 }

typedef struct sample {
    const char *header;
    size_t      data;                               /* bytes behind the header */
    int64_t     n;                                  /* good ones: tensors in it */
} sample;

static const sample good[] = {
    { "{}", 0, 0 },
    { "{" A4 "}", 4, 1 },
    { "{" A4 "} \t\n\r ", 4, 1 },
    { "{ \"a\" : { \"dtype\" : \"F32\" , \"shape\" : [ 1 , 1 ] , \"data_offsets\" : [ 0 , 4 ] } }",
      4, 1 },
    { "{\"a\":{\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"F32\"}}", 4, 1 },
    { "{" T("", "F32", "[1]", "[0,4]") "}", 4, 1 },
    { "{" T("e", "F32", "[0,3]", "[0,0]") "}", 0, 1 },
    { "{" T("e", "F32", "[0]", "[4,4]") "," A4 "," T("f", "I64", "[0]", "[0,0]") "}", 4, 3 },
    { "{" T("b", "F64", "[1]", "[4,12]") "," A4 "}", 12, 2 },         /* f64 on a 4-byte edge */
    { "{" T("a", "F\\u0033\\u0032", "[1]", "[0,4]") "}", 4, 1 },
    { "{" T("\\u0061\\ud83d\\ude00\\n\\/\\b\\f\\r\\t\\\\\\\"", "F32", "[1]", "[0,4]") "}", 4, 1 },
    { "{\"__metadata__\":{}," A4 "}", 4, 1 },
    { "{" A4 ",\"__metadata__\":{\"k\":\"v\",\"\\u006b2\":\"\"}}", 4, 1 },
};

TEST(io, legal_files_are_read)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("good.safetensors");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const mlc_named *list = NULL;
        int64_t          n = -1;
        CHECK(put_tensors(b.path, good[i].header, strlen(good[i].header), good[i].data));
        if (!CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK))
            printf("    header: %s\n", good[i].header);
        CHECK_OK(ctx);
        mlc_error_clear(ctx);
        CHECK_EQ(n, good[i].n);
    }
    box_close(&b);
}

TEST(io, escapes_in_names_are_decoded)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("escape.safetensors");
    const char      *h = "{" T("\\u0061\\ud83d\\ude00\\u00e9\\u20AC\\uffee\xef\xbf\xbd\xe2\x82\xac"
                               "\\n\\/", "F32", "[1]", "[0,4]") "}";
    const mlc_named *list = NULL;
    int64_t          n = 0;
    CHECK(put_tensors(b.path, h, strlen(h), 4));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    if (CHECK_EQ(n, 1)) CHECK_STR(list[0].name, "a\xf0\x9f\x98\x80\xc3\xa9\xe2\x82\xac\xef\xbf\xae"
                                         "\xef\xbf\xbd\xe2\x82\xac\n/");
    box_close(&b);
}

static const sample bad[] = {
    /* not an object, or more than one */
    { "", 0, 0 }, { " ", 0, 0 }, { "[]", 0, 0 }, { "true", 0, 0 }, { "{", 0, 0 }, { "}", 0, 0 },
    { " {}", 0, 0 }, { "\n{" A4 "}", 4, 0 }, { "\xef\xbb\xbf{" A4 "}", 4, 0 }, { "{}x", 0, 0 },
    { "{}{}", 0, 0 }, { "{" A4 "}}", 4, 0 }, { "{" A4 "},", 4, 0 }, { "{,}", 0, 0 },
    /* pairs */
    { "{" A4 ",}", 4, 0 }, { "{," A4 "}", 4, 0 }, { "{" A4 A4 "}", 4, 0 }, { "{\"a\"}", 0, 0 },
    { "{\"a\":}", 0, 0 }, { "{\"a\":1}", 0, 0 }, { "{\"a\":null}", 0, 0 }, { "{\"a\":[]}", 0, 0 },
    { "{\"a\":{}}", 0, 0 }, { "{\"a\" {}}", 0, 0 }, { "{a:{}}", 0, 0 }, { "{'a':{}}", 0, 0 },
    { "{\"a", 0, 0 }, { "{\"a\\", 0, 0 }, { "{\"a\":{\"dtype\":\"F32\"", 0, 0 },
    /* fields: one missing, one twice */
    { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0 },
    { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, 0 },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, 0 },
    { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0 },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0 },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"data_offsets\":[0,4]}}",
      4, 0 },
    { "{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0 },
    { "{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0 },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":null,\"data_offsets\":[0,4]}}", 4, 0 },
    /* names */
    { "{" A4 "," T("a", "F32", "[1]", "[4,8]") "}", 8, 0 },
    { "{" A4 "," T("\\u0061", "F32", "[1]", "[4,8]") "}", 8, 0 },
    { "{" T("a\\u0000", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\udc00", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800\\u0041", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800x", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\x41", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\u12", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\u00g0", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\u00G0", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\u00:0", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800\\n....", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800......", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800\\ue000", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\\ud800\\u00", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{\"\\u00", 0, 0 }, { "{\"\\ud800\\u", 0, 0 }, { "{\"\\q\"", 0, 0 },
    { "{" T("a\tb", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("a\nb", "F32", "[1]", "[0,4]") "}", 4, 0 },
    /* not UTF-8: stray byte, overlong, half a character, a surrogate, above 10ffff */
    { "{" T("\xff", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\x80", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xc0\xaf", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xe0\x80\xaf", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xc3", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xed\xa0\x80", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xf4\x90\x80\x80", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xf0\x8f\xbf\xbf", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" T("\xf5\x80\x80\x80", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{\"\xe2\x82", 0, 0 },
    /* shape: not a list of plain whole numbers, too long, too large */
    ONE("[-1]", "[0,4]", 4), ONE("[1.0]", "[0,4]", 4),
    ONE("[1e0]", "[0,4]", 4), ONE("[01]", "[0,4]", 4),
    ONE("[+1]", "[0,4]", 4), ONE("[\"1\"]", "[0,4]", 4),
    ONE("[1,]", "[0,4]", 4), ONE("[,1]", "[0,4]", 4),
    ONE("[1 1]", "[0,4]", 4), ONE("[[1]]", "[0,4]", 4),
    ONE("1", "[0,4]", 4), ONE("{}", "[0,4]", 4),
    ONE("[null]", "[0,4]", 4), ONE("[-0]", "[0,0]", 0),
    ONE("[1,1,1,1,1,1,1,1,1]", "[0,4]", 4),
    ONE("[18446744073709551617]", "[0,4]", 4),
    ONE("[9223372036854775808]", "[0,4]", 4),
    ONE("[4611686018427387905]", "[0,4]", 4),
    ONE("[4294967296,4294967296]", "[0,0]", 0),
    ONE("[4611686018427387904,4,0]", "[0,0]", 0),
    /* offsets: count, form, order, size, holes, overlaps, ends */
    ONE("[1]", "[4]", 4), ONE("[1]", "[0,4,4]", 4),
    ONE("[1]", "[]", 4), ONE("[1]", "4", 4),
    ONE("[1]", "[-4,0]", 4), ONE("[1]", "[0,4.0]", 4),
    ONE("[1]", "[4,0]", 4), ONE("[1]", "[0,5]", 5),
    ONE("[2]", "[0,4]", 4), ONE("[1]", "[0,8]", 8),
    ONE("[]", "[0,0]", 0), ONE("[0]", "[0,4]", 4),
    ONE("[1]", "[4,8]", 8), { "{" A4 "}", 5, 0 }, { "{" A4 "}", 3, 0 },
    { "{" A4 "}", 0, 0 }, { "{}", 1, 0 }, ONE("[0]", "[8,8]", 0),
    { "{" A4 "," T("b", "F32", "[1]", "[8,12]") "}", 12, 0 },
    { "{" A4 "," T("b", "F32", "[1]", "[0,4]") "}", 4, 0 },
    { "{" A4 "," T("b", "F32", "[1]", "[2,6]") "}", 6, 0 },
    { "{" T("b", "F32", "[2]", "[0,8]") "," T("c", "F32", "[1]", "[2,6]") "}", 8, 0 },
    ONE("[1]", "[18446744073709551612,0]", 4),
    ONE("[1]", "[18446744073709551616,18446744073709551620]", 4),
    /* metadata: only strings to strings, once */
    META("null"), META("1"),
    META("[]"), META("\"x\""),
    META("{\"k\":1}"), META("{\"k\":{}}"),
    META("{\"k\"}"), META("{\"k\":\"v\",}"),
    META("{},\"__metadata__\":{}"),
    { "{" T("__metadata__", "F32", "[1]", "[0,4]") "}", 4, 0 },
};

TEST(io, illegal_headers_are_errors_that_name_the_file)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("bad.safetensors");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const mlc_named *list = NULL;
        int64_t          n = -1;
        bool             ok = true;
        CHECK(put_tensors(b.path, bad[i].header, strlen(bad[i].header), bad[i].data));
        ok &= CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
        ok &= CHECK_HAS(mlc_error(ctx), "bad.safetensors");
        ok &= CHECK_STATUS(ctx, MLC_ERR_IO);
        if (!ok) printf("    header: %s (%zu bytes of data)\n", bad[i].header, bad[i].data);
    }
    box_close(&b);
}

/* Dtypes of the format that mlcore lacks, then names that the format does not have. */
TEST(io, a_dtype_not_known_here_is_a_dtype_error_with_its_name)
{
    static const char *const names[6] = { "F8_E4M3", "U32", "I16", "F33", "f32", "''" };
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("dtype.safetensors");
    for (int i = 0; i < 6; i++) {
        const mlc_named *list = NULL;
        int64_t          n = -1;
        char             h[128];
        snprintf(h, sizeof h, "{\"a\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,4]}}",
                 i < 5 ? names[i] : "", i == 1 ? 1 : i == 2 ? 4 : 2);
        CHECK(put_tensors(b.path, h, strlen(h), 4));
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_DTYPE);
        CHECK_HAS(mlc_error(ctx), "dtype.safetensors");
        CHECK_HAS(mlc_error(ctx), names[i]);
        CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    }
    box_close(&b);
}

TEST(io, a_zero_byte_in_or_behind_the_header_is_an_error)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("nul.safetensors");
    const mlc_named *list = NULL;
    int64_t          n = -1;
    CHECK(put_tensors(b.path, "{}\0", 3, 0));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(put_tensors(b.path, "{\"a\0\":1}", 8, 0));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    box_close(&b);
}

TEST(io, deep_nesting_is_an_error_not_a_crash)
{
    static const char *const open[3] = { "[", "{\"a\":", "{\"a\":{\"shape\":[" };
    box b = box_open("deep.safetensors");
    for (int k = 0; k < 3; k++) {
        mlc_ctx         *ctx = test_ctx();
        const mlc_named *list = NULL;
        int64_t          n = -1;
        char             h[8000] = "";
        size_t           len = strlen(open[k]), used = 0;
        for (; used + len < sizeof h; used += len) memcpy(h + used, open[k], len);
        CHECK(put_tensors(b.path, h, used, 0));
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    box_close(&b);
}

/* A wrong length must be refused before memory is taken: the limit would turn it into NOMEM. */
TEST(io, a_wrong_header_length_is_refused_before_anything_is_allocated)
{
    static const uint64_t lengths[6] = { 0, 65, 100000001, UINT64_C(1) << 32, UINT64_C(1) << 63,
                                         UINT64_MAX };
    box          b = box_open("length.safetensors");
    mlc_ctx_desc d = test_desc();
    d.hard_limit = (size_t)1 << 20;
    for (int i = 0; i < 6; i++) {
        mlc_ctx         *ctx = mlc_ctx_create(&d);
        const mlc_named *list = NULL;
        int64_t          n = -1;
        unsigned char    f[72] = { 0 };
        memset(f + 8, ' ', 64);
        f[8] = '{'; f[9] = '}';
        for (int k = 0; k < 8; k++) f[k] = (unsigned char)(lengths[i] >> (8 * k));
        CHECK(put_file(b.path, f, sizeof f));
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
        CHECK_HAS(mlc_error(ctx), "length.safetensors");
        CHECK_STATUS(ctx, MLC_ERR_IO);
        mlc_ctx_free(ctx);
    }
    box_close(&b);
}

/* ---- damaged files ------------------------------------------------------------------------ */

/* A small file: 8 + header bytes, then 12 + 16 + 8 bytes of data; *data is where they begin. */
static unsigned char *small_file(mlc_ctx *ctx, const char *path, size_t *size, size_t *data)
{
    static const char *const meta[3] = { "k", "v", NULL };
    mlc_named in[3] = { { "a.w", counting(ctx, MLC_F32, mlc_dims2(1, 3), 1) },
                        { "b", counting(ctx, MLC_F64, mlc_dims1(2), 5) },
                        { "c", counting(ctx, MLC_I64, mlc_dims0(), 9) } };
    CHECK_EQ(mlc_safetensors_save(ctx, path, in, 3, meta), MLC_OK);
    *data = 0;
    unsigned char *f = get_file(path, size);
    if (f) *data = *size - 36;
    return f;
}

static size_t total_bytes(const mlc_named *list, int64_t n)
{
    size_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (size_t)mlc_numel(list[i].tensor) * mlc_dtype_bytes(list[i].tensor->dtype);
    return sum;
}

TEST(io, a_backslash_before_a_nul_byte_is_no_escape)
{
    static const char head[] = "{\"a\\\0\":{\"dtype\":\"F32\",\"shape\":[1],"
                               "\"data_offsets\":[0,4]}}";
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open_fast("a.safetensors");
    const mlc_named *list = NULL;
    int64_t          n = 0;
    unsigned char    file[8 + sizeof head - 1 + 4] = {0};
    put_le(file, 8, sizeof head - 1);
    memcpy(file + 8, head, sizeof head - 1);
    CHECK(put_file(b.path, file, sizeof file));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "unknown escape");
    box_close(&b);
}

TEST(io, files_of_other_formats_are_named_by_their_first_bytes)
{
    static const struct { const char *bytes, *why; } others[] = {
        {"GGUF\3\0\0\0\x24\1\0\0", "it is a GGUF file, which is not read here; take the"},
        {"\x08\x07\x12\x07pytorch", "it is an ONNX model; use mlc_onnx_load"},
        {"\x08\x0A:\xA4\x9F\x01\x0A\x20\x0A\x01", "it is an ONNX model"},
        {"\x08\x09\x1A\x05" "1.2.3", "it is an ONNX model"},
        {"\x89HDF\r\n\x1A\n\0\0\0\0", "it is an HDF5 file, as Keras writes them; save its"},
        {"PK\3\4\x14\0\0\x08", "as torch.save writes them? Use safetensors.torch.save_file"},
        {"\x80\2\x8A\x0Al\xFC\x9C\x46", "as torch.save writes them?"},
        {"\x80\4\x95\x20\0\0\0\x01", "as torch.save writes them?"},
        {"\x08\x08\x08\x08\x08\x08\x08\x08", "is it a safetensors file?"},
        {"\x08\x20\x12\x07pyto", "is it a safetensors file?"},
        {"\x80\1\x8A\x0Al\xFC\x9C\x46", "is it a safetensors file?"},
        {"\x80\6\x95\x20\0\0\0\x01", "is it a safetensors file?"},
    };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open_fast("model");
    const mlc_named *list = NULL;
    int64_t          n = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char file[64] = {0};
        memcpy(file, others[i].bytes, 8);
        CHECK(put_file(b.path, file, sizeof file));
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
        CHECK_HAS(mlc_error(ctx), "/model': header of ");
        CHECK_ERROR(ctx, MLC_ERR_IO, others[i].why);
    }
    box_close(&b);
}

TEST(io, a_file_cut_at_any_length_is_an_error)
{
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("cut.safetensors");
    size_t         size = 0, data = 0;
    unsigned char *f = small_file(ctx, b.path, &size, &data);
    for (size_t cut = 0; f && cut < size; cut++) {
        const mlc_named *list = NULL;
        int64_t          n = -1;
        put_file(b.path, f, cut);
        if (!CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO))
            printf("    cut to %zu of %zu bytes\n", cut, size);
        mlc_error_clear(ctx);
    }
    CHECK(size > 36);
    free(f);
    box_close(&b);
}

/* One flipped bit in the header is an error, or the load still covers exactly the data; one in
 * the data changes exactly the value it is in.                                                */
TEST(io, one_flipped_bit_is_an_error_or_a_whole_load)
{
    mlc_ctx_desc   d = test_desc();
    d.hard_limit = (size_t)4 << 20;
    mlc_ctx       *ctx = mlc_ctx_create(&d);
    box            b = box_open("flip.safetensors");
    size_t         size = 0, data = 0;
    unsigned char *f = small_file(ctx, b.path, &size, &data);
    int            loaded = 0, refused = 0;
    for (size_t bit = 0; f && bit < 8 * size; bit++) {
        const mlc_named *list = NULL;
        int64_t          n = -1;
        mlc_scope_begin(ctx);
        f[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        put_file(b.path, f, size);
        mlc_status st = mlc_safetensors_load(ctx, b.path, &list, &n);
        bool       ok = st == MLC_OK ? CHECK_EQ(total_bytes(list, n), 36)
                                     : CHECK(st == MLC_ERR_IO || st == MLC_ERR_DTYPE);
        if (bit / 8 >= data) ok &= CHECK_EQ(st, MLC_OK) && CHECK_EQ(n, 3);
        if (!ok) printf("    bit %zu of byte %zu\n", bit % 8, bit / 8);
        if (st == MLC_OK) loaded++; else refused++;
        mlc_scope_end(ctx);
        f[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    CHECK(refused > 500 && loaded >= 36 * 8);
    free(f);
    mlc_ctx_free(ctx);
    box_close(&b);
}

/* ---- arguments and the file system -------------------------------------------------------- */

static mlc_status save_one(mlc_ctx *ctx, const char *path, const char *name, mlc_tensor *t)
{
    mlc_named in = { name, t };
    return mlc_safetensors_save(ctx, path, &in, 1, NULL);
}

TEST(io, wrong_arguments_are_errors_and_write_nothing)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("args.safetensors");
    mlc_tensor      *x = counting(ctx, MLC_F32, mlc_dims1(2), 0);
    mlc_named        twice[2] = { { "a", x }, { "a", x } };
    const mlc_named *list = NULL;
    int64_t          n = -1;
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, twice, 2, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(save_one(ctx, b.path, "\xff", x), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(save_one(ctx, b.path, "__metadata__", x), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(save_one(ctx, b.path, NULL, x), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(save_one(ctx, b.path, "a", NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(save_one(ctx, NULL, "a", x), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_load(ctx, NULL, &list, &n), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, NULL, &n), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(save_one(ctx, "", "a", x), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, twice, -1, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, NULL, 1, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_named three[3] = { { "a", x }, { "a", x }, { "b", x } };
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, three, 3, NULL), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "save: two tensors named 'a'; rename one");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    static const char *const odd[] = { "key", NULL }, *const latin[] = { "key", "\xe9", NULL };
    static const char *const *const wrong[] = { odd, latin };
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_safetensors_save(ctx, b.path, three + 1, 2, wrong[i]), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "metadata must be pairs of UTF-8 strings, ended by NULL");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    mlc_param_desc one = mlc_param_desc_make(mlc_dims1(1));
    CHECK_EQ(save_one(ctx, b.path, "a", mlc_module_declare(mlc_nn_linear(ctx, 1, 1), "p", &one)),
             MLC_ERR_STATE);
    CHECK_STR(mlc_error(ctx), "save: a parameter is not built yet; call mlc_module_build");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_safetensors_save(NULL, b.path, twice, 1, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_load(NULL, b.path, &list, &n), MLC_ERR_ARG);
    CHECK_EQ(mlc_save(NULL, b.path), MLC_ERR_ARG);
    CHECK_EQ(mlc_load(NULL, b.path), MLC_ERR_ARG);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}

TEST(io, a_missing_path_is_an_io_error_with_the_path_and_the_reason)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("missing/model.safetensors");
    mlc_tensor      *x = counting(ctx, MLC_F32, mlc_dims1(2), 0);
    const mlc_named *list = NULL;
    int64_t          n = -1;
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_HAS(mlc_error(ctx), "No such file or directory");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(save_one(ctx, b.path, "a", x), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_HAS(mlc_error(ctx), "No such file or directory");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(mlc_safetensors_load(ctx, b.dir, &list, &n), MLC_ERR_IO);       /* a folder */
    CHECK_HAS(mlc_error(ctx), b.dir);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    box_close(&b);
}

/* What is no file of its own would be gone. */
TEST(io, a_fifo_is_not_replaced_by_a_file)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("fifo");
    struct stat info;
    if (CHECK_EQ(mkfifo(b.path, 0600), 0)) {
        CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), b.path), MLC_ERR_IO);
        CHECK_HAS(mlc_error(ctx), "it is not a regular file");
        CHECK(stat(b.path, &info) == 0 && S_ISFIFO(info.st_mode));
        CHECK_EQ(box_count(&b), 1);
        mlc_error_clear(ctx);
    }
    box_close(&b);
}

TEST(io, saving_replaces_the_old_file_and_leaves_no_other)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("model.safetensors");
    const double     want[2] = { 7, 8 };
    const mlc_named *list = NULL;
    int64_t          n = 0;
    struct stat      st;
    mode_t           mask = umask(027);
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(40), 0)), MLC_OK);
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(2), 7)), MLC_OK);
    umask(mask);
    CHECK_EQ(box_count(&b), 1);
    if (CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK) && CHECK_EQ(n, 1))
        CHECK_VALUES(list[0].tensor, 2, want, 0, 0);
    CHECK_EQ(stat(b.path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0640);              /* as any other new file of this user */
    box_close(&b);
}

/* Value of the one tensor of a file. */
static double value_in(mlc_ctx *ctx, const char *path)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    if (mlc_safetensors_load(ctx, path, &list, &n) != MLC_OK || n != 1) return -1;
    return mlc_item(list[0].tensor);
}

/* A file that is there, one that is not, a link to a link, an absolute one. */
TEST(io, a_save_through_a_symbolic_link_replaces_what_it_names)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("latest");
    char        file[512], sub[512], middle[512];
    struct stat st;
    snprintf(sub, sizeof sub, "%s/run", b.dir);
    snprintf(file, sizeof file, "%s/run/last", b.dir);
    snprintf(middle, sizeof middle, "%s/run/middle", b.dir);
    CHECK_EQ(mkdir(sub, 0700), 0);
    CHECK_EQ(symlink("run/middle", b.path), 0);
    CHECK_EQ(symlink("last", middle), 0);
    for (int i = 0; i < 3; i++) {
        if (i == 2) CHECK(unlink(middle) == 0 && symlink(file, middle) == 0);
        CHECK_EQ(save_one(ctx, b.path, "a", mlc_full(ctx, MLC_F32, mlc_dims1(1), 3 + i)), MLC_OK);
        CHECK(lstat(b.path, &st) == 0 && S_ISLNK(st.st_mode));
        CHECK(lstat(middle, &st) == 0 && S_ISLNK(st.st_mode));
        CHECK(lstat(file, &st) == 0 && S_ISREG(st.st_mode));
        CHECK_NEAR(value_in(ctx, file), 3 + i, 0);
        CHECK_NEAR(value_in(ctx, b.path), 3 + i, 0);
    }
    CHECK_OK(ctx);
    CHECK(unlink(middle) == 0 && symlink("../latest", middle) == 0);
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 0)), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), strerror(ELOOP));
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(unlink(middle) == 0 && unlink(file) == 0 && rmdir(sub) == 0);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

TEST(io, a_save_to_an_open_file_that_has_no_name_any_more_is_an_error)
{
    mlc_ctx   *ctx = test_ctx();
    box        b = box_open("gone");
    char       path[64];
    const int  fd = open(b.path, O_RDWR | O_CREAT, 0600);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const bool follows = access(path, R_OK) == 0;          /* the system has such names        */
    CHECK(fd >= 0 && unlink(b.path) == 0);
    CHECK_EQ(save_one(ctx, path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 0)), MLC_ERR_IO);
    if (follows) CHECK_HAS(mlc_error(ctx), "it is a link to a file that has no name");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(box_count(&b), 0);
    close(fd);
    box_close(&b);
}

TEST(io, a_save_keeps_rights_owner_and_group_of_the_old_file)
{
    static const mode_t rights[] = {0600, 0640, 0444, 0666};
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("secret");
    struct stat st;
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 0)), MLC_OK);
    for (int i = 0; i < 4; i++) {
        const uid_t owner = geteuid() == 0 ? 1000 + (uid_t)i : geteuid();
        const gid_t group = geteuid() == 0 ? 2000 + (gid_t)i : getegid();
        CHECK_EQ(chown(b.path, owner, group), 0);
        CHECK_EQ(chmod(b.path, rights[i]), 0);
        CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_F32, mlc_dims1(1 + i)), b.path), MLC_OK);
        CHECK_EQ(stat(b.path, &st), 0);
        CHECK_EQ(st.st_mode & 07777, rights[i]);
        CHECK_EQ(st.st_uid, owner);
        CHECK_EQ(st.st_gid, group);
    }
    CHECK_OK(ctx);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* A group that is not the user's first one. */
TEST(io, a_save_keeps_a_group_that_is_not_the_owner_s_own)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("shared");
    struct stat st;
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 0)), MLC_OK);
    if (geteuid() == 0) CHECK_EQ(chown(b.path, 0, 2000), 0);
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 1)), MLC_OK);
    CHECK_EQ(stat(b.path, &st), 0);
    CHECK_EQ(st.st_uid, geteuid());
    CHECK_EQ(st.st_gid, geteuid() == 0 ? 2000 : getegid());
    box_close(&b);
}

/* A path of so many bytes: in a folder, any number of "./", the name. */
static void long_path(char *to, size_t bytes, const char *folder, const char *name)
{
    size_t n = (size_t)snprintf(to, bytes + 1, "%s", folder);
    if ((bytes - n - strlen(name)) % 2) to[n++] = '/';
    for (; n + strlen(name) < bytes; n += 2) memcpy(to + n, "./", 2);
    snprintf(to + n, bytes + 1 - n, "%s", name);
}

/* Its name is short, so that cutting that is of no use for the temporary file's. */
TEST(io, a_path_without_room_for_a_temporary_file_s_name_is_an_error)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x");
    char     folder[300], path[4096];
    snprintf(folder, sizeof folder, "%s/", b.dir);
    long_path(path, 4080, folder, "net");
    CHECK_EQ(save_one(ctx, path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 0)), MLC_OK);
    CHECK_EQ(box_count(&b), 1);
    long_path(path, 4090, folder, "net2");
    CHECK_EQ(save_one(ctx, path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 0)), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "cannot write '/");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* What the system follows link by link has a path that is longer than it takes, or than we keep. */
TEST(io, links_whose_texts_make_too_long_a_path_are_an_error)
{
    static const struct { size_t first, second; int error; } cases[] = {
        {2000, 1000, 0}, {3000, 1090, ENAMETOOLONG}, {4000, 4000, ELOOP}};
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        box  b = box_open("latest");
        char text[4097], other[320], file[320];
        snprintf(other, sizeof other, "%s/other", b.dir);
        snprintf(file, sizeof file, "%s/file", b.dir);
        CHECK(put_file(file, "old", 3));
        long_path(text, cases[i].first, "", "other");
        CHECK_EQ(symlink(text + (text[0] == '/'), b.path), 0);
        long_path(text, cases[i].second, "", "file");
        CHECK_EQ(symlink(text + (text[0] == '/'), other), 0);
        const mlc_status st = save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(1), 7));
        CHECK_EQ(st, cases[i].error ? MLC_ERR_IO : MLC_OK);
        if (cases[i].error) CHECK_HAS(mlc_error(ctx), strerror(cases[i].error));
        mlc_error_clear(ctx);
        size_t         n = 0;
        unsigned char *now = get_file(file, &n);
        CHECK_EQ(n == 3 && memcmp(now, "old", 3) == 0, cases[i].error != 0);
        free(now);
        CHECK_EQ(box_count(&b), 3);
        box_close(&b);
    }
}

/* The system takes 40 of them, and a save fewer; names are relative to the current folder. */
TEST(io, a_long_chain_of_links_in_the_current_folder)
{
    mlc_ctx  *ctx = test_ctx();
    box       b = box_open("0");
    const int here = open(".", O_RDONLY | O_DIRECTORY);
    char      from[24], to[24];
    CHECK(here >= 0 && chdir(b.dir) == 0);
    for (int i = 0; i < 40; i++) {
        snprintf(from, sizeof from, "%d", i + 1);
        snprintf(to, sizeof to, "%d", i);
        CHECK_EQ(symlink(from, to), 0);
    }
    CHECK(put_file("40", "old", 3));
    CHECK_EQ(save_one(ctx, "0", "a", counting(ctx, MLC_F32, mlc_dims1(1), 7)), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), strerror(ELOOP));
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(save_one(ctx, "1", "a", counting(ctx, MLC_F32, mlc_dims1(1), 7)), MLC_OK);
    CHECK_NEAR(value_in(ctx, "40"), 7, 0);
    CHECK_EQ(box_count(&b), 41);
    CHECK_EQ(fchdir(here), 0);
    close(here);
    box_close(&b);
}

/* The temporary file's name is cut, of ASCII and of characters of 3 bytes. */
TEST(io, a_name_of_the_most_bytes_that_the_system_takes_can_be_saved)
{
    mlc_ctx *ctx = test_ctx();
    for (int n = 240; n <= 255; n++)
        for (int wide = 0; wide < 2; wide++) {
            char path[600];
            box  b = box_open("x");
            snprintf(path, sizeof path, "%s/", b.dir);
            const size_t at = strlen(path);
            for (int i = 0; i < n; i++)
                path[at + (size_t)i] = wide && i >= n % 3 ? "\xE2\x82\xAC"[(i - n % 3) % 3] : 'x';
            path[at + (size_t)n] = 0;
            for (int i = 0; i < 2; i++) {
                mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(1), n + i);
                CHECK_EQ(save_one(ctx, path, "a", x), MLC_OK);
                CHECK_NEAR(value_in(ctx, path), n + i, 0);
            }
            CHECK_OK(ctx);
            CHECK_EQ(box_count(&b), 1);
            box_close(&b);
        }
}

/* A crash leaves the temporary file of a cut name, too: the next save takes it away. */
TEST(io, what_a_killed_save_of_a_long_name_left_goes_away)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x");
    char     path[600], temp[600];
    snprintf(path, sizeof path, "%s/%0250d", b.dir, 7);
    snprintf(temp, sizeof temp, "%s/%0240d.mlc0.tmp", b.dir, 0);
    CHECK(put_file(temp, "half", 4));
    CHECK_EQ(save_one(ctx, path, "a", mlc_full(ctx, MLC_F32, mlc_dims1(1), 5)), MLC_OK);
    CHECK_NEAR(value_in(ctx, path), 5, 0);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

TEST(io, a_path_in_the_current_folder_is_written_there)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x");
    char     old[1024];
    if (CHECK(getcwd(old, sizeof old) && chdir(b.dir) == 0)) {
        CHECK_EQ(save_one(ctx, "plain", "a", counting(ctx, MLC_F32, mlc_dims1(2), 0)), MLC_OK);
        CHECK_EQ(access("plain", R_OK), 0);
        CHECK_EQ(chdir(old), 0);
    }
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

TEST(io, a_folder_in_the_way_is_an_error_and_no_temporary_file_stays)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("folder");
    CHECK_EQ(mkdir(b.path, 0700), 0);
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(2), 0)), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* The system refuses to let a file grow beyond 4096 bytes: a disk that is full, for any user. */
TEST(io, a_write_that_fails_leaves_the_old_file_as_it_was)
{
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("full.safetensors");
    mlc_tensor    *large = mlc_zeros(ctx, MLC_F32, mlc_dims1(100000));
    struct rlimit  old, tight;
    size_t         size_a = 0, size_b = 0;
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(2), 0)), MLC_OK);
    unsigned char *before = get_file(b.path, &size_a);
    void         (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = 4096;
    fflush(NULL);
    setrlimit(RLIMIT_FSIZE, &tight);
    mlc_status st = save_one(ctx, b.path, "a", large);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    CHECK_EQ(st, MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_HAS(mlc_error(ctx), "File too large");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    unsigned char *after = get_file(b.path, &size_b);
    if (CHECK(before && after) && CHECK_EQ(size_b, size_a))
        CHECK_EQ(memcmp(before, after, size_a), 0);
    CHECK_EQ(box_count(&b), 1);
    free(before);
    free(after);
    box_close(&b);
}

/* One of each kind of file to path; what: its number. Tensors were made before the error. */
static mlc_status save_kind(int what, mlc_module *net, mlc_optim *opt, mlc_tensor *t,
                            const char *path)
{
    const mlc_named list[1] = { { "t", t } };
    mlc_run_part part = { "mine", "12345678", 8 };
    mlc_run run;
    memset(&run, 0, sizeof run);
    run.net = net;
    run.parts = &part;
    run.n_parts = 1;
    switch (what) {
    case 0: return mlc_safetensors_save(t->ctx, path, list, 1, NULL);
    case 1: return mlc_save(net, path);
    case 2: return mlc_save_ex(net, path, NULL);
    case 3: return mlc_optim_save(opt, path);
    case 4: return mlc_npy_save(t, path);
    case 5: return mlc_npz_save(t->ctx, path, list, 1);
    case 6: return mlc_csv_save(t, path, NULL);
    case 7: return mlc_idx_save(t, path);
    case 8: return mlc_run_save(t->ctx, path, &run);
    default: break;
    }
    mlc_run_saver *saver = mlc_run_saver_create(t->ctx);
    if (!saver) return mlc_ctx_status(t->ctx);
    const mlc_status st = mlc_run_saver_save(saver, path, &run);
    mlc_run_saver_free(saver);
    return st;
}

TEST(io, nothing_is_saved_while_an_error_stands_and_the_old_file_stays)
{
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("old");
    mlc_module    *net = mlc_nn_linear(ctx, 2, 3);
    mlc_optim     *opt = mlc_sgd(net, 0.1);
    mlc_tensor    *t = counting(ctx, MLC_F32, mlc_dims1(3), 1);
    mlc_run_saver *saver = mlc_run_saver_create(ctx);
    mlc_run        run;
    memset(&run, 0, sizeof run);
    run.net = net;
    for (int what = 0; what < 10; what++) {
        CHECK(put_file(b.path, "what was there", 14));
        const uint64_t before = hash_file(HASH_SEED, b.path);
        mlc_matmul(t, mlc_zeros(ctx, MLC_F32, mlc_dims1(4)));
        char text[512];
        snprintf(text, sizeof text, "%s", mlc_error(ctx));
        CHECK_EQ(save_kind(what, net, opt, t, b.path), MLC_ERR_SHAPE);
        if (what == 9) CHECK_EQ(mlc_run_saver_save(saver, b.path, &run), MLC_ERR_SHAPE);
        CHECK_STR(mlc_error(ctx), text);
        CHECK_EQ(mlc_ctx_status(ctx), MLC_ERR_SHAPE);
        CHECK(hash_file(HASH_SEED, b.path) == before);
        CHECK_EQ(box_count(&b), 1);
        mlc_error_clear(ctx);
        CHECK_EQ(save_kind(what, net, opt, t, b.path), MLC_OK);
        CHECK(hash_file(HASH_SEED, b.path) != before);
    }
    mlc_run_saver_free(saver);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(io, nothing_is_saved_to_memory_while_an_error_stands)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = mlc_nn_linear(ctx, 2, 3);
    unsigned char  bytes[1024];
    size_t         n = 0, room = sizeof bytes;
    CHECK_EQ(mlc_save_memory(net, NULL, &n, NULL), MLC_OK);
    CHECK(n > 36 && n <= sizeof bytes);
    memset(bytes, 7, sizeof bytes);
    mlc_raise(ctx, MLC_ERR_VALUE, "mine: a value");
    CHECK_EQ(mlc_save_memory(net, bytes, &room, NULL), MLC_ERR_VALUE);
    for (size_t i = 0; i < sizeof bytes; i++) CHECK(bytes[i] == 7);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "mine: a value");
    room = sizeof bytes;
    CHECK_EQ(mlc_save_memory(net, bytes, &room, NULL), MLC_OK);
    CHECK_EQ(room, n);
    CHECK(bytes[8] == '{');
}

TEST(io, pictures_are_saved_while_an_error_stands)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("old.svg");
    const double     x[2] = { 0, 1 }, y[2] = { 2, 3 };
    mlc_plot_series  series = { NULL, x, y, 2, MLC_PLOT_LINE };
    const mlc_plot   plot = { "loss", NULL, NULL, false, false, &series, 1 };
    size_t           n = 0;
    CHECK(put_file(b.path, "what was there", 14));
    mlc_raise(ctx, MLC_ERR_NOMEM, "mine: too much");
    CHECK_EQ(mlc_plot_save(ctx, b.path, &plot, 1, 1), MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_NOMEM, "mine: too much");
    unsigned char *file = get_file(b.path, &n);
    CHECK(n > 100 && memcmp(file, "<svg", 4) == 0);
    free(file);
    box_close(&b);
}

TEST(io, a_folder_that_may_not_be_written_is_an_error)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x.safetensors");
    mlc_tensor *x = counting(ctx, MLC_F32, mlc_dims1(2), 0);
    bool     root = geteuid() == 0;                 /* root may write it all the same */
    CHECK_EQ(save_one(ctx, b.path, "a", x), MLC_OK);
    CHECK_EQ(chmod(b.dir, 0500), 0);
    CHECK_EQ(save_one(ctx, b.path, "b", x), root ? MLC_OK : MLC_ERR_IO);
    mlc_error_clear(ctx);
    CHECK_EQ(chmod(b.dir, 0700), 0);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* ---- modules ------------------------------------------------------------------------------ */

static mlc_module *net(mlc_ctx *ctx, int64_t hidden)
{
    mlc_module *m = mlc_nn_sequential(ctx);
    mlc_module_add(m, mlc_nn_linear(ctx, 3, hidden));
    mlc_module_add(m, mlc_nn_relu(ctx));
    mlc_module_add(m, mlc_nn_linear(ctx, hidden, 2));
    return m;
}

/* All parameters and buffers, one behind the other. */
static int64_t values(mlc_module *m, double *out, int64_t room)
{
    mlc_param_iter it = mlc_param_iter_make(m);
    int64_t        n = 0;
    while (mlc_param_next(&it)) {
        if (n + mlc_numel(it.tensor) > room) return -1;
        test_read(it.tensor, out + n);
        n += mlc_numel(it.tensor);
    }
    return n;
}

TEST(io, a_module_comes_back_bit_for_bit_in_another_context)
{
    mlc_ctx_desc d = test_desc();
    box          b = box_open("net.safetensors");
    double       before[64], after[64];
    mlc_ctx     *ctx = test_ctx();
    d.seed = 99;
    mlc_ctx     *other = mlc_ctx_create(&d);
    mlc_module  *m = net(ctx, 5), *fresh = net(other, 5);
    CHECK_EQ(mlc_save(m, b.path), MLC_OK);
    CHECK_EQ(mlc_module_build(m), MLC_OK);
    CHECK_EQ(values(m, before, 64), 32);
    CHECK_EQ(mlc_module_build(fresh), MLC_OK);
    CHECK_EQ(values(fresh, after, 64), 32);
    CHECK(memcmp(before, after, 32 * sizeof *before) != 0);       /* another seed */
    CHECK_EQ(mlc_load(fresh, b.path), MLC_OK);
    CHECK_OK(other);
    CHECK_EQ(values(fresh, after, 64), 32);
    CHECK_EQ(memcmp(before, after, 32 * sizeof *before), 0);
    mlc_ctx_free(other);
    box_close(&b);
}

TEST(io, the_file_of_a_module_has_dotted_names)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("names.safetensors");
    const mlc_named *list = NULL;
    int64_t          n = 0;
    CHECK_EQ(mlc_save(net(ctx, 5), b.path), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    if (CHECK_EQ(n, 4)) {
        CHECK_STR(list[0].name, "0.bias");
        CHECK_STR(list[1].name, "0.weight");
        CHECK_STR(list[2].name, "2.bias");
        CHECK_STR(list[3].name, "2.weight");
        CHECK(same_dims(list[1].tensor, mlc_dims2(5, 3)));
    }
    box_close(&b);
}

static mlc_status nothing(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                          int32_t n_out)
{
    (void)m;
    if (n_in != 1 || n_out != 1) return MLC_ERR_ARG;
    out[0] = in[0];
    return MLC_OK;
}

static const mlc_module_class keeper_class = { "Keeper", nothing, NULL, NULL, 0, NULL};

TEST(io, buffers_are_saved_and_loaded_too)
{
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("buffer.safetensors");
    const double   want[3] = { 4, 5, 6 };
    const float    host[3] = { 4, 5, 6 };
    mlc_param_desc d = mlc_param_desc_make(mlc_dims0());
    d.shape  = mlc_dims1(3);
    d.buffer = true;
    mlc_module *m = mlc_module_create(ctx, &keeper_class, NULL, 0);
    mlc_module *k = mlc_module_create(ctx, &keeper_class, NULL, 0);
    mlc_tensor *t = mlc_module_declare(m, "running", &d);
    mlc_tensor *u = mlc_module_declare(k, "running", &d);
    CHECK_EQ(mlc_module_build(m), MLC_OK);
    CHECK_EQ(mlc_write(t, host, sizeof host), MLC_OK);
    CHECK_EQ(mlc_save(m, b.path), MLC_OK);
    CHECK_EQ(mlc_load(k, b.path), MLC_OK);
    CHECK_OK(ctx);
    CHECK_VALUES(u, 3, want, 0, 0);
    box_close(&b);
}

/* Loads the list as a file into a net of 3-5-2: must fail, say part, and change nothing. */
static void refuse(const mlc_named *list, int64_t n, mlc_status status, const char *part)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("strict.safetensors");
    double      before[64], after[64];
    mlc_module *m = net(ctx, 5);
    CHECK_EQ(mlc_module_build(m), MLC_OK);
    CHECK_EQ(values(m, before, 64), 32);
    CHECK_EQ(mlc_safetensors_save(list[0].tensor->ctx, b.path, list, n, NULL), MLC_OK);
    CHECK_EQ(mlc_load(m, b.path), status);
    CHECK_HAS(mlc_error(ctx), part);
    CHECK_STATUS(ctx, status);
    CHECK_EQ(values(m, after, 64), 32);
    CHECK_EQ(memcmp(before, after, 32 * sizeof *before), 0);
    box_close(&b);
}

TEST(io, a_missing_unexpected_or_misshaped_tensor_is_named_and_nothing_changes)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_named  list[5] = { { "0.weight", counting(ctx, MLC_F32, mlc_dims2(5, 3), 1) },
                           { "0.bias", counting(ctx, MLC_F32, mlc_dims1(5), 1) },
                           { "2.weight", counting(ctx, MLC_F32, mlc_dims2(2, 5), 1) },
                           { "2.bias", counting(ctx, MLC_F32, mlc_dims1(2), 1) },
                           { "extra", counting(ctx, MLC_F32, mlc_dims1(2), 1) } };
    refuse(list, 3, MLC_ERR_IO, "2.bias");
    refuse(list, 5, MLC_ERR_IO, "extra");
    list[3].tensor = counting(ctx, MLC_F32, mlc_dims1(3), 1);
    refuse(list, 4, MLC_ERR_SHAPE, "2.bias");
    list[3].tensor = counting(ctx, MLC_F32, mlc_dims2(1, 2), 1);
    refuse(list, 4, MLC_ERR_SHAPE, "2.bias");
    list[3].tensor = counting(ctx, MLC_F64, mlc_dims1(2), 1);
    refuse(list, 4, MLC_ERR_DTYPE, "2.bias");
}

TEST(io, a_module_load_from_a_missing_or_damaged_file_changes_nothing)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("damaged.safetensors");
    double      before[64], after[64];
    mlc_module *m = net(ctx, 5);
    size_t      size = 0;
    CHECK_EQ(mlc_module_build(m), MLC_OK);
    CHECK_EQ(values(m, before, 64), 32);
    CHECK_EQ(mlc_load(m, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), b.path);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(mlc_save(net(ctx, 5), b.path), MLC_OK);
    unsigned char *f = get_file(b.path, &size);
    CHECK(f && put_file(b.path, f, size - 1));
    CHECK_EQ(mlc_load(m, b.path), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(values(m, after, 64), 32);
    CHECK_EQ(memcmp(before, after, 32 * sizeof *before), 0);
    free(f);
    box_close(&b);
}

TEST(io, a_scope_around_a_load_gives_its_memory_back)
{
    mlc_ctx   *ctx = test_ctx();
    box        b = box_open("scope.safetensors");
    mlc_memory before, after;
    CHECK_EQ(save_one(ctx, b.path, "a", counting(ctx, MLC_F32, mlc_dims1(50), 0)), MLC_OK);
    for (int i = 0; i < 4; i++) {
        const mlc_named *list = NULL;
        int64_t          n = 0;
        CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
        if (i) CHECK_EQ(after.allocated, before.allocated);       /* first: the pool grows */
    }
    box_close(&b);
}

/* ---- every dtype, and files read tensor by tensor ----------------------------------------- */

static const mlc_dtype ALL[] = { MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                 MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL };

TEST(io, every_dtype_of_a_file_by_the_reference_has_its_values)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_named *list = NULL;
    int64_t          n = 0;
    CHECK_EQ(mlc_safetensors_load(ctx, "tests/golden/io_dtypes.safetensors", &list, &n), MLC_OK);
    CHECK_EQ(n, 9);
    for (int d = 0; d < 9; d++) {
        mlc_tensor *t = get(list, n, mlc_dtype_name(ALL[d]));
        const double count[6] = { 0, 1, 2, 3, 4, 5 }, odd[6] = { 0, 1, 0, 1, 0, 1 };
        if (!CHECK(t != NULL)) continue;
        CHECK_EQ(t->dtype, ALL[d]);
        CHECK_VALUES(t, 6, ALL[d] == MLC_BOOL ? odd : count, 0, 0);
    }
    CHECK_OK(ctx);
}

TEST(io, every_dtype_comes_back_bit_by_bit)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("all.safetensors");
    mlc_named        in[9];
    const mlc_named *list = NULL;
    int64_t          n = 0;
    unsigned char    bits[16], back[16];
    for (int i = 0; i < 16; i++) bits[i] = (unsigned char)(i * 37 + 129);
    for (int d = 0; d < 9; d++) {
        const int64_t count = 16 / (int64_t)mlc_dtype_bytes(ALL[d]);
        in[d].name = mlc_dtype_name(ALL[d]);
        in[d].tensor = mlc_from(ctx, ALL[d], mlc_dims1(count), bits);
    }
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, in, 9, NULL), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    for (int d = 0; d < 9 && CHECK_EQ(n, 9); d++) {
        CHECK_EQ(mlc_read(get(list, n, in[d].name), back, 16), MLC_OK);
        for (int i = 0; i < 16; i++)   /* a bool that is not 0 is 1                            */
            CHECK_EQ(back[i], ALL[d] == MLC_BOOL ? bits[i] != 0 : bits[i]);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

/* On whatever systems and flags have a name for the flag. */
TEST(io, an_open_file_is_closed_by_exec)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_safetensors *f = mlc_safetensors_open(ctx, "tests/golden/io_dtypes.safetensors");
    struct stat      file, other;
    int              found = 0;
    CHECK(f && stat("tests/golden/io_dtypes.safetensors", &file) == 0);
    for (int fd = 3; fd < 256; fd++) {
        if (fstat(fd, &other) != 0 || other.st_ino != file.st_ino || other.st_dev != file.st_dev)
            continue;
        CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        found++;
    }
    CHECK(found == 1);
    mlc_safetensors_close(f);
}

TEST(io, an_open_file_gives_names_shapes_metadata_and_single_tensors)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_safetensors *f = mlc_safetensors_open(ctx, "tests/golden/io_dtypes.safetensors");
    mlc_dtype        dtype;
    mlc_dims         shape;
    const double     count[6] = { 0, 1, 2, 3, 4, 5 }, odd[6] = { 0, 1, 0, 1, 0, 1 };
    if (!CHECK(f != NULL)) return;
    CHECK_EQ(mlc_safetensors_count(f), 9);
    CHECK_STR(mlc_safetensors_name(f, 0), "bf16");
    CHECK_STR(mlc_safetensors_name(f, 8), "u8");
    CHECK(mlc_safetensors_name(f, 9) == NULL && mlc_safetensors_name(f, -1) == NULL);
    CHECK_STR(mlc_safetensors_metadata(f, "made by"), "torch");
    CHECK_STR(mlc_safetensors_metadata(f, "k\xc3\xa9y"), "v");
    CHECK(mlc_safetensors_metadata(f, "none") == NULL);
    for (int d = 0; d < 9; d++) {
        const char   *name = mlc_dtype_name(ALL[d]);
        const double *want = ALL[d] == MLC_BOOL ? odd : count;
        CHECK_EQ(mlc_safetensors_info(f, name, &dtype, &shape), MLC_OK);
        CHECK(dtype == ALL[d] && shape.n == 2 && shape.v[0] == 2 && shape.v[1] == 3);
        CHECK_VALUES(mlc_safetensors_get(f, name), 6, want, 0, 0);
        CHECK_VALUES(mlc_safetensors_view(f, name), 6, want, 0, 0);
    }
    CHECK_OK(ctx);
    CHECK(mlc_safetensors_get(f, "none") == NULL);
    CHECK_STR(mlc_error(ctx), "'tests/golden/io_dtypes.safetensors' has no tensor named 'none'; "
                              "mlc_safetensors_name lists them");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_safetensors_view(f, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_info(f, "none", &dtype, &shape), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_safetensors_info(f, "f64", &dtype, NULL), MLC_OK);
    CHECK_EQ(dtype, MLC_F64);
    CHECK(mlc_safetensors_metadata(f, NULL) == NULL && mlc_safetensors_metadata(NULL, "k") == NULL);
    CHECK(mlc_safetensors_count(NULL) == 0 && mlc_safetensors_name(NULL, 0) == NULL);
    CHECK_EQ(mlc_safetensors_info(NULL, "f64", &dtype, &shape), MLC_ERR_ARG);
    CHECK(mlc_safetensors_get(NULL, "f64") == NULL && mlc_safetensors_view(NULL, "f64") == NULL);
    CHECK_OK(ctx);
    if (test_on_host()) {              /* the same page twice: no copy was made                */
        mlc_tensor *a = mlc_safetensors_view(f, "f64"), *b = mlc_safetensors_view(f, "f64");
        CHECK(mlc_f64(a) == mlc_f64(b));
    }
    mlc_safetensors_close(f);
    CHECK(mlc_safetensors_open(ctx, "tests/golden/none.safetensors") == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_safetensors_open(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_safetensors_open(NULL, "x") == NULL);
    /* The last one is closed by the context's end. */
    CHECK(mlc_safetensors_open(ctx, "tests/golden/io_dtypes.safetensors") != NULL);
    CHECK(mlc_safetensors_open(ctx, "tests/golden/io_python.safetensors") != NULL);
}

/* ---- files that have more, or less, than can be read --------------------------------------- */

TEST(io, a_tensor_of_a_foreign_dtype_is_listed_and_only_it_is_refused)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("foreign.safetensors");
    const char      *h = "{" T("a", "F8_E4M3", "[3]", "[0,3]") "," T("b", "U32", "[1]", "[3,7]") ","
                         T("c", "U8", "[2]", "[7,9]") "," T("d", "F4", "[2,3]", "[9,12]") "}";
    const double     c[2] = { 8, 9 };
    const mlc_named *list = NULL;
    int64_t          n = -1;
    mlc_dtype        dtype = MLC_U8;
    mlc_dims         shape;
    char             text[512];
    CHECK(put_tensors(b.path, h, strlen(h), 12));
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path);
    CHECK_EQ(mlc_safetensors_count(f), 4);
    CHECK_STR(mlc_safetensors_name(f, 0), "a");
    CHECK_EQ(mlc_safetensors_info(f, "d", NULL, &shape), MLC_OK);
    CHECK(shape.n == 2 && shape.v[0] == 2 && shape.v[1] == 3);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_safetensors_info(f, "b", &dtype, &shape), MLC_ERR_DTYPE);
    CHECK(shape.n == 1 && shape.v[0] == 1 && dtype == MLC_U8);
    snprintf(text, sizeof text, "'%s': 'b' has dtype 'U32', not known to this mlcore; save it as "
             "another", b.path);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_safetensors_get(f, "a") == NULL);
    CHECK_HAS(mlc_error(ctx), "'a' has dtype 'F8_E4M3'");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_safetensors_view(f, "d") == NULL);
    CHECK_HAS(mlc_error(ctx), "'d' has dtype 'F4'");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK_VALUES(mlc_safetensors_get(f, "c"), 2, c, 0, 0);
    CHECK_VALUES(mlc_safetensors_view(f, "c"), 2, c, 0, 0);
    mlc_safetensors_close(f);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_ERR_DTYPE);
    CHECK(list == NULL && n == 0);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    box_close(&b);
}

TEST(io, a_view_of_a_file_that_was_closed_is_an_error_not_a_crash)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_safetensors *f = mlc_safetensors_open(ctx, "tests/golden/io_dtypes.safetensors");
    mlc_tensor      *v = mlc_safetensors_view(f, "f32"), *copy = mlc_copy(v);
    mlc_tensor      *x = counting(ctx, MLC_F32, mlc_dims2(2, 3), 1);
    const double     count[6] = { 0, 1, 2, 3, 4, 5 };
    mlc_scope_begin(ctx);              /* views in outer scopes are found, too                 */
    mlc_tensor *row = mlc_select(v, 0, 1), *got = mlc_safetensors_get(f, "f32");
    mlc_set_requires_grad(x, true);
    mlc_tensor *loss = mlc_sum(mlc_mul(x, v), mlc_dims0(), false);
    mlc_safetensors_close(f);
    CHECK_OK(ctx);
    if (test_on_host()) {
        CHECK(mlc_add(v, v) == NULL);
        CHECK_HAS(mlc_error(ctx), "add: the file whose memory a [2,3] tensor sees was closed; copy "
                                  "it before");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK(mlc_relu(row) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK(mlc_f32(v) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK_EQ(mlc_backward(loss), MLC_ERR_STATE);
        CHECK_STATUS(ctx, MLC_ERR_STATE);
    } else {
        CHECK_VALUES(v, 6, count, 0, 0);                   /* a copy, from the first           */
    }
    CHECK_VALUES(copy, 6, count, 0, 0);
    CHECK_VALUES(got, 6, count, 0, 0);
    mlc_scope_end(ctx);
}

/* A tensor takes more memory than the 60 bytes that describe it. */
TEST(io, thousands_of_tiny_tensors_are_read_one_by_one_only)
{
    enum { MANY = 6000 };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("tiny.safetensors");
    unsigned char   *bytes = (unsigned char *)calloc(1, MANY * 80 + MANY + 64);
    size_t           n = 8;
    const mlc_named *list = NULL;
    int64_t          count = -1;
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf((char *)bytes + n, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[],"
                             "\"data_offsets\":[%d,%d]}", i ? "," : "{", i, i, i + 1);
    bytes[n++] = '}';
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)(n - 8) >> (8 * i));
    for (int i = 0; i < MANY; i++) bytes[n + (size_t)i] = (unsigned char)i;
    CHECK(put_file(b.path, bytes, n + MANY));
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &count), MLC_ERR_IO);
    CHECK(list == NULL && count == 0);
    CHECK_HAS(mlc_error(ctx), "': 6000 tensors would take ");
    CHECK_HAS(mlc_error(ctx), " bytes of memory, over 4 times the file and 1 MiB; read them one by "
                              "one: mlc_safetensors_open");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path);
    CHECK_EQ(mlc_safetensors_count(f), MANY);
    for (int i = 0; i < MANY; i += 500) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        mlc_scope_begin(ctx);
        CHECK(mlc_item(mlc_safetensors_get(f, name)) == i % 256);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_safetensors_close(f);
    free(bytes);
    box_close(&b);
}

/* ---- no files in a dry run ------------------------------------------------------------------ */

typedef struct filer {
    const char      *path;
    mlc_safetensors *file;
    mlc_module      *other;
    int              what;
} filer;

static mlc_status filer_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    const filer *f = (const filer *)mlc_module_user(m);
    mlc_ctx     *ctx = mlc_module_ctx(m);
    mlc_named    list = { "x", in[0] };
    (void)n_in; (void)n_out;
    switch (f->what) {
    case 0: out[0] = mlc_safetensors_get(f->file, "f32"); break;
    case 1: out[0] = mlc_safetensors_view(f->file, "f32"); break;
    case 2: out[0] = mlc_npy_load(ctx, f->path); break;
    case 3: mlc_npy_save(in[0], f->path); break;
    case 4: mlc_npz_save(ctx, f->path, &list, 1); break;
    case 5: mlc_safetensors_save(ctx, f->path, &list, 1, NULL); break;
    case 6: mlc_csv_save(in[0], f->path, NULL); break;
    case 7: mlc_load_memory(f->other, "", 0, NULL); break;
    default: mlc_idx_save(in[0], f->path); break;
    }
    return mlc_ctx_status(ctx);
}

static void no_text(void *user, const char *text, size_t n) { (void)user; (void)text; (void)n; }

TEST(io, a_summary_reads_and_writes_no_file)
{
    static const mlc_module_class cls = { "Filer", filer_forward, NULL, NULL, 0, NULL};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("none");
    filer    f = { b.path, mlc_safetensors_open(ctx, "tests/golden/io_dtypes.safetensors"),
                   mlc_nn_linear(ctx, 1, 1), 0 };
    CHECK_EQ(mlc_module_build(f.other), MLC_OK);
    CHECK(mlc_safetensors_view(f.file, "f64") != NULL);    /* there is a mapping               */
    for (; f.what < 9; f.what++) {
        mlc_module *m = mlc_module_create(ctx, &cls, &f, sizeof f);
        CHECK_EQ(mlc_summary(m, mlc_dims2(2, 3), no_text, NULL), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "': no files while mlc_summary runs forward");
        CHECK_HAS(mlc_error(ctx), f.what < 2 ? "io_dtypes.safetensors" :
                                  f.what == 7 ? "'memory'" : b.path);
        if (!CHECK_STATUS(ctx, MLC_ERR_STATE)) printf("  %d\n", f.what);
        mlc_module_free(m);
    }
    CHECK(mlc_safetensors_get(f.file, "f32") != NULL);     /* and now it can                   */
    mlc_safetensors_close(f.file);
    CHECK_EQ(box_count(&b), 0);
    CHECK_OK(ctx);
    box_close(&b);
}

/* Data of 8 bytes at an odd place: get and view give it all the same, view by a copy. */
TEST(io, a_view_of_data_that_is_not_aligned_is_a_copy)
{
    mlc_ctx     *ctx = test_ctx();
    box          b = box_open("odd.safetensors");
    const char  *h = "{" T("a", "U8", "[3]", "[0,3]") "," T("b", "I64", "[1]", "[3,11]") ","
                     T("c", "F32", "[0]", "[11,11]") "}";
    mlc_tensor  *view[2] = { NULL, NULL };
    CHECK(put_tensors(b.path, h, strlen(h), 11));
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path), *g = mlc_safetensors_open(ctx, b.path);
    mlc_safetensors *last = mlc_safetensors_open(ctx, b.path);
    for (int i = 0; i < 2; i++) view[i] = mlc_safetensors_view(f, i ? "b" : "a");
    CHECK_EQ(mlc_numel(mlc_safetensors_view(f, "c")), 0);
    CHECK_OK(ctx);
    mlc_safetensors_close(g);          /* the one in the middle                                */
    mlc_safetensors_close(last);
    mlc_safetensors_close(f);
    int64_t value = 0;
    if (CHECK(view[1] != NULL)) CHECK_EQ(mlc_read(view[1], &value, sizeof value), MLC_OK);
    CHECK_EQ(value, 0x0b0a090807060504);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(io, a_file_without_tensors_has_none_of_any_name)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("none.safetensors");
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, NULL, 0, (const char *const[]){ NULL }), MLC_OK);
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path);
    CHECK(f != NULL && mlc_safetensors_get(f, "a") == NULL);
    CHECK_HAS(mlc_error(ctx), "has no tensor named 'a'");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_safetensors_close(f);
    box_close(&b);
}

/* The reference's bound. What is written is read, what would not be is refused. */
TEST(io, a_header_of_100_million_bytes_is_the_longest)
{
    const size_t     most = 100000000 - strlen("{\"\":{\"dtype\":\"F32\",\"shape\":[1],"
                                               "\"data_offsets\":[0,4]}}");
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open_fast("long.safetensors");
    const mlc_named *list = NULL;
    int64_t          n = 0;
    mlc_tensor      *x = mlc_full(ctx, MLC_F32, mlc_dims1(1), 3);
    char            *name = sizeof(void *) < 8 || !test_on_host() || test_stride(2) > 1
                                ? NULL : (char *)malloc(most + 2);
    if (!name) { box_close(&b); return (void)CHECK(x != NULL); }     /* it takes half a GB */
    memset(name, 'n', most + 1);
    name[most + 1] = 0;
    CHECK_EQ(save_one(ctx, b.path, name, x), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "save: the header has 100000008 bytes, over 100000000");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(box_count(&b), 0);
    name[most] = 0;
    CHECK_EQ(save_one(ctx, b.path, name, x), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    if (CHECK_EQ(n, 1)) CHECK(strcmp(list[0].name, name) == 0 && mlc_item(list[0].tensor) == 3);
    CHECK_OK(ctx);
    free(name);
    box_close(&b);
}

/* ---- no memory: headers that grow at any of their parts, lists of any length ---------------- */

typedef struct grown { const char *path; int names, length; } grown;

static mlc_status save_grown(mlc_ctx *ctx, const void *user)
{
    const grown      *g = (const grown *)user;
    char              names[24][2048];
    mlc_named         list[24];
    mlc_tensor       *x = mlc_zeros(ctx, MLC_U8, mlc_dims0());
    const char       *metadata[5] = { names[0], "\n", "k", names[0], NULL };
    for (int i = 0; i < g->names; i++) {
        memset(names[i], i % 3 ? 'n' : '\t', sizeof names[i]);
        names[i][0] = (char)('a' + i);
        names[i][g->length] = 0;
        list[i].name = names[i];
        list[i].tensor = x;
    }
    if (!x) return mlc_ctx_status(ctx);
    return mlc_safetensors_save(ctx, g->path, list, g->names, g->length % 2 ? metadata : NULL);
}

static mlc_status load_grown(mlc_ctx *ctx, const void *user)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    return mlc_safetensors_load(ctx, ((const grown *)user)->path, &list, &n);
}

TEST(io, headers_of_any_length_survive_that_any_allocation_fails)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("grown.safetensors");
    grown    g = { b.path, 3, 1 };
    for (; g.length < (test_on_host() ? 300 : 8); g.length += (int)test_stride(7))
        tally_fail_each(save_grown, &g);
    for (g.names = 1; g.names < 24; g.names += 11)
        for (g.length = 1; g.length < 2048; g.length += 501) {
            CHECK_EQ(save_grown(ctx, &g), MLC_OK);
            tally_fail_each(load_grown, &g);
        }
    CHECK_OK(ctx);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}
