/* test_metrics.c -- tests of sections IMPL.METRICS.*: metrics, curves, reports, trackers
 *
 * Values are held against those of scikit-learn (tests/golden/make_metrics_goldens.py), fed at
 * once, in batches, and in two halves that are merged. */
#include "golden/golden.h"

static const double SCORES[] = {
    0.1, 0.7, 0.2,                     /* 1                                                    */
    3.0, 3.0, 1.0,                     /* a tie: the first, 0                                  */
    -5., -4., -3.,                     /* 2                                                    */
    0.0, 0.0, 0.0,                     /* 0                                                    */
};

TEST(metrics, accuracy_is_the_share_of_rows_whose_argmax_is_the_label)
{
    static const double all[] = {1, 0, 2, 0}, three[] = {1, 1, 2, 0}, none[] = {0, 2, 0, 1};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *wide = test_tensor(ctx, MLC_F64, mlc_dims2(4, 3), SCORES);
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
        CHECK_NEAR(mlc_accuracy(x, test_tensor(ctx, MLC_I64, mlc_dims1(4), all)), 1, 0);
        CHECK_NEAR(mlc_accuracy(x, test_tensor(ctx, MLC_I64, mlc_dims1(4), three)), 0.75, 0);
        CHECK_NEAR(mlc_accuracy(wide, test_tensor(ctx, MLC_I64, mlc_dims1(4), none)), 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(metrics, accuracy_reads_views)
{
    static const double labels[] = {1, 9, 0, 9, 2, 9, 0, 9};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
    mlc_tensor         *columns = mlc_copy(mlc_transpose(x, 0, 1));
    mlc_tensor         *y = test_tensor(ctx, MLC_I64, mlc_dims1(8), labels);
    CHECK_NEAR(mlc_accuracy(mlc_transpose(columns, 0, 1), mlc_slice(y, 0, 0, 8, 2)), 1, 0);
    CHECK_OK(ctx);
}

TEST(metrics, accuracy_of_scores_that_are_not_numbers)
{
    static const double labels[] = {1, 0, 2, 0};
    double              scores[12];
    mlc_ctx            *ctx = test_ctx();
    for (int i = 0; i < 12; i++)
        scores[i] = i == 4 ? (double)NAN : SCORES[i];      /* row 1 says 1 now: NaN is largest */
    CHECK_NEAR(mlc_accuracy(test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), scores),
                            test_tensor(ctx, MLC_I64, mlc_dims1(4), labels)), 0.75, 0);
    CHECK_OK(ctx);
}

TEST(metrics, accuracy_counts_a_label_that_is_no_class_as_missed)
{
    static const double labels[] = {1, -1, 7, 0};
    mlc_ctx            *ctx = test_ctx();
    CHECK_NEAR(mlc_accuracy(test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES),
                            test_tensor(ctx, MLC_I64, mlc_dims1(4), labels)), 0.5, 0);
    CHECK_OK(ctx);
}

TEST(metrics, accuracy_does_not_record_on_the_tape)
{
    static const double labels[] = {1, 0, 2, 0};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_mul_scalar(x, 2);
    CHECK_NEAR(mlc_accuracy(y, test_tensor(ctx, MLC_I64, mlc_dims1(4), labels)), 1, 0);
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_OK(ctx);
}

static void check_none(mlc_ctx *ctx, double value, mlc_status status)
{
    CHECK(isnan(value));
    CHECK_HAS(mlc_error(ctx), "accuracy");
    CHECK_STATUS(ctx, status);
}

/* As the metric has it: of sequences, of one row, of labels that are a view.                  */
TEST(metrics, accuracy_of_any_leading_axes_is_that_of_the_rows)
{
    static const double best[6] = {0, 2, 1, 1, 0, 2};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = mlc_cast(mlc_one_hot(test_tensor(ctx, MLC_I64, mlc_dims2(2, 3), best), 3),
                                 MLC_F32);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims2(3, 2), (const double[6]){
                                                                       0, 1, 2, 0, 1, 0});
        mlc_metric *m = mlc_metric_accuracy(ctx);
        CHECK_NEAR(mlc_accuracy(x, mlc_transpose(y, 0, 1)), 5.0 / 6, 0);
        CHECK_EQ(mlc_metric_update(m, x, mlc_transpose(y, 0, 1), NULL), MLC_OK);
        CHECK_NEAR(mlc_metric_value(m), 5.0 / 6, 0);
        CHECK_NEAR(mlc_accuracy(mlc_select(x, 0, 1), mlc_select(y, 1, 1)), 2.0 / 3, 0);
        CHECK_NEAR(mlc_accuracy(mlc_select(mlc_select(x, 0, 0), 0, 1),
                                mlc_full(ctx, MLC_I64, mlc_dims0(), 2)), 1, 0);
        CHECK_OK(ctx);
        check_none(ctx, mlc_accuracy(x, y), MLC_ERR_SHAPE);
        mlc_metric_free(m);
    }
}

TEST(metrics, accuracy_that_cannot_be_had_is_not_a_number_and_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
    mlc_tensor *y5 = mlc_zeros(ctx, MLC_I64, mlc_dims1(5));
    mlc_tensor *none = mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3));
    check_none(ctx, mlc_accuracy(x, y5), MLC_ERR_SHAPE);
    check_none(ctx, mlc_accuracy(mlc_zeros(ctx, MLC_F32, mlc_dims1(4)), y), MLC_ERR_SHAPE);
    check_none(ctx, mlc_accuracy(mlc_zeros(ctx, MLC_I64, mlc_dims2(4, 3)), y), MLC_ERR_DTYPE);
    check_none(ctx, mlc_accuracy(x, mlc_zeros(ctx, MLC_F32, mlc_dims1(4))), MLC_ERR_DTYPE);
    check_none(ctx, mlc_accuracy(none, mlc_zeros(ctx, MLC_I64, mlc_dims1(0))), MLC_ERR_SHAPE);
    check_none(ctx, mlc_accuracy(x, NULL), MLC_ERR_ARG);
    check_none(ctx, mlc_accuracy(NULL, y), MLC_ERR_ARG);
    CHECK(isnan(mlc_accuracy(NULL, NULL)));
    CHECK_OK(ctx);
}

/* ---- against scikit-learn -------------------------------------------------------------------- */

typedef struct kind {
    const char *golden;
    mlc_metric *(*make)(mlc_ctx *ctx, int64_t classes);
} kind;

#define MAKE(name, call) \
    static mlc_metric *name(mlc_ctx *ctx, int64_t classes) { (void)classes; return call; }
