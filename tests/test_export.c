/* test_export.c -- tests of the sections IMPL.EXPORT.*: plans as files of C
 *
 * A file with its self-test is compiled by the system's cc, as C99 and as C++, and run: its main
 * compares the outputs with those of the plan. Without a compiler these tests are skipped.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "compile.h"
#include "plans.h"

#if !defined(MLC_NO_EXPORT) && !defined(_WIN32)
#if !defined(MLC_NO_QUANT) && !defined(MLC_NO_VISION) && !defined(MLC_NO_TRAINING)
#include "../examples/embedded/tiny.h"
#endif

/* ---- compiling ------------------------------------------------------------------------------- */

/* By the commands in MLC_TEST_COMPILERS, one a line; with -c they compile alone. */
static bool compiles_widely(const char *path)
{
    const char *list = getenv("MLC_TEST_COMPILERS");
    bool        fine = true;
    while (list != NULL && *list != 0) {
        char         command[200], compile[1200], run[500] = "";
        const size_t n = strcspn(list, "\n");
        snprintf(command, sizeof command, "%.*s", (int)n, list);
        snprintf(compile, sizeof compile, "%s -std=c99 " STRICT " -o '%.400s.out' '%.400s'%s",
                 command, path, path, strstr(command, " -c") != NULL ? "" : " -lm");
        if (strstr(command, " -c") == NULL) snprintf(run, sizeof run, "'%.400s.out'", path);
        if (n > 0 && !(CHECK_EQ(system(compile), 0) && CHECK_EQ(run[0] ? system(run) : 0, 0))) {
            printf("  %s\n", compile);
            fine = false;
        }
        list += list[n] != 0 ? n + 1 : n;
    }
    return fine;
}

/* Compiles a file strictly and runs its self-test. */
static bool compiles_and_runs(const char *path, const char *name)
{
    bool fine = compiles_as_c(path) && CHECK_EQ(runs("'%s.out'%s", path, ""), 0);
    fine = compiles_as_cpp(path) && fine;
    fine = compiles_widely(path) && fine;
    if (!fine) printf("  %s: %s\n", name, path);
    return fine;
}

static mlc_plan_c_desc tested(void)
{
    mlc_plan_c_desc d = mlc_plan_c_desc_make();
    d.self_test = true;
    return d;
}

/* Writes a plan's file and runs it. */
static void check_plan(mlc_ctx *ctx, mlc_plan *p, const mlc_plan_c_desc *d, const char *path,
                       const char *name)
{
    if (!CHECK_EQ(mlc_plan_write_c(p, path, d), MLC_OK)) {
        printf("  %s: %s\n", name, mlc_error(ctx));
        mlc_error_clear(ctx);
    } else if (has_compiler()) {
        compiles_and_runs(path, name);
    }
}

static void check_net(mlc_ctx *ctx, mlc_module *net, mlc_tensor *x, const char *path,
                      const char *name)
{
    const mlc_plan_c_desc d = tested();
    mlc_plan             *p = mlc_plan_capture(net, &x, 1, NULL);
    if (!CHECK(p != NULL)) {
        printf("  %s: %s\n", name, mlc_error(ctx));
        return;
    }
    check_plan(ctx, p, &d, path, name);
    mlc_plan_free(p);
    mlc_module_free(net);
}

TEST(export, networks)
{
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        const box   b = box_open_fast("net.c");
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = NETWORKS[i].make(ctx);
        check_net(ctx, net, sample(ctx, &NETWORKS[i], MLC_F32, 2, 3), b.path, NETWORKS[i].name);
        box_close(&b);
    }
}

/* ---- every operation ------------------------------------------------------------------------- */

/* A group of which some results are asked for. */
typedef struct some { const struct group *group; int n, take[64]; } some;

static mlc_status some_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    const some *g = user;
    mlc_tensor *all[64];
    operands    o = {ctx, in[0], in[1], in[2], in[3], all};
    (void)n_in;
    g->group->make(&o);
    CHECK_EQ(g->n, n_out);
    for (int i = 0; i < g->n; i++) out[i] = all[g->take[i]];
    return mlc_ctx_status(ctx);
}

static mlc_plan *plan_of_some(mlc_ctx *ctx, some *g)
{
    mlc_tensor   *in[4];
    mlc_plan_desc d = with(MLC_PLAN_ALL);
    d.n_out = g->n;
    group_inputs(ctx, in);
    return mlc_plan_capture_fn(ctx, some_of, g, in, 4, &d);
}

