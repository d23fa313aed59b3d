/* test_run.c -- tests of sections IMPL.TRAIN.RUN, IMPL.TRAIN.CHECKPOINT: a training that goes on
 * from a file has the bits of one that was not interrupted; what does not fit is refused, and
 * nothing changes then; files that stay; signals */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "mlc_test.h"
#include "watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { ROWS = 50, BATCH = 8, BATCHES = 7, FIELDS = 6, CLASSES = 3, EPOCHS = 8,
       CALLS = EPOCHS * (BATCHES + 1) };         /* of mlc_fit_step */

/* ALL: what the others but CURVED have, together. */
typedef enum kind { PLAIN, COLLECTS, SCALED, HELD, WORKERS, CURVED, ALL, KINDS } kind;

typedef struct count {                 /* of a callback: how often, and of what               */
    int64_t      n;
    double       sum;
    mlc_run_part part[2];
} count;

typedef struct scene {
    mlc_ctx       *ctx;
    mlc_module    *net;
    mlc_optim     *opt;
    mlc_loader    *train;
    mlc_dataset   *images, *data;
    mlc_metric    *metric[2];
    mlc_fit_metric list[2];
    mlc_callback  *callback[4];
    count          counts;
    mlc_fit_desc   d;
    mlc_fit_state *s;
} scene;

static mlc_status count_batch(void *user, mlc_event e, mlc_fit_state *s)
{
    count *c = (count *)user;
    c->n += e == MLC_EVENT_BATCH_END;
    c->sum = c->sum / 2 + (double)s->step;
    return MLC_OK;
}

static void add_callbacks(scene *s, bool held)
{
    mlc_early_stop_desc stop = mlc_early_stop_desc_make();
    mlc_callback        c;
    memset(&c, 0, sizeof c);
    s->counts.part[0].name = "n";
    s->counts.part[0].data = &s->counts.n;
    s->counts.part[0].bytes = sizeof s->counts.n;
    s->counts.part[1].name = "sum";
    s->counts.part[1].data = &s->counts.sum;
    s->counts.part[1].bytes = sizeof s->counts.sum;
    c.name = "count";
    c.user = &s->counts;
    c.events = 1u << MLC_EVENT_BATCH_END | 1u << MLC_EVENT_EPOCH_END;
    c.on = count_batch;
    c.parts = s->counts.part;
    c.n_parts = 2;
    s->callback[s->d.n_callbacks++] = mlc_callback_create(s->ctx, &c);
    stop.patience = 100;
    if (held) s->callback[s->d.n_callbacks++] = mlc_on_early_stop(s->ctx, &stop);
    s->d.callbacks = s->callback;
}

static void add_metrics(scene *s)
{
    s->metric[0] = mlc_metric_accuracy(s->ctx);
    s->metric[1] = mlc_metric_auc(s->ctx, CLASSES);
    for (int i = 0; i < 2; i++) {
        s->list[i].name = i ? "AUC" : "accuracy";
        s->list[i].metric = s->metric[i];
        s->list[i].higher = true;
    }
    s->d.metrics = s->list;
    s->d.n_metrics = 2;
}

static void set_optim(scene *s, kind k)
{
    mlc_sched sched = mlc_sched_cosine(40, 0.1);
    s->opt = k == CURVED ? mlc_lbfgs(s->net, 0.5) : mlc_adamw(s->net, 0.01);
    if (k == COLLECTS || k == ALL) {
        mlc_optim_accumulate(s->opt, 3);
        mlc_ema(s->opt, 0.9);
    }
    if (k == SCALED || k == ALL) mlc_optim_scaler(s->opt, NULL);
    if (k == HELD || k == ALL) mlc_optim_schedule(s->opt, MLC_KNOB_LR, &sched);
}

static void set_data(scene *s, kind k, int64_t batch)
{
    double labels[ROWS];
    for (int i = 0; i < ROWS; i++) labels[i] = (double)(i * i % 7 % CLASSES);
    mlc_tensor *x = test_rand(s->ctx, MLC_F32, mlc_dims3(ROWS, 2, FIELDS / 2), 1, -1, 1);
    mlc_tensor *y = test_tensor(s->ctx, MLC_I64, mlc_dims1(ROWS), labels);
    mlc_loader_from_desc d = mlc_loader_from_desc_make(batch);
    mlc_loader_desc      held = mlc_loader_desc_make(x, y, 20);
    held.shuffle = true;
    if (k == HELD || k == ALL) s->d.validation = mlc_loader_create(s->ctx, &held);
    d.shuffle = true;
    d.seed = 5;
    d.workers = 2;
    if (k == WORKERS || k == ALL) {
        mlc_tensor *const fields[2] = {x, y};
        mlc_augment_desc  a = mlc_augment_desc_make();
        a.shift = a.noise = 0.5;
        s->images = mlc_dataset_tensors(s->ctx, fields, 2);
        s->data = mlc_dataset_augment(s->ctx, s->images, &a);
    }
    s->train = s->data ? mlc_loader_from(s->ctx, s->data, &d)
                       : mlc_loader_shuffled(s->ctx, x, y, batch);
}

/* A training that has not begun. width: of the hidden layer. seed: of weights and dropout, which a
 * file must replace. */
static void scene_open(scene *s, kind k, int64_t width, int64_t batch, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->ctx = test_ctx();
    mlc_seed(s->ctx, seed);
    s->net = MLC_SEQUENTIAL(s->ctx, mlc_nn_flatten(s->ctx), mlc_nn_linear(s->ctx, FIELDS, width),
                            mlc_nn_batch_norm(s->ctx, width), mlc_nn_relu(s->ctx),
                            mlc_nn_dropout(s->ctx, k == CURVED ? 0 : 0.2),
                            mlc_nn_linear(s->ctx, width, CLASSES));
    CHECK_EQ(mlc_module_build(s->net), MLC_OK);
    s->d = mlc_fit_desc_make(mlc_cross_entropy);
    s->d.epochs = EPOCHS;
    if (k == SCALED || k == ALL) {
        s->d.has_autocast = true;
        s->d.autocast = MLC_F16;
    }
    set_optim(s, k);
    set_data(s, k, batch);
    if (k == COLLECTS || k == HELD || k == ALL) add_metrics(s);
    if (k != PLAIN) add_callbacks(s, k == HELD || k == ALL);
    s->s = mlc_fit_begin(s->net, s->opt, s->train, &s->d);
    CHECK(s->s != NULL);
}

static void scene_close(scene *s)
{
    if (s->s) mlc_fit_end(s->s, NULL);
    for (int i = 0; i < s->d.n_callbacks; i++) mlc_callback_free(s->ctx, s->callback[i]);
    CHECK_OK(s->ctx);
}

static mlc_status save(scene *s, const char *path)
{
    const mlc_run run = mlc_fit_run(s->s);
    return mlc_run_save(s->ctx, path, &run);
}

/* Hash of all that a run file has: weights, moments, random streams, places, history, metrics. */
static uint64_t state_of(scene *s, const box *b)
{
    char path[400];
    snprintf(path, sizeof path, "%s/state", b->dir);
    CHECK_EQ(save(s, path), MLC_OK);
    return hash_file(0, path);
}

/* ---- the same bits --------------------------------------------------------------------------- */

static uint64_t whole(kind k, const box *b)
{
    scene s;
    int   calls = 1;
    scene_open(&s, k, 16, BATCH, 3);
    while (mlc_fit_step(s.s)) calls++;
    CHECK_EQ(calls, CALLS);
    const uint64_t h = state_of(&s, b);
    scene_close(&s);
    return h;
}

/* Stopped after some calls, and gone on with in another context. */
static uint64_t in_two(kind k, int stop, const box *b)
{
    scene s;
    scene_open(&s, k, 16, BATCH, 3);
    for (int i = 0; i < stop; i++) mlc_fit_step(s.s);
    CHECK_EQ(save(&s, b->path), MLC_OK);
    const uint64_t then = state_of(&s, b);
    scene_close(&s);
    scene_open(&s, k, 16, BATCH, 99);
    CHECK(state_of(&s, b) != then);
    CHECK_EQ(mlc_fit_resume(s.s, b->path), MLC_OK);
    CHECK(state_of(&s, b) == then);
    for (int i = stop; i < CALLS; i++) mlc_fit_step(s.s);
    CHECK(!mlc_fit_step(s.s));
    const uint64_t h = state_of(&s, b);
    scene_close(&s);
    return h;
}

