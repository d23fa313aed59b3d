/* cuda_runtime.h of the host build: the part of CUDA that mlcore_cuda.cu uses, on the CPU
 *
 * Found by -Itests/cuda_host before CUDA's own. fibers.h runs the kernels. A stream is a queue:
 * work that is asynchronous on a GPU is done here when the host waits, asks for an event (a random
 * number of entries then), or the queue is long. So a buffer that is used again too early, or read
 * before it is there, gives wrong numbers. Copies between pageable memory and the device are as
 * CUDA has them: to the device the source is read at once, to the host the call waits.
 *
 * CUDA_HOST_DEVICES=n: so many cards (2). g_count counts calls by what they do. g_room limits the
 * bytes that are lent. fail_at(n): the n-th call from now on fails; fail_kernel_at(n): the n-th
 * kernel from now on fails when it runs, and all calls after it. */
#pragma once
#include "fibers.h"

#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4  { unsigned x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(8)  float2 { float x, y; };
struct alignas(8)  uint2  { unsigned x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4  make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr int warpSize = 32;

/* In the .cu: #ifndef MLC_SHARED, then plain __shared__. */
#define MLC_SHARED(type, name, dims) \
    static const char name##_key = 0; \
    using name##_type = type dims; \
    name##_type &name = *(name##_type *)cuda_host::shared(&name##_key, sizeof(name##_type))

/* ---- device functions ---- */

inline void __syncthreads(int line = __builtin_LINE()) { cuda_host::barrier(0, line); }
inline int  __syncthreads_or(int v, int line = __builtin_LINE())
{
    return cuda_host::barrier(v, line);
}
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE())
{
    cuda_host::meet(mask, 0, line);
}