static int results_of(mlc_ctx *ctx, const struct group *group)
{
    mlc_tensor *in[4], *all[64];
    group_inputs(ctx, in);
    operands o = {ctx, in[0], in[1], in[2], in[3], all};
    mlc_no_grad_begin(ctx);
    group->make(&o);
    mlc_no_grad_end(ctx);
    return (int)(o.out - all);
}

/* Results without a form, by the errors of a file of each; all others are in one file. */
TEST(export, every_operation)
{
    ONLY_ON_HOST();
    static const char *const without[] = {
        "floor_divide_scalar", "remainder_scalar", "fmod", "remainder", "floor_divide", "isnan",
        "isinf", "isfinite", "logsumexp", "norm", "var", "std", "cumsum", "cumprod", "sort",
        "argsort", "topk", "cast", "pad", "diag", "tril", "triu", "scatter", "interpolate",
        "batch_norm", "elements", "that is computed", "that are computed"};
    for (int i = 0; i < COUNT(GROUPS); i++) {
        const box       b = box_open_fast("net.c");
        mlc_ctx        *ctx = test_ctx();
        mlc_plan_c_desc d = tested();
        const int       n = results_of(ctx, &GROUPS[i]);
        some            all = {&GROUPS[i], 0, {0}};
        for (int k = 0; k < n; k++) {
            some      one = {&GROUPS[i], 1, {k}};
            mlc_plan *p = plan_of_some(ctx, &one);
            if (mlc_plan_write_c(p, b.path, NULL) == MLC_OK) {
                all.take[all.n++] = k;
            } else {
                bool known = false;
                for (int w = 0; w < COUNT(without); w++)
                    known = known || strstr(mlc_error(ctx), without[w]) != NULL;
                if (!CHECK(known) || getenv("MLC_TEST_SHOW"))
                    printf("  result %d of group %d: %s\n", k, i, mlc_error(ctx));
                CHECK_EQ(mlc_ctx_status(ctx), MLC_ERR_UNSUPPORTED);
                mlc_error_clear(ctx);
            }
            mlc_plan_free(p);
        }
        CHECK(all.n > 0);
        mlc_plan *p = plan_of_some(ctx, &all);
        mlc_tensor *in[4];
        group_inputs(ctx, in);
        d.inputs = in;
        char name[32];
        snprintf(name, sizeof name, "group %d", i);
        check_plan(ctx, p, &d, b.path, name);
        mlc_plan_free(p);
        box_close(&b);
    }
}

/* ---- the desc -------------------------------------------------------------------------------- */

/* Reads a file as text. */
static char *text_of(const char *path)
{
    static char text[1 << 18];
    FILE       *f = fopen(path, "rb");
    size_t      n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL) fclose(f);
    text[n] = 0;
    return text;
}

TEST(export, weights_beside_sections_memory)
{
    ONLY_ON_HOST();
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = cnn(ctx);
    mlc_tensor     *x = sample(ctx, &NETWORKS[1], MLC_F32, 1, 3);
    mlc_plan       *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_plan_c_desc d = tested();
    char            beside[400];
    d.name = "Digits_2";
    d.header = d.memory = true;
    d.section = ".data.weights";
    d.inputs = &x;
    check_plan(ctx, p, &d, b.path, "cnn");
    CHECK(strstr(text_of(b.path), "#include \"net_weights.h\"") != NULL);
    CHECK(strstr(text_of(b.path), "#define DIGITS_2_MEMORY ") != NULL);
    CHECK(strstr(text_of(b.path), "/* conv of 0: [1,3,16,16], [8,3,3,3] -> ") != NULL);
    CHECK(strstr(text_of(b.path), "(section(\".data.weights\"))") != NULL);
    CHECK(strstr(text_of(b.path), "char *const m = (char *)io->memory;") != NULL);
    snprintf(beside, sizeof beside, "%s/net_weights.h", b.dir);
    CHECK(strstr(text_of(beside), "/* 0.weight [8,3,3,3] */") != NULL);
    mlc_plan_free(p);
    box_close(&b);
}

/* A cell: the next h of x and h. */
static mlc_status cell(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                       mlc_tensor **out, int32_t n_out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_tanh(mlc_add(in[0], mlc_mul_scalar(in[1], 0.5)));
    out[1] = mlc_add_scalar(out[0], 1);
    return mlc_ctx_status(ctx);
}

