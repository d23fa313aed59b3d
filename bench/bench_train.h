/* bench_train.h -- cases of what surrounds a step of training; bench.c includes it
 *
 * loss_ metric_ optim_sched_ callback_ train_ mem_: losses with their gradients, metrics,
 * schedules, callbacks of mlc_fit, and whole steps of networks of 10 thousand to 100 million
 * parameters.                                                                                    */

/* ---- loss_: a loss with its gradient, and the time of MSE beside it ----------------------- */

static mlc_tensor *channels(mlc_tensor *x) { return mlc_reshape(x, mlc_dims3(20, 5, 10000)); }

/* The tensors that a loss takes: x is s->a, others are of its shape or one for each row. */
#define LOSS(name, call) static mlc_tensor *loss_##name(state *s) { return call; }
LOSS(mse, mlc_mse_loss(s->a, s->b))
LOSS(cross_entropy, mlc_cross_entropy(s->a, s->labels))
LOSS(l1, mlc_l1_loss(s->a, s->b))
LOSS(smooth_l1, mlc_smooth_l1_loss(s->a, s->b))
LOSS(huber, mlc_huber_loss(s->a, s->b))
LOSS(bce, mlc_bce_loss(s->a, s->b))
LOSS(bce_with_logits, mlc_bce_with_logits(s->a, s->b))
LOSS(focal, mlc_focal_loss(s->a, s->b))
LOSS(kl_div, mlc_kl_div(s->a, s->b))
LOSS(hinge, mlc_hinge_loss(s->a, s->b))
LOSS(hinge_embedding, mlc_hinge_embedding_loss(s->a, s->b))
LOSS(nll, mlc_nll_loss(s->a, s->labels))
LOSS(poly1_cross_entropy, mlc_poly1_cross_entropy(s->a, s->labels))
LOSS(distillation, mlc_distillation_loss(s->a, s->b, s->labels))
LOSS(dice, mlc_dice_loss(channels(s->a), channels(s->b)))
LOSS(tversky, mlc_tversky_loss(channels(s->a), channels(s->b)))
LOSS(triplet_margin, mlc_triplet_margin_loss(s->a, s->b, s->p))
LOSS(contrastive, mlc_contrastive_loss(s->a, s->b, s->row))
LOSS(cosine_embedding, mlc_cosine_embedding_loss(s->a, s->b, s->row))
LOSS(multilabel_margin, mlc_multilabel_margin_loss(s->a, s->index))

typedef struct loss_op {
    const char  *name;
    mlc_tensor *(*call)(state *);
    double       lo, hi, from, to;        /* of x, of a target of its shape                     */
    bool         signs;                   /* targets are -1 and 1                               */
    int64_t      m, n;
} loss_op;

#define LOSS_OP(name, ...) { "loss_" #name "_1000x1000", loss_##name, __VA_ARGS__, 1000, 1000 }

static const loss_op losses[] = {
    LOSS_OP(mse, -4, 4, -4, 4, false), LOSS_OP(cross_entropy, -4, 4, -4, 4, false),
    LOSS_OP(l1, -4, 4, -4, 4, false), LOSS_OP(smooth_l1, -4, 4, -4, 4, false),
    LOSS_OP(huber, -4, 4, -4, 4, false), LOSS_OP(bce, 0.01, 0.99, 0, 1, false),
    LOSS_OP(bce_with_logits, -4, 4, 0, 1, false), LOSS_OP(focal, -4, 4, 0, 1, false),
    LOSS_OP(kl_div, -4, 0, 0.01, 1, false), LOSS_OP(hinge, -4, 4, -1, 1, true),
    LOSS_OP(hinge_embedding, 0, 4, -1, 1, true), LOSS_OP(nll, -4, 0, -4, 4, false),
    LOSS_OP(poly1_cross_entropy, -4, 4, -4, 4, false), LOSS_OP(distillation, -4, 4, -4, 4, false),
    LOSS_OP(dice, 0.01, 0.99, 0, 1, false), LOSS_OP(tversky, 0.01, 0.99, 0, 1, false),
    LOSS_OP(triplet_margin, -4, 4, -4, 4, false), LOSS_OP(contrastive, -4, 4, -4, 4, false),
    LOSS_OP(cosine_embedding, -4, 4, -4, 4, true),
    { "loss_multilabel_margin_100000x10", loss_multilabel_margin, -4, 4, -4, 4, false, 100000, 10 },
};
enum { LOSSES = sizeof losses / sizeof *losses };

