/* test_profile.c -- tests of section IMPL.PROFILE: sessions, ranges, rows, tables, flames, traces
 *
 * Times are those of the tests' own clock, or are only compared with each other. FLOP are compared
 * with formulas.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

typedef struct text { char text[1 << 17]; size_t n; } text;

static void collect(void *user, const char *bytes, size_t n)
{
    text *s = (text *)user;
    if (!CHECK(s->n + n < sizeof s->text)) return;
    memcpy(s->text + s->n, bytes, n);
    s->n += n;
    s->text[s->n] = 0;
}

static text g_text;

static text *empty(void)
{
    g_text.n = 0;
    g_text.text[0] = 0;
    return &g_text;
}

enum { MOST = 200 };

typedef struct table { mlc_profile_row row[MOST]; int n; } table;

static table table_of(mlc_profile *p, mlc_profile_by by, mlc_profile_sort sort)
{
    table t;
    memset(&t, 0, sizeof t);
    const int64_t n = mlc_profile_rows(p, by, sort, t.row, MOST);
    CHECK(n > 0 && n <= MOST);
    t.n = n > 0 ? (int)n : 0;
    return t;
}

static mlc_profile_row row_of(const table *t, const char *name, bool backward)
{
    mlc_profile_row none;
    memset(&none, 0, sizeof none);
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->row[i].name, name) == 0 && t->row[i].backward == backward) return t->row[i];
    return none;
}

static double self_sum(const table *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) sum += t->row[i].self;
    return sum;
}

static mlc_module *small_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx), *body = mlc_nn_sequential(ctx);
    mlc_module_add(body, mlc_nn_linear(ctx, 5, 8));
    mlc_module_add(body, mlc_nn_layer_norm(ctx, 8));
    mlc_module_add_named(net, "body", body);
    mlc_module_add_named(net, "head", mlc_nn_linear(ctx, 8, 3));
    return net;
}

/* A step by hand, in ranges. */
static void step(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt, mlc_tensor *x)
{
    mlc_scope_begin(ctx);
    mlc_range_begin(ctx, "step");
    mlc_range_begin(ctx, "forward");
    mlc_tensor *y = mlc_mean_all(mlc_forward(net, x));
    mlc_range_end(ctx);
    mlc_range_begin(ctx, "backward");
    mlc_backward(y);
    mlc_range_end(ctx);
    mlc_optim_step(opt);
    mlc_optim_zero_grad(opt);
    mlc_range_end(ctx);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

/* Each reading of the clock takes a second, so each interval between two is one. */
TEST(profile, times_add_up_to_the_whole_by_each_report)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = small_net(ctx);
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    step(ctx, net, opt, x);            /* without a profile ranges do nothing                  */
    const bool   own = test_clock_begin(1);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    for (int i = 0; i < 3; i++) step(ctx, net, opt, x);
    CHECK(isnan(mlc_profile_seconds(p)));
    CHECK_EQ(mlc_profile_end(p), MLC_OK);
    test_clock_end();
    step(ctx, net, opt, x);            /* is not counted                                       */
    const double whole = mlc_profile_seconds(p);
    for (int by = 0; by < 3; by++) {
        const table t = table_of(p, (mlc_profile_by)by, MLC_PROFILE_SELF);
        CHECK_NEAR(self_sum(&t), whole, own ? 1e-6 : 1e-9 + 1e-6 * whole);
        for (int i = 1; i < t.n; i++) CHECK(t.row[i - 1].self >= t.row[i].self);
    }
    const table ops = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_CALLS);
    const mlc_profile_row linear = row_of(&ops, "linear", false);
    CHECK_EQ(linear.calls, 6);
    CHECK_EQ(row_of(&ops, "linear", true).calls, 6);
    CHECK_EQ(row_of(&ops, "layer_norm", false).calls + row_of(&ops, "layer_norm", true).calls, 6);
    CHECK(row_of(&ops, "(outside of operations)", false).outside);
    if (own && test_on_host()) CHECK_NEAR(linear.self, 6, 1e-9);
    const table mods = table_of(p, MLC_PROFILE_MODULES, MLC_PROFILE_TOTAL);
    const mlc_profile_row body = row_of(&mods, "body", false);
    const mlc_profile_row first = row_of(&mods, "body.0", false);
    CHECK_EQ(body.calls, 0);
    CHECK_EQ(first.calls, 6);          /* forward and backward                                 */
    CHECK_NEAR(body.total, first.self + row_of(&mods, "body.1", false).self, 1e-9 + 1e-9 * whole);
    CHECK_EQ(row_of(&mods, "head", false).calls, 6);
    CHECK_EQ(row_of(&mods, "(no module)", false).calls, 6);
    const table ranges = table_of(p, MLC_PROFILE_RANGES, MLC_PROFILE_SELF);
    const mlc_profile_row all = row_of(&ranges, "step", false);
    const mlc_profile_row forward = row_of(&ranges, "step/forward", false);
    CHECK(all.calls == 3 && forward.calls == 3);
    CHECK_EQ(row_of(&ranges, "step/backward", false).calls, 3);
    CHECK_NEAR(all.total, all.self + forward.total + row_of(&ranges, "step/backward", false).total,
               1e-9 + 1e-9 * whole);
    CHECK_NEAR(all.total + row_of(&ranges, "(outside of ranges)", false).self, whole,
               1e-9 + 1e-9 * whole);
    CHECK_OK(ctx);
    mlc_profile_free(p);
}

/* ---- FLOP ------------------------------------------------------------------------------------ */

typedef struct work {                  /* a network, its input, and its products by formula    */
    mlc_module *net;
    mlc_tensor *x;
    double      flops, first;          /* of a forward; of it what reads x, which has no gradient */
} work;

