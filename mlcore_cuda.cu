/* mlcore_cuda.cu -- kernels of mlcore's operations for NVIDIA GPUs (sm_80 and later)
 *
 * The unit fills a mlc_backend: memory functions and an entry for each kernel of API.BACKEND. It
 * knows pointers, sizes and strides; no tensor, no tape. It is plain CUDA C++17 over the runtime
 * API: launches go through cudaLaunchKernelEx, shared arrays through MLC_SHARED, so that the host
 * build (tests/cuda_host) compiles the same text with a C++ compiler and runs it on the CPU.
 *
 * Conventions. An entry is NAME_entry(dev, args): it plans on the host and launches; its kernels
 * are NAME_kernel. Elements are loaded to W, which is float for f32, bf16, f16 and double for
 * f64, and rounded once when they are stored. Results do not depend on the order of blocks: there
 * is no floating-point atomic. An entry returns UNSUPPORTED for arguments that it has no kernel
 * for.
 *
 * CUDA.DEVICE    stream, memory, copies, errors        CUDA.RANDOM   random, dropout
 * CUDA.LAUNCH    sizes of blocks, launches             CUDA.REDUCE   reduce, argmax, scan, ..
 * CUDA.ELEMENT   dtypes: load, store, choice           CUDA.ROWS     softmax, norm
 * CUDA.WALK      merged dims, index arithmetic         CUDA.XENT     cross-entropy
 * CUDA.COMMON    packs, teams, Philox, error word      CUDA.INDEX    take, index
 * CUDA.UNITS     values of any dtype; units of a walk  CUDA.GEMM     products: own tile, epilogue
 * CUDA.FORMULAS  f_exp, f_gelu, ...                    CUDA.LT       products by cuBLASLt
 * CUDA.MAP       formulas: map, math                   CUDA.ATTENTION  softmax(q k^T) v by tiles
 * CUDA.MOVE      compare, where, cast, fill, ...       CUDA.OPTIM    optim, guard, average
 *                                                      CUDA.TABLE    the backend             */
#include <cublasLt.h>
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
 * A context has a device: a card, one stream, a stream-ordered pool. All work is queued on the
 * stream, so it needs no other order. Copies between host and device go through pinned chunks
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
    bool blocking, lost;               /* lost: a failure that stays, and its message           */
    const char *operation;             /* the last                                              */
    const char *first, *since;         /* first: after the device was known to be well; since:
                                        * after the last post                                   */
    char message[MESSAGE];
    struct lt_state *lt;               /* of CUDA.LT, NULL until it is needed                   */
};
static void lt_close(struct lt_state *lt);

static char g_why[MESSAGE];            /* of mlc_cuda_error                                     */

static device *device_of(void *dev) { return static_cast<device *>(dev); }

/* Keeps a text for a failure, that of the first one that stays; the status says whether memory was
 * missing. */
static mlc_status device_failed(device *d, const char *what, cudaError_t e)
{
    cudaGetLastError();                /* clears the error that is not to stay                  */
    if (!d->lost) snprintf(d->message, sizeof d->message, "%s: %s", what, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? MLC_ERR_NOMEM : MLC_ERR_DEVICE;
}

static mlc_status device_well(device *d)
{
    d->first = d->since = NULL;
    return MLC_OK;
}

/* A failure that stays, so that every later call fails too, may come from work that was queued long
 * before: its text names the operations since the device was known to be well. */
static void device_late(device *d)
{
    const size_t at = strlen(d->message);
    cudaSetDevice(d->card);
    const cudaError_t e = cudaStreamQuery(d->stream);
    cudaGetLastError();
    d->lost = e != cudaSuccess && e != cudaErrorNotReady;
    if (d->lost && d->first)
        snprintf(d->message + at, sizeof d->message - at, "; queued since the device was last "
                 "known to be well: '%s' to '%s'%s", d->first, d->operation, d->blocking ? "" :
                 "; MLC_CUDA_BLOCKING=1 names the kernel");
}
static const char *device_message(void *dev)
{
    device *d = device_of(dev);
    if (d->message[0] && !d->lost) device_late(d);
    return d->message[0] ? d->message : NULL;
}
static void device_operation(void *dev, const char *what)
{
    device *d = device_of(dev);
    d->operation = what;
    if (!d->first || d->blocking) d->first = what;
    if (!d->since) d->since = what;
}

static void staging_free(staging *s)
{
    while (s->chunks > 0) cudaEventDestroy(s->free[--s->chunks]);
    if (s->memory) cudaFreeHost(s->memory);
    memset(s, 0, sizeof *s);
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
    if (e != cudaSuccess) staging_free(s);
    return e;
}

static void device_close(void *dev)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    if (d->stream) {
        cudaStreamSynchronize(d->stream);
        cudaStreamDestroy(d->stream);
    }
    lt_close(d->lt);
    staging_free(&d->small);
    staging_free(&d->large);
    for (int i = 0; i < SLOTS; i++)
        if (d->posted[i]) cudaEventDestroy(d->posted[i]);
    if (d->slots) cudaFreeHost(d->slots);
    if (d->pool) cudaMemPoolDestroy(d->pool);
    free(d);
}

/* The context's memory pool. It keeps released memory until the context ends. The card's default
 * pool is not used, so that it stays as the program has set it.                              */
static cudaError_t device_pool(device *d)
{
    uint64_t keep = UINT64_MAX;
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = d->card;
    const cudaError_t e = cudaMemPoolCreate(&d->pool, &props);
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

/* Has the card the instructions of the kernels and a stream-ordered allocator? */
static bool device_fits(int card)
{
    enum { OLDEST = 8 };
    int major = 0, pools = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card);
    cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, card);
    if (major < OLDEST)
        snprintf(g_why, sizeof g_why, "card %d has compute capability %d, %d.0 is the oldest with "
                 "kernels", card, major, OLDEST);
    else if (!pools) snprintf(g_why, sizeof g_why, "card %d has no memory pools", card);
    return major >= OLDEST && pools;
}

static mlc_status device_open(int32_t index, void **dev)
{
    const char *blocking = getenv("MLC_CUDA_BLOCKING");
    if (index >= device_count() || !device_fits(index)) return MLC_ERR_DEVICE;
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
    memcpy(g_why, d->message, sizeof g_why);
    device_close(d);
    return st;
}

static mlc_status device_alloc(void *dev, size_t bytes, void **p)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    cudaError_t e = cudaMallocFromPoolAsync(p, bytes, d->pool, d->stream);
    if (e == cudaErrorMemoryAllocation) {                    /* freed blocks may not be back */
        cudaGetLastError();
        cudaStreamSynchronize(d->stream);
        cudaMemPoolTrimTo(d->pool, 0);
        e = cudaMallocFromPoolAsync(p, bytes, d->pool, d->stream);
    }
    return e == cudaSuccess ? MLC_OK : device_failed(d, "allocation", e);
}
static void device_release(void *dev, void *p, size_t)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    cudaFreeAsync(p, d->stream);
}

/* What the pool holds and has not lent is free, too. */
static mlc_status device_info(void *dev, mlc_device_info *out)
{
    device *d = device_of(dev);
    cudaDeviceProp card;
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t held = 0, lent = 0;
    cudaSetDevice(d->card);
    cudaError_t e = cudaGetDeviceProperties(&card, d->card);
    if (e == cudaSuccess) e = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (e == cudaSuccess)
        e = cudaMemPoolGetAttribute(d->pool, cudaMemPoolAttrReservedMemCurrent, &held);
    if (e == cudaSuccess)
        e = cudaMemPoolGetAttribute(d->pool, cudaMemPoolAttrUsedMemCurrent, &lent);
    if (e != cudaSuccess) return device_failed(d, "info", e);
    snprintf(out->name, sizeof out->name, "%.63s", card.name);
    out->free_bytes = (int64_t)(free_bytes + held - lent);
    out->total_bytes = (int64_t)total_bytes;
    return MLC_OK;
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
    if (e != cudaSuccess) return device_failed(d, "copy", e);
    return kind == MLC_COPY_TO_HOST ? device_well(d) : MLC_OK;
}

static mlc_status device_sync(void *dev)
{
    device *d = device_of(dev);
    cudaSetDevice(d->card);
    const cudaError_t e = cudaStreamSynchronize(d->stream);
    return e == cudaSuccess ? device_well(d) : device_failed(d, "synchronization", e);
}

/* Slots are used in turn: a ticket that SLOTS later posts have overtaken is lost. A context has one
 * open at a time. */
static mlc_status device_post(void *dev, const void *src, size_t bytes, int64_t *ticket)
{
    device *d = device_of(dev);
    const int slot = (int)(d->posts % SLOTS);
    if (bytes > SLOT_BYTES) return MLC_ERR_ARG;
    cudaSetDevice(d->card);
    cudaError_t e = cudaMemcpyAsync(d->slots + slot * SLOT_BYTES, src, bytes,
                                    cudaMemcpyDeviceToHost, d->stream);
    if (e == cudaSuccess) e = cudaEventRecord(d->posted[slot], d->stream);
    if (e != cudaSuccess) return device_failed(d, "post", e);
    *ticket = ++d->posts;
    d->since = NULL;
    return MLC_OK;
}
static int32_t device_poll(void *dev, int64_t ticket, void *dst, size_t bytes)
{
    device *d = device_of(dev);
    const int slot = (int)((ticket - 1) % SLOTS);
    if (ticket < 1 || ticket > d->posts || ticket <= d->posts - SLOTS) {
        device_failed(d, "poll: the ticket is over", cudaErrorInvalidValue);
        return -1;
    }
    cudaSetDevice(d->card);
    const cudaError_t e = cudaEventQuery(d->posted[slot]);
    if (e == cudaErrorNotReady) {
        cudaGetLastError();            /* which is this, to a program that asks                 */
        return 0;
    }
    if (e != cudaSuccess) {
        device_failed(d, "poll", e);
        return -1;
    }
    memcpy(dst, d->slots + slot * SLOT_BYTES, bytes);
    if (ticket == d->posts) d->first = d->since;
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
#ifdef __CUDA_ARCH__                   /* one instruction, the same bits                        */
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
#else
    const uint32_t sign = (uint32_t)(v.bits & 0x8000) << 16, e = v.bits >> 10 & 31;
    const uint32_t m = v.bits & 1023;
    if (e == 31) return bits_f32(sign | 0x7f800000 | (m ? 0x400000 : 0) | m << 13);
    if (e == 0) return bits_f32(sign | f32_bits((float)m * 5.9604644775390625e-8f));
    return bits_f32(sign | (e + 112) << 23 | m << 13);
#endif
}

