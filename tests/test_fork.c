/* test_fork.c -- tests of IMPL.THREADS and of what has threads: a forked child, which has none of
 * them, goes on, or is told so; it never waits for them */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#ifndef MLC_NO_THREADS

#if defined(__SANITIZE_THREAD__)       /* ends a child that starts threads                     */
#  define TEST_FORKS 0
#elif defined(__has_feature)
#  if __has_feature(thread_sanitizer)
#    define TEST_FORKS 0
#  endif
#endif
#ifndef TEST_FORKS
#  define TEST_FORKS 1
#endif
/* The allocator of the address sanitizer may be locked by a thread that writes, and stays so in the
 * child: there a thread that allocates would wait for ever. */
#if defined(__SANITIZE_ADDRESS__)
#  define SANITIZED 1
#else
#  define SANITIZED 0
#endif
#define ONLY_WITH_FORKS() do { ONLY_ON_HOST(); if (!TEST_FORKS) return; } while (0)

static mlc_ctx *threads_ctx(int32_t threads)
{
    mlc_ctx_desc d = test_desc();
    d.threads = threads;
    d.seed = 3;
    return mlc_ctx_create(&d);
}

/* ---- in a child ------------------------------------------------------------------------------ */

enum { CHILD_SECONDS = 120 };          /* after which a child that hangs is killed             */

/* What the child returns, which makes no check; or -1: it hung, or crashed. */
static int in_child(int (*run)(void *), void *arg)
{
    int         status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(run(arg));
    }
    if (!CHECK(child > 0) || !CHECK(waitpid(child, &status, 0) == child)) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define IN_CHILD(run, arg) CHECK_EQ(in_child(run, arg), 0)
/* In a child: the line at which something did not hold, of which exit keeps 7 bits. */
#define HOLDS(cond) do { if (!(cond)) return __LINE__ % 127 + 1; } while (0)

/* ---- contexts and networks ------------------------------------------------------------------- */

enum { GRADS = 311 * 300 };

static float g_before[GRADS], g_after[GRADS];

/* The gradient of a layer's weight, by several threads. */
static bool run_layer(mlc_ctx *ctx, float out[GRADS])
{
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(257, 300), 9, -1, 1);
    mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(311, 300), 10, -1, 1);
    mlc_set_requires_grad(w, true);
    mlc_backward(mlc_mean(mlc_relu(mlc_linear(x, w, NULL)), mlc_dims0(), false));
    return mlc_read(mlc_grad(w), out, GRADS * sizeof(float)) == MLC_OK;
}

static int child_trains(void *user)
{
    mlc_ctx *ctx = (mlc_ctx *)user;
    HOLDS(run_layer(ctx, g_after) && memcmp(g_before, g_after, sizeof g_after) == 0);
    HOLDS(mlc_ctx_threads(ctx) == 3);
    HOLDS(mlc_ctx_set_threads(ctx, 2) == MLC_OK);
    HOLDS(run_layer(ctx, g_after) && memcmp(g_before, g_after, sizeof g_after) == 0);
    HOLDS(mlc_ctx_status(ctx) == MLC_OK);
    mlc_ctx_free(ctx);
    return 0;
}

static int child_frees(void *ctx)
{
    mlc_ctx_free((mlc_ctx *)ctx);
    return 0;
}

