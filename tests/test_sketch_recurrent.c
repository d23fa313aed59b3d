/* test_sketch_recurrent.c -- tests of sections IMPL.SKETCH.RECURRENT, IMPL.SKETCH.EMBEDDING
 *
 * Recurrent layers with sketched gates against dense ones of the weights that these stand for;
 * sketched tables against the product of their parts, central differences and the best of a rank;
 * both in networks: fits, frozen and tied parameters, files, clones, recompute, caches, plans,
 * integers.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

enum { B = 3, T = 6, IN = 24, HIDDEN = 16 };

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                                     mlc_dims0(), false)) : 1e9;
}

static char said[4096];

static void hear(void *user, const char *text, size_t bytes)
{
    const size_t at = strlen(said);
    (void)user;
    if (at + bytes >= sizeof said)
        return;
    memcpy(said + at, text, bytes);
    said[at + bytes] = 0;
}

/* ---- gates ----------------------------------------------------------------------------------- */

enum { DEEP = 1, BOTH = 2, BARE = 4, NORMS = 8, PROJECTED = 16, TIME_FIRST = 32 };

static const struct { mlc_rnn_kind kind; unsigned with; int32_t gates; } CASES[] = {
    {MLC_RNN_TANH, 0, 1}, {MLC_RNN_RELU, BARE | DEEP, 2}, {MLC_RNN_GRU, 0, 1},
    {MLC_RNN_GRU, BOTH | DEEP, 4}, {MLC_RNN_LSTM, 0, 1}, {MLC_RNN_LSTM, BOTH | DEEP | BARE, 4},
    {MLC_RNN_LSTM, PROJECTED | TIME_FIRST, 1}, {MLC_RNN_LSTM, NORMS, 1},
    {MLC_RNN_GRU, NORMS | BARE, 1}};

enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

static mlc_module *rnn_of(mlc_ctx *ctx, int i)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(CASES[i].kind, IN, HIDDEN);
    d.layers = CASES[i].with & DEEP ? 2 : 1;
    d.bidirectional = (CASES[i].with & BOTH) != 0;
    d.no_bias = (CASES[i].with & BARE) != 0;
    d.layer_norm = (CASES[i].with & NORMS) != 0;
    d.projection = CASES[i].with & PROJECTED ? 5 : 0;
    d.time_first = (CASES[i].with & TIME_FIRST) != 0;
    return mlc_nn_rnn_ex(ctx, &d);
}

static mlc_status sketch(mlc_module *m, int64_t rank, bool fresh, int32_t *n)
{
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, rank);
    d.fresh = fresh;
    d.larger_too = true;
    return mlc_sketch_model(m, &d, n);
}

/* Gives weight_ih and bias_ih of m what the child of that name in `of` does with unit vectors and
 * with 0. */
static void set_gates(mlc_module *m, mlc_module *of, mlc_module *child, const char *end)
{
    char          name[64];
    mlc_ctx      *ctx = mlc_module_ctx(m);
    snprintf(name, sizeof name, "weight_%s", end);
    mlc_tensor *w = mlc_module_param(m, name);
    if (!CHECK(w != NULL && !mlc_module_param(of, name)))
        return;
    mlc_error_clear(ctx);
    mlc_tensor *zero = mlc_forward(child, mlc_zeros(ctx, w->dtype, mlc_dims2(1, w->shape[1])));
    mlc_tensor *each = mlc_forward(child, mlc_eye(ctx, w->dtype, w->shape[1], w->shape[1]));
    CHECK_EQ(mlc_copy_into(w, mlc_transpose(mlc_sub(each, zero), 0, 1)), MLC_OK);
    snprintf(name, sizeof name, "bias_%s", end);
    mlc_tensor *bias = mlc_module_param(m, name), *own = mlc_module_param(of, name);
    if (bias)
        CHECK_EQ(mlc_copy_into(bias, own ? own : mlc_reshape(zero, mlc_dims1(-1))), MLC_OK);
    mlc_error_clear(ctx);
}

