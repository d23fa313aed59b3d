/* io.c -- every system call of every reader and writer fails: the nth, once and for ever
 *
 * Linked with --wrap for each of the calls (make io-faults), which then go through this file. A
 * scenario saves or loads something. It runs once undisturbed, which gives the result to compare
 * with; then the first call of a kind fails, the second, ... until none is left to fail. A save
 * that failed says why and leaves the old file, one that succeeded the new one; a failed load
 * changes no byte of the model; no descriptor, mapping, memory or temporary file stays. Reads and
 * writes of a single byte, of random lengths and with EINTR before each call change nothing at all.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "../watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- the calls ------------------------------------------------------------------------------ */

typedef enum call {
    OPEN, FSTAT, STAT, READ, WRITE, SEEK, MMAP, LOCK, DUP, SYNC, CLOSE, RENAME, UNLINK, CALLS
} call;

static const char *const call_names[CALLS] = {"open", "fstat", "stat", "read", "write", "lseek",
                                              "mmap", "flock", "dup", "fsync", "close", "rename",
                                              "unlink"};

typedef enum pace { WHOLE, ONE_BYTE, ANY_BYTES } pace;

/* What happens while armed, and what was seen.                                                 */
static struct {
    bool    armed, ever, hit;
    call    which;
    int64_t nth;                       /* 0: none fails                                        */
    int     error;                     /* errno; 0: write says that it took nothing            */
    pace    pace;                      /* of reads and writes                                  */
    int     interrupt;                 /* EINTR so many times before each call                 */
    int     interrupted;
    bool    any;                       /* the nth of all calls, whichever it is                */
    bool    dies;                      /* SIGKILL instead of an error                          */
    bool    all_unlinks;               /* fail, too                                            */
    char    stolen[340];               /* taken away at the nth flock, and                     */
    bool    given;                     /* its name given to another file                       */
    int     no_chown;                  /* so many fchown may not be made                       */
    int64_t count[CALLS], all;
    int64_t descriptors, maps;         /* opened and not yet closed                            */
    int64_t renamed;                   /* rename has succeeded                                 */
} g;

static bool fails(call c)
{
    if (!g.armed)
        return false;
    g.count[c]++;
    g.all++;
    if (g.dies && g.all == g.nth)
        raise(SIGKILL);
    const int64_t n = g.any ? g.all : g.count[c];
    const bool    unlinks = c == UNLINK && g.all_unlinks;
    if (!unlinks && (g.dies || g.nth == 0 || (c != g.which && !g.any) || n < g.nth ||
                     (n > g.nth && !g.ever)))
        return false;
    g.hit = true;
    errno = g.error;
    return true;
}

static bool interrupts(void)
{
    if (!g.armed || g.interrupt == 0)
        return false;
    if (g.interrupted++ < g.interrupt) {
        errno = EINTR;
        return true;
    }
    g.interrupted = 0;
    return false;
}

static size_t paced(size_t n)
{
    if (!g.armed || g.pace == WHOLE || n == 0)
        return n;
    return g.pace == ONE_BYTE ? 1 : 1 + (size_t)test_random(1, g.all, 0, (double)n);
}

#define REAL(type, name, params) \
    type __real_##name params; \
    type __wrap_##name params; \
    type __wrap_##name params

REAL(int, open, (const char *path, int flags, ...))
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? (mode_t)va_arg(list, int) : 0;
    va_end(list);
    if (interrupts() || fails(OPEN))
        return -1;
    const int fd = __real_open(path, flags, mode);
    g.descriptors += g.armed && fd >= 0;
    return fd;
}

REAL(int, fstat, (int fd, struct stat *info))
{
    return fails(FSTAT) ? -1 : __real_fstat(fd, info);
}

REAL(int, stat, (const char *path, struct stat *info))
{
    return fails(STAT) ? -1 : __real_stat(path, info);
}

REAL(ssize_t, read, (int fd, void *to, size_t n))
{
    return interrupts() || fails(READ) ? -1 : __real_read(fd, to, paced(n));
}

REAL(ssize_t, write, (int fd, const void *from, size_t n))
{
    if (interrupts())
        return -1;
    if (fails(WRITE))
        return g.error == 0 ? 0 : -1;
    return __real_write(fd, from, paced(n));
}

REAL(off_t, lseek, (int fd, off_t at, int from))
{
    return fails(SEEK) ? -1 : __real_lseek(fd, at, from);
}

REAL(void *, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t from))
{
    void *p = fails(MMAP) ? MAP_FAILED : __real_mmap(at, n, protection, flags, fd, from);
    g.maps += g.armed && p != MAP_FAILED;
    return p;
}

REAL(int, munmap, (void *at, size_t n))
{
    g.maps -= g.armed;
    return __real_munmap(at, n);
}

REAL(int, dup, (int fd))
{
    const int other = fails(DUP) ? -1 : __real_dup(fd);
    g.descriptors += g.armed && other >= 0;
    return other;
}

REAL(int, fsync, (int fd))
{
    return interrupts() || fails(SYNC) ? -1 : __real_fsync(fd);
}

