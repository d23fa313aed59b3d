/* test_loss.c -- tests of the sections IMPL.LOSS */
#include "mlc_test.h"
#include "golden/golden.h"

/* ---- PyTorch's values and gradients ------------------------------------------------------- */

typedef mlc_tensor *(*loss_call)(mlc_tensor *x, mlc_tensor *target, const int64_t *ints,
                                 double s);

static mlc_tensor *call_mse(mlc_tensor *x, mlc_tensor *target, const int64_t *ints, double s)
{
    (void)s;
    return mlc_mse_loss_ex(x, target, &(mlc_loss_desc){(mlc_reduction)ints[0]});
}

static mlc_tensor *call_xent(mlc_tensor *x, mlc_tensor *labels, const int64_t *ints, double s)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.reduction = (mlc_reduction)ints[0];
    d.label_smoothing = s;
    d.has_ignore_index = ints[1] != 0;
    d.ignore_index = ints[1] ? ints[2] : 0;
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
        mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
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
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    test_read(logits, x);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (double)(i * 7 % c);
        want[i] = xent_row(x + i * c, c, (int64_t)y[i], smoothing);
    }
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
        u.d.ignore_index = mode >= 6 ? 2 : 0;
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
    mlc_tensor *target = mlc_transpose(in[1], 0, 1);
    return mlc_sum(mlc_mse_loss_ex(in[0], target, &(mlc_loss_desc){r}), mlc_dims0(), false);
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
            CHECK_NEAR(mlc_item(mlc_mse_loss_ex(a, b, &(mlc_loss_desc){MLC_REDUCTION_SUM})), sum,
                       1.3e-6 * sum);
        }
        CHECK_OK(ctx);
    }
}

/* ---- every loss: PyTorch's values and gradients, and differences -------------------------- */

/* in: a, b, c, d of a stored case, NULL behind the last; n: its nums, the reduction first.    */
typedef mlc_tensor *(*losses_call)(mlc_tensor *const *in, const double *n);

#define LOSS(name, call) \
    static mlc_tensor *call_##name(mlc_tensor *const *in, const double *n) \
    { \
        const mlc_reduction r = (mlc_reduction)n[0]; \
        return call; \
    }
LOSS(mse_loss, mlc_mse_loss_ex(in[0], in[1], &(mlc_loss_desc){r}))
LOSS(l1_loss, mlc_l1_loss_ex(in[0], in[1], &(mlc_loss_desc){r}))
LOSS(smooth_l1_loss, mlc_smooth_l1_loss_ex(in[0], in[1], &(mlc_smooth_l1_desc){r, n[1]}))
LOSS(huber_loss, mlc_huber_loss_ex(in[0], in[1], &(mlc_huber_desc){r, n[1]}))
LOSS(bce_loss, mlc_bce_loss_ex(in[0], in[1], &(mlc_bce_desc){r, NULL, NULL}))
LOSS(bce_loss_weight, mlc_bce_loss_ex(in[0], in[1], &(mlc_bce_desc){r, in[2], NULL}))
LOSS(bce_with_logits, mlc_bce_with_logits_ex(in[0], in[1], &(mlc_bce_desc){r, NULL, NULL}))
LOSS(bce_with_logits_weight,
     mlc_bce_with_logits_ex(in[0], in[1],
                            &(mlc_bce_desc){r, n[1] != 0 ? in[2] : NULL,
                                            n[2] != 0 ? in[n[1] != 0 ? 3 : 2] : NULL}))
LOSS(focal_loss, mlc_focal_loss_ex(in[0], in[1], &(mlc_focal_desc){r, n[1], n[2]}))
LOSS(kl_div, mlc_kl_div_ex(in[0], in[1], &(mlc_kl_div_desc){r, n[1] != 0}))
LOSS(hinge_loss, mlc_hinge_loss_ex(in[0], in[1], &(mlc_hinge_desc){r, n[1]}))
LOSS(hinge_embedding_loss,
     mlc_hinge_embedding_loss_ex(in[0], in[1], &(mlc_hinge_embedding_desc){r, n[1]}))
LOSS(poly1_cross_entropy, mlc_poly1_cross_entropy_ex(in[0], in[1], &(mlc_poly1_desc){r, n[1]}))
LOSS(dice_loss, mlc_dice_loss_ex(in[0], in[1], &(mlc_dice_desc){r, n[2], n[1] != 0}))
LOSS(tversky_loss, mlc_tversky_loss_ex(in[0], in[1], &(mlc_tversky_desc){r, n[1], n[2], n[3]}))
LOSS(triplet_margin_loss,
     mlc_triplet_margin_loss_ex(in[0], in[1], in[2],
                                &(mlc_triplet_margin_desc){r, n[1], n[2], n[3] != 0}))
LOSS(contrastive_loss,
     mlc_contrastive_loss_ex(in[0], in[1], in[2], &(mlc_contrastive_desc){r, n[1]}))
LOSS(cosine_embedding_loss,
     mlc_cosine_embedding_loss_ex(in[0], in[1], in[2], &(mlc_cosine_embedding_desc){r, n[1]}))
LOSS(multilabel_margin_loss, mlc_multilabel_margin_loss_ex(in[0], in[1], &(mlc_loss_desc){r}))

static mlc_tensor *call_distillation_loss(mlc_tensor *const *in, const double *n)
{
    return mlc_distillation_loss_ex(in[0], in[1], n[1] == 1 ? NULL : in[2],
                                    &(mlc_distillation_desc){n[1], n[2]});
}

static mlc_cross_entropy_desc class_desc(mlc_tensor *const *in, const double *n)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.reduction = (mlc_reduction)n[0];
    d.label_smoothing = n[1];
    d.has_ignore_index = n[2] != 0;
    d.ignore_index = n[2] != 0 ? (int64_t)n[3] : 0;
    d.weight = n[4] != 0 ? in[2] : NULL;
    return d;
}

static mlc_tensor *call_cross_entropy(mlc_tensor *const *in, const double *n)
{
    const mlc_cross_entropy_desc d = class_desc(in, n);
    return mlc_cross_entropy_ex(in[0], in[1], &d);
}

static mlc_tensor *call_nll_loss(mlc_tensor *const *in, const double *n)
{
    const mlc_cross_entropy_desc d = class_desc(in, n);
    return mlc_nll_loss_ex(in[0], in[1], &d);
}

