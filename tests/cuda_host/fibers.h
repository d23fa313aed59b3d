/* fibers.h -- runs CUDA kernels on the CPU, one thread at a time, to find their errors
 *
 * Blocks run one after another, in random order. A thread is a call until it reaches a barrier or a
 * warp operation; then it is a fiber, and which one goes on is random, too. CUDA_HOST_SEED chooses
 * the order; 0 is the order of the numbers. Device memory is an arena that is closed to the host
 * while no kernel or copy runs (CUDA_HOST_LAX=1 leaves it open). Shared arrays are filled with NaN
 * for each block. With the address sanitizer the gaps between blocks of device memory and between
 * shared arrays are poisoned. With the thread sanitizer each thread is a fiber of its own to it,
 * blocks alternate between two sets of fibers, and only barriers, warp operations and launches
 * order them: races are found whatever the order was.
 *
 * An error ends the program with a text: line, block and thread. What this cannot find: memory
 * ordering and fences, tensor cores, errors of libm's last bits, occupancy, speed. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

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
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void  __tsan_switch_to_fiber(void *, unsigned);
void  __tsan_acquire(void *);
void  __tsan_release(void *);
}
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

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline uint3 threadIdx, blockIdx;      /* set at each switch                                    */
inline dim3  blockDim, gridDim;