template <class T> BOTH void store(T *p, T v) { *p = v; }
BOTH void store(bf16 *p, float v)
{
    const uint32_t u = f32_bits(v);
    p->bits = (uint16_t)(v != v ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
BOTH uint16_t f16_bits(float v)        /* v is no NaN                                           */
{
#ifdef __CUDA_ARCH__
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
#else
    const uint32_t u = f32_bits(v), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000)                                      /* the sum rounds                  */
        return (uint16_t)(sign | (f32_bits(bits_f32(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
#endif
}
BOTH void store(f16 *p, float v)
{
    const uint32_t u = f32_bits(v);
    p->bits = v != v ? (uint16_t)((u >> 16 & 0x8000) | 0x7e00 | (u >> 13 & 0x3ff)) : f16_bits(v);
}

/* W of a dtype: the type that is computed in. */
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

/* The plan of a walk, on the host: shape and strides of N operands with dims merged.         */
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
    /* Calls f(walk, offsets of the operands) for each launch; only the first dim may reach 2^31. */
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

/* @@ CUDA.COMMON ----------------------------------------- packs of 16 bytes, teams of threads
 * A pack is 16 bytes of elements. A team of a block's threads shares a line: `size` lanes, `across`
 * lines apart. across 1: lanes are neighbours, a part of a warp or the whole block; else neighbours
 * are of different lines, which are next to each other in memory. Teams of a block are alike. */

#define PACK(T) (16 / (int)sizeof(T))

struct flag { uint8_t v; };            /* an element of bool                                    */
BOTH uint8_t load(flag f) { return f.v != 0; }

/* v[e] = p[e step] of e < count; the others stay. vec: they are dense and 16-byte aligned. */
template <class T, class W, int N>
DEV void load_pack(const T *p, int64_t step, int64_t count, bool vec, W (&v)[N])
{
    if (vec && count >= N) {
        T raw[N];
        const float4 words = *reinterpret_cast<const float4 *>(p);
        memcpy(raw, &words, 16);
        for (int e = 0; e < N; e++) v[e] = load(raw[e]);
    } else
        for (int e = 0; e < N; e++)
            if (e < count) v[e] = load(p[e * step]);
}
/* p[e step] = v[e], or += in W. */
template <class T, class W, int N>
DEV void store_pack(T *p, int64_t step, int64_t count, bool vec, bool accumulate, W (&v)[N])
{
    if (accumulate)
        for (int e = 0; e < N; e++)
            if (e < count) v[e] += load(p[e * step]);
    if (vec && count >= N) {
        T raw[N];
        float4 words;
        for (int e = 0; e < N; e++) store(raw + e, v[e]);
        memcpy(&words, raw, 16);
        *reinterpret_cast<float4 *>(p) = words;
    } else
        for (int e = 0; e < N; e++)
            if (e < count) store(p + e * step, v[e]);
}
/* Adds v to *sum: groups of four in W, groups in f64. */
template <class W, int N> DEV void add_groups(double *sum, const W (&v)[N])
{
    if (N < 4) *sum += (double)(v[0] + v[1 % N]);
    else
        for (int e = 0; e + 3 < N; e += 4)
            *sum += (double)((v[e] + v[e + 1]) + (v[e + 2] + v[e + 3]));
}

/* f64 to f32 by rounding to odd: rounding to 16 bits after it is right. */
BOTH float odd_f32(double x)
{
    const float f = (float)x;
    const double back = (double)f;
    if (back == x || x != x) return f;
    return bits_f32((f32_bits(f) - (fabs(back) > fabs(x))) | 1);
}

/* i64 to f64 alike: over 2^53 the 11 lowest bits are a half. */
BOTH double odd_f64(int64_t x)
{
    const int64_t most = (int64_t)1 << 53, rest = x & 2047;
    return (double)(x > most || x < -most ? x - rest + (rest ? 1024 : 0) : x);
}

struct team { int size, across; };
DEV int team_line(team m)
{
    return m.across == 1 ? (int)threadIdx.x / m.size : (int)threadIdx.x % m.across;
}
DEV int team_lane(team m) { return (int)threadIdx.x / m.across % m.size; }
static int team_lines(team m) { return THREADS / m.size; }

DEV double  shuffle_xor(double v, int o)  { return __shfl_xor_sync(~0u, v, o); }
DEV float   shuffle_xor(float v, int o)   { return __shfl_xor_sync(~0u, v, o); }
DEV int64_t shuffle_xor(int64_t v, int o)
{
    return (int64_t)__shfl_xor_sync(~0u, (long long)v, o);
}

/* Joins the values of a team's lanes in a fixed order; all get the result. All threads call it. */
template <class F, class A> DEV A team_all(const F &f, A a, team m)
{
    MLC_SHARED(A, part, [THREADS]);
    const int t = (int)threadIdx.x;
    int first = 0, count = THREADS / 32, slot = t / 32;
    if (m.across == 1) {
#pragma unroll 1
        for (int o = (m.size < 32 ? m.size : 32) / 2; o > 0; o /= 2) {
            const A other = shuffle_xor(a, o);
            f.join(&a, other);
        }
        if (m.size <= 32) return a;
    } else {
        first = t % m.across;
        count = m.size;
        slot = t;
    }
    __syncthreads();
    if (m.across != 1 || t % 32 == 0) part[slot] = a;
    __syncthreads();
    a = part[first];
#pragma unroll 1
    for (int k = 1; k < count; k++) f.join(&a, part[first + k * m.across]);
    return a;
}

static int power_of_two(int64_t n, int most)         /* at least n, at most `most` */
{
    int p = 1;
    while (p < n && p < most) p *= 2;
    return p;
}
/* A team for lines of n elements, `each` a lane at a time. columns: lines are side by side. */
static team team_for(int64_t n, int each, int64_t lines, bool columns)
{
    const int64_t most = (n + each - 1) / each;
    team m = { power_of_two(most, 32), 1 };
    if (columns) {
        m.across = power_of_two(lines, 32);
        while (m.across < THREADS && THREADS / m.across > most && m.across < lines) m.across *= 2;
        m.size = THREADS / m.across;
    } else if (n > 1024 || (lines < 64 && n > 256)) m.size = THREADS;
    return m;
}
static dim3 team_blocks(int64_t lines, team m, int64_t segments)
{
    return dim3((unsigned)((lines + team_lines(m) - 1) / team_lines(m)), (unsigned)segments);
}

/* The shape without an axis. */
template <int N>
static plan<N> lines_plan(int32_t ndim, const int64_t *shape, int32_t axis,
                          const int64_t *const (&strides)[N])
{
    int64_t size[MLC_MAX_DIMS], step[N][MLC_MAX_DIMS];
    const int64_t *steps[N];
    int32_t n = 0;
    for (int k = 0; k < N; k++) steps[k] = strides[k] ? step[k] : nullptr;
    for (int32_t d = 0; d < ndim; d++) {
        if (d == axis) continue;
        for (int k = 0; k < N; k++) if (strides[k]) step[k][n] = strides[k][d];
        size[n++] = shape[d];
    }
    return plan<N>(n, size, steps);
}
/* Are operand k's lines side by side? */
template <int N> static bool lines_adjoin(const plan<N> &p, int k)
{
    return p.ndim > 0 && p.shape[p.ndim - 1] > 1 && p.stride[k][p.ndim - 1] == 1;
}
/* Are operand k's lines, which begin at p, dense and all 16-byte aligned? */
template <int N> static bool lines_vec(const plan<N> &p, int k, const void *at, int64_t step,
                                       size_t size)
{
    bool all = step == 1 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
    for (int d = 0; d < p.ndim; d++) all = all && p.stride[k][d] * (int64_t)size % 16 == 0;
    return all;
}

/* Calls f(type_tag<T>()) for integers and bool; UNSUPPORTED for others. */
template <class F> static mlc_status each_whole(mlc_dtype dtype, const F &f)
{
    switch (dtype) {
    case MLC_I64:  return f(type_tag<int64_t>());
    case MLC_I32:  return f(type_tag<int32_t>());
    case MLC_I8:   return f(type_tag<int8_t>());
    case MLC_U8:   return f(type_tag<uint8_t>());
    case MLC_BOOL: return f(type_tag<flag>());
    default:       return MLC_ERR_UNSUPPORTED;
    }
}
static bool is_float(mlc_dtype d)
{
    return d == MLC_F32 || d == MLC_F64 || d == MLC_BF16 || d == MLC_F16;
}

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

/* Folds over a warp or over a whole block of THREADS threads (`block` says which); no struct team
 * is meant. All threads call them and get the same bits. */
enum { WARP = 32, WARPS = (int)THREADS / WARP };

struct plus  { template <class T> DEV T operator()(T a, T b) const { return a + b; } };
struct least { template <class T> DEV T operator()(T a, T b) const { return b < a ? b : a; } };
struct most  { template <class T> DEV T operator()(T a, T b) const { return b > a ? b : a; } };

template <class F, class T> DEV T warp_fold(T v)
{
    for (int s = WARP / 2; s > 0; s /= 2) v = F()(v, __shfl_xor_sync(~0u, v, s));
    return v;
}
template <class F, class T> DEV T block_fold(T v)
{
    MLC_SHARED(T, part, [WARPS]);
    v = warp_fold<F>(v);
    __syncthreads();                   /* part was read by those of the call before             */
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < WARPS; w++) v = F()(v, part[w]);
    return v;
}
BOTH int aggregate_threads(bool block) { return block ? (int)THREADS : (int)WARP; }
/* f of all v of the team, which is the block or the caller's warp. */
template <class F, class T> DEV T aggregate_over(bool block, T v)
{
    return block ? block_fold<F>(v) : warp_fold<F>(v);
}

/* Sum of the v of all threads before the caller's; *all: of the whole block. */
DEV uint32_t block_before(uint32_t v, uint32_t *all)
{
    MLC_SHARED(uint32_t, part, [WARPS]);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t sum = v, before = 0;
    for (int s = 1; s < WARP; s *= 2) {
        const uint32_t other = __shfl_sync(~0u, sum, lane - s);
        if (lane >= s) sum += other;
    }
    __syncthreads();
    if (lane == WARP - 1) part[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += part[w];
        *all += part[w];
    }
    return before + sum - v;
}

/* The error word: see MLC_K_ERROR_LABEL. */
static const int64_t NO_ROW = INT64_MAX;

DEV void error_put(int64_t *error, int64_t kind, int64_t row, int64_t value, int64_t limit)
{
    if (error[0] != 0) return;
    error[0] = kind;
    error[1] = row;
    error[2] = value;
    error[3] = limit;
}

/* @@ CUDA.UNITS ------------------------------------------ values of any dtype; units of a walk
 * An elementwise operation is a job: a struct whose run<V>(places, steps, count) makes a unit, V
 * neighbours on the innermost axis; units_kernel calls it for each unit. There an operand is dense
 * (one access of at most 16 bytes) or repeats one value. V is 1 where that cannot be. Values of any
 * dtype are floats, f64 or i64 on the way (W); conversions are those of IMPL.KERNELS.CAST, bit for
 * bit. */

template <class T, int V> struct alignas(sizeof(T) * V) vec { T v[V]; };

/* Elements that are moved are bits of their size. */
BOTH uint16_t load(uint16_t v) { return v; }
BOTH uint32_t load(uint32_t v) { return v; }
BOTH uint64_t load(uint64_t v) { return v; }

/* a b and a + b, each rounded: nvcc fuses the plain ones, and the CPU's bits are wanted. */
DEV float mul_exact(float a, float b)    { return __fmul_rn(a, b); }
DEV float add_exact(float a, float b)    { return __fadd_rn(a, b); }
DEV double mul_exact(double a, double b) { return __dmul_rn(a, b); }
DEV double add_exact(double a, double b) { return __dadd_rn(a, b); }

BOTH float for_half(float v)   { return v; }
BOTH float for_half(double v)  { return odd_f32(v); }
BOTH float for_half(int64_t v) { return odd_f32(odd_f64(v)); }

/* NaN and what does not fit become the smallest integer. */
BOTH int64_t whole_64(double v)
{
    return v >= -9223372036854775808.0 && v < 9223372036854775808.0 ? (int64_t)v : INT64_MIN;
}
BOTH int64_t whole_64(float v)   { return whole_64((double)v); }
BOTH int64_t whole_64(int64_t v) { return v; }
BOTH int64_t whole_32(double v)
{
    return v > -2147483649.0 && v < 2147483648.0 ? (int64_t)v : INT32_MIN;
}
BOTH int64_t whole_32(float v)   { return whole_32((double)v); }
BOTH int64_t whole_32(int64_t v) { return v; }

template <class W> BOTH void put(float *p, W v)   { *p = (float)v; }
template <class W> BOTH void put(double *p, W v)  { *p = (double)v; }
template <class W> BOTH void put(bf16 *p, W v)    { store(p, for_half(v)); }
template <class W> BOTH void put(f16 *p, W v)     { store(p, for_half(v)); }
template <class W> BOTH void put(int64_t *p, W v) { *p = whole_64(v); }
template <class W> BOTH void put(int32_t *p, W v) { *p = (int32_t)whole_32(v); }
template <class W> BOTH void put(int8_t *p, W v)  { *p = (int8_t)whole_32(v); }
template <class W> BOTH void put(uint8_t *p, W v) { *p = (uint8_t)whole_32(v); }
template <class W> BOTH void put(flag *p, W v)   { p->v = v != 0; }

/* Element i of a dtype known at run time: stored, and as a W that holds it. */
template <class W> BOTH void put_at(mlc_dtype dtype, void *p, int64_t i, W v)
{
    switch (dtype) {
    case MLC_F32:  put(static_cast<float *>(p) + i, v); break;
    case MLC_F64:  put(static_cast<double *>(p) + i, v); break;
    case MLC_BF16: put(static_cast<bf16 *>(p) + i, v); break;
    case MLC_F16:  put(static_cast<f16 *>(p) + i, v); break;
    case MLC_I64:  put(static_cast<int64_t *>(p) + i, v); break;
    case MLC_I32:  put(static_cast<int32_t *>(p) + i, v); break;
    case MLC_I8:   put(static_cast<int8_t *>(p) + i, v); break;
    case MLC_U8:   put(static_cast<uint8_t *>(p) + i, v); break;
    default:       put(static_cast<flag *>(p) + i, v); break;
    }
}
template <class W> DEV W get_at(mlc_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case MLC_F32:  return (W)static_cast<const float *>(p)[i];
    case MLC_F64:  return (W)static_cast<const double *>(p)[i];
    case MLC_BF16: return (W)load(static_cast<const bf16 *>(p)[i]);
    case MLC_F16:  return (W)load(static_cast<const f16 *>(p)[i]);
    case MLC_I64:  return (W)static_cast<const int64_t *>(p)[i];
    case MLC_I32:  return (W)static_cast<const int32_t *>(p)[i];
    case MLC_I8:   return (W)static_cast<const int8_t *>(p)[i];
    case MLC_U8:   return (W)static_cast<const uint8_t *>(p)[i];
    default:       return (W)(static_cast<const uint8_t *>(p)[i] != 0);
    }
}

/* v as an element of a dtype, of which T has the size. */
template <class T> static T scalar_of(mlc_dtype dtype, double v)
{
    uint64_t bits = 0;
    T element;
    put_at(dtype, &bits, 0, v);
    memcpy(&element, &bits, sizeof element);
    return element;
}

static bool dtype_known(mlc_dtype dtype) { return (unsigned)dtype < MLC_DTYPE_COUNT; }
static bool dtype_is_half(mlc_dtype dtype) { return dtype == MLC_BF16 || dtype == MLC_F16; }
/* Calls f(type_tag<W>()). */
template <class F> static mlc_status each_wide(mlc_dtype dtype, const F &f)
{
    if (dtype == MLC_F32 || dtype_is_half(dtype)) return f(type_tag<float>());
    return dtype == MLC_F64 ? f(type_tag<double>()) : f(type_tag<int64_t>());
}

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

/* Elementwise kernels: calls f.run<V>(places, steps, count) for each unit of V elements. Grid:
 * blocks of THREADS threads over all units, a unit for each thread, 4 that are THREADS apart
 * where V is 1. places[k]: first element of the unit in operand k; count: elements that exist,
 * below V at the end. */
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

/* Operands of an entry; operand 0 is the output. stride NULL: the operand is not there.      */
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
 * out (+)= f(in..), any strides. The formula is chosen at run time, once a unit in map; those of
 * math are a function that is called for each element, as a hundred of them inlined would cost map
 * its registers. */

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
struct math_formulas {
    template <int V, class T>
    static DEV void run(int op, const T (&x)[3][V], double s, double t, T (&r)[V])
    {
        for (int e = 0; e < V; e++)
            r[e] = math_formula<T>(op, x[0][e], x[1][e], x[2][e], (T)s, (T)t);
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
    T *out;
    const T *in[3];
    int op, inputs, accumulate;
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
/* In f64 whatever the dtype, rounded to f32 first where it is not f64. */
struct math_wide_job {
    void *out;
    const void *in[3];
    mlc_dtype dtype;
    int op, inputs, accumulate;
    double s, t;
    const double *s_dev;

    template <int V> DEV void run(const int64_t *at, const int *, int) const
    {
        const double by = s_dev ? *s_dev : s;
        double x[3] = {};
        for (int p = 0; p < 3; p++) if (p < inputs) x[p] = get_at<double>(dtype, in[p], at[p + 1]);
        double r = math_formula<double>(s_dev ? math_formulas::choose(op, by) : op, x[0], x[1],
                                        x[2], by, t);
        if (dtype != MLC_F64) r = (float)r;
        if (accumulate) r = get_at<double>(dtype, out, at[0]) + r;
        if (dtype == MLC_F64) static_cast<double *>(out)[at[0]] = r;
        else put_at(dtype, out, at[0], (float)r);
    }
};

static operand_list<4> map_operands(const struct mlc_k_map *a, int inputs)
{
    const size_t size = mlc_dtype_bytes(a->dtype);
    operand_list<4> o = { a->ndim, a->shape, { a->out }, { a->out_stride },
                          { size, size, size, size } };
    for (int p = 0; p < inputs; p++) {
        o.data[p + 1] = a->in[p];
        o.stride[p + 1] = a->in_stride[p];
    }
    return o;
}
/* Inputs are given from the front: the first NULL ends them. */
static int map_inputs(const struct mlc_k_map *a)
{
    int n = 0;
    while (n < 3 && a->in[n]) n++;
    return n;
}
template <class FORMULAS, int V, class T>
static mlc_status map_run(void *dev, const char *name, const struct mlc_k_map *a, int op)
{
    const T *in[3];
    for (int p = 0; p < 3; p++) in[p] = static_cast<const T *>(a->in[p]);
    const map_job<T, FORMULAS> job = { static_cast<T *>(a->out), { in[0], in[1], in[2] }, op,
                                       map_inputs(a), a->accumulate, a->s, a->t, a->s_dev };
    return units_run<V>(dev, name, map_operands(a, job.inputs), job);
}
static mlc_status map_entry(void *dev, const struct mlc_k_map *a)
{
    if (a->op > MLC__MAP_LAST) return MLC_ERR_UNSUPPORTED;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return map_run<map_formulas, 16 / sizeof(T), T>(dev, "map", a, a->op);
    });
}
static mlc_status math_entry(void *dev, const struct mlc_k_math *math)
{
    const struct mlc_k_map *a = &math->map;
    const int op = a->s_dev ? (int)a->op : math_formulas::choose(a->op, a->s);
    if (a->op <= MLC__MAP_LAST || a->op >= MLC_MATH_END) return MLC_ERR_UNSUPPORTED;
    switch (math_is_wide(op) ? MLC_F64 : a->dtype) {
    case MLC_F32:  return map_run<math_formulas, 4, float>(dev, "math", a, op);
    case MLC_BF16: return map_run<math_formulas, 4, bf16>(dev, "math", a, op);
    case MLC_F16:  return map_run<math_formulas, 4, f16>(dev, "math", a, op);
    default: break;
    }
    if (!dtype_is_half(a->dtype) && a->dtype != MLC_F32 && a->dtype != MLC_F64)
        return MLC_ERR_UNSUPPORTED;
    const math_wide_job job = { a->out, { a->in[0], a->in[1], a->in[2] }, a->dtype, op,
                                map_inputs(a), a->accumulate, a->s, a->t, a->s_dev };
    return units_run<1>(dev, "math", map_operands(a, job.inputs), job);
}

/* @@ CUDA.MOVE ------------------------------------------- compare, where, cast, fill, band, pad
 * What moves elements, chooses them, or makes bytes of them; and the arithmetic of integers. */

/* -- compare -- */

template <class W> DEV bool compare_of(mlc_compare op, W a, W b)
{
    switch (op) {
    case MLC_COMPARE_EQ:  return a == b;
    case MLC_COMPARE_NE:  return a != b;
    case MLC_COMPARE_LT:  return a < b;
    case MLC_COMPARE_LE:  return a <= b;
    case MLC_COMPARE_GT:  return a > b;
    case MLC_COMPARE_GE:  return a >= b;
    case MLC_COMPARE_AND: return (a != 0) & (b != 0);
    case MLC_COMPARE_OR:  return (a != 0) | (b != 0);
    case MLC_COMPARE_XOR: return (a != 0) ^ (b != 0);
    case MLC_COMPARE_NOT: return a == 0;
    case MLC_COMPARE_NAN: return a != a;
    case MLC_COMPARE_INF: return a == a && a - a != 0;
    default:              return a - a == 0;
    }
}
template <class W> struct compare_job {
    mlc_compare op;
    mlc_dtype dtype;
    uint8_t *out;
    const void *a, *b;
    W s;
    template <int V> DEV void run(const int64_t *at, const int *, int) const
    {
        const W x = get_at<W>(dtype, a, at[1]), y = b ? get_at<W>(dtype, b, at[2]) : s;
        out[at[0]] = compare_of(op, x, y);
    }
};
template <class W>
static mlc_status compare_run(void *dev, const struct mlc_k_compare *a, W s)
{
    const compare_job<W> job = { a->op, a->dtype, a->out, a->in[0], a->in[1], s };
    const operand_list<3> o = { a->ndim, a->shape, { a->out, a->in[0], a->in[1] },
                                { a->out_stride, a->in_stride[0],
                                  a->in[1] ? a->in_stride[1] : NULL }, {} };
    return units_run<1>(dev, "compare", o, job);
}
/* The scalar is rounded to a float's dtype. An integer is compared with it in i64, or in f64 where
 * the scalar is no integer of i64. */
static mlc_status compare_entry(void *dev, const struct mlc_k_compare *a)
{
    if (!dtype_known(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (a->in[1]) return each_wide(a->dtype, [&](auto tag) {
        return compare_run<TYPE(tag)>(dev, a, 0);
    });
    if (a->dtype == MLC_F32) return compare_run<float>(dev, a, (float)a->s);
    if (a->dtype == MLC_F64) return compare_run<double>(dev, a, a->s);
    if (a->dtype == MLC_BF16)
        return compare_run<float>(dev, a, load(scalar_of<bf16>(MLC_BF16, a->s)));
    if (a->dtype == MLC_F16)
        return compare_run<float>(dev, a, load(scalar_of<f16>(MLC_F16, a->s)));
    const int64_t s = whole_64(a->s);
    const bool whole = (double)s == a->s && a->s < 9223372036854775808.0;
    return whole ? compare_run<int64_t>(dev, a, s) : compare_run<double>(dev, a, a->s);
}

/* -- where: elements of a size are bits; a sum is made in f64 and rounded once -- */

template <class T> struct where_job {
    T *out;
    const uint8_t *mask;
    const T *in[2];
    T s;
    template <int V> DEV void run(const int64_t *at, const int *step, int count) const
    {
        uint8_t m[V] = {};
        T x[2][V], r[V];
        load_unit<V>(mask + at[1], step[1], count, m);
        for (int p = 0; p < 2; p++) {
            for (int e = 0; e < V; e++) x[p][e] = s;
            if (in[p]) load_unit<V>(in[p] + at[p + 2], step[p + 2], count, x[p]);
        }
        for (int e = 0; e < V; e++) r[e] = m[e] ? x[0][e] : x[1][e];
        store_unit<V>(out + at[0], count, r);
    }
};
template <class T> struct where_add_job {
    T *out;
    const uint8_t *mask;
    const T *in[2];
    T s;
    template <int V> DEV void run(const int64_t *at, const int *, int) const
    {
        const T *const from = mask[at[1]] ? (in[0] ? in[0] + at[2] : NULL)
                                          : (in[1] ? in[1] + at[3] : NULL);
        put(out + at[0], (double)load(out[at[0]]) + (double)load(from ? *from : s));
    }
};
template <int V, template <class> class JOB, class T>
static mlc_status where_run(void *dev, const struct mlc_k_where *a)
{
    const T *const in[2] = { static_cast<const T *>(a->in[0]), static_cast<const T *>(a->in[1]) };
    const operand_list<4> o = { a->ndim, a->shape, { a->out, a->mask, a->in[0], a->in[1] },
                                { a->out_stride, a->mask_stride, in[0] ? a->in_stride[0] : NULL,
                                  in[1] ? a->in_stride[1] : NULL },
                                { sizeof(T), 1, sizeof(T), sizeof(T) } };
    const JOB<T> job = { static_cast<T *>(a->out), a->mask, { in[0], in[1] },
                         scalar_of<T>(a->dtype, a->s) };
    return units_run<V>(dev, "where", o, job);
}
static mlc_status where_entry(void *dev, const struct mlc_k_where *a)
{
    if (!dtype_known(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (a->accumulate) return each_float(a->dtype, [&](auto tag) {
        return where_run<1, where_add_job, TYPE(tag)>(dev, a);
    });
    return each_size(mlc_dtype_bytes(a->dtype), [&](auto tag) {
        typedef TYPE(tag) T;
        return where_run<16 / sizeof(T), where_job, T>(dev, a);
    });
}

/* -- cast: copies by size; pairs of f32, bf16, f16 in units; others one element at a time -- */

template <class TO, class FROM> struct cast_job {
    TO *out;
    const FROM *in;
    template <int V> DEV void run(const int64_t *at, const int *step, int count) const
    {
        typename wide<FROM>::type x[V] = {};
        load_unit<V>(in + at[1], step[1], count, x);
        store_unit<V>(out + at[0], count, x);
    }
};
template <class W> struct cast_any_job {
    mlc_dtype to, from;
    void *out;
    const void *in;
    template <int V> DEV void run(const int64_t *at, const int *, int) const
    {
        put_at(to, out, at[0], get_at<W>(from, in, at[1]));
    }
};

/* Two axes change places: out is dense along `last`, in along `row`. A block moves 32 by 32
 * elements through shared memory, so that both sides are coalesced. */
enum { TILE = 32, TILE_ROWS = THREADS / TILE };
struct tiles {
    walk<2> outer;                     /* the other axes                                        */
    int64_t base[2], rows, cols, out_row, in_col;
    divisor across, down;              /* tiles along the columns of out, along its rows        */
};
/* out [rows,cols] = in, converted, where in is dense along rows and out along columns. A block
 * takes a tile of TILE x TILE through shared memory, blockIdx.x numbers tiles along columns,
 * rows, then outer axes; TILE_ROWS lines of TILE threads read along rows of in and write along
 * columns of out. */
template <class TO, class FROM> static __global__ void __launch_bounds__(THREADS)
transpose_kernel(TO *out, const FROM *in, const tiles t)
{
    MLC_SHARED(FROM, tile, [TILE][TILE + 1]);
    const uint32_t q = divide(blockIdx.x, t.across), x = blockIdx.x - q * t.across.d;
    const uint32_t batch = divide(q, t.down), y = q - batch * t.down.d;
    const int64_t r0 = (int64_t)y * TILE, c0 = (int64_t)x * TILE;
    const int lane = (int)(threadIdx.x % TILE), line = (int)(threadIdx.x / TILE);
    int64_t at[2];
    walk_at(t.outer, batch, at);
    for (int j = line; j < TILE; j += TILE_ROWS)
        if (r0 + lane < t.rows && c0 + j < t.cols)
            tile[j][lane] = in[t.base[1] + at[1] + r0 + lane + (c0 + j) * t.in_col];
    __syncthreads();
    for (int j = line; j < TILE; j += TILE_ROWS)
        if (r0 + j < t.rows && c0 + lane < t.cols)
            store(out + t.base[0] + at[0] + (r0 + j) * t.out_row + c0 + lane, load(tile[lane][j]));
}

/* The axis along which in is dense where out is along the last one, or -1. */
static int transpose_axis(const plan<2> &p)
{
    const int last = p.ndim - 1;
    if (last < 1 || p.stride[0][last] != 1 || p.stride[1][last] == 1) return -1;
    for (int d = 0; d < last; d++)
        if (p.stride[1][d] == 1 && p.shape[d] >= 8 && p.shape[last] >= 8) return d;
    return -1;
}
template <class TO, class FROM>
static mlc_status transpose_run(void *dev, plan<2> p, int row, TO *out, const FROM *in)
{
    const int last = p.ndim - 1;
    const int64_t rows = p.shape[row], cols = p.shape[last];
    tiles t;
    t.rows = rows; t.cols = cols;
    t.out_row = p.stride[0][row]; t.in_col = p.stride[1][last];
    t.across = divisor_make((uint32_t)((cols + TILE - 1) / TILE));
    t.down = divisor_make((uint32_t)((rows + TILE - 1) / TILE));
    p.n /= rows * cols;
    for (int d = row; d < last - 1; d++) {
        p.shape[d] = p.shape[d + 1];
        for (int k = 0; k < 2; k++) p.stride[k][d] = p.stride[k][d + 1];
    }
    p.ndim -= 2;
    return p.each([&](const walk<2> &w, const int64_t *offset) {
        t.outer = w;
        for (int k = 0; k < 2; k++) t.base[k] = offset[k];
        return launch(dev, "transpose", dim3(w.n * t.across.d * t.down.d), dim3(THREADS), 0,
                      transpose_kernel<TO, FROM>, out, in, t);
    });
}

template <class TO, class FROM>
static mlc_status cast_run(void *dev, const struct mlc_k_cast *a)
{
    const cast_job<TO, FROM> job = { static_cast<TO *>(a->out), static_cast<const FROM *>(a->in) };
    const operand_list<2> o = { a->ndim, a->shape, { a->out, a->in },
                                { a->out_stride, a->in_stride }, { sizeof(TO), sizeof(FROM) } };
    const plan<2> p = plan_sorted(o);
    const int row = transpose_axis(p);
    if (p.n > 0 && row >= 0 && p.n < (int64_t)1 << 36)     /* the grid has fewer than 2^31 blocks */
        return transpose_run(dev, p, row, job.out, job.in);
    return units_run<16 / (sizeof(TO) > sizeof(FROM) ? sizeof(TO) : sizeof(FROM))>(dev, "cast", o,
                                                                                 job);
}
static mlc_status cast_any(void *dev, const struct mlc_k_cast *a)
{
    const operand_list<2> o = { a->ndim, a->shape, { a->out, a->in },
                                { a->out_stride, a->in_stride }, {} };
    return each_wide(a->in_dtype, [&](auto tag) {
        const cast_any_job<TYPE(tag)> job = { a->out_dtype, a->in_dtype, a->out, a->in };
        return units_run<1>(dev, "cast", o, job);
    });
}
static mlc_status cast_entry(void *dev, const struct mlc_k_cast *a)
{
    const mlc_dtype to = a->out_dtype, from = a->in_dtype;
    if (!dtype_known(to) || !dtype_known(from)) return MLC_ERR_UNSUPPORTED;
    if (to == from) return each_size(mlc_dtype_bytes(to), [&](auto tag) {
        return cast_run<TYPE(tag), TYPE(tag)>(dev, a);
    });
    if (to == MLC_BF16 && from == MLC_F32) return cast_run<bf16, float>(dev, a);
    if (to == MLC_F16 && from == MLC_F32)  return cast_run<f16, float>(dev, a);
    if (to == MLC_F32 && from == MLC_BF16) return cast_run<float, bf16>(dev, a);
    if (to == MLC_F32 && from == MLC_F16)  return cast_run<float, f16>(dev, a);
    return cast_any(dev, a);
}

/* -- fill: a pattern of 16 bytes, or start + (i - origin) step in f64 -- */

/* Fills `bytes` bytes of out, 16-byte aligned, with a pattern of 16 bytes. A thread writes EACH
 * vectors that are THREADS apart; a last incomplete one byte by byte. */
static __global__ void __launch_bounds__(THREADS)
pattern_kernel(uint8_t *out, int64_t bytes, const vec<uint64_t, 2> pattern)
{
    const int64_t first = ((int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x) * 16;
    for (int e = 0; e < EACH; e++) {
        const int64_t i = first + e * (THREADS * 16);
        if (i + 16 <= bytes) *reinterpret_cast<vec<uint64_t, 2> *>(out + i) = pattern;
        else for (int64_t b = i; b < bytes; b++)
            out[b] = (uint8_t)(pattern.v[(b - i) / 8] >> ((b - i) % 8 * 8));
    }
}
/* out[i] = start + (i - origin) step, in f64, rounded to dtype, for n dense elements. A thread
 * makes EACH elements that are THREADS apart. */
static __global__ void __launch_bounds__(THREADS)
fill_kernel(mlc_dtype dtype, void *out, int64_t n, double start, double step, int64_t origin)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    for (int e = 0; e < EACH; e++) {
        const int64_t i = first + e * THREADS;
        const double by = mul_exact((double)(i - origin), step);
        if (i < n) put_at(dtype, out, i, step == 0.0 ? start : add_exact(start, by));
    }
}
static mlc_status fill_entry(void *dev, const struct mlc_k_fill *a)
{
    vec<uint64_t, 2> pattern = {};
    if (!dtype_known(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (a->n == 0) return MLC_OK;
    const int64_t size = (int64_t)mlc_dtype_bytes(a->dtype);
    if (a->step != 0.0 || (uintptr_t)a->out % 16)
        return launch(dev, "fill", blocks_for(a->n), dim3(THREADS), 0, fill_kernel, a->dtype,
                      a->out, a->n, a->start, a->step, a->origin);
    for (int64_t i = 0; i < 16 / size; i++) put_at(a->dtype, &pattern, i, a->start);
    return launch(dev, "fill", blocks_for((a->n * size + 15) / 16), dim3(THREADS), 0,
                  pattern_kernel, static_cast<uint8_t *>(a->out), a->n * size, pattern);
}

/* -- band: two operands that are not there give row and column of an element -- */

template <class T> struct band_job {
    T *out;
    const T *in;
    int64_t lo, hi;
    template <int V> DEV void run(const int64_t *at, const int *, int) const
    {
        const int64_t diagonal = at[3] - at[2];
        out[at[0]] = diagonal >= lo && diagonal <= hi ? in[at[1]] : (T)0;
    }
};
static mlc_status band_entry(void *dev, const struct mlc_k_band *a)
{
    int64_t row[MLC_MAX_DIMS] = { 0 }, column[MLC_MAX_DIMS] = { 0 };
    if (!dtype_known(a->dtype) || a->ndim < 2) return MLC_ERR_UNSUPPORTED;
    row[a->ndim - 2] = column[a->ndim - 1] = 1;
    const operand_list<4> o = { a->ndim, a->shape, { a->out, a->in },
                                { a->out_stride, a->in_stride, row, column }, {} };
    return each_size(mlc_dtype_bytes(a->dtype), [&](auto tag) {
        typedef TYPE(tag) T;
        const band_job<T> job = { static_cast<T *>(a->out), static_cast<const T *>(a->in), a->lo,
                                  a->hi };
        return units_run<1>(dev, "band", o, job);
    });
}

/* -- pad: out is dense; axis d of in is shifted by before[d] -- */

struct pad_axes {
    int ndim;
    mlc_pad_mode mode;
    divisor size[MLC_MAX_DIMS];        /* of out; that of the first is not used                 */
    int64_t before[MLC_MAX_DIMS], in_size[MLC_MAX_DIMS], in_stride[MLC_MAX_DIMS];
};
/* Place in `in` of place i of out; -1: a constant border. */
DEV int64_t pad_from(mlc_pad_mode mode, int64_t i, int64_t before, int64_t n)
{
    const int64_t at = i - before;
    if (at >= 0 && at < n) return at;
    switch (mode) {
    case MLC_PAD_REFLECT:   return at < 0 ? -at : 2 * n - 2 - at;
    case MLC_PAD_REPLICATE: return at < 0 ? 0 : n - 1;
    case MLC_PAD_CIRCULAR:  return at < 0 ? at + n : at - n;
    default:                return -1;
    }
}
/* out, dense, of n elements = in between borders. A thread makes 4 elements that are THREADS
 * apart: it divides the number of the element into an index for each axis and maps that to an
 * element of in, or to value. first: index of axis 0 at which this launch begins. */
template <class T> static __global__ void __launch_bounds__(THREADS)
pad_kernel(T *out, const T *in, uint32_t n, int64_t first, const pad_axes p, T value)
{
    uint32_t i = blockIdx.x * (uint32_t)(THREADS * 4) + threadIdx.x;
    for (int e = 0; e < 4 && i < n; e++, i += THREADS) {
        int64_t from = 0;
        uint32_t left = i;
        bool border = false;
        for (int d = p.ndim - 1; d >= 0; d--) {
            const uint32_t q = d ? divide(left, p.size[d]) : 0;
            const int64_t at = d ? left - q * p.size[d].d : first + left;
            const int64_t place = pad_from(p.mode, at, p.before[d], p.in_size[d]);
            border = border || place < 0;
            from += place * p.in_stride[d];
            left = q;
        }
        out[i] = border ? value : in[from];
    }
}

/* Axes that follow one another in both, without borders, are one. Returns elements of a row of the
 * first axis. */
static int64_t pad_plan(const struct mlc_k_pad *a, pad_axes *p, int64_t *rows)
{
    int64_t size[MLC_MAX_DIMS], rest = 1;
    p->ndim = 0;
    p->mode = a->mode;
    for (int d = 0; d < a->ndim; d++) {
        const int last = p->ndim - 1;
        const bool whole = a->before[d] == 0 && a->shape[d] == a->in_shape[d];
        if (last >= 0 && whole && p->before[last] == 0 && size[last] == p->in_size[last] &&
            p->in_stride[last] == a->in_stride[d] * a->shape[d]) {
            size[last] = p->in_size[last] *= a->shape[d];
            p->in_stride[last] = a->in_stride[d];
            continue;
        }
        size[p->ndim] = a->shape[d];
        p->before[p->ndim] = a->before[d];
        p->in_size[p->ndim] = a->in_shape[d];
        p->in_stride[p->ndim++] = a->in_stride[d];
    }
    for (int d = 1; d < p->ndim; d++) {
        p->size[d] = divisor_make((uint32_t)size[d]);
        rest *= size[d];
    }
    *rows = size[0];
    return rest;
}
static mlc_status pad_entry(void *dev, const struct mlc_k_pad *a)
{
    const int64_t most = ((int64_t)1 << 31) - 1;
    pad_axes p;
    int64_t rows;
    if (!dtype_known(a->dtype) || a->ndim < 1) return MLC_ERR_UNSUPPORTED;
    for (int d = 0; d < a->ndim; d++) if (a->shape[d] == 0) return MLC_OK;
    const int64_t rest = pad_plan(a, &p, &rows);
    if (rest > most) return MLC_ERR_UNSUPPORTED;
    return each_size(mlc_dtype_bytes(a->dtype), [&](auto tag) {
        typedef TYPE(tag) T;
        mlc_status st = MLC_OK;
        const T value = scalar_of<T>(a->dtype, a->value);
        for (int64_t first = 0, m; first < rows && st == MLC_OK; first += m) {
            m = rows - first < most / rest ? rows - first : most / rest;
            const uint32_t n = (uint32_t)(m * rest);
            st = launch(dev, "pad", dim3((n + THREADS * 4 - 1) / (THREADS * 4)), dim3(THREADS), 0,
                        pad_kernel<T>, static_cast<T *>(a->out) + first * rest,
                        static_cast<const T *>(a->in), n, first, p, value);
        }
        return st;
    });
}

/* -- whole: integers, modulo 2^bits -- */

/* By -1 there is no remainder, and the quotient of the smallest number does not fit. */
DEV int64_t whole_divide(mlc_whole op, int64_t a, int64_t b)
{
    if (b == -1) return op == MLC_WHOLE_REMAINDER ? 0 : (int64_t)(0 - (uint64_t)a);
    const int64_t left = a % b;
    const bool down = left != 0 && (left < 0) != (b < 0);
    return op == MLC_WHOLE_REMAINDER ? left + (down ? b : 0) : a / b - down;
}
DEV int64_t whole_of(mlc_whole op, int64_t a, int64_t b)
{
    const uint64_t x = (uint64_t)a, y = (uint64_t)b;
    switch (op) {
    case MLC_WHOLE_ADD:  return (int64_t)(x + y);
    case MLC_WHOLE_SUB:  return (int64_t)(x - y);
    case MLC_WHOLE_MUL:  return (int64_t)(x * y);
    case MLC_WHOLE_MIN:  return a < b ? a : b;
    case MLC_WHOLE_MAX:  return a > b ? a : b;
    case MLC_WHOLE_RSUB: return (int64_t)(y - x);
    case MLC_WHOLE_ABS:  return a < 0 ? (int64_t)(0 - x) : a;
    default:             return b ? whole_divide(op, a, b) : 0;
    }
}
/* Nothing is written where a divisor was 0: error says so, NULL where op does not divide. */
template <class T> struct whole_job {
    mlc_whole op;
    T *out;
    const T *a, *b;
    int64_t s, kind;
    const int64_t *error;
    template <int V> DEV void run(const int64_t *at, const int *step, int count) const
    {
        T x[V], y[V], r[V];
        if (error && *error == kind) return;
        for (int e = 0; e < V; e++) { x[e] = 0; y[e] = (T)s; }
        load_unit<V>(a + at[1], step[1], count, x);
        if (b) load_unit<V>(b + at[2], step[2], count, y);
        for (int e = 0; e < V; e++) r[e] = (T)whole_of(op, x[e], b ? (int64_t)y[e] : s);
        store_unit<V>(out + at[0], count, r);
    }
};
template <class T> struct whole_zero_job {
    const T *b;
    int64_t kind, *error;
    template <int V> DEV void run(const int64_t *at, const int *, int) const
    {
        if (b[at[0]] == 0)
            atomicCAS(reinterpret_cast<unsigned long long *>(error), 0ull,
                      (unsigned long long)kind);
    }
};
/* All divisors are looked at before anything is written; a repeated one once. */
template <class T> static mlc_status whole_zero(void *dev, const struct mlc_k_whole *a)
{
    int64_t shape[MLC_MAX_DIMS];
    for (int d = 0; d < a->ndim; d++)
        shape[d] = a->in_stride[1][d] == 0 && a->shape[d] ? 1 : a->shape[d];
    const operand_list<1> o = { a->ndim, shape, { a->in[1] }, { a->in_stride[1] }, {} };
    const whole_zero_job<T> job = { static_cast<const T *>(a->in[1]), a->kind, a->error };
    return units_run<1>(dev, "whole_zero", o, job);
}
template <class T> static mlc_status whole_run(void *dev, const struct mlc_k_whole *a)
{
    const bool divides = a->op >= MLC_WHOLE_FLOOR_DIV;
    const operand_list<3> o = { a->ndim, a->shape, { a->out, a->in[0], a->in[1] },
                                { a->out_stride, a->in_stride[0],
                                  a->in[1] ? a->in_stride[1] : NULL },
                                { sizeof(T), sizeof(T), sizeof(T) } };
    const whole_job<T> job = { a->op, static_cast<T *>(a->out), static_cast<const T *>(a->in[0]),
                               static_cast<const T *>(a->in[1]), a->s, a->kind,
                               divides ? a->error : NULL };
    for (int d = 0; d < a->ndim; d++) if (a->shape[d] == 0) return MLC_OK;
    if (divides && !a->in[1]) return MLC_ERR_ARG;
    const mlc_status st = divides ? whole_zero<T>(dev, a) : MLC_OK;
    return st == MLC_OK ? units_run<16 / sizeof(T)>(dev, "whole", o, job) : st;
}
static mlc_status whole_entry(void *dev, const struct mlc_k_whole *a)
{
    return a->dtype == MLC_I64 ? whole_run<int64_t>(dev, a)
         : a->dtype == MLC_I32 ? whole_run<int32_t>(dev, a) : MLC_ERR_UNSUPPORTED;
}

/* @@ CUDA.RANDOM ----------------------------------------- random, dropout
 * The CPU's numbers (IMPL.RNG, IMPL.KERNELS.RNG), of f64 normals as far as CUDA's log, sin and cos
 * agree. A thread makes a block of Philox, four words: four elements that take one word, or two
 * that take two. Sums and products are rounded one by one, as the CPU does. */

/* A stream, with a base in device memory or NULL. */
struct stream_of {
    uint64_t seed, stream;
    const uint64_t *base;
    DEV words block(uint64_t i) const { return philox(seed, stream + (base ? *base : 0), i); }
};

/* A number whose sums and products are rounded one by one. */
template <class T> struct strict {
    T v;
    DEV strict(T x) : v(x) {}
    DEV friend strict operator+(strict a, strict b) { return add_exact(a.v, b.v); }
    DEV friend strict operator-(strict a, strict b) { return add_exact(a.v, -b.v); }
    DEV friend strict operator*(strict a, strict b) { return mul_exact(a.v, b.v); }
    DEV friend strict operator/(strict a, strict b) { return a.v / b.v; }
};

/* The top 24 (53) bits of a word (of two), in [0,1). */
DEV float unit_24(uint32_t w) { return (float)(int32_t)(w >> 8) * 5.9604644775390625e-8f; }
DEV double unit_53(uint32_t hi, uint32_t lo)
{
    return (double)((uint64_t)(hi >> 5) << 26 | lo >> 6) * 1.1102230246251565e-16;
}

/* log x of x in (0,1] as mlc__log_f32 has it. */
DEV float log_exact(float x)
{
    const uint32_t u = f32_bits(x) + (0x3F800000u - 0x3F3504F3u);
    const strict<float> n = (float)(int32_t)((u >> 23) - 127u);
    const strict<float> f = bits_f32((u & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    strict<float> p = -0.0763639957f;
    p = p * f + 0.127621993f;
    p = p * f + -0.131596133f;
    p = p * f + 0.142015815f;
    p = p * f + -0.166234091f;
    p = p * f + 0.200012416f;
    p = p * f + -0.250008196f;
    p = p * f + 0.333333313f;
    const strict<float> s = f * f, t = p * f * s + n * -2.12194440e-4f;
    return ((f + (t - 0.5f * s)) + n * 0.693359375f).v;
}

/* sin and cos of 2 pi u as mlc__sincos2pi_f32 has them. */
DEV void sincos_2pi(float u, float *s, float *c)
{
    const strict<float> big = 12582912.0f, turns = strict<float>(u) * 4.0f, z = turns + big;
    const strict<float> r = turns - (z - big), t = r * r;
    const uint32_t k = f32_bits(z.v);
    strict<float> p = -0.00455416553f, q = 0.000893558725f;
    p = p * t + 0.0796598643f;
    p = p * t + -0.645961046f;
    p = p * t + 1.57079625f;
    p = p * r;
    q = q * t + -0.0208552517f;
    q = q * t + 0.253668517f;
    q = q * t + -1.23370051f;
    q = q * t + 1.0f;
    const bool odd = k & 1;
    *s = bits_f32(f32_bits(odd ? q.v : p.v) ^ ((k & 2u) << 30));
    *c = bits_f32(f32_bits(odd ? p.v : q.v) ^ (((k + 1u) & 2u) << 30));
}

/* log x of a normal x as mlc__ln has it. */
DEV double ln_exact(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    const uint64_t u = bits + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
    const uint64_t mantissa = (u & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu;
    double m;
    memcpy(&m, &mantissa, 8);
    const strict<double> e = (double)((int32_t)(u >> 52) - 1023), f = m - 1.0;
    const strict<double> s = f / (f + 2.0), z = s * s;
    strict<double> t = 2.0 / 23.0;
    for (int k = 21; k >= 3; k -= 2) t = t * z + 2.0 / k;
    return (e * 6.93147180369123816490e-01 +
            (f - (s * (f - z * t) - e * 1.90821492927058770002e-10))).v;
}

/* Coefficients of mlc__normal_quantile: Wichura, "Algorithm AS 241", Applied Statistics 37 (1988);
 * by part (middle, tail, far) a numerator and a denominator. */
__constant__ static const double quantile_of[3][2][8] = {
    { { 3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
        1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
        3.3430575583588128105e4, 2.5090809287301226727e3 },
      { 1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
        5.2264952788528545610e3 } },
    { { 1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4 },
      { 1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
        1.05075007164441684324e-9 } },
    { { 6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
        2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
        2.71155556874348757815e-5, 2.01033439929228813265e-7 },
      { 1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
        7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
        2.04426310338993978564e-15 } } };
DEV strict<double> quantile_ratio(int part, strict<double> x)
{
    strict<double> y[2] = { quantile_of[part][0][7], quantile_of[part][1][7] };
    for (int i = 6; i >= 0; i--)
        for (int k = 0; k < 2; k++) y[k] = y[k] * x + quantile_of[part][k][i];
    return y[0] / y[1];
}
/* q times the numerator comes first in the middle, as on the CPU. */
DEV double quantile_middle(strict<double> q)
{
    const strict<double> x = 0.180625 - q * q;
    strict<double> y[2] = { quantile_of[0][0][7], quantile_of[0][1][7] };
    for (int i = 6; i >= 0; i--)
        for (int k = 0; k < 2; k++) y[k] = y[k] * x + quantile_of[0][k][i];
    return (q * y[0] / y[1]).v;
}
DEV double normal_quantile(double p)
{
    const double q = p - 0.5;
    if (q >= -0.425 && q <= 0.425) return quantile_middle(q);
    const double r = sqrt(-ln_exact(q < 0 ? p : 1.0 - p));
    const double z = (r <= 5.0 ? quantile_ratio(1, r - 1.6) : quantile_ratio(2, r - 5.0)).v;
    return q < 0 ? -z : z;
}

/* -- kinds: EACH elements of a block of words, as what they are made (float, double, i64) -- */

struct random_uniform_f32 {
    static const int each = 4;
    float lo, hi, width, top;          /* top: most before it is rounded to 16 bits             */
    DEV void make(const words &r, float (&v)[4]) const
    {
        for (int e = 0; e < 4; e++) {
            const float x = add_exact(lo, mul_exact(width, unit_24(r.w[e])));
            v[e] = x >= hi ? lo : x;                       /* rounding up must not reach hi */
            if (v[e] > top) v[e] = top;
        }
    }
};
struct random_normal_f32 {
    static const int each = 4;
    float mean, deviation;
    DEV void make(const words &r, float (&v)[4]) const
    {
        for (int e = 0; e < 4; e += 2) {
            const float radius = sqrtf(-2.0f * log_exact(1.0f - unit_24(r.w[e])));
            float s, c;
            sincos_2pi(unit_24(r.w[e + 1]), &s, &c);
            v[e] = add_exact(mean, mul_exact(deviation, mul_exact(radius, c)));
            v[e + 1] = add_exact(mean, mul_exact(deviation, mul_exact(radius, s)));
        }
    }
};
struct random_bernoulli {
    static const int each = 4;
    uint64_t below;
    DEV void make(const words &r, float (&v)[4]) const
    {
        for (int e = 0; e < 4; e++) v[e] = r.w[e] < below ? 1.0f : 0.0f;
    }
};
struct random_uniform_f64 {
    static const int each = 2;
    double lo, hi;
    DEV void make(const words &r, double (&v)[2]) const
    {
        for (int e = 0; e < 2; e++) {
            const double x = unit_53(r.w[2 * e], r.w[2 * e + 1]);
            v[e] = add_exact(lo, mul_exact(hi - lo, x));
            if (v[e] >= hi) v[e] = lo;
        }
    }
};
struct random_normal_f64 {
    static const int each = 2;
    double mean, deviation;
    DEV void make(const words &r, double (&v)[2]) const
    {
        const double x = unit_53(r.w[0], r.w[1]), y = unit_53(r.w[2], r.w[3]);
        const double radius = sqrt(-2.0 * log(1.0 - x)), angle = 6.283185307179586477 * y;
        v[0] = add_exact(mean, mul_exact(deviation, mul_exact(radius, cos(angle))));
        v[1] = add_exact(mean, mul_exact(deviation, mul_exact(radius, sin(angle))));
    }
};
/* A range of p for normal_quantile; above the mean the other tail, where p has its digits. */
struct random_truncated {
    static const int each = 2;
    double mean, deviation, lo, hi, from, width, sign;
    DEV void make(const words &r, double (&v)[2]) const
    {
        const double most = 1.0 - 1.1102230246251565e-16;
        for (int e = 0; e < 2; e++) {
            const uint64_t bits = (uint64_t)r.w[2 * e] << 20 | r.w[2 * e + 1] >> 12;
            const double u = ((double)bits + 0.5) * 2.220446049250313e-16;
            const double p = add_exact(from, mul_exact(width, u));
            const double z = sign * normal_quantile(p < most ? p : most);
            const double x = add_exact(mean, mul_exact(deviation, z));
            v[e] = x < lo ? lo : x > hi ? hi : x;
        }
    }
};

/* The upper half of the product of 64 bits and count. */
DEV uint64_t random_below(uint32_t high, uint32_t low, uint64_t count)
{
    const uint64_t b0 = count & 0xffffffff, b1 = count >> 32, mid = high * b0 + (low * b0 >> 32);
    return high * b1 + (mid >> 32) + ((low * b1 + (mid & 0xffffffff)) >> 32);
}
struct random_integer {
    static const int each = 2;
    int64_t first;
    uint64_t count;
    DEV void make(const words &r, int64_t (&v)[2]) const
    {
        for (int e = 0; e < 2; e++)
            v[e] = (int64_t)((uint64_t)first + random_below(r.w[2 * e], r.w[2 * e + 1], count));
    }
};

template <class W> struct dtype_of;
template <> struct dtype_of<float>   { static const mlc_dtype own = MLC_F32; };
template <> struct dtype_of<double>  { static const mlc_dtype own = MLC_F64; };
template <> struct dtype_of<int64_t> { static const mlc_dtype own = MLC_I64; };

/* n random elements: a thread draws Philox block from + i of the stream and makes KIND::each
 * elements of type W of it. Dense and aligned ones of type W are stored as a vector, others are
 * converted one by one. */
template <class W, class KIND> static __global__ void __launch_bounds__(THREADS)
random_kernel(mlc_dtype dtype, void *out, int64_t n, const stream_of s, uint64_t from,
              const KIND kind)
{
    const int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = block * KIND::each;
    W v[KIND::each];
    if (i >= n) return;
    kind.make(s.block(from + (uint64_t)block), v);
    if (dtype == dtype_of<W>::own && (uintptr_t)out % 16 == 0 && i + KIND::each <= n)
        store_unit<KIND::each>(static_cast<W *>(out) + i, KIND::each, v);
    else
        for (int e = 0; e < KIND::each; e++) if (i + e < n) put_at(dtype, out, i + e, v[e]);
}
template <class W, class KIND>
static mlc_status random_launch(void *dev, const struct mlc_k_random *a, const KIND &kind)
{
    const int64_t each = THREADS * KIND::each;
    const stream_of s = { a->seed, a->stream, a->stream_base };
    return launch(dev, "random", dim3((unsigned)((a->n + each - 1) / each)), dim3(THREADS), 0,
                  random_kernel<W, KIND>, a->dtype, a->out, a->n, s,
                  (uint64_t)(a->skip / KIND::each), kind);
}

/* The largest value of a 16-bit float below x, as f32. */
template <class H> static float half_below(float x)
{
    H h;
    store(&h, x);
    if (load(h) < x) return load(h);
    if ((h.bits & 0x7fff) == 0) h.bits = 0x8001;
    else h.bits = (uint16_t)(h.bits & 0x8000 ? h.bits + 1 : h.bits - 1);
    return load(h);
}
static mlc_status random_uniform(void *dev, const struct mlc_k_random *a)
{
    const float lo = (float)a->a, hi = (float)a->b, width = (float)(a->b - a->a);
    float top = INFINITY;
    if (a->dtype == MLC_F64) return random_launch<double>(dev, a, random_uniform_f64{ a->a, a->b });
    if (a->dtype == MLC_BF16) top = half_below<bf16>(hi);
    if (a->dtype == MLC_F16) top = half_below<f16>(hi);
    if (top < lo) top = lo;            /* lo = hi, or nothing between them                      */
    return random_launch<float>(dev, a, random_uniform_f32{ lo, hi, width, top });
}
static mlc_status random_truncated_launch(void *dev, const struct mlc_k_random *a)
{
    const double lo = (a->lo - a->a) / a->b, hi = (a->hi - a->a) / a->b, root = 0.70710678118654752;
    const double from = 0.5 * erfc((lo > 0 ? hi : -lo) * root);
    const double to = 0.5 * erfc((lo > 0 ? lo : -hi) * root);
    return random_launch<double>(dev, a, random_truncated{ a->a, a->b, a->lo, a->hi, from,
                                                           to - from, lo > 0 ? -1.0 : 1.0 });
}

/* -- permutation: the CPU's, in parallel. The CPU puts element t at place r(t) <= t, and moves the
 * element from there to place t, for t = 0, 1, ... The t with r(t) = p are the list of place p. At
 * the end p has the last of its list. Where that is empty, p has the element that it got at time p
 * from place r(p): the one before p in the list of r(p); where p is the first there, the one that
 * r(p) got at time r(p), and so on. Lists have log n elements at most on average, chains 2. -- */

DEV int64_t permutation_place(const stream_of &s, int64_t t)
{
    const words r = s.block((uint64_t)t / 2);
    const int k = (int)(t & 1) * 2;
    return (int64_t)random_below(r.w[k], r.w[k + 1], (uint64_t)t + 1);
}
typedef unsigned long long list_item;  /* t + 1; 0 ends a list                                  */
/* Pass 1 of a permutation: thread t puts element t in front of the list of place r(t). head [n]
 * and next [n]; head is 0 before. The order within a list is by chance and does not matter. */
static __global__ void __launch_bounds__(THREADS)
permutation_link_kernel(list_item *head, list_item *next, int64_t n, const stream_of s)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t < n) next[t] = atomicExch(head + permutation_place(s, t), (list_item)t + 1);
}
/* The largest of the list that begins with t and is below `below`; both, and the result, plus 1. */
DEV list_item permutation_last(const list_item *next, list_item t, list_item below)
{
    list_item last = 0;
    for (; t; t = next[t - 1]) if (t < below && t > last) last = t;
    return last;
}
/* Pass 2: out[p] of thread p is the element that place p has at the end: the last of its list,
 * or, where that is empty, the one before it in the chain of lists. */
static __global__ void __launch_bounds__(THREADS)
permutation_kernel(int64_t *out, const list_item *head, const list_item *next, int64_t n,
                   const stream_of s)
{
    int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (p >= n) return;
    int64_t *const to = out + p;
    list_item last = permutation_last(next, head[p], ~(list_item)0);
    while (!last) {
        const int64_t at = permutation_place(s, p);
        last = permutation_last(next, head[at], (list_item)p + 1);
        p = at;
    }
    *to = (int64_t)last - 1;
}
static mlc_status permutation_run(void *dev, const struct mlc_k_random *a)
{
    const stream_of s = { a->seed, a->stream, a->stream_base };
    const size_t bytes = (size_t)a->n * sizeof(list_item);
    const dim3 grid((unsigned)((a->n + THREADS - 1) / THREADS));
    list_item *const head = static_cast<list_item *>(a->workspace), *const next = head + a->n;
    if (a->dtype != MLC_I64) return MLC_ERR_UNSUPPORTED;
    if (a->workspace_bytes < 2 * bytes) return MLC_ERR_INTERNAL;
    mlc_status st = launch(dev, "permutation", blocks_for(((int64_t)bytes + 15) / 16),
                           dim3(THREADS), 0, pattern_kernel, reinterpret_cast<uint8_t *>(head),
                           (int64_t)bytes, vec<uint64_t, 2>());
    if (st == MLC_OK) st = launch(dev, "permutation", grid, dim3(THREADS), 0,
                                  permutation_link_kernel, head, next, a->n, s);
    return st != MLC_OK ? st : launch(dev, "permutation", grid, dim3(THREADS), 0,
                                      permutation_kernel, static_cast<int64_t *>(a->out), head,
                                      next, a->n, s);
}
static size_t random_workspace(void *, const struct mlc_k_random *a)
{
    return a->kind == MLC_RANDOM_PERMUTATION ? 2 * (size_t)a->n * sizeof(list_item) : 0;
}

static mlc_status random_entry(void *dev, const struct mlc_k_random *a)
{
    const bool floats = dtype_is_half(a->dtype) || a->dtype == MLC_F32 || a->dtype == MLC_F64;
    const bool real = a->kind == MLC_RANDOM_UNIFORM || a->kind == MLC_RANDOM_NORMAL;
    if (!dtype_known(a->dtype) || (real && !floats)) return MLC_ERR_UNSUPPORTED;
    if (a->n == 0) return MLC_OK;
    switch (a->kind) {
    case MLC_RANDOM_UNIFORM: return random_uniform(dev, a);
    case MLC_RANDOM_NORMAL:
        if (a->dtype == MLC_F64)
            return random_launch<double>(dev, a, random_normal_f64{ a->a, a->b });
        return random_launch<float>(dev, a, random_normal_f32{ (float)a->a, (float)a->b });
    case MLC_RANDOM_TRUNCATED: return random_truncated_launch(dev, a);
    case MLC_RANDOM_BERNOULLI:
        return random_launch<float>(dev, a, random_bernoulli{
            (uint64_t)(a->a * 4294967296.0 + 0.5) });
    case MLC_RANDOM_INTEGER:
        return random_launch<int64_t>(dev, a, random_integer{ a->first, a->count });
    case MLC_RANDOM_PERMUTATION: return permutation_run(dev, a);
    default: return MLC_ERR_UNSUPPORTED;
    }
}

/* -- dropout: word i of the stream decides on element i -- */

/* What drop takes of a probability: words below `below` are dropped, or all. */
struct drop_of { uint64_t below; double scale; };
static drop_of drop_made(double p)
{
    return { (uint64_t)(p * 4294967296.0), p < 1.0 ? 1.0 / (1.0 - p) : 0.0 };
}
/* What elements are multiplied by, of which word first + e step decides on the e-th of a few. */
template <class W, int N> DEV void drop_keeps(const drop_of &d, const stream_of &s, int64_t first,
                                              int64_t step, int count, W (&keep)[N])
{
    words w = {};
    int64_t made = -1;
    for (int e = 0; e < N; e++) {
        const int64_t i = first + e * step;
        if (e < count && i / 4 != made) w = s.block((uint64_t)(made = i / 4));
        const uint32_t word = i & 2 ? (i & 1 ? w.w[3] : w.w[2]) : i & 1 ? w.w[1] : w.w[0];
        keep[e] = word < d.below ? (W)0 : (W)d.scale;
    }
}
/* out (+)= in / (1 - p) where word i of the stream lets element i through, else 0, for n dense
 * elements. A thread takes 4 elements, the words of one Philox block. */
template <class T> static __global__ void __launch_bounds__(THREADS)
dropout_kernel(T *out, const T *in, int64_t n, bool aligned, int accumulate, const drop_of d,
               const stream_of s)
{
    typedef typename wide<T>::type W;
    const int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = block * 4;
    W x[4] = {}, old[4] = {};
    if (i >= n) return;
    const words r = s.block((uint64_t)block);
    const int count = n - i < 4 ? (int)(n - i) : 4;
    if (aligned) load_unit<4>(in + i, 1, count, x);
    else for (int e = 0; e < 4; e++) if (e < count) x[e] = load(in[i + e]);
    if (accumulate) for (int e = 0; e < 4; e++) if (e < count) old[e] = load(out[i + e]);
    for (int e = 0; e < 4; e++) {
        const W v = r.w[e] >= d.below ? mul_exact(x[e], (W)d.scale) : (W)0;
        x[e] = accumulate ? add_exact(old[e], v) : v;
    }
    if (aligned) store_unit<4>(out + i, count, x);
    else for (int e = 0; e < 4; e++) if (e < count) store(out + i + e, x[e]);
}
static mlc_status dropout_entry(void *dev, const struct mlc_k_dropout *a)
{
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        if (a->n == 0) return MLC_OK;
        const bool aligned = ((uintptr_t)a->out | (uintptr_t)a->in) % (4 * sizeof(T)) == 0;
        const stream_of s = { a->seed, a->stream, a->stream_base };
        return launch(dev, "dropout", dim3((unsigned)((a->n + THREADS * 4 - 1) / (THREADS * 4))),
                      dim3(THREADS), 0, dropout_kernel<T>, static_cast<T *>(a->out),
                      static_cast<const T *>(a->in), a->n, aligned, a->accumulate,
                      drop_made(a->p), s);
    });
}

/* @@ CUDA.REDUCE ----------------------------------------- reduce, aggregate, argmax, squares, scan
 * The axes are split in kept (a line for each result) and gone (what a line is made of), each
 * sorted so that dense axes come last. A team of threads takes a line: neighbours along it, or
 * across lines where those are side by side. Long lines of few results are cut in segments, a block
 * each, whose accumulators a second launch adds in the workspace; the cut depends on the shape
 * alone. A joiner F has the type of elements (T) and of accumulators (A), and functions that add an
 * element, join two accumulators and put the result.
 * Sums: groups of four in W, whose sums are carried in f64; those of f64 with the rounding errors
 * of each addition (two-sum), as the CPU does it. */

struct acc { double v, lost; };        /* a sum and what roundings lost; a product, an extreme  */
DEV acc shuffle_xor(acc a, int o) { return { shuffle_xor(a.v, o), shuffle_xor(a.lost, o) }; }
DEV void acc_add(acc *t, double x)
{
    const double s = t->v + x, y = s - t->v;
    t->lost += (t->v - (s - y)) + (x - y);
    t->v = s;
}
DEV double acc_value(acc t) { return t.v - t.v == 0 ? t.v + t.lost : t.v; }

/* The line of a result: element i is at line_at. Only the first dim may have 2^31 elements or more,
 * the others are divided in 32 bits. */
struct line {
    int ndim;
    divisor size[MLC_MAX_DIMS];
    int64_t stride[MLC_MAX_DIMS];
};
DEV int64_t line_at(const line &l, int64_t i)
{
    int64_t at = 0;
#pragma unroll 1
    for (int d = l.ndim - 1; d > 0; d--) {
        const int64_t q = i >> 31 ? i / l.size[d].d : (int64_t)divide((uint32_t)i, l.size[d]);
        at += (i - q * l.size[d].d) * l.stride[d];
        i = q;
    }
    return at + i * l.stride[0];
}

struct result {                        /* where results go, and their last formula              */
    void *out;
    mlc_dtype dtype;
    int accumulate;
    double divisor;
};
struct reduce_args {
    const void *in;
    const double *shift;
    void *parts;                       /* accumulators: [segments, results]                     */
    result to;
    walk<3> kept;                      /* out, in, shift                                        */
    int64_t offset[3];
    line gone;
    int64_t count, length, segments;   /* elements: of a line, of a segment                     */
    team m;
    int vec;
};

DEV void put_float(const result &to, int64_t at, double v)
{
    if (to.dtype == MLC_F32) v = (double)(float)v;         /* rounded before it is added to */
    if (to.accumulate) v += get_at<double>(to.dtype, to.out, at);
    put_at(to.dtype, to.out, at, v);
}

/* -- joiners -- */

template <class X> struct sum_of {     /* sum of floats                                         */
    typedef X T;
    typedef acc A;
    typedef typename wide<T>::type W;
    DEV A start() const { return { 0, 0 }; }
    DEV void join(A *a, const A &b) const { acc_add(a, b.v); a->lost += b.lost; }
    DEV void add(A *a, float x) const { a->v += (double)x; }
    DEV void add(A *a, double x) const { acc_add(a, x); }
    template <int K> DEV void take(A *a, const T (&v)[K], int64_t, int64_t, double) const
    {
        if (K < 4)
            for (int k = 0; k < K; k++) add(a, load(v[k]));
        else
            for (int k = 0; k + 3 < K; k += 4)
                add(a, (load(v[k]) + load(v[k + 1])) + (load(v[k + 2]) + load(v[k + 3])));
    }
    DEV void put(const result &to, int64_t at, const A &a, double) const
    {
        put_float(to, at, acc_value(a) / to.divisor);
    }
};

/* The formula of an element before it is joined; the join; the formula of the result.        */
enum prepare_op { PREPARE_NONE, PREPARE_ABS, PREPARE_SQUARE, PREPARE_TRUTH, PREPARE_EXP,
                  PREPARE_POW };
enum join_op { JOIN_ADD, JOIN_MAX, JOIN_MUL };
enum finish_op { FINISH_NONE, FINISH_SQRT, FINISH_LOG, FINISH_ROOT };
struct aggregate_how {
    prepare_op prepare;
    join_op join;
    finish_op finish;
    int turned;                        /* the smallest is sought: the largest of -x, or of ~x   */
    double start, p;
    int64_t start_whole;
};
DEV double larger(double a, double b) { return b > a || b != b ? b : a; }
DEV double finite_or_0(double x) { return x - x == 0 || x != x ? x : 0; }

template <class X> struct aggregate_of { /* any reduction of floats, in f64                       */
    typedef X T;
    typedef acc A;
    aggregate_how how;
    DEV A start() const { return { how.start, 0 }; }
    DEV void join(A *a, const A &b) const
    {
        if (how.join == JOIN_ADD) { acc_add(a, b.v); a->lost += b.lost; }
        else if (how.join == JOIN_MAX) a->v = larger(a->v, b.v);
        else a->v *= b.v;
    }
    DEV void add(A *a, double x) const { if (sizeof(T) == 8) acc_add(a, x); else a->v += x; }
    DEV double exponential(float x, double shift) const { return (double)expf(x - (float)shift); }
    DEV double exponential(double x, double shift) const { return exp(x - shift); }
    DEV double prepared(T raw, double shift) const
    {
        const double x = (double)load(raw) - shift;
        switch (how.prepare) {
        case PREPARE_ABS:    return fabs(x);
        case PREPARE_SQUARE: return x * x;
        case PREPARE_TRUTH:  return x != 0;
        case PREPARE_EXP:    return exponential(load(raw), finite_or_0(shift));
        case PREPARE_POW:    return pow(fabs(x), how.p);
        default:             return x;
        }
    }
    template <int K> DEV void take(A *a, const T (&v)[K], int64_t, int64_t, double shift) const
    {
        for (int k = 0; k < K; k++) {
            const double x = prepared(v[k], shift);
            if (how.join == JOIN_ADD) add(a, x);
            else if (how.join == JOIN_MAX) a->v = larger(a->v, how.turned ? -x : x);
            else a->v *= x;
        }
    }
    DEV void put(const result &to, int64_t at, const A &a, double shift) const
    {
        double v = (how.turned ? -acc_value(a) : acc_value(a)) / to.divisor;
        if (how.finish == FINISH_SQRT) v = sqrt(v);
        else if (how.finish == FINISH_LOG) v = log(v) + finite_or_0(shift);
        else if (how.finish == FINISH_ROOT) v = pow(v, 1 / how.p);
        put_float(to, at, v);
    }
};

template <class X> struct aggregate_whole {   /* of integers and bools, modulo 2^64             */
    typedef X T;
    typedef int64_t A;
    aggregate_how how;
    DEV A start() const { return how.start_whole; }
    DEV void join(A *a, const A &b) const
    {
        if (how.join == JOIN_ADD) *a = (int64_t)((uint64_t)*a + (uint64_t)b);
        else if (how.join == JOIN_MAX) *a = b > *a ? b : *a;
        else *a = (int64_t)((uint64_t)*a * (uint64_t)b);
    }
    template <int K> DEV void take(A *a, const T (&v)[K], int64_t, int64_t, double) const
    {
        for (int k = 0; k < K; k++) {
            const int64_t raw = load(v[k]), x = how.prepare == PREPARE_TRUTH ? raw != 0 : raw;
            join(a, how.turned ? ~x : x);
        }
    }
    DEV void put(const result &to, int64_t at, const A &a, double) const
    {
        put_at(to.dtype, to.out, at, how.turned ? ~a : a);
    }
};

template <class V> struct found { V v; int64_t i; };
template <class V> DEV found<V> shuffle_xor(found<V> a, int o)
{
    return { shuffle_xor(a.v, o), shuffle_xor(a.i, o) };
}
template <class T> struct ordered { typedef int64_t type; };   /* what elements compare as */
template <> struct ordered<float>  { typedef float type; };
template <> struct ordered<double> { typedef double type; };
template <> struct ordered<bf16>   { typedef float type; };
template <> struct ordered<f16>    { typedef float type; };
DEV int64_t turn(int64_t v) { return ~v; }
DEV float   turn(float v)   { return -v; }
DEV double  turn(double v)  { return -v; }

template <class X> struct arg_of {     /* place of the first largest; the first NaN is larger   */
    typedef X T;
    typedef typename ordered<T>::type V;
    typedef found<V> A;
    V least;
    int smallest;
    DEV A start() const { return { least, INT64_MAX }; }
    DEV void join(A *a, const A &b) const
    {
        const bool same = b.v == a->v || (b.v != b.v && a->v != a->v);
        if (same ? b.i < a->i : b.v > a->v || b.v != b.v) *a = b;
    }
    template <int K> DEV void take(A *a, const T (&v)[K], int64_t i, int64_t step, double) const
    {
        for (int k = 0; k < K; k++) {
            const V x = (V)load(v[k]);
            join(a, { smallest ? turn(x) : x, i + k * step });
        }
    }
    DEV void put(const result &to, int64_t at, const A &a, double) const
    {
        static_cast<int64_t *>(to.out)[at] = a.i == INT64_MAX ? 0 : a.i;
    }
};

/* -- kernels -- */

/* Elements from .. to of a line, by one lane of a team. */
template <class F>
DEV void reduce_packs(const F &f, typename F::A *sum, const typename F::T *in, int64_t from,
                      int64_t to, double shift, team m)
{
    typedef typename F::T T;
    const int64_t n = PACK(T);
    int64_t i = from + team_lane(m) * n;
#pragma unroll 1
    for (; i + n <= to; i += m.size * n) {
        T v[PACK(T)];
        const float4 words = *reinterpret_cast<const float4 *>(in + i);
        memcpy(v, &words, 16);
        f.take(sum, v, i, 1, shift);
    }
#pragma unroll 1
    for (; i < to; i++) {              /* one lane has the rest */
        const T v[1] = { in[i] };
        f.take(sum, v, i, 1, shift);
    }
}
template <class F>
DEV void reduce_strided(const F &f, typename F::A *sum, const typename F::T *in, const line &gone,
                        int64_t from, int64_t to, double shift, team m)
{
    typedef typename F::T T;
    const int64_t step = m.size;
    int64_t i = from + team_lane(m);
#pragma unroll 1
    for (; i + 3 * step < to; i += 4 * step) {
        T v[4];
        for (int k = 0; k < 4; k++) v[k] = in[line_at(gone, i + k * step)];
        f.take(sum, v, i, step, shift);
    }
#pragma unroll 1
    for (; i < to; i += step) {
        const T v[1] = { in[line_at(gone, i)] };
        f.take(sum, v, i, step, shift);
    }
}
/* Pass 1 of a reduction. Block (x, y): THREADS / team size lines from x on, segment y of each; a
 * team joins its line in lanes, then across lanes, in a fixed order. With one segment the result
 * is put in out, else the accumulator in parts [segments, results]. */
template <class F> static __global__ void __launch_bounds__(THREADS)
reduce_kernel(const reduce_args a, const F f)
{
    const int64_t o = (int64_t)blockIdx.x * (THREADS / a.m.size) + team_line(a.m);
    const int64_t from = blockIdx.y * a.length;
    const int64_t to = from + a.length < a.count ? from + a.length : a.count;
    const bool live = o < a.kept.n;
    int64_t at[3] = { 0, 0, 0 };
    typename F::A sum = f.start();
    double shift = 0;
    if (live) {
        walk_at(a.kept, (uint32_t)o, at);
        const typename F::T *in = static_cast<const typename F::T *>(a.in) + a.offset[1] + at[1];
        if (a.shift) shift = a.shift[a.offset[2] + at[2]];
        if (a.vec) reduce_packs(f, &sum, in, from, to, shift, a.m);
        else reduce_strided(f, &sum, in, a.gone, from, to, shift, a.m);
    }
    sum = team_all(f, sum, a.m);
    if (!live || team_lane(a.m) != 0) return;
    if (a.segments > 1) static_cast<typename F::A *>(a.parts)[blockIdx.y * a.kept.n + o] = sum;
    else f.put(a.to, a.offset[0] + at[0], sum, shift);
}
/* Pass 2: a team joins the accumulators of a line, parts [segments, results], in order, and puts
 * the result. Grid: blocks of lines as in reduce_kernel. */
template <class F> static __global__ void __launch_bounds__(THREADS)
reduce_meet_kernel(const reduce_args a, const F f)
{
    const int64_t o = (int64_t)blockIdx.x * (THREADS / a.m.size) + team_line(a.m);
    const typename F::A *parts = static_cast<const typename F::A *>(a.parts);
    const bool live = o < a.kept.n;
    typename F::A sum = f.start();
#pragma unroll 1
    for (int64_t s = team_lane(a.m); live && s < a.segments; s += a.m.size)
        f.join(&sum, parts[s * a.kept.n + o]);
    sum = team_all(f, sum, a.m);
    if (!live || team_lane(a.m) != 0) return;
    int64_t at[3];
    walk_at(a.kept, (uint32_t)o, at);
    f.put(a.to, a.offset[0] + at[0], sum, a.shift ? a.shift[a.offset[2] + at[2]] : 0);
}

/* -- plans -- */

enum { REDUCE_PART = 16 };             /* bytes of an accumulator, at most                      */

/* Some axes, the largest strides of `key` first. */
template <int N> struct axes {
    int32_t n = 0;
    int64_t size[MLC_MAX_DIMS], stride[N][MLC_MAX_DIMS];
    int key;
    explicit axes(int k) : key(k) {}
    void add(int64_t elements, const int64_t (&steps)[N])
    {
        int32_t d = n++;
        for (; d > 0 && llabs(stride[key][d - 1]) < llabs(steps[key]); d--) {
            size[d] = size[d - 1];
            for (int k = 0; k < N; k++) stride[k][d] = stride[k][d - 1];
        }
        size[d] = elements;
        for (int k = 0; k < N; k++) stride[k][d] = steps[k];
    }
    plan<N> planned() const
    {
        const int64_t *strides[N];
        for (int k = 0; k < N; k++) strides[k] = stride[k];
        return plan<N>(n, size, strides);
    }
};

struct reduce_job {
    plan<3> kept;
    reduce_args a;
    bool takes;                        /* within the limits of a line                           */
};
/* Segments: enough for 1,024 blocks, of 16 elements a thread at least. */
static void reduce_cut(reduce_args *a, int64_t outs)
{
    const int64_t blocks = outs / team_lines(a->m) + 1;
    const int64_t unit = 16 * a->m.size, most = (a->count + unit - 1) / unit;
    int64_t segments = blocks < 512 ? 1024 / blocks : 1;
    if (segments > most) segments = most;
    if (segments < 1) segments = 1;
    a->length = (a->count + segments - 1) / segments;
    a->length = (a->length + unit - 1) / unit * unit;
    a->segments = a->count ? (a->count + a->length - 1) / a->length : 1;
}
/* gone: a bit an axis. */
static reduce_job reduce_plan(const struct mlc_k_reduce *a, uint32_t gone, const double *shift,
                              const int64_t *shift_stride)
{
    axes<3> keep(1);
    axes<1> lose(0);
    for (int32_t d = 0; d < a->ndim; d++) {
        if (gone >> d & 1) lose.add(a->shape[d], { a->in_stride[d] });
        else keep.add(a->shape[d], { a->out_stride[d], a->in_stride[d],
                                     shift ? shift_stride[d] : 0 });
    }
    const plan<1> line = lose.planned();
    const size_t size = mlc_dtype_bytes(a->dtype);
    reduce_job j = { keep.planned(), {}, true };
    j.a.in = a->in;
    j.a.shift = shift;
    j.a.parts = a->workspace;
    j.a.to = { a->out, a->out_dtype, a->accumulate, a->divisor };
    j.a.count = line.n;
    j.a.gone.ndim = line.ndim ? line.ndim : 1;
    for (int d = 0; d < line.ndim; d++) {
        const bool divides = d > 0 && line.n > 0;
        j.takes = j.takes && (!divides || line.shape[d] >> 31 == 0);
        j.a.gone.size[d] = divisor_make(divides ? (uint32_t)line.shape[d] : 1);
        j.a.gone.stride[d] = line.stride[0][d];
    }
    const int64_t step = line.ndim ? line.stride[0][line.ndim - 1] : 1;
    j.a.vec = line.ndim <= 1 && lines_vec(j.kept, 1, a->in, step, size);
    j.a.m = team_for(line.n, j.a.vec ? (int)(16 / size) : 1, j.kept.n,
                     step != 1 && lines_adjoin(j.kept, 1));
    reduce_cut(&j.a, j.kept.n);
    return j;
}
static size_t reduce_bytes(const reduce_job &j)
{
    return j.kept.n && j.a.segments > 1 ? (size_t)(j.a.segments * j.kept.n) * REDUCE_PART : 0;
}
template <class F>
static mlc_status reduce_run(void *dev, const char *name, reduce_job j, size_t bytes, const F &f)
{
    static_assert(sizeof(typename F::A) <= REDUCE_PART, "an accumulator is larger than its place");
    if (!j.takes) return MLC_ERR_UNSUPPORTED;
    if (bytes < reduce_bytes(j)) return MLC_ERR_INTERNAL;
    return j.kept.each([&](const walk<3> &w, const int64_t *offset) {
        reduce_args a = j.a;
        a.kept = w;
        memcpy(a.offset, offset, sizeof a.offset);
        mlc_status st = launch(dev, name, team_blocks(w.n, a.m, a.segments), dim3(THREADS), 0,
                               reduce_kernel<F>, a, f);
        if (st != MLC_OK || a.segments == 1) return st;
        a.m = { w.n < 4096 ? 32 : 1, 1 };
        return launch(dev, name, team_blocks(w.n, a.m, 1), dim3(THREADS), 0,
                      reduce_meet_kernel<F>, a, f);
    });
}

/* -- entries -- */

static uint32_t reduce_gone(const struct mlc_k_reduce *a)
{
    uint32_t gone = 0;
    for (int32_t d = 0; d < a->ndim; d++) gone |= (uint32_t)(a->out_stride[d] == 0) << d;
    return gone;
}

static aggregate_how aggregate_how_of(const struct mlc_k_aggregate *a)
{
    const mlc_reduce op = a->r.op;
    const bool norm = op == MLC_REDUCE_NORM, flag = op == MLC_REDUCE_ANY || op == MLC_REDUCE_ALL;
    const bool low = op == MLC_REDUCE_MIN || op == MLC_REDUCE_ALL || (norm && a->p == -INFINITY);
    const bool high = op == MLC_REDUCE_MAX || op == MLC_REDUCE_ANY || (norm && a->p == INFINITY);
    aggregate_how h = {};
    h.join = low || high ? JOIN_MAX : op == MLC_REDUCE_PROD ? JOIN_MUL : JOIN_ADD;
    h.turned = low;
    h.p = a->p;
    h.start = h.join == JOIN_MUL ? 1 : 0;
    h.start_whole = h.join == JOIN_MUL;
    if (h.join == JOIN_MAX) {
        h.start = !flag ? -INFINITY : low ? -1 : 0;
        h.start_whole = !flag ? INT64_MIN : low ? ~(int64_t)1 : 0;
    }
    const bool square = op == MLC_REDUCE_VAR || op == MLC_REDUCE_STD || (norm && a->p == 2);
    const bool plain_abs = norm && (a->p == 1 || low || high);
    h.prepare = flag || (norm && a->p == 0) ? PREPARE_TRUTH : square ? PREPARE_SQUARE
              : op == MLC_REDUCE_LSE ? PREPARE_EXP : plain_abs ? PREPARE_ABS
              : norm ? PREPARE_POW : PREPARE_NONE;
    h.finish = op == MLC_REDUCE_LSE ? FINISH_LOG
             : op == MLC_REDUCE_STD || (norm && a->p == 2) ? FINISH_SQRT
             : h.prepare == PREPARE_POW ? FINISH_ROOT : FINISH_NONE;
    return h;
}
static reduce_job aggregate_plan(const struct mlc_k_aggregate *a)
{
    return reduce_plan(&a->r, reduce_gone(&a->r), a->shift, a->shift_stride);
}
static size_t aggregate_workspace(void *, const struct mlc_k_aggregate *a)
{
    return reduce_bytes(aggregate_plan(a));
}
static mlc_status aggregate_entry(void *dev, const struct mlc_k_aggregate *a)
{
    const aggregate_how how = aggregate_how_of(a);
    const mlc_dtype to = a->r.out_dtype;
    if (is_float(a->r.dtype)) {
        if (!is_float(to) && to != MLC_BOOL && to != MLC_I64) return MLC_ERR_UNSUPPORTED;
        if (!is_float(to) && a->r.accumulate) return MLC_ERR_UNSUPPORTED;
        return each_float(a->r.dtype, [&](auto tag) {
            return reduce_run(dev, "aggregate", aggregate_plan(a), a->r.workspace_bytes,
                              aggregate_of<TYPE(tag)>{ how });
        });
    }
    if ((is_float(to) && to != MLC_F64) || a->shift || a->r.op > MLC_REDUCE_NORM ||
        (a->r.op == MLC_REDUCE_NORM && a->p != 0)) return MLC_ERR_UNSUPPORTED;
    return each_whole(a->r.dtype, [&](auto tag) {
        return reduce_run(dev, "aggregate", aggregate_plan(a), a->r.workspace_bytes,
                          aggregate_whole<TYPE(tag)>{ how });
    });
}

static size_t reduce_workspace(void *, const struct mlc_k_reduce *a)
{
    return reduce_bytes(reduce_plan(a, reduce_gone(a), nullptr, nullptr));
}
static mlc_status reduce_entry(void *dev, const struct mlc_k_reduce *a)
{
    if (a->op > MLC_REDUCE_MAX || !is_float(a->out_dtype)) return MLC_ERR_UNSUPPORTED;
    if (!is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (a->op == MLC_REDUCE_MAX) {
        struct mlc_k_aggregate all = {};
        all.r = *a;
        return aggregate_entry(dev, &all);
    }
    return each_float(a->dtype, [&](auto tag) {
        return reduce_run(dev, "reduce", reduce_plan(a, reduce_gone(a), nullptr, nullptr),
                          a->workspace_bytes, sum_of<TYPE(tag)>());
    });
}

/* n dense floats to one sum of squares. */
static struct mlc_k_reduce squares_reduce(const struct mlc_k_squares *a)
{
    struct mlc_k_reduce r = {};
    r.dtype = a->dtype;
    r.out_dtype = MLC_F64;
    r.ndim = 1;
    r.shape[0] = a->n;
    r.in = a->in;
    r.in_stride[0] = 1;
    r.out = a->sum;
    r.divisor = 1;
    r.workspace = a->workspace;
    return r;
}
static size_t squares_workspace(void *, const struct mlc_k_squares *a)
{
    const struct mlc_k_reduce r = squares_reduce(a);
    return reduce_bytes(reduce_plan(&r, 1, nullptr, nullptr));
}
static mlc_status squares_entry(void *dev, const struct mlc_k_squares *a)
{
    const struct mlc_k_reduce r = squares_reduce(a);
    aggregate_how how = {};
    how.prepare = PREPARE_SQUARE;
    return each_float(a->dtype, [&](auto tag) {
        return reduce_run(dev, "squares", reduce_plan(&r, 1, nullptr, nullptr), a->workspace_bytes,
                          aggregate_of<TYPE(tag)>{ how });
    });
}

static struct mlc_k_reduce argmax_reduce(const struct mlc_k_argmax *a)
{
    struct mlc_k_reduce r = {};
    r.dtype = a->dtype;
    r.out_dtype = MLC_I64;
    r.ndim = a->ndim;
    memcpy(r.shape, a->shape, sizeof r.shape);
    memcpy(r.in_stride, a->in_stride, sizeof r.in_stride);
    memcpy(r.out_stride, a->out_stride, sizeof r.out_stride);
    r.in = a->in;
    r.out = a->out;
    r.workspace = a->workspace;
    return r;
}
static size_t argmax_workspace(void *, const struct mlc_k_argmax *a)
{
    const struct mlc_k_reduce r = argmax_reduce(a);
    return reduce_bytes(reduce_plan(&r, 1u << a->axis, nullptr, nullptr));
}
static int64_t least_of(int64_t) { return INT64_MIN; }
static float   least_of(float)   { return -INFINITY; }
static double  least_of(double)  { return -INFINITY; }
static mlc_status argmax_entry(void *dev, const struct mlc_k_argmax *a)
{
    const struct mlc_k_reduce r = argmax_reduce(a);
    const auto run = [&](auto tag) {
        typedef arg_of<TYPE(tag)> F;
        return reduce_run(dev, "argmax", reduce_plan(&r, 1u << a->axis, nullptr, nullptr),
                          a->workspace_bytes, F{ least_of((typename F::V)0), a->smallest });
    };
    return is_float(a->dtype) ? each_float(a->dtype, run) : each_whole(a->dtype, run);
}

static __global__ void finite_begin_kernel(int64_t *first) { *first = -1; }
/* *first = the least i of n dense elements with in[i] not finite; before, it is -1, the largest
 * number without a sign. A thread looks at EACH elements that are THREADS apart, up to its first
 * hit. */
template <class T> static __global__ void __launch_bounds__(THREADS)
finite_kernel(const T *in, int64_t n, int64_t *first)
{
    const int64_t from = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    for (int64_t i = from; i < n && i < from + THREADS * EACH; i += THREADS) {
        const typename wide<T>::type x = load(in[i]);
        if (x - x == 0) continue;
        atomicMin(reinterpret_cast<unsigned long long *>(first), (unsigned long long)i);
        break;
    }
}
static mlc_status finite_entry(void *dev, const struct mlc_k_finite *a)
{
    if (!is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    const mlc_status st = launch(dev, "finite", dim3(1), dim3(1), 0, finite_begin_kernel, a->first);
    if (st != MLC_OK || a->n == 0) return st;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return launch(dev, "finite", blocks_for(a->n), dim3(THREADS), 0, finite_kernel<T>,
                      static_cast<const T *>(a->in), a->n, a->first);
    });
}

/* -- scan: lines by teams, four elements a lane at a time; long ones in segments: totals, what
 * comes before each segment, then the results -- */

struct affine { double m, b; };        /* c becomes m c + b                                     */

/* All lanes' values of a warp. */
DEV double   shuffle(double v, int from)   { return __shfl_sync(~0u, v, from); }
DEV uint64_t shuffle(uint64_t v, int from)
{
    return (uint64_t)__shfl_sync(~0u, (unsigned long long)v, from);
}
DEV affine shuffle(affine v, int from) { return { shuffle(v.m, from), shuffle(v.b, from) }; }

enum { SCAN_EACH = 4 };
enum scan_mode { SCAN_WHOLE, SCAN_TOTALS, SCAN_SEGMENTS };
template <class T> struct scan_args {
    const T *in, *y, *dy;
    void *out, *parts;                 /* parts: [lines, segments]                              */
    walk<4> kept;                      /* out, in, y, dy                                        */
    int64_t base, n, step[4], length, segments;            /* base: number of the first line    */
    int reverse, accumulate, product;
    team m;
};
/* Places of the operands' first elements in a line. */
struct scan_line { int64_t at[4]; };

template <class O> DEV void store_scan(O *o, double v) { put(o, v); }
DEV void store_scan(int64_t *o, uint64_t v) { *o = (int64_t)v; }

template <class X, class C, class O> struct scan_plain {     /* C carries, O is put */
    typedef X T;
    typedef C A;
    const scan_args<T> &a;
    scan_line l;
    DEV A none() const { return (A)a.product; }
    DEV A join(A before, A x) const { return a.product ? before * x : before + x; }
    DEV A element(int64_t i) const { return (A)load(a.in[l.at[1] + i * a.step[1]]); }
    DEV void put(int64_t i, A before, A x) const
    {
        O *o = static_cast<O *>(a.out) + l.at[0] + i * a.step[0];
        A v = join(before, x);
        if (a.accumulate) v += (A)load(*o);
        store_scan(o, v);
    }
};

/* out_i = y_(i-1) s_i, s_i = dy_i + c, c becomes in_i s_i; from the end on. */
template <class X> struct scan_grad {
    typedef X T;
    typedef affine A;
    const scan_args<T> &a;
    scan_line l;
    DEV A none() const { return { 1, 0 }; }
    DEV A join(A before, A x) const    /* nothing carried stays nothing, whatever m is */
    {
        return { before.m * x.m, before.b == 0 ? x.b : x.m * before.b + x.b };
    }
    DEV double dy(int64_t i) const { return (double)load(a.dy[l.at[3] + i * a.step[3]]); }
    DEV A element(int64_t i) const
    {
        const double x = (double)load(a.in[l.at[1] + i * a.step[1]]);
        return { x, x * dy(i) };
    }
    DEV void put(int64_t i, A before, A) const
    {
        T *o = static_cast<T *>(a.out) + l.at[0] + i * a.step[0];
        const double y = i > 0 ? (double)load(a.y[l.at[2] + (i - 1) * a.step[2]]) : 1;
        double v = y * (dy(i) + before.b);
        if (a.accumulate) v += (double)load(*o);
        ::put(o, v);
    }
};

/* What comes before this lane's own; *carry, before the team's, becomes what comes after it. */
template <class S, class A> DEV A team_scan(const S &s, A own, team m, A *carry)
{
    MLC_SHARED(A, total, [THREADS / 32]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    A before = *carry, x = own;
    if (m.size == 1) { *carry = s.join(*carry, own); return before; }
    for (int o = 1; o < 32; o *= 2) {
        const A y = shuffle(x, (lane - o) & 31);
        if (lane >= o) x = s.join(y, x);
    }
    A left = shuffle(x, (lane - 1) & 31);
    const A all = shuffle(x, 31);
    if (lane == 0) left = s.none();
    if (m.size > 32) {
        __syncthreads();
        if (lane == 0) total[warp] = all;
        __syncthreads();
        for (int w = 0; w < THREADS / 32; w++) {
            if (w == warp) before = *carry;
            *carry = s.join(*carry, total[w]);
        }
    } else *carry = s.join(*carry, all);
    return s.join(before, left);
}
/* out_i from x_0 .. x_i along lines. Block (x, y): lines from x on, segment y of each; a lane of
 * the team takes SCAN_EACH neighbours at a time. WHOLE: one segment. Else two launches: TOTALS
 * writes parts [results, segments], the total of each; SEGMENTS begins with what
 * scan_parts_kernel made of it. */
template <class S> static __global__ void __launch_bounds__(THREADS)
scan_kernel(const scan_args<typename S::T> a, const scan_mode mode)
{
    typedef typename S::A A;
    S s = { a, {} };
    const int64_t o = (int64_t)blockIdx.x * (THREADS / a.m.size) + team_line(a.m);
    if (o >= a.kept.n) return;         /* whole warps: of a warp's size, or alone */
    walk_at(a.kept, (uint32_t)o, s.l.at);
    const int64_t from = blockIdx.y * a.length;
    const int64_t to = from + a.length < a.n ? from + a.length : a.n;
    A *part = static_cast<A *>(a.parts) + o * a.segments + blockIdx.y;
    A carry = mode == SCAN_SEGMENTS ? *part : s.none();
#pragma unroll 1
    for (int64_t i = from; i < to; i += a.m.size * SCAN_EACH) {
        const int64_t first = i + team_lane(a.m) * SCAN_EACH;
        A x[SCAN_EACH], own = s.none();
        for (int k = 0; k < SCAN_EACH; k++) {
            const int64_t j = first + k;
            x[k] = j < to ? s.element(a.reverse ? a.n - 1 - j : j) : s.none();
            own = s.join(own, x[k]);
        }
        A before = team_scan(s, own, a.m, &carry);
        for (int k = 0; k < SCAN_EACH && mode != SCAN_TOTALS; k++) {
            const int64_t j = first + k;
            if (j < to) s.put(a.reverse ? a.n - 1 - j : j, before, x[k]);
            before = s.join(before, x[k]);
        }
    }
    if (mode == SCAN_TOTALS && team_lane(a.m) == 0) *part = carry;
}
/* parts [results, segments]: the total of each segment becomes the join of all segments before
 * it. A thread takes a line. */
template <class S> static __global__ void __launch_bounds__(THREADS)
scan_parts_kernel(const scan_args<typename S::T> a)
{
    typedef typename S::A A;
    const S s = { a, {} };
    const int64_t o = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    A before = s.none(), *part = static_cast<A *>(a.parts) + o * a.segments;
    if (o >= a.kept.n) return;
    for (int64_t k = 0; k < a.segments; k++) {
        const A x = part[k];
        part[k] = before;
        before = s.join(before, x);
    }
}

static plan<4> scan_plan(const struct mlc_k_scan *a)
{
    const bool grad = a->op == MLC_SCAN_PROD_GRAD;
    const int64_t *const strides[4] = { a->out_stride, a->in_stride, grad ? a->y_stride : nullptr,
                                        grad ? a->dy_stride : nullptr };
    return lines_plan(a->ndim, a->shape, a->axis, strides);
}
/* A thread a line where lines are side by side and are many, or are short. */
static team scan_team(const struct mlc_k_scan *a, const plan<4> &p)
{
    const int64_t n = a->shape[a->axis];
    const bool columns = a->in_stride[a->axis] != 1 && lines_adjoin(p, 1) && p.n >= 1024;
    if (columns || n <= 8) return { 1, 1 };
    return { n > 1024 ? THREADS : 32, 1 };
}
static int64_t scan_segments(const struct mlc_k_scan *a, const plan<4> &p)
{
    const int64_t n = a->shape[a->axis], most = n / (16 * THREADS);
    const int64_t blocks = p.n > 0 && p.n < 256 ? 512 / p.n : 1;
    return scan_team(a, p).size < THREADS || most < 2 ? 1 : blocks < most ? blocks : most;
}
static size_t scan_workspace(void *, const struct mlc_k_scan *a)
{
    const plan<4> p = scan_plan(a);
    const int64_t segments = scan_segments(a, p);
    return segments > 1 ? (size_t)(p.n * segments) * sizeof(affine) : 0;
}
template <class S> static mlc_status scan_run(void *dev, const struct mlc_k_scan *a)
{
    typedef typename S::T T;
    const plan<4> p = scan_plan(a);
    scan_args<T> s = {};
    const int64_t *const steps[4] = { a->out_stride, a->in_stride, a->y_stride, a->dy_stride };
    s.n = a->shape[a->axis];
    s.m = scan_team(a, p);
    s.segments = scan_segments(a, p);
    s.length = (s.n + s.segments - 1) / s.segments;
    s.parts = a->workspace;
    s.reverse = a->reverse;
    s.accumulate = a->accumulate;
    s.product = a->op == MLC_SCAN_PROD;
    if (s.n == 0) return MLC_OK;
    if (a->workspace_bytes < scan_workspace(dev, a)) return MLC_ERR_INTERNAL;
    const bool grad = a->op == MLC_SCAN_PROD_GRAD;
    for (int k = 0; k < (grad ? 4 : 2); k++) s.step[k] = steps[k][a->axis];
    return p.each([&](const walk<4> &w, const int64_t *offset) {
        s.kept = w;
        s.out = static_cast<char *>(a->out) + offset[0] * (int64_t)mlc_dtype_bytes(a->out_dtype);
        s.in = static_cast<const T *>(a->in) + offset[1];
        if (grad) s.y = static_cast<const T *>(a->y) + offset[2];
        if (grad) s.dy = static_cast<const T *>(a->dy) + offset[3];
        const dim3 grid = team_blocks(w.n, s.m, s.segments), block(THREADS);
        if (s.segments == 1)
            return launch(dev, "scan", grid, block, 0, scan_kernel<S>, s, SCAN_WHOLE);
        mlc_status st = launch(dev, "scan", grid, block, 0, scan_kernel<S>, s, SCAN_TOTALS);
        if (st == MLC_OK) st = launch(dev, "scan", dim3((w.n + THREADS - 1) / THREADS), block, 0,
                                      scan_parts_kernel<S>, s);
        return st != MLC_OK ? st : launch(dev, "scan", grid, block, 0, scan_kernel<S>, s,
                                          SCAN_SEGMENTS);
    });
}
static mlc_status scan_entry(void *dev, const struct mlc_k_scan *a)
{
    if (is_float(a->dtype)) {
        if (a->out_dtype != a->dtype) return MLC_ERR_UNSUPPORTED;
        return each_float(a->dtype, [&](auto tag) {
            typedef TYPE(tag) T;
            return a->op == MLC_SCAN_PROD_GRAD ? scan_run<scan_grad<T>>(dev, a)
                                               : scan_run<scan_plain<T, double, T>>(dev, a);
        });
    }
    if (a->out_dtype != MLC_I64 || a->op == MLC_SCAN_PROD_GRAD || a->accumulate)
        return MLC_ERR_UNSUPPORTED;
    return each_whole(a->dtype, [&](auto tag) {
        return scan_run<scan_plain<TYPE(tag), uint64_t, int64_t>>(dev, a);
    });
}

/* @@ CUDA.ROWS ------------------------------------------- softmax, norm and their gradients
 * A team of threads takes a line (a row, or, where rows are not dense, some that are side by side),
 * a pack of elements a lane. What fits is held in registers, the rest of a long line is read again,
 * from caches. Statistics are the CPU's: largest element and sum of exponentials; the mean rounded
 * to W (shift), mean - shift, 1/sqrt(variance + eps). Sums are groups of four in W, carried in
 * f64. The gradients of weight and bias are sums over rows: by columns, in parts of the rows, which
 * a second launch adds in the workspace. */

/* Operands of a plan: two inputs, the output, statistics of a line. */
enum { ROW_IN, ROW_IN_2, ROW_OUT, ROW_STAT, ROW_OPERANDS };

template <class T, int N> struct row_args {          /* N inputs                                */
    const T *in[N];
    T *out;
    double *stat;
    walk<ROW_OPERANDS> kept;
    int64_t n, step[N], out_step;
    team m;
    int vec[N], out_vec, accumulate;
};

/* A line of N inputs by a team, in packs of elements i, i + 1, ... A lane holds 16 elements, or 8
 * of f64, of all N inputs together. */
template <class X, int N> struct row {
    typedef X T;
    typedef typename wide<T>::type W;
    enum { EACH_PACK = PACK(T), HELD = (sizeof(T) == 2 ? 2 : 4) / N };
    const row_args<T, N> &a;
    int64_t n, at[ROW_OPERANDS];       /* n 0: a team without a line                            */
    W held[HELD][N][EACH_PACK];

    /* Elements after the end of the line are 0. */
    DEV explicit row(const row_args<T, N> &args) : a(args), n(0)
    {
        const int64_t o = (int64_t)blockIdx.x * (THREADS / a.m.size) + team_line(a.m);
        for (int k = 0; k < ROW_OPERANDS; k++) at[k] = 0;
        if (o < a.kept.n) {
            walk_at(a.kept, (uint32_t)o, at);
            n = a.n;
        }
#pragma unroll
        for (int h = 0; h < HELD; h++) read(held[h], place(h));
    }
    DEV void read(W (&v)[N][EACH_PACK], int64_t i) const
    {
        for (int k = 0; k < N; k++) {
            for (int e = 0; e < EACH_PACK; e++) v[k][e] = 0;
            if (i < n)
                load_pack(a.in[k] + at[k] + i * a.step[k], a.step[k], n - i, a.vec[k] != 0, v[k]);
        }
    }
    DEV int64_t place(int h) const { return ((int64_t)h * a.m.size + team_lane(a.m)) * EACH_PACK; }
    /* Calls f(packs, i, count): count are of the line, at least 1. */
    template <class F> DEV void each(const F &f) const
    {
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (place(h) < n) f(held[h], place(h), count(place(h)));
#pragma unroll 1
        for (int64_t i = place(HELD); i < n; i += a.m.size * EACH_PACK) {
            W v[N][EACH_PACK];
            read(v, i);
            f(v, i, count(i));
        }
    }
    DEV int count(int64_t i) const { return n - i < EACH_PACK ? (int)(n - i) : EACH_PACK; }
    DEV void write(W (&v)[EACH_PACK], int64_t i, int count) const
    {
        store_pack(a.out + at[ROW_OUT] + i * a.out_step, a.out_step, count, a.out_vec != 0,
                   a.accumulate != 0, v);
    }
};

struct two { double a, b; };
DEV two shuffle_xor(two v, int o) { return { shuffle_xor(v.a, o), shuffle_xor(v.b, o) }; }
struct join_sum { DEV void join(double *a, const double &b) const { *a += b; } };
struct join_two { DEV void join(two *a, const two &b) const { a->a += b.a; a->b += b.b; } };
struct join_larger {
    template <class W> DEV void join(W *a, const W &b) const { if (b > *a || b != b) *a = b; }
};
DEV float  exponential(float x)  { return expf(x); }
DEV double exponential(double x) { return exp(x); }

/* out = softmax(in) along lines of n elements, or its logarithm. A team takes a line: largest
 * element, sum of exponentials, results. A line with a NaN, with +inf or of only -inf gets a NaN
 * as largest element, and so becomes NaN as a whole. */
template <class T> static __global__ void __launch_bounds__(THREADS, 2)
softmax_kernel(const row_args<T, 1> a, const int log_of)
{
    typedef row<T, 1> R;
    typedef typename R::W W;
    enum { E = R::EACH_PACK };
    const R r(a);
    W most = (W)-INFINITY;
    r.each([&](const W (&v)[1][E], int64_t, int count) {
        for (int e = 0; e < E; e++) if (e < count) join_larger().join(&most, v[0][e]);
    });
    most = team_all(join_larger(), most, a.m);
    if (most - most != 0) most = (W)NAN;
    double sum = 0;
    r.each([&](const W (&v)[1][E], int64_t, int count) {
        W x[E];
        for (int e = 0; e < E; e++) x[e] = e < count ? exponential(v[0][e] - most) : 0;
        add_groups(&sum, x);
    });
    sum = team_all(join_sum(), sum, a.m);
    const W scale = (W)(1 / sum), less = (W)-log(sum);
    r.each([&](const W (&v)[1][E], int64_t i, int count) {
        W x[E];
        for (int e = 0; e < E; e++) {
            const W low = v[0][e] - most;
            x[e] = log_of ? low + less : exponential(low) * scale;
        }
        r.write(x, i, count);
    });
}

/* dx (+)= y (dy - sum y dy), of logarithms dy - e^y sum dy; in: y, dy. A team takes a line. A
 * line of logarithms is NaN as a whole or not at all, so its first element tells. */
template <class T> static __global__ void __launch_bounds__(THREADS, 2)
softmax_grad_kernel(const row_args<T, 2> a, const int log_of)
{
    typedef row<T, 2> R;
    typedef typename R::W W;
    enum { E = R::EACH_PACK };
    const R r(a);
    const W first = r.n ? load(a.in[0][r.at[0]]) : 0;
    double sum = 0;
    r.each([&](const W (&v)[2][E], int64_t, int count) {
        W x[E];
        for (int e = 0; e < E; e++) x[e] = e < count ? (log_of ? v[1][e] : v[0][e] * v[1][e]) : 0;
        add_groups(&sum, x);
    });
    sum = team_all(join_sum(), sum, a.m);
    const W total = first != first ? first : (W)sum;
    r.each([&](const W (&v)[2][E], int64_t i, int count) {
        W x[E];
        for (int e = 0; e < E; e++)
            x[e] = log_of ? v[1][e] - exponential(v[0][e]) * total : v[0][e] * (v[1][e] - total);
        r.write(x, i, count);
    });
}

struct norm_weights {                  /* of rows of n; NULL: 1 and 0                           */
    const void *weight, *bias;
    int wide, vec;                     /* wide: they are of W, not of T                         */
    int rms;
    double eps;
};
template <class T, class W, int E>
DEV void weight_pack(const void *w, const norm_weights &s, int64_t i, int count, W other, W (&v)[E])
{
    for (int e = 0; e < E; e++) v[e] = other;
    if (!w) return;
    if (!s.wide) load_pack(static_cast<const T *>(w) + i, 1, count, s.vec != 0, v);
    else
        for (int e = 0; e < E; e++)
            if (e < count) v[e] = static_cast<const W *>(w)[i + e];
}
/* Elements become (x - shift) scale + base. */
template <class W> struct norm_line {
    W shift, scale, base;
    DEV explicit norm_line(const double *stat)
        : shift((W)stat[0]), scale((W)stat[2]), base((W)(-stat[1] * stat[2])) {}
    DEV W of(W x) const { return (x - shift) * scale + base; }
};

/* The mean as W has it is the shift, around which a second pass has small squares. */
template <class R> DEV void norm_stat(const R &r, const norm_weights &s, double *stat)
{
    typedef typename R::W W;
    enum { E = R::EACH_PACK };
    const double n = (double)r.a.n;
    double sum = 0;
    if (!s.rms) {
        r.each([&](const W (&v)[1][E], int64_t, int) { add_groups(&sum, v[0]); });
        sum = team_all(join_sum(), sum, r.a.m);
    }
    const W shift = (W)(sum / n);
    two t = { 0, 0 };
    r.each([&](const W (&v)[1][E], int64_t, int count) {
        W x[E], square[E];
        for (int e = 0; e < E; e++) {
            x[e] = e < count ? v[0][e] - shift : 0;
            square[e] = x[e] * x[e];
        }
        add_groups(&t.a, x);
        add_groups(&t.b, square);
    });
    t = team_all(join_two(), t, r.a.m);
    const double off = s.rms ? 0 : t.a / n, variance = t.b / n - off * off;
    stat[0] = (double)shift;
    stat[1] = off;
    stat[2] = 1 / sqrt((variance < 0 ? 0 : variance) + s.eps);
}
/* out = (in - mean) r weight + bias of lines of n elements; a team takes a line, its lane 0
 * writes the statistics stat [lines,3]. weight and bias [n]; NULL: 1 and 0. */
template <class T> static __global__ void __launch_bounds__(THREADS, 2)
norm_kernel(const row_args<T, 1> a, const norm_weights s)
{
    typedef row<T, 1> R;
    typedef typename R::W W;
    enum { E = R::EACH_PACK };
    const R r(a);
    double stat[3];
    norm_stat(r, s, stat);
    if (r.n && team_lane(a.m) == 0)
        for (int k = 0; k < 3; k++) a.stat[r.at[ROW_STAT] + k] = stat[k];
    const norm_line<W> line(stat);
    r.each([&](const W (&v)[1][E], int64_t i, int count) {
        W x[E], w[E], b[E];
        weight_pack<T>(s.weight, s, i, count, (W)1, w);
        weight_pack<T>(s.bias, s, i, count, (W)0, b);
        for (int e = 0; e < E; e++) x[e] = line.of(v[0][e]) * w[e] + b[e];
        r.write(x, i, count);
    });
}

/* dx (+)= scale (g - mean g - h mean(g h)) with g = dy weight and h the normed row; in: x, dy. A
 * team takes a line, with the statistics stat [lines,3] of the forward. */
template <class T> static __global__ void __launch_bounds__(THREADS, 2)
norm_grad_kernel(const row_args<T, 2> a, const norm_weights s)
{
    typedef row<T, 2> R;
    typedef typename R::W W;
    enum { E = R::EACH_PACK };
    const R r(a);
    const norm_line<W> line(a.stat + r.at[ROW_STAT]);
    two t = { 0, 0 };
    r.each([&](const W (&v)[2][E], int64_t i, int count) {
        W w[E], g[E], gh[E];
        weight_pack<T>(s.weight, s, i, count, (W)1, w);
        for (int e = 0; e < E; e++) {
            g[e] = e < count ? v[1][e] * w[e] : 0;
            gh[e] = e < count ? g[e] * line.of(v[0][e]) : 0;
        }
        add_groups(&t.a, g);
        add_groups(&t.b, gh);
    });
    t = team_all(join_two(), t, a.m);
    const W mean_g = s.rms ? 0 : (W)(t.a / (double)a.n), mean_gh = (W)(t.b / (double)a.n);
    r.each([&](const W (&v)[2][E], int64_t i, int count) {
        W w[E], x[E];
        weight_pack<T>(s.weight, s, i, count, (W)1, w);
        for (int e = 0; e < E; e++)
            x[e] = line.scale * ((mul_exact(v[1][e], w[e]) - mean_g) - line.of(v[0][e]) * mean_gh);
        r.write(x, i, count);
    });
}

/* Sums over rows of dy h and dy: a team takes a pack of columns, its lanes rows, four at a time. */
template <class T> struct column_args {
    const T *in, *dy;
    const double *stat;
    double *parts;                     /* [parts,2,n]                                           */
    walk<ROW_OPERANDS> rows;
    int64_t n, step[2], length;        /* length: rows of a part                                */
    team m;
    int vec[2];
};
/* Pass 1 of dweight and dbias: parts [parts,2,n], sums of dy h and of dy over the rows of a part.
 * Block (x, y): packs of columns from x on, part y of the rows; the lanes of a team take every
 * size-th row. */
template <class T> static __global__ void __launch_bounds__(THREADS)
norm_columns_kernel(const column_args<T> a)
{
    typedef typename wide<T>::type W;
    enum { E = PACK(T), ROWS = 4 };
    const int64_t i = ((int64_t)blockIdx.x * (THREADS / a.m.size) + team_line(a.m)) * E;
    const int64_t from = blockIdx.y * a.length;
    const int64_t to = from + a.length < a.rows.n ? from + a.length : a.rows.n;
    const int64_t count = a.n - i;
    two sum[E];
    for (int e = 0; e < E; e++) sum[e] = { 0, 0 };
    for (int64_t o = from + team_lane(a.m); count > 0 && o < to; o += ROWS * a.m.size) {
        W w[E], b[E];
        for (int e = 0; e < E; e++) w[e] = b[e] = 0;
#pragma unroll 1
        for (int64_t q = o; q < to && q < o + ROWS * a.m.size; q += a.m.size) {
            int64_t at[ROW_OPERANDS];
            W x[E], d[E];
            walk_at(a.rows, (uint32_t)q, at);
            const norm_line<W> line(a.stat + at[ROW_STAT]);
            for (int e = 0; e < E; e++) x[e] = d[e] = 0;
            load_pack(a.in + at[ROW_IN] + i * a.step[0], a.step[0], count, a.vec[0] != 0, x);
            load_pack(a.dy + at[ROW_IN_2] + i * a.step[1], a.step[1], count, a.vec[1] != 0, d);
            for (int e = 0; e < E; e++) { w[e] += d[e] * line.of(x[e]); b[e] += d[e]; }
        }
        for (int e = 0; e < E; e++) { sum[e].a += (double)w[e]; sum[e].b += (double)b[e]; }
    }
    double *part = a.parts + blockIdx.y * 2 * a.n + i;
    for (int e = 0; e < E; e++) {
        const two t = team_all(join_two(), sum[e], a.m);
        if (team_lane(a.m) != 0 || e >= count) continue;
        part[e] = t.a;
        part[a.n + e] = t.b;
    }
}
/* Pass 2: out[i stride] (+)= the sum of parts[k][i] over k in order; thread i takes column i. */
template <class T> static __global__ void __launch_bounds__(THREADS)
norm_meet_kernel(const double *parts, int64_t count, int64_t n, T *out, int64_t stride,
                 int accumulate)
{
    typedef typename wide<T>::type W;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    double sum = 0;
    if (i >= n) return;
    for (int64_t k = 0; k < count; k++) sum += parts[k * 2 * n + i];
    W v = (W)sum;
    if (accumulate) v += load(out[i * stride]);
    store(out + i * stride, v);
}

/* -- entries -- */

/* Strides of the operands of lines along an axis; NULL: there is none. */
struct row_strides { const int64_t *of[ROW_OPERANDS]; };

static plan<ROW_OPERANDS> rows_plan(int32_t ndim, const int64_t *shape, int32_t axis,
                                    const row_strides &s)
{
    return lines_plan(ndim, shape, axis, s.of);
}
/* Calls f(args, blocks) for each launch, with what a kernel of rows wants. */
template <class T, int N, class F>
static mlc_status rows_run(int32_t ndim, const int64_t *shape, int32_t axis, const row_strides &s,
                           const void *const (&in)[N], void *out, double *stat, int accumulate,
                           const F &f)
{
    const plan<ROW_OPERANDS> p = rows_plan(ndim, shape, axis, s);
    row_args<T, N> a = {};
    a.n = shape[axis];
    if (a.n == 0) return MLC_OK;
    for (int k = 0; k < N; k++) {
        a.step[k] = s.of[k][axis];
        a.vec[k] = lines_vec(p, k, in[k], a.step[k], sizeof(T));
    }
    a.out_step = s.of[ROW_OUT][axis];
    a.out_vec = lines_vec(p, ROW_OUT, out, a.out_step, sizeof(T));
    a.accumulate = accumulate;
    a.m = team_for(a.n, PACK(T), p.n, a.step[0] != 1 && lines_adjoin(p, ROW_IN));
    return p.each([&](const walk<ROW_OPERANDS> &w, const int64_t *offset) {
        for (int k = 0; k < N; k++) a.in[k] = static_cast<const T *>(in[k]) + offset[k];
        a.out = static_cast<T *>(out) + offset[ROW_OUT];
        if (stat) a.stat = stat + offset[ROW_STAT];
        a.kept = w;
        return f(a, team_blocks(w.n, a.m, 1));
    });
}

static mlc_status softmax_entry(void *dev, const struct mlc_k_softmax *a)
{
    const row_strides s = { { a->in_stride, nullptr, a->out_stride, nullptr } };
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return rows_run<T, 1>(a->ndim, a->shape, a->axis, s, { a->in }, a->out, nullptr, 0,
                              [&](const row_args<T, 1> &r, dim3 grid) {
            return launch(dev, "softmax", grid, dim3(THREADS), 0, softmax_kernel<T>, r, a->log);
        });
    });
}
static mlc_status softmax_grad_entry(void *dev, const struct mlc_k_softmax_grad *a)
{
    const row_strides s = { { a->y_stride, a->dy_stride, a->out_stride, nullptr } };
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return rows_run<T, 2>(a->ndim, a->shape, a->axis, s, { a->y, a->dy }, a->out, nullptr,
                              a->accumulate, [&](const row_args<T, 2> &r, dim3 grid) {
            return launch(dev, "softmax_grad", grid, dim3(THREADS), 0, softmax_grad_kernel<T>, r,
                          a->log);
        });
    });
}

/* Statistics: three numbers a row, rows row-major. */
struct stat_strides {
    int64_t of[MLC_MAX_DIMS];
    stat_strides(int32_t ndim, const int64_t *shape)
    {
        int64_t next = 3;
        of[ndim - 1] = 0;
        for (int32_t d = ndim - 2; d >= 0; d--) { of[d] = next; next *= shape[d]; }
    }
};
static bool norm_takes(mlc_dtype dtype, mlc_dtype w)
{
    return is_float(dtype) && (w == dtype || (w == MLC_F32 && mlc_dtype_bytes(dtype) == 2));
}
static norm_weights norm_weights_of(mlc_dtype dtype, mlc_dtype w_dtype, const void *weight,
                                    const void *bias, int rms, double eps)
{
    const uintptr_t places = reinterpret_cast<uintptr_t>(weight) |
                             reinterpret_cast<uintptr_t>(bias);
    return { weight, bias, w_dtype != dtype, places % 16 == 0, rms, eps };
}

static mlc_status norm_entry(void *dev, const struct mlc_k_norm *a)
{
    const stat_strides stat(a->ndim, a->shape);
    const row_strides s = { { a->in_stride, nullptr, a->out_stride, stat.of } };
    const norm_weights w = norm_weights_of(a->dtype, a->w_dtype, a->weight, a->bias, a->rms,
                                           a->eps);
    if (!norm_takes(a->dtype, a->w_dtype)) return MLC_ERR_UNSUPPORTED;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return rows_run<T, 1>(a->ndim, a->shape, a->ndim - 1, s, { a->in }, a->out, a->stat, 0,
                              [&](const row_args<T, 1> &r, dim3 grid) {
            return launch(dev, "norm", grid, dim3(THREADS), 0, norm_kernel<T>, r, w);
        });
    });
}

/* Columns and parts of dweight and dbias. */
struct norm_cut {
    plan<ROW_OPERANDS> rows;
    team m;
    int64_t blocks, parts, length;
};
static norm_cut norm_cut_of(const struct mlc_k_norm_grad *a, const stat_strides &stat)
{
    const row_strides s = { { a->in_stride, a->dy_stride, nullptr, stat.of } };
    norm_cut c = { rows_plan(a->ndim, a->shape, a->ndim - 1, s), {}, 0, 0, 0 };
    const int64_t each = 16 / (int64_t)mlc_dtype_bytes(a->dtype);
    const int64_t packs = (a->shape[a->ndim - 1] + each - 1) / each;
    c.m.across = power_of_two(packs, 32);
    c.m.size = THREADS / c.m.across;
    c.blocks = (packs + c.m.across - 1) / c.m.across;
    const int64_t unit = 4 * c.m.size, most = (c.rows.n + unit - 1) / unit;
    c.parts = c.blocks < 512 ? 512 / (c.blocks > 4 ? c.blocks : 4) : 1;
    if (c.parts > most) c.parts = most;
    if (c.parts) c.length = (c.rows.n + c.parts - 1) / c.parts;
    return c;
}
static size_t norm_grad_workspace(void *, const struct mlc_k_norm_grad *a)
{
    if (!a->dweight && !a->dbias) return 0;
    const norm_cut c = norm_cut_of(a, stat_strides(a->ndim, a->shape));
    return (size_t)(c.parts * 2 * a->shape[a->ndim - 1]) * sizeof(double);
}
template <class T>
static mlc_status norm_columns_run(void *dev, const struct mlc_k_norm_grad *a, const norm_cut &c)
{
    const int32_t last = a->ndim - 1;
    column_args<T> k = {};
    if (c.parts == 0) return MLC_OK;
    k.rows = c.rows.cut(0);
    k.in = static_cast<const T *>(a->in);
    k.dy = static_cast<const T *>(a->dy);
    k.stat = a->stat;
    k.parts = static_cast<double *>(a->workspace);
    k.n = a->shape[last];
    k.step[0] = a->in_stride[last];
    k.step[1] = a->dy_stride[last];
    k.vec[0] = lines_vec(c.rows, ROW_IN, a->in, k.step[0], sizeof(T));
    k.vec[1] = lines_vec(c.rows, ROW_IN_2, a->dy, k.step[1], sizeof(T));
    k.m = c.m;
    k.length = c.length;
    return launch(dev, "norm_columns", dim3((unsigned)c.blocks, (unsigned)c.parts), dim3(THREADS),
                  0, norm_columns_kernel<T>, k);
}
static mlc_status norm_meet_run(void *dev, const struct mlc_k_norm_grad *a, const norm_cut &c,
                                bool bias)
{
    const int64_t n = a->shape[a->ndim - 1];
    const double *parts = static_cast<const double *>(a->workspace);
    void *out = bias ? a->dbias : a->dweight;
    if (!out) return MLC_OK;
    return each_float(a->w_dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        return launch(dev, "norm_meet", dim3((unsigned)((n + THREADS - 1) / THREADS)),
                      dim3(THREADS), 0, norm_meet_kernel<T>, bias && c.parts ? parts + n : parts,
                      c.parts, n, static_cast<T *>(out), bias ? a->dbias_stride : a->dweight_stride,
                      bias ? a->dbias_accumulate : a->dweight_accumulate);
    });
}
static mlc_status norm_grad_entry(void *dev, const struct mlc_k_norm_grad *a)
{
    const stat_strides stat(a->ndim, a->shape);
    const norm_cut c = norm_cut_of(a, stat);
    const row_strides s = { { a->in_stride, a->dy_stride, a->dx_stride, stat.of } };
    const norm_weights w = norm_weights_of(a->dtype, a->w_dtype, a->weight, nullptr, a->rms, 0);
    if (!norm_takes(a->dtype, a->w_dtype) || c.rows.n >> 31) return MLC_ERR_UNSUPPORTED;
    if (a->shape[a->ndim - 1] == 0) return MLC_OK;
    if (a->workspace_bytes < norm_grad_workspace(dev, a)) return MLC_ERR_INTERNAL;
    mlc_status st = each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        mlc_status made = MLC_OK;
        if (a->dx)
            made = rows_run<T, 2>(a->ndim, a->shape, a->ndim - 1, s, { a->in, a->dy }, a->dx,
                                  const_cast<double *>(a->stat), a->dx_accumulate,
                                  [&](const row_args<T, 2> &r, dim3 grid) {
                return launch(dev, "norm_grad", grid, dim3(THREADS), 0, norm_grad_kernel<T>, r, w);
            });
        return made == MLC_OK && (a->dweight || a->dbias) ? norm_columns_run<T>(dev, a, c) : made;
    });
    if (st == MLC_OK) st = norm_meet_run(dev, a, c, false);
    return st == MLC_OK ? norm_meet_run(dev, a, c, true) : st;
}

