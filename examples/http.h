/* http.h -- reads requests of HTTP/1.1 as their bytes come (RFC 9110, 9112)
 *
 *     http_request r = http_request_make(&limits);
 *     at += http_feed(&r, bytes + at, n - at);          as often as bytes come
 *     HTTP_DONE: a request is whole; http_reset(&r) begins the next one
 *     HTTP_BAD:  answer r.status with r.why, and close
 *
 * What is read does not depend on how the bytes were cut. A request takes at most limits.head bytes
 * and its body; a body grows with what has come, not with what was announced. Where readers are
 * known to disagree, which is how requests are smuggled past a proxy, this one refuses: lines must
 * end with CR LF, a length is given once, and not beside chunks.
 *                                              test: tests/fuzz/http.c, tests/serve_client.py */
#ifndef EXAMPLES_HTTP_H
#define EXAMPLES_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HTTP_MOST_HEADERS = 64, HTTP_SIZE_LINE = 128 };

typedef struct http_limits {
    size_t line;                          /* bytes of the first line                              */
    size_t head;                          /* of all lines                                         */
    size_t body;
    int    headers;                       /* lines, at most HTTP_MOST_HEADERS                     */
} http_limits;

/* Where reading is; the last two are ends. */
typedef enum http_state {
    HTTP_START, HTTP_HEADER, HTTP_BODY, HTTP_SIZE, HTTP_CHUNK, HTTP_CHUNK_END, HTTP_TRAILER,
    HTTP_DONE, HTTP_BAD
} http_state;

typedef struct http_request {
    const http_limits *limits;
    http_state  state;
    int         status;                   /* of HTTP_BAD: 400, 411, 413, 414, 417, 431, 501, 503, */
    const char *why;                      /* 505; and why                                         */
    char       *head;                     /* lines, each ended by a 0; names in small letters     */
    size_t      head_n, line;             /* bytes in it; where the line begins that is read      */
    int         blank;                    /* empty lines before the request                       */
    const char *method, *target;          /* a target begins with '/', or is "*"                  */
    const char *name[HTTP_MOST_HEADERS], *value[HTTP_MOST_HEADERS];
    int         headers;
    bool        old;                      /* HTTP/1.0                                             */
    bool        keep;                     /* the connection stays open                            */
    bool        expects;                  /* the client waits for 100 Continue                    */
    char       *body;                     /* ended by a 0; NULL: nothing has come                 */
    size_t      body_n, body_room;
    size_t      left;                     /* bytes to come, of the body or of a chunk             */
} http_request;

static inline http_request http_request_make(const http_limits *limits)
{
    http_request r;
    memset(&r, 0, sizeof r);
    r.limits = limits;
    return r;
}

static inline void http_free(http_request *r)
{
    free(r->head);
    free(r->body);
    *r = http_request_make(r->limits);
}

/* Begins the next request; a small body's memory stays for it. */
static inline void http_reset(http_request *r)
{
    http_request next = http_request_make(r->limits);
    next.head = r->head;
    if (r->body_room <= 65536) { next.body = r->body; next.body_room = r->body_room; }
    else free(r->body);
    *r = next;
}

/* Has anything of a request come? */
static inline bool http_begun(const http_request *r)
{
    return r->state != HTTP_START || r->head_n > 0;
}

static inline bool http_fail(http_request *r, int status, const char *why)
{
    r->state  = HTTP_BAD;
    r->status = status;
    r->why    = why;
    r->keep   = false;
    return false;
}

static inline char http_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* Do a and b have the same letters, large or small? */
static inline bool http_same(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (http_lower(*a) != http_lower(*b)) return false;
    return *a == *b;
}

/* The value of a header by its name in small letters; NULL if there is none. */
static inline const char *http_header(const http_request *r, const char *name)
{
    for (int i = 0; i < r->headers; i++)
        if (!strcmp(r->name[i], name)) return r->value[i];
    return NULL;
}

static inline int http_header_count(const http_request *r, const char *name)
{
    int n = 0;
    for (int i = 0; i < r->headers; i++) n += !strcmp(r->name[i], name);
    return n;
}

/* Is word one of a list, "a, b", in any header of this name? */
static inline bool http_lists(const http_request *r, const char *name, const char *word)
{
    const size_t n = strlen(word);
    for (int i = 0; i < r->headers; i++) {
        if (strcmp(r->name[i], name)) continue;
        for (const char *v = r->value[i]; *v;) {
            size_t k = 0;
            v += strspn(v, " \t,");
            while (k < n && http_lower(v[k]) == word[k]) k++;
            if (k == n && (!v[n] || strchr(" \t,", v[n]))) return true;
            v += strcspn(v, ",");
        }
    }
    return false;
}