/* cases in f32 and in f64, of which the last are kinks; half: in bf16 and in f16.             */
static const struct losses_row {
    const char *name;
    losses_call call;
    int         cases, half, kinks;
} LOSSES[] = {
    {"mse_loss", call_mse_loss, 10, 3, 0},
    {"l1_loss", call_l1_loss, 10, 3, 0},
    {"smooth_l1_loss", call_smooth_l1_loss, 30, 9, 0},
    {"huber_loss", call_huber_loss, 20, 6, 0},
    {"bce_loss", call_bce_loss, 11, 3, 1},
    {"bce_loss_weight", call_bce_loss_weight, 6, 0, 0},
    {"bce_with_logits", call_bce_with_logits, 21, 6, 0},
    {"bce_with_logits_weight", call_bce_with_logits_weight, 19, 0, 0},
    {"focal_loss", call_focal_loss, 51, 15, 0},
    {"kl_div", call_kl_div, 21, 6, 0},
    {"hinge_loss", call_hinge_loss, 20, 6, 0},
    {"hinge_embedding_loss", call_hinge_embedding_loss, 21, 6, 0},
    {"cross_entropy", call_cross_entropy, 40, 0, 0},
    {"nll_loss", call_nll_loss, 20, 0, 0},
    {"poly1_cross_entropy", call_poly1_cross_entropy, 10, 0, 0},
    {"distillation_loss", call_distillation_loss, 8, 0, 0},
    {"dice_loss", call_dice_loss, 16, 0, 0},
    {"tversky_loss", call_tversky_loss, 16, 0, 0},
    {"triplet_margin_loss", call_triplet_margin_loss, 18, 0, 0},
    {"contrastive_loss", call_contrastive_loss, 12, 0, 0},
    {"cosine_embedding_loss", call_cosine_embedding_loss, 12, 0, 0},
    {"multilabel_margin_loss", call_multilabel_margin_loss, 7, 0, 0},
};
#define N_LOSSES ((int)(sizeof LOSSES / sizeof *LOSSES))

typedef struct losses_case {
    const struct losses_row *row;
    mlc_tensor *leaf[4], *want[4];     /* want: the stored gradient, or NULL                   */
    bool        turned[4];
    int         n;
    double      nums[8];
} losses_case;

static bool losses_read(const golden_file *f, const struct losses_row *row, const char *name,
                        losses_case *c)
{
    mlc_tensor *nums = golden_find(f, "%s.nums", name);
    memset(c, 0, sizeof *c);
    c->row = row;
    if (nums == NULL)
        return false;
    test_read(nums, c->nums);
    for (; c->n < 4; c->n++) {
        const char letter = (char)('a' + c->n);
        mlc_tensor *turned = golden_find(f, "%s.%c.T", name, letter);
        c->turned[c->n] = turned != NULL;
        c->leaf[c->n] = turned != NULL ? turned : golden_find(f, "%s.%c", name, letter);
        if (c->leaf[c->n] == NULL)
            break;
        c->want[c->n] = golden_find(f, "%s.d%c", name, letter);
        if (c->want[c->n] != NULL)
            mlc_set_requires_grad(c->leaf[c->n], true);
    }
    return true;
}

static mlc_tensor *losses_run(const losses_case *c, mlc_tensor *const *leaf)
{
    mlc_tensor *in[4] = {NULL, NULL, NULL, NULL};
    for (int i = 0; i < c->n; i++)
        in[i] = c->turned[i] ? mlc_transpose(leaf[i], 0, 1) : leaf[i];
    return c->row->call(in, c->nums);
}

/* At PyTorch's tolerance of the dtype; f64: that of formulas.                                 */
static bool losses_equal(mlc_tensor *t, mlc_tensor *want, const char *name)
{
    static double values[GOLDEN_MOST];
    const mlc_dtype dtype = want != NULL ? want->dtype : MLC_F32;
    const double rel = dtype == MLC_F64 ? 1e-12 : dtype == MLC_F32 ? 1.3e-6
                     : dtype == MLC_BF16 ? 1.6e-2 : 1e-3;
    if (!golden_same_shape(t, want, name))
        return false;
    test_read(want, values);
    return golden_values(t, mlc_numel(want), values, dtype == MLC_F64 ? 1e-12 : 1e-5, rel, name);
}

static bool losses_agree(mlc_ctx *ctx, const golden_file *f, const losses_case *c,
                         const char *name)
{
    mlc_tensor *out = losses_run(c, c->leaf);
    bool        good = losses_equal(out, golden_find(f, "%s.out", name), name);
    if (!good || !CHECK_EQ(mlc_backward_from(out, golden_find(f, "%s.dy", name)), MLC_OK))
        return CHECK_OK(ctx) && false;
    for (int i = 0; i < c->n && good; i++)
        good = c->want[i] == NULL || losses_equal(mlc_grad(c->leaf[i]), c->want[i], name);
    return good && CHECK_OK(ctx);
}

/* How many cases there were.                                                                  */
static int losses_cases(mlc_ctx *ctx, const golden_file *f, const struct losses_row *row,
                        mlc_dtype dtype)
{
    losses_case c;
    char        name[80];
    for (int k = 0;; k++) {
        snprintf(name, sizeof name, "%s.%s.%d", row->name, mlc_dtype_name(dtype), k);
        mlc_scope_begin(ctx);
        const bool there = losses_read(f, row, name, &c);
        if (there)
            CHECK(losses_agree(ctx, f, &c, name));
        mlc_scope_end(ctx);
        if (!there)
            return k;
    }
}

TEST(loss, all_match_pytorch_in_every_dtype)
{
    FOR_EACH_ISA(ctx) {
        const golden_file f = golden_open(ctx, "losses.safetensors");
        for (int i = 0; i < N_LOSSES; i++) {
            CHECK_EQ(losses_cases(ctx, &f, &LOSSES[i], MLC_F32), LOSSES[i].cases);
            CHECK_EQ(losses_cases(ctx, &f, &LOSSES[i], MLC_F64), LOSSES[i].cases);
            CHECK_EQ(losses_cases(ctx, &f, &LOSSES[i], MLC_BF16), LOSSES[i].half);
            CHECK_EQ(losses_cases(ctx, &f, &LOSSES[i], MLC_F16), LOSSES[i].half);
        }
    }
}

/* Gradients asked for are found again among the inputs of a case.                             */
static mlc_tensor *losses_differ(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)n_in;
    return losses_run((const losses_case *)user, in);
}

