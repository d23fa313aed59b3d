/* test_onnx.c -- tests of the sections IMPL.ONNX.*: files of ONNX as modules
 *
 * Goldens are of ONNX Runtime (tests/golden/make_onnx_goldens.py). Files that are wrong are made
 * here, by a few functions that write protobuf.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/golden.h"
#include "mlc_test.h"
#include "onnx_file.h"

/* ---- goldens --------------------------------------------------------------------------------- */

#define MOST_IN 8

/* The inputs of a case, as leaves of ctx. */
static int32_t case_inputs(const golden_file *g, const char *name, mlc_tensor **in)
{
    int32_t n = 0;
    while (n < MOST_IN && (in[n] = golden_find(g, "%s.in%d", name, n)) != NULL) n++;
    return n;
}

/* The file of a case as a module; NULL with a failed check. */
static mlc_module *case_module(mlc_ctx *ctx, const golden_file *g, const char *name,
                               const mlc_onnx_load_desc *d)
{
    mlc_tensor *file = golden_find(g, "%s.onnx", name);
    const size_t n = (size_t)mlc_numel(file);
    char        *bytes = (char *)malloc(n + 1);
    mlc_module  *m = NULL;
    if (CHECK(file != NULL) && CHECK(bytes != NULL) && CHECK_EQ(mlc_read(file, bytes, n), MLC_OK))
        m = mlc_onnx_load_memory(ctx, bytes, n, d);
    free(bytes);
    return m;
}

/* Do outputs agree with those of the case? Of floats within 2e-5 and 1e-4 of the value. */
static bool case_agrees(const golden_file *g, const char *name, mlc_tensor *const *out, int32_t n,
                        const char *how)
{
    static double want[GOLDEN_MOST];
    for (int32_t i = 0; i < n; i++) {
        char        label[128];
        mlc_tensor *golden = golden_find(g, "%s.out%d", name, i);
        snprintf(label, sizeof label, "%s, output %d, %s", name, i, how);
        if (!CHECK(golden != NULL) || !CHECK(mlc_numel(golden) <= GOLDEN_MOST)) return false;
        if (!CHECK_STR(mlc_shape_of(out[i]), mlc_shape_of(golden)) ||
            !CHECK_EQ(out[i]->dtype, golden->dtype)) {
            printf("  %s\n", label);
            return false;
        }
        test_read(golden, want);
        if (!CHECK(golden_values(out[i], mlc_numel(golden), want, 2e-5, 1e-4, label))) return false;
    }
    return true;
}

/* Runs a case as it is, with its parts as they are written, and as a plan. */
static void run_case(mlc_ctx *ctx, const golden_file *g, const char *name)
{
    mlc_onnx_load_desc d = mlc_onnx_load_desc_make();
    mlc_tensor        *in[MOST_IN], *out[4] = {NULL, NULL, NULL, NULL};
    int32_t            n_out = 0;
    const int32_t      n_in = case_inputs(g, name, in);
    while (golden_find(g, "%s.out%d", name, n_out) != NULL) n_out++;
    for (int parts = 0; parts < 2; parts++) {
        d.as_written = parts == 1;
        mlc_module *m = case_module(ctx, g, name, &d);
        if (!CHECK(m != NULL) ||
            !CHECK_EQ(mlc_module_forward(m, in, n_in, out, n_out), MLC_OK)) {
            printf("  %s: %s\n", name, mlc_error(ctx));
            mlc_error_clear(ctx);
            continue;
        }
        case_agrees(g, name, out, n_out, parts ? "as written" : "joined");
        if (parts || !test_on_host()) continue;
        mlc_plan_desc p = mlc_plan_desc_make();
        p.n_out = n_out;
        mlc_plan *plan = mlc_plan_capture(m, in, n_in, &p);
        if (plan == NULL && mlc_error_status(ctx) == MLC_ERR_UNSUPPORTED) {
            mlc_error_clear(ctx);        /* it depends on values, as the name says */
            CHECK(strstr("nonzero if_data", name) != NULL);
            continue;
        }
        if (!CHECK(plan != NULL) || !CHECK_EQ(mlc_plan_run(plan, in, n_in, NULL, 0), MLC_OK)) {
            printf("  %s, as a plan: %s\n", name, mlc_error(ctx));
            mlc_error_clear(ctx);
        } else {
            for (int32_t i = 0; i < n_out; i++) out[i] = mlc_plan_output(plan, i);
            case_agrees(g, name, out, n_out, "plan");
        }
        mlc_plan_free(plan);
    }
}

