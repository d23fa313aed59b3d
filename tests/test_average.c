/* test_average.c -- tests of section IMPL.OPTIM.AVERAGE: averages, Lookahead, batch norms anew */
#include "bowl.h"
#include "golden/golden.h"

enum { N = 7, MANY = 37, LARGE = 20000 };

/* ---- Lookahead ------------------------------------------------------------------------------ */

static mlc_optim *momentum(mlc_module *m)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(0.02);
    d.momentum = 0.9;
    return mlc_sgd_ex(m, &d);
}

static mlc_optim *adamw(mlc_module *m) { return mlc_adamw(m, 0.05); }

static void check_lookahead(mlc_ctx *ctx, const golden_file *f, const char *name,
                            mlc_optim *(*make)(mlc_module *m), mlc_dtype dtype)
{
    const double tolerance = dtype == MLC_F64 ? 1e-12 : 1e-5;
    double       start[N], want[N];
    mlc_tensor  *w = mlc_cast(golden_find(f, "w"), dtype);
    test_read(golden_find(f, "p0"), start);
    mlc_module *m = bowl(ctx, dtype, N, start);
    mlc_optim  *opt = make(m);
    CHECK_EQ(mlc_optim_lookahead(opt, 5, 0.5), MLC_OK);
    for (int step = 1; step <= 100; step++) {
        CHECK_EQ(descend(m, opt, w), MLC_OK);
        if (step != 1 && step != 10 && step != 100) continue;
        test_read(golden_find(f, "%s.p%d", name, step), want);
        if (!CHECK_VALUES(mlc_module_param(m, "p"), N, want, tolerance, tolerance))
            printf("  %s.p%d\n", name, step);
    }
    mlc_optim_free(opt);
}

TEST(average, lookahead_follows_its_traces)
{
    FOR_EACH_ISA(ctx) {
        golden_file f = golden_open(ctx, "optim_rules.safetensors");
        for (int wide = 0; wide < 2; wide++) {
            const mlc_dtype dtype = wide ? MLC_F64 : MLC_F32;
            check_lookahead(ctx, &f, "lookahead_sgd", momentum, dtype);
            check_lookahead(ctx, &f, "lookahead_adamw", adamw, dtype);
        }
        CHECK_OK(ctx);
    }
}

/* k 0 goes on as without; a second call begins with slow weights as they are. */
TEST(average, lookahead_ends_and_begins_anew)
{
    static const double start[] = {1}, one[] = {1};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *w = test_tensor(ctx, MLC_F64, mlc_dims1(1), one);
    mlc_module         *m = bowl(ctx, MLC_F64, 1, start);
    mlc_optim          *opt = mlc_sgd(m, 0.25);            /* halves p */
    double              p;
    CHECK_EQ(mlc_optim_lookahead(opt, 2, 0.5), MLC_OK);
    descend(m, opt, w);
    CHECK_EQ(mlc_optim_lookahead(opt, 1, 0.25), MLC_OK);   /* from 1/2 */
    descend(m, opt, w);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, 0.5 + 0.25 * (0.25 - 0.5), 0);
    CHECK_EQ(mlc_optim_lookahead(opt, 0, 1), MLC_OK);
    CHECK_EQ(mlc_optim_lookahead(opt, 0, 1), MLC_OK);
    descend(m, opt, w);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, 0.5 * 0.4375, 0);
    CHECK_OK(ctx);
}

/* ---- averages ------------------------------------------------------------------------------- */

