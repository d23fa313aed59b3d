/* test_serve.c -- tests of sections IMPL.SERVE.*: requests of many threads, batches, deadlines,
 * reloads, statistics, streams of texts
 *
 * Answers are compared with numbers computed here, or with mlc_generate's. No test looks at a
 * clock: deadlines have passed, or are never.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "nets.h"
#include "watch.h"

#include <pthread.h>

#ifndef MLC_NO_SERVE

enum { IN = 3, OUT = 4, ROWS = 8 };

/* Whole numbers, so that f32 has no rounding. */
static float weight(int o, int i, int by) { return (float)(by * (o - 2 * i + 1)); }

/* A linear layer of such weights, times by. */
static mlc_module *net_of(mlc_ctx *ctx, int by)
{
    mlc_module *net = mlc_nn_linear(ctx, IN, OUT);
    float       w[OUT * IN], b[OUT];
    for (int o = 0; o < OUT; o++) {
        b[o] = (float)(by * o);
        for (int i = 0; i < IN; i++) w[o * IN + i] = weight(o, i, by);
    }
    mlc_no_grad_begin(ctx);
    mlc_copy_into(mlc_module_param(net, "weight"), mlc_from(ctx, MLC_F32, mlc_dims2(OUT, IN), w));
    mlc_copy_into(mlc_module_param(net, "bias"), mlc_from(ctx, MLC_F32, mlc_dims1(OUT), b));
    mlc_no_grad_end(ctx);
    return net;
}

/* The inputs of request number k, of `rows` rows. */
static mlc_serve_array input_of(float *x, int rows, int k)
{
    mlc_serve_array a = {MLC_F32, 2, {rows, IN}, x};
    for (int i = 0; i < rows * IN; i++) x[i] = (float)((k + 5 * i) % 17 - 8);
    return a;
}

/* Does the reply have the outputs of request k by the weights times `by`? */
static bool right(const mlc_reply *r, int rows, int k, int by)
{
    float                  x[ROWS * IN];
    const mlc_serve_array *y = mlc_serve_output(r, 0);
    input_of(x, rows, k);
    if (!y || y->dtype != MLC_F32 || y->ndim != 2 || y->shape[0] != rows || y->shape[1] != OUT)
        return false;
    for (int n = 0; n < rows; n++)
        for (int o = 0; o < OUT; o++) {
            float sum = (float)(by * o);
            for (int i = 0; i < IN; i++) sum += weight(o, i, by) * x[n * IN + i];
            if (((const float *)y->data)[n * OUT + o] != sum) return false;
        }
    return true;
}

static mlc_server *server_of(mlc_ctx *ctx)
{
    mlc_server *s = mlc_serve_create(ctx, NULL);
    CHECK(s != NULL);
    return s;
}

/* Adds the model "lin" of net to s, with batches of four. */
static mlc_status add(mlc_server *s, mlc_module *net, int32_t workers, int64_t queue)
{
    mlc_tensor          *x = mlc_zeros(mlc_module_ctx(net), MLC_F32, mlc_dims2(1, IN));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("lin", net, &x);
    d.batch = 4;
    d.queue = queue;
    d.workers = workers;
    d.threads = 1;
    return mlc_serve_model(s, &d);
}

static mlc_reply *submit(mlc_server *s, int rows, int k, double deadline_ms, mlc_answer want)
{
    float           x[ROWS * IN];
    mlc_serve_array a = input_of(x, rows, k);
    mlc_request     q = mlc_request_make("lin", &a);
    mlc_reply      *r = NULL;
    q.deadline_ms = deadline_ms;
    CHECK_EQ(mlc_serve_submit(s, &q, &r), want);
    CHECK(r != NULL);
    return r;
}

TEST(serve, makes_batches_of_what_waits)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = server_of(ctx);
    mlc_reply      *r[4];
    mlc_serve_stats st;
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_OK);
    const int rows[4] = {1, 2, 3, 1};
    for (int k = 0; k < 4; k++) r[k] = submit(s, rows[k], k, -1, MLC_ANSWER_WAITING);
    CHECK(mlc_serve_output(r[0], 0) == NULL);
    CHECK_EQ(mlc_serve_answer(r[3]), MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(r[3], 0), MLC_ANSWER_WAITING);
    /* 1 + 2 + 1 rows fill a batch; the 3 go next. */
    CHECK(mlc_serve_poll(s));
    CHECK_EQ(mlc_serve_answer(r[3]), MLC_ANSWER_OK);
    CHECK_EQ(mlc_serve_answer(r[2]), MLC_ANSWER_WAITING);
    CHECK(mlc_serve_poll(s));
    CHECK(!mlc_serve_poll(s));
    for (int k = 0; k < 4; k++) {
        CHECK_EQ(mlc_serve_wait(r[k], -1), MLC_ANSWER_OK);
        CHECK(right(r[k], rows[k], k, 1));
        CHECK(mlc_serve_output(r[k], 1) == NULL && mlc_serve_output(r[k], -1) == NULL);
        CHECK_STR(mlc_serve_error(r[k], NULL), "");
        mlc_serve_free(r[k]);
    }
    CHECK(mlc_serve_stats_of(s, "lin", &st));
    CHECK_EQ(st.batches, 2);
    CHECK_EQ(st.rows, 7);
    CHECK_EQ(st.places, 8);
    CHECK_EQ(st.answers[MLC_ANSWER_OK], 4);
    CHECK_EQ(st.answers[MLC_ANSWER_WAITING], 0);
    CHECK(st.fill == 7.0 / 8.0 && st.p50 >= st.queue_p50 && st.p99 >= st.p50 && st.queue_p50 >= 0);
    /* A batch of one runs the plan of one. */
    mlc_reply *one = submit(s, 1, 9, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(one, -1), MLC_ANSWER_OK);
    CHECK(right(one, 1, 9, 1));
    mlc_serve_free(one);
    mlc_serve_stats_of(s, "lin", &st);
    CHECK_EQ(st.places, 9);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

/* Notes the order of answers. */
typedef struct order { char text[64]; int n; } order;
static order noted;

static void note(void *user, mlc_reply *r)
{
    const int lower = mlc_serve_answer(r) != MLC_ANSWER_OK;
    noted.text[noted.n++] = (char)(*(const char *)user + 32 * lower);
    noted.text[noted.n] = 0;
}

