/* test_nn_layers.c -- tests of section IMPL.NN: layers, sequentials, fusion, scales */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ew_table.h"
#include "nets.h"

#include <unistd.h>

/* ---- layers ------------------------------------------------------------------------------- */

TEST(nn, a_users_module_computes_trains_and_keeps_its_buffer)
{
    static const double x[] = {1, 2}, w[] = {1, 2, 3, 4}, b[] = {1, 1};
    static const double want[] = {1 + 0.5 * 6, 2 + 0.5 * 12}, two = 2;
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = residual(ctx, mlc_nn_linear(ctx, 2, 2), 0.5);
    mlc_tensor         *in = test_tensor(ctx, MLC_F32, mlc_dims2(1, 2), x);
    mlc_copy_into(mlc_module_param(m, "inner.weight"),
                  test_tensor(ctx, MLC_F32, mlc_dims2(2, 2), w));
    mlc_copy_into(mlc_module_param(m, "inner.bias"), test_tensor(ctx, MLC_F32, mlc_dims1(2), b));
    CHECK_VALUES(mlc_forward(m, in), 2, want, 1e-6, 0);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(m, in), mlc_dims0(), false)), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_grad(mlc_module_param(m, "gain"))), 18, 1e-5);
    CHECK_VALUES(mlc_module_param(m, "calls"), 1, &two, 0, 0);
    CHECK(mlc_grad(mlc_module_param(m, "calls")) == NULL);
    CHECK_OK(ctx);
}

static mlc_status swap_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    if (n_in != 2 || n_out != 2)
        return mlc_raise(mlc_module_ctx(m), MLC_ERR_ARG, "Swap: two in, two out");
    out[0] = mlc_mul_scalar(in[1], 2);
    out[1] = in[0];
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

TEST(nn, forward_takes_and_fills_arrays)
{
    static const mlc_module_class swap = {"Swap", swap_forward, NULL, NULL, 0, NULL};
    mlc_ctx                      *ctx = test_ctx();
    mlc_module                   *m = mlc_module_create(ctx, &swap, NULL, 0);
    mlc_tensor                   *in[2], *out[2];
    in[0] = mlc_full(ctx, MLC_F32, mlc_dims0(), 3);
    in[1] = mlc_full(ctx, MLC_F32, mlc_dims0(), 4);
    CHECK_EQ(mlc_module_forward(m, in, 2, out, 2), MLC_OK);
    CHECK_NEAR(mlc_item(out[0]), 8, 0);
    CHECK_NEAR(mlc_item(out[1]), 3, 0);
    CHECK(mlc_forward(m, in[0]) == NULL);
    CHECK_STR(mlc_error(ctx), "in Swap: Swap: two in, two out");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, modules_of_one_operation_are_their_operation)
{
#define NO_MODULE(name, ...)
#define MODULE(name, ...) {mlc_nn_##name, mlc_##name},
    const struct { mlc_module *(*make)(mlc_ctx *); mlc_tensor *(*call)(mlc_tensor *); } of[] = {
        EW_UNARY(NO_MODULE, MODULE, NO_MODULE)
    };
    double v[15];
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 5), 1, -4, 4);
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            mlc_module *net = mlc_nn_sequential(ctx);
            test_read(of[i].call(x), v);
            CHECK_VALUES(mlc_forward(of[i].make(ctx), x), 15, v, 0, 0);
            mlc_module_add(net, of[i].make(ctx));
            CHECK_VALUES(mlc_forward(net, x), 15, v, 0, 0);
            CHECK_EQ(mlc_module_numel(net, true), 0);
        }
        CHECK_OK(ctx);
    }
}

TEST(nn, activations_with_numbers_are_their_operations)
{
    double v[24];
    FOR_EACH_ISA(ctx) {
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 6), 1, -4, 4);
        mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims1(6), 0.25);
        const struct { mlc_module *m; mlc_tensor *y; } of[] = {
            {mlc_nn_elu(ctx, 0.7), mlc_elu(x, 0.7)}, {mlc_nn_celu(ctx, 0.7), mlc_celu(x, 0.7)},
            {mlc_nn_leaky_relu(ctx, 0.1), mlc_leaky_relu(x, 0.1)},
            {mlc_nn_glu(ctx, 0), mlc_glu(x, 0)}, {mlc_nn_glu(ctx, -1), mlc_glu(x, -1)},
            {mlc_nn_prelu(ctx, 6), mlc_prelu(x, w)}, {mlc_nn_prelu(ctx, 1), mlc_prelu(x, w)},
            {mlc_nn_softmax(ctx, 0), mlc_softmax(x, 0)},
            {mlc_nn_softmax(ctx, -1), mlc_softmax(x, -1)},
            {mlc_nn_log_softmax(ctx, 0), mlc_log_softmax(x, 0)},
            {mlc_nn_log_softmax(ctx, -1), mlc_log_softmax(x, -1)},
        };
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            mlc_module *net = mlc_nn_sequential(ctx);
            mlc_module_add(net, of[i].m);
            test_read(of[i].y, v);
            CHECK_VALUES(mlc_forward(net, x), mlc_numel(of[i].y), v, 0, 0);
            CHECK_EQ(mlc_module_numel(net, true), i == 5 ? 6 : i == 6);
        }
        CHECK_OK(ctx);
    }
}