/* Cases from number `from` of `of` on, each of which is one group. */
static void run_cases(int64_t from, int64_t of)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "onnx.safetensors");
    mlc_tensor       *list = golden_find(&g, "cases");
    char              names[1 << 14];
    int64_t           number = 0;
    if (!CHECK(list != NULL) || !CHECK(mlc_numel(list) < (int64_t)sizeof names)) return;
    memset(names, 0, sizeof names);
    mlc_read(list, names, (size_t)mlc_numel(list));
    for (char *name = strtok(names, "\n"); name != NULL; name = strtok(NULL, "\n"), number++) {
        if (number % of != from) continue;
        mlc_scope_begin(ctx);
        run_case(ctx, &g, name);
        mlc_scope_end(ctx);
    }
    CHECK(number > 200);
    CHECK_OK(ctx);
}

TEST(onnx, files_give_the_outputs_of_onnx_runtime_1_of_4) { run_cases(0, 4); }
TEST(onnx, files_give_the_outputs_of_onnx_runtime_2_of_4) { run_cases(1, 4); }
TEST(onnx, files_give_the_outputs_of_onnx_runtime_3_of_4) { run_cases(2, 4); }
TEST(onnx, files_give_the_outputs_of_onnx_runtime_4_of_4) { run_cases(3, 4); }

/* Trains the network of a case for 20 steps: PyTorch's losses. */
static void tune(mlc_ctx *ctx, const golden_file *g, const char *name, bool as_written)
{
    mlc_onnx_load_desc d = mlc_onnx_load_desc_make();
    double             want[20];
    d.as_written = as_written;
    mlc_module *m = case_module(ctx, g, name, &d);
    mlc_tensor *x = golden_find(g, "%s.in0", name), *labels = golden_find(g, "%s.labels", name);
    mlc_optim  *opt = m ? mlc_sgd(m, 0.1) : NULL;
    if (!CHECK(opt != NULL)) { printf("  %s\n", mlc_error(ctx)); return; }
    test_read(golden_find(g, "%s.losses", name), want);
    for (int i = 0; i < 20; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(m, x);
        if (y && y->ndim == 3) y = mlc_reshape(y, mlc_dims2(-1, mlc_dim(y, 2)));
        mlc_tensor *loss = mlc_cross_entropy(y, labels);
        mlc_optim_minimize(opt, loss);
        CHECK_NEAR(mlc_item(loss), want[i], 1e-5);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK)) { printf("  %s\n", mlc_error(ctx)); return; }
    }
    CHECK(want[19] < 0.8 * want[0]);
}

TEST(onnx, networks_are_trained_further_with_the_losses_of_pytorch)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "onnx.safetensors");
    for (int i = 0; i < 2; i++) {
        tune(ctx, &g, "tune_cnn", i == 1);
        tune(ctx, &g, "tune_transformer", i == 1);
    }
    CHECK_OK(ctx);
}

/* ---- training ------------------------------------------------------------------------------ */

/* Do 20 steps of SGD with momentum by a file of torch.onnx have the losses of PyTorch? */
static void train_as_torch(mlc_ctx *ctx, const golden_file *g, const char *name,
                           const char *file)
{
    static double want[20];
    mlc_sgd_desc  d = mlc_sgd_desc_make(0.05);
    mlc_module   *net = case_module(ctx, g, file, NULL);
    mlc_tensor   *x = golden_find(g, "%s.x", name), *y = golden_find(g, "%s.y", name);
    mlc_tensor   *losses = golden_find(g, "%s.losses", name);
    if (!CHECK(net != NULL) || !CHECK(x != NULL && y != NULL && losses != NULL)) return;
    d.momentum = 0.9;
    mlc_optim *opt = mlc_sgd_ex(net, &d);
    test_read(losses, want);
    for (int64_t i = 0; i < 20; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, mlc_select(x, 0, i % 4)),
                                             mlc_select(y, 0, i % 4));
        CHECK_NEAR(mlc_item(loss), want[i], 1e-5);
        mlc_optim_minimize(opt, loss);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_optim_free(opt);
    mlc_module_free(net);
}

TEST(onnx, files_are_trained_as_the_networks_of_pytorch_that_wrote_them)
{
    mlc_ctx          *ctx = test_ctx();
    const golden_file g = golden_open(ctx, "onnx_train.safetensors");
    train_as_torch(ctx, &g, "cnn", "cnn");
    train_as_torch(ctx, &g, "cnn", "cnn.dynamo");
    train_as_torch(ctx, &g, "encoder", "encoder");
    train_as_torch(ctx, &g, "encoder", "encoder.dynamo");
}

