/* test_cpp.cpp -- tests of section API.CPP: a program of its own, from C++11 on
 *
 * Linked with the object of the implementation. Without exceptions it leaves out mlc::check.
 * The last line is "N passed, M failed", of checks; the exit status says the same.
 */
#include "../mlcore.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

static int passed, failed;

static bool check_line(bool held, const char *what, int line)
{
    if (held) passed++;
    else failed++;
    if (!held) std::printf("tests/test_cpp.cpp:%d: does not hold: %s\n", line, what);
    return held;
}

#define CHECK(cond) check_line(!!(cond), #cond, __LINE__)

static int64_t in_use(mlc_ctx *ctx)
{
    mlc_memory info;
    return mlc_memory_info(ctx, &info) == MLC_OK ? info.allocated : -1;
}

static mlc_module *small_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 2));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.5));
    return net;
}

/* Is t these numbers? */
static bool is(mlc::tensor t, float a, float b)
{
    const mlc::span<float> v = mlc::elements<float>(t);
    return v.size() == 2 && v[0] == a && v[1] == b;
}

static mlc::tensor two(mlc_ctx *ctx, float a, float b)
{
    const float v[2] = {a, b};
    return mlc_from(ctx, MLC_F32, mlc_dims1(2), v);
}

static void handles_free_what_they_own_and_move()
{
    mlc::context ctx;
    if (!CHECK(ctx)) return;
    const int64_t before = in_use(ctx);
    {
        mlc::root      net(small_net(ctx));
        mlc::optimizer opt(mlc_adamw(net, 1e-3));
        CHECK(net && opt && in_use(ctx) > before);
        mlc::root other(std::move(net));
        CHECK(!net && other);
        net = std::move(other);
        CHECK(net && !other);
        mlc::root &self = net;
        net = std::move(self);
        CHECK(net);
        mlc::root outer(mlc_nn_sequential(ctx));
        CHECK(mlc_module_add(outer, net.release()) == MLC_OK && !net);
        opt.reset();
        CHECK(!opt);
    }
    CHECK(in_use(ctx) == before);
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = 1;
    mlc::context other(d);
    CHECK(mlc_ctx_threads(other) == 1);
    mlc_ctx *const first = ctx, *const second = other;
    other = std::move(ctx);
    CHECK(other == first && ctx == second);
    other = mlc::context();
    CHECK(mlc_ctx_status(other) == MLC_OK && mlc_ctx_status(ctx) == MLC_OK);
}

/* A class of handles, whose members are declared in the order in which they are made. */
struct trained {
    mlc::context   ctx;
    mlc::root      net;
    mlc::optimizer opt;
    trained() : net(small_net(ctx)), opt(mlc_adamw(net, 1e-3)) {}
};

static void classes_of_handles_move_whole()
{
    trained a, b;
    mlc_ctx *const    old = a.ctx;
    mlc_module *const net = b.net;
    a = std::move(b);
    CHECK(a.net == net && mlc_module_ctx(a.net) == a.ctx);
    CHECK(b.ctx == old && mlc_module_ctx(b.net) == old && b.opt);      /* nothing was freed       */
    trained c(std::move(a));
    CHECK(!a.ctx && !a.net && !a.opt && c.net == net);
    a = trained();
    CHECK(a.opt && mlc_forward(a.net, mlc_ones(a.ctx, MLC_F32, mlc_dims2(1, 3))) != nullptr);
}

static void tensors_have_operators()
{
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2), b = two(ctx, 4, -8);
    CHECK(is(a + b, 5, -6) && is(a - b, -3, 10) && is(a * b, 4, -16) && is(b / a, 4, -4));
    CHECK(is(a - b.get(), -3, 10) && is(a.get() - b, -3, 10));      /* no distance of pointers */
    CHECK(is(-a, -1, -2) && is(a + 1, 2, 3) && is(1L + a, 2, 3) && is(a - 1u, 0, 1));
    CHECK(is(a - 1.5f, -0.5f, 0.5f) && is(3 - a, 2, 1) && is(a * 2, 2, 4) && is(2.0 * a, 2, 4));
    CHECK(is(a / 2, 0.5f, 1) && is(4 / b, 1, -0.5f) && is(a + 2 * b, 9, -14));
    CHECK(is(mlc::matmul(mlc_reshape(a, mlc_dims2(1, 2)), mlc_eye(ctx, MLC_F32, 2, 2)), 1, 2));
    CHECK(a->ndim == 1 && a.get() == a);
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
    CHECK((a + mlc::tensor()).get() == nullptr);
    mlc_error_clear(ctx);
    mlc::tensor c = -(mlc::matmul(a, mlc_zeros(ctx, MLC_F32, mlc_dims1(3))) * 2 + 1);
    CHECK(!c && mlc_ctx_status(ctx) == MLC_ERR_SHAPE);
}

