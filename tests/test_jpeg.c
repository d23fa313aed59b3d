/* test_jpeg.c -- tests of section IMPL.IMAGES.JPEG: JPEG files
 *
 * Files of pillow's, with the pixels that it reads from them (golden/jpeg.h); those that are wrong
 * are made of them.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/jpeg.h"
#include "guarded.h"

static unsigned g_seed;

static unsigned draw(unsigned n)
{
    g_seed = g_seed * 1103515245u + 12345u;
    return (g_seed >> 8) % n;
}

/* Pixels of a tensor, to be freed. */
static uint8_t *pixels_of(mlc_tensor *t)
{
    uint8_t *pixels = t ? (uint8_t *)malloc((size_t)mlc_numel(t)) : NULL;
    if (CHECK(pixels != NULL)) CHECK_EQ(mlc_read(t, pixels, (size_t)mlc_numel(t)), MLC_OK);
    return pixels;
}

/* A golden file by its name, to be changed and freed. */
static unsigned char *file_of(const char *name, size_t *n)
{
    for (int i = 0; i < JPEG_GOLDEN; i++)
        if (strcmp(jpeg_golden[i].name, name) == 0) {
            unsigned char *copy = (unsigned char *)malloc(jpeg_golden[i].n + 64);
            *n = jpeg_golden[i].n;
            if (CHECK(copy != NULL)) memcpy(copy, jpeg_golden[i].bytes, *n);
            return copy;
        }
    CHECK(false);
    *n = 0;
    return NULL;
}

/* Where the segment of a marker begins, at its 255. */
static size_t marker_at(const unsigned char *b, size_t n, int marker)
{
    for (size_t at = 2; at + 4 <= n; at += 2 + (size_t)(b[at + 2] << 8 | b[at + 3]))
        if (b[at + 1] == marker) return at;
    CHECK(false);
    return 2;
}

/* The file is refused with a text that has `says`. */
static void refused(mlc_ctx *ctx, const unsigned char *b, size_t n, const char *says)
{
    CHECK(mlc_image_load_memory(ctx, b, n, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "'memory', byte ");
    CHECK_ERROR(ctx, MLC_ERR_IO, says);
}

/* A golden file is refused of which a byte, `more` beyond a marker, has changed. */
static void changed(mlc_ctx *ctx, const char *name, int marker, size_t more, int to,
                    const char *says)
{
    size_t         n;
    unsigned char *b = file_of(name, &n);
    if (!b) return;
    b[marker_at(b, n, marker) + more] = (unsigned char)to;
    refused(ctx, b, n, says);
    free(b);
}

/* Every sampling, restarts, progressive files: libjpeg's pixels to the bit. */
TEST(jpeg, pixels_are_those_of_libjpeg)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < JPEG_GOLDEN; i++) {
        mlc_tensor *t = mlc_image_load_memory(ctx, jpeg_golden[i].bytes, jpeg_golden[i].n, 0);
        CHECK_OK(ctx);
        uint8_t *pixels = pixels_of(t);
        if (!pixels) continue;
        const uint32_t crc = zip_crc(pixels, (size_t)mlc_numel(t));
        free(pixels);
        CHECK(mlc_dim(t, 0) == jpeg_golden[i].c && mlc_dim(t, 1) == jpeg_golden[i].h &&
              mlc_dim(t, 2) == jpeg_golden[i].w);
        if (!CHECK_EQ(crc, jpeg_golden[i].crc)) fprintf(stderr, "%s\n", jpeg_golden[i].name);
    }
}

