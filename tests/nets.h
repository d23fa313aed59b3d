/* nets.h -- what tests of modules share: small nets, a class of a user's, a writer that collects */
#ifndef NETS_H
#define NETS_H

#include "mlc_test.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static inline mlc_module *mlp(mlc_ctx *ctx, int64_t in, int64_t hidden, int64_t out)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, in, hidden));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, hidden, out));
    return net;
}

/* A user's class: y = x + child(x) * gain, with a buffer that counts calls. */
static inline mlc_status residual_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                          mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *gain = mlc_module_param(m, "gain"), *calls = mlc_module_param(m, "calls");
    (void)n_in;
    (void)n_out;
    mlc_no_grad_begin(mlc_module_ctx(m));
    mlc_copy_into(calls, mlc_add_scalar(calls, 1));
    mlc_no_grad_end(mlc_module_ctx(m));
    mlc_tensor *y = mlc_mul(mlc_forward(mlc_module_child(m, 0), in[0]), gain);
    out[0] = mlc_add(in[0], y);
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static int released;

static inline void residual_release(mlc_module *m)
{
    released += *(int *)mlc_module_user(m);
}

static const mlc_module_class RESIDUAL = {"Residual", residual_forward, residual_release, NULL,
                                          0, NULL};

static inline mlc_module *residual(mlc_ctx *ctx, mlc_module *inner, double gain)
{
    const int      one = 1;
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(ctx, &RESIDUAL, &one, sizeof one);
    d = mlc_param_desc_make(mlc_dims0());
    d.init = MLC_INIT_CONSTANT;
    d.a = gain;
    mlc_module_declare(m, "gain", &d);
    d.init = MLC_INIT_ZEROS;
    d.buffer = true;
    mlc_module_declare(m, "calls", &d);
    mlc_module_add_named(m, "inner", inner);
    return m;
}

typedef struct sink {
    char   text[8192];
    size_t n;
} sink;

static inline void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    if (s->n + bytes < sizeof s->text)
        memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
}

#endif
