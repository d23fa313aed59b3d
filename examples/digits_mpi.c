/* digits_mpi.c -- one network trained by several ranks: processes of MPI, or threads
 *
 *   build   make demo-mpi, or with MPI:
 *           mpicc -O2 -DMLC_USE_MPI -DMLCORE_IMPLEMENTATION -x c -c -o mpi.o mlcore.h
 *           mpicc -O2 -DMLC_USE_MPI examples/digits_mpi.c mpi.o -lm -pthread
 *   run     mpirun -n 4 ./a.out;  with a list of machines: mpirun --hostfile hosts -n 16 ./a.out;
 *           by Slurm: srun -n 16 ./a.out.  Without MPI: ./digits_mpi --ranks 4
 *   data    examples/data/digits.csv: 64 pixels 0..16, the label, 1 if held out (see its head)
 *
 * Each rank has every ranks-th row of a batch of 96; gradients are summed while backward runs. The
 * losses are the same, but for roundings, for each number of ranks that divides 96; so they are of
 * --net cnn, which has batch norms and dropout, of the rows of all ranks. Where a rank fails, the
 * others get an error that names it, and the program ends; with --save FILE the same command goes
 * on after the last whole epoch, from the file that rank 0 writes. */
#define _POSIX_C_SOURCE 200809L
#include "digits.h"
#include "options.h"

#ifdef MLC_USE_MPI
#  include <mpi.h>
#  include <unistd.h>
#else
#  include <pthread.h>
#endif

enum { BATCH = 96, MOST = 64 };

typedef struct options {
    const char *csv, *save, *net;
    int ranks, epochs, hidden, deadline, shard;
} options;

typedef struct rank { const options *o; mlc_comm comm; mlc_status status; } rank;

static const char HELP[] =
    "usage: digits_mpi [DIGITS.CSV] [options]\n"
    "  --ranks N        threads that train; of MPI: mpirun -n N (2)\n"
    "  --epochs N       passes over the rows                    (10)\n"
    "  --net mlp|cnn    the network                             (mlp)\n"
    "  --hidden N       units of the MLP                        (128)\n"
    "  --save FILE      written after each epoch, and gone on from\n"
    "  --deadline N     seconds that a rank waits for others    (600)\n"
    "  --shard N        1: moments divided among ranks; 2: gradients, too (0)\n"
    "  --help           this text\n";

static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = { OPTION_FILE(&o->csv), OPTION_NUMBER("--ranks", &o->ranks, 1, MOST),
                            OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
                            OPTION_TEXT("--net", &o->net), OPTION_TEXT("--save", &o->save),
                            OPTION_NUMBER("--hidden", &o->hidden, 1, 4096),
                            OPTION_NUMBER("--deadline", &o->deadline, 1, 86400),
                            OPTION_NUMBER("--shard", &o->shard, 0, 2), OPTION_END };
    if (!options_read("digits_mpi", HELP, list, argc, argv, status)) return false;
    if (strcmp(o->net, "mlp") == 0 || strcmp(o->net, "cnn") == 0) return true;
    fprintf(stderr, "digits_mpi: --net %s: it is mlp or cnn\n", o->net);
    *status = 1;
    return false;
}

/* Sums n numbers over the ranks. */
static mlc_status sum(mlc_ctx *ctx, const mlc_comm *comm, double *values, int64_t n)
{
    const mlc_comm_call c = { MLC_ALL_REDUCE, MLC_COMBINE_SUM, MLC_F64, 0, n, values };
    return mlc_comm_run(ctx, comm, &c);
}