static void set_all_gates(mlc_module *m, mlc_module *of)
{
    static const char *const ends[] = {"ih_l0", "ih_l0_reverse", "ih_l1", "ih_l1_reverse"};
    mlc_no_grad_begin(mlc_module_ctx(m));
    for (int32_t k = 0, i = 0; k < 4; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s.s1", ends[k]);
        if (mlc_module_param(of, name))
            set_gates(m, of, mlc_module_child(of, i++), ends[k]);
    }
    mlc_error_clear(mlc_module_ctx(m));
    mlc_no_grad_end(mlc_module_ctx(m));
}

static void check_case(mlc_ctx *ctx, int i, mlc_dtype dtype, double tol)
{
    mlc_module *dense = rnn_of(ctx, i), *m;
    mlc_tensor *y[2], *state[2][2], *lengths = NULL;
    int32_t     n = 0;
    CHECK_EQ(mlc_module_to(dense, dtype), MLC_OK);
    m = mlc_module_clone(dense);
    CHECK_EQ(sketch(m, 4, false, &n), MLC_OK);
    CHECK_EQ(n, CASES[i].gates);
    set_all_gates(dense, m);
    mlc_tensor *x = test_rand(ctx, dtype, CASES[i].with & TIME_FIRST ? mlc_dims3(T, B, IN)
                                                                     : mlc_dims3(B, T, IN), 1, -1,
                              1);
    for (int round = 0; round < 2; round++) {
        const double rows[B] = {4, 0, 6};
        if (round)
            lengths = test_tensor(ctx, MLC_I64, mlc_dims1(B), rows);
        for (int k = 0; k < 2; k++)
            CHECK_EQ(mlc_rnn_forward(k ? m : dense, x, lengths, NULL, &y[k], state[k]), MLC_OK);
        const double gap = apart(y[0], y[1]) + apart(state[0][0], state[1][0]);
        if (!CHECK(gap <= tol))
            printf("  case %d: %g\n", i, gap);
    }
    CHECK_OK(ctx);
}

TEST(sketch_recurrent, gates_are_those_of_the_weights_that_they_stand_for)
{
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < CASE_COUNT; i++) {
            mlc_scope_begin(ctx);
            check_case(ctx, i, MLC_F64, 1e-12);
            check_case(ctx, i, MLC_F32, 1e-4);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* With rank enough the fit is the weight, and all stays as it was. */
TEST(sketch_recurrent, a_fit_of_full_rank_is_the_layer)
{
    for (int i = 0; i < CASE_COUNT; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *m = rnn_of(ctx, i);
        CHECK_EQ(mlc_module_to(m, MLC_F64), MLC_OK);
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(B, B, IN), 1, -1, 1), *y[2];
        CHECK_EQ(mlc_module_forward(m, &x, 1, &y[0], 1), MLC_OK);
        CHECK_EQ(sketch(m, 96, false, NULL), MLC_OK);
        CHECK_EQ(mlc_module_forward(m, &x, 1, &y[1], 1), MLC_OK);
        const double gap = apart(y[0], y[1]);
        if (!CHECK(gap <= 1e-9))
            printf("  case %d: %g\n", i, gap);
        CHECK_OK(ctx);
    }
}

static mlc_tensor *run(void *user, mlc_tensor *const *in, int32_t n)
{
    (void)n;
    return mlc_forward((mlc_module *)user, in[0]);
}

/* The module's parameters are inputs of the check, after x: those that forward reads. */
static void check_gradients(mlc_module *m, mlc_tensor *x)
{
    mlc_tensor          *in[24];
    mlc_gradcheck_report r;
    int32_t              n = 0;
    memset(&r, 0, sizeof r);
    in[n++] = x;
    for (mlc_param_iter it = mlc_param_iter_make(m); mlc_param_next(&it);)
        if (it.trainable && CHECK(n < 24))
            in[n++] = it.tensor;
    CHECK(n > 2);
    CHECK_EQ(mlc_gradcheck(run, m, in, n, NULL, &r), MLC_OK);
    if (!CHECK(r.ok && r.input >= 0))
        printf("  input %d, element %" PRId64 ": %g, differences say %g; %s\n", (int)r.input,
               r.index, r.analytic, r.numeric, mlc_error(mlc_module_ctx(m)));
}