REAL(int, fchown, (int fd, uid_t owner, gid_t group))
{
    if (!g.armed || g.no_chown == 0)
        return __real_fchown(fd, owner, group);
    g.no_chown--;
    errno = EPERM;
    return -1;
}

/* As Linux does: the descriptor is gone, whatever close says.                                  */
REAL(int, close, (int fd))
{
    const int done = __real_close(fd);
    g.descriptors -= g.armed;
    return interrupts() || fails(CLOSE) ? -1 : done;
}

REAL(int, rename, (const char *from, const char *to))
{
    if (fails(RENAME))
        return -1;
    const int done = __real_rename(from, to);
    g.renamed += done == 0;
    return done;
}

REAL(int, unlink, (const char *path))
{
    return fails(UNLINK) ? -1 : __real_unlink(path);
}

REAL(int, flock, (int fd, int how))
{
    if (g.armed && g.stolen[0] && g.count[LOCK] + 1 == g.nth) {
        __real_unlink(g.stolen);
        if (g.given)
            __real_close(__real_open(g.stolen, O_WRONLY | O_CREAT, 0600));
        g.stolen[0] = 0;
    }
    return fails(LOCK) ? -1 : __real_flock(fd, how);
}

/* ---- scenarios ------------------------------------------------------------------------------ */

typedef struct world {
    const box   *files;
    tally        mem;
    mlc_ctx     *ctx;
    mlc_tensor  *x, *turned, *bytes;   /* f32 [5,3]; the same by stride; i8 [40]               */
    mlc_module  *net;
    mlc_tensor  *out[4];
    int          n_out;
    char         path[340];
} world;

typedef mlc_status (*scenario_fn)(world *w);

typedef struct scenario {
    const char *name;
    scenario_fn run;
    bool        saves;                 /* to "out"; others load                                */
} scenario;

static const char *at(world *w, const char *file)
{
    snprintf(w->path, sizeof w->path, "%s/%s", w->files->dir, file);
    return w->path;
}

static mlc_status keep(world *w, mlc_tensor *t)
{
    if (t != NULL)
        w->out[w->n_out++] = t;
    return t != NULL ? MLC_OK : mlc_ctx_status(w->ctx);
}

static mlc_status keep_list(world *w, mlc_status st, const mlc_named *list, int64_t n)
{
    CHECK_EQ(list != NULL, st == MLC_OK);
    for (int64_t i = 0; st == MLC_OK && i < n; i++)
        st = keep(w, list[i].tensor);
    return st;
}

static mlc_status save_safetensors(world *w)
{
    const mlc_named list[] = {{"x", w->x}, {"turned", w->turned}, {"bytes", w->bytes}};
    return mlc_safetensors_save(w->ctx, at(w, "out"), list, 3, NULL);
}

static mlc_status save_npy(world *w)   { return mlc_npy_save(w->turned, at(w, "out")); }
static mlc_status save_csv(world *w)   { return mlc_csv_save(w->x, at(w, "out"), NULL); }
static mlc_status save_idx(world *w)   { return mlc_idx_save(w->x, at(w, "out")); }
static mlc_status save_state(world *w) { return mlc_save(w->net, at(w, "out")); }

/* On a device, which has no plans, its weights. */
static mlc_status save_onnx(world *w)
{
    if (!mlc_ctx_on_host(w->ctx)) return save_state(w);
    mlc_plan        *p = mlc_plan_capture(w->net, &w->x, 1, NULL);
    const mlc_status st = p != NULL ? mlc_onnx_save(p, at(w, "out"), NULL) : mlc_ctx_status(w->ctx);
    mlc_plan_free(p);
    return st;
}

/* A run: a network, and a number of the program's. */
static mlc_run run_of(world *w)
{
    static int64_t            mine = 7;
    static const mlc_run_part part = {"mine", &mine, sizeof mine};
    mlc_run                   run;
    memset(&run, 0, sizeof run);
    run.net = w->net;
    run.parts = &part;
    run.n_parts = 1;
    return run;
}

static mlc_status save_run(world *w)
{
    const mlc_run run = run_of(w);
    return mlc_run_save(w->ctx, at(w, "out"), &run);
}

static mlc_status load_run(world *w)
{
    const mlc_run run = run_of(w);
    return mlc_run_load(w->ctx, at(w, "in.run"), &run);
}

static mlc_status save_npz(world *w)
{
    const mlc_named list[] = {{"x", w->x}, {"bytes", w->bytes}};
    return mlc_npz_save(w->ctx, at(w, "out"), list, 2);
}

static mlc_status load_safetensors(world *w)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_safetensors_load(w->ctx, at(w, "in.safetensors"), &list, &n);
    return keep_list(w, st, list, n);
}

static mlc_status open_safetensors(world *w)
{
    mlc_safetensors *f = mlc_safetensors_open(w->ctx, at(w, "in.safetensors"));
    if (f == NULL)
        return mlc_ctx_status(w->ctx);
    mlc_status st = keep(w, mlc_safetensors_get(f, "bytes"));
    if (st == MLC_OK)
        st = keep(w, mlc_copy(mlc_safetensors_view(f, "x")));
    mlc_safetensors_close(f);
    return st;
}