/* One line a kind: decay, warm-up, mean, start, every. */
static const mlc_average_desc KINDS[] = {
    {0.75, false, false, 0, 1}, {0.999, true, false, 0, 1}, {0.25, false, false, 3, 2},
    {0, false, true, 0, 1},     {0, false, true, 4, 3},     {0.875, true, false, 2, 1},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

/* What the description of struct mlc_average_desc says of update t, element by element. */
static void average_want(const mlc_average_desc *d, int64_t t, const double *p, int64_t n,
                         double *a)
{
    if (t < d->start || (t - d->start) % d->every != 0) return;
    const double i = (double)((t - d->start) / d->every);
    double       decay = d->decay;
    if (d->warmup) decay = fmin(decay, (1 + i) / (10 + i));
    if (d->mean) decay = i / (i + 1);
    if (i == 0) decay = 0;
    for (int64_t k = 0; k < n; k++) a[k] = decay * a[k] + (1 - decay) * p[k];
}

/* All kinds at once, each read in the parameters' place after each step, which does no harm. */
static void check_averages(mlc_ctx *ctx, mlc_dtype dtype, int64_t n)
{
    const double tolerance = dtype == MLC_F64 ? 1e-13 : dtype == MLC_F32 ? 1e-6 : 0.005;
    double      *p = (double *)malloc((size_t)(N_KINDS + 3) * (size_t)n * sizeof *p);
    double      *want = p + n, *weight = want + N_KINDS * n, *after = weight + n;
    mlc_average *averages[N_KINDS];
    for (int64_t i = 0; i < n; i++) p[i] = test_random(1, i, -2, 2), weight[i] = 0.1;
    for (int64_t i = 0; i < n; i += 2) weight[i] = 0.5;
    mlc_tensor *w = test_tensor(ctx, dtype, mlc_dims1(n), weight);
    mlc_module *m = bowl(ctx, dtype == MLC_BF16 ? MLC_F32 : dtype, n, p);
    CHECK_EQ(mlc_module_to(m, dtype), MLC_OK);
    mlc_tensor *t = mlc_module_param(m, "p");
    mlc_optim  *opt = mlc_sgd(m, 0.2);
    test_read(t, p);
    for (int k = 0; k < N_KINDS; k++) {
        averages[k] = mlc_average_ex(opt, &KINDS[k]);
        memcpy(want + k * n, p, (size_t)n * sizeof *p);
    }
    for (int64_t step = 1; step <= 12; step++) {
        CHECK_EQ(descend(m, opt, w), MLC_OK);
        test_read(t, p);
        for (int k = 0; k < N_KINDS; k++) {
            average_want(&KINDS[k], step, p, n, want + k * n);
            CHECK_EQ(mlc_average_swap(averages[k], true), MLC_OK);
            if (!CHECK_VALUES(t, n, want + k * n, tolerance, tolerance))
                printf("  kind %d, step %d\n", k, (int)step);
            CHECK_EQ(mlc_average_swap(averages[k], false), MLC_OK);
        }
        test_read(t, after);
        CHECK(memcmp(p, after, (size_t)n * sizeof *p) == 0);
    }
    mlc_optim_free(opt);
    free(p);
}

TEST(average, averages_are_what_they_are_said_to_be)
{
    FOR_EACH_ISA(ctx) {
        check_averages(ctx, MLC_F32, MANY);
        check_averages(ctx, MLC_F64, MANY);
        check_averages(ctx, MLC_BF16, MANY);
        CHECK_OK(ctx);
    }
    mlc_ctx *ctx = test_ctx();
    check_averages(ctx, MLC_F32, LARGE);
    check_averages(ctx, MLC_BF16, LARGE);
    CHECK_OK(ctx);
}

TEST(average, the_short_forms_are_those_of_descs)
{
    static const double start[] = {1}, one[] = {1};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *w = test_tensor(ctx, MLC_F64, mlc_dims1(1), one);
    mlc_module         *m = bowl(ctx, MLC_F64, 1, start);
    mlc_optim          *opt = mlc_sgd(m, 0.25);            /* 1/2, 1/4, 1/8 */
    mlc_average        *ema = mlc_ema(opt, 0.5), *swa = mlc_swa(opt, 1, 2);
    mlc_average        *plain = mlc_average_ex(opt, NULL);
    double              p;
    for (int i = 0; i < 3; i++) descend(m, opt, w);
    mlc_average_swap(ema, true);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, 0.125 + 0.125 / 2 + 0.5 / 4, 1e-15);
    mlc_average_swap(ema, false);
    mlc_average_swap(swa, true);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, (0.5 + 0.125) / 2, 1e-15);
    mlc_average_swap(swa, false);
    mlc_average_swap(plain, true);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, 1 - 1e-4 * (0.5 + 0.75 + 0.875), 1e-7);
    CHECK_OK(ctx);
}

