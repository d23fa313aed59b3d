/* test_faults.c -- memory runs out at every allocation of every public function, once and for ever
 *
 * Each scenario is a small use of a function (two, with its backward). It runs once with memory
 * enough, which gives the result to compare with; then with the first allocation failing, the
 * second, ... until none fails any more. A failed call must say NOMEM and change nothing; the same
 * call with memory again must give the same bits; nothing may leak, neither at the context's end
 * nor from failed call to failed call. make lint wants a scenario for each function of the API.
 * Scenarios are in test_faults_*.c by what they use. Failing system calls are in tests/faults/.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "faults.h"
#include "onnx_file.h"

/* ---- an allocator that fails where it is told to -------------------------------------------- */

static memory *g_memory;               /* for the device's memory: it has no user pointer      */

static bool memory_fails(memory *m)
{
    if (!m->armed)
        return false;
    m->calls++;
    if (m->fail_at == 0 || m->calls < m->fail_at || (m->calls > m->fail_at && !m->ever))
        return false;
    m->hit = true;
    return true;
}

void *memory_alloc(void *user, size_t bytes, size_t align)
{
    memory *m = (memory *)user;
    void   *p = memory_fails(m) ? NULL
                                : test_aligned_alloc(align, bytes);
    if (p != NULL) {
        memset(p, 0xa5, bytes);        /* nothing may count on zeros                           */
        m->live += (int64_t)bytes;
        m->blocks++;
    }
    return p;
}

void memory_release(void *user, void *ptr, size_t bytes)
{
    memory *m = (memory *)user;
    m->live -= (int64_t)bytes;
    m->blocks--;
    memset(ptr, 0xdd, bytes);
    test_aligned_free(ptr);
}

static bool device_refuses(void)
{
    return g_memory != NULL && memory_fails(g_memory);
}

static mlc_ctx_desc memory_desc(memory *m)
{
    mlc_ctx_desc d = test_desc();
    d.threads = 1;
    d.allocator.user = m;
    d.allocator.alloc = memory_alloc;
    d.allocator.release = memory_release;
    g_memory = m;
    test_device_refuses = device_refuses;
    return d;
}

static void memory_done(const memory *m, mlc_ctx *ctx)
{
    const int64_t leaked = test_device_leaked();
    mlc_ctx_free(ctx);
    CHECK_EQ(m->live, 0);
    CHECK_EQ(m->blocks, 0);
    CHECK_EQ(test_device_leaked(), leaked);
    g_memory = NULL;
    test_device_refuses = NULL;
}

/* ---- the world in which scenarios run ------------------------------------------------------- */

static scenario *g_first, **g_last = &g_first;

void scenario_add(scenario *s)
{
    *g_last = s;
    g_last = &s->next;
}

/* ---- what allocates nothing ----------------------------------------------------------------- */

SCENARIO(types, true)
{
    const int64_t sizes[2] = {1, 2};
    char          text[64];
    CHECK_STR(mlc_version(), MLC_VERSION_STRING);
    CHECK_EQ(mlc_dims0().n + mlc_dims1(1).n + mlc_dims2(1, 2).n + mlc_dims3(1, 2, 3).n +
             mlc_dims4(1, 2, 3, 4).n + mlc_dims_of(2, sizes).n, 12);
    CHECK_EQ(mlc_dtype_bytes(MLC_F64), 8);
    CHECK_STR(mlc_dtype_name(MLC_F32), "f32");
    CHECK(mlc_bf16_to(mlc_bf16_from(1)) + mlc_f16_to(mlc_f16_from(1)) == 2);
    CHECK_STR(mlc_status_name(MLC_OK), "OK");
    CHECK_STR(mlc_isa_name(MLC_ISA_SCALAR), "scalar");
    CHECK_EQ(mlc_dim(w->x, 1) + mlc_numel(w->x), 16);
    CHECK(mlc_is_contiguous(w->x) && mlc_requires_grad(w->x));
    CHECK_STR(mlc_shape_text(w->x, text, sizeof text), "[3,4]");
    if (mlc_ctx_on_host(w->ctx)) {
        CHECK(mlc_f32(w->x) && mlc_i64(w->i) && mlc_bool(w->mask) && mlc_f64(w->d));
        CHECK(!mlc_bf16(w->x) && !mlc_f16(w->x) && !mlc_i32(w->x) && !mlc_i8(w->x));
        CHECK(!mlc_u8(w->x));
        mlc_error_clear(w->ctx);
    }
    return MLC_OK;
}