TEST(serve, refuses_what_does_not_fit_and_says_why)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = server_of(ctx);
    float           x[ROWS * IN];
    mlc_serve_array a = input_of(x, 1, 0);
    mlc_request     q = mlc_request_make("lin", &a);
    mlc_reply      *r[4];
    mlc_status      why;
    mlc_serve_stats st;
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 2), MLC_OK);
    r[0] = submit(s, 5, 0, -1, MLC_ANSWER_FAILED);         /* five rows, a batch has four */
    CHECK_HAS(mlc_serve_error(r[0], &why), "'x0' is [5,3]; it must be [-1,3] with 1 to 4 rows");
    CHECK_EQ(why, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_serve_wait(r[0], -1), MLC_ANSWER_FAILED);
    mlc_serve_free(r[0]);
    a.dtype = MLC_F64;
    CHECK_EQ(mlc_serve_submit(s, &q, &r[0]), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[0], &why), "f64; it must be f32");
    CHECK_EQ(why, MLC_ERR_DTYPE);
    mlc_serve_free(r[0]);
    a.dtype = MLC_F32;
    a.data = NULL;
    CHECK_EQ(mlc_serve_submit(s, &q, NULL), MLC_ANSWER_FAILED);
    a.data = x;
    q.n_in = 2;
    CHECK_EQ(mlc_serve_submit(s, &q, &r[0]), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[0], &why), "2 inputs; model 'lin' has 1");
    mlc_serve_free(r[0]);
    q = mlc_request_make("other", &a);
    CHECK_EQ(mlc_serve_submit(s, &q, &r[0]), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[0], &why), "there is no model 'other'");
    CHECK_EQ(why, MLC_ERR_ARG);
    mlc_serve_free(r[0]);
    CHECK_EQ(mlc_serve_submit(NULL, &q, &r[0]), MLC_ANSWER_FAILED);
    CHECK(r[0] == NULL);
    /* A queue of two. */
    for (int k = 0; k < 3; k++)
        r[k] = submit(s, 1, k, -1, k < 2 ? MLC_ANSWER_WAITING : MLC_ANSWER_FULL);
    CHECK_HAS(mlc_serve_error(r[2], NULL), "full");
    /* done is called in the submit, too, and the reply may be the server's own. */
    memset(&noted, 0, sizeof noted);
    q = mlc_request_make("lin", &a);
    q.done = note;
    q.user = (void *)(uintptr_t)"A";
    CHECK_EQ(mlc_serve_submit(s, &q, NULL), MLC_ANSWER_FULL);
    CHECK_STR(noted.text, "a");
    mlc_serve_stop(s);
    CHECK(right(r[0], 1, 0, 1) && right(r[1], 1, 1, 1));
    r[3] = submit(s, 1, 0, -1, MLC_ANSWER_STOPPED);
    for (int k = 0; k < 4; k++) mlc_serve_free(r[k]);
    CHECK(mlc_serve_stats_of(s, "lin", &st) && !mlc_serve_stats_of(s, "other", &st));
    CHECK_EQ(st.answers[MLC_ANSWER_FULL], 2);
    CHECK_EQ(st.answers[MLC_ANSWER_FAILED], 4);
    CHECK_EQ(st.requests, 9);
    CHECK_STR(mlc_serve_answer_name(MLC_ANSWER_LATE), "late");
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

TEST(serve, keeps_deadlines_priorities_and_what_was_cancelled)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = server_of(ctx);
    mlc_reply      *r[4];
    mlc_serve_stats st;
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_OK);
    r[0] = submit(s, 1, 0, 0, MLC_ANSWER_WAITING);
    r[1] = submit(s, 1, 1, 1e12, MLC_ANSWER_WAITING);
    r[2] = submit(s, 1, 2, -1, MLC_ANSWER_WAITING);
    r[3] = submit(s, 1, 3, -1, MLC_ANSWER_WAITING);
    mlc_serve_cancel(r[2]);
    mlc_serve_cancel(r[2]);
    CHECK_EQ(mlc_serve_answer(r[2]), MLC_ANSWER_CANCELLED);
    CHECK_EQ(mlc_serve_wait(r[0], -1), MLC_ANSWER_LATE);
    CHECK_HAS(mlc_serve_error(r[0], NULL), "deadline");
    CHECK_EQ(mlc_serve_wait(r[1], -1), MLC_ANSWER_OK);
    CHECK_EQ(mlc_serve_wait(r[3], -1), MLC_ANSWER_OK);
    CHECK(right(r[1], 1, 1, 1) && right(r[3], 1, 3, 1) && !mlc_serve_output(r[2], 0));
    mlc_serve_cancel(r[1]);
    CHECK_EQ(mlc_serve_answer(r[1]), MLC_ANSWER_OK);
    for (int k = 0; k < 4; k++) mlc_serve_free(r[k]);
    /* Seven in batches of four: the last three that came have priority. */
    memset(&noted, 0, sizeof noted);
    for (int k = 0; k < 7; k++) {
        static const char *const names[] = {"A", "B", "C", "D", "E", "F", "G"};
        float                    x[IN];
        mlc_serve_array          a = input_of(x, 1, k);
        mlc_request              q = mlc_request_make("lin", &a);
        q.priority = k < 4 ? 0 : k;
        q.done = note;
        q.user = (void *)(uintptr_t)names[k];
        CHECK_EQ(mlc_serve_submit(s, &q, NULL), MLC_ANSWER_WAITING);
    }
    CHECK(mlc_serve_poll(s));
    CHECK_STR(noted.text, "GFEA");
    /* Freeing a reply that waits cancels it. */
    mlc_serve_free(submit(s, 1, 0, -1, MLC_ANSWER_WAITING));
    while (mlc_serve_poll(s)) {}
    CHECK_STR(noted.text, "GFEABCD");
    mlc_serve_stats_of(s, "lin", &st);
    CHECK_EQ(st.answers[MLC_ANSWER_CANCELLED], 2);
    CHECK_EQ(st.answers[MLC_ANSWER_LATE], 1);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

TEST(serve, fails_one_request_of_a_batch_alone)
{
    ONLY_ON_HOST();
    mlc_ctx             *ctx = test_ctx();
    mlc_server          *s = server_of(ctx);
    mlc_module          *net = mlc_nn_embedding(ctx, 5, 2);
    mlc_tensor          *x = mlc_zeros(ctx, MLC_I64, mlc_dims2(1, 1));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("words", net, &x);
    mlc_reply           *r[3];
    mlc_status           why;
    d.workers = 0;
    CHECK_EQ(mlc_serve_model(s, &d), MLC_OK);
    for (int64_t k = 0; k < 3; k++) {
        const int64_t   word = k == 1 ? 7 : k;
        mlc_serve_array a = {MLC_I64, 2, {1, 1}, &word};
        mlc_request     q = mlc_request_make("words", &a);
        CHECK_EQ(mlc_serve_submit(s, &q, &r[k]), MLC_ANSWER_WAITING);
    }
    CHECK(mlc_serve_poll(s));
    CHECK_EQ(mlc_serve_answer(r[1]), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[1], &why), "7");
    CHECK_EQ(why, MLC_ERR_VALUE);
    float w[10];
    mlc_read(mlc_module_param(net, "weight"), w, sizeof w);
    for (int k = 0; k < 3; k += 2) {
        CHECK_EQ(mlc_serve_answer(r[k]), MLC_ANSWER_OK);
        CHECK_EQ(memcmp(mlc_serve_output(r[k], 0)->data, w + 2 * k, 2 * sizeof *w), 0);
    }
    for (int k = 0; k < 3; k++) mlc_serve_free(r[k]);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

