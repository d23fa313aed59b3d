/* test_parallel_shard.c -- tests of section IMPL.PARALLEL.SHARD: states and gradients in parts */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ranks.h"
#include "watch.h"

#ifndef MLC_NO_THREADS

enum { ROWS = 12, STEPS = 5 };

/* ---- networks -------------------------------------------------------------------------------*/

enum { MLP, WIDE, CNN, GPT, NETS };
enum { IN = 6, WIDE_IN = 128, SIDE = 8, TOKENS = 10, VOCAB = 19 };

static mlc_module *net_of(mlc_ctx *ctx, int which)
{
    if (which == MLP) return mlp(ctx, IN, 9, 3);
    if (which == WIDE) return mlp(ctx, WIDE_IN, 400, 64);
    if (which == CNN) {
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_module_add(net, mlc_nn_conv2d(ctx, 1, 5, 3, 1, 1));
        mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_module_add(net, mlc_nn_flatten(ctx));
        mlc_module_add(net, mlc_nn_linear(ctx, 5 * SIDE * SIDE, 7));
        return net;
    }
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(VOCAB, TOKENS, 2, 16, 2);
    d.layer.dropout = 0;
    return mlc_nn_gpt(ctx, &d);
}

/* Loss of next tokens of the rank's rows of step t. */
static mlc_tensor *loss_of_tokens(mlc_module *net, int t, int rank, int ranks)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    int64_t  x[ROWS * TOKENS], y[ROWS * TOKENS];
    int      n = 0;
    for (int i = rank; i < ROWS; i += ranks, n++)
        for (int k = 0; k < TOKENS; k++) {
            x[n * TOKENS + k] = (int64_t)(9.4 * (datum(t, i, k) + 1));
            y[n * TOKENS + k] = (int64_t)(9.4 * (datum(t, i, k + 1) + 1));
        }
    mlc_tensor *z = mlc_forward(net, mlc_from(ctx, MLC_I64, mlc_dims2(n, TOKENS), x));
    return mlc_cross_entropy(mlc_reshape(z, mlc_dims2(n * TOKENS, VOCAB)),
                             mlc_from(ctx, MLC_I64, mlc_dims1(n * TOKENS), y));
}

/* Loss of the rank's rows of step t, those with i % ranks == rank. */
static mlc_tensor *loss_of(mlc_module *net, int which, mlc_dtype dtype, int t, int rank, int ranks)
{
    mlc_ctx  *ctx = mlc_module_ctx(net);
    const int width = which == MLP ? IN : which == WIDE ? WIDE_IN : SIDE * SIDE;
    double    x[ROWS * WIDE_IN];
    int64_t   y[ROWS];
    int       n = 0;
    if (which == GPT) return loss_of_tokens(net, t, rank, ranks);
    for (int i = rank; i < ROWS; i += ranks) {
        for (int k = 0; k < width; k++) x[n * width + k] = datum(t, i, k);
        y[n++] = (i + t) % 3;
    }
    const mlc_dims shape = which == CNN ? mlc_dims4(n, 1, SIDE, SIDE) : mlc_dims2(n, width);
    mlc_tensor *in = mlc_cast(mlc_from(ctx, MLC_F64, shape, x), dtype);
    return mlc_cross_entropy(mlc_forward(net, in), mlc_from(ctx, MLC_I64, mlc_dims1(n), y));
}

/* ---- a training -----------------------------------------------------------------------------*/

/* Bits of `kind`: a network in the lowest two, what else is on, and above these desc.shard. */
enum { DOUBLE = 4, ADAM = 8, CLIP = 16, SCALED = 32, SMALL = 64, COLLECT = 128, WEIGHTED = 256,
       EACH = 512, AVERAGED = 1024, LATE = 2048, GROUPED = 4096, VALUE = 8192, SHARD = 16384 };

/* The bits of t. hash_tensor makes a check, which a rank does not. */
static uint64_t hash_values(uint64_t h, mlc_tensor *t)
{
    const size_t bytes = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    void        *each = malloc(bytes + 1);
    mlc_read(t, each, bytes);
    h = hash_bytes(h, each, bytes);
    free(each);
    return h;
}

static void keep_hash(rank_job *j, uint64_t h)
{
    j->value[j->values++] = (double)(uint32_t)h;
    j->value[j->values++] = (double)(uint32_t)(h >> 32);
}

