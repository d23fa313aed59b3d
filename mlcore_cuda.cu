/* mlcore_cuda.cu -- kernels of mlcore's operations for NVIDIA GPUs (sm_80 and later)
 *
 * The unit fills a mlc_backend: memory functions and an entry for each kernel of API.BACKEND. It
 * knows pointers, sizes and strides; no tensor, no tape. It is plain CUDA C++17 over the runtime
 * API: launches go through cudaLaunchKernelEx, shared arrays through MLC_SHARED, so that the host
 * build (tests/cuda_host) compiles the same text with a C++ compiler and runs it on the CPU.
 *
 * Conventions. An entry is NAME_entry(dev, args): it plans on the host and launches; its kernels
 * are NAME_kernel. Elements are loaded to W, which is float for f32, bf16, f16 and double for f64,
 * and rounded once when they are stored. Results do not depend on the order of blocks: there is no
 * floating-point atomic. An entry answers UNSUPPORTED for what it does not do.
 *
 * CUDA.DEVICE    stream, memory, copies, errors        CUDA.REDUCE   reduce, fold, argmax, squares
 * CUDA.LAUNCH    grids, names of kernels               CUDA.ROWS     softmax, norm, cross-entropy
 * CUDA.ELEMENT   dtypes: load, store, choice           CUDA.INDEX    take, index
 * CUDA.WALK      merged dims, index arithmetic         CUDA.GEMM     products: own tile, epilogue
 * CUDA.MAP       formulas: map, math                   CUDA.LT       products by cuBLASLt
 * CUDA.MOVE      compare, where, cast, fill, ...       CUDA.OPTIM    optim, guard, pack
 * CUDA.RANDOM    Philox: random, dropout               CUDA.TABLE    the backend               */
#include <cuda_runtime.h>

#include "mlcore_cuda.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifndef MLC_SHARED                     /* the host build has its own, which finds races         */
#define MLC_SHARED(type, name, dims) __shared__ type name dims
#endif
#define DEV __device__ __forceinline__
#define BOTH __host__ __device__ __forceinline__

/* @@ CUDA.DEVICE ----------------------------------------- stream, memory, copies, errors */

struct device {
    cudaStream_t stream;
    const char *kernel;                /* that failed last                                      */
};

static device *device_of(void *dev) { return static_cast<device *>(dev); }
static mlc_status status_of(cudaError_t e)
{
    return e == cudaSuccess ? MLC_OK : e == cudaErrorMemoryAllocation ? MLC_ERR_NOMEM
                                                                      : MLC_ERR_DEVICE;
}

static mlc_status device_open(int32_t, void **dev)
{
    *dev = calloc(1, sizeof(device));
    return *dev ? MLC_OK : MLC_ERR_NOMEM;
}
static void device_close(void *dev) { free(dev); }
static mlc_status device_alloc(void *dev, size_t bytes, void **p)
{
    return status_of(cudaMallocAsync(p, bytes, device_of(dev)->stream));
}
static void device_release(void *dev, void *p, size_t)
{
    cudaFreeAsync(p, device_of(dev)->stream);
}
static mlc_status device_copy(void *dev, void *dst, const void *src, size_t bytes,
                              mlc_copy_kind kind)
{
    const cudaStream_t stream = device_of(dev)->stream;
    const cudaMemcpyKind how = kind == MLC_COPY_TO_DEVICE ? cudaMemcpyHostToDevice
                             : kind == MLC_COPY_TO_HOST   ? cudaMemcpyDeviceToHost
                                                          : cudaMemcpyDeviceToDevice;
    const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, how, stream);
    return status_of(e == cudaSuccess && kind == MLC_COPY_TO_HOST ? cudaStreamSynchronize(stream)
                                                                  : e);
}
static mlc_status device_sync(void *dev)
{
    return status_of(cudaStreamSynchronize(device_of(dev)->stream));
}

/* @@ CUDA.LAUNCH ----------------------------------------- grids, names of kernels */

enum { THREADS = 256, EACH = 8 };      /* of a block; elements of each thread                   */

/* Launches kernel(args..) with `shared` bytes of dynamic shared memory. */
template <class... P, class... A>
static mlc_status launch(void *dev, const char *name, dim3 grid, dim3 block, size_t shared,
                         void (*kernel)(P...), const A &...args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = device_of(dev)->stream;
    const cudaError_t e = cudaLaunchKernelEx(&config, kernel, P(args)...);
    if (e != cudaSuccess) device_of(dev)->kernel = name;
    return status_of(e);
}

/* Blocks for n elements, EACH a thread, a block's elements THREADS apart. */
static dim3 blocks_for(int64_t n)
{
    return dim3((unsigned)((n + THREADS * EACH - 1) / (THREADS * EACH)));
}