/* y0 = relu(x), y1 = lengths + 1: of sequences. */
static mlc_status ragged_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = mlc_relu(in[0]);
    out[1] = mlc_add_scalar(in[1], 1);
    return out[0] && out[1] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}
static const mlc_module_class ragged = {"Ragged", ragged_forward, NULL, NULL, 0, NULL};

TEST(serve, batches_sequences_of_one_padded_length)
{
    static const int     lengths[6] = {3, 4, 5, 1, 8, 10};
    ONLY_ON_HOST();
    mlc_ctx             *ctx = test_ctx();
    mlc_server          *s = server_of(ctx);
    mlc_module          *net = mlc_module_create(ctx, &ragged, NULL, 0);
    mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 4, 2));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("ragged", net, &x);
    mlc_serve_value      v;
    mlc_serve_stats      st;
    mlc_reply           *r[6];
    float                data[20];
    d.workers = 0;
    d.n_out = 2;
    d.length = 10;
    d.length_multiple = 4;
    d.lengths = true;
    d.pad = -3;
    d.batch = 4;
    CHECK_EQ(mlc_serve_model(s, &d), MLC_OK);
    CHECK(mlc_serve_model_input(s, "ragged", 0, &v) && !mlc_serve_model_input(s, "ragged", 1, &v));
    CHECK(v.ndim == 3 && v.shape[0] == -1 && v.shape[1] == -1 && v.shape[2] == 2);
    CHECK(mlc_serve_model_output(s, "ragged", 0, &v) && v.shape[1] == -1 && v.ndim == 3);
    CHECK(mlc_serve_model_output(s, "ragged", 1, &v) && v.dtype == MLC_I64 && v.ndim == 1);
    for (int i = 0; i < 20; i++) data[i] = (float)(i + 1);
    for (int k = 0; k < 6; k++) {
        mlc_serve_array a = {MLC_F32, 3, {1, lengths[k], 2}, data};
        mlc_request     q = mlc_request_make("ragged", &a);
        CHECK_EQ(mlc_serve_submit(s, &q, &r[k]), MLC_ANSWER_WAITING);
    }
    /* 3, 4 and 1 are padded to 4, then 5 and 8 to 8, then 10 stays. */
    CHECK(mlc_serve_poll(s));
    CHECK(mlc_serve_answer(r[0]) == MLC_ANSWER_OK && mlc_serve_answer(r[3]) == MLC_ANSWER_OK);
    CHECK(mlc_serve_answer(r[2]) == MLC_ANSWER_WAITING);
    while (mlc_serve_poll(s)) {}
    for (int k = 0; k < 6; k++) {
        const mlc_serve_array *y = mlc_serve_output(r[k], 0), *n = mlc_serve_output(r[k], 1);
        CHECK(y && y->ndim == 3 && y->shape[1] == lengths[k]);
        CHECK(y && memcmp(y->data, data, (size_t)lengths[k] * 2 * sizeof *data) == 0);
        CHECK(n && *(const int64_t *)n->data == lengths[k] + 1);
        mlc_serve_free(r[k]);
    }
    mlc_serve_stats_of(s, "ragged", &st);
    CHECK_EQ(st.batches, 3);
    mlc_serve_array a = {MLC_F32, 3, {1, 11, 2}, data};
    mlc_request     q = mlc_request_make("ragged", &a);
    CHECK_EQ(mlc_serve_submit(s, &q, NULL), MLC_ANSWER_FAILED);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

TEST(serve, says_what_models_there_are_and_what_they_did)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = server_of(ctx);
    mlc_serve_value v;
    char            text[8192], cut[40];
    CHECK_EQ(mlc_serve_models(s), 0);
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_OK);
    CHECK_EQ(mlc_serve_models(s), 1);
    CHECK_STR(mlc_serve_model_name(s, 0), "lin");
    CHECK(!mlc_serve_model_name(s, 1) && !mlc_serve_model_name(s, -1));
    CHECK(mlc_serve_model_input(s, "lin", 0, &v));
    CHECK_STR(v.name, "x0");
    CHECK(v.dtype == MLC_F32 && v.ndim == 2 && v.shape[0] == -1 && v.shape[1] == IN);
    CHECK(mlc_serve_model_output(s, "lin", 0, &v));
    CHECK_STR(v.name, "y0");
    CHECK(v.dtype == MLC_F32 && v.ndim == 2 && v.shape[0] == -1 && v.shape[1] == OUT);
    CHECK(!mlc_serve_model_output(s, "lin", 1, &v) && !mlc_serve_model_input(s, "no", 0, &v));
    CHECK(!mlc_serve_is_text(s, "lin"));
    mlc_reply *r = submit(s, 3, 0, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(r, -1), MLC_ANSWER_OK);
    mlc_serve_free(r);
    const size_t n = mlc_serve_stats_print(s, text, sizeof text);
    CHECK_EQ(n, strlen(text));
    CHECK_HAS(text, "Model");
    CHECK_HAS(text, "lin                          1         1         0       0         1");
    CHECK_EQ(mlc_serve_stats_print(s, cut, sizeof cut), n);
    CHECK_EQ(strlen(cut), sizeof cut - 1);
    CHECK_EQ(mlc_serve_stats_print(s, NULL, 0), n);
    CHECK(mlc_serve_prometheus(s, text, sizeof text) < sizeof text);
    CHECK_HAS(text, "# TYPE mlc_serve_requests_total counter\n"
                    "mlc_serve_requests_total{model=\"lin\"} 1\n");
    CHECK_HAS(text, "mlc_serve_rows_total{model=\"lin\"} 3\n");
    CHECK_HAS(text, "mlc_serve_places_total{model=\"lin\"} 4\n");
    CHECK_HAS(text, "mlc_serve_answers_total{model=\"lin\",answer=\"ok\"} 1\n");
    CHECK_HAS(text, "mlc_serve_latency_seconds{model=\"lin\",quantile=\"0.99\"} ");
    CHECK_HAS(text, "mlc_serve_queue_seconds_count{model=\"lin\"} 1\n");
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