/* ---- modules --------------------------------------------------------------------------------- */

static pb file, graph;                 /* of the running test                                   */

static const int64_t four_three[2] = {4, 3}, any_four[2] = {-1, 4}, three[1] = {3};
static const float   numbers[12] = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12};

/* The file that is being made, of `graph`. */
static mlc_module *load(mlc_ctx *ctx, int opset)
{
    onnx_model(&file, &graph, opset);
    return mlc_onnx_load_memory(ctx, file.data, file.n, NULL);
}

/* Begins a graph with an input x, f32 [any,4]. */
static void begin(void)
{
    graph.n = 0;
    onnx_value(&graph, 11, "x", 1, 2, any_four);
}

static void take_text(void *user, const char *text, size_t n)
{
    pb *b = (pb *)user;
    if (b->n + n >= sizeof b->data) return;
    memcpy(b->data + b->n, text, n);
    b->n += n;
    b->data[b->n] = 0;
}

TEST(onnx, a_file_is_a_module_with_named_parameters_inputs_and_outputs)
{
    static pb      text;
    mlc_onnx_value v;
    mlc_ctx       *ctx = test_ctx();
    const box      b = box_open("net.onnx");
    onnx_small(&file);
    FILE *f = fopen(b.path, "wb");
    fwrite(file.data, 1, file.n, f);
    fclose(f);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    if (!CHECK(m != NULL)) { printf("  %s\n", mlc_error(ctx)); box_close(&b); return; }
    CHECK(mlc_onnx_input(m, 0, &v));
    CHECK_STR(v.name, "x");
    CHECK_EQ(v.dtype, MLC_F32);
    CHECK_EQ(v.ndim, 2);
    CHECK_EQ(v.shape[0], -1);
    CHECK_EQ(v.shape[1], 4);
    CHECK_STR(v.symbol[0], "any");
    CHECK_STR(v.symbol[1], "");
    CHECK(mlc_onnx_output(m, 0, &v));
    CHECK_STR(v.name, "y");
    CHECK_EQ(v.ndim, -1);
    CHECK(!mlc_onnx_input(m, 1, &v));
    CHECK(!mlc_onnx_input(m, -1, &v));
    CHECK(!mlc_onnx_output(m, 1, &v));
    CHECK(!mlc_onnx_output(NULL, 0, &v));
    CHECK(!mlc_onnx_input(mlc_nn_relu(ctx), 0, &v));
    mlc_tensor *w = mlc_module_param(m, "body.w"), *bias = mlc_module_param(m, "body.b");
    CHECK_STR(mlc_shape_of(w), "[4,3]");
    CHECK(mlc_requires_grad(w) && mlc_requires_grad(bias));
    CHECK_EQ(mlc_module_numel(m, false), 15);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 4));
    CHECK_VALUES(mlc_forward(m, x), 6, ((double[]){23, 28, 33, 23, 28, 33}), 0, 0);
    text.n = 0;
    CHECK_EQ(mlc_onnx_print(m, take_text, &text), MLC_OK);
    CHECK_HAS((char *)text.data, "input    x  f32 [any,4]\n");
    CHECK_HAS((char *)text.data, "output   y  f32 [..]\n");
    CHECK_HAS((char *)text.data, "q <- p, body.b\n");
    CHECK_HAS((char *)text.data, "opset 17, 2 parameters and buffers; made by onnx_file.h\n");
    CHECK_EQ(mlc_onnx_print(NULL, take_text, &text), MLC_ERR_ARG);
    CHECK_EQ(mlc_onnx_print(mlc_nn_relu(ctx), take_text, &text), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "not of mlc_onnx_load");
    box_close(&b);
}

TEST(onnx, a_module_is_cloned_shared_saved_and_loaded)
{
    mlc_ctx *ctx = test_ctx();
    onnx_small(&file);
    mlc_module *m = mlc_onnx_load_memory(ctx, file.data, file.n, NULL);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(1, 4));
    mlc_module *clone = mlc_module_clone(m);
    mlc_no_grad_begin(ctx);
    mlc_fill_(mlc_module_param(m, "body.w"), 1.0);
    mlc_no_grad_end(ctx);
    CHECK_VALUES(mlc_forward(clone, x), 3, ((double[]){23, 28, 33}), 0, 0);
    CHECK_VALUES(mlc_forward(m, x), 3, ((double[]){5, 6, 7}), 0, 0);
    CHECK_EQ(mlc_module_copy(clone, m), MLC_OK);
    CHECK_VALUES(mlc_forward(clone, x), 3, ((double[]){5, 6, 7}), 0, 0);
    mlc_module_free(m);
    CHECK_VALUES(mlc_forward(clone, x), 3, ((double[]){5, 6, 7}), 0, 0);
    CHECK_OK(ctx);
}

