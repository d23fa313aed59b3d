/* test_loss.c -- tests of section IMPL.LOSS: mse_loss, cross_entropy */
#include "mlc_test.h"
#include "golden/golden.h"

/* ---- PyTorch's values and gradients ------------------------------------------------------- */

typedef mlc_tensor *(*loss_call)(mlc_tensor *x, mlc_tensor *target, const int64_t *ints,
                                 double s);

static mlc_tensor *call_mse(mlc_tensor *x, mlc_tensor *target, const int64_t *ints, double s)
{
    (void)s;
    return mlc_mse_loss_ex(x, target, (mlc_reduction)ints[0]);
}

static mlc_tensor *call_xent(mlc_tensor *x, mlc_tensor *labels, const int64_t *ints, double s)
{
    mlc_cross_entropy_desc d;
    memset(&d, 0, sizeof d);
    d.reduction = (mlc_reduction)ints[0];
    d.label_smoothing = s;
    d.has_ignore_index = ints[1] != 0;
    d.ignore_index = ints[2];
    return mlc_cross_entropy_ex(x, labels, &d);
}

static bool loss_case(mlc_ctx *ctx, const golden_file *f, const char *name, loss_call call)
{
    double      numbers[8] = {0};
    int64_t     ints[3] = {0};
    mlc_tensor *turned = golden_find(f, "%s.a.T", name), *s = golden_find(f, "%s.s", name);
    mlc_tensor *leaf = turned != NULL ? turned : golden_find(f, "%s.a", name);
    mlc_tensor *b = golden_find(f, "%s.b", name), *db = golden_find(f, "%s.db", name);
    test_read(golden_find(f, "%s.ints", name), numbers);
    for (int i = 0; i < 3; i++)
        ints[i] = (int64_t)numbers[i];
    mlc_set_requires_grad(leaf, true);
    if (db != NULL)
        mlc_set_requires_grad(b, true);
    mlc_tensor *x = turned != NULL ? mlc_transpose(leaf, 0, 1) : leaf;
    mlc_tensor *out = call(x, b, ints, s != NULL ? mlc_item(s) : 0);
    if (!golden_equal(out, golden_find(f, "%s.out", name), name) ||
        !CHECK_EQ(mlc_backward_from(out, golden_find(f, "%s.dy", name)), MLC_OK))
        return CHECK_OK(ctx) && false;
    return golden_equal(mlc_grad(leaf), golden_find(f, "%s.da", name), name) &&
           (db == NULL || golden_equal(mlc_grad(b), db, name)) && CHECK_OK(ctx);
}

static int loss_cases(mlc_ctx *ctx, const char *op, mlc_dtype dtype, loss_call call)
{
    char        name[64];
    golden_file f = golden_open(ctx, "loss.safetensors");
    for (int k = 0;; k++) {
        snprintf(name, sizeof name, "%s.%s.%d", op, mlc_dtype_name(dtype), k);
        if (golden_find(&f, "%s.out", name) == NULL)
            return k;
        mlc_scope_begin(ctx);
        CHECK(loss_case(ctx, &f, name, call));
        mlc_scope_end(ctx);
    }
}

TEST(loss, mse_matches_pytorch)
{
    FOR_EACH_ISA(ctx) {
        CHECK_EQ(loss_cases(ctx, "mse_loss", MLC_F32, call_mse), 9);
        CHECK_EQ(loss_cases(ctx, "mse_loss", MLC_F64, call_mse), 9);
    }
}

TEST(loss, cross_entropy_matches_pytorch_with_reductions_smoothing_and_ignored_labels)
{
    FOR_EACH_ISA(ctx) {
        CHECK_EQ(loss_cases(ctx, "cross_entropy", MLC_F32, call_xent), 63);
        CHECK_EQ(loss_cases(ctx, "cross_entropy", MLC_F64, call_xent), 63);
    }
}

/* ---- formulas ----------------------------------------------------------------------------- */

