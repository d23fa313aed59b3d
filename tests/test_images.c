/* test_images.c -- tests of sections IMPL.IMAGES.*: images in files
 *
 * Files are made here: every colour type, depth and interlacing with filters drawn at random, in
 * stored blocks; files of zlib's own codes are in golden/images.h, with the pixels that pillow has.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/images.h"
#include "guarded.h"

enum { MOST = 1 << 17 };

static const int samples_of[7] = {1, 0, 3, 1, 2, 0, 4};

typedef struct spec { int colour, depth, interlaced, clear; int64_t w, h; } spec;

typedef struct made {
    unsigned char file[MOST], raw[MOST / 2];
    size_t        n, raw_n;
    uint32_t      other;                         /* bits of the data's checksum that are wrong   */
    uint16_t      sample[40][40][4];
    unsigned char palette[768];
    uint16_t      clear[256];
    int           colours;
} made;

static made     g;
static unsigned g_seed;

static unsigned draw(unsigned n)
{
    g_seed = g_seed * 1103515245u + 12345u;
    return (g_seed >> 8) % n;
}

/* ---- a file ---------------------------------------------------------------------------------- */

static void chunk(const char *name, const void *data, size_t n)
{
    g.n = put_chunk(g.file, g.n, name, data, n);
}

static unsigned char guess(int filter, int a, int b, int c)
{
    const int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
    const int guesses[5] = {0, a, b, (a + b) / 2, pa <= pb && pa <= pc ? a : pb <= pc ? b : c};
    return (unsigned char)guesses[filter];
}

/* The rows of a pass. */
static void put_pass(const spec *s, int x0, int y0, int dx, int dy)
{
    const int      k = samples_of[s->colour];
    unsigned char  rows[2][400];
    const int64_t  back = k * s->depth < 8 ? 1 : k * s->depth / 8;
    int64_t        width = (s->w - x0 + dx - 1) / dx;
    if (s->w <= x0) return;
    memset(rows, 0, sizeof rows);
    for (int64_t y = y0, r = 0; y < s->h; y += dy, r++) {
        const int64_t  bytes = (width * k * s->depth + 7) / 8;
        unsigned char *row = rows[r & 1], *up = rows[1 - (r & 1)];
        const int      filter = (int)draw(5);
        memset(row, 0, sizeof rows[0]);
        for (int64_t i = 0; i < width * k; i++) {
            const unsigned v = g.sample[y][x0 + i / k * dx][i % k];
            if (s->depth == 16) {
                row[2 * i] = (unsigned char)(v >> 8);
                row[2 * i + 1] = (unsigned char)v;
            } else {
                const int64_t bit = i * s->depth;
                row[bit / 8] |= (unsigned char)(v << (8 - s->depth - bit % 8));
            }
        }
        g.raw[g.raw_n++] = (unsigned char)filter;
        for (int64_t i = 0; i < bytes; i++)
            g.raw[g.raw_n++] = (unsigned char)(row[i] - guess(filter, i < back ? 0 : row[i - back],
                                               up[i], i < back ? 0 : up[i - back]));
    }
}

/* The raw rows as zlib's data in stored blocks, in two chunks. */
static void put_data(void)
{
    static unsigned char z[MOST];
    size_t n = 2;
    z[0] = 0x78;
    z[1] = 1;
    for (size_t i = 0; i < g.raw_n;) {
        const size_t part = g.raw_n - i < 999 ? g.raw_n - i : 999;
        z[n] = i + part == g.raw_n;
        put_le(z + n + 1, 2, part);
        put_le(z + n + 3, 2, ~part);
        memcpy(z + n + 5, g.raw + i, part);
        n += part + 5;
        i += part;
    }
    put_be32(z + n, adler(g.raw, g.raw_n) ^ g.other);
    n += 4;
    chunk("IDAT", z, n / 3);
    chunk("IDAT", z + n / 3, n - n / 3);
}

