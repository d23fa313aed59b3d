/* Pictures in PNG and JPEG files. The first byte of an input says how many channels are asked for,
 * with bit 2 whether of a file on disk, and what the rest is: with bit 7 a file as it stands, of
 * either kind; else with bit 6 a header, palette, transparency and rows, of which a PNG file with
 * right checksums and sizes is made; else a PNG file whose chunks get right checksums, since hardly
 * one that was changed would come beyond them. */
#include "fuzz.h"

static uint8_t *file;                  /* that is read, of n bytes                             */
static size_t   n;

static uint32_t crc(const uint8_t *p, size_t size)
{
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++) c = c & 1u ? c >> 1 ^ 0xedb88320u : c >> 1;
    }
    return ~c;
}

static void put(uint32_t v)
{
    for (int i = 24; i >= 0; i -= 8) file[n++] = (uint8_t)(v >> i);
}

static void chunk(const char *name, const uint8_t *data, size_t size)
{
    const size_t from = n + 4;
    put((uint32_t)size);
    memcpy(file + n, name, 4);
    if (size) memcpy(file + n + 4, data, size);
    n += size + 4;
    put(crc(file + from, size + 4));
}

/* Writes the right checksum behind every chunk of a file. */
static void mend(void)
{
    for (size_t at = 8; at + 12 <= n;) {
        const uint8_t *p = file + at;
        const size_t   size = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        const size_t   end = n;
        if (size > end - at - 12) return;
        n = at + size + 8;
        put(crc(p + 4, size + 4));
        n = end;
        at += size + 12;
    }
}

/* Bytes of all rows with their filters. */
static size_t rows_of(size_t w, size_t h, int depth, int colour, bool interlaced)
{
    static const size_t x[7] = {0, 4, 0, 2, 0, 1, 0}, y[7] = {0, 0, 4, 0, 2, 0, 1};
    static const size_t dx[7] = {8, 8, 4, 4, 2, 2, 1}, dy[7] = {8, 8, 8, 4, 4, 2, 2};
    static const size_t samples[7] = {1, 1, 3, 1, 2, 1, 4};
    const size_t        bits = samples[colour % 7] * (size_t)depth;
    size_t              bytes = 0;
    if (!interlaced) return h * (1 + (w * bits + 7) / 8);
    for (int i = 0; i < 7; i++)
        if (w > x[i] && h > y[i])
            bytes += ((h - y[i] + dy[i] - 1) / dy[i]) *
                     (1 + ((w - x[i] + dx[i] - 1) / dx[i] * bits + 7) / 8);
    return bytes;
}

/* A file of width, height, depth, colour type, interlacing, bytes of the palette and of
 * transparency, and the rest; rows that are not there are 0. False: the input is too short. */
static bool make(const uint8_t *in, size_t size)
{
    static uint8_t z[20000];
    uint8_t        head[13] = {0};
    if (size < 7 || size - 7 < (size_t)in[5] + in[6]) return false;
    head[3] = in[0] % 33;
    head[7] = in[1] % 33;
    head[8] = (uint8_t)(in[2] & 128 ? in[2] & 31 : 1 << in[2] % 5);
    head[9] = in[3] % 7;
    head[12] = in[4] & 1;
    const size_t rows = rows_of(head[3], head[7], head[8], head[9], head[12] != 0);
    const size_t from = 7 + (size_t)in[5] + in[6], given = size - from < rows ? size - from : rows;
    uint32_t     a = 1, b = 0;
    memset(z, 0, sizeof z);
    memcpy(z, "\x78\x01\x01", 3);
    for (int i = 0; i < 4; i++) z[3 + i] = (uint8_t)((i < 2 ? rows : ~rows) >> 8 * (i % 2));
    memcpy(z + 7, in + from, given);
    for (size_t i = 0; i < rows; i++) { a = (a + z[7 + i]) % 65521; b = (b + a) % 65521; }
    for (int i = 0; i < 4; i++) z[7 + rows + (size_t)i] = (uint8_t)((b << 16 | a) >> (24 - 8 * i));
    n = 8;
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    chunk("IHDR", head, 13);
    if (in[5]) chunk("PLTE", in + 7, in[5]);
    if (in[6]) chunk("tRNS", in + 7 + in[5], in[6]);
    chunk("IDAT", z, rows + 11);
    chunk("IEND", NULL, 0);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int32_t channels[4] = {0, 1, 3, 4};
    mlc_ctx_desc c;
    memset(&c, 0, sizeof c);
    c.threads = 1;
    c.hard_limit = 8 << 20;
    if (!fuzz_ctx) fuzz_ctx = mlc_ctx_create(&c);
    if (size < 1 || (file = (uint8_t *)malloc(size + 20000)) == NULL) return 0;
    n = size - 1;
    memcpy(file, data + 1, n);
    const int what = data[0] >> 6;
    if (what == 0) mend();
    if (what != 1 || make(data + 1, size - 1)) {
        uint8_t *whole = (uint8_t *)realloc(file, n ? n : 1);  /* a read beyond it is found */
        if (whole) file = whole;
        fuzz_begin();
        fuzz_read(data[0] & 4 ? mlc_image_load(fuzz_ctx, fuzz_file(file, n), channels[data[0] & 3])
                  : mlc_image_load_memory(fuzz_ctx, file, n, channels[data[0] & 3]));
        fuzz_end(size, false);
    }
    free(file);
    return 0;
}
