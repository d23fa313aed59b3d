/* kserve.h -- requests and answers of the Open Inference Protocol, KServe v2, in JSON and in bytes
 *
 *     {"id":"7","inputs":[{"name":"x0","shape":[1,64],"datatype":"FP32","data":[0.5, ..]}]}
 *
 * A body may have the tensors' bytes after its JSON, little endian and without gaps; the header
 * Inference-Header-Content-Length then says how long the JSON is.
 *                                              test: tests/fuzz/http.c, tests/serve_client.py */
#ifndef EXAMPLES_KSERVE_H
#define EXAMPLES_KSERVE_H

#include "../mlcore.h"
#include "json.h"

enum { KSERVE_VALUES = 8 };

/* A tensor of a request, or an output that it names. */
typedef struct kserve_value {
    char   *name, *datatype;              /* NULL: not said                                       */
    int32_t ndim;                         /* -1: not said                                         */
    int64_t shape[MLC_MAX_DIMS];
    size_t  data;                         /* where data begins in the JSON; 0: there is none      */
    int64_t bytes;                        /* binary_data_size; -1: not said                       */
    bool    binary;                       /* binary_data: the answer is to have bytes             */
} kserve_value;

typedef struct kserve_request {
    char        *id;                      /* NULL: none                                           */
    kserve_value in[KSERVE_VALUES], out[KSERVE_VALUES];
    int          n_in, n_out;             /* n_out 0: all                                         */
    bool         binary;                  /* binary_data_output                                   */
} kserve_request;

/* Names of dtypes. Those without a form in JSON come as bytes alone. */
typedef struct kserve_dtype { const char *name; mlc_dtype dtype; bool json; } kserve_dtype;

static inline const kserve_dtype *kserve_dtypes(int i)
{
    static const kserve_dtype all[] = {
        { "FP32", MLC_F32, true },   { "FP64", MLC_F64, true },   { "INT64", MLC_I64, true },
        { "INT32", MLC_I32, true },  { "INT8", MLC_I8, true },    { "UINT8", MLC_U8, true },
        { "BOOL", MLC_BOOL, true },  { "BF16", MLC_BF16, false }, { "FP16", MLC_F16, false } };
    return i < (int)(sizeof all / sizeof *all) ? &all[i] : NULL;
}

static inline const kserve_dtype *kserve_dtype_of(mlc_dtype dtype)
{
    const kserve_dtype *d = kserve_dtypes(0);
    for (int i = 0; d && d->dtype != dtype; i++) d = kserve_dtypes(i);
    return d;
}

/* ---- reading */

/* {"binary_data_size":256, ..}: what is known of it. */
static inline bool kserve_parameters(json *j, int64_t *bytes, bool *binary)
{
    bool  first = true;
    char *key;
    if (!json_need(j, '{', "parameters is no object")) return false;
    while (json_member(j, &first, &key)) {
        if (!strcmp(key, "binary_data_size")) json_whole(j, 0, (int64_t)1 << 40, bytes);
        else if (!strcmp(key, "binary_data") || !strcmp(key, "binary_data_output"))
            json_bool(j, binary);
        else json_skip(j);
    }
    return !j->why;
}

static inline bool kserve_shape(json *j, kserve_value *v)
{
    bool first = true;
    v->ndim = 0;
    if (!json_need(j, '[', "shape is no list")) return false;
    while (json_item(j, &first)) {
        if (v->ndim == MLC_MAX_DIMS) return json_fail(j, "a shape of more axes than tensors have");
        if (!json_whole(j, 0, (int64_t)1 << 40, &v->shape[v->ndim++])) return false;
    }
    return !j->why;
}

/* An object of inputs or outputs. */
static inline bool kserve_value_read(json *j, kserve_value *v)
{
    bool  first = true;
    char *key;
    memset(v, 0, sizeof *v);
    v->ndim  = -1;
    v->bytes = -1;
    if (!json_need(j, '{', "inputs and outputs are lists of objects")) return false;
    while (json_member(j, &first, &key)) {
        if (!strcmp(key, "name")) json_string(j, &v->name);
        else if (!strcmp(key, "datatype")) json_string(j, &v->datatype);
        else if (!strcmp(key, "shape")) kserve_shape(j, v);
        else if (!strcmp(key, "parameters")) kserve_parameters(j, &v->bytes, &v->binary);
        else if (!strcmp(key, "data")) { v->data = j->at; json_skip(j); }
        else json_skip(j);
    }
    return !j->why && (v->name || json_fail(j, "an input or output has no name"));
}

static inline bool kserve_values(json *j, kserve_value *v, int *n)
{
    bool first = true;
    *n = 0;
    if (!json_need(j, '[', "inputs and outputs are lists")) return false;
    while (json_item(j, &first)) {
        if (*n == KSERVE_VALUES) return json_fail(j, "more inputs or outputs than models have");
        if (!kserve_value_read(j, &v[(*n)++])) return false;
    }
    return !j->why;
}

/* The JSON of an infer request; its strings stay in j's text. */
static inline bool kserve_read(json *j, kserve_request *r)
{
    bool    first = true;
    int64_t none;
    char   *key;
    memset(r, 0, sizeof *r);
    if (!json_need(j, '{', "the body is no object of JSON")) return false;
    while (json_member(j, &first, &key)) {
        if (!strcmp(key, "id")) json_string(j, &r->id);
        else if (!strcmp(key, "inputs")) kserve_values(j, r->in, &r->n_in);
        else if (!strcmp(key, "outputs")) kserve_values(j, r->out, &r->n_out);
        else if (!strcmp(key, "parameters")) kserve_parameters(j, &none, &r->binary);
        else json_skip(j);
    }
    return json_end(j);
}

