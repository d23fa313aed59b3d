/* test_backend.c -- the test device, registration, and every kernel of every ISA level
 *
 * The device "test" keeps its memory in a mapping that is unreadable except while one of its
 * kernels or its copy runs: whatever the library does to device memory on the host crashes here.
 * "test:2" runs the avx2 row of the kernel table, "test:1" the scalar one.
 */
#define _GNU_SOURCE
#include "mlc_test.h"
#include "files.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- a device whose memory the host cannot touch ------------------------------------------ */

#define ARENA_BYTES ((size_t)(sizeof(void *) > 4 ? 256 : 48) << 20)   /* of address space */

typedef struct block {                 /* of an arena, by address; kept on the host            */
    struct block *next;
    size_t        at, bytes;
} block;

typedef struct device {
    char              *arena;
    block             *blocks;
    const mlc_kernels *k;
    char               posted[256];    /* what the last post copied                            */
    int64_t            tickets;        /* posts so far                                         */
    int                polled;         /* how often the last one was asked for                 */
    const char        *operation;      /* whose kernels run                                    */
    char               says[64];       /* of the last failure                                  */
} device;

/* Calls of devices since the last memset, kernels by name. */
#define KERNEL_NUMBER(name) KERNEL_##name,
enum { MLC_KERNELS(KERNEL_NUMBER) KERNEL_COUNT };
static struct {
    int64_t copies[MLC_COPY_ON_DEVICE + 1], posts, polls, syncs, allocs, kernels[KERNEL_COUNT];
} g_count;
static int g_polls = 1;                /* the poll that a post is answered at                  */

static int64_t g_leaked;               /* blocks alive when their device was closed            */
static int64_t g_break_at, g_calls;    /* the call of a kernel or a copy that fails; 0: none   */
static mlc_status g_break = MLC_ERR_DEVICE;
static int64_t g_products;             /* calls of the kernel gemm                             */
static int32_t g_tf32;                 /* of the last one                                      */
bool         (*test_device_refuses)(void);

int64_t test_device_leaked(void)
{
    return g_leaked;
}

static bool device_breaks(device *d, const char *what)
{
    if (g_break_at == 0 || ++g_calls != g_break_at)
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

static void arena_open(device *d)
{
    arena_protect(d, true);
}

static void arena_shut(device *d)
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
        g_leaked++;
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
    g_count.allocs++;
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
    g_count.copies[kind]++;
    if (device_breaks(d, "copy"))
        return g_break;
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
    g_count.posts++;
    if (device_breaks(d, "post"))
        return g_break;
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
    if (ticket != d->tickets || d->polled >= g_polls)
        abort();                       /* of a ticket that is over, or was never given         */
    g_count.polls++;
    if (device_breaks(d, "poll"))
        return -1;
    if (++d->polled < g_polls)
        return 0;
    d->polled = INT32_MAX;
    memcpy(dst, d->posted, bytes);
    return 1;
}

static mlc_status device_sync(void *dev)
{
    g_count.syncs++;
    return device_breaks((device *)dev, "sync") ? g_break : MLC_OK;
}

static mlc_status device_info(void *dev, mlc_device_info *out)
{
    if (device_breaks((device *)dev, "info"))
        return g_break;
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
        g_count.kernels[KERNEL_##name]++; \
        if (device_breaks(d, #name)) \
            return g_break; \
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
static int64_t g_asked;                /* calls with such a workspace                          */

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
            g_asked++; \
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
    g_products++;
    g_tf32 = args->tf32;
    return device_gemm(dev, args);
}

#define ROW(name) k.name = device_##name; k.name##_workspace = device_##name##_workspace;

static mlc_backend device_backend(const char *name)
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

static mlc_status g_registered = MLC_ERR_STATE;

/* Before main, so that every test can ask for the device.                                     */
__attribute__((constructor)) static void device_register(void)
{
    mlc_backend b = device_backend("test");
    g_registered = mlc_backend_register(&b);
    b.name = "no_rnn";                 /* of which test_recurrent.c makes steps of operations    */
    b.kernels.rnn = NULL;
    b.kernels.rnn_grad = NULL;
    b.info = NULL;                     /* test_memory_plan.c: memory that is not known           */
    mlc_backend_register(&b);
}

static mlc_ctx *device_ctx(const char *name, mlc_status *status)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.device = name;
    d.status = status;
    return test_own(mlc_ctx_create(&d));
}

/* ---- registration ------------------------------------------------------------------------- */

TEST(backend, a_stale_or_incomplete_backend_is_refused)
{
    mlc_backend good = device_backend("other"), b;
    CHECK_EQ(g_registered, MLC_OK);
    CHECK_EQ(mlc_backend_register(NULL), MLC_ERR_ARG);
    b = good; b.abi++;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.size--;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.name = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.count = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.post = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.poll = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.open = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.close = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.alloc = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.release = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.copy = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.sync = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.name = "test";
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.name = "cpu";
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
}

static mlc_status strange_error(void *dev, const struct mlc_k_index *a)
{
    device *d = (device *)dev;
    arena_open(d);
    a->error[0] = 9;
    arena_shut(d);
    return MLC_OK;
}

/* Offers what makes tensors and nothing that computes with them; index reports what is no error of
 * the library.                                                                                */
static mlc_backend backend_with_holes(void)
{
    mlc_backend b = device_backend("holes");
    b.kernels.map = NULL;
    b.kernels.cast = NULL;
    b.kernels.reduce = NULL;
    b.kernels.gemm = NULL;
    b.kernels.random = NULL;
    b.kernels.dropout = NULL;
    b.kernels.xent = NULL;
    b.kernels.argmax = NULL;
    b.kernels.index = strange_error;
    return b;
}

static void check_missing(mlc_ctx *ctx, const mlc_tensor *result, const char *op,
                          const char *kernel)
{
    CHECK(result == NULL);
    CHECK_HAS(mlc_error(ctx), op);
    CHECK_HAS(mlc_error(ctx), kernel);
    CHECK_HAS(mlc_error(ctx), "holes");
    CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
}

TEST(backend, a_missing_kernel_is_unsupported_and_names_the_operation)
{
    static const double  labels[3] = {0, 1, 2};
    mlc_backend b = backend_with_holes();
    mlc_status  status = MLC_ERR_INTERNAL;
    mlc_ctx    *ctx;
    mlc_tensor *x, *y;
    CHECK_EQ(mlc_backend_register(&b), MLC_OK);
    ctx = device_ctx("holes", &status);
    if (!CHECK_EQ(status, MLC_OK) || !CHECK(ctx != NULL))
        return;
    x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, -1, 1);
    y = test_tensor(ctx, MLC_I64, mlc_dims1(3), labels);
    CHECK_OK(ctx);
    check_missing(ctx, mlc_add(x, x), "add", "map");
    check_missing(ctx, mlc_exp(x), "exp", "map");
    check_missing(ctx, mlc_matmul(x, x), "matmul", "gemm");
    check_missing(ctx, mlc_sum(x, mlc_dims0(), false), "sum", "reduce");
    check_missing(ctx, mlc_cast(x, MLC_F64), "cast", "cast");
    check_missing(ctx, mlc_dropout(x, 0.5), "dropout", "dropout");
    check_missing(ctx, mlc_argmax(x, 1, false), "argmax", "argmax");
    check_missing(ctx, mlc_cross_entropy(x, y), "cross_entropy", "xent");
    check_missing(ctx, mlc_randn(ctx, MLC_F32, mlc_dims1(3)), "randn", "random");
    float rows[9];
    CHECK_EQ(mlc_read(mlc_index_select(x, 0, y), rows, sizeof rows), MLC_ERR_DEVICE);
    CHECK_STR(mlc_error(ctx),
              "device holes: a kernel reported error 9, which no operation that ran has");
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    box            file = box_open("net.safetensors");
    mlc_module    *net = mlc_nn_sequential(ctx);
    mlc_param_desc zeros = mlc_param_desc_make(mlc_dims1(3));
    mlc_module_declare(net, "shift", &zeros);
    CHECK_EQ(mlc_save(net, file.path), MLC_OK);
    CHECK_EQ(mlc_load(net, file.path), MLC_ERR_UNSUPPORTED);
    check_missing(ctx, NULL, "load", "cast");
    box_close(&file);
}

TEST(backend, a_backend_tells_how_many_devices_it_has)
{
    CHECK_EQ(mlc_backend_count("cpu"), 1);
    CHECK_EQ(mlc_backend_count(NULL), 1);
    CHECK_EQ(mlc_backend_count("test"), 6);
    CHECK_EQ(mlc_backend_count("test:1"), 0);
    CHECK_EQ(mlc_backend_count("nosuch"), 0);
}

/* Heads stay where they are: their permuted views are axes of one product.                      */
TEST(backend, products_of_permuted_heads_are_one_call)
{
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_dims    heads = mlc_dims4(2, 5, 3, 4), order = mlc_dims4(0, 2, 1, 3);
    mlc_tensor *in[2] = {test_rand(ctx, MLC_F32, heads, 1, -1, 1),
                         test_rand(ctx, MLC_F32, heads, 2, -1, 1)};
    mlc_set_requires_grad(in[0], true);
    mlc_set_requires_grad(in[1], true);
    mlc_tensor *q = mlc_permute(in[0], order), *k = mlc_permute(in[1], order);
    const int64_t before = g_products;
    mlc_tensor   *y = mlc_matmul(q, mlc_transpose(k, -1, -2));
    CHECK_EQ(g_products - before, 1);
    mlc_tensor *same = mlc_einsum("bthd,bshd->bhts", in, 2);
    CHECK_EQ(g_products - before, 2);
    CHECK_EQ(g_tf32, 0);
    double one[2 * 3 * 25], many[2 * 3 * 25], head[25];
    CHECK(test_read(y, one) && test_read(same, many));
    CHECK(memcmp(one, many, sizeof one) == 0);
    for (int i = 0; i < 6; i++) {
        mlc_tensor *a = mlc_select(mlc_select(q, 0, i / 3), 0, i % 3);
        mlc_tensor *b = mlc_select(mlc_select(k, 0, i / 3), 0, i % 3);
        CHECK(test_read(mlc_matmul(a, mlc_transpose(b, 0, 1)), head));
        CHECK(memcmp(one + 25 * i, head, sizeof head) == 0);
    }
    const int64_t forward = g_products;
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(g_products - forward, 2);
    CHECK_OK(ctx);
}

/* ---- the last product of a piece that runs twice -------------------------------------------- */

/* What is special about y = tanh(x) w^T and what follows it. */
typedef enum ending {
    END_PLAIN, END_RESIDUAL, END_MATMUL, END_CONV, END_AGAIN,                  /* left out      */
    END_AUTOCAST,                      /* casts w, which is no parameter                         */
    END_ACT, END_RELU, END_READ, END_DETACH, END_VIEW, END_NONZERO, END_TWO, END_HOOK, END_ANOMALY,
    END_WEIGHT, END_MORE, END_PIECE, END_TAPE, ENDINGS
} ending;
typedef struct piece_args { mlc_tensor *w, *r; ending end; bool twice; } piece_args;

static bool g_no_backward;             /* the next backward of TANH fails                        */

static mlc_status tanh_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_tanh(in[0]);
    return mlc_ctx_status(in[0]->ctx);
}

static mlc_status tanh_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    const bool no = g_no_backward;
    (void)user; (void)n_in; (void)need;
    g_no_backward = false;
    dx[0] = mlc_mul(dy, mlc_rsub_scalar(mlc_square(out), 1.0));
    return no ? mlc_raise(in[0]->ctx, MLC_ERR_VALUE, "not now") : mlc_ctx_status(in[0]->ctx);
}

static const mlc_custom_op TANH = {"tanh", tanh_forward, tanh_backward};

/* A product of the same weight on a tape within, whose gradient goes nowhere. */
static void on_a_tape(mlc_ctx *ctx, mlc_tensor *w)
{
    float       host[4];
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(1, 5), 7, -1, 1), *y;
    mlc_scope_begin(ctx);
    mlc_tape_begin(ctx, false);
    mlc_set_requires_grad(x, true);
    y = mlc_linear(x, w, NULL);
    CHECK_EQ(mlc_read(y, host, sizeof host), MLC_OK);
    CHECK(host[0] == host[0] && fabsf(host[0]) < 5);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

static mlc_tensor *end_product(mlc_ctx *ctx, const piece_args *a, mlc_tensor *x)
{
    mlc_epilogue e = {MLC_ACT_NONE, 0.0, NULL};
    mlc_tensor  *w = a->end == END_WEIGHT ? mlc_mul_scalar(a->w, 1.0) : a->w, *y;
    if (a->end == END_CONV)
        return mlc_conv(mlc_unsqueeze(x, 2), mlc_unsqueeze(w, 2), NULL, NULL);
    if (a->end == END_MATMUL)
        return mlc_matmul(x, mlc_transpose(w, 0, 1));
    if (a->end == END_ACT) e.act = MLC_ACT_GELU;
    if (a->end == END_RESIDUAL) e.dropout = 0.5, e.residual = a->r;
    if (a->end == END_AUTOCAST) mlc_autocast_begin(ctx, MLC_BF16);
    y = mlc_linear_ex(x, w, NULL, &e);
    if (a->end == END_AUTOCAST) mlc_autocast_end(ctx);
    return y;
}

static mlc_status end_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    const piece_args *a = (const piece_args *)user;
    float             host[12];
    (void)n_in;
    if (a->end == END_TAPE) on_a_tape(ctx, a->w);
    mlc_tensor *y = end_product(ctx, a, mlc_custom(&TANH, NULL, in, 1));
    if (a->end == END_RELU) y = mlc_relu(y);
    if (a->end == END_READ) mlc_read(y, host, sizeof host);
    if (a->end == END_DETACH) mlc_detach(y);
    if (a->end == END_VIEW) y = mlc_reshape(y, mlc_dims1(12));
    if (a->end == END_NONZERO) CHECK_EQ(mlc_dim(mlc_nonzero(y), 0), 12);
    if (a->end == END_MORE && mlc_recomputing(ctx)) y = mlc_mul_scalar(y, 1.0);
    out[0] = y;
    if (n_out == 2) out[1] = in[0];
    return mlc_ctx_status(ctx);
}

static mlc_status end_call(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    const piece_args *a = (const piece_args *)user;
    return a->twice ? mlc_recompute(ctx, end_piece, user, in, n_in, out, n_out)
                    : end_piece(ctx, user, in, n_in, out, n_out);
}

static void no_hook(void *user, const mlc_op_event *e) { (void)user; (void)e; }

/* Gradients of x, w and the residual; the products of backward. */
static int64_t end_run(ending end, bool twice, double *grads)
{
    mlc_ctx    *ctx = device_ctx("test", NULL);
    piece_args  a = {test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1),
                     test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 2, -1, 1), end, twice};
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 5), 3, -1, 1), *dy;
    mlc_tensor *out[2] = {NULL, NULL};
    mlc_hooks   hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.op_begin = no_hook;
    mlc_set_requires_grad(a.w, true);
    mlc_set_requires_grad(a.r, end == END_RESIDUAL);
    mlc_set_requires_grad(x, true);
    if (end == END_PIECE && twice)
        mlc_recompute(ctx, end_call, &a, &x, 1, out, 1);
    else
        end_call(ctx, &a, &x, 1, out, end == END_TWO ? 2 : 1);
    dy = mlc_detach(mlc_mul_scalar(out[0], 2.0));
    if (end == END_HOOK) mlc_hooks_add(ctx, &hooks);
    mlc_anomaly(ctx, end == END_ANOMALY);
    g_no_backward = end == END_AGAIN && twice;
    if (g_no_backward) {
        CHECK_EQ(mlc_backward_from(out[0], dy), MLC_ERR_VALUE);
        mlc_error_clear(ctx);
    }
    const int64_t before = g_products;
    CHECK_EQ(mlc_backward_from(out[0], dy), MLC_OK);
    const int64_t products = g_products - before;
    CHECK(test_read(mlc_grad(x), grads) && test_read(mlc_grad(a.w), grads + 15));
    if (end == END_RESIDUAL) CHECK(test_read(mlc_grad(a.r), grads + 35));
    CHECK_OK(ctx);
    return products;
}

TEST(backend, the_last_product_of_a_piece_is_made_once_if_it_is_not_read)
{
    for (int end = 0; end < ENDINGS; end++) {
        double        plain[47] = {0}, again[47] = {0};
        const int64_t want = end_run((ending)end, false, plain) + (end > END_AGAIN);
        const int64_t got = end_run((ending)end, true, again);
        if (!CHECK_EQ(got, want) + !CHECK(memcmp(plain, again, sizeof plain) == 0))
            printf("  ending %d\n", end);
    }
}

/* The last product of a layer with the norm first is not made again; all of one with the norm last
 * are. In f32 and in bf16. */
TEST(backend, a_transformer_layer_runs_again_but_for_its_last_product)
{
    int64_t plain = 0;
    for (int way = 0; way < 8; way++) {
        mlc_ctx    *ctx = device_ctx("test", NULL);
        mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 2);
        d.norm_first = way / 2 % 2;
        mlc_module *net = mlc_nn_transformer_encoder(ctx, &d, 3);
        mlc_module_recompute(net, way % 2);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 4, 8), 1, -1, 1);
        mlc_forward(net, x);
        if (way / 4) mlc_autocast_begin(ctx, MLC_BF16);
        const int64_t before = g_products;
        mlc_tensor   *y = mlc_forward(net, x);
        const int64_t forward = g_products - before;
        mlc_backward(mlc_sum_all(y));
        const int64_t backward = g_products - before - forward;
        if (way % 2 == 0) plain = backward;
        else CHECK_EQ(backward, plain + forward - (d.norm_first ? 3 : 0));
        if (way / 4) mlc_autocast_end(ctx);
        CHECK_OK(ctx);
    }
}

/* An operand that has an axis less gets its gradient in a call for each that adds to it.        */
TEST(backend, a_gradient_that_adds_up_is_a_call_for_each_product_of_the_axis)
{
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims4(2, 3, 4, 5), 1, -1, 1);
    mlc_tensor *b = test_rand(ctx, MLC_F64, mlc_dims3(3, 5, 6), 2, -1, 1);
    double      db[90], want[90];
    mlc_set_requires_grad(b, true);
    mlc_tensor   *y = mlc_matmul(a, b);
    const int64_t before = g_products;
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(g_products - before, 2);  /* three products each                                    */
    CHECK(test_read(mlc_grad(b), db));
    mlc_tensor *sums = mlc_sum(a, mlc_dims2(0, 2), false);
    CHECK(test_read(mlc_expand(mlc_unsqueeze(sums, 2), mlc_dims3(3, 5, 6)), want));
    for (int i = 0; i < 90; i++)
        CHECK_NEAR(db[i], want[i], 1e-14);
    CHECK_OK(ctx);
}

TEST(backend, a_context_with_tf32_says_so_to_its_products)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    CHECK(!d.tf32);
    d.device = "test";
    d.tf32 = true;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, -1, 1);
    CHECK(mlc_matmul(x, x) != NULL);
    CHECK_EQ(g_tf32, 1);
    g_tf32 = 0;
    CHECK(mlc_linear(x, x, NULL) != NULL);
    CHECK_EQ(g_tf32, 1);
    CHECK_OK(ctx);
}

TEST(backend, the_table_takes_eight_and_refuses_the_ninth)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    int  taken = 0;
    bool refused = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mlc_backend b = device_backend(names[i]);
        if (mlc_backend_register(&b) == MLC_OK) {
            CHECK(!refused);
            taken++;
        } else {
            refused = true;
        }
    }
    CHECK(taken >= 4 && taken <= 6);   /* "test", "no_rnn", "holes" if its test ran, "cuda"      */
    CHECK(refused);
    CHECK(device_ctx("a", NULL) != NULL);
}

TEST(backend, an_unknown_device_is_a_device_error)
{
    static const char *const bad[] = {"nosuch", "nosuch:0", "test:999", "test:x", "test:-1", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mlc_status status = MLC_OK;
        CHECK(device_ctx(bad[i], &status) == NULL);
        CHECK_EQ(status, MLC_ERR_DEVICE);
    }
    CHECK(device_ctx("cpu", NULL) != NULL);
    CHECK(device_ctx("test", NULL) != NULL);
}

/* In order; a CPU has the first ones of its architecture's.                                   */
#if defined(__aarch64__)
static const mlc_isa architecture[] = {MLC_ISA_SCALAR, MLC_ISA_NEON};
#else
static const mlc_isa architecture[] = {MLC_ISA_SCALAR, MLC_ISA_AVX2, MLC_ISA_AVX512,
                                       MLC_ISA_AVX512X, MLC_ISA_AMX};
#endif

TEST(backend, the_cpu_has_a_row_for_each_level_up_to_its_own)
{
    mlc_isa top = MLC_ISA_AUTO;
    size_t  n = 0;
    for (int i = MLC_ISA_SCALAR; i < MLC_ISA_COUNT; i++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)i);
        if (k == NULL)
            continue;
        top = (mlc_isa)i;
        CHECK(n < sizeof architecture / sizeof *architecture && architecture[n] == top);
        n++;
#define HAS(name) CHECK(k->name != NULL);
        MLC_KERNELS(HAS)
    }
    CHECK(n > 0);
    CHECK(mlc_cpu_kernels(MLC_ISA_AUTO) == mlc_cpu_kernels(top));
    CHECK(mlc_cpu_kernels((mlc_isa)99) == NULL);
    CHECK(mlc_cpu_kernels((mlc_isa)-1) == NULL);
}

