/* test_state.c -- tests of section IMPL.IO.STATE: state dicts that PyTorch saved, and exceptions */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"
#include "flash.h"

/* A rename that is one of names alone. */
#define TO(a, b) {.from = a, .to = b}

#define GOLDEN(name) "tests/golden/" name ".safetensors"

static mlc_module *sequential(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 6));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 6, 3));
    return net;
}

static mlc_tensor *output(mlc_ctx *ctx, const char *name)
{
    mlc_safetensors *f = mlc_safetensors_open(ctx, GOLDEN("torch_outputs"));
    mlc_tensor      *t = mlc_safetensors_get(f, name);
    mlc_safetensors_close(f);
    return t;
}

/* What the net makes of torch's input is what torch made of it. */
static void check_outputs(mlc_ctx *ctx, mlc_tensor *y, const char *name)
{
    double want[12];
    CHECK(test_read(output(ctx, name), want));
    CHECK_VALUES(mlc_detach(y), 12, want, 1e-6, 1e-6);
    CHECK_OK(ctx);
}

static mlc_module *normed(mlc_ctx *ctx, mlc_dtype dtype)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 5, 6), mlc_nn_batch_norm(ctx, 6));
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    return net;
}

/* Statistics are f32 in the file as in the network; a file of f32 is cast but for them. */
TEST(state, a_network_of_16_bits_with_batch_norm_comes_back_and_trains_on)
{
    double        y[2][24];
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open("s.safetensors");
    mlc_tensor   *x = test_rand(ctx, MLC_BF16, mlc_dims2(4, 5), 1, -1, 1);
    mlc_module   *net = normed(ctx, MLC_BF16), *twin = normed(ctx, MLC_BF16);
    mlc_load_desc d = mlc_load_desc_make();
    mlc_load_report report;
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    CHECK_EQ(mlc_load(twin, b.path), MLC_OK);
    for (int training = 0; training < 2; training++) {
        mlc_module_train(net, training != 0);
        mlc_module_train(twin, training != 0);
        test_read(mlc_forward(net, x), y[0]);
        test_read(mlc_forward(twin, x), y[1]);
        CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    }
    CHECK_EQ(mlc_save(normed(ctx, MLC_F32), b.path), MLC_OK);
    d.cast = true;
    d.report = &report;
    CHECK_EQ(mlc_load_ex(twin, b.path, &d), MLC_OK);
    CHECK_EQ(report.loaded, 7);
    CHECK_EQ(report.cast, 4);
    CHECK(mlc_forward(twin, x) != NULL);
    CHECK_OK(ctx);
    box_close(&b);
}

/* As such networks were saved when their statistics had 16 bits, too. */
TEST(state, statistics_of_16_bits_in_a_file_load_without_a_cast_that_is_asked_for)
{
    static const char *const names[7] = {"0.weight", "0.bias", "1.weight", "1.bias",
                                         "1.running_mean", "1.running_var",
                                         "1.num_batches_tracked"};
    const mlc_dtype types[2] = {MLC_BF16, MLC_F16};
    double          want[6], got[6];
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open("s.safetensors");
    for (int i = 0; i < 2; i++) {
        mlc_module *net = normed(ctx, types[i]), *twin = normed(ctx, types[i]);
        mlc_named   list[7] = {{NULL, NULL}};
        CHECK(mlc_forward(net, test_rand(ctx, types[i], mlc_dims2(4, 5), 1, -1, 1)) != NULL);
        for (int k = 0; k < 7; k++) {
            list[k].name = names[k];
            list[k].tensor = mlc_module_param(net, names[k]);
            if (k / 2 == 2) list[k].tensor = mlc_cast(list[k].tensor, types[i]);
        }
        CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, 7, NULL), MLC_OK);
        CHECK_EQ(mlc_load(twin, b.path), MLC_OK);
        CHECK_EQ(mlc_module_param(twin, names[5])->dtype, MLC_F32);
        test_read(list[5].tensor, want);
        test_read(mlc_module_param(twin, names[5]), got);
        CHECK(memcmp(want, got, sizeof want) == 0);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- files that torch saved --------------------------------------------------------------- */

TEST(state, a_state_dict_of_torch_loads_without_a_script)
{
    FOR_EACH_ISA(ctx) {
        mlc_module *net = sequential(ctx);
        CHECK_EQ(mlc_load(net, GOLDEN("torch_sequential")), MLC_OK);
        check_outputs(ctx, mlc_forward(net, output(ctx, "x")), "plain");
    }
}

TEST(state, nested_names_of_torch_fit_nested_modules)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx), *inner = mlc_nn_sequential(ctx);
    mlc_load_desc d = mlc_load_desc_make();
    mlc_module_add(inner, mlc_nn_linear(ctx, 5, 6));
    mlc_module_add(inner, mlc_nn_relu(ctx));
    mlc_module_add(inner, mlc_nn_linear(ctx, 6, 4));
    mlc_module_add(inner, mlc_nn_relu(ctx));
    mlc_module_add(net, inner);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 3));
    /* Names that differ are mapped: encoder.layers.1 is 0.2 here, for the relu counts. */
    const mlc_rename renames[] = {mlc_rename_make("encoder.layers.1.*", "0.2.*"),
                                  mlc_rename_make("encoder.layers.*", "0.*"),
                                  mlc_rename_make("head.*", "1.*")};
    CHECK_STR(renames[2].from, "head.*");
    CHECK(!renames[2].transpose && !renames[2].axis && !renames[2].part && !renames[2].parts &&
          !renames[2].size && !renames[2].like);
    d.renames = renames;
    d.n_renames = 3;
    CHECK_EQ(mlc_load_ex(net, GOLDEN("torch_nested"), &d), MLC_OK);
    check_outputs(ctx, mlc_forward(net, output(ctx, "x")), "nested");
}

TEST(state, a_bf16_state_dict_with_a_prefix_is_cast)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = sequential(ctx);
    mlc_load_report report;
    mlc_load_desc   d = mlc_load_desc_make();
    d.prefix = "module.";
    CHECK_EQ(mlc_load_ex(net, GOLDEN("torch_bf16"), &d), MLC_ERR_DTYPE);
    CHECK_STR(mlc_error(ctx),
              "load '" GOLDEN("torch_bf16") "': dtype mismatch for 0.weight (bf16 in the file, f32 "
              "in the model), 0.bias (bf16 in the file, f32 in the model), 2.weight (bf16 in the "
              "file, f32 in the model), 2.bias (bf16 in the file, f32 in the model); mlc_load_ex "
              "with desc.cast converts.");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d.cast = true;
    d.report = &report;
    CHECK_EQ(mlc_load_ex(net, GOLDEN("torch_bf16"), &d), MLC_OK);
    CHECK(report.loaded == 4 && report.cast == 4 && report.missing == 0 && report.unexpected == 0 &&
          report.mismatched == 0);
    check_outputs(ctx, mlc_forward(net, output(ctx, "x")), "bf16");
}

/* ---- what does not fit -------------------------------------------------------------------- */

static void read_weights(mlc_module *m, double *v)
{
    mlc_module_build(m);
    CHECK(test_read(mlc_module_param(m, "0.weight"), v));
    CHECK(test_read(mlc_module_param(m, "2.bias"), v + 30));
}

static void put(mlc_ctx *ctx, const char *path, const char *const *names, const mlc_dims *shapes,
                int n)
{
    mlc_named list[8];
    for (int i = 0; i < n; i++) {
        list[i].name = names[i];
        list[i].tensor = mlc_full(ctx, MLC_F32, shapes[i], 0.5);
    }
    CHECK_EQ(mlc_safetensors_save(ctx, path, list, n, NULL), MLC_OK);
}

/* Keys of torch.nn.Sequential(OrderedDict(embed=Embedding(7, 4), body=Sequential(Linear(4, 4),
 * ReLU()), head=Linear(4, 3))).state_dict(). */
TEST(state, a_state_dict_of_named_children_loads_into_a_sequential_of_names)
{
    static const char *const names[] = {"embed.weight", "body.0.weight", "body.0.bias",
                                        "head.weight", "head.bias"};
    double          v[28];
    mlc_ctx        *ctx = test_ctx();
    const box       b = box_open("named.safetensors");
    const mlc_dims  shapes[] = {mlc_dims2(7, 4), mlc_dims2(4, 4), mlc_dims1(4), mlc_dims2(3, 4),
                                mlc_dims1(3)};
    mlc_module     *body = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 4, 4), mlc_nn_relu(ctx));
    mlc_module     *net = MLC_SEQUENTIAL_NAMED(ctx, {"embed", mlc_nn_embedding(ctx, 7, 4)},
                                               {"body", body}, {"head", mlc_nn_linear(ctx, 4, 3)});
    put(ctx, b.path, names, shapes, 5);
    CHECK_EQ(mlc_load(net, b.path), MLC_OK);
    for (int i = 0; i < 5; i++) {
        mlc_tensor *p = mlc_module_param(net, names[i]);
        CHECK(test_read(p, v));
        for (int64_t k = 0; k < mlc_numel(p); k++) CHECK(v[k] == 0.5);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

static void lines(void *user, const char *text, size_t n)
{
    char *all = (char *)user;
    snprintf(all + strlen(all), 200 - strlen(all), "%.*s", (int)n, text);
}

TEST(state, all_keys_that_do_not_fit_are_in_one_message_and_nothing_changes)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_module *net = sequential(ctx);
    double      before[33], after[33];
    char        text[1024], log[200] = "";
    mlc_load_desc   d = mlc_load_desc_make();
    mlc_load_report report;
    const char *const names[] = {"0.weight", "2.weight", "2.bias", "foo"};
    const mlc_dims    shapes[] = {mlc_dims2(6, 5), mlc_dims2(3, 6), mlc_dims1(4), mlc_dims1(1)};
    read_weights(net, before);
    put(ctx, b.path, names, shapes, 4);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_SHAPE);
    snprintf(text, sizeof text, "load '%s': Missing key(s) in state_dict: \"0.bias\". Unexpected "
             "key(s) in state_dict: \"foo\". size mismatch for 2.bias: copying a param with shape "
             "[4] from checkpoint, the shape in current model is [3].", b.path);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    d.partial = true;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_SHAPE);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    read_weights(net, after);
    CHECK_EQ(memcmp(before, after, sizeof before), 0);
    d.skip_mismatched = true;
    d.report = &report;
    d.write = lines;
    d.user = log;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK(report.loaded == 2 && report.missing == 1 && report.unexpected == 1 &&
          report.mismatched == 1);
    CHECK_STR(log, "missing 0.bias\nsize mismatch 2.bias\nunexpected foo\n");
    read_weights(net, after);
    for (int i = 0; i < 30; i++) CHECK_NEAR(after[i], 0.5, 0);
    CHECK_EQ(memcmp(before + 30, after + 30, 3 * sizeof *after), 0);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(state, many_keys_are_counted_and_two_with_one_name_are_refused)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_load_desc d = mlc_load_desc_make();
    static const mlc_rename same[] = {TO("*.a", "0.weight"), TO("*.b", "0.weight")};
    const char *const names[] = {"0.a", "0.b"};
    const mlc_dims    shapes[] = {mlc_dims1(1), mlc_dims1(1)};
    for (int i = 0; i < 40; i++) mlc_module_add(net, mlc_nn_linear(ctx, 1, 1));
    put(ctx, b.path, names, shapes, 2);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "Missing key(s) in state_dict: \"0.weight\", \"0.bias\"");
    CHECK_HAS(mlc_error(ctx), " more).");
    CHECK_HAS(mlc_error(ctx), "Unexpected key(s) in state_dict: \"0.a\", \"0.b\".");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    d.renames = same;
    d.n_renames = 2;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'0.a' and '0.b' are both named '0.weight' after prefix and renames");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_load_ex(NULL, b.path, NULL), MLC_ERR_ARG);
    box_close(&b);
}

/* ---- names ---------------------------------------------------------------------------------- */

/* One linear layer per group, so that keys are "0.weight", "0.bias", "1.weight", ... */
static mlc_module *layers(mlc_ctx *ctx, int n)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < n; i++) mlc_module_add(net, mlc_nn_linear(ctx, 1, 1));
    return net;
}