/* The sum of all, which has no rows. */
static mlc_status flat_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                               int32_t n_out)
{
    (void)n_in;
    (void)n_out;
    out[0] = mlc_sum(in[0], mlc_dims0(), false);
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

TEST(serve, refuses_models_and_stays_as_it_was)
{
    static const mlc_module_class flat = {"Flat", flat_forward, NULL, NULL, 0, NULL};
    ONLY_ON_HOST();
    mlc_ctx             *ctx = test_ctx();
    mlc_server          *s = server_of(ctx);
    mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(1, IN));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("a b", net_of(ctx, 1), &x);
    CHECK_EQ(mlc_serve_model(s, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "'a b'");
    d.name = "lin";
    d.wait_ms = NO_NUMBER;
    CHECK_EQ(mlc_serve_model(s, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "wait_ms nan");
    d.wait_ms = 0;
    d.lengths = true;
    CHECK_EQ(mlc_serve_model(s, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "lengths need a length");
    d.lengths = false;
    d.n_out = 2;
    CHECK(mlc_serve_model(s, &d) != MLC_OK);
    CHECK(strstr(mlc_error(ctx), "model 'lin'") != NULL);
    mlc_error_clear(ctx);
    d = mlc_serve_model_desc_make("flat", mlc_module_create(ctx, &flat, NULL, 0), &x);
    CHECK_EQ(mlc_serve_model(s, &d), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "axis 0 must be the rows");
    CHECK_EQ(mlc_serve_models(s), 0);
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_OK);
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is a model 'lin' already");
    CHECK_EQ(mlc_serve_reload(s, "no", "x"), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "there is no model 'no'");
    CHECK(mlc_serve_reload(s, "lin", "/no/such/file.safetensors") != MLC_OK);
    CHECK(strstr(mlc_error(ctx), "/no/such/file.safetensors") != NULL);
    mlc_error_clear(ctx);
    mlc_reply *r = submit(s, 1, 4, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(r, -1), MLC_ANSWER_OK);
    CHECK(right(r, 1, 4, 1));
    mlc_serve_free(r);
    mlc_serve_stop(s);
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "stopped");
    CHECK_EQ(mlc_serve_reload(s, "lin", "x"), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "stopped");
    mlc_serve_end(s);
    mlc_serve_end(NULL);
    mlc_serve_free(NULL);
    mlc_serve_cancel(NULL);
    const mlc_serve_desc none = {0};
    CHECK(mlc_serve_create(ctx, &none) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "answers is 0");
    CHECK_OK(ctx);
}

TEST(serve, changes_weights_between_batches)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = server_of(ctx);
    mlc_module     *net = net_of(ctx, 1), *three = net_of(ctx, 3);
    box             b = box_open("three.safetensors");
    mlc_serve_stats st;
    CHECK_EQ(mlc_save(three, b.path), MLC_OK);
    const uint64_t before = hash_net(1, net);
    CHECK_EQ(add(s, net, 0, 100), MLC_OK);
    mlc_reply *r = submit(s, 2, 1, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_reload(s, "lin", b.path), MLC_OK);
    CHECK_EQ(mlc_serve_reload(s, "lin", b.path), MLC_OK);  /* before the first was taken over */
    CHECK_EQ(mlc_serve_wait(r, -1), MLC_ANSWER_OK);
    CHECK(right(r, 2, 1, 3));
    mlc_serve_free(r);
    CHECK(hash_net(1, net) == before);
    mlc_serve_stats_of(s, "lin", &st);
    CHECK_EQ(st.reloads, 2);
    mlc_serve_end(s);
    box_close(&b);
    CHECK_OK(ctx);
}

#ifndef MLC_NO_THREADS

/* A client: one request after the other, each checked. */
typedef struct client {
    mlc_server *s;
    int         seed, requests, by;    /* by 0: weights times 1 or 3, and once 3 always 3      */
    int         wrong, answers;
} client;

static void *client_main(void *arg)
{
    client *c = (client *)arg;
    int     by = c->by ? c->by : 1;
    for (int k = 0; k < c->requests; k++) {
        const int       rows = 1 + (c->seed + k) % 4, number = 100 * c->seed + k;
        float           x[ROWS * IN];
        mlc_serve_array a = input_of(x, rows, number);
        mlc_request     q = mlc_request_make("lin", &a);
        mlc_reply      *r;
        q.priority = k % 3;
        mlc_serve_submit(c->s, &q, &r);
        memset(x, 0, sizeof x);        /* inputs were copied */
        c->answers += mlc_serve_wait(r, -1) == MLC_ANSWER_OK;
        if (!c->by && by == 1 && right(r, rows, number, 3)) by = 3;
        c->wrong += !right(r, rows, number, by);
        mlc_serve_free(r);
    }
    return NULL;
}

/* Runs clients against s, and meanwhile reloads `times` times; returns answers that are wrong or
 * missing. */
static int clients_run(mlc_server *s, int by, const char *path, int times)
{
    enum { CLIENTS = 6, REQUESTS = 40 };
    client    c[CLIENTS];
    pthread_t thread[CLIENTS];
    int       off = 0;
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (client){s, i, REQUESTS, by, 0, 0};
        CHECK_EQ(pthread_create(&thread[i], NULL, client_main, &c[i]), 0);
    }
    for (int i = 0; i < times; i++) CHECK_EQ(mlc_serve_reload(s, "lin", path), MLC_OK);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(thread[i], NULL);
        off += c[i].wrong + REQUESTS - c[i].answers;
    }
    return off;
}

TEST(serve, answers_each_of_many_threads_once_and_right)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int32_t workers = 0; workers < 3; workers++) {
        mlc_server     *s = server_of(ctx);
        mlc_serve_stats st;
        CHECK_EQ(add(s, net_of(ctx, 2), workers, 100), MLC_OK);
        CHECK_EQ(clients_run(s, 2, NULL, 0), 0);
        mlc_serve_stats_of(s, "lin", &st);
        CHECK_EQ(st.answers[MLC_ANSWER_OK], 240);
        CHECK_EQ(st.rows, 600);
        mlc_serve_end(s);
    }
    CHECK_OK(ctx);
}

TEST(serve, loses_no_request_while_weights_change)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = server_of(ctx);
    box             b = box_open("three.safetensors");
    mlc_serve_stats st;
    CHECK_EQ(mlc_save(net_of(ctx, 3), b.path), MLC_OK);
    CHECK_EQ(add(s, net_of(ctx, 1), 2, 100), MLC_OK);
    CHECK_EQ(clients_run(s, 0, b.path, 4), 0);
    CHECK_EQ(clients_run(s, 3, b.path, 4), 0);
    mlc_serve_stats_of(s, "lin", &st);
    CHECK_EQ(st.reloads, 8);
    CHECK_EQ(st.answers[MLC_ANSWER_OK], 480);
    mlc_serve_end(s);
    box_close(&b);
    CHECK_OK(ctx);
}