static int child_forks(void *ctx)
{
    int         status = 0;
    const pid_t child = fork();
    if (child == 0) _exit(child_trains(ctx));
    HOLDS(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}

TEST(fork, a_child_goes_on_with_a_context_and_has_the_same_bits)
{
    ONLY_WITH_FORKS();
    mlc_ctx *ctx = test_own(threads_ctx(3));
    CHECK(run_layer(ctx, g_before));
    CHECK(fabsf(g_before[0]) > 1e-9f);
    IN_CHILD(child_trains, ctx);
    IN_CHILD(child_frees, ctx);
    IN_CHILD(child_forks, ctx);
    CHECK(run_layer(ctx, g_after));    /* and so does the parent                               */
    CHECK(memcmp(g_before, g_after, sizeof g_after) == 0);
    CHECK_OK(ctx);
}

typedef struct forked { mlc_ctx *ctx; mlc_module *net; mlc_tensor *x; mlc_cache *cache; } forked;

/* A batch of one sequence: its steps are chunks that wait for each other. */
static bool run_lstm(const forked *f, float *out)
{
    mlc_tensor *y = mlc_forward(f->net, f->x);
    return mlc_read(y, out, (size_t)mlc_numel(y) * sizeof(float)) == MLC_OK;
}

static int child_lstm(void *user)
{
    HOLDS(run_lstm((const forked *)user, g_after));
    HOLDS(memcmp(g_before, g_after, 5 * 256 * sizeof(float)) == 0);
    return 0;
}

TEST(fork, a_child_runs_an_lstm_of_one_sequence)
{
    ONLY_WITH_FORKS();
    forked f = {test_own(threads_ctx(3)), NULL, NULL, NULL};
    f.net = mlc_nn_lstm(f.ctx, 64, 256);
    f.x = test_rand(f.ctx, MLC_F32, mlc_dims3(1, 5, 64), 1, -1, 1);
    CHECK(run_lstm(&f, g_before));
    CHECK(fabsf(g_before[5 * 256 - 1]) > 1e-6f);
    IN_CHILD(child_lstm, &f);
    CHECK_OK(f.ctx);
}

static bool write_text(const forked *f, int64_t out[8])
{
    mlc_generate_desc g = mlc_generate_desc_make(8);
    g.temperature = 0;
    g.out = out;
    mlc_cache_reset(f->cache, 0);
    return mlc_generate(f->net, f->cache, f->x, &g, NULL, NULL) == MLC_OK;
}

static int64_t g_text[8];

static int child_writes(void *user)
{
    int64_t out[8];
    HOLDS(write_text((const forked *)user, out));
    HOLDS(memcmp(out, g_text, sizeof out) == 0);
    return 0;
}

TEST(fork, a_child_generates_the_same_text)
{
    ONLY_WITH_FORKS();
    forked                f = {test_own(threads_ctx(3)), NULL, NULL, NULL};
    const mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(97, 16, 2, 128, 4);
    const mlc_cache_desc  k = mlc_cache_desc_make(1, 16);
    static const int64_t  prompt[3] = {3, 14, 15};
    f.net = mlc_nn_gpt(f.ctx, &d);
    f.x = mlc_from(f.ctx, MLC_I64, mlc_dims2(1, 3), prompt);
    f.cache = mlc_cache_create(f.net, &k);
    CHECK(write_text(&f, g_text));
    CHECK(g_text[7] >= 0 && g_text[7] < 97);
    IN_CHILD(child_writes, &f);
    CHECK_OK(f.ctx);
    mlc_cache_free(f.cache);
}

/* ---- loaders, savers, sweeps ----------------------------------------------------------------- */

/* Sample i has the number i. */
static mlc_status number_get(void *user, mlc_sample *s)
{
    const float x = (float)s->index;
    (void)user;
    memcpy(s->dst[0], &x, sizeof x);
    return MLC_OK;
}

static int64_t number_count(void *user)
{
    (void)user;
    return 64;
}

static mlc_loader *numbers(mlc_ctx *ctx)
{
    mlc_loader_from_desc d = mlc_loader_from_desc_make(4);
    mlc_dataset          data;
    memset(&data, 0, sizeof data);
    data.count = number_count;
    data.get = number_get;
    data.n_fields = 1;
    data.field[0].dtype = MLC_F32;
    d.workers = 2;
    return mlc_loader_from(ctx, &data, &d);
}

typedef struct read_on { mlc_ctx *ctx; mlc_loader *l; } read_on;

static int child_loads(void *user)
{
    read_on        *r = (read_on *)user;
    mlc_batch       b;
    float           x[4];
    const mlc_loader_state start = mlc_loader_position(r->l);
    HOLDS(!mlc_loader_next(r->l, &b));
    HOLDS(mlc_ctx_status(r->ctx) == MLC_ERR_STATE);
    HOLDS(strstr(mlc_error(r->ctx), "loader_next: the loader's 2 workers are threads of the"));
    mlc_error_clear(r->ctx);
    HOLDS(mlc_loader_seek(r->l, &start) == MLC_ERR_STATE);
    mlc_error_clear(r->ctx);
    mlc_loader_free(r->l);
    r->l = numbers(r->ctx);            /* one of its own                                       */
    HOLDS(mlc_loader_next(r->l, &b) && mlc_loader_next(r->l, &b));
    HOLDS(mlc_read(b.x, x, sizeof x) == MLC_OK && x[0] == 4 && x[3] == 7);
    mlc_ctx_free(r->ctx);
    return 0;
}

TEST(fork, a_child_has_no_workers_of_a_loader_and_is_told_so)
{
    ONLY_WITH_FORKS();
    read_on   r = {test_own(threads_ctx(1)), NULL};
    mlc_batch b;
    for (int at = 0; at < 17; at += 4) {                   /* in the midst, and at the end      */
        r.l = numbers(r.ctx);
        for (int i = 0; i < at; i++) mlc_loader_next(r.l, &b);
        IN_CHILD(child_loads, &r);
        int64_t seen = at;
        while (mlc_loader_next(r.l, &b)) seen++;
        CHECK_EQ(seen, 16);
        mlc_loader_free(r.l);
    }
    CHECK_OK(r.ctx);
}

#ifndef MLC_NO_SERVE
typedef struct serves { mlc_server *s; mlc_reply *r; mlc_request q; } serves;

/* Without a look at the lock, which a thread of the parent may hold. */
static int child_serves(void *user)
{
    serves         *c = (serves *)user;
    mlc_reply      *r = c->r;
    mlc_serve_stats st;
    HOLDS(mlc_serve_submit(c->s, &c->q, &r) == MLC_ANSWER_FAILED && r == NULL);
    HOLDS(mlc_serve_wait(c->r, -1) == MLC_ANSWER_WAITING);
    HOLDS(!mlc_serve_poll(c->s) && mlc_serve_models(c->s) == 0);
    HOLDS(!mlc_serve_stats_of(c->s, "net", &st) && mlc_serve_stats_print(c->s, NULL, 0) == 0);
    mlc_serve_cancel(c->r);
    mlc_serve_free(c->r);
    mlc_serve_stop(c->s);
    mlc_serve_end(c->s);
    return 0;
}

TEST(fork, a_child_has_no_server_and_is_told_so)
{
    ONLY_WITH_FORKS();
    mlc_ctx             *ctx = test_own(threads_ctx(2));
    mlc_server          *s = mlc_serve_create(ctx, NULL);
    mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 2));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("net", mlc_nn_linear(ctx, 2, 3), &x);
    const float          data[2] = {1, 2};
    mlc_serve_array      a = {MLC_F32, 2, {1, 2}, data};
    serves               c = {s, NULL, mlc_request_make("net", &a)};
    d.wait_ms = 1e9;                   /* the request waits for others, which do not come       */
    CHECK_EQ(mlc_serve_model(s, &d), MLC_OK);
    CHECK_EQ(mlc_serve_submit(s, &c.q, &c.r), MLC_ANSWER_WAITING);
    IN_CHILD(child_serves, &c);
    CHECK_EQ(mlc_serve_answer(c.r), MLC_ANSWER_WAITING);
    mlc_serve_stop(s);
    CHECK_EQ(mlc_serve_answer(c.r), MLC_ANSWER_OK);
    mlc_serve_free(c.r);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}