SCENARIO(contexts, true)
{
    mlc_memory info;
    int32_t n = 0;
    CHECK_STR(mlc_rename_make("a", "b").to, "b");
    CHECK(mlc_rename_gpt2(&n) && mlc_rename_llama(&n) && mlc_rename_bert(&n) && n > 0);
    CHECK_EQ(mlc_ctx_desc_make().threads, 0);
    CHECK(mlc_gradcheck_desc_make().eps > 0 && mlc_conv_desc_make().groups == 1);
    CHECK(mlc_table_desc_make().header && !mlc_csv_desc_make().header);
    CHECK(mlc_ctx_isa(w->ctx) >= MLC_ISA_SCALAR);
    CHECK_EQ(mlc_ctx_threads(w->ctx), 1);
    CHECK(mlc_ctx_blas(w->ctx) != NULL);
    CHECK_EQ(mlc_ctx_on_host(w->ctx), test_on_host());
    CHECK_EQ(mlc_ctx_sync(w->ctx), MLC_OK);
    CHECK_EQ(mlc_seed(w->ctx, 3), MLC_OK);
    CHECK_EQ(mlc_ctx_set_rng(w->ctx, mlc_ctx_rng(w->ctx)), MLC_OK);
    CHECK_EQ(mlc_raise(w->ctx, MLC_ERR_ARG, "mine"), MLC_ERR_ARG);
    CHECK_STR(mlc_error(w->ctx), "mine");
    CHECK_STATUS(w->ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_memory_info(w->ctx, &info), MLC_OK);
    mlc_memory_peak_reset(w->ctx);
    mlc_memory_trim(w->ctx);
    CHECK_EQ(mlc_scope_begin(w->ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(w->ctx), MLC_OK);
    mlc_stdout(NULL, "", 0);
    CHECK(mlc_cpu_kernels(MLC_ISA_SCALAR) != NULL);
    CHECK(mlc_cpu_rule(MLC_RULE_SGD) != NULL && mlc_cpu_rule(MLC_RULE_COUNT) == NULL);
    CHECK_EQ(mlc_backend_register(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_backend_count("cpu"), 1);
    return MLC_OK;
}

DO(set_threads)
{
    const int32_t    before = mlc_ctx_threads(w->ctx);
    const mlc_status st = mlc_ctx_set_threads(w->ctx, 3);
    if (st != MLC_OK)
        CHECK_EQ(mlc_ctx_threads(w->ctx), before);
    return st;
}

SCENARIO(objects, true)
{
    mlc_param_iter it = mlc_param_iter_make(w->net);
    mlc_progress   p = mlc_progress_make("here", 3, discard, NULL);
    mlc_progress_update(&p, 1, "loss 3");
    CHECK_EQ(it.root == w->net, 1);
    CHECK(mlc_module_user(w->net) != w->net && mlc_module_ctx(w->net) == w->ctx);
    mlc_module_train(w->net, true);
    CHECK(mlc_module_is_training(w->net));
    CHECK_EQ(mlc_optim_set_lr(w->opt, 0.1), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(w->opt), 0.1, 0);
    CHECK_EQ(mlc_optim_steps(w->opt), 0);
    CHECK(isnan(mlc_optim_grad_norm(w->opt)));
    mlc_error_clear(w->ctx);
    mlc_optim_scaler_off(w->opt);
    mlc_scaler_state scaler = mlc_optim_scaler_state(w->opt);
    CHECK_NEAR(scaler.scale, 1, 0);
    CHECK_EQ(mlc_optim_scaler_resume(w->opt, &scaler), MLC_ERR_STATE);
    mlc_error_clear(w->ctx);
    mlc_optim_zero_grad(w->opt);
    mlc_zero_grad(w->leaf_x);
    mlc_no_grad_begin(w->ctx);
    mlc_no_grad_end(w->ctx);
    CHECK(mlc_optim_pending(w->opt) == 0 && !mlc_optim_needs_loss(w->opt));
    CHECK_EQ(mlc_fit_desc_make(mlc_cross_entropy).epochs, 1);
    mlc_callback_free(w->ctx, NULL);
    mlc_module_free(NULL);
    mlc_optim_free(NULL);
    mlc_loader_free(NULL);
    mlc_table_free(NULL);
    mlc_tokenizer_free(NULL);
    CHECK_EQ(mlc_tokenizer_size(NULL), 0);
    CHECK_EQ(mlc_tokenizer_id(NULL, "a"), -1);
    CHECK(mlc_tokenizer_token(NULL, 0, NULL) == NULL);
    mlc_safetensors_close(NULL);
    CHECK_EQ(mlc_loader_batches(NULL), 0);
    mlc_dataset_free(NULL);
    CHECK_EQ(mlc_dataset_count(NULL), 0);
    CHECK_NEAR(mlc_sample_uniform(NULL, 0), 0, 0);
    return MLC_OK;
}

/* ---- worlds --------------------------------------------------------------------------------- */

static mlc_module *small_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 5));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    return net;
}

