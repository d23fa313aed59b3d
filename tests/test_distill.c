/* test_distill.c -- tests of section IMPL.DISTILL: a student learns from teachers, in mlc_fit and
 * by hand
 */
#include "nets.h"

static mlc_ctx *ctx_of(mlc_dtype dtype)
{
    mlc_ctx_desc d = test_desc();
    d.dtype = dtype;
    return test_own(mlc_ctx_create(&d));
}

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                                     mlc_dims0(), false)) : 1e9;
}

static mlc_batch batch_of(mlc_ctx *ctx)
{
    static const double labels[6] = {0, 3, 1, 2, 2, 0};
    mlc_batch b;
    memset(&b, 0, sizeof b);
    b.x = test_rand(ctx, MLC_F32, mlc_dims2(6, 5), 1, -1, 1);
    b.y = test_tensor(ctx, MLC_I64, mlc_dims1(6), labels);
    b.n = 6;
    return b;
}

static mlc_tensor *eval(mlc_module *net, mlc_tensor *x)
{
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_eval_end(net), MLC_OK);
    return y;
}

/* The same bits as ten lines by hand, losses and weights, over steps of AdamW. */
TEST(distill, is_the_loss_that_is_written_by_hand)
{
    mlc_ctx         *ctx = ctx_of(MLC_F32);
    mlc_module      *teacher = mlp(ctx, 5, 9, 4), *student = mlp(ctx, 5, 3, 4);
    mlc_module      *hand = mlc_module_clone(student);
    mlc_distill_desc desc = mlc_distill_desc_make();
    desc.loss.alpha = 0.7;
    desc.loss.temperature = 3;
    mlc_distillation *d = mlc_distillation_create(student, teacher, &desc);
    CHECK(d && mlc_distillation_net(d) == student);
    mlc_optim *opt = mlc_adamw(mlc_distillation_net(d), 0.01), *by = mlc_adamw(hand, 0.01);
    const mlc_batch b = batch_of(ctx);
    for (int step = 0; step < 20; step++) {
        mlc_tensor *y = NULL;
        mlc_scope_begin(ctx);
        mlc_tensor *loss = mlc_distillation_forward(d, student, &b, &y);
        mlc_tensor *z = eval(teacher, b.x);
        mlc_tensor *want = mlc_distillation_loss_ex(mlc_forward(hand, b.x), z, b.y, &desc.loss);
        CHECK(mlc_item(loss) == mlc_item(want));
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_optim_minimize(by, want), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(apart(mlc_module_param(student, "0.weight"), mlc_module_param(hand, "0.weight")) == 0);
    CHECK(mlc_grad(mlc_module_param(teacher, "0.weight")) == NULL);
    CHECK(mlc_module_is_training(teacher));
    mlc_distillation_free(d);
    CHECK_OK(ctx);
}

TEST(distill, trains_in_fit_and_validates)
{
    mlc_ctx    *ctx = ctx_of(MLC_F32);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(120, 6), 1, -1, 1);
    mlc_tensor *y = mlc_argmax(mlc_slice(x, 1, 0, 3, 1), 1, false);
    mlc_module *teacher = mlp(ctx, 6, 24, 3), *student = mlp(ctx, 6, 4, 3);
    mlc_loader *train = mlc_loader_shuffled(ctx, x, y, 20);
    mlc_loader *held = mlc_loader_ordered(ctx, x, y, 40);
    mlc_fit_desc f = mlc_fit_desc_make(mlc_cross_entropy);
    f.epochs = 20;
    CHECK_EQ(mlc_fit(teacher, mlc_adamw(teacher, 0.01), train, &f, NULL), MLC_OK);
    mlc_distillation *d = mlc_distillation_create(student, teacher, NULL);
    mlc_fit_metric    metric = {"accuracy", mlc_metric_accuracy(ctx), true};
    mlc_tracker      *history = NULL;
    f.loss = NULL;
    f.forward = mlc_distillation_forward;
    f.user = d;
    f.validation = held;
    f.metrics = &metric;
    f.n_metrics = 1;
    CHECK_EQ(mlc_fit(student, mlc_adamw(student, 0.02), train, &f, &history), MLC_OK);
    CHECK(mlc_tracker_last(history, "val_accuracy") > 0.85);
    CHECK(mlc_tracker_last(history, "loss") < 0.6);
    mlc_tracker_free(history);
    mlc_distillation_free(d);
    CHECK_OK(ctx);
}