/* Begins a file with its header. */
static void begin_as(const spec *s)
{
    unsigned char head[13] = {0};
    memcpy(g.file, "\x89PNG\r\n\x1a\n", 8);
    g.n = 8;
    put_be32(head, (uint32_t)s->w);
    put_be32(head + 4, (uint32_t)s->h);
    head[8] = (unsigned char)s->depth;
    head[9] = (unsigned char)s->colour;
    head[12] = (unsigned char)s->interlaced;
    chunk("IHDR", head, 13);
}

static void make(const spec *s)
{
    const int k = samples_of[s->colour];
    g.raw_n = 0;
    begin_as(s);
    chunk("tEXt", "Title\0a", 7);
    g.colours = s->colour == 3 ? 1 << s->depth : 0;
    for (int i = 0; i < 3 * g.colours; i++) g.palette[i] = (unsigned char)draw(256);
    if (s->colour == 3) chunk("PLTE", g.palette, 3 * (size_t)g.colours);
    for (int64_t y = 0; y < s->h; y++)
        for (int64_t x = 0; x < s->w; x++)
            for (int i = 0; i < k; i++)
                g.sample[y][x][i] = (uint16_t)draw(x % 3 ? 1u << s->depth : 2);
    if (s->clear) {
        unsigned char t[256];
        for (int i = 0; i < 256; i++) {
            g.clear[i] = (uint16_t)(s->colour == 3 ? draw(256) : g.sample[0][0][i % k]);
            t[i] = (unsigned char)g.clear[i];
        }
        for (int i = 0; s->colour != 3 && i < k; i++) {
            t[2 * i] = (unsigned char)(g.clear[i] >> 8 | (s->depth < 16 ? 0xa0 : 0));
            t[2 * i + 1] = (unsigned char)g.clear[i];
        }
        chunk("tRNS", t, s->colour == 3 ? (size_t)g.colours / 2 + 1 : 2 * (size_t)k);
    }
    if (!s->interlaced) put_pass(s, 0, 0, 1, 1);
    else {
        put_pass(s, 0, 0, 8, 8); put_pass(s, 4, 0, 8, 8); put_pass(s, 0, 4, 4, 8);
        put_pass(s, 2, 0, 4, 4); put_pass(s, 0, 2, 2, 4); put_pass(s, 1, 0, 2, 2);
        put_pass(s, 0, 1, 1, 2);
    }
    put_data();
    chunk("IEND", NULL, 0);
}

/* ---- a file of one row, by hand -------------------------------------------------------------- */

static void begin(uint32_t width, int depth, int colour)
{
    const spec s = {colour, depth, 0, 0, width, 1};
    begin_as(&s);
}

/* A row of n bytes that are all `value`, after the number of its filter. */
static void put_row(int filter, int value, size_t n)
{
    g.raw[0] = (unsigned char)filter;
    memset(g.raw + 1, value, n);
    g.raw_n = n + 1;
    put_data();
}