TEST(sketch_recurrent, gradients_match_central_differences)
{
    static const int which[] = {0, 3, 4, 7};
    for (int i = 0; i < 4; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *m = rnn_of(ctx, which[i]);
        CHECK_EQ(mlc_module_to(m, MLC_F64), MLC_OK);
        CHECK_EQ(sketch(m, 2, false, NULL), MLC_OK);
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(2, 3, IN), 1, -1, 1);
        mlc_set_requires_grad(x, true);
        check_gradients(m, x);
        CHECK_OK(ctx);
    }
}

/* A network of an LSTM between a table and a head. */
static mlc_module *reader(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add_named(net, "table", mlc_nn_embedding(ctx, 200, 32));
    mlc_module_add_named(net, "lstm", mlc_nn_lstm(ctx, 32, 40));
    mlc_module_add_named(net, "head", mlc_nn_linear(ctx, 40, 5));
    return net;
}

static double train(mlc_module *net, mlc_optim *opt, int steps, bool cast)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    double      last = 0;
    for (int i = 0; i < steps; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(4, 7), 200, 1);
        mlc_tensor *want = test_tokens(ctx, mlc_dims2(4, 7), 5, 2);
        if (cast)
            CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *y = mlc_forward(net, x);
        if (!CHECK(y != NULL))
            printf("  %s\n", mlc_error(ctx));
        mlc_tensor *loss = y ? mlc_cross_entropy(mlc_reshape(y, mlc_dims2(-1, 5)),
                                                 mlc_reshape(want, mlc_dims1(-1))) : NULL;
        if (cast)
            CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        last = loss ? mlc_item(loss) : 9;
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    return last;
}

static mlc_sketch_model_desc of_all(int64_t rank)
{
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, rank);
    d.embeddings = true;
    d.write = hear;
    return d;
}

/* Sizes: 160 by 32 gates, 200 by 32 tables, of rank 8. */
TEST(sketch_recurrent, a_network_is_sketched_by_name_and_size)
{
    mlc_ctx              *ctx = test_ctx();
    mlc_module           *net = reader(ctx);
    mlc_optim            *opt = mlc_adamw(net, 0.02);
    mlc_sketch_model_desc d = of_all(8);
    int32_t               n = -1;
    train(net, opt, 2, false);
    mlc_tensor *hh = mlc_copy(mlc_module_param(net, "lstm.weight_hh_l0"));
    d.no_recurrent = true;
    d.embeddings = false;
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 0);
    d = of_all(8);
    d.pattern = "lstm.ih_l1*";
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 0);
    const int64_t before = mlc_module_numel(net, true);
    d.pattern = NULL;
    said[0] = 0;
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 2);
    CHECK_HAS(said, "lstm.ih_l0                     LSTM           5,120        1,536");
    CHECK_HAS(said, "10,240        6,144");
    CHECK_HAS(said, "table                          Embedding      6,400        1,600");
    CHECK_HAS(said, "2 layers: 11,520 numbers became 3,136");
    CHECK_EQ(mlc_module_numel(net, true), before - 11520 + 3136);
    CHECK_EQ(mlc_module_param(net, "table.s")->shape[1], 8);
    CHECK_EQ(mlc_module_param(net, "lstm.ih_l0.s2")->shape[1], 160);
    CHECK_EQ(mlc_module_param(net, "lstm.ih_l0.bias")->shape[0], 160);
    CHECK(apart(hh, mlc_module_param(net, "lstm.weight_hh_l0")) == 0);
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);       /* nothing is left to do              */
    CHECK_EQ(n, 0);
    const double first = train(net, opt, 1, false), last = train(net, opt, 60, false);
    if (!CHECK(last < 0.3 * first))
        printf("  %g to %g\n", first, last);
    CHECK_OK(ctx);
}

