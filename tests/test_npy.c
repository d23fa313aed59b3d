/* test_npy.c -- tests of section IMPL.IO.NPY: .npy and .npz, both ways, and what is refused */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};
static const double COUNT[6] = {0, 1, 2, 3, 4, 5}, ODD[6] = {0, 1, 0, 1, 0, 1};

static mlc_tensor *get(const mlc_named *list, int64_t n, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return list[i].tensor;
    CHECK(!"the array is there");
    return NULL;
}

/* ---- files by numpy ------------------------------------------------------------------------ */

TEST(npy, an_npz_by_numpy_has_its_values_in_every_dtype_and_order)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_named *list = NULL;
    int64_t          n = 0;
    static const double u16[2] = {0, 65535}, i16[2] = {-32768, 32767}, u32[2] = {0, 4294967295.0};
    CHECK_EQ(mlc_npz_load(ctx, "tests/golden/io_numpy.npz", &list, &n), MLC_OK);
    CHECK_EQ(n, 15);
    for (int d = 0; d < 9; d++) {
        if (ALL[d] == MLC_BF16) continue;
        mlc_tensor *t = get(list, n, mlc_dtype_name(ALL[d]));
        if (!t) continue;
        CHECK_EQ(t->dtype, ALL[d]);
        CHECK_VALUES(t, 6, ALL[d] == MLC_BOOL ? ODD : COUNT, 0, 0);
    }
    CHECK_VALUES(get(list, n, "order"), 6, COUNT, 0, 0);
    CHECK(mlc_is_contiguous(get(list, n, "order")));
    CHECK_VALUES(get(list, n, "big"), 6, COUNT, 0, 0);
    CHECK_VALUES(get(list, n, "u16"), 2, u16, 0, 0);
    CHECK_VALUES(get(list, n, "i16"), 2, i16, 0, 0);
    CHECK_VALUES(get(list, n, "u32"), 2, u32, 0, 0);
    CHECK_NEAR(mlc_item(get(list, n, "scalar")), 2.5, 0);
    CHECK_EQ(mlc_numel(get(list, n, "empty")), 0);
    CHECK_EQ(mlc_dim(get(list, n, "empty"), 1), 4);
    CHECK_OK(ctx);
}

TEST(npy, a_compressed_npz_is_read_with_zlib_and_named_without)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(ctx, "tests/golden/io_packed.npz", &list, &n);
    if (st == MLC_OK) {
        CHECK_EQ(n, 2);
        CHECK_NEAR(mlc_item(mlc_select(get(list, n, "ramp"), 0, 999)), 999, 0);
        return;
    }
    CHECK_EQ(st, MLC_ERR_UNSUPPORTED);
    CHECK_HAS(mlc_error(ctx), "compressed; write it with numpy.savez");
    CHECK(list == NULL && n == 0);
    CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
}

/* ---- round trips --------------------------------------------------------------------------- */

static mlc_tensor *sample(mlc_ctx *ctx, mlc_dtype dtype)
{
    return test_tensor(ctx, dtype, mlc_dims2(2, 3), dtype == MLC_BOOL ? ODD : COUNT);
}

TEST(npy, every_dtype_and_layout_comes_back_from_npy)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x.npy");
    static const double flipped[6] = {0, 3, 1, 4, 2, 5}, flipped_odd[6] = {0, 1, 1, 0, 0, 1};
    for (int d = 0; d < 9; d++) {
        mlc_tensor *t = sample(ctx, ALL[d]), *back;
        CHECK_EQ(mlc_npy_save(t, b.path), MLC_OK);
        back = mlc_npy_load(ctx, b.path);
        CHECK_VALUES(back, 6, ALL[d] == MLC_BOOL ? ODD : COUNT, 0, 0);
        CHECK_EQ(back->dtype, ALL[d] == MLC_BF16 ? MLC_F32 : ALL[d]);
        CHECK_EQ(mlc_npy_save(mlc_transpose(t, 0, 1), b.path), MLC_OK);
        back = mlc_npy_load(ctx, b.path);
        CHECK_VALUES(back, 6, ALL[d] == MLC_BOOL ? flipped_odd : flipped, 0, 0);
        CHECK_EQ(mlc_dim(back, 0), 3);
    }
    CHECK_EQ(mlc_npy_save(mlc_full(ctx, MLC_F64, mlc_dims0(), 7), b.path), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_npy_load(ctx, b.path)), 7, 0);
    CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_I8, mlc_dims3(2, 0, 3)), b.path), MLC_OK);
    CHECK_EQ(mlc_dim(mlc_npy_load(ctx, b.path), 2), 3);
    CHECK_EQ(box_count(&b), 1);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(npy, a_npy_file_begins_as_numpy_writes_it)
{
    static const char want[] = "\x93NUMPY\1\0v\0{'descr': '<f4', 'fortran_order': False, "
                               "'shape': (2, 3), }";
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("x.npy");
    size_t         n = 0;
    CHECK_EQ(mlc_npy_save(sample(ctx, MLC_F32), b.path), MLC_OK);
    unsigned char *f = get_file(b.path, &n);
    CHECK_EQ(n, 128 + 24);
    CHECK(f && memcmp(f, want, sizeof want - 1) == 0 && f[127] == '\n');
    free(f);
    box_close(&b);
}

