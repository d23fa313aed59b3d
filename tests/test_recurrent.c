/* test_recurrent.c -- tests of sections IMPL.OPS.RNN, IMPL.NN.RECURRENT, IMPL.KERNELS.RNN
 *
 * The operation against steps made of other operations and against central differences; modules
 * against the operation. PyTorch's numbers are in test_recurrent_goldens.c.
 */
#include "mlc_test.h"
#include "golden/golden.h"

/* ---- the operation --------------------------------------------------------------------------- */

typedef struct shape_case {
    mlc_rnn_kind kind;
    int64_t      b, t, h, p;           /* p 0: no projection                                   */
    bool         reverse, time_first, bias, peep, states, lengths, packed;
} shape_case;

static const shape_case CASES[] = {
    {MLC_RNN_TANH, 1, 1, 1, 0, false, false, false, false, false, false, false},
    {MLC_RNN_TANH, 3, 5, 4, 0, true, false, true, false, true, true, false},
    {MLC_RNN_RELU, 2, 4, 7, 0, false, true, true, false, true, false, false},
    {MLC_RNN_RELU, 4, 6, 3, 0, true, true, false, false, false, true, false},
    {MLC_RNN_GRU, 2, 5, 8, 0, false, false, true, false, true, false, false},
    {MLC_RNN_GRU, 5, 7, 17, 0, true, true, true, false, true, true, false},
    {MLC_RNN_GRU, 4, 6, 5, 0, true, false, true, false, true, false, true},
    {MLC_RNN_LSTM, 3, 6, 9, 0, false, false, true, false, true, true, false},
    {MLC_RNN_LSTM, 2, 3, 33, 0, true, true, false, false, false, false, false},
    {MLC_RNN_LSTM, 4, 5, 6, 4, false, false, true, true, true, true, false},
    {MLC_RNN_LSTM, 5, 6, 16, 7, true, false, true, true, true, false, true},
    {MLC_RNN_LSTM, 6, 9, 8, 0, false, false, true, false, false, false, true},
    {MLC_RNN_LSTM, 2, 0, 5, 0, false, false, true, false, true, false, false},
    {MLC_RNN_GRU, 0, 4, 5, 0, false, false, true, false, true, true, false},
};

enum { IN_X, IN_W, IN_H, IN_C, IN_BIAS, IN_PROJECT,
       IN_PEEP, INPUTS, CASE_COUNT = sizeof CASES / sizeof *CASES };

typedef struct scene {
    const shape_case *c;
    mlc_tensor       *in[INPUTS];      /* leaves; NULL: not there                              */
    mlc_rnn_desc      d;
} scene;

/* Packed sequences need the kernels. */
static bool runs(const shape_case *c) { return !c->packed || test_cpu_kernels(); }

static int64_t length_of(const shape_case *c, int64_t s)
{
    return c->lengths || c->packed ? (s * 5 + c->t / 2) % (c->t + 1) : c->t;
}

static mlc_tensor *leaf(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims, uint64_t seed)
{
    mlc_tensor *x = test_rand(ctx, dtype, dims, seed, -1, 1);
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    return x;
}

static mlc_dtype wide_of(mlc_dtype dtype) { return dtype == MLC_F64 ? MLC_F64 : MLC_F32; }

/* The desc of the inputs that the scene has. */
static void scene_desc(scene *s)
{
    s->d.h = s->in[IN_H];
    s->d.c = s->in[IN_C];
    s->d.bias = s->in[IN_BIAS];
    s->d.project = s->in[IN_PROJECT];
    s->d.peepholes = s->in[IN_PEEP];
}

static scene scene_of(mlc_ctx *ctx, mlc_dtype dtype, mlc_dtype w, const shape_case *c)
{
    const int64_t gates = c->kind == MLC_RNN_LSTM ? 4 : c->kind == MLC_RNN_GRU ? 3 : 1;
    const int64_t p = c->p ? c->p : c->h, n = gates * c->h;
    double        rows[8] = {0};
    int64_t       all = 0;
    scene         s;
    memset(&s, 0, sizeof s);
    s.c = c;
    s.d = mlc_rnn_desc_make(c->kind);
    s.d.reverse = c->reverse;
    s.d.time_first = c->time_first;
    for (int64_t i = 0; i < c->b; i++) {
        rows[i] = (double)(c->packed ? all : length_of(c, i));
        all += length_of(c, i);
    }
    if (c->packed) rows[c->b] = (double)all;
    s.in[IN_X] = leaf(ctx, dtype, c->packed ? mlc_dims2(all, n)
                                            : c->time_first ? mlc_dims3(c->t, c->b, n)
                                                            : mlc_dims3(c->b, c->t, n), 1);
    s.in[IN_W] = leaf(ctx, w, mlc_dims2(n, p), 2);
    if (c->states) s.in[IN_H] = leaf(ctx, dtype, mlc_dims2(c->b, p), 3);
    if (c->states && gates == 4) s.in[IN_C] = leaf(ctx, wide_of(dtype), mlc_dims2(c->b, c->h), 4);
    if (c->bias) s.in[IN_BIAS] = leaf(ctx, w, mlc_dims1(n), 5);
    if (c->p) s.in[IN_PROJECT] = leaf(ctx, w, mlc_dims2(p, c->h), 6);
    if (c->peep) s.in[IN_PEEP] = leaf(ctx, w, mlc_dims2(3, c->h), 7);
    scene_desc(&s);
    if (c->packed) s.d.offsets = test_tensor(ctx, MLC_I64, mlc_dims1(c->b + 1), rows);
    if (c->lengths) s.d.lengths = test_tensor(ctx, MLC_I64, mlc_dims1(c->b), rows);
    return s;
}

/* -- the same by operations, a sequence at a time: h and c [1,..] of each are joined at the end */

static mlc_tensor *part(mlc_tensor *x, int k, int64_t h)
{
    return mlc_slice(x, 1, k * h, (k + 1) * h, 1);
}

static mlc_tensor *peeped(const scene *s, mlc_tensor *a, int k, mlc_tensor *c)
{
    mlc_tensor *w = s->in[IN_PEEP];
    return mlc_sigmoid(w ? mlc_add(a, mlc_mul(c, mlc_select(w, 0, k))) : a);
}

static void step(const scene *s, mlc_tensor *x, mlc_tensor **h, mlc_tensor **c)
{
    const int64_t n = s->c->h;
    mlc_tensor   *a = mlc_linear(*h, s->in[IN_W], s->in[IN_BIAS]);
    if (s->c->kind == MLC_RNN_GRU) {
        mlc_tensor *r = mlc_sigmoid(mlc_add(part(x, 0, n), part(a, 0, n)));
        mlc_tensor *z = mlc_sigmoid(mlc_add(part(x, 1, n), part(a, 1, n)));
        mlc_tensor *v = mlc_tanh(mlc_add(part(x, 2, n), mlc_mul(r, part(a, 2, n))));
        *h = mlc_add(mlc_mul(mlc_rsub_scalar(z, 1), v), mlc_mul(z, *h));
    } else if (s->c->kind == MLC_RNN_LSTM) {
        a = mlc_add(a, x);
        mlc_tensor *i = peeped(s, part(a, 0, n), 0, *c), *f = peeped(s, part(a, 1, n), 1, *c);
        *c = mlc_add(mlc_mul(f, *c), mlc_mul(i, mlc_tanh(part(a, 2, n))));
        *h = mlc_mul(peeped(s, part(a, 3, n), 2, *c), mlc_tanh(*c));
        if (s->in[IN_PROJECT]) *h = mlc_linear(*h, s->in[IN_PROJECT], NULL);
    } else {
        *h = s->c->kind == MLC_RNN_TANH ? mlc_tanh(mlc_add(a, x)) : mlc_relu(mlc_add(a, x));
    }
}

/* Row of step i of sequence z, [1,gates h]; packed: rows before it are `at`. */
static mlc_tensor *row_of(const scene *s, int64_t z, int64_t i, int64_t at)
{
    mlc_tensor *x = s->in[IN_X];
    if (s->c->packed) return mlc_slice(x, 0, at + i, at + i + 1, 1);
    return mlc_slice(mlc_select(x, s->c->time_first ? 0 : 1, i), 0, z, z + 1, 1);
}

