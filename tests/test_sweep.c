/* test_sweep.c -- tests of section IMPL.TRAIN.SWEEP: trials of a grid, some of them at once */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "watch.h"

#include <sched.h>

/* No check is made in a trial of several workers: the harness counts on one thread. */

typedef struct sink { char text[8192]; size_t n; int writes; } sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    s->writes++;
    if (s->n + bytes >= sizeof s->text) return;
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = 0;
}

static const double RATES[] = {0.001, 0.1, 0.01}, SIZES[] = {4, 8};
static const mlc_sweep_axis AXES[] = {{"lr", RATES, 3}, {"hidden", SIZES, 2}};
static const char *const RESULTS[] = {"loss", "norm"};

/* Kernels of other devices, and memory of the test's, are not made for several threads. */
static int32_t workers_at_most(int32_t n) { return test_on_host() || n < 1 ? n : 1; }

static mlc_sweep_desc desc_of(int32_t n_seeds, int32_t workers)
{
    mlc_sweep_desc d = mlc_sweep_desc_make(AXES, 2, RESULTS, 2);
    d.ctx = test_desc();
    d.ctx.threads = 1;
    d.n_seeds = n_seeds;
    d.workers = workers_at_most(workers);
    return d;
}

/* What is the same however the trials were run: all but the seconds. */
static uint64_t hash_of(const mlc_sweep *s, int32_t axes, int32_t results)
{
    uint64_t h = HASH_SEED;
    const mlc_trial *t;
    const mlc_sweep_point *p;
    for (int64_t i = 0; (t = mlc_sweep_trial(s, i)) != NULL; i++) {
        h = hash_bytes(h, &t->index, sizeof t->index);
        h = hash_bytes(h, &t->seed, sizeof t->seed);
        h = hash_bytes(h, t->values, (size_t)axes * sizeof(double));
        h = hash_bytes(h, t->results, (size_t)results * sizeof(double));
        h = hash_bytes(h, &t->status, sizeof t->status);
        h = hash_bytes(h, t->message, strlen(t->message));
    }
    for (int64_t i = 0; (p = mlc_sweep_point_at(s, i)) != NULL; i++) {
        h = hash_bytes(h, &p->index, sizeof p->index);
        h = hash_bytes(h, &p->ok, sizeof p->ok);
        h = hash_bytes(h, p->mean, (size_t)results * sizeof(double));
        h = hash_bytes(h, p->deviation, (size_t)results * sizeof(double));
    }
    return h;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Results that tell the trial apart: mean over seeds 2, 3, 5 ... by hand. */
static mlc_status plain(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    (void)user;
    results[0] = t->values[0] * 1000 + t->values[1] + (double)(t->seed * t->seed);
    results[1] = -(double)t->index;
    return mlc_ctx_status(ctx);
}

TEST(sweep, trials_are_the_grid_with_the_last_axis_fastest_and_seeds_within_a_point)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(3, 1);
    d.seed = 7;
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_OK);
    for (int i = 0; i < 18; i++) {
        const mlc_trial *t = mlc_sweep_trial(s, i);
        if (!CHECK(t)) return;
        CHECK(t->index == i && t->seed == 7 + (uint64_t)i % 3 && t->status == MLC_OK);
        CHECK(t->values[0] == RATES[i / 6] && t->values[1] == SIZES[i / 3 % 2]);
        CHECK(t->results[1] == -i && t->seconds >= 0 && t->seconds < 60);
        CHECK_STR(t->message, "");
    }
    CHECK(!mlc_sweep_trial(s, 18) && !mlc_sweep_trial(s, -1) && !mlc_sweep_trial(NULL, 0));
    CHECK(!mlc_sweep_point_at(s, 6) && !mlc_sweep_point_at(s, -1));
    CHECK(!mlc_sweep_point_at(NULL, 0));
    mlc_sweep_free(s);
    CHECK_OK(ctx);
}

TEST(sweep, points_are_ranked_by_the_mean_of_a_result)
{
    static const int64_t low[6] = {0, 1, 4, 5, 2, 3};      /* rates 0.001, 0.01, 0.1            */
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(3, 1);
    for (int higher = 0; higher < 2; higher++) {
        d.higher = higher != 0;
        CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_OK);
        for (int i = 0; i < 6; i++) {
            const mlc_sweep_point *p = mlc_sweep_point_at(s, i);
            CHECK_EQ(p->index, low[higher ? 5 - i : i]);
            CHECK_EQ(p->trial, 3 * p->index);
            CHECK(p->ok == 3 && p->values[0] == RATES[p->index / 2]);
            const double base = p->values[0] * 1000 + p->values[1];    /* seeds 0, 1, 2: 0, 1, 4 */
            CHECK_NEAR(p->mean[0], base + 5.0 / 3, 1e-12);
            CHECK_NEAR(p->deviation[0], sqrt((25 + 4 + 49) / 9.0 / 2), 1e-12);
            CHECK_NEAR(p->mean[1], -(double)p->trial - 1, 0);
            CHECK_NEAR(p->deviation[1], 1, 0);
        }
        mlc_sweep_free(s);
    }
    d.best = 1;
    d.n_seeds = 1;
    d.higher = false;
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(mlc_sweep_point_at(s, i)->index, 5 - i);
    CHECK(isnan(mlc_sweep_point_at(s, 0)->deviation[0]));
    mlc_sweep_free(s);
}