static mlc_tensor *loss_there_and_back(state *s, mlc_tensor *(*call)(state *))
{
    mlc_tensor *loss = call(s);
    mlc_backward(loss);
    mlc_zero_grad(s->a);
    return loss;
}

static mlc_tensor *loss_apply(state *s) { return loss_there_and_back(s, losses[s->bc->op].call); }

/* MSE of as many elements. */
static void loss_probe(void *arg, double rate[2])
{
    enum { LOOPS = 50 };
    state *s = (state *)arg;
    double start = bench_now();
    for (int i = 0; i < LOOPS; i++) {
        mlc_scope_begin(s->ctx);
        loss_there_and_back(s, loss_mse);
        mlc_scope_end(s->ctx);
    }
    rate[0] = LOOPS * s->bc->work / spent_since(s, start);
}

/* The gradient of one row against the formula; the loss itself is row_cross_entropy's case. */
static bool loss_check_row(state *s, const double *x, const double *t, const double *g)
{
    const bool    entropy = losses[s->bc->op].call == loss_cross_entropy;
    const int64_t m = s->bc->m, n = s->bc->n, i = m / 2;
    const double  lse = entropy_ref(x + i * n, n, 0) + x[i * n];
    for (int64_t j = i * n; j < (i + 1) * n; j++) {
        double want = entropy ? (exp(x[j] - lse) - (j - i * n == i * 7 % n)) / (double)m
                              : 2 * (x[j] - t[j]) / (double)(m * n);
        if (!near(s, "a gradient", g[j] * (double)m, want * (double)m, 16)) return false;
    }
    return true;
}

/* The loss at x + step g, in f64. */
static double loss_at(state *s, const double *x, const double *g, double step)
{
    const int64_t n = s->bc->m * s->bc->n;
    double       *at = (double *)malloc((size_t)n * sizeof *at), loss = NAN;
    mlc_tensor   *x32 = s->a, *b32 = s->b, *p32 = s->p;
    for (int64_t i = 0; at && i < n; i++) at[i] = x[i] + step * g[i];
    if (at) {
        s->a = mlc_from(s->ctx, MLC_F64, mlc_dims2(s->bc->m, s->bc->n), at);
        s->b = mlc_cast(b32, MLC_F64);
        s->p = mlc_cast(p32, MLC_F64);
        loss = mlc_item(losses[s->bc->op].call(s));
    }
    s->a = x32;
    s->b = b32;
    s->p = p32;
    free(at);
    return loss;
}

/* Along its own gradient g a loss rises by |g|^2; tests/test_loss.c has the values. */
static bool loss_check_slope(state *s, const double *x, const double *g)
{
    double square = 0;
    for (int64_t i = 0; i < s->bc->m * s->bc->n; i++) square += g[i] * g[i];
    const double step = 1e-4 * loss_at(s, x, g, 0) / square;
    const double rise = loss_at(s, x, g, step) - loss_at(s, x, g, -step);
    if (fabs(rise / (2 * step * square) - 1) < 1e-3) return true;
    fprintf(stderr, "%s: WRONG: the loss rises by %g of what its gradient says\n", s->bc->name,
            rise / (2 * step * square));
    return false;
}

/* Labels, signs of rows and, for multilabel_margin, two labels of each row and then -1. */
static void loss_targets(state *s, const loss_op *op)
{
    const int64_t m = op->m, n = op->n;
    s->labels = labels_of(s, m, n);
    s->row = op->call == loss_contrastive ? mlc_cast(labels_of(s, m, 2), MLC_F32)
                                          : mlc_sign(values(s, mlc_dims1(m), -1, 1, NULL));
    if (op->signs) s->b = mlc_sign(s->b);
    if (op->call != loss_multilabel_margin) return;
    mlc_tensor *list[3] = { labels_of(s, m, n), mlc_add_scalar(labels_of(s, m, n - 1), 1),
                            mlc_full(s->ctx, MLC_I64, mlc_dims2(m, n - 2), -1) };
    for (int i = 0; i < 2; i++) list[i] = mlc_reshape(list[i], mlc_dims2(m, 1));
    s->index = mlc_concat(list, 3, 1);
}