/* A run with averages and Lookahead, read at its end; what happens to the module on the way and
 * what a scaler skips is as if it had not happened. */
typedef struct run { bool storm, turns, swaps; mlc_dtype dtype; } run;

static void scaled_step(mlc_module *net, mlc_optim *opt, int step, double times)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    const mlc_dtype dtype = mlc_module_param(net, "0.weight")->dtype;
    mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(4, 5), (uint64_t)step, -1, 1);
    mlc_tensor *y = mlc_forward(net, x);
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mul_scalar(mlc_mean_all(mlc_mul(y, y)), times)), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

static void run_turn(mlc_module *net, mlc_optim *opt, mlc_average *a, const run *r, int step)
{
    for (int k = 0; r->storm && step == 4 && k < 3; k++)
        scaled_step(net, opt, 50 + k, k ? INF : NO_NUMBER);
    if (r->turns && step == 3)
        CHECK_EQ(mlc_optim_group(opt, "*.bias", NULL), MLC_OK);
    if (r->turns && step == 6)
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    if (!r->swaps) return;
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    if (r->turns)
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
}

static int64_t run_make(mlc_ctx *ctx, const run *r, double *out)
{
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 5, 7), mlc_nn_tanh(ctx),
                                     mlc_nn_linear(ctx, 7, 3));
    int64_t n = 0;
    CHECK_EQ(mlc_module_to(net, r->dtype), MLC_OK);
    mlc_optim *opt = mlc_adamw(net, 0.05);
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_lookahead(opt, 3, 0.5), MLC_OK);
    mlc_average *a[] = {mlc_ema(opt, 0.75), mlc_swa(opt, 2, 3)};
    for (int step = 0; step < 9; step++) {
        run_turn(net, opt, a[step % 2], r, step);
        scaled_step(net, opt, step, 1);
    }
    for (int k = 0; k < 3; k++) {      /* parameters, then both averages */
        mlc_param_iter it = mlc_param_iter_make(net);
        if (k) CHECK_EQ(mlc_average_swap(a[k - 1], true), MLC_OK);
        for (; mlc_param_next(&it); n += mlc_numel(it.tensor)) test_read(it.tensor, out + n);
        if (k) CHECK_EQ(mlc_average_swap(a[k - 1], false), MLC_OK);
    }
    mlc_optim_free(opt);
    mlc_module_free(net);
    return n;
}

TEST(average, skipped_steps_surgery_and_swaps_change_no_bit)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16};
    double                 want[400], got[400];
    for (int d = 0; d < 3; d++)
        for (int form = 0; form < 5; form++) {
            const run plain = {false, false, false, dtypes[d]};
            const run other = {form == 0 || form == 4, form == 1 || form > 2, form > 1, dtypes[d]};
            const int64_t n = run_make(test_ctx(), &plain, want);
            CHECK_EQ(run_make(test_ctx(), &other, got), n);
            CHECK(n == 3 * 66 && want[0] != want[66] && want[66] != want[132]);
            if (!CHECK(memcmp(want, got, (size_t)n * sizeof *want) == 0))
                printf("  %s, form %d\n", mlc_dtype_name(dtypes[d]), form);
        }
}

