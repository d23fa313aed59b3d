/* test_images_folder.c -- tests of section IMPL.DATA.IMAGES: folders of PNG and JPEG files */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/images.h"
#include "golden/jpeg.h"

/* Which golden JPEG file has a name. */
static int golden(const char *name)
{
    for (int i = 0; i < JPEG_GOLDEN; i++)
        if (strcmp(jpeg_golden[i].name, name) == 0) return i;
    CHECK(false);
    return 0;
}

/* A golden JPEG file, `less` bytes at its end, as NAME in a folder. */
static void put_jpeg(const char *dir, const char *name, const char *what, size_t less)
{
    char      path[600];
    const int i = golden(what);
    snprintf(path, sizeof path, "%.300s/%.200s", dir, name);
    CHECK(put_file(path, jpeg_golden[i].bytes, jpeg_golden[i].n - less));
}

static uint32_t crc_of(mlc_tensor *t)
{
    static uint8_t pixels[1 << 16];
    const size_t   n = (size_t)mlc_numel(t);
    if (!CHECK(n <= sizeof pixels)) return 0;
    CHECK_EQ(mlc_read(t, pixels, n), MLC_OK);
    return zip_crc(pixels, n);
}

static size_t put_bytes(unsigned char *to, size_t at, const void *bytes, size_t n)
{
    memcpy(to + at, bytes, n);
    return at + n;
}

/* A PNG file of grey 70 and opacity 9 in a stored block. Returns its bytes. */
static size_t grey_and_opacity(unsigned char *to, int w, int h)
{
    static unsigned char raw[8192];
    unsigned char head[13] = {0};
    const size_t n = 7, size = (size_t)(h * (2 * w + 1));
    memcpy(raw, "\x78\x01\x01", 3);
    put_le(raw + 3, 2, size);
    put_le(raw + 5, 2, ~size);
    for (size_t i = 0; i < size; i++) {
        const size_t column = i % (size_t)(2 * w + 1);
        raw[n + i] = column == 0 ? 0 : column % 2 ? 70 : 9;
    }
    put_be32(raw + n + size, adler(raw + n, size));
    put_be32(head, (uint32_t)w);
    put_be32(head + 4, (uint32_t)h);
    head[8] = 8;
    head[9] = 4;
    size_t at = put_bytes(to, 0, "\x89PNG\r\n\x1A\n", 8);
    at = put_chunk(to, at, "IHDR", head, 13);
    at = put_chunk(to, at, "IDAT", raw, n + size + 4);
    return put_chunk(to, at, "IEND", NULL, 0);
}

/* The first picture has two channels: others become grey with opacity, of JPEG files 255. */
TEST(images_folder, two_channels)
{
    static unsigned char png[8192], two[13 * 19 * 2], grey[13 * 19];
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("a.png");
    mlc_tensor *field[MLC_MAX_FIELDS];
    CHECK(put_file(b.path, png, grey_and_opacity(png, 19, 13)));
    put_jpeg(b.dir, "b.jpg", "444", 0);
    mlc_dataset *d = mlc_dataset_images(ctx, b.dir, 0);
    CHECK_OK(ctx);
    CHECK(d && d->n_fields == 1 && mlc_dataset_count(d) == 2);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_EQ(mlc_read(field[0], two, sizeof two), MLC_OK);
    CHECK(two[0] == 70 && two[246] == 70 && two[247] == 9 && two[493] == 9);
    CHECK_EQ(mlc_dataset_get(ctx, d, 1, field), MLC_OK);
    CHECK_EQ(mlc_read(field[0], two, sizeof two), MLC_OK);
    const int of = golden("444");
    CHECK_EQ(mlc_read(mlc_image_load_memory(ctx, jpeg_golden[of].bytes, jpeg_golden[of].n, 1),
                      grey, sizeof grey), MLC_OK);
    int wrong = memcmp(two, grey, sizeof grey) != 0;
    for (int i = 13 * 19; i < 2 * 13 * 19; i++) wrong += two[i] != 255;
    CHECK_EQ(wrong, 0);
    mlc_dataset_free(d);
    unlink(b.path);                                /* now the first one is the JPEG file of grey */
    put_jpeg(b.dir, "b.jpg", "grey", 0);
    d = mlc_dataset_images(ctx, b.dir, 0);
    CHECK(d && mlc_dataset_get(ctx, d, 0, field) == MLC_OK);
    CHECK_EQ(mlc_dim(field[0], 0), 1);
    mlc_dataset_free(d);
    box_close(&b);
}