static bool loss_setup(state *s)
{
    const loss_op *op = &losses[s->bc->op];
    const mlc_dims dims = mlc_dims2(op->m, op->n);
    double  *x = NULL, *t = NULL, *g;
    bool     ok;
    s->a = values(s, dims, op->lo, op->hi, &x);
    s->b = values(s, dims, op->from, op->to, &t);
    s->p = values(s, dims, op->lo, op->hi, NULL);
    loss_targets(s, op);
    mlc_set_requires_grad(s->a, true);
    mlc_scope_begin(s->ctx);
    mlc_backward(op->call(s));
    g  = fetch(mlc_grad(s->a));
    ok = x && t && g;
    if (op->call == loss_mse || op->call == loss_cross_entropy)
        ok = ok && loss_check_row(s, x, t, g);
    else ok = ok && loss_check_slope(s, x, g);
    mlc_zero_grad(s->a);
    mlc_scope_end(s->ctx);
    free(x);
    free(t);
    free(g);
    return ok;
}

static void add_losses(void)
{
    for (int i = 0; i < LOSSES; i++) {
        add_other(losses[i].name, "Melem/s", 1, loss_setup, run_apply, losses[i].m, losses[i].n, 0,
                  i);
        cases[n_cases - 1].apply = loss_apply;
        cases[n_cases - 1].probe = loss_probe;
        cases[n_cases - 1].beside = "MSE";
        cases[n_cases - 1].form = BESIDE_TIMES;
    }
}

/* ---- loss_ctc_: from logits and back ---------------------------------------------------- */

enum { CTC_B = 32, CTC_T = 200, CTC_C = 64, CTC_MOST = 50 };

/* Targets of 20 to 50 labels, of which some repeat. */
static void ctc_targets(state *s)
{
    static int64_t y[CTC_B * CTC_MOST], in[CTC_B], n[CTC_B];
    for (int64_t i = 0; i < CTC_B * CTC_MOST; i++) y[i] = 1 + i / 2 * 7 % (CTC_C - 1);
    for (int64_t i = 0; i < CTC_B; i++) {
        in[i] = CTC_T;
        n[i] = 20 + i * 30 / (CTC_B - 1);
    }
    s->labels = mlc_from(s->ctx, MLC_I64, mlc_dims2(CTC_B, CTC_MOST), y);
    s->index = mlc_from(s->ctx, MLC_I64, mlc_dims1(CTC_B), in);
    s->rows = mlc_from(s->ctx, MLC_I64, mlc_dims1(CTC_B), n);
}

static mlc_tensor *loss_ctc(state *s)
{
    return mlc_ctc_loss(mlc_log_softmax(s->a, 2), s->labels, s->index, s->rows);
}

static mlc_tensor *ctc_apply(state *s) { return loss_there_and_back(s, loss_ctc); }

/* Along its gradient g the loss in f64 rises by |g|^2. */
static bool ctc_setup(state *s)
{
    double square, rise;
    ctc_targets(s);
    s->a = values(s, mlc_dims3(CTC_B, CTC_T, CTC_C), -4, 4, NULL);
    mlc_set_requires_grad(s->a, true);
    mlc_scope_begin(s->ctx);
    mlc_backward(loss_ctc(s));
    mlc_tensor *x32 = s->a, *x = mlc_cast(mlc_detach(x32), MLC_F64);
    mlc_tensor *g = mlc_cast(mlc_grad(x32), MLC_F64);
    square = mlc_item(mlc_sum(mlc_mul(g, g), mlc_dims0(), false));
    s->a = mlc_add(x, g);
    rise = mlc_item(loss_ctc(s));
    s->a = mlc_sub(x, g);
    rise = (rise - mlc_item(loss_ctc(s))) / 2;
    s->a = x32;
    mlc_zero_grad(s->a);
    if (fabs(rise / square - 1) > 1e-3)
        fprintf(stderr, "%s: WRONG: the loss rises by %g of what its gradient says\n", s->bc->name,
                rise / square);
    return mlc_scope_end(s->ctx) == MLC_OK && fabs(rise / square - 1) <= 1e-3;
}

static void add_ctc(void)
{
    bench_case *c = add("loss_ctc_b32_t200", MLC_F32, "sequences/s", CTC_B);
    c->setup = ctc_setup;
    c->run   = run_apply;
    c->apply = ctc_apply;
}

/* ---- metric_: a million rows, from an empty metric to its value ------------------------------ */

enum { METRIC_AUC, METRIC_AP, METRIC_ACCURACY, METRIC_TOP5, METRIC_LOG_LOSS, METRIC_MSE, METRIC_MAE,
       METRIC_R2, METRIC_F1, METRIC_BALANCED, METRIC_CONFUSION };