TEST(export, states)
{
    ONLY_ON_HOST();
    static const char main_text[] =
        "#define CELL_DECLARATIONS\n#include \"net.c\"\n#include <stdio.h>\n"
        "int main(void)\n{\n    static cell_io io;\n    cell_reset(&io);\n"
        "    io.x0[0] = 1.0f;\n    cell_run(&io);\n    io.x0[0] = 0.0f;\n    cell_run(&io);\n"
        "    printf(\"%.5f\\n\", (double)io.s0[0]);\n    cell_reset(&io);\n    cell_run(&io);\n"
        "    return io.s0[0] != 0.0f;\n}\n";
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_tensor     *in[2] = {test_rand(ctx, MLC_F32, mlc_dims1(3), 1, -1, 1),
                             test_rand(ctx, MLC_F32, mlc_dims1(3), 2, -1, 1)};
    mlc_plan_desc   pd = with(MLC_PLAN_ALL);
    mlc_plan_c_desc d = tested();
    const mlc_plan_c_state state[2] = {{1, 0}, {1, 1}};
    char            path[400], want[32];
    pd.n_out = 2;
    mlc_plan *p = mlc_plan_capture_fn(ctx, cell, NULL, in, 2, &pd);
    d.name = "cell";
    d.states = state;
    d.n_states = 1;
    check_plan(ctx, p, &d, b.path, "cell");
    CHECK(strstr(text_of(b.path), "float s0[3];") != NULL);
    CHECK(strstr(text_of(b.path), "float y0[") == NULL);
    d.self_test = false;
    CHECK_EQ(mlc_plan_write_c(p, b.path, &d), MLC_OK);
    snprintf(path, sizeof path, "%s/main.c", b.dir);
    CHECK(put_file(path, main_text, sizeof main_text - 1));
    if (has_compiler()) {
        CHECK_EQ(runs("cd '%s' && cc -std=c99 -o main.out main.c net.c -lm && ./main.out >said%s",
                      b.dir, ""), 0);
        snprintf(path, sizeof path, "%s/said", b.dir);
        snprintf(want, sizeof want, "0.%05d\n", (int)lround(1e5 * tanh(0.5 * tanh(1.0))));
        CHECK_STR(text_of(path), want);
    }
    d.n_states = 2;
    CHECK_EQ(mlc_plan_write_c(p, b.path, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "states 0 and 1 are the same one");
    mlc_plan_free(p);
    box_close(&b);
}

/* Two states that change places, one that is the other's old value, and outputs of old values. */
static mlc_status shifts(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = in[1];
    out[1] = in[0];
    out[2] = mlc_transpose(in[2], 0, 1);
    out[3] = in[2];
    out[4] = mlc_select(in[0], 0, 1);
    return mlc_ctx_status(ctx);
}

TEST(export, states_of_old_states)
{
    ONLY_ON_HOST();
    static const mlc_plan_c_state states[3] = {{0, 0}, {1, 1}, {2, 2}};
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_tensor     *in[3];
    mlc_plan_desc   pd = with(MLC_PLAN_ALL);
    mlc_plan_c_desc d = tested();
    for (int i = 0; i < 3; i++)
        in[i] = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), (uint64_t)i + 1, -1, 1);
    pd.n_out = 5;
    mlc_plan *p = mlc_plan_capture_fn(ctx, shifts, NULL, in, 3, &pd);
    d.inputs = in;
    d.states = states;
    d.n_states = 3;
    check_plan(ctx, p, &d, b.path, "shifts");
    mlc_plan_free(p);
    box_close(&b);
}

/* NaN, infinities and denormals, which have no sign, come out as they do from the plan. */
static mlc_status extremes(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *x = in[0], *y = in[1];
    (void)user, (void)n_in, (void)n_out;
    out[0] = mlc_relu(x);
    out[1] = mlc_maximum(x, y);
    out[2] = mlc_maximum(y, x);
    out[3] = mlc_minimum(x, y);
    out[4] = mlc_minimum(y, x);
    out[5] = mlc_clamp(x, -1, 1);
    out[6] = mlc_max(x, mlc_dims1(1), false);
    out[7] = mlc_min(x, mlc_dims1(1), false);
    out[8] = mlc_gelu(x);
    out[9] = mlc_gelu_tanh(x);
    out[10] = mlc_hardswish(x);
    out[11] = mlc_leaky_relu(x, 0.1);
    out[12] = mlc_mish(x);
    out[13] = mlc_softsign(x);
    out[14] = mlc_sign(x);
    return mlc_ctx_status(ctx);
}