/* @@ CUDA.XENT ------------------------------------------- cross-entropy of rows
 * logits [n,c] against labels [n]. A row belongs to a team: a warp where c is small, else a block;
 * it is read once, with the largest logit so far and the sum of exponentials below it. Blocks take
 * rows a grid apart and leave one total each; a second kernel of one block adds these up, in an
 * order that n and c alone decide, and writes loss, norm and the error word. A label out of range
 * counts as one that is ignored. gradient: one pass, in place where dx is the logits. W is the
 * dtype of all but logits and dx. */

template <int N> struct count_tag { enum { value = N }; };

/* N elements by one access. */
template <int N, class T> DEV vec<T, N> vec_load(const T *p)
{
    return *reinterpret_cast<const vec<T, N> *>(p);
}
template <int N, class T> DEV void vec_store(T *p, vec<T, N> v)
{
    *reinterpret_cast<vec<T, N> *>(p) = v;
}
enum { XENT_WARP = 1024, XENT_BLOCKS = 2048 };               /* c of a warp at most             */

struct xent_total { double loss, weight; int64_t bad; };     /* bad: its first bad row          */

/* Of the logits that a thread reads: sum of exp(x - max); sums of (weight) x and of weight. */
template <class W> struct xent_part { W max, sum; double all, weights; };