/* NaN of either sign, infinities, equals. */
static mlc_status odd(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    static const double v[6] = {1, -NO_NUMBER, -INF, 1, NO_NUMBER, INF};
    (void)user; (void)ctx;
    results[0] = v[t->index];
    return MLC_OK;
}

TEST(sweep, not_a_number_is_last_and_equals_are_in_the_order_of_the_grid)
{
    static const int64_t want[2][6] = {{2, 0, 3, 5, 1, 4}, {5, 0, 3, 2, 1, 4}};
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(1, 1);
    for (int higher = 0; higher < 2; higher++) {
        sink out = {"", 0, 0};
        d.higher = higher != 0;
        CHECK_EQ(mlc_sweep_run(ctx, &d, odd, NULL, &s), MLC_OK);
        for (int i = 0; i < 6; i++) CHECK_EQ(mlc_sweep_point_at(s, i)->index, want[higher][i]);
        CHECK_EQ(mlc_sweep_print(s, collect, &out), MLC_OK);
        CHECK(strstr(out.text, " nan") && !strstr(out.text, "-nan"));
        CHECK(isnan(mlc_sweep_trial(s, 0)->results[1]));   /* which it did not set              */
        mlc_sweep_free(s);
    }
}

TEST(sweep, a_grid_may_have_no_axis)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(4, 1);
    d.axes = NULL;
    d.n_axes = 0;
    CHECK_EQ(mlc_sweep_run(ctx, &d, odd, NULL, &s), MLC_OK);
    CHECK(mlc_sweep_trial(s, 3) && !mlc_sweep_trial(s, 4));
    CHECK(mlc_sweep_point_at(s, 0)->ok == 4 && !mlc_sweep_point_at(s, 1));
    mlc_sweep_free(s);
    CHECK_EQ(mlc_sweep_run(ctx, &d, odd, NULL, NULL), MLC_OK);         /* nobody looks           */
    CHECK_OK(ctx);
}

/* ---- a training ------------------------------------------------------------------------------ */

/* A network with dropout: loss after some steps, and the sum of squares of its weights. */
static mlc_status trains(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    const int64_t steps = *(const int64_t *)user, hidden = (int64_t)t->values[1];
    mlc_tensor *x = mlc_randn(ctx, MLC_F32, mlc_dims2(16, 5));
    mlc_tensor *y = mlc_randn(ctx, MLC_F32, mlc_dims2(16, 1));
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 5, hidden), mlc_nn_relu(ctx),
                                     mlc_nn_dropout(ctx, 0.2), mlc_nn_linear(ctx, hidden, 1));
    mlc_optim  *opt = mlc_adamw(net, t->values[0]);
    for (int64_t i = 0; i < steps; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *loss = mlc_mse_loss(mlc_forward(net, x), y);
        mlc_optim_minimize(opt, loss);
        results[0] = mlc_item(loss);
        const mlc_status st = mlc_scope_end(ctx);
        if (st != MLC_OK) return st;
    }
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    results[1] = mlc_item(mlc_sum_all(mlc_mul(w, w)));
    return mlc_ctx_status(ctx);
}

TEST(sweep, results_do_not_depend_on_the_number_of_workers)
{
    static const int32_t workers[] = {0, 1, 3, 400};
    const box      b = box_open_fast("sweep.csv");
    mlc_ctx       *ctx = test_ctx();
    const int64_t  steps = test_cpu_kernels() ? 12 : 2;
    uint64_t       first = 0;
    for (int i = 0; i < 4; i++) {
        mlc_sweep     *s;
        sink           out = {"", 0, 0};
        mlc_sweep_desc d = desc_of(2, workers[i]);
        CHECK_EQ(mlc_sweep_run(ctx, &d, trains, (void *)&steps, &s), MLC_OK);
        CHECK_EQ(mlc_sweep_print(s, collect, &out), MLC_OK);
        CHECK_EQ(mlc_sweep_csv(s, b.path), MLC_OK);
        uint64_t h = hash_file(hash_bytes(hash_of(s, 2, 2), out.text, out.n), b.path);
        if (i == 0) first = h;
        CHECK(h == first);
        CHECK(mlc_sweep_trial(s, 0)->results[0] != mlc_sweep_trial(s, 1)->results[0]);
        CHECK(mlc_sweep_trial(s, 0)->results[0] > 0);
        mlc_sweep_free(s);
    }
    box_close(&b);
    CHECK_OK(ctx);
}