/* Values of the parameters in order, after a load of keys whose values count from 1. */
static bool load_renamed(mlc_ctx *ctx, mlc_module *net, const mlc_rename *renames, int n_renames,
                         const char *const *keys, int n, double *values)
{
    box           b = box_open("s.safetensors");
    mlc_load_desc d = mlc_load_desc_make();
    mlc_named     list[8];
    d.renames = renames;
    d.n_renames = n_renames;
    for (int i = 0; i < n; i++) {
        const double v = i + 1;
        list[i].name = keys[i];
        list[i].tensor = test_tensor(ctx, MLC_F32, strstr(keys[i], "eight") ? mlc_dims2(1, 1) :
                                                   mlc_dims1(1), &v);
    }
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, n, NULL), MLC_OK);
    const mlc_status st = mlc_load_ex(net, b.path, &d);
    mlc_param_iter   it = mlc_param_iter_make(net);
    for (int i = 0; mlc_param_next(&it); i++) values[i] = mlc_item(it.tensor);
    box_close(&b);
    return st == MLC_OK;
}

TEST(state, several_stars_of_a_rename_are_filled_in_in_turn)
{
    static const struct { mlc_rename r[2]; int n; const char *keys[4]; double want[4]; } table[] = {
        /* each star is the shortest text that fits, so that the last one may have dots */
        {{TO("net.*.lin.*", "*.*")}, 1,
         {"net.0.lin.weight", "net.0.lin.bias", "net.1.lin.weight", "net.1.lin.bias"},
         {1, 2, 3, 4}},
        {{TO("*_*", "*.*")}, 1, {"0_weight", "0_bias", "1_weight", "1_bias"},
         {1, 2, 3, 4}},
        {{TO("**_**", "**.**")}, 1, {"0_weight", "0_bias", "1_weight", "1_bias"},
         {1, 2, 3, 4}},
        /* fewer on the right: the first ones; text goes with them as it is */
        {{TO("*.w*", "*.weight"), TO("*.b*", "*.bias")}, 2,
         {"0.weights", "0.b", "1.weight", "1.b_b"},
         {1, 2, 3, 4}},
        /* the first rename that fits counts; a key that none fits stays */
        {{TO("1.*", "0.*"), TO("*.*", "1.*")}, 1, {"1.weight", "1.bias", "x", "y"}, {0, 0, 0, 0}},
        {{TO("a*a*a", "0.weight"), TO("b*", "0.bi*")}, 2, {"aeightaa", "bas", "1.weight", "1.bias"},
         {1, 2, 3, 4}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = layers(ctx, 2);
        double      got[4] = {0};
        const bool  loads = load_renamed(ctx, net, table[i].r, table[i].n, table[i].keys, 4, got);
        CHECK_EQ(loads, table[i].want[0] > 0);
        for (int k = 0; loads && k < 4; k++)
            if (!CHECK_NEAR(got[k], table[i].want[k], 0))
                printf("  %s to %s\n", table[i].r[0].from, table[i].r[0].to);
        if (!loads) CHECK_HAS(mlc_error(ctx), "Unexpected key(s) in state_dict: \"x\", \"y\".");
    }
}

TEST(state, renames_that_are_wrong_are_refused)
{
    static const struct { mlc_rename r; const char *why; } table[] = {
        {TO("*", "*.*"), "rename '*' to '*.*': at most 8 '*', and not more in the second"},
        {TO("*********", "x"), "at most 8 '*'"},
        {TO(NULL, "x"), "rename 0 has no name"},
        {TO("x", NULL), "rename 0 has no name"},
        {TO("x", "a|b"), "rename 'x' to 'a|b': one '|' at most, in the first, before any '*'"},
        {TO("a|b|c", "x"), "one '|' at most"},
        {TO("*|b", "x"), "one '|' at most"},
        {{.from = "a", .to = "b", .parts = 2, .like = "*"}, "like '*': not more '*' in the second"},
        {{.from = "a", .to = "b", .parts = -1},
         "rename 'a' to 'b' is part 0 of -1, axis 0, size 0; parts count from 0, and only they"},
        {{.from = "a", .to = "b", .part = 2, .parts = 2}, "is part 2 of 2, axis 0, size 0;"},
        {{.from = "a", .to = "b", .part = -1, .parts = 2}, "is part -1 of 2"},
        {{.from = "a", .to = "b", .parts = 2, .size = -1}, "is part 0 of 2, axis 0, size -1;"},
        {{.from = "a", .to = "b", .size = 1}, "is part 0 of 0, axis 0, size 1;"},
        {{.from = "a", .to = "b", .part = 1}, "is part 1 of 0"},
        {{.from = "a", .to = "b", .parts = 1, .axis = 1}, "is part 0 of 1, axis 1"},
        {{.from = "a", .to = "b", .like = "x"}, "is part 0 of 0"},
        {{.from = "a", .to = "b", .axis = 1, .part = 1, .parts = 2},
         "rename 'a' to 'b' is part 1 of 2 along axis 1, and none is part 0; give one for each"},
    };
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = layers(ctx, 1);
    mlc_load_desc d = mlc_load_desc_make();
    mlc_save_desc to = mlc_save_desc_make();
    d.n_renames = to.n_renames = 1;
    CHECK_EQ(mlc_load_ex(net, "none", &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "load: renames is NULL and n_renames is 1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        d.renames = to.renames = &table[i].r;
        CHECK_EQ(mlc_load_ex(net, "none", &d), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
        CHECK_EQ(mlc_save_ex(net, "none", &to), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_ARG);
    }
    CHECK_EQ(mlc_load(net, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_save(NULL, "x"), MLC_ERR_ARG);
    CHECK_EQ(mlc_load(NULL, "x"), MLC_ERR_ARG);
}

/* A rename may make a name that is longer than any in a model: it is then not expected. */
TEST(state, a_name_that_grows_too_long_is_unexpected)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = layers(ctx, 1);
    char        key[MLC_NAME_BYTES + 8], text[MLC_NAME_BYTES + 64];
    double      got[2] = {0};
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    const char *const keys[] = {"0.weight", "0.bias", key};
    CHECK(!load_renamed(ctx, net, NULL, 0, keys, 3, got));
    snprintf(text, sizeof text, "Unexpected key(s) in state_dict: \"%s\".", key);
    CHECK_HAS(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    char longer[MLC_STATE_NAME_BYTES + 8];
    memset(longer, 'l', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const char *const long_keys[] = {"0.weight", "0.bias", longer};
    CHECK(!load_renamed(ctx, net, NULL, 0, long_keys, 3, got));
    CHECK_HAS(mlc_error(ctx), "Unexpected key(s) in state_dict: \"llll");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* ---- parameters with several names ---------------------------------------------------------- */

static mlc_module *tied(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx), *a = mlc_nn_linear(ctx, 1, 1);
    mlc_module *b = mlc_nn_sequential(ctx);
    mlc_module_add(net, a);
    mlc_module_add(net, b);
    mlc_module_build(net);
    CHECK_EQ(mlc_module_tie(b, "same", mlc_module_param(net, "0.weight")), MLC_OK);
    CHECK_OK(ctx);
    return net;
}

TEST(state, a_tied_parameter_is_saved_once_and_loaded_under_any_of_its_names)
{
    static const char *const keys[] = {"0.bias", "0.weight", "1.same_weight"};
    static const mlc_rename  same[] = {TO("1.same_weight", "1.same")};
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("s.safetensors");
    mlc_module      *net = tied(ctx);
    double           got[2] = {0};
    const mlc_named *list;
    int64_t          n = 0;
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b.path, &list, &n), MLC_OK);
    if (CHECK_EQ(n, 2)) {
        CHECK_STR(list[0].name, "0.bias");
        CHECK_STR(list[1].name, "0.weight");
    }
    CHECK_EQ(mlc_load(net, b.path), MLC_OK);
    CHECK(load_renamed(ctx, net, same, 1, keys, 2, got));            /* the first name alone  */
    CHECK(got[0] == 2 && got[1] == 1);
    const char *const second[] = {"1.same_weight", "0.bias"};
    CHECK(load_renamed(ctx, net, same, 1, second, 2, got));          /* another one alone     */
    CHECK(got[0] == 1 && got[1] == 2);
    CHECK(!load_renamed(ctx, net, same, 1, keys, 3, got));           /* both, which differ     */
    CHECK_ERROR(ctx, MLC_ERR_IO, "': '0.weight' and '1.same_weight' are both '0.weight', which has "
                                 "several names, and differ; they must be equal, or a rename of ");
    CHECK(got[0] == 1 && got[1] == 2);
    CHECK(!load_renamed(ctx, net, same, 1, keys, 1, got));
    CHECK_HAS(mlc_error(ctx), "Missing key(s) in state_dict: \"0.weight\".");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    box_close(&b);
}

/* ---- dtypes that mlcore lacks, lists that are cut ------------------------------------------- */

TEST(state, a_foreign_dtype_is_named_whether_or_not_casts_are_allowed)
{
    static const char header[] =
        "{\"0.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1],\"data_offsets\":[0,1]},"
        "\"0.bias\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[1,9]},"
        "\"more\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[9,11]}}";
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open("s.safetensors");
    mlc_module     *net = layers(ctx, 1);
    unsigned char   file[sizeof header + 32] = {sizeof header - 1};
    char            text[1024], log[200] = "";
    mlc_load_desc   d = mlc_load_desc_make();
    mlc_load_report report;
    memcpy(file + 8, header, sizeof header - 1);
    CHECK(put_file(b.path, file, 8 + sizeof header - 1 + 11));
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_DTYPE);
    snprintf(text, sizeof text, "load '%s': Unexpected key(s) in state_dict: \"more\". dtype "
             "mismatch for 0.bias (f64 in the file, f32 in the model); mlc_load_ex with desc.cast "
             "converts. dtype not known to this mlcore for 0.weight (F8_E4M3).", b.path);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d.partial = d.cast = true;
    d.report = &report;
    d.write = lines;
    d.user = log;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_DTYPE);
    snprintf(text, sizeof text, "load '%s': dtype not known to this mlcore for 0.weight (F8_E4M3).",
             b.path);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STR(log, "dtype mismatch 0.weight\nunexpected more\n");
    CHECK(report.loaded == 1 && report.cast == 1 && report.mismatched == 1);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    box_close(&b);
}

/* Each would be a sentence. */
TEST(state, of_parameters_of_another_shape_the_first_is_named_and_the_others_are_counted)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_module *narrow = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 1, 8), mlc_nn_linear(ctx, 8, 8),
                                        mlc_nn_linear(ctx, 8, 1));
    mlc_module *wide = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 1, 16), mlc_nn_linear(ctx, 16, 16),
                                      mlc_nn_linear(ctx, 16, 1));
    char        text[512];
    CHECK_EQ(mlc_save(wide, b.path), MLC_OK);
    CHECK_EQ(mlc_load(narrow, b.path), MLC_ERR_SHAPE);
    snprintf(text, sizeof text, "load '%s': size mismatch for 0.weight: copying a param with shape "
             "[16, 1] from checkpoint, the shape in current model is [8, 1]. ... (4 more)", b.path);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    box_close(&b);
}

/* A message has 1 KiB: the parts share it, each names what fits and counts the rest. */
TEST(state, long_lists_are_cut_and_counted_in_every_part_of_the_message)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_module *net = layers(ctx, 60);
    mlc_named   list[120];
    char        names[120][80];
    for (int i = 0; i < 60; i++) {     /* 0..19 of another shape, 20..39 dtype, the rest missing */
        snprintf(names[2 * i], sizeof *names, i < 40 ? "%d.weight" : "unexpected.%d.weight", i);
        snprintf(names[2 * i + 1], sizeof *names, i < 40 ? "%d.bias" : "a.%060d", i);
        for (int k = 0; k < 2; k++) {
            list[2 * i + k].name = names[2 * i + k];
            list[2 * i + k].tensor = mlc_zeros(ctx, i < 20 ? MLC_F32 : MLC_F64,
                                               i < 20 ? mlc_dims3(1, 2, 3) : k ? mlc_dims1(1) :
                                                                                  mlc_dims2(1, 1));
        }
    }
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, 120, NULL), MLC_OK);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_SHAPE);
    const char *text = mlc_error(ctx);
    CHECK_HAS(text, "': Missing key(s) in state_dict: \"40.weight\", \"40.bias\", ");
    CHECK_HAS(text, " more). Unexpected key(s) in state_dict: \"a.0");
    CHECK_HAS(text, " more). size mismatch for 0.weight: copying a param with shape [1, 2, 3] from "
                    "checkpoint, the shape in current model is [1, 1]. ");
    CHECK_HAS(text, " more) dtype mismatch for 20.weight (f64 in the file, f32 in the model), ");
    CHECK_HAS(text, " more); mlc_load_ex with desc.cast converts.");
    CHECK(strlen(text) < 1024);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    box_close(&b);
}

/* ---- files in memory ------------------------------------------------------------------------ */

/* The file in memory that cannot be written, so many bytes before the end of a page. */
static flash flash_file(const char *path, size_t short_of)
{
    size_t         n = 0;
    unsigned char *file = get_file(path, &n);
    flash          f;
    CHECK(file != NULL && n > 0);
    f = flash_of(file, n, short_of);
    free(file);
    return f;
}

