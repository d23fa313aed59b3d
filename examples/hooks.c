/* hooks.c -- a training step: operations, microseconds and bytes by module, gradients as they come
 *
 *   build   make build/hooks
 *   run     ./hooks                                                                           */
#include "options.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct row { char module[32]; int calls; double us; long long bytes; } row;
typedef struct profile { row rows[8]; int n, at; double start; } profile;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}
static void op_begin(void *user, const mlc_op_event *e)
{
    profile *p = (profile *)user;
    for (p->at = 0; p->at < p->n && strcmp(p->rows[p->at].module, e->module) != 0;) p->at++;
    if (p->at == p->n) snprintf(p->rows[p->n++].module, sizeof p->rows[0].module, "%s", e->module);
    p->rows[p->at].calls++;
    p->start = now();
}
static void op_end(void *user, const mlc_op_event *e)
{
    profile *p = (profile *)user;
    p->rows[p->at].us += e->status == MLC_OK ? now() - p->start : 0.0;
}
static void memory(void *user, mlc_mem mem, int64_t bytes)
{
    profile *p = (profile *)user;
    if (mem != MLC_MEM_OBJECT && bytes > 0) p->rows[p->at].bytes += bytes;
}
static void grad_ready(void *user, const char *name, mlc_tensor *grad)
{
    (void)user;
    printf("%-12s norm %.4f\n", name, mlc_item(mlc_norm(grad, 2, mlc_dims0(), false)));
}

int main(int argc, char **argv)
{
    static const char   help[] = "usage: hooks [options]\n  --help         this text\n";
    static const option none[] = { OPTION_END };
    int status = 0;
    if (!options_read("hooks", help, none, argc, argv, &status)) return status;
    profile     p = {{{"", 0, 0, 0}}, 1, 0, 0};            /* row 0: outside of modules */
    mlc_hooks   hooks = {&p, op_begin, op_end, grad_ready, memory};
    mlc_ctx    *ctx = mlc_ctx_create(NULL);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add_named(net, "body", mlc_nn_linear(ctx, 64, 128));
    mlc_module_add_named(net, "act", mlc_nn_relu(ctx));
    mlc_module_add_named(net, "head", mlc_nn_linear(ctx, 128, 10));
    mlc_tensor *x = mlc_randn(ctx, MLC_F32, mlc_dims2(32, 64));
    mlc_hooks_add(ctx, &hooks);
    mlc_backward(mlc_mean_all(mlc_forward(net, x)));
    for (row *r = p.rows; r < p.rows + p.n; r++)
        printf("%-5s%3d operations%9.1f us%8lld bytes\n", r->module, r->calls, r->us, r->bytes);
    mlc_ctx_free(ctx);
}
