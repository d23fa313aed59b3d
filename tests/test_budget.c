/* test_budget.c -- tests of section IMPL.MEMORY_PLAN.BUDGET: steps that are kept within bytes have
 * the losses and weights of plain ones; what is done, in its order; errors */
#include "mlc_test.h"

enum { WIDE = 48, TALL = 96, BLOCKS = 4, STEPS = 6 };

/* ---- a network whose activations are most of the memory -------------------------------------- */

typedef struct memory {                /* an allocator: fails call fail_at, from 1; 0: none    */
    int64_t calls, fail_at;
} memory;

static void *memory_alloc(void *user, size_t bytes, size_t align)
{
    memory *m = (memory *)user;
    return ++m->calls == m->fail_at ? NULL : test_aligned_alloc(align, bytes);
}

static void memory_release(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    test_aligned_free(ptr);
}

typedef struct spec {
    mlc_dtype dtype;
    size_t    limit;                   /* the context's; 0: none                               */
    double    dropout;
    bool      norm;
    bool      flat;                    /* no blocks                                            */
    memory   *mem;                     /* NULL: malloc                                         */
} spec;

typedef struct scene {
    mlc_ctx     *ctx;
    mlc_module  *net;
    mlc_optim   *opt;
    mlc_batch    b;
    mlc_budget   budget;
    mlc_fit_desc d;
    char         log[2000];            /* lines of INFO                                        */
    int          errors;               /* lines of errors                                      */
} scene;

static void take_log(void *user, mlc_log_level level, const char *text)
{
    scene       *s = (scene *)user;
    const size_t n = strlen(s->log);
    test_lacks(text);
    if (level == MLC_LOG_ERROR)
        s->errors++;
    if (level == MLC_LOG_INFO)
        snprintf(s->log + n, sizeof s->log - n, "%s\n", text);
}

/* Blocks of four operations each: marked, a block keeps its input alone. */
static mlc_module *make_net(mlc_ctx *ctx, const spec *p)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < BLOCKS; i++) {
        mlc_module *block = p->flat ? net : mlc_nn_sequential(ctx);
        mlc_module_add(block, mlc_nn_linear(ctx, WIDE, 2 * WIDE));
        if (p->norm)
            mlc_module_add(block, mlc_nn_batch_norm(ctx, 2 * WIDE));
        mlc_module_add(block, mlc_nn_tanh(ctx));
        mlc_module_add(block, mlc_nn_linear(ctx, 2 * WIDE, WIDE));
        mlc_module_add(block, mlc_nn_gelu(ctx));
        if (p->dropout > 0)
            mlc_module_add(block, mlc_nn_dropout(ctx, p->dropout));
        if (!p->flat)
            mlc_module_add(net, block);
    }
    return net;
}

static void scene_open(scene *s, const spec *p)
{
    mlc_ctx_desc d = test_desc();
    memset(s, 0, sizeof *s);
    d.dtype = p->dtype;
    d.hard_limit = p->limit;
    d.log = take_log;
    d.log_user = s;
    if (p->mem) {
        d.threads = 1;
        d.allocator.user = p->mem;
        d.allocator.alloc = memory_alloc;
        d.allocator.release = memory_release;
    }
    s->ctx = mlc_ctx_create(&d);
    mlc_seed(s->ctx, 5);
    s->net = make_net(s->ctx, p);
    s->opt = mlc_adamw(s->net, 0.01);
    s->b.x = test_rand(s->ctx, p->dtype, mlc_dims2(TALL, WIDE), 1, -1, 1);
    s->b.y = test_rand(s->ctx, p->dtype, mlc_dims2(TALL, WIDE), 2, -1, 1);
    s->b.n = TALL;
    s->b.n_fields = 2;
    s->b.field[0] = s->b.x;
    s->b.field[1] = s->b.y;
    s->budget = mlc_budget_make(s->net);
    s->d = mlc_fit_desc_make(mlc_mse_loss);
}

