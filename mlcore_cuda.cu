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
 * CUDA.COMMON    Philox                                CUDA.LT       products by cuBLASLt
 * CUDA.FORMULAS  f_exp, f_gelu, ...                    CUDA.OPTIM    optim, guard, pack
 * CUDA.MAP       units; formulas: map, math            CUDA.TABLE    the backend
 * CUDA.MOVE      compare, where, cast, fill, ...
 * CUDA.RANDOM    random, dropout                                                               */
#include <cuda_runtime.h>

#include "mlcore_cuda.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef MLC_SHARED                     /* the host build has its own, which finds races         */
#define MLC_SHARED(type, name, dims) __shared__ type name dims
#endif
#define DEV __device__ __forceinline__
#define BOTH __host__ __device__ __forceinline__

/* @@ CUDA.DEVICE ----------------------------------------- stream, memory, copies, errors
 * A context has a device: a card, one stream, the card's stream-ordered pool. All work is queued on
 * the stream, so it needs no other order. Copies between host and device go through pinned chunks
 * of a ring: to the device, the source is copied to a chunk and the call returns; a chunk is used
 * again when the event after its copy has passed. Small answers to the host (post) have slots of
 * their own. What fails when it runs is seen at a later call: the text then names the operations
 * that were queued since the device was last known to be well. */

enum : size_t { CHUNK = 1 << 20, SMALL = 16 << 10 };         /* bytes of a staging chunk        */
enum { CHUNKS = 4, SMALLS = 32, SLOTS = 16, SLOT_BYTES = 256, MESSAGE = 320 };

struct staging {                       /* a ring of pinned chunks                               */
    char *memory;
    size_t bytes;                      /* of a chunk                                            */
    int chunks, next;
    cudaEvent_t free[SMALLS];          /* has passed: the chunk's copy is done                  */
    bool used[SMALLS];
};
struct device {
    int card;
    cudaStream_t stream;
    cudaMemPool_t pool;
    staging small, large;              /* large: memory NULL until it is needed                 */
    char *slots;                       /* of posts, SLOT_BYTES each                             */
    cudaEvent_t posted[SLOTS];
    int64_t posts;                     /* made so far; a ticket is their number                 */
    bool blocking;
    const char *operation, *first;     /* first: queued after the device was known to be well   */
    char message[MESSAGE];
};

static device *device_of(void *dev) { return static_cast<device *>(dev); }

/* Keeps a text for a failure; the status says whether memory was missing. */
static mlc_status device_failed(device *d, const char *what, cudaError_t e)
{
    cudaGetLastError();                /* what is not sticky is over with this                  */
    snprintf(d->message, sizeof d->message, "%s: %s", what, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? MLC_ERR_NOMEM : MLC_ERR_DEVICE;
}

/* A failure that arrives late: what was queued since the device was known to be well. */
static mlc_status device_late(device *d, const char *what, cudaError_t e)
{
    const mlc_status st = device_failed(d, what, e);
    const size_t at = strlen(d->message);
    if (d->first)
        snprintf(d->message + at, sizeof d->message - at, "; queued since the device was last "
                 "known to be well: '%s' to '%s'%s", d->first, d->operation, d->blocking ? "" :
                 "; MLC_CUDA_BLOCKING=1 names the kernel");
    return st;
}
static mlc_status device_well(device *d)
{
    d->first = NULL;
    return MLC_OK;
}

static const char *device_message(void *dev)
{
    device *d = device_of(dev);
    return d->message[0] ? d->message : NULL;
}
static void device_operation(void *dev, const char *what)
{
    device *d = device_of(dev);
    d->operation = what;
    if (!d->first) d->first = what;
}

static cudaError_t staging_make(staging *s, size_t bytes, int chunks)
{
    void *memory = NULL;
    cudaError_t e = cudaHostAlloc(&memory, bytes * (size_t)chunks, cudaHostAllocDefault);
    if (e != cudaSuccess) return e;
    s->memory = static_cast<char *>(memory);
    s->bytes = bytes;
    for (; e == cudaSuccess && s->chunks < chunks; s->chunks += e == cudaSuccess)
        e = cudaEventCreateWithFlags(&s->free[s->chunks], cudaEventDisableTiming);
    return e;
}
static void staging_free(staging *s)
{
    while (s->chunks > 0) cudaEventDestroy(s->free[--s->chunks]);
    if (s->memory) cudaFreeHost(s->memory);
    memset(s, 0, sizeof *s);
}

static void device_close(void *dev)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    if (d->stream) {
        cudaStreamSynchronize(d->stream);
        cudaStreamDestroy(d->stream);
    }
    staging_free(&d->small);
    staging_free(&d->large);
    for (int i = 0; i < SLOTS; i++)
        if (d->posted[i]) cudaEventDestroy(d->posted[i]);
    if (d->slots) cudaFreeHost(d->slots);
    if (d->pool) cudaMemPoolTrimTo(d->pool, 0);
    free(d);
}