/* Errors name the file by the end of its path; links that lead in a circle, folders and other files
 * are passed over; a folder that has no pictures is a class without samples. */
TEST(images_folder, long_paths_links_and_empty_classes)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("x");
    mlc_tensor *field[MLC_MAX_FIELDS];
    char        empty[600], full[600], path[800], name[120];
    memset(name, 'n', sizeof name);
    memcpy(name + 100, "_last", 6);
    snprintf(empty, sizeof empty, "%.300s/a", b.dir);
    snprintf(full, sizeof full, "%.300s/b%s", b.dir, name);
    CHECK(folder_make(empty) == 0 && folder_make(full) == 0);
    put_jpeg(full, "one.jpg", "420", 0);
    put_jpeg(full, "two.jpg", "420", 100);
    put_jpeg(full, "three.txt", "420", 0);
    snprintf(path, sizeof path, "%.500s/loop.jpg", full);
    CHECK(symlink("loop.jpg", path) == 0);
    snprintf(path, sizeof path, "%.500s/loop", b.dir);
    CHECK(symlink("loop", path) == 0);
    mlc_dataset *d = mlc_dataset_images(ctx, b.dir, 0);
    CHECK_OK(ctx);
    if (CHECK(d && mlc_dataset_count(d) == 2)) {
        int64_t label = -1;
        CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
        CHECK_EQ(mlc_read(field[1], &label, sizeof label), MLC_OK);
        CHECK_EQ(label, 1);
        CHECK_EQ(mlc_dataset_get(ctx, d, 1, field), MLC_ERR_IO);
        CHECK_HAS(mlc_error(ctx), "_last/two.jpg', byte ");
        CHECK_ERROR(ctx, MLC_ERR_IO, "its pixels end before their number");
    }
    mlc_dataset_free(d);
    unlink(path);
    folder_remove(full);
    folder_remove(empty);
    box_close(&b);
}

/* A progressive file whose units are 24 by 24 needs more rows of blocks than one of 8, 16 or 32:
 * 49 pixels are 72 samples. Its only scan has a bit for each of 243 blocks, the code of 0. */
