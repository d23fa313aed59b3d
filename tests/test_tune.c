/* test_tune.c -- tests of section IMPL.TUNE: settings found by trials */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

#ifndef MLC_NO_TUNE

#ifndef _WIN32
#  include <signal.h>
#  include <sys/wait.h>
#endif

static const char *const KINDS[] = {"sgd", "adam", "lion"};

/* A bowl in three parameters and a choice, of which one has a setting of its own. */
static int params_of(mlc_tune_param p[5])
{
    p[0] = mlc_tune_real("x", -5, 5);
    p[1] = mlc_tune_real_log("lr", 1e-5, 1);
    p[2] = mlc_tune_whole("n", 2, 11);
    p[2].step = 3;                     /* 2, 5, 8, 11                                          */
    p[3] = mlc_tune_choice("kind", KINDS, 3);
    p[4] = mlc_tune_real("beta", 0, 1);
    p[4].when = "kind";
    p[4].from = p[4].to = 1;
    return 5;
}

static double bowl(const double *v)
{
    const double l = log10(v[1]) + 2;
    const double choice = v[3] == 1 ? 2 * (v[4] - 0.25) * (v[4] - 0.25) : 1 + v[3];
    return (v[0] - 1) * (v[0] - 1) + l * l + fabs(v[2] - 8) / 3 + choice;
}

static mlc_tuner *tuner_of(mlc_ctx *ctx, mlc_tune_method method, uint64_t seed, int64_t trials,
                           const char *record)
{
    mlc_tune_param        p[5];
    const mlc_tune_result r = mlc_tune_result_make("loss", 1);
    mlc_tune_desc         d = mlc_tune_desc_make(p, params_of(p), &r, 1);
    d.method = method;
    d.seed = seed;
    d.trials = trials;
    d.record = record;
    return mlc_tune_create(ctx, &d);
}

/* Asks and tells until there is no trial more; returns how many there were. */
static int64_t finish(mlc_tuner *t)
{
    const mlc_tune_trial *q;
    int64_t               n = 0;
    for (; (q = mlc_tune_ask(t)) != NULL; n++) {
        const double y = bowl(q->values);
        if (mlc_tune_tell(t, q->id, &y) != MLC_OK) return -1;
    }
    return n;
}

static double best_of(mlc_ctx *ctx, mlc_tune_method method, uint64_t seed, int64_t trials)
{
    mlc_tuner *t = tuner_of(ctx, method, seed, trials, NULL);
    CHECK_EQ(finish(t), trials);
    const double best = mlc_tune_best(t)->objective;
    mlc_tune_free(t);
    return best;
}

/* ---- trials ---------------------------------------------------------------------------------- */

TEST(tune, values_are_within_their_parameters)
{
    mlc_ctx *ctx = test_ctx();
    for (int method = MLC_TUNE_TPE; method <= MLC_TUNE_HALVING; method++) {
        mlc_tuner *t = tuner_of(ctx, (mlc_tune_method)method, 3, 60, NULL);
        bool       kinds[3] = {false, false, false};
        if (!CHECK(t)) return;
        CHECK_EQ(finish(t), 60);
        for (int64_t i = 0; i < 60; i++) {
            const double *v = mlc_tune_trial_at(t, i)->values;
            CHECK(v[0] >= -5 && v[0] <= 5 && v[1] >= 1e-5 && v[1] <= 1);
            CHECK(v[2] == 2 || v[2] == 5 || v[2] == 8 || v[2] == 11);
            CHECK(v[3] == 0 || v[3] == 1 || v[3] == 2);
            CHECK(v[3] == 1 ? v[4] >= 0 && v[4] <= 1 : isnan(v[4]));
            kinds[(int)v[3]] = true;
        }
        CHECK(kinds[0] && (method == MLC_TUNE_GRID || (kinds[1] && kinds[2])));
        CHECK(!mlc_tune_trial_at(t, 60) && !mlc_tune_trial_at(t, -1));
        mlc_tune_free(t);
    }
    CHECK_OK(ctx);
}

TEST(tune, a_log_parameter_is_even_in_its_logarithm)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_param  p[2] = {mlc_tune_real_log("a", 1e-4, 1), mlc_tune_whole_log("b", 1, 100)};
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    mlc_tune_desc         d = mlc_tune_desc_make(p, 2, &r, 1);
    const mlc_tune_trial *q;
    int                   low[2] = {0, 0}, ones = 0;
    d.method = MLC_TUNE_RANDOM;
    d.trials = 4000;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    while ((q = mlc_tune_ask(t)) != NULL) {
        low[0] += q->values[0] < 1e-2;
        low[1] += q->values[1] < 10.5;
        ones += q->values[1] == 1;
        CHECK(q->values[1] >= 1 && q->values[1] <= 100 && q->values[1] == floor(q->values[1]));
    }
    /* Standard deviations of these counts are 32 and below. */
    CHECK_NEAR(low[0], 2000, 130);
    CHECK_NEAR(low[1], 4000 * log(10.5 / 0.5) / log(100.5 / 0.5), 130);
    CHECK_NEAR(ones, 4000 * log(3) / log(201), 110);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune, a_grid_has_each_point_once)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    mlc_tune_param        p[3] = {mlc_tune_real_log("a", 1e-2, 1), mlc_tune_choice("b", NULL, 2),
                                  mlc_tune_whole("c", 1, 3)};
    mlc_tune_desc         d = mlc_tune_desc_make(p, 3, &r, 1);
    /* c is asked for where b is 1: (1 + 3) points for each of three a. */
    static const double   want[12][3] = {
        {0.01, 0, 0}, {0.01, 1, 1}, {0.01, 1, 2}, {0.01, 1, 3}, {0.1, 0, 0}, {0.1, 1, 1},
        {0.1, 1, 2},  {0.1, 1, 3},  {1, 0, 0},    {1, 1, 1},    {1, 1, 2},   {1, 1, 3}};
    p[0].points = 3;
    p[2].when = "b";
    p[2].from = 1;
    d.method = MLC_TUNE_GRID;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    for (int i = 0; i < 12; i++) {
        const mlc_tune_trial *q = mlc_tune_ask(t);
        if (!CHECK(q)) return;
        CHECK_NEAR(q->values[0], want[i][0], 1e-15);
        CHECK_NEAR(q->values[1], want[i][1], 0);
        CHECK(want[i][1] == 0 ? isnan(q->values[2]) : q->values[2] == want[i][2]);
        CHECK(q->id == i && q->budget == 1 && q->of == -1 && q->tells == 0);
    }
    CHECK(!mlc_tune_ask(t));
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

