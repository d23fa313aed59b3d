/* test_sched.c -- tests of section IMPL.SCHED: schedules, plateaus, the range test */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "golden/golden.h"

/* ---- sequences ---------------------------------------------------------------------------- */

#define SHOWN 13

/* Made by the recurrences of torch.optim.lr_scheduler, and by the papers' formulas where it has
 * none: factors at t = 0, 1, ... of the schedules of make_all, in their order.                 */
static const struct { const char *name; double want[SHOWN]; } SEQUENCES[] = {
    {"step",
     {1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625}},
    {"multi_step",
     {1, 1, 0.1, 0.1, 0.1, 0.0010000000000000002, 0.0010000000000000002, 0.0010000000000000002,
      0.0010000000000000002, 0.00010000000000000003, 0.00010000000000000003,
      0.00010000000000000003, 0.00010000000000000003}},
    {"exponential",
     {1, 0.9, 0.81, 0.7290000000000001, 0.6561000000000001, 0.5904900000000002,
      0.5314410000000002, 0.47829690000000014, 0.43046721000000016, 0.38742048900000015,
      0.34867844010000015, 0.31381059609000017, 0.28242953648100017}},
    {"cosine",
     {1, 0.9779754323328191, 0.9140576474687263, 0.8145033635316129, 0.6890576474687263, 0.55,
      0.41094235253127376, 0.2854966364683872, 0.18594235253127372, 0.12202456766718092, 0.1,
      0.12202456766718092, 0.185942352531274}},
    {"cosine_restarts",
     {1, 0.8681980515339464, 0.55, 0.23180194846605365, 1, 0.9657457896300791,
      0.8681980515339464, 0.7222075445642904, 0.55, 0.3777924554357096, 0.23180194846605365,
      0.13425421036992097, 1}},
    {"polynomial",
     {1, 0.6400000000000001, 0.36, 0.16000000000000003, 0.03999999999999999, 0, 0, 0, 0, 0, 0,
      0, 0}},
    {"linear",
     {0.3333333333333333, 0.4666666666666666, 0.6, 0.7333333333333334, 0.8666666666666668, 1,
      1, 1, 1, 1, 1, 1, 1}},
    {"one_cycle",
     {0.040000000000000036, 0.52, 1, 0.9504846320134737, 0.8117456539497631,
      0.6112620219362893, 0.38874197806371075, 0.18825834605023697, 0.049519367986526286,
      4e-06, 4e-06, 4e-06, 4e-06}},
    {"one_cycle three",
     {0.04, 0.35999999999999993, 0.6799999999999999, 1, 0.68, 0.3600000000000001,
      0.040000000000000036, 0.026668, 0.013336, 3.9999999999970615e-06, 3.9999999999970615e-06,
      3.9999999999970615e-06, 3.9999999999970615e-06}},
    {"one_cycle momentum",
     {1, 0.9473684210526316, 0.8947368421052632, 0.8999490069525042, 0.9145531683232245,
      0.9356567929496676, 0.9590800491555955, 0.9801836737820386, 0.9947878351527589, 1, 1, 1,
      1}},
    {"cyclic",
     {0.1, 0.5499999999999999, 0.9999999999999998, 0.6999999999999998, 0.3999999999999999, 0.1,
      0.5500000000000004, 0.9999999999999998, 0.6999999999999998, 0.40000000000000024, 0.1,
      0.5500000000000004, 0.9999999999999998}},
    {"cyclic cycle_gamma",
     {0.1, 0.55, 1, 0.55, 0.1, 0.325, 0.55, 0.325, 0.1, 0.21250000000000002, 0.325,
      0.21250000000000002, 0.1}},
    {"cyclic gamma",
     {0.1, 0.505, 0.8290000000000001, 0.42805000000000004, 0.1, 0.3657205, 0.5782969000000001,
      0.3152336050000001, 0.1, 0.27433922005000005, 0.41381059609000015, 0.24121476824050003,
      0.1}},
    {"wsd linear",
     {0.3333333333333333, 0.6666666666666666, 1, 1, 1, 1, 1, 1, 0.775, 0.55, 0.325, 0.1, 0.1}},
    {"wsd sqrt",
     {0.3333333333333333, 0.6666666666666666, 1, 1, 1, 1, 1, 1, 0.55, 0.36360389693210715,
      0.22057713659400527, 0.1, 0.1}},
    {"wsd cosine",
     {0.3333333333333333, 0.6666666666666666, 1, 1, 1, 1, 1, 1, 0.8681980515339464,
      0.5500000000000002, 0.23180194846605368, 0.1, 0.1}},
    {"noam",
     {0.005524271728019903, 0.011048543456039806, 0.01657281518405971, 0.02209708691207961,
      0.01976423537605237, 0.018042195912175808, 0.016703827619526525, 0.015625000000000003,
      0.01473139127471974, 0.013975424859373687, 0.013325044772225653, 0.01275775907699572,
      0.012257258446136503}},
    {"inverse_sqrt",
     {0.25, 0.5, 0.75, 1, 0.8944271909999159, 0.816496580927726, 0.7559289460184544,
      0.7071067811865476, 0.6666666666666666, 0.6324555320336759, 0.6030226891555273,
      0.5773502691896257, 0.5547001962252291}},
    {"warmup",
     {0.3333333333333333, 0.6666666666666666, 1, 1, 0.9779754323328191, 0.9140576474687262,
      0.814503363531613, 0.6890576474687263, 0.5500000000000002, 0.41094235253127365,
      0.28549663646838713, 0.18594235253127367, 0.12202456766718092}},
    {"sequence",
     {0.3333333333333333, 0.5555555555555556, 0.7777777777777777, 1, 1, 0.5, 0.5, 0.25, 0.01,
      0.01, 0.01, 0.01, 0.01}},
};
#define SEQUENCES_N (int)(sizeof SEQUENCES / sizeof *SEQUENCES)

static const int64_t MILESTONES[] = {2, 5, 5, 9}, STARTS[] = {0, 3, 8};

/* Of `parts` the sequence is made, which must stay.                                             */
static void make_all(mlc_sched s[], mlc_sched parts[3])
{
    int                i = 0;
    mlc_one_cycle_desc one = mlc_one_cycle_desc_make(10);
    mlc_cyclic_desc    cyclic = mlc_cyclic_desc_make(2, 0.1);
    s[i++] = mlc_sched_step(3, 0.5);
    s[i++] = mlc_sched_multi_step(MILESTONES, 4, 0.1);
    s[i++] = mlc_sched_exponential(0.9);
    s[i++] = mlc_sched_cosine(10, 0.1);
    s[i++] = mlc_sched_cosine_restarts(4, 2, 0.1);
    s[i++] = mlc_sched_polynomial(5, 2, 0);
    s[i++] = mlc_sched_linear(5, 1.0 / 3.0, 1);
    s[i++] = mlc_sched_one_cycle(10);
    one.rise = 0.4;
    one.three_phase = true;
    one.curve = MLC_CURVE_LINEAR;
    s[i++] = mlc_sched_one_cycle_ex(&one);
    one = mlc_one_cycle_desc_make(10);
    one.start = one.end = 1;
    one.peak = 0.85 / 0.95;
    s[i++] = mlc_sched_one_cycle_ex(&one);
    cyclic.down = 3;
    s[i++] = mlc_sched_cyclic_ex(&cyclic);
    cyclic = mlc_cyclic_desc_make(2, 0.1);
    cyclic.cycle_gamma = 0.5;
    s[i++] = mlc_sched_cyclic_ex(&cyclic);
    cyclic.cycle_gamma = 1;
    cyclic.gamma = 0.9;
    s[i++] = mlc_sched_cyclic_ex(&cyclic);
    s[i++] = mlc_sched_wsd(3, 4, 4, 0.1, MLC_CURVE_LINEAR);
    s[i++] = mlc_sched_wsd(3, 4, 4, 0.1, MLC_CURVE_SQRT);
    s[i++] = mlc_sched_wsd(3, 4, 4, 0.1, MLC_CURVE_COSINE);
    s[i++] = mlc_sched_noam(512, 4);
    s[i++] = mlc_sched_inverse_sqrt(4);
    s[i++] = mlc_sched_warmup(3, &s[3]);
    parts[0] = mlc_sched_linear(3, 1.0 / 3.0, 1);
    parts[1] = mlc_sched_step(2, 0.5);
    parts[2] = mlc_sched_constant(0.01);
    s[i++] = mlc_sched_sequence(parts, STARTS, 3);
    CHECK_EQ(i, SEQUENCES_N);
}

