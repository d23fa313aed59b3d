/* test_faults_train.c -- memory runs out in metrics, optimizers, training */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "faults.h"

/* ---- metrics -------------------------------------------------------------------------------- */

/* Two batches, with weights and without.                                                        */
static mlc_status feed_metric(world *w, mlc_metric *m, mlc_tensor *p, mlc_tensor *t)
{
    if (m == NULL)
        return made(w, m);
    mlc_tensor *weights = t != NULL ? mlc_select(w->y, 1, 0) : NULL;
    const mlc_status st = mlc_metric_update(m, p, t, NULL);
    return first_of(st, mlc_metric_update(m, p, t, weights));
}

static mlc_status run_metric(world *w, mlc_metric *m, mlc_tensor *p, mlc_tensor *t)
{
    w->metric = m;
    const mlc_status st = feed_metric(w, m, p, t);
    return st != MLC_OK ? st : hash_value(w, mlc_metric_value(m));
}

DO(mlc_metric_accuracy)   { return run_metric(w, mlc_metric_accuracy(w->ctx), w->x, w->labels); }
DO(mlc_metric_topk)       { return run_metric(w, mlc_metric_topk(w->ctx, 2), w->x, w->labels); }
DO(mlc_metric_log_loss)   { return run_metric(w, mlc_metric_log_loss(w->ctx), w->x, w->labels); }
DO(mlc_metric_perplexity) { return run_metric(w, mlc_metric_perplexity(w->ctx), w->x, w->labels); }
DO(mlc_metric_mse)        { return run_metric(w, mlc_metric_mse(w->ctx), w->x, w->y); }
DO(mlc_metric_rmse)       { return run_metric(w, mlc_metric_rmse(w->ctx), w->x, w->y); }
DO(mlc_metric_mae)        { return run_metric(w, mlc_metric_mae(w->ctx), w->x, w->y); }
DO(mlc_metric_r2)         { return run_metric(w, mlc_metric_r2(w->ctx), w->x, w->y); }
DO(mlc_metric_mean)       { return run_metric(w, mlc_metric_mean(w->ctx), w->x, NULL); }
DO(mlc_metric_like)
{
    w->other = mlc_metric_accuracy(w->ctx);
    return w->other ? run_metric(w, mlc_metric_like(w->other), w->x, w->labels) : made(w, NULL);
}
DO(mlc_metric_auc)        { return run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->labels); }
DO(mlc_metric_confusion)
{
    return run_metric(w, mlc_metric_confusion(w->ctx, 4), w->x, w->labels);
}
DO(mlc_metric_balanced_accuracy)
{
    return run_metric(w, mlc_metric_balanced_accuracy(w->ctx, 4), w->x, w->labels);
}
DO(mlc_metric_precision)
{
    return run_metric(w, mlc_metric_precision(w->ctx, 4, MLC_AVERAGING_MICRO), w->x, w->labels);
}
DO(mlc_metric_recall)
{
    return run_metric(w, mlc_metric_recall(w->ctx, 4, MLC_AVERAGING_WEIGHTED), w->x, w->labels);
}
DO(mlc_metric_f)
{
    return run_metric(w, mlc_metric_f(w->ctx, 4, 2, MLC_AVERAGING_MACRO), w->x, w->labels);
}
DO(mlc_metric_average_precision)
{
    return run_metric(w, mlc_metric_average_precision(w->ctx, 4), w->x, w->labels);
}

static mlc_status run_confusion(world *w)
{
    return run_metric(w, mlc_metric_confusion(w->ctx, 4), w->x, w->labels);
}

DO(mlc_metric_update) { return run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->i); }
DO(mlc_metric_value)  { return run_confusion(w); }

static mlc_status run_merge(world *w, mlc_metric *a, mlc_metric *b)
{
    w->metric = a;
    w->other = b;
    mlc_status st = feed_metric(w, a, w->x, w->labels);
    if (st == MLC_OK)
        st = feed_metric(w, b, w->x, w->labels);
    if (st == MLC_OK)
        st = mlc_metric_merge(a, b);
    return st != MLC_OK ? st : hash_value(w, mlc_metric_value(a));
}

DO(mlc_metric_merge)
{
    mlc_metric *a = mlc_metric_auc(w->ctx, 4);
    return run_merge(w, a, mlc_metric_auc(w->ctx, 4));
}

SCENARIO(merge_of_counts, false)
{
    mlc_metric *a = mlc_metric_confusion(w->ctx, 4);
    return run_merge(w, a, mlc_metric_confusion(w->ctx, 4));
}

DO(mlc_metric_reset)
{
    const mlc_status st = run_confusion(w);
    mlc_metric_reset(w->metric);
    return st;
}

DO(mlc_metric_free)
{
    const mlc_status st = run_confusion(w);
    mlc_metric_free(w->metric);
    w->metric = NULL;
    return st;
}

DO(mlc_metric_counts)
{
    double     counts[16] = {0};
    mlc_status st = run_confusion(w);
    if (st == MLC_OK)
        st = mlc_metric_counts(w->metric, counts, 16);
    return st != MLC_OK ? st : hash_value(w, counts[0] + counts[5] + 3 * counts[10]);
}

DO(mlc_metric_classes)
{
    mlc_class_score s[4];
    mlc_status      st = run_confusion(w);
    if (st == MLC_OK)
        st = mlc_metric_classes(w->metric, s, 4);
    return st != MLC_OK ? st : hash_value(w, s[0].f1 + s[1].support);
}

DO(mlc_classification_report)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_classification_report(w->metric, NULL, 2, hash_text, w);
}

DO(mlc_confusion_write)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_confusion_write(w->metric, NULL, hash_text, w);
}

static const mlc_terminal_desc TERMINAL = {40, 5, 16, true, true};

DO(mlc_confusion_print)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_confusion_print(w->metric, NULL, &TERMINAL, hash_text, w);
}

DO(mlc_confusion_image)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : keep(w, mlc_confusion_image(w->metric, NULL, 1));
}

DO(mlc_confusion_save)
{
    const mlc_status st = run_confusion(w);
    return st != MLC_OK ? st : mlc_confusion_save(w->metric, to(w), NULL);
}

DO(mlc_metric_roc)
{
    double     x[8] = {0}, y[8] = {0};
    int64_t    n = 0;
    mlc_status st = run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->labels);
    if (st == MLC_OK)
        st = mlc_metric_roc(w->metric, 1, 8, x, y, NULL, &n);
    return st != MLC_OK ? st : hash_value(w, x[1] + y[1] + (double)n);
}

DO(mlc_metric_precision_recall)
{
    double     x[8] = {0}, y[8] = {0};
    int64_t    n = 0;
    mlc_status st = run_metric(w, mlc_metric_auc(w->ctx, 4), w->x, w->labels);
    if (st == MLC_OK)
        st = mlc_metric_precision_recall(w->metric, 1, 8, x, y, NULL, &n);
    return st != MLC_OK ? st : hash_value(w, x[1] + y[1] + (double)n);
}

/* Two names, two epochs.                                                                        */
static mlc_status run_tracker(world *w)
{
    w->tracker = mlc_tracker_create(w->ctx);
    w->metric = w->tracker ? mlc_metric_accuracy(w->ctx) : NULL;
    mlc_status st = made(w, w->metric);
    if (st == MLC_OK)
        st = mlc_tracker_metric(w->tracker, "accuracy", w->metric, true);
    for (int epoch = 0; epoch < 2 && st == MLC_OK; epoch++) {
        st = mlc_tracker_update(w->tracker, w->x, w->labels, NULL);
        if (st == MLC_OK)
            st = mlc_tracker_feed(w->tracker, "loss", 0.5 - epoch);
        if (st == MLC_OK)
            st = mlc_tracker_step(w->tracker, epoch);
    }
    int64_t best = 0;
    if (st != MLC_OK)
        return st;
    hash_value(w, mlc_tracker_best(w->tracker, "loss", &best));
    return hash_value(w, (double)best);
}

DO(mlc_tracker_create) { return run_tracker(w); }
DO(mlc_tracker_free)   { return run_tracker(w); }
DO(mlc_tracker_metric) { return run_tracker(w); }
DO(mlc_tracker_update) { return run_tracker(w); }
DO(mlc_tracker_feed)   { return run_tracker(w); }
DO(mlc_tracker_step)   { return run_tracker(w); }
DO(mlc_tracker_best)   { return run_tracker(w); }
DO(mlc_tracker_last)
{
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : hash_value(w, mlc_tracker_last(w->tracker, "accuracy"));
}
DO(mlc_tracker_history)
{
    const double    *values;
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : hash_value(w, (double)mlc_tracker_history(w->tracker, "loss", NULL,
                                                                         &values));
}
DO(mlc_tracker_print)
{
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : mlc_tracker_print(w->tracker, hash_text, w);
}
DO(mlc_tracker_plot)
{
    const mlc_status st = run_tracker(w);
    return st != MLC_OK ? st : mlc_tracker_plot(w->tracker, to(w));
}