/* Hashes of parameters, of states, and of the norm and the scaler. */
static void keep(rank_job *j, mlc_module *net, mlc_optim *opt)
{
    uint64_t       h = HASH_SEED;
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) h = hash_values(h, it.tensor);
    keep_hash(j, h);
    mlc_scope_begin(j->ctx);
    mlc_optim_state_iter s = mlc_optim_state_iter_make(opt);
    while (mlc_optim_state_next(&s))
        h = hash_values(hash_bytes(h, s.name, strlen(s.name)), s.tensor);
    mlc_scope_end(j->ctx);
    keep_hash(j, h);
    if (j->kind & CLIP) j->value[j->values++] = mlc_optim_grad_norm(opt);
    j->value[j->values++] = mlc_optim_scaler_state(opt).scale;
    j->value[j->values++] = (double)mlc_optim_steps(opt);
}

static mlc_optim *rule_of(mlc_module *net, int kind)
{
    mlc_clip_desc  clip = mlc_clip_desc_make();
    mlc_group_desc group = mlc_group_desc_make();
    mlc_sgd_desc   sgd = mlc_sgd_desc_make(0.1);
    sgd.momentum = 0.9;
    mlc_optim *opt = kind & ADAM ? mlc_adamw(net, 0.01) : mlc_sgd_ex(net, &sgd);
    clip.norm = kind & VALUE ? clip.norm : 0.2;
    clip.value = kind & VALUE ? 1e-3 : clip.value;
    clip.each = (kind & EACH) != 0;
    group.lr_scale = 0.5;
    if (kind & CLIP) mlc_optim_clip(opt, &clip);
    if (kind & COLLECT) mlc_optim_accumulate(opt, 2);
    if (kind & SCALED) mlc_optim_scaler(opt, NULL);
    if (kind & GROUPED) mlc_optim_group(opt, "*bias", &group);
    return opt;
}

/* A step; with SCALED rank 1 has an infinite loss in step 2, which all ranks leave out. */
static void step(rank_job *j, mlc_module *net, mlc_optim *opt, int t)
{
    const mlc_dtype dtype = j->kind & DOUBLE ? MLC_F64 : MLC_F32;
    mlc_scope_begin(j->ctx);
    if (j->kind & WEIGHTED) mlc_data_parallel_weight(opt, j->comm.rank + 1);
    mlc_tensor *loss = loss_of(net, j->kind & 3, dtype, t, j->comm.rank, j->comm.size);
    if (j->kind & SCALED && t == 2 && j->comm.rank == j->comm.size - 1)
        loss = mlc_mul_scalar(loss, j->kind & DOUBLE ? 1e305 : 1e36);
    mlc_backward(mlc_optim_scaled(opt, loss));
    mlc_optim_step(opt);
    mlc_scope_end(j->ctx);
}

static void train(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = net_of(j->ctx, j->kind & 3);
    mlc_module_to(net, j->kind & DOUBLE ? MLC_F64 : MLC_F32);
    mlc_optim   *opt = rule_of(net, j->kind);
    mlc_average *ema = NULL;
    d.shard = j->kind / SHARD;
    d.weighted = (j->kind & WEIGHTED) != 0;
    d.overlap = !(j->kind & LATE);
    if (j->kind & SMALL) d.bucket = 1;
#ifndef MLC_NO_OPTIMIZERS
    if (j->kind & AVERAGED) ema = mlc_ema(opt, 0.9);
#endif
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < STEPS + (j->kind & COLLECT ? 1 : 0); t++) step(j, net, opt, t);
    if (mlc_data_parallel_gather(opt) != MLC_OK) return;
    keep(j, net, opt);
    step(j, net, opt, STEPS);          /* divided again, and then an ordinary optimizer */
    step(j, net, opt, STEPS + 1);
    if (mlc_data_parallel_end(opt) != MLC_OK) return;
    if (ema) mlc_average_swap(ema, true);
    keep(j, net, opt);
    if (ema) mlc_average_swap(ema, false);
}

/* Trains with shard 0, 1 and 2 in n ranks, which must leave the same bits in all. */
static void same_bits(int kind, int n)
{
    static rank_job plain[RANKS], parts[RANKS];
    run_ranks(n, train, kind, 0, plain);
    all_well(plain, n);
    CHECK(plain[0].values > 5);
    for (int shard = 1; shard <= 2; shard++) {
        if (shard == 2 && kind & VALUE) continue;
        run_ranks(n, train, kind + shard * SHARD, 0, parts);
        all_well(parts, n);
        for (int r = 0; r < n; r++) {
            CHECK_EQ(parts[r].values, plain[0].values);
            for (int i = 0; i < plain[0].values; i++)
                CHECK_NEAR(parts[r].value[i], plain[r].value[i], 0);
        }
    }
    CHECK(!(kind & SCALED) || plain[0].value[plain[0].values - 2] < 65536);
}