/* Grey of colours is their brightness; of a file of red, green and blue it is made of these. */
TEST(jpeg, channels_that_are_asked_for)
{
    mlc_ctx *ctx = test_ctx();
    int      wrong = 0;
    for (int i = 0; i < JPEG_GOLDEN; i++) {
        uint8_t      *p[5] = {NULL, NULL, NULL, NULL, NULL};
        const int64_t plane = jpeg_golden[i].h * jpeg_golden[i].w;
        for (int32_t c = 1; c < 5; c++)
            if (c != 2) {
                mlc_tensor *t = mlc_image_load_memory(ctx, jpeg_golden[i].bytes, jpeg_golden[i].n,
                                                      c);
                CHECK(mlc_dim(t, 0) == c && mlc_numel(t) == c * plane);
                p[c] = pixels_of(t);
            }
        for (int64_t k = 0; k < plane && p[1] && p[3] && p[4]; k++) {
            const double r = p[3][k], g = p[3][plane + k], b = p[3][2 * plane + k];
            const double grey = 0.299 * r + 0.587 * g + 0.114 * b - p[1][k];
            const bool   clipped = r < 1 || g < 1 || b < 1 || r > 254 || g > 254 || b > 254;
            wrong += !clipped && (grey > 1.5 || grey < -1.5);
            wrong += p[4][3 * plane + k] != 255;
        }
        if (p[3] && p[4]) wrong += memcmp(p[3], p[4], (size_t)(3 * plane)) != 0;
        for (int c = 0; c < 5; c++) free(p[c]);
    }
    CHECK_EQ(wrong, 0);
}

TEST(jpeg, files_on_disk)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("a.jpeg");
    size_t   n;
    unsigned char *file = file_of("420", &n);
    if (!file) return;
    CHECK(put_file(b.path, file, n));
    CHECK(mlc_image_load(ctx, b.path, 0) != NULL);
    CHECK_OK(ctx);
    CHECK(put_file(b.path, file, n - 40));
    CHECK(mlc_image_load(ctx, b.path, 0) == NULL);
    CHECK_HAS(mlc_error(ctx), "a.jpeg', byte ");
    CHECK_ERROR(ctx, MLC_ERR_IO, "its pixels end before their number");
    free(file);
    box_close(&b);
}

/* Whatever is missing at the end but the end's own marker. */
TEST(jpeg, files_that_are_cut_off_are_refused)
{
    static const char *const names[4] = {"420", "grey", "444_progressive", "noted"};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 4; k++) {
        size_t         n;
        unsigned char *b = file_of(names[k], &n);
        const size_t   most = k == 2 ? n - 2 : n - 4;
        for (size_t i = 0; b && i <= most; i++) {
            unsigned char *exact = (unsigned char *)malloc(i + 1);
            if (!CHECK(exact != NULL)) break;
            memcpy(exact, b, i);
            CHECK(mlc_image_load_memory(ctx, exact, i, 0) == NULL);
            CHECK_ERROR(ctx, MLC_ERR_IO, "'memory', byte ");
            free(exact);
        }
        free(b);
    }
}

/* Any bit wrong: an error or another picture, never a read beyond the file. */
TEST(jpeg, damaged_files_do_no_harm)
{
    static const char *const names[5] = {"420", "grey", "420_progressive", "optimal", "440"};
    mlc_ctx *ctx = test_ctx();
    int      loaded = 0, tried = 0;
    for (int k = 0; k < 5; k++) {
        size_t         n;
        unsigned char *b = file_of(names[k], &n);
        for (size_t i = 0; b && i < 8 * n; i++, tried++) {
            b[i / 8] ^= (unsigned char)(1 << i % 8);
            mlc_scope_begin(ctx);
            loaded += mlc_image_load_memory(ctx, b, n, 0) != NULL;
            CHECK(mlc_scope_end(ctx) == MLC_OK || mlc_error(ctx)[0]);
            b[i / 8] ^= (unsigned char)(1 << i % 8);
        }
        free(b);
    }
    CHECK(loaded > 0 && loaded < tried);
}

/* Files whose last byte is the last of a page that may be read: whole, or cut off, with a wrong
 * byte. */
