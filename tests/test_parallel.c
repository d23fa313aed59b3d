/* test_parallel.c -- tests of sections IMPL.PARALLEL.*: messages between ranks, data parallel */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "../examples/corpus.h"
#include "ranks.h"
#include "watch.h"

#ifndef MLC_NO_THREADS

/* ---- calls ----------------------------------------------------------------------------------*/

static mlc_comm_call call_of(mlc_collective kind, mlc_dtype dtype, int64_t n, void *data)
{
    const mlc_comm_call c = {kind, MLC_COMBINE_SUM, dtype, 0, n, data};
    return c;
}

static double told(int rank, int64_t i) { return 100.0 * (rank + 1) + (double)i; }

/* Each kind of call on kind elements a rank; values are as the comments of mlc_collective say. */
static void calls(rank_job *j)
{
    const int n = j->kind, size = j->comm.size, rank = j->comm.rank;
    double    x[VALUES];
    float     f[VALUES];
    int64_t   k[VALUES];
    mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_F64, n, x);
    for (int i = 0; i < n; i++) x[i] = told(rank, i);
    j->values = !mlc_comm_run(j->ctx, &j->comm, &c);
    for (int i = 0; i < n; i++)
        j->values &= x[i] == 50.0 * size * (size + 1) + (double)size * i;
    for (int i = 0; i < n; i++) f[i] = (float)told((rank + i) % size, 0);
    c = call_of(MLC_ALL_REDUCE, MLC_F32, n, f);
    c.combine = MLC_COMBINE_MAX;
    j->values &= !mlc_comm_run(j->ctx, &j->comm, &c);
    for (int i = 0; i < n; i++) j->values &= (double)f[i] == told(size - 1, 0);
    for (int i = 0; i < n * size; i++) x[i] = told(rank, i);
    c = call_of(MLC_REDUCE_SCATTER, MLC_F64, n * size, x);
    j->values &= !mlc_comm_run(j->ctx, &j->comm, &c);
    for (int i = rank * n; i < (rank + 1) * n; i++)
        j->values &= x[i] == 50.0 * size * (size + 1) + (double)size * i;
    for (int i = 0; i < n * size; i++) k[i] = i / (n ? n : 1) == rank ? i : -1;
    c = call_of(MLC_ALL_GATHER, MLC_I64, n * size, k);
    j->values &= !mlc_comm_run(j->ctx, &j->comm, &c);
    for (int i = 0; i < n * size; i++) j->values &= k[i] == i;
    for (int i = 0; i < n; i++) f[i] = rank == size - 1 ? (float)i : -1;
    c = call_of(MLC_BROADCAST, MLC_F32, n, f);
    c.root = size - 1;
    j->values &= !mlc_comm_run(j->ctx, &j->comm, &c);
    for (int i = 0; i < n; i++) j->values &= f[i] == (float)i;
    c = call_of(MLC_BARRIER, MLC_F32, 0, NULL);
    j->values &= !mlc_comm_run(j->ctx, &j->comm, &c);
}

TEST(comm, each_call_does_what_it_says_for_all_numbers_of_ranks_and_elements)
{
    static const int sizes[] = {0, 1, 3, 64, 100};
    rank_job jobs[RANKS];
    ONLY_ON_HOST();
    for (int n = 1; n <= RANKS; n++)
        for (int s = 0; s < COUNT(sizes); s++) {
            run_ranks(n, calls, sizes[s], 0, jobs);
            all_well(jobs, n);
            for (int r = 0; r < n; r++) CHECK(jobs[r].values);
        }
}

/* Many calls that are open at once, so that slots are used again. */
static void many(rank_job *j)
{
    double  x[60][4];
    int64_t ticket[60];
    j->values = 1;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 60; i++) {
            for (int k = 0; k < 4; k++) x[i][k] = j->comm.rank + i + k;
            const mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_F64, 4, x[i]);
            if (j->comm.begin(j->comm.user, &c, &ticket[i]) != MLC_OK) return;
        }
        for (int i = 0; i < 60; i++) {
            if (j->comm.wait(j->comm.user, ticket[i]) != MLC_OK) return;
            for (int k = 0; k < 4; k++) j->values &= x[i][k] == 3 + 3.0 * (i + k);
        }
    }
    j->values += 1;
}

TEST(comm, sixty_calls_are_open_at_once)
{
    rank_job jobs[RANKS];
    ONLY_ON_HOST();
    run_ranks(3, many, 0, 0, jobs);
    all_well(jobs, 3);
    for (int r = 0; r < 3; r++) CHECK_EQ(jobs[r].values, 2);
}

/* Numbers whose sum depends on the order. */
static float odd(int rank, int i)
{
    uint32_t u = (uint32_t)(rank * 7919 + i * 104729 + 12345);
    u = u * 1664525u + 1013904223u;
    return (float)u * 1e-3f * (rank & 1 ? -1.0f : 1.0f);
}

static void in_order(rank_job *j)
{
    float f[VALUES];
    const mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_F32, VALUES, f);
    for (int i = 0; i < VALUES; i++) f[i] = odd(j->comm.rank, i);
    if (mlc_comm_run(j->ctx, &j->comm, &c) != MLC_OK) return;
    for (int i = 0; i < VALUES; i++) j->value[i] = (double)f[i];
}

TEST(comm, sums_are_those_of_a_binary_tree_in_all_ranks)
{
    rank_job jobs[RANKS];
    int      differ = 0;
    ONLY_ON_HOST();
    for (int n = 3; n <= 4; n++) {
        run_ranks(n, in_order, 0, 0, jobs);
        all_well(jobs, n);
        for (int i = 0; i < VALUES; i++) {
            const volatile float left = odd(0, i) + odd(1, i);
            const volatile float right = n == 3 ? odd(2, i) : odd(2, i) + odd(3, i);
            const volatile float sum = left + right, chain = left + odd(2, i);
            const volatile float row = n == 3 ? chain : chain + odd(3, i);
            for (int r = 0; r < n; r++) CHECK(jobs[r].value[i] == (double)sum);
            differ += row != sum;
        }
    }
    CHECK(differ > 20);                /* and the order matters */
}

static void another_call(rank_job *j)
{
    double x[8] = {0};
    const mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_F64, j->comm.rank == 1 ? 7 : 8, x);
    j->status = mlc_comm_run(j->ctx, &j->comm, &c);
    j->values = mlc_comm_run(j->ctx, &j->comm, &c);
}

TEST(comm, ranks_that_begin_different_calls_get_an_error_that_names_both)
{
    rank_job jobs[RANKS];
    ONLY_ON_HOST();
    run_ranks(3, another_call, 0, 0, jobs);
    for (int r = 0; r < 3; r++) {
        CHECK_EQ(jobs[r].status, MLC_ERR_STATE);
        CHECK_EQ(jobs[r].values, MLC_ERR_STATE);           /* and so fail later calls */
        CHECK_HAS(jobs[r].message, "all-reduce of 7 f64");
        CHECK_HAS(jobs[r].message, "all-reduce of 8 f64");
    }
}

static int failures;                   /* ranks whose call has failed                          */

static void await_two_failures(void)
{
    while (__atomic_load_n(&failures, __ATOMIC_ACQUIRE) < 2) {
        const struct timespec ms = {0, 1000000};
        nanosleep(&ms, NULL);
    }
}

/* kind 0: rank 1 leaves; 1: it does not come until the others have failed; 2: it leaves in a
 * call */
static void goes(rank_job *j)
{
    double  x[8] = {0};
    int64_t ticket;
    const mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_F64, 8, x);
    if (j->comm.rank == 1 && j->kind == 0) return;
    if (j->comm.rank == 1 && j->kind == 2) {
        j->comm.begin(j->comm.user, &c, &ticket);
        mlc_comm_leave(&j->comm);
        return;
    }
    if (j->comm.rank == 1) await_two_failures();
    j->status = mlc_comm_run(j->ctx, &j->comm, &c);
    if (j->status == MLC_OK && j->kind == 2) j->status = mlc_comm_run(j->ctx, &j->comm, &c);
    __atomic_add_fetch(&failures, j->status != MLC_OK, __ATOMIC_RELEASE);
}