static mlc_status load_npz(world *w)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(w->ctx, at(w, "in.npz"), &list, &n);
    return keep_list(w, st, list, n);
}

static mlc_status load_tail(world *w)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(w->ctx, at(w, "in.tail"), &list, &n);
    return keep_list(w, st, list, n);
}

/* A build without zlib refuses what is packed, after reading the directory.                    */
static mlc_status load_packed(world *w)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(w->ctx, at(w, "in.packed"), &list, &n);
    if (st != MLC_ERR_UNSUPPORTED)
        return keep_list(w, st, list, n);
    mlc_error_clear(w->ctx);
    return MLC_OK;
}

static mlc_status load_large(world *w) { return keep(w, mlc_npy_load(w->ctx, at(w, "in.large"))); }
static mlc_status load_npy(world *w) { return keep(w, mlc_npy_load(w->ctx, at(w, "in.npy"))); }
static mlc_status load_fortran(world *w)
{
    return keep(w, mlc_npy_load(w->ctx, at(w, "in.fortran")));
}
static mlc_status load_idx(world *w) { return keep(w, mlc_idx_load(w->ctx, at(w, "in.idx"))); }

static mlc_status load_csv(world *w)
{
    return keep(w, mlc_csv_load(w->ctx, at(w, "in.csv"), NULL));
}

static mlc_status load_cifar(world *w)
{
    mlc_tensor *labels = NULL, *x = mlc_cifar_load(w->ctx, at(w, "in.cifar"), 10, &labels);
    CHECK_EQ(x != NULL, labels != NULL);
    const mlc_status st = keep(w, x);
    return st != MLC_OK ? st : keep(w, labels);
}

/* What begins as a .gz is looked at before the length is called wrong.                         */
static mlc_status load_no_cifar(world *w)
{
    CHECK(mlc_cifar_load(w->ctx, at(w, "in.csv"), 10, NULL) == NULL);
    if (strstr(mlc_error(w->ctx), "are no records of 3073 bytes") == NULL)
        return mlc_ctx_status(w->ctx);
    mlc_error_clear(w->ctx);
    return MLC_OK;
}

static mlc_status load_table(world *w)
{
    mlc_csv_desc d = mlc_csv_desc_make();
    mlc_table   *t = mlc_table_load(w->ctx, at(w, "in.csv"), &d);
    if (t == NULL)
        return mlc_ctx_status(w->ctx);
    const mlc_status st = keep(w, mlc_table_column(t, 1));
    mlc_table_free(t);
    return st;
}

static mlc_module *small_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 5));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    mlc_module_build(net);
    return net;
}

static mlc_status load_state(world *w) { return mlc_load(w->net, at(w, "in.net")); }

static mlc_status load_index(world *w) { return mlc_load(w->net, at(w, "in.index")); }

/* Into initial values of 16 bits, which a read that fails in the middle leaves. */
static mlc_status load_cast(world *w)
{
    mlc_load_desc d = mlc_load_desc_make();
    mlc_module   *net = small_net(w->ctx);
    d.cast = true;
    mlc_status st = mlc_module_to(net, MLC_BF16);
    const uint64_t   before = hash_net(HASH_SEED, net);
    if (st == MLC_OK) st = mlc_load_ex(net, at(w, "in.net"), &d);
    if (st == MLC_OK) keep(w, mlc_copy(mlc_detach(mlc_module_param(net, "2.weight"))));
    else CHECK(hash_net(HASH_SEED, net) == before);
    mlc_module_free(net);
    return st;
}

/* In a context of its own, with which the mapping ends. */
static mlc_status load_mapped(world *w)
{
    static uint64_t      first;
    mlc_mapped_report    r = {0, 0, 0, 0};
    mlc_load_mapped_desc d = mlc_load_mapped_desc_make();
    g.armed = false;
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = small_net(ctx);
    const uint64_t before = hash_net(HASH_SEED, net);
    g.armed = true;
    d.least = 0;
    d.report = &r;
    const mlc_status st = mlc_load_mapped(net, at(w, "in.net"), &d);
    if (st == MLC_OK) {
        CHECK_EQ(r.mapped + r.copied, 4);
        CHECK_EQ(r.mapped_bytes + r.copied_bytes, 4 * (15 + 5 + 15 + 3));
        if (g.hit && g.which == MMAP && !g.any) CHECK_EQ(r.copied, 4);
    }
    const uint64_t   after = hash_net(HASH_SEED, net);
    if (first == 0 && st == MLC_OK) first = after;
    CHECK(after == (st == MLC_OK ? first : before));
    if (st != MLC_OK) mlc_raise(w->ctx, st, "%s", mlc_error(ctx));
    mlc_ctx_free(ctx);
    return st;
}

