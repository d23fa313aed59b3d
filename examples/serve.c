/* serve.c -- a server of networks over HTTP: answers for rows of numbers, and texts as they grow
 *
 *   build   make build/serve, or: cc -O2 examples/serve.c mlcore.o -o serve -lm -pthread
 *   run     ./serve             from the folder of mlcore.h; then http://127.0.0.1:8000
 *           ./serve --text serve_text.safetensors     a small GPT, too
 *
 *   GET  /                                 a page: a digit that the mouse draws, its answer as bars
 *   GET  /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME, /v2/models/NAME/ready
 *   POST /v2/models/NAME/infer             KServe v2, tensors in JSON or as bytes
 *   POST /v2/models/NAME/generate          {"text_input":"Alice ","max_tokens":40,"top_k":5}
 *   POST /v2/models/NAME/generate_stream   the same as server-sent events, piece by piece
 *   POST /v2/repository/models/NAME/load   reads the model's file again; so does SIGHUP for all
 *   GET  /metrics                          as Prometheus reads them
 *
 * Three kinds of threads: the workers of mlc_serve_model make batches and run them; one thread does
 * all input and output, with poll; the main thread waits for signals, and reads weights again. An
 * answer comes from a worker by `done`, which puts its call into a list and wakes the poll.
 *
 * It is no public server: no TLS, no passwords. A proxy that has them belongs before it.
 *                                                               test: tests/serve_client.py   */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../mlcore.h"
#include "options.h"
#include "serve_api.h"
#include "serve_calls.h"
#include "serve_models.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const char HELP[] =
    "usage: serve [DIGITS.CSV] [options]\n"
    "  --host ADDRESS    IPv4                               (127.0.0.1)\n"
    "  --port N          0: any that is free                (8000)\n"
    "  --digits FILE     weights; trained and written first if there is none\n"
    "                                                       (serve_digits.safetensors)\n"
    "  --text FILE       of a GPT that reads bytes; the same (no texts)\n"
    "  --epochs N        of training the digits             (12)\n"
    "  --steps N         of training the GPT                (300)\n"
    "  --workers N       threads that run batches           (1)\n"
    "  --threads N       of each worker; 0: all cores       (1)\n"
    "  --batch N         rows of a batch at most            (32)\n"
    "  --wait N          milliseconds that a batch waits to fill (1)\n"
    "  --queue N         requests that wait at most         (1024)\n"
    "  --deadline N      milliseconds of a request in the queue (10000)\n"
    "  --connections N   at the same time                   (512)\n"
    "  --body N          bytes of a body at most            (16777216)\n"
    "  --time N          seconds for a request to arrive    (10)\n"
    "  --idle N          seconds between two requests       (60)\n"
    "  --drain N         seconds for what runs at SIGTERM   (30)\n"
    "  --help            this text\n";

/* ---- connections */

/* Reads as many requests as have come, until one of them waits for an answer. */
static void work(conn *c)
{
    while (!c->asks && !c->close && c->out.n - c->sent < BACKLOG && (c->got.n || c->eof)) {
        if (!c->got.n) { c->close = true; break; }
        if (!http_begun(&c->in)) c->began = now();
        const double began = now();
        text_drop(&c->got, http_feed(&c->in, c->got.s, c->got.n));
        S.f.reading += now() - began;
        if (S.full && (c->in.state == HTTP_BODY || c->in.state == HTTP_CHUNK))
            http_fail(&c->in, 503, "the bodies of all connections are too large");
        if (c->in.state == HTTP_DONE) {
            handle(c);
            if (!c->asks) http_reset(&c->in);
        } else if (c->in.state == HTTP_BAD) {
            fail(c, c->in.status, c->in.why);
        } else if (c->in.expects && c->in.state != HTTP_HEADER && !c->in.body_n) {
            text_say(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
            c->in.expects = false;
        }
    }
}

static void conn_read(conn *c)
{
    static char   bytes[PORTION];
    const ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n < 0) { c->dead = errno != EAGAIN && errno != EINTR; return; }
    if (n == 0) c->eof = true;
    if (c->ended) { c->dead = n == 0; return; }          /* it is dropped                       */
    if (n && !c->out.n) c->moved = now();                /* what it sends takes no answers      */
    text_put(&c->got, bytes, (size_t)n);
    c->dead = c->got.full;
    work(c);
}

/* Drops what is sent, so that a client that never takes all of it does not make it grow. */
static void conn_part(conn *c)
{
    if (c->sent <= c->out.n / 2) return;
    text_drop(&c->out, c->sent);
    c->sent = 0;
}

/* Sends what there is; after the last answer the end, and then what comes is dropped for a second:
 * a close with bytes that were not read would take the answer from the client. */