TEST(comm, a_rank_that_leaves_or_does_not_come_is_named)
{
    static const char *const says[] = {"rank 1 has left before call 0",
                                       "rank 1 has not come to call 0, all-reduce of 8 f64, ",
                                       "rank 1 has left"};
    rank_job jobs[RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind < 3; kind++) {
        failures = 0;
        run_ranks(3, goes, kind, kind == 1 ? 0.25 : 0, jobs);
        for (int r = 0; r < 3; r++) {
            if (r == 1 && kind != 1) continue;
            CHECK_EQ(jobs[r].status, MLC_ERR_STATE);
            CHECK_HAS(jobs[r].message, says[kind]);
        }
    }
}

TEST(comm, calls_that_cannot_be_are_errors)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_comm      comms[3];
    mlc_comm_desc d = mlc_comm_desc_make();
    double        x[4] = {0};
    CHECK_NEAR(d.deadline, 600, 0);
    CHECK_EQ(mlc_comm_threads(ctx, 0, NULL, comms), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "comm_threads: 0 ranks");
    d.deadline = -1;
    CHECK_EQ(mlc_comm_threads(ctx, 1, &d, comms), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a deadline of -1 s must be over 0");
    CHECK_EQ(mlc_comm_threads(ctx, 3, NULL, comms), MLC_OK);
    mlc_comm_call c = call_of(MLC_ALL_GATHER, MLC_F64, 4, x);
    CHECK_EQ(mlc_comm_run(ctx, &comms[0], &c), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "all-gather of 4 f64: no multiple of the 3 ranks");
    c = call_of(MLC_ALL_REDUCE, MLC_F16, 4, x);
    CHECK_EQ(mlc_comm_run(ctx, &comms[0], &c), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "only f32, f64, i64 and bf16 have sums");
    c = call_of(MLC_ALL_REDUCE, MLC_BF16, 4, x);
    c.combine = MLC_COMBINE_MAX;
    CHECK_EQ(mlc_comm_run(ctx, &comms[0], &c), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bf16 has no largest");
    c = call_of(MLC_BROADCAST, MLC_F64, 4, x);
    c.root = 3;
    CHECK_EQ(mlc_comm_run(ctx, &comms[0], &c), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "root 3 is none of 3 ranks");
    c = call_of(MLC_BROADCAST, MLC_F64, -1, x);
    CHECK_EQ(mlc_comm_run(ctx, &comms[0], &c), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "n must be 0 or more");
    CHECK_EQ(mlc_comm_run(ctx, NULL, &c), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "it needs a connection and a call");
    mlc_comm_leave(NULL);
    CHECK_OK(ctx);
}

/* kind 0: sums of f16 past mlc_comm_run; 1: rank 1 begins, and does not wait; 2: a wait for a call
 * that is none */
static void wrong(rank_job *j)
{
    double  x[8] = {0};
    int64_t ticket = -3;
    const mlc_comm_call c = call_of(MLC_ALL_REDUCE, j->kind ? MLC_F64 : MLC_F16, 8, x);
    j->status = j->kind == 2 ? MLC_OK : j->comm.begin(j->comm.user, &c, &ticket);
    if (j->kind == 1 && j->comm.rank == 1) await_two_failures();
    if (j->status == MLC_OK) j->status = j->comm.wait(j->comm.user, ticket);
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELEASE);
    if (j->status != MLC_OK) j->values = strlen(j->comm.message(j->comm.user)) > 0;
    snprintf((char *)j->value, sizeof j->value, "%s", j->comm.message(j->comm.user));
}

TEST(comm, calls_that_have_no_sum_or_that_a_rank_does_not_wait_for_fail)
{
    static const char *const says[] = {"is all-reduce of 8 f16: only f32, f64, i64 and bf16 have",
                                       "of 3 ranks have not waited for call 0, all-reduce of ",
                                       "waits for call -3; the next one is 0"};
    rank_job jobs[RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind < 3; kind++) {
        failures = 0;
        run_ranks(3, wrong, kind, kind == 1 ? 0.25 : 0, jobs);
        for (int r = 0; r < 3; r++) {
            CHECK_EQ(jobs[r].status, MLC_ERR_STATE);
            CHECK_HAS((const char *)jobs[r].value, says[kind]);
        }
    }
}

/* ---- training -------------------------------------------------------------------------------*/

enum { IN = 6, HIDDEN = 9, OUT = 3, ROWS = 12, STEPS = 6 };

/* Loss of the rows of step t that have i % ranks == rank, in the network's dtype. */
static mlc_tensor *loss_of(mlc_module *net, mlc_dtype dtype, int t, int rank, int ranks)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    double   x[ROWS * IN];
    int64_t  y[ROWS];
    int      n = 0;
    for (int i = rank; i < ROWS; i += ranks) {
        for (int k = 0; k < IN; k++) x[n * IN + k] = datum(t, i, k);
        y[n++] = (i + t) % OUT;
    }
    mlc_tensor *in = mlc_cast(mlc_from(ctx, MLC_F64, mlc_dims2(n, IN), x), dtype);
    return mlc_cross_entropy(mlc_forward(net, in), mlc_from(ctx, MLC_I64, mlc_dims1(n), y));
}

static double first_of(mlc_tensor *t, int64_t i)
{
    return t->dtype == MLC_F32 ? (double)mlc_f32(t)[i] : mlc_f64(t)[i];
}

static void keep_params(rank_job *j, mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it))
        for (int64_t i = 0; i < mlc_numel(it.tensor) && j->values < VALUES &&
                            it.tensor->dtype != MLC_BOOL && it.tensor->dtype != MLC_I64; i++)
            j->value[j->values++] = first_of(it.tensor, i);
}

/* Bits of `kind` of a training. */
enum { PLAIN = 0, CLIP = 1, ADAM = 2, COLLECT = 4, SMALL = 8, LATE = 16, SINGLE = 32 };

static mlc_optim *rule_of(mlc_module *net, int kind)
{
    mlc_clip_desc clip = mlc_clip_desc_make();
    mlc_sgd_desc  sgd = mlc_sgd_desc_make(0.1);
    sgd.momentum = 0.9;
    mlc_optim *opt = kind & ADAM ? mlc_adam(net, 0.01) : mlc_sgd_ex(net, &sgd);
    clip.norm = 0.2;
    if (kind & CLIP) mlc_optim_clip(opt, &clip);
    if (kind & COLLECT) mlc_optim_accumulate(opt, 2);
    return opt;
}

/* The training of test_parallel: rank r has rows r, r + size, .. of each step. */
static void train(rank_job *j)
{
    const int         kind = j->kind;
    const mlc_dtype   dtype = kind & SINGLE ? MLC_F32 : MLC_F64;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_seed(j->ctx, 3 + (uint64_t)j->comm.rank);         /* rank 0's parameters become all's */
    mlc_module_to(net, dtype);
    mlc_optim *opt = rule_of(net, kind);
    if (kind & SMALL) d.bucket = 1;
    if (kind & LATE) d.overlap = false;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS; t++) {
        mlc_scope_begin(j->ctx);
        mlc_backward(loss_of(net, dtype, t, j->comm.rank, j->comm.size));
        mlc_optim_step(opt);
        mlc_scope_end(j->ctx);
    }
    if (mlc_ctx_status(j->ctx) == MLC_OK) keep_params(j, net);
}

/* Compares values of all ranks with each other, and with those wanted. */
static void same_values(const rank_job *jobs, int n, const rank_job *want, double tol)
{
    double most = 0;
    all_well(jobs, n);
    CHECK_EQ(jobs[0].values, want->values);
    CHECK(want->values > 0);
    for (int r = 0; r < n; r++)
        CHECK(!memcmp(jobs[r].value, jobs[0].value, sizeof jobs[r].value));
    for (int i = 0; i < want->values; i++)
        most = fmax(most, fabs(jobs[0].value[i] - want->value[i]));
    CHECK_NEAR(most, 0, tol);
}