static size_t file_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (size_t)info.st_size : 0;
}

/* Every alignment, so also those at which the data must be copied. */
TEST(state, a_file_in_memory_loads_as_the_file_does)
{
    const char *const path = GOLDEN("torch_sequential");
    FOR_EACH_ISA(ctx) {
        mlc_module *net = sequential(ctx);
        CHECK_EQ(mlc_load(net, path), MLC_OK);
        const uint64_t want = hash_net(1, net);
        for (size_t short_of = 0; short_of < 9; short_of++) {
            const flash f = flash_file(path, short_of);
            mlc_module *twin = sequential(ctx);
            CHECK_EQ(mlc_load_memory(twin, f.data, file_bytes(path), NULL), MLC_OK);
            flash_free(&f);
            CHECK(hash_net(1, twin) == want);
            check_outputs(ctx, mlc_forward(twin, output(ctx, "x")), "plain");
            mlc_module_free(twin);
        }
    }
}

TEST(state, a_file_in_memory_takes_the_exceptions_of_load_ex)
{
    const char *const path = GOLDEN("torch_bf16");
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = sequential(ctx);
    const flash     f = flash_file(path, 0);
    mlc_load_report report;
    mlc_load_desc   d = mlc_load_desc_make();
    d.prefix = "module.";
    CHECK_EQ(mlc_load_memory(net, f.data, file_bytes(path), &d), MLC_ERR_DTYPE);
    CHECK_HAS(mlc_error(ctx), "load 'memory': dtype mismatch for 0.weight (bf16 in the file, f32");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    d.cast = true;
    d.report = &report;
    CHECK_EQ(mlc_load_memory(net, f.data, file_bytes(path), &d), MLC_OK);
    CHECK(report.loaded == 4 && report.cast == 4 && report.missing == 0);
    check_outputs(ctx, mlc_forward(net, output(ctx, "x")), "bf16");
    flash_free(&f);
}

/* The size is asked for, one byte less is refused, and then it is written.                    */
static void check_saved(mlc_module *net, const char *path, const mlc_save_desc *d)
{
    size_t n = 0, m;
    CHECK_EQ(mlc_save_ex(net, path, d), MLC_OK);
    unsigned char *file = get_file(path, &m);
    CHECK_EQ(mlc_save_memory(net, NULL, &n, d), MLC_OK);
    if (CHECK(file != NULL && n == m)) {
        unsigned char *bytes = (unsigned char *)calloc(n, 1);
        size_t         room = n - 1;
        CHECK_EQ(mlc_save_memory(net, bytes, &room, d), MLC_ERR_ARG);
        CHECK(room == n && bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
        mlc_error_clear(mlc_module_ctx(net));
        CHECK_EQ(mlc_save_memory(net, bytes, &n, d), MLC_OK);
        CHECK(n == m && memcmp(bytes, file, n) == 0);
        free(bytes);
    }
    free(file);
}

TEST(state, what_is_saved_to_memory_has_the_bytes_of_the_file)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    box b = box_open_fast("s.safetensors");
    FOR_EACH_ISA(ctx) {
        const mlc_rename turned = {.from = "w", .to = "0.weight", .transpose = true};
        mlc_module   *net = sequential(ctx), *empty = mlc_nn_relu(ctx);
        mlc_save_desc d = mlc_save_desc_make();
        check_saved(net, b.path, NULL);
        check_saved(empty, b.path, NULL);
        CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
        d.prefix = "model.";
        d.metadata = metadata;
        d.renames = &turned;
        d.n_renames = 1;
        check_saved(net, b.path, &d);
        CHECK_OK(ctx);
    }
    box_close(&b);
}

TEST(state, what_is_saved_to_memory_loads_and_the_errors_say_how_many_bytes)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = sequential(ctx), *twin = sequential(ctx);
    unsigned char bytes[4096];
    size_t        n = sizeof bytes;
    char          want[128];
    CHECK(hash_net(1, net) != hash_net(1, twin));
    CHECK_EQ(mlc_save_memory(net, bytes, &n, NULL), MLC_OK);
    CHECK_EQ(mlc_load_memory(twin, bytes, n, NULL), MLC_OK);
    CHECK(hash_net(1, net) == hash_net(1, twin));
    snprintf(want, sizeof want, "save_memory: it takes %llu bytes, and n says that there are 7; "
             "bytes NULL asks for how many", (unsigned long long)n);
    n = 7;
    CHECK_EQ(mlc_save_memory(net, bytes, &n, NULL), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), want);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_save_memory(net, bytes, NULL, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "save_memory: n is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_save_memory(NULL, bytes, &n, NULL), MLC_ERR_ARG);
}

/* 4 MB of weights: where they are aligned nothing of that size is asked for. */
TEST(state, aligned_data_in_memory_is_not_copied_before_it_is_loaded)
{
    tally        mem;
    mlc_ctx_desc d = tally_desc(&mem);
    ONLY_ON_HOST();                    /* a device has its own copy                            */
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    box          b = box_open_fast("s.safetensors");
    mlc_module  *net = mlc_nn_linear(ctx, 1024, 1024);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    const size_t n = file_bytes(b.path);
    for (size_t short_of = 0; short_of < 2; short_of++) {
        const flash   f = flash_file(b.path, short_of);
        const int64_t live = mem.live;
        CHECK_EQ((uintptr_t)f.data % 4, short_of ? 3 : 0);
        mem.peak = live;
        CHECK_EQ(mlc_load_memory(net, f.data, n, NULL), MLC_OK);
        CHECK((mem.peak - live > 1 << 22) == (short_of != 0));
        mlc_memory_trim(ctx);
        flash_free(&f);
    }
    tally_done(&mem, ctx);
    box_close(&b);
}

static mlc_status flags_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)m; (void)n_in; (void)n_out;
    out[0] = in[0];
    return MLC_OK;
}

/* bool that is neither 0 nor 1 becomes 1, beside the flash. */
TEST(state, bool_in_memory_becomes_0_and_1)
{
    static const mlc_module_class cls = {"Flags", flags_forward, NULL, NULL, 0, NULL};
    static const char   head[] = "{\"on\":{\"dtype\":\"BOOL\",\"shape\":[3],"
                                 "\"data_offsets\":[0,3]}}";
    static const double want[3] = {0, 1, 1};
    unsigned char  file[8 + sizeof head - 1 + 3];
    uint8_t        got[3];
    mlc_param_desc d;
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, 0);
    d = mlc_param_desc_make(mlc_dims1(3));
    d.has_dtype = d.buffer = true;
    d.dtype = MLC_BOOL;
    mlc_tensor *on = mlc_module_declare(m, "on", &d);
    put_le(file, 8, sizeof head - 1);
    memcpy(file + 8, head, sizeof head - 1);
    memcpy(file + 8 + sizeof head - 1, "\0\1\7", 3);
    const flash f = flash_of(file, sizeof file, 0);
    CHECK_EQ(mlc_load_memory(m, f.data, sizeof file, NULL), MLC_OK);
    flash_free(&f);
    CHECK_VALUES(on, 3, want, 0, 0);
    CHECK_EQ(mlc_read(on, got, 3), MLC_OK);
    CHECK_EQ(got[2], 1);
}

/* What is viewed is passed over: reading goes on after it. */
TEST(state, a_copy_from_memory_may_follow_a_view)
{
    static const mlc_module_class cls = {"Flags", flags_forward, NULL, NULL, 0, NULL};
    static const char   head[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                 "\"on\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[4,7]}}"
                                 "   ";
    static const float  one = 1.5f;
    static const double a[1] = {1.5}, want[3] = {1, 0, 1};
    union { double aligned; unsigned char bytes[8 + sizeof head - 1 + 7]; } file;
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, 0);
    mlc_param_desc d = mlc_param_desc_make(mlc_dims1(3)), plain = mlc_param_desc_make(mlc_dims1(1));
    d.has_dtype = d.buffer = true;
    d.dtype = MLC_BOOL;
    mlc_tensor *on = mlc_module_declare(m, "on", &d);
    mlc_module_declare(m, "a", &plain);
    CHECK_EQ((sizeof head - 1) % 8, 0);
    put_le(file.bytes, 8, sizeof head - 1);
    memcpy(file.bytes + 8, head, sizeof head - 1);
    memcpy(file.bytes + 8 + sizeof head - 1, &one, 4);
    memcpy(file.bytes + 8 + sizeof head - 1 + 4, "\3\0\1", 3);
    CHECK_EQ(mlc_load_memory(m, file.bytes, sizeof file.bytes, NULL), MLC_OK);
    CHECK_VALUES(on, 3, want, 0, 0);
    CHECK_VALUES(mlc_detach(mlc_module_param(m, "a")), 1, a, 0, 0);
    CHECK_OK(ctx);
}

TEST(state, what_is_no_file_in_memory_is_an_error_that_names_memory)
{
    static const unsigned char zeros[8] = {0};
    mlc_ctx       *ctx = test_ctx();
    mlc_module    *net = sequential(ctx);
    mlc_rename     half = TO("a", NULL);
    mlc_load_desc  d = mlc_load_desc_make();
    double         before[33], after[33];
    read_weights(net, before);
    CHECK_EQ(mlc_load_memory(NULL, zeros, 8, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_load_memory(net, NULL, 8, NULL), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "load_memory: bytes is NULL and n 8; give the file's first byte");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    for (size_t n = 0; n < 8; n++) {
        CHECK_EQ(mlc_load_memory(net, n ? zeros : NULL, n, NULL), MLC_ERR_IO);
        CHECK_HAS(mlc_error(ctx), "'memory': ");
        CHECK_HAS(mlc_error(ctx), " bytes are no safetensors file");
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    CHECK_EQ(mlc_load_memory(net, zeros, 8, NULL), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "'memory'");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    d.renames = &half;
    d.n_renames = 1;
    CHECK_EQ(mlc_load_memory(net, zeros, 8, &d), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    read_weights(net, after);
    CHECK_EQ(memcmp(before, after, sizeof before), 0);
}

/* A load would write to what is bound: what else it has is left alone, too. */
TEST(state, a_bound_parameter_is_saved_and_not_loaded)
{
    static const char *const names[] = {"0.weight", "2.bias"};
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open("s.safetensors");
    mlc_module   *net = sequential(ctx), *twin = sequential(ctx);
    double        before[33], after[33];
    mlc_load_desc d = mlc_load_desc_make();
    const mlc_rename away = TO("0.weight", "away");
    read_weights(twin, before);
    const flash w = flash_of(mlc_f32(mlc_module_param(twin, names[0])), 30 * sizeof(float), 0);
    const flash v = flash_of(mlc_f32(mlc_module_param(twin, names[1])), 3 * sizeof(float), 4);
    CHECK_EQ(mlc_module_bind(net, names[0], w.data), MLC_OK);
    CHECK_EQ(mlc_module_bind(net, names[1], v.data), MLC_OK);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    const flash f = flash_file(b.path, 0);
    CHECK_EQ(mlc_load_memory(twin, f.data, file_bytes(b.path), NULL), MLC_OK);
    CHECK(hash_net(1, twin) == hash_net(1, net));
    read_weights(twin, after);
    CHECK_EQ(memcmp(before, after, sizeof before), 0);
    CHECK_EQ(mlc_zero_(mlc_detach(mlc_module_param(twin, "2.weight"))) != NULL, true);
    CHECK_EQ(mlc_save(twin, b.path), MLC_OK);
    const uint64_t net_before = hash_net(1, net);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "load: '");
    CHECK_HAS(mlc_error(ctx), "' is bound to memory of the program (mlc_module_bind), which");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_load_memory(net, f.data, file_bytes(b.path), NULL), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK(hash_net(1, net) == net_before);
    d.partial = true;
    d.renames = &away;
    d.n_renames = 1;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "load: '2.bias' is bound");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    flash_free(&f);
    mlc_module_free(net);
    flash_free(&w);
    flash_free(&v);
    box_close(&b);
}

/* A tensor of the user over the same bytes is not taken for a view of a file that was closed. */
TEST(state, tensors_over_the_memory_stay_after_a_load)
{
    ONLY_ON_HOST();                    /* a device's tensor is no pointer to read from         */
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_module *net = layers(ctx, 1);
    size_t      n;
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    unsigned char *file = get_file(b.path, &n);
    mlc_tensor    *t = mlc_wrap(ctx, MLC_U8, mlc_dims1((int64_t)n), NULL, file);
    CHECK_EQ(mlc_load_memory(net, file, n, NULL), MLC_OK);
    CHECK(mlc_u8(t) == file);
    CHECK_OK(ctx);
    free(file);
    box_close(&b);
}

/* ---- at the edges --------------------------------------------------------------------------- */

TEST(state, a_module_without_parameters_is_an_empty_file)
{
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("s.safetensors");
    mlc_module      *none = mlc_nn_relu(ctx);
    CHECK_EQ(mlc_save(none, b.path), MLC_OK);
    CHECK_EQ(mlc_load(none, b.path), MLC_OK);
    mlc_named in = {"x", mlc_zeros(ctx, MLC_F32, mlc_dims1(1))};
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, &in, 1, NULL), MLC_OK);
    CHECK_EQ(mlc_load(none, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "Unexpected key(s) in state_dict: \"x\".");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    for (int i = 0; i < 100 && mlc_scope_begin(ctx) == MLC_OK; i++) {}
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_load(none, b.path), MLC_ERR_STATE);       /* it needs a scope of its own      */
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    box_close(&b);
}

