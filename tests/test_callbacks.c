/* test_callbacks.c -- tests of sections IMPL.TRAIN.CALLBACKS, IMPL.TRAIN.GRADIENTS and
 * IMPL.TRAIN.PROFILE: ready callbacks, timers, profiles, traces */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

#include <locale.h>

enum { ROWS = 50, BATCH = 8, BATCHES = 7, FIELDS = 5, CLASSES = 3 };

typedef struct scene {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    mlc_tensor *x, *y;
    mlc_loader *train, *held;
} scene;

static scene scene_make(void)
{
    scene  s;
    double labels[ROWS];
    s.ctx = test_ctx();
    for (int i = 0; i < ROWS; i++) labels[i] = (double)(i * i % 7 % CLASSES);
    mlc_seed(s.ctx, 3);
    s.net = MLC_SEQUENTIAL(s.ctx, mlc_nn_linear(s.ctx, FIELDS, 16), mlc_nn_relu(s.ctx),
                           mlc_nn_dropout(s.ctx, 0.2), mlc_nn_linear(s.ctx, 16, CLASSES));
    s.opt = mlc_adamw(s.net, 0.01);
    s.x = test_rand(s.ctx, MLC_F32, mlc_dims2(ROWS, FIELDS), 1, -1, 1);
    s.y = test_tensor(s.ctx, MLC_I64, mlc_dims1(ROWS), labels);
    s.train = mlc_loader_shuffled(s.ctx, s.x, s.y, BATCH);
    mlc_loader_desc d = mlc_loader_desc_make(s.x, s.y, 20);
    s.held = mlc_loader_create(s.ctx, &d);
    return s;
}

/* Of the last layer; to be changed by hand. */
static mlc_tensor *weight_of(const scene *s)
{
    mlc_module_build(s->net);
    return mlc_module_param(mlc_module_find(s->net, "3"), "weight");
}

typedef struct sink { char text[16384]; size_t n; } sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    if (!CHECK(s->n + bytes < sizeof s->text)) return;
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = 0;
}

/* Trains with the callbacks of a list that ends with NULL, and frees them.                     */
static mlc_status fit_with(scene *s, int64_t epochs, int64_t steps, bool validates,
                           mlc_callback **list, mlc_tracker **history)
{
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_status   st = MLC_ERR_ARG;
    d.epochs = epochs;
    d.steps = steps;
    d.validation = validates ? s->held : NULL;
    d.callbacks = list[0] ? list : NULL;
    while (list[d.n_callbacks]) d.n_callbacks++;
    if (CHECK_OK(s->ctx)) st = mlc_fit(s->net, s->opt, s->train, &d, history);
    for (int i = 0; list[i]; i++) mlc_callback_free(s->ctx, list[i]);
    return st;
}

/* Feeds a value of its own to each row, one after the other.                                   */
typedef struct feeder { const double *values; int n, at; const char *name; bool higher; } feeder;

static mlc_status feed(void *user, mlc_event e, mlc_fit_state *s)
{
    feeder *f = (feeder *)user;
    if (e == MLC_EVENT_TRAIN_BEGIN)
        return mlc_tracker_metric(s->history, f->name, NULL, f->higher);
    if (f->at < f->n) mlc_tracker_feed(s->history, f->name, f->values[f->at++]);
    return mlc_ctx_status(s->ctx);
}

static mlc_callback *feeder_new(mlc_ctx *ctx, feeder *f)
{
    mlc_callback c;
    memset(&c, 0, sizeof c);
    c.name = "feeder";
    c.user = f;
    c.events = 1u << MLC_EVENT_TRAIN_BEGIN | 1u << MLC_EVENT_EPOCH_BEGIN;
    c.on = feed;
    return mlc_callback_create(ctx, &c);
}

/* ---- progress -------------------------------------------------------------------------------- */

TEST(callbacks, progress_off_a_terminal_is_a_line_an_epoch_without_control_characters)
{
    static sink   out;
    scene         s = scene_make();
    mlc_callback *list[] = {mlc_on_progress(s.ctx, collect, &out), NULL};
    const bool    own = test_clock_begin(0.5);
    out.n = 0;
    CHECK_EQ(fit_with(&s, 3, 0, true, list, NULL), MLC_OK);
    test_clock_end();
    int lines = 0;
    for (size_t i = 0; i < out.n; i++) {
        lines += out.text[i] == '\n';
        if (out.text[i] != '\n') CHECK((unsigned char)out.text[i] >= 32);
    }
    CHECK_EQ(lines, 3);
    CHECK(strncmp(out.text, "epoch 1/3 100% 7/7 0:", own ? 21 : 19) == 0);
    CHECK_HAS(out.text, "\nepoch 2/3 100% 7/7 ");
    CHECK_HAS(out.text, "/s loss ");
    CHECK_HAS(out.text, " val_loss ");
    CHECK_HAS(out.text, "B\n");
    CHECK(strstr(out.text, "left") == NULL && strstr(out.text, " lr ") == NULL);
}