/* Each trial is what the same training is alone, in a context of its seed. */
TEST(sweep, a_trial_is_the_training_that_it_is_alone)
{
    const int64_t  steps = 2;
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(2, 3);
    d.seed = 40;
    CHECK_EQ(mlc_sweep_run(test_ctx(), &d, trains, (void *)&steps, &s), MLC_OK);
    for (int i = 0; i < 12; i += 5) {
        double       results[2] = {0, 0};
        mlc_ctx_desc own = d.ctx;
        own.seed = 40 + (uint64_t)(i % 2);
        mlc_ctx *ctx = test_own(mlc_ctx_create(&own));
        CHECK_EQ(trains((void *)&steps, ctx, mlc_sweep_trial(s, i), results), MLC_OK);
        CHECK(memcmp(results, mlc_sweep_trial(s, i)->results, sizeof results) == 0);
    }
    mlc_sweep_free(s);
}

/* Yields until three trials are here, or so often that they will not come. */
static mlc_status meets(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    int *here = (int *)user;
    (void)ctx; (void)t;
    __atomic_add_fetch(here, 1, __ATOMIC_SEQ_CST);
    for (int64_t i = 0; i < 50000000 && __atomic_load_n(here, __ATOMIC_SEQ_CST) < 3; i++)
        sched_yield();
    results[0] = __atomic_load_n(here, __ATOMIC_SEQ_CST) >= 3;
    return MLC_OK;
}

TEST(sweep, so_many_workers_are_at_work_at_once)
{
    ONLY_ON_HOST();
    int            here = 0;
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(3, 3);
    mlc_ctx_desc   two = d.ctx;
    two.threads = 2;
    if (mlc_ctx_threads(test_own(mlc_ctx_create(&two))) < 2) return;   /* MLC_NO_THREADS         */
    d.n_axes = 0;
    CHECK_EQ(mlc_sweep_run(test_ctx(), &d, meets, &here, &s), MLC_OK);
    for (int i = 0; i < 3; i++) CHECK(mlc_sweep_trial(s, i)->results[0] == 1);
    mlc_sweep_free(s);
}

#define EPOCHS 8

/* Rows of digits, which all trials read. */
typedef struct digits { float x[1797][64]; int64_t y[1797]; } digits;

static mlc_status fits(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    const digits *all = (const digits *)user;
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims2(1797, 64), all->x);
    mlc_tensor *y = mlc_from(ctx, MLC_I64, mlc_dims1(1797), all->y);
    mlc_loader *train = mlc_loader_shuffled(ctx, mlc_rows(x, 0, 1500), mlc_rows(y, 0, 1500), 32);
    mlc_loader *held = mlc_loader_shuffled(ctx, mlc_rows(x, 1500, 1797), mlc_rows(y, 1500, 1797),
                                           99);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 64, 32), mlc_nn_relu(ctx),
                                     mlc_nn_linear(ctx, 32, 10));
    mlc_fit_metric metric = {"accuracy", mlc_metric_accuracy(ctx), true};
    mlc_fit_desc   d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_tracker   *history = NULL;
    d.epochs = EPOCHS;
    d.validation = held;
    d.metrics = &metric;
    d.n_metrics = 1;
    const mlc_status st = mlc_fit(net, mlc_adamw(net, t->values[0]), train, &d, &history);
    results[0] = mlc_tracker_last(history, "val_accuracy");
    results[1] = mlc_tracker_last(history, "loss");
    return st;                         /* nothing is freed: the context goes                   */
}

