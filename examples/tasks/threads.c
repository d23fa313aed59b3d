/* threads.c -- the core of a server: threads, each with a context, share one set of weights
 *   build   make build/tasks/threads
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/threads.c -lm -pthread -o threads
 *   run     ./threads         from the folder of mlcore.h                                     */
#include "mlcore.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 4, REQUESTS = 297 };

typedef struct worker { int first; mlc_ctx *ctx; mlc_module *net; } worker;

static float  request[REQUESTS][64];
static double answer[REQUESTS];

static mlc_module *network(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 64, 10));
}

/* A network over the weights of model. A context is used by one thread at a time: while this walks
 * the model no other thread may use it.                                                       */
static worker prepare(mlc_module *model, int first)
{
    mlc_ctx       *ctx = mlc_ctx_create(NULL);
    const worker   w = { first, ctx, network(ctx) };
    mlc_param_iter p = mlc_param_iter_make(model);
    while (mlc_param_next(&p)) mlc_module_bind(w.net, p.name, mlc_f32(p.tensor));
    mlc_ctx_set_threads(ctx, 1);
    mlc_eval_begin(w.net);
    return w;
}

static void *work(void *arg)
{
    const worker *w = (const worker *)arg;
    for (int i = w->first; i < REQUESTS; i += WORKERS) {
        mlc_scope_begin(w->ctx);
        mlc_tensor *x = mlc_wrap(w->ctx, MLC_F32, mlc_dims2(1, 64), NULL, request[i]);
        answer[i] = mlc_item(mlc_argmax(mlc_forward(w->net, x), 1, false));
        mlc_scope_end(w->ctx); MLC_CHECK(w->ctx);
    }
    mlc_ctx_free(w->ctx);
    return NULL;
}

int main(void)
{
    mlc_ctx     *ctx = mlc_ctx_create(NULL);
    mlc_tensor  *data = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor  *x = mlc_mul_scalar(mlc_slice(data, 1, 0, 64, 1), 1.0 / 16);
    mlc_tensor  *y = mlc_cast(mlc_select(data, 1, 64), MLC_I64);
    mlc_loader  *train = mlc_loader_shuffled(ctx, mlc_rows(x, 0, 1500), mlc_rows(y, 0, 1500), 32);
    mlc_module  *model = network(ctx);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    worker       w[WORKERS];
    pthread_t    thread[WORKERS];
    int          right = 0;
    d.epochs = 10;
    mlc_fit(model, mlc_adam(model, 3e-3), train, &d, NULL);
    mlc_read(mlc_rows(x, 1500, 1797), request, sizeof request);
    MLC_CHECK(ctx);
    for (int i = 0; i < WORKERS; i++) w[i] = prepare(model, i);
    for (int i = 0; i < WORKERS; i++) pthread_create(&thread[i], NULL, work, &w[i]);
    for (int i = 0; i < WORKERS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < REQUESTS; i++) right += answer[i] == mlc_item_at(y, mlc_dims1(1500 + i));
    printf("%d threads, %d requests, %d right\n", WORKERS, REQUESTS, right);
    mlc_ctx_free(ctx);
}