/* The lane's value where `from` is outside of its part of `width` lanes. */
template <class T> inline T cuda_host_shuffle(unsigned mask, T v, int from, int width, int line)
{
    const int       lane = cuda_host::w.self % 32, first = lane / width * width;
    const uint64_t *s = cuda_host::meet(mask, cuda_host::to_bits(v), line);
    if (from < first || from >= first + width) from = lane;
    if (!(mask >> from & 1)) cuda_host::fail("shuffle: reads a lane outside of its mask", line);
    return cuda_host::of_bits<T>(s[from]);
}
template <class T> inline T __shfl_sync(unsigned mask, T v, int from, int width = 32,
                                        int line = __builtin_LINE())
{
    const int first = cuda_host::w.self % 32 / width * width;
    return cuda_host_shuffle(mask, v, first + (from & (width - 1)), width, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32,
                                            int line = __builtin_LINE())
{
    return cuda_host_shuffle(mask, v, (cuda_host::w.self % 32) ^ x, width, line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32,
                                             int line = __builtin_LINE())
{
    return cuda_host_shuffle(mask, v, cuda_host::w.self % 32 + (int)d, width, line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32,
                                           int line = __builtin_LINE())
{
    return cuda_host_shuffle(mask, v, cuda_host::w.self % 32 - (int)d, width, line);
}
inline unsigned __ballot_sync(unsigned mask, int p, int line = __builtin_LINE())
{
    const uint64_t *s = cuda_host::meet(mask, p != 0, line);
    unsigned        r = 0;
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) && s[i]) r |= 1u << i;
    return r;
}
inline int __any_sync(unsigned mask, int p, int line = __builtin_LINE())
{
    return __ballot_sync(mask, p, line) != 0;
}
inline int __all_sync(unsigned mask, int p, int line = __builtin_LINE())
{
    return __ballot_sync(mask, p, line) == mask;
}

/* Replaces *p by f(*p), as one access; returns the old value. */
template <class T, class F> inline T cuda_host_atomic(T *p, F f)
{
    using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    U old = __atomic_load_n((U *)p, __ATOMIC_ACQUIRE), next;
    T x;
    do {
        memcpy(&x, &old, sizeof x);
        const T y = f(x);
        memcpy(&next, &y, sizeof y);
    } while (!__atomic_compare_exchange_n((U *)p, &old, next, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return x;
}
template <class T> inline T atomicAdd(T *p, T v)
{
    return cuda_host_atomic(p, [v](T x) { return (T)(x + v); });
}
template <class T> inline T atomicMin(T *p, T v)
{
    return cuda_host_atomic(p, [v](T x) { return x < v ? x : v; });
}
template <class T> inline T atomicMax(T *p, T v)
{
    return cuda_host_atomic(p, [v](T x) { return x > v ? x : v; });
}
template <class T> inline T atomicOr(T *p, T v)
{
    return cuda_host_atomic(p, [v](T x) { return (T)(x | v); });
}
template <class T> inline T atomicExch(T *p, T v)
{
    return cuda_host_atomic(p, [v](T) { return v; });
}
template <class T> inline T atomicCAS(T *p, T want, T v)
{
    return cuda_host_atomic(p, [want, v](T x) { return x == want ? v : x; });
}
inline void __threadfence() {}
template <class T> inline T __ldg(const T *p) { return *p; }
inline int   __popc(unsigned x) { return __builtin_popcount(x); }
inline int   __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int   __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }

/* ---- the runtime ---- */

typedef enum cudaError {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700
} cudaError_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrMemoryPoolsSupported = 115
};
enum cudaMemPoolAttr {
    cudaMemPoolAttrReleaseThreshold = 4, cudaMemPoolAttrReservedMemCurrent = 5,
    cudaMemPoolAttrUsedMemCurrent = 7
};
struct cudaDeviceProp { char name[256]; };
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
struct cudaMemPoolProps {
    cudaMemAllocationType allocType;
    struct { cudaMemLocationType type; int id; } location;
};
struct CUmemPool_st { int device; };
typedef struct CUmemPool_st *cudaMemPool_t;

struct CUevent_st { bool recorded = false, done = true; };
typedef struct CUevent_st *cudaEvent_t;
struct CUstream_st {
    int                               device;
    std::deque<std::function<void()>> queue;
    int                               leaving;         /* blocks freed by calls in the queue     */
};
typedef struct CUstream_st *cudaStream_t;

namespace cuda_host {

/* Contexts of several threads take turns; a protection key opens the arena to one thread alone. */
inline std::recursive_mutex g_mutex;
typedef std::lock_guard<std::recursive_mutex> Lock;

inline thread_local int g_device;
inline cudaError_t g_sticky, g_last;   /* sticky: a kernel failed, and nothing works any more   */
inline int64_t     g_fail_at, g_fail_kernel_at, g_calls;
/* COUNT_WAIT: until a stream or an event is done, where it was not yet.                        */
enum Count {
    COUNT_LAUNCH, COUNT_PINNED, COUNT_ON_DEVICE, COUNT_PAGEABLE, COUNT_ALLOC, COUNT_FREE,
    COUNT_HOST_ALLOC, COUNT_MAKE, COUNT_RECORD, COUNT_QUERY, COUNT_SYNC, COUNT_WAIT, COUNTS
};
inline int64_t g_count[COUNTS], g_events, g_pools;
inline size_t  g_room = kArena;
struct Pinned { const char *at; size_t bytes; };
inline std::deque<Pinned> g_pinned_blocks;
inline std::deque<cudaStream_t> g_streams;

inline void fail_at(int64_t n) { g_fail_at = n; }
inline void fail_kernel_at(int64_t n) { g_fail_kernel_at = n; }
inline void forgive() { g_fail_at = g_fail_kernel_at = 0; g_sticky = g_last = cudaSuccess; }

inline size_t lent()
{
    size_t bytes = 0;
    for (int i = 0; i < w.blocks; i++) bytes += w.block[i].bytes;
    return bytes;
}

inline cudaError_t say(cudaError_t e)
{
    if (e != cudaSuccess && e != cudaErrorNotReady) g_last = e;
    return e;
}
/* What a call answers before it does anything. */
inline cudaError_t call(cudaError_t failure = cudaErrorInvalidValue, Count count = COUNTS)
{
    g_calls++;
    if (count < COUNTS) g_count[count]++;
    if (g_fail_at > 0 && --g_fail_at == 0) return say(failure);
    return g_sticky;
}

inline bool is_pinned(const void *p, size_t bytes)
{
    const char *at = (const char *)p;
    for (const Pinned &b : g_pinned_blocks)
        if (at >= b.at && at + bytes <= b.at + b.bytes) return true;
    return false;
}

/* Kernels flush denormals, as nvcc's -ftz=true does of f32, whatever the thread's mode is. */
struct Flush {
    const unsigned before = __builtin_ia32_stmxcsr();
    Flush() { __builtin_ia32_ldmxcsr(before | 0x8040); }
    ~Flush() { __builtin_ia32_ldmxcsr(before); }
};

/* Does the oldest n entries of a stream. */
inline void advance(cudaStream_t s, size_t n)
{
    if (s->queue.empty() || n == 0) return;
    const Flush flush;
    arena_open();
    while (n-- > 0 && !s->queue.empty()) {
        const std::function<void()> f = std::move(s->queue.front());
        s->queue.pop_front();
        if (g_sticky == cudaSuccess) f();
    }
    arena_shut();
}
inline void drain(cudaStream_t s) { advance(s, s->queue.size()); }
inline void drain_all()
{
    for (cudaStream_t s : g_streams) drain(s);
}
inline void push(cudaStream_t s, std::function<void()> f)
{
    if (!s) fail("the default stream is used", 0);
    if (s->device != g_device) fail("a stream of another device than the current one", 0);
    s->queue.push_back(std::move(f));
    if (s->queue.size() > 256) advance(s, 1 + rnd() % 256);
}

inline bool config_is_valid(const dim3 &g, const dim3 &b, size_t dynamic)
{
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;
    return g.x && g.y && g.z && g.x <= 0x7fffffff && g.y <= 65535 && g.z <= 65535 && threads &&
           threads <= 1024 && b.z <= 64 && dynamic <= 48 << 10;
}

/* Of a kernel's arguments, those that are pointers: to device or pinned memory, or NULL. */
template <class T> inline void check_argument(const T &v)
{
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>)
        if (v && !in_arena(v, 0) && !is_pinned(v, 0)) fail("a kernel is given host memory", 0);
    (void)v;
}

} // namespace cuda_host