namespace cuda_host {

constexpr int    kMax = 1024, kStack = 64 << 10;             /* threads of a block; bytes       */
constexpr size_t kArena = (size_t)2 << 30, kShared = (size_t)256 << 20, kGap = 64;
constexpr size_t kSync = kMax * 16 + 64;                     /* addresses for TSan, of a block  */
static_assert(4096 * kSync <= kShared / 2, "those of 4096 blocks");

enum State : uint8_t { kNew, kReady, kWait, kDone };
struct Meeting {                       /* of the lanes of a mask, in turns                      */
    uint64_t slot[2][32];
    unsigned arrived, mask, gen;
    int      line;
};
struct Warp {
    Meeting  meeting[32];              /* by the first lane of a mask                           */
    unsigned busy;                     /* bit i: some lanes of meeting i have arrived           */
};
struct Fiber {
    void *sp;
    char *stack;
    void *tsan, *fake;
    int   set;
};
struct Thread {
    Fiber   *fiber;
    State    state;
    uint3    at;
    unsigned barriers;                 /* passed so far                                         */
};
struct Shared {
    const void *key;
    char       *at;
};
struct Block { size_t at, bytes; };

struct World {
    void       *main_sp, *main_tsan, *main_fake;
    const void *main_stack;
    size_t      main_size;
    Fiber       fiber[2 * kMax + 2], *spare[2][kMax + 1], *starting;
    int         fibers, spares[2], set;                      /* set: of the block, with TSan    */
    Thread      thread[kMax];
    Warp        warp[kMax / 32];
    int         order[kMax], n, next, done, self, ready[kMax], readies;
    int         at_barrier, barrier_line, barrier_or[2];
    unsigned    barrier_gen, barriers; /* barriers: that the first thread to end has passed     */
    char        start, end, *sync;     /* addresses for TSan; sync: others for each block       */
    void      (*body)(void *);
    void       *args;
    Shared      shared[64];
    int         shareds;
    char       *shared_base, *dynamic;
    size_t      shared_used, dynamic_bytes;
    uint64_t    rng, launches, switches;
    bool        shuffle, lax, running;
    char       *arena;
    Block       block[65536];          /* of device memory, by address                          */
    int         blocks, open, key;     /* key: over 0, of memory protection                     */
    int         leaving;               /* given back, and its stream has not come to it yet     */
    size_t      top;
};
inline World w;

[[noreturn]] CH_NOSAN inline void fail(const char *what, int line)
{
    fprintf(stderr, "cuda_host: %s at line %d: block (%u,%u,%u) thread (%u,%u,%u)\n", what, line,
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}

CH_NOSAN inline uint32_t rnd()
{
    w.rng = w.rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(w.rng >> 33);
}

/* -- fibers -- */

extern "C" void cuda_host_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.weak cuda_host_switch\n.type cuda_host_switch,@function\ncuda_host_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size cuda_host_switch,.-cuda_host_switch\n");
#else
#error "cuda_host_switch is written for x86-64 alone"
#endif

CH_NOSAN inline void enter(int t)      /* this fiber is thread t now */
{
    w.self = t;
    threadIdx = w.thread[t].at;
}

/* Leaves the running fiber for another one, or for the host (NULL). */
CH_NOSAN inline void hop(Fiber *from, Fiber *to)
{
    w.switches++;
#ifdef CH_ASAN
    __sanitizer_start_switch_fiber(from ? &from->fake : &w.main_fake,
                                   to ? to->stack : w.main_stack, to ? kStack : w.main_size);
#endif
#ifdef CH_TSAN
    __tsan_switch_to_fiber(to ? to->tsan : w.main_tsan, 1);
#endif
    cuda_host_switch(from ? &from->sp : &w.main_sp, to ? to->sp : w.main_sp);
#ifdef CH_ASAN
    __sanitizer_finish_switch_fiber(from ? from->fake : w.main_fake, nullptr, nullptr);
#endif
}

CH_NOSAN static Fiber *fiber_new();
CH_NOSAN static void   barrier_try();

/* Who runs next: a thread that is ready, or a fresh fiber for a new thread; or NULL. */
CH_NOSAN inline Fiber *pick()
{
    if (w.readies && (w.next >= w.n || !w.shuffle || (rnd() & 1))) {
        const int i = w.shuffle ? (int)(rnd() % (unsigned)w.readies) : w.readies - 1;
        const int t = w.ready[i];
        w.ready[i] = w.ready[--w.readies];
        w.thread[t].state = kReady;
        enter(t);
        return w.thread[t].fiber;
    }
    return w.next < w.n ? fiber_new() : nullptr;
}

CH_NOSAN inline void wait_here(Fiber *me, const char *what, int line)
{
    Thread *t = &w.thread[w.self];
    t->state = kWait;
    t->fiber = me;
    Fiber *to = pick();
    if (!to) fail(what, line);
    if (to != me) hop(me, to);
}

/* The running thread ends; all threads of a block have passed as many barriers. */
CH_NOSAN inline void ended()
{
    Thread *t = &w.thread[w.self];
    if (w.done++ == 0) w.barriers = t->barriers;
    if (w.barriers != t->barriers)
        fail("divergent __syncthreads: others ended after another number of them", 0);
    t->state = kDone;
}

/* Runs threads that were not begun yet, until one of them waits; then another fiber goes on. */
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
            w.thread[t].fiber = me;
            w.thread[t].state = kReady;
            CH_ACQUIRE(&w.start);
            w.body(w.args);
            CH_RELEASE(&w.end);
            ended();
            me = w.thread[w.self].fiber;
            barrier_try();
#ifdef CH_TSAN
            break;                     /* a stack of its own for each thread, as TSan wants it  */
#endif
        }
        Fiber *to = w.done == w.n ? nullptr : pick();
        w.spare[me->set][w.spares[me->set]++] = me;
        if (!to && w.done < w.n) fail("deadlock: threads wait for others that have ended", 0);
        hop(me, to);
        w.starting = me;               /* woken to start a new thread                           */
    }
}

CH_NOSAN static Fiber *fiber_new()
{
    Fiber *f;
    if (w.spares[w.set]) {
        f = w.spare[w.set][--w.spares[w.set]];
    } else {
        f = &w.fiber[w.fibers++];
        f->set = w.set;
        f->stack = (char *)mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void **sp = (void **)((uintptr_t)(f->stack + kStack) & ~(uintptr_t)15);
        *--sp = nullptr;
        *--sp = (void *)fiber_main;
        for (int i = 0; i < 6; i++) *--sp = nullptr;
        f->sp = sp;
#ifdef CH_TSAN
        f->tsan = __tsan_create_fiber(0);
#endif
    }
    w.starting = f;                    /* tells fiber_main which fiber it is                    */
    return f;
}

