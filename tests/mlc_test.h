/* mlc_test.h -- the test harness: self-registering tests, checks that go on after a failure
 *
 * All tests/test_*.c are linked into one program with the device of tests/device.c; tests/main.c
 * defines MLC_TEST_MAIN and so holds the implementation below. Nothing here depends on time or on
 * the library's generator.
 *     TEST(matmul, is_associative_within_rounding)
 *     {
 *         mlc_ctx *ctx = test_ctx();
 *         CHECK_EQ(mlc_numel(mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 5))), 15);
 *         CHECK_OK(ctx);
 *     }
 * Environment: MLC_TEST_DEVICE=test runs on that device, MLC_ISA=scalar|avx2 lowers the level,
 * MLC_TEST_LOCALE=de_DE.UTF-8 sets a locale, as many programs do. MLC_TEST_SOAK=1 makes some tests
 * take minutes; MLC_TEST_BRIEF=1 lets those of many sizes take some of them only, for programs that
 * differ little from one that has run them all, or run slowly. MLC_TEST_LACKS=1 skips, and counts,
 * tests from where they need a kernel that the device lacks. A test which makes no check counts as
 * failed.
 */
#ifndef MLC_TEST_H
#define MLC_TEST_H

#include "../mlcore.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct test_case {
    const char       *group, *name;
    void            (*run)(void);
    struct test_case *next;
} test_case;

