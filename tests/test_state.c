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
    static const mlc_rename renames[] = {TO("encoder.layers.1.*", "0.2.*"),
                                         TO("encoder.layers.*", "0.*"), TO("head.*", "1.*")};
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
    CHECK_HAS(mlc_error(ctx), "rename 0 has no name");
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
    CHECK(load_renamed(ctx, net, same, 1, keys, 3, got));            /* both: the first counts */
    CHECK(got[0] == 2 && got[1] == 1);
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