TEST(export, nan_and_infinities)
{
    ONLY_ON_HOST();
    const float     v[9] = {0.5f, NAN, 1e-40f, -2, -1e-41f, 3e38f, (float)INF, 2, (float)-INF};
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_tensor     *in[2] = {mlc_from(ctx, MLC_F32, mlc_dims2(3, 3), v),
                             test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, -1, 1)};
    mlc_plan_desc   pd = with(MLC_PLAN_ALL);
    mlc_plan_c_desc d = tested();
    pd.n_out = 15;
    mlc_plan *p = mlc_plan_capture_fn(ctx, extremes, NULL, in, 2, &pd);
    d.inputs = in;
    check_plan(ctx, p, &d, b.path, "extremes");
    mlc_plan_free(p);
    box_close(&b);
}

#ifndef MLC_NO_VISION
static mlc_status largest(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    mlc_pool_desc d = mlc_pool_desc_make(3);
    (void)user, (void)n_in, (void)n_out;
    d.stride = mlc_dims_all(2);
    d.padding = mlc_dims_all(1);
    out[0] = mlc_max_pool(in[0], &d);
    out[1] = mlc_adaptive_max_pool(in[0], mlc_dims2(2, 3));
    return mlc_ctx_status(ctx);
}

/* The largest of a window with a NaN is NaN. */
TEST(export, max_pools_of_nan)
{
    ONLY_ON_HOST();
    float           v[2 * 3 * 7 * 8];
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_plan_desc   pd = with(MLC_PLAN_ALL);
    mlc_plan_c_desc d = tested();
    for (int i = 0; i < COUNT(v); i++) v[i] = i % 37 == 3 ? NAN : (float)(i % 11 - 5);
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims4(2, 3, 7, 8), v);
    pd.n_out = 2;
    mlc_plan *p = mlc_plan_capture_fn(ctx, largest, NULL, &x, 1, &pd);
    d.inputs = &x;
    check_plan(ctx, p, &d, b.path, "max pools");
    mlc_plan_free(p);
    box_close(&b);
}
#endif

/* Names of modules stand in comments, whatever they are. */
TEST(export, names_in_comments)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("net.c");
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(2, 4), 1, -1, 1);
    CHECK_EQ(mlc_module_add_named(net, "a*/b\n\\\xe2\x80\xae%s", mlc_nn_linear(ctx, 4, 3)), MLC_OK);
    check_net(ctx, net, x, b.path, "names");
    CHECK(strstr(text_of(b.path), "/* linear of a_/b_____%s: [2,4], [3,4] -> [2,3] */") != NULL);
    CHECK(strstr(text_of(b.path), "/* a_/b_____%s.weight [3,4] */") != NULL);
    box_close(&b);
}

