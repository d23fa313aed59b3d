/* abuse.h -- of what the driver that generate.py writes is made: pools of arguments, a child
 * process for each function, and what must hold after each call
 *
 *     abuse [--cases N] [--only FUNCTION] [--case NUMBER] [--part I/N]
 *
 * A case is known by its function and number: both seed its random numbers, and it has contexts of
 * its own, so that it can be run alone. Memory of tensors is malloc's, to the byte, wherever a
 * tensor can be wrapped: the address sanitizer sees each access beside it.
 */
#ifndef ABUSE_H
#define ABUSE_H

#define _DEFAULT_SOURCE
#include "mlcore.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define ROOM   64                      /* elements of each array that is handed over           */
#define LIMIT  ((size_t)96 << 20)      /* bytes that a context may use                         */

/* ---- the case that runs ---------------------------------------------------------------------- */

typedef struct report {                /* shared with the parent                               */
    char    text[8192];                /* the arguments                                        */
    int64_t number;
    int64_t refused, called, wrong;
} report;

static struct {
    const char *name;                  /* of the function                                      */
    uint64_t    random;
    mlc_ctx    *ctx, *other;
    int64_t     blocks;                /* of the contexts' memory                              */
    bool        none;                  /* an object is none, so that an error has no context     */
    bool        stands;                /* an error was recorded before the call                */
    bool        calling;
    int         depth;                 /* of a_module                                          */
    mlc_dtype   dtype;                 /* of most tensors of the case                          */
    int         rank;
    bool        empty;                 /* most tensors of the case have an axis of 0, or none  */
    int64_t     shape[4];
    mlc_tensor *made[ROOM];
    int         n_made;
    void       *memory[512];
    int         n_memory;
    report     *say;
    FILE       *out;                   /* of reports: standard output is the library's         */
    bool        verbose;
} g;

static uint64_t next_random(void)
{
    uint64_t z = (g.random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t pick(int64_t n) { return (int64_t)(next_random() % (uint64_t)n); }
static bool    chance(int percent) { return pick(100) < percent; }

#define ONE_OF(list) (list)[pick(LEN(list))]

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    char        *to = g.say->text, *from;
    const size_t n = strlen(to);
    va_list      args;
    if (n + 1 >= sizeof g.say->text)
        return;
    va_start(args, format);
    vsnprintf(to + n, sizeof g.say->text - n, format, args);
    va_end(args);
    for (from = to + n; *from; from++)
        if (*from < ' ' || *from > '~')
            *from = '?';
}

/* Memory of the case, filled with a pattern that is no small number.                           */
static void *memory_of(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (p == NULL || g.n_memory == LEN(g.memory))
        _exit(3);
    memset(p, 0x5a, bytes);
    g.memory[g.n_memory++] = p;
    return p;
}

static void *zeros_of(size_t bytes) { return memset(memory_of(bytes), 0, bytes); }

/* One region that is large enough for whatever a context may hold.                             */
static void *large(void)
{
    static void *p;
    if (p == NULL)
        p = mmap(NULL, 2 * LIMIT, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p;
}

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    void *p = NULL;
    (void)user;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes) != 0)
        return NULL;
    memset(p, 0xa5, bytes < 65536 ? bytes : 65536);
    g.blocks++;
    return p;
}

static void counted_release(void *user, void *ptr, size_t bytes)
{
    (void)user; (void)bytes;
    g.blocks--;
    free(ptr);
}

static mlc_ctx *new_ctx(void)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = g.depth == 0 && chance(5) ? 2 : 1;
    d.hard_limit = LIMIT;
    d.allocator.alloc = counted_alloc;
    d.allocator.release = counted_release;
    return mlc_ctx_create(&d);
}

/* ---- numbers, text, lists -------------------------------------------------------------------- */

static const int64_t EXTREMES[] = {
    INT64_MIN, INT64_MAX, INT64_MIN + 1, INT64_MAX - 1, INT32_MIN, INT32_MAX, (int64_t)1 << 31,
    (int64_t)1 << 32, (int64_t)1 << 62, (int64_t)1 << 40, -((int64_t)1 << 62), 65536, 1000, 4097,
    3037000500, -3, -9, 100,
};

#define NO_HINT INT64_MIN

/* A number: the good one of a recipe most often.                                                */
static int64_t any_int(int64_t good)
{
    if (good != NO_HINT && chance(72))
        return good;
    if (chance(60))
        return pick(6);
    return chance(30) ? -1 - pick(3) : ONE_OF(EXTREMES);
}

static int64_t a_i64(const char *name, int64_t good)
{
    const int64_t v = any_int(good);
    say(" %s=%lld", name, (long long)v);
    return v;
}

static int32_t a_i32(const char *name, int64_t good)
{
    const int64_t v = any_int(good);
    const int32_t i = v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : (int32_t)v;
    say(" %s=%d", name, i);
    return i;
}

static size_t a_size(const char *name, int64_t good)
{
    const size_t v = (size_t)any_int(good);
    say(" %s=%zu", name, v);
    return v;
}

/* A number of elements of an array of ROOM. Of none there is no context to say an error in.     */
static int64_t a_count(const char *name)
{
    static const int64_t counts[] = {0, 1, 1, 2, 2, 2, 3, 4, 7, ROOM, -1, INT32_MIN};
    const int64_t        v = ONE_OF(counts);
    say(" %s=%lld", name, (long long)v);
    g.none = g.none || v <= 0;
    return v;
}

static bool a_flag(const char *name)
{
    const bool v = chance(50);
    say(" %s=%d", name, v);
    return v;
}

static int a_enum(const char *name, int count)
{
    const int v = chance(85) ? (int)pick(count) : chance(50) ? -1 : chance(50) ? 99 : 0x7fffffff;
    say(" %s=%d", name, v);
    return v;
}

static double any_double(double good)
{
    static const double list[] = {0, 1, -1, 0.5, 2, 1e-5, -0.0, 3, 1e300, -1e300, 1e-300, 1e19,
                                  -1e19,
                                  NAN, INFINITY, -INFINITY, 9.3e18, 0.9999999, 1.0000001, 100, 4e9};
    if (!isnan(good) && chance(72))
        return good;
    return ONE_OF(list);
}

static double a_double(const char *name, double good)
{
    const double v = any_double(good);
    say(" %s=%g", name, v);
    return v;
}

static char g_long[5001];

static const char *const TEXTS[] = {
    "", "x", "weight", "0.weight", "0", "*", "0.*", "0.bias", "\xff\xfe\x80", "%s%n%d", "a\nb",
    "a.b.c.d", "\xe2\x82\xac", "no such name", "loss", "[", "w,w->", "ij,jk->ik", "\"", "val_loss",
};

static const char *a_text(const char *name, const char *good)
{
    const char *v = good != NULL && chance(70) ? good
                  : chance(8)                  ? NULL
                  : chance(6)                  ? g_long
                                               : ONE_OF(TEXTS);
    say(" %s=%s%.40s%s", name, v ? "\"" : "", v ? v : "NULL", v ? "\"" : "");
    return v;
}

/* Names, the last of which is NULL.                                                             */
static const char *const *a_texts(const char *name, const char *good)
{
    const char **list = (const char **)zeros_of((ROOM + 1) * sizeof(char *));
    if (chance(15)) {
        say(" %s=NULL", name);
        return NULL;
    }
    say(" %s={", name);
    for (int i = 0; i < ROOM; i++)
        list[i] = i < 4 ? a_text("", good) : "x";
    say("}");
    return list;
}