/* Sequential knows those that it fuses: the others must not get lost behind a layer.          */
TEST(nn, an_activation_that_is_not_fused_runs_behind_a_layer)
{
    double v[20];
    FOR_EACH_ISA(ctx) {
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_module_add(net, mlc_nn_linear(ctx, 3, 5));
        mlc_module_add(net, mlc_nn_prelu(ctx, 5));
        mlc_module_add(net, mlc_nn_linear(ctx, 5, 4));
        mlc_module_add(net, mlc_nn_leaky_relu(ctx, 0.1));
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 3), 1, -2, 2);
        mlc_tensor *h = mlc_prelu(mlc_linear(x, mlc_module_param(net, "0.weight"),
                                             mlc_module_param(net, "0.bias")),
                                  mlc_module_param(net, "1.weight"));
        test_read(mlc_leaky_relu(mlc_linear(h, mlc_module_param(net, "2.weight"),
                                            mlc_module_param(net, "2.bias")), 0.1), v);
        CHECK_VALUES(mlc_forward(net, x), 20, v, 0, 0);
        CHECK_OK(ctx);
    }
}

/* What the derivative is had from is the result: what went in is not kept.                    */
TEST(nn, a_layer_before_leaky_relu_does_not_keep_its_result)
{
    int64_t kept[2];
    for (int i = 0; i < 2; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlc_nn_sequential(ctx);
        mlc_memory  mem;
        mlc_module_add(net, mlc_nn_linear(ctx, 8, 64));
        mlc_module_add(net, mlc_nn_leaky_relu(ctx, i ? -0.01 : 0.01));
        mlc_module_add(net, mlc_nn_linear(ctx, 64, 8));
        CHECK(mlc_forward(net, mlc_ones(ctx, MLC_F32, mlc_dims2(64, 8))) != NULL);
        CHECK_EQ(mlc_memory_info(ctx, &mem), MLC_OK);
        CHECK_OK(ctx);
        kept[i] = mem.now[MLC_MEM_ACTIVATION];
    }
    CHECK_EQ(kept[1] - kept[0], 64 * 64 * 4);
}

TEST(nn, prelu_learns_its_weight)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_prelu(ctx, 1);
    mlc_optim  *opt = mlc_sgd(m, 0.5);
    CHECK_NEAR(mlc_item(mlc_module_param(m, "weight")), 0.25, 0);
    mlc_tensor *y = mlc_forward(m, mlc_full(ctx, MLC_F32, mlc_dims1(1), -2));
    CHECK_NEAR(mlc_item(y), -0.5, 0);
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_module_param(m, "weight")), 1.25, 1e-6);
    CHECK_OK(ctx);
    CHECK(mlc_nn_prelu(ctx, 0) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_prelu: channels is 0; it must be positive");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, flatten_keeps_the_first_axis)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_flatten(ctx);
    char        shape[64];
    mlc_tensor *y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims4(2, 3, 4, 5)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[2,60]");
    y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[2,3]");
    y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims3(0, 3, 2)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[0,6]");
    y = mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims1(3)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[3,1]");
    CHECK_OK(ctx);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims0())) == NULL);
    CHECK_HAS(mlc_error(ctx), "in Flatten: flatten: the input is a scalar");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

TEST(nn, unflatten_makes_several_axes_of_one)
{
    static const double three[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *last = mlc_nn_unflatten(ctx, -1, mlc_dims2(3, -1));
    mlc_module *first = mlc_nn_unflatten(ctx, 0, mlc_dims3(-1, 2, 1));
    char        shape[64];
    mlc_tensor *y = mlc_forward(last, mlc_arange(ctx, MLC_F32, 0, 12, 1));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[3,4]");
    CHECK_VALUES(y, 12, three, 0, 0);
    y = mlc_forward(last, mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 12)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[0,3,4]");
    y = mlc_forward(first, mlc_zeros(ctx, MLC_F32, mlc_dims2(6, 5)));
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[3,2,1,5]");
    y = mlc_forward(last, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 9)));
    y = mlc_forward(mlc_nn_flatten(ctx), y);
    CHECK_STR(mlc_shape_text(y, shape, sizeof shape), "[2,9]");
    CHECK_OK(ctx);
    CHECK(mlc_forward(last, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 10))) == NULL);
    CHECK_HAS(mlc_error(ctx), "unflatten: axis 1 of [2,10] does not become [3,-1]; the sizes must "
                              "make as many");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_forward(first, mlc_zeros(ctx, MLC_F32, mlc_dims0())) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_forward(first, mlc_zeros(ctx, MLC_F32, mlc_dims_of(7, (const int64_t[7]){
                                                         2, 1, 1, 1, 1, 1, 1}))) == NULL);
    CHECK_HAS(mlc_error(ctx), "a tensor has at most 8 axes");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(mlc_nn_unflatten(ctx, 1, mlc_dims2(-1, -1)) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_unflatten: dims is [-1,-1]; its sizes must be positive");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_unflatten(ctx, 1, mlc_dims2(0, 3)) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_unflatten(ctx, 1, mlc_dims0()) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_unflatten: dims has 0 sizes; an axis becomes 1 to 8");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, a_class_without_a_name_is_refused)
{
    static const mlc_module_class no_name = {NULL, residual_forward, NULL, NULL, 0, NULL};
    static const mlc_module_class *const bad[] = {NULL, &no_name};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 2; i++) {
        CHECK(mlc_module_create(ctx, bad[i], NULL, 0) == NULL);
        CHECK_STR(mlc_error(ctx), "module_create: the class needs a name");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
}

/* y = layers.0(x) + layers.1(x), the layers in a container of their own. */
static mlc_tensor *parts_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    mlc_module *layers = mlc_module_child(m, 0);
    (void)e;
    return mlc_add(mlc_forward(mlc_module_child(layers, 0), x),
                   mlc_forward(mlc_module_child(layers, 1), x));
}