TEST(jpeg, nothing_beyond_the_end_is_read)
{
    mlc_ctx *ctx = test_ctx();
    int      wrong = 0;
    g_seed = 11;
    for (int i = 0; i < JPEG_GOLDEN; i++) {
        const size_t n = jpeg_golden[i].n;
        for (size_t cut = n; cut > 0; cut -= cut > 40 && cut < n - 40 ? 1 + draw(4) : 1) {
            unsigned char *b = (unsigned char *)guarded(0, cut);
            memcpy(b, jpeg_golden[i].bytes, cut);
            if (cut < n) b[draw((unsigned)cut)] = (unsigned char)(draw(2) ? 255 : draw(256));
            mlc_scope_begin(ctx);
            mlc_tensor *t = mlc_image_load_memory(ctx, b, cut, 0);
            uint8_t    *pixels = cut == n ? pixels_of(t) : NULL;
            if (cut == n)
                wrong += !pixels || zip_crc(pixels, (size_t)mlc_numel(t)) != jpeg_golden[i].crc;
            free(pixels);
            CHECK(mlc_scope_end(ctx) == MLC_OK || mlc_error(ctx)[0]);
            mlc_error_clear(ctx);
        }
    }
    CHECK_EQ(wrong, 0);
}

/* A file of one scan for all components: SOF, one code whose only word is 0, n bytes of pixels. */
static size_t made_of(unsigned char *b, int marker, int w, int h, int sampling, int range, int n)
{
    static const unsigned char code[20] = {0, 0x14, 0, 1};
    size_t at = 0;
    memcpy(b, "\xFF\xD8\xFF\xDB\0\x43\0", 7);
    memset(b + 7, 1, 64);
    at = 71;
    const int frame[19] = {255, marker, 0, 17, 8, h >> 8, h & 255, w >> 8, w & 255, 3,
                           1, sampling, 0, 2, sampling, 0, 3, sampling, 0};
    for (int i = 0; i < 19; i++) b[at++] = (unsigned char)frame[i];
    for (int kind = 0; kind < 2; kind++) {
        b[at++] = 255;
        b[at++] = 0xC4;
        memcpy(b + at, code, 20);
        b[at + 2] = (unsigned char)(kind << 4);
        at += 20;
    }
    const int scan[14] = {255, 0xDA, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, range, 0};
    for (int i = 0; i < 14; i++) b[at++] = (unsigned char)scan[i];
    memset(b + at, 0, (size_t)n);
    at += (size_t)n;
    b[at++] = 255;
    b[at++] = 0xD9;
    return at;
}

/* Every sampling that all components share, sizes around units, lines of 65,500 pixels. */
TEST(jpeg, samplings_and_sizes)
{
    static const int sides[7][2] = {{1, 1}, {49, 49}, {25, 7}, {33, 65}, {65500, 1}, {1, 65500},
                                    {65535, 9}};
    enum { ROOM = 1 << 18 };
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 7; k++)
        for (int sampling = 0; sampling < 16; sampling++)
            for (int progressive = 0; progressive < 2; progressive++) {
                const int h = 1 + sampling / 4, v = 1 + sampling % 4, w = sides[k][0];
                const int units = ((w + 8 * h - 1) / (8 * h)) *
                                  ((sides[k][1] + 8 * v - 1) / (8 * v)) * 3 * h * v;
                const int bytes = ((progressive ? 1 : 2) * units + 7) / 8;
                unsigned char *b = (unsigned char *)guarded(1, ROOM), *end = b;
                const size_t   n = made_of(b, progressive ? 0xC2 : 0xC0, w, sides[k][1],
                                           h << 4 | v, progressive ? 0 : 63, bytes);
                end = (unsigned char *)guarded(0, n);
                memcpy(end, b, n);
                mlc_scope_begin(ctx);
                mlc_tensor *t = mlc_image_load_memory(ctx, end, n, 0);
                if (!CHECK(t != NULL)) fprintf(stderr, "%s\n", mlc_error(ctx));
                uint8_t    *pixels = pixels_of(t);
                int         wrong = 0;
                for (int64_t i = 0; pixels && i < mlc_numel(t); i++) wrong += pixels[i] != 128;
                CHECK(pixels && mlc_numel(t) == (int64_t)3 * w * sides[k][1]);
                CHECK_EQ(wrong, 0);
                free(pixels);
                mlc_scope_end(ctx);
                memmove(guarded(0, n - 3), end, n - 3);    /* less the end and a byte of pixels */
                CHECK(mlc_image_load_memory(ctx, guarded(0, n - 3), n - 3, 0) == NULL);
                mlc_error_clear(ctx);
            }
}