TEST(sketch_recurrent, frozen_and_tied_parameters_stay_so)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_gru(ctx, 32, 32), mlc_nn_gru(ctx, 32, 32),
                                     mlc_nn_gru(ctx, 32, 32));
    int32_t n = 0;
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 4);
    mlc_module_tie(mlc_module_child(net, 2), "weight_ih_l0", mlc_module_param(net,
                                                                              "1.weight_ih_l0"));
    CHECK_EQ(mlc_module_freeze(net, "0.*_ih_l0", true), MLC_OK);
    const int64_t before = mlc_module_numel(net, true);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 1);
    CHECK_EQ(mlc_module_numel(net, true), before);
    CHECK(mlc_module_param(net, "0.ih_l0.s1") && mlc_module_param(net, "1.weight_ih_l0"));
    mlc_module *child = mlc_module_child(mlc_module_child(net, 0), 0);
    CHECK(!mlc_module_is_training(child));
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    CHECK(mlc_module_is_training(child));
    CHECK_OK(ctx);
}

/* Of all forms: a file, a clone, recompute and autocast give what the network gives. */
TEST(sketch_recurrent, files_clones_recompute_and_autocast)
{
    mlc_ctx              *ctx = test_ctx();
    box                   file = box_open("reader.safetensors");
    mlc_module           *net = reader(ctx), *other = reader(ctx);
    mlc_sketch_model_desc d = of_all(6);
    mlc_tensor           *x = test_tokens(ctx, mlc_dims2(2, 9), 200, 3);
    CHECK_EQ(mlc_sketch_model(net, &d, NULL), MLC_OK);
    d.fresh = true;
    CHECK_EQ(mlc_sketch_model(other, &d, NULL), MLC_OK);
    CHECK(apart(mlc_forward(net, x), mlc_forward(other, x)) > 1e-3);
    CHECK_EQ(mlc_save(net, file.path), MLC_OK);
    CHECK_EQ(mlc_load(other, file.path), MLC_OK);
    CHECK(apart(mlc_forward(net, x), mlc_forward(other, x)) == 0);
    box_close(&file);
    mlc_module *again = mlc_module_clone(net), *cast = mlc_module_clone(net);
    CHECK(apart(mlc_forward(net, x), mlc_forward(again, x)) == 0);
    CHECK_EQ(mlc_module_recompute(again, 1), MLC_OK);
    const double want = train(net, mlc_adamw(net, 0.01), 4, false);
    CHECK_NEAR(train(again, mlc_adamw(again, 0.01), 4, false), want, 1e-6);
    CHECK_NEAR(train(cast, mlc_adamw(cast, 0.01), 4, true), want, 0.05);
    CHECK_OK(ctx);
}

/* A cache goes step by step, a plan and integers take the children as they are. */
TEST(sketch_recurrent, caches_plans_and_integers)
{
    ONLY_ON_HOST();
    mlc_ctx              *ctx = test_ctx();
    mlc_module           *net = reader(ctx);
    mlc_sketch_model_desc d = of_all(6);
    mlc_tensor           *x = test_tokens(ctx, mlc_dims2(2, 9), 200, 3);
    CHECK_EQ(mlc_sketch_model(net, &d, NULL), MLC_OK);
    mlc_module_train(net, false);
    mlc_no_grad_begin(ctx);
    mlc_tensor          *want = mlc_forward(net, x);
    const mlc_cache_desc cd = mlc_cache_desc_make(2, 9);
    mlc_cache           *cache = mlc_cache_create(net, &cd);
    for (int64_t i = 0; i < 9; i++)
        CHECK(apart(mlc_forward_cached(net, mlc_slice(x, 1, i, i + 1, 1), cache),
                    mlc_slice(want, 1, i, i + 1, 1)) <= 1e-5);
    mlc_cache_free(cache);
    mlc_tensor *y = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 9, 5));
    mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL);
    CHECK_EQ(mlc_plan_run(p, &x, 1, &y, 1), MLC_OK);
    CHECK(apart(y, want) <= 1e-5);
    mlc_plan_free(p);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    CHECK_EQ(mlc_module_param(net, "lstm.ih_l0.s1")->dtype, MLC_I8);
    const double gap = apart(mlc_forward(net, x), want);
    if (!CHECK(gap > 0 && gap < 0.05))
        printf("  integers: %g\n", gap);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static mlc_module *table_of(mlc_ctx *ctx, mlc_tensor *w, int64_t rank, mlc_sketch_start start,
                            double *error)
{
    mlc_nn_skembedding_desc d = mlc_nn_skembedding_desc_make(w->shape[0], w->shape[1], rank);
    d.weight = w;
    d.start = start;
    d.error = error;
    d.has_seed = true;
    d.seed = 7;
    d.embedding.has_dtype = true;
    d.embedding.dtype = w->dtype;
    return mlc_nn_skembedding_ex(ctx, &d);
}

