/* test_train.c -- tests of section IMPL.TRAIN: progress; and of training from end to end */
#define _XOPEN_SOURCE 700              /* setenv, dup, posix_openpt, under -std=c11 */
#include "mlc_test.h"
#include "golden/golden.h"

#include <fcntl.h>
#include <unistd.h>

#define STEPS 100

/* ---- the digits network against PyTorch --------------------------------------------------- */

typedef struct digits {
    mlc_tensor *x, *y;                 /* the training rows: pixels in [0,1], labels           */
    mlc_module *net;
    mlc_optim  *opt;
    mlc_loader *loader;
} digits;

/* Training rows of digits.csv as [rows,64] in [0,1] and labels, in file order. */
static bool read_digits(mlc_ctx *ctx, digits *d)
{
    static double table[1797 * 66], x[1797 * 64], y[1797];
    int64_t       rows = 0;
    mlc_tensor   *csv = mlc_csv_load(ctx, "examples/data/digits.csv", NULL);
    if (!CHECK_OK(ctx) || !CHECK_EQ(mlc_numel(csv), 1797 * 66) || !test_read(csv, table))
        return false;
    for (int64_t i = 0; i < 1797; i++) {
        if (table[i * 66 + 65] != 0)                       /* held out                         */
            continue;
        for (int k = 0; k < 64; k++)
            x[rows * 64 + k] = table[i * 66 + k] / 16;
        y[rows++] = table[i * 66 + 64];
    }
    d->x = test_tensor(ctx, MLC_F32, mlc_dims2(rows, 64), x);
    d->y = test_tensor(ctx, MLC_I64, mlc_dims1(rows), y);
    return CHECK_EQ(rows, 1433);
}

static mlc_module *digits_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 64, 128));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 128, 10));
    return net;
}

/* Everything for a run from PyTorch's start weights, batches of 32 in file order. */
static bool start_digits(mlc_ctx *ctx, const golden_file *f, digits *d)
{
    if (!read_digits(ctx, d))
        return false;
    d->net = digits_net(ctx);
    mlc_param_iter it = mlc_param_iter_make(d->net);
    while (mlc_param_next(&it))
        CHECK_EQ(mlc_copy_into(it.tensor, golden_find(f, "start.%s", it.name)), MLC_OK);
    mlc_loader_desc l = mlc_loader_desc_make(d->x, d->y, 32);
    l.drop_last = true;
    d->loader = mlc_loader_create(ctx, &l);
    d->opt = mlc_adamw(d->net, 1e-3);
    return CHECK_OK(ctx) && CHECK(d->loader != NULL && d->opt != NULL);
}

/* One step on the next batch, under autocast to dtype; its loss. */
static double digits_step(mlc_ctx *ctx, digits *d, mlc_dtype dtype)
{
    mlc_batch b;
    double    value;
    if (!mlc_loader_next(d->loader, &b) && !CHECK(mlc_loader_next(d->loader, &b)))
        return (double)NAN;
    mlc_scope_begin(ctx);
    mlc_autocast_begin(ctx, dtype);
    mlc_tensor *loss = mlc_cross_entropy(mlc_forward(d->net, b.x), b.y);
    mlc_autocast_end(ctx);
    value = mlc_item(loss);
    mlc_backward(loss);
    mlc_optim_step(d->opt);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    return value;
}

/* The first losses are those of the golden, each to a share of itself, on every level. */
static void losses_follow(const char *golden, mlc_dtype dtype, int steps, double share)
{
    FOR_EACH_ISA(ctx) {
        digits      d;
        double      want[STEPS];
        golden_file f = golden_open(ctx, "train.safetensors");
        if (!start_digits(ctx, &f, &d) || !test_read(golden_find(&f, "%s", golden), want))
            return;
        for (int step = 0; step < steps; step++) {
            double got = digits_step(ctx, &d, dtype);
            if (!CHECK_NEAR(got, want[step], share * want[step])) {
                printf("  %s step %d\n", mlc_isa_name(mlc_ctx_isa(ctx)), step);
                break;
            }
        }
        CHECK(want[STEPS - 1] < 0.5 * want[0]);            /* the golden itself did learn      */
    }
}

