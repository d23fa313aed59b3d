/* test_device.cpp -- tests of section CUDA.DEVICE, on the runtime of cuda_runtime.h, which counts
 * calls and lets them fail: what a step asks of it, errors, several contexts, copies, tickets */
#include "cuda_runtime.h"

#include "../../mlcore_cuda.h"

#include <cinttypes>
#include <cmath>
#include <ctime>
#include <vector>

extern "C" {
#include "../mlc_test.h"
}

using namespace cuda_host;

/* ---- a network and its step --------------------------------------------------------------- */

struct trainer {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_loader *loader;
    mlc_optim  *opt;
};

static mlc_ctx *ctx_on(const char *device, mlc_status *status = NULL)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.device = device;
    d.status = status;
    d.threads = 1;
    return mlc_ctx_create(&d);
}

static void trainer_make(trainer *t, mlc_tensor *x, mlc_tensor *y, int64_t in, int64_t hidden,
                         int64_t batch)
{
    mlc_loader_desc l = mlc_loader_desc_make(x, y, batch);
    t->net = mlc_nn_sequential(t->ctx);
    mlc_module_add(t->net, mlc_nn_linear(t->ctx, in, hidden));
    mlc_module_add(t->net, mlc_nn_relu(t->ctx));
    mlc_module_add(t->net, mlc_nn_dropout(t->ctx, 0.2));
    mlc_module_add(t->net, mlc_nn_linear(t->ctx, hidden, 10));
    l.shuffle = true;
    t->loader = mlc_loader_create(t->ctx, &l);
    t->opt = mlc_adamw(t->net, 1e-2);
}

/* Random rows with labels; what fails is the context's to say. */
static void trainer_small(trainer *t, const char *device)
{
    double label[40];
    for (int i = 0; i < 40; i++) label[i] = i % 10;
    t->ctx = ctx_on(device);
    mlc_tensor *x = test_rand(t->ctx, MLC_F32, mlc_dims2(40, 24), 7, -1, 1);
    mlc_tensor *y = test_tensor(t->ctx, MLC_I64, mlc_dims1(40), label);
    trainer_make(t, x, y, 24, 33, 16);
}

/* One step on the next batch; its loss if that is asked for, which waits. */
static mlc_status trainer_step(trainer *t, double *loss)
{
    mlc_batch b;
    if (!mlc_loader_next(t->loader, &b) && !mlc_loader_next(t->loader, &b))
        return mlc_ctx_status(t->ctx);
    mlc_scope_begin(t->ctx);
    mlc_tensor *l = mlc_cross_entropy(mlc_forward(t->net, b.x), b.y);
    mlc_optim_minimize(t->opt, l);
    if (loss) *loss = mlc_item(l);
    return mlc_scope_end(t->ctx);
}

/* ---- what a step asks of the runtime ------------------------------------------------------ */

TEST(cuda, a_steady_step_launches_copies_from_pinned_memory_and_asks_for_events_alone)
{
    static const Count NONE[] = {COUNT_PAGEABLE, COUNT_ALLOC, COUNT_FREE, COUNT_HOST_ALLOC,
                                 COUNT_MAKE, COUNT_SYNC};
    int64_t       before[COUNTS];
    trainer       t;
    mlc_clip_desc clip = mlc_clip_desc_make();
    trainer_small(&t, "cuda:0");
    test_own(t.ctx);
    clip.norm = 1;
    mlc_optim_clip(t.opt, &clip);
    mlc_optim_scaler(t.opt, NULL);
    for (int i = 0; i < 7; i++) CHECK_EQ(trainer_step(&t, NULL), MLC_OK);
    memcpy(before, g_count, sizeof before);
    for (int i = 0; i < 30; i++) CHECK_EQ(trainer_step(&t, NULL), MLC_OK);
    for (Count c : NONE)
        if (!CHECK_EQ(g_count[c] - before[c], 0)) printf("  count %d\n", (int)c);
    CHECK(g_count[COUNT_LAUNCH] - before[COUNT_LAUNCH] >= 30 * 10);
    CHECK(g_count[COUNT_PINNED] - before[COUNT_PINNED] >= 10);         /* of epochs, and posts  */
    CHECK_EQ(g_count[COUNT_RECORD] - before[COUNT_RECORD],
             g_count[COUNT_PINNED] - before[COUNT_PINNED]);
    CHECK(g_count[COUNT_QUERY] - before[COUNT_QUERY] >= 30);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);     /* a program's own check finds nothing of ours */
    CHECK_EQ(mlc_ctx_sync(t.ctx), MLC_OK);
    CHECK(isfinite(mlc_optim_grad_norm(t.opt)));
    CHECK_OK(t.ctx);
}

