/* serve_api.h -- the paths of serve.c: what each request asks of the library, or is told at once */
#ifndef EXAMPLES_SERVE_API_H
#define EXAMPLES_SERVE_API_H

#include "serve_calls.h"
#include "serve_models.h"
#include "serve_page.h"

#include <signal.h>

/* Hands in what k asks; where the library had no memory for a reply, the answer is written here. */
static void submitted(conn *c, call *k)
{
    pthread_mutex_lock(&S.lock);
    const bool lost = !k->reply && !k->done;
    pthread_mutex_unlock(&S.lock);
    if (!lost) return;
    fail(c, 503, "no memory");
    call_free(k);
}

/* The bytes of an input, in memory of the caller's: from JSON, or from those after it. */
static void *input(json *j, const kserve_value *in, const mlc_serve_value *want,
                   const unsigned char *bytes, mlc_serve_array *a)
{
    const kserve_dtype *d = kserve_dtype_of(want->dtype);
    const int64_t       n = kserve_count(in->ndim, in->shape);
    const size_t        size = mlc_dtype_bytes(want->dtype);
    if (!in->datatype || strcmp(in->datatype, d->name) || in->ndim < 0) {
        json_fail(j, "the datatype of an input is another, or its shape lacks");
        return NULL;
    }
    if (n < 0 || (bytes ? (uint64_t)n * size != (uint64_t)in->bytes : (uint64_t)n > j->n)) {
        json_fail(j, "data and shape of an input do not fit");
        return NULL;
    }
    void *to = malloc((size_t)n * size + 1);
    if (!to) { json_fail(j, "no memory"); return NULL; }
    a->dtype = want->dtype;
    a->ndim  = in->ndim;
    a->data  = to;
    memcpy(a->shape, in->shape, sizeof a->shape);
    if (bytes) { memcpy(to, bytes, (size_t)n * size); return to; }
    j->at = in->data;
    if (!in->data || !d->json) json_fail(j, "an input has no data");
    else kserve_data(j, want->dtype, to, n);
    return to;
}

/* All inputs of the model, by name; false, and j->why. Memory is to be freed in any case. */
static bool inputs(json *j, const kserve_request *r, const char *model,
                   const unsigned char *tail, size_t n_tail, mlc_serve_array *a, void **memory)
{
    mlc_serve_value v;
    int             n = 0;
    while (n < KSERVE_VALUES && mlc_serve_model_input(S.serve, model, n, &v)) {
        const unsigned char *at = tail, *from = NULL;
        int                  k  = -1;
        for (int i = 0; i < r->n_in; i++) {
            const bool binary = r->in[i].bytes >= 0, same = !strcmp(r->in[i].name, v.name);
            if (binary && (uint64_t)r->in[i].bytes > n_tail - (size_t)(at - tail))
                return json_fail(j, "fewer bytes after the JSON than it says");
            if (same && k < 0) { k = i; from = binary ? at : NULL; }
            if (binary) at += r->in[i].bytes;
        }
        if (at != tail + n_tail) return json_fail(j, "more bytes after the JSON than it says");
        if (k < 0) return json_fail(j, "an input lacks");
        memory[n] = input(j, &r->in[k], &v, from, &a[n]);
        if (j->why) return false;
        n++;
    }
    return n == r->n_in || json_fail(j, "the model has not so many inputs");
}

/* Notes which outputs are wanted, and in what form. */
static bool wanted(json *j, const kserve_request *r, call *k)
{
    mlc_serve_value v;
    k->all_bytes = r->binary;
    k->n_out     = r->n_out;
    for (int i = 0; i < r->n_out; i++) {
        k->bytes[i] = r->out[i].binary;
        k->out[i]   = -1;
        for (int o = 0; k->out[i] < 0 && mlc_serve_model_output(S.serve, k->model, o, &v); o++)
            if (!strcmp(v.name, r->out[i].name)) k->out[i] = o;
        if (k->out[i] < 0) return json_fail(j, "the model has no output of this name");
    }
    if (r->id) k->id = strdup(r->id);
    return !r->id || k->id || json_fail(j, "no memory");
}