static mlc_module *conv_of(mlc_ctx *ctx, int32_t axes, int64_t in, int64_t out, int64_t k,
                           int64_t stride, int64_t groups, bool transposed)
{
    mlc_nn_conv_desc d = mlc_nn_conv_desc_make(axes, in, out, k);
    d.conv.stride = mlc_dims_all(stride);
    d.conv.groups = groups;
    d.transposed = transposed;
    return mlc_nn_conv(ctx, &d);
}

static mlc_tensor *input(mlc_ctx *ctx, mlc_dims dims)
{
    return test_rand(ctx, MLC_F32, dims, 1, -1, 1);
}

static mlc_tensor *image(mlc_ctx *ctx, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return input(ctx, mlc_dims4(n, c, h, w));
}

static work linears(mlc_ctx *ctx, mlc_dims dims, double rows, const int64_t *sizes, int n)
{
    work w;
    w.net = mlc_nn_sequential(ctx);
    w.x = input(ctx, dims);
    w.flops = 0;
    w.first = 2 * rows * (double)(sizes[0] * sizes[1]);
    for (int i = 0; i + 1 < n; i++) {
        mlc_module_add(w.net, mlc_nn_linear(ctx, sizes[i], sizes[i + 1]));
        if (i + 2 < n) mlc_module_add(w.net, mlc_nn_relu(ctx));
        w.flops += 2 * rows * (double)(sizes[i] * sizes[i + 1]);
    }
    return w;
}

static work one(mlc_module *net, mlc_tensor *x, double flops)
{
    const work w = {net, x, flops, flops};
    return w;
}

/* Gates of a recurrent layer: of the input, and of the state of each step. */
static work recurrent(mlc_ctx *ctx, mlc_rnn_kind kind, int64_t gates, int64_t layers, bool both,
                      int64_t projection)
{
    const int64_t   b = 3, t = 7, in = 5, h = 8, p = projection ? projection : h;
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind, in, h);
    work            w = {NULL, input(ctx, mlc_dims3(b, t, in)), 0, 0};
    d.layers = layers;
    d.bidirectional = both;
    d.projection = projection;
    w.net = mlc_nn_rnn_ex(ctx, &d);
    for (int64_t l = 0; l < layers; l++) {
        const int64_t from = l ? p * (both ? 2 : 1) : in;
        const double  of_x = (both ? 2.0 : 1.0) * 2.0 * (double)(b * t * from * gates * h);
        w.flops += of_x + (both ? 2.0 : 1.0) * 2.0 *
                   (double)(b * t * (p * gates * h + (projection ? p * h : 0)));
        if (!l) w.first = of_x;
    }
    return w;
}

/* Attention of e features over t places: products of q and k, and of the weights and v. */
static double attention_flops(double b, double t, double e) { return 4 * b * t * t * e; }

static work transformer(mlc_ctx *ctx, int64_t layers)
{
    const double            b = 2, t = 9, e = 16, hidden = 24;
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(16, 4);
    d.hidden = 24;
    d.dropout = 0;
    work w = {mlc_nn_transformer_encoder(ctx, &d, layers), input(ctx, mlc_dims3(2, 9, 16)), 0, 0};
    w.first = 2 * b * t * e * 3 * e;
    w.flops = (double)layers * (w.first + attention_flops(b, t, e) + 2 * b * t * e * e +
                                4 * b * t * e * hidden);
    return w;
}

static work two_convs(mlc_ctx *ctx)
{
    work w = {mlc_nn_sequential(ctx), input(ctx, mlc_dims4(2, 3, 12, 12)), 0, 0};
    mlc_module_add(w.net, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1));
    mlc_module_add(w.net, mlc_nn_relu(ctx));
    mlc_module_add(w.net, mlc_nn_conv2d(ctx, 8, 4, 3, 2, 0));
    mlc_module_add(w.net, mlc_nn_flatten(ctx));
    mlc_module_add(w.net, mlc_nn_linear(ctx, 4 * 5 * 5, 10));
    w.first = 2.0 * 2 * 8 * 144 * 27;
    w.flops = w.first + 2.0 * 2 * 4 * 25 * 72 + 2.0 * 2 * 100 * 10;
    return w;
}

enum { NETWORKS = 22 };