TEST(run, a_training_that_goes_on_has_the_bits_of_one_that_was_not_interrupted)
{
    const box b = box_open_fast("run");
    const int  step = test_cpu_kernels() ? (int)test_stride(11) : 37;
    const kind end = test_cpu_kernels() ? KINDS : COLLECTS;  /* emulated: slow */
    for (kind k = PLAIN; k < end; k = (kind)(k + 1)) {
        const uint64_t want = whole(k, &b);
        for (int stop = 1; stop <= 60; stop += step)
            if (!CHECK(in_two(k, stop, &b) == want))
                printf("  kind %d, stopped after call %d\n", (int)k, stop);
    }
    CHECK_EQ(box_count(&b), 2);
    box_close(&b);
}

/* A row of the history is there at EPOCH_END; after the last epoch nothing is left to do. */
TEST(run, a_training_that_is_over_stays_so)
{
    const box b = box_open_fast("run");
    scene     s;
    scene_open(&s, HELD, 16, BATCH, 3);
    while (mlc_fit_step(s.s)) {}
    CHECK_EQ(save(&s, b.path), MLC_OK);
    scene_close(&s);
    scene_open(&s, HELD, 16, BATCH, 4);
    CHECK_EQ(mlc_fit_resume(s.s, b.path), MLC_OK);
    CHECK_EQ(s.s->epoch, EPOCHS);
    CHECK_EQ(s.s->step, EPOCHS * BATCHES);
    CHECK_EQ(mlc_tracker_history(s.s->history, "val_loss", NULL, NULL), EPOCHS);
    CHECK(!mlc_fit_step(s.s));
    CHECK_EQ(s.counts.n, EPOCHS * BATCHES);
    scene_close(&s);
    box_close(&b);
}

/* ---- callbacks ------------------------------------------------------------------------------- */

TEST(run, a_callback_resumes_where_there_is_a_file)
{
    const box       b = box_open_fast("run");
    mlc_fit_desc    d;
    mlc_callback   *list[1];
    scene           s;
    for (int i = 0; i < 2; i++) {
        scene_open(&s, PLAIN, 16, BATCH, 3);
        mlc_fit_end(s.s, NULL);
        d = s.d;
        list[0] = mlc_on_resume(s.ctx, b.path);
        d.callbacks = list;
        d.n_callbacks = 1;
        s.s = mlc_fit_begin(s.net, s.opt, s.train, &d);
        CHECK_EQ(s.s->step, i * 3);
        for (int k = 0; k < 3; k++) mlc_fit_step(s.s);
        CHECK_EQ(save(&s, b.path), MLC_OK);
        s.d.n_callbacks = 0;
        CHECK_EQ(mlc_fit_resume(s.s, b.path), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(s.ctx), "has begun");
        mlc_error_clear(s.ctx);
        mlc_fit_end(s.s, NULL);
        mlc_callback_free(s.ctx, list[0]);
        s.s = NULL;
        scene_close(&s);
    }
    box_close(&b);
}

static mlc_status saves_within(void *user, mlc_event e, mlc_fit_state *s)
{
    const mlc_run run = mlc_fit_run(s);
    (void)e;
    return mlc_run_save(s->ctx, (const char *)user, &run);
}

TEST(run, is_not_saved_within_a_batch)
{
    box b = box_open_fast("run");
    for (int e = MLC_EVENT_BATCH_BEGIN; e <= MLC_EVENT_EPOCH_END; e++) {
        const bool   good = e == MLC_EVENT_BATCH_END || e == MLC_EVENT_EPOCH_END;
        mlc_callback c = {"saves", b.path, 1u << e, saves_within, NULL, 0, NULL};
        mlc_callback *list[1] = {&c};
        scene        s;
        scene_open(&s, HELD, 16, BATCH, 3);
        mlc_fit_end(s.s, NULL);
        mlc_fit_desc d = s.d;
        d.callbacks = list;
        d.n_callbacks = 1;
        d.epochs = 1;
        CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, NULL), good ? MLC_OK : MLC_ERR_STATE);
        if (!good) CHECK_HAS(mlc_error(s.ctx), "BATCH_END");
        mlc_error_clear(s.ctx);
        s.s = NULL;
        scene_close(&s);
    }
    box_close(&b);
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* Loads a file that does not fit: nothing changes. The message is that of the context. */
static void refused(scene *s, const box *b, const char *path, mlc_status want)
{
    const uint64_t before = state_of(s, b);
    CHECK_EQ(mlc_fit_resume(s->s, path), want);
    static char message[4096];
    snprintf(message, sizeof message, "%s", mlc_error(s->ctx));
    mlc_error_clear(s->ctx);
    CHECK(state_of(s, b) == before);
    CHECK_EQ(s->counts.n, 0);
    mlc_error_clear(s->ctx);
}

TEST(run, of_another_model_is_refused_with_all_reasons)
{
    const box b = box_open_fast("run");
    scene     s;
    char      text[4096];
    scene_open(&s, PLAIN, 16, BATCH, 3);
    for (int i = 0; i < 10; i++) mlc_fit_step(s.s);
    CHECK_EQ(save(&s, b.path), MLC_OK);
    scene_close(&s);
    scene_open(&s, COLLECTS, 12, BATCH + 1, 3);
    const uint64_t before = state_of(&s, &b);
    CHECK_EQ(mlc_fit_resume(s.s, b.path), MLC_ERR_SHAPE);
    snprintf(text, sizeof text, "%s", mlc_error(s.ctx));
    mlc_error_clear(s.ctx);
    CHECK_HAS(text, b.path);
    CHECK_HAS(text, "net: ");
    CHECK_HAS(text, "[16, 6]");
    CHECK_HAS(text, "[12, 6]");
    CHECK_HAS(text, "optim: ");
    CHECK_HAS(text, "loader: ");
    CHECK_HAS(text, "metric.accuracy.rows");
    CHECK_HAS(text, "metric.AUC.rows");
    CHECK_HAS(text, "callback.count.n");
    CHECK_HAS(text, "callback.count.sum");
    CHECK(state_of(&s, &b) == before);
    scene_close(&s);
    box_close(&b);
}

/* The pairs of the file are planned for before its other tensors are known to fit. */
TEST(run, that_is_refused_leaves_the_history_of_lbfgs)
{
    const box    b = box_open_fast("run");
    int64_t      lacks = 0;
    mlc_run_part part = {"lacks", &lacks, sizeof lacks};
    scene        s;
    scene_open(&s, CURVED, 16, BATCH, 3);
    for (int i = 0; i < 6; i++) mlc_fit_step(s.s);
    CHECK_EQ(save(&s, b.path), MLC_OK);
    scene_close(&s);
    for (int steps = 0; steps < 3; steps++) {
        scene_open(&s, CURVED, 16, BATCH, 99);
        for (int i = 0; i < steps; i++) mlc_fit_step(s.s);
        const uint64_t before = state_of(&s, &b);
        mlc_run        run = mlc_fit_run(s.s);
        run.parts = &part;
        run.n_parts = 1;
        CHECK_EQ(mlc_run_load(s.ctx, b.path, &run), MLC_ERR_IO);
        CHECK_ERROR(s.ctx, MLC_ERR_IO, "part.lacks");
        CHECK(state_of(&s, &b) == before);
        scene_close(&s);
    }
    box_close(&b);
}

/* A file of a place from which steps could not be counted on. */
TEST(run, of_a_place_at_the_end_of_the_numbers_is_refused)
{
    for (int k = 0; k < 2; k++) {
        const box b = box_open_fast("net");
        scene     s;
        scene_open(&s, PLAIN, 16, BATCH, 3);
        const mlc_run run = mlc_fit_run(s.s);
        CHECK(mlc_fit_step(s.s));
        const int64_t was = k ? s.s->step : s.s->epoch;
        *(k ? &s.s->step : &s.s->epoch) = INT64_MAX;
        CHECK_EQ(mlc_run_save(s.ctx, b.path, &run), MLC_OK);
        *(k ? &s.s->step : &s.s->epoch) = was;
        CHECK(mlc_run_load(s.ctx, b.path, &run) == MLC_ERR_IO);
        CHECK_ERROR(s.ctx, MLC_ERR_IO, "that is no place");
        CHECK_EQ(k ? s.s->step : s.s->epoch, was);
        scene_close(&s);
        box_close(&b);
    }
}

TEST(run, is_no_other_file)
{
    const box b = box_open_fast("run");
    scene     s;
    scene_open(&s, PLAIN, 16, BATCH, 3);
    CHECK_EQ(mlc_save(s.net, b.path), MLC_OK);
    refused(&s, &b, b.path, MLC_ERR_IO);
    CHECK_EQ(mlc_fit_resume(s.s, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), "it is no run");
    mlc_error_clear(s.ctx);
    refused(&s, &b, b.dir, MLC_ERR_IO);
    CHECK_EQ(save(&s, "/nowhere/at/all"), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), "/nowhere/at/all");
    mlc_error_clear(s.ctx);
    CHECK(mlc_fit_step(s.s));
    scene_close(&s);
    box_close(&b);
}