/* Characters of a name or a method. */
static inline bool http_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static inline size_t http_token(const char *s)
{
    size_t n = 0;
    while (http_token_char(s[n])) n++;
    return n;
}

/* Digits alone; false for anything else. What no size_t holds is SIZE_MAX. */
static inline bool http_number(const char *s, int base, size_t *out)
{
    size_t v = 0, n = 0;
    for (;; n++) {
        const char c = http_lower(s[n]);
        const int  d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (d >= base) break;
        v = v > (SIZE_MAX - 16) / 16 ? SIZE_MAX : v * (size_t)base + (size_t)d;
    }
    *out = v;
    return n > 0 && !s[n];
}

/* METHOD SP TARGET SP HTTP/1.x; a target with a host in it loses the host. */
static inline bool http_first_line(http_request *r, char *s)
{
    const size_t m = http_token(s);
    if (m == 0 || s[m] != ' ') return http_fail(r, 400, "the first line has no method");
    s[m] = 0;
    char *target = s + m + 1, *end = target;
    while (*end > 0x20 && *end < 0x7F) end++;
    if (end == target || *end != ' ') return http_fail(r, 400, "the first line has no target");
    *end++ = 0;
    if (!strncmp(target, "http://", 7)) {
        char *path = strchr(target + 7, '/');
        if (!path) return http_fail(r, 400, "the target has no path");
        target = path;
    }
    if (*target != '/' && strcmp(target, "*"))
        return http_fail(r, 400, "the target does not begin with '/'");
    if (strncmp(end, "HTTP/", 5) || end[5] < '0' || end[5] > '9' || end[6] != '.' ||
        end[7] < '0' || end[7] > '9' || end[8])
        return http_fail(r, 400, "the first line does not end with a version");
    if (end[5] != '1') return http_fail(r, 505, "the version is not HTTP/1.1");
    r->method = s;
    r->target = target;
    r->old    = end[7] == '0';
    r->state  = HTTP_HEADER;
    return true;
}

/* Is there a control character, other than a tab? */
static inline bool http_control(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7F) return true;
    return false;
}

/* Bytes of the name of a line NAME: VALUE, which may be a trailer; 0: it is no such line. */
static inline size_t http_name(http_request *r, const char *s)
{
    const size_t k = http_token(s);
    if (k == 0 || s[k] != ':') return http_fail(r, 400, "a header has no name");
    return http_control(s + k) ? http_fail(r, 400, "a header has a control character") : k;
}

/* NAME: VALUE, with blanks around the value. */
static inline bool http_header_line(http_request *r, char *s, size_t n)
{
    if (r->headers == r->limits->headers || r->headers == HTTP_MOST_HEADERS)
        return http_fail(r, 431, "too many headers");
    const size_t k = http_name(r, s);
    if (k == 0) return false;
    for (size_t i = 0; i < k; i++) s[i] = http_lower(s[i]);
    s[k] = 0;
    char *value = s + k + 1, *end = s + n;
    while (*value == ' ' || *value == '\t') value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    r->name[r->headers]    = s;
    r->value[r->headers++] = value;
    return true;
}

/* The length of the body, from all headers. */
static inline bool http_length(http_request *r)
{
    const char  *length = http_header(r, "content-length"), *coding;
    const bool   post   = !strcmp(r->method, "POST") || !strcmp(r->method, "PUT");
    coding = http_header(r, "transfer-encoding");
    if (http_header_count(r, "content-length") > 1 || (length && coding) || (coding && r->old))
        return http_fail(r, 400, "the length of the body is given twice, or as HTTP/1.0 cannot");
    if (coding && (http_header_count(r, "transfer-encoding") > 1 || !http_same(coding, "chunked")))
        return http_fail(r, 501, "a transfer encoding other than chunked");
    if (coding) { r->state = HTTP_SIZE; return true; }
    if (!length && post) return http_fail(r, 411, "a body needs its length, or chunks");
    if (length && !http_number(length, 10, &r->left))
        return http_fail(r, 400, "the length of the body is no number");
    if (r->left > r->limits->body) return http_fail(r, 413, "the body is too large");
    if (r->left) r->state = HTTP_BODY;
    else r->state = HTTP_DONE;
    return true;
}

/* The empty line after the headers. */
static inline bool http_headers_end(http_request *r)
{
    const char *expect = http_header(r, "expect");
    r->keep = r->old ? http_lists(r, "connection", "keep-alive") &&
                           !http_lists(r, "connection", "close")
                     : !http_lists(r, "connection", "close");
    if (http_header_count(r, "host") > 1 || (!r->old && !http_header(r, "host")))
        return http_fail(r, 400, "a request needs one header Host");
    if (expect && !http_same(expect, "100-continue"))
        return http_fail(r, 417, "an expectation other than 100-continue");
    if (!http_length(r)) return false;
    r->expects = expect && !r->old && r->state != HTTP_DONE;
    return true;
}