/* All words: of what is no NaN both come back; a NaN stays one. */
TEST(average, what_changes_places_in_16_bits_comes_back)
{
    enum { WORDS = 65536 };
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    static uint16_t       p[WORDS];
    static uint32_t       avg[WORDS];
    struct mlc_k_average  a;
    memset(&a, 0, sizeof a);
    a.dtype = MLC_BF16, a.n = WORDS, a.p = p, a.avg = avg;
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        int64_t            bad = 0;
        for (int l = 0; l < 6; l++) {
            for (uint32_t i = 0; i < WORDS; i++) p[i] = (uint16_t)~i, avg[i] = i << 16 | low[l];
            a.part = MLC_AVERAGE_ON;
            CHECK_EQ(k->average(NULL, &a), MLC_OK);
            for (uint32_t i = 0; i < WORDS; i++) {
                const double x = test_get(p, MLC_BF16, i);
                const uint32_t was = i << 16 | low[l];
                float y;
                memcpy(&y, &was, sizeof y);
                if (y != y) bad += x == x;
                else bad += fabs((double)y) < 3e38 && fabs(x - (double)y) > 0.004 * fabs(x) + 5e-41;
            }
            a.part = MLC_AVERAGE_OFF;
            CHECK_EQ(k->average(NULL, &a), MLC_OK);
            for (uint32_t i = 0; i < WORDS; i++) {
                const bool nan = ((i << 16 | low[l]) & 0x7fffffffu) > 0x7f800000u;
                bad += p[i] != (uint16_t)~i || (!nan && avg[i] != (i << 16 | low[l]));
                bad += nan && (avg[i] & 0x7fffffffu) <= 0x7f800000u;
            }
        }
        CHECK_EQ(bad, 0);
        a.dtype = MLC_F16;
        CHECK_EQ(k->average(NULL, &a), MLC_ERR_UNSUPPORTED);
        a.dtype = MLC_BF16;
    }
}

TEST(average, kernels_average_nothing_that_was_skipped)
{
    float                  p[] = {1, 2, 3}, avg[] = {5, 6, 7};
    struct mlc_guard_state state = {{1, 0, 0, 0}, 0, 4};
    struct mlc_step_state  step;
    struct mlc_k_average   a;
    int64_t                error = 0;
    memset(&step, 0, sizeof step);
    memset(&a, 0, sizeof a);
    a.n = 3, a.p = p, a.avg = avg, a.share = 0.5, a.every = 2, a.state = &state, a.step = &step;
    a.dtype = MLC_F32, a.error = &error;
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        step.skip = 1;
        CHECK_EQ(k->average(NULL, &a), MLC_OK);
        step.skip = 0, error = 258;
        CHECK_EQ(k->average(NULL, &a), MLC_OK);
        error = 0, state.steps = 5;
        CHECK_EQ(k->average(NULL, &a), MLC_OK);
        a.base = 8;
        CHECK_EQ(k->average(NULL, &a), MLC_OK);
        CHECK(avg[0] == 5 && avg[1] == 6 && avg[2] == 7);
        a.base = 0, state.steps = 4;
        CHECK_EQ(k->average(NULL, &a), MLC_OK);
        CHECK(avg[0] == 3 && avg[1] == 4 && avg[2] == 5);
        avg[0] = 5, avg[1] = 6, avg[2] = 7;
    }
}

/* ---- what is refused, and what goes with what ------------------------------------------------ */

TEST(average, an_average_is_not_trained)
{
    static const double start[] = {1, 2}, weight[] = {1, 1};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *w = test_tensor(ctx, MLC_F32, mlc_dims1(2), weight);
    mlc_module         *m = bowl(ctx, MLC_F32, 2, start);
    mlc_optim          *opt = mlc_schedule_free_sgd(m, 0.1);
    mlc_average        *a = mlc_ema(opt, 0.5), *b = mlc_swa(opt, 1, 1);
    double              p[2], q[2];
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    test_read(mlc_module_param(m, "p"), p);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);           /* nothing to do */
    CHECK_EQ(mlc_average_swap(b, false), MLC_OK);
    CHECK_EQ(descend(m, opt, w), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "call mlc_average_swap(average, false)");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_average_swap(b, true), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "average_swap: the parameters are another average");
    mlc_error_clear(ctx);
    CHECK(mlc_ema(opt, 0.5) == NULL);
    CHECK_HAS(mlc_error(ctx), "average: the parameters are an average");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_lookahead(opt, 5, 0.5), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_mean(opt, true), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "optim_mean: the parameters are an average");
    mlc_error_clear(ctx);
    test_read(mlc_module_param(m, "p"), q);
    CHECK(memcmp(p, q, sizeof p) == 0);
    mlc_average_free(a);               /* what goes on is the average */
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_optim_mean(opt, true), MLC_OK);
    CHECK_EQ(mlc_average_swap(b, true), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "average_swap: the parameters are a mean");
    mlc_error_clear(ctx);
    mlc_average_free(NULL);
    CHECK_OK(ctx);
}