/* y of sequence z, [steps,p], its states beside it; at: rows before it. */
static mlc_tensor *sequence_of(const scene *s, int64_t z, int64_t at, mlc_tensor **h,
                               mlc_tensor **c)
{
    const shape_case *k = s->c;
    mlc_ctx          *ctx = s->in[IN_X]->ctx;
    const int64_t     p = k->p ? k->p : k->h, n = length_of(k, z);
    mlc_tensor       *list[16];
    *h = s->in[IN_H] ? mlc_slice(s->in[IN_H], 0, z, z + 1, 1) : mlc_zeros(ctx, MLC_F64,
                                                                          mlc_dims2(1, p));
    *c = s->in[IN_C] ? mlc_slice(s->in[IN_C], 0, z, z + 1, 1) : mlc_zeros(ctx, MLC_F64,
                                                                          mlc_dims2(1, k->h));
    for (int64_t e = 0; e < n; e++) {
        const int64_t i = k->reverse ? n - 1 - e : e;
        step(s, row_of(s, z, i, at), h, c);
        list[i] = *h;
    }
    const int64_t all = k->packed ? n : k->t;
    for (int64_t i = n; i < all; i++) list[i] = mlc_zeros(ctx, MLC_F64, mlc_dims2(1, p));
    return all ? mlc_concat(list, (int32_t)all, 0) : mlc_zeros(ctx, MLC_F64, mlc_dims2(0, p));
}

static void by_steps(const scene *s, mlc_tensor *out[3])
{
    const shape_case *k = s->c;
    mlc_tensor       *y[8], *h[8], *c[8];
    int64_t           at = 0;
    for (int64_t z = 0; z < k->b; z++) {
        y[z] = sequence_of(s, z, at, &h[z], &c[z]);
        at += length_of(k, z);
    }
    out[0] = k->packed ? mlc_concat(y, (int32_t)k->b, 0)
                       : mlc_stack(y, (int32_t)k->b, k->time_first);
    out[1] = mlc_concat(h, (int32_t)k->b, 0);
    out[2] = k->kind == MLC_RNN_LSTM ? mlc_concat(c, (int32_t)k->b, 0) : NULL;
}

/* A sum of all outputs whose gradient is another number for each element. */
static mlc_tensor *weighted(mlc_tensor *const *out, int n)
{
    mlc_tensor *sum = NULL;
    for (int i = 0; i < n; i++) {
        if (!out[i]) continue;
        mlc_tensor *w = test_rand(out[i]->ctx, MLC_F64, mlc_dims_of(out[i]->ndim, out[i]->shape),
                                  70 + (uint64_t)i, -1, 1);
        mlc_tensor *one = mlc_sum_all(mlc_mul(mlc_cast(out[i], MLC_F64), w));
        sum = sum ? mlc_add(sum, one) : one;
    }
    return sum;
}

static double far_off(mlc_tensor *a, mlc_tensor *want)
{
    if (!CHECK(a != NULL && want != NULL)) return INF;
    if (!CHECK_EQ(mlc_numel(a), mlc_numel(want)) || mlc_numel(a) == 0) return 0;
    mlc_tensor *off = mlc_abs(mlc_sub(mlc_cast(mlc_detach(a), MLC_F64),
                                      mlc_cast(mlc_detach(want), MLC_F64)));
    return mlc_item(mlc_max(off, mlc_dims0(), false));
}

static void check_close(mlc_tensor *a, mlc_tensor *want, double tolerance, int k, const char *what,
                        int i)
{
    const double off = far_off(a, want);
    if (!CHECK(off <= tolerance)) printf("  case %d, %s %d: off by %g\n", k, what, i, off);
}

static void grads_of(const scene *s, mlc_tensor **grad)
{
    for (int i = 0; i < INPUTS; i++) {
        grad[i] = s->in[i] ? mlc_copy(mlc_grad(s->in[i])) : NULL;
        mlc_zero_grad(s->in[i]);
    }
}

static void check_op(mlc_ctx *ctx, int k)
{
    mlc_tensor *want[3], *out[3], *want_grad[INPUTS], *grad[INPUTS];
    scene       s = scene_of(ctx, MLC_F64, MLC_F64, &CASES[k]);
    if (CASES[k].b == 0 || !runs(&CASES[k])) return;
    by_steps(&s, want);
    CHECK_EQ(mlc_backward(weighted(want, 3)), MLC_OK);
    grads_of(&s, want_grad);
    CHECK_EQ(mlc_rnn(s.in[IN_X], s.in[IN_W], &s.d, out), MLC_OK);
    CHECK_EQ(mlc_backward(weighted(out, 3)), MLC_OK);
    grads_of(&s, grad);
    for (int i = 0; i < 3; i++)
        if (want[i]) check_close(out[i], want[i], 1e-13, k, "output", i);
        else CHECK(out[i] == NULL);
    for (int i = 0; i < INPUTS; i++)
        if (s.in[i] && want_grad[i]) check_close(grad[i], want_grad[i], 1e-12, k, "gradient", i);
}

TEST(recurrent, values_and_gradients_are_those_of_its_steps_in_f64)
{
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < CASE_COUNT; k++) {
            mlc_scope_begin(ctx);
            check_op(ctx, k);
            if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  case %d: %s\n", k, mlc_error(ctx));
        }
    }
}

/* ---- modules against the operation ----------------------------------------------------------- */

enum { BATCH = 5, T = 7, IN = 3, HIDDEN = 4 };

static mlc_module *module_of(mlc_ctx *ctx, const mlc_nn_rnn_desc *d)
{
    mlc_module *m = mlc_nn_rnn_ex(ctx, d);
    CHECK_EQ(mlc_module_to(m, MLC_F64), MLC_OK);
    return m;
}

/* Many rows are padding, one sequence has none. */
static mlc_tensor *lengths_of(mlc_ctx *ctx)
{
    static const double v[BATCH] = {2, 7, 0, 4, 1};
    return test_tensor(ctx, MLC_I64, mlc_dims1(BATCH), v);
}

static mlc_tensor *weight(mlc_module *m, const char *name, int64_t layer, int way)
{
    char text[64];
    snprintf(text, sizeof text, "%s_l%d%s", name, (int)layer, way ? "_reverse" : "");
    return mlc_module_param(m, text);
}

/* A module's layers by the operation, over x and all lengths at once; states are joined. */
static mlc_tensor *by_layers(mlc_module *m, const mlc_nn_rnn_desc *d, mlc_tensor *x,
                             mlc_tensor *lengths, mlc_tensor *const *state, mlc_tensor **after)
{
    const int   ways = d->bidirectional ? 2 : 1;
    mlc_tensor *h[16], *c[16], *out[3], *y[2];
    for (int64_t i = 0; i < d->layers; i++) {
        for (int way = 0; way < ways; way++) {
            const int64_t at = i * ways + way;
            mlc_rnn_desc  o = mlc_rnn_desc_make(d->kind);
            o.bias = d->no_bias ? NULL : weight(m, "bias_hh", i, way);
            o.project = d->projection ? weight(m, "weight_hr", i, way) : NULL;
            o.peepholes = d->peepholes ? weight(m, "weight_peep", i, way) : NULL;
            o.reverse = way;
            o.time_first = d->time_first;
            o.lengths = lengths;
            o.h = state ? mlc_select(state[0], 0, at) : NULL;
            o.c = state && state[1] ? mlc_select(state[1], 0, at) : NULL;
            mlc_tensor *gates = mlc_linear(x, weight(m, "weight_ih", i, way),
                                           d->no_bias ? NULL : weight(m, "bias_ih", i, way));
            CHECK_EQ(mlc_rnn(gates, weight(m, "weight_hh", i, way), &o, out), MLC_OK);
            y[way] = out[0];
            h[at] = out[1];
            c[at] = out[2];
        }
        x = ways == 2 ? mlc_concat(y, 2, 2) : y[0];
    }
    after[0] = mlc_stack(h, (int32_t)d->layers * ways, 0);
    after[1] = c[0] ? mlc_stack(c, (int32_t)d->layers * ways, 0) : NULL;
    return x;
}

/* Gradients of all parameters and of in are as those that were put in want; n of them. */
static void check_grads(mlc_module *m, mlc_tensor *const *in, mlc_tensor **want, bool put, int k)
{
    mlc_param_iter it = mlc_param_iter_make(m);
    int            n = 0;
    for (int i = 0; i < 3; i++, n++) {
        if (put) want[n] = in[i] ? mlc_copy(mlc_grad(in[i])) : NULL;
        else if (in[i]) check_close(mlc_grad(in[i]), want[n], 1e-12, k, "input", i);
        mlc_zero_grad(in[i]);
    }
    for (; mlc_param_next(&it); n++) {
        if (put) want[n] = mlc_copy(mlc_grad(it.tensor));
        else check_close(mlc_grad(it.tensor), want[n], 1e-12, k, it.name, n);
        mlc_zero_grad(it.tensor);
    }
}