/* @@ CUDA.ELEMENT ---------------------------------------- dtypes: load, store, choice
 * bf16 and f16 are integers here: conversions are those of the CPU, bit for bit, and the host
 * build needs no header of CUDA's for them. */

struct bf16 { uint16_t bits; };
struct f16  { uint16_t bits; };

BOTH float bits_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
BOTH uint32_t f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

BOTH float   load(float v)   { return v; }
BOTH double  load(double v)  { return v; }
BOTH int64_t load(int64_t v) { return v; }
BOTH int32_t load(int32_t v) { return v; }
BOTH uint8_t load(uint8_t v) { return v; }
BOTH int8_t  load(int8_t v)  { return v; }
BOTH float   load(bf16 v)    { return bits_f32((uint32_t)v.bits << 16); }
BOTH float   load(f16 v)
{
    const uint32_t sign = (uint32_t)(v.bits & 0x8000) << 16, e = v.bits >> 10 & 31;
    const uint32_t m = v.bits & 1023;
    if (e == 31) return bits_f32(sign | 0x7f800000 | m << 13);
    if (e == 0) return bits_f32(sign | f32_bits((float)m * 5.9604644775390625e-8f));
    return bits_f32(sign | (e + 112) << 23 | m << 13);
}

template <class T> BOTH void store(T *p, T v) { *p = v; }
BOTH void store(bf16 *p, float v)
{
    const uint32_t u = f32_bits(v);
    p->bits = (uint16_t)(v != v ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
BOTH void store(f16 *p, float v)
{
    const uint32_t u = f32_bits(v), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    uint32_t r;
    if (a > 0x7f800000) r = 0x7e00 | (a >> 13 & 0x3ff);
    else if (a >= 0x477ff000) r = 0x7c00;
    else if (a < 0x38800000) r = f32_bits(bits_f32(a) + 0.5f) - 0x3f000000;   /* the sum rounds */
    else r = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
    p->bits = (uint16_t)(sign | r);
}

/* W of a dtype: what is computed in. */
template <class T> struct wide { typedef T type; };
template <> struct wide<bf16> { typedef float type; };
template <> struct wide<f16>  { typedef float type; };

template <class T> struct type_tag { typedef T type; };
#define TYPE(tag) typename decltype(tag)::type

/* Calls f(type_tag<T>()) for a float dtype; UNSUPPORTED for others. */
template <class F> static mlc_status each_float(mlc_dtype dtype, const F &f)
{
    switch (dtype) {
    case MLC_F32:  return f(type_tag<float>());
    case MLC_F64:  return f(type_tag<double>());
    case MLC_BF16: return f(type_tag<bf16>());
    case MLC_F16:  return f(type_tag<f16>());
    default:       return MLC_ERR_UNSUPPORTED;
    }
}
/* The same by size alone, for what moves elements: 1, 2, 4, 8 bytes. */
template <class F> static mlc_status each_size(size_t bytes, const F &f)
{
    switch (bytes) {
    case 1:  return f(type_tag<uint8_t>());
    case 2:  return f(type_tag<uint16_t>());
    case 4:  return f(type_tag<uint32_t>());
    case 8:  return f(type_tag<uint64_t>());
    default: return MLC_ERR_UNSUPPORTED;
    }
}

/* @@ CUDA.WALK ------------------------------------------- merged dims, index arithmetic
 * A walk numbers the elements of a shape row-major and gives the place of element i in each of N
 * operands. Dims that follow one another in all operands are one; division by a dim is a multiply.
 * A launch has fewer than 2^31 elements: a larger walk is cut along its outermost dim. */

struct divisor { uint32_t d, mul, shift; };
static divisor divisor_make(uint32_t d)
{
    divisor f = { d, 0, 0 };
    while (f.shift < 32 && (uint64_t)1 << f.shift < d) f.shift++;
    f.mul = (uint32_t)(((((uint64_t)1 << f.shift) - d) << 32) / d + 1);
    return f;
}
BOTH uint32_t divide(uint32_t n, divisor f)
{
    return (uint32_t)((((uint64_t)n * f.mul >> 32) + n) >> f.shift);
}

template <int N> struct walk {
    int ndim;
    uint32_t n;
    divisor size[MLC_MAX_DIMS];
    int64_t stride[N][MLC_MAX_DIMS];
};

/* Places of element i. */
template <int N> DEV void walk_at(const walk<N> &w, uint32_t i, int64_t *at)
{
    for (int k = 0; k < N; k++) at[k] = 0;
    for (int d = w.ndim - 1; d >= 0; d--) {
        const uint32_t q = divide(i, w.size[d]), r = i - q * w.size[d].d;
        for (int k = 0; k < N; k++) at[k] += r * w.stride[k][d];
        i = q;
    }
}

/* What plans a walk: shape and strides of N operands on the host. */
template <int N> struct plan {
    int ndim = 0;
    int64_t n = 1, shape[MLC_MAX_DIMS], stride[N][MLC_MAX_DIMS];

    /* strides NULL: an operand that is not there */
    plan(int32_t dims, const int64_t *sizes, const int64_t *const (&strides)[N])
    {
        for (int32_t d = 0; d < dims; d++) {
            n *= sizes[d];
            if (sizes[d] != 1) add(sizes[d], d, strides);
        }
    }
    void add(int64_t size, int32_t d, const int64_t *const (&strides)[N])
    {
        bool join = ndim > 0;
        for (int k = 0; k < N; k++)
            join = join && (!strides[k] || stride[k][ndim - 1] == strides[k][d] * size);
        if (join) shape[ndim - 1] *= size;
        else shape[ndim++] = size;
        for (int k = 0; k < N; k++) stride[k][ndim - 1] = strides[k] ? strides[k][d] : 0;
    }
    /* One run of elements in each operand that is there. */
    bool dense(const int64_t *const (&strides)[N]) const
    {
        bool all = ndim <= 1;
        for (int k = 0; k < N; k++) all = all && (!strides[k] || ndim == 0 || stride[k][0] == 1);
        return all;
    }
    walk<N> cut(int64_t first) const   /* of the outermost dim from `first` on, as much as fits */
    {
        walk<N> w;
        const int64_t rest = ndim ? n / shape[0] : 1, most = ((int64_t)1 << 31) - 1;
        int64_t rows = ndim ? shape[0] - first : 1;
        if (rows > most / rest) rows = most / rest;
        w.ndim = ndim;
        w.n = (uint32_t)(rows * rest);
        for (int d = 0; d < ndim; d++) {
            w.size[d] = divisor_make((uint32_t)(d ? shape[d] : rows));
            for (int k = 0; k < N; k++) w.stride[k][d] = stride[k][d];
        }
        return w;
    }
    /* Calls f(walk, offsets of the operands) for each launch; no dim but the first may reach 2^31. */
    template <class F> mlc_status each(const F &f) const
    {
        for (int64_t first = 0; n > 0 && first < (ndim ? shape[0] : 1);) {
            const walk<N> w = cut(first);
            int64_t offset[N];
            if (w.n == 0) return MLC_ERR_UNSUPPORTED;
            for (int k = 0; k < N; k++) offset[k] = ndim ? first * stride[k][0] : 0;
            const mlc_status st = f(w, offset);
            if (st != MLC_OK) return st;
            first += ndim ? w.size[0].d : 1;
        }
        return MLC_OK;
    }
};

/* @@ CUDA.MOVE ------------------------------------------- compare, where, cast, fill, band, pad */

template <class T> static __global__ void __launch_bounds__(THREADS)
fill_kernel(T *out, int64_t n, double start, double step, int64_t origin)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    for (int e = 0; e < EACH; e++) {
        const int64_t i = first + e * THREADS;
        if (i < n) store(out + i, (typename wide<T>::type)(start + (double)(i - origin) * step));
    }
}
static mlc_status fill_entry(void *dev, const struct mlc_k_fill *a)
{
    if (a->n == 0) return MLC_OK;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return launch(dev, "fill", blocks_for(a->n), dim3(THREADS), 0, fill_kernel<T>,
                      static_cast<T *>(a->out), a->n, a->start, a->step, a->origin);
    });
}

