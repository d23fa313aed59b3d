/* test_optim.c -- CUDA.OPTIM: optim, guard and average against the CPU's kernels */
#include "kernels.h"

enum { N = 9000 };
static char g_host[4][N * 8], g_got[4][N * 8];                /* p, g, two states                */

static const mlc_kernels *cpu_row(void) { return mlc_cpu_kernels(MLC_ISA_SCALAR); }

static mlc_dtype wide(mlc_dtype d) { return d == MLC_BF16 ? MLC_F32 : d; }
static mlc_dtype dtype_of(mlc_dtype d, int array) { return array < 2 ? d : wide(d); }

static void make(struct mlc_k_optim *a, mlc_rule rule, mlc_dtype dtype, int64_t n, int flags)
{
    memset(a, 0, sizeof *a);
    a->rule = rule, a->cpu = mlc_cpu_rule(rule), a->dtype = dtype, a->n = n;
    a->n_state = rule == MLC_RULE_SGD ? flags & 1 : 2;
    a->coefs[0] = 0.9, a->coefs[1] = rule == MLC_RULE_SGD ? 0.1 : 0.99;
    a->coefs[2] = rule == MLC_RULE_SGD ? (flags >> 1 & 1) : 1e-8;
    a->coefs[3] = flags & 1;
    a->seed = 5, a->first = 64;
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < n; i++)
            test_put(g_host[k], dtype_of(dtype, k), i,
                     test_random((uint64_t)k, i, k < 3 ? -1 : 0, 1));
}

/* Pointers of a to arrays of its dtype. */
static void point(struct mlc_k_optim *a, void *const *array)
{
    a->p = array[0], a->g = array[1];
    for (int k = 0; k < a->n_state; k++) a->state[k] = array[2 + k];
}

static void on_device(unit *t, struct mlc_k_optim a, const struct mlc_step_state *step,
                      size_t shift)
{
    void *array[4];
    for (int k = 0; k < 4; k++)
        array[k] = unit_lend_at(t, g_host[k], (size_t)a.n * mlc_dtype_bytes(dtype_of(a.dtype, k)),
                               shift * mlc_dtype_bytes(dtype_of(a.dtype, k)));
    point(&a, array);
    a.step = (struct mlc_step_state *)unit_lend(t, step, sizeof *step);
    if (a.error) a.error = (int64_t *)unit_lend(t, a.error, 8);
    a.workspace_bytes = t->b.kernels.optim_workspace(t->dev, &a);
    a.workspace = unit_room(t, a.workspace_bytes);
    CHECK_EQ(t->b.kernels.optim(t->dev, &a), MLC_OK);
    for (int k = 0; k < 4; k++)
        unit_fetch(t, g_got[k], array[k], (size_t)a.n * mlc_dtype_bytes(dtype_of(a.dtype, k)));
    unit_return(t);
}

static void on_host(struct mlc_k_optim a, const struct mlc_step_state *step)
{
    static double sums[64];
    void *array[4] = {g_host[0], g_host[1], g_host[2], g_host[3]};
    point(&a, array);
    a.step = step, a.clamp = 0, a.workspace = sums, a.workspace_bytes = sizeof sums;
    CHECK_EQ(cpu_row()->optim(NULL, &a), MLC_OK);
}

static double worst(const struct mlc_k_optim *a)
{
    double most = 0;
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < a->n && (k < 2 || k < 2 + a->n_state); i++) {
            const mlc_dtype d = dtype_of(a->dtype, k);
            const double    x = test_get(g_got[k], d, i), y = test_get(g_host[k], d, i);
            most = fmax(most, fabs(x - y));
        }
    return most;
}

TEST(cuda, optimizers_make_the_cpus_steps)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16};
    static const int64_t sizes[] = {1, 7, 8, 65, 4100, N};
    struct mlc_step_state step = {0.01, 0.1, 0.1, 0.01, 0.5, 0, 0, 77, 0, 1, {0}, {0}};
    unit t = unit_open();
    for (int d = 0; d < 3; d++)
        for (int s = 0; s < 6; s++)
            for (int form = 0; form < 6; form++) {
                struct mlc_k_optim a;
                make(&a, (mlc_rule)(form / 2), dtypes[d], sizes[s], form * 3 + s);
                step.first = s == 3;
                step.weight_decay = form == 5 ? 0 : 0.1;
                on_device(&t, a, &step, s % 2 ? 0 : (size_t)(form % 2));
                on_host(a, &step);
                CHECK_NEAR(worst(&a), 0, dtypes[d] == MLC_F64 ? 1e-14 : form < 4 || d == 0 ? 2e-7
                                                                                           : 0.01);
            }
    unit_close(&t);
}