static mlc_metric *metric_of(mlc_ctx *ctx, int op, int64_t classes)
{
    switch (op) {
    case METRIC_AUC:      return mlc_metric_auc(ctx, 1);
    case METRIC_AP:       return mlc_metric_average_precision(ctx, 1);
    case METRIC_ACCURACY: return mlc_metric_accuracy(ctx);
    case METRIC_TOP5:     return mlc_metric_topk(ctx, 5);
    case METRIC_LOG_LOSS: return mlc_metric_log_loss(ctx);
    case METRIC_MSE:      return mlc_metric_mse(ctx);
    case METRIC_MAE:      return mlc_metric_mae(ctx);
    case METRIC_R2:       return mlc_metric_r2(ctx);
    case METRIC_F1:       return mlc_metric_f(ctx, classes, 1, MLC_AVERAGING_MACRO);
    case METRIC_BALANCED: return mlc_metric_balanced_accuracy(ctx, classes);
    default:              return mlc_metric_confusion(ctx, classes);
    }
}

static double metric_run(void *arg, int64_t loops)
{
    state          *s = (state *)arg;
    volatile double value = 0;
    double          start = bench_now();
    for (int64_t i = 0; i < loops; i++) {
        mlc_scope_begin(s->ctx);
        mlc_metric_reset(s->metric);
        mlc_metric_update(s->metric, s->a, s->b ? s->b : s->labels, NULL);
        value = value + mlc_metric_value(s->metric);
        mlc_scope_end(s->ctx);
    }
    return spent_since(s, start);
}

/* Pairs in order, or the mean of precision over rows of the class, of n rows by definition. */
static double metric_area(int op, const double *p, const double *y, int64_t n)
{
    double sum = 0, has = 0;
    for (int64_t i = 0; i < n; i++) {
        double above = 0, right = 0, pairs = 0;
        for (int64_t j = 0; j < n; j++) {
            above += p[j] >= p[i];
            right += p[j] >= p[i] && y[j] > 0;
            pairs += y[j] > 0 ? 0 : p[j] < p[i] ? 1 : p[j] == p[i] ? 0.5 : 0;
        }
        if (y[i] > 0) sum += op == METRIC_AUC ? pairs : right / above;
        has += y[i] > 0;
    }
    return op == METRIC_AUC ? sum / (has * ((double)n - has)) : sum / has;
}

/* A mean over n rows of c scores, or of two values. */
static double metric_mean(int op, const double *p, const double *y, int64_t n, int64_t c)
{
    double sum = 0, mean = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double *x = c > 1 ? p + i * c : p + i, own = c > 1 ? x[(int64_t)y[i]] : x[0];
        int           before = 0, above = 0;
        for (int64_t j = 0; c > 1 && j < c; j++) {
            above  += x[j] > own || (x[j] == own && j < (int64_t)y[i]);
            before += x[j] > own || (x[j] == own && j > (int64_t)y[i]);
        }
        sum += op == METRIC_LOG_LOSS ? -log(own) : op == METRIC_TOP5 ? before < 5
             : c > 1 ? above == 0 : op >= METRIC_F1 ? own == y[i]
             : op == METRIC_MAE ? fabs(own - y[i]) : (own - y[i]) * (own - y[i]);
        mean += y[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) squares += (y[i] - mean) * (y[i] - mean);
    return op == METRIC_R2 ? 1 - sum / squares : sum / (double)n;
}

/* k: 0 labels are predicted, else k scores a row. The first 1000 rows are verified; of F1 and
 * balanced accuracy the confusion matrix that they are made of. */
static bool metric_setup(state *s)
{
    const int     op = s->bc->op;
    const int64_t rows = s->bc->m, c = s->bc->k, some = 1000, classes = s->bc->n;
    s->metric = metric_of(s->ctx, op, classes);
    s->a      = values(s, c > 1 ? mlc_dims2(rows, c) : mlc_dims1(rows), 0.01, 1, NULL);
    if (op >= METRIC_MSE && op <= METRIC_R2) s->b = values(s, mlc_dims1(rows), 0, 1, NULL);
    else s->labels = labels_of(s, rows, classes);
    if (c > 1) s->a = mlc_div(s->a, mlc_sum(s->a, mlc_dims1(1), true));
    if (!c) s->a = mlc_cast(mlc_mul_scalar(s->a, (double)classes), MLC_I64);
    mlc_tensor *t = s->b ? s->b : s->labels;
    double     *p = fetch(mlc_rows(s->a, 0, some)), *y = fetch(mlc_rows(t, 0, some));
    mlc_metric *check = op == METRIC_F1 || op == METRIC_BALANCED
                            ? mlc_metric_confusion(s->ctx, classes) : s->metric;
    mlc_metric_update(check, mlc_rows(s->a, 0, some), mlc_rows(t, 0, some), NULL);
    const double got = mlc_metric_value(check);
    const double want = !p || !y ? NAN : op <= METRIC_AP ? metric_area(op, p, y, some)
                                                         : metric_mean(op, p, y, some, c);
    free(p);
    free(y);
    return near(s, "the value of 1000 rows", got, want, 100);
}

