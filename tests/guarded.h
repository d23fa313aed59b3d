/* guarded.h -- for tests of kernels: buffers that end where the next page is unreadable
 *
 * Define _DEFAULT_SOURCE before any include.
 */
#ifndef GUARDED_H
#define GUARDED_H

#include "mlc_test.h"

#include <sys/mman.h>
#include <unistd.h>

#define GUARDED ((size_t)8 << 20)
#define ROLES   9                      /* buffers a kernel is given at once                    */

/* Memory for bytes that end at a guard page; each role has one such buffer for the process.   */
static inline void *guarded(int role, size_t bytes)
{
    static char *buffer[ROLES];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > GUARDED)
        abort();
    if (buffer[role] == NULL) {
        char *p = (char *)mmap(NULL, GUARDED + page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + GUARDED, page, PROT_NONE) != 0)
            abort();
        buffer[role] = p;
    }
    return buffer[role] + GUARDED - bytes;
}

#define CANARY 64

/* guarded memory with bytes before it that nothing may change.                                */
static inline void *caged(int role, size_t bytes)
{
    char *p = (char *)guarded(role, bytes + CANARY);
    memset(p, 0x5c, CANARY);
    memset(p + CANARY, 0xa7, bytes);
    return p + CANARY;
}

static inline bool cage_holds(const void *p)
{
    for (int i = 1; i <= CANARY; i++)
        if (((const unsigned char *)p)[-i] != 0x5c)
            return false;
    return true;
}

static inline size_t size_of(mlc_dtype dtype)
{
    return mlc_dtype_bytes(dtype);
}

static inline void put(void *p, mlc_dtype dtype, int64_t i, double v)
{
    test_put(p, dtype, i, v);
}

static inline double get(const void *p, mlc_dtype dtype, int64_t i)
{
    return test_get(p, dtype, i);
}

static inline void *guarded_rand(int role, mlc_dtype dtype, int64_t n, uint64_t seed, double lo,
                          double hi)
{
    void *p = guarded(role, (size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++)
        put(p, dtype, i, test_random(seed, i, lo, hi));
    return p;
}

/* Equal bit for bit, but that one NaN is as good as another.                                  */
static inline bool same_bits(const void *a, const void *b, mlc_dtype dtype, int64_t n)
{
    const size_t size = size_of(dtype);
    for (int64_t i = 0; i < n; i++) {
        double x = dtype == MLC_I64 ? 0 : get(a, dtype, i), y = dtype == MLC_I64 ? 0
                                                                : get(b, dtype, i);
        if (memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size)
            && !(isnan(x) && isnan(y))) {
            printf("  element %" PRId64 " of %" PRId64 ": %.17g against %.17g\n", i, n, x, y);
            return false;
        }
    }
    return true;
}

/* Runs the body for each level above scalar, with k its row and scalar the lowest row.        */
#define FOR_EACH_ROW(k, isa) \
    for (int isa = MLC_ISA_SCALAR + 1; isa <= (int)test_isa_top(); isa++) \
        for (const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa); k != NULL; k = NULL)

static inline const mlc_kernels *scalar_row(void)
{
    return mlc_cpu_kernels(MLC_ISA_SCALAR);
}

static inline void *copy_of(const void *p, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    if (copy == NULL)
        abort();
    memcpy(copy, p, bytes);
    return copy;
}

/* Values that formulas end at. */
static const double SPECIAL[] = {0.0, -0.0, 1.0, -1.0, INF, -INF, NO_NUMBER, 88.7, -103.9,
                                 1e-38, -1e-38, 3.4e38, 1e-30, 709.7, -745.1, 0.5};
#define SPECIALS ((int64_t)(sizeof SPECIAL / sizeof *SPECIAL))

#endif