static const scenario scenarios[] = {
    {"safetensors_save", save_safetensors, true}, {"npy_save", save_npy, true},
    {"npz_save", save_npz, true}, {"csv_save", save_csv, true}, {"idx_save", save_idx, true},
    {"save", save_state, true}, {"run_save", save_run, true}, {"onnx_save", save_onnx, true},
    {"safetensors_load", load_safetensors, false}, {"safetensors_open", open_safetensors, false},
    {"npy_load", load_npy, false}, {"npz_load", load_npz, false}, {"csv_load", load_csv, false},
    {"large npy_load", load_large, false}, {"npz_load, more behind the array", load_tail, false},
    {"npy_load by columns", load_fortran, false},
    {"table_load", load_table, false}, {"idx_load", load_idx, false},
    {"cifar_load", load_cifar, false}, {"no cifar", load_no_cifar, false},
    {"load", load_state, false}, {"load by an index", load_index, false},
    {"load_ex with a cast", load_cast, false}, {"load_mapped", load_mapped, false},
    {"run_load", load_run, false},
    {"packed npz_load", load_packed, false},
};
#define SCENARIOS ((int)(sizeof scenarios / sizeof *scenarios))

/* ---- worlds --------------------------------------------------------------------------------- */

static void world_open(world *w, const box *files)
{
    memset(w, 0, sizeof *w);
    const mlc_ctx_desc d = tally_desc(&w->mem);
    w->files = files;
    w->ctx = mlc_ctx_create(&d);
    w->x = test_rand(w->ctx, MLC_F32, mlc_dims2(5, 3), 1, -1, 1);
    w->turned = mlc_transpose(w->x, 0, 1);
    w->bytes = test_rand(w->ctx, MLC_I8, mlc_dims1(40), 2, -100, 100);
    mlc_seed(w->ctx, 3);
    w->net = small_net(w->ctx);
}

static void world_close(world *w)
{
    tally_done(&w->mem, w->ctx);
}

/* i8 [2,3], column by column. */
static const char FORTRAN[] = "\x93NUMPY\1\0\x36\0{'descr':'|i1','fortran_order':True,"
                              "'shape':(2,3),}  \n\1\4\2\5\3\6";

static const char INDEX[] = "{\"weight_map\":{\"0.bias\":\"in.net\"}}";

#define INPUTS 13                      /* files that are read                                  */

static box files_open(void)
{
    box           b = box_open_fast("out");
    world         w;
    unsigned char image[3073] = {4, 5, 6}, zip[2048];
    char          array[1200] = "\x93NUMPY\1\0\x34\0{'descr':'|i1','fortran_order':False,"
                                "'shape':(2,),}";
    size_t         n_packed = 0;
    const zip_part part = {"tail.npy", array, sizeof array, 0, NULL, 0};
    world_open(&w, &b);
    const mlc_named list[] = {{"bytes", w.bytes}, {"turned", w.turned}, {"x", w.x}};
    mlc_safetensors_save(w.ctx, at(&w, "in.safetensors"), list, 3, NULL);
    mlc_npz_save(w.ctx, at(&w, "in.npz"), list, 3);
    mlc_npy_save(w.x, at(&w, "in.npy"));
    mlc_csv_save(w.x, at(&w, "in.csv"), NULL);
    mlc_idx_save(w.bytes, at(&w, "in.idx"));
    mlc_seed(w.ctx, 77);
    w.net = small_net(w.ctx);
    mlc_save(w.net, at(&w, "in.net"));
    const mlc_run run = run_of(&w);
    mlc_run_save(w.ctx, at(&w, "in.run"), &run);
    put_file(at(&w, "in.index"), INDEX, sizeof INDEX - 1);
    put_file(at(&w, "in.cifar"), image, sizeof image);
    put_file(at(&w, "in.fortran"), FORTRAN, sizeof FORTRAN - 1);
    memset(array + strlen(array + 10) + 10, ' ', 20);
    put_file(at(&w, "in.tail"), zip, zip_build(zip, &part, 1, ZIP_END));
    unsigned char *packed = get_file("tests/golden/io_packed.npz", &n_packed);
    put_file(at(&w, "in.packed"), packed, n_packed);
    free(packed);
    mlc_npy_save(mlc_zeros(w.ctx, MLC_I8, mlc_dims1(140000)), at(&w, "in.large"));  /* in steps */
    CHECK_OK(w.ctx);
    CHECK_EQ(box_count(&b), INPUTS);
    world_close(&w);
    return b;
}

static int64_t allocated(const world *w)
{
    mlc_memory info;
    mlc_memory_info(w->ctx, &info);
    return info.allocated;
}

static void disarm(void)
{
    memset(&g, 0, sizeof g);
}

/* ---- one run -------------------------------------------------------------------------------- */

#define OLD "the old file"

typedef struct outcome {
    mlc_status status;
    uint64_t   result;                 /* if the status is OK                                  */
    bool       replaced, hit;
    int64_t    calls[CALLS];
} outcome;

static bool is_old(world *w)
{
    return hash_file(1, at(w, "out")) == hash_bytes(1 * 31 + 2, OLD, strlen(OLD));
}

