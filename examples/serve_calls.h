/* serve_calls.h -- the state of serve.c: connections, what the library is asked for them, and how
 * answers are written */
#ifndef EXAMPLES_SERVE_CALLS_H
#define EXAMPLES_SERVE_CALLS_H

#include "../mlcore.h"
#include "http.h"
#include "json.h"
#include "kserve.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PORTION = 65536,                      /* bytes of one read                                    */
    BACKLOG = 1 << 18,                    /* of answers that a client does not take               */
    MEMORY  = 1 << 28,                    /* of all connections: bodies beyond it are refused     */
    BUCKETS = 12
};

typedef struct options {
    const char *csv, *host, *digits, *text;
    int port, epochs, steps, workers, threads, batch, wait, queue, deadline, connections, body,
        time, idle, drain;
} options;

/* A request that the library has. Its thread of input and output alone makes and frees it; lock
 * guards what workers write: pieces, done, listed. */
typedef struct call {
    struct call *next;                    /* in the list of those with news                       */
    struct conn *conn;                    /* NULL: the connection is gone                         */
    mlc_reply   *reply;
    bool         listed, done;
    json_text    pieces;                  /* of a text: bytes that were not written yet           */
    bool         is_text, events;         /* events: pieces are written as they come              */
    bool         begun;                   /* the head of the answer is written                    */
    int          code;                    /* of reading a file: the answer; why is in pieces      */
    char        *model, *id;              /* id NULL: none                                        */
    int          n_out;                   /* outputs that were asked for; 0: all                  */
    int          out[KSERVE_VALUES];
    bool         bytes[KSERVE_VALUES], all_bytes;
} call;

typedef struct conn {
    int          fd;
    http_request in;
    json_text    got, out;                /* bytes not read yet, not sent yet                     */
    size_t       sent;                    /* of out                                               */
    call        *asks;                    /* what it waits for                                    */
    double       began, moved;            /* the request's first byte; the last byte, either way  */
    bool         eof;                     /* the client sends no more                             */
    bool         close;                   /* after out                                            */
    bool         ended;                   /* out is sent, and the end, too: what comes is dropped */
    bool         dead;
} conn;

/* What /metrics says beside the library's own figures. */
typedef struct figures {
    int64_t code[600], connections, refused, bucket[BUCKETS + 1], requests, pieces, gone;
    double  seconds, reading, writing;    /* of requests in all; of parsing and of making answers */
} figures;

static const double bounds[BUCKETS] = { .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5 };

typedef struct server {
    options         o;
    http_limits     limits;
    mlc_server     *serve;
    conn          **conns;
    int             n, calls, listener, wake[2];
    bool            full;                 /* connections hold more than MEMORY                    */
    int             draining;             /* by the main thread, read by __atomic                 */
    double          drain_began;
    double          deaf;                 /* until then none is taken: descriptors had run out    */
    figures         f;
    pthread_mutex_t lock;                 /* of the rest                                          */
    call           *news, **last;
    call           *load;                 /* of a client that wants a file read again             */
    pthread_t       main;
} server;

static server S;

static bool draining(void) { return __atomic_load_n(&S.draining, __ATOMIC_ACQUIRE) != 0; }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wake(void)
{
    const char c = 0;
    if (write(S.wake[1], &c, 1) < 0) return;             /* a full pipe wakes, too              */
}

/* Puts a call into the list of those with news; the lock is held. */
static void announce(call *c)
{
    if (c->listed) return;
    c->listed = true;
    c->next   = NULL;
    *S.last   = c;
    S.last    = &c->next;
}

/* ---- answers */

static const char *reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 417: return "Expectation Failed";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
    }
}

/* Counts a request that ends with this status. */
static void count(const conn *c, int status)
{
    const double t = now() - c->began;
    int          b = 0;
    while (b < BUCKETS && t > bounds[b]) b++;
    S.f.bucket[b]++;
    S.f.code[status]++;
    S.f.requests++;
    S.f.seconds += t;
}