/* Tensors that a run may lack: of a part of a row, or of other callbacks. */
static bool may_lack(const char *name)
{
    return strncmp(name, "tracker.", 8) == 0 || strcmp(name, "fit.validation") == 0 ||
           strncmp(name, "fit.mean.", 9) == 0 || strcmp(name, "optim.optim.attempts") == 0;
}

/* Each tensor is left out, and then is one of another length. */
TEST(run, that_lacks_a_tensor_is_refused_by_its_name)
{
    const box b = box_open_fast("run");
    const char *const metadata[] = {"mlcore.run", "1", "mlcore.optim", "adamw",
                                    "mlcore.optim.groups", "", NULL};
    scene     s;
    int64_t   n = 1;
    scene_open(&s, HELD, 16, BATCH, 3);
    for (int i = 0; i < 11; i++) mlc_fit_step(s.s);
    CHECK_EQ(save(&s, b.path), MLC_OK);
    scene_close(&s);
    for (int64_t i = 0; i < 2 * n; i++) {
        char             other[400];
        const mlc_named *list;
        snprintf(other, sizeof other, "%s/other", b.dir);
        scene_open(&s, HELD, 16, BATCH, 99);
        CHECK_EQ(mlc_safetensors_load(s.ctx, b.path, &list, &n), MLC_OK);
        mlc_named *less = (mlc_named *)malloc((size_t)n * sizeof *less);
        const int64_t at = i / 2;
        memcpy(less, list, (size_t)n * sizeof *less);
        const char *name = less[at].name;
        if (i % 2) less[at].tensor = mlc_zeros(s.ctx, list[at].tensor->dtype, mlc_dims2(3, 77));
        else less[at] = less[n - 1];
        CHECK_EQ(mlc_safetensors_save(s.ctx, other, less, i % 2 ? n : n - 1, metadata), MLC_OK);
        const uint64_t   before = state_of(&s, &b);
        const mlc_status st = mlc_fit_resume(s.s, other);
        const char      *base = strncmp(name, "net.", 4) == 0 ? name + 4 :
                                strncmp(name, "optim.", 6) == 0 ? name + 6 : name;
        if (st == MLC_OK) CHECK(may_lack(name) && i % 2 == 0);
        else CHECK_HAS(mlc_error(s.ctx), strncmp(name, "tracker.", 8) == 0 ? "tracker" : base);
        if (st == MLC_OK && !may_lack(name)) printf("  %s\n", name);
        mlc_error_clear(s.ctx);
        CHECK(st == MLC_OK || state_of(&s, &b) == before);
        free(less);
        scene_close(&s);
    }
    CHECK(n > 20);
    box_close(&b);
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), len = strlen(end);
    return n >= len && strcmp(name + n - len, end) == 0;
}

/* Two layers of names of 240 bytes, and an optimizer. */
static mlc_run of_long_names(mlc_ctx *ctx)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 3), mlc_nn_linear(ctx, 3, 2));
    mlc_run     run;
    memset(&run, 0, sizeof run);
    for (int i = 0; i < 4; i++) {
        char        name[60];
        mlc_module *outer = mlc_nn_sequential(ctx);
        memset(name, 'a' + i, 59);
        name[59] = 0;
        CHECK_EQ(mlc_module_add_named(outer, name, net), MLC_OK);
        net = outer;
    }
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    run.net = net;
    run.optim = mlc_adamw(net, 0.1);
    return run;
}

/* The first tensor of such a name gets a dtype of as many bytes that mlcore lacks. */
static void make_foreign(const char *path, const char *name_end)
{
    char           key[64];
    size_t         n = 0;
    unsigned char *file = get_file(path, &n);
    snprintf(key, sizeof key, "%s\":{\"dtype\":\"F32\"", name_end);
    for (size_t at = 0, len = strlen(key); at + len <= n; at++)
        if (memcmp(file + at, key, len) == 0) memcpy(file + at + len - 4, "U32", 3);
    CHECK(put_file(path, file, n));
    free(file);
}

static int times_in(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

/* Five reasons of the network and five of the optimizer, each with names that are too long. */
TEST(run, long_names_of_every_kind_of_misfit_are_cut_and_every_reason_is_told)
{
    mlc_ctx    *ctx = test_ctx();
    const box   b = box_open("long.run");
    const char *const metadata[] = {"mlcore.run", "1", "mlcore.optim", "adamw",
                                    "mlcore.optim.groups", "", NULL};
    static const char *const ends[2][4] = {
        {"0.bias", "0.weight", "1.bias", "1.weight"},
        {"0.bias.exp_avg", "0.weight.exp_avg", "1.bias.exp_avg", "1.weight.exp_avg"}};
    static const char *const reasons[] = {
        " Missing key(s) in state_dict: \"%s", " Unexpected key(s) in state_dict: \"zzzzzzzz",
        " size mismatch for %s", " dtype mismatch for %s",
        " dtype not known to this mlcore for %s"};
    const mlc_run    run = of_long_names(ctx);
    const mlc_named *list;
    mlc_named        other[40];
    static char      extra[4][1600];
    int64_t          n = 0, to = 0;
    CHECK_EQ(mlc_run_save(ctx, b.path, &run), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    for (int64_t i = 0; i < n; i++) {
        const char *const *end = ends[strncmp(list[i].name, "optim.", 6) == 0];
        other[to] = list[i];
        if (ends_in(list[i].name, end[1])) other[to].tensor = mlc_zeros(ctx, MLC_F32, mlc_dims1(9));
        if (ends_in(list[i].name, end[2])) other[to].tensor = mlc_cast(list[i].tensor, MLC_F64);
        to += !ends_in(list[i].name, end[0]);
    }
    CHECK_EQ(to, n - 2);
    for (int i = 0; i < 4; i++) {
        memset(extra[i], 'z', sizeof extra[i] - 1);
        memcpy(extra[i], i < 2 ? "net." : "optim.", i < 2 ? 4 : 6);
        extra[i][1500 + i] = 0;
        other[to].name = extra[i];
        other[to++].tensor = mlc_zeros(ctx, MLC_F32, mlc_dims1(1));
    }
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, other, to, metadata), MLC_OK);
    for (int i = 0; i < 2; i++) make_foreign(b.path, ends[i][3]);
    CHECK_EQ(mlc_run_load(ctx, b.path, &run), MLC_ERR_SHAPE);
    const char *text = mlc_error(ctx);
    for (int i = 0; i < 10; i++) {     /* ten bytes of a name or more */
        char part[80];
        snprintf(part, sizeof part, reasons[i % 5], i < 5 ? "dddddddddd" : "state.dddd");
        if (!CHECK_EQ(times_in(text, part), i % 5 == 1 ? 2 : 1)) printf("  %s\n", part);
    }
    CHECK_EQ(times_in(text, "\", ... (1 more)."), 2);
    CHECK(strlen(text) < 1000);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    box_close(&b);
}

TEST(run, that_is_cut_or_flipped_is_refused_or_loads)
{
    const box      b = box_open_fast("run");
    char           other[400];
    scene          s;
    size_t         n;
    uint64_t       random = 7;
    snprintf(other, sizeof other, "%s/other", b.dir);
    scene_open(&s, HELD, 16, BATCH, 3);
    for (int i = 0; i < 11; i++) mlc_fit_step(s.s);
    CHECK_EQ(save(&s, b.path), MLC_OK);
    scene_close(&s);
    unsigned char *bytes = get_file(b.path, &n);
    const int      times = test_cpu_kernels() ? 400 / (int)test_stride(8) : 8;
    for (int i = 0; i < times; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t at = (size_t)(random >> 33) % n;
        bytes[at] ^= (unsigned char)(1u << (random >> 61));
        put_file(other, bytes, i % 4 ? n : at);
        bytes[at] ^= (unsigned char)(1u << (random >> 61));
        scene_open(&s, HELD, 16, BATCH, 99);
        const uint64_t before = state_of(&s, &b);
        const mlc_status st = mlc_fit_resume(s.s, other);
        mlc_error_clear(s.ctx);
        CHECK(st == MLC_OK || state_of(&s, &b) == before);
        CHECK(i % 4 || st != MLC_OK);
        mlc_fit_end(s.s, NULL);        /* a part may have other bytes: its callback may say so */
        s.s = NULL;
        mlc_error_clear(s.ctx);
        scene_close(&s);
    }
    free(bytes);
    box_close(&b);
}

/* ---- parts of the user ----------------------------------------------------------------------- */

