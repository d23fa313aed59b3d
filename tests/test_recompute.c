/* test_recompute.c -- tests of section IMPL.RECOMPUTE: gradients, statistics and draws are those of
 * a plain run, bit by bit; memory falls; what cannot run twice is refused */
#include "mlc_test.h"
#include "resnet20.h"

#define MOST 300000                    /* numbers that a run leaves                            */

/* All that a run leaves: losses, gradients, buffers, and where the generator stands.          */
typedef struct left {
    double  v[MOST];
    int64_t n;
} left;

static void leave(left *l, mlc_tensor *t)
{
    if (!CHECK(t != NULL) || !CHECK(l->n + mlc_numel(t) <= MOST)) return;
    if (test_read(t, l->v + l->n)) l->n += mlc_numel(t);
}

static void leave_net(left *l, mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) {
        if (it.buffer) leave(l, it.tensor);
        else if (it.trainable) leave(l, mlc_grad(it.tensor));
    }
    l->v[l->n++] = (double)mlc_ctx_rng(mlc_module_ctx(net)).stream;
}

static void same(const left *a, const left *b)
{
    int64_t at = 0;
    CHECK(a->n > 1);
    CHECK_EQ(a->n, b->n);
    while (at < a->n && memcmp(&a->v[at], &b->v[at], sizeof a->v[at]) == 0) at++;
    CHECK_EQ(at, a->n);
}

/* ---- modules: a plain run and one with marks ------------------------------------------------ */

/* How a net is made, and what it takes.                                                       */
typedef struct kind {
    mlc_module *(*make)(mlc_ctx *ctx, bool marked);
    mlc_dims     x;
    bool         tokens;
    mlc_dtype    autocast;             /* f32: none                                            */
    mlc_dtype    dtype;
    int32_t      threads;
    size_t       block;                /* bytes of a fixed block, or 0                         */
} kind;

static mlc_module *marked_if(mlc_ctx *ctx, mlc_module *m, bool marked)
{
    return marked ? mlc_nn_recompute(ctx, m) : m;
}

static mlc_module *make_mlp(mlc_ctx *ctx, bool marked)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) {
        mlc_module *part = mlc_nn_sequential(ctx);
        mlc_module_add(part, mlc_nn_linear(ctx, 7, 19));
        mlc_module_add(part, i == 1 ? mlc_nn_gelu(ctx) : mlc_nn_relu(ctx));
        mlc_module_add(part, mlc_nn_dropout(ctx, 0.3));
        mlc_module_add(part, mlc_nn_linear(ctx, 19, 7));
        mlc_module_add(net, marked_if(ctx, part, marked && i != 1));
    }
    return net;
}

static mlc_module *make_encoder(mlc_ctx *ctx, bool marked)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 2);
    d.hidden = 16;
    d.act = MLC_ACT_GELU;
    mlc_module *net = mlc_nn_transformer_encoder(ctx, &d, 3);
    if (marked) CHECK_EQ(mlc_module_recompute(net, 1), MLC_OK);
    return net;
}

static mlc_module *make_conv(mlc_ctx *ctx, bool marked)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) {
        mlc_module *body = mlc_nn_sequential(ctx);
        mlc_module_add(body, mlc_nn_conv2d(ctx, 3, 3, 3, 1, 1));
        mlc_module_add(body, mlc_nn_batch_norm(ctx, 3));
        mlc_module_add(body, mlc_nn_relu(ctx));
        mlc_module_add(body, mlc_nn_conv2d(ctx, 3, 3, 3, 1, 1));
        mlc_module_add(body, mlc_nn_batch_norm(ctx, 3));
        mlc_module_add(net, mlc_nn_residual(ctx, body, NULL, true));
    }
    if (marked) CHECK_EQ(mlc_module_recompute(net, 2), MLC_OK);
    return net;
}

static mlc_module *make_gpt(mlc_ctx *ctx, bool marked)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(11, 8, 3, 8, 2);
    d.positions = MLC_POSITIONS_ROTARY;
    d.layer.dropout = 0.1;
    mlc_module *net = mlc_nn_gpt(ctx, &d);
    if (marked) CHECK_EQ(mlc_module_recompute(net, 1), MLC_OK);
    return net;
}

/* Marked within marked within marked.                                                         */
static mlc_module *make_nested(mlc_ctx *ctx, bool marked)
{
    mlc_module *net = make_mlp(ctx, marked), *more = mlc_nn_sequential(ctx);
    mlc_module_add(more, marked_if(ctx, net, marked));
    mlc_module_add(more, mlc_nn_linear(ctx, 7, 7));
    return marked_if(ctx, more, marked);
}

static int32_t g_segment;              /* of make_flat                                         */