TEST(loss, all_gradients_match_central_differences)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "losses.safetensors");
    for (int i = 0; i < N_LOSSES; i++) {
        for (int k = 0; k < LOSSES[i].cases - LOSSES[i].kinks; k++) {
            mlc_gradcheck_report r;
            losses_case          c;
            char                 name[80];
            snprintf(name, sizeof name, "%s.f64.%d", LOSSES[i].name, k);
            mlc_scope_begin(ctx);
            memset(&r, 0, sizeof r);
            CHECK(losses_read(&f, &LOSSES[i], name, &c));
            for (int w = 2; w < c.n && strncmp(name, "bce_", 4) == 0; w++)
                mlc_set_requires_grad(c.leaf[w], true);       /* weights                     */
            CHECK_EQ(mlc_gradcheck(losses_differ, &c, c.leaf, c.n, NULL, &r), MLC_OK);
            if (!CHECK(r.ok))
                printf("  %s input %d element %" PRId64 ": %g, numeric %g\n", name, r.input,
                       r.index, r.analytic, r.numeric);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
    }
}

/* A second backward adds: to what is there, not over it.                                      */
TEST(loss, all_gradients_add_up)
{
    static double once[GOLDEN_MOST];
    FOR_EACH_ISA(ctx) {
        const golden_file f = golden_open(ctx, "losses.safetensors");
        for (int i = 0; i < N_LOSSES; i++) {
            losses_case c;
            char        name[80];
            snprintf(name, sizeof name, "%s.f32.0", LOSSES[i].name);
            if (!CHECK(losses_read(&f, &LOSSES[i], name, &c)))
                return;
            CHECK_EQ(mlc_backward_from(losses_run(&c, c.leaf), NULL), MLC_OK);
            test_read(mlc_grad(c.leaf[0]), once);
            CHECK_EQ(mlc_backward_from(losses_run(&c, c.leaf), NULL), MLC_OK);
            const int64_t n = mlc_numel(c.leaf[0]);
            for (int64_t e = 0; e < n; e++)
                once[e] *= 2;
            CHECK(golden_values(mlc_grad(c.leaf[0]), n, once, 1e-7, 1e-6, name));
        }
        CHECK_OK(ctx);
    }
}

/* Compositions take 16 bits, are computed in f32 and rounded once; autocast makes them f32.   */
TEST(loss, sixteen_bits_are_rounded_once_and_autocast_computes_in_f32)
{
    FOR_EACH_ISA(ctx) {
        const golden_file f = golden_open(ctx, "losses.safetensors");
        for (int i = 0; i < N_LOSSES; i++) {
            losses_case c;
            char        name[80];
            double      exact, low, under;
            mlc_tensor *in[4];
            snprintf(name, sizeof name, "%s.f32.0", LOSSES[i].name);
            if (!CHECK(losses_read(&f, &LOSSES[i], name, &c)))
                return;
            const bool full = c.row->call == call_nll_loss || c.row->call == call_cross_entropy ||
                              c.row->call == call_poly1_cross_entropy;
            for (int k = 0; k < c.n; k++)
                in[k] = c.leaf[k]->dtype == MLC_F32 && !(full && k) /* weights are f32         */
                            ? mlc_cast(c.leaf[k], MLC_BF16) : c.leaf[k];
            mlc_autocast_begin(ctx, MLC_BF16);
            mlc_tensor *y = losses_run(&c, in);
            mlc_autocast_end(ctx);
            if (!CHECK(y != NULL && y->dtype == MLC_F32))
                printf("  %s: %s\n", name, mlc_error(ctx));
            under = mlc_item(y);
            y = losses_run(&c, in);
            CHECK(y != NULL && y->dtype == (full ? MLC_F32 : MLC_BF16));
            low = mlc_item(y);
            CHECK_NEAR(low, under, full ? 0 : 8e-3 * fabs(under));
            for (int k = 0; k < c.n; k++)
                in[k] = in[k]->dtype == MLC_BF16 ? mlc_cast(in[k], MLC_F32) : in[k];
            exact = mlc_item(losses_run(&c, in));
            CHECK_NEAR(under, exact, 1e-7 * fabs(exact));
            CHECK_OK(ctx);
        }
    }
}

/* ---- documented values, edges ------------------------------------------------------------- */

TEST(loss, formulas_have_the_documented_golden_values)
{
    static const double x4[] = {2, -1, 0.5, -3}, t4[] = {1, 0, 0, 1};
    static const double two[] = {0, 2, 0, -1, 0, 0.5, 0, -3};
    static const double student[] = {1, 1, 1}, teacher[] = {2, 1, 0.1};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_tensor(ctx, MLC_F64, mlc_dims3(1, 1, 4), x4);
        mlc_tensor *t = test_tensor(ctx, MLC_F64, mlc_dims3(1, 1, 4), t4);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), t4);
        mlc_tensor *s = test_tensor(ctx, MLC_F64, mlc_dims2(1, 3), student);
        mlc_tensor *z = test_tensor(ctx, MLC_F64, mlc_dims2(1, 3), teacher);
        CHECK_NEAR(mlc_item(mlc_bce_with_logits(x, t)), 1.115713508578761, 1e-14);
        CHECK_NEAR(mlc_item(mlc_bce_loss(mlc_sigmoid(x), t)), 1.115713508578761, 1e-14);
        CHECK_NEAR(mlc_item(mlc_focal_loss(x, t)), 0.2480183112, 1e-10);
        CHECK_NEAR(mlc_item(mlc_dice_loss(mlc_sigmoid(x), t)), 0.5139701745, 1e-10);
        CHECK_NEAR(mlc_item(mlc_tversky_loss(mlc_sigmoid(x), t)), 0.5139701745, 1e-10);
        /* a sigmoid is the softmax of x and 0 */
        CHECK_NEAR(mlc_item(mlc_poly1_cross_entropy(test_tensor(ctx, MLC_F64, mlc_dims2(4, 2), two),
                                                    y)), 1.6065079590, 1e-9);
        CHECK_NEAR(mlc_item(mlc_distillation_loss_ex(s, z, NULL, &(mlc_distillation_desc){1, 4})),
                   0.2993545, 1e-6);
        CHECK_OK(ctx);
    }
}