TEST(jpeg, what_is_not_read_is_refused_by_its_name)
{
    mlc_ctx *ctx = test_ctx();
    refused(ctx, jpeg_cmyk, sizeof jpeg_cmyk, "CMYK; save it as RGB");
    changed(ctx, "444", 0xC0, 1, 0xC3, "lossless (SOF3)");
    changed(ctx, "444", 0xC0, 1, 0xC9, "arithmetic");
    changed(ctx, "444", 0xC0, 1, 0xC5, "hierarchical");
    changed(ctx, "444", 0xC0, 4, 12, "12 bits");
    changed(ctx, "444", 0xC0, 5, 255, "cannot be as many as its size says");
    changed(ctx, "one", 0xC0, 6, 0, "after the pixels (DNL)");
    changed(ctx, "420", 0xC0, 14, 0x31, "samples that are not a whole number of pixels wide");
    changed(ctx, "420", 0xC0, 11, 0x52, "a sampling or table that JPEG has not");
    changed(ctx, "420", 0xC0, 12, 4, "a sampling or table that JPEG has not");
    changed(ctx, "420", 0xC0, 9, 2, "a frame whose length is another");
    changed(ctx, "grey", 0xC0, 9, 0, "a frame whose length is another");
}

TEST(jpeg, segments_that_are_wrong)
{
    mlc_ctx       *ctx = test_ctx();
    size_t         n, at;
    unsigned char *b;
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFF\xD9", 4, "no frame before its pixels");
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFE", 3, "no PNG or JPEG file");
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFF\x12zz", 6, "no marker where one must be");
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFF\xFF\xFF\xE0\0\1", 8, "beyond the end");
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFF\xDD\0\3\0", 7, "restart interval of no size");
    refused(ctx, (const unsigned char *)"\xFF\xD8", 2, "no PNG or JPEG file");
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFF\xC0\0\x0E\x08\0\1\0\1\2\1\x11\0\2\x11\0", 20,
            "components that are neither grey nor colours");
    refused(ctx, (const unsigned char *)"\xFF\xD8\xFF\xC0\0\x0B\x08\0\1\0\0\1\1\x11\0", 15,
            "a size of 0");
    changed(ctx, "420", 0xDB, 4, 0x20, "a table of steps that JPEG has not");
    changed(ctx, "420", 0xDB, 4, 0x04, "a table of steps that JPEG has not");
    changed(ctx, "420", 0xDB, 4, 0x10, "a table of steps that JPEG has not");
    changed(ctx, "420", 0xC4, 4, 0x24, "a Huffman code that JPEG has not");
    changed(ctx, "420", 0xC4, 5, 3, "a Huffman code");
    changed(ctx, "420", 0xC4, 21, 16, "lengths over 15");
    changed(ctx, "420", 0xDA, 3, 2, "a scan of no components");
    changed(ctx, "420", 0xDA, 4, 4, "a scan of no components");
    changed(ctx, "420", 0xDA, 5, 9, "a component that is not there");
    changed(ctx, "420", 0xDA, 6, 0x30, "tables are not there");
    changed(ctx, "420", 0xDA, 6, 0x03, "tables are not there");
    changed(ctx, "420", 0xDA, 6, 0x40, "tables are not there");
    changed(ctx, "420_progressive", 0xDA, 12, 1, "a scan of coefficients or bits");
    changed(ctx, "420_progressive", 0xDA, 13, 0x0e, "a scan of coefficients or bits");
    changed(ctx, "420_progressive", 0xDA, 13, 0x31, "a scan of coefficients or bits");
    b = file_of("grey", &n);                       /* DQT becomes a comment */
    if (!b) return;
    b[marker_at(b, n, 0xDB) + 1] = 0xFE;
    refused(ctx, b, n, "tables are not there");
    free(b);
    b = file_of("grey", &n);                       /* pixels before a frame, and a second frame */
    if (!b) return;
    at = marker_at(b, n, 0xC0);
    memcpy(b + marker_at(b, n, 0xC4), b + at, 13);
    b[at + 1] = 0xFE;
    CHECK(mlc_image_load_memory(ctx, b, n, 0) == NULL);
    mlc_error_clear(ctx);
    free(b);
    b = file_of("420", &n);
    if (!b) return;
    at = marker_at(b, n, 0xDA);                    /* the first restart marker becomes another */
    for (at += 14; b[at] != 255 || b[at + 1] != 0xD0; at++) {}
    b[at + 1] = 0xD5;
    refused(ctx, b, n, "a restart marker is not in its place");
    free(b);
}