static const char *a_path(const char *name, const char *good)
{
    static const char *const bad[] = {"", ".", "missing", "missing/out", "/dev/null", "/dev/full",
                                      "\xff\xfe", "folder", "empty", "noise", "in.npy", "in.csv"};
    const char *v = good != NULL && chance(70) ? good
                  : chance(10)                 ? NULL
                  : chance(6)                  ? g_long
                                               : ONE_OF(bad);
    say(" %s=%s%.40s%s", name, v ? "\"" : "", v ? v : "NULL", v ? "\"" : "");
    return v;
}

/* Where something is written: never over what others read.                                      */
static const char *a_target(const char *name)
{
    static const char *const bad[] = {"", ".", "missing/out", "/dev/null", "/dev/full", "\xff\xfe",
                                      "folder"};
    const char *v = chance(70) ? "out" : chance(15) ? NULL : chance(6) ? g_long : ONE_OF(bad);
    say(" %s=%s%.40s%s", name, v ? "\"" : "", v ? v : "NULL", v ? "\"" : "");
    return v;
}

/* A folder for runs, or where there cannot be one. */
static const char *a_folder(const char *name)
{
    static const char *const bad[] = {"", ".", "in.npy/below", "/dev/null", "\xff\xfe", "folder"};
    const char *v = chance(75) ? "boards" : chance(15) ? NULL : chance(6) ? g_long : ONE_OF(bad);
    say(" %s=%s%.40s%s", name, v ? "\"" : "", v ? v : "NULL", v ? "\"" : "");
    return v;
}

static mlc_dims dims_from(const char *spec)
{
    mlc_dims d = mlc_dims0();
    while (*spec && d.n < MLC_MAX_DIMS) {
        d.v[d.n++] = strtoll(spec, (char **)(uintptr_t)&spec, 10);
        if (*spec == ',')
            spec++;
    }
    return d;
}