static void add_metrics(void)
{
    static const struct { const char *name; int op; int64_t classes, scores; } list[] = {
        { "metric_auc_1m", METRIC_AUC, 2, 1 },
        { "metric_ap_1m", METRIC_AP, 2, 1 },
        { "metric_accuracy_1m", METRIC_ACCURACY, 10, 10 },
        { "metric_top5_1m", METRIC_TOP5, 10, 10 },
        { "metric_log_loss_1m", METRIC_LOG_LOSS, 10, 10 },
        { "metric_mse_1m", METRIC_MSE, 1, 1 },
        { "metric_mae_1m", METRIC_MAE, 1, 1 },
        { "metric_r2_1m", METRIC_R2, 1, 1 },
        { "metric_f1_1m", METRIC_F1, 10, 0 },
        { "metric_balanced_accuracy_1m", METRIC_BALANCED, 10, 0 },
        { "metric_confusion_1m", METRIC_CONFUSION, 10, 0 },
    };
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++)
        add_other(list[i].name, "Mrow/s", 1, metric_setup, metric_run, 1000000, list[i].classes,
                  list[i].scores, list[i].op);
}

/* ---- optim_sched_: a schedule's factor ------------------------------------------------------ */

#define SCHEDS 16

static double sched_user(void *user, int64_t t) { return *(const double *)user / (double)(t + 1); }

/* The numbers that must stay are in these arrays. */
static mlc_sched sched_of(int i, const char **name)
{
    static const char *const names[SCHEDS] = {
        "constant", "step", "multi_step", "exponential", "cosine", "cosine_restarts", "polynomial",
        "linear", "wsd", "noam", "inverse_sqrt", "user", "one_cycle", "cyclic", "warmup",
        "sequence" };
    static const int64_t at[] = { 300, 600, 900 }, starts[] = { 0, 100, 800 };
    static double        one = 1;
    static mlc_sched     parts[3];
    const mlc_sched      cosine = mlc_sched_cosine(1000, 0.1);
    parts[0] = mlc_sched_linear(100, 0.1, 1);
    parts[1] = mlc_sched_constant(1);
    parts[2] = cosine;
    *name = names[i];
    switch (i) {
    case 0:  return mlc_sched_constant(0.5);
    case 1:  return mlc_sched_step(30, 0.9);
    case 2:  return mlc_sched_multi_step(at, 3, 0.1);
    case 3:  return mlc_sched_exponential(0.999);
    case 4:  return cosine;
    case 5:  return mlc_sched_cosine_restarts(10, 2, 0);
    case 6:  return mlc_sched_polynomial(1000, 2, 0);
    case 7:  return mlc_sched_linear(1000, 1, 0.1);
    case 8:  return mlc_sched_wsd(100, 500, 400, 0, MLC_CURVE_SQRT);
    case 9:  return mlc_sched_noam(512, 400);
    case 10: return mlc_sched_inverse_sqrt(400);
    case 11: return mlc_sched_user(sched_user, &one);
    case 12: return mlc_sched_one_cycle(1000);
    case 13: return mlc_sched_cyclic(20, 0.1);
    case 14: return mlc_sched_warmup(100, &cosine);
    default: return mlc_sched_sequence(parts, starts, 3);
    }
}

static double sched_run(void *arg, int64_t loops)
{
    state          *s = (state *)arg;
    const char     *name;
    const mlc_sched sched = sched_of(s->bc->op, &name);
    volatile double sum = 0;
    double          start = bench_now();
    for (int64_t i = 0; i < loops; i++) sum = sum + mlc_sched_at(&sched, i % 1000);
    return spent_since(s, start);
}

/* Any order gives the same factors, and none is bad. */
static bool sched_setup(state *s)
{
    const char     *name;
    const mlc_sched sched = sched_of(s->bc->op, &name);
    double          up = 0, down = 0;
    for (int i = 0; i < 1000; i++) up += mlc_sched_at(&sched, i) * (i + 1);
    for (int i = 999; i >= 0; i--) down += mlc_sched_at(&sched, i) * (i + 1);
    return up > 0 && fabs(up - down) <= 1e-9 * up;
}