TEST(backend, a_level_that_is_not_there_stands_for_the_best_one_below_it)
{
    for (int i = MLC_ISA_SCALAR; i < MLC_ISA_COUNT; i++) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        mlc_isa      want = MLC_ISA_SCALAR;
        for (int have = MLC_ISA_SCALAR; have <= i; have++)
            if (mlc_cpu_kernels((mlc_isa)have) != NULL)
                want = (mlc_isa)have;
        d.isa = (mlc_isa)i;
        CHECK_EQ(mlc_ctx_isa(test_own(mlc_ctx_create(&d))), want);
    }
}

/* ---- the host's side of a device ---------------------------------------------------------- */

TEST(backend, host_access_to_device_memory_is_an_error_not_a_crash)
{
    static const double v[3] = {1, -2, 3};
    float       host[3] = {0};
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(3), v);
    CHECK(!mlc_ctx_on_host(ctx));
    CHECK(mlc_f32(x) == NULL);
    CHECK_HAS(mlc_error(ctx), "mlc_read");
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    CHECK(mlc_f64(mlc_zeros(ctx, MLC_F64, mlc_dims1(2))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    CHECK(mlc_i64(mlc_zeros(ctx, MLC_I64, mlc_dims1(2))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    CHECK(mlc_wrap(ctx, MLC_F32, mlc_dims1(3), NULL, host) == NULL);
    CHECK(mlc_ctx_status(ctx) != MLC_OK);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_read(x, host, sizeof host), MLC_OK);
    CHECK(host[0] == 1 && host[1] == -2 && host[2] == 3);
    CHECK_OK(ctx);
}

static mlc_status device_step(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt, uint64_t seed)
{
    static const double labels[5] = {0, 2, 1, 1, 0};
    mlc_tensor *x, *y;
    mlc_scope_begin(ctx);
    x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), seed, -1, 1);
    y = test_tensor(ctx, MLC_I64, mlc_dims1(5), labels);
    mlc_backward(mlc_cross_entropy(mlc_forward(net, x), y));
    mlc_optim_step(opt);
    return mlc_scope_end(ctx);
}

static void check_no_leak(mlc_ctx_desc d)
{
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    const int64_t leaked = g_leaked;
    d.device = "test";
    if (!CHECK((ctx = mlc_ctx_create(&d)) != NULL))
        return;
    net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 3));
    opt = mlc_adamw(net, 1e-2);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(device_step(ctx, net, opt, (uint64_t)i), MLC_OK);
    mlc_ctx_free(ctx);
    CHECK_EQ(g_leaked, leaked);
}

TEST(backend, a_freed_context_leaves_nothing_on_the_device)
{
    static char  memory[1 << 20];
    mlc_ctx_desc d = mlc_ctx_desc_make();
    check_no_leak(d);
    d.memory = memory;                 /* host structs in a fixed block, data on the device    */
    d.memory_bytes = sizeof memory;
    check_no_leak(d);
}

/* ---- optimizers on a device ----------------------------------------------------------------- */

typedef struct training {
    mlc_rule  rule;
    double    norm, value;             /* of clipping                                          */
    bool      each, scaler;
    int64_t   calls;                   /* to an update                                         */
    mlc_dtype dtype;
} training;

/* 58 parameters, steps, norm, the scaler's state. */
typedef struct trained { double p[58], seen[6]; } trained;

static mlc_module *two_linear(mlc_ctx *ctx, mlc_dtype dtype)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 5));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    return net;
}

static mlc_optim *training_optim(mlc_module *net, const training *t)
{
    const mlc_sgd_desc  sgd = {0.01, 0.9, 0, 0.1, true};
    const mlc_clip_desc clip = {t->norm, t->value, t->each};
    mlc_optim *opt = t->rule == MLC_RULE_SGD ? mlc_sgd_ex(net, &sgd)
                     : t->rule == MLC_RULE_LAMB ? mlc_lamb(net, 0.01) : mlc_adamw(net, 0.01);
    mlc_scaler_desc s = mlc_scaler_desc_make();
    s.interval = 3;
    if (t->scaler)
        CHECK_EQ(mlc_optim_scaler(opt, &s), MLC_OK);
    CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, t->calls), MLC_OK);
    return opt;
}

/* A step on factor times the mean square of what net makes of noise. */
static mlc_status noise_step(mlc_module *net, mlc_optim *opt, mlc_dtype dtype, uint64_t seed,
                             double factor)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, dtype, mlc_dims2(9, 7), seed, -1, 1));
    mlc_tensor *loss = mlc_mul_scalar(mlc_mean(mlc_mul(y, y), mlc_dims0(), false), factor);
    CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
    return mlc_scope_end(ctx);
}

/* What changes on the way: frozen parameters, the rate, the layout, groups, the scaler. */
static void training_turn(mlc_module *net, mlc_optim *opt, int step)
{
    const mlc_group_desc group = {0.5, 0, true, false};
    if (step == 6 || step == 9)
        CHECK_EQ(mlc_module_freeze(net, "1.*", step == 6), MLC_OK);
    if (step == 9)
        CHECK_EQ(mlc_optim_set_lr(opt, 0.02), MLC_OK);
    if (step == 12)                    /* no call waits for an update                          */
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    if (step == 12)
        CHECK_EQ(mlc_optim_group(opt, "*.bias", &group), MLC_OK);
    mlc_scaler_state s = mlc_optim_scaler_state(opt);
    s.scale *= 0.25;
    if (step == 13 && s.skipped > 0)
        CHECK_EQ(mlc_optim_scaler_resume(opt, &s), MLC_OK);
}

static void training_run(mlc_ctx *ctx, const training *t, trained *out)
{
    mlc_module *net = two_linear(ctx, t->dtype);
    mlc_optim  *opt = training_optim(net, t);
    for (int step = 0; step < 16; step++) {
        const bool bad = t->scaler && (step == 4 || step == 5 || step == 11);
        training_turn(net, opt, step);
        CHECK_EQ(noise_step(net, opt, t->dtype, (uint64_t)step, bad ? (double)INFINITY : 1),
                 MLC_OK);
    }
    double        *p = out->p;
    mlc_param_iter it = mlc_param_iter_make(net);
    for (; mlc_param_next(&it); p += mlc_numel(it.tensor))
        test_read(it.tensor, p);
    CHECK_EQ(p - out->p, 58);
    const mlc_scaler_state s = mlc_optim_scaler_state(opt);
    const bool             looks = t->scaler || isfinite(t->norm) || isfinite(t->value);
    const double           seen[] = {(double)mlc_optim_steps(opt),
                                     looks ? mlc_optim_grad_norm(opt) : 0, s.scale, (double)s.good,
                                     (double)s.skipped, (double)s.skipped_row};
    memcpy(out->seen, seen, sizeof seen);
    CHECK_OK(ctx);
}

TEST(backend, an_optimizer_makes_the_same_bits_on_a_device)
{
    const double   inf = (double)INFINITY;
    const training cases[] = {
        {MLC_RULE_ADAM, inf, inf, false, false, 1, MLC_F32},
        {MLC_RULE_ADAM, 0.02, inf, false, true, 1, MLC_F32},
        {MLC_RULE_ADAM, 0.02, inf, true, true, 1, MLC_F32},
        {MLC_RULE_ADAM, inf, 0.003, false, true, 2, MLC_F32},
        {MLC_RULE_ADAM, inf, 0.003, false, false, 1, MLC_BF16},
        {MLC_RULE_ADAM, inf, inf, false, true, 1, MLC_BF16},
        {MLC_RULE_LAMB, 0.02, inf, false, true, 3, MLC_F32},
        {MLC_RULE_LAMB, inf, 0.003, false, true, 1, MLC_F64},
        {MLC_RULE_SGD, inf, inf, false, true, 1, MLC_F64},
        {MLC_RULE_SGD, 0.02, inf, false, false, 3, MLC_F32},
    };
    static trained on[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        d.isa = MLC_ISA_SCALAR;
        training_run(test_own(mlc_ctx_create(&d)), &cases[i], &on[0]);
        training_run(device_ctx("test:1", NULL), &cases[i], &on[1]);
        for (int k = 0; k < 58 && memcmp(on[0].p, on[1].p, sizeof on[0].p) != 0; k++)
            CHECK_NEAR(on[1].p[k], on[0].p[k], 0);
        CHECK(memcmp(on[0].p, on[1].p, sizeof on[0].p) == 0);
        for (int k = 0; k < 6; k++)
            CHECK_NEAR(on[1].seen[k], on[0].seen[k], 0);
        CHECK(!cases[i].scaler || on[0].seen[4] > 0);
    }
}

TEST(backend, a_step_on_a_device_copies_nothing_unless_settings_change)
{
    const training plain = {MLC_RULE_ADAM, (double)INFINITY, (double)INFINITY, false, false, 1,
                            MLC_F32};
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_module *net = two_linear(ctx, MLC_F32);
    mlc_optim  *opt = training_optim(net, &plain);
    for (int step = 0; step < 8; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(9, 7), 1, -1, 1));
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        if (step == 3 || step == 6)
            CHECK_EQ(mlc_optim_set_lr(opt, step == 3 ? 0.5 : 0.25), MLC_OK);
        if (step == 5)
            CHECK_EQ(mlc_module_freeze(net, "0.*", true), MLC_OK);
        memset(&g_count, 0, sizeof g_count);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(g_count.copies[MLC_COPY_TO_HOST], 0);
        CHECK_EQ(g_count.copies[MLC_COPY_ON_DEVICE], 0);
        CHECK_EQ(g_count.copies[MLC_COPY_TO_DEVICE],
                 step == 0 ? 2 : step == 3 || step == 5 || step == 6);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_EQ(mlc_optim_steps(opt), 8);
    CHECK_OK(ctx);
}

/* Until somebody waits for the device nothing is said, and nothing changes.                    */
TEST(backend, an_optimizers_errors_arrive_with_the_end_of_a_scope)
{
    static trained before, after;
    const training scaled = {MLC_RULE_ADAM, (double)INFINITY, (double)INFINITY, false, true, 1,
                             MLC_F32};
    mlc_ctx        *ctx = device_ctx("test", NULL);
    mlc_module     *net = two_linear(ctx, MLC_F32);
    mlc_optim      *opt = training_optim(net, &scaled);
    mlc_scaler_desc d = mlc_scaler_desc_make();
    d.patience = 2;
    CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, 1), MLC_OK);
    test_read(mlc_module_param(net, "0.weight"), before.p);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, (double)NAN), MLC_OK);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, (double)NAN), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "optim_step: 2 steps in a row had gradients that are not finite, at "
                              "last with a scale of 16384; no scale helps");
    CHECK_EQ(mlc_optim_scaler_state(opt).skipped_row, 2);
    mlc_optim_scaler_off(opt);
    const mlc_clip_desc clip = {1, (double)INFINITY, false};
    CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, (double)INFINITY), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "optim_step: the norm of the gradients is ");
    test_read(mlc_module_param(net, "0.weight"), after.p);
    CHECK(memcmp(before.p, after.p, sizeof before.p) == 0);
    CHECK_EQ(mlc_optim_steps(opt), 1);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, 1), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 2);
    test_read(mlc_module_param(net, "0.weight"), after.p);
    CHECK(memcmp(before.p, after.p, sizeof before.p) != 0);
    CHECK_OK(ctx);
}

/* The scale of a scaled loss is that of its forward, also when its optimizer is gone.          */
TEST(backend, a_scaled_loss_outlives_its_optimizer)
{
    const training scaled = {MLC_RULE_ADAM, (double)INFINITY, (double)INFINITY, false, true, 1,
                             MLC_F32};
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_module *net = two_linear(ctx, MLC_F32);
    mlc_optim  *opt = training_optim(net, &scaled);
    float       loss[2] = {0}, g = 0;
    mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims0(), 3);
    mlc_set_requires_grad(w, true);
    mlc_tensor *y = mlc_optim_scaled(opt, mlc_mul(w, w));
    mlc_optim_free(opt);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    CHECK_EQ(mlc_read(y, loss, sizeof *loss), MLC_OK);
    CHECK_EQ(mlc_read(mlc_grad(w), &g, sizeof g), MLC_OK);
    CHECK_NEAR((double)loss[0], 9 * 65536.0, 0);
    CHECK_NEAR((double)g, 6 * 65536.0, 0);
    CHECK_OK(ctx);
}

/* ---- a device that fails ------------------------------------------------------------------- */

static void ignore(void *user, const char *text, size_t bytes)
{
    *(size_t *)user += bytes + (text == NULL);
}

/* Data, training and printing: each call of the device is some call here.                     */
static mlc_status broken_run(mlc_ctx *ctx)
{
    static const double labels[5] = {0, 2, 1, 1, 0};
    mlc_batch   b;
    size_t      printed = 0;
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_uniform(ctx, MLC_F32, mlc_dims2(5, 7), -1, 1);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(5), labels);
    mlc_loader_desc d = mlc_loader_desc_make(x, y, 5);
    mlc_loader *loader = mlc_loader_create(ctx, &d);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 3));
    mlc_optim  *opt = mlc_adamw(net, 1e-2);
    mlc_anomaly(ctx, true);
    if (loader != NULL && mlc_loader_next(loader, &b)) {
        mlc_backward(mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        mlc_optim_step(opt);
    }
    mlc_print(mlc_transpose(x, 0, 1), ignore, &printed);
    mlc_item(mlc_sum(x, mlc_dims0(), false));
    mlc_masked_select(x, mlc_gt_scalar(x, 0));
    mlc_keep(x);
    mlc_ctx_sync(ctx);
    mlc_index_select(x, 0, y);         /* the scope's end asks whether y was in range          */
    mlc_anomaly(ctx, false);
    mlc_loader_free(loader);
    mlc_optim_free(opt);
    mlc_module_free(net);
    return mlc_scope_end(ctx);
}

TEST(backend, a_device_that_fails_at_any_call_is_an_error_and_leaks_nothing)
{
    const int64_t leaked = g_leaked;
    mlc_ctx      *ctx = device_ctx("test", NULL);
    mlc_status    status = MLC_ERR_DEVICE;
    int64_t       at = 0;
    CHECK_EQ(broken_run(ctx), MLC_OK);
    while (status != MLC_OK && at < 1000) {
        g_break_at = ++at;
        g_calls = 0;
        status = broken_run(ctx);
        if (!CHECK(g_calls < at ? status == MLC_OK : status == MLC_ERR_DEVICE) ||
            (status && (!CHECK_HAS(mlc_error(ctx), "device test") ||
                        !CHECK_HAS(mlc_error(ctx), " broke after "))))
            printf("  call %" PRId64 ": %s\n", at, mlc_error(ctx));
    }
    CHECK(at > 20 && at < 1000);
    g_break_at = 0;
    CHECK_EQ(broken_run(ctx), MLC_OK);
    CHECK_EQ(g_leaked, leaked);
}

static void check_broken(mlc_ctx *ctx, mlc_status got, mlc_status want, const char *text)
{
    g_break_at = 0;
    CHECK_EQ(got, want);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, want);
}

static void break_next(mlc_status status)
{
    g_break = status;
    g_break_at = 1;
    g_calls = 0;
}

/* As a device whose kernel optim has no text for codes: mlcore_cuda.cu. */
TEST(backend, a_device_without_small_moments_refuses_them_when_an_optimizer_is_made)
{
    mlc_ctx      *ctx = device_ctx("test", NULL);
    mlc_module   *net = mlc_nn_linear(ctx, 8, 8);
    mlc_adam_desc d = mlc_adamw_desc_make(0.1);
    bool          refused = false;
    mlc_module_build(net);
    d.moments = MLC_MOMENTS_8BIT;
    for (int64_t at = 1; at < 40 && !refused; at++) {
        break_next(MLC_ERR_UNSUPPORTED);
        g_break_at = at;
        mlc_optim *opt = mlc_adamw_ex(net, &d);
        refused = opt == NULL && strstr(mlc_error(ctx), "adamw: device test keeps states in f32 ");
        mlc_optim_free(opt);
        mlc_error_clear(ctx);
    }
    g_break_at = 0;
    g_break = MLC_ERR_DEVICE;
    CHECK(refused);
    CHECK(mlc_adamw_ex(net, &d) != NULL);
    CHECK_OK(ctx);
}

TEST(backend, an_error_has_the_status_and_the_text_of_the_device)
{
    static const double v[3] = {1, -2, 3};
    float       host[3];
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(3), v), *y = mlc_exp(x);
    break_next(MLC_ERR_NOMEM);
    check_broken(ctx, mlc_read(y, host, sizeof host), MLC_ERR_NOMEM,
                 "device test: copy of 12 bytes failed: copy broke after exp");
    break_next(MLC_ERR_DEVICE);
    check_broken(ctx, mlc_read(y, host, sizeof host), MLC_ERR_DEVICE,
                 "device test: copy of 12 bytes failed: copy broke after exp");
    break_next(MLC_ERR_NOMEM);
    CHECK(mlc_add(x, y) == NULL);
    check_broken(ctx, mlc_ctx_status(ctx), MLC_ERR_NOMEM,
                 "add: kernel 'map' failed on device test: map broke after add");
    break_next(MLC_ERR_DEVICE);
    check_broken(ctx, mlc_ctx_sync(ctx), MLC_ERR_DEVICE,
                 "ctx_sync: device test failed: sync broke after add");
    g_break = MLC_ERR_DEVICE;
    CHECK_EQ(mlc_ctx_sync(ctx), MLC_OK);
    CHECK_EQ(mlc_ctx_sync(NULL), MLC_ERR_ARG);
}

TEST(backend, tensors_of_two_devices_are_an_error_that_names_both)
{
    mlc_ctx    *ctx = device_ctx("test", NULL), *cpu = device_ctx("cpu", NULL);
    mlc_ctx    *scalar = device_ctx("test:1", NULL);
    mlc_tensor *a = mlc_ones(ctx, MLC_F32, mlc_dims1(3)), *b = mlc_ones(cpu, MLC_F32, mlc_dims1(3));
    mlc_tensor *c = mlc_ones(scalar, MLC_F32, mlc_dims1(3));
    CHECK(mlc_add(a, b) == NULL);
    CHECK_STR(mlc_error(ctx), "add: input 2 belongs to another context, on cpu instead of test:0; "
                              "make both in one");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_add(c, a) == NULL);
    CHECK_STR(mlc_error(scalar), "add: input 2 belongs to another context, on test:0 instead of "
                                 "test:1; make both in one");
    CHECK_STATUS(scalar, MLC_ERR_ARG);
    CHECK_EQ(mlc_copy_into(b, a), MLC_ERR_ARG);
    CHECK_STR(mlc_error(cpu), "copy_into: src belongs to another context, on test:0 instead of "
                              "cpu; make both in one");
    CHECK_STATUS(cpu, MLC_ERR_ARG);
}

/* ---- a training step does not wait for its device ------------------------------------------ */

typedef struct run {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
} run;

static run run_make(mlc_optim *(*optim)(mlc_module *root, double lr), bool dropout)
{
    run r;
    r.ctx = device_ctx("test", NULL);
    r.net = mlc_nn_sequential(r.ctx);
    mlc_module_add(r.net, mlc_nn_linear(r.ctx, 7, 9));
    mlc_module_add(r.net, mlc_nn_relu(r.ctx));
    if (dropout)
        mlc_module_add(r.net, mlc_nn_dropout(r.ctx, 0.25));
    mlc_module_add(r.net, mlc_nn_linear(r.ctx, 9, 3));
    r.opt = optim(r.net, 0.05);
    return r;
}

static mlc_status run_step(const run *r, mlc_tensor *x, mlc_tensor *y)
{
    mlc_scope_begin(r->ctx);
    mlc_optim_minimize(r->opt, mlc_cross_entropy(mlc_forward(r->net, x), y));
    return mlc_scope_end(r->ctx);
}

static void check_free_of_waits(const run *r, mlc_loader *loader, int steps)
{
    mlc_batch b;
    for (int i = 0; i < steps; i++) {
        memset(&g_count, 0, sizeof g_count);
        while (!mlc_loader_next(loader, &b)) {}            /* an epoch's end */
        CHECK_EQ(run_step(r, b.x, b.y), MLC_OK);
        if (i < 4)
            continue;                  /* the first ones make the blocks of the pool           */
        CHECK_EQ(g_count.allocs, 0);
        CHECK_EQ(g_count.syncs, 0);
        CHECK_EQ(g_count.copies[MLC_COPY_TO_HOST], 0);
        CHECK(g_count.copies[MLC_COPY_TO_DEVICE] <= (b.index == 0 ? 2 : 1));
        CHECK_EQ(g_count.posts, 1);
        CHECK_EQ(g_count.polls, 1);
        CHECK_EQ(g_count.kernels[KERNEL_xent], 1);
        CHECK_EQ(g_count.kernels[KERNEL_optim], 1);
        CHECK_EQ(g_count.kernels[KERNEL_guard], 1);
    }
}

static mlc_optim *adamw(mlc_module *root, double lr) { return mlc_adamw(root, lr); }
static mlc_optim *momentum(mlc_module *root, double lr)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(lr);
    d.momentum = 0.9;
    return mlc_sgd_ex(root, &d);
}

TEST(backend, a_steady_step_allocates_nothing_reads_nothing_back_and_does_not_wait)
{
    static const double labels[12] = {0, 2, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2};
    mlc_clip_desc clip = mlc_clip_desc_make();
    clip.norm = 0.5;
    for (int form = 0; form < 8; form++) {                 /* bits: Adam, clipping, a scaler   */
        const run r = run_make(form & 1 ? adamw : momentum, true);
        if (form & 2)
            mlc_optim_clip(r.opt, &clip);
        if (form & 4)
            mlc_optim_scaler(r.opt, NULL);
        mlc_tensor *x = test_rand(r.ctx, MLC_F32, mlc_dims2(12, 7), 1, -1, 1);
        mlc_tensor *y = test_tensor(r.ctx, MLC_I64, mlc_dims1(12), labels);
        mlc_loader *loader = mlc_loader_shuffled(r.ctx, x, y, 4);
        if (CHECK(loader != NULL))
            check_free_of_waits(&r, loader, 11);
        mlc_loader_free(loader);
    }
}