/* A sequence whose children are no blocks; some run in the pass of the one before.            */
static mlc_module *make_flat(mlc_ctx *ctx, bool marked)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) {
        mlc_module_add(net, mlc_nn_conv2d(ctx, 3, 3, 3, 1, 1));
        mlc_module_add(net, mlc_nn_batch_norm(ctx, 3));
        mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_module_add(net, mlc_nn_dropout(ctx, 0.2));
    }
    mlc_module_add(net, mlc_nn_flatten(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 75, 9));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    if (marked) CHECK_EQ(mlc_module_recompute_segments(net, g_segment), MLC_OK);
    return net;
}

/* Two passes, whose gradients add up.                                                         */
static void run(const kind *k, bool marked, left *l)
{
    mlc_ctx_desc d = test_desc();
    d.threads = k->threads;
    d.dtype = k->dtype;
    d.seed = 5;
    void *block = k->block ? malloc(k->block) : NULL;
    d.memory = block;
    d.memory_bytes = k->block;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = k->make(ctx, marked);
    l->n = 0;
    for (uint64_t pass = 0; pass < 2 && CHECK_OK(ctx); pass++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, k->dtype, k->x, 3 + pass, k->tokens ? 0.0 : -1.0,
                                  k->tokens ? 11.0 : 1.0);
        if (k->tokens) x = mlc_cast(x, MLC_I64);
        else mlc_set_requires_grad(x, true);
        if (k->autocast != MLC_F32) mlc_autocast_begin(ctx, k->autocast);
        mlc_tensor *y = mlc_forward(net, x);
        if (k->autocast != MLC_F32) mlc_autocast_end(ctx);
        mlc_tensor *loss = mlc_mean_all(mlc_square(mlc_cast(y, k->dtype)));
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        leave(l, loss);
        if (!k->tokens) leave(l, mlc_grad(x));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    leave_net(l, net);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    free(block);
}

static void same_bits(kind k)
{
    left *plain = (left *)calloc(2, sizeof *plain), *again = plain + 1;
    run(&k, false, plain);
    run(&k, true, again);
    same(plain, again);
    free(plain);
}

static void all_kinds(mlc_module *(*make)(mlc_ctx *ctx, bool marked), mlc_dims x, bool tokens)
{
    static const struct { mlc_dtype autocast, dtype; int32_t threads; } how[] = {
        {MLC_F32, MLC_F32, 1}, {MLC_F32, MLC_F32, 3}, {MLC_F32, MLC_F64, 1},
        {MLC_BF16, MLC_F32, 1}, {MLC_F16, MLC_F32, 2},
    };
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        const kind k = {make, x, tokens, how[i].autocast, how[i].dtype, how[i].threads, 0};
        same_bits(k);
    }
}

TEST(recompute, mlp_has_the_bits_of_a_plain_run)
{
    all_kinds(make_mlp, mlc_dims2(5, 7), false);
}

TEST(recompute, encoder_with_dropout_has_the_bits_of_a_plain_run)
{
    all_kinds(make_encoder, mlc_dims3(2, 5, 8), false);
}

TEST(recompute, batch_norm_updates_its_statistics_once)
{
    all_kinds(make_conv, mlc_dims4(2, 3, 9, 8), false);
}

TEST(recompute, gpt_gets_its_places_again)
{
    all_kinds(make_gpt, mlc_dims2(2, 6), true);
}

TEST(recompute, segments_have_the_bits_of_a_plain_run)
{
    static const int32_t lengths[] = {1, 2, 3, 4, 7, 14, 15, 40};
    const kind           f32 = {make_flat, mlc_dims4(2, 3, 5, 5), false, MLC_F32, MLC_F32, 2, 0};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        g_segment = lengths[i];
        same_bits(f32);
    }
    g_segment = 4;
    all_kinds(make_flat, mlc_dims4(2, 3, 5, 5), false);
}

TEST(recompute, nests)
{
    all_kinds(make_nested, mlc_dims2(5, 7), false);
}

TEST(recompute, works_in_a_fixed_block)
{
    ONLY_ON_HOST();
    const kind k = {make_nested, mlc_dims2(5, 7), false, MLC_BF16, MLC_F32, 1, 400000};
    same_bits(k);
}

/* ---- pieces --------------------------------------------------------------------------------- */

typedef struct mixed { mlc_tensor *w, *outside; int runs, again; int way; } mixed;

/* Outputs: a product, whole numbers, the input itself, and a view of what the first is made of. */
static mlc_status mix(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                      mlc_tensor **out, int32_t n_out)
{
    mixed *u = (mixed *)user;
    u->runs++;
    u->again += mlc_recomputing(ctx);
    CHECK_EQ(n_in, 2);
    CHECK_EQ(n_out, 4);
    mlc_tensor *h = mlc_dropout(mlc_tanh(mlc_matmul(in[0], u->w)), 0.25);
    mlc_relu_(h);                      /* in place, of what was made here                      */
    out[0] = mlc_mul(h, mlc_add(in[1], u->outside));
    out[1] = mlc_argmax(h, 1, false);
    out[2] = in[0];
    out[3] = mlc_reshape(h, mlc_dims1(12));
    return mlc_ctx_status(ctx);
}

