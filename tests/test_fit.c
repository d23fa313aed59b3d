/* test_fit.c -- tests of section IMPL.TRAIN.FIT: the training loop against one by hand, the order
 * of events, validation and history, evaluation, predictions */
#define _DEFAULT_SOURCE                /* files.h */
#define _XOPEN_SOURCE 700              /* mkdtemp, under -std=c11 */
#include "files.h"
#include "mlc_test.h"
#include "watch.h"

enum { ROWS = 50, BATCH = 8, BATCHES = 7, FIELDS = 5, CLASSES = 3 };

typedef struct scene {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    mlc_tensor *x, *y;
    mlc_loader *train, *held;
} scene;

static scene scene_in(mlc_ctx *ctx)
{
    scene  s;
    double labels[ROWS];
    s.ctx = ctx;
    for (int i = 0; i < ROWS; i++) labels[i] = (double)(i * i % 7 % CLASSES);
    mlc_seed(ctx, 3);
    s.net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, FIELDS, 16), mlc_nn_relu(ctx),
                           mlc_nn_dropout(ctx, 0.2), mlc_nn_linear(ctx, 16, CLASSES));
    s.opt = mlc_adamw(s.net, 0.01);
    s.x = test_rand(ctx, MLC_F32, mlc_dims2(ROWS, FIELDS), 1, -1, 1);
    s.y = test_tensor(ctx, MLC_I64, mlc_dims1(ROWS), labels);
    s.train = mlc_loader_shuffled(ctx, s.x, s.y, BATCH);
    mlc_loader_desc d = mlc_loader_desc_make(s.x, s.y, 20);
    s.held = mlc_loader_create(ctx, &d);
    return s;
}

static scene scene_make(void) { return scene_in(test_ctx()); }

/* ---- against the loop by hand ---------------------------------------------------------------- */

/* Returns the mean loss of the last epoch. */
static double train_by_hand(const scene *s, int epochs, bool with_loss)
{
    double    mean = 0;
    mlc_batch b;
    mlc_seed(s->ctx, 11);
    for (int e = 0; e < epochs; e++) {
        double sum = 0;
        while (mlc_loader_next(s->train, &b)) {
            mlc_scope_begin(s->ctx);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(s->net, b.x), b.y);
            if (with_loss) sum += mlc_item(loss) * (double)b.n;
            CHECK_EQ(mlc_optim_minimize(s->opt, loss), MLC_OK);
            CHECK_EQ(mlc_scope_end(s->ctx), MLC_OK);
        }
        CHECK_EQ(mlc_optim_flush(s->opt), MLC_OK);
        mean = sum / ROWS;
    }
    return mean;
}

/* Whatever the optimizer was told. */
TEST(fit, trains_as_the_loop_by_hand_does)
{
    for (int kind = 0; kind < 4; kind++) {
        scene        hand = scene_make(), fit = scene_make(), *both[2] = {&hand, &fit};
        mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
        mlc_tracker *history;
        mlc_sched    sched = mlc_sched_cosine(20, 0.1);
        for (int i = 0; i < 2; i++) {
            mlc_clip_desc clip = mlc_clip_desc_make();
            clip.norm = 0.1;
            if (kind == 1) mlc_optim_accumulate(both[i]->opt, 3);
            if (kind == 2) mlc_optim_scaler(both[i]->opt, NULL);
            if (kind == 2) mlc_optim_clip(both[i]->opt, &clip);
            if (kind == 3) mlc_optim_schedule(both[i]->opt, MLC_KNOB_LR, &sched);
        }
        d.epochs = 3;
        d.has_seed = true;
        d.seed = 11;
        const double mean = train_by_hand(&hand, 3, true);
        CHECK_EQ(mlc_fit(fit.net, fit.opt, fit.train, &d, &history), MLC_OK);
        CHECK(hash_net(0, hand.net) == hash_net(0, fit.net));
        CHECK_EQ(mlc_optim_steps(fit.opt), mlc_optim_steps(hand.opt));
        CHECK_EQ(mlc_tracker_history(history, "loss", NULL, NULL), 3);
        CHECK_NEAR(mlc_tracker_last(history, "loss"), mean, 1e-12);
        CHECK_NEAR(mlc_tracker_last(history, "lr"), mlc_optim_lr(fit.opt), 0);
        mlc_tracker_free(history);
        CHECK_OK(fit.ctx);
    }
}