/* ---- training ----------------------------------------------------------------------------- */

enum { EPOCHS = 2, DIGITS = 1797, COLUMNS = 66, PIXELS = 64 };

/* Losses of the digits network, a mean for each epoch, and its weights at the end. */
static bool digits_train(const char *device, double *losses, std::vector<double> *weights)
{
    static double table[DIGITS * COLUMNS], x[DIGITS * PIXELS], y[DIGITS];
    trainer       t;
    int64_t       rows = 0;
    t.ctx = test_own(ctx_on(device));
    mlc_tensor *csv = mlc_csv_load(t.ctx, "examples/data/digits.csv", NULL);
    if (!CHECK_EQ(mlc_numel(csv), DIGITS * COLUMNS) || !test_read(csv, table)) return false;
    for (int64_t i = 0; i < DIGITS; i += 2, rows++) {
        for (int k = 0; k < PIXELS; k++) x[rows * PIXELS + k] = table[i * COLUMNS + k] / 16;
        y[rows] = table[i * COLUMNS + PIXELS];
    }
    trainer_make(&t, test_tensor(t.ctx, MLC_F32, mlc_dims2(rows, PIXELS), x),
                 test_tensor(t.ctx, MLC_I64, mlc_dims1(rows), y), PIXELS, 32, 32);
    const int64_t steps = mlc_loader_batches(t.loader);
    for (int e = 0; e < EPOCHS; e++) {
        losses[e] = 0;
        for (int64_t i = 0; i < steps; i++) {
            double loss = 0;
            if (!CHECK_EQ(trainer_step(&t, &loss), MLC_OK)) return false;
            losses[e] += loss / (double)steps;
        }
    }
    mlc_param_iter it = mlc_param_iter_make(t.net);
    while (weights && mlc_param_next(&it)) {
        std::vector<double> w((size_t)mlc_numel(it.tensor));
        test_read(it.tensor, w.data());
        weights->insert(weights->end(), w.begin(), w.end());
    }
    return CHECK_OK(t.ctx);
}

/* Dropout and shuffle are the same; sums have another order. Measured: 2e-8 of the loss after two
 * epochs. */
TEST(cuda, the_digits_network_has_the_losses_of_the_cpu_and_the_same_bits_in_each_order)
{
    double              cpu[EPOCHS], gpu[EPOCHS], again[EPOCHS];
    std::vector<double> weights;
    const uint64_t      rng = w.rng;
    const bool          shuffle = w.shuffle;
    if (!digits_train("cpu", cpu, NULL) || !digits_train("cuda:0", gpu, &weights)) return;
    for (int e = 0; e < EPOCHS; e++) CHECK_NEAR(gpu[e], cpu[e], 1e-6 * cpu[e]);
    CHECK(gpu[EPOCHS - 1] < 0.5 * gpu[0]);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        std::vector<double> others;
        w.rng = seed;
        w.shuffle = true;
        if (!digits_train("cuda:0", again, &others)) break;
        CHECK(memcmp(gpu, again, sizeof gpu) == 0);
        CHECK(weights == others);
    }
    w.rng = rng;
    w.shuffle = shuffle;
}