static void blocks_end_what_they_began()
{
    mlc::context ctx;
    mlc::root    net(small_net(ctx));
    mlc::tensor  x = mlc_ones(ctx, MLC_F32, mlc_dims2(1, 3));
    CHECK(mlc_module_build(net) == MLC_OK);
    mlc_forward(net, x);
    const int64_t before = in_use(ctx);
    {
        mlc::scope step(ctx);
        CHECK((x * 2)->scope == 1 && in_use(ctx) > before);
    }
    CHECK(in_use(ctx) == before);
    {
        mlc::scope step(ctx);
        mlc_raise(ctx, MLC_ERR_IO, "mine");
        CHECK(step.end() == MLC_ERR_IO && step.end() == MLC_ERR_STATE);
    }
    CHECK(mlc_ctx_status(ctx) == MLC_OK && std::strcmp(mlc_error(ctx), "mine") == 0);
    CHECK(mlc_scope_end(ctx) == MLC_ERR_STATE);            /* none is open                      */
    mlc_error_clear(ctx);
    {
        mlc::no_grad off(ctx);
        CHECK(!mlc_requires_grad(mlc_forward(net, x)));
    }
    mlc_module *const child = mlc_module_child(net, 0);
    mlc_module_train(child, false);                        /* it stays as it is                 */
    {
        mlc::evaluation quiet(net);
        CHECK(!mlc_module_is_training(net) && !mlc_requires_grad(mlc_forward(net, x)));
    }
    CHECK(mlc_module_is_training(net) && !mlc_module_is_training(child));
    CHECK(mlc_requires_grad(mlc_forward(net, x)));
    {
        mlc::autocast low(ctx, MLC_BF16);
        CHECK(mlc_matmul(x, mlc_transpose(x, 0, 1))->dtype == MLC_BF16);
    }
    CHECK(mlc_matmul(x, mlc_transpose(x, 0, 1))->dtype == MLC_F32);
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
}

static void loops_see_all_parameters_and_elements()
{
    mlc::context ctx;
    mlc::root    net(small_net(ctx));
    int          n = 0;
    CHECK(mlc_module_build(net) == MLC_OK);
    for (auto &p : mlc::params(net)) {
        CHECK(std::strcmp(p.name, n == 0 ? "0.weight" : "0.bias") == 0 && p.trainable);
        for (float &w : mlc::elements<float>(p.tensor)) w = 7;
        n++;
    }
    CHECK(n == 2 && is(mlc_module_param(net, "0.bias"), 7, 7));
    mlc::root empty(mlc_nn_relu(ctx));
    for (auto &p : mlc::params(empty)) n += p.trainable ? 100 : 200;
    CHECK(n == 2);
    mlc::tensor t = mlc_arange(ctx, MLC_I64, 0, 6, 1);
    int64_t     sum = 0;
    for (int64_t v : mlc::elements<int64_t>(t)) sum += v;
    CHECK(sum == 15);
    CHECK(mlc::elements<int64_t>(mlc_transpose(mlc_reshape(t, mlc_dims2(2, 3)), 0, 1)).size() == 0);
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
    CHECK(mlc::elements<double>(t).size() == 0 && mlc_ctx_status(ctx) == MLC_ERR_DTYPE);
    CHECK(mlc::elements<float>(nullptr).data() == nullptr);
}

