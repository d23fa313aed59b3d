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
    if (CASES[k].b == 0) return;
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