static const mlc_nn_rnn_desc NETS[] = {
    {MLC_RNN_LSTM, IN, HIDDEN, 2, 0, 0, true, false, false, false, false},
    {MLC_RNN_LSTM, IN, HIDDEN, 3, 2, 0, false, false, true, false, true},
    {MLC_RNN_GRU, IN, HIDDEN, 2, 0, 0, true, false, false, false, true},
    {MLC_RNN_GRU, IN, HIDDEN, 1, 0, 0, false, true, false, false, false},
    {MLC_RNN_TANH, IN, HIDDEN, 2, 0, 0, true, true, false, false, false},
    {MLC_RNN_RELU, IN, HIDDEN, 1, 0, 0, true, false, false, false, true},
};

enum { NET_COUNT = sizeof NETS / sizeof *NETS };

static void check_module(mlc_ctx *ctx, int k, bool lengths, bool states)
{
    const mlc_nn_rnn_desc *d = &NETS[k];
    const bool    lstm = d->kind == MLC_RNN_LSTM;
    const int64_t n = d->layers * (d->bidirectional ? 2 : 1);
    const int64_t p = d->projection ? d->projection : d->hidden;
    mlc_module   *m = module_of(ctx, d);
    mlc_tensor   *want[3], *out[3], *grad[64], *y;
    mlc_scope_begin(ctx);
    mlc_tensor *in[3] = {
        leaf(ctx, MLC_F64, d->time_first ? mlc_dims3(T, BATCH, IN) : mlc_dims3(BATCH, T, IN), 1),
        states ? leaf(ctx, MLC_F64, mlc_dims3(n, BATCH, p), 2) : NULL,
        states && lstm ? leaf(ctx, MLC_F64, mlc_dims3(n, BATCH, HIDDEN), 3) : NULL};
    mlc_tensor *rows = lengths ? lengths_of(ctx) : NULL;
    want[0] = by_layers(m, d, in[0], rows, states ? in + 1 : NULL, want + 1);
    CHECK_EQ(mlc_backward(weighted(want, 3)), MLC_OK);
    check_grads(m, in, grad, true, k);
    CHECK_EQ(mlc_rnn_forward(m, in[0], rows, states ? in + 1 : NULL, &y, out + 1), MLC_OK);
    out[0] = y;
    CHECK_EQ(mlc_backward(weighted(out, 3)), MLC_OK);
    check_grads(m, in, grad, false, k);
    for (int i = 0; i < 3; i++)
        if (want[i]) check_close(out[i], want[i], 1e-13, k, "output", i);
        else CHECK(out[i] == NULL);
    if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  net %d: %s\n", k, mlc_error(ctx));
    mlc_module_free(m);
}

TEST(recurrent, modules_are_layers_of_the_operation)
{
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < NET_COUNT; k++)
            for (int how = 0; how < 4; how++)
                check_module(ctx, k, how & 1, how & 2);
        CHECK_OK(ctx);
    }
}

/* What lies in padding has no part in anything. */
TEST(recurrent, padding_is_not_read)
{
    static double v[BATCH * T * IN];
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 2 * NET_COUNT; k++) {
            mlc_nn_rnn_desc d = NETS[k / 2];
            mlc_tensor     *lengths = lengths_of(ctx), *y[2], *after[2], *grad;
            double          rows[BATCH];
            d.layer_norm = k & 1;
            mlc_module *m = module_of(ctx, &d);
            mlc_scope_begin(ctx);
            test_read(lengths, rows);
            grad = NULL;
            for (int way = 0; way < 2; way++) {
                for (int i = 0; i < BATCH * T * IN; i++) {
                    const int row = i / IN, s = d.time_first ? row % BATCH : row / T;
                    const int at = d.time_first ? row / BATCH : row % T;
                    v[i] = at < (int)rows[s] ? test_random(1, i, -1, 1) : way ? NO_NUMBER : 0.5;
                }
                mlc_tensor *x = test_tensor(ctx, MLC_F64, d.time_first
                                                ? mlc_dims3(T, BATCH, IN)
                                                : mlc_dims3(BATCH, T, IN), v);
                mlc_tensor *w = weight(m, "weight_ih", 0, 0);
                CHECK_EQ(mlc_rnn_forward(m, x, lengths, NULL, &y[way], after), MLC_OK);
                CHECK_EQ(mlc_backward(weighted(&y[way], 1)), MLC_OK);
                if (way) check_close(mlc_grad(w), grad, 0, k, "gradient", 0);
                grad = mlc_copy(mlc_grad(w));
                mlc_zero_grad(w);
            }
            check_close(y[1], y[0], 0, k, "y", 0);
            CHECK(!isnan(mlc_item(mlc_sum_all(grad))));
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            mlc_module_free(m);
        }
    }
}

/* ---- cells ----------------------------------------------------------------------------------- */

TEST(recurrent, cells_are_steps_of_a_layer)
{
    mlc_ctx *ctx = test_ctx();
    for (int kind = 0; kind < MLC_RNN_COUNT; kind++) {
        const mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make((mlc_rnn_kind)kind, IN, HIDDEN);
        const int             states = kind == MLC_RNN_LSTM ? 2 : 1;
        mlc_module           *net = module_of(ctx, &d), *cell = mlc_nn_rnn_cell(ctx, &d);
        static const char *const name[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
        CHECK_EQ(mlc_module_to(cell, MLC_F64), MLC_OK);
        for (int i = 0; i < 4; i++)
            CHECK_EQ(mlc_copy_into(mlc_module_param(cell, name[i]), weight(net, name[i], 0, 0)),
                     MLC_OK);
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(BATCH, T, IN), 1, -1, 1);
        mlc_tensor *all = mlc_forward(net, x), *in[3], *out[2];
        for (int64_t i = 0; i < T; i++) {
            in[0] = mlc_select(x, 1, i);
            CHECK_EQ(mlc_module_forward(cell, in, i ? 1 + states : 1, out, states), MLC_OK);
            check_close(out[0], mlc_select(all, 1, i), 1e-14, kind, "step", (int)i);
            for (int s = 0; s < states; s++) in[1 + s] = out[s];
        }
    }
    CHECK_OK(ctx);
}

/* ---- both directions of any module ----------------------------------------------------------- */

TEST(recurrent, a_bidirectional_pair_is_a_bidirectional_layer)
{
    static const char *const name[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    FOR_EACH_ISA(ctx) {
        mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, IN, HIDDEN);
        mlc_module     *one = module_of(ctx, &d), *two = module_of(ctx, &d), *pair;
        d.bidirectional = true;
        mlc_module *both = module_of(ctx, &d);
        for (int way = 0; way < 2; way++)
            for (int i = 0; i < 4; i++)
                CHECK_EQ(mlc_copy_into(weight(way ? two : one, name[i], 0, 0),
                                       weight(both, name[i], 0, way)), MLC_OK);
        pair = mlc_nn_bidirectional(ctx, one, two);
        for (int k = 0; k < 2; k++) {
            mlc_tensor *y, *want, *grad, *rows = k ? lengths_of(ctx) : NULL;
            mlc_tensor *x = leaf(ctx, MLC_F64, mlc_dims3(BATCH, T, IN), 1);
            CHECK_EQ(mlc_rnn_forward(both, x, rows, NULL, &want, NULL), MLC_OK);
            CHECK_EQ(mlc_backward(weighted(&want, 1)), MLC_OK);
            grad = mlc_copy(mlc_grad(x));
            mlc_zero_grad(x);
            CHECK_EQ(mlc_rnn_forward(pair, x, rows, NULL, &y, NULL), MLC_OK);
            CHECK_EQ(mlc_backward(weighted(&y, 1)), MLC_OK);
            check_close(y, want, 1e-14, k, "y", 0);
            check_close(mlc_grad(x), grad, 1e-13, k, "dx", 0);
        }
        CHECK_OK(ctx);
    }
}

/* ---- central differences --------------------------------------------------------------------- */