static double half_of(void *user, int64_t t)
{
    return *(const double *)user / (double)(t + 2);
}

TEST(sched, every_schedule_equals_its_sequence_from_its_beginning_and_from_its_middle)
{
    mlc_sched s[SEQUENCES_N], parts[3];
    make_all(s, parts);
    for (int i = 0; i < SEQUENCES_N; i++)
        for (int t = SHOWN - 1; t >= 0; t--)               /* backwards: nothing is remembered  */
            if (!CHECK_NEAR(mlc_sched_at(&s[i], t), SEQUENCES[i].want[t], 1e-12))
                printf("  %s, t = %d\n", SEQUENCES[i].name, t);
}

TEST(sched, a_users_function_gets_its_pointer_and_the_updates_made)
{
    double    top = 3;
    mlc_sched s = mlc_sched_user(half_of, &top);
    CHECK_NEAR(mlc_sched_at(&s, 0), 1.5, 0);
    CHECK_NEAR(mlc_sched_at(&s, 4), 0.5, 0);
    s = mlc_sched_warmup(2, &s);
    CHECK_NEAR(mlc_sched_at(&s, 0), 0.75, 0);
    CHECK_NEAR(mlc_sched_at(&s, 1), 1.5, 0);
    CHECK_NEAR(mlc_sched_at(&s, 2), 1.5, 0);
    CHECK_NEAR(mlc_sched_at(&s, 3), 1, 0);
}

TEST(sched, warmups_go_in_front_of_all_and_of_nothing)
{
    mlc_sched s[SEQUENCES_N], parts[3];
    make_all(s, parts);
    for (int i = 0; i < SEQUENCES_N; i++) {
        if (strcmp(SEQUENCES[i].name, "warmup") == 0)
            continue;
        const mlc_sched w = mlc_sched_warmup(4, &s[i]);
        for (int t = 0; t < 4; t++)
            CHECK_NEAR(mlc_sched_at(&w, t), (t + 1) / 4.0 * SEQUENCES[i].want[0], 1e-12);
        for (int t = 0; t < SHOWN; t++)
            CHECK_NEAR(mlc_sched_at(&w, t + 4), SEQUENCES[i].want[t], 1e-12);
    }
    const mlc_sched alone = mlc_sched_warmup(2, NULL), none = mlc_sched_warmup(0, &s[0]);
    CHECK_NEAR(mlc_sched_at(&alone, 0), 0.5, 0);
    CHECK_NEAR(mlc_sched_at(&alone, 9), 1, 0);
    CHECK_NEAR(mlc_sched_at(&none, 3), 0.5, 0);
}

TEST(sched, edges_of_sizes_are_values_too)
{
    mlc_one_cycle_desc d = mlc_one_cycle_desc_make(1);
    mlc_sched          s = mlc_sched_one_cycle_ex(&d);
    CHECK_NEAR(mlc_sched_at(&s, 0), 4e-6, 1e-18);          /* as in PyTorch: the last one        */
    d = mlc_one_cycle_desc_make(10);
    d.rise = 0.1;                      /* a phase of no length: PyTorch divides by 0           */
    s = mlc_sched_one_cycle_ex(&d);
    CHECK_NEAR(mlc_sched_at(&s, 0), 1, 1e-12);
    CHECK_NEAR(mlc_sched_at(&s, 9), 4e-6, 1e-12);
    d.rise = 1;
    s = mlc_sched_one_cycle_ex(&d);
    CHECK_NEAR(mlc_sched_at(&s, 9), 1, 1e-12);
    CHECK_NEAR(mlc_sched_at(&s, INT64_MAX), 1, 1e-12);
    s = mlc_sched_multi_step(NULL, 0, 0.5);
    CHECK_NEAR(mlc_sched_at(&s, 99), 1, 0);
    s = mlc_sched_cosine_restarts(3, 1, 0);
    CHECK_NEAR(mlc_sched_at(&s, 3000000000000000001), 0.75, 1e-12);
    s = mlc_sched_cosine_restarts(INT64_C(1) << 53, 1 << 20, 0);
    CHECK(mlc_sched_at(&s, INT64_MAX) <= 1);               /* the second cycle never ends        */
    s = mlc_sched_cosine(INT64_C(1) << 53, 0);
    CHECK_NEAR(mlc_sched_at(&s, INT64_C(1) << 53), 0, 1e-12);
    s = mlc_sched_wsd(0, 0, 1, 0, MLC_CURVE_LINEAR);
    CHECK_NEAR(mlc_sched_at(&s, 0), 1, 0);
    CHECK_NEAR(mlc_sched_at(&s, INT64_MAX), 0, 0);
    s = mlc_sched_polynomial(4, 0, 0.5);
    CHECK_NEAR(mlc_sched_at(&s, 5), 1, 0);
}

/* ---- bad values --------------------------------------------------------------------------- */

static void check_bad(const mlc_sched *s, const char *says)
{
    mlc_ctx *ctx = test_ctx();
    CHECK(isnan(mlc_sched_at(s, 3)));
    CHECK_EQ(mlc_sched_plot(ctx, s, 10, "never.svg"), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), says);
    mlc_error_clear(ctx);
}

static void check_bad_value(mlc_sched s, const char *says) { check_bad(&s, says); }

