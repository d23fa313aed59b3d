/* test_memory_plan.c -- tests of section IMPL.MEMORY_PLAN: estimates against what steps take */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "mlc_test.h"
#include "resnet20.h"
#include "watch.h"

#include <sys/stat.h>

/* ---- networks: each with its input, and what the loss compares its output with -------------- */

typedef mlc_optim *(*optim_fn)(mlc_module *net, double lr);

typedef struct network {
    const char *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    int64_t     one[3];                /* the shape of one sample, with zeros after it         */
    mlc_dtype   dtype;
    mlc_tensor *(*loss)(mlc_tensor *output, mlc_tensor *target);
    bool        same;                  /* the target is like the input                         */
} network;

static mlc_module *make_mlp(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 784, 256));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.1));
    mlc_module_add(net, mlc_nn_linear(ctx, 256, 128));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 128, 10));
    return net;
}

static mlc_module *make_encoder(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(64, 4);
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 2; i++)
        mlc_module_add(net, mlc_nn_transformer_encoder_layer(ctx, &d));
    return net;
}

static mlc_module *make_gpt(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(96, 32, 2, 64, 4);
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *make_lstm(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_lstm(ctx, 48, 96));
    mlc_module_add(net, mlc_nn_linear(ctx, 96, 48));
    return net;
}

static mlc_tensor *half_square(mlc_tensor *output, mlc_tensor *target)
{
    return mlc_mse_loss(output, target);
}

static const network NETWORKS[] = {
    {"mlp", make_mlp, {784}, MLC_F32, mlc_cross_entropy, false},
    {"resnet20", resnet20, {3, 32, 32}, MLC_F32, mlc_cross_entropy, false},
    {"encoder", make_encoder, {24, 64}, MLC_F32, half_square, true},
    {"gpt", make_gpt, {32}, MLC_I64, mlc_cross_entropy, true},
    {"lstm", make_lstm, {20, 48}, MLC_F32, half_square, true},
};
enum { N_NETWORKS = sizeof NETWORKS / sizeof NETWORKS[0] };

static mlc_dims input_of(const network *n, int64_t batch)
{
    mlc_dims d = mlc_dims1(batch);
    for (int32_t i = 0; i < 3 && n->one[i] > 0; i++)
        d.v[d.n++] = n->one[i];
    return d;
}

static mlc_estimate_desc desc_of(const network *n, int64_t batch, optim_fn optim, bool low)
{
    mlc_estimate_desc d = mlc_estimate_desc_make(n->loss, optim);
    d.input = n->dtype;
    if (n->same) {
        d.target = n->dtype;
        d.has_target_shape = true;
        d.target_shape = input_of(n, batch);
    }
    d.has_autocast = low;
    d.autocast = low ? MLC_BF16 : MLC_F32;
    return d;
}

/* A step as a program writes it. */
static mlc_status try_step(mlc_module *net, mlc_optim *opt, const network *n, int64_t batch,
                           bool low)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_zeros(ctx, n->dtype, input_of(n, batch));
    mlc_tensor *y = n->same ? mlc_zeros(ctx, n->dtype, input_of(n, batch))
                            : mlc_zeros(ctx, MLC_I64, mlc_dims1(batch));
    if (low)
        mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *loss = n->loss(mlc_forward(net, x), y);
    if (low)
        mlc_autocast_end(ctx);
    mlc_backward(loss);
    mlc_optim_step(opt);
    return mlc_scope_end(ctx);
}

static void step(mlc_module *net, mlc_optim *opt, const network *n, int64_t batch, bool low)
{
    CHECK_EQ(try_step(net, opt, n, batch, low), MLC_OK);
}

/* ---- estimates ------------------------------------------------------------------------------ */

/* Within a share of what is real, and 8 KB. */
static bool near_to(int64_t estimate, int64_t real, double share)
{
    return fabs((double)(estimate - real)) <= share * (double)real + 8192;
}

/* Two steps in a context of their own: the first makes packs and fills the pool. recompute: which
 * children or layers run twice, as mlc_module_recompute has it. */
static void check_estimate(const network *n, int64_t batch, optim_fn optim, bool low,
                           int32_t recompute)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    mlc_module  *net = n->make(ctx);
    mlc_memory   said, was;
    const mlc_estimate_desc e = desc_of(n, batch, optim, low);
    CHECK_EQ(mlc_module_recompute(net, recompute), MLC_OK);
    CHECK_EQ(mlc_estimate_memory(net, input_of(n, batch), &e, &said), MLC_OK);
    mlc_optim *opt = optim(net, 0.001);
    mlc_memory_peak_reset(ctx);
    for (int i = 0; i < 2; i++) {
        step(net, opt, n, batch, low);
        CHECK_EQ(mlc_memory_info(ctx, &was), MLC_OK);
        const double apart = fabs((double)said.peak / (double)was.peak - 1);
        bool fine = CHECK(apart < (i ? 0.02 : 0.05)) &&
                    CHECK(near_to(said.allocated, was.allocated, 0.01)) &&
                    CHECK(!test_on_host() || near_to(said.reserved, was.reserved, 0.02));
        for (int k = 0; k < MLC_MEM_COUNT; k++)
            fine = CHECK(near_to(said.top[k], was.top[k], 0.01)) &&
                   CHECK(near_to(said.now[k], was.now[k], 0.01)) && fine;
        if (!fine)
            printf("  %s, batch %d%s, recompute %d, step %d: peak %lld, estimate %lld\n", n->name,
                   (int)batch, low ? ", bf16" : "", recompute, i, (long long)was.peak,
                   (long long)said.peak);
    }
    mlc_ctx_free(ctx);
}

