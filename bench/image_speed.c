/* image_speed.c -- times pictures in memory becoming pixels, and pixels becoming PNG files, beside
 * libpng, libjpeg and stb_image
 *
 *   build   make build/image_speed: pkg-config looks for libpng and libjpeg, the compiler for
 *           stb_image.h; what is not found is named and not compared
 *   run     build/image_speed [ROUNDS]
 *
 * Pictures of 1024 x 768 pixels are drawn here and written by libpng and libjpeg (quality 90), each
 * with its defaults. Every reader makes RGB of the same bytes; a round has them all, one after the
 * other, each first in its turn, on the thread's clock. Printed are the median milliseconds of
 * mlcore, and for each other the median of the rounds' ratios of its time to mlcore's, which is
 * above 1 where mlcore is faster, with their quartiles. Ends with 1 where pixels differ: of PNG at
 * all, of JPEG by more than 2 from libjpeg's. */
#define _POSIX_C_SOURCE 200809L
#include "mlcore.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef HAVE_png
#  include <png.h>
#endif
#ifdef HAVE_jpeg
#  include <jpeglib.h>
#endif
#pragma GCC diagnostic ignored "-Wunused-function"    /* stb_image's; ours without a library */
#if __has_include(<stb/stb_image.h>)
#  define STB_IMAGE_STATIC
#  define STBI_NO_THREAD_LOCALS
#  define STB_IMAGE_IMPLEMENTATION
#  include <stb/stb_image.h>
#  define HAVE_STB
#endif

enum { W = 1024, H = 768, MOST = 999, BYTES = 8 << 20 };

static mlc_ctx      *ctx;
static unsigned char photo[H][W][3], graphic[H][W][3], grey[H][W], file[BYTES], out[3][H * W * 3];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A photo has slopes, edges and the noise of a sensor, a graphic areas, bars and thin lines.   */
static void draw(void)
{
    unsigned seed = 1;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            const int tile = (x / 90) * 7 + (y / 70) * 3, line = x % 45 < 2 || y % 35 < 1;
            for (int k = 0; k < 3; k++) {
                double noise = 0, v = 128 + 60 * sin(x * 0.011 + k) + 50 * cos(y * 0.017 - k);
                if (hypot(x - 600.0, y - 300.0) < 180) v = 220 - 0.3 * v + 12 * sin(x * 0.7);
                for (int i = 0; i < 4; i++) {
                    seed = seed * 1103515245u + 12345u;
                    noise += (double)(seed >> 16 & 0x7fff) / 0x7fff - 0.5;
                }
                v += 4 * noise;
                photo[y][x][k] = (unsigned char)(v < 0 ? 0 : v > 255 ? 255 : v);
                graphic[y][x][k] = (unsigned char)(line ? 40 : tile % 64 * 4);
            }
            grey[y][x] = photo[y][x][1];
        }
}

/* The pixels of a picture, [h,w,c] in `to`; each of these returns milliseconds. */
static double by_mlcore(const unsigned char *b, size_t n, unsigned char *to)
{
    const double begin = now();
    mlc_scope_begin(ctx);
    mlc_tensor  *t = mlc_image_load_memory(ctx, b, n, 3);
    const double took = now() - begin;
    mlc_read(mlc_contiguous(mlc_permute(t, mlc_dims3(1, 2, 0))), to, H * W * 3);
    if (mlc_scope_end(ctx) != MLC_OK) fprintf(stderr, "%s\n", mlc_error(ctx));
    return took;
}

#ifdef HAVE_STB
static double by_stb(const unsigned char *b, size_t n, unsigned char *to)
{
    const double   begin = now();
    int            w, h, c;
    unsigned char *pixels = stbi_load_from_memory(b, (int)n, &w, &h, &c, 3);
    const double   took = now() - begin;
    memcpy(to, pixels, H * W * 3);
    free(pixels);
    return took;
}
#endif

#ifdef HAVE_png
static double by_libpng(const unsigned char *b, size_t n, unsigned char *to)
{
    const double begin = now();
    png_image    i = {.version = PNG_IMAGE_VERSION};
    png_image_begin_read_from_memory(&i, b, n);
    i.format = PNG_FORMAT_RGB;
    png_image_finish_read(&i, NULL, to, 0, NULL);
    return now() - begin;
}

/* A file of a picture in `file`; a colour map of 64 greys where `map`. Returns its bytes. */
static size_t put_png(const void *pixels, unsigned format, const void *map)
{
    png_image        i = {.version = PNG_IMAGE_VERSION, .width = W, .height = H, .format = format};
    png_alloc_size_t n = sizeof file;
    i.colormap_entries = map ? 64 : 0;
    return png_image_write_to_memory(&i, file, &n, 0, pixels, 0, map) ? n : 0;
}
#endif

#ifdef HAVE_jpeg
static double by_libjpeg(const unsigned char *b, size_t n, unsigned char *to)
{
    const double                  begin = now();
    struct jpeg_decompress_struct j;
    struct jpeg_error_mgr         e;
    j.err = jpeg_std_error(&e);
    jpeg_create_decompress(&j);
    jpeg_mem_src(&j, b, n);
    jpeg_read_header(&j, TRUE);
    j.out_color_space = JCS_RGB;
    jpeg_start_decompress(&j);
    while (j.output_scanline < H) {
        unsigned char *row = to + j.output_scanline * W * 3;
        jpeg_read_scanlines(&j, &row, 1);
    }
    jpeg_finish_decompress(&j);
    jpeg_destroy_decompress(&j);
    return now() - begin;
}