TEST(run, has_parts_of_the_user_and_only_what_it_names)
{
    const box         b = box_open_fast("run");
    mlc_ctx          *ctx = test_ctx();
    int               book[4] = {1, 2, 3, 4};
    char              word[6] = "hello";
    mlc_run_part      parts[2] = {{"book", book, sizeof book}, {"word", word, sizeof word}};
    const char *const metadata[] = {"by", "me", NULL};
    mlc_run           run;
    float             drawn[2][3];
    memset(&run, 0, sizeof run);
    run.parts = parts;
    run.n_parts = 2;
    run.metadata = metadata;
    CHECK_EQ(mlc_run_save(ctx, b.path, &run), MLC_OK);
    mlc_read(mlc_randn(ctx, MLC_F32, mlc_dims1(3)), drawn[0], sizeof drawn[0]);
    memset(book, 0, sizeof book);
    memset(word, 0, sizeof word);
    run.n_parts = 1;
    CHECK_EQ(mlc_run_load(ctx, b.path, &run), MLC_OK);
    CHECK(book[0] == 1 && book[3] == 4 && word[0] == 0);
    mlc_read(mlc_randn(ctx, MLC_F32, mlc_dims1(3)), drawn[1], sizeof drawn[1]);
    CHECK(memcmp(drawn[0], drawn[1], sizeof drawn[0]) == 0);
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path);
    CHECK_STR(mlc_safetensors_metadata(f, "by"), "me");
    CHECK_STR(mlc_safetensors_metadata(f, "mlcore.run"), "1");
    mlc_safetensors_close(f);
    parts[0].bytes = 8;
    CHECK_EQ(mlc_run_load(ctx, b.path, &run), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "part.book: it has 16 bytes in the file and 8 here");
    mlc_error_clear(ctx);
    parts[1].name = "book";
    run.n_parts = 2;
    CHECK_EQ(mlc_run_save(ctx, b.path, &run), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_run_save(ctx, NULL, &run), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_run_load(ctx, b.path, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_run_save(NULL, b.path, &run) == MLC_ERR_ARG);
    CHECK(mlc_run_load(NULL, b.path, &run) == MLC_ERR_ARG);
    CHECK(mlc_fit_resume(NULL, b.path) == MLC_ERR_ARG);
    CHECK(mlc_on_resume(NULL, b.path) == NULL);
    CHECK(mlc_on_resume(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    box_close(&b);
}

/* ---- savers ---------------------------------------------------------------------------------- */

TEST(run, a_saver_writes_the_file_that_a_save_writes_while_training_goes_on)
{
    const box b = box_open_fast("run");
    char      other[400];
    scene     s;
    snprintf(other, sizeof other, "%s/other", b.dir);
    scene_open(&s, HELD, 16, BATCH, 3);
    mlc_run_saver *saver = mlc_run_saver_create(s.ctx);
    const mlc_run  run = mlc_fit_run(s.s);
    for (int i = 0; i < 20; i++) {
        mlc_fit_step(s.s);
        CHECK_EQ(save(&s, b.path), MLC_OK);
        CHECK_EQ(mlc_run_saver_save(saver, other, &run), MLC_OK);
        mlc_fit_step(s.s);
        if (i % 2) CHECK_EQ(mlc_run_saver_save(saver, other, &run), MLC_OK);
        if (i % 2) CHECK_EQ(save(&s, b.path), MLC_OK);
        CHECK_EQ(mlc_run_saver_wait(saver), MLC_OK);
        CHECK(hash_file(0, b.path) == hash_file(0, other));
    }
    CHECK_EQ(mlc_run_saver_save(saver, "/nowhere/at/all", &run), MLC_OK);
    CHECK_EQ(mlc_run_saver_save(saver, other, &run), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), "/nowhere/at/all");
    mlc_error_clear(s.ctx);
    CHECK_EQ(mlc_run_saver_wait(saver), MLC_OK);
    CHECK_EQ(mlc_run_saver_save(saver, "", &run), MLC_ERR_ARG);
    mlc_error_clear(s.ctx);
    CHECK_EQ(mlc_run_saver_save(saver, "/nowhere/at/all", &run), MLC_OK);
    mlc_run_saver_free(saver);
    CHECK_STATUS(s.ctx, MLC_ERR_IO);
    mlc_error_clear(s.ctx);
    CHECK(mlc_run_saver_create(NULL) == NULL);
    CHECK(mlc_run_saver_wait(NULL) == MLC_ERR_ARG);
    CHECK(mlc_run_saver_save(NULL, other, &run) == MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "run_save: the saver is NULL");
    mlc_run_saver_free(NULL);
    scene_close(&s);
    box_close(&b);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* The scene's training with one callback more, which it frees. */
static void with_callback(scene *s, mlc_callback *c)
{
    mlc_fit_end(s->s, NULL);
    memset(&s->counts.n, 0, sizeof s->counts.n);
    s->callback[s->d.n_callbacks++] = c;
    s->d.callbacks = s->callback;
    s->s = mlc_fit_begin(s->net, s->opt, s->train, &s->d);
    CHECK(s->s != NULL);
}

static bool has_file(const char *pattern, int64_t step)
{
    char path[500];
    snprintf(path, sizeof path, "%s-%lld.safetensors", pattern, (long long)step);
    return access(path, F_OK) == 0;
}

/* The two newest and the best file stay. */
TEST(run, checkpoints_keep_the_newest_and_the_best)
{
    for (int mode = 0; mode < 4; mode++) {
        const box     b = box_open_fast("net");
        scene         s;
        const double *steps, *values;
        int           best = 0;
        mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
        d.keep_last = 2;
        d.keep_best = 1;
        d.best = mode / 2 ? "val_AUC" : "val_loss";
        d.higher = mode == 3;          /* the metric says it where the desc does not           */
        d.async = mode % 2;
        scene_open(&s, HELD, 16, BATCH, 3);
        with_callback(&s, mlc_on_checkpoint(s.ctx, &d));
        while (mlc_fit_step(s.s)) {}
        mlc_tracker *history;
        CHECK_EQ(mlc_fit_end(s.s, &history), MLC_OK);
        s.s = NULL;
        CHECK_EQ(mlc_tracker_history(history, d.best, &steps, &values), EPOCHS);
        for (int i = 1; i < EPOCHS; i++)
            if (mode / 2 ? values[i] > values[best] : values[i] < values[best]) best = i;
        for (int i = 0; i < EPOCHS; i++)
            CHECK_EQ(has_file(b.path, (int64_t)steps[i]), i >= EPOCHS - 2 || i == best);
        CHECK_EQ(box_count(&b), 3 + (best < EPOCHS - 2));  /* and the best weights */
        mlc_tracker_free(history);
        scene_close(&s);
        box_close(&b);
    }
}

/* Replaces the first number of a tensor of bytes in a run file. */
static void put_number(const char *path, const char *name, int64_t v)
{
    size_t         n;
    unsigned char *file = get_file(path, &n);
    const char    *at = strstr((char *)file + 8, name), *from = strstr(at, "data_offsets");
    uint64_t       header;
    memcpy(&header, file, sizeof header);
    memcpy(file + 8 + header + strtoll(strchr(from, '[') + 1, NULL, 10), &v, sizeof v);
    CHECK(put_file(path, file, n));
    free(file);
}

/* The list of files is bytes of a run file. One that is damaged may come while a file is written,
 * at whose end the list is gone through. */
TEST(run, a_damaged_list_of_checkpoints_begins_anew)
{
    for (int k = 0; k < 2; k++) {
        const box           b = box_open_fast("net");
        char                path[400];
        scene               s;
        mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
        d.async = true;
        d.every_steps = 1;
        snprintf(path, sizeof path, "%s/damaged", b.dir);
        scene_open(&s, PLAIN, 16, BATCH, 3);
        with_callback(&s, mlc_on_checkpoint(s.ctx, &d));
        for (int i = 0; i < 3; i++) mlc_fit_step(s.s);
        CHECK_EQ(save(&s, path), MLC_OK);
        put_number(path, "callback.checkpoint.files", k ? -1 : 1 << 20);
        const mlc_run run = mlc_fit_run(s.s);
        mlc_fit_step(s.s);
        CHECK_EQ(mlc_run_load(s.ctx, path, &run), MLC_OK);
        while (mlc_fit_step(s.s)) {}
        CHECK(has_file(b.path, s.s->step));
        scene_close(&s);
        box_close(&b);
    }
}

/* Hash of the weights that a plain load of the best file gives. */
static uint64_t best_weights(const char *pattern)
{
    char  path[500];
    scene s;
    snprintf(path, sizeof path, "%s-best.safetensors", pattern);
    scene_open(&s, HELD, 16, BATCH, 99);
    CHECK_EQ(mlc_load(s.net, path), MLC_OK);
    const uint64_t h = hash_net(0, s.net);
    scene_close(&s);
    return h;
}

/* Without files of the best and with every_epochs that passes over them; stopped in the midst and
 * gone on with, too. */
TEST(run, the_best_weights_have_a_file_that_load_takes_as_it_is)
{
    const char *names[] = {"val_loss", "val_AUC", "loss"};
    for (int mode = 0; mode < 6; mode++) {
        const box     b = box_open_fast("net");
        scene         s;
        uint64_t      at_end[EPOCHS], want = 0;
        const double *values;
        int           best = 0, ended = 0;
        mlc_tracker  *history;
        mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
        d.best = names[mode % 3];
        d.higher = mode == 1;          /* the metric says it in mode 4                         */
        d.async = mode / 3;
        d.resume = true;
        d.every_epochs = 2;
        for (int start = 0; start < 2; start++) {
            scene_open(&s, HELD, 16, BATCH, 3);
            with_callback(&s, mlc_on_checkpoint(s.ctx, &d));
            for (bool more = true; more && (start || ended < 4);) {
                more = mlc_fit_step(s.s);
                if (s.s->epoch == ended) continue;
                at_end[ended++] = hash_net(0, s.net);
            }
            if (!start) scene_close(&s);
        }
        CHECK_EQ(ended, EPOCHS);
        CHECK_EQ(mlc_fit_end(s.s, &history), MLC_OK);
        s.s = NULL;
        CHECK_EQ(mlc_tracker_history(history, d.best, NULL, &values), EPOCHS);
        for (int i = 1; i < EPOCHS; i++)
            if (mode % 3 == 1 ? values[i] > values[best] : values[i] < values[best]) best = i;
        want = at_end[best];
        CHECK(best_weights(b.path) == want);
        CHECK_EQ(box_count(&b), 2);
        mlc_tracker_free(history);
        scene_close(&s);
        box_close(&b);
    }
}

static void spoil(mlc_module *net)
{
    mlc_param_iter it = mlc_param_iter_make(net);
    mlc_no_grad_begin(mlc_module_ctx(net));
    while (mlc_param_next(&it)) mlc_mul_scalar_(it.tensor, -30);
    mlc_no_grad_end(mlc_module_ctx(net));
}

/* The last row of a run that is gone on with is not new, however good it was. */
TEST(run, the_best_weights_stay_where_a_resumed_run_gets_worse)
{
    const box           b = box_open_fast("net");
    uint64_t            want = 0;
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
    d.best = "loss";
    d.resume = true;
    for (int start = 0; start < 2; start++) {
        scene s;
        scene_open(&s, HELD, 16, BATCH, 3);
        with_callback(&s, mlc_on_checkpoint(s.ctx, &d));
        CHECK_EQ(s.s->epoch, 2 * start);
        if (start) spoil(s.net);
        while (s.s->epoch < 2 + start && mlc_fit_step(s.s)) {}
        if (!start) want = hash_net(0, s.net);
        CHECK_OK(s.ctx);
        scene_close(&s);
        CHECK(best_weights(b.path) == want);
    }
    box_close(&b);
}

/* Validations in the midst of epochs count, and an average that a later callback has put in the
 * place of the parameters is what is saved. */
TEST(run, the_best_weights_are_those_of_the_average_that_was_validated)
{
    const box b = box_open_fast("net");
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, 1, 1);
    mlc_tensor   *x = mlc_ones(ctx, MLC_F32, mlc_dims2(4, 1));
    mlc_tensor   *y = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 1));
    mlc_optim    *opt = mlc_sgd(net, 0.1);
    mlc_average  *mean = mlc_ema(opt, 0.5);
    mlc_fit_desc  fd = mlc_fit_desc_make(mlc_mse_loss);
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
    char          path[500];
    d.best = "val_loss";
    mlc_callback *list[] = {mlc_on_checkpoint(ctx, &d), mlc_on_average(ctx, mean)};
    snprintf(path, sizeof path, "%s-best.safetensors", b.path);
    fd.epochs = 3;
    fd.validation = mlc_loader_ordered(ctx, x, y, 4);
    fd.callbacks = list;
    fd.n_callbacks = 2;
    CHECK_EQ(mlc_fit(net, opt, mlc_loader_ordered(ctx, x, y, 2), &fd, NULL), MLC_OK);
    CHECK_EQ(mlc_average_swap(mean, true), MLC_OK);
    const uint64_t want = hash_net(0, net);                /* the loss falls: the last one     */
    CHECK_EQ(mlc_average_swap(mean, false), MLC_OK);
    CHECK(hash_net(0, net) != want);
    CHECK_EQ(mlc_load(net, path), MLC_OK);
    CHECK(hash_net(0, net) == want);
    for (int i = 0; i < 2; i++) mlc_callback_free(ctx, list[i]);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(run, a_load_of_a_run_file_says_how_it_is_loaded)
{
    const box     b = box_open_fast("run");
    scene         s;
    mlc_load_desc d = mlc_load_desc_make();
    scene_open(&s, HELD, 16, BATCH, 3);
    mlc_fit_step(s.s);
    CHECK_EQ(save(&s, b.path), MLC_OK);
    const uint64_t want = hash_net(0, s.net);
    CHECK_EQ(mlc_load(s.net, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), "it is a run file");
    CHECK_HAS(mlc_error(s.ctx), "mlc_load_ex with desc.prefix \"net.\" and desc.partial");
    CHECK_HAS(mlc_error(s.ctx), "PATH-best.safetensors, by mlc_load");
    mlc_error_clear(s.ctx);
    CHECK_EQ(mlc_optim_load(s.opt, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), "mlc_optim_load_ex with desc.prefix \"optim.\"");
    mlc_error_clear(s.ctx);
    d.partial = true;                  /* as the messages say                                  */
    d.prefix = "optim.";
    CHECK_EQ(mlc_optim_load_ex(s.opt, b.path, &d), MLC_OK);
    d.prefix = "net.";
    mlc_fit_step(s.s);
    CHECK(hash_net(0, s.net) != want);
    CHECK_EQ(mlc_load_ex(s.net, b.path, &d), MLC_OK);
    CHECK(hash_net(0, s.net) == want);
    CHECK_EQ(mlc_optim_save(s.opt, b.path), MLC_OK);
    CHECK_EQ(mlc_load(s.net, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), "it is a file of mlc_optim_save; load it by mlc_optim_load");
    mlc_error_clear(s.ctx);
    scene_close(&s);
    box_close(&b);
}