/* A training that is cut off ends its line; steps are no whole epoch.                          */
TEST(callbacks, progress_of_a_part_of_an_epoch_says_so)
{
    static sink   out;
    scene         s = scene_make();
    mlc_callback *list[] = {mlc_on_progress(s.ctx, collect, &out), NULL};
    out.n = 0;
    CHECK_EQ(fit_with(&s, 3, 4, false, list, NULL), MLC_OK);
    CHECK(strncmp(out.text, "epoch 1/3  57% 4/7 ", 19) == 0);
    CHECK_EQ(out.text[out.n - 1], '\n');
}

TEST(callbacks, a_progress_line_has_rate_time_left_and_no_control_characters)
{
    static sink  out;
    const bool   own = test_clock_begin(0);
    mlc_progress p = mlc_progress_make("a\tb", 40, collect, &out);
    out.n = 0;
    p.first = 10;
    test_clock_pass(10);
    p.shown -= 31;
    mlc_progress_update(&p, 30, "x\r\033[Ky");
    CHECK_HAS(out.text, own ? "a b  75% 30/40 0:10 left 0:05 2/s x  [Ky\n" : "a b  75% 30/40 ");
    out.n = 0;
    p.total = -1;
    p.shown -= 31;
    mlc_progress_update(&p, 30, "loss 1");
    CHECK_HAS(out.text, own ? "a b 30 0:10 2/s loss 1\n" : "a b 30 ");
    mlc_progress_update(&p, 60, "loss 1");
    CHECK(!own || strstr(out.text, "60") == NULL);
    test_clock_end();
}

/* ---- rows in files --------------------------------------------------------------------------- */

static char *text_of(const char *path)
{
    size_t n = 0;
    char  *data = (char *)get_file(path, &n);
    char  *text = (char *)calloc(1, n + 1);
    if (data) memcpy(text, data, n);
    free(data);
    return text;
}

/* Numbers read back to the same bits; what there was before is gone.                           */
TEST(callbacks, csv_and_json_have_the_rows_of_the_history)
{
    static const double values[] = {0.5, 0.1, (double)NAN};
    scene        s = scene_make();
    box          b = box_open_fast("log.csv");
    feeder       f = {values, 3, 0, "mine", false};
    char         json[340], want[600];
    const double *loss, *lr;
    mlc_tracker *history;
    snprintf(json, sizeof json, "%s/log.json", b.dir);
    CHECK(put_file(b.path, "old\n", 4));
    mlc_callback *list[] = {feeder_new(s.ctx, &f), mlc_on_csv(s.ctx, b.path),
                            mlc_on_json(s.ctx, json), NULL};
    CHECK_EQ(fit_with(&s, 3, 0, false, list, &history), MLC_OK);
    mlc_tracker_history(history, "loss", NULL, &loss);
    mlc_tracker_history(history, "lr", NULL, &lr);
    static const char *const begins[3] = {"\r\n7,", "\r\n14,", "\r\n21,"};
    static const char *const ends[3] = {",0.01,0.5\r\n", ",0.01,0.1\r\n", ",0.01,nan\r\n"};
    char *text = text_of(b.path);
    CHECK(strncmp(text, "step,loss,lr,mine\r\n", 19) == 0);
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(text, begins[i]), *end;
        if (!CHECK(at != NULL)) continue;
        at += strlen(begins[i]);
        CHECK_NEAR(test_strtod(at), loss[i], 0);
        end = at + strcspn(at, ",");
        CHECK(strncmp(end, ends[i], strlen(ends[i])) == 0);
    }
    int n = 0;
    for (const char *at = text; *at; at++) n += *at == '\n';
    CHECK_EQ(n, 4);
    free(text);
    text = text_of(json);
    snprintf(want, sizeof want, "{\"step\":7,\"loss\":");
    CHECK(strncmp(text, want, strlen(want)) == 0);
    CHECK_HAS(text, ",\"lr\":0.01,\"mine\":0.5}\n{\"step\":14,");
    CHECK_HAS(text, ",\"lr\":0.01,\"mine\":null}\n");
    free(text);
    CHECK_EQ(box_count(&b), 2);
    box_close(&b);
    mlc_tracker_free(history);
}

/* Goes on with a history that a run file has brought back: no line twice.                      */
typedef struct resumed { mlc_tracker *history; } resumed;

static mlc_status bring_back(void *user, mlc_event e, mlc_fit_state *s)
{
    mlc_named list[8];
    char      names[8][96];
    int64_t   n = 0;
    (void)e;
    mlc_tracker_state_iter it = mlc_tracker_state_iter_make(((resumed *)user)->history);
    for (; n < 8 && mlc_tracker_state_next(&it); n++) {
        snprintf(names[n], sizeof names[n], "%s", it.name);
        list[n].name = names[n];
        list[n].tensor = it.tensor;
    }
    s->step = 14;
    s->epoch = 2;
    return mlc_tracker_restore(s->history, list, n);
}