TEST(memory_plan, estimates_are_what_steps_take)
{
    const int64_t most = 128 / (int64_t)test_stride(8);
    for (int i = 0; i < N_NETWORKS; i++)
        for (int64_t batch = 1; batch <= most; batch *= i % 2 ? 16 : 4)
            for (int k = 0; k < 4; k++)
                check_estimate(&NETWORKS[i], batch, k & 1 ? mlc_adamw : mlc_sgd, k >> 1, 0);
}

/* With every, and with every second child or layer recomputed. */
TEST(memory_plan, estimates_are_what_recomputing_steps_take)
{
    const int64_t most = 64 / (int64_t)test_stride(16);
    for (int i = 0; i < N_NETWORKS; i++)
        for (int64_t batch = 4; batch <= most; batch *= 4)
            for (int k = 0; k < 4; k++)
                check_estimate(&NETWORKS[i], batch, k & 1 ? mlc_adamw : mlc_sgd, k >> 1,
                               1 + (int)(k & 1));
}

static mlc_optim *clipped(mlc_module *net, double lr)
{
    mlc_optim    *opt = mlc_adamw(net, lr);
    mlc_clip_desc d = mlc_clip_desc_make();
    d.norm = 1;
    CHECK_EQ(mlc_optim_clip(opt, &d), MLC_OK);
    return opt;
}

static mlc_optim *in_backward(mlc_module *net, double lr)
{
    mlc_optim *opt = mlc_sgd(net, lr);
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    return opt;
}

/* What they keep differs, and what a step of theirs works in. */
TEST(memory_plan, of_each_optimizer)
{
    static const optim_fn optims[] = {
        mlc_adam, mlc_lamb, mlc_amsgrad, mlc_nadam, mlc_rmsprop, mlc_adagrad, mlc_adadelta,
        mlc_rprop, mlc_lars, mlc_lion, mlc_sophia, mlc_schedule_free_adamw, mlc_adafactor, mlc_muon,
        clipped, in_backward};
    for (size_t i = 0; i < sizeof optims / sizeof optims[0]; i++) {
        check_estimate(&NETWORKS[0], 4, optims[i], false, 0);
        check_estimate(&NETWORKS[4], 4, optims[i], true, 0);
    }
}

/* Two steps, with something between them, or NULL. */
static void train_around(void (*between)(mlc_module *net), mlc_memory *was, mlc_rng_state *rng,
                         float *values)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    mlc_module  *net = make_mlp(ctx);
    mlc_optim   *opt = mlc_adamw(net, 0.01);
    step(net, opt, &NETWORKS[0], 4, false);
    if (between)
        between(net);
    step(net, opt, &NETWORKS[0], 4, false);
    mlc_memory_info(ctx, was);
    *rng = mlc_ctx_rng(ctx);
    CHECK_EQ(mlc_read(mlc_module_param(net, "0.weight"), values, 784 * 256 * sizeof(float)),
             MLC_OK);
    mlc_ctx_free(ctx);
}

/* Weights, statistics of memory and streams are as without it. */
static void changes_nothing(void (*between)(mlc_module *net))
{
    static float  a[784 * 256], b[784 * 256];
    mlc_memory    was[2];
    mlc_rng_state rng[2];
    train_around(NULL, &was[0], &rng[0], a);
    train_around(between, &was[1], &rng[1], b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK(memcmp(&was[0], &was[1], sizeof was[0]) == 0);
    CHECK(memcmp(&rng[0], &rng[1], sizeof rng[0]) == 0);
}

static void two_estimates(mlc_module *net)
{
    mlc_ctx            *ctx = mlc_module_ctx(net);
    mlc_memory          before, after, said;
    const mlc_rng_state there = mlc_ctx_rng(ctx);
    mlc_memory_info(ctx, &before);
    for (int low = 0; low < 2; low++) {
        const mlc_estimate_desc e = desc_of(&NETWORKS[0], 64, mlc_adamw, low);
        CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(64, 784), &e, &said), MLC_OK);
        mlc_memory_info(ctx, &after);
        const mlc_rng_state rng = mlc_ctx_rng(ctx);
        CHECK(memcmp(&after, &before, sizeof before) == 0);
        CHECK(memcmp(&rng, &there, sizeof there) == 0);
    }
}

TEST(memory_plan, an_estimate_changes_nothing) { changes_nothing(two_estimates); }

/* Its structs come from the block, and leave it as it was. */
TEST(memory_plan, estimates_in_a_fixed_block)
{
    static unsigned char block[3000000], small[30000];
    mlc_ctx_desc d = test_desc();
    mlc_memory   before, after, here, there, ended;
    int          used = 0;
    const mlc_estimate_desc e = desc_of(&NETWORKS[0], 64, mlc_adamw, false);
    ONLY_ON_HOST();
    mlc_module *net = make_mlp(test_ctx());
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(64, 784), &e, &there), MLC_OK);
    d.memory = block;
    d.memory_bytes = sizeof block;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    net = make_mlp(ctx);
    mlc_optim *opt = mlc_sgd(net, 0.1);
    for (int i = 0; i < 3; i++) {
        mlc_memory_info(ctx, &before);
        CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(64, 784), &e, &here), MLC_OK);
        mlc_memory_info(ctx, &after);
        CHECK(memcmp(&before, &after, sizeof before) == 0);
        CHECK(here.peak > (int64_t)sizeof block);
        CHECK(near_to(here.peak, there.peak, 0.01));
        step(net, opt, &NETWORKS[0], 4, false);
        mlc_memory_info(ctx, &ended);
        if (i > 0)
            CHECK_EQ(ended.reserved, used);
        used = (int)ended.reserved;
    }
    d.memory = small;
    d.memory_bytes = sizeof small;
    d.threads = 1;
    ctx = test_own(mlc_ctx_create(&d));
    net = make_mlp(ctx);
    mlc_memory_info(ctx, &before);
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(64, 784), &e, &here), MLC_ERR_NOMEM);
    CHECK_ERROR(ctx, MLC_ERR_NOMEM, "memory");
    mlc_memory_info(ctx, &after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
}