struct cudaLaunchConfig_t {
    dim3         gridDim, blockDim;
    size_t       dynamicSmemBytes;
    cudaStream_t stream;
    void        *attrs;
    unsigned     numAttrs;
};
template <class... E, class... A>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(E...), A &&...a)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    using namespace cuda_host;
    struct Call {
        void (*kernel)(E...);
        std::tuple<E...> args;
    };
    const cudaError_t e = call(cudaErrorInvalidConfiguration, COUNT_LAUNCH);
    if (e != cudaSuccess) return e;
    if (!config_is_valid(c->gridDim, c->blockDim, c->dynamicSmemBytes))
        return say(cudaErrorInvalidConfiguration);
    const Call   made{kernel, std::tuple<E...>(std::forward<A>(a)...)};
    std::apply([](const E &...v) { (check_argument(v), ...); }, made.args);
    const dim3   grid = c->gridDim, block = c->blockDim;
    const size_t dynamic = c->dynamicSmemBytes;
    push(c->stream, [=]() mutable {
        if (g_fail_kernel_at > 0 && --g_fail_kernel_at == 0) {
            g_sticky = cudaErrorIllegalAddress;
            return;
        }
        Call own = made;
        run(grid, block, dynamic,
            [](void *p) { std::apply(((Call *)p)->kernel, ((Call *)p)->args); }, &own);
    });
    return cudaSuccess;
}

/* -- devices, streams, events -- */