TEST(sweep, digits_are_learned_at_the_better_rate)
{
    static digits             all;
    static const double       rates[2] = {1e-5, 3e-3};
    static const mlc_sweep_axis axis = {"lr", rates, 2};
    static const char *const  names[2] = {"accuracy", "loss"};
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    double     *table = (double *)malloc(1797 * 66 * sizeof(double));
    if (!CHECK(table && test_read(mlc_csv_load(ctx, "examples/data/digits.csv", NULL), table)))
        return;
    for (int i = 0; i < 1797; i++) {
        for (int k = 0; k < 64; k++) all.x[i][k] = (float)(table[i * 66 + k] / 16);
        all.y[i] = (int64_t)table[i * 66 + 64];
    }
    free(table);
    mlc_sweep     *s;
    mlc_sweep_desc d = mlc_sweep_desc_make(&axis, 1, names, 2);
    d.ctx = test_desc();
    d.ctx.threads = 1;
    d.higher = true;
    d.n_seeds = 2;
    d.workers = 2;
    CHECK_EQ(mlc_sweep_run(ctx, &d, fits, &all, &s), MLC_OK);
    const mlc_sweep_point *best = mlc_sweep_point_at(s, 0), *other = mlc_sweep_point_at(s, 1);
    CHECK(best->values[0] == 3e-3 && best->ok == 2 && other->ok == 2);
    CHECK(best->mean[0] > 0.88 && best->deviation[0] < 0.05);
    CHECK(other->mean[0] < 0.6 && other->mean[1] > 2 * best->mean[1]);
    mlc_sweep_free(s);
    CHECK_OK(ctx);
}

/* ---- a part of the grid ---------------------------------------------------------------------- */

TEST(sweep, a_part_of_the_grid_is_drawn_without_repetition)
{
    mlc_ctx       *ctx = test_ctx();
    int            count[6] = {0}, twice[6] = {0};
    uint64_t       last = 0;
    int            changes = 0;
    const int      draws = test_cpu_kernels() ? 600 : 60;
    mlc_sweep_desc d = desc_of(1, 1);
    d.random = 2;
    for (int i = 0; i < draws; i++) {
        mlc_sweep *s;
        d.seed = (uint64_t)i;
        if (!CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_OK)) return;
        const mlc_trial *a = mlc_sweep_trial(s, 0), *b = mlc_sweep_trial(s, 1);
        CHECK(a && b && !mlc_sweep_trial(s, 2));
        int at[2];
        for (int k = 0; k < 2; k++) {
            const mlc_sweep_point *p = mlc_sweep_point_at(s, k);
            at[p->trial] = (int)p->index;
            CHECK(p->values[0] == RATES[p->index / 2] && p->values[1] == SIZES[p->index % 2]);
            CHECK(p->values == mlc_sweep_trial(s, p->trial)->values);
        }
        CHECK(at[0] < at[1]);
        count[at[0]]++;
        count[at[1]]++;
        twice[at[0]] += at[1] == at[0] + 1;
        const uint64_t pair = (uint64_t)at[0] * 6 + (uint64_t)at[1];
        changes += pair != last;
        last = pair;
        mlc_sweep_free(s);
    }
    for (int i = 0; i < 6; i++)        /* a third of the draws; five deviations                */
        CHECK(fabs(count[i] - draws / 3.0) < 5 * sqrt(draws * 2 / 9.0));
    for (int i = 0; i < 5; i++)        /* each of 15 pairs                                     */
        CHECK(fabs(twice[i] - draws / 15.0) < 5 * sqrt(draws * 14 / 225.0));
    CHECK(changes > draws * 4 / 5);
}

TEST(sweep, a_large_grid_costs_what_is_drawn_of_it)
{
    static double  v[1290];
    for (int i = 0; i < 1290; i++) v[i] = i;
    const mlc_sweep_axis axes[3] = {{"a", v, 1290}, {"b", v, 1290}, {"c", v, 1290}};
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *s, *again;
    mlc_sweep_desc d = mlc_sweep_desc_make(axes, 3, RESULTS, 2);
    d.ctx = test_desc();
    d.workers = 1;
    d.random = test_cpu_kernels() ? 50 : 5;
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_OK);
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &again), MLC_OK);
    CHECK(hash_of(s, 3, 2) == hash_of(again, 3, 2));
    double above = 0, before = -1;
    for (int i = 0; i < (int)d.random; i++) {
        const double *x = mlc_sweep_trial(s, i)->values;
        const double  at = (x[0] * 1290 + x[1]) * 1290 + x[2];
        CHECK(at > before);
        above += at > 1290.0 * 1290 * 1290 / 2;
        before = at;
    }
    if (d.random == 50) CHECK(above > 10 && above < 40);
    mlc_sweep_free(s);
    mlc_sweep_free(again);
    d.random = 0;
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "2146689000 points of 1 seeds are 2146689000 trials; at most");
    mlc_error_clear(ctx);
}

/* All of a grid by chance is the grid. */
TEST(sweep, as_many_as_there_are_is_all_of_them)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *all, *drawn;
    mlc_sweep_desc d = desc_of(2, 1);
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &all), MLC_OK);
    d.random = 6;
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &drawn), MLC_OK);
    CHECK(hash_of(all, 2, 2) == hash_of(drawn, 2, 2));
    mlc_sweep_free(all);
    mlc_sweep_free(drawn);
}

/* ---- what fails ------------------------------------------------------------------------------ */