/* A program that includes files of two names does not compile where they differ in case alone. */
TEST(export, names_that_differ_in_case)
{
    ONLY_ON_HOST();
    static const char *const names[3] = {"net", "Net", "other"};
    static const char main_text[] =
        "#include \"net.c\"\n#include OTHER\nint main(void)\n{\n    return 0;\n}\n";
    const box       b = box_open_fast("main.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = small_mlp(ctx);
    mlc_tensor     *x = sample(ctx, &NETWORKS[0], MLC_F32, 2, 3);
    mlc_plan       *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_plan_c_desc d = mlc_plan_c_desc_make();
    for (int i = 0; i < 3; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s.c", b.dir, i == 1 ? "capital" : names[i]);
        d.name = names[i];
        CHECK_EQ(mlc_plan_write_c(p, path, &d), MLC_OK);
    }
    CHECK(put_file(b.path, main_text, sizeof main_text - 1));
    if (has_compiler()) {
        CHECK_EQ(runs("cc -DOTHER='\"other.c\"' -o '%s.out' '%s' -lm", b.path, b.path), 0);
        CHECK(runs("cc -DOTHER='\"capital.c\"' -fsyntax-only '%s' 2>'%s.txt'", b.path, b.path) !=
              0);
        CHECK(runs("grep -q 'Net: a file whose name is this one but for case' '%s.txt'%s", b.path,
                   "") == 0);
    }
    mlc_plan_free(p);
    box_close(&b);
}

/* A plan of two sizes of the batch asks for one. */
TEST(export, a_free_batch)
{
    ONLY_ON_HOST();
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = small_mlp(ctx);
    mlc_tensor     *x = sample(ctx, &NETWORKS[0], MLC_F32, 2, 3);
    mlc_tensor     *more = sample(ctx, &NETWORKS[0], MLC_F32, 5, 3);
    mlc_plan       *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_plan_c_desc d = tested();
    d.batch = 3;
    CHECK_EQ(mlc_plan_write_c(p, b.path, &d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch is 3, and the plan keeps [2,12] alone");
    CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_OK);
    CHECK_EQ(mlc_plan_write_c(p, b.path, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "axis 0 of input 0 has 5 and 2 elements in this plan; set "
                "desc.batch");
    CHECK_EQ(box_count(&b), 0);
    check_plan(ctx, p, &d, b.path, "mlp of 3");
    CHECK(strstr(text_of(b.path), "float x0[36];  /* [3,12] */") != NULL);
    mlc_plan_free(p);
    box_close(&b);
}

static void refuses(mlc_ctx *ctx, mlc_plan *p, const char *path, const mlc_plan_c_desc *d,
                    const char *says)
{
    CHECK_EQ(mlc_plan_write_c(p, path, d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, says);
}

TEST(export, wrong_arguments)
{
    ONLY_ON_HOST();
    static const char *const names[] = {"", "2net", "a-b", "n\xC3\xA4me",
                                        "a_name_of_more_than_forty_characters_is_long"};
    const box               b = box_open_fast("net.c");
    mlc_ctx                *ctx = test_ctx();
    mlc_module             *net = small_mlp(ctx);
    mlc_tensor             *x = sample(ctx, &NETWORKS[0], MLC_F32, 2, 3), *none = NULL;
    mlc_tensor             *other = sample(ctx, &NETWORKS[0], MLC_F32, 3, 3);
    mlc_plan               *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_plan_c_desc         d = mlc_plan_c_desc_make();
    const mlc_plan_c_state  state = {0, 1}, apart_ = {0, 0};
    CHECK_EQ(mlc_plan_write_c(NULL, b.path, NULL), MLC_ERR_ARG);
    refuses(ctx, p, "", &d, "plan_write_c: no path");
    for (int i = 0; i < COUNT(names); i++) {
        d.name = names[i];
        refuses(ctx, p, b.path, &d, "cannot begin names of C");
    }
    d = mlc_plan_c_desc_make();
    d.section = "a\"b";
    refuses(ctx, p, b.path, &d, "is no name of one");
    d = mlc_plan_c_desc_make();
    d.header = true;
    refuses(ctx, p, "a\"b.c", &d, "which #include cannot name");
    d = mlc_plan_c_desc_make();
    d.n_states = 1;
    refuses(ctx, p, b.path, &d, "with 1 states of which there is no list");
    d.states = &state;
    refuses(ctx, p, b.path, &d, "state 0 is input 0 and output 1; the plan has 1 and 1");
    d.states = &apart_;
    refuses(ctx, p, b.path, &d, "state 0 is input f32 [2,12] and output f32 [2,7]");
    d = tested();
    d.inputs = &other;
    refuses(ctx, p, b.path, &d, "input 0 of the self-test is [3,12]; the file is for [2,12]");
    d.inputs = &none;
    refuses(ctx, p, b.path, &d, "input 0 of the self-test is NULL");
    CHECK_EQ(box_count(&b), 0);
    CHECK_EQ(mlc_plan_write_c(p, "/nowhere/at/all.c", NULL), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "/nowhere/at/all.c");
    mlc_module_free(net);
    CHECK_EQ(mlc_plan_write_c(p, b.path, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "plan_write_c: the network was freed");
    mlc_plan_free(p);
    box_close(&b);
}

#ifndef MLC_NO_VISION
/* Of one and two axes, with groups, strides, dilation, more pixels at the end, an activation. */
TEST(export, transposed_convolutions)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 3; i++) {      /* the last with one channel and one output a group */
        const box        b = box_open_fast("net.c");
        mlc_ctx         *ctx = test_ctx();
        mlc_module      *net = mlc_nn_sequential(ctx);
        mlc_nn_conv_desc d = mlc_nn_conv_desc_make(i == 1 ? 1 : 2, 6, i == 2 ? 6 : 10, 3);
        d.transposed = true;
        d.conv.stride = i == 1 ? mlc_dims1(3) : mlc_dims2(2, 3);
        d.conv.padding = mlc_dims_all(1);
        d.conv.output_padding = mlc_dims_all(1);
        d.conv.dilation = mlc_dims_all(2);
        d.conv.groups = i == 2 ? 6 : 2;
        mlc_module_add(net, mlc_nn_conv(ctx, &d));
        mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_tensor *x = i == 1 ? test_rand(ctx, MLC_F32, mlc_dims3(2, 6, 7), 1, -1, 1)
                               : test_rand(ctx, MLC_F32, mlc_dims4(2, 6, 5, 4), 1, -1, 1);
        check_net(ctx, net, x, b.path, "transposed");
        box_close(&b);
    }
}
#endif

#if !defined(MLC_NO_SKETCH) && !defined(MLC_NO_ATTENTION)
/* Of one row and of many, with heads that share keys. */
TEST(export, causal_attention_by_features)
{
    ONLY_ON_HOST();
    static const int64_t sizes[] = {1, 150};
    for (int i = 0; i < 2 * COUNT(sizes); i++) {
        const box           b = box_open_fast("net.c");
        mlc_ctx            *ctx = test_ctx();
        mlc_features_kernel kernel = i % 2 ? MLC_FEATURES_RELU : MLC_FEATURES_SOFTMAX;
        mlc_plan_c_desc     d = tested();
        mlc_tensor         *in[3];
        features_inputs(ctx, sizes[i / 2], in);
        mlc_plan *p = mlc_plan_capture_fn(ctx, by_features, &kernel, in, 3, NULL);
        d.inputs = in;
        check_plan(ctx, p, &d, b.path, i % 2 ? "relu" : "softmax");
        mlc_plan_free(p);
        box_close(&b);
    }
}

#ifndef MLC_NO_QUANT
/* A network whose linear layers are of integers; one of 16 bits has no form. */
TEST(export, attention_by_features_in_integers_and_halves)
{
    ONLY_ON_HOST();
    const char *const keep[] = {"embed*", "positions*", "*out_proj*", "*linear2*"};
    const box         b = box_open_fast("net.c");
    mlc_ctx          *ctx = test_ctx();
    mlc_module       *net = features_gpt(ctx), *half = features_gpt(ctx);
    mlc_tensor       *x = test_tokens(ctx, mlc_dims2(2, 9), 30, 3);
    mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
    q.keep = keep;
    q.n_keep = COUNT(keep);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    check_net(ctx, net, x, b.path, "integers");
    CHECK_EQ(mlc_module_to(half, MLC_BF16), MLC_OK);
    mlc_plan *p = mlc_plan_capture(half, &x, 1, NULL);
    CHECK_EQ(mlc_plan_write_c(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "of layers.0.self_attn (bf16)");
    mlc_plan_free(p);
    box_close(&b);
}
#endif
#endif

/* What has no form is named with its module, and no file is left. */
TEST(export, operations_without_a_form)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("net.c");
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 4));
    mlc_module_add(net, mlc_nn_conv1d(ctx, 1, 2, 3, 1, 1));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(1, 1, 4), 1, -1, 1);
    check_net(ctx, net, x, b.path, "conv1d");
    mlc_module *wide = mlc_nn_sequential(ctx);
    mlc_module_add(wide, mlc_nn_conv3d(ctx, 1, 2, 3, 1, 1));
    x = test_rand(ctx, MLC_F32, mlc_dims_of(5, (const int64_t[]){1, 1, 4, 4, 4}), 1, -1, 1);
    mlc_plan *p = mlc_plan_capture(wide, &x, 1, NULL);
    remove(b.path);
    CHECK_EQ(mlc_plan_write_c(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "plan_write_c: 1 operations that have no form in C: conv "
                "of 0 (three axes");
    mlc_plan_free(p);
    box_close(&b);
}

/* ---- integers -------------------------------------------------------------------------------- */

#if !defined(MLC_NO_QUANT) && !defined(MLC_NO_VISION) && !defined(MLC_NO_TRAINING)
static mlc_module *chain_of_convolutions(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 3, 8, 3, 1, 1), mlc_nn_relu(ctx),
                          mlc_nn_max_pool2d(ctx, 2), mlc_nn_conv2d(ctx, 8, 12, 3, 2, 1),
                          mlc_nn_relu(ctx), mlc_nn_avg_pool2d(ctx, 2),
                          mlc_nn_conv2d(ctx, 12, 10, 1, 1, 0), mlc_nn_relu(ctx),
                          mlc_nn_flatten(ctx), mlc_nn_linear(ctx, 40, 16), mlc_nn_relu(ctx),
                          mlc_nn_linear(ctx, 16, 10));
}