static void conn_write(conn *c)
{
    while (c->sent < c->out.n) {
        const ssize_t n = send(c->fd, c->out.s + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) { conn_part(c); return; }
        if (n < 0) { c->dead = true; return; }
        c->sent += (size_t)n;
        c->moved = now();
    }
    c->dead = c->out.full;
    c->sent = 0;
    text_reset(&c->out, PORTION);
    if (!c->close || c->asks || c->ended) return;
    c->ended = true;
    c->moved = now();
    c->dead  = c->eof || shutdown(c->fd, SHUT_WR) != 0;
}

/* What has taken too long. */
static void conn_time(conn *c, double t)
{
    const bool   idle  = !http_begun(&c->in) && !c->asks && !c->got.n && !c->out.n;
    const double since = S.listener < 0 && S.drain_began > c->moved ? S.drain_began : c->moved;
    if (c->ended) c->dead |= t - c->moved > 1;
    else if (c->out.n) c->dead |= t - c->moved > S.o.time;
    else if (idle) c->close |= t - since > (S.listener < 0 ? 2 : S.o.idle);
    else if (!c->asks && !c->close && t - c->began > S.o.time) {
        http_fail(&c->in, 408, "the request did not arrive in time");
        fail(c, c->in.status, c->in.why);
    }
}

static void conn_free(conn *c)
{
    if (c->asks) {
        S.f.gone++;
        c->asks->conn = NULL;
        if (c->asks->reply) mlc_serve_cancel(c->asks->reply);
    }
    close(c->fd);
    http_free(&c->in);
    free(c->got.s);
    free(c->out.s);
    free(c);
}

/* Takes one connection; false: none waits. */
static bool conn_take(double t)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "Connection: close\r\nContent-Length: 0\r\n\r\n";
    const int fd = accept(S.listener, NULL, NULL), yes = 1;
    if (fd < 0) {
        const bool again = errno == EINTR || errno == ECONNABORTED;
        if (!again && errno != EAGAIN) S.deaf = t + .1;  /* it stays in the system's queue      */
        return again;
    }
    conn *c = S.n < S.o.connections ? (conn *)calloc(1, sizeof *c) : NULL;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (!c) {
        if (send(fd, full, sizeof full - 1, MSG_NOSIGNAL) > 0) shutdown(fd, SHUT_WR);
        close(fd);
        S.f.refused++;
        return true;
    }
    c->fd    = fd;
    c->in    = http_request_make(&S.limits);
    c->began = c->moved = t;
    S.conns[S.n++] = c;
    S.f.connections++;
    return true;
}

/* After SIGTERM: the connections that wait are taken, and no more. */
static void drain(double t)
{
    while (S.n < S.o.connections && conn_take(t)) {}
    close(S.listener);
    S.listener    = -1;
    S.drain_began = t;
}

/* Waits a millisecond for others. */
static void rest(void)
{
    const struct timespec pause = { 0, 1000000 };
    nanosleep(&pause, NULL);
}

/* Waits for what can be read or written, and does it. */
static void turn(struct pollfd *p)
{
    const int n = S.n;                                   /* those taken below have no entry     */
    char      drop[256];
    size_t    held = 0;
    for (int i = 0; i < n; i++) {
        const conn *c = S.conns[i];
        const bool  read = !c->eof && (c->ended || c->got.n < PORTION);
        p[i].fd      = c->fd;
        p[i].events  = (short)((read ? POLLIN : 0) | (c->sent < c->out.n ? POLLOUT : 0));
        p[i].revents = 0;
        held += c->in.body_room + c->got.room + c->out.room;
    }
    S.full      = held > MEMORY;
    p[n].fd     = S.wake[0];
    p[n + 1].fd = now() < S.deaf ? -1 : S.listener;
    p[n].events = p[n + 1].events = POLLIN;
    p[n].revents = p[n + 1].revents = 0;
    if (poll(p, (nfds_t)n + 2, 100) < 0) { rest(); return; }
    const double t = now();
    if (p[n].revents) while (read(S.wake[0], drop, sizeof drop) > 0) {}
    for (int i = 0; i < n; i++) {
        if (p[i].revents & POLLIN) conn_read(S.conns[i]);
        else if (p[i].revents & (POLLERR | POLLHUP | POLLNVAL)) S.conns[i]->dead = true;
    }
    all_news();
    if (draining() && S.listener >= 0) drain(t);
    for (int i = 0; p[n + 1].revents && S.listener >= 0 && i < 64 && conn_take(t);) i++;
    for (int i = 0; i < S.n; i++) {
        conn *c = S.conns[i];
        conn_time(c, t);
        if (!c->dead && (c->out.n || c->close)) conn_write(c);
        if (!c->dead) work(c);
        if (!c->dead) continue;
        conn_free(c);
        S.conns[i--] = S.conns[--S.n];
    }
}