inline cudaError_t cudaGetDeviceCount(int *n)
{
    const char *text = getenv("CUDA_HOST_DEVICES");
    *n = text ? atoi(text) : 2;
    return *n > 0 ? cudaSuccess : cuda_host::say(cudaErrorNoDevice);
}
inline cudaError_t cudaSetDevice(int device)
{
    int n = 0;
    cudaGetDeviceCount(&n);
    if (device < 0 || device >= n) return cuda_host::say(cudaErrorInvalidDevice);
    cuda_host::g_device = device;
    return cuda_host::g_sticky;
}
inline cudaError_t cudaGetDevice(int *device)
{
    *device = cuda_host::g_device;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr attr, int)
{
    *v = attr == cudaDevAttrMultiProcessorCount ? 4
       : attr == cudaDevAttrComputeCapabilityMajor ? 9 : 1;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    snprintf(p->name, sizeof p->name, "host card %d", device);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_MAKE);
    if (e != cudaSuccess) return e;
    *s = new CUstream_st{cuda_host::g_device, {}, 0};
    cuda_host::g_streams.push_back(*s);
    return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_QUERY);
    return e != cudaSuccess ? e : s->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_SYNC);
    if (e != cudaSuccess) return e;
    cuda_host::drain(s);
    return cuda_host::say(cuda_host::g_sticky);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    cuda_host::drain(s);
    for (auto i = cuda_host::g_streams.begin(); i != cuda_host::g_streams.end(); ++i)
        if (*i == s) {
            cuda_host::g_streams.erase(i);
            break;
        }
    delete s;
    return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_MAKE);
    if (e != cudaSuccess) return e;
    *event = new CUevent_st;
    cuda_host::g_events++;
    return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cuda_host::g_events--;
    delete event;
    return cudaSuccess;
}
/* The stream of an event is found again when it is asked for: there are few of them. */
inline std::deque<std::pair<cudaEvent_t, cudaStream_t>> g_event_stream;
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_RECORD);
    if (e != cudaSuccess) return e;
    event->recorded = true;
    event->done = false;
    for (auto &pair : g_event_stream)
        if (pair.first == event) pair.first = nullptr;
    g_event_stream.emplace_back(event, s);
    if (g_event_stream.size() > 64) g_event_stream.pop_front();
    cuda_host::push(s, [event] { event->done = true; });
    return cudaSuccess;
}
inline cudaStream_t cuda_host_stream_of(cudaEvent_t event)
{
    for (auto &pair : g_event_stream)
        if (pair.first == event) return pair.second;
    return nullptr;
}
inline cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t  e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_QUERY);
    const cudaStream_t s = cuda_host_stream_of(event);
    if (e != cudaSuccess) return e;
    if (!event->done && s) cuda_host::advance(s, cuda_host::rnd() % 16);
    if (cuda_host::g_sticky != cudaSuccess) return cuda_host::g_sticky;
    if (!event->done) cuda_host::g_last = cudaErrorNotReady;   /* as CUDA does                  */
    return event->done ? cudaSuccess : cudaErrorNotReady;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t  e = cuda_host::call();
    const cudaStream_t s = cuda_host_stream_of(event);
    if (e != cudaSuccess) return e;
    if (!event->done) cuda_host::g_count[cuda_host::COUNT_WAIT]++;
    while (!event->done && s && !s->queue.empty() && cuda_host::g_sticky == cudaSuccess)
        cuda_host::advance(s, 1);
    return cuda_host::g_sticky;
}
inline cudaError_t cudaGetLastError()
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::g_last;
    cuda_host::g_last = cudaSuccess;
    return cuda_host::g_sticky != cudaSuccess ? cuda_host::g_sticky : e;
}
inline cudaError_t cudaPeekAtLastError() { return cuda_host::g_last; }
inline const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return "invalid argument";
    }
}

/* -- memory -- */