TEST(average, steps_inside_backward_wait_while_an_average_is_on)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_module  *net = mlc_nn_linear(ctx, 128, 128);
    mlc_optim   *opt = mlc_sgd(net, 0.1);
    mlc_average *a = mlc_ema(opt, 0.5);
    mlc_tensor  *x = mlc_full(ctx, MLC_F32, mlc_dims2(2, 128), 0.5);
    mlc_tensor  *some = mlc_select(mlc_module_param(net, "weight"), 0, 5);
    double       p[2][128];
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    for (int step = 0; step < 3; step++) {
        if (step == 1) CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
        if (step) test_read(some, p[0]);
        mlc_scope_begin(ctx);
        mlc_backward(mlc_mean_all(mlc_forward(net, x)));
        if (step) test_read(some, p[1]);
        if (step == 1) CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0);
        if (step == 2 && test_on_host()) CHECK(memcmp(p[0], p[1], sizeof p[0]) != 0);
        CHECK_EQ(mlc_optim_step(opt), step == 1 ? MLC_ERR_STATE : MLC_OK);
        mlc_scope_end(ctx);
        if (step == 1) CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
        mlc_optim_zero_grad(opt);
    }
    CHECK_OK(ctx);
}

/* The word of a bf16 parameter that is away could not be told from an average. */
TEST(average, a_module_gets_no_other_width_while_an_average_is_on)
{
    static const double start[] = {1, 2}, weight[] = {1, 1};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 2, start);
    CHECK_EQ(mlc_module_to(m, MLC_BF16), MLC_OK);
    mlc_tensor         *w = test_tensor(ctx, MLC_F32, mlc_dims1(2), weight);
    mlc_optim          *opt = mlc_sgd(m, 0.25);
    mlc_average        *a = mlc_ema(opt, 0.5);
    double              p[2];
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    CHECK_EQ(mlc_module_to(m, MLC_F32), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "average_swap: 'p' was bf16 when it became an average, and is f32");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_module_to(m, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
    CHECK_EQ(mlc_module_to(m, MLC_F32), MLC_OK);           /* else it may */
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    test_read(mlc_module_param(m, "p"), p);
    CHECK(p[0] == 0.75 && p[1] == 1.5);
    CHECK_EQ(mlc_module_to(m, MLC_F64), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
    test_read(mlc_module_param(m, "p"), p);
    CHECK(p[0] == 0.5 && p[1] == 1);
    CHECK_OK(ctx);
}

static double range_step(void *user)
{
    mlc_optim **of = (mlc_optim **)user;
    mlc_optim_lr(of[0]);
    return 1;
}

static double averaging_step(void *user)
{
    mlc_optim **opt = (mlc_optim **)user;
    CHECK(mlc_ema(*opt, 0.9) == NULL);
    return 0;
}

TEST(average, a_range_test_leaves_averages_as_they_are)
{
    static const double start[] = {1}, one[] = {1};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *w = test_tensor(ctx, MLC_F64, mlc_dims1(1), one);
    mlc_module         *m = bowl(ctx, MLC_F64, 1, start);
    mlc_optim          *opt = mlc_sgd(m, 0.25);
    mlc_average        *a = mlc_ema(opt, 0.5);
    double              rates[4], losses[4], p;
    mlc_lr_range_desc   d = mlc_lr_range_desc_make(rates, losses, 4);
    descend(m, opt, w);
    CHECK_EQ(mlc_lr_range(opt, &d, range_step, &opt, NULL, NULL), MLC_OK);
    CHECK_EQ(mlc_lr_range(opt, &d, averaging_step, &opt, NULL, NULL), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "mlc_lr_range is trying rates");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, 0.75, 0);
    CHECK_OK(ctx);
}

/* The list of averages is set aside then. */
typedef struct meddler { mlc_optim *opt; mlc_average *a; int call; } meddler;

