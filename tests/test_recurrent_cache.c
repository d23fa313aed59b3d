/* test_recurrent_cache.c -- tests of section IMPL.NN.CACHE.STATES: networks with recurrent layers
 *
 * Forwards in pieces are compared with one of the whole sequence, sequences with padding with those
 * alone, generated tokens with the logits of whole forwards. Attention is in test_language.c.
 */
#include "mlc_test.h"

enum { VOCAB = 7, IN = 5, HIDDEN = 6, BATCH = 3, T = 9 };

/* Kinds of mlc_rnn_kind, then an LSTM with projection and peepholes, then one with norms. */
enum { KINDS = MLC_RNN_COUNT + 2 };

static mlc_nn_rnn_desc rnn_desc(int kind)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(
        kind < MLC_RNN_COUNT ? (mlc_rnn_kind)kind : MLC_RNN_LSTM, IN, HIDDEN);
    d.layers = 2;
    d.projection = kind == MLC_RNN_COUNT ? 4 : 0;
    d.peepholes = kind == MLC_RNN_COUNT;
    d.layer_norm = kind == MLC_RNN_COUNT + 1;
    return d;
}

static int64_t width_of(int kind) { return kind == MLC_RNN_COUNT ? 4 : HIDDEN; }

/* A language model: tokens [b,t] to logits [b,t,VOCAB]. */
static mlc_module *net_of(mlc_ctx *ctx, int kind)
{
    const mlc_nn_rnn_desc d = rnn_desc(kind);
    mlc_init_desc         uniform = mlc_init_desc_make(MLC_INIT_UNIFORM);
    mlc_module           *net = mlc_nn_sequential(ctx);
    uniform.a = -0.7;
    uniform.b = 0.7;
    CHECK_EQ(mlc_module_add(net, mlc_nn_embedding(ctx, VOCAB, IN)), MLC_OK);
    CHECK_EQ(mlc_module_add(net, mlc_nn_rnn_ex(ctx, &d)), MLC_OK);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, width_of(kind), VOCAB)), MLC_OK);
    CHECK_EQ(mlc_module_init(net, "*", &uniform), MLC_OK);
    mlc_module_train(net, false);
    return net;
}

/* The same with an attention layer after the recurrent one. */
static mlc_module *hybrid_of(mlc_ctx *ctx)
{
    const mlc_nn_rnn_desc   d = rnn_desc(MLC_RNN_LSTM);
    mlc_nn_transformer_desc a = mlc_nn_transformer_desc_make(HIDDEN, 2);
    mlc_module             *net = mlc_nn_sequential(ctx);
    a.causal = a.has_rotary = true;
    a.hidden = 10;
    a.rotary.dims = 2;
    CHECK_EQ(mlc_module_add(net, mlc_nn_embedding(ctx, VOCAB, IN)), MLC_OK);
    CHECK_EQ(mlc_module_add(net, mlc_nn_rnn_ex(ctx, &d)), MLC_OK);
    CHECK_EQ(mlc_module_add(net, mlc_nn_transformer_encoder(ctx, &a, 1)), MLC_OK);
    CHECK_EQ(mlc_module_add(net, mlc_nn_linear(ctx, HIDDEN, VOCAB)), MLC_OK);
    mlc_module_train(net, false);
    return net;
}

static mlc_tensor *part(mlc_tensor *x, int64_t from, int64_t to)
{
    return mlc_slice(x, 1, from, to, 1);
}
static mlc_tensor *row(mlc_tensor *x, int64_t i) { return mlc_slice(x, 0, i, i + 1, 1); }

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                                     mlc_dims0(), false)) : 1e9;
}

static mlc_ctx *ctx_of(int isa, mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.isa = (mlc_isa)isa;
    d.dtype = dtype;
    return test_own(mlc_ctx_create(&d));
}

static mlc_cache *cache_of(mlc_module *net, int64_t capacity)
{
    const mlc_cache_desc d = mlc_cache_desc_make(BATCH, capacity);
    mlc_cache           *c = mlc_cache_create(net, &d);
    if (!CHECK(c != NULL)) printf("  %s\n", mlc_error(mlc_module_ctx(net)));
    return c;
}