static work network(mlc_ctx *ctx, int i)
{
    static const int64_t mlp[] = {784, 512, 512, 10}, deep[] = {3, 4, 5, 6, 7, 8, 9},
                         volume[] = {2, 2, 5, 6, 7};
    switch (i) {
        case 0:  return linears(ctx, mlc_dims2(128, 784), 128, mlp, 4);
        case 1:  return linears(ctx, mlc_dims2(1, 784), 1, mlp, 2);
        case 2:  return linears(ctx, mlc_dims2(11, 3), 11, deep, 7);
        case 3:  return linears(ctx, mlc_dims4(2, 3, 4, 3), 24, deep, 3);
        case 4:  return one(conv_of(ctx, 2, 3, 8, 3, 1, 1, false), image(ctx, 2, 3, 10, 9),
                            2.0 * 2 * 8 * 8 * 7 * 27);
        case 5:  return one(conv_of(ctx, 2, 3, 8, 3, 2, 1, false), image(ctx, 2, 3, 11, 9),
                            2.0 * 2 * 8 * 5 * 4 * 27);
        case 6:  return one(conv_of(ctx, 2, 6, 8, 3, 1, 2, false), image(ctx, 2, 6, 8, 8),
                            2.0 * 2 * 8 * 36 * 27);
        case 7:  return one(conv_of(ctx, 2, 6, 6, 3, 1, 6, false), image(ctx, 2, 6, 8, 8),
                            2.0 * 2 * 6 * 36 * 9);
        case 8:  return one(conv_of(ctx, 1, 3, 5, 4, 1, 1, false), input(ctx, mlc_dims3(2, 3, 20)),
                            2.0 * 2 * 5 * 17 * 12);
        case 9:  return one(conv_of(ctx, 3, 2, 4, 2, 1, 1, false),
                            input(ctx, mlc_dims_of(5, volume)), 2.0 * 2 * 4 * 4 * 5 * 6 * 16);
        case 10: return one(conv_of(ctx, 2, 4, 3, 2, 2, 1, true), image(ctx, 2, 4, 5, 5),
                            2.0 * 2 * 4 * 25 * 12);
        case 11: return one(conv_of(ctx, 2, 5, 7, 1, 1, 1, false), image(ctx, 3, 5, 6, 6),
                            2.0 * 3 * 7 * 36 * 5);
        case 12: return two_convs(ctx);
        case 13: return recurrent(ctx, MLC_RNN_TANH, 1, 1, false, 0);
        case 14: return recurrent(ctx, MLC_RNN_GRU, 3, 1, false, 0);
        case 15: return recurrent(ctx, MLC_RNN_LSTM, 4, 1, false, 0);
        case 16: return recurrent(ctx, MLC_RNN_LSTM, 4, 2, false, 0);
        case 17: return recurrent(ctx, MLC_RNN_LSTM, 4, 1, false, 6);
        case 18: return recurrent(ctx, MLC_RNN_GRU, 3, 2, true, 0);
        case 19: {
            work w = {mlc_nn_multihead_attention(ctx, 16, 2), input(ctx, mlc_dims3(2, 9, 16)),
                      0, 0};
            w.first = 2.0 * 18 * 16 * 48;
            w.flops = w.first + attention_flops(2, 9, 16) + 2.0 * 18 * 256;
            return w;
        }
        case 20: return transformer(ctx, 1);
        default: return transformer(ctx, 3);
    }
}

static double products(const table *t, bool backward)
{
    static const char *const names[] = {"linear", "conv", "conv_transpose", "rnn", "attention",
                                        "matmul"};
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += row_of(t, names[i], backward).flops;
    return sum;
}

/* A backward makes two products for each of the forward, but for x, which has no gradient. */
TEST(profile, flop_of_networks_are_those_of_formulas)
{
    for (int i = 0; i < NETWORKS; i++) {
        mlc_ctx     *ctx = test_ctx();
        const work   w = network(ctx, i);
        mlc_profile *p = mlc_profile_begin(ctx, NULL);
        mlc_tensor  *y = mlc_mean_all(mlc_forward(w.net, w.x));
        CHECK_EQ(mlc_backward(y), MLC_OK);
        mlc_profile_end(p);
        const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
        if (!CHECK_NEAR(products(&t, false), w.flops, 0)) printf("  network %d, forward\n", i);
        if (!CHECK_NEAR(products(&t, true), 2 * w.flops - w.first, 0))
            printf("  network %d, backward\n", i);
        CHECK_OK(ctx);
    }
}

/* The state that is given is no weight. */
TEST(profile, flop_of_a_recurrent_layer_with_a_state_are_the_same)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = mlc_nn_lstm(ctx, 5, 8);
    mlc_tensor  *in[3] = {input(ctx, mlc_dims3(4, 7, 5)), input(ctx, mlc_dims3(1, 4, 8)),
                          input(ctx, mlc_dims3(1, 4, 8))};
    mlc_tensor  *out[3];
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    CHECK_EQ(mlc_module_forward(net, in, 3, out, 3), MLC_OK);
    mlc_profile_end(p);
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
    CHECK_NEAR(products(&t, false), 2.0 * 28 * 32 * (5 + 8), 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

TEST(profile, memory_goes_to_what_took_it)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims1(10000), 1, -1, 1);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    mlc_range_begin(ctx, "a");
    mlc_exp(x);
    mlc_range_end(ctx);
    mlc_range_begin(ctx, "b");
    mlc_exp(x);
    mlc_exp(x);
    mlc_range_end(ctx);
    mlc_profile_end(p);
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_MEMORY);
    const table r = table_of(p, MLC_PROFILE_RANGES, MLC_PROFILE_MEMORY);
    const mlc_profile_row exps = row_of(&t, "exp", false);
    CHECK(exps.memory >= 120000 && exps.memory < 150000 && exps.blocks == 3);
    CHECK_STR(t.row[0].name, "exp");
    CHECK_STR(r.row[0].name, "b");
    CHECK(exps.strided == 0 && exps.bytes == 240000);
    const int64_t a = row_of(&r, "a", false).memory, b = row_of(&r, "b", false).memory;
    CHECK_EQ(a + b, exps.memory);
    CHECK(a >= 40000 && b >= 80000);
    CHECK_OK(ctx);
}

/* The second of two steps of the same sizes calls the allocator no more, also not for the profile
 * itself: its frames are there. */
TEST(profile, a_steady_step_calls_the_allocator_no_more)
{
    ONLY_ON_HOST();
    tally                  m;
    const mlc_ctx_desc     d = tally_desc(&m);
    mlc_ctx               *ctx = mlc_ctx_create(&d);
    mlc_module            *net = small_net(ctx);
    mlc_optim             *opt = mlc_adamw(net, 0.01);
    mlc_tensor            *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    mlc_profile_begin_desc pd = mlc_profile_begin_desc_make();
    pd.calls = 0;
    mlc_profile *p = mlc_profile_begin(ctx, &pd);
    step(ctx, net, opt, x);
    step(ctx, net, opt, x);
    const int64_t calls = m.calls;
    for (int i = 0; i < 20; i++) step(ctx, net, opt, x);
    CHECK_EQ(m.calls, calls);
    mlc_profile_end(p);
    CHECK_EQ(mlc_profile_advise(p, collect, empty()), MLC_OK);
    CHECK(!strstr(g_text.text, "allocator"));
    mlc_profile_free(p);
    tally_done(&m, ctx);
}