static void world_open(world *w, const box *files)
{
    static const double some[12] = {1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0};
    static const double index[12] = {0, 1, 2, 0, 1, 1, 0, 2, 2, 0, 1, 1};
    memset(w, 0, sizeof *w);
    const mlc_ctx_desc d = memory_desc(&w->mem);
    mlc_ctx           *ctx = w->ctx = mlc_ctx_create(&d);
    w->files = files;
    w->leaf_x = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, 0.1, 0.9);
    w->leaf_y = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 2, 0.1, 0.9);
    w->v = test_rand(ctx, MLC_F32, mlc_dims1(4), 3, 0.1, 0.9);
    w->w = mlc_transpose(test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 4, 0.1, 0.9), 0, 1);
    w->m = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 5, 0.1, 0.9);
    w->d = mlc_transpose(test_rand(ctx, MLC_F64, mlc_dims2(2, 2), 6, 0.1, 0.9), 0, 1);
    w->mask = test_tensor(ctx, MLC_BOOL, mlc_dims2(3, 4), some);
    w->mask2 = test_tensor(ctx, MLC_BOOL, mlc_dims2(3, 4), index);
    w->i = test_tensor(ctx, MLC_I64, mlc_dims2(3, 4), index);
    w->rows = test_tensor(ctx, MLC_I64, mlc_dims1(2), index + 1);
    w->labels = test_tensor(ctx, MLC_I64, mlc_dims1(3), index);
    mlc_set_requires_grad(w->leaf_x, true);
    mlc_set_requires_grad(w->leaf_y, true);
    mlc_set_requires_grad(w->d, true);
    w->net = small_net(ctx);
    w->opt = mlc_adamw(w->net, 0.1);
    mlc_scope_begin(ctx);
    mlc_backward(mlc_cross_entropy(mlc_forward(w->net, w->v), mlc_select(w->labels, 0, 1)));
    mlc_scope_end(ctx);
    CHECK_OK(ctx);
}

static void world_close(world *w)
{
    memory_done(&w->mem, w->ctx);
}

/* Everything that a failed call may not change.                                                */
static uint64_t hash_world(world *w)
{
    mlc_tensor *const all[] = {w->leaf_x, w->leaf_y, w->x, w->y, w->v, w->w, w->m, w->d, w->mask,
                               w->mask2, w->i, w->rows, w->labels};
    uint64_t          h = HASH_SEED;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h = hash_tensor(h, all[i]);
    return hash_net(h, w->net);
}