/* With the network laid out; what is in use then. */
static void scene_built(scene *s, const spec *p, mlc_memory *m)
{
    scene_open(s, p);
    CHECK_EQ(mlc_module_build(s->net), MLC_OK);
    CHECK_EQ(mlc_memory_info(s->ctx, m), MLC_OK);
}

/* What a training leaves: losses, then parameters and buffers. */
enum { MOST = STEPS + BLOCKS * (4 * WIDE * WIDE + 16 * WIDE) };

typedef struct left {
    double  v[MOST];
    int64_t n;
    int64_t peak, steady;              /* bytes: the most in a step, and between steps         */
} left;

static left of[3];

static void leave_net(left *l, mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) {
        const int64_t n = mlc_numel(it.tensor);
        if (CHECK(l->n + n <= MOST) && test_read(it.tensor, l->v + l->n))
            l->n += n;
    }
}

static bool step(scene *s, double *loss)
{
    if (CHECK_EQ(mlc_budget_step(s->net, s->opt, &s->b, &s->d, &s->budget, loss), MLC_OK))
        return true;
    printf("  %s\n", mlc_error(s->ctx));
    return false;
}

/* STEPS steps, of which the last ones take no memory from the allocator. */
static void train(scene *s, left *l)
{
    mlc_memory m;
    int64_t    calls = 0;
    l->n = 0;
    mlc_memory_peak_reset(s->ctx);
    for (int i = 0; i < STEPS; i++) {
        if (mlc_memory_info(s->ctx, &m) == MLC_OK && i == STEPS - 2)
            calls = m.calls;
        step(s, &l->v[l->n++]);
    }
    CHECK_EQ(mlc_memory_info(s->ctx, &m), MLC_OK);
    CHECK(m.calls == calls || s->budget.trim_every);
    l->peak = m.peak;
    l->steady = m.allocated;
    leave_net(l, s->net);
    CHECK_OK(s->ctx);
}

static void run(const spec *p, const mlc_budget *how, scene *s, left *l)
{
    scene_open(s, p);
    if (how) {
        s->budget.parts = how->parts;
        s->budget.trim_every = how->trim_every;
        if (!how->recompute)
            s->budget.recompute = NULL;
    }
    train(s, l);
    mlc_ctx_free(s->ctx);
}

/* Bits, or near. */
static void same(const left *a, const left *b, double near)
{
    CHECK_EQ(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++)
        if (!CHECK(near > 0 ? fabs(a->v[i] - b->v[i]) <= near : a->v[i] == b->v[i]))
            return;
}

/* ---- what is done, in its order -------------------------------------------------------------- */

TEST(budget, parts_of_a_batch_give_its_gradients)
{
    static const int64_t parts[] = {1, 5, TALL};
    const spec           p = {MLC_F64, 0, 0, false, false, NULL};
    scene                s;
    for (int i = 0; i < 3; i++) {
        const mlc_budget how = {.parts = parts[i]};
        run(&p, &how, &s, &of[i]);
        CHECK_EQ(s.budget.parts, parts[i]);
        CHECK_EQ(s.budget.again, 0);
        CHECK_EQ(s.budget.steps, STEPS);
        same(&of[i], &of[0], 1e-12);
    }
    CHECK(of[2].peak < of[0].peak);
}

/* A plain loop has the bits of steps that fit. */
TEST(budget, a_step_that_fits_is_a_plain_one)
{
    const spec p = {MLC_F32, 0, 0.2, true, false, NULL};
    scene      s;
    run(&p, NULL, &s, &of[0]);
    scene_open(&s, &p);
    of[1].n = 0;
    for (int i = 0; i < STEPS; i++) {
        mlc_scope_begin(s.ctx);
        mlc_tensor *loss = mlc_mse_loss(mlc_forward(s.net, s.b.x), s.b.y);
        of[1].v[of[1].n++] = mlc_item(loss);
        mlc_backward(loss);
        mlc_optim_step(s.opt);
        CHECK_EQ(mlc_scope_end(s.ctx), MLC_OK);
    }
    leave_net(&of[1], s.net);
    same(&of[0], &of[1], 0);
    mlc_ctx_free(s.ctx);
}