#endif

typedef struct saves { mlc_ctx *ctx; mlc_run_saver *saver; mlc_run run; char other[400]; } saves;

static int child_saves(void *user)
{
    saves *s = (saves *)user;
    HOLDS(mlc_run_saver_wait(s->saver) == MLC_ERR_STATE);
    HOLDS(strstr(mlc_error(s->ctx), "run_saver_wait: the file is written by the process that"));
    mlc_error_clear(s->ctx);
    HOLDS(mlc_run_saver_wait(s->saver) == MLC_OK);
    if (SANITIZED) return 0;
    HOLDS(mlc_run_saver_save(s->saver, s->other, &s->run) == MLC_OK);
    HOLDS(mlc_run_saver_wait(s->saver) == MLC_OK);
    HOLDS(access(s->other, R_OK) == 0);
    HOLDS(mlc_run_saver_save(s->saver, "/nowhere/at/all", &s->run) == MLC_OK);
    HOLDS(mlc_run_saver_wait(s->saver) == MLC_ERR_IO);
    return 0;
}

static int child_frees_saver(void *user)
{
    saves *s = (saves *)user;
    mlc_run_saver_free(s->saver);
    HOLDS(mlc_ctx_status(s->ctx) == MLC_OK);
    mlc_ctx_free(s->ctx);
    return 0;
}