/* The first lines of an answer; more are put by `lines`, each with CR LF. */
static void head(conn *c, int status, const char *type, const char *lines)
{
    text_print(&c->out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", status, reason(status), type);
    text_say(&c->out, lines);
    if (draining() && !c->got.n) c->in.keep = false;
    if (!c->in.keep) text_say(&c->out, "Connection: close\r\n");
    else if (c->in.old) text_say(&c->out, "Connection: keep-alive\r\n");
    if (!c->in.keep) c->close = true;
}

static void answer(conn *c, int status, const char *type, const char *lines, const char *body,
                   size_t n)
{
    count(c, status);
    head(c, status, type, lines);
    text_print(&c->out, "Content-Length: %zu\r\n\r\n", n);
    if (!c->in.method || strcmp(c->in.method, "HEAD")) text_put(&c->out, body, n);
}

static void answer_json(conn *c, int status, const json_text *t)
{
    if (t->full) answer(c, 503, "application/json", "", "{\"error\":\"no memory\"}", 21);
    else answer(c, status, "application/json",
                status == 503 ? "Retry-After: 1\r\n" : "", t->n ? t->s : "", t->n);
}

static void fail(conn *c, int status, const char *why)
{
    json_text t = { NULL, 0, 0, false };
    text_say(&t, "{\"error\":");
    text_json(&t, why, strlen(why));
    text_say(&t, "}");
    answer_json(c, status, &t);
    free(t.s);
}

static void fail_method(conn *c, const char *allowed)
{
    char lines[64];
    snprintf(lines, sizeof lines, "Allow: %s\r\n", allowed);
    static const char body[] = "{\"error\":\"the method is not allowed here\"}";
    answer(c, 405, "application/json", lines, body, sizeof body - 1);
}

/* ---- calls: what the library is asked, and its answers */

static call *call_new(conn *c, const char *model)
{
    call *k = (call *)calloc(1, sizeof *k);
    if (!k) return NULL;
    k->conn  = c;
    k->model = strdup(model);
    if (!k->model) { free(k); return NULL; }
    c->asks = k;
    S.calls++;
    return k;
}

static void call_free(call *k)
{
    if (k->conn) k->conn->asks = NULL;
    mlc_serve_free(k->reply);
    free(k->pieces.s);
    free(k->model);
    free(k->id);
    free(k);
    S.calls--;
}

/* Called by a worker: there is an answer. */
static void done(void *user, mlc_reply *reply)
{
    (void)reply;
    pthread_mutex_lock(&S.lock);
    ((call *)user)->done = true;
    announce((call *)user);
    pthread_mutex_unlock(&S.lock);
    wake();
}

/* Called by a worker: a token, which is a byte. */
static bool token(void *user, int64_t step, int64_t value)
{
    call      *k = (call *)user;
    const char c = (char)value;
    (void)step;
    pthread_mutex_lock(&S.lock);
    text_put(&k->pieces, &c, 1);
    if (k->events) announce(k);
    pthread_mutex_unlock(&S.lock);
    if (k->events) wake();
    return true;
}

/* The status of an answer that is not OK. */
static int status_of(const call *k)
{
    mlc_status why = MLC_OK;
    if (k->code) return k->code;
    switch (k->reply ? mlc_serve_answer(k->reply) : MLC_ANSWER_FULL) {
    case MLC_ANSWER_OK: return 200;
    case MLC_ANSWER_FULL: case MLC_ANSWER_STOPPED: case MLC_ANSWER_CANCELLED: return 503;
    case MLC_ANSWER_LATE: return 504;
    default: break;
    }
    mlc_serve_error(k->reply, &why);
    return why == MLC_ERR_ARG || why == MLC_ERR_SHAPE || why == MLC_ERR_DTYPE ||
           why == MLC_ERR_VALUE ? 400 : 500;
}

static const char *error_of(const call *k)
{
    const char *why = k->reply ? mlc_serve_error(k->reply, NULL) : "no memory";
    return *why ? why : mlc_serve_answer_name(mlc_serve_answer(k->reply));
}

/* The JSON of an answer in numbers, and in `tail` the outputs that come as bytes. */
static void outputs(const call *k, json_text *t, json_text *tail)
{
    mlc_serve_value v;
    text_say(t, "{\"model_name\":");
    text_json(t, k->model, strlen(k->model));
    text_say(t, ",\"model_version\":\"1\"");
    if (k->id) { text_say(t, ",\"id\":"); text_json(t, k->id, strlen(k->id)); }
    text_say(t, ",\"outputs\":[");
    for (int i = 0;; i++) {
        const int at = k->n_out ? k->out[i] : i;
        if ((k->n_out && i == k->n_out) || !mlc_serve_model_output(S.serve, k->model, at, &v))
            break;
        if (i) text_say(t, ",");
        kserve_output_put(t, tail, v.name, mlc_serve_output(k->reply, at),
                          k->all_bytes || (k->n_out && k->bytes[i]));
    }
    text_say(t, "]}");
}

static void answer_numbers(conn *c, const call *k)
{
    json_text t = { NULL, 0, 0, false }, tail = { NULL, 0, 0, false };
    char      line[80];
    outputs(k, &t, &tail);
    const size_t bytes = t.n;
    if (tail.n) text_put(&t, tail.s, tail.n);
    snprintf(line, sizeof line, "Inference-Header-Content-Length: %zu\r\n", bytes);
    if (t.full || tail.full) fail(c, 503, "no memory");
    else if (tail.n) answer(c, 200, "application/octet-stream", line, t.s, t.n);
    else answer_json(c, 200, &t);
    free(t.s);
    free(tail.s);
}

/* {"model_name":"text","text_output":".."} of bytes of a text. */
static void text_output(json_text *t, const call *k, const char *s, size_t n)
{
    text_say(t, "{\"model_name\":");
    text_json(t, k->model, strlen(k->model));
    text_say(t, ",\"model_version\":\"1\",\"text_output\":");
    text_json(t, s, n);
    text_say(t, "}");
}

/* A server-sent event, in a chunk of its own where the client knows chunks. */
static void event(conn *c, const json_text *t)
{
    if (!c->in.old) text_print(&c->out, "%zx\r\n", t->n + 8);
    text_say(&c->out, "data: ");
    text_put(&c->out, t->s, t->n);
    text_say(&c->out, c->in.old ? "\n\n" : "\n\n\r\n");
    S.f.pieces++;
}

/* Bytes of whole characters at the beginning of s. */
static size_t whole(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++)
        if ((s[n - back] & 0xC0) != 0x80)
            return text_utf8(s + n - back, back) < 0 ? n - back : n;
    return n;
}