struct xent_grid { bool block; unsigned blocks; };

static xent_grid xent_grid_of(int64_t n, int64_t c)
{
    const bool block = c > XENT_WARP;
    const int64_t rows = THREADS / aggregate_threads(block), blocks = (n + rows - 1) / rows;
    return { block, (unsigned)(blocks < 1 ? 1 : blocks > XENT_BLOCKS ? (int)XENT_BLOCKS : blocks) };
}

/* Calls f(column, N) for all columns of a row x, one of them or a vector of 16 bytes. */
template <class T, class F> DEV void row_visit(const T *x, int64_t c, int t, int team,
                                               bool vectors, const F &f)
{
    enum { V = 16 / sizeof(T) };
    int64_t head = (int64_t)((16 - (uintptr_t)x % 16) % 16 / sizeof(T));
    if (!vectors || head > c) head = c;
    const int64_t body = head + (c - head) / V * V;
    for (int64_t i = t; i < head; i += team) f(i, count_tag<1>());
    for (int64_t i = head + (int64_t)t * V; i < body; i += (int64_t)team * V)
        f(i, count_tag<V>());
    for (int64_t i = body + t; i < c; i += team) f(i, count_tag<1>());
}

/* NaN: the sum is NaN. Nothing but -inf: max stays -inf. */
template <int N, class W> DEV void xent_add(xent_part<W> *p, const W *x)
{
    W top = x[0], sum = 0;
    for (int e = 1; e < N; e++) top = x[e] > top ? x[e] : top;
    if (top > p->max) {
        p->sum *= f_exp(p->max - top);
        p->max = top;
    }
    for (int e = 0; e < N; e++) sum += x[e] == -(W)INFINITY ? (W)0 : f_exp(x[e] - p->max);
    p->sum += sum;
}
/* What smoothing needs. */
template <int N, class W> DEV void xent_smooth(xent_part<W> *p, const W *x, const W *weight)
{
    for (int e = 0; e < N; e++) {
        const W w = weight ? weight[e] : (W)1;
        p->all += (double)(x[e] * w);
        p->weights += (double)w;
    }
}

template <class T, class W> DEV xent_part<W> xent_read(const struct mlc_k_xent &a, const T *x,
                                                       int t, int team)
{
    const W *weight = static_cast<const W *>(a.weight);
    xent_part<W> p = { -(W)INFINITY, 0, 0.0, 0.0 };
    if (a.normal && a.smoothing == 0.0) return p;
    row_visit(x, a.c, t, team, true, [&](int64_t i, auto count) {
        enum { N = decltype(count)::value };
        const vec<T, N> in = vec_load<N>(x + i);
        W v[N];
        for (int e = 0; e < N; e++) v[e] = load(in.v[e]);
        if (!a.normal) xent_add<N>(&p, v);
        if (a.smoothing != 0.0) xent_smooth<N>(&p, v, weight ? weight + i : NULL);
    });
    return p;
}

/* The threads' parts become the row's: the sum is one of f64. */
template <class W> DEV double xent_join(xent_part<W> *p, bool block, bool smooth)
{
    const W max = aggregate_over<most>(block, p->max);
    const W own = p->max == max ? (W)1 : f_exp(p->max - max);
    const double sum = aggregate_over<plus>(block, (double)p->sum * (double)own);
    p->max = max;
    if (!smooth) return sum;
    p->all = aggregate_over<plus>(block, p->all);
    p->weights = aggregate_over<plus>(block, p->weights);
    return sum;
}

/* The loss of a row from its two numbers. */
template <class W> DEV double xent_loss(const struct mlc_k_xent &a, const xent_part<W> &p, double x,
                                        double w, double shift, double log_sum)
{
    const double loss = w * (log_sum - (x - shift)), s = a.smoothing, c = (double)a.c;
    if (s == 0.0) return loss;
    const double all = a.weight ? (p.weights * (log_sum + shift) - p.all) / c
                                : log_sum - (p.all / c - shift);
    return (1.0 - s) * loss + s * all;
}

/* A row that counts; returns its loss. */
template <class T, class W> DEV double xent_row(const struct mlc_k_xent &a, int64_t r,
                                                int64_t label, double w, int t, bool block)
{
    const T *x = static_cast<const T *>(a.logits) + r * a.row;
    W *lse = static_cast<W *>(a.lse);
    xent_part<W> p = xent_read<T, W>(a, x, t, aggregate_threads(block));
    double sum = 1.0, shift = 0.0, log_sum = 0.0;
    if (!a.normal || a.smoothing != 0.0) sum = xent_join(&p, block, a.smoothing != 0.0);
    if (!a.normal) {
        const bool good = p.max - p.max == 0 && sum == sum;
        shift = good ? (double)p.max : 0.0;
        log_sum = good ? log(sum) : (double)NAN;
    }
    if (t == 0) {
        lse[r] = (W)shift;
        lse[a.n + r] = (W)log_sum;
    }
    return xent_loss(a, p, (double)load(x[label]), w, shift, log_sum);
}

template <class T, class W> DEV void xent_take(const struct mlc_k_xent &a, int64_t r, int t,
                                               bool block, xent_total *total)
{
    const int64_t label = a.labels[r * a.label_stride];
    const bool ignored = a.has_ignore && label == a.ignore;
    const bool inside = label >= 0 && label < a.c, counts = inside && !ignored;
    const double w = !counts ? 0.0 : a.weight
        ? (double)static_cast<const W *>(a.weight)[label] : 1.0;
    const double loss = counts ? xent_row<T, W>(a, r, label, w, t, block) : 0.0;
    if (t > 0) return;
    if (!counts) static_cast<W *>(a.lse)[r] = static_cast<W *>(a.lse)[a.n + r] = 0;
    if (a.reduction == MLC_REDUCTION_NONE) static_cast<W *>(a.loss)[r] = (W)loss;
    total->loss += loss;
    total->weight += w;
    if (!inside && !ignored && r < total->bad) total->bad = r;
}

/* Losses of rows of logits [n,c]. A row is taken by a warp, or by a block where c is large;
 * blocks go over rows with a stride of the grid. totals [blocks]: loss, weight and least bad row
 * of each block. */