/* Recomputation does it: the bits are the same. */
TEST(budget, recomputation_comes_before_parts)
{
    spec  p = {MLC_F32, 0, 0.2, true, false, NULL};
    scene s;
    run(&p, NULL, &s, &of[0]);
    CHECK_STR(s.log, "");
    for (int i = 1; i <= 3; i++) {
        p.limit = (size_t)(of[0].peak - (of[0].peak - of[0].steady) * i / 8);
        run(&p, NULL, &s, &of[1]);
        CHECK_EQ(s.budget.parts, 1);
        CHECK(s.budget.marked > 0 && s.budget.marked <= BLOCKS);
        CHECK(of[1].peak <= (int64_t)p.limit);
        CHECK_HAS(s.log, "budget: step 1 began again");
        CHECK_EQ(s.errors, 0);
        same(&of[1], &of[0], 0);
    }
}

/* Marks of single layers save little. */
TEST(budget, a_flat_network_is_recomputed_in_segments)
{
    spec  p = {MLC_F32, 0, 0.2, true, true, NULL};
    scene s;
    run(&p, NULL, &s, &of[0]);
    p.limit = (size_t)(of[0].peak - (of[0].peak - of[0].steady) / 4);
    run(&p, NULL, &s, &of[1]);
    CHECK_EQ(s.budget.parts, 1);
    CHECK_EQ(s.budget.marked, BLOCKS * 6);
    CHECK(of[1].peak <= (int64_t)p.limit);
    same(&of[1], &of[0], 0);
}

TEST(budget, a_batch_is_cut_until_it_fits)
{
    spec             p = {MLC_F64, 0, 0, false, false, NULL};
    const mlc_budget how = {.parts = 1};
    scene            s;
    run(&p, &how, &s, &of[0]);
    p.limit = (size_t)(of[0].steady + (of[0].peak - of[0].steady) / 3);
    run(&p, &how, &s, &of[1]);
    CHECK(s.budget.parts > 2 && s.budget.parts < TALL);
    CHECK_EQ(s.budget.marked, 0);
    CHECK(of[1].peak <= (int64_t)p.limit);
    same(&of[1], &of[0], 1e-12);
}

/* Attempts that failed leave no trace in masks of dropout and running statistics. */
TEST(budget, a_cut_batch_has_the_bits_of_one_that_was_cut_before)
{
    spec       p = {MLC_F32, 0, 0.3, true, false, NULL};
    mlc_budget how = {.parts = 1};
    scene      s;
    run(&p, &how, &s, &of[0]);
    p.limit = (size_t)(of[0].steady + (of[0].peak - of[0].steady) / 2);
    run(&p, &how, &s, &of[0]);
    CHECK(s.budget.parts > 1);
    p.limit = 0;
    how.parts = s.budget.parts;
    run(&p, &how, &s, &of[1]);
    CHECK_EQ(s.budget.again, 0);
    same(&of[1], &of[0], 0);
}