TEST(npy, every_dtype_comes_back_from_npz)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    mlc_named        in[9];
    const mlc_named *list = NULL;
    int64_t          n = 0;
    for (int d = 0; d < 9; d++) {
        in[d].name = mlc_dtype_name(ALL[d]);
        in[d].tensor = sample(ctx, ALL[d]);
    }
    CHECK_EQ(mlc_npz_save(ctx, b.path, in, 9), MLC_OK);
    CHECK_EQ(mlc_npz_load(ctx, b.path, &list, &n), MLC_OK);
    for (int d = 0; d < 9 && CHECK_EQ(n, 9); d++)
        CHECK_VALUES(get(list, n, in[d].name), 6, ALL[d] == MLC_BOOL ? ODD : COUNT, 0, 0);
    CHECK_EQ(mlc_npz_save(ctx, b.path, NULL, 0), MLC_OK);
    CHECK_EQ(mlc_npz_load(ctx, b.path, &list, &n), MLC_OK);
    CHECK_EQ(n, 0);
    in[1].name = in[0].name;
    CHECK_EQ(mlc_npz_save(ctx, b.path, in, 2), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "npz_save: two arrays named 'f32'; rename one");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    box_close(&b);
}

/* ---- headers by hand ----------------------------------------------------------------------- */

/* A version 1 file with this header and 24 bytes of data: 1 .. 24. */
static bool put_npy(const char *path, const char *header)
{
    unsigned char f[512];
    const size_t  n = strlen(header);
    memcpy(f, "\x93NUMPY\1", 8);
    f[8] = (unsigned char)n;
    f[9] = (unsigned char)(n >> 8);
    memcpy(f + 10, header, n);
    for (size_t i = 0; i < 24; i++) f[10 + n + i] = (unsigned char)(i + 1);
    return put_file(path, f, 10 + n + 24);
}