TEST(sched, bad_values_are_told_by_name_and_value)
{
    static const int64_t down[] = {1, 4, 3}, late[] = {1, 2}, twice[] = {0, 2, 2};
    mlc_sched            parts[3], deep[12];
    mlc_one_cycle_desc   one = mlc_one_cycle_desc_make(10);
    mlc_cyclic_desc      cyclic = mlc_cyclic_desc_make(2, 0.1);
    for (int i = 0; i < 3; i++)
        parts[i] = mlc_sched_constant(1);
    check_bad_value(mlc_sched_constant(NO_NUMBER), "constant: factor is nan; it must be finite");
    check_bad_value(mlc_sched_step(0, 0.5), "step: every is 0; it must be 1 to 2^53");
    check_bad_value(mlc_sched_step(5, -0.5), "step: gamma is -0.5; it must be finite and not neg");
    check_bad_value(mlc_sched_multi_step(down, 3, 0.1), "multi_step: at[2] is 3; it must be");
    check_bad_value(mlc_sched_multi_step(NULL, 3, 0.1), "multi_step: n is 3");
    check_bad_value(mlc_sched_multi_step(down, -1, 0.1), "multi_step: n is -1");
    check_bad_value(mlc_sched_exponential(INF), "exponential: gamma is inf");
    check_bad_value(mlc_sched_cosine(0, 0), "sched_plot: cosine: steps is 0; it must be 1 to 2^53");
    check_bad_value(mlc_sched_cosine(INT64_MAX, 0), "steps is 9223372036854775807");
    check_bad_value(mlc_sched_cosine(10, -1), "cosine: end is -1");
    check_bad_value(mlc_sched_cosine_restarts(0, 2, 0), "cosine_restarts: first is 0");
    check_bad_value(mlc_sched_cosine_restarts(4, 0, 0), "cosine_restarts: mult is 0");
    check_bad_value(mlc_sched_polynomial(-7, 2, 0), "polynomial: steps is -7");
    check_bad_value(mlc_sched_polynomial(7, -2, 0), "polynomial: power is -2");
    check_bad_value(mlc_sched_linear(0, 0, 1), "linear: steps is 0");
    check_bad_value(mlc_sched_linear(2, 0, NO_NUMBER), "linear: to is nan");
    check_bad_value(mlc_sched_wsd(-1, 0, 1, 0, MLC_CURVE_LINEAR), "wsd: warmup is -1; it must be");
    check_bad_value(mlc_sched_wsd(0, 0, 0, 0, MLC_CURVE_LINEAR), "wsd: decay is 0; it must be 1");
    check_bad_value(mlc_sched_wsd(0, 0, 1, 0, (mlc_curve)3), "wsd: curve is 3; it must be cosine");
    check_bad_value(mlc_sched_noam(0, 4), "noam: width is 0");
    check_bad_value(mlc_sched_noam(4, 0), "noam: warmup is 0");
    check_bad_value(mlc_sched_inverse_sqrt(0), "inverse_sqrt: warmup is 0");
    check_bad_value(mlc_sched_user(NULL, NULL), "user: fn is 0; it must be a function");
    check_bad_value(mlc_sched_one_cycle(0), "one_cycle: steps is 0");
    one.rise = 1.5;
    check_bad_value(mlc_sched_one_cycle_ex(&one), "one_cycle: rise is 1.5; it must be 0 to 1");
    one.rise = 0.6;
    one.three_phase = true;
    check_bad_value(mlc_sched_one_cycle_ex(&one), "rise is 0.6; it must be 0 to 0.5");
    one.rise = 0.3;
    one.curve = MLC_CURVE_SQRT;
    check_bad_value(mlc_sched_one_cycle_ex(&one), "one_cycle: curve is 2; it must be cosine or l");
    check_bad_value(mlc_sched_cyclic(0, 0.1), "cyclic: up is 0");
    cyclic.down = 0;
    check_bad_value(mlc_sched_cyclic_ex(&cyclic), "cyclic: down is 0");
    check_bad_value(mlc_sched_warmup(-3, NULL), "constant: warm-up is -3; it must be 0 to 2^53");
    check_bad_value(mlc_sched_sequence(parts, late, 2), "sequence: starts[0] is 1; it must be 0");
    check_bad_value(mlc_sched_sequence(parts, twice, 3), "sequence: starts[2] is 2; it must be m");
    check_bad_value(mlc_sched_sequence(parts, late, 0), "sequence: n is 0");
    check_bad_value(mlc_sched_sequence(NULL, twice, 1), "sequence: n is 1; it must be 1 or more");
    parts[0] = mlc_sched_linear(0, 0, 1);
    check_bad_value(mlc_sched_sequence(parts, twice, 2), "sched_plot: linear: steps is 0");
    parts[0] = mlc_sched_sequence(parts, twice, 1);        /* it holds itself                    */
    check_bad(&parts[0], "sequence: depth is 9; it must be at most 8");
    deep[0] = mlc_sched_constant(2);
    for (int i = 1; i < 12; i++) {
        deep[i] = mlc_sched_sequence(&deep[i - 1], twice, 1);
        if (i < 9) CHECK_NEAR(mlc_sched_at(&deep[i], 5), 2, 0);
        else       check_bad(&deep[i], "depth is 9");
    }
}

TEST(sched, no_schedule_is_an_error_that_says_so)
{
    mlc_sched s = mlc_sched_warmup(3, NULL);
    check_bad(NULL, "schedule: kind is 0; it must be that of a mlc_sched_ function");
    check_bad_value(mlc_sched_one_cycle_ex(NULL), "schedule: kind is 0");
    check_bad_value(mlc_sched_cyclic_ex(NULL), "schedule: kind is 0");
    check_bad_value(mlc_sched_warmup(3, &s), "two warm-ups");
    memset(&s, 0, sizeof s);
    check_bad(&s, "schedule: kind is 0");
    s.kind = 99;
    check_bad(&s, "schedule: kind is 99");
    s = mlc_sched_constant(1);
    CHECK(isnan(mlc_sched_at(&s, -1)));
    CHECK_NEAR(mlc_sched_at(&s, INT64_MAX), 1, 0);
}

/* ---- a picture ---------------------------------------------------------------------------- */

TEST(sched, a_plot_shows_the_factors_of_all_updates)
{
    box       b = box_open("s.svg");
    mlc_ctx  *ctx = test_ctx();
    mlc_sched s = mlc_sched_linear(10, 0, 1);
    size_t    n;
    CHECK_EQ(mlc_sched_plot(ctx, &s, 11, b.path), MLC_OK);
    char *text = (char *)get_file(b.path, &n);
    CHECK_HAS(text, ">linear<");
    CHECK_HAS(text, ">updates<");
    CHECK_HAS(text, "d=\"M680 2320L");                     /* from the corner to its opposite    */
    CHECK_HAS(text, "L3370 340\"");
    free(text);
    CHECK_EQ(mlc_sched_plot(ctx, &s, 1, b.path), MLC_OK);
    CHECK_EQ(mlc_sched_plot(ctx, &s, 1000000, b.path), MLC_OK);
    text = (char *)get_file(b.path, &n);
    CHECK(n < 40000);
    free(text);
    CHECK_EQ(mlc_sched_plot(ctx, &s, 0, b.path), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "sched_plot: steps is 0");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_sched_plot(NULL, &s, 5, b.path), MLC_ERR_ARG);
    CHECK_EQ(mlc_sched_plot(ctx, &s, 5, "/no/such/folder/s.svg"), MLC_ERR_IO);
    mlc_error_clear(ctx);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* ---- plateaus ----------------------------------------------------------------------------- */

static mlc_optim *optim_of(mlc_ctx *ctx, double lr)
{
    return mlc_sgd(mlc_nn_linear(ctx, 3, 2), lr);
}

/* Rates after each of n metrics.                                                                */
static void check_plateau(mlc_plateau p, const double *metric, const double *want, int n)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_optim *opt = optim_of(ctx, 1);
    for (int i = 0; i < n; i++) {
        CHECK_EQ(mlc_plateau_feed(&p, opt, metric[i]), MLC_OK);
        if (!CHECK_NEAR(mlc_optim_lr(opt), want[i], 1e-15))
            printf("  metric %d\n", i);
        if (i == n / 2) {              /* a training that was saved and goes on                */
            const mlc_plateau saved = p;
            memset(&p, 0xff, sizeof p);
            p = saved;
        }
    }
    CHECK_OK(ctx);
}