TEST(fork, a_child_waits_for_no_file_that_the_parent_writes)
{
    ONLY_WITH_FORKS();
    saves     s;
    const box b = box_open_fast("run");
    memset(&s, 0, sizeof s);
    snprintf(s.other, sizeof s.other, "%s/other", b.dir);
    s.ctx = test_own(threads_ctx(1));
    s.run.net = mlc_nn_linear(s.ctx, 500, 700);
    s.saver = mlc_run_saver_create(s.ctx);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_run_saver_save(s.saver, b.path, &s.run), MLC_OK);
        IN_CHILD(i ? child_frees_saver : child_saves, &s);
        CHECK_EQ(mlc_run_saver_wait(s.saver), MLC_OK);
        CHECK_EQ(mlc_run_load(s.ctx, b.path, &s.run), MLC_OK);
    }
    if (!SANITIZED) CHECK_EQ(mlc_run_load(s.ctx, s.other, &s.run), MLC_OK);
    CHECK_OK(s.ctx);
    mlc_run_saver_free(s.saver);
    box_close(&b);
}

static const double SIZES[] = {3, 5, 8, 13};
static const char *const SUM[] = {"sum"};

static mlc_status sum_of(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    (void)user;
    results[0] = mlc_item(mlc_sum_all(mlc_full(ctx, MLC_F64, mlc_dims1((int64_t)t->values[0]), 2)));
    return mlc_ctx_status(ctx);
}

static mlc_sweep_desc sizes_of(int32_t workers)
{
    static const mlc_sweep_axis axis = {"size", SIZES, 4};
    mlc_sweep_desc d = mlc_sweep_desc_make(&axis, 1, SUM, 1);
    d.workers = workers;
    return d;
}

static int child_sweeps(void *user)
{
    const mlc_sweep_desc d = sizes_of(3);
    mlc_sweep           *s = NULL;
    HOLDS(mlc_sweep_run((mlc_ctx *)user, &d, sum_of, NULL, &s) == MLC_OK);
    for (int i = 0; i < 4; i++) HOLDS(mlc_sweep_trial(s, i)->results[0] == 2 * SIZES[i]);
    mlc_sweep_free(s);
    return 0;
}

TEST(fork, a_child_runs_a_sweep)
{
    ONLY_WITH_FORKS();
    mlc_ctx *ctx = test_own(threads_ctx(3));
    CHECK_EQ(child_sweeps(ctx), 0);    /* the parent first                                      */
    IN_CHILD(child_sweeps, ctx);
    CHECK_OK(ctx);
}

/* Who runs the sweep forks in its first trial; its other thread waits for that in its own. */
typedef struct forking { pthread_t caller; int forked; pid_t child; } forking;

static mlc_status fork_once(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    forking *f = (forking *)user;
    if (!pthread_equal(pthread_self(), f->caller)) {
        while (!__atomic_load_n(&f->forked, __ATOMIC_ACQUIRE)) sched_yield();
    } else if (!f->forked) {
        f->child = fork();
        if (f->child == 0) alarm(CHILD_SECONDS);
        __atomic_store_n(&f->forked, 1, __ATOMIC_RELEASE);
    }
    return sum_of(NULL, ctx, t, results);
}