#define AVERAGES(name, call) \
    MAKE(name##_macro, call(MLC_AVERAGING_MACRO)) MAKE(name##_micro, call(MLC_AVERAGING_MICRO)) \
    MAKE(name##_weighted, call(MLC_AVERAGING_WEIGHTED)) \
    MAKE(name##_binary, call(MLC_AVERAGING_BINARY))
#define PRECISION(a) mlc_metric_precision(ctx, classes, a)
#define RECALL(a)    mlc_metric_recall(ctx, classes, a)
#define F1(a)        mlc_metric_f(ctx, classes, 1, a)
#define F2(a)        mlc_metric_f(ctx, classes, 2, a)
#define F05(a)       mlc_metric_f(ctx, classes, 0.5, a)
AVERAGES(precision, PRECISION)
AVERAGES(recall, RECALL)
AVERAGES(f1, F1)
AVERAGES(f2, F2)
AVERAGES(f05, F05)
MAKE(accuracy, mlc_metric_accuracy(ctx))
MAKE(top1, mlc_metric_topk(ctx, 1))
MAKE(top2, mlc_metric_topk(ctx, 2))
MAKE(top4, mlc_metric_topk(ctx, 4))
MAKE(log_loss, mlc_metric_log_loss(ctx))
MAKE(perplexity, mlc_metric_perplexity(ctx))
MAKE(mse, mlc_metric_mse(ctx))
MAKE(rmse, mlc_metric_rmse(ctx))
MAKE(mae, mlc_metric_mae(ctx))
MAKE(r2, mlc_metric_r2(ctx))

#define ROWS(name) \
    {#name "_macro", name##_macro}, {#name "_micro", name##_micro}, \
    {#name "_weighted", name##_weighted}, {#name "_binary", name##_binary}
static const kind LABELS[] = {
    {"accuracy", accuracy}, {"accuracy", mlc_metric_confusion},
    {"balanced", mlc_metric_balanced_accuracy}, ROWS(precision), ROWS(recall), ROWS(f1), ROWS(f2),
    ROWS(f05), {NULL, NULL}};
static const kind SCORED[] = {
    {"top1", top1}, {"top2", top2}, {"top4", top4}, {"log_loss", log_loss},
    {"perplexity", perplexity}, {"auc", mlc_metric_auc},
    {"average_precision", mlc_metric_average_precision}, {NULL, NULL}};
static const kind VALUES[] = {{"mse", mse}, {"rmse", rmse}, {"mae", mae}, {"r2", r2}, {NULL, NULL}};

typedef struct given {                 /* of a golden case                                     */
    const golden_file *f;
    const char        *group, *name;
    mlc_tensor        *p, *t, *w;
    int64_t            n;
} given;

static bool find_case(const golden_file *f, const char *group, const char *name, given *g)
{
    g->f = f;
    g->group = group;
    g->name = name;
    g->p = golden_find(f, "%s.%s.p", group, name);
    g->t = golden_find(f, "%s.%s.t", group, name);
    g->w = golden_find(f, "%s.%s.w", group, name);
    g->n = mlc_dim(g->p, 0);
    return CHECK(g->p != NULL && g->t != NULL);
}

static mlc_tensor *wanted(const given *g, const char *what)
{
    return golden_find(g->f, "%s.%s.%s", g->group, g->name, what);
}

/* Rows from .. to of the case.                                                                  */
static void feed(mlc_metric *m, const given *g, int64_t from, int64_t to)
{
    CHECK_EQ(mlc_metric_update(m, mlc_rows(g->p, from, to), mlc_rows(g->t, from, to),
                               g->w ? mlc_rows(g->w, from, to) : NULL), MLC_OK);
}

static bool agrees(const given *g, const char *what, const char *how, double got, double rtol)
{
    mlc_tensor *t = wanted(g, what);
    double      want = 0;
    if (!CHECK(t != NULL) || !test_read(t, &want))
        return false;
    if (golden_close(got, want, rtol, rtol))
        return CHECK(true);
    printf("  %s.%s.%s, %s: %.17g, want %.17g\n", g->group, g->name, what, how, got, want);
    return CHECK(false);
}

/* At once; again after a reset in batches of 7; in two halves that are merged.                   */
static void check_kind(mlc_ctx *ctx, const given *g, const kind *k, int64_t classes, double rtol)
{
    mlc_metric *m = k->make(ctx, classes), *half = k->make(ctx, classes);
    if (wanted(g, k->golden) == NULL) {                    /* binary averages of many classes    */
        mlc_error_clear(ctx);
    } else if (CHECK(m != NULL && half != NULL)) {
        CHECK(isnan(mlc_metric_value(m)));
        feed(m, g, 0, g->n);
        agrees(g, k->golden, "at once", mlc_metric_value(m), rtol);
        agrees(g, k->golden, "read again", mlc_metric_value(m), rtol);
        mlc_metric_reset(m);
        CHECK(isnan(mlc_metric_value(m)));
        for (int64_t at = 0; at < g->n; at += 7)
            feed(m, g, at, at + 7 < g->n ? at + 7 : g->n);
        agrees(g, k->golden, "in batches", mlc_metric_value(m), rtol);
        mlc_metric_reset(m);
        feed(m, g, 0, g->n / 3);
        feed(half, g, g->n / 3, g->n);
        CHECK_EQ(mlc_metric_merge(m, half), MLC_OK);
        agrees(g, k->golden, "merged", mlc_metric_value(m), rtol);
    }
    mlc_metric_free(m);
    mlc_metric_free(half);
    CHECK_OK(ctx);
}

static void check_kinds(mlc_ctx *ctx, const given *g, const kind *k, int64_t classes)
{
    const bool narrow = g->p->dtype == MLC_F32;
    for (; k->golden; k++)
        check_kind(ctx, g, k, classes, narrow ? 3e-6 : 1e-13);
}

static const char *const LABEL_CASES[] = {
    "plain", "weights", "whole_weights", "not_seen", "only_predicted", "never_predicted",
    "one_class", "never_right", "binary", "binary_none", "one_row", "issue"};
enum { N_LABEL_CASES = sizeof LABEL_CASES / sizeof *LABEL_CASES };

static int64_t classes_of(const given *g)
{
    double      n = 0;
    mlc_tensor *t = wanted(g, "classes");
    return CHECK(t != NULL) && test_read(t, &n) ? (int64_t)n : 1;
}

TEST(metrics, of_labels_equal_those_of_scikit_learn)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < N_LABEL_CASES; i++) {
        given g;
        if (find_case(&f, "labels", LABEL_CASES[i], &g))
            check_kinds(ctx, &g, LABELS, classes_of(&g));
    }
}

TEST(metrics, of_scores_equal_those_of_scikit_learn)
{
    static const char *const cases[] = {"plain", "weights", "f32", "ties", "missing", "certain",
                                        "certain_f32"};
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < 7; i++) {
        given g;
        if (find_case(&f, "scores", cases[i], &g))
            check_kinds(ctx, &g, SCORED, 5);
    }
}

static const char *const BINARY_CASES[] = {
    "plain", "f32", "ties", "ties_f32", "weights", "weights_ties", "weights_zero", "all_equal",
    "perfect", "no_positive", "no_negative", "signs", "issue"};
enum { N_BINARY_CASES = sizeof BINARY_CASES / sizeof *BINARY_CASES };

TEST(metrics, of_two_classes_equal_those_of_scikit_learn)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < N_BINARY_CASES; i++) {
        given g;
        if (find_case(&f, "binary", BINARY_CASES[i], &g))
            check_kinds(ctx, &g, SCORED + 3, 1);           /* log loss, (perplexity), areas      */
    }
}

TEST(metrics, of_several_labels_a_row_equal_those_of_scikit_learn)
{
    static const char *const cases[] = {"plain", "weights", "no_positive"};
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < 3; i++) {
        given g;
        if (find_case(&f, "multi", cases[i], &g))
            check_kinds(ctx, &g, SCORED + 5, 4);
    }
}

TEST(metrics, of_values_equal_those_of_scikit_learn)
{
    static const char *const cases[] = {"plain", "weights", "f32", "outputs", "outputs_weights",
                                        "constant", "constant_right", "one_row"};
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < 8; i++) {
        given g;
        if (find_case(&f, "values", cases[i], &g))
            check_kinds(ctx, &g, VALUES, 1);
    }
}

