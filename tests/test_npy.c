/* test_npy.c -- tests of section IMPL.IO.NPY: .npy and .npz, both ways, and what is refused */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

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

/* ---- damaged zips -------------------------------------------------------------------------- */

/* Where a signature is for the nth time. */
static size_t find(const unsigned char *f, size_t n, const char *signature, int nth)
{
    for (size_t i = 0; i + 4 <= n; i++)
        if (memcmp(f + i, signature, 4) == 0 && nth-- == 0) return i;
    CHECK(!"the signature is there");
    return 0;
}

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
    mlc_named        in[2] = {{"a", sample(ctx, MLC_F32)}, {"b", sample(ctx, MLC_I8)}};
    const mlc_named *list = NULL;
    int64_t          n = 0;
    size_t           size = 0;
    CHECK_EQ(mlc_npz_save(ctx, b.path, in, 2), MLC_OK);
    unsigned char *good = get_file(b.path, &size);
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
    free(good);
    box_close(&b);
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
    CHECK_EQ(mlc_npy_save(sample(ctx, MLC_F32), ""), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "npy_save: no path; give a file's name");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
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