/* The signs that a table of that seed has. */
static mlc_tensor *signs(mlc_ctx *ctx, int64_t rank, int64_t d, int64_t seed)
{
    mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SIGNS, rank, d, (uint64_t)seed);
    s.stream = 1;
    return mlc_sketch_matrix(ctx, &s, MLC_F64);
}

TEST(sketch_recurrent, rows_are_those_of_the_product)
{
    FOR_EACH_ISA(ctx) {
        mlc_scope_begin(ctx);
        mlc_module *m = mlc_nn_skembedding(ctx, 50, 37, 5);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(3, 4), 50, 1), *y = mlc_forward(m, x);
        int64_t     seed = 0;
        CHECK_EQ(mlc_read(mlc_module_param(m, "seed"), &seed, sizeof seed), MLC_OK);
        mlc_tensor *s = mlc_cast(mlc_module_param(m, "s"), MLC_F64);
        mlc_tensor *all = mlc_matmul(s, signs(ctx, 5, 37, seed));
        CHECK(apart(y, mlc_embedding(x, all)) <= 1e-5);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        CHECK_OK(ctx);
        mlc_module_free(m);
    }
}

TEST(sketch_recurrent, a_table_starts_as_wide_as_a_dense_one)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_skembedding(ctx, 400, 128, 16);
    mlc_tensor *at = mlc_arange(ctx, MLC_I64, 0, 400, 1);
    mlc_tensor *y = mlc_cast(mlc_detach(mlc_forward(m, at)), MLC_F64);
    CHECK_NEAR(mlc_item(mlc_mean_all(y)), 0, 0.02);
    CHECK_NEAR(mlc_item(mlc_mean_all(mlc_square(y))), 1, 0.06);
    CHECK_OK(ctx);
}

TEST(sketch_recurrent, a_table_has_gradients_of_its_rows)
{
    mlc_ctx                *ctx = test_ctx();
    mlc_nn_skembedding_desc d = mlc_nn_skembedding_desc_make(9, 7, 3);
    d.embedding.embedding.has_padding_index = true;
    d.embedding.embedding.padding_index = -2;
    d.embedding.dtype = MLC_F64;
    mlc_module *m = mlc_nn_skembedding_ex(ctx, &d);
    const double at[6] = {1, 7, 4, 1, 0, 7};
    mlc_tensor *x = test_tensor(ctx, MLC_I64, mlc_dims2(2, 3), at);
    mlc_tensor *g = test_rand(ctx, MLC_F64, mlc_dims3(2, 3, 7), 1, -1, 1);
    int64_t     seed = 0;
    mlc_tensor *y = mlc_forward(m, x);
    CHECK_EQ(mlc_backward(mlc_sum_all(mlc_mul(y, g))), MLC_OK);
    CHECK_EQ(mlc_read(mlc_module_param(m, "seed"), &seed, sizeof seed), MLC_OK);
    mlc_tensor *rows = mlc_matmul(g, mlc_transpose(signs(ctx, 3, 7, seed), 0, 1));
    mlc_tensor *got = mlc_grad(mlc_module_param(m, "s")), *want = mlc_zeros(ctx, MLC_F64,
                                                                             mlc_dims2(9, 3));
    rows = mlc_reshape(rows, mlc_dims2(6, 3));
    const int from[4] = {0, 3, 2, 4}, to[4] = {1, 1, 4, 0};        /* row 7 is the padding       */
    for (int i = 0; i < 4; i++) {
        mlc_tensor *row = mlc_slice(want, 0, to[i], to[i] + 1, 1);
        mlc_copy_into(row, mlc_add(row, mlc_slice(rows, 0, from[i], from[i] + 1, 1)));
    }
    CHECK(apart(got, want) <= 1e-13);
    y = mlc_slice(mlc_reshape(y, mlc_dims2(6, 7)), 0, 1, 2, 1);
    CHECK(apart(y, mlc_zeros(ctx, MLC_F64, mlc_dims2(1, 7))) == 0);
    CHECK_OK(ctx);
}