/* A clear error: the path, and what the system said.                                           */
static void check_error(world *w, const scenario *s, mlc_status st)
{
    CHECK_EQ(st, MLC_ERR_IO);
    CHECK_EQ(mlc_ctx_status(w->ctx), MLC_ERR_IO);
    CHECK_HAS(mlc_error(w->ctx), s->saves ? "/out'" : "/in.");
    CHECK_HAS(mlc_error(w->ctx), strerror(g.error ? g.error : ENOSPC));
}

/* In a scope of its own, with whatever g asks for.                                             */
static outcome run(world *w, const scenario *s)
{
    outcome        o;
    const uint64_t net = hash_net(HASH_SEED, w->net);
    mlc_scope_begin(w->ctx);
    w->n_out = 0;
    put_file(at(w, "out"), OLD, strlen(OLD));
    g.armed = true;
    o.status = s->run(w);
    g.armed = false;
    if (o.status == MLC_OK) {
        CHECK_EQ(mlc_ctx_status(w->ctx), MLC_OK);
        o.result = hash_net(hash_file(1, at(w, "out")), w->net);
        for (int i = 0; i < w->n_out; i++)
            o.result = hash_tensor(o.result, w->out[i]);
        CHECK_EQ(is_old(w), !s->saves);
    } else {
        check_error(w, s, o.status);
        mlc_error_clear(w->ctx);
        CHECK(hash_net(HASH_SEED, w->net) == net);
        CHECK_EQ(is_old(w), g.renamed == 0);
    }
    CHECK_EQ(g.descriptors, 0);
    CHECK_EQ(g.maps, 0);
    if (g.which != UNLINK)
        CHECK_EQ(box_count(w->files), INPUTS + 1);
    o.replaced = g.renamed > 0;
    o.hit = g.hit;
    memcpy(o.calls, g.count, sizeof o.calls);
    CHECK_EQ(mlc_scope_end(w->ctx), MLC_OK);
    disarm();
    return o;
}

/* Must the failure of the nth call of a kind fail the whole? Nobody needs close when reading, a
 * mapping (a copy does), whose file's size is asked for again, or a lock (the dead's files stay);
 * the folder may be unreadable.                                                                */
static bool must_fail(const scenario *s, call c, int64_t n, int error)
{
    switch (c) {
    case OPEN:  return n == 1 || error != EACCES;
    case CLOSE: return s->saves && n == 1 && error != EINTR;
    case FSTAT: return !s->saves && (n == 1 || (s->run != open_safetensors &&
                                                s->run != load_mapped));
    case SYNC:  return n == 1 || error != EINVAL;
    case STAT: case MMAP: case LOCK: case DUP: case UNLINK: return false;
    default:    return true;
    }
}

/* Runs s with the call failing; true once there was none to fail.                              */
static bool survives(const box *files, const scenario *s, call c, int64_t n, bool ever, int error,
                     uint64_t want)
{
    world         w;
    const int64_t failures = test_failures();
    world_open(&w, files);
    g.which = c;
    g.nth = n;
    g.ever = ever;
    g.error = error;
    const outcome o = run(&w, s);
    if (o.hit && must_fail(s, c, n, error))
        CHECK_EQ(o.status, MLC_ERR_IO);
    if (o.status == MLC_OK)
        CHECK(o.result == want);
    const outcome again = run(&w, s);  /* and everything is as if nothing had happened         */
    CHECK_EQ(again.status, MLC_OK);
    CHECK(again.result == want);
    const int64_t steady = allocated(&w);
    g.which = c;
    g.nth = n;
    g.ever = ever;
    g.error = error;
    run(&w, s);
    CHECK_EQ(allocated(&w), steady);
    world_close(&w);
    if (test_failures() > failures)
        printf("  %s with %s %d failing%s: %s\n", s->name, call_names[c], (int)n,
               ever ? " for ever" : "", strerror(error));
    return !o.hit;
}

/* What systems give, by call; ended by -1.                                                     */
static const int errors[CALLS][6] = {
    {EACCES, EMFILE, EIO, -1}, {EIO, -1}, {EIO, -1}, {EIO, EISDIR, -1},
    {ENOSPC, EDQUOT, EIO, EFBIG, 0, -1}, {EINVAL, -1}, {ENOMEM, ENODEV, -1}, {ENOLCK, EBADF, -1},
    {EMFILE, -1}, {EIO, EINVAL, ENOSPC, -1}, {EIO, EINTR, -1}, {EACCES, EXDEV, ENOSPC, -1},
    {EIO, -1}};

static uint64_t undisturbed(const box *files, const scenario *s, int64_t *calls)
{
    world w;
    world_open(&w, files);
    const outcome o = run(&w, s);
    CHECK_EQ(o.status, MLC_OK);
    CHECK(!o.hit);
    for (int c = 0; calls != NULL && c < CALLS; c++)
        calls[c] += o.calls[c];
    world_close(&w);
    return o.result;
}