/* The state, which is then read back into the tracker itself.                                   */
static mlc_status run_tracker_state(world *w)
{
    static char names[3][96];
    mlc_named   list[3];
    int64_t     n = 0;
    mlc_status  st = run_tracker(w);
    if (st != MLC_OK)
        return st;
    mlc_tracker_state_iter it = mlc_tracker_state_iter_make(w->tracker);
    while (mlc_tracker_state_next(&it)) {
        memcpy(names[n], it.name, sizeof it.name);
        list[n].name = names[n];
        list[n++].tensor = it.tensor;
    }
    st = mlc_ctx_status(w->ctx);
    if (st == MLC_OK && CHECK_EQ(n, 3))
        st = mlc_tracker_restore(w->tracker, list, n);
    return st != MLC_OK ? st : hash_value(w, mlc_tracker_last(w->tracker, "loss"));
}

DO(mlc_tracker_state_iter_make) { return run_tracker_state(w); }
DO(mlc_tracker_state_next)      { return run_tracker_state(w); }
DO(mlc_tracker_restore)         { return run_tracker_state(w); }

/* ---- ready callbacks: an epoch of two batches with each -------------------------------------- */

typedef mlc_callback *(*ready_fn)(world *w, mlc_optim *opt);

/* At a rate of 0: a training that fails changes nothing.                                        */
static mlc_status run_ready_by(world *w, ready_fn make, mlc_fit_forward_fn forward)
{
    mlc_ctx        *ctx = w->ctx;
    mlc_optim      *opt = mlc_sgd(w->net, 0);
    mlc_loader_desc held = mlc_loader_desc_make(w->x, w->labels, 3);
    mlc_loader     *train = opt ? mlc_loader_shuffled(ctx, w->x, w->labels, 2) : NULL;
    mlc_fit_desc    d = mlc_fit_desc_make(mlc_cross_entropy);
    d.validation = train ? mlc_loader_create(ctx, &held) : NULL;
    mlc_callback *c = d.validation ? make(w, opt) : NULL;
    mlc_status    st = made(w, c);
    d.callbacks = &c;
    d.n_callbacks = 1;
    d.forward = forward;
    if (st == MLC_OK)
        st = mlc_fit(w->net, opt, train, &d, NULL);
    mlc_callback_free(ctx, c);
    mlc_loader_free(train);
    mlc_loader_free(d.validation);
    mlc_optim_zero_grad(opt);
    mlc_optim_free(opt);
    return st;
}

static mlc_status run_ready(world *w, ready_fn make) { return run_ready_by(w, make, NULL); }