static const double GOLDEN_LOGITS[] = {1, 2, 3, 1, 2, 0};
static const double GOLDEN_LABELS[] = {2, 0};

TEST(loss, cross_entropy_has_the_documented_golden_values)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_tensor(ctx, MLC_F64, mlc_dims2(2, 3), GOLDEN_LOGITS);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(2), GOLDEN_LABELS);
        mlc_cross_entropy_desc d;
        memset(&d, 0, sizeof d);
        CHECK_NEAR(mlc_item(mlc_cross_entropy(x, y)), 0.9076059, 1e-7);
        CHECK_NEAR(mlc_item(mlc_cross_entropy_ex(x, y, NULL)), 0.9076059, 1e-7);
        d.label_smoothing = 0.1;
        CHECK_NEAR(mlc_item(mlc_cross_entropy_ex(x, y, &d)), 0.9576059, 1e-7);
        CHECK_OK(ctx);
    }
}

/* The definition, in double: row r of c logits, without shifting by the maximum. */
static double xent_row(const double *x, int64_t c, int64_t label, double smoothing)
{
    double sum = 0, mean = 0;
    for (int64_t j = 0; j < c; j++)
        sum += exp(x[j]);
    for (int64_t j = 0; j < c; j++)
        mean += (log(sum) - x[j]) / (double)c;
    return (1 - smoothing) * (log(sum) - x[label]) + smoothing * mean;
}

static bool check_xent(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int64_t c, double smoothing)
{
    static double x[GOLDEN_MOST], y[256], want[256];
    mlc_tensor   *logits = test_rand(ctx, dtype, mlc_dims2(n, c), 3, -4, 4);
    mlc_cross_entropy_desc d;
    test_read(logits, x);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (double)(i * 7 % c);
        want[i] = xent_row(x + i * c, c, (int64_t)y[i], smoothing);
    }
    memset(&d, 0, sizeof d);
    d.reduction = MLC_REDUCTION_NONE;
    d.label_smoothing = smoothing;
    mlc_tensor *out = mlc_cross_entropy_ex(
        logits, test_tensor(ctx, MLC_I64, mlc_dims1(n), y), &d);
    return golden_values(out, n, want, dtype == MLC_F64 ? 1e-12 : 1e-5,
                         dtype == MLC_F64 ? 1e-12 : 1.3e-6, "cross_entropy");
}

TEST(loss, cross_entropy_matches_its_definition_at_odd_sizes_on_each_isa_level)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 17}, {3, 2}, {7, 33}, {17, 131}, {129, 10}};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 6; i++) {
            CHECK(check_xent(ctx, MLC_F32, sizes[i][0], sizes[i][1], 0));
            CHECK(check_xent(ctx, MLC_F64, sizes[i][0], sizes[i][1], 0));
            CHECK(check_xent(ctx, MLC_F32, sizes[i][0], sizes[i][1], 0.2));
            CHECK(check_xent(ctx, MLC_F64, sizes[i][0], sizes[i][1], 0.2));
        }
        CHECK_OK(ctx);
    }
}

typedef struct xent_user {
    mlc_tensor            *labels, *weight;
    mlc_cross_entropy_desc d;
} xent_user;

static mlc_tensor *xent_scalar(void *user, mlc_tensor *const *in, int32_t n_in)
{
    xent_user  *u = (xent_user *)user;
    mlc_tensor *y = mlc_cross_entropy_ex(in[0], u->labels, &u->d);
    (void)n_in;
    if (u->d.reduction == MLC_REDUCTION_NONE)
        y = mlc_mul(y, u->weight);
    return mlc_sum(y, mlc_dims0(), false);
}