TEST(parallel_shard, parts_have_the_bits_of_whole_states_for_one_to_four_ranks)
{
    static const int more[] = {CLIP | SCALED, SMALL | CLIP, ADAM | DOUBLE | CLIP | SCALED,
                               ADAM | SMALL | CLIP, ADAM | GROUPED};
    ONLY_ON_HOST();
    for (int n = 1; n <= 4; n++)
        for (int k = 0; k < COUNT(more); k++) {
            same_bits(MLP | more[k], n);
            same_bits(CNN | more[k], n);
        }
}

TEST(parallel_shard, a_transformer_with_a_tied_head_has_the_bits_of_whole_states)
{
    ONLY_ON_HOST();
    for (int n = 2; n <= 4; n++) {
        same_bits(GPT | ADAM | CLIP | SMALL, n);
        same_bits(GPT | ADAM | CLIP | SCALED, n);
        same_bits(GPT | DOUBLE | CLIP, n);
    }
}

TEST(parallel_shard, norms_of_more_than_a_chunk_have_the_bits_of_one_pass)
{
    ONLY_ON_HOST();
    for (int n = 2; n <= 4; n++) {
        same_bits(WIDE | CLIP, n);
        same_bits(WIDE | CLIP | SMALL | ADAM, n);
        same_bits(WIDE | CLIP | DOUBLE | EACH, n);
    }
}

TEST(parallel_shard, collecting_weights_averages_and_late_sums_go_with_parts)
{
    ONLY_ON_HOST();
    same_bits(MLP | COLLECT | CLIP, 3);
    same_bits(MLP | COLLECT | ADAM | SMALL, 2);
    same_bits(MLP | WEIGHTED | SMALL | CLIP, 3);
    same_bits(MLP | LATE | SMALL | ADAM, 3);
    same_bits(MLP | VALUE | CLIP | ADAM, 3);
#ifndef MLC_NO_OPTIMIZERS
    same_bits(MLP | AVERAGED | ADAM, 3);
#endif
}

/* ---- memory ---------------------------------------------------------------------------------*/

enum { DEEP_WIDTH = 256, DEEP = 8 };

/* Leaves bytes of states, and the most bytes of gradients within a step. kind: shard. */
static void weigh(rank_job *j)
{
    mlc_memory        m;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = mlc_nn_sequential(j->ctx);
    for (int i = 0; i < DEEP; i++)
        mlc_module_add(net, mlc_nn_linear(j->ctx, DEEP_WIDTH, DEEP_WIDTH));
    mlc_optim *opt = mlc_adamw(net, 0.01);
    d.shard = j->kind;
    d.bucket = DEEP_WIDTH * DEEP_WIDTH * 4;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < 3; t++) {
        double *x = (double *)calloc(DEEP_WIDTH, sizeof *x);
        for (int k = 0; k < DEEP_WIDTH; k++) x[k] = datum(t, j->comm.rank, k);
        mlc_scope_begin(j->ctx);
        mlc_tensor *in = mlc_cast(mlc_from(j->ctx, MLC_F64, mlc_dims2(1, DEEP_WIDTH), x), MLC_F32);
        if (t == 1) mlc_memory_peak_reset(j->ctx);
        mlc_backward(mlc_mean(mlc_square(mlc_forward(net, in)), mlc_dims0(), false));
        mlc_optim_step(opt);
        mlc_scope_end(j->ctx);
        free(x);
    }
    mlc_memory_info(j->ctx, &m);
    j->value[0] = (double)m.now[MLC_MEM_OPTIM];
    j->value[1] = (double)m.top[MLC_MEM_GRAD];
    j->value[2] = (double)m.now[MLC_MEM_GRAD];
    j->values = 3;
}