/* ---- errors ------------------------------------------------------------------------------- */

struct holdings {
    int     blocks;
    size_t  streams, pinned;
    int64_t events, pools;
};
static holdings holdings_now()
{
    holdings h = {w.blocks, g_streams.size(), g_pinned_blocks.size(), g_events,
                  g_pools};
    return h;
}
static bool holdings_same(const holdings &before)
{
    const holdings now = holdings_now();
    const bool events = CHECK_EQ(now.events, before.events);
    const bool streams = CHECK_EQ((int64_t)now.streams, (int64_t)before.streams);
    const bool pinned = CHECK_EQ((int64_t)now.pinned, (int64_t)before.pinned);
    const bool pools = CHECK_EQ(now.pools, before.pools);
    return CHECK_EQ(now.blocks, before.blocks) && pools && events && streams && pinned;
}

/* Two operations that wait in the queue, the first of which fails when it runs. */
static mlc_tensor *fail_late(mlc_tensor *x)
{
    CHECK_EQ(mlc_ctx_sync(x->ctx), MLC_OK);
    fail_kernel_at(1);
    return mlc_softmax(mlc_exp(x), 1);
}

TEST(cuda, a_kernel_that_fails_when_it_runs_names_what_was_queued_and_ends_the_device)
{
    float          to[35];
    const holdings before = holdings_now();
    mlc_ctx       *ctx = ctx_on("cuda:0");
    mlc_tensor    *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 1, -1, 1);
    mlc_tensor    *y = fail_late(x);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_read(y, to, sizeof to), MLC_ERR_DEVICE);
    CHECK_HAS(mlc_error(ctx), "illegal memory access");
    CHECK_HAS(mlc_error(ctx), "'exp' to 'softmax'");
    CHECK_HAS(mlc_error(ctx), "MLC_CUDA_BLOCKING=1");
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mlc_copy_into(x, y), MLC_ERR_DEVICE);
        CHECK_HAS(mlc_error(ctx), "'exp' to 'softmax'");   /* still that of the first failure  */
        CHECK_STATUS(ctx, MLC_ERR_DEVICE);
        CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(1 << 20)) == NULL);
        mlc_error_clear(ctx);          /* mlcore says NOMEM of all that an allocation answers   */
        CHECK_EQ(mlc_ctx_sync(ctx), MLC_ERR_DEVICE);
        CHECK_STATUS(ctx, MLC_ERR_DEVICE);
        CHECK_EQ(mlc_read(y, to, sizeof to), MLC_ERR_DEVICE);
        CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    }
    mlc_ctx_free(ctx);
    forgive();
    holdings_same(before);
    ctx = ctx_on("cuda:0");
    CHECK(ctx != NULL);
    fail_late(test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 1, -1, 1));
    CHECK_EQ(mlc_ctx_sync(ctx), MLC_ERR_DEVICE);
    CHECK_HAS(mlc_error(ctx), "'exp' to 'softmax'");
    mlc_ctx_free(ctx);
    forgive();
    holdings_same(before);
}

TEST(cuda, with_blocking_the_text_names_the_kernel_that_failed)
{
    setenv("MLC_CUDA_BLOCKING", "1", 1);
    mlc_ctx *ctx = ctx_on("cuda:0");
    unsetenv("MLC_CUDA_BLOCKING");
    CHECK(fail_late(test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 1, -1, 1)) == NULL);
    CHECK_HAS(mlc_error(ctx), "exp: kernel 'map' failed on device cuda: map: an illegal memory");
    CHECK_HAS(mlc_error(ctx), "'exp' to 'exp'");
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    mlc_ctx_free(ctx);
    forgive();
}

