/* bowl.h -- for tests of optimizers: a module with one parameter p, whose forward is sum(w p^2) */
#ifndef BOWL_H
#define BOWL_H

#include "mlc_test.h"

static mlc_status bowl_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                               mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *p = mlc_module_param(m, "p");
    (void)n_in;
    (void)n_out;
    out[0] = mlc_sum(mlc_mul(in[0], mlc_mul(p, p)), mlc_dims0(), false);
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static const mlc_module_class BOWL = {"Bowl", bowl_forward, NULL, NULL, 0, NULL};

/* p has the shape dims. */
static inline mlc_module *bowl_of(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims dims,
                                  const double *start)
{
    mlc_param_desc d;
    mlc_module    *m = mlc_module_create(ctx, &BOWL, NULL, 0);
    d = mlc_param_desc_make(dims);
    d.dtype = dtype;
    d.has_dtype = true;
    mlc_tensor *p = mlc_module_declare(m, "p", &d);
    mlc_module_build(m);
    mlc_copy_into(p, test_tensor(ctx, dtype, dims, start));
    return m;
}

static inline mlc_module *bowl(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, const double *start)
{
    return bowl_of(ctx, dtype, mlc_dims1(n), start);
}

/* One step on sum(w p^2). */
static mlc_status descend(mlc_module *m, mlc_optim *opt, mlc_tensor *w)
{
    mlc_ctx *ctx = mlc_module_ctx(m);
    mlc_scope_begin(ctx);
    mlc_backward(mlc_forward(m, w));
    mlc_status s = mlc_optim_step(opt);
    mlc_scope_end(ctx);
    return s;
}

#endif