TEST(parallel_shard, four_ranks_have_a_quarter_of_states_and_of_gradients_beside_two_buckets)
{
    static rank_job plain[RANKS], parts[RANKS];
    const double    bucket = DEEP_WIDTH * (DEEP_WIDTH + 1) * 4.0;
    const double    results = 2 * DEEP_WIDTH * 4;          /* gradients of a layer's in and out */
    ONLY_ON_HOST();
    run_ranks(4, weigh, 0, 0, plain);
    all_well(plain, 4);
    CHECK(plain[0].value[1] >= DEEP * DEEP_WIDTH * DEEP_WIDTH * 4.0);
    for (int shard = 1; shard <= 2; shard++) {
        run_ranks(4, weigh, shard, 0, parts);
        all_well(parts, 4);
        for (int r = 0; r < 4; r++) {
            CHECK(parts[r].value[0] > 0 && parts[r].value[0] <= 0.27 * plain[r].value[0]);
            if (shard == 1) continue;
            CHECK(parts[r].value[1] <= 0.25 * plain[r].value[1] + 2 * bucket + results);
            CHECK(parts[r].value[2] <= 0.25 * plain[r].value[2] + 64 * DEEP);
        }
    }
}

/* ---- files ----------------------------------------------------------------------------------*/

static char net_path[512], opt_path[512];

/* Steps from .. 3 more of four micro batches in all, from the file on, if it is not the first part;
 * rank 0 saves. kind: first step, and from 64 on shard. */
static void goes_on(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    const int         from = j->kind % 64;
    mlc_module       *net = net_of(j->ctx, CNN);
    mlc_optim        *opt = rule_of(net, ADAM | CLIP | SCALED);
    d.micro = 4 / j->comm.size;
    d.shard = j->kind / 64;
    if (from && mlc_load(net, net_path) == MLC_OK) mlc_optim_load(opt, opt_path);
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = from; t < from + 3; t++)
        for (int k = 0; k < d.micro; k++) {
            mlc_scope_begin(j->ctx);
            mlc_backward(mlc_optim_scaled(opt, loss_of(net, CNN, MLC_F32, t,
                                                       j->comm.rank * d.micro + k, 4)));
            mlc_optim_step(opt);
            mlc_scope_end(j->ctx);
        }
    if (mlc_data_parallel_gather(opt) != MLC_OK) return;
    if (!j->comm.rank && (mlc_save(net, net_path) != MLC_OK ||
                          mlc_optim_save(opt, opt_path) != MLC_OK)) return;
    keep(j, net, opt);
}

/* Three parts of a training: with `ranks` each and shard; leaves the last part's first rank. */
static void in_three(const int ranks[3], const int shard[3], rank_job *last)
{
    static rank_job jobs[RANKS];
    box net = box_open("net.safetensors"), opt = box_open("opt.safetensors");
    snprintf(net_path, sizeof net_path, "%s", net.path);
    snprintf(opt_path, sizeof opt_path, "%s", opt.path);
    for (int part = 0; part < 3; part++) {
        run_ranks(ranks[part], goes_on, 3 * part + 64 * shard[part], 0, jobs);
        all_well(jobs, ranks[part]);
    }
    *last = jobs[0];
    box_close(&net);
    box_close(&opt);
}

TEST(parallel_shard, files_go_on_with_other_ranks_and_other_shards)
{
    static const int one[] = {1, 1, 1}, fewer[] = {4, 2, 1}, more[] = {1, 2, 4}, no[] = {0, 0, 0};
    static const int states[] = {1, 1, 1}, both[] = {2, 1, 0};
    static rank_job  want, got;
    ONLY_ON_HOST();
    in_three(one, no, &want);
    CHECK(want.values > 4);
    for (int k = 0; k < 4; k++) {
        in_three(k == 2 ? more : fewer, k == 0 ? no : k == 3 ? both : states, &got);
        CHECK_EQ(got.values, want.values);
        for (int i = 0; i < want.values; i++) CHECK_NEAR(got.value[i], want.value[i], 0);
    }
}

/* ---- changes and errors ---------------------------------------------------------------------*/

typedef struct ranged { rank_job *job; mlc_module *net; mlc_optim *opt; int t; } ranged;
static double range_step(void *user)
{
    ranged *r = (ranged *)user;
    step(r->job, r->net, r->opt, r->t++ % STEPS);
    return mlc_ctx_status(r->job->ctx) == MLC_OK ? 1 : (double)NO_NUMBER;
}