static size_t put_jpeg(const unsigned char *pixels, int channels)
{
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr       e;
    unsigned char              *to = file;
    unsigned long               n = sizeof file;
    j.err = jpeg_std_error(&e);
    jpeg_create_compress(&j);
    jpeg_mem_dest(&j, &to, &n);
    j.image_width = W;
    j.image_height = H;
    j.input_components = channels;
    j.in_color_space = channels > 1 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&j);
    jpeg_set_quality(&j, 90, TRUE);
    jpeg_start_compress(&j, TRUE);
    for (int y = 0; y < H; y++) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + y * W * channels);
        jpeg_write_scanlines(&j, &row, 1);
    }
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
    return n;
}
#endif

typedef double (*reader)(const unsigned char *b, size_t n, unsigned char *to);

static double times[3][MOST];
static int    rounds = 41, wrong;

/* Prints a row: mlcore's milliseconds, and times of the others by its own. */
static void put_row(const char *name, const char *const *names)
{
    static double ratio[MOST];
    for (int k = 2; k >= 0; k--) {
        for (int r = 0; r < rounds; r++) ratio[r] = k ? times[k][r] / times[0][r] : times[0][r];
        qsort(ratio, (size_t)rounds, sizeof *ratio, by_size);
        if (k && names[k]) printf("%10s %5.2f (%.2f, %.2f)", names[k], ratio[rounds / 2],
                                  ratio[rounds / 4], ratio[3 * rounds / 4]);
        else if (!k) printf("  %6.2f ms  %s\n", ratio[rounds / 2], name);
    }
}

/* Reads the n bytes in `file` by all; the pixels of others may be `most` away. */
static void row_of(const char *name, size_t n, const char *lib_name, reader lib, int most)
{
    const char  *names[3] = {"mlcore", lib_name, NULL};
    reader       by[3] = {by_mlcore, lib, NULL};
    int          off[3] = {0};
#ifdef HAVE_STB
    names[2] = "stb_image";
    by[2] = by_stb;
#endif
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 3; i++) {
            const int k = (i + r) % 3;
            if (by[k]) times[k][r] = by[k](file, n, out[k]);
        }
    for (int k = 1; k < 3; k++)
        for (int i = 0; i < H * W * 3 && by[k]; i++) {
            const int d = abs(out[k][i] - out[0][i]);
            off[k] = d > off[k] ? d : off[k];
        }
    put_row(name, names);
    wrong += off[1] > most || (off[2] && !most);
    if (off[1] || off[2]) printf("    pixels are up to %d from %s's, %d from stb_image's\n", off[1],
                                 lib_name, off[2]);
}

#ifdef HAVE_png
/* Writes files of a picture by mlcore and by libpng, and prints their bytes. */
static void written(const char *name, const unsigned char *pixels)
{
    static const char *const names[3] = {"mlcore", "libpng", NULL};
    static const char *const path[2] = {"build/image_speed_0.png", "build/image_speed_1.png"};
    mlc_scope_begin(ctx);
    mlc_tensor *t = mlc_from(ctx, MLC_U8, mlc_dims3(H, W, 3), pixels);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 2; i++) {
            const double begin = now();
            png_image    m = {.version = PNG_IMAGE_VERSION, .width = W, .height = H,
                              .format = PNG_FORMAT_RGB};
            if ((i + r) & 1 ? !png_image_write_to_file(&m, path[1], 0, pixels, 0, NULL)
                            : mlc_png_save(t, path[0]) != MLC_OK) exit(2);
            times[(i + r) & 1][r] = now() - begin;
        }
    put_row(name, names);
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(path[i], "rb");
        printf("%s %zu bytes", i ? ", libpng" : "   ", fread(file, 1, sizeof file, f));
        fclose(f);
        remove(path[i]);
    }
    printf("\n");
    if (mlc_scope_end(ctx) != MLC_OK) exit(2);
}
#endif

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atoi(argv[1]) : rounds;
    if (rounds < 1 || rounds > MOST) return 2;
    ctx = mlc_ctx_create(NULL);
    draw();
#ifndef HAVE_STB
    printf("no stb_image.h here\n");
#endif
#ifdef HAVE_png
    static unsigned char map[64][3], indices[H][W];
    for (int i = 0; i < 64 * 3; i++) map[i / 3][i % 3] = (unsigned char)(i / 3 * 4);
    for (int i = 0; i < H * W; i++) indices[i / W][i % W] = grey[i / W][i % W] / 4;
    row_of("PNG, photo", put_png(photo, PNG_FORMAT_RGB, NULL), "libpng", by_libpng, 0);
    row_of("PNG, grey photo", put_png(grey, PNG_FORMAT_GRAY, NULL), "libpng", by_libpng, 0);
    row_of("PNG, 64 colours", put_png(indices, PNG_FORMAT_RGB_COLORMAP, map), "libpng",
           by_libpng, 0);
    row_of("PNG, graphic", put_png(graphic, PNG_FORMAT_RGB, NULL), "libpng", by_libpng, 0);
    written("PNG of a photo, written", photo[0][0]);
    written("PNG of a graphic, written", graphic[0][0]);
#else
    printf("no libpng here: no PNG files\n");
#endif
#ifdef HAVE_jpeg
    row_of("JPEG, photo", put_jpeg(photo[0][0], 3), "libjpeg", by_libjpeg, 2);
    row_of("JPEG, grey photo", put_jpeg(grey[0], 1), "libjpeg", by_libjpeg, 2);
    row_of("JPEG, graphic", put_jpeg(graphic[0][0], 3), "libjpeg", by_libjpeg, 2);
#else
    printf("no libjpeg here: no JPEG files\n");
#endif
    if (wrong) printf("%d rows with pixels that differ\n", wrong);
    mlc_ctx_free(ctx);
    return wrong > 0;
}