/* ---- an update without workspace ---------------------------------------------------------- */

static int64_t g_refuse_at, g_asked;   /* the allocation that is refused; 0: none              */

static bool refuses_one(void)
{
    return g_refuse_at > 0 && ++g_asked == g_refuse_at;
}

/* mlc_backward and mlc_optim_step on 128 x 128 weights; of these the allocation n is refused.   */
static mlc_status square_step(mlc_module *net, mlc_optim *opt, int64_t n)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(4, 128), 5, -1, 1));
    mlc_tensor *loss = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
    mlc_memory_trim(ctx);
    g_refuse_at = n;
    g_asked = 0;
    test_device_refuses = refuses_one;
    mlc_status st = mlc_backward(loss);
    mlc_memory_trim(ctx);              /* nothing in stock: all comes from the device          */
    if (st == MLC_OK)
        st = mlc_optim_step(opt);
    test_device_refuses = NULL;
    CHECK_EQ(mlc_scope_end(ctx), st);
    return st;
}

/* Weights after two updates. The allocation n of the second one is refused: if that has left them
 * as they were it is made again. False: it had not so many, or had moved them.                  */
static bool square_run(bool lamb, int64_t n, float *w, bool *more)
{
    static float       before[128 * 128];
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(128, 128);
    mlc_ctx_desc       c = mlc_ctx_desc_make();
    c.device = "test";
    d.no_bias = true;
    mlc_ctx    *ctx = mlc_ctx_create(&c);
    mlc_module *net = mlc_nn_linear_ex(ctx, &d);
    mlc_optim  *opt = lamb ? mlc_lamb(net, 0.01) : mlc_adamw(net, 0.01);
    CHECK_EQ(mlc_optim_in_backward(opt, !lamb), MLC_OK);
    CHECK_EQ(square_step(net, opt, 0), MLC_OK);
    mlc_read(mlc_module_param(net, "weight"), before, sizeof before);
    const mlc_status st = square_step(net, opt, n);
    *more = st != MLC_OK;
    mlc_read(mlc_module_param(net, "weight"), w, sizeof before);
    const bool again = *more && memcmp(w, before, sizeof before) == 0;
    if (*more)
        CHECK_EQ(st, MLC_ERR_NOMEM);
    mlc_optim_zero_grad(opt);
    if (again)
        CHECK_EQ(square_step(net, opt, 0), MLC_OK);
    mlc_read(mlc_module_param(net, "weight"), w, sizeof before);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return again;
}

TEST(backend, an_update_that_is_refused_its_workspace_is_not_counted)
{
    static float want[128 * 128], got[128 * 128];
    for (int lamb = 0; lamb < 2; lamb++) {
        bool more;
        int  again = 0;
        square_run(lamb, 0, want, &more);
        CHECK(!more);
        more = true;
        for (int64_t n = 1; more; n++)
            if (square_run(lamb, n, got, &more)) {
                CHECK(memcmp(got, want, sizeof got) == 0);
                again++;
            }
        CHECK(again > 0);
    }
}

/* ---- a device that answers late ------------------------------------------------------------ */

typedef struct late {
    run         r;                     /* without dropout, so that steps do not differ         */
    mlc_tensor *x, *good, *bad;
    float       before[9 * 7], after[9 * 7];
} late;

static late late_make(void)
{
    static const double good[5] = {0, 2, 1, 1, 0}, bad[5] = {0, 2, 3, 1, 0};
    late l;
    l.r = run_make(momentum, false);
    l.x = test_rand(l.r.ctx, MLC_F32, mlc_dims2(5, 7), 1, -1, 1);
    l.good = test_tensor(l.r.ctx, MLC_I64, mlc_dims1(5), good);
    l.bad = test_tensor(l.r.ctx, MLC_I64, mlc_dims1(5), bad);
    return l;
}

static void late_weights(late *l, float *to)
{
    mlc_read(mlc_module_param(l->r.net, "0.weight"), to, sizeof l->before);
}

static bool late_moved(late *l)
{
    late_weights(l, l->after);
    return memcmp(l->before, l->after, sizeof l->before) != 0;
}

#define LATE_TEXT "cross_entropy: label 3 at row 2 is not in [0,3)"

/* The bad step is made, and a good one before the error arrives: neither changes anything.      */
TEST(backend, a_bad_label_that_is_reported_late_changes_no_weights)
{
    late l = late_make(), other = late_make();
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    late_weights(&l, l.before);
    g_polls = 3;
    CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_OK);
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(l.r.ctx), LATE_TEXT);
    CHECK_OK(l.r.ctx);
    CHECK(!late_moved(&l));
    for (int i = 0; i < 4; i++)
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    g_polls = 1;                       /* the same run without the steps that were not made    */
    CHECK_EQ(run_step(&other.r, other.x, other.bad), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(other.r.ctx), LATE_TEXT);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(run_step(&other.r, other.x, other.good), MLC_OK);
    late_weights(&other, l.before);
    CHECK(!late_moved(&l));
}

/* The gradient of a bad batch is in what was collected when the error arrives; on the CPU the batch
 * adds nothing and is no call. */
TEST(backend, a_bad_label_spoils_what_a_device_has_collected_until_gradients_are_zeroed)
{
    for (int zero = 0; zero < 2; zero++) {
        late l = late_make();
        CHECK_EQ(mlc_optim_accumulate(l.r.opt, 2), MLC_OK);
        CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_ERR_VALUE);
        CHECK_OK(l.r.ctx);
        if (zero)
            mlc_optim_zero_grad(l.r.opt);
        late_weights(&l, l.before);
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
        CHECK_EQ(late_moved(&l), !zero);                   /* the bad batch was a call          */
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
        CHECK_EQ(late_moved(&l), true);
        CHECK_EQ(isfinite(l.after[0]), zero);              /* loss and norm were not written    */
    }
}

TEST(backend, an_error_that_a_read_reports_is_not_reported_again_by_the_ticket)
{
    late l = late_make();
    late_weights(&l, l.before);
    g_polls = 3;
    CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_OK);
    CHECK_EQ(mlc_read(l.x, l.after, sizeof(float) * 35), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(l.r.ctx), LATE_TEXT);
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_ERR_VALUE);    /* it stands                      */
    mlc_error_clear(l.r.ctx);
    CHECK(!late_moved(&l));
    for (int i = 0; i < 6; i++)
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    CHECK(late_moved(&l));
    g_polls = 1;
}

TEST(backend, a_sync_reports_what_is_not_answered_yet_also_of_a_later_operation)
{
    late l = late_make();
    g_polls = 3;
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);         /* its ticket is open               */
    CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_OK);
    mlc_error_clear(l.r.ctx);          /* of an error that is not known yet it forgets nothing */
    CHECK_EQ(mlc_ctx_sync(l.r.ctx), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(l.r.ctx), LATE_TEXT);
    mlc_error_clear(l.r.ctx);
    CHECK_EQ(mlc_ctx_sync(l.r.ctx), MLC_OK);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    g_polls = 1;
}

TEST(backend, a_context_may_be_freed_before_a_ticket_is_answered)
{
    const int64_t leaked = g_leaked;
    mlc_ctx_desc  d = mlc_ctx_desc_make();
    d.device = "test";
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL))
        return;
    g_polls = 3;
    mlc_scope_begin(ctx);
    mlc_tensor *index = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
    mlc_index_select(mlc_ones(ctx, MLC_F32, mlc_dims2(3, 3)), 0, index);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_ctx_free(ctx);
    CHECK_EQ(g_leaked, leaked);
    g_polls = 1;
}

/* ---- workspace that a device asks for ------------------------------------------------------ */

static mlc_tensor *asking_run(mlc_tensor *x, mlc_tensor *at, int op)
{
    const mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SRHT, 2, 4, 7);
    switch (op) {
    case 0:  return mlc_index_select(x, 0, at);
    case 1:  return mlc_gather(x, 1, mlc_zeros(x->ctx, MLC_I64, mlc_dims2(3, 2)));
    case 2:  return mlc_cumsum(x, 1);
    case 3:  return mlc_cumprod(x, 0);
    case 4:  return mlc_argmax(x, 1, false);
    case 5:  return mlc_argmin(x, 0, false);
    case 6:  return mlc_randperm(x->ctx, 9);
    default: return mlc_sketch_apply(x, &s, 1);
    }
}

/* Whatever runs on the device checks what these kernels are given; here that they were asked. */
TEST(backend, index_scan_argmax_and_permutation_get_the_workspace_that_a_device_asks_for)
{
    static const double rows[2] = {2, 0};
    mlc_status  status;
    mlc_ctx    *ctx = device_ctx("test", &status);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, -1, 1);
    mlc_tensor *at = test_tensor(ctx, MLC_I64, mlc_dims1(2), rows);
    mlc_set_requires_grad(x, true);
    for (int op = 0; op < 8; op++) {
        const int64_t asked = g_asked;
        mlc_tensor   *y = asking_run(x, at, op);
        CHECK(y != NULL);
        CHECK_EQ(g_asked, asked + 1);
        if (y != NULL && op < 3) {                          /* a scatter or a scan again        */
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
            CHECK_EQ(g_asked, asked + 2);
        }
    }
    CHECK_OK(ctx);
}

/* ---- kernels: buffers that end where the next page is unreadable --------------------------- */

#define GUARDED ((size_t)8 << 20)
#define ROLES   6                      /* buffers a kernel is given at once                    */

/* Memory for bytes that end at a guard page; each role has one such buffer for the process.   */
static void *guarded(int role, size_t bytes)
{
    static char *buffer[ROLES];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > GUARDED)
        abort();
    if (buffer[role] == NULL) {
        char *p = (char *)mmap(NULL, GUARDED + page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + GUARDED, page, PROT_NONE) != 0)
            abort();
        buffer[role] = p;
    }
    return buffer[role] + GUARDED - bytes;
}

#define CANARY 64

/* guarded memory with bytes before it that nothing may change.                                */
static void *caged(int role, size_t bytes)
{
    char *p = (char *)guarded(role, bytes + CANARY);
    memset(p, 0x5c, CANARY);
    memset(p + CANARY, 0xa7, bytes);
    return p + CANARY;
}

static bool cage_holds(const void *p)
{
    for (int i = 1; i <= CANARY; i++)
        if (((const unsigned char *)p)[-i] != 0x5c)
            return false;
    return true;
}

static size_t size_of(mlc_dtype dtype)
{
    return mlc_dtype_bytes(dtype);
}

static void put(void *p, mlc_dtype dtype, int64_t i, double v)
{
    test_put(p, dtype, i, v);
}

static double get(const void *p, mlc_dtype dtype, int64_t i)
{
    return test_get(p, dtype, i);
}

static void *guarded_rand(int role, mlc_dtype dtype, int64_t n, uint64_t seed, double lo,
                          double hi)
{
    void *p = guarded(role, (size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++)
        put(p, dtype, i, test_random(seed, i, lo, hi));
    return p;
}

/* Equal bit for bit, but that one NaN is as good as another.                                  */
static bool same_bits(const void *a, const void *b, mlc_dtype dtype, int64_t n)
{
    const size_t size = size_of(dtype);
    for (int64_t i = 0; i < n; i++) {
        double x = dtype == MLC_I64 ? 0 : get(a, dtype, i), y = dtype == MLC_I64 ? 0
                                                                : get(b, dtype, i);
        if (memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size)
            && !(isnan(x) && isnan(y))) {
            printf("  element %" PRId64 " of %" PRId64 ": %.17g against %.17g\n", i, n, x, y);
            return false;
        }
    }
    return true;
}

/* Runs the body for each level above scalar, with k its row and scalar the lowest row.        */
#define FOR_EACH_ROW(k, isa) \
    for (int isa = MLC_ISA_SCALAR + 1; isa <= (int)test_isa_top(); isa++) \
        for (const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa); k != NULL; k = NULL)

static const mlc_kernels *scalar_row(void)
{
    return mlc_cpu_kernels(MLC_ISA_SCALAR);
}

/* ---- map ---------------------------------------------------------------------------------- */

static const double SPECIAL[] = {0.0, -0.0, 1.0, -1.0, INF, -INF, NO_NUMBER, 88.7, -103.9,
                                 1e-38, -1e-38, 3.4e38, 1e-30, 709.7, -745.1, 0.5};
#define SPECIALS ((int64_t)(sizeof SPECIAL / sizeof *SPECIAL))

/* Every seventh value is one of the special ones, at another place for each seed.             */
static void *map_input(int role, mlc_dtype dtype, int64_t n, uint64_t seed)
{
    void *p = guarded_rand(role, dtype, n, seed, -4, 4);
    for (int64_t i = (int64_t)(seed % 7); i < n; i += 7)
        put(p, dtype, i, SPECIAL[(i + (int64_t)seed) % SPECIALS]);
    return p;
}

static int map_inputs(mlc_map op)
{
    if (op <= MLC_MAP_MUL_S)
        return 1;
    return op < MLC_MAP_DIV_GRAD_B ? 2 : 3;
}

/* Runs op on rows x cols elements into role `out`, with these strides for columns.            */
static void *map_run(const mlc_kernels *k, mlc_map op, mlc_dtype dtype, int64_t rows,
                     int64_t cols, int64_t stride, bool accumulate, int out)
{
    struct mlc_k_map a;
    const int64_t span = rows * cols * stride;
    memset(&a, 0, sizeof a);
    a.op = op;
    a.dtype = dtype;
    a.ndim = 2;
    a.accumulate = accumulate;
    a.shape[0] = rows;
    a.shape[1] = cols;
    a.s = 0.37;
    for (int p = 0; p < map_inputs(op); p++) {
        a.in[p] = map_input(p, dtype, span, (uint64_t)(7 * (int)op + p));
        a.in_stride[p][0] = cols * stride;
        a.in_stride[p][1] = stride;
    }
    a.out = guarded_rand(out, dtype, rows * cols, 99, -1, 1);
    a.out_stride[0] = stride == 1 ? cols : 1;              /* the second form is transposed    */
    a.out_stride[1] = stride == 1 ? 1 : rows;
    return k->map(NULL, &a) == MLC_OK ? a.out : NULL;
}

static bool map_agrees(const mlc_kernels *k, mlc_map op, mlc_dtype dtype, int64_t rows,
                       int64_t cols, int64_t stride, bool accumulate)
{
    const void *want = map_run(scalar_row(), op, dtype, rows, cols, stride, accumulate, 3);
    const void *got = map_run(k, op, dtype, rows, cols, stride, accumulate, 4);
    if (want != NULL && got != NULL && same_bits(got, want, dtype, rows * cols))
        return true;
    printf("  map %d, %s, %" PRId64 " x %" PRId64 ", stride %" PRId64 "%s\n", (int)op,
           mlc_dtype_name(dtype), rows, cols, stride, accumulate ? ", accumulating" : "");
    return false;
}

static bool map_sizes_agree(const mlc_kernels *k, mlc_map op, mlc_dtype dtype)
{
    for (int64_t n = 1; n <= 70; n += test_stride(9))
        if (!map_agrees(k, op, dtype, 1, n, 1, false) || !map_agrees(k, op, dtype, 3, n, 1, true))
            return false;
    for (int64_t n = 1; n <= 70; n += 13)
        if (!map_agrees(k, op, dtype, 5, n, 3, false) || !map_agrees(k, op, dtype, n, 5, 2, true))
            return false;
    return map_agrees(k, op, dtype, 1, 1031, 1, false) &&
           map_agrees(k, op, dtype, 2, 20011, 1, true);
}

TEST(backend, map_kernels_have_the_same_bits_on_every_level)
{
    CHECK(scalar_row() != NULL);
    FOR_EACH_ROW(k, isa)
        for (int op = 0; op < MLC_MAP_COUNT; op++) {
            CHECK(map_sizes_agree(k, (mlc_map)op, MLC_F32));
            CHECK(map_sizes_agree(k, (mlc_map)op, MLC_F64));
        }
}

/* ---- the lists of formulas, as a device outside makes its kernels of them ------------------ */

static double dev_exp(double x) { return exp(x); }
static double dev_log(double x) { return log(x); }
static double dev_sqrt(double x) { return sqrt(x); }
static double dev_tanh(double x) { return tanh(x); }
static double dev_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double dev_gelu(double x) { return 0.5 * x * (1 + erf(x * sqrt(0.5))); }
static double dev_gelu_slope(double x)
{
    return 0.5 * (1 + erf(x * sqrt(0.5))) + x * exp(-0.5 * x * x) / sqrt(2 * acos(-1));
}

static double dev_gelu_tanh(double x)
{
    return x * dev_sigmoid(sqrt(8 / acos(-1)) * (x + 0.044715 * x * x * x));
}
static double dev_gelu_tanh_slope(double x)
{
    const double s = dev_sigmoid(sqrt(8 / acos(-1)) * (x + 0.044715 * x * x * x));
    return s + x * s * (1 - s) * sqrt(8 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
}

#define DEV(name) dev_##name
#define DEV_CASE(code, formula) case MLC_##code: return formula;
static double dev_map(mlc_map op, double a, double b, double c, double s)
{
    typedef double T;
    switch ((int)op) {
        MLC_MAP_FORMULAS(DEV_CASE, DEV_CASE, DEV_CASE, DEV)
    default: return (double)NAN;
    }
}

TEST(backend, a_device_makes_the_kernel_map_of_the_public_formulas)
{
    enum { N = 9 };
    double           in[3][N], out[N];
    struct mlc_k_map a;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 3; k++) in[k][i] = test_random(71 + (uint64_t)k, i, 0.25, 2);
    for (int op = 0; op < MLC_MAP_COUNT; op++) {
        memset(&a, 0, sizeof a);
        a.op = (mlc_map)op, a.dtype = MLC_F64, a.ndim = 1, a.shape[0] = N, a.s = 0.75;
        a.out = out, a.out_stride[0] = 1;
        for (int k = 0; k < 3; k++) a.in[k] = in[k], a.in_stride[k][0] = 1;
        CHECK_EQ(scalar_row()->map(NULL, &a), MLC_OK);
        for (int i = 0; i < N; i++)
            CHECK_NEAR(out[i], dev_map((mlc_map)op, in[0][i], in[1][i], in[2][i], 0.75), 1e-13);
    }
}

/* A device that was compiled against an older header knows formulas by number.                 */
#define ONE_MORE(code, formula) +1
TEST(backend, formulas_keep_their_numbers)
{
    CHECK_EQ(0 MLC_MAP_FORMULAS(ONE_MORE, ONE_MORE, ONE_MORE, DEV), MLC_MAP_COUNT);
    CHECK_EQ(0 MLC_FORMULAS(ONE_MORE, ONE_MORE, ONE_MORE, DEV), MLC_MATH_END);
    CHECK_EQ(MLC_MAP_COPY, 0);
    CHECK_EQ(MLC_MAP_SQDIFF_GRAD, 26);
    CHECK_EQ(MLC_MATH_ABS, 29);
    CHECK_EQ(MLC_MATH_POW, 69);
    CHECK_EQ(MLC_MATH_SMOOTH_L1, 104);
    CHECK_EQ(MLC_MATH_GLU_GRAD_B, 154);
}

/* ---- fill, cast, random, dropout ---------------------------------------------------------- */

static bool fill_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t n, double start,
                        double step)
{
    struct mlc_k_fill a = {dtype, n, caged(0, (size_t)n * size_of(dtype)), start, step, 0};
    struct mlc_k_fill b = {dtype, n, caged(1, (size_t)n * size_of(dtype)), start, step, 0};
    return scalar_row()->fill(NULL, &a) == MLC_OK && k->fill(NULL, &b) == MLC_OK &&
           cage_holds(a.out) && cage_holds(b.out) && same_bits(b.out, a.out, dtype, n);
}

TEST(backend, fill_kernels_have_the_same_bits_on_every_level)
{
    CHECK(fill_agrees(scalar_row(), MLC_F32, 7, 1, 2));
    FOR_EACH_ROW(k, isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 70; n++)
                CHECK(fill_agrees(k, (mlc_dtype)dtype, n, 0, 0) &&
                      fill_agrees(k, (mlc_dtype)dtype, n, -3.7, 1.1));
}

static void *cast_run(const mlc_kernels *k, mlc_dtype to, mlc_dtype from, int64_t rows,
                      int64_t cols, int out)
{
    struct mlc_k_cast a;
    memset(&a, 0, sizeof a);
    a.out_dtype = to;
    a.in_dtype = from;
    a.ndim = 2;
    a.shape[0] = rows;
    a.shape[1] = cols;
    a.in_stride[0] = 1;                /* transposed, but for one row                          */
    a.in_stride[1] = rows;
    a.out_stride[0] = cols;
    a.out_stride[1] = 1;
    a.in = guarded(0, (size_t)(rows * cols) * size_of(from));
    for (int64_t i = 0; i < rows * cols; i++) {
        double v = i % 3 ? test_random(3, i, -1e9, 1e9) : SPECIAL[i % SPECIALS];
        if (from == MLC_I64)
            ((int64_t *)guarded(0, (size_t)(rows * cols) * 8))[i] = (int64_t)i * 12345677 - 5;
        else if (from == MLC_I32 || from == MLC_I8 || from == MLC_U8 || from == MLC_BOOL)
            put(guarded(0, (size_t)(rows * cols) * size_of(from)), from, i, (double)(i * 7 % 127));
        else
            put(guarded(0, (size_t)(rows * cols) * size_of(from)), from, i, v);
    }
    a.out = caged(out, (size_t)(rows * cols) * size_of(to));
    return k->cast(NULL, &a) == MLC_OK && cage_holds(a.out) ? a.out : NULL;
}