static mlc_tensor *op_of(void *user, mlc_tensor *const *in, int32_t n)
{
    scene      *s = (scene *)user;
    mlc_tensor *out[3];
    (void)in;
    (void)n;
    return mlc_rnn(s->in[IN_X], s->in[IN_W], &s->d, out) == MLC_OK ? weighted(out, 3) : NULL;
}

static void check_differences(mlc_ctx *ctx, mlc_grad_fn fn, void *user, mlc_tensor *const *in,
                              int n, int k)
{
    mlc_gradcheck_report r;
    memset(&r, 0, sizeof r);
    CHECK_EQ(mlc_gradcheck(fn, user, in, n, NULL, &r), MLC_OK);
    if (!CHECK(r.ok && r.input >= 0))
        printf("  case %d: input %d, element %" PRId64 ": %g, differences say %g; %s\n", k,
               (int)r.input, r.index, r.analytic, r.numeric, mlc_error(ctx));
}

TEST(recurrent, gradients_match_central_differences)
{
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < CASE_COUNT; k += (int)test_stride(3)) {
            mlc_tensor *in[INPUTS];
            int         n = 0;
            if (CASES[k].b * CASES[k].t * CASES[k].h > 130 || CASES[k].b * CASES[k].t == 0 ||
                !runs(&CASES[k])) continue;
            mlc_scope_begin(ctx);
            scene s = scene_of(ctx, MLC_F64, MLC_F64, &CASES[k]);
            for (int i = 0; i < INPUTS; i++)
                if (s.in[i]) in[n++] = s.in[i];
            check_differences(ctx, op_of, &s, in, n, k);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

typedef struct run { mlc_module *m; mlc_tensor *lengths; bool states; } run;

/* x and, of a run with states, h and c come first; then parameters, which the module has itself. */
static mlc_tensor *module_run(void *user, mlc_tensor *const *in, int32_t n)
{
    run        *r = (run *)user;
    mlc_tensor *out[3] = {NULL};
    (void)n;
    return mlc_rnn_forward(r->m, in[0], r->lengths, r->states ? in + 1 : NULL, &out[0],
                           r->states ? out + 1 : NULL) == MLC_OK ? weighted(out, 3) : NULL;
}

static void check_module_differences(mlc_ctx *ctx, mlc_module *m, int64_t states, int k)
{
    mlc_tensor *in[32];
    run         r = {m, NULL, states > 0};
    int         n = 0;
    mlc_scope_begin(ctx);
    r.lengths = lengths_of(ctx);
    in[n++] = leaf(ctx, MLC_F64, mlc_dims3(BATCH, T, IN), 1);
    if (states) in[n++] = leaf(ctx, MLC_F64, mlc_dims3(states, BATCH, 2), 2);
    if (states) in[n++] = leaf(ctx, MLC_F64, mlc_dims3(states, BATCH, HIDDEN), 3);
    for (mlc_param_iter it = mlc_param_iter_make(m); mlc_param_next(&it);) in[n++] = it.tensor;
    check_differences(ctx, module_run, &r, in, n, k);
    if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    mlc_module_free(m);
}

TEST(recurrent, gradients_of_normalised_cells_and_of_pairs_match_central_differences)
{
    FOR_EACH_ISA(ctx) {
        mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, IN, HIDDEN);
        d.layer_norm = d.peepholes = true;
        d.projection = 2;
        check_module_differences(ctx, module_of(ctx, &d), 1, 0);
        d = mlc_nn_rnn_desc_make(MLC_RNN_GRU, IN, 2);
        d.layer_norm = d.bidirectional = true;
        check_module_differences(ctx, module_of(ctx, &d), 0, 1);
        d.layer_norm = false;
        mlc_module *pair = mlc_nn_bidirectional(ctx, module_of(ctx, &d), mlc_nn_linear(ctx, IN, 2));
        CHECK_EQ(mlc_module_to(pair, MLC_F64), MLC_OK);
        check_module_differences(ctx, pair, 0, 2);
        CHECK_OK(ctx);
    }
}

/* ---- layer-normalised cells ------------------------------------------------------------------ */

/* Equations 20 to 22 of arXiv 1607.06450. */
TEST(recurrent, a_normalised_cell_is_that_of_the_paper)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, IN, HIDDEN);
    d.layer_norm = true;
    mlc_module *m = mlc_nn_rnn_cell(ctx, &d);
    CHECK_EQ(mlc_module_to(m, MLC_F64), MLC_OK);
    for (mlc_param_iter it = mlc_param_iter_make(m); mlc_param_next(&it);)
        CHECK_EQ(mlc_copy_into(it.tensor, test_rand(ctx, MLC_F64, mlc_dims_of(it.tensor->ndim,
                                                                              it.tensor->shape),
                                                    (uint64_t)it.next, -1, 1)), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(BATCH, IN), 1, -1, 1);
    mlc_tensor *in[3] = {x, test_rand(ctx, MLC_F64, mlc_dims2(BATCH, HIDDEN), 2, -1, 1),
                         test_rand(ctx, MLC_F64, mlc_dims2(BATCH, HIDDEN), 3, -1, 1)}, *out[2];
    mlc_tensor *a = mlc_add(
        mlc_layer_norm(mlc_linear(in[1], mlc_module_param(m, "weight_hh"), NULL),
                       mlc_module_param(m, "norm_hh"), mlc_module_param(m, "bias_hh"), 1e-5),
        mlc_layer_norm(mlc_linear(x, mlc_module_param(m, "weight_ih"), NULL),
                       mlc_module_param(m, "norm_ih"), mlc_module_param(m, "bias_ih"), 1e-5));
    mlc_tensor *c = mlc_add(mlc_mul(mlc_sigmoid(part(a, 1, HIDDEN)), in[2]),
                            mlc_mul(mlc_sigmoid(part(a, 0, HIDDEN)), mlc_tanh(part(a, 2, HIDDEN))));
    mlc_tensor *seen = mlc_layer_norm(c, mlc_module_param(m, "norm_c"),
                                      mlc_module_param(m, "bias_c"), 1e-5);
    CHECK_EQ(mlc_module_forward(m, in, 3, out, 2), MLC_OK);
    check_close(out[0], mlc_mul(mlc_sigmoid(part(a, 3, HIDDEN)), mlc_tanh(seen)), 1e-14, 0, "h", 0);
    check_close(out[1], c, 1e-14, 0, "c", 0);
    CHECK_OK(ctx);
}

/* ---- other devices, dtypes, threads ---------------------------------------------------------- */

#ifndef _WIN32                         /* device.c, which has it, is not built there           */
TEST(recurrent, a_device_without_kernels_makes_steps_of_operations)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.device = "no_rnn";
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    if (!CHECK(ctx != NULL)) return;
    for (int k = 0; k < CASE_COUNT; k++) {
        mlc_scope_begin(ctx);
        if (!CASES[k].packed) check_op(ctx, k);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  case %d: %s\n", k, mlc_error(ctx));
    }
    for (int k = 0; k < NET_COUNT; k++) check_module(ctx, k, true, k % 2);
    mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 3, 4), 1, -1, 1), *out[3];
    mlc_tensor  *w = test_rand(ctx, MLC_F32, mlc_dims2(4, 4), 1, -1, 1);
    mlc_rnn_desc r = mlc_rnn_desc_make(MLC_RNN_TANH);
    static const double bad[2] = {3, 4}, cuts[2] = {0, 3};
    r.lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), bad);
    CHECK_EQ(mlc_rnn(x, w, &r, out), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "rnn: lengths[1] is 4; it must be in [0, 3], the steps of x");
    r.lengths = NULL;
    r.offsets = test_tensor(ctx, MLC_I64, mlc_dims1(2), cuts);
    CHECK_EQ(mlc_rnn(mlc_select(x, 0, 0), w, &r, out), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "give lengths, not offsets");
}
#endif