/* What is larger than any machine has a size all the same. */
TEST(memory_plan, of_what_is_too_large_to_be)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_memory before, after, said;
    mlc_memory_info(ctx, &before);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 1000000, 100000));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 100000, 1000000));
    mlc_estimate_desc e = mlc_estimate_desc_make(mlc_mse_loss, mlc_adamw);
    e.target = MLC_F32;
    e.has_target_shape = true;
    e.target_shape = mlc_dims2(1000, 1000000);
    if (sizeof(void *) < 8) {
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "more elements than memory can hold");
        return;
    }
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(1000, 1000000), &e, &said), MLC_OK);
    CHECK(said.now[MLC_MEM_PARAM] > 800000000000 && said.now[MLC_MEM_PARAM] < 801000000000);
    CHECK(said.now[MLC_MEM_OPTIM] > 1600000000000 && said.peak > 3200000000000);
    mlc_memory_info(ctx, &after);
    CHECK(after.reserved - before.reserved < 100000);
    CHECK_EQ(after.now[MLC_MEM_PARAM], 0);                 /* it was not built                   */
}

static mlc_tensor *forward_of(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    int *calls = (int *)user;
    ++*calls;
    CHECK_EQ(b->n, 8);
    CHECK_NEAR(mlc_item(mlc_sum_all(b->x)), 0, 0);         /* what is read is zero               */
    *output = mlc_forward(net, b->x);
    return mlc_cross_entropy(*output, b->y);
}

static mlc_tensor *forward_that_reads(void *user, mlc_module *net, const mlc_batch *b,
                                      mlc_tensor **output)
{
    (void)user; (void)net;
    *output = NULL;
    return mlc_f32(b->x) == NULL ? NULL : b->x;
}

TEST(memory_plan, inference_and_forwards_of_the_program)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = make_mlp(ctx);
    mlc_memory  infers, trains, runs;
    int         calls = 0;
    mlc_estimate_desc d = mlc_estimate_desc_make(NULL, NULL);
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), &d, &infers), MLC_OK);
    CHECK_EQ(infers.top[MLC_MEM_GRAD], 0);
    CHECK_EQ(infers.top[MLC_MEM_OPTIM], 0);
    d = mlc_estimate_desc_make(mlc_cross_entropy, NULL);
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), &d, &trains), MLC_OK);
    CHECK(trains.top[MLC_MEM_GRAD] > infers.top[MLC_MEM_PARAM]);
    CHECK(trains.top[MLC_MEM_ACTIVATION] > infers.top[MLC_MEM_ACTIVATION]);
    d = mlc_estimate_desc_make(NULL, NULL);
    d.forward = forward_of;
    d.user = &calls;
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), &d, &runs), MLC_OK);
    CHECK_EQ(calls, 2);
    CHECK(near_to(runs.peak, trains.peak, 0.01));
}

TEST(memory_plan, errors_are_of_the_network_s_context)
{
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = make_mlp(ctx);
    mlc_memory        out;
    mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_sgd);
    CHECK_EQ(mlc_estimate_memory(NULL, mlc_dims2(8, 784), &d, &out), MLC_ERR_ARG);
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), NULL, &out), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "desc");
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "result");
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims0(), &d, &out), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch");
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 785), &d, &out), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "in 0 (Lin");
    d.optim = mlc_lbfgs;
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), &d, &out), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "optimizer");
    d.optim = mlc_sgd;
    d.forward = forward_that_reads;
    CHECK_EQ(mlc_estimate_memory(net, mlc_dims2(8, 784), &d, &out), MLC_ERR_DEVICE);
    CHECK_ERROR(ctx, MLC_ERR_DEVICE, "estimate");
}

/* ---- batches -------------------------------------------------------------------------------- */

typedef struct sink { char text[4096]; size_t n; } sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    if (s->n + bytes >= sizeof s->text)
        return;
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = 0;
}