/* |w - table| / |w| of each start: fits are the least of theirs, that by subspace of all. */
TEST(sketch_recurrent, starts_from_a_table_have_the_errors_that_they_tell)
{
    ONLY_ON_HOST();                    /* singular values                                        */
    enum { N = 60, D = 20, RANK = 6 };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *at = mlc_arange(ctx, MLC_I64, 0, N, 1);
    mlc_tensor *by = mlc_exp(mlc_mul_scalar(mlc_arange(ctx, MLC_F64, 0, D, 1), -0.2));
    mlc_tensor *w = mlc_mul(test_rand(ctx, MLC_F64, mlc_dims2(N, D), 3, -1, 1), by);
    const double all = mlc_item(mlc_norm(w, 2, mlc_dims0(), false));
    double      e[5] = {0};
    for (int i = 0; i < 5; i++) {
        mlc_module *m = table_of(ctx, w, RANK, (mlc_sketch_start)i, &e[i]);
        mlc_tensor *rest = mlc_sub(mlc_detach(mlc_forward(m, at)), w);
        CHECK_NEAR(mlc_item(mlc_norm(rest, 2, mlc_dims0(), false)) / all, e[i], 1e-9);
        CHECK_EQ(mlc_module_param(m, "u") != NULL, i == MLC_SKETCH_SUBSPACE);
        mlc_error_clear(ctx);
    }
    CHECK(e[MLC_SKETCH_FRESH] == e[MLC_SKETCH_FIT]);
    CHECK(e[MLC_SKETCH_FIT] < e[MLC_SKETCH_COPY_SCALED] && e[3] < 1);
    CHECK(e[MLC_SKETCH_COPY_SCALED] < e[MLC_SKETCH_COPY]);
    mlc_tensor *s = mlc_linalg_svd(w, NULL, NULL);
    const double left = mlc_item(mlc_norm(mlc_slice(s, 0, RANK, D, 1), 2, mlc_dims0(), false));
    CHECK_NEAR(e[MLC_SKETCH_SUBSPACE], left / all, 2e-3);
    CHECK_OK(ctx);
}

/* Tables are children that a language model has pointers to. */
TEST(sketch_recurrent, a_language_model_of_sketched_tables)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(64, 8, 1, 16, 2);
    g.tied = false;
    g.layer.dropout = 0;
    mlc_module           *net = mlc_nn_gpt(ctx, &g);
    mlc_tensor           *x = test_tokens(ctx, mlc_dims2(2, 8), 64, 3);
    mlc_sketch_model_desc d = of_all(16);
    int32_t               n = 0;
    d.no_linear = true;
    d.larger_too = true;
    mlc_tensor *want = mlc_copy(mlc_forward(net, x));
    CHECK_EQ(mlc_sketch_model(net, &d, &n), MLC_OK);
    CHECK_EQ(n, 2);
    CHECK(mlc_module_param(net, "embed.s") && mlc_module_param(net, "positions.s"));
    CHECK(apart(mlc_forward(net, x), want) <= 1e-3);       /* a fit of full rank                 */
    CHECK_OK(ctx);
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void listen(void *user, mlc_log_level level, const char *text)
{
    (void)user;
    if (level == MLC_LOG_WARNING)
        snprintf(said, sizeof said, "%s", text);
}

