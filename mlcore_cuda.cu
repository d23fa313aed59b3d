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
    (void)device_post; (void)device_poll; (void)device_message; (void)device_operation;
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