TEST(backend, cast_kernels_have_the_same_bits_on_every_level)
{
    for (int to = 0; to < MLC_DTYPE_COUNT; to++)
        for (int from = 0; from < MLC_DTYPE_COUNT; from++) {
            if (!CHECK(cast_run(scalar_row(), (mlc_dtype)to, (mlc_dtype)from, 3, 5, 1) != NULL))
                return;
            FOR_EACH_ROW(k, isa)
                for (int64_t n = 1; n <= 70; n += test_stride(3)) {
                    const void *want = cast_run(scalar_row(), (mlc_dtype)to, (mlc_dtype)from,
                                                1 + n % 3, n, 1);
                    const void *got = cast_run(k, (mlc_dtype)to, (mlc_dtype)from, 1 + n % 3, n, 2);
                    CHECK(got && want &&
                          same_bits(got, want, (mlc_dtype)to, n * (1 + n % 3)));
                }
        }
}

TEST(backend, cast_kernels_round_to_even_truncate_and_mark_what_does_not_fit)
{
    static const double  in[6] = {1.9, -1.9, NO_NUMBER, 1e19, 9007199254740993.0, 16777217.0};
    static const int64_t want[6] = {1, -1, INT64_MIN, INT64_MIN, 9007199254740992, 16777217};
    struct mlc_k_cast a;
    int64_t whole[6];
    float   narrow[6];
    memset(&a, 0, sizeof a);
    a.ndim = 1;
    a.shape[0] = 6;
    a.in_stride[0] = a.out_stride[0] = 1;
    a.in = in;
    a.in_dtype = MLC_F64;
    a.out = whole;
    a.out_dtype = MLC_I64;
    CHECK_EQ(scalar_row()->cast(NULL, &a), MLC_OK);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(whole[i], want[i]);
    a.out = narrow;
    a.out_dtype = MLC_F32;
    CHECK_EQ(scalar_row()->cast(NULL, &a), MLC_OK);
    CHECK(narrow[5] == 16777216.0f);   /* a tie, to the even side                              */
}

/* Bernoulli: a is its probability; truncated: within [lo,hi]; integers: -3 .. 93.             */
static void *random_run(const mlc_kernels *k, mlc_random kind, mlc_dtype dtype, int64_t n, int out)
{
    struct mlc_k_random a = {kind, dtype, n, caged(out, (size_t)n * size_of(dtype)),
                             42, 7, NULL, kind == MLC_RANDOM_BERNOULLI ? 0.375 : -1.5, 2.5, -2, 4,
                             -3, 97, NULL, 0};
    return k->random(NULL, &a) == MLC_OK && cage_holds(a.out) ? a.out : NULL;
}

static bool random_makes(mlc_random kind, mlc_dtype dtype)
{
    const bool floats = dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 ||
                        dtype == MLC_F16;
    return kind == MLC_RANDOM_PERMUTATION ? dtype == MLC_I64
                                          : floats || kind >= MLC_RANDOM_BERNOULLI;
}

/* A permutation hangs on its length, too.                                                     */
TEST(backend, random_kernels_depend_on_seed_stream_and_index_only)
{
    for (int kind = 0; kind <= MLC_RANDOM_PERMUTATION; kind++)
        for (int type = 0; type < MLC_DTYPE_COUNT; type++) {
            const mlc_dtype dtype = (mlc_dtype)type;
            const mlc_random r = (mlc_random)kind;
            const void     *whole = random_run(scalar_row(), r, dtype, 300, 0);
            if (!random_makes(r, dtype)) {
                CHECK(r == MLC_RANDOM_TRUNCATED || whole == NULL);
                continue;
            }
            if (!CHECK(whole != NULL))
                return;
            for (int64_t n = 1; n <= 300; n += n < 70 ? test_stride(3) : 23) {
                const void *part = random_run(scalar_row(), r, dtype, n, 1);
                CHECK(part && (r == MLC_RANDOM_PERMUTATION || same_bits(part, whole, dtype, n)));
                FOR_EACH_ROW(k, isa) {
                    const void *got = random_run(k, r, dtype, n, 2);
                    CHECK(got && same_bits(got, part, dtype, n));
                }
            }
        }
}

/* The published test vectors of Philox4x32-10 in Random123 fix the words; here their use.     */
TEST(backend, random_values_have_the_moments_they_should)
{
    enum { N = 40000 };
    for (int dtype = 0; dtype < 2; dtype++) {
        for (int kind = 0; kind < 2; kind++) {
            const void *p = random_run(scalar_row(), (mlc_random)kind, (mlc_dtype)dtype, N, 0);
            double sum = 0, squares = 0, least = INF, most = -INF;
            double mean = kind ? -1.5 : 0.5, deviation = kind ? 2.5 : 4 / sqrt(12);
            for (int64_t i = 0; i < N; i++) {
                double v = get(p, (mlc_dtype)dtype, i);
                sum += v;
                squares += (v - mean) * (v - mean);
                least = v < least ? v : least;
                most = v > most ? v : most;
            }
            CHECK_NEAR(sum / N, mean, 4 * deviation / sqrt(N));
            CHECK_NEAR(sqrt(squares / N), deviation, 4 * deviation / sqrt(2.0 * N));
            CHECK(kind || (least >= -1.5 && most < 2.5));
        }
    }
}

static void *dropout_run(const mlc_kernels *k, mlc_dtype dtype, int64_t n, double p, bool add,
                         int out)
{
    struct mlc_k_dropout a;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.accumulate = add;
    a.n = n;
    a.in = guarded_rand(0, dtype, n, 5, 1, 2);
    a.out = caged(out, (size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++)
        put(a.out, dtype, i, test_random(6, i, -1, 1));
    a.seed = 3;
    a.stream = 9;
    a.p = p;
    return k->dropout(NULL, &a) == MLC_OK && cage_holds(a.out) ? a.out : NULL;
}

TEST(backend, dropout_kernels_have_the_same_bits_on_every_level)
{
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    for (int d = 0; d < 4; d++)
        for (int64_t n = 1; n <= 70; n++)
            for (int add = 0; add < 2; add++) {
                const mlc_dtype dtype = floats[d];
                const void *want = dropout_run(scalar_row(), dtype, n, 0.3, add, 1);
                if (!CHECK(want != NULL))
                    return;
                FOR_EACH_ROW(k, isa) {
                    const void *got = dropout_run(k, dtype, n, 0.3, add, 2);
                    CHECK(got && same_bits(got, want, dtype, n));
                }
            }
}

TEST(backend, dropout_keeps_its_share_and_scales_it)
{
    enum { N = 40000 };
    const float *in = (const float *)guarded(0, N * 4);
    const float *out = (const float *)dropout_run(scalar_row(), MLC_F32, N, 0.3, false, 1);
    int64_t kept = 0;
    bool    right = true;
    for (int i = 0; i < N; i++) {
        kept += out[i] != 0;
        right = right && (out[i] == 0 || fabs((double)out[i] * 0.7 - (double)in[i]) < 1e-6);
    }
    CHECK(right);
    CHECK_NEAR((double)kept / N, 0.7, 4 * sqrt(0.21 / N));
    out = (const float *)dropout_run(scalar_row(), MLC_F32, 70, 0, false, 1);
    CHECK(memcmp(out, guarded(0, 70 * 4), 70 * 4) == 0);
    out = (const float *)dropout_run(scalar_row(), MLC_F32, 70, 1, false, 1);
    for (int i = 0; i < 70; i++)
        CHECK(out[i] == 0);
}

/* ---- streams with a base ------------------------------------------------------------------- */

enum { DRAW_BYTES = 4096, DRAW_KINDS = 15 };

typedef struct draw {                  /* a kernel that draws, and the stream it is given      */
    int             what;              /* below DRAW_KINDS                                     */
    uint64_t        stream;
    const uint64_t *base;
    char            out[DRAW_BYTES], workspace[1 << 20];
} draw;

/* Kinds 0 to 5: those of random.                                                              */
static mlc_status draw_random(const mlc_kernels *k, draw *d)
{
    const mlc_random    kind = (mlc_random)d->what;
    const bool          whole = kind == MLC_RANDOM_INTEGER || kind == MLC_RANDOM_PERMUTATION;
    struct mlc_k_random a = {kind, whole ? MLC_I64 : MLC_F32, 300, d->out, 42, d->stream, d->base,
                             kind == MLC_RANDOM_BERNOULLI ? 0.375 : -1.5, 2.5, -2, 4, -3, 97,
                             NULL, 0};
    return k->random(NULL, &a);
}

/* 6 and 7: in f32 and bf16.                                                                   */
static mlc_status draw_dropout(const mlc_kernels *k, draw *d)
{
    const mlc_dtype      dtype = d->what == 6 ? MLC_F32 : MLC_BF16;
    struct mlc_k_dropout a = {dtype, 0, 300, d->out, guarded_rand(0, dtype, 300, 5, 1, 2), 42,
                              d->stream, d->base, 0.4};
    return k->dropout(NULL, &a);
}

/* 8 and 9: CountSketch and a Walsh-Hadamard transform of 3 lines of 200 elements.              */
static mlc_status draw_sketch(const mlc_kernels *k, draw *d)
{
    struct mlc_k_sketch a;
    int64_t             index[200];
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 200; i++)
        index[i] = i * 7 % 16;
    a.srht = d->what == 9;
    a.dtype = MLC_F32;
    a.lines = 3, a.rows = 16, a.cols = 200;
    a.in = guarded_rand(0, MLC_F32, 600, 5, 1, 2), a.in_row = 200;
    a.out = d->out, a.out_row = 16;
    a.index = index;
    a.seed = 42, a.stream = d->stream, a.stream_base = d->base;
    a.scale = 1;
    a.workspace = d->workspace, a.workspace_bytes = k->sketch_workspace(NULL, &a);
    return k->sketch(NULL, &a);
}

/* 10 and 11: with replacement and without.                                                    */
static mlc_status draw_multinomial(const mlc_kernels *k, draw *d)
{
    struct mlc_k_multinomial a;
    int64_t                  error[4] = {0};
    memset(&a, 0, sizeof a);
    a.dtype = MLC_F32;
    a.replacement = d->what == 10;
    a.n = 4, a.c = 50, a.k = 20;
    a.weights = guarded_rand(0, MLC_F32, 200, 5, 1, 2), a.row = 50, a.col = 1;
    a.out = (int64_t *)(void *)d->out;
    a.seed = 42, a.stream = d->stream, a.stream_base = d->base;
    a.error = error;
    a.workspace = d->workspace, a.workspace_bytes = k->multinomial_workspace(NULL, &a);
    return k->multinomial(NULL, &a);
}

/* 12: a product with dropout; 13 and 14: with signs, in f32 and bf16.                         */
static mlc_status draw_gemm(const mlc_kernels *k, draw *d)
{
    struct mlc_k_gemm g;
    const mlc_dtype   dtype = d->what == 14 ? MLC_BF16 : MLC_F32;
    memset(&g, 0, sizeof g);
    g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = g.bias_dtype = dtype;
    g.m = 17, g.n = 33, g.k = 32, g.batch[0] = g.batch[1] = g.batch[2] = 1, g.alpha = 1;
    g.a = guarded_rand(0, dtype, 17 * 32, 5, 1, 2), g.a_row = 32, g.a_col = 1;
    g.b = guarded_rand(1, dtype, 32 * 33, 6, 1, 2), g.b_row = 33, g.b_col = 1;
    g.c = d->out, g.c_row = 33, g.c_col = 1;
    if (d->what == 12)
        g.drop = 0.4, g.drop_seed = 42, g.drop_stream = d->stream, g.drop_base = d->base;
    else
        g.signs.rows = 32, g.signs.seed = 42, g.signs.stream = d->stream,
        g.signs.stream_base = d->base;
    g.workspace = d->workspace, g.workspace_bytes = k->gemm_workspace(NULL, &g);
    return g.workspace_bytes <= sizeof d->workspace ? k->gemm(NULL, &g) : MLC_ERR_NOMEM;
}

static const char *draw_made(const mlc_kernels *k, draw *d, int what, uint64_t stream,
                             const uint64_t *base)
{
    d->what = what;
    d->stream = stream;
    d->base = base;
    memset(d->out, 0, sizeof d->out);
    CHECK_EQ((what < 6    ? draw_random
              : what < 8  ? draw_dropout
              : what < 10 ? draw_sketch
              : what < 12 ? draw_multinomial
                          : draw_gemm)(k, d), MLC_OK);
    return d->out;
}

TEST(backend, a_base_is_added_to_the_stream_of_each_kernel_that_draws)
{
    static const uint64_t base = (UINT64_C(5) << 32) + 3;
    static draw d[3];
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int what = 0; what < DRAW_KINDS; what++) {
            const char *want = draw_made(k, &d[0], what, 7 + base, NULL);
            const bool  same = memcmp(draw_made(k, &d[1], what, 7, &base), want, DRAW_BYTES) == 0;
            const bool  other = memcmp(draw_made(k, &d[2], what, 7, NULL), want, DRAW_BYTES) != 0;
            if (!CHECK(same) || !CHECK(other)) {
                printf("  draw %d\n", what);
                return;
            }
        }
    }
}

/* ---- reduce ------------------------------------------------------------------------------- */

#define REDUCE_MOST 140002             /* outputs of the largest case                          */

typedef struct reducing {             /* of a [rows, cols] array, in_stride as given          */
    mlc_reduce op;
    mlc_dtype  dtype;
    int64_t    rows, cols;
    bool       over_rows, over_cols, transposed, accumulate;
} reducing;

static int64_t reduce_outs(const reducing *r)
{
    return (r->over_rows ? 1 : r->rows) * (r->over_cols ? 1 : r->cols);
}

static const void *reduce_run(const mlc_kernels *k, const reducing *r, int out)
{
    struct mlc_k_reduce a;
    memset(&a, 0, sizeof a);
    a.op = r->op;
    a.dtype = a.out_dtype = r->dtype;
    a.ndim = 2;
    a.accumulate = r->accumulate;
    a.shape[0] = r->rows;
    a.shape[1] = r->cols;
    a.in = guarded_rand(0, r->dtype, r->rows * r->cols, 11, -1, 1);
    a.in_stride[0] = r->transposed ? 1 : r->cols;
    a.in_stride[1] = r->transposed ? r->rows : 1;
    a.out_stride[1] = r->over_cols ? 0 : 1;
    a.out_stride[0] = r->over_rows ? 0 : r->over_cols ? 1 : r->cols;
    a.divisor = 4;
    a.out = guarded_rand(out, r->dtype, reduce_outs(r), 12, -1, 1);
    a.workspace_bytes = k->reduce_workspace ? k->reduce_workspace(NULL, &a) : 0;
    a.workspace = guarded(5, a.workspace_bytes);
    return k->reduce(NULL, &a) == MLC_OK ? a.out : NULL;
}

/* All outputs in double, and the sums of magnitudes that bound their rounding.                */
static void reduce_want(const reducing *r, double *want, double *magnitude)
{
    const void *in = guarded(0, (size_t)(r->rows * r->cols) * size_of(r->dtype));
    for (int64_t o = 0; o < reduce_outs(r); o++) {
        want[o] = r->op == MLC_REDUCE_SUM ? 0 : -INF;
        magnitude[o] = 0;
    }
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t j = 0; j < r->cols; j++) {
            int64_t o = (r->over_rows ? 0 : i) * (r->over_cols ? 1 : r->cols) +
                        (r->over_cols ? 0 : j);
            double x = get(in, r->dtype, r->transposed ? j * r->rows + i : i * r->cols + j);
            want[o] = r->op == MLC_REDUCE_SUM ? want[o] + x : x > want[o] ? x : want[o];
            magnitude[o] += fabs(x);
        }
}

static bool reduce_agrees(const mlc_kernels *k, const reducing *r)
{
    static double want[REDUCE_MOST], magnitude[REDUCE_MOST];
    const double  eps = r->dtype == MLC_F32 ? 1.2e-7 : 2.3e-16;
    const void   *out = reduce_run(k, r, 1);
    reduce_want(r, want, magnitude);
    for (int64_t o = 0; o < reduce_outs(r); o++) {
        double start = r->accumulate ? test_random(12, o, -1, 1) : 0;
        double sum = start + 0.25 * want[o], got = out ? get(out, r->dtype, o) : NO_NUMBER;
        /* the bounds that the doc comment of reductions promises, and roundings at the end    */
        double bound = (r->op == MLC_REDUCE_MAX ? 0 : r->dtype == MLC_F32 ? 1 : 22) * eps *
                       0.25 * magnitude[o] + 2 * eps * (fabs(sum) + fabs(start));
        if (fabs(got - sum) <= bound)
            continue;
        printf("  reduce %d %s [%" PRId64 ",%" PRId64 "] over %d%d%s: %" PRId64 " is %.17g, "
               "want %.17g\n", (int)r->op, mlc_dtype_name(r->dtype), r->rows, r->cols,
               r->over_rows, r->over_cols, r->transposed ? " transposed" : "", o, got, sum);
        return false;
    }
    return true;
}

static bool reduce_shape_agrees(const mlc_kernels *k, int64_t rows, int64_t cols)
{
    for (int bits = (int)(rows * cols % test_stride(7)); bits < 64; bits += (int)test_stride(7)) {
        reducing r = {bits & 1 ? MLC_REDUCE_MAX : MLC_REDUCE_SUM, bits & 2 ? MLC_F64 : MLC_F32,
                       rows, cols, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0,
                       (bits & 32) != 0};
        if ((r.over_rows || r.over_cols) && !reduce_agrees(k, &r))
            return false;
    }
    return true;
}

TEST(backend, reduce_kernels_agree_with_sums_in_double)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 15, 16, 17, 31, 33, 65, 70};
    const int n = (int)(sizeof sizes / sizeof *sizes);
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int i = 0; i < n; i++)
            for (int j = i % (int)test_stride(3); j < n; j += (int)test_stride(3))
                if (!CHECK(reduce_shape_agrees(k, sizes[i], sizes[j])))
                    return;
        CHECK(reduce_shape_agrees(k, 1, 70001));
        CHECK(reduce_shape_agrees(k, 70001, 2));
    }
}

TEST(backend, a_sum_of_nothing_is_zero)
{
    FOR_EACH_LEVEL(isa)
        for (int bits = 0; bits < 8; bits++) {
            reducing r = {MLC_REDUCE_SUM, bits & 1 ? MLC_F64 : MLC_F32, 3, 0, (bits & 2) != 0,
                          true, (bits & 4) != 0, false};
            CHECK(reduce_agrees(mlc_cpu_kernels((mlc_isa)isa), &r));
        }
}

TEST(backend, a_maximum_of_a_nan_is_nan_on_every_level)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t at = 0; at < 37; at++) {
            const mlc_kernels  *k = mlc_cpu_kernels((mlc_isa)isa);
            float               out = 0, *in = (float *)guarded_rand(0, MLC_F32, 37, 1, -1, 1);
            struct mlc_k_reduce a;
            memset(&a, 0, sizeof a);
            a.op = MLC_REDUCE_MAX;
            a.ndim = 1;
            a.shape[0] = 37;
            a.in = in;
            a.in_stride[0] = 1;
            a.out = &out;
            a.divisor = 1;
            in[at] = NAN;
            CHECK(k->reduce(NULL, &a) == MLC_OK && isnan(out));
        }
}

/* ---- cross-entropy ------------------------------------------------------------------------ */

typedef struct entropy {
    struct mlc_k_xent      f;
    struct mlc_k_xent_grad b;
    int64_t                error[4];
} entropy;

/* Logits with padded rows; labels walk over the classes, label 1 is ignored if asked.         */
static bool xent_run(const mlc_kernels *k, entropy *e, mlc_dtype dtype, int64_t n, int64_t c,
                     mlc_reduction reduction, double smoothing, bool ignore)
{
    const int64_t row = c + 2;
    int64_t      *labels = (int64_t *)guarded(3, (size_t)n * 8);
    memset(e, 0, sizeof *e);
    for (int64_t i = 0; i < n; i++)
        labels[i] = i * 5 % c;
    e->f.dtype = e->b.dtype = dtype;
    e->f.reduction = reduction;
    e->f.n = e->b.n = n;
    e->f.c = e->b.c = c;
    e->f.row = e->b.row = row;
    e->f.logits = e->b.logits = guarded_rand(0, dtype, n * row - 2, 31, -6, 6);
    e->f.labels = e->b.labels = labels;
    e->f.label_stride = e->b.label_stride = 1;
    e->f.smoothing = e->b.smoothing = smoothing;
    e->f.ignore = e->b.ignore = 1;
    e->f.has_ignore = e->b.has_ignore = ignore;
    e->f.loss = guarded(1, (3 * (size_t)n + 1) * size_of(dtype));
    e->f.lse = (char *)e->f.loss + (size_t)n * size_of(dtype);
    e->f.norm = (char *)e->f.loss + 3 * (size_t)n * size_of(dtype);
    e->f.kind = MLC_K_ERROR_LABEL;
    e->f.error = e->error;
    e->f.workspace_bytes = k->xent_workspace ? k->xent_workspace(NULL, &e->f) : 0;
    e->f.workspace = guarded(5, e->f.workspace_bytes);
    e->b.lse = e->f.lse;
    e->b.norm = e->f.norm;
    e->b.dy = guarded_rand(4, dtype, reduction == MLC_REDUCTION_NONE ? n : 1, 33, 0.5, 2);
    e->b.dy_stride = reduction == MLC_REDUCTION_NONE ? 1 : 0;
    e->b.dx = guarded_rand(2, dtype, n * c, 32, -1, 1);
    e->b.dx_row = c;
    return k->xent(NULL, &e->f) == MLC_OK && e->error[0] == 0 &&
           k->xent_grad(NULL, &e->b) == MLC_OK;
}

