/* test_recurrent_goldens.c -- tests of section IMPL.NN.RECURRENT: networks of PyTorch's
 *
 * Configurations, and what f64 gives, are of golden/make_rnn_goldens.py. Of outputs, states and
 * gradients the file has sums with random weights, in which every element has a part. Inputs and
 * weights are made here, multiples that bf16 holds; f32 and bf16 are held against f64.
 */
#include "mlc_test.h"
#include "golden/golden.h"

enum { KIND, B, T, IN, HIDDEN, LAYERS, PROJECTION, BIDIRECTIONAL, BIAS, TIME_FIRST, DROPOUT,
       LENGTHS, STATES, FIELDS };
enum { STREAM_X, STREAM_H, STREAM_C, STREAM_DY, STREAM_DH, STREAM_DC, STREAM_WEIGHTS };
enum { CASES = 120, BRIEF = 6, SUMS = 3, ELEMENTS = 2, DIGEST = 1 + SUMS + ELEMENTS, PARTS = 48,
       STEPS = 20, MOST = 1 << 17, ROOM = 1 << 20 };

/* Outputs and gradients one after the other. */
typedef struct result {
    int     parts;
    int64_t n[PARTS], at[PARTS], all;
    double  v[ROOM];
} result;

/* ---- a configuration ------------------------------------------------------------------------- */

/* Multiples of 1 / per_one, from -64 to 64 of them. */
static mlc_tensor *drawn(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, int k, int stream,
                         double per_one)
{
    static double v[MOST];
    int64_t       n = 1;
    for (int32_t i = 0; i < dims.n; i++) n *= dims.v[i];
    if (!CHECK(n <= MOST)) return NULL;
    for (int64_t i = 0; i < n; i++)
        v[i] = (floor(test_random((uint64_t)(1000 * k + stream), i, 0, 129)) - 64) / per_one;
    return test_tensor(ctx, dtype, dims, v);
}

static mlc_tensor *leaf(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, int k, int stream)
{
    mlc_tensor *x = drawn(ctx, dtype, dims, k, stream, 64);
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    return x;
}

/* Weights by their place: of about 1 / sqrt(hidden). */
static void fill(mlc_module *net, double hidden, int k)
{
    const double   size = 64 * exp2(fmax(0, nearbyint(log2(hidden) / 2)));
    mlc_param_iter it = mlc_param_iter_make(net);
    for (int i = 0; mlc_param_next(&it); i++)
        CHECK_EQ(mlc_copy_into(it.tensor, drawn(mlc_module_ctx(net), it.tensor->dtype,
                                                mlc_dims_of(it.tensor->ndim, it.tensor->shape), k,
                                                STREAM_WEIGHTS + i, size)), MLC_OK);
}

static mlc_nn_rnn_desc desc_of(const double *c)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make((mlc_rnn_kind)c[KIND], (int64_t)c[IN],
                                             (int64_t)c[HIDDEN]);
    d.layers = (int64_t)c[LAYERS];
    d.projection = (int64_t)c[PROJECTION];
    d.bidirectional = c[BIDIRECTIONAL] != 0;
    d.no_bias = c[BIAS] == 0;
    d.time_first = c[TIME_FIRST] != 0;
    d.dropout = c[DROPOUT] / 16;
    return d;
}

static void result_add(result *r, mlc_tensor *t)
{
    if (!CHECK(t != NULL && r->parts < PARTS && r->all + mlc_numel(t) <= ROOM)) return;
    r->at[r->parts] = r->all;
    r->n[r->parts++] = mlc_numel(t);
    test_read(t, r->v + r->all);
    r->all += mlc_numel(t);
}