static void gather(void *user, const char *text, size_t n)
{
    strncat((char *)user, text, n);
}

TEST(nn, a_class_without_forward_holds_children_that_others_run)
{
    static const mlc_module_class list = {"List", NULL, NULL, NULL, MLC_TAKES_ACT, NULL};
    static const mlc_module_class parts = {"Parts", NULL, NULL, parts_call, 0, NULL};
    static char text[2000];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *layers = mlc_module_create(ctx, &list, NULL, 0);
    mlc_module *m = mlc_module_create(ctx, &parts, NULL, 0);
    CHECK_EQ(mlc_module_add(layers, mlc_nn_linear(ctx, 3, 2)), MLC_OK);
    CHECK_EQ(mlc_module_add(layers, mlc_nn_linear(ctx, 3, 2)), MLC_OK);
    CHECK_EQ(mlc_module_add_named(m, "layers", layers), MLC_OK);
    mlc_module *net = MLC_SEQUENTIAL(ctx, m, mlc_nn_relu(ctx));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK(y && mlc_dim(y, 0) == 4 && mlc_dim(y, 1) == 2);
    CHECK_EQ(mlc_module_numel(net, true), 16);
    CHECK(mlc_module_find(net, "0.layers.1") == mlc_module_child(layers, 1));
    text[0] = 0;
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, 3), gather, text), MLC_OK);
    CHECK_HAS(text, "0.layers.0 (Linear)                [4,2]                             8");
    CHECK_OK(ctx);
    CHECK(mlc_forward(layers, x) == NULL);                 /* no one knows what it would do    */
    CHECK_HAS(mlc_error(ctx), "in 0.layers (List): forward: the class has no forward and no call");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_module *wrong = MLC_SEQUENTIAL(ctx, mlc_module_create(ctx, &list, NULL, 0),
                                       mlc_nn_relu(ctx));
    CHECK(mlc_forward(wrong, x) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
}

/* ---- sequentials of a list, identity, functions -------------------------------------------- */

TEST(nn, a_sequential_of_a_list_is_one_of_the_same_children)
{
    double      a[16], b[16];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *made = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 3, 5), mlc_nn_relu(ctx),
                                      mlc_nn_linear(ctx, 5, 4));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1);
    CHECK(mlc_module_child(made, 2) != NULL && mlc_module_child(made, 3) == NULL);
    test_read(mlc_forward(made, x), a);
    CHECK_OK(ctx);
    mlc_ctx *other = test_ctx();
    test_read(mlc_forward(mlp(other, 3, 5, 4),
                          test_rand(other, MLC_F32, mlc_dims2(4, 3), 1, -1, 1)), b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK(mlc_nn_sequential_of(ctx, 0, NULL) != NULL);
    CHECK(mlc_nn_sequential_of(NULL, 0, NULL) == NULL);
    CHECK_OK(ctx);
}

TEST(nn, a_sequential_of_names_has_parameters_of_these_names)
{
    static const char *const names[] = {"embed.weight", "body.0.weight", "body.0.bias",
                                        "head.weight", "head.bias"};
    double         a[6], b[6];
    int            n = 0;
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *head = mlc_nn_linear(ctx, 4, 3);
    mlc_module    *net = MLC_SEQUENTIAL_NAMED(ctx, {"embed", mlc_nn_embedding(ctx, 7, 4)},
                             {"body", MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 4),
                                                     mlc_nn_relu(ctx))}, {"head", head});
    mlc_param_iter it = mlc_param_iter_make(net);
    while (mlc_param_next(&it)) {
        CHECK(n < 5);
        CHECK_STR(it.name, names[n]);
        n++;
    }
    CHECK_EQ(n, 5);
    CHECK(mlc_module_find(net, "head") == head);
    mlc_tensor *x = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
    mlc_tensor *y = mlc_forward(mlc_module_find(net, "embed"), x);
    test_read(mlc_forward(net, x), a);
    test_read(mlc_forward(head, mlc_forward(mlc_module_find(net, "body"), y)), b);
    CHECK(memcmp(a, b, sizeof a) == 0 && mlc_dim(y, 1) == 4);
    CHECK(mlc_nn_sequential_named(ctx, 0, NULL) != NULL);
    CHECK(mlc_nn_sequential_named(NULL, 0, NULL) == NULL);
    CHECK_OK(ctx);
}