/* All of few whole numbers, and those of even logarithms, which are rounded, are there once. */
TEST(tune, a_grid_of_whole_numbers_has_no_number_twice)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    for (int points = 0; points <= 9; points++) {
        mlc_tune_param        p = mlc_tune_whole_log("n", 1, 8);
        mlc_tune_desc         d = mlc_tune_desc_make(&p, 1, &r, 1);
        const mlc_tune_trial *q;
        int                   n = 0;
        double                was = 0;
        p.points = points;
        d.method = MLC_TUNE_GRID;
        mlc_tuner *t = mlc_tune_create(ctx, &d);
        for (; (q = mlc_tune_ask(t)) != NULL; n++) {
            CHECK(q->values[0] > was && q->values[0] <= 8);
            was = q->values[0];
        }
        /* Of 7 points 1, 1.41, 2, 2.83, 4, 5.66, 8 the first two are one. */
        CHECK(points == 0 || points >= 8 ? n == 8 : points == 7 ? n == 6 : n <= points && n > 0);
        mlc_tune_free(t);
    }
    CHECK_OK(ctx);
}

TEST(tune, halving_gives_more_effort_to_a_third)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_HALVING, 1, 200, NULL);
    int        rungs[4] = {0, 0, 0, 0};
    const mlc_tune_trial *q;
    while ((q = mlc_tune_ask(t)) != NULL) {
        const double          y = bowl(q->values);
        const mlc_tune_trial *from = mlc_tune_trial_at(t, q->of);
        int                   rung = 0;
        while (rung < 3 && fabs(q->budget - pow(3, rung - 3)) > 1e-12) rung++;
        CHECK_NEAR(q->budget, pow(3, rung - 3), 1e-12);
        rungs[rung]++;
        CHECK(rung == 0 ? q->of == -1 : from && fabs(from->budget * 3 - q->budget) < 1e-12);
        if (from) {
            int told = 0, better = 0;
            for (int64_t i = 0; i < q->id; i++) {
                const mlc_tune_trial *o = mlc_tune_trial_at(t, i);
                told += o->budget == from->budget;
                better += o->budget == from->budget && o->objective < from->objective;
            }
            CHECK(better < told / 3 && memcmp(from->values, q->values, 5 * sizeof y) == 0);
        }
        CHECK_EQ(mlc_tune_tell(t, q->id, &y), MLC_OK);
    }
    for (int i = 0; i < 3; i++) CHECK(rungs[i + 1] >= 2 && 5 * rungs[i + 1] <= 3 * rungs[i]);
    CHECK_NEAR(mlc_tune_best(t)->budget, 1, 0);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune, tpe_is_better_than_random_trials)
{
    mlc_ctx *ctx = test_ctx();
    int      better = 0;
    for (uint64_t seed = 0; seed < 20; seed++)
        better += best_of(ctx, MLC_TUNE_TPE, seed, 80) < best_of(ctx, MLC_TUNE_RANDOM, seed, 80);
    CHECK(better >= 17);
    CHECK_OK(ctx);
}

TEST(tune, the_same_seed_asks_the_same)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_tuner *t[3] = {tuner_of(ctx, MLC_TUNE_TPE, 5, 40, NULL),
                       tuner_of(ctx, MLC_TUNE_TPE, 5, 40, NULL),
                       tuner_of(ctx, MLC_TUNE_TPE, 6, 40, NULL)};
    int        same = 0;
    for (int i = 0; i < 3; i++) finish(t[i]);
    for (int i = 0; i < 40; i++) {
        const double *a = mlc_tune_trial_at(t[0], i)->values;
        CHECK(memcmp(a, mlc_tune_trial_at(t[1], i)->values, 5 * sizeof *a) == 0);
        same += a[0] == mlc_tune_trial_at(t[2], i)->values[0];
    }
    CHECK_EQ(same, 0);
    for (int i = 0; i < 3; i++) mlc_tune_free(t[i]);
    CHECK_OK(ctx);
}

TEST(tune, workers_are_not_given_the_same)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_param  p = mlc_tune_real("x", 0, 1);
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    mlc_tune_desc         d = mlc_tune_desc_make(&p, 1, &r, 1);
    double                spread[2] = {0, 0}, x[8];
    d.trials = 200;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    for (int i = 0; i < 60; i++) {
        const mlc_tune_trial *q = mlc_tune_ask(t);
        const double          y = fabs(q->values[0] - 0.3);
        CHECK_EQ(mlc_tune_tell(t, q->id, &y), MLC_OK);
        if (i >= 52) spread[0] += y / 8;
    }
    for (int i = 0; i < 8; i++) {      /* eight at the same time                               */
        x[i] = mlc_tune_ask(t)->values[0];
        spread[1] += fabs(x[i] - 0.3) / 8;
        for (int k = 0; k < i; k++) CHECK(x[i] != x[k]);
    }
    CHECK(spread[1] > spread[0]);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* A sketched layer: the time is low_rank num_terms, which a limit of error wants at 615 or more.
 * The best of 93 settings are 640 1 and 320 2. */
static mlc_tuner *limited(mlc_ctx *ctx, uint64_t seed, const char *record)
{
    mlc_tune_param  p[2] = {mlc_tune_whole("rank", 32, 992), mlc_tune_whole("terms", 1, 3)};
    mlc_tune_result r[2] = {mlc_tune_result_make("ms", 1), mlc_tune_result_make("error", 0)};
    p[0].step = 32;
    r[1].most = -615;
    mlc_tune_desc d = mlc_tune_desc_make(p, 2, r, 2);
    d.seed = seed;
    d.trials = 23;
    d.startup = 5;
    d.record = record;
    return mlc_tune_create(ctx, &d);
}