/* way 0: a call; 1: a piece; 2: a piece in a piece.                                           */
static mlc_status mix_call(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    mixed *u = (mixed *)user;
    if (u->way == 0) return mix(ctx, user, in, n_in, out, n_out);
    return mlc_recompute(ctx, mix, user, in, n_in, out, n_out);
}

static void mix_run(int way, left *l)
{
    mlc_ctx_desc d = test_desc();
    d.seed = 9;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
    mixed       u = {NULL, NULL, 0, 0, way};
    mlc_tensor *out[4], *in[2], *w;
    l->n = 0;
    mlc_scope_begin(ctx);
    in[0] = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, -1.0, 1.0);
    in[1] = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 2, -1.0, 1.0);
    w = u.w = test_rand(ctx, MLC_F32, mlc_dims2(4, 4), 3, -1.0, 1.0);
    mlc_set_requires_grad(in[0], true);
    mlc_set_requires_grad(w, true);
    u.outside = mlc_exp(mlc_select(w, 0, 1));
    if (way < 2) mix_call(ctx, &u, in, 2, out, 4);
    else mlc_recompute(ctx, mix_call, &u, in, 2, out, 4);
    CHECK_OK(ctx);
    CHECK(mlc_requires_grad(out[0]) && !mlc_requires_grad(out[1]) && out[2] == in[0]);
    /* The first output is used twice, as are the input and the weight. */
    mlc_tensor *y = mlc_add(mlc_mul(out[0], mlc_add(out[0], out[2])),
                            mlc_reshape(mlc_square(out[3]), mlc_dims2(3, 4)));
    mlc_tensor *loss = mlc_sum_all(mlc_matmul(y, w));
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    leave(l, loss);
    leave(l, mlc_grad(in[0]));
    leave(l, mlc_grad(w));
    leave(l, mlc_cast(out[1], MLC_F32));
    l->v[l->n++] = (double)mlc_ctx_rng(ctx).stream;
    CHECK_EQ(u.runs, way == 0 ? 1 : way == 1 ? 2 : 3);
    CHECK_EQ(u.again, u.runs - 1);
    CHECK(!mlc_recomputing(ctx));
    CHECK(mlc_backward(loss) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "a second time through");
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(recompute, piece_of_several_outputs_and_tensors_from_outside)
{
    left *l = (left *)calloc(3, sizeof *l);
    for (int way = 0; way < 3; way++) mix_run(way, &l[way]);
    same(&l[0], &l[1]);
    same(&l[0], &l[2]);
    free(l);
}

/* y = x w of two w, of which the first is changed in place in ways that are refused.           */
typedef struct writes { mlc_tensor *w, *count; int how; } writes;

static mlc_status write_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    const writes *u = (const writes *)user;
    (void)n_in; (void)n_out;
    out[0] = mlc_matmul(in[0], u->w);
    if (u->how == 1) mlc_add_scalar_(in[0], 1.0);
    if (u->how == 2) mlc_add_scalar_(u->count, 1.0);
    if (u->how == 3) mlc_copy_into(u->w, mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 3)));
    if (u->how == 4 && mlc_recomputing(ctx)) out[0] = mlc_sum(out[0], mlc_dims1(0), false);
    if (u->how == 5) out[0] = NULL;
    if (u->how == 6) return MLC_ERR_IO;
    if (u->how == 7) mlc_scope_begin(ctx);
    if (u->how == 8 && mlc_recomputing(ctx)) out[0] = in[0];
    if (u->how == 9) {                 /* as it is meant                                       */
        mlc_no_grad_begin(ctx);
        if (!mlc_recomputing(ctx)) mlc_add_scalar_(u->count, 1.0);
        mlc_no_grad_end(ctx);
    }
    return MLC_OK;
}

TEST(recompute, what_changes_in_place_is_refused)
{
    static const struct { mlc_status st; const char *says; } want[12] = {
        {MLC_OK, ""},
        {MLC_ERR_STATE, "changes [3,3], which was there before it, in place"},
        {MLC_ERR_STATE, "changes [1], which was there before it, in place"},
        {MLC_ERR_STATE, "[3,3], which the piece reads and which was there before"},
        {MLC_ERR_STATE, "output 1 of the piece was f32 [3,3], the second run made f32 [3]"},
        {MLC_ERR_ARG, "left output 1 NULL"},
        {MLC_ERR_IO, "the piece failed"},
        {MLC_ERR_STATE, "end in it what begins in it"},
        {MLC_ERR_STATE, "or nothing that a gradient flows through"},
        {MLC_OK, ""},
        {MLC_ERR_VALUE, "backward of recompute: saved tensor [3,3] was overwritten"},
        {MLC_ERR_STATE, "[3,3], which the piece reads and which was there before"},
    };
    mlc_ctx *ctx = test_ctx();
    for (int how = 0; how < 12; how++) {
        mlc_scope_begin(ctx);
        writes      u = {test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, -1.0, 1.0),
                         mlc_zeros(ctx, MLC_F32, mlc_dims1(1)), how};
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 2, -1.0, 1.0), *y = NULL;
        mlc_set_requires_grad(x, how != 1);
        mlc_set_requires_grad(u.w, true);
        mlc_recompute(ctx, write_piece, &u, &x, 1, &y, 1);
        if (how == 7) CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
        if (how >= 10) mlc_copy_into(how == 10 ? x : u.w, mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 3)));
        if (y) mlc_backward(mlc_sum_all(y));
        if (want[how].st == MLC_OK) {
            double n;
            CHECK(test_read(u.count, &n));
            CHECK_EQ((int64_t)n, how == 9);
            CHECK_OK(ctx);
        } else if (how == 7) {         /* its scope's end has cleared the error                */
            CHECK_HAS(mlc_error(ctx), want[how].says);
        } else {
            CHECK_ERROR(ctx, want[how].st, want[how].says);
        }
        CHECK(!mlc_recomputing(ctx));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* ---- what is not recorded, and what is given back ------------------------------------------- */