TEST(fit, an_optimizer_that_makes_the_loss_again_counts_it_once)
{
    scene        s = scene_make();
    mlc_metric  *m = mlc_metric_accuracy(s.ctx);
    const mlc_fit_metric metrics[] = {{"accuracy", m, true}};
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_tracker *history;
    d.metrics = metrics;
    d.n_metrics = 1;
    CHECK(!mlc_optim_needs_loss(s.opt));
    CHECK_EQ(mlc_optim_sam(s.opt, 0.05, false), MLC_OK);
    CHECK(mlc_optim_needs_loss(s.opt));
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, &history), MLC_OK);
    CHECK_EQ(mlc_optim_steps(s.opt), BATCHES);
    CHECK(mlc_tracker_last(history, "loss") > 0.5 && mlc_tracker_last(history, "loss") < 2);
    const double share = mlc_tracker_last(history, "accuracy") * ROWS;
    CHECK_NEAR(share, (double)(int)(share + 0.5), 1e-9);
    mlc_tracker_free(history);
}

/* ---- events ---------------------------------------------------------------------------------- */

typedef struct diary {
    char       text[512];
    int        n, seen[MLC_EVENT_COUNT];
    mlc_event  at;                     /* what happens at event number .. of it                */
    int        when;
    bool       stop, skip;
    mlc_status fail;
} diary;

static mlc_status write_diary(void *user, mlc_event e, mlc_fit_state *s)
{
    static const char letters[] = "TEBsSbvVet";
    diary *d = (diary *)user;
    if (d->n < 510) d->text[d->n++] = letters[e];
    if (e < MLC_EVENT_BATCH_BEGIN || e > MLC_EVENT_BATCH_END) CHECK(!s->data && !s->loss);
    if (e == MLC_EVENT_STEP_BEGIN) CHECK(s->data && s->loss && s->output);
    if (e == MLC_EVENT_BATCH_BEGIN) CHECK(s->data && !s->loss);
    if (d->at != e || d->seen[e]++ != d->when) return MLC_OK;
    s->stop = s->stop || d->stop;
    s->skip = s->skip || d->skip;
    return d->fail ? mlc_raise(s->ctx, d->fail, "diary: full") : MLC_OK;
}

static mlc_callback diary_callback(diary *d)
{
    mlc_callback c;
    memset(&c, 0, sizeof c);
    c.name = "diary";
    c.user = d;
    c.events = (1u << MLC_EVENT_COUNT) - 1;
    c.on = write_diary;
    return c;
}

static mlc_status fit_with(scene *s, diary *d, bool validates, int64_t steps)
{
    mlc_fit_desc  desc = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_callback  c = diary_callback(d);
    mlc_callback *list[] = {&c};
    desc.epochs = 2;
    desc.steps = steps;
    desc.validation = validates ? s->held : NULL;
    desc.callbacks = list;
    desc.n_callbacks = 1;
    return mlc_fit(s->net, s->opt, s->train, &desc, NULL);
}

TEST(fit, events_come_in_their_order)
{
    scene s = scene_make();
    diary d = {{0}, 0, {0}, MLC_EVENT_COUNT, 0, false, false, MLC_OK};
    CHECK_EQ(fit_with(&s, &d, true, 0), MLC_OK);
    CHECK_STR(d.text, "TE" "BsSb" "BsSb" "BsSb" "BsSb" "BsSb" "BsSb" "BsSb" "vVe"
                      "E" "BsSb" "BsSb" "BsSb" "BsSb" "BsSb" "BsSb" "BsSb" "vVet");
}

TEST(fit, a_callback_stops_skips_and_fails)
{
    static const struct {
        diary d; int64_t steps; const char *text; int64_t updates; mlc_status st;
    } cases[] = {
        {{{0}, 0, {0}, MLC_EVENT_BATCH_END, 1, true, false, MLC_OK}, 0, "TEBsSbBsSbt", 2, MLC_OK},
        {{{0}, 0, {0}, MLC_EVENT_EPOCH_END, 0, true, false, MLC_OK}, 0,
         "TEBsSbBsSbBsSbBsSbBsSbBsSbBsSbet", 7, MLC_OK},
        {{{0}, 0, {0}, MLC_EVENT_BATCH_BEGIN, 0, false, true, MLC_OK}, 2, "TEBbBsSbBsSbet", 2,
         MLC_OK},
        {{{0}, 0, {0}, MLC_EVENT_STEP_BEGIN, 0, false, true, MLC_OK}, 2, "TEBsbBsSbBsSbet", 2,
         MLC_OK},
        {{{0}, 0, {0}, MLC_EVENT_STEP_END, 1, false, false, MLC_ERR_VALUE}, 0, "TEBsSbBsSt", 2,
         MLC_ERR_VALUE},
        {{{0}, 0, {0}, MLC_EVENT_TRAIN_BEGIN, 0, true, false, MLC_OK}, 0, "Tt", 0, MLC_OK},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        scene s = scene_make();
        diary d = cases[i].d;
        CHECK_EQ(fit_with(&s, &d, false, cases[i].steps), cases[i].st);
        if (!CHECK_STR(d.text, cases[i].text)) printf("  case %d\n", i);
        if (cases[i].st != MLC_OK) CHECK_STR(mlc_error(s.ctx), "diary: full");
        mlc_error_clear(s.ctx);
        CHECK_EQ(mlc_optim_steps(s.opt), cases[i].updates);
    }
}