TEST(serve, answers_all_it_has_before_it_stops)
{
    ONLY_ON_HOST();
    mlc_ctx             *ctx = test_ctx();
    mlc_server          *s = server_of(ctx);
    mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(1, IN));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("lin", net_of(ctx, 1), &x);
    mlc_reply           *r[9];
    d.wait_ms = 1e9;                   /* no batch is due but one that is full */
    d.batch = 8;
    CHECK_EQ(mlc_serve_model(s, &d), MLC_OK);
    for (int k = 0; k < 8; k++) r[k] = submit(s, 1, k, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(r[7], -1), MLC_ANSWER_OK);
    r[8] = submit(s, 1, 8, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(r[8], 1), MLC_ANSWER_WAITING);
    mlc_serve_stop(s);
    for (int k = 0; k < 9; k++) {
        CHECK_EQ(mlc_serve_answer(r[k]), MLC_ANSWER_OK);
        CHECK(right(r[k], 1, k, 1));
        mlc_serve_free(r[k]);
    }
    mlc_serve_end(s);
    /* The context's end stops a server, too. */
    s = server_of(ctx);
    CHECK_EQ(add(s, net_of(ctx, 1), 1, 100), MLC_OK);
    CHECK_OK(ctx);
}

/* A gate that a function waits at, on the server's thread. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int             reached, open;
} gate;

#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0}

static void gate_set(gate *g, int *flag)
{
    pthread_mutex_lock(&g->lock);
    *flag = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gate_await(gate *g, const int *flag)
{
    pthread_mutex_lock(&g->lock);
    while (!*flag) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* A done function that says that it was called, and waits until the gate is open. */
static void wait_at_gate(void *user, mlc_reply *r)
{
    gate *g = (gate *)user;
    (void)r;
    gate_set(g, &g->reached);
    gate_await(g, &g->open);
}

/* Submits one row of the model "lin"; done gets user. */
static mlc_reply *submit_done(mlc_server *s, int k, void (*done)(void *, mlc_reply *), void *user)
{
    float           x[IN];
    mlc_serve_array a = input_of(x, 1, k);
    mlc_request     q = mlc_request_make("lin", &a);
    mlc_reply      *r = NULL;
    q.done = done;
    q.user = user;
    CHECK_EQ(mlc_serve_submit(s, &q, &r), MLC_ANSWER_WAITING);
    return r;
}

/* A server of the model "ragged": sequences of up to 8, padded to 4 or 8; batches of four. */
static mlc_server *ragged_server(mlc_ctx *ctx, int32_t workers, double wait_ms)
{
    mlc_server          *s = server_of(ctx);
    mlc_module          *net = mlc_module_create(ctx, &ragged, NULL, 0);
    mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 4, 2));
    mlc_serve_model_desc d = mlc_serve_model_desc_make("ragged", net, &x);
    d.n_out = 2;
    d.length = 8;
    d.length_multiple = 4;
    d.lengths = true;
    d.batch = 4;
    d.workers = workers;
    d.wait_ms = wait_ms;
    CHECK_EQ(mlc_serve_model(s, &d), MLC_OK);
    return s;
}

static mlc_reply *submit_ragged(mlc_server *s, int length, void (*done)(void *, mlc_reply *),
                                const void *user)
{
    const float     data[16] = {0};
    mlc_serve_array a = {MLC_F32, 3, {1, length, 2}, data};
    mlc_request     q = mlc_request_make("ragged", &a);
    mlc_reply      *r = NULL;
    q.done = done;
    q.user = (void *)(uintptr_t)user;
    CHECK_EQ(mlc_serve_submit(s, &q, &r), MLC_ANSWER_WAITING);
    return r;
}

TEST(serve, lets_a_full_bucket_starve_no_other)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_server *s = ragged_server(ctx, 1, 0);
    mlc_reply  *r[10];
    gate        g = GATE;
    memset(&noted, 0, sizeof noted);
    r[0] = submit_ragged(s, 3, wait_at_gate, &g);
    gate_await(&g, &g.reached);        /* the worker is held                                   */
    r[1] = submit_ragged(s, 8, note, "L");
    for (int k = 2; k < 10; k++) r[k] = submit_ragged(s, 3, note, "S");
    gate_set(&g, &g.open);
    mlc_serve_stop(s);
    CHECK_STR(noted.text, "LSSSSSSSS");
    for (int k = 0; k < 10; k++) mlc_serve_free(r[k]);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

TEST(serve, has_an_idle_worker_take_what_a_busy_one_leaves)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_server *s = ragged_server(ctx, 2, 20);
    gate        g[3] = {GATE, GATE, GATE};
    for (int i = 0; i < 3; i++) {      /* both are in the queue before the first one is due     */
        mlc_reply *held = submit_ragged(s, 8, wait_at_gate, &g[i]);
        mlc_reply *other = submit_ragged(s, 3, NULL, NULL);
        gate_await(&g[i], &g[i].reached);
        CHECK_EQ(mlc_serve_wait(other, 60000), MLC_ANSWER_OK);
        gate_set(&g[i], &g[i].open);
        mlc_serve_free(other);
        mlc_serve_free(held);
    }
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

/* What a done function does with the server that called it. */
typedef struct within { mlc_server *s; gate *g; int calls; mlc_answer more; } within;

static void stop_within(void *user, mlc_reply *r)
{
    within         *w = (within *)user;
    float           x[IN];
    mlc_serve_array a = input_of(x, 1, 0);
    mlc_request     q = mlc_request_make("lin", &a);
    mlc_reply      *more = NULL;
    w->calls++;
    mlc_serve_cancel(r);
    mlc_serve_stop(w->s);
    mlc_serve_poll(w->s);
    w->more = mlc_serve_submit(w->s, &q, &more);
    mlc_serve_free(more);
    mlc_serve_free(r);
}

static void stop_only(void *user, mlc_reply *r)
{
    within *w = (within *)user;
    (void)r;
    w->calls++;
    mlc_serve_stop(w->s);
}