TEST(callbacks, a_training_that_goes_on_has_its_old_rows_once)
{
    scene        s = scene_make();
    box          b = box_open_fast("log.csv");
    mlc_tracker *first, *both;
    mlc_callback c;
    resumed      r;
    mlc_callback *a[] = {mlc_on_csv(s.ctx, b.path), NULL};
    CHECK_EQ(fit_with(&s, 2, 0, false, a, &first), MLC_OK);
    char *before = text_of(b.path);
    r.history = first;
    memset(&c, 0, sizeof c);
    c.user = &r;
    c.events = 1u << MLC_EVENT_TRAIN_BEGIN;
    c.on = bring_back;
    mlc_callback *list[] = {mlc_on_csv(s.ctx, b.path), mlc_callback_create(s.ctx, &c), NULL};
    CHECK_EQ(fit_with(&s, 3, 0, false, list, &both), MLC_OK);
    char *after = text_of(b.path);
    CHECK(strncmp(before, after, strlen(before)) == 0);
    CHECK(strncmp(after + strlen(before), "21,", 3) == 0);
    CHECK(strchr(after + strlen(before), '\n') == after + strlen(after) - 1);
    free(before);
    free(after);
    mlc_tracker_free(first);
    mlc_tracker_free(both);
    box_close(&b);
}

TEST(callbacks, a_log_that_cannot_be_written_ends_the_training)
{
    const box     b = box_open_fast("log.csv");
    scene         s = scene_make();
    mlc_callback *list[] = {mlc_on_csv(s.ctx, b.dir), NULL};           /* a folder             */
    CHECK_EQ(fit_with(&s, 3, 0, false, list, NULL), MLC_ERR_IO);
    CHECK_HAS(mlc_error(s.ctx), b.dir);
    CHECK_EQ(mlc_optim_steps(s.opt), BATCHES);
    mlc_error_clear(s.ctx);
    box_close(&b);
}

TEST(callbacks, a_folder_that_is_not_there_is_an_error_before_the_first_batch)
{
    scene               s = scene_make();
    const char         *path = "/nowhere/file";
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make(path);
    mlc_callback *all[] = {mlc_on_csv(s.ctx, path), mlc_on_json(s.ctx, path),
                           mlc_on_histograms(s.ctx, path, 1), mlc_on_checkpoint(s.ctx, &d),
                           mlc_on_signal(s.ctx, path)};
    const char   *names[] = {"on_csv", "on_json", "on_histograms", "on_checkpoint", "on_signal"};
    for (int i = 0; i < 5; i++) {
        char          want[100];
        mlc_callback *list[] = {all[i], NULL};
        snprintf(want, sizeof want, "%s: there is no folder for '/nowhere/file'; make it before "
                 "the training begins", names[i]);
        CHECK_EQ(fit_with(&s, 3, 0, false, list, NULL), MLC_ERR_IO);
        CHECK_STR(mlc_error(s.ctx), want);
        mlc_error_clear(s.ctx);
    }
    CHECK_EQ(mlc_optim_steps(s.opt), 0);
}

/* ---- decided by values of the history -------------------------------------------------------- */

/* Hash of the weights after each epoch. */
typedef struct hashes { uint64_t at[32]; int n; } hashes;

static mlc_status hash_weights(void *user, mlc_event e, mlc_fit_state *s)
{
    hashes *h = (hashes *)user;
    (void)e;
    h->at[h->n++] = hash_net(0, s->net);
    return MLC_OK;
}

static mlc_callback *hashes_new(mlc_ctx *ctx, hashes *h, uint32_t events)
{
    mlc_callback c;
    memset(&c, 0, sizeof c);
    memset(h, 0, sizeof *h);
    c.user = h;
    c.events = events;
    c.on = hash_weights;
    return mlc_callback_create(ctx, &c);
}

/* The value fed at an epoch's begin is of the row at its end.                                  */
static void stops_after(const double *values, int n, bool higher, double least, int epochs,
                        int best)
{
    scene               s = scene_make();
    feeder              f = {values, n, 0, "mine", higher};
    hashes              h;
    mlc_early_stop_desc d = mlc_early_stop_desc_make();
    d.name = "mine";
    d.higher = higher;
    d.patience = 2;
    d.least = least;
    mlc_callback *list[] = {feeder_new(s.ctx, &f),
                            hashes_new(s.ctx, &h, 1u << MLC_EVENT_EPOCH_END),
                            mlc_on_early_stop(s.ctx, &d), NULL};
    CHECK_EQ(fit_with(&s, n, 0, false, list, NULL), MLC_OK);
    CHECK_EQ(h.n, epochs);
    CHECK(hash_net(0, s.net) == h.at[best]);
    for (int i = 0; i < h.n; i++) if (i != best) CHECK(h.at[i] != h.at[best]);
    CHECK_OK(s.ctx);
}

TEST(callbacks, early_stopping_counts_rows_that_are_no_better_and_restores_the_best)
{
    static const double falls[] = {3, 2, 2.5, 1, 1, 1.5, 0, 0}, rises[] = {1, 3, 2, 3.05, 9, 9};
    static const double none[] = {2, (double)NAN, (double)NAN, 1};
    static const double better[] = {4, 3, 2, 1};
    stops_after(falls, 8, false, 0, 6, 3);
    stops_after(rises, 6, true, 0.1, 4, 1);
    stops_after(rises, 6, true, 0, 6, 4);
    stops_after(none, 4, false, 0, 3, 0);
    stops_after(better, 4, false, 0, 4, 3);
}

