/* borrow.cpp -- the device "cuda" of the host build: what mlcore_cuda.cu does not do yet comes from
 * the CPU's row, and is counted
 *
 * Registered before main, so that MLC_TEST_DEVICE=cuda runs the tests on it. At the end the counts
 * are printed if MLC_CUDA_HOST_COUNTS is set. */
#include <cuda_runtime.h>

#include "../../mlcore_cuda.h"

#include <cstdio>
#include <cstdlib>

static mlc_kernels g_own;              /* entries of mlcore_cuda.cu                             */
static const mlc_kernels *g_cpu;

struct counts { long own, borrowed; };

/* An entry: the unit's own, and where it has none or answers UNSUPPORTED the CPU's. */
#define BORROW(name) \
    static counts g_##name; \
    static mlc_status name##_run(void *dev, const struct mlc_k_##name *a) \
    { \
        const mlc_status own = g_own.name ? g_own.name(dev, a) : MLC_ERR_UNSUPPORTED; \
        if (own != MLC_ERR_UNSUPPORTED) { g_##name.own++; return own; } \
        const cuda_host::Lock lock(cuda_host::g_mutex); \
        g_##name.borrowed++; \
        cuda_host::drain_all(); \
        cuda_host::arena_open(); \
        const mlc_status st = g_cpu->name(NULL, a); \
        cuda_host::arena_shut(); \
        return st; \
    } \
    static size_t name##_ask(void *dev, const struct mlc_k_##name *a) \
    { \
        const size_t own = g_own.name##_workspace ? g_own.name##_workspace(dev, a) : 0; \
        const size_t cpu = g_cpu->name##_workspace ? g_cpu->name##_workspace(NULL, a) : 0; \
        return own > cpu ? own : cpu; \
    }
MLC_KERNELS(BORROW)

static void counts_print()
{
    if (!getenv("MLC_CUDA_HOST_COUNTS")) return;
#define LINE(name) \
    if (g_##name.own + g_##name.borrowed > 0) \
        printf("%-12s %9ld own %9ld borrowed\n", #name, g_##name.own, g_##name.borrowed);
    MLC_KERNELS(LINE)
}

__attribute__((constructor)) static void borrow_register()
{
    mlc_backend b;
    mlc_cuda_backend(&b);
    g_own = b.kernels;
    g_cpu = mlc_cpu_kernels(MLC_ISA_AUTO);
#define SET(name) b.kernels.name = name##_run; b.kernels.name##_workspace = name##_ask;
    MLC_KERNELS(SET)
    mlc_backend_register(&b);
    atexit(counts_print);
}