static bool limited_step(mlc_tuner *t)
{
    const mlc_tune_trial *q = mlc_tune_ask(t);
    if (!q) return false;
    const double y[2] = {q->values[0] * q->values[1], -q->values[0] * q->values[1]};
    return mlc_tune_tell(t, q->id, y) == MLC_OK;
}

/* In a quarter of the trials of a grid; by TPE alone 21 of these 40 searches do. */
TEST(tune, the_best_beside_a_limit_is_found)
{
    mlc_ctx *ctx = test_ctx();
    int      found = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        mlc_tuner *t = limited(ctx, seed, NULL);
        while (limited_step(t)) {}
        found += mlc_tune_best(t)->objective == 640;
        mlc_tune_free(t);
    }
    CHECK(found >= 36);
    CHECK_OK(ctx);
}

TEST(tune, a_record_goes_on_with_the_same_bisection)
{
    mlc_ctx   *ctx = test_ctx();
    box        b = box_open_fast("tune.jsonl");
    mlc_tuner *whole = limited(ctx, 3, NULL);
    for (int i = 0; i < 23; i++) {
        mlc_tuner *t = limited(ctx, 3, b.path);
        if (!CHECK(limited_step(t) && limited_step(whole))) break;
        const double *v = mlc_tune_trial_at(whole, i)->values;
        CHECK(memcmp(mlc_tune_trial_at(t, i)->values, v, 2 * sizeof *v) == 0);
        mlc_tune_free(t);
    }
    mlc_tune_free(whole);
    box_close(&b);
    CHECK_OK(ctx);
}

/* Layers of which 0 has no terms: a bisection gives no terms to it, and takes none from others. */
TEST(tune, a_bisection_stays_within_parameters)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_tune_param  p[4] = {mlc_tune_whole("a", 0, 248), mlc_tune_whole("b", 1, 3),
                            mlc_tune_whole_log("c", 1, 300), mlc_tune_real("d", 0, 1)};
    mlc_tune_result r[2] = {mlc_tune_result_make("ms", 1), mlc_tune_result_make("error", 0)};
    const mlc_tune_trial *q;
    p[0].step = 8;
    p[1].when = "a";
    p[1].from = 1;
    r[1].most = 0.8;
    mlc_tune_desc d = mlc_tune_desc_make(p, 4, r, 2);
    d.trials = 200;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    int        twice = 0;
    while ((q = mlc_tune_ask(t)) != NULL) {
        const double *v = q->values, size = v[0] > 0 ? v[0] * v[1] : 900;
        const double  y[2] = {size + v[2], exp(-size / 90) + exp(-v[2] / 40) + 0.1 * v[3]};
        CHECK(v[0] >= 0 && v[0] <= 248 && fmod(v[0], 8) == 0 && isnan(v[1]) == (v[0] == 0));
        CHECK(isnan(v[1]) || v[1] == 1 || v[1] == 2 || v[1] == 3);
        CHECK(v[2] >= 1 && v[2] <= 300 && floor(v[2]) == v[2] && v[3] >= 0 && v[3] <= 1);
        for (int64_t i = 0; i < q->id && (q->id & 1); i++)
            twice += memcmp(mlc_tune_trial_at(t, i)->values, v, 4 * sizeof *v) == 0;
        CHECK_EQ(mlc_tune_tell(t, q->id, y), MLC_OK);
    }
    CHECK(mlc_tune_best(t) && twice == 0);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

/* ---- results --------------------------------------------------------------------------------- */

TEST(tune, several_tells_give_mean_and_deviation)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_RANDOM, 1, 10, NULL);
    static const double y[4] = {3, 5, 10, 6};
    const mlc_tune_trial *q = mlc_tune_ask(t), *other = mlc_tune_ask(t);
    CHECK(q->tells == 0 && isnan(q->mean[0]) && isnan(q->objective) && !mlc_tune_best(t));
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(mlc_tune_tell(t, q->id, &y[i]), MLC_OK);
        CHECK_EQ(q->tells, i + 1);
        CHECK(i > 0 || isnan(q->deviation[0]));
    }
    CHECK_NEAR(q->mean[0], 6, 1e-15);
    CHECK_NEAR(q->deviation[0], sqrt((9 + 1 + 16) / 3.0), 1e-14);
    CHECK_NEAR(q->objective, 6, 1e-15);
    CHECK(mlc_tune_best(t) == q);
    CHECK_EQ(mlc_tune_tell(t, other->id, NULL), MLC_OK);
    CHECK(other->failed && mlc_tune_best(t) == q);
    CHECK_EQ(mlc_tune_tell(t, other->id, y), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "trial 1 has failed");
    CHECK_EQ(mlc_tune_tell(t, 2, y), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "trial 2; 2 were asked for");
    CHECK_NEAR(mlc_tune_value(t, q, "lr"), q->values[1], 0);
    CHECK(isnan(mlc_tune_value(t, q, "no")) && isnan(mlc_tune_value(t, NULL, "lr")));
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune, trials_that_fail_are_avoided)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_param  p = mlc_tune_real("x", 0, 1);
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    mlc_tune_desc         d = mlc_tune_desc_make(&p, 1, &r, 1);
    const mlc_tune_trial *q;
    int                   failed = 0;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    while ((q = mlc_tune_ask(t)) != NULL) {        /* below 0.7 nothing is known               */
        const double y = q->values[0] < 0.7 ? NO_NUMBER : q->values[0];
        CHECK_EQ(mlc_tune_tell(t, q->id, &y), MLC_OK);
        CHECK(q->failed == (q->values[0] < 0.7));
        failed += q->failed && q->id >= 50;
    }
    CHECK(failed < 25);                /* 35 of 50 random ones                                 */
    CHECK(mlc_tune_best(t)->values[0] >= 0.7 && mlc_tune_best(t)->values[0] < 0.72);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