/* Packs of another network are what is too much. */
TEST(budget, trimming_comes_first)
{
    const spec p = {MLC_F32, 0, 0, false, false, NULL};
    scene      s;
    mlc_memory m;
    const mlc_budget how = {.parts = 1, .trim_every = 2};
    run(&p, NULL, &s, &of[0]);
    run(&p, &how, &s, &of[1]);
    CHECK_EQ(s.budget.trims, STEPS / 2);
    same(&of[1], &of[0], 0);
    if (!test_on_host())
        return;                        /* packs are the CPU's                                  */
    scene_open(&s, &p);
    mlc_module *other = mlc_nn_linear(s.ctx, 512, 512);
    mlc_scope_begin(s.ctx);
    mlc_tensor *x = mlc_zeros(s.ctx, MLC_F32, mlc_dims2(128, 512));
    mlc_eval_begin(other);
    mlc_autocast_begin(s.ctx, MLC_BF16);
    for (int i = 0; i < 3; i++)
        mlc_forward(other, x);
    mlc_autocast_end(s.ctx);
    mlc_eval_end(other);
    CHECK_EQ(mlc_scope_end(s.ctx), MLC_OK);
    CHECK_EQ(mlc_memory_info(s.ctx, &m), MLC_OK);
    const int64_t packs = m.now[MLC_MEM_PACK];
    CHECK(packs > 0);
    /* What a step takes, and half of the packs. */
    s.budget.bytes = of[0].peak + 512 * 513 * 4 + packs / 2;
    train(&s, &of[1]);
    CHECK_EQ(s.budget.marked, 0);
    CHECK_EQ(s.budget.parts, 1);
    CHECK_EQ(s.budget.again, 1);
    CHECK_HAS(s.log, "step 1 began again 1 times");
    same(&of[1], &of[0], 0);
    mlc_ctx_free(s.ctx);
}

/* Of all that a plain step takes: it is kept, or an error. */
static void check_budgets(const spec *p, double near)
{
    scene s;
    run(p, NULL, &s, &of[0]);
    for (int i = 0; i < 20; i += (int)test_stride(3)) {
        const int64_t bytes = of[0].peak * (25 + i * 85 / 19) / 100;
        double        loss = 0;
        mlc_memory    m;
        scene_open(&s, p);
        s.budget.bytes = bytes;
        mlc_memory_peak_reset(s.ctx);
        of[1].n = 0;
        while (of[1].n < STEPS &&
               mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, &loss) == MLC_OK)
            of[1].v[of[1].n++] = loss;
        CHECK_EQ(mlc_memory_info(s.ctx, &m), MLC_OK);
        CHECK(m.peak <= bytes || mlc_ctx_status(s.ctx) == MLC_ERR_ARG);
        if (mlc_ctx_status(s.ctx) != MLC_OK) {
            CHECK(bytes < of[0].steady + of[0].steady / 8);
            CHECK_EQ(s.errors, 1);
        } else {
            leave_net(&of[1], s.net);
            same(&of[1], &of[0], s.budget.parts > 1 ? near : 0);
            CHECK_EQ(s.errors, 0);
        }
        mlc_ctx_free(s.ctx);
    }
}

TEST(budget, twenty_budgets)
{
    const spec p[3] = {{MLC_F64, 0, 0, false, false, NULL}, {MLC_F32, 0, 0, false, false, NULL}};
    check_budgets(&p[0], 1e-12);
    check_budgets(&p[1], 1e-3);
}

/* ---- memory that runs out for once ----------------------------------------------------------- */

/* One of the allocations of a step fails: it is the same step, or an error that changes nothing. */
static bool fail_once(int64_t n, const left *want, const left *before)
{
    memory     mem = {0, 0};
    const spec p = {MLC_F64, 0, 0, false, false, &mem};
    double     loss = 0;
    scene      s;
    scene_open(&s, &p);
    CHECK_EQ(mlc_module_build(s.net), MLC_OK);
    mem.calls = 0;
    mem.fail_at = n;
    const mlc_status st = mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, &loss);
    const bool hit = mem.calls >= n;
    mem.fail_at = 0;
    of[2].n = 0;
    if (st != MLC_OK) {
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK_EQ(s.errors, 1);
        CHECK_EQ(s.budget.steps, 0);
        mlc_error_clear(s.ctx);
        leave_net(&of[2], s.net);
        same(&of[2], before, 0);
        step(&s, &loss);
        of[2].n = 0;
    }
    of[2].v[of[2].n++] = loss;
    leave_net(&of[2], s.net);
    same(&of[2], want, s.budget.parts > 1 ? 1e-12 : 0);
    mlc_ctx_free(s.ctx);
    return hit;
}