/* Several teachers: the mean of their losses. */
TEST(distill, several_teachers_are_a_mean)
{
    mlc_ctx         *ctx = ctx_of(MLC_F32);
    mlc_module      *teacher[3], *student = mlp(ctx, 5, 3, 4);
    mlc_distill_desc desc = mlc_distill_desc_make();
    const mlc_batch  b = batch_of(ctx);
    mlc_tensor      *y = NULL;
    double           sum = 0;
    for (int i = 0; i < 3; i++) teacher[i] = mlp(ctx, 5, 4 + i, 4);
    desc.teachers = teacher + 1;
    desc.n_teachers = 2;
    mlc_distillation *d = mlc_distillation_create(student, teacher[0], &desc);
    const double loss = mlc_item(mlc_distillation_forward(d, student, &b, &y));
    for (int i = 0; i < 3; i++)
        sum += mlc_item(mlc_distillation_loss(y, eval(teacher[i], b.x), b.y));
    CHECK_NEAR(loss, sum / 3, 1e-6);
    mlc_distillation_free(d);
}

/* Hidden layers through a learned linear, which is trained with the student. */
TEST(distill, layers_go_through_a_learned_linear)
{
    mlc_ctx                *ctx = ctx_of(MLC_F32);
    mlc_module             *teacher = mlp(ctx, 5, 9, 4), *student = mlp(ctx, 5, 3, 4);
    const mlc_distill_layer layers[2] = {{"0", "0", 0.5, 3, 9}, {"2", "2", 0.25, 0, 0}};
    mlc_distill_desc        desc = mlc_distill_desc_make();
    const mlc_batch         b = batch_of(ctx);
    mlc_tensor             *y = NULL;
    desc.layers = layers;
    desc.n_layers = 2;
    mlc_distillation *d = mlc_distillation_create(student, teacher, &desc);
    if (!CHECK(d != NULL)) { printf("  %s\n", mlc_error(ctx)); return; }
    mlc_module *net = mlc_distillation_net(d);
    CHECK(net != student);
    mlc_tensor *w = mlc_module_param(net, "layer0.weight");
    CHECK_EQ(mlc_numel(w), 27);
    mlc_optim *opt = mlc_adamw(net, 0.01);
    mlc_tensor *before = mlc_copy(w), *first = mlc_copy(mlc_module_param(net, "student.0.weight"));
    mlc_scope_begin(ctx);
    mlc_tensor *loss = mlc_distillation_forward(d, net, &b, &y);
    mlc_tensor *h = mlc_forward(mlc_module_child(student, 0), b.x);
    mlc_tensor *t = eval(mlc_module_child(teacher, 0), b.x), *z = eval(teacher, b.x);
    mlc_tensor *want = mlc_distillation_loss(y, z, b.y);
    want = mlc_add(want, mlc_mul_scalar(mlc_mse_loss(mlc_linear(h, w, NULL), t), 0.5));
    want = mlc_add(want, mlc_mul_scalar(mlc_mse_loss(y, z), 0.25));
    CHECK_NEAR(mlc_item(loss), mlc_item(want), 1e-6);
    CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(apart(w, before) > 1e-4);
    CHECK(apart(mlc_module_param(net, "student.0.weight"), first) > 1e-4);
    mlc_tensor *out = mlc_copy(eval(net, b.x));
    mlc_distillation_free(d);
    CHECK(apart(eval(student, b.x), out) == 0);              /* a root again, with its values */
    CHECK(mlc_module_param(student, "0.weight") != NULL);
    mlc_optim *next = mlc_adamw(student, 0.01);
    CHECK_EQ(mlc_optim_minimize(next, mlc_cross_entropy(mlc_forward(student, b.x), b.y)), MLC_OK);
    CHECK_OK(ctx);
}

/* Teachers of another context, of bf16 and of integers. */
TEST(distill, teachers_may_be_elsewhere_and_of_other_numbers)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 3; i++) {
        mlc_ctx          *ctx = ctx_of(MLC_F32), *far = ctx_of(MLC_F32);
        mlc_module       *teacher = mlp(far, 5, 9, 4), *near = mlp(ctx, 5, 9, 4);
        mlc_module       *student = mlp(ctx, 5, 9, 4);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
        const mlc_distill_layer layer = {"0", "0", 1, 0, 0};
        mlc_distill_desc  desc = mlc_distill_desc_make();
        const mlc_batch   b = batch_of(ctx);
        mlc_tensor       *y = NULL;
        desc.layers = i == 1 ? NULL : &layer;
        desc.n_layers = i != 1;
        for (mlc_param_iter it = mlc_param_iter_make(teacher); mlc_param_next(&it); ) {
            float v[64];
            const size_t bytes = (size_t)mlc_numel(it.tensor) * 4;
            CHECK_EQ(mlc_read(it.tensor, v, bytes), MLC_OK);
            CHECK_EQ(mlc_write(mlc_module_param(near, it.name), v, bytes), MLC_OK);
        }
        if (i == 1) CHECK_EQ(mlc_module_to(teacher, MLC_BF16) | mlc_module_to(near, MLC_BF16), 0);
        if (i == 2) CHECK_EQ(mlc_quantize(teacher, &q, NULL) | mlc_quantize(near, &q, NULL), 0);
        mlc_distillation *one = mlc_distillation_create(student, teacher, &desc);
        mlc_tensor       *loss = mlc_distillation_forward(one, student, &b, &y);
        if (!CHECK(loss != NULL)) printf("  %d: %s, %s\n", i, mlc_error(ctx), mlc_error(far));
        mlc_distillation_free(one);
        mlc_distillation *two = mlc_distillation_create(student, near, &desc);
        CHECK(mlc_item(loss) == mlc_item(mlc_distillation_forward(two, student, &b, &y)));
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        mlc_distillation_free(two);
        CHECK_OK(far);
    }
}