static mlc_dims a_dims(const char *name, const char *good)
{
    mlc_dims d = mlc_dims0();
    if (good != NULL && chance(65)) {
        d = dims_from(good);
        if (d.n > 0 && chance(15))
            d.v[pick(d.n)] = any_int(NO_HINT);
    } else if (chance(12)) {
        d = mlc_dims_all(any_int(2));
    } else if (chance(6)) {
        d.n = (int32_t)any_int(NO_HINT);
    } else {
        d.n = (int32_t)(chance(6) ? 8 : pick(5));
        for (int i = 0; i < d.n; i++)
            d.v[i] = chance(70) ? pick(4) : any_int(NO_HINT);
    }
    say(" %s=(%d:", name, d.n);
    for (int i = 0; i < d.n && i < 5; i++)
        say("%s%lld", i ? "," : "", (long long)d.v[i]);
    say(")");
    return d;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static bool is_float(mlc_dtype t)
{
    return t == MLC_F32 || t == MLC_F64 || t == MLC_BF16 || t == MLC_F16;
}

static double a_value(mlc_dtype dtype, int extreme)
{
    static const double floats[] = {NAN,   INFINITY, -INFINITY, 1e38, -1e38,
                                    1e-40, -0.0,     1e300,     65504};
    static const double ints[] = {-1, 3, 127, -128, 255, 2147483647.0, -2147483648.0, 1e18, 100};
    if (extreme && chance(30))
        return is_float(dtype) ? ONE_OF(floats) : ONE_OF(ints);
    return is_float(dtype) ? (double)(pick(2001) - 1000) / 500
                           : (double)pick(dtype == MLC_BOOL ? 2 : 3);
}

static void put_value(void *data, mlc_dtype dtype, int64_t i, double v)
{
    const int64_t whole = isnan(v) ? 0 : v > 9e18 ? INT64_MAX : v < -9e18 ? INT64_MIN : (int64_t)v;
    switch (dtype) {
    case MLC_F32: ((float *)data)[i] = fabs(v) > 3e38 && !isinf(v) ? 3e38f : (float)v; break;
    case MLC_F64: ((double *)data)[i] = v; break;
    case MLC_I64:
        ((int64_t *)data)[i] = v == 1e18 ? INT64_MAX : v == 100 ? INT64_MIN : whole;
        break;
    case MLC_BF16:
        ((uint16_t *)data)[i] = mlc_bf16_from(fabs(v) < 3e38 ? (float)v : INFINITY);
        break;
    case MLC_F16:
        ((uint16_t *)data)[i] = mlc_f16_from(fabs(v) < 3e38 ? (float)v : INFINITY);
        break;
    case MLC_I32:
        ((int32_t *)data)[i] = (int32_t)(whole > INT32_MAX   ? INT32_MAX
                                         : whole < INT32_MIN ? INT32_MIN
                                                             : whole);
        break;
    default: ((uint8_t *)data)[i] = (uint8_t)(whole & 255); break;
    }
}

/* Strides of the axes, the last of which is fast; that of axes of size 1 may be anything.       */
static bool g_poison = false;

static mlc_tensor *dense_tensor(mlc_ctx *ctx, mlc_dtype dtype, int rank, const int64_t *shape)
{
    const int extreme = chance(18);
    int64_t   n = 1, stride[MLC_MAX_DIMS];
    for (int i = rank - 1; i >= 0; i--) {
        stride[i] = n;
        n *= shape[i];
    }
    const bool own = chance(25);
    void      *data = memory_of((size_t)n * mlc_dtype_bytes(dtype));
    for (int64_t i = 0; i < n; i++)
        put_value(data, dtype, i, a_value(dtype, extreme));
    if (extreme)
        say("!");
    if (own)
        return mlc_from(ctx, dtype, mlc_dims_of(rank, shape), data);
    for (int i = 0; i < rank; i++)
        if (g_poison && shape[i] == 1 && chance(50))
            stride[i] = ONE_OF(EXTREMES);
    return mlc_wrap(ctx, dtype, mlc_dims_of(rank, shape),
                    chance(50) || g_poison ? stride : NULL, data);
}

/* A view of a tensor in which neighbours are apart.                                            */
static mlc_tensor *view_tensor(mlc_ctx *ctx, mlc_dtype dtype, int rank, const int64_t *shape)
{
    int64_t    sizes[MLC_MAX_DIMS];
    const int  axis = (int)pick(rank);
    memcpy(sizes, shape, sizeof(int64_t) * (size_t)rank);
    if (chance(40) && rank > 1) {
        sizes[axis] = shape[rank - 1];
        sizes[rank - 1] = shape[axis];
        say("t");
        return mlc_transpose(dense_tensor(ctx, dtype, rank, sizes), axis, rank - 1);
    }
    if (shape[axis] == 1 && chance(50)) {
        say("x");
        return mlc_expand(dense_tensor(ctx, dtype, rank, shape), mlc_dims_of(rank, shape));
    }
    sizes[axis] = 2 * shape[axis] + 1;
    say("s");
    return mlc_slice(dense_tensor(ctx, dtype, rank, sizes), axis, 1, sizes[axis], 2);
}

static mlc_tensor *new_tensor(mlc_ctx *ctx, mlc_dtype dtype, int rank, const int64_t *shape)
{
    mlc_tensor *t;
    say("%s[", mlc_dtype_name(dtype));
    for (int i = 0; i < rank; i++)
        say("%s%lld", i ? "," : "", (long long)shape[i]);
    say("]");
    t = rank > 0 && chance(30) ? view_tensor(ctx, dtype, rank, shape)
                               : dense_tensor(ctx, dtype, rank, shape);
    if (t && is_float(dtype) && chance(45)) {
        say("g");
        mlc_set_requires_grad(t, true);
    }
    return t;
}

static mlc_dtype any_dtype(void)
{
    static const mlc_dtype list[] = {MLC_F32, MLC_F32, MLC_F32, MLC_F32, MLC_F32, MLC_F32, MLC_F64,
                                     MLC_F64, MLC_BF16, MLC_F16, MLC_I64, MLC_I32, MLC_BOOL, MLC_I8,
                                     MLC_U8};
    return ONE_OF(list);
}

static int any_shape(int64_t *shape)
{
    static const char *const list[] = {"", "3", "2,3", "2,3", "2,3", "0,3", "3,0", "2,3,4",
                                       "1,2,5,5",
                                       "1", "1,1", "0", "4,1,3", "1,3", "2,2", "3,4", "0,0",
                                       "2,0,3",
                                       "1,0,5,5", "2,3,4,5,2"};
    const mlc_dims d = dims_from(ONE_OF(list));
    memcpy(shape, d.v, sizeof d.v);
    return d.n;
}

/* A tensor that can be no argument: of a scope that ended, dropped, of another context, none.    */
static bool bad_tensor(mlc_tensor **t)
{
    const int64_t kind = pick(100);
    int64_t       shape[MLC_MAX_DIMS];
    const int     rank = any_shape(shape);
    *t = NULL;
    if (kind < 4) {
        say("NULL");
    } else if (kind < 7) {
        say("ended ");
        mlc_scope_begin(g.ctx);
        *t = new_tensor(g.ctx, g.dtype, rank, shape);
        mlc_scope_end(g.ctx);
    } else if (kind < 9) {
        say("dropped ");
        *t = new_tensor(g.ctx, g.dtype, rank, shape);
        mlc_drop(*t);
    } else if (kind < 11) {
        say("other ");
        *t = new_tensor(g.other, g.dtype, rank, shape);
    } else {
        return false;
    }
    return true;
}

/* spec: "f:2,3": f the case's float, g f32, i i64, b bool; "" the case's dtype and shape.        */
static mlc_tensor *plain_tensor(const char *spec)
{
    int64_t   shape[MLC_MAX_DIMS] = {0};
    mlc_dtype dtype = g.dtype;
    int       rank = g.rank;
    memcpy(shape, g.shape, sizeof g.shape);
    if (*spec) {
        const mlc_dims d = dims_from(spec + 2);
        rank = d.n;
        memcpy(shape, d.v, sizeof d.v);
        if (*spec == 'i')
            dtype = MLC_I64;
        else if (*spec == 'b')
            dtype = MLC_BOOL;
        else if (*spec == 'g' || !is_float(dtype))
            dtype = MLC_F32;
    }
    for (int i = 0; g.empty && i < rank; i++)
        if (chance(40))
            shape[i] = 0;
    if (g.empty && chance(10))
        rank = 0;
    if (rank > 0 && chance(9))
        shape[pick(rank)] = chance(50) ? 0 : 1;
    if (chance(5))
        dtype = any_dtype();
    return new_tensor(g.ctx, dtype, rank, shape);
}

static mlc_tensor *one_tensor(const char *spec)
{
    int64_t     shape[MLC_MAX_DIMS];
    mlc_tensor *t;
    if (bad_tensor(&t)) {
        g.none = g.none || t == NULL || t->ctx != g.ctx;
        return t;
    }
    if (g.n_made > 0 && chance(10)) {
        const int i = (int)pick(g.n_made);
        say("alias %d", i);
        t = g.made[i];
        mlc_tensor *turned = t && t->ndim > 1 && chance(30) ? mlc_transpose(t, 0, 1) : NULL;
        return turned ? turned : t;                    /* of a scope that has ended there is none */
    }
    if (chance(*spec ? 12 : 25)) {
        const int rank = any_shape(shape);
        return new_tensor(g.ctx, chance(60) ? g.dtype : any_dtype(), rank, shape);
    }
    t = plain_tensor(spec);
    if (t && is_float(t->dtype) && chance(15) && mlc_ctx_status(g.ctx) == MLC_OK) {
        say("n");
        mlc_tensor *y = mlc_mul_scalar(t, 1.5);        /* it has a node                          */
        t = y ? y : t;
    }
    return t;
}

static mlc_tensor *a_tensor(const char *name, const char *spec)
{
    say(" %s=", name);
    mlc_tensor *t = one_tensor(spec);
    if (t && t->ctx == g.ctx && g.n_made < ROOM)
        g.made[g.n_made++] = t;
    return t;
}

static mlc_tensor **a_tensors(const char *name, const char *spec)
{
    mlc_tensor **list = (mlc_tensor **)zeros_of(ROOM * sizeof(mlc_tensor *));
    if (chance(4)) {
        say(" %s=NULL", name);
        g.none = true;
        return NULL;
    }
    mlc_tensor *rest = a_tensor(name, spec);
    for (int i = 0; i < ROOM; i++)
        list[i] = i < 4 ? a_tensor("", spec) : rest;
    return list;
}

/* ---- callbacks: each may do what it must not ------------------------------------------------- */

static mlc_status any_status(void)
{
    return chance(75) ? MLC_OK : chance(50) ? mlc_raise(g.ctx, MLC_ERR_VALUE, "callback: no")
                                            : (mlc_status)pick(10);
}

static mlc_tensor *any_answer(mlc_tensor *good)
{
    mlc_tensor *t;
    if (chance(85))
        return good;
    return bad_tensor(&t) ? t : plain_tensor("");
}

static void cb_write(void *user, const char *text, size_t bytes)
{
    uint64_t h = 0;
    (void)user;
    for (size_t i = 0; i < bytes; i++)
        h = h * 31 + (uint8_t)text[i];
    g.say->called += h == 42;
}

static mlc_tensor *cb_lambda(void *user, mlc_tensor *x)
{
    (void)user;
    return any_answer(mlc_mul_scalar(x, 2));
}

static mlc_tensor *cb_loss(void *user)
{
    mlc_module *m = (mlc_module *)user;
    mlc_tensor *x = mlc_ones(g.ctx, MLC_F32, mlc_dims2(2, 3));
    return any_answer(m ? mlc_mean_all(mlc_square(mlc_forward(m, x))) : mlc_mean_all(x));
}

static mlc_tensor *cb_grad(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)user;
    return any_answer(n_in > 0 ? mlc_sum_all(mlc_square(in[0])) : NULL);
}

static mlc_status cb_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    (void)ctx; (void)user;
    for (int32_t i = 0; i < n_out; i++)
        out[i] = any_answer(n_in > 0 ? mlc_mul_scalar(in[i % n_in], 2) : NULL);
    return any_status();
}

static bool cb_hook(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)user; (void)m; (void)out; (void)n_out;
    return chance(70);
}

static double cb_score(void *user, mlc_module *net)
{
    (void)user;
    (void)net;
    return any_double(0.5);
}
static double cb_sched(void *user, int64_t t) { (void)user; (void)t; return any_double(0.5); }
static double cb_lr_range(void *user) { (void)user; return any_double(1); }