TEST(memory_plan, a_table_of_batches)
{
    static const int64_t batches[] = {1, 32, 64}, wrong[] = {1, 0};
    mlc_ctx   *ctx = test_ctx();
    mlc_module *net = make_lstm(ctx);
    mlc_memory rows[3], one;
    sink       s = {"", 0};
    const network *n = &NETWORKS[N_NETWORKS - 1];
    mlc_estimate_desc d = desc_of(n, 1, mlc_adamw, false);
    CHECK_EQ(mlc_estimate_batches(net, input_of(n, 1), &d, batches, 3, rows), MLC_OK);
    for (int i = 0; i < 3; i++) {
        d = desc_of(n, batches[i], mlc_adamw, false);
        CHECK_EQ(mlc_estimate_memory(net, input_of(n, batches[i]), &d, &one), MLC_OK);
        CHECK(memcmp(&one, &rows[i], sizeof one) == 0);
    }
    CHECK(rows[2].peak - rows[1].peak > 32 * 20 * 96 * 4 * 4);
    CHECK_EQ(mlc_estimate_print(ctx, batches, 3, rows, collect, &s), MLC_OK);
    CHECK_HAS(s.text, "   Batch  Parameters   Gradients   Optimizer Activations   Workspace");
    CHECK_HAS(s.text, "\n      32   237.");
    CHECK_EQ(mlc_estimate_batches(net, input_of(n, 1), &d, NULL, 1, rows), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batches");
    CHECK_EQ(mlc_estimate_batches(net, input_of(n, 1), &d, wrong, 2, rows), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch 1 is 0");
    CHECK_EQ(mlc_estimate_print(ctx, batches, 3, NULL, collect, &s), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "estimate");
}

/* With what only differs from the default in what is given. */
static mlc_status find(mlc_module *net, const network *n, int64_t bytes, int64_t least,
                       int64_t most, mlc_batch_choice choice, int64_t *batch)
{
    const mlc_estimate_desc d = desc_of(n, 1, mlc_sgd, false);
    mlc_batch_size_desc     f = mlc_batch_size_desc_make(mlc_module_ctx(net));
    f.bytes = bytes;
    f.least = least;
    f.most = most;
    f.choice = choice;
    return mlc_find_batch_size(net, input_of(n, 1), &d, &f, batch);
}

static int64_t found(mlc_module *net, int64_t bytes, int64_t least, int64_t most,
                     mlc_batch_choice choice)
{
    int64_t batch = -1;
    CHECK_EQ(find(net, &NETWORKS[0], bytes, least, most, choice, &batch), MLC_OK);
    return batch;
}

static int64_t peak_of(mlc_module *net, int64_t batch)
{
    const mlc_estimate_desc d = desc_of(&NETWORKS[0], batch, mlc_sgd, false);
    mlc_memory              m;
    CHECK_EQ(mlc_estimate_memory(net, input_of(&NETWORKS[0], batch), &d, &m), MLC_OK);
    return m.peak;
}

/* The one after it does not fit. One further on may: peaks do not grow everywhere.             */
static int64_t check_largest(mlc_module *net, int64_t least, int64_t most)
{
    const int64_t batch = found(net, 4000000, least, most, MLC_BATCH_LARGEST);
    CHECK(batch >= least && batch < 1000);
    CHECK(peak_of(net, batch) <= 4000000 && peak_of(net, batch + 1) > 4000000);
    return batch;
}

TEST(memory_plan, the_largest_batch_that_fits)
{
    CHECK(true);
    if (test_on_card()) return;        /* cuBLASLt asks for workspaces larger than these limits */
    mlc_module   *net = make_mlp(test_ctx());
    const int64_t most = check_largest(net, 1, 100000), peak = peak_of(net, most);
    CHECK(most > 64);
    CHECK_EQ(found(net, peak, most, most, MLC_BATCH_LARGEST), most);
    CHECK_EQ(found(net, peak - 1, most, most, MLC_BATCH_LARGEST), 0);
    int64_t power = 1;
    while (peak_of(net, 2 * power) <= 4000000)
        power *= 2;
    CHECK_EQ(found(net, 4000000, 1, 100000, MLC_BATCH_POWER), power);
    CHECK_EQ(found(net, 4000000, power, power, MLC_BATCH_POWER), power);
    CHECK_EQ(found(net, 4000000, 2 * power, 4 * power, MLC_BATCH_POWER), 0);
    for (int64_t least = 1; least <= 50; least += 16) {
        CHECK_EQ(found(net, 4000000, least, 50, MLC_BATCH_LARGEST), 50);
        check_largest(net, least, INT64_MAX);
        CHECK_EQ(found(net, 1000, least, 50, MLC_BATCH_LARGEST), 0);
    }
    check_largest(net, most, INT64_MAX);
    CHECK_EQ(found(net, 4000000, most + 1, INT64_MAX, MLC_BATCH_LARGEST), 0);
    CHECK_EQ(found(net, 4000000, 1, 50, MLC_BATCH_POWER), 32);
    CHECK_EQ(found(net, 1000, 1, 50, MLC_BATCH_POWER), 0);
    CHECK_EQ(found(net, 1000, 1, 50, MLC_BATCH_FASTEST), 0);
}

TEST(memory_plan, batches_for_a_share_of_the_limit)
{
    mlc_ctx_desc c = test_desc();
    int64_t      half = -1, whole = -1;
    c.hard_limit = 8000000;
    mlc_module       *net = make_mlp(test_own(mlc_ctx_create(&c)));
    mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_sgd);
    mlc_batch_size_desc f = mlc_batch_size_desc_make(mlc_module_ctx(net));
    CHECK_EQ(f.bytes, 8000000);
    CHECK_EQ(f.least, 1);
    CHECK_EQ(f.most, 65536);
    CHECK_EQ(f.choice, MLC_BATCH_LARGEST);
    CHECK_NEAR(f.share, 1, 0);
    CHECK_EQ(mlc_find_batch_size(net, mlc_dims2(1, 784), &d, NULL, &whole), MLC_OK);
    CHECK_EQ(whole, found(net, 8000000, 1, 65536, MLC_BATCH_LARGEST));
    f.share = 0.5;
    CHECK_EQ(mlc_find_batch_size(net, mlc_dims2(1, 784), &d, &f, &half), MLC_OK);
    CHECK_EQ(half, found(net, 4000000, 1, 65536, MLC_BATCH_LARGEST));
    CHECK(half < whole);
    CHECK_EQ(mlc_batch_size_desc_make(NULL).bytes, 0);
}

static void no_such_batch(mlc_module *net, int64_t least, int64_t most, mlc_batch_choice choice,
                          const char *says)
{
    int64_t batch = -1;
    CHECK_EQ(find(net, &NETWORKS[0], 4000000, least, most, choice, &batch), MLC_ERR_ARG);
    CHECK_ERROR(mlc_module_ctx(net), MLC_ERR_ARG, says);
    CHECK_EQ(batch, -1);
}

TEST(memory_plan, batches_that_cannot_be_looked_for)
{
    static const double shares[] = {0, -0.5, 1.0001, (double)NAN, (double)INFINITY};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = make_mlp(ctx);
    mlc_estimate_desc    d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_sgd);
    mlc_batch_size_desc  f = mlc_batch_size_desc_make(ctx);
    const mlc_dims       input = mlc_dims2(1, 784);
    int64_t              batch = -1;
    no_such_batch(net, 0, 50, MLC_BATCH_LARGEST, "from 0 to 50");
    no_such_batch(net, -3, 50, MLC_BATCH_POWER, "from -3 to 50");
    no_such_batch(net, 51, 50, MLC_BATCH_FASTEST, "from 51 to 50");
    no_such_batch(net, 33, 63, MLC_BATCH_POWER, "power of two from 33 to 63");
    no_such_batch(net, 33, 63, MLC_BATCH_FASTEST, "power of two from 33 to 63");
    no_such_batch(net, INT64_MAX / 3, INT64_MAX, MLC_BATCH_POWER, "from 307");
    no_such_batch(net, 1, 50, (mlc_batch_choice)3, "choice 3");
    for (int i = 0; i < 5; i++) {
        f.share = shares[i];
        CHECK_EQ(mlc_find_batch_size(net, input, &d, &f, &batch), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "share");
    }
    f = mlc_batch_size_desc_make(NULL);
    CHECK_EQ(mlc_find_batch_size(net, input, &d, &f, &batch), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bytes is 0; set it");
    f.bytes = 4000000;
    CHECK_EQ(mlc_find_batch_size(net, input, &d, &f, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch is NULL");
    CHECK_EQ(mlc_find_batch_size(net, input, NULL, &f, &batch), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "desc is NULL");
    CHECK_EQ(mlc_find_batch_size(NULL, input, &d, &f, &batch), MLC_ERR_ARG);
    f.choice = MLC_BATCH_FASTEST;
    d.optim = mlc_lbfgs;
    CHECK_EQ(mlc_find_batch_size(net, input, &d, &f, &batch), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "optimizer");
    CHECK_EQ(batch, -1);
}

/* ---- batches by time ------------------------------------------------------------------------ */

/* A power of two from least to most, after which the context and the network are as before. */
static void check_fastest(const network *n, mlc_module *net, mlc_estimate_desc d, int64_t least,
                          int64_t most)
{
    mlc_ctx            *ctx = mlc_module_ctx(net);
    mlc_batch_size_desc f = mlc_batch_size_desc_make(ctx);
    mlc_memory          was, is;
    mlc_rng_state       rng = mlc_ctx_rng(ctx), later;
    int64_t             batch = -1;
    f.bytes = 60000000;
    f.least = least;
    f.most = most;
    f.choice = MLC_BATCH_FASTEST;
    mlc_memory_info(ctx, &was);
    const bool     built = was.now[MLC_MEM_PARAM] > 0;
    const uint64_t bits = built ? hash_net(HASH_SEED, net) : 0;
    CHECK_EQ(mlc_find_batch_size(net, input_of(n, 1), &d, &f, &batch), MLC_OK);
    CHECK(batch >= least && batch <= most && (batch & (batch - 1)) == 0);
    mlc_memory_info(ctx, &is);
    later = mlc_ctx_rng(ctx);
    CHECK(memcmp(&was, &is, sizeof was) == 0);
    CHECK(memcmp(&rng, &later, sizeof rng) == 0);
    CHECK_EQ(mlc_ctx_status(ctx), MLC_OK);
    CHECK(!built || hash_net(HASH_SEED, net) == bits);
}

/* Built or not, in training or in evaluation, of images, tokens and sequences. */
TEST(memory_plan, the_fastest_batch)
{
    for (int i = 0; i < N_NETWORKS; i++)
        for (int low = 0; low < 2; low++) {
            mlc_ctx    *ctx = test_ctx();
            mlc_module *net = NETWORKS[i].make(ctx);
            mlc_estimate_desc d = desc_of(&NETWORKS[i], 1, mlc_adamw, low);
            if (low)
                mlc_module_build(net);
            if (i < 4)                 /* each is one of few: a time takes 50 ms and more        */
                check_fastest(&NETWORKS[i], net, d, 2, low ? 3 : 4);
            d.loss = NULL;
            if (i >= 3)
                check_fastest(&NETWORKS[i], net, d, 3, low ? 4 : 8);
        }
}

static void a_search(mlc_module *net)
{
    check_fastest(&NETWORKS[0], net, desc_of(&NETWORKS[0], 1, mlc_sgd, true), 1, 2);
}

TEST(memory_plan, the_search_for_the_fastest_changes_nothing) { changes_nothing(a_search); }

typedef struct seen {
    mlc_ctx *ctx;                      /* of the network                                         */
    int      steps[2];                 /* of batches of 1 and 2, in other contexts               */
    bool     fails;                    /* those of 2                                             */
    bool     alike;                    /* contexts                                               */
} seen;

/* Where what is read is zero it is an estimate. */
static mlc_tensor *forward_seen(void *user, mlc_module *net, const mlc_batch *b,
                                mlc_tensor **output)
{
    seen    *s = (seen *)user;
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_tensor *weight = mlc_detach(mlc_module_param(net, "0.weight"));
    const double square = mlc_item(mlc_mean_all(mlc_mul(weight, weight)));
    *output = mlc_forward(net, b->x);
    if (square == 0)
        return mlc_cross_entropy(*output, b->y);
    s->alike = s->alike && ctx != s->ctx && mlc_ctx_isa(ctx) == mlc_ctx_isa(s->ctx) &&
               mlc_ctx_threads(ctx) == mlc_ctx_threads(s->ctx);
    if (++s->steps[b->n - 1] == 1 && b->n == 1)
        CHECK_NEAR(square, 1.0 / (3 * 784), 0.0001);       /* uniform up to 1/28                 */
    if (b->n == 2 && s->fails)
        mlc_raise(ctx, MLC_ERR_STATE, "as %s", "asked");
    return mlc_cross_entropy(*output, b->y);
}

TEST(memory_plan, the_fastest_batch_is_found_by_real_steps)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = make_mlp(ctx);
    seen        s = {ctx, {0, 0}, false, true};
    mlc_estimate_desc   d = desc_of(&NETWORKS[0], 1, mlc_sgd, false);
    mlc_batch_size_desc f = mlc_batch_size_desc_make(ctx);
    int64_t             batch = -1;
    mlc_memory          was, is;
    d.forward = forward_seen;
    d.user = &s;
    f.bytes = 60000000;
    f.most = 2;
    f.choice = MLC_BATCH_FASTEST;
    CHECK_EQ(mlc_find_batch_size(net, mlc_dims2(1, 784), &d, &f, &batch), MLC_OK);
    CHECK(s.steps[0] >= 4 && s.steps[1] >= 4 && s.alike);
    CHECK(batch == 1 || batch == 2);
    s.fails = true;
    batch = -1;
    mlc_memory_info(ctx, &was);
    CHECK_EQ(mlc_find_batch_size(net, mlc_dims2(1, 784), &d, &f, &batch), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "as asked");
    CHECK_EQ(batch, -1);
    mlc_memory_info(ctx, &is);
    CHECK(memcmp(&was, &is, sizeof was) == 0);
}

/* One candidate, so that time has no say. */
static mlc_status search_fastest(mlc_ctx *ctx, const void *user)
{
    int64_t     batch = -1;
    mlc_module *net = make_lstm(ctx);
    (void)user;
    const mlc_status st = mlc_module_build(net) != MLC_OK
                              ? mlc_ctx_status(ctx)
                              : find(net, &NETWORKS[4], 60000000, 2, 3, MLC_BATCH_FASTEST, &batch);
    CHECK_EQ(batch, st == MLC_OK ? 2 : -1);
    return st;
}

TEST(memory_plan, the_search_for_the_fastest_runs_out_of_memory)
{
    tally_fail_each(search_fastest, NULL);
}

TEST(memory_plan, no_copy_runs_in_a_fixed_block)
{
    static unsigned char block[3000000];
    mlc_ctx_desc c = test_desc();
    int64_t      batch = -1;
    ONLY_ON_HOST();
    c.memory = block;
    c.memory_bytes = sizeof block;
    mlc_module *net = make_mlp(test_own(mlc_ctx_create(&c)));
    CHECK_EQ(find(net, &NETWORKS[0], 4000000, 1, 4, MLC_BATCH_FASTEST, &batch),
             MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(mlc_module_ctx(net), MLC_ERR_UNSUPPORTED, "fixed block");
    CHECK_EQ(batch, -1);
    CHECK_EQ(find(net, &NETWORKS[0], 4000000, 1, 4, MLC_BATCH_POWER, &batch), MLC_OK);
    CHECK_EQ(batch, 4);
}

/* ---- the machine ---------------------------------------------------------------------------- */

#if defined(__linux__)
static void put(const char *root, const char *path, const char *text)
{
    char name[600];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(name, sizeof name, "%s%.*s", root, (int)(slash - path), path);
        mkdir(name, 0700);
    }
    snprintf(name, sizeof name, "%s%s", root, path);
    FILE *f = fopen(name, "w");
    if (CHECK(f != NULL)) {
        fputs(text, f);
        fclose(f);
    }
}

TEST(memory_plan, limits_of_the_machine)
{
    box  b = box_open("none");
    char command[600];
    CHECK(mlc_machine_memory(NULL) > 1 << 20);
    CHECK_EQ(mlc_machine_memory(b.dir), 0);
    put(b.dir, "/proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 2097152);
    put(b.dir, "/proc/self/cgroup", "0::/a/b\n");          /* version 2                          */
    CHECK_EQ(mlc_machine_memory(b.dir), 2097152);
    put(b.dir, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 2097152);
    put(b.dir, "/sys/fs/cgroup/a/memory.max", "1000000\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 1000000);
    put(b.dir, "/sys/fs/cgroup/a/b/memory.max", "999999\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 999999);
    put(b.dir, "/sys/fs/cgroup/memory.max", "9999\n");     /* what a container sees              */
    CHECK_EQ(mlc_machine_memory(b.dir), 9999);
    put(b.dir, "/proc/self/cgroup", "5:cpu,memoryless:/a/b\n4:cpu,memory,pids:/c\n3:memory2:/d\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 2097152);
    put(b.dir, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 2097152);
    put(b.dir, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "77777\n");
    CHECK_EQ(mlc_machine_memory(b.dir), 77777);
    put(b.dir, "/proc/self/cgroup", "0::/\n4:memory:/\n:\n\nx");
    CHECK_EQ(mlc_machine_memory(b.dir), 9999);
    snprintf(command, sizeof command, "rm -rf '%s/proc' '%s/sys'", b.dir, b.dir);
    CHECK_EQ(system(command), 0);
    box_close(&b);
}
#endif

/* What a context made of d, with n bytes of a block or none, may have in use. */
static int64_t limit_of(mlc_ctx_desc d, const char *device, size_t hard, size_t n)
{
    void *block = n > 0 ? malloc(n) : NULL;
    d.device = device;
    d.memory = block;
    d.memory_bytes = n;
    d.hard_limit = hard;
    mlc_ctx      *ctx = mlc_ctx_create(&d);
    const int64_t limit = ctx != NULL ? mlc_memory_limit(ctx) : -1;
    mlc_ctx_free(ctx);
    free(block);
    return limit;
}

TEST(memory_plan, what_a_context_may_have_in_use)
{
    const mlc_ctx_desc d = mlc_ctx_desc_make();
    const int64_t      machine = mlc_machine_memory(NULL);
    CHECK_EQ(mlc_memory_limit(NULL), 0);
    CHECK_EQ(limit_of(d, NULL, 0, 0), machine - machine / 10);
    CHECK_EQ(limit_of(d, NULL, 5000000, 0), 5000000);
    CHECK_EQ(limit_of(d, NULL, SIZE_MAX, 0), (int64_t)(SIZE_MAX & INT64_MAX));
    CHECK_EQ(limit_of(d, NULL, 0, 1000000), 1000000);
    CHECK_EQ(limit_of(d, NULL, 900000, 1000000), 900000);
    CHECK_EQ(limit_of(d, NULL, 2000000, 1000000), 1000000);
#ifndef _WIN32                         /* device.c, which has it, is not built there           */
    const int64_t arena = limit_of(d, "test", 0, 0);
    CHECK(arena > 40 << 20 && arena <= 256 << 20);
    CHECK_EQ(limit_of(d, "test", 5000000, 0), 5000000);
    CHECK_EQ(limit_of(d, "test", 0, 1000000), arena);      /* the block has no tensors           */
    CHECK_EQ(limit_of(d, "no_rnn", 0, 0), 0);              /* tells nothing of its memory        */
#endif
}

/* ---- fixed blocks --------------------------------------------------------------------------- */

/* Three steps in a block of so many bytes. */
static bool fits(const network *n, int64_t batch, optim_fn optim, bool low, size_t bytes)
{
    void        *block = malloc(bytes + 1);
    mlc_ctx_desc d = test_desc();
    bool         well = false;
    d.memory = (char *)block + 1;
    d.memory_bytes = bytes;
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (ctx != NULL) {
        mlc_module *net = n->make(ctx);
        mlc_optim  *opt = optim(net, 0.001);
        for (int i = 0; i < 3 && mlc_ctx_status(ctx) == MLC_OK; i++)
            well = try_step(net, opt, n, batch, low) == MLC_OK;
        well = well && mlc_ctx_status(ctx) == MLC_OK;
    }
    mlc_ctx_free(ctx);
    free(block);
    return well;
}

TEST(memory_plan, the_block_that_a_network_fits_in)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < N_NETWORKS; i++)
        for (int64_t batch = 1; batch <= 16; batch *= 16)
            for (int k = 0; k < 4; k++) {
                const network *n = &NETWORKS[i];
                const optim_fn optim = k & 1 ? mlc_adamw : mlc_sgd;
                const mlc_estimate_desc d = desc_of(n, batch, optim, k >> 1);
                mlc_module *net = n->make(ctx);
                size_t      bytes = 0;
                CHECK_EQ(mlc_fixed_block_bytes(net, input_of(n, batch), &d, &bytes), MLC_OK);
                bool well = CHECK(fits(n, batch, optim, k >> 1, bytes));
                well = CHECK(!fits(n, batch, optim, k >> 1, bytes / 100 * 99)) && well;
                if (!well)
                    printf("  %s, batch %d, %d: %llu bytes\n", n->name, (int)batch, k,
                           (unsigned long long)bytes);
                mlc_module_free(net);
            }
}

/* As many bytes do when it is asked in a block, of that size, as outside of one; and the block is
 * as it was. */
TEST(memory_plan, the_block_that_a_network_fits_in_may_ask_for_itself)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < N_NETWORKS; i++) {
        const network *n = &NETWORKS[i];
        const mlc_estimate_desc e = desc_of(n, 1, mlc_adamw, false);
        mlc_module  *net = n->make(ctx);
        size_t       bytes = 0, again = 0;
        mlc_memory   before, after;
        mlc_ctx_desc d = test_desc();
        CHECK_EQ(mlc_fixed_block_bytes(net, input_of(n, 1), &e, &bytes), MLC_OK);
        mlc_module_free(net);
        void *block = malloc(bytes);
        d.memory = block;
        d.memory_bytes = bytes;
        mlc_ctx *in = mlc_ctx_create(&d);
        if (CHECK(in != NULL)) {
            net = n->make(in);
            mlc_optim *opt = mlc_adamw(net, 0.001);
            CHECK_EQ(try_step(net, opt, n, 1, false), MLC_OK);
            CHECK_EQ(mlc_memory_info(in, &before), MLC_OK);
            CHECK_EQ(mlc_fixed_block_bytes(net, input_of(n, 1), &e, &again), MLC_OK);
            CHECK_EQ(again, bytes);
            CHECK_EQ(mlc_memory_info(in, &after), MLC_OK);
            CHECK(memcmp(&before, &after, sizeof before) == 0);
            CHECK_EQ(try_step(net, opt, n, 1, false), MLC_OK);
            CHECK_OK(in);
        }
        mlc_ctx_free(in);
        free(block);
    }
}

/* ---- timelines ------------------------------------------------------------------------------ */

static mlc_module *make_gru(mlc_ctx *ctx) { return mlc_nn_gru(ctx, 48, 48); }

/* What a step takes over what was in use before it, the second one; with a timeline, or with hooks
 * of memory alone, it is the same. */
static void take(void *user, mlc_mem mem, int64_t bytes)
{
    (void)mem;
    *(int64_t *)user += bytes;
}

static int64_t peak_with(const network *n, bool trains, bool hook, int64_t capacity)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = n->make(ctx);
    mlc_optim   *opt = mlc_sgd(net, 0.01);
    mlc_timeline *t = capacity ? mlc_timeline_begin(ctx, capacity) : NULL;
    mlc_memory   before, after;
    int64_t      sum = 0;
    mlc_hooks    h;
    memset(&h, 0, sizeof h);
    h.memory = take;
    h.user = &sum;
    if (hook)
        CHECK(mlc_hooks_add(ctx, &h) > 0);
    for (int i = 0; i < 2; i++) {
        mlc_memory_peak_reset(ctx);
        mlc_memory_info(ctx, &before);
        if (trains) {
            step(net, opt, n, 8, false);
        } else {
            mlc_eval_begin(net);
            mlc_scope_begin(ctx);
            CHECK(mlc_mean_all(mlc_forward(net, mlc_zeros(ctx, n->dtype, input_of(n, 8)))));
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            mlc_eval_end(net);
        }
    }
    mlc_memory_info(ctx, &after);
    if (t != NULL)
        CHECK(mlc_timeline_peak(t, NULL) != NULL);
    mlc_timeline_free(t);
    return after.peak - before.allocated;
}

TEST(memory_plan, a_timeline_keeps_nothing_alive)
{
    const network gru = {"gru", make_gru, {20, 48}, MLC_F32, half_square, true};
    for (int i = 0; i <= N_NETWORKS; i++)
        for (int trains = 0; trains < 2; trains++) {
            const network *n = i < N_NETWORKS ? &NETWORKS[i] : &gru;
            const int64_t  plain = peak_with(n, trains, false, 0);
            CHECK_EQ(peak_with(n, trains, false, 100), plain);
            CHECK_EQ(peak_with(n, trains, true, 0), plain);
        }
}

TEST(memory_plan, a_timeline_of_a_step)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = make_mlp(ctx);
    mlc_optim   *opt = mlc_adamw(net, 0.01);
    mlc_memory   before, after;
    int64_t      lost = -1, now[MLC_MEM_COUNT], forwards = 0, backwards = 0;
    sink         s = {"", 0};
    step(net, opt, &NETWORKS[0], 64, false);
    mlc_timeline *t = mlc_timeline_begin(ctx, 1000);
    if (!CHECK(t != NULL))
        return;
    mlc_memory_peak_reset(ctx);
    mlc_memory_info(ctx, &before);
    CHECK(mlc_timeline_peak(t, now) == NULL);
    step(net, opt, &NETWORKS[0], 64, false);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(mlc_timeline_end(t), MLC_OK);
    const int64_t n = mlc_timeline_count(t, &lost);
    CHECK(n > 20 && n < 1000 && lost == 0);
    int64_t in_use = mlc_timeline_at(t, 0)->allocated - mlc_timeline_at(t, 0)->bytes;
    const int64_t own = before.allocated - in_use;
    CHECK(own > 1000 * (int64_t)sizeof(mlc_timeline_event));
    for (int64_t i = 0; i < n; i++) {
        const mlc_timeline_event *e = mlc_timeline_at(t, i);
        in_use += e->bytes;
        CHECK_EQ(e->allocated, in_use);
        CHECK((e->call == 0) == (e->op[0] == 0));
        forwards += strcmp(e->op, "linear") == 0 && !e->backward && e->bytes > 0 &&
                    strcmp(e->module, "3") == 0;
        backwards += strcmp(e->op, "cross_entropy") == 0 && e->backward;
    }
    CHECK(forwards > 0 && backwards > 0);
    CHECK_EQ(in_use + own, after.allocated);
    const mlc_timeline_event *p = mlc_timeline_peak(t, now);
    CHECK_EQ(p->allocated + own, after.peak);
    int64_t sum = 0;
    for (int k = 0; k < MLC_MEM_COUNT; k++)
        sum += now[k];
    CHECK_EQ(sum, p->allocated);
    CHECK_STR(p->op, "linear");        /* of which one is for workspaces to say                */
    CHECK(p->module[0] != 0 && p->call > 0);
    CHECK_EQ(mlc_timeline_print(t, 5, collect, &s), MLC_OK);
    char line[120];
    snprintf(line, sizeof line, ", in %s%s of %s; %d events, 0 lost\n", p->op,
             p->backward ? " backward" : "", p->module, (int)n);
    CHECK_HAS(s.text, line);
    snprintf(line, sizeof line, "  %-32s %s\n", p->backward ? "linear backward" : "linear",
             p->module);
    CHECK_HAS(s.text, line);
    CHECK_HAS(s.text, "  optimizer       1.81 MB\n");
    box b = box_open("memory.svg");
    CHECK_EQ(mlc_timeline_save(t, b.path), MLC_OK);
    box_close(&b);
    CHECK_EQ(mlc_timeline_end(t), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "ended");
    mlc_timeline_free(t);
}