TEST(recompute, records_one_operation_and_nothing_without_gradients)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_recompute(ctx, make_mlp(ctx, false));
    mlc_memory  a, b;
    for (int how = 0; how < 4; how++) {          /* training, eval, no-grad, frozen            */
        if (how == 3) mlc_module_freeze(net, NULL, true);
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(64, 7), 2, -1.0, 1.0);
        mlc_module_build(net);
        mlc_memory_info(ctx, &a);
        mlc_module_train(net, how != 1);
        if (how == 2) mlc_no_grad_begin(ctx);
        mlc_tensor *y = mlc_forward(net, x);
        if (how == 2) mlc_no_grad_end(ctx);
        mlc_memory_info(ctx, &b);
        CHECK_EQ(mlc_requires_grad(y), how < 2);
        if (how != 1)                  /* y alone, rounded up to its size class                */
            CHECK(b.now[MLC_MEM_ACTIVATION] - a.now[MLC_MEM_ACTIVATION] <= 64 * 7 * 4 * 5 / 4);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* Most bytes of activations in a step of six blocks, marked by every or a budget.               */
static int64_t gpt_peak(int32_t every, int64_t budget)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(17, 32, 6, 32, 2);
    mlc_module     *net = mlc_nn_gpt(ctx, &d);
    CHECK_EQ(mlc_module_recompute(net, every), MLC_OK);
    if (budget) CHECK_EQ(mlc_module_recompute_budget(net, mlc_dims2(4, 32), budget), MLC_OK);
    mlc_memory m, before;
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(4, 33), 3, 0.0, 17.0), MLC_I64);
    mlc_tensor *now = mlc_contiguous(mlc_slice(x, 1, 0, 32, 1));
    mlc_tensor *next = mlc_contiguous(mlc_slice(x, 1, 1, 33, 1));
    mlc_memory_info(ctx, &before);
    mlc_memory_peak_reset(ctx);
    mlc_tensor *y = mlc_reshape(mlc_forward(net, now), mlc_dims2(128, 17));
    CHECK_EQ(mlc_backward(mlc_cross_entropy(y, mlc_reshape(next, mlc_dims1(128)))), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return m.top[MLC_MEM_ACTIVATION] - before.now[MLC_MEM_ACTIVATION];
}

TEST(recompute, activations_of_six_blocks_fall_by_60_percent)
{
    const int64_t plain = gpt_peak(0, 0), again = gpt_peak(1, 0);
    CHECK(again > 0);
    CHECK(again * 10 <= plain * 4);
}