static mlc_module *chain_of_linears(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 30), mlc_nn_gelu(ctx),
                          mlc_nn_linear(ctx, 30, 7), mlc_nn_tanh(ctx), mlc_nn_linear(ctx, 7, 3));
}

/* Channels and outputs that are no multiple of 4, groups, strides, one and several images. */
static mlc_module *odd_convolutions(mlc_ctx *ctx)
{
    mlc_nn_conv_desc apart = mlc_nn_conv_desc_make(2, 6, 6, 3);
    mlc_nn_conv_desc pairs = mlc_nn_conv_desc_make(2, 6, 10, 3);
    apart.conv.padding = mlc_dims_all(1);
    apart.conv.groups = 6;
    pairs.conv.stride = mlc_dims2(2, 3);
    pairs.conv.dilation = mlc_dims2(1, 2);
    pairs.conv.groups = 2;
    return MLC_SEQUENTIAL(ctx, mlc_nn_conv2d(ctx, 3, 6, 3, 2, 1), mlc_nn_relu(ctx),
                          mlc_nn_conv(ctx, &apart), mlc_nn_relu(ctx), mlc_nn_conv(ctx, &pairs),
                          mlc_nn_relu(ctx), mlc_nn_conv2d(ctx, 10, 9, 1, 1, 0), mlc_nn_relu(ctx),
                          mlc_nn_flatten(ctx));
}