TEST(fork, a_trial_that_forks_ends_the_sweep_in_the_child_alone)
{
    ONLY_WITH_FORKS();
    mlc_ctx             *ctx = test_own(threads_ctx(1));
    const mlc_sweep_desc d = sizes_of(2);
    forking              f = {pthread_self(), 0, -1};
    int                  status = 0;
    fflush(NULL);
    const mlc_status st = mlc_sweep_run(ctx, &d, fork_once, &f, NULL);
    if (f.child == 0)
        _exit(st == MLC_ERR_STATE && strstr(mlc_error(ctx), "a trial has forked") ? 0 : 1);
    CHECK_EQ(st, MLC_OK);
    CHECK(waitpid(f.child, &status, 0) == f.child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- devices, other programs ----------------------------------------------------------------- */

static char    g_posted[256];          /* of the one ticket                                    */
static int32_t none_count(void) { return 1; }
static mlc_status none_open(int32_t index, void **dev)
{
    *dev = NULL;                       /* kernels of the CPU then run on the caller's thread    */
    return index == 0 ? MLC_OK : MLC_ERR_DEVICE;
}
static void none_close(void *dev) { (void)dev; }
static mlc_status none_alloc(void *dev, size_t bytes, void **ptr)
{
    (void)dev;
    *ptr = test_aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *ptr ? MLC_OK : MLC_ERR_NOMEM;
}
static void none_release(void *dev, void *ptr, size_t bytes)
{
    (void)dev; (void)bytes;
    test_aligned_free(ptr);
}
static mlc_status none_copy(void *dev, void *dst, const void *src, size_t bytes, mlc_copy_kind kind)
{
    (void)dev; (void)kind;
    memcpy(dst, src, bytes);
    return MLC_OK;
}
static mlc_status none_post(void *dev, const void *src, size_t bytes, int64_t *ticket)
{
    (void)dev;
    memcpy(g_posted, src, bytes);
    *ticket = 1;
    return MLC_OK;
}
static int32_t none_poll(void *dev, int64_t ticket, void *dst, size_t bytes)
{
    (void)dev; (void)ticket;
    memcpy(dst, g_posted, bytes);
    return 1;
}
static mlc_status none_sync(void *dev)
{
    (void)dev;
    return MLC_OK;
}

static mlc_backend host_backend(const char *name)
{
    mlc_backend b;
    memset(&b, 0, sizeof b);
    b.abi = MLC_ABI;
    b.size = (uint32_t)sizeof b;
    b.name = name;
    b.count = none_count;
    b.open = none_open;
    b.close = none_close;
    b.alloc = none_alloc;
    b.release = none_release;
    b.copy = none_copy;
    b.post = none_post;
    b.poll = none_poll;
    b.sync = none_sync;
    b.kernels = *mlc_cpu_kernels(MLC_ISA_SCALAR);
    return b;
}

static int child_registers(void *user)
{
    const mlc_backend b = host_backend("forked"), taken = host_backend("test");
    mlc_ctx_desc      d = mlc_ctx_desc_make();
    (void)user;
    HOLDS(mlc_backend_register(&taken) == MLC_ERR_ARG);
    if (mlc_backend_register(&b) != MLC_OK) return 0;      /* the table is full                 */
    HOLDS(mlc_backend_count("forked") == 1);
    d.device = "forked";
    mlc_ctx *ctx = mlc_ctx_create(&d);
    HOLDS(ctx && mlc_item(mlc_sum_all(mlc_full(ctx, MLC_F32, mlc_dims1(9), 3))) == 27);
    HOLDS(mlc_scope_begin(ctx) == MLC_OK && mlc_scope_end(ctx) == MLC_OK);
    mlc_ctx_free(ctx);
    return 0;
}

/* Registers a name that is taken, so that it holds the lock much of the time. */
static void *register_on(void *user)
{
    const mlc_backend taken = host_backend("test");
    while (!__atomic_load_n((int *)user, __ATOMIC_ACQUIRE)) mlc_backend_register(&taken);
    return NULL;
}

TEST(fork, a_child_registers_a_device_while_a_thread_of_the_parent_does)
{
    ONLY_WITH_FORKS();
    pthread_t other;
    int       stop = 0;
    if (!CHECK_EQ(pthread_create(&other, NULL, register_on, &stop), 0)) return;
    for (int i = 0; i < 40 && test_failures() == 0; i++) IN_CHILD(child_registers, NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_EQ(mlc_backend_count("forked"), 0);
}

static int child_execs(void *user)
{
    (void)user;
    execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
    return 1;
}

TEST(fork, a_child_executes_another_program)
{
    ONLY_WITH_FORKS();
    read_on   r = {test_own(threads_ctx(3)), NULL};
    mlc_batch b;
    r.l = numbers(r.ctx);
    CHECK(run_layer(r.ctx, g_before) && mlc_loader_next(r.l, &b));
    CHECK_EQ(in_child(child_execs, NULL), 7);
    CHECK(mlc_loader_next(r.l, &b));
    mlc_loader_free(r.l);
}

#else

TEST(fork, without_threads_nothing_is_left_in_the_parent)
{
    CHECK_EQ(mlc_ctx_threads(test_ctx()), 1);
}

#endif /* MLC_NO_THREADS */

/* ---- the environment asks for errors --------------------------------------------------------- */

/* What a child writes to standard error that makes one error in a context of so many threads, which
 * is the error where they are below 0; its wait status. */
static int child_of_threads_says(int threads, const char *name, const char *value, char *text,
                                 size_t size)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    int pipes[2], status = 0;
    if (!CHECK_EQ(pipe(pipes), 0)) return 0;
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        setenv("MLC_THREADS", "1", 1);
        unsetenv("MLC_LOG");
        unsetenv("MLC_ABORT");
        if (name) setenv(name, value, 1);
        d.threads = threads;
        mlc_ctx *ctx = mlc_ctx_create(threads ? &d : NULL);
        if (!ctx) _exit(0);
        mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3));
        mlc_matmul(x, x);
        _exit(mlc_ctx_status(ctx) == MLC_ERR_SHAPE ? 0 : 1);
    }
    close(pipes[1]);
    const ssize_t n = read(pipes[0], text, size - 1);
    text[n > 0 ? n : 0] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    return status;
}

