/* threads.c -- the core of a server: threads, each with a context, share one set of weights
 *   build   make build/tasks/threads
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/threads.c -lm -pthread -o threads
 *   run     ./threads         from the folder of mlcore.h                                     */
#include "mlcore.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 4, REQUESTS = 297 };

static float       request[REQUESTS][64];
static double      answer[REQUESTS];
static mlc_module *model;

/* A network of the thread's own context, over the weights of the model, which is only read.   */
static void *work(void *first)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = mlc_module_share(ctx, model);
    mlc_ctx_set_threads(ctx, 1);
    mlc_eval_begin(net);
    for (intptr_t i = (intptr_t)first; i < REQUESTS; i += WORKERS) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = mlc_wrap(ctx, MLC_F32, mlc_dims2(1, 64), NULL, request[i]);
        answer[i] = mlc_item(mlc_argmax(mlc_forward(net, x), 1, false));
        mlc_scope_end(ctx); MLC_CHECK(ctx);
    }
    mlc_ctx_free(ctx);
    return NULL;
}

int main(void)
{
    mlc_ctx     *ctx = mlc_ctx_create(NULL);
    mlc_tensor  *data = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    mlc_tensor  *x = mlc_mul_scalar(mlc_slice(data, 1, 0, 64, 1), 1.0 / 16);
    mlc_tensor  *y = mlc_cast(mlc_select(data, 1, 64), MLC_I64);
    mlc_loader  *train = mlc_loader_shuffled(ctx, mlc_rows(x, 0, 1500), mlc_rows(y, 0, 1500), 32);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    pthread_t    thread[WORKERS];
    int          right = 0;
    model = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 64), mlc_nn_relu(ctx),
                           mlc_nn_linear(ctx, 64, 10));
    d.epochs = 10;
    mlc_fit(model, mlc_adam(model, 3e-3), train, &d, NULL);
    mlc_read(mlc_rows(x, 1500, 1797), request, sizeof request);
    MLC_CHECK(ctx);
    for (intptr_t i = 0; i < WORKERS; i++) pthread_create(&thread[i], NULL, work, (void *)i);
    for (int i = 0; i < WORKERS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < REQUESTS; i++) right += answer[i] == mlc_item_at(y, mlc_dims1(1500 + i));
    printf("%d threads, %d requests, %d right\n", WORKERS, REQUESTS, right);
    mlc_ctx_free(ctx);
}