TEST(sched, a_plateau_cuts_the_rate_as_pytorch_does)
{
    static const double same[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double want[] = {1, 1, 1, .5, .5, .5, .5, .5, .25};
    static const double mixed[] = {1, NO_NUMBER, .99995, .9, .95, 2, .89, 3, 3, 3};
    static const double mixed_want[] = {1, 1, .5, .5, .5, .25, .25, .25, .125, .125};
    static const double rise[] = {-INF, 1, 2, 2.05, 2.09, 2.11, 2.2, 2.2};
    static const double rise_want[] = {1, 1, 1, 1, .5, .5, .5, .25};
    mlc_plateau         p = mlc_plateau_make();
    p.factor = 0.5;
    p.patience = 2;
    p.cooldown = 2;
    check_plateau(p, same, want, 9);
    p.patience = 1;
    p.cooldown = 0;
    check_plateau(p, mixed, mixed_want, 10);
    p.max = p.absolute = true;
    p.threshold = 0.1;
    check_plateau(p, rise, rise_want, 8);
}

/* As a damaged run file may have them. */
TEST(sched, counts_of_a_plateau_end_where_numbers_do)
{
    static const double same[] = {1, 1}, want[] = {.5, .5};
    mlc_plateau         p = mlc_plateau_make();
    p.factor = 0.5;
    p.best = 1;
    p.bad = p.cuts = INT64_MAX;
    check_plateau(p, same, want, 2);
}

TEST(sched, a_plateau_stops_at_its_least_rate_and_at_its_least_change)
{
    static const double same[] = {1, 1, 1, 1, 1};
    static const double least[] = {1, .5, .3, .3, .3}, change[] = {1, .5, .5, .5, .5};
    mlc_plateau         p = mlc_plateau_make();
    p.factor = 0.5;
    p.patience = 0;
    p.min_lr = 0.3;
    check_plateau(p, same, least, 5);
    p.min_lr = 0;
    p.eps = 0.25;
    check_plateau(p, same, change, 5);
}

TEST(sched, bad_plateaus_are_told)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_optim  *opt = optim_of(ctx, 1);
    mlc_plateau p = mlc_plateau_make();
    CHECK_EQ(mlc_plateau_feed(&p, NULL, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_plateau_feed(NULL, opt, 1), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    p.factor = 1;
    CHECK_EQ(mlc_plateau_feed(&p, opt, 1), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "plateau_feed: factor is 1; it must be 0 or more and less than 1");
    mlc_error_clear(ctx);
    p = mlc_plateau_make();
    p.min_lr = NO_NUMBER;
    CHECK_EQ(mlc_plateau_feed(&p, opt, 1), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "min_lr nan");
    mlc_error_clear(ctx);
    p = mlc_plateau_make();
    p.patience = -1;
    CHECK_EQ(mlc_plateau_feed(&p, opt, 1), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "patience -1");
    mlc_error_clear(ctx);
    CHECK_EQ(p.bad, 0);
    CHECK_NEAR(mlc_optim_lr(opt), 1, 0);
}

/* ---- PyTorch's sequences ------------------------------------------------------------------ */

static double tenth(void *user, int64_t t) { (void)user; return 1 / (1 + 0.1 * (double)t); }

/* base times the factors; parameters are those of golden/make_optim_goldens.py.                 */
static void check_golden(const golden_file *f, mlc_sched s, double base, const char *name)
{
    double      want[64];
    mlc_tensor *t = golden_find(f, "%s", name);
    if (!CHECK(t != NULL && mlc_numel(t) <= 64) || !test_read(t, want))
        return;
    for (int64_t i = mlc_numel(t) - 1; i >= 0; i--)        /* backwards: as if resumed there     */
        if (!CHECK_NEAR(base * mlc_sched_at(&s, i), want[i], 1e-12))
            printf("  %s, t = %d\n", name, (int)i);
}

static void check_cycles(const golden_file *f)
{
    static const char *const names[] = {"cos", "linear", "three", "three_linear"};
    static const char *const modes[] = {"triangular", "triangular2", "exp_range"};
    char                     name[64];
    for (int i = 0; i < 4; i++) {
        const bool         linear = i % 2;
        mlc_one_cycle_desc d = mlc_one_cycle_desc_make(20);
        d.three_phase = i >= 2;
        if (linear) {
            d.rise = 0.4;
            d.start = 1.0 / 10;
            d.end = 1.0 / 10 / 100;
            d.curve = MLC_CURVE_LINEAR;
        }
        snprintf(name, sizeof name, "one_cycle_%s", names[i]);
        check_golden(f, mlc_sched_one_cycle_ex(&d), 1, name);
        d.start = d.end = 1;
        d.peak = 0.85 / 0.95;
        check_golden(f, mlc_sched_one_cycle_ex(&d), 0.95, strcat(name, ".momentum"));
    }
    for (int i = 0; i < 3; i++) {
        mlc_cyclic_desc d = mlc_cyclic_desc_make(4, 0.1);
        d.down = 6;
        d.cycle_gamma = i == 1 ? 0.5 : 1;
        d.gamma = i == 2 ? 0.95 : 1;
        snprintf(name, sizeof name, "cyclic_%s", modes[i]);
        check_golden(f, mlc_sched_cyclic_ex(&d), 1, name);
        d.low = 1;
        d.high = 0.8 / 0.9;
        check_golden(f, mlc_sched_cyclic_ex(&d), 0.9, strcat(name, ".momentum"));
    }
}

static void check_sequences(const golden_file *f)
{
    static const int64_t at_5[] = {0, 5}, at_5_12[] = {0, 5, 12}, at_20[] = {0, 20};
    mlc_sched            parts[3];
    parts[0] = mlc_sched_constant(0.25);
    parts[1] = mlc_sched_constant(1);
    check_golden(f, mlc_sched_sequence(parts, at_5, 2), 1, "constant");
    parts[0] = mlc_sched_constant(0.5);
    parts[1] = mlc_sched_exponential(0.8);
    parts[2] = mlc_sched_cosine(10, 0);
    check_golden(f, mlc_sched_sequence(parts, at_5_12, 3), 1, "sequence");
    parts[0] = mlc_sched_linear(5, 0.1, 1);
    parts[1] = mlc_sched_cosine(20, 0);
    check_golden(f, mlc_sched_sequence(parts, at_5, 2), 1, "sequence_linear");
    check_golden(f, mlc_sched_wsd(5, 0, 20, 0, MLC_CURVE_COSINE), 1, "warmup_cosine");
    parts[2] = mlc_sched_constant(0);
    parts[0] = mlc_sched_sequence(&parts[1], at_20, 2);
    check_golden(f, mlc_sched_warmup(5, &parts[0]), 1, "warmup_cosine");
}

TEST(sched, sequences_equal_those_of_pytorch)
{
    static const int64_t milestones[] = {3, 7, 8, 20};
    mlc_ctx             *ctx = test_ctx();
    const golden_file    f = golden_open(ctx, "schedules.safetensors");
    check_golden(&f, mlc_sched_user(tenth, NULL), 1, "lambda");
    check_golden(&f, mlc_sched_step(4, 0.5), 1, "step");
    check_golden(&f, mlc_sched_multi_step(milestones, 4, 0.3), 1, "multi_step");
    check_golden(&f, mlc_sched_exponential(0.9), 1, "exponential");
    check_golden(&f, mlc_sched_cosine(10, 0), 1, "cosine");
    check_golden(&f, mlc_sched_cosine(7, 0.1), 1, "cosine_min");
    check_golden(&f, mlc_sched_cosine_restarts(4, 2, 0.05), 1, "restarts");
    check_golden(&f, mlc_sched_cosine_restarts(5, 1, 0), 1, "restarts_even");
    check_golden(&f, mlc_sched_polynomial(10, 2, 0), 1, "polynomial");
    check_golden(&f, mlc_sched_polynomial(12, 0.5, 0), 1, "polynomial_root");
    check_golden(&f, mlc_sched_linear(5, 1.0 / 3.0, 1), 1, "linear");
    check_golden(&f, mlc_sched_linear(12, 1, 0.1), 1, "linear_down");
    check_golden(&f, mlc_sched_wsd(4, 11, 10, 0.05, MLC_CURVE_SQRT), 1, "wsd_sqrt");
    check_golden(&f, mlc_sched_wsd(4, 11, 10, 0.05, MLC_CURVE_LINEAR), 1, "wsd_linear");
    check_golden(&f, mlc_sched_wsd(4, 11, 10, 0.05, MLC_CURVE_COSINE), 1, "wsd_cosine");
    check_golden(&f, mlc_sched_noam(64, 8), 1, "noam");
    check_golden(&f, mlc_sched_inverse_sqrt(8), 1, "inverse_sqrt_warmup");
    check_cycles(&f);
    check_sequences(&f);
    CHECK_OK(ctx);
}

TEST(sched, plateaus_equal_those_of_pytorch)
{
    static const char *const names[] = {"min_rel", "min_abs", "max_rel", "max_abs", "constant"};
    static const double threshold[] = {0.1, 0.25, 0.1, 0.25, 1e-4}, least[] = {.02, 0, 0, .02, 0};
    mlc_ctx          *ctx = test_ctx();
    const golden_file f = golden_open(ctx, "schedules.safetensors");
    mlc_tensor       *t = golden_find(&f, "plateau.metric");
    double            metric[40], want[40];
    if (!CHECK(t != NULL && mlc_numel(t) == 40) || !test_read(t, metric))
        return;
    for (int k = 0; k < 5; k++) {
        mlc_plateau p = mlc_plateau_make();
        p.max = k == 2 || k == 3;
        p.absolute = k % 2;
        p.threshold = threshold[k];
        p.min_lr = least[k];
        p.factor = 0.5;
        p.patience = p.cooldown = 2;
        t = golden_find(&f, "plateau_%s", names[k]);
        if (!CHECK(t != NULL && mlc_numel(t) == 40) || !test_read(t, want))
            return;
        for (int i = 0; k == 4 && i < 40; i++)
            metric[i] = 1;
        check_plateau(p, metric, want, 40);
    }
}

/* ---- of an optimizer ---------------------------------------------------------------------- */

/* A weight [1,n], all 0, whose gradient is `grad` everywhere in every step.                      */
typedef struct slope {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_tensor *w, *x;
} slope;

static slope slope_of(mlc_ctx *ctx, int64_t n, double grad)
{
    slope              s = {ctx, NULL, NULL, NULL};
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(n, 1);
    d.no_bias = true;
    s.net = mlc_nn_linear_ex(ctx, &d);
    CHECK_EQ(mlc_module_to(s.net, MLC_F64), MLC_OK);
    CHECK_EQ(mlc_module_build(s.net), MLC_OK);
    s.w = mlc_module_param(s.net, "weight");
    mlc_no_grad_begin(ctx);
    mlc_zero_(s.w);
    mlc_no_grad_end(ctx);
    s.x = mlc_full(ctx, MLC_F64, mlc_dims2(1, n), grad);
    return s;
}

/* Backward and a step; a scope would clear the error.                                           */
static mlc_status slide(const slope *s, mlc_optim *opt)
{
    const mlc_status st = mlc_backward(mlc_sum_all(mlc_forward(s->net, s->x)));
    return st == MLC_OK ? mlc_optim_step(opt) : st;
}

static double first_of(mlc_tensor *t)
{
    return mlc_item_at(t, mlc_dims2(0, 0));
}

TEST(sched, each_update_takes_the_rate_of_the_updates_made)
{
    mlc_ctx        *ctx = test_ctx();
    const slope     s = slope_of(ctx, 3, 1);
    mlc_optim      *opt = mlc_sgd(s.net, 2);
    const mlc_sched cosine = mlc_sched_cosine(10, 0.1), warm = mlc_sched_warmup(3, &cosine);
    double          want = 0;
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &warm), MLC_OK);
    for (int t = 0; t < 8; t++) {
        const double base = t < 5 ? 2 : 3;
        if (t == 5)
            CHECK_EQ(mlc_optim_set_lr(opt, 3), MLC_OK);
        CHECK_NEAR(mlc_optim_lr(opt), base * mlc_sched_at(&warm, t), 1e-15);
        want -= base * mlc_sched_at(&warm, t);
        CHECK_EQ(slide(&s, opt), MLC_OK);
        CHECK_NEAR(first_of(s.w), want, 1e-13);
    }
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, NULL), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(opt), 3, 0);
    CHECK_EQ(slide(&s, opt), MLC_OK);
    CHECK_NEAR(first_of(s.w), want - 3, 1e-13);
    CHECK_OK(ctx);
}

