/* test_idx.c -- tests of sections IMPL.IO.IDX and IMPL.IO.CIFAR: data sets in their own formats */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

static mlc_tensor *idx(mlc_ctx *ctx, const void *bytes, size_t n)
{
    box         b = box_open("x-idx3-ubyte");
    CHECK(put_file(b.path, bytes, n));
    mlc_tensor *t = mlc_idx_load(ctx, b.path);
    box_close(&b);
    return t;
}

TEST(idx, files_as_mnist_has_them)
{
    static const unsigned char u8[] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3,
                                       0, 1, 2, 127, 128, 255};
    static const unsigned char i16[] = {0, 0, 0x0B, 1, 0, 0, 0, 2, 0x7f, 0xff, 0x80, 0};
    static const unsigned char f32[] = {0, 0, 0x0D, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0};
    static const unsigned char f64[] = {0, 0, 0x0E, 1, 0, 0, 0, 1, 0xbf, 0xf8, 0, 0, 0, 0, 0, 0};
    static const double images[6] = {0, 1, 2, 127, 128, 255}, shorts[2] = {32767, -32768};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *t = idx(ctx, u8, sizeof u8);
    CHECK_VALUES(t, 6, images, 0, 0);
    CHECK(t && t->dtype == MLC_U8 && t->ndim == 3 && t->shape[1] == 2 && t->shape[2] == 3);
    t = idx(ctx, i16, sizeof i16);
    CHECK_VALUES(t, 2, shorts, 0, 0);
    CHECK(t && t->dtype == MLC_I32);
    CHECK_NEAR(mlc_item(idx(ctx, f32, sizeof f32)), 1.5, 0);
    CHECK_NEAR(mlc_item(idx(ctx, f64, sizeof f64)), -1.5, 0);
    CHECK_OK(ctx);
}