/* A parameter with two names, neither of them the first of the model. */
TEST(state, a_later_parameter_is_tied_too)
{
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_module *net = layers(ctx, 3);
    CHECK_EQ(mlc_module_tie(mlc_module_child(net, 2), "other", mlc_module_param(net, "1.bias")),
             MLC_OK);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    const uint64_t before = hash_net(1, net);
    CHECK_EQ(mlc_load(net, b.path), MLC_OK);
    CHECK(hash_net(1, net) == before);
    CHECK_OK(ctx);
    box_close(&b);
}

static mlc_module *long_names(mlc_ctx *ctx, int n)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    char        name[64];
    for (int i = 0; i < n; i++) {
        memset(name, 'a' + i % 26, sizeof name);
        name[0] = (char)('a' + i / 26);
        name[sizeof name - 1] = 0;
        mlc_module_add_named(net, name, mlc_nn_linear(ctx, 1, 1));
    }
    return net;
}

/* A prefix is taken off where it is; a file with more names than there are parameters. */
TEST(state, a_prefix_is_taken_off_the_names_that_have_it)
{
    enum { MANY = 3000 };
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open_fast("s.safetensors");
    mlc_module     *net = layers(ctx, 1);
    mlc_load_report report;
    mlc_load_desc   d = mlc_load_desc_make();
    const double    v = 3;
    mlc_named      *list = (mlc_named *)malloc(MANY * sizeof *list);
    char          (*names)[16] = (char (*)[16])malloc(MANY * 16);
    mlc_tensor     *x = test_tensor(ctx, MLC_F32, mlc_dims1(1), &v);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], i ? "n%d" : "net.0.bias", i);
        list[i].name = names[i];
        list[i].tensor = x;
    }
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, MANY, NULL), MLC_OK);
    d.prefix = "net.";
    d.partial = true;
    d.report = &report;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK(report.loaded == 1 && report.missing == 1 && report.unexpected == MANY - 1);
    CHECK(mlc_item(mlc_module_param(net, "0.bias")) == 3);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), " more).");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    free(list);
    free(names);
    box_close(&b);
}

typedef struct attempt { const char *path; int n; } attempt;

static mlc_status save_unbuilt(mlc_ctx *ctx, const void *user)
{
    const attempt *a = (const attempt *)user;
    mlc_module    *net = long_names(ctx, a->n);
    return mlc_ctx_status(ctx) ? mlc_ctx_status(ctx) : mlc_save(net, a->path);
}

static mlc_status load_unbuilt(mlc_ctx *ctx, const void *user)
{
    const attempt *a = (const attempt *)user;
    mlc_module    *net = long_names(ctx, a->n);
    return mlc_ctx_status(ctx) ? mlc_ctx_status(ctx) : mlc_load(net, a->path);
}

static mlc_status load_memory_unbuilt(mlc_ctx *ctx, const void *user)
{
    const attempt *a = (const attempt *)user;
    mlc_module    *net = long_names(ctx, a->n);
    size_t         n;
    unsigned char *file = get_file(a->path, &n);
    mlc_status     st = mlc_ctx_status(ctx);
    if (st == MLC_OK)
        st = mlc_load_memory(net, file, n, NULL);
    free(file);
    return st;
}

TEST(state, saving_and_loading_survive_that_any_allocation_fails)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("s.safetensors");
    attempt  a = {b.path, 1};
    for (; a.n < 90; a.n += 44) {
        tally_fail_each(save_unbuilt, &a);
        CHECK_EQ(save_unbuilt(ctx, &a), MLC_OK);
        tally_fail_each(load_unbuilt, &a);
        tally_fail_each(load_memory_unbuilt, &a);
    }
    CHECK_OK(ctx);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Bytes of the peak of a load into net, more than were live before it was built. */
static int64_t load_peak(tally *mem, mlc_module *net, const char *path, const mlc_load_desc *d)
{
    mlc_memory_trim(mlc_module_ctx(net));
    const int64_t live = mem->live;
    mem->peak = live;
    CHECK_EQ(mlc_load_ex(net, path, d), MLC_OK);
    return mem->peak - live;
}

/* Tables of words, whose transposes are written to the file, too; 12 MB. */
static mlc_module *gpt2(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(6000, 32, 2, 256, 4);
    return mlc_nn_gpt(ctx, &d);
}

TEST(state, a_load_takes_no_second_copy_of_the_file)
{
    tally         mem;
    mlc_ctx_desc  desc = tally_desc(&mem);
    ONLY_ON_HOST();                    /* a device gets copies                                 */
    mlc_ctx      *ctx = mlc_ctx_create(&desc);
    box           b = box_open_fast("s.safetensors");
    mlc_save_desc to = mlc_save_desc_make();
    mlc_load_desc by = mlc_load_desc_make(), cast = mlc_load_desc_make();
    mlc_module   *saved = gpt2(ctx), *net = gpt2(ctx), *half = gpt2(ctx), *same = gpt2(ctx);
    by.renames = to.renames = mlc_rename_gpt2(&by.n_renames);
    to.n_renames = by.n_renames;
    cast.cast = true;
    CHECK_EQ(mlc_save_ex(saved, b.path, &to), MLC_OK);
    const int64_t bytes = (int64_t)file_bytes(b.path);
    CHECK(bytes > 11 << 20);
    /* By renames that transpose. */
    CHECK(load_peak(&mem, net, b.path, &by) < bytes + bytes / 20);
    CHECK(hash_net(1, net) == hash_net(1, saved));
    /* Over values that would be lost, their bytes are beside them. */
    CHECK(load_peak(&mem, net, b.path, &by) > bytes - bytes / 20);
    CHECK(hash_net(1, net) == hash_net(1, saved));
    /* To 16 bits. */
    CHECK_EQ(mlc_save(saved, b.path), MLC_OK);
    CHECK_EQ(mlc_module_to(half, MLC_BF16), MLC_OK);
    CHECK(load_peak(&mem, half, b.path, &cast) < bytes / 10);
    CHECK_EQ(mlc_module_to(saved, MLC_BF16), MLC_OK);
    CHECK(hash_net(1, half) == hash_net(1, saved));
    /* Straight from a file as it is. */
    CHECK(load_peak(&mem, same, b.path, NULL) < bytes + bytes / 50);
    tally_done(&mem, ctx);
    box_close(&b);
}

/* An allocator that cuts a file at its nth allocation and gives nothing afterwards. */
typedef struct cutter { tally mem; const char *path; int64_t nth, bytes; bool cut; } cutter;

static void *cutter_alloc(void *user, size_t bytes, size_t align)
{
    cutter *c = (cutter *)user;
    if (c->nth && c->cut)
        return NULL;
    if (c->nth && c->mem.calls + 1 == c->nth)
        c->cut = truncate(c->path, (off_t)c->bytes) == 0;
    return tally_alloc(&c->mem, bytes, align);
}

static void cutter_release(void *user, void *p, size_t bytes)
{
    tally_release(&((cutter *)user)->mem, p, bytes);
}

/* A table with a row of padding, a norm, and weights of several pieces. */
static mlc_module *kinds(mlc_ctx *ctx, bool bf16)
{
    mlc_nn_embedding_desc d = mlc_nn_embedding_desc_make(500, 96);
    mlc_module           *net = mlc_nn_sequential(ctx);
    d.embedding.has_padding_index = true;
    d.embedding.padding_index = 0;
    mlc_module_add(net, mlc_nn_layer_norm(ctx, 96));
    mlc_module_add(net, mlc_nn_linear(ctx, 96, 1500));
    mlc_module_add(net, mlc_nn_linear(ctx, 1500, 70));
    mlc_module_add(net, mlc_nn_embedding_ex(ctx, &d));     /* at the end, where the file is cut */
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    if (bf16) CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    return net;
}

/* One load; n: the allocation at which the file is cut. False once none is left. */
static bool cut_load(cutter *c, int how, const mlc_load_desc *d, const void *file, size_t bytes)
{
    mlc_ctx_desc desc = tally_desc(&c->mem);
    const int64_t nth = c->nth;
    const mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    desc.allocator.user = c;
    desc.allocator.alloc = cutter_alloc;
    desc.allocator.release = cutter_release;
    CHECK(put_file(c->path, file, bytes));
    c->nth = 0;
    c->cut = false;
    mlc_ctx    *ctx = mlc_ctx_create(&desc);
    mlc_module *net = kinds(ctx, how & 1);
    if (how & 2) net = mlc_module_clone(net);
    if (how & 4) CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    const uint64_t before = hash_net(1, net);
    c->mem.calls = 0;
    c->nth = nth;
    const mlc_status st = mlc_load_ex(net, c->path, d);
    c->nth = 0;
    CHECK_EQ(st != MLC_OK, hash_net(1, net) == before);
    if (!c->cut) CHECK_EQ(st, MLC_OK);
    mlc_error_clear(ctx);
    const bool cut = c->cut;
    tally_done(&c->mem, ctx);
    c->nth = nth;
    return cut;
}

/* The file ends early while it is read, and nothing can be allocated any more. */
TEST(state, initial_values_come_back_without_memory_after_a_read_that_fails)
{
    ONLY_ON_HOST();
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open_fast("s.safetensors");
    mlc_module    *saved = kinds(ctx, false);
    mlc_load_desc  d = mlc_load_desc_make();
    size_t         bytes = 0;
    const mlc_init_desc normal = mlc_init_desc_make(MLC_INIT_NORMAL);
    const mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    d.cast = true;
    CHECK_EQ(mlc_module_init(saved, "*", &normal), MLC_OK);
    CHECK_EQ(mlc_save(saved, b.path), MLC_OK);
    unsigned char *file = get_file(b.path, &bytes);
    for (int how = 0; how < 8; how++) {
        if (how == 4) {                /* integers                                             */
            free(file);
            CHECK_EQ(mlc_quantize(saved, &q, NULL), MLC_OK);
            CHECK_EQ(mlc_save(saved, b.path), MLC_OK);
            file = get_file(b.path, &bytes);
        }
        if (how & 4 && how & 1) continue;                  /* of f32 alone                     */
        cutter c = {.path = b.path, .bytes = (int64_t)bytes - 40000};
        bool   more = true;
        for (c.nth = 1; more && c.nth < 1000; c.nth++)
            more = cut_load(&c, how, &d, file, bytes);
        CHECK(c.nth > 3 && c.nth < 1000);
    }
    free(file);
    CHECK_OK(ctx);
    box_close(&b);
}

/* Values that were written by other ways than a forward, or with another seed. */
TEST(state, what_is_not_initial_is_not_overwritten_before_all_is_read)
{
    tally         mem;
    mlc_ctx_desc  desc = tally_desc(&mem);
    ONLY_ON_HOST();
    mlc_ctx      *ctx = mlc_ctx_create(&desc);
    box           b = box_open_fast("s.safetensors");
    mlc_module   *saved = mlc_nn_linear(ctx, 512, 512);
    const mlc_init_desc normal = mlc_init_desc_make(MLC_INIT_NORMAL);
    CHECK_EQ(mlc_save(saved, b.path), MLC_OK);
    for (int how = 0; how < 7; how++) {
        mlc_module *net = mlc_nn_linear(ctx, 512, 512);
        mlc_tensor *w = mlc_module_param(net, "weight");
        if (how == 0) mlc_f32(w)[1000] = 7;
        if (how == 1) CHECK(mlc_mul_scalar_(mlc_detach(w), 2) != NULL);
        if (how == 2) CHECK_EQ(mlc_seed(ctx, 5), MLC_OK);
        if (how == 3) CHECK_EQ(mlc_module_init(net, "weight", &normal), MLC_OK);
        if (how == 4) CHECK_EQ(mlc_load(net, b.path), MLC_OK);
        if (how == 5) CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        CHECK((load_peak(&mem, net, b.path, NULL) > 512 * 512 * 4) == (how < 6));
        CHECK(hash_net(1, net) == hash_net(1, saved));
    }
    tally_done(&mem, ctx);
    box_close(&b);
}