static double meddling_step(void *user)
{
    meddler *m = (meddler *)user;
    if (m->call == 0) mlc_average_free(m->a);
    else CHECK_EQ(mlc_average_swap(m->a, m->call == 1), MLC_ERR_STATE);
    return 1;
}

TEST(average, a_range_test_has_no_averages_to_free_or_to_swap)
{
    static const double start[] = {1}, one[] = {1};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *w = test_tensor(ctx, MLC_F64, mlc_dims1(1), one);
    mlc_module         *net = bowl(ctx, MLC_F64, 1, start);
    double              rates[4], losses[4], p;
    mlc_lr_range_desc   d = mlc_lr_range_desc_make(rates, losses, 4);
    meddler             m = {mlc_sgd(net, 0.25), NULL, 0};
    m.a = mlc_ema(m.opt, 0.5);
    for (; m.call < 3; m.call++) {
        if (m.call == 2) CHECK_EQ(mlc_average_swap(m.a, true), MLC_OK);
        CHECK_EQ(mlc_lr_range(m.opt, &d, meddling_step, &m, NULL, NULL), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), m.call ? "average_swap: mlc_lr_range is trying rates"
                                         : "average_free: mlc_lr_range is trying rates");
        mlc_error_clear(ctx);
    }
    CHECK_EQ(mlc_average_swap(m.a, false), MLC_OK);
    CHECK_EQ(descend(net, m.opt, w), MLC_OK);
    CHECK_EQ(mlc_average_swap(m.a, true), MLC_OK);
    test_read(mlc_module_param(net, "p"), &p);
    CHECK_NEAR(p, 0.75, 0);
    CHECK_OK(ctx);
}

/* Through another tree: the optimizer's own tree is laid out as before, and has an entry. */
TEST(average, a_parameter_that_another_tree_binds_is_not_written)
{
    static const double start[] = {1, 2}, one[] = {1, 1};
    static const double bound[] = {3, 4};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *w = test_tensor(ctx, MLC_F64, mlc_dims1(2), one);
    mlc_module  *m = bowl(ctx, MLC_F64, 2, start), *other = mlc_nn_sequential(ctx);
    mlc_optim   *opt = mlc_sgd(m, 0.25);
    mlc_average *a = mlc_ema(opt, 0.5);
    double       p[2];
    CHECK_EQ(mlc_module_tie(other, "shared", mlc_module_param(m, "p")), MLC_OK);
    CHECK_EQ(mlc_module_build(other), MLC_OK);
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_module_bind(other, "shared", bound),
             test_on_host() ? MLC_OK : MLC_ERR_UNSUPPORTED);
    mlc_error_clear(ctx);
    if (!test_on_host()) return;
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    test_read(mlc_module_param(m, "p"), p);
    CHECK(p[0] == 3 && p[1] == 4);
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
    CHECK_EQ(mlc_optim_lookahead(opt, 1, 0.5), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    test_read(mlc_module_param(m, "p"), p);
    CHECK(p[0] == 3 && p[1] == 4);
    CHECK_OK(ctx);
}

TEST(average, what_is_frozen_while_an_average_is_on_keeps_its_trained_values)
{
    static const double start[] = {1}, one[] = {1};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *w = test_tensor(ctx, MLC_F64, mlc_dims1(1), one);
    mlc_module  *m = bowl(ctx, MLC_F64, 1, start);
    mlc_optim   *opt = mlc_sgd(m, 0.25);
    mlc_average *a = mlc_ema(opt, 0.5);
    double       p;
    CHECK_EQ(descend(m, opt, w), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    CHECK_EQ(mlc_module_freeze(m, "p", true), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(m), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "'p' was frozen, and the module built, while an average is on");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_module_freeze(m, "p", false), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, false), MLC_OK);
    test_read(mlc_module_param(m, "p"), &p);
    CHECK_NEAR(p, 0.5, 0);
    CHECK_EQ(mlc_module_freeze(m, "p", true), MLC_OK);     /* else it may */
    CHECK_EQ(mlc_module_rebuild(m), MLC_OK);
    CHECK_EQ(mlc_average_swap(a, true), MLC_OK);
    CHECK_OK(ctx);
}