TEST(fit, collected_gradients_are_a_step_at_the_end_of_an_epoch)
{
    scene s = scene_make();
    diary d = {{0}, 0, {0}, MLC_EVENT_COUNT, 0, false, false, MLC_OK};
    CHECK_EQ(mlc_optim_accumulate(s.opt, 4), MLC_OK);
    CHECK_EQ(fit_with(&s, &d, false, 2), MLC_OK);
    CHECK_STR(d.text, "TE" "Bsb" "Bsb" "Bsb" "BsSb" "Bsb" "Bsb" "Bsb" "Set");
    CHECK_EQ(mlc_optim_steps(s.opt), 2);
    CHECK_EQ(mlc_optim_pending(s.opt), 0);
}

TEST(fit, begins_without_the_gradients_that_another_loss_has_left)
{
    scene        s[2] = {scene_make(), scene_make()};
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.has_seed = true;
    for (int i = 0; i < 2; i++) {
        mlc_scope_begin(s[i].ctx);
        if (i) CHECK_EQ(mlc_backward(mlc_sum_all(mlc_forward(s[i].net, s[i].x))), MLC_OK);
        mlc_scope_end(s[i].ctx);
        CHECK_EQ(mlc_fit(s[i].net, s[i].opt, s[i].train, &d, NULL), MLC_OK);
    }
    CHECK(hash_net(0, s[0].net) == hash_net(0, s[1].net));
}

static mlc_status skip_some(void *user, mlc_event event, mlc_fit_state *s)
{
    (void)user;
    (void)event;
    s->skip = s->batch == 1 || s->batch == 5;
    return MLC_OK;
}

TEST(fit, a_skipped_batch_takes_no_collected_gradients_with_it)
{
    for (int64_t every = 1; every <= 4; every++) {
        scene        hand = scene_make(), fit = scene_make();
        mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
        mlc_callback c, *calls[1];
        mlc_batch    b;
        memset(&c, 0, sizeof c);
        c.on = skip_some;
        c.events = 1u << MLC_EVENT_STEP_BEGIN;
        calls[0] = mlc_callback_create(fit.ctx, &c);
        d.callbacks = calls;
        d.n_callbacks = 1;
        d.has_seed = true;
        mlc_optim_accumulate(hand.opt, every);
        mlc_optim_accumulate(fit.opt, every);
        CHECK_EQ(mlc_fit(fit.net, fit.opt, fit.train, &d, NULL), MLC_OK);
        mlc_seed(hand.ctx, d.seed);
        while (mlc_loader_next(hand.train, &b)) {
            mlc_scope_begin(hand.ctx);
            mlc_tensor *loss = mlc_cross_entropy(mlc_forward(hand.net, b.x), b.y);
            if (b.index != 1 && b.index != 5) mlc_optim_minimize(hand.opt, loss);
            CHECK_EQ(mlc_scope_end(hand.ctx), MLC_OK);
        }
        CHECK_EQ(mlc_optim_flush(hand.opt), MLC_OK);
        if (!CHECK(hash_net(0, hand.net) == hash_net(0, fit.net)))
            printf("  an update of %d calls\n", (int)every);
        CHECK_EQ(mlc_optim_steps(fit.opt), mlc_optim_steps(hand.opt));
        mlc_callback_free(fit.ctx, calls[0]);
        CHECK_OK(fit.ctx);
    }
}

static mlc_status fail_second(void *user, mlc_event event, mlc_fit_state *s)
{
    (void)user;
    (void)event;
    return s->batch == 1 ? mlc_raise(s->ctx, MLC_ERR_VALUE, "no second batch") : MLC_OK;
}