TEST(parallel, ranks_train_as_one_process_with_the_whole_batch)
{
    static const int kinds[] = {PLAIN, CLIP, ADAM, COLLECT, SMALL, CLIP | LATE, ADAM | SMALL | LATE,
                                COLLECT | CLIP | SMALL, SINGLE | CLIP};
    static rank_job one, jobs[RANKS];
    ONLY_ON_HOST();
    for (int k = 0; k < COUNT(kinds); k++) {
        run_ranks(1, train, kinds[k], 0, &one);
        for (int n = 2; n <= 4; n++) {
            run_ranks(n, train, kinds[k], 0, jobs);
            same_values(jobs, n, &one, kinds[k] & SINGLE ? 1e-5 : 1e-10);
        }
    }
}

TEST(parallel, runs_have_the_same_bits)
{
    static rank_job a[RANKS], b[RANKS];
    ONLY_ON_HOST();
    run_ranks(3, train, SINGLE | SMALL, 0, a);
    run_ranks(3, train, SINGLE | SMALL, 0, b);
    CHECK(a[0].values > 0 && !memcmp(a[0].value, b[0].value, sizeof a[0].value));
}

/* Rank r of n makes calls q = 4 / n of micro batches: rows r q + k of four. */
static void tree(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_optim        *opt = rule_of(net, CLIP | j->kind);
    d.micro = 4 / j->comm.size;
    d.bucket = 100;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS; t++)
        for (int k = 0; k < d.micro; k++) {
            mlc_scope_begin(j->ctx);
            mlc_backward(loss_of(net, MLC_F32, t, j->comm.rank * d.micro + k, 4));
            mlc_optim_step(opt);
            mlc_scope_end(j->ctx);
        }
    if (mlc_optim_steps(opt) == STEPS) keep_params(j, net);
}

TEST(parallel, micro_batches_give_the_same_bits_for_four_ranks_two_and_one)
{
    static rank_job jobs[3][RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind <= ADAM; kind += ADAM) {
        for (int k = 0; k < 3; k++) {
            run_ranks(1 << k, tree, kind, 0, jobs[k]);
            all_well(jobs[k], 1 << k);
            CHECK(jobs[k][0].values > 0);
            CHECK(!memcmp(jobs[k][0].value, jobs[0][0].value, sizeof jobs[k][0].value));
        }
    }
}

/* Two heads on a body; kind 0: rank 0 uses head 1, the others head 2; 1: all use head 1; and twice
 * desc.shard. */
static void heads(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    d.shard = j->kind / 2;
    j->kind %= 2;
    mlc_module *net = mlc_nn_sequential(j->ctx), *out[2];
    mlc_module *body = mlc_nn_linear(j->ctx, IN, 4);
    mlc_module_add(net, body);
    for (int h = 0; h < 2; h++) mlc_module_add(net, out[h] = mlc_nn_linear(j->ctx, 4, OUT));
    mlc_optim *opt = mlc_adamw(net, 0.01);                 /* decay would move unused ones */
    mlc_module_build(net);
    const double before = first_of(mlc_module_param(out[1], "weight"), 0);
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    const double from = first_of(mlc_module_param(out[1], "weight"), 0);
    for (int t = 0; t < STEPS; t++) {
        double  x[ROWS * IN];
        int64_t y[ROWS];
        for (int i = 0; i < ROWS; i++) {
            for (int k = 0; k < IN; k++) x[i * IN + k] = datum(t, i + j->comm.rank, k);
            y[i] = i % OUT;
        }
        mlc_scope_begin(j->ctx);
        mlc_tensor *in = mlc_cast(mlc_from(j->ctx, MLC_F64, mlc_dims2(ROWS, IN), x), MLC_F32);
        mlc_tensor *h = mlc_forward(out[!j->kind && j->comm.rank], mlc_forward(body, in));
        mlc_backward(mlc_cross_entropy(h, mlc_from(j->ctx, MLC_I64, mlc_dims1(ROWS), y)));
        mlc_optim_step(opt);
        mlc_scope_end(j->ctx);
    }
    keep_params(j, net);
    j->value[VALUES - 1] = first_of(mlc_module_param(out[1], "weight"), 0) != from;
    j->value[VALUES - 2] = from != before;
}

TEST(parallel, parameters_that_some_rank_does_not_use_get_the_others_mean)
{
    static rank_job jobs[RANKS], parts[RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind < 2; kind++) {
        run_ranks(3, heads, kind, 0, jobs);
        all_well(jobs, 3);
        for (int r = 1; r < 3; r++)
            CHECK(!memcmp(jobs[r].value, jobs[0].value, 40 * sizeof(double)));
        CHECK_NEAR(jobs[0].value[VALUES - 1], kind == 0, 0);   /* all unused: stays, as it is */
        for (int shard = 1; shard <= 2; shard++) {
            run_ranks(3, heads, kind + 2 * shard, 0, parts);
            same_values(parts, 3, &jobs[0], 0);
        }
    }
}

/* Rank 0 has the first 8 rows of 12, rank 1 the rest, with these weights; rank 2 none. */
static void weights(rank_job *j)
{
    static const int  first[] = {0, 8, 12}, past[] = {8, 12, 12};
    const bool        alone = j->comm.size == 1;
    const int         from = alone ? 0 : first[j->comm.rank], to = alone ? 12 : past[j->comm.rank];
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_module_to(net, MLC_F64);
    mlc_optim *opt = rule_of(net, PLAIN);
    d.weighted = true;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS; t++) {
        double  x[ROWS * IN];
        int64_t y[ROWS];
        int     n = 0;
        for (int i = from; i < to; i++, n++) {
            for (int k = 0; k < IN; k++) x[n * IN + k] = datum(t, i, k);
            y[n] = i % OUT;
        }
        mlc_data_parallel_weight(opt, n);
        mlc_scope_begin(j->ctx);
        if (n) {
            mlc_tensor *h = mlc_forward(net, mlc_from(j->ctx, MLC_F64, mlc_dims2(n, IN), x));
            mlc_backward(mlc_cross_entropy(h, mlc_from(j->ctx, MLC_I64, mlc_dims1(n), y)));
        }
        mlc_optim_step(opt);
        mlc_scope_end(j->ctx);
    }
    keep_params(j, net);
}

TEST(parallel, weights_of_ranks_make_batches_of_different_sizes_count_by_rows)
{
    static rank_job one, jobs[RANKS];
    ONLY_ON_HOST();
    run_ranks(1, weights, 0, 0, &one);
    run_ranks(3, weights, 0, 0, jobs);
    same_values(jobs, 3, &one, 1e-10);
}

/* Steps of the rank's rows: backward of loss t, and step. */
static void steps(rank_job *j, mlc_module *net, mlc_optim *opt, int from, int to)
{
    for (int t = from; t < to; t++) {
        mlc_scope_begin(j->ctx);
        mlc_backward(loss_of(net, MLC_F64, t, j->comm.rank, j->comm.size));
        mlc_optim_step(opt);
        mlc_scope_end(j->ctx);
    }
}

enum { FROZEN, PRUNED, HOOKED, FLUSHED, RANGED, TIED, FORGETS, DEEP, SHARP, SHARD = 16 };

static void doubles(void *user, const char *name, mlc_tensor *g)
{
    (void)user;
    (void)name;
    for (int64_t i = 0; i < mlc_numel(g); i++) mlc_f64(g)[i] *= 2;
}

typedef struct ranged { rank_job *job; mlc_module *net; mlc_optim *opt; int t; } ranged;
static double range_step(void *user)
{
    ranged *r = (ranged *)user;
    r->t = (r->t + 1) % STEPS;
    steps(r->job, r->net, r->opt, r->t, r->t + 1);
    return mlc_ctx_status(r->job->ctx) == MLC_OK ? 1 : (double)NAN;
}