/* Layers are frozen, thawed and added, rates are tried: states follow. */
static void changes(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    double            rates[6], losses[6];
    mlc_lr_range_desc range = mlc_lr_range_desc_make(rates, losses, 6);
    mlc_module       *net = net_of(j->ctx, MLP);
    mlc_module_to(net, MLC_F64);
    mlc_module_freeze(net, "2.*", true);
    mlc_optim *opt = rule_of(net, j->kind);
    ranged     r = {j, net, opt, 0};
    d.shard = j->kind / SHARD;
    d.bucket = 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < 6; t++) {
        step(j, net, opt, t);
        if (t == 1) mlc_module_freeze(net, "*", false);
        if (t == 2) mlc_module_add(net, mlc_nn_linear(j->ctx, 3, 3));
        if (t == 2) mlc_module_to(net, MLC_F64);
        if (t == 3) mlc_lr_range(opt, &range, range_step, &r, NULL, NULL);
        if (t == 4) mlc_module_freeze(net, "0.*", true);
    }
    if (mlc_data_parallel_end(opt) == MLC_OK) keep(j, net, opt);
}

TEST(parallel_shard, states_follow_layers_that_are_frozen_and_added)
{
    static rank_job plain[RANKS], parts[RANKS];
    ONLY_ON_HOST();
    run_ranks(3, changes, ADAM | CLIP | DOUBLE, 0, plain);
    all_well(plain, 3);
    for (int shard = 1; shard <= 2; shard++) {
        run_ranks(3, changes, (ADAM | CLIP | DOUBLE) + shard * SHARD, 0, parts);
        all_well(parts, 3);
        for (int r = 0; r < 3; r++)
            CHECK(plain[r].values > 4 && !memcmp(parts[r].value, plain[0].value,
                                                 sizeof parts[r].value));
    }
}

static mlc_tensor *sharp_loss(void *user)
{
    ranged *r = (ranged *)user;
    return loss_of(r->net, MLP, MLC_F32, r->t, r->job->comm.rank, r->job->comm.size);
}

/* A step, then a function that needs whole states; then the rank's optimizer is freed. */
static void unread(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_module       *net = net_of(j->ctx, MLP);
    mlc_optim        *opt = rule_of(net, ADAM);
    const int kind = j->kind;
    ranged    r = {j, net, opt, 0};
    j->kind = MLP;
    d.shard = kind == 3 || kind == 5 ? 2 : 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    step(j, net, opt, 0);
    mlc_scope_begin(j->ctx);
    if (kind == 0) j->status = mlc_optim_save(opt, "/nonexistent/mlcore.safetensors");
    if (kind == 1) j->status = mlc_optim_load(opt, opt_path);
    if (kind == 2) {
        mlc_optim_state_iter it = mlc_optim_state_iter_make(opt);
        mlc_optim_state_next(&it);
    }
    if (kind == 3) {
        mlc_clip_desc clip = mlc_clip_desc_make();
        clip.value = 1;
        mlc_optim_clip(opt, &clip);
        mlc_backward(loss_of(net, MLP, MLC_F32, 0, j->comm.rank, j->comm.size));
        mlc_optim_step(opt);
    }
#ifndef MLC_NO_OPTIMIZERS
    if (kind == 5) {
        mlc_optim_sam(opt, 0.1, false);
        mlc_optim_step_with(opt, sharp_loss, &r, NULL);
    }
#endif
    if (j->status == MLC_OK) j->status = mlc_ctx_status(j->ctx);
    mlc_scope_end(j->ctx);
    snprintf((char *)j->value, sizeof j->value, "%s", mlc_error(j->ctx));
    mlc_error_clear(j->ctx);
    j->values = (int)mlc_optim_steps(opt);
    if (kind == 4) mlc_module_free(net);
    mlc_optim_free(opt);
}

TEST(parallel_shard, what_needs_whole_states_is_an_error_that_says_how)
{
    static const char *const says[] = {"call mlc_data_parallel_gather in all of them",
                                       "call mlc_data_parallel_gather in all of them",
                                       "call mlc_data_parallel_gather in all of them",
                                       "a clip of value with shard 2", "",
#ifndef MLC_NO_OPTIMIZERS
                                       "mlc_optim_sam with shard 2",
#endif
    };
    static const mlc_status want[] = {MLC_ERR_STATE, MLC_ERR_STATE, MLC_ERR_STATE,
                                      MLC_ERR_UNSUPPORTED, MLC_OK,
#ifndef MLC_NO_OPTIMIZERS
                                      MLC_ERR_UNSUPPORTED,
#endif
    };
    static rank_job jobs[RANKS];
    ONLY_ON_HOST();
    box        b = box_open("opt.safetensors");
    mlc_ctx   *ctx = test_ctx();
    mlc_optim *whole = rule_of(net_of(ctx, MLP), ADAM);
    CHECK_EQ(mlc_optim_save(whole, b.path), MLC_OK);
    snprintf(opt_path, sizeof opt_path, "%s", b.path);
    for (int kind = 0; kind < COUNT(want); kind++) {
        run_ranks(2, unread, kind, 0, jobs);
        for (int r = 0; r < 2; r++) {
            CHECK_EQ(jobs[r].status, want[kind]);
            CHECK_HAS((const char *)jobs[r].value, says[kind]);
            CHECK_EQ(jobs[r].values, 1);                   /* a load has changed nothing */
        }
    }
    box_close(&b);
}