TEST(sched, only_calls_that_make_an_update_count)
{
    mlc_ctx        *ctx = test_ctx();
    const slope     s = slope_of(ctx, 3, 1);
    mlc_optim      *opt = mlc_sgd(s.net, 1);
    const mlc_sched half = mlc_sched_exponential(0.5);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &half), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, 3), MLC_OK);
    for (int i = 0; i < 6; i++) {
        CHECK_NEAR(mlc_optim_lr(opt), i < 3 ? 1 : 0.5, 0);
        CHECK_EQ(slide(&s, opt), MLC_OK);
    }
    CHECK_NEAR(first_of(s.w), -1.5, 1e-15);
    CHECK_OK(ctx);
}

/* A device counts them: the host does not wait to know. */
TEST(sched, skipped_steps_do_not_count)
{
    mlc_ctx        *ctx = test_ctx();
    const bool      host = mlc_ctx_on_host(ctx);
    const slope     s = slope_of(ctx, 3, 1);
    mlc_optim      *opt = mlc_sgd(s.net, 1);
    const mlc_sched half = mlc_sched_exponential(0.5);
    mlc_tensor     *good = s.x, *bad = mlc_full(ctx, MLC_F64, mlc_dims2(1, 3), INF);
    slope           now = s;
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &half), MLC_OK);
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    for (int i = 0; i < 4; i++) {
        now.x = i == 1 || i == 2 ? bad : good;
        CHECK_EQ(mlc_backward(mlc_optim_scaled(opt, mlc_sum_all(mlc_forward(s.net, now.x)))),
                 MLC_OK);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_optim_scaler_state(opt).skipped, i < 1 ? 0 : i < 2 ? 1 : 2);
        CHECK_NEAR(mlc_optim_lr(opt), !host ? pow(0.5, i + 1) : i < 3 ? 0.5 : 0.25, 0);
    }
    CHECK_NEAR(first_of(s.w), host ? -1.5 : -1.125, 1e-15);
    CHECK_OK(ctx);
}