TEST(serve, may_be_stopped_by_a_function_that_it_calls)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int32_t workers = 0; workers < 3; workers++) {
        mlc_server          *s = server_of(ctx);
        mlc_tensor          *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(1, IN));
        mlc_serve_model_desc d = mlc_serve_model_desc_make("lin", net_of(ctx, 1), &x);
        within               w = {s, NULL, 0, MLC_ANSWER_WAITING};
        mlc_serve_stats      st;
        d.workers = workers;
        d.batch = 2;
        d.wait_ms = 1e9;               /* the second fills the batch of the first */
        CHECK_EQ(mlc_serve_model(s, &d), MLC_OK);
        submit_done(s, 0, stop_within, &w);
        mlc_reply *r = submit(s, 1, 1, -1, MLC_ANSWER_WAITING);
        CHECK_EQ(mlc_serve_wait(r, -1), MLC_ANSWER_OK);
        mlc_serve_stop(s);
        mlc_serve_stop(s);
        CHECK_EQ(w.calls, 1);
        CHECK_EQ(w.more, MLC_ANSWER_STOPPED);
        mlc_serve_stats_of(s, "lin", &st);
        CHECK_EQ(st.answers[MLC_ANSWER_OK], 2);
        CHECK_EQ(st.answers[MLC_ANSWER_STOPPED], 1);
        mlc_serve_free(r);
        mlc_serve_end(s);
    }
    CHECK_OK(ctx);
}

/* A function that a submit calls is on no thread of the server: there the stop waits. */
TEST(serve, may_be_stopped_by_a_function_that_a_submit_calls)
{
    ONLY_ON_HOST();
    mlc_ctx        *ctx = test_ctx();
    mlc_server     *s = ragged_server(ctx, 2, 1e9);
    const float     data[2] = {0};
    mlc_serve_array a = {MLC_F32, 3, {1, 2, 1}, data};     /* of another shape */
    mlc_request     q = mlc_request_make("ragged", &a);
    mlc_reply      *r = submit_ragged(s, 3, NULL, NULL);
    within          w = {s, NULL, 0, MLC_ANSWER_WAITING};
    q.done = stop_only;
    q.user = &w;
    CHECK_EQ(mlc_serve_submit(s, &q, NULL), MLC_ANSWER_FAILED);
    CHECK_EQ(w.calls, 1);
    CHECK_EQ(mlc_serve_answer(r), MLC_ANSWER_OK);
    mlc_serve_free(r);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

static void *wait_main(void *arg)
{
    mlc_serve_wait((mlc_reply *)arg, -1);
    return NULL;
}

/* Opens a gate when the server stops, which requests are told. */
static void *open_main(void *arg)
{
    within *w = (within *)arg;
    mlc_answer a = MLC_ANSWER_WAITING;
    while (a != MLC_ANSWER_STOPPED) {
        float           x[IN];
        mlc_serve_array in = input_of(x, 1, 0);
        mlc_request     q = mlc_request_make("lin", &in);
        a = mlc_serve_submit(w->s, &q, NULL);
    }
    gate_set(w->g, &w->g->open);
    return NULL;
}

TEST(serve, waits_for_who_polls_before_it_has_stopped)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_server *s = server_of(ctx);
    gate        g = GATE;
    within      w = {s, &g, 0, MLC_ANSWER_WAITING};
    mlc_reply  *r[9];
    pthread_t   waits, opens;
    CHECK_EQ(add(s, net_of(ctx, 1), 0, 100), MLC_OK);
    r[0] = submit_done(s, 0, wait_at_gate, &g);
    for (int k = 1; k < 9; k++) r[k] = submit(s, 1, k, -1, MLC_ANSWER_WAITING);
    CHECK_EQ(pthread_create(&waits, NULL, wait_main, r[8]), 0);
    gate_await(&g, &g.reached);        /* that thread is in done, with a batch behind it       */
    CHECK_EQ(pthread_create(&opens, NULL, open_main, &w), 0);
    mlc_serve_stop(s);
    for (int k = 0; k < 9; k++) CHECK(right(r[k], 1, k, 1));
    pthread_join(opens, NULL);
    pthread_join(waits, NULL);
    for (int k = 0; k < 9; k++) mlc_serve_free(r[k]);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}
#endif

/* ---- texts --------------------------------------------------------------------------------- */

#ifndef MLC_NO_ATTENTION

enum { VOCAB = 23, PLACES = 24, TEXTS = 7 };

static mlc_module *gpt(mlc_ctx *ctx, int kind)
{
    mlc_nn_gpt_desc d = kind == 1 ? mlc_nn_gpt_desc_llama(VOCAB, 0, 2, 16, 4)
                                  : mlc_nn_gpt_desc_make(VOCAB, PLACES, 2, 16, 4);
    if (kind == 1) d.layer.kv_heads = 2;
    if (kind == 2) d.positions = MLC_POSITIONS_ALIBI;
    if (kind == 3) d.layer.window = 5;
    mlc_module *net = mlc_nn_gpt(ctx, &d);
    mlc_module_build(net);
    /* Larger weights, so that logits are far apart. */
    mlc_no_grad_begin(ctx);
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it))
        if (it.tensor->ndim == 2) mlc_mul_scalar_(it.tensor, 8);
    mlc_no_grad_end(ctx);
    return net;
}

static mlc_ctx *wide_ctx(void)
{
    mlc_ctx_desc d = test_desc();
    d.dtype = MLC_F64;
    return test_own(mlc_ctx_create(&d));
}

/* Text k: prompts of 1 to 7 tokens, 3 to 15 new ones, all filters in turn. */
static mlc_serve_text text_of(int k, int64_t *prompt)
{
    static const int64_t stop[2] = {3, 11};
    const int64_t        n = 1 + 3 * k % 7;
    for (int64_t i = 0; i < n; i++) prompt[i] = (5 * k + 7 * i) % VOCAB;
    mlc_serve_text t = mlc_serve_text_make("gpt", prompt, n, 3 + 5 * k % 13);
    t.how.seed = (uint64_t)k + 40;
    if (k % 4 == 1) t.how.top_k = 5;
    if (k % 4 == 2) t.how.repetition = 1.3;
    if (k % 4 == 3) t.how.temperature = 0;
    if (k > 4) {
        t.how.stop = stop;
        t.how.n_stop = 2;
    }
    return t;
}

/* What mlc_generate makes of a text's prompt alone; returns the number of its tokens. */
static int64_t generated(mlc_module *net, const mlc_serve_text *t, int64_t *out)
{
    mlc_ctx          *ctx = mlc_module_ctx(net);
    mlc_generate_desc d = t->how;
    mlc_cache_desc    c = mlc_cache_desc_make(1, PLACES);
    mlc_cache        *cache = mlc_cache_create(net, &c);
    d.out = out;
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_generate(net, cache, mlc_from(ctx, MLC_I64, mlc_dims2(1, t->n_prompt), t->prompt),
                          &d, NULL, NULL), MLC_OK);
    mlc_scope_end(ctx);
    mlc_cache_free(cache);
    int64_t n = 0;
    while (n < d.tokens && out[n] >= 0) n++;
    return n;
}