/* stop: of the first process, in calls of mlc_fit_step; 0: there is one alone. */
static uint64_t checkpointed(kind k, int stop, bool async)
{
    const box b = box_open_fast("net");
    uint64_t  h = 0;
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
    d.every_steps = 2;
    d.every_epochs = 2;
    d.keep_last = 3;
    d.resume = true;
    d.async = async;
    for (int i = stop ? 0 : 1; i < 2; i++) {
        scene s;
        scene_open(&s, k, 16, BATCH, 3);
        with_callback(&s, mlc_on_checkpoint(s.ctx, &d));
        for (int n = i ? CALLS : stop; n > 0 && mlc_fit_step(s.s); n--) {}
        if (i) {
            char    path[400];
            mlc_run run = mlc_fit_run(s.s);
            run.fit = NULL;            /* its list of files may have one more that is to go    */
            snprintf(path, sizeof path, "%s/state", b.dir);
            CHECK_EQ(mlc_run_save(s.ctx, path, &run), MLC_OK);
            h = hash_file(0, path);
        }
        scene_close(&s);
    }
    CHECK_EQ(box_count(&b), 3 + 1);
    box_close(&b);
    return h;
}

TEST(run, checkpoints_go_on_from_the_newest)
{
    const kind kinds[] = {COLLECTS, HELD};
    for (int k = 0; k < 2; k++)
        for (int async = 0; async < 2; async++) {
            const uint64_t want = checkpointed(kinds[k], 0, async);
            for (int stop = 8; stop < CALLS; stop += test_cpu_kernels() ? 13 : 50)
                if (!CHECK(checkpointed(kinds[k], stop, async) == want))
                    printf("  kind %d, async %d, stopped after call %d\n", k, async, stop);
        }
}

static int g_warnings, g_errors;
static void count_logs(void *user, mlc_log_level level, const char *text)
{
    (void)user; (void)text;
    g_warnings += level == MLC_LOG_WARNING;
    g_errors += level == MLC_LOG_ERROR;
}