TEST(npy, headers_that_numpy_takes_are_taken)
{
    static const char *const headers[] = {
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }\n",
        "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"=i4\"}",
        "  { 'fortran_order' : False , 'descr' : 'i4' , 'shape' : ( 2 , 3 , ) , }  ",
        "{'descr': '|i4', 'fortran_order': False, 'shape': (2L, 3L), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }",
    };
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x.npy");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        CHECK(put_npy(b.path, headers[i]));
        mlc_tensor *t = mlc_npy_load(ctx, b.path);
        if (!CHECK_OK(ctx)) printf("  %s\n", headers[i]);
        CHECK_EQ(mlc_dim(t, 0), 2);
        CHECK_NEAR(mlc_item(mlc_select(mlc_select(t, 0, 0), 0, 1)), 0x08070605, 0);
    }
    CHECK(put_npy(b.path, "{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }"));
    mlc_tensor *t = mlc_npy_load(ctx, b.path);
    CHECK_NEAR(mlc_item(mlc_select(mlc_select(t, 0, 0), 0, 1)), 0x090a0b0c, 0);
    CHECK_NEAR(mlc_item(mlc_select(mlc_select(t, 0, 1), 0, 0)), 0x05060708, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

typedef struct refused { const char *header, *why; mlc_status status; } refused;

TEST(npy, an_array_without_elements_has_its_shape)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x.npy");
    CHECK(put_npy(b.path, "{'descr': '<i4', 'fortran_order': True, 'shape': (2L, 0L)}"));
    mlc_tensor *t = mlc_npy_load(ctx, b.path);
    CHECK(t && t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 0);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(npy, headers_that_are_wrong_are_refused_with_a_reason)
{
    static const refused table[] = {
        {"", "'{' is missing", MLC_ERR_IO},
        {"[]", "'{' is missing", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False}", "is missing", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,), 'x': 1}", "unknown key",
         MLC_ERR_IO},
        {"{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", "twice",
         MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (-2,)}", "no number", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2)}", "no tuple", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': [2]}", "no tuple", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2 3)}", "no tuple", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
         "too large", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 0)}",
         "more elements than memory can hold", MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "more axes",
         MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (7,)}", "shorter than its header",
         MLC_ERR_IO},
        {"{'descr': '<i4', 'fortran_order': 0, 'shape': (2,)}", "neither True nor False",
         MLC_ERR_IO},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", "pickled objects are refused",
         MLC_ERR_IO},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,)}", "structured dtype",
         MLC_ERR_IO},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", "dtype '<c8' is not known",
         MLC_ERR_DTYPE},
        {"{'descr': '<u8', 'fortran_order': False, 'shape': (2,)}", "dtype '<u8' is not known",
         MLC_ERR_DTYPE},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,)} x", "text after its end",
         MLC_ERR_IO},
        {"{'descr': '<i4, 'fortran_order': False, 'shape': (2,)}", "dtype '<i4, '", MLC_ERR_DTYPE},
        {"{'descr': '2 ', 'fortran_order': False, 'shape': (2,)}", "dtype '2 '", MLC_ERR_DTYPE},
        {"{'descr': '<i4' 'fortran_order': False, 'shape': (2,)}", "',' or '}'", MLC_ERR_IO},
        {"{'descr': i4, 'fortran_order': False, 'shape': (2,)}", "string is missing", MLC_ERR_IO},
        {"{'descr' '<i4'}", "':' is missing", MLC_ERR_IO},
        {"{'a string that is longer than any key of the format': 1}", "no descr or key",
         MLC_ERR_IO},
        {"{'descr", "no end", MLC_ERR_IO},
        {"{'descr': '<i4\\', 'fortran_order': False, 'shape': (2,)}", "no descr or key",
         MLC_ERR_IO},
        {"{'descr': '', 'fortran_order': False, 'shape': (2,)}", "dtype ''", MLC_ERR_DTYPE},
        {"{'descr': '<', 'fortran_order': False, 'shape': (2,)}", "dtype '<'", MLC_ERR_DTYPE},
        {"{'descr': 'f44', 'fortran_order': False, 'shape': (2,)}", "dtype 'f44'", MLC_ERR_DTYPE},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (00,)}", "a size begins with 0",
         MLC_ERR_IO},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2LL,)}", "no tuple", MLC_ERR_IO},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (a,)}", "a size is no number",
         MLC_ERR_IO},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,", "a size is no number",
         MLC_ERR_IO},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}",
         "a size is too large", MLC_ERR_IO},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,)}",
         "more elements than memory can hold", MLC_ERR_IO},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", "',' or '}'", MLC_ERR_IO},
    };
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x.npy");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(put_npy(b.path, table[i].header));
        CHECK(mlc_npy_load(ctx, b.path) == NULL);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_HAS(mlc_error(ctx), b.path);
        if (!CHECK_STATUS(ctx, table[i].status)) printf("  %s\n", table[i].header);
    }
    box_close(&b);
}

/* Where a signature is for the nth time. */
static size_t find(const unsigned char *f, size_t n, const char *signature, int nth)
{
    for (size_t i = 0; i + 4 <= n; i++)
        if (memcmp(f + i, signature, 4) == 0 && nth-- == 0) return i;
    CHECK(!"the signature is there");
    return 0;
}

TEST(npy, arguments_that_are_missing_are_named)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_named *list;
    int64_t          n;
    CHECK_EQ(mlc_npy_save(NULL, "x"), MLC_ERR_ARG);
    CHECK(mlc_npy_load(NULL, "x") == NULL);
    CHECK_EQ(mlc_npz_load(NULL, "x", &list, &n), MLC_ERR_ARG);
    CHECK_EQ(mlc_npz_save(NULL, "x", NULL, 0), MLC_ERR_ARG);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_npy_save(sample(ctx, MLC_F32), i ? NULL : ""), MLC_ERR_ARG);
        CHECK_STR(mlc_error(ctx), "npy_save: no path; give a file's name");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        CHECK_EQ(mlc_npz_save(ctx, i ? NULL : "", NULL, 0), MLC_ERR_ARG);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    CHECK_EQ(mlc_npz_save(ctx, "x", NULL, -1), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_npz_load(ctx, "x", NULL, &n), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_npz_load(ctx, "x", &list, NULL), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "npz_load: path, list or n is NULL; it takes all three");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_npz_load(ctx, "tests/golden/none.npz", &list, &n), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_npy_load(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_npz_load(ctx, NULL, &list, &n), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_npz_save(ctx, "x", NULL, 1), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_npy_load(ctx, "tests/golden/none.npy") == NULL);
    CHECK_HAS(mlc_error(ctx), "cannot open 'tests/golden/none.npy'");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* What is wrong with a list is found before a file is made. */
