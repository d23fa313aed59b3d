/* test_state.c -- tests of section IMPL.IO.STATE: state dicts that PyTorch saved, and exceptions */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

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
    mlc_load_desc d;
    mlc_module_add(inner, mlc_nn_linear(ctx, 5, 6));
    mlc_module_add(inner, mlc_nn_relu(ctx));
    mlc_module_add(inner, mlc_nn_linear(ctx, 6, 4));
    mlc_module_add(inner, mlc_nn_relu(ctx));
    mlc_module_add(net, inner);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 3));
    /* Names that differ are mapped: encoder.layers.1 is 0.2 here, for the relu counts. */
    static const mlc_rename renames[] = {{"encoder.layers.1.*", "0.2.*"},
                                         {"encoder.layers.*", "0.*"},
                                         {"head.*", "1.*"}};
    memset(&d, 0, sizeof d);
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
    mlc_load_desc   d;
    memset(&d, 0, sizeof d);
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
    mlc_load_desc   d;
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
    memset(&d, 0, sizeof d);
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
    mlc_load_desc d;
    static const mlc_rename same[] = {{"*.a", "0.weight"}, {"*.b", "0.weight"}};
    const char *const names[] = {"0.a", "0.b"};
    const mlc_dims    shapes[] = {mlc_dims1(1), mlc_dims1(1)};
    for (int i = 0; i < 40; i++) mlc_module_add(net, mlc_nn_linear(ctx, 1, 1));
    put(ctx, b.path, names, shapes, 2);
    CHECK_EQ(mlc_load(net, b.path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(ctx), "Missing key(s) in state_dict: \"0.weight\", \"0.bias\"");
    CHECK_HAS(mlc_error(ctx), " more).");
    CHECK_HAS(mlc_error(ctx), "Unexpected key(s) in state_dict: \"0.a\", \"0.b\".");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    memset(&d, 0, sizeof d);
    d.renames = same;
    d.n_renames = 2;
    CHECK_EQ(mlc_load_ex(net, b.path, &d), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "'0.a' and '0.b' are both named '0.weight' after prefix and renames");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_load_ex(NULL, b.path, NULL), MLC_ERR_ARG);
    box_close(&b);
}
