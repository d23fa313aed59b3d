/* Requests of HTTP: the first byte says how the rest is cut into pieces, which changes nothing of
 * what is read. Bodies are read as those of the server's infer, strings of JSON written again. */
#include "../../examples/http.h"
#include "../../examples/kserve.h"

static uint64_t hash;

static void fuzz_fail(const char *why)
{
    fprintf(stderr, "fuzz: %s\n", why);
    abort();
}

static void mix(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
}

static void mix_text(const char *s) { mix(s, strlen(s) + 1); }

/* What was written is one string of JSON. */
static void write_again(const char *s)
{
    json_text t = { NULL, 0, 0, false };
    char     *back;
    text_json(&t, s, strlen(s));
    json j = { t.s, 0, t.n, NULL };
    if (!json_string(&j, &back) || !json_end(&j)) fuzz_fail("a string does not come back");
    mix_text(back);
    free(t.s);
}

/* A tensor's numbers, with as much memory as the server takes. */
static void numbers(json *j, const kserve_value *v)
{
    const int64_t n = v->ndim < 0 ? -1 : kserve_count(v->ndim, v->shape);
    for (int d = 0; kserve_dtypes(d) && v->data; d++) {
        if (!v->datatype || strcmp(v->datatype, kserve_dtypes(d)->name) || !kserve_dtypes(d)->json)
            continue;
        if (n < 0 || (uint64_t)n > j->n) continue;
        void *to = malloc((size_t)n * 8 + 1);
        if (!to) abort();
        j->at = v->data;
        if (kserve_data(j, kserve_dtypes(d)->dtype, to, n)) mix(&n, sizeof n);
        else if (!j->why) fuzz_fail("numbers are refused without a reason");
        free(to);
    }
}

static void body(const http_request *r)
{
    kserve_request q;
    char          *copy = (char *)malloc(r->body_n + 1);     /* the reader changes it           */
    if (!copy) abort();
    memcpy(copy, r->body ? r->body : "", r->body_n);
    json j = { copy, 0, r->body_n, NULL };
    if (kserve_read(&j, &q)) {
        if (q.id) write_again(q.id);
        for (int i = 0; i < q.n_in && !j.why; i++) numbers(&j, &q.in[i]);
    } else if (!j.why) {
        fuzz_fail("a body is refused without a reason");
    }
    if (j.why) mix_text(j.why);
    free(copy);
}

static void request(const http_request *r)
{
    mix_text(r->method);
    mix_text(r->target);
    for (int i = 0; i < r->headers; i++) {
        mix_text(r->name[i]);
        mix_text(r->value[i]);
    }
    if (r->body_n) mix(r->body, r->body_n);
    if (r->body_n) body(r);
    mix(&r->keep, sizeof r->keep);
}

/* Reads all requests, in pieces of `piece` bytes; returns what was read as a number. */
static uint64_t read_all(const uint8_t *data, size_t size, size_t piece)
{
    static const http_limits limits = { 64, 512, 4096, 8 };
    http_request             r = http_request_make(&limits);
    hash = 14695981039346656037u;
    for (size_t at = 0; at < size && r.state != HTTP_BAD;) {
        const size_t n = size - at < piece ? size - at : piece;
        const size_t took = http_feed(&r, (const char *)data + at, n);
        if (took > n || (took < n && r.state < HTTP_DONE)) fuzz_fail("bytes are left");
        if (r.head_n > limits.head || r.body_n > limits.body) fuzz_fail("more than the limits");
        at += took;
        if (r.state != HTTP_DONE) continue;
        request(&r);
        http_reset(&r);
    }
    mix(&r.status, sizeof r.status);
    if (r.state == HTTP_BAD) mix_text(r.why);
    http_free(&r);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const uint64_t all = read_all(data + 1, size - 1, size);
    if (read_all(data + 1, size - 1, 1) != all || read_all(data + 1, size - 1, data[0] + 2) != all)
        fuzz_fail("pieces are read as something else");
    return 0;
}