/* Products of f64 have an order that does not depend on how many rows there are, but cuBLASLt's. */
static double f64_gap(void) { return test_on_card() ? 1e-13 : 0; }

/* ---- pieces ---------------------------------------------------------------------------------- */

/* dtype: of the cache. */
static void check_pieces(mlc_ctx *ctx, mlc_module *net, mlc_dtype dtype, double tolerance)
{
    static const int64_t ends[] = {4, 5, 8, T};
    mlc_cache_desc       d = mlc_cache_desc_make(BATCH, T);
    d.has_dtype = true;
    d.dtype = dtype;
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1), *y = mlc_forward(net, x);
    mlc_cache  *c = mlc_cache_create(net, &d);
    for (int round = 0; round < 2; round++) {
        int64_t at = 0;
        for (int i = 0; i < 4; at = ends[i++]) {
            mlc_tensor *got = mlc_forward_cached(net, part(x, at, ends[i]), c);
            const double gap = apart(got, part(y, at, ends[i]));
            if (!CHECK(gap <= tolerance)) printf("  piece %d: %g, %s\n", i, gap, mlc_error(ctx));
        }
        CHECK_EQ(mlc_cache_length(c), T);
        CHECK_EQ(mlc_cache_reset(c, 0), MLC_OK);
    }
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(recurrent_cache, pieces_give_what_the_whole_sequence_gives)
{
    FOR_EACH_LEVEL(isa) {
        for (int kind = 0; kind <= KINDS; kind++) {
            mlc_ctx *f64 = ctx_of(isa, MLC_F64), *f32 = ctx_of(isa, MLC_F32);
            check_pieces(f64, kind < KINDS ? net_of(f64, kind) : hybrid_of(f64), MLC_F64,
                         f64_gap());
            mlc_module *net = kind < KINDS ? net_of(f32, kind) : hybrid_of(f32);
            check_pieces(f32, net, MLC_F32, 2e-6);
            check_pieces(f32, net, MLC_BF16, 0.02);
        }
    }
}

TEST(recurrent_cache, autocast_runs_in_pieces)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx, MLC_RNN_LSTM);
    mlc_autocast_begin(ctx, MLC_BF16);
    check_pieces(ctx, net, MLC_F32, 0.02);
    mlc_autocast_end(ctx);
}

/* A cache of states has no end. */
TEST(recurrent_cache, a_stream_needs_no_capacity_and_no_memory)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx, MLC_RNN_GRU);
    mlc_cache  *c = cache_of(net, 0);
    mlc_memory  before, after;
    for (int i = 0; i < 300; i++) {
        if (i == 3) CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
        mlc_scope_begin(ctx);
        CHECK(mlc_forward_cached(net, test_tokens(ctx, mlc_dims2(1, 1), VOCAB, 1), c) != NULL);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(mlc_cache_length(c), 300);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(recurrent_cache, bytes_are_those_of_two_sets_of_states)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *gru = net_of(ctx, MLC_RNN_GRU), *lstm = net_of(ctx, MLC_RNN_LSTM);
    mlc_cache_desc  d = mlc_cache_desc_make(BATCH, 0);
    CHECK_EQ(mlc_cache_bytes(gru, &d), 2 * 2 * BATCH * HIDDEN * 4);
    CHECK_EQ(mlc_cache_bytes(lstm, &d), 2 * 2 * BATCH * HIDDEN * 8);
    d.has_dtype = true;
    d.dtype = MLC_BF16;                /* c stays f32; h takes whole words of 8 bytes */
    CHECK_EQ(mlc_cache_bytes(lstm, &d), 2 * (2 * BATCH * HIDDEN * 4 + 2 * BATCH * HIDDEN * 2));
    d = mlc_cache_desc_make(BATCH, 4);
    CHECK_EQ(mlc_cache_bytes(hybrid_of(ctx), &d),
             2 * 2 * BATCH * HIDDEN * 8 + 2 * BATCH * 4 * HIDDEN * 4 + BATCH * 4 * 4);
}

/* ---- padding and rows ------------------------------------------------------------------------ */