/* low: bf16 by autocast. */
static void run(mlc_ctx *ctx, mlc_dtype dtype, const golden_file *f, mlc_module *net,
                const double *c, int k, bool low, result *r)
{
    const mlc_nn_rnn_desc d = desc_of(c);
    const bool      lstm = d.kind == MLC_RNN_LSTM;
    const int64_t   b = (int64_t)c[B], t = (int64_t)c[T], n = d.layers * (d.bidirectional ? 2 : 1);
    const mlc_dims  h = mlc_dims3(n, b, d.projection ? d.projection : d.hidden);
    const mlc_dims  cell = mlc_dims3(n, b, d.hidden);
    mlc_tensor     *out[3], *state[2] = {NULL, NULL}, *loss, *one;
    r->parts = 0;
    r->all = 0;
    mlc_scope_begin(ctx);
    mlc_tensor *x = leaf(ctx, dtype, d.time_first ? mlc_dims3(t, b, d.in) : mlc_dims3(b, t, d.in),
                         k, STREAM_X);
    if (c[STATES] != 0) state[0] = leaf(ctx, dtype, h, k, STREAM_H);
    if (c[STATES] != 0 && lstm) state[1] = leaf(ctx, dtype, cell, k, STREAM_C);
    CHECK_EQ(mlc_seed(ctx, (uint64_t)k), MLC_OK);
    if (low) CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_rnn_forward(net, x, golden_find(f, "%d.lengths", k), state, &out[0], out + 1),
             MLC_OK);
    if (low) CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    loss = NULL;
    for (int i = 0; i < (lstm ? 3 : 2); i++) {
        if (!CHECK(out[i] != NULL)) break;
        CHECK_EQ(out[i]->dtype, low && i < 2 ? MLC_BF16 : dtype);
        result_add(r, out[i]);
        one = mlc_cast(out[i], dtype);
        one = mlc_sum_all(mlc_mul(one, drawn(ctx, dtype, mlc_dims_of(one->ndim, one->shape), k,
                                             STREAM_DY + i, 64)));
        loss = loss ? mlc_add(loss, one) : one;
    }
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    result_add(r, mlc_grad(x));
    for (int i = 0; i < 2; i++)
        if (state[i]) result_add(r, mlc_grad(state[i]));
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);) {
        result_add(r, mlc_grad(it.tensor));
        mlc_zero_grad(it.tensor);
    }
    if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  case %d: %s\n", k, mlc_error(ctx));
}

/* ---- f64 against PyTorch, others against f64 ------------------------------------------------- */

static void check_digest(const result *r, const double *want, int k, int part)
{
    const int64_t n = r->n[part];
    const double *v = r->v + r->at[part];
    double        got[DIGEST] = {0};
    for (int64_t i = 0; i < n; i++) {
        got[0] += v[i] * v[i];
        for (int p = 0; p < SUMS; p++)
            got[1 + p] += (test_random((uint64_t)(1000 * k + 100 + 4 * part + p), i, 0, 2) - 1) *
                          v[i];
    }
    got[0] = sqrt(got[0]);
    for (int e = 0; e < ELEMENTS; e++)
        got[1 + SUMS + e] = v[(int64_t)floor(test_random((uint64_t)(1000 * k + 600 + part), e, 0,
                                                         (double)n))];
    for (int i = 0; i < DIGEST; i++)
        if (!CHECK(fabs(got[i] - want[i]) <= 1e-12 * (1 + want[0])))
            printf("  case %d, part %d, number %d: %.17g, want %.17g\n", k, part, i, got[i],
                   want[i]);
}

/* By the norm of what is off, relative to that of the part. */
static void check_near(const result *r, const result *want, double error, int k, const char *what)
{
    if (!CHECK_EQ(r->parts, want->parts)) return;
    for (int p = 0; p < r->parts; p++) {
        double off = 0, size = 0;
        if (!CHECK_EQ(r->n[p], want->n[p])) continue;
        for (int64_t i = 0; i < r->n[p]; i++) {
            const double w = want->v[want->at[p] + i], d = r->v[r->at[p] + i] - w;
            off += d * d;
            size += w * w;
        }
        if (!CHECK(sqrt(off) <= error * (sqrt(size) + 1e-3)))
            printf("  case %d, part %d of %s: off by %g of %g\n", k, p, what, sqrt(off),
                   sqrt(size));
    }
}