/* Ends the file, which is refused with this error. */
static void refused(mlc_ctx *ctx, const char *says)
{
    chunk("IEND", NULL, 0);
    CHECK(mlc_image_load_memory(ctx, g.file, g.n, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, says);
    mlc_error_clear(ctx);
}

/* ---- deflate by hand ------------------------------------------------------------------------- */

/* Data of zlib's format, the lowest bit of a byte first, and what they inflate to. */
static struct { unsigned char z[1 << 13], out[1 << 13]; size_t bits, made; } packed;

static void put_bits(unsigned v, int n)
{
    for (int i = 0; i < n; i++, packed.bits++) {
        if (packed.bits % 8 == 0) packed.z[packed.bits / 8] = 0;
        packed.z[packed.bits / 8] |= (unsigned char)((v >> i & 1) << packed.bits % 8);
    }
}

static void put_code(unsigned code, int n)
{
    for (int i = n - 1; i >= 0; i--) put_bits(code >> i, 1);
}

static void put_zeros(int bytes)
{
    while (packed.bits % 8) put_bits(0, 1);
    for (int i = 0; i < bytes; i++) put_bits(0, 8);
}

/* Begins data with a block: 0 stored, 1 of fixed codes, 2 of its own. */
static void begin_data(int kind)
{
    packed.bits = packed.made = 0;
    put_bits(0x78, 8);
    put_bits(1, 8);
    put_bits(1, 1);
    put_bits((unsigned)kind, 2);
}

/* Codes of a block by the lengths of the first 258 literals and 16 distances; each of the lengths,
 * 0 to 15, is a code of four bits. */
static void put_lengths(const unsigned char *literals, const unsigned char *distances)
{
    put_bits(1, 5);
    put_bits(15, 5);
    put_bits(15, 4);
    for (int i = 0; i < 19; i++) put_bits(i < 3 ? 0 : 4, 3);
    for (int i = 0; i < 258; i++) put_code(literals[i], 4);
    for (int i = 0; i < 16; i++) put_code(distances[i], 4);
}

/* The code of symbol s by the lengths of all (RFC 1951, 3.2.2). */
static void put_symbol(const unsigned char *lengths, int n, int s)
{
    unsigned code = 0;
    for (int length = 1; length <= lengths[s]; length++, code *= 2)
        for (int i = 0; i < n; i++) {
            if (lengths[i] != length) continue;
            if (i == s) { put_code(code, length); return; }
            code++;
        }
}

/* Ends the data with the checksum of what they inflate to, and the file with them. */
static mlc_tensor *inflated(mlc_ctx *ctx)
{
    put_zeros(4);
    put_be32(packed.z + packed.bits / 8 - 4, adler(packed.out, packed.made));
    begin((uint32_t)packed.made - 1, 8, 0);
    chunk("IDAT", packed.z, packed.bits / 8);
    chunk("IEND", NULL, 0);
    return mlc_image_load_memory(ctx, g.file, g.n, 0);
}

/* Ends data that are refused, in a row of 10 bytes and in one of 1,000: far from the ends another
 * loop decodes them. */
static void refused_data(mlc_ctx *ctx, const char *says)
{
    put_zeros(40);
    for (uint32_t width = 10; width <= 1000; width += 990) {
        begin(width, 8, 0);
        chunk("IDAT", packed.z, packed.bits / 8);
        refused(ctx, says);
    }
}

/* Red, green, blue and opacity that a pixel must have. */
static void pixel(const spec *s, int64_t x, int64_t y, int *rgba)
{
    const uint16_t *v = g.sample[y][x];
    const int       k = samples_of[s->colour], most = (1 << s->depth) - 1;
    bool            clear = s->clear != 0;
    rgba[3] = 255;
    if (s->colour == 3) {
        for (int i = 0; i < 3; i++) rgba[i] = g.palette[3 * v[0] + i];
        if (clear && v[0] < g.colours / 2 + 1) rgba[3] = g.clear[v[0]];
        return;
    }
    for (int i = 0; i < k; i++) clear = clear && v[i] == g.clear[i];
    for (int i = 0; i < 3; i++) {
        const int u = v[k > 2 ? i : 0];
        rgba[i] = s->depth == 16 ? u >> 8 : u * 255 / most;
    }
    if (k % 2 == 0) rgba[3] = s->depth == 16 ? v[k - 1] >> 8 : v[k - 1];
    if (clear) rgba[3] = 0;
}

static void check_file(mlc_ctx *ctx, const spec *s)
{
    static const int32_t asked[4] = {0, 1, 3, 4};
    const bool    opacity = s->colour & 4 || s->clear;
    const int64_t own = (s->colour & 2 ? 3 : 1) + (opacity ? 1 : 0);
    int           wrong = 0;
    for (int i = 0; i < 4; i++) {
        mlc_tensor   *t = mlc_image_load_memory(ctx, g.file, g.n, asked[i]);
        const int64_t c = asked[i] ? asked[i] : own;
        CHECK_OK(ctx);
        if (!CHECK(t && t->dtype == MLC_U8 && mlc_dim(t, 0) == c && mlc_dim(t, 1) == s->h &&
                   mlc_dim(t, 2) == s->w)) return;
        static uint8_t got[4 * 33 * 40];
        CHECK(mlc_numel(t) <= (int64_t)sizeof got);
        CHECK_EQ(mlc_read(t, got, (size_t)mlc_numel(t)), MLC_OK);
        for (int64_t y = 0; y < s->h; y++)
            for (int64_t x = 0; x < s->w; x++) {
                int rgba[4], grey;
                pixel(s, x, y, rgba);
                grey = s->colour & 2 ? (rgba[0] * 19595 + rgba[1] * 38470 + rgba[2] * 7471 + 32768)
                                       >> 16 : rgba[0];
                for (int64_t k = 0; k < c; k++) {
                    const int want = c > 2 ? rgba[k] : k ? rgba[3] : grey;
                    wrong += got[(k * s->h + y) * s->w + x] != want;
                }
            }
    }
    CHECK_EQ(wrong, 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(images, every_type_depth_and_interlacing)
{
    static const int depths[5] = {1, 2, 4, 8, 16}, allowed[7] = {31, 0, 24, 15, 24, 0, 24};
    static const int64_t sizes[6][2] = {{1, 1}, {3, 2}, {5, 9}, {8, 8}, {17, 13}, {33, 40}};
    mlc_ctx *ctx = test_ctx();
    int      files = 0;
    g_seed = 1;
    for (int colour = 0; colour < 7; colour++)
        for (int d = 0; d < 5; d++)
            for (int rest = 0; rest < 24; rest++) {
                const spec s = {colour, depths[d], rest / 6 % 2, rest / 12, sizes[rest % 6][0],
                                sizes[rest % 6][1]};
                if (!(allowed[colour] >> d & 1) || (s.clear && colour > 3)) continue;
                make(&s);
                check_file(ctx, &s);
                files++;
            }
    CHECK_EQ(files, 11 * 24 + 4 * 12);
}

/* Codes of zlib, at its levels 1 and 9, and of one length alone. */
TEST(images, codes_of_zlib)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < IMAGES_GOLDEN; i++) {
        mlc_tensor *t = mlc_image_load_memory(ctx, images_golden[i].bytes, images_golden[i].n, 0);
        CHECK_OK(ctx);
        if (!CHECK(t != NULL)) continue;
        uint8_t *pixels = (uint8_t *)malloc((size_t)mlc_numel(t));
        if (!CHECK(pixels != NULL)) continue;
        CHECK_EQ(mlc_read(t, pixels, (size_t)mlc_numel(t)), MLC_OK);
        uint32_t crc = zip_crc(pixels, (size_t)mlc_numel(t));
        free(pixels);
        CHECK(mlc_dim(t, 0) == images_golden[i].c && mlc_dim(t, 1) == images_golden[i].h &&
              mlc_dim(t, 2) == images_golden[i].w);
        CHECK_EQ(crc, images_golden[i].crc);
    }
}

/* A row of the largest bytes, whose checksum has the largest sums, of lengths around those that are
 * summed at once; and the same where one bit of the checksum is another. */
TEST(images, checksums_of_the_largest_bytes)
{
    static const size_t widths[11] = {1, 30, 31, 32, 62, 63, 734, 735, 736, 1471, 60001};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 11; i++) {
        begin((uint32_t)widths[i], 8, 0);
        put_row(0, 255, widths[i]);
        chunk("IEND", NULL, 0);
        CHECK(mlc_item(mlc_min(mlc_image_load_memory(ctx, g.file, g.n, 0), mlc_dims0(), false)) ==
              255);
        begin((uint32_t)widths[i], 8, 0);
        g.other = 1u << 3 * i;
        put_row(0, 255, widths[i]);
        g.other = 0;
        refused(ctx, "the checksum of its data is another");
    }
}