TEST(idx, what_is_written_comes_back)
{
    static const mlc_dtype dtypes[] = {MLC_U8, MLC_I8, MLC_I32, MLC_F32, MLC_F64};
    static const double    values[6] = {0, 1, 2, 3, 100, 127};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open("x");
    for (int d = 0; d < 5; d++) {
        mlc_tensor *t = test_tensor(ctx, dtypes[d], mlc_dims2(2, 3), values), *back;
        CHECK_EQ(mlc_idx_save(t, b.path), MLC_OK);
        back = mlc_idx_load(ctx, b.path);
        CHECK_VALUES(back, 6, values, 0, 0);
        CHECK(back && back->dtype == dtypes[d] && back->ndim == 2);
    }
    CHECK_OK(ctx);
    CHECK_EQ(mlc_idx_save(mlc_zeros(ctx, MLC_I64, mlc_dims1(2)), b.path), MLC_ERR_DTYPE);
    CHECK_STR(mlc_error(ctx), "idx_save: i64 [2]; it writes u8, i8, i32, f32, f64 of 1 to 8 axes; "
                              "cast it with mlc_cast");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK_EQ(mlc_idx_save(NULL, b.path), MLC_ERR_ARG);
    CHECK_EQ(mlc_idx_save(mlc_zeros(ctx, MLC_U8, mlc_dims1(2)), NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    box_close(&b);
}

typedef struct wrong { const char *bytes; size_t n; const char *why; } wrong;

TEST(idx, wrong_files_are_refused_with_a_reason)
{
    static const wrong table[] = {
        {"", 0, "0 bytes are no IDX file"},
        {"\0\0\x08", 3, "3 bytes are no IDX file"},
        {"\x1f\x8b\x08\0", 4, "looks like gzip (1F 8B); gunzip it first"},
        {"\0\1\x08\1\0\0\0\0", 8, "begins with 00 01 08 01, which is no IDX file"},
        {"\0\0\x0A\1\0\0\0\0", 8, "begins with 00 00 0a 01"},
        {"\0\0\x08\0", 4, "0 axes; a tensor has 1 to 8"},
        {"\0\0\x08\x09", 4, "9 axes; a tensor has 1 to 8"},
        {"\0\0\x08\2\0\0\0\1", 8, "ended at byte 8, 4 bytes early"},
        {"\0\0\x08\1\0\0\0\2x", 9, "shorter than its header"},
        {"\0\0\x08\1\0\0\0\1xy", 10, "2 bytes of data, the header names 1"},
        {"\0\0\x0E\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16,
         "more elements than memory can hold"},
    };
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(idx(ctx, table[i].bytes, table[i].n) == NULL);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    CHECK(mlc_idx_load(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_idx_load(ctx, "/nonexistent") == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_idx_load(NULL, "x") == NULL);
    mlc_tensor *x = mlc_zeros(ctx, MLC_U8, mlc_dims1(2)), *none = NULL;
    if (sizeof(size_t) > 4) {          /* a size that the format has no room for               */
        CHECK_EQ(mlc_idx_save(mlc_zeros(ctx, MLC_U8, mlc_dims2(0, 4294967296)), "x"),
                 MLC_ERR_DTYPE);
        CHECK_HAS(mlc_error(ctx), "idx_save: u8 [0,4294967296]; it writes u8, i8, i32, f32, f64 of "
                                  "1 to 8 axes");
        CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    }
    CHECK_EQ(mlc_idx_save(mlc_select(mlc_zeros(ctx, MLC_F32, mlc_dims1(1)), 0, 0), "x"),
             MLC_ERR_DTYPE);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK_EQ(mlc_idx_save(x, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_idx_save(x, ""), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_idx_save(none, "x"), MLC_ERR_ARG);
}

static mlc_tensor *cifar(mlc_ctx *ctx, const void *bytes, size_t n, int32_t classes,
                         mlc_tensor **labels)
{
    box         b = box_open("batch.bin");
    CHECK(put_file(b.path, bytes, n));
    mlc_tensor *t = mlc_cifar_load(ctx, b.path, classes, labels);
    box_close(&b);
    return t;
}

TEST(idx, cifar_images_and_labels)
{
    static unsigned char file[2 * 3074];
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *y, *x;
    const double ten[2] = {3, 9}, hundred[2] = {99, 0};
    for (size_t i = 0; i < sizeof file; i++) file[i] = (unsigned char)(i * 7);
    file[0] = 3;
    file[3073] = 9;
    x = cifar(ctx, file, 2 * 3073, 10, &y);
    CHECK_VALUES(y, 2, ten, 0, 0);
    CHECK(x && x->ndim == 4 && x->shape[0] == 2 && x->shape[1] == 3 && x->shape[3] == 32);
    mlc_tensor *pixel = mlc_select(mlc_select(mlc_select(mlc_select(x, 0, 1), 0, 2), 0, 5), 0, 7);
    CHECK_NEAR(mlc_item(pixel), file[3073 + 1 + 2 * 1024 + 5 * 32 + 7], 0);
    CHECK(cifar(ctx, file, 2 * 3073, 10, NULL) != NULL);
    file[0] = 19;
    file[1] = 99;
    file[3074] = 0;
    file[3075] = 0;
    x = cifar(ctx, file, 2 * 3074, 100, &y);
    CHECK_VALUES(y, 2, hundred, 0, 0);
    CHECK_NEAR(mlc_item(mlc_select(mlc_flatten(x, 0), 0, 0)), file[2], 0);
    CHECK_OK(ctx);
}

TEST(idx, wrong_cifar_files_are_refused_with_a_reason)
{
    static unsigned char file[3074];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *y;
    CHECK(cifar(ctx, file, 3072, 10, &y) == NULL);
    CHECK_HAS(mlc_error(ctx), "3072 bytes are no records of 3073 bytes (CIFAR-10)");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(y == NULL);
    file[0] = 10;
    CHECK(cifar(ctx, file, 3073, 10, &y) == NULL);
    CHECK_HAS(mlc_error(ctx), "record 0 has label 10, CIFAR-10 has 10");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    file[0] = 20;
    CHECK(cifar(ctx, file, 3074, 100, &y) == NULL);
    CHECK_HAS(mlc_error(ctx), "record 0 has label 20, CIFAR-100 has 20");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(cifar(ctx, "\x1f\x8b", 2, 10, &y) == NULL);
    CHECK_HAS(mlc_error(ctx), "gzip");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(cifar(ctx, "", 0, 10, &y) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_cifar_load(ctx, "x", 7, &y) == NULL);
    CHECK_STR(mlc_error(ctx), "cifar_load: no path, or 7 classes; it reads 10 or 100");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_cifar_load(ctx, NULL, 10, &y) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_cifar_load(NULL, "x", 10, NULL) == NULL);
    CHECK(mlc_cifar_load(ctx, "tests/golden/none", 10, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
}