/* With a weight of 0 h is tanh x. */
TEST(recurrent, tanh_of_f32_is_within_2_ulp)
{
    enum { ROWS = 3000, UNITS = 16, ALL = ROWS * UNITS };
    static double v[ALL], got[ALL];
    for (int i = 0; i < ALL; i++) v[i] = (double)(float)(i % 2 ? test_random(5, i, -1, 1)
                                                               : test_random(5, i, -10, 10));
    FOR_EACH_ISA(ctx) {
        mlc_rnn_desc d = mlc_rnn_desc_make(MLC_RNN_TANH);
        mlc_tensor  *x = test_tensor(ctx, MLC_F32, mlc_dims3(ROWS, 1, UNITS), v), *out[3];
        mlc_tensor  *w = mlc_zeros(ctx, MLC_F32, mlc_dims2(UNITS, UNITS));
        double       most = 0;
        CHECK_EQ(mlc_rnn(x, w, &d, out), MLC_OK);
        if (!CHECK(test_read(out[0], got))) continue;
        for (int i = 0; i < ALL; i++) {
            int e;
            frexp(tanh(v[i]), &e);
            most = fmax(most, fabs(got[i] - tanh(v[i])) / ldexp(1, e - 24));
        }
        if (!CHECK(most <= (test_on_card() ? 4 : 2))) printf("  %g ulp\n", most);
    }
}

/* 16-bit x and h with weights of 16 bits or f32, c in f32; and f32, against f64 of the same. */
TEST(recurrent, other_dtypes_are_near_f64)
{
    static const mlc_dtype dtypes[][2] = {{MLC_F32, MLC_F32}, {MLC_BF16, MLC_BF16},
                                          {MLC_BF16, MLC_F32}, {MLC_F16, MLC_F16},
                                          {MLC_F16, MLC_F32}};
    static const double error[] = {1e-5, 0.1, 0.1, 0.02, 0.02};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < CASE_COUNT * 5; k++) {
            const shape_case *c = &CASES[k / 5];
            mlc_tensor       *out[3], *want[3];
            if (!runs(c)) continue;
            mlc_scope_begin(ctx);
            scene s = scene_of(ctx, dtypes[k % 5][0], dtypes[k % 5][1], c), wide = s;
            for (int i = 0; i < INPUTS; i++) {
                if (!s.in[i]) continue;
                wide.in[i] = mlc_detach(mlc_cast(s.in[i], MLC_F64));
                CHECK_EQ(mlc_set_requires_grad(wide.in[i], true), MLC_OK);
            }
            scene_desc(&wide);
            CHECK_EQ(mlc_rnn(s.in[IN_X], s.in[IN_W], &s.d, out), MLC_OK);
            CHECK_EQ(mlc_rnn(wide.in[IN_X], wide.in[IN_W], &wide.d, want), MLC_OK);
            CHECK_EQ(mlc_backward(weighted(out, 3)), MLC_OK);
            CHECK_EQ(mlc_backward(weighted(want, 3)), MLC_OK);
            for (int i = 0; i < 3; i++)
                if (want[i]) check_close(out[i], want[i], error[k % 5], k, "output", i);
            for (int i = 0; i < INPUTS; i++) {
                /* A device without the kernel makes no step, and no gradient, of none. */
                if (s.in[i] && !mlc_grad(s.in[i]) && c->t == 0 && !test_cpu_kernels()) continue;
                if (!s.in[i] || !CHECK(mlc_grad(s.in[i]) != NULL)) continue;
                CHECK_EQ(mlc_grad(s.in[i])->dtype, s.in[i]->dtype);
                const double most = mlc_numel(wide.in[i]) ? mlc_item(mlc_max(mlc_abs(
                    mlc_grad(wide.in[i])), mlc_dims0(), false)) : 0;
                check_close(mlc_grad(s.in[i]), mlc_grad(wide.in[i]), error[k % 5] * (1 + most), k,
                            "gradient", i);
            }
            if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  case %d: %s\n", k, mlc_error(ctx));
        }
    }
}

TEST(recurrent, x_needs_no_gradient)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *out[3], *want;
        scene       s = scene_of(ctx, MLC_F64, MLC_F64, &CASES[7]);
        CHECK_EQ(mlc_rnn(s.in[IN_X], s.in[IN_W], &s.d, out), MLC_OK);
        CHECK_EQ(mlc_backward(weighted(out, 3)), MLC_OK);
        want = mlc_copy(mlc_grad(s.in[IN_W]));
        mlc_zero_grad(s.in[IN_W]);
        CHECK_EQ(mlc_rnn(mlc_detach(s.in[IN_X]), s.in[IN_W], &s.d, out), MLC_OK);
        CHECK_EQ(mlc_backward(weighted(out, 3)), MLC_OK);
        CHECK(far_off(mlc_grad(s.in[IN_W]), want) == 0);
        CHECK_OK(ctx);
    }
}

enum { BITS = 1 << 20, WIDE_T = 11, WIDE_IN = 9, WIDE_H = 40 };

/* Outputs and gradients one behind the other; the bytes. */
static size_t bits_of(mlc_rnn_kind kind, mlc_isa isa, int32_t threads, bool low, char *to)
{
    mlc_ctx_desc    d = test_desc();
    mlc_nn_rnn_desc n = mlc_nn_rnn_desc_make(kind, WIDE_IN, WIDE_H);
    mlc_tensor     *out[40] = {NULL};
    size_t          at = 0;
    int             count = 3;
    d.isa = isa;
    d.threads = threads;
    d.seed = 3;
    n.layers = 2;
    n.bidirectional = true;
    n.dropout = 0.25;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL)) return 0;
    mlc_module *m = mlc_nn_rnn_ex(ctx, &n);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(BATCH, WIDE_T, WIDE_IN), 1, -1, 1);
    if (low) CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_rnn_forward(m, x, kind == MLC_RNN_GRU ? lengths_of(ctx) : NULL, NULL, &out[0],
                             out + 1), MLC_OK);
    if (low) CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
    CHECK_EQ(mlc_backward(weighted(out, 3)), MLC_OK);
    for (mlc_param_iter it = mlc_param_iter_make(m); mlc_param_next(&it);)
        out[count++] = mlc_grad(it.tensor);
    for (int i = 0; i < count; i++) {
        const size_t bytes = out[i] ? (size_t)mlc_numel(out[i]) * mlc_dtype_bytes(out[i]->dtype)
                                    : 0;
        if (!CHECK(at + bytes <= BITS)) break;
        if (bytes) CHECK_EQ(mlc_read(out[i], to + at, bytes), MLC_OK);
        at += bytes;
    }
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return at;
}

TEST(recurrent, bits_are_those_of_any_number_of_threads)
{
    static const int32_t threads[] = {2, 3, 5};
    static char          one[BITS], more[BITS];
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < 2 * MLC_RNN_COUNT; k++) {
            const mlc_rnn_kind kind = (mlc_rnn_kind)(k / 2);
            const size_t       n = bits_of(kind, (mlc_isa)isa, 1, k % 2, one);
            for (int t = 0; t < 3; t++) {
                CHECK_EQ(bits_of(kind, (mlc_isa)isa, threads[t], k % 2, more), n);
                if (!CHECK(memcmp(one, more, n) == 0))
                    printf("  kind %d, level %d, %d threads\n", (int)kind, isa, (int)threads[t]);
            }
        }
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void check_steady(mlc_ctx *ctx, mlc_rnn_kind kind, bool lengths, bool low)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind, WIDE_IN, WIDE_H);
    mlc_memory      before, after;
    d.layers = 2;
    d.bidirectional = true;
    d.dropout = 0.1;
    mlc_module *m = mlc_nn_rnn_ex(ctx, &d);
    mlc_optim  *opt = mlc_adamw(m, 1e-3);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(BATCH, WIDE_T, WIDE_IN), 1, -1, 1);
    mlc_tensor *rows = lengths ? lengths_of(ctx) : NULL;
    for (int step = 0; step < 10; step++) {
        mlc_tensor *y = NULL, *state[2];
        if (step == 4) CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
        mlc_scope_begin(ctx);
        if (low) mlc_autocast_begin(ctx, MLC_BF16);
        CHECK_EQ(mlc_rnn_forward(m, x, rows, NULL, &y, state), MLC_OK);
        if (low) mlc_autocast_end(ctx);
        CHECK_EQ(mlc_backward(mlc_mean_all(mlc_square(mlc_cast(y, MLC_F32)))), MLC_OK);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    }
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(after.reserved, before.reserved);
    mlc_optim_free(opt);
    mlc_module_free(m);
}

TEST(recurrent, a_steady_step_takes_no_memory)
{
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 8; k++)
            check_steady(ctx, k & 4 ? MLC_RNN_GRU : MLC_RNN_LSTM, k & 1, k & 2);
        CHECK_OK(ctx);
    }
}