#define READY(name, call) \
    static mlc_callback *ready_##name(world *w, mlc_optim *opt) { (void)opt; return call; } \
    DO(name) { return run_ready(w, ready_##name); }

static mlc_callback *ready_gradients(world *w)
{
    mlc_gradients_desc d = mlc_gradients_desc_make();
    d.every = 1;
    d.table = true;
    d.write = discard;
    return mlc_on_gradients(w->ctx, &d);
}

static mlc_callback *ready_profile(world *w)
{
    mlc_profile_desc d = mlc_profile_desc_make();
    d.wait = d.warmup = 0;
    d.active = 1;
    d.repeat = 0;
    d.write = discard;
    return mlc_on_profile(w->ctx, &d);
}

static mlc_callback *ready_average(world *w, mlc_optim *opt)
{
    mlc_average *a = mlc_ema(opt, 0.5);
    return a ? mlc_on_average(w->ctx, a) : NULL;
}

static mlc_plateau g_plateau;
static mlc_callback *ready_plateau(world *w)
{
    g_plateau = mlc_plateau_make();
    return mlc_on_plateau(w->ctx, "val_loss", &g_plateau);
}

READY(mlc_on_progress, mlc_on_progress(w->ctx, discard, NULL))
READY(mlc_on_curves, mlc_on_curves(w->ctx, NULL, &TERMINAL, discard, NULL))
READY(mlc_on_csv, mlc_on_csv(w->ctx, to(w)))
READY(mlc_on_json, mlc_on_json(w->ctx, to(w)))
READY(mlc_on_early_stop, mlc_on_early_stop(w->ctx, NULL))
READY(mlc_early_stop_desc_make, mlc_on_early_stop(w->ctx, NULL))
READY(mlc_on_validate, mlc_on_validate(w->ctx, 1))
READY(mlc_on_plateau, ready_plateau(w))
READY(mlc_on_average, ready_average(w, opt))
READY(mlc_on_gradients, ready_gradients(w))
READY(mlc_gradients_desc_make, ready_gradients(w))
READY(mlc_on_histograms, mlc_on_histograms(w->ctx, "/dev/null", 1))
READY(mlc_on_memory, mlc_on_memory(w->ctx, 1))
READY(mlc_on_time_limit, mlc_on_time_limit(w->ctx, 1e6))
READY(mlc_on_profile, ready_profile(w))
READY(mlc_profile_desc_make, ready_profile(w))

/* A folder for files of TensorBoard, empty. */
static const char *board(world *w)
{
    static char dir[300];
    snprintf(dir, sizeof dir, "%.200s/board", w->files->dir);
    box b;
    snprintf(b.dir, sizeof b.dir, "%.255s", dir);
    box_close(&b);
    return dir;
}

static mlc_callback *ready_board(world *w, mlc_optim *opt)
{
    (void)opt;
    mlc_tensorboard_fit_desc d = mlc_tensorboard_fit_desc_make(board(w));
    d.every = d.histograms = 1;
    d.graph = true;
    return mlc_on_tensorboard_ex(w->ctx, &d);
}

static mlc_callback *ready_plain_board(world *w, mlc_optim *opt)
{
    (void)opt;
    return mlc_on_tensorboard(w->ctx, board(w));
}

/* The same, and takes the folder away. */
static mlc_status run_ready_board(world *w, ready_fn make)
{
    const mlc_status st = run_ready(w, make);
    board(w);
    return st;
}

DO(mlc_on_tensorboard)            { return run_ready_board(w, ready_plain_board); }
DO(mlc_on_tensorboard_ex)         { return run_ready_board(w, ready_board); }
DO(mlc_tensorboard_fit_desc_make) { return run_ready_board(w, ready_board); }

typedef enum told { SCALAR_TOLD, HISTOGRAM, IMAGE, TEXT_TOLD, CURVE, SETTINGS, GRAPH, FLUSH } told;

/* Opens a writer, tells it one thing, closes it. */
static mlc_status run_board(world *w, told what)
{
    static const mlc_hparam list[2] = {{"lr", NULL, 0.1}, {"rule", "sgd", 0}};
    static const char      *metrics[1] = {"loss"};
    mlc_tensorboard_desc    d = mlc_tensorboard_desc_make();
    d.flush_seconds = 0;
    mlc_tensorboard *tb = mlc_tensorboard_open(w->ctx, board(w), &d);
    mlc_tensor      *p = what == CURVE && tb ? mlc_sigmoid(w->x) : w->x;
    mlc_status       st = made(w, tb);
    if (st == MLC_OK) st = made(w, p);
    if (st == MLC_OK)
        switch (what) {
            case SCALAR_TOLD: st = mlc_tensorboard_scalar(tb, "a", 1, 1); break;
            case HISTOGRAM: st = mlc_tensorboard_histogram(tb, "a", w->d, 1); break;
            case IMAGE: st = mlc_tensorboard_image(tb, "a", w->x, 1); break;
            case TEXT_TOLD: st = mlc_tensorboard_text(tb, "a", "b", 1); break;
            case CURVE: st = mlc_tensorboard_pr_curve(tb, "a", p, w->mask, 1); break;
            case SETTINGS: st = mlc_tensorboard_hparams(tb, list, 2, metrics, 1); break;
            case GRAPH: st = mlc_tensorboard_graph(tb, w->net, w->x); break;
            default: st = mlc_tensorboard_flush(tb);
        }
    const mlc_status closed = tb ? mlc_tensorboard_close(tb) : st;
    board(w);
    return first_of(st, closed);
}

DO(mlc_tensorboard_open)      { return run_board(w, FLUSH); }
DO(mlc_tensorboard_desc_make) { return run_board(w, FLUSH); }
DO(mlc_tensorboard_flush)     { return run_board(w, FLUSH); }
DO(mlc_tensorboard_close)     { return run_board(w, SETTINGS); }
DO(mlc_tensorboard_scalar)    { return run_board(w, SCALAR_TOLD); }
DO(mlc_tensorboard_histogram) { return run_board(w, HISTOGRAM); }
DO(mlc_tensorboard_image)     { return run_board(w, IMAGE); }
DO(mlc_tensorboard_text)      { return run_board(w, TEXT_TOLD); }
DO(mlc_tensorboard_pr_curve)  { return run_board(w, CURVE); }
DO(mlc_tensorboard_hparams)   { return run_board(w, SETTINGS); }
DO(mlc_tensorboard_graph)     { return run_board(w, GRAPH); }

typedef enum shown { ROWS_SHOWN, PRINTED, ADVICE, COMPARED, TRACED, FILED, BOARD, NOTHING } shown;

/* Profiles an operation in a range, and shows it in one way. */
static mlc_status run_profile(world *w, shown what)
{
    mlc_profile_begin_desc d = mlc_profile_begin_desc_make();
    mlc_profile_row        row;
    mlc_profile           *p = mlc_profile_begin(w->ctx, &d);
    mlc_status             st = made(w, p);
    if (st != MLC_OK) return st;
    mlc_range_begin(w->ctx, "a");
    st = made(w, mlc_exp(w->x));
    mlc_range_end(w->ctx);
    st = first_of(st, mlc_profile_end(p));
    if (st == MLC_OK)
        switch (what) {
            case ROWS_SHOWN:
                st = mlc_profile_rows(p, MLC_PROFILE_OPERATIONS, MLC_PROFILE_SELF, &row, 1) < 0
                   ? mlc_ctx_status(w->ctx) : MLC_OK;
                break;
            case PRINTED: st = mlc_profile_print(p, MLC_PROFILE_MODULES, MLC_PROFILE_TOTAL, 0,
                                                 discard, NULL); break;
            case ADVICE: st = mlc_profile_advise(p, discard, NULL); break;
            case COMPARED: st = mlc_profile_compare(p, p, MLC_PROFILE_RANGES, discard, NULL); break;
            case TRACED: st = mlc_profile_trace(&p, 1, discard, NULL); break;
            case FILED:                /* times differ from run to run */
                st = mlc_profile_save(p, to(w));
                if (st == MLC_OK) put_file(to(w), "old", 3);
                break;
            case BOARD: {
                mlc_tensorboard *tb = mlc_tensorboard_open(w->ctx, board(w), NULL);
                st = made(w, tb);
                if (st == MLC_OK) st = mlc_tensorboard_profile(tb, p);
                if (tb) st = first_of(st, mlc_tensorboard_close(tb));
                board(w);
                break;
            }
            default: break;
        }
    mlc_profile_free(p);
    return st;
}

DO(mlc_profile_begin)         { return run_profile(w, NOTHING); }
DO(mlc_profile_begin_desc_make) { return run_profile(w, NOTHING); }
DO(mlc_profile_end)           { return run_profile(w, NOTHING); }
DO(mlc_profile_free)          { return run_profile(w, NOTHING); }
DO(mlc_profile_seconds)       { return run_profile(w, NOTHING); }
DO(mlc_profile_env)           { return run_profile(w, NOTHING); }
DO(mlc_range_begin)           { return run_profile(w, NOTHING); }
DO(mlc_range_end)             { return run_profile(w, NOTHING); }
DO(mlc_profile_rows)          { return run_profile(w, ROWS_SHOWN); }
DO(mlc_profile_print)         { return run_profile(w, PRINTED); }
DO(mlc_profile_advise)        { return run_profile(w, ADVICE); }
DO(mlc_profile_compare)       { return run_profile(w, COMPARED); }
DO(mlc_profile_trace)         { return run_profile(w, TRACED); }
DO(mlc_profile_save)          { return run_profile(w, FILED); }
DO(mlc_tensorboard_profile)   { return run_profile(w, BOARD); }
DO(mlc_png_save)              { return mlc_png_save(w->x, to(w)); }
DO(mlc_image_print)           { return mlc_image_print(w->x, &TERMINAL, hash_text, w); }

/* A PNG file of 2 x 2 pixels, from memory or from a file that goes again. */
static mlc_status run_image(world *w, bool from_file)
{
    static const unsigned char png[] = {
        137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0,
        0, 2, 0, 0, 0, 2, 8, 2, 0, 0, 0, 253, 212, 154, 115, 0, 0, 0,
        19, 73, 68, 65, 84, 120, 1, 99, 248, 207, 192, 0, 196, 140, 64, 226, 255, 127,
        6, 0, 30, 246, 4, 253, 62, 173, 86, 222, 0, 0, 0, 0, 73, 69, 78, 68,
        174, 66, 96, 130};
    char path[300];
    if (!from_file) return keep(w, mlc_image_load_memory(w->ctx, png, sizeof png, 4));
    snprintf(path, sizeof path, "%.200s/in.png", w->files->dir);
    CHECK(put_file(path, png, sizeof png));
    const mlc_status st = keep(w, mlc_image_load(w->ctx, path, 0));
    remove(path);
    return st;
}

DO(mlc_image_load)            { return run_image(w, true); }
DO(mlc_image_load_memory)     { return run_image(w, false); }

/* What is written by a thread is counted nowhere: the file cannot be. */
static mlc_callback *ready_checkpoint(world *w)
{
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make("/dev/fd/net");
    d.keep_going = d.async = true;
    return mlc_on_checkpoint(w->ctx, &d);
}

READY(mlc_on_checkpoint, ready_checkpoint(w))
READY(mlc_checkpoint_desc_make, ready_checkpoint(w))
READY(mlc_on_signal, mlc_on_signal(w->ctx, NULL))
READY(mlc_on_resume, mlc_on_resume(w->ctx, "/nowhere/at/all"))

static mlc_tensor *no_loss(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    (void)user;
    *output = mlc_forward(net, b->x);
    mlc_tensor *loss = mlc_cross_entropy(*output, b->y);
    return mlc_add(loss, mlc_log(mlc_mul_scalar(loss, -1)));
}

static mlc_callback *ready_nan(world *w, mlc_optim *opt)
{
    (void)opt;
    return mlc_on_nan(w->ctx, 1);
}

DO(mlc_on_nan)
{
    const mlc_status st = run_ready_by(w, ready_nan, no_loss);
    if (st != MLC_ERR_VALUE)
        return st == MLC_OK ? MLC_ERR_INTERNAL : st;
    mlc_error_clear(w->ctx);
    return MLC_OK;
}

DO(mlc_trace)
{
    const int32_t id = mlc_trace(w->ctx, true, discard, NULL);
    if (id == 0)
        return mlc_ctx_status(w->ctx);
    const mlc_status st = keep(w, mlc_relu(w->x));
    CHECK_EQ(mlc_hooks_remove(w->ctx, id), MLC_OK);
    return st;
}

static mlc_status run_timer(world *w)
{
    mlc_timer t = mlc_timer_make("timer");
    mlc_timer_begin(&t);
    mlc_timer_end(&t, 1);
    CHECK(mlc_timer_mean(&t) >= 0 && !(mlc_timer_rate(&t) <= 0));
    CHECK(isnan(mlc_timer_deviation(&t)));
    return mlc_timer_print(w->ctx, &t, 1, discard, NULL);
}

SCENARIO(mlc_timer_make, true)      { return run_timer(w); }
SCENARIO(mlc_timer_begin, true)     { return run_timer(w); }
SCENARIO(mlc_timer_end, true)       { return run_timer(w); }
SCENARIO(mlc_timer_mean, true)      { return run_timer(w); }
SCENARIO(mlc_timer_deviation, true) { return run_timer(w); }
SCENARIO(mlc_timer_rate, true)      { return run_timer(w); }
SCENARIO(mlc_timer_print, true)     { return run_timer(w); }

/* ---- optimizers ----------------------------------------------------------------------------- */

/* An optimizer of the net, which has gradients; one step with it.                              */
static mlc_status run_optim(world *w, mlc_optim *opt)
{
    w->optim = opt;
    return opt ? mlc_optim_step(opt) : made(w, opt);
}

DO(mlc_sgd)   { return run_optim(w, mlc_sgd(w->net, 0.1)); }
DO(mlc_adam)  { return run_optim(w, mlc_adam(w->net, 0.1)); }
DO(mlc_adamw) { return run_optim(w, mlc_adamw(w->net, 0.1)); }
DO(mlc_lamb)  { return run_optim(w, mlc_lamb(w->net, 0.1)); }
DO(mlc_amsgrad) { return run_optim(w, mlc_amsgrad(w->net, 0.1)); }
DO(mlc_radam) { return run_optim(w, mlc_radam(w->net, 0.1)); }
DO(mlc_adamax) { return run_optim(w, mlc_adamax(w->net, 0.1)); }
DO(mlc_nadam) { return run_optim(w, mlc_nadam(w->net, 0.1)); }
DO(mlc_rmsprop) { return run_optim(w, mlc_rmsprop(w->net, 0.1)); }
DO(mlc_adagrad) { return run_optim(w, mlc_adagrad(w->net, 0.1)); }
DO(mlc_adadelta) { return run_optim(w, mlc_adadelta(w->net, 0.1)); }
DO(mlc_rprop) { return run_optim(w, mlc_rprop(w->net, 0.1)); }
DO(mlc_sophia) { return run_optim(w, mlc_sophia(w->net, 0.1)); }
DO(mlc_lars) { return run_optim(w, mlc_lars(w->net, 0.1)); }
DO(mlc_lion) { return run_optim(w, mlc_lion(w->net, 0.1)); }
DO(mlc_adafactor) { return run_optim(w, mlc_adafactor(w->net, 0.1)); }
DO(mlc_muon) { return run_optim(w, mlc_muon(w->net, 0.1)); }
DO(mlc_schedule_free_sgd) { return run_optim(w, mlc_schedule_free_sgd(w->net, 0.1)); }
DO(mlc_schedule_free_adamw) { return run_optim(w, mlc_schedule_free_adamw(w->net, 0.1)); }

DO(mlc_sgd_ex)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(1e-3);
    d.momentum = 0.9;
    return run_optim(w, mlc_sgd_ex(w->net, &d));
}

DO(mlc_adam_ex)
{
    mlc_adam_desc d = mlc_adam_desc_make(1e-3);
    d.beta1 = 0.8;
    d.moments = MLC_MOMENTS_BF16;
    return run_optim(w, mlc_adam_ex(w->net, &d));
}

DO(mlc_adamw_ex)
{
    mlc_adam_desc d = mlc_adamw_desc_make(1e-3);
    d.weight_decay = 0.5;
    return run_optim(w, mlc_adamw_ex(w->net, &d));
}

DO(mlc_lamb_ex)
{
    const mlc_adam_desc d = mlc_lamb_desc_make(1e-3);
    return run_optim(w, mlc_lamb_ex(w->net, &d));
}

DO(mlc_amsgrad_ex)
{
    const mlc_amsgrad_desc d = mlc_amsgrad_desc_make(1e-3);
    return run_optim(w, mlc_amsgrad_ex(w->net, &d));
}

DO(mlc_radam_ex)
{
    const mlc_amsgrad_desc d = mlc_radam_desc_make(1e-3);
    return run_optim(w, mlc_radam_ex(w->net, &d));
}

DO(mlc_adamax_ex)
{
    const mlc_adam_desc d = mlc_adamax_desc_make(1e-3);
    return run_optim(w, mlc_adamax_ex(w->net, &d));
}

DO(mlc_nadam_ex)
{
    const mlc_nadam_desc d = mlc_nadam_desc_make(1e-3);
    return run_optim(w, mlc_nadam_ex(w->net, &d));
}

DO(mlc_rmsprop_ex)
{
    const mlc_rmsprop_desc d = mlc_rmsprop_desc_make(1e-3);
    return run_optim(w, mlc_rmsprop_ex(w->net, &d));
}

DO(mlc_adagrad_ex)
{
    const mlc_adagrad_desc d = mlc_adagrad_desc_make(1e-3);
    return run_optim(w, mlc_adagrad_ex(w->net, &d));
}

DO(mlc_adadelta_ex)
{
    const mlc_adadelta_desc d = mlc_adadelta_desc_make(1e-3);
    return run_optim(w, mlc_adadelta_ex(w->net, &d));
}

DO(mlc_rprop_ex)
{
    const mlc_rprop_desc d = mlc_rprop_desc_make(1e-3);
    return run_optim(w, mlc_rprop_ex(w->net, &d));
}

DO(mlc_lars_ex)
{
    const mlc_lars_desc d = mlc_lars_desc_make(1e-3);
    return run_optim(w, mlc_lars_ex(w->net, &d));
}

DO(mlc_lion_ex)
{
    mlc_lion_desc d = mlc_lion_desc_make(1e-3);
    d.moments = MLC_MOMENTS_8BIT;
    return run_optim(w, mlc_lion_ex(w->net, &d));
}

DO(mlc_adafactor_ex)
{
    mlc_adafactor_desc d = mlc_adafactor_desc_make(1e-3);
    d.fixed = true;
    return run_optim(w, mlc_adafactor_ex(w->net, &d));
}

DO(mlc_muon_ex)
{
    mlc_muon_desc d = mlc_muon_desc_make(1e-3);
    d.nesterov = false;
    return run_optim(w, mlc_muon_ex(w->net, &d));
}

DO(mlc_schedule_free_sgd_ex)
{
    const mlc_schedule_free_sgd_desc d = mlc_schedule_free_sgd_desc_make(1e-3);
    return run_optim(w, mlc_schedule_free_sgd_ex(w->net, &d));
}

DO(mlc_schedule_free_adamw_ex)
{
    const mlc_schedule_free_adamw_desc d = mlc_schedule_free_adamw_desc_make(1e-3);
    return run_optim(w, mlc_schedule_free_adamw_ex(w->net, &d));
}

DO(mlc_sophia_ex)
{
    const mlc_sophia_desc d = mlc_sophia_desc_make(1e-3);
    return run_optim(w, mlc_sophia_ex(w->net, &d));
}

DO(mlc_optim_curvature)
{
    w->optim = mlc_sophia(w->net, 0.1);
    return w->optim ? mlc_optim_curvature(w->optim, 4) : made(w, w->optim);
}

DO(mlc_optim_mean)
{
    w->optim = mlc_schedule_free_sgd(w->net, 0.1);
    return w->optim ? mlc_optim_mean(w->optim, true) : made(w, w->optim);
}

static mlc_tensor *world_loss(void *user)
{
    world *w = (world *)user;
    return mlc_sum_all(mlc_forward(w->net, mlc_detach(w->x)));
}

static mlc_tensor *world_fit(void *user)
{
    mlc_tensor *y = mlc_forward(((world *)user)->net, mlc_detach(((world *)user)->x));
    return mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
}

DO(mlc_optim_step_with)
{
    mlc_optim_zero_grad(w->opt);
    return mlc_optim_step_with(w->opt, world_loss, w, NULL);
}
DO(mlc_optim_sam)
{
    mlc_optim_sam(w->opt, 0.1, true);
    const mlc_status st = mlc_optim_step_with(w->opt, world_loss, w, NULL);
    mlc_optim_sam(w->opt, 0, false);
    return st;
}
/* What fails in a later iteration leaves those before it: parameters are put back here.         */
static mlc_status run_lbfgs(world *w, mlc_optim *opt)
{
    static unsigned char was[16][1024];
    mlc_param_iter       it = mlc_param_iter_make(w->net), again = it;
    w->optim = opt;
    if (opt == NULL)
        return made(w, opt);
    for (int n = 0; mlc_param_next(&it); n++)
        mlc_read(it.tensor, was[n],
                 (size_t)mlc_numel(it.tensor) * mlc_dtype_bytes(it.tensor->dtype));
    const mlc_status st = mlc_optim_step_with(opt, world_fit, w, NULL);
    for (int n = 0; st != MLC_OK && mlc_param_next(&again); n++)
        mlc_write(again.tensor, was[n],
                  (size_t)mlc_numel(again.tensor) * mlc_dtype_bytes(again.tensor->dtype));
    return st;
}

DO(mlc_lbfgs) { return run_lbfgs(w, mlc_lbfgs(w->net, 0.1)); }
DO(mlc_lbfgs_ex)
{
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(1e-3);
    d.max_iter = 3;
    d.history = 1;
    d.strong_wolfe = false;
    return run_lbfgs(w, mlc_lbfgs_ex(w->net, &d));
}
DO(mlc_optim_curvature_with)
{
    w->optim = mlc_sophia(w->net, 0.1);
    return w->optim ? mlc_optim_curvature_with(w->optim, world_loss, w, 1) : made(w, w->optim);
}
DO(mlc_optim_step) { return mlc_optim_step(w->opt); }

/* A step, and the average in the parameters' place and back; then it goes: w->opt stays.        */
static mlc_status run_average(world *w, mlc_average *a)
{
    mlc_status st = made(w, a);
    if (a) st = first_of(st, mlc_optim_step(w->opt));
    if (a) st = first_of(st, mlc_average_swap(a, true));
    if (a) st = first_of(st, mlc_average_swap(a, false));
    mlc_average_free(a);
    return st;
}

DO(mlc_ema) { return run_average(w, mlc_ema(w->opt, 0.9)); }
DO(mlc_swa) { return run_average(w, mlc_swa(w->opt, 0, 2)); }

/* Two of them follow a new layout, or both stay.                                               */
DO(mlc_average_ex)
{
    mlc_average_desc d = mlc_average_desc_make();
    d.warmup = true;
    mlc_average *a = mlc_average_ex(w->opt, &d), *b = a ? mlc_average_ex(w->opt, NULL) : NULL;
    mlc_status   st = b ? mlc_optim_group(w->opt, "*.bias", NULL) : made(w, b);
    mlc_average_free(b);
    return first_of(st, run_average(w, a));
}

DO(mlc_optim_lookahead)
{
    mlc_status st = mlc_optim_lookahead(w->opt, 1, 0.5);
    st = first_of(st, mlc_optim_step(w->opt));
    mlc_optim_lookahead(w->opt, 0, 0.5);
    return st;
}

DO(mlc_optim_group)
{
    mlc_group_desc d = mlc_group_desc_make();
    d.lr_scale = 0.5;
    mlc_status st = mlc_optim_group(w->opt, "*.bias", &d);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_no_decay)
{
    mlc_status st = mlc_optim_no_decay(w->opt, true);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_layer_decay)
{
    mlc_status st = mlc_optim_layer_decay(w->opt, 0.5);
    return first_of(st, mlc_optim_step(w->opt));
}

/* ---- pruning -------------------------------------------------------------------------------- */

/* A module of the scenario, pruned. */
static mlc_status pruned(world *w)
{
    const mlc_prune_desc d = mlc_prune_desc_make(0.5);
    const bool           made = own_module(w, mlc_nn_linear(w->ctx, 4, 6));
    return made ? mlc_prune(w->module, &d) : mlc_ctx_status(w->ctx);
}

DO(mlc_prune)
{
    const mlc_status st = pruned(w);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_prune_apply)
{
    const mlc_status st = pruned(w);
    return first_of(st, st == MLC_OK ? mlc_prune_apply(w->module) : st);
}

DO(mlc_prune_remove)
{
    const mlc_status st = pruned(w);
    return first_of(st, st == MLC_OK ? mlc_prune_remove(w->module, NULL) : st);
}

DO(mlc_prune_of_an_optimizer)
{
    const mlc_prune_desc d = mlc_prune_desc_make(0.5);
    return mlc_prune(w->net, &d);
}

DO(mlc_prune_tensor)
{
    const mlc_prune_desc d = mlc_prune_desc_make(0.5);
    mlc_tensor          *mask;
    return keep(w, mlc_prune_tensor(w->x, &d, &mask));
}

DO(mlc_prune_zeros)
{
    const mlc_status st = pruned(w);
    return st == MLC_OK && mlc_prune_zeros(w->module, NULL) > 0 ? MLC_OK : mlc_ctx_status(w->ctx);
}

DO(mlc_sparsify)
{
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_status st = pruned(w);
    d.form = MLC_SPARSE_CSR;
    if (st == MLC_OK) st = mlc_sparsify(w->module, &d, NULL);
    if (st != MLC_OK || (st = mlc_eval_begin(w->module)) != MLC_OK) return st;
    st = keep(w, mlc_forward(w->module, w->x));
    return first_of(st, mlc_eval_end(w->module));
}

/* A module of the scenario with adapters that change its result. */
static mlc_status adapted(world *w)
{
    const mlc_lora_desc d = mlc_lora_desc_make(2, 3);
    const bool          made = own_module(w, mlc_nn_linear(w->ctx, 4, 6));
    const mlc_status    st = made ? mlc_lora(w->module, &d, NULL) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) set_values(w, w->module);
    return st;
}