/* Finite results whose sum, or whose mean, is not. */
TEST(tune, an_objective_that_is_not_finite_is_a_failure)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_param  p = mlc_tune_real("x", 0, 1);
    const mlc_tune_result r[2] = {mlc_tune_result_make("a", 1), mlc_tune_result_make("b", -1)};
    const mlc_tune_desc   d = mlc_tune_desc_make(&p, 1, r, 2);
    const double          far[2] = {1e308, -1e308}, back[2] = {-1e308, -1e308}, good[2] = {1, 2};
    mlc_tuner            *t = mlc_tune_create(ctx, &d);
    for (int i = 0; i < 3; i++) CHECK_EQ(mlc_tune_ask(t)->id, i);
    CHECK(mlc_tune_tell(t, 0, far) == MLC_OK && mlc_tune_tell(t, 1, back) == MLC_OK);
    CHECK(mlc_tune_trial_at(t, 0)->failed && !mlc_tune_trial_at(t, 1)->failed);
    CHECK(isnan(mlc_tune_trial_at(t, 0)->objective));
    CHECK_EQ(mlc_tune_tell(t, 0, good), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "trial 0 has failed");
    const double other[2] = {1e308, -1e308};       /* its distance to the mean is not finite   */
    CHECK(mlc_tune_tell(t, 1, other) == MLC_OK && mlc_tune_trial_at(t, 1)->failed);
    CHECK(mlc_tune_tell(t, 2, good) == MLC_OK && mlc_tune_best(t)->id == 2);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

/* Time falls and error grows with x: the limit decides. */
TEST(tune, the_best_is_within_the_limits)
{
    mlc_ctx              *ctx = test_ctx();
    const mlc_tune_param  p[2] = {mlc_tune_real("x", 0, 1), mlc_tune_real("z", 0, 1)};
    mlc_tune_result       r[3] = {mlc_tune_result_make("time", 1), mlc_tune_result_make("error", 0),
                                  mlc_tune_result_make("accuracy", -0.01)};
    mlc_tune_desc         d = mlc_tune_desc_make(p, 2, r, 3);
    const mlc_tune_trial *q;
    int                   valid = 0;
    r[1].most = 0.25;
    r[2].least = 0.5;
    mlc_tuner *t = mlc_tune_create(ctx, &d);
    while ((q = mlc_tune_ask(t)) != NULL) {
        const double y[3] = {1 - q->values[0], q->values[0] * q->values[0], 1 - q->values[1]};
        const double over = fmax(0, y[1] - 0.25) / 0.25 + fmax(0, 0.5 - y[2]) / 0.5;
        CHECK_EQ(mlc_tune_tell(t, q->id, y), MLC_OK);
        CHECK_NEAR(q->violation, over, 1e-12);
        CHECK_NEAR(q->objective, y[0] - 0.01 * y[2], 1e-15);
        valid += q->id >= 60 && over == 0;
    }
    q = mlc_tune_best(t);
    CHECK(q->violation == 0 && q->values[0] > 0.47 && q->values[0] <= 0.5 && q->values[1] <= 0.5);
    CHECK(valid > 15);                 /* 10 of 40 random ones                                 */
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune, no_trial_is_the_best_where_none_is_valid)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_tune_param  p[5];
    mlc_tune_result r = mlc_tune_result_make("loss", 1);
    r.most = -1;
    mlc_tune_desc   d = mlc_tune_desc_make(p, params_of(p), &r, 1);
    mlc_tuner      *t = mlc_tune_create(ctx, &d);
    CHECK_EQ(finish(t), 100);
    CHECK(!mlc_tune_best(t) && mlc_tune_front(t, 0, 0, NULL, 0) == 0);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune, the_front_is_what_nothing_is_better_than)
{
    static const double y[8][2] = {{1, 5}, {2, 3}, {2, 4}, {3, 3}, {4, 9}, {5, 1}, {2, 3}, {0, 0}};
    static const int    want[3] = {4, 0, 1};
    mlc_ctx            *ctx = test_ctx();
    const mlc_tune_param p = mlc_tune_real("x", 0, 1);
    mlc_tune_result     r[2] = {mlc_tune_result_make("time", 1), mlc_tune_result_make("error", 1)};
    mlc_tune_desc       d = mlc_tune_desc_make(&p, 1, r, 2);
    const mlc_tune_trial *list[4];
    r[0].least = 0.5;                  /* the last one is not valid                            */
    for (int flip = 0; flip < 2; flip++) {
        r[1].weight = flip ? -1 : 1;
        mlc_tuner *t = mlc_tune_create(ctx, &d);
        for (int i = 0; i < 8; i++) CHECK_EQ(mlc_tune_tell(t, mlc_tune_ask(t)->id, y[i]), MLC_OK);
        if (flip) {                    /* the more the better: 5 at 1, 9 at 4                  */
            CHECK_EQ(mlc_tune_front(t, 0, 1, list, 4), 2);
            CHECK(list[0]->id == 0 && list[1]->id == want[0]);
        } else {
            CHECK_EQ(mlc_tune_front(t, 0, 1, list, 2), 3);
            CHECK(list[0]->id == want[1] && list[1]->id == want[2]);
            CHECK_EQ(mlc_tune_front(t, 1, 0, list, 4), 3);
            CHECK(list[0]->id == 5 && list[1]->id == 1 && list[2]->id == 0);
        }
        CHECK(mlc_tune_front(t, 2, 0, list, 4) == 0 && mlc_tune_front(t, 0, -1, list, 4) == 0);
        mlc_tune_free(t);
    }
    CHECK_OK(ctx);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Trials of a tuner that was stopped after `stop` tells and went on from its record are those of
 * one that was not, whatever the method. */
TEST(tune, a_record_goes_on_with_the_same_trials)
{
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("tune.jsonl");
    for (int method = MLC_TUNE_TPE; method <= MLC_TUNE_HALVING; method++) {
        mlc_tuner *whole = tuner_of(ctx, (mlc_tune_method)method, 9, 50, NULL);
        CHECK_EQ(finish(whole), 50);
        for (int part = 1; part <= 3; part++) {
            mlc_tuner *t = tuner_of(ctx, (mlc_tune_method)method, 9, 15 * part, b.path);
            if (!CHECK(t)) return;
            CHECK_EQ(finish(t), 15);
            mlc_tune_free(t);
        }
        mlc_tuner *t = tuner_of(ctx, (mlc_tune_method)method, 9, 50, b.path);
        CHECK_EQ(finish(t), 5);
        for (int i = 0; i < 50; i++) {
            const mlc_tune_trial *x = mlc_tune_trial_at(whole, i), *y = mlc_tune_trial_at(t, i);
            for (int k = 0; k < 5; k++)
                CHECK(x->values[k] == y->values[k] || (isnan(x->values[k]) && isnan(y->values[k])));
            CHECK(x->objective == y->objective && x->of == y->of && x->budget == y->budget);
        }
        mlc_tune_free(t);
        mlc_tune_free(whole);
        remove(b.path);
    }
    box_close(&b);
    CHECK_OK(ctx);
}

TEST(tune, a_record_gives_trials_that_were_not_told_again)
{
    mlc_ctx   *ctx = test_ctx();
    box        b = box_open_fast("tune.jsonl");
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_TPE, 2, 30, b.path);
    double     x[4];
    for (int i = 0; i < 4; i++) x[i] = mlc_tune_ask(t)->values[0];
    const double y = 1, z = 4;
    CHECK(mlc_tune_tell(t, 2, &y) == MLC_OK && mlc_tune_tell(t, 2, &z) == MLC_OK);
    CHECK_EQ(mlc_tune_tell(t, 0, NULL), MLC_OK);
    mlc_tune_free(t);
    t = tuner_of(ctx, MLC_TUNE_TPE, 2, 30, b.path);
    const mlc_tune_trial *one = mlc_tune_ask(t), *two = mlc_tune_ask(t), *three = mlc_tune_ask(t);
    CHECK(one->id == 1 && one->values[0] == x[1] && two->id == 3 && two->values[0] == x[3]);
    CHECK(three->id == 4 && mlc_tune_trial_at(t, 0)->failed);
    CHECK(mlc_tune_trial_at(t, 2)->tells == 2 && mlc_tune_trial_at(t, 2)->mean[0] == 2.5);
    mlc_tune_free(t);
    box_close(&b);
    CHECK_OK(ctx);
}