/* An integer that differs changes an output by more than the self-test allows. */
TEST(export, static_integers)
{
    ONLY_ON_HOST();
    static const struct { const char *name; mlc_module *(*make)(mlc_ctx *); int like; } nets[] = {
        {"mlp", small_mlp, 0}, {"chain", chain_of_convolutions, 1}, {"resnet20", resnet20, 2},
        {"odd", odd_convolutions, 1}};
    for (int i = 0; i < 4 * COUNT(nets); i++) {
        const box       b = box_open_fast("net.c");
        mlc_ctx        *ctx = test_ctx();
        mlc_module     *net = nets[i / 4].make(ctx);
        mlc_tensor     *x = sample(ctx, &NETWORKS[nets[i / 4].like], MLC_F32, 1 + i / 2 % 2, 3);
        mlc_plan_c_desc d = tested();
        CHECK_EQ(tiny_to_integers(net, x, i % 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH), MLC_OK);
        mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
        d.inputs = &x;
        d.integers = i / 2 % 2 == 0;
        check_plan(ctx, p, &d, b.path, nets[i / 4].name);
        mlc_plan_free(p);
        mlc_module_free(net);
        box_close(&b);
    }
}

/* Bytes of code and constants of a file of this many constants, or -1; command: with -c. */
static int code_of(const char *command, const char *path, int constants)
{
    char text[2400];
    snprintf(text, sizeof text, "%.200s -DNET_NO_MAIN -fno-asynchronous-unwind-tables "
             "-o '%.400s.o' '%.400s' && size '%.400s.o' | awk 'NR == 2 {print $1}' >'%.400s.size'",
             command, path, path, path, path);
    if (!CHECK_EQ(system(text), 0)) return -1;
    snprintf(text, sizeof text, "%.400s.size", path);
    return atoi(text_of(text)) - constants;
}

/* The number after the first place of a text in a file's first 2000 bytes. */
static int number_after(const char *path, const char *what)
{
    char        head[2001] = "";
    FILE       *f = fopen(path, "rb");
    const char *at;
    if (f == NULL) return -1;
    head[fread(head, 1, sizeof head - 1, f)] = 0;
    fclose(f);
    at = strstr(head, what);
    return at != NULL ? atoi(at + strlen(what)) : -1;
}

/* RAM is memory, inputs of 4 bytes or one, and outputs of 4: 424, 136, 3,464, 16,538 and 37,928
 * bytes. Tensors that live at once take 16,490 bytes in the DS-CNN and
 * 49,152 in the ResNet-8 where a sum has a place of its own; TensorFlow Lite Micro has its lists
 * beside them: MLPerf Tiny's reference gives it 10 KB for the autoencoder, 200 KB and 100 KB. */
