/* flash.h -- memory that cannot be written, as a microcontroller's flash: a write ends the test
 *
 * Where the system protects pages; elsewhere a plain copy. The data ends where the pages end; a
 * read after them ends the test, too. Define _DEFAULT_SOURCE before any include.
 */
#ifndef FLASH_H
#define FLASH_H

#include "mlc_test.h"

#if defined(__unix__) || defined(__APPLE__)
#  include <sys/mman.h>
#  include <unistd.h>
#  define FLASH_PAGES 1
#else
#  define FLASH_PAGES 0
#endif
#if !defined(MAP_ANONYMOUS) && defined(MAP_ANON)
#  define MAP_ANONYMOUS MAP_ANON
#endif

typedef struct flash {
    const void *data;
    void       *pages;
    size_t      bytes;                 /* of all pages                                         */
} flash;

/* n bytes of data; `short_of` bytes before the end, which says how they are aligned. */
static inline flash flash_of(const void *data, size_t n, size_t short_of)
{
    flash f = {NULL, NULL, 0};
#if FLASH_PAGES
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t own = (n + short_of + page - 1) / page * page;
    f.bytes = own + page;
    f.pages = mmap(NULL, f.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f.pages == MAP_FAILED) { perror("mmap"); exit(2); }
    char *at = (char *)f.pages + own - short_of - n;
    memcpy(at, data, n);
    if (mprotect(f.pages, own, PROT_READ) != 0 ||
        mprotect((char *)f.pages + own, page, PROT_NONE) != 0) { perror("mprotect"); exit(2); }
#else
    f.pages = malloc(n + short_of + 64);
    if (f.pages == NULL) exit(2);
    char *at = (char *)f.pages + (64 - (n + short_of) % 64) % 64;
    memcpy(at, data, n);
#endif
    f.data = at;
    return f;
}

static inline void flash_free(const flash *f)
{
#if FLASH_PAGES
    munmap(f->pages, f->bytes);
#else
    free(f->pages);
#endif
}

#endif