template <class T> static __global__ void __launch_bounds__(THREADS)
xent_kernel(struct mlc_k_xent a, bool block, xent_total *totals)
{
    MLC_SHARED(xent_total, part, [WARPS]);
    const int team = aggregate_threads(block), t = (int)threadIdx.x % team, rows = THREADS / team;
    xent_total total = { 0.0, 0.0, NO_ROW };
    for (int64_t r = (int64_t)blockIdx.x * rows + threadIdx.x / team; r < a.n;
         r += (int64_t)gridDim.x * rows)
        xent_take<T, typename wide<T>::type>(a, r, t, block, &total);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = total;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++) {
        total.loss += part[w].loss;
        total.weight += part[w].weight;
        total.bad = least()(total.bad, part[w].bad);
    }
    totals[blockIdx.x] = total;
}

/* Adds the n totals of xent_kernel in a fixed order, in one block: norm, the reduced loss, and
 * the error word if a label is bad. */
template <class W> static __global__ void __launch_bounds__(THREADS)
xent_finish_kernel(struct mlc_k_xent a, const xent_total *totals, int n)
{
    xent_total total = { 0.0, 0.0, NO_ROW };
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        total.loss += totals[i].loss;
        total.weight += totals[i].weight;
        total.bad = least()(total.bad, totals[i].bad);
    }
    total.loss = block_fold<plus>(total.loss);
    total.weight = block_fold<plus>(total.weight);
    total.bad = block_fold<least>(total.bad);
    if (threadIdx.x > 0) return;
    const double norm = a.reduction == MLC_REDUCTION_MEAN ? total.weight : 1.0;
    *static_cast<W *>(a.norm) = (W)norm;
    if (a.reduction != MLC_REDUCTION_NONE) *static_cast<W *>(a.loss) = (W)(total.loss / norm);
    if (total.bad != NO_ROW)
        error_put(a.error, a.kind, total.bad, a.labels[total.bad * a.label_stride], a.c);
}

static size_t xent_workspace(void *, const struct mlc_k_xent *a)
{
    return xent_grid_of(a->n, a->c).blocks * sizeof(xent_total);
}

static mlc_status xent_entry(void *dev, const struct mlc_k_xent *a)
{
    const xent_grid grid = xent_grid_of(a->n, a->c);
    xent_total *totals = static_cast<xent_total *>(a->workspace);
    if (a->workspace_bytes < xent_workspace(dev, a)) return MLC_ERR_INTERNAL;
    return each_float(a->dtype, [&](auto tag) {
        typedef TYPE(tag) T;
        const mlc_status st = launch(dev, "xent", dim3(grid.blocks), dim3(THREADS), 0,
                                     xent_kernel<T>, *a, grid.block, totals);
        return st != MLC_OK ? st
            : launch(dev, "xent_finish", dim3(1), dim3(THREADS), 0,
                     xent_finish_kernel<typename wide<T>::type>, *a, totals, (int)grid.blocks);
    });
}

/* Of a row that counts: dx[i] (+)= scale (exp((x - max) - log_sum) - less) - share weight[i]; of
 * its label hit less. */
template <class W> struct xent_slope {
    W max, log_sum, less, scale, share, hit;
    int64_t label;
    const W *weight;                   /* NULL: no share                                        */
    bool normal;
};
template <class W> DEV W xent_at(const xent_slope<W> &s, W x, int64_t i)
{
    W g = s.normal ? (W)0 : (f_exp((x - s.max) - s.log_sum) - s.less) * s.scale;
    if (s.weight) g -= s.share * s.weight[i];
    return i == s.label ? g - s.hit : g;
}

template <class W> DEV xent_slope<W> xent_slope_of(const struct mlc_k_xent_grad &a, int64_t r,
                                                   int64_t label, double weights)
{
    const W *weight = static_cast<const W *>(a.weight), *lse = static_cast<const W *>(a.lse);
    const double w = weight ? (double)weight[label] : 1.0, s = a.smoothing;
    const double log_sum = (double)lse[a.n + r], share = s / (double)a.c;
    double scale = (double)static_cast<const W *>(a.dy)[r * a.dy_stride] /
                   (double)*static_cast<const W *>(a.norm);
    if (log_sum != log_sum) scale = log_sum;                 /* a row of NaN, whatever is in it */
    const double all = weight ? (1.0 - s) * w + share * weights : 1.0;
    return { lse[r], (W)log_sum, (W)(weight ? 0.0 : share), (W)(scale * all), (W)(scale * share),
             (W)((1.0 - s) * w * scale), label, s != 0.0 && !a.normal ? weight : NULL,
             a.normal != 0 };
}

template <class T, class W> DEV void xent_grad_row(const struct mlc_k_xent_grad &a, int64_t r,
                                                   int t, int team, double weights)
{
    const T *x = static_cast<const T *>(a.logits) + r * a.row;
    T *dx = static_cast<T *>(a.dx) + r * a.dx_row;
    const int64_t label = a.labels[r * a.label_stride];
    const bool counts = label >= 0 && label < a.c && !(a.has_ignore && label == a.ignore);
    const bool reads = counts && !a.normal;
    if (!counts && a.accumulate) return;
    xent_slope<W> s = {};
    if (counts) s = xent_slope_of<W>(a, r, label, weights);
    row_visit(dx, a.c, t, team, !reads || ((uintptr_t)x - (uintptr_t)dx) % 16 == 0,
              [&](int64_t i, auto count) {
        enum { N = decltype(count)::value };
        vec<T, N> in = {}, out = {};
        if (reads) in = vec_load<N>(x + i);
        if (a.accumulate) out = vec_load<N>(dx + i);
        for (int e = 0; e < N; e++) {
            const W g = counts ? xent_at(s, (W)load(in.v[e]), i + e) : (W)0;
            store(&out.v[e], a.accumulate ? (W)load(out.v[e]) + g : g);
        }
        vec_store<N>(dx + i, out);
    });
}

/* dx [n,c] (+)= dy (softmax - target) / norm. A row is taken by a warp, or by a block where c is
 * large, as in xent_kernel. */
template <class T> static __global__ void __launch_bounds__(THREADS)
xent_grad_kernel(struct mlc_k_xent_grad a, bool block)
{
    typedef typename wide<T>::type W;
    const W *weight = static_cast<const W *>(a.weight);
    const int team = aggregate_threads(block), t = (int)threadIdx.x % team, rows = THREADS / team;
    double weights = 0.0;
    if (weight && a.smoothing != 0.0) {
        for (int64_t i = t; i < a.c; i += team) weights += (double)weight[i];
        weights = aggregate_over<plus>(block, weights);
    }
    for (int64_t r = (int64_t)blockIdx.x * rows + threadIdx.x / team; r < a.n;
         r += (int64_t)gridDim.x * rows)
        xent_grad_row<T, W>(a, r, t, team, weights);
}

static mlc_status xent_grad_entry(void *dev, const struct mlc_k_xent_grad *a)
{
    const xent_grid grid = xent_grid_of(a->n, a->c);
    if (a->n == 0) return MLC_OK;
    return each_float(a->dtype, [&](auto tag) {
        return launch(dev, "xent_grad", dim3(grid.blocks), dim3(THREADS), 0,
                      xent_grad_kernel<TYPE(tag)>, *a, grid.block);
    });
}

/* @@ CUDA.INDEX ------------------------------------------ take, index
 * take copies rows. index: the loop goes over the axis and across it, the other dims. A gather
 * reads directly. Writes through an index are in the order of the axis: indices
 * are checked first (one outside leaves all as it is), then either a thread takes a line of the
 * axis, where that is short, or (key, position) pairs are sorted, stable, and each run of equal
 * keys is worked off in order. Where an index is repeated across, as for rows of an embedding, the
 * pairs are those of the axis alone; else of all elements, and the key holds the line, too. */

typedef vec<uint32_t, 4> unit16;

/* The largest power of two up to 16 that divides all numbers of which bits is the OR. */
static size_t unit_of(uint64_t bits)
{
    size_t unit = 16;
    while (bits & (unit - 1)) unit /= 2;
    return unit;
}
/* each_size and 16 bytes. */
template <class F> static mlc_status each_unit(size_t bytes, const F &f)
{
    return bytes == 16 ? f(type_tag<unit16>()) : each_size(bytes, f);
}

/* A block of x threads along a row and y rows; grid.x counts rows, grid.y parts of them. */
struct row_grid { dim3 grid, block; };
static row_grid row_grid_of(int64_t rows, int64_t units)
{
    unsigned x = 1;
    while (x < THREADS && x < units) x *= 2;
    const int64_t y = THREADS / x, parts = (units + (int64_t)x * EACH - 1) / ((int64_t)x * EACH);
    return { dim3((unsigned)((rows + y - 1) / y), (unsigned)(parts < 65535 ? parts : 65535)),
             dim3(x, (unsigned)y) };
}

/* out [n,units] = rows index[r] of in [rows,units]; a row that is outside becomes 0. Block (x,
 * y): blockDim.y rows from x on; blockDim.x threads go along a row with a stride of the grid. */
template <class T> static __global__ void __launch_bounds__(THREADS)
take_kernel(const T *in, T *out, const int64_t *index, int64_t n, int64_t rows, int64_t units)
{
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= n) return;
    const int64_t from = index[r];
    const bool inside = (uint64_t)from < (uint64_t)rows;
    for (int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; j < units;
         j += (int64_t)gridDim.y * blockDim.x)
        out[r * units + j] = inside ? in[from * units + j] : T();
}
static mlc_status take_entry(void *dev, const struct mlc_k_take *a)
{
    if (a->n == 0 || a->row_bytes == 0) return MLC_OK;
    return each_unit(unit_of((uintptr_t)a->in | (uintptr_t)a->out | a->row_bytes), [&](auto tag) {
        typedef TYPE(tag) T;
        const int64_t units = (int64_t)(a->row_bytes / sizeof(T));
        const row_grid g = row_grid_of(a->n, units);
        return launch(dev, "take", g.grid, g.block, 0, take_kernel<T>,
                      static_cast<const T *>(a->in), static_cast<T *>(a->out), a->index, a->n,
                      a->rows, units);
    });
}

/* -- checks: the first index outside, by its number in the index's own shape -- */

enum { CHECK_BLOCKS = 256, INDEX_SERIAL = 16 };
struct index_places {
    int ndim;
    int64_t n, shape[MLC_MAX_DIMS], stride[MLC_MAX_DIMS];
    DEV int64_t at(int64_t p) const
    {
        int64_t offset = 0;
        for (int d = ndim - 1; d > 0; p /= shape[d--]) offset += p % shape[d] * stride[d];
        return ndim ? offset + p * stride[0] : 0;
    }
};

/* Axes along which the index is repeated count once. */
static index_places index_places_of(const struct mlc_k_index *a)
{
    int64_t shape[MLC_MAX_DIMS];
    const int64_t *strides[1] = { a->index_stride };
    index_places p = {};
    for (int32_t d = 0; d < a->ndim; d++)
        shape[d] = a->index_stride[d] == 0 && a->shape[d] > 1 ? 1 : a->shape[d];
    const plan<1> whole(a->ndim, shape, strides);
    p.ndim = whole.ndim;
    p.n = whole.n;
    for (int d = 0; d < p.ndim; d++) {
        p.shape[d] = whole.shape[d];
        p.stride[d] = whole.stride[0][d];
    }
    return p;
}
static unsigned index_check_blocks(const index_places &p)
{
    const int64_t blocks = (p.n + THREADS * EACH * 2 - 1) / (THREADS * EACH * 2);
    return (unsigned)(blocks < CHECK_BLOCKS ? blocks : (int)CHECK_BLOCKS);
}

struct index_report { int64_t limit, kind, *error, *first; };    /* first: [1 + CHECK_BLOCKS]   */

DEV void index_report_put(const index_report &r, const index_places &p, const int64_t *index,
                          int64_t first)
{
    r.first[0] = first;
    if (first != NO_ROW) error_put(r.error, r.kind, first, index[p.at(first)], r.limit);
}
/* Finds the first bad index of each block, among indices with a stride of the grid. A grid of one
 * block reports it at once, a larger one leaves that to index_report_kernel. */
static __global__ void __launch_bounds__(THREADS)
index_check_kernel(index_places p, const int64_t *index, index_report r)
{
    int64_t first = NO_ROW;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.n && first == NO_ROW;
         i += (int64_t)gridDim.x * THREADS)
        if ((uint64_t)index[p.at(i)] >= (uint64_t)r.limit) first = i;
    first = block_fold<least>(first);
    if (threadIdx.x > 0) return;
    if (gridDim.x == 1) index_report_put(r, p, index, first);
    else r.first[1 + blockIdx.x] = first;
}
/* Reports the least of the first bad indices of `blocks` blocks, r.first [1 + blocks]. One
 * block. */
static __global__ void __launch_bounds__(THREADS)
index_report_kernel(index_places p, const int64_t *index, index_report r, int blocks)
{
    const int64_t own = (int)threadIdx.x < blocks ? r.first[1 + threadIdx.x] : NO_ROW;
    const int64_t first = block_fold<least>(own);
    if (threadIdx.x == 0) index_report_put(r, p, index, first);
}
static mlc_status index_check(void *dev, const struct mlc_k_index *a)
{
    const index_places p = index_places_of(a);
    const unsigned blocks = index_check_blocks(p);
    const index_report r = { a->limit, a->kind, a->error, static_cast<int64_t *>(a->workspace) };
    const mlc_status st = launch(dev, "index_check", dim3(blocks), dim3(THREADS), 0,
                                 index_check_kernel, p, a->index, r);
    return st != MLC_OK || blocks == 1 ? st
        : launch(dev, "index_report", dim3(1), dim3(THREADS), 0, index_report_kernel, p, a->index,
                 r, (int)blocks);
}

/* -- sort: (key, value) pairs by the lower bits of keys, stable, a digit of 8 bits a pass -- */

enum { DIGITS = 256, SORT_TILE = THREADS * EACH };           /* SORT_TILE: pairs of a block     */
struct sort_pairs { uint64_t *key; uint32_t *value; };
struct sort_space {
    sort_pairs from, to;
    uint32_t *count, *total;           /* [DIGITS,tiles] and [DIGITS]                           */
    uint32_t n;
    unsigned tiles;
};

static size_t sort_bytes(uint32_t n)
{
    const size_t tiles = ((size_t)n + SORT_TILE - 1) / SORT_TILE;
    return 2 * (size_t)n * (sizeof(uint64_t) + sizeof(uint32_t)) +
           DIGITS * (tiles + 1) * sizeof(uint32_t);
}
static sort_space sort_space_of(uint32_t n, void *memory)
{
    sort_space s;
    s.n = n;
    s.tiles = (unsigned)(((size_t)n + SORT_TILE - 1) / SORT_TILE);
    s.from.key = static_cast<uint64_t *>(memory);
    s.to.key = s.from.key + n;
    s.from.value = reinterpret_cast<uint32_t *>(s.to.key + n);
    s.to.value = s.from.value + n;
    s.count = s.to.value + n;
    s.total = s.count + (size_t)DIGITS * s.tiles;
    return s;
}

/* Pass 1 of a digit of the radix sort: block b counts the digits, 8 bits from `shift` on, of its
 * tile of SORT_TILE keys: count [DIGITS,tiles]. Thread d writes the count of digit d. */
static __global__ void __launch_bounds__(THREADS)
sort_count_kernel(sort_space s, int shift)
{
    MLC_SHARED(uint32_t, count, [DIGITS]);
    const uint32_t first = blockIdx.x * SORT_TILE + threadIdx.x;
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int e = 0; e < EACH; e++) {
        const uint32_t i = first + e * THREADS;
        if (i < s.n) atomicAdd(&count[s.from.key[i] >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    s.count[(size_t)threadIdx.x * s.tiles + blockIdx.x] = count[threadIdx.x];
}
/* Pass 2: block d makes of the counts of digit d, count[d] [tiles], sums of those of the tiles
 * before, and total[d] of all. */
static __global__ void __launch_bounds__(THREADS)
sort_scan_kernel(sort_space s)
{
    uint32_t *count = s.count + (size_t)blockIdx.x * s.tiles, before = 0;
    for (unsigned first = 0; first < s.tiles; first += THREADS) {
        const unsigned i = first + threadIdx.x;
        uint32_t all;
        const uint32_t own = block_before(i < s.tiles ? count[i] : 0, &all);
        if (i < s.tiles) count[i] = before + own;
        before += all;
    }
    if (threadIdx.x == 0) s.total[blockIdx.x] = before;
}
/* Lanes of the warp that have the same digit. */
DEV unsigned sort_peers(unsigned digit, bool valid)
{
    unsigned peers = __ballot_sync(~0u, valid);
    for (int b = 0; b < 8; b++) {
        const unsigned ones = __ballot_sync(~0u, (int)(digit >> b & 1));
        peers &= digit >> b & 1 ? ones : ~ones;
    }
    return peers;
}
/* Pass 3: block b moves the pairs of its tile to their places, THREADS at a time, stable. next[d]
 * in shared memory: the place of the next pair with digit d. Threads of a warp with one digit
 * find each other by ballots; warps by counts in shared memory. */
static __global__ void __launch_bounds__(THREADS)
sort_move_kernel(sort_space s, int shift)
{
    MLC_SHARED(uint32_t, next, [DIGITS]);
    MLC_SHARED(uint32_t, place, [WARPS][DIGITS]);
    const int t = (int)threadIdx.x, lane = t % WARP, warp = t / WARP;
    uint32_t all;
    next[t] = block_before(s.total[t], &all) + s.count[(size_t)t * s.tiles + blockIdx.x];
    for (int e = 0; e < EACH; e++) {
        const uint32_t i = blockIdx.x * SORT_TILE + e * THREADS + t;
        const bool valid = i < s.n;
        const uint64_t key = valid ? s.from.key[i] : 0;
        const unsigned digit = key >> shift & (DIGITS - 1), peers = sort_peers(digit, valid);
        const int before = __popc(peers & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) place[w][t] = 0;
        __syncthreads();
        if (valid && before == 0) place[warp][digit] = (uint32_t)__popc(peers);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            const uint32_t count = place[w][t];
            place[w][t] = next[t];
            next[t] += count;
        }
        __syncthreads();
        if (valid) {
            s.to.key[place[warp][digit] + before] = key;
            s.to.value[place[warp][digit] + before] = s.from.value[i];
        }
        __syncthreads();
    }
}
/* Sorts by keys below `range`; s->from has the pairs, before and after. */
static mlc_status sort_run(void *dev, sort_space *s, uint64_t range)
{
    mlc_status st = MLC_OK;
    for (int shift = 0; st == MLC_OK && shift < 64 && (range - 1) >> shift; shift += 8) {
        st = launch(dev, "sort_count", dim3(s->tiles), dim3(THREADS), 0, sort_count_kernel, *s,
                    shift);
        if (st == MLC_OK)
            st = launch(dev, "sort_scan", dim3(DIGITS), dim3(THREADS), 0, sort_scan_kernel, *s);
        if (st == MLC_OK)
            st = launch(dev, "sort_move", dim3(s->tiles), dim3(THREADS), 0, sort_move_kernel, *s,
                        shift);
        const sort_pairs from = s->from;
        s->from = s->to;
        s->to = from;
    }
    return st;
}

/* -- index: the plan and its kernels -- */

/* What an index adds; of bools: whether one is true. */
template <class T> DEV T added(T a, T b) { return (T)(a + b); }
template <>        DEV flag  added(flag a, flag b) { return { (uint8_t)(a.v || b.v) }; }
template <>        DEV unit16 added(unit16 a, unit16) { return a; }     /* is only moved      */

/* Types by which elements are moved or added. */
template <class F> static mlc_status each_index(const struct mlc_k_index *a, size_t unit,
                                                const F &f)
{
    if (a->op != MLC_INDEX_ADD) return each_unit(unit, f);
    if (a->dtype == MLC_F32) return f(type_tag<float>());
    if (a->dtype == MLC_F64) return f(type_tag<double>());
    if (a->dtype == MLC_BOOL) return f(type_tag<flag>());
    if (a->dtype == MLC_BF16 || a->dtype == MLC_F16) return MLC_ERR_UNSUPPORTED;
    return each_size(unit, f);
}

/* The axis: its size and strides. Operands of a walk across are line, index, data. */
struct index_axis { int64_t m, line, index, data, limit; };

struct index_plan {
    struct mlc_k_index a;
    size_t unit;                       /* bytes of an element as it is moved                    */
    index_axis axis;
    int32_t ndim;
    int64_t shape[MLC_MAX_DIMS], line[MLC_MAX_DIMS], index[MLC_MAX_DIMS], data[MLC_MAX_DIMS];
    int64_t across;                    /* elements                                              */
    bool rows, apart;                  /* the index is repeated across; no two write one place  */
};

/* Dense parts of rows become elements of up to 16 bytes. */
static size_t index_widen(struct mlc_k_index *a)
{
    const size_t size = mlc_dtype_bytes(a->dtype);
    uint64_t bits = (uintptr_t)a->data | (uintptr_t)a->line;
    int32_t inner = -1;
    for (int32_t d = 0; d < a->ndim; d++)
        if (d != a->axis && a->shape[d] > 1 && a->line_stride[d] == 1 && a->data_stride[d] == 1 &&
            a->index_stride[d] == 0) inner = d;
    if (a->op == MLC_INDEX_ADD || inner < 0) return size;
    bits |= (uint64_t)a->shape[inner] * size;
    for (int32_t d = 0; d < a->ndim; d++)
        if (d != inner) bits |= (uint64_t)(a->line_stride[d] | a->data_stride[d]) * size;
    const size_t unit = unit_of(bits);
    if (unit <= size) return size;
    a->shape[inner] /= (int64_t)(unit / size);
    for (int32_t d = 0; d < a->ndim; d++) {
        if (d == inner) continue;
        a->line_stride[d] /= (int64_t)(unit / size);
        a->data_stride[d] /= (int64_t)(unit / size);
    }
    return unit;
}

static index_plan index_plan_of(const struct mlc_k_index *given)
{
    index_plan p = {};
    p.a = *given;
    p.unit = index_widen(&p.a);
    const struct mlc_k_index &a = p.a;
    p.axis = { a.shape[a.axis], a.line_stride[a.axis], a.index_stride[a.axis],
               a.data_stride[a.axis], a.limit };
    p.across = 1;
    p.rows = p.apart = true;
    for (int32_t d = 0; d < a.ndim; d++) {
        if (d == a.axis) continue;
        p.across *= a.shape[d];
        p.rows = p.rows && (a.shape[d] == 1 || a.index_stride[d] == 0);
        p.apart = p.apart && (a.shape[d] == 1 || a.data_stride[d] != 0);
        p.shape[p.ndim] = a.shape[d];
        p.line[p.ndim] = a.line_stride[d];
        p.index[p.ndim] = a.index_stride[d];
        p.data[p.ndim++] = a.data_stride[d];
    }
    return p;
}
static bool index_is_sorted(const index_plan &p)
{
    return p.a.op != MLC_INDEX_GATHER && p.axis.m > INDEX_SERIAL;
}
/* Pairs that are sorted. */
static int64_t index_pairs(const index_plan &p) { return p.rows ? p.axis.m : p.axis.m * p.across; }

static size_t index_workspace(void *, const struct mlc_k_index *a)
{
    const index_plan p = index_plan_of(a);
    const size_t check = (1 + CHECK_BLOCKS) * sizeof(int64_t);
    return check + (index_is_sorted(p) && index_pairs(p) < INT32_MAX
                    ? sort_bytes((uint32_t)index_pairs(p)) : 0);
}

/* line = data[index] along an axis; 0 where the index is outside. w: line, index, data. A thread
 * takes EACH elements that are THREADS apart. */
template <class T> static __global__ void __launch_bounds__(THREADS)
gather_kernel(walk<3> w, T *line, const int64_t *index, const T *data, int64_t step, int64_t limit)
{
    const uint32_t first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    for (int e = 0; e < EACH; e++) {
        const uint32_t i = first + e * THREADS;
        int64_t at[3];
        if (i >= w.n) return;
        walk_at(w, i, at);
        const int64_t k = index[at[1]];
        line[at[0]] = (uint64_t)k < (uint64_t)limit ? data[at[2] + k * step] : T();
    }
}
static mlc_status gather_run(void *dev, const index_plan &p)
{
    const struct mlc_k_index &a = p.a;
    int64_t data[MLC_MAX_DIMS];
    for (int32_t d = 0; d < a.ndim; d++) data[d] = d == a.axis ? 0 : a.data_stride[d];
    const int64_t *strides[3] = { a.line_stride, a.index_stride, data };
    const plan<3> whole(a.ndim, a.shape, strides);
    return each_unit(p.unit, [&](auto tag) {
        typedef TYPE(tag) T;
        return whole.each([&](const walk<3> &w, const int64_t *at) {
            return launch(dev, "gather", blocks_for(w.n), dim3(THREADS), 0, gather_kernel<T>, w,
                          static_cast<T *>(a.line) + at[0], a.index + at[1],
                          static_cast<const T *>(a.data) + at[2], p.axis.data, a.limit);
        });
    });
}

/* SCATTER, ADD or TAKE where the axis is short: a thread takes a line of the axis and goes
 * through its m indices in order, for TAKE from the last. w: line, index, data. Nothing is
 * written if an index is bad. */
template <class T> static __global__ void __launch_bounds__(THREADS)
index_line_kernel(walk<3> w, T *line, const int64_t *index, T *data, index_axis axis, mlc_index op,
                  const int64_t *bad)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    int64_t at[3];
    if (i >= w.n || bad[0] != NO_ROW) return;
    walk_at(w, i, at);
    for (int64_t s = 0; s < axis.m; s++) {
        const int64_t m = op == MLC_INDEX_TAKE ? axis.m - 1 - s : s;
        T *d = data + at[2] + index[at[1] + m * axis.index] * axis.data;
        T *l = line + at[0] + m * axis.line;
        if (op == MLC_INDEX_TAKE) { *l = *d; *d = T(); }
        else *d = op == MLC_INDEX_ADD ? added(*d, *l) : *l;
    }
}

/* Sorted pairs of an index, and the work across: each pair has count elements. */
struct index_sorted {
    sort_pairs pair;
    uint32_t n, count;
    bool rows;
    DEV uint32_t position(uint32_t k, uint32_t across) const   /* on the axis, of pair k        */
    {
        return rows ? pair.value[k] : pair.value[k] / across;
    }
};

/* Pair k of the sort: the key is line * limit + index, or the index alone where pairs are those
 * of the axis (rows), the value is k. A thread makes a pair. */
static __global__ void __launch_bounds__(THREADS)
index_key_kernel(walk<3> w, const int64_t *index, index_axis axis, index_sorted s)
{
    const uint32_t k = blockIdx.x * THREADS + threadIdx.x;
    const uint32_t line = s.rows ? 0 : k % w.n;
    int64_t at[3] = { 0, 0, 0 };
    if (k >= s.n) return;
    if (!s.rows) walk_at(w, line, at);
    const int64_t m = s.rows ? k : k / w.n;
    s.pair.key[k] = (uint64_t)line * (uint64_t)axis.limit +
                    (uint64_t)index[at[1] + m * axis.index];
    s.pair.value[k] = k;
}

/* SCATTER, ADD or TAKE by sorted pairs. Threads of row y of a block take pair k, blockIdx.x
 * blockDim.y + y; those of x go over the elements of a row. Of a run of equal keys the first pair
 * adds all of it in order; a SCATTER stores the last pair. */
template <class T> static __global__ void __launch_bounds__(THREADS)
index_run_kernel(walk<3> w, T *line, const int64_t *index, T *data, index_axis axis, mlc_index op,
                 index_sorted s, const int64_t *bad)
{
    const uint32_t k = blockIdx.x * blockDim.y + threadIdx.y;
    if (k >= s.n || bad[0] != NO_ROW) return;
    const uint64_t key = s.pair.key[k];
    const bool first = k == 0 || s.pair.key[k - 1] != key;
    const bool last = k == s.n - 1 || s.pair.key[k + 1] != key;
    if (op == MLC_INDEX_ADD ? !first : op == MLC_INDEX_SCATTER && !last) return;
    const int64_t m = s.position(k, w.n);
    for (uint32_t j = blockIdx.y * blockDim.x + threadIdx.x; j < s.count;
         j += gridDim.y * blockDim.x) {
        int64_t at[3];
        walk_at(w, s.rows ? j : s.pair.value[k] % w.n, at);
        T *d = data + at[2] + index[at[1] + m * axis.index] * axis.data;
        T *l = line + at[0] + m * axis.line;
        if (op == MLC_INDEX_TAKE) {
            *l = last ? *d : T();
            if (last) *d = T();
        } else if (op == MLC_INDEX_SCATTER) {
            *d = *l;
        } else {
            T sum = *d;
            for (uint32_t r = k; r < s.n && s.pair.key[r] == key; r++)
                sum = added(sum, line[at[0] + s.position(r, w.n) * axis.line]);
            *d = sum;
        }
    }
}

/* Keys of all pairs, in order. A walk of rows may be cut: then it is the same for each part. */
static mlc_status index_sort(void *dev, const index_plan &p, const plan<3> &across,
                             index_sorted *sorted)
{
    int64_t *first = static_cast<int64_t *>(p.a.workspace);
    sort_space s = sort_space_of((uint32_t)index_pairs(p), first + 1 + CHECK_BLOCKS);
    const index_sorted keys = { s.from, s.n, 1, p.rows };
    const uint64_t lines = p.rows ? 1 : (uint64_t)p.across;
    mlc_status st = launch(dev, "index_key", dim3((s.n + THREADS - 1) / THREADS), dim3(THREADS), 0,
                           index_key_kernel, across.cut(0), p.a.index, p.axis, keys);
    if (st == MLC_OK) st = sort_run(dev, &s, lines * (uint64_t)p.a.limit);
    *sorted = { s.from, s.n, 1, p.rows };
    return st;
}

static mlc_status index_write(void *dev, const index_plan &p)
{
    const struct mlc_k_index &a = p.a;
    const int64_t *strides[3] = { p.line, p.index, p.data }, *bad =
        static_cast<const int64_t *>(a.workspace);
    const plan<3> across(p.ndim, p.shape, strides);
    index_sorted s = {};
    if (index_is_sorted(p)) {
        const mlc_status st = index_sort(dev, p, across, &s);
        if (st != MLC_OK) return st;
    }
    return each_index(&a, p.unit, [&](auto tag) {
        typedef TYPE(tag) T;
        return across.each([&](const walk<3> &w, const int64_t *at) {
            T *line = static_cast<T *>(a.line) + at[0], *data = static_cast<T *>(a.data) + at[2];
            const int64_t *index = a.index + at[1];
            if (!s.n)
                return launch(dev, "index_line", dim3((w.n + THREADS - 1) / THREADS),
                              dim3(THREADS), 0, index_line_kernel<T>, w, line, index, data, p.axis,
                              a.op, bad);
            index_sorted part = s;
            part.count = p.rows ? w.n : 1;
            const row_grid g = row_grid_of(s.n, part.count);
            return launch(dev, "index_run", g.grid, g.block, 0, index_run_kernel<T>, w, line, index,
                          data, p.axis, a.op, part, bad);
        });
    });
}

/* -- rows that a sum touched: a block for each row -- */

/* Sets the touched rows of data, [rows] of `bytes` bytes at a distance of pitch, to 0, and
 * touched to 0; a block takes a row at a time. */
static __global__ void __launch_bounds__(THREADS)
index_clear_kernel(char *data, size_t pitch, size_t bytes, uint8_t *touched, int64_t rows,
                   const int64_t *bad)
{
    for (int64_t r = blockIdx.x; r < rows && bad[0] == NO_ROW; r += gridDim.x) {
        if (!touched[r]) continue;
        for (size_t i = 4 * threadIdx.x; i < bytes; i += 4 * THREADS)
            *reinterpret_cast<uint32_t *>(data + (size_t)r * pitch + i) = 0;
        __syncthreads();
        if (threadIdx.x == 0) touched[r] = 0;
    }
}
/* touched[index[i step]] = 1 for i in [0,m), a thread for each i. */
static __global__ void __launch_bounds__(THREADS)
index_touch_kernel(uint8_t *touched, const int64_t *index, int64_t step, int64_t m,
                   const int64_t *bad)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < m && bad[0] == NO_ROW) touched[index[i * step]] = 1;
}
static mlc_status index_touch(void *dev, const index_plan &p)
{
    const struct mlc_k_index &a = p.a;
    const size_t size = mlc_dtype_bytes(a.dtype);
    const int64_t *bad = static_cast<const int64_t *>(a.workspace);
    const unsigned blocks = (unsigned)(a.limit < 65536 ? a.limit : 65536);
    mlc_status st = MLC_OK;
    if (a.fresh)
        st = launch(dev, "index_clear", dim3(blocks), dim3(THREADS), 0, index_clear_kernel,
                    static_cast<char *>(a.data), (size_t)p.axis.data * size,
                    (size_t)p.across * size, a.touched, a.limit, bad);
    return st != MLC_OK ? st
        : launch(dev, "index_touch", dim3((unsigned)((p.axis.m + THREADS - 1) / THREADS)),
                 dim3(THREADS), 0, index_touch_kernel, a.touched, a.index, p.axis.index, p.axis.m,
                 bad);
}

static mlc_status index_entry(void *dev, const struct mlc_k_index *a)
{
    const index_plan p = index_plan_of(a);
    const bool gather = a->op == MLC_INDEX_GATHER;
    if (p.axis.m == 0 || p.across == 0) return MLC_OK;
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT || (!gather && !p.apart) ||
        (index_is_sorted(p) && index_pairs(p) >= INT32_MAX) ||
        (a->op == MLC_INDEX_ADD && (a->dtype == MLC_BF16 || a->dtype == MLC_F16)) ||
        (a->touched && (a->op != MLC_INDEX_ADD || a->ndim != 2 || a->axis != 0 || !p.rows ||
                        a->data_stride[1] != 1 || mlc_dtype_bytes(a->dtype) < 4)))
        return MLC_ERR_UNSUPPORTED;
    if (a->workspace_bytes < index_workspace(dev, a)) return MLC_ERR_INTERNAL;
    mlc_status st = index_check(dev, &p.a);
    if (st == MLC_OK && a->touched) st = index_touch(dev, p);
    if (st != MLC_OK) return st;
    return gather ? gather_run(dev, p) : index_write(dev, p);
}

/* @@ CUDA.GEMM ------------------------------------------- products: own tile, epilogue
 * c [z][i][j] = sink(sum over p of a [z][i][p] b [z][p][j]), summed in W. A block makes a tile of
 * TM x 64 elements from slabs of 16 along k; the next one is loaded while one is multiplied. A side
 * is a or b as a tile reads it: lines (rows of a, columns of b) of k elements, at any strides; its
 * dtype is chosen at run time, once for four elements. A product may be turned, c^T = b^T a^T, so
 * that a tile of few rows fits, or neighbours in c are neighbours in a row of a tile. Where there
 * are few tiles k is cut into parts, whose sums the sink's own pass adds in order. */

enum { TN = 64, SLAB = 16, UNIT = 4, LOW = 16, LOW_BELOW = 32 };

/* UNIT elements, or as many as 16 bytes hold, are one access where `whole`. The first `count` of
 * them are there; others are read as 0. */
template <class T, class W, int V>
DEV void read_run(const T *p, int64_t step, int count, bool whole, W (&x)[V])
{
    const int PACK = V * sizeof(T) > 16 ? 16 / (int)sizeof(T) : V;
    if (whole && count == V) {
        for (int u = 0; u < V; u += PACK) {
            const vec<T, PACK> pack = *reinterpret_cast<const vec<T, PACK> *>(p + u);
            for (int e = 0; e < PACK; e++) x[u + e] = load(pack.v[e]);
        }
    } else {
        for (int e = 0; e < V; e++) x[e] = e < count ? load(p[e * step]) : (W)0;
    }
}
template <class T, class W, int V>
DEV void write_run(T *p, int64_t step, int count, bool whole, const W (&x)[V])
{
    const int PACK = V * sizeof(T) > 16 ? 16 / (int)sizeof(T) : V;
    if (whole && count == V) {
        for (int u = 0; u < V; u += PACK) {
            vec<T, PACK> pack;
            for (int e = 0; e < PACK; e++) store(pack.v + e, x[u + e]);
            *reinterpret_cast<vec<T, PACK> *>(p + u) = pack;
        }
    } else {
        for (int e = 0; e < V; e++) if (e < count) store(p + e * step, x[e]);
    }
}