TEST(iofaults, any_call_of_the_system_may_fail_once_and_for_ever)
{
    const box files = files_open();
    int64_t   calls[CALLS] = {0};
    for (int i = 0; i < SCENARIOS; i++) {
        const uint64_t want = undisturbed(&files, &scenarios[i], calls);
        for (int c = 0; c < CALLS; c++)
            for (const int *e = errors[c]; *e >= 0; e++)
                for (int ever = 0; ever < 2; ever++) {
                    int64_t n = 1;
                    while (n < 1000 && !survives(&files, &scenarios[i], (call)c, n, ever != 0, *e,
                                                 want))
                        n++;
                    CHECK(n < 1000);
                }
    }
    for (int c = 0; c < CALLS; c++)    /* every call in the list is one that is made           */
        if (c != UNLINK && (c != MMAP || test_on_host()) && !CHECK(calls[c] > 0))
            printf("  %s\n", call_names[c]);
    box_close(&files);
}

TEST(iofaults, short_reads_and_writes_and_interrupts_change_nothing)
{
    const box files = files_open();
    for (int i = 0; i < SCENARIOS; i++) {
        const uint64_t want = undisturbed(&files, &scenarios[i], NULL);
        int64_t        whole = 0;
        for (int p = WHOLE; p <= ANY_BYTES; p++)
            for (int interrupt = 0; interrupt < 4; interrupt++) {
                world w;
                world_open(&w, &files);
                g.pace = (pace)p;
                g.interrupt = interrupt;
                const outcome o = run(&w, &scenarios[i]);
                if (!CHECK_EQ(o.status, MLC_OK) || !CHECK(o.result == want))
                    printf("  %s, pace %d, %d interrupts\n", scenarios[i].name, p, interrupt);
                const int64_t calls = o.calls[READ] + o.calls[WRITE];
                whole = p == WHOLE ? calls : whole;
                CHECK(p == ONE_BYTE ? calls > whole : calls >= whole && calls > 0);
                world_close(&w);
            }
    }
    box_close(&files);
}

/* ---- a whole program ------------------------------------------------------------------------ */

/* Writes its data, reads it back, trains, saves, loads, evaluates. What fails is done again, and
 * then everything must come out as if nothing had happened.                                    */
typedef struct life {
    tally       mem;
    const box  *files;
    mlc_ctx    *ctx;
    mlc_tensor *x, *y;
    mlc_module *net, *copy;
    mlc_optim  *opt;
    char        path[340];
} life;

typedef mlc_status (*stage_fn)(life *l);

static const char *of(life *l, const char *file)
{
    snprintf(l->path, sizeof l->path, "%s/%s", l->files->dir, file);
    return l->path;
}