/* States are two tensors that a step reads and writes. */
TEST(recurrent, an_lstm_of_32_units_streams_in_64_kb)
{
    static char           memory[64 * 1024];
    mlc_ctx_desc          d = test_desc();
    const mlc_nn_rnn_desc n = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, 4, 32);
    mlc_memory            before = {0}, after;
    ONLY_ON_HOST();
    d.isa = MLC_ISA_SCALAR;
    d.threads = 1;
    d.memory = memory;
    d.memory_bytes = sizeof memory;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
    mlc_module *cell = mlc_nn_rnn_cell(ctx, &n);
    mlc_tensor *in[3] = {test_rand(ctx, MLC_F32, mlc_dims2(1, 4), 1, -1, 1),
                         mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 32)),
                         mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 32))}, *out[2];
    CHECK_EQ(mlc_eval_begin(cell), MLC_OK);
    for (int step = 0; step < 20; step++) {
        if (step == 2) CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_module_forward(cell, in, 3, out, 2), MLC_OK);
        for (int i = 0; i < 2; i++) CHECK_EQ(mlc_copy_into(in[1 + i], out[i]), MLC_OK);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    }
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(after.calls, 0);
    CHECK_EQ(mlc_eval_end(cell), MLC_OK);
}

/* ---- what they are used for ------------------------------------------------------------------ */

TEST(recurrent, pieces_of_a_sequence_go_on_where_the_last_one_ended)
{
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < NET_COUNT; k++) {
            mlc_nn_rnn_desc d = NETS[k];
            d.bidirectional = d.time_first = false;
            mlc_module *m = module_of(ctx, &d);
            mlc_scope_begin(ctx);
            mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(BATCH, T, IN), 1, -1, 1);
            mlc_tensor *want[3], *y[2], *state[2], *end[2];
            CHECK_EQ(mlc_rnn_forward(m, x, NULL, NULL, &want[0], want + 1), MLC_OK);
            CHECK_EQ(mlc_rnn_forward(m, mlc_slice(x, 1, 0, 3, 1), NULL, NULL, &y[0], state),
                     MLC_OK);
            for (int i = 0; i < 2; i++)
                if (state[i]) state[i] = mlc_detach(state[i]);
            CHECK_EQ(mlc_rnn_forward(m, mlc_slice(x, 1, 3, T, 1), NULL, state, &y[1], end), MLC_OK);
            check_close(mlc_concat(y, 2, 1), want[0], 1e-14, k, "y", 0);
            for (int i = 0; i < 2; i++)
                if (end[i]) check_close(end[i], want[1 + i], 1e-14, k, "state", i);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            mlc_module_free(m);
        }
    }
}

/* Products of f64 have an order that does not depend on how many rows there are, but cuBLASLt's. */
TEST(recurrent, a_step_at_a_time_has_the_bits_of_the_whole_in_f64)
{
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < NET_COUNT; k++) {
            mlc_nn_rnn_desc d = NETS[k];
            d.bidirectional = d.time_first = false;
            mlc_module *m = module_of(ctx, &d);
            CHECK_EQ(mlc_eval_begin(m), MLC_OK);
            mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(1, 40, IN), 1, -1, 1);
            mlc_tensor *want = mlc_forward(m, x), *y, *state[2] = {NULL, NULL};
            double      all[40 * HIDDEN], step[HIDDEN];
            const int64_t n = mlc_dim(want, 2);
            test_read(want, all);
            for (int64_t i = 0; i < 40; i++) {
                CHECK_EQ(mlc_rnn_forward(m, mlc_slice(x, 1, i, i + 1, 1), NULL, state, &y, state),
                         MLC_OK);
                test_read(y, step);
                for (int64_t h = 0; test_on_card() && h < n; h++)
                    CHECK_NEAR(step[h], all[i * n + h], 1e-13);
                CHECK(test_on_card() ||
                      memcmp(step, all + i * n, (size_t)n * sizeof *step) == 0);
            }
            CHECK_EQ(mlc_eval_end(m), MLC_OK);
        }
        CHECK_OK(ctx);
    }
}

TEST(recurrent, modules_are_layers_of_a_sequential_and_have_clones)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_gru(ctx, IN, 6), mlc_nn_lstm(ctx, 6, HIDDEN),
                                     mlc_nn_rnn(ctx, HIDDEN, 3), mlc_nn_linear(ctx, 3, 2));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(BATCH, T, IN), 1, -1, 1);
    mlc_no_grad_begin(ctx);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK(mlc_numel(y) == BATCH * T * 2);
    mlc_module *copy = mlc_module_clone(net);
    mlc_module_free(net);
    CHECK(far_off(mlc_forward(copy, x), y) == 0);
    CHECK_EQ(mlc_module_to(copy, MLC_BF16), MLC_OK);
    CHECK(far_off(mlc_forward(copy, mlc_cast(x, MLC_BF16)), y) < 0.05);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

TEST(recurrent, parameters_have_pytorchs_names_and_first_values)
{
    static const char *const name[] = {
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0",
        "weight_peep_l0", "norm_ih_l0", "norm_hh_l0", "norm_c_l0", "bias_c_l0",
        "weight_ih_l0_reverse"};
    static const int64_t rows[] = {16, 16, 16, 16, 2, 3, 16, 16, 4, 4, 16};
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, IN, HIDDEN);
    d.bidirectional = d.peepholes = d.layer_norm = true;
    d.projection = d.layers = 2;
    mlc_module    *m = mlc_nn_rnn_ex(ctx, &d);
    mlc_param_iter it = mlc_param_iter_make(m);
    for (int i = 0; mlc_param_next(&it); i++) {
        static double v[256];
        const bool    norm = strncmp(it.name, "norm", 4) == 0;
        if (i < 11) CHECK_STR(it.name, name[i]);
        if (i < 11) CHECK_EQ(mlc_dim(it.tensor, 0), rows[i]);
        test_read(it.tensor, v);
        for (int64_t e = 0; e < mlc_numel(it.tensor); e++)
            CHECK(norm ? v[e] == 1 : fabs(v[e]) <= 0.5 && v[e] != 0);
        if (i == 20) CHECK_STR(it.name, "weight_ih_l1");
        if (i == 20) CHECK_EQ(mlc_dim(it.tensor, 1), 4);
    }
    CHECK_EQ(it.next, 40);
    CHECK_OK(ctx);
}

/* Digits, and the same in the other order: an encoder reads them, a decoder says them one by one,
 * looks at what the encoder made by attention, and learns from the right digits before. */
enum { DIGITS = 8, WORD = 4, FEATURES = 32, WORDS = 24 };

typedef struct translator { mlc_module *embed, *encoder, *decoder, *head, *all; } translator;

static translator translator_of(mlc_ctx *ctx)
{
    const mlc_module_class list = {"Translator", NULL, NULL, NULL, 0, NULL};
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(MLC_RNN_GRU, FEATURES, FEATURES / 2);
    translator      t;
    d.bidirectional = true;
    t.all = mlc_module_create(ctx, &list, NULL, 0);
    t.embed = mlc_nn_embedding(ctx, DIGITS + 1, FEATURES);
    t.encoder = mlc_nn_rnn_ex(ctx, &d);
    t.decoder = mlc_nn_lstm(ctx, FEATURES, FEATURES);
    t.head = mlc_nn_linear(ctx, 2 * FEATURES, DIGITS);
    mlc_module *part[4] = {t.embed, t.encoder, t.decoder, t.head};
    for (int i = 0; i < 4; i++) CHECK_EQ(mlc_module_add(t.all, part[i]), MLC_OK);
    return t;
}

/* Scores of the digits after those of `before` [b,n], from state on. */
static mlc_tensor *decode(const translator *t, mlc_tensor *memory, mlc_tensor *before,
                          mlc_tensor *const state[2], mlc_tensor **after)
{
    mlc_tensor *y;
    CHECK_EQ(mlc_rnn_forward(t->decoder, mlc_forward(t->embed, before), NULL, state, &y, after),
             MLC_OK);
    mlc_tensor *q = mlc_unsqueeze(y, 1), *kv = mlc_unsqueeze(memory, 1);
    mlc_tensor *both[2] = {y, mlc_squeeze(mlc_attention(q, kv, kv), 1)};
    return mlc_forward(t->head, mlc_concat(both, 2, 2));
}