TEST(metrics, curves_have_the_points_of_scikit_learn)
{
    static const char *const names[] = {"roc_x", "roc_y", "roc_t", "pr_x", "pr_y", "pr_t"};
    double            got[6][80];
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < N_BINARY_CASES; i++) {
        given       g;
        int64_t     n[2], none;
        mlc_metric *m = mlc_metric_auc(ctx, 1);
        if (!find_case(&f, "binary", BINARY_CASES[i], &g))
            continue;
        feed(m, &g, 0, g.n);
        CHECK_EQ(mlc_metric_roc(m, 0, 80, got[0], got[1], got[2], &n[0]), MLC_OK);
        CHECK_EQ(mlc_metric_precision_recall(m, 0, 80, got[4], got[3], got[5], &n[1]), MLC_OK);
        for (int k = 0; k < 6; k++) {
            mlc_tensor *want = wanted(&g, names[k]);
            double      values[80];
            const int64_t points = mlc_numel(want);
            CHECK_EQ(n[k / 3], points + (k == 5));         /* ours has infinity, too             */
            if (!CHECK(points <= 80) || !test_read(want, values))
                continue;
            for (int64_t j = 0; j < points; j++)
                if (!CHECK_NEAR(got[k][j], values[j], 1e-14))
                    printf("  binary.%s.%s %d\n", g.name, names[k], (int)j);
        }
        CHECK_NEAR(got[5][n[1] - 1], INF, 0);
        CHECK_EQ(mlc_metric_roc(m, 0, 0, NULL, NULL, NULL, &none), MLC_OK);
        CHECK_EQ(none, n[0]);
        mlc_metric_free(m);
    }
    CHECK_OK(ctx);
}

/* ---- the matrix and the report --------------------------------------------------------------- */

typedef struct text { char s[4096]; size_t n; } text;

static void collect(void *user, const char *s, size_t bytes)
{
    text *t = (text *)user;
    if (CHECK(t->n + bytes < sizeof t->s))
        memcpy(t->s + t->n, s, bytes);
    t->n += bytes;
    t->s[t->n] = 0;
}

static void check_report(mlc_metric *m, const given *g, const char *what, int32_t digits,
                         const char *const *names)
{
    text        got = {"", 0};
    char        want[4096] = "";
    mlc_tensor *t = wanted(g, what);
    if (!CHECK(t != NULL && mlc_numel(t) < 4096))
        return;
    CHECK_EQ(mlc_read(t, want, (size_t)mlc_numel(t)), MLC_OK);
    CHECK_EQ(mlc_classification_report(m, names, digits, collect, &got), MLC_OK);
    CHECK_STR(got.s, want);
}

TEST(metrics, reports_are_those_of_scikit_learn_to_the_character)
{
    static const char *const names[] = {"cat", "dog", "a long name for a class",
                                        "\xC3\xA9l\xC3\xA9phant"};
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < N_LABEL_CASES; i++) {
        given g;
        if (!find_case(&f, "labels", LABEL_CASES[i], &g))
            continue;
        mlc_metric *m = mlc_metric_confusion(ctx, classes_of(&g));
        feed(m, &g, 0, g.n);
        check_report(m, &g, "report", 2, NULL);
        check_report(m, &g, "report_digits", 5, i < 2 ? names : NULL);
        mlc_metric_free(m);
    }
    CHECK_OK(ctx);
}

TEST(metrics, counts_and_scores_of_classes_are_those_of_scikit_learn)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "metrics.safetensors");
    for (int i = 0; i < N_LABEL_CASES; i++) {
        given           g;
        double          counts[64], want[64], each[32];
        mlc_class_score s[8];
        if (!find_case(&f, "labels", LABEL_CASES[i], &g))
            continue;
        const int64_t c = classes_of(&g);
        mlc_metric   *m = mlc_metric_f(ctx, c, 3, MLC_AVERAGING_MICRO);
        CHECK_EQ(mlc_metric_counts(m, counts, c * c), MLC_OK);
        CHECK_NEAR(counts[c * c - 1], 0, 0);
        feed(m, &g, 0, g.n);
        CHECK_EQ(mlc_metric_counts(m, counts, c * c), MLC_OK);
        CHECK_EQ(mlc_metric_classes(m, s, c), MLC_OK);
        if (!test_read(wanted(&g, "counts"), want) || !test_read(wanted(&g, "each"), each))
            continue;
        for (int64_t k = 0; k < c * c; k++)
            CHECK_NEAR(counts[k], want[k], 1e-12);
        for (int64_t k = 0; k < c; k++) {
            CHECK_NEAR(s[k].precision, each[k], 1e-14);
            CHECK_NEAR(s[k].recall, each[c + k], 1e-14);
            CHECK_NEAR(s[k].f1, each[2 * c + k], 1e-14);
            CHECK_NEAR(s[k].support, each[3 * c + k], 1e-12);
        }
        mlc_metric_free(m);
    }
    CHECK_OK(ctx);
}

/* Of scikit-learn 1.9: labels are those of y_true and y_pred, whatever the rows weigh.          */
static const double ZERO_T[] = {0, 1, 2, 0}, ZERO_P[] = {0, 1, 1, 3}, ZERO_W[] = {1, 0, .5, 2};

static void feed_rows(mlc_metric *m, mlc_ctx *ctx, int from, int to)
{
    const mlc_dims n = mlc_dims1(to - from);
    CHECK_EQ(mlc_metric_update(m, test_tensor(ctx, MLC_I64, n, ZERO_P + from),
                               test_tensor(ctx, MLC_I64, n, ZERO_T + from),
                               test_tensor(ctx, MLC_F64, n, ZERO_W + from)), MLC_OK);
}

TEST(metrics, a_class_that_only_rows_of_weight_0_have_is_there_as_in_scikit_learn)
{
    static const double want[3][3] = {{1. / 4, 1. / 12, 1. / 8}, {2. / 7, 2. / 7, 2. / 7},
                                      {6. / 7, 2. / 7, 3. / 7}};
    mlc_ctx *ctx = test_ctx();
    for (int a = 0; a < 3; a++)
        for (int k = 0; k < 3; k++) {
            const mlc_averaging how = (mlc_averaging)a;
            mlc_metric *m[2];
            for (int i = 0; i < 2; i++)
                m[i] = k == 0 ? mlc_metric_precision(ctx, 6, how) :
                       k == 1 ? mlc_metric_recall(ctx, 6, how) : mlc_metric_f(ctx, 6, 1, how);
            feed_rows(m[0], ctx, 0, 4);
            CHECK_NEAR(mlc_metric_value(m[0]), want[a][k], 1e-15);
            mlc_metric_reset(m[0]);
            feed_rows(m[0], ctx, 0, 1);              /* in two batches, merged           */
            feed_rows(m[1], ctx, 1, 4);
            CHECK_EQ(mlc_metric_merge(m[0], m[1]), MLC_OK);
            CHECK_NEAR(mlc_metric_value(m[0]), want[a][k], 1e-15);
        }
    const double two[] = {0, 1}, first[] = {1, 0}, none[] = {0, 0};
    mlc_tensor  *y = test_tensor(ctx, MLC_I64, mlc_dims1(2), two);
    mlc_metric  *m = mlc_metric_precision(ctx, 2, MLC_AVERAGING_MACRO);
    CHECK_EQ(mlc_metric_update(m, y, y, test_tensor(ctx, MLC_F32, mlc_dims1(2), first)), MLC_OK);
    CHECK_NEAR(mlc_metric_value(m), 0.5, 0);
    mlc_metric_reset(m);
    CHECK_EQ(mlc_metric_update(m, y, y, test_tensor(ctx, MLC_F32, mlc_dims1(2), none)), MLC_OK);
    CHECK(isnan(mlc_metric_value(m)));
    CHECK_OK(ctx);
}