/* One epoch; rank 0 prints the mean loss of all ranks. */
static mlc_status epoch(mlc_module *net, mlc_optim *opt, mlc_loader *loader, const mlc_comm *comm,
                        int number)
{
    mlc_ctx  *ctx      = mlc_module_ctx(net);
    double    total[2] = { 0, 0 };
    mlc_batch b;
    while (mlc_loader_next(loader, &b)) {
        mlc_scope_begin(ctx);
        mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, b.x), b.y);
        if (mlc_optim_minimize(opt, loss) == MLC_OK) {
            total[0] += mlc_item(loss);
            total[1]++;
        }
        const mlc_status st = mlc_scope_end(ctx);
        if (st != MLC_OK) return st;
    }
    const mlc_status st = sum(ctx, comm, total, 2);
    if (!st && comm->rank == 0) printf("epoch %2d   loss %.6f\n", number, total[0] / total[1]);
    if (comm->rank == 0) fflush(stdout);
    return st;
}

/* All ranks must have the same parameters: rank 0 compares sums of their squares. */
static mlc_status finish(mlc_module *net, const split *s, const mlc_comm *comm)
{
    mlc_ctx       *ctx       = mlc_module_ctx(net);
    double         all[MOST] = { 0 };
    mlc_param_iter it        = mlc_param_iter_make(net);
    while (mlc_param_next(&it))
        for (int64_t i = 0; it.tensor->dtype == MLC_F32 && i < mlc_numel(it.tensor); i++) {
            const double v = (double)mlc_f32(it.tensor)[i];
            if (comm->rank < MOST) all[comm->rank] += v * v;
        }
    const mlc_status st   = sum(ctx, comm, all, MOST);
    bool             same = true;
    for (int r = 1; r < comm->size && r < MOST; r++) same = same && all[r] == all[0];
    if (st || comm->rank) return st;
    mlc_module_train(net, false);           /* no dropout, and norms ask no other rank */
    mlc_scope_begin(ctx);
    printf("ranks %d, parameters %s\n", comm->size, same ? "the same in all" : "DIFFER");
    printf("held-out accuracy %.2f%%\n",
           100 * mlc_accuracy(mlc_forward(net, s->x[1]), s->y[1]));
    return mlc_scope_end(ctx);
}

static mlc_module *network(mlc_ctx *ctx, const options *o)
{
    if (strcmp(o->net, "cnn") != 0)
        return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, PIXELS, o->hidden), mlc_nn_relu(ctx),
                              mlc_nn_linear(ctx, o->hidden, 10));
    return MLC_SEQUENTIAL(
        ctx, mlc_nn_unflatten(ctx, 1, mlc_dims3(1, 8, 8)), mlc_nn_conv2d(ctx, 1, 16, 3, 1, 1),
        mlc_nn_batch_norm(ctx, 16), mlc_nn_relu(ctx), mlc_nn_max_pool2d(ctx, 2),
        mlc_nn_conv2d(ctx, 16, 32, 3, 1, 1), mlc_nn_batch_norm(ctx, 32), mlc_nn_relu(ctx),
        mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx), mlc_nn_dropout(ctx, 0.3),
        mlc_nn_linear(ctx, 128, 10));
}

/* Goes on from the file, where there is one. Each rank's loader has a place of its own. */
static mlc_status resume(mlc_ctx *ctx, const options *o, const mlc_run *run, mlc_loader *loader,
                         const int *done)
{
    mlc_loader_state at = mlc_loader_position(loader);
    FILE            *f  = o->save ? fopen(o->save, "rb") : NULL;
    if (!f) return MLC_OK;
    fclose(f);
    const mlc_status st = mlc_run_load(ctx, o->save, run);
    at.epoch = *done;
    return st == MLC_OK ? mlc_loader_seek(loader, &at) : st;
}

