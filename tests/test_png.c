/* test_png.c -- tests of sections IMPL.PNG and IMPL.PNG.CHARTS: pictures of tensors, charts
 *
 * Files are read back by a reader of their own: chunks and checksums, inflate of stored blocks and
 * of fixed codes, filters.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

typedef struct png {
    int64_t        height, width, channels;
    unsigned char *pixels;
    size_t         bytes;              /* of the file                                          */
    bool           stored;
} png;

static uint32_t be(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* ---- inflate --------------------------------------------------------------------------------- */

typedef struct bits { const unsigned char *in; size_t n, at; } bits;      /* at: in bits          */

static unsigned take(bits *b, int n)
{
    unsigned v = 0;
    for (int i = 0; i < n; i++, b->at++)
        if (CHECK(b->at / 8 < b->n)) v |= (unsigned)(b->in[b->at / 8] >> b->at % 8 & 1) << i;
    return v;
}

static unsigned take_code(bits *b, int n)
{
    unsigned v = 0;
    for (int i = 0; i < n; i++) v = v << 1 | take(b, 1);
    return v;
}

static unsigned take_symbol(bits *b)
{
    unsigned v = take_code(b, 7);
    if (v < 24) return 256 + v;
    v = v << 1 | take(b, 1);
    if (v >= 0x30 && v < 0xC0) return v - 0x30;
    if (v >= 0xC0 && v < 0xC8) return 280 + v - 0xC0;
    v = v << 1 | take(b, 1);
    return 144 + v - 0x190;
}

static size_t inflate_fixed(bits *b, unsigned char *out, size_t room)
{
    static const int lengths[29] = {3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35,
                                    43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    size_t n = 0;
    for (;;) {
        const unsigned s = take_symbol(b);
        if (s == 256 || n == room) return n;
        if (s < 256) { out[n++] = (unsigned char)s; continue; }
        const int      k = (int)s - 257;
        const unsigned length = (unsigned)lengths[k] +
                                take(b, k < 8 || k == 28 ? 0 : (k - 4) / 4);
        const unsigned d = take_code(b, 5);
        const size_t   distance = (d < 4 ? d : (2 + (d & 1)) << (d / 2 - 1)) + 1 +
                                  take(b, d < 4 ? 0 : (int)d / 2 - 1);
        if (!CHECK(distance <= n && n + length <= room)) return n;
        for (unsigned i = 0; i < length; i++, n++) out[n] = out[n - distance];
    }
}

static size_t inflate_stored(bits *b, unsigned char *out, size_t room)
{
    size_t n = 0;
    for (bool last = false; !last;) {
        last = take(b, 8) & 1;
        const unsigned k = take(b, 16);
        if (!CHECK(take(b, 16) == (k ^ 0xffffu) && n + k <= room)) return n;
        memcpy(out + n, b->in + b->at / 8, k);
        b->at += 8 * (size_t)k;
        n += k;
    }
    return n;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void unfilter(png *p, const unsigned char *rows)
{
    const int64_t n = p->width * p->channels, back = p->channels;
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t i = 0; i < n; i++) {
            unsigned char *at = p->pixels + y * n + i;
            const int left = i < back ? 0 : at[-back], up = y ? at[-n] : 0;
            const int corner = y && i >= back ? at[-n - back] : 0;
            const int a = abs(up - corner), b = abs(left - corner), c = abs(left + up - 2 * corner);
            const int guess[5] = {0, left, up, (left + up) / 2,
                                  a <= b && a <= c ? left : b <= c ? up : corner};
            const int filter = rows[y * (n + 1)];
            if (CHECK(filter < 5))
                *at = (unsigned char)(rows[y * (n + 1) + 1 + i] + guess[filter]);
        }
}

/* One chunk each of IHDR, IDAT and IEND; the caller frees the pixels. */
static png read_png(const char *path)
{
    static const char *const names[3] = {"IHDR", "IDAT", "IEND"};
    static const int         channels[7] = {1, 0, 3, 0, 0, 0, 4};
    png                  p = {0, 0, 0, NULL, 0, false};
    unsigned char       *file = get_file(path, &p.bytes), *rows;
    const unsigned char *data[3] = {NULL, NULL, NULL};
    size_t               at = 8, size[3] = {0, 0, 0};
    if (!CHECK(file && p.bytes > 57 && memcmp(file, "\x89PNG\r\n\x1a\n", 8) == 0)) return p;
    for (int i = 0; i < 3 && CHECK(at + 12 <= p.bytes); i++) {
        size[i] = be(file + at);
        data[i] = file + at + 8;
        CHECK(memcmp(file + at + 4, names[i], 4) == 0);
        if (!CHECK(at + 12 + size[i] <= p.bytes)) return p;
        CHECK_EQ(be(data[i] + size[i]), zip_crc(file + at + 4, size[i] + 4));
        at += 12 + size[i];
    }
    CHECK_EQ(at, p.bytes);
    CHECK_EQ(size[0], 13);
    CHECK(data[0][8] == 8 && data[0][10] == 0 && data[0][11] == 0 && data[0][12] == 0);
    p.width = be(data[0]);
    p.height = be(data[0] + 4);
    p.channels = channels[data[0][9]];
    const size_t want = (size_t)(p.height * (p.width * p.channels + 1));
    rows = (unsigned char *)malloc(want);
    p.pixels = (unsigned char *)calloc(want, 1);
    CHECK(data[1][0] == 0x78 && (data[1][0] * 256 + data[1][1]) % 31 == 0);
    bits b = {data[1] + 2, size[1] - 6, 0};
    p.stored = (b.in[0] & 6) == 0;
    if (!p.stored) CHECK_EQ(take(&b, 3), 3);
    CHECK_EQ(p.stored ? inflate_stored(&b, rows, want) : inflate_fixed(&b, rows, want), want);
    CHECK_EQ((b.at + 7) / 8, b.n);
    CHECK_EQ(be(data[1] + size[1] - 4), adler(rows, want));
    unfilter(&p, rows);
    free(rows);
    free(file);
    return p;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Saves a tensor of u8 as CHW or HWC and compares all pixels. */
static void there_and_back(mlc_ctx *ctx, const box *b, mlc_tensor *t, bool last)
{
    const int32_t h = t->ndim == 2 || last ? 0 : 1;
    const int64_t c = t->ndim == 2 ? 1 : mlc_dim(t, last ? 2 : 0);
    CHECK_EQ(mlc_png_save(t, b->path), MLC_OK);
    CHECK_OK(ctx);
    png p = read_png(b->path);
    CHECK(p.height == mlc_dim(t, h) && p.width == mlc_dim(t, h + 1) && p.channels == c);
    int wrong = 0;
    for (int64_t i = 0; p.pixels && i < p.height * p.width * c; i++) {
        const int64_t k = i % c, x = i / c % p.width, y = i / c / p.width;
        const double  want = t->ndim == 2 ? mlc_item_at(t, mlc_dims2(y, x))
                           : mlc_item_at(t, last ? mlc_dims3(y, x, k) : mlc_dims3(k, y, x));
        wrong += p.pixels[i] != want;
    }
    CHECK_EQ(wrong, 0);
    free(p.pixels);
}

TEST(png, pixels_are_those_of_the_tensor)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("a.png");
    for (int64_t c = 1; c <= 4; c += c < 3 ? 2 : 1)
        for (int64_t h = 1; h <= 9; h += 4) {
            mlc_tensor *t = mlc_randint(ctx, MLC_U8, mlc_dims3(c, h, 7), 0, 256);
            there_and_back(ctx, &b, t, false);
            there_and_back(ctx, &b, mlc_permute(t, mlc_dims3(1, 2, 0)), h > 4);
        }
    there_and_back(ctx, &b, mlc_randint(ctx, MLC_U8, mlc_dims2(1, 1), 0, 256), false);
    there_and_back(ctx, &b, mlc_randint(ctx, MLC_U8, mlc_dims2(33, 21), 0, 256), false);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* Runs of all lengths at many distances, across the window of 32 KB. */
TEST(png, what_repeats_is_packed)
{
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("a.png");
    enum { N = 120000 };
    static uint8_t bytes[N];
    unsigned      seed = 1;
    for (int i = 0; i < N;) {
        seed = seed * 1103515245u + 12345u;
        const int length = 1 + (int)(seed >> 16) % 300, back = 1 + (int)(seed >> 8) % 40000;
        for (int k = 0; k < length && i < N; k++, i++)
            bytes[i] = back <= i && seed & 64 ? bytes[i - back] : (uint8_t)(seed >> 24);
    }
    there_and_back(ctx, &b, mlc_from(ctx, MLC_U8, mlc_dims2(300, 400), bytes), false);
    there_and_back(ctx, &b, mlc_from(ctx, MLC_U8, mlc_dims2(2, 60000), bytes), false);
    CHECK_EQ(mlc_png_save(mlc_zeros(ctx, MLC_U8, mlc_dims2(300, 400)), b.path), MLC_OK);
    png p = read_png(b.path);
    CHECK(!p.stored && p.bytes < 1000);
    free(p.pixels);
    CHECK_EQ(mlc_png_save(mlc_randint(ctx, MLC_U8, mlc_dims2(300, 400), 0, 256), b.path), MLC_OK);
    p = read_png(b.path);
    CHECK(p.stored && p.bytes < 300 * 401 + 5 * 2 + 70);   /* noise takes its bytes and no more */
    free(p.pixels);
    box_close(&b);
}

TEST(png, floats_are_clamped_and_rounded)
{
    static const float         x[8] = {-1.0f, 0.0f, 0.001f, 0.002f, 0.5f, 1.0f, 7.0f, NAN};
    static const unsigned char want[8] = {0, 0, 0, 1, 128, 255, 255, 0};
    static const mlc_dtype     dtypes[4] = {MLC_F32, MLC_F64, MLC_F16, MLC_BF16};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("a.png");
    for (int i = 0; i < 4; i++) {
        mlc_tensor *t = mlc_cast(mlc_from(ctx, MLC_F32, mlc_dims2(2, 4), x), dtypes[i]);
        CHECK_EQ(mlc_png_save(t, b.path), MLC_OK);
        png p = read_png(b.path);
        CHECK(p.pixels && memcmp(p.pixels, want, 8) == 0);
        free(p.pixels);
    }
    box_close(&b);
}

TEST(png, pictures_of_a_batch_stand_in_a_grid)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("a.png");
    mlc_tensor *t = mlc_randint(ctx, MLC_U8, mlc_dims4(5, 3, 4, 6), 1, 256);
    CHECK_EQ(mlc_png_save(t, b.path), MLC_OK);
    png p = read_png(b.path);                      /* 3 columns, 2 rows */
    CHECK(p.height == 2 * 6 + 2 && p.width == 3 * 8 + 2 && p.channels == 3);
    int wrong = 0, seen = 0;
    for (int64_t i = 0; p.pixels && i < p.height * p.width * 3; i++) {
        const int64_t c = i % 3, x = i / 3 % p.width - 2, y = i / 3 / p.width - 2;
        const int64_t k = (y < 0 ? 9 : y / 6 * 3) + (x < 0 ? 9 : x / 8);
        const bool    inside = k < 5 && y % 6 < 4 && x % 8 < 6;
        const double  want = inside ? mlc_item_at(t, mlc_dims4(k, c, y % 6, x % 8)) : 0.0;
        seen += inside;
        wrong += p.pixels[i] != want;
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(seen, 5 * 3 * 4 * 6);
    free(p.pixels);
    box_close(&b);
}

/* Read by pillow: [[255 0 0, 0 255 0], [0 0 255, 255 255 255]]. */
TEST(png, golden_bytes)
{
    static const uint8_t x[12] = {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255};
    static const unsigned char want[] = {
        137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 2,
        0, 0, 0, 2, 8, 2, 0, 0, 0, 253, 212, 154, 115, 0, 0, 0, 19, 73, 68, 65,
        84, 120, 1, 99, 248, 207, 192, 0, 196, 140, 64, 226, 255, 127, 6, 0, 30, 246, 4, 253,
        62, 173, 86, 222, 0, 0, 0, 0, 73, 69, 78, 68, 174, 66, 96, 130};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("a.png");
    size_t   n;
    CHECK_EQ(mlc_png_save(mlc_from(ctx, MLC_U8, mlc_dims3(2, 2, 3), x), b.path), MLC_OK);
    unsigned char *file = get_file(b.path, &n);
    CHECK(n == sizeof want && memcmp(file, want, n) == 0);
    free(file);
    box_close(&b);
}

TEST(png, errors)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("a.png");
    mlc_tensor *t = mlc_zeros(ctx, MLC_U8, mlc_dims2(2, 2));
    CHECK_EQ(mlc_png_save(NULL, b.path), MLC_ERR_ARG);
    CHECK_EQ(mlc_png_save(t, ""), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "png_save: no path");
    CHECK_EQ(mlc_png_save(mlc_zeros(ctx, MLC_I64, mlc_dims2(2, 2)), b.path), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "png_save: i64; a picture has u8");
    static const int64_t shapes[6][4] = {{4, 0, 0, 0}, {2, 5, 5, 0}, {0, 3, 0, 0}, {3, 0, 3, 0},
                                         {0, 3, 2, 2}, {2, 5, 2, 2}};
    static const int32_t ndim[6] = {1, 3, 2, 3, 4, 4};
    for (int i = 0; i < 6; i++) {
        mlc_dims d = mlc_dims4(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
        d.n = ndim[i];
        CHECK_EQ(mlc_png_save(mlc_zeros(ctx, MLC_U8, d), b.path), MLC_ERR_SHAPE);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "is no picture; give it [h,w]");
    }
    mlc_tensor *much = mlc_expand(mlc_zeros(ctx, MLC_U8, mlc_dims2(1, 1)),
                                  mlc_dims2(1 << 20, 1 << 20));
    CHECK_EQ(mlc_png_save(much, b.path), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "over 2^30 bytes");
    CHECK_EQ(mlc_png_save(t, "/nowhere/at/all.png"), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "/nowhere/at/all.png");
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}

/* ---- charts ---------------------------------------------------------------------------------- */

static const double RAMP[6] = {0, 1, 2, 3, 4, 5}, HEIGHTS[6] = {5, 1, 4, 2, 3, 5};

static mlc_plot chart_of(const mlc_plot_series *s, int64_t count, const char *title)
{
    const mlc_plot p = {title, NULL, NULL, false, false, s, count};
    return p;
}

/* The colour of a pixel of u8 [3,h,w], 0xRRGGBB. */
static uint32_t colour_at(mlc_tensor *t, int64_t x, int64_t y)
{
    uint32_t v = 0;
    for (int64_t c = 0; c < 3; c++)
        v = v << 8 | (uint32_t)mlc_item_at(t, mlc_dims3(c, y, x));
    return v;
}

/* How many pixels of a rectangle have not a colour. */
static int64_t others(mlc_tensor *t, uint32_t colour, int64_t x, int64_t y, int64_t w, int64_t h)
{
    const int64_t  all = mlc_numel(t), wide = mlc_dim(t, 2), plane = mlc_dim(t, 1) * wide;
    unsigned char *v = (unsigned char *)malloc((size_t)all);
    int64_t        n = 0;
    if (CHECK_EQ(mlc_read(t, v, (size_t)all), MLC_OK))
        for (int64_t j = y; j < y + h; j++)
            for (int64_t i = x; i < x + w; i++) {
                const unsigned char *at = v + j * wide + i;
                n += ((uint32_t)at[0] << 16 | (uint32_t)at[plane] << 8 | at[2 * plane]) != colour;
            }
    free(v);
    return n;
}

/* Axes reach from x 68 to 337 and y 17 to 232 of a panel of 360 x 280; see IMPL.PLOT. */
TEST(png, charts_have_panels_bars_and_colours)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_plot_series s = {NULL, RAMP, HEIGHTS, 6, MLC_PLOT_BARS};
    const mlc_plot  p[3] = {chart_of(&s, 1, NULL), chart_of(NULL, 0, NULL), chart_of(&s, 1, NULL)};
    mlc_tensor     *t = mlc_plot_image(ctx, p, 3, 2, 1);
    if (!CHECK(t != NULL)) return;
    CHECK(t->dtype == MLC_U8 && t->ndim == 3 && mlc_dim(t, 0) == 3);
    CHECK(mlc_dim(t, 1) == 560 && mlc_dim(t, 2) == 720);
    /* x from -1 to 6: of 269 pixels each step has 38.4; the bar at 2 is 34.6 wide, 4 of 5 high. */
    const int64_t at = 68 + 3 * 269 / 7;
    CHECK_EQ(others(t, 0x0072b2, at - 15, 62, 30, 168), 0);
    CHECK_EQ(others(t, 0xffffff, at - 15, 20, 30, 35), 2 * 35);         /* a grid line alone    */
    CHECK_EQ(others(t, 0x0072b2, at - 15, 280 + 62, 30, 168), 0);
    CHECK_EQ(others(t, 0xffffff, 360, 280, 360, 280), 0);            /* there is no fourth one  */
    CHECK(colour_at(t, 69, 120) == 0xffffff && colour_at(t, 68, 120) != 0xffffff);
    mlc_tensor *fine = mlc_plot_image(ctx, p, 1, 5, 3);
    CHECK(mlc_dim(fine, 1) == 840 && mlc_dim(fine, 2) == 1080);
    CHECK_EQ(others(fine, 0x0072b2, 3 * at - 50, 184, 100, 509), 0);
    CHECK_OK(ctx);
}

TEST(png, lines_go_through_their_points_and_dashes_have_gaps)
{
    static const double flat[6] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    mlc_ctx        *ctx = test_ctx();
    mlc_plot_series s[2] = {{NULL, RAMP, RAMP, 6, MLC_PLOT_LINE},
                            {NULL, RAMP, flat, 6, MLC_PLOT_DASHED}};
    const mlc_plot  p = chart_of(s, 2, NULL);
    mlc_tensor     *t = mlc_plot_image(ctx, &p, 1, 1, 10);
    if (!CHECK(t != NULL)) return;
    for (int64_t i = 0; i <= 5; i++)
        CHECK_EQ(colour_at(t, 680 + i * 2690 / 5, 2320 - i * 2150 / 5), 0x0072b2);
    int64_t gaps = 0;
    uint32_t before = 0;
    for (int64_t x = 1000; x < 3000; x++) {                  /* by 100 pixels there is a dash   */
        const uint32_t c = colour_at(t, x, 2320 - 215);
        gaps += c == 0x777777 && before != c;
        before = c;
    }
    CHECK(gaps >= 18 && gaps <= 22);
    CHECK_OK(ctx);
}

/* A picture of all letters, bit by bit. */
TEST(png, texts_are_letters_and_end_with_their_panel)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_plot_series s[3] = {{"ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789", RAMP, HEIGHTS, 6,
                             MLC_PLOT_MARKED},
                            {"abcdefghijklmnopqrstuvwxyz", RAMP, RAMP, 6, MLC_PLOT_POINTS},
                            {"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", RAMP, RAMP, 0, MLC_PLOT_DASHED}};
    mlc_plot        p[2] = {chart_of(s, 3, "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
                            chart_of(NULL, 0, NULL)};
    p[0].x_label = "x";
    p[0].y_label = "upwards";
    mlc_tensor *t = mlc_plot_image(ctx, p, 2, 2, 2);
    CHECK(hash_tensor(HASH_SEED, t) == 0xd49e16a0388cf26fu);
    p[0].title = "a title that is far longer than its panel, so that it is cut off at the border";
    t = mlc_plot_image(ctx, p, 2, 2, 2);
    CHECK(others(t, 0xffffff, 690, 20, 30, 30) > 0);
    CHECK_EQ(others(t, 0xffffff, 720, 0, 100, 34), 0);
    CHECK_OK(ctx);
}

TEST(png, a_confusion_matrix_has_shades_and_white_numbers)
{
    static const double p[6] = {0, 1, 1, 1, 1, 1}, t[6] = {0, 0, 0, 0, 1, 1};
    static const char *const names[2] = {"cat & <dog>", "b"};
    mlc_ctx    *ctx = test_ctx();
    mlc_metric *m = mlc_metric_confusion(ctx, 2);
    mlc_tensor *to = mlc_cast(mlc_from(ctx, MLC_F64, mlc_dims1(6), t), MLC_I64);
    mlc_metric_update(m, mlc_cast(mlc_from(ctx, MLC_F64, mlc_dims1(6), p), MLC_I64), to, NULL);
    mlc_tensor *i = mlc_confusion_image(m, names, 1);
    if (!CHECK(i != NULL)) return;
    CHECK(mlc_dim(i, 0) == 3 && mlc_dim(i, 1) > 400 && mlc_dim(i, 2) > 400);
    const int64_t left = mlc_dim(i, 2) - 20 - 400;
    CHECK_EQ(colour_at(i, left + 50, 90), 0xbfdbeb);         /* a quarter of the row             */
    CHECK_EQ(colour_at(i, left + 350, 390), 0x0072b2);
    CHECK_EQ(colour_at(i, left + 50, 390), 0xffffff);
    int64_t white = 0;
    for (int64_t x = left + 285; x < left + 315; x++) white += colour_at(i, x, 335) > 0xf00000;
    CHECK(white > 0);
    CHECK_OK(ctx);
}

TEST(png, errors_of_charts)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_plot_series s = {NULL, RAMP, RAMP, 6, MLC_PLOT_LINE};
    mlc_plot        many[300];
    for (int i = 0; i < 300; i++) many[i] = chart_of(&s, 1, NULL);
    CHECK(mlc_plot_image(NULL, many, 1, 1, 1) == NULL);
    CHECK(mlc_plot_image(ctx, many, 1, 1, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot_image: scale is 0; it is 1 to 16");
    CHECK(mlc_plot_image(ctx, many, 1, 1, 17) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot_image: scale is 17");
    CHECK(mlc_plot_image(ctx, many, 300, 1, 16) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot_image: 5760 x 1344000 pixels are over 2^28 elements");
    CHECK(mlc_plot_image(ctx, many, 0, 1, 1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "plot: 0 charts");
    CHECK(mlc_confusion_image(NULL, NULL, 1) == NULL);
    CHECK(mlc_confusion_image(mlc_metric_confusion(ctx, 2), NULL, -1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "confusion_image: scale is -1");
    CHECK(mlc_confusion_image(mlc_metric_confusion(ctx, 65), NULL, 1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "confusion_image: 65 classes");
    CHECK_OK(ctx);
}