/* Trial 1 returns an error, 4 leaves one, 7 has one in a scope, 10 returns one without a text. */
static mlc_status fails(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    (void)user;
    results[0] = (double)t->index;
    results[1] = 0.5;
    if (t->index == 1) return mlc_raise(ctx, MLC_ERR_IO, "no, \"said\" it");
    if (t->index == 4) mlc_matmul(mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)),
                                  mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3)));
    if (t->index == 7) {
        mlc_scope_begin(ctx);
        mlc_raise(ctx, MLC_ERR_VALUE, "within");
        return mlc_scope_end(ctx);
    }
    return t->index == 10 ? MLC_ERR_INTERNAL : MLC_OK;
}

TEST(sweep, a_trial_that_fails_is_a_row_of_the_others)
{
    static const mlc_status want[12] = {MLC_OK, MLC_ERR_IO, MLC_OK, MLC_OK, MLC_ERR_SHAPE, MLC_OK,
                                        MLC_OK, MLC_ERR_VALUE, MLC_OK, MLC_OK, MLC_ERR_INTERNAL};
    mlc_ctx *ctx = test_ctx();
    for (int32_t workers = 1; workers < 4; workers += 2) {
        mlc_sweep     *s;
        mlc_sweep_desc d = desc_of(2, workers);
        CHECK_EQ(mlc_sweep_run(ctx, &d, fails, NULL, &s), MLC_OK);
        CHECK_OK(ctx);
        for (int i = 0; i < 12; i++) {
            CHECK_EQ(mlc_sweep_trial(s, i)->status, want[i]);
            CHECK(mlc_sweep_trial(s, i)->results[0] == i);
        }
        CHECK_STR(mlc_sweep_trial(s, 1)->message, "no, \"said\" it");
        CHECK_HAS(mlc_sweep_trial(s, 4)->message, "matmul: inner sizes differ");
        CHECK_STR(mlc_sweep_trial(s, 7)->message, "within");
        CHECK_STR(mlc_sweep_trial(s, 10)->message, "");
        const mlc_sweep_point *p = mlc_sweep_point_at(s, 0);
        CHECK(p->trial == 0 && p->ok == 1 && p->mean[0] == 0 && isnan(p->deviation[0]));
        mlc_sweep_free(s);
    }
}

static mlc_status fails_late(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    results[0] = 1;
    return t->index < *(const int64_t *)user ? MLC_OK
         : mlc_raise(ctx, MLC_ERR_VALUE, "from %d on", (int)*(const int64_t *)user);
}

TEST(sweep, a_sweep_may_stop_at_the_first_that_fails)
{
    mlc_ctx      *ctx = test_ctx();
    const int64_t first = 5;
    for (int32_t workers = 1; workers < 4; workers += 2) {
        mlc_sweep     *s = NULL;
        mlc_sweep_desc d = desc_of(20, workers);
        d.stop = true;
        CHECK_EQ(mlc_sweep_run(ctx, &d, fails_late, (void *)&first, &s), MLC_ERR_VALUE);
        CHECK_STR(mlc_error(ctx), "sweep_run: trial 5 (lr 0.001, hidden 4, seed 5): from 5 on");
        for (int i = 0; i < 120; i++) {
            const mlc_status st = mlc_sweep_trial(s, i)->status;
            if (i < 5) CHECK_EQ(st, MLC_OK);
            else if (i < 6) CHECK_EQ(st, MLC_ERR_VALUE);
            else CHECK(st == MLC_INTERRUPTED || (st == MLC_ERR_VALUE && i < 5 + workers));
        }
        const mlc_trial *last = mlc_sweep_trial(s, 119);
        CHECK(isnan(last->results[0]) && last->seconds == 0 && !*last->message);
        CHECK(mlc_sweep_point_at(s, 0)->ok == 5 && mlc_sweep_point_at(s, 1)->ok == 0);
        CHECK(isnan(mlc_sweep_point_at(s, 1)->mean[0]));
        mlc_sweep_free(s);
        mlc_error_clear(ctx);
    }
}

TEST(sweep, one_in_which_all_fail_is_an_error)
{
    mlc_ctx       *ctx = test_ctx();
    const int64_t  none = 0;
    mlc_sweep     *s = NULL;
    mlc_sweep_desc d = desc_of(1, 3);
    CHECK_EQ(mlc_sweep_run(ctx, &d, fails_late, (void *)&none, &s), MLC_ERR_VALUE);
    CHECK_STR(mlc_error(ctx), "sweep_run: trial 0 (lr 0.001, hidden 4, seed 0): from 0 on");
    CHECK(s && mlc_sweep_trial(s, 5)->status == MLC_ERR_VALUE);
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, &s), MLC_ERR_VALUE);  /* it stands              */
    CHECK(s == NULL);
    mlc_error_clear(ctx);
    d.ctx.device = "nowhere:3";
    CHECK_EQ(mlc_sweep_run(ctx, &d, plain, NULL, NULL), MLC_ERR_DEVICE);
    CHECK_HAS(mlc_error(ctx), "seed 0): desc.ctx makes no context for the trial");
    mlc_error_clear(ctx);
}