/* The pool keeps what is given back: only the end of a context returns it to the card. */
static cudaError_t device_pool(device *d)
{
    uint64_t keep = UINT64_MAX;
    const cudaError_t e = cudaDeviceGetDefaultMemPool(&d->pool, d->card);
    return e != cudaSuccess ? e : cudaMemPoolSetAttribute(d->pool, cudaMemPoolAttrReleaseThreshold,
                                                          &keep);
}

static cudaError_t device_start(device *d)
{
    void *slots = NULL;
    cudaError_t e = cudaSetDevice(d->card);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = device_pool(d);
    if (e == cudaSuccess) e = staging_make(&d->small, SMALL, SMALLS);
    if (e == cudaSuccess)
        e = cudaHostAlloc(&slots, (size_t)SLOTS * SLOT_BYTES, cudaHostAllocDefault);
    d->slots = static_cast<char *>(slots);
    for (int i = 0; i < SLOTS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&d->posted[i], cudaEventDisableTiming);
    return e;
}

static int32_t device_count(void)
{
    int cards = 0;
    return cudaGetDeviceCount(&cards) == cudaSuccess ? cards : 0;
}

static mlc_status device_open(int32_t index, void **dev)
{
    const char *blocking = getenv("MLC_CUDA_BLOCKING");
    if (index >= device_count()) return MLC_ERR_DEVICE;
    device *d = static_cast<device *>(calloc(1, sizeof *d));
    if (!d) return MLC_ERR_NOMEM;
    d->card = index;
    d->blocking = blocking && strcmp(blocking, "0") != 0;
    const cudaError_t e = device_start(d);
    if (e == cudaSuccess) {
        *dev = d;
        return MLC_OK;
    }
    const mlc_status st = device_failed(d, "open", e);
    device_close(d);
    return st;
}

static mlc_status device_alloc(void *dev, size_t bytes, void **p)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    cudaError_t e = cudaMallocAsync(p, bytes, d->stream);
    if (e == cudaErrorMemoryAllocation) {                    /* what was freed may be on its way */
        cudaGetLastError();
        cudaStreamSynchronize(d->stream);
        cudaMemPoolTrimTo(d->pool, 0);
        e = cudaMallocAsync(p, bytes, d->stream);
    }
    return e == cudaSuccess ? MLC_OK : device_failed(d, "allocation", e);
}
static void device_release(void *dev, void *p, size_t)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    cudaFreeAsync(p, d->stream);
}

/* The next chunk of a ring, when its last copy is done. */
static cudaError_t staging_next(staging *s, int *chunk)
{
    *chunk = s->next;
    s->next = (s->next + 1) % s->chunks;
    return s->used[*chunk] ? cudaEventSynchronize(s->free[*chunk]) : cudaSuccess;
}

static cudaError_t staging_put(device *d, staging *s, void *dst, const void *src, size_t bytes)
{
    int i;
    cudaError_t e = staging_next(s, &i);
    char *chunk = s->memory + (size_t)i * s->bytes;
    if (e != cudaSuccess) return e;
    memcpy(chunk, src, bytes);
    e = cudaMemcpyAsync(dst, chunk, bytes, cudaMemcpyHostToDevice, d->stream);
    if (e == cudaSuccess) e = cudaEventRecord(s->free[i], d->stream);
    s->used[i] = e == cudaSuccess;
    return e;
}
static cudaError_t staging_get(device *d, staging *s, void *dst, const void *src, size_t bytes)
{
    int i;
    cudaError_t e = staging_next(s, &i);
    char *chunk = s->memory + (size_t)i * s->bytes;
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(chunk, src, bytes, cudaMemcpyDeviceToHost, d->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(d->stream);
    if (e == cudaSuccess) memcpy(dst, chunk, bytes);
    return e;
}

/* Between host and device, chunk by chunk. */
static cudaError_t device_stage(device *d, void *dst, const void *src, size_t bytes, bool up)
{
    staging *s = bytes <= SMALL ? &d->small : &d->large;
    cudaError_t e = cudaSuccess;
    if (!s->memory) e = staging_make(s, CHUNK, CHUNKS);
    for (size_t at = 0; at < bytes && e == cudaSuccess; at += s->bytes) {
        const size_t n = bytes - at < s->bytes ? bytes - at : s->bytes;
        char *to = static_cast<char *>(dst) + at;
        const char *from = static_cast<const char *>(src) + at;
        e = up ? staging_put(d, s, to, from, n) : staging_get(d, s, to, from, n);
    }
    return e;
}

static mlc_status device_copy(void *dev, void *dst, const void *src, size_t bytes,
                              mlc_copy_kind kind)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    const cudaError_t e = kind == MLC_COPY_ON_DEVICE
        ? cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, d->stream)
        : device_stage(d, dst, src, bytes, kind == MLC_COPY_TO_DEVICE);
    if (e != cudaSuccess) return device_late(d, "copy", e);
    return kind == MLC_COPY_TO_HOST ? device_well(d) : MLC_OK;
}