/* What came out: tensors, gradients, parameters, the file that was written.                    */
static uint64_t hash_result(world *w)
{
    uint64_t h = w->text;
    size_t   n = 0;
    for (int i = 0; i < w->n_out; i++)
        h = hash_tensor(h, w->out[i]);
    h = hash_tensor(h, mlc_grad(w->leaf_x));
    h = hash_tensor(h, mlc_grad(w->leaf_y));
    h = hash_net(h, w->net);
    unsigned char *file = get_file(to(w), &n);
    h = hash_bytes(h, file, n);
    free(file);
    return h;
}

/* ---- one run of a scenario ------------------------------------------------------------------ */

static bool old_file_is_there(world *w)
{
    size_t         n = 0;
    unsigned char *file = get_file(to(w), &n);
    const bool     same = file && n == 3 && memcmp(file, "old", 3) == 0;
    free(file);
    return same;
}

/* The call, then backward from its first result. changed: not allowed after the call failed.   */
static mlc_status run_armed(world *w, const scenario *s, uint64_t *before)
{
    w->mem.armed = true;
    mlc_status st = s->run(w);
    w->mem.armed = false;
    if (st != MLC_OK || w->n_out == 0 || !mlc_requires_grad(w->out[0]))
        return st;
    *before = hash_world(w);           /* in-place operations changed x                        */
    mlc_memory_trim(w->ctx);
    w->mem.armed = true;
    st = mlc_backward_from(w->out[0], NULL);
    w->mem.armed = false;
    return st;
}

static void free_objects(world *w)
{
    mlc_optim_free(w->optim);
    mlc_module_free(w->module);
    mlc_loader_free(w->loader);
    while (w->n_sets > 0)
        mlc_dataset_free(w->sets[--w->n_sets]);
    mlc_table_free(w->table);
    mlc_tokenizer_free(w->tokenizer);
    mlc_metric_free(w->metric);
    mlc_metric_free(w->other);
    mlc_tracker_free(w->tracker);
    mlc_safetensors_close(w->file);
    w->optim = NULL;
    w->module = NULL;
    w->loader = NULL;
    w->table = NULL;
    w->tokenizer = NULL;
    w->metric = w->other = NULL;
    w->tracker = NULL;
    w->file = NULL;
}

/* Runs a scenario in a scope of its own; with fail_at > 0 that allocation fails. out: the hash of
 * the result if the status is OK.                                                              */
static mlc_status run(world *w, const scenario *s, int64_t fail_at, bool ever, uint64_t *result)
{
    mlc_seed(w->ctx, 7);
    mlc_scope_begin(w->ctx);
    w->x = mlc_copy(w->leaf_x);
    w->y = mlc_copy(w->leaf_y);
    w->n_out = 0;
    w->text = 0;
    put_file(to(w), "old", 3);
    const int files = box_count(w->files);
    uint64_t  before = hash_world(w);
    mlc_memory_trim(w->ctx);           /* nothing in stock: all comes from the allocator       */
    w->mem.calls = 0;
    w->mem.fail_at = fail_at;
    w->mem.ever = ever;
    w->mem.hit = false;
    const mlc_status st = run_armed(w, s, &before);
    const mlc_status stands = mlc_ctx_status(w->ctx);
    if (st != MLC_OK) {
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK_EQ(stands, MLC_ERR_NOMEM);
        CHECK_EQ(mlc_error_status(w->ctx), MLC_ERR_NOMEM);
        CHECK_HAS(mlc_error(w->ctx), "memory");
        mlc_error_clear(w->ctx);
        CHECK(hash_world(w) == before);
        CHECK(old_file_is_there(w));
    } else {
        CHECK_EQ(stands, MLC_OK);
        *result = hash_result(w);
    }
    mlc_zero_grad(w->leaf_x);
    mlc_zero_grad(w->leaf_y);
    free_objects(w);
    CHECK_EQ(box_count(w->files), files);
    CHECK_EQ(mlc_scope_end(w->ctx), MLC_OK);
    return st;
}

/* But for what is there to be given back.                                                      */
static int64_t allocated(const world *w)
{
    mlc_memory info;
    mlc_memory_trim(w->ctx);
    mlc_memory_info(w->ctx, &info);
    return info.allocated;
}