TEST(callbacks, early_stopping_has_all_that_a_run_file_keeps_and_may_keep_the_last_weights)
{
    static const double values[] = {1, 2, 3, 4};
    scene               s = scene_make();
    feeder              f = {values, 4, 0, "mine", false};
    hashes              h;
    mlc_early_stop_desc d = mlc_early_stop_desc_make();
    d.name = "mine";
    d.patience = 2;
    mlc_callback *c = mlc_on_early_stop(s.ctx, &d);
    CHECK_EQ(c->n_parts, 1);
    CHECK_STR(c->parts[0].name, "early_stop.mine");
    mlc_callback_free(s.ctx, c);
    d.restore = false;
    mlc_callback *list[] = {feeder_new(s.ctx, &f),
                            hashes_new(s.ctx, &h, 1u << MLC_EVENT_EPOCH_END),
                            mlc_on_early_stop(s.ctx, &d), NULL};
    CHECK_EQ(fit_with(&s, 4, 0, false, list, NULL), MLC_OK);
    CHECK_EQ(h.n, 3);
    CHECK(hash_net(0, s.net) == h.at[2]);
    d = mlc_early_stop_desc_make();
    mlc_callback *missing[] = {mlc_on_early_stop(s.ctx, &d), NULL};
    CHECK_EQ(fit_with(&s, 1, 0, false, missing, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(s.ctx), "the history has no 'val_loss'");
    mlc_error_clear(s.ctx);
}

/* Early stopping sees each validation once; one at the last step of an epoch is not made twice. */
TEST(callbacks, validation_comes_every_so_many_steps)
{
    for (int every = 2; every <= BATCHES; every += BATCHES - 2) {
        scene         s = scene_make();
        mlc_tracker  *history;
        hashes        h;
        const double *steps, *values;
        mlc_callback *list[] = {mlc_on_validate(s.ctx, every),
                                hashes_new(s.ctx, &h, 1u << MLC_EVENT_VALIDATION_END), NULL};
        CHECK_EQ(fit_with(&s, 2, 0, true, list, &history), MLC_OK);
        const int64_t n = mlc_tracker_history(history, "val_loss", &steps, &values);
        CHECK_EQ(n, every == 2 ? 8 : 2);
        CHECK_EQ(h.n, n);
        for (int64_t i = 0; i < n; i++) CHECK(values[i] == values[i]);
        if (every == 2) CHECK(steps[0] == 2 && steps[2] == 6 && steps[3] == 7 && steps[4] == 8);
        mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
        double       loss;
        CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss), MLC_OK);
        CHECK_NEAR(values[n - 1], loss, 0);
        mlc_tracker_free(history);
        CHECK_OK(s.ctx);
    }
}

TEST(callbacks, a_plateau_cuts_the_rate)
{
    static const double values[] = {3, 3, 3, 2, 3};
    scene       s = scene_make();
    feeder      f = {values, 5, 0, "mine", false};
    mlc_plateau p = mlc_plateau_make();
    mlc_tracker *history;
    const double *lr;
    p.patience = 1;
    p.factor = 0.5;
    mlc_callback *list[] = {feeder_new(s.ctx, &f), mlc_on_plateau(s.ctx, "mine", &p), NULL};
    CHECK(list[1]->n_parts == 2 && list[1]->parts[0].data == (void *)&p.best);
    CHECK_EQ(fit_with(&s, 5, 0, false, list, &history), MLC_OK);
    mlc_tracker_history(history, "lr", NULL, &lr);
    CHECK_NEAR(lr[2], 0.01, 1e-12);
    CHECK_NEAR(lr[3], 0.005, 1e-12);
    CHECK_EQ(p.cuts, 1);
    CHECK_NEAR(p.best, 2, 0);
    mlc_tracker_free(history);
}

/* Values rise all the time: the last are the best, and no rate is cut. */
TEST(callbacks, whether_larger_values_are_better_comes_from_the_history)
{
    static const double values[] = {1, 2, 3, 4, 5, 6};
    scene               s = scene_make();
    feeder              f = {values, 6, 0, "mine", true};
    hashes              h;
    mlc_plateau         p = mlc_plateau_make();
    mlc_early_stop_desc d = mlc_early_stop_desc_make();
    p.patience = 1;
    d.name = "mine";
    d.patience = 2;
    mlc_callback *list[] = {feeder_new(s.ctx, &f),
                            hashes_new(s.ctx, &h, 1u << MLC_EVENT_EPOCH_END),
                            mlc_on_early_stop(s.ctx, &d), mlc_on_plateau(s.ctx, "mine", &p), NULL};
    CHECK_EQ(fit_with(&s, 6, 0, false, list, NULL), MLC_OK);
    CHECK_EQ(h.n, 6);
    CHECK(hash_net(0, s.net) == h.at[5]);
    CHECK_EQ(p.cuts, 0);
    CHECK(p.best == 6 && !p.max);
}