/* The children have no parent then, and can be used. */
TEST(nn, a_sequential_of_names_refuses_what_is_no_name)
{
    static const struct { const char *first, *second, *says; } bad[] = {
        {"a", NULL, "name '' must have 1 to 63 bytes and no dot"},
        {"a", "", "name '' must have"}, {"a", "a.b", "name 'a.b' must have"},
        {"a", "a", "name 'a' is taken"}};
    mlc_ctx    *ctx = test_ctx();
    mlc_module *first = mlc_nn_linear(ctx, 2, 2), *second = mlc_nn_relu(ctx);
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK(MLC_SEQUENTIAL_NAMED(ctx, {bad[i].first, first}, {bad[i].second, second}) == NULL);
        CHECK_HAS(mlc_error(ctx), bad[i].says);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    CHECK(MLC_SEQUENTIAL_NAMED(ctx, {"a", first}, {"b", NULL}) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_sequential_named: child 1 is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_sequential_named(ctx, 2, NULL) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_sequential_named: 2 children in NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(MLC_SEQUENTIAL_NAMED(ctx, {"a", first}, {"b", second}) != NULL);
    CHECK_OK(ctx);
}

/* Arguments of a list may be evaluated in any order. */
TEST(nn, initial_values_do_not_depend_on_the_order_in_which_children_are_made)
{
    double v[2][2][15];
    for (int backwards = 0; backwards < 2; backwards++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *part[2];
        for (int i = 0; i < 2; i++) {
            const int at = backwards ? 1 - i : i;
            part[at] = at ? mlc_nn_linear(ctx, 5, 3) : mlc_nn_linear(ctx, 3, 5);
        }
        mlc_module *net = mlc_nn_sequential_of(ctx, 2, part);
        test_read(mlc_module_param(net, "0.weight"), v[backwards][0]);
        test_read(mlc_module_param(net, "1.weight"), v[backwards][1]);
        CHECK_OK(ctx);
    }
    CHECK(memcmp(v[0], v[1], sizeof v[0]) == 0 && memcmp(v[0][0], v[0][1], sizeof v[0][0]) != 0);
}

TEST(nn, a_list_with_a_child_that_is_missing_leaves_the_others_as_they_were)
{
    mlc_memory  before, after;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *owner = mlc_nn_sequential(ctx), *owned = mlc_nn_relu(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1);
    CHECK_EQ(mlc_module_add(owner, owned), MLC_OK);
    memset(&before, 0, sizeof before);
    for (int i = -1; i < 4; i++) {                         /* -1: scopes take what they keep   */
        double was[6], is[6];
        mlc_scope_begin(ctx);
        mlc_module *list[4] = {mlc_nn_linear(ctx, 3, 3), NULL, mlc_nn_relu(ctx), NULL};
        list[3] = i == 3 ? mlc_nn_sequential(ctx) : mlc_nn_tanh(ctx);
        if (i == 1) { list[1] = owned; }                   /* stays where it is                */
        if (i == 2) { list[1] = list[0]; }                 /* twice                            */
        if (i == 3) { mlc_module_add(list[3], list[2]); }  /* within another, after a NULL     */
        test_read(mlc_forward(list[0], x), was);
        CHECK(mlc_nn_sequential_of(ctx, 4, list) == NULL);
        CHECK_HAS(mlc_error(ctx), i == 1 || i == 2 ? "already has a parent" : "child 1 is NULL");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        test_read(mlc_forward(list[0], x), is);
        CHECK(memcmp(was, is, sizeof was) == 0);
        CHECK(mlc_module_child(owner, 0) == owned);
        mlc_module *net = mlc_nn_sequential_of(ctx, 2, (mlc_module *[]){list[0], list[3]});
        CHECK(mlc_forward(net, x) != NULL);
        CHECK_OK(ctx);
        mlc_module_free(net);
        mlc_module_free(i == 3 ? NULL : list[2]);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        mlc_memory_info(ctx, &after);
        if (i < 0) before = after;
        CHECK_EQ(after.now[MLC_MEM_OBJECT], before.now[MLC_MEM_OBJECT]);
    }
    CHECK(MLC_SEQUENTIAL(ctx, mlc_nn_relu(ctx), mlc_nn_linear(ctx, 0, 3)) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_linear: in is 0");       /* the first error stays            */
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* A program that keeps its parts and looks for an error at the end of a step. */
TEST(nn, one_check_at_the_end_does_where_a_layer_could_not_be_made)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *body = mlc_nn_linear(ctx, 8, 3), *head = mlc_nn_dropout(ctx, 1.5);
    mlc_module *net = MLC_SEQUENTIAL(ctx, body, head);
    mlc_optim  *opt = mlc_adamw(net, 1e-3);
    CHECK(body && !head && !net && !opt);
    for (int step = 0; step < 2; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(body, mlc_ones(ctx, MLC_F32, mlc_dims2(4, 8)));
        CHECK(y != NULL);
        y = mlc_forward(head, y);
        CHECK(y == NULL);
        mlc_optim_minimize(opt, mlc_mean_all(y));
        CHECK(mlc_scope_end(ctx) == MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "nn_dropout: p is 1.5");
    }
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_module *both = MLC_SEQUENTIAL(ctx, body, body);    /* one module twice                 */
    CHECK(!both && mlc_forward(body, mlc_ones(ctx, MLC_F32, mlc_dims2(4, 8))) != NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

static mlc_tensor *scaled(void *user, mlc_tensor *x)
{
    return mlc_mul_scalar(x, *(const double *)user);
}

TEST(nn, identity_and_functions_are_modules)
{
    static double three = 3;
    double      got[6], want[6];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, -1, 1);
    CHECK(mlc_forward(mlc_nn_identity(ctx), x) == x);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_identity(ctx), mlc_nn_lambda(ctx, scaled, &three),
                                     mlc_nn_identity(ctx));
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_forward(net, x);
    test_read(mlc_mul_scalar(x, 3), want);
    test_read(y, got);
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 6, ((const double[]){3, 3, 3, 3, 3, 3}), 0, 0);
    mlc_no_grad_begin(ctx);                                /* the input is not the net's       */
    CHECK(mlc_forward(MLC_SEQUENTIAL(ctx, mlc_nn_identity(ctx), mlc_nn_relu(ctx)), x) != NULL);
    test_read(mlc_mul_scalar(x, 3), got);
    CHECK(memcmp(got, want, sizeof got) == 0);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

/* ---- functions of the program's that end scopes of others */

enum { IN_LAMBDA, IN_CALLED_LAMBDA, IN_CUSTOM, IN_CUSTOM_BACK, IN_HOOK, PLACES };

static void end_scope(const mlc_tensor *x) { CHECK_EQ(mlc_scope_end(x->ctx), MLC_ERR_STATE); }

/* A scope of its own it may end. */
static mlc_tensor *ends_a_scope(void *user, mlc_tensor *x)
{
    (void)user;
    CHECK_EQ(mlc_scope_begin(x->ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(x->ctx), MLC_OK);
    end_scope(x);
    return mlc_ones(x->ctx, MLC_F32, mlc_dims1(4));
}

static mlc_status custom_forward(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor **out)
{
    (void)n;
    if (*(const int *)user == IN_CUSTOM) end_scope(in[0]);
    *out = mlc_copy(in[0]);
    return MLC_OK;
}

static mlc_status custom_backward(void *user, mlc_tensor *const *in, int32_t n, mlc_tensor *out,
                                  mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)n, (void)out, (void)need;
    if (*(const int *)user == IN_CUSTOM_BACK) end_scope(in[0]);
    dx[0] = dy;
    return MLC_OK;
}

static void hook_ends_a_scope(void *user, const mlc_op_event *e)
{
    if (*(const int *)user == IN_HOOK) end_scope(e->in[0]);
}

TEST(nn, a_function_that_ends_a_scope_it_did_not_begin_is_an_error)
{
    static const mlc_custom_op op = {"copies", custom_forward, custom_backward};
    for (int place = 0; place < PLACES; place++) {
        mlc_ctx  *ctx = test_ctx();
        mlc_hooks hooks;
        memset(&hooks, 0, sizeof hooks);
        hooks.op_begin = hook_ends_a_scope;
        hooks.user = &place;
        mlc_module *m = mlc_nn_lambda(ctx, ends_a_scope, NULL), *net = m;
        if (place == IN_CALLED_LAMBDA) net = MLC_SEQUENTIAL(ctx, mlc_nn_relu(ctx), m);
        if (place == IN_HOOK) CHECK(mlc_hooks_add(ctx, &hooks) != 0);
        for (int step = 0; step < 3; step++) {
            mlc_scope_begin(ctx);
            mlc_scope_begin(ctx);
            mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
            mlc_set_requires_grad(x, true);
            if (place <= IN_CALLED_LAMBDA) mlc_forward(net, x);
            else if (place == IN_HOOK) mlc_relu(x);
            else mlc_backward(mlc_sum_all(mlc_custom(&op, &place, &x, 1)));
            CHECK_HAS(mlc_error(ctx), "scope_end: no scope is open here");
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_STATE);   /* none is open                     */
            mlc_error_clear(ctx);
        }
    }
}

/* Each of the names is short enough; together they are not.                                   */
TEST(nn, a_dotted_name_that_is_too_long_is_an_error_of_the_build)
{
    char        part[61];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_linear(ctx, 2, 2);
    memset(part, 'n', sizeof part);
    part[sizeof part - 1] = 0;
    for (int i = 0; i < 5; i++) {
        mlc_module *outer = mlc_nn_sequential(ctx);
        CHECK_EQ(mlc_module_add_named(outer, part, m), MLC_OK);
        m = outer;
    }
    CHECK_EQ(mlc_module_build(m), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "build: name 'nnnnnnnn");
    CHECK_HAS(mlc_error(ctx), "is over 254 bytes");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, linear_without_bias_and_in_another_dtype)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(3, 4);
    d.no_bias = d.has_dtype = true;
    d.dtype = MLC_F64;
    mlc_module *m = mlc_nn_linear_ex(ctx, &d);
    CHECK_EQ(mlc_module_numel(m, false), 12);
    CHECK_EQ(mlc_module_param(m, "weight")->dtype, MLC_F64);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F64, mlc_dims1(3))) != NULL);
    CHECK_OK(ctx);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims1(3))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d.dtype = MLC_I64;
    CHECK(mlc_nn_linear_ex(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_nn_linear_ex(ctx, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_nn_linear(ctx, 3, -1) == NULL);
    CHECK_HAS(mlc_error(ctx), "-1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

TEST(nn, the_contexts_dtype_is_that_of_parameters_declared_without_one)
{
    mlc_ctx_desc d = test_desc();
    d.dtype = MLC_F64;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
    CHECK_EQ(mlc_module_param(mlc_nn_linear(ctx, 2, 2), "weight")->dtype, MLC_F64);
    CHECK_OK(ctx);
}

/* ---- fusion ------------------------------------------------------------------------------- */

/* A sequential of linear and activation against the two operations: values and gradients agree
 * to the last bit, whatever the kernels fuse. */
static void check_fused(mlc_ctx *ctx, mlc_dtype dtype, mlc_module *act,
                        mlc_tensor *(*fn)(mlc_tensor *))
{
    enum { N = 9, IN = 33, OUT = 17 };
    static double   y[N * OUT], dx[N * IN], dw[OUT * IN], db[OUT];
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(IN, OUT);
    mlc_module     *net = mlc_nn_sequential(ctx);
    d.has_dtype = true;
    d.dtype = dtype;
    mlc_module_add(net, mlc_nn_linear_ex(ctx, &d));
    mlc_module_add(net, act);
    mlc_tensor *w = mlc_module_param(net, "0.weight"), *b = mlc_module_param(net, "0.bias");
    mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(N, IN), 1, -1, 1);
    mlc_tensor *dy = test_rand(ctx, dtype, mlc_dims2(N, OUT), 2, -1, 1);
    mlc_set_requires_grad(x, true);
    mlc_tensor *plain = fn(mlc_linear(x, w, b));
    CHECK_EQ(mlc_backward_from(plain, dy), MLC_OK);
    test_read(plain, y);
    test_read(mlc_grad(x), dx);
    test_read(mlc_grad(w), dw);
    test_read(mlc_grad(b), db);
    mlc_zero_grad(x);
    mlc_zero_grad(w);
    mlc_zero_grad(b);
    mlc_tensor *fused = mlc_forward(net, x);
    CHECK_EQ(mlc_backward_from(fused, dy), MLC_OK);
    CHECK_VALUES(fused, N * OUT, y, 0, 0);
    CHECK_VALUES(mlc_grad(x), N * IN, dx, 0, 0);
    CHECK_VALUES(mlc_grad(w), OUT * IN, dw, 0, 0);
    CHECK_VALUES(mlc_grad(b), OUT, db, 0, 0);
}

TEST(nn, sequential_fuses_with_the_same_bits)
{
    FOR_EACH_ISA(ctx) {
        const mlc_dtype dtypes[] = {MLC_F32, MLC_F64};
        for (int i = 0; i < 2; i++) {
            check_fused(ctx, dtypes[i], mlc_nn_relu(ctx), mlc_relu);
            check_fused(ctx, dtypes[i], mlc_nn_gelu(ctx), mlc_gelu);
            check_fused(ctx, dtypes[i], mlc_nn_tanh(ctx), mlc_tanh);
            check_fused(ctx, dtypes[i], mlc_nn_sigmoid(ctx), mlc_sigmoid);
            check_fused(ctx, dtypes[i], mlc_nn_silu(ctx), mlc_silu);
        }
        CHECK_OK(ctx);
    }
}

/* With a dropout, behind an activation or at once: the same stream, so the same mask. */
static void check_fused_dropout(mlc_ctx *ctx, bool act, bool training)
{
    enum { N = 9, IN = 33, OUT = 17 };
    double          y[N * OUT], dw[OUT * IN];
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(IN, OUT);
    mlc_module     *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear_ex(ctx, &d));
    if (act)
        mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.4));
    mlc_module_add(net, mlc_nn_tanh(ctx));
    mlc_module_train(net, training);
    mlc_tensor *w = mlc_module_param(net, "0.weight"), *b = mlc_module_param(net, "0.bias");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, IN), 1, -1, 1);
    mlc_seed(ctx, 5);
    mlc_tensor *plain = mlc_linear(x, w, b);
    plain = act ? mlc_gelu(plain) : plain;
    plain = mlc_tanh(training ? mlc_dropout(plain, 0.4) : plain);
    CHECK_EQ(mlc_backward_from(plain, NULL), MLC_OK);
    test_read(plain, y);
    test_read(mlc_grad(w), dw);
    mlc_zero_grad(w);
    mlc_zero_grad(b);
    mlc_seed(ctx, 5);
    mlc_tensor *fused = mlc_forward(net, x);
    CHECK_EQ(mlc_backward_from(fused, NULL), MLC_OK);
    CHECK_VALUES(fused, N * OUT, y, 0, 0);
    CHECK_VALUES(mlc_grad(w), OUT * IN, dw, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, sequential_fuses_a_dropout_that_is_active)
{
    for (int i = 0; i < 4; i++)
        check_fused_dropout(test_ctx(), i & 1, i & 2);
}