/* Sequence i is row i of x from padding[i] on; the first piece ends at `cut`. */
static void check_padding(mlc_ctx *ctx, mlc_module *net, const int64_t *padding, int64_t cut)
{
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1), *y[2];
    mlc_cache  *c = cache_of(net, T);
    CHECK_EQ(mlc_cache_padding(c, padding, BATCH), MLC_OK);
    y[0] = mlc_forward_cached(net, part(x, 0, cut), c);
    y[1] = mlc_forward_cached(net, part(x, cut, T), c);
    if (!CHECK(y[0] && y[1])) printf("  %s\n", mlc_error(ctx));
    mlc_tensor *all = mlc_concat(y, 2, 1);
    for (int64_t i = 0; i < BATCH; i++) {
        mlc_tensor *alone = mlc_forward(net, part(row(x, i), padding[i], T));
        CHECK(apart(part(row(all, i), padding[i], T), alone) < 1e-12);
    }
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(recurrent_cache, padding_is_no_part_of_a_sequence)
{
    static const int64_t some[] = {2, 0, 5}, most[] = {8, 3, 3}, none[] = {0, 0, 0};
    FOR_EACH_LEVEL(isa) {
        mlc_ctx *ctx = ctx_of(isa, MLC_F64);
        for (int kind = 0; kind <= KINDS; kind++) {
            mlc_module *net = kind < KINDS ? net_of(ctx, kind) : hybrid_of(ctx);
            for (int64_t cut = 1; cut < T; cut += 3) {
                check_padding(ctx, net, some, cut);
                check_padding(ctx, net, most, cut);
                check_padding(ctx, net, none, cut);
            }
        }
    }
}

TEST(recurrent_cache, rows_are_taken_in_another_order)
{
    static const int64_t order[] = {2, 0, 0}, padding[] = {1, 0, 4};
    mlc_ctx *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64);
    for (int kind = 0; kind <= KINDS; kind++) {
        mlc_module *net = kind < KINDS ? net_of(ctx, kind) : hybrid_of(ctx);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1);
        mlc_tensor *rest = part(x, 5, T), *rows[BATCH];
        mlc_cache  *c = cache_of(net, T);
        CHECK_EQ(mlc_cache_padding(c, padding, BATCH), MLC_OK);
        CHECK(mlc_forward_cached(net, part(x, 0, 5), c) != NULL);
        CHECK_EQ(mlc_cache_select(c, order, BATCH), MLC_OK);
        for (int i = 0; i < BATCH; i++) rows[i] = row(rest, order[i]);
        mlc_tensor *y = mlc_forward_cached(net, mlc_concat(rows, BATCH, 0), c);
        for (int i = 0; i < BATCH; i++) {
            const int64_t from = padding[order[i]];
            mlc_tensor   *alone = mlc_forward(net, part(row(x, order[i]), from, T));
            CHECK(apart(row(y, i), part(alone, 5 - from, T - from)) < 1e-12);
        }
        mlc_cache_free(c);
    }
    CHECK_OK(ctx);
}

/* ---- generation ------------------------------------------------------------------------------ */

/* The largest logit of the last place of a whole forward of n tokens. */
static int64_t next_of(mlc_module *net, const int64_t *text, int64_t n, double *log_p)
{
    float       x[VOCAB];
    int64_t     best = 0;
    mlc_ctx    *ctx = mlc_module_ctx(net);
    mlc_tensor *y = mlc_forward(net, mlc_from(ctx, MLC_I64, mlc_dims2(1, n), text));
    mlc_tensor *last = mlc_cast(mlc_log_softmax(mlc_select(y, 1, n - 1), 1), MLC_F32);
    CHECK_EQ(mlc_read(last, x, sizeof x), MLC_OK);
    for (int64_t i = 1; i < VOCAB; i++) if (x[i] > x[best]) best = i;
    if (log_p) for (int i = 0; i < VOCAB; i++) log_p[i] = (double)x[i];
    return best;
}