static mlc_ctx *ctx_of(mlc_isa isa, mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.isa = isa;
    d.dtype = dtype;
    return test_own(mlc_ctx_create(&d));
}

TEST(recurrent_goldens, networks_of_all_kinds_are_pytorchs)
{
    static const mlc_dtype dtypes[] = {MLC_F64, MLC_F32, MLC_F32};
    static double          c[CASES * FIELDS], want[PARTS * DIGEST];
    static result          wide, r;
    const int step = (int)test_stride(BRIEF) * (test_cpu_kernels() ? 1 : 4);
    FOR_EACH_LEVEL(isa) {
        mlc_ctx    *ctx[3];
        golden_file f[3];
        for (int i = 0; i < 3; i++) {
            ctx[i] = ctx_of((mlc_isa)isa, dtypes[i]);
            f[i] = golden_open(ctx[i], "rnn.safetensors");
        }
        mlc_tensor *table = golden_find(&f[0], "cases");
        if (!CHECK_EQ(mlc_numel(table), CASES * FIELDS) || !test_read(table, c)) return;
        for (int k = 0; k < CASES; k += step) {
            for (int i = 0; i < 3; i++) {
                const mlc_nn_rnn_desc d = desc_of(c + k * FIELDS);
                mlc_module           *net = mlc_nn_rnn_ex(ctx[i], &d);
                fill(net, c[k * FIELDS + HIDDEN], k);
                run(ctx[i], dtypes[i], &f[i], net, c + k * FIELDS, k, i == 2, i ? &r : &wide);
                if (i) check_near(&r, &wide, i == 1 ? 1e-5 : 0.16, k, i == 1 ? "f32" : "bf16");
                mlc_module_free(net);
            }
            mlc_tensor *digests = golden_find(&f[0], "%d.want", k);
            if (!CHECK_EQ(mlc_numel(digests), wide.parts * DIGEST)) continue;
            test_read(digests, want);
            for (int p = 0; p < wide.parts; p++) check_digest(&wide, want + p * DIGEST, k, p);
        }
        for (int i = 0; i < 3; i++) CHECK_OK(ctx[i]);
    }
}

/* ---- training, files ------------------------------------------------------------------------- */

static void train(mlc_ctx *ctx, mlc_rnn_kind kind, int k, const char *name, double error)
{
    static const int64_t length[6] = {12, 3, 7, 1, 0, 9};
    int64_t         label[72];
    double          want[STEPS];
    golden_file     f = golden_open(ctx, "rnn.safetensors");
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind, 5, 8);
    d.layers = 2;
    d.bidirectional = true;
    mlc_module *net = mlc_nn_rnn_ex(ctx, &d), *head = mlc_nn_linear(ctx, 16, 4);
    mlc_module *all = mlc_nn_sequential(ctx);
    fill(net, 8, k);
    CHECK_EQ(mlc_module_add(all, net), MLC_OK);
    CHECK_EQ(mlc_module_add(all, head), MLC_OK);
    mlc_tensor *w = mlc_module_param(head, "weight"), *b = mlc_module_param(head, "bias");
    const mlc_dtype dtype = w->dtype;
    CHECK_EQ(mlc_copy_into(w, drawn(ctx, dtype, mlc_dims2(4, 16), k, STREAM_WEIGHTS + 50, 256)),
             MLC_OK);
    CHECK_EQ(mlc_copy_into(b, drawn(ctx, dtype, mlc_dims1(4), k, STREAM_WEIGHTS + 51, 256)),
             MLC_OK);
    for (int i = 0; i < 72; i++)
        label[i] = i % 12 >= length[i / 12] ? -100
                   : (int64_t)floor(test_random((uint64_t)(1000 * k + STREAM_DY), i, 0, 4));
    mlc_tensor *x = drawn(ctx, dtype, mlc_dims3(6, 12, 5), k, STREAM_X, 32);
    mlc_tensor *labels = mlc_from(ctx, MLC_I64, mlc_dims1(72), label);
    mlc_tensor *lengths = mlc_from(ctx, MLC_I64, mlc_dims1(6), length);
    mlc_sgd_desc o = mlc_sgd_desc_make(0.5);
    o.momentum = 0.5;
    mlc_optim *opt = mlc_sgd_ex(all, &o);
    test_read(golden_find(&f, "%s.losses", name), want);
    mlc_cross_entropy_desc e = mlc_cross_entropy_desc_make();
    e.has_ignore_index = true;
    e.ignore_index = -100;
    for (int step = 0; step < STEPS; step++) {
        mlc_tensor *y = NULL;
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_rnn_forward(net, x, lengths, NULL, &y, NULL), MLC_OK);
        mlc_tensor *loss = mlc_cross_entropy_ex(mlc_reshape(mlc_forward(head, y),
                                                            mlc_dims2(72, 4)), labels, &e);
        CHECK_NEAR(mlc_item(loss), want[step], error);
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  %s: %s\n", name, mlc_error(ctx));
    }
    CHECK_OK(ctx);
}