static void check_throws_the_text()
{
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    mlc::context ctx;
    std::string  text;
    mlc::check(ctx);
    mlc::check(ctx, MLC_OK);
    try {
        mlc::scope step(ctx);
        mlc_raise(ctx, MLC_ERR_IO, "mine");
        mlc::check(ctx, step.end());
    } catch (const std::runtime_error &e) {
        text = e.what();
    }
    CHECK(text == "mine");
    try {
        mlc::scope step(ctx);
        mlc_raise(ctx, MLC_ERR_IO, "yours");
        mlc::check(ctx);
    } catch (const std::runtime_error &e) {
        text = e.what();
    }
    CHECK(text == "yours" && mlc_ctx_status(ctx) == MLC_OK);
#else
    CHECK(true);
#endif
}

static int64_t five(void *) { return 5; }
static mlc_status zeros(void *, mlc_sample *s)
{
    static_cast<float *>(s->dst[0])[0] = 0;
    return MLC_OK;
}

static void what_a_training_needs_is_freed()
{
    mlc::context  ctx;
    mlc::root     net(small_net(ctx));
    CHECK(mlc_module_build(net) == MLC_OK);
    const int64_t before = in_use(ctx);
    {
        mlc_dataset own = mlc_dataset();
        own.count = five;
        own.n_fields = 1;
        own.field[0].dtype = MLC_F32;
        own.field[0].dims = mlc_dims1(1);
        own.get = zeros;
        mlc::dataset   data(mlc_dataset_create(ctx, &own));
        mlc::callback  bar(ctx, mlc_on_progress(ctx, nullptr, nullptr));
        mlc::callback  moved(std::move(bar)), none(ctx, nullptr);
        mlc_callback  *list[] = {moved};
        mlc::run_saver saver(mlc_run_saver_create(ctx));
        CHECK(mlc_dataset_count(data) == 5 && !bar && moved.get() == list[0] && !none);
        CHECK(saver && in_use(ctx) > before);
    }
    CHECK(in_use(ctx) == before && mlc_ctx_status(ctx) == MLC_OK);
}

static void a_lambda_is_a_trial()
{
    const double            rates[] = {0.5, 0.25, 2};
    const mlc_sweep_axis    axis = {"lr", rates, 3};
    static const char *const names[] = {"loss"};
    mlc::context   ctx;
    mlc::sweep     s;
    mlc_sweep_desc d = mlc_sweep_desc_make(&axis, 1, names, 1);
    const double   factor = 3;
    const int64_t  before = in_use(ctx);
    CHECK(mlc::run_sweep(ctx, d, [factor](mlc_ctx *, const mlc_trial &t, double *results) {
        results[0] = factor * t.values[0];
        return MLC_OK;
    }, &s) == MLC_OK);
    CHECK(mlc_sweep_point_at(s, 0)->mean[0] == 0.75 && mlc_sweep_trial(s, 2)->results[0] == 6);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    CHECK(mlc::run_sweep(ctx, d, [](mlc_ctx *own, const mlc_trial &t, double *) {
        if (t.index == 1) throw std::runtime_error("thrown");
        if (t.index == 2) mlc::check(own, mlc_raise(own, MLC_ERR_IO, "raised"));
        return MLC_OK;
    }, &s) == MLC_OK);
    const mlc_trial *one = mlc_sweep_trial(s, 1), *two = mlc_sweep_trial(s, 2);
    CHECK(one->status == MLC_ERR_STATE && std::strcmp(one->message, "thrown") == 0);
    CHECK(two->status == MLC_ERR_IO && std::strcmp(two->message, "raised") == 0);
#endif
    CHECK(mlc::run_sweep(ctx, d, [](mlc_ctx *, const mlc_trial &, double *) { return MLC_OK; },
                         nullptr) == MLC_OK);
    s.reset();
    CHECK(in_use(ctx) == before && mlc_ctx_status(ctx) == MLC_OK);
}

int main()
{
    handles_free_what_they_own_and_move();
    classes_of_handles_move_whole();
    tensors_have_operators();
    blocks_end_what_they_began();
    loops_see_all_parameters_and_elements();
    check_throws_the_text();
    what_a_training_needs_is_freed();
    a_lambda_is_a_trial();
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