TEST(recurrent_cache, greedy_tokens_are_those_of_whole_forwards)
{
    static const int64_t prompt[] = {0, 0, 3, 5, 1, 6, 2, 4}, padding[] = {2, 0};
    for (int kind = 0; kind <= KINDS; kind++) {
        mlc_ctx          *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64);
        mlc_module       *net = kind < KINDS ? net_of(ctx, kind) : hybrid_of(ctx);
        mlc_cache        *c = cache_of(net, kind < KINDS ? 0 : 12);
        mlc_generate_desc g = mlc_generate_desc_make(6);
        int64_t           out[12];
        g.temperature = 0;
        g.padding = padding;
        g.out = out;
        CHECK_EQ(mlc_generate(net, c, mlc_from(ctx, MLC_I64, mlc_dims2(2, 4), prompt), &g, NULL,
                              NULL), MLC_OK);
        for (int i = 0; i < 2; i++) {
            int64_t text[16], n = 4 - padding[i];
            memcpy(text, prompt + 4 * i + padding[i], (size_t)n * sizeof *text);
            for (int k = 0; k < 6; k++) {
                text[n] = next_of(net, text, n, NULL);
                CHECK_EQ(out[6 * i + k], text[n]);
                n++;
            }
        }
        mlc_cache_free(c);
        CHECK_OK(ctx);
    }
}

TEST(recurrent_cache, beams_go_on_from_their_own_states)
{
    static const int64_t prompt[] = {3, 5};
    mlc_ctx            *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64);
    mlc_module         *net = net_of(ctx, MLC_RNN_LSTM);
    mlc_cache          *c = cache_of(net, 0);
    const mlc_beam_desc d = mlc_beam_desc_make(5, 3);
    int64_t             out[5], text[8] = {3, 5};
    double              score, sum = 0, log_p[VOCAB];
    CHECK_EQ(mlc_beam_search(net, c, mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), prompt), &d, out,
                             &score), MLC_OK);
    for (int k = 0; k < 5; k++) {
        next_of(net, text, 2 + k, log_p);
        text[2 + k] = out[k];
        sum += log_p[out[k]];
    }
    CHECK_NEAR(score, sum / 5, 1e-5);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Copies x, or does what `acts` says. */
enum { COPIES, FAILS, SPOILS };
typedef struct acting { int acts; } acting;

static mlc_status act(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                      int32_t n_out)
{
    const acting *a = mlc_module_user(m);
    (void)n_in; (void)n_out;
    if (a->acts == FAILS) return mlc_raise(mlc_module_ctx(m), MLC_ERR_ARG, "as asked");
    out[0] = mlc_mul_scalar(in[0], a->acts == SPOILS ? (double)NAN : 1.0);
    return mlc_ctx_status(mlc_module_ctx(m));
}
static const mlc_module_class ACTOR = {"Actor", act, NULL, NULL, 0, NULL};

TEST(recurrent_cache, a_forward_that_fails_leaves_the_states)
{
    static const acting copies = {COPIES};
    mlc_ctx    *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64);
    mlc_module *net = net_of(ctx, MLC_RNN_LSTM);
    mlc_module *actor = mlc_module_create(ctx, &ACTOR, &copies, sizeof copies);
    CHECK_EQ(mlc_module_add(net, actor), MLC_OK);
    mlc_module_train(net, false);
    mlc_tensor       *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1), *y = mlc_forward(net, x);
    mlc_cache        *c = cache_of(net, T);
    mlc_generate_desc g = mlc_generate_desc_make(2);
    acting           *a = mlc_module_user(actor);
    for (int64_t at = 0; at < T; at += 3) {
        a->acts = FAILS;
        CHECK(mlc_forward_cached(net, part(x, at, at + 3), c) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "as asked");
        a->acts = SPOILS;              /* the forward is done, and its first draw fails */
        CHECK_EQ(mlc_generate(net, c, part(x, at, at + 3), &g, NULL, NULL), MLC_ERR_VALUE);
        CHECK_ERROR(ctx, MLC_ERR_VALUE, "not all numbers");
        CHECK_EQ(mlc_cache_length(c), at);
        a->acts = COPIES;
        CHECK(apart(mlc_forward_cached(net, part(x, at, at + 3), c), part(y, at, at + 3)) <=
              f64_gap());
    }
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* Runs its child twice. */
static mlc_status run_twice(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                            int32_t n_out)
{
    mlc_module *child = mlc_module_child(m, 0);
    (void)n_in; (void)n_out;
    out[0] = mlc_add(mlc_forward(child, in[0]), mlc_forward(child, in[0]));
    return mlc_ctx_status(mlc_module_ctx(m));
}
/* Gives its child lengths. */
static mlc_status run_lengths(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                              int32_t n_out)
{
    mlc_tensor *n = mlc_full(mlc_module_ctx(m), MLC_I64, mlc_dims1(in[0]->shape[0]), 1);
    (void)n_in; (void)n_out;
    return mlc_rnn_forward(mlc_module_child(m, 0), in[0], n, NULL, out, NULL);
}
/* Gives its child every second row. */
static mlc_status run_fewer(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                            int32_t n_out)
{
    (void)n_in; (void)n_out;
    out[0] = mlc_forward(mlc_module_child(m, 0), mlc_slice(in[0], 1, 0, in[0]->shape[1], 2));
    return mlc_ctx_status(mlc_module_ctx(m));
}