/* As skipping does. */
TEST(fit, a_step_that_a_callback_fails_leaves_the_gradients_of_before)
{
    for (int collects = 0; collects < 2; collects++) {
        scene        hand = scene_make(), fit = scene_make();
        mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
        mlc_callback c, *calls[1];
        mlc_batch    b;
        memset(&c, 0, sizeof c);
        c.on = fail_second;
        c.events = 1u << MLC_EVENT_STEP_BEGIN;
        calls[0] = mlc_callback_create(fit.ctx, &c);
        d.callbacks = calls;
        d.n_callbacks = 1;
        d.has_seed = true;
        mlc_optim_accumulate(hand.opt, collects ? 3 : 1);
        mlc_optim_accumulate(fit.opt, collects ? 3 : 1);
        CHECK_EQ(mlc_fit(fit.net, fit.opt, fit.train, &d, NULL), MLC_ERR_VALUE);
        CHECK_ERROR(fit.ctx, MLC_ERR_VALUE, "no second batch");
        mlc_seed(hand.ctx, d.seed);
        CHECK(mlc_loader_next(hand.train, &b));
        mlc_scope_begin(hand.ctx);
        mlc_optim_minimize(hand.opt, mlc_cross_entropy(mlc_forward(hand.net, b.x), b.y));
        CHECK_EQ(mlc_scope_end(hand.ctx), MLC_OK);
        CHECK_EQ(mlc_optim_pending(fit.opt), collects);
        mlc_optim_step(hand.opt);
        mlc_optim_step(fit.opt);
        CHECK_EQ(mlc_optim_flush(hand.opt), MLC_OK);
        CHECK_EQ(mlc_optim_flush(fit.opt), MLC_OK);
        CHECK(hash_net(0, hand.net) == hash_net(0, fit.net));
        mlc_callback_free(fit.ctx, calls[0]);
        mlc_error_clear(hand.ctx);
        mlc_error_clear(fit.ctx);
    }
}

/* ---- validation, metrics, history ------------------------------------------------------------ */

TEST(fit, the_history_has_what_evaluation_gives)
{
    scene       s = scene_make();
    mlc_metric *accuracy = mlc_metric_accuracy(s.ctx);
    const mlc_fit_metric metrics[] = {{"accuracy", accuracy, true}};
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_tracker *history;
    const double *steps, *values;
    double        loss;
    d.epochs = 3;
    d.validation = s.held;
    d.metrics = metrics;
    d.n_metrics = 1;
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, &history), MLC_OK);
    CHECK(mlc_module_is_training(s.net));
    CHECK_EQ(mlc_tracker_history(history, "val_accuracy", &steps, &values), 3);
    for (int i = 0; i < 3; i++) CHECK_NEAR(steps[i], (i + 1) * BATCHES, 0);
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss), MLC_OK);
    CHECK_NEAR(loss, mlc_tracker_last(history, "val_loss"), 0);
    CHECK_NEAR(mlc_metric_value(accuracy), values[2], 0);
    mlc_eval_begin(s.net);
    mlc_tensor *y = mlc_forward(s.net, s.x);
    CHECK_NEAR(loss, mlc_item(mlc_cross_entropy(y, s.y)), 1e-6);
    CHECK_NEAR(mlc_accuracy(y, s.y), values[2], 1e-12);
    mlc_tensor *p = mlc_predict(s.net, s.held);
    CHECK_EQ(p->shape[0], ROWS);
    CHECK_NEAR(mlc_item(mlc_sum_all(mlc_abs(mlc_sub(p, y)))), 0, 1e-5);
    mlc_eval_end(s.net);
    mlc_tracker_free(history);
    CHECK_OK(s.ctx);
}

TEST(fit, validation_comes_every_so_many_epochs_and_last)
{
    scene        s = scene_make();
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_tracker *history;
    const double *values;
    d.epochs = 5;
    d.validation = s.held;
    d.validate_every = 3;
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, &history), MLC_OK);
    CHECK_EQ(mlc_tracker_history(history, "val_loss", NULL, &values), 5);
    for (int i = 0; i < 5; i++) CHECK_EQ(values[i] == values[i], i == 2 || i == 4);
    mlc_tracker_free(history);
}