TEST(onnx, an_optimizer_trains_what_the_file_has)
{
    mlc_ctx *ctx = test_ctx();
    onnx_small(&file);
    mlc_module *m = mlc_onnx_load_memory(ctx, file.data, file.n, NULL);
    mlc_optim  *opt = mlc_sgd(m, 0.1);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 4));
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_optim_minimize(opt, mlc_sum_all(mlc_forward(m, x))), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_VALUES(mlc_module_param(m, "body.b"), 3, ((double[]){0.8, 1.8, 2.8}), 1e-6, 0);
    CHECK_NEAR(mlc_item_at(mlc_module_param(m, "body.w"), mlc_dims2(3, 2)), 11.8, 1e-6);
    CHECK_OK(ctx);
}

TEST(onnx, outputs_are_any_values_that_the_desc_names)
{
    const char        *names[2] = {"p", "body.w"}, *wrong = "nothing";
    mlc_onnx_load_desc d = mlc_onnx_load_desc_make();
    mlc_ctx           *ctx = test_ctx();
    mlc_tensor        *out[2], *x = mlc_ones(ctx, MLC_F32, mlc_dims2(1, 4));
    onnx_small(&file);
    d.outputs = names;
    d.n_outputs = 2;
    mlc_module *m = mlc_onnx_load_memory(ctx, file.data, file.n, &d);
    CHECK_EQ(mlc_module_forward(m, &x, 1, out, 2), MLC_OK);
    CHECK_VALUES(out[0], 3, ((double[]){22, 26, 30}), 0, 0);
    CHECK_STR(mlc_shape_of(out[1]), "[4,3]");
    CHECK_EQ(mlc_module_numel(m, false), 12);              /* the bias is not needed */
    d.outputs = &wrong;
    d.n_outputs = 1;
    CHECK(mlc_onnx_load_memory(ctx, file.data, file.n, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "output 'nothing' is no value");
    d.outputs = NULL;
    CHECK(mlc_onnx_load_memory(ctx, file.data, file.n, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "n_outputs");
}

TEST(onnx, errors_of_a_forward_name_the_node_or_the_input)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    onnx_floats(&graph, "w", 2, (const int64_t[]){3, 3}, 9, numbers);
    onnx_node(&graph, "MatMul", "the product", "x w", "y");
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    mlc_module *m = load(ctx, 17);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 4)), *out[2], *two[2] = {x, x};
    CHECK(mlc_forward(m, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "in ONNX: node 'the product' (MatMul): matmul");
    CHECK(mlc_forward(m, mlc_ones(ctx, MLC_F32, mlc_dims2(2, 5))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "input 'x' is [2,5], the file takes [-1,4]");
    CHECK(mlc_forward(m, mlc_ones(ctx, MLC_I64, mlc_dims2(2, 4))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "input 'x' is i64");
    CHECK_EQ(mlc_module_forward(m, two, 2, out, 1), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "the file has 1 and 1");
    CHECK_EQ(mlc_module_forward(m, two, 1, out, 2), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "1 inputs and 2 outputs");
}

TEST(onnx, training_moves_norms_and_drops_only_if_asked_for)
{
    mlc_onnx_load_desc d = mlc_onnx_load_desc_make();
    mlc_ctx           *ctx = test_ctx();
    static const float ones[4] = {1, 1, 1, 1}, zeros[4] = {0, 0, 0, 0}, half = 0.5f;
    graph.n = 0;
    onnx_value(&graph, 11, "x", 1, -1, NULL);
    const char *const names[4] = {"scale", "shift", "mean", "var"};
    const int64_t     size[1] = {4};
    for (int i = 0; i < 4; i++) onnx_floats(&graph, names[i], 1, size, 4, i % 3 ? zeros : ones);
    onnx_floats(&graph, "ratio", 0, NULL, 1, &half);
    onnx_node(&graph, "BatchNormalization", "norm", "x scale shift mean var", "n");
    onnx_node(&graph, "Dropout", "drop", "n ratio", "y");
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    onnx_model(&file, &graph, 17);
    for (int trains = 0; trains < 2; trains++) {
        d.training = trains;
        mlc_module *m = mlc_onnx_load_memory(ctx, file.data, file.n, &d);
        mlc_tensor *mean = mlc_module_param(m, "mean");
        CHECK(!mlc_requires_grad(mean));
        CHECK(mlc_requires_grad(mlc_module_param(m, "scale")));
        mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims4(8, 4, 3, 3), 2.0);
        mlc_tensor *y = mlc_forward(m, x);
        CHECK_NEAR(mlc_item_at(mean, mlc_dims1(0)), trains ? 0.2 : 0.0, 1e-6);
        CHECK_NEAR(mlc_item(mlc_max(y, mlc_dims0(), false)), trains ? 0.0 : 2.0, 1e-4);
        mlc_eval_begin(m);
        mlc_forward(m, x);
        CHECK_NEAR(mlc_item_at(mean, mlc_dims1(0)), trains ? 0.2 : 0.0, 1e-6);
        mlc_eval_end(m);
    }
    CHECK_OK(ctx);
}

TEST(onnx, names_become_paths_and_stay_apart)
{
    mlc_ctx *ctx = test_ctx();
    char     many[300], middle[80];
    memset(many, 'm', sizeof many - 1);
    many[sizeof many - 1] = 0;
    memset(middle, 'k', sizeof middle - 1);
    middle[sizeof middle - 1] = 0;
    const char *const names[] = {"a", "a.b", "a.b.c", "b.a", "b", ".", "..", "c..d", many, middle};
    begin();
    const char *last = "x";
    static char out[sizeof names / sizeof *names][8];
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        char in[400];
        const float four[4] = {1, 2, 3, 4};
        onnx_floats(&graph, names[i], 1, (const int64_t[]){4}, 4, four);
        snprintf(in, sizeof in, "%s %s", last, names[i]);
        snprintf(out[i], sizeof out[i], "o%d", i);
        onnx_node(&graph, "Add", "n", in, out[i]);
        last = out[i];
    }
    onnx_value(&graph, 12, last, 1, -1, NULL);
    mlc_module *m = load(ctx, 17);
    if (!CHECK(m != NULL)) { printf("  %s\n", mlc_error(ctx)); return; }
    CHECK_EQ(mlc_module_numel(m, true), 40);
    CHECK(mlc_module_param(m, "a") != NULL);
    CHECK(mlc_module_param(m, "a~2.b") != NULL);
    CHECK(mlc_module_param(m, "b~2") != NULL);
    mlc_error_clear(ctx);
    CHECK_VALUES(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 4))), 4,
                 ((double[]){10, 20, 30, 40}), 0, 0);
    CHECK_OK(ctx);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