/* The thread of input and output; it ends when all is answered that had come at SIGTERM. */
static void *serve(void *unused)
{
    struct pollfd *p = (struct pollfd *)malloc(((size_t)S.o.connections + 2) * sizeof *p);
    (void)unused;
    while (p && (S.listener >= 0 || ((S.n || S.calls) && now() - S.drain_began < S.o.drain)))
        turn(p);
    while (S.n) conn_free(S.conns[--S.n]);
    for (; S.calls; rest()) all_news();
    free(p);
    return NULL;
}

/* ---- models, signals, main */

static const char *const PIXEL_NAMES[] = { "pixels" }, *const LOGIT_NAMES[] = { "logits" };

/* Adds the CNN to the server. */
static bool digits_serve(mlc_ctx *ctx)
{
    mlc_module *net = digits_net(ctx);
    bool        ok  = net != NULL;
    if (net && !weights_are_there(net, S.o.digits, &ok))
        ok = digits_train(net, S.o.csv, S.o.epochs) && mlc_save(net, S.o.digits) == MLC_OK;
    if (!ok) return false;
    mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(1, PIXELS));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("digits", net, &x);
    d.batch        = S.o.batch;
    d.wait_ms      = S.o.wait;
    d.queue        = S.o.queue;
    d.workers      = S.o.workers;
    d.threads      = S.o.threads;
    d.input_names  = PIXEL_NAMES;
    d.output_names = LOGIT_NAMES;
    return mlc_serve_model(S.serve, &d) == MLC_OK;
}

static bool text_serve(mlc_ctx *ctx)
{
    mlc_module *net = gpt_net(ctx);
    bool        ok  = net != NULL;
    if (net && !weights_are_there(net, S.o.text, &ok))
        ok = gpt_train(net, "examples/data/alice.txt", S.o.steps) &&
             mlc_save(net, S.o.text) == MLC_OK;
    if (!ok) return false;
    mlc_serve_generator_desc d = mlc_serve_generator_desc_make("text", net, GPT_CONTEXT);
    d.queue   = S.o.queue;
    d.threads = S.o.threads;
    return mlc_serve_generator(S.serve, &d) == MLC_OK;
}

/* Reads the file of a model again; a client's call that asked for it gets its answer. */
static void reload(mlc_ctx *ctx, const char *model, call *k)
{
    const char      *path = strcmp(model, "text") ? S.o.digits : S.o.text;
    const mlc_status st   = mlc_serve_reload(S.serve, model, path);
    const char      *why  = mlc_error(ctx);
    printf("%s: %s\n", model, st == MLC_OK ? "reloaded" : why);
    fflush(stdout);
    pthread_mutex_lock(&S.lock);
    if (k) {
        k->code = st == MLC_OK ? 200 : 500;
        if (st != MLC_OK) text_say(&k->pieces, why);
        k->done = true;
        S.load  = NULL;
        announce(k);
    }
    pthread_mutex_unlock(&S.lock);
    mlc_error_clear(ctx);
    wake();
}

/* What a client wants read, if anything. */
static void reload_wanted(mlc_ctx *ctx)
{
    pthread_mutex_lock(&S.lock);
    call *k = S.load;
    pthread_mutex_unlock(&S.lock);
    if (k) reload(ctx, k->model, k);
}

/* Waits for signals until one of them ends the server. */
static void watch(mlc_ctx *ctx, const sigset_t *set)
{
    for (int sig = 0; sigwait(set, &sig) == 0 && sig != SIGTERM && sig != SIGINT;) {
        if (sig == SIGUSR1) reload_wanted(ctx);
        for (int i = 0; sig == SIGHUP && i < mlc_serve_models(S.serve); i++)
            reload(ctx, mlc_serve_model_name(S.serve, i), NULL);
    }
    pthread_mutex_lock(&S.lock);
    __atomic_store_n(&S.draining, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&S.lock);
    reload_wanted(ctx);
    wake();
}