/* ---- what is observed ------------------------------------------------------------------------ */

static mlc_status neg_exp(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user;
    (void)n_in;
    *out = mlc_exp(mlc_neg(in[0]));
    return *out ? MLC_OK : MLC_ERR_ARG;
}

static mlc_status neg_exp_back(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                               mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user;
    (void)in;
    (void)n_in;
    (void)need;
    dx[0] = mlc_neg(mlc_mul(out, dy));
    return dx[0] ? MLC_OK : MLC_ERR_ARG;
}

/* Operations within another are its total, and not its self. */
TEST(profile, operations_of_a_custom_one_are_within_it)
{
    static const mlc_custom_op op = {"neg_exp", neg_exp, neg_exp_back};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = input(ctx, mlc_dims1(50));
    mlc_set_requires_grad(x, true);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    mlc_backward(mlc_sum_all(mlc_custom(&op, NULL, &x, 1)));
    mlc_profile_end(p);
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_TOTAL);
    const mlc_profile_row outer = row_of(&t, "custom", false);
    CHECK_EQ(outer.calls, 1);
    CHECK_NEAR(outer.total, outer.self + row_of(&t, "exp", false).self +
               row_of(&t, "neg", false).self, 1e-9 + row_of(&t, "neg", false).self);
    CHECK(outer.total > outer.self);
    CHECK_EQ(row_of(&t, "neg", false).calls, 2);           /* one is of the backward           */
    CHECK_EQ(row_of(&t, "custom", true).calls, 1);
    CHECK_NEAR(self_sum(&t), mlc_profile_seconds(p), 1e-9);
    CHECK_OK(ctx);
}

TEST(profile, several_at_a_time_are_independent)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = input(ctx, mlc_dims1(50));
    mlc_profile *a = mlc_profile_begin(ctx, NULL);
    mlc_range_begin(ctx, "both");
    mlc_exp(x);
    mlc_profile *b = mlc_profile_begin(ctx, NULL);
    mlc_exp(x);
    mlc_range_end(ctx);                /* began before b                                       */
    mlc_profile_end(a);
    mlc_exp(x);
    mlc_profile_end(b);
    const table ta = table_of(a, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
    const table tb = table_of(b, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
    const table ra = table_of(a, MLC_PROFILE_RANGES, MLC_PROFILE_SELF);
    const table rb = table_of(b, MLC_PROFILE_RANGES, MLC_PROFILE_SELF);
    CHECK_EQ(row_of(&ta, "exp", false).calls, 2);
    CHECK_EQ(row_of(&tb, "exp", false).calls, 2);
    CHECK_EQ(row_of(&ra, "both", false).calls, 1);
    CHECK_EQ(rb.n, 1);
    CHECK_OK(ctx);
}

/* Ranges nest without end, are left open, end too often, and have any text for a name. */
TEST(profile, ranges_of_all_kinds)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = input(ctx, mlc_dims1(50));
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    mlc_range_end(ctx);
    for (int i = 0; i < 100; i++) mlc_range_begin(ctx, "deep");
    mlc_exp(x);
    for (int i = 0; i < 100; i++) mlc_range_end(ctx);
    mlc_range_begin(ctx, NULL);
    mlc_range_end(ctx);
    mlc_range_begin(ctx, "\xff");
    mlc_range_end(ctx);
    mlc_range_begin(ctx, "a \"b\"\n<c>");
    mlc_range_end(ctx);
    mlc_range_begin(NULL, "none");
    mlc_range_end(NULL);
    mlc_range_begin(ctx, "open");
    mlc_neg(x);
    CHECK_EQ(mlc_profile_end(p), MLC_OK);
    const table t = table_of(p, MLC_PROFILE_RANGES, MLC_PROFILE_CALLS);
    CHECK(row_of(&t, "deep", false).calls == 1 && row_of(&t, "deep/deep", false).calls == 1);
    CHECK(row_of(&t, "(NULL)", false).calls == 1 && row_of(&t, "(no UTF-8)", false).calls == 1);
    CHECK(row_of(&t, "a \"b\"\n<c>", false).calls == 1 && row_of(&t, "open", false).calls == 1);
    CHECK_NEAR(self_sum(&t), mlc_profile_seconds(p), 1e-9);
    CHECK_EQ(mlc_profile_trace(&p, 1, collect, empty()), MLC_OK);
    CHECK_HAS(g_text.text, "\"name\":\"a \\\"b\\\"\\u000a<c>\",\"pid\":1,\"tid\":1,\"ts\":");
    CHECK_OK(ctx);
}

/* What a custom operation calls, in a range that it leaves open. */
static mlc_status in_a_range(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user;
    (void)n_in;
    mlc_range_begin(in[0]->ctx, "inner");
    *out = mlc_exp(in[0]);
    return *out ? MLC_OK : MLC_ERR_ARG;
}

