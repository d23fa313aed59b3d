/* test_kernels_optim.c -- kernels of optimizers, on every ISA level */
#define _DEFAULT_SOURCE
#include "guarded.h"

/* ---- optimizer ----------------------------------------------------------------------------- */

static const struct mlc_step_state STEP = {0.1, 0.02, 0.19, 0.0199, 0.5, 0, 0, 5, 0, 1,
                                           {0}, {0}};

static void optim_args(struct mlc_k_optim *a, mlc_rule rule, mlc_dtype dtype, int64_t n, bool flag)
{
    memset(a, 0, sizeof *a);
    a->rule = rule;
    a->cpu = mlc_cpu_rule(rule);
    a->dtype = dtype;
    a->n = n;
    a->p = guarded_rand(0, dtype, n, 61, -1, 1);
    a->g = guarded_rand(1, dtype, n, 62, -1, 1);
    a->n_state = rule == MLC_RULE_ADAM ? 2 : 1;
    a->state[0] = guarded_rand(2, dtype, n, 63, -1, 1);
    a->state[1] = guarded_rand(3, dtype, n, 64, 0, 1);
    a->step = &STEP;
    const double sgd[8] = {0.9, 0, flag}, adam[8] = {0.9, 0.99, 1e-8, flag};
    memcpy(a->coefs, rule == MLC_RULE_ADAM ? adam : sgd, sizeof a->coefs);
}

/* The formulas of torch.optim, one element, in double.                                        */
static double optim_want(const struct mlc_k_optim *a, double p, double g, double m, double v)
{
    const struct mlc_step_state *s = a->step;
    double d = s->grad_scale * g;
    if (a->rule == MLC_RULE_SGD) {
        d += s->weight_decay * p;
        m = a->coefs[0] * m + d;
        return p - s->lr * (a->coefs[2] != 0 ? d + a->coefs[0] * m : m);
    }
    if (a->coefs[3] != 0)
        p *= 1 - s->lr * s->weight_decay;
    else
        d += s->weight_decay * p;
    m = a->coefs[0] * m + (1 - a->coefs[0]) * d;
    v = a->coefs[1] * v + (1 - a->coefs[1]) * d * d;
    return p - s->lr / s->bias1 * m / (sqrt(v) / sqrt(s->bias2) + a->coefs[2]);
}

static bool optim_agrees(const mlc_kernels *k, mlc_rule rule, mlc_dtype dtype, int64_t n, bool flag)
{
    const double       tol = dtype == MLC_F32 ? 1e-6 : 1e-13;
    struct mlc_k_optim a;
    double             want[70];
    optim_args(&a, rule, dtype, n, flag);
    for (int64_t i = 0; i < n; i++)
        want[i] = optim_want(&a, get(a.p, dtype, i), get(a.g, dtype, i), get(a.state[0], dtype, i),
                             get(a.state[1], dtype, i));
    if (k->optim(NULL, &a) != MLC_OK)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(get(a.p, dtype, i) - want[i]) <= tol * (1 + fabs(want[i])))) {
            printf("  rule %d %s n %" PRId64 ": element %" PRId64 " is %.9g, want %.9g\n",
                   (int)rule, mlc_dtype_name(dtype), n, i, get(a.p, dtype, i), want[i]);
            return false;
        }
    return true;
}

TEST(backend, optimizer_kernels_agree_with_the_formulas)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t n = 1; n <= 70; n++)
            for (int bits = 0; bits < 8; bits++)
                CHECK(optim_agrees(mlc_cpu_kernels((mlc_isa)isa),
                                   bits & 1 ? MLC_RULE_ADAM : MLC_RULE_SGD,
                                   bits & 2 ? MLC_F64 : MLC_F32, n, (bits & 4) != 0));
}

/* LAMB, in double: u of all elements, then one factor for them. kind: 0 as it is, 1 without decay,
 * 2 p is 0, 3 p is huge, so that its square is no f32.                                        */