TEST(metrics, a_report_has_classes_that_only_rows_of_weight_0_have)
{
    static const char want[] =
        "              precision    recall  f1-score   support\n\n"
        "           0       1.00      0.33      0.50       3.0\n"
        "           1       0.00      0.00      0.00       0.0\n"
        "           2       0.00      0.00      0.00       0.5\n"
        "           3       0.00      0.00      0.00       0.0\n\n"
        "    accuracy                           0.29       3.5\n"
        "   macro avg       0.25      0.08      0.12       3.5\n"
        "weighted avg       0.86      0.29      0.43       3.5\n";
    static const double cells[36] = {[0] = 1, [3] = 2, [13] = .5};
    text            got = {"", 0};
    mlc_class_score s[6];
    double          counts[36];
    mlc_ctx        *ctx = test_ctx();
    mlc_metric     *m = mlc_metric_confusion(ctx, 6), *b = mlc_metric_balanced_accuracy(ctx, 6);
    feed_rows(m, ctx, 0, 4);
    feed_rows(b, ctx, 0, 4);
    CHECK_NEAR(mlc_metric_value(m), 2. / 7, 1e-15);
    CHECK_NEAR(mlc_metric_value(b), 1. / 6, 1e-15);
    CHECK_EQ(mlc_classification_report(m, NULL, 2, collect, &got), MLC_OK);
    CHECK_STR(got.s, want);
    CHECK_EQ(mlc_metric_classes(m, s, 6), MLC_OK);
    for (int c = 0; c < 6; c++) CHECK_EQ(s[c].seen, c < 4);
    CHECK_EQ(mlc_metric_counts(m, counts, 36), MLC_OK);
    for (int i = 0; i < 36; i++) CHECK_NEAR(counts[i], cells[i], 0);
    CHECK_OK(ctx);
}

/* ---- beyond scikit-learn --------------------------------------------------------------------- */

static const kind ALL[] = {
    {"accuracy", accuracy}, {"topk", top2}, {"log_loss", log_loss}, {"perplexity", perplexity},
    {"confusion", mlc_metric_confusion}, {"balanced", mlc_metric_balanced_accuracy},
    {"precision", precision_macro}, {"recall", recall_micro}, {"f", f05_weighted},
    {"auc", mlc_metric_auc}, {"average_precision", mlc_metric_average_precision}, {NULL, NULL}};

/* Of more rows than a piece has, counted here in the plainest way.                              */
TEST(metrics, of_many_rows_equal_plain_counts)
{
    enum { N = 30011, C = 3 };
    static double  s[N * C], labels[N];
    double         hits = 0, top = 0, counts[C * C], want[C * C] = {0}, loss = 0;
    mlc_ctx       *ctx = test_ctx();
    for (int i = 0; i < N; i++) {
        int best = 0, before = 0;
        labels[i] = (double)(int)test_random(1, i, 0, C);
        const int label = (int)labels[i];
        for (int c = 0; c < C; c++)
            s[i * C + c] = (1 + floor(test_random(2, i * C + c, 0, 6))) / 8;
        for (int c = 0; c < C; c++) {
            best = s[i * C + c] > s[i * C + best] ? c : best;
            before += s[i * C + c] > s[i * C + label] ||
                      (s[i * C + c] == s[i * C + label] && c > label);
        }
        hits += best == label;
        top += before < 2;
        want[label * C + best]++;
        loss -= log(s[i * C + label]);
    }
    mlc_tensor *p = test_tensor(ctx, MLC_F32, mlc_dims2(N, C), s);
    mlc_tensor *t = test_tensor(ctx, MLC_I64, mlc_dims1(N), labels);
    mlc_metric *m[4] = {accuracy(ctx, 1), top2(ctx, 1), log_loss(ctx, 1),
                        mlc_metric_confusion(ctx, C)};
    for (int k = 0; k < 4; k++)
        CHECK_EQ(mlc_metric_update(m[k], p, t, NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(m[0]), hits / N, 1e-15);
    CHECK_NEAR(mlc_metric_value(m[1]), top / N, 1e-15);
    CHECK_NEAR(mlc_metric_value(m[2]), loss / N, 1e-12);
    CHECK_EQ(mlc_metric_counts(m[3], counts, C * C), MLC_OK);
    for (int k = 0; k < C * C; k++)
        CHECK_NEAR(counts[k], want[k], 0);
    CHECK_OK(ctx);
}

/* The area is the share of pairs in order, ties half.                                           */
TEST(metrics, auc_of_many_rows_is_the_share_of_pairs_in_order)
{
    enum { N = 2003 };
    static double s[N], t[N];
    mlc_ctx      *ctx = test_ctx();
    for (int wide = 0; wide < 2; wide++) {
        double pairs = 0, ordered = 0;
        for (int i = 0; i < N; i++) {
            t[i] = test_random(3, i, 0, 1) < 0.3;
            s[i] = floor(test_random(4, i, -40, 40) + 3 * t[i]) / 16;
        }
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                if (t[i] > t[j]) {
                    pairs++;
                    ordered += s[i] > s[j] ? 1 : s[i] == s[j] ? 0.5 : 0;
                }
        mlc_metric *m = mlc_metric_auc(ctx, 1);
        mlc_tensor *p = test_tensor(ctx, wide ? MLC_F64 : MLC_F32, mlc_dims1(N), s);
        mlc_tensor *y = test_tensor(ctx, MLC_BOOL, mlc_dims1(N), t);
        CHECK_EQ(mlc_metric_update(m, p, y, NULL), MLC_OK);
        CHECK_NEAR(mlc_metric_value(m), ordered / pairs, 1e-14);
        mlc_metric_free(m);
    }
    CHECK_OK(ctx);
}

/* Broadcast, the errors would be those of all pairs.                                             */
TEST(metrics, of_values_take_a_column_and_its_rows_alike)
{
    static const double p[4] = {1, 2, 3, 5}, t[4] = {1, 4, 3, 6}, w[4] = {1, 0, 2, 1};
    mlc_ctx *ctx = test_ctx();
    for (const kind *k = VALUES; k->golden; k++)
        for (int weighted = 0; weighted < 2; weighted++) {
            mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(4), p);
            mlc_tensor *y = test_tensor(ctx, MLC_F32, mlc_dims1(4), t);
            mlc_tensor *by = weighted ? test_tensor(ctx, MLC_F32, mlc_dims1(4), w) : NULL;
            mlc_metric *m[3] = {k->make(ctx, 1), k->make(ctx, 1), k->make(ctx, 1)};
            CHECK_EQ(mlc_metric_update(m[0], x, y, by), MLC_OK);
            CHECK_EQ(mlc_metric_update(m[1], mlc_unsqueeze(x, 1), y, by), MLC_OK);
            CHECK_EQ(mlc_metric_update(m[2], x, mlc_unsqueeze(y, 1), by), MLC_OK);
            CHECK_NEAR(mlc_metric_value(m[1]), mlc_metric_value(m[0]), 0);
            CHECK_NEAR(mlc_metric_value(m[2]), mlc_metric_value(m[0]), 0);
            if (k->make == mse) CHECK_NEAR(mlc_metric_value(m[1]), weighted ? 0.25 : 1.25, 0);
            CHECK_EQ(mlc_metric_update(m[0], mlc_unsqueeze(x, 0), y, by), MLC_ERR_SHAPE);
            mlc_error_clear(ctx);
        }
    CHECK_OK(ctx);
}

/* Large values with a small spread, in batches: sums of squares would lose all digits.           */
TEST(metrics, r2_keeps_its_digits_where_the_mean_is_large)
{
    enum { N = 4000 };
    static double t[N], p[N];
    double        squares = 0, errors = 0, mean = 0;
    mlc_ctx      *ctx = test_ctx();
    mlc_metric   *m = mlc_metric_r2(ctx);
    for (int i = 0; i < N; i++) {
        t[i] = 1e8 + floor(test_random(5, i, 0, 1024)) / 1024;
        p[i] = t[i] + floor(test_random(6, i, -256, 256)) / 1024;
        mean += (t[i] - 1e8) / N;
    }
    for (int i = 0; i < N; i++) {
        squares += (t[i] - 1e8 - mean) * (t[i] - 1e8 - mean);
        errors += (p[i] - t[i]) * (p[i] - t[i]);
    }
    mlc_tensor *x = test_tensor(ctx, MLC_F64, mlc_dims1(N), p);
    mlc_tensor *y = test_tensor(ctx, MLC_F64, mlc_dims1(N), t);
    for (int i = 0; i < N; i += 500)
        CHECK_EQ(mlc_metric_update(m, mlc_rows(x, i, i + 500), mlc_rows(y, i, i + 500), NULL),
                 MLC_OK);
    CHECK_NEAR(mlc_metric_value(m), 1 - errors / squares, 1e-7);
    CHECK_OK(ctx);
}