TEST(budget, each_allocation_fails_once)
{
    const spec p = {MLC_F64, 0, 0, false, false, NULL};
    scene      s;
    scene_open(&s, &p);
    CHECK_EQ(mlc_module_build(s.net), MLC_OK);
    of[1].n = 0;
    leave_net(&of[1], s.net);
    of[0].n = 0;
    step(&s, &of[0].v[of[0].n++]);
    leave_net(&of[0], s.net);
    mlc_ctx_free(s.ctx);
    int64_t n = 1;
    while (n < 500 && fail_once(n, &of[0], &of[1]))
        n++;
    CHECK(n > (test_on_host() ? 10 : 1) && n < 500);
}

/* ---- in mlc_fit ------------------------------------------------------------------------------ */

typedef struct seen {                  /* by a callback                                        */
    int64_t rows;
    double  sum, loss;
} seen;

static mlc_status look(void *user, mlc_event event, mlc_fit_state *f)
{
    seen *s = (seen *)user;
    (void)event;
    if (!CHECK(f->output != NULL && f->loss != NULL))
        return MLC_OK;
    s->rows += f->output->shape[0];
    s->sum += mlc_item(mlc_sum_all(f->output));
    s->loss += mlc_item(f->loss);
    return MLC_OK;
}

/* Two epochs in batches of 40, 40, 16; the last weights, what was seen, and the metric. */
static void fit_in(const spec *p, int64_t bytes, left *l, seen *w, mlc_budget *did)
{
    scene        s;
    mlc_tracker *history;
    mlc_memory   m;
    scene_open(&s, p);
    mlc_loader  *train_loader = mlc_loader_shuffled(s.ctx, s.b.x, s.b.y, 40);
    mlc_callback c = {.name = "look", .user = w, .events = 1u << MLC_EVENT_STEP_END, .on = look};
    mlc_callback *const list[] = {&c};
    mlc_fit_metric      metric = {"mse", mlc_metric_mse(s.ctx), false};
    memset(w, 0, sizeof *w);
    s.d.epochs = 2;
    s.d.callbacks = list;
    s.d.n_callbacks = 1;
    s.d.metrics = &metric;
    s.d.n_metrics = 1;
    if (bytes) {
        s.budget.bytes = bytes;
        s.budget.recompute = NULL;
        s.d.budget = &s.budget;
    }
    mlc_memory_peak_reset(s.ctx);
    if (!CHECK_EQ(mlc_fit(s.net, s.opt, train_loader, &s.d, &history), MLC_OK))
        printf("  %s\n", mlc_error(s.ctx));
    CHECK_EQ(mlc_memory_info(s.ctx, &m), MLC_OK);
    l->peak = m.peak;
    l->steady = m.allocated;
    l->n = 0;
    l->v[l->n++] = mlc_tracker_last(history, "loss");
    l->v[l->n++] = mlc_tracker_last(history, "mse");
    leave_net(l, s.net);
    *did = s.budget;
    mlc_tracker_free(history);
    mlc_metric_free(metric.metric);
    mlc_loader_free(train_loader);
    mlc_ctx_free(s.ctx);
}

TEST(budget, fit_trains_within_one)
{
    const spec p = {MLC_F64, 0, 0, false, false, NULL};
    seen       w[3];
    mlc_budget did;
    fit_in(&p, 0, &of[0], &w[0], &did);
    fit_in(&p, INT64_MAX, &of[1], &w[1], &did);
    CHECK_EQ(did.steps, 6);
    CHECK_EQ(did.again, 0);
    same(&of[1], &of[0], 0);
    fit_in(&p, of[0].steady + (of[0].peak - of[0].steady) / 2, &of[2], &w[2], &did);
    CHECK(did.parts > 1);
    CHECK(did.again >= 1);
    same(&of[2], &of[0], 1e-12);
    for (int i = 1; i < 3; i++) {
        CHECK_EQ(w[i].rows, 2 * TALL);
        CHECK_NEAR(w[i].sum, w[0].sum, 1e-9);
        CHECK_NEAR(w[i].loss, w[0].loss, 1e-12);
    }
}