TEST(train, the_first_100_losses_on_digits_follow_pytorch)
{
    losses_follow("losses", MLC_F32, STEPS, 1e-4);
}

/* Both round in other places: measured, they differ by less than 0.05 %. */
TEST(train, the_first_50_losses_in_bf16_follow_pytorchs_autocast)
{
    losses_follow("losses_bf16", MLC_BF16, 50, 0.002);
}

enum { WEIGHTS = 64 * 128 + 128 + 128 * 10 + 10 };

static bool weights_after_50(int32_t threads, mlc_isa isa, double *out)
{
    digits       d;
    mlc_ctx_desc desc = test_desc();
    desc.threads = threads;
    if (test_on_host())
        desc.isa = isa;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&desc));
    golden_file f = golden_open(ctx, "train.safetensors");
    if (!start_digits(ctx, &f, &d) || !CHECK_EQ(mlc_ctx_threads(ctx), threads))
        return false;
    for (int step = 0; step < 50; step++)
        digits_step(ctx, &d, MLC_F32);
    mlc_param_iter it = mlc_param_iter_make(d.net);
    while (mlc_param_next(&it)) {
        test_read(it.tensor, out);
        out += mlc_numel(it.tensor);
    }
    return CHECK_OK(ctx);
}

TEST(train, weights_after_50_steps_have_the_same_bits_with_1_2_and_3_threads)
{
    static double one[WEIGHTS], more[WEIGHTS];
    FOR_EACH_LEVEL(isa) {
        if (!weights_after_50(1, (mlc_isa)isa, one))
            return;
        for (int32_t threads = 2; threads <= 3; threads++) {
            if (!weights_after_50(threads, (mlc_isa)isa, more))
                return;
            CHECK(memcmp(one, more, sizeof one) == 0);
        }
    }
}

/* Layers large enough that every loop is worth several threads. */
static bool wide_weights(int32_t threads, double *out)
{
    mlc_ctx_desc desc = test_desc();
    desc.threads = threads;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&desc));
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 129, 257));
    mlc_module_add(net, mlc_nn_gelu(ctx));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.1));
    mlc_module_add(net, mlc_nn_linear(ctx, 257, 130));
    mlc_optim *opt = mlc_adamw(net, 1e-2);
    for (uint64_t step = 0; step < 5; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(203, 129), step, -1, 1);
        mlc_tensor *t = test_rand(ctx, MLC_F32, mlc_dims2(203, 130), step + 9, -1, 1);
        mlc_backward(mlc_mse_loss(mlc_forward(net, x), t));
        mlc_optim_step(opt);
        if (!CHECK_EQ(mlc_scope_end(ctx), MLC_OK))
            return false;
    }
    return test_read(mlc_module_param(net, "0.weight"), out) &&
           test_read(mlc_module_param(net, "3.weight"), out + 129 * 257);
}

TEST(train, a_wide_network_with_dropout_has_the_same_bits_with_1_2_and_3_threads)
{
    enum { N = 129 * 257 + 257 * 130 };
    static double one[N], more[N];
    if (!wide_weights(1, one))
        return;
    for (int32_t threads = 2; threads <= 3; threads++)
        if (wide_weights(threads, more))
            CHECK(memcmp(one, more, sizeof one) == 0);
}