#define TEST(group, name) \
    static void test_##group##__##name(void); \
    __attribute__((constructor)) static void test_##group##__##name##_add(void) \
    { \
        static test_case self = {#group, #name, test_##group##__##name, NULL}; \
        test_register(&self); \
    } \
    static void test_##group##__##name(void)

#define INF       ((double)INFINITY)   /* INFINITY and NAN are floats                          */
#define NO_NUMBER ((double)NAN)

/* A NaN whose lowest 9 bits as f32 are these, which an exponential must not take for a number. */
static inline double no_number_of(uint32_t bits)
{
    const uint64_t u = 0x7ff8000000000000u | (uint64_t)bits << 29;
    double         x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Each check returns true if it held, so that a test can stop: if (!CHECK(t)) return; CHECK_EQ is
 * for integers: | 0 makes a float, which would be truncated, a compiler error.               */
#define CHECK(cond)               test_check(!!(cond), #cond, __FILE__, __LINE__)
#define CHECK_EQ(a, b) \
    test_eq((int64_t)((a) | 0), (int64_t)((b) | 0), #a, __FILE__, __LINE__)
#define CHECK_NEAR(got, want, tol) test_near(got, want, tol, #got, __FILE__, __LINE__)
#define CHECK_STR(got, want)      test_str(got, want, #got, __FILE__, __LINE__)
#define CHECK_HAS(text, part)     test_has(text, part, #text, __FILE__, __LINE__)
#define CHECK_STATUS(ctx, status) test_status(ctx, status, __FILE__, __LINE__)
/* The context's error has this status, and part in its text; it is cleared. */
#define CHECK_ERROR(ctx, status, part) \
    do { CHECK_HAS(mlc_error(ctx), part); CHECK_STATUS(ctx, status); } while (0)
#define CHECK_OK(ctx)             test_ok(ctx, __FILE__, __LINE__)
#define CHECK_VALUES(t, n, want, atol, rtol) \
    test_values(t, n, want, atol, rtol, #t, __FILE__, __LINE__)

/* test_clock_begin: replaces the library's clock by one that advances by test_clock_pass, and by
 *   step seconds each time it is read. False where it cannot be replaced. test_clock_end:
 *   restores the system's clock; a test that calls the first must call the second.           */
bool test_clock_begin(double step);
void test_clock_pass(double seconds);
void test_clock_end(void);

/* The body runs once for each ISA level up to MLC_ISA, on a fresh context of that level.      */
#define FOR_EACH_ISA(ctx) \
    for (mlc_ctx *ctx = test_isa_ctx(MLC_ISA_SCALAR); ctx != NULL; \
         ctx = test_isa_ctx(test_level_after(test_isa_now())))
/* The levels themselves, for tests that call kernels: mlc_cpu_kernels((mlc_isa)isa).          */
#define FOR_EACH_LEVEL(isa) \
    for (int isa = MLC_ISA_SCALAR; isa != MLC_ISA_AUTO; isa = test_level_after((mlc_isa)isa))

/* test_ctx: a fresh context of the current device and level; freed when the test ends.        */
mlc_ctx *test_ctx(void);
/* test_poisoned_ctx: the same with memory that has all bits set at first, NaN in every float.  */
mlc_ctx *test_poisoned_ctx(void);
/* test_desc: a desc of the current device, for tests that create (and free) their own.        */
mlc_ctx_desc test_desc(void);
/* test_own: lets the harness free ctx when the test ends; returns ctx.                        */
mlc_ctx *test_own(mlc_ctx *ctx);
/* test_on_card: true on a GPU, where exp, log and the like are its own to the last bits, products
 * are cuBLASLt's, whose order of additions depends on the sizes, and a NaN has no payload.     */
bool test_on_card(void);
/* test_on_host: false when the suite runs on a device the host cannot touch.                  */
bool test_on_host(void);
/* test_cpu_kernels: false on a device with kernels of its own: "cuda".                        */
bool test_cpu_kernels(void);
/* ONLY_ON_HOST: returns from a test that only makes sense on the host.                        */
#define ONLY_ON_HOST() do { CHECK(true); if (!test_on_host()) return; } while (0)
/* test_soak: true if there is time: `make soak`.                                              */
bool test_soak(void);
/* test_stride: the step from one size to the next: 1, or `brief` with MLC_TEST_BRIEF.         */
int64_t test_stride(int64_t brief);
/* test_isa_top: the best level of this CPU, or what MLC_ISA lowers it to.                     */
mlc_isa test_isa_top(void);
/* test_level_after: the next level that this CPU has, up to the top one; after it AUTO.       */
mlc_isa test_level_after(mlc_isa isa);
/* test_tensor: a tensor of these row-major values, converted to dtype.                        */
mlc_tensor *test_tensor(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, const double *values);
/* test_rand: uniform in [lo, hi), a function of seed and index only.                          */
mlc_tensor *test_rand(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, uint64_t seed, double lo,
                      double hi);
/* test_tokens: i64 in [0, vocab): number i is (7 i^2 + 3 i + seed) mod vocab, as the goldens of
 * make_language_goldens.py have it.                                                           */
mlc_tensor *test_tokens(mlc_ctx *ctx, mlc_dims dims, int64_t vocab, int64_t seed);
/* test_unused_strides: t's numbers, dense, in a tensor whose axes of size 1 have a stride that
 * leads to NaN or other rows; on a device that the host cannot touch a copy. -DMLC_TEST_STRIDES
 * gives all tensors worse ones.                                                               */
mlc_tensor *test_unused_strides(mlc_tensor *t);
/* test_random: the value that test_rand gives to element i, before rounding to a dtype.       */
double test_random(uint64_t seed, int64_t i, double lo, double hi);
/* test_put: writes v as element i of host data of a dtype; conversions of its own, so that the
 * library's are tested against them: one rounding to nearest even, integers truncated.        */
void test_put(void *data, mlc_dtype dtype, int64_t i, double v);
/* test_get: element i of host data of a dtype.                                                */
double test_get(const void *data, mlc_dtype dtype, int64_t i);
/* test_read: all elements as doubles, on any device; a failed check if that cannot be.        */
bool test_read(mlc_tensor *t, double *out);

/* test_leave: ends the running test as neither passed nor failed: it has called a function that
 * this build of the implementation leaves out. See tests/families.py.                        */
void test_leave(const char *name);

/* test_lacks: for the logger of a test that sets one. With MLC_TEST_LACKS, if the text says that
 * a kernel is missing, a check of the running test that fails from here on, or a crash, ends the
 * test as skipped.                                                                           */
void test_lacks(const char *text);

/* test_aligned_alloc, test_aligned_free: what an allocator of the program's own would call.    */
void *test_aligned_alloc(size_t align, size_t bytes);
void test_aligned_free(void *ptr);
#ifdef _WIN32
char *mkdtemp(char *name);
int setenv(const char *name, const char *value, int over);
int unsetenv(const char *name);
#endif

/* test_failures: checks of the running test that did not hold so far.                         */
int64_t test_failures(void);
/* test_device_refuses: if set, asked at every allocation of device memory: true fails it.     */
extern bool (*test_device_refuses)(void);
/* test_device_leaked: blocks that were alive when their device was closed, since the start.   */
int64_t test_device_leaked(void);

/* test_strtod: the number, whatever the locale.                                               */
double test_strtod(const char *text);
/* test_print_g17: %.17g, whatever the locale; returns the length.                             */
int test_print_g17(char *to, double x);

/* Functions that the macros call.                                                             */
void test_register(test_case *t);
mlc_ctx *test_isa_ctx(mlc_isa isa);
mlc_isa test_isa_now(void);
bool test_check(bool held, const char *what, const char *file, int line);
bool test_eq(int64_t a, int64_t b, const char *what, const char *file, int line);
bool test_near(double got, double want, double tol, const char *what, const char *file, int line);
bool test_str(const char *got, const char *want, const char *what, const char *file, int line);
bool test_has(const char *text, const char *part, const char *what, const char *file, int line);
bool test_status(mlc_ctx *ctx, mlc_status want, const char *file, int line);
bool test_ok(mlc_ctx *ctx, const char *file, int line);
bool test_values(mlc_tensor *t, int64_t n, const double *want, double atol, double rtol,
                 const char *what, const char *file, int line);

/* Contexts that a test makes itself, so that those of a test that is skipped are freed, too.    */
mlc_ctx *test_ctx_made(mlc_ctx *ctx);
mlc_ctx *test_ctx_freed(mlc_ctx *ctx);
#define mlc_ctx_create(desc) test_ctx_made(mlc_ctx_create(desc))
#define mlc_ctx_free(ctx)    mlc_ctx_free(test_ctx_freed(ctx))

#ifdef MLC_TEST_MAIN

#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

enum { TEST_LEAVES = 1, TEST_SKIPS };  /* values that longjmp gives test_g.leave               */

static struct {
    test_case  *first, **last, *now;
    int64_t     checks, failures;      /* of the running test                                  */
    mlc_ctx   **ctx;                   /* to be freed when it ends                             */
    int         n_ctx, room;
    mlc_ctx    *made[64];              /* by mlc_ctx_create, and not freed                      */
    int         n_made;
    mlc_isa     isa;
    const char *device, *locale;
    FILE       *trace;                 /* of --trace: a line a test                            */
    uint64_t    hash;                  /* of the bits of all numbers that the test read        */
    int64_t     n_hashed;
    char        names[MLC_ISA_COUNT][32];                  /* of the device, for each level    */
    jmp_buf     leave;                 /* of the running test, by this thread of this process  */
    pthread_t   thread;
    pid_t       process;
    int64_t     left;                  /* tests that were left                                 */
    char        lacks[64];             /* the kernel that the running test lacks               */
    struct { char what[64]; int64_t tests; } lacked[64];
    int         n_lacked;
    int64_t     skipped;
} test_g;

void test_register(test_case *t)
{
    if (test_g.last == NULL)
        test_g.last = &test_g.first;
    *test_g.last = t;
    test_g.last = &t->next;
}

/* ---- checks ------------------------------------------------------------------------------- */

/* FNV-1a over the bits of n numbers; a conversion from a smaller dtype to double loses none. NaN
 * is one value: its sign and payload are a matter of the instruction that made it.              */
static void test_trace(const double *x, int64_t n)
{
    for (int64_t i = 0; test_g.trace && i < n; i++) {
        const double v = isnan(x[i]) ? (double)NAN : x[i];
        unsigned char byte[sizeof v];
        memcpy(byte, &v, sizeof v);
        for (size_t k = 0; k < sizeof v; k++)
            test_g.hash = (test_g.hash ^ byte[k]) * UINT64_C(0x100000001B3);
    }
    test_g.n_hashed += n;
}

static bool test_asked(const char *variable)
{
    const char *is = getenv(variable);
    return is != NULL && *is != 0 && strcmp(is, "0") != 0;
}

/* Only the thread that runs the test can leave it.                                            */
static bool test_may_leave(void)
{
    return getpid() == test_g.process && pthread_equal(pthread_self(), test_g.thread);
}

void test_lacks(const char *text)
{
    const char *at = strstr(text, "has no kernel ");
    if (!at) at = strstr(text, "keeps states in f32 alone");
    if (!at || test_g.lacks[0] || !test_asked("MLC_TEST_LACKS") || !test_may_leave()) return;
    at += *at == 'h' ? strlen("has no kernel ") : 0;
    snprintf(test_g.lacks, sizeof test_g.lacks, "%.*s", (int)strcspn(at, ";"), at);
    if (*at == '\'') test_g.lacks[2 + strcspn(at + 1, "'")] = 0;
}

static void test_logs(void *user, mlc_log_level level, const char *text)
{
    (void)user; (void)level;
    test_lacks(text);
}

static bool test_result(bool held, const char *file, int line)
{
    test_g.checks++;
    if (held)
        return true;
    if (test_g.lacks[0] && test_g.failures == 0 && test_may_leave())
        longjmp(test_g.leave, TEST_SKIPS);
    test_g.failures++;
    printf("%s:%d: %s.%s: ", file, line, test_g.now->group, test_g.now->name);
    return false;
}

int64_t test_failures(void)
{
    return test_g.failures;
}

bool test_check(bool held, const char *what, const char *file, int line)
{
    if (!test_result(held, file, line))
        printf("does not hold: %s\n", what);
    return held;
}

bool test_eq(int64_t a, int64_t b, const char *what, const char *file, int line)
{
    if (!test_result(a == b, file, line))
        printf("%s is %" PRId64 ", want %" PRId64 "\n", what, a, b);
    return a == b;
}

/* NaN equals NaN; an infinity equals only itself.                                             */
static bool test_close(double got, double want, double tol)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want);
    return got == want || (isfinite(got) && isfinite(want) && fabs(got - want) <= tol);
}

bool test_near(double got, double want, double tol, const char *what, const char *file, int line)
{
    bool held = test_close(got, want, tol);
    test_trace(&got, 1);
    if (!test_result(held, file, line))
        printf("%s is %.17g, want %.17g +- %g\n", what, got, want, tol);
    return held;
}

bool test_str(const char *got, const char *want, const char *what, const char *file, int line)
{
    bool held = got != NULL && want != NULL && strcmp(got, want) == 0;
    if (!test_result(held, file, line))
        printf("%s is\n  \"%s\", want\n  \"%s\"\n", what, got ? got : "(NULL)",
               want ? want : "(NULL)");
    return held;
}

bool test_has(const char *text, const char *part, const char *what, const char *file, int line)
{
    bool held = text != NULL && strstr(text, part) != NULL;
    if (!test_result(held, file, line))
        printf("%s is\n  \"%s\", which lacks \"%s\"\n", what, text ? text : "(NULL)", part);
    return held;
}

bool test_status(mlc_ctx *ctx, mlc_status want, const char *file, int line)
{
    mlc_status got = mlc_ctx_status(ctx);
    if (!test_result(got == want, file, line))
        printf("status is %s (%s), want %s\n", mlc_status_name(got),
               got == MLC_OK ? "" : mlc_error(ctx), mlc_status_name(want));
    mlc_error_clear(ctx);
    return got == want;
}

bool test_ok(mlc_ctx *ctx, const char *file, int line)
{
    mlc_status got = mlc_ctx_status(ctx);
    if (!test_result(got == MLC_OK, file, line))
        printf("%s: %s\n", mlc_status_name(got), mlc_error(ctx));
    return got == MLC_OK;
}

bool test_values(mlc_tensor *t, int64_t n, const double *want, double atol, double rtol,
                 const char *what, const char *file, int line)
{
    bool    held = t != NULL && mlc_numel(t) == n;
    double *got;
    if (!test_result(held, file, line)) {
        printf("%s is %s with %" PRId64 " elements, want %" PRId64 "\n", what,
               t ? "a tensor" : "NULL", mlc_numel(t), n);
        for (int i = 0; i < test_g.n_ctx; i++)
            if (mlc_ctx_status(test_g.ctx[i]) != MLC_OK)
                printf("  error: %s\n", mlc_error(test_g.ctx[i]));
        return false;
    }
    got = (double *)malloc((size_t)(n > 0 ? n : 1) * sizeof *got);
    held = test_read(t, got);
    for (int64_t i = 0; held && i < n; i++) {
        held = test_close(got[i], want[i], atol + rtol * fabs(want[i]));
        if (!held && !test_result(false, file, line))
            printf("%s: element %" PRId64 " is %.17g, want %.17g\n", what, i, got[i], want[i]);
    }
    free(got);
    return held;
}

#ifdef _WIN32
#include <io.h>
#include <malloc.h>
void *test_aligned_alloc(size_t align, size_t bytes) { return _aligned_malloc(bytes, align); }
void test_aligned_free(void *ptr) { _aligned_free(ptr); }
char *mkdtemp(char *name) { return _mktemp(name) && mkdir(name) == 0 ? name : NULL; }
int setenv(const char *name, const char *value, int over)
{
    return (void)over, _putenv_s(name, value);
}
int unsetenv(const char *name) { return _putenv_s(name, ""); }
#else
void *test_aligned_alloc(size_t align, size_t bytes)
{
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
void test_aligned_free(void *ptr) { free(ptr); }
#endif

/* ---- contexts ----------------------------------------------------------------------------- */

bool test_on_host(void)
{
    return test_g.device == NULL;
}

bool test_on_card(void)
{
    return test_asked("MLC_TEST_CARD");
}

bool test_soak(void)
{
    return test_asked("MLC_TEST_SOAK");
}

int64_t test_stride(int64_t brief)
{
    return test_asked("MLC_TEST_BRIEF") ? brief : 1;
}

mlc_isa test_isa_top(void)
{
    const char *lower = getenv("MLC_ISA");
    mlc_isa     top = MLC_ISA_SCALAR;
    for (int i = MLC_ISA_SCALAR; i < MLC_ISA_COUNT; i++) {
        if (mlc_cpu_kernels((mlc_isa)i) == NULL)
            continue;
        top = (mlc_isa)i;
        if (lower != NULL && strcmp(lower, mlc_isa_name(top)) == 0)
            break;
    }
    return top;
}

bool test_cpu_kernels(void)
{
    return test_g.device == NULL || strcmp(test_g.device, "test") == 0;
}

/* Kernels of other devices have no levels: loops over levels run once there.                   */
mlc_isa test_level_after(mlc_isa isa)
{
    if (!test_cpu_kernels())
        return MLC_ISA_AUTO;
    for (int i = (int)isa + 1; i <= (int)test_isa_top(); i++)
        if (mlc_cpu_kernels((mlc_isa)i) != NULL)
            return (mlc_isa)i;
    return MLC_ISA_AUTO;
}

mlc_ctx *test_own(mlc_ctx *ctx)
{
    if (ctx == NULL)
        return NULL;
    if (test_g.n_ctx == test_g.room) {
        test_g.room = test_g.room * 2 + 16;
        test_g.ctx = (mlc_ctx **)realloc(test_g.ctx, (size_t)test_g.room * sizeof *test_g.ctx);
        if (test_g.ctx == NULL)
            abort();
    }
    test_g.ctx[test_g.n_ctx++] = ctx;
    return ctx;
}

mlc_ctx *test_ctx_made(mlc_ctx *ctx)
{
    enum { MOST = (int)(sizeof test_g.made / sizeof *test_g.made) };
    if (ctx != NULL && test_may_leave() && test_g.n_made < MOST)
        test_g.made[test_g.n_made++] = ctx;
    return ctx;
}

mlc_ctx *test_ctx_freed(mlc_ctx *ctx)
{
    int i = 0;
    if (!test_may_leave()) return ctx;
    while (i < test_g.n_made && test_g.made[i] != ctx) i++;
    if (i < test_g.n_made) test_g.made[i] = test_g.made[--test_g.n_made];
    return ctx;
}

/* The backend of device.c takes its level from the index: "test:2" is avx2.                   */
static mlc_ctx_desc test_desc_isa(mlc_isa isa)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.isa = isa;
    d.threads = 2;
    d.device = test_g.device != NULL ? test_g.names[isa] : NULL;
    if (test_asked("MLC_TEST_LACKS"))
        d.log = test_logs;
    return d;
}

static void test_set_device(const char *device)
{
    if (device == NULL || *device == 0 || strcmp(device, "cpu") == 0)
        return;
    test_g.device = device;
    const bool levels = strcmp(device, "test") == 0;
    for (int i = 0; i < MLC_ISA_COUNT; i++)
        snprintf(test_g.names[i], sizeof test_g.names[i], levels ? "%s:%d" : "%s", device, i);
}

mlc_ctx_desc test_desc(void)
{
    return test_desc_isa(test_isa_top());
}

static mlc_ctx *test_ctx_isa(mlc_isa isa)
{
    mlc_ctx_desc d = test_desc_isa(isa);
    mlc_status   status = MLC_OK;
    mlc_ctx     *ctx;
    d.status = &status;
    ctx = (mlc_ctx_create)(&d);
    if (ctx == NULL) {
        fprintf(stderr, "no context of device %s, level %s: %s\n", d.device ? d.device : "cpu",
                mlc_isa_name(isa), mlc_status_name(status));
        exit(2);
    }
    return test_own(ctx);
}

mlc_ctx *test_ctx(void)
{
    return test_ctx_isa(test_isa_top());
}

static void *test_poisoned(void *user, size_t bytes, size_t align)
{
    void *p = test_aligned_alloc(align, bytes);
    (void)user;
    if (p != NULL) memset(p, 0xff, bytes);
    return p;
}

static void test_poisoned_release(void *user, void *p, size_t bytes)
{
    (void)user; (void)bytes;
    test_aligned_free(p);
}

mlc_ctx *test_poisoned_ctx(void)
{
    mlc_ctx_desc d = test_desc();
    d.allocator.alloc = test_poisoned;
    d.allocator.release = test_poisoned_release;
    return test_own(mlc_ctx_create(&d));
}

mlc_ctx *test_isa_ctx(mlc_isa isa)
{
    test_g.isa = isa;
    return isa == MLC_ISA_AUTO ? NULL : test_ctx_isa(isa);
}

mlc_isa test_isa_now(void)
{
    return test_g.isa;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static int64_t test_count(mlc_dims dims)
{
    int64_t n = 1;
    for (int32_t i = 0; i < dims.n; i++)
        n *= dims.v[i];
    return n;
}

/* Bits of v in a 16-bit float with so many bits of exponent and fraction.                      */
static uint16_t test_half_bits(double v, int exponent, int fraction)
{
    const int      bias = (1 << (exponent - 1)) - 1;
    const uint32_t inf = ((1u << exponent) - 1) << fraction, sign = signbit(v) ? 0x8000u : 0;
    int            e;
    if (isnan(v) || isinf(v))
        return (uint16_t)(sign | inf | (isnan(v) ? 1u << (fraction - 1) : 0));
    frexp(v, &e);
    e = e - 1 < 1 - bias || v == 0 ? 1 - bias : e - 1;
    if (e > bias)
        return (uint16_t)(sign | inf);
    uint32_t u = ((uint32_t)(e + bias - 1) << fraction) +
                 (uint32_t)nearbyint(ldexp(fabs(v), fraction - e));
    return (uint16_t)(sign | (u < inf ? u : inf));
}

static double test_half_value(uint16_t h, int exponent, int fraction)
{
    const int    bias = (1 << (exponent - 1)) - 1;
    const int    e = (h & 0x7fff) >> fraction, m = h & ((1 << fraction) - 1);
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (e == (1 << exponent) - 1)
        return m ? (double)NAN : sign * (double)INFINITY;
    return sign * ldexp(e ? (1 << fraction) + m : m, (e ? e : 1) - bias - fraction);
}

void test_put(void *data, mlc_dtype dtype, int64_t i, double v)
{
    switch (dtype) {
    case MLC_F32:  ((float *)data)[i] = (float)v; break;
    case MLC_F64:  ((double *)data)[i] = v; break;
    case MLC_I64:  ((int64_t *)data)[i] = (int64_t)v; break;
    case MLC_BF16: ((uint16_t *)data)[i] = test_half_bits(v, 8, 7); break;
    case MLC_F16:  ((uint16_t *)data)[i] = test_half_bits(v, 5, 10); break;
    case MLC_I32:  ((int32_t *)data)[i] = (int32_t)(int64_t)v; break;
    case MLC_I8:   ((int8_t *)data)[i] = (int8_t)(int64_t)v; break;
    case MLC_U8:   ((uint8_t *)data)[i] = (uint8_t)(int64_t)v; break;
    default:       ((uint8_t *)data)[i] = v != 0; break;
    }
}

double test_get(const void *data, mlc_dtype dtype, int64_t i)
{
    switch (dtype) {
    case MLC_F32:  return (double)((const float *)data)[i];
    case MLC_F64:  return ((const double *)data)[i];
    case MLC_I64:  return (double)((const int64_t *)data)[i];
    case MLC_BF16: return test_half_value(((const uint16_t *)data)[i], 8, 7);
    case MLC_F16:  return test_half_value(((const uint16_t *)data)[i], 5, 10);
    case MLC_I32:  return (double)((const int32_t *)data)[i];
    case MLC_I8:   return (double)((const int8_t *)data)[i];
    default:       return (double)((const uint8_t *)data)[i];
    }
}

mlc_tensor *test_tensor(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, const double *values)
{
    int64_t     n = test_count(dims);
    void       *data = malloc((size_t)(n > 0 ? n : 1) * 8);
    mlc_tensor *t;
    for (int64_t i = 0; i < n; i++)
        test_put(data, dtype, i, values[i]);
    t = mlc_from(ctx, dtype, dims, data);
    free(data);
    return t;
}

/* splitmix64 of seed and index.                                                               */
double test_random(uint64_t seed, int64_t i, double lo, double hi)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return lo + (hi - lo) * ((double)(z >> 11) * 0x1p-53);
}

mlc_tensor *test_rand(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, uint64_t seed, double lo,
                      double hi)
{
    int64_t     n = test_count(dims);
    double     *values = (double *)malloc((size_t)(n > 0 ? n : 1) * sizeof *values);
    mlc_tensor *t;
    for (int64_t i = 0; i < n; i++)
        values[i] = test_random(seed, i, lo, hi);
    t = test_tensor(ctx, dtype, dims, values);
    free(values);
    return t;
}

mlc_tensor *test_tokens(mlc_ctx *ctx, mlc_dims dims, int64_t vocab, int64_t seed)
{
    int64_t     n = test_count(dims);
    int64_t    *v = (int64_t *)malloc((size_t)(n + 1) * sizeof *v);
    mlc_tensor *t;
    for (int64_t i = 0; i < n; i++)
        v[i] = (i * i * 7 + 3 * i + seed) % vocab;
    t = mlc_from(ctx, MLC_I64, dims, v);
    free(v);
    return t;
}

bool test_read(mlc_tensor *t, double *out)
{
    int64_t n = mlc_numel(t);
    size_t  bytes = t != NULL ? (size_t)n * mlc_dtype_bytes(t->dtype) : 0;
    void   *data = malloc(bytes > 0 ? bytes : 1);
    bool    held = CHECK(t != NULL) && CHECK_EQ(mlc_read(t, data, bytes), MLC_OK);
    for (int64_t i = 0; held && i < n; i++)
        out[i] = test_get(data, t->dtype, i);
    if (held) test_trace(out, n);
    free(data);
    return held;
}

mlc_tensor *test_unused_strides(mlc_tensor *t)
{
    const size_t size = mlc_dtype_bytes(t->dtype), bytes = (size_t)mlc_numel(t) * size;
    int64_t      stride[MLC_MAX_DIMS], step = 1;
    if (!test_on_host()) return mlc_copy(mlc_detach(t));
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        stride[d] = t->shape[d] == 1 ? 41 : step;
        step *= t->shape[d];
    }
    uint8_t *room = mlc_u8(mlc_full(t->ctx, MLC_U8, mlc_dims1((int64_t)bytes + 4096), 255));
    CHECK_EQ(mlc_read(t, room, bytes), MLC_OK);
    return mlc_wrap(t->ctx, t->dtype, mlc_dims_of(t->ndim, t->shape), stride, room);
}

/* ---- the program -------------------------------------------------------------------------- */

/* A test whose operation had no kernel may read results that were never made and crash: it is
 * skipped, and the handler is installed again.                                               */
static void test_crash_skips(int sig)
{
    if (!test_g.lacks[0] || test_g.failures > 0 || sig == SIGABRT || !test_may_leave())
        return;
#ifndef _WIN32
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, sig);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
#endif
    longjmp(test_g.leave, TEST_SKIPS);
}