static void add_scheds(void)
{
    for (int i = 0; i < SCHEDS; i++) {
        static char names[SCHEDS][40];
        const char *name;
        sched_of(i, &name);
        snprintf(names[i], sizeof names[i], "optim_sched_%s", name);
        add_other(names[i], "M/s", 1e-6, sched_setup, sched_run, 0, 0, 0, i);
    }
}

/* ---- callback_: what mlc_fit and its callbacks add to a step of a small network ------------- */

static mlc_status do_nothing(void *user, mlc_event event, mlc_fit_state *f)
{
    (void)user; (void)event; (void)f;
    return MLC_OK;
}

static mlc_callback *idle(mlc_ctx *ctx)
{
    mlc_callback c;
    memset(&c, 0, sizeof c);
    c.events = 1u << MLC_EVENT_BATCH_END;
    c.on = do_nothing;
    return mlc_callback_create(ctx, &c);
}

static void no_text(void *user, const char *text, size_t n) { (void)user; (void)text; (void)n; }

static mlc_callback *progress(mlc_ctx *ctx) { return mlc_on_progress(ctx, no_text, NULL); }
static mlc_callback *csv(mlc_ctx *ctx) { return mlc_on_csv(ctx, "build/bench_history.csv"); }
static mlc_callback *json(mlc_ctx *ctx) { return mlc_on_json(ctx, "build/bench_history.jsonl"); }
static mlc_callback *nan_stop(mlc_ctx *ctx) { return mlc_on_nan(ctx, 1); }
static mlc_callback *memory(mlc_ctx *ctx) { return mlc_on_memory(ctx, (int64_t)1 << 40); }
static mlc_callback *time_limit(mlc_ctx *ctx) { return mlc_on_time_limit(ctx, 1e9); }

static mlc_callback *early_stop(mlc_ctx *ctx)
{
    mlc_early_stop_desc d = mlc_early_stop_desc_make();
    d.name = "loss";
    return mlc_on_early_stop(ctx, &d);
}

static mlc_callback *gradients(mlc_ctx *ctx)
{
    mlc_gradients_desc d = mlc_gradients_desc_make();
    d.write = no_text;
    return mlc_on_gradients(ctx, &d);
}

static mlc_callback *histograms(mlc_ctx *ctx)
{
    remove("build/bench_histograms.jsonl");
    return mlc_on_histograms(ctx, "build/bench_histograms.jsonl", 100);
}

/* Each batch is measured. */
static mlc_callback *profile(mlc_ctx *ctx)
{
    mlc_profile_desc d = mlc_profile_desc_make();
    d.wait = d.warmup = 0;
    d.active = 1000;
    d.write = no_text;
    return mlc_on_profile(ctx, &d);
}

static mlc_callback *checkpoint(mlc_ctx *ctx)
{
    const mlc_checkpoint_desc d = mlc_checkpoint_desc_make("build/bench_run");
    return mlc_on_checkpoint(ctx, &d);
}

static mlc_callback *checkpoint_async(mlc_ctx *ctx)
{
    mlc_checkpoint_desc d = mlc_checkpoint_desc_make("build/bench_run");
    d.async = true;
    return mlc_on_checkpoint(ctx, &d);
}

/* The cost of work that is done once an epoch, such as a file, is divided among its 1000 steps. */
typedef struct callback_op {
    const char   *name;
    mlc_callback *(*make)(mlc_ctx *ctx);
    int32_t       times;                  /* how often it is in the list                        */
} callback_op;

enum { CALLBACK_BY_HAND, CALLBACK_FIT, CALLBACK_MOST = 200 };

static const callback_op callbacks[] = {
    { "callback_loop_by_hand", NULL, 0 }, { "callback_fit", NULL, 0 },
    { "callback_fit_200_idle", idle, CALLBACK_MOST }, { "callback_progress", progress, 1 },
    { "callback_csv", csv, 1 }, { "callback_json", json, 1 },
    { "callback_early_stop", early_stop, 1 }, { "callback_nan", nan_stop, 1 },
    { "callback_memory", memory, 1 }, { "callback_time_limit", time_limit, 1 },
    { "callback_gradients", gradients, 1 }, { "callback_histograms", histograms, 1 },
    { "callback_profile", profile, 1 }, { "callback_checkpoint", checkpoint, 1 },
    { "callback_checkpoint_async", checkpoint_async, 1 },
};