/* The same from element `at` of elements of a dtype. */
template <class W, int V> DEV void read_as(mlc_dtype dtype, const void *p, int64_t at, int64_t step,
                                           int count, bool whole, W (&x)[V])
{
    if constexpr (sizeof(W) == 8)
        read_run(static_cast<const double *>(p) + at, step, count, whole, x);
    else if (dtype == MLC_F32)
        read_run(static_cast<const float *>(p) + at, step, count, whole, x);
    else if (dtype == MLC_BF16)
        read_run(static_cast<const bf16 *>(p) + at, step, count, whole, x);
    else
        read_run(static_cast<const f16 *>(p) + at, step, count, whole, x);
}
template <class W, int V> DEV void write_as(mlc_dtype dtype, void *p, int64_t at, int64_t step,
                                            int count, bool whole, const W (&x)[V])
{
    if constexpr (sizeof(W) == 8)
        write_run(static_cast<double *>(p) + at, step, count, whole, x);
    else if (dtype == MLC_F32)
        write_run(static_cast<float *>(p) + at, step, count, whole, x);
    else if (dtype == MLC_BF16)
        write_run(static_cast<bf16 *>(p) + at, step, count, whole, x);
    else
        write_run(static_cast<f16 *>(p) + at, step, count, whole, x);
}
DEV void round_to(mlc_dtype, double &) {}
DEV void round_to(mlc_dtype dtype, float &x)
{
    bf16 b;
    f16 h;
    if (dtype == MLC_BF16) { store(&b, x); x = load(b); }
    else { store(&h, x); x = load(h); }
}
BOTH int clamp_count(int64_t n, int most) { return n < 0 ? 0 : n < most ? (int)n : most; }

/* Element where product z of three axes begins, of an operand with these strides. */
BOTH int64_t batch_at(const int64_t *count, const int64_t *step, int64_t z)
{
    if (z < count[2]) return z * step[2];
    const int64_t outer = z / count[2];
    return z % count[2] * step[2] + outer % count[1] * step[1] + outer / count[1] * step[0];
}

struct side {
    const void *data;
    mlc_dtype dtype, as;               /* in memory; to which f32 is rounded first              */
    int64_t line, step, batch[3];      /* strides: between lines, along k, between products     */
    int along_k, whole;                /* neighbours are along k; UNIT of them are one access   */
};
struct sink {
    mlc_dtype dtype, bias_dtype;       /* of c, aux, residual, grad_of; of bias                 */
    int turned, whole, bias_whole, aux_after, act_last;
    int act, grad;                     /* formulas; act 0: none                                 */
    void *c, *aux;
    const void *bias, *residual, *grad_of;
    int64_t row, col, batch[3];        /* strides                                               */
    double alpha, beta;
    int drops;
    drop_of drop;
    stream_of stream;
};
struct product {
    int64_t m, n, k, count[3], batches;
    side a, b;
    sink out;
};

/* A formula that is known when it is compiled. */
template <int OP, class T> DEV T formula_of(T a, T b, T c, T s)
{
    switch (OP) {
        MLC_MAP_FORMULAS(MATH_CASE, MATH_CASE, MATH_CASE, F)
        default: return (T)0;
    }
}
/* Activations, and their derivatives times a. */
#define SINK_FORMULAS(X) \
    X(MLC_MAP_RELU) X(MLC_MAP_GELU) X(MLC_MAP_TANH) X(MLC_MAP_SIGMOID) X(MLC_MAP_SILU) \
    X(MLC_MAP_GELU_TANH) X(MLC_MAP_RELU_GRAD) X(MLC_MAP_GELU_GRAD) X(MLC_MAP_TANH_GRAD) \
    X(MLC_MAP_SIGMOID_GRAD) X(MLC_MAP_SILU_GRAD) X(MLC_MAP_GELU_TANH_GRAD)
#define SINK_CASE(op) case op: return formula_of<op>(a, b, (W)0, (W)0);
#define SINK_KNOWS(op) case op:
template <class W>
static __device__ __attribute__((noinline)) W sink_formula(int op, W a, W b)
{
    switch (op) {
        SINK_FORMULAS(SINK_CASE)
        default: return (W)0;
    }
}

/* Word i of the stream decides on element i of c. */
template <class W> DEV void sink_drop(const sink &s, int64_t at, int count, W (&x)[UNIT])
{
    W keep[UNIT];
    drop_keeps(s.drop, s.stream, at, s.col, count, keep);
    for (int e = 0; e < UNIT; e++) x[e] = keep[e] == 0 ? (W)0 : x[e] * keep[e];
}

/* The epilogue of elements (i, j), (i, j + 1), .. of a product, x, and their store to c, whose
 * element `at` is the first.                                                                 */
template <class W>
DEV void sink_unit(const sink &s, int64_t at, int64_t i, int64_t j, int count, W (&x)[UNIT])
{
    W y[UNIT];
    for (int e = 0; e < UNIT; e++) x[e] *= (W)s.alpha;
    if (s.bias) {
        read_as(s.bias_dtype, s.bias, s.turned ? i : j, s.turned ? 0 : 1, count, s.bias_whole, y);
        for (int e = 0; e < UNIT; e++) x[e] += y[e];
    }
    if (s.beta != 0.0) {
        read_as(s.dtype, s.c, at, s.col, count, s.whole, y);
        for (int e = 0; e < UNIT; e++) x[e] += (W)s.beta * y[e];
    }
    for (int last = 1; last >= 0; last--) {                /* the residual before act, or after */
        if (s.residual && s.act_last == last) {
            read_as(s.dtype, s.residual, at, s.col, count, s.whole, y);
            for (int e = 0; e < UNIT; e++) x[e] += y[e];
        }
        if (!last) break;
        if (s.act) {
            if (s.aux && !s.aux_after) write_as(s.dtype, s.aux, at, s.col, count, s.whole, x);
            for (int e = 0; e < UNIT; e++) x[e] = sink_formula(s.act, x[e], x[e]);
            if (s.aux && s.aux_after) write_as(s.dtype, s.aux, at, s.col, count, s.whole, x);
        }
        if (s.drops) sink_drop(s, at, count, x);
    }
    if (s.grad_of) {
        read_as(s.dtype, s.grad_of, at, s.col, count, s.whole, y);
        for (int e = 0; e < UNIT; e++) x[e] = sink_formula(s.grad, x[e], y[e]);
    }
    write_as(s.dtype, s.c, at, s.col, count, s.whole, x);
}

/* The V neighbours that a thread loads of a slab of LINES lines by SLAB elements along k: first
 * line and first k.                                                                          */
template <int LINES> struct slab_place {
    enum { V = LINES * SLAB / THREADS };
    int line, p;
    DEV explicit slab_place(bool along_k)
    {
        const int t = (int)threadIdx.x;
        line = along_k ? t / (SLAB / V) : t % (LINES / V) * V;
        p = along_k ? t % (SLAB / V) * V : t / (LINES / V);
    }
};
template <int LINES, class W, int V>
DEV void slab_load(const side &s, int64_t base, int64_t line0, int64_t lines, int64_t p0,
                   int64_t p1, W (&x)[V])
{
    const slab_place<LINES> at(s.along_k);
    const int64_t line = line0 + at.line, p = p0 + at.p;
    const bool there = line < lines && p < p1;
    const int count = !there ? 0 : clamp_count(s.along_k ? p1 - p : lines - line, V);
    read_as(s.dtype, s.data, base + line * s.line + p * s.step, s.along_k ? s.step : s.line, count,
            s.whole, x);
    if (s.dtype != s.as) for (int e = 0; e < V; e++) round_to(s.as, x[e]);
}
/* slab [SLAB][LINES + UNIT] = the elements x that slab_load read                             */
template <int LINES, class W, int V> DEV void slab_keep(const side &s, W *slab, const W (&x)[V])
{
    const slab_place<LINES> at(s.along_k);
    W *to = slab + at.p * (LINES + UNIT) + at.line;
    for (int e = 0; e < V; e++) to[s.along_k ? e * (LINES + UNIT) : e] = x[e];
}

/* acc [R][UNIT] += rows of a times columns of b, over a slab; a thread's rows and columns are
 * neighbours. A form for tensor cores would take this place. */
template <int TM, class W, int R>
DEV void slab_multiply(const W *a, const W *b, W (&acc)[R][UNIT])
{
    const int row = (int)threadIdx.x / 16 * R, col = (int)threadIdx.x % 16 * UNIT;
#pragma unroll
    for (int p = 0; p < SLAB; p++) {
        W x[R], y[UNIT];
        read_run(a + p * (TM + UNIT) + row, 1, R, true, x);
        read_run(b + p * (TN + UNIT) + col, 1, UNIT, true, y);
        for (int r = 0; r < R; r++) for (int e = 0; e < UNIT; e++) acc[r][e] += x[r] * y[e];
    }
}

/* Lines of a side from `first` on that a tile takes; the product begins at element `at`. */
struct panel {
    const side &of;
    int64_t at, first, lines;
};

/* acc += lines of a times lines of b, over elements [from, to) of both. */
template <int TM, class W, int R>
DEV void tile_multiply(const panel &a, const panel &b, int64_t from, int64_t to, W *slab_a,
                       W *slab_b, W (&acc)[R][UNIT])
{
    W next_a[slab_place<TM>::V], next_b[slab_place<TN>::V];
    slab_load<TM>(a.of, a.at, a.first, a.lines, from, to, next_a);
    slab_load<TN>(b.of, b.at, b.first, b.lines, from, to, next_b);
    for (int64_t p = from; p < to; p += SLAB) {
        __syncthreads();
        slab_keep<TM>(a.of, slab_a, next_a);
        slab_keep<TN>(b.of, slab_b, next_b);
        __syncthreads();
        if (p + SLAB < to) {
            slab_load<TM>(a.of, a.at, a.first, a.lines, p + SLAB, to, next_a);
            slab_load<TN>(b.of, b.at, b.first, b.lines, p + SLAB, to, next_b);
        }
        slab_multiply<TM>(slab_a, slab_b, acc);
    }
}

/* How a product is cut: tiles, parts of k. */
struct tiling {
    int64_t down, across, tiles, parts, depth;   /* depth: elements along k of a part           */
    int64_t part, row;                           /* strides of sums, where there are parts      */
    void *sums;
};

/* c = alpha a b + beta c with epilogue, or sums of parts of k. A block makes tiles of TM x TN,
 * one after another: tile t is column t % across, then row, part of k, product. 256 threads as 16
 * x 16, each with R x UNIT accumulators; slabs of SLAB elements along k of both sides are in
 * shared memory. The finished tile goes there, too, so that stores are along rows of c. */
template <class W, int TM>
static __global__ void __launch_bounds__(THREADS, sizeof(W) == 4 ? 2 : 1)
gemm_kernel(const product g, const tiling c)
{
    enum { R = TM / 16, A = SLAB * (TM + UNIT), SLABS = A + SLAB * (TN + UNIT),
           TILE = TM * (TN + UNIT), ROOM = SLABS > TILE ? SLABS : TILE };
    typedef vec<W, 16 / sizeof(W)> pack;
    MLC_SHARED(pack, room, [ROOM * sizeof(W) / 16]);
    W *const slab_a = room[0].v, *const slab_b = slab_a + A, *const tile = slab_a;
    for (int64_t t = blockIdx.x; t < c.tiles; t += gridDim.x) {
        const int64_t x = t % c.across, y = t / c.across % c.down, rest = t / c.across / c.down;
        const int64_t part = rest % c.parts, z = rest / c.parts, i0 = y * TM, j0 = x * TN;
        const int64_t from = part * c.depth, to = from + c.depth < g.k ? from + c.depth : g.k;
        W acc[R][UNIT] = {};
        tile_multiply<TM>(panel{ g.a, batch_at(g.count, g.a.batch, z), i0, g.m },
                          panel{ g.b, batch_at(g.count, g.b.batch, z), j0, g.n }, from, to, slab_a,
                          slab_b, acc);
        __syncthreads();
        for (int r = 0; r < R; r++)
            write_run(tile + ((int)threadIdx.x / 16 * R + r) * (TN + UNIT) +
                      (int)threadIdx.x % 16 * UNIT, 1, UNIT, true, acc[r]);
        __syncthreads();
#pragma unroll 1
        for (int u = (int)threadIdx.x; u < TM * TN / UNIT; u += THREADS) {
            const int64_t i = i0 + u / 16, j = j0 + u % 16 * UNIT;
            W v[UNIT];
            if (i >= g.m || j >= g.n) continue;
            read_run(tile + u / 16 * (TN + UNIT) + u % 16 * UNIT, 1, UNIT, true, v);
            if (c.parts > 1)
                write_run(static_cast<W *>(c.sums) + part * c.part + (z * g.m + i) * c.row + j, 1,
                          UNIT, true, v);
            else
                sink_unit(g.out, batch_at(g.count, g.out.batch, z) + i * g.out.row + j * g.out.col,
                          i, j, clamp_count(g.n - j, UNIT), v);
        }
        __syncthreads();
    }
}

/* Where the sink's pass finds sums: those of part q, product z, row i, column j. */
struct sums {
    const void *data;
    int64_t parts, part, row, col, batch[3];
    int whole;
};
struct sink_range {                    /* of units in a launch                                  */
    divisor units, rows;               /* units of a row, rows of a product                     */
    uint32_t first_row, n;
};

/* The epilogue of a product that was cut in parts of k: adds the parts of UNIT neighbours of c in
 * order, then alpha, bias, activation, .. as gemm_kernel. A thread takes a unit of UNIT elements;
 * r: rows of this launch. */
template <class W> static __global__ void __launch_bounds__(THREADS)
sink_kernel(const product g, const sums s, const sink_range r)
{
    const uint32_t u = blockIdx.x * (uint32_t)THREADS + threadIdx.x;
    if (u >= r.n) return;
    const uint32_t line = divide(u, r.units), row = r.first_row + line, z = divide(row, r.rows);
    const int64_t i = row - z * r.rows.d, j = (int64_t)(u - line * r.units.d) * UNIT;
    const int count = clamp_count(g.n - j, UNIT);
    const int64_t from = batch_at(g.count, s.batch, z) + i * s.row + j * s.col;
    W x[UNIT], y[UNIT];
    read_run(static_cast<const W *>(s.data) + from, s.col, count, s.whole, x);
    for (int64_t q = 1; q < s.parts; q++) {
        read_run(static_cast<const W *>(s.data) + from + q * s.part, s.col, count, s.whole, y);
        for (int e = 0; e < UNIT; e++) x[e] += y[e];
    }
    sink_unit(g.out, batch_at(g.count, g.out.batch, z) + i * g.out.row + j * g.out.col, i, j, count,
              x);
}

static mlc_status sink_run(void *dev, const product &g, const sums &s, bool f64)
{
    const int64_t units = (g.n + UNIT - 1) / UNIT, rows = g.m * g.batches, most = INT32_MAX;
    if (units > most || rows > most) return MLC_ERR_UNSUPPORTED;
    for (int64_t row = 0; row < rows;) {
        const int64_t now = rows - row < most / units ? rows - row : most / units;
        const sink_range r = { divisor_make((uint32_t)units), divisor_make((uint32_t)g.m),
                               (uint32_t)row, (uint32_t)(now * units) };
        const dim3 grid((unsigned)((now * units + THREADS - 1) / THREADS));
        const mlc_status st =
            f64 ? launch(dev, "gemm", grid, dim3(THREADS), 0, sink_kernel<double>, g, s, r)
                : launch(dev, "gemm", grid, dim3(THREADS), 0, sink_kernel<float>, g, s, r);
        if (st != MLC_OK) return st;
        row += now;
    }
    return MLC_OK;
}

/* Is a UNIT from p on, and a multiple of UNIT elements after it, one access? */
static bool is_whole(const void *p, size_t size)
{
    return (uintptr_t)p % (size * UNIT > 16 ? 16 : size * UNIT) == 0;
}
static bool steps_whole(int64_t step, const int64_t *batch)
{
    return ((step | batch[0] | batch[1] | batch[2]) & (UNIT - 1)) == 0;
}

static side side_make(const void *data, mlc_dtype dtype, mlc_dtype as, int64_t line, int64_t step,
                      const int64_t *batch)
{
    side s = { data, dtype, as, line, step, { batch[0], batch[1], batch[2] }, 0, 0 };
    s.along_k = llabs(step) < llabs(line);
    s.whole = (s.along_k ? step : line) == 1 && is_whole(data, mlc_dtype_bytes(dtype)) &&
              steps_whole(s.along_k ? line : step, batch);
    return s;
}

static int act_formula(mlc_act act)
{
    switch (act) {
    case MLC_ACT_RELU:      return MLC_MAP_RELU;
    case MLC_ACT_GELU:      return MLC_MAP_GELU;
    case MLC_ACT_TANH:      return MLC_MAP_TANH;
    case MLC_ACT_SIGMOID:   return MLC_MAP_SIGMOID;
    case MLC_ACT_SILU:      return MLC_MAP_SILU;
    case MLC_ACT_GELU_TANH: return MLC_MAP_GELU_TANH;
    default:                return 0;
    }
}
static sink sink_make(const struct mlc_k_gemm *g, bool turned)
{
    const size_t size = mlc_dtype_bytes(g->c_dtype);
    sink s = {};
    s.dtype = g->c_dtype;
    s.bias_dtype = g->bias_dtype;
    s.turned = turned;
    s.aux_after = g->aux_after;
    s.act_last = g->act_last != 0;
    s.act = act_formula(g->act);
    s.grad = g->grad;
    s.c = g->c; s.aux = g->aux;
    s.bias = g->bias; s.residual = g->residual; s.grad_of = g->grad_of;
    s.row = turned ? g->c_col : g->c_row;
    s.col = turned ? g->c_row : g->c_col;
    memcpy(s.batch, g->c_batch, sizeof s.batch);
    s.alpha = g->alpha; s.beta = g->beta;
    s.drops = g->drop > 0.0;
    s.drop = drop_made(g->drop);
    s.stream = { g->drop_seed, g->drop_stream, g->drop_base };
    s.whole = s.col == 1 && steps_whole(s.row, s.batch) && is_whole(s.c, size) &&
              is_whole(s.aux, size) && is_whole(s.residual, size) && is_whole(s.grad_of, size);
    s.bias_whole = !turned && s.bias && is_whole(s.bias, mlc_dtype_bytes(s.bias_dtype));
    return s;
}
static int64_t gemm_batches(const struct mlc_k_gemm *g)
{
    return g->batch[0] * g->batch[1] * g->batch[2];
}
static product product_make(const struct mlc_k_gemm *g, bool turned)
{
    const side a = side_make(g->a, g->a_dtype, g->dtype, g->a_row, g->a_col, g->a_batch);
    const side b = side_make(g->b, g->b_dtype, g->dtype, g->b_col, g->b_row, g->b_batch);
    return { turned ? g->n : g->m, turned ? g->m : g->n, g->k,
             { g->batch[0], g->batch[1], g->batch[2] }, gemm_batches(g), turned ? b : a,
             turned ? a : b, sink_make(g, turned) };
}

/* The side with fewer than LOW_BELOW lines comes first; else neighbours in c are in a row. */
static bool own_turns(const struct mlc_k_gemm *g)
{
    if ((g->m < LOW_BELOW) != (g->n < LOW_BELOW)) return g->n < LOW_BELOW;
    return llabs(g->c_row) < llabs(g->c_col);
}
/* Cuts k in parts where tiles are too few for a card; the cut depends on the sizes alone. */
static tiling own_cut(const product &g)
{
    const int64_t height = g.m < LOW_BELOW ? LOW : TN;
    tiling c = {};
    c.down = (g.m + height - 1) / height;
    c.across = (g.n + TN - 1) / TN;
    c.parts = 1;
    c.depth = g.k;
    c.tiles = c.down * c.across * g.batches;
    if (c.tiles < 128 && g.k >= 512) {
        const int64_t most = 256 / c.tiles < g.k / 256 ? 256 / c.tiles : g.k / 256;
        c.depth = ((g.k + most - 1) / most + SLAB - 1) / SLAB * SLAB;
        c.parts = (g.k + c.depth - 1) / c.depth;
        c.row = (g.n + UNIT - 1) / UNIT * UNIT;
        c.part = g.batches * g.m * c.row;
        c.tiles *= c.parts;
    }
    return c;
}
static size_t own_bytes(const tiling &c, bool f64)
{
    return c.parts > 1 ? (size_t)(c.parts * c.part) * (f64 ? 8 : 4) : 0;
}
static mlc_status own_sink(void *dev, const product &g, const tiling &c, bool f64)
{
    const sums s = { c.sums, c.parts, c.part, c.row, 1,
                     { g.count[1] * g.count[2] * g.m * c.row, g.count[2] * g.m * c.row,
                       g.m * c.row }, 1 };
    return sink_run(dev, g, s, f64);
}
static mlc_status own_run(void *dev, const struct mlc_k_gemm *a)
{
    const product g = product_make(a, own_turns(a));
    const bool f64 = a->dtype == MLC_F64, low = g.m < LOW_BELOW;
    tiling c = own_cut(g);
    if (own_bytes(c, f64) > a->workspace_bytes) {
        c.tiles /= c.parts;
        c.parts = 1;
        c.depth = g.k;
    }
    c.sums = a->workspace;
    const dim3 grid((unsigned)(c.tiles < INT32_MAX ? c.tiles : INT32_MAX)), block(THREADS);
    const mlc_status st =
        f64 ? low ? launch(dev, "gemm", grid, block, 0, gemm_kernel<double, LOW>, g, c)
                  : launch(dev, "gemm", grid, block, 0, gemm_kernel<double, TN>, g, c)
            : low ? launch(dev, "gemm", grid, block, 0, gemm_kernel<float, LOW>, g, c)
                  : launch(dev, "gemm", grid, block, 0, gemm_kernel<float, TN>, g, c);
    return st == MLC_OK && c.parts > 1 ? own_sink(dev, g, c, f64) : st;
}

static bool gemm_computes(mlc_dtype d) { return d == MLC_F32 || d == MLC_F64 || dtype_is_half(d); }

/* Is this a product that the entry makes? */
static bool gemm_valid(const struct mlc_k_gemm *g)
{
    const bool low = dtype_is_half(g->dtype);
    if (!gemm_computes(g->dtype) || g->b_pack || g->signs.rows) return false;
    if (g->a_dtype != g->dtype && !(low && g->a_dtype == MLC_F32)) return false;
    if (g->b_dtype != g->dtype && !(low && g->b_dtype == MLC_F32)) return false;
    if (g->c_dtype != g->dtype && !(low && g->c_dtype == MLC_F32) &&
        !(g->dtype == MLC_F32 && dtype_is_half(g->c_dtype))) return false;
    if (g->bias && g->bias_dtype != g->c_dtype &&
        !(g->bias_dtype == MLC_F32 && g->c_dtype != MLC_F64)) return false;
    if (g->beta != 0.0 && (g->act || g->drop > 0.0 || g->residual || g->grad_of)) return false;
    if (g->act && !act_formula(g->act)) return false;
    switch ((int)g->grad) {
        SINK_FORMULAS(SINK_KNOWS) return true;
        default: return !g->grad_of;
    }
}

static bool gemm_is_empty(const struct mlc_k_gemm *g)
{
    return g->m == 0 || g->n == 0 || gemm_batches(g) == 0;
}

/* @@ CUDA.LT --------------------------------------------- products by cuBLASLt
 * cuBLASLt counts by columns: a row-major c [m,n] is its D [n,m], A is b and B is a. A plan says
 * which part of the work cuBLASLt does and which our kernels do before and after it: f32 sides of
 * a 16-bit product are packed, what its epilogue does not do is done by the sink's pass, over c
 * itself or over sums in the workspace. The own tile makes what cuBLASLt cannot: other strides,
 * pointers off 16 bytes. Reductions are deterministic. The algorithm of a product is asked for
 * once and kept by its description, lt_call: the workspace query and the entry make the same plan,
 * and no memory is held between products. */

enum { LT_CALLS = 256, LT_ALIGN = 16, LT_ROOM_ALIGN = 256 };
enum : size_t { LT_ROOM = (size_t)32 << 20 };

/* All that an algorithm hangs on; no padding, compared as bytes. */
struct lt_call {
    int64_t m, n, k, lda, ldb, ldd, batch, step_a, step_b, step_d;
    int32_t op_a, op_b, type, type_d, compute, epilogue;
};
struct lt_algo {
    lt_call call;
    int known, there;
    size_t room;                       /* bytes of workspace                                    */
    cublasLtMatmulAlgo_t algo;
};
struct lt_state {
    cublasLtHandle_t handle;
    bool own;                          /* cuBLASLt is not there, or is not wanted               */
    lt_algo algos[LT_CALLS];
};

static void lt_close(lt_state *lt)
{
    if (lt && lt->handle) cublasLtDestroy(lt->handle);
    free(lt);
}
static lt_state *lt_of(device *d)
{
    if (d->lt) return d->lt;
    const char *own = getenv("MLC_CUDA_OWN_GEMM");
    d->lt = static_cast<lt_state *>(calloc(1, sizeof *d->lt));
    if (!d->lt) return NULL;
    d->lt->own = own && strcmp(own, "0") != 0;
    cudaSetDevice(d->card);
    if (!d->lt->own && cublasLtCreate(&d->lt->handle) != CUBLAS_STATUS_SUCCESS) {
        d->lt->handle = NULL;
        d->lt->own = true;
    }
    return d->lt;
}

/* Descriptors of a call. */
struct lt_desc {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    bool good;