/* Whether or not the host has asked: what it asks for changes no bits.                           */
TEST(sched, a_step_that_a_device_skips_counts)
{
    mlc_ctx        *ctx = test_ctx();
    const slope     s = slope_of(ctx, 3, INF);
    mlc_optim      *opt = mlc_sgd(s.net, 1);
    const mlc_sched half = mlc_sched_exponential(0.5);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &half), MLC_OK);
    CHECK_EQ(mlc_optim_scaler(opt, NULL), MLC_OK);
    CHECK_EQ(slide(&s, opt), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(opt), mlc_ctx_on_host(ctx) ? 1 : 0.5, 0);
    CHECK_EQ(mlc_optim_steps(opt), 0);
    CHECK_NEAR(mlc_optim_lr(opt), mlc_ctx_on_host(ctx) ? 1 : 0.5, 0);
}

/* Adam with the beta1 of the time, as PyTorch has it where OneCycleLR moves it.                 */
TEST(sched, momentum_and_weight_decay_have_schedules_too)
{
    mlc_ctx           *ctx = test_ctx();
    const slope        s = slope_of(ctx, 3, 0.5);
    mlc_adam_desc      d = mlc_adamw_desc_make(0.1);
    mlc_one_cycle_desc one = mlc_one_cycle_desc_make(10);
    const mlc_sched    fall = mlc_sched_linear(5, 1, 0);
    double             p = 0, m = 0, v = 0;
    d.beta1 = 0.95;
    d.weight_decay = 0.5;
    one.start = one.end = 1;
    one.peak = 0.85 / 0.95;
    const mlc_sched cycle = mlc_sched_one_cycle_ex(&one);
    mlc_optim      *opt = mlc_adamw_ex(s.net, &d);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_MOMENTUM, &cycle), MLC_OK);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_WEIGHT_DECAY, &fall), MLC_OK);
    for (int t = 0; t < 12; t++) {
        double b1 = 0.95 * mlc_sched_at(&cycle, t), wd = 0.5 * mlc_sched_at(&fall, t);
        if (t == 9)
            CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_MOMENTUM, NULL), MLC_OK);
        if (t == 10)
            CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_WEIGHT_DECAY, NULL), MLC_OK);
        if (t >= 9)
            b1 = 0.95;
        if (t >= 10)
            wd = 0.5;
        p *= 1 - 0.1 * wd;
        m = b1 * m + (1 - b1) * 0.5;
        v = 0.999 * v + 0.001 * 0.25;
        p -= 0.1 / (1 - pow(b1, t + 1)) * m / (sqrt(v / (1 - pow(0.999, t + 1))) + 1e-8);
        CHECK_EQ(slide(&s, opt), MLC_OK);
        CHECK_NEAR(first_of(s.w), p, 1e-12);
    }
    CHECK_OK(ctx);
}

TEST(sched, groups_keep_their_ratio_to_what_a_schedule_makes)
{
    mlc_ctx        *ctx = test_ctx();
    const slope     s = slope_of(ctx, 3, 1);
    mlc_sgd_desc    d = mlc_sgd_desc_make(0.5);
    mlc_group_desc  g = mlc_group_desc_make();
    const mlc_sched half = mlc_sched_constant(0.5), twice = mlc_sched_constant(2);
    d.weight_decay = 9;
    g.lr_scale = 4;
    g.has_weight_decay = true;
    g.weight_decay = 0.25;
    mlc_optim *opt = mlc_sgd_ex(s.net, &d);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &half), MLC_OK);
    CHECK_EQ(mlc_optim_group(opt, "weight", &g), MLC_OK);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_WEIGHT_DECAY, &twice), MLC_OK);
    CHECK_EQ(slide(&s, opt), MLC_OK);
    CHECK_NEAR(first_of(s.w), -1, 1e-15);
    CHECK_EQ(slide(&s, opt), MLC_OK);
    CHECK_NEAR(first_of(s.w), -1 - (1 - 0.5), 1e-15);      /* g + 2 * 0.25 w                     */
    CHECK_OK(ctx);
}

TEST(sched, an_optimizer_keeps_a_copy_of_all_arrays)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_optim *opt = optim_of(ctx, 1);
    int64_t    at[] = {0}, starts[] = {0, 4}, inner[] = {0};
    mlc_sched  parts[2], first = mlc_sched_multi_step(at, 1, 0.5);
    parts[0] = mlc_sched_sequence(&first, inner, 1);
    parts[1] = mlc_sched_constant(3);
    mlc_sched all = mlc_sched_sequence(parts, starts, 2);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &all), MLC_OK);
    at[0] = starts[0] = inner[0] = 99;
    memset(parts, 0xff, sizeof parts);
    memset(&first, 0xff, sizeof first);
    memset(&all, 0xff, sizeof all);
    CHECK_NEAR(mlc_optim_lr(opt), 0.5, 0);
    CHECK_EQ(mlc_optim_set_lr(opt, 8), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(opt), 4, 0);
    CHECK_OK(ctx);
}

/* Of a matrix large enough to be stepped inside backward: the same bits as outside.              */
TEST(sched, steps_inside_backward_take_the_factors_of_the_same_update)
{
    enum { SIDE = 256 };
    static float    w[2][SIDE * SIDE];
    const mlc_sched half = mlc_sched_exponential(0.5), fall = mlc_sched_linear(3, 1, 0.25);
    for (int in_backward = 0; in_backward < 2; in_backward++) {
        mlc_ctx           *ctx = test_ctx();
        mlc_nn_linear_desc d = mlc_nn_linear_desc_make(SIDE, SIDE);
        d.no_bias = true;
        mlc_module *net = mlc_nn_linear_ex(ctx, &d);
        mlc_optim  *opt = mlc_adamw(net, 0.1);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(8, SIDE), 3, -1, 1);
        CHECK_EQ(mlc_optim_in_backward(opt, in_backward), MLC_OK);
        CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &half), MLC_OK);
        CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_MOMENTUM, &fall), MLC_OK);
        CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_WEIGHT_DECAY, &fall), MLC_OK);
        for (int t = 0; t < 4; t++) {
            mlc_scope_begin(ctx);
            mlc_backward(mlc_mse_loss(mlc_forward(net, x), x));
            mlc_optim_step(opt);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        CHECK_EQ(mlc_read(mlc_module_param(net, "weight"), w[in_backward], sizeof w[0]), MLC_OK);
    }
    CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0);
}

static double broken(void *user, int64_t t) { (void)user; return t == 1 ? NO_NUMBER : 1; }

TEST(sched, bad_factors_are_a_value_error_and_no_step)
{
    mlc_ctx        *ctx = test_ctx();
    const slope     s = slope_of(ctx, 3, 1);
    mlc_adam_desc   d = mlc_adam_desc_make(1);
    mlc_optim      *opt = mlc_adam_ex(s.net, &d);
    const mlc_sched user = mlc_sched_user(broken, NULL), twice = mlc_sched_constant(2);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &user), MLC_OK);
    CHECK_EQ(slide(&s, opt), MLC_OK);
    const double before = first_of(s.w);
    CHECK(isnan(mlc_optim_lr(opt)));
    CHECK_EQ(slide(&s, opt), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "the schedule of the rate has a factor of nan after 1 updates");
    mlc_error_clear(ctx);
    CHECK_NEAR(first_of(s.w), before, 0);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, NULL), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);                 /* with the gradient that is there    */
    CHECK(first_of(s.w) < before);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_MOMENTUM, &twice), MLC_OK);
    CHECK_EQ(slide(&s, opt), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "the schedule of the momentum makes it 1.8 after 2 updates");
    mlc_error_clear(ctx);
}