/* Codes of all lengths from 1 to 15 bits, of literals and of distances, drawn at random. */
TEST(images, codes_of_all_lengths)
{
    static const int least[16] = {1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193};
    unsigned char literals[258] = {0}, distances[16];
    static uint8_t pixels[sizeof packed.out];
    mlc_ctx      *ctx = test_ctx();
    for (int i = 0; i < 14; i++) literals[17 * i] = (unsigned char)(i + 1);
    literals[256] = literals[257] = 15;
    for (int i = 0; i < 16; i++) distances[i] = (unsigned char)(i < 15 ? i + 1 : 15);
    begin_data(2);
    put_lengths(literals, distances);
    g_seed = 23;
    for (int token = 0; token < 1500; token++) {
        const int far = (int)draw(16), more = far < 4 ? 0 : far / 2 - 1;
        const int extra = (int)draw(1u << more);
        if (draw(2) && (size_t)(least[far] + extra) <= packed.made) {
            put_symbol(literals, 258, 257);      /* three bytes */
            put_symbol(distances, 16, far);
            put_bits((unsigned)extra, more);
            for (int i = 0; i < 3; i++, packed.made++)
                packed.out[packed.made] = packed.out[packed.made - (size_t)(least[far] + extra)];
        } else {
            const int s = token ? 17 * (int)draw(14) : 0;
            put_symbol(literals, 258, s);
            packed.out[packed.made++] = (unsigned char)s;
        }
    }
    put_symbol(literals, 258, 256);
    mlc_tensor *t = inflated(ctx);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_numel(t), (int64_t)packed.made - 1);
    if (CHECK_EQ(mlc_read(t, pixels, packed.made - 1), MLC_OK))
        CHECK(memcmp(pixels, packed.out + 1, packed.made - 1) == 0);
}