/* A short form, NULL and the desc that is made are the same loss: that of the values `given`.   */
#define DEFAULTS(name, desc, given, ...) \
    do { \
        const desc   made = desc##_make(); \
        const double want = mlc_item(name##_ex(__VA_ARGS__, given)); \
        CHECK(want > 0); \
        CHECK_NEAR(mlc_item(name##_ex(__VA_ARGS__, &made)), want, 0); \
        CHECK_NEAR(mlc_item(name##_ex(__VA_ARGS__, NULL)), want, 0); \
        CHECK_NEAR(mlc_item(name(__VA_ARGS__)), want, 0); \
    } while (0)

TEST(loss, short_forms_have_the_documented_defaults)
{
    static const double signs[] = {1, -1, 1, -1}, classes[] = {2, 0, 1, 2};
    const mlc_reduction mean = MLC_REDUCTION_MEAN;
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(4, 3), 1, -3, 3);
    mlc_tensor *t = test_rand(ctx, MLC_F64, mlc_dims2(4, 3), 2, -3, 3);
    mlc_tensor *u = test_rand(ctx, MLC_F64, mlc_dims2(4, 3), 3, -3, 3);
    mlc_tensor *p = test_rand(ctx, MLC_F64, mlc_dims2(4, 3), 4, 0.1, 0.9);
    mlc_tensor *q = test_rand(ctx, MLC_F64, mlc_dims2(4, 3), 5, 0.1, 0.9);
    mlc_tensor *s = test_tensor(ctx, MLC_F64, mlc_dims1(4), signs);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), classes);
    mlc_tensor *z = mlc_log_softmax(x, 1), *ps = mlc_unsqueeze(p, 0), *qs = mlc_unsqueeze(q, 0);
    DEFAULTS(mlc_mse_loss, mlc_loss_desc, (&(mlc_loss_desc){mean}), x, t);
    DEFAULTS(mlc_l1_loss, mlc_loss_desc, (&(mlc_loss_desc){mean}), x, t);
    DEFAULTS(mlc_smooth_l1_loss, mlc_smooth_l1_desc, (&(mlc_smooth_l1_desc){mean, 1}), x, t);
    DEFAULTS(mlc_huber_loss, mlc_huber_desc, (&(mlc_huber_desc){mean, 1}), x, t);
    DEFAULTS(mlc_bce_loss, mlc_bce_desc, (&(mlc_bce_desc){mean, NULL, NULL}), p, q);
    DEFAULTS(mlc_bce_with_logits, mlc_bce_desc, (&(mlc_bce_desc){mean, NULL, NULL}), x, q);
    DEFAULTS(mlc_focal_loss, mlc_focal_desc, (&(mlc_focal_desc){mean, 0.25, 2}), x, q);
    DEFAULTS(mlc_kl_div, mlc_kl_div_desc, (&(mlc_kl_div_desc){mean, false}), z, p);
    DEFAULTS(mlc_hinge_loss, mlc_hinge_desc, (&(mlc_hinge_desc){mean, 1}), mlc_select(x, 1, 0), s);
    DEFAULTS(mlc_hinge_embedding_loss, mlc_hinge_embedding_desc,
             (&(mlc_hinge_embedding_desc){mean, 1}), mlc_select(p, 1, 0), s);
    DEFAULTS(mlc_cross_entropy, mlc_cross_entropy_desc,
             (&(mlc_cross_entropy_desc){mean, 0, false, 0, NULL}), x, y);
    DEFAULTS(mlc_nll_loss, mlc_cross_entropy_desc,
             (&(mlc_cross_entropy_desc){mean, 0, false, 0, NULL}), z, y);
    DEFAULTS(mlc_poly1_cross_entropy, mlc_poly1_desc, (&(mlc_poly1_desc){mean, 1}), x, y);
    DEFAULTS(mlc_distillation_loss, mlc_distillation_desc, (&(mlc_distillation_desc){0.5, 2}), x, t,
             y);
    DEFAULTS(mlc_dice_loss, mlc_dice_desc, (&(mlc_dice_desc){mean, 1e-5, false}), ps, qs);
    DEFAULTS(mlc_tversky_loss, mlc_tversky_desc, (&(mlc_tversky_desc){mean, 0.5, 0.5, 0.5e-5}), ps,
             qs);
    DEFAULTS(mlc_triplet_margin_loss, mlc_triplet_margin_desc,
             (&(mlc_triplet_margin_desc){mean, 1, 2, false}), x, t, u);
    DEFAULTS(mlc_contrastive_loss, mlc_contrastive_desc, (&(mlc_contrastive_desc){mean, 1}), p, q,
             mlc_gt_scalar(s, 0));
    DEFAULTS(mlc_cosine_embedding_loss, mlc_cosine_embedding_desc,
             (&(mlc_cosine_embedding_desc){mean, 0}), p, q, s);
    DEFAULTS(mlc_multilabel_margin_loss, mlc_loss_desc, (&(mlc_loss_desc){mean}), x,
             mlc_full(ctx, MLC_I64, mlc_dims2(4, 3), 1));
    CHECK_OK(ctx);
}

/* f32 at the ends: relative digits of what is nearly 0, nothing infinite, nothing NaN.        */
TEST(loss, logits_of_a_hundred_have_their_losses_and_gradients)
{
    static const double x6[] = {100, 100, -100, -100, 20, -20}, t6[] = {1, 0, 1, 0, 1, 0};
    const double tail = exp(-20.0);
    const double loss[] = {0, 100, 100, 0, log1p(tail), log1p(tail)};
    const double dx[] = {0, 1, -1, 0, -tail / (1 + tail), tail / (1 + tail)};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(6), x6);
        mlc_tensor *t = test_tensor(ctx, MLC_F32, mlc_dims1(6), t6);
        mlc_set_requires_grad(x, true);
        mlc_tensor *y = mlc_bce_with_logits_ex(x, t,
                                               &(mlc_bce_desc){MLC_REDUCTION_NONE, NULL, NULL});
        CHECK_VALUES(y, 6, loss, 1e-37, 1e-6);
        CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
        CHECK_VALUES(mlc_grad(x), 6, dx, 1e-37, 1e-6);
        CHECK_OK(ctx);
    }
}

/* As PyTorch's, but for the target's gradient, which ends at 100 as the loss does.            */
TEST(loss, bce_of_certainties_is_a_hundred)
{
    static const double p4[] = {0, 1, 0, 1}, t4[] = {0, 1, 1, 0}, want[] = {0, 0, 100, 100};
    static const double dp[] = {0, 0, -1e12, 1e12}, dt[] = {100, -100, 100, -100};
    FOR_EACH_ISA(ctx) {
        for (int wide = 0; wide < 2; wide++) {
            const mlc_dtype dtype = wide ? MLC_F64 : MLC_F32;
            mlc_tensor *p = test_tensor(ctx, dtype, mlc_dims1(4), p4);
            mlc_tensor *t = test_tensor(ctx, dtype, mlc_dims1(4), t4);
            mlc_set_requires_grad(p, true);
            mlc_set_requires_grad(t, true);
            mlc_tensor *y = mlc_bce_loss_ex(p, t, &(mlc_bce_desc){MLC_REDUCTION_NONE, NULL, NULL});
            CHECK_VALUES(y, 4, want, 0, 0);
            CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
            CHECK_VALUES(mlc_grad(p), 4, dp, 0, 1e-6);
            CHECK_VALUES(mlc_grad(t), 4, dt, 0, 0);
        }
        CHECK(isnan(mlc_item(mlc_bce_loss_ex(mlc_full(ctx, MLC_F32, mlc_dims0(), 1.5),
                                             mlc_ones(ctx, MLC_F32, mlc_dims0()),
                                             &(mlc_bce_desc){MLC_REDUCTION_SUM, NULL, NULL}))));
        CHECK_OK(ctx);
    }
}