/* ---- parts and transposes ------------------------------------------------------------------- */

typedef struct shape { const char *name; int rows, columns; } shape;      /* columns 0: 1-d      */

/* One module with these parameters. */
static mlc_module *bare(mlc_ctx *ctx, const shape *s, int n)
{
    static const mlc_module_class cls = {"Bare", flags_forward, NULL, NULL, 0, NULL};
    mlc_module *m = mlc_module_create(ctx, &cls, NULL, 0);
    for (int i = 0; i < n; i++) {
        const mlc_param_desc d = mlc_param_desc_make(
            s[i].columns ? mlc_dims2(s[i].rows, s[i].columns) : mlc_dims1(s[i].rows));
        mlc_module_declare(m, s[i].name, &d);
    }
    mlc_module_build(m);
    return m;
}

/* Writes tensors whose values count on through the file; a name with %d stands for layers 0, 1. */
static void put_shapes(mlc_ctx *ctx, const char *path, const shape *s, int n, const char *prefix,
                       mlc_dtype dtype)
{
    mlc_named list[64];
    char      names[64][96];
    double    values[256], at = 0;
    int       count = 0;
    for (int i = 0; i < n; i++)
        for (int layer = 0; layer < (strchr(s[i].name, '%') ? 2 : 1); layer++, count++) {
            const char *name = strncmp(s[i].name, prefix, strlen(prefix)) == 0 ?
                               s[i].name + strlen(prefix) : s[i].name;
            const char *mark = strchr(name, '%');
            const int   elements = s[i].rows * (s[i].columns ? s[i].columns : 1);
            snprintf(names[count], sizeof *names, "%.*s", mark ? (int)(mark - name) : 90, name);
            if (mark)
                snprintf(names[count] + strlen(names[count]), 80, "%d%.70s", layer, mark + 2);
            for (int k = 0; k < elements; k++) values[k] = ++at;
            list[count].name = names[count];
            list[count].tensor = test_tensor(ctx, dtype, s[i].columns ?
                                             mlc_dims2(s[i].rows, s[i].columns) :
                                             mlc_dims1(s[i].rows), values);
        }
    CHECK_EQ(mlc_safetensors_save(ctx, path, list, count, NULL), MLC_OK);
}

/* Rows from row on of our tensor are those of the file's, or its columns. */
static void check_rows(mlc_module *net, const char *path, const char *ours, int row,
                       const char *name, bool transposed)
{
    double           got[512], want[512];
    mlc_tensor      *t = mlc_module_param(net, ours);
    mlc_safetensors *f = mlc_safetensors_open(mlc_module_ctx(net), path);
    mlc_tensor      *u = mlc_safetensors_get(f, name);
    const int64_t    n = mlc_dim(u, transposed ? 1 : 0), c = mlc_numel(u) / n;
    if (!CHECK(t && u && test_read(t, got) && test_read(u, want))) return;
    CHECK_EQ(mlc_numel(t) % c, 0);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < c; k++)
            if (!CHECK_NEAR(got[(row + i) * c + k], want[transposed ? k * n + i : i * c + k], 0)) {
                printf("  %s from %s\n", ours, name);
                return;
            }
    mlc_safetensors_close(f);
}

/* Two files have the same tensors: names, dtypes, bits. */
static void check_same_files(mlc_ctx *ctx, const char *a, const char *b)
{
    const mlc_named *x = NULL, *y = NULL;
    int64_t          n = 0, m = 0;
    CHECK_EQ(mlc_safetensors_load(ctx, a, &x, &n), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, b, &y, &m), MLC_OK);
    if (!CHECK_EQ(n, m)) return;
    for (int64_t i = 0; i < n; i++) {
        CHECK_STR(x[i].name, y[i].name);
        CHECK(hash_tensor(1, x[i].tensor) == hash_tensor(1, y[i].tensor));
    }
}

static mlc_load_desc loads_by(const mlc_rename *r, int n)
{
    mlc_load_desc d = mlc_load_desc_make();
    d.renames = r;
    d.n_renames = n;
    return d;
}

static mlc_save_desc saves_by(const mlc_rename *r, int n)
{
    mlc_save_desc d = mlc_save_desc_make();
    d.renames = r;
    d.n_renames = n;
    return d;
}

/* "w" [5,4] in three parts along either axis, one of them transposed, and "v" [6]. */
static const shape      cut_ours[] = {{"w", 5, 4}, {"v", 6, 0}};
static const shape      cut_file[] = {{"x.a", 4, 1}, {"x.b", 2, 4}, {"x.c", 2, 4}, {"x.d", 4, 0},
                                      {"x.e", 2, 0}};
static const mlc_rename cut[] = {
    {.from = "x.b", .to = "w", .part = 1, .parts = 3},
    {.from = "x.a", .to = "w", .transpose = true, .parts = 3, .size = 1},
    {.from = "x.c", .to = "w", .part = 2, .parts = 3},
    {.from = "x.d", .to = "v", .axis = -1, .part = 0, .parts = 2, .like = "w"},
    {.from = "x.e", .to = "v", .axis = -1, .part = 1, .parts = 2}};

TEST(state, parts_of_any_dtype_lie_one_after_another)
{
    FOR_EACH_ISA(ctx) {
        box           b = box_open_fast("s.safetensors");
        char          again[400];
        mlc_module   *net = bare(ctx, cut_ours, 2);
        mlc_load_desc d = loads_by(cut, 5);
        mlc_save_desc to = saves_by(cut, 5);
        mlc_load_report report;
        d.cast = true;
        d.report = &report;
        snprintf(again, sizeof again, "%s.again", b.path);
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++) {
            put_shapes(ctx, b.path, cut_file, 5, "", (mlc_dtype)dtype);
            CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
            CHECK(report.loaded == 5 && report.cast == (dtype == MLC_F32 ? 0 : 5));
            CHECK(report.missing == 0 && report.unexpected == 0 && report.mismatched == 0);
            check_rows(net, b.path, "w", 0, "x.a", true);
            check_rows(net, b.path, "w", 1, "x.b", false);
            check_rows(net, b.path, "w", 3, "x.c", false);
            check_rows(net, b.path, "v", 0, "x.d", false);
            check_rows(net, b.path, "v", 4, "x.e", false);
            CHECK_EQ(mlc_save_ex(net, again, &to), MLC_OK);
            if (dtype == MLC_F32) check_same_files(ctx, b.path, again);
            mlc_module_to(net, (mlc_dtype)(dtype == MLC_F32 ? MLC_BF16 : MLC_F32));
        }
        CHECK_EQ(mlc_module_to(net, MLC_F64), MLC_OK);
        CHECK_EQ(mlc_load_ex(net, again, &d), MLC_OK);
        check_rows(net, again, "w", 0, "x.a", true);
        CHECK_OK(ctx);
        remove(again);
        box_close(&b);
    }
}

/* Columns in parts, the middle one transposed: its columns are rows in the file. */
TEST(state, parts_along_the_last_axis)
{
    static const shape      ours[] = {{"w", 3, 6}};
    static const shape      file[] = {{"a", 3, 1}, {"b", 2, 3}, {"c", 3, 3}};
    static const mlc_rename r[] = {
        {.from = "b", .to = "w", .axis = 1, .part = 1, .parts = 3, .size = 2, .transpose = true},
        {.from = "a", .to = "w", .axis = 1, .parts = 3, .size = 1},
        {.from = "c", .to = "w", .axis = 1, .part = 2, .parts = 3, .size = 3}};
    static const double want[18] = {1, 4, 7, 10, 11, 12, 2, 5, 8, 13, 14, 15, 3, 6, 9, 16, 17, 18};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open("s.safetensors");
    char          again[400];
    mlc_module   *net = bare(ctx, ours, 1);
    mlc_load_desc d = loads_by(r, 3);
    mlc_save_desc to = saves_by(r, 3);
    snprintf(again, sizeof again, "%s.again", b.path);
    put_shapes(ctx, b.path, file, 3, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 18, want, 0, 0);
    to.prefix = "net.";
    CHECK_EQ(mlc_save_ex(net, again, &to), MLC_OK);
    CHECK_EQ(mlc_load_ex(net, again, &d), MLC_ERR_IO);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    d.prefix = "net.";
    CHECK_EQ(mlc_load_ex(net, again, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 18, want, 0, 0);
    remove(again);
    box_close(&b);
}

/* What is wrong with a file or a table for bare(cut_ours): the error, and the net as it was. */
static void refused(const shape *file, int n, const mlc_rename *r, int n_renames, bool lenient,
                    mlc_status want, const char *why)
{
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = bare(ctx, cut_ours, 2);
    mlc_load_desc d = loads_by(r, n_renames);
    const uint64_t before = hash_net(1, net);
    d.partial = d.skip_mismatched = lenient;
    put_shapes(ctx, b.path, file, n, "", MLC_F32);
    if (!CHECK_EQ(mlc_load_ex(net, b.path, &d), want) || !CHECK_HAS(mlc_error(ctx), why))
        printf("  wanted: %s\n", why);
    CHECK_STATUS(ctx, want);
    CHECK(hash_net(1, net) == before);
    box_close(&b);
}

TEST(state, parts_that_do_not_fit_are_named_and_nothing_changes)
{
    shape      file[5];
    mlc_rename r[6];
    memcpy(file, cut_file, sizeof file);
    memcpy(r, cut, sizeof cut);
    refused(file + 1, 4, r, 5, false, MLC_ERR_IO,
            "Missing key(s) in state_dict: \"w (part 0 of 3, transposed)\".");
    refused(file, 4, r, 5, false, MLC_ERR_IO, "Missing key(s) in state_dict: \"v (part 1 of 2)\".");
    refused(file + 3, 2, r, 5, false, MLC_ERR_IO, "Missing key(s) in state_dict: \"w\".");
    file[0].rows = 1;
    file[0].columns = 4;
    refused(file, 5, r, 5, false, MLC_ERR_SHAPE,
            "size mismatch for w (part 0 of 3, transposed): copying a param with shape [1, 4] from "
            "checkpoint, the shape in current model is [4, 1].");
    file[0] = cut_file[0];
    file[1].rows = 3;                  /* 3 + 1 fill the rest, but not as the table says       */
    file[2].rows = 1;
    refused(file, 5, r, 5, false, MLC_ERR_SHAPE, "size mismatch for w (part 1 of 3): copying");
    memcpy(file, cut_file, sizeof file);
    r[5] = r[2];
    r[5].from = "x.?";
    r[5].part = 1;
    file[2].name = "x.?";              /* two tensors for part 1                               */
    refused(file, 5, r, 6, true, MLC_ERR_ARG, "'x.?' and 'x.b' are both named 'w' (part 1 of 3) "
                                              "after prefix and renames");
    file[2].name = "w";                /* a part, and all of it                                */
    refused(file, 5, r, 5, true, MLC_ERR_ARG, "'w' and 'x.a' are both named 'w' (part 0 of 3, ");
}

TEST(state, tables_that_do_not_fill_a_parameter_are_refused)
{
    mlc_rename r[5];
    memcpy(r, cut, sizeof r);
    r[1].size = 2;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE, "load: 'w' is [5,4]: of axis 0 the sizes of its"
            " parts leave 3, for 2 parts; see size and like of its 3 renames");
    r[1].size = 6;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE, "its parts leave -1, for ");
    r[1].size = INT64_MAX;
    r[0].size = INT64_MAX;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE, "its parts leave -");
    r[1].size = r[0].size = r[2].size = 1;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE, "its parts leave 2, for 0 parts");
    memcpy(r, cut, sizeof r);
    r[0].axis = r[1].axis = r[2].axis = 2;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE,
            "load: 'w' is [5,4] and has no axis 2, as rename 'x.");
    r[0].axis = r[1].axis = r[2].axis = -3;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE, "has no axis -3");
    memcpy(r, cut, sizeof r);
    r[4].transpose = true;
    refused(cut_file, 5, r, 5, true, MLC_ERR_SHAPE,
            "load: 'v' is [6]; rename 'x.e' transposes, which takes two axes");
    memcpy(r, cut, sizeof r);
    r[3].like = "nothing";
    refused(cut_file, 5, r, 5, true, MLC_ERR_ARG, "load: there is no 'nothing'");
}