static mlc_tensor *sharp_loss(void *user)
{
    ranged *r = (ranged *)user;
    return loss_of(r->net, MLC_F64, r->t, r->job->comm.rank, r->job->comm.size);
}

/* Before data parallel: a layer frozen, one tied to another, SAM, more waves than calls may be
 * open. */
static void manner_before(int kind, mlc_module *net, mlc_optim *opt)
{
    if (kind == FROZEN) mlc_module_freeze(net, "0.*", true);
    if (kind == FLUSHED) mlc_optim_accumulate(opt, 4);
    if (kind == SHARP) mlc_optim_sam(opt, 0.05, false);
    for (int k = 0; kind == DEEP && k < 40; k++)
        mlc_module_add(net, mlc_nn_linear(mlc_module_ctx(net), OUT, OUT));
    if (kind == TIED) {
        mlc_module *more = mlc_nn_linear(mlc_module_ctx(net), OUT, OUT);
        mlc_module *last = mlc_nn_linear(mlc_module_ctx(net), OUT, OUT);
        mlc_module_tie(last, "weight", mlc_module_param(more, "weight"));
        mlc_module_add(net, more);
        mlc_module_add(net, last);
    }
}

/* After it, and before the first step. */
static void manner_after(rank_job *j, mlc_module *net, mlc_optim *opt)
{
    const mlc_prune_desc prune = mlc_prune_desc_make(0.3);
    mlc_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.grad_ready = doubles;
    if (j->kind == PRUNED) mlc_prune(net, &prune);
    if (j->kind == HOOKED) mlc_hooks_add(j->ctx, &hooks);
    if (j->kind == RANGED) {
        double rates[8], losses[8];
        ranged r = {j, net, opt, 0};
        mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 8);
        mlc_lr_range(opt, &d, range_step, &r, NULL, NULL);
    }
    if (j->kind == FORGETS) {          /* gradients before it, which take no part */
        mlc_backward(loss_of(net, MLC_F64, 9, j->comm.rank, j->comm.size));
        mlc_optim_step(opt);
        mlc_optim_zero_grad(opt);
    }
}

/* A training in which kind is done; SHARD times desc.shard more. */
static void manners(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    d.shard = j->kind / SHARD;
    j->kind %= SHARD;
    mlc_module *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_optim  *opt = rule_of(net, j->kind == FROZEN ? ADAM : PLAIN);
    manner_before(j->kind, net, opt);
    mlc_module_to(net, MLC_F64);
    d.bucket = 1;
    d.micro = j->kind == FORGETS ? 2 : 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    manner_after(j, net, opt);
    steps(j, net, opt, 0, j->kind == SHARP ? 0 : 2);
    if (j->kind == FROZEN) mlc_module_freeze(net, "*", false);
    steps(j, net, opt, 2, j->kind == SHARP ? 2 : 4);
    if (j->kind == FROZEN) mlc_module_freeze(net, "2.*", true);
    steps(j, net, opt, 4, j->kind == SHARP ? 4 : j->kind == FLUSHED ? 5 : 6);
    ranged r = {j, net, opt, 0};
    for (; j->kind == SHARP && r.t < 3; r.t++) mlc_optim_step_with(opt, sharp_loss, &r, NULL);
    if (j->kind == FLUSHED) mlc_optim_flush(opt);
    keep_params(j, net);
}

TEST(parallel, masks_hooks_freezing_ties_and_flushes_are_those_of_one_process)
{
    static rank_job one, jobs[RANKS], parts[RANKS];
    ONLY_ON_HOST();
    for (int k = 0; k <= SHARP; k++) {
        run_ranks(1, manners, k, 0, &one);
        all_well(&one, 1);
        run_ranks(3, manners, k, 0, jobs);
        if (k == SHARP) one = jobs[0];           /* each rank has an ascent of its own */
        same_values(jobs, 3, &one, 1e-10);
        for (int shard = 1; shard <= (k == FORGETS || k == SHARP ? 1 : 2); shard++) {
            run_ranks(3, manners, k + shard * SHARD, 0, parts);
            same_values(parts, 3, &jobs[0], 0);
        }
    }
}

/* Networks without a trainable parameter, and one whose gradients another rank reads when the
 * network is freed: it leaves then. kind 1: that. */
static void nothing(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_module_to(net, MLC_F64);
    if (!j->kind) mlc_module_freeze(net, "*", true);
    mlc_optim *opt = mlc_sgd(net, 0.1);
    d.bucket = 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    mlc_scope_begin(j->ctx);
    if (j->kind) mlc_backward(loss_of(net, MLC_F64, 0, j->comm.rank, j->comm.size));
    j->status = mlc_scope_end(j->ctx);
    if (j->kind && j->comm.rank == 1) mlc_module_free(net);
    else if (j->status == MLC_OK) j->status = mlc_optim_step(opt);
    j->values = 1;
}

TEST(parallel, a_network_without_gradients_steps_and_one_that_is_freed_leaves)
{
    static rank_job jobs[RANKS];
    ONLY_ON_HOST();
    run_ranks(3, nothing, 0, 0, jobs);
    all_well(jobs, 3);
    for (int r = 0; r < 3; r++) CHECK_EQ(jobs[r].values, 1);
    run_ranks(3, nothing, 1, 0, jobs);
    for (int r = 0; r < 3; r += 2) CHECK_EQ(jobs[r].status, MLC_ERR_STATE);
    for (int r = 0; r < 3; r += 2) CHECK_HAS(jobs[r].message, "rank 1 has left in call");
}

/* ---- dropout and norms of all ranks ---------------------------------------------------------*/

/* Networks as in the examples digits, digits_cnn and char_gpt, small; a residual block of norms. */
enum { DIGITS, CNN, GPT, BLOCK, NETS };
enum { SIDE = 6, VOCABULARY = 11, TOKENS = 7 };

static mlc_module *conv3(mlc_ctx *ctx, int64_t in, int64_t out)
{
    return mlc_nn_conv2d(ctx, in, out, 3, 1, 1);
}

static mlc_module *joint_net(mlc_ctx *ctx, int kind)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(VOCABULARY, TOKENS, 2, 8, 2);
    mlc_module     *net = mlc_nn_sequential(ctx);
    if (kind == GPT) return mlc_nn_gpt(ctx, &d);
    if (kind == DIGITS) {
        mlc_module_add(net, mlc_nn_flatten(ctx));
        mlc_module_add(net, mlc_nn_linear(ctx, SIDE * SIDE, HIDDEN));
        mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_module_add(net, mlc_nn_dropout(ctx, 0.2));
        mlc_module_add(net, mlc_nn_linear(ctx, HIDDEN, OUT));
        return net;
    }
    mlc_module_add(net, conv3(ctx, 1, 4));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, 4));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, kind == BLOCK ? mlc_nn_basic_block(ctx, 4, 4, 1) : conv3(ctx, 4, 4));
    if (kind == CNN) mlc_module_add(net, mlc_nn_batch_norm(ctx, 4));
    mlc_module_add(net, mlc_nn_max_pool2d(ctx, 2));
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, SIDE * SIDE));        /* of features [n,c] */
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.3));
    mlc_module_add(net, mlc_nn_linear(ctx, SIDE * SIDE, OUT));
    return net;
}

/* Loss of the rank's rows of step t. */
static mlc_tensor *joint_loss(mlc_module *net, int kind, mlc_dtype dtype, int t,
                              const mlc_comm *comm, int *rows)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    double   x[ROWS * SIDE * SIDE];
    int64_t  y[ROWS * TOKENS], token[ROWS * TOKENS];
    int      n = 0;
    for (int i = comm->rank; i < ROWS; i += comm->size, n++) {
        for (int k = 0; k < SIDE * SIDE; k++) x[n * SIDE * SIDE + k] = datum(t, i, k);
        for (int k = 0; k < TOKENS; k++) {
            token[n * TOKENS + k] = (i * 5 + k * (t + 2)) % VOCABULARY;
            y[n * TOKENS + k] = (i * 5 + (k + 1) * (t + 2)) % VOCABULARY;
        }
        if (kind != GPT) y[n] = (i + t) % OUT;
    }
    *rows = n;
    if (kind == GPT)
        return mlc_cross_entropy(mlc_forward(net, mlc_from(ctx, MLC_I64, mlc_dims2(n, TOKENS),
                                                           token)),
                                 mlc_from(ctx, MLC_I64, mlc_dims2(n, TOKENS), y));
    mlc_tensor *in = mlc_cast(mlc_from(ctx, MLC_F64, mlc_dims4(n, 1, SIDE, SIDE), x), dtype);
    return mlc_cross_entropy(mlc_forward(net, in), mlc_from(ctx, MLC_I64, mlc_dims1(n), y));
}