/* Element i of a dense array; false: it has no such number, or, of INT64, one beyond 2^53 - 1,
 * which may be the rounding of another. */
static inline bool kserve_set(mlc_dtype dtype, void *to, int64_t i, double v)
{
    const double least = dtype == MLC_I8 ? -128 : dtype == MLC_I32 ? -2147483648.0 :
                         dtype == MLC_I64 ? -9007199254740991.0 : 0;
    const double most = dtype == MLC_I8 ? 127 : dtype == MLC_U8 ? 255 : dtype == MLC_BOOL ? 1 :
                        dtype == MLC_I32 ? 2147483647.0 : 9007199254740991.0;
    if (dtype == MLC_F64) { ((double *)to)[i] = v; return v - v == 0; }
    if (dtype == MLC_F32) {
        const bool fits = v < 3.4028235677973366e38 && v > -3.4028235677973366e38;
        ((float *)to)[i] = fits ? (float)v : 0.0f;
        return fits;
    }
    if (!(v >= least && v <= most) || v != (double)(int64_t)v) return false;
    if (dtype == MLC_I64) ((int64_t *)to)[i] = (int64_t)v;
    else if (dtype == MLC_I32) ((int32_t *)to)[i] = (int32_t)v;
    else if (dtype == MLC_I8) ((int8_t *)to)[i] = (int8_t)v;
    else ((uint8_t *)to)[i] = (uint8_t)v;
    return true;
}

/* Exactly n numbers, nested in lists or not; false, and j->why. */
static inline bool kserve_data(json *j, mlc_dtype dtype, void *to, int64_t n)
{
    int64_t i = 0;
    int     depth = 0;
    do {
        while (json_take(j, '['))
            if (++depth > MLC_MAX_DIMS) return json_fail(j, "data is nested too deep");
        if (depth == 0) return json_fail(j, "data is no list");
        if (!json_take(j, ']')) {
            const bool words = dtype == MLC_BOOL, yes = words && json_word(j, "true");
            double     v     = yes;
            if (!yes && !(words && json_word(j, "false")) && !json_number(j, &v)) return false;
            if (i == n) return json_fail(j, "data has more numbers than its shape");
            if (!kserve_set(dtype, to, i++, v))
                return json_fail(j, "a number of data is out of the range of its datatype");
            if (json_take(j, ',')) continue;
            if (!json_need(j, ']', "']' is missing")) return false;
        }
        depth--;
        while (depth && json_take(j, ']')) depth--;
        if (depth && !json_need(j, ',', "',' is missing")) return false;
    } while (depth);
    return i == n || json_fail(j, "data has fewer numbers than its shape");
}

/* ---- writing */

static inline void kserve_shape_put(json_text *t, int32_t ndim, const int64_t *shape)
{
    text_say(t, "[");
    for (int32_t i = 0; i < ndim; i++) text_print(t, "%s%lld", i ? "," : "", (long long)shape[i]);
    text_say(t, "]");
}

/* {"name":"x0","datatype":"FP32","shape":[-1,64]} without its last brace. */
static inline void kserve_head_put(json_text *t, const char *name, mlc_dtype dtype, int32_t ndim,
                                   const int64_t *shape)
{
    text_say(t, "{\"name\":");
    text_json(t, name, strlen(name));
    text_print(t, ",\"datatype\":\"%s\",\"shape\":", kserve_dtype_of(dtype)->name);
    kserve_shape_put(t, ndim, shape);
}

/* An element as a number; JSON has no NaN and no infinity: null. */
static inline void kserve_number_put(json_text *t, const mlc_serve_array *a, int64_t i)
{
    double v = 0;
    switch (a->dtype) {
    case MLC_F32: v = (double)((const float *)a->data)[i]; break;
    case MLC_F64: v = ((const double *)a->data)[i]; break;
    case MLC_I64: text_print(t, "%lld", (long long)((const int64_t *)a->data)[i]); return;
    case MLC_I32: v = ((const int32_t *)a->data)[i]; break;
    case MLC_I8: v = ((const int8_t *)a->data)[i]; break;
    case MLC_BOOL: text_say(t, ((const uint8_t *)a->data)[i] ? "true" : "false"); return;
    default: v = ((const uint8_t *)a->data)[i]; break;
    }
    if (v - v != 0) text_say(t, "null");
    else text_print(t, "%.*g", a->dtype == MLC_F64 ? 17 : 9, v);
}

static inline int64_t kserve_count(int32_t ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] && n > ((int64_t)1 << 40) / shape[i]) return -1;
        n *= shape[i];
    }
    return n;
}

/* An output of an answer. Its bytes go to `tail`, where they are asked for or JSON has no form. */
static inline void kserve_output_put(json_text *t, json_text *tail, const char *name,
                                     const mlc_serve_array *a, bool binary)
{
    const int64_t n     = kserve_count(a->ndim, a->shape);
    const size_t  bytes = (size_t)n * mlc_dtype_bytes(a->dtype);
    kserve_head_put(t, name, a->dtype, a->ndim, a->shape);
    if (binary || !kserve_dtype_of(a->dtype)->json) {
        text_print(t, ",\"parameters\":{\"binary_data_size\":%zu}}", bytes);
        text_put(tail, a->data, bytes);
        return;
    }
    text_say(t, ",\"data\":[");
    for (int64_t i = 0; i < n; i++) {
        if (i) text_put(t, ",", 1);
        kserve_number_put(t, a, i);
    }
    text_say(t, "]}");
}

#endif