/* Parameters in f32, or in bf16, where most steps are smaller than what it tells apart. */
static void digits_are_learned(mlc_dtype dtype)
{
    static double table[1797 * 66], x[400 * 64], y[400];
    int64_t       rows = 0;
    digits        d;
    mlc_ctx      *ctx = test_ctx();
    golden_file   f = golden_open(ctx, "train.safetensors");
    if (!start_digits(ctx, &f, &d))
        return;
    CHECK_EQ(mlc_module_to(d.net, dtype), MLC_OK);
    test_read(mlc_csv_load(ctx, "examples/data/digits.csv", NULL), table);
    for (int64_t i = 0; i < 1797; i++) {
        if (table[i * 66 + 65] == 0)
            continue;
        for (int k = 0; k < 64; k++)
            x[rows * 64 + k] = table[i * 66 + k] / 16;
        y[rows++] = table[i * 66 + 64];
    }
    CHECK_EQ(rows, 364);
    for (int step = 0; step < 10 * 44; step++)             /* ten epochs                       */
        digits_step(ctx, &d, dtype);
    mlc_module_train(d.net, false);
    mlc_no_grad_begin(ctx);
    mlc_tensor *scores = mlc_cast(
        mlc_forward(d.net, test_tensor(ctx, dtype, mlc_dims2(rows, 64), x)), MLC_F32);
    CHECK(mlc_accuracy(scores, test_tensor(ctx, MLC_I64, mlc_dims1(rows), y)) > 0.9);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

TEST(train, accuracy_on_held_out_digits_is_learned) { digits_are_learned(MLC_F32); }
TEST(train, digits_are_learned_with_parameters_in_bf16) { digits_are_learned(MLC_BF16); }

/* ---- progress ----------------------------------------------------------------------------- */

typedef struct sink {
    char   text[4096];
    size_t n;
    int    calls;
} sink;

static void collect(void *user, const char *text, size_t bytes)
{
    sink *s = (sink *)user;
    if (CHECK(s->n + bytes < sizeof s->text))
        memcpy(s->text + s->n, text, bytes);
    s->n += bytes;
    s->text[s->n] = 0;
    s->calls++;
}

TEST(train, progress_away_from_a_terminal_is_whole_lines)
{
    sink         s;
    mlc_progress p;
    memset(&s, 0, sizeof s);
    p = mlc_progress_make("epoch 1", 50, collect, &s);
    CHECK(!p.terminal);
    for (int i = 1; i < 50; i++)
        mlc_progress_update(&p, i, "loss 0.5");
    CHECK_EQ(s.calls, 0);                                  /* none is due within 30 seconds    */
    mlc_progress_update(&p, 50, "loss 0.31");
    CHECK_EQ(s.calls, 1);
    CHECK(strncmp(s.text, "epoch 1 100% 50/50 ", 19) == 0);
    CHECK_HAS(s.text, " loss 0.31\n");
    CHECK(strchr(s.text, '\r') == NULL && strchr(s.text, '\033') == NULL);
    CHECK(strchr(s.text, '\n') == s.text + s.n - 1);
}

TEST(train, progress_of_the_largest_number_is_no_percentage_below_0)
{
    sink         s;
    mlc_progress p;
    memset(&s, 0, sizeof s);
    p = mlc_progress_make("epoch 1", INT64_MAX, collect, &s);
    mlc_progress_update(&p, INT64_MAX, "loss 0.31");
    CHECK(strncmp(s.text, "epoch 1 100% 9223372036854775807/9223372036854775807 ", 52) == 0);
}

TEST(train, progress_away_from_a_terminal_says_something_every_30_seconds)
{
    sink         s;
    mlc_progress p;
    memset(&s, 0, sizeof s);
    p = mlc_progress_make("train", 50, collect, &s);
    p.shown -= 31;                                         /* as if that long ago              */
    mlc_progress_update(&p, 25, "loss 0.5");
    mlc_progress_update(&p, 26, "loss 0.5");
    CHECK_EQ(s.calls, 1);
    CHECK(strncmp(s.text, "train  50% 25/50 ", 17) == 0);
    CHECK_HAS(s.text, " loss 0.5\n");
}

TEST(train, progress_on_a_terminal_redraws_one_line)
{
    sink         s;
    mlc_progress p;
    memset(&s, 0, sizeof s);
    p = mlc_progress_make("train", 40, collect, &s);
    p.terminal = true;
    p.shown -= 1;
    mlc_progress_update(&p, 10, "loss 0.5");
    p.shown += 60;                     /* sooner than a tenth of a second, if the machine pauses */
    mlc_progress_update(&p, 11, "loss 0.5");
    CHECK_EQ(s.calls, 1);
    CHECK(s.text[0] == '\r' && strchr(s.text, '\n') == NULL);
    CHECK_HAS(s.text, " 25% ");
    CHECK_HAS(s.text, " 10/40 ");
    s.n = 0;
    mlc_progress_update(&p, 40, NULL);
    CHECK_EQ(s.calls, 2);
    CHECK_HAS(s.text, "100% ");
    CHECK(s.text[s.n - 1] == '\n');
}

TEST(train, progress_survives_odd_totals_texts_and_null)
{
    static char  text[2000];
    sink         s;
    mlc_progress p;
    memset(&s, 0, sizeof s);
    memset(text, 'x', sizeof text - 1);
    p = mlc_progress_make("far", 40, collect, &s);
    p.shown -= 60;
    mlc_progress_update(&p, INT64_MIN, NULL);
    CHECK_HAS(s.text, "far   0% -9223372036854775808/40 0:00");
    memset(&s, 0, sizeof s);
    p = mlc_progress_make(NULL, 0, collect, &s);
    mlc_progress_update(&p, 0, NULL);
    CHECK_HAS(s.text, "100% 0/0");
    s.n = 0;
    p = mlc_progress_make(text, 3, collect, &s);
    mlc_progress_update(&p, 7, text);                      /* more than there is               */
    CHECK_HAS(s.text, "100% 7/3");
    CHECK(s.n < 512 && s.text[s.n - 1] == '\n');
    s.n = 0;
    p.terminal = true;
    mlc_progress_update(&p, 3, text);
    CHECK(s.n < 512 && s.text[s.n - 1] == '\n');
    mlc_progress_update(NULL, 1, "x");
}

/* What fn prints on standard output, in out. */
static size_t captured(void (*fn)(void), char *out, size_t room)
{
    char    path[] = "/tmp/mlcore_train_XXXXXX";
    int     file = mkstemp(path), old = dup(1);
    ssize_t n = 0;
    if (!CHECK(file >= 0 && old >= 0))
        return 0;
    unlink(path);
    fflush(stdout);
    dup2(file, 1);
    fn();
    fflush(stdout);
    dup2(old, 1);
    close(old);
    n = pread(file, out, room - 1, 0);
    close(file);
    out[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static void print_progress(void)
{
    mlc_progress p = mlc_progress_make("to a file", 2, NULL, NULL);
    mlc_progress_update(&p, 1, NULL);
    mlc_progress_update(&p, 2, "done");
}

TEST(train, progress_without_a_writer_goes_to_standard_output_in_lines_when_that_is_a_file)
{
    char   out[512];
    size_t n = captured(print_progress, out, sizeof out);
    CHECK(strncmp(out, "to a file 100% 2/2 ", 19) == 0);
    CHECK(n > 0 && strchr(out, '\n') == out + n - 1);
    CHECK(strchr(out, '\r') == NULL && strchr(out, '\033') == NULL);
}

/* A terminal of our own as standard output: with TERM as given and without NO_COLOR. */
static bool terminal_is_seen(const char *term, const char *no_color)
{
    int  main_end = posix_openpt(O_RDWR | O_NOCTTY), old = dup(1), end;
    bool seen;
    if (main_end < 0 || grantpt(main_end) != 0 || unlockpt(main_end) != 0)
        return CHECK(false);
    end = open(ptsname(main_end), O_RDWR | O_NOCTTY);
    fflush(stdout);
    dup2(end, 1);
    setenv("TERM", term, 1);
    if (no_color != NULL)
        setenv("NO_COLOR", no_color, 1);
    else
        unsetenv("NO_COLOR");
    seen = mlc_progress_make("x", 1, NULL, NULL).terminal;
    dup2(old, 1);
    close(old);
    close(end);
    close(main_end);
    return seen;
}

TEST(train, progress_knows_a_terminal_and_heeds_dumb_and_no_color)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    char        old_term[64], old_color[64];
    snprintf(old_term, sizeof old_term, "%s", term ? term : "");
    snprintf(old_color, sizeof old_color, "%s", no_color ? no_color : "");
    CHECK(terminal_is_seen("xterm", NULL));
    CHECK(!terminal_is_seen("dumb", NULL));
    CHECK(!terminal_is_seen("xterm", "1"));
    if (term) setenv("TERM", old_term, 1); else unsetenv("TERM");
    if (no_color) setenv("NO_COLOR", old_color, 1); else unsetenv("NO_COLOR");
}
