/* device.c -- the device "test", on which the suite runs with MLC_TEST_DEVICE=test
 *
 * It keeps its memory in a mapping that is unreadable except while one of its kernels or its copy
 * runs: whatever the library does to device memory on the host crashes here. "test:2" runs the avx2
 * row of the kernel table, "test:1" the scalar one.
 */
#define _GNU_SOURCE
#include "device.h"

#include <sys/mman.h>

/* ---- a device whose memory the host cannot touch ------------------------------------------ */

#define ARENA_BYTES ((size_t)(sizeof(void *) > 4 ? 256 : 48) << 20)   /* of address space */

typedef struct block {                 /* of an arena, by address; kept on the host            */
    struct block *next;
    size_t        at, bytes;
} block;

struct device {
    char              *arena;
    block             *blocks;
    const mlc_kernels *k;
    char               posted[256];    /* what the last post copied                            */
    int64_t            tickets;        /* posts so far                                         */
    int                polled;         /* how often the last one was asked for                 */
    const char        *operation;      /* whose kernels run                                    */
    char               says[64];       /* of the last failure                                  */
};

struct test_device g_device = { .polls = 1, .breaks_with = MLC_ERR_DEVICE,
                                .registered = MLC_ERR_STATE };
bool (*test_device_refuses)(void);

int64_t test_device_leaked(void)
{
    return g_device.leaked;
}

static bool device_breaks(device *d, const char *what)
{
    if (g_device.break_at == 0 || ++g_device.calls != g_device.break_at)
        return false;
    snprintf(d->says, sizeof d->says, "%s broke after %s", what,
             d->operation != NULL ? d->operation : "nothing");
    return true;
}

/* A protection key of all arenas, where there are keys: mprotect costs by pages in use.        */
static int g_key;                      /* 0: not asked yet                                      */

static void arena_protect(device *d, bool open)
{
#ifdef PKEY_DISABLE_ACCESS
    if (g_key > 0) {
        pkey_set(g_key, open ? 0 : PKEY_DISABLE_ACCESS);
        return;
    }
#endif
    if (mprotect(d->arena, ARENA_BYTES, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        abort();
}

void arena_open(device *d)
{
    arena_protect(d, true);
}

void arena_shut(device *d)
{
    arena_protect(d, false);
}

static void arena_key(device *d)
{
#ifdef PKEY_DISABLE_ACCESS
    if (g_key == 0)
        g_key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (g_key > 0)
        pkey_mprotect(d->arena, ARENA_BYTES, PROT_READ | PROT_WRITE, g_key);
#else
    (void)d;
#endif
}

static mlc_status device_open(int32_t index, void **dev)
{
    const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)index);
    device            *d = k ? (device *)calloc(1, sizeof *d) : NULL;
    if (d == NULL)
        return MLC_ERR_DEVICE;
    d->k = k;
    d->arena = (char *)mmap(NULL, ARENA_BYTES, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d->arena == MAP_FAILED) {
        free(d);
        return MLC_ERR_DEVICE;
    }
    arena_key(d);
#ifdef MADV_HUGEPAGE                   /* each kernel protects all pages twice: let there be few */
    madvise(d->arena, ARENA_BYTES, MADV_HUGEPAGE);
#endif
    *dev = d;
    return MLC_OK;
}

static void device_close(void *dev)
{
    device *d = (device *)dev;
    for (block *b = d->blocks, *next; b != NULL; b = next) {
        next = b->next;
        g_device.leaked++;
        free(b);
    }
    munmap(d->arena, ARENA_BYTES);
    free(d);
}

/* First fit. Fresh memory is full of NaN, so that nothing can count on zeros.                 */
static mlc_status device_alloc(void *dev, size_t bytes, void **ptr)
{
    device *d = (device *)dev;
    block **link = &d->blocks, *b;
    size_t  at = 0, size = (bytes + 63) / 64 * 64;
    g_device.count.allocs++;
    if (bytes == 0 || bytes > ARENA_BYTES || (test_device_refuses && test_device_refuses()))
        return MLC_ERR_NOMEM;
    for (; *link != NULL && (*link)->at - at < size; link = &(*link)->next)
        at = (*link)->at + (*link)->bytes;
    if (ARENA_BYTES - at < size || (b = (block *)malloc(sizeof *b)) == NULL)
        return MLC_ERR_NOMEM;
    b->at = at;
    b->bytes = size;
    b->next = *link;
    *link = b;
    *ptr = d->arena + at;
    arena_open(d);
    memset(*ptr, 0xff, size);
    arena_shut(d);
    return MLC_OK;
}