static bool cb_token(void *user, int64_t step, const int64_t *tokens, int64_t n)
{
    (void)user; (void)step; (void)tokens; (void)n;
    return chance(80);
}

static void cb_event(void *user, const mlc_op_event *e)
{
    mlc_op_arg arg;
    (void)user;
    for (int32_t i = -1; i < 9; i++)
        if (mlc_op_event_arg(e, i, &arg) && arg.name == NULL)
            abort();
}

static mlc_status cb_trial(void *user, mlc_ctx *ctx, const mlc_trial *trial, double *results)
{
    (void)user; (void)trial;
    results[0] = 1;
    return mlc_ctx_status(ctx);
}

static mlc_status op_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user;
    *out = any_answer(n_in > 0 ? mlc_mul_scalar(in[0], 2) : NULL);
    return any_status();
}

static mlc_status op_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                              mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)in; (void)out; (void)need;
    for (int32_t i = 0; i < n_in; i++)
        dx[i] = any_answer(mlc_mul_scalar(dy, 2));
    return any_status();
}

static mlc_tensor *cb_fit_forward(void *user, mlc_module *net, const mlc_batch *b,
                                  mlc_tensor **output)
{
    (void)user;
    *output = any_answer(mlc_forward(net, b->x));
    return any_answer(*output ? mlc_mean_all(*output) : NULL);
}

static int64_t g_count;                /* of the case's own dataset                            */
static int64_t set_count(void *user) { (void)user; return g_count; }
static int64_t set_length(void *user, int64_t i)
{
    (void)user; (void)i;
    return chance(85) ? 3 : any_int(3);
}

static mlc_status set_get(void *user, mlc_sample *s)
{
    (void)user;
    for (int i = 0; i < 12; i++)
        ((uint8_t *)s->dst[0])[i] = (uint8_t)i;
    if (chance(5))
        s->len[0] = any_int(1);
    return chance(95) ? MLC_OK : MLC_ERR_VALUE;
}

static mlc_status map_run(void *user, mlc_sample *s, void *const *in, const int64_t *in_len)
{
    (void)user; (void)in_len;
    memcpy(s->dst[0], in[0], 4);
    return chance(95) ? MLC_OK : MLC_ERR_VALUE;
}

/* What could not be made is said: a call may refuse it without a context to say so in.           */
static void *made(void *p)
{
    g.none = g.none || p == NULL;
    if (p == NULL)
        say(" NULL");
    return p;
}

/* ---- objects --------------------------------------------------------------------------------- */

static mlc_module *new_net(mlc_ctx *ctx)
{
    mlc_module *m = mlc_nn_sequential(ctx);
    mlc_module_add(m, mlc_nn_linear(ctx, 3, 4));
    mlc_module_add(m, mlc_nn_relu(ctx));
    mlc_module_add(m, mlc_nn_linear(ctx, 4, 2));
    return m;
}

static mlc_tensor *plain_f32(mlc_dims d) { return mlc_uniform(g.ctx, MLC_F32, d, -1, 1); }
static mlc_tensor *plain_labels(int64_t n)
{
    return mlc_randint(g.ctx, MLC_I64, mlc_dims1(n), 0, 2);
}

enum { M_NET, M_LINEAR, M_CONV, M_BN, M_RNN, M_MHA, M_ENC, M_DEC, M_GPT, M_BERT, M_EMB, M_SK,
       M_SCALE, M_BI, M_RESIDUAL, M_DROPOUT, M_EMPTY, M_PRELU, M_SKCONV, M_RECOMPUTE, M_CNN,
       M_COUNT };
static const char *const MODULES[] = {"net", "linear", "conv", "bn", "rnn", "mha", "enc", "dec",
                                      "gpt",
                                      "bert", "emb", "sk", "scale", "bi", "residual", "dropout",
                                      "empty", "prelu", "skconv", "recompute", "cnn"};

static mlc_module *new_gpt(mlc_ctx *c)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(7, 8, 1, 4, 2);
    if (chance(50))
        d = mlc_nn_gpt_desc_llama(7, 8, 1, 4, 2);
    return mlc_nn_gpt(c, &d);
}

static mlc_module *new_module(mlc_ctx *c, int kind)
{
    mlc_nn_rnn_desc         rnn = mlc_nn_rnn_desc_make((mlc_rnn_kind)pick(4), 3, 3);
    mlc_nn_transformer_desc t = mlc_nn_transformer_desc_make(4, 2);
    mlc_nn_bert_desc        b = mlc_nn_bert_desc_make(7, 8, 1, 4, 2);
    mlc_nn_skconv_desc      sk = mlc_nn_skconv_desc_make(2, 2, 3, 3, 1, 1);
    mlc_module             *m;
    rnn.layers = 1 + pick(2);
    rnn.bidirectional = chance(30);
    switch (kind) {
    case M_LINEAR: return mlc_nn_linear(c, 3, 3);
    case M_CONV: return mlc_nn_conv2d(c, 2, 3, 3, 1, 1);
    case M_BN: return mlc_nn_batch_norm(c, 3);
    case M_RNN: return mlc_nn_rnn_ex(c, &rnn);
    case M_MHA: return mlc_nn_multihead_attention(c, 4, 2);
    case M_ENC: return mlc_nn_transformer_encoder(c, &t, 1);
    case M_DEC: return mlc_nn_transformer_decoder(c, &t, 1);
    case M_GPT: return new_gpt(c);
    case M_BERT: return mlc_nn_bert(c, &b);
    case M_EMB: return mlc_nn_embedding(c, 3, 4);
    case M_SK: return mlc_nn_sklinear(c, 3, 3, 1, 1);
    case M_SCALE: return mlc_nn_standardize(c, 3);
    case M_BI: return mlc_nn_bidirectional(c, mlc_nn_rnn(c, 3, 3), mlc_nn_gru(c, 3, 3));
    case M_RESIDUAL: return mlc_nn_residual(c, mlc_nn_linear(c, 3, 3), NULL, true);
    case M_DROPOUT: return mlc_nn_dropout(c, 0.5);
    case M_EMPTY: return mlc_nn_sequential(c);
    case M_PRELU: return mlc_nn_prelu(c, 3);
    case M_SKCONV: return mlc_nn_skconv(c, &sk);
    case M_RECOMPUTE: return mlc_nn_recompute(c, mlc_nn_linear(c, 3, 3));
    case M_CNN:
        m = mlc_nn_sequential(c);
        mlc_module_add(m, mlc_nn_conv2d(c, 2, 2, 3, 1, 1));
        mlc_module_add(m, mlc_nn_batch_norm(c, 2));
        mlc_module_add(m, mlc_nn_relu(c));
        return m;
    default: return new_net(c);
    }
}