/* kind 1: in step 1 there is a clip of value, an error; without it the same step is made. */
static void refused_clip(rank_job *j)
{
    mlc_parallel_desc d = mlc_parallel_desc_make();
    mlc_clip_desc     clip = mlc_clip_desc_make();
    mlc_module       *net = net_of(j->ctx, MLP);
    mlc_optim        *opt = rule_of(net, ADAM);
    const bool        once = j->kind != 0;
    j->kind = MLP;
    d.shard = 2;
    d.bucket = 1;
    if (mlc_data_parallel(net, opt, &j->comm, &d) != MLC_OK) return;
    for (int t = 0; t < 3; t++) {
        mlc_scope_begin(j->ctx);
        mlc_backward(loss_of(net, MLP, MLC_F32, t, j->comm.rank, j->comm.size));
        if (once && t == 1) {
            clip.value = 1;
            mlc_optim_clip(opt, &clip);
            if (mlc_optim_step(opt) != MLC_ERR_UNSUPPORTED) j->status = MLC_ERR_INTERNAL;
            mlc_error_clear(j->ctx);
            mlc_optim_clip(opt, NULL);
        }
        mlc_optim_step(opt);
        mlc_scope_end(j->ctx);
    }
    if (mlc_data_parallel_end(opt) == MLC_OK) keep(j, net, opt);
}

TEST(parallel_shard, a_step_that_is_refused_keeps_its_gradients)
{
    static rank_job plain[RANKS], jobs[RANKS];
    ONLY_ON_HOST();
    run_ranks(2, refused_clip, 0, 0, plain);
    run_ranks(2, refused_clip, 1, 0, jobs);
    all_well(plain, 2);
    all_well(jobs, 2);
    for (int r = 0; r < 2; r++)
        CHECK(plain[r].values > 4 && !memcmp(jobs[r].value, plain[r].value,
                                             sizeof jobs[r].value));
}

static mlc_status refused(mlc_ctx *ctx, mlc_optim *opt, mlc_module *net, int32_t shard,
                          int32_t micro)
{
    mlc_comm          comm;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    d.shard = shard;
    d.micro = micro;
    mlc_comm_threads(ctx, 1, NULL, &comm);
    return mlc_data_parallel(net, opt, &comm, &d);
}

TEST(parallel_shard, rules_and_descs_that_have_no_parts_are_errors)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = net_of(ctx, MLP);
    mlc_adam_desc small = mlc_adamw_desc_make(0.1);
    ONLY_ON_HOST();
    CHECK_EQ(mlc_parallel_desc_make().shard, 0);
    CHECK_EQ(mlc_data_parallel_gather(NULL), MLC_ERR_ARG);
    mlc_optim *opt = mlc_sgd(net, 0.1);
    CHECK_EQ(mlc_data_parallel_gather(opt), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "data_parallel_gather: the optimizer is not parallel");
    CHECK_EQ(refused(ctx, opt, net, 3, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "shard 3: 0, 1 for states, 2 for gradients");
    CHECK_EQ(refused(ctx, opt, net, 2, 2), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "shard 2 and micro 2");
#ifndef MLC_NO_OPTIMIZERS
    CHECK_EQ(refused(ctx, mlc_lamb(net, 0.1), net, 1, 1), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "looks at whole parameters");
    CHECK_EQ(refused(ctx, mlc_muon(net, 0.1), net, 1, 1), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "looks at whole parameters");
    CHECK_EQ(refused(ctx, mlc_sophia(net, 0.1), net, 1, 1), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "has passes of its own");
    small.moments = MLC_MOMENTS_BF16;
    CHECK_EQ(refused(ctx, mlc_adamw_ex(net, &small), net, 1, 1), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "are in 16 or 8 bits");
#else
    (void)small;
#endif
    CHECK_OK(ctx);
}
#endif