static void device_release(void *dev, void *ptr, size_t bytes)
{
    device *d = (device *)dev;
    for (block **link = &d->blocks; *link != NULL; link = &(*link)->next) {
        block *b = *link;
        if (d->arena + b->at != (char *)ptr)
            continue;
        if (b->bytes != (bytes + 63) / 64 * 64)
            break;
        *link = b->next;
        free(b);
        return;
    }
    fprintf(stderr, "test device: release of what was not allocated\n");
    abort();
}

static bool device_owns(const device *d, const void *ptr, size_t bytes)
{
    const char *p = (const char *)ptr;
    return p >= d->arena && bytes <= ARENA_BYTES && p <= d->arena + ARENA_BYTES - bytes;
}

static mlc_status device_copy(void *dev, void *dst, const void *src, size_t bytes,
                              mlc_copy_kind kind)
{
    device *d = (device *)dev;
    g_device.count.copies[kind]++;
    if (device_breaks(d, "copy"))
        return g_device.breaks_with;
    if (device_owns(d, dst, bytes) != (kind != MLC_COPY_TO_HOST) ||
        device_owns(d, src, bytes) != (kind != MLC_COPY_TO_DEVICE))
        return MLC_ERR_ARG;
    arena_open(d);
    memmove(dst, src, bytes);
    arena_shut(d);
    return MLC_OK;
}

static int32_t device_count(void)
{
    return 6;                          /* the levels of a CPU's rows                           */
}

static mlc_status device_post(void *dev, const void *src, size_t bytes, int64_t *ticket)
{
    device *d = (device *)dev;
    if (bytes > sizeof d->posted)
        return MLC_ERR_ARG;
    g_device.count.posts++;
    if (device_breaks(d, "post"))
        return g_device.breaks_with;
    *ticket = ++d->tickets;
    d->polled = 0;
    arena_open(d);
    memcpy(d->posted, src, bytes);
    arena_shut(d);
    return MLC_OK;
}

static int32_t device_poll(void *dev, int64_t ticket, void *dst, size_t bytes)
{
    device *d = (device *)dev;
    if (ticket != d->tickets || d->polled >= g_device.polls)
        abort();                       /* of a ticket that is over, or was never given         */
    g_device.count.polls++;
    if (device_breaks(d, "poll"))
        return -1;
    if (++d->polled < g_device.polls)
        return 0;
    d->polled = INT32_MAX;
    memcpy(dst, d->posted, bytes);
    return 1;
}

static mlc_status device_sync(void *dev)
{
    g_device.count.syncs++;
    return device_breaks((device *)dev, "sync") ? g_device.breaks_with : MLC_OK;
}

static mlc_status device_info(void *dev, mlc_device_info *out)
{
    if (device_breaks((device *)dev, "info"))
        return g_device.breaks_with;
    snprintf(out->name, sizeof out->name, "test");
    out->free_bytes = out->total_bytes = (int64_t)ARENA_BYTES;
    for (const block *b = ((device *)dev)->blocks; b != NULL; b = b->next)
        out->free_bytes -= (int64_t)b->bytes;
    return MLC_OK;
}

static const char *device_message(void *dev)
{
    const device *d = (const device *)dev;
    return d->says[0] != 0 ? d->says : NULL;
}

static void device_operation(void *dev, const char *what)
{
    device *d = (device *)dev;
    d->operation = what;
}