/* Its time is the operation's, and it ends with it. */
TEST(profile, a_range_within_an_operation_is_part_of_it)
{
    static const mlc_custom_op op = {"ranged", in_a_range, neg_exp_back};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = input(ctx, mlc_dims1(50));
    const bool   own = test_clock_begin(1);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    mlc_range_begin(ctx, "a");
    mlc_custom(&op, NULL, &x, 1);
    mlc_range_end(ctx);
    mlc_profile_end(p);
    test_clock_end();
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_TOTAL);
    const table r = table_of(p, MLC_PROFILE_RANGES, MLC_PROFILE_TOTAL);
    const mlc_profile_row outer = row_of(&t, "custom", false), exps = row_of(&t, "exp", false);
    CHECK(outer.calls == 1 && exps.calls == 1);
    CHECK_NEAR(outer.total, outer.self + exps.self, 1e-9);
    if (own && test_on_host()) CHECK_NEAR(outer.self, 3, 1e-9);
    CHECK_EQ(row_of(&r, "a", false).calls, 1);
    CHECK_EQ(row_of(&r, "a/inner", false).calls, 1);
    CHECK_NEAR(self_sum(&t), mlc_profile_seconds(p), 1e-9);
    CHECK_NEAR(self_sum(&r), mlc_profile_seconds(p), 1e-9);
    CHECK_OK(ctx);
}

static void range_within(void *user, const mlc_op_event *e)
{
    (void)e;
    mlc_range_begin((mlc_ctx *)user, "hook");
}

static void end_range_within(void *user, const mlc_op_event *e)
{
    (void)e;
    mlc_range_end((mlc_ctx *)user);
}

/* Whatever the order of the hooks, the program's own ranges stay as they are. */
TEST(profile, ranges_within_hooks_do_nothing)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = input(ctx, mlc_dims1(50));
    mlc_hooks   h;
    memset(&h, 0, sizeof h);
    h.user = ctx;
    h.op_begin = range_within;
    h.op_end = end_range_within;
    for (int first = 0; first < 2; first++) {
        int32_t      id = first ? mlc_hooks_add(ctx, &h) : 0;
        mlc_profile *p = mlc_profile_begin(ctx, NULL);
        if (!id) id = mlc_hooks_add(ctx, &h);
        mlc_range_begin(ctx, "a");
        mlc_exp(x);
        mlc_neg(x);
        mlc_range_end(ctx);
        mlc_profile_end(p);
        mlc_hooks_remove(ctx, id);
        const table r = table_of(p, MLC_PROFILE_RANGES, MLC_PROFILE_SELF);
        const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
        CHECK_EQ(r.n, 2);
        CHECK_EQ(row_of(&r, "a", false).calls, 1);
        CHECK(row_of(&t, "exp", false).calls == 1 && row_of(&t, "neg", false).calls == 1);
    }
    CHECK_OK(ctx);
}

/* Names of modules may be any bytes: files of UTF-8 and lines of tables stay whole. */
TEST(profile, names_that_no_file_could_hold)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    char        wide[600];
    mlc_module_add_named(net, "a\xff\x01\"b", mlc_nn_relu(ctx));
    for (size_t i = 0; i + 3 < sizeof wide; i += 3) memcpy(wide + i, "\xe2\x82\xac", 4);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    mlc_range_begin(ctx, wide);
    mlc_range_begin(ctx, "two\nlines");
    mlc_forward(net, input(ctx, mlc_dims1(50)));
    mlc_profile_end(p);
    CHECK_EQ(mlc_profile_trace(&p, 1, collect, empty()), MLC_OK);
    CHECK_HAS(g_text.text, "\"module\":\"a?\\u0001\\\"b\"");
    CHECK_HAS(g_text.text, "\xe2\x82\xac?\",\"pid\"");      /* 511 bytes                        */
    CHECK(!strchr(g_text.text, '\xff'));
    CHECK_EQ(mlc_profile_print(p, MLC_PROFILE_MODULES, MLC_PROFILE_SELF, 0, collect, empty()),
             MLC_OK);
    CHECK_HAS(g_text.text, "\na??\"b ");
    CHECK_EQ(mlc_profile_print(p, MLC_PROFILE_RANGES, MLC_PROFILE_SELF, 0, collect, empty()),
             MLC_OK);
    CHECK_HAS(g_text.text, "\ntwo?lines ");
    CHECK_HAS(g_text.text, "\xe2\x82\xac  ");               /* cut at a whole character         */
    CHECK_OK(ctx);
}

/* A name for each pass fills the table: time goes to the range around, whose calls stay. */
TEST(profile, a_table_that_is_full_loses_no_time)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_profile_begin_desc d = mlc_profile_begin_desc_make();
    char                   name[20];
    d.calls = 0;
    mlc_profile *p = mlc_profile_begin(ctx, &d);
    mlc_range_begin(ctx, "a");
    for (int i = 0; i < 66000; i++) {
        snprintf(name, sizeof name, "%d", i);
        mlc_range_begin(ctx, name);
        mlc_range_end(ctx);
    }
    mlc_neg(mlc_ones(ctx, MLC_F32, mlc_dims1(3)));
    mlc_range_end(ctx);
    mlc_profile_end(p);
    enum { FULL = 65536 };
    mlc_profile_row *row = (mlc_profile_row *)calloc(FULL, sizeof *row);
    double           self = 0;
    if (!CHECK(row != NULL)) return;
    CHECK_EQ(mlc_profile_rows(p, MLC_PROFILE_RANGES, MLC_PROFILE_TOTAL, row, FULL), FULL);
    CHECK_STR(row[0].name, "a");
    CHECK_EQ(row[0].calls, 1);
    for (int i = 0; i < FULL; i++) self += row[i].self;
    CHECK_NEAR(self, mlc_profile_seconds(p), 1e-6 * mlc_profile_seconds(p));
    free(row);
    CHECK_EQ(mlc_profile_print(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF, 0, collect, empty()),
             MLC_OK);
    CHECK_HAS(g_text.text, "\nrows are missing, 46");
    CHECK_OK(ctx);
}