/* A record that ends within a line, at any byte of its last two, is one without it. */
TEST(tune, a_line_that_was_cut_off_is_dropped)
{
    mlc_ctx   *ctx = test_ctx();
    box        b = box_open_fast("tune.jsonl");
    size_t     n = 0, cut;
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_TPE, 2, 12, b.path);
    CHECK_EQ(finish(t), 12);
    const double x = mlc_tune_trial_at(t, 11)->values[0];
    mlc_tune_free(t);
    char *text = (char *)get_file(b.path, &n);
    for (cut = n, t = NULL; cut > n - 200; cut--) {
        put_file(b.path, text, cut);
        t = tuner_of(ctx, MLC_TUNE_TPE, 2, 12, b.path);
        if (!CHECK(t)) break;
        const int64_t left = finish(t);
        CHECK(cut == n ? left == 0 : left == 1 || left == 2);
        CHECK(mlc_tune_trial_at(t, 11)->values[0] == x);
        mlc_tune_free(t);
    }
    for (cut = 0; cut < 40; cut += 13) {           /* in its first line                        */
        put_file(b.path, text, cut);
        t = tuner_of(ctx, MLC_TUNE_TPE, 2, 12, b.path);
        CHECK_EQ(finish(t), 12);
        mlc_tune_free(t);
    }
    size_t again = 0;
    char  *whole = (char *)get_file(b.path, &again);
    CHECK(again == n && memcmp(whole, text, n) == 0);
    free(whole);
    free(text);
    box_close(&b);
    CHECK_OK(ctx);
}

TEST(tune, a_record_that_is_none_is_refused)
{
    static const struct { const char *from, *to, *says; } bad[] = {
        {"{\"mlcore_tune\":1", "{\"mlcore_tune\":2", "record of other parameters"},
        {"\"seed\":2", "\"seed\":3", "record of other parameters"},
        {"{\"ask\":0", "{\"ask\":1", "trials are not in their order"},
        {"{\"ask\":0", "{\"say\":0", "neither ask nor tell"},
        {"{\"tell\":1", "{\"tell\":7", "results of a trial that cannot be told"},
        {"\"results\":[1.5]", "\"results\":[1e999]", "a result is not finite"},
        {"\"results\":[1.5]", "\"results\":[1.5,2]", "']' is missing"},
        {"\"values\":[", "\"values\":[7", "a value that no trial has"},
        {"]}\n{", "]}}\n{", "more on the line"}};
    mlc_ctx     *ctx = test_ctx();
    box          b = box_open_fast("tune.jsonl");
    size_t       n = 0;
    const double y = 1.5;
    mlc_tuner   *t = tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path);
    for (int i = 0; i < 2; i++) mlc_tune_tell(t, mlc_tune_ask(t)->id, &y);
    mlc_tune_free(t);
    char *text = (char *)get_file(b.path, &n);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char        broken[4096];
        const char *at = strstr(text, bad[i].from);
        if (i + 1 == sizeof bad / sizeof *bad) at = strstr(at + 3, bad[i].from);
        if (!CHECK(at && n < 4000)) continue;
        snprintf(broken, sizeof broken, "%.*s%s%s", (int)(at - text), text, bad[i].to,
                 at + strlen(bad[i].from));
        put_file(b.path, broken, strlen(broken));
        CHECK(!tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path));
        CHECK_HAS(mlc_error(ctx), bad[i].says);
        mlc_error_clear(ctx);
    }
    put_file(b.path, "a,b\n1,2\n", 8);
    CHECK(!tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path));
    CHECK_ERROR(ctx, MLC_ERR_IO, "is no record of a tuner");
    free(text);
    box_close(&b);
    CHECK_OK(ctx);
}