/* Blocks that are empty, stored or of fixed codes, before the one that has the bytes. */
TEST(images, empty_blocks)
{
    mlc_ctx *ctx = test_ctx();
    begin_data(1);
    packed.z[2] = 0;                                  /* this block is not the last one */
    packed.bits = 16;
    put_bits(2, 3);
    put_code(0, 7);
    put_bits(0, 3);
    put_zeros(2);
    put_bits(0xffff, 16);
    for (int i = 0; i < 2; i++) {
        put_bits(i ? 3 : 2, 3);
        put_code(0x30, 8);                       /* a literal 0 */
        packed.out[packed.made++] = 0;
        put_code(0, 7);
    }
    mlc_tensor *t = inflated(ctx);
    CHECK_OK(ctx);
    CHECK(mlc_numel(t) == 1 && mlc_item(t) == 0);
}

/* Codes that there are not, distances beyond what was made, blocks beyond the data or the row. */
TEST(images, data_that_are_damaged)
{
    static const char *const damaged = "its data are damaged";
    unsigned char literals[258] = {0}, distances[16] = {0};
    mlc_ctx      *ctx = test_ctx();
    begin_data(3);
    refused_data(ctx, damaged);
    for (int i = 0; i < 2; i++) {                /* stored: more than the data; than the row */
        begin_data(0);
        put_zeros(0);
        put_bits(i ? 12 : 1100, 16);
        put_bits(~(i ? 12u : 1100u) & 0xffff, 16);
        refused_data(ctx, damaged);
    }
    for (int i = 0; i < 4; i++) {                /* fixed codes */
        begin_data(1);
        put_code(0x30, 8);
        if (i < 2) put_code(0xC6 + (unsigned)i, 8);        /* 286, 287 */
        else {
            put_code(1, 7);                      /* three bytes .. */
            put_code(i == 2 ? 30 : 1, 5);        /* .. from nowhere, from two bytes before */
        }
        refused_data(ctx, damaged);
    }
    literals[256] = 1;                           /* the end alone has a code, and it is not 1 */
    begin_data(2);
    put_lengths(literals, distances);
    put_bits(1, 1);
    refused_data(ctx, damaged);
    literals[0] = literals[257] = 2;             /* three bytes, where no distance has a code */
    begin_data(2);
    put_lengths(literals, distances);
    put_symbol(literals, 258, 0);
    put_symbol(literals, 258, 257);
    refused_data(ctx, damaged);
}