    lt_desc(const lt_call &c, const void *bias)
    {
        const cudaDataType_t type = (cudaDataType_t)c.type, type_d = (cudaDataType_t)c.type_d;
        const uint32_t epilogue = (uint32_t)c.epilogue;
        good = cublasLtMatmulDescInit(&op, (cublasComputeType_t)c.compute,
                                      type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS;
        set(CUBLASLT_MATMUL_DESC_TRANSA, c.op_a);
        set(CUBLASLT_MATMUL_DESC_TRANSB, c.op_b);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        if (epilogue & CUBLASLT_EPILOGUE_BIAS) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        const bool turn_a = c.op_a == CUBLAS_OP_T, turn_b = c.op_b == CUBLAS_OP_T;
        layout(&a, type, turn_a ? c.k : c.m, turn_a ? c.m : c.k, c.lda, c.batch, c.step_a);
        layout(&b, type, turn_b ? c.n : c.k, turn_b ? c.k : c.n, c.ldb, c.batch, c.step_b);
        layout(&d, type_d, c.m, c.n, c.ldd, c.batch, c.step_d);
    }
    template <class T> void set(cublasLtMatmulDescAttributes_t what, const T &v)
    {
        good = good && cublasLtMatmulDescSetAttribute(&op, what, &v, sizeof v) ==
                       CUBLAS_STATUS_SUCCESS;
    }
    void layout(cublasLtMatrixLayout_t l, cudaDataType_t type, int64_t rows, int64_t cols,
                int64_t ld, int64_t batch, int64_t step)
    {
        const int32_t count = (int32_t)batch;
        good = good && cublasLtMatrixLayoutInit(l, type, (uint64_t)rows, (uint64_t)cols, ld) ==
                       CUBLAS_STATUS_SUCCESS;
        if (batch == 1) return;
        set_layout(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
        set_layout(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
    }
    template <class T>
    void set_layout(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what, const T &v)
    {
        good = good && cublasLtMatrixLayoutSetAttribute(l, what, &v, sizeof v) ==
                       CUBLAS_STATUS_SUCCESS;
    }
};

struct lt_preference {
    cublasLtMatmulPreferenceOpaque_t p;
    bool good;

    lt_preference()
    {
        const uint64_t room = LT_ROOM;
        const uint32_t align = LT_ALIGN, schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        good = cublasLtMatmulPreferenceInit(&p) == CUBLAS_STATUS_SUCCESS;
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room);
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align);
    }
    template <class T> void set(cublasLtMatmulPreferenceAttributes_t what, const T &v)
    {
        good = good && cublasLtMatmulPreferenceSetAttribute(&p, what, &v, sizeof v) ==
                       CUBLAS_STATUS_SUCCESS;
    }
};

/* The first algorithm that cuBLASLt proposes; the bias counts with its least alignment. */
static void lt_ask(lt_state *lt, lt_algo *a)
{
    lt_desc d(a->call, reinterpret_cast<const void *>((uintptr_t)LT_ALIGN));
    lt_preference preference;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    a->known = 1;
    a->there = 0;
    if (!d.good || !preference.good) return;
    if (cublasLtMatmulAlgoGetHeuristic(lt->handle, &d.op, &d.a, &d.b, &d.d, &d.d, &preference.p, 1,
                                       &found, &n) != CUBLAS_STATUS_SUCCESS) return;
    if (n < 1 || found.state != CUBLAS_STATUS_SUCCESS) return;
    a->there = 1;
    a->algo = found.algo;
    a->room = found.workspaceSize;
}

/* The algorithm that was found for a call, in a hash table: an entry is replaced by the next call
 * with the same hash.                                                                        */
static const lt_algo *lt_find(device *dev, const lt_call &call)
{
    unsigned char bytes[sizeof call];
    uint64_t h = 14695981039346656037u;
    memcpy(bytes, &call, sizeof call);
    for (size_t i = 0; i < sizeof bytes; i++) h = (h ^ bytes[i]) * 1099511628211u;
    lt_algo *a = &dev->lt->algos[(h ^ h >> 32) % LT_CALLS];
    if (!a->known || memcmp(&a->call, &call, sizeof call) != 0) {
        memcpy(&a->call, &call, sizeof call);
        cudaSetDevice(dev->card);
        lt_ask(dev->lt, a);
    }
    return a->there ? a : NULL;
}

struct lt_plan {
    product g;                         /* its sides are the packs where there are some          */
    side raw[2];                       /* what the packs are made of                            */
    lt_call call;
    const lt_algo *algo;
    int64_t loops[2], step[3][2];      /* calls along the axes that are not the call's batch    */
    bool packs[2], pass, to_sums;
    sums s;                            /* what the pass reads                                   */
    size_t sums_at, room_at, bytes;    /* in the workspace                                      */
};

static cudaDataType_t lt_type(mlc_dtype d)
{
    return d == MLC_F64 ? CUDA_R_64F : d == MLC_F32 ? CUDA_R_32F : d == MLC_BF16 ? CUDA_R_16BF
                                                                                : CUDA_R_16F;
}

/* cuBLASLt adds the bias and nothing more. Its RELU is not promised to keep a NaN. Its GELU of f64
 * is wrong from the tenth digit on (seen on an H200), and a forward for the tape, whose second
 * output the sink's pass writes, would have other bits than one without. */
static int32_t lt_epilogue(const struct mlc_k_gemm *g, bool turned)
{
    const bool low_c = g->dtype == MLC_F32 && g->c_dtype != MLC_F32;
    const int32_t e = g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (low_c || g->drop > 0.0 || g->residual || g->grad_of || g->act) return 0;
    if (g->bias && (turned || g->bias_dtype != g->c_dtype || (uintptr_t)g->bias % LT_ALIGN))
        return 0;
    return e;
}

/* Column-major: `inner` elements follow one another, `outer` columns are *ld apart. */
static bool lt_fits(int64_t inner, int64_t stride, int64_t outer, int64_t apart, int64_t *ld)
{
    *ld = outer == 1 ? inner : apart;
    return (stride == 1 || inner == 1) && *ld >= inner;
}
/* How a side is stored; *along: its columns run along k. Of a line alone they do. */
static bool lt_side(const side &s, int64_t lines, int64_t k, bool *along, int64_t *ld)
{
    *along = lines == 1 || s.line != 1;
    if (*along ? lt_fits(k, s.step, lines, s.line, ld) : lt_fits(lines, s.line, k, s.step, ld))
        return true;
    *along = !*along;
    return *along ? lt_fits(k, s.step, lines, s.line, ld) : lt_fits(lines, s.line, k, s.step, ld);
}
static size_t lt_round_up(size_t bytes)
{
    return (bytes + LT_ROOM_ALIGN - 1) / LT_ROOM_ALIGN * LT_ROOM_ALIGN;
}
/* Byte `at` of the workspace, counted from its first multiple of LT_ROOM_ALIGN. */
static char *lt_room(const struct mlc_k_gemm *g, size_t at)
{
    return reinterpret_cast<char *>(lt_round_up((uintptr_t)g->workspace) + at);
}

/* The side as a dense copy at `to`, rounded; axes that are broadcast stay so. Returns its bytes. */
static size_t lt_pack(const product &g, side *s, int64_t lines, const char *to)
{
    const int64_t inner = s->along_k ? g.k : lines, outer = s->along_k ? lines : g.k;
    const int64_t apart = (inner + 7) / 8 * 8;
    int64_t next = outer * apart;
    s->line = s->along_k ? apart : 1;
    s->step = s->along_k ? 1 : apart;
    for (int b = 2; b >= 0; b--) {
        const bool own = g.count[b] > 1 && s->batch[b] != 0;
        s->batch[b] = own ? next : 0;
        if (own) next *= g.count[b];
    }
    s->data = to;
    s->dtype = s->as;
    return lt_round_up((size_t)next * 2);
}

/* One axis of products goes to the call, others are walked: those that follow one another in all
 * operands are one, the call gets the longest. False: steps that cuBLASLt does not take. */
static bool lt_axes(lt_plan *l, const int64_t *const (&steps)[3])
{
    int64_t count[3] = { 1, 1, 1 }, step[3][3] = {};
    int n = 0, longest = 0;
    for (int b = 0; b < 3; b++) {
        if (l->g.count[b] == 1) continue;
        bool join = n > 0;
        for (int o = 0; o < 3; o++)
            join = join && step[o][n - 1] == steps[o][b] * l->g.count[b];
        n += !join;
        count[n - 1] *= l->g.count[b];
        for (int o = 0; o < 3; o++) step[o][n - 1] = steps[o][b];
    }
    for (int b = 1; b < n; b++) if (count[b] > count[longest]) longest = b;
    l->call.batch = count[longest];
    l->call.step_b = step[0][longest];
    l->call.step_a = step[1][longest];
    l->call.step_d = step[2][longest];
    for (int b = 0, w = 0; b < 3; b++) {
        if (b == longest) continue;
        l->loops[w] = count[b];
        for (int o = 0; o < 3; o++) l->step[o][w] = step[o][b];
        w++;
    }
    return l->call.batch <= INT32_MAX && (l->call.batch == 1 || l->call.step_d > 0) &&
           l->call.step_a >= 0 && l->call.step_b >= 0;
}
/* Is every product of an operand at a multiple of LT_ALIGN bytes? */
static bool lt_aligned(const void *p, mlc_dtype dtype, const int64_t *batch)
{
    const int64_t all = batch[0] | batch[1] | batch[2], size = (int64_t)mlc_dtype_bytes(dtype);
    return (uintptr_t)p % LT_ALIGN == 0 && all * size % LT_ALIGN == 0;
}

static mlc_dtype lt_wide(const struct mlc_k_gemm *g)
{
    return g->dtype == MLC_F64 ? MLC_F64 : MLC_F32;
}

/* Where the products go: c, or sums in W where c is of another dtype or is added to. Returns the
 * bytes of the sums. */
static size_t lt_plan_sums(lt_plan *l, const struct mlc_k_gemm *g)
{
    const sink &o = l->g.out;
    const int64_t row = (l->g.n + 7) / 8 * 8, each = l->g.m * row, *count = l->g.count;
    l->to_sums = l->pass && (g->c_dtype != lt_wide(g) || g->beta != 0.0);
    l->s = { g->c, 1, 0, o.row, o.col, { o.batch[0], o.batch[1], o.batch[2] }, o.whole };
    if (!l->to_sums) return 0;
    l->s = { lt_room(g, l->sums_at), 1, 0, row, 1,
             { count[1] * count[2] * each, count[2] * each, each }, 1 };
    return lt_round_up((size_t)(l->g.batches * each) * mlc_dtype_bytes(lt_wide(g)));
}

/* What a call says of the operands, where the steps of products are known; false: it cannot. */
static bool lt_plan_call(lt_plan *l, const struct mlc_k_gemm *g, mlc_dtype to)
{
    const side &a = l->g.a, &b = l->g.b;
    lt_call *c = &l->call;
    bool along_a, along_b;
    c->m = l->g.n; c->n = l->g.m; c->k = l->g.k;
    if (!lt_aligned(a.data, a.dtype, a.batch) || !lt_aligned(b.data, b.dtype, b.batch) ||
        !lt_aligned(l->s.data, to, l->s.batch)) return false;
    if (!lt_fits(c->m, l->s.col, c->n, l->s.row, &c->ldd)) return false;
    if (!lt_side(b, c->m, c->k, &along_b, &c->lda)) return false;
    if (!lt_side(a, c->n, c->k, &along_a, &c->ldb)) return false;
    c->op_a = along_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    c->op_b = along_a ? CUBLAS_OP_N : CUBLAS_OP_T;
    c->type = lt_type(g->dtype);
    c->type_d = lt_type(to);
    c->compute = g->dtype == MLC_F64            ? CUBLAS_COMPUTE_64F
               : g->dtype == MLC_F32 && g->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                : CUBLAS_COMPUTE_32F;
    return true;
}

/* Fills the plan for an epilogue, or for none and the pass; false: cuBLASLt cannot. */
static bool lt_plan_with(device *dev, const struct mlc_k_gemm *g, bool turned, int32_t epilogue,
                         lt_plan *l)
{
    memset(&l->call, 0, sizeof l->call);
    l->g = product_make(g, turned);
    l->raw[0] = l->g.a;
    l->raw[1] = l->g.b;
    l->sums_at = 0;
    for (int i = 0; i < 2; i++) {
        l->packs[i] = l->raw[i].dtype != l->raw[i].as;
        if (l->packs[i]) l->sums_at += lt_pack(l->g, i ? &l->g.b : &l->g.a, i ? l->g.n : l->g.m,
                                               lt_room(g, l->sums_at));
    }
    l->pass = !epilogue;
    if (l->pass && (l->g.n > INT32_MAX || l->g.m > INT32_MAX / l->g.batches)) return false;
    l->call.epilogue = epilogue ? epilogue : CUBLASLT_EPILOGUE_DEFAULT;
    const size_t sums_bytes = lt_plan_sums(l, g);
    const mlc_dtype to = l->to_sums ? lt_wide(g) : g->c_dtype;
    if (!lt_axes(l, { l->g.a.batch, l->g.b.batch, l->s.batch })) return false;
    if (!lt_plan_call(l, g, to)) return false;
    l->algo = lt_find(dev, l->call);
    l->room_at = l->sums_at + sums_bytes;
    if (!l->algo) return false;
    l->bytes = l->room_at + l->algo->room;
    if (l->bytes) l->bytes += LT_ROOM_ALIGN;
    return true;
}
/* False: the own tile makes the product. Without a workspace only sizes are wanted. */
static bool lt_plan_make(device *dev, const struct mlc_k_gemm *g, lt_plan *l)
{
    const bool turned = g->c_col != 1 && g->n != 1;
    const int32_t epilogue = lt_epilogue(g, turned);
    const lt_state *lt = lt_of(dev);
    if (!lt || lt->own || g->k == 0) return false;
    if (lt_plan_with(dev, g, turned, epilogue, l)) return true;
    return epilogue > CUBLASLT_EPILOGUE_DEFAULT && lt_plan_with(dev, g, turned, 0, l);
}

/* out = in, rounded from f32 to T. A thread takes EACH elements that are THREADS apart; w: out,
 * in. */
template <class T> static __global__ void __launch_bounds__(THREADS)
round_kernel(T *out, const float *in, const walk<2> w)
{
    const uint32_t first = blockIdx.x * (uint32_t)(THREADS * EACH) + threadIdx.x;
    for (int e = 0; e < EACH; e++) {
        const uint32_t i = first + e * THREADS;
        int64_t at[2];
        if (i >= w.n) return;
        walk_at(w, i, at);
        store(out + at[0], in[at[1]]);
    }
}
static mlc_status lt_round(void *dev, const product &g, const side &to, const side &from,
                           int64_t lines)
{
    const bool k = from.along_k;
    int64_t shape[5] = { g.count[0], g.count[1], g.count[2], k ? lines : g.k, k ? g.k : lines };
    int64_t out[5] = { to.batch[0], to.batch[1], to.batch[2], k ? to.line : to.step, 1 };
    const int64_t in[5] = { from.batch[0], from.batch[1], from.batch[2],
                            k ? from.line : from.step, k ? from.step : from.line };
    const int64_t *const strides[2] = { out, in };
    for (int b = 0; b < 3; b++) if (out[b] == 0) shape[b] = 1;             /* copied once */
    const plan<2> p(5, shape, strides);
    return p.each([&](const walk<2> &w, const int64_t *offset) {
        const float *data = static_cast<const float *>(from.data) + offset[1];
        char *place = static_cast<char *>(const_cast<void *>(to.data)) + offset[0] * 2;
        if (to.as == MLC_BF16)
            return launch(dev, "gemm", blocks_for(w.n), dim3(THREADS), 0, round_kernel<bf16>,
                          reinterpret_cast<bf16 *>(place), data, w);
        return launch(dev, "gemm", blocks_for(w.n), dim3(THREADS), 0, round_kernel<f16>,
                      reinterpret_cast<f16 *>(place), data, w);
    });
}

static mlc_status lt_failed(device *d, cublasStatus_t st)
{
    if (!d->lost)
        snprintf(d->message, sizeof d->message, "gemm: cuBLASLt: %s",
                 cublasLtGetStatusString(st));
    return st == CUBLAS_STATUS_ALLOC_FAILED ? MLC_ERR_NOMEM : MLC_ERR_DEVICE;
}

/* The call for each product of the axes that are walked. */
static mlc_status lt_multiply(device *dev, const lt_plan &l, const struct mlc_k_gemm *g)
{
    const double scale[2] = { l.pass ? 1.0 : g->alpha, l.pass ? 0.0 : g->beta };
    const float narrow[2] = { (float)scale[0], (float)scale[1] };
    const bool f64 = g->dtype == MLC_F64;
    void *const room = l.algo->room ? lt_room(g, l.room_at) : NULL;
    const void *alpha = f64 ? (const void *)&scale[0] : &narrow[0];
    const void *beta = f64 ? (const void *)&scale[1] : &narrow[1];
    const size_t size = mlc_dtype_bytes(g->dtype);
    const size_t size_d = mlc_dtype_bytes(l.to_sums ? lt_wide(g) : g->c_dtype);
    lt_desc d(l.call, g->bias);
    if (!d.good) return MLC_ERR_DEVICE;
    cudaSetDevice(dev->card);
    for (int64_t z = 0; z < l.loops[0] * l.loops[1]; z++) {
        const int64_t x = z / l.loops[1], y = z % l.loops[1];
        const void *at[3] = { l.g.a.data, l.g.b.data, l.s.data };
        for (int o = 0; o < 3; o++)
            at[o] = static_cast<const char *>(at[o]) + (x * l.step[o][0] + y * l.step[o][1]) *
                                                       (int64_t)(o == 2 ? size_d : size);
        void *const out = const_cast<void *>(at[2]);
        const cublasStatus_t st =
            cublasLtMatmul(dev->lt->handle, &d.op, alpha, at[1], &d.a, at[0], &d.b, beta, out, &d.d,
                           out, &d.d, &l.algo->algo, room, l.algo->room, dev->stream);
        if (st != CUBLAS_STATUS_SUCCESS) return lt_failed(dev, st);
    }
    return MLC_OK;
}

static mlc_status lt_run(void *dev, const lt_plan &l, const struct mlc_k_gemm *g)
{
    device *const d = device_of(dev);
    mlc_status st = MLC_OK;
    const side *sides[2] = { &l.g.a, &l.g.b };
    for (int i = 0; i < 2 && st == MLC_OK; i++)
        if (l.packs[i]) st = lt_round(dev, l.g, *sides[i], l.raw[i], i ? l.g.n : l.g.m);
    if (st == MLC_OK) st = lt_multiply(d, l, g);
    if (st == MLC_OK && d->blocking) st = device_sync(dev);
    return st == MLC_OK && l.pass ? sink_run(dev, l.g, l.s, g->dtype == MLC_F64) : st;
}

static mlc_status gemm_entry(void *dev, const struct mlc_k_gemm *g)
{
    lt_plan l;
    if (!gemm_valid(g)) return MLC_ERR_UNSUPPORTED;
    if (gemm_is_empty(g)) return MLC_OK;
    if (lt_plan_make(device_of(dev), g, &l) && l.bytes <= g->workspace_bytes)
        return lt_run(dev, l, g);
    return own_run(dev, g);
}
/* Decides as gemm_entry does: the workspace is for that plan. */
static size_t gemm_workspace(void *dev, const struct mlc_k_gemm *g)
{
    lt_plan l;
    struct mlc_k_gemm bare = *g;
    bare.workspace = NULL;
    if (!gemm_valid(g) || gemm_is_empty(g)) return 0;
    if (lt_plan_make(device_of(dev), &bare, &l)) return l.bytes;
    return own_bytes(own_cut(product_make(g, own_turns(g))), g->dtype == MLC_F64);
}

/* @@ CUDA.ATTENTION -------------------------------------- softmax(q k^T) v by tiles
 * A tile is TM rows of a head against TN keys. Its scores are a product of CUDA.GEMM's slabs, held
 * as there: a thread has R neighbouring rows of UNIT keys, 16 threads share a row. They become
 * weights by an online softmax (Dao, arXiv 2307.08691), go to shared memory turned, and multiply v
 * slab by slab; sums are scaled anew where a row's maximum rises. Backward makes weights again from
 * the logarithms of the rows' sums: dq by a block for some rows, which walks over keys; dk and dv
 * by a block for some keys, which walks over all rows of the heads that share them; the gradient of
 * a mask by a block for a part of it, which walks over all tiles that it was added to (few blocks
 * where the mask is of few elements). So nothing is of t by s elements, and the order of all sums
 * is fixed. A block makes COLUMNS columns of an output, for more the scores are made again: d and
 * dv have no limit. Tiles without a pair that is seen are left out. All products end in
 * slab_multiply, whose place a form for tensor cores would take. */

/* A block makes COLUMNS columns of its output in f32, half of them in f64: parts of TN. */
enum { COLUMNS = 2 * TN };
template <class W> BOTH constexpr int attn_parts() { return COLUMNS / TN * 4 / (int)sizeof(W); }

struct attn {
    struct mlc_k_attention_grad g;     /* of forward f alone                                    */
    side q, k, v, dy, y;               /* lines are rows                                        */
    side q_turned, k_turned, v_turned, dy_turned;            /* lines are columns               */
    side dq, dk, dv;
    drop_of drop;
    stream_of stream;
    void *less;                        /* [b,h,t] of W: sums of dy y along a row                */
    int *bad;                          /* not 0: nothing is written; NULL: there is no doubt    */
    int64_t heads, down, across, tiles;            /* blocks: of lines, of columns, of all      */
};

/* The part that a block makes: lines from `line` on, columns from `col` on. */
struct attn_place { int64_t batch, head, line, col; };
template <int LINES, int COLS> DEV attn_place attn_place_of(const attn &j, int64_t tile)
{
    const int64_t y = tile / j.across % j.down, rest = tile / j.across / j.down;
    return { rest / j.heads, rest % j.heads, y * LINES, tile % j.across * COLS };
}
DEV int64_t attn_at(const side &s, int64_t batch, int64_t head)
{
    return batch * s.batch[1] + head * s.batch[2];
}

/* -- keys that are seen -- */

/* Keys [lo, hi) that a row sees, and its own place among them; none: lo is INT_MAX, hi 0. */
struct attn_span { int lo, hi; int64_t at; };

DEV int64_t attn_clamp(int64_t v, int64_t to) { return v < 0 ? 0 : v > to ? to : v; }

/* Sequence of row i: rows [q0, q1), keys [k0, k1); of none no keys. */
struct attn_sequence { int64_t q0, q1, k0, k1; };
DEV attn_sequence attn_sequence_of(const struct mlc_k_attention &a, int64_t i)
{
    int64_t lo = 0, hi = a.sequences;
    if (!a.q_offsets) return { 0, a.t, 0, a.s };
    while (hi - lo > 1) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (a.q_offsets[mid] <= i) lo = mid; else hi = mid;
    }
    const int64_t end = a.sequences ? lo + 1 : lo;
    const attn_sequence z = {
        attn_clamp(a.q_offsets[lo], a.t), attn_clamp(a.q_offsets[end], a.t),
        attn_clamp(a.k_offsets[lo], a.s), attn_clamp(a.k_offsets[end], a.s) };
    return i < z.q0 || i >= z.q1 ? attn_sequence{ z.q0, z.q1, z.k0, z.k0 } : z;
}
DEV attn_span attn_seen(const struct mlc_k_attention &a, int64_t batch, int64_t i)
{
    if (i >= a.t) return { INT32_MAX, 0, 0 };
    const attn_sequence z = attn_sequence_of(a, i);
    const int64_t at = z.k0 + (i - z.q0) + (z.k1 - z.k0) - (z.q1 - z.q0);
    int64_t lo = z.k0, hi = z.k1;
    if (a.lengths) hi = least()(hi, lo + attn_clamp(a.lengths[batch], a.s));
    if (a.window) {
        lo = most()(lo, at - a.window + 1);
        hi = least()(hi, at + a.window);
    }
    if (a.causal) hi = least()(hi, at + 1);
    if (lo >= hi) return { INT32_MAX, 0, at };
    return { (int)lo, (int)hi, at };
}

/* Spans of TM rows; returns what all of them reach. */
template <int TM> DEV attn_span attn_spans(const struct mlc_k_attention &a, int64_t batch,
                                           int64_t i0, attn_span *span)
{
    __syncthreads();
    if (threadIdx.x < TM) span[threadIdx.x] = attn_seen(a, batch, i0 + threadIdx.x);
    __syncthreads();
    attn_span all = span[0];
    for (int r = 1; r < TM; r++) {
        all.lo = least()(all.lo, span[r].lo);
        all.hi = most()(all.hi, span[r].hi);
    }
    return all;
}
/* The same; does one of them reach into keys [lo, hi)? */
template <int TM> DEV bool attn_reach(const struct mlc_k_attention &a, int64_t batch, int64_t i0,
                                      int64_t lo, int64_t hi, attn_span *span)
{
    bool reach = false;
    if (threadIdx.x < TM) {
        const attn_span r = attn_seen(a, batch, i0 + threadIdx.x);
        span[threadIdx.x] = r;
        reach = r.lo < hi && r.hi > lo;
    }
    return __syncthreads_or(reach) != 0;
}

/* -- tiles -- */

template <class W> struct attn_room {  /* in shared memory                                      */
    W *a, *b, *tile;                   /* slabs, TN keys by TM rows                             */
    attn_span *span;
};
template <class W, int TM> DEV attn_room<W> attn_rooms()
{
    enum { EACH = 16 / sizeof(W) };
    typedef vec<W, EACH> pack;
    MLC_SHARED(pack, a, [SLAB * (TM + UNIT) / EACH]);
    MLC_SHARED(pack, b, [SLAB * (TN + UNIT) / EACH]);
    MLC_SHARED(pack, tile, [TN * (TM + UNIT) / EACH]);
    MLC_SHARED(attn_span, span, [TM]);
    return { a[0].v, b[0].v, tile[0].v, span };
}

/* Scores of a thread's part of a tile, from products; -inf: not seen. */
template <class W, int R>
DEV void attn_scores(const struct mlc_k_attention &a, int64_t batch, int64_t head, int64_t i0,
                     int64_t j0, const attn_span *span, W (&x)[R][UNIT])
{
    const int row = (int)threadIdx.x / 16 * R, col = (int)threadIdx.x % 16 * UNIT;
    const W scale = (W)a.scale, slope = a.alibi ? (W)a.alibi[head] : (W)0;
    const int64_t *step = a.mask_stride;
    for (int r = 0; r < R; r++) {
        const attn_span s = span[row + r];
        const int64_t at = batch * step[0] + head * step[1] + (i0 + row + r) * step[2];
        for (int e = 0; e < UNIT; e++) {
            const int64_t key = j0 + col + e;
            const bool seen = key >= s.lo && key < s.hi;
            x[r][e] = seen ? x[r][e] * scale : -(W)INFINITY;
            if (seen && a.alibi) x[r][e] -= slope * (W)llabs(s.at - key);
            if (!seen || !a.mask) continue;
            const W m = get_at<W>(a.mask_dtype, a.mask, at + key * step[3]);
            if (a.mask_dtype != MLC_BOOL) x[r][e] += m;
            else if (m == 0) x[r][e] = -(W)INFINITY;
        }
    }
}

/* x becomes weights below the largest score so far. A row with a NaN or +inf is NaN. */
template <class W, int R, int C>
DEV void attn_online(W (&x)[R][UNIT], W (&max)[R], W (&sum)[R], W (&acc)[C][R][UNIT])
{
    for (int r = 0; r < R; r++) {
        W top = max[r];
        for (int e = 0; e < UNIT; e++) join_larger().join(&top, x[r][e]);
        for (int o = 8; o > 0; o /= 2) join_larger().join(&top, shuffle_xor(top, o));
        const W low = top == -(W)INFINITY ? (W)0 : top, less = exponential(max[r] - low);
        max[r] = top;
        sum[r] *= less;
        for (int c = 0; c < C; c++) for (int e = 0; e < UNIT; e++) acc[c][r][e] *= less;
        for (int e = 0; e < UNIT; e++) {
            x[r][e] = exponential(x[r][e] - low);
            sum[r] += x[r][e];
        }
    }
}

/* Factors of dropout for weights (row i, keys key, key + 1, ..). */
template <class W> DEV void attn_kept(const attn &j, int64_t batch, int64_t head, int64_t i,
                                      int64_t key, W (&keep)[UNIT])
{
    const struct mlc_k_attention &a = j.g.f;
    for (int e = 0; e < UNIT; e++) keep[e] = 1;
    if (a.drop != 0.0)
        drop_keeps(j.drop, j.stream, ((batch * a.h + head) * a.t + i) * a.s + key, 1, UNIT, keep);
}

/* Threads write their elements to tile [TN][TM + UNIT], or turned to [TM][TN + UNIT]: a slab of
 * tile_apply, whose lines are rows, or keys. */
template <int TM, class W, int R> DEV void attn_put_rows(W *tile, const W (&x)[R][UNIT])
{
    W *to = tile + (int)threadIdx.x % 16 * UNIT * (TM + UNIT) + (int)threadIdx.x / 16 * R;
    __syncthreads();
    for (int e = 0; e < UNIT; e++) {
        W row[R];
        for (int r = 0; r < R; r++) row[r] = x[r][e];
        write_run(to + e * (TM + UNIT), 1, R, true, row);
    }
}
template <class W, int R> DEV void attn_put_keys(W *tile, const W (&x)[R][UNIT])
{
    W *to = tile + (int)threadIdx.x / 16 * R * (TN + UNIT) + (int)threadIdx.x % 16 * UNIT;
    __syncthreads();
    for (int r = 0; r < R; r++) write_run(to + r * (TN + UNIT), 1, UNIT, true, x[r]);
}
/* acc += LINES lines of a tile times columns of b, of elements [from, to), in parts of TN. */
template <int LINES, int C, class W, int R>
DEV void tile_apply(const W *tile, const side &b, int64_t at, int64_t col, int64_t cols,
                    int64_t from, int64_t to, W *slab_b, W (&acc)[C][R][UNIT])
{
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int64_t first = col + c * TN;
        const W *slab = tile;
        W next[slab_place<TN>::V];
        if (first >= cols) continue;
        slab_load<TN>(b, at, first, cols, from, to, next);
        for (int64_t p = from; p < to; p += SLAB, slab += SLAB * (LINES + UNIT)) {
            __syncthreads();
            slab_keep<TN>(b, slab_b, next);
            __syncthreads();
            if (p + SLAB < to) slab_load<TN>(b, at, first, cols, p + SLAB, to, next);
            slab_multiply<LINES>(slab, slab_b, acc[c]);
        }
    }
}

/* o = factor acc, or += it. */
template <class W, int R, int C>
DEV void attn_store(const side &o, int accumulate, int64_t at, int64_t line, int64_t lines,
                    int64_t col, int64_t cols, const W (&acc)[C][R][UNIT], const W (&factor)[R])
{
    void *const out = const_cast<void *>(o.data);
    const bool whole = o.along_k && o.whole;
#pragma unroll
    for (int c = 0; c < C; c++)
        for (int r = 0; r < R; r++) {
            const int64_t i = line + (int)threadIdx.x / 16 * R + r;
            const int64_t first = col + c * TN + (int)threadIdx.x % 16 * UNIT;
            const int64_t to = at + i * o.line + first * o.step;
            const int count = i < lines ? clamp_count(cols - first, UNIT) : 0;
            W x[UNIT], old[UNIT] = {};
            if (count == 0) continue;
            if (accumulate) read_as(o.dtype, out, to, o.step, count, whole, old);
            for (int e = 0; e < UNIT; e++) x[e] = old[e] + acc[c][r][e] * factor[r];
            write_as(o.dtype, out, to, o.step, count, whole, x);
        }
}

/* -- forward -- */

/* Checks lengths [b] and offsets [sequences + 1] in one block: *bad is 1, and the error word has
 * the first place, where a length is not in [0, s], or an offset falls or is over the number of
 * rows. */
static __global__ void __launch_bounds__(THREADS)
attention_check_kernel(const struct mlc_k_attention a, int *bad)
{
    const int64_t lengths = a.lengths ? a.b : 0, each = a.q_offsets ? a.sequences + 1 : 0;
    int64_t first = NO_ROW;
    for (int64_t n = threadIdx.x; n < lengths + 2 * each && first == NO_ROW; n += THREADS) {
        const int64_t e = n - lengths, i = e < each ? e : e - each;
        const int64_t *x = n < lengths ? a.lengths + n : (e < each ? a.q_offsets : a.k_offsets) + i;
        const int64_t low = n < lengths || i == 0 ? 0 : x[-1];
        const int64_t high = n >= lengths && e < each ? a.t : a.s;
        if (*x < low || *x > high) first = n;
    }
    first = block_fold<least>(first);
    if (threadIdx.x > 0) return;
    *bad = first != NO_ROW;
    if (first == NO_ROW) return;
    if (first < lengths) {
        error_put(a.error, a.bad_length, first, a.lengths[first], a.s);
        return;
    }
    const bool keys = first - lengths >= each;
    const int64_t i = first - lengths - (keys ? each : 0);
    error_put(a.error, a.bad_offset, keys ? -1 - i : i, (keys ? a.k_offsets : a.q_offsets)[i],
              keys ? a.s : a.t);
}

/* Adds up what 16 threads have of a row's sum, which becomes 1 / sum, or 0 where no key is seen. */
template <class W, int R>
DEV void attn_finish(const attn &j, const attn_place &o, const W (&max)[R], W (&sum)[R])
{
    const struct mlc_k_attention &a = j.g.f;
    for (int r = 0; r < R; r++) {
        const int64_t i = o.line + (int)threadIdx.x / 16 * R + r;
        const bool none = max[r] == -(W)INFINITY;
        for (int s = 8; s > 0; s /= 2) sum[r] += shuffle_xor(sum[r], s);
        if (a.lse && o.col == 0 && threadIdx.x % 16 == 0 && i < a.t)
            static_cast<W *>(a.lse)[(o.batch * a.h + o.head) * a.t + i] =
                none ? max[r] : (W)((double)max[r] + log((double)sum[r]));
        sum[r] = none ? (W)0 : 1 / sum[r];
    }
}

/* y = softmax(scores) v by tiles. A block takes TM rows of a head and up to C TN columns of y. It
 * goes over the keys that the rows see, TN at a time: scores by tile_multiply, weights below the
 * largest score so far (attn_online), accumulators times weights added to. 256 threads as 16 x
 * 16: R rows and UNIT columns each. */
template <class W, int TM>
static __global__ void __launch_bounds__(THREADS, sizeof(W) == 4 ? 2 : 1)
attention_kernel(const attn j)
{
    enum { R = TM / 16, C = attn_parts<W>() };
    const struct mlc_k_attention &a = j.g.f;
    const attn_room<W> room = attn_rooms<W, TM>();
    if (j.bad && *j.bad) return;
    for (int64_t n = blockIdx.x; n < j.tiles; n += gridDim.x) {
        const attn_place o = attn_place_of<TM, C * TN>(j, n);
        const attn_span all = attn_spans<TM>(a, o.batch, o.line, room.span);
        const int64_t kv = o.head / (a.h / a.hk);
        W acc[C][R][UNIT] = {}, max[R], sum[R] = {};
        for (int r = 0; r < R; r++) max[r] = -(W)INFINITY;
        for (int64_t key = all.lo / UNIT * UNIT; key < all.hi; key += TN) {
            W x[R][UNIT] = {};
            tile_multiply<TM>(panel{ j.q, attn_at(j.q, o.batch, o.head), o.line, a.t },
                              panel{ j.k, attn_at(j.k, o.batch, kv), key, all.hi }, 0, a.d,
                              room.a, room.b, x);
            attn_scores(a, o.batch, o.head, o.line, key, room.span, x);
            attn_online(x, max, sum, acc);
            for (int r = 0; r < R; r++) {
                W keep[UNIT];
                attn_kept(j, o.batch, o.head, o.line + (int)threadIdx.x / 16 * R + r,
                          key + (int)threadIdx.x % 16 * UNIT, keep);
                for (int e = 0; e < UNIT; e++) x[r][e] *= keep[e];
            }
            attn_put_rows<TM>(room.tile, x);
            tile_apply<TM>(room.tile, j.v_turned, attn_at(j.v, o.batch, kv), o.col, a.dv, key,
                           least()(key + TN, (int64_t)all.hi), room.b, acc);
        }
        attn_finish(j, o, max, sum);
        attn_store(j.y, 0, attn_at(j.y, o.batch, o.head), o.line, a.t, o.col, a.dv, acc, sum);
    }
}

/* -- backward -- */

/* less [b,h,t] = the sum of dy y along a row of dv elements, carried in f64; a warp takes a row,
 * a lane UNIT neighbours at a time. */
template <class W> static __global__ void __launch_bounds__(THREADS)
attention_less_kernel(const attn j)
{
    const struct mlc_k_attention &a = j.g.f;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const int64_t batch = row / a.t / a.h, head = row / a.t % a.h, i = row % a.t;
    const int64_t at_y = attn_at(j.y, batch, head) + i * j.y.line;
    const int64_t at_dy = attn_at(j.dy, batch, head) + i * j.dy.line;
    double sum = 0.0;
    if (row >= a.b * a.h * a.t) return;
    for (int64_t e = threadIdx.x % WARP * UNIT; e < a.dv; e += WARP * UNIT) {
        const int count = clamp_count(a.dv - e, UNIT);
        W y[UNIT], dy[UNIT];
        read_as(j.y.dtype, j.y.data, at_y + e * j.y.step, j.y.step, count,
                j.y.along_k && j.y.whole, y);
        read_as(j.dy.dtype, j.dy.data, at_dy + e * j.dy.step, j.dy.step, count,
                j.dy.along_k && j.dy.whole, dy);
        sum += (double)((y[0] * dy[0] + y[1] * dy[1]) + (y[2] * dy[2] + y[3] * dy[3]));
    }
    sum = warp_fold<plus>(sum);
    if (threadIdx.x % WARP == 0) static_cast<W *>(j.less)[row] = (W)sum;
}

/* Of a tile: the weights p, as dropout left them, and the gradient ds of its scores. */
template <int TM, class W, int R>
DEV void attn_slopes(const attn &j, const attn_room<W> &room, int64_t batch, int64_t head,
                     int64_t i0, int64_t key, W (&p)[R][UNIT], W (&ds)[R][UNIT])
{
    const struct mlc_k_attention &a = j.g.f;
    const int64_t kv = head / (a.h / a.hk), first = i0 + (int)threadIdx.x / 16 * R;
    for (int r = 0; r < R; r++) for (int e = 0; e < UNIT; e++) p[r][e] = ds[r][e] = 0;
    tile_multiply<TM>(panel{ j.q, attn_at(j.q, batch, head), i0, a.t },
                      panel{ j.k, attn_at(j.k, batch, kv), key, a.s }, 0, a.d, room.a, room.b, p);
    tile_multiply<TM>(panel{ j.dy, attn_at(j.dy, batch, head), i0, a.t },
                      panel{ j.v, attn_at(j.v, batch, kv), key, a.s }, 0, a.dv, room.a, room.b,
                      ds);
    attn_scores(a, batch, head, i0, key, room.span, p);
    for (int r = 0; r < R; r++) {
        const int64_t row = (batch * a.h + head) * a.t + first + r;
        const bool there = first + r < a.t;
        const W lse = there ? static_cast<const W *>(a.lse)[row] : -(W)INFINITY;
        const W less = there ? static_cast<const W *>(j.less)[row] : (W)0;
        W keep[UNIT];
        attn_kept(j, batch, head, first + r, key + (int)threadIdx.x % 16 * UNIT, keep);
        for (int e = 0; e < UNIT; e++) {
            const bool seen = p[r][e] != -(W)INFINITY && lse != -(W)INFINITY;
            const W w = seen ? exponential(p[r][e] - lse) : (W)0;
            ds[r][e] = seen ? w * (ds[r][e] * keep[e] - less) : (W)0;
            p[r][e] = w * keep[e];
        }
    }
}
template <class W, int R> DEV void attn_fill(W (&x)[R], W v)
{
    for (int r = 0; r < R; r++) x[r] = v;
}

/* dq (+)= scale ds k. A block takes TM rows of a head and up to C TN columns of dq, and goes over
 * the keys that the rows see, TN at a time: attn_slopes makes the gradients ds of scores. */
template <class W, int TM>
static __global__ void __launch_bounds__(THREADS, sizeof(W) == 4 ? 2 : 1)
attention_dq_kernel(const attn j)
{
    enum { R = TM / 16, C = attn_parts<W>() };
    const struct mlc_k_attention &a = j.g.f;
    const attn_room<W> room = attn_rooms<W, TM>();
    for (int64_t n = blockIdx.x; n < j.tiles; n += gridDim.x) {
        const attn_place o = attn_place_of<TM, C * TN>(j, n);
        const attn_span all = attn_spans<TM>(a, o.batch, o.line, room.span);
        const int64_t at_k = attn_at(j.k, o.batch, o.head / (a.h / a.hk));
        W acc[C][R][UNIT] = {}, scale[R];
        for (int64_t key = all.lo / UNIT * UNIT; key < all.hi; key += TN) {
            W p[R][UNIT], ds[R][UNIT];
            attn_slopes<TM>(j, room, o.batch, o.head, o.line, key, p, ds);
            attn_put_rows<TM>(room.tile, ds);
            tile_apply<TM>(room.tile, j.k_turned, at_k, o.col, a.d, key,
                           least()(key + TN, (int64_t)all.hi), room.b, acc);
        }
        attn_fill(scale, (W)a.scale);
        attn_store(j.dq, j.g.dq_accumulate, attn_at(j.dq, o.batch, o.head), o.line, a.t, o.col,
                   a.d, acc, scale);
    }
}

/* dk (+)= scale ds^T q and dv (+)= p^T dy. A block takes TN keys of a head of k and up to C TN
 * columns, and goes over all rows of the heads of q that share it, TM at a time. */
template <class W, int TM> static __global__ void __launch_bounds__(THREADS, 1)
attention_dkv_kernel(const attn j)
{
    enum { R = TM / 16, K = TN / 16, C = attn_parts<W>() };
    const struct mlc_k_attention &a = j.g.f;
    const attn_room<W> room = attn_rooms<W, TM>();
    const int64_t group = a.h / a.hk;
    for (int64_t n = blockIdx.x; n < j.tiles; n += gridDim.x) {
        const attn_place o = attn_place_of<TN, C * TN>(j, n);
        W dk[C][K][UNIT] = {}, dv[C][K][UNIT] = {}, factor[K];
        for (int64_t h = 0; h < group; h++)
            for (int64_t i = 0; i < a.t; i += TM) {
                const int64_t head = o.head * group + h, end = least()(i + TM, a.t);
                W p[R][UNIT], ds[R][UNIT];
                if (!attn_reach<TM>(a, o.batch, i, o.line, o.line + TN, room.span)) continue;
                attn_slopes<TM>(j, room, o.batch, head, i, o.line, p, ds);
                if (j.g.dv) {
                    attn_put_keys(room.tile, p);
                    tile_apply<TN>(room.tile, j.dy_turned, attn_at(j.dy, o.batch, head), o.col,
                                   a.dv, i, end, room.b, dv);
                }
                attn_put_keys(room.tile, ds);
                if (j.g.dk)
                    tile_apply<TN>(room.tile, j.q_turned, attn_at(j.q, o.batch, head), o.col, a.d,
                                   i, end, room.b, dk);
            }
        attn_fill(factor, (W)a.scale);       /* dk first: where k is v, dv is added to it */
        if (j.g.dk)
            attn_store(j.dk, j.g.dk_accumulate, attn_at(j.dk, o.batch, o.head), o.line, a.s,
                       o.col, a.d, dk, factor);
        attn_fill(factor, (W)1);
        if (j.g.dv)
            attn_store(j.dv, j.g.dv_accumulate, attn_at(j.dv, o.batch, o.head), o.line, a.s,
                       o.col, a.dv, dv, factor);
    }
}

/* Indices of an axis that are added to place i of its gradient: from i on, below the result; all n
 * of them where the axis of the mask is 1. */
DEV int64_t attn_until(const int64_t *shape, int axis, int64_t i, int64_t each, int64_t n)
{
    return shape[axis] == 1 ? n : least()(i + each, n);
}

/* Adds the tile, summed along axes of 1, to dmask; TM rows of TN keys of ds. */
template <int TM, class W>
DEV void attn_mask_store(const struct mlc_k_attention_grad &g, const attn_place &o, const W *tile)
{
    const int64_t *shape = g.mask_shape, *step = g.dmask_stride;
    const int down = shape[2] == 1 ? TM : 1, across = shape[3] == 1 ? TN : 1, row = TN / across;
    for (int n = (int)threadIdx.x; n < TM / down * row; n += THREADS) {
        const int64_t i = o.line + n / row, key = o.col + n % row;
        const int64_t at = o.batch * step[0] + o.head * step[1] + i * step[2] + key * step[3];
        const W *from = tile + n / row * (TN + UNIT) + n % row;
        W sum = 0;
        if (i >= shape[2] || key >= shape[3]) continue;
        for (int r = 0; r < down; r++)
            for (int e = 0; e < across; e++) sum += from[r * (TN + UNIT) + e];
        if (g.dmask_accumulate) sum += get_at<W>(g.f.mask_dtype, g.dmask, at);
        put_at(g.f.mask_dtype, g.dmask, at, sum);
    }
}
/* dmask (+)= ds, summed over the axes along which the mask has size 1. A block takes TM x TN
 * elements of dmask and goes over all batches, heads, rows and keys that are added to them. */