/* Loss of row i, and its gradient in want[c] without dy and norm.                             */
static double xent_row(const entropy *e, int64_t i, double *want)
{
    const struct mlc_k_xent *f = &e->f;
    double sum = 0, mean = 0, lse;
    for (int64_t j = 0; j < f->c; j++) {
        sum += exp(get(f->logits, f->dtype, i * f->row + j));
        mean += get(f->logits, f->dtype, i * f->row + j) / (double)f->c;
    }
    lse = log(sum);
    for (int64_t j = 0; j < f->c; j++)
        want[j] = exp(get(f->logits, f->dtype, i * f->row + j) - lse) -
                  (j == f->labels[i] ? 1 - f->smoothing : 0) - f->smoothing / (double)f->c;
    return (1 - f->smoothing) * (lse - get(f->logits, f->dtype, i * f->row + f->labels[i])) +
           f->smoothing * (lse - mean);
}

static bool xent_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t n, int64_t c, int turn)
{
    const mlc_reduction reduction = (mlc_reduction)(turn % 3);
    const double tol = dtype == MLC_F32 ? 2e-6 : 1e-13;
    double  rows[128], grad[128], total = 0, counted = 0, norm;
    entropy e;
    bool    good = xent_run(k, &e, dtype, n, c, reduction, turn % 2 ? 0.1 : 0, turn % 4 == 3);
    for (int64_t i = 0; i < n; i++) {
        bool counts = !(e.f.has_ignore && e.f.labels[i] == e.f.ignore);
        rows[i] = counts ? xent_row(&e, i, grad) : 0;
        counted += counts;
        total += rows[i];
    }
    norm = reduction == MLC_REDUCTION_MEAN ? counted : 1;
    for (int64_t i = 0; good && i < n; i++) {
        double dy = get(e.b.dy, dtype, i * e.b.dy_stride);
        bool   counts = !(e.f.has_ignore && e.f.labels[i] == e.f.ignore);
        xent_row(&e, i, grad);
        for (int64_t j = 0; good && j < c && norm > 0; j++)
            good = fabs(get(e.b.dx, dtype, i * c + j) - (counts ? dy * grad[j] / norm : 0)) <= tol;
        if (good && reduction == MLC_REDUCTION_NONE)
            good = fabs(get(e.f.loss, dtype, i) - rows[i]) <= 10 * tol;
    }
    if (good && reduction != MLC_REDUCTION_NONE && norm > 0)
        good = fabs(get(e.f.loss, dtype, 0) - total / norm) <= 10 * tol * (1 + total / norm);
    if (!good)
        printf("  xent %s n %" PRId64 " c %" PRId64 " turn %d\n", mlc_dtype_name(dtype), n, c,
               turn);
    return good;
}

TEST(backend, cross_entropy_kernels_agree_with_double)
{
    static const int64_t classes[] = {1, 2, 3, 10, 16, 17, 33, 100, 127};
    FOR_EACH_LEVEL(isa) {
        int turn = 0;
        for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
            for (int64_t n = 1; n <= 70; n += 3, turn++) {
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                if (!CHECK(xent_agrees(k, MLC_F32, n, classes[c], turn)) ||
                    !CHECK(xent_agrees(k, MLC_F64, n, classes[c], turn)))
                    return;
            }
    }
}

enum { ENTROPY_ROWS = 7, ENTROPY_MOST = 7 * 4099 };

typedef struct entropy_case {          /* of ENTROPY_ROWS rows                                 */
    int64_t       c;
    mlc_reduction reduction;
    double        smoothing;
    bool          weighted, normal, ignores, accumulate, in_place;
} entropy_case;

typedef struct entropy_got {           /* dtype is of logits and dx                            */
    mlc_dtype dtype;
    double    rest[3 * ENTROPY_ROWS + 1];                  /* loss, lse and norm               */
    char      dx[ENTROPY_MOST * 8];
} entropy_got;

/* n values that are exact in `as`, of this dtype.                                             */
static void *entropy_values(int role, mlc_dtype dtype, mlc_dtype as, int64_t n, uint64_t seed)
{
    void *p = guarded(role, (size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++) {
        double v = 0;
        put(&v, as, 0, test_random(seed, i, -6, 6));
        put(p, dtype, i, get(&v, as, 0));
    }
    return p;
}

/* The rows in `dtype`, of logits and old gradients that are exact in `as`.                    */
static bool entropy_made(const mlc_kernels *k, const entropy_case *e, mlc_dtype dtype,
                         mlc_dtype as, entropy_got *got)
{
    const mlc_dtype        wide = dtype == MLC_F64 ? MLC_F64 : MLC_F32;
    const int64_t          n = ENTROPY_ROWS, count = n * e->c;
    struct mlc_k_xent      f;
    struct mlc_k_xent_grad b;
    int64_t                labels[ENTROPY_ROWS], error[4] = {0};
    memset(&f, 0, sizeof f);
    memset(&b, 0, sizeof b);
    memset(got, 0, sizeof *got);
    got->dtype = dtype;
    for (int64_t i = 0; i < n; i++)
        labels[i] = i == 1 ? 0 : (i * 1031 + 3) % e->c;
    f.dtype = b.dtype = dtype;
    f.reduction = e->reduction;
    f.normal = b.normal = e->normal;
    f.n = b.n = n, f.c = b.c = f.row = b.row = b.dx_row = e->c;
    f.logits = b.logits = entropy_values(0, dtype, as, count, 31);
    f.labels = b.labels = labels, f.label_stride = b.label_stride = 1;
    f.weight = b.weight = e->weighted ? guarded_rand(1, wide, e->c, 7, 0.5, 2) : NULL;
    f.smoothing = b.smoothing = e->smoothing;
    f.has_ignore = b.has_ignore = e->ignores;
    f.loss = got->rest, f.lse = got->rest + n, f.norm = got->rest + 3 * n;
    f.kind = MLC_K_ERROR_LABEL, f.error = error;
    f.workspace_bytes = k->xent_workspace(NULL, &f);
    f.workspace = guarded(5, f.workspace_bytes);
    b.lse = f.lse, b.norm = f.norm;
    b.dy = guarded_rand(4, wide, n, 33, 0.5, 2);
    b.dy_stride = e->reduction == MLC_REDUCTION_NONE;
    b.accumulate = e->accumulate;
    b.dx = entropy_values(2, dtype, as, count, 34);
    if (e->in_place)
        b.dx = (void *)(uintptr_t)f.logits;
    const bool made = k->xent(NULL, &f) == MLC_OK && error[0] == 0 &&
                      k->xent_grad(NULL, &b) == MLC_OK;
    memcpy(got->dx, b.dx, (size_t)count * size_of(dtype));
    return made;
}

/* Bits of a case of 28 turns.                                                                 */
static entropy_case entropy_turn(int64_t c, int turn)
{
    const entropy_case e = {c, (mlc_reduction)(turn % 3), turn % 2 == 1 ? 0.1 : 0,
                            turn / 2 % 2 == 1, turn % 7 == 6, turn % 5 == 4, turn / 4 % 2 == 1,
                            false};
    return e;
}

static const int64_t ENTROPY_CLASSES[] = {1, 2, 33, 127, 128, 129, 300, 4099};
#define ENTROPY_SIZES ((int)(sizeof ENTROPY_CLASSES / sizeof *ENTROPY_CLASSES))

TEST(backend, cross_entropy_of_16_bits_is_that_of_f32_with_its_gradient_rounded_once)
{
    static entropy_got want, got;
    FOR_EACH_LEVEL(isa)
        for (int i = 0; i < 2 * 28 * ENTROPY_SIZES; i += (int)test_stride(3)) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            const mlc_dtype    low = i % 2 ? MLC_F16 : MLC_BF16;
            entropy_case       e = entropy_turn(ENTROPY_CLASSES[i / 2 % ENTROPY_SIZES],
                                                i / 2 / ENTROPY_SIZES);
            const float        adds = e.accumulate ? 1 : 0;
            bool held = entropy_made(k, &e, low, low, &got);
            e.accumulate = false;
            held = held && entropy_made(k, &e, MLC_F32, low, &want) &&
                   memcmp(got.rest, want.rest, sizeof want.rest) == 0;
            const float *old = (const float *)entropy_values(2, MLC_F32, low, ENTROPY_ROWS * e.c,
                                                             34);
            for (int64_t x = 0; held && x < ENTROPY_ROWS * e.c; x++) {
                double once = 0;
                put(&once, low, 0, (double)((float)get(want.dx, MLC_F32, x) + adds * old[x]));
                held = memcmp(&once, got.dx + 2 * x, 2) == 0;
            }
            if (!CHECK(held)) {
                printf("  xent %s, turn %d\n", mlc_dtype_name(low), i);
                return;
            }
        }
}

TEST(backend, the_gradient_of_cross_entropy_may_take_the_place_of_the_logits)
{
    static const mlc_dtype floats[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static entropy_got     want, got;
    FOR_EACH_LEVEL(isa)
        for (int i = 0; i < 4 * 28 * ENTROPY_SIZES; i += (int)test_stride(3)) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            entropy_case       e = entropy_turn(ENTROPY_CLASSES[i / 4 % ENTROPY_SIZES],
                                                i / 4 / ENTROPY_SIZES);
            e.accumulate = false;
            bool held = entropy_made(k, &e, floats[i % 4], floats[i % 4], &want);
            e.in_place = true;
            held = held && entropy_made(k, &e, floats[i % 4], floats[i % 4], &got);
            if (!CHECK(held && memcmp(&got, &want, sizeof got) == 0)) {
                printf("  xent %s, turn %d\n", mlc_dtype_name(floats[i % 4]), i);
                return;
            }
        }
}

TEST(backend, a_label_out_of_range_sets_the_error_word_of_the_lowest_row)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        int64_t           *labels;
        entropy            e;
        CHECK(xent_run(k, &e, MLC_F32, 9, 4, MLC_REDUCTION_MEAN, 0, false));
        labels = (int64_t *)guarded(3, 9 * 8);
        labels[7] = -1;
        labels[5] = 4;
        CHECK_EQ(k->xent(NULL, &e.f), MLC_OK);
        CHECK_EQ(e.error[0], MLC_K_ERROR_LABEL);
        CHECK_EQ(e.error[1], 5);
        CHECK_EQ(e.error[2], 4);
        CHECK_EQ(e.error[3], 4);
    }
}

/* ---- softmax and norms of short rows -------------------------------------------------------- */

#define ROWS_ELEMENTS 8000
#define ROWS_MOST     1100             /* elements of a row                                     */

typedef enum rows_op { ROWS_SOFTMAX, ROWS_LOG, ROWS_LAYER_NORM, ROWS_RMS_NORM, ROWS_OPS } rows_op;

typedef struct rows_case {
    rows_op   op;
    mlc_dtype dtype, w;                /* of x; of weights                                      */
    int64_t   rows, n, step, gap;      /* elements step apart, gap of them between rows         */
    bool      special, bare;           /* values that are not finite; no weights                */
} rows_case;

/* What a kernel and its gradient make: rows dense. */
typedef struct rows_made {
    float  y[ROWS_ELEMENTS], dx[ROWS_ELEMENTS], dw[ROWS_MOST], db[ROWS_MOST];
    double stat[3 * ROWS_ELEMENTS];
    bool   ok;
} rows_made;

static int64_t rows_row(const rows_case *c) { return c->n * c->step + c->gap; }
static int64_t rows_at(const rows_case *c, int64_t i)
{
    return i / c->n * rows_row(c) + i % c->n * c->step;
}

/* Rows that end at a guard page, all of them 0xa7. */
static void *rows_room(int role, const rows_case *c)
{
    return caged(role, (size_t)(rows_at(c, c->rows * c->n - 1) + 1) * size_of(c->dtype));
}

static void *rows_in(int role, const rows_case *c)
{
    void *p = rows_room(role, c);
    for (int64_t i = 0; i < c->rows * c->n; i++) {
        const bool odd = c->special && (i * 7 + role) % 41 == 0;
        double     v = odd ? SPECIAL[i % SPECIALS] : test_random((uint64_t)role, i, -4, 4);
        if (c->special && i / c->n == 2) v = role == 0 ? -INF : 1;
        put(p, c->dtype, rows_at(c, i), v);
    }
    return p;
}

/* Takes the rows out of p; false where something before or between them was written. */
static bool rows_take(void *to, const void *p, const rows_case *c)
{
    const size_t         size = size_of(c->dtype);
    const unsigned char *from = (const unsigned char *)p;
    bool                 ok = cage_holds(p);
    for (int64_t i = 0; i < c->rows * c->n; i++)
        memcpy((char *)to + (size_t)i * size, from + (size_t)rows_at(c, i) * size, size);
    for (int64_t i = 0; i < (c->rows - 1) * rows_row(c); i++)
        if (i % rows_row(c) >= c->n * c->step || i % rows_row(c) % c->step != 0)
            for (size_t b = 0; b < size; b++) ok = ok && from[(size_t)i * size + b] == 0xa7;
    return ok;
}

static bool rows_softmax(const mlc_kernels *k, const rows_case *c, rows_made *made)
{
    const int64_t row = rows_row(c);
    struct mlc_k_softmax a = {c->dtype, 2, 1, c->op == ROWS_LOG, {c->rows, c->n}, rows_room(4, c),
                              {row, c->step}, rows_in(0, c), {row, c->step}};
    struct mlc_k_softmax_grad g = {c->dtype, 2, 1, a.log, 0, {c->rows, c->n}, rows_room(5, c),
                                   {row, c->step}, a.out, {row, c->step}, rows_in(1, c),
                                   {row, c->step}};
    return k->softmax(NULL, &a) == MLC_OK && k->softmax_grad(NULL, &g) == MLC_OK &&
           rows_take(made->y, a.out, c) && rows_take(made->dx, g.out, c);
}

static bool rows_norm(const mlc_kernels *k, const rows_case *c, rows_made *made)
{
    const int64_t          row = rows_row(c);
    struct mlc_k_norm      a;
    struct mlc_k_norm_grad g;
    memset(&a, 0, sizeof a);
    memset(&g, 0, sizeof g);
    a.dtype = g.dtype = c->dtype;
    a.ndim = g.ndim = 2;
    a.rms = g.rms = c->op == ROWS_RMS_NORM;
    a.shape[0] = g.shape[0] = c->rows;
    a.shape[1] = g.shape[1] = c->n;
    a.out = rows_room(4, c);
    g.dx = rows_room(5, c);
    a.in = g.in = rows_in(0, c);
    g.dy = rows_in(1, c);
    a.out_stride[0] = a.in_stride[0] = g.dx_stride[0] = g.in_stride[0] = g.dy_stride[0] = row;
    a.out_stride[1] = a.in_stride[1] = g.dx_stride[1] = g.in_stride[1] = g.dy_stride[1] = c->step;
    a.w_dtype = g.w_dtype = c->w;
    a.weight = g.weight = c->bare ? NULL : guarded_rand(2, c->w, c->n, 2, -1, 1);
    a.bias = a.rms || c->bare ? NULL : guarded_rand(3, c->w, c->n, 3, -1, 1);
    a.eps = 1e-5;
    a.stat = made->stat;
    g.stat = made->stat;
    g.dweight = made->dw;
    g.dbias = a.rms ? NULL : made->db;
    g.dweight_stride = g.dbias_stride = 1;
    g.workspace_bytes = k->norm_grad_workspace(NULL, &g);
    g.workspace = test_aligned_alloc(64, g.workspace_bytes + 64);
    const bool ok = g.workspace != NULL && k->norm(NULL, &a) == MLC_OK &&
                    k->norm_grad(NULL, &g) == MLC_OK && rows_take(made->y, a.out, c) &&
                    rows_take(made->dx, g.dx, c);
    test_aligned_free(g.workspace);
    return ok;
}

static const rows_made *rows_run(const mlc_kernels *k, const rows_case *c, rows_made *made)
{
    memset(made, 0, sizeof *made);
    made->ok = c->op <= ROWS_LOG ? rows_softmax(k, c, made) : rows_norm(k, c, made);
    return made;
}

/* On level k as on level other, whose elements lie step apart. */
static bool rows_agree(const mlc_kernels *k, const mlc_kernels *other, rows_case c, int64_t step)
{
    static rows_made  one, two;
    const rows_made  *got = rows_run(k, &c, &one);
    const int64_t     n = c.rows * c.n;
    rows_case         as = c;
    as.step = step;
    const rows_made *want = rows_run(other, &as, &two);
    if (got->ok && want->ok && same_bits(got->y, want->y, c.dtype, n) &&
        same_bits(got->dx, want->dx, c.dtype, n) && same_bits(got->dw, want->dw, c.w, c.n) &&
        same_bits(got->db, want->db, c.w, c.n) &&
        same_bits(got->stat, want->stat, MLC_F64, 3 * c.rows))
        return true;
    printf("  rows %d, %s, weights %s, %" PRId64 " x %" PRId64 ", gap %" PRId64 "%s%s: %d %d\n",
           (int)c.op, mlc_dtype_name(c.dtype), mlc_dtype_name(c.w), c.rows, c.n, c.gap,
           c.special ? ", special" : "", c.bare ? ", bare" : "", got->ok, want->ok);
    return false;
}

/* Rows whose elements are not next to each other go another way, through parts of 128: of the same
 * bits, but for f32 over that, which have those of the lowest level with vectors. */
static bool rows_sizes_agree(const mlc_kernels *k, rows_op op, mlc_dtype dtype)
{
    static const int64_t long_ones[] = {191, 192, 255, 256, 257, 384, 511, 512, 513, 1000, 1023,
                                        1024, 1025};
    const mlc_kernels *low = mlc_cpu_kernels((mlc_isa)(MLC_ISA_SCALAR + 1));
    const bool         half = dtype != MLC_F32;
    bool               ok = true;
    for (int64_t n = 1; ok && n <= 130; n += n < 20 ? 1 : test_stride(7)) {
        rows_case c = {op, dtype, n % 2 || !half ? dtype : MLC_F32, 1 + n * 5 % 7, n, 1, n % 3,
                       n % 5 == 2, n % 4 == 3};
        if (n <= 128 || half) ok = rows_agree(k, k, c, 2);
        c.rows = n < 20 ? 70 : 3;
        c.gap = 0;
        ok = ok && rows_agree(k, low, c, 1);
    }
    for (int i = 0; ok && i < (int)(sizeof long_ones / sizeof *long_ones); i++) {
        rows_case c = {op, dtype, i % 2 || !half ? dtype : MLC_F32, 1 + i % 7, long_ones[i], 1,
                       i % 3, i % 5 == 2, i % 4 == 3};
        ok = rows_agree(k, half ? k : low, c, half ? 3 : 1);
    }
    return ok;
}

TEST(backend, short_rows_have_the_bits_of_other_rows)
{
    CHECK(scalar_row() != NULL);
    FOR_EACH_ROW(k, isa)
        for (int op = 0; op < ROWS_OPS; op++) {
            CHECK(rows_sizes_agree(k, (rows_op)op, MLC_F32));
            CHECK(rows_sizes_agree(k, (rows_op)op, MLC_BF16));
            CHECK(rows_sizes_agree(k, (rows_op)op, MLC_F16));
        }
}

/* Norms whose first elements are far from the mean are summed again. */
TEST(backend, a_norm_far_from_0_is_summed_about_its_mean)
{
    static float x[3 * 200], y[3 * 200];
    double       stat[9];
    CHECK(scalar_row() != NULL);
    FOR_EACH_ROW(k, isa) {
        struct mlc_k_norm a;
        memset(&a, 0, sizeof a);
        a.dtype = a.w_dtype = MLC_F32;
        a.ndim = 2;
        a.shape[0] = 3;
        a.shape[1] = a.out_stride[0] = a.in_stride[0] = 200;
        a.out_stride[1] = a.in_stride[1] = 1;
        a.out = y;
        a.in = x;
        a.stat = stat;
        for (int i = 0; i < 600; i++)
            x[i] = (float)(test_random(1, i, 999, 1001) - (i >= 200 && i < 264 ? 5e4 : 0));
        CHECK_EQ(k->norm(NULL, &a), MLC_OK);
        for (int r = 0; r < 3; r++) {
            double mean = 0, square = 0;
            for (int i = 0; i < 200; i++) mean += (double)x[200 * r + i] / 200;
            for (int i = 0; i < 200; i++) square += pow((double)x[200 * r + i] - mean, 2) / 200;
            CHECK_NEAR(stat[3 * r] + stat[3 * r + 1], mean, 1e-7 * fabs(mean));
            CHECK_NEAR(stat[3 * r + 2] * sqrt(square), 1, 1e-6);
            CHECK(fabs(stat[3 * r + 1]) * stat[3 * r + 2] <= 0.5);
        }
    }
}

/* ---- argmax, take, finite ------------------------------------------------------------------ */