static int times(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

/* The picture of a training of so many epochs; validated also after every so many steps, or 0. */
static void draw(char text[65536], int epochs, int64_t every, int64_t validate_every)
{
    const box     b = box_open("history.svg");
    scene         s = scene_make();
    mlc_fit_desc  d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_callback *more = every ? mlc_on_validate(s.ctx, every) : NULL;
    mlc_tracker  *history;
    const mlc_fit_metric metrics[] = {{"accuracy", mlc_metric_accuracy(s.ctx), true}};
    d.epochs = epochs;
    d.validation = s.held;
    d.validate_every = validate_every;
    d.metrics = metrics;
    d.n_metrics = 1;
    d.callbacks = &more;
    d.n_callbacks = every != 0;
    if (!every) d.callbacks = NULL;
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, &history), MLC_OK);
    CHECK_EQ(mlc_tracker_plot(history, b.path), MLC_OK);
    FILE *f = fopen(b.path, "rb");
    const size_t n = f ? fread(text, 1, 65535, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    mlc_callback_free(s.ctx, more);
    mlc_tracker_free(history);
    box_close(&b);
    CHECK_OK(s.ctx);
}

/* The picture of names that are fed in this order. */
static void draw_fed(char text[65536], const char *const *names, int n)
{
    const box    b = box_open("history.svg");
    mlc_ctx     *ctx = test_ctx();
    mlc_tracker *t = mlc_tracker_create(ctx);
    for (int step = 1; step < 4; step++) {
        for (int i = 0; i < n; i++) CHECK_EQ(mlc_tracker_feed(t, names[i], i + step), MLC_OK);
        CHECK_EQ(mlc_tracker_step(t, step), MLC_OK);
    }
    CHECK_EQ(mlc_tracker_plot(t, b.path), MLC_OK);
    FILE *f = fopen(b.path, "rb");
    const size_t got = f ? fread(text, 1, 65535, f) : 0;
    text[got] = 0;
    if (f) fclose(f);
    mlc_tracker_free(t);
    box_close(&b);
    CHECK_OK(ctx);
}

TEST(fit, the_picture_of_a_history_has_every_name_in_whatever_order_they_were_fed)
{
    static char text[65536];
    static const char *const before[] = {"val_loss", "loss"};
    static const char *const thrice[] = {"x", "val_val_x", "val_x"};
    draw_fed(text, before, 2);
    CHECK_EQ(times(text, ">step</text>"), 1);
    CHECK_EQ(times(text, ">loss</text>"), 2);          /* the title, and first in the legend   */
    CHECK_EQ(times(text, ">val_loss</text>"), 1);
    const char *own = strstr(text, ">loss</text>");
    CHECK(own && strstr(own + 1, ">loss</text>") < strstr(text, ">val_loss</text>"));
    draw_fed(text, thrice, 3);
    CHECK_EQ(times(text, ">step</text>"), 2);
    CHECK_EQ(times(text, ">x</text>"), 2);
    CHECK_EQ(times(text, ">val_x</text>"), 1);
    CHECK_EQ(times(text, ">val_val_x</text>"), 1);     /* a chart of its own                   */
}

TEST(fit, the_picture_of_a_history_has_training_and_validation_in_one_chart_by_epochs)
{
    static char text[65536];
    for (int every = 0; every < 2; every++) {
        draw(text, 4, every ? 3 : 0, 1);
        CHECK_EQ(times(text, ">epoch</text>"), 3);         /* loss, accuracy, lr               */
        CHECK_EQ(times(text, ">step</text>"), 0);
        CHECK_EQ(times(text, ">loss</text>"), 2);          /* the title, and in the legend     */
        CHECK_EQ(times(text, ">val_loss</text>"), 1);      /* in the legend alone              */
        CHECK_EQ(times(text, ">val_accuracy</text>"), 1);
        CHECK_EQ(times(text, ">lr</text>"), 1);
        CHECK_EQ(times(text, ">28</text>"), 0);            /* steps in all                     */
    }
    draw(text, 40, 0, 9);              /* 5 validations are a line, not points with gaps       */
    CHECK_EQ(times(text, ">epoch</text>"), 3);
    CHECK_EQ(times(text, "fill=\"#d55e00\""), 2 * 5);
    CHECK_EQ(times(text, "<circle cx=\"3370\""), 2);      /* epoch 40 is the end of the axis   */
}

static mlc_tensor *weighted(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    (void)user;
    *output = mlc_forward(net, b->x);
    return mlc_mul_scalar(mlc_cross_entropy(*output, b->y), 2);
}

/* A loss that is of the context that user is.                                                   */
static mlc_tensor *elsewhere(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    *output = mlc_forward(net, b->x);
    return mlc_ones(user, MLC_F32, mlc_dims0());
}