TEST(images_folder, units_of_three_by_three_blocks)
{
    unsigned char file[512];
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("a.jpg");
    mlc_tensor   *field[MLC_MAX_FIELDS];
    size_t        n = put_bytes(file, 0, "\xFF\xD8\xFF\xDB\0\x43\0", 7);
    memset(file + n, 1, 64);
    n += 64;
    n = put_bytes(file, n, "\xFF\xC2\0\x11\x08\0\x31\0\x31\3\1\x33\0\2\x33\0\3\x33\0", 19);
    n = put_bytes(file, n, "\xFF\xC4\0\x14\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22);
    n = put_bytes(file, n, "\xFF\xDA\0\x0C\3\1\0\2\0\3\0\0\0\0", 14);
    memset(file + n, 0, 31);
    n = put_bytes(file, n + 31, "\xFF\xD9", 2);
    CHECK(put_file(b.path, file, n));
    mlc_dataset *d = mlc_dataset_images(ctx, b.dir, 0);
    CHECK_OK(ctx);
    if (CHECK(d != NULL)) {
        static uint8_t pixels[3 * 49 * 49];
        int wrong = 0;
        CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
        CHECK_EQ(mlc_read(field[0], pixels, sizeof pixels), MLC_OK);
        for (size_t i = 0; i < sizeof pixels; i++) wrong += pixels[i] != 128;
        CHECK_EQ(wrong, 0);
        mlc_dataset_free(d);
    }
    box_close(&b);
}

TEST(images_folder, images_of_both_kinds_in_the_order_of_their_names)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("a.jpg");
    mlc_tensor *field[MLC_MAX_FIELDS];
    CHECK(mlc_dataset_images(ctx, b.dir, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "has no images, .png, .jpg or .jpeg");
    put_jpeg(b.dir, "b.JPEG", "420_progressive", 0);
    put_jpeg(b.dir, "a.jpg", "420", 0);
    put_jpeg(b.dir, "c.jpg", "420", 100);
    put_jpeg(b.dir, "d.jpg", "444", 0);
    put_jpeg(b.dir, "e.jpgs", "444", 0);
    put_jpeg(b.dir, "f.pn", "444", 0);
    mlc_dataset *d = mlc_dataset_images(ctx, b.dir, 0);
    CHECK_OK(ctx);
    CHECK(d && d->n_fields == 1 && mlc_dataset_count(d) == 4);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_OK);
    CHECK_EQ(crc_of(field[0]), jpeg_golden[golden("420")].crc);
    CHECK_EQ(mlc_dataset_get(ctx, d, 1, field), MLC_OK);
    CHECK_EQ(crc_of(field[0]), jpeg_golden[golden("420_progressive")].crc);
    CHECK_EQ(mlc_dataset_get(ctx, d, 2, field), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "c.jpg', byte ");
    CHECK_ERROR(ctx, MLC_ERR_IO, "its pixels end before their number");
    CHECK_EQ(mlc_dataset_get(ctx, d, 3, field), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "d.jpg' is of 13 by 19 pixels, the first image of 21 by 35");
    unlink(b.path);
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "cannot open");
    static const char zeros[20000];
    CHECK(put_file(b.path, zeros, sizeof zeros));
    CHECK_EQ(mlc_dataset_get(ctx, d, 0, field), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "has grown since the folder was listed");
    CHECK(mlc_dataset_images(ctx, b.dir, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "dataset_images: '");
    CHECK(mlc_dataset_images(ctx, b.dir, 2) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a folder, 2 channels");
    CHECK(mlc_dataset_images(ctx, NULL, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "dataset_images: NULL");
    CHECK(mlc_dataset_images(NULL, b.dir, 0) == NULL);
    box_close(&b);
}

/* Folders are classes; files of another kind, or with other channels, are converted; workers give
 * what the caller's thread gives. */
TEST(images_folder, classes_by_folder_and_workers)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("x");
    char     cat[400], dog[400], path[600];
    uint32_t one[2] = {0, 0};
    snprintf(cat, sizeof cat, "%.300s/cat", b.dir);
    snprintf(dog, sizeof dog, "%.300s/dog", b.dir);
    CHECK(folder_make(cat) == 0 && folder_make(dog) == 0);
    for (int i = 0; i < 9; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.png", i);
        snprintf(path, sizeof path, "%.400s/%s", i % 2 ? dog : cat, name);
        CHECK(put_file(path, images_golden[0].bytes, images_golden[0].n));
    }
    for (int workers = 0; workers < 3; workers += 2) {
        mlc_dataset *d = mlc_dataset_images(ctx, b.dir, 1);
        CHECK_OK(ctx);
        if (!CHECK(d && d->n_fields == 2 && mlc_dataset_count(d) == 9)) break;
        mlc_loader_from_desc of = mlc_loader_from_desc_make(4);
        of.workers = workers;
        mlc_loader *loader = mlc_loader_from(ctx, d, &of);
        mlc_batch   batch;
        double      sum = 0;
        while (mlc_loader_next(loader, &batch)) {
            one[workers / 2] = one[workers / 2] * 31 + crc_of(batch.x);
            CHECK(mlc_dim(batch.x, 1) == 1 && mlc_dim(batch.x, 3) == images_golden[0].w);
            int64_t labels[4];
            CHECK_EQ(mlc_read(batch.y, labels, (size_t)mlc_numel(batch.y) * 8), MLC_OK);
            for (int64_t i = 0; i < mlc_numel(batch.y); i++) sum += (double)labels[i];
        }
        CHECK_OK(ctx);
        CHECK_NEAR(sum, 4, 0);
        mlc_loader_free(loader);
        mlc_dataset_free(d);
    }
    CHECK(one[0] != 0 && one[0] == one[1]);
    folder_remove(dog);
    folder_remove(cat);
    box_close(&b);
}