/* Data without zlib's header, or without all of its end. */
TEST(images, data_that_are_not_of_zlib)
{
    static const unsigned char heads[4][2] = {{0x77, 0x01}, {0x88, 0x1c}, {0x78, 0x02},
                                              {0x78, 0x20}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 4; i++) {
        begin_data(1);
        memcpy(packed.z, heads[i], 2);
        refused_data(ctx, "its data are not of zlib");
    }
    begin_data(1);
    begin(10, 8, 0);
    chunk("IDAT", packed.z, 5);
    refused(ctx, "its data are not of zlib");
    begin_data(1);
    for (int i = 0; i < 11; i++) put_code(0x30, 8);
    put_code(0, 7);
    put_zeros(3);
    begin(10, 8, 0);
    chunk("IDAT", packed.z, packed.bits / 8);
    refused(ctx, "the checksum of its data is cut off");
}

/* Kinds that PNG has not, and sizes. */
TEST(images, headers_that_are_refused)
{
    static const unsigned char changes[12][2] = {{24, 0}, {24, 3}, {24, 32}, {25, 7}, {25, 1},
        {25, 5}, {26, 1}, {27, 1}, {28, 2}, {25, 3}, {16, 0x80}, {20, 0x80}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 12; i++) {
        begin(4, i == 9 ? 16 : 8, 0);
        g.file[changes[i][0]] = changes[i][1];
        put_be32(g.file + 29, zip_crc(g.file + 12, 17));
        refused(ctx, i < 10 ? "a colour type, depth or method that PNG has not"
                            : "a size of 0, or over 2^31 - 1");
    }
    g.n = 8;
    chunk("IHDR", g.raw, 12);
    refused(ctx, "its first chunk is not of 13 bytes");
    g.n = 8;
    chunk("tEXt", "Title\0a", 7);
    refused(ctx, "its first chunk is not IHDR");
}

/* A chunk by a letter: P, T a palette and transparency of 6 and 2 bytes, p q Q and t of 5, 0, 771
 * and 3, H a header, X one that must be known, D f b a row of 0, of filter 5, of the number 2. */
static void put_chunk_of(char letter)
{
    static unsigned char zeros[771];
    switch (letter) {
        case 'P': chunk("PLTE", zeros, 6); break;
        case 'p': chunk("PLTE", zeros, 5); break;
        case 'q': chunk("PLTE", zeros, 0); break;
        case 'Q': chunk("PLTE", zeros, 771); break;
        case 'T': chunk("tRNS", zeros, 2); break;
        case 't': chunk("tRNS", zeros, 3); break;
        case 'H': chunk("IHDR", zeros, 13); break;
        case 'X': chunk("XXXX", zeros, 4); break;
        default: put_row(letter == 'f' ? 5 : 0, letter == 'b' ? 2 : 0, 4);
    }
}

TEST(images, chunks_that_are_refused)
{
    static const struct { int colour; const char *chunks, *says; } cases[] = {
        {3, "PP", "a palette that is of no size"},   {3, "p", "a palette that is of no size"},
        {3, "q", "a palette that is of no size"},    {3, "Q", "a palette that is of no size"},
        {3, "PDP", "a palette that is of no size"},  {0, "TT", "transparency that is of no size"},
        {0, "DT", "transparency that is of no size"}, {0, "t", "transparency that is of no size"},
        {2, "T", "transparency that is of no size"}, {3, "Pt", "transparency that is of no size"},
        {4, "T", "transparency that is of no size"}, {0, "X", "a chunk that must be known"},
        {0, "HD", "a second IHDR"},                  {0, "", "it has no pixels"},
        {3, "D", "it has no palette"},               {0, "f", "a filter that PNG has not"},
        {3, "Pb", "a colour beyond its palette"}};
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(4, 8, cases[i].colour);
        for (const char *c = cases[i].chunks; *c; c++) put_chunk_of(*c);
        refused(ctx, cases[i].says);
    }
}

