/* bench.h -- measuring: a clock, calibrated runs, the machine and its peaks, a table, JSON
 *
 * A case is verified, then timed: loops are calibrated to runs of about 0.3 s, at least 5 runs are
 * made, and the median and the best run count. The clock and the neighbours of a machine change by
 * the second: what a case is held against (peak multiply-adds, a plain loop) can be measured
 * between its runs. Speed is never asserted, only printed.                                    */
#ifndef MLCORE_BENCH_H
#define MLCORE_BENCH_H

#include "../mlcore.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#  include <cpuid.h>
#  include <sys/syscall.h>
#  include <immintrin.h>
#endif

#ifndef BENCH_FLAGS                       /* the Makefile passes what mlcore was compiled with */
#  define BENCH_FLAGS "not given"
#endif

typedef struct bench_options {
    const char *glob, *json, *dtype;
    const char *device;                   /* NULL: the CPU                                     */
    double      seconds;                  /* of timing, for each case                          */
    int32_t     threads;
    mlc_isa     isa;
    bool        list;
    bool        no_peaks;                 /* saves half a second, for short slices             */
} bench_options;

typedef struct bench_peaks {              /* of this machine, with the threads asked for       */
    double gflops[2];                     /* multiply-adds of the ISA level, f32 and f64       */
    double amx;                           /* bf16 tile products in GFLOP/s; 0: no AMX here     */
    double gbytes;                        /* copy of 256 MB: bytes read plus bytes written     */
} bench_peaks;

typedef struct bench_result {
    double median, best;                  /* seconds for one iteration                         */
    double spread;                        /* (third quartile - first) / median                 */
    double beside[2];                     /* medians of what the probe measured; 0: no probe   */
    double paired;                        /* of an iteration's seconds times beside[0], by run */
} bench_result;

static inline double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- runs --------------------------------------------------------------------------------- */

/* Seconds that so many iterations took; the case keeps the clock, to leave out preparation.   */
typedef double (*bench_run)(void *state, int64_t loops);

/* Measures what the case is held against: a rate with all threads, and with one, or 0.        */
typedef void (*bench_probe)(void *state, double rate[2]);

static inline int bench_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of n numbers, which it sorts. */
static inline double bench_median(double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, bench_order);
    return n % 2 ? t[n / 2] : 0.5 * (t[n / 2 - 1] + t[n / 2]);
}

/* Workers of the pool spin for up to a millisecond after a loop: a probe would share its core. */
static inline void bench_rest(void)
{
    const struct timespec t = { 0, 2000000 };
    nanosleep(&t, NULL);
}

static inline bench_result bench_measure(bench_run run, bench_probe probe, void *state,
                                         double seconds)
{
    enum { MOST = 1000 };
    double       t[MOST], beside[2][MOST], paired[MOST];
    double       want = seconds / 5 < 0.3 ? seconds / 5 : 0.3, spent = 0;
    int64_t      loops = 1;
    int          n = 0;
    bench_result r;
    for (double took; (took = run(state, loops)) < want / 2; ) {          /* also the warm-up */
        double grow = took > 0 ? 0.8 * want / took : 10;
        loops = (int64_t)((double)loops * (grow > 10 ? 10 : grow < 2 ? 2 : grow)) + 1;
    }
    while (n < MOST && (n < 5 || spent < seconds)) {
        double rate[2] = { 0, 0 };
        if (probe) {
            bench_rest();
            probe(state, rate);
            run(state, 1);                /* the caches are the case's again                   */
        }
        double took = run(state, loops);
        spent += took;
        beside[0][n] = rate[0];
        beside[1][n] = rate[1];
        paired[n]    = rate[0] * took / (double)loops;
        t[n++] = took / (double)loops;
    }
    r.median = bench_median(t, n);
    r.best   = t[0];
    r.spread = (t[3 * n / 4] - t[n / 4]) / r.median;
    for (int i = 0; i < 2; i++) r.beside[i] = bench_median(beside[i], n);
    r.paired = bench_median(paired, n);
    return r;
}