#ifndef _WIN32
/* A child tunes; it is killed while it measures a trial, of which it has said the values. */
TEST(tune, a_killed_search_goes_on_with_the_same_question)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    box      b = box_open_fast("tune.jsonl");
    double   asked[5], none;
    int      to[2], status = 0;
    if (!CHECK(pipe(to) == 0)) return;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        mlc_tuner *t = tuner_of(ctx, MLC_TUNE_TPE, 4, 100, b.path);
        alarm(60);
        for (int i = 0;; i++) {
            const mlc_tune_trial *q = mlc_tune_ask(t);
            const double          y = bowl(q->values);
            if (i == 23 && write(to[1], q->values, sizeof asked) > 0) for (;;) pause();
            mlc_tune_tell(t, q->id, &y);
        }
    }
    close(to[1]);
    CHECK(child > 0 && read(to[0], asked, sizeof asked) == (ssize_t)sizeof asked);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && read(to[0], &none, 1) == 0);
    close(to[0]);
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_TPE, 4, 100, b.path);
    mlc_tuner *whole = tuner_of(ctx, MLC_TUNE_TPE, 4, 40, NULL);
    if (!CHECK(t && whole)) return;
    for (int i = 0; i < 23; i++) CHECK_EQ(mlc_tune_trial_at(t, i)->tells, 1);
    finish(whole);
    for (int i = 23; i < 40; i++) {    /* and all further ones are those of no kill            */
        const mlc_tune_trial *q = mlc_tune_ask(t), *w = mlc_tune_trial_at(whole, i);
        const double          y = bowl(q->values);
        CHECK_EQ(q->id, i);
        if (i == 23) CHECK(memcmp(q->values, asked, sizeof asked) == 0);
        CHECK(memcmp(q->values, w->values, 4 * sizeof *asked) == 0);
        CHECK_EQ(mlc_tune_tell(t, q->id, &y), MLC_OK);
    }
    mlc_tune_free(whole);
    mlc_tune_free(t);
    box_close(&b);
    CHECK_OK(ctx);
}
#endif

/* A second tuner that writes the same file, and a file that is gone: what is on disk stays. */
TEST(tune, a_record_is_of_one_tuner_at_a_time)
{
    mlc_ctx     *ctx = test_ctx();
    box          b = box_open_fast("tune.jsonl");
    const double y = 1;
    mlc_tuner   *one = tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path);
    CHECK(mlc_tune_ask(one));
    mlc_tuner *two = tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path);
    CHECK(mlc_tune_ask(two) && mlc_tune_tell(two, 0, &y) == MLC_OK);
    CHECK_EQ(mlc_tune_tell(one, 0, &y), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "of one tuner at a time");
    CHECK(!mlc_tune_ask(one) && mlc_tune_trial_at(one, 0)->tells == 0);
    CHECK_ERROR(ctx, MLC_ERR_IO, "tune.jsonl");
    CHECK(mlc_tune_ask(two) && mlc_tune_tell(two, 1, &y) == MLC_OK);
    mlc_tune_free(one);
    one = tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path);
    CHECK(one && mlc_tune_trial_at(one, 1)->tells == 1 && remove(b.path) == 0);
    CHECK(!mlc_tune_ask(one));
    CHECK_ERROR(ctx, MLC_ERR_IO, "has 0 bytes");
    mlc_tune_free(two);
    mlc_tune_free(one);
    box_close(&b);
    CHECK_OK(ctx);
}

/* Labels tell what an index means: in another order they make another search. */
TEST(tune, a_record_of_other_labels_is_refused)
{
    static const char *const labels[2][2] = {{"a\n", "b"}, {"b", "a\n"}};
    mlc_ctx              *ctx = test_ctx();
    box                   b = box_open_fast("tune.jsonl");
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    for (int i = 0; i < 3; i++) {
        const mlc_tune_param p = mlc_tune_choice("c", labels[i & 1], 2);
        mlc_tune_desc        d = mlc_tune_desc_make(&p, 1, &r, 1);
        d.record = b.path;
        mlc_tuner *t = mlc_tune_create(ctx, &d);
        CHECK(i == 1 ? !t : t && mlc_tune_ask(t));
        if (i == 1) CHECK_ERROR(ctx, MLC_ERR_STATE, "other parameters, labels, results");
        mlc_tune_free(t);
    }
    box_close(&b);
    CHECK_OK(ctx);
}

/* A file that cannot be written: the trial is neither given nor told. */
TEST(tune, a_record_that_cannot_be_written_changes_nothing)
{
    mlc_ctx   *ctx = test_ctx();
    box        b = box_open_fast("tune.jsonl");
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_RANDOM, 2, 12, b.path);
    const double y = 1;
    const mlc_tune_trial *q = mlc_tune_ask(t);
    CHECK(q && remove(b.path) == 0 && folder_make(b.path) == 0);
    CHECK_EQ(mlc_tune_tell(t, 0, &y), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "tune.jsonl");
    CHECK(q->tells == 0 && !mlc_tune_ask(t) && !mlc_tune_trial_at(t, 1));
    CHECK_ERROR(ctx, MLC_ERR_IO, "tune.jsonl");
    mlc_tune_free(t);
    rmdir(b.path);
    box_close(&b);
    CHECK_OK(ctx);
}

/* ---- shown ----------------------------------------------------------------------------------- */

typedef struct sink { char text[16384]; size_t n; } sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    if (s->n + bytes >= sizeof s->text) return;
    memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = 0;
}