/* kind: the network, + SINGLE for f32, + LOCAL for norms and draws of each rank's own */
enum { LOCAL = 64 };

static void joint(rank_job *j)
{
    const int         kind = j->kind & 7;
    const mlc_dtype   dtype = j->kind & SINGLE ? MLC_F32 : MLC_F64;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = joint_net(j->ctx, kind);
    mlc_seed(j->ctx, 3 + (uint64_t)j->comm.rank);
    mlc_module_to(net, dtype);
    mlc_optim *opt = mlc_sgd(net, 0.1);
    d.dropout_by_row = d.sync_norms = !(j->kind & LOCAL);
    d.weighted = true;
    d.bucket = 200;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS; t++) {
        int           rows;
        double        sum = 0;
        mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_F64, 1, &sum);
        mlc_scope_begin(j->ctx);
        mlc_tensor *loss = joint_loss(net, kind, dtype, t, &j->comm, &rows);
        mlc_data_parallel_weight(opt, rows);
        mlc_backward(loss);
        mlc_optim_step(opt);
        sum = rows * mlc_item(loss) / ROWS;
        if (mlc_scope_end(j->ctx) != MLC_OK || mlc_comm_run(j->ctx, &j->comm, &c) != MLC_OK) return;
        j->value[j->values++] = sum;
    }
    keep_params(j, net);               /* buffers, too: the statistics */
    mlc_data_parallel_end(opt);
}

TEST(parallel, dropout_by_row_and_norms_of_all_ranks_train_as_one_process)
{
    static rank_job one, jobs[RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind < NETS; kind++)
        for (int single = 0; single <= SINGLE; single += SINGLE) {
            run_ranks(1, joint, kind | single, 0, &one);
            for (int n = 2; n <= RANKS; n++) {             /* 5 ranks: 3 rows, or 2 */
                run_ranks(n, joint, kind | single, 0, jobs);
                same_values(jobs, n, &one, single ? 1e-5 : 1e-10);
            }
        }
}

TEST(parallel, without_them_ranks_draw_and_norm_by_themselves)
{
    static rank_job one, jobs[RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind < NETS; kind++) {
        run_ranks(1, joint, kind, 0, &one);
        run_ranks(3, joint, kind | LOCAL, 0, jobs);
        all_well(jobs, 3);
        CHECK(fabs(jobs[0].value[STEPS - 1] - one.value[STEPS - 1]) > 1e-4);
        CHECK(fabs(jobs[0].value[STEPS - 1] - one.value[STEPS - 1]) < 1);
    }
}

/* Errors of what goes with them; kind 1: rank 1 has left when a batch norm asks for its rows. */
static void joint_errors(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = joint_net(j->ctx, CNN);
    mlc_optim        *opt = mlc_sgd(net, 0.1);
    int               rows;
    d.sync_norms = true;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    if (j->comm.rank == 1) return;
    mlc_scope_begin(j->ctx);
    joint_loss(net, CNN, MLC_F32, 0, &j->comm, &rows);
    j->status = mlc_scope_end(j->ctx);
    snprintf((char *)j->value, sizeof j->value, "%s", mlc_error(j->ctx));
}

TEST(parallel, a_batch_norm_whose_ranks_left_fails_with_the_ranks_name)
{
    static rank_job jobs[RANKS];
    ONLY_ON_HOST();
    run_ranks(3, joint_errors, 1, 0, jobs);
    for (int r = 0; r < 3; r += 2) {
        CHECK_EQ(jobs[r].status, MLC_ERR_STATE);
        CHECK_HAS((const char *)jobs[r].value, "batch_norm: rank ");
        CHECK_HAS((const char *)jobs[r].value, "rank 1 has left before call ");
    }
}

/* ---- networks of examples, on their data ----------------------------------------------------*/

enum { EXAMPLE_CNN, EXAMPLE_GPT, EXAMPLES, CONTEXT = 16 };

static mlc_module *example_conv(mlc_ctx *ctx, int64_t in, int64_t out, int64_t kernel)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(2, in, out, kernel);
    d.conv.same = true;
    d.no_bias = true;
    return mlc_nn_conv(ctx, &d);
}

/* Those of examples/digits_cnn.c, and of examples/char_gpt.c with smaller sizes. */
static mlc_module *example_net(mlc_ctx *ctx, int kind, int64_t vocabulary)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(vocabulary, CONTEXT, 2, 64, 2);
    d.layer.dropout = 0.1;
    if (kind == EXAMPLE_GPT) return mlc_nn_gpt(ctx, &d);
    return MLC_SEQUENTIAL(
        ctx, example_conv(ctx, 1, 32, 5), mlc_nn_batch_norm(ctx, 32), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2),
        example_conv(ctx, 32, 64, 3), mlc_nn_batch_norm(ctx, 64), mlc_nn_relu(ctx),
        example_conv(ctx, 64, 64, 3), mlc_nn_batch_norm(ctx, 64), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx), mlc_nn_dropout(ctx, 0.3),
        mlc_nn_linear(ctx, 64 * 2 * 2, 10));
}

static mlc_optim *example_rule(mlc_module *net, int kind)
{
    mlc_adam_desc a = mlc_adamw_desc_make(2e-3);
    mlc_clip_desc clip = mlc_clip_desc_make();
    a.weight_decay = 0.05;
    clip.norm = 1;
    if (kind == EXAMPLE_CNN) return mlc_adamw(net, 3e-3);
    mlc_optim *opt = mlc_adamw_ex(net, &a);
    mlc_optim_clip(opt, &clip);
    return opt;
}

/* The rank's rows of step t. */
static mlc_tensor *mine(mlc_tensor *x, int t, const mlc_comm *comm)
{
    return mlc_slice(mlc_rows(x, t * ROWS, (t + 1) * ROWS), 0, comm->rank, ROWS, comm->size);
}

/* data: the table of digits.csv, or the tokens of a text. */
static mlc_tensor *example_loss(mlc_module *net, int kind, mlc_dtype dtype, mlc_tensor *data, int t,
                                const mlc_comm *comm)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    const int64_t          n = mlc_dim(data, 0);
    d.label_smoothing = 0.1;
    if (kind == EXAMPLE_CNN) {
        mlc_tensor *rows = mine(data, t, comm), *x = mlc_slice(rows, 1, 0, 64, 1);
        x = mlc_reshape(mlc_cast(mlc_mul_scalar(x, 1.0 / 16), dtype),
                        mlc_dims4(ROWS / comm->size, 1, 8, 8));
        return mlc_cross_entropy_ex(mlc_forward(net, x),
                                    mlc_cast(mlc_select(rows, 1, 64), MLC_I64), &d);
    }
    mlc_tensor *x = mlc_unfold(mlc_rows(data, 0, n - 1), 0, CONTEXT, CONTEXT / 4);
    mlc_tensor *y = mlc_unfold(mlc_rows(data, 1, n), 0, CONTEXT, CONTEXT / 4);
    return mlc_cross_entropy(mlc_forward(net, mine(x, t, comm)), mine(y, t, comm));
}