TEST(backend, argmax_is_the_first_largest_along_any_stride_and_nan_wins)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t c = 1; c <= 70; c++) {
            const mlc_kernels  *k = mlc_cpu_kernels((mlc_isa)isa);
            float              *in = (float *)guarded_rand(0, MLC_F32, 3 * c, 41, -1, 1);
            int64_t            *out = (int64_t *)guarded(1, 3 * 8);
            struct mlc_k_argmax a = {MLC_F32, 2, 1, 0, {3, c}, in, {1, 3}, out, {1, 0}, NULL, 0};
            in[3 * (c / 2)] = in[3 * (c - 1)] = 2;         /* row 0: a tie                     */
            in[3 * (c / 3) + 1] = NAN;                     /* row 1                            */
            in[3 * (c - 1) + 2] = INFINITY;                /* row 2: the last one              */
            CHECK_EQ(k->argmax(NULL, &a), MLC_OK);
            CHECK_EQ(out[0], c / 2);
            CHECK_EQ(out[1], c / 3);
            CHECK_EQ(out[2], c - 1);
        }
}

TEST(backend, take_copies_rows_by_index)
{
    static const int64_t index[4] = {2, 0, 2, 1};
    FOR_EACH_LEVEL(isa)
        for (size_t bytes = 1; bytes <= 70; bytes++) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            char              *in = (char *)guarded(0, 3 * bytes);
            char              *out = (char *)guarded(1, 4 * bytes);
            struct mlc_k_take  a = {4, 3, bytes, in, index, out};
            for (size_t i = 0; i < 3 * bytes; i++)
                in[i] = (char)(i * 7 + 1);
            CHECK_EQ(k->take(NULL, &a), MLC_OK);
            for (size_t i = 0; i < 4; i++)
                CHECK(memcmp(out + i * bytes, in + (size_t)index[i] * bytes, bytes) == 0);
        }
}

TEST(backend, finite_finds_the_first_nan_or_infinity)
{
    static const double bad[3] = {NO_NUMBER, INF, -INF};
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < 2; dtype++)
            for (int64_t n = 1; n <= 70; n++) {
                const mlc_kernels  *k = mlc_cpu_kernels((mlc_isa)isa);
                int64_t             first = 0;
                void               *in = guarded_rand(0, (mlc_dtype)dtype, n, 51, -1, 1);
                struct mlc_k_finite a = {(mlc_dtype)dtype, n, in, &first};
                CHECK_EQ(k->finite(NULL, &a), MLC_OK);
                CHECK_EQ(first, -1);
                put(in, (mlc_dtype)dtype, n - 1, bad[n % 3]);
                put(in, (mlc_dtype)dtype, n / 2, bad[(n + 1) % 3]);
                CHECK_EQ(k->finite(NULL, &a), MLC_OK);
                CHECK_EQ(first, n / 2);
            }
}

/* ---- optimizer ----------------------------------------------------------------------------- */

static const struct mlc_step_state STEP = {0.1, 0.02, 0.19, 0.0199, 0.5, 0, 0, 5, 0, 1,
                                           {0}, {0}};

static void optim_args(struct mlc_k_optim *a, mlc_rule rule, mlc_dtype dtype, int64_t n, bool flag)
{
    memset(a, 0, sizeof *a);
    a->rule = rule;
    a->cpu = mlc_cpu_rule(rule);
    a->dtype = dtype;
    a->n = n;
    a->p = guarded_rand(0, dtype, n, 61, -1, 1);
    a->g = guarded_rand(1, dtype, n, 62, -1, 1);
    a->n_state = rule == MLC_RULE_ADAM ? 2 : 1;
    a->state[0] = guarded_rand(2, dtype, n, 63, -1, 1);
    a->state[1] = guarded_rand(3, dtype, n, 64, 0, 1);
    a->step = &STEP;
    const double sgd[8] = {0.9, 0, flag}, adam[8] = {0.9, 0.99, 1e-8, flag};
    memcpy(a->coefs, rule == MLC_RULE_ADAM ? adam : sgd, sizeof a->coefs);
}

/* The formulas of torch.optim, one element, in double.                                        */
static double optim_want(const struct mlc_k_optim *a, double p, double g, double m, double v)
{
    const struct mlc_step_state *s = a->step;
    double d = s->grad_scale * g;
    if (a->rule == MLC_RULE_SGD) {
        d += s->weight_decay * p;
        m = a->coefs[0] * m + d;
        return p - s->lr * (a->coefs[2] != 0 ? d + a->coefs[0] * m : m);
    }
    if (a->coefs[3] != 0)
        p *= 1 - s->lr * s->weight_decay;
    else
        d += s->weight_decay * p;
    m = a->coefs[0] * m + (1 - a->coefs[0]) * d;
    v = a->coefs[1] * v + (1 - a->coefs[1]) * d * d;
    return p - s->lr / s->bias1 * m / (sqrt(v) / sqrt(s->bias2) + a->coefs[2]);
}

static bool optim_agrees(const mlc_kernels *k, mlc_rule rule, mlc_dtype dtype, int64_t n, bool flag)
{
    const double       tol = dtype == MLC_F32 ? 1e-6 : 1e-13;
    struct mlc_k_optim a;
    double             want[70];
    optim_args(&a, rule, dtype, n, flag);
    for (int64_t i = 0; i < n; i++)
        want[i] = optim_want(&a, get(a.p, dtype, i), get(a.g, dtype, i), get(a.state[0], dtype, i),
                             get(a.state[1], dtype, i));
    if (k->optim(NULL, &a) != MLC_OK)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(get(a.p, dtype, i) - want[i]) <= tol * (1 + fabs(want[i])))) {
            printf("  rule %d %s n %" PRId64 ": element %" PRId64 " is %.9g, want %.9g\n",
                   (int)rule, mlc_dtype_name(dtype), n, i, get(a.p, dtype, i), want[i]);
            return false;
        }
    return true;
}

TEST(backend, optimizer_kernels_agree_with_the_formulas)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t n = 1; n <= 70; n++)
            for (int bits = 0; bits < 8; bits++)
                CHECK(optim_agrees(mlc_cpu_kernels((mlc_isa)isa),
                                   bits & 1 ? MLC_RULE_ADAM : MLC_RULE_SGD,
                                   bits & 2 ? MLC_F64 : MLC_F32, n, (bits & 4) != 0));
}

/* LAMB, in double: u of all elements, then one factor for them. kind: 0 as it is, 1 without decay,
 * 2 p is 0, 3 p is huge, so that its square is no f32.                                        */
static bool lamb_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t n, int kind)
{
    static double         u[5000], was[5000];
    const double          tol = dtype == MLC_F32 ? 2e-6 : 1e-13, lamb[8] = {0.9, 0.99, 1e-6};
    struct mlc_step_state step = STEP;
    struct mlc_k_optim    a;
    double                pp = 0, uu = 0, worst = 0;
    optim_args(&a, MLC_RULE_ADAM, dtype, n, false);
    a.rule = MLC_RULE_LAMB, a.cpu = mlc_cpu_rule(a.rule), a.step = &step;
    memcpy(a.coefs, lamb, sizeof lamb);
    if (kind == 1) step.weight_decay = 0;
    for (int64_t i = 0; i < n; i++) {
        if (kind >= 2) test_put(a.p, dtype, i, kind == 2 ? 0 : 1e25 * get(a.p, dtype, i));
        const double p = get(a.p, dtype, i), d = step.grad_scale * get(a.g, dtype, i);
        const double m = 0.9 * get(a.state[0], dtype, i) + 0.1 * d;
        const double v = 0.99 * get(a.state[1], dtype, i) + 0.01 * d * d;
        was[i] = p;
        u[i] = m / step.bias1 / (sqrt(v / step.bias2) + 1e-6) + step.weight_decay * p;
        pp += p * p, uu += u[i] * u[i];
    }
    const double ratio = step.weight_decay != 0 && pp > 0 && uu > 0 ? sqrt(pp / uu) : 1;
    a.workspace_bytes = k->optim_workspace(NULL, &a);
    a.workspace = malloc(a.workspace_bytes);
    const mlc_status st = k->optim(NULL, &a);
    free(a.workspace);
    for (int64_t i = 0; i < n; i++) {
        const double want = was[i] - step.lr * ratio * u[i], unit = sqrt(pp / (double)n);
        worst = fmax(worst, fabs(get(a.p, dtype, i) - want) / (1 + fabs(want) + unit));
    }
    if (!(st == MLC_OK && worst <= tol)) printf("  n %" PRId64 " kind %d: %g\n", n, kind, worst);
    return st == MLC_OK && worst <= tol;
}

TEST(backend, lamb_takes_a_run_for_one_tensor)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t n = 1; n <= 5000; n += n < 70 ? 1 : 1493)
            for (int kind = 0; kind < 4; kind++)
                for (int f64 = 0; f64 < 2; f64++)
                    CHECK(lamb_agrees(mlc_cpu_kernels((mlc_isa)isa), f64 ? MLC_F64 : MLC_F32, n,
                                      kind));
}

TEST(backend, a_rule_with_norms_needs_its_workspace_and_makes_no_step_in_a_product)
{
    struct mlc_k_gemm_optim in_product;
    struct mlc_k_optim      a;
    optim_args(&a, MLC_RULE_ADAM, MLC_F32, 35, false);
    a.rule = MLC_RULE_LAMB, a.cpu = mlc_cpu_rule(MLC_RULE_LAMB);
    FOR_EACH_LEVEL(isa) {
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &a), MLC_ERR_INTERNAL);
        memset(&in_product, 0, sizeof in_product);
        in_product.optim = a;
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->gemm_optim(NULL, &in_product),
                 MLC_ERR_UNSUPPORTED);
    }
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Moments are those of an f32 p; p is one of the two bf16 beside what that becomes, the same one on
 * every level and wherever a run is cut.                                                      */
static void bf16_steps_agree(mlc_rule rule, int64_t n, bool flag)
{
    static float       p[600], g[600], m[600], v[600];
    static uint16_t    low[600], low_g[600], first[600];
    struct mlc_k_optim a;
    float              made[600], moments[1200];
    for (int64_t i = 0; i < n; i++) {
        test_put(low, MLC_BF16, i, test_random(61, i, -1, 1));
        test_put(low_g, MLC_BF16, i, test_random(62, i, -1, 1));
        p[i] = (float)test_get(low, MLC_BF16, i), g[i] = (float)test_get(low_g, MLC_BF16, i);
    }
    optim_args(&a, rule, MLC_F32, n, flag);
    a.p = p, a.g = g, a.state[0] = m, a.state[1] = v;
    for (int64_t i = 0; i < n; i++) m[i] = (float)i / 600, v[i] = (float)i / 500;
    CHECK_EQ(scalar_row()->optim(NULL, &a), MLC_OK);
    memcpy(made, p, sizeof made);
    memcpy(moments, m, sizeof m), memcpy(moments + 600, v, sizeof v);
    memcpy(first, low, sizeof first);
    a.dtype = MLC_BF16, a.p = first, a.g = low_g, a.seed = 3, a.first = 8;
    for (int64_t i = 0; i < n; i++) m[i] = (float)i / 600, v[i] = (float)i / 500;
    CHECK_EQ(scalar_row()->optim(NULL, &a), MLC_OK);
    CHECK(memcmp(m, moments, sizeof m) == 0 && memcmp(v, moments + 600, sizeof v) == 0);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t down = bits_of(made[i]) >> 16, up = down + ((bits_of(made[i]) & 0xffff) > 0);
        CHECK(first[i] == down || first[i] == up);
    }
    FOR_EACH_LEVEL(isa)
        for (int64_t cut = 0; cut <= n; cut += cut < 8 ? 8 : n) {
            uint16_t           here[600];
            struct mlc_k_optim part = a;
            memcpy(here, low, sizeof here);
            for (int64_t i = 0; i < n; i++) m[i] = (float)i / 600, v[i] = (float)i / 500;
            part.p = here, part.n = cut < n ? cut : n;
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &part), MLC_OK);
            if (cut < n) {
                part.p = here + cut, part.g = low_g + cut;
                part.state[0] = m + cut, part.state[1] = v + cut;
                part.first = a.first + cut, part.n = n - cut;
                CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &part), MLC_OK);
            }
            CHECK(memcmp(here, first, (size_t)n * 2) == 0);
        }
}

TEST(backend, optimizer_kernels_round_bf16_by_chance)
{
    for (int64_t n = 1; n <= 600; n += n < 40 ? 1 : 80)
        for (int bits = 0; bits < 4; bits++)
            bf16_steps_agree(bits & 1 ? MLC_RULE_ADAM : MLC_RULE_SGD, n, (bits & 2) != 0);
}

/* 1 - 2^-10 lies a quarter of the way to the bf16 below 1; NaN and infinity have no neighbours.  */
TEST(backend, chance_is_right_in_mean)
{
    enum { N = 40000 };
    static uint16_t       p[N], g[N];
    struct mlc_step_state step = {0x1p-10, 0, 1, 1, 1, 1, 0, 77, 0, 1, {0}, {0}};
    struct mlc_k_optim    a;
    double                sum = 0;
    memset(&a, 0, sizeof a);
    a.rule = MLC_RULE_SGD, a.cpu = mlc_cpu_rule(a.rule);
    a.dtype = MLC_BF16, a.n = N, a.p = p, a.g = g, a.step = &step;
    for (int64_t i = 0; i < N; i++) test_put(p, MLC_BF16, i, 1), test_put(g, MLC_BF16, i, 1);
    p[0] = 0x7fff, p[1] = 0xffff, g[2] = 0xff80;
    CHECK_EQ(scalar_row()->optim(NULL, &a), MLC_OK);
    CHECK(isnan(test_get(p, MLC_BF16, 0)) && isnan(test_get(p, MLC_BF16, 1)) && p[2] == 0x7f80);
    for (int64_t i = 3; i < N; i++) sum += 1 - test_get(p, MLC_BF16, i);
    CHECK_NEAR(sum / (N - 3), 0x1p-10, 4 * 0x1p-8 * sqrt(0.25 * 0.75 / N));
}

TEST(backend, a_rule_that_a_kernel_does_not_know_is_unsupported)
{
    struct mlc_k_optim a;
    FOR_EACH_LEVEL(isa) {
        optim_args(&a, MLC_RULE_COUNT, MLC_F32, 35, false);
        const double before = get(a.p, MLC_F32, 3);
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &a), MLC_ERR_UNSUPPORTED);
        CHECK(get(a.p, MLC_F32, 3) == before);
    }
}

/* Both kernels, with the step's skip, or an error word.                                       */
static void check_no_update(const struct mlc_step_state *step, const int64_t *error)
{
    struct mlc_k_optim a;
    float              before[4][35], after[4][35];
    FOR_EACH_LEVEL(isa) {
        for (int adam = 0; adam < 2; adam++) {
            optim_args(&a, adam ? MLC_RULE_ADAM : MLC_RULE_SGD, MLC_F32, 35, false);
            const void *from[4] = {a.p, a.g, a.state[0], a.state[1]};
            a.step = step;
            a.error = error;
            for (int k = 0; k < 4; k++)
                memcpy(before[k], from[k], sizeof before[k]);
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &a), MLC_OK);
            for (int k = 0; k < 4; k++)
                memcpy(after[k], from[k], sizeof after[k]);
            CHECK(memcmp(before, after, sizeof before) == 0);
        }
    }
}

/* Rows that were not touched have no gradient: the step is that over all, bit for bit. */
static void check_touched_step(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t      n = rows * cols;
    const size_t       bytes = (size_t)n * size_of(dtype);
    struct mlc_k_optim a;
    struct mlc_step_state plain = STEP;
    uint8_t           *touched = (uint8_t *)malloc((size_t)rows);
    optim_args(&a, MLC_RULE_SGD, dtype, n, false);
    plain.weight_decay = 0;
    a.step = &plain;
    a.n_state = 0;
    a.rows = rows;
    a.cols = cols;
    a.touched = touched;
    for (int64_t i = 0; i < n; i++) {
        touched[i / cols] = i / cols % 3 == 1;
        if (!touched[i / cols])
            put((void *)(uintptr_t)a.g, dtype, i, 0);
    }
    void *p = memcpy(malloc(bytes), a.p, bytes), *start = a.p;
    CHECK_EQ(k->optim(NULL, &a), MLC_OK);
    a.p = p;
    a.touched = NULL;
    CHECK_EQ(k->optim(NULL, &a), MLC_OK);
    CHECK(same_bits(start, p, dtype, n));
    free(touched);
    free(p);
}

TEST(backend, optimizer_kernels_step_touched_rows)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int64_t cols = 1; cols < 40; cols += 6 * test_stride(2)) {
            check_touched_step(k, MLC_F32, 9, cols);
            check_touched_step(k, MLC_F64, 9, cols);
        }
        check_touched_step(k, MLC_F32, 3, 30000);
        check_touched_step(k, MLC_F32, 1000, 37);
    }
}

TEST(backend, optimizer_kernels_heed_skip)
{
    struct mlc_step_state step = STEP;
    step.skip = 1;
    check_no_update(&step, NULL);
}

TEST(backend, optimizer_kernels_change_nothing_while_an_error_stands)
{
    const int64_t error[4] = {MLC_K_ERROR_LABEL, 2, 3, 3};
    check_no_update(&STEP, error);
}

static void guard_args(struct mlc_k_guard *a, const struct mlc_optim_set *set,
                       struct mlc_step_state *step, struct mlc_guard_state *state, int64_t *error)
{
    memset(a, 0, sizeof *a);
    a->n = 4;
    a->set = set;
    a->step = step;
    a->share = 0.5;
    a->optim = MLC_RULE_ADAM;
    a->coefs[0] = 0.5;
    a->coefs[1] = 0.75;
    a->cpu = mlc_cpu_rule(MLC_RULE_ADAM);
    a->stream = 100;
    a->state = state;
    a->bad = MLC_K_ERROR_NORM;
    a->error = error;
}

/* Parameters 0 and 1 are a run, 2 is left alone, 3 is another run.                             */
TEST(backend, guard_counts_what_is_made_and_leaves_the_rest_alone)
{
    static const struct mlc_optim_set set[4] = {{.1, .2, 2}, {.1, .2, 1}, {.3, .4, 0}, {.5, .6, 2}};
    double                 squares[4] = {16, (double)NAN, (double)NAN, 9};
    struct mlc_step_state  step[4];
    struct mlc_guard_state state = {{4, 0, 0, 0}, -1, 7};
    struct mlc_k_guard     a;
    int64_t                error[4] = {0};
    memset(step, 0, sizeof step);
    step[3].made = step[2].made = 2;
    guard_args(&a, set, step, &state, error);
    CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);       /* nothing is looked at             */
    CHECK(state.norm == -1 && state.steps == 8 && state.scaler.scale == 4);
    CHECK(step[0].made == 1 && step[1].made == 1 && step[2].made == 2 && step[3].made == 3);
    CHECK(step[0].first && step[1].first && !step[3].first && step[2].grad_scale == 0);
    CHECK(step[0].bias1 == 0.5 && step[3].bias1 == 0.875 && step[0].bias2 == 0.25);
    CHECK(step[3].lr == .5 && step[3].weight_decay == .6 && step[3].grad_scale == .5);
    CHECK(step[0].stream == 107 && !step[0].skip);
    a.squares = squares;
    a.max_norm = 1;
    a.has_scaler = 1;
    a.rule = mlc_scaler_desc_make();
    a.rule.patience = 2;
    CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);
    CHECK_NEAR(state.norm, 5 * 0.125, 1e-15);              /* under 1: not clipped             */
    CHECK(step[0].grad_scale == 0.125 && step[0].made == 2 && state.steps == 9);
    a.each = 1;
    a.max_norm = 0.4;
    CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);
    CHECK_NEAR(step[1].grad_scale, 0.1, 1e-6);             /* that of its run                  */
    CHECK(step[3].grad_scale == 0.125 && state.steps == 10);
    squares[3] = (double)INFINITY;
    for (int bad = 1; bad <= 3; bad++) {                   /* the third: an error stands       */
        CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);
        CHECK(step[0].skip == 1 && step[0].made == 3 && state.steps == 10);
        CHECK_EQ(error[0], bad > 1 ? MLC_K_ERROR_NORM : 0);
        CHECK_EQ(state.scaler.skipped_row, bad < 3 ? bad : 2);
    }
    CHECK_EQ(error[1], 2);
    memcpy(squares, error + 2, 2 * sizeof *squares);
    CHECK(squares[0] == (double)INFINITY && squares[1] == 1);
}

TEST(backend, map_and_math_take_their_scalar_from_memory)
{
    static const float x[3] = {2, -3, 4};
    for (int isa = 0; isa < MLC_ISA_COUNT; isa++)
        for (int math = 0; math < 2 && mlc_cpu_kernels((mlc_isa)isa) != NULL; math++) {
            const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
            const double       two = 2;
            float              out[3];
            struct mlc_k_math  a;
            memset(&a, 0, sizeof a);
            a.map.op = math ? MLC_MATH_DIV_S : MLC_MAP_MUL_S;
            a.map.dtype = MLC_F32;
            a.map.ndim = 1;
            a.map.shape[0] = 3;
            a.map.out_stride[0] = a.map.in_stride[0][0] = 1;
            a.map.out = out;
            a.map.in[0] = x;
            a.map.s = 100;
            a.map.s_dev = &two;
            CHECK_EQ(math ? k->math(NULL, &a) : k->map(NULL, &a.map), MLC_OK);
            CHECK(out[0] == (math ? 1 : 4) && out[1] == (math ? -1.5f : -6));
            a.map.accumulate = 1;                          /* another way through the kernel   */
            CHECK_EQ(math ? k->math(NULL, &a) : k->map(NULL, &a.map), MLC_OK);
            CHECK(out[2] == (math ? 4 : 16));
        }
}

/* ---- fold, argmax, scan: between a canary and a guard page --------------------------------- */