/* ---- peaks -------------------------------------------------------------------------------- */

/* Each function makes `rounds` times 12 independent chains of multiply-adds and returns the
 * number of floating point operations; *sink keeps the compiler from dropping the work. The
 * scalar level is what every x86-64 has: SSE2, with separate multiplications and additions.   */
#if defined(__x86_64__)
#define BENCH_CHAINS(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

#define BENCH_FMA(name, target_text, vec, set1, fma, first, width)                              \
    __attribute__((target(target_text)))                                                       \
    static inline double name(int64_t rounds, double *sink)                                     \
    {                                                                                           \
        volatile int one = 1;             /* volatile: or the multiplication goes away */       \
        vec a[12], m = set1(one), c = set1(one);                                                \
        for (int j = 0; j < 12; j++) a[j] = set1(j);                                            \
        for (int64_t i = 0; i < rounds; i++) { BENCH_CHAINS(BENCH_STEP_##fma) }                  \
        for (int j = 0; j < 12; j++) *sink += (double)first(a[j]);                              \
        return 24.0 * width * (double)rounds;                                                   \
    }
#define BENCH_STEP_f32x4(j)  a[j] = _mm_add_ps(_mm_mul_ps(a[j], m), c);
#define BENCH_STEP_f64x2(j)  a[j] = _mm_add_pd(_mm_mul_pd(a[j], m), c);
#define BENCH_STEP_f32x8(j)  a[j] = _mm256_fmadd_ps(a[j], m, c);
#define BENCH_STEP_f64x4(j)  a[j] = _mm256_fmadd_pd(a[j], m, c);
#define BENCH_STEP_f32x16(j) a[j] = _mm512_fmadd_ps(a[j], m, c);
#define BENCH_STEP_f64x8(j)  a[j] = _mm512_fmadd_pd(a[j], m, c);
BENCH_FMA(bench_fma_f32x4,  "sse2",     __m128,  _mm_set1_ps,    f32x4,  _mm_cvtss_f32, 4)
BENCH_FMA(bench_fma_f64x2,  "sse2",     __m128d, _mm_set1_pd,    f64x2,  _mm_cvtsd_f64, 2)
BENCH_FMA(bench_fma_f32x8,  "avx2,fma", __m256,  _mm256_set1_ps, f32x8,  _mm256_cvtss_f32, 8)
BENCH_FMA(bench_fma_f64x4,  "avx2,fma", __m256d, _mm256_set1_pd, f64x4,  _mm256_cvtsd_f64, 4)
BENCH_FMA(bench_fma_f32x16, "avx512f",  __m512,  _mm512_set1_ps, f32x16, _mm512_cvtss_f32, 16)
BENCH_FMA(bench_fma_f64x8,  "avx512f",  __m512d, _mm512_set1_pd, f64x8,  _mm512_cvtsd_f64, 8)
#endif

/* 0 where there is no way to measure it: then no case has a share of this peak. */
static inline double bench_fma(mlc_isa isa, int f64, int64_t rounds, double *sink)
{
#if defined(__x86_64__)
    if (isa >= MLC_ISA_AVX512)
        return f64 ? bench_fma_f64x8(rounds, sink) : bench_fma_f32x16(rounds, sink);
    if (isa == MLC_ISA_AVX2)
        return f64 ? bench_fma_f64x4(rounds, sink) : bench_fma_f32x8(rounds, sink);
    return f64 ? bench_fma_f64x2(rounds, sink) : bench_fma_f32x4(rounds, sink);
#else
    (void)isa, (void)f64, (void)rounds, (void)sink;
    return 0;
#endif
}

#if defined(__x86_64__)
/* Two products of bf16 a lane and instruction, in 24 chains: its latency is longer.             */
#define BENCH_STEP_dot(j) \
    a[j]      = _mm512_dpbf16_ps(a[j], (__m512bh)m, (__m512bh)m); \
    a[j + 12] = _mm512_dpbf16_ps(a[j + 12], (__m512bh)m, (__m512bh)m);

__attribute__((target("avx512f,avx512bf16")))
static inline double bench_dot(int64_t rounds, double *sink)
{
    __m512  a[24];
    __m512i m = _mm512_set1_epi32(0x3f803f80);
    for (int j = 0; j < 24; j++) a[j] = _mm512_set1_ps((float)j);
    for (int64_t i = 0; i < rounds; i++) { BENCH_CHAINS(BENCH_STEP_dot) }
    for (int j = 0; j < 24; j++) *sink += (double)_mm512_cvtss_f32(a[j]);
    return 24.0 * 64 * (double)rounds;
}
#else
static inline double bench_dot(int64_t rounds, double *sink) { (void)rounds, (void)sink; return 0; }
#endif

#if defined(__x86_64__) && defined(__linux__)
extern long syscall(long number, ...);

/* The processor has bf16 tiles and the kernel lets this process use them: asked once, before
 * threads start.                                                                              */
static inline bool bench_has_amx(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 22 & 1)) return false;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

/* Four accumulators over 2 x 2 tiles that stay in the registers: 16 x 16 x 32 products each.  */
__attribute__((target("amx-tile,amx-bf16")))
static inline double bench_amx(int64_t rounds)
{
    static const struct { uint8_t palette, start, pad[14]; uint16_t bytes[16]; uint8_t rows[16]; }
        config = { 1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 },
                   { 16, 16, 16, 16, 16, 16, 16, 16 } };
    _tile_loadconfig(&config);
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 4.0 * 2 * 16 * 16 * 32 * (double)rounds;
}
#else
static inline bool   bench_has_amx(void) { return false; }
static inline double bench_amx(int64_t rounds) { (void)rounds; return 0; }
#endif