/* With allocation n failing, in a world of its own. True once there was none to fail.          */
static bool survives(const scenario *s, const box *files, int64_t n, bool ever, uint64_t want)
{
    world         w;
    uint64_t      got = 0;
    const int64_t failures = test_failures();
    world_open(&w, files);
    const mlc_status st = run(&w, s, n, ever, &got);
    const bool       hit = w.mem.hit;
    if (st == MLC_OK)                  /* a spare block did, or none failed                    */
        CHECK(got == want);
    if (st != MLC_OK) {
        if (CHECK_EQ(run(&w, s, 0, false, &got), MLC_OK))
            CHECK(got == want);
        int64_t steady = allocated(&w);
        /* Descriptors of blocks stay in stock: a failure may need some more of them, once.      */
        for (int more = 0; more < 2 && run(&w, s, n, ever, &got) != MLC_OK; more++) {
            if (allocated(&w) == steady)
                break;
            if (more)
                CHECK_EQ(allocated(&w), steady);
            steady = allocated(&w);
        }
    }
    world_close(&w);
    if (test_failures() > failures)
        printf("  %s with allocation %d failing%s\n", s->name, (int)n,
               ever ? " and all later" : "");
    return !hit;
}

#define MOST 400                       /* allocations of a scenario                            */

static void fail_everywhere(const scenario *s, const box *files)
{
    world    w;
    uint64_t want = 0;
    int64_t  n, calls;
    world_open(&w, files);
    CHECK_EQ(run(&w, s, 0, false, &want), MLC_OK);
    calls = w.mem.calls;
    world_close(&w);
    if (s->quiet)
        CHECK_EQ(calls, 0);
    for (int ever = 0; ever < 2; ever++) {
        n = 1;
        while (n < MOST && !survives(s, files, n, ever != 0, want))
            n++;
        CHECK(n == calls + 1);
    }
}

/* Of the training of fit_with, at its begin. */
static void put_run(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    const double    labels[3] = {0, 1, 2};
    mlc_loader     *loader = mlc_loader_shuffled(ctx, mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 4)),
                                                 test_tensor(ctx, MLC_I64, mlc_dims1(3), labels),
                                                 2);
    mlc_fit_metric  metric = {"accuracy", mlc_metric_accuracy(ctx), true};
    mlc_fit_desc    d = mlc_fit_desc_make(mlc_cross_entropy);
    d.validation = loader;
    d.metrics = &metric;
    d.n_metrics = 1;
    mlc_fit_state *s = mlc_fit_begin(net, mlc_adamw(net, 0.1), loader, &d);
    const mlc_run  run = mlc_fit_run(s);
    mlc_run_save(ctx, path, &run);
    mlc_fit_end(s, NULL);
}

static void put_inputs(const box *b)
{
    static pb         onnx;
    char              path[340];
    const mlc_ctx_desc d = test_desc();
    mlc_ctx          *ctx = mlc_ctx_create(&d);
    mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 9, -1, 1);
    mlc_tensor       *mask = mlc_lt_scalar(x, 0);
    const mlc_named   list[2] = {{"one", x}, {"two", mask}};
    unsigned char     image[3073] = {4, 5, 6};
    const char        fortran[] = "\x93NUMPY\1\0\x36\0{'descr':'|i1','fortran_order':True,"
                                  "'shape':(2,3),}  \n\1\4\2\5\3\6";
    const char       *table = "n,x,colour\n1,0.5,red\n2,,blue\n3,7,red\n";