/* Limited as numbers of the gradient's dtype. */
TEST(cuda, optimizers_limit_gradients)
{
    struct mlc_step_state step = {0.01, 0, 1, 1, 0.25, 1, 0, 77, 0, 1, {0}, {0}};
    unit t = unit_open();
    for (int d = 0; d < 2; d++) {
        struct mlc_k_optim a;
        char bound[8];
        const mlc_dtype dtype = d ? MLC_BF16 : MLC_F32;
        make(&a, MLC_RULE_SGD, dtype, 100, 1);
        test_put(g_host[1], dtype, 50, NO_NUMBER);
        a.clamp = 0.1;
        on_device(&t, a, &step, 0);
        test_put(bound, dtype, 0, 0.1 / 0.25);
        const double most = test_get(bound, dtype, 0);
        for (int64_t i = 0; i < 100; i++) {
            const double g = test_get(g_host[1], dtype, i);
            if (fabs(g) > most) test_put(g_host[1], dtype, i, g > 0 ? most : -most);
        }
        on_host(a, &step);
        memcpy(g_got[1], g_host[1], sizeof g_got[1]);
        CHECK(isnan(test_get(g_got[0], dtype, 50)));
        CHECK_NEAR(worst(&a), 0, 0);
    }
    unit_close(&t);
}

TEST(cuda, optimizers_heed_skip_and_refuse_what_they_do_not_do)
{
    struct mlc_step_state step = {0.01, 0.1, 1, 1, 1, 1, 1, 77, 0, 1, {0}, {0}};
    const int64_t bad = 258;
    struct mlc_k_optim a;
    unit t = unit_open();
    for (int rule = 0; rule < 3; rule++) {
        make(&a, (mlc_rule)rule, MLC_F32, 300, 1);
        on_device(&t, a, &step, 0);
        CHECK_NEAR(worst(&a), 0, 0);
        step.skip = 0, a.error = &bad;
        on_device(&t, a, &step, 0);
        CHECK_NEAR(worst(&a), 0, 0);
        step.skip = 1;
    }
    a.rule = MLC_RULE_COUNT;
    CHECK_EQ(t.b.kernels.optim(t.dev, &a), MLC_ERR_UNSUPPORTED);
    a.rule = MLC_RULE_LAMB, a.workspace_bytes = 8;
    CHECK_EQ(t.b.kernels.optim(t.dev, &a), MLC_ERR_INTERNAL);
    unit_close(&t);
}

/* -- guard -- */

enum { PARAMS = 300 };
static struct mlc_optim_set  g_set[PARAMS];
static struct mlc_step_state g_step[2][PARAMS];
static double                g_squares[PARAMS];

static void guard_make(struct mlc_k_guard *a, int form)
{
    memset(a, 0, sizeof *a);
    memset(g_step, 0, sizeof g_step);
    a->n = form % 3 ? PARAMS : 3, a->share = 0.5, a->max_norm = form & 1 ? 0.7 : 0;
    a->each = form >> 1 & 1, a->has_scaler = form >> 2 & 1;
    a->rule = mlc_scaler_desc_make();
    a->rule.growth = 2, a->rule.backoff = 0.5, a->rule.interval = 2, a->rule.floor = 1;
    a->rule.cap = 1e9, a->rule.patience = 2;
    a->optim = (mlc_rule)(form % 3), a->coefs[0] = 0.9, a->coefs[1] = 0.999;
    a->cpu = mlc_cpu_rule(a->optim), a->stream = 1000, a->bad = 262;
    for (int i = 0; i < PARAMS; i++) {
        g_set[i].lr = 0.1 + i, g_set[i].weight_decay = 0.01 * i;
        g_set[i].due = i % 7 == 3 ? 0 : i % 5 == 0 ? 2 : 1;
        g_squares[i] = 0.1 + i % 11;
        g_step[0][i].made = g_step[1][i].made = i % 4;
    }
}

static void steps_agree(int64_t n)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct mlc_step_state *x = &g_step[0][i], *y = &g_step[1][i];
        bad += !(x->lr == y->lr && x->weight_decay == y->weight_decay && x->first == y->first &&
                 x->skip == y->skip && x->stream == y->stream && x->made == y->made &&
                 fabs(x->bias1 - y->bias1) < 1e-14 && fabs(x->bias2 - y->bias2) < 1e-14);
        if (!y->skip) bad += !(fabs(x->grad_scale - y->grad_scale) <= 1e-14);
    }
    CHECK_EQ(bad, 0);
}

/* Good steps and bad ones, one after the other; then an error stands. */
TEST(cuda, the_guard_decides_as_the_cpus)
{
    unit t = unit_open();
    for (int form = 0; form < 16; form++) {
        struct mlc_k_guard     a, k;
        struct mlc_guard_state state = {{0}, 0, 3}, got;
        int64_t word[4] = {0}, seen[4];
        guard_make(&a, form);
        state.scaler.scale = 1024;
        k = a;
        k.set = (struct mlc_optim_set *)unit_lend(&t, g_set, sizeof g_set);
        k.step = (struct mlc_step_state *)unit_lend(&t, g_step[0], sizeof g_step[0]);
        k.state = (struct mlc_guard_state *)unit_lend(&t, &state, sizeof state);
        k.error = (int64_t *)unit_lend(&t, word, sizeof word);
        a.set = g_set, a.step = g_step[1], a.state = &state, a.error = word;
        for (int round = 0; round < 7; round++) {
            g_squares[0] = round == 2 || round > 3 ? INF : 2;
            a.squares = form < 12 ? g_squares : NULL;
            k.squares = a.squares ? (double *)unit_lend(&t, g_squares, sizeof g_squares) : NULL;
            CHECK_EQ(cpu_row()->guard(NULL, &a), MLC_OK);
            CHECK_EQ(t.b.kernels.guard(t.dev, &k), MLC_OK);
            unit_fetch(&t, g_step[0], k.step, sizeof g_step[0]);
            unit_fetch(&t, &got, k.state, sizeof got);
            unit_fetch(&t, seen, k.error, sizeof seen);
            steps_agree(a.n);
            CHECK(got.steps == state.steps && memcmp(&got.scaler, &state.scaler,
                                                     sizeof got.scaler) == 0);
            CHECK(got.norm == state.norm || fabs(got.norm / state.norm - 1) < 1e-14);
            CHECK(seen[0] == word[0] && seen[1] == word[1] && seen[3] == word[3]);
        }
        CHECK_EQ(word[0] != 0, form < 12);
        unit_return(&t);
    }
    unit_close(&t);
}