/* The loads and stores of one pass of Adam, with next to no arithmetic. */
#if defined(__clang__)
#  define BENCH_FAST(target_text) __attribute__((target(target_text)))
#  define BENCH_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#  define BENCH_FAST(target_text) __attribute__((target(target_text), optimize("O3")))
#  define BENCH_INDEPENDENT _Pragma("GCC ivdep")
#endif
#define BENCH_PLAIN(name, attributes)                                                           \
    attributes static inline void name(float *p, const float *g, float *m, float *v, int64_t n) \
    {                                                                                           \
        BENCH_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                     \
            m[i] += g[i];                                                                       \
            v[i] += g[i];                                                                       \
            p[i] += g[i];                                                                       \
        }                                                                                       \
    }
#if defined(__x86_64__)
BENCH_PLAIN(bench_plain_base,   BENCH_FAST("sse2"))
BENCH_PLAIN(bench_plain_avx2,   BENCH_FAST("avx2"))
BENCH_PLAIN(bench_plain_avx512, BENCH_FAST("avx512f"))
#else
BENCH_PLAIN(bench_plain_base, )
#endif

/* What some threads do together: each its part, told by its index. */
typedef struct bench_load {
    double (*part)(const struct bench_load *l, int32_t index, int32_t threads, double *sink);
    mlc_isa isa;
    int     f64;
    int64_t n;                            /* rounds, bytes to copy or elements to pass over    */
    int     passes;
    bool    warm;                         /* a first run that does not count                   */
    float  *data[4];
} bench_load;

typedef struct bench_worker {
    pthread_t          thread;
    pthread_barrier_t *gate;
    const bench_load  *load;
    int32_t            index, threads;
    double             work, start, end, sink;
} bench_worker;

static inline double bench_part_fma(const bench_load *l, int32_t index, int32_t threads,
                                    double *sink)
{
    (void)index, (void)threads;
    return bench_fma(l->isa, l->f64, l->n, sink);
}

static inline double bench_part_amx(const bench_load *l, int32_t index, int32_t threads,
                                    double *sink)
{
    (void)index, (void)threads, (void)sink;
    return bench_amx(l->n);
}

static inline double bench_part_dot(const bench_load *l, int32_t index, int32_t threads,
                                    double *sink)
{
    (void)index, (void)threads;
    return bench_dot(l->n, sink);
}