/* Sequences: rows are all axes but the last. */
TEST(distill, sequences_are_rows)
{
    mlc_ctx    *ctx = ctx_of(MLC_F32);
    mlc_module *teacher = mlc_nn_linear(ctx, 5, 4), *student = mlc_nn_linear(ctx, 5, 4);
    mlc_batch   b = batch_of(ctx);
    mlc_tensor *y = NULL;
    mlc_distillation *d = mlc_distillation_create(student, teacher, NULL);
    const double flat = mlc_item(mlc_distillation_forward(d, student, &b, &y));
    b.x = mlc_reshape(b.x, mlc_dims3(2, 3, 5));
    b.y = mlc_reshape(b.y, mlc_dims2(2, 3));
    CHECK_NEAR(mlc_item(mlc_distillation_forward(d, student, &b, &y)), flat, 1e-7);
    CHECK_EQ(y->ndim, 3);
    mlc_distillation_free(d);
}

static void refused(mlc_module *student, mlc_module *teacher, const mlc_distill_desc *d,
                    mlc_status status, const char *text)
{
    CHECK(mlc_distillation_create(student, teacher, d) == NULL);
    CHECK_ERROR(mlc_module_ctx(student), status, text);
}

TEST(distill, errors_say_what_does_not_fit)
{
    mlc_ctx          *ctx = ctx_of(MLC_F32);
    mlc_module       *teacher = mlp(ctx, 5, 9, 7), *student = mlp(ctx, 5, 3, 4), *none = NULL;
    mlc_module       *fits = mlp(ctx, 5, 9, 4);
    mlc_distill_desc  desc = mlc_distill_desc_make();
    mlc_distill_layer layers[2] = {{"0", "0", 1, 0, 0}, {"0", "2", 1, 0, 0}};
    mlc_batch         b = batch_of(ctx);
    mlc_tensor       *y = NULL;
    mlc_distillation *d = mlc_distillation_create(student, teacher, NULL);
    CHECK(mlc_distillation_forward(d, student, &b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE,
                "outputs of teacher 0 are [6,7], of the student [6,4]; they must have one shape");
    CHECK(mlc_distillation_forward(d, student, NULL, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "distillation: the batch or output is NULL");
    mlc_distillation_free(d);
    mlc_distillation_free(NULL);
    CHECK(mlc_distillation_create(student, NULL, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the teacher");
    desc.loss.temperature = 0;
    refused(student, teacher, &desc, MLC_ERR_ARG, "temperature 0");
    desc = mlc_distill_desc_make();
    desc.n_teachers = 1;
    refused(student, teacher, &desc, MLC_ERR_ARG, "teachers");
    desc.teachers = &none;
    refused(student, teacher, &desc, MLC_ERR_ARG, "teacher 1 is NULL");
    desc = mlc_distill_desc_make();
    desc.layers = layers;
    desc.n_layers = 2;
    refused(student, fits, &desc, MLC_ERR_STATE, "layer '0' of the student has a hook");
    layers[1].student = "9";
    refused(student, fits, &desc, MLC_ERR_ARG, "the student has no layer '9'");
    layers[1].student = "2";
    layers[1].in = 4;
    refused(student, fits, &desc, MLC_ERR_ARG, "both positive or both 0");
    layers[1].in = 0;
    d = mlc_distillation_create(student, fits, &desc);       /* all hooks before were removed */
    CHECK_OK(ctx);
    CHECK(mlc_distillation_forward(d, student, &b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "layer '0' makes [6,3], '0' of the teacher [6,9]");
    mlc_distillation_free(d);
    CHECK(mlc_distillation_forward(NULL, student, &b, &y) == NULL);
}