/* The folder vanishes after the second file. */
TEST(run, a_checkpoint_that_cannot_be_written_ends_the_training_or_is_a_warning)
{
    for (int mode = 0; mode < 4; mode++) {
        const box    b = box_open_fast("net");
        mlc_ctx_desc cd = test_desc();
        mlc_optim   *opt;
        g_warnings = g_errors = 0;
        cd.log = count_logs;
        mlc_ctx     *ctx = test_own(mlc_ctx_create(&cd));
        mlc_module  *net = mlc_nn_linear(ctx, FIELDS, CLASSES);
        mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, FIELDS), 1, -1, 1);
        mlc_loader  *train = mlc_loader_shuffled(ctx, x, test_rand(ctx, MLC_F32,
                                                 mlc_dims2(ROWS, CLASSES), 2, 0, 1), BATCH);
        mlc_fit_desc fd = mlc_fit_desc_make(mlc_mse_loss);
        mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
        d.async = mode % 2;
        d.keep_going = mode / 2;
        mlc_callback *c = mlc_on_checkpoint(ctx, &d);
        fd.callbacks = &c;
        fd.n_callbacks = 1;
        fd.epochs = 6;
        opt = mlc_sgd(net, 0.1);
        mlc_fit_state *s = mlc_fit_begin(net, opt, train, &fd);
        while (s->epoch < 2 && mlc_fit_step(s)) {}
        mlc_fit_step(s);
        for (box_close(&b); access(b.dir, F_OK) == 0; box_close(&b))
            usleep(1000);              /* a thread is still writing to it                      */
        while (mlc_fit_step(s)) {}
        CHECK(s->epoch == (d.keep_going ? 6 : 3) || (mode == 1 && s->epoch == 4));
        CHECK_EQ(mlc_fit_end(s, NULL), d.keep_going ? MLC_OK : MLC_ERR_IO);
        if (!d.keep_going) CHECK_HAS(mlc_error(ctx), b.path);
        CHECK_STATUS(ctx, d.keep_going ? MLC_OK : MLC_ERR_IO);
        CHECK_EQ(g_errors, !d.keep_going);
        if (d.keep_going) CHECK(g_warnings >= 3);
        mlc_error_clear(ctx);
        mlc_callback_free(ctx, c);
    }
}

/* The folder is gone when the third of six files is due: the others are there, written by a thread
 * or not. */
TEST(run, a_checkpoint_that_fails_costs_no_other)
{
    for (int async = 0; async < 2; async++) {
        const box    b = box_open_fast("net");
        char         gone[300], second[340];
        mlc_ctx_desc cd = test_desc();
        cd.log = count_logs;
        mlc_ctx     *ctx = test_own(mlc_ctx_create(&cd));
        mlc_module  *net = mlc_nn_linear(ctx, FIELDS, CLASSES);
        mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, FIELDS), 1, -1, 1);
        mlc_tensor  *y = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, CLASSES), 2, 0, 1);
        mlc_loader  *train = mlc_loader_shuffled(ctx, x, y, BATCH);
        mlc_fit_desc fd = mlc_fit_desc_make(mlc_mse_loss);
        mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
        d.async = async;
        d.keep_going = true;
        d.keep_last = 10;
        mlc_callback *c = mlc_on_checkpoint(ctx, &d);
        fd.callbacks = &c;
        fd.n_callbacks = 1;
        fd.epochs = 6;
        g_warnings = 0;
        mlc_fit_state *s = mlc_fit_begin(net, mlc_sgd(net, 0.1), train, &fd);
        while (s->epoch < 2 && mlc_fit_step(s)) {}
        snprintf(gone, sizeof gone, "%s.gone", b.dir);
        snprintf(second, sizeof second, "%s-%d.safetensors", b.path, 2 * BATCHES);
        while (access(second, F_OK) != 0) usleep(1000);    /* a thread is still writing it     */
        CHECK_EQ(rename(b.dir, gone), 0);
        while (s->epoch < 3 && mlc_fit_step(s)) {}
        if (async) usleep(20000);      /* it has failed by now, or still will                  */
        CHECK_EQ(rename(gone, b.dir), 0);
        while (mlc_fit_step(s)) {}
        CHECK_EQ(mlc_fit_end(s, NULL), MLC_OK);
        CHECK(box_count(&b) == (g_warnings ? 5 : 6));
        CHECK(async || g_warnings == 1);
        CHECK_OK(ctx);
        mlc_callback_free(ctx, c);
        box_close(&b);
    }
}

static mlc_status pass_4_seconds(void *user, mlc_event e, mlc_fit_state *s)
{
    (void)user; (void)e; (void)s;
    test_clock_pass(4);
    return MLC_OK;
}

/* Of 14 batches of 4 seconds each: after the 3rd, 6th, 9th and 12th more than 10 have passed. */
TEST(run, a_checkpoint_by_seconds_is_written_when_they_have_passed)
{
    const box    b = box_open_fast("net");
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = mlc_nn_linear(ctx, FIELDS, CLASSES);
    mlc_tensor  *x = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, FIELDS), 1, -1, 1);
    mlc_loader  *train = mlc_loader_shuffled(ctx, x, test_rand(ctx, MLC_F32,
                                             mlc_dims2(ROWS, CLASSES), 2, 0, 1), BATCH);
    mlc_fit_desc fd = mlc_fit_desc_make(mlc_mse_loss);
    mlc_callback time = {"time", NULL, 1u << MLC_EVENT_BATCH_END, pass_4_seconds, NULL, 0, NULL};
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b.path);
    d.every_epochs = 0;
    d.every_seconds = 10;
    d.keep_last = 64;
    mlc_callback *list[2] = {mlc_callback_create(ctx, &time), mlc_on_checkpoint(ctx, &d)};
    fd.callbacks = list;
    fd.n_callbacks = 2;
    fd.epochs = 2;
    const bool own = test_clock_begin(0);
    CHECK_EQ(mlc_fit(net, mlc_sgd(net, 0.1), train, &fd, NULL), MLC_OK);
    test_clock_end();
    for (int step = 1; own && step <= 2 * BATCHES; step++) {
        char path[400];
        snprintf(path, sizeof path, "%s-%d.safetensors", b.path, step);
        CHECK((access(path, F_OK) == 0) == (step % 3 == 0));
    }
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(run, checkpoints_refuse_settings_that_make_no_sense)
{
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 8; i++) {
        mlc_checkpoint_desc d = mlc_checkpoint_desc_make(i == 0 ? NULL : i == 1 ? "" : "net");
        if (i == 2) d.keep_last = 0;
        if (i == 3) d.keep_last = 65;
        if (i == 4) d.keep_best = 1;
        if (i == 5) d.every_steps = -1;
        if (i == 6) d.every_seconds = NO_NUMBER;
        if (i == 7) d.best = "";
        CHECK(mlc_on_checkpoint(ctx, &d) == NULL);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        mlc_error_clear(ctx);
    }
    CHECK(mlc_on_checkpoint(ctx, NULL) == NULL);
    mlc_error_clear(ctx);
    CHECK(mlc_on_checkpoint(NULL, NULL) == NULL);
}

/* ---- signals --------------------------------------------------------------------------------- */

static mlc_status signals(void *user, mlc_event e, mlc_fit_state *s)
{
    const int *number = (const int *)user;
    (void)e;
    for (int i = 0; i < number[1] && s->epoch == 1 && s->batch == 3; i++) raise(number[0]);
    return MLC_OK;
}

/* A training that gets `times` signals in its eleventh batch, or what is to go on. */
static mlc_status signalled(scene *s, int number, int times, const char *path)
{
    int                about[2] = {number, times};
    const mlc_callback c = {"signals", about, 1u << MLC_EVENT_STEP_BEGIN, signals, NULL, 0, NULL};
    mlc_callback      *list[2] = {mlc_callback_create(s->ctx, &c), mlc_on_signal(s->ctx, path)};
    mlc_fit_end(s->s, NULL);
    s->d.callbacks = list;
    s->d.n_callbacks = 2;
    const mlc_status st = mlc_fit(s->net, s->opt, s->train, &s->d, NULL);
    mlc_callback_free(s->ctx, list[0]);
    mlc_callback_free(s->ctx, list[1]);
    s->d.n_callbacks = 0;
    s->s = NULL;
    return st;
}

static void mine(int number) { (void)number; }