/* -- barriers and warp operations -- */

CH_NOSAN static void barrier_try()     /* opens the barrier if all threads that live are there */
{
    if (!w.at_barrier || w.at_barrier < w.n - w.done) return;
    w.at_barrier = 0;
    w.barrier_gen++;
    w.barrier_or[w.barrier_gen & 1] = 0;
    for (int t = 0; t < w.n; t++)
        if (w.thread[t].state == kWait) {
            w.ready[w.readies++] = t;
            w.thread[t].state = kNew;
        }
}

CH_NOSAN inline int barrier(int value, int line)
{
    if (!w.running) fail("a barrier outside of a kernel", line);
    if (w.at_barrier && line != w.barrier_line)
        fail("divergent __syncthreads: other threads wait at another line", line);
    const unsigned gen = w.barrier_gen;
    w.barrier_line = line;
    w.at_barrier++;
    w.thread[w.self].barriers++;
    w.barrier_or[gen & 1] |= value;
    CH_RELEASE(w.sync + (gen & 1) * 8);
    if (w.at_barrier == w.n - w.done) barrier_try();
    if (w.barrier_gen == gen || w.shuffle) {
        if (w.barrier_gen != gen) w.ready[w.readies++] = w.self;
        wait_here(w.thread[w.self].fiber, "deadlock: __syncthreads that others do not reach", line);
    }
    CH_ACQUIRE(w.sync + (gen & 1) * 8);
    return w.barrier_or[gen & 1];
}

/* The meeting of mask, which may go on beside those of other lanes. */
CH_NOSAN inline Meeting *meeting_of(Warp *q, unsigned mask, int line)
{
    for (unsigned rest = q->busy; rest; rest &= rest - 1) {
        const Meeting *const o = &q->meeting[__builtin_ctz(rest)];
        if ((o->mask & mask) && (o->mask != mask || o->line != line))
            fail("warp operation: lanes differ in mask or place", line);
    }
    return &q->meeting[__builtin_ctz(mask)];
}

/* All lanes of mask give a word; then each may read those of all. */
CH_NOSAN inline const uint64_t *meet(unsigned mask, uint64_t bits, int line)
{
    const int   lane = w.self % 32, base = w.self / 32 * 32;
    Warp *const q = &w.warp[w.self / 32];
    if (!(mask >> lane & 1)) fail("warp operation: the caller is not in its mask", line);
    Meeting *const m = meeting_of(q, mask, line);
    const unsigned gen = m->gen;
    char *const    sync = w.sync + 16 + ((base + __builtin_ctz(mask)) * 2 + (int)(gen & 1)) * 8;
    m->mask = mask;
    m->line = line;
    m->slot[gen & 1][lane] = bits;
    m->arrived |= 1u << lane;
    q->busy |= mask & -mask;
    CH_RELEASE(sync);
    if (m->arrived == mask) {
        m->arrived = 0;
        q->busy &= ~(mask & -mask);
        m->gen++;
        for (int i = 0; i < 32; i++)
            if (i != lane && (mask >> i & 1)) w.ready[w.readies++] = base + i;
    } else {
        for (int i = 0; i < 32; i++)
            if ((mask >> i & 1) && (base + i >= w.n || w.thread[base + i].state == kDone))
                fail("warp operation: its mask has a lane that ended or never was", line);
        wait_here(w.thread[w.self].fiber,
                  "deadlock: a warp operation that others of its mask do not reach", line);
    }
    CH_ACQUIRE(sync);
    return m->slot[gen & 1];
}

/* -- memory -- */

/* Not memset: TSan would see the write of one thread. */
CH_NOSAN inline void fill_nan(void *p, size_t n)
{
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(0xff) : "memory");
}