TEST(sketch_recurrent, ranks_that_do_not_gain_are_told)
{
    mlc_ctx_desc desc = test_desc();
    desc.log = listen;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&desc));
    said[0] = 0;
    mlc_nn_skembedding(ctx, 1000, 16, 15);
    CHECK(said[0] == 0);
    mlc_nn_skembedding(ctx, 1000, 16, 16);
    CHECK_HAS(said, "nn_skembedding: 1000 rows of 16 with rank 16 store 16,000 numbers, a table "
              "16,000; FLOP of a row: forward 512, training step 1.02e+03, of a table none. Less "
              "than a table below rank 16 (numbers)");
    said[0] = 0;
    CHECK_EQ(sketch(mlc_nn_lstm(ctx, 32, 8), 8, true, NULL), MLC_OK);
    CHECK(said[0] == 0);               /* below 32 * 32 / (2 * 64)                               */
    CHECK_EQ(sketch(mlc_nn_lstm(ctx, 32, 8), 9, true, NULL), MLC_OK);
    CHECK_HAS(said, "32 -> 32 with rank 1 x 9");
}

static void check_refused(mlc_ctx *ctx, const void *made, const char *part)
{
    CHECK(!made);
    CHECK_HAS(mlc_error(ctx), part);
    mlc_error_clear(ctx);
}

TEST(sketch_recurrent, errors)
{
    mlc_ctx                *ctx = test_ctx();
    mlc_sketch_model_desc   m = of_all(2);
    mlc_nn_skembedding_desc d = mlc_nn_skembedding_desc_make(8, 4, 2);
    mlc_tensor             *w = test_rand(ctx, MLC_F32, mlc_dims2(8, 5), 1, -1, 1);
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, NULL), "n 0, d 0, low_rank 0; all must be 1");
    check_refused(ctx, mlc_nn_skembedding(ctx, 8, 4, 0), "n 8, d 4, low_rank 0; all must be 1");
    d.seed = 3;
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, &d), "nn_skembedding: ");
    d = mlc_nn_skembedding_desc_make(8, 4, 2);
    d.embedding.embedding.max_norm = 1;
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, &d), "max_norm; rows are not stored");
    d = mlc_nn_skembedding_desc_make(8, 4, 2);
    d.embedding.embedding.has_padding_index = true;
    d.embedding.embedding.padding_index = 8;
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, &d), "padding_index is 8");
    d = mlc_nn_skembedding_desc_make(8, 4, 2);
    d.start = MLC_SKETCH_FIT;
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, &d), "start 3; it may be an mlc_sketch_start");
    d.weight = w;
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, &d), "the weight is [8,5]; it must be [n,d], "
                  "[8,4]");
    d.weight = mlc_cast(w, MLC_BF16);
    check_refused(ctx, mlc_nn_skembedding_ex(ctx, &d), "the weight is bf16");
    CHECK_EQ(mlc_sketch_model(mlc_nn_embedding(ctx, 8, 4), &m, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "a layer itself cannot be replaced");
    mlc_error_clear(ctx);
    mlc_module *bag = mlc_nn_sequential(ctx);
    mlc_nn_embedding_desc e = mlc_nn_embedding_desc_make(80, 40);
    int32_t     n = -1;
    e.embedding.max_norm = 1;
    mlc_module_add(bag, mlc_nn_embedding_ex(ctx, &e));
    CHECK_EQ(mlc_sketch_model(bag, &m, &n), MLC_OK);
    CHECK_EQ(n, 0);                    /* rows with a limit stay                                 */
    CHECK_OK(ctx);
}
