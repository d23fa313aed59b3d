/* dqn.c -- deep Q-learning: a paddle learns to catch what falls; replay, a target network
 *   build   make build/tasks/dqn
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/dqn.c -lm -pthread -o dqn
 *   run     ./dqn                                                                             */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 7, KEEP = 2000, BATCH = 32 };

typedef struct game { float row, ball, paddle; } game;         /* what the network sees        */
typedef struct turn { game before, after; float action, reward, discount; } turn;

static turn replay[KEEP];

static int below(mlc_ctx *ctx, int n)                          /* 0, 1, .., n - 1 by chance    */
{
    return (int)mlc_item(mlc_randint(ctx, MLC_I64, mlc_dims0(), 0, n));
}

static game new_game(mlc_ctx *ctx)
{
    const game g = { 0, (float)below(ctx, SIZE), (float)below(ctx, SIZE) };
    return g;
}

static float move(game *g, float action)                       /* 0 left, 1 stay, 2 right      */
{
    const float to = g->paddle + action - 1, last = SIZE - 1;
    if (to >= 0 && to <= last) g->paddle = to;
    g->row++;
    return g->row < last ? 0 : g->ball == g->paddle ? 1 : -1;
}

int main(void)
{
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 64), mlc_nn_relu(ctx),
        mlc_nn_linear(ctx, 64, 64), mlc_nn_relu(ctx), mlc_nn_linear(ctx, 64, 3));
    mlc_module *target = mlc_module_clone(net);
    mlc_optim  *opt = mlc_adam(net, 1e-3);
    mlc_tensor *turns = mlc_wrap(ctx, MLC_F32, mlc_dims2(KEEP, 9), NULL, replay);
    int         games = 0, caught = 0;
    game        g = new_game(ctx);
    mlc_module_freeze(target, NULL, true);
    for (int step = 0; games < 1000; step++) {
        turn *t = replay + step % KEEP;
        mlc_scope_begin(ctx);
        mlc_tensor *q = mlc_forward(net, mlc_wrap(ctx, MLC_F32, mlc_dims2(1, 3), NULL, &g));
        t->before = g;
        t->action = below(ctx, 800) > games ? (float)below(ctx, 3)
                                            : (float)mlc_item(mlc_argmax(q, 1, false));
        t->reward = move(&g, t->action);
        t->discount = t->reward != 0 ? 0 : 0.95f;
        t->after = g;
        if (t->reward != 0) {
            g = new_game(ctx);
            caught += t->reward > 0;
            if (++games % 200 == 0)
                printf("%d games: caught %d of 200\n", games, caught), caught = 0;
        }
        const int   n = step < KEEP ? step + 1 : KEEP;
        mlc_tensor *b = mlc_gather_rows(turns, mlc_randint(ctx, MLC_I64, mlc_dims1(BATCH), 0, n));
        mlc_tensor *action = mlc_cast(mlc_slice(b, 1, 6, 7, 1), MLC_I64);
        mlc_tensor *value = mlc_gather(mlc_forward(net, mlc_slice(b, 1, 0, 3, 1)), 1, action);
        mlc_tensor *next = mlc_forward(target, mlc_slice(b, 1, 3, 6, 1));
        mlc_tensor *later = mlc_mul(mlc_slice(b, 1, 8, 9, 1), mlc_max(next, mlc_dims1(1), true));
        mlc_optim_minimize(opt, mlc_huber_loss(value, mlc_add(mlc_slice(b, 1, 7, 8, 1), later)));
        mlc_module_mix(target, net, 0.01);
        mlc_scope_end(ctx); MLC_CHECK(ctx);
    }
    mlc_ctx_free(ctx);
}