/* Each kernel of the CPU's row, with the arena open; workspace queries run with it shut.      */
#define WRAP(name) \
    static mlc_status device_##name(void *dev, const struct mlc_k_##name *args) \
    { \
        device    *d = (device *)dev; \
        mlc_status status; \
        g_device.count.kernels[KERNEL_##name]++; \
        if (device_breaks(d, #name)) \
            return g_device.breaks_with; \
        arena_open(d); \
        status = d->k->name(NULL, args); \
        arena_shut(d); \
        return status; \
    } \
    static size_t device_##name##_workspace(void *dev, const struct mlc_k_##name *args) \
    { \
        device *d = (device *)dev; \
        return d->k->name##_workspace != NULL ? d->k->name##_workspace(NULL, args) : 0; \
    }
MLC_KERNELS(WRAP)

/* The CPU's kernel leaves limiting gradients to its caller.                                    */
static mlc_status device_optim_clamps(void *dev, const struct mlc_k_optim *args)
{
    device            *d = (device *)dev;
    struct mlc_k_optim a = *args;
    struct mlc_k_math  limit;
    if (a.clamp == 0)
        return device_optim(dev, args);
    void *g = malloc((size_t)a.n * mlc_dtype_bytes(a.dtype) + 1);
    memset(&limit, 0, sizeof limit);
    limit.map.op = MLC_MATH_CLAMP;
    limit.map.dtype = a.dtype;
    limit.map.ndim = 1;
    limit.map.shape[0] = a.n;
    limit.map.out_stride[0] = limit.map.in_stride[0][0] = 1;
    limit.map.out = g;
    limit.map.in[0] = a.g;
    arena_open(d);
    limit.map.t = a.clamp / a.step->grad_scale;
    limit.map.s = -limit.map.t;
    mlc_status status = d->k->math(NULL, &limit);
    arena_shut(d);
    a.g = g;
    a.clamp = 0;
    status = status == MLC_OK ? device_optim(dev, &a) : status;
    free(g);
    return status;
}

/* Kernels that the CPU makes without workspace ask for some, where `asks`: what they are given must
 * be that, in the device's memory, and they may write to it.                                  */
#define ASK(name, asks) \
    static size_t asking_##name##_workspace(void *dev, const struct mlc_k_##name *a) \
    { \
        (void)dev; \
        (void)a; \
        return (asks) ? 320 : 0; \
    } \
    static mlc_status asking_##name(void *dev, const struct mlc_k_##name *a) \
    { \
        const size_t bytes = asking_##name##_workspace(dev, a); \
        if (a->workspace_bytes != bytes) \
            return MLC_ERR_INTERNAL; \
        if (bytes != 0) { \
            if (!device_owns((device *)dev, a->workspace, bytes)) \
                return MLC_ERR_INTERNAL; \
            g_device.asked++; \
            arena_open((device *)dev); \
            memset(a->workspace, 0xff, bytes); \
            arena_shut((device *)dev); \
        } \
        return device_##name(dev, a); \
    }
ASK(index, true)
ASK(scan, true)
ASK(argmax, true)
ASK(random, a->kind == MLC_RANDOM_PERMUTATION)
#define ASKING(name) k.name = asking_##name; k.name##_workspace = asking_##name##_workspace;


static mlc_status device_product(void *dev, const struct mlc_k_gemm *args)
{
    g_device.products++;
    g_device.tf32 = args->tf32;
    return device_gemm(dev, args);
}

#define ROW(name) k.name = device_##name; k.name##_workspace = device_##name##_workspace;

mlc_backend device_backend(const char *name)
{
    mlc_kernels k;
    mlc_backend b;
    MLC_KERNELS(ROW)
    k.optim = device_optim_clamps;

    ASKING(index)
    ASKING(scan)
    ASKING(argmax)
    ASKING(random)
    k.gemm = device_product;
    memset(&b, 0, sizeof b);
    b.abi = MLC_ABI;
    b.size = (uint32_t)sizeof b;
    b.name = name;
    b.count = device_count;
    b.open = device_open;
    b.close = device_close;
    b.alloc = device_alloc;
    b.release = device_release;
    b.copy = device_copy;
    b.post = device_post;
    b.poll = device_poll;
    b.sync = device_sync;
    b.message = device_message;
    b.operation = device_operation;
    b.info = device_info;
    b.kernels = k;
    return b;
}

/* Before main, so that every test can ask for the device.                                     */
__attribute__((constructor)) static void device_register(void)
{
    mlc_backend b = device_backend("test");
    g_device.registered = mlc_backend_register(&b);
    b.name = "no_rnn";                 /* of which test_recurrent.c makes steps of operations    */
    b.kernels.rnn = NULL;
    b.kernels.rnn_grad = NULL;
    b.kernels.features = NULL;         /* test_features.c: attention of operations             */
    b.kernels.features_workspace = NULL;
    b.info = NULL;                     /* test_memory_plan.c: memory that is not known           */
    mlc_backend_register(&b);
}

mlc_ctx *device_ctx(const char *name, mlc_status *status)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.device = name;
    d.status = status;
    return test_own(mlc_ctx_create(&d));
}