TEST(fit, a_forward_of_ones_own_and_weights_of_classes)
{
    scene  s = scene_make();
    double loss[3];
    mlc_fit_desc           d = mlc_fit_desc_make(NULL);
    mlc_cross_entropy_desc ce = mlc_cross_entropy_desc_make();
    static const double    w[CLASSES] = {1, 1, 1};
    ce.weight = test_tensor(s.ctx, MLC_F32, mlc_dims1(CLASSES), w);
    d.loss = mlc_cross_entropy;
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss[0]), MLC_OK);
    d.forward = weighted;
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss[1]), MLC_OK);
    CHECK_NEAR(loss[1], 2 * loss[0], 1e-6);
    d.forward = mlc_fit_cross_entropy;
    d.user = &ce;
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss[2]), MLC_OK);
    CHECK_NEAR(loss[2], loss[0], 1e-6);
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_steps(s.opt), BATCHES);
    CHECK_OK(s.ctx);
    mlc_ctx    *other = test_ctx();
    mlc_loader *far = mlc_loader_shuffled(other, mlc_ones(other, MLC_F32, mlc_dims2(4, 2)), NULL,
                                          2);
    CHECK_EQ(mlc_fit(s.net, s.opt, far, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "fit: the loader belongs to another context; make it in");
    CHECK_EQ(mlc_evaluate(s.net, far, &d, &loss[0]), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "evaluate: the loader belongs to another context");
    CHECK(mlc_predict(s.net, far) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "predict: the loader belongs to another context");
    d.forward = elsewhere;
    d.user = other;
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, &loss[0]), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "fit: forward made its loss in another context");
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "fit: forward made its loss in another context");
    mlc_tensor *output = NULL;
    CHECK(mlc_fit_cross_entropy(&ce, s.net, NULL, &output) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "fit_cross_entropy: b is NULL; mlc_fit gives both");
    mlc_error_clear(s.ctx);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void check_refused(scene *s, const mlc_fit_desc *d, const char *text)
{
    CHECK_EQ(mlc_fit(s->net, s->opt, s->train, d, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(s->ctx), text);
    mlc_error_clear(s->ctx);
}

/* A batch of ignored labels alone, in training and in the validation: means are those of the other
 * labels, and no callback that looks for NaN finds one. */
TEST(fit, ignored_labels_are_no_part_of_mean_losses)
{
    scene                  s = scene_make();
    mlc_cross_entropy_desc ce = mlc_cross_entropy_desc_make();
    mlc_fit_desc           d = mlc_fit_desc_make(NULL);
    mlc_callback          *calls[1] = {mlc_on_nan(s.ctx, 1)};
    mlc_tracker           *history;
    double                 labels[ROWS], loss;
    for (int i = 0; i < ROWS; i++)
        labels[i] = i == 3 || (i >= 20 && i < 40) ? -100 : (double)(i * i % 7 % CLASSES);
    mlc_tensor     *y = test_tensor(s.ctx, MLC_I64, mlc_dims1(ROWS), labels);
    mlc_loader_desc l = mlc_loader_desc_make(s.x, y, 20);
    ce.has_ignore_index = true;
    ce.ignore_index = -100;
    d.forward = mlc_fit_cross_entropy;
    d.user = &ce;
    d.validation = mlc_loader_create(s.ctx, &l);
    d.epochs = 2;
    d.callbacks = calls;
    d.n_callbacks = 1;
    l.batch = 10;
    mlc_loader *train = mlc_loader_create(s.ctx, &l);
    CHECK_EQ(mlc_fit(s.net, s.opt, train, &d, &history), MLC_OK);
    mlc_eval_begin(s.net);
    const double want = mlc_item(mlc_cross_entropy_ex(mlc_forward(s.net, s.x), y, &ce));
    mlc_eval_end(s.net);
    CHECK_NEAR(mlc_tracker_last(history, "val_loss"), want, 1e-6);
    CHECK(mlc_tracker_last(history, "loss") > 0);
    CHECK_EQ(mlc_evaluate(s.net, d.validation, &d, &loss), MLC_OK);
    CHECK_NEAR(loss, want, 1e-6);
    mlc_loader_desc none = mlc_loader_desc_make(mlc_rows(s.x, 20, 40), mlc_rows(y, 20, 40), 20);
    CHECK_EQ(mlc_evaluate(s.net, mlc_loader_create(s.ctx, &none), &d, &loss), MLC_OK);
    CHECK(isnan(loss));                /* of no label */
    mlc_tracker_free(history);
    CHECK_OK(s.ctx);
}

TEST(fit, an_optimizer_of_another_network_is_refused)
{
    scene        s = scene_make();
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_module  *other = MLC_SEQUENTIAL(s.ctx, mlc_nn_linear(s.ctx, FIELDS, CLASSES));
    s.opt = mlc_adamw(other, 0.01);
    const uint64_t before = hash_net(hash_net(HASH_SEED, s.net), other);
    check_refused(&s, &d, "fit: the optimizer updates none of the network's 4 parameters; make it");
    CHECK(hash_net(hash_net(HASH_SEED, s.net), other) == before);
    mlc_batch  b;
    mlc_budget budget = mlc_budget_make(s.net);
    CHECK(mlc_loader_next(s.train, &b));
    CHECK_EQ(mlc_budget_step(s.net, s.opt, &b, &d, &budget, NULL), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "budget_step: the optimizer updates none of the network's 4");
    CHECK(hash_net(hash_net(HASH_SEED, s.net), other) == before);
}

/* An optimizer of the last layer alone; of two networks; of a network within the one that is
 * trained, and the other way round: what it has changes, nothing else. */
TEST(fit, an_optimizer_of_some_or_more_than_the_network_s_parameters_trains_those)
{
    for (int way = 0; way < 4; way++) {
        scene        s = scene_make();
        mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
        mlc_module  *head = mlc_nn_linear(s.ctx, CLASSES, CLASSES);
        mlc_module  *all = MLC_SEQUENTIAL(s.ctx, s.net, head);
        mlc_module  *trained = way == 0 ? head : way == 1 ? all : way == 2 ? s.net : all;
        CHECK_EQ(mlc_module_build(all), MLC_OK);
        if (way == 3) CHECK_EQ(mlc_module_freeze(s.net, NULL, true), MLC_OK);
        const uint64_t of_net = hash_net(HASH_SEED, s.net), of_head = hash_net(HASH_SEED, head);
        CHECK_EQ(mlc_fit(way == 1 ? s.net : all, mlc_sgd(trained, 0.1), s.train, &d, NULL), MLC_OK);
        CHECK_EQ(hash_net(HASH_SEED, s.net) != of_net, way == 1 || way == 2);
        CHECK_EQ(hash_net(HASH_SEED, head) != of_head, way == 0 || way == 3);
        CHECK_OK(s.ctx);
    }
}

static mlc_tensor *forward_of_both(void *user, mlc_module *net, const mlc_batch *b,
                                   mlc_tensor **output)
{
    *output = mlc_forward((mlc_module *)user, mlc_forward(net, b->x));
    return mlc_cross_entropy(*output, b->y);
}

/* What forward trains is no part of the network then. */
TEST(fit, an_optimizer_of_another_network_is_fine_where_the_network_s_own_are_frozen)
{
    scene        s = scene_make();
    mlc_fit_desc d = mlc_fit_desc_make(NULL);
    mlc_module  *head = mlc_nn_linear(s.ctx, CLASSES, CLASSES);
    d.forward = forward_of_both;
    d.user = head;
    s.opt = mlc_sgd(head, 0.1);
    check_refused(&s, &d, "fit: the optimizer updates none of the network's 4 parameters");
    CHECK_EQ(mlc_module_freeze(s.net, NULL, true), MLC_OK);
    const uint64_t of_net = hash_net(HASH_SEED, s.net), of_head = hash_net(HASH_SEED, head);
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, NULL), MLC_OK);
    CHECK(hash_net(HASH_SEED, s.net) == of_net);
    CHECK(hash_net(HASH_SEED, head) != of_head);
    CHECK_OK(s.ctx);
}

