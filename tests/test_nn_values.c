/* test_nn_values.c -- tests of section IMPL.NN: clones, copies, states, initialisers */
#include "mlc_test.h"

/* ---- clones, copies, states ---------------------------------------------------------------- */

/* Gate of itself and a partner: knows its parameter and a module by pointers. */
typedef struct gate_user { double gain; mlc_tensor *w; mlc_module *inner; } gate_user;

static mlc_tensor *gate_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    const gate_user *u = (const gate_user *)mlc_module_user(m);
    (void)e;
    return mlc_mul(mlc_mul_scalar(mlc_forward(u->inner, x), u->gain), u->w);
}

static mlc_module *gate(mlc_ctx *ctx)
{
    static const mlc_module_class cls = {"Gate", NULL, NULL, gate_call, 0, NULL};
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, sizeof(gate_user));
    gate_user     *u = (gate_user *)mlc_module_user(m);
    memset(&d, 0, sizeof d);
    d.shape = mlc_dims1(4);
    d.init = MLC_INIT_UNIFORM;
    d.a = 1;
    d.b = 2;
    u->gain = 0.5;
    u->w = mlc_module_declare(m, "w", &d);
    u->inner = mlc_nn_linear(ctx, 4, 4);
    CHECK_EQ(mlc_module_add_named(m, "inner", u->inner), MLC_OK);
    return m;
}

/* Each kind of layer that knows its parameters, and ties. */
static mlc_module *zoo(mlc_ctx *ctx)
{
    mlc_module *first = mlc_nn_linear(ctx, 4, 4), *again = mlc_nn_linear(ctx, 4, 4);
    mlc_module *block = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 4), mlc_nn_layer_norm(ctx, 4));
    mlc_module *net = MLC_SEQUENTIAL(ctx, first, mlc_nn_batch_norm(ctx, 4), mlc_nn_relu(ctx),
        mlc_nn_residual(ctx, block, NULL, true), mlc_nn_sklinear(ctx, 4, 4, 1, 2),
        gate(ctx), mlc_nn_dropout(ctx, 0.5), mlc_nn_prelu(ctx, 4), again);
    CHECK_EQ(mlc_module_tie(again, "shared", mlc_module_param(first, "weight")), MLC_OK);
    mlc_module_freeze(net, "3.*", true);
    return net;
}

/* All values, one after the other; how many. */
static int read_all(mlc_module *m, double *to, int room)
{
    mlc_param_iter it = mlc_param_iter_make(m);
    int            n = 0;
    while (mlc_param_next(&it))
        if (CHECK(n + mlc_numel(it.tensor) <= room)) {
            test_read(it.tensor, to + n);
            n += (int)mlc_numel(it.tensor);
        }
    return n;
}

static void same_names(mlc_module *a, mlc_module *b)
{
    mlc_param_iter i = mlc_param_iter_make(a), k = mlc_param_iter_make(b);
    while (mlc_param_next(&i)) {
        if (!CHECK(mlc_param_next(&k)))
            return;
        CHECK_STR(k.name, i.name);
        CHECK(i.tensor != k.tensor && i.buffer == k.buffer && i.trainable == k.trainable);
        CHECK_EQ(i.tensor->dtype, k.tensor->dtype);
    }
    CHECK(!mlc_param_next(&k));
}

