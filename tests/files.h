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

/* Number of entries in the folder: a temporary file left behind shows here. */
FILES_FN int box_count(const box *b)
{
    DIR *d = opendir(b->dir);
    int  n = 0;
    for (struct dirent *e; d && (e = readdir(d)); )
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

FILES_FN void box_close(const box *b)
{
    DIR *d = opendir(b->dir);
    for (struct dirent *e; d && (e = readdir(d)); ) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", b->dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) remove(path);
    }
    if (d) closedir(d);
    rmdir(b->dir);
}

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

#endif