/* A loader that stands at the end of an epoch has none left, which is no error. */
TEST(fit, an_epoch_without_a_batch_is_refused)
{
    scene           s = scene_make();
    mlc_fit_desc    d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_loader_desc l = mlc_loader_desc_make(s.x, s.y, ROWS + 1);
    double          loss = 7;
    mlc_tracker    *history;
    l.drop_last = true;
    mlc_loader *none = mlc_loader_create(s.ctx, &l);
    CHECK_EQ(mlc_fit(s.net, s.opt, none, &d, &history), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "fit: the loader has no batch");
    CHECK_EQ(mlc_tracker_history(history, "loss", NULL, NULL), 0);
    mlc_tracker_free(history);
    CHECK_EQ(mlc_evaluate(s.net, none, &d, &loss), MLC_ERR_ARG);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "evaluate: the loader has no batch");
    CHECK(isnan(loss) && mlc_module_is_training(s.net));
    CHECK(mlc_predict(s.net, none) == NULL);
    CHECK_ERROR(s.ctx, MLC_ERR_ARG, "predict: the loader has no batch");
    mlc_loader_state end = mlc_loader_position(s.train);
    end.batch = BATCHES;
    d.epochs = 2;
    CHECK_EQ(mlc_loader_seek(s.train, &end), MLC_OK);
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, &history), MLC_OK);
    CHECK_EQ(mlc_optim_steps(s.opt), BATCHES);
    mlc_tracker_free(history);
    CHECK_EQ(mlc_loader_seek(s.train, &end), MLC_OK);
    CHECK_EQ(mlc_evaluate(s.net, s.train, &d, &loss), MLC_OK);
    CHECK(isnan(loss));
    CHECK_OK(s.ctx);
}

