/* onnx_run.c -- a file of ONNX: its graph, its outputs, how long it takes
 *
 *   build   make build/onnx_run
 *   run     ./onnx_run examples/mlp.onnx
 *           ./onnx_run NET.ONNX --inputs in.safetensors --outputs out.safetensors
 *
 * Inputs are tensors of a safetensors file by their names, or else ones, with the size 1 where the
 * file leaves a size free. Outputs are printed, or written by their names.                     */
#include "options.h"

#include <time.h>

static const char HELP[] =
    "usage: onnx_run FILE.ONNX [options]\n"
    "  --inputs FILE    tensors by the names of inputs; default: ones\n"
    "  --outputs FILE   is written with the outputs; default: they are printed\n"
    "  --runs N         forwards that are timed; default 10\n"
    "  --quiet 1        without the graph\n"
    "  --help           this text\n";

enum { MOST = 32 };                        /* inputs, outputs                                 */

/* The tensor of this name in a file, or ones. */
static mlc_tensor *input_of(mlc_ctx *ctx, const mlc_onnx_value *v, const mlc_named *list, int64_t n)
{
    mlc_dims shape = mlc_dims0();
    for (int64_t i = 0; i < n; i++) if (!strcmp(list[i].name, v->name)) return list[i].tensor;
    for (int32_t d = 0; d < v->ndim; d++) shape.v[shape.n++] = v->shape[d] < 0 ? 1 : v->shape[d];
    return mlc_ones(ctx, v->dtype, shape);
}

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Milliseconds of the fastest of some forwards, and of a plan's runs; 0: there is no plan. */
static void measure(mlc_ctx *ctx, mlc_module *net, mlc_tensor **in, int32_t n_in, int32_t n_out,
                    int runs, double ms[2])
{
    mlc_plan_desc d = mlc_plan_desc_make();
    mlc_tensor   *out[MOST];
    ms[0] = ms[1] = 1e30;
    for (int i = 0; i < runs; i++) {
        const double begin = now();
        mlc_scope_begin(ctx);
        mlc_module_forward(net, in, n_in, out, n_out);
        if (mlc_scope_end(ctx) != MLC_OK) return;
        ms[0] = now() - begin < ms[0] ? now() - begin : ms[0];
    }
    d.n_out = n_out;
    mlc_plan *plan = mlc_plan_capture(net, in, n_in, &d);
    for (int i = 0; i < runs && plan; i++) {
        const double begin = now();
        if (mlc_plan_run(plan, in, n_in, NULL, 0) != MLC_OK) break;
        ms[1] = now() - begin < ms[1] ? now() - begin : ms[1];
    }
    if (!plan) printf("no plan: %s\n", mlc_error(ctx));
    mlc_error_clear(ctx);
    mlc_plan_free(plan);
    ms[0] *= 1e3;
    ms[1] *= plan ? 1e3 : 0;
}

/* Prints the outputs, or writes them to a file. */
static void show(mlc_ctx *ctx, mlc_module *net, mlc_tensor **out, int32_t n_out, const char *path)
{
    mlc_named      list[MOST];
    mlc_onnx_value v;
    for (int32_t i = 0; i < n_out && mlc_onnx_output(net, i, &v); i++) {
        list[i].name = v.name;
        list[i].tensor = out[i];
        if (path) continue;
        printf("%s %s:\n", v.name, mlc_shape_of(out[i]));
        mlc_show(out[i]);
    }
    if (path) mlc_safetensors_save(ctx, path, list, n_out, NULL);
}

int main(int argc, char **argv)
{
    const char  *file = NULL, *inputs = NULL, *outputs = NULL;
    int          runs = 10, quiet = 0, status = 0;
    const option list[] = { OPTION_FILE(&file), OPTION_TEXT("--inputs", &inputs),
                            OPTION_TEXT("--outputs", &outputs),
                            OPTION_NUMBER("--runs", &runs, 1, 100000),
                            OPTION_NUMBER("--quiet", &quiet, 0, 1), OPTION_END };
    if (!options_read("onnx_run", HELP, list, argc, argv, &status)) return status;
    mlc_ctx         *ctx = mlc_ctx_create(NULL);
    mlc_tensor      *in[MOST], *out[MOST];
    const mlc_named *given = NULL;
    mlc_onnx_value   v;
    int64_t          n = 0;
    int32_t          n_in = 0, n_out = 0;
    double           ms[2] = { 0, 0 };

    mlc_module *net = mlc_onnx_load(ctx, file ? file : "examples/mlp.onnx", NULL);
    if (net && !quiet) mlc_onnx_print(net, NULL, NULL);
    if (inputs) mlc_safetensors_load(ctx, inputs, &given, &n);
    for (; net && n_in < MOST && mlc_onnx_input(net, n_in, &v); n_in++)
        in[n_in] = input_of(ctx, &v, given, n);
    while (net && n_out < MOST && mlc_onnx_output(net, n_out, &v)) n_out++;
    if (net) mlc_eval_begin(net);
    if (net && mlc_module_forward(net, in, n_in, out, n_out) == MLC_OK) {
        show(ctx, net, out, n_out, outputs);
        measure(ctx, net, in, n_in, n_out, runs, ms);
        printf("%.3f ms a forward, %.3f ms as a plan\n", ms[0], ms[1]);
    }
    const bool failed = mlc_ctx_status(ctx) != MLC_OK;
    if (failed) fprintf(stderr, "%s\n", mlc_error(ctx));
    mlc_ctx_free(ctx);
    return failed;
}