template <class W, int TM> static __global__ void __launch_bounds__(THREADS, 1)
attention_dmask_kernel(const attn j)
{
    enum { R = TM / 16 };
    const struct mlc_k_attention &a = j.g.f;
    const int64_t *shape = j.g.mask_shape;
    const attn_room<W> room = attn_rooms<W, TM>();
    for (int64_t n = blockIdx.x; n < j.tiles; n += gridDim.x) {
        const attn_place o = attn_place_of<TM, TN>(j, n);
        const int64_t b1 = attn_until(shape, 0, o.batch, 1, a.b);
        const int64_t h1 = attn_until(shape, 1, o.head, 1, a.h);
        const int64_t i1 = attn_until(shape, 2, o.line, TM, a.t);
        const int64_t s1 = attn_until(shape, 3, o.col, TN, a.s);
        W acc[R][UNIT] = {};
        for (int64_t batch = o.batch; batch < b1; batch++)
            for (int64_t head = o.head; head < h1; head++)
                for (int64_t i = o.line; i < i1; i += TM)
                    for (int64_t key = o.col; key < s1; key += TN) {
                        W p[R][UNIT], ds[R][UNIT];
                        __syncthreads();
                        if (!attn_reach<TM>(a, batch, i, key, key + TN, room.span)) continue;
                        attn_slopes<TM>(j, room, batch, head, i, key, p, ds);
                        for (int r = 0; r < R; r++)
                            for (int e = 0; e < UNIT; e++) acc[r][e] += ds[r][e];
                    }
        attn_put_keys(room.tile, acc);
        __syncthreads();
        attn_mask_store<TM>(j.g, o, room.tile);
    }
}

/* -- entries -- */

static side attn_side(const void *data, mlc_dtype dtype, const int64_t *stride, bool turned)
{
    const int64_t batch[3] = { 0, stride[0], stride[1] };
    return side_make(data, dtype, dtype, stride[turned ? 3 : 2], stride[turned ? 2 : 3], batch);
}
static attn attn_make(const struct mlc_k_attention *a)
{
    attn j = {};
    j.g.f = *a;
    j.q = attn_side(a->q, a->dtype, a->q_stride, false);
    j.k = attn_side(a->k, a->dtype, a->k_stride, false);
    j.v = attn_side(a->v, a->dtype, a->v_stride, false);
    j.y = attn_side(a->y, a->dtype, a->y_stride, false);
    j.q_turned = attn_side(a->q, a->dtype, a->q_stride, true);
    j.k_turned = attn_side(a->k, a->dtype, a->k_stride, true);
    j.v_turned = attn_side(a->v, a->dtype, a->v_stride, true);
    j.drop = drop_made(a->drop);
    j.stream = { a->drop_seed, a->drop_stream, a->drop_base };
    return j;
}
static attn attn_make_grad(const struct mlc_k_attention_grad *g)
{
    const mlc_dtype dtype = g->f.dtype;
    attn j = attn_make(&g->f);
    j.g = *g;
    j.dy = attn_side(g->dy, dtype, g->dy_stride, false);
    j.dy_turned = attn_side(g->dy, dtype, g->dy_stride, true);
    j.dq = attn_side(g->dq, dtype, g->dq_stride, false);
    j.dk = attn_side(g->dk, dtype, g->dk_stride, false);
    j.dv = attn_side(g->dv, dtype, g->dv_stride, false);
    j.less = g->workspace;
    return j;
}
/* Keys and rows are counted by int. */
static bool attn_takes(const struct mlc_k_attention *a)
{
    return is_float(a->dtype) && a->t < INT32_MAX / 2 && a->s < INT32_MAX / 2;
}
static int64_t attn_blocks(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* Calls f(type_tag<W>(), count_tag<TM>()): few rows have a tile of few. */
template <class F> static mlc_status attn_tile(const struct mlc_k_attention *a, const F &f)
{
    if (a->dtype == MLC_F64) return f(type_tag<double>(), count_tag<TN / 2>());
    return a->t < LOW_BELOW ? f(type_tag<float>(), count_tag<LOW>())
                            : f(type_tag<float>(), count_tag<TN>());
}
/* Launches a kernel over batches by heads by blocks of lines, and of columns. */
static mlc_status attn_launch(void *dev, const char *name, attn j, int64_t batches, int64_t heads,
                              int64_t down, int64_t across, void (*kernel)(attn))
{
    j.heads = heads;
    j.down = down;
    j.across = across;
    j.tiles = batches * heads * down * across;
    const dim3 grid((unsigned)(j.tiles < INT32_MAX ? j.tiles : INT32_MAX));
    return j.tiles == 0 ? MLC_OK : launch(dev, name, grid, dim3(THREADS), 0, kernel, j);
}
/* Blocks of columns of W for n of them, at least one. */
template <class W> static int64_t attn_across(int64_t n)
{
    return attn_blocks(n > 0 ? n : 1, attn_parts<W>() * TN);
}

static size_t attention_workspace(void *, const struct mlc_k_attention *a)
{
    return a->lengths || a->q_offsets ? sizeof(int) : 0;
}
static mlc_status attention_entry(void *dev, const struct mlc_k_attention *a)
{
    if (!attn_takes(a)) return MLC_ERR_UNSUPPORTED;
    if (a->workspace_bytes < attention_workspace(dev, a)) return MLC_ERR_INTERNAL;
    attn j = attn_make(a);
    if (a->lengths || a->q_offsets) {
        j.bad = static_cast<int *>(a->workspace);
        const mlc_status st = launch(dev, "attention_check", dim3(1), dim3(THREADS), 0,
                                     attention_check_kernel, *a, j.bad);
        if (st != MLC_OK) return st;
    }
    return attn_tile(a, [&](auto wide, auto tile) {
        typedef TYPE(wide) W;
        enum { TM = decltype(tile)::value };
        return attn_launch(dev, "attention", j, a->b, a->h, attn_blocks(a->t, TM),
                           attn_across<W>(a->dv), attention_kernel<W, TM>);
    });
}

static size_t attention_grad_workspace(void *, const struct mlc_k_attention_grad *g)
{
    return (size_t)(g->f.b * g->f.h * g->f.t) * (g->f.dtype == MLC_F64 ? 8 : 4);
}
template <class W, int TM> static mlc_status attn_grads(void *dev, const attn &j)
{
    const struct mlc_k_attention_grad &g = j.g;
    const struct mlc_k_attention &a = g.f;
    const int64_t *mask = g.mask_shape, rows = a.b * a.h * a.t;
    mlc_status st = MLC_OK;
    if (rows > 0)
        st = launch(dev, "attention_less", dim3((unsigned)attn_blocks(rows, WARPS)), dim3(THREADS),
                    0, attention_less_kernel<W>, j);
    if (st == MLC_OK && g.dq)
        st = attn_launch(dev, "attention_dq", j, a.b, a.h, attn_blocks(a.t, TM),
                         attn_across<W>(a.d), attention_dq_kernel<W, TM>);
    if (st == MLC_OK && (g.dk || g.dv))
        st = attn_launch(dev, "attention_dkv", j, a.b, a.hk, attn_blocks(a.s, TN),
                         attn_across<W>(a.d > a.dv ? a.d : a.dv), attention_dkv_kernel<W, TM>);
    if (st == MLC_OK && g.dmask)
        st = attn_launch(dev, "attention_dmask", j, mask[0], mask[1], attn_blocks(mask[2], TM),
                         attn_blocks(mask[3], TN), attention_dmask_kernel<W, TM>);
    return st;
}
static mlc_status attention_grad_entry(void *dev, const struct mlc_k_attention_grad *g)
{
    if (!attn_takes(&g->f)) return MLC_ERR_UNSUPPORTED;
    if (g->workspace_bytes < attention_grad_workspace(dev, g)) return MLC_ERR_INTERNAL;
    const attn j = attn_make_grad(g);
    return attn_tile(&g->f, [&](auto wide, auto tile) {
        return attn_grads<TYPE(wide), decltype(tile)::value>(dev, j);
    });
}

/* @@ CUDA.OPTIM ------------------------------------------ optim, guard, average
 * One launch a run of parameters; T is the dtype of p and g, W that of states. Numbers of a step
 * are made in f64 by a thread of each block and rounded once. A thread takes 16 bytes of p and what
 * belongs to them. The words that round a bf16 p are the CPU's: half a word an element. A rule with
 * norms has two launches before: sums of squares by block, then the ratio, in workspace. guard is
 * one block. Nothing is written where the step is skipped or error[0] is not 0. */

enum { OPTIM_EACH = 4, NORM_BLOCKS = 1024 };     /* vectors of a thread; blocks that sum up     */

/* A family of rules has a kernel, which chooses among them for all lanes at once: lanes stay in
 * registers. SGD and LARS; Adam and LAMB; MLC_ELEMENT_RULES. */
enum optim_family { OPTIM_SGD, OPTIM_ADAM, OPTIM_ELEMENT };

/* Which rule reads what: sgd b1 and c1 for its momentum, adam shrink and decay, lamb decay and
 * unbias, rules of MLC_ELEMENT_RULES k; the others are common. */
template <class W> struct optim_numbers {
    W k[10];
    W rate, decay, shrink, b1, c1, b2, c2, eps, root, unbias, scale, bound, momentum;
};

/* Gradients are limited by a number of their own dtype. */
template <class T, class W> DEV W optim_bound(double clamp, double scale)
{
    T bound;
    if (clamp == 0.0) return (W)INFINITY;
    store(&bound, (W)(clamp / scale));
    return load(bound);
}

template <class W> DEV void optim_numbers_sgd(const struct mlc_k_optim &a, double ratio,
                                              optim_numbers<W> *k)
{
    const bool first = a.step->first != 0;
    if (a.rule == MLC_RULE_LARS) k->rate = (W)(a.step->lr * ratio);
    k->b1 = first ? (W)0 : k->momentum;
    k->c1 = first ? (W)1 : (W)(1.0 - a.coefs[1]);
}
template <class W> DEV void optim_numbers_adam(const struct mlc_k_optim &a, double ratio,
                                               optim_numbers<W> *k)
{
    const struct mlc_step_state &s = *a.step;
    const double *coefs = a.coefs;
    const bool lamb = a.rule == MLC_RULE_LAMB, shrinks = !lamb && coefs[3] != 0.0;
    k->b1 = (W)coefs[0];
    k->c1 = (W)(1.0 - coefs[0]);
    k->b2 = (W)coefs[1];
    k->c2 = (W)(1.0 - coefs[1]);
    k->eps = (W)coefs[2];
    k->root = (W)(1.0 / sqrt(s.bias2));
    k->unbias = (W)(1.0 / s.bias1);
    k->rate = (W)(lamb ? s.lr * ratio : s.lr / s.bias1);
    k->shrink = (W)(shrinks ? 1.0 - s.lr * s.weight_decay : 1.0);
    if (shrinks) k->decay = 0;
}
template <class T, optim_family F, class W>
DEV void optim_numbers_of(const struct mlc_k_optim &a, double ratio, optim_numbers<W> *k)
{
    const struct mlc_step_state &s = *a.step;
    k->scale = (W)s.grad_scale;
    k->bound = optim_bound<T, W>(a.clamp, s.grad_scale);
    k->rate = (W)s.lr;
    k->decay = (W)s.weight_decay;
    k->momentum = (W)a.coefs[0];
    if (F == OPTIM_SGD) optim_numbers_sgd(a, ratio, k);
    if (F == OPTIM_ADAM) optim_numbers_adam(a, ratio, k);
    for (int i = 0; F == OPTIM_ELEMENT && i < 10; i++) k->k[i] = (W)s.k[i];
}

/* Moments of d; their quotient. */
template <class W> DEV W optim_moments(const optim_numbers<W> &k, W d, W *m, W *v)
{
    *m = k.b1 * *m + k.c1 * d;
    *v = k.b2 * *v + k.c2 * d * d;
    return *m / (f_sqrt(*v) * k.root + k.eps);
}
template <class W> DEV W optim_lamb(const optim_numbers<W> &k, W g, W p, W *m, W *v)
{
    return k.unbias * optim_moments(k, k.scale * g, m, v) + k.decay * p;
}
template <class W> DEV W optim_sgd(const optim_numbers<W> &k, W g, W p, W *m, bool has, bool ahead)
{
    const W d = k.scale * g + k.decay * p;
    if (!has) return p - k.rate * d;
    *m = k.b1 * *m + k.c1 * d;
    return p - k.rate * (ahead ? d + k.momentum * *m : *m);
}
template <class W> DEV W optim_lars(const optim_numbers<W> &k, W g, W p, W *m)
{
    *m = k.momentum * *m + k.rate * (k.scale * g + k.decay * p);
    return p - *m;
}
/* By the rules' text: numbers has their k. */
#define ELEMENT_CASE(x_, NAME, name, states, numbers, step) \
    case MLC_RULE_##NAME: { step return x; }
template <mlc_rule R, class T> DEV T optim_element(const T *k, T d, T x, T &m, T &v, T &w)
{
    switch (R) {
        MLC_ELEMENT_RULES(ELEMENT_CASE, F, any)
        default: return x;
    }
}

/* Elements i .. i + V of a run; p, g and states of V lanes. */
template <class W, int V> struct optim_lanes { W p[V], g[V], m[V], v[V], w[V]; };

template <mlc_rule R, class W, int V> DEV void optim_elements(const optim_numbers<W> &k,
                                                              optim_lanes<W, V> *l)
{
    for (int e = 0; e < V; e++)
        l->p[e] = optim_element<R>(k.k, k.scale * l->g[e], l->p[e], l->m[e], l->v[e], l->w[e]);
}
#define ELEMENTS_CASE(x_, NAME, name, states, numbers, step) \
    case MLC_RULE_##NAME: return optim_elements<MLC_RULE_##NAME>(k, l);
/* What p becomes, by the rules of a family that is not OPTIM_ELEMENT. */
template <optim_family F, class W> DEV W optim_one(const struct mlc_k_optim &a,
                                                   const optim_numbers<W> &k, W g, W p, W *m, W *v)
{
    if (F == OPTIM_SGD)
        return a.rule == MLC_RULE_LARS ? optim_lars(k, g, p, m)
                                       : optim_sgd(k, g, p, m, a.n_state > 0, a.coefs[2] != 0.0);
    return a.rule == MLC_RULE_LAMB
               ? p - k.rate * optim_lamb(k, g, p, m, v)
               : k.shrink * p - k.rate * optim_moments(k, k.scale * g + k.decay * p, m, v);
}
template <optim_family F, class W, int V> DEV void optim_step(const struct mlc_k_optim &a,
                                                              const optim_numbers<W> &k,
                                                              optim_lanes<W, V> *l)
{
    if constexpr (F != OPTIM_ELEMENT) {
        for (int e = 0; e < V; e++)
            l->p[e] = optim_one<F>(a, k, l->g[e], l->p[e], &l->m[e], &l->v[e]);
    } else {
        switch (a.rule) {
            MLC_ELEMENT_RULES(ELEMENTS_CASE, F, any)
            default: return;
        }
    }
}

/* V elements of an array, or those below count and zeros. */
template <int V, class T, class W> DEV void lanes_get(W *to, const T *from, int64_t count,
                                                      bool whole)
{
    enum { N = 16 / sizeof(T) < V ? 16 / sizeof(T) : V };
    for (int i = 0; i < V; i += N) {
        if (whole) {
            const vec<T, N> x = vec_load<N>(from + i);
            for (int e = 0; e < N; e++) to[i + e] = load(x.v[e]);
        } else {
            for (int e = i; e < i + N; e++) to[e] = e < count ? (W)load(from[e]) : (W)0;
        }
    }
}
template <int V, class T> DEV void lanes_put(T *to, const T *from, int64_t count, bool whole)
{
    enum { N = 16 / sizeof(T) < V ? 16 / sizeof(T) : V };
    for (int i = 0; i < V; i += N) {
        if (whole) {
            vec<T, N> x;
            for (int e = 0; e < N; e++) x.v[e] = from[i + e];
            vec_store<N>(to + i, x);
        } else {
            for (int e = i; e < i + N && e < count; e++) to[e] = from[e];
        }
    }
}

/* What p is stored as; of bf16 one of the two beside it, by the chance of half a word each. */
template <int V, class T> DEV void optim_round(T *to, const T *p, const struct mlc_k_optim &,
                                               int64_t)
{
    for (int e = 0; e < V; e++) to[e] = p[e];
}
template <int V> DEV void optim_round(bf16 *to, const float *p, const struct mlc_k_optim &a,
                                      int64_t i)
{
    const words r = philox(a.seed, a.step->stream, (uint64_t)(a.first + i) / 8);
    for (int e = 0; e < V; e++) {
        const uint32_t bits = f32_bits(p[e]), chance = r.w[e / 2] >> (e % 2 * 16) & 0xffff;
        to[e].bits = (uint16_t)(p[e] != p[e] ? bits >> 16 | 0x40 : (bits + chance) >> 16);
    }
}

template <class T, class W, int V> DEV void optim_get(const struct mlc_k_optim &a, int64_t i,
                                                      bool whole, W bound, optim_lanes<W, V> *l)
{
    const int64_t count = a.n - i;
    lanes_get<V>(l->p, static_cast<const T *>(a.p) + i, count, whole);
    lanes_get<V>(l->g, static_cast<const T *>(a.g) + i, count, whole);
    if (a.n_state > 0) lanes_get<V>(l->m, static_cast<const W *>(a.state[0]) + i, count, whole);
    if (a.n_state > 1) lanes_get<V>(l->v, static_cast<const W *>(a.state[1]) + i, count, whole);
    if (a.n_state > 2) lanes_get<V>(l->w, static_cast<const W *>(a.state[2]) + i, count, whole);
    for (int e = 0; e < V; e++)
        l->g[e] = l->g[e] > bound ? bound : l->g[e] < -bound ? -bound : l->g[e];
}
template <class T, optim_family F, class W, int V>
DEV void optim_vector(const struct mlc_k_optim &a, int64_t i, bool whole, const optim_numbers<W> &k)
{
    const int64_t count = a.n - i;
    optim_lanes<W, V> l;
    T p[V];
    optim_get<T, W, V>(a, i, whole, k.bound, &l);
    optim_step<F>(a, k, &l);
    optim_round<V>(p, l.p, a, i);
    lanes_put<V>(static_cast<T *>(a.p) + i, p, count, whole);
    if (a.n_state > 0) lanes_put<V>(static_cast<W *>(a.state[0]) + i, l.m, count, whole);
    if (a.n_state > 1) lanes_put<V>(static_cast<W *>(a.state[1]) + i, l.v, count, whole);
    if (a.n_state > 2) lanes_put<V>(static_cast<W *>(a.state[2]) + i, l.w, count, whole);
}

DEV bool optim_rests(const struct mlc_k_optim &a)
{
    return a.step->skip != 0 || (a.error && a.error[0] != 0);
}

/* Is there a gradient for one of v elements from i on? */
DEV bool optim_any(const struct mlc_k_optim &a, int64_t i, int v)
{
    if (!a.touched) return true;
    const int64_t last = (i + v < a.n ? i + v : a.n) - 1;
    for (int64_t r = i / a.cols; r <= last / a.cols; r++) if (a.touched[r]) return true;
    return false;
}

/* A step of n dense parameters: a thread takes OPTIM_EACH vectors of 16 bytes of p, THREADS
 * apart. The numbers of the step are made once a block, in shared memory. ratio: |p| / |u| of a
 * rule with norms; NULL is 1. */
template <class T, optim_family F> static __global__ void __launch_bounds__(THREADS)
optim_kernel(struct mlc_k_optim a, bool aligned, const double *ratio)
{
    typedef typename wide<T>::type W;
    enum { V = 16 / sizeof(T) };
    MLC_SHARED(optim_numbers<W>, numbers, [1]);
    if (optim_rests(a)) return;
    if (threadIdx.x == 0) optim_numbers_of<T, F>(a, ratio ? *ratio : 1.0, numbers);
    __syncthreads();
    const optim_numbers<W> k = numbers[0];
    for (int e = 0; e < OPTIM_EACH; e++) {
        const int64_t i = (((int64_t)blockIdx.x * OPTIM_EACH + e) * THREADS + threadIdx.x) * V;
        if (i < a.n && optim_any(a, i, V))
            optim_vector<T, F, W, V>(a, i, aligned && i + V <= a.n, k);
    }
}

/* Is the ratio of a rule with norms 1, whatever they are? */
DEV bool optim_plain(const struct mlc_k_optim &a)
{
    return a.rule == MLC_RULE_LARS ? a.rows == 0 : a.step->weight_decay == 0.0;
}

/* sums [blocks,2]: squares of p and of the update of a rule with norms, in f64; vectors of 16
 * bytes with a stride of the grid. */
template <class T> static __global__ void __launch_bounds__(THREADS)
optim_norm_kernel(struct mlc_k_optim a, bool aligned, double *sums)
{
    typedef typename wide<T>::type W;
    enum { V = 16 / sizeof(T) };
    double p = 0.0, u = 0.0;
    if (optim_rests(a) || optim_plain(a)) return;
    optim_numbers<W> k;
    if (a.rule == MLC_RULE_LARS) optim_numbers_of<T, OPTIM_SGD>(a, 1.0, &k);
    else optim_numbers_of<T, OPTIM_ADAM>(a, 1.0, &k);
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V; i < a.n;
         i += (int64_t)gridDim.x * THREADS * V) {
        optim_lanes<W, V> l;
        optim_get<T, W, V>(a, i, aligned && i + V <= a.n, k.bound, &l);
        for (int e = 0; e < V; e++) {
            const W update = a.rule == MLC_RULE_LARS
                                 ? k.scale * l.g[e]
                                 : optim_lamb(k, l.g[e], l.p[e], &l.m[e], &l.v[e]);
            const bool counts = i + e < a.n;
            p += counts ? (double)l.p[e] * (double)l.p[e] : 0.0;
            u += counts ? (double)update * (double)update : 0.0;
        }
    }
    p = block_fold<plus>(p);
    u = block_fold<plus>(u);
    if (threadIdx.x > 0) return;
    sums[2 * blockIdx.x] = p;
    sums[2 * blockIdx.x + 1] = u;
}
/* *ratio from the n sums of optim_norm_kernel, in one block: |p| / |u| of LAMB, trust |p| / (|u|
 * + decay |p| + eps) of LARS; 1 if one is 0 or not finite. */
static __global__ void __launch_bounds__(THREADS)
optim_ratio_kernel(struct mlc_k_optim a, const double *sums, int n, double *ratio)
{
    double p = 0.0, u = 0.0;
    if (optim_rests(a)) return;
    for (int i = (int)threadIdx.x; i < n && !optim_plain(a); i += THREADS) {
        p += sums[2 * i];
        u += sums[2 * i + 1];
    }
    p = block_fold<plus>(p);
    u = block_fold<plus>(u);
    const double r = a.rule == MLC_RULE_LARS
                         ? a.coefs[1] * sqrt(p) /
                               (sqrt(u) + a.step->weight_decay * sqrt(p) + a.coefs[2])
                         : sqrt(p) / sqrt(u);
    if (threadIdx.x == 0) *ratio = p > 0.0 && u > 0.0 && r < (double)INFINITY ? r : 1.0;
}

static bool optim_normed(const struct mlc_k_optim *a)
{
    return a->rule == MLC_RULE_LAMB || a->rule == MLC_RULE_LARS;
}

static size_t optim_workspace(void *, const struct mlc_k_optim *a)
{
    return optim_normed(a) ? (1 + 2 * NORM_BLOCKS) * sizeof(double) : 0;
}

template <class T> static mlc_status optim_run(void *dev, const struct mlc_k_optim *a, bool aligned)
{
    const int64_t vectors = (a->n * (int64_t)sizeof(T) + 15) / 16;
    const int64_t each = THREADS * OPTIM_EACH, norms = (vectors + each - 1) / each;
    const int sums = (int)(norms < NORM_BLOCKS ? norms : (int)NORM_BLOCKS);
    double *ratio = optim_normed(a) ? static_cast<double *>(a->workspace) : NULL;
    mlc_status st = MLC_OK;
    if (ratio)
        st = launch(dev, "optim_norm", dim3((unsigned)sums), dim3(THREADS), 0, optim_norm_kernel<T>,
                    *a, aligned, ratio + 1);
    if (ratio && st == MLC_OK)
        st = launch(dev, "optim_ratio", dim3(1), dim3(THREADS), 0, optim_ratio_kernel, *a,
                    ratio + 1, sums, ratio);
    const auto kernel = a->rule > MLC_RULE_LARS ? optim_kernel<T, OPTIM_ELEMENT>
        : a->rule == MLC_RULE_ADAM || a->rule == MLC_RULE_LAMB ? optim_kernel<T, OPTIM_ADAM>
                                                               : optim_kernel<T, OPTIM_SGD>;
    return st != MLC_OK ? st
        : launch(dev, "optim", dim3((unsigned)norms), dim3(THREADS), 0, kernel, *a, aligned, ratio);
}

static mlc_status optim_entry(void *dev, const struct mlc_k_optim *a)
{
    uint64_t bits = (uintptr_t)a->p | (uintptr_t)a->g;
    for (int32_t s = 0; s < a->n_state; s++) bits |= (uintptr_t)a->state[s];
    const bool aligned = unit_of(bits) == 16;
    if ((unsigned)a->rule >= MLC_RULE_COUNT || a->packs) return MLC_ERR_UNSUPPORTED;
    if (a->state_dtype == MLC_BF16 || a->state_dtype == MLC_U8) return MLC_ERR_UNSUPPORTED;
    if (a->n == 0) return MLC_OK;
    if (a->workspace_bytes < optim_workspace(dev, a)) return MLC_ERR_INTERNAL;
    if (a->dtype == MLC_F32) return optim_run<float>(dev, a, aligned);
    if (a->dtype == MLC_F64) return optim_run<double>(dev, a, aligned);
    return a->dtype == MLC_BF16 ? optim_run<bf16>(dev, a, aligned) : MLC_ERR_UNSUPPORTED;
}

/* -- guard: whether the step is made, and what the passes read -- */

/* After a bad step the scale shrinks, after enough good ones it grows, within its bounds. */
DEV void guard_scale(mlc_scaler_state *s, const mlc_scaler_desc &rule, bool good)
{
    if (!good) {
        const double less = s->scale * rule.backoff;
        s->scale = less > rule.floor ? less : rule.floor;
        s->good = 0;
        s->skipped++;
        s->skipped_row++;
        return;
    }
    s->skipped_row = 0;
    if (++s->good < rule.interval) return;
    s->good = 0;
    if (s->scale * rule.growth <= rule.cap) s->scale *= rule.growth;
}
DEV void guard_next(const struct mlc_k_guard &a, bool good)
{
    struct mlc_guard_state *state = a.state;
    int64_t norm, scale;
    if (a.has_scaler) guard_scale(&state->scaler, a.rule, good);
    if (good || (a.has_scaler && state->scaler.skipped_row < a.rule.patience)) return;
    memcpy(&norm, &state->norm, sizeof norm);
    memcpy(&scale, &state->scaler.scale, sizeof scale);
    error_put(a.error, a.bad, state->scaler.skipped_row, norm, scale);
}

/* Squares of the run that parameter i belongs to; where none begins before it those of all. */
DEV double guard_squares(const struct mlc_k_guard &a, int64_t i, double all)
{
    while (i >= 0 && a.set[i].due != 2) i--;
    return i >= 0 ? a.squares[i] : all;
}

#define ELEMENT_NUMBERS(x_, NAME, name, states, numbers, step) \
    case MLC_RULE_##NAME: { numbers } break;
static DEV void guard_numbers(mlc_rule rule, const double *h, struct mlc_step_state *s)
{
    double *k = s->k;
    switch (rule) {
        MLC_ELEMENT_RULES(ELEMENT_NUMBERS, F, any)
        default: break;
    }
}

DEV void guard_step(const struct mlc_k_guard &a, int64_t i, double grad_scale, bool good,
                    int64_t steps)
{
    struct mlc_step_state *s = &a.step[i];
    const double made = (double)(s->made + 1), carry[2] = { s->carry[0], s->carry[1] };
    const bool corrects = a.optim == MLC_RULE_ADAM || a.optim == MLC_RULE_LAMB;
    s->lr = a.set[i].lr;
    s->weight_decay = a.set[i].weight_decay;
    s->bias1 = corrects ? 1.0 - pow(a.coefs[0], made) : 1.0;
    s->bias2 = corrects ? 1.0 - pow(a.coefs[1], made) : 1.0;
    s->grad_scale = grad_scale;
    s->first = s->made == 0;
    s->skip = !good;
    s->made++;
    guard_numbers(a.optim, a.coefs, s);
    s->made -= !good;
    for (int i = 0; i < 2 && !good; i++) s->carry[i] = carry[i];
    s->stream = a.stream + (uint64_t)steps;
}

/* Decides on a step, in one block: adds the squares of all runs, finds whether the norm is
 * finite, writes step [n] for each parameter that is due, then scaler, norm and steps of the
 * state, and the error word. */
static __global__ void __launch_bounds__(THREADS)
guard_kernel(struct mlc_k_guard a)
{
    const struct mlc_guard_state before = *a.state;
    const double unscale = a.share / (a.has_scaler ? before.scaler.scale : 1.0);
    double all = 0.0;
    if (a.error[0] != 0) return;
    for (int64_t i = threadIdx.x; a.squares && i < a.n; i += THREADS)
        if (a.set[i].due == 2) all += a.squares[i];
    all = block_fold<plus>(all);       /* and all have read state                               */
    const bool good = all - all == 0.0;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
        const double squares = a.each && a.squares ? guard_squares(a, i, all) : all;
        const double clip = a.max_norm > 0.0 ? a.max_norm / (sqrt(squares) * unscale + 1e-6) : 1.0;
        if (a.set[i].due)
            guard_step(a, i, unscale * (clip < 1.0 ? clip : 1.0), good, before.steps);
    }
    if (threadIdx.x > 0) return;
    a.state->steps += good;
    if (!a.squares) return;
    a.state->norm = sqrt(all) * unscale;
    guard_next(a, good);
}
static mlc_status guard_entry(void *dev, const struct mlc_k_guard *a)
{
    return launch(dev, "guard", dim3(1), dim3(THREADS), 0, guard_kernel, *a);
}

/* -- average: of parameters, after a step -- */

enum { AVERAGE_EACH = 8 };             /* elements of a thread                                  */

/* As the CPU's: what p weighs in avg; 0: it does not count. */
DEV double average_share(const struct mlc_k_average &a)
{
    const int64_t t = a.state->steps - a.base - a.start, i = t / a.every;
    const double n = (double)i, quick = 9.0 / (n + 10.0);
    if ((a.step && a.step->skip) || (a.error && a.error[0])) return 0.0;
    if (t < 0 || t != i * a.every) return 0.0;
    if (i == 0) return 1.0;
    if (a.mean) return 1.0 / (n + 1.0);
    return a.warmup && quick > a.share ? quick : a.share;
}

template <class T> DEV void average_swap(T *p, T *avg, bool)
{
    const T was = *p;
    *p = *avg;
    *avg = was;
}
DEV void average_swap(bf16 *p, float *avg, bool on)
{
    uint32_t x = f32_bits(*avg);
    if (on && (x & 0x7fffffffu) > 0x7f800000u) x = (x | 0x400000u) & 0xffff0000u;
    const uint32_t low = x & 0xffffu, up = low >> 15, was = p->bits;
    p->bits = (uint16_t)((x >> 16) + (on ? up : 0u));
    *avg = bits_f32((on ? was : (was - up) & 0xffffu) << 16 | low);
}

template <class T, class W> DEV void average_take(T *p, W *avg, double w, bool back)
{
    const W x = load(*p), s = *avg, share = (W)w, rest = (W)(1.0 - w);
    const W next = w < 0.5 ? s + share * (x - s) : x - rest * (x - s);
    *avg = next;
    if (back) store(p, next);
}

/* n dense parameters p and their average avg, AVERAGE_EACH of them a thread, THREADS apart. TAKE:
 * avg moves toward p by a weight made once a block; ON, OFF: both change places. */
template <class T> static __global__ void __launch_bounds__(THREADS)
average_kernel(struct mlc_k_average a)
{
    typedef typename wide<T>::type W;
    MLC_SHARED(double, weight, [1]);
    const bool take = a.part == MLC_AVERAGE_TAKE;
    if (threadIdx.x == 0) weight[0] = take ? average_share(a) : 1.0;
    __syncthreads();
    const double w = weight[0];
    if (w == 0.0) return;
    for (int e = 0; e < AVERAGE_EACH; e++) {
        const int64_t i = ((int64_t)blockIdx.x * AVERAGE_EACH + e) * THREADS + threadIdx.x;
        T *p = static_cast<T *>(a.p) + i;
        W *avg = static_cast<W *>(a.avg) + i;
        if (i >= a.n) return;
        if (take) average_take(p, avg, w, a.back != 0);
        else average_swap(p, avg, a.part == MLC_AVERAGE_ON);
    }
}

template <class T> static mlc_status average_run(void *dev, const struct mlc_k_average *a)
{
    const int64_t each = (int64_t)THREADS * AVERAGE_EACH;
    return launch(dev, "average", dim3((unsigned)((a->n + each - 1) / each)), dim3(THREADS), 0,
                  average_kernel<T>, *a);
}
static mlc_status average_entry(void *dev, const struct mlc_k_average *a)
{
    if (a->n == 0) return MLC_OK;
    if (a->dtype == MLC_F32) return average_run<float>(dev, a);
    if (a->dtype == MLC_F64) return average_run<double>(dev, a);
    return a->dtype == MLC_BF16 ? average_run<bf16>(dev, a) : MLC_ERR_UNSUPPORTED;
}

/* @@ CUDA.TABLE ------------------------------------------ the backend */

/* One line an entry; an entry that is not written is not set and stays NULL. */
static void table_fill(mlc_kernels *k)
{
    k->map = map_entry;
    k->math = math_entry;
    k->compare = compare_entry;
    k->where = where_entry;
    k->cast = cast_entry;
    k->fill = fill_entry;
    k->band = band_entry;
    k->pad = pad_entry;
    k->whole = whole_entry;
    k->random = random_entry;
    k->random_workspace = random_workspace;
    k->dropout = dropout_entry;
    k->reduce = reduce_entry;
    k->reduce_workspace = reduce_workspace;
    k->aggregate = aggregate_entry;
    k->aggregate_workspace = aggregate_workspace;
    k->argmax = argmax_entry;
    k->argmax_workspace = argmax_workspace;
    k->squares = squares_entry;
    k->squares_workspace = squares_workspace;
    k->finite = finite_entry;
    k->scan = scan_entry;
    k->scan_workspace = scan_workspace;
    k->softmax = softmax_entry;
    k->softmax_grad = softmax_grad_entry;
    k->norm = norm_entry;
    k->norm_grad = norm_grad_entry;
    k->norm_grad_workspace = norm_grad_workspace;
    k->gemm = gemm_entry;
    k->gemm_workspace = gemm_workspace;
    k->attention = attention_entry;
    k->attention_workspace = attention_workspace;
    k->attention_grad = attention_grad_entry;
    k->attention_grad_workspace = attention_grad_workspace;
    k->xent = xent_entry;
    k->xent_workspace = xent_workspace;
    k->xent_grad = xent_grad_entry;
    k->take = take_entry;
    k->index = index_entry;
    k->index_workspace = index_workspace;
    k->optim = optim_entry;
    k->optim_workspace = optim_workspace;
    k->guard = guard_entry;
    k->average = average_entry;
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
    b->info = device_info;
    table_fill(&b->kernels);
}

const char *mlc_cuda_error(void) { return g_why; }

mlc_status mlc_cuda_register(void)
{
    mlc_backend b;
    int cards = 0;
    const cudaError_t e = cudaGetDeviceCount(&cards);
    g_why[0] = 0;
    if (e != cudaSuccess || cards == 0) {
        snprintf(g_why, sizeof g_why, "%s",
                 e == cudaSuccess ? "there is no card" : cudaGetErrorString(e));
        return MLC_ERR_DEVICE;
    }
    mlc_cuda_backend(&b);
    const mlc_status st = mlc_backend_register(&b);
    if (st != MLC_OK)
        snprintf(g_why, sizeof g_why,
                 "mlcore.h of another version, or \"cuda\" is registered already");
    return st;
}