/* f32 values in one column have loops of their own, in chunks, which threads share.            */
TEST(metrics, of_f32_values_are_those_of_the_same_in_f64)
{
    static const int64_t sizes[] = {1, 2, 7, 8, 9, 8191, 8192 * 3 + 5, 64 * 8192 + 77};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < (test_cpu_kernels() ? 8 : 5); i++) {
        const mlc_dims n = mlc_dims1(sizes[i]);
        mlc_scope_begin(ctx);
        mlc_tensor *t = mlc_add_scalar(mlc_randn(ctx, MLC_F32, n), 100);
        mlc_tensor *p = mlc_add(t, mlc_randn(ctx, MLC_F32, n));
        mlc_tensor *wide[2] = {mlc_cast(p, MLC_F64), mlc_cast(t, MLC_F64)};
        for (const kind *k = VALUES; k->golden; k++) {
            double value[3];
            for (int form = 0; form < 3; form++) {         /* f64; f32, by one and three threads */
                mlc_metric *m = k->make(ctx, 1);
                mlc_ctx_set_threads(ctx, form == 2 ? 3 : 1);
                CHECK_EQ(mlc_metric_update(m, form ? p : wide[0], form ? t : wide[1], NULL),
                         MLC_OK);
                value[form] = mlc_metric_value(m);
                mlc_metric_free(m);
            }
            CHECK_NEAR(value[2], value[1], 0);
            if (sizes[i] > 1 || k->make != r2)
                CHECK_NEAR(value[1], value[0], 1e-13 * fabs(value[0]));
        }
        mlc_scope_end(ctx);
    }
    CHECK_OK(ctx);
}

/* A constant target has exactly no squares, also one that f32 rounds.                           */
TEST(metrics, r2_of_a_constant_target_is_one_or_zero)
{
    enum { N = 1000 };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *t = mlc_full(ctx, MLC_F32, mlc_dims1(N), 0.1);
    mlc_tensor *p[2] = {t, mlc_add_scalar(t, 1)};
    for (int i = 0; i < 2; i++) {
        mlc_metric *m = mlc_metric_r2(ctx);
        for (int batch = 0; batch < 2; batch++)
            CHECK_EQ(mlc_metric_update(m, p[i], t, NULL), MLC_OK);
        CHECK_NEAR(mlc_metric_value(m), i ? 0 : 1, 0);
    }
    CHECK_OK(ctx);
}

TEST(metrics, take_every_dtype_view_and_number_of_axes)
{
    static const double s[] = {.5, .25, .25, .125, .75, .125, .25, .25, .5, .5, .125, .375};
    static const double labels[] = {0, 1, 0, 2};
    mlc_ctx            *ctx = test_ctx();
    for (const kind *k = ALL; k->golden; k++) {
        double want = 0;
        for (int form = 0; form < 6; form++) {
            const mlc_dtype ints[6] = {MLC_I64, MLC_I32, MLC_U8, MLC_I8, MLC_I64, MLC_I64};
            const mlc_dtype floats[6] = {MLC_F64, MLC_F32, MLC_BF16, MLC_F16, MLC_F64, MLC_F64};
            mlc_tensor     *p = test_tensor(ctx, floats[form], mlc_dims2(4, 3), s);
            mlc_tensor     *t = test_tensor(ctx, ints[form], mlc_dims1(4), labels);
            mlc_metric     *m = k->make(ctx, 3);
            if (form == 4) {                               /* by strides                         */
                p = mlc_transpose(mlc_copy(mlc_transpose(p, 0, 1)), 0, 1);
                t = mlc_select(mlc_copy(mlc_expand(mlc_unsqueeze(t, 1), mlc_dims2(4, 3))), 1, 2);
            } else if (form == 5 && strcmp(k->golden, "auc") && strcmp(k->golden,
                                                                       "average_precision")) {
                p = mlc_reshape(p, mlc_dims3(2, 2, 3));    /* [b,t,c] of [b,t]                   */
                t = mlc_reshape(t, mlc_dims2(2, 2));
            }
            CHECK_EQ(mlc_metric_update(m, p, t, NULL), MLC_OK);
            const double got = mlc_metric_value(m);
            if (form == 0)
                want = got;
            else if (!CHECK_NEAR(got, want, 1e-6))
                printf("  %s of form %d\n", k->golden, form);
            CHECK(!isnan(got));
            mlc_metric_free(m);
        }
    }
    CHECK_OK(ctx);
}

TEST(metrics, do_not_record_and_do_not_keep_what_they_are_given)
{
    static const double labels[] = {1, 0, 2, 0};
    mlc_ctx            *ctx = test_ctx();
    mlc_metric         *m[2] = {mlc_metric_auc(ctx, 3), mlc_metric_confusion(ctx, 3)};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
        mlc_set_requires_grad(x, true);
        mlc_tensor *y = mlc_mul_scalar(x, 2);
        mlc_tensor *t = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
        for (int k = 0; k < 2; k++)
            CHECK_EQ(mlc_metric_update(m[k], y, t, NULL), MLC_OK);
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_NEAR(mlc_metric_value(m[0]), 17.0 / 36, 1e-15);  /* (3/4 + 2/3 + 0)/3                  */
    CHECK_NEAR(mlc_metric_value(m[1]), 1, 1e-15);
}