static bool lamb_agrees(const mlc_kernels *k, mlc_dtype dtype, int64_t n, int kind)
{
    static double         u[5000], was[5000];
    const double          tol = dtype == MLC_F32 ? 2e-6 : 1e-13, lamb[8] = {0.9, 0.99, 1e-6};
    struct mlc_step_state step = STEP;
    struct mlc_k_optim    a;
    double                pp = 0, uu = 0, worst = 0;
    optim_args(&a, MLC_RULE_ADAM, dtype, n, false);
    a.rule = MLC_RULE_LAMB, a.cpu = mlc_cpu_rule(a.rule), a.step = &step;
    memcpy(a.coefs, lamb, sizeof lamb);
    if (kind == 1) step.weight_decay = 0;
    for (int64_t i = 0; i < n; i++) {
        if (kind >= 2) test_put(a.p, dtype, i, kind == 2 ? 0 : 1e25 * get(a.p, dtype, i));
        const double p = get(a.p, dtype, i), d = step.grad_scale * get(a.g, dtype, i);
        const double m = 0.9 * get(a.state[0], dtype, i) + 0.1 * d;
        const double v = 0.99 * get(a.state[1], dtype, i) + 0.01 * d * d;
        was[i] = p;
        u[i] = m / step.bias1 / (sqrt(v / step.bias2) + 1e-6) + step.weight_decay * p;
        pp += p * p, uu += u[i] * u[i];
    }
    const double ratio = step.weight_decay != 0 && pp > 0 && uu > 0 ? sqrt(pp / uu) : 1;
    a.workspace_bytes = k->optim_workspace(NULL, &a);
    a.workspace = malloc(a.workspace_bytes);
    const mlc_status st = k->optim(NULL, &a);
    free(a.workspace);
    for (int64_t i = 0; i < n; i++) {
        const double want = was[i] - step.lr * ratio * u[i], unit = sqrt(pp / (double)n);
        worst = fmax(worst, fabs(get(a.p, dtype, i) - want) / (1 + fabs(want) + unit));
    }
    if (!(st == MLC_OK && worst <= tol)) printf("  n %" PRId64 " kind %d: %g\n", n, kind, worst);
    return st == MLC_OK && worst <= tol;
}

TEST(backend, lamb_takes_a_run_for_one_tensor)
{
    FOR_EACH_LEVEL(isa)
        for (int64_t n = 1; n <= 5000; n += n < 70 ? 1 : 1493)
            for (int kind = 0; kind < 4; kind++)
                for (int f64 = 0; f64 < 2; f64++)
                    CHECK(lamb_agrees(mlc_cpu_kernels((mlc_isa)isa), f64 ? MLC_F64 : MLC_F32, n,
                                      kind));
}

TEST(backend, a_rule_with_norms_needs_its_workspace_and_makes_no_step_in_a_product)
{
    struct mlc_k_gemm_optim in_product;
    struct mlc_k_optim      a;
    optim_args(&a, MLC_RULE_ADAM, MLC_F32, 35, false);
    a.rule = MLC_RULE_LAMB, a.cpu = mlc_cpu_rule(MLC_RULE_LAMB);
    FOR_EACH_LEVEL(isa) {
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &a), MLC_ERR_INTERNAL);
        memset(&in_product, 0, sizeof in_product);
        in_product.optim = a;
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->gemm_optim(NULL, &in_product),
                 MLC_ERR_UNSUPPORTED);
    }
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Moments are those of an f32 p; p is one of the two bf16 beside what that becomes, the same one on
 * every level and wherever a run is cut.                                                      */
static void bf16_steps_agree(mlc_rule rule, int64_t n, bool flag)
{
    static float       p[600], g[600], m[600], v[600];
    static uint16_t    low[600], low_g[600], first[600];
    struct mlc_k_optim a;
    float              made[600], moments[1200];
    for (int64_t i = 0; i < n; i++) {
        test_put(low, MLC_BF16, i, test_random(61, i, -1, 1));
        test_put(low_g, MLC_BF16, i, test_random(62, i, -1, 1));
        p[i] = (float)test_get(low, MLC_BF16, i), g[i] = (float)test_get(low_g, MLC_BF16, i);
    }
    optim_args(&a, rule, MLC_F32, n, flag);
    a.p = p, a.g = g, a.state[0] = m, a.state[1] = v;
    for (int64_t i = 0; i < n; i++) m[i] = (float)i / 600, v[i] = (float)i / 500;
    CHECK_EQ(scalar_row()->optim(NULL, &a), MLC_OK);
    memcpy(made, p, sizeof made);
    memcpy(moments, m, sizeof m), memcpy(moments + 600, v, sizeof v);
    memcpy(first, low, sizeof first);
    a.dtype = MLC_BF16, a.p = first, a.g = low_g, a.seed = 3, a.first = 8;
    for (int64_t i = 0; i < n; i++) m[i] = (float)i / 600, v[i] = (float)i / 500;
    CHECK_EQ(scalar_row()->optim(NULL, &a), MLC_OK);
    CHECK(memcmp(m, moments, sizeof m) == 0 && memcmp(v, moments + 600, sizeof v) == 0);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t down = bits_of(made[i]) >> 16, up = down + ((bits_of(made[i]) & 0xffff) > 0);
        CHECK(first[i] == down || first[i] == up);
    }
    FOR_EACH_LEVEL(isa)
        for (int64_t cut = 0; cut <= n; cut += cut < 8 ? 8 : n) {
            uint16_t           here[600];
            struct mlc_k_optim part = a;
            memcpy(here, low, sizeof here);
            for (int64_t i = 0; i < n; i++) m[i] = (float)i / 600, v[i] = (float)i / 500;
            part.p = here, part.n = cut < n ? cut : n;
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &part), MLC_OK);
            if (cut < n) {
                part.p = here + cut, part.g = low_g + cut;
                part.state[0] = m + cut, part.state[1] = v + cut;
                part.first = a.first + cut, part.n = n - cut;
                CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &part), MLC_OK);
            }
            CHECK(memcmp(here, first, (size_t)n * 2) == 0);
        }
}