TEST(tune, the_table_has_the_best_first)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_tuner *t = tuner_of(ctx, MLC_TUNE_RANDOM, 1, 3, NULL);
    sink       s = {"", 0};
    for (int i = 0; i < 3; i++) {
        const double y = i == 1 ? 0.5 : 2;
        CHECK_EQ(mlc_tune_tell(t, mlc_tune_ask(t)->id, i == 2 ? NULL : &y), MLC_OK);
    }
    CHECK_EQ(mlc_tune_print(t, collect, &s), MLC_OK);
    const char *one = strstr(s.text, "\n       1"), *zero = strstr(s.text, "\n       0");
    const char *two = strstr(s.text, "\n       2");
    CHECK(one && zero && two && one < zero && zero < two && strstr(two, "failed"));
    CHECK_HAS(s.text, "kind");
    CHECK(strstr(s.text, "sgd") || strstr(s.text, "adam") || strstr(s.text, "lion"));
    CHECK_EQ(mlc_tune_print(NULL, collect, &s), MLC_ERR_ARG);
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune, the_picture_has_a_chart_for_each_parameter)
{
    mlc_ctx        *ctx = test_ctx();
    box             b = box_open_fast("tune.svg");
    mlc_tune_param  p[5];
    mlc_tune_result r[2] = {mlc_tune_result_make("loss", 1), mlc_tune_result_make("ms", 0)};
    mlc_tune_desc   d = mlc_tune_desc_make(p, params_of(p), r, 2);
    mlc_tuner      *t = mlc_tune_create(ctx, &d);
    const mlc_tune_trial *q;
    size_t          n = 0;
    r[1].most = 4;
    CHECK_EQ(mlc_tune_plot(t, b.path), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "no trial was told");
    while ((q = mlc_tune_ask(t)) != NULL) {
        const double y[2] = {bowl(q->values), q->values[2]};
        CHECK_EQ(mlc_tune_tell(t, q->id, y), MLC_OK);
    }
    CHECK_EQ(mlc_tune_plot(t, b.path), MLC_OK);
    char *text = (char *)get_file(b.path, &n);
    CHECK_HAS(text, "best so far");
    CHECK_HAS(text, ">front<");
    for (int i = 0; i < 5; i++) {
        char title[32];
        snprintf(title, sizeof title, ">%s<", p[i].name);
        CHECK_HAS(text, title);
    }
    free(text);
    mlc_tune_free(t);
    box_close(&b);
    CHECK_OK(ctx);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void refused(mlc_ctx *ctx, mlc_tune_param p, const char *says)
{
    const mlc_tune_result r = mlc_tune_result_make("y", 1);
    const mlc_tune_param  two[2] = {mlc_tune_real("first", 0, 1), p};
    const mlc_tune_desc   d = mlc_tune_desc_make(two, 2, &r, 1);
    CHECK(!mlc_tune_create(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, says);
}

TEST(tune, what_cannot_be_tuned_is_refused)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_tune_param p = mlc_tune_real("x", 0, 1);
    refused(ctx, mlc_tune_real("", 0, 1), "the name of parameter 1");
    refused(ctx, mlc_tune_real("first", 0, 1), "two parameters are named 'first'");
    refused(ctx, mlc_tune_real("x", 1, 0), "'x' is of kind 0, from 1 to 0");
    refused(ctx, mlc_tune_real("x", 0, INF), "'x' is of kind 0");
    refused(ctx, mlc_tune_real("x", NO_NUMBER, 1), "'x' is of kind 0");
    refused(ctx, mlc_tune_real_log("x", 0, 1), "has no even logarithms");
    refused(ctx, mlc_tune_whole_log("x", 0, 8), "has no even logarithms");
    refused(ctx, mlc_tune_choice("x", NULL, 0), "'x' is of kind 2");
    refused(ctx, mlc_tune_choice("x", NULL, 65537), "choice 'x' has 65537 values");
    p.when = "later";
    refused(ctx, p, "when 'later' has a value");
    p = mlc_tune_whole("x", 0, 4);
    p.step = 0.5;
    refused(ctx, p, "which are not whole");
    p = mlc_tune_real("x", 0, 1);
    p.when = "first";
    p.from = NO_NUMBER;
    refused(ctx, p, "from is at most to");
    refused(ctx, mlc_tune_whole("x", -(INT64_C(1) << 53) + 1, 1), "within 2^53 of each other");
    refused(ctx, mlc_tune_whole("x", 0, INT64_MAX), "which are not whole");
    const mlc_tune_param  one = mlc_tune_real("x", 0, 1);
    mlc_tune_result       r = mlc_tune_result_make("y", 1);
    mlc_tune_desc         d = mlc_tune_desc_make(&one, 1, &r, 0);
    CHECK(!mlc_tune_create(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "1 parameters and 0 results");
    d.n_results = 1;
    d.trials = 0;
    CHECK(!mlc_tune_create(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "0 trials");
    d.trials = 10;
    r.least = 1;
    r.most = 0;
    CHECK(!mlc_tune_create(ctx, &d) && !mlc_tune_create(NULL, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "limits 1 to 0");
    r.least = r.most = INF;
    CHECK(!mlc_tune_create(ctx, &d));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "limits inf to inf");
    CHECK(!mlc_tune_create(ctx, NULL));
    CHECK_ERROR(ctx, MLC_ERR_ARG, "see mlc_tune_desc_make");
    CHECK(!mlc_tune_ask(NULL) && mlc_tune_tell(NULL, 0, NULL) == MLC_ERR_ARG);
    CHECK(!mlc_tune_best(NULL) && !mlc_tune_trial_at(NULL, 0));
    mlc_tune_free(NULL);
    CHECK_OK(ctx);
}

/* ---- sketched layers ------------------------------------------------------------------------- */

#ifndef MLC_NO_SKETCH
enum { WIDE = 64 };

typedef struct judge { mlc_tensor *x, *y; int calls; bool raise; } judge;

static mlc_module *wide_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL_NAMED(ctx, {"a", mlc_nn_linear(ctx, WIDE, WIDE)},
                                {"act", mlc_nn_relu(ctx)}, {"b", mlc_nn_linear(ctx, WIDE, WIDE)},
                                {"c", mlc_nn_linear(ctx, WIDE, 3)});
}

/* Distance of the outputs to those of the network before. */
static double judged(void *user, mlc_module *net)
{
    judge       *j = (judge *)user;
    mlc_tensor  *y = mlc_forward(net, j->x);
    const double d = mlc_item(mlc_mse_loss(y, j->y));
    j->calls++;
    if (j->raise) (void)mlc_raise(mlc_module_ctx(net), MLC_ERR_IO, "no data");
    return d;
}

static judge judge_of(mlc_ctx *ctx, mlc_module *net)
{
    judge j = {NULL, NULL, 0, false};
    j.x = mlc_randn(ctx, MLC_F32, mlc_dims2(16, WIDE));
    j.y = mlc_detach(mlc_forward(net, j.x));
    return j;
}

TEST(tune_sketch, the_best_layers_are_installed_as_they_were_measured)
{
    for (int together = 0; together < 2; together++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = wide_net(ctx);
        judge       j = judge_of(ctx, net);
        mlc_tuner  *t = NULL;
        mlc_tune_sketch_desc d = mlc_tune_sketch_desc_make(judged, &j, j.x);
        d.ms = 0;
        d.bytes = 1;                   /* bytes do not depend on the clock                     */
        d.most_error = 0.05;
        d.trials = 25;
        d.repeats = 2;
        d.seed = 3;
        d.together = together != 0;
        CHECK_EQ(mlc_tune_sketch(net, &d, &t), MLC_OK);
        CHECK_OK(ctx);
        if (!CHECK(t)) return;
        CHECK_EQ(j.calls, 25);
        const mlc_tune_trial *best = mlc_tune_best(t);
        CHECK(best->tells == 2 && best->mean[0] > 0 && best->mean[2] <= 0.05);
        double bytes = 0;
        for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
            bytes += (double)(mlc_numel(it.tensor) * (int64_t)mlc_dtype_bytes(it.tensor->dtype));
        CHECK_NEAR(bytes, best->mean[1], 0);
        CHECK_NEAR(judged(&j, net), best->mean[2], 1e-12);
        CHECK_NEAR(mlc_tune_value(t, best, together ? "low_rank" : "a.low_rank"),
                   best->values[0], 0);
        mlc_tune_free(t);
    }
}

/* Their error is not measured again, and a record that is finished has them no third time. */
TEST(tune_sketch, the_three_best_are_timed_again)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_net(ctx), *two = mlc_module_clone(net);
    judge       j = judge_of(ctx, net);
    box         b = box_open_fast("tune.jsonl");
    mlc_tuner  *t = NULL;
    mlc_tune_sketch_desc d = mlc_tune_sketch_desc_make(judged, &j, j.x);
    d.trials = 7;
    d.repeats = 2;
    d.record = b.path;
    for (int run = 0; run < 2; run++) {
        int64_t tells = 0;
        CHECK_EQ(mlc_tune_sketch(run ? two : net, &d, &t), MLC_OK);
        if (!CHECK(t)) return;
        for (int i = 0; i < 7; i++) tells += mlc_tune_trial_at(t, i)->tells;
        CHECK(run ? tells >= 20 && tells <= 24 : tells == 20);
        CHECK_EQ(j.calls, 7);
        mlc_tune_free(t);
    }
    box_close(&b);
    CHECK_OK(ctx);
}

/* Every layer that could be is in the list, and no other; the ranks are those that gain. */
TEST(tune_sketch, parameters_are_those_of_the_layers_that_gain)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_net(ctx);
    judge       j = judge_of(ctx, net);
    mlc_tuner  *t = NULL;
    mlc_tune_sketch_desc d = mlc_tune_sketch_desc_make(judged, &j, j.x);
    d.method = MLC_TUNE_GRID;
    d.repeats = 1;
    d.most_terms = 2;
    d.multiple = 4;
    CHECK_EQ(mlc_tune_sketch(net, &d, &t), MLC_OK);
    /* Below 64 64 / (2 (64 + 64)) = 16: 4, 8, 12 with one or two terms, or dense: 7 by 7.       */
    if (!CHECK(t && mlc_tune_trial_at(t, 48) && !mlc_tune_trial_at(t, 49))) return;
    CHECK(isnan(mlc_tune_value(t, mlc_tune_trial_at(t, 0), "c.low_rank")));
    CHECK_NEAR(mlc_tune_value(t, mlc_tune_trial_at(t, 48), "b.low_rank"), 12, 0);
    CHECK_NEAR(mlc_tune_trial_at(t, 0)->mean[2], 0, 1e-12);            /* dense               */
    mlc_tune_free(t);
    d.pattern = "b";                   /* where the first one is left                          */
    d.points = 2;
    net = wide_net(ctx);
    j = judge_of(ctx, net);
    d.x = j.x;
    CHECK_EQ(mlc_tune_sketch(net, &d, &t), MLC_OK);
    CHECK(t && mlc_tune_trial_at(t, 2) && !mlc_tune_trial_at(t, 3));   /* 0; 12 by 1 or 2      */
    mlc_tune_free(t);
    CHECK_OK(ctx);
}