/* After the first updates nothing is allocated.                                                 */
TEST(metrics, allocate_nothing_in_a_steady_step)
{
    mlc_memory  before, after;
    mlc_ctx    *ctx = test_ctx();
    mlc_metric *m[3] = {mlc_metric_accuracy(ctx), mlc_metric_confusion(ctx, 3),
                        mlc_metric_mse(ctx)};
    for (int i = 0; i < 8; i++) {
        if (i == 4)
            mlc_memory_info(ctx, &before);
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
        mlc_tensor *t = mlc_argmax(x, 1, false);
        for (int k = 0; k < 2; k++)
            CHECK_EQ(mlc_metric_update(m[k], x, t, NULL), MLC_OK);
        CHECK_EQ(mlc_metric_update(m[2], x, x, NULL), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.calls, before.calls);
    CHECK_EQ(after.allocated, before.allocated);
}

TEST(metrics, of_two_contexts_merge)
{
    static const double labels[] = {1, 2, 2, 0};
    for (const kind *k = ALL; k->golden; k++) {
        double value[2];
        for (int two = 0; two < 2; two++) {
            mlc_ctx    *a = test_ctx(), *b = test_ctx();
            mlc_metric *m[2] = {k->make(a, 3), k->make(b, 3)};
            for (int i = 0; i < 2; i++) {
                mlc_ctx    *ctx = two && i ? b : a;
                mlc_tensor *p = mlc_softmax(test_tensor(ctx, MLC_F64, mlc_dims2(4, 3), SCORES), 1);
                mlc_tensor *t = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
                const double w[] = {1 + i, 2, 0.5, 1};
                CHECK_EQ(mlc_metric_update(m[two && i], p, t, i ? test_tensor(
                    ctx, MLC_F32, mlc_dims1(4), w) : NULL), MLC_OK);
            }
            if (two)
                CHECK_EQ(mlc_metric_merge(m[0], m[1]), MLC_OK);
            value[two] = mlc_metric_value(m[0]);
            CHECK_OK(a);
            CHECK_OK(b);
        }
        CHECK(!isnan(value[0]));
        CHECK_NEAR(value[1], value[0], 1e-14);
    }
}

/* ---- NaN ------------------------------------------------------------------------------------- */

TEST(metrics, of_predictions_that_are_not_numbers)
{
    static const double labels[] = {1, 0, 2, 1};
    double              s[12];
    mlc_ctx            *ctx = test_ctx();
    for (int i = 0; i < 12; i++)
        s[i] = i == 4 ? NO_NUMBER : SCORES[i];             /* row 1, class 1                     */
    mlc_tensor *p = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), s);
    mlc_tensor *t = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
    mlc_metric *m = mlc_metric_accuracy(ctx);
    CHECK_EQ(mlc_metric_update(m, p, t, NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(m), 0.5, 1e-15);           /* row 1 says 1; row 3 is a tie       */
    m = mlc_metric_topk(ctx, 2);
    CHECK_EQ(mlc_metric_update(m, p, t, NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(m), 1, 1e-15);
    const double own[] = {1, 1, 2, 1};                     /* a label's own score is NaN: a miss */
    mlc_metric_reset(m);
    CHECK_EQ(mlc_metric_update(m, p, test_tensor(ctx, MLC_I64, mlc_dims1(4), own), NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(m), 0.75, 1e-15);
    m = mlc_metric_mse(ctx);
    CHECK_EQ(mlc_metric_update(m, p, p, NULL), MLC_OK);
    CHECK(isnan(mlc_metric_value(m)));
    m = mlc_metric_r2(ctx);
    CHECK_EQ(mlc_metric_update(m, p, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES), NULL),
             MLC_OK);
    CHECK(isnan(mlc_metric_value(m)));
    m = mlc_metric_log_loss(ctx);
    CHECK_EQ(mlc_metric_update(m, p, test_tensor(ctx, MLC_I64, mlc_dims1(4), own), NULL), MLC_OK);
    CHECK(isnan(mlc_metric_value(m)));
    CHECK_OK(ctx);
    m = mlc_metric_auc(ctx, 3);
    CHECK_EQ(mlc_metric_update(m, p, t, NULL), MLC_OK);
    CHECK(isnan(mlc_metric_value(m)));
    CHECK_HAS(mlc_error(ctx), "metric_auc: the score of row 1, class 1, is NaN");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void wrong(mlc_metric *m, mlc_tensor *p, mlc_tensor *t, mlc_tensor *w, mlc_status status,
                  const char *why)
{
    mlc_ctx *ctx = p ? p->ctx : t->ctx;
    if (!CHECK(m != NULL))
        return;
    CHECK_EQ(mlc_metric_update(m, p, t, w), status);
    CHECK_STR(mlc_error(ctx), why);
    mlc_error_clear(ctx);
    CHECK(isnan(mlc_metric_value(m)));
    mlc_metric_free(m);
}

TEST(metrics, say_what_they_take)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *p = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3)), *t = mlc_zeros(ctx, MLC_I64,
                                                                             mlc_dims1(4));
    mlc_tensor *x = mlc_zeros(ctx, MLC_F64, mlc_dims1(4)), *five = mlc_zeros(ctx, MLC_F32,
                                                                             mlc_dims1(5));
    wrong(mlc_metric_accuracy(ctx), p, x, NULL, MLC_ERR_SHAPE,
          "metric_accuracy: predictions are f32 [4,3], targets f64 [4]; it takes labels [..] or "
          "scores [..,c] of targets [..], integers");
    wrong(mlc_metric_topk(ctx, 2), t, t, NULL, MLC_ERR_SHAPE,
          "metric_topk: predictions are i64 [4], targets i64 [4]; it takes scores [..,c] of "
          "targets [..], integers");
    wrong(mlc_metric_confusion(ctx, 4), p, t, NULL, MLC_ERR_SHAPE,
          "metric_confusion: predictions are f32 [4,3], targets i64 [4]; it takes labels [..] or "
          "scores [..,c] of targets [..], integers; c is 4");
    wrong(mlc_metric_auc(ctx, 2), x, t, NULL, MLC_ERR_SHAPE,
          "metric_auc: predictions are f64 [4], targets i64 [4]; it takes scores [..] of targets "
          "[..], integers, or of c classes scores [n,c] of targets [n] or [n,c]; c is 2");
    wrong(mlc_metric_mse(ctx), p, x, NULL, MLC_ERR_SHAPE,
          "metric_mse: predictions are f32 [4,3], targets f64 [4]; it takes floats of one shape");
    wrong(mlc_metric_mean(ctx), t, NULL, NULL, MLC_ERR_SHAPE,
          "metric_mean: predictions are i64 [4], targets NULL; it takes floats, and no targets");
    wrong(mlc_metric_mae(ctx), x, x, five, MLC_ERR_SHAPE,
          "metric_mae: weights are [5]; 4 rows need as many");
    wrong(mlc_metric_mae(ctx), x, x, t, MLC_ERR_DTYPE,
          "metric_mae: weights are i64; write mlc_cast(weights, MLC_F32)");
    wrong(mlc_metric_mae(ctx), NULL, x, NULL, MLC_ERR_ARG,
          "metric_mae: input 1 is NULL; look at what should have made it");
    CHECK(mlc_metric_topk(ctx, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "metric_topk: a size of 0; it must be 1 to 2147483647");
    mlc_error_clear(ctx);
    CHECK(mlc_metric_confusion(ctx, 100000) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_metric_f(ctx, 3, 1, MLC_AVERAGING_BINARY) == NULL);
    CHECK_STR(mlc_error(ctx), "metric_f: averaging 3 of 3 classes; it is MLC_AVERAGING_MACRO, "
              "_MICRO, _WEIGHTED or, of 2 classes, _BINARY");
    mlc_error_clear(ctx);
    CHECK(mlc_metric_f(ctx, 3, -1, MLC_AVERAGING_MACRO) == NULL);
    CHECK_STR(mlc_error(ctx), "metric_f: beta is -1; it must be finite and not negative");
    mlc_error_clear(ctx);
    CHECK(mlc_metric_accuracy(NULL) == NULL);
    CHECK_EQ(mlc_metric_update(NULL, p, t, NULL), MLC_ERR_ARG);
}

/* ---- no rows, rows of no values, no axes ----------------------------------------------------- */

static const mlc_dims EMPTY_SHAPES[] = {
    {{0}, 0}, {{0}, 1}, {{3}, 1}, {{3, 0}, 2}, {{0, 3}, 2}, {{0, 0}, 2}, {{3, 1}, 2},
    {{3, 3}, 2}, {{3, 0, 2}, 3}, {{2, 3, 0}, 3}, {{0, 2, 3}, 3}};
enum { N_EMPTY = sizeof EMPTY_SHAPES / sizeof *EMPTY_SHAPES };