TEST(loss, a_nan_stays_one)
{
    static const double x2[] = {NO_NUMBER, 0.5}, t2[] = {1, 1};
    FOR_EACH_ISA(ctx) {
        for (int i = 0; i < 12; i++) {
            const double nums[] = {MLC_REDUCTION_NONE, i == 9 ? 0 : 1, 2, 0, 0};
            mlc_tensor  *in[4] = {test_tensor(ctx, MLC_F32, mlc_dims1(2), x2),
                                  test_tensor(ctx, MLC_F32, mlc_dims1(2), t2), NULL, NULL};
            double       got[2];
            if (strstr(LOSSES[i].name, "weight") != NULL)
                continue;
            test_read(LOSSES[i].call(in, nums), got);
            CHECK(isnan(got[0]) && isfinite(got[1]));
        }
        mlc_tensor *bad = mlc_full(ctx, MLC_F32, mlc_dims1(1), (double)NO_NUMBER);
        mlc_tensor *zero = mlc_zeros(ctx, MLC_F32, mlc_dims1(1));
        const mlc_kl_div_desc plain = {MLC_REDUCTION_SUM, false}, logs = {MLC_REDUCTION_SUM, true};
        CHECK(isnan(mlc_item(mlc_kl_div_ex(bad, zero, &plain))));
        CHECK(isnan(mlc_item(mlc_kl_div_ex(bad, mlc_log(zero), &logs))));
        CHECK_NEAR(mlc_item(mlc_kl_div_ex(mlc_log(zero), zero, &plain)), 0, 0);
        CHECK_NEAR(mlc_item(mlc_kl_div_ex(mlc_log(zero), mlc_log(zero), &logs)), 0, 0);
        CHECK_OK(ctx);
    }
}

/* Equal vectors: the distance has no derivative there, and the gradient is a number.          */
TEST(loss, equal_vectors_have_finite_gradients)
{
    static const double ones[] = {1, 1, 1, 1}, t2[] = {0, 1};
    FOR_EACH_ISA(ctx) {
        double      got[4];
        mlc_tensor *a = test_tensor(ctx, MLC_F32, mlc_dims2(2, 2), ones);
        mlc_tensor *b = test_tensor(ctx, MLC_F32, mlc_dims2(2, 2), ones);
        mlc_tensor *t = test_tensor(ctx, MLC_BOOL, mlc_dims1(2), t2);
        mlc_set_requires_grad(a, true);
        mlc_tensor *y = mlc_contrastive_loss_ex(a, b, t,
                                                &(mlc_contrastive_desc){MLC_REDUCTION_SUM, 2});
        CHECK_NEAR(mlc_item(y), 2, 1e-6);                     /* the second pair: 2^2/2        */
        CHECK_EQ(mlc_backward(y), MLC_OK);
        test_read(mlc_grad(a), got);
        for (int i = 0; i < 4; i++)
            CHECK_NEAR(got[i], 0, 0);
        CHECK_NEAR(mlc_item(mlc_triplet_margin_loss_ex(
                       a, b, b, &(mlc_triplet_margin_desc){MLC_REDUCTION_MEAN, 0.5, 2, true})),
                   0.5, 1e-7);
        CHECK_OK(ctx);
    }
}

TEST(loss, losses_of_nothing_are_not_numbers_or_zero)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3));
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(0));
    mlc_tensor *yy = mlc_zeros(ctx, MLC_I64, mlc_dims2(0, 3));
    const mlc_reduction sum = MLC_REDUCTION_SUM;
    CHECK(isnan(mlc_item(mlc_huber_loss(x, x))));
    CHECK_NEAR(mlc_item(mlc_huber_loss_ex(x, x, &(mlc_huber_desc){sum, 1})), 0, 0);
    CHECK(isnan(mlc_item(mlc_nll_loss(x, y))));
    CHECK(isnan(mlc_item(mlc_poly1_cross_entropy(x, y))));
    CHECK(isnan(mlc_item(mlc_cross_entropy(x, x))));
    CHECK_NEAR(mlc_item(mlc_triplet_margin_loss_ex(
                   x, x, x, &(mlc_triplet_margin_desc){sum, 1, 2, false})), 0, 0);
    CHECK(isnan(mlc_item(mlc_contrastive_loss(x, x, y))));
    CHECK_NEAR(mlc_item(mlc_cosine_embedding_loss_ex(x, x, y,
                                                     &(mlc_cosine_embedding_desc){sum, 0})), 0, 0);
    CHECK_NEAR(mlc_item(mlc_multilabel_margin_loss_ex(x, yy, &(mlc_loss_desc){sum})), 0, 0);
    CHECK(isnan(mlc_item(mlc_distillation_loss(x, x, y))));
    CHECK_OK(ctx);
}

/* Rows that are all ignored, or of no weight, are no rows.                                    */
TEST(loss, weights_of_nothing_are_not_numbers_as_in_pytorch)
{
    static const double labels[] = {1, 1}, weights[] = {1, 0, 1};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 3, -1, 1);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(2), labels);
        mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
        d.weight = test_tensor(ctx, MLC_F32, mlc_dims1(3), weights);
        CHECK(isnan(mlc_item(mlc_cross_entropy_ex(x, y, &d))));
        CHECK(isnan(mlc_item(mlc_nll_loss_ex(x, y, &d))));
        d.reduction = MLC_REDUCTION_SUM;
        CHECK_NEAR(mlc_item(mlc_cross_entropy_ex(x, y, &d)), 0, 0);
        CHECK_OK(ctx);
    }
}