/* The socket that waits for clients; false, and a message. */
static bool listening(void)
{
    struct sockaddr_in at;
    socklen_t          n   = sizeof at;
    const int          yes = 1;
    memset(&at, 0, sizeof at);
    errno = EINVAL;                                      /* of an address that is none          */
    at.sin_family = AF_INET;
    at.sin_port   = htons((uint16_t)S.o.port);
    S.listener    = socket(AF_INET, SOCK_STREAM, 0);
    const bool ok = S.listener >= 0 && inet_pton(AF_INET, S.o.host, &at.sin_addr) == 1 &&
        setsockopt(S.listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(S.listener, (struct sockaddr *)&at, n) == 0 && listen(S.listener, 1024) == 0 &&
        getsockname(S.listener, (struct sockaddr *)&at, &n) == 0 && pipe(S.wake) == 0 &&
        fcntl(S.listener, F_SETFL, O_NONBLOCK) == 0 &&
        fcntl(S.wake[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(S.wake[1], F_SETFL, O_NONBLOCK) == 0;
    if (ok) printf("serving on http://%s:%d\n", S.o.host, ntohs(at.sin_port));
    else fprintf(stderr, "serve: %s:%d: %s\n", S.o.host, S.o.port, strerror(errno));
    fflush(stdout);
    return ok;
}

/* Makes the models, serves until a signal comes, and prints what was done. */
static bool run(mlc_ctx *ctx, const sigset_t *set)
{
    char      table[4096];
    pthread_t io;
    S.serve = mlc_serve_create(ctx, NULL);
    if (!S.serve || !digits_serve(ctx) || (S.o.text && !text_serve(ctx)) || !listening())
        return false;
    if (pthread_create(&io, NULL, serve, NULL) != 0) return false;
    watch(ctx, set);
    pthread_join(io, NULL);
    mlc_serve_stop(S.serve);
    mlc_serve_stats_print(S.serve, table, sizeof table);
    printf("%s%lld requests\n", table, (long long)S.f.requests);
    return true;
}

/* False: the program ends with *status. */
static bool parse(options *o, int argc, char **argv, int *status)
{
    const option list[] = {
        OPTION_FILE(&o->csv), OPTION_TEXT("--host", &o->host), OPTION_TEXT("--digits", &o->digits),
        OPTION_TEXT("--text", &o->text), OPTION_NUMBER("--port", &o->port, 0, 65535),
        OPTION_NUMBER("--epochs", &o->epochs, 1, 10000),
        OPTION_NUMBER("--steps", &o->steps, 1, 1000000),
        OPTION_NUMBER("--workers", &o->workers, 1, 256),
        OPTION_NUMBER("--threads", &o->threads, 0, 1024),
        OPTION_NUMBER("--batch", &o->batch, 1, 4096), OPTION_NUMBER("--wait", &o->wait, 0, 10000),
        OPTION_NUMBER("--queue", &o->queue, 1, 1000000),
        OPTION_NUMBER("--deadline", &o->deadline, 1, 1000000000),
        OPTION_NUMBER("--connections", &o->connections, 1, 100000),
        OPTION_NUMBER("--body", &o->body, 1, 1 << 30), OPTION_NUMBER("--time", &o->time, 1, 100000),
        OPTION_NUMBER("--idle", &o->idle, 1, 100000),
        OPTION_NUMBER("--drain", &o->drain, 1, 100000), OPTION_END };
    return options_read("serve", HELP, list, argc, argv, status);
}

/* As many connections as the system lets a process have; room for all of them. */
static bool room(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        if (files.rlim_cur < files.rlim_max) files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        if (getrlimit(RLIMIT_NOFILE, &files) == 0 &&
            (rlim_t)S.o.connections + 64 > files.rlim_cur)
            S.o.connections = files.rlim_cur > 65 ? (int)files.rlim_cur - 64 : 1;
    }
    S.conns = (conn **)malloc((size_t)S.o.connections * sizeof *S.conns);
    S.limits.line    = 8192;
    S.limits.head    = 16384;
    S.limits.body    = (size_t)S.o.body;
    S.limits.headers = HTTP_MOST_HEADERS;
    S.last = &S.news;
    S.main = pthread_self();
    return S.conns && pthread_mutex_init(&S.lock, NULL) == 0;
}

int main(int argc, char **argv)
{
    const options o = { "examples/data/digits.csv", "127.0.0.1", "serve_digits.safetensors", NULL,
                        8000, 12, 300, 1, 1, 32, 1, 1024, 10000, 512, 1 << 24, 10, 60, 30 };
    int           status = 0;
    sigset_t      set;
    S.o = o;
    if (!parse(&S.o, argc, argv, &status)) return status;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    signal(SIGPIPE, SIG_IGN);                            /* of stdout without a reader          */
    pthread_sigmask(SIG_BLOCK, &set, NULL);              /* of all threads: watch waits for them */
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed         = 1;
    mlc_ctx   *ctx = room() ? mlc_ctx_create(&d) : NULL;
    const bool ok  = ctx && run(ctx, &set);
    const char *why = ctx ? mlc_error(ctx) : "no memory";
    if (!ok && *why) fprintf(stderr, "serve: %s\n", why);
    mlc_serve_end(S.serve);
    mlc_ctx_free(ctx);
    free(S.conns);
    return !ok;
}
