/* export.c -- writes networks as C files that need no library, for run.sh
 *
 *   run     ./export FOLDER: NAME_f32.c and NAME_int8.c of MLPerf Tiny's networks and a 64-32-10,
 *           and xor_step.c, a training step
 *
 * Runs on the computer that compiles; exported.c runs them on the board. */
#include "tiny.h"

#include <stdio.h>

static mlc_status cross_entropy(mlc_ctx *ctx, void *net, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)n_in, (void)n_out;
    out[0] = mlc_cross_entropy(mlc_forward((mlc_module *)net, in[0]), in[1]);
    return mlc_ctx_status(ctx);
}

/* A step of 2-8-2 by SGD, of batch 4. */
static mlc_status write_step(mlc_ctx *ctx, const char *path)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 2, 8), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, 8, 2));
    mlc_tensor *in[2] = { mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 2)),
                          mlc_zeros(ctx, MLC_I64, mlc_dims1(4)) };
    mlc_optim  *sgd = mlc_sgd(net, 0.5);
    mlc_plan   *p = mlc_plan_capture_step(sgd, cross_entropy, net, in, 2, NULL);
    if (p) mlc_plan_write_step_c(p, path, NULL);
    return mlc_ctx_status(ctx);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: export FOLDER\n");
        return 2;
    }
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    for (int i = 0; i < 2 * TINY_NETS; i++) {
        const bool integers = i % 2 != 0;
        char       path[512];
        snprintf(path, sizeof path, "%s/%s_%s.c", argv[1], tiny_nets[i / 2].name,
                 integers ? "int8" : "f32");
        if (tiny_write(ctx, &tiny_nets[i / 2], integers, path) != MLC_OK) {
            fprintf(stderr, "export: %s: %s\n", path, mlc_error(ctx));
            return 1;
        }
    }
    char path[512];
    snprintf(path, sizeof path, "%s/xor_step.c", argv[1]);
    if (write_step(ctx, path) != MLC_OK) {
        fprintf(stderr, "export: %s: %s\n", path, mlc_error(ctx));
        return 1;
    }
    mlc_ctx_free(ctx);
    return 0;
}