/* -- average -- */

/* Forms of averages, at some number of updates; the last ones are skipped.         */
static void average_make(struct mlc_k_average *a, mlc_dtype dtype, int64_t n, int form)
{
    memset(a, 0, sizeof *a);
    a->dtype = dtype, a->n = n, a->share = form & 1 ? 0.75 : 0.01, a->every = 1 + form % 2;
    a->back = form % 3 == 0, a->mean = form == 4, a->warmup = form == 5, a->start = form % 3;
    a->base = 2;
    for (int64_t i = 0; i < n; i++) {
        test_put(g_host[0], dtype, i, i == 5 ? NO_NUMBER : test_random(1, i, -1, 1));
        test_put(g_host[1], wide(dtype), i, i == 6 ? NO_NUMBER : test_random(2, i, -1, 1));
    }
}

static void average_both(unit *t, struct mlc_k_average a, int64_t steps, int64_t skip, int64_t bad)
{
    const struct mlc_guard_state state = {{1, 0, 0, 0}, 0, steps};
    const size_t bytes[2] = {(size_t)a.n * mlc_dtype_bytes(a.dtype),
                             (size_t)a.n * mlc_dtype_bytes(wide(a.dtype))};
    struct mlc_step_state step;
    struct mlc_k_average  k = a;
    memset(&step, 0, sizeof step);
    step.skip = skip;
    for (int i = 0; i < 2; i++) *(i ? &k.avg : &k.p) = unit_lend(t, g_host[i], bytes[i]);
    k.state = (struct mlc_guard_state *)unit_lend(t, &state, sizeof state);
    k.step = (struct mlc_step_state *)unit_lend(t, &step, sizeof step);
    k.error = (int64_t *)unit_lend(t, &bad, sizeof bad);
    CHECK_EQ(t->b.kernels.average(t->dev, &k), MLC_OK);
    for (int i = 0; i < 2; i++) unit_fetch(t, g_got[i], i ? k.avg : k.p, bytes[i]);
    a.p = g_host[0], a.avg = g_host[1], a.state = &state, a.step = &step, a.error = &bad;
    CHECK_EQ(cpu_row()->average(NULL, &a), MLC_OK);
    unit_return(t);
}

TEST(cuda, averages_are_the_cpus)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16};
    static const int64_t   sizes[] = {1, 7, 257, N};
    unit t = unit_open();
    struct mlc_k_average a;
    for (int d = 0; d < 3; d++)
        for (int form = 0; form < 8; form++)
            for (int64_t steps = 1; steps < 8; steps++) {
                average_make(&a, dtypes[d], sizes[form % 4], form);
                average_both(&t, a, steps, form == 6, form == 7);
                for (int k = 0; k < 2; k++)
                    for (int64_t i = 0; i < a.n; i++) {
                        const mlc_dtype type = k ? wide(a.dtype) : a.dtype;
                        const double    x = test_get(g_got[k], type, i);
                        const double    y = test_get(g_host[k], type, i);
                        CHECK(x == y || (x != x && y != y) || fabs(x - y) < 2e-7 * (1 + fabs(y)) ||
                              (type == MLC_BF16 && fabs(x - y) < 0.01));
                    }
            }
    a.dtype = MLC_F16;
    CHECK_EQ(t.b.kernels.average(t.dev, &a), MLC_ERR_UNSUPPORTED);
    unit_close(&t);
}

TEST(cuda, averages_change_places_as_the_cpus)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16};
    unit t = unit_open();
    for (int d = 0; d < 3; d++) {
        struct mlc_k_average a;
        average_make(&a, dtypes[d], 3000, 0);
        for (int part = MLC_AVERAGE_ON; part <= MLC_AVERAGE_OFF; part++) {
            a.part = (mlc_average_part)part;
            average_both(&t, a, 0, 1, 0);
            CHECK(memcmp(g_got[0], g_host[0], 3000 * mlc_dtype_bytes(a.dtype)) == 0);
            CHECK(memcmp(g_got[1], g_host[1], 3000 * mlc_dtype_bytes(wide(a.dtype))) == 0);
        }
    }
    unit_close(&t);
}