static bool epoch_by_hand(state *s)
{
    mlc_batch b;
    double    sum = 0;
    while (mlc_loader_next(s->loader, &b)) {
        mlc_scope_begin(s->ctx);
        mlc_tensor *loss = mlc_cross_entropy(mlc_forward(s->net, b.x), b.y);
        sum += mlc_item(loss) * (double)b.n;
        mlc_optim_minimize(s->opt, loss);
        if (mlc_scope_end(s->ctx) != MLC_OK) return false;
    }
    return sum > 0;
}

static bool epoch_by_fit(state *s, int32_t times)
{
    mlc_callback *list[CALLBACK_MOST];
    mlc_fit_desc  d = mlc_fit_desc_make(mlc_cross_entropy);
    for (int i = 0; i < times; i++) list[i] = s->callback;
    d.callbacks = list;
    d.n_callbacks = times;
    return mlc_fit(s->net, s->opt, s->loader, &d, NULL) == MLC_OK;
}

static double callback_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops; i++)
        if (s->bc->op == CALLBACK_BY_HAND ? !epoch_by_hand(s)
                                          : !epoch_by_fit(s, callbacks[s->bc->op].times)) break;
    return spent_since(s, start);
}

/* Of mlc_fit the loop by hand, of a callback mlc_fit alone. */
static void callback_probe(void *arg, double rate[2])
{
    enum { EPOCHS = 100 };
    state *s = (state *)arg;
    double start = bench_now();
    for (int i = 0; i < EPOCHS; i++)
        if (s->bc->op == CALLBACK_FIT ? !epoch_by_hand(s) : !epoch_by_fit(s, 0)) break;
    rate[0] = EPOCHS * s->bc->work / spent_since(s, start);
}

static bool callback_setup(state *s)
{
    const callback_op *op = &callbacks[s->bc->op];
    s->net = MLC_SEQUENTIAL(s->ctx, mlc_nn_linear(s->ctx, 4, 4), mlc_nn_relu(s->ctx),
                            mlc_nn_linear(s->ctx, 4, 3));
    s->opt = mlc_sgd(s->net, 1e-3);
    mlc_loader_desc d = mlc_loader_desc_make(mlc_randn(s->ctx, MLC_F32, mlc_dims2(s->bc->m, 4)),
                                             labels_of(s, s->bc->m, 3), s->bc->n);
    s->loader = mlc_loader_create(s->ctx, &d);
    if (op->make) s->callback = op->make(s->ctx);
    return epoch_by_hand(s) && epoch_by_fit(s, op->times);
}

static void add_callbacks(void)
{
    for (int i = 0; i < (int)(sizeof callbacks / sizeof *callbacks); i++) {
        add_other(callbacks[i].name, "steps/s", 1000, callback_setup, callback_run, 4000, 4, 0, i);
        bench_case *c = &cases[n_cases - 1];
        c->one_thread = true;
        if (i == CALLBACK_BY_HAND) continue;
        c->probe = callback_probe;
        c->beside = i == CALLBACK_FIT ? "by hand" : "fit";
        c->form = BESIDE_MORE;
        c->k = callbacks[i].times > 1 ? callbacks[i].times : 1;
    }
}

/* ---- train_: steps of networks by their size, batch and rule -------------------------------- */

static const struct { const char *name; shape net; } train_nets[] = {
    { "10k",  { { 64, 80, 56, 10, 0 }, 3, false } },
    { "100k", { { 256, 224, 184, 10, 0 }, 3, false } },
    { "1m",   { { 512, 768, 768, 10, 0 }, 3, false } },
    { "10m",  { { 1024, 2048, 2048, 1792, 10 }, 4, false } },
    { "100m", { { 4096, 6144, 6144, 5888, 10 }, 4, false } },
};

/* An ascent before each step of SGD with momentum, as in the paper. */
static mlc_optim *sam(mlc_module *m, double lr)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(lr);
    d.momentum = 0.9;
    mlc_optim *opt = mlc_sgd_ex(m, &d);
    mlc_optim_sam(opt, 0.05, false);
    return opt;
}

static const struct { const char *name; mlc_optim *(*make)(mlc_module *m, double lr); double lr; }
train_rules[] = {
    { "sgd", mlc_sgd, 1e-2 }, { "adam", mlc_adam, 1e-4 }, { "adamw", mlc_adamw, 1e-4 },
    { "lamb", mlc_lamb, 1e-3 }, { "sam", sam, 1e-3 }, { "sophia", mlc_sophia, 1e-5 },
};
enum { TRAIN_SGD, TRAIN_ADAM, TRAIN_ADAMW, TRAIN_LAMB, TRAIN_SAM, TRAIN_SOPHIA, TRAIN_RULES,
       TRAIN_CURVATURE = 10,              /* Sophia looks at the curvature at each tenth step    */
       TRAIN_FIRST = 2 };                 /* of train_nets; those before it are of mem_ alone    */