/* Of a validation "val_" stands before it. */
TEST(fit, a_metric_has_a_name_of_at_most_59_bytes)
{
    scene          s = scene_make();
    char           name[61];
    mlc_fit_metric m = {name, mlc_metric_accuracy(s.ctx), true};
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    memset(name, 'm', sizeof name);
    name[59] = 0;
    d.validation = s.held;
    d.metrics = &m;
    d.n_metrics = 1;
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, NULL), MLC_OK);
    name[59] = 'm';
    name[60] = 0;
    check_refused(&s, &d, "fit: metric 0 has a name of over 59 bytes");
    CHECK_EQ(mlc_evaluate(s.net, s.held, &d, NULL), MLC_OK);
    CHECK_OK(s.ctx);
}

TEST(fit, nonsense_is_refused_by_name)
{
    scene        s = scene_make();
    mlc_fit_desc d = mlc_fit_desc_make(NULL);
    const mlc_fit_metric none[] = {{"m", NULL, true}};
    check_refused(&s, NULL, "mlc_fit_desc_make");
    check_refused(&s, &d, "neither a loss nor a forward");
    d.loss = mlc_cross_entropy;
    d.epochs = 0;
    check_refused(&s, &d, "epochs 0");
    d.epochs = 1;
    d.n_metrics = 1;
    check_refused(&s, &d, "fit: metrics is NULL and n_metrics is 1");
    d.metrics = none;
    check_refused(&s, &d, "metric 0");
    CHECK_EQ(mlc_fit(NULL, s.opt, s.train, &d, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_fit_end(NULL, NULL), MLC_ERR_ARG);
    CHECK(!mlc_fit_step(NULL) && mlc_fit_loss(NULL) != mlc_fit_loss(NULL));
    CHECK_EQ(mlc_fit_validate(NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_evaluate(s.net, NULL, &d, NULL), MLC_ERR_ARG);
    mlc_error_clear(s.ctx);
    CHECK(mlc_predict(s.net, NULL) == NULL);
    CHECK_HAS(mlc_error(s.ctx), "predict");
    mlc_error_clear(s.ctx);
    CHECK(mlc_callback_create(s.ctx, NULL) == NULL);
    mlc_error_clear(s.ctx);
    mlc_callback_free(s.ctx, NULL);
}

/* A batch whose labels are out of range ends the training; what was trained stays. */
TEST(fit, a_bad_batch_ends_a_training_with_its_error)
{
    scene  s = scene_make();
    double bad[ROWS] = {0};
    bad[ROWS - 1] = 7;
    mlc_tensor     *y = test_tensor(s.ctx, MLC_I64, mlc_dims1(ROWS), bad);
    mlc_loader_desc l = mlc_loader_desc_make(s.x, y, BATCH);
    mlc_fit_desc    d = mlc_fit_desc_make(mlc_cross_entropy);
    s.train = mlc_loader_create(s.ctx, &l);
    mlc_tracker *history;
    mlc_scope_begin(s.ctx);
    CHECK_EQ(mlc_fit(s.net, s.opt, s.train, &d, &history), MLC_ERR_VALUE);
    CHECK_EQ(mlc_scope_end(s.ctx), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(s.ctx), "label");
    CHECK_EQ(mlc_tracker_history(history, "loss", NULL, NULL), 0);
    mlc_tracker_free(history);
    mlc_error_clear(s.ctx);
    mlc_optim_zero_grad(s.opt);
    CHECK_EQ(mlc_optim_steps(s.opt), BATCHES - 1);
}