TEST(loss, cross_entropy_gradient_matches_central_differences)
{
    static const double labels[] = {2, 0, 1, 2, 3};
    mlc_ctx            *ctx = test_ctx();
    xent_user           u;
    memset(&u, 0, sizeof u);
    u.labels = test_tensor(ctx, MLC_I64, mlc_dims1(5), labels);
    u.weight = test_rand(ctx, MLC_F64, mlc_dims1(5), 8, 0.5, 1.5);
    for (int mode = 0; mode < 12; mode++) {
        mlc_gradcheck_report r;
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(5, 4), 4, -3, 3);
        mlc_set_requires_grad(x, true);
        u.d.reduction = (mlc_reduction)(mode % 3);
        u.d.label_smoothing = mode / 3 % 2 ? 0.3 : 0;
        u.d.has_ignore_index = mode >= 6;
        u.d.ignore_index = 2;
        memset(&r, 0, sizeof r);
        CHECK_EQ(mlc_gradcheck(xent_scalar, &u, &x, 1, NULL, &r), MLC_OK);
        if (!CHECK(r.ok))
            printf("  mode %d element %" PRId64 ": %g, numeric %g\n", mode, r.index, r.analytic,
                   r.numeric);
    }
    CHECK_OK(ctx);
}

static mlc_tensor *mse_scalar(void *user, mlc_tensor *const *in, int32_t n_in)
{
    mlc_reduction r = *(mlc_reduction *)user;
    (void)n_in;
    return mlc_sum(mlc_mse_loss_ex(in[0], mlc_transpose(in[1], 0, 1), r), mlc_dims0(), false);
}

TEST(loss, mse_gradient_matches_central_differences)
{
    mlc_ctx *ctx = test_ctx();
    for (int mode = 0; mode < 3; mode++) {
        mlc_gradcheck_report rep;
        mlc_reduction        reduction = (mlc_reduction)mode;
        mlc_tensor          *in[2];
        in[0] = test_rand(ctx, MLC_F64, mlc_dims2(3, 5), 4, -3, 3);
        in[1] = test_rand(ctx, MLC_F64, mlc_dims2(5, 3), 5, -3, 3);
        mlc_set_requires_grad(in[0], true);
        mlc_set_requires_grad(in[1], true);
        memset(&rep, 0, sizeof rep);
        CHECK_EQ(mlc_gradcheck(mse_scalar, &reduction, in, 2, NULL, &rep), MLC_OK);
        CHECK(rep.ok);
    }
    CHECK_OK(ctx);
}

TEST(loss, mse_matches_its_definition_at_odd_sizes_on_each_isa_level)
{
    static double       x[1031], t[1031];
    static const double sizes[] = {1, 7, 17, 1031};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 4; i++) {
            int64_t     n = (int64_t)sizes[i];
            double      sum = 0;
            mlc_tensor *a = test_rand(ctx, MLC_F32, mlc_dims1(n), 1, -2, 2);
            mlc_tensor *b = test_rand(ctx, MLC_F32, mlc_dims1(n), 2, -2, 2);
            test_read(a, x);
            test_read(b, t);
            for (int64_t k = 0; k < n; k++)
                sum += (x[k] - t[k]) * (x[k] - t[k]);
            CHECK_NEAR(mlc_item(mlc_mse_loss(a, b)), sum / (double)n, 1.3e-6 * sum / sizes[i]);
            CHECK_NEAR(mlc_item(mlc_mse_loss_ex(a, b, MLC_REDUCTION_SUM)), sum, 1.3e-6 * sum);
        }
        CHECK_OK(ctx);
    }
}

/* ---- edges -------------------------------------------------------------------------------- */

TEST(loss, huge_logits_stay_finite)
{
    static const double x[] = {3e38, -3e38, 0, -3e38, -3e38, -3e38};
    static const double y[] = {0, 1};
    FOR_EACH_ISA(ctx) {
        double      dx[6];
        mlc_tensor *logits = test_tensor(ctx, MLC_F32, mlc_dims2(2, 3), x);
        mlc_set_requires_grad(logits, true);
        mlc_tensor *loss = mlc_cross_entropy(
            logits, test_tensor(ctx, MLC_I64, mlc_dims1(2), y));
        CHECK_NEAR(mlc_item(loss), log(3.0) / 2, 1e-6);
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        test_read(mlc_grad(logits), dx);
        for (int i = 0; i < 6; i++)
            CHECK(isfinite(dx[i]));
        CHECK_NEAR(dx[0], 0, 1e-6);
        CHECK_NEAR(dx[4], (1.0 / 3 - 1) / 2, 1e-6);
        CHECK_OK(ctx);
    }
}