TEST(callbacks, what_says_that_a_larger_loss_is_better_is_refused_when_the_training_begins)
{
    const box           b = box_open("net");
    scene               s = scene_make();
    mlc_plateau         p = mlc_plateau_make();
    mlc_early_stop_desc e = mlc_early_stop_desc_make();
    mlc_checkpoint_desc c = mlc_checkpoint_desc_make(b.path);
    p.max = e.higher = c.higher = true;
    c.best = "val_loss";
    for (int k = 0; k < 3; k++) {
        mlc_callback *list[] = {k == 0 ? mlc_on_early_stop(s.ctx, &e)
                              : k == 1 ? mlc_on_checkpoint(s.ctx, &c)
                                       : mlc_on_plateau(s.ctx, "val_loss", &p), NULL};
        CHECK_EQ(fit_with(&s, 1, 0, true, list, NULL), MLC_ERR_ARG);
        CHECK_ERROR(s.ctx, MLC_ERR_ARG, k == 0 ? "on_early_stop: larger values of 'val_loss' are "
                                      : k == 1 ? "on_checkpoint: larger values of 'val_loss' are "
                                               : "on_plateau: larger values of 'val_loss' are ");
    }
    box_close(&b);
}

/* The same bits as a training without it, and values of the average.                           */
TEST(callbacks, an_average_takes_the_place_of_the_weights_in_validations)
{
    scene        s = scene_make(), plain = scene_make();
    mlc_average *ema = mlc_ema(s.opt, 0.9);
    mlc_tracker *history;
    double       loss;
    mlc_callback *list[] = {mlc_on_average(s.ctx, ema), NULL}, *none[] = {NULL};
    mlc_seed(s.ctx, 5);
    mlc_seed(plain.ctx, 5);
    CHECK_EQ(fit_with(&s, 2, 0, true, list, &history), MLC_OK);
    CHECK_EQ(fit_with(&plain, 2, 0, true, none, NULL), MLC_OK);
    CHECK(hash_net(0, s.net) == hash_net(0, plain.net));
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    CHECK_EQ(mlc_average_swap(ema, true), MLC_OK);
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss), MLC_OK);
    CHECK_NEAR(mlc_tracker_last(history, "val_loss"), loss, 0);
    mlc_tracker_free(history);
}