/* ---- a user's class in a sequential ------------------------------------------------------- */

/* y = x w^T, with the epilogue it is given, which it notes.                                  */
static mlc_epilogue given;
static int          calls;

static mlc_tensor *product_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    given = *e;
    calls++;
    return mlc_linear_ex(x, *(mlc_tensor **)mlc_module_user(m), NULL, e);
}

static mlc_module *product(mlc_ctx *ctx, int64_t in, int64_t out, uint32_t takes)
{
    const mlc_module_class cls = {"Product", NULL, NULL, product_call, takes, NULL};
    mlc_param_desc         d;
    mlc_module            *m = mlc_module_create(ctx, &cls, NULL, sizeof(mlc_tensor *));
    d = mlc_param_desc_make(mlc_dims2(out, in));
    d.init = MLC_INIT_UNIFORM;
    d.a = -1;
    d.b = 1;
    *(mlc_tensor **)mlc_module_user(m) = mlc_module_declare(m, "weight", &d);
    return m;
}

/* What a product that takes something is given with an activation and a dropout behind it: values
 * and gradients are those of one that takes nothing, and of the operations.                  */
static void check_takes(uint32_t takes, mlc_module *(*act)(mlc_ctx *),
                        mlc_tensor *(*fn)(mlc_tensor *), mlc_act want, bool dropout, double p)
{
    enum { N = 9, IN = 33, OUT = 17 };
    double      y[N * OUT], dw[OUT * IN];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, product(ctx, IN, OUT, takes));
    mlc_module_add(net, act(ctx));
    if (dropout)
        mlc_module_add(net, mlc_nn_dropout(ctx, 0.4));
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, IN), 1, -1, 1);
    mlc_seed(ctx, 5);
    mlc_tensor *plain = fn(mlc_linear(x, w, NULL));
    plain = dropout ? mlc_dropout(plain, 0.4) : plain;
    CHECK_EQ(mlc_backward_from(plain, NULL), MLC_OK);
    test_read(plain, y);
    test_read(mlc_grad(w), dw);
    mlc_zero_grad(w);
    mlc_seed(ctx, 5);
    calls = 0;
    mlc_tensor *got = mlc_forward(net, x);
    CHECK_EQ(calls, 1);
    CHECK_EQ(given.act, want);
    CHECK(given.dropout == p && given.residual == NULL);
    CHECK_EQ(mlc_backward_from(got, NULL), MLC_OK);
    CHECK_VALUES(got, N * OUT, y, 0, 0);
    CHECK_VALUES(mlc_grad(w), OUT * IN, dw, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_users_class_is_handed_what_it_takes_and_no_more)
{
    const uint32_t all = MLC_TAKES_ACT | MLC_TAKES_DROPOUT;
    check_takes(MLC_TAKES_RELU, mlc_nn_relu, mlc_relu, MLC_ACT_RELU, false, 0);
    check_takes(0, mlc_nn_relu, mlc_relu, MLC_ACT_NONE, false, 0);
    check_takes(MLC_TAKES_RELU, mlc_nn_gelu, mlc_gelu, MLC_ACT_NONE, false, 0);
    check_takes(MLC_TAKES_ACT, mlc_nn_relu, mlc_relu, MLC_ACT_RELU, false, 0);
    check_takes(MLC_TAKES_ACT, mlc_nn_gelu, mlc_gelu, MLC_ACT_GELU, false, 0);
    check_takes(MLC_TAKES_RELU, mlc_nn_relu, mlc_relu, MLC_ACT_RELU, true, 0);
    check_takes(all, mlc_nn_tanh, mlc_tanh, MLC_ACT_TANH, true, 0.4);
    check_takes(MLC_TAKES_DROPOUT, mlc_nn_tanh, mlc_tanh, MLC_ACT_NONE, true, 0);
    check_takes(0, mlc_nn_tanh, mlc_tanh, MLC_ACT_NONE, true, 0);
}

