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