DO(mlc_lora)
{
    const mlc_status st = adapted(w);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_lora_of_attention)
{
    const mlc_lora_desc d = mlc_lora_desc_make(2, 3);
    const bool          made = own_module(w, mlc_nn_multihead_attention(w->ctx, 4, 2));
    const mlc_status    st = made ? mlc_lora(w->module, &d, NULL) : mlc_ctx_status(w->ctx);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, mlc_unsqueeze(w->x, 0))) : st;
}

DO(mlc_lora_of_dora)
{
    mlc_lora_desc d = mlc_lora_desc_make(2, 3);
    d.dora = true;
    const bool       made = own_module(w, mlc_nn_multihead_attention(w->ctx, 4, 2));
    const mlc_status st = made ? mlc_lora(w->module, &d, NULL) : mlc_ctx_status(w->ctx);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, mlc_unsqueeze(w->x, 0))) : st;
}

DO(mlc_lora_over_integers)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    const mlc_lora_desc d = mlc_lora_desc_make(2, 3);
    mlc_quantize_desc   q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    q.group = 0;
    const bool made = own_module(w, mlc_nn_linear(w->ctx, 4, 6));
    mlc_status st = made ? mlc_quantize(w->module, &q, NULL) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) st = mlc_lora(w->module, &d, NULL);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_lora_switch)
{
    static const char *const names[] = {"default"};
    mlc_status st = adapted(w);
    if (st == MLC_OK) st = mlc_lora_switch(w->module, NULL, 0);
    if (st == MLC_OK) st = mlc_lora_switch(w->module, names, 1);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_lora_merge)
{
    mlc_status st = adapted(w);
    if (st == MLC_OK) st = mlc_lora_merge(w->module, NULL);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_lora_unmerge)
{
    mlc_status st = adapted(w);
    if (st == MLC_OK) st = mlc_lora_merge(w->module, NULL);
    if (st == MLC_OK) st = mlc_lora_unmerge(w->module);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

DO(mlc_lora_remove)
{
    mlc_status st = adapted(w);
    if (st == MLC_OK) st = mlc_lora_remove(w->module, NULL);
    return st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st;
}

/* Removes both files of an adapter. */
static mlc_status without_files(world *w, mlc_status st)
{
    static const char *const names[2] = {"adapter_model.safetensors", "adapter_config.json"};
    for (int i = 0; i < 2; i++) remove(in(w, names[i]));
    return st;
}

DO(mlc_lora_save)
{
    const mlc_lora_file f = mlc_lora_file_make();
    const mlc_status    st = adapted(w);
    return without_files(w, st == MLC_OK ? mlc_lora_save(w->module, w->files->dir, &f) : st);
}

DO(mlc_lora_load)
{
    mlc_status st = adapted(w);
    if (st == MLC_OK) st = mlc_lora_save(w->module, w->files->dir, NULL);
    if (st == MLC_OK) st = mlc_lora_remove(w->module, NULL);
    if (st == MLC_OK) st = mlc_lora_load(w->module, w->files->dir, NULL);
    return without_files(w, st == MLC_OK ? keep(w, mlc_forward(w->module, w->x)) : st);
}

/* A student of the scenario with a learned linear between layers, and its loss. */
DO(mlc_distillation_forward)
{
    const mlc_distill_layer layer = {"", "", 1, 3, 3};
    mlc_distill_desc        d = mlc_distill_desc_make();
    mlc_batch               b;
    mlc_tensor             *y = NULL;
    memset(&b, 0, sizeof b);
    b.x = w->x;
    b.y = w->labels;
    d.layers = &layer;
    d.n_layers = 1;
    if (!own_module(w, mlc_nn_linear(w->ctx, 4, 3))) return mlc_ctx_status(w->ctx);
    mlc_distillation *of = mlc_distillation_create(w->module, w->net, &d);
    if (of) set_values(w, mlc_module_find(mlc_distillation_net(of), "layer0"));
    mlc_tensor      *loss = of ? mlc_distillation_forward(of, mlc_distillation_net(of), &b, &y)
                               : NULL;
    const mlc_status st = loss ? mlc_backward(loss) : mlc_ctx_status(w->ctx);
    mlc_distillation_free(of);
    return st;
}

/* Attention that learns from itself, by its maps, twice: from the module and from a cache. */
DO(mlc_distillation_of_attention)
{
    const mlc_distill_attention a = {"", "", 1, false};
    mlc_distill_desc            d = mlc_distill_desc_make();
    mlc_status                  st = MLC_OK;
    mlc_batch                   b;
    mlc_tensor                 *y = NULL;
    memset(&b, 0, sizeof b);
    b.x = mlc_unsqueeze(w->x, 0);
    d.loss.alpha = 1;
    d.attention = &a;
    d.n_attention = 1;
    d.cache = in(w, "teachers");
    remove(d.cache);
    if (!b.x || !own_module(w, mlc_nn_multihead_attention(w->ctx, 4, 2)))
        return mlc_ctx_status(w->ctx);
    mlc_distillation *of = mlc_distillation_create(w->module, w->module, &d);
    for (int i = 0; i < 2 && of && st == MLC_OK; i++)
        st = keep(w, mlc_distillation_forward(of, NULL, &b, &y));
    if (!of) st = mlc_ctx_status(w->ctx);
    mlc_distillation_free(of);
    remove(in(w, "teachers"));
    return st;
}

/* A network of the scenario, of which rows and the columns that read them go. */
DO(mlc_prune_shrink)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_module    *part[3] = {mlc_nn_linear(w->ctx, 4, 6), mlc_nn_relu(w->ctx),
                              mlc_nn_linear(w->ctx, 6, 3)};
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.unit = MLC_PRUNE_CHANNELS;
    if (!own_module(w, made_of(mlc_nn_sequential_of(w->ctx, 3, part), 3, part)))
        return mlc_ctx_status(w->ctx);
    const mlc_status st = mlc_prune(w->module, &d);
    return st == MLC_OK ? mlc_prune_shrink(w->module, NULL) : st;
}

