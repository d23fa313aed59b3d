/* test_embedding.c -- rows of a table: values, gradients, which rows were touched, ties, bags */
#include "mlc_test.h"

/* Indices that repeat, of a table of n rows. */
static mlc_tensor *indices(mlc_ctx *ctx, mlc_dims shape, int64_t n, uint64_t seed)
{
    return mlc_cast(test_rand(ctx, MLC_F64, shape, seed, 0, (double)n), MLC_I64);
}

/* ---- the operation ------------------------------------------------------------------------ */

TEST(embedding, gives_rows_of_any_layout_and_dtype)
{
    static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 4; k++)
        for (int d = 1; d < 40; d += 19)
            for (int layout = 0; layout < 4; layout++) {
                mlc_tensor *w = test_rand(ctx, FLOATS[k], mlc_dims2(layout & 1 ? d : 7,
                                                                    layout & 1 ? 7 : d), 1, -1, 1);
                mlc_tensor *i = indices(ctx, mlc_dims2(5, 4), 7, 2);
                double      want[20 * 39], index[20];
                if (layout & 1)
                    w = mlc_transpose(w, 0, 1);
                if (layout & 2)
                    i = mlc_transpose(i, 0, 1);
                static double table[7 * 39];
                test_read(w, table);
                test_read(i, index);
                for (int r = 0; r < 20; r++)
                    for (int c = 0; c < d; c++)
                        want[r * d + c] = table[(int)index[r] * d + c];
                mlc_tensor *y = mlc_embedding(i, w);
                CHECK_EQ(y->ndim, 3);
                CHECK_VALUES(y, 20 * d, want, 0, 0);
            }
    CHECK_EQ(mlc_embedding(mlc_zeros(ctx, MLC_I64, mlc_dims0()),
                           mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)))->ndim, 1);
    CHECK_EQ(mlc_dim(mlc_embedding(mlc_zeros(ctx, MLC_I64, mlc_dims2(0, 5)),
                                   mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3))), 2), 3);
    CHECK_OK(ctx);
}

typedef struct look { mlc_tensor *index, *offsets, *factor; int form; } look;

static mlc_tensor *look_loss(void *user, mlc_tensor *const *in, int32_t n)
{
    const look *l = (const look *)user;
    mlc_embedding_bag_desc b = mlc_embedding_bag_desc_make();
    mlc_embedding_desc     e = mlc_embedding_desc_make();
    mlc_tensor            *y;
    if (l->form < 2) {
        e.has_padding_index = l->form == 1;
        y = mlc_embedding_ex(l->index, in[0], &e);
    } else {
        b.reduction = l->form == 2 ? MLC_REDUCTION_MEAN : MLC_REDUCTION_SUM;
        b.weights = n > 1 ? in[1] : NULL;
        y = mlc_embedding_bag_ex(l->index, l->offsets, in[0], &b);
    }
    return mlc_sum_all(mlc_mul(y, mlc_reshape(l->factor, mlc_dims_of(y->ndim, y->shape))));
}

TEST(embedding, gradients_match_central_differences)
{
    static const double at[] = {0, 3, 3, 8};
    mlc_ctx *ctx = test_ctx();
    for (int form = 0; form < 6; form++) {
        const bool           bag = form > 1, flat = form == 2 || form == 3;
        mlc_tensor          *in[2];
        mlc_gradcheck_report r;
        mlc_gradcheck_desc   d = mlc_gradcheck_desc_make();
        look                 l;
        in[0] = test_rand(ctx, MLC_F64, mlc_dims2(5, 3), 1, -1, 1);
        in[1] = test_rand(ctx, MLC_F64, flat ? mlc_dims1(12) : mlc_dims2(4, 3), 4, -1, 1);
        l.index = indices(ctx, flat ? mlc_dims1(12) : mlc_dims2(4, 3), 5, 3);
        l.offsets = flat ? test_tensor(ctx, MLC_I64, mlc_dims1(4), at) : NULL;
        l.factor = test_rand(ctx, MLC_F64, mlc_dims1(bag ? 12 : 36), 5, -1, 1);
        l.form = form;
        if (form == 1) {               /* the padding row has no gradient, but a difference    */
            mlc_tensor *y;
            double      g[15];
            mlc_set_requires_grad(in[0], true);
            y = look_loss(&l, in, 1);
            CHECK_EQ(mlc_backward(y), MLC_OK);
            CHECK_EQ(mlc_backward(look_loss(&l, in, 1)), MLC_OK);
            test_read(mlc_grad(in[0]), g);
            CHECK(g[0] == 0 && g[1] == 0 && g[2] == 0 && g[3] != 0);
            continue;
        }
        for (int i = 0; i < 2; i++)
            mlc_set_requires_grad(in[i], true);
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(look_loss, &l, in, form > 2 ? 2 : 1, &d, &r), MLC_OK);
        CHECK(r.ok);
    }
    CHECK_OK(ctx);
}