TEST(backend, optimizer_kernels_round_bf16_by_chance)
{
    for (int64_t n = 1; n <= 600; n += n < 40 ? 1 : 80)
        for (int bits = 0; bits < 4; bits++)
            bf16_steps_agree(bits & 1 ? MLC_RULE_ADAM : MLC_RULE_SGD, n, (bits & 2) != 0);
}

/* 1 - 2^-10 lies a quarter of the way to the bf16 below 1; NaN and infinity have no neighbours.  */
TEST(backend, chance_is_right_in_mean)
{
    enum { N = 40000 };
    static uint16_t       p[N], g[N];
    struct mlc_step_state step = {0x1p-10, 0, 1, 1, 1, 1, 0, 77, 0, 1, {0}, {0}};
    struct mlc_k_optim    a;
    double                sum = 0;
    memset(&a, 0, sizeof a);
    a.rule = MLC_RULE_SGD, a.cpu = mlc_cpu_rule(a.rule);
    a.dtype = MLC_BF16, a.n = N, a.p = p, a.g = g, a.step = &step;
    for (int64_t i = 0; i < N; i++) test_put(p, MLC_BF16, i, 1), test_put(g, MLC_BF16, i, 1);
    p[0] = 0x7fff, p[1] = 0xffff, g[2] = 0xff80;
    CHECK_EQ(scalar_row()->optim(NULL, &a), MLC_OK);
    CHECK(isnan(test_get(p, MLC_BF16, 0)) && isnan(test_get(p, MLC_BF16, 1)) && p[2] == 0x7f80);
    for (int64_t i = 3; i < N; i++) sum += 1 - test_get(p, MLC_BF16, i);
    CHECK_NEAR(sum / (N - 3), 0x1p-10, 4 * 0x1p-8 * sqrt(0.25 * 0.75 / N));
}

TEST(backend, a_rule_that_a_kernel_does_not_know_is_unsupported)
{
    struct mlc_k_optim a;
    FOR_EACH_LEVEL(isa) {
        optim_args(&a, MLC_RULE_COUNT, MLC_F32, 35, false);
        const double before = get(a.p, MLC_F32, 3);
        CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &a), MLC_ERR_UNSUPPORTED);
        CHECK(get(a.p, MLC_F32, 3) == before);
    }
}

/* Both kernels, with the step's skip, or an error word.                                       */
static void check_no_update(const struct mlc_step_state *step, const int64_t *error)
{
    struct mlc_k_optim a;
    float              before[4][35], after[4][35];
    FOR_EACH_LEVEL(isa) {
        for (int adam = 0; adam < 2; adam++) {
            optim_args(&a, adam ? MLC_RULE_ADAM : MLC_RULE_SGD, MLC_F32, 35, false);
            const void *from[4] = {a.p, a.g, a.state[0], a.state[1]};
            a.step = step;
            a.error = error;
            for (int k = 0; k < 4; k++)
                memcpy(before[k], from[k], sizeof before[k]);
            CHECK_EQ(mlc_cpu_kernels((mlc_isa)isa)->optim(NULL, &a), MLC_OK);
            for (int k = 0; k < 4; k++)
                memcpy(after[k], from[k], sizeof after[k]);
            CHECK(memcmp(before, after, sizeof before) == 0);
        }
    }
}

/* Rows that were not touched have no gradient: the step is that over all, bit for bit. */
static void check_touched_step(const mlc_kernels *k, mlc_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t      n = rows * cols;
    const size_t       bytes = (size_t)n * size_of(dtype);
    struct mlc_k_optim a;
    struct mlc_step_state plain = STEP;
    uint8_t           *touched = (uint8_t *)malloc((size_t)rows);
    optim_args(&a, MLC_RULE_SGD, dtype, n, false);
    plain.weight_decay = 0;
    a.step = &plain;
    a.n_state = 0;
    a.rows = rows;
    a.cols = cols;
    a.touched = touched;
    for (int64_t i = 0; i < n; i++) {
        touched[i / cols] = i / cols % 3 == 1;
        if (!touched[i / cols])
            put((void *)(uintptr_t)a.g, dtype, i, 0);
    }
    void *p = memcpy(malloc(bytes), a.p, bytes), *start = a.p;
    CHECK_EQ(k->optim(NULL, &a), MLC_OK);
    a.p = p;
    a.touched = NULL;
    CHECK_EQ(k->optim(NULL, &a), MLC_OK);
    CHECK(same_bits(start, p, dtype, n));
    free(touched);
    free(p);
}