/* Hidden units and the columns of branches side by side. */
DO(mlc_prune_shrink_of_branches)
{
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    mlc_module    *part[2] = {mlc_nn_lstm(w->ctx, 4, 6), mlc_nn_linear(w->ctx, 4, 4)};
    mlc_module    *all[2] = {made_of(mlc_nn_concat(w->ctx, -1, 2, part), 2, part),
                             mlc_nn_linear(w->ctx, 10, 3)};
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.unit = MLC_PRUNE_CHANNELS;
    d.per_layer = true;
    if (!own_module(w, made_of(mlc_nn_sequential_of(w->ctx, 2, all), 2, all)))
        return mlc_ctx_status(w->ctx);
    const mlc_status st = mlc_prune(w->module, &d);
    return st == MLC_OK ? mlc_prune_shrink(w->module, NULL) : st;
}

static mlc_status begun(world *w, mlc_prune_schedule *schedule)
{
    const mlc_prune_desc d = mlc_prune_desc_make(0);
    *schedule = mlc_prune_schedule_make(0.5, 0, 2, 2);
    schedule->rewind = true;
    const bool made = own_module(w, mlc_nn_linear(w->ctx, 4, 6));
    return made ? mlc_prune_begin(w->module, &d, schedule) : mlc_ctx_status(w->ctx);
}