/* The fourth trial has had enough, the second fails. */
static mlc_status ends(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    (void)user; (void)ctx;
    results[0] = 2;
    return t->index == 3 ? MLC_INTERRUPTED : t->index == 1 ? MLC_ERR_IO : MLC_OK;
}

TEST(sweep, a_trial_may_end_the_sweep)
{
    mlc_ctx       *ctx = test_ctx();
    sink           out = {"", 0, 0};
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(2, 1);
    CHECK_EQ(mlc_sweep_run(ctx, &d, ends, NULL, &s), MLC_INTERRUPTED);
    CHECK_OK(ctx);
    CHECK(mlc_sweep_trial(s, 2)->status == MLC_OK && mlc_sweep_trial(s, 3)->results[0] == 2);
    for (int i = 3; i < 12; i++) CHECK_EQ(mlc_sweep_trial(s, i)->status, MLC_INTERRUPTED);
    CHECK_EQ(mlc_sweep_print(s, collect, &out), MLC_OK);
    CHECK_HAS(out.text, "\ntrial 1 (lr 0.001, hidden 4, seed 1): IO: \n");
    CHECK(!strstr(out.text, "trial 3"));
    mlc_sweep_free(s);
}

/* ---- shown ----------------------------------------------------------------------------------- */

TEST(sweep, the_table_has_the_best_first_and_what_failed_last)
{
    sink           out = {"", 0, 0};
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(2, 1);
    CHECK_EQ(mlc_sweep_run(test_ctx(), &d, fails, NULL, &s), MLC_OK);
    CHECK_EQ(mlc_sweep_print(s, collect, &out), MLC_OK);
    const char *want =
        "          lr      hidden       seeds        loss          +-        norm          +-\n"
        "       0.001           4         1/2           0         nan         0.5         nan\n"
        "       0.001           8           2         2.5        0.71         0.5           0\n"
        "         0.1           4         1/2           5         nan         0.5         nan\n"
        "         0.1           8         1/2           6         nan         0.5         nan\n"
        "        0.01           4           2         8.5        0.71         0.5           0\n"
        "        0.01           8         1/2          11         nan         0.5         nan\n"
        "trial 1 (lr 0.001, hidden 4, seed 1): IO: no, \"said\" it\n"
        "trial 4 (lr 0.1, hidden 4, seed 0): SHAPE: ";
    CHECK(strncmp(out.text, want, strlen(want)) == 0);
    if (strncmp(out.text, want, strlen(want)) != 0) printf("%s", out.text);
    CHECK_HAS(out.text, "\ntrial 7 (lr 0.1, hidden 8, seed 1): VALUE: within\n");
    CHECK_HAS(out.text, "\ntrial 10 (lr 0.01, hidden 8, seed 0): INTERNAL: \n");
    mlc_sweep_free(s);
    sink           one = {"", 0, 0};
    static const char *const names[2] = {"l\xC3\xA4nger als zehn", "x"};
    d = desc_of(1, 1);
    d.results = names;
    d.n_axes = 1;
    d.axes = &AXES[1];
    CHECK_EQ(mlc_sweep_run(test_ctx(), &d, odd, NULL, &s), MLC_OK);
    CHECK_EQ(mlc_sweep_print(s, collect, &one), MLC_OK);
    CHECK_STR(one.text, "      hidden       seeds  l\xC3\xA4nger als zehn           x\n"
                        "           4           1                1         nan\n"
                        "           8           1              nan         nan\n");
    mlc_sweep_free(s);
    CHECK_EQ(mlc_sweep_print(NULL, collect, &one), MLC_ERR_ARG);
    CHECK_EQ(mlc_sweep_csv(NULL, "x"), MLC_ERR_ARG);
    mlc_sweep_free(NULL);
}

