/* serve_speed.c -- a server in the process: ResNet-20 beside batches in a loop, texts of a GPT
 * beside one after another
 *
 *   build   make build/serve_speed
 *   run     build/serve_speed; rounds are in turns, the median of the ratios is printed */
#define _POSIX_C_SOURCE 200809L
#include "../tests/resnet20.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CLIENTS = 64, BATCH = 32, EACH = 10, PIXELS = 3 * 32 * 32, ROUNDS = 5, STREAMS = 32,
       CAPACITY = 128, TOKENS = 64, GPT_ROUNDS = 3 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* ---- requests of one row ---- */

typedef struct client { mlc_server *s; float row[PIXELS]; int wrong; } client;

/* Hands in one request after the other. */
static void *ask(void *of)
{
    client         *c  = (client *)of;
    mlc_serve_array in = { MLC_F32, 4, { 1, 3, 32, 32 }, c->row };
    for (int i = 0; i < EACH; i++) {
        mlc_reply  *reply;
        mlc_request r = mlc_request_make("resnet20", &in);
        mlc_serve_submit(c->s, &r, &reply);
        c->wrong += mlc_serve_wait(reply, -1) != MLC_ANSWER_OK;
        mlc_serve_free(reply);
    }
    return NULL;
}

/* Rows a second of all clients; below 0: an answer was none. */
static double served(mlc_server *s)
{
    static client c[CLIENTS];
    pthread_t     t[CLIENTS];
    int           wrong = 0;
    const double  from  = now();
    for (int i = 0; i < CLIENTS; i++) {
        c[i].s     = s;
        c[i].wrong = 0;
        for (int k = 0; k < PIXELS; k++) c[i].row[k] = (float)((i * 31 + k) % 17) / 17;
        if (pthread_create(&t[i], NULL, ask, &c[i])) return -1;
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(t[i], NULL);
        wrong += c[i].wrong;
    }
    return wrong ? -1 : CLIENTS * EACH / (now() - from);
}

/* Rows a second of the same batches by the same plan. */
static double looped(mlc_plan *p, mlc_tensor *x)
{
    const double from = now();
    for (int i = 0; i < CLIENTS * EACH / BATCH; i++) mlc_plan_run(p, &x, 1, NULL, 0);
    return CLIENTS * EACH / (now() - from);
}

static int requests(mlc_ctx *ctx)
{
    mlc_module *net = resnet20(ctx);
    mlc_tensor *x   = mlc_uniform(ctx, MLC_F32, mlc_dims4(BATCH, 3, 32, 32), 0, 1);
    mlc_eval_begin(net);
    mlc_serve_model_desc d = mlc_serve_model_desc_make("resnet20", net, &x);
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_server *s = mlc_serve_create(ctx, NULL);
    double      ratio[ROUNDS], a = 0, b = 0;
    d.batch = BATCH;
    if (!p || mlc_serve_model(s, &d) != MLC_OK) return 1;
    looped(p, x);
    for (int r = 0; r < ROUNDS; r++) {
        a        = served(s);
        b        = looped(p, x);
        ratio[r] = a / b;
        if (a < 0) return 1;
    }
    mlc_serve_stats stats;
    mlc_serve_stats_of(s, "resnet20", &stats);
    printf("resnet20, batches of %d, %d clients: %.0f rows/s, in a loop %.0f: %.2f (fill %.2f)\n",
           BATCH, CLIENTS, a, b, median(ratio, ROUNDS), stats.fill);
    mlc_serve_end(s);
    return 0;
}

/* ---- streams of tokens ---- */

/* Seconds of STREAMS texts of TOKENS tokens, all at once; below 0: a text was none. */
static double at_once(mlc_server *s, const int64_t *prompt)
{
    mlc_reply   *reply[STREAMS];
    int          wrong = 0;
    const double from  = now();
    for (int i = 0; i < STREAMS; i++) {
        mlc_serve_text t = mlc_serve_text_make("gpt", prompt + i, 8, TOKENS);
        t.how.seed = (uint64_t)i;
        mlc_serve_generate(s, &t, &reply[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        if (mlc_serve_wait(reply[i], -1) != MLC_ANSWER_OK) {
            fprintf(stderr, "%s\n", mlc_serve_error(reply[i], NULL));
            wrong++;
        }
        mlc_serve_free(reply[i]);
    }
    return wrong ? -1 : now() - from;
}

/* The same by mlc_generate, one after another. */
static double in_turn(mlc_module *net, const int64_t *prompt)
{
    mlc_ctx       *ctx  = mlc_module_ctx(net);
    mlc_cache_desc d    = mlc_cache_desc_make(1, CAPACITY);
    const double   from = now();
    for (int i = 0; i < STREAMS; i++) {
        mlc_generate_desc g     = mlc_generate_desc_make(TOKENS);
        mlc_cache        *cache = mlc_cache_create(net, &d);
        g.seed = (uint64_t)i;
        mlc_scope_begin(ctx);
        mlc_tensor *first = mlc_from(ctx, MLC_I64, mlc_dims2(1, 8), prompt + i);
        mlc_generate(net, cache, first, &g, NULL, NULL);
        mlc_scope_end(ctx);
        mlc_cache_free(cache);
    }
    return now() - from;
}

static int streams(mlc_ctx *ctx, int64_t layers, int64_t width)
{
    mlc_nn_gpt_desc g      = mlc_nn_gpt_desc_make(256, CAPACITY, layers, width, width / 32);
    mlc_module     *net    = mlc_nn_gpt(ctx, &g);
    mlc_server     *s      = mlc_serve_create(ctx, NULL);
    int64_t         prompt[STREAMS + 8];
    double          ratio[GPT_ROUNDS], a = 0, b = 0;
    for (int i = 0; i < STREAMS + 8; i++) prompt[i] = (i * 37 + 11) % 256;
    mlc_eval_begin(net);
    mlc_serve_generator_desc d = mlc_serve_generator_desc_make("gpt", net, CAPACITY);
    d.streams = STREAMS;
    if (mlc_serve_generator(s, &d) != MLC_OK) return 1;
    for (int r = 0; r < GPT_ROUNDS; r++) {
        a        = at_once(s, prompt);
        b        = in_turn(net, prompt);
        ratio[r] = b / a;
        if (a < 0) return 1;
    }
    printf("gpt of %lld layers of %lld: %d streams %.0f tokens/s, one after another %.0f: %.2f\n",
           (long long)layers, (long long)width, STREAMS, STREAMS * TOKENS / a, STREAMS * TOKENS / b,
           median(ratio, GPT_ROUNDS));
    mlc_serve_end(s);
    return 0;
}

int main(void)
{
    mlc_ctx *ctx    = mlc_ctx_create(NULL);
    int      status = 1;
    if (ctx)
        status = requests(ctx) | streams(ctx, 4, 128) | streams(ctx, 4, 256) | streams(ctx, 6, 384);
    if (status) fprintf(stderr, "serve_speed: %s\n", ctx ? mlc_error(ctx) : "no memory");
    mlc_ctx_free(ctx);
    return status;
}