TEST(recurrent_cache, what_cannot_be_cached_is_refused)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_cache_desc  d = mlc_cache_desc_make(2, 4);
    mlc_nn_rnn_desc both = rnn_desc(MLC_RNN_GRU), first = both;
    both.bidirectional = true;
    first.time_first = true;
    CHECK(mlc_cache_create(mlc_nn_rnn_ex(ctx, &both), &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a GRU in the module is bidirectional");
    CHECK(mlc_cache_create(mlc_nn_rnn_ex(ctx, &first), &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "has time_first");
    mlc_module *ways = mlc_nn_bidirectional(ctx, mlc_nn_gru(ctx, IN, 2), mlc_nn_gru(ctx, IN, 2));
    CHECK(mlc_cache_create(ways, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a Bidirectional in the module");
    CHECK(mlc_cache_create(mlc_nn_linear(ctx, 2, 2), &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a Linear without attention or recurrent layers");
    d.capacity = 0;
    CHECK(mlc_cache_create(hybrid_of(ctx), &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "capacity is 0");
    d.batch = INT64_MAX / 2;
    CHECK(mlc_cache_create(net_of(ctx, MLC_RNN_GRU), &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "more than memory has");
    d.batch = 0;
    CHECK(mlc_cache_create(net_of(ctx, MLC_RNN_GRU), &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch is 0");
}

TEST(recurrent_cache, calls_that_do_not_fit_are_refused)
{
    static const struct {
        mlc_status (*run)(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                          int32_t n_out);
        mlc_status  st;
        const char *says;
    } bad[] = {
        {run_twice, MLC_ERR_STATE, "runs twice in one forward"},
        {run_lengths, MLC_ERR_ARG, "lengths in its call"},
        {run_fewer, MLC_ERR_SHAPE, "2 sequences of 2 rows"},
    };
    static const int64_t padding[] = {1, 0};
    for (int i = 0; i < 3; i++) {
        mlc_ctx               *ctx = test_ctx();
        const mlc_module_class cls = {"Wrapper", bad[i].run, NULL, NULL, 0, NULL};
        mlc_module            *m = mlc_module_create(ctx, &cls, NULL, 0);
        CHECK_EQ(mlc_module_add(m, mlc_nn_gru(ctx, IN, HIDDEN)), MLC_OK);
        mlc_cache  *c = cache_of(m, 0);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 4, IN), 1, -1, 1);
        CHECK_EQ(mlc_cache_padding(c, padding, 2), MLC_OK);
        CHECK(mlc_forward_cached(m, x, c) == NULL);
        CHECK_ERROR(ctx, bad[i].st, bad[i].says);
        mlc_cache_free(c);
    }
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx, MLC_RNN_GRU);
    mlc_cache  *c = cache_of(net, 0);
    CHECK(mlc_forward_cached(net, test_tokens(ctx, mlc_dims2(2, 4), VOCAB, 1), c) != NULL);
    CHECK_EQ(mlc_cache_reset(c, 2), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the states after 4 places alone, not those after 2");
    CHECK_EQ(mlc_cache_reset(c, 4), MLC_OK);
    CHECK(mlc_forward_cached(net, test_tokens(ctx, mlc_dims2(3, 1), VOCAB, 1), c) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "the cache's 2 sequences");
    CHECK_EQ(mlc_cache_length(c), 4);
    mlc_cache_free(c);
}