static mlc_status stage_write(life *l)
{
    mlc_scope_begin(l->ctx);
    mlc_npy_save(test_rand(l->ctx, MLC_F32, mlc_dims2(10, 3), 1, -1, 1), of(l, "x.npy"));
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_labels(life *l)
{
    const double y[10] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0};
    mlc_scope_begin(l->ctx);
    mlc_csv_save(test_tensor(l->ctx, MLC_I64, mlc_dims1(10), y), of(l, "y.csv"), NULL);
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_read(life *l)
{
    mlc_csv_desc d = mlc_csv_desc_make();
    d.dtype = MLC_I64;
    mlc_scope_begin(l->ctx);
    l->x = mlc_keep(mlc_npy_load(l->ctx, of(l, "x.npy")));
    l->y = mlc_keep(mlc_reshape(mlc_csv_load(l->ctx, of(l, "y.csv"), &d), mlc_dims1(10)));
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_step(life *l)
{
    mlc_scope_begin(l->ctx);
    mlc_backward(mlc_cross_entropy(mlc_forward(l->net, l->x), l->y));
    mlc_optim_step(l->opt);
    return mlc_scope_end(l->ctx);
}

/* The checkpoint of the step before stays until this one is whole.                             */
static mlc_status stage_save(life *l)
{
    const uint64_t before = hash_file(1, of(l, "net"));
    mlc_scope_begin(l->ctx);
    mlc_save(l->net, of(l, "net"));
    const mlc_status st = mlc_scope_end(l->ctx);
    if (st != MLC_OK && g.renamed == 0)
        CHECK(hash_file(1, of(l, "net")) == before);
    return st;
}

static mlc_status stage_load(life *l)
{
    const uint64_t before = hash_net(1, l->copy);
    mlc_scope_begin(l->ctx);
    mlc_load(l->copy, of(l, "net"));
    const mlc_status st = mlc_scope_end(l->ctx);
    if (st != MLC_OK)
        CHECK(hash_net(1, l->copy) == before);
    return st;
}

/* Call n of all fails, whatever it is. Returns a hash of all results.                          */
static uint64_t live(const box *files, int64_t n, bool ever, int64_t *calls)
{
    static const stage_fn stages[] = {stage_write, stage_labels, stage_read, stage_step,
                                      stage_save, stage_step, stage_save, stage_load};
    life l;
    memset(&l, 0, sizeof l);
    const mlc_ctx_desc d = tally_desc(&l.mem);
    l.files = files;
    l.ctx = mlc_ctx_create(&d);
    l.net = small_net(l.ctx);
    l.copy = small_net(l.ctx);
    l.opt = mlc_adamw(l.net, 0.05);
    int64_t done = 0;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        g.nth = n > done ? n - done : 0;
        g.any = true;
        g.ever = ever;
        g.error = EIO;
        g.armed = true;
        const mlc_status st = stages[i](&l);
        g.armed = false;
        done += g.all;
        if (st != MLC_OK) {
            CHECK(g.hit);
            CHECK_EQ(st, MLC_ERR_IO);
            CHECK_HAS(mlc_error(l.ctx), strerror(EIO));
            CHECK_EQ(stages[i](&l), MLC_OK);
        }
        CHECK_EQ(g.descriptors, 0);
        disarm();
    }
    uint64_t h = hash_net(hash_net(1, l.net), l.copy);
    h = hash_file(hash_tensor(h, mlc_forward(l.copy, l.x)), of(&l, "net"));
    *calls = done;
    CHECK_EQ(box_count(files), 3);
    tally_done(&l.mem, l.ctx);
    return h;
}

TEST(iofaults, a_program_goes_on_after_any_call_failed_as_if_it_had_not)
{
    const box      files = box_open_fast("out");
    int64_t        calls, ignored;
    const uint64_t want = live(&files, 0, false, &calls);
    CHECK(calls > 60);
    for (int ever = 0; ever < 2; ever++)
        for (int64_t n = 1; n <= calls; n++)
            if (!CHECK(live(&files, n, ever != 0, &ignored) == want))
                printf("  with call %d failing%s\n", (int)n, ever ? " for ever" : "");
    box_close(&files);
}

/* ---- saves that are killed ------------------------------------------------------------------ */

#define STALE "out.mlc0.tmp"

/* SIGKILL at every call that a save makes: there is the whole old file or the whole new one, and
 * the next save takes away what was left.                                                      */
static void kill_at_every_call(const box *files, const scenario *s)
{
    world w;
    int   status = 0, stale = 0, n = 0;
    world_open(&w, files);
    const uint64_t want = undisturbed(files, s, NULL);
    do {
        put_file(at(&w, "out"), OLD, strlen(OLD));
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            disarm();
            g.dies = g.armed = true;
            g.nth = n + 1;
            _exit(s->run(&w) == MLC_OK ? 0 : 1);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        const uint64_t file = hash_net(hash_file(1, at(&w, "out")), w.net);
        CHECK(is_old(&w) || file == want);
        stale += access(at(&w, STALE), F_OK) == 0;
        const outcome o = run(&w, s);
        CHECK_EQ(o.status, MLC_OK);
        CHECK(o.result == want);
        CHECK_EQ(unlink(at(&w, "out")), 0);
        if (!CHECK_EQ(box_count(files), INPUTS))
            printf("  %s, killed at call %d\n", s->name, n);
        n++;
    } while (WIFSIGNALED(status) && n < 1000);
    CHECK(n > 10 && n < 1000 && stale > 5);
    world_close(&w);
}

TEST(iofaults, a_save_killed_at_any_call_leaves_a_whole_file_and_the_next_one_cleans_up)
{
    const box files = files_open();
    for (int i = 0; test_on_host() && i < SCENARIOS; i++)  /* a device outlives no fork        */
        if (scenarios[i].saves)
            kill_at_every_call(&files, &scenarios[i]);
    CHECK_EQ(box_count(&files), INPUTS);
    box_close(&files);
}

/* Errors on the way of the cleaning: the save itself goes on, under another name if need be.   */
TEST(iofaults, a_stale_file_that_cannot_be_removed_is_passed_over)
{
    static const call kinds[] = {LOCK, UNLINK, FSTAT, STAT, OPEN};
    const box         files = files_open();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int n = 1; n < 6; n++) {
            world w;
            world_open(&w, &files);
            put_file(at(&w, STALE), "killed", 6);
            put_file(at(&w, "out"), OLD, strlen(OLD));
            g.which = kinds[k];
            g.nth = n;
            g.error = EACCES;
            g.armed = true;
            const mlc_status st = save_npy(&w);
            g.armed = false;
            CHECK_EQ(g.descriptors, 0);
            disarm();
            if (st != MLC_OK) {
                CHECK_HAS(mlc_error(w.ctx), "Permission denied");
                CHECK(is_old(&w));
                mlc_error_clear(w.ctx);
            }
            CHECK_EQ(save_npy(&w), MLC_OK);
            CHECK(access(at(&w, STALE), F_OK) != 0);
            CHECK_EQ(box_count(&files), INPUTS + 1);
            CHECK_EQ(unlink(at(&w, "out")), 0);
            world_close(&w);
        }
    box_close(&files);
}

/* Another save takes the file for a dead one's just before it has its lock, or is faster with a
 * stale one: then the name is nobody's, or another's.                                          */