/* Files of mlc_png_save: rows around 32 pixels, which readers take at once, and of over 2^20 bytes,
 * whose filters the writer compares by parts. */
TEST(images, files_of_png_save)
{
    static const int64_t widths[7] = {1, 31, 32, 33, 64, 97, 400000};
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("a.png");
    for (int i = 0; i < 7 * 6; i++) {
        const int64_t c = i % 3 ? 2 + i % 3 : 1, w = widths[i / 6];
        if (w > 1000 && c != 3) continue;
        mlc_scope_begin(ctx);
        mlc_tensor *t = mlc_randint(ctx, MLC_U8, mlc_dims3(c, 2, w), 9, i % 2 ? 256 : 12);
        CHECK_EQ(mlc_png_save(t, b.path), MLC_OK);
        mlc_tensor  *same = mlc_image_load(ctx, b.path, 0);
        const size_t n = (size_t)mlc_numel(t);
        uint8_t     *pixels = (uint8_t *)malloc(2 * n);
        CHECK_EQ(mlc_numel(same), (int64_t)n);
        CHECK_EQ(mlc_read(t, pixels, n), MLC_OK);
        if (CHECK_EQ(mlc_read(same, pixels + n, n), MLC_OK))
            CHECK(memcmp(pixels, pixels + n, n) == 0);
        free(pixels);
        mlc_scope_end(ctx);
    }
    box_close(&b);
}

/* Any byte wrong or missing: an error with the file's name, or, of what counts for nothing, the
 * same image. */