/* A [rows, cols] array and how it lies: 0 by rows, 1 by columns, 2 by rows with gaps, 3 one row
 * for all, 4 by columns with gaps.                                                            */
typedef struct walk {
    mlc_dtype dtype;
    int64_t   rows, cols;
    int       form;
    int64_t   stride[2], extent;       /* elements from the first one to the last              */
} walk;

static walk walk_of(mlc_dtype dtype, int64_t rows, int64_t cols, int form)
{
    const int64_t gap = form == 2 || form == 4 ? 2 : 1;
    walk w = {dtype, rows, cols, form, {0, 0}, 0};
    w.stride[0] = form == 1 || form == 4 ? gap : form == 3 ? 0 : gap * cols;
    w.stride[1] = form == 1 || form == 4 ? gap * rows : gap;
    w.extent = (rows - 1) * w.stride[0] + (cols - 1) * w.stride[1] + 1;
    return w;
}

static int64_t walk_at(const walk *w, int64_t i, int64_t j)
{
    return i * w->stride[0] + j * w->stride[1];
}

static bool is_float(mlc_dtype dtype)
{
    return dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 || dtype == MLC_F16;
}

/* Integers: small ones; floats between lo and hi, every ninth special if asked for.           */
static void *walk_rand(int role, const walk *w, uint64_t seed, double lo, double hi, bool special)
{
    void *p = caged(role, (size_t)w->extent * size_of(w->dtype));
    for (int64_t i = 0; i < w->extent; i++) {
        double v = test_random(seed, i, lo, hi);
        if (!is_float(w->dtype))
            v = (double)(int)(test_random(seed, i, 0, 6) - (w->dtype == MLC_U8 ||
                                                           w->dtype == MLC_BOOL ? 0 : 3));
        else if (special && i % 9 == 4)
            v = SPECIAL[(seed + (uint64_t)i) % SPECIALS];
        put(p, w->dtype, i, v);
    }
    return p;
}

static void *copy_of(const void *p, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    if (copy == NULL)
        abort();
    memcpy(copy, p, bytes);
    return copy;
}

typedef struct folding {
    mlc_reduce op;
    double     p, divisor;
    walk       in;
    mlc_dtype  out_dtype;
    bool       over_rows, over_cols, shifted, accumulate, special;
    int64_t    apart;                  /* results in the output                                */
} folding;

static int64_t folds_rows(const folding *f) { return f->over_rows ? 1 : f->in.rows; }
static int64_t folds_cols(const folding *f) { return f->over_cols ? 1 : f->in.cols; }

static int64_t folds_extent(const folding *f)
{
    return (folds_rows(f) * folds_cols(f) - 1) * f->apart + 1;
}

/* As roles: 0 the input, 3 shifts, 5 the workspace, and out.                                  */
static void *fold_run(const mlc_kernels *k, const folding *f, int out, bool as_reduce)
{
    struct mlc_k_fold a;
    const walk        shifts = walk_of(MLC_F64, folds_rows(f), folds_cols(f), 0);
    memset(&a, 0, sizeof a);
    a.r.op = f->op;
    a.r.dtype = f->in.dtype;
    a.r.out_dtype = f->out_dtype;
    a.r.ndim = 2;
    a.r.accumulate = f->accumulate;
    a.r.shape[0] = f->in.rows;
    a.r.shape[1] = f->in.cols;
    a.r.in_stride[0] = f->in.stride[0];
    a.r.in_stride[1] = f->in.stride[1];
    a.r.out_stride[0] = f->over_rows ? 0 : folds_cols(f) * f->apart;
    a.r.out_stride[1] = f->over_cols ? 0 : f->apart;
    a.r.divisor = f->divisor;
    a.p = f->p;
    a.r.in = walk_rand(0, &f->in, 71, f->op == MLC_REDUCE_PROD ? 0.8 : -2,
                       f->op == MLC_REDUCE_PROD ? 1.2 : 2, f->special);
    a.r.out = caged(out, (size_t)folds_extent(f) * size_of(f->out_dtype));
    for (int64_t i = 0; f->accumulate && i < folds_extent(f); i += f->apart)
        put(a.r.out, f->out_dtype, i, test_random(72, i, -1, 1));
    if (f->shifted) {
        a.shift = (const double *)walk_rand(3, &shifts, 73, -1, 1, false);
        a.shift_stride[0] = f->over_rows ? 0 : shifts.stride[0];
        a.shift_stride[1] = f->over_cols ? 0 : shifts.stride[1];
    }
    a.r.workspace_bytes = as_reduce ? k->reduce_workspace(NULL, &a.r) : k->fold_workspace(NULL, &a);
    a.r.workspace = caged(5, (a.r.workspace_bytes + 63) / 64 * 64);
    const mlc_status st = as_reduce ? k->reduce(NULL, &a.r) : k->fold(NULL, &a);
    return st == MLC_OK && cage_holds(a.r.in) && cage_holds(a.r.out) && cage_holds(a.r.workspace)
               ? a.r.out : NULL;
}

/* An element joins v, in double.                                                              */
static double fold_join(const folding *f, double v, double x)
{
    switch (f->op) {
    case MLC_REDUCE_MAX:  return x > v ? x : v;
    case MLC_REDUCE_MIN:  return x < v ? x : v;
    case MLC_REDUCE_PROD: return v * x;
    case MLC_REDUCE_ANY:  return v != 0 || x != 0;
    case MLC_REDUCE_ALL:  return v != 0 && x != 0;
    case MLC_REDUCE_VAR:
    case MLC_REDUCE_STD:  return v + x * x;
    case MLC_REDUCE_LSE:  return v + exp(x);
    case MLC_REDUCE_NORM:
        if (isinf(f->p)) return (fabs(x) > v) == (f->p > 0) ? fabs(x) : v;
        return v + (f->p == 0 ? x != 0 : pow(fabs(x), f->p));
    default:              return v + x;
    }
}

static double fold_start(const folding *f)
{
    switch (f->op) {
    case MLC_REDUCE_MAX:  return -INF;
    case MLC_REDUCE_MIN:  return INF;
    case MLC_REDUCE_PROD:
    case MLC_REDUCE_ALL:  return 1;
    case MLC_REDUCE_NORM: return isinf(f->p) && f->p < 0 ? INF : 0;
    default:              return 0;
    }
}

static double fold_want(const folding *f, int64_t i, int64_t j)
{
    const int64_t to_i = f->over_rows ? f->in.rows : i + 1;
    const int64_t to_j = f->over_cols ? f->in.cols : j + 1;
    const double *shift = (const double *)guarded(3, (size_t)(folds_rows(f) * folds_cols(f)) * 8);
    const double  by = f->shifted ? shift[i * folds_cols(f) + j] : 0;
    const void   *in = guarded(0, (size_t)f->in.extent * size_of(f->in.dtype));
    double        v = fold_start(f);
    for (int64_t r = f->over_rows ? 0 : i; r < to_i; r++)
        for (int64_t c = f->over_cols ? 0 : j; c < to_j; c++)
            v = fold_join(f, v, get(in, f->in.dtype, walk_at(&f->in, r, c)) - by);
    v /= f->divisor;
    if (f->op == MLC_REDUCE_LSE)
        return log(v) + by;
    if (f->op == MLC_REDUCE_STD)
        return sqrt(v);
    return f->op == MLC_REDUCE_NORM && f->p != 0 && !isinf(f->p) ? pow(v, 1 / f->p) : v;
}

/* Results by the definition, in double; elements are below 3, shifts below 1.                 */
static bool fold_is_right(const folding *f, const void *out)
{
    const double count = (double)(f->in.rows * f->in.cols);
    const double eps = f->out_dtype == MLC_BF16 ? 0x1p-8 : f->out_dtype == MLC_F16 ? 0x1p-11
                       : f->in.dtype == MLC_F64 ? 1e-13 + 2.3e-16 * count : 2e-6;
    for (int64_t o = 0; o < folds_extent(f); o++) {
        if (o % f->apart) {            /* a gap                                                */
            for (size_t b = 0; b < size_of(f->out_dtype); b++)
                if (((const unsigned char *)out)[(size_t)o * size_of(f->out_dtype) + b] != 0xa7)
                    return CHECK(!"a gap between results was written");
            continue;
        }
        const double v = fold_want(f, o / f->apart / folds_cols(f), o / f->apart % folds_cols(f));
        const double old = f->accumulate ? test_random(72, o, -1, 1) : 0;
        if (!is_float(f->out_dtype)) {
            if (!CHECK_NEAR(get(out, f->out_dtype, o), v, 0))
                return false;
        } else if (!CHECK_NEAR(get(out, f->out_dtype, o), v + old,
                               eps * (2 + 2 * fabs(v) + (f->op == MLC_REDUCE_SUM ? count : 0)))) {
            return false;
        }
    }
    return true;
}

/* Right on the scalar level; on the others the same bits. The kernel reduce gives those, too,
 * except that fold adds up in f64 what leaves as f64.                                          */
static bool fold_agrees(const folding *f)
{
    const bool  wider = f->op == MLC_REDUCE_SUM && f->out_dtype != f->in.dtype;
    const bool  plain = is_float(f->in.dtype) && f->op <= MLC_REDUCE_MAX && !f->shifted && !wider;
    const void *want = fold_run(scalar_row(), f, 1, false);
    bool        held = want != NULL && (f->special || fold_is_right(f, want));
    FOR_EACH_LEVEL(isa)
        for (int as_reduce = 0; held && as_reduce <= plain; as_reduce++) {
            const void *got = fold_run(mlc_cpu_kernels((mlc_isa)isa), f, 2, as_reduce);
            held = got != NULL && same_bits(got, want, f->out_dtype, folds_extent(f));
        }
    if (!held)
        printf("  fold %d p %g %s, [%" PRId64 ",%" PRId64 "] form %d over %d%d, shift %d, "
               "accumulate %d, special %d, apart %" PRId64 "\n", (int)f->op, f->p,
               mlc_dtype_name(f->in.dtype), f->in.rows, f->in.cols, f->in.form, f->over_rows,
               f->over_cols, f->shifted, f->accumulate, f->special, f->apart);
    return CHECK(held);
}

/* Shapes, forms and the rest take turns.                                                      */
static folding fold_case(mlc_reduce op, double p, mlc_dtype dtype, int64_t rows, int64_t cols,
                         int turn)
{
    const bool floats = is_float(dtype);
    folding    f;
    memset(&f, 0, sizeof f);
    f.op = op;
    f.p = p;
    f.in = walk_of(dtype, rows, cols, turn % 5);
    f.over_rows = turn % 3 != 0;
    f.over_cols = turn % 3 != 1;
    f.out_dtype = op == MLC_REDUCE_ANY || op == MLC_REDUCE_ALL ? MLC_BOOL
                  : !floats && (op == MLC_REDUCE_SUM || op == MLC_REDUCE_PROD) ? MLC_I64
                  : dtype == MLC_F32 && turn % 11 == 5 ? MLC_F64 : dtype;
    f.shifted = op >= MLC_REDUCE_VAR || (op == MLC_REDUCE_SUM && dtype == MLC_F64 && turn % 13 < 4);
    f.divisor = floats && (op == MLC_REDUCE_SUM || op == MLC_REDUCE_VAR || op == MLC_REDUCE_STD)
                    ? 3 : 1;
    f.accumulate = is_float(f.out_dtype) && turn % 7 < 2;
    f.special = turn % 17 < 5;
    f.apart = 1 + turn % 4 / 3;
    return f;
}

TEST(backend, fold_kernels_have_the_same_bits_on_every_level)
{
    static const double p[] = {0, 1, 2, 3, INF, -INF};
    for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
        for (int kind = 0; kind < MLC_REDUCE_LSE + 6; kind++) {
            const mlc_reduce op = (mlc_reduce)(kind <= MLC_REDUCE_LSE ? kind : MLC_REDUCE_NORM);
            int turn = kind;
            if (!is_float((mlc_dtype)dtype) && op > MLC_REDUCE_ALL)
                continue;
            for (int64_t n = 1; n <= 70; n += test_stride(3)) {
                folding f = fold_case(op, p[kind <= MLC_REDUCE_LSE ? 5 : kind - MLC_REDUCE_LSE - 1],
                                      (mlc_dtype)dtype, 1 + n * 5 % 23, n, turn++);
                if (!fold_agrees(&f))
                    return;
            }
        }
}

TEST(backend, fold_kernels_of_many_elements_have_the_same_bits_on_every_level)
{
    static const int64_t shape[][2] = {{1, 140001}, {140001, 1}, {70001, 2}, {2, 70001},
                                       {300, 301}};
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16};
    int turn = 0;
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++)
        for (int d = 0; d < 4; d++)
            for (int op = (int)s % (int)test_stride(7); op <= MLC_REDUCE_LSE;
                 op += (int)test_stride(7)) {
                folding f = fold_case((mlc_reduce)op, 2, dtypes[d], shape[s][0], shape[s][1],
                                      turn++);
                if (f.op == MLC_REDUCE_PROD || (!is_float(f.in.dtype) && op > MLC_REDUCE_ALL))
                    continue;          /* a product of so many is 0 or infinite                */
                if (!fold_agrees(&f))
                    return;
            }
}

TEST(backend, fold_and_reduce_refuse_too_small_a_workspace_and_do_nothing_for_no_result)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        struct mlc_k_fold  a;
        float              in[6] = {1, 2, 3, 4, 5, 6}, out[3] = {7, 8, 9};
        memset(&a, 0, sizeof a);
        a.r.ndim = 2;
        a.r.shape[0] = 2;
        a.r.shape[1] = 3;
        a.r.in = in;
        a.r.out = out;
        a.r.in_stride[0] = 3;
        a.r.in_stride[1] = a.r.out_stride[1] = 1;
        a.r.divisor = 1;
        CHECK(k->fold_workspace(NULL, &a) > 0 && k->reduce_workspace(NULL, &a.r) > 0);
        CHECK_EQ(k->fold(NULL, &a), MLC_ERR_INTERNAL);
        CHECK_EQ(k->reduce(NULL, &a.r), MLC_ERR_INTERNAL);
        a.r.shape[1] = 0;
        CHECK_EQ(k->fold(NULL, &a), MLC_OK);
        CHECK_EQ(k->reduce(NULL, &a.r), MLC_OK);
        CHECK(out[0] == 7 && out[1] == 8 && out[2] == 9);
        a.r.op = MLC_REDUCE_MIN;
        CHECK_EQ(k->reduce(NULL, &a.r), MLC_ERR_UNSUPPORTED);
    }
}

/* The first largest, the first NaN before all.                                                */
static int64_t argmax_want(const walk *w, const void *in, int64_t line, int axis, bool smallest)
{
    const int64_t n = axis ? w->cols : w->rows;
    int64_t       best = 0;
    for (int64_t i = 1; i < n; i++) {
        const double x = get(in, w->dtype, axis ? walk_at(w, line, i) : walk_at(w, i, line));
        const double y = get(in, w->dtype, axis ? walk_at(w, line, best) : walk_at(w, best, line));
        if (!isnan(y) && (isnan(x) || (smallest ? x < y : x > y)))
            best = i;
    }
    return best;
}

static bool argmax_agrees(const mlc_kernels *k, const walk *w, int axis, int turn)
{
    const int64_t lines = axis ? w->rows : w->cols, apart = 1 + turn % 2;
    struct mlc_k_argmax a;
    int64_t            *out, wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = w->dtype;
    a.ndim = 2;
    a.axis = axis;
    a.smallest = turn % 3 == 0;
    a.shape[0] = w->rows;
    a.shape[1] = w->cols;
    a.in = walk_rand(0, w, (uint64_t)turn, -3, 3, turn % 4 == 0);
    a.in_stride[0] = w->stride[0];
    a.in_stride[1] = w->stride[1];
    a.out = out = (int64_t *)caged(1, (size_t)((lines - 1) * apart + 1) * 8);
    a.out_stride[!axis] = apart;
    if (k->argmax(NULL, &a) != MLC_OK || !cage_holds(out))
        return false;
    for (int64_t i = 0; i < lines; i++) {
        wrong += out[i * apart] != argmax_want(w, a.in, i, axis, a.smallest);
        wrong += apart > 1 && i + 1 < lines && out[i * apart + 1] != (int64_t)0xa7a7a7a7a7a7a7a7u;
    }
    return CHECK_EQ(wrong, 0);
}

TEST(backend, argmax_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 140; n += n < 70 ? 1 : 13)
                for (int axis = 0; axis < 2; axis++) {
                    const int64_t m = 1 + n * 3 % 17;
                    const walk    w = walk_of((mlc_dtype)dtype, axis ? m : n, axis ? n : m,
                                              (int)(n + axis) % 5);
                    if (!argmax_agrees(mlc_cpu_kernels((mlc_isa)isa), &w, axis, (int)n + dtype)) {
                        printf("  argmax %s [%" PRId64 ",%" PRId64 "] axis %d form %d\n",
                               mlc_dtype_name(w.dtype), w.rows, w.cols, axis, w.form);
                        return;
                    }
                }
}

/* Element e of line l, in an array that lies as w.                                            */
static int64_t scan_at(const walk *w, int axis, int64_t l, int64_t e)
{
    return axis ? walk_at(w, l, e) : walk_at(w, e, l);
}

/* One line as the comments of mlc_scan say: floats are carried in double, integers wrap.      */
static void scan_want(const struct mlc_k_scan *a, const walk *w, const walk *to, int64_t l,
                      void *out)
{
    const int64_t n = a->shape[a->axis];
    uint64_t      whole = a->op == MLC_SCAN_PROD;
    double        v = (double)whole;
    for (int64_t i = 0; i < n; i++) {
        const int64_t e = a->reverse ? n - 1 - i : i, at = scan_at(w, a->axis, l, e);
        const int64_t o = scan_at(to, a->axis, l, e);
        const double  x = get(a->in, a->dtype, at);
        const uint64_t y = is_float(a->dtype) ? 0 : (uint64_t)(int64_t)x;
        double         now;
        whole = a->op == MLC_SCAN_SUM ? whole + y : whole * y;
        if (a->op == MLC_SCAN_PROD_GRAD) {
            const double s = get(a->dy, a->dtype, at) + v;
            now = (e ? get(a->y, a->dtype, scan_at(w, a->axis, l, e - 1)) : 1) * s;
            v = x * s;
        } else {
            now = v = a->op == MLC_SCAN_SUM ? v + x : v * x;
        }
        if (is_float(a->dtype))
            put(out, a->out_dtype, o, a->accumulate ? now + get(out, a->out_dtype, o) : now);
        else
            ((int64_t *)out)[o] = (int64_t)whole;
    }
}

static bool scan_agrees(const mlc_kernels *k, mlc_scan op, const walk *w, int axis, int turn)
{
    const bool    floats = is_float(w->dtype);
    const int64_t lines = axis ? w->rows : w->cols;
    const walk    to = walk_of(floats ? w->dtype : MLC_I64, w->rows, w->cols,
                               turn % 5 == 3 ? 0 : turn % 5);
    struct mlc_k_scan a;
    memset(&a, 0, sizeof a);
    a.op = op;
    a.dtype = w->dtype;
    a.out_dtype = to.dtype;
    a.ndim = 2;
    a.axis = axis;
    a.reverse = op == MLC_SCAN_PROD_GRAD || turn % 2;
    a.accumulate = floats && turn % 3 == 1;
    a.shape[0] = w->rows;
    a.shape[1] = w->cols;
    for (int d = 0; d < 2; d++) {
        a.out_stride[d] = to.stride[d];
        a.in_stride[d] = a.y_stride[d] = a.dy_stride[d] = w->stride[d];
    }
    const bool special = turn % 7 == 0;
    a.in = walk_rand(0, w, 81, op == MLC_SCAN_SUM ? -2 : 0.5, 1.5, special);
    a.y = walk_rand(1, w, 82, -2, 2, special);
    a.dy = walk_rand(2, w, 83, -2, 2, special);
    a.out = walk_rand(3, &to, 84, -2, 2, false);
    const size_t bytes = (size_t)to.extent * size_of(to.dtype);
    void *want = copy_of(a.out, bytes);
    for (int64_t l = 0; l < lines; l++)
        scan_want(&a, w, &to, l, want);
    const bool held = k->scan(NULL, &a) == MLC_OK && cage_holds(a.out) &&
                      same_bits(a.out, want, to.dtype, to.extent);
    free(want);
    return CHECK(held);
}

TEST(backend, scan_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int op = 0; op <= MLC_SCAN_PROD_GRAD; op++)
                for (int64_t n = 1; n <= 140; n += n < 70 ? test_stride(3) : 13)
                    for (int axis = 0; axis < 2; axis++) {
                        const int64_t m = 1 + n * 3 % 17;
                        const walk    w = walk_of((mlc_dtype)dtype, axis ? m : n, axis ? n : m,
                                                  (int)(n + axis) % 5);
                        if (op == MLC_SCAN_PROD_GRAD && !is_float(w.dtype))
                            continue;
                        if (!scan_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_scan)op, &w, axis,
                                         (int)n + dtype + op)) {
                            printf("  scan %d %s [%" PRId64 ",%" PRId64 "] axis %d form %d\n", op,
                                   mlc_dtype_name(w.dtype), w.rows, w.cols, axis, w.form);
                            return;
                        }
                    }
}

/* ---- index, nonzero, band, sort: between a canary and a guard page --------------------------- */

/* Whole numbers below 100, which every dtype has; bool: 0 and 1.                              */
static void whole_numbers(void *p, mlc_dtype dtype, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        put(p, dtype, i, (double)((i + 1) * step % 97));
}