DO(mlc_prune_begin)
{
    mlc_prune_schedule s;
    return begun(w, &s);
}

DO(mlc_prune_step)
{
    const mlc_prune_desc d = mlc_prune_desc_make(0);
    mlc_prune_schedule   s;
    const mlc_status     st = begun(w, &s);
    return st == MLC_OK ? mlc_prune_step(w->module, &d, &s, 0) : st;
}

DO(mlc_prune_keep)   { return mlc_prune_keep(w->net); }

DO(mlc_prune_rewind)
{
    mlc_prune_schedule s;
    mlc_status         st = begun(w, &s);
    if (st == MLC_OK)
        st = mlc_prune_keep(w->module);
    return st == MLC_OK ? mlc_prune_rewind(w->module) : st;
}

DO(mlc_on_prune)
{
    const mlc_prune_desc     d = mlc_prune_desc_make(0);
    const mlc_prune_schedule s = mlc_prune_schedule_make(0.5, 0, 2, 2);
    if (!own_module(w, mlc_nn_linear(w->ctx, 4, 6)))
        return mlc_ctx_status(w->ctx);
    mlc_callback *c = mlc_on_prune(w->module, &d, &s);
    mlc_callback_free(w->ctx, c);
    return made(w, c);
}

SCENARIO(mlc_prune_share_at, true)
{
    const mlc_prune_schedule s = mlc_prune_schedule_make(0.5, 0, 2, 2);
    (void)w;
    return mlc_prune_share_at(&s, 2) == 0.5 ? MLC_OK : MLC_ERR_ARG;
}

DO(mlc_optim_noise)
{
    mlc_status st = mlc_optim_noise(w->opt, 0.1, 0.5);
    return first_of(st, mlc_optim_step(w->opt));
}

/* A rank alone, which has no one to wait for; `after` is the status of what it has done. */
static mlc_status alone(world *w, mlc_comm *comm)
{
    const mlc_comm_desc d = mlc_comm_desc_make();
    return mlc_comm_threads(w->ctx, 1, &d, comm);
}
static mlc_status left(mlc_status after, const mlc_comm *comm)
{
    mlc_comm_leave(comm);
    mlc_comm_threads_free(comm);
    return after;
}
static mlc_status summed(world *w)
{
    mlc_comm            c;
    double              x[3] = {1, 2, 3};
    const mlc_comm_call call = {MLC_ALL_REDUCE, MLC_COMBINE_SUM, MLC_F64, 0, 3, x};
    const mlc_status    st = alone(w, &c);
    return st == MLC_OK ? left(mlc_comm_run(w->ctx, &c, &call), &c) : st;
}
DO(mlc_comm_desc_make)    { return summed(w); }
DO(mlc_comm_threads)      { return summed(w); }
DO(mlc_comm_threads_free) { return summed(w); }
DO(mlc_comm_run)          { return summed(w); }
DO(mlc_comm_leave)        { return summed(w); }
/* An error in any case: no communicator is given. */
DO(mlc_comm_mpi)
{
    mlc_comm         c;
    const mlc_status st = mlc_comm_mpi(w->ctx, NULL, NULL, &c);
    mlc_error_clear(w->ctx);
    return st == MLC_ERR_ARG || st == MLC_ERR_UNSUPPORTED ? MLC_OK : MLC_ERR_STATE;
}
static mlc_status by_ranks(world *w, bool weighted, int32_t micro)
{
    mlc_comm          c;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;           /* UNSUPPORTED there */
    d.weighted = weighted;
    d.micro = micro;
    mlc_status st = alone(w, &c);
    if (st != MLC_OK) return st;
    st = mlc_data_parallel(w->net, w->opt, &c, &d);
    const bool on = st == MLC_OK;
    if (on && weighted) st = mlc_data_parallel_weight(w->opt, 2);
    if (st == MLC_OK) st = mlc_optim_step(w->opt);
    if (on) mlc_data_parallel_end(w->opt);
    return left(st, &c);
}
DO(mlc_parallel_desc_make)   { return by_ranks(w, false, 1); }
DO(mlc_data_parallel)        { return by_ranks(w, false, 2); }
DO(mlc_data_parallel_weight) { return by_ranks(w, true, 1); }
DO(mlc_data_parallel_end)    { return by_ranks(w, false, 1); }
DO(mlc_data_parallel_gather)           /* of an optimizer whose states are floats */
{
    mlc_comm          c;
    mlc_parallel_desc d = mlc_parallel_desc_make();
    if (!mlc_ctx_on_host(w->ctx)) return MLC_OK;
    d.shard = 1;                       /* 2 frees gradients, which the world counts */
    mlc_status st = alone(w, &c);
    if (st != MLC_OK) return st;
    mlc_optim *opt = mlc_adam(w->net, 0);                  /* values stay, whatever fails */
    st = opt ? mlc_data_parallel(w->net, opt, &c, &d) : mlc_ctx_status(w->ctx);
    if (st == MLC_OK) st = mlc_optim_step(opt);
    if (st == MLC_OK) st = mlc_data_parallel_gather(opt);
    if (st == MLC_OK) st = mlc_optim_step(opt);
    if (st == MLC_OK) st = mlc_data_parallel_end(opt);
    mlc_optim_free(opt);
    return left(st, &c);
}

DO(mlc_optim_report)
{
    mlc_grad_report r[2];
    int64_t         n = 0;
    mlc_status      st = mlc_optim_report(w->opt, r, 2, &n);
    return first_of(st, mlc_grad_report_print(w->ctx, r, st == MLC_OK ? 2 : 0, hash_text, w));
}

DO(mlc_optim_step_report)
{
    mlc_grad_report r[2];
    return mlc_optim_step_report(w->opt, r, 2, NULL);
}

DO(mlc_optim_clip)
{
    mlc_clip_desc d = mlc_clip_desc_make();
    d.norm = 1;
    d.each = true;
    mlc_status st = mlc_optim_clip(w->opt, &d);
    return first_of(st, mlc_optim_step(w->opt));
}

/* A matrix of its own, large enough to be stepped inside backward.                             */
DO(mlc_optim_in_backward)
{
    w->module = mlc_nn_linear(w->ctx, 128, 128);
    w->optim = mlc_sgd(w->module, 0.1);
    if (w->optim == NULL)
        return made(w, w->optim);
    mlc_status  st = mlc_optim_in_backward(w->optim, true);
    mlc_tensor *x = mlc_full(w->ctx, MLC_F32, mlc_dims2(2, 128), 0.5);
    mlc_tensor *loss = mlc_mean(mlc_forward(w->module, x), mlc_dims0(), false);
    if (loss == NULL)
        return made(w, loss);
    st = first_of(st, mlc_backward(loss));
    return first_of(st, mlc_optim_step(w->optim));
}

DO(mlc_optim_scaler)
{
    mlc_scaler_desc d = mlc_scaler_desc_make();
    mlc_status st = mlc_optim_scaler(w->opt, &d);
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_optim_accumulate)
{
    mlc_status st = mlc_optim_accumulate(w->opt, 2);
    st = first_of(st, mlc_optim_step(w->opt));
    return first_of(st, mlc_optim_step(w->opt));
}

DO(mlc_split_rows)
{
    static const double shares[2] = {0.5, 0.5};
    mlc_split_rows_desc d = mlc_split_rows_desc_make(shares, 2);
    mlc_tensor    *parts[2];
    d.labels = w->labels;
    mlc_status st = mlc_split_rows(w->ctx, mlc_numel(w->labels), &d, parts);
    st = first_of(st, keep(w, parts[0]));
    return first_of(st, keep(w, parts[1]));
}

DO(mlc_k_fold)
{
    const mlc_k_fold_desc d = mlc_k_fold_desc_make(2);
    mlc_tensor *train, *held_out;
    mlc_status  st = mlc_k_fold(w->ctx, 6, &d, 1, &train, &held_out);
    st = first_of(st, keep(w, train));
    return first_of(st, keep(w, held_out));
}

CASE(mlc_gather_rows, mlc_gather_rows(w->x, w->rows))

DO(mlc_optim_flush)
{
    mlc_status st = mlc_optim_accumulate(w->opt, 2);
    st = first_of(st, mlc_optim_step(w->opt));
    return first_of(st, mlc_optim_flush(w->opt));
}

DO(mlc_optim_minimize)
{
    mlc_optim_zero_grad(w->opt);       /* a backward that failed asks for it                  */
    mlc_tensor *y = mlc_forward(w->net, w->x);
    mlc_tensor *loss = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
    return first_of(made(w, loss), loss ? mlc_optim_minimize(w->opt, loss) : MLC_OK);
}