/* A shared array: one address for all threads of a block, another one for each block with TSan. */
CH_NOSAN inline void *shared(const void *key, size_t bytes)
{
    for (int i = 0; i < w.shareds; i++)
        if (w.shared[i].key == key) return w.shared[i].at;
    if (w.shareds == 64 || w.shared_used + bytes + 2 * kGap > kShared / 2)
        fail("the shared arena is full", 0);
    char *p = w.shared_base + w.shared_used + kGap;
    w.shared_used += (bytes + kGap + 63) / 64 * 64;
    CH_UNPOISON(p, bytes);
    fill_nan(p, bytes);
    w.shared[w.shareds].key = key;
    w.shared[w.shareds++].at = p;
    return p;
}

inline void *reserve(size_t bytes, int protection)
{
    void *p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CH_POISON(p, bytes);
    return p;
}

inline void arena_init()
{
    const char *seed = getenv("CUDA_HOST_SEED");
    w.rng = seed ? strtoull(seed, nullptr, 10) : 1;
    w.shuffle = w.rng != 0;
    w.lax = getenv("CUDA_HOST_LAX") != nullptr;
    w.arena = (char *)reserve(kArena, w.lax ? PROT_READ | PROT_WRITE : PROT_NONE);
#ifdef PKEY_DISABLE_ACCESS
    w.key = w.lax ? -1 : pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (w.key > 0) pkey_mprotect(w.arena, kArena, PROT_READ | PROT_WRITE, w.key);
#endif
    w.shared_base = (char *)reserve(kShared, PROT_READ | PROT_WRITE);
}