TEST(onnx, tensors_of_all_types_are_read_raw_and_typed)
{
    static const struct {
        int type;
        const char *bytes;
        int n, field;
        double first, second;
    } kinds[] = {
        {2, "\x01\xff", 2, 5, 1, 255}, {3, "\x01\xff", 2, 5, 1, -1},
        {4, "\x01\x00\xff\xff", 4, 5, 1, 65535}, {5, "\x01\x00\xff\xff", 4, 5, 1, -1},
        {6, "\x01\0\0\0\xff\xff\xff\xff", 8, 5, 1, -1},
        {7, "\x01\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 16, 7, 1, -1},
        {9, "\x01\0", 2, 5, 1, 0}, {10, "\x00\x3c\x00\xc0", 4, 5, 1, -2},
        {12, "\x01\0\0\0\xff\xff\xff\xff", 8, 11, 1, 4294967295.0},
        {13, "\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16, 11, 1, 2},
        {16, "\x80\x3f\x00\xc0", 4, 5, 1, -2}};
    mlc_ctx *ctx = test_ctx();
    for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++)
        for (int packed = 0; packed < 3; packed++) {
            static pb t, list;
            const int each = kinds[k].n / 2;
            graph.n = t.n = list.n = 0;
            onnx_value(&graph, 11, "x", 1, -1, NULL);
            pb_int(&t, 1, 2);
            pb_int(&t, 2, kinds[k].type);
            pb_text(&t, 8, "w");
            for (int i = 0; i < 2 && packed; i++) {
                uint64_t v = 0;
                memcpy(&v, kinds[k].bytes + i * each, (size_t)each);
                const bool sign = kinds[k].type == 3 || kinds[k].type == 5 || kinds[k].type == 6;
                if (sign && v >> (8 * each - 1)) v |= ~(uint64_t)0 << (8 * each - 1);
                if (packed == 1) pb_varint(&list, v);
                else pb_int(&t, kinds[k].field, (int64_t)v);
            }
            if (packed == 1) pb_bytes(&t, kinds[k].field, list.data, list.n);
            if (packed == 0) pb_bytes(&t, 9, kinds[k].bytes, (size_t)kinds[k].n);
            pb_in(&graph, 5, &t);
            onnx_node(&graph, "Identity", "c", "w", "y");
            onnx_value(&graph, 12, "y", 1, -1, NULL);
            mlc_module *m = load(ctx, 17);
            mlc_tensor *y = m ? mlc_forward(m, mlc_ones(ctx, MLC_F32, mlc_dims1(1))) : NULL;
            if (!CHECK(y != NULL)) {
                printf("  type %d: %s\n", kinds[k].type, mlc_error(ctx));
                return;
            }
            const double want[2] = {kinds[k].first, kinds[k].second};
            if (!CHECK_VALUES(y, 2, want, 0, 0)) printf("  type %d, %d\n", kinds[k].type, packed);
            mlc_module_free(m);
        }
    CHECK_OK(ctx);
}

/* ---- wrong files ----------------------------------------------------------------------------- */

/* The file is refused with this status and text, and nothing is left. */
static void refuses(mlc_ctx *ctx, mlc_status status, const char *text)
{
    mlc_memory before, after;
    mlc_memory_info(ctx, &before);
    CHECK(mlc_onnx_load_memory(ctx, file.data, file.n, NULL) == NULL);
    CHECK_ERROR(ctx, status, text);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
}

TEST(onnx, all_unknown_operations_are_listed_at_once)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    onnx_node(&graph, "Foo", "first", "x", "a");
    onnx_node(&graph, "Relu", "second", "a", "b");
    onnx_node_of(&graph, "ai.onnx.ml", "Scaler", "third", "b", "c", NULL);
    onnx_node(&graph, "Unread", "fourth", "x", "d");
    onnx_node(&graph, "Mish", "fifth", "c", "y");
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    onnx_model(&file, &graph, 17);
    refuses(ctx, MLC_ERR_UNSUPPORTED, "3 nodes of operations that mlcore has not, or not in opset "
            "17: Foo 'first', Scaler of ai.onnx.ml 'third', Mish 'fifth'");
}