/* The same of text k. */
static int64_t alone(mlc_module *net, int k, int64_t *out)
{
    int64_t              prompt[8];
    const mlc_serve_text t = text_of(k, prompt);
    return generated(net, &t, out);
}

/* Is the reply the text of mlc_generate? */
static bool same_text(const mlc_reply *r, const int64_t *want, int64_t n)
{
    const mlc_serve_array *y = mlc_serve_output(r, 0);
    return mlc_serve_answer(r) == MLC_ANSWER_OK && y && y->dtype == MLC_I64 && y->ndim == 1 &&
           y->shape[0] == n && memcmp(y->data, want, (size_t)n * sizeof *want) == 0;
}

static mlc_status add_gpt(mlc_server *s, mlc_module *net, int64_t streams, int32_t workers)
{
    mlc_serve_generator_desc d = mlc_serve_generator_desc_make("gpt", net, PLACES);
    d.streams = streams;
    d.workers = workers;
    d.threads = 1;
    return mlc_serve_generator(s, &d);
}

/* Counts tokens; the text ends at `most`. */
typedef struct count { int64_t n, most, sum; } count;

static bool count_token(void *user, int64_t step, int64_t token)
{
    count *c = (count *)user;
    c->sum += step == c->n ? token : 1000000;
    return ++c->n < c->most;
}

TEST(serve, makes_texts_that_do_not_know_of_each_other)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = wide_ctx();
    for (int kind = 0; kind < 4; kind++) {
        mlc_module     *net = gpt(ctx, kind);
        mlc_server     *s = server_of(ctx);
        mlc_reply      *r[TEXTS];
        mlc_serve_stats st;
        count           c[TEXTS];
        int64_t         all = 0;
        CHECK_EQ(add_gpt(s, net, 3, 0), MLC_OK);
        CHECK(mlc_serve_is_text(s, "gpt"));
        for (int k = 0; k < TEXTS; k++) {
            int64_t        prompt[8];
            mlc_serve_text t = text_of(k, prompt);
            c[k] = (count){0, 100, 0};
            t.token = count_token;
            t.user = &c[k];
            CHECK_EQ(mlc_serve_generate(s, &t, &r[k]), MLC_ANSWER_WAITING);
            memset(prompt, 0, sizeof prompt);
        }
        for (int k = 0; k < TEXTS; k++) {
            int64_t       want[32], sum = 0;
            const int64_t n = alone(net, k, want);
            CHECK_EQ(mlc_serve_wait(r[k], -1), MLC_ANSWER_OK);
            CHECK(same_text(r[k], want, n));
            for (int64_t i = 0; i < n; i++) sum += want[i];
            CHECK_EQ(c[k].n, n);
            CHECK_EQ(c[k].sum, sum);
            all += n;
            mlc_serve_free(r[k]);
        }
        mlc_serve_stats_of(s, "gpt", &st);
        CHECK_EQ(st.rows, all);
        CHECK(st.batches < all);       /* some tokens shared a forward */
        mlc_serve_end(s);
        mlc_module_free(net);
    }
    CHECK_OK(ctx);
}

/* Any text: of 1 to PLACES tokens and as many new ones as there are places for, at most. */
static mlc_serve_text any_text(uint64_t *seed, int64_t *prompt, int64_t *stop)
{
    int64_t v[12];
    for (int i = 0; i < 12; i++) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        v[i] = (int64_t)(*seed >> 34);
    }
    const int64_t  n = v[0] % 3 ? 1 + v[1] % 8 : 1 + v[1] % PLACES;
    mlc_serve_text t = mlc_serve_text_make("gpt", prompt, n, 1 + v[2] % (PLACES - n + 1));
    for (int64_t i = 0; i < n; i++) prompt[i] = (v[3] + v[4] * i * i) % VOCAB;
    t.how.seed = (uint64_t)v[5];
    if (v[6] % 5 == 0) t.how.temperature = 0;
    if (v[6] % 5 == 1) t.how.temperature = 1.7;
    if (v[7] % 3 == 0) t.how.top_k = 1 + v[8] % VOCAB;
    if (v[7] % 4 == 0) t.how.top_p = 0.8;
    if (v[7] % 5 == 0) t.how.min_p = 0.05;
    if (v[9] % 3 == 0) t.how.repetition = 1.4;
    stop[0] = v[10] % VOCAB;
    stop[1] = v[11] % VOCAB;
    if (v[9] % 2) t.how.stop = stop;
    if (v[9] % 2) t.how.n_stop = 2;
    t.priority = (int32_t)(v[11] % 3);
    return t;
}

/* Many texts of any lengths, some of which are cancelled at any moment: each of the others is that
 * of mlc_generate, and those are its beginnings. */
TEST(serve, moves_rows_and_changes_no_text)
{
    enum { MANY = 60 };
    static int64_t   prompt[MANY][PLACES], stop[MANY][2], want[PLACES + 1];
    static mlc_reply *r[MANY];
    ONLY_ON_HOST();
    mlc_ctx *ctx = wide_ctx();
    for (int kind = 0; kind < 4; kind++) {
        mlc_module    *net = gpt(ctx, kind);
        mlc_server    *s = server_of(ctx);
        mlc_serve_text t[MANY];
        uint64_t       seed = (uint64_t)kind + 1;
        int            whole = 0;
        CHECK_EQ(add_gpt(s, net, 5, 0), MLC_OK);
        for (int k = 0; k < MANY; k++) {
            t[k] = any_text(&seed, prompt[k], stop[k]);
            CHECK_EQ(mlc_serve_generate(s, &t[k], &r[k]), MLC_ANSWER_WAITING);
            if (k % 2) mlc_serve_poll(s);
            if (k % 7 == 6) mlc_serve_cancel(r[k - 3]);
        }
        while (mlc_serve_poll(s)) {}
        for (int k = 0; k < MANY; k++) {
            const mlc_serve_array *y = mlc_serve_output(r[k], 0);
            const int64_t          n = generated(net, &t[k], want);
            if (mlc_serve_answer(r[k]) == MLC_ANSWER_OK) {
                whole++;
                CHECK(same_text(r[k], want, n));
            } else {
                CHECK_EQ(mlc_serve_answer(r[k]), MLC_ANSWER_CANCELLED);
                CHECK(!y || (y->shape[0] <= n &&
                             memcmp(y->data, want, (size_t)y->shape[0] * sizeof *want) == 0));
            }
            mlc_serve_free(r[k]);
        }
        CHECK(whole >= MANY - MANY / 7);
        mlc_serve_end(s);
        mlc_module_free(net);
    }
    CHECK_OK(ctx);
}

