/* files.h -- a folder of its own for a test, whole files in and out; POSIX
 *
 * Define _POSIX_C_SOURCE 200809L and _DEFAULT_SOURCE before any include.
 */
#ifndef FILES_H
#define FILES_H

#include "mlc_test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__GNUC__)
#  define FILES_FN static __attribute__((unused))
#else
#  define FILES_FN static
#endif

/* ---- a folder of its own for each test ---------------------------------------------------- */

typedef struct box { char dir[256], path[320]; } box;

/* In a folder within root; NULL: TMPDIR or /tmp. */
FILES_FN box box_open_in(const char *root, const char *file)
{
    box b;
    if (!root) root = getenv("TMPDIR");
    snprintf(b.dir, sizeof b.dir, "%s/mlcore_io_XXXXXX", root && *root ? root : "/tmp");
    if (!mkdtemp(b.dir)) { perror(b.dir); exit(2); }
    snprintf(b.path, sizeof b.path, "%s/%s", b.dir, file);
    return b;
}

FILES_FN box box_open(const char *file) { return box_open_in(NULL, file); }

/* In a folder in memory, if the system has one: thousands of fsync are slow on a disk.         */
FILES_FN box box_open_fast(const char *file)
{
#ifdef __linux__
    if (access("/dev/shm", W_OK) == 0) return box_open_in("/dev/shm", file);
#endif
    return box_open(file);
}

/* As mkdir for the user alone. */
FILES_FN int folder_make(const char *path)
{
#ifdef _WIN32
    return mkdir(path);
#else
    return mkdir(path, 0700);
#endif
}

/* Number of entries in the folder: a temporary file that was not removed counts. */
FILES_FN int box_count(const box *b)
{
    DIR *d = opendir(b->dir);
    int  n = 0;
    for (struct dirent *e; d && (e = readdir(d)); )
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

/* Removes a folder with its files. */
FILES_FN void folder_remove(const char *folder)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)); ) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) remove(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

FILES_FN void box_close(const box *b) { folder_remove(b->dir); }

FILES_FN bool put_file(const char *path, const void *bytes, size_t n)
{
    FILE *f  = fopen(path, "wb");
    bool  ok = f && fwrite(bytes, 1, n, f) == n;
    return (!f || fclose(f) == 0) && ok;
}

/* Whole file, in memory the caller frees; *n is 0 if there is none. */
FILES_FN unsigned char *get_file(const char *path, size_t *n)
{
    FILE          *f = fopen(path, "rb");
    unsigned char *p = NULL;
    *n = 0;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long size = ftell(f);
        p = (unsigned char *)malloc((size_t)size + 1);
        rewind(f);
        *n = fread(p, 1, (size_t)size, f);
        p[*n] = 0;
    }
    if (f) fclose(f);
    return p;
}

/* ---- zips ----------------------------------------------------------------------------------- */

FILES_FN void put_le(unsigned char *p, int bytes, uint64_t v)
{
    for (int i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> 8 * i);
}

FILES_FN uint32_t zip_crc(const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    uint32_t             c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++) c = c & 1u ? c >> 1 ^ 0xedb88320u : c >> 1;
    }
    return ~c;
}

/* Adler-32 by its definition. */
FILES_FN uint32_t adler(const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    uint32_t             a = 1, b = 0;
    for (size_t i = 0; i < n; i++) { a = (a + p[i]) % 65521; b = (b + a) % 65521; }
    return b << 16 | a;
}

typedef enum zip_wide {                /* numbers that stand elsewhere, in 8 bytes             */
    ZIP_BYTES = 1, ZIP_PACKED = 2, ZIP_OFFSET = 4, ZIP_ALL = 7
} zip_wide;

typedef struct zip_part {
    const char *name;
    const void *data;
    size_t      n;
    int         wide;                  /* zip_wide                                             */
    const void *extra;                 /* extra fields before that of the wide numbers         */
    size_t      extra_n;
} zip_part;