TEST(onnx, graphs_that_make_no_sense_are_refused)
{
    static const struct { const char *type, *in, *out, *text; } wrong[] = {
        {"Relu", "y", "y", "reads 'y', which no input, initializer or earlier node makes"},
        {"Relu", "later", "y", "reads 'later'"},
        {"Relu", "x", "x", "'x' is made twice"},
        {"Relu", "x", "z", "output 'y' is made by no node"},
        {"Relu", "x x", "y", "has 2 inputs and 1 outputs"},
        {"Add", "x", "y", "has 1 inputs and 1 outputs"},
        {"Add", "- x", "y", "or lacks one of its first 2 inputs"},
        {"Relu", "x", "", "has 1 inputs and 0 outputs"},
        {"Constant", "", "y", "a Constant without a value"},
    };
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        begin();
        onnx_node(&graph, wrong[i].type, "n", wrong[i].in, wrong[i].out);
        if (i != 7) onnx_value(&graph, 12, "y", 1, -1, NULL);
        onnx_model(&file, &graph, 17);
        refuses(ctx, MLC_ERR_IO, wrong[i].text);
    }
    begin();
    onnx_floats(&graph, "w", 1, three, 3, numbers);
    onnx_floats(&graph, "w", 1, three, 3, numbers);
    onnx_model(&file, &graph, 17);
    refuses(ctx, MLC_ERR_IO, "'w' is made twice");
    begin();
    onnx_node(&graph, "Relu", "n", "x", "y");
    onnx_model(&file, &graph, 17);
    refuses(ctx, MLC_ERR_IO, "a graph without outputs");
    begin();
    onnx_value(&graph, 11, "x", 1, -1, NULL);
    onnx_model(&file, &graph, 17);
    refuses(ctx, MLC_ERR_IO, "'x' is made twice");
    begin();
    onnx_value(&graph, 11, "s", 8, -1, NULL);
    onnx_model(&file, &graph, 17);
    refuses(ctx, MLC_ERR_UNSUPPORTED, "input 's' has a type that mlcore has not");
}