/* A protection key costs nothing; without them mprotect costs by pages that are in use. */
inline void arena_protect(bool open)
{
    if (w.lax) return;
#ifdef PKEY_DISABLE_ACCESS
    if (w.key > 0) {
        pkey_set(w.key, open ? 0 : PKEY_DISABLE_ACCESS);
        return;
    }
#endif
    if (w.top) mprotect(w.arena, w.top, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}
inline void arena_open()
{
    if (!w.arena) arena_init();
    if (w.open++ == 0) arena_protect(true);
}
inline void arena_shut()
{
    if (--w.open == 0) arena_protect(false);
}

/* First fit; NULL where the arena is full. */
inline void *arena_take(size_t bytes)
{
    if (!w.arena) arena_init();
    size_t at = 256;
    int    i = 0;
    for (; i < w.blocks && w.block[i].at < at + bytes + kGap; i++)
        at = (w.block[i].at + w.block[i].bytes + kGap + 255) / 256 * 256;
    if (bytes > kArena || at + bytes + kGap > kArena || w.blocks == 65536) return nullptr;
    memmove(&w.block[i + 1], &w.block[i], sizeof w.block[0] * (size_t)(w.blocks - i));
    w.block[i] = {at, bytes};
    w.blocks++;
    if (at + bytes > w.top) {
        const size_t top = (at + bytes + 4095) / 4096 * 4096;
        w.top = top;
        if (w.open) arena_protect(true);
    }
    return w.arena + at;
}

/* Bytes of the block at p, which is given back; 0: there is none. */
inline size_t arena_give(const void *p)
{
    for (int i = 0; i < w.blocks; i++) {
        if (w.arena + w.block[i].at != p) continue;
        const size_t bytes = w.block[i].bytes;
        memmove(&w.block[i], &w.block[i + 1], sizeof w.block[0] * (size_t)(w.blocks - i - 1));
        w.blocks--;
        w.leaving++;
        return bytes;
    }
    return 0;
}

/* Gives the system the pages of a block that the stream has freed, but for those of a new one, and
 * lowers the top when none waits for its stream: mprotect costs by pages in use. */
inline void arena_drop(const void *p, size_t bytes)
{
    const size_t page = 4096, end = (size_t)((const char *)p - w.arena) + bytes;
    size_t       from = end - bytes, top = 0;
    for (int i = 0; i <= w.blocks; i++) {
        const size_t to = i < w.blocks && w.block[i].at < end ? w.block[i].at : end;
        const size_t a = (from + page - 1) / page * page, b = to / page * page;
        if (a < b) madvise(w.arena + a, b - a, MADV_DONTNEED);
        if (i < w.blocks) top = w.block[i].at + w.block[i].bytes;
        if (from < top) from = top;
    }
    top = (top + page - 1) / page * page;
    if (--w.leaving > 0 || top > w.top / 2) return;
    madvise(w.arena + top, w.top - top, MADV_DONTNEED);
    if (!w.lax && w.key <= 0) mprotect(w.arena + top, w.top - top, PROT_NONE);
    w.top = top;
}

inline bool in_arena(const void *p, size_t bytes)
{
    const char *at = (const char *)p;
    return w.arena && at >= w.arena && bytes <= kArena && at <= w.arena + kArena - bytes;
}

/* -- a launch -- */

/* Block i of an order without a table: i a + b modulo their number, a coprime to it. */
struct BlockOrder {
    uint64_t n, a = 1, b = 0;
    explicit BlockOrder(uint64_t blocks) : n(blocks)
    {
        if (!w.shuffle || n < 2) return;
        do a = rnd() % n; while (gcd(a, n) != 1);
        b = rnd() % n;
    }
    static uint64_t gcd(uint64_t x, uint64_t y) { return y ? gcd(y, x % y) : x; }
    uint64_t        at(uint64_t i) const { return (i * a + b) % n; }
};

CH_NOSAN inline void run_block(uint64_t i, uint64_t k, const dim3 &grid, const dim3 &block)
{
    const size_t poisoned = w.shared_used;
    blockIdx = {(unsigned)(k % grid.x), (unsigned)(k / grid.x % grid.y),
                (unsigned)(k / grid.x / grid.y)};
#ifdef CH_TSAN
    w.set = (int)(i & 1);              /* a fiber's own order would hide races between blocks   */
#else
    w.shared_used = 0;
#endif
    CH_POISON(w.shared_base, poisoned + 64);
    w.shareds = 0;
    w.dynamic = nullptr;
    w.sync = w.shared_base + kShared / 2 + (i & 4095) * kSync;
    CH_UNPOISON(w.sync, kSync);
    for (int t = 0; t < w.n; t++) {
        const unsigned u = (unsigned)t;
        w.order[t] = t;
        w.thread[t].state = kNew;
        w.thread[t].barriers = 0;
        w.thread[t].at = {u % block.x, u / block.x % block.y, u / block.x / block.y};
    }
    for (int t = w.n - 1; w.shuffle && t > 0; t--) {
        const int o = (int)(rnd() % (unsigned)(t + 1)), x = w.order[t];
        w.order[t] = w.order[o];
        w.order[o] = x;
    }
    w.next = w.done = w.readies = w.at_barrier = 0;
    hop(nullptr, fiber_new());
}

CH_NOSAN inline void run(const dim3 &grid, const dim3 &block, size_t dynamic, void (*body)(void *),
                         void *args)
{
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    arena_open();
    w.n = (int)(block.x * block.y * block.z);
    w.body = body;
    w.args = args;
    w.dynamic_bytes = dynamic;
    gridDim = grid;
    blockDim = block;
    w.running = true;
    w.launches++;
#ifdef CH_TSAN
    w.main_tsan = __tsan_get_current_fiber();
#endif
    CH_RELEASE(&w.start);
    const BlockOrder order(blocks);
    w.shared_used = 0;
    for (uint64_t i = 0; i < blocks; i++) run_block(i, order.at(i), grid, block);
    CH_ACQUIRE(&w.end);
    w.running = false;
    arena_shut();
}

template <class T> inline uint64_t to_bits(T v)
{
    uint64_t b = 0;
    static_assert(sizeof v <= 8, "a warp operation moves at most 8 bytes");
    memcpy(&b, &v, sizeof v);
    return b;
}
template <class T> inline T of_bits(uint64_t b)
{
    T v;
    memcpy(&v, &b, sizeof v);
    return v;
}

} // namespace cuda_host