static mlc_status device_sync(void *dev)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    const cudaError_t e = cudaStreamSynchronize(d->stream);
    return e == cudaSuccess ? device_well(d) : device_late(d, "synchronization", e);
}

/* A slot is free when its post was answered or is older than SLOTS others, which a caller that
 * polls does not see. */
static mlc_status device_post(void *dev, const void *src, size_t bytes, int64_t *ticket)
{
    device *d = device_of(dev);
    const int slot = (int)(d->posts % SLOTS);
    if (bytes > SLOT_BYTES) return MLC_ERR_ARG;
    cudaSetDevice(d->card);
    cudaError_t e = cudaMemcpyAsync(d->slots + slot * SLOT_BYTES, src, bytes,
                                    cudaMemcpyDeviceToHost, d->stream);
    if (e == cudaSuccess) e = cudaEventRecord(d->posted[slot], d->stream);
    if (e != cudaSuccess) return device_late(d, "post", e);
    *ticket = ++d->posts;
    return MLC_OK;
}
static int32_t device_poll(void *dev, int64_t ticket, void *dst, size_t bytes)
{
    device *d = device_of(dev);
    const int slot = (int)((ticket - 1) % SLOTS);
    cudaSetDevice(d->card);
    const cudaError_t e = cudaEventQuery(d->posted[slot]);
    if (e == cudaErrorNotReady) return 0;
    if (e != cudaSuccess) {
        device_late(d, "poll", e);
        return -1;
    }
    memcpy(dst, d->slots + slot * SLOT_BYTES, bytes);
    return 1;
}

/* @@ CUDA.LAUNCH ----------------------------------------- grids, names of kernels */

enum { THREADS = 256, EACH = 8 };      /* of a block; elements of each thread                   */

