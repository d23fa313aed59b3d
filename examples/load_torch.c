/* load_torch.c -- a network trained in PyTorch, loaded and run without a script in between
 *
 *   python  L = torch.nn.Linear
 *           net = torch.nn.Sequential(L(5, 6), torch.nn.ReLU(), L(6, 3))
 *           safetensors.torch.save_file(net.state_dict(), "net.safetensors")
 *           safetensors.torch.save_file({"x": x, "plain": net(x)}, "outputs.safetensors")
 *   build   make build/load_torch
 *   run     ./load_torch [net.safetensors outputs.safetensors]      from the folder of mlcore.h
 *
 * Without arguments it reads files that PyTorch 2.15 wrote (tests/golden/make_io_goldens.py) and
 * compares the outputs here with those of PyTorch.                                            */
#include "options.h"

static const char HELP[] =
    "usage: load_torch [NET.SAFETENSORS OUTPUTS.SAFETENSORS] [options]\n"
    "  --help         this text\n";

int main(int argc, char **argv)
{
    const char  *weights = "tests/golden/torch_sequential.safetensors";
    const char  *outputs = "tests/golden/torch_outputs.safetensors";
    int          status = 0;
    const option list[] = { OPTION_FILE(&weights), OPTION_FILE(&outputs), OPTION_END };
    if (!options_read("load_torch", HELP, list, argc, argv, &status)) return status;
    mlc_ctx *ctx = mlc_ctx_create(NULL);

    /* The same layers in the same order have PyTorch's names: 0.weight, 0.bias, 2.weight, ... */
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 5, 6), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, 6, 3));
    mlc_load(net, weights);
    mlc_eval_begin(net);                        /* no dropout, no gradients                   */

    mlc_safetensors *file = mlc_safetensors_open(ctx, outputs);
    mlc_tensor      *x = mlc_safetensors_get(file, "x"), *want = mlc_safetensors_get(file, "plain");
    mlc_tensor      *y = mlc_forward(net, x);
    const double     most = mlc_item(mlc_max(mlc_abs(mlc_sub(y, want)), mlc_dims0(), false));
    if (mlc_ctx_status(ctx) != MLC_OK) {
        fprintf(stderr, "%s\n", mlc_error(ctx));
        mlc_ctx_free(ctx);
        return 1;
    }
    mlc_show(y);
    printf("largest difference from PyTorch: %.1e\n", most);
    mlc_ctx_free(ctx);
    return most < 1e-6 ? 0 : 1;
}