/* @@ CUDA.TABLE ------------------------------------------ the backend */

/* One line an entry; an entry that is not written is not set and stays NULL. */
static void table_fill(mlc_kernels *k)
{
    k->fill = fill_entry;
}

void mlc_cuda_backend(mlc_backend *b)
{
    memset(b, 0, sizeof *b);
    b->abi = MLC_ABI;
    b->size = (uint32_t)sizeof *b;
    b->name = "cuda";
    b->open = device_open;
    b->close = device_close;
    b->alloc = device_alloc;
    b->release = device_release;
    b->copy = device_copy;
    b->sync = device_sync;
    table_fill(&b->kernels);
}

static const char *g_why = "";

const char *mlc_cuda_error(void) { return g_why; }

mlc_status mlc_cuda_register(void)
{
    mlc_backend b;
    int cards = 0;
    const cudaError_t e = cudaGetDeviceCount(&cards);
    g_why = "";
    if (e != cudaSuccess || cards == 0) {
        g_why = e == cudaSuccess ? "there is no card" : cudaGetErrorString(e);
        return MLC_ERR_DEVICE;
    }
    mlc_cuda_backend(&b);
    const mlc_status st = mlc_backend_register(&b);
    if (st != MLC_OK) g_why = "mlcore.h of another version, or \"cuda\" is registered already";
    return st;
}