TEST(sweep, the_file_has_a_row_for_each_trial)
{
    const box      b = box_open_fast("sweep.csv");
    static const char *const names[2] = {"a,b", "norm"};
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep     *s;
    size_t         n;
    mlc_sweep_desc d = desc_of(2, 1);
    d.results = names;
    d.n_axes = 1;
    d.seed = UINT64_MAX;               /* the seed after it is 0                               */
    CHECK_EQ(mlc_sweep_run(ctx, &d, fails, NULL, &s), MLC_OK);
    CHECK_EQ(mlc_sweep_csv(s, b.path), MLC_OK);
    unsigned char *text = get_file(b.path, &n);
    const char *want =
        "trial,lr,seed,\"a,b\",norm,status,message\r\n"
        "0,0.001,18446744073709551615,0,0.5,OK,\r\n"
        "1,0.001,0,1,0.5,IO,\"no, \"\"said\"\" it\"\r\n"
        "2,0.1,18446744073709551615,2,0.5,OK,\r\n"
        "3,0.1,0,3,0.5,OK,\r\n"
        "4,0.01,18446744073709551615,4,0.5,SHAPE,";
    CHECK(text && n > strlen(want) && memcmp(text, want, strlen(want)) == 0);
    CHECK(text && n > 17 && memcmp(text + n - 17, ".01,0,5,0.5,OK,\r\n", 17) == 0);
    free(text);
    CHECK_EQ(box_count(&b), 1);
    CHECK_EQ(mlc_sweep_csv(s, "/nowhere/at/all"), MLC_ERR_IO);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_sweep_csv(s, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    mlc_sweep_free(s);
    box_close(&b);
}

TEST(sweep, a_line_is_written_as_each_trial_ends)
{
    for (int32_t workers = 1; workers < 4; workers += 2) {
        sink           out = {"", 0, 0};
        mlc_sweep     *s;
        mlc_sweep_desc d = desc_of(2, workers);
        char           count[16];
        d.write = collect;
        d.user = &out;
        CHECK_EQ(mlc_sweep_run(test_ctx(), &d, fails, NULL, &s), MLC_OK);
        CHECK_EQ(out.writes, 12);
        const char *line = out.text;
        for (int i = 1; i <= 12; i++) {
            snprintf(count, sizeof count, "%d/12 lr 0.", i);
            CHECK(strncmp(line, count, strlen(count)) == 0);
            line = strchr(line, '\n');
            if (!CHECK(line)) return;
            line++;
        }
        CHECK_EQ(*line, 0);
        CHECK_HAS(out.text, "lr 0.001, hidden 4, seed 0: loss 0, norm 0.5, ");
        CHECK_HAS(out.text, " s\n");
        CHECK_HAS(out.text, "lr 0.001, hidden 4, seed 1: IO: no, \"said\" it\n");
        mlc_sweep_free(s);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct ledger { tally m; int64_t blocks; bool same; } ledger;

/* Leaves all that it makes; each trial begins with as few blocks as the first. */
static mlc_status leaves(void *user, mlc_ctx *ctx, const mlc_trial *t, double *results)
{
    ledger *l = (ledger *)user;
    if (t->index == 0) l->blocks = l->m.blocks;
    l->same = l->same && l->m.blocks == l->blocks;
    mlc_scope_begin(ctx);
    mlc_module *net = mlc_nn_linear(ctx, 20, (int64_t)t->values[1]);
    results[0] = mlc_item(mlc_sum_all(mlc_forward(net, mlc_ones(ctx, MLC_F32, mlc_dims2(1, 20)))));
    mlc_adamw(net, 0.1);
    return t->index == 2 ? mlc_raise(ctx, MLC_ERR_VALUE, "left") : MLC_OK;
}

TEST(sweep, nothing_is_left_of_a_trial_but_its_row)
{
    ledger       l;
    memset(&l, 0, sizeof l);
    mlc_ctx_desc own = tally_desc(&l.m);
    l.same = true;
    mlc_ctx       *ctx = test_ctx();
    mlc_memory     before, after;
    mlc_sweep     *s;
    mlc_sweep_desc d = desc_of(2, 1);
    const int64_t  leaked = test_device_leaked();
    d.ctx = own;
    mlc_memory_info(ctx, &before);
    CHECK_EQ(mlc_sweep_run(ctx, &d, leaves, &l, &s), MLC_OK);
    CHECK(l.same && l.blocks > 0);
    CHECK(l.m.blocks == 0 && l.m.live == 0 && test_device_leaked() == leaked);
    mlc_memory_info(ctx, &after);
    CHECK(after.allocated > before.allocated);
    mlc_sweep_free(s);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(mlc_sweep_run(ctx, &d, leaves, &l, NULL), MLC_OK);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_EQ(mlc_sweep_run(ctx, &d, leaves, &l, &s), MLC_OK);          /* the context frees it   */
}

TEST(sweep, a_block_is_the_context_of_one_trial_after_the_other)
{
    ONLY_ON_HOST();
    static double  block[64 * 1024];
    mlc_sweep     *s;
    mlc_ctx       *ctx = test_ctx();
    mlc_sweep_desc d = desc_of(2, 1);
    d.ctx.memory = block;
    d.ctx.memory_bytes = sizeof block;
    const int64_t steps = 2;
    CHECK_EQ(mlc_sweep_run(ctx, &d, trains, (void *)&steps, &s), MLC_OK);
    for (int i = 0; i < 12; i++) CHECK(mlc_sweep_trial(s, i)->status == MLC_OK);
    mlc_sweep_free(s);
    d.workers = 2;
    CHECK_EQ(mlc_sweep_run(ctx, &d, trains, (void *)&steps, &s), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "ctx.memory is one block, and 2 workers have a context each");
    mlc_error_clear(ctx);
}

/* ---- nonsense -------------------------------------------------------------------------------- */

static bool refused(mlc_ctx *ctx, const mlc_sweep_desc *d, mlc_trial_fn fn, const char *part)
{
    mlc_sweep *s = (mlc_sweep *)ctx;
    const bool held = CHECK_EQ(mlc_sweep_run(ctx, d, fn, NULL, &s), MLC_ERR_ARG) &&
                      CHECK_HAS(mlc_error(ctx), part) && CHECK(s == NULL);
    mlc_error_clear(ctx);
    return held;
}

TEST(sweep, nonsense_is_refused_by_name)
{
    static const char *const bad[2] = {"loss", ""};
    static const char *const none[1] = {NULL};
    char                     longer[65];
    mlc_ctx                 *ctx = test_ctx();
    mlc_sweep_axis           axis = AXES[0];
    const mlc_sweep_desc     good = desc_of(1, 1);
    mlc_sweep_desc           d = good;
    memset(longer, 'x', 64);
    longer[64] = 0;
    CHECK_EQ(mlc_sweep_run(NULL, &d, plain, NULL, NULL), MLC_ERR_ARG);
    refused(ctx, NULL, plain, "sweep_run: desc or the function of a trial is NULL");
    refused(ctx, &d, NULL, "sweep_run: desc or the function of a trial is NULL");
    d.n_axes = 65;
    refused(ctx, &d, plain, "65 axes");
    d.n_axes = -1;
    refused(ctx, &d, plain, "-1 axes");
    d = good;
    d.axes = NULL;
    refused(ctx, &d, plain, "it takes 0 to 64");
    d = good;
    d.n_results = 0;
    refused(ctx, &d, plain, "0 results");
    d.n_results = 65;
    refused(ctx, &d, plain, "65 results");
    d = good;
    d.results = NULL;
    refused(ctx, &d, plain, "see mlc_sweep_desc_make");
    d = good;
    d.best = 2;
    refused(ctx, &d, plain, "best is 2; there are 2 results");
    d.best = -1;
    refused(ctx, &d, plain, "best is -1");
    d = good;
    d.n_seeds = 0;
    refused(ctx, &d, plain, "0 seeds");
    d = good;
    d.workers = -1;
    refused(ctx, &d, plain, "-1 workers");
    d = good;
    d.random = 7;
    refused(ctx, &d, plain, "random is 7, of a grid of 6 points");
    d.random = -1;
    refused(ctx, &d, plain, "random is -1");
    d = good;
    d.results = bad;
    refused(ctx, &d, plain, "the name of result 1 is NULL, empty or over 63 bytes");
    d.results = none;
    d.n_results = 1;
    refused(ctx, &d, plain, "the name of result 0");
    d = good;
    d.n_axes = 1;
    d.axes = &axis;
    axis.name = longer;
    refused(ctx, &d, plain, "the name of axis 0");
    axis.name = longer + 1;                                /* 63 bytes                          */
    axis.n = 0;
    refused(ctx, &d, plain, "has 0 values");
    axis.n = 1;
    axis.values = NULL;
    refused(ctx, &d, plain, "has 1 values");
    d = good;
    d.n_seeds = INT32_MAX;
    refused(ctx, &d, plain, "6 points of 2147483647 seeds are 12884901882 trials; at most 1048576");
    axis = AXES[0];
    axis.n = INT32_MAX;
    mlc_sweep_axis many[3] = {AXES[0], AXES[1], axis};
    d = good;
    d.axes = many;
    d.n_axes = 3;
    refused(ctx, &d, plain, "the grid of the axes up to 'lr' has 12884901882 points");
    d = mlc_sweep_desc_make(AXES, 2, RESULTS, 2);
    CHECK(d.axes == AXES && d.n_axes == 2 && d.results == RESULTS && d.n_results == 2);
    CHECK(d.best == 0 && !d.higher && !d.stop && d.seed == 0 && d.n_seeds == 1 && d.random == 0);
    CHECK(d.workers >= 1 && d.ctx.threads == 1 && !d.ctx.device && !d.write);
}