TEST(npy, lists_that_cannot_be_saved_are_refused)
{
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open("x.npz");
    mlc_tensor     *x = sample(ctx, MLC_F32);
    mlc_module     *m = mlc_nn_linear(ctx, 2, 2);
    char            longest[MLC_NAME_BYTES + 1];
    mlc_param_desc  one;
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    one = mlc_param_desc_make(mlc_dims1(1));
    mlc_tensor *unbuilt = mlc_module_declare(m, "unbuilt", &one);
    const struct { mlc_named list[2]; int n; mlc_status st; const char *why; } table[] = {
        {{{NULL, x}, {NULL, NULL}}, 1, MLC_ERR_ARG, "entry 0 has no name or tensor"},
        {{{"a", x}, {"b", NULL}}, 2, MLC_ERR_ARG, "entry 1 has no name or tensor"},
        {{{"\xff", x}, {NULL, NULL}}, 1, MLC_ERR_ARG, "name of entry 0 is not UTF-8"},
        {{{longest, x}, {NULL, NULL}}, 1, MLC_ERR_ARG, "is not UTF-8 or over"},
        {{{"a", x}, {"a", x}}, 2, MLC_ERR_ARG, "npz_save: two arrays named 'a'"},
        {{{"a", unbuilt}, {NULL, NULL}}, 1, MLC_ERR_STATE, "is not built yet"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK_EQ(mlc_npz_save(ctx, b.path, table[i].list, table[i].n), table[i].st);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, table[i].st);
    }
    CHECK_EQ(mlc_npy_save(unbuilt, b.path), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_npz_save(ctx, b.path, table[0].list, 65536), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "npz_save: 65536 arrays, a .npz has at most 65535");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}

/* ---- files in full, by hand ----------------------------------------------------------------- */

#define HEADER       "\x93NUMPY\1\0\x37\0"
#define REST(size)   "'fortran_order': True, 'shape': (" size ",)}\n\1\2\3"
static const char array_i1[] = HEADER "{'descr': '>i1', " REST("3");
static const char array_0d[] = "\x93NUMPY\2\0\x36\0\0\0{'descr': '|b1', 'fortran_order': False, "
                               "'shape': ()}\n\7";

#define ARRAY(text) text, sizeof text - 1