#define PATH(name) (snprintf(path, sizeof path, "%s/" name, b->dir), path)
    mlc_csv_save(x, PATH("in.csv"), NULL);
    mlc_idx_save(x, PATH("in.idx"));
    mlc_idx_save(mlc_unsqueeze(x, 2), PATH("in.images"));
    mlc_idx_save(mlc_zeros(ctx, MLC_U8, mlc_dims1(5)), PATH("in.labels"));
    mlc_npy_save(mask, PATH("in.npy"));
    mlc_npz_save(ctx, PATH("in.npz"), list, 2);
    mlc_safetensors_save(ctx, PATH("in.safetensors"), list, 2, NULL);
    mlc_module *net = small_net(ctx);
    mlc_save(net, PATH("net.safetensors"));
    mlc_tensor *rows = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 4));
    mlc_plan   *plan = mlc_ctx_on_host(ctx) ? mlc_plan_capture(net, &rows, 1, NULL) : NULL;
    if (plan != NULL) mlc_plan_save(plan, PATH("plan.safetensors"));
    mlc_optim_save(mlc_adamw(net, 0.1), PATH("optim.safetensors"));
    onnx_small(&onnx);
    put_file(PATH("net.onnx"), onnx.data, onnx.n);
    put_run(ctx, net, PATH("run.safetensors"));
    put_file(PATH("in.cifar"), image, sizeof image);
    put_file(PATH("in.table"), table, strlen(table));
    put_file(PATH("in.fortran"), fortran, sizeof fortran - 1);
    put_file(PATH("in.tokens"), image, 64);
    put_file(PATH("1.pgm"), "P5 1 1 255 x", 12);
    put_file(PATH("2.pgm"), "P5 1 1 255 y", 12);
#undef PATH
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
}

TEST(faults, every_function_survives_that_any_of_its_allocations_fails)
{
    const box files = box_open_fast("out");
    put_inputs(&files);
    for (const scenario *s = g_first; s != NULL; s = s->next)
        fail_everywhere(s, &files);
    box_close(&files);
}

/* ---- a whole program ------------------------------------------------------------------------ */

/* Creates, trains, saves, loads, evaluates. What fails is done again when memory is back, and then
 * everything must come out as if nothing had happened.                                         */
typedef struct life {
    memory      mem;
    box         files;
    mlc_ctx    *ctx;
    mlc_loader *loader;
    mlc_module *net, *copy;
    mlc_optim  *opt;
    mlc_batch   batch;
    double      accuracy;
    int         failures;
} life;

typedef mlc_status (*stage_fn)(life *l);

/* Hash of the parameters, taken with memory enough.                                            */
static uint64_t life_hash(life *l, mlc_module *net)
{
    const bool armed = l->mem.armed;
    l->mem.armed = false;
    const uint64_t h = hash_net(1, net);
    l->mem.armed = armed;
    return h;
}

static mlc_status stage_context(life *l)
{
    mlc_ctx_desc d = memory_desc(&l->mem);
    mlc_status   st = MLC_OK;
    d.status = &st;
    l->ctx = mlc_ctx_create(&d);
    CHECK_EQ(l->ctx != NULL, st == MLC_OK);
    if (l->ctx == NULL)
        CHECK_EQ(l->mem.live, 0);
    return st;
}