/* SIZE[;EXTENSION] of a chunk, in hex; blanks stand before a ';' alone. */
static inline bool http_size_line(http_request *r, char *s)
{
    char *end = s + strcspn(s, "; \t");
    if ((*end && end[strspn(end, " \t")] != ';') || http_control(end))
        return http_fail(r, 400, "an extension of a chunk is none");
    *end = 0;
    if (!http_number(s, 16, &r->left)) return http_fail(r, 400, "a chunk has no size");
    if (r->left > r->limits->body - r->body_n) return http_fail(r, 413, "the body is too large");
    if (r->left) r->state = HTTP_CHUNK;
    else r->state = HTTP_TRAILER;
    return true;
}

/* A line of n bytes, ended by a 0 where its CR was. */
static inline bool http_line(http_request *r, char *s, size_t n)
{
    if (strlen(s) != n) return http_fail(r, 400, "a line has a 0 in it");
    switch (r->state) {
    case HTTP_START:
        if (n) return http_first_line(r, s);
        r->head_n = 0;
        return ++r->blank < 4 || http_fail(r, 400, "empty lines");
    case HTTP_HEADER: return n ? http_header_line(r, s, n) : http_headers_end(r);
    case HTTP_SIZE:
        r->head_n = r->line;                             /* the next one takes its place        */
        return http_size_line(r, s);
    case HTTP_CHUNK_END:
        r->head_n = r->line;
        r->state  = HTTP_SIZE;
        return n == 0 || http_fail(r, 400, "a chunk is longer than its size");
    default:
        if (!n) r->state = HTTP_DONE;                    /* trailers are passed over            */
        return n == 0 || http_name(r, s) > 0;
    }
}

/* Takes bytes up to the end of a line, or all of them; returns how many. */
static inline size_t http_take_line(http_request *r, const char *data, size_t n)
{
    const char  *lf    = (const char *)memchr(data, '\n', n);
    const size_t take  = lf ? (size_t)(lf - data) + 1 : n;
    const size_t had   = r->head_n - r->line;
    const bool   first = r->state == HTTP_START;
    const bool   size  = r->state == HTTP_SIZE || r->state == HTTP_CHUNK_END;
    const size_t line  = first ? r->limits->line : size ? (size_t)HTTP_SIZE_LINE
                                                        : r->limits->head;
    if (had + take > line || r->head_n + take > r->limits->head) {
        http_fail(r, size ? 400 : first ? 414 : 431, size ? "the size of a chunk is too long"
                     : first ? "the first line is too long" : "the headers are too long");
        return n;
    }
    memcpy(r->head + r->head_n, data, take);
    r->head_n += take;
    if (!lf) return take;
    char *s = r->head + r->line;
    if (r->head_n - r->line < 2 || r->head[r->head_n - 2] != '\r') {
        http_fail(r, 400, "a line does not end with CR LF");
        return take;
    }
    r->head[r->head_n - 2] = 0;
    if (http_line(r, s, r->head_n - r->line - 2)) r->line = r->head_n;
    return take;
}

/* Takes bytes of the body, or of a chunk; returns how many. */
static inline size_t http_take_body(http_request *r, const char *data, size_t n)
{
    const size_t take = n < r->left ? n : r->left, want = r->body_n + take + 1;
    if (want > r->body_room) {
        size_t room = r->body_room ? r->body_room : 4096;
        while (room < want) room *= 2;
        char *body = (char *)realloc(r->body, room);
        if (!body) { http_fail(r, 503, "no memory for the body"); return n; }
        r->body      = body;
        r->body_room = room;
    }
    memcpy(r->body + r->body_n, data, take);
    r->body_n += take;
    r->left   -= take;
    r->body[r->body_n] = 0;
    if (r->left == 0 && r->state == HTTP_BODY) r->state = HTTP_DONE;
    else if (r->left == 0) r->state = HTTP_CHUNK_END;
    return take;
}

/* Takes bytes of one request; returns how many, fewer than n where the next request begins. */
static inline size_t http_feed(http_request *r, const char *data, size_t n)
{
    size_t at = 0;
    if (!r->head && n) r->head = (char *)malloc(r->limits->head);
    if (!r->head && n) { http_fail(r, 503, "no memory for the headers"); return n; }
    while (at < n && r->state < HTTP_DONE) {
        const bool body = r->state == HTTP_BODY || r->state == HTTP_CHUNK;
        at += body ? http_take_body(r, data + at, n - at) : http_take_line(r, data + at, n - at);
    }
    return at;
}

#endif