/* Words of batch k: what is read, what is said, and that moved by one behind a start. */
static void words_of(mlc_ctx *ctx, int k, mlc_tensor *out[3])
{
    int64_t v[3][WORDS * WORD];
    for (int i = 0; i < WORDS * WORD; i++)
        v[0][i] = (int64_t)floor(test_random((uint64_t)k, i, 0, DIGITS));
    for (int i = 0; i < WORDS * WORD; i++) {
        v[1][i] = v[0][i / WORD * WORD + WORD - 1 - i % WORD];
        v[2][i] = i % WORD ? v[1][i - 1] : DIGITS;
    }
    for (int i = 0; i < 3; i++) out[i] = mlc_from(ctx, MLC_I64, mlc_dims2(WORDS, WORD), v[i]);
}

TEST(recurrent, an_encoder_and_a_decoder_with_attention_turn_words_round)
{
    mlc_ctx   *ctx = test_ctx();
    translator t = translator_of(ctx);
    mlc_optim *opt = mlc_adamw(t.all, 0.01);
    double     loss = 0;
    for (int step = 0; step < 300; step++) {
        mlc_tensor *w[3];
        mlc_scope_begin(ctx);
        words_of(ctx, step, w);
        mlc_tensor *memory = mlc_forward(t.encoder, mlc_forward(t.embed, w[0]));
        mlc_tensor *score = decode(&t, memory, w[2], NULL, NULL);
        mlc_tensor *l = mlc_cross_entropy(score, w[1]);
        CHECK_EQ(mlc_backward(l), MLC_OK);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        loss = mlc_item(l);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) printf("  %s\n", mlc_error(ctx));
    }
    CHECK(loss < 0.2);
    mlc_tensor *w[3], *state[2] = {NULL, NULL}, *said;
    words_of(ctx, 1000, w);
    CHECK_EQ(mlc_eval_begin(t.all), MLC_OK);
    mlc_tensor *memory = mlc_forward(t.encoder, mlc_forward(t.embed, w[0]));
    said = mlc_slice(w[2], 1, 0, 1, 1);
    int64_t right = 0;
    for (int i = 0; i < WORD; i++) {
        said = mlc_argmax(decode(&t, memory, said, state, state), 2, false);
        right += (int64_t)mlc_item(mlc_sum_all(mlc_eq(said, mlc_slice(w[1], 1, i, i + 1, 1))));
    }
    CHECK(right >= WORDS * WORD * 9 / 10);
    CHECK_EQ(mlc_eval_end(t.all), MLC_OK);
    CHECK_OK(ctx);
}

/* ---- what does not fit ----------------------------------------------------------------------- */