static int child_says(const char *name, const char *value, char *text, size_t size)
{
    return child_of_threads_says(0, name, value, text, size);
}

TEST(fork, mlc_log_and_mlc_abort_show_errors_of_programs_that_do_not_look)
{
    char text[512];
    CHECK_EQ(child_says(NULL, NULL, text, sizeof text), 0);
    CHECK_STR(text, "");
    CHECK_EQ(child_says("MLC_LOG", "trace", text, sizeof text), 0);
    CHECK_STR(text, "");
    CHECK_EQ(child_says("MLC_LOG", "error", text, sizeof text), 0);
#ifndef MLC_NO_STDIO
    CHECK_HAS(text, "mlcore: matmul: ");
#endif
    CHECK(WIFSIGNALED(child_says("MLC_ABORT", "1", text, sizeof text)));
#ifndef MLC_NO_STDIO
    CHECK_HAS(text, "mlcore: matmul: ");
#endif
    CHECK_EQ(child_says("MLC_ABORT", "0", text, sizeof text), 0);
    CHECK_EQ(child_of_threads_says(-1, NULL, NULL, text, sizeof text), 0);
    CHECK(WIFSIGNALED(child_of_threads_says(-1, "MLC_ABORT", "1", text, sizeof text)));
#ifndef MLC_NO_STDIO
    CHECK_HAS(text, "mlcore: ctx_create: threads is below 0");
#endif
}

/* ---- handles whose context is gone ----------------------------------------------------------- */

#if defined(MLC_DEBUG) && !defined(MLC_NO_STDIO)
/* A child frees, and uses, what went with its context; exit status 7 if it gets to the end. */
static int child_goes_on_after_its_context(bool aborts, char *text, size_t size)
{
    int pipes[2], status = 0;
    size_t n = 0;
    if (!CHECK_EQ(pipe(pipes), 0)) return 0;
    const pid_t child = fork();
    if (child == 0) {
        mlc_batch b;
        dup2(pipes[1], 2);
        setenv("MLC_THREADS", "1", 1);
        if (aborts) setenv("MLC_ABORT", "1", 1);
        mlc_ctx    *ctx = mlc_ctx_create(NULL);
        mlc_module *net = mlc_nn_linear(ctx, 3, 2);
        mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(4, 3));
        mlc_loader *loader = mlc_loader_ordered(ctx, x, x, 2);
        mlc_optim  *opt = mlc_adam(net, 1e-3);
        mlc_ctx_free(ctx);
        mlc_optim_free(opt);
        bool fine = mlc_optim_step(opt) == MLC_ERR_STATE && !mlc_loader_next(loader, &b);
        fine = fine && mlc_scope_begin(ctx) == MLC_ERR_STATE && !mlc_nn_relu(ctx);
        mlc_module_free(net);
        mlc_ctx_free(ctx);
        _exit(fine ? 7 : 1);
    }
    close(pipes[1]);
    for (ssize_t r; n < size - 1 && (r = read(pipes[0], text + n, size - 1 - n)) > 0;)
        n += (size_t)r;
    text[n] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(fork, a_handle_whose_context_was_freed_is_said_on_standard_error_and_not_read)
{
    char text[2048];
    CHECK_EQ(child_goes_on_after_its_context(false, text, sizeof text), 7);
    CHECK_HAS(text, "mlcore: optim_free: there is no such optimizer: it was freed, by itself or "
              "with its context");
    CHECK_HAS(text, "mlcore: optim_step: there is no such optimizer: ");
    CHECK_HAS(text, "mlcore: loader_next: there is no such loader: ");
    CHECK_HAS(text, "mlcore: scope_begin: there is no such context: ");
    CHECK_HAS(text, "mlcore: module_create: there is no such context: ");
    CHECK_HAS(text, "mlcore: module_free: there is no such module: ");
    CHECK_HAS(text, "mlcore: ctx_free: there is no such context: ");
    CHECK_EQ(child_goes_on_after_its_context(true, text, sizeof text), -1);
    CHECK_HAS(text, "mlcore: optim_free: there is no such optimizer: ");
}
#endif