/* ---- a forward of the program's own, autocast ------------------------------------------------ */

static mlc_tensor *own_forward(void *user, mlc_module *net, const mlc_batch *b,
                               mlc_tensor **output)
{
    (void)user;
    *output = mlc_forward(net, mlc_mul(b->x, b->x));
    return mlc_mse_loss(*output, b->y);
}

TEST(budget, own_forwards_and_autocast)
{
    for (int i = 0; i < 2; i++) {
        spec  p = {MLC_F32, 0, 0, false, false, NULL};
        scene s;
        for (int k = 0; k < 2; k++) {
            scene_open(&s, &p);
            s.d.has_autocast = i == 1;
            s.d.autocast = i == 1 ? MLC_BF16 : MLC_F32;
            if (i == 0) {
                s.d.loss = NULL;
                s.d.forward = own_forward;
            }
            train(&s, &of[k]);
            mlc_ctx_free(s.ctx);
            p.limit = (size_t)(of[0].peak - (of[0].peak - of[0].steady) / 8);
        }
        CHECK(s.budget.marked > 0);
        CHECK_EQ(s.budget.parts, 1);
        CHECK(of[1].peak <= (int64_t)p.limit);
        if (i == 1)                    /* pieces may end within what else is one operation    */
            of[0].n = of[1].n = STEPS;
        same(&of[1], &of[0], i == 1 ? 1e-3 : 0);
    }
}

/* A stack within the network, of which no dry run is made. */
TEST(budget, another_module_is_recomputed)
{
    const spec p = {MLC_F32, 0, 0, false, false, NULL};
    scene      s;
    run(&p, NULL, &s, &of[0]);
    for (int k = 0; k < 2; k++) {
        scene_open(&s, &p);
        mlc_module *net = MLC_SEQUENTIAL(s.ctx, mlc_nn_linear(s.ctx, WIDE, WIDE), s.net);
        mlc_optim_free(s.opt);
        s.opt = mlc_adamw(net, 0.01);
        s.budget.recompute = s.net;
        s.net = net;
        if (k)
            s.budget.bytes = of[0].peak - (of[0].peak - of[0].steady) / 4;
        train(&s, &of[k]);
        mlc_ctx_free(s.ctx);
    }
    CHECK_EQ(s.budget.marked, BLOCKS);
    /* On a card cuBLASLt may have another algorithm where a gradient lies in memory elsewhere. */
    same(&of[1], &of[0], test_on_card() ? 1e-5 : 0);
}

/* ---- batches and optimizers that are not plain ----------------------------------------------- */

/* The last block has an optimizer of its own, whose step comes after. */
TEST(budget, gradients_of_another_optimizer)
{
    const spec p = {MLC_F64, 0, 0, false, false, NULL};
    int64_t    bytes = INT64_MAX;
    for (int k = 0; k < 2; k++) {
        scene s;
        scene_open(&s, &p);
        mlc_optim_free(s.opt);
        mlc_module *body = mlc_nn_sequential(s.ctx), *head = mlc_nn_linear(s.ctx, WIDE, WIDE);
        mlc_module_add(body, s.net);
        s.net = MLC_SEQUENTIAL(s.ctx, body, head);
        s.opt = mlc_sgd(body, 0.1);
        mlc_optim *own = mlc_sgd(head, 0.1);
        mlc_memory m;
        s.budget = mlc_budget_make(s.net);
        s.budget.recompute = NULL;
        s.budget.bytes = bytes;
        mlc_memory_peak_reset(s.ctx);
        of[k].n = 0;
        for (int i = 0; i < STEPS; i++) {
            step(&s, &of[k].v[of[k].n++]);
            CHECK_EQ(mlc_optim_step(own), MLC_OK);
        }
        CHECK_EQ(mlc_memory_info(s.ctx, &m), MLC_OK);
        bytes = m.allocated + (m.peak - m.allocated) / 3;
        CHECK(k == 0 || s.budget.again > 0);
        CHECK_OK(s.ctx);
        mlc_ctx_free(s.ctx);
    }
    same(&of[1], &of[0], 1e-12);
}