TEST(export, tiny_networks)
{
    ONLY_ON_HOST();
    static const struct { int net, integers, memory, in, out, code; } want[] = {
        {0, 0, 128, 64, 10, 2048}, {0, 1, 32, 64, 10, 2048}, {1, 1, 264, 640, 640, 12288},
        {2, 1, 16000, 490, 12, 12288}, {3, 1, 34816, 3072, 10, 12288}};
    for (int i = 0; i < COUNT(want); i++) {
        const box   b = box_open_fast("net.c");
        mlc_ctx    *ctx = test_ctx();
        CHECK_EQ(tiny_write(ctx, &tiny_nets[want[i].net], want[i].integers, b.path), MLC_OK);
        const int constants = number_after(b.path, MLC_VERSION_STRING ", ");
        CHECK_EQ(number_after(b.path, "_MEMORY "), want[i].memory);
        CHECK_EQ(number_after(b.path, want[i].integers ? "uint8_t x0[" : "float x0["), want[i].in);
        CHECK_EQ(number_after(b.path, "float y0["), want[i].out);
        if (!has_compiler() || !compiles_and_runs(b.path, tiny_nets[want[i].net].name)) {
            box_close(&b);
            continue;
        }
        const int code = code_of("cc -std=c99 -Os -c", b.path, constants);
        if (!CHECK(code > 0 && code <= want[i].code) || getenv("MLC_TEST_SHOW"))
            printf("  %s: code %d\n", tiny_nets[want[i].net].name, code);
        if (runs("arm-none-eabi-gcc --version%s%s >/dev/null 2>&1", "", "") == 0) {
            const int board = code_of("arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=hard "
                                      "-mfpu=fpv4-sp-d16 -std=c99 -O2 -c", b.path, constants);
            if (!CHECK(board > 0 && board <= want[i].code)) printf("  board: code %d\n", board);
        }
        box_close(&b);
    }
}

/* Inputs are bytes where static layers alone read them. */
TEST(export, inputs_that_are_no_bytes)
{
    ONLY_ON_HOST();
    const box       b = box_open_fast("net.c");
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = chain_of_convolutions(ctx);
    mlc_tensor     *x = sample(ctx, &NETWORKS[1], MLC_F32, 1, 3);
    mlc_plan_c_desc d = tested();
    d.integers = true;
    d.inputs = &x;
    mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
    check_plan(ctx, p, &d, b.path, "floats");
    CHECK(strstr(text_of(b.path), "float x0[") != NULL);
    mlc_plan_free(p);
    CHECK_EQ(tiny_to_integers(net, x, MLC_QUANT_TORCH), MLC_OK);
    p = mlc_plan_capture(net, &x, 1, NULL);
    check_plan(ctx, p, &d, b.path, "bytes");
    CHECK(strstr(text_of(b.path), "uint8_t x0[") != NULL);
    CHECK(strstr(text_of(b.path), "#define NET_X0_ZERO ") != NULL);
    mlc_plan_free(p);
    box_close(&b);
}

TEST(export, weights_of_8_and_4_bits)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 3; i++) {
        const box         b = box_open_fast("net.c");
        mlc_ctx          *ctx = test_ctx();
        mlc_module       *net = mlp(ctx, 64, 96, 10);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
        mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 64), 5, -1, 1);
        q.bits = i == 2 ? 4 : 8;
        q.group = i == 0 ? 0 : 32;
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        check_net(ctx, net, x, b.path, "weights");
        box_close(&b);
    }
}

/* By the range of all rows or of each, in both conventions; rows of zeros and of one sign, too, and
 * those with a NaN or an infinity, whose results are NaN, also after a relu. */
TEST(export, dynamic_integers)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 16; i++) {
        const box         b = box_open_fast("net.c");
        mlc_ctx          *ctx = test_ctx();
        mlc_module       *net = i & 4 ? chain_of_linears(ctx) : mlp(ctx, 64, 96, 10);
        mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_DYNAMIC);
        mlc_tensor       *x = test_rand(ctx, MLC_F32, mlc_dims2(5, 64), 5, -1, 3);
        mlc_plan_c_desc   d = tested();
        float            *v = mlc_f32(x);
        for (int k = 0; k < 64; k++) {
            v[k] = 0;
            v[64 + k] = fabsf(v[64 + k]);
            v[128 + k] = -fabsf(v[128 + k]);
            v[192 + k] *= 1e-6f;
        }
        if (i & 8) {
            v[64 + 9] = NAN;
            v[128 + 63] = -INFINITY;
        }
        q.per_row = i & 1;
        q.convention = i & 2 ? MLC_QUANT_ONNX : MLC_QUANT_TORCH;
        CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
        mlc_plan *p = mlc_plan_capture(net, &x, 1, NULL);
        d.inputs = &x;
        check_plan(ctx, p, &d, b.path, "dynamic");
        mlc_plan_free(p);
        box_close(&b);
    }
}
#endif
#endif