/* 10 rows of 4: three batches of 4, 4 and 2.                                                   */
static mlc_status stage_data(life *l)
{
    float   x[40];
    int64_t y[10];
    for (int i = 0; i < 40; i++)
        x[i] = (float)test_random(1, i, -1, 1);
    for (int i = 0; i < 10; i++)
        y[i] = x[4 * i] > 0 ? 2 : x[4 * i + 1] > 0;
    mlc_scope_begin(l->ctx);
    mlc_loader_desc d = mlc_loader_desc_make(mlc_from(l->ctx, MLC_F32, mlc_dims2(10, 4), x),
                                             mlc_from(l->ctx, MLC_I64, mlc_dims1(10), y), 4);
    d.shuffle = true;
    l->loader = d.x && d.y ? mlc_loader_create(l->ctx, &d) : NULL;
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_nets(life *l)
{
    mlc_scope_begin(l->ctx);
    l->net = small_net(l->ctx);
    l->copy = small_net(l->ctx);
    const mlc_status st = mlc_scope_end(l->ctx);
    if (st != MLC_OK) {
        mlc_module_free(l->net);
        mlc_module_free(l->copy);
    }
    return st;
}

static mlc_status stage_optim(life *l)
{
    mlc_scope_begin(l->ctx);
    l->opt = mlc_adamw(l->net, 0.05);
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_batch(life *l)
{
    mlc_scope_begin(l->ctx);
    const bool more = mlc_loader_next(l->loader, &l->batch);
    if (!more && mlc_ctx_status(l->ctx) == MLC_OK)
        mlc_loader_next(l->loader, &l->batch);             /* the next epoch                   */
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_step(life *l)
{
    const uint64_t before = life_hash(l, l->net);
    const int64_t  steps = mlc_optim_steps(l->opt);
    mlc_scope_begin(l->ctx);
    mlc_backward(mlc_cross_entropy(mlc_forward(l->net, l->batch.x), l->batch.y));
    mlc_optim_step(l->opt);
    const mlc_status st = mlc_scope_end(l->ctx);
    if (st != MLC_OK) {
        CHECK(life_hash(l, l->net) == before);
        CHECK_EQ(mlc_optim_steps(l->opt), steps);
        mlc_optim_zero_grad(l->opt);
    }
    return st;
}

static mlc_status stage_save(life *l)
{
    mlc_scope_begin(l->ctx);
    mlc_save(l->net, l->files.path);
    const mlc_status st = mlc_scope_end(l->ctx);
    CHECK_EQ(box_count(&l->files), st == MLC_OK ? 1 : 0);
    return st;
}

static mlc_status stage_load(life *l)
{
    mlc_scope_begin(l->ctx);
    const mlc_status st = mlc_module_build(l->copy);
    const uint64_t   before = st == MLC_OK ? life_hash(l, l->copy) : 0;
    const mlc_status loaded = mlc_load(l->copy, l->files.path);
    if (st == MLC_OK && loaded != MLC_OK)
        CHECK(life_hash(l, l->copy) == before);
    return mlc_scope_end(l->ctx);
}

static mlc_status stage_evaluate(life *l)
{
    mlc_scope_begin(l->ctx);
    l->accuracy = mlc_accuracy(mlc_forward(l->copy, l->batch.x), l->batch.y);
    return mlc_scope_end(l->ctx);
}

/* Allocation n fails, for ever: until the failure was seen. Returns a hash of all results.     */
static uint64_t live(int64_t n, bool ever, int64_t *calls, bool *hit)
{
    static const stage_fn stages[] = {stage_context, stage_data, stage_nets, stage_optim,
                                      stage_batch, stage_step, stage_batch, stage_step,
                                      stage_batch, stage_step, stage_batch, stage_step,
                                      stage_save, stage_load, stage_evaluate};
    life l;
    memset(&l, 0, sizeof l);
    l.files = box_open_fast("net.safetensors");
    l.mem.armed = true;
    l.mem.fail_at = n;
    l.mem.ever = ever;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        const mlc_status st = stages[i](&l);
        if (st == MLC_OK)
            continue;
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK(l.mem.hit);
        l.mem.armed = false;
        if (!CHECK_EQ(stages[i](&l), MLC_OK))
            printf("  stage %d does not work again\n", (int)i);
    }
    l.mem.armed = false;
    uint64_t h = hash_net(hash_net(1, l.net), l.copy);
    h = hash_bytes(h, &l.accuracy, sizeof l.accuracy);
    *calls = l.mem.calls;
    *hit = l.mem.hit;
    memory_done(&l.mem, l.ctx);
    box_close(&l.files);
    return h;
}

TEST(faults, a_program_goes_on_after_any_allocation_failed_as_if_it_had_not)
{
    int64_t        calls, ignored;
    bool           hit;
    const uint64_t want = live(0, false, &calls, &hit);
    CHECK(!hit && calls > 50);
    for (int ever = 0; ever < 2; ever++)
        for (int64_t n = 1; n <= calls + 1; n++) {
            if (!CHECK(live(n, ever != 0, &ignored, &hit) == want))
                printf("  with allocation %d failing%s\n", (int)n, ever ? " and all later" : "");
            CHECK_EQ(hit, n <= calls);
        }
}