static inline double bench_part_copy(const bench_load *l, int32_t index, int32_t threads,
                                     double *sink)
{
    const int64_t n = l->n / threads;
    (void)sink;
    memcpy((char *)l->data[1] + index * n, (char *)l->data[0] + index * n, (size_t)n);
    return 2.0 * (double)n;
}

static inline double bench_part_plain(const bench_load *l, int32_t index, int32_t threads,
                                      double *sink)
{
    const int64_t from = l->n * index / threads, n = l->n * (index + 1) / threads - from;
    float *p = l->data[0] + from, *g = l->data[1] + from;
    float *m = l->data[2] + from, *v = l->data[3] + from;
    for (int i = 0; i < l->passes; i++) {
#if defined(__x86_64__)
        if (l->isa >= MLC_ISA_AVX512) bench_plain_avx512(p, g, m, v, n);
        else if (l->isa == MLC_ISA_AVX2) bench_plain_avx2(p, g, m, v, n);
        else
#endif
            bench_plain_base(p, g, m, v, n);
    }
    *sink += (double)*p;
    return (double)n * l->passes;
}

static inline void *bench_work(void *arg)
{
    bench_worker     *w = (bench_worker *)arg;
    const bench_load *l = w->load;
    if (l->warm) l->part(l, w->index, w->threads, &w->sink);
    pthread_barrier_wait(w->gate);
    w->start = bench_now();
    w->work  = l->part(l, w->index, w->threads, &w->sink);
    w->end   = bench_now();
    return NULL;
}

/* Work per second of all threads together: the best of some tries. */
static inline double bench_together(const bench_load *load, int32_t threads, int tries)
{
    bench_worker     *w = (bench_worker *)calloc((size_t)threads, sizeof *w);
    pthread_barrier_t gate;
    double            best = 0;
    if (!w) return 0;
    pthread_barrier_init(&gate, NULL, (unsigned)threads);
    for (int k = 0; k < tries; k++) {
        double work = 0, start = HUGE_VAL, end = 0;
        for (int32_t i = 0; i < threads; i++) {
            w[i].gate    = &gate;
            w[i].load    = load;
            w[i].index   = i;
            w[i].threads = threads;
            if (pthread_create(&w[i].thread, NULL, bench_work, &w[i]) != 0) exit(2);
        }
        for (int32_t i = 0; i < threads; i++) {
            pthread_join(w[i].thread, NULL);
            work += w[i].work;
            start = fmin(start, w[i].start);
            end   = fmax(end, w[i].end);
        }
        best = fmax(best, work / (end - start));
    }
    pthread_barrier_destroy(&gate);
    free(w);
    return best;
}

/* In GFLOP/s; about 3 ms a try on one core with vectors of 64 bytes. */
static inline double bench_fma_peak(mlc_isa isa, int f64, int32_t threads, int tries)
{
    bench_load l;
    memset(&l, 0, sizeof l);
    l.part = bench_part_fma;
    l.isa  = isa;
    l.f64  = f64;
    l.n    = 1000000;
    return 1e-9 * bench_together(&l, threads, tries);
}

/* Products of bf16: tiles, or the dot products of AVX-512, or what f32 does. */
static inline double bench_bf16_peak(mlc_isa isa, int32_t threads, int tries)
{
    bench_load l;
    if (isa != MLC_ISA_AMX && isa != MLC_ISA_AVX512X) return bench_fma_peak(isa, 0, threads, tries);
    memset(&l, 0, sizeof l);
    l.part = isa == MLC_ISA_AMX ? bench_part_amx : bench_part_dot;
    l.n    = isa == MLC_ISA_AMX ? 50000 : 1000000;
    return 1e-9 * bench_together(&l, threads, tries);
}