/* Writes what a stream has; the first time with the head of the answer before it. */
static void stream(conn *c, call *k, const json_text *got, bool ended)
{
    json_text t = { NULL, 0, 0, false };
    if (!k->begun) {
        k->begun   = true;
        c->in.keep = c->in.keep && !c->in.old;
        head(c, 200, "text/event-stream", "Cache-Control: no-cache\r\n");
        text_say(&c->out, c->in.old ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    }
    if (got->n) { text_output(&t, k, got->s, got->n); event(c, &t); }
    t.n = 0;
    if (ended && status_of(k) != 200) {
        text_say(&t, "{\"error\":");
        text_json(&t, error_of(k), strlen(error_of(k)));
        text_say(&t, "}");
        event(c, &t);
    }
    if (ended && !c->in.old) text_say(&c->out, "0\r\n\r\n");
    if (ended) count(c, status_of(k));
    free(t.s);
}

/* A text that is not a stream. */
static void answer_text(conn *c, const call *k, const json_text *got)
{
    json_text t = { NULL, 0, 0, false };
    text_output(&t, k, got->n ? got->s : "", got->n);
    answer_json(c, 200, &t);
    free(t.s);
}

static void work(conn *c);

/* Takes the bytes that can be written: of a stream whole characters, else all at the end. */
static bool take_pieces(call *k, json_text *got)
{
    pthread_mutex_lock(&S.lock);
    const bool   ended = k->done;
    const size_t n = ended ? k->pieces.n : k->events ? whole(k->pieces.s, k->pieces.n) : 0;
    k->listed = false;
    text_put(got, k->pieces.s, n);
    text_drop(&k->pieces, n);
    pthread_mutex_unlock(&S.lock);
    return ended;
}

/* Writes the news of a call; one that is done is freed, and its connection goes on. */
static void call_news(call *k)
{
    json_text    got   = { NULL, 0, 0, false };
    const double began = now();
    const bool   ended = take_pieces(k, &got);
    conn        *c     = k->conn;
    const int    code  = ended ? status_of(k) : 0;
    if (c && c->sent == c->out.n) c->moved = began;      /* the client's time to take it begins */
    if (c && k->events && (got.n || k->begun || code == 200)) stream(c, k, &got, ended);
    else if (c && k->code == 200) answer(c, code, "application/json", "", "{}", 2);
    else if (c && k->code) fail(c, code, got.n ? got.s : "");
    else if (c && ended && code != 200) fail(c, code, error_of(k));
    else if (c && ended && k->is_text) answer_text(c, k, &got);
    else if (c && ended) answer_numbers(c, k);
    S.f.writing += now() - began;
    free(got.s);
    if (!ended) return;
    call_free(k);
    if (!c) return;
    http_reset(&c->in);
    work(c);
}

static void all_news(void)
{
    pthread_mutex_lock(&S.lock);
    call *k = S.news;
    S.news  = NULL;
    S.last  = &S.news;
    pthread_mutex_unlock(&S.lock);
    while (k) {
        call *next = k->next;                            /* before it is listed again           */
        call_news(k);
        k = next;
    }
}

#endif