/* What a rank does, in its own context. */
static mlc_status train(mlc_ctx *ctx, const options *o, const mlc_comm *comm)
{
    int                  done = 0;
    mlc_parallel_desc    how  = mlc_parallel_desc_make();
    mlc_run_part         part = { "epochs", &done, sizeof done };
    mlc_run              run  = { NULL, NULL, NULL, NULL, NULL, &part, 1, NULL };
    split                s;
    mlc_loader_from_desc d = mlc_loader_from_desc_make(BATCH / comm->size);
    if (!split_load(ctx, "digits_mpi", o->csv, BATCH, &s)) return MLC_ERR_IO;
    mlc_tensor *rows[2] = { s.x[0], s.y[0] };
    d.rank     = comm->rank;
    d.ranks    = comm->size;
    d.shuffle  = d.drop_last = true;
    d.seed     = 1;
    mlc_loader *loader = mlc_loader_from(ctx, mlc_dataset_tensors(ctx, rows, 2), &d);
    mlc_module *net    = run.net = network(ctx, o);
    mlc_optim  *opt    = run.optim = mlc_adamw(net, 2e-3);
    mlc_status  st     = resume(ctx, o, &run, loader, &done);
    how.shard          = o->shard;
    how.dropout_by_row = how.sync_norms = strcmp(o->net, "cnn") == 0;
    if (st == MLC_OK) st = mlc_data_parallel(net, opt, comm, &how);
    while (st == MLC_OK && done < o->epochs) {
        st = epoch(net, opt, loader, comm, ++done);
        if (st == MLC_OK && o->save) st = mlc_data_parallel_gather(opt);
        if (st == MLC_OK && o->save && comm->rank == 0) st = mlc_run_save(ctx, o->save, &run);
    }
    return st == MLC_OK ? finish(net, &s, comm) : st;
}

/* A rank from its context's beginning to its end. */
static void run(rank *r)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads   = 1;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    r->status    = ctx ? train(ctx, r->o, &r->comm) : MLC_ERR_NOMEM;
    if (r->status != MLC_OK) {
        fprintf(stderr, "digits_mpi: rank %d: %s\n", r->comm.rank, ctx ? mlc_error(ctx) : "memory");
#ifdef MLC_USE_MPI
        sleep(1);                           /* an abort ends all: let others say theirs, too */
        MPI_Abort(MPI_COMM_WORLD, 1);       /* before memory is freed that a call may write */
#endif
    }
    mlc_comm_leave(&r->comm);
    mlc_ctx_free(ctx);
}

#ifdef MLC_USE_MPI
int main(int argc, char **argv)
{
    options  o      = { "examples/data/digits.csv", NULL, "mlp", 1, 10, 128, 600, 0 };
    rank     r      = { &o, { NULL, 0, 1, NULL, NULL, NULL, NULL, NULL }, MLC_OK };
    int      status = 0;
    mlc_ctx *ctx    = mlc_ctx_create(NULL);
    MPI_Init(&argc, &argv);
    if (!parse(&o, argc, argv, &status)) { MPI_Finalize(); return status; }
    const MPI_Comm world = MPI_COMM_WORLD;
    const mlc_comm_desc wait = { (double)o.deadline };
    r.status = mlc_comm_mpi(ctx, &world, &wait, &r.comm);
    if (r.status != MLC_OK) {
        fprintf(stderr, "digits_mpi: %s\n", mlc_error(ctx));
        MPI_Abort(MPI_COMM_WORLD, 1);       /* the others may wait within MPI for ever */
    }
    run(&r);
    mlc_ctx_free(ctx);
    MPI_Finalize();
    return 0;
}
#else
static void *thread(void *of)
{
    run((rank *)of);
    return NULL;
}

int main(int argc, char **argv)
{
    options   o      = { "examples/data/digits.csv", NULL, "mlp", 2, 10, 128, 600, 0 };
    int       status = 0;
    mlc_comm  comms[MOST];
    rank      ranks[MOST];
    pthread_t threads[MOST];
    if (!parse(&o, argc, argv, &status)) return status;
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    const mlc_comm_desc wait = { (double)o.deadline };
    status = 0;
    if (!ctx || mlc_comm_threads(ctx, o.ranks, &wait, comms) != MLC_OK) return 1;
    for (int r = 0; r < o.ranks; r++) {
        const rank one = { &o, comms[r], MLC_OK };
        ranks[r] = one;
        if (pthread_create(&threads[r], NULL, thread, &ranks[r])) return 1;
    }
    for (int r = 0; r < o.ranks; r++) {
        pthread_join(threads[r], NULL);
        if (ranks[r].status != MLC_OK) status = 1;
    }
    mlc_ctx_free(ctx);
    return status;
}
#endif