/* With exceptions the other parts of a parameter are left alone, too. */
TEST(state, a_parameter_takes_all_its_parts_or_none)
{
    static const double v[6] = {21, 22, 23, 24, 25, 26};
    shape           file[5];
    char            log[200] = "";
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open("s.safetensors");
    mlc_module     *net = bare(ctx, cut_ours, 2);
    mlc_load_desc   d = loads_by(cut, 5);
    mlc_load_report report;
    const uint64_t  before = hash_tensor(1, mlc_module_param(net, "w"));
    d.partial = d.skip_mismatched = true;
    d.report = &report;
    d.write = lines;
    d.user = log;
    memcpy(file, cut_file, sizeof file);
    file[1].columns = 3;
    put_shapes(ctx, b.path, file, 5, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK(report.loaded == 2 && report.mismatched == 1 && report.missing == 0);
    CHECK_STR(log, "size mismatch w (part 1 of 3)\n");
    CHECK(hash_tensor(1, mlc_module_param(net, "w")) == before);
    check_rows(net, b.path, "v", 0, "x.d", false);
    log[0] = 0;
    put_shapes(ctx, b.path, cut_file + 3, 2, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK(report.loaded == 2 && report.mismatched == 0 && report.missing == 1);
    CHECK_STR(log, "missing w\n");
    CHECK(hash_tensor(1, mlc_module_param(net, "w")) == before);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "v")), 6, v, 0, 4);
    box_close(&b);
}

/* Each of two files has some of w's parts: neither is OK, in either order, however lenient. */
TEST(state, a_file_with_some_parts_of_a_parameter_is_an_error_also_where_it_is_partial)
{
    char            log[200] = "";
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open_fast("s.safetensors");
    mlc_module     *net = bare(ctx, cut_ours, 2);
    mlc_load_desc   d = loads_by(cut, 5);
    mlc_load_report report;
    const uint64_t  before = hash_net(1, net);
    d.partial = d.skip_mismatched = true;
    d.report = &report;
    d.write = lines;
    d.user = log;
    put_shapes(ctx, b.path, cut_file, 1, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "load '");
    CHECK_ERROR(ctx, MLC_ERR_IO,
                "s.safetensors': a parameter takes all its parts or none: w (part 1 of 3) is "
                "missing and 'x.a', w (part 0 of 3, transposed), is there, w (part 2 of 3) is "
                "missing and 'x.a', w (part 0 of 3, transposed), is there; put them into one file"
                ".");
    CHECK(report.loaded == 0 && report.mismatched == 0 && report.missing == 3);
    CHECK_STR(log, "missing w (part 1 of 3)\nmissing w (part 2 of 3)\nmissing v\n");
    put_shapes(ctx, b.path, cut_file + 1, 4, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "w (part 0 of 3, transposed) is missing and 'x.b', w (part 1 of "
                                 "3), is there; put them into one file.");
    CHECK(hash_net(1, net) == before); /* v, whose parts are all there, neither                */
    box_close(&b);
}

/* A table that says nothing of some names, and one that leaves a key out. */
TEST(state, a_table_writes_what_it_reads)
{
    static const mlc_rename out[] = {TO("x.*", ""), TO("net.|*", "*")};
    static const mlc_rename wrong[] = {TO("*.*", "*")}, twice[] = {TO("one", "w"), TO("one", "v")};
    static const mlc_rename wide[] = {
        TO("********------------------------------------------------------------------------------"
           "-------------------------------------------------------------------------------------"
           "-------------------------------------------------------------------------------------"
           "-----------------------------------------------------------------------------",
           "********")};
    static const char *const pt[] = {"format", "pt", NULL};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open("s.safetensors");
    mlc_module   *net = bare(ctx, cut_ours, 2);
    mlc_load_desc d = loads_by(out, 2);
    mlc_save_desc to = saves_by(out, 2);
    const uint64_t before = hash_net(1, net);
    to.metadata = pt;
    CHECK_EQ(mlc_save_ex(net, b.path, &to), MLC_OK);
    mlc_safetensors *f = mlc_safetensors_open(ctx, b.path);
    CHECK_STR(mlc_safetensors_name(f, 0), "net.v");
    CHECK_STR(mlc_safetensors_name(f, 1), "net.w");
    CHECK_STR(mlc_safetensors_metadata(f, "format"), "pt");
    CHECK(mlc_safetensors_metadata(f, "mlcore.version") == NULL);
    mlc_safetensors_close(f);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);                /* without what may be missing     */
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK(hash_net(1, net) == before);
    put_shapes(ctx, b.path, cut_file, 3, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "Missing key(s) in state_dict: \"w\", \"v\".");
    CHECK(strstr(mlc_error(ctx), "nexpected") == NULL);     /* x.* is left out                 */
    CHECK_STATUS(ctx, MLC_ERR_IO);
    const uint64_t file = hash_file(1, b.path);
    to = saves_by(wrong, 1);
    CHECK_EQ(mlc_save_ex(net, b.path, &to), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "save: 'w' cannot go to '*.*', which has more '*' than '*'");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    to = saves_by(twice, 2);
    CHECK_EQ(mlc_save_ex(net, b.path, &to), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "save: two tensors named 'one'; rename one");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    to = saves_by(wide, 1);
    CHECK_EQ(mlc_save_ex(net, b.path, &to), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "save: the name of 'w' by rename '***");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    to = saves_by(cut, 4);             /* v lacks a part                                       */
    CHECK_EQ(mlc_save_ex(net, b.path, &to), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "is part 0 of 2 along axis -1, and none is part 1; give one for");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_save_ex(NULL, b.path, &to), MLC_ERR_ARG);
    CHECK(hash_file(1, b.path) == file);
    CHECK(hash_net(1, net) == before);
    box_close(&b);
}

/* The parts are given under a name that is not the first. */
TEST(state, parts_of_a_tied_parameter)
{
    static const shape      ours[] = {{"w", 2, 1}};
    static const mlc_rename r[] = {{.from = "a", .to = "in.other", .parts = 2},
                                   {.from = "b", .to = "in.other", .part = 1, .parts = 2}};
    static const double     want[2] = {2, 1};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open("s.safetensors");
    mlc_module   *net = bare(ctx, ours, 1), *in = mlc_nn_sequential(ctx);
    mlc_load_desc d = loads_by(r, 2);
    mlc_named     list[2] = {{"a", mlc_full(ctx, MLC_F32, mlc_dims2(1, 1), 2)},
                             {"b", mlc_full(ctx, MLC_F32, mlc_dims2(1, 1), 1)}};
    CHECK_EQ(mlc_module_add_named(net, "in", in), MLC_OK);
    CHECK_EQ(mlc_module_tie(in, "other", mlc_module_param(net, "w")), MLC_OK);
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, 2, NULL), MLC_OK);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 2, want, 0, 0);
    box_close(&b);
}

/* Values of both names of a [2,2] that is tied; the second one's turned, of another dtype. */
TEST(state, two_names_of_a_parameter_must_have_the_same_values)
{
    static const shape      ours[] = {{"w", 2, 2}};
    static const mlc_rename turned[] = {{.from = "other", .to = "in.other", .transpose = true}};
    static const mlc_rename plain[] = {TO("other", "in.other")}, out[] = {TO("other", "")};
    static const double     w[4] = {1, 2, NO_NUMBER, 4}, t[4] = {1, NO_NUMBER, 2, 4};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = bare(ctx, ours, 1), *in = mlc_nn_sequential(ctx);
    mlc_load_desc d = loads_by(turned, 1);
    CHECK_EQ(mlc_module_add_named(net, "in", in), MLC_OK);
    CHECK_EQ(mlc_module_tie(in, "other", mlc_module_param(net, "w")), MLC_OK);
    mlc_named list[2] = {{"w", test_tensor(ctx, MLC_F32, mlc_dims2(2, 2), w)},
                         {"other", test_tensor(ctx, MLC_BF16, mlc_dims2(2, 2), t)}};
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, 2, NULL), MLC_OK);
    const uint64_t before = hash_net(1, net);
    d.renames = plain;
    d.cast = true;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "'w' and 'other' are both 'w', which has several names, and ");
    CHECK(hash_net(1, net) == before);
    d.renames = out;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 4, w, 0, 0);
    d.renames = turned;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 4, w, 0, 0);
    CHECK_OK(ctx);
    list[1].tensor = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));       /* of another shape       */
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, 2, NULL), MLC_OK);
    d.renames = plain;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "'w' and 'other' are both 'w', which has several names, and ");
    d.skip_mismatched = true;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(state, the_state_of_an_optimizer_has_no_parts)
{
    static const mlc_rename r[] = {{.from = "a", .to = "b", .transpose = true}};
    static const mlc_rename plain[] = {TO("a", "b")};
    static const mlc_rename halved[] = {{.from = "c", .to = "b", .parts = 2},
                                        {.from = "d", .to = "b", .part = 1, .parts = 2}};
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *net = sequential(ctx);
    mlc_optim    *opt = mlc_adamw(net, 0.1);
    mlc_load_desc d = loads_by(r, 1);
    CHECK_EQ(mlc_optim_load_ex(opt, "none", &d), MLC_ERR_UNSUPPORTED);
    CHECK_STR(mlc_error(ctx),
              "optim_load: rename 'a' has parts or a transpose; only parameters may have them");
    CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
    d = loads_by(halved, 2);
    CHECK_EQ(mlc_optim_load_ex(opt, "none", &d), MLC_ERR_UNSUPPORTED);
    CHECK_HAS(mlc_error(ctx), "optim_load: rename 'c' has parts or a transpose; only ");
    CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
    d = loads_by(plain, 1);
    CHECK_EQ(mlc_optim_load_ex(opt, "none", &d), MLC_ERR_IO);        /* there is no such file  */
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

static mlc_status cut_attempt(mlc_ctx *ctx, const void *user)
{
    const char   *path = (const char *)user;
    mlc_module   *net = bare(ctx, cut_ours, 2);
    mlc_load_desc d = loads_by(cut, 5);
    mlc_save_desc to = saves_by(cut, 5);
    mlc_status    st = mlc_ctx_status(ctx);
    if (st == MLC_OK) st = mlc_save_ex(net, path, &to);
    return st == MLC_OK ? mlc_load_ex(net, path, &d) : st;
}

TEST(state, parts_survive_that_any_allocation_fails)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("s.safetensors");
    CHECK_EQ(cut_attempt(ctx, b.path), MLC_OK);
    tally_fail_each(cut_attempt, b.path);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- names of one parameter, each in parts or whole ------------------------------------------ */

/* A "w", which is "in.other" as well. */
static mlc_module *tied_shape(mlc_ctx *ctx, const shape *s)
{
    mlc_module *net = bare(ctx, s, 1), *in = mlc_nn_sequential(ctx);
    CHECK_EQ(mlc_module_add_named(net, "in", in), MLC_OK);
    CHECK_EQ(mlc_module_tie(in, "other", mlc_module_param(net, "w")), MLC_OK);
    CHECK_OK(ctx);
    return net;
}

/* Of [3,1]: whole as w1.0, in two parts as w2.0 and w2.1, in three; the other name likewise. */
#define PARTS(x, to_) \
    {.from = x "1.0", .to = to_}, \
    {.from = x "2.0", .to = to_, .parts = 2, .size = 1}, \
    {.from = x "2.1", .to = to_, .part = 1, .parts = 2}, \
    {.from = x "3.0", .to = to_, .parts = 3}, \
    {.from = x "3.1", .to = to_, .part = 1, .parts = 3}, \
    {.from = x "3.2", .to = to_, .part = 2, .parts = 3}
static const mlc_rename tied_parts[] = {PARTS("w", "w"), PARTS("o", "in.other")};
static const shape      tied_ours[] = {{"w", 3, 1}};

/* Adds rows 0 to 2 in so many parts; the last row is `last`. */
static int add_parts(mlc_ctx *ctx, mlc_named *list, char names[][24], int n, char name, int parts,
                     double last)
{
    const double v[3] = {1, 2, last};
    for (int i = 0, row = 0; i < parts; i++, n++) {
        const int rows = i + 1 < parts ? 1 : 3 - row;
        snprintf(names[n], sizeof names[n], "%c%d.%d", name, parts, i);
        list[n].name = names[n];
        list[n].tensor = test_tensor(ctx, MLC_F32, mlc_dims2(rows, 1), v + row);
        row += rows;
    }
    return n;
}

static void save_parts(mlc_ctx *ctx, const char *path, int of_w, int of_other, double last)
{
    mlc_named list[8];
    char      names[8][24];
    int       n = add_parts(ctx, list, names, 0, 'w', of_w, 3);
    n = add_parts(ctx, list, names, n, 'o', of_other, last);
    CHECK_EQ(mlc_safetensors_save(ctx, path, list, n, NULL), MLC_OK);
}

/* Where both are in as many parts they are compared, part by part. */
TEST(state, two_names_in_parts_are_compared_where_the_parts_are_the_same)
{
    static const double want[3] = {1, 2, 3};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = tied_shape(ctx, tied_ours);
    mlc_load_desc d = loads_by(tied_parts, 12);
    for (int of_w = 1; of_w <= 3; of_w++)
        for (int of_other = 1; of_other <= 3; of_other++) {
            save_parts(ctx, b.path, of_w, of_other, 3);
            mlc_zero_(mlc_detach(mlc_module_param(net, "w")));
            CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
            CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 3, want, 0, 0);
            save_parts(ctx, b.path, of_w, of_other, 4);
            CHECK_EQ(mlc_load_ex(net, b.path, &d), of_w == of_other ? MLC_ERR_IO : MLC_OK);
            if (of_w == of_other) {
                CHECK_HAS(mlc_error(ctx), "' are both 'w', which has several names, and differ");
                CHECK_STATUS(ctx, MLC_ERR_IO);
            }
            CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 3, want, 0, 0);
        }
    const mlc_named some[3] = {{"o2.1", mlc_full(ctx, MLC_F32, mlc_dims2(2, 1), 5)},
                               {"w2.0", mlc_full(ctx, MLC_F32, mlc_dims2(1, 1), 6)},
                               {"w2.1", mlc_full(ctx, MLC_F32, mlc_dims2(2, 1), 5)}};
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, some, 3, NULL), MLC_OK);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);      /* the other name has one of its parts */
    CHECK_NEAR(mlc_item(mlc_sum_all(mlc_module_param(net, "w"))), 16, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(state, a_parameter_is_given_in_parts_of_one_kind)
{
    static const mlc_rename by_axis[] = {
        {.from = "a", .to = "w", .parts = 2, .size = 1}, {.from = "b", .to = "w", .part = 1,
                                                          .parts = 2},
        {.from = "c", .to = "w", .axis = 1, .parts = 2}, {.from = "d", .to = "w", .axis = 1,
                                                          .part = 1, .parts = 2}};
    static const shape square[] = {{"w", 2, 2}}, columns[] = {{"d", 2, 1}, {"c", 2, 1}};
    static const shape both[] = {{"a", 1, 2}, {"c", 2, 1}};
    static const double want[4] = {3, 1, 4, 2};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = bare(ctx, square, 1);
    mlc_load_desc d = loads_by(by_axis, 4);
    put_shapes(ctx, b.path, columns, 2, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 4, want, 0, 0);
    put_shapes(ctx, b.path, both, 2, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "'a' and 'c' are both named 'w' (part 0 of 2) after prefix and ");
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 4, want, 0, 0);
    box_close(&b);
}