static inline bench_peaks bench_peaks_of(mlc_isa isa, int32_t threads)
{
    const size_t bytes = (size_t)256 << 20;
    bench_peaks  p;
    bench_load   l;
    for (int f64 = 0; f64 < 2; f64++) p.gflops[f64] = bench_fma_peak(isa, f64, threads, 24);
    memset(&l, 0, sizeof l);
    l.part = bench_part_amx;
    l.n    = 1000000;
    p.amx  = bench_has_amx() ? 1e-9 * bench_together(&l, threads, 8) : 0;
    l.part = bench_part_copy;
    l.n    = (int64_t)bytes;
    p.gbytes = 0;
    for (int i = 0; i < 2; i++) l.data[i] = (float *)malloc(bytes);
    if (l.data[0] && l.data[1]) {
        memset(l.data[0], 1, bytes);
        memset(l.data[1], 2, bytes);
        p.gbytes = 1e-9 * bench_together(&l, threads, 8);
    }
    free(l.data[0]);
    free(l.data[1]);
    return p;
}

/* ---- machine ------------------------------------------------------------------------------ */

static inline const char *bench_cpu(char *text, size_t n)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char  line[256];
    snprintf(text, n, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(text, n, "%s", value + 2);
        break;
    }
    if (f) fclose(f);
    return text;
}

/* Bytes of a line "key: 123 kB" of a file in /proc, or `otherwise` where there is none. */
static inline double bench_proc_bytes(const char *path, const char *key, double otherwise)
{
    FILE        *f = fopen(path, "r");
    char         line[256];
    const size_t n = strlen(key);
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) != 0 || line[n] != ':') continue;
        otherwise = 1024 * atof(line + n + 1);
        break;
    }
    if (f) fclose(f);
    return otherwise;
}

/* Bytes of memory that can be had now; without /proc as much as any case asks for. */
static inline double bench_free_memory(void)
{
    return bench_proc_bytes("/proc/meminfo", "MemAvailable", 1e15);
}

/* Asked when the bench runs: a commit written into the object would go stale. */
static inline const char *bench_commit(char *text, size_t n)
{
    FILE *f = popen("git describe --always --dirty 2>/dev/null", "r");
    if (!f || !fgets(text, (int)n, f)) snprintf(text, n, "unknown");
    text[strcspn(text, "\n")] = 0;
    if (f) pclose(f);
    return text;
}

static inline void bench_print_machine(const mlc_ctx *ctx, const bench_peaks *p)
{
    char cpu[128], commit[64];
    printf("machine  %s | isa %s | threads %d | blas %s | %s %s | flags %s | commit %s\n",
           bench_cpu(cpu, sizeof cpu), mlc_isa_name(mlc_ctx_isa(ctx)), (int)mlc_ctx_threads(ctx),
           mlc_ctx_blas(ctx),
#if defined(__clang__)
           "", "" __VERSION__,
#else
           "gcc", "" __VERSION__,
#endif
           BENCH_FLAGS, bench_commit(commit, sizeof commit));
    if (p->gbytes < 0) return;
    char amx[32] = "none";
    if (p->amx > 0) snprintf(amx, sizeof amx, "bf16 %.0f GFLOP/s", p->amx);
    printf("peaks    FMA f32 %.1f GFLOP/s, f64 %.1f GFLOP/s | AMX %s | copy %.1f GB/s\n",
           p->gflops[0], p->gflops[1], amx, p->gbytes);
}

/* ---- output ------------------------------------------------------------------------------- */

static inline const char *bench_time_text(double seconds, char *text, size_t n)
{
    if (seconds < 1e-6)      snprintf(text, n, "%.1f ns", 1e9 * seconds);
    else if (seconds < 1e-3) snprintf(text, n, "%.2f us", 1e6 * seconds);
    else                     snprintf(text, n, "%.3f ms", 1e3 * seconds);
    return text;
}

/* A number, or null where it does not apply (negative). */
static inline void bench_json_number(FILE *f, const char *key, double v, const char *end)
{
    if (v < 0 || !isfinite(v)) fprintf(f, "\"%s\":null%s", key, end);
    else fprintf(f, "\"%s\":%.6g%s", key, v, end);
}

#endif