/* Logits' gradients and the loss, which are not the net's, take what 16384 bytes have room for. */
TEST(recompute, budget_is_kept)
{
    const int64_t plain = gpt_peak(0, 0), all = gpt_peak(1, 0), loss = 16384;
    int64_t       last = plain;
    for (int i = 1; i < 5; i++) {
        const int64_t budget = plain - (plain - all) * i / 5, peak = gpt_peak(0, budget);
        CHECK(peak <= budget + loss);
        CHECK(peak <= last);
        last = peak;
    }
    CHECK(last < plain);
    CHECK_EQ(gpt_peak(1, 2 * plain), plain);     /* marks that it does not need go             */
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = make_mlp(ctx, true);
    CHECK(mlc_module_recompute_budget(net, mlc_dims2(64, 7), 100) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "more than the 100 there may be");
    CHECK(mlc_module_recompute_budget(net, mlc_dims2(64, 6), 100) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "linear");
    CHECK(mlc_module_recompute_budget(net, mlc_dims2(64, 7), INT64_MIN) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bytes is -9223372036854775808");
    if (sizeof(void *) == 8) {         /* more bytes than can be counted                       */
        CHECK(mlc_module_recompute_budget(net, mlc_dims2((int64_t)1 << 54, 7), 100) != MLC_OK);
        CHECK_ERROR(ctx, MLC_ERR_NOMEM, "out of memory");
    }
    CHECK_EQ(mlc_module_recompute_budget(NULL, mlc_dims2(64, 6), 100), MLC_ERR_ARG);
}

/* ---- marks for a budget ---------------------------------------------------------------------- */

/* A net of a budget's tests, and its input. */
typedef struct goal {
    const char *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    mlc_dims     x;
    bool         tokens;
} goal;

static mlc_module *goal_gpt(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(17, 16, 6, 32, 2);
    d.layer.dropout = 0.1;
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *goal_encoder(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(16, 2);
    d.hidden = 48;
    return mlc_nn_transformer_encoder(ctx, &d, 5);
}

static const goal GOALS[] = {
    {"gpt", goal_gpt, {{3, 16}, 2}, true},
    {"resnet20", resnet20, {{2, 3, 32, 32}, 4}, false},
    {"encoder", goal_encoder, {{4, 12, 16}, 3}, false},
};
enum { N_GOALS = sizeof GOALS / sizeof GOALS[0], BUDGETS = 20 };

/* A way to take a step: the marks before it, and a budget, or 0 for none. */
typedef struct way {
    const goal *of;
    bool        low;                   /* under autocast to bf16                               */
    int32_t     threads, every;
    int64_t     budget;
} way;

/* What a step took for activations, and how much of that the loss alone does. */
typedef struct took {
    int64_t    peak, loss;
    mlc_status st;                     /* of mlc_module_recompute_budget                       */
    int64_t    need, more;             /* if it was refused, as its message says               */
} took;

static mlc_tensor *goal_loss(mlc_tensor *y)
{
    return mlc_mean_all(mlc_square(mlc_cast(y, MLC_F32)));
}

static int64_t activations(mlc_ctx *ctx, bool peak)
{
    mlc_memory m;
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    return peak ? m.top[MLC_MEM_ACTIVATION] : m.now[MLC_MEM_ACTIVATION];
}

/* What the loss takes beside its input, forward and backward, on a leaf like y. */
static int64_t loss_takes(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims)
{
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_zeros(ctx, dtype, dims);
    mlc_set_requires_grad(y, true);
    mlc_memory_peak_reset(ctx);
    const int64_t before = activations(ctx, false);
    CHECK_EQ(mlc_backward(goal_loss(y)), MLC_OK);
    const int64_t bytes = activations(ctx, true) - before;
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return bytes;
}

/* The step; x is made before, so that it is not in the peak. */
static void goal_step(const way *w, mlc_ctx *ctx, mlc_module *net, took *k, left *l)
{
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, w->of->x, 3, w->of->tokens ? 0.0 : -1.0,
                              w->of->tokens ? 17.0 : 1.0);
    if (w->of->tokens) x = mlc_cast(x, MLC_I64);
    mlc_memory_peak_reset(ctx);
    const int64_t before = activations(ctx, false);
    if (w->low) mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *y = mlc_forward(net, x);
    if (w->low) mlc_autocast_end(ctx);
    mlc_tensor *loss = goal_loss(y);
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    k->peak = activations(ctx, true) - before;
    leave(l, loss);
    const mlc_dtype dtype = y->dtype;
    const mlc_dims dims = mlc_dims_of(y->ndim, y->shape);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    k->loss = loss_takes(ctx, dtype, dims);
}

static took take(const way *w, left *l)
{
    mlc_ctx_desc d = test_desc();
    d.threads = w->threads;
    d.seed = 5;
    mlc_ctx    *ctx = mlc_ctx_create(&d);
    mlc_module *net = w->of->make(ctx);
    took        k = {0, 0, MLC_OK, 0, 0};
    long long   need = 0, more = 0, most = 0;
    CHECK_EQ(mlc_module_recompute(net, w->every), MLC_OK);
    if (w->low) mlc_autocast_begin(ctx, MLC_BF16);
    if (w->budget) k.st = mlc_module_recompute_budget(net, w->of->x, w->budget);
    if (w->low) mlc_autocast_end(ctx);
    if (k.st != MLC_OK) {
        const char *at = strstr(mlc_error(ctx), "activations take ");
        if (CHECK(at != NULL))
            CHECK_EQ(sscanf(at, "activations take %lld bytes, %lld more than the %lld", &need,
                            &more, &most), 3);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "with all that helps");
        CHECK_EQ((int64_t)most, w->budget);
        CHECK_EQ((int64_t)(need - more), w->budget);
        CHECK(more > 0);
    }
    k.need = need;
    k.more = more;
    l->n = 0;
    goal_step(w, ctx, net, &k, l);
    leave_net(l, net);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return k;
}