static void infer(conn *c, const char *model)
{
    const double    began = now();
    const char     *length = http_header(&c->in, "inference-header-content-length");
    size_t          n = c->in.body_n;
    void           *memory[KSERVE_VALUES] = { NULL };
    mlc_serve_array a[KSERVE_VALUES];
    kserve_request  r;
    call           *k = NULL;
    json            j = { c->in.body, 0, n, NULL };
    if (length && (!http_number(length, 10, &j.n) || j.n > n))
        json_fail(&j, "Inference-Header-Content-Length is no number, or beyond the body");
    else if (kserve_read(&j, &r) && inputs(&j, &r, model, (unsigned char *)c->in.body + j.n,
                                           n - j.n, a, memory)) {
        k = call_new(c, model);
        if (!k) json_fail(&j, "no memory");
        else wanted(&j, &r, k);
    }
    S.f.reading += now() - began;
    if (j.why) {
        char why[200];
        snprintf(why, sizeof why, "%s (byte %zu)", j.why, j.at);
        if (k) call_free(k);
        fail(c, strcmp(j.why, "no memory") ? 400 : 503, why);
    } else {
        mlc_request q = mlc_request_make(k->model, a);
        q.n_in        = r.n_in;
        q.deadline_ms = S.o.deadline;
        q.done        = done;
        q.user        = k;
        mlc_serve_submit(S.serve, &q, &k->reply);
        submitted(c, k);
    }
    for (int i = 0; i < KSERVE_VALUES; i++) free(memory[i]);
}

/* What a text is drawn by; members of "parameters" may stand beside it as well. */
static bool text_read(json *j, char **prompt, mlc_generate_desc *how, bool inner)
{
    bool    first = true;
    char   *key;
    int64_t seed = (int64_t)how->seed;
    if (!json_need(j, '{', "the body is no object of JSON")) return false;
    while (json_member(j, &first, &key)) {
        if (!strcmp(key, "text_input") && !inner) json_string(j, prompt);
        else if (!strcmp(key, "parameters") && !inner) text_read(j, prompt, how, true);
        else if (!strcmp(key, "max_tokens")) json_whole(j, 1, GPT_CONTEXT, &how->tokens);
        else if (!strcmp(key, "temperature")) json_number(j, &how->temperature);
        else if (!strcmp(key, "top_k")) json_whole(j, 0, 1 << 20, &how->top_k);
        else if (!strcmp(key, "top_p")) json_number(j, &how->top_p);
        else if (!strcmp(key, "seed")) json_whole(j, 0, (int64_t)1 << 53, &seed);
        else json_skip(j);
        if (!strcmp(key, "seed")) how->seed = (uint64_t)seed;
    }
    return !j->why;
}

static void generate(conn *c, const char *model, bool events)
{
    json           j = { c->in.body, 0, c->in.body_n, NULL };
    char          *prompt = NULL;
    int64_t        tokens[GPT_CONTEXT];
    mlc_serve_text t = mlc_serve_text_make(model, tokens, 0, 64);
    if (text_read(&j, &prompt, &t.how, false) && json_end(&j)) {
        if (!prompt || !*prompt || strlen(prompt) >= GPT_CONTEXT)
            json_fail(&j, "text_input lacks, is empty or too long");
    }
    call *k = j.why ? NULL : call_new(c, model);
    if (!k) { fail(c, j.why ? 400 : 503, j.why ? j.why : "no memory"); return; }
    for (t.n_prompt = 0; prompt[t.n_prompt]; t.n_prompt++)
        tokens[t.n_prompt] = (unsigned char)prompt[t.n_prompt];
    t.model       = k->model;
    t.deadline_ms = S.o.deadline;
    t.token       = token;
    t.done        = done;
    t.user        = k;
    k->is_text    = true;
    k->events     = events;
    mlc_serve_generate(S.serve, &t, &k->reply);
    submitted(c, k);
}

/* The main thread reads the file. */
static void load(conn *c, const char *model)
{
    call *k = call_new(c, model);
    pthread_mutex_lock(&S.lock);
    const bool can = k && !S.load && !draining();
    if (can) S.load = k;
    pthread_mutex_unlock(&S.lock);
    if (can) { pthread_kill(S.main, SIGUSR1); return; }
    fail(c, 503, "another file is being read, or the server ends");
    if (k) call_free(k);
}