TEST(sched, bad_calls_of_optim_schedule_are_told)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_optim      *opt = optim_of(ctx, 1);
    const mlc_sched good = mlc_sched_constant(2), bad = mlc_sched_cosine(0, 0);
    CHECK_EQ(mlc_optim_schedule(NULL, MLC_KNOB_LR, &good), MLC_ERR_ARG);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_COUNT, &good), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "optim_schedule: knob is 3; it must be MLC_KNOB_LR");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_MOMENTUM, &good), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "of an optimizer without momentum");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &good), MLC_OK);
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &bad), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "optim_schedule: cosine: steps is 0; it must be 1 to 2^53");
    mlc_error_clear(ctx);
    CHECK_NEAR(mlc_optim_lr(opt), 2, 0);                   /* the one before is still there      */
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_WEIGHT_DECAY, NULL), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(opt), 2, 0);
    CHECK_OK(ctx);
}

TEST(sched, a_plateau_cuts_the_base_of_a_schedule)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_optim      *opt = optim_of(ctx, 1);
    const mlc_sched half = mlc_sched_constant(0.5);
    mlc_plateau     p = mlc_plateau_make();
    p.patience = 0;
    CHECK_EQ(mlc_optim_schedule(opt, MLC_KNOB_LR, &half), MLC_OK);
    CHECK_EQ(mlc_plateau_feed(&p, opt, 1), MLC_OK);
    CHECK_EQ(mlc_plateau_feed(&p, opt, 1), MLC_OK);
    CHECK_EQ(p.cuts, 1);
    CHECK_NEAR(mlc_optim_lr(opt), 0.05, 1e-17);
    CHECK_OK(ctx);
}

/* ---- the range test ----------------------------------------------------------------------- */

/* A network with state of every kind: batch norm's running values, dropout's streams, moments.  */
typedef struct trainee {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    mlc_tensor *x, *y;
    int         calls, fail_at, raise_at;
    double      rate[4];               /* of the first calls                                   */
} trainee;

static trainee trainee_of(mlc_ctx *ctx)
{
    trainee t;
    memset(&t, 0, sizeof t);
    t.ctx = ctx;
    t.fail_at = t.raise_at = -1;
    t.net = MLC_SEQUENTIAL(ctx, mlc_nn_linear(ctx, 6, 16), mlc_nn_batch_norm(ctx, 16),
                           mlc_nn_relu(ctx), mlc_nn_dropout(ctx, 0.1), mlc_nn_linear(ctx, 16, 1));
    t.opt = mlc_adamw(t.net, 1e-2);
    t.x = test_rand(ctx, MLC_F32, mlc_dims2(32, 6), 1, -1, 1);
    t.y = test_rand(ctx, MLC_F32, mlc_dims2(32, 1), 2, 4, 5);
    return t;
}

static double train_once(void *user)
{
    trainee *t = (trainee *)user;
    double   loss = NO_NUMBER;
    if (t->calls < 4)
        t->rate[t->calls] = mlc_optim_lr(t->opt);
    if (t->calls == t->raise_at)
        mlc_raise(t->ctx, MLC_ERR_IO, "no more data");
    if (t->calls++ == t->fail_at)
        return NO_NUMBER;
    mlc_scope_begin(t->ctx);
    mlc_tensor *l = mlc_mse_loss(mlc_forward(t->net, t->x), t->y);
    if (mlc_optim_minimize(t->opt, l) == MLC_OK)
        loss = mlc_item(l);
    mlc_scope_end(t->ctx);
    return loss;
}

/* After a range test training goes on with the bits that it would have had.                     */
TEST(sched, a_range_test_leaves_everything_as_it_was)
{
    double losses[2][6];
    for (int tested = 0; tested < 2; tested++) {
        mlc_ctx        *ctx = test_ctx();
        trainee         t = trainee_of(ctx);
        const mlc_sched half = mlc_sched_exponential(0.5);
        double          rates[40], curve[40], lr;
        int64_t         n;
        mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, curve, 40);
        CHECK_EQ(mlc_optim_schedule(t.opt, MLC_KNOB_LR, &half), MLC_OK);
        for (int i = 0; i < 6; i++) {
            if (tested && i % 2 == 0)  /* also before the first update                          */
                CHECK_EQ(mlc_lr_range(t.opt, &d, train_once, &t, &n, &lr), MLC_OK);
            CHECK_EQ(mlc_optim_steps(t.opt), i);
            CHECK_NEAR(mlc_optim_lr(t.opt), 1e-2 * pow(0.5, i), 1e-17);
            losses[tested][i] = train_once(&t);
        }
        CHECK_OK(ctx);
    }
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(losses[1][i], losses[0][i], 0);
    CHECK(losses[0][5] < losses[0][0]);
}

TEST(sched, a_range_test_has_a_curve_and_a_rate_that_trains)
{
    mlc_ctx          *ctx = test_ctx();
    trainee           t = trainee_of(ctx);
    double            rates[100], losses[100], lr;
    int64_t           n, least = 0;
    mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 100);
    CHECK_NEAR(d.from, 1e-7, 0);
    d.smooth = 0.5;
    d.to = 1e4;
    CHECK_EQ(mlc_lr_range(t.opt, &d, train_once, &t, &n, &lr), MLC_OK);
    CHECK(n > 20 && n < 100);          /* it diverges before the end                           */
    CHECK_EQ(t.calls, n);
    for (int64_t i = 0; i < n; i++) {
        CHECK_NEAR(rates[i] / (1e-7 * pow(1e11, (double)i / 99)), 1, 1e-12);
        if (losses[i] < losses[least])
            least = i;
        CHECK(i == n - 1 || losses[i] <= 4 * losses[least]);
    }
    CHECK_NEAR(t.rate[1], rates[1], 0);
    CHECK(losses[n - 1] > 4 * losses[least]);
    CHECK(lr > 1e-4 && lr < rates[least]);
    CHECK_NEAR(mlc_optim_lr(t.opt), 1e-2, 0);
    CHECK_EQ(mlc_optim_steps(t.opt), 0);
    CHECK_OK(ctx);
}

/* What a curve says: means are those of the losses so far, the steepest fall wins.              */
static double told(void *user) { return *(*(const double **)user)++; }

TEST(sched, a_range_test_smooths_and_suggests_as_said)
{
    static const double said[] = {9, 3, 3.5, 1, 0.5, 0.25, 0.5, 1.5, 20, 20};
    mlc_ctx            *ctx = test_ctx();
    mlc_optim          *opt = optim_of(ctx, 3);
    double              rates[10], losses[10], lr;
    const double       *at = said;
    int64_t             n;
    mlc_lr_range_desc   d = mlc_lr_range_desc_make(rates, losses, 10);
    d.from = 1;
    d.to = 512;
    d.smooth = 0;
    CHECK_EQ(mlc_lr_range(opt, &d, told, &at, &n, &lr), MLC_OK);
    CHECK_EQ(n, 8);                    /* 1.5 > 4 * 0.25                                       */
    CHECK_NEAR(lr, 1, 1e-12);          /* of points 1 and 2 nothing falls, so all count        */
    at = said;
    d.diverge = 100;
    CHECK_EQ(mlc_lr_range(opt, &d, told, &at, &n, &lr), MLC_OK);
    CHECK_EQ(n, 10);
    CHECK_NEAR(rates[9], 512, 0);
    CHECK_NEAR(lr, 4, 1e-12);          /* from 3.5 to 1                                        */
    at = said;
    d.smooth = 0.5;
    CHECK_EQ(mlc_lr_range(opt, &d, told, &at, NULL, NULL), MLC_OK);
    CHECK_NEAR(losses[0], 9, 1e-15);
    CHECK_NEAR(losses[2], (9 + 2 * 3 + 4 * 3.5) / 7, 1e-15);
}