/* One budget: it is kept, or the marks are as before, which are every second. */
static took one_budget(way w, int64_t budget, const took *half, const took *all, left *l)
{
    w.budget = budget;
    const took k = take(&w, &l[1]);
    same(&l[0], &l[1]);
    bool fine = k.st == MLC_OK ? CHECK(k.peak <= budget + k.loss) : CHECK_EQ(k.peak, half->peak);
    if (k.st != MLC_OK) fine = CHECK(llabs(k.need - all->peak) * 8 <= all->peak) && fine;
    if (!fine)
        printf("  %s%s, %lld bytes: peak %lld, the loss takes %lld, need %lld\n", w.of->name,
               w.low ? ", bf16" : "", (long long)budget, (long long)k.peak, (long long)k.loss,
               (long long)k.need);
    return k;
}

/* From 25 % to 110 % of a plain step's bytes. A refusal says what is enough, to the byte. */
static void budgets(const goal *of, bool low, left *l)
{
    const int64_t by = test_stride(9);
    way        w = {of, low, 2, 0, 0};
    const took plain = take(&w, &l[0]);
    w.every = 1;
    const took all = take(&w, &l[1]);
    same(&l[0], &l[1]);
    w.every = 2;
    const took half = take(&w, &l[1]);
    same(&l[0], &l[1]);
    CHECK(all.peak < half.peak && half.peak < plain.peak);
    for (int64_t i = 0; i < BUDGETS; i += by) {
        const int64_t budget = plain.peak * (2500 + 8500 * i / (BUDGETS - 1)) / 10000;
        const took    k = one_budget(w, budget, &half, &all, l);
        CHECK(k.st == MLC_OK || budget < all.peak);
        if (budget >= plain.peak) CHECK_EQ(k.peak, plain.peak);
    }
    const took none = one_budget(w, 1000, &half, &all, l);
    CHECK_EQ(one_budget(w, none.need, &half, &all, l).st, MLC_OK);
    CHECK_EQ(one_budget(w, none.need - 1, &half, &all, l).more, 1);
    w.budget = plain.peak * 6 / 10;
    for (w.threads = 1; w.threads <= 3; w.threads += 2) {
        CHECK(take(&w, &l[1]).peak < plain.peak);
        same(&l[0], &l[1]);
    }
}

TEST(recompute, budgets_are_kept_or_say_what_is_missing)
{
    left *l = (left *)calloc(2, sizeof *l);
    for (int i = 0; i < 2 * N_GOALS; i++) budgets(&GOALS[i / 2], i & 1, l);
    free(l);
}

TEST(recompute, marks)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = make_mlp(ctx, false), *alone = mlc_nn_relu(ctx);
    CHECK_EQ(mlc_module_recompute(net, 2), MLC_OK);
    CHECK_EQ(mlc_module_recompute(net, 0), MLC_OK);
    CHECK(mlc_module_recompute(net, -1) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "every is -1");
    CHECK(mlc_module_recompute(alone, 1) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "has no children");
    CHECK(mlc_nn_recompute(ctx, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "body is NULL");
    CHECK(mlc_nn_recompute(NULL, net) == NULL);
    CHECK_EQ(mlc_module_recompute(NULL, 1), MLC_ERR_ARG);
    CHECK(!mlc_recomputing(NULL));
}

/* The second run is in the modes of the first; freed modules are noticed.                     */
TEST(recompute, modules_that_change_between_the_runs)
{
    mlc_ctx    *ctx = test_ctx();
    double      a[35], b[35];
    for (int how = 0; how < 4; how++) {          /* plain, eval before backward, added, freed  */
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_module_add(net, mlc_nn_dropout(ctx, 0.5));
        mlc_module_add(net, mlc_nn_tanh(ctx));
        mlc_module_train(mlc_module_child(net, 0), true);
        mlc_seed(ctx, 4);
        if (how) mlc_nn_recompute(ctx, net);
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 2, -1.0, 1.0);
        mlc_set_requires_grad(x, true);
        mlc_tensor *loss = mlc_sum_all(mlc_square(mlc_forward(net, x)));
        if (how == 1) mlc_module_train(net, false);
        if (how == 2) mlc_module_add(net, mlc_nn_relu(ctx));
        if (how == 3) mlc_module_free(net);
        mlc_backward(loss);
        if (how == 2) CHECK_ERROR(ctx, MLC_ERR_STATE, "added or freed below Sequential");
        if (how == 3) CHECK_ERROR(ctx, MLC_ERR_STATE, "a second time through 'recompute'");
        if (how < 2) CHECK(test_read(mlc_grad(x), how ? b : a));
        if (how == 1) CHECK(!mlc_module_is_training(mlc_module_child(net, 0)));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(memcmp(a, b, sizeof a) == 0);
}

static bool grow(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    mlc_module *net = (mlc_module *)user;
    (void)m; (void)out; (void)n_out;
    for (int i = 0; i < 50; i++) mlc_module_add(net, mlc_nn_tanh(mlc_module_ctx(net)));
    return true;
}