/* A step that never waits knows by its posts how far the device was well. */
TEST(cuda, after_steps_that_never_wait_the_text_names_operations_of_the_last_ones)
{
    trainer t;
    trainer_small(&t, "cuda:0");
    mlc_tensor *x = test_rand(t.ctx, MLC_F32, mlc_dims1(9), 1, -1, 1);
    CHECK_EQ(mlc_ctx_sync(t.ctx), MLC_OK);
    mlc_sigmoid(x);                    /* the first that is queued                              */
    for (int i = 0; i < 12; i++) CHECK_EQ(trainer_step(&t, NULL), MLC_OK);
    fail_kernel_at(1);
    CHECK_EQ(mlc_ctx_sync(t.ctx), MLC_ERR_DEVICE);
    CHECK_HAS(mlc_error(t.ctx), "known to be well: '");
    CHECK(strstr(mlc_error(t.ctx), "'sigmoid'") == NULL);
    mlc_ctx_free(t.ctx);
    forgive();
}

TEST(cuda, a_launch_that_fails_at_once_names_its_operation_and_the_device_goes_on)
{
    float       to[35];
    mlc_ctx    *ctx = test_own(ctx_on("cuda:0"));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 1, -1, 1);
    mlc_exp(x);                        /* its block is in the pool from now on                  */
    const int64_t before = g_calls;
    mlc_exp(x);
    const int64_t calls = g_calls - before;
    for (int64_t n = 1; n <= calls; n++) {
        mlc_scope_begin(ctx);
        fail_at(n);
        mlc_tensor *y = mlc_exp(x);
        const bool failed = g_fail_at == 0 && y == NULL;
        fail_at(0);
        if (failed) CHECK_HAS(mlc_error(ctx), "exp: kernel 'map' failed on device cuda: map: ");
        if (failed) CHECK(strstr(mlc_error(ctx), "queued since") == NULL);
        CHECK_EQ(mlc_scope_end(ctx), failed ? MLC_ERR_DEVICE : MLC_OK);
        CHECK_EQ(mlc_read(mlc_exp(x), to, sizeof to), MLC_OK);
    }
    CHECK(calls > 0);
}

TEST(cuda, without_memory_a_call_is_nomem_and_goes_on_when_some_was_given_back)
{
    mlc_ctx *ctx = test_own(ctx_on("cuda:0"));
    float    to[4];
    g_room = lent() + (16 << 20);
    mlc_scope_begin(ctx);
    CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(2 << 20)) != NULL);
    CHECK(mlc_zeros(ctx, MLC_F32, mlc_dims1(3 << 20)) == NULL);
    CHECK_HAS(mlc_error(ctx), "out of memory");
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_NOMEM);
    mlc_memory_trim(ctx);
    mlc_tensor *t = mlc_ones(ctx, MLC_F32, mlc_dims1(3 << 20));
    CHECK(t != NULL);
    CHECK_EQ(mlc_read(mlc_slice(t, 0, 0, 4, 1), to, sizeof to), MLC_OK);
    CHECK(to[0] == 1 && to[3] == 1);
    g_room = kArena;
    CHECK_OK(ctx);
}