/* ---- MLC_CHECK ------------------------------------------------------------------------------- */

static void to_stderr(void *user, mlc_log_level level, const char *text)
{
    (void)user;
    (void)level;
    const ssize_t n = write(2, text, strlen(text)), end = write(2, "|", 1);
    if (n < 0 || end < 0) _exit(9);
}

TEST(fork, a_check_without_stdio_logs_file_line_and_text_and_aborts)
{
    char text[512], place[64];
    int  pipes[2], status = 0;
    if (!CHECK_EQ(pipe(pipes), 0)) return;
    const int   line = __LINE__ + 12;
    const pid_t child = fork();
    if (child == 0) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        dup2(pipes[1], 2);
        d.threads = 1;
        d.log = to_stderr;
        mlc_ctx *ctx = mlc_ctx_create(&d);
        MLC__CHECK_ABORTS(ctx);                  /* no error yet                               */
        mlc_scope_begin(ctx);
        mlc_reshape(mlc_ones(ctx, MLC_F32, mlc_dims1(4)), mlc_dims1(5));
        mlc_scope_end(ctx);
        MLC__CHECK_ABORTS(ctx);
        _exit(7);
    }
    close(pipes[1]);
    size_t n = 0;
    for (ssize_t r; n < sizeof text - 1 && (r = read(pipes[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)r;
    text[n] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    snprintf(place, sizeof place, "|tests/test_fork.c:%d: reshape: ", line);
    CHECK_HAS(text, place);
}

#ifndef MLC_NO_STDIO

/* What a program does with an error and MLC_CHECK. */
typedef enum check_case { NO_ERROR, DEALT_WITH, STANDS, SCOPE_ENDED, NO_CONTEXT } check_case;

static int check_line;

static void check_error(mlc_ctx *ctx, check_case what)
{
    if (what == SCOPE_ENDED) mlc_scope_begin(ctx);
    if (what != NO_ERROR) mlc_reshape(mlc_ones(ctx, MLC_F32, mlc_dims1(4)), mlc_dims1(5));
    if (what == SCOPE_ENDED) mlc_scope_end(ctx);
    if (what == DEALT_WITH) mlc_error_clear(ctx);
}

/* What a child writes to standard error that checks; its exit status, 7 if it gets to the end. */
static int child_checks(check_case what, char *text, size_t size)
{
    int pipes[2], status = 0;
    if (!CHECK_EQ(pipe(pipes), 0)) return 0;
    fflush(NULL);                      /* exit in the child writes what is left                */
    check_line = __LINE__ + 8;
    const pid_t child = fork();
    if (child == 0) {
        mlc_ctx *ctx = NULL;
        dup2(pipes[1], 2);
        setenv("MLC_THREADS", "1", 1);
        if (what != NO_CONTEXT) ctx = mlc_ctx_create(NULL);
        check_error(ctx, what);
        if (what != NO_ERROR) MLC_CHECK(ctx);
        else MLC_CHECK(ctx);
        _exit(7);
    }
    close(pipes[1]);
    const ssize_t n = read(pipes[0], text, size - 1);
    text[n > 0 ? n : 0] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(fork, a_check_ends_the_program_with_file_line_and_text_of_the_error)
{
    char text[512], place[64];
    CHECK_EQ(child_checks(NO_ERROR, text, sizeof text), 7);
    CHECK_STR(text, "");
    CHECK_EQ(child_checks(DEALT_WITH, text, sizeof text), 7);
    CHECK_STR(text, "");
    snprintf(place, sizeof place, "test_fork.c:%d: ", check_line);
    CHECK_EQ(child_checks(STANDS, text, sizeof text), 1);
    CHECK_HAS(text, place);
    CHECK_HAS(text, ": reshape: ");
    CHECK_EQ(child_checks(SCOPE_ENDED, text, sizeof text), 1);
    CHECK_HAS(text, ": reshape: ");
    CHECK_EQ(child_checks(NO_CONTEXT, text, sizeof text), 1);
    CHECK_HAS(text, ": no context; ");
}

#endif