/* Modes have the places of the modules that there were before.                                 */
TEST(recompute, a_module_that_is_added_in_its_forward_is_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *inner = mlc_nn_sequential(ctx);
    mlc_module_add(net, inner);
    mlc_module_add(inner, mlc_nn_tanh(ctx));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_nn_recompute(ctx, net);
    mlc_module_hook(mlc_module_child(net, 1), grow, inner);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 2, -1.0, 1.0);
    mlc_set_requires_grad(x, true);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "added or freed below Sequential in its forward");
    mlc_module_hook(mlc_module_child(net, 1), NULL, NULL);
    CHECK(mlc_module_is_training(mlc_module_child(inner, 50)));
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_forward(net, x))), MLC_OK);
}

/* Where the rules are is used for others before backward.                                      */
TEST(recompute, rules_of_autocast_are_those_of_the_first_run)
{
    double grad[2][35];
    for (int marked = 0; marked < 2; marked++) {
        mlc_ctx          *ctx = test_ctx();
        mlc_module       *net = mlc_nn_sequential(ctx);
        char              name[] = "linear";
        mlc_autocast_rule rule = {name, MLC_F32};
        mlc_autocast_desc d = mlc_autocast_desc_make(MLC_BF16);
        d.rules = &rule;
        d.n_rules = 1;
        mlc_seed(ctx, 4);
        mlc_module_add(net, mlc_nn_linear(ctx, 7, 7));
        mlc_module_add(net, mlc_nn_tanh(ctx));
        if (marked) mlc_nn_recompute(ctx, net);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 2, -1.0, 1.0);
        mlc_set_requires_grad(x, true);
        CHECK_EQ(mlc_autocast_begin_ex(ctx, &d), MLC_OK);
        mlc_tensor *y = mlc_forward(net, x);
        CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        strcpy(name, "matmul");
        rule.dtype = MLC_BF16;
        CHECK_EQ(mlc_backward(mlc_sum_all(mlc_square(y))), MLC_OK);
        CHECK(test_read(mlc_grad(x), grad[marked]));
        CHECK_OK(ctx);
    }
    CHECK(memcmp(grad[0], grad[1], sizeof grad[0]) == 0);
}

/* An optimizer that steps inside backward, and gradients of shared weights, wait for both uses. */
static void grad_ready(void *user, const char *name, mlc_tensor *grad)
{
    (void)name; (void)grad;
    ++*(int *)user;
}

TEST(recompute, shared_parameters_are_complete_after_their_last_use)
{
    left *l = (left *)calloc(2, sizeof *l);
    for (int marked = 0; marked < 2; marked++) {
        mlc_ctx_desc d = test_desc();
        mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
        mlc_module *net = mlc_nn_sequential(ctx), *one = mlc_nn_linear(ctx, 7, 7);
        mlc_module *two = mlc_nn_linear(ctx, 7, 7);
        mlc_module_tie(two, "weight", mlc_module_param(one, "weight"));
        mlc_module_add(net, one);
        mlc_module_add(net, mlc_nn_tanh(ctx));
        mlc_module_add(net, two);
        if (marked) CHECK_EQ(mlc_module_recompute(net, 2), MLC_OK);
        int       ready = 0;
        mlc_hooks h;
        memset(&h, 0, sizeof h);
        h.user = &ready;
        h.grad_ready = grad_ready;
        CHECK(mlc_hooks_add(ctx, &h) > 0);
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 2, -1.0, 1.0);
        CHECK_EQ(mlc_backward(mlc_sum_all(mlc_square(mlc_forward(net, x)))), MLC_OK);
        CHECK_EQ(ready, 3);            /* each parameter once                                  */
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        leave_net(&l[marked], net);
    }
    same(&l[0], &l[1]);
    free(l);
}

/* Descs of the call: a mask of lengths, which the second run needs, too. Recurrent layers with
 * lengths are no pieces, and right.                                                           */
TEST(recompute, calls_with_descs_and_lengths)
{
    left *l = (left *)calloc(2, sizeof *l);
    for (int marked = 0; marked < 2; marked++) {
        mlc_ctx_desc d = test_desc();
        mlc_ctx     *ctx = test_own(mlc_ctx_create(&d));
        mlc_module  *net = make_encoder(ctx, marked != 0), *rnn = mlc_nn_gru(ctx, 8, 5);
        mlc_module  *copy;
        if (marked) CHECK(mlc_nn_recompute(ctx, rnn) == rnn);
        CHECK((copy = mlc_module_clone(net)) != NULL);
        for (int i = 0; i < 2; i++) {
            mlc_scope_begin(ctx);
            const double       n[2] = {3, 5};
            mlc_tensor        *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 5, 8), 2, -1.0, 1.0), *y;
            mlc_tensor        *lengths = test_tensor(ctx, MLC_I64, mlc_dims1(2), n);
            mlc_attention_desc a = mlc_attention_desc_make();
            a.key_lengths = lengths;
            y = mlc_transformer_forward(i ? copy : net, x, NULL, &a, NULL);
            memset(&a, 0, sizeof a);   /* read during the call only                            */
            CHECK_EQ(mlc_rnn_forward(rnn, y, lengths, NULL, &y, NULL), MLC_OK);
            CHECK_EQ(mlc_backward(mlc_sum_all(mlc_square(y))), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        leave_net(&l[marked], net);
        leave_net(&l[marked], copy);
        leave_net(&l[marked], rnn);
    }
    same(&l[0], &l[1]);
    free(l);
}