TEST(tune_sketch, an_error_changes_nothing)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_net(ctx);
    judge       j = judge_of(ctx, net);
    mlc_tuner  *t = NULL;
    mlc_tune_sketch_desc d = mlc_tune_sketch_desc_make(judged, &j, j.x);
    d.trials = 3;
    d.most_error = -1;
    CHECK_EQ(mlc_tune_sketch(net, &d, &t), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "none of 3 trials is within the limits");
    CHECK(mlc_tune_trial_at(t, 2)->violation > 0);
    mlc_tune_free(t);
    j.raise = true;
    CHECK_EQ(mlc_tune_sketch(net, &d, NULL), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "no data");
    j.raise = false;
    d.x = NULL;
    CHECK_EQ(mlc_tune_sketch(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "measure or x is NULL");
    d.x = j.x;
    d.pattern = "none";
    CHECK_EQ(mlc_tune_sketch(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "0 layers may be sketched");
    d.method = MLC_TUNE_HALVING;
    CHECK_EQ(mlc_tune_sketch(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no budget for halving");
    CHECK_EQ(mlc_tune_sketch(NULL, &d, NULL), MLC_ERR_ARG);
    CHECK_NEAR(judged(&j, net), 0, 0);
    CHECK_OK(ctx);
}

/* Two networks of one seed of sketches are the same, and their layers' sketches are not. */
TEST(tune_sketch, sketches_of_a_seed_are_the_same)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = wide_net(ctx), *two = mlc_module_clone(net), *three = mlc_module_clone(net);
    judge       j = judge_of(ctx, net);
    mlc_sketch_model_desc d = mlc_sketch_model_desc_make(1, 8);
    d.seed = 7;
    CHECK_EQ(mlc_sketch_model(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "has_seed");
    d.has_seed = true;
    CHECK(mlc_sketch_model(net, &d, NULL) == MLC_OK && mlc_sketch_model(two, &d, NULL) == MLC_OK);
    d.seed = 8;
    CHECK_EQ(mlc_sketch_model(three, &d, NULL), MLC_OK);
    j.y = mlc_detach(mlc_forward(net, j.x));
    CHECK_NEAR(judged(&j, two), 0, 0);
    CHECK(judged(&j, three) > 0);
    CHECK_OK(ctx);
}
#endif
#endif