/* Keeps the losses of the whole batches. */
static void example(rank_job *j)
{
    const int         kind = j->kind & ~SINGLE;
    const mlc_dtype   dtype = j->kind & SINGLE ? MLC_F32 : MLC_F64;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    corpus            c = {NULL, 0, 0, {0}};
    if (!corpus_read(&c, "examples/data/alice.txt")) return;
    mlc_tensor *data = kind == EXAMPLE_GPT ? mlc_from(j->ctx, MLC_I64, mlc_dims1(4096), c.token) :
                                             mlc_csv_load(j->ctx, "examples/data/digits.csv", NULL);
    mlc_module *net = example_net(j->ctx, kind, c.vocabulary);
    free(c.token);
    mlc_seed(j->ctx, 3 + (uint64_t)j->comm.rank);
    mlc_module_to(net, dtype);
    mlc_optim *opt = example_rule(net, kind);
    d.dropout_by_row = d.sync_norms = true;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS; t++) {
        double       *loss = &j->value[j->values++];
        mlc_comm_call all = call_of(MLC_ALL_REDUCE, MLC_F64, 1, loss);
        mlc_scope_begin(j->ctx);
        mlc_tensor *mean = example_loss(net, kind, dtype, data, t, &j->comm);
        mlc_backward(mean);
        mlc_optim_step(opt);
        *loss = mlc_item(mean) / j->comm.size;
        if (mlc_scope_end(j->ctx) != MLC_OK || mlc_comm_run(j->ctx, &j->comm, &all)) return;
    }
    mlc_data_parallel_end(opt);
}

TEST(parallel, networks_of_examples_have_the_losses_of_one_process)
{
    static rank_job one, jobs[RANKS];
    ONLY_ON_HOST();
    for (int kind = 0; kind < EXAMPLES; kind++)
        for (int single = 0; single <= SINGLE; single += SINGLE) {
            run_ranks(1, example, kind | single, 0, &one);
            CHECK(one.values == STEPS && one.value[STEPS - 1] < one.value[0]);
            for (int n = 2; n <= 4; n++) {
                run_ranks(n, example, kind | single, 0, jobs);
                same_values(jobs, n, &one, single ? 1e-5 : 1e-10);
            }
        }
}

/* ---- bf16 on the wire -----------------------------------------------------------------------*/

static void wired(rank_job *j)
{
    float             g[3][VALUES];
    uint16_t          h[VALUES];
    const mlc_comm_call c = call_of(MLC_ALL_REDUCE, MLC_BF16, VALUES, h);
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < VALUES; i++) g[r][i] = odd(r, i);
    mlc_tensor *t = mlc_from(j->ctx, MLC_F32, mlc_dims1(VALUES), g[j->comm.rank]);
    t = mlc_cast(t, MLC_BF16);
    memcpy(h, mlc_bf16(t), sizeof h);
    if (mlc_comm_run(j->ctx, &j->comm, &c) != MLC_OK) return;
    memcpy(mlc_bf16(t), h, sizeof h);
    t = mlc_cast(t, MLC_F32);
    for (int i = 0; i < VALUES; i++) {           /* the error, in shares of what is allowed */
        const double sum = (double)g[0][i] + (double)g[1][i] + (double)g[2][i], u = 1.0 / 256;
        const double all = fabs((double)g[0][i]) + fabs((double)g[1][i]) + fabs((double)g[2][i]);
        j->value[i] = fabs((double)mlc_f32(t)[i] - sum) / (2 * u * all * (1 + u));
    }
    j->values = VALUES;
}

TEST(comm, sums_of_bf16_are_within_their_bound)
{
    rank_job jobs[RANKS];
    double   most = 0;
    ONLY_ON_HOST();
    run_ranks(3, wired, 0, 0, jobs);
    all_well(jobs, 3);
    for (int r = 0; r < 3; r++) {
        CHECK_EQ(jobs[r].values, VALUES);
        CHECK(!memcmp(jobs[r].value, jobs[0].value, sizeof jobs[r].value));
    }
    for (int i = 0; i < VALUES; i++) most = fmax(most, jobs[0].value[i]);
    CHECK(most <= 1 && most > 0.1);
}

/* One step by SGD at rate 1, from the same parameters; kind: bf16 on the wire. */
static void wire_step(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_optim        *opt = mlc_sgd(net, 1);
    d.wire = j->kind ? MLC_BF16 : MLC_F32;
    d.bucket = 64;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    keep_params(j, net);
    const int n = j->values;
    mlc_scope_begin(j->ctx);
    mlc_backward(loss_of(net, MLC_F32, 0, j->comm.rank, j->comm.size));
    mlc_optim_step(opt);
    mlc_scope_end(j->ctx);
    keep_params(j, net);
    for (int i = 0; i < n; i++) j->value[i] -= j->value[n + i];      /* the gradient */
    j->values = n;
}

TEST(parallel, gradients_travel_as_bf16)
{
    static rank_job wide[RANKS], low[RANKS];
    double most = 0, scale = 0;
    ONLY_ON_HOST();
    run_ranks(3, wire_step, 0, 0, wide);
    run_ranks(3, wire_step, 1, 0, low);
    all_well(wide, 3);
    same_values(low, 3, &low[0], 0);
    for (int i = 0; i < low[0].values; i++) {
        most = fmax(most, fabs(low[0].value[i] - wide[0].value[i]));
        scale = fmax(scale, fabs(wide[0].value[i]));
    }
    CHECK(most > 0 && most < scale * 3 / 256);
}

/* ---- all of them together -------------------------------------------------------------------*/

/* Bits of `kind` beside the network: what is on, and above these desc.shard. */
enum { HALF_WIRE = 8, NO_OVERLAP = 16, FOR_ALL = 32, SKIPS = 64, BY_ADAM = 128, PART = 256 };

static mlc_parallel_desc together_desc(int kind)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    d.shard = kind / PART;
    d.dropout_by_row = d.sync_norms = (kind & FOR_ALL) != 0;
    d.wire = kind & HALF_WIRE ? MLC_BF16 : MLC_F32;
    d.overlap = !(kind & NO_OVERLAP);
    d.weighted = true;
    d.bucket = 200;
    return d;
}

/* A training with a clip of norm and a scaler. With SKIPS the last rank has an infinite loss in
 * step 2, and in step 3 no rank has a weight. */
static void together(rank_job *j)
{
    const int               kind = j->kind & 3;
    const mlc_parallel_desc d = together_desc(j->kind);
    mlc_module             *net = joint_net(j->ctx, kind);
    mlc_seed(j->ctx, 3 + (uint64_t)j->comm.rank);
    mlc_module_build(net);
    mlc_optim *opt = rule_of(net, CLIP | (j->kind & BY_ADAM ? ADAM : PLAIN));
    mlc_optim_scaler(opt, NULL);
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS; t++) {
        int rows;
        mlc_scope_begin(j->ctx);
        mlc_tensor *loss = joint_loss(net, kind, MLC_F32, t, &j->comm, &rows);
        mlc_data_parallel_weight(opt, j->kind & SKIPS && t == 3 ? 0 : rows);
        if (j->kind & SKIPS && t == 2 && j->comm.rank == j->comm.size - 1)
            loss = mlc_mul_scalar(loss, 1e37);
        mlc_backward(mlc_optim_scaled(opt, loss));
        mlc_optim_step(opt);
        if (mlc_scope_end(j->ctx) != MLC_OK) return;
    }
    j->value[j->values++] = mlc_optim_grad_norm(opt);
    j->value[j->values++] = mlc_optim_scaler_state(opt).scale;
    j->value[j->values++] = (double)mlc_optim_steps(opt);
    keep_params(j, net);
    if (mlc_data_parallel_end(opt) == MLC_OK && mlc_ctx_status(j->ctx) == MLC_OK) return;
    j->values = 0;
}