TEST(average, numbers_that_make_no_sense_are_refused)
{
    static const double start[] = {1};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *m = bowl(ctx, MLC_F32, 1, start);
    mlc_optim          *opt = mlc_sgd(m, 0.1);
    CHECK(mlc_ema(opt, 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "average: decay 1, start 0, every 1: decay must be in [0, 1)");
    mlc_error_clear(ctx);
    CHECK(mlc_ema(opt, NO_NUMBER) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_swa(opt, -1, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_swa(opt, 0, 0) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_lookahead(opt, -1, 0.5), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "optim_lookahead: k -1, alpha 0.5");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_lookahead(opt, 5, 0), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_lookahead(opt, 5, NO_NUMBER), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK(mlc_ema(NULL, 0.5) == NULL && mlc_swa(NULL, 0, 1) == NULL);
    CHECK_EQ(mlc_average_swap(NULL, true), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_lookahead(NULL, 5, 0.5), MLC_ERR_ARG);
    mlc_average *a = mlc_ema(opt, 0.5);
    mlc_module_free(m);
    CHECK_EQ(mlc_average_swap(a, true), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "module was freed");
    mlc_error_clear(ctx);
}

/* ---- batch norms ----------------------------------------------------------------------------- */

/* Of two channels, in batches of different sizes: each counts alike. */
TEST(average, batch_norms_take_the_mean_of_all_batches)
{
    static const double first[] = {1, 10, 3, 20}, second[] = {0, 5, 6, 5, 9, 5};
    mlc_ctx            *ctx = test_ctx();
    mlc_module         *net = MLC_SEQUENTIAL(ctx, mlc_nn_batch_norm(ctx, 2), mlc_nn_relu(ctx));
    mlc_tensor         *x[2] = {test_tensor(ctx, MLC_F32, mlc_dims2(2, 2), first),
                                test_tensor(ctx, MLC_F32, mlc_dims2(3, 2), second)};
    mlc_tensor *y[3], *mean = mlc_module_param(net, "0.running_mean");
    mlc_tensor *var = mlc_module_param(net, "0.running_var");
    const double means[] = {(2.0 + 5) / 2, (15.0 + 5) / 2}, vars[] = {(2.0 + 21) / 2, 50.0 / 2};
    const double once[] = {2, 15}, kept[] = {0.9 * 3.5 + 0.2, 0.9 * 10 + 1.5};
    mlc_forward(net, x[0]);            /* what was before is forgotten */
    mlc_module_train(net, false);
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(mlc_nn_refresh_batch_norm(net, true), MLC_OK);
        CHECK_EQ((int64_t)mlc_item(mlc_module_param(net, "0.num_batches_tracked")), 0);
        mlc_no_grad_begin(ctx);
        mlc_forward(net, x[0]);
        CHECK_VALUES(mean, 2, once, 0, 1e-6);
        mlc_fill_(mlc_module_param(net, "0.num_batches_tracked"), 1);      /* as a load does   */
        mlc_forward(net, x[1]);
        mlc_no_grad_end(ctx);
        CHECK_EQ(mlc_nn_refresh_batch_norm(net, false), MLC_OK);
        CHECK_VALUES(mean, 2, means, 0, 1e-6);
        CHECK_VALUES(var, 2, vars, 0, 1e-6);
        CHECK_EQ((int64_t)mlc_item(mlc_module_param(net, "0.num_batches_tracked")), 2);
    }
    y[0] = mlc_forward(net, x[0]);     /* in evaluation: they are used and stay */
    CHECK_VALUES(mean, 2, means, 0, 1e-6);
    test_read(y[0], (double[4]){0});
    mlc_module_train(net, true);
    mlc_forward(net, x[0]);
    CHECK_VALUES(mean, 2, kept, 0, 1e-6);
    CHECK_EQ(mlc_nn_refresh_batch_norm(NULL, true), MLC_ERR_ARG);
    CHECK_OK(ctx);
}