static mlc_tensor *no_call(mlc_module *m, mlc_tensor *x, const mlc_epilogue *e)
{
    (void)m;
    (void)x;
    (void)e;
    return NULL;
}

/* Alone and in the pass of a container; and arrays that such a class does not take.          */
TEST(nn, a_call_that_makes_nothing_is_an_error)
{
    static const mlc_module_class cls = {"Nothing", NULL, NULL, no_call, MLC_TAKES_RELU, NULL};
    static const char             want[] = "forward left output 1 NULL without an error; make it, "
                                           "or say by mlc_raise why not";
    char        text[200];
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *m = mlc_module_create(ctx, &cls, NULL, 0);
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), *two[2] = {x, x};
    CHECK(mlc_forward(m, x) == NULL);
    snprintf(text, sizeof text, "in Nothing: %s", want);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_forward(m, two, 2, &x, 1), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "in Nothing: forward: one input and one output, not 2 and 1");
    mlc_error_clear(ctx);
    mlc_module_add_named(net, "gate", m);
    mlc_module_add(net, mlc_nn_relu(ctx));
    CHECK(mlc_forward(net, two[0]) == NULL);
    snprintf(text, sizeof text, "in gate (Nothing): %s", want);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

/* ---- dropout ------------------------------------------------------------------------------ */

