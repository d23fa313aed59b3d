/* borrow.cpp -- the device "cuda" of the tests: what mlcore_cuda.cu does not do yet comes from the
 * CPU's row, and is counted
 *
 * Registered before main, so that MLC_TEST_DEVICE=cuda runs the tests on it. With -DBORROW_CARD it
 * is the device of a card, whose memory no kernel of the CPU reaches: nothing is borrowed, and the
 * harness skips a test from where it needs a kernel that the unit lacks. CUDA_HOST_NOBORROW=1 in
 * the environment of the host build does the same. */
#ifdef BORROW_CARD
#include <cublasLt.h>
#endif
#include <cuda_runtime.h>

#include "../../mlcore_cuda.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

/* Borrowed: calls that the CPU made; lacking: those of them whose form the unit lacks. */
struct counts { long own, borrowed, lacking; };

static mlc_kernels g_own;              /* entries of mlcore_cuda.cu                             */
#define COUNTS(name) static counts g_##name;
MLC_KERNELS(COUNTS)

#ifndef BORROW_CARD
/* -- borrowed from the CPU -- */

static const mlc_kernels *g_cpu;

/* While one lives, the device has done its work and the CPU may use its memory. */
struct turn {
    const cuda_host::Lock lock;
    turn() : lock(cuda_host::g_mutex) { cuda_host::drain_all(); cuda_host::arena_open(); }
    ~turn() { cuda_host::arena_shut(); }
};

/* The forms of entries that README's table lists as UNSUPPORTED. */
template <class A> static bool lacks(const A *) { return false; }
static bool lacks(const mlc_k_gemm *a) { return a->signs.rows > 0; }
static bool lacks(const mlc_k_optim *a)
{
    return a->state_dtype == MLC_BF16 || a->state_dtype == MLC_U8;
}

/* An entry: the unit's own, and where it has none or answers UNSUPPORTED the CPU's. */
#define BORROW(name) \
    static mlc_status name##_run(void *dev, const struct mlc_k_##name *a) \
    { \
        const mlc_status own = g_own.name ? g_own.name(dev, a) : MLC_ERR_UNSUPPORTED; \
        if (own != MLC_ERR_UNSUPPORTED) { g_##name.own++; return own; } \
        const turn t; \
        g_##name.borrowed++; \
        if (lacks(a)) g_##name.lacking++; \
        return g_cpu->name(NULL, a); \
    } \
    static size_t name##_ask(void *dev, const struct mlc_k_##name *a) \
    { \
        const size_t own = g_own.name##_workspace ? g_own.name##_workspace(dev, a) : 0; \
        const size_t cpu = g_cpu->name##_workspace ? g_cpu->name##_workspace(NULL, a) : 0; \
        return own > cpu ? own : cpu; \
    }
MLC_KERNELS(BORROW)

static void borrow(mlc_backend *b)
{
#define SET(name) b->kernels.name = name##_run; b->kernels.name##_workspace = name##_ask;
    MLC_KERNELS(SET)
    /* Kernels that are not borrowed: gemm_optim, for which gemm and optim of the unit are called,
     * and pack, whose panels the unit's gemm cannot read: products read weights as stored. */
    b->kernels.gemm_optim = g_own.gemm_optim;
    b->kernels.gemm_optim_workspace = g_own.gemm_optim_workspace;
    b->kernels.pack = g_own.pack;
    b->kernels.pack_workspace = g_own.pack_workspace;
}

static void entries_set(mlc_backend *b)
{
    const char *no = getenv("CUDA_HOST_NOBORROW");
    g_cpu = mlc_cpu_kernels(MLC_ISA_AUTO);
    if (!no || strcmp(no, "1") != 0) borrow(b);
    else setenv("MLC_TEST_LACKS", "1", 1);
}
#else
/* Counted as in the host build's cublasLt.h; -Wl,--wrap=cublasLtMatmul leads here. */
extern "C" {
int64_t cuda_host_lt_products;
decltype(cublasLtMatmul) __real_cublasLtMatmul;
cublasStatus_t __wrap_cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                     const void *alpha, const void *a, cublasLtMatrixLayout_t at_a,
                                     const void *b, cublasLtMatrixLayout_t at_b, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t at_c, void *d,
                                     cublasLtMatrixLayout_t at_d, const cublasLtMatmulAlgo_t *algo,
                                     void *room, size_t bytes, cudaStream_t stream)
{
    cuda_host_lt_products++;
    return __real_cublasLtMatmul(handle, op, alpha, a, at_a, b, at_b, beta, c, at_c, d, at_d, algo,
                                 room, bytes, stream);
}
}

/* Says why a context cannot be made. */
static mlc_status (*g_open)(int32_t index, void **dev);
static mlc_status open_said(int32_t index, void **dev)
{
    const mlc_status st = g_open(index, dev);
    if (st != MLC_OK) fprintf(stderr, "%s\n", mlc_cuda_error());
    return st;
}

/* Ends a program that is asked for a card where there is none. */
static void entries_set(mlc_backend *b)
{
    const char *asked = getenv("MLC_TEST_DEVICE");
    g_open = b->open;
    b->open = open_said;
    setenv("MLC_TEST_LACKS", "1", 1);
    setenv("MLC_TEST_CARD", "1", 1);
    if (b->count() > 0 || !asked || strncmp(asked, "cuda", 4) != 0) return;
    fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(cudaGetLastError()));
    exit(1);
}
#endif

/* At exit: prints the counts that are not written yet; with MLC_CUDA_HOST_COUNTS a line for each
 * entry. The program fails where the CPU was called for an entry that the unit has: that entry
 * would not be tested. */
static void counts_print()
{
    long calls = 0, lacking = 0, other = 0;
    int  all = 0, missing = 0;
    char names[512] = "", others[512] = "";
    size_t at = 0, end = 0;
#define LINE(name) \
    if (getenv("MLC_CUDA_HOST_COUNTS") && g_##name.own + g_##name.borrowed > 0) \
        printf("%-12s %9ld own %9ld borrowed\n", #name, g_##name.own, g_##name.borrowed); \
    all++; \
    if (g_own.name) { \
        const long more = g_##name.borrowed - g_##name.lacking; \
        lacking += g_##name.lacking; \
        other += more; \
        if (more > 0) end += (size_t)snprintf(others + end, sizeof others - end, " %s", #name); \
    } else { \
        missing++; \
        calls += g_##name.borrowed; \
        at += (size_t)snprintf(names + at, sizeof names - at, " %s", #name); \
    }
    MLC_KERNELS(LINE)
    printf("%d of %d entries are not written:%s; %ld calls of them, %ld of signs and small moments "
           "and %ld of others were the CPU's%s%s\n", missing, all, names, calls, lacking, other,
           other > 0 ? ":" : "", others);
    fflush(stdout);
    if (other > 0) _exit(1);
}

__attribute__((constructor)) static void borrow_register()
{
    mlc_backend b;
    mlc_cuda_backend(&b);
    g_own = b.kernels;
    entries_set(&b);
    mlc_backend_register(&b);
    const char *device = getenv("MLC_TEST_DEVICE");
    if (device && strncmp(device, "cuda", 4) == 0) atexit(counts_print);
}