/* Turned, "other" must have two axes; w is a tensor of none that `like` may name. */
TEST(state, a_second_name_of_another_number_of_axes_differs)
{
    static const shape      ours[] = {{"w", 2, 2}}, file[] = {{"w", 2, 2}, {"other", 4, 0}};
    static const mlc_rename turned[] = {{.from = "other", .to = "in.other", .transpose = true}};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = tied_shape(ctx, ours);
    mlc_load_desc d = loads_by(turned, 1);
    const uint64_t before = hash_net(1, net);
    put_shapes(ctx, b.path, file, 2, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "'w' and 'other' are both 'w', which has several names, and ");
    CHECK(hash_net(1, net) == before);
    box_close(&b);
}

TEST(state, parameters_of_no_elements_are_saved_and_loaded_under_two_names)
{
    static const shape      ours[] = {{"w", 0, 2}};
    static const mlc_rename plain[] = {TO("other", "in.other")};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = tied_shape(ctx, ours);
    mlc_load_desc d = loads_by(plain, 1);
    unsigned char bytes[512];
    size_t        n = sizeof bytes;
    mlc_load_report report;
    mlc_named     list[2] = {{"w", mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 2))},
                             {"other", mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 2))}};
    d.report = &report;
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, 2, NULL), MLC_OK);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_EQ(report.loaded, 1);
    CHECK_EQ(mlc_save_memory(net, bytes, &n, NULL), MLC_OK);
    CHECK_EQ(mlc_load_memory(net, bytes, n, NULL), MLC_OK);
    CHECK_OK(ctx);
    box_close(&b);
}

/* The size of a part is 1 where that of `like` has no axes. */
TEST(state, a_part_may_be_as_long_as_a_scalar)
{
    static const mlc_module_class cls = {"Scaled", flags_forward, NULL, NULL, 0, NULL};
    static const mlc_rename r[] = {{.from = "a", .to = "w", .parts = 2, .like = "scale"},
                                   {.from = "b", .to = "w", .part = 1, .parts = 2}};
    static const shape  file[] = {{"b", 2, 0}, {"a", 1, 0}};
    static const double want[3] = {3, 1, 2};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("s.safetensors");
    mlc_module   *net = mlc_module_create(ctx, &cls, NULL, 0);
    mlc_load_desc d = loads_by(r, 2);
    const mlc_param_desc w = mlc_param_desc_make(mlc_dims1(3));
    const mlc_param_desc scale = mlc_param_desc_make(mlc_dims0());
    mlc_module_declare(net, "w", &w);
    mlc_module_declare(net, "scale", &scale);
    d.partial = true;
    put_shapes(ctx, b.path, file, 2, "", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK_VALUES(mlc_detach(mlc_module_param(net, "w")), 3, want, 0, 0);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(state, a_module_of_no_parameters_takes_nothing_of_a_file)
{
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open_fast("s.safetensors");
    mlc_module     *net = mlc_nn_relu(ctx);
    mlc_load_desc   d = mlc_load_desc_make();
    mlc_load_report report;
    CHECK_EQ(mlc_save(sequential(ctx), b.path), MLC_OK);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "Unexpected key(s) in state_dict: \"0.bias\", \"0.weight\"");
    d.partial = true;
    d.report = &report;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_OK);
    CHECK(report.loaded == 0 && report.unexpected == 4);
    box_close(&b);
}

/* ---- what fails on the way ------------------------------------------------------------------ */

typedef struct many { tally mem; mlc_ctx *ctx; mlc_module *net; const char *path; } many;

/* Each weight is in the file as two parts, turned. */
static const mlc_rename halves[] = {
    {.from = "*.left", .to = "*.weight", .transpose = true, .parts = 2},
    {.from = "*.right", .to = "*.weight", .transpose = true, .part = 1, .parts = 2}};

static mlc_status many_save(many *m)
{
    const mlc_save_desc d = saves_by(halves, 2);
    return mlc_save_ex(m->net, m->path, &d);
}

static mlc_status many_load(many *m)
{
    const mlc_load_desc d = loads_by(halves, 2);
    return mlc_load_ex(m->net, m->path, &d);
}

/* Each allocation fails, later ones with gaps. Lists of all names need more than a chunk. */
static void many_fail(many *m, mlc_status (*run)(many *m))
{
    const uint64_t before = hash_net(1, m->net);
    mlc_status     st = MLC_ERR_NOMEM;
    int            failed = 0;
    for (int64_t n = 1; st != MLC_OK && n < 10000; n += n < 50 ? 1 : n / 8) {
        mlc_memory_trim(m->ctx);
        m->mem.calls = 0;
        m->mem.fail_at = n;
        st = run(m);
        m->mem.fail_at = 0;
        if (st == MLC_OK) break;
        CHECK_EQ(st, MLC_ERR_NOMEM);
        CHECK_STATUS(m->ctx, MLC_ERR_NOMEM);
        CHECK(hash_net(1, m->net) == before);
        failed++;
    }
    CHECK_EQ(st, MLC_OK);
    CHECK(failed > 5);
    CHECK(hash_net(1, m->net) == before);
}

TEST(state, many_names_in_parts_survive_that_any_allocation_fails)
{
    box                b = box_open_fast("s.safetensors");
    many               m;
    const mlc_ctx_desc d = tally_desc(&m.mem);
    m.ctx = mlc_ctx_create(&d);
    m.path = b.path;
    mlc_scope_begin(m.ctx);
    m.net = mlc_nn_sequential(m.ctx);
    for (int i = 0; i < 150; i++) mlc_module_add(m.net, mlc_nn_linear(m.ctx, 2, 2));
    CHECK_EQ(mlc_module_build(m.net), MLC_OK);
    many_fail(&m, many_save);
    many_fail(&m, many_load);
    CHECK_EQ(mlc_scope_end(m.ctx), MLC_OK);
    tally_done(&m.mem, m.ctx);
    box_close(&b);
}

static mlc_status many_tied(many *m)
{
    const mlc_load_desc d = loads_by(tied_parts, 12);
    return mlc_load_ex(m->net, m->path, &d);
}

TEST(state, comparing_two_names_survives_that_any_allocation_fails)
{
    box                b = box_open_fast("s.safetensors");
    many               m;
    const mlc_ctx_desc d = tally_desc(&m.mem);
    m.ctx = mlc_ctx_create(&d);
    m.path = b.path;
    mlc_scope_begin(m.ctx);
    m.net = tied_shape(m.ctx, tied_ours);
    save_parts(m.ctx, b.path, 2, 2, 3);
    CHECK_EQ(many_tied(&m), MLC_OK);
    many_fail(&m, many_tied);
    CHECK_EQ(mlc_scope_end(m.ctx), MLC_OK);
    tally_done(&m.mem, m.ctx);
    box_close(&b);
}

/* A load opens two scopes, one in the other, a save one; fewer are left. */
TEST(state, scopes_that_are_too_deep_are_an_error_of_any_part_of_a_save_or_a_load)
{
    mlc_load_desc d = loads_by(tied_parts, 12);
    mlc_ctx      *full = test_ctx();
    box           b = box_open_fast("s.safetensors");
    int           most = 0;
    while (mlc_scope_begin(full) == MLC_OK) most++;
    mlc_error_clear(full);
    for (int left = 0; left < 3; left++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = tied_shape(ctx, tied_ours);
        save_parts(ctx, b.path, 2, 2, 3);
        const uint64_t before = hash_net(1, net);
        for (int depth = left; depth < most; depth++) CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
        CHECK_EQ(mlc_load_ex(net, b.path, &d), left < 2 ? MLC_ERR_STATE : MLC_OK);
        if (left < 2) CHECK_HAS(mlc_error(ctx), "scopes are open");
        mlc_error_clear(ctx);
        CHECK((hash_net(1, net) == before) == (left < 2));
        CHECK_EQ(mlc_save(net, b.path), left < 1 ? MLC_ERR_STATE : MLC_OK);
        mlc_error_clear(ctx);
    }
    box_close(&b);
}

/* ---- tables that are shipped ---------------------------------------------------------------- */

/* Names of a language model, 8 features, 4 heads. Nothing runs it. */
static mlc_module *language(mlc_ctx *ctx, mlc_nn_transformer_desc d, int vocab, bool bert)
{
    mlc_module *net = mlc_nn_sequential(ctx), *layers_in = mlc_nn_sequential(ctx);
    mlc_module_add_named(net, "embed", mlc_nn_embedding(ctx, vocab, 8));
    if (!d.gated) mlc_module_add_named(net, "positions", mlc_nn_embedding(ctx, 5, 8));
    if (bert) mlc_module_add_named(net, "types", mlc_nn_embedding(ctx, 2, 8));
    if (bert) mlc_module_add_named(net, "embed_norm", mlc_nn_layer_norm(ctx, 8));
    for (int i = 0; i < 2; i++)
        mlc_module_add(layers_in, mlc_nn_transformer_encoder_layer(ctx, &d));
    mlc_module_add_named(net, "layers", layers_in);
    if (!bert) mlc_module_add_named(net, "norm", d.rms_norm ? mlc_nn_rms_norm(ctx, 8) :
                                                             mlc_nn_layer_norm(ctx, 8));
    if (bert) mlc_module_add_named(net, "pooler", mlc_nn_linear(ctx, 8, 8));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    return net;
}

/* Loads and writes the file by a table; without the prefix and from memory it loads, too. */
static void both_ways(mlc_ctx *ctx, mlc_module *net, const char *path, const mlc_rename *r, int n,
                      int64_t want)
{
    char            again[400];
    mlc_load_report report;
    mlc_load_desc   d = loads_by(r, n);
    mlc_save_desc   to = saves_by(r, n);
    size_t          bytes = 0;
    d.report = &report;
    snprintf(again, sizeof again, "%s.again", path);
    CHECK_EQ(mlc_load_ex(net, path, &d), MLC_OK);
    CHECK_EQ(report.loaded, want);
    CHECK(report.missing == 0 && report.unexpected == 0 && report.mismatched == 0);
    const uint64_t hash = hash_net(1, net);
    CHECK_EQ(mlc_save_ex(net, again, &to), MLC_OK);
    check_same_files(ctx, path, again);
    remove(again);
    unsigned char *file = get_file(path, &bytes);
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
        mlc_zero_(mlc_detach(it.tensor));
    CHECK_EQ(mlc_load_memory(net, file, bytes, &d), MLC_OK);
    CHECK(hash_net(1, net) == hash);
    free(file);
}