/* Weights that are a view by stride count as their copy does, also in the gradient.           */
TEST(loss, weights_of_classes_may_be_strided)
{
    static const double labels[] = {1, 0, 2}, wide[] = {1, 9, 0.5, 9, 3, 9}, dense[] = {1, 0.5, 3};
    FOR_EACH_ISA(ctx) {
        double got[2][9];
        for (int k = 0; k < 2; k++) {
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 3, -1, 1);
            mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(3), labels);
            mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
            d.label_smoothing = 0.25;
            d.weight = test_tensor(ctx, MLC_F32, mlc_dims1(k == 0 ? 3 : 6), k == 0 ? dense : wide);
            if (k == 1)
                d.weight = mlc_slice(d.weight, 0, 0, 6, 2);
            mlc_set_requires_grad(x, true);
            CHECK_EQ(mlc_backward(mlc_cross_entropy_ex(x, y, &d)), MLC_OK);
            test_read(mlc_grad(x), got[k]);
        }
        CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
        CHECK_OK(ctx);
    }
}

TEST(loss, no_gradient_goes_to_a_teacher)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *s = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1);
    mlc_tensor *z = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 2, -1, 1);
    mlc_set_requires_grad(s, true);
    mlc_set_requires_grad(z, true);
    const mlc_distillation_desc soft = {1, 2};
    CHECK_EQ(mlc_backward(mlc_distillation_loss_ex(s, z, NULL, &soft)), MLC_OK);
    CHECK(mlc_grad(s) != NULL && mlc_grad(z) == NULL);
    CHECK_OK(ctx);
}

TEST(loss, wrong_labels_name_the_loss)
{
    static const double bad[] = {0, 3}, sets[] = {1, -1, 0, 2, 5, 0};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 3, -1, 1);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(2), bad);
        mlc_tensor *s = test_tensor(ctx, MLC_I64, mlc_dims2(2, 3), sets);
        for (int k = 0; k < 4; k++) {
            static const char *const text[] = {
                "nll_loss: label 3 at row 1", "poly1_cross_entropy: label 3 at row 1",
                "distillation_loss: label 3 at row 1", "multilabel_margin_loss: index 5"};
            CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
            if (k == 0)
                mlc_nll_loss(x, y);
            else if (k == 1)
                mlc_poly1_cross_entropy(x, y);
            else if (k == 2)
                mlc_distillation_loss(x, x, y);
            else
                mlc_multilabel_margin_loss(x, s);
            mlc_ctx_sync(ctx);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
            CHECK_HAS(mlc_error(ctx), text[k]);
        }
    }
}

/* ---- 16 bits ------------------------------------------------------------------------------- */

/* Kinds: plain, rows, smoothed with weights, of logarithms, poly1.                            */
static mlc_tensor *low_loss(mlc_tensor *x, mlc_tensor *y, mlc_tensor *w, int kind)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.reduction = kind == 1 ? MLC_REDUCTION_NONE : MLC_REDUCTION_MEAN;
    d.label_smoothing = kind == 2 ? 0.1 : 0;
    d.weight = kind == 2 || kind == 3 ? w : NULL;
    return kind == 4   ? mlc_poly1_cross_entropy(x, y)
           : kind == 3 ? mlc_nll_loss_ex(x, y, &d)
                       : mlc_cross_entropy_ex(x, y, &d);
}

static bool same_numbers(mlc_tensor *a, mlc_tensor *b)
{
    static float v[2][5 * 300];
    const size_t bytes = (size_t)mlc_numel(a) * mlc_dtype_bytes(a->dtype);
    return a->dtype == b->dtype && mlc_read(a, v[0], bytes) == MLC_OK &&
           mlc_read(b, v[1], bytes) == MLC_OK && memcmp(v[0], v[1], bytes) == 0;
}

/* Of logits that were cast, the loss has the same bits, and so has the gradient, rounded once. */
TEST(loss, cross_entropy_of_16_bit_logits_is_f32_and_gives_them_a_gradient_of_16_bits)
{
    static const double    labels[] = {0, 7, 299, 130, 7};
    static const mlc_dtype low[] = {MLC_BF16, MLC_F16};
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < 20; i++) {
            const mlc_dtype dtype = low[i % 2];
            mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(5, 300), 3, -6, 6), dtype);
            mlc_tensor *wide = mlc_cast(x, MLC_F32);
            mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(5), labels);
            mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims1(300), 4, 0.5, 2);
            mlc_set_requires_grad(x, true);
            mlc_set_requires_grad(wide, true);
            if (i >= 10)
                mlc_autocast_begin(ctx, dtype);
            mlc_tensor *got = low_loss(x, y, w, i / 2 % 5);
            if (i >= 10)
                mlc_autocast_end(ctx);
            mlc_tensor *want = low_loss(wide, y, w, i / 2 % 5);
            if (!CHECK(got != NULL && want != NULL) || !CHECK(same_numbers(got, want)))
                return;
            if (got->ndim)
                got = mlc_sum(got, mlc_dims0(), false), want = mlc_sum(want, mlc_dims0(), false);
            CHECK_EQ(mlc_backward(got), MLC_OK);
            CHECK_EQ(mlc_backward(want), MLC_OK);
            CHECK_EQ(mlc_grad(x)->dtype, dtype);
            CHECK(same_numbers(mlc_grad(x), mlc_cast(mlc_grad(wide), dtype)));
            CHECK_OK(ctx);
        }
}

/* What it takes over the logits is their gradient and, for a moment, a row a thread.          */
TEST(loss, cross_entropy_of_16_bit_logits_makes_no_copy_of_them)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(128));
    mlc_tensor *x = mlc_zeros(ctx, MLC_BF16, mlc_dims2(128, 4096));
    mlc_memory  before, after;
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
    mlc_memory_peak_reset(ctx);
    mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *loss = mlc_cross_entropy(x, y);
    mlc_autocast_end(ctx);
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK(after.peak - before.allocated < 128 * 4096 * 2 * 3 / 2);
    CHECK_OK(ctx);
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
    mlc_cross_entropy_desc  d = mlc_cross_entropy_desc_make();
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

TEST(loss, a_label_out_of_range_is_a_value_error_of_the_scope_when_the_device_has_run)
{
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 1, -1, 1);
        mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(5), BAD_LABELS);
        CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
        mlc_cross_entropy(x, y);
        mlc_ctx_sync(ctx);
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
    CHECK_EQ(mlc_optim_step(opt), test_on_host() ? MLC_ERR_VALUE : MLC_OK);
    mlc_ctx_sync(ctx);
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
    check_refused(ctx, mlc_mse_loss_ex(a, a, &(mlc_loss_desc){(mlc_reduction)9}), MLC_ERR_ARG, "9");
    CHECK_OK(ctx);
}

typedef struct alike_sum { mlc_tensor *loss; double v[4], dx[4], dt[4]; } alike_sum;

