/* cuda_runtime.h of the host build: runs CUDA kernels on the CPU, one thread at a time.
 * Found by -Itests/cuda_host before the real one; the .cu file itself has no #ifdef for it.
 * Blocks run in sequence, in random order; threads are fibers that switch at barriers and warp
 * operations only, in random order; CUDA_HOST_SEED chooses it (0: in order). A thread that meets no
 * barrier costs a call. Device memory is an arena that is PROT_NONE while no kernel or copy runs.
 * ASan: gaps between device blocks and shared arrays are poisoned. TSan: each thread is a TSan
 * fiber, and only barriers, warp operations and launches order them: races are found whatever the
 * order was. Errors end the program with kernel, block, thread, line. */
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <sys/mman.h>

#if defined(__SANITIZE_THREAD__)
#define CH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CH_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CH_ASAN 1
#endif
#endif
#ifdef CH_TSAN
extern "C" { void *__tsan_get_current_fiber(void); void *__tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned); void __tsan_acquire(void *); void __tsan_release(void *); }
#define CH_ACQUIRE(p) __tsan_acquire(p)
#define CH_RELEASE(p) __tsan_release(p)
#define CH_NOSAN __attribute__((noinline, no_sanitize("thread")))
#else
#define CH_ACQUIRE(p) ((void)(p))
#define CH_RELEASE(p) ((void)(p))
#define CH_NOSAN __attribute__((noinline))
#endif
#ifdef CH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define CH_POISON(p, n) __asan_poison_memory_region(p, n)
#define CH_UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define CH_POISON(p, n) ((void)(p), (void)(n))
#define CH_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
struct alignas(16) float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint3 threadIdx, blockIdx;      /* set at each switch */
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_host {
constexpr int kMax = 1024, kStack = 64 << 10;
constexpr size_t kArena = (size_t)1 << 30, kShared = (size_t)256 << 20, kGap = 64;
enum State : uint8_t { kNew, kReady, kWait, kDone };
struct Warp { uint64_t slot[2][32]; unsigned arrived, mask, gen; int line; const char *op; };
struct Fiber { void *sp; char *stack; void *tsan, *fake; int set; };
struct Thread { Fiber *fiber; State state; uint3 at; };
struct Shared { const void *key; char *at; };
struct World {
    void *main_sp; void *main_tsan, *main_fake; const void *main_stack; size_t main_size;
    Fiber fiber[2 * kMax + 2], *spare[2][kMax + 1], *starting; int fibers, spares[2], set;   /* set: of the block, with TSan */
    Thread thread[kMax]; Warp warp[kMax / 32];
    int order[kMax], n, next, done, self;
    int ready[kMax], readies;
    int at_barrier, barrier_line; unsigned barrier_gen;
    int barrier_or[2];
    char start, end, *sync;            /* addresses for TSan; sync: others for each block */
    void (*body)(void *); void *args;
    Shared shared[64]; int shareds; char *shared_base; size_t shared_used; size_t dynamic; char *dyn;
    uint64_t rng; bool shuffle; const char *kernel; bool running;
    char *arena; struct Block { size_t at, bytes; } block[65536]; int blocks; int open; size_t top; bool lax;
    uint64_t launches, switches;
};
inline World w;

[[noreturn]] CH_NOSAN inline void fail(const char *what, int line)
{
    fprintf(stderr, "cuda_host: %s at line %d: block (%u,%u,%u) thread (%u,%u,%u)\n", what, line, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}
CH_NOSAN inline uint32_t rnd() { w.rng = w.rng * 6364136223846793005ull + 1442695040888963407ull; return (uint32_t)(w.rng >> 33); }

extern "C" void cuda_host_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.weak cuda_host_switch\n.type cuda_host_switch,@function\ncuda_host_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size cuda_host_switch,.-cuda_host_switch\n");
#else
#error "port cuda_host_switch (or use ucontext)"
#endif

CH_NOSAN inline void enter(int t)      /* this fiber is thread t now */
{
    w.self = t; threadIdx = w.thread[t].at;
}
/* Leaves the running fiber for another one, or for the host (NULL). dying: never comes back. */
CH_NOSAN inline void hop(Fiber *from, Fiber *to)
{
    void *dummy; void **save = from ? &from->sp : &w.main_sp; (void)dummy;
    w.switches++;
#ifdef CH_ASAN
    __sanitizer_start_switch_fiber(from ? &from->fake : &w.main_fake, to ? to->stack : w.main_stack,
                                   to ? (size_t)kStack : w.main_size);
#endif
#ifdef CH_TSAN
    __tsan_switch_to_fiber(to ? to->tsan : w.main_tsan, 1);
#endif
    cuda_host_switch(save, to ? to->sp : w.main_sp);
#ifdef CH_ASAN
    __sanitizer_finish_switch_fiber(from ? from->fake : w.main_fake, nullptr, nullptr);
#endif
}
inline Fiber *fiber_new();
CH_NOSAN inline Fiber *pick()          /* who runs next: a ready one, or a fresh fiber for a new thread; or NULL */
{
    if (w.readies) {
        if (w.next >= w.n || !w.shuffle || (rnd() & 1)) {
            const int i = w.shuffle ? (int)(rnd() % (unsigned)w.readies) : w.readies - 1, t = w.ready[i];
            w.ready[i] = w.ready[--w.readies];
            w.thread[t].state = kReady; enter(t);
            return w.thread[t].fiber;
        }
    }
    return w.next < w.n ? fiber_new() : nullptr;
}
inline void barrier_try();
CH_NOSAN inline void wait_here(Fiber *me, const char *what, int line)
{
    Thread *t = &w.thread[w.self];
    t->state = kWait; t->fiber = me;
    Fiber *to = pick();
    if (!to) fail(what, line);
    if (to != me) hop(me, to);
}
CH_NOSAN inline void fiber_main()
{
#ifdef CH_ASAN
    __sanitizer_finish_switch_fiber(nullptr, w.main_stack ? nullptr : &w.main_stack, &w.main_size);
#endif
    for (;;) {
        Fiber *me = nullptr;
        while (w.next < w.n) {
            const int t = w.order[w.next++];
            enter(t);
            if (!me) me = w.thread[t].fiber = w.starting;
            w.thread[t].fiber = me; w.thread[t].state = kReady;
            CH_ACQUIRE(&w.start);
            w.body(w.args);
            CH_RELEASE(&w.end);
            w.thread[w.self].state = kDone; w.done++;
            me = w.thread[w.self].fiber;
            barrier_try();
#ifdef CH_TSAN
            break;                     /* a stack of its own for each thread: TSan's shadow stacks */
#endif
        }
        Fiber *to = w.done == w.n ? nullptr : pick();
        w.spare[me->set][w.spares[me->set]++] = me;
        if (!to && w.done < w.n) fail("deadlock: threads wait for others that have ended", 0);
        hop(me, to);
        w.starting = me;               /* woken to start a new thread */
    }
}
CH_NOSAN inline Fiber *fiber_new()
{
    Fiber *f;
    if (w.spares[w.set]) f = w.spare[w.set][--w.spares[w.set]];
    else {
        f = &w.fiber[w.fibers++];
        f->set = w.set;
        f->stack = (char *)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uintptr_t top = (uintptr_t)(f->stack + kStack) & ~(uintptr_t)15;
        void **sp = (void **)top;
        *--sp = nullptr; *--sp = (void *)fiber_main;
        for (int i = 0; i < 6; i++) *--sp = nullptr;
        f->sp = sp;
#ifdef CH_TSAN
        f->tsan = __tsan_create_fiber(0);
#endif
    }
    w.starting = f;                    /* tells fiber_main who it is */
    return f;
}
CH_NOSAN inline Fiber *self_fiber() { return w.thread[w.self].fiber; }
CH_NOSAN inline void barrier_try()     /* opens the barrier if all that live are there */
{
    if (!w.at_barrier || w.at_barrier < w.n - w.done) return;
    w.at_barrier = 0; w.barrier_gen++;
    w.barrier_or[w.barrier_gen & 1] = 0;
    for (int t = 0; t < w.n; t++) if (w.thread[t].state == kWait) { w.ready[w.readies++] = t; w.thread[t].state = kNew; }
}
CH_NOSAN inline int barrier(int value, int line)
{
    if (!w.running) fail("barrier outside a kernel", line);
    if (w.at_barrier && line != w.barrier_line) fail("divergent __syncthreads: others wait at another line", line);
    const unsigned gen = w.barrier_gen;
    w.barrier_line = line; w.at_barrier++;
    w.barrier_or[gen & 1] |= value;
    CH_RELEASE(w.sync + (gen & 1) * 8);
    if (w.at_barrier == w.n - w.done) barrier_try();
    if (w.barrier_gen == gen || w.shuffle) {
        if (w.barrier_gen != gen) { w.ready[w.readies++] = w.self; }
        const int me = w.self; (void)me;
        wait_here(self_fiber(), "deadlock: __syncthreads that others do not reach", line);
    }
    CH_ACQUIRE(w.sync + (gen & 1) * 8);
    return w.barrier_or[gen & 1];
}
/* All lanes of mask give a word; then each may read those of all. */
CH_NOSAN inline const uint64_t *meet(unsigned mask, uint64_t bits, const char *op, int line)
{
    (void)op;
    const int lane = w.self % 32; Warp *q = &w.warp[w.self / 32];
    if (!(mask >> lane & 1)) fail("warp operation: the caller is not in its mask", line);
    if (q->arrived && (q->mask != mask || q->line != line)) fail("warp operation: lanes differ in mask or place", line);
    const unsigned gen = q->gen;
    q->mask = mask; q->line = line; q->slot[gen & 1][lane] = bits; q->arrived |= 1u << lane;
    char *const sync = w.sync + 16 + (w.self / 32 * 2 + (int)(gen & 1)) * 8;
    CH_RELEASE(sync);
    if (q->arrived == mask) {
        q->arrived = 0; q->gen++;
        const int base = w.self / 32 * 32;
        for (int i = 0; i < 32; i++) if (i != lane && (mask >> i & 1)) w.ready[w.readies++] = base + i;
    } else {
        for (int i = 0, base = w.self / 32 * 32; i < 32; i++)
            if ((mask >> i & 1) && (base + i >= w.n || w.thread[base + i].state == kDone)) fail("warp operation: its mask has a lane that ended or never was", line);
        wait_here(self_fiber(), "deadlock: warp operation that others of its mask do not reach", line);
    }
    CH_ACQUIRE(sync);
    return q->slot[gen & 1];
}
/* Not memset: TSan would see the write of one thread. */
CH_NOSAN inline void fill(void *p, size_t n)
{
#if defined(__x86_64__)
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(0xff) : "memory");
#endif
}
/* Shared arrays: the same address for all threads of a block, other addresses for each block. */
CH_NOSAN inline void *shared(const void *key, size_t bytes)
{
    for (int i = 0; i < w.shareds; i++) if (w.shared[i].key == key) return w.shared[i].at;
    bytes = (bytes + 7) / 8 * 8;
    if (w.shareds == 64 || w.shared_used + bytes + 2 * kGap > kShared / 2) fail("shared arena is full", 0);
    char *p = w.shared_base + w.shared_used + kGap;
    w.shared_used += (bytes + kGap + 63) / 64 * 64;
    CH_UNPOISON(p, bytes);
    fill(p, bytes);                    /* NaN: what nobody has written shows */
    w.shared[w.shareds].key = key; w.shared[w.shareds++].at = p;
    return p;
}
struct Key { const void *p; };
inline void arena_init()
{
    w.arena = (char *)mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    w.shared_base = (char *)mmap(nullptr, kShared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CH_POISON(w.arena, kArena);
    CH_POISON(w.shared_base, kShared);
    const char *s = getenv("CUDA_HOST_SEED");
    w.rng = s ? strtoull(s, nullptr, 10) : 1;
    w.shuffle = w.rng != 0;
    w.lax = getenv("CUDA_HOST_LAX") != nullptr;
    if (w.lax) mprotect(w.arena, kArena, PROT_READ | PROT_WRITE);
}
/* mprotect costs by pages touched: only up to the highest block; CUDA_HOST_LAX=1 leaves it open. */
inline void arena_open() { if (!w.arena) arena_init(); if (w.open++ == 0 && !w.lax) mprotect(w.arena, w.top, PROT_READ | PROT_WRITE); }
inline void arena_shut() { if (--w.open == 0 && !w.lax) mprotect(w.arena, w.top, PROT_NONE); }
CH_NOSAN inline void run(const dim3 grid, const dim3 block, size_t dynamic, void (*body)(void *), void *args)
{
    arena_open();
    const int64_t blocks = (int64_t)grid.x * grid.y * grid.z;
    w.n = (int)(block.x * block.y * block.z);
    if (w.n < 1 || w.n > kMax - 1 + 1) fail("more than 1024 threads in a block", 0);
    w.body = body; w.args = args; w.dynamic = dynamic; gridDim = grid; blockDim = block; w.running = true; w.launches++;
#ifdef CH_TSAN
    w.main_tsan = __tsan_get_current_fiber();
#endif
    CH_RELEASE(&w.start);
    /* Blocks: i a + b modulo their number, a coprime to it: an order at random without a table. */
    uint64_t a = 1, b = 0;
    if (w.shuffle && blocks > 1) {
        auto gcd = [](uint64_t x, uint64_t y) { while (y) { const uint64_t z = x % y; x = y; y = z; } return x; };
        do a = rnd() % (uint64_t)blocks; while (gcd(a, (uint64_t)blocks) != 1);
        b = rnd() % (uint64_t)blocks;
    }
    w.shared_used = 0;
    for (int64_t i = 0; i < blocks; i++) {
        const uint64_t k = ((uint64_t)i * a + b) % (uint64_t)blocks;
        blockIdx = {(unsigned)(k % grid.x), (unsigned)(k / grid.x % grid.y), (unsigned)(k / grid.x / grid.y)};
        const size_t poisoned = w.shared_used;
#ifdef CH_TSAN
        w.set = (int)(i & 1);          /* a fiber's own order would hide races between blocks */
#else
        w.shared_used = 0;
#endif
        CH_POISON(w.shared_base, poisoned);
        w.shareds = 0; w.dyn = nullptr;
        w.sync = w.shared_base + kShared / 2 + (i & 4095) * 1024;
        for (int t = 0; t < w.n; t++) {
            w.order[t] = t; w.thread[t].state = kNew;
            w.thread[t].at = {(unsigned)t % block.x, (unsigned)t / block.x % block.y, (unsigned)t / block.x / block.y};
        }
        /* Whole warps are shuffled, then their lanes: cheap and enough. */
        for (int t = w.n - 1; w.shuffle && t > 0; t--) { const int o = (int)(rnd() % (unsigned)(t + 1)), x = w.order[t]; w.order[t] = w.order[o]; w.order[o] = x; }
        for (int q = 0; q < (w.n + 31) / 32; q++) w.warp[q].arrived = 0;
        w.next = w.done = w.readies = w.at_barrier = 0;
        hop(nullptr, fiber_new());
    }
    CH_ACQUIRE(&w.end);
    w.running = false;
    arena_shut();
}
template <class T> inline uint64_t to_bits(T v) { uint64_t b = 0; static_assert(sizeof v <= 8, ""); memcpy(&b, &v, sizeof v); return b; }
template <class T> inline T of_bits(uint64_t b) { T v; memcpy(&v, &b, sizeof v); return v; }
} // namespace cuda_host

/* In the .cu: #ifndef MLC_SHARED, then plain __shared__. */
#define MLC_SHARED(type, name, dims) \
    static const char name##_key = 0; using name##_type = type dims; \
    name##_type &name = *(name##_type *)cuda_host::shared(&name##_key, sizeof(name##_type))

inline void __syncthreads(int line = __builtin_LINE()) { cuda_host::barrier(0, line); }
inline int __syncthreads_or(int v, int line = __builtin_LINE()) { return cuda_host::barrier(v, line); }
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { cuda_host::meet(mask, 0, "syncwarp", line); }
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int width = 32, int line = __builtin_LINE())
{ const int lane = cuda_host::w.self % 32, from = lane ^ x; (void)width; return cuda_host::of_bits<T>(cuda_host::meet(m, cuda_host::to_bits(v), "shfl", line)[from]); }
template <class T> inline T __shfl_sync(unsigned m, T v, int from, int width = 32, int line = __builtin_LINE())
{ (void)width; return cuda_host::of_bits<T>(cuda_host::meet(m, cuda_host::to_bits(v), "shfl", line)[from & 31]); }
template <class T> inline T __shfl_down_sync(unsigned m, T v, int d, int width = 32, int line = __builtin_LINE())
{ (void)width; const int lane = cuda_host::w.self % 32; return cuda_host::of_bits<T>(cuda_host::meet(m, cuda_host::to_bits(v), "shfl", line)[lane + d < 32 ? lane + d : lane]); }
inline unsigned __ballot_sync(unsigned m, int p, int line = __builtin_LINE())
{ const uint64_t *s = cuda_host::meet(m, p != 0, "ballot", line); unsigned r = 0; for (int i = 0; i < 32; i++) if ((m >> i & 1) && s[i]) r |= 1u << i; return r; }
template <class T> inline T atomicAdd(T *p, T v)
{ if constexpr (std::is_integral_v<T>) return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
  else { using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>; U o = __atomic_load_n((U *)p, __ATOMIC_ACQUIRE), n; T x; do { memcpy(&x, &o, sizeof x); const T y = x + v; memcpy(&n, &y, sizeof n); } while (!__atomic_compare_exchange_n((U *)p, &o, n, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)); return x; } }