/* Only differences of logits count, so a common large part must not cost digits. */
TEST(loss, large_logits_keep_their_digits)
{
    static const double x[] = {12345.625, 12345.125, 12344.5}, label[] = {1};
    const double        sum = 1 + exp(-0.5) + exp(-1.125);
    FOR_EACH_ISA(ctx) {
        const double want[] = {1 / sum, exp(-0.5) / sum - 1, exp(-1.125) / sum};
        mlc_tensor  *logits = test_tensor(ctx, MLC_F32, mlc_dims2(1, 3), x);
        mlc_set_requires_grad(logits, true);
        mlc_tensor *loss = mlc_cross_entropy(
            logits, test_tensor(ctx, MLC_I64, mlc_dims1(1), label));
        CHECK_NEAR(mlc_item(loss), 0.5 + log(sum), 1e-6);
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        CHECK_VALUES(mlc_grad(logits), 3, want, 1e-6, 1.3e-6);
    }
}

TEST(loss, no_rows_and_only_ignored_rows_are_not_numbers_as_in_pytorch)
{
    static const double     ignored[] = {7, 7};
    mlc_ctx                *ctx = test_ctx();
    mlc_tensor             *none = mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3));
    mlc_tensor             *two = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_tensor             *labels = test_tensor(ctx, MLC_I64, mlc_dims1(2), ignored);
    mlc_cross_entropy_desc  d;
    memset(&d, 0, sizeof d);
    d.has_ignore_index = true;
    d.ignore_index = 7;
    mlc_tensor *no_labels = mlc_zeros(ctx, MLC_I64, mlc_dims1(0));
    CHECK(isnan(mlc_item(mlc_cross_entropy(none, no_labels))));
    CHECK(isnan(mlc_item(mlc_cross_entropy_ex(two, labels, &d))));
    d.reduction = MLC_REDUCTION_SUM;
    CHECK_NEAR(mlc_item(mlc_cross_entropy_ex(two, labels, &d)), 0, 0);
    CHECK_NEAR(mlc_item(mlc_cross_entropy_ex(none, no_labels, &d)), 0, 0);
    CHECK(isnan(mlc_item(mlc_mse_loss(none, none))));
    CHECK_OK(ctx);
}

/* ---- a label that is no class ------------------------------------------------------------- */

static const double BAD_LABELS[] = {1, 0, 3, 2, -1};

static void check_label_text(mlc_ctx *ctx)
{
    CHECK_HAS(mlc_error(ctx), "cross_entropy");
    CHECK_HAS(mlc_error(ctx), "row 2");
    CHECK_HAS(mlc_error(ctx), "label 3");
    CHECK_HAS(mlc_error(ctx), "3)");                      /* the classes: not in [0,3)         */
}

TEST(loss, a_label_out_of_range_is_a_value_error_at_scope_end_at_the_latest)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 1, -1, 1);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(5), BAD_LABELS);
        CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
        mlc_cross_entropy(x, y);
        CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
        check_label_text(ctx);
        CHECK_OK(ctx);                                    /* the scope's own error is cleared  */
    }
}

TEST(loss, after_a_label_out_of_range_nothing_has_changed)
{
    static double before[64], after[64];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_linear(ctx, 4, 3);
    mlc_optim    *opt = mlc_adamw(net, 0.1);
    mlc_tensor   *w = mlc_module_param(net, "weight");
    if (!CHECK(w != NULL && opt != NULL))
        return;
    test_read(w, before);
    mlc_scope_begin(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 4), 1, -1, 1);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(5), BAD_LABELS);
    mlc_backward(mlc_cross_entropy(mlc_forward(net, x), y));
    CHECK(mlc_optim_step(opt) == MLC_ERR_VALUE);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    check_label_text(ctx);
    test_read(w, after);
    CHECK(memcmp(before, after, sizeof(double) * 12) == 0);
    CHECK_EQ(mlc_optim_steps(opt), 0);
}