/* One place along the axis of one row, as the comments of mlc_index say.                      */
static void index_want(mlc_index op, mlc_dtype dtype, void *line, int64_t l, void *data, int64_t d)
{
    if (op == MLC_INDEX_GATHER || op == MLC_INDEX_TAKE)
        put(line, dtype, l, get(data, dtype, d));
    if (op == MLC_INDEX_TAKE)
        put(data, dtype, d, 0);
    if (op == MLC_INDEX_SCATTER)
        put(data, dtype, d, get(line, dtype, l));
    if (op == MLC_INDEX_ADD)
        put(data, dtype, d, get(data, dtype, d) + get(line, dtype, l));
}

/* `rows` rows of n places along an axis of `limit` elements, which is the last or the first; one
 * index for all rows (shared) or one for each place.                                          */
static bool index_agrees(const mlc_kernels *k, mlc_index op, mlc_dtype dtype, int64_t rows,
                         int64_t n, int64_t limit, bool last, bool shared)
{
    const size_t       size = size_of(dtype);
    int64_t            error[4] = {0, 0, 0, 0}, *index;
    struct mlc_k_index a;
    memset(&a, 0, sizeof a);
    a.op = op;
    a.dtype = dtype;
    a.ndim = 2;
    a.axis = last;
    a.shape[0] = last ? rows : n;
    a.shape[1] = last ? n : rows;
    a.limit = limit;
    a.data_stride[0] = last ? limit : rows;
    a.line_stride[0] = a.shape[1];
    a.data_stride[1] = a.line_stride[1] = 1;
    a.index_stride[last] = shared ? 1 : a.line_stride[last];
    a.index_stride[!last] = shared ? 0 : a.line_stride[!last];
    a.error = error;
    a.data = caged(0, (size_t)(rows * limit) * size);
    a.line = caged(1, (size_t)(rows * n) * size);
    a.index = index = (int64_t *)caged(2, (size_t)(shared ? n : rows * n) * 8);
    whole_numbers(a.data, dtype, rows * limit, op == MLC_INDEX_ADD ? 97 : 5);
    whole_numbers(a.line, dtype, rows * n, op == MLC_INDEX_ADD ? 98 : 7);
    for (int64_t i = 0; i < (shared ? n : rows * n); i++)
        index[i] = (i * 5 + i / 3) % limit;
    if (op == MLC_INDEX_ADD)           /* 1 each: no sum is over 70                            */
        for (int64_t i = 0; i < rows * n; i++)
            put(a.line, dtype, i, 1);
    void *line = copy_of(a.line, (size_t)(rows * n) * size);
    void *data = copy_of(a.data, (size_t)(rows * limit) * size);
    for (int64_t p = 0; p < n; p++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = op == MLC_INDEX_TAKE ? n - 1 - p : p;
            const int64_t i = index[at * a.index_stride[last] + r * a.index_stride[!last]];
            index_want(op, dtype, line, at * a.line_stride[last] + r * a.line_stride[!last], data,
                       i * a.data_stride[last] + r * a.data_stride[!last]);
        }
    const mlc_status st = k->index(NULL, &a);
    const bool held = st == MLC_OK && error[0] == 0 && cage_holds(a.line) && cage_holds(a.data) &&
                      cage_holds(index) && same_bits(a.line, line, dtype, rows * n) &&
                      same_bits(a.data, data, dtype, rows * limit);
    free(line);
    free(data);
    if (!held)
        printf("  index %d %s, %" PRId64 " x %" PRId64 " of %" PRId64 ", axis %d%s\n", (int)op,
               mlc_dtype_name(dtype), rows, n, limit, last, shared ? ", shared" : "");
    return held;
}

static bool index_sizes_agree(const mlc_kernels *k, mlc_index op, mlc_dtype dtype)
{
    for (int64_t n = 1; n <= 70; n += n < 10 ? test_stride(3) : 7 * test_stride(3))
        for (int form = 0; form < 4; form++)
            for (int64_t rows = 1; rows <= 70; rows += rows < 3 ? test_stride(2)
                                                                 : 17 * test_stride(3))
                if (!index_agrees(k, op, dtype, rows, n, 1 + n * 5 % 37, form & 1, form & 2))
                    return false;
    return true;
}

TEST(backend, index_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int op = MLC_INDEX_GATHER; op <= MLC_INDEX_TAKE; op++) {
                const bool half = dtype == MLC_BF16 || dtype == MLC_F16;
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                if (op != MLC_INDEX_ADD || !half) {
                    CHECK(index_sizes_agree(k, (mlc_index)op, (mlc_dtype)dtype));
                    continue;
                }
                struct mlc_k_index a;
                memset(&a, 0, sizeof a);
                a.op = (mlc_index)op;
                a.dtype = (mlc_dtype)dtype;
                CHECK_EQ(k->index(NULL, &a), MLC_ERR_UNSUPPORTED);
            }
}

/* A sum that begins anew clears what the sum before it touched, and nothing else: rows that were
 * not touched keep what no sum would leave there. The record is of the last sum.               */
static bool index_touches(const mlc_kernels *k, mlc_dtype dtype, int64_t m, int64_t n,
                          int64_t limit)
{
    const size_t       size = size_of(dtype);
    int64_t            error[4] = {0, 0, 0, 0}, *index;
    struct mlc_k_index a;
    bool               held = true;
    memset(&a, 0, sizeof a);
    a.op = MLC_INDEX_ADD;
    a.dtype = dtype;
    a.ndim = 2;
    a.shape[0] = m;
    a.shape[1] = n;
    a.limit = limit;
    a.data_stride[0] = a.line_stride[0] = n;
    a.data_stride[1] = a.line_stride[1] = a.index_stride[0] = 1;
    a.error = error;
    a.data = caged(0, (size_t)(n * limit) * size);
    a.line = caged(1, (size_t)(n * m) * size);
    a.index = index = (int64_t *)caged(2, (size_t)m * 8);
    a.touched = (uint8_t *)caged(3, (size_t)limit);
    for (int64_t i = 0; i < n * m; i++)
        put(a.line, dtype, i, (double)(i % 13 + 1));
    for (int64_t r = 0; r < limit; r++) {
        a.touched[r] = r % 3 == 0;
        for (int64_t c = 0; c < n; c++)
            put(a.data, dtype, r * n + c, r % 3 == 0 ? 99 : 7);
    }
    for (int fresh = 1; fresh >= 0; fresh--) {
        double *want = (double *)calloc((size_t)(n * limit), sizeof *want);
        for (int64_t r = 0; r < limit; r++)
            for (int64_t c = 0; c < n; c++)
                want[r * n + c] = fresh && a.touched[r] ? 0 : get(a.data, dtype, r * n + c);
        for (int64_t i = 0; i < m; i++) {
            index[i] = (i * 5 + i / 3 + fresh) % limit;
            for (int64_t c = 0; c < n && fresh; c++)       /* begins at 0                      */
                want[index[i] * n + c] = 0;
        }
        for (int64_t i = 0; i < n * m; i++)
            want[index[i / n] * n + i % n] += get(a.line, dtype, i);
        a.fresh = fresh;
        held = held && k->index(NULL, &a) == MLC_OK && error[0] == 0;
        for (int64_t i = 0; i < n * limit; i++)
            held = held && get(a.data, dtype, i) == want[i];
        for (int64_t r = 0; r < limit && fresh; r++) {
            bool named = false;
            for (int64_t i = 0; i < m; i++)
                named = named || index[i] == r;
            held = held && (a.touched[r] != 0) == named;
        }
        for (int64_t i = 0; i < m; i++)
            held = held && a.touched[index[i]] != 0;
        free(want);
    }
    held = held && cage_holds(a.data) && cage_holds(a.line) && cage_holds(a.touched);
    if (!held)
        printf("  %s, %" PRId64 " rows of %" PRId64 " in %" PRId64 "\n", mlc_dtype_name(dtype), m,
               n, limit);
    return held;
}

TEST(backend, index_kernels_clear_touched_rows_alone)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t n = 2; n < 70; n += 5 * test_stride(4))
            for (int64_t m = 1; m < 400; m = 3 * m + 1) {
                const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
                CHECK(index_touches(k, MLC_F32, m, n, 1 + m * 3 % 101));
                CHECK(index_touches(k, MLC_F64, m, n, 1 + m * 3 % 101));
            }
    struct mlc_k_index a;
    uint8_t            touched[4];
    int64_t            index[2] = {0, 1}, error[4] = {0};
    float              data[4], line[2];
    memset(&a, 0, sizeof a);
    a.op = MLC_INDEX_ADD;
    a.ndim = 2;
    a.shape[0] = 2;
    a.shape[1] = 1;
    a.limit = 4;
    a.data = data;
    a.line = line;
    a.index = index;
    a.error = error;
    a.touched = touched;
    a.data_stride[0] = a.line_stride[0] = a.index_stride[0] = 1;
    CHECK_EQ(mlc_cpu_kernels(MLC_ISA_SCALAR)->index(NULL, &a), MLC_ERR_UNSUPPORTED);
}

/* A row for an index outside is zero, and the error word says where the first one is.         */
TEST(backend, gather_kernels_put_zero_where_an_index_is_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int shared = 0; shared < 2; shared++) {
            static const int64_t INDEX[] = {1, 1, -1, -1, 5, 5}, SHARED[] = {1, -1, 5};
            static const double  WANT[] = {3, 4, 0, 0, 0, 0};
            float              data[] = {1, 2, 3, 4}, line[6];
            int64_t            error[4] = {0, 0, 0, 0};
            struct mlc_k_index a;
            memset(&a, 0, sizeof a);
            a.op = MLC_INDEX_GATHER;
            a.ndim = 2;
            a.shape[0] = 3;
            a.shape[1] = 2;
            a.limit = 2;
            a.data = data;
            a.line = line;
            a.index = shared ? SHARED : INDEX;
            a.data_stride[0] = a.line_stride[0] = 2;
            a.data_stride[1] = a.line_stride[1] = 1;
            a.index_stride[0] = shared ? 1 : 2;
            a.index_stride[1] = !shared;
            a.kind = 9;
            a.error = error;
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->index(NULL, &a), MLC_OK);
            for (int i = 0; i < 6; i++)
                CHECK_NEAR((double)line[i], WANT[i], 0);
            CHECK(error[0] == 9 && error[1] == (shared ? 1 : 2) && error[2] == -1 && error[3] == 2);
        }
}

/* every: which elements are not zero; 0: none.                                                */
static bool nonzero_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t cols,
                           int64_t every, bool coordinates)
{
    struct mlc_k_nonzero a;
    int64_t              count = -1, found = 0, *out;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.ndim = 2;
    a.coordinates = coordinates;
    a.shape[0] = rows;
    a.shape[1] = cols;
    a.n = rows * cols;
    void *in = caged(0, (size_t)a.n * size_of(dtype));
    for (int64_t i = 0; i < a.n; i++)
        put(in, dtype, i, every && i % every == 0 ? 1 + (double)(i % 3) : -0.0);
    a.in = in;
    a.count = &count;
    a.workspace_bytes = k->nonzero_workspace(NULL, &a);
    a.workspace = caged(5, a.workspace_bytes);
    const int64_t want = every ? (a.n + every - 1) / every : 0;
    if (!CHECK_EQ(k->nonzero(NULL, &a), MLC_OK) || !CHECK_EQ(count, want))
        return false;
    a.out = out = (int64_t *)caged(1, (size_t)(want * (coordinates ? 2 : 1)) * 8);
    if (!CHECK_EQ(k->nonzero(NULL, &a), MLC_OK) || !CHECK_EQ(count, want))
        return false;
    for (int64_t i = 0; i < want; i++) {
        const int64_t at = i * every;
        found += coordinates ? out[2 * i] == at / cols && out[2 * i + 1] == at % cols
                             : out[i] == at;
    }
    return CHECK_EQ(found, want) && CHECK(cage_holds(out) && cage_holds(a.workspace));
}

TEST(backend, nonzero_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 70; n++)
                for (int every = 0; every < 4; every++)
                    if (!nonzero_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                        1 + n % 3, n, every, n % 2 == 1))
                        return;
}

/* Two matrices; in and out lie by rows or by columns.                                         */
static bool band_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t cols,
                        int64_t lo, int64_t hi, int form)
{
    const int64_t     n = 2 * rows * cols;
    struct mlc_k_band a;
    int64_t           wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.ndim = 3;
    a.shape[0] = 2;
    a.shape[1] = rows;
    a.shape[2] = cols;
    a.lo = lo;
    a.hi = hi;
    a.in_stride[0] = a.out_stride[0] = rows * cols;
    a.in_stride[1] = form & 1 ? 1 : cols;
    a.in_stride[2] = form & 1 ? rows : 1;
    a.out_stride[1] = form & 2 ? 1 : cols;
    a.out_stride[2] = form & 2 ? rows : 1;
    void *in = caged(0, (size_t)n * size_of(dtype));
    whole_numbers(in, dtype, n, 5);
    a.in = in;
    a.out = caged(1, (size_t)n * size_of(dtype));
    if (k->band(NULL, &a) != MLC_OK || !cage_holds(a.out))
        return false;
    for (int64_t m = 0; m < 2; m++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) {
                const double x = get(in, dtype, m * rows * cols + i * a.in_stride[1] +
                                                    j * a.in_stride[2]);
                wrong += get(a.out, dtype, m * rows * cols + i * a.out_stride[1] +
                                               j * a.out_stride[2]) !=
                         (lo <= j - i && j - i <= hi ? x : 0);
            }
    if (wrong)
        printf("  band %s, %" PRId64 " x %" PRId64 ", %" PRId64 " to %" PRId64 ", form %d\n",
               mlc_dtype_name(dtype), rows, cols, lo, hi, form);
    return wrong == 0;
}

TEST(backend, band_kernels_touch_nothing_outside)
{
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t n = 1; n <= 70; n += n < 10 ? test_stride(3) : 5)
                for (int64_t rows = 1; rows <= 9; rows += 2)
                    for (int64_t lo = -10; lo <= 10; lo += 5)
                        if (!CHECK(band_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                               rows, n, lo, lo + n % 7 - 1, (int)(n + rows) % 4)))
                            return;
}

/* Where element i of a padded axis of n comes from; -1: it is the value.                      */
static int64_t pad_source(mlc_pad_mode mode, int64_t i, int64_t n)
{
    if (i >= 0 && i < n)
        return i;
    switch (mode) {
    case MLC_PAD_REFLECT:   return i < 0 ? -i : 2 * n - 2 - i;
    case MLC_PAD_REPLICATE: return i < 0 ? 0 : n - 1;
    case MLC_PAD_CIRCULAR:  return (i + n) % n;
    default:                return -1;
    }
}

/* Three axes of n, 4 and c; in lies by rows, or by columns.                                   */
static bool pad_agrees(const mlc_kernels *k, mlc_dtype dtype, mlc_pad_mode mode, int64_t n,
                       int64_t c, const int64_t *before, const int64_t *after, bool turned)
{
    struct mlc_k_pad a;
    int64_t          wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.mode = mode;
    a.ndim = 3;
    a.value = 3;
    a.in_shape[0] = n, a.in_shape[1] = 4, a.in_shape[2] = c;
    a.in_stride[0] = turned ? 1 : 4 * c;
    a.in_stride[1] = turned ? n : c;
    a.in_stride[2] = turned ? 4 * n : 1;
    for (int d = 0; d < 3; d++) {
        a.before[d] = before[d];
        a.shape[d] = before[d] + a.in_shape[d] + after[d];
    }
    const int64_t total = a.shape[0] * a.shape[1] * a.shape[2];
    void         *in = caged(0, (size_t)(4 * n * c) * size_of(dtype));
    whole_numbers(in, dtype, 4 * n * c, 5);
    a.in = in;
    a.out = caged(1, (size_t)total * size_of(dtype));
    if (k->pad(NULL, &a) != MLC_OK || !cage_holds(a.out))
        return false;
    for (int64_t i = 0; i < total; i++) {
        const int64_t at[3] = {i / a.shape[2] / a.shape[1], i / a.shape[2] % a.shape[1],
                               i % a.shape[2]};
        int64_t       from = 0;
        for (int d = 0; d < 3 && from >= 0; d++) {
            const int64_t s = pad_source(mode, at[d] - before[d], a.in_shape[d]);
            from = s < 0 ? -1 : from + s * a.in_stride[d];
        }
        wrong += get(a.out, dtype, i) !=
                 (from >= 0 ? get(in, dtype, from) : dtype == MLC_BOOL ? 1 : 3);
    }
    if (wrong)
        printf("  pad %s, mode %d, [%" PRId64 ",4,%" PRId64 "], turned %d\n",
               mlc_dtype_name(dtype), (int)mode, n, c, (int)turned);
    return wrong == 0;
}

TEST(backend, pad_kernels_touch_nothing_outside)
{
    static const int64_t before[][3] = {{0, 0, 0}, {1, 2, 3}, {0, 1, 0}, {2, 0, 1}, {-1, 2, -3}};
    static const int64_t after[][3] = {{0, 0, 0}, {2, 3, 1}, {1, 2, 0}, {0, 0, 2}, {1, -4, 4}};
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int mode = 0; mode <= (int)MLC_PAD_CIRCULAR; mode++)
                for (int form = 0; form < (mode ? 16 : 20); form++)
                    if (!CHECK(pad_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                          (mlc_pad_mode)mode, 3, form & 1 ? 5 : 70,
                                          before[form / 4], after[form / 4], (form & 2) != 0)))
                        return;
}

/* Many equal ones; of floats every seventh is special.                                        */
static double sort_value(mlc_dtype dtype, int64_t i)
{
    const bool floats = dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 ||
                        dtype == MLC_F16;
    const double v = (double)(i * 37 % 23);
    if (floats && i % 7 == 3)
        return SPECIAL[i % 7 + i / 7 % 5];
    return dtype == MLC_U8 || dtype == MLC_BOOL ? v : v - 11;
}

/* Is x before y? NaNs are the largest, and equal.                                             */
static bool sort_before(double x, double y, bool descending)
{
    if (isnan(x) || isnan(y))
        return descending ? isnan(x) && !isnan(y) : !isnan(x) && isnan(y);
    return descending ? x > y : x < y;
}

/* The axis is the last or the first; which: 1 values, 2 indices, 3 both.                      */
static bool sort_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t n, int64_t top,
                        bool descending, bool last, int which)
{
    struct mlc_k_sort a;
    int64_t          *order = (int64_t *)malloc((size_t)n * sizeof *order), wrong = 0;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.ndim = 2;
    a.axis = last;
    a.descending = descending;
    a.shape[0] = last ? rows : n;
    a.shape[1] = last ? n : rows;
    a.k = top;
    a.in_stride[0] = a.shape[1];
    a.values_stride[0] = a.index_stride[0] = last ? top : rows;
    a.in_stride[1] = a.values_stride[1] = a.index_stride[1] = 1;
    void *in = caged(0, (size_t)(rows * n) * size_of(dtype));
    for (int64_t i = 0; i < rows * n; i++)
        put(in, dtype, i, sort_value(dtype, i));
    a.in = in;
    a.values = caged(1, (size_t)(rows * top) * size_of(dtype));
    int64_t *index = a.index = (int64_t *)caged(2, (size_t)(rows * top) * 8);
    void    *values = a.values;
    if (!(which & 1))
        a.values = NULL;
    if (!(which & 2))
        a.index = NULL;
    a.workspace_bytes = (k->sort_workspace(NULL, &a) + 63) / 64 * 64;
    a.workspace = caged(5, a.workspace_bytes);
    if (k->sort(NULL, &a) != MLC_OK || !cage_holds(index) || !cage_holds(values) ||
        !cage_holds(a.workspace))
        wrong = 1;
    for (int64_t r = 0; r < rows && order != NULL; r++) {
        for (int64_t i = 0; i < n; i++) {                  /* insertion sort, which is stable  */
            const double x = get(in, dtype, i * a.in_stride[last] + r * a.in_stride[!last]);
            int64_t      at = i;
            for (; at > 0; at--) {
                const int64_t p = order[at - 1];
                if (!sort_before(x, get(in, dtype, p * a.in_stride[last] +
                                                       r * a.in_stride[!last]), descending))
                    break;
                order[at] = p;
            }
            order[at] = i;
        }
        for (int64_t i = 0; i < top; i++) {
            const int64_t at = i * a.index_stride[last] + r * a.index_stride[!last];
            const int64_t from = order[i] * a.in_stride[last] + r * a.in_stride[!last];
            wrong += (which & 2) && index[at] != order[i];
            wrong += (which & 1) && memcmp((char *)values + (size_t)at * size_of(dtype),
                                           (char *)in + (size_t)from * size_of(dtype),
                                           size_of(dtype)) != 0;
        }
    }
    free(order);
    if (wrong)
        printf("  sort %s, %" PRId64 " of %" PRId64 " x %" PRId64 ", %s, axis %d, %d\n",
               mlc_dtype_name(dtype), top, rows, n, descending ? "descending" : "ascending", last,
               which);
    return wrong == 0;
}

TEST(backend, sort_kernels_touch_nothing_outside)
{
    static const int64_t LONG[] = {128, 257, 1000};
    FOR_EACH_LEVEL(isa)
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++)
            for (int64_t i = 1; i <= 70 + 3; i += test_stride(9)) {
                const int64_t n = i <= 70 ? i : LONG[i - 71];
                for (int form = 0; form < 8; form++) {
                    const int64_t top = form % 4 == 0 ? n : form % 4 == 1 ? 1 : 1 + n * form / 9;
                    if (!CHECK(sort_agrees(mlc_cpu_kernels((mlc_isa)isa), (mlc_dtype)dtype,
                                           1 + n % 3, n, top, form & 1, form & 4, 1 + form % 3)))
                        return;
                }
            }
}