static alike_sum alike_of(mlc_ctx *ctx, int kind, mlc_dims dx, mlc_dims dt, mlc_reduction r)
{
    static const double p[4] = {0.125, 0.5, 0.75, 0.9}, q[4] = {1, 0, 0.25, 1};
    alike_sum           s;
    mlc_tensor *x = test_tensor(ctx, MLC_F32, dx, p), *t = test_tensor(ctx, MLC_F32, dt, q);
    mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims0(), 3);
    mlc_set_requires_grad(x, true);
    mlc_set_requires_grad(t, true);
    memset(&s, 0, sizeof s);
    s.loss = kind == 0   ? mlc_mse_loss_ex(x, t, &(mlc_loss_desc){r})
             : kind == 1 ? mlc_l1_loss_ex(x, t, &(mlc_loss_desc){r})
             : kind == 2 ? mlc_smooth_l1_loss_ex(x, t, &(mlc_smooth_l1_desc){r, 0.5})
             : kind == 3 ? mlc_huber_loss_ex(x, t, &(mlc_huber_desc){r, 0.25})
             : kind == 4 ? mlc_bce_loss_ex(x, t, &(mlc_bce_desc){r, NULL, NULL})
             : kind == 5 ? mlc_bce_with_logits_ex(x, t, &(mlc_bce_desc){r, NULL, NULL})
             : kind == 6 ? mlc_bce_with_logits_ex(x, t, &(mlc_bce_desc){r, w, w})
             : kind == 7 ? mlc_focal_loss_ex(x, t, &(mlc_focal_desc){r, 0.25, 2})
             : kind == 8 ? mlc_kl_div_ex(x, t, &(mlc_kl_div_desc){r, false})
             : kind == 9 ? mlc_hinge_loss_ex(x, t, &(mlc_hinge_desc){r, 1})
                         : mlc_hinge_embedding_loss_ex(x, t, &(mlc_hinge_embedding_desc){r, 1});
    if (!s.loss || mlc_backward(mlc_sum_all(s.loss)) != MLC_OK) return s;
    test_read(s.loss, s.v);
    test_read(mlc_grad(x), s.dx);
    test_read(mlc_grad(t), s.dt);
    return s;
}

TEST(loss, of_elements_takes_a_column_and_its_rows_alike_and_does_not_broadcast_them)
{
    mlc_ctx       *ctx = test_ctx();
    const mlc_dims line = mlc_dims1(4), column = mlc_dims2(4, 1), deep = mlc_dims3(2, 2, 1);
    for (int kind = 0; kind < 11; kind++)
        for (int mode = 0; mode < 3; mode++) {
            const mlc_reduction r = (mlc_reduction)mode;
            const alike_sum     same = alike_of(ctx, kind, line, line, r);
            const alike_sum     is[3] = {alike_of(ctx, kind, column, line, r),
                                         alike_of(ctx, kind, line, column, r),
                                         alike_of(ctx, kind, deep, mlc_dims2(2, 2), r)};
            for (int k = 0; k < 3; k++) {
                CHECK(same.loss && is[k].loss);
                CHECK(memcmp(is[k].v, same.v, sizeof same.v) == 0);
                CHECK(memcmp(is[k].dx, same.dx, sizeof same.dx) == 0);
                CHECK(memcmp(is[k].dt, same.dt, sizeof same.dt) == 0);
                if (r == MLC_REDUCTION_NONE && is[k].loss)
                    CHECK_EQ(is[k].loss->ndim, k == 0 ? 2 : k == 1 ? 1 : 3);
            }
            CHECK(alike_of(ctx, kind, column, mlc_dims2(1, 4), r).loss == NULL);
            check_refused(ctx, NULL, MLC_ERR_SHAPE, "x [4,1] and target [1,4] differ; they must");
            CHECK(alike_of(ctx, kind, mlc_dims2(1, 4), line, r).loss == NULL);
            check_refused(ctx, NULL, MLC_ERR_SHAPE, "x [1,4] and target [4] differ; they must");
            CHECK(alike_of(ctx, kind, mlc_dims3(4, 1, 1), line, r).loss == NULL);
            check_refused(ctx, NULL, MLC_ERR_SHAPE, "x [4,1,1] and target [4] differ; they must");
        }
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
                  MLC_ERR_SHAPE, "MLC_I64");             /* floats are probabilities          */
    check_refused(ctx, mlc_cross_entropy(x, mlc_zeros(ctx, MLC_I32, mlc_dims1(4))),
                  MLC_ERR_DTYPE, "MLC_I64");
    check_refused(ctx, mlc_cross_entropy(ints, y), MLC_ERR_DTYPE, "cross_entropy");
    check_refused(ctx, mlc_cross_entropy(x, NULL), MLC_ERR_ARG, "cross_entropy");
    check_refused(ctx, mlc_cross_entropy(NULL, y), MLC_ERR_ARG, "cross_entropy");
    CHECK_OK(ctx);
}

TEST(loss, weights_of_16_bit_logits_are_f32)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *x = mlc_zeros(ctx, MLC_BF16, mlc_dims2(4, 3));
    mlc_tensor            *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.weight = mlc_ones(ctx, MLC_BF16, mlc_dims1(3));
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_DTYPE,
                  "cross_entropy: logits are bf16, weight is bf16; it must be f32: cast it with "
                  "mlc_cast");
    mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *loss = mlc_cross_entropy_ex(x, y, &d);     /* which casts weights              */
    mlc_autocast_end(ctx);
    CHECK_NEAR(mlc_item(loss), log(3.0), 1e-6);
    d.weight = mlc_ones(ctx, MLC_F32, mlc_dims1(3));
    CHECK_NEAR(mlc_item(mlc_cross_entropy_ex(x, y, &d)), log(3.0), 1e-6);
    CHECK_OK(ctx);
}

TEST(loss, cross_entropy_refuses_a_desc_out_of_range)
{
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor            *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.label_smoothing = 1.5;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "smoothing");
    d.label_smoothing = -0.1;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "smoothing");
    d.label_smoothing = (double)NO_NUMBER;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "smoothing");
    d.label_smoothing = 0;
    d.reduction = (mlc_reduction)7;
    check_refused(ctx, mlc_cross_entropy_ex(x, y, &d), MLC_ERR_ARG, "reduction");
    CHECK_OK(ctx);
}

/* ---- sequences ----------------------------------------------------------------------------- */