TEST(sched, a_range_test_without_a_fall_suggests_nothing)
{
    static const double flat[] = {2, 2, 2, -1, 2};
    mlc_ctx            *ctx = test_ctx();
    mlc_optim          *opt = optim_of(ctx, 3);
    double              rates[3], losses[3], lr = 0;
    const double       *at = flat;
    int64_t             n;
    mlc_lr_range_desc   d = mlc_lr_range_desc_make(rates, losses, 3);
    CHECK_EQ(mlc_lr_range(opt, &d, told, &at, &n, &lr), MLC_OK);
    CHECK_EQ(n, 3);
    CHECK(isnan(lr));
    CHECK_NEAR(mlc_optim_lr(opt), 3, 0);
    CHECK_OK(ctx);
}

TEST(sched, a_range_test_that_fails_puts_everything_back)
{
    mlc_ctx          *ctx = test_ctx();
    trainee           t = trainee_of(ctx);
    double            rates[20], losses[20], lr = 0;
    float             before[6], after[6];
    int64_t           n;
    mlc_tensor       *w = mlc_module_param(t.net, "0.weight");
    mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 20);
    d.from = 0.1;
    CHECK_EQ(mlc_read(mlc_select(w, 0, 0), before, sizeof before), MLC_OK);
    t.fail_at = 3;                     /* as a loss that is no number                          */
    CHECK_EQ(mlc_lr_range(t.opt, &d, train_once, &t, &n, &lr), MLC_OK);
    CHECK_EQ(n, 3);
    t.calls = t.fail_at = 0;
    CHECK_EQ(mlc_lr_range(t.opt, &d, train_once, &t, &n, &lr), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "lr_range: the loss of the first step, at a rate of 0.1, is not fin");
    mlc_error_clear(ctx);
    CHECK(n == 0 && isnan(lr));
    t.calls = 0;
    t.fail_at = -1;
    t.raise_at = 2;
    CHECK_EQ(mlc_lr_range(t.opt, &d, train_once, &t, &n, &lr), MLC_ERR_IO);
    CHECK_STR(mlc_error(ctx), "no more data");
    CHECK_EQ(mlc_lr_range(t.opt, &d, train_once, &t, &n, &lr), MLC_ERR_IO);
    CHECK_EQ(t.calls, 3);              /* nothing is called while an error stands              */
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_read(mlc_select(w, 0, 0), after, sizeof after), MLC_OK);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_EQ(mlc_optim_steps(t.opt), 0);
    CHECK_NEAR(mlc_optim_lr(t.opt), 1e-2, 0);
    CHECK_OK(ctx);
}

static double groups_and_schedules(void *user)
{
    trainee        *t = (trainee *)user;
    const mlc_sched half = mlc_sched_constant(0.5);
    if (t->calls == 1)
        CHECK_EQ(mlc_optim_group(t->opt, "*.bias", NULL), MLC_OK);
    if (t->calls == 2)
        CHECK_EQ(mlc_optim_schedule(t->opt, MLC_KNOB_LR, &half), MLC_OK);
    return train_once(t);
}

/* What the step function does to the optimizer beside training does no harm.                    */
TEST(sched, a_range_test_survives_a_step_that_changes_the_optimizer)
{
    mlc_ctx          *ctx = test_ctx();
    trainee           t = trainee_of(ctx);
    double            rates[10], losses[10];
    mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 10);
    CHECK_EQ(mlc_optim_in_backward(t.opt, true), MLC_OK);
    train_once(&t);
    t.calls = 0;
    CHECK_EQ(mlc_lr_range(t.opt, &d, groups_and_schedules, &t, NULL, NULL), MLC_OK);
    CHECK_NEAR(mlc_optim_lr(t.opt), 1e-2, 0);
    CHECK_EQ(mlc_optim_steps(t.opt), 1);
    for (int i = 0; i < 3; i++)
        CHECK(isfinite(train_once(&t)));
    CHECK_EQ(mlc_optim_steps(t.opt), 4);
    CHECK_OK(ctx);
    mlc_optim_free(t.opt);
    mlc_module_free(t.net);
}

static double freezes_biases(void *user)
{
    trainee *t = (trainee *)user;
    CHECK_EQ(mlc_module_freeze(t->net, "*.bias", true), MLC_OK);
    CHECK_EQ(mlc_module_rebuild(t->net), MLC_OK);
    return train_once(t);
}

/* The step's layout has no entries for them, the optimizer's has: a moment of each. */
TEST(sched, a_range_test_leaves_states_of_what_its_step_freezes)
{
    mlc_ctx          *ctx = test_ctx();
    trainee           t = trainee_of(ctx);
    double            rates[4], losses[4], moment[2][16];
    mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 4);
    train_once(&t);
    for (int tested = 0; tested < 2; tested++) {
        mlc_optim_state_iter it = mlc_optim_state_iter_make(t.opt);
        while (mlc_optim_state_next(&it))
            if (strcmp(it.name, "state.0.bias.exp_avg") == 0) test_read(it.tensor, moment[tested]);
        if (tested) break;
        CHECK_EQ(mlc_lr_range(t.opt, &d, freezes_biases, &t, NULL, NULL), MLC_OK);
        CHECK_EQ(mlc_module_freeze(t.net, "*.bias", false), MLC_OK);
    }
    CHECK(memcmp(moment[0], moment[1], sizeof moment[0]) == 0);
    CHECK(isfinite(train_once(&t)));
    CHECK_OK(ctx);
}

TEST(sched, bad_range_tests_are_told)
{
    mlc_ctx          *ctx = test_ctx();
    trainee           t = trainee_of(ctx);
    double            rates[10], losses[10];
    mlc_lr_range_desc d = mlc_lr_range_desc_make(rates, losses, 10);
    const mlc_lr_range_desc good = d;
    CHECK_EQ(mlc_lr_range(NULL, &d, train_once, &t, NULL, NULL), MLC_ERR_ARG);
#define BAD_RANGE(change, fn, says) \
    d = good; \
    change; \
    CHECK_EQ(mlc_lr_range(t.opt, &d, fn, &t, NULL, NULL), MLC_ERR_ARG); \
    CHECK_HAS(mlc_error(ctx), says); \
    mlc_error_clear(ctx);
    BAD_RANGE(d.steps = 1, train_once, "lr_range: steps is 1; it must be 2 or more")
    BAD_RANGE(d.from = 0, train_once, "lr_range: from 0, to 10")
    BAD_RANGE(d.to = NO_NUMBER, train_once, "to nan")
    BAD_RANGE(d.smooth = 1, train_once, "smooth 1, diverge 4")
    BAD_RANGE(d.diverge = 1, train_once, "diverge 1")
    BAD_RANGE(d.losses = NULL, train_once, "lr_range: losses is NULL")
    BAD_RANGE(d.rates = NULL, train_once, "lr_range: rates is NULL")
    BAD_RANGE(d.from = 1, NULL, "lr_range: step is NULL")
#undef BAD_RANGE
    CHECK_EQ(mlc_lr_range(t.opt, NULL, train_once, &t, NULL, NULL), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "lr_range: desc, which mlc_lr_range_desc_make() gives, is NULL");
    mlc_error_clear(ctx);
    CHECK_EQ(t.calls, 0);
}