TEST(backend, optimizer_kernels_step_touched_rows)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int64_t cols = 1; cols < 40; cols += 6 * test_stride(2)) {
            check_touched_step(k, MLC_F32, 9, cols);
            check_touched_step(k, MLC_F64, 9, cols);
            check_touched_step(k, MLC_BF16, 9, cols);
        }
        check_touched_step(k, MLC_F32, 3, 30000);
        check_touched_step(k, MLC_F32, 1000, 37);
        check_touched_step(k, MLC_BF16, 1000, 37);
    }
}

TEST(backend, optimizer_kernels_heed_skip)
{
    struct mlc_step_state step = STEP;
    step.skip = 1;
    check_no_update(&step, NULL);
}

TEST(backend, optimizer_kernels_change_nothing_while_an_error_stands)
{
    const int64_t error[4] = {MLC_K_ERROR_LABEL, 2, 3, 3};
    check_no_update(&STEP, error);
}

static void guard_args(struct mlc_k_guard *a, const struct mlc_optim_set *set,
                       struct mlc_step_state *step, struct mlc_guard_state *state, int64_t *error)
{
    memset(a, 0, sizeof *a);
    a->n = 4;
    a->set = set;
    a->step = step;
    a->share = 0.5;
    a->optim = MLC_RULE_ADAM;
    a->coefs[0] = 0.5;
    a->coefs[1] = 0.75;
    a->cpu = mlc_cpu_rule(MLC_RULE_ADAM);
    a->stream = 100;
    a->state = state;
    a->bad = MLC_K_ERROR_NORM;
    a->error = error;
}

/* Parameters 0 and 1 are a run, 2 is left alone, 3 is another run.                             */
TEST(backend, guard_counts_what_is_made_and_leaves_the_rest_alone)
{
    static const struct mlc_optim_set set[4] = {{.1, .2, 2}, {.1, .2, 1}, {.3, .4, 0}, {.5, .6, 2}};
    double                 squares[4] = {16, (double)NAN, (double)NAN, 9};
    struct mlc_step_state  step[4];
    struct mlc_guard_state state = {{4, 0, 0, 0}, -1, 7};
    struct mlc_k_guard     a;
    int64_t                error[4] = {0};
    memset(step, 0, sizeof step);
    step[3].made = step[2].made = 2;
    guard_args(&a, set, step, &state, error);
    CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);       /* nothing is looked at             */
    CHECK(state.norm == -1 && state.steps == 8 && state.scaler.scale == 4);
    CHECK(step[0].made == 1 && step[1].made == 1 && step[2].made == 2 && step[3].made == 3);
    CHECK(step[0].first && step[1].first && !step[3].first && step[2].grad_scale == 0);
    CHECK(step[0].bias1 == 0.5 && step[3].bias1 == 0.875 && step[0].bias2 == 0.25);
    CHECK(step[3].lr == .5 && step[3].weight_decay == .6 && step[3].grad_scale == .5);
    CHECK(step[0].stream == 107 && !step[0].skip);
    a.squares = squares;
    a.max_norm = 1;
    a.has_scaler = 1;
    a.rule = mlc_scaler_desc_make();
    a.rule.patience = 2;
    CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);
    CHECK_NEAR(state.norm, 5 * 0.125, 1e-15);              /* under 1: not clipped             */
    CHECK(step[0].grad_scale == 0.125 && step[0].made == 2 && state.steps == 9);
    a.each = 1;
    a.max_norm = 0.4;
    CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);
    CHECK_NEAR(step[1].grad_scale, 0.1, 1e-6);             /* that of its run                  */
    CHECK(step[3].grad_scale == 0.125 && state.steps == 10);
    squares[3] = (double)INFINITY;
    for (int bad = 1; bad <= 3; bad++) {                   /* the third: an error stands       */
        CHECK_EQ(scalar_row()->guard(NULL, &a), MLC_OK);
        CHECK(step[0].skip == 1 && step[0].made == 3 && state.steps == 10);
        CHECK_EQ(error[0], bad > 1 ? MLC_K_ERROR_NORM : 0);
        CHECK_EQ(state.scaler.skipped_row, bad < 3 ? bad : 2);
    }
    CHECK_EQ(error[1], 2);
    memcpy(squares, error + 2, 2 * sizeof *squares);
    CHECK(squares[0] == (double)INFINITY && squares[1] == 1);
}