/* A context, a step, its loss, the end; status: the first one that is not OK. */
static mlc_status life(double *loss)
{
    trainer    t;
    mlc_status status = MLC_OK;
    double     label[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    t.ctx = ctx_on("cuda:0", &status);
    if (!t.ctx) return status == MLC_OK ? MLC_ERR_STATE : status;
    mlc_tensor *x = test_rand(t.ctx, MLC_F32, mlc_dims2(8, 700), 7, -1, 1);
    mlc_tensor *y = test_tensor(t.ctx, MLC_I64, mlc_dims1(8), label);
    trainer_make(&t, x, y, 700, 5, 8);
    mlc_status st = trainer_step(&t, loss);
    if (st == MLC_OK) st = mlc_ctx_sync(t.ctx);
    if (st == MLC_OK) st = mlc_ctx_status(t.ctx);
    mlc_ctx_free(t.ctx);
    return st;
}

TEST(cuda, each_call_of_the_runtime_may_fail_without_a_crash_a_leak_or_a_wrong_number)
{
    double         want = 0, got;
    int64_t        failed = 0, calls = g_calls;
    const holdings before = holdings_now();
    if (!CHECK_EQ(life(&want), MLC_OK)) return;
    calls = g_calls - calls;
    CHECK(calls > 100);
    for (int64_t n = 1; n <= calls; n++) {
        got = 0;
        fail_at(n);
        const mlc_status st = life(&got);
        forgive();
        failed += st != MLC_OK;
        bool good = CHECK(st == MLC_OK || st == MLC_ERR_NOMEM || st == MLC_ERR_DEVICE);
        if (st == MLC_OK) good = CHECK_NEAR(got, want, 0) && good;
        if (!holdings_same(before) || !good) {
            printf("  call %d of %d: %s\n", (int)n, (int)calls, mlc_status_name(st));
            break;
        }
    }
    CHECK(failed > calls / 2);
}

/* ---- several contexts --------------------------------------------------------------------- */

TEST(cuda, contexts_of_one_card_and_of_two_run_side_by_side)
{
    static const char *DEVICE[] = {"cuda:0", "cuda", "cuda:1"};
    trainer            t[3];
    double             loss[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) {
        trainer_small(&t[i], DEVICE[i]);
        CHECK_OK(t[i].ctx);
    }
    for (int step = 0; step < 4; step++)
        for (int i = 0; i < 3; i++)
            CHECK_EQ(trainer_step(&t[i], step == 3 ? &loss[i] : NULL), MLC_OK);
    CHECK(loss[0] > 0 && loss[0] == loss[1] && loss[0] == loss[2]);
    mlc_ctx_free(t[0].ctx);            /* the others of its card go on                          */
    CHECK_EQ(trainer_step(&t[1], &loss[1]), MLC_OK);
    CHECK_EQ(trainer_step(&t[2], &loss[2]), MLC_OK);
    CHECK(loss[1] == loss[2]);
    mlc_tensor *a = mlc_ones(t[1].ctx, MLC_F32, mlc_dims1(3));
    mlc_tensor *b = mlc_ones(t[2].ctx, MLC_F32, mlc_dims1(3));
    CHECK(mlc_add(a, b) == NULL);
    mlc_ctx *said = mlc_ctx_status(t[1].ctx) != MLC_OK ? t[1].ctx : t[2].ctx;
    CHECK_HAS(mlc_error(said), "cuda:0");
    CHECK_HAS(mlc_error(said), "cuda:1");
    mlc_ctx_free(t[1].ctx);
    mlc_ctx_free(t[2].ctx);
}

TEST(cuda, memory_that_a_context_gives_back_is_anothers_when_its_work_is_done)
{
    mlc_ctx *a = ctx_on("cuda"), *b = ctx_on("cuda");
    for (int round = 0; round < 20; round++) {
        mlc_scope_begin(a);
        mlc_scope_begin(b);
        mlc_tensor *x = mlc_full(a, MLC_F32, mlc_dims1(4096), 7.0);
        mlc_tensor *y = mlc_mul_scalar(x, 3.0);
        mlc_drop(x);
        mlc_tensor *z = mlc_full(b, MLC_F32, mlc_dims1(4096), 5.0);
        CHECK(mlc_item(mlc_sum_all(z)) == 5.0 * 4096);
        CHECK(mlc_item(mlc_sum_all(y)) == 21.0 * 4096);
        CHECK_EQ(mlc_scope_end(a), MLC_OK);
        CHECK_EQ(mlc_scope_end(b), MLC_OK);
    }
    mlc_ctx_free(a);
    mlc_ctx_free(b);
}

TEST(cuda, a_card_that_is_not_there_is_a_device_error)
{
    mlc_status status = MLC_OK;
    CHECK(ctx_on("cuda:7", &status) == NULL);
    CHECK_EQ(status, MLC_ERR_DEVICE);
    CHECK_EQ(mlc_backend_count("cuda"), 2);
    CHECK_EQ(mlc_cuda_register(), MLC_ERR_ARG);            /* borrow.cpp has registered it      */
    CHECK_HAS(mlc_cuda_error(), "registered already");
    setenv("CUDA_HOST_DEVICES", "0", 1);
    CHECK_EQ(mlc_cuda_register(), MLC_ERR_DEVICE);
    CHECK_HAS(mlc_cuda_error(), "no CUDA-capable device");
    CHECK_EQ(mlc_backend_count("cuda"), 0);
    status = MLC_OK;
    CHECK(ctx_on("cuda", &status) == NULL);
    CHECK_EQ(status, MLC_ERR_DEVICE);
    unsetenv("CUDA_HOST_DEVICES");
    CHECK_EQ(mlc_backend_count("cuda"), 2);
}

/* ---- copies and tickets ------------------------------------------------------------------- */

struct bare {                          /* the device without a context                          */
    mlc_backend b;
    void       *dev;
};
static bool bare_open(bare *t)
{
    mlc_cuda_backend(&t->b);
    return CHECK_EQ(t->b.open(0, &t->dev), MLC_OK);
}

TEST(cuda, copies_of_all_sizes_come_back_as_they_were)
{
    enum { MOST = 5 << 20 };
    static const size_t SIZES[] = {0, 1, 255, (16 << 10) - 1, 16 << 10, (16 << 10) + 1,
                                   (1 << 20) - 1, 1 << 20, (1 << 20) + 1, MOST};
    static unsigned char from[MOST], kept[MOST], to[MOST + 1];
    bare                 t;
    void                *p[2] = {NULL, NULL};
    if (!bare_open(&t)) return;
    for (int i = 0; i < 2; i++) CHECK_EQ(t.b.alloc(t.dev, MOST, &p[i]), MLC_OK);
    for (size_t n : SIZES) {
        for (size_t i = 0; i < n; i++) kept[i] = from[i] = (unsigned char)(i * 31 + i / 251 + n);
        memset(to, 0xaa, sizeof to);
        CHECK_EQ(t.b.copy(t.dev, p[0], from, n, MLC_COPY_TO_DEVICE), MLC_OK);
        memset(from, 0x55, n);         /* the source may change at once                         */
        CHECK_EQ(t.b.copy(t.dev, p[1], p[0], n, MLC_COPY_ON_DEVICE), MLC_OK);
        CHECK_EQ(t.b.copy(t.dev, to, p[1], n, MLC_COPY_TO_HOST), MLC_OK);
        if (!CHECK(memcmp(to, kept, n) == 0 && to[n] == 0xaa)) printf("  %d bytes\n", (int)n);
    }
    for (int i = 0; i < 2; i++) t.b.release(t.dev, p[i], MOST);
    t.b.close(t.dev);
}

/* The first large copy makes its ring. */
TEST(cuda, a_large_copy_that_fails_at_any_call_works_when_it_is_tried_again)
{
    enum { N = 40 << 10 };
    static unsigned char from[N], to[N];
    for (int i = 0; i < N; i++) from[i] = (unsigned char)(i * 7 + i / 256);
    for (int64_t n = 1, failed = n; failed == n; n++) {
        bare  t;
        void *p = NULL;
        if (!bare_open(&t) || !CHECK_EQ(t.b.alloc(t.dev, N, &p), MLC_OK)) return;
        fail_at(n);
        const mlc_status st = t.b.copy(t.dev, p, from, N, MLC_COPY_TO_DEVICE);
        failed += st != MLC_OK;
        CHECK(st == MLC_OK ? n > 3 : st == MLC_ERR_NOMEM || st == MLC_ERR_DEVICE);
        fail_at(0);
        memset(to, 0, N);
        CHECK_EQ(t.b.copy(t.dev, p, from, N, MLC_COPY_TO_DEVICE), MLC_OK);
        CHECK_EQ(t.b.copy(t.dev, to, p, N, MLC_COPY_TO_HOST), MLC_OK);
        CHECK(memcmp(from, to, N) == 0);
        t.b.release(t.dev, p, N);
        t.b.close(t.dev);
    }
}

TEST(cuda, many_small_uploads_without_a_wait_keep_their_bytes)
{
    enum { N = 200, WORDS = 37 };
    bare     t;
    void    *p = NULL;
    unsigned word[WORDS], to[N][WORDS];
    bool     same = true;
    if (!bare_open(&t) || !CHECK_EQ(t.b.alloc(t.dev, sizeof to, &p), MLC_OK)) return;
    for (unsigned i = 0; i < N; i++) {
        for (unsigned k = 0; k < WORDS; k++) word[k] = i * 1000 + k;
        CHECK_EQ(t.b.copy(t.dev, static_cast<char *>(p) + i * sizeof word, word, sizeof word,
                          MLC_COPY_TO_DEVICE), MLC_OK);
    }
    CHECK_EQ(t.b.copy(t.dev, to, p, sizeof to, MLC_COPY_TO_HOST), MLC_OK);
    for (unsigned i = 0; i < N; i++)
        for (unsigned k = 0; k < WORDS; k++) same = same && to[i][k] == i * 1000 + k;
    CHECK(same);
    t.b.release(t.dev, p, sizeof to);
    t.b.close(t.dev);
}

/* Each ticket brings what the memory held when it was made, whatever was copied there since. */
TEST(cuda, tickets_bring_what_memory_held_when_they_were_made)
{
    bare    t;
    void   *p = NULL;
    int64_t word[4], ticket[100], last = 0, early = 0;
    if (!bare_open(&t) || !CHECK_EQ(t.b.alloc(t.dev, sizeof word, &p), MLC_OK)) return;
    for (int64_t i = 0; i < 100; i++) {
        for (int k = 0; k < 4; k++) word[k] = i * 10 + k;
        CHECK_EQ(t.b.copy(t.dev, p, word, sizeof word, MLC_COPY_TO_DEVICE), MLC_OK);
        CHECK_EQ(t.b.post(t.dev, p, sizeof word, &ticket[i]), MLC_OK);
        CHECK(ticket[i] > last);
        last = ticket[i];
        if (i < 9) continue;           /* ten are open                                          */
        int32_t there;
        while ((there = t.b.poll(t.dev, ticket[i - 9], word, sizeof word)) == 0) early++;
        CHECK_EQ(there, 1);
        CHECK(word[0] == (i - 9) * 10 && word[3] == (i - 9) * 10 + 3);
    }
    CHECK(early > 0);
    CHECK(t.b.poll(t.dev, ticket[80], word, sizeof word) < 0);         /* of too long ago       */
    CHECK(t.b.poll(t.dev, last + 1, word, sizeof word) < 0);           /* never made            */
    CHECK_HAS(t.b.message(t.dev), "ticket");
    CHECK_EQ(t.b.post(t.dev, p, 257, &last), MLC_ERR_ARG);
    CHECK_EQ(t.b.sync(t.dev), MLC_OK);
    t.b.release(t.dev, p, sizeof word);
    t.b.close(t.dev);
}

TEST(cuda, the_card_says_its_name_and_its_memory)
{
    bare            t;
    void           *p = NULL;
    mlc_device_info a, b;
    if (!bare_open(&t) || !CHECK_EQ(t.b.info(t.dev, &a), MLC_OK)) return;
    CHECK_STR(a.name, "host card 0");
    CHECK(a.free_bytes > 0 && a.free_bytes <= a.total_bytes);
    CHECK_EQ(t.b.alloc(t.dev, 4096, &p), MLC_OK);
    CHECK_EQ(t.b.info(t.dev, &b), MLC_OK);
    CHECK_EQ(a.free_bytes - b.free_bytes, 4096);
    t.b.release(t.dev, p, 4096);
    t.b.close(t.dev);
}