/* Counts or refuses, and has a value or none; what has no row counts nothing.                    */
static void fed_empty(mlc_metric *m, mlc_tensor *p, mlc_tensor *t, mlc_tensor *w)
{
    mlc_ctx         *ctx = p->ctx;
    const mlc_status st = mlc_metric_update(m, p, t, w);
    const bool       none = mlc_numel(p) == 0 || (t && mlc_numel(t) == 0);
    if (st == MLC_OK) CHECK(!none || isnan(mlc_metric_value(m)));
    else CHECK(st == MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    CHECK(!none || isnan(mlc_metric_value(m)));
    mlc_error_clear(ctx);
    mlc_metric_reset(m);
}

static void empty_shapes(mlc_ctx *ctx, mlc_metric *m)
{
    const mlc_dtype of[3] = {MLC_I64, MLC_F32, MLC_F64};
    for (int i = 0; i < N_EMPTY * N_EMPTY * 9; i++) {
        const mlc_dims *shapes = EMPTY_SHAPES;
        mlc_scope_begin(ctx);
        mlc_tensor *p = mlc_zeros(ctx, of[i % 3], shapes[i / 9 % N_EMPTY]);
        mlc_tensor *t = mlc_zeros(ctx, of[i / 3 % 3], shapes[i / 9 / N_EMPTY]);
        fed_empty(m, p, t, NULL);
        fed_empty(m, p, t, mlc_ones(ctx, MLC_F32, mlc_dims1(t->ndim ? t->shape[0] : 1)));
        fed_empty(m, p, NULL, NULL);
        mlc_scope_end(ctx);
    }
    mlc_metric_free(m);
}

TEST(metrics, of_no_rows_of_rows_without_values_and_of_no_axes_count_or_refuse)
{
    mlc_ctx *ctx = test_ctx();
    for (int64_t classes = 1; classes <= 3; classes += 2) {
        for (const kind *k = ALL; k->golden; k++) empty_shapes(ctx, k->make(ctx, classes));
        for (const kind *k = VALUES; k->golden; k++) empty_shapes(ctx, k->make(ctx, classes));
    }
    empty_shapes(ctx, mlc_metric_mean(ctx));
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 0));
    wrong(mlc_metric_mse(ctx), x, x, NULL, MLC_ERR_SHAPE,
          "metric_mse: predictions are f32 [3,0], targets f32 [3,0]; it takes floats of one shape, "
          "at least one in each row");
    wrong(mlc_metric_mean(ctx), x, NULL, NULL, MLC_ERR_SHAPE,
          "metric_mean: predictions are f32 [3,0], targets NULL; it takes floats, and no targets, "
          "at least one in each row");
    mlc_tensor *one = mlc_zeros(ctx, MLC_F32, mlc_dims2(3, 1));
    wrong(mlc_metric_confusion(ctx, 3), one, mlc_zeros(ctx, MLC_I64, mlc_dims1(3)), NULL,
          MLC_ERR_SHAPE, "metric_confusion: predictions are f32 [3,1], targets i64 [3]; it takes "
          "labels [..] or scores [..,c] of targets [..], integers; c is 3");
    mlc_metric *mse = mlc_metric_mse(ctx);
    CHECK_EQ(mlc_metric_update(mse, mlc_full(ctx, MLC_F32, mlc_dims0(), 3),
                               mlc_full(ctx, MLC_F32, mlc_dims0(), 1), NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(mse), 4, 0);               /* of 0-d values                    */
    CHECK(isnan(mlc_accuracy(x, mlc_zeros(ctx, MLC_I64, mlc_dims1(3)))));
    mlc_error_clear(ctx);
    CHECK_OK(ctx);
}

/* On the host at once, with nothing counted; on a device when it is asked.                      */
TEST(metrics, name_labels_that_are_out_of_range)
{
    static const double bad[] = {0, 1, 3, 2}, negative[] = {0, -1, 0, 1}, good[] = {0, 1, 2, 2};
    for (int i = 0; i < 4; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_metric *m = i == 3 ? mlc_metric_auc(ctx, 1) : i == 2 ? mlc_metric_topk(ctx, 1)
                                                        : mlc_metric_confusion(ctx, 3);
        mlc_tensor *t = test_tensor(ctx, MLC_I64, mlc_dims1(4), i == 1 ? negative : bad);
        mlc_tensor *p = test_tensor(ctx, MLC_I64, mlc_dims1(4), good);
        if (i == 2)
            p = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3));
        if (i == 3)
            p = mlc_zeros(ctx, MLC_F32, mlc_dims1(4));
        const mlc_status st = mlc_metric_update(m, i == 0 ? t : p, i == 0 ? p : t, NULL);
        CHECK(st == (test_on_host() ? MLC_ERR_VALUE : MLC_OK) || st == MLC_ERR_VALUE);
        mlc_ctx_sync(ctx);
        CHECK_EQ(mlc_ctx_status(ctx), MLC_ERR_VALUE);
        if (test_on_host() && i < 2)
            CHECK_STR(mlc_error(ctx), i ?
                      "metric_confusion: target -1 at row 1 of this batch is not in [0,3)" :
                      "metric_confusion: prediction 3 at row 2 of this batch is not in [0,3)");
        else
            CHECK_HAS(mlc_error(ctx), i == 3 ? "metric_auc" : i == 2 ? "metric_topk"
                                                                     : "metric_confusion");
        mlc_error_clear(ctx);
        if (test_on_host())
            CHECK(isnan(mlc_metric_value(m)));
    }
}

TEST(metrics, that_differ_do_not_merge)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_metric *a = mlc_metric_f(ctx, 3, 1, MLC_AVERAGING_MACRO);
    mlc_metric *others[] = {mlc_metric_f(ctx, 3, 2, MLC_AVERAGING_MACRO),
                            mlc_metric_f(ctx, 3, 1, MLC_AVERAGING_MICRO),
                            mlc_metric_f(ctx, 4, 1, MLC_AVERAGING_MACRO),
                            mlc_metric_recall(ctx, 3, MLC_AVERAGING_MACRO), a};
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(mlc_metric_merge(a, others[i]), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "metric_merge: metric_f and ");
        mlc_error_clear(ctx);
    }
    mlc_metric *one = mlc_metric_auc(ctx, 1), *two = mlc_metric_auc(ctx, 1);
    mlc_tensor *t = mlc_zeros(ctx, MLC_I64, mlc_dims1(3));
    mlc_metric_update(one, mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), t, NULL);
    mlc_metric_update(two, mlc_zeros(ctx, MLC_F64, mlc_dims1(3)), t, NULL);
    CHECK_EQ(mlc_metric_merge(one, two), MLC_ERR_DTYPE);
    CHECK_STR(mlc_error(ctx),
              "metric_auc: scores are f64, those before f32; give them one dtype");
    mlc_error_clear(ctx);
    mlc_metric *narrow = mlc_metric_mse(ctx), *wide = mlc_metric_mse(ctx);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F64, mlc_dims2(3, 2)), *y = mlc_zeros(ctx, MLC_F64,
                                                                             mlc_dims1(3));
    CHECK_EQ(mlc_metric_update(narrow, y, y, NULL), MLC_OK);
    CHECK_EQ(mlc_metric_update(wide, x, x, NULL), MLC_OK);
    CHECK_EQ(mlc_metric_merge(narrow, wide), MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_metric_update(narrow, x, x, NULL), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "metric_mse: rows have 2 values, those before 1; call "
              "mlc_metric_reset between");
    mlc_error_clear(ctx);
    mlc_metric_reset(narrow);
    CHECK_EQ(mlc_metric_update(narrow, x, x, NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(narrow), 0, 0);
    CHECK_EQ(mlc_metric_merge(NULL, a), MLC_ERR_ARG);
}

TEST(metrics, what_a_metric_does_not_have_is_an_error)
{
    double          counts[9];
    mlc_class_score s[3];
    int64_t         n = 9;
    text            to = {"", 0};
    mlc_ctx        *ctx = test_ctx();
    mlc_metric     *a = mlc_metric_accuracy(ctx), *c = mlc_metric_confusion(ctx, 3);
    CHECK_EQ(mlc_metric_counts(a, counts, 9), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "metric_counts: metric_accuracy has no confusion matrix; "
              "mlc_metric_confusion and others of classes have");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_metric_counts(c, counts, 8), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_metric_classes(c, s, 2), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_metric_roc(c, 0, 0, NULL, NULL, NULL, &n), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "metric_roc: metric_confusion keeps no scores; mlc_metric_auc and "
              "mlc_metric_average_precision do");
    CHECK_EQ(n, 0);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_metric_roc(mlc_metric_auc(ctx, 2), 2, 0, NULL, NULL, NULL, &n), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_classification_report(c, NULL, 2, collect, &to), MLC_ERR_STATE);
    CHECK_EQ((int64_t)to.n, 0);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_classification_report(c, NULL, 99, collect, &to), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    const char *const names[] = {"a", NULL, "c"};
    CHECK_EQ(mlc_classification_report(c, names, 2, collect, &to), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "the name of class 1 is NULL");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_confusion_write(mlc_metric_confusion(ctx, 65), NULL, collect, &to), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "confusion_write: 65 classes; a picture has room for 64");
    mlc_error_clear(ctx);
    mlc_metric_free(NULL);
    mlc_metric_reset(NULL);
    CHECK(isnan(mlc_metric_value(NULL)));
}