/* There is no default pool: it belongs to the program. */
inline cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *props)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorInvalidValue, cuda_host::COUNT_MAKE);
    if (e != cudaSuccess) return e;
    if (props->allocType != cudaMemAllocationTypePinned ||
        props->location.type != cudaMemLocationTypeDevice)
        return cuda_host::say(cudaErrorInvalidValue);
    *pool = new CUmemPool_st{props->location.id};
    cuda_host::g_pools++;
    return cudaSuccess;
}
inline cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    cuda_host::g_pools--;
    delete pool;
    return cudaSuccess;
}
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    return cuda_host::call();
}
inline cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *value)
{
    const uint64_t none = 0;           /* nothing is kept: memory not lent is free              */
    memcpy(value, &none, sizeof none);
    return cuda_host::call();
}
inline cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
inline cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    *free = cuda_host::g_room - cuda_host::lent();
    *total = cuda_host::kArena;
    return cudaSuccess;
}
/* A block that another stream has freed is free when that stream has done so: this one waits, as
 * the pools of a card let it by default. */
inline cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    using namespace cuda_host;
    const cudaError_t e = call(cudaErrorMemoryAllocation, COUNT_ALLOC);
    if (e != cudaSuccess) return e;
    for (cudaStream_t other : g_streams)
        if (other != s && other->leaving > 0) drain(other);
    void *const at = g_room < kArena && lent() + bytes > g_room ? nullptr : arena_take(bytes);
    if (!at) return say(cudaErrorMemoryAllocation);
    push(s, [at, bytes] {
        CH_UNPOISON(at, bytes);
        memset(at, 0xff, bytes);
    });
    *p = at;
    return cudaSuccess;
}
inline cudaError_t cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t s)
{
    if (!pool || pool->device != s->device) cuda_host::fail("a pool of another device", 0);
    return cudaMallocAsync(p, bytes, s);
}
inline cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    using namespace cuda_host;
    const size_t bytes = arena_give(p);
    g_count[COUNT_FREE]++;
    if (!bytes) fail("free of what is no device memory", 0);
    s->leaving++;
    push(s, [s, p, bytes] { CH_POISON(p, bytes); arena_drop(p, bytes); s->leaving--; });
    return g_sticky;
}
inline cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call(cudaErrorMemoryAllocation, cuda_host::COUNT_HOST_ALLOC);
    if (e != cudaSuccess) return e;
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!*p) return cuda_host::say(cudaErrorMemoryAllocation);
    cuda_host::g_pinned_blocks.push_back({(const char *)*p, bytes});
    return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void *p)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    for (auto i = cuda_host::g_pinned_blocks.begin(); i != cuda_host::g_pinned_blocks.end(); ++i)
        if (i->at == p) {
            cuda_host::g_pinned_blocks.erase(i);
            free(p);
            return cudaSuccess;
        }
    return cuda_host::say(cudaErrorInvalidValue);
}
inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    const cudaError_t e = cuda_host::call();
    if (e != cudaSuccess) return e;
    if (!cuda_host::in_arena(p, bytes)) cuda_host::fail("a memset of host memory", 0);
    cuda_host::push(s, [=] { memset(p, value, bytes); });
    return e;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t s)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    using namespace cuda_host;
    const cudaError_t e = call();
    if (e != cudaSuccess) return e;
    const void *const host = kind == cudaMemcpyHostToDevice ? from : to;
    if (in_arena(to, bytes) != (kind != cudaMemcpyDeviceToHost) ||
        in_arena(from, bytes) != (kind != cudaMemcpyHostToDevice))
        fail("a copy whose ends are not where its kind says", 0);
    if (kind == cudaMemcpyDeviceToDevice || is_pinned(host, bytes)) {
        g_count[kind == cudaMemcpyDeviceToDevice ? COUNT_ON_DEVICE : COUNT_PINNED]++;
        push(s, [=] { memmove(to, from, bytes); });
        return cudaSuccess;
    }
    g_count[COUNT_PAGEABLE]++;
    if (kind == cudaMemcpyHostToDevice) {
        const std::shared_ptr<char> kept((char *)malloc(bytes + !bytes), ::free);
        memcpy(kept.get(), from, bytes);
        push(s, [=] { memcpy(to, kept.get(), bytes); });
        return cudaSuccess;
    }
    push(s, [=] { memcpy(to, from, bytes); });
    drain(s);
    return g_sticky;
}