TEST(callbacks, weights_are_back_when_a_validation_of_the_average_fails)
{
    scene         s = scene_make();
    hashes        h;
    double        bad[ROWS] = {0};
    mlc_callback *list[] = {hashes_new(s.ctx, &h, 1u << MLC_EVENT_STEP_END),
                            mlc_on_average(s.ctx, mlc_ema(s.opt, 0.9)), NULL};
    bad[ROWS - 1] = 7;
    mlc_loader_desc d = mlc_loader_desc_make(s.x, test_tensor(s.ctx, MLC_I64, mlc_dims1(ROWS), bad),
                                             BATCH);
    s.held = mlc_loader_create(s.ctx, &d);
    CHECK_EQ(fit_with(&s, 2, 0, true, list, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(s.ctx), "label");
    mlc_error_clear(s.ctx);
    CHECK_EQ(h.n, BATCHES);
    CHECK(hash_net(0, s.net) == h.at[BATCHES - 1]);
}

/* ---- gradients ------------------------------------------------------------------------------- */

TEST(callbacks, gradients_that_vanish_or_explode_are_named)
{
    static sink out;
    for (int kind = 0; kind < 2; kind++) {
        scene              s = scene_make();
        mlc_gradients_desc d = mlc_gradients_desc_make();
        d.every = 2;
        d.write = collect;
        d.user = &out;
        d.low = 1e-6;
        d.high = 100;
        out.n = 0;
        out.text[0] = 0;
        /* Weights of the second layer pass gradients on to the first. */
        mlc_no_grad_begin(s.ctx);
        mlc_mul_scalar_(weight_of(&s), kind ? 1e6 : 1e-9);
        mlc_no_grad_end(s.ctx);
        mlc_optim_set_lr(s.opt, 1e-15);
        mlc_callback *list[] = {mlc_on_gradients(s.ctx, &d), NULL};
        CHECK_EQ(fit_with(&s, 1, 3, false, list, NULL), MLC_OK);
        CHECK_HAS(out.text, kind ? "step 0: gradient of 0.weight explodes: "
                                 : "step 0: gradient of 0.weight vanishes: ");
        CHECK_HAS(out.text, "step 2: ");
        CHECK(strstr(out.text, "step 1: ") == NULL && strstr(out.text, "of 3.bias ") == NULL);
        CHECK_OK(s.ctx);
    }
}

TEST(callbacks, a_table_of_gradients_comes_where_it_is_asked_for)
{
    static sink        out;
    scene              s = scene_make();
    mlc_gradients_desc d = mlc_gradients_desc_make();
    out.n = 0;
    out.text[0] = 0;
    d.write = collect;
    d.user = &out;
    mlc_callback *quiet[] = {mlc_on_gradients(s.ctx, &d), NULL};
    CHECK_EQ(fit_with(&s, 1, 1, false, quiet, NULL), MLC_OK);
    CHECK_EQ(out.n, 0);
    d.table = true;
    mlc_callback *list[] = {mlc_on_gradients(s.ctx, &d), NULL};
    CHECK_EQ(fit_with(&s, 1, 1, false, list, NULL), MLC_OK);
    CHECK_HAS(out.text, "Gradient of");
    CHECK_HAS(out.text, "3.weight");
}

/* The text with the decimal points of the locale, for sscanf.                                   */
static void to_locale(char *text)
{
    const char point = *localeconv()->decimal_point;
    for (; *text; text++)
        if (*text == '.') *text = point;
}

static double bins_of(const char *line, const char *key, double *largest)
{
    const char *at = strstr(line, key);
    double      sum = 0;
    *largest = 0;
    if (!CHECK(at != NULL)) return 0;
    at += strlen(key);
    for (int k = 0; k < MLC_GRAD_BINS; k++) {
        char *end;
        const double v = (double)strtol(at, &end, 10);
        if (v > 0) *largest = k;
        sum += v;
        CHECK_EQ(*end, k < MLC_GRAD_BINS - 1 ? ',' : ']');
        at = end + 1;
    }
    return sum;
}

TEST(callbacks, histograms_have_each_element_in_its_bin)
{
    scene  s = scene_make();
    box    b = box_open_fast("bins.json");
    double top;
    mlc_no_grad_begin(s.ctx);
    mlc_fill_(weight_of(&s), -0.75);   /* in [2^-1, 2^0): bin 29                               */
    mlc_no_grad_end(s.ctx);
    mlc_callback *list[] = {mlc_on_histograms(s.ctx, b.path, 3), NULL};
    CHECK_EQ(fit_with(&s, 1, 4, false, list, NULL), MLC_OK);
    char *text = text_of(b.path);
    const char *begin = "{\"step\":0,\"name\":\"0.weight\",\"gradient\":[";
    CHECK(strncmp(text, begin, strlen(begin)) == 0);
    CHECK_NEAR(bins_of(text, "\"weight\":[", &top), 80, 0);
    char *line = strstr(text, "\"3.weight\"");
    CHECK_NEAR(bins_of(line, "\"weight\":[", &top), 48, 0);
    CHECK_NEAR(top, 29, 0);
    CHECK(bins_of(line, "\"gradient\":[", &top) > 0);
    CHECK_HAS(text, "{\"step\":3,\"name\":\"3.bias\"");
    CHECK(strstr(text, "\"step\":1") == NULL);
    free(text);
    box_close(&b);
}

/* ---- a loss that is not finite --------------------------------------------------------------- */

static mlc_tensor *log_forward(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    int *calls = (int *)user;
    *output = mlc_forward(net, b->x);
    mlc_tensor *loss = mlc_cross_entropy(*output, b->y);
    return ++*calls > 3 ? mlc_add(loss, mlc_log(mlc_sub(loss, mlc_add_scalar(loss, 1)))) : loss;
}

static mlc_status nan_with(scene *s, mlc_fit_forward_fn forward, void *user)
{
    mlc_callback *c = mlc_on_nan(s->ctx, 1);
    mlc_fit_desc  d = mlc_fit_desc_make(mlc_cross_entropy);
    d.forward = forward;
    d.user = user;
    d.callbacks = &c;
    d.n_callbacks = 1;
    const mlc_status st = mlc_fit(s->net, s->opt, s->train, &d, NULL);
    mlc_callback_free(s->ctx, c);
    return st;
}

TEST(callbacks, a_loss_that_is_not_finite_is_stopped_and_its_cause_is_named)
{
    scene  s = scene_make();
    int    calls = 0;
    double x[ROWS * FIELDS] = {0};
    CHECK_EQ(nan_with(&s, log_forward, &calls), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(s.ctx), "on_nan: the loss is nan at batch 3 of epoch 0, step 3: log");
    CHECK_EQ(mlc_optim_steps(s.opt), 3);
    mlc_error_clear(s.ctx);
    mlc_tensor *w = weight_of(&s);
    mlc_optim_zero_grad(s.opt);
    mlc_no_grad_begin(s.ctx);
    mlc_fill_(mlc_slice(w, 0, 1, 2, 1), (double)NAN);
    mlc_no_grad_end(s.ctx);
    CHECK_EQ(nan_with(&s, NULL, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(s.ctx), "parameter 3.weight has a NaN or Inf at element 16 of [3,16]");
    mlc_error_clear(s.ctx);
    s = scene_make();
    x[7] = (double)INFINITY;
    mlc_loader_desc l = mlc_loader_desc_make(test_tensor(s.ctx, MLC_F32, mlc_dims2(ROWS, FIELDS),
                                                         x), s.y, BATCH);
    s.train = mlc_loader_create(s.ctx, &l);
    CHECK_EQ(nan_with(&s, NULL, NULL), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(s.ctx), "batch 0 of epoch 0, step 0: the batch's x has a NaN or Inf at "
                                "element 7 of [8,5]");
    mlc_error_clear(s.ctx);
    CHECK_EQ(nan_with(&s, log_forward, &calls), MLC_ERR_VALUE);
    mlc_error_clear(s.ctx);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void warned(void *user, mlc_log_level level, const char *text)
{
    sink *s = (sink *)user;
    if (level == MLC_LOG_WARNING) collect(s, text, strlen(text));
}

TEST(callbacks, memory_over_a_limit_is_a_warning)
{
    static sink  out;
    mlc_ctx_desc desc = test_desc();
    out.n = 0;
    out.text[0] = 0;
    desc.log = warned;
    desc.log_user = &out;
    mlc_ctx    *ctx = mlc_ctx_create(&desc);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, FIELDS, CLASSES));
    mlc_optim  *opt = mlc_adamw(net, 0.01);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(ROWS, FIELDS));
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(ROWS));
    mlc_loader *loader = mlc_loader_shuffled(ctx, x, y, BATCH);
    for (int i = 0; i < 2; i++) {
        mlc_callback *c = mlc_on_memory(ctx, i ? 1000 : (int64_t)1 << 40);
        mlc_fit_desc  d = mlc_fit_desc_make(mlc_cross_entropy);
        d.callbacks = &c;
        d.n_callbacks = 1;
        CHECK_EQ(mlc_fit(net, opt, loader, &d, NULL), MLC_OK);
        mlc_callback_free(ctx, c);
        if (i == 0) CHECK_EQ(out.n, 0);
    }
    CHECK_HAS(out.text, " have been in use, over 1000 B: parameters ");
    CHECK(strstr(strstr(out.text, "on_memory") + 1, "on_memory") == NULL);
    mlc_ctx_free(ctx);
}