TEST(state, files_of_gpt2_both_ways)
{
    static const shape file[] = {
        {"transformer.wte.weight", 9, 8}, {"transformer.wpe.weight", 5, 8},
        {"transformer.h.%d.ln_1.weight", 8, 0}, {"transformer.h.%d.ln_1.bias", 8, 0},
        {"transformer.h.%d.attn.c_attn.weight", 8, 24},
        {"transformer.h.%d.attn.c_attn.bias", 24, 0},
        {"transformer.h.%d.attn.c_proj.weight", 8, 8}, {"transformer.h.%d.attn.c_proj.bias", 8, 0},
        {"transformer.h.%d.ln_2.weight", 8, 0}, {"transformer.h.%d.ln_2.bias", 8, 0},
        {"transformer.h.%d.mlp.c_fc.weight", 8, 6}, {"transformer.h.%d.mlp.c_fc.bias", 6, 0},
        {"transformer.h.%d.mlp.c_proj.weight", 6, 8}, {"transformer.h.%d.mlp.c_proj.bias", 8, 0},
        {"transformer.ln_f.weight", 8, 0}, {"transformer.ln_f.bias", 8, 0},
        {"transformer.h.%d.attn.bias", 3, 3}, {"transformer.h.%d.attn.masked_bias", 1, 0}};
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 4);
    d.hidden = 6;
    mlc_module *net = language(ctx, d, 9, false), *head = mlc_nn_sequential(ctx);
    mlc_load_desc by = mlc_load_desc_make();
    by.renames = mlc_rename_gpt2(&by.n_renames);
    mlc_module_add_named(net, "head", head);
    CHECK_EQ(mlc_module_tie(head, "weight", mlc_module_param(net, "embed.weight")), MLC_OK);
    put_shapes(ctx, b.path, file, 16, "", MLC_F32);
    both_ways(ctx, net, b.path, by.renames, by.n_renames, 28);
    check_rows(net, b.path, "embed.weight", 0, "transformer.wte.weight", false);
    check_rows(net, b.path, "positions.weight", 0, "transformer.wpe.weight", false);
    check_rows(net, b.path, "layers.1.self_attn.in_proj_weight", 0,
               "transformer.h.1.attn.c_attn.weight", true);
    check_rows(net, b.path, "layers.1.self_attn.in_proj_bias", 0,
               "transformer.h.1.attn.c_attn.bias", false);
    check_rows(net, b.path, "layers.0.self_attn.out_proj.weight", 0,
               "transformer.h.0.attn.c_proj.weight", true);
    check_rows(net, b.path, "layers.0.linear1.weight", 0, "transformer.h.0.mlp.c_fc.weight", true);
    check_rows(net, b.path, "layers.1.linear2.weight", 0, "transformer.h.1.mlp.c_proj.weight",
               true);
    check_rows(net, b.path, "layers.1.norm1.bias", 0, "transformer.h.1.ln_1.bias", false);
    check_rows(net, b.path, "layers.1.norm2.weight", 0, "transformer.h.1.ln_2.weight", false);
    check_rows(net, b.path, "norm.bias", 0, "transformer.ln_f.bias", false);
    const uint64_t hash = hash_net(1, net);
    put_shapes(ctx, b.path, file, 18, "transformer.", MLC_F32);      /* model alone, masks     */
    CHECK_EQ(mlc_load_ex(net, b.path, &by), MLC_OK);
    CHECK(hash_net(1, net) == hash);
    CHECK(mlc_rename_gpt2(NULL) == NULL && mlc_rename_llama(NULL) == NULL);
    CHECK(mlc_rename_bert(NULL) == NULL);
    box_close(&b);
}

/* Grouped keys and values: of 16 rows 8 are of queries. The second time all have biases. */
TEST(state, files_of_llama_both_ways)
{
    static const shape file[] = {
        {"model.embed_tokens.weight", 9, 8}, {"model.layers.%d.self_attn.q_proj.weight", 8, 8},
        {"model.layers.%d.self_attn.k_proj.weight", 4, 8},
        {"model.layers.%d.self_attn.v_proj.weight", 4, 8},
        {"model.layers.%d.self_attn.o_proj.weight", 8, 8},
        {"model.layers.%d.mlp.gate_proj.weight", 6, 8},
        {"model.layers.%d.mlp.up_proj.weight", 6, 8},
        {"model.layers.%d.mlp.down_proj.weight", 8, 6},
        {"model.layers.%d.input_layernorm.weight", 8, 0},
        {"model.layers.%d.post_attention_layernorm.weight", 8, 0}, {"model.norm.weight", 8, 0},
        {"lm_head.weight", 9, 8},
        {"model.layers.%d.self_attn.q_proj.bias", 8, 0},
        {"model.layers.%d.self_attn.k_proj.bias", 4, 0},
        {"model.layers.%d.self_attn.v_proj.bias", 4, 0},
        {"model.layers.%d.self_attn.o_proj.bias", 8, 0},
        {"model.layers.%d.mlp.gate_proj.bias", 6, 0}, {"model.layers.%d.mlp.up_proj.bias", 6, 0},
        {"model.layers.%d.mlp.down_proj.bias", 8, 0},
        {"model.layers.%d.self_attn.rotary_emb.inv_freq", 1, 0}};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open("s.safetensors");
    mlc_load_desc by = mlc_load_desc_make();
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 4);
    by.renames = mlc_rename_llama(&by.n_renames);
    d.hidden = 6;
    d.kv_heads = 2;
    d.gated = d.rms_norm = true;
    for (int biases = 0; biases < 2; biases++) {
        d.no_bias = !biases;
        mlc_module *net = language(ctx, d, 9, false);
        const shape w = {"weight", 9, 8};
        mlc_module_add_named(net, "head", bare(ctx, &w, 1));
        mlc_module_build(net);
        put_shapes(ctx, b.path, file, biases ? 19 : 12, "", MLC_F32);
        both_ways(ctx, net, b.path, by.renames, by.n_renames, biases ? 35 : 21);
        const char *const in = "layers.1.self_attn.in_proj_weight";
        check_rows(net, b.path, in, 0, "model.layers.1.self_attn.q_proj.weight", false);
        check_rows(net, b.path, in, 8, "model.layers.1.self_attn.k_proj.weight", false);
        check_rows(net, b.path, in, 12, "model.layers.1.self_attn.v_proj.weight", false);
        check_rows(net, b.path, "layers.0.self_attn.out_proj.weight", 0,
                   "model.layers.0.self_attn.o_proj.weight", false);
        check_rows(net, b.path, "layers.1.linear1.weight", 0,
                   "model.layers.1.mlp.gate_proj.weight", false);
        check_rows(net, b.path, "layers.1.linear1.weight", 6,
                   "model.layers.1.mlp.up_proj.weight", false);
        check_rows(net, b.path, "layers.0.linear2.weight", 0,
                   "model.layers.0.mlp.down_proj.weight", false);
        check_rows(net, b.path, "layers.0.norm1.weight", 0,
                   "model.layers.0.input_layernorm.weight", false);
        check_rows(net, b.path, "layers.1.norm2.weight", 0,
                   "model.layers.1.post_attention_layernorm.weight", false);
        check_rows(net, b.path, "norm.weight", 0, "model.norm.weight", false);
        check_rows(net, b.path, "head.weight", 0, "lm_head.weight", false);
        if (biases)
            check_rows(net, b.path, "layers.1.self_attn.in_proj_bias", 8,
                       "model.layers.1.self_attn.k_proj.bias", false);
        const uint64_t hash = hash_net(1, net);
        put_shapes(ctx, b.path, file, biases ? 20 : 12, "model.", MLC_F32);
        CHECK_EQ(mlc_load_ex(net, b.path, &by), MLC_OK);
        CHECK(hash_net(1, net) == hash);
    }
    box_close(&b);
}

TEST(state, files_of_bert_both_ways)
{
    static const shape file[] = {
        {"bert.embeddings.word_embeddings.weight", 9, 8},
        {"bert.embeddings.position_embeddings.weight", 5, 8},
        {"bert.embeddings.token_type_embeddings.weight", 2, 8},
        {"bert.embeddings.LayerNorm.weight", 8, 0}, {"bert.embeddings.LayerNorm.bias", 8, 0},
        {"bert.encoder.layer.%d.attention.self.query.weight", 8, 8},
        {"bert.encoder.layer.%d.attention.self.query.bias", 8, 0},
        {"bert.encoder.layer.%d.attention.self.key.weight", 8, 8},
        {"bert.encoder.layer.%d.attention.self.key.bias", 8, 0},
        {"bert.encoder.layer.%d.attention.self.value.weight", 8, 8},
        {"bert.encoder.layer.%d.attention.self.value.bias", 8, 0},
        {"bert.encoder.layer.%d.attention.output.dense.weight", 8, 8},
        {"bert.encoder.layer.%d.attention.output.dense.bias", 8, 0},
        {"bert.encoder.layer.%d.attention.output.LayerNorm.weight", 8, 0},
        {"bert.encoder.layer.%d.attention.output.LayerNorm.bias", 8, 0},
        {"bert.encoder.layer.%d.intermediate.dense.weight", 6, 8},
        {"bert.encoder.layer.%d.intermediate.dense.bias", 6, 0},
        {"bert.encoder.layer.%d.output.dense.weight", 8, 6},
        {"bert.encoder.layer.%d.output.dense.bias", 8, 0},
        {"bert.encoder.layer.%d.output.LayerNorm.weight", 8, 0},
        {"bert.encoder.layer.%d.output.LayerNorm.bias", 8, 0},
        {"bert.pooler.dense.weight", 8, 8}, {"bert.pooler.dense.bias", 8, 0},
        {"cls.predictions.bias", 9, 0}, {"bert.embeddings.position_ids", 5, 0}};
    shape       old[25];
    char        names[25][80];
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("s.safetensors");
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 4);
    mlc_load_desc by = mlc_load_desc_make();
    by.renames = mlc_rename_bert(&by.n_renames);
    d.hidden = 6;
    mlc_module *net = language(ctx, d, 9, true);
    put_shapes(ctx, b.path, file, 23, "", MLC_F32);
    both_ways(ctx, net, b.path, by.renames, by.n_renames, 39);
    check_rows(net, b.path, "types.weight", 0, file[2].name, false);
    check_rows(net, b.path, "embed_norm.bias", 0, file[4].name, false);
    check_rows(net, b.path, "layers.1.self_attn.in_proj_weight", 8,
               "bert.encoder.layer.1.attention.self.key.weight", false);
    check_rows(net, b.path, "layers.1.self_attn.in_proj_bias", 16,
               "bert.encoder.layer.1.attention.self.value.bias", false);
    check_rows(net, b.path, "layers.0.self_attn.out_proj.bias", 0,
               "bert.encoder.layer.0.attention.output.dense.bias", false);
    check_rows(net, b.path, "layers.0.norm1.weight", 0,
               "bert.encoder.layer.0.attention.output.LayerNorm.weight", false);
    check_rows(net, b.path, "layers.1.norm2.weight", 0,
               "bert.encoder.layer.1.output.LayerNorm.weight", false);
    check_rows(net, b.path, "layers.1.linear1.weight", 0,
               "bert.encoder.layer.1.intermediate.dense.weight", false);
    check_rows(net, b.path, "layers.1.linear2.weight", 0,
               "bert.encoder.layer.1.output.dense.weight", false);
    check_rows(net, b.path, "pooler.weight", 0, "bert.pooler.dense.weight", false);
    const uint64_t hash = hash_net(1, net);
    for (int i = 0; i < 25; i++) {     /* the oldest names, of the model alone                 */
        char *norm;
        old[i] = file[i];
        snprintf(names[i], sizeof *names, "%s", file[i].name);
        if ((norm = strstr(names[i], "LayerNorm.")) != NULL)
            memcpy(norm + 10, norm[10] == 'w' ? "gamma" : "beta", norm[10] == 'w' ? 6 : 5);
        old[i].name = names[i];
    }
    put_shapes(ctx, b.path, old, 25, "bert.", MLC_F32);
    CHECK_EQ(mlc_load_ex(net, b.path, &by), MLC_OK);
    CHECK(hash_net(1, net) == hash);
    box_close(&b);
}
