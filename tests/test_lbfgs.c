/* test_lbfgs.c -- tests of IMPL.OPTIM.LBFGS: L-BFGS with and without a line search */
#include "bowl.h"
#include "golden/golden.h"
#include "watch.h"

enum { N = 7 };

/* ---- losses --------------------------------------------------------------------------------- */

/* Sum over i of 100 (p[i+1] - p[i]^2)^2 + (1 - p[i])^2. */
static mlc_status valley_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    mlc_tensor   *p = mlc_module_param(m, "p");
    const int64_t n = p->shape[0];
    mlc_tensor   *a = mlc_slice(p, 0, 0, n - 1, 1), *b = mlc_slice(p, 0, 1, n, 1);
    mlc_tensor   *far = mlc_sub(b, mlc_mul(a, a)), *off = mlc_rsub_scalar(a, 1);
    (void)in;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_sum_all(mlc_add(mlc_mul_scalar(mlc_mul(far, far), 100), mlc_mul(off, off)));
    return out[0] ? MLC_OK : mlc_ctx_status(mlc_module_ctx(m));
}

static const mlc_module_class VALLEY = {"Valley", valley_forward, NULL, NULL, 0, NULL};

static mlc_module *valley(mlc_ctx *ctx, mlc_dtype dtype, const double *start)
{
    mlc_module    *m = mlc_module_create(ctx, &VALLEY, NULL, 0);
    mlc_param_desc d = mlc_param_desc_make(mlc_dims1(N));
    d.dtype = dtype;
    d.has_dtype = true;
    mlc_tensor *p = mlc_module_declare(m, "p", &d);
    mlc_module_build(m);
    mlc_copy_into(p, test_tensor(ctx, dtype, mlc_dims1(N), start));
    return m;
}

typedef struct batch {
    mlc_module *m;
    mlc_tensor *x;
    int         calls, bad, worse;     /* the loss of call number bad is NaN; worse fails      */
} batch;

static mlc_tensor *loss_of(void *user)
{
    batch *b = (batch *)user;
    b->calls++;
    if (b->calls == b->worse) {
        mlc_raise(mlc_module_ctx(b->m), MLC_ERR_VALUE, "no data");
        return NULL;
    }
    mlc_tensor *y = mlc_forward(b->m, b->x);
    return b->calls == b->bad ? mlc_mul_scalar(y, NAN) : y;
}

/* ---- golden/make_optim_goldens.py ----------------------------------------------------------- */

static void near_golden(const golden_file *f, mlc_module *m, const char *name, int call,
                        double tolerance)
{
    double want[N];
    test_read(golden_find(f, "%s.p%d", name, call), want);
    if (!CHECK_VALUES(mlc_module_param(m, "p"), N, want, tolerance, tolerance))
        printf("  %s.p%d\n", name, call);
}

/* In f32 paths part after some calls, as rounding decides: 3 of 10 are compared.                */
static void check_trace(mlc_ctx *ctx, const golden_file *f, bool search, mlc_dtype dtype)
{
    const char    *name = search ? "lbfgs" : "lbfgs_fixed";
    const bool     f64 = dtype == MLC_F64;
    double         start[N], loss, losses[10], evaluations[10];
    mlc_lbfgs_desc d = mlc_lbfgs_desc_make(search ? 1 : 0.5);
    batch          b = {NULL, mlc_cast(golden_find(f, "w"), dtype), 0, 0, 0};
    d.max_iter = 4;
    d.max_eval = 5;
    d.history = 5;
    d.strong_wolfe = search;
    test_read(search ? golden_find(f, "lbfgs.p0") : golden_find(f, "p0"), start);
    test_read(golden_find(f, "%s.losses", name), losses);
    test_read(golden_find(f, "%s.evaluations", name), evaluations);
    b.m = search ? valley(ctx, dtype, start) : bowl(ctx, dtype, N, start);
    mlc_optim *opt = mlc_lbfgs_ex(b.m, &d);
    for (int call = 1; call <= (f64 ? 10 : 3); call++) {
        CHECK_EQ(mlc_optim_step_with(opt, loss_of, &b, &loss), MLC_OK);
        CHECK_NEAR(loss, losses[call - 1], (f64 ? 1e-12 : 1e-5) * (1 + losses[call - 1]));
        CHECK_EQ(b.calls, (int)evaluations[call - 1]);
        if (call == 1 || call == 3 || call == 10)
            near_golden(f, b.m, name, call, f64 ? 1e-12 : 1e-5);
    }
    mlc_optim_free(opt);
}

TEST(lbfgs, ten_steps_follow_the_traces_of_pytorch)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "optim_rules.safetensors");
        for (int k = 0; k < 4; k++) check_trace(ctx, &f, k % 2, k / 2 ? MLC_F64 : MLC_F32);
        CHECK_OK(ctx);
    }
}