/* Each row of x has four of y; what cannot be cut is an error. */
static mlc_tensor *four_forward(void *user, mlc_module *net, const mlc_batch *b,
                                mlc_tensor **output)
{
    (void)user;
    mlc_tensor *y = mlc_forward(net, b->x);
    *output = y;
    return mlc_mse_loss(mlc_reshape(y, mlc_dims2(4 * b->n, WIDE / 4)), b->y);
}

/* Outputs without rows are not joined. */
static mlc_tensor *scalar_forward(void *user, mlc_module *net, const mlc_batch *b,
                                  mlc_tensor **output)
{
    (void)user;
    mlc_tensor *y = mlc_forward(net, b->x);
    *output = mlc_mean_all(y);
    return mlc_mse_loss(y, b->y);
}

static mlc_status sees_no_output(void *user, mlc_event event, mlc_fit_state *f)
{
    int *n = (int *)user;
    (void)event;
    *n += f->output == NULL && f->loss != NULL;
    return MLC_OK;
}

TEST(budget, fields_with_several_rows_each)
{
    const spec p = {MLC_F64, 0, 0, false, false, NULL};
    scene      s;
    for (int k = 0; k < 2; k++) {
        scene_open(&s, &p);
        s.b.y = mlc_reshape(s.b.y, mlc_dims2(4 * TALL, WIDE / 4));
        s.b.field[1] = s.b.y;
        s.d.loss = NULL;
        s.d.forward = four_forward;
        s.budget.parts = k ? 5 : 1;
        train(&s, &of[k]);
        if (k == 0)
            mlc_ctx_free(s.ctx);
    }
    same(&of[1], &of[0], 1e-12);
    s.b.field[1] = mlc_zeros(s.ctx, MLC_F64, mlc_dims1(TALL + 1));
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_SHAPE);
    CHECK_ERROR(s.ctx, MLC_ERR_SHAPE, "field [97] has no rows");
    mlc_tensor  *four = mlc_zeros(s.ctx, MLC_F64, mlc_dims2(TALL, WIDE));
    mlc_loader  *loader = mlc_loader_shuffled(s.ctx, s.b.x, four, TALL);
    int          n = 0;
    mlc_callback c = {.name = "none", .user = &n, .events = 1u << MLC_EVENT_STEP_END,
                      .on = sees_no_output};
    mlc_callback *const list[] = {&c};
    s.d.callbacks = list;
    s.d.n_callbacks = 1;
    s.d.budget = &s.budget;
    s.d.forward = scalar_forward;
    CHECK_EQ(mlc_fit(s.net, s.opt, loader, &s.d, NULL), MLC_OK);
    CHECK_EQ(n, 1);
    CHECK_OK(s.ctx);
    mlc_loader_free(loader);
    mlc_ctx_free(s.ctx);
}

/* ---- errors ---------------------------------------------------------------------------------- */

TEST(budget, less_than_parameters_take_is_an_error_with_both_numbers)
{
    const spec p = {MLC_F32, 0, 0, false, false, NULL};
    scene      s;
    char       text[64];
    mlc_memory m;
    scene_built(&s, &p, &m);
    s.budget.bytes = m.now[MLC_MEM_PARAM];
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_ARG);
    snprintf(text, sizeof text, "budget of %lld bytes; ", (long long)s.budget.bytes);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, text);
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "by parameters, gradients and the optimizer");
    s.budget.bytes = INT64_MIN;
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "budget of -9223372036854775808 bytes; ");
    CHECK_EQ(s.errors, 3);
    mlc_ctx_free(s.ctx);
}