/* Codes that JPEG has not: none, three of one bit, 257. */
TEST(jpeg, codes_that_are_wrong)
{
    static const int counts[3][3] = {{1, 0, 0}, {1, 3, 0}, {9, 255, 2}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        unsigned char b[300] = {255, 0xD8, 255, 0xC4, 0, 0, 0x10};
        const int     n = 19 + counts[i][1] + counts[i][2];
        b[4] = (unsigned char)(n >> 8);
        b[5] = (unsigned char)n;
        b[6 + counts[i][0]] = (unsigned char)counts[i][1];
        b[7 + counts[i][0]] = (unsigned char)counts[i][2];
        refused(ctx, b, 4 + (size_t)n, "a Huffman code of no codes, or more than there are");
    }
}

/* Steps in two bytes each are the same steps. */
TEST(jpeg, steps_of_two_bytes)
{
    mlc_ctx       *ctx = test_ctx();
    size_t         n;
    unsigned char *b = file_of("grey", &n);        /* has 64 bytes more of memory */
    if (!b) return;
    const size_t at = marker_at(b, n, 0xDB);
    uint8_t     *pixels = pixels_of(mlc_image_load_memory(ctx, b, n, 0));
    CHECK_EQ(b[at + 3], 67);
    memmove(b + at + 133, b + at + 69, n - at - 69);
    for (size_t k = 64; k-- > 0;) {
        b[at + 6 + 2 * k] = b[at + 5 + k];
        b[at + 5 + 2 * k] = 0;
    }
    b[at + 3] = 131;
    b[at + 4] = 0x10;
    mlc_tensor *t = mlc_image_load_memory(ctx, b, n + 64, 0);
    uint8_t    *same = pixels_of(t);
    CHECK_OK(ctx);
    CHECK(pixels && same && memcmp(pixels, same, (size_t)mlc_numel(t)) == 0);
    free(pixels);
    free(same);
    free(b);
}

/* A progressive scan of coefficients of all components at once, and 201 scans. */
TEST(jpeg, scans_that_are_refused)
{
    static unsigned char b[1 << 13];
    mlc_ctx     *ctx = test_ctx();
    size_t       n = made_of(b, 0xC2, 8, 8, 0x11, 0, 1);
    const size_t at = marker_at(b, n, 0xDA), size = n - 2 - at;
    for (int i = 0; i < 200; i++, n += size) memmove(b + n - 2, b + at, size);
    b[n - 2] = 255;
    b[n - 1] = 0xD9;
    refused(ctx, b, n, "over 200 scans");
    b[at + 11] = 1;
    b[at + 12] = 5;
    refused(ctx, b, n, "a scan of coefficients or bits that JPEG has not");
}