TEST(callbacks, a_time_limit_stops_after_a_batch)
{
    scene         s = scene_make();
    mlc_callback *list[] = {mlc_on_time_limit(s.ctx, 1e-9), NULL};
    CHECK_EQ(fit_with(&s, 3, 0, false, list, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_steps(s.opt), 1);
    mlc_callback *long_one[] = {mlc_on_time_limit(s.ctx, 1e6), NULL};
    CHECK_EQ(fit_with(&s, 3, 0, false, long_one, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_steps(s.opt), 3 * BATCHES);         /* the first epoch had begun        */
}

/* ---- profiles -------------------------------------------------------------------------------- */

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) n++;
    return n;
}

static double number_after(const char *text, const char *part)
{
    const char *at = strstr(text, part);
    return CHECK(at != NULL) ? test_strtod(at + strlen(part)) : 0;
}

TEST(callbacks, phases_of_a_profile_are_the_whole)
{
    static const char *const phases[] = {"\ndata ", "\nforward ", "\nbackward ", "\nstep ",
                                         "\nvalidation ", "\ncallbacks "};
    static sink      out;
    scene            s = scene_make();
    mlc_profile_desc d = mlc_profile_desc_make();
    double           sum = 0;
    out.n = 0;
    d.wait = 1;
    d.warmup = 1;
    d.active = 3;
    d.repeat = 2;
    d.write = collect;
    d.user = &out;
    mlc_callback *list[] = {mlc_on_profile(s.ctx, &d), mlc_on_validate(s.ctx, 2), NULL};
    const bool own = test_clock_begin(0.25);
    CHECK_EQ(fit_with(&s, 2, 0, true, list, NULL), MLC_OK);
    test_clock_end();
    CHECK_EQ(count_of(out.text, "Phase"), 2);
    CHECK_EQ(count_of(out.text, "\n3 batches"), 2);
    for (int i = 0; i < 6; i++) {
        const double ms = number_after(out.text, phases[i]);
        CHECK(own ? ms >= 250 && fmod(ms, 250) == 0 : ms >= 0);
        sum += ms;
    }
    const double whole = number_after(out.text, "\n3 batches");
    CHECK_NEAR(sum, whole, 2e-3 * whole);
    CHECK_OK(s.ctx);
}

/* Of 3 batches of 8: linear 5 to 16 and 16 to 3, that is 2 (80 + 48) FLOP a row, and one for each
 * of the 19 numbers; the input of the network asks for no gradient.                            */
TEST(callbacks, operations_of_a_profile_have_their_calls_and_flop)
{
    static sink      out;
    scene            s = scene_make();
    mlc_profile_desc d = mlc_profile_desc_make();
    char             line[200];
    out.n = 0;
    d.wait = 0;
    d.warmup = 0;
    d.active = 3;
    d.flops = 1e18;
    d.write = collect;
    d.user = &out;
    mlc_callback *list[] = {mlc_on_profile(s.ctx, &d), NULL};
    CHECK_EQ(fit_with(&s, 1, 0, true, list, NULL), MLC_OK);
    CHECK_EQ(count_of(out.text, "Phase"), 1);
    for (int back = 0; back < 2; back++) {
        const char *at = strstr(out.text, back ? "\nlinear               backward"
                                               : "\nlinear               forward");
        int    calls;
        double us, share, flop, bytes;
        if (!CHECK(at != NULL)) continue;
        snprintf(line, sizeof line, "%.150s", at + 1);
        to_locale(line);
        CHECK_EQ(sscanf(line, "linear %*s %d %lf %lf %% %lf %lf", &calls, &us, &share, &flop,
                        &bytes), 5);
        CHECK_EQ(calls, 6);
        CHECK(us > 0 && share > 0 && share < 100 && bytes > 0);
        CHECK_NEAR(flop, 3 * 8 * (back ? 2 * 80 + 4 * 48 : 2 * 80 + 2 * 48), 10);
        CHECK_HAS(line, " %\n");
    }
    CHECK_HAS(out.text, "\ncross_entropy        backward ");
}