TEST(onnx, tensors_with_sizes_that_do_not_fit_are_refused)
{
    static const struct {
        int64_t a, b;
        int type;
        size_t bytes;
        mlc_status status;
        const char *text;
    } wrong[] = {
        {1ll << 40, 1ll << 40, 1, 4, MLC_ERR_IO, "a tensor that no memory holds"},
        {1ll << 62, 4, 1, 0, MLC_ERR_IO, "a tensor that no memory holds"},
        {-1, 3, 1, 12, MLC_ERR_IO, "a size below 0"},
        {2, 3, 1, 20, MLC_ERR_IO, "more or less data"},
        {2, 3, 1, 28, MLC_ERR_IO, "more or less data"},
        {1ll << 30, 1ll << 10, 1, 40, MLC_ERR_IO, "more or less data"},
        {2, 3, 8, 24, MLC_ERR_UNSUPPORTED, "of type 8"},
        {2, 3, 99, 24, MLC_ERR_UNSUPPORTED, "of type 99"},
        {2, 3, 0, 24, MLC_ERR_UNSUPPORTED, "of type 0"},
    };
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        begin();
        const int64_t shape[2] = {wrong[i].a, wrong[i].b};
        onnx_raw(&graph, "w", wrong[i].type, 2, shape, numbers, wrong[i].bytes);
        onnx_model(&file, &graph, 17);
        refuses(ctx, wrong[i].status, wrong[i].text);
    }
    begin();
    onnx_raw(&graph, "w", 1, 9, (const int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, numbers, 4);
    onnx_model(&file, &graph, 17);
    refuses(ctx, MLC_ERR_IO, "more than 8 axes");
}

