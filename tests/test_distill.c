/* test_distill.c -- tests of section IMPL.DISTILL: a student learns from teachers, in mlc_fit and
 * by hand; beside PyTorch (tests/golden/make_distill_goldens.py)
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE                /* mkdtemp under -std=c11 */
#include "files.h"
#include "nets.h"
#include "golden/golden.h"

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

/* A student, by an object or by hand. */
typedef struct side {
    mlc_module       *net, *teacher;
    mlc_distillation *d;               /* NULL: by hand                                         */
    mlc_batch         b;
} side;

static mlc_tensor *loss_of(void *user)
{
    const side *s = (const side *)user;
    mlc_tensor *y = NULL;
    if (s->d) return mlc_distillation_forward(s->d, s->net, &s->b, &y);
    y = mlc_forward(s->net, s->b.x);
    return mlc_distillation_loss(y, eval(s->teacher, s->b.x), s->b.y);
}

/* One call of an optimizer: under autocast (2), of L-BFGS (3) or SAM (4), whose own loop asks for
 * the loss. */
static void one_step(side *s, mlc_optim *opt, int kind)
{
    mlc_ctx *ctx = mlc_module_ctx(s->net);
    mlc_scope_begin(ctx);
    if (kind >= 3) {
        CHECK_EQ(mlc_optim_step_with(opt, loss_of, s, NULL), MLC_OK);
    } else {
        if (kind == 2) CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
        mlc_tensor *loss = loss_of(s);
        if (kind == 2) CHECK_EQ(mlc_autocast_end(ctx), MLC_OK);
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
    }
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

/* The same bits as by hand with gradients of three batches (1), and the other kinds of a step. */
TEST(distill, every_kind_of_step_is_as_by_hand)
{
    ONLY_ON_HOST();
    for (int kind = 1; kind <= 4; kind++) {
        mlc_ctx    *ctx = ctx_of(MLC_F32);
        mlc_module *teacher = mlp(ctx, 5, 9, 4), *student = mlp(ctx, 5, 3, 4);
        side        of[2] = {{student, teacher, NULL, batch_of(ctx)},
                             {mlc_module_clone(student), teacher, NULL, batch_of(ctx)}};
        mlc_tensor *before = mlc_copy(mlc_module_param(student, "0.weight"));
        of[0].d = mlc_distillation_create(student, teacher, NULL);
        for (int i = 0; i < 2; i++) {
            mlc_optim *opt = kind == 3 ? mlc_lbfgs(of[i].net, 0.5) : mlc_adamw(of[i].net, 0.01);
            if (kind == 1) CHECK_EQ(mlc_optim_accumulate(opt, 3), MLC_OK);
            if (kind == 4) CHECK_EQ(mlc_optim_sam(opt, 0.05, false), MLC_OK);
            for (int step = 0; step < 6; step++) one_step(&of[i], opt, kind);
        }
        CHECK(apart(mlc_module_param(student, "0.weight"), before) > 1e-4);
        CHECK(apart(mlc_module_param(student, "0.weight"),
                    mlc_module_param(of[1].net, "0.weight")) == 0);
        mlc_distillation_free(of[0].d);
        CHECK_OK(ctx);
    }
}

/* Writes golden_spread / 2 into the tensors of a network, of streams from this one on. */
static void put_numbers(mlc_module *net, mlc_dtype dtype, uint32_t stream)
{
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); stream++) {
        double values[256];
        for (int64_t i = 0; i < mlc_numel(it.tensor); i++) values[i] = golden_spread(i, stream) / 2;
        mlc_copy_into(mlc_reshape(it.tensor, mlc_dims1(-1)),
                      test_tensor(mlc_module_ctx(net), dtype, mlc_dims1(mlc_numel(it.tensor)),
                                  values));
    }
}