/* A second piece after an optimizer's step: nothing of the first is left.                      */
TEST(recompute, trains_as_a_plain_net)
{
    left *l = (left *)calloc(2, sizeof *l);
    for (int marked = 0; marked < 2; marked++) {
        mlc_ctx_desc d = test_desc();
        mlc_ctx     *ctx = test_own(mlc_ctx_create(&d));
        mlc_module  *net = make_mlp(ctx, marked != 0);
        mlc_optim   *opt = mlc_adamw(net, 1e-2);
        mlc_memory   m[2];
        for (int step = 0; step < 4; step++) {
            mlc_scope_begin(ctx);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), 2, -1.0, 1.0);
            mlc_tensor *loss = mlc_mse_loss(mlc_forward(net, x), x);
            CHECK_EQ(mlc_backward(loss), MLC_OK);
            leave(&l[marked], loss);
            CHECK_EQ(mlc_optim_step(opt), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            if (step > 1) mlc_memory_info(ctx, &m[step - 2]);
        }
        CHECK_EQ(m[0].allocated, m[1].allocated);
        CHECK_EQ(m[0].calls, m[1].calls);        /* a steady step allocates nothing            */
    }
    same(&l[0], &l[1]);
    free(l);
}

/* ---- segments of a sequence ------------------------------------------------------------------ */

static mlc_module *flat_mlp(mlc_ctx *ctx, int n)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < n; i++) {
        mlc_module_add(net, mlc_nn_linear(ctx, 32, 32));
        mlc_module_add(net, mlc_nn_gelu(ctx));
        mlc_module_add(net, mlc_nn_layer_norm(ctx, 32));
    }
    return net;
}

/* The most that activations take in a step. */
static int64_t flat_peak(mlc_module *net)
{
    mlc_ctx   *ctx = mlc_module_ctx(net);
    mlc_memory m;
    mlc_memory_peak_reset(ctx);
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(512, 32), 1, -1, 1);
    CHECK_EQ(mlc_backward(mlc_mean_all(mlc_forward(net, x))), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return m.top[MLC_MEM_ACTIVATION];
}

TEST(recompute, segments_of_a_flat_net_halve_its_activations)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = flat_mlp(ctx, 12);
    const int64_t plain = flat_peak(net), x = 512 * 32 * 4;
    CHECK_EQ(mlc_module_recompute_segments(net, 9), MLC_OK);
    CHECK(flat_peak(net) * 2 < plain);
    CHECK_EQ(mlc_module_recompute_segments(net, 0), MLC_OK);
    CHECK_EQ(flat_peak(net), plain);
    /* Marks of single children save little: a budget takes segments. */
    CHECK_EQ(mlc_module_recompute_budget(net, mlc_dims2(512, 32), plain * 6 / 10), MLC_OK);
    CHECK(flat_peak(net) <= plain * 6 / 10 + 2 * x);
    CHECK_EQ(mlc_module_recompute_budget(net, mlc_dims2(512, 32), plain), MLC_OK);
    CHECK_EQ(flat_peak(net), plain);
    CHECK_EQ(mlc_module_recompute_segments(net, 5), MLC_OK);
    const int64_t five = flat_peak(net);
    CHECK(mlc_module_recompute_budget(net, mlc_dims2(512, 32), 1000) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "more than the 1000 there may be");
    CHECK_EQ(flat_peak(net), five);
    CHECK_EQ(mlc_module_recompute(net, 0), MLC_OK);
    CHECK_EQ(flat_peak(net), plain);
    CHECK_EQ(mlc_module_recompute_segments(net, -1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "-1 children each of a Sequential");
    CHECK_EQ(mlc_module_recompute_segments(mlc_nn_relu(ctx), 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "ReLU");
    CHECK_EQ(mlc_module_recompute_segments(NULL, 1), MLC_ERR_ARG);
}

/* A budget that cannot be had leaves each kind of mark. */
TEST(recompute, marks_of_any_kind_are_put_back)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *inner = flat_mlp(ctx, 6), *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 32, 32));
    mlc_module_add(net, inner);
    mlc_module_add(net, mlc_nn_recompute(ctx, flat_mlp(ctx, 2)));
    CHECK_EQ(mlc_module_recompute_segments(inner, 3), MLC_OK);
    for (int whole = 0; whole < 2; whole++) {
        if (whole)
            mlc_nn_recompute(ctx, net);
        const int64_t peak = flat_peak(net);
        CHECK(mlc_module_recompute_budget(net, mlc_dims2(512, 32), 1000) != MLC_OK);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "more than the 1000 there may be");
        CHECK_EQ(flat_peak(net), peak);
    }
}