TEST(onnx, files_that_are_not_onnx_say_so)
{
    mlc_ctx *ctx = test_ctx();
    file.n = 0;
    refuses(ctx, MLC_ERR_IO, "no graph: this is not ONNX");
    file.n = 8;
    memcpy(file.data, "\x80\x02}q\x00(X\x00", 8);
    refuses(ctx, MLC_ERR_IO, "'memory', byte 4: a number is cut off");
    begin();
    for (int opset = 0; opset < 30; opset++) {
        if (opset >= 7 && opset <= 26) continue;
        onnx_model(&file, &graph, opset);
        refuses(ctx, MLC_ERR_UNSUPPORTED, "mlcore reads 7 to 26");
    }
    onnx_model(&file, &graph, 17);
    pb_in(&file, 7, &graph);
    refuses(ctx, MLC_ERR_IO, "a second graph");
    file.n = 0;
    pb_int(&file, 7, 3);
    refuses(ctx, MLC_ERR_IO, "a field of another kind");
    file.n = 0;
    pb_varint(&file, 7 << 3 | 3);
    refuses(ctx, MLC_ERR_IO, "a field of an unknown kind");
    file.n = 0;
    pb_varint(&file, 0);
    refuses(ctx, MLC_ERR_IO, "a field without a number");
    file.n = 12;
    memset(file.data, 0xff, 12);
    refuses(ctx, MLC_ERR_IO, "a number over 64 bits");
    file.n = 3;
    refuses(ctx, MLC_ERR_IO, "a number is cut off");
    CHECK(mlc_onnx_load_memory(ctx, NULL, 4, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "bytes is NULL");
    CHECK(mlc_onnx_load(ctx, NULL, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no path");
    CHECK(mlc_onnx_load(ctx, "/nowhere/net.onnx", NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "cannot open '/nowhere/net.onnx'");
    CHECK(mlc_onnx_load(NULL, "net.onnx", NULL) == NULL);
}

/* Loads damaged bytes and runs what comes out; true: an error, which has a text. */
static bool survives(mlc_ctx *ctx, const uint8_t *bytes, size_t n, const int64_t *shape,
                     int32_t axes, mlc_dtype dtype)
{
    mlc_scope_begin(ctx);
    mlc_module *m = mlc_onnx_load_memory(ctx, bytes, n, NULL);
    if (m != NULL) mlc_forward(m, mlc_zeros(ctx, dtype, mlc_dims_of(axes, shape)));
    const bool failed = mlc_ctx_status(ctx) != MLC_OK;
    if (failed) CHECK(mlc_error(ctx)[0] != 0);
    mlc_scope_end(ctx);
    mlc_error_clear(ctx);
    mlc_module_free(m);
    return failed;
}

TEST(onnx, a_file_cut_or_changed_anywhere_is_an_error_or_runs)
{
    static uint8_t    bytes[1 << 15];
    mlc_ctx_desc      limit = test_desc();
    limit.hard_limit = 64 << 20;
    mlc_ctx          *ctx = test_own(mlc_ctx_create(&limit));
    const golden_file g = golden_open(ctx, "onnx.safetensors");
    const char *const names[] = {"if_3", "transformer_trace12", "lstm_forward", "cnn_dynamo18"};
    for (int i = 0; i < 4; i++) {
        mlc_tensor *t = golden_find(&g, "%s.onnx", names[i]);
        mlc_tensor *in = golden_find(&g, "%s.in0", names[i]);
        const size_t n = (size_t)mlc_numel(t);
        if (!CHECK(n <= sizeof bytes)) return;
        int64_t errors = 0, tried = 0;
        const size_t step = n < 1500 ? 1 : 17 * (size_t)test_stride(3);
        for (size_t k = 0; k < n; k += step) {
            mlc_read(t, bytes, n);
            uint8_t *cut = (uint8_t *)malloc(k + 1);       /* of its size, for AddressSanitizer */
            memcpy(cut, bytes, k);
            errors += survives(ctx, cut, k, in->shape, in->ndim, in->dtype);
            free(cut);
            for (int how = 0; how < 4; how++) {
                mlc_read(t, bytes, n);
                bytes[k] = (uint8_t)(how == 0 ? bytes[k] ^ 1 : how == 1 ? bytes[k] ^ 128
                                   : how == 2 ? 0xff : bytes[k] + 3);
                errors += survives(ctx, bytes, n, in->shape, in->ndim, in->dtype);
            }
            tried += 5;
        }
        CHECK(errors > tried / 8);
    }
    CHECK_OK(ctx);
}

/* ---- external data --------------------------------------------------------------------------- */

/* A file whose weight [3] is in another file: location, offset, length. */
static void external(const char *location, const char *offset, const char *length)
{
    static pb t, entry;
    const char *const pairs[3][2] = {{"location", location}, {"offset", offset},
                                     {"length", length}};
    begin();
    t.n = 0;
    pb_int(&t, 1, 3);
    pb_int(&t, 2, 1);
    pb_text(&t, 8, "w");
    for (int i = 0; i < 3; i++) {
        if (!pairs[i][1]) continue;
        entry.n = 0;
        pb_text(&entry, 1, pairs[i][0]);
        pb_text(&entry, 2, pairs[i][1]);
        pb_in(&t, 13, &entry);
    }
    pb_int(&t, 14, 1);
    pb_in(&graph, 5, &t);
    onnx_floats(&graph, "v", 2, four_three, 12, numbers);
    onnx_node(&graph, "MatMul", "p", "x v", "p");
    onnx_node(&graph, "Add", "a", "p w", "y");
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    onnx_model(&file, &graph, 17);
}

static void write_bytes(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!CHECK(f != NULL)) return;
    fwrite(data, 1, n, f);
    fclose(f);
}

TEST(onnx, external_data_stay_in_the_folder)
{
    static const struct { const char *location, *offset, *length, *text; } wrong[] = {
        {"../secret", NULL, NULL, "outside of the folder"},
        {"/etc/passwd", NULL, NULL, "outside of the folder"},
        {"sub/../../secret", NULL, NULL, "outside of the folder"},
        {"C:data", NULL, NULL, "outside of the folder"},
        {"..\\secret", NULL, NULL, "outside of the folder"},
        {"", NULL, NULL, "outside of the folder"},
        {"link", NULL, NULL, "is a link or outside"},
        {"nothing", NULL, NULL, "external data: cannot open"},
        {"data", "8", NULL, "external data of"},
        {"data", "4", "8", "external data of 8 bytes from 4"},
        {"data", "99999999999999", "12", "external data of"},
        {"data", "-4", NULL, "that is no number"},
        {"data", "9223372036854775807", "12", "external data of"},
        {"data", "4", "twelve", "that is no number"},
        {NULL, NULL, NULL, "more or less data"},
    };
    static const float data[4] = {9, 10, 20, 30};
    mlc_ctx  *ctx = test_ctx();
    const box b = box_open("net.onnx");
    char      path[400];
    snprintf(path, sizeof path, "%s/data", b.dir);
    write_bytes(path, data, sizeof data);
    external("data", "4", "12");
    write_bytes(b.path, file.data, file.n);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    if (CHECK(m != NULL))
        CHECK_VALUES(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 4))), 3,
                     ((double[]){10, 20, 30}), 0, 0);
    CHECK(mlc_onnx_load_memory(ctx, file.data, file.n, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "external data, and no folder of it");
    char link[400];
    snprintf(link, sizeof link, "%s/link", b.dir);
    CHECK_EQ(symlink(path, link), 0);
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        external(wrong[i].location, wrong[i].offset, wrong[i].length);
        write_bytes(b.path, file.data, file.n);
        CHECK(mlc_onnx_load(ctx, b.path, NULL) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_IO, wrong[i].text);
    }
    box_close(&b);
}