static void metadata(conn *c, const char *model)
{
    json_text       t = { NULL, 0, 0, false };
    mlc_serve_value v;
    text_say(&t, "{\"name\":");
    text_json(&t, model, strlen(model));
    text_say(&t, ",\"versions\":[\"1\"],\"platform\":\"mlcore\",\"inputs\":[");
    for (int i = 0; mlc_serve_model_input(S.serve, model, i, &v); i++) {
        if (i) text_say(&t, ",");
        kserve_head_put(&t, v.name, v.dtype, v.ndim, v.shape);
        text_say(&t, "}");
    }
    text_say(&t, "],\"outputs\":[");
    for (int i = 0; mlc_serve_model_output(S.serve, model, i, &v); i++) {
        if (i) text_say(&t, ",");
        kserve_head_put(&t, v.name, v.dtype, v.ndim, v.shape);
        text_say(&t, "}");
    }
    text_say(&t, "]}");
    answer_json(c, 200, &t);
    free(t.s);
}

static void metric(json_text *t, const char *name, const char *type, const char *what)
{
    text_print(t, "# HELP mlc_http_%s %s\n# TYPE mlc_http_%s %s\n", name, what, name, type);
}

static void metrics_http(json_text *t)
{
    const figures *f = &S.f;
    int64_t        sum = 0;
    metric(t, "requests_total", "counter", "Requests that were answered, by status.");
    for (int i = 0; i < 600; i++)
        if (f->code[i]) text_print(t, "mlc_http_requests_total{code=\"%d\"} %lld\n", i,
                                   (long long)f->code[i]);
    metric(t, "request_seconds", "histogram", "From a request's first byte to its answer.");
    for (int b = 0; b <= BUCKETS; b++) {
        sum += f->bucket[b];
        if (b < BUCKETS) text_print(t, "mlc_http_request_seconds_bucket{le=\"%g\"} %lld\n",
                                    bounds[b], (long long)sum);
        else text_print(t, "mlc_http_request_seconds_bucket{le=\"+Inf\"} %lld\n", (long long)sum);
    }
    text_print(t, "mlc_http_request_seconds_sum %.9g\nmlc_http_request_seconds_count %lld\n",
               f->seconds, (long long)f->requests);
    metric(t, "reading_seconds_total", "counter", "Time of parsing requests.");
    text_print(t, "mlc_http_reading_seconds_total %.9g\n", f->reading);
    metric(t, "writing_seconds_total", "counter", "Time of making answers.");
    text_print(t, "mlc_http_writing_seconds_total %.9g\n", f->writing);
    metric(t, "connections", "gauge", "Connections that are open.");
    text_print(t, "mlc_http_connections %d\n", S.n);
    metric(t, "connections_total", "counter", "Connections that were taken.");
    text_print(t, "mlc_http_connections_total %lld\n", (long long)f->connections);
    metric(t, "refused_total", "counter", "Connections beyond the limit.");
    text_print(t, "mlc_http_refused_total %lld\n", (long long)f->refused);
    metric(t, "events_total", "counter", "Pieces of texts that were sent.");
    text_print(t, "mlc_http_events_total %lld\n", (long long)f->pieces);
    metric(t, "gone_total", "counter", "Clients that were gone before their answer.");
    text_print(t, "mlc_http_gone_total %lld\n", (long long)f->gone);
}

static void metrics(conn *c)
{
    json_text    t = { NULL, 0, 0, false };
    const size_t n = mlc_serve_prometheus(S.serve, NULL, 0);
    char        *s = (char *)malloc(n + 4096);
    if (s) {
        const size_t more = mlc_serve_prometheus(S.serve, s, n + 4096);
        text_put(&t, s, more < n + 4096 ? more : n + 4095);
    }
    free(s);
    metrics_http(&t);
    answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", "", t.s ? t.s : "", t.n);
    free(t.s);
}