inline void __threadfence() {}
template <class T> inline T __ldg(const T *p) { return *p; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

/* ---- the runtime's calls that are used ---- */
typedef enum cudaError { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInvalidValue = 1 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; size_t dynamicSmemBytes; cudaStream_t stream; void *attrs; unsigned numAttrs; };
template <class... E, class... A> inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(E...), A &&...a)
{
    struct Call { void (*kernel)(E...); std::tuple<E...> args; } call{kernel, std::tuple<E...>(std::forward<A>(a)...)};
    cuda_host::run(c->gridDim, c->blockDim, c->dynamicSmemBytes, [](void *p) { Call *q = (Call *)p; std::apply(q->kernel, q->args); }, &call);
    return cudaSuccess;
}
inline cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t)
{
    using namespace cuda_host;
    if (!w.arena) arena_init();
    size_t at = 256; int i = 0;
    const size_t size = bytes;
    for (; i < w.blocks; i++) { if (w.block[i].at >= at + size + kGap) break; at = (w.block[i].at + w.block[i].bytes + kGap + 255) / 256 * 256; }
    if (at + size + kGap > kArena || w.blocks == 65536) return cudaErrorMemoryAllocation;
    memmove(&w.block[i + 1], &w.block[i], sizeof w.block[0] * (size_t)(w.blocks - i));
    w.block[i] = {at, size}; w.blocks++;
    *p = w.arena + at;
    if (at + size > w.top) w.top = (at + size + 4095) / 4096 * 4096;
    arena_open(); CH_UNPOISON(*p, size); memset(*p, 0xff, size); arena_shut();
    return cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void *p, cudaStream_t)
{
    using namespace cuda_host;
    for (int i = 0; i < w.blocks; i++) if (w.arena + w.block[i].at == p) {
        CH_POISON(p, w.block[i].bytes);
        memmove(&w.block[i], &w.block[i + 1], sizeof w.block[0] * (size_t)(w.blocks - i - 1)); w.blocks--;
        if (w.blocks == 0) { madvise(w.arena, w.top, MADV_DONTNEED); w.top = 0; }
        return cudaSuccess; }
    return cudaErrorInvalidValue;
}
inline cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, cudaMemcpyKind, cudaStream_t)
{ cuda_host::arena_open(); memmove(d, s, n); cuda_host::arena_shut(); return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : e == cudaErrorMemoryAllocation ? "out of memory" : "invalid value"; }