TEST(npy, files_too_short_for_their_header_are_refused)
{
    static const struct { const char *bytes; size_t n; const char *why; } table[] = {
        {ARRAY("\x93NUMPY\2\0\0"), "too short for a .npy file"},
        {ARRAY("\x93NUMPY\2\0\0\0"), "shorter than its header says"},
        {ARRAY("\x93NUMPY\2\0\0\0\0"), "shorter than its header says"},
        {ARRAY("\x93NUMPY\2\0\0\0\0\0"), "'{' is missing"},
        {ARRAY("\x93NUMPY\2\0\0\1\0\0"), "longer than 10000 bytes or the file"},
        {ARRAY("\x93NUMPY\2\0\0\0\1\0"), "longer than 10000 bytes or the file"},
        {ARRAY("\x93NUMPX\1\0\0\0"), "no .npy file"},
        {ARRAY("\x93NUMPY\0\0\0\0"), "a version of .npy other than"},
        {ARRAY("\x93NUMPY\4\0\0\0"), "a version of .npy other than"},
        {ARRAY("\x93NUMPY\1\1\0\0"), "a version of .npy other than"},
        {ARRAY("\x93NUMPY\1\0\3\0{\0}"), "a NUL byte"},
    };
    const double one[3] = {1, 2, 3};
    mlc_ctx     *ctx = test_ctx();
    box          b = box_open("x.npy");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(put_file(b.path, table[i].bytes, table[i].n));
        CHECK(mlc_npy_load(ctx, b.path) == NULL);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    CHECK(put_file(b.path, ARRAY(array_i1)));
    CHECK_VALUES(mlc_npy_load(ctx, b.path), 3, one, 0, 0);
    CHECK(put_file(b.path, ARRAY(array_0d)));
    CHECK_VALUES(mlc_npy_load(ctx, b.path), 1, one, 0, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- damaged zips -------------------------------------------------------------------------- */

typedef struct damage { const char *at; int nth; int offset; int value; const char *why; } damage;

TEST(npy, a_damaged_zip_is_refused_with_a_reason)
{
    static const damage table[] = {
        {"PK\1\2", 0, 10, 9, "neither stored nor deflate"},
        {"PK\1\2", 0, 8, 1, "encrypted"},
        {"PK\1\2", 0, 16, 1, "checksum is wrong"},
        {"PK\1\2", 0, 20, 1, "two sizes"},
        {"PK\1\2", 0, 42, 1, "own header is missing"},
        {"PK\1\2", 1, 42, 0, "overlap"},
        {"PK\1\2", 1, 0, 0, "directory is damaged"},
        {"PK\1\2", 0, 28, 255, "directory is damaged"},
        {"PK\1\2", 0, 45, 255, "outside the file"},
        {"PK\5\6", 0, 0, 0, "end record is missing"},
        {"PK\5\6", 0, 16, 255, "outside the file"},
        {"PK\5\6", 0, 10, 200, "outside the file"},
        {"PK\1\2", 0, 46, 0, "NUL"},
        {"PK\1\2", 1, 46, 'a', "two entries named 'a'"},
    };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    const zip_part   parts[2] = {{"a.npy", ARRAY(array_i1), 0, NULL, 0},
                                 {"b.npy", ARRAY(array_0d), 0, NULL, 0}};
    const mlc_named *list = NULL;
    int64_t          n = 0;
    unsigned char    good[1024];
    const size_t     size = zip_build(good, parts, 2, ZIP_END);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const size_t  at = find(good, size, table[i].at, table[i].nth) + (size_t)table[i].offset;
        unsigned char keep = good[at];
        good[at] = (unsigned char)table[i].value;
        if (keep == good[at]) good[at] ^= 0x55;
        CHECK(put_file(b.path, good, size));
        good[at] = keep;
        CHECK_EQ(mlc_npz_load(ctx, b.path, &list, &n), MLC_ERR_IO);
        CHECK(list == NULL && n == 0);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        if (!CHECK_STATUS(ctx, MLC_ERR_IO)) printf("  %s\n", table[i].why);
    }
    box_close(&b);
}

/* In the tiny build an offset, the entries and then the directory outgrow narrow numbers. */
TEST(npy, a_npz_of_few_arrays_comes_back_whatever_their_number)
{
    static const char *const names[9] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    mlc_named        in[9];
    const mlc_named *list = NULL;
    int64_t          n = -1;
    for (int count = 0; count <= 9; count++) {
        CHECK_EQ(mlc_npz_save(ctx, b.path, in, count), MLC_OK);
        CHECK_EQ(mlc_npz_load(ctx, b.path, &list, &n), MLC_OK);
        CHECK_EQ(n, count);
        for (int64_t i = 0; i < n; i++) {
            CHECK_STR(list[i].name, names[i]);
            CHECK(mlc_item(list[i].tensor) == (double)i + 1);
        }
        if (count == 9) break;
        in[count].name = names[count];
        in[count].tensor = mlc_full(ctx, MLC_I8, mlc_dims0(), count + 1);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- zip64, as other writers have it -------------------------------------------------------- */

static mlc_status load_bytes(mlc_ctx *ctx, const box *b, const unsigned char *zip, size_t n,
                             const mlc_named **list, int64_t *count)
{
    *list = NULL;
    *count = -1;
    CHECK(put_file(b->path, zip, n));
    return mlc_npz_load(ctx, b->path, list, count);
}

TEST(npy, a_zip64_by_hand_is_read_whichever_of_its_numbers_are_wide)
{
    static const unsigned char other[] = {0x55, 0x54, 5, 0, 1, 2, 3, 4, 5};   /* a time stamp */
    static const double        want[3] = {1, 2, 3};
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    unsigned char    zip[2048];
    const mlc_named *list;
    int64_t          n;
    for (int wide = 0; wide <= ZIP_ALL; wide++)
        for (int end = ZIP_END; end <= ZIP_END64_FROM; end++)
            for (size_t extra = 0; extra < 2; extra++) {
                const zip_part parts[2] = {
                    {"b.npy", ARRAY(array_0d), 0, NULL, 0},
                    {"a.npy", ARRAY(array_i1), wide, other, extra * sizeof other}};
                const size_t size = zip_build(zip, parts, 2, (zip_end)end);
                CHECK_EQ(load_bytes(ctx, &b, zip, size, &list, &n), MLC_OK);
                if (!CHECK_EQ(n, 2)) continue;
                CHECK_STR(list[0].name, "a");
                CHECK_VALUES(list[0].tensor, 3, want, 0, 0);
                CHECK_VALUES(list[1].tensor, 1, want, 0, 0);
            }
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(npy, a_damaged_zip64_is_refused_with_a_reason)
{
    static const struct { const char *at; int offset; size_t bytes; uint64_t v; const char *why; }
    table[] = {
        {"PK\6\7", 0, 4, 0, "the zip64 end record is missing"},
        {"PK\6\7", 8, 8, 4000, "the zip64 end record is missing"},
        {"PK\6\7", 8, 8, UINT64_MAX, "the zip64 end record is missing"},
        {"PK\6\7", 8, 8, 270, "a part of the zip is outside the file"},
        {"PK\6\6", 0, 4, 0, "the zip64 end record is missing"},
        {"PK\6\6", 32, 8, UINT64_MAX, "the zip's directory is outside the file"},
        {"PK\6\6", 40, 8, UINT64_MAX, "the zip's directory is outside the file"},
        {"PK\6\6", 48, 8, UINT64_MAX, "the zip's directory is outside the file"},
        {"PK\6\6", 32, 8, 3, "the zip's directory is outside the file"},
        {"PK\6\6", 32, 8, 0, "text after its last entry"},
        {"PK\1\2", 46 + 5 + 2, 2, 16, "a size of the zip is missing"},
        {"PK\1\2", 46 + 5 + 2, 2, 25, "larger than the file allows"},
        {"PK\1\2", 46 + 5 + 4, 8, UINT64_MAX, "larger than the file allows"},
        {"PK\1\2", 46 + 5 + 4, 8, INT64_MAX, "two sizes"},
        {"PK\1\2", 46 + 5 + 20, 8, INT64_MAX, "a part of the zip is outside the file"},
        {"PK\1\2", 46 + 5 + 20, 8, 275, "a part of the zip is outside the file"},
    };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    unsigned char    zip[512], bad[512];
    const zip_part   part = {"a.npy", ARRAY(array_i1), ZIP_ALL, NULL, 0};
    const size_t     size = zip_build(zip, &part, 1, ZIP_END64_COUNT);
    const mlc_named *list;
    int64_t          n;
    CHECK_EQ(size, 280);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        memcpy(bad, zip, size);
        put_le(bad + find(zip, size, table[i].at, 0) + table[i].offset, (int)table[i].bytes,
               table[i].v);
        CHECK_EQ(load_bytes(ctx, &b, bad, size, &list, &n), MLC_ERR_IO);
        CHECK(list == NULL && n == 0);
        CHECK_HAS(mlc_error(ctx), b.path);
        if (!CHECK_HAS(mlc_error(ctx), table[i].why)) printf("  row %d\n", (int)i);
        mlc_error_clear(ctx);
    }
    /* An end that points to a record before the file's begin. */
    memset(bad, 0, 22);
    memcpy(bad, "PK\5\6", 4);
    put_le(bad + 10, 2, 0xffff);
    CHECK_EQ(load_bytes(ctx, &b, bad, 22, &list, &n), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "a part of the zip is outside the file");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(load_bytes(ctx, &b, bad, 21, &list, &n), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "too short for a .npz file");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    box_close(&b);
}

/* One array deflated by hand: empty blocks, then its first n bytes in a last block of kind. */
static size_t zip_deflated(unsigned char *to, int empty, int kind, size_t n)
{
    static const unsigned char nothing[5] = {0, 0, 0, 0xff, 0xff};
    unsigned char stream[8192];
    size_t        at = 0;
    for (; empty > 0; empty--, at += sizeof nothing)
        memcpy(stream + at, nothing, sizeof nothing);
    stream[at] = (unsigned char)(1 | kind << 1);
    put_le(stream + at + 1, 2, n);
    put_le(stream + at + 3, 2, 0xffff - n);
    memcpy(stream + at + 5, array_i1, n);
    const zip_part part = {"a.npy", stream, at + 5 + n, 0, NULL, 0};
    const size_t   size = zip_build(to, &part, 1, ZIP_END);
    unsigned char *entry = to + find(to, size, "PK\1\2", 0);
    put_le(to + 8, 2, 8);
    put_le(entry + 10, 2, 8);
    put_le(entry + 16, 4, zip_crc(array_i1, sizeof array_i1 - 1));
    put_le(entry + 24, 4, sizeof array_i1 - 1);
    return size;
}

TEST(npy, deflated_entries_are_read_to_their_end_or_refused)
{
    enum { ALL_OF_IT = sizeof array_i1 - 1 };
    static const struct { int empty, kind; size_t n; int cut; const char *why; } table[] = {
        {0, 0, ALL_OF_IT, 0, NULL},
        {1500, 0, ALL_OF_IT, 0, NULL},             /* thousands of bytes that make none         */
        {0, 3, ALL_OF_IT, 0, "bad deflate data"},
        {0, 0, ALL_OF_IT - 1, 0, "deflate data ends early"},
        {0, 0, ALL_OF_IT, 1, "deflate data ends early"},
        {1500, 0, ALL_OF_IT, ALL_OF_IT + 5, "deflate data ends early"},
        {0, 0, 4, 0, "deflate data ends early"},
    };
    static const double want[3] = {1, 2, 3};
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    unsigned char    zip[10000];
    const mlc_named *list;
    int64_t          n;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const size_t size = zip_deflated(zip, table[i].empty, table[i].kind, table[i].n);
        unsigned char *packed = zip + find(zip, size, "PK\1\2", 0) + 20;
        put_le(packed, 4, packed[0] + 256u * packed[1] - (unsigned)table[i].cut);
        const mlc_status st = load_bytes(ctx, &b, zip, size, &list, &n);
        if (st == MLC_ERR_UNSUPPORTED) {
            CHECK_HAS(mlc_error(ctx), "compile with MLC_USE_ZLIB");
        } else if (table[i].why) {
            CHECK_EQ(st, MLC_ERR_IO);
            CHECK_HAS(mlc_error(ctx), table[i].why);
        } else if (CHECK_EQ(n, 1)) {
            CHECK_VALUES(list[0].tensor, 3, want, 0, 0);
        }
        mlc_error_clear(ctx);
    }
    box_close(&b);
}

TEST(npy, entries_of_a_zip_are_checked_each_for_itself)
{
    static const char     more[] = HEADER "{'descr': '>i1', " REST("3")
                                   " and what is behind it is only part of the checksum";
    static const char     large[] = HEADER "{'descr': '>i1', " REST("9");
    static const char     objects[] = HEADER "{'descr': '|O1', " REST("3");
    static const zip_part good[] = {{"long.npy", ARRAY(more), 0, NULL, 0},
                                    {"no suffix", ARRAY(array_i1), 0, NULL, 0},
                                    {"npy", ARRAY(array_i1), 0, NULL, 0},
                                    {"", ARRAY(array_i1), 0, "\1\0\0\0", 4},
                                    {"x/y.npy", ARRAY(array_i1), 0, "broken", 6}};
    static const struct { zip_part part; const char *why; mlc_status st; } bad[] = {
        {{"a.npy", "", 0, 0, NULL, 0}, "entry 'a': too short for a .npy file", MLC_ERR_IO},
        {{"a.npy", "\x93NUMPY\2\0\0\0", 10, 0, NULL, 0},
         "entry 'a': the data is shorter than its header says", MLC_ERR_IO},
        {{"a.npy", ARRAY(large), 0, NULL, 0}, "entry 'a': the data is shorter than its header says",
         MLC_ERR_IO},
        {{"a.npy", ARRAY(objects), 0, NULL, 0}, "entry 'a': pickled objects are refused",
         MLC_ERR_IO},
    };
    const double     want[3] = {1, 2, 3};
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("x.npz");
    unsigned char    zip[4096];
    const mlc_named *list;
    int64_t          n;
    CHECK_EQ(load_bytes(ctx, &b, zip, zip_build(zip, good, 5, ZIP_END), &list, &n), MLC_OK);
    for (int i = 0; i < 5 && CHECK_EQ(n, 5); i++) CHECK_VALUES(list[i].tensor, 3, want, 0, 0);
    CHECK_OK(ctx);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const size_t size = zip_build(zip, &bad[i].part, 1, ZIP_END);
        CHECK_EQ(load_bytes(ctx, &b, zip, size, &list, &n), bad[i].st);
        CHECK_HAS(mlc_error(ctx), bad[i].why);
        CHECK_STATUS(ctx, bad[i].st);
    }
    box_close(&b);
}

/* 65535 is where the end's numbers become too large: of this library's own writer. */
TEST(npy, as_many_arrays_as_a_npz_can_have_come_back)
{
    enum { MANY = 65535 };
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("many.npz");
    mlc_named       *in = (mlc_named *)malloc(MANY * sizeof *in);
    char          (*names)[12] = (char (*)[12])malloc(MANY * sizeof *names);
    mlc_tensor      *one = mlc_full(ctx, MLC_U8, mlc_dims0(), 7);
    const mlc_named *list = NULL;
    int64_t          n = 0;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "%05d", i);
        in[i].name = names[i];
        in[i].tensor = one;
    }
    CHECK_EQ(mlc_npz_save(ctx, b.path, in, MANY), MLC_OK);
    if (test_on_host()) {              /* a device's blocks are no smaller than a page         */
        CHECK_EQ(mlc_npz_load(ctx, b.path, &list, &n), MLC_OK);
        if (CHECK_EQ(n, MANY)) {
            CHECK_STR(list[MANY - 1].name, "65534");
            CHECK(mlc_item(list[MANY - 1].tensor) == 7);
        }
    }
    CHECK_OK(ctx);
    free(in);
    free(names);
    box_close(&b);
}