/* ---- wrong input -------------------------------------------------------------------------- */

static void check_refused(mlc_ctx *ctx, mlc_tensor *out, mlc_status status, const char *part)
{
    CHECK(out == NULL);
    CHECK_HAS(mlc_error(ctx), part);
    CHECK_STATUS(ctx, status);
}

TEST(loss, mse_refuses_other_shapes_dtypes_and_null)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_tensor *b = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 1));
    mlc_tensor *wide = mlc_zeros(ctx, MLC_F64, mlc_dims2(2, 3));
    mlc_tensor *ints = mlc_zeros(ctx, MLC_I64, mlc_dims2(2, 3));
    CHECK(mlc_mse_loss(a, b) == NULL);                    /* PyTorch only warns: it is a trap  */
    CHECK_HAS(mlc_error(ctx), "[2,3]");
    check_refused(ctx, NULL, MLC_ERR_SHAPE, "[2,1]");
    check_refused(ctx, mlc_mse_loss(a, wide), MLC_ERR_DTYPE, "mse_loss");
    check_refused(ctx, mlc_mse_loss(ints, ints), MLC_ERR_DTYPE, "i64");
    check_refused(ctx, mlc_mse_loss(a, NULL), MLC_ERR_ARG, "mse_loss");
    check_refused(ctx, mlc_mse_loss(NULL, a), MLC_ERR_ARG, "mse_loss");
    CHECK(mlc_mse_loss(NULL, NULL) == NULL);
    check_refused(ctx, mlc_mse_loss_ex(a, a, (mlc_reduction)9), MLC_ERR_ARG, "9");
    CHECK_OK(ctx);
}

TEST(loss, cross_entropy_refuses_other_shapes_dtypes_and_null)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
    mlc_tensor *y5 = mlc_zeros(ctx, MLC_I64, mlc_dims1(5));
    mlc_tensor *ints = mlc_zeros(ctx, MLC_I64, mlc_dims2(4, 3));
    CHECK(mlc_cross_entropy(x, y5) == NULL);
    CHECK_HAS(mlc_error(ctx), "[5]");
    check_refused(ctx, NULL, MLC_ERR_SHAPE, "[4,3]");
    check_refused(ctx, mlc_cross_entropy(x, ints), MLC_ERR_SHAPE, "cross_entropy");
    check_refused(ctx, mlc_cross_entropy(mlc_zeros(ctx, MLC_F32, mlc_dims3(4, 3, 2)), y),
                  MLC_ERR_SHAPE, "[4,3,2]");
    check_refused(ctx, mlc_cross_entropy(x, mlc_zeros(ctx, MLC_F32, mlc_dims1(4))),
                  MLC_ERR_DTYPE, "MLC_I64");
    check_refused(ctx, mlc_cross_entropy(ints, y), MLC_ERR_DTYPE, "cross_entropy");
    check_refused(ctx, mlc_cross_entropy(x, NULL), MLC_ERR_ARG, "cross_entropy");
    check_refused(ctx, mlc_cross_entropy(NULL, y), MLC_ERR_ARG, "cross_entropy");
    CHECK_OK(ctx);
}

TEST(loss, cross_entropy_refuses_a_desc_out_of_range)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor            *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
    mlc_cross_entropy_desc d;
    memset(&d, 0, sizeof d);
    d.label_smoothing = 1.5;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "smoothing");
    d.label_smoothing = -0.1;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "smoothing");
    d.label_smoothing = (double)NAN;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "smoothing");
    d.label_smoothing = 0;
    d.reduction = (mlc_reduction)7;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "reduction");
    CHECK_OK(ctx);
}
