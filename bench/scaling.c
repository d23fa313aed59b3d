/* scaling.c -- steps of ranks, what they are made of, for bench/scaling.py
 *
 *   cc -O2 -I. -DMLCORE_IMPLEMENTATION bench/scaling.c -lm -lpthread          threads
 *   mpicc -O2 -I. -DMLC_USE_MPI -DMLCORE_IMPLEMENTATION bench/scaling.c ..    mpirun -n N
 *
 *   scaling MODE RANKS BATCH HIDDEN LAYERS BUCKET     one line: "step MS", the median of steps of
 *                                                     rank 0; LAYERS hidden ones after the first
 *     MODE  alone     networks side by side that do not know of each other
 *           overlap   sums begin while backward runs
 *           late      sums begin in the step
 *           bf16      overlap, as bf16
 *           sums      all-reduces of 4 bytes to 16 MiB: lines "sum BYTES MS" */
#define _POSIX_C_SOURCE 200809L
#include "../mlcore.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef MLC_USE_MPI
#  include <mpi.h>
#endif

enum { MOST = 64, STEPS = 41, WARM = 6, PIXELS = 784 };

typedef struct job {
    const char *mode;
    int64_t     batch, hidden, layers, bucket;
    mlc_comm    comm;
    int         failed;
} job;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

static mlc_status meet(mlc_ctx *ctx, const mlc_comm *comm)
{
    const mlc_comm_call c = { MLC_BARRIER, MLC_COMBINE_SUM, MLC_F32, 0, 0, NULL };
    return mlc_comm_run(ctx, comm, &c);
}

/* All-reduces of several sizes, each the median of 15. A time ends when all ranks have the sum, as
 * a rank's own part may still be in buffers of the kernel, and is less a barrier. */
static mlc_status sums(mlc_ctx *ctx, const mlc_comm *comm)
{
    float     *data = (float *)calloc(4 << 20, sizeof(float));
    mlc_status st   = data ? MLC_OK : MLC_ERR_NOMEM;
    for (int64_t n = 1; n <= 4 << 20 && st == MLC_OK; n *= 4) {
        double              ms[15];
        const mlc_comm_call c = { MLC_ALL_REDUCE, MLC_COMBINE_SUM, MLC_F32, 0, n, data };
        for (int i = 0; i < 15 && st == MLC_OK; i++) {
            st = meet(ctx, comm);
            const double began = now_ms();
            if (st == MLC_OK) st = meet(ctx, comm);
            const double met = now_ms();
            if (st == MLC_OK) st = mlc_comm_run(ctx, comm, &c);
            if (st == MLC_OK) st = meet(ctx, comm);
            ms[i] = now_ms() - met - (met - began);
        }
        if (st == MLC_OK && comm->rank == 0)
            printf("sum %lld %.4f\n", (long long)n * 4, median(ms, 15));
    }
    free(data);
    return st;
}

static mlc_status train(mlc_ctx *ctx, const job *j)
{
    double            ms[STEPS];
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_tensor       *x = mlc_randn(ctx, MLC_F32, mlc_dims2(j->batch, PIXELS));
    mlc_tensor       *y = mlc_randint(ctx, MLC_I64, mlc_dims1(j->batch), 0, 10);
    mlc_module       *net = mlc_nn_sequential(ctx);
    for (int64_t i = 0; i <= j->layers; i++) {
        mlc_module_add(net, mlc_nn_linear(ctx, i ? j->hidden : PIXELS, j->hidden));
        mlc_module_add(net, mlc_nn_relu(ctx));
    }
    mlc_module_add(net, mlc_nn_linear(ctx, j->hidden, 10));
    mlc_optim *opt = mlc_sgd(net, 1e-3);
    d.overlap = strcmp(j->mode, "late") != 0;
    d.wire = strcmp(j->mode, "bf16") == 0 ? MLC_BF16 : MLC_F32;
    d.bucket = j->bucket;
    if (strcmp(j->mode, "alone") != 0 && mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK)
        return mlc_ctx_status(ctx);
    for (int i = -WARM; i < STEPS; i++) {
        const double began = now_ms();
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, x), y));
        if (mlc_scope_end(ctx) != MLC_OK) return mlc_ctx_status(ctx);
        if (i >= 0) ms[i] = now_ms() - began;
    }
    if (j->comm.rank == 0) printf("step %.4f\n", median(ms, STEPS));
    return meet(ctx, &j->comm);        /* a rank that ends early would leave the others alone */
}

static void *run(void *of)
{
    job         *j = (job *)of;
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = 1;
    mlc_ctx   *ctx = mlc_ctx_create(&d);
    mlc_status st  = strcmp(j->mode, "sums") == 0 ? sums(ctx, &j->comm) : train(ctx, j);
    if (st == MLC_OK) st = mlc_ctx_status(ctx);
    j->failed = st != MLC_OK;
    if (j->failed) fprintf(stderr, "scaling: rank %d: %s\n", j->comm.rank, mlc_error(ctx));
#ifdef MLC_USE_MPI
    if (j->failed) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
    mlc_comm_leave(&j->comm);
    mlc_ctx_free(ctx);
    return NULL;
}

int main(int argc, char **argv)
{
    const int ranks = argc == 7 ? atoi(argv[2]) : 0;
    if (ranks < 1 || ranks > MOST) {
        fprintf(stderr, "usage: scaling MODE RANKS BATCH HIDDEN LAYERS BUCKET\n");
        return 2;
    }
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    job      jobs[MOST];
    mlc_comm comms[MOST];
    for (int r = 0; r < ranks; r++) {
        memset(&jobs[r], 0, sizeof jobs[r]);
        jobs[r].mode = argv[1];
        jobs[r].batch = atoi(argv[3]);
        jobs[r].hidden = atoi(argv[4]);
        jobs[r].layers = atoi(argv[5]);
        jobs[r].bucket = atoi(argv[6]);
    }
#ifdef MLC_USE_MPI
    MPI_Init(&argc, &argv);
    const MPI_Comm world = MPI_COMM_WORLD;
    (void)comms;
    if (mlc_comm_mpi(ctx, &world, NULL, &jobs[0].comm) != MLC_OK) MPI_Abort(MPI_COMM_WORLD, 1);
    run(&jobs[0]);
    mlc_ctx_free(ctx);
    MPI_Finalize();
    return jobs[0].failed;
#else
    pthread_t threads[MOST];
    int       failed = 0;
    if (mlc_comm_threads(ctx, ranks, NULL, comms) != MLC_OK) return 1;
    for (int r = 0; r < ranks; r++) {
        jobs[r].comm = comms[r];
        pthread_create(&threads[r], NULL, run, &jobs[r]);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        failed |= jobs[r].failed;
    }
    mlc_ctx_free(ctx);
    return failed;
#endif
}