TEST(nn, a_clone_is_the_same_network_and_another_one)
{
    enum { ROOM = 200 };
    double      a[ROOM], b[ROOM], y[2][20];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = zoo(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 1, -1, 1);
    CHECK(mlc_forward(net, x) != NULL);                    /* batch norm counts                */
    mlc_module_train(mlc_module_child(net, 6), false);
    mlc_module *clone = mlc_module_clone(net);
    if (!CHECK(clone != NULL))
        return;
    CHECK_OK(ctx);
    same_names(net, clone);
    CHECK(mlc_module_is_training(clone) && !mlc_module_is_training(mlc_module_child(clone, 6)));
    CHECK(mlc_module_param(clone, "8.shared") == mlc_module_param(clone, "0.weight"));
    const int n = read_all(net, a, ROOM);
    CHECK_EQ(read_all(clone, b, ROOM), n);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    test_read(mlc_forward(net, x), y[0]);
    test_read(mlc_forward(clone, x), y[1]);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    CHECK_NEAR(mlc_item(mlc_module_param(net, "1.num_batches_tracked")), 2, 0);
    CHECK_NEAR(mlc_item(mlc_module_param(clone, "1.num_batches_tracked")), 2, 0);
    read_all(net, a, ROOM);
    mlc_optim *opt = mlc_sgd(clone, 0.1);                  /* what is trained is not the first */
    CHECK_EQ(mlc_backward(mlc_sum(mlc_square(mlc_forward(clone, x)), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    read_all(net, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    read_all(clone, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) != 0);
    mlc_module_free(net);                                  /* nothing of it is in the clone    */
    CHECK(mlc_forward(clone, x) != NULL);
    CHECK_OK(ctx);
    CHECK(mlc_module_clone(NULL) == NULL);
}

TEST(nn, a_clone_has_16_bit_parameters_too_and_reads_what_is_bound)
{
    static const float v[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    double      y[2][20];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 4), mlc_nn_batch_norm(ctx, 4));
    mlc_tensor *x = test_rand(ctx, MLC_BF16, mlc_dims2(5, 4), 1, -1, 1);
    mlc_module_train(net, false);
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    mlc_module *clone = mlc_module_clone(net);
    test_read(mlc_forward(net, x), y[0]);
    test_read(mlc_forward(clone, x), y[1]);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    if (mlc_ctx_on_host(ctx)) {
        mlc_module *bound = mlc_nn_linear(ctx, 4, 4);
        CHECK_EQ(mlc_module_bind(bound, "weight", v), MLC_OK);
        mlc_module *other = mlc_module_clone(bound);
        CHECK(mlc_f32(mlc_module_param(other, "weight")) == v);
        CHECK_EQ(mlc_module_copy(other, bound), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "module_copy: 'weight' is bound");
        mlc_error_clear(ctx);
        CHECK_EQ(mlc_state_bytes(other), 24 + 8 + 16);     /* without what does not change     */
    }
    CHECK_OK(ctx);
}

/* A class whose user data owns memory of the program. */
typedef struct owner_user { double *own; } owner_user;

static int  owner_blocks;
static bool owner_fails;

static void owner_release(mlc_module *m)
{
    free(((owner_user *)mlc_module_user(m))->own);
    owner_blocks--;
}

static mlc_status owner_clone(mlc_module *m, mlc_module *from)
{
    if (owner_fails)
        return MLC_ERR_NOMEM;
    ((owner_user *)mlc_module_user(m))->own = (double *)malloc(sizeof(double));
    *((owner_user *)mlc_module_user(m))->own = *((owner_user *)mlc_module_user(from))->own;
    owner_blocks++;
    return MLC_OK;
}

TEST(nn, a_class_that_owns_memory_clones_it_itself)
{
    static const mlc_module_class cls = {"Owner", NULL, owner_release, NULL, 0, owner_clone};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    owner_blocks = 0;
    for (int i = 0; i < 2; i++) {
        owner_user u;
        u.own = (double *)malloc(sizeof(double));
        *u.own = i + 5;
        owner_blocks++;
        CHECK_EQ(mlc_module_add(net, mlc_module_create(ctx, &cls, &u, sizeof u)), MLC_OK);
    }
    mlc_module *clone = mlc_module_clone(net);
    CHECK_EQ(owner_blocks, 4);
    owner_fails = true;                                    /* then nothing is released twice   */
    CHECK(mlc_module_clone(net) == NULL);
    CHECK_HAS(mlc_error(ctx), "module_clone: the clone of class Owner returned NOMEM");
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    owner_fails = false;
    CHECK_EQ(owner_blocks, 4);
    mlc_module_free(net);
    CHECK_EQ(owner_blocks, 2);
    const owner_user *u = (const owner_user *)mlc_module_user(mlc_module_child(clone, 1));
    CHECK(u && *u->own == 6);
    mlc_module_free(clone);
    CHECK_EQ(owner_blocks, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_state_is_the_same_bytes_whatever_the_block_held)
{
    char         block[2][256];
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *m = mlc_nn_linear(ctx, 3, 3);             /* 9 and 3 numbers: space after both */
    const size_t bytes = mlc_state_bytes(m);
    if (!CHECK(bytes > 0 && bytes <= sizeof block[0])) return;
    for (int i = 0; i < 2; i++) {
        memset(block[i], 85 * i, sizeof block[i]);
        CHECK_EQ(mlc_state_save(m, block[i], bytes), MLC_OK);
    }
    CHECK(memcmp(block[0], block[1], bytes) == 0);
    CHECK(block[0][bytes] == 0 && block[1][bytes] == 85);
    CHECK_OK(ctx);
}

TEST(nn, a_state_brings_all_values_back)
{
    enum { ROOM = 200 };
    double      a[ROOM], b[ROOM];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = zoo(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 1, -1, 1);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    const size_t bytes = mlc_state_bytes(net);
    char       *block = (char *)malloc(bytes + 1);
    const int   n = read_all(net, a, ROOM);
    CHECK_EQ(mlc_state_save(net, block + 1, bytes), MLC_OK);           /* aligned or not       */
    CHECK_EQ(mlc_backward(mlc_sum(mlc_square(mlc_forward(net, x)), mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    read_all(net, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) != 0);
    block[1 + 24]++;                                       /* a hash                           */
    CHECK_EQ(mlc_state_load(net, block + 1, bytes), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "the block has no '0.weight'");
    mlc_error_clear(ctx);
    double      c[ROOM];
    read_all(net, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
    block[1 + 24]--;
    CHECK_EQ(mlc_state_load(net, block + 1, bytes), MLC_OK);
    read_all(net, b, ROOM);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    CHECK(mlc_state_bytes(NULL) == 0 && mlc_state_save(NULL, block, bytes) == MLC_ERR_ARG);
    CHECK_EQ(mlc_state_load(NULL, block, bytes), MLC_ERR_ARG);
    free(block);
    CHECK_OK(ctx);
}

/* A head that says so many bytes as there are does not make them all values: every length is
 * tried, in memory that ends there, whose reading past its end a sanitizer sees. */
TEST(nn, a_block_without_all_its_values_changes_nothing)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = zoo(ctx);
    const size_t bytes = mlc_state_bytes(net);
    char        *block = (char *)malloc(bytes), *now = (char *)malloc(bytes);
    CHECK_EQ(mlc_state_save(net, block, bytes), MLC_OK);
    CHECK_EQ(mlc_copy_into(mlc_module_param(net, "0.weight"),
                           mlc_full(ctx, MLC_F32, mlc_dims2(4, 4), 7)), MLC_OK);
    CHECK_EQ(mlc_state_save(net, now, bytes), MLC_OK);
    for (size_t n = 0; n < bytes; n++) {
        const uint64_t said = n;
        char          *cut = (char *)malloc(n + 1) + 1;
        memcpy(cut, block, n);
        if (n >= 16) memcpy(cut + 8, &said, 8);
        if (mlc_state_load(net, cut, n) != MLC_ERR_ARG) CHECK_EQ(n, bytes);
        mlc_error_clear(ctx);
        free(cut - 1);
    }
    CHECK_EQ(mlc_state_save(net, block, bytes), MLC_OK);
    CHECK(memcmp(block, now, bytes) == 0);
    free(now);
    free(block);
    CHECK_OK(ctx);
}

/* Products of 16 bits read packed copies of weights. */
TEST(nn, packed_weights_notice_copies_states_and_mixes)
{
    enum { WIDE = 64, ROWS = 40 };
    static double y[4][ROWS * WIDE], want[ROWS * WIDE];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, WIDE, WIDE), *other = mlc_nn_linear(ctx, WIDE, WIDE);
    const size_t  bytes = mlc_state_bytes(net);
    char         *block = (char *)malloc(bytes);
    mlc_tensor   *x = test_rand(ctx, MLC_BF16, mlc_dims2(ROWS, WIDE), 1, -1, 1);
    mlc_no_grad_begin(ctx);
    test_read(mlc_forward(net, x), y[0]);
    test_read(mlc_forward(other, x), want);
    CHECK(memcmp(y[0], want, sizeof want) != 0);
    CHECK_EQ(mlc_state_save(net, block, bytes), MLC_OK);
    CHECK_EQ(mlc_module_copy(net, other), MLC_OK);
    test_read(mlc_forward(net, x), y[1]);
    CHECK(memcmp(y[1], want, sizeof want) == 0);
    CHECK_EQ(mlc_state_load(net, block, bytes), MLC_OK);
    test_read(mlc_forward(net, x), y[2]);
    CHECK(memcmp(y[2], y[0], sizeof want) == 0);
    CHECK_EQ(mlc_module_mix(net, other, 0.5), MLC_OK);
    test_read(mlc_forward(net, x), y[3]);
    CHECK(memcmp(y[3], y[0], sizeof want) != 0 && memcmp(y[3], want, sizeof want) != 0);
    mlc_no_grad_end(ctx);
    free(block);
    CHECK_OK(ctx);
}

TEST(nn, a_mix_is_a_running_average_of_floats_and_copies_counts)
{
    enum { ROOM = 200 };
    double      a[ROOM], b[ROOM], c[ROOM];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *to = zoo(ctx), *from = mlc_module_clone(to);
    mlc_param_iter it = mlc_param_iter_make(from);
    for (uint32_t i = 0; mlc_param_next(&it); i++)
        if (it.tensor->dtype == MLC_F32)
            CHECK_EQ(mlc_copy_into(it.tensor, test_rand(ctx, MLC_F32, mlc_dims_of(it.tensor->ndim,
                                   it.tensor->shape), i, -2, 2)), MLC_OK);
    mlc_fill_(mlc_module_param(from, "1.num_batches_tracked"), 7);
    const int n = read_all(to, a, ROOM);
    read_all(from, b, ROOM);
    CHECK_EQ(mlc_module_mix(to, from, 0), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_module_param(to, "1.num_batches_tracked")), 7, 0);
    CHECK_EQ(mlc_module_mix(to, from, 0.25), MLC_OK);
    read_all(to, c, ROOM);
    for (int i = 0; i < n; i++)
        if (fabs(a[i]) < 100 && b[i] != 7)                 /* not a seed, not the count        */
            CHECK_NEAR(c[i], 0.75 * a[i] + 0.25 * b[i], 1e-6);
    CHECK_EQ(mlc_module_mix(to, from, 1), MLC_OK);
    read_all(to, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
    CHECK_EQ(mlc_module_mix(to, to, 0.5), MLC_OK);         /* itself                           */
    read_all(to, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
    CHECK_OK(ctx);
    /* Nothing has changed where the last name does not fit. */
    CHECK_EQ(mlc_module_add(from, mlc_nn_prelu(ctx, 3)), MLC_OK);
    CHECK(mlc_fill_(mlc_detach(mlc_module_param(from, "7.weight")), 3) != NULL);
    CHECK_EQ(mlc_module_copy(to, from), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "module_copy: to has no '9.weight'");
    mlc_error_clear(ctx);
    read_all(to, c, ROOM);
    CHECK(memcmp(b, c, (size_t)n * sizeof *b) == 0);
}

/* ---- parameters that start anew ------------------------------------------------------------- */

/* Largest magnitude, mean and deviation of n values. */
typedef struct moments { double most, mean, deviation; } moments;

static moments moments_of(const double *v, int64_t n)
{
    moments m = {0, 0, 0};
    for (int64_t i = 0; i < n; i++) {
        m.most = fmax(m.most, fabs(v[i]));
        m.mean += v[i] / (double)n;
        m.deviation += v[i] * v[i] / (double)n;
    }
    m.deviation = sqrt(m.deviation - m.mean * m.mean);
    return m;
}

/* Bounds of 5 deviations of what is estimated of n = 36864 or 32768 values: one run in 10^6. The
 * deviation of a deviation is at most that of normals, sigma / sqrt(2 n).                       */
TEST(nn, initialisers_have_the_deviations_of_torchs)
{
    enum { MOST = 36864 };
    static double v[MOST];
    mlc_ctx    *ctx = test_ctx();
    mlc_nn_conv_desc c = mlc_nn_conv_desc_make(2, 32, 256, 3);
    c.conv.groups = 2;                                     /* weight [256,16,3,3]              */
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 256, 128), mlc_nn_conv(ctx, &c));
    for (int i = 0; i < 12; i++) {
        const bool    conv = i >= 6, out = i % 6 >= 4;
        const double  fan_in = conv ? 16 * 9 : 256, fan_out = conv ? 256 * 9 : 128;
        const int     which = i % 6;
        const int64_t n = conv ? 36864 : 32768;
        mlc_init_desc d = mlc_init_desc_make(which == 0   ? MLC_INIT_XAVIER_UNIFORM
                                             : which == 1 ? MLC_INIT_XAVIER_NORMAL
                                             : which == 2 || which == 4 ? MLC_INIT_KAIMING_UNIFORM
                                                                        : MLC_INIT_KAIMING_NORMAL);
        d.fan_out = out;
        if (which < 2) d.gain = 1.5;
        const double want = which < 2 ? 1.5 * sqrt(2 / (fan_in + fan_out))
                                      : sqrt(2 / (out ? fan_out : fan_in));
        CHECK_EQ(mlc_module_init(net, conv ? "1.weight" : "0.weight", &d), MLC_OK);
        test_read(mlc_module_param(net, conv ? "1.weight" : "0.weight"), v);
        const moments m = moments_of(v, n);
        CHECK_NEAR(m.mean, 0, 5 * want / sqrt((double)n));
        CHECK_NEAR(m.deviation, want, 5 * want / sqrt(2 * (double)n));
        if (which % 2 == 0)
            CHECK(m.most <= sqrt(3.0) * want * (1 + 1e-6) && m.most > 0.99 * sqrt(3.0) * want);
        else
            CHECK(m.most > 3 * want);
    }
    CHECK_OK(ctx);
}

TEST(nn, initialisers_of_numbers_are_what_they_say)
{
    enum { N = 32768 };
    static double v[N], again[N], bias[128];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, 256, 128);
    mlc_init_desc d = mlc_init_desc_make(MLC_INIT_CONSTANT);
    test_read(mlc_module_param(net, "bias"), bias);
    d.a = 0.3;
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    const moments c = moments_of(v, N);
    CHECK(v[0] == (double)0.3f && v[N - 1] == v[0] && c.most == v[0]);
    d = mlc_init_desc_make(MLC_INIT_ZEROS);
    d.a = 5;
    CHECK_EQ(mlc_module_init(net, "w*", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    CHECK(moments_of(v, N).most == 0);
    d = mlc_init_desc_make(MLC_INIT_TRUNCATED);
    d.a = 1;
    d.lo = 0;
    d.hi = 2;                                              /* one deviation to each side       */
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    const moments t = moments_of(v, N);
    CHECK(t.most <= 2);
    CHECK_NEAR(t.mean, 1, 5 * 0.5396 / sqrt((double)N));
    CHECK_NEAR(t.deviation, 0.539560, 5 * 0.5396 / sqrt(2 * (double)N));
    d = mlc_init_desc_make(MLC_INIT_UNIFORM);
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    const moments u = moments_of(v, N);
    CHECK(u.most < 1);
    CHECK_NEAR(u.mean, 0.5, 5 * 0.2887 / sqrt((double)N));
    d = mlc_init_desc_make(MLC_INIT_NORMAL);
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);
    test_read(mlc_module_param(net, "weight"), v);
    CHECK_NEAR(moments_of(v, N).deviation, 1, 5 / sqrt(2 * (double)N));
    CHECK_EQ(mlc_module_init(net, "weight", &d), MLC_OK);  /* the same each time               */
    test_read(mlc_module_param(net, "weight"), again);
    CHECK(memcmp(v, again, sizeof v) == 0);
    mlc_module *other = mlc_nn_linear(ctx, 256, 128);      /* whatever root it is              */
    CHECK_EQ(mlc_module_init(other, "weight", &d), MLC_OK);
    test_read(mlc_module_param(other, "weight"), again);
    CHECK(memcmp(v, again, sizeof v) == 0);
    CHECK_EQ(mlc_seed(ctx, 3), MLC_OK);
    CHECK_EQ(mlc_module_init(other, "weight", &d), MLC_OK);
    test_read(mlc_module_param(other, "weight"), again);
    CHECK(memcmp(v, again, sizeof v) != 0);
    test_read(mlc_module_param(net, "bias"), again);
    CHECK(memcmp(bias, again, sizeof bias) == 0);
    CHECK_OK(ctx);
}

TEST(nn, orthogonal_rows_or_columns_are_orthonormal)
{
    static const int64_t shape[4][2] = {{24, 40}, {40, 24}, {32, 32}, {1, 7}};
    double v[1600], again[1600];
    for (int i = 0; i < 5; i++) {
        mlc_ctx         *ctx = test_ctx();
        mlc_nn_conv_desc c = mlc_nn_conv_desc_make(2, 4, 40, 3);       /* [40,4,3,3] is 40 x 36 */
        mlc_module      *m = i < 4 ? mlc_nn_linear(ctx, shape[i][1], shape[i][0])
                                   : mlc_nn_conv(ctx, &c);
        mlc_init_desc    d = mlc_init_desc_make(MLC_INIT_ORTHOGONAL);
        const int64_t    rows = i < 4 ? shape[i][0] : 40, cols = i < 4 ? shape[i][1] : 36;
        const int64_t    n = rows < cols ? rows : cols, len = rows < cols ? cols : rows;
        d.gain = i == 2 ? 3 : 1;
        CHECK_EQ(mlc_module_init(m, "weight", &d), MLC_OK);
        test_read(mlc_module_param(m, "weight"), v);
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = 0; b <= a; b++) {
                double dot = 0;
                for (int64_t k = 0; k < len; k++)
                    dot += rows <= cols ? v[a * cols + k] * v[b * cols + k]
                                        : v[k * cols + a] * v[k * cols + b];
                CHECK_NEAR(dot / (d.gain * d.gain), a == b, 1e-6);
            }
        CHECK_EQ(mlc_module_init(m, "weight", &d), MLC_OK);
        test_read(mlc_module_param(m, "weight"), again);
        CHECK(memcmp(v, again, (size_t)(rows * cols) * sizeof *v) == 0);
        CHECK_OK(ctx);
    }
}

TEST(nn, an_initialiser_that_fails_changes_nothing)
{
    static const float w[9];
    double      a[18], b[18];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 3), mlc_nn_batch_norm(ctx, 3));
    mlc_init_desc d = mlc_init_desc_make(MLC_INIT_ORTHOGONAL);
    test_read(mlc_module_param(net, "0.weight"), a);
    CHECK_EQ(mlc_module_init(net, "*weight", &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'1.weight' is [3]");
    mlc_error_clear(ctx);
    test_read(mlc_module_param(net, "0.weight"), b);
    CHECK(memcmp(a, b, 9 * sizeof *a) == 0);
    CHECK_EQ(mlc_module_init(NULL, NULL, &d), MLC_ERR_ARG);
    if (mlc_ctx_on_host(ctx)) {
        mlc_module *two = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 3), mlc_nn_linear(ctx, 3, 3));
        CHECK_EQ(mlc_module_bind(two, "1.weight", w), MLC_OK);
        test_read(mlc_module_param(two, "0.weight"), a);
        CHECK_EQ(mlc_module_init(two, "*weight", &d), MLC_ERR_STATE);
        mlc_error_clear(ctx);
        test_read(mlc_module_param(two, "0.weight"), b);
        CHECK(memcmp(a, b, 9 * sizeof *a) == 0);
    }
    CHECK_OK(ctx);
}