TEST(run, a_signal_lets_the_batch_end_and_saves)
{
    const int numbers[2] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        const box b = box_open_fast("run");
        scene     s;
        struct sigaction a, old;
        memset(&a, 0, sizeof a);
        a.sa_handler = mine;
        sigaction(numbers[i], &a, NULL);
        scene_open(&s, PLAIN, 16, BATCH, 3);
        CHECK_EQ(signalled(&s, numbers[i], 1, b.path), MLC_INTERRUPTED);
        CHECK_OK(s.ctx);
        CHECK_STR(mlc_status_name(MLC_INTERRUPTED), "INTERRUPTED");
        a.sa_handler = SIG_DFL;
        CHECK_EQ(sigaction(numbers[i], &a, &old), 0);
        CHECK(old.sa_handler == mine);                     /* as it was before */
        scene_close(&s);
        scene_open(&s, PLAIN, 16, BATCH, 9);
        CHECK_EQ(mlc_fit_resume(s.s, b.path), MLC_OK);
        CHECK(s.s->epoch == 1 && s.s->batch == 4);
        while (mlc_fit_step(s.s)) {}
        CHECK(state_of(&s, &b) == whole(PLAIN, &b));
        scene_close(&s);
        box_close(&b);
    }
}

TEST(run, a_signal_that_is_ignored_stays_so)
{
    scene s;
    signal(SIGINT, SIG_IGN);
    scene_open(&s, PLAIN, 16, BATCH, 3);
    CHECK_EQ(signalled(&s, SIGINT, 2, NULL), MLC_OK);
    CHECK(signal(SIGINT, SIG_DFL) == SIG_IGN);
    scene_close(&s);
}

TEST(run, a_second_signal_ends_the_process)
{
    ONLY_ON_HOST();                    /* a device outlives no fork                            */
    scene s;
    int   how = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        scene_open(&s, PLAIN, 16, BATCH, 3);
        _exit(signalled(&s, SIGTERM, 2, NULL) == MLC_ERR_UNSUPPORTED);
    }
    CHECK(child > 0 && waitpid(child, &how, 0) == child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 1) test_lacks("has no kernel of batch norms");
    CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

TEST(run, one_training_at_a_time_catches_signals)
{
    scene         s;
    scene_open(&s, PLAIN, 16, BATCH, 3);
    mlc_callback *a = mlc_on_signal(s.ctx, NULL), *c = mlc_on_signal(s.ctx, NULL);
    mlc_fit_desc  d = s.d;
    with_callback(&s, a);
    d.callbacks = &c;
    d.n_callbacks = 1;
    CHECK(mlc_fit_begin(s.net, s.opt, s.train, &d) == NULL);
    CHECK_HAS(mlc_error(s.ctx), "another training");
    CHECK_STATUS(s.ctx, MLC_ERR_STATE);
    mlc_error_clear(s.ctx);
    mlc_callback_free(s.ctx, c);
    CHECK(mlc_on_signal(NULL, NULL) == NULL);
    scene_close(&s);
}

/* ---- stopped, and started again -------------------------------------------------------------- */

/* A training as a program has it, begun anew each time it is started: a signal in the second epoch
 * of the first start, or none. */
typedef struct start { scene s; int about[2]; mlc_callback *own[4]; } start;

static void start_open(start *p, const box *b, int signals_sent, bool resume, int64_t epochs)
{
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make(b->path);
    mlc_early_stop_desc e = mlc_early_stop_desc_make();
    scene_open(&p->s, PLAIN, 16, BATCH, 3);
    mlc_fit_end(p->s.s, NULL);
    p->about[0] = SIGINT;
    p->about[1] = signals_sent;
    const mlc_callback c = {"signals", p->about, 1u << MLC_EVENT_STEP_BEGIN, signals, NULL, 0,
                            NULL};
    d.resume = resume;
    e.name = "loss";
    e.least = 1e9;                     /* none is better than the first: it stops early        */
    e.patience = 4;
    p->own[0] = mlc_callback_create(p->s.ctx, &c);
    p->own[1] = mlc_on_early_stop(p->s.ctx, &e);
    p->own[2] = mlc_on_checkpoint(p->s.ctx, &d);
    p->own[3] = mlc_on_signal(p->s.ctx, NULL);
    p->s.d.callbacks = p->own;
    p->s.d.n_callbacks = 4;
    p->s.d.epochs = epochs;
}

/* Runs it to its end; returns the step. */
static int64_t start_run(start *p, mlc_status want, uint64_t *h)
{
    mlc_tracker *history;
    CHECK_EQ(mlc_fit(p->s.net, p->s.opt, p->s.train, &p->s.d, &history), want);
    const int64_t step = mlc_optim_steps(p->s.opt);
    if (h) *h = hash_net(0, p->s.net);
    mlc_tracker_free(history);
    for (int i = 0; i < 4; i++) mlc_callback_free(p->s.ctx, p->own[i]);
    p->s.d.n_callbacks = 0;
    p->s.s = NULL;
    scene_close(&p->s);
    return step;
}

TEST(run, a_program_that_a_signal_has_stopped_goes_on_and_knows_its_end)
{
    const box b = box_open_fast("net"), whole_box = box_open_fast("net");
    uint64_t  want, got, again;
    start     p;
    start_open(&p, &whole_box, 0, true, EPOCHS);
    const int64_t steps = start_run(&p, MLC_OK, &want);
    CHECK(steps % BATCHES == 0 && steps < EPOCHS * BATCHES);           /* stopped early        */
    start_open(&p, &b, 1, true, EPOCHS);
    CHECK_EQ(start_run(&p, MLC_INTERRUPTED, NULL), BATCHES + 4);
    CHECK(has_file(b.path, BATCHES + 4));                  /* in the midst of an epoch         */
    CHECK_EQ(box_count(&b), 1);
    start_open(&p, &b, 0, true, EPOCHS);
    CHECK_EQ(start_run(&p, MLC_OK, &got), steps);
    CHECK(got == want);
    for (int i = 0; i < 3; i++) {                          /* it is over                       */
        start_open(&p, &b, 0, true, EPOCHS + 5);
        CHECK_EQ(start_run(&p, MLC_OK, &again), steps);
        CHECK(again == want);
    }
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
    box_close(&whole_box);
}

static void set_age(const char *pattern, int64_t step, time_t seconds)
{
    char            path[500];
    struct timespec at[2] = {{seconds, 0}, {seconds, 0}};
    snprintf(path, sizeof path, "%s-%lld.safetensors", pattern, (long long)step);
    CHECK_EQ(utimensat(AT_FDCWD, path, at, 0), 0);
}

/* An older run of the same path was longer: the newer one is gone on with. */
TEST(run, checkpoints_go_on_with_the_file_that_was_written_last)
{
    const box b = box_open_fast("net");
    start     p;
    start_open(&p, &b, 0, false, 4);
    CHECK_EQ(start_run(&p, MLC_OK, NULL), 4 * BATCHES);
    set_age(b.path, 4 * BATCHES, 1000000);
    start_open(&p, &b, 1, false, 4);
    CHECK_EQ(start_run(&p, MLC_INTERRUPTED, NULL), BATCHES + 4);
    set_age(b.path, BATCHES + 4, 1000001);
    CHECK(has_file(b.path, 4 * BATCHES));                  /* the older run's file stays       */
    start_open(&p, &b, 0, true, 2);
    CHECK_EQ(start_run(&p, MLC_OK, NULL), 2 * BATCHES);
    box_close(&b);
}

/* ---- files of before ------------------------------------------------------------------------- */

/* What a device has beside, or sums up in another order. */
static bool of_device(const char *name)
{
    return strncmp(name, "fit.mean.", 9) == 0 || (strcmp(name, "fit.loss") == 0 && !test_on_host());
}

/* All that a run of format 1 has is taken back: what is saved then is the same. To write the file
 * anew, for a format 2: scene_open(COLLECTS, 16, BATCH, 3), 10 calls of mlc_fit_step, save. */
TEST(run, of_format_1_loads)
{
    const box        b = box_open_fast("run");
    const mlc_named *old, *now;
    int64_t          n, m, same = 0;
    scene            s;
    scene_open(&s, COLLECTS, 16, BATCH, 99);
    CHECK_EQ(mlc_fit_resume(s.s, "tests/golden/run_v1.safetensors"), MLC_OK);
    CHECK(s.s->epoch == 1 && s.s->batch == 2 && s.s->step == 3 && s.counts.n == 9);
    CHECK_EQ(mlc_optim_pending(s.opt), 2);
    CHECK_EQ(save(&s, b.path), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(s.ctx, "tests/golden/run_v1.safetensors", &old, &n), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(s.ctx, b.path, &now, &m), MLC_OK);
    for (int64_t i = 0, k = 0; i < n; i++) {
        while (k < m && strcmp(now[k].name, old[i].name) < 0) k++;
        if (of_device(old[i].name)) continue;
        if (!CHECK(k < m && strcmp(now[k].name, old[i].name) == 0)) continue;
        if (!CHECK(hash_tensor(0, now[k].tensor) == hash_tensor(0, old[i].tensor)))
            printf("  %s\n", old[i].name);
        same++;
    }
    CHECK(same > 40);
    CHECK(mlc_fit_step(s.s));
    scene_close(&s);
    box_close(&b);
}