/* Names the test that crashed, then lets the default action follow.                            */
static void test_crashed(int sig)
{
    signal(sig, test_crashed);         /* which may end here                                   */
    test_crash_skips(sig);
    const char *parts[] = {"\ncrashed in ", test_g.now ? test_g.now->group : "?", ".",
                           test_g.now ? test_g.now->name : "?", "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (write(2, parts[i], strlen(parts[i])) < 0)
            break;
    signal(sig, SIG_DFL);
    raise(sig);
}

/* A handler that a sanitizer has set stays: its report is more detailed.                      */
static void test_catch(int sig)
{
#ifdef _WIN32
    signal(sig, test_crashed);
#else
    struct sigaction old;
    if (sigaction(sig, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        signal(sig, test_crashed);
#endif
}

void test_leave(const char *name)
{
    if (test_may_leave())
        longjmp(test_g.leave, TEST_LEAVES);
    fprintf(stderr, "%s: called where no test can be left\n", name);
    abort();
}

/* Counts the running test among those that lack a kernel.                                     */
static void test_skip(void)
{
    int i = 0;
    printf("- skipped %s.%s: no kernel %s\n", test_g.now->group, test_g.now->name,
           test_g.lacks);
    test_g.skipped++;
    while (i < test_g.n_lacked && strcmp(test_g.lacked[i].what, test_g.lacks) != 0) i++;
    if (i == (int)(sizeof test_g.lacked / sizeof *test_g.lacked)) return;
    if (i == test_g.n_lacked)
        strcpy(test_g.lacked[test_g.n_lacked++].what, test_g.lacks);
    test_g.lacked[i].tests++;
}

static void test_print_skipped(void)
{
    printf("%" PRId64 " skipped, for want of:", test_g.skipped);
    for (int i = 0; i < test_g.n_lacked; i++)
        printf("%s %s %" PRId64, i ? "," : "", test_g.lacked[i].what, test_g.lacked[i].tests);
    puts("");
}

static void test_free_contexts(void)
{
    while (test_g.n_ctx > 0)
        mlc_ctx_free(test_g.ctx[--test_g.n_ctx]);
}

static void test_skipped_frees(void)
{
    test_free_contexts();
    while (test_g.n_made > 0)
        mlc_ctx_free(test_g.made[test_g.n_made - 1]);
}

/* A test that was left may be in the middle of a call: its contexts are not freed. One that is
 * skipped is at one of its checks, so that they are.                                         */
static bool test_run(test_case *t)
{
    test_g.now = t;
    test_g.checks = test_g.failures = test_g.n_hashed = 0;
    test_g.hash = UINT64_C(0xCBF29CE484222325);
    test_g.process = getpid();
    test_g.thread = pthread_self();
    test_g.lacks[0] = 0;
    test_g.n_made = 0;
    test_clock_end();                  /* of one that was left                                 */
    switch (setjmp(test_g.leave)) {
    case 0: break;
    case TEST_SKIPS:
        test_skip();
        test_skipped_frees();
        return true;
    default:
        test_g.left++;
        test_g.n_ctx = 0;
        return test_g.failures == 0;
    }
    t->run();
    if (test_g.trace)
        fprintf(test_g.trace, "%016" PRIx64 " %8" PRId64 "  %s.%s\n", test_g.hash,
                test_g.n_hashed, t->group, t->name);
    if (test_g.checks == 0)
        test_check(false, "a test makes at least one check", __FILE__, __LINE__);
    test_free_contexts();
    return test_g.failures == 0;
}

static bool test_wanted(const test_case *t, const char *filter)
{
    char full[512];
    snprintf(full, sizeof full, "%s.%s", t->group, t->name);
    return strstr(full, filter) != NULL;
}

/* LC_ALL but for messages: tests compare those of strerror.                                   */
static bool test_set_locale(const char *name)
{
    test_g.locale = name != NULL ? name : "C";
    if (name == NULL)
        return true;
#ifdef LC_MESSAGES
    if (setlocale(LC_ALL, name) != NULL && setlocale(LC_MESSAGES, "C") != NULL)
        return true;
#endif
    fprintf(stderr, "no locale %s here\n", name);
    return false;
}

double test_strtod(const char *text)
{
    double x;
    setlocale(LC_NUMERIC, "C");
    x = strtod(text, NULL);
    setlocale(LC_NUMERIC, test_g.locale);
    return x;
}

int test_print_g17(char *to, double x)
{
    int n;
    setlocale(LC_NUMERIC, "C");
    n = sprintf(to, "%.17g", x);
    setlocale(LC_NUMERIC, test_g.locale);
    return n;
}

/* The levels below the one that runs, for the script that runs them all.                      */
static int test_levels(void)
{
    FOR_EACH_LEVEL(i)
        if (i != (int)test_isa_top())
            puts(mlc_isa_name((mlc_isa)i));
    return 0;
}

/* Options: --list, --levels, --times, --filter SUBSTRING of "group.name", --trace FILE.        */
static int test_main(int argc, char **argv)
{
    const char *filter = "";
    bool        list = false, times = false;
    int64_t     passed = 0, failed = 0, in_group = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0) {
            list = true;
        } else if (strcmp(argv[i], "--times") == 0) {
            times = true;
        } else if (strcmp(argv[i], "--levels") == 0) {
            return test_levels();
        } else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
            filter = argv[++i];
        } else if (strcmp(argv[i], "--trace") == 0 && i + 1 < argc &&
                   (test_g.trace = fopen(argv[++i], "w")) != NULL) {
        } else {
            fprintf(stderr, "usage: %s [--list] [--levels] [--times] [--filter SUBSTRING] "
                            "[--trace FILE]\n", argv[0]);
            return 2;
        }
    }
    test_set_device(getenv("MLC_TEST_DEVICE"));
    if (!test_set_locale(getenv("MLC_TEST_LOCALE")))
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_catch(SIGSEGV);
    test_catch(SIGFPE);
    test_catch(SIGABRT);
    for (test_case *t = test_g.first; t != NULL; t = t->next) {
        if (!test_wanted(t, filter))
            continue;
        if (list) {
            printf("%s.%s\n", t->group, t->name);
            continue;
        }
        in_group++;
        clock_t from = clock();
        const int64_t left = test_g.left + test_g.skipped;
        if (!test_run(t))
            failed++;
        else if (test_g.left + test_g.skipped == left)
            passed++;
        if (times)
            printf("%8.2f s  %s.%s\n", (double)(clock() - from) / CLOCKS_PER_SEC, t->group,
                   t->name);
        if (t->next == NULL || strcmp(t->next->group, t->group) != 0) {
            printf("%-16s %" PRId64 " tests\n", t->group, in_group);
            in_group = 0;
        }
    }
    free(test_g.ctx);
    if (test_g.trace) fclose(test_g.trace);
    if (!list && passed + failed + test_g.left + test_g.skipped == 0) {
        printf("no test matches \"%s\"\n", filter);
        failed = 1;
    }
    if (test_g.left > 0)
        printf("%" PRId64 " left\n", test_g.left);
    if (test_g.skipped > 0)
        test_print_skipped();
    if (!list)
        printf("%" PRId64 " passed, %" PRId64 " failed\n", passed, failed);
    return failed > 0 ? 1 : 0;
}

#endif /* MLC_TEST_MAIN */
#endif /* MLC_TEST_H */