/* ---- trackers -------------------------------------------------------------------------------- */

static mlc_tracker *tracked(mlc_ctx *ctx, mlc_metric *m)
{
    static const double losses[] = {0.9, 0.4, (double)NAN, 0.4}, labels[4][4] = {
        {0, 1, 1, 1}, {1, 0, 2, 0}, {1, 0, 2, 1}, {1, 0, 2, 0}};
    mlc_tensor  *p = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
    mlc_tracker *t = mlc_tracker_create(ctx);
    CHECK_EQ(mlc_tracker_metric(t, "accuracy", m, true), MLC_OK);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(mlc_tracker_update(t, p, test_tensor(ctx, MLC_I64, mlc_dims1(4), labels[i]), NULL),
                 MLC_OK);
        CHECK_EQ(mlc_tracker_feed(t, "loss", losses[i] + 0.25), MLC_OK);
        CHECK_EQ(mlc_tracker_feed(t, "loss", losses[i] - 0.25), MLC_OK);
        CHECK_EQ(mlc_tracker_step(t, 10 * (i + 1)), MLC_OK);
    }
    return t;
}

TEST(metrics, a_tracker_keeps_history_and_the_best)
{
    const double *steps, *values;
    int64_t       step;
    mlc_ctx      *ctx = test_ctx();
    mlc_tracker  *t = tracked(ctx, mlc_metric_accuracy(ctx));
    CHECK_EQ(mlc_tracker_history(t, "accuracy", &steps, &values), 4);
    CHECK_NEAR(values[0], 0, 0);
    CHECK_NEAR(values[1], 1, 0);
    CHECK_NEAR(values[2], 0.75, 0);
    CHECK_NEAR(steps[3], 40, 0);
    CHECK_EQ(mlc_tracker_history(t, "loss", NULL, &values), 4);
    CHECK_NEAR(values[1], 0.4, 1e-15);
    CHECK(isnan(values[2]));
    CHECK_NEAR(mlc_tracker_best(t, "accuracy", &step), 1, 0);
    CHECK_EQ(step, 20);                                    /* the first of equals                */
    CHECK_NEAR(mlc_tracker_best(t, "loss", &step), 0.4, 1e-15);
    CHECK_EQ(step, 20);
    CHECK_NEAR(mlc_tracker_last(t, "loss"), 0.4, 1e-15);
    /* A name that comes later has no history; an epoch without numbers no value.                */
    CHECK_EQ(mlc_tracker_feed(t, "late", 3), MLC_OK);
    CHECK(isnan(mlc_tracker_best(t, "late", &step)));
    CHECK_EQ(step, -1);
    CHECK_EQ(mlc_tracker_step(t, 41), MLC_OK);
    CHECK_NEAR(mlc_tracker_best(t, "late", &step), 3, 0);
    CHECK_EQ(step, 41);
    CHECK(isnan(mlc_tracker_last(t, "accuracy")) && isnan(mlc_tracker_last(t, "loss")));
    CHECK_OK(ctx);
    mlc_tracker_free(t);
}

TEST(metrics, a_tracker_prints_a_table)
{
    text         to = {"", 0};
    mlc_ctx     *ctx = test_ctx();
    mlc_tracker *t = tracked(ctx, mlc_metric_accuracy(ctx));
    CHECK_EQ(mlc_tracker_print(t, collect, &to), MLC_OK);
    CHECK_STR(to.s, "    step    accuracy        loss\n"
                    "      10           0         0.9\n"
                    "      20           1         0.4\n"
                    "      30        0.75         nan\n"
                    "      40           1         0.4\n"
                    "    best           1         0.4\n"
                    "      at          20          20\n");
    CHECK_OK(ctx);
}

TEST(metrics, a_tracker_goes_on_from_its_state)
{
    static char       names[3][96];
    mlc_named         list[3];
    int64_t           n = 0, step;
    const double     *values;
    mlc_ctx          *ctx = test_ctx();
    mlc_tracker      *t = tracked(ctx, mlc_metric_accuracy(ctx)), *u = mlc_tracker_create(ctx);
    mlc_tracker_state_iter it = mlc_tracker_state_iter_make(t);
    for (; mlc_tracker_state_next(&it) && n < 3; n++) {
        memcpy(names[n], it.name, sizeof it.name);
        list[n].name = names[n];
        list[n].tensor = it.tensor;
    }
    CHECK_EQ(n, 3);
    CHECK_STR(names[0], "tracker.step");
    CHECK_STR(names[2], "tracker.value.loss");
    CHECK_EQ(mlc_tracker_metric(u, "accuracy", mlc_metric_accuracy(ctx), true), MLC_OK);
    CHECK_EQ(mlc_tracker_metric(u, "new", mlc_metric_accuracy(ctx), true), MLC_OK);
    CHECK_EQ(mlc_tracker_restore(u, list, n), MLC_OK);
    CHECK_NEAR(mlc_tracker_best(u, "accuracy", &step), 1, 0);
    CHECK_EQ(step, 20);
    CHECK_NEAR(mlc_tracker_best(u, "loss", &step), mlc_tracker_best(t, "loss", NULL), 0);
    CHECK_EQ(mlc_tracker_history(u, "new", NULL, &values), 4);
    CHECK(isnan(values[3]));
    CHECK_EQ(mlc_tracker_step(u, 40), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "tracker_step: step 40 is not above 40, the last");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_step(u, 50), MLC_OK);
    list[2].tensor = mlc_rows(list[2].tensor, 0, 3);
    CHECK_EQ(mlc_tracker_restore(u, list, n), MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_restore(u, list + 1, n - 1), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    list[0].name = NULL;
    CHECK_EQ(mlc_tracker_restore(u, list, n), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "tracker_restore: there is no tracker.step among");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_history(u, "loss", NULL, NULL), 5);
    CHECK_OK(ctx);
}

TEST(metrics, a_tracker_says_what_is_wrong)
{
    const double *values = SCORES;
    mlc_ctx      *ctx = test_ctx();
    mlc_tracker  *t = mlc_tracker_create(ctx);
    mlc_metric   *m = mlc_metric_accuracy(ctx);
    CHECK_EQ(mlc_tracker_metric(t, "a", m, true), MLC_OK);
    CHECK_EQ(mlc_tracker_metric(t, "a", m, true), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "tracker: the name 'a' is there, empty or over 63 bytes");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_metric(t, "", m, true), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_feed(t, "a", 1), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "tracker_feed: 'a' is a metric; mlc_tracker_update feeds it");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_history(t, "b", NULL, &values), 0);
    CHECK(values == NULL);
    CHECK_STR(mlc_error(ctx), "tracker_history: there is no 'b'");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_tracker_plot(mlc_tracker_create(ctx), "nowhere/x.svg"), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_tracker_create(NULL) == NULL && isnan(mlc_tracker_last(NULL, "a")));
    CHECK_EQ(mlc_tracker_step(NULL, 1), MLC_ERR_ARG);
    mlc_tracker_free(NULL);
}