/* A scan for each component: three files of grey, joined. */
TEST(jpeg, sequential_files_of_three_scans)
{
    mlc_ctx       *ctx = test_ctx();
    size_t         n, out = 0;
    unsigned char *b = file_of("grey", &n), *made = (unsigned char *)calloc(1, 4 * n + 64);
    if (!b || !CHECK(made != NULL)) return;
    const size_t frame = marker_at(b, n, 0xC0), scan = marker_at(b, n, 0xDA);
    memcpy(made, b, scan);
    memcpy(made + frame, "\xFF\xC0\0\x11\x08", 5);
    memcpy(made + frame + 5, b + frame + 5, 4);
    memcpy(made + frame + 9, "\3R\x11\0G\x11\0B\x11\0", 10);
    out = frame + 19;
    memcpy(made + out, b + frame + 13, scan - frame - 13);
    out += scan - frame - 13;
    made[3] = 0xFE;                                /* no JFIF: names say the colours */
    for (int i = 0; i < 3; i++) {
        memcpy(made + out, b + scan, n - 2 - scan);
        made[out + 5] = (unsigned char)"RGB"[i];
        out += n - 2 - scan;
        made[out++] = 0;                           /* a byte that counts for nothing */
    }
    mlc_tensor *t = mlc_image_load_memory(ctx, made, out, 0);
    CHECK_OK(ctx);
    mlc_tensor *grey = mlc_image_load_memory(ctx, b, n, 3);
    uint8_t    *one = pixels_of(t), *two = pixels_of(grey);
    CHECK(one && two && mlc_numel(t) == mlc_numel(grey) &&
          memcmp(one, two, (size_t)mlc_numel(t)) == 0);
    free(one);
    free(two);
    t = mlc_image_load_memory(ctx, made, out, 1);  /* grey again, by all three */
    one = pixels_of(t);
    two = pixels_of(mlc_image_load_memory(ctx, b, n, 1));
    CHECK(one && two && memcmp(one, two, (size_t)mlc_numel(t)) == 0);
    free(one);
    free(two);
    free(made);
    free(b);
}

/* A few hundred bytes that claim 4 gigabytes take no memory for it. */
TEST(jpeg, sizes_are_compared_before_memory_is_taken)
{
    static const char *const names[2] = {"420", "444_progressive"};
    mlc_ctx   *ctx = test_ctx();
    mlc_memory before, after;
    mlc_memory_info(ctx, &before);
    for (int i = 0; i < 2; i++) {
        size_t         n;
        unsigned char *b = file_of(names[i], &n);
        if (!b) continue;
        const size_t at = marker_at(b, n, i ? 0xC2 : 0xC0);
        memset(b + at + 5, 255, 4);
        refused(ctx, b, n, "cannot be as many as its size says");
        free(b);
    }
    mlc_memory_info(ctx, &after);
    CHECK(after.peak - before.peak < 40000);       /* the tables */
}

/* Pixels of noise, by codes of noise: never a crash. */
TEST(jpeg, noise_does_no_harm)
{
    static const char *const names[3] = {"420", "420_progressive", "grey"};
    mlc_ctx *ctx = test_ctx();
    int      loaded = 0;
    g_seed = 5;
    for (int round = 0; round < 1500; round++) {
        size_t         n;
        unsigned char *b = file_of(names[round % 3], &n);
        if (!b) return;
        size_t from = marker_at(b, n, round % 2 ? 0xDA : 0xDB) + 4;
        for (size_t i = 0, many = 1 + draw(200); i < many && from < n; i++) {
            b[from] = (unsigned char)(draw(3) ? draw(256) : draw(2) * 255);
            from += draw(4);
        }
        mlc_scope_begin(ctx);
        loaded += mlc_image_load_memory(ctx, b, n, 0) != NULL;
        CHECK(mlc_scope_end(ctx) == MLC_OK || mlc_error(ctx)[0]);
        free(b);
    }
    CHECK(loaded < 1500);
}