TEST(embedding, sums_of_16_bits_are_rounded_once)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = mlc_ones(ctx, MLC_BF16, mlc_dims2(3, 2));
    double      g[6];
    mlc_set_requires_grad(w, true);
    CHECK_EQ(mlc_backward_from(mlc_embedding(mlc_ones(ctx, MLC_I64, mlc_dims1(1001)), w), NULL),
             MLC_OK);
    test_read(mlc_grad(w), g);
    CHECK(g[0] == 0 && g[2] == 1000 && g[3] == 1000 && g[5] == 0);   /* 1001 in 8 bits         */
    CHECK_OK(ctx);
}

TEST(embedding, shortens_the_rows_it_takes_and_no_others)
{
    static const double table[] = {3, 4, 30, 40, 0.3, 0.4, 1, 0};
    mlc_ctx           *ctx = test_ctx();
    mlc_tensor        *w = test_tensor(ctx, MLC_F64, mlc_dims2(4, 2), table);
    mlc_embedding_desc d = mlc_embedding_desc_make();
    const double       index[] = {0, 2, 0}, k = 1 / (5 + 1e-7);
    const double       want[] = {3 * k, 4 * k, 30, 40, 0.3, 0.4, 1, 0};
    d.max_norm = 1;
    mlc_set_requires_grad(w, true);
    mlc_tensor *y = mlc_embedding_ex(test_tensor(ctx, MLC_I64, mlc_dims1(3), index), w, &d);
    CHECK_VALUES(w, 8, want, 1e-15, 0);
    CHECK_NEAR(mlc_item_at(y, mlc_dims2(2, 1)), 4 * k, 1e-15);
    d.norm_type = 1;
    mlc_embedding_ex(test_tensor(ctx, MLC_I64, mlc_dims1(3), index), w, &d);
    CHECK_NEAR(mlc_item_at(w, mlc_dims2(0, 0)), 3.0 / 7, 1e-6);
    d.norm_type = INF;
    d.max_norm = 20;
    mlc_embedding_ex(mlc_ones(ctx, MLC_I64, mlc_dims1(1)), w, &d);
    CHECK_NEAR(mlc_item_at(w, mlc_dims2(1, 0)), 15, 1e-6);
    CHECK_OK(ctx);
}