TEST(nn, dropout_drops_in_training_and_does_nothing_in_evaluation)
{
    enum { N = 20000 };
    static double first[N], second[N];
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = mlc_nn_sequential(ctx);
    mlc_tensor   *x = mlc_full(ctx, MLC_F32, mlc_dims1(N), 2);
    int           zeros = 0, same = 0;
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.3));
    test_read(mlc_forward(net, x), first);
    test_read(mlc_forward(net, x), second);
    for (int i = 0; i < N; i++) {
        zeros += first[i] == 0;
        same += (first[i] == 0) == (second[i] == 0);
        CHECK(first[i] == 0 || fabs(first[i] - 2 / 0.7) < 1e-6);
    }
    CHECK_NEAR(zeros, 0.3 * N, 5 * sqrt(0.3 * 0.7 * N));
    CHECK_NEAR(same, (0.7 * 0.7 + 0.3 * 0.3) * N, 5 * sqrt(0.58 * 0.42 * N));
    mlc_module_train(net, false);
    for (int i = 0; i < N; i++)
        first[i] = 2;
    CHECK_VALUES(mlc_forward(net, x), N, first, 0, 0);
    CHECK_OK(ctx);
}

TEST(nn, dropout_refuses_what_is_no_probability)
{
    const double bad[] = {-0.5, 1.5, (double)NAN};
    mlc_ctx     *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        CHECK(mlc_nn_dropout(ctx, bad[i]) == NULL);
        CHECK_HAS(mlc_error(ctx), "dropout");
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
}

/* ---- scales of features --------------------------------------------------------------------- */

static const double SCALE_X[12] = {1, 7, -2, 3, 7, 0, 5, 7, 5, 7, 7, 1};     /* [4,3]             */

TEST(nn, standardize_gives_each_feature_mean_0_and_deviation_1)
{
    const double s = sqrt(5), t = sqrt(6.5);               /* as StandardScaler, ddof 0         */
    const double want[12] = {-3 / s, 0, -3 / t, -1 / s, 0, -1 / t, 1 / s, 0, 4 / t, 3 / s, 0, 0};
    for (int dtype = MLC_F32; dtype <= MLC_F64; dtype++) {
        mlc_ctx_desc d = test_desc();
        d.dtype = (mlc_dtype)dtype;
        mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
        mlc_tensor *x = test_tensor(ctx, (mlc_dtype)dtype, mlc_dims2(4, 3), SCALE_X);
        mlc_module *m = mlc_nn_standardize(ctx, 3);
        CHECK(mlc_forward(m, x) == NULL);
        CHECK_STR(mlc_error(ctx), "in Standardize: standardize: it has no numbers yet; call "
                  "mlc_nn_scale_fit with the training data, or load a model that was fitted");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
        CHECK_VALUES(mlc_forward(m, x), 12, want, 1e-6, 0);
        CHECK_VALUES(mlc_forward(m, mlc_reshape(x, mlc_dims3(2, 2, 3))), 12, want, 1e-6, 0);
        CHECK_VALUES(mlc_forward(m, mlc_select(x, 0, 1)), 3, want + 3, 1e-6, 0);
        CHECK_OK(ctx);
    }
}