TEST(images, damaged_files_are_refused)
{
    mlc_ctx   *ctx = test_ctx();
    const spec s = {3, 4, 1, 1, 9, 7};
    box        b = box_open_fast("a.png");
    int        loaded = 0;
    g_seed = 3;
    make(&s);
    for (size_t n = 0; n < g.n; n++) {
        loaded += mlc_image_load_memory(ctx, g.file, n, 0) != NULL;
        CHECK_ERROR(ctx, MLC_ERR_IO, "'memory', byte ");
        mlc_error_clear(ctx);
    }
    for (size_t i = 0; i < 8 * g.n; i++) {
        g.file[i / 8] ^= (unsigned char)(1 << i % 8);
        loaded += mlc_image_load_memory(ctx, g.file, g.n, 0) != NULL;
        mlc_error_clear(ctx);
        g.file[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    CHECK_EQ(loaded, 0);
    CHECK(put_file(b.path, g.file, g.n));
    CHECK(mlc_image_load(ctx, b.path, 0) != NULL);
    CHECK(mlc_image_load(ctx, b.dir, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "it is not a regular file");
    CHECK(put_file(b.path, g.file, g.n - 5));
    CHECK(mlc_image_load(ctx, b.path, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "a.png', byte ");
    CHECK(mlc_image_load(ctx, NULL, 0) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "image_load: NULL, 0 channels");
    CHECK(mlc_image_load(ctx, b.path, 2) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "2 channels");
    CHECK(mlc_image_load(NULL, b.path, 0) == NULL);
    box_close(&b);
}

/* A few bytes that claim a gigabyte take no memory for it. */
TEST(images, sizes_are_compared_before_memory_is_taken)
{
    mlc_ctx   *ctx = test_ctx();
    const spec s = {2, 8, 0, 0, 4, 4}, large = {0, 1, 0, 0, 30000, 30000};
    static const uint32_t sizes[4][2] = {{30000, 10000}, {1u << 30, 1u << 30}, {0x7fffffff, 1},
                                         {0, 4}};
    static const char *const says[4] = {"cannot be as many as its size says", "over 2^30 bytes",
                                        "over 2^30 bytes", "a size of 0"};
    mlc_memory before, after;
    g_seed = 5;
    mlc_memory_info(ctx, &before);
    for (int i = 0; i < 4; i++) {
        make(&s);
        put_be32(g.file + 16, sizes[i][0]);
        put_be32(g.file + 20, sizes[i][1]);
        put_be32(g.file + 29, zip_crc(g.file + 12, 17));
        CHECK(mlc_image_load_memory(ctx, g.file, g.n, 0) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_IO, says[i]);
        mlc_error_clear(ctx);
    }
    begin_as(&large);                            /* too large by its three channels */
    memset(g.raw, 0, sizeof g.raw);
    for (int i = 0; i < 2; i++) chunk("IDAT", g.raw, 55000);
    chunk("IEND", NULL, 0);
    CHECK(mlc_image_load_memory(ctx, g.file, g.n, 3) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "over 2^30 bytes");
    mlc_error_clear(ctx);
    mlc_memory_info(ctx, &after);
    CHECK(after.peak - before.peak < 10000);
}

/* Data that inflate to garbage, by all kinds of bits: never beyond memory, never a crash. */
TEST(images, noise_in_the_data_does_no_harm)
{
    static unsigned char z[600];
    const spec s = {2, 8, 0, 0, 16, 16};
    mlc_ctx   *ctx = test_ctx();
    int        loaded = 0;
    g_seed = 7;
    for (int round = 0; round < 3000; round++) {
        const size_t n = 6 + draw(500);
        z[0] = 0x78;
        z[1] = 1;
        z[2] = (unsigned char)(draw(64) * 8 + 1 + 2 * draw(3));
        for (size_t i = 3; i < n; i++) z[i] = (unsigned char)(draw(4) ? draw(256) : draw(2) * 255);
        begin_as(&s);
        chunk("IDAT", z, n);
        chunk("IEND", NULL, 0);
        loaded += mlc_image_load_memory(ctx, g.file, g.n, 0) != NULL;
        mlc_error_clear(ctx);
    }
    CHECK_EQ(loaded, 0);
}

/* Files whose last byte is the last of a page that may be read: whole, cut off, with a wrong byte
 * in data whose checksum was made to fit. */
TEST(images, nothing_beyond_the_end_is_read)
{
    mlc_ctx *ctx = test_ctx();
    int      loaded = 0;
    g_seed = 17;
    for (int i = 0; i < IMAGES_GOLDEN; i++) {
        const size_t n = images_golden[i].n;
        unsigned char *b = (unsigned char *)guarded(0, n);
        memcpy(b, images_golden[i].bytes, n);
        mlc_scope_begin(ctx);
        CHECK(mlc_image_load_memory(ctx, b, n, 0) != NULL);
        for (size_t cut = n - 1; cut > 0; cut--) {
            memmove(b + n - cut, images_golden[i].bytes, cut);
            CHECK(mlc_image_load_memory(ctx, b + n - cut, cut, 0) == NULL);
            mlc_error_clear(ctx);
        }
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        for (int round = 0; round < 400; round++) {
            memcpy(b, images_golden[i].bytes, n);
            for (size_t at = 8; at + 12 <= n;) {
                const size_t size = (size_t)b[at] << 24 | (size_t)b[at + 1] << 16 |
                                    (size_t)b[at + 2] << 8 | b[at + 3];
                if (memcmp(b + at + 4, "IDAT", 4) == 0 && size > 2) {
                    for (unsigned k = 0; k < 1 + draw(3); k++)
                        b[at + 10 + draw((unsigned)(size - 2))] = (unsigned char)draw(256);
                    put_be32(b + at + 8 + size, zip_crc(b + at + 4, size + 4));
                }
                at += size + 12;
            }
            mlc_scope_begin(ctx);
            loaded += mlc_image_load_memory(ctx, b, n, 0) != NULL;
            CHECK(mlc_scope_end(ctx) == MLC_OK || mlc_error(ctx)[0]);
            mlc_error_clear(ctx);
        }
    }
    CHECK(loaded < IMAGES_GOLDEN * 400);
}