TEST(embedding, says_what_is_wrong)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims2(4, 3)), *i = mlc_ones(ctx, MLC_I64,
                                                                          mlc_dims1(6));
    mlc_tensor *off = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
    mlc_embedding_desc     d = mlc_embedding_desc_make();
    mlc_embedding_bag_desc b = mlc_embedding_bag_desc_make();
    static const double    outside[] = {0, 3, 4, 1}, falls[] = {0, 3, 1}, late[] = {1, 2};
    static const double    far[] = {0, 7};
    if (test_on_host()) {
        mlc_embedding(test_tensor(ctx, MLC_I64, mlc_dims2(2, 2), outside), w);
        CHECK_HAS(mlc_error(ctx), "embedding: index 4 at position 2 is not in [0,4)");
        CHECK_STATUS(ctx, MLC_ERR_VALUE);
        mlc_embedding_bag(i, test_tensor(ctx, MLC_I64, mlc_dims1(3), falls), w);
        CHECK_HAS(mlc_error(ctx), "embedding_bag, lengths of bags: index -2 at position 1");
        CHECK_STATUS(ctx, MLC_ERR_VALUE);
        mlc_embedding_bag(i, test_tensor(ctx, MLC_I64, mlc_dims1(2), late), w);
        CHECK_HAS(mlc_error(ctx), "embedding_bag, first offset: index 1");
        CHECK_STATUS(ctx, MLC_ERR_VALUE);
        mlc_embedding_bag(i, test_tensor(ctx, MLC_I64, mlc_dims1(2), far), w);
        CHECK_HAS(mlc_error(ctx), "lengths of bags: index 7 at position 0");
        CHECK_STATUS(ctx, MLC_ERR_VALUE);
    }
    CHECK(!mlc_embedding(w, w));
    CHECK_HAS(mlc_error(ctx), "embedding: the index is f32; write mlc_cast(index, MLC_I64)");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(!mlc_embedding(i, i));
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(!mlc_embedding(i, mlc_ones(ctx, MLC_F32, mlc_dims1(4))));
    CHECK_HAS(mlc_error(ctx), "embedding: the table is [4]; it must be [n,d]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(!mlc_embedding(NULL, w));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.has_padding_index = true;
    d.padding_index = -5;
    CHECK(!mlc_embedding_ex(i, w, &d));
    CHECK_HAS(mlc_error(ctx), "padding_index is -5; the rows of the table [4,3] are from -4 to 3");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_embedding_desc_make();
    d.max_norm = 0;
    CHECK(!mlc_embedding_ex(i, w, &d));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(!mlc_embedding_bag(i, NULL, w));
    CHECK_HAS(mlc_error(ctx), "the index is [6]; it must be [b,l] without offsets");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    b.weights = mlc_ones(ctx, MLC_F32, mlc_dims1(6));
    CHECK(!mlc_embedding_bag_ex(i, off, w, &b));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    b.reduction = MLC_REDUCTION_SUM;
    b.weights = mlc_ones(ctx, MLC_F32, mlc_dims1(5));
    CHECK(!mlc_embedding_bag_ex(i, off, w, &b));
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(!mlc_nn_embedding(ctx, 0, 3));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(embedding, a_bag_of_none_is_zero)
{
    static const double at[] = {0, 0, 2, 3, 3}, w[] = {1, 2, 3, 4, 5, 6};
    static const double index[] = {0, 2, 1}, mean[] = {0, 0, 3, 4, 3, 4, 0, 0, 0, 0};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *table = test_tensor(ctx, MLC_F32, mlc_dims2(3, 2), w);
    CHECK_VALUES(mlc_embedding_bag(test_tensor(ctx, MLC_I64, mlc_dims1(3), index),
                                   test_tensor(ctx, MLC_I64, mlc_dims1(5), at), table),
                 10, mean, 0, 0);
    CHECK_VALUES(mlc_embedding_bag(mlc_zeros(ctx, MLC_I64, mlc_dims2(2, 0)), NULL, table), 4, mean +
                 6, 0, 0);
    CHECK_VALUES(mlc_embedding_bag(mlc_zeros(ctx, MLC_I64, mlc_dims1(0)),
                                   mlc_zeros(ctx, MLC_I64, mlc_dims1(2)), table),
                 4, mean + 6, 0, 0);
    CHECK_OK(ctx);
}

/* ---- which rows were touched --------------------------------------------------------------- */

#define N 50
#define D 8

/* Row r of an embedding, and of the same table as an output layer: x w^T. */
typedef struct model { mlc_ctx *ctx; mlc_module *net, *table, *out; mlc_tensor *w; } model;

static model make(mlc_ctx *ctx, bool tied)
{
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(D, N);
    d.no_bias = true;
    model m;
    m.ctx = ctx;
    m.net = mlc_nn_sequential(ctx);
    m.table = mlc_nn_embedding(ctx, N, D);
    m.out = mlc_nn_linear_ex(ctx, &d);
    mlc_module_add(m.net, m.table);
    mlc_module_add(m.net, m.out);
    m.w = mlc_module_param(m.net, "0.weight");
    if (tied)
        CHECK_EQ(mlc_module_tie(m.out, "weight", m.w), MLC_OK);
    CHECK_EQ(mlc_module_build(m.net), MLC_OK);
    CHECK(mlc_module_param(m.net, "1.weight") == m.w || !tied);
    return m;
}

static const int LENGTHS[] = {3, 9, 0, 1, 40, 5};

/* uses: bits: embedding, product; twice: two embeddings of the same table. */
static mlc_tensor *uses_loss(const model *m, int step, int uses, bool twice)
{
    const int64_t length = LENGTHS[step % 6];
    mlc_tensor   *x = mlc_embedding(indices(m->ctx, mlc_dims1(length), N, 10 + (uint64_t)step),
                                    m->w);
    mlc_tensor   *k = test_rand(m->ctx, MLC_F32, mlc_dims2(4, D), 30 + (uint64_t)step, -1, 1);
    mlc_tensor   *loss = mlc_sum_all(mlc_mul_scalar(mlc_tanh(x), 2));
    if (twice)
        loss = mlc_add(loss, mlc_sum_all(mlc_embedding(indices(m->ctx, mlc_dims1(8), N, 3), m->w)));
    if ((uses & 1) == 0)
        loss = mlc_sum_all(mlc_linear(k, m->w, NULL));
    if (uses == 3)
        loss = mlc_add(loss, mlc_sum_all(mlc_linear(k, m->w, NULL)));
    return loss;
}

/* The same with a leaf, which has no record. */
static void uses_want(const model *m, const double *w, int step, int uses, bool twice, double *g)
{
    model plain = *m;
    plain.w = test_tensor(m->ctx, MLC_F32, mlc_dims2(N, D), w);
    mlc_set_requires_grad(plain.w, true);
    CHECK_EQ(mlc_backward(uses_loss(&plain, step, uses, twice)), MLC_OK);
    test_read(mlc_grad(plain.w), g);
}

TEST(embedding, gradients_are_complete_whatever_else_wrote_to_them)
{
    static const int USES[] = {1, 1, 1, 3, 1, 2, 1, 1, 3, 3, 2, 1, 1};
    mlc_ctx   *ctx = test_ctx();
    model      m = make(ctx, true);
    mlc_optim *o = mlc_sgd(m.net, 0.125);
    double     w[N * D], want[N * D], now[N * D], more[N * D];
    for (int step = 0; step < 13; step++) {
        const bool twice = step % 3 == 2, again = step % 4 == 3;
        mlc_scope_begin(ctx);
        test_read(m.w, w);
        uses_want(&m, w, step, USES[step], twice, want);
        CHECK_EQ(mlc_backward(uses_loss(&m, step, USES[step], twice)), MLC_OK);
        if (again) {                   /* added up                                             */
            uses_want(&m, w, step + 1, 1, false, more);
            CHECK_EQ(mlc_backward(uses_loss(&m, step + 1, 1, false)), MLC_OK);
            for (int i = 0; i < N * D; i++)
                want[i] += more[i];
        }
        CHECK_VALUES(mlc_grad(m.w), N * D, want, 1e-5, 1e-6);
        if (step % 5 == 4) {
            mlc_optim_zero_grad(o);
        } else {
            CHECK_EQ(mlc_optim_step(o), MLC_OK);
            test_read(m.w, now);
            for (int i = 0; i < N * D; i++)
                CHECK_NEAR(now[i], w[i] - 0.125 * want[i], 1e-5);
        }
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* w += lr (g + 0 w): a step over a row that is infinite would make NaN of it. */
static int infinite_left(mlc_tensor *w)
{
    double now[N * D];
    int    left = 0;
    test_read(w, now);
    for (int i = 0; i < N; i++)
        left += isinf(now[i * D]) != 0;
    return left;
}

typedef enum changed { NOT, SCALED, POINTER, DECAY, MOMENTUM, TIED, NOISE, CHANGES } changed;

TEST(embedding, plain_sgd_steps_touched_rows_alone_unless_others_may_have_changed)
{
    for (int c = 0; c < CHANGES; c++) {
        mlc_ctx   *ctx = test_ctx();
        model      m = make(ctx, false);
        double     w[N * D];
        for (int i = 0; i < N * D; i++)
            w[i] = i / D % 2 == 0 ? INF : 1;
        mlc_tensor *start = test_tensor(ctx, MLC_F32, mlc_dims2(N, D), w);
        mlc_no_grad_begin(ctx);
        mlc_copy_into(m.w, start);
        mlc_no_grad_end(ctx);
        mlc_sgd_desc d = mlc_sgd_desc_make(0.5);
        if (c == DECAY)
            d.weight_decay = 0.5;
        if (c == MOMENTUM)
            d.momentum = 0.5;
        mlc_optim *o = mlc_sgd_ex(m.net, &d);
        if (c == NOISE)
            CHECK_EQ(mlc_optim_noise(o, 0.1, 0.5), MLC_OK);
        for (int step = 0; step < 3; step++) {
            double index[3] = {1 + 2 * step, 7, 1 + 2 * step};
            mlc_scope_begin(ctx);
            mlc_tensor *y = mlc_forward(m.table, test_tensor(ctx, MLC_I64, mlc_dims1(3), index));
            CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
            if (c == TIED) {
                mlc_tensor *k = mlc_zeros(ctx, MLC_F32, mlc_dims2(1, D));
                CHECK_EQ(mlc_backward_from(mlc_linear(k, m.w, NULL), NULL), MLC_OK);
            }
            if (c == SCALED)
                CHECK(mlc_mul_scalar_(mlc_grad(m.w), 1) != NULL);
            if (c == POINTER && test_on_host())
                CHECK(mlc_f32(mlc_grad(m.w)) != NULL);
            CHECK_EQ(mlc_optim_step(o), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        const bool skips = c == NOT || (c == POINTER && !test_on_host());
        CHECK_EQ(infinite_left(m.w), c == DECAY || c == MOMENTUM || c == TIED || c == SCALED ||
                                     c == NOISE || !skips ? 0 : N / 2);
        double now[N * D];
        test_read(m.w, now);
        if (c == NOT)
            CHECK(now[1 * D] == 0 && now[3 * D] == 0 && now[7 * D] == -0.5 && now[9 * D] == 1);
    }
}

TEST(embedding, trains_as_a_leaf_does_with_every_optimizer)
{
    for (int k = 0; k < 4; k++) {
        mlc_ctx *ctx[2] = {test_ctx(), test_ctx()};
        double   w[2][N * D];
        for (int way = 0; way < 2; way++) {
            model          m = make(ctx[way], true);
            mlc_adam_desc  a = mlc_adam_desc_make(0.01);
            mlc_clip_desc  clip = mlc_clip_desc_make();
            mlc_optim     *o = k == 0 ? mlc_sgd(m.net, 0.1) : mlc_adamw_ex(m.net, &a);
            clip.norm = 0.5;
            if (k == 2)
                CHECK_EQ(mlc_optim_clip(o, &clip), MLC_OK);
            if (k == 3)
                CHECK_EQ(mlc_optim_scaler(o, NULL), MLC_OK);
            for (int step = 0; step < 8; step++) {
                mlc_scope_begin(ctx[way]);
                mlc_tensor *i = indices(ctx[way], mlc_dims1(LENGTHS[step % 6]), N,
                                        (uint64_t)step + 1);
                mlc_tensor *x = way ? mlc_index_select(m.w, 0, i) : mlc_forward(m.table, i);
                mlc_tensor *y = mlc_sum_all(mlc_tanh(x));
                if (step == 4)
                    y = mlc_add(y, mlc_mean_all(mlc_forward(m.out, x)));
                CHECK_EQ(mlc_backward(mlc_optim_scaled(o, y)), MLC_OK);
                CHECK_EQ(mlc_optim_step(o), MLC_OK);
                CHECK_EQ(mlc_scope_end(ctx[way]), MLC_OK);
            }
            test_read(m.w, w[way]);
        }
        CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0);
    }
}

TEST(embedding, bits_do_not_depend_on_the_number_of_threads)
{
    enum { ROWS = 300, WIDE = 70, MANY = 3000 };
    static double w[2][ROWS * WIDE];
    for (int way = 0; way < 2; way++) {
        mlc_ctx_desc d = test_desc();
        d.threads = way ? 3 : 1;
        mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
        mlc_module *m = mlc_nn_embedding(ctx, ROWS, WIDE);
        mlc_optim  *o = mlc_sgd(m, 0.1);
        for (uint64_t step = 0; step < 3; step++) {
            mlc_scope_begin(ctx);
            mlc_tensor *i = indices(ctx, mlc_dims1(MANY), step % 2 ? ROWS : 40, step);
            mlc_tensor *dy = test_rand(ctx, MLC_F32, mlc_dims2(MANY, WIDE), step, -1, 1);
            CHECK_EQ(mlc_backward_from(mlc_forward(m, i), dy), MLC_OK);
            CHECK_EQ(mlc_optim_step(o), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        test_read(mlc_module_param(m, "weight"), w[way]);
    }
    CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0);
}

TEST(embedding, a_rebuild_or_a_loaded_gradient_begins_anew)
{
    mlc_ctx   *ctx = test_ctx();
    model      m = make(ctx, false);
    mlc_optim *o = mlc_sgd(m.net, 0.1);
    double     g[N * D];
    for (int step = 0; step < 4; step++) {
        const double index = step;
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_backward_from(mlc_forward(m.table, test_tensor(ctx, MLC_I64, mlc_dims1(1),
                                                                     &index)), NULL), MLC_OK);
        test_read(mlc_grad(m.w), g);
        for (int i = 0; i < N * D; i++)
            CHECK(g[i] == (i / D == step));
        CHECK_EQ(mlc_optim_step(o), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        if (step == 0)
            CHECK_EQ(mlc_module_rebuild(m.net), MLC_OK);
        if (step == 1) {
            CHECK_EQ(mlc_module_to(m.net, MLC_BF16), MLC_OK);
            CHECK_EQ(mlc_module_to(m.net, MLC_F32), MLC_OK);
        }
    }
    CHECK_OK(ctx);
}

TEST(embedding, a_steady_step_takes_no_memory)
{
    mlc_ctx   *ctx = test_ctx();
    model      m = make(ctx, true);
    mlc_optim *o = mlc_sgd(m.net, 0.1);
    mlc_memory before, after;
    for (int step = 0; step < 8; step++) {
        if (step == 4)
            mlc_memory_info(ctx, &before);
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_backward(uses_loss(&m, 1, step % 2 ? 3 : 1, true)), MLC_OK);
        CHECK_EQ(mlc_optim_step(o), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(after.allocated, before.allocated);
}

/* ---- the module ---------------------------------------------------------------------------- */

TEST(embedding, a_module_starts_normal_and_its_padding_row_at_zero)
{
    mlc_ctx              *ctx = test_ctx();
    mlc_nn_embedding_desc d = mlc_nn_embedding_desc_make(1000, 20);
    static double         w[20000];
    double                sum = 0, squares = 0;
    d.embedding.has_padding_index = true;
    d.embedding.padding_index = -2;
    mlc_module *net = mlc_nn_sequential(ctx), *m = mlc_nn_embedding_ex(ctx, &d);
    mlc_module_add(net, m);
    test_read(mlc_module_param(m, "weight"), w);
    for (int i = 0; i < 20000; i++) {
        sum += w[i];
        squares += w[i] * w[i];
    }
    CHECK_NEAR(sum / 20000, 0, 0.03);
    CHECK_NEAR(squares / 20000, 1, 0.05);
    for (int i = 0; i < 20; i++)
        CHECK(w[998 * 20 + i] == 0 && w[999 * 20 + i] != 0);
    const double index[] = {998, 3};
    CHECK_EQ(mlc_backward_from(mlc_forward(net, test_tensor(ctx, MLC_I64, mlc_dims1(2), index)),
                               NULL), MLC_OK);
    test_read(mlc_grad(mlc_module_param(m, "weight")), w);
    CHECK(w[998 * 20] == 0 && w[60] == 1);
    CHECK_EQ(mlc_module_numel(net, true), 20000);
    d.embedding.padding_index = 1000;
    CHECK(!mlc_nn_embedding_ex(ctx, &d));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(!mlc_nn_embedding_ex(ctx, NULL));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

static void write_lines(void *user, const char *text, size_t n)
{
    strncat((char *)user, text, n);
}

TEST(embedding, a_tied_model_is_summed_up_cloned_and_copied)
{
    static char text[4096];
    mlc_ctx    *ctx = test_ctx();
    model       m = make(ctx, true);
    double      a[3 * N], b[3 * N];
    const double index[] = {4, 0, 49};
    text[0] = 0;
    CHECK_EQ(mlc_module_numel(m.net, false), N * D);
    CHECK_EQ(mlc_summary(m.net, mlc_dims1(3), write_lines, text), MLC_OK);
    CHECK_HAS(text, "[3,8]");
    CHECK_HAS(text, "Total params: 400");
    mlc_module *twin = mlc_module_clone(m.net);
    mlc_tensor *x = test_tensor(ctx, MLC_I64, mlc_dims1(3), index);
    test_read(mlc_forward(m.net, x), a);
    test_read(mlc_forward(twin, x), b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK(mlc_module_param(twin, "0.weight") == mlc_module_param(twin, "1.weight"));
    CHECK_EQ(mlc_module_tie(m.out, "weight", m.w), MLC_OK);          /* it is, already         */
    mlc_module_free(twin);
    mlc_module_free(m.net);
    CHECK_OK(ctx);
}

/* ---- positions ----------------------------------------------------------------------------- */

typedef struct turn { mlc_tensor *positions, *factor; mlc_rotary_desc desc; } turn;

static mlc_tensor *turn_loss(void *user, mlc_tensor *const *in, int32_t n)
{
    const turn *t = (const turn *)user;
    (void)n;
    return mlc_sum_all(mlc_mul(mlc_rotary(mlc_transpose(in[0], 1, 2), t->positions, &t->desc),
                               t->factor));
}

TEST(embedding, gradients_of_rotary_match_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (int form = 0; form < 4; form++) {
        mlc_tensor          *x = test_rand(ctx, MLC_F64, mlc_dims4(2, 3, 2, 6), 1, -1, 1);
        mlc_gradcheck_desc   d = mlc_gradcheck_desc_make();
        mlc_gradcheck_report r;
        turn                 t;
        t.desc = mlc_rotary_desc_make();
        t.desc.neighbours = form & 1;
        t.desc.dims = form & 2 ? 4 : -1;
        t.positions = form & 2 ? indices(ctx, mlc_dims2(2, 3), 50, 3) : NULL;
        t.factor = test_rand(ctx, MLC_F64, mlc_dims4(2, 2, 3, 6), 2, -1, 1);
        mlc_set_requires_grad(x, true);
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(turn_loss, &t, &x, 1, &d, &r), MLC_OK);
        CHECK(r.ok);
    }
    CHECK_OK(ctx);
}

TEST(embedding, rotary_takes_rows_of_a_table_and_goes_on_after_a_cache)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_rotary_desc d = mlc_rotary_desc_make(), part;
    mlc_tensor     *x = test_rand(ctx, MLC_F32, mlc_dims4(2, 2, 9, 8), 1, -1, 1);
    double          all[288], some[2 * 2 * 4 * 8];
    d.neighbours = true;
    part = d;
    test_read(mlc_rotary(x, NULL, &d), all);
    mlc_tensor *table = mlc_rotary_table(ctx, NULL, 20, 8, &d);
    CHECK_EQ(mlc_dim(table, 0), 20);
    CHECK_EQ(mlc_dim(table, 1), 12);
    for (int way = 0; way < 4; way++) {                    /* rows 5 .. 8, as if 5 were cached */
        const double at[] = {5, 6, 7, 8};
        part.offset = way < 2 ? 5 : 0;
        part.table = way & 1 ? table : NULL;
        test_read(mlc_rotary(mlc_slice(x, 2, 5, 9, 1),
                             way < 2 ? NULL : test_tensor(ctx, MLC_I64, mlc_dims1(4), at), &part),
                  some);
        for (int i = 0; i < 128; i++)
            CHECK(some[i] == all[i / 32 * 72 + 40 + i % 32]);
    }
    CHECK_OK(ctx);
}

/* Products of two turned rows depend on how far apart they are, alone. */
TEST(embedding, rotary_is_right_at_position_100000)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_rotary_desc d = mlc_rotary_desc_make();
    const double    one[] = {1, 1, 0, 0};
    mlc_tensor     *x = test_tensor(ctx, MLC_F32, mlc_dims2(1, 4), one);
    double          y[4];
    d.offset = 100000;
    test_read(mlc_rotary(x, NULL, &d), y);
    CHECK_NEAR(y[0], cos(100000.0), 1e-7);
    CHECK_NEAR(y[1], cos(1000.0), 1e-7);
    CHECK_NEAR(y[2], sin(100000.0), 1e-7);
    CHECK_NEAR(y[3], sin(1000.0), 1e-7);
    d.scale = 8;
    test_read(mlc_rotary(x, NULL, &d), y);
    CHECK_NEAR(y[0], cos(12500.0), 1e-7);
    CHECK_OK(ctx);
}

TEST(embedding, rotary_keeps_16_bits_under_autocast)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 4), 1, -1, 1);
    mlc_autocast_begin(ctx, MLC_BF16);
    CHECK_EQ(mlc_rotary(mlc_cast(x, MLC_BF16), NULL, NULL)->dtype, MLC_BF16);
    CHECK_EQ(mlc_rotary(x, NULL, NULL)->dtype, MLC_F32);
    mlc_autocast_end(ctx);
    CHECK_OK(ctx);
}

TEST(embedding, positions_say_what_is_wrong)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_tensor     *x = mlc_ones(ctx, MLC_F32, mlc_dims3(2, 4, 6));
    mlc_rotary_desc d = mlc_rotary_desc_make();
    d.dims = 5;
    CHECK(!mlc_rotary(x, NULL, &d));
    CHECK_HAS(mlc_error(ctx), "rotary: dims is 5; it must be even");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.dims = 8;
    CHECK(!mlc_rotary(x, NULL, &d));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.dims = 6;
    d.base = 0;
    CHECK(!mlc_rotary(x, NULL, &d));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(!mlc_rotary(x, mlc_zeros(ctx, MLC_I64, mlc_dims1(3)), NULL));
    CHECK_HAS(mlc_error(ctx), "does not fit a table [3,9]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(!mlc_rotary(x, mlc_zeros(ctx, MLC_I64, mlc_dims2(3, 4)), NULL));
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(!mlc_rotary(x, mlc_zeros(ctx, MLC_F32, mlc_dims1(4)), NULL));
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d = mlc_rotary_desc_make();
    d.table = mlc_rotary_table(ctx, NULL, 4, 6, NULL);
    d.offset = 1;
    CHECK(!mlc_rotary(x, NULL, &d));
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(!mlc_sinusoidal(ctx, 0, 4) && !mlc_alibi_slopes(NULL, 4));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(!mlc_sinusoidal(ctx, 3, INT64_MAX));
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "sinusoidal: shape [3,9223372036854775807] has more elements");
    CHECK(!mlc_sinusoidal(ctx, INT64_MAX, 3));
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "sinusoidal: shape [9223372036854775807,3] has more elements");
    CHECK(!mlc_alibi_slopes(ctx, 0));
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* As F.embedding_bag has it. */
TEST(embedding, no_bags_of_no_index_are_no_rows)
{
    mlc_ctx    *ctx = test_ctx();
    const double zeros[6] = {0};
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims2(3, 2));
    mlc_tensor *none = mlc_zeros(ctx, MLC_I64, mlc_dims1(0)), *y;
    mlc_set_requires_grad(w, true);
    for (int sum = 0; sum < 2; sum++) {
        mlc_embedding_bag_desc d = mlc_embedding_bag_desc_make();
        if (sum) d.reduction = MLC_REDUCTION_SUM;
        y = mlc_embedding_bag_ex(none, none, w, &d);
        if (!CHECK(y != NULL)) return;
        CHECK(y->ndim == 2 && mlc_dim(y, 0) == 0 && mlc_dim(y, 1) == 2);
        CHECK_EQ(mlc_backward(mlc_sum_all(y)), MLC_OK);
        if (mlc_grad(w)) CHECK_VALUES(mlc_grad(w), 6, zeros, 0, 0);
    }
    y = mlc_embedding_bag(mlc_zeros(ctx, MLC_I64, mlc_dims2(0, 4)), NULL, w);
    CHECK(y && mlc_dim(y, 0) == 0 && mlc_dim(y, 1) == 2);
    CHECK_OK(ctx);
    CHECK(!mlc_embedding_bag(mlc_zeros(ctx, MLC_I64, mlc_dims1(2)), none, w));
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "embedding_bag: offsets are [0], the index [2]");
}