/* What one profile takes for itself is no memory of the program to another. */
TEST(profile, memory_of_another_profile_does_not_count)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_profile_begin_desc d = mlc_profile_begin_desc_make();
    d.calls = 0;
    mlc_profile *a = mlc_profile_begin(ctx, &d), *b = mlc_profile_begin(ctx, NULL);
    for (int i = 0; i < 5000; i++) {   /* 32 bytes each for the trace of b                     */
        mlc_range_begin(ctx, "a");
        mlc_range_end(ctx);
    }
    mlc_profile_free(b);
    mlc_profile_end(a);
    const table t = table_of(a, MLC_PROFILE_RANGES, MLC_PROFILE_MEMORY);
    CHECK_EQ(row_of(&t, "a", false).memory, 0);
    CHECK_OK(ctx);
}

/* A shape that only counts bytes takes no memory. */
TEST(profile, dry_runs_do_not_count)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = small_net(ctx);
    mlc_module_build(net);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    CHECK_EQ(mlc_summary(net, mlc_dims2(100000, 5), collect, empty()), MLC_OK);
    mlc_profile_end(p);
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_MEMORY);
    CHECK_EQ(t.n, 1);
    CHECK(t.row[0].outside && t.row[0].memory < 1000000);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static mlc_profile *profile_of_steps(mlc_ctx *ctx, int steps, double second)
{
    mlc_module  *net = small_net(ctx);
    mlc_optim   *opt = mlc_adamw(net, 0.01);
    mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
    test_clock_begin(second);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    for (int i = 0; i < steps; i++) step(ctx, net, opt, x);
    mlc_profile_end(p);
    test_clock_end();
    return p;
}

TEST(profile, tables_have_heads_rows_and_a_limit)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_profile *p = profile_of_steps(ctx, 3, 0.001);
    CHECK_EQ(mlc_profile_print(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_CALLS, 2, collect, empty()),
             MLC_OK);
    int lines = 0;
    for (const char *c = g_text.text; *c; c++) lines += *c == '\n';
    CHECK_EQ(lines, 4);
    CHECK_HAS(g_text.text, " operations, ");
    CHECK_HAS(g_text.text, "\nOperation                           Calls    Self ms    Share");
    CHECK_HAS(g_text.text, "\nlinear                                  6 ");
    CHECK_HAS(g_text.text, "\nlinear backward                         6 ");
    CHECK_EQ(mlc_profile_print(p, MLC_PROFILE_MODULES, MLC_PROFILE_TOTAL, 0, collect, empty()),
             MLC_OK);
    CHECK_HAS(g_text.text, "\nbody.1 ");
    CHECK_HAS(g_text.text, "\n(outside of operations) ");
    CHECK_OK(ctx);
}

TEST(profile, two_are_compared_by_their_rows)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_profile *a = profile_of_steps(ctx, 1, 0.001), *b = profile_of_steps(ctx, 4, 0.001);
    CHECK_EQ(mlc_profile_compare(a, b, MLC_PROFILE_OPERATIONS, collect, empty()), MLC_OK);
    CHECK_HAS(g_text.text, "\nlinear                                  2        8 ");
    mlc_profile *none = mlc_profile_begin(ctx, NULL);
    mlc_profile_end(none);
    CHECK_EQ(mlc_profile_compare(none, b, MLC_PROFILE_MODULES, collect, empty()), MLC_OK);
    CHECK_HAS(g_text.text, "\nbody.0                                  0        8          0 ");
    CHECK_OK(ctx);
}

/* On a clock of its own each operation takes so long. */
static const char *advice_of(mlc_ctx *ctx, double second)
{
    mlc_profile *p = profile_of_steps(ctx, 30, second);
    CHECK_EQ(mlc_profile_advise(p, collect, empty()), MLC_OK);
    mlc_profile_free(p);
    return g_text.text;
}

TEST(profile, advice_names_what_is_small_and_what_is_outside)
{
    mlc_ctx *ctx = test_ctx();
    if (!test_clock_begin(1)) { CHECK(true); return; }
    test_clock_end();
    CHECK_HAS(advice_of(ctx, 1e-6), "operations take under 5 us each");
    CHECK_HAS(g_text.text, "mlc_plan_capture");
    CHECK_HAS(advice_of(ctx, 1e-3), "of the time is outside of operations");
    CHECK(!strstr(g_text.text, "under 5 us"));
    CHECK_OK(ctx);
}

/* A loader that takes nearly all time is not called small operations. */
TEST(profile, advice_does_not_take_a_pause_for_small_operations)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = input(ctx, mlc_dims1(50));
    if (!test_clock_begin(1e-6)) { CHECK(true); return; }
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    for (int i = 0; i < 200; i++) mlc_exp(x);
    test_clock_pass(1);
    mlc_profile_end(p);
    test_clock_end();
    CHECK_EQ(mlc_profile_advise(p, collect, empty()), MLC_OK);
    CHECK_HAS(g_text.text, "of the time is outside of operations");
    CHECK(!strstr(g_text.text, "under 5 us"));
    CHECK_OK(ctx);
}

TEST(profile, advice_names_permuted_inputs_and_the_allocator)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_transpose(input(ctx, mlc_dims2(60, 70)), 0, 1);
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    for (int i = 0; i < 400; i++) mlc_exp(x);              /* without a scope: new memory each  */
    for (int i = 0; i < 100; i++) mlc_contiguous(x);
    mlc_profile_end(p);
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
    CHECK_EQ(row_of(&t, "exp", false).strided, 400);
    CHECK_EQ(row_of(&t, "copy", false).strided, 100);
    CHECK_EQ(mlc_profile_advise(p, collect, empty()), MLC_OK);
    if (test_on_host()) CHECK_HAS(g_text.text, "the allocator was called ");
    CHECK_OK(ctx);
}