/* A file whose sums of classes are a matrix alone, as they were, gives the same value. */
static void cut_matrix(mlc_ctx *ctx, const char *path)
{
    const char *const format[] = {"mlcore.run", "1", "mlcore.optim", "adamw",
                                  "mlcore.optim.groups", "", NULL};
    const mlc_named  *list;
    mlc_named         cut[100];
    int64_t           n;
    CHECK_EQ(mlc_safetensors_load(ctx, path, &list, &n), MLC_OK);
    if (!CHECK(n <= 100)) return;
    for (int64_t i = 0; i < n; i++) {
        cut[i] = list[i];
        if (strcmp(list[i].name, "metric.matrix.sums") != 0) continue;
        CHECK_EQ(mlc_numel(list[i].tensor), (CLASSES + 1) * CLASSES);
        cut[i].tensor = mlc_rows(list[i].tensor, 0, CLASSES * CLASSES);
    }
    CHECK_EQ(mlc_safetensors_save(ctx, path, cut, n, format), MLC_OK);
}

TEST(run, of_a_matrix_without_its_last_row_loads)
{
    const box b = box_open_fast("run");
    double    counts[2][CLASSES * CLASSES];
    scene     s;
    for (int i = 0; i < 2; i++) {
        scene_open(&s, PLAIN, 16, BATCH, 3);
        mlc_fit_end(s.s, NULL);
        s.list[0].name = "matrix";
        s.list[0].metric = mlc_metric_confusion(s.ctx, CLASSES);
        s.d.metrics = s.list;
        s.d.n_metrics = 1;
        s.s = mlc_fit_begin(s.net, s.opt, s.train, &s.d);
        for (int k = 0; i == 0 && k < 3; k++) mlc_fit_step(s.s);
        if (i == 0) CHECK_EQ(save(&s, b.path), MLC_OK);
        if (i == 0) cut_matrix(s.ctx, b.path);
        else CHECK_EQ(mlc_fit_resume(s.s, b.path), MLC_OK);
        CHECK_EQ(mlc_metric_counts(s.list[0].metric, counts[i], CLASSES * CLASSES), MLC_OK);
        CHECK(mlc_fit_step(s.s));
        scene_close(&s);
    }
    CHECK(memcmp(counts[0], counts[1], sizeof counts[0]) == 0);
    box_close(&b);
}

/* ---- killed ---------------------------------------------------------------------------------- */

enum { BYTES = 300 * 1000 };

/* Numbers of the save that has begun last and of that which has ended last, of a child. */
typedef struct shared { volatile int begun, ended; } shared;

/* Saves files full of their number, until it is killed. */
static void save_for_ever(const char *path, shared *s, bool async)
{
    static unsigned char fill[BYTES];
    mlc_run_part    part = {"fill", fill, sizeof fill};
    mlc_ctx        *ctx = test_ctx();
    mlc_run_saver  *saver = async ? mlc_run_saver_create(ctx) : NULL;
    mlc_run         run;
    memset(&run, 0, sizeof run);
    run.parts = &part;
    run.n_parts = 1;
    for (int i = 1; mlc_ctx_status(ctx) == MLC_OK; i++) {
        memset(fill, i & 255, sizeof fill);
        s->begun = i;
        if (saver) mlc_run_saver_save(saver, path, &run);
        else mlc_run_save(ctx, path, &run);
        s->ended = saver ? i - 1 : i;
    }
    _exit(1);
}

/* The file is that of the save that has ended last, or of one that had begun. */
static void check_killed(const box *b, const shared *s)
{
    static unsigned char fill[BYTES];
    mlc_run_part part = {"fill", fill, sizeof fill};
    mlc_ctx     *ctx = test_ctx();
    mlc_run      run;
    bool         same = true, any = false;
    memset(&run, 0, sizeof run);
    run.parts = &part;
    run.n_parts = 1;
    if (s->ended == 0 && access(b->path, F_OK) != 0) return;
    CHECK_EQ(mlc_run_load(ctx, b->path, &run), MLC_OK);
    for (int i = 1; i < BYTES; i++) same = same && fill[i] == fill[0];
    for (int i = s->ended; i <= s->begun; i++) any = any || fill[0] == (i & 255);
    CHECK(same);
    if (!CHECK(any && s->begun - s->ended <= 2))
        printf("  file %d, ended %d, begun %d\n", fill[0], s->ended, s->begun);
    CHECK_EQ(mlc_run_save(ctx, b->path, &run), MLC_OK);    /* takes away what was left */
    CHECK_EQ(box_count(b), 1);
}

/* Before the files of a step, and after them. */
static mlc_status note_step(void *user, mlc_event e, mlc_fit_state *s)
{
    shared *at = (shared *)user;
    *(e == MLC_EVENT_BATCH_BEGIN ? &at->begun : &at->ended) = (int)s->step;
    return MLC_OK;
}

/* A training that goes on from the newest file and has one of each step, of which two stay: begun,
 * for `steps` batches. Its step is what the files say. */
static int64_t rotate(const char *path, shared *at, bool async, int64_t steps)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, FIELDS, CLASSES);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, FIELDS), 1, -1, 1);
    mlc_tensor *y = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, CLASSES), 2, 0, 1);
    mlc_loader *train = mlc_loader_shuffled(ctx, x, y, BATCH);
    mlc_fit_desc        d = mlc_fit_desc_make(mlc_mse_loss);
    mlc_checkpoint_desc c = mlc_checkpoint_desc_make(path);
    const mlc_callback  note = {"note", at, 1u << MLC_EVENT_BATCH_BEGIN | 1u << MLC_EVENT_BATCH_END,
                                note_step, NULL, 0, NULL};
    c.every_steps = 1;
    c.every_epochs = 0;
    c.keep_last = 2;
    c.resume = true;
    c.async = async;
    mlc_callback *list[] = {mlc_on_checkpoint(ctx, &c), mlc_callback_create(ctx, &note)};
    d.callbacks = list;
    d.n_callbacks = 2;
    d.epochs = 1000000;
    mlc_fit_state *s = mlc_fit_begin(net, mlc_adamw(net, 0.01), train, &d);
    const int64_t  from = s ? s->step : -1;
    for (int64_t i = 0; i < steps && mlc_fit_step(s); i++) {}
    CHECK_EQ(mlc_fit_end(s, NULL), MLC_OK);
    for (int i = 0; i < 2; i++) mlc_callback_free(ctx, list[i]);
    return from;
}

/* The newest whole file is that of the last step that ended, of the one before where a thread
 * writes, or of the next. */
TEST(run, that_is_killed_while_files_rotate_goes_on_from_the_newest)
{
    ONLY_ON_HOST();                    /* a device outlives no fork                            */
    const char *often = getenv("MLC_TEST_KILLS");
    const int   kills = often ? atoi(often) : 20;
    unsigned    random = 7;
    shared     *s = (shared *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    for (int i = 0; i < kills; i++) {
        const box b = box_open_fast("net");
        s->begun = s->ended = 0;
        const pid_t child = fork();
        if (child == 0) {
            rotate(b.path, s, i % 2, INT64_MAX);
            _exit(1);
        }
        while (s->ended == 0 && waitpid(child, NULL, WNOHANG) == 0) usleep(100);
        random = random * 1103515245u + 12345u;
        usleep((random >> 16) % 4000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        const int     ended = s->ended;
        const int64_t from = rotate(b.path, s, false, 3);
        if (!CHECK(from >= ended - i % 2 && from <= ended + 1))
            printf("  goes on from %d, ended %d\n", (int)from, ended);
        CHECK_EQ(box_count(&b), 2);
        box_close(&b);
    }
    munmap(s, sizeof *s);
}

/* MLC_TEST_KILLS: how often; .ci/full says 1000. */
TEST(run, that_is_killed_while_it_is_saved_is_the_old_or_the_new_one)
{
    ONLY_ON_HOST();
    const char *often = getenv("MLC_TEST_KILLS");
    const int   kills = often ? atoi(often) : 20;
    unsigned    random = 1;
    shared     *s = (shared *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    for (int i = 0; i < kills; i++) {
        const box b = box_open_fast("run");
        s->begun = s->ended = 0;
        const pid_t child = fork();
        if (child == 0) save_for_ever(b.path, s, i % 2);
        while (s->begun == 0 && waitpid(child, NULL, WNOHANG) == 0) usleep(100);
        random = random * 1103515245u + 12345u;
        usleep((random >> 16) % 4000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        check_killed(&b, s);
        box_close(&b);
    }
    munmap(s, sizeof *s);
}