TEST(parallel, parts_norms_rows_bf16_and_skipped_steps_go_together)
{
    static const int more[] = {FOR_ALL, FOR_ALL | SKIPS, FOR_ALL | NO_OVERLAP | BY_ADAM,
                               FOR_ALL | HALF_WIRE, HALF_WIRE | SKIPS, HALF_WIRE | NO_OVERLAP,
                               FOR_ALL | HALF_WIRE | SKIPS | BY_ADAM};
    static rank_job one, jobs[RANKS], parts[RANKS];
    ONLY_ON_HOST();
    for (int net = 0; net < NETS; net++)
        for (int k = 0; k < COUNT(more); k++)
            for (int n = 1; n <= RANKS; n += n == 1 ? 1 : 3) {
                run_ranks(n, together, net | more[k], 0, jobs);
                all_well(jobs, n);
                CHECK_EQ((int)jobs[0].value[2], STEPS - (more[k] & SKIPS ? 2 : 0));
                if (n == 1) one = jobs[0];
                if (n > 1 && !(more[k] & (HALF_WIRE | BY_ADAM)))
                    CHECK_NEAR(jobs[0].value[0], one.value[0], 1e-3 * one.value[0]);
                for (int shard = 1; shard <= (more[k] & HALF_WIRE ? 1 : 2); shard++) {
                    run_ranks(n, together, net | more[k] | shard * PART, 0, parts);
                    all_well(parts, n);
                    for (int r = 0; r < n; r++)
                        CHECK(!memcmp(parts[r].value, jobs[r].value, sizeof jobs[r].value));
                }
            }
}

/* ---- lack of memory -------------------------------------------------------------------------*/

static mlc_status scarce_step(mlc_module *net, mlc_optim *opt, int t)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *loss = loss_of(net, MLC_F32, t, 0, 1);
    if (mlc_backward(loss) == MLC_OK) mlc_optim_step(opt);
    return mlc_scope_end(ctx);
}

/* One rank, whose network gets a new layout while allocation n fails. Tells whether one failed. */
static bool scarce_layout(const mlc_parallel_desc *d, int64_t n)
{
    tally              mem;
    mlc_comm           comm;
    const mlc_ctx_desc own = tally_desc(&mem);
    mlc_ctx           *ctx = mlc_ctx_create(&own);
    mlc_module        *net = mlp(ctx, IN, HIDDEN, OUT);
    mlc_module_freeze(net, "0.*", true);
    mlc_optim *opt = rule_of(net, ADAM);
    CHECK_EQ(mlc_comm_threads(ctx, 1, NULL, &comm), MLC_OK);
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, d), MLC_OK);
    CHECK_EQ(scarce_step(net, opt, 0), MLC_OK);
    mlc_module_freeze(net, "0.*", false);
    mem.fail_at = mem.calls + 1 + n;
    const mlc_status st = scarce_step(net, opt, 1);
    mem.fail_at = 0;
    if (st != MLC_OK) CHECK_EQ(st, MLC_ERR_NOMEM);
    mlc_error_clear(ctx);
    mlc_optim_zero_grad(opt);
    CHECK_EQ(scarce_step(net, opt, 2), MLC_OK);
    CHECK_EQ(mlc_data_parallel_end(opt), MLC_OK);
    CHECK_EQ(scarce_step(net, opt, 3), MLC_OK);
    tally_done(&mem, ctx);
    return st != MLC_OK;
}

TEST(parallel, a_new_layout_that_lacks_memory_is_made_by_the_next_step)
{
    ONLY_ON_HOST();
    for (int kind = 0; kind < 4; kind++) {
        mlc_parallel_desc d = mlc_parallel_desc_make();
        int64_t           n = 0;
        d.shard = kind < 3 ? kind : 0;
        d.wire = kind < 2 ? MLC_BF16 : MLC_F32;
        d.dropout_by_row = d.sync_norms = kind == 3;
        d.bucket = 1;
        while (n < 400 && scarce_layout(&d, n)) n++;
        CHECK(n > 3 && n < 400);
    }
}

/* ---- faults ---------------------------------------------------------------------------------*/

enum { STOPS = 1, DIES, SAVED = 4 };    /* rank 1 before step SAVED; 0: nobody                   */

static const char *fault_file;