TEST(recurrent_goldens, losses_of_twenty_steps_are_pytorchs)
{
    FOR_EACH_LEVEL(isa) {
        for (int i = 0; i < 2; i++) {
            const mlc_dtype dtype = i ? MLC_F32 : MLC_F64;
            const double    error = i ? 1e-5 : 1e-11;
            train(ctx_of((mlc_isa)isa, dtype), MLC_RNN_LSTM, CASES, "lstm", error);
            train(ctx_of((mlc_isa)isa, dtype), MLC_RNN_GRU, CASES + 1, "gru", error);
        }
    }
}

TEST(recurrent_goldens, state_dicts_load_by_their_names)
{
    static const char *const name[] = {"lstm", "gru", "rnn", "lstm_cell", "gru_cell"};
    mlc_ctx        *ctx = test_ctx();
    golden_file     f = golden_open(ctx, "rnn.safetensors");
    mlc_nn_rnn_desc lstm = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 3, 4), gru = lstm, rnn = lstm;
    mlc_nn_rnn_desc cell = lstm;
    const mlc_module_class list = {"Networks", NULL, NULL, NULL, 0, NULL};
    lstm.layers = gru.layers = lstm.projection = 2;
    lstm.bidirectional = true;
    gru.kind = MLC_RNN_GRU;
    rnn.kind = MLC_RNN_RELU;
    rnn.no_bias = true;
    mlc_nn_rnn_desc gru_cell = cell;
    gru_cell.kind = MLC_RNN_GRU;
    mlc_module *net = mlc_module_create(ctx, &list, NULL, 0);
    mlc_module *part[5] = {mlc_nn_rnn_ex(ctx, &lstm), mlc_nn_rnn_ex(ctx, &gru),
                           mlc_nn_rnn_ex(ctx, &rnn), mlc_nn_rnn_cell(ctx, &cell),
                           mlc_nn_rnn_cell(ctx, &gru_cell)};
    for (int i = 0; i < 5; i++) CHECK_EQ(mlc_module_add_named(net, name[i], part[i]), MLC_OK);
    CHECK_EQ(mlc_load(net, "tests/golden/rnn_state.safetensors"), MLC_OK);
    mlc_tensor *x = drawn(ctx, MLC_F32, mlc_dims3(2, 5, 3), CASES + 9, STREAM_X, 64);
    for (int i = 0; i < 5; i++)
        CHECK(golden_equal(mlc_forward(part[i], i > 2 ? mlc_contiguous(mlc_select(x, 1, 0)) : x),
                           golden_find(&f, "state.%s", name[i]), name[i]));
    CHECK_OK(ctx);
}