TEST(memory_plan, a_timeline_that_is_too_short_has_the_peak)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = make_mlp(ctx);
    mlc_optim    *opt = mlc_adamw(net, 0.01);
    int64_t       lost, most[2];
    sink          s = {"", 0};
    for (int i = 0; i < 2; i++) {
        mlc_timeline *t = mlc_timeline_begin(ctx, i ? 2000 : 3);
        mlc_timeline *none = mlc_timeline_begin(ctx, 0);
        step(net, opt, &NETWORKS[0], 64, false);
        step(net, opt, &NETWORKS[0], 64, false);
        const int64_t n = mlc_timeline_count(t, &lost);
        CHECK_EQ(n == 3, lost > 0);
        CHECK_EQ(mlc_timeline_count(none, NULL), 0);
        most[i] = mlc_timeline_peak(t, NULL)->allocated;
        CHECK_EQ(mlc_timeline_print(none, 5, collect, &s), MLC_OK);
        CHECK_HAS(s.text, "; 0 events, ");
        CHECK_EQ(mlc_timeline_save(none, "/tmp/none.svg"), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "no events");
        mlc_timeline_free(none);
        mlc_timeline_free(t);
    }
    CHECK(near_to(most[0], most[1], 0));
    CHECK(mlc_timeline_begin(ctx, -1) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "capacity");
    mlc_timeline_free(NULL);
}