TEST(nn, min_max_moves_each_feature_into_its_range)
{
    const double want[12] = {-1, -1, -1, 0, -1, -1 + 6 / 7.0, 1, -1, 2, 2, -1, -1 + 9 / 7.0};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    mlc_module  *m = mlc_nn_min_max(ctx, 3, -1, 2);
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    CHECK_VALUES(mlc_forward(m, x), 12, want, 1e-6, 0);
    CHECK(mlc_nn_min_max(ctx, 3, 1, 1) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_min_max: lo is 1, hi 1; lo must be below hi, both finite");
    mlc_error_clear(ctx);
    CHECK(mlc_nn_min_max(ctx, 0, 0, 1) == NULL);
    CHECK_STR(mlc_error(ctx), "nn_min_max: features is 0; it must be positive");
    mlc_error_clear(ctx);
}

TEST(nn, a_scale_is_saved_with_its_model_and_moves_into_a_larger_one)
{
    char         path[] = "/tmp/mlcore_scale_XXXXXX";
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    mlc_module  *nets[2];
    double       want[12];
    const int    fd = mkstemp(path);
    close(fd);                         /* Windows replaces no open file                       */
    for (int i = 0; i < 2; i++) {
        mlc_module *m = mlc_nn_standardize(ctx, 3);
        if (i == 0) {
            CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
            test_read(mlc_forward(m, x), want);
        }
        nets[i] = mlc_nn_sequential(ctx);
        mlc_module_add(nets[i], m);
    }
    CHECK_VALUES(mlc_forward(nets[0], x), 12, want, 0, 0);
    CHECK_EQ(mlc_save(nets[0], path), MLC_OK);
    CHECK_EQ(mlc_load(nets[1], path), MLC_OK);
    CHECK_VALUES(mlc_forward(nets[1], x), 12, want, 0, 0);
    CHECK(mlc_module_param(nets[1], "0.mean") && mlc_module_param(nets[1], "0.scale"));
    CHECK_EQ(mlc_module_numel(nets[1], true), 0);
    CHECK_OK(ctx);
    unlink(path);
}

TEST(nn, gradients_flow_through_a_scale_to_x)
{
    const double want[3] = {1 / sqrt(5), 0, 1 / sqrt(6.5)};
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *m = mlc_nn_standardize(ctx, 3);
    mlc_tensor  *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(3));
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X)), MLC_OK);
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    CHECK_EQ(mlc_backward(mlc_sum(mlc_forward(m, x), mlc_dims0(), false)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, want, 1e-6, 0);
    CHECK_OK(ctx);
}

TEST(nn, a_scale_that_loses_its_numbers_says_so)
{
    char        block[256];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    mlc_module *m = mlc_nn_standardize(ctx, 3);
    const size_t bytes = mlc_state_bytes(m);
    if (!CHECK(bytes > 0 && bytes <= sizeof block)) return;
    CHECK_EQ(mlc_state_save(m, block, bytes), MLC_OK);     /* before the fit                   */
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    CHECK(mlc_forward(m, x) != NULL);
    CHECK_EQ(mlc_state_load(m, block, bytes), MLC_OK);
    CHECK(mlc_forward(m, x) == NULL);
    CHECK_HAS(mlc_error(ctx), "it has no numbers yet");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    CHECK(mlc_forward(m, x) != NULL);
    CHECK_OK(ctx);
}

TEST(nn, scale_fit_names_the_feature_that_cannot_be_scaled)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *m = mlc_nn_standardize(ctx, 3);
    double      bad[12], want[12];
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCALE_X);
    CHECK_EQ(mlc_nn_scale_fit(m, x), MLC_OK);
    test_read(mlc_forward(m, x), want);
    memcpy(bad, SCALE_X, sizeof bad);
    bad[5] = NO_NUMBER;
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), bad)), MLC_ERR_VALUE);
    CHECK_STR(mlc_error(ctx), "nn_scale_fit: feature 2 of x has a value that is nan; replace it, "
                              "or leave its rows out");
    mlc_error_clear(ctx);
    bad[5] = 0;
    bad[4] = -INF;
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), bad)), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "feature 1 of x has a value that is -inf");
    mlc_error_clear(ctx);
    bad[4] = 7;
    bad[0] = 1e30;
    CHECK_EQ(mlc_nn_scale_fit(m, test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), bad)), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "feature 0 of x is from 3 to 1e+30, which f32 cannot scale");
    mlc_error_clear(ctx);
    CHECK_VALUES(mlc_forward(m, x), 12, want, 0, 0);
    CHECK_EQ(mlc_nn_scale_fit(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3))), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "nn_scale_fit: x [0,3] must have rows and end in 3 features");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_nn_scale_fit(m, mlc_zeros(ctx, MLC_I64, mlc_dims2(4, 3))), MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_nn_scale_fit(m, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_nn_scale_fit(mlc_nn_relu(ctx), x), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "a ReLU has no scale");
    mlc_error_clear(ctx);
    CHECK(mlc_forward(m, mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 2))) == NULL);
    CHECK_STR(mlc_error(ctx), "in Standardize: standardize: x [4,2] must end in 3 features");
    mlc_error_clear(ctx);
}