/* Marks, budget, log are as before. */
TEST(budget, a_row_that_does_not_fit_is_an_error)
{
    const spec p = {MLC_F32, 0, 0, true, false, NULL};
    scene      s;
    mlc_memory m;
    scene_built(&s, &p, &m);
    of[0].n = of[1].n = 0;
    leave_net(&of[0], s.net);
    const mlc_rng_state rng = mlc_ctx_rng(s.ctx);
    s.budget.bytes = m.allocated + 6000;
    const mlc_budget before = s.budget;
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_NOMEM);
    CHECK_ERROR(s.ctx, MLC_ERR_NOMEM, "would do here");
    CHECK_EQ(s.errors, 1);
    CHECK(memcmp(&before, &s.budget, sizeof before) == 0);
    CHECK(mlc_ctx_rng(s.ctx).stream == rng.stream);
    leave_net(&of[1], s.net);
    same(&of[1], &of[0], 0);
    s.budget.bytes = INT64_MAX;
    CHECK(step(&s, NULL));
    CHECK_EQ(s.budget.marked, 0);
    CHECK_STR(s.log, "");
    mlc_ctx_free(s.ctx);
}

TEST(budget, nonsense_is_refused_by_name)
{
    const spec p = {MLC_F32, 0, 0, false, false, NULL};
    scene      s;
    double     loss;
    scene_open(&s, &p);
    mlc_budget none = s.budget;
    none.calls = NULL;
    CHECK_EQ(mlc_budget_step(NULL, s.opt, &s.b, &s.d, &s.budget, &loss), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "budget_step: the network is NULL");
#ifndef MLC_DEBUG                      /* which fills the structs of an ended scope            */
    const mlc_batch given = s.b;
    mlc_scope_begin(s.ctx);
    s.b.y = mlc_zeros(s.ctx, MLC_I64, mlc_dims1(given.n));
    mlc_scope_end(s.ctx);
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_STATE);
    CHECK_ERROR(s.ctx, MLC_ERR_STATE, "budget_step: the scope in which");
    s.b = given;
#endif
    CHECK(isnan(loss));
    CHECK_EQ(mlc_budget_step(s.net, NULL, &s.b, &s.d, &s.budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "the optimizer is NULL");
    CHECK_EQ(mlc_budget_step(s.net, s.opt, NULL, &s.d, &s.budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "the batch is NULL");
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, NULL, &s.budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "the desc is NULL");
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "the budget is NULL");
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &none, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "mlc_budget_make");
    s.budget.parts = 0;
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "96 rows in 0 parts");
    s.budget.parts = 1;
    s.b.n = 95;
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_SHAPE);
    CHECK_ERROR(s.ctx, MLC_ERR_SHAPE, "95 rows");
    s.b.n = 96;
    CHECK_EQ(mlc_optim_accumulate(s.opt, 2), MLC_OK);
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_STATE);
    CHECK_ERROR(s.ctx, MLC_ERR_STATE, "collects gradients");
    CHECK_EQ(mlc_optim_accumulate(s.opt, 1), MLC_OK);
    CHECK_EQ(mlc_optim_in_backward(s.opt, true), MLC_OK);
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &s.b, &s.d, &s.budget, NULL), MLC_ERR_STATE);
    CHECK_ERROR(s.ctx, MLC_ERR_STATE, "makes its step in backward");
    s.d.budget = &none;
    CHECK(mlc_fit(s.net, s.opt, NULL, &s.d, NULL) == MLC_ERR_ARG);
    mlc_error_clear(s.ctx);
    CHECK(mlc_budget_make(NULL).bytes == 0);
    mlc_ctx_free(s.ctx);
}