DO(mlc_optim_schedule)
{
    static const int64_t starts[2] = {0, 1};
    const mlc_sched      parts[2] = {mlc_sched_constant(1), mlc_sched_cosine(9, 0.5)};
    const mlc_sched      s = mlc_sched_sequence(parts, starts, 2);
    mlc_status           st = mlc_optim_schedule(w->opt, MLC_KNOB_LR, &s);
    return first_of(st, mlc_optim_step(w->opt));
}

static double range_step(void *user)
{
    world      *w = (world *)user;
    mlc_tensor *loss = mlc_sum_all(mlc_forward(w->net, mlc_detach(w->x)));
    return loss && mlc_optim_minimize(w->opt, loss) == MLC_OK ? mlc_item(loss) : 0;
}

DO(mlc_lr_range)
{
    double                  rates[2], losses[2];
    const mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 2);
    mlc_optim_zero_grad(w->opt);
    return mlc_lr_range(w->opt, &d, range_step, w, NULL, NULL);
}

DO(mlc_optim_scaled)
{
    mlc_scaler_desc d = mlc_scaler_desc_make();
    mlc_status st = mlc_optim_scaler(w->opt, &d);
    return first_of(st, keep(w, mlc_optim_scaled(w->opt, w->x)));
}

/* ---- the training loop: without steps, as a step that was made before memory ran out stays --- */

static mlc_status skip_step(void *user, mlc_event e, mlc_fit_state *s)
{
    (void)user; (void)e;
    s->skip = true;
    return MLC_OK;
}

/* What to do with a training. */
enum { WHOLE, PIECES, SAVED, WRITTEN, RESUMED };

static mlc_status save_by_saver(world *w, const mlc_run *run)
{
    mlc_run_saver *saver = mlc_run_saver_create(w->ctx);
    mlc_status     st = made(w, saver);
    if (st == MLC_OK) st = mlc_run_saver_save(saver, to(w), run);
    if (st == MLC_OK) st = mlc_run_saver_wait(saver);
    mlc_run_saver_free(saver);
    return st;
}

static mlc_status fit_with(world *w, int what)
{
    const mlc_callback skip = {"skip", NULL, 1u << MLC_EVENT_STEP_BEGIN, skip_step, NULL, 0, NULL};
    mlc_callback      *list[1];
    mlc_fit_metric     metric = {"accuracy", NULL, true};
    mlc_fit_desc       d = mlc_fit_desc_make(mlc_cross_entropy);
    double             value = 0;
    mlc_optim_zero_grad(w->opt);
    w->loader = mlc_loader_shuffled(w->ctx, w->x, w->labels, 2);
    w->metric = metric.metric = mlc_metric_accuracy(w->ctx);
    list[0] = w->loader && w->metric ? mlc_callback_create(w->ctx, &skip) : NULL;
    if (!list[0]) return made(w, NULL);
    d.validation = w->loader;
    d.metrics = &metric;
    d.callbacks = list;
    d.n_metrics = d.n_callbacks = 1;
    mlc_status st = MLC_OK;
    if (what == WHOLE) st = mlc_fit(w->net, w->opt, w->loader, &d, NULL);
    else if (what != PIECES) {
        mlc_fit_state *s = mlc_fit_begin(w->net, w->opt, w->loader, &d);
        const mlc_run  run = mlc_fit_run(s);
        st = made(w, s);
        if (s && what == SAVED) st = mlc_run_save(w->ctx, to(w), &run);
        if (s && what == WRITTEN) st = save_by_saver(w, &run);
        if (s && what == RESUMED) st = mlc_fit_resume(s, in(w, "run.safetensors"));
        if (s) st = first_of(mlc_fit_end(s, NULL), st);
    } else {
        mlc_fit_state *s = mlc_fit_begin(w->net, w->opt, w->loader, &d);
        st = made(w, s);
        mlc_fit_step(s);
        if (s && st == MLC_OK) value = mlc_fit_loss(s);
        if (s && st == MLC_OK) st = mlc_fit_validate(s);
        if (s && st == MLC_OK) value += mlc_fit_value(s, "val_loss");
        if (s) st = first_of(mlc_fit_end(s, NULL), st);
    }
    mlc_callback_free(w->ctx, list[0]);
    return st != MLC_OK ? st : hash_value(w, value);
}

DO(mlc_fit)             { return fit_with(w, WHOLE); }
DO(mlc_fit_begin)       { return fit_with(w, PIECES); }
DO(mlc_fit_step)        { return fit_with(w, PIECES); }
DO(mlc_fit_end)         { return fit_with(w, PIECES); }
DO(mlc_fit_loss)        { return fit_with(w, PIECES); }
DO(mlc_fit_validate)    { return fit_with(w, PIECES); }
DO(mlc_fit_value)       { return fit_with(w, PIECES); }
DO(mlc_callback_create) { return fit_with(w, WHOLE); }
DO(mlc_fit_run)         { return fit_with(w, SAVED); }
DO(mlc_run_save)        { return fit_with(w, SAVED); }
DO(mlc_run_load)        { return fit_with(w, RESUMED); }
DO(mlc_run_saver_create) { return fit_with(w, WRITTEN); }
DO(mlc_run_saver_save)  { return fit_with(w, WRITTEN); }
DO(mlc_run_saver_wait)  { return fit_with(w, WRITTEN); }
DO(mlc_run_saver_free)  { return fit_with(w, WRITTEN); }
DO(mlc_fit_resume)      { return fit_with(w, RESUMED); }

/* ---- a sweep, whose trials take their memory from where it runs out, too --------------------- */

static mlc_status sweep_trial(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    (void)user;
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(3), t->values[0]);
    results[0] = mlc_item(mlc_sum_all(x));
    return mlc_ctx_status(ctx);
}

static mlc_status run_sweep(world *w, bool files)
{
    static const double      v[2] = {0.5, 0.25};
    static const char *const names[1] = {"loss"};
    const mlc_sweep_axis     axis = {"lr", v, 2};
    mlc_sweep_desc           d = mlc_sweep_desc_make(&axis, 1, names, 1);
    mlc_sweep               *s = NULL;
    d.ctx = test_desc();
    d.ctx.threads = 1;
    d.ctx.allocator.user = &w->mem;
    d.ctx.allocator.alloc = memory_alloc;
    d.ctx.allocator.release = memory_release;
    d.workers = 1;
    d.stop = true;
    mlc_status st = mlc_sweep_run(w->ctx, &d, sweep_trial, NULL, &s);
    if (st == MLC_OK) hash_value(w, mlc_sweep_trial(s, 0)->results[0]);
    if (st == MLC_OK) hash_value(w, mlc_sweep_point_at(s, 0)->mean[0]);
    if (st == MLC_OK) st = mlc_sweep_print(s, hash_text, w);
    if (st == MLC_OK && files) st = mlc_sweep_csv(s, to(w));
    mlc_sweep_free(s);
    return st;
}

DO(mlc_sweep_desc_make) { return run_sweep(w, false); }
DO(mlc_sweep_run)       { return run_sweep(w, false); }
DO(mlc_sweep_free)      { return run_sweep(w, false); }
DO(mlc_sweep_trial)     { return run_sweep(w, false); }
DO(mlc_sweep_point_at)  { return run_sweep(w, false); }
DO(mlc_sweep_print)     { return run_sweep(w, false); }
DO(mlc_sweep_csv)       { return run_sweep(w, true); }

/* ---- a tuner -------------------------------------------------------------------------------- */

/* Four random trials, then one by TPE, which fails without a trace in the record. */
static mlc_status run_tuner(world *w, bool files)
{
    static const char *const labels[2] = {"a", "b"};
    const mlc_tune_param     p[4] = {mlc_tune_real("x", 0, 1), mlc_tune_real_log("lr", 1e-3, 1),
                                     mlc_tune_whole_log("n", 1, 9),
                                     mlc_tune_choice("c", labels, 2)};
    const mlc_tune_result    r[2] = {mlc_tune_result_make("loss", 1),
                                     mlc_tune_result_make("ms", 0)};
    mlc_tune_desc            d = mlc_tune_desc_make(p, 4, r, 2);
    const mlc_tune_trial    *q, *front[8];
    d.startup = 4;
    d.trials = 6;
    d.method = files ? MLC_TUNE_HALVING : MLC_TUNE_TPE;
    mlc_tuner *t = mlc_tune_create(w->ctx, &d);
    mlc_status st = t ? MLC_OK : made(w, t);
    while (st == MLC_OK && (q = mlc_tune_ask(t)) != NULL) {
        const double y[2] = {q->values[0], q->values[1]};
        st = mlc_tune_tell(t, q->id, y);
        hash_value(w, mlc_tune_value(t, q, "lr"));
    }
    if (st == MLC_OK) st = mlc_ctx_status(w->ctx);
    if (st == MLC_OK) hash_value(w, mlc_tune_front(t, 0, 1, front, 8) > 0);
    if (st == MLC_OK) hash_value(w, mlc_tune_trial_at(t, 5)->objective);
    if (st == MLC_OK) hash_value(w, files || mlc_tune_best(t)->tells == 1);
    if (st == MLC_OK) st = mlc_tune_print(t, hash_text, w);
    if (st == MLC_OK && files) st = mlc_tune_plot(t, to(w));
    mlc_tune_free(t);
    return st;
}

