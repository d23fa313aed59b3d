/* bench_recurrent.h -- cases of recurrent networks; bench.c includes it
 *
 * rnn_: steps of training of character models, and one step of a stream.                        */

typedef struct rnn_shape {
    const char  *name;
    mlc_rnn_kind kind;
    int64_t      layers, embed, hidden, t, batch;
} rnn_shape;

enum { RNN_VOCAB = 65 };

static const rnn_shape rnns[] = {
    { "rnn_lstm_2x256_t64_b32", MLC_RNN_LSTM, 2, 128, 256, 64, 32 },
    { "rnn_gru_2x256_t64_b32", MLC_RNN_GRU, 2, 128, 256, 64, 32 },
    { "rnn_lstm_1x64_t128_b16", MLC_RNN_LSTM, 1, 64, 64, 128, 16 },
    { "rnn_lstm_stream_b1", MLC_RNN_LSTM, 1, 256, 256, 1, 1 },
};
enum { RNNS = sizeof rnns / sizeof *rnns };

static mlc_module *rnn_layers(state *s, const rnn_shape *p)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(p->kind, p->embed, p->hidden);
    d.layers = p->layers;
    return mlc_nn_rnn_ex(s->ctx, &d);
}

/* An embedding, the layers and scores of each place. */
static bool rnn_setup(state *s)
{
    const rnn_shape *p = &rnns[s->bc->op];
    const int64_t    n = p->batch * p->t;
    s->net = mlc_nn_sequential(s->ctx);
    mlc_module_add(s->net, mlc_nn_embedding(s->ctx, RNN_VOCAB, p->embed));
    mlc_module_add(s->net, rnn_layers(s, p));
    mlc_module_add(s->net, mlc_nn_linear(s->ctx, p->hidden, RNN_VOCAB));
    s->a = mlc_reshape(labels_of(s, n, RNN_VOCAB), mlc_dims2(p->batch, p->t));
    s->labels = mlc_reshape(labels_of(s, n, 61), mlc_dims2(p->batch, p->t));
    s->opt = mlc_adamw(s->net, 1e-3);
    return loss_falls(s);
}

/* s->p and s->q are h and c, which each step carries on. */
static mlc_tensor *stream_apply(state *s)
{
    mlc_tensor *state[2] = { s->p, s->q }, *after[2], *y;
    mlc_no_grad_begin(s->ctx);
    const mlc_status st = mlc_rnn_forward(s->net, s->a, NULL, state, &y, after);
    if (st == MLC_OK) mlc_copy_into(s->p, after[0]);
    if (st == MLC_OK) mlc_copy_into(s->q, after[1]);
    mlc_no_grad_end(s->ctx);
    return st == MLC_OK ? y : NULL;
}

/* The states that are carried on: the same steps in one call give the same ones.    */
static bool stream_check(state *s)
{
    enum { STEPS = 3 };
    mlc_tensor *x[STEPS], *y = NULL, *all;
    mlc_scope_begin(s->ctx);
    for (int i = 0; i < STEPS; i++) y = stream_apply(s);
    for (int i = 0; i < STEPS; i++) x[i] = s->a;
    mlc_no_grad_begin(s->ctx);
    all = mlc_forward(s->net, mlc_concat(x, STEPS, 1));
    mlc_no_grad_end(s->ctx);
    double *got = fetch(y), *want = fetch(mlc_slice(all, 1, STEPS - 1, STEPS, 1));
    bool    ok = got && want;
    for (int64_t i = 0; ok && i < mlc_numel(y); i++) ok = near(s, "y", got[i], want[i], 64);
    free(got);
    free(want);
    return mlc_scope_end(s->ctx) == MLC_OK && ok;
}

static bool stream_setup(state *s)
{
    const rnn_shape *p = &rnns[s->bc->op];
    const mlc_dims   h = mlc_dims3(1, 1, p->hidden);
    s->net = rnn_layers(s, p);
    mlc_module_train(s->net, false);
    if (is_half(s) && mlc_module_to(s->net, s->bc->dtype) != MLC_OK) return false;
    s->a = values_in(s, s->bc->dtype, mlc_dims3(1, 1, p->embed), -1, 1, NULL);
    s->p = mlc_zeros(s->ctx, s->bc->dtype, h);
    s->q = mlc_zeros(s->ctx, is_half(s) ? MLC_F32 : s->bc->dtype, h);
    return stream_check(s);
}

static void add_rnn(int op, mlc_dtype dtype)
{
    const rnn_shape *p = &rnns[op];
    const bool       stream = p->t == 1;
    const double     steps = (double)(p->batch * p->t), h = (double)p->hidden;
    const double     gates = p->kind == MLC_RNN_LSTM ? 4 : 3;
    const double     in = (double)p->embed + (double)(p->layers - 1) * h;
    bench_case      *c = add(p->name, dtype, "steps/s", steps);
    const double     weights = gates * h * (in + (double)p->layers * h) + h * RNN_VOCAB;
    if (stream) c->bytes = (double)mlc_dtype_bytes(dtype) * gates * h * (in + h);
    else        c->flops = 6 * weights * steps;
    c->setup = stream ? stream_setup : rnn_setup;
    c->run   = run_apply;
    c->apply = stream ? stream_apply : train_apply;
    c->op    = op;
    c->m     = p->batch;
}

static void add_recurrent(void)
{
    for (int i = 0; i < 2 * RNNS; i++) add_rnn(i / 2, i & 1 ? MLC_BF16 : MLC_F32);
}