/* 100 steps with a layer and its linear: losses and the student at the end. */
static void follow_pytorch(mlc_dtype dtype, double tolerance)
{
    mlc_ctx                *ctx = ctx_of(dtype);
    mlc_module             *teacher = mlp(ctx, 5, 9, 4), *student = mlp(ctx, 5, 3, 4);
    const mlc_distill_layer layer = {"0", "0", 0.5, 3, 9};
    mlc_distill_desc        desc = mlc_distill_desc_make();
    golden_file             f = golden_open(ctx, "distill.safetensors");
    double                  want[100], x[120], labels[24];
    mlc_batch               b;
    mlc_tensor             *y = NULL;
    memset(&b, 0, sizeof b);
    for (int i = 0; i < 120; i++) x[i] = golden_spread(i, 9) / 2;
    for (int i = 0; i < 24; i++) labels[i] = i % 4;
    b.x = test_tensor(ctx, dtype, mlc_dims2(24, 5), x);
    b.y = test_tensor(ctx, MLC_I64, mlc_dims1(24), labels);
    desc.loss.alpha = 0.7;
    desc.loss.temperature = 3;
    desc.layers = &layer;
    desc.n_layers = 1;
    mlc_distillation *d = mlc_distillation_create(student, teacher, &desc);
    mlc_module       *net = mlc_distillation_net(d);
    CHECK_EQ(mlc_module_build(net) | mlc_module_build(teacher), 0);
    put_numbers(teacher, dtype, 0);
    put_numbers(student, dtype, 4);
    put_numbers(mlc_module_find(net, "layer0"), dtype, 8);
    mlc_optim *opt = mlc_adamw(net, 0.01);
    CHECK(test_read(golden_find(&f, "losses"), want));
    for (int step = 0; step < 100; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *loss = mlc_distillation_forward(d, net, &b, &y);
        CHECK_NEAR(mlc_item(loss), want[step], tolerance);
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_tensor *w = mlc_module_param(student, "0.weight");
    CHECK(apart(w, golden_find(&f, "0.weight")) < tolerance * 9);
    CHECK(apart(mlc_module_param(student, "2.bias"), golden_find(&f, "2.bias")) < tolerance * 9);
    mlc_distillation_free(d);
    CHECK_OK(ctx);
}

TEST(distill, a_hundred_steps_follow_pytorch)
{
    follow_pytorch(MLC_F64, 1e-12);
    follow_pytorch(MLC_F32, 1e-5);
}

/* A teacher and a student with a linear, in a context of their own. */
typedef struct pupil {
    mlc_ctx          *ctx;
    mlc_distillation *d;
    mlc_run           run;
} pupil;

static pupil pupil_of(void)
{
    static const mlc_distill_layer layer = {"0", "0", 0.5, 3, 9};
    mlc_distill_desc desc = mlc_distill_desc_make();
    pupil            p;
    memset(&p, 0, sizeof p);
    p.ctx = ctx_of(MLC_F32);
    desc.layers = &layer;
    desc.n_layers = 1;
    mlc_module *teacher = mlp(p.ctx, 5, 9, 4);
    p.d = mlc_distillation_create(mlp(p.ctx, 5, 3, 4), teacher, &desc);
    p.run.net = mlc_distillation_net(p.d);
    p.run.optim = mlc_adamw(p.run.net, 0.01);
    return p;
}

/* Steps on batches of their number; the last loss. */
static double lessons(pupil *p, int from, int to)
{
    mlc_batch   b = batch_of(p->ctx);
    mlc_tensor *y = NULL;
    double      last = 0;
    for (int step = from; step < to; step++) {
        mlc_scope_begin(p->ctx);
        b.x = test_rand(p->ctx, MLC_F32, mlc_dims2(6, 5), (uint64_t)step, -1, 1);
        mlc_tensor *loss = mlc_distillation_forward(p->d, p->run.net, &b, &y);
        last = mlc_item(loss);
        CHECK_EQ(mlc_optim_minimize(p->run.optim, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(p->ctx), MLC_OK);
    }
    return last;
}

TEST(distill, a_run_that_goes_on_has_the_same_bits)
{
    box   b = box_open_fast("run.safetensors");
    pupil one = pupil_of(), two = pupil_of();
    lessons(&one, 0, 4);
    CHECK_EQ(mlc_run_save(one.ctx, b.path, &one.run), MLC_OK);
    const double straight = lessons(&one, 4, 8);
    if (!CHECK_EQ(mlc_run_load(two.ctx, b.path, &two.run), MLC_OK))
        printf("  %s\n", mlc_error(two.ctx));
    CHECK(lessons(&two, 4, 8) == straight);
    for (mlc_param_iter it = mlc_param_iter_make(one.run.net); mlc_param_next(&it); ) {
        float v[64], w[64];
        const size_t bytes = (size_t)mlc_numel(it.tensor) * 4;
        CHECK_EQ(mlc_read(it.tensor, v, bytes), MLC_OK);
        CHECK_EQ(mlc_read(mlc_module_param(two.run.net, it.name), w, bytes), MLC_OK);
        CHECK(memcmp(v, w, bytes) == 0);
    }
    mlc_distillation_free(one.d);
    mlc_distillation_free(two.d);
    box_close(&b);
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

/* A sequential of an mlp and a linear: layer "0.0" is within the first child. */
static mlc_module *nested(mlc_ctx *ctx, int64_t hidden)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlp(ctx, 5, hidden, 6));
    mlc_module_add(net, mlc_nn_linear(ctx, 6, 4));
    return net;
}

/* Gradients of one step, with a layer's loss, of a student and of one that is recomputed. */
TEST(distill, recomputed_students_have_the_same_gradients)
{
    ONLY_ON_HOST();
    mlc_ctx          *ctx = ctx_of(MLC_F32);
    mlc_module       *teacher = nested(ctx, 9), *student = nested(ctx, 3);
    mlc_module       *twin = mlc_module_clone(student);
    mlc_distill_layer layer = {"0", "0", 2, 0, 0};
    mlc_distill_desc  desc = mlc_distill_desc_make();
    const mlc_batch   b = batch_of(ctx);
    mlc_tensor       *y = NULL;
    desc.layers = &layer;
    desc.n_layers = 1;
    CHECK_EQ(mlc_module_recompute(twin, 1), MLC_OK);
    mlc_distillation *d = mlc_distillation_create(student, teacher, &desc);
    mlc_distillation *e = mlc_distillation_create(twin, teacher, &desc);
    mlc_tensor *plain = mlc_distillation_forward(d, NULL, &b, &y);
    mlc_tensor *twice = mlc_distillation_forward(e, NULL, &b, &y);
    CHECK(mlc_item(plain) == mlc_item(twice));
    CHECK_EQ(mlc_backward(plain) | mlc_backward(twice), 0);
    CHECK(apart(mlc_grad(mlc_module_param(student, "0.0.weight")),
                mlc_grad(mlc_module_param(twin, "0.0.weight"))) == 0);
    mlc_distillation_free(e);
    layer.student = layer.teacher = "0.2";
    e = mlc_distillation_create(twin, teacher, &desc);
    CHECK(mlc_distillation_forward(e, NULL, &b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "distillation: layer '0.2' of the student is within a "
                "recomputed module; take that one's output, or do not mark it");
    CHECK_EQ(mlc_module_recompute(twin, 0), MLC_OK);
    CHECK(mlc_distillation_forward(e, NULL, &b, &y) != NULL);
    mlc_distillation_free(d);
    mlc_distillation_free(e);
    CHECK_OK(ctx);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { SEEN_B = 2, SEEN_T = 5, SEEN_E = 8, SEEN_H = 4 };

/* Attention with two heads of keys for four of queries, as a network of its own: path "". kind: 1
 * causal, 2 a window of 2, 3 ALiBi. */
static mlc_module *looks(mlc_ctx *ctx, int kind)
{
    mlc_nn_multihead_attention_desc d = mlc_nn_multihead_attention_desc_make(SEEN_E, SEEN_H);
    d.kv_heads = 2;
    d.causal = kind == 1;
    d.window = kind == 2 ? 2 : 0;
    d.alibi = kind == 3;
    mlc_module *m = mlc_nn_multihead_attention_ex(ctx, &d);
    CHECK_EQ(mlc_module_build(m), MLC_OK);
    put_numbers(m, mlc_module_param(m, "in_proj_bias")->dtype, 3);
    return m;
}

/* Tells whether row i sees key j. */
static bool sees(int kind, int i, int j)
{
    return kind == 1 ? j <= i : kind == 2 ? abs(i - j) < 2 : true;
}

/* Scores of rows and keys of one head and sequence, as one would on paper. */
static void on_paper(mlc_module *m, const double *x, int b, int h, double score[SEEN_T][SEEN_T])
{
    static double w[(SEEN_E + 8) * SEEN_E], bias[SEEN_E + 8];
    double        qk[2][SEEN_T][2];
    CHECK(test_read(mlc_module_param(m, "in_proj_weight"), w));
    CHECK(test_read(mlc_module_param(m, "in_proj_bias"), bias));
    for (int part = 0; part < 2; part++)
        for (int t = 0; t < SEEN_T; t++)
            for (int c = 0; c < 2; c++) {
                const int row = part ? SEEN_E + h / 2 * 2 + c : 2 * h + c;
                double    sum = bias[row];
                for (int e = 0; e < SEEN_E; e++)
                    sum += w[row * SEEN_E + e] * x[(b * SEEN_T + t) * SEEN_E + e];
                qk[part][t][c] = sum;
            }
    for (int i = 0; i < SEEN_T; i++)
        for (int j = 0; j < SEEN_T; j++)
            score[i][j] = (qk[0][i][0] * qk[1][j][0] + qk[0][i][1] * qk[1][j][1]) / sqrt(2.0);
}

/* The weights of row i: softmax of scores as masked, with a slope. */
static void weights_of(int kind, const double score[SEEN_T], int i, double slope, double p[SEEN_T])
{
    double sum = 0;
    for (int j = 0; j < SEEN_T; j++) {
        p[j] = sees(kind, i, j) ? exp(score[j] - (kind == 3 ? slope * abs(i - j) : 0)) : 0;
        sum += p[j];
    }
    for (int j = 0; j < SEEN_T; j++) p[j] /= sum;
}

/* The loss of all maps, on paper. */
static double map_loss(mlc_module *student, mlc_module *teacher, const double *x, int kind,
                       bool scores)
{
    double total = 0;
    for (int b = 0; b < SEEN_B; b++)
        for (int h = 0; h < SEEN_H; h++) {
            double mine[SEEN_T][SEEN_T], its[SEEN_T][SEEN_T], p[SEEN_T], q[SEEN_T];
            on_paper(student, x, b, h, mine);
            on_paper(teacher, x, b, h, its);
            for (int i = 0; i < SEEN_T; i++) {
                weights_of(kind, mine[i], i, pow(2, -2.0 * (h + 1)), p);
                weights_of(kind, its[i], i, pow(2, -2.0 * (h + 1)), q);
                for (int j = 0; j < SEEN_T; j++) {
                    const double d = mine[i][j] - its[i][j];
                    if (!sees(kind, i, j)) continue;
                    total += scores ? d * d / SEEN_T : q[j] * log(q[j] / p[j]);
                }
            }
        }
    return total / (SEEN_B * SEEN_H * SEEN_T);
}

/* A student and a teacher of attention alone, with the loss of their maps. */
typedef struct viewers {
    mlc_module       *student, *teacher;
    mlc_distillation *plain, *d;       /* without and with the loss of maps                     */
    mlc_batch         b;
    double            x[SEEN_B * SEEN_T * SEEN_E];
} viewers;

static viewers viewers_of(mlc_ctx *ctx, mlc_ctx *far, int kind, bool scores)
{
    const mlc_distill_attention a = {"", "", 0.5, scores};
    mlc_distill_desc desc = mlc_distill_desc_make();
    viewers          v;
    memset(&v, 0, sizeof v);
    for (int i = 0; i < COUNT(v.x); i++) v.x[i] = golden_spread(i, 9) / 2;
    v.student = looks(ctx, kind);
    v.teacher = looks(far, kind);
    const mlc_dtype dtype = mlc_module_param(v.student, "in_proj_bias")->dtype;
    put_numbers(v.teacher, dtype, 30);
    v.b.x = test_tensor(ctx, dtype, mlc_dims3(SEEN_B, SEEN_T, SEEN_E), v.x);
    v.b.n = SEEN_B;
    desc.loss.alpha = 1;
    v.plain = mlc_distillation_create(v.student, v.teacher, &desc);
    desc.attention = &a;
    desc.n_attention = 1;
    v.d = mlc_distillation_create(v.student, v.teacher, &desc);
    if (!CHECK(v.d != NULL)) printf("  %s\n", mlc_error(ctx));
    return v;
}

static mlc_tensor *maps_scalar(void *user, mlc_tensor *const *in, int32_t n_in)
{
    const viewers *v = (const viewers *)user;
    mlc_tensor    *y = NULL;
    (void)in, (void)n_in;
    return mlc_distillation_forward(v->d, NULL, &v->b, &y);
}

TEST(distill, maps_of_attention_are_those_on_paper)
{
    for (int kind = 0; kind < 4; kind++)
        for (int scores = 0; scores < 2; scores++) {
            mlc_ctx    *ctx = ctx_of(MLC_F64);
            viewers     v = viewers_of(ctx, ctx, kind, scores != 0);
            mlc_tensor *y = NULL, *in[2];
            mlc_gradcheck_report r;
            const double plain = mlc_item(mlc_distillation_forward(v.plain, NULL, &v.b, &y));
            const double more = mlc_item(mlc_distillation_forward(v.d, NULL, &v.b, &y)) - plain;
            CHECK_NEAR(more, 0.5 * map_loss(v.student, v.teacher, v.x, kind, scores != 0), 1e-12);
            CHECK(more > 1e-3);
            in[0] = mlc_module_param(v.student, "in_proj_weight");
            in[1] = mlc_module_param(v.student, "in_proj_bias");
            CHECK_EQ(mlc_gradcheck(maps_scalar, &v, in, 2, NULL, &r), MLC_OK);
            CHECK(r.ok);
            mlc_distillation_free(v.plain);
            mlc_distillation_free(v.d);
            CHECK_OK(ctx);
        }
}

/* Masks of a call, lengths and a float mask with -inf: pairs that are left out have no part. */
static mlc_status masked(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                         int32_t n_out)
{
    static const double lengths[SEEN_B] = {3, 5};
    mlc_ctx           *ctx = mlc_module_ctx(m);
    mlc_attention_desc d = mlc_attention_desc_make();
    double             v[SEEN_T * SEEN_T];
    const int          kind = *(const int *)mlc_module_user(m);
    (void)n_in, (void)n_out;
    for (int i = 0; i < COUNT(v); i++) v[i] = i % SEEN_T < 3;
    if (kind == 0) d.key_lengths = test_tensor(ctx, MLC_I64, mlc_dims1(SEEN_B), lengths);
    if (kind == 1) d.mask = test_tensor(ctx, MLC_BOOL, mlc_dims2(SEEN_T, SEEN_T), v);
    if (kind == 2) d.mask = mlc_log(test_tensor(ctx, MLC_F64, mlc_dims2(SEEN_T, SEEN_T), v));
    if (kind == 3) d.q_offsets = test_tensor(ctx, MLC_I64, mlc_dims1(SEEN_B), lengths);
    out[0] = mlc_attention_forward(mlc_module_child(m, 0), in[0], NULL, NULL, &d);
    return out[0] ? MLC_OK : mlc_ctx_status(ctx);
}

TEST(distill, maps_are_as_masked_as_the_call)
{
    static const mlc_module_class cls = {"Masked", masked, NULL, NULL, 0, NULL};
    const mlc_distill_attention   a = {"of", "of", 1, false};
    mlc_distill_desc desc = mlc_distill_desc_make();
    desc.attention = &a;
    desc.n_attention = 1;
    desc.loss.alpha = 1;
    for (int kind = 0; kind < 4; kind++) {
        mlc_ctx    *ctx = ctx_of(MLC_F64);
        viewers     v = viewers_of(ctx, ctx, 0, false);
        mlc_module *net[2];
        mlc_tensor *y = NULL;
        for (int i = 0; i < 2; i++) {
            net[i] = mlc_module_create(ctx, &cls, &kind, sizeof kind);
            mlc_module_add_named(net[i], "of", i ? v.teacher : v.student);
        }
        if (kind == 3) v.b.x = mlc_slice(v.b.x, 0, 0, 1, 1);
        mlc_distillation *d = mlc_distillation_create(net[0], net[1], &desc);
        mlc_tensor       *loss = mlc_distillation_forward(d, NULL, &v.b, &y);
        if (kind == 3) {
            CHECK(loss == NULL);
            CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "attention 'of' has packed sequences");
        } else {
            CHECK(mlc_item(loss) > 0 && mlc_item(loss) < 100);
            CHECK_EQ(mlc_backward(loss), MLC_OK);
            mlc_tensor *g = mlc_grad(mlc_module_param(v.student, "in_proj_weight"));
            CHECK(apart(g, mlc_zeros(ctx, MLC_F64, mlc_dims_of(g->ndim, g->shape))) < 100);
        }
        mlc_distillation_free(d);
        mlc_distillation_free(v.plain);
        mlc_distillation_free(v.d);
    }
}

/* A teacher of another context; recomputed students; what is no attention, or has other heads. */
TEST(distill, attention_may_be_elsewhere_and_must_fit)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = ctx_of(MLC_F32), *far = ctx_of(MLC_F32);
    viewers     near = viewers_of(ctx, ctx, 1, false), there = viewers_of(ctx, far, 1, false);
    mlc_tensor *y = NULL;
    const double loss = mlc_item(mlc_distillation_forward(near.d, NULL, &near.b, &y));
    CHECK(mlc_item(mlc_distillation_forward(there.d, NULL, &near.b, &y)) == loss);
    mlc_nn_transformer_desc t = mlc_nn_transformer_desc_make(SEEN_E, 2);
    t.hidden = 8;
    mlc_module *two = mlc_nn_transformer_encoder(ctx, &t, 2);
    t.heads = t.kv_heads = 4;
    mlc_module *four = mlc_nn_transformer_encoder(ctx, &t, 2);
    mlc_distill_attention a = {"layers.1.self_attn", "layers.0.self_attn", 1, true};
    mlc_distill_desc desc = mlc_distill_desc_make();
    desc.attention = &a;
    desc.n_attention = 1;
    desc.loss.alpha = 1;
    mlc_distillation *d = mlc_distillation_create(two, four, &desc);
    CHECK(mlc_distillation_forward(d, NULL, &near.b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "attention 'layers.1.self_attn' has maps [2,2,5,5], "
                "'layers.0.self_attn' of the teacher [2,4,5,5]; heads and lengths must be the "
                "same");
    mlc_distillation_free(d);
    d = mlc_distillation_create(four, four, &desc);
    CHECK(mlc_distillation_forward(d, NULL, &near.b, &y) != NULL);
    CHECK_EQ(mlc_module_recompute(mlc_module_find(four, "layers"), 1), MLC_OK);
    CHECK(mlc_distillation_forward(d, NULL, &near.b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "of the student is within a recomputed module");
    mlc_distillation_free(d);
    a.student = "layers.1.linear1";
    refused(four, four, &desc, MLC_ERR_ARG, "'layers.1.linear1' of the student is a Linear");
    a.student = "layers.1.self_attn";
    a.weight = NO_NUMBER;
    refused(four, four, &desc, MLC_ERR_ARG, "attention: the weight is nan");
    desc.n_attention = -1;
    refused(four, four, &desc, MLC_ERR_ARG, "attention");
    mlc_distillation_free(near.plain);
    mlc_distillation_free(near.d);
    mlc_distillation_free(there.plain);
    mlc_distillation_free(there.d);
    CHECK_OK(far);
}

/* A hook of the program that counts. */
static bool count_calls(void *user, mlc_module *m, mlc_tensor *const *out, int32_t n_out)
{
    (void)m, (void)out, (void)n_out;
    ++*(int *)user;
    return false;
}

/* ---- a cache of what teachers make ----------------------------------------------------------- */

/* A student with a layer and two teachers, one of them of another context; counts forwards of the
 * first. */
typedef struct cached {
    mlc_ctx          *ctx, *far;
    mlc_module       *student, *teacher;
    mlc_distillation *d;
    mlc_optim        *opt;
    int               calls;
} cached;

static void cached_open(cached *c, const char *path, double nudge)
{
    static const mlc_distill_layer layer = {"0", "0", 0.5, 3, 9};
    mlc_distill_desc desc = mlc_distill_desc_make();
    mlc_module      *other;
    memset(c, 0, sizeof *c);
    c->ctx = ctx_of(MLC_F32);
    c->far = ctx_of(MLC_F32);
    c->student = mlp(c->ctx, 5, 3, 4);
    c->teacher = mlp(c->ctx, 5, 9, 4);
    other = mlp(c->far, 5, 6, 4);
    CHECK_EQ(mlc_module_build(c->student) | mlc_module_build(c->teacher), 0);
    CHECK_EQ(mlc_module_build(other), MLC_OK);
    put_numbers(c->teacher, MLC_F32, 1);
    put_numbers(other, MLC_F32, 11);
    put_numbers(c->student, MLC_F32, 21);
    mlc_no_grad_begin(c->ctx);
    mlc_tensor *bias = mlc_module_param(c->teacher, "2.bias");
    mlc_copy_into(bias, mlc_add_scalar(bias, nudge));
    mlc_no_grad_end(c->ctx);
    mlc_module_hook(c->teacher, count_calls, &c->calls);
    desc.layers = &layer;
    desc.n_layers = 1;
    desc.teachers = &other;
    desc.n_teachers = 1;
    desc.cache = path;
    c->d = mlc_distillation_create(c->student, c->teacher, &desc);
    if (!c->d) return;
    put_numbers(mlc_module_find(mlc_distillation_net(c->d), "layer0"), MLC_F32, 31);
    c->opt = mlc_adamw(mlc_distillation_net(c->d), 0.01);
}

/* Losses of two epochs over batches that differ in their order. */
static void two_epochs(cached *c, double losses[6])
{
    const mlc_batch all = batch_of(c->ctx);
    for (int i = 0; i < 6; i++) {
        mlc_batch   b = all;
        mlc_tensor *y = NULL;
        const int   at = i < 3 ? 2 * i : 4 - 2 * (i - 3);
        mlc_scope_begin(c->ctx);
        b.x = mlc_slice(all.x, 0, at, at + 2, 1);
        b.y = mlc_slice(all.y, 0, at, at + 2, 1);
        b.n = 2;
        mlc_tensor *loss = mlc_distillation_forward(c->d, NULL, &b, &y);
        losses[i] = mlc_item(loss);
        CHECK_EQ(mlc_optim_minimize(c->opt, loss), MLC_OK);
        if (!CHECK_EQ(mlc_scope_end(c->ctx), MLC_OK)) printf("  %s\n", mlc_error(c->ctx));
    }
}

/* Without a cache, with a new one, with that of the last object: the same bits, and forwards of the
 * teacher for six, three and no batches. */
TEST(distill, a_cache_has_the_bits_of_the_teachers)
{
    ONLY_ON_HOST();
    box    b = box_open_fast("teachers");
    cached c;
    double want[6], got[6];
    cached_open(&c, NULL, 0);
    two_epochs(&c, want);
    CHECK_EQ(c.calls, 6);
    mlc_distillation_free(c.d);
    for (int i = 0; i < 2; i++) {
        cached_open(&c, b.path, 0);
        if (!CHECK(c.d != NULL)) printf("  %s\n", mlc_error(c.ctx));
        two_epochs(&c, got);
        CHECK(memcmp(got, want, sizeof got) == 0);
        CHECK_EQ(c.calls, i ? 0 : 3);
        mlc_distillation_free(c.d);
    }
    cached_open(&c, b.path, 0);        /* a batch of which two rows are new, and two the same */
    mlc_batch   all = batch_of(c.ctx);
    mlc_tensor *y = NULL, *x = test_rand(c.ctx, MLC_F32, mlc_dims2(1, 5), 99, -1, 1);
    mlc_tensor *three[3] = {x, mlc_slice(all.x, 0, 0, 4, 1), x};
    all.x = mlc_concat(three, 3, 0);
    const double loss = mlc_item(mlc_distillation_forward(c.d, NULL, &all, &y));
    CHECK_EQ(c.calls, 1);
    CHECK(mlc_item(mlc_distillation_forward(c.d, NULL, &all, &y)) == loss);
    CHECK_EQ(c.calls, 1);
    mlc_distillation_free(c.d);
    cached_open(&c, b.path, 0);
    all.x = mlc_concat((mlc_tensor *[3]){test_rand(c.ctx, MLC_F32, mlc_dims2(1, 5), 99, -1, 1),
                       mlc_slice(batch_of(c.ctx).x, 0, 0, 4, 1),
                       test_rand(c.ctx, MLC_F32, mlc_dims2(1, 5), 99, -1, 1)}, 3, 0);
    all.y = batch_of(c.ctx).y;
    CHECK(mlc_item(mlc_distillation_forward(c.d, NULL, &all, &y)) == loss);
    CHECK_EQ(c.calls, 0);
    mlc_ctx *ctx = c.ctx;
    CHECK_OK(ctx);
    mlc_distillation_free(c.d);
    box_close(&b);
}

/* Images that a loader moves at random: a run with its seed finds what one before has written, one
 * with another seed does not. */
TEST(distill, a_cache_knows_samples_as_they_are_augmented)
{
    ONLY_ON_HOST();
    box b = box_open_fast("teachers");
    for (int i = 0; i < 3; i++) {
        mlc_ctx         *ctx = ctx_of(MLC_F32);
        mlc_module      *net[2];
        mlc_tensor      *x = test_rand(ctx, MLC_F32, mlc_dims3(12, 6, 6), 1, 0, 1);
        mlc_loader_desc  l = mlc_loader_desc_make(x, mlc_zeros(ctx, MLC_I64, mlc_dims1(12)), 4);
        mlc_fit_desc     f = mlc_fit_desc_make(NULL);
        mlc_distill_desc desc = mlc_distill_desc_make();
        int              calls = 0;
        for (int k = 0; k < 2; k++) {
            net[k] = mlc_nn_sequential(ctx);
            mlc_module_add(net[k], mlc_nn_flatten(ctx));
            mlc_module_add(net[k], mlc_nn_linear(ctx, 36, 3));
        }
        l.shuffle = true;
        l.shift = 2;
        l.seed = i < 2 ? 7 : 8;
        mlc_module_hook(net[1], count_calls, &calls);
        desc.cache = b.path;
        mlc_distillation *d = mlc_distillation_create(net[0], net[1], &desc);
        if (!CHECK(d != NULL)) printf("  %s\n", mlc_error(ctx));
        f.forward = mlc_distillation_forward;
        f.user = d;
        f.epochs = 2;
        CHECK_EQ(mlc_fit(net[0], mlc_adamw(net[0], 0.01), mlc_loader_create(ctx, &l), &f, NULL),
                 MLC_OK);
        CHECK(i == 1 ? calls == 0 : calls == 6);
        mlc_distillation_free(d);
    }
    box_close(&b);
}

/* Maps of attention are in a cache, too. */
TEST(distill, a_cache_has_maps_of_attention)
{
    ONLY_ON_HOST();
    const mlc_distill_attention a = {"", "", 0.5, false};
    mlc_distill_desc desc = mlc_distill_desc_make();
    box         b = box_open_fast("teachers");
    mlc_ctx    *ctx = ctx_of(MLC_F32);
    viewers     v = viewers_of(ctx, ctx, 1, false);
    mlc_tensor *y = NULL;
    const double want = mlc_item(mlc_distillation_forward(v.d, NULL, &v.b, &y));
    desc.loss.alpha = 1;
    desc.attention = &a;
    desc.n_attention = 1;
    desc.cache = b.path;
    for (int i = 0; i < 2; i++) {
        mlc_distillation *d = mlc_distillation_create(v.student, v.teacher, &desc);
        CHECK(mlc_item(mlc_distillation_forward(d, NULL, &v.b, &y)) == want);
        mlc_distillation_free(d);
    }
    v.b.x = mlc_slice(v.b.x, 1, 0, 4, 1);
    mlc_distillation *d = mlc_distillation_create(v.student, v.teacher, &desc);
    CHECK(mlc_distillation_forward(d, NULL, &v.b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "at byte 48: rows are f32 [5,8], of this teacher and sample f32 "
                "[4,8]");
    mlc_distillation_free(d);
    mlc_distillation_free(v.plain);
    mlc_distillation_free(v.d);
    box_close(&b);
}

/* Opens the file as these teachers; the error names file and byte. */
static void no_cache(const box *b, double nudge, mlc_status status, const char *text)
{
    cached c;
    cached_open(&c, b->path, nudge);
    CHECK(c.d == NULL);
    CHECK_EQ(mlc_ctx_status(c.ctx), status);
    if (!CHECK(strstr(mlc_error(c.ctx), text) && strstr(mlc_error(c.ctx), b->path)))
        printf("  %s\n", mlc_error(c.ctx));
    mlc_error_clear(c.ctx);
}

TEST(distill, caches_that_do_not_fit_are_errors_with_file_and_byte)
{
    ONLY_ON_HOST();
    box    b = box_open_fast("teachers");
    cached c;
    double losses[6];
    char   text[64];
    size_t n = 0;
    cached_open(&c, b.path, 0);
    two_epochs(&c, losses);
    no_cache(&b, 0, MLC_ERR_STATE, "is in use by another distillation");
    mlc_distillation_free(c.d);
    no_cache(&b, 0.5, MLC_ERR_IO, "at byte 16: it is of other teachers");
    unsigned char *whole = get_file(b.path, &n);
    CHECK_EQ(n, 48 + 3 * 80 + 6 * (16 + 16 + 16 + 40));
    for (size_t cut = 1; cut < n; cut += cut < 50 ? 1 : 37) {
        CHECK(put_file(b.path, whole, cut));
        snprintf(text, sizeof text, "at byte %d: it is cut off", (int)cut);
        no_cache(&b, 0, MLC_ERR_IO, text);
    }
    /* each byte before the records: an error, or fewer records than there are */
    for (size_t at = 0; at < 48 + 3 * 80; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            whole[at] ^= (unsigned char)(1 << bit);
            CHECK(put_file(b.path, whole, n));
            cached_open(&c, b.path, 0);
            CHECK(c.d ? at >= 40 : mlc_ctx_status(c.ctx) == MLC_ERR_IO);
            mlc_error_clear(c.ctx);
            mlc_distillation_free(c.d);
            whole[at] ^= (unsigned char)(1 << bit);
        }
    CHECK(put_file(b.path, whole, n));
    free(whole);
    mlc_module *student = mlp(c.ctx, 5, 3, 4);
    mlc_distill_desc desc = mlc_distill_desc_make();
    desc.cache = b.path;
    refused(student, c.teacher, &desc, MLC_ERR_IO, "at byte 16");
    desc.cache = b.dir;
    refused(student, c.teacher, &desc, MLC_ERR_IO, b.dir);
    desc.cache = "/nowhere/at/all";
    refused(student, c.teacher, &desc, MLC_ERR_IO, "cannot open '/nowhere/at/all'");
    box_close(&b);
}

/* Between forwards no network has a hook of an object: two objects have one teacher, which outlives
 * the context of a student; hooks of the program stay, and are called. */
TEST(distill, hooks_are_there_in_its_forward_alone)
{
    ONLY_ON_HOST();
    mlc_ctx     *ctx = ctx_of(MLC_F32), *own;
    const mlc_ctx_desc of = test_desc();
    mlc_module  *teacher = mlp(ctx, 5, 9, 4), *student = mlp(ctx, 5, 9, 4);
    const mlc_distill_layer layers[2] = {{"0", "0", 1, 0, 0}, {"0", "0", 1, 0, 0}};
    mlc_distill_desc desc = mlc_distill_desc_make();
    const mlc_batch  b = batch_of(ctx);
    mlc_tensor      *y = NULL;
    int              calls = 0;
    own = mlc_ctx_create(&of);
    mlc_module_hook(mlc_module_child(teacher, 0), count_calls, &calls);
    desc.layers = layers;
    desc.n_layers = 1;
    mlc_distillation *one = mlc_distillation_create(student, teacher, &desc);
    mlc_distillation *far = mlc_distillation_create(mlp(own, 5, 9, 4), teacher, &desc);
    const mlc_batch   of_own = batch_of(own);
    const double      loss = mlc_item(mlc_distillation_forward(one, NULL, &b, &y));
    CHECK(mlc_distillation_forward(far, NULL, &of_own, &y) != NULL);
    CHECK_EQ(calls, 2);
    desc.n_layers = 2;
    mlc_distillation *two = mlc_distillation_create(student, teacher, &desc);
    desc.n_layers = 0;
    desc.layers = NULL;
    mlc_distillation *none = mlc_distillation_create(student, teacher, &desc);
    const double twice = mlc_item(mlc_distillation_forward(two, NULL, &b, &y));
    const double plain = mlc_item(mlc_distillation_forward(none, NULL, &b, &y));
    CHECK_NEAR(twice - loss, loss - plain, 1e-5);
    CHECK_EQ(calls, 4);
    mlc_distillation_free(one);
    mlc_distillation_free(two);
    mlc_distillation_free(none);
    mlc_ctx_free(own);
    CHECK(mlc_forward(teacher, b.x) != NULL);
    CHECK_EQ(calls, 5);
    CHECK_OK(ctx);
}

/* A teacher of another context that is given twice: the layer's output of its first run counts,
 * and is not of the scope of the second. */
TEST(distill, a_teacher_may_be_given_twice)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = ctx_of(MLC_F32), *other = ctx_of(MLC_F32);
    mlc_module *teacher = mlp(other, 5, 9, 4), *student = mlp(ctx, 5, 9, 4);
    const mlc_distill_layer layer = {"0", "0", 1, 0, 0};
    mlc_distill_desc desc = mlc_distill_desc_make();
    const mlc_batch  b = batch_of(ctx);
    mlc_tensor      *y = NULL;
    desc.layers = &layer;
    desc.n_layers = 1;
    mlc_distillation *once = mlc_distillation_create(student, teacher, &desc);
    desc.teachers = &teacher;
    desc.n_teachers = 1;
    mlc_distillation *twice = mlc_distillation_create(student, teacher, &desc);
    CHECK_NEAR(mlc_item(mlc_distillation_forward(once, NULL, &b, &y)),
               mlc_item(mlc_distillation_forward(twice, NULL, &b, &y)), 1e-6);
    mlc_distillation_free(once);
    mlc_distillation_free(twice);
    CHECK_OK(ctx);
    CHECK_OK(other);
}

/* A teacher with as many evaluations as may be open: each begin of ours has its end. */
TEST(distill, a_begin_that_fails_has_its_end)
{
    mlc_ctx          *ctx = ctx_of(MLC_F32);
    mlc_module       *teacher = mlp(ctx, 5, 9, 4);
    const mlc_batch   b = batch_of(ctx);
    mlc_loader       *loader = mlc_loader_ordered(ctx, b.x, b.y, 3);
    mlc_fit_desc      f = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_tensor       *y = NULL;
    double            loss;
    mlc_distillation *d = mlc_distillation_create(mlp(ctx, 5, 3, 4), teacher, NULL);
    for (int i = 0; i < 8; i++) CHECK_EQ(mlc_eval_begin(teacher), MLC_OK);
    CHECK(mlc_distillation_forward(d, NULL, &b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "eval_begin: 8 are open");
    CHECK_EQ(mlc_evaluate(teacher, loader, &f, &loss), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "eval_begin: 8 are open");
    CHECK(mlc_predict(teacher, loader) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "eval_begin: 8 are open");
    for (int i = 0; i < 8; i++) CHECK_EQ(mlc_eval_end(teacher), MLC_OK);
    CHECK(mlc_module_is_training(teacher));
    CHECK_OK(ctx);
    mlc_distillation_free(d);
}

/* Another network than that of the linears, and a rehearsal. */
TEST(distill, refuses_other_networks)
{
    ONLY_ON_HOST();
    mlc_ctx                *ctx = ctx_of(MLC_F32);
    mlc_module             *teacher = mlp(ctx, 5, 9, 4), *student = mlp(ctx, 5, 3, 4);
    const mlc_distill_layer layer = {"0", "0", 1, 3, 9};
    mlc_distill_desc        desc = mlc_distill_desc_make();
    const mlc_batch         b = batch_of(ctx);
    mlc_estimate_desc       e = mlc_estimate_desc_make(NULL, mlc_adamw);
    mlc_tensor             *y = NULL;
    mlc_memory              m;
    desc.layers = &layer;
    desc.n_layers = 1;
    mlc_distillation *d = mlc_distillation_create(student, teacher, &desc);
    CHECK(mlc_distillation_forward(d, student, &b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the network is not mlc_distillation_net");
    CHECK(mlc_distillation_forward(d, mlc_distillation_net(d), &b, &y) != NULL);
    e.forward = mlc_distillation_forward;
    e.user = d;
    CHECK_EQ(mlc_estimate_memory(mlc_distillation_net(d), mlc_dims2(6, 5), &e, &m),
             MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "mlc_estimate_memory, which has no copy of the teachers");
    mlc_distillation_free(d);
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
    layers[1].student = "9";
    refused(student, fits, &desc, MLC_ERR_ARG, "the student has no layer '9'");
    layers[1].student = "0.";
    refused(student, fits, &desc, MLC_ERR_ARG, "the student has no layer '0.'");
    layers[1].student = NULL;
    refused(student, fits, &desc, MLC_ERR_ARG, "the student has no layer 'NULL'");
    layers[1].student = "2";
    layers[1].in = 4;
    refused(student, fits, &desc, MLC_ERR_ARG, "both positive or both 0");
    layers[1].in = 0;
    d = mlc_distillation_create(student, fits, &desc);
    CHECK_OK(ctx);
    CHECK(mlc_distillation_forward(d, student, &b, &y) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "layer '0' makes [6,3], '0' of the teacher [6,9]");
    mlc_distillation_free(d);
    CHECK(mlc_distillation_forward(NULL, student, &b, &y) == NULL);
}