/* ---- no memory ------------------------------------------------------------------------------ */

static mlc_status load_named(mlc_ctx *ctx, const void *path)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    return mlc_npz_load(ctx, (const char *)path, &list, &n);
}

static mlc_status load_array(mlc_ctx *ctx, const void *path)
{
    return mlc_npy_load(ctx, (const char *)path) ? MLC_OK : mlc_ctx_status(ctx);
}

/* Names and arrays so many that each part of them is an allocation of its own somewhere. */
TEST(npy, reading_survives_that_any_allocation_fails)
{
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open_fast("x.npz");
    mlc_named      in[60];
    char           names[60][300];
    unsigned char  file[128 + 24] = "\x93NUMPY\1\0\x76\0{'descr': '<i2', 'fortran_order': True, "
                                    "'shape': (4, 3), }";
    for (int count = 1; count < 60; count += 1) {
        for (int i = 0; i < count; i++) {
            memset(names[i], 'a' + i % 26, sizeof names[i]);
            names[i][MLC_NAME_BYTES < 300 ? MLC_NAME_BYTES - 1 : 299] = 0;
            names[i][0] = (char)('A' + i / 26);
            in[i].name = names[i];
            in[i].tensor = mlc_zeros(ctx, MLC_F32, mlc_dims1(i));
        }
        CHECK_EQ(mlc_npz_save(ctx, b.path, in, count), MLC_OK);
        if (count % 8 == 1) tally_fail_each(load_named, b.path);
    }
#ifdef MLC_USE_ZLIB
    tally_fail_each(load_named, "tests/golden/io_packed.npz");
#endif
    for (size_t i = strlen((char *)file + 10) + 10; i < 127; i++) file[i] = ' ';
    file[127] = '\n';
    CHECK(put_file(b.path, file, sizeof file));
    tally_fail_each(load_array, b.path);
    CHECK_OK(ctx);
    box_close(&b);
}

/* The end says that there are more entries than the directory has bytes for. */
TEST(npy, a_directory_with_fewer_records_than_the_end_says_is_damaged)
{
    static const char array[] = "\x93NUMPY\1\0\x36\0{'descr':'|i1','fortran_order':False,"
                                "'shape':(2,),}  \n\1\2";
    const zip_part   part = {"a_name_that_is_longer_than_a_record_of_a_zip_is_without.npy", array,
                             sizeof array - 1, 0, NULL, 0};
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open_fast("short.npz");
    unsigned char    zip[1024];
    const mlc_named *list = NULL;
    int64_t          count = 0;
    const size_t     n = zip_build(zip, &part, 1, ZIP_END);
    for (int said = 1; said <= 2; said++) {
        put_le(zip + n - 12, 2, (uint64_t)said);
        CHECK(put_file(b.path, zip, n));
        CHECK_EQ(mlc_npz_load(ctx, b.path, &list, &count), said == 1 ? MLC_OK : MLC_ERR_IO);
        if (said == 2) CHECK_ERROR(ctx, MLC_ERR_IO, "the zip's directory is damaged");
    }
    box_close(&b);
}