/* Hooks of a training that does not begin are gone with the callback.                          */
TEST(callbacks, a_profile_of_a_training_that_does_not_begin_leaves_no_hook)
{
    scene            s = scene_make();
    mlc_profile_desc d = mlc_profile_desc_make();
    d.wait = 0;
    mlc_callback *list[] = {mlc_on_profile(s.ctx, &d), mlc_on_early_stop(s.ctx, NULL), NULL};
    CHECK_EQ(fit_with(&s, 1, 0, false, list, NULL), MLC_ERR_ARG);
    mlc_error_clear(s.ctx);
    CHECK(mlc_relu(s.x) != NULL);
    CHECK_OK(s.ctx);
}

TEST(callbacks, a_trace_has_a_line_for_each_operation)
{
    static sink out;
    scene       s = scene_make();
    const char *old = getenv("MLC_LOG");
    out.n = 0;
    out.text[0] = 0;
    if (!old) CHECK_EQ(mlc_trace(s.ctx, false, collect, &out), 0);
    const int32_t id = mlc_trace(s.ctx, true, collect, &out);
    CHECK(id > 0);
    mlc_tensor *loss = mlc_cross_entropy(mlc_forward(s.net, mlc_rows(s.x, 0, 8)),
                                         mlc_rows(s.y, 0, 8));
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    CHECK_EQ(mlc_hooks_remove(s.ctx, id), MLC_OK);
    const size_t n = out.n;
    mlc_relu(s.x);
    CHECK_EQ(out.n, n);
    CHECK_HAS(out.text, "linear [8,5] [16,5] [16] -> [8,16] ");
    CHECK_HAS(out.text, " us 3\n");
    CHECK_HAS(out.text, "linear backward [8,16] [3,16] [3] <- [8,3] ");
    if (!old) {
        setenv("MLC_LOG", "trace", 1);
        CHECK(mlc_trace(s.ctx, false, collect, &out) > 0);
        unsetenv("MLC_LOG");
    }
}

/* ---- timers ---------------------------------------------------------------------------------- */

TEST(callbacks, a_timer_has_mean_deviation_and_rate)
{
    static sink out;
    mlc_ctx    *ctx = test_ctx();
    mlc_timer   t = mlc_timer_make("batch");
    CHECK(isnan(mlc_timer_mean(&t)) && isnan(mlc_timer_deviation(&t)) && isnan(mlc_timer_rate(&t)));
    const bool  own = test_clock_begin(0);
    for (int i = 1; i < 4; i++) {
        mlc_timer_begin(&t);
        test_clock_pass(i);
        mlc_timer_end(&t, 4);
    }
    test_clock_end();
    if (own) {
        CHECK_NEAR(mlc_timer_mean(&t), 2, 0);
        CHECK_NEAR(mlc_timer_deviation(&t), 1, 0);
        CHECK_NEAR(mlc_timer_rate(&t), 2, 0);
    }
    CHECK_EQ(t.count, 3);
    mlc_timer_begin(NULL);
    mlc_timer_end(NULL, 1);
    out.n = 0;
    CHECK_EQ(mlc_timer_print(ctx, &t, 1, collect, &out), MLC_OK);
    CHECK_HAS(out.text, "batch                                   3 ");
    CHECK_EQ(mlc_timer_print(ctx, NULL, 1, collect, &out), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    t.count = INT64_MAX;               /* it ends there                                        */
    mlc_timer_begin(&t);
    mlc_timer_end(&t, 1);
    CHECK_EQ(t.count, INT64_MAX);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(mlc_ctx *ctx, const mlc_callback *c, const char *text)
{
    CHECK(c == NULL);
    CHECK_HAS(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(callbacks, nonsense_is_refused_by_name)
{
    mlc_ctx            *ctx = test_ctx();
    mlc_early_stop_desc e = mlc_early_stop_desc_make();
    mlc_gradients_desc  g = mlc_gradients_desc_make();
    mlc_profile_desc    p = mlc_profile_desc_make();
    e.patience = 0;
    g.high = -1;
    p.active = 0;
    refused(ctx, mlc_on_csv(ctx, NULL), "on_csv: the path");
    refused(ctx, mlc_on_json(ctx, ""), "on_json: the path");
    refused(ctx, mlc_on_early_stop(ctx, &e), "patience");
    e.name = "";
    refused(ctx, mlc_on_early_stop(ctx, &e), "name");
    refused(ctx, mlc_on_validate(ctx, 0), "every");
    refused(ctx, mlc_on_plateau(ctx, "loss", NULL), "plateau");
    refused(ctx, mlc_on_average(ctx, NULL), "average");
    refused(ctx, mlc_on_gradients(ctx, &g), "high");
    refused(ctx, mlc_on_histograms(ctx, "x", 0), "every");
    refused(ctx, mlc_on_nan(ctx, 0), "every");
    refused(ctx, mlc_on_memory(ctx, 0), "limit");
    refused(ctx, mlc_on_time_limit(ctx, 0), "limit");
    refused(ctx, mlc_on_profile(ctx, &p), "active");
    CHECK(mlc_on_progress(NULL, NULL, NULL) == NULL && mlc_on_nan(NULL, 0) == NULL);
}