/* Logits [b,t,c] of every layout are those of b t rows, bit for bit: with an ignored label too. */
TEST(loss, of_a_sequence_is_that_of_its_rows)
{
    enum { B = 3, T = 5, C = 7 };
    static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < 4; k++)
        for (int form = 0; form < 12; form++) {
            mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
            double      y[2][B * T], g[2][B * T * C];
            mlc_tensor *label = mlc_cast(test_rand(ctx, MLC_F64, mlc_dims2(T, B), 3, 0, C),
                                         MLC_I64);
            label = mlc_transpose(label, 0, 1);
            d.reduction = (mlc_reduction)(form % 3);
            d.has_ignore_index = form / 3 % 2 != 0;
            d.ignore_index = d.has_ignore_index ? 2 : 0;
            d.label_smoothing = form / 6 % 2 ? 0.1 : 0;
            const int64_t n = d.reduction == MLC_REDUCTION_NONE ? B * T : 1;
            for (int way = 0; way < 2; way++) {
                mlc_tensor *x = test_rand(ctx, FLOATS[k], mlc_dims3(T, B, C), 1, -3, 3), *at, *l;
                mlc_set_requires_grad(x, true);
                at = mlc_transpose(x, 0, 1);               /* [b,t,c] by stride                */
                l = way ? mlc_cross_entropy_ex(mlc_reshape(at, mlc_dims2(B * T, C)),
                                               mlc_reshape(label, mlc_dims1(B * T)), &d)
                        : mlc_cross_entropy_ex(at, label, &d);
                CHECK_EQ(mlc_numel(l), n);
                CHECK_EQ(l->ndim, n == 1 ? 0 : 2 - way);
                CHECK_EQ(l->dtype, k == 1 ? MLC_F64 : MLC_F32);
                CHECK_EQ(mlc_backward_from(l, NULL), MLC_OK);
                test_read(l, y[way]);
                test_read(mlc_grad(x), g[way]);
            }
            CHECK(memcmp(y[0], y[1], (size_t)n * sizeof(double)) == 0);
            CHECK(memcmp(g[0], g[1], sizeof g[0]) == 0);
        }
    CHECK_OK(ctx);
}

TEST(loss, of_a_sequence_takes_probabilities_and_its_mean_is_the_log_of_the_perplexity)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 4, 5), 1, -3, 3);
    mlc_tensor *y = mlc_cast(test_rand(ctx, MLC_F64, mlc_dims2(2, 4), 3, 0, 5), MLC_I64);
    mlc_tensor *p = mlc_cast(mlc_one_hot(y, 5), MLC_F32);
    const double l = mlc_item(mlc_cross_entropy(x, y));
    CHECK_NEAR(mlc_item(mlc_cross_entropy(x, p)), l, 1e-6);
    mlc_metric *m = mlc_metric_perplexity(ctx);
    CHECK_EQ(mlc_metric_update(m, x, y, NULL), MLC_OK);
    CHECK_NEAR(mlc_metric_value(m), exp(l), 1e-5);
    mlc_metric_free(m);
    CHECK_OK(ctx);
}

/* Rows of [4,1,3] are 3 numbers apart, whatever the stride of the axis of size 1. */
TEST(loss, an_axis_of_size_1_may_have_any_stride)
{
    static const mlc_dtype FLOATS[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    const mlc_dims SHAPES[] = {mlc_dims3(4, 1, 3), mlc_dims3(1, 4, 3), mlc_dims4(2, 1, 3, 1),
                               mlc_dims4(2, 3, 1, 4), mlc_dims3(1, 1, 5), mlc_dims2(1, 5)};
    for (int form = 0; form < 4 * 6 * 6; form++) {
        mlc_ctx       *ctx = test_ctx();
        const mlc_dims dims = SHAPES[form / 4 % 6];
        const double   classes = (double)dims.v[dims.n - 1];
        const bool     nll = form / 24 > 2;
        mlc_tensor    *label = mlc_cast(test_rand(ctx, MLC_F64, mlc_dims_of(dims.n - 1, dims.v), 3,
                                                  0, classes), MLC_I64);
        mlc_tensor    *logits = test_rand(ctx, FLOATS[form % 4], dims, 1, -3, 3);
        mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
        double         y[2][24], g[2][24];
        d.reduction = (mlc_reduction)(form / 24 % 3);
        for (int way = 0; way < 2; way++) {
            mlc_tensor *x = way ? test_unused_strides(logits) : logits;
            mlc_tensor *at = way ? test_unused_strides(label) : label, *l;
            mlc_set_requires_grad(x, true);
            l = nll ? mlc_nll_loss_ex(x, at, &d) : mlc_cross_entropy_ex(x, at, &d);
            CHECK_EQ(mlc_backward_from(l, NULL), MLC_OK);
            test_read(l, y[way]);
            test_read(mlc_grad(x), g[way]);
            if (way) CHECK(memcmp(y[0], y[1], (size_t)mlc_numel(l) * sizeof(double)) == 0);
        }
        CHECK(memcmp(g[0], g[1], (size_t)mlc_numel(logits) * sizeof(double)) == 0);
        CHECK_OK(ctx);
    }
}

/* The same by views: a leaf [1,4,3], and its transpose [4,1,3], whose gradient it takes. */
TEST(loss, rows_of_a_transposed_batch_of_one_are_those_of_a_copy)
{
    const int64_t labels[4] = {2, 0, 1, 2};
    mlc_ctx      *ctx = test_ctx();
    mlc_tensor   *y14 = mlc_from(ctx, MLC_I64, mlc_dims2(1, 4), labels);
    double        loss[4], g[4][12];
    for (int way = 0; way < 4; way++) {
        mlc_tensor *leaf = test_rand(ctx, MLC_F32, mlc_dims3(1, 4, 3), 1, -3, 3);
        mlc_set_requires_grad(leaf, true);
        mlc_tensor *x = mlc_transpose(leaf, 0, 1), *y = mlc_transpose(y14, 0, 1);
        mlc_tensor *l = mlc_cross_entropy(way & 1 ? mlc_copy(x) : x, way & 2 ? mlc_copy(y) : y);
        CHECK_EQ(mlc_backward(l), MLC_OK);
        loss[way] = mlc_item(l);
        test_read(mlc_grad(leaf), g[way]);
        CHECK(way == 0 || (loss[way] == loss[0] && memcmp(g[way], g[0], sizeof g[0]) == 0));
    }
    double want = 0, x[12];
    test_read(test_rand(ctx, MLC_F32, mlc_dims3(1, 4, 3), 1, -3, 3), x);
    for (int r = 0; r < 4; r++)
        want += log(exp(x[3 * r]) + exp(x[3 * r + 1]) + exp(x[3 * r + 2])) -
                x[3 * r + labels[r]];
    CHECK_NEAR(loss[0], want / 4, 1e-6);
    CHECK_OK(ctx);
}