static mlc_tensor *train_loss(void *user)
{
    const state *s = (const state *)user;
    return mlc_cross_entropy(mlc_forward(s->net, s->a), s->labels);
}

/* How many steps an iteration is: all of Sophia's between two looks. */
static int train_steps(int rule) { return rule == TRAIN_SOPHIA ? TRAIN_CURVATURE : 1; }

static bool train_iteration(state *s, double *loss)
{
    bool ok = s->bc->op != TRAIN_SOPHIA ||
              mlc_optim_curvature_with(s->opt, train_loss, s, 1) == MLC_OK;
    for (int i = 0; ok && i < train_steps(s->bc->op); i++)
        ok = mlc_optim_step_with(s->opt, train_loss, s, loss) == MLC_OK;
    return ok;
}

static double train_run(void *arg, int64_t loops)
{
    state *s = (state *)arg;
    double start = bench_now();
    for (int64_t i = 0; i < loops && train_iteration(s, NULL); i++) { }
    return spent_since(s, start);
}

/* The loss falls; mlp_ cases have its values, tests/test_rules.c those of the rules. */
static bool train_net_setup(state *s)
{
    const shape *p = &train_nets[s->bc->k].net;
    double       first = 0, last = 0;
    s->a      = values(s, mlc_dims2(s->bc->m, p->width[0]), 0, 1, NULL);
    s->labels = labels_of(s, s->bc->m, 10);
    s->net    = net_of(s->ctx, p);
    s->opt    = train_rules[s->bc->op].make(s->net, train_rules[s->bc->op].lr);
    for (int i = 0; i < (s->bc->op == TRAIN_SOPHIA ? 2 : 5); i++)
        if (!train_iteration(s, i ? &last : &first)) return false;
    if (last < first) return true;
    fprintf(stderr, "%s: WRONG: the loss rises, %g to %g\n", s->bc->name, first, last);
    return false;
}

/* 100 million parameters take 1.6 GB with Adam, 4.5 GB where Sophia looks at the curvature.     */
static void add_trainings(void)
{
    static const int64_t batch[2] = { 32, 128 };
    static char          names[3][2][TRAIN_RULES][40];
    const int            sizes = bench_free_memory() > 6e9 ? 3 : 2;
    for (int i = 0; i < sizes * 2 * TRAIN_RULES; i++) {
        const int     size = i / TRAIN_RULES / 2, b = i / TRAIN_RULES % 2, rule = i % TRAIN_RULES;
        const int64_t m = batch[b];
        char         *name = names[size][b][rule];
        snprintf(name, sizeof names[0][0][0], "train_%s_b%d_%s",
                 train_nets[TRAIN_FIRST + size].name, (int)m, train_rules[rule].name);
        add_other(name, "samples/s", (double)(m * train_steps(rule)), train_net_setup, train_run, m,
                  0, TRAIN_FIRST + size, rule);
    }
}

/* ---- mem_: what a training holds, for bench/memory.py; setups make nothing large beside it --- */

static bool mem_setup(state *s)
{
    const shape *p = &train_nets[s->bc->k].net;
    s->a      = mlc_randn(s->ctx, MLC_F32, mlc_dims2(s->bc->m, p->width[0]));
    s->labels = labels_of(s, s->bc->m, 10);
    s->net    = net_of(s->ctx, p);
    s->opt    = mlc_adamw(s->net, 1e-3);
    return loss_falls(s);
}

/* mem_context: a context and nothing in it, with what the program itself takes. */
static bool        no_setup(state *s) { return s->ctx != NULL; }
static mlc_tensor *no_apply(state *s) { (void)s; return NULL; }

static void add_mem(void)
{
    static char names[TRAIN_FIRST + 2][40];
    for (int i = 0; i < 2 * (TRAIN_FIRST + 2); i++) {
        char *name = names[i / 2];
        snprintf(name, sizeof names[0], "mem_mlp_%s_b128_adamw", train_nets[i / 2].name);
        add_other(name, "samples/s", 128, mem_setup, run_apply, 128, 0, i / 2, 0);
        cases[n_cases - 1].apply = train_apply;
        cases[n_cases - 1].dtype = i & 1 ? MLC_BF16 : MLC_F32;
    }
    add_other("mem_context", "steps/s", 1, no_setup, run_apply, 0, 0, 0, 0);
    cases[n_cases - 1].apply = no_apply;
}