static bool fault_file_is(void)
{
    FILE *f = fopen(fault_file, "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* Trains from the file of before, if there is one; rank 0 writes it after each step. */
static void disturbed(rank_job *j)
{
    int          done = 0, more = 0;
    mlc_run_part part = {"steps", &done, sizeof done};
    mlc_run      run = {NULL, NULL, NULL, NULL, NULL, &part, 1, NULL};
    mlc_module  *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_module_to(net, MLC_F64);
    mlc_optim   *opt = rule_of(net, ADAM);
    run.net = net;
    run.optim = opt;
    if (fault_file_is() && mlc_run_load(j->ctx, fault_file, &run) != MLC_OK) return;
    if (mlc_data_parallel(net, opt, &j->comm, NULL) != MLC_OK) return;
    for (; done < STEPS && j->status == MLC_OK; done++) {
        if (j->comm.rank == 1 && done == SAVED && j->kind == DIES) return;
        if (j->comm.rank == 1 && done == SAVED && j->kind == STOPS) await_two_failures();
        mlc_scope_begin(j->ctx);
        mlc_backward(loss_of(net, MLC_F64, done, j->comm.rank, j->comm.size));
        mlc_optim_step(opt);
        j->status = mlc_scope_end(j->ctx);
        more = done + 1;
        if (j->status == MLC_OK && j->comm.rank == 0) {
            part.data = &more;
            j->status = mlc_run_save(j->ctx, fault_file, &run);
        }
    }
    __atomic_add_fetch(&failures, j->status != MLC_OK, __ATOMIC_RELEASE);
    if (j->status == MLC_OK) keep_params(j, net);
    else snprintf((char *)j->value, sizeof j->value, "%s", mlc_error(j->ctx));
}

TEST(parallel, after_a_rank_stops_or_dies_the_same_call_goes_on_from_the_last_file)
{
    static const char *const says[] = {"", "rank 1 has not come to call ", "rank 1 has left"};
    static rank_job whole[RANKS], jobs[RANKS];
    ONLY_ON_HOST();
    const box b = box_open("ranks.safetensors");
    fault_file = b.path;
    run_ranks(3, disturbed, 0, 0, whole);
    all_well(whole, 3);
    for (int kind = STOPS; kind <= DIES; kind++) {
        remove(fault_file);
        failures = 0;
        run_ranks(3, disturbed, kind, kind == STOPS ? 0.25 : 0, jobs);
        for (int r = 0; r < 3; r += 2) {
            CHECK_EQ(jobs[r].status, MLC_ERR_STATE);
            CHECK_HAS((const char *)jobs[r].value, says[kind]);
        }
        run_ranks(3, disturbed, 0, 0, jobs);
        same_values(jobs, 3, &whole[0], 0);
    }
    box_close(&b);
}

/* ---- errors ---------------------------------------------------------------------------------*/

enum { OTHER_SHAPE, OTHER_COUNT, OTHER_RULE, OTHER_DTYPE, OTHER_RATE, HALF, UNEVEN, WEIGHT,
       TWICE_BACKWARD, FREED, FAULTS };

static void faulty(rank_job *j)
{
    const bool  odd_one = j->comm.rank == 1;
    mlc_module *net = mlp(j->ctx, IN, odd_one && j->kind == OTHER_SHAPE ? 8 : HIDDEN, OUT);
    if (odd_one && j->kind == OTHER_COUNT) mlc_module_add(net, mlc_nn_linear(j->ctx, OUT, OUT));
    if (odd_one && j->kind == OTHER_DTYPE) mlc_module_to(net, MLC_F64);
    if (j->kind == OTHER_COUNT && j->comm.rank == 2) net = mlp(j->ctx, IN, 8, OUT);
    if (j->kind == HALF) mlc_module_to(net, MLC_BF16);
    mlc_optim *opt = odd_one && j->kind == OTHER_RULE ? mlc_adam(net, 0.1) :
                     mlc_sgd(net, odd_one && j->kind == OTHER_RATE ? 0.2 : 0.1);
    mlc_parallel_desc d = mlc_parallel_desc_make();
    d.weighted = j->kind == WEIGHT;
    if (j->kind == WEIGHT) d.bucket = 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    if (j->kind == UNEVEN) {
        mlc_optim_accumulate(opt, 3);
        for (int k = 0; k <= j->comm.rank; k++) mlc_optim_step(opt);      /* rank 1: the mean */
        j->status = mlc_optim_flush(opt);
        return;
    }
    mlc_scope_begin(j->ctx);
    mlc_backward(loss_of(net, MLC_F32, 0, j->comm.rank, j->comm.size));
    if (j->kind == TWICE_BACKWARD)
        mlc_backward(loss_of(net, MLC_F32, 1, j->comm.rank, j->comm.size));
    if (j->kind == WEIGHT) {
        j->status = mlc_data_parallel_weight(opt, 2);
        snprintf((char *)j->value, sizeof j->value, "%s", mlc_error(j->ctx));
        mlc_error_clear(j->ctx);
        mlc_optim_step(opt);           /* goes on with the weights that it has */
        mlc_scope_end(j->ctx);
        j->values = mlc_ctx_status(j->ctx) == MLC_OK;
        return;
    }
    if (odd_one && j->kind == FREED) mlc_optim_free(opt);
    else j->status = mlc_optim_step(opt);
    mlc_scope_end(j->ctx);
}

TEST(parallel, ranks_that_differ_or_fail_are_named_to_all)
{
    static const mlc_status want[FAULTS] = {MLC_ERR_VALUE, MLC_ERR_VALUE, MLC_ERR_VALUE,
                                            MLC_ERR_VALUE, MLC_ERR_VALUE, MLC_ERR_UNSUPPORTED,
                                            MLC_ERR_STATE, MLC_ERR_STATE, MLC_ERR_STATE,
                                            MLC_ERR_STATE};
    static const char *const says[FAULTS][2] = {
        {"rank 1 has another network, rule or desc than rank 0",
         "parameter 0 is not rank 0's: this is rank 1, with '0.weight' f32 [8,6]"},
        {"rank 1 has 6 parameters and buffers, rank 0 4",
         "rank 1 has 6 parameters and buffers, rank 0 4"},
        {"rank 1 has another network, rule or desc", "rank 1 has another network, rule or desc"},
        {"rank 1 has another network", "this is rank 1, with '0.weight' f64 [9,6]"},
        {"rank 1 has another network, rule or desc than rank 0, another rate",
         "rank 1 has another network, rule or desc than rank 0, another rate"},
        {"is bf16: gradients that are summed are f32 or f64", "is bf16: gradients"},
        {"calls, other ranks of another number", "rank 1 has collected gradients of 2 calls"},
        {"call it before backward", "call it before backward"},
        {"", ""}, {"rank 1 has left", ""}};
    static rank_job jobs[RANKS];
    int late = 0;
    ONLY_ON_HOST();
    for (int k = 0; k < FAULTS; k++) {
        run_ranks(3, faulty, k, 0, jobs);
        for (int r = 0; r < 3; r++) {
            if (k == FREED && r == 1) continue;
            CHECK_EQ(jobs[r].status, want[k]);
            CHECK_HAS(k == WEIGHT ? (const char *)jobs[r].value : jobs[r].message, says[k][r == 1]);
            CHECK(k != WEIGHT || jobs[r].values);
            late += strstr(jobs[r].message, "a gradient grew after its sum over ranks") != NULL;
            CHECK(k != TWICE_BACKWARD || late > 0 || strstr(jobs[r].message, "has left in call"));
        }
        CHECK_EQ(late > 0, k >= TWICE_BACKWARD);           /* the first one; others see it leave */
    }
}

/* kind 1: ranks have collected different numbers of calls, an error, and forget them; + LATE. */
static void forgets_calls(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlp(j->ctx, IN, HIDDEN, OUT);
    mlc_module_to(net, MLC_F64);
    mlc_optim *opt = rule_of(net, PLAIN);
    d.overlap = !(j->kind & LATE);
    d.bucket = 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    if (j->kind & 1) {
        mlc_optim_accumulate(opt, RANKS);
        for (int k = 0; k <= j->comm.rank; k++) mlc_optim_step(opt);
        if (mlc_optim_flush(opt) != MLC_ERR_STATE) j->status = MLC_ERR_INTERNAL;
        mlc_error_clear(j->ctx);
        mlc_optim_zero_grad(opt);
        mlc_optim_accumulate(opt, 1);
    }
    steps(j, net, opt, 0, STEPS);
    keep_params(j, net);
}

TEST(parallel, ranks_that_forget_different_numbers_of_calls_go_on)
{
    static rank_job want[RANKS], jobs[RANKS];
    ONLY_ON_HOST();
    for (int late = 0; late <= LATE; late += LATE) {
        run_ranks(3, forgets_calls, late, 0, want);
        run_ranks(3, forgets_calls, late | 1, 0, jobs);
        all_well(want, 3);
        same_values(jobs, 3, &want[0], 0);
    }
}

/* A step of mlc_lr_range that ends the ranks. */
static double ends(void *user) { return mlc_data_parallel_end((mlc_optim *)user); }

TEST(parallel, arguments_that_cannot_be_are_errors_and_change_nothing)
{
    mlc_ctx          *ctx = test_ctx();
    mlc_comm          comm;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlp(ctx, IN, HIDDEN, OUT), *other = mlp(ctx, IN, HIDDEN, OUT);
    mlc_optim        *opt = mlc_sgd(net, 0.1);
    ONLY_ON_HOST();
    CHECK(d.bucket == 4 << 20 && d.micro == 1 && d.overlap && !d.weighted);
    CHECK(!d.dropout_by_row && !d.sync_norms && d.wire == MLC_F32);
    CHECK_EQ(mlc_comm_threads(ctx, 1, NULL, &comm), MLC_OK);
    CHECK_EQ(mlc_data_parallel(net, NULL, &comm, &d), MLC_ERR_ARG);
    CHECK_EQ(mlc_data_parallel(net, opt, NULL, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "it needs a network, and a connection");
    CHECK_EQ(mlc_data_parallel(other, opt, &comm, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the optimizer is of another network");
    d.bucket = 0;
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bucket 0, micro 1: both must be over 0");
    d.bucket = 1;
    d.micro = 3;
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "micro 3: both must be over 0, micro a power of 2");
    d.micro = 2;
    d.weighted = true;
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "micro 2 and weighted");
    d.weighted = false;
    d.sync_norms = true;
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "micro 2 and sync_norms");
    d.micro = 1;
    d.wire = MLC_F16;
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "wire is f16; it is f32 or bf16");
    d.wire = MLC_F32;
    mlc_optim *second = mlc_sgd(other, 0.1);
    CHECK_EQ(mlc_data_parallel(other, second, &comm, &d), MLC_OK);
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, &d), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "another optimizer of the context has dropout_by_row");
    mlc_optim_free(second);
    CHECK_EQ(mlc_data_parallel_weight(opt, 1), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "not parallel, or its desc not weighted");
    CHECK_EQ(mlc_data_parallel_end(opt), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "the optimizer is not parallel");
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, NULL), MLC_OK);
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "parallel already");
    CHECK_EQ(mlc_optim_noise(opt, 0.1, 0.55), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "noise would change them before their sum");
    CHECK_EQ(mlc_optim_noise(opt, 0, 0), MLC_OK);
    double rates[8], losses[8];
    const mlc_lr_range_desc range = mlc_lr_range_desc_make(rates, losses, 8);
    CHECK_EQ(mlc_lr_range(opt, &range, ends, opt, NULL, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "data_parallel_end: mlc_lr_range is trying rates");
    CHECK_EQ(mlc_data_parallel_end(opt), MLC_OK);
    CHECK_EQ(mlc_optim_noise(opt, 0.1, 0.55), MLC_OK);
    CHECK_EQ(mlc_data_parallel(net, opt, &comm, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "mlc_optim_noise changes gradients before their sum");
    mlc_optim *far = mlc_lbfgs(other, 1);
    CHECK_EQ(mlc_data_parallel(other, far, &comm, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "lbfgs makes the loss several times");
    CHECK_OK(ctx);
}
#endif