/* ---- files ----------------------------------------------------------------------------------- */

static int count_of(const char *in, const char *part)
{
    int n = 0;
    for (const char *at = in; (at = strstr(at, part)) != NULL; at++) n++;
    return n;
}

static const char *saved(mlc_profile *p, const char *name)
{
    box b = box_open_fast(name);
    size_t n = 0;
    empty();
    CHECK_EQ(mlc_profile_save(p, b.path), MLC_OK);
    unsigned char *data = get_file(b.path, &n);
    if (CHECK(data != NULL && n < sizeof g_text.text)) {
        memcpy(g_text.text, data, n);
        g_text.text[n] = 0;
    }
    free(data);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
    return g_text.text;
}

TEST(profile, files_by_the_end_of_their_names)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_profile *p = profile_of_steps(ctx, 3, 0.001);
    const char  *json = saved(p, "a.json");
    CHECK_HAS(json, "{\"schemaVersion\":1,");
    CHECK_EQ(count_of(json, "\"name\":\"ProfilerStep#"), 3);
    CHECK_HAS(json, "\"cat\":\"user_annotation\",\"name\":\"ProfilerStep#2\"");
    CHECK_EQ(count_of(json, "\"name\":\"linear\""), 6);
    CHECK_EQ(count_of(json, "\"name\":\"linear backward\""), 6);
    CHECK_HAS(json, "\"args\":{\"module\":\"body.0\"}}");
    CHECK_EQ(count_of(json, "{"), count_of(json, "}"));
    CHECK_EQ(count_of(json, "["), count_of(json, "]"));
    CHECK_HAS(json, "\n]}\n");
    const char *svg = saved(p, "a.svg");
    CHECK_HAS(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\"");
    CHECK_HAS(svg, "<title>linear backward: ");
    CHECK_EQ(count_of(svg, "<g>"), count_of(svg, "</g>"));
    CHECK_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
    CHECK_HAS(svg, "</svg>\n");
    const char *text_of = saved(p, "a.txt");
    CHECK_HAS(text_of, "\nModule ");
    CHECK_HAS(text_of, "\nstep/forward ");
    CHECK_OK(ctx);
}

TEST(profile, traces_of_two_contexts_are_two_threads)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_profile *list[2] = {profile_of_steps(ctx, 1, 0.001),
                            profile_of_steps(test_ctx(), 2, 0.001)};
    CHECK_EQ(mlc_profile_trace(list, 2, collect, empty()), MLC_OK);
    CHECK_EQ(count_of(g_text.text, "\"name\":\"linear\",\"pid\":1,\"tid\":1"), 2);
    CHECK_EQ(count_of(g_text.text, "\"name\":\"linear\",\"pid\":1,\"tid\":2"), 4);
    CHECK_OK(ctx);
}

/* What desc.calls has no room for is in the tables, and the advice says so. */
TEST(profile, a_trace_ends_at_its_limit)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *x = input(ctx, mlc_dims1(50));
    mlc_profile_begin_desc d = mlc_profile_begin_desc_make();
    d.calls = 3;
    mlc_profile *p = mlc_profile_begin(ctx, &d);
    for (int i = 0; i < 5; i++) mlc_exp(x);
    mlc_profile_end(p);
    const table t = table_of(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF);
    CHECK_EQ(row_of(&t, "exp", false).calls, 5);
    CHECK_EQ(mlc_profile_trace(&p, 1, collect, empty()), MLC_OK);
    CHECK_EQ(count_of(g_text.text, "\"exp\""), 3);
    CHECK_EQ(mlc_profile_advise(p, collect, empty()), MLC_OK);
    CHECK_HAS(g_text.text, "the trace lacks the last 2 calls: desc.calls is 3");
}