/* Launches kernel(args..) with `shared` bytes of dynamic shared memory. */
template <class... P, class... A>
static mlc_status launch(void *dev, const char *name, dim3 grid, dim3 block, size_t shared,
                         void (*kernel)(P...), const A &...args)
{
    device *d = device_of(dev);
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = d->stream;
    cudaSetDevice(d->card);
    cudaError_t e = cudaLaunchKernelEx(&config, kernel, P(args)...);
    if (e == cudaSuccess && d->blocking) e = cudaStreamSynchronize(d->stream);
    return e == cudaSuccess ? MLC_OK : device_failed(d, name, e);
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

/* @@ CUDA.COMMON ----------------------------------------- Philox
 * What several sections use. */

/* Words 0 .. 3 of a block of a stream, as IMPL.RNG has them: Philox4x32-10. */
struct words { uint32_t w[4]; };
DEV words philox(uint64_t seed, uint64_t stream, uint64_t block)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    words c = { { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                  (uint32_t)(stream >> 32) } };
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c.w[0] * 0xD2511F53u, p1 = (uint64_t)c.w[2] * 0xCD9E8D57u;
        const uint32_t w0 = (uint32_t)(p1 >> 32) ^ c.w[1] ^ k0;
        const uint32_t w2 = (uint32_t)(p0 >> 32) ^ c.w[3] ^ k1;
        c.w[0] = w0; c.w[1] = (uint32_t)p1; c.w[2] = w2; c.w[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return c;
}

/* @@ CUDA.FORMULAS --------------------------------------- F(name) of the formulas of mlcore.h
 * f_NAME has the meaning of mlc__NAME_f32 and mlc__NAME_f64 (IMPL.KERNELS.MATH and EW): NaN and
 * infinities end as there. Elementary functions are CUDA's; those of f32 that it has to several ulp
 * only are made in f64 by the kernel math. */

#define F(name) f_##name
#define LIBM1(name, f32, f64) \
    DEV float f_##name(float x) { return f32(x); } \
    DEV double f_##name(double x) { return f64(x); }
#define LIBM2(name, f32, f64) \
    DEV float f_##name(float x, float y) { return f32(x, y); } \
    DEV double f_##name(double x, double y) { return f64(x, y); }
LIBM1(exp, expf, exp) LIBM1(exp2, exp2f, exp2) LIBM1(expm1, expm1f, expm1)
LIBM1(elu_exp, expm1f, expm1) LIBM1(log1p, log1pf, log1p)
LIBM1(sqrt, sqrtf, sqrt) LIBM1(abs, fabsf, fabs) LIBM1(tanh, tanhf, tanh)
LIBM1(sin, sinf, sin) LIBM1(cos, cosf, cos) LIBM1(tan, tanf, tan) LIBM1(asin, asinf, asin)
LIBM1(acos, acosf, acos) LIBM1(atan, atanf, atan) LIBM1(sinh, sinhf, sinh)
LIBM1(cosh, coshf, cosh) LIBM1(erf, erff, erf) LIBM1(erfc, erfcf, erfc)
LIBM1(floor, floorf, floor) LIBM1(ceil, ceilf, ceil) LIBM1(rint, rintf, rint)
LIBM1(trunc, truncf, trunc) LIBM2(pow, powf, pow) LIBM2(fmod, fmodf, fmod)
LIBM2(atan2, atan2f, atan2) LIBM2(hypot, hypotf, hypot)

/* The sum flushes denormals: their logarithm is that of 0. */
DEV float f_log(float x)   { return logf(x + 0.0f); }
DEV float f_log2(float x)  { return log2f(x + 0.0f); }
DEV float f_log10(float x) { return log10f(x + 0.0f); }
DEV double f_log(double x)   { return log(x); }
DEV double f_log2(double x)  { return log2(x); }
DEV double f_log10(double x) { return log10(x); }

template <class T> DEV T f_pick(bool c, T x, T y) { return c ? x : y; }
template <class T> DEV T f_sigmoid(T x) { return (T)1 / ((T)1 + f_exp(-x)); }
template <class T> DEV T f_positive(T x) { return x < 0 ? (T)0 : x; }
template <class T> DEV T f_limit(T x, T lo, T hi) { return x < lo ? lo : x > hi ? hi : x; }
/* From 20 on x, as PyTorch has it. */
template <class T> DEV T f_softplus(T x) { return x > 20 ? x : f_log1p(f_exp(x)); }

DEV float eighth_power(float x) { const float s = x * x, q = s * s; return q * q; }

/* Polynomials of the CPU: the eighth root of the tail Phi(-|x|), and of the slope. */
DEV float f_gelu(float x)
{
    const float m = fabsf(x), a = m > 8.0f ? 8.0f : m, s = a * a;
    float p = (-3.00064812e-07f * s + (7.53571658e-06f * a - 6.05626519e-05f)) * s;
    p = (p + (3.51599992e-05f * a + 0.00150298281f)) * (s * s);
    p = p + ((-0.000670714653f * a - 0.0319286734f) * s + (-0.0914572775f * a + 0.917003989f));
    return (x < 0.0f ? 0.0f : x) - a * eighth_power(p);
}
DEV double f_gelu(double x) { return x < -40 ? 0.0 : 0.5 * x * erfc(-0.7071067811865476 * x); }
DEV float f_gelu_slope(float x)
{
    const float m = fabsf(x), a = m > 7.0f ? 7.0f : m, s = a * a;
    float p = (-5.17494492e-08f * a + 7.58586225e-07f) * s;
    p = ((p + (-1.34668346e-06f * a - 1.95066004e-05f)) * s +
         (-0.00014179507f * a + 0.0025183924f)) * (s * s);
    p = p + ((-0.00302618276f * a - 0.0456285849f) * s + (-0.031551946f * a + 0.950296402f));
    const float k = (0.751791525f - a) * eighth_power(p);
    return x > 0.0f ? 1.0f - k : k;
}
DEV double f_gelu_slope(double x)
{
    const double v = f_limit(x, -40.0, 40.0);
    return 0.5 * erfc(-0.7071067811865476 * v) + v * (0.3989422804014327 * exp(-0.5 * v * v));
}

/* x sigmoid(z); where z overflows it is 0 or x. */
template <class T> DEV T gelu_tanh_z(T x)
{
    return (T)1.5957691216057308 * (x + (T)0.044715 * (x * x * x));
}
template <class T> DEV T f_gelu_tanh(T x) { return x < -40 ? (T)0 : x * f_sigmoid(gelu_tanh_z(x)); }
template <class T> DEV T f_gelu_tanh_slope(T x)
{
    const T v = f_limit(x, (T)-40, (T)40), z = gelu_tanh_z(v), e = f_exp(z < 0 ? z : -z);
    const T q = (T)1 / ((T)1 + e), s = z < 0 ? e * q : q;
    return s + v * (e * q * q) *       /* = s (1 - s), without cancellation */
               ((T)1.5957691216057308 + (T)0.21406444881780073 * (v * v));
}

/* x tanh(log(1 + e)) = x n/(n + 2), n = e (e + 2); from 40 on x. */
template <class T> DEV T f_mish(T x)
{
    const T e = f_exp(x > 40 ? (T)40 : x), n = e * (e + (T)2);
    return x < -1000 ? (T)0 : x * (n / (n + (T)2));
}
template <class T> DEV T f_mish_slope(T x)
{
    const T v = f_limit(x, (T)-800, (T)40), e = f_exp(v), n = e * (e + (T)2), r = (T)1 / (n + (T)2);
    return n * r + (T)4 * v * (e * (e + (T)1)) * r * r;
}
template <class T> DEV T f_softsign(T x)
{
    const T v = f_limit(x, (T)-1e30, (T)1e30);
    return v / ((T)1 + f_abs(v));
}
/* From the nearer end: 0 or 1 at the ends alone. */
template <class T> DEV T f_hardsigmoid(T x)
{
    const T v = f_limit(x, (T)-3, (T)3), h = ((T)3 - f_abs(v)) / (T)6;
    return v < 0 ? h : (T)1 - h;
}

/* Python's %: the sign of b; and the floor of a/b that goes with it. */
template <class T> DEV T f_remainder(T a, T b)
{
    const T mod = f_fmod(a, b);
    return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}
template <class T> DEV T f_floor_div(T a, T b)
{
    const T mod = f_fmod(a, b), ratio = a / b;
    const T div = (a - mod) / b - (T)(mod != 0 && (b < 0) != (mod < 0)), whole = f_floor(div);
    const T near = div - whole > (T)0.5 ? whole + (T)1 : whole;
    return b == 0 ? ratio : div == 0 ? ratio * 0 : near;
}

/* Losses and their slopes: a NaN stays one. */
template <class T> DEV T f_smooth_l1(T d, T beta)
{
    const T z = f_abs(d);
    return z < beta ? (T)0.5 * z * (z / beta) : z - (T)0.5 * beta;
}
template <class T> DEV T f_smooth_l1_slope(T d, T beta)
{
    return f_abs(d) >= beta ? (T)(d > 0) - (T)(d < 0) : d / beta;
}
template <class T> DEV T f_huber(T d, T delta)
{
    const T z = f_abs(d);
    return z <= delta ? (T)0.5 * z * z : delta * (z - (T)0.5 * delta);
}
/* Ends at -100, as PyTorch's. rest: log(1 - x). */
template <class T> DEV T f_log_100(T x, bool rest)
{
    const T y = rest ? f_log1p(-x) : f_log(x);
    return y < -100 ? (T)-100 : y;
}
template <class T> DEV T f_bce(T x, T t)
{
    return (t - (T)1) * f_log_100(x, true) - t * f_log_100(x, false);
}
template <class T> DEV T f_bce_slope(T x, T t)
{
    const T v = ((T)1 - x) * x;
    return (x - t) / (v < (T)1e-12f ? (T)1e-12f : v);
}
template <class T> DEV T f_bce_logits(T x, T t)
{
    return (x > 0 ? x * ((T)1 - t) : -(x * t)) + f_log1p(f_exp(-f_abs(x)));
}
/* Sigmoid of x and of -x, neither of them 1 less something. */
template <class T> struct odds {
    T p, q;
    DEV explicit odds(T x)
    {
        const T e = f_exp(-f_abs(x)), large = (T)1 / ((T)1 + e);
        p = x > 0 ? large : e * large;
        q = x > 0 ? e * large : large;
    }
};
template <class T> DEV T f_bce_logits_slope(T x, T t)
{
    const odds<T> o(x);
    return o.p * ((T)1 - t) - o.q * t;
}
template <class T> DEV T focal_weight(T t, T alpha)
{
    return alpha < 0 ? (T)1 : alpha * t + ((T)1 - alpha) * ((T)1 - t);
}
template <class T> DEV T focal_power(T u, T gamma, bool square)
{
    return square ? u * u : f_pow(u, gamma);
}
template <class T> DEV T f_focal(T x, T t, T alpha, T gamma, bool square)
{
    const odds<T> o(x);
    return focal_weight(t, alpha) * f_bce_logits(x, t) *
           focal_power(o.p * ((T)1 - t) + o.q * t, gamma, square);
}
/* w u^gamma (gamma u'/u loss + loss'); where u is 0 the first part is. */
template <class T> DEV T f_focal_slope(T x, T t, T alpha, T gamma, bool square)
{
    const odds<T> o(x);
    const T u = o.p * ((T)1 - t) + o.q * t;
    const T r = u == 0 ? (T)0 : o.p * o.q * ((T)1 - (t + t)) / u;
    return focal_weight(t, alpha) * focal_power(u, gamma, square) *
           (gamma * r * f_bce_logits(x, t) + (o.p * ((T)1 - t) - o.q * t));
}
template <class T> DEV T f_focal_slope_t(T x, T t, T alpha, T gamma, bool square)
{
    const odds<T> o(x);
    const T u = o.p * ((T)1 - t) + o.q * t, loss = f_bce_logits(x, t);
    const T r = u == 0 ? (T)0 : (o.q - o.p) / u;
    const T turn = alpha < 0 ? (T)0 : alpha + alpha - (T)1;
    return focal_power(u, gamma, square) *
           (turn * loss + focal_weight(t, alpha) * (gamma * r * loss - x));
}

/* @@ CUDA.MAP -------------------------------------------- formulas: map, math
 * out (+)= f(in..), any strides. A thread makes a unit: V elements that follow one another on the
 * innermost axis, where an operand is dense (one access of at most 16 bytes) or repeats one value;
 * V is 1 where that cannot be. The formula is chosen at run time, once a unit in map; those of math
 * are a function that is called, as a hundred of them inlined would cost map its registers. */

template <class T, int V> struct alignas(sizeof(T) * V) vec { T v[V]; };

/* Loads V elements as W, and stores them; step 0: the same one; count below V: the last unit. */
template <int V, class T> DEV void load_unit(const T *p, int step, int count,
                                             typename wide<T>::type (&x)[V])
{
    if (V > 1 && step && count == V) {
        const vec<T, V> u = *reinterpret_cast<const vec<T, V> *>(p);
        for (int e = 0; e < V; e++) x[e] = load(u.v[e]);
    } else {
        for (int e = 0; e < V; e++) if (e < count) x[e] = load(p[e * step]);
    }
}
template <int V, class T, class W> DEV void store_unit(T *p, int count, const W (&x)[V])
{
    vec<T, V> u;
    for (int e = 0; e < V; e++) store(u.v + e, x[e]);
    if (count == V) *reinterpret_cast<vec<T, V> *>(p) = u;
    else for (int e = 0; e < V; e++) if (e < count) p[e] = u.v[e];
}

template <int N> struct units {
    walk<N> w;
    int64_t base[N], left;             /* elements from the first unit on, where there is one dim */
    int step[N];                       /* of an operand inside a unit: 0 or 1                   */
};

/* f.run<V>(places, steps, count) for each unit. */
template <int V, int N, class F> static __global__ void __launch_bounds__(THREADS)
units_kernel(const units<N> u, const F f)
{
    const int each = V == 1 ? 4 : 1;
    uint32_t i = blockIdx.x * (uint32_t)(THREADS * each) + threadIdx.x;
    for (int e = 0; e < each && i < u.w.n; e++, i += THREADS) {
        const int64_t left = u.left - (int64_t)i * V;
        int64_t at[N];
        walk_at(u.w, i, at);
        for (int k = 0; k < N; k++) at[k] += u.base[k];
        f.template run<V>(at, u.step, left < V ? (int)left : V);
    }
}

/* What an entry knows of its operands; operand 0 is the output. strides NULL: it is not there. */
template <int N> struct operand_list {
    int32_t ndim;
    const int64_t *shape;
    const void *data[N];
    const int64_t *stride[N];
    size_t size[N];                    /* of an element                                         */
};

/* The plan with axes in the order of the output's strides, so that its stores are coalesced. */
template <int N> static plan<N> plan_sorted(const operand_list<N> &o)
{
    int64_t shape[MLC_MAX_DIMS], stride[N][MLC_MAX_DIMS];
    const int64_t *strides[N];
    int order[MLC_MAX_DIMS];
    for (int d = 0; d < o.ndim; d++) {
        int at = d;
        for (; at > 0 && llabs(o.stride[0][order[at - 1]]) < llabs(o.stride[0][d]); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    for (int d = 0; d < o.ndim; d++) shape[d] = o.shape[order[d]];
    for (int k = 0; k < N; k++) {
        strides[k] = o.stride[k] ? stride[k] : NULL;
        for (int d = 0; d < o.ndim && o.stride[k]; d++) stride[k][d] = o.stride[k][order[d]];
    }
    return plan<N>(o.ndim, shape, strides);
}

/* True where units of v elements are whole and aligned in all operands. */
template <int N> static bool plan_has_units(const plan<N> &p, const operand_list<N> &o, int v)
{
    const int last = p.ndim - 1;
    if (last < 0 || p.stride[0][last] != 1 || (last > 0 && p.shape[last] % v != 0)) return false;
    for (int k = 0; k < N; k++) {
        if (p.stride[k][last] == 0) continue;
        if (p.stride[k][last] != 1 || (uintptr_t)o.data[k] % (o.size[k] * (size_t)v)) return false;
        for (int d = 0; d < last; d++) if (p.stride[k][d] % v != 0) return false;
    }
    return true;
}

template <int V, int N, class F>
static mlc_status units_launch(void *dev, const char *name, plan<N> p, const F &f)
{
    units<N> u;
    const int64_t whole = p.ndim == 1 ? p.n : INT64_MAX, each = THREADS * (V == 1 ? 4 : 1);
    for (int k = 0; k < N; k++) u.step[k] = V > 1 ? (int)p.stride[k][p.ndim - 1] : 0;
    if (V > 1) {
        int64_t *const size = p.shape + p.ndim - 1, length = (*size + V - 1) / V;
        p.n = p.n / *size * length;
        *size = length;
        for (int k = 0; k < N; k++) p.stride[k][p.ndim - 1] *= V;
    }
    return p.each([&](const walk<N> &w, const int64_t *offset) {
        u.w = w;
        for (int k = 0; k < N; k++) u.base[k] = offset[k];
        u.left = whole == INT64_MAX || V == 1 ? INT64_MAX : whole - offset[0];
        return launch(dev, name, dim3((unsigned)((w.n + each - 1) / each)), dim3(THREADS), 0,
                      units_kernel<V, N, F>, u, f);
    });
}

/* Runs f over all elements, in units of V where it can. */
template <int V, int N, class F>
static mlc_status units_run(void *dev, const char *name, const operand_list<N> &o, const F &f)
{
    const plan<N> p = plan_sorted(o);
    if (p.n == 0) return MLC_OK;
    if (V > 1 && plan_has_units(p, o, V)) return units_launch<V>(dev, name, p, f);
    return units_launch<1>(dev, name, p, f);
}

/* The formulas of map, inlined: one choice for V elements. */
#define MAP_CASE(code, formula) \
    case MLC_##code: \
        for (int e = 0; e < V; e++) { \
            const T a = x[0][e], b = x[1][e], c = x[2][e]; \
            (void)a; (void)b; (void)c; \
            r[e] = formula; \
        } \
        break;
struct map_formulas {
    template <int V, class T>
    static DEV void run(int op, const T (&x)[3][V], double by, double, T (&r)[V])
    {
        const T s = (T)by;
        switch (op) {
            MLC_MAP_FORMULAS(MAP_CASE, MAP_CASE, MAP_CASE, F)
            default: break;
        }
    }
    static BOTH int choose(int op, double) { return op; }
};

/* Those of math: a function for one element. */
#define MATH_CASE(code, formula) case MLC_##code: return (T)(formula);
template <class T>
static __device__ __attribute__((noinline)) T math_formula(int op, T a, T b, T c, T s, T t)
{
    switch (op) {
        MLC_MATH_FORMULAS(MATH_CASE, MATH_CASE, MATH_CASE, F)
        default: return (T)0;
    }
}
/* M: in which elements are computed: of f32 and 16 bits f64 where the formula is a wide one. */
template <class M> struct math_formulas {
    template <int V, class T>
    static DEV void run(int op, const T (&x)[3][V], double s, double t, T (&r)[V])
    {
        for (int e = 0; e < V; e++)
            r[e] = (T)math_formula<M>(op, (M)x[0][e], (M)x[1][e], (M)x[2][e], (M)s, (M)t);
    }
    /* Powers that have a formula of their own. */
    static BOTH int choose(int op, double s)
    {
        if (op == MLC_MATH_POW_S)
            return s == 2.0 ? MLC_MATH_SQUARE : s == 3.0 ? MLC_MATH_CUBE : s == 0.5 ? MLC_MATH_ROOT
                 : s == -1.0 ? MLC_MATH_RECIPROCAL : op;
        if (op == MLC_MATH_POW_S_GRAD)
            return s == 2.0 ? MLC_MATH_SQUARE_GRAD : s == 3.0 ? MLC_MATH_CUBE_GRAD : op;
        if (s != 2.0) return op;
        return op == MLC_MATH_FOCAL ? MLC_MATH_FOCAL_2
             : op == MLC_MATH_FOCAL_GRAD ? MLC_MATH_FOCAL_2_GRAD
             : op == MLC_MATH_FOCAL_GRAD_T ? MLC_MATH_FOCAL_2_GRAD_T : op;
    }
};

/* Formulas whose f32 is good to one rounding on the CPU, and to 2 to 4 ulp in CUDA's library, or
 * that need the remainder of a quotient of any size. */
static bool math_is_wide(int op)
{
    switch (op) {
    case MLC_MATH_EXPM1: case MLC_MATH_EXP2: case MLC_MATH_LOG2: case MLC_MATH_LOG10:
    case MLC_MATH_SIN: case MLC_MATH_COS: case MLC_MATH_TAN: case MLC_MATH_ASIN:
    case MLC_MATH_ACOS: case MLC_MATH_ATAN: case MLC_MATH_SINH: case MLC_MATH_COSH:
    case MLC_MATH_ERFC: case MLC_MATH_ATAN2: case MLC_MATH_HYPOT: case MLC_MATH_MISH:
    case MLC_MATH_POW: case MLC_MATH_POW_S: case MLC_MATH_POW_S_GRAD: case MLC_MATH_POW_GRAD_A:
    case MLC_MATH_POW_GRAD_B: case MLC_MATH_REMAINDER: case MLC_MATH_FLOOR_DIV: return true;
    default: return false;
    }
}

/* Operand 0 is the output, 1 to 3 are the inputs. */
template <class T, class FORMULAS> struct map_job {
    typedef typename wide<T>::type W;
    int op, inputs, accumulate;
    T *out;
    const T *in[3];
    double s, t;
    const double *s_dev;

    template <int V> DEV void run(const int64_t *at, const int *step, int count) const
    {
        const double by = s_dev ? *s_dev : s;
        W x[3][V] = {}, r[V];
        for (int p = 0; p < 3; p++)
            if (p < inputs) load_unit<V>(in[p] + at[p + 1], step[p + 1], count, x[p]);
        FORMULAS::run(s_dev ? FORMULAS::choose(op, by) : op, x, by, t, r);
        if (accumulate) {
            W old[V];
            load_unit<V>(out + at[0], 1, count, old);
            for (int e = 0; e < V; e++) if (e < count) r[e] = old[e] + r[e];
        }
        store_unit<V>(out + at[0], count, r);
    }
};

template <class FORMULAS, int V, class T>
static mlc_status map_run(void *dev, const char *name, const struct mlc_k_map *a)
{
    map_job<T, FORMULAS> job = { a->s_dev ? (int)a->op : FORMULAS::choose(a->op, a->s), 0,
                                 a->accumulate, static_cast<T *>(a->out), {}, a->s, a->t,
                                 a->s_dev };
    operand_list<4> o = { a->ndim, a->shape, { a->out }, { a->out_stride },
                          { sizeof(T), sizeof(T), sizeof(T), sizeof(T) } };
    /* Inputs are given from the front: the first NULL ends them. */
    for (; job.inputs < 3 && a->in[job.inputs]; job.inputs++) {
        job.in[job.inputs] = static_cast<const T *>(a->in[job.inputs]);
        o.data[job.inputs + 1] = a->in[job.inputs];
        o.stride[job.inputs + 1] = a->in_stride[job.inputs];
    }
    return units_run<V>(dev, name, o, job);
}
static mlc_status map_entry(void *dev, const struct mlc_k_map *a)
{
    if (a->op > MLC__MAP_LAST) return MLC_ERR_UNSUPPORTED;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return map_run<map_formulas, 16 / sizeof(T), T>(dev, "map", a);
    });
}
static mlc_status math_entry(void *dev, const struct mlc_k_math *math)
{
    const struct mlc_k_map *a = &math->map;
    const int op = a->s_dev ? (int)a->op : math_formulas<float>::choose(a->op, a->s);
    if (a->op <= MLC__MAP_LAST || a->op >= MLC_MATH_END) return MLC_ERR_UNSUPPORTED;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        typedef typename wide<T>::type W;
        const int v = sizeof(T) == 8 ? 2 : 4;              /* 8 would cost too many registers */
        return math_is_wide(op) ? map_run<math_formulas<double>, v, T>(dev, "math", a)
                                : map_run<math_formulas<W>, v, T>(dev, "math", a);
    });
}

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
    k->map = map_entry;
    k->math = math_entry;
    k->fill = fill_entry;
}

void mlc_cuda_backend(mlc_backend *b)
{
    memset(b, 0, sizeof *b);
    b->abi = MLC_ABI;
    b->size = (uint32_t)sizeof *b;
    b->name = "cuda";
    b->count = device_count;
    b->open = device_open;
    b->close = device_close;
    b->alloc = device_alloc;
    b->release = device_release;
    b->copy = device_copy;
    b->post = device_post;
    b->poll = device_poll;
    b->sync = device_sync;
    b->message = device_message;
    b->operation = device_operation;
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