static mlc_module *a_module(const char *name, const char *spec)
{
    int kind = (int)pick(M_COUNT);
    for (int i = 0; *spec && i < M_COUNT; i++)
        if (strcmp(spec, MODULES[i]) == 0 && chance(80))
            kind = i;
    if (chance(5)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    if (chance(3)) {                   /* no child: the error is cleared, and it is used          */
        mlc_module *m = mlc_nn_sequential(g.ctx);
        mlc_module_add(m, mlc_nn_linear(g.ctx, 3, -1));
        mlc_error_clear(g.ctx);
        say(" %s=failed", name);
        g.none = true;
        return m;
    }
    const bool other = chance(3);
    say(" %s=%s%s", name, other ? "other " : "", MODULES[kind]);
    g.none = g.none || other;
    mlc_module *m = new_module(other ? g.other : g.ctx, kind);
    if (m && chance(30))
        mlc_module_build(m);
    if (m && chance(10))
        mlc_module_train(m, false);
    if (m && chance(5)) {
        say(" to bf16");
        mlc_module_to(m, MLC_BF16);
    }
    return m;
}

static mlc_module **a_modules(const char *name, const char *spec)
{
    mlc_module **list = (mlc_module **)zeros_of(ROOM * sizeof(mlc_module *));
    for (int i = 0; i < ROOM; i++)
        list[i] = i < 4 ? a_module(i ? "" : name, spec) : mlc_nn_relu(g.ctx);
    return list;
}

static void some_gradients(mlc_module *m)
{
    mlc_tensor *y = mlc_forward(m, plain_f32(mlc_dims2(2, 3)));
    if (y)
        mlc_backward(mlc_mean_all(mlc_square(y)));
    mlc_error_clear(g.ctx);
}

typedef mlc_optim *(*optim_fn)(mlc_module *m, double lr);
static const optim_fn OPTIMS[] = {
    mlc_sgd, mlc_adam, mlc_adamw, mlc_lamb, mlc_amsgrad, mlc_radam, mlc_adamax,
    mlc_nadam, mlc_rmsprop,
    mlc_adagrad, mlc_adadelta, mlc_rprop, mlc_lars, mlc_lion, mlc_sophia, mlc_schedule_free_sgd,
    mlc_schedule_free_adamw, mlc_adafactor, mlc_muon, mlc_lbfgs,
};
static mlc_module *g_net;              /* of the last optimizer                                */

static mlc_optim *a_optim(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    const int kind = (int)pick(LEN(OPTIMS));
    say(" %s=optim %d", name, kind);
    g_net = new_net(g.ctx);
    mlc_optim *o = OPTIMS[kind](g_net, chance(90) ? 0.1 : any_double(0.1));
    if (o && chance(70)) {
        some_gradients(g_net);
        say(" grads");
        if (chance(40)) {
            mlc_optim_step(o);
            say(" step");
            if (chance(50))
                some_gradients(g_net);
        }
    }
    return (mlc_optim *)made(o);
}

static mlc_dataset *new_dataset(void)
{
    mlc_tensor *in[2] = {plain_f32(mlc_dims2(6, 3)), plain_labels(6)};
    mlc_tensor *image[2] = {plain_f32(mlc_dims4(6, 1, 4, 4)), plain_labels(6)};
    mlc_dataset user = {NULL, set_count, 1, {{MLC_F32, {{3}, 1}, false}}, 0, set_get, NULL, NULL};
    switch (pick(7)) {
    case 0: return mlc_dataset_tensors(g.ctx, image, 2);
    case 1: return mlc_dataset_create(g.ctx, &user);
    case 2:
        user.field[0] = (mlc_field){MLC_I64, {{0}, 0}, true};
        user.field[0].dims.n = 1;
        user.field[0].dims.v[0] = 3;
        user.length = set_length;
        return mlc_dataset_create(g.ctx, &user);
    case 3: return mlc_dataset_tensors(g.ctx, in, 1);
    default: return mlc_dataset_tensors(g.ctx, in, 2);
    }
}

static mlc_dataset *a_dataset(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    say(" %s=dataset", name);
    return (mlc_dataset *)made(new_dataset());
}

static mlc_dataset **a_datasets(const char *name)
{
    mlc_dataset **list = (mlc_dataset **)zeros_of(ROOM * sizeof(mlc_dataset *));
    mlc_dataset  *rest = new_dataset();
    for (int i = 0; i < ROOM; i++)
        list[i] = i < 3 ? a_dataset(i ? "" : name) : rest;
    return list;
}

static mlc_loader *a_loader(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    if (chance(40)) {
        mlc_loader_from_desc d = mlc_loader_from_desc_make(1 + pick(4));
        d.workers = chance(20) ? 1 : 0;
        say(" %s=loader from", name);
        return (mlc_loader *)made(mlc_loader_from(g.ctx, new_dataset(), &d));
    }
    say(" %s=loader", name);
    return (mlc_loader *)made(mlc_loader_shuffled(g.ctx, plain_f32(mlc_dims2(6, 3)),
                                                  plain_labels(6),
                                                  1 + pick(4)));
}

static mlc_metric *new_metric(void)
{
    mlc_ctx *c = g.ctx;
    switch (pick(15)) {
    case 0: return mlc_metric_accuracy(c);
    case 1: return mlc_metric_topk(c, 1 + pick(2));
    case 2: return mlc_metric_balanced_accuracy(c, 3);
    case 3: return mlc_metric_precision(c, 3, (mlc_averaging)pick(3));
    case 4: return mlc_metric_recall(c, 2, MLC_AVERAGING_BINARY);
    case 5: return mlc_metric_f(c, 3, 1, MLC_AVERAGING_MACRO);
    case 6: return mlc_metric_auc(c, 3);
    case 7: return mlc_metric_average_precision(c, 2);
    case 8: return mlc_metric_log_loss(c);
    case 9: return mlc_metric_perplexity(c);
    case 10: return mlc_metric_mse(c);
    case 11: return mlc_metric_r2(c);
    case 12: return mlc_metric_mae(c);
    case 13: return mlc_metric_mean(c);
    default: return mlc_metric_confusion(c, 3);
    }
}

static mlc_metric *a_metric(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    mlc_metric *m = new_metric();
    say(" %s=metric", name);
    if (chance(60))
        mlc_metric_update(m, plain_f32(mlc_dims2(4, 3)),
                          mlc_randint(g.ctx, MLC_I64, mlc_dims1(4), 0, 3), NULL);
    mlc_error_clear(g.ctx);
    return m;
}

static mlc_tracker *a_tracker(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    mlc_tracker *t = mlc_tracker_create(g.ctx);
    say(" %s=tracker", name);
    for (int i = 0; chance(70) && i < 4; i++) {
        mlc_tracker_feed(t, "loss", chance(80) ? 1.0 / (i + 1) : any_double(1));
        mlc_tracker_step(t, i);
    }
    return t;
}

static mlc_tokenizer *a_tokenizer(const char *name)
{
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    say(" %s=tokenizer", name);
    return (mlc_tokenizer *)made(
        chance(50) ? mlc_tokenizer_bytes(g.ctx, chance(50) ? &d : NULL)
                   : mlc_tokenizer_wordpiece(g.ctx, "vocab.txt", chance(50) ? &d : NULL));
}

static mlc_table *a_table(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    say(" %s=table", name);
    return (mlc_table *)made(mlc_table_load(g.ctx, chance(70) ? "in.csv" : "one.csv", NULL));
}

static mlc_cache *a_cache(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    mlc_module    *m = new_gpt(g.ctx);
    mlc_cache_desc d = mlc_cache_desc_make(1 + pick(2), 8);
    say(" %s=cache of %lld", name, (long long)d.batch);
    g_net = m;
    mlc_cache *c = mlc_cache_create(m, &d);
    if (c && chance(50))
        mlc_forward_cached(m, mlc_randint(g.ctx, MLC_I64, mlc_dims2(d.batch, 2), 0, 7), c);
    return (mlc_cache *)made(c);
}

static mlc_average *a_average(const char *name)
{
    mlc_optim *o = a_optim(name);
    return (mlc_average *)made(mlc_ema(o, 0.5));
}

static mlc_callback *a_callback(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    say(" %s=callback", name);
    switch (pick(4)) {
    case 0: return mlc_on_validate(g.ctx, 1);
    case 1: return mlc_on_nan(g.ctx, 1);
    case 2: return mlc_on_progress(g.ctx, cb_write, NULL);
    default: return mlc_on_early_stop(g.ctx, NULL);
    }
}

static mlc_safetensors *a_file(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    say(" %s=file", name);
    return (mlc_safetensors *)made(mlc_safetensors_open(g.ctx, "in.safetensors"));
}

static mlc_fit_state *a_fit(const char *name)
{
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_module  *m = new_net(g.ctx);
    d.epochs = 1 + pick(2);
    if (chance(50))
        d.validation = mlc_loader_shuffled(g.ctx, plain_f32(mlc_dims2(6, 3)), plain_labels(6), 3);
    say(" %s=fit", name);
    mlc_fit_state *s = mlc_fit_begin(m, mlc_adam(m, 0.1), mlc_loader_shuffled(
        g.ctx, plain_f32(mlc_dims2(6, 3)), plain_labels(6), 2), &d);
    for (int64_t n = pick(4); s && n > 0; n--)
        mlc_fit_step(s);
    return (mlc_fit_state *)made(s);
}

static mlc_sweep *a_sweep(const char *name)
{
    const double         values[2] = {1, 2};
    const mlc_sweep_axis axes[1] = {{"lr", values, 2}};
    const char *const    results[1] = {"loss"};
    mlc_sweep_desc       d = mlc_sweep_desc_make(axes, 1, results, 1);
    mlc_sweep           *s = NULL;
    if (chance(6)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    say(" %s=sweep", name);
    d.workers = 1;
    mlc_sweep_run(g.ctx, &d, cb_trial, NULL, &s);
    return s;
}

static mlc_run_saver *a_saver(const char *name)
{
    say(" %s=saver", name);
    return (mlc_run_saver *)made(chance(6) ? NULL : mlc_run_saver_create(g.ctx));
}

static mlc_tensorboard *a_board(const char *name)
{
    say(" %s=board", name);
    return (mlc_tensorboard *)made(chance(6) ? NULL : mlc_tensorboard_open(g.ctx, "boards", NULL));
}

static mlc_profile *a_profile(const char *name)
{
    say(" %s=profile", name);
    mlc_profile *p = (mlc_profile *)made(chance(6) ? NULL : mlc_profile_begin(g.ctx, NULL));
    if (p) {
        mlc_range_begin(g.ctx, "a");
        mlc_ones(g.ctx, MLC_F32, mlc_dims1(3));
        mlc_range_end(g.ctx);
        if (!chance(5)) mlc_profile_end(p);
    }
    return p;
}

static mlc_timeline *a_timeline(const char *name)
{
    say(" %s=timeline", name);
    if (chance(6))
        return (made(NULL), NULL);
    mlc_timeline *t = mlc_timeline_begin(g.ctx, 1 + pick(100));
    for (int64_t n = pick(5); n > 0; n--)
        mlc_exp(plain_f32(mlc_dims1(3)));
    if (chance(50))
        mlc_timeline_end(t);
    return t;
}

static mlc_plan *a_plan(const char *name)
{
    say(" %s=plan", name);
    if (chance(6))
        return (made(NULL), NULL);
    mlc_tensor *x = plain_f32(mlc_dims2(1 + pick(3), 4));
    mlc_plan   *p = mlc_plan_capture(mlc_nn_linear(g.ctx, 4, 3), &x, 1, NULL);
    if (chance(50))
        mlc_plan_run(p, &x, 1, NULL, 0);
    return p;
}

static mlc_calibration *a_calibration(const char *name)
{
    say(" %s=calibration", name);
    if (chance(6))
        return (made(NULL), NULL);
    mlc_module      *net = mlc_nn_linear(g.ctx, 4, 3);
    mlc_calibration *c = mlc_calibrate_begin(net, NULL);
    mlc_no_grad_begin(g.ctx);
    if (chance(80))
        mlc_forward(net, plain_f32(mlc_dims2(1 + pick(3), 4)));
    mlc_no_grad_end(g.ctx);
    if (chance(50))
        mlc_calibrate_end(c);
    return c;
}

static mlc_distillation *a_distillation(const char *name)
{
    say(" %s=distillation", name);
    if (chance(6))
        return (made(NULL), NULL);
    mlc_module *student = mlc_nn_linear(g.ctx, 4, 3);
    return (mlc_distillation *)made(mlc_distillation_create(student, mlc_nn_linear(g.ctx, 4, 3),
                                                            NULL));
}

static mlc_ctx *a_ctx(const char *name)
{
    if (chance(3)) {
        say(" %s=NULL", name);
        return (made(NULL), NULL);
    }
    return g.ctx;
}

/* Arrays of numbers, ROOM long.                                                                 */
static int64_t *an_i64_array(const char *name)
{
    int64_t *list = (int64_t *)memory_of(ROOM * sizeof(int64_t));
    if (chance(10)) {
        say(" %s=NULL", name);
        return NULL;
    }
    say(" %s={", name);
    const bool tame = chance(60);
    for (int i = 0; i < ROOM; i++) {
        list[i] = tame ? pick(3) : any_int(NO_HINT);
        if (i < 4)
            say("%lld,", (long long)list[i]);
    }
    say("..}");
    return list;
}

static double *a_double_array(const char *name)
{
    double *list = (double *)memory_of(ROOM * sizeof(double));
    if (chance(10)) {
        say(" %s=NULL", name);
        return NULL;
    }
    say(" %s={", name);
    const bool tame = chance(60);
    for (int i = 0; i < ROOM; i++) {
        list[i] = tame ? (double)(1 + pick(4)) / 8 : any_double(NAN);
        if (i < 4)
            say("%g,", list[i]);
    }
    say("..}");
    return list;
}

static void *a_room(const char *name, size_t bytes)
{
    if (chance(10)) {
        say(" %s=NULL", name);
        return NULL;
    }
    return zeros_of(bytes);
}

/* ---- what must hold after a call ------------------------------------------------------------- */

static void wrong(const char *what)
{
    g.say->wrong++;
    fprintf(g.out, "WRONG %s case %lld: %s:%s\n", g.name, (long long)g.say->number, what,
            g.say->text);
    if (g.verbose || mlc_ctx_status(g.ctx) != MLC_OK)
        fprintf(g.out, "      %s: %s\n", mlc_status_name(mlc_ctx_status(g.ctx)), mlc_error(g.ctx));
}

static void call_begins(void)
{
    mlc_error_clear(g.ctx);
    mlc_error_clear(g.other);
    g.stands = false;
    if (chance(2)) {
        g.stands = true;
        mlc_raise(g.ctx, MLC_ERR_VALUE, "earlier: an error that stands");
        say(" (an error stands)");
    }
    g.say->called++;
}

/* Names of functions without mlc_, which generate.py writes, and those that messages have for what
 * several functions share.                                                                      */
extern const char *const SHORT_NAMES[];
static const char *const SHARED_NAMES[] = {
    "callback", "sketch", "tokenizer", "cache", "average", "tracker", "plot", "LayerNorm",
    "RMSNorm", "quant_conv", "name", "build",
    "GroupNorm", "InstanceNorm", "SpatialDropout", "StochasticDepth", "BatchNorm", "standardize",
    "min_max", "embedding_bag, first offset",
    "embedding_bag, lengths of bags",
};

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(text, word, n) == 0;
}

/* Does the text begin with the name of a function, or of a file? Before it the path of a module may
 * be said, "in 0 (Linear): ".                                                                    */
static bool names_function(const char *text, const char *names)
{
    if (strncmp(text, "in ", 3) == 0 && strstr(text, ": ") != NULL)
        text = strstr(text, ": ") + 2;
    /* Memory that ran out says how much; a file that the system refused is said.                 */
    if (strncmp(text, "out of memory for ", 18) == 0 || *text == '\'' ||
        (mlc_ctx_status(g.ctx) == MLC_ERR_IO && (strchr(text, '\'') || strstr(text, "nnnn"))))
        return true;
    size_t n = strcspn(text, ":");
    if (n > strcspn(text, "'") && n > 1)  /* "load 'path': " */
        n = strcspn(text, "'") - 1;
    for (int i = 0; SHORT_NAMES[i] != NULL; i++)
        if (is_word(text, n, SHORT_NAMES[i]))
            return true;
    for (int i = 0; i < LEN(SHARED_NAMES); i++)
        if (is_word(text, n, SHARED_NAMES[i]))
            return true;
    for (; *names; names += strcspn(names, " "), names += *names == ' ')
        if (is_word(text, n, "") || (strcspn(names, " ") == n && memcmp(names, text, n) == 0))
            return true;
    return false;
}

static void check_text(const char *names)
{
    const char *text = mlc_error(g.ctx);
    if (g.stands) {
        if (strcmp(text, "earlier: an error that stands") != 0)
            wrong("the first error is lost");
        return;
    }
    if (mlc_ctx_status(g.ctx) == MLC_OK)
        return;
    g.say->refused++;
    if (text[0] == 0)
        wrong("an error without a text");
    if (strchr(text, '\n') != NULL && strstr(g.say->text, "a?b") == NULL)
        wrong("a text of several lines");
    if (mlc_ctx_status(g.ctx) == MLC_ERR_INTERNAL)
        wrong("an internal error");
    if (!names_function(text, names))
        wrong("the text does not name the function");
}

/* made: something was returned.                                                                 */
static void check_made(const char *names, bool made, bool may_be_none)
{
    const bool ok = mlc_ctx_status(g.ctx) == MLC_OK;
    check_text(names);
    if (!made && ok && !may_be_none && !g.none)
        wrong("nothing, and no error");
    if (made && !ok && !g.stands)
        wrong("a result, and an error");
}

static void check_status(const char *names, mlc_status st)
{
    const mlc_status is = mlc_ctx_status(g.ctx);
    check_text(names);
    if (st == MLC_OK && is != MLC_OK && !g.stands)
        wrong("MLC_OK, and an error");
    if (st != MLC_OK && is == MLC_OK && !g.none)
        wrong("a status, and no error");
}

/* The result is used, and its gradient flows.                                                   */
static void use_tensor(mlc_tensor *t)
{
    if (t == NULL)
        return;
    const int64_t n = mlc_numel(t);
    if (n > 1 << 16)
        return;
    const size_t bytes = (size_t)n * mlc_dtype_bytes(t->dtype);
    if (t->ctx == g.ctx) {
        g.calling = false;
        void *p = memory_of(bytes);
        mlc_read(t, p, bytes);
    }
    if (is_float(t->dtype) && mlc_requires_grad(t) && chance(75)) {
        say(" -> backward");
        mlc_backward_from(t, NULL);
    }
    mlc_error_clear(g.ctx);
}

static void use_module(mlc_module *m)
{
    static const char *const specs[] = {"f:2,3", "f:2,4",   "f:1,2,5,5",
                                        "i:2,3", "f:2,3,4", "f:2,4,3"};
    if (m == NULL)
        return;
    mlc_error_clear(g.ctx);
    if (mlc_module_numel(m, false) > 1 << 18)
        return;
    for (int i = 0; i < 2; i++) {
        mlc_tensor *x = plain_tensor(ONE_OF(specs));
        say(" -> forward");
        use_tensor(mlc_forward(m, x));
        mlc_error_clear(g.ctx);
    }
}

static void use_optim(mlc_optim *o)
{
    if (o == NULL)
        return;
    say(" -> step");
    mlc_error_clear(g.ctx);
    mlc_optim_step(o);
    mlc_error_clear(g.ctx);
    mlc_optim_step(o);
    mlc_error_clear(g.ctx);
}

static void use_dataset(mlc_dataset *d)
{
    mlc_tensor *fields[MLC_MAX_FIELDS] = {NULL};
    if (d == NULL)
        return;
    mlc_error_clear(g.ctx);
    say(" -> get");
    mlc_dataset_count(d);
    mlc_dataset_get(g.ctx, d, pick(3), fields);
    mlc_error_clear(g.ctx);
    mlc_dataset_get(g.ctx, d, any_int(0), fields);
    mlc_error_clear(g.ctx);
}

static void use_loader(mlc_loader *l)
{
    mlc_batch b;
    if (l == NULL)
        return;
    mlc_error_clear(g.ctx);
    say(" -> next");
    mlc_loader_batches(l);
    for (int i = 0; i < 4 && mlc_loader_next(l, &b); i++)
        mlc_error_clear(g.ctx);
    mlc_error_clear(g.ctx);
}

static void use_metric(mlc_metric *m)
{
    if (m == NULL)
        return;
    mlc_error_clear(g.ctx);
    say(" -> update");
    mlc_metric_update(m, plain_f32(mlc_dims2(4, 3)), plain_labels(4), NULL);
    mlc_metric_value(m);
    mlc_error_clear(g.ctx);
}

static void use_callback(mlc_callback *c)
{
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    if (c == NULL)
        return;
    mlc_error_clear(g.ctx);
    say(" -> fit");
    mlc_module *m = new_net(g.ctx);
    d.epochs = 2;
    d.callbacks = &c;
    d.n_callbacks = 1;
    mlc_fit(m, mlc_sgd(m, 0.1),
            mlc_loader_shuffled(g.ctx, plain_f32(mlc_dims2(6, 3)), plain_labels(6), 2),
            &d, NULL);
    mlc_error_clear(g.ctx);
}

static void use_sched(mlc_sched s)
{
    say(" -> at");
    for (int i = 0; i < 3; i++)
        mlc_sched_at(&s, any_int(i));
    mlc_optim *o = mlc_sgd(new_net(g.ctx), 0.1);
    mlc_optim_schedule(o, MLC_KNOB_LR, &s);
    mlc_error_clear(g.ctx);
}

/* ---- the driver ------------------------------------------------------------------------------ */

typedef struct function {
    const char *name;
    void      (*run)(void);
} function;

static void run_case(const function *f, int64_t number)
{
    uint64_t hash = 1469598103934665603u;
    for (const char *c = f->name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    g.name = f->name;
    g.random = hash + (uint64_t)number * 0x632be59bd9b4e019u;
    g.say->text[0] = 0;
    g.say->number = number;
    g.blocks = 0;
    g.n_made = g.n_memory = 0;
    g.none = false;
    g.depth = 0;
    g_net = NULL;
    g_count = chance(70) ? 5 : any_int(5);
    unlink("out");
    unlink("\xff\xfe");
    g.ctx = new_ctx();
    g.depth = 1;
    g.other = new_ctx();
    g.dtype = any_dtype();
    int64_t shape[MLC_MAX_DIMS] = {0};
    g.empty = chance(20);
    do
        g.rank = any_shape(shape);
    while (g.rank > 4);
    memcpy(g.shape, shape, sizeof g.shape);
    mlc_scope_begin(g.ctx);
    mlc_zeros(g.ctx, MLC_F32, mlc_dims0());        /* a scope that ends hands nothing on to this  */
    f->run();
    mlc_error_clear(g.ctx);
    mlc_scope_end(g.ctx);
    mlc_ctx_free(g.ctx);
    mlc_ctx_free(g.other);
    if (g.blocks != 0) {
        fprintf(g.out, "WRONG %s case %lld: %lld blocks leaked:%s\n", f->name, (long long)number,
               (long long)g.blocks, g.say->text);
        g.say->wrong++;
    }
    for (int i = 0; i < g.n_memory; i++)
        free(g.memory[i]);
}

static void seconds_of(double cpu, unsigned wall)
{
    const struct itimerval t = {{0, 0}, {(time_t)cpu, 0}};
    setitimer(ITIMER_PROF, &t, NULL);
    alarm(wall);
}

static void run_cases(const function *f, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        seconds_of(10, 60);
        run_case(f, i);
    }
    fflush(g.out);
    _exit(0);
}

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(text, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static void write_files(void)
{
    static const char csv[] = "a,b,name,y\n1,2.5,red,0\n2,,blue,1\n3,0.5,red,0\n";
    static const char one[] = "a\n";
    static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n##s\na\n";
    static const char pgm[] = "P5\n2 2\n255\nabcd";
    mlc_ctx *c = mlc_ctx_create(NULL);
    mlc_tensor *x = mlc_uniform(c, MLC_F32, mlc_dims2(6, 3), -1, 1);
    mlc_tensor *u = mlc_cast(mlc_randint(c, MLC_I64, mlc_dims3(4, 3, 3), 0, 9), MLC_U8);
    const mlc_named list[2] = {{"x", x}, {"weight", u}};
    mkdir("folder", 0777);
    mkdir("folder/red", 0777);
    mkdir("folder/blue", 0777);
    write_file("folder/red/1.pgm", pgm, sizeof pgm - 1);
    write_file("folder/blue/1.pgm", pgm, sizeof pgm - 1);
    write_file("empty", "", 0);
    write_file("noise", "\x93NUMPY\x01\xff\xff\xff\xff{{{", 14);
    write_file("in.csv", csv, sizeof csv - 1);
    write_file("one.csv", one, sizeof one - 1);
    write_file("vocab.txt", vocab, sizeof vocab - 1);
    write_file("tokens.bin", "\1\0\2\0\3\0\1\0\2\0\3\0\1\0\2\0\3\0\1\0", 20);
    mlc_module *m = new_net(c);
    mlc_optim  *o = mlc_adam(m, 0.1);
    const mlc_run run = {m, o, NULL, NULL, NULL, NULL, 0, NULL};
    if (mlc_npy_save(x, "in.npy") || mlc_npz_save(c, "in.npz", list, 2) ||
        mlc_idx_save(u, "in.idx") ||
        mlc_safetensors_save(c, "in.safetensors", list, 2, NULL) ||
        mlc_save(m, "net.safetensors") ||
        mlc_optim_save(o, "optim.safetensors") || mlc_run_save(c, "in.run", &run)) {
        fprintf(stderr, "%s\n", mlc_error(c));
        exit(1);
    }
    mlc_ctx_free(c);
}

/* The lines of a sanitizer's report that say what and where.                                    */
static void print_report(const char *path)
{
    FILE *f = fopen(path, "r");
    char  line[400];
    int   frames = 0;
    while (f && fgets(line, sizeof line, f)) {
        const bool frame = strstr(line, "    #") != NULL;
        if (strstr(line, "runtime error") || strstr(line, "ERROR: ") || strstr(line, "is located"))
            fprintf(g.out, "      %s", line);
        else if (frame && frames++ < 12)
            fprintf(g.out, "      %s", line);
    }
    if (f)
        fclose(f);
}

/* Runs a function's cases, each crash in a child of its own; returns how many failed.           */
static int64_t run_function(const function *f, int64_t from, int64_t to)
{
    int64_t bad = 0;
    g.say->wrong = 0;
    while (from < to && bad < 8) {
        int status = 0;
        fflush(g.out);
        const pid_t pid = fork();
        if (pid == 0) {
            const int log = open("log", O_WRONLY | O_CREAT | O_TRUNC, 0666);
            if (!g.verbose)
                dup2(log, 2);
            dup2(open("/dev/null", O_WRONLY), 1);
            run_cases(f, from, to);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            exit(1);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
        bad++;
        fprintf(g.out, "CRASH %s case %lld (%s %d):%s\n", f->name, (long long)g.say->number,
               WIFSIGNALED(status) ? "signal" : "exit",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), g.say->text);
        print_report("log");
        from = g.say->number + 1;
    }
    return bad + g.say->wrong;
}

static int drive(const function *list, int n, int left_out, int argc, char **argv)
{
    char        folder[] = "/tmp/mlc_abuse.XXXXXX";
    const char *only = NULL;
    int64_t     cases = 600, at = -1, bad = 0, failed = 0;
    int         part = 0, parts = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--cases") == 0) cases = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--only") == 0) only = argv[i + 1];
        if (strcmp(argv[i], "--case") == 0) at = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--part") == 0 && sscanf(argv[i + 1], "%d/%d", &part, &parts) != 2)
            return 2;
        if (strcmp(argv[i], "--poison") == 0) g_poison = atoi(argv[i + 1]) != 0;
    }
    g.say = (report *)mmap(NULL, sizeof *g.say, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0);
    memset(g_long, 'n', sizeof g_long - 1);
    g.out = fdopen(dup(1), "w");
    if (g.out == NULL || mkdtemp(folder) == NULL || chdir(folder) != 0)
        return 1;
    write_files();
    g.verbose = at >= 0;
    for (int i = 0; i < n; i++) {
        if ((only && strcmp(list[i].name, only) != 0) || i % parts != part)
            continue;
        bad = run_function(&list[i], at >= 0 ? at : 0, at >= 0 ? at + 1 : cases);
        failed += bad > 0;
        fflush(g.out);
    }
    fprintf(g.out, "%d of %d functions, %lld calls, %lld refusals\n", n, n + left_out,
           (long long)g.say->called, (long long)g.say->refused);
    fprintf(g.out, "%d passed, %lld failed\n", n - (int)failed, (long long)failed);
    fflush(g.out);
    const char *const rm[] = {"rm", "-rf", folder, NULL};
    const pid_t       pid = fork();
    if (pid == 0)
        execvp("rm", (char *const *)(uintptr_t)rm);
    waitpid(pid, NULL, 0);
    return failed > 0;
}

#endif