TEST(recurrent, descs_that_do_not_fit_are_refused)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_nn_rnn_desc good = mlc_nn_rnn_desc_make(MLC_RNN_LSTM, IN, HIDDEN);
    mlc_nn_rnn_desc       d = good;
    CHECK(!mlc_nn_rnn_ex(ctx, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: desc is NULL; start from mlc_nn_rnn_desc_make(kind, in");
    d.kind = MLC_RNN_COUNT;
    CHECK(!mlc_nn_rnn_ex(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: unknown kind 4");
    CHECK(!mlc_nn_lstm(ctx, 0, 4));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: in is 0, hidden 4, layers 1; all must be positive");
    d = good;
    d.layers = 0;
    CHECK(!mlc_nn_rnn_ex(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "layers 0");
    d = good;
    d.projection = HIDDEN;
    CHECK(!mlc_nn_rnn_ex(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: projection is 4; it must be smaller than hidden, 4, or");
    d.projection = 2;
    d.kind = MLC_RNN_GRU;
    CHECK(!mlc_nn_rnn_ex(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: projection and peepholes are an LSTM's");
    d.projection = 0;
    d.peepholes = true;
    CHECK(!mlc_nn_rnn_ex(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: projection and peepholes are an LSTM's");
    d = good;
    d.dropout = 1.5;
    CHECK(!mlc_nn_rnn_ex(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn: dropout is 1.5, not in [0, 1]");
    d = good;
    d.layers = 2;
    CHECK(!mlc_nn_rnn_cell(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_rnn_cell: layers, directions and dropout are those of");
    d = good;
    d.time_first = true;
    CHECK(!mlc_nn_bidirectional(ctx, mlc_nn_gru(ctx, IN, 2), mlc_nn_rnn_ex(ctx, &d)));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_bidirectional: LSTM has time_first");
    mlc_module *one = mlc_nn_gru(ctx, IN, 2);
    CHECK(!mlc_nn_bidirectional(ctx, one, one));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "already has a parent");
    CHECK(!mlc_nn_bidirectional(ctx, NULL, one));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "module_add: child is NULL");
    CHECK(!mlc_nn_bidirectional(ctx, one, mlc_nn_rnn_ex(ctx, &d)));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "nn_bidirectional: LSTM has time_first");
    mlc_module *both = mlc_nn_bidirectional(ctx, one, mlc_nn_gru(ctx, IN, 2));   /* one is whole */
    CHECK(mlc_forward(both, mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 5, IN))) != NULL);
    CHECK_OK(ctx);
}

static void check_refused(mlc_module *m, mlc_tensor *x, mlc_tensor *lengths,
                          mlc_tensor *const state[2], mlc_status want, const char *part_of_message)
{
    mlc_ctx    *ctx = mlc_module_ctx(m);
    mlc_tensor *y = x, *after[2] = {x, x};
    CHECK_EQ(mlc_rnn_forward(m, x, lengths, state, &y, after), want);
    CHECK(y == NULL && after[0] == NULL && after[1] == NULL);
    CHECK_ERROR(ctx, want, part_of_message);
}

TEST(recurrent, calls_that_do_not_fit_are_refused)
{
    static const double bad[][2] = {{3, 6}, {-1, 2}};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_lstm(ctx, IN, HIDDEN), *gru = mlc_nn_gru(ctx, IN, HIDDEN);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 5, IN)), *out[3];
    mlc_tensor *h = mlc_zeros(ctx, MLC_F32, mlc_dims3(1, 2, HIDDEN)), *state[2] = {h, NULL};
    check_refused(m, mlc_select(x, 0, 0), NULL, NULL, MLC_ERR_SHAPE,
                  "in LSTM: forward: x is [5,3]; it must be [b,t,3]");
    check_refused(m, x, NULL, state, MLC_ERR_ARG, "input 3 is NULL");
    state[1] = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 2, HIDDEN));
    check_refused(m, x, NULL, state, MLC_ERR_SHAPE,
                  "forward: state c is [2,2,4]; it must be [1,2,4]: layers times directions");
    state[1] = h;
    state[0] = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, HIDDEN));
    check_refused(m, x, NULL, state, MLC_ERR_SHAPE, "state h is [2,4]; it must be [1,2,4]");
    state[0] = mlc_cast(h, MLC_F64);
    check_refused(m, x, NULL, state, MLC_ERR_DTYPE, "rnn: h is f64; it must be f32");
    check_refused(m, x, mlc_zeros(ctx, MLC_I64, mlc_dims1(3)), NULL, MLC_ERR_SHAPE,
                  "forward: lengths are i64 [3]; they must be i64 [2], one a sequence");
    check_refused(m, x, mlc_zeros(ctx, MLC_F32, mlc_dims1(2)), NULL, MLC_ERR_SHAPE,
                  "forward: lengths are f32 [2]");
    if (test_on_host()) {
        check_refused(m, x, test_tensor(ctx, MLC_I64, mlc_dims1(2), bad[0]), NULL, MLC_ERR_VALUE,
                      "forward: lengths[1] is 6; it must be in [0, 5], the steps of x");
        check_refused(gru, x, test_tensor(ctx, MLC_I64, mlc_dims1(2), bad[1]), NULL, MLC_ERR_VALUE,
                      "forward: lengths[0] is -1; it must be in [0, 5], the steps of x");
    }
    check_refused(mlc_nn_linear(ctx, 3, 3), x, NULL, NULL, MLC_ERR_ARG,
                  "rnn_forward: the module is a Linear; it must be one of mlc_nn_rnn_ex");
    CHECK_EQ(mlc_rnn_forward(NULL, x, NULL, NULL, out, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rnn_forward: the module is NULL");
    CHECK_EQ(mlc_rnn_forward(m, x, NULL, NULL, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rnn_forward: y is NULL");
    mlc_tensor *in[3] = {x, h, h};
    CHECK_EQ(mlc_module_forward(m, in, 2, out, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "forward: x, or x, h and c, and up to 3 outputs (y, h, c), not 2 "
                "inputs and 1 outputs");
    CHECK_EQ(mlc_module_forward(gru, in, 2, out, 3), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "forward: x, or x and h, and up to 2 outputs (y, h), not 2");
    mlc_module *pair = mlc_nn_bidirectional(ctx, gru, mlc_nn_flatten(ctx));
    check_refused(pair, x, NULL, NULL, MLC_ERR_ARG, "states are those of the two modules");
    CHECK(mlc_forward(pair, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "forward: backward made [2,15] of [2,5,3]; it must keep [b,t]");
    CHECK(mlc_forward(pair, h ? mlc_select(x, 0, 0) : x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "forward: x is [5,3]; it must be [b,t,e]");
}

/* The operation's own messages: x [2,5,16], w [16,4] of an LSTM, where nothing else is said. */
TEST(recurrent, what_does_not_fit_the_operation_is_named)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 5, 16)), *out[3];
    mlc_tensor  *w = mlc_zeros(ctx, MLC_F32, mlc_dims2(16, 4)), *one, *i64;
    mlc_rnn_desc good = mlc_rnn_desc_make(MLC_RNN_LSTM), d = good;
    one = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    i64 = mlc_zeros(ctx, MLC_I64, mlc_dims1(3));
#define REFUSED(x, w, status, text) \
    do { \
        CHECK_EQ(mlc_rnn(x, w, &d, out), status); \
        CHECK(out[0] == NULL && out[1] == NULL && out[2] == NULL); \
        CHECK_ERROR(ctx, status, text); \
        d = good; \
    } while (0)
    CHECK_EQ(mlc_rnn(NULL, NULL, &d, out), MLC_ERR_ARG);
    CHECK_EQ(mlc_rnn(x, w, NULL, out), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rnn: desc is NULL; start from mlc_rnn_desc_make(kind)");
    CHECK_EQ(mlc_rnn(x, w, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "rnn: out is NULL; it has room for y, h and c");
    REFUSED(x, NULL, MLC_ERR_ARG, "rnn: input 2 is NULL");
    d.kind = (mlc_rnn_kind)-1;
    REFUSED(x, w, MLC_ERR_ARG, "rnn: unknown kind -1; see mlc_rnn_kind");
    REFUSED(x, mlc_cast(w, MLC_F64), MLC_ERR_DTYPE, "rnn: x is f32, w f64; they must be one float");
    REFUSED(x, mlc_zeros(ctx, MLC_F32, mlc_dims2(15, 4)), MLC_ERR_SHAPE,
            "rnn: w is [15,4]; it must be [4 h,p], the weight of h for 4 gates");
    REFUSED(mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 5, 12)), w, MLC_ERR_SHAPE,
            "rnn: x is [2,5,12]; with w [16,4] it must be [b,t,16], what the input gives to the");
    REFUSED(x, mlc_zeros(ctx, MLC_F32, mlc_dims2(16, 3)), MLC_ERR_SHAPE,
            "rnn: w is [16,3]; it must be [16,4] for x [2,5,16] and w [16,3]");
    d.h = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    REFUSED(x, w, MLC_ERR_SHAPE, "rnn: h is [2,3]; it must be [2,4] for x [2,5,16] and w [16,4]");
    d.c = mlc_zeros(ctx, MLC_F64, mlc_dims2(2, 4));
    REFUSED(x, w, MLC_ERR_DTYPE, "rnn: c is f64; it must be f32");
    d.bias = one;
    REFUSED(x, w, MLC_ERR_SHAPE, "rnn: bias is [3]; it must be [16] for x");
    d.project = one;
    REFUSED(x, w, MLC_ERR_SHAPE, "rnn: project is [3]; it must be [3,4] for x");
    d.peepholes = one;
    REFUSED(x, w, MLC_ERR_SHAPE, "rnn: peepholes is [3]; it must be [3,4] for x");
    d.lengths = i64;
    REFUSED(x, w, MLC_ERR_SHAPE, "rnn: lengths is [3]; it must be [2] for x");
    d.lengths = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
    REFUSED(x, w, MLC_ERR_DTYPE, "rnn: lengths is f32; it must be i64");
    d.lengths = d.offsets = i64;
    REFUSED(x, w, MLC_ERR_ARG, "rnn: lengths and offsets; give one of both");
    d.offsets = mlc_zeros(ctx, MLC_I64, mlc_dims1(0));
    REFUSED(mlc_select(x, 0, 0), w, MLC_ERR_SHAPE,
            "rnn: offsets are [0]; they must be [b + 1], one more than sequences");
    d.offsets = i64;
    REFUSED(x, w, MLC_ERR_SHAPE, "rnn: x is [2,5,16]; with w [16,4] it must be [rows,16]");
    good.kind = d.kind = MLC_RNN_TANH;
    d.c = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 16));
    REFUSED(x, mlc_zeros(ctx, MLC_F32, mlc_dims2(16, 16)), MLC_ERR_ARG,
            "rnn: c, project and peepholes are an LSTM's; leave them out for another kind");
#undef REFUSED
}

/* No sequence: rows that belong to none have a y of 0, and no gradient flows. */
TEST(recurrent, packed_rows_of_no_sequence_are_0)
{
    static const mlc_dtype dtypes[3] = {MLC_F32, MLC_F64, MLC_BF16};
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 3; k++) {
            mlc_scope_begin(ctx);
            for (int i = 0; i < 20; i++) mlc_full(ctx, MLC_F32, mlc_dims2(40, 40), 7);
            mlc_scope_end(ctx);
            mlc_tensor *t[4] = {test_rand(ctx, dtypes[k], mlc_dims2(3, 24), 1, -1, 1),
                                test_rand(ctx, dtypes[k], mlc_dims2(24, 5), 2, -1, 1),
                                test_rand(ctx, dtypes[k], mlc_dims2(5, 6), 3, -1, 1),
                                test_rand(ctx, dtypes[k], mlc_dims1(24), 4, -1, 1)}, *out[3];
            mlc_rnn_desc d = mlc_rnn_desc_make(MLC_RNN_LSTM);
            for (int i = 0; i < 4; i++) mlc_set_requires_grad(t[i], true);
            d.project = t[2];
            d.bias = t[3];
            d.offsets = mlc_zeros(ctx, MLC_I64, mlc_dims1(1));
            CHECK_EQ(mlc_rnn(t[0], t[1], &d, out), MLC_OK);
            CHECK_VALUES(mlc_detach(out[0]), 15, ((double[15]){0}), 0, 0);
            CHECK_EQ(mlc_backward_from(out[0], NULL), MLC_OK);
            for (int i = 0; i < 4; i++)
                CHECK_NEAR(mlc_item(mlc_norm(mlc_cast(mlc_grad(t[i]), MLC_F64), 2, mlc_dims0(),
                                             false)), 0, 0);
            CHECK_OK(ctx);
        }
    }
}

TEST(recurrent, values_of_lengths_and_offsets_are_checked)
{
    static const double length[][2] = {{2, 6}, {-1, 9}}, offset[][3] = {{0, 2, 6}, {0, 3, 2},
                                                                        {-1, 2, 3}};
    static const char *const says[] = {
        "rnn: lengths[1] is 6; it must be in [0, 5], the steps of x",
        "rnn: lengths[0] is -1; it must be in [0, 5], the steps of x",
        "rnn: offsets[2] is 6; offsets must rise from 0 to 5 at most, the rows of x",
        "rnn: offsets[2] is 2; offsets must rise from 0 to 5 at most, the rows of x",
        "rnn: offsets[0] is -1; offsets must rise from 0 to 5 at most, the rows of x"};
    if (!test_cpu_kernels()) ONLY_ON_HOST();
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = leaf(ctx, MLC_F32, mlc_dims3(2, 5, 16), 1), *out[3];
        mlc_tensor *w = leaf(ctx, MLC_F32, mlc_dims2(16, 4), 2);
        for (int k = 0; k < 5; k++) {
            mlc_rnn_desc d = mlc_rnn_desc_make(MLC_RNN_LSTM);
            if (k < 2) d.lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), length[k]);
            else d.offsets = test_tensor(ctx, MLC_I64, mlc_dims1(3), offset[k - 2]);
            mlc_scope_begin(ctx);
            mlc_rnn(k < 2 ? x : mlc_select(x, 0, 0), w, &d, out);
            CHECK(!test_on_host() || out[0] == NULL);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
            CHECK_HAS(mlc_error(ctx), says[k]);
            mlc_error_clear(ctx);
        }
    }
}