TEST(iofaults, a_name_that_another_took_is_given_up)
{
    const box files = files_open();
    for (int stale = 0; stale < 2; stale++)
        for (int given = 0; given < 2; given++) {
            world w;
            world_open(&w, &files);
            if (stale)
                put_file(at(&w, STALE), "killed", 6);
            put_file(at(&w, "out"), OLD, strlen(OLD));
            snprintf(g.stolen, sizeof g.stolen, "%s", at(&w, STALE));
            g.which = CALLS;
            g.nth = 1;
            g.given = given;
            g.armed = true;
            CHECK_EQ(save_npy(&w), MLC_OK);
            CHECK_EQ(g.stolen[0], 0);
            CHECK_EQ(g.descriptors, 0);
            disarm();
            CHECK(!is_old(&w));
            CHECK_EQ(access(at(&w, STALE), F_OK) == 0, given);     /* not ours to remove        */
            CHECK_EQ(box_count(&files), INPUTS + 1 + given);
            CHECK_EQ(save_npy(&w), MLC_OK);
            CHECK_EQ(box_count(&files), INPUTS + 1);
            CHECK_EQ(unlink(at(&w, "out")), 0);
            world_close(&w);
        }
    box_close(&files);
}

/* A save that fails and cannot even remove its file leaves it to the next one.                 */
TEST(iofaults, what_a_failed_save_cannot_remove_the_next_one_does)
{
    const box files = files_open();
    world     w;
    world_open(&w, &files);
    for (int n = 1; n < 4; n++) {
        g.which = WRITE;
        g.nth = n;
        g.ever = g.all_unlinks = true;
        g.error = ENOSPC;
        g.armed = true;
        CHECK_EQ(save_npz(&w), MLC_ERR_IO);
        disarm();
        CHECK_STATUS(w.ctx, MLC_ERR_IO);
        CHECK_EQ(access(at(&w, STALE), F_OK), 0);
        CHECK_EQ(save_npz(&w), MLC_OK);
        CHECK_EQ(box_count(&files), INPUTS + 1);
    }
    world_close(&w);
    box_close(&files);
}

/* Bytes before the end of a file that shrinks while it is read.                                */
TEST(iofaults, a_file_that_shrinks_while_it_is_read_is_an_error)
{
    const box files = files_open();
    world     w;
    world_open(&w, &files);
    mlc_safetensors *f = mlc_safetensors_open(w.ctx, at(&w, "in.safetensors"));
    CHECK_EQ(truncate(w.path, 300), 0);
    CHECK(mlc_safetensors_get(f, "bytes") == NULL);
    CHECK_HAS(mlc_error(w.ctx), "/in.safetensors' ended at byte ");
    CHECK_STATUS(w.ctx, MLC_ERR_IO);
    world_close(&w);
    box_close(&files);
}

/* A user who may not give the new file the old one's owner keeps the group, or if that cannot be,
 * gives a group what others may.                                                               */
TEST(iofaults, a_save_that_cannot_keep_the_owner_or_the_group_gives_the_group_no_more_than_others)
{
    static const struct { uid_t owner; gid_t group; int refused; mode_t mode; } cases[] = {
        {1000, 2000, 0, 0664}, {1000, 2000, 1, 0664}, {1000, 2000, 2, 0644}, {0, 2000, 2, 0644},
        {1000, 0, 1, 0664}};
    const box   files = files_open();
    struct stat st;
    for (size_t i = 0; geteuid() == 0 && i < sizeof cases / sizeof *cases; i++) {
        world w;
        world_open(&w, &files);
        put_file(at(&w, "out"), OLD, strlen(OLD));
        CHECK_EQ(chown(w.path, cases[i].owner, cases[i].group), 0);
        CHECK_EQ(chmod(w.path, 0664), 0);
        g.no_chown = cases[i].refused;
        g.armed = true;
        CHECK_EQ(save_npy(&w), MLC_OK);
        CHECK_EQ(g.no_chown, 0);
        disarm();
        CHECK_EQ(stat(at(&w, "out"), &st), 0);
        CHECK_EQ(st.st_mode & 0777, cases[i].mode);
        CHECK_EQ(st.st_uid, cases[i].refused ? 0 : cases[i].owner);
        CHECK_EQ(st.st_gid, cases[i].refused < 2 ? cases[i].group : 0);
        CHECK_EQ(unlink(w.path), 0);
        world_close(&w);
    }
    CHECK_EQ(box_count(&files), INPUTS);
    box_close(&files);
}

/* The second stat asks whether what the links lead to has a name. */
TEST(iofaults, a_link_whose_end_cannot_be_looked_at_is_an_error)
{
    const box files = files_open();
    world     w;
    world_open(&w, &files);
    put_file(at(&w, "target"), OLD, strlen(OLD));
    CHECK_EQ(symlink("target", at(&w, "out")), 0);
    g.which = STAT;
    g.nth = 2;
    g.error = EIO;
    g.armed = true;
    CHECK_EQ(save_npy(&w), MLC_ERR_IO);
    CHECK(g.hit);
    CHECK_EQ(g.descriptors, 0);
    disarm();
    CHECK_HAS(mlc_error(w.ctx), strerror(EIO));
    CHECK_STATUS(w.ctx, MLC_ERR_IO);
    CHECK(is_old(&w));
    CHECK_EQ(save_npy(&w), MLC_OK);
    CHECK(!is_old(&w));
    CHECK_EQ(box_count(&files), INPUTS + 2);
    world_close(&w);
    box_close(&files);
}