static void page(conn *c)
{
    static const char lines[] =
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
        "'unsafe-inline'; connect-src 'self'\r\nX-Content-Type-Options: nosniff\r\n";
    json_text t = { NULL, 0, 0, false };
    for (size_t i = 0; i < sizeof PAGE / sizeof *PAGE; i++) text_say(&t, PAGE[i]);
    answer(c, 200, "text/html; charset=utf-8", lines, t.s ? t.s : "", t.n);
    free(t.s);
}

/* What GET and HEAD get of the server itself; false: there is no such path. */
static bool get(conn *c, const char *path)
{
    static const char about[] = "{\"name\":\"mlcore\",\"version\":\"" MLC_VERSION_STRING "\","
                                "\"extensions\":[\"binary_tensor_data\",\"generate\"]}";
    if (!strcmp(path, "/")) page(c);
    else if (!strcmp(path, "/metrics")) metrics(c);
    else if (!strcmp(path, "/v2")) answer(c, 200, "application/json", "", about, sizeof about - 1);
    else if (!strcmp(path, "/v2/health/live")) answer(c, 200, "application/json", "", "{}", 2);
    else if (strcmp(path, "/v2/health/ready")) return false;
    else if (draining()) fail(c, 503, "the server ends");
    else answer(c, 200, "application/json", "", "{}", 2);
    return true;
}

/* Splits PREFIX NAME /REST: the name goes to `name`. NULL: another path, or no such model. */
static const char *model_of(const char *path, const char *prefix, char name[64])
{
    mlc_serve_value v;
    const size_t    p = strlen(prefix);
    if (strncmp(path, prefix, p)) return NULL;
    const size_t n = strcspn(path + p, "/");
    if (n == 0 || n > 63) return NULL;
    memcpy(name, path + p, n);
    name[n] = 0;
    if (!mlc_serve_model_input(S.serve, name, 0, &v)) return NULL;
    const char *rest = path + p + n;
    return strncmp(rest, "/versions/1", 11) || (rest[11] && rest[11] != '/') ? rest : rest + 11;
}

/* What POST does with a model; false: there is no such path. */
static bool post(conn *c, const char *name, const char *rest)
{
    const bool is_text = mlc_serve_is_text(S.serve, name);
    const bool events  = !strcmp(rest, "/generate_stream");
    if (!strcmp(rest, "/infer") && !is_text) infer(c, name);
    else if ((events || !strcmp(rest, "/generate")) && is_text) generate(c, name, events);
    else return false;
    return true;
}

/* Answers a request, at once or by a call. */
static void handle(conn *c)
{
    static const char *const known[] = { "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS",
                                         "PATCH", "TRACE", "CONNECT" };
    char        path[256], name[64];
    const char *method = c->in.method;
    int         m = 0;
    const size_t n = strcspn(c->in.target, "?#");
    while (m < 9 && strcmp(method, known[m])) m++;
    if (m == 9) { fail(c, 501, "the method is not known"); return; }
    if (n >= sizeof path) { fail(c, 404, "there is nothing of this name"); return; }
    memcpy(path, c->in.target, n);
    path[n] = 0;
    const char *load_rest = model_of(path, "/v2/repository/models/", name);
    const char *rest = load_rest ? NULL : model_of(path, "/v2/models/", name);
    const bool  is_load = load_rest && !strcmp(load_rest, "/load");
    const bool  about = rest && (!*rest || !strcmp(rest, "/ready"));
    const bool  calls = is_load || (rest && (!strcmp(rest, "/infer") ||
                                             !strncmp(rest, "/generate", 9)));
    if (m <= 1 && about && *rest) answer(c, 200, "application/json", "", "{}", 2);
    else if (m <= 1 && about) metadata(c, name);
    else if (m <= 1 && !calls && get(c, path)) return;
    else if (m == 2 && is_load) load(c, name);
    else if (m == 2 && rest && post(c, name, rest)) return;
    else if (m != 2 && calls) fail_method(c, "POST");
    else if (m > 1 && (about || !strcmp(path, "/") || !strcmp(path, "/metrics") ||
                       !strcmp(path, "/v2") || !strncmp(path, "/v2/health/", 11)))
        fail_method(c, "GET, HEAD");
    else fail(c, 404, "there is nothing of this name");
}

#endif