typedef enum zip_end { ZIP_END, ZIP_END64_COUNT, ZIP_END64_BYTES, ZIP_END64_FROM } zip_end;

/* Stored entries, the directory, the end with one of its numbers in a zip64 record; the size.  */
FILES_FN size_t zip_build(unsigned char *to, const zip_part *parts, int count, zip_end end)
{
    size_t at = 0, offset[64];
    for (int i = 0; i < count; i++) {
        const zip_part *p = &parts[i];
        offset[i] = at;
        memset(to + at, 0, 30);
        memcpy(to + at, "PK\3\4", 4);
        put_le(to + at + 26, 2, strlen(p->name));
        memcpy(to + at + 30, p->name, strlen(p->name));
        memcpy(to + at + 30 + strlen(p->name), p->data, p->n);
        at += 30 + strlen(p->name) + p->n;
    }
    const size_t from = at;
    for (int i = 0; i < count; i++) {
        const zip_part *p = &parts[i];
        unsigned char  *r = to + at, *extra = r + 46 + strlen(p->name);
        const uint64_t  numbers[3] = {p->n, p->n, offset[i]};
        size_t          wide = 0;
        memset(r, 0, 46);
        memcpy(r, "PK\1\2", 4);
        put_le(r + 16, 4, zip_crc(p->data, p->n));
        put_le(r + 20, 4, p->wide & ZIP_PACKED ? 0xffffffffu : p->n);
        put_le(r + 24, 4, p->wide & ZIP_BYTES ? 0xffffffffu : p->n);
        put_le(r + 28, 2, strlen(p->name));
        put_le(r + 42, 4, p->wide & ZIP_OFFSET ? 0xffffffffu : offset[i]);
        memcpy(r + 46, p->name, strlen(p->name));
        if (p->extra_n) memcpy(extra, p->extra, p->extra_n);
        extra += p->extra_n;
        for (int k = 0; k < 3; k++)
            if (p->wide & 1 << k) put_le(extra + 4 + 8 * wide++, 8, numbers[k]);
        if (wide) put_le(extra, 2, 1);
        if (wide) put_le(extra + 2, 2, 8 * wide);
        put_le(r + 30, 2, p->extra_n + (wide ? 4 + 8 * wide : 0));
        at += 46 + strlen(p->name) + p->extra_n + (wide ? 4 + 8 * wide : 0);
    }
    const size_t bytes = at - from;
    if (end != ZIP_END) {
        unsigned char *r = to + at;
        memset(r, 0, 76);
        memcpy(r, "PK\6\6", 4);
        put_le(r + 4, 8, 44);
        put_le(r + 32, 8, (uint64_t)count);
        put_le(r + 40, 8, bytes);
        put_le(r + 48, 8, from);
        memcpy(r + 56, "PK\6\7", 4);
        put_le(r + 64, 8, at);
        at += 76;
    }
    memset(to + at, 0, 22);
    memcpy(to + at, "PK\5\6", 4);
    put_le(to + at + 10, 2, end == ZIP_END64_COUNT ? 0xffffu : (uint64_t)count);
    put_le(to + at + 12, 4, end == ZIP_END64_BYTES ? 0xffffffffu : bytes);
    put_le(to + at + 16, 4, end == ZIP_END64_FROM ? 0xffffffffu : from);
    return at + 22;
}

/* ---- PNG ------------------------------------------------------------------------------------ */

FILES_FN void put_be32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(v >> (24 - 8 * i));
}

/* A chunk at byte `at` of a file; returns where the next one begins. */
FILES_FN size_t put_chunk(unsigned char *file, size_t at, const char *name, const void *data,
                          size_t n)
{
    put_be32(file + at, (uint32_t)n);
    memcpy(file + at + 4, name, 4);
    if (n) memcpy(file + at + 8, data, n);
    put_be32(file + at + 8 + n, zip_crc(file + at + 4, n + 4));
    return at + 12 + n;
}

#endif