/* With MLC_TEST_OUT=FOLDER it stays, for tests/python_reads_tensorboard.py. */
TEST(tensorboard, a_run_has_the_trace_of_a_profile)
{
    mlc_ctx         *ctx = test_ctx();
    const char      *out = getenv("MLC_TEST_OUT");
    box              b = box_open_fast("");
    char             dir[400];
    snprintf(dir, sizeof dir, "%s/traced", out ? out : b.dir);
    mlc_tensorboard *tb = mlc_tensorboard_open(ctx, dir, NULL);
    mlc_profile     *p = profile_of_steps(ctx, 4, 0.0001);
    CHECK_EQ(mlc_tensorboard_profile(tb, p), MLC_OK);
    CHECK_EQ(mlc_tensorboard_close(tb), MLC_OK);
    if (!out) {
        box run;
        snprintf(run.dir, sizeof run.dir, "%.255s", dir);
        CHECK_EQ(box_count(&run), 2);
        box_close(&run);
    }
    box_close(&b);
    CHECK_OK(ctx);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static mlc_profile *g_profile;
static mlc_status   g_within;
static mlc_ctx     *g_ctx;

static void end_within(void *user, const mlc_op_event *e)
{
    (void)user;
    (void)e;
    g_within = mlc_profile_end(g_profile);
    mlc_profile_free(g_profile);       /* stays                                                */
    if (mlc_profile_begin(g_ctx, NULL)) g_within = MLC_OK;
}

TEST(profile, errors)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *x = input(ctx, mlc_dims1(5));
    mlc_profile_begin_desc d = mlc_profile_begin_desc_make();
    mlc_profile_row        row;
    CHECK(mlc_profile_begin(NULL, NULL) == NULL);
    d.calls = -1;
    CHECK(mlc_profile_begin(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "profile_begin: calls");
    d.calls = 0;
    d.flops = NO_NUMBER;
    CHECK(mlc_profile_begin(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "profile_begin");
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    CHECK_EQ(mlc_profile_rows(p, MLC_PROFILE_MODULES, MLC_PROFILE_SELF, &row, 1), -1);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "profile_rows: the profile runs");
    CHECK_EQ(mlc_profile_trace(&p, 1, collect, empty()), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "profile_trace: the profile runs");
    mlc_hooks h;
    memset(&h, 0, sizeof h);
    h.op_end = end_within;
    g_profile = p;
    g_ctx = ctx;
    const int32_t id = mlc_hooks_add(ctx, &h);
    mlc_exp(x);
    CHECK_EQ(g_within, MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "profile_end: a hook runs");
    mlc_hooks_remove(ctx, id);
    CHECK_EQ(mlc_profile_end(p), MLC_OK);
    CHECK_EQ(mlc_profile_end(p), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "it was ended before");
    CHECK_EQ(mlc_profile_rows(p, (mlc_profile_by)3, MLC_PROFILE_SELF, &row, 1), -1);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "by is 3");
    CHECK_EQ(mlc_profile_print(p, MLC_PROFILE_RANGES, (mlc_profile_sort)9, 0, collect, empty()),
             MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "sort is 9");
    CHECK_EQ(mlc_profile_save(p, ""), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no path");
    CHECK_EQ(mlc_profile_save(p, "/no/such/folder/a.svg"), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK_EQ(mlc_profile_end(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_profile_compare(p, NULL, MLC_PROFILE_RANGES, collect, empty()), MLC_ERR_ARG);
    CHECK_EQ(mlc_profile_trace(NULL, 1, collect, empty()), MLC_ERR_ARG);
    CHECK_EQ(mlc_tensorboard_profile(NULL, p), MLC_ERR_ARG);
    CHECK_EQ(mlc_profile_rows(NULL, MLC_PROFILE_RANGES, MLC_PROFILE_SELF, NULL, 0), -1);
    CHECK(isnan(mlc_profile_seconds(NULL)));
    mlc_profile_free(NULL);
    mlc_profile_free(p);
    p = mlc_profile_begin(ctx, NULL);
    mlc_profile_free(p);               /* while it runs: no hook is left                       */
    mlc_exp(x);
    CHECK_OK(ctx);
    mlc_ctx_desc cd = test_desc();
    mlc_ctx     *other = mlc_ctx_create(&cd);
    mlc_profile_begin(other, NULL);
    mlc_range_begin(other, "open");
    mlc_ctx_free(other);               /* and with the context                                 */
}

/* The environment asks where the program lets it; the context's end saves. */
TEST(profile, of_the_environment)
{
    box                b = box_open_fast("a.txt");
    const mlc_ctx_desc d = test_desc();
    size_t             n = 0;
    unsetenv("MLC_PROFILE");
    mlc_ctx *ctx = mlc_profile_env(mlc_ctx_create(&d));
    mlc_ctx_free(ctx);
    CHECK_EQ(box_count(&b), 0);
    setenv("MLC_PROFILE", b.path, 1);
    ctx = mlc_profile_env(mlc_ctx_create(&d));
    mlc_exp(mlc_ones(ctx, MLC_F32, mlc_dims1(5)));
    unsetenv("MLC_PROFILE");           /* the path is that of the begin                        */
    mlc_ctx_free(ctx);
    unsigned char *data = get_file(b.path, &n);
    char           part[4096];
    if (CHECK(data != NULL)) {
        snprintf(part, sizeof part, "%.*s", (int)n, (const char *)data);
        CHECK_HAS(part, "\nexp ");
    }
    free(data);
    box_close(&b);
    CHECK(mlc_profile_env(NULL) == NULL);
}

/* Without memory for a frame or a call operations go on, and what is lost is told. */
static mlc_status profiled(mlc_ctx *ctx, const void *user)
{
    mlc_profile *p = mlc_profile_begin(ctx, NULL);
    mlc_tensor  *x = mlc_ones(ctx, MLC_F32, mlc_dims1(5));
    (void)user;
    mlc_range_begin(ctx, "a");
    for (int i = 0; i < 3; i++) x = mlc_exp(x);
    mlc_range_end(ctx);
    mlc_status st = p ? mlc_profile_end(p) : mlc_ctx_status(ctx);
    if (st == MLC_OK && mlc_ctx_status(ctx) == MLC_OK)
        st = mlc_profile_print(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF, 0, collect, empty());
    if (st == MLC_OK) st = mlc_ctx_status(ctx);
    mlc_profile_free(p);
    return st;
}

TEST(profile, each_allocation_may_fail) { tally_fail_each(profiled, NULL); }

/* Bits of a training are the same with a profile. */
TEST(profile, observes_alone)
{
    uint64_t hash[2] = {HASH_SEED, HASH_SEED};
    for (int i = 0; i < 2; i++) {
        mlc_ctx *ctx = test_ctx();
        mlc_seed(ctx, 3);
        mlc_module  *net = small_net(ctx);
        mlc_optim   *opt = mlc_adamw(net, 0.01);
        mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1);
        mlc_profile *p = i ? mlc_profile_begin(ctx, NULL) : NULL;
        for (int k = 0; k < 5; k++) step(ctx, net, opt, x);
        if (p) mlc_profile_end(p);
        hash[i] = hash_net(hash[i], net);
    }
    CHECK(hash[0] == hash[1]);
}