DO(mlc_tune_desc_make)   { return run_tuner(w, false); }
DO(mlc_tune_real)        { return run_tuner(w, false); }
DO(mlc_tune_real_log)    { return run_tuner(w, false); }
SCENARIO(mlc_tune_whole, true)
{
    hash_value(w, mlc_tune_whole("n", 1, 2).high);
    return MLC_OK;
}
DO(mlc_tune_whole_log)   { return run_tuner(w, false); }
DO(mlc_tune_choice)      { return run_tuner(w, false); }
DO(mlc_tune_result_make) { return run_tuner(w, false); }
DO(mlc_tune_create)      { return run_tuner(w, false); }
DO(mlc_tune_free)        { return run_tuner(w, false); }
DO(mlc_tune_ask)         { return run_tuner(w, false); }
DO(mlc_tune_tell)        { return run_tuner(w, false); }
DO(mlc_tune_best)        { return run_tuner(w, false); }
DO(mlc_tune_trial_at)    { return run_tuner(w, false); }
DO(mlc_tune_value)       { return run_tuner(w, false); }
DO(mlc_tune_front)       { return run_tuner(w, false); }
DO(mlc_tune_print)       { return run_tuner(w, false); }
DO(mlc_tune_plot)        { return run_tuner(w, true); }

static double tune_measure(void *user, mlc_module *net)
{
    return mlc_item(mlc_mean_all(mlc_forward(net, (mlc_tensor *)user)));
}

static mlc_status run_tune_sketch(world *w)
{
    mlc_module *net = mlc_nn_sequential(w->ctx), *layer = mlc_nn_linear(w->ctx, 32, 32);
    mlc_tensor *x = mlc_full(w->ctx, MLC_F32, mlc_dims2(2, 32), 1);
    const bool  added = net && layer && mlc_module_add(net, layer) == MLC_OK;
    if (!added || !x) {
        mlc_module_free(net);
        if (!added) mlc_module_free(layer);
        return mlc_ctx_status(w->ctx);
    }
    mlc_tune_sketch_desc d = mlc_tune_sketch_desc_make(tune_measure, x, x);
    mlc_tuner           *t = NULL;
    d.trials = 2;
    d.repeats = 1;
    d.multiple = 4;
    d.ms = 0;
    d.bytes = 1;
    const mlc_status st = mlc_tune_sketch(net, &d, &t);
    if (st == MLC_OK) hash_value(w, mlc_tune_best(t)->mean[1]);
    mlc_tune_free(t);
    mlc_module_free(net);
    return st;
}

DO(mlc_tune_sketch_desc_make) { return run_tune_sketch(w); }
DO(mlc_tune_sketch)           { return run_tune_sketch(w); }

static mlc_status run_estimate(world *w)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    mlc_memory              out;
    const mlc_status        st = mlc_estimate_memory(w->net, mlc_dims2(7, 4), &d, &out);
    if (st == MLC_OK)
        w->text = hash_bytes(w->text, &out, sizeof out);
    return st;
}

DO(mlc_estimate_desc_make) { return run_estimate(w); }
DO(mlc_estimate_memory)    { return run_estimate(w); }

DO(mlc_estimate_batches)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    const int64_t           batches[2] = {1, 3};
    mlc_memory              out[2];
    return mlc_estimate_batches(w->net, mlc_dims2(7, 4), &d, batches, 2, out);
}

DO(mlc_estimate_print)
{
    const int64_t batch = 3;
    mlc_memory    out;
    memset(&out, 0, sizeof out);
    return mlc_estimate_print(w->ctx, &batch, 1, &out, hash_text, w);
}

/* The fastest batch, which takes its time, fails in test_memory_plan.c.                        */
DO(mlc_find_batch_size)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    mlc_batch_size_desc     f = mlc_batch_size_desc_make(w->ctx);
    int64_t                 batch = 0;
    f.bytes = 200000;
    f.most = 4;
    const mlc_status st = mlc_find_batch_size(w->net, mlc_dims2(1, 4), &d, &f, &batch);
    w->text = hash_bytes(w->text, &batch, sizeof batch);
    return st;
}

SCENARIO(mlc_batch_size_desc_make, true)
{
    return mlc_batch_size_desc_make(w->ctx).least == 1 ? MLC_OK : MLC_ERR_ARG;
}

DO(mlc_fixed_block_bytes)
{
    const mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    size_t                  bytes = 0;
    if (!mlc_ctx_on_host(w->ctx))
        return MLC_OK;
    const mlc_status st = mlc_fixed_block_bytes(w->net, mlc_dims2(7, 4), &d, &bytes);
    w->text = hash_bytes(w->text, &bytes, sizeof bytes);
    return st;
}

SCENARIO(mlc_machine_memory, true)
{
    (void)w;
    return mlc_machine_memory(NULL) >= 0 ? MLC_OK : MLC_ERR_ARG;
}

SCENARIO(mlc_memory_limit, true) { return mlc_memory_limit(w->ctx) >= 0 ? MLC_OK : MLC_ERR_ARG; }

/* A forward under a timeline. save: its chart, too, which is of what there was before and so is not
 * compared. */
static mlc_status run_timeline(world *w, bool save)
{
    int64_t       now[MLC_MEM_COUNT] = {0};
    mlc_timeline *t = mlc_timeline_begin(w->ctx, 50);
    if (t == NULL)
        return mlc_ctx_status(w->ctx);
    mlc_status st = made(w, mlc_forward(w->net, w->x));
    if (st == MLC_OK) {
        CHECK(mlc_timeline_count(t, NULL) > 0 && mlc_timeline_at(t, 0) != NULL);
        CHECK(mlc_timeline_peak(t, now) != NULL);
        CHECK_EQ(mlc_timeline_end(t), MLC_OK);
        st = save ? mlc_timeline_save(t, to(w)) : mlc_timeline_print(t, 0, discard, NULL);
    }
    mlc_timeline_free(t);
    if (st == MLC_OK && save)
        put_file(to(w), "new", 3);
    return st;
}

DO(mlc_timeline_begin) { return run_timeline(w, false); }
DO(mlc_timeline_end)   { return run_timeline(w, false); }
DO(mlc_timeline_free)  { return run_timeline(w, false); }
DO(mlc_timeline_count) { return run_timeline(w, false); }
DO(mlc_timeline_at)    { return run_timeline(w, false); }
DO(mlc_timeline_peak)  { return run_timeline(w, false); }
DO(mlc_timeline_print) { return run_timeline(w, false); }
DO(mlc_timeline_save)  { return run_timeline(w, true); }

DO(mlc_evaluate)
{
    const mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    double             loss;
    w->loader = mlc_loader_shuffled(w->ctx, w->x, w->labels, 2);
    if (!w->loader) return made(w, NULL);
    const mlc_status st = mlc_evaluate(w->net, w->loader, &d, &loss);
    return st != MLC_OK ? st : hash_value(w, loss);
}

/* One row, so that bits are the same: what runs out has its layers recomputed, or is an error. */
DO(mlc_budget_step)
{
    const mlc_fit_desc d = mlc_fit_desc_make(mlc_mse_loss);
    mlc_module        *part[2] = {mlc_nn_linear(w->ctx, 3, 2), mlc_nn_batch_norm(w->ctx, 2)};
    mlc_module        *m = made_of(mlc_nn_sequential_of(w->ctx, 2, part), 2, part);
    mlc_budget         budget = mlc_budget_make(m);
    mlc_optim         *o = own_module(w, m) ? mlc_sgd(m, 0.1) : NULL;
    mlc_batch          b;
    double             loss = 0;
    memset(&b, 0, sizeof b);
    b.n = 1;
    b.x = o ? mlc_ones(w->ctx, MLC_F32, mlc_dims2(1, 3)) : NULL;
    b.y = b.x ? mlc_ones(w->ctx, MLC_F32, mlc_dims2(1, 2)) : NULL;
    mlc_module_train(m, false);
    const mlc_status st = b.y ? mlc_budget_step(m, o, &b, &d, &budget, &loss)
                              : mlc_ctx_status(w->ctx);
    mlc_optim_free(o);
    return st != MLC_OK ? st : hash_value(w, loss);
}

DO(mlc_budget_make)
{
    return hash_value(w, (double)mlc_budget_make(w->net).parts);
}

DO(mlc_predict)
{
    w->loader = mlc_loader_shuffled(w->ctx, w->x, NULL, 2);
    return w->loader ? keep(w, mlc_predict(w->net, w->loader)) : made(w, NULL);
}

DO(mlc_fit_cross_entropy)
{
    mlc_cross_entropy_desc ce = mlc_cross_entropy_desc_make();
    mlc_batch              b;
    mlc_tensor            *output;
    memset(&b, 0, sizeof b);
    b.x = w->x;
    b.y = w->labels;
    return keep(w, mlc_fit_cross_entropy(&ce, w->net, &b, &output));
}