TEST(serve, ends_texts_early)
{
    ONLY_ON_HOST();
    mlc_ctx       *ctx = wide_ctx();
    mlc_module    *net = gpt(ctx, 0);
    mlc_server    *s = server_of(ctx);
    int64_t        prompt[8], want[4][32], n[4];
    mlc_reply     *r[5];
    mlc_serve_text t;
    mlc_status     why;
    count          c = {0, 2, 0};
    CHECK_EQ(add_gpt(s, net, 2, 0), MLC_OK);
    for (int k = 0; k < 4; k++) n[k] = alone(net, k, want[k]);
    for (int k = 0; k < 4; k++) {
        t = text_of(k, prompt);
        if (k == 0) t.token = count_token;
        t.user = &c;
        if (k == 1) t.deadline_ms = 0;
        CHECK_EQ(mlc_serve_generate(s, &t, &r[k]), MLC_ANSWER_WAITING);
    }
    CHECK(mlc_serve_poll(s));          /* texts 0 and 2 have two tokens; 0 ends by its function */
    CHECK_EQ(mlc_serve_answer(r[0]), MLC_ANSWER_CANCELLED);
    CHECK_EQ(mlc_serve_output(r[0], 0)->shape[0], 2);
    CHECK_EQ(memcmp(mlc_serve_output(r[0], 0)->data, want[0], 2 * sizeof(int64_t)), 0);
    CHECK_EQ(mlc_serve_answer(r[1]), MLC_ANSWER_LATE);
    CHECK_EQ(mlc_serve_answer(r[2]), MLC_ANSWER_WAITING);
    mlc_serve_cancel(r[2]);
    CHECK_EQ(mlc_serve_wait(r[2], -1), MLC_ANSWER_CANCELLED);
    CHECK_EQ(mlc_serve_output(r[2], 0)->shape[0], 2);
    CHECK_EQ(memcmp(mlc_serve_output(r[2], 0)->data, want[2], 2 * sizeof(int64_t)), 0);
    CHECK_EQ(mlc_serve_wait(r[3], -1), MLC_ANSWER_OK);
    CHECK(same_text(r[3], want[3], n[3]));
    for (int k = 0; k < 4; k++) mlc_serve_free(r[k]);
    /* A token that there is not fails alone; too many are refused. */
    t = text_of(3, prompt);
    CHECK_EQ(mlc_serve_generate(s, &t, &r[0]), MLC_ANSWER_WAITING);
    prompt[0] = VOCAB;
    CHECK_EQ(mlc_serve_generate(s, &t, &r[1]), MLC_ANSWER_WAITING);
    CHECK_EQ(mlc_serve_wait(r[1], -1), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[1], &why), "23");
    CHECK_EQ(why, MLC_ERR_VALUE);
    CHECK_EQ(mlc_serve_wait(r[0], -1), MLC_ANSWER_OK);
    CHECK(same_text(r[0], want[3], n[3]));
    mlc_serve_free(r[0]);
    mlc_serve_free(r[1]);
    t = mlc_serve_text_make("gpt", prompt, 5, PLACES - 3);
    CHECK_EQ(mlc_serve_generate(s, &t, &r[0]), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[0], NULL), "has 24 places");
    mlc_serve_free(r[0]);
    t = mlc_serve_text_make("gpt", prompt, 5, 3);
    t.how.top_p = NO_NUMBER;
    CHECK_EQ(mlc_serve_generate(s, &t, &r[0]), MLC_ANSWER_FAILED);
    CHECK_HAS(mlc_serve_error(r[0], NULL), "top_p nan");
    mlc_serve_free(r[0]);
    t.model = "other";
    CHECK_EQ(mlc_serve_generate(s, &t, NULL), MLC_ANSWER_FAILED);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

TEST(serve, refuses_generators)
{
    ONLY_ON_HOST();
    mlc_ctx                 *ctx = wide_ctx();
    mlc_server              *s = server_of(ctx);
    mlc_serve_generator_desc d = mlc_serve_generator_desc_make("gpt", gpt(ctx, 0), PLACES + 1);
    CHECK(mlc_serve_generator(s, &d) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "context of 24");
    d.capacity = PLACES;
    d.streams = 0;
    CHECK_EQ(mlc_serve_generator(s, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "streams 0");
    d.streams = 2;
    d.net = net_of(test_ctx(), 1);
    CHECK(mlc_serve_generator(s, &d) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "without attention");
    CHECK_EQ(mlc_serve_models(s), 0);
    mlc_serve_end(s);
    CHECK_OK(ctx);
}

#ifndef MLC_NO_THREADS
/* A client of texts. */
typedef struct reader { mlc_server *s; int64_t (*want)[32], *n; int seed, wrong; } reader;

static void *reader_main(void *arg)
{
    reader *c = (reader *)arg;
    for (int i = 0; i < 6; i++) {
        const int      k = (c->seed + i) % TEXTS;
        int64_t        prompt[8];
        mlc_serve_text t = text_of(k, prompt);
        mlc_reply     *r;
        mlc_serve_generate(c->s, &t, &r);
        mlc_serve_wait(r, -1);
        c->wrong += !same_text(r, c->want[k], c->n[k]);
        mlc_serve_free(r);
    }
    return NULL;
}

TEST(serve, makes_texts_for_many_threads_while_weights_change)
{
    enum { READERS = 4 };
    static int64_t want[TEXTS][32], n[TEXTS];
    ONLY_ON_HOST();
    mlc_ctx        *ctx = wide_ctx();
    mlc_module     *net = gpt(ctx, 1);
    mlc_server     *s = server_of(ctx);
    box             b = box_open("gpt.safetensors");
    reader          c[READERS];
    pthread_t       thread[READERS];
    mlc_serve_stats st;
    for (int k = 0; k < TEXTS; k++) n[k] = alone(net, k, want[k]);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    CHECK_EQ(add_gpt(s, net, 3, 1), MLC_OK);
    for (int i = 0; i < READERS; i++) {
        c[i] = (reader){s, want, n, i, 0};
        CHECK_EQ(pthread_create(&thread[i], NULL, reader_main, &c[i]), 0);
    }
    /* The file has the same weights: texts stay as they are. */
    for (int i = 0; i < 3; i++) CHECK_EQ(mlc_serve_reload(s, "gpt", b.path), MLC_OK);
    for (int i = 0; i < READERS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(c[i].wrong, 0);
    }
    mlc_serve_stats_of(s, "gpt", &st);
    CHECK_EQ(st.reloads, 3);
    CHECK_EQ(st.answers[MLC_ANSWER_OK], 6 * READERS);
    mlc_serve_end(s);
    box_close(&b);
    CHECK_OK(ctx);
}
#endif
#endif
#endif
