/* test_onnx.c -- tests of the sections IMPL.ONNX.*: files of ONNX as modules
 *
 * Goldens are of ONNX Runtime (tests/golden/make_onnx_goldens.py). Files that are wrong are made
 * here, by a few functions that write protobuf.
 */
#define _GNU_SOURCE
#include "files.h"
#include "golden/golden.h"
#include "mlc_test.h"

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
}

TEST(onnx, files_give_the_outputs_of_onnx_runtime_1_of_4) { run_cases(0, 4); }
TEST(onnx, files_give_the_outputs_of_onnx_runtime_2_of_4) { run_cases(1, 4); }
TEST(onnx, files_give_the_outputs_of_onnx_runtime_3_of_4) { run_cases(2, 4); }
TEST(onnx, files_give_the_outputs_of_onnx_runtime_4_of_4) { run_cases(3, 4); }
