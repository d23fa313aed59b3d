/* test_cpp.cpp -- tests of section API.CPP: a program of its own, from C++11 on
 *
 * Linked with the object of the implementation. Without exceptions it leaves out mlc::check.
 * The last line is "N passed, M failed", of checks; the exit status says the same.
 */
#include "../mlcore.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

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
        mlc::root named(MLC_SEQUENTIAL_NAMED(ctx, {"body", small_net(ctx)},
                                             {"head", mlc_nn_linear(ctx, 2, 2)}));
        CHECK(named && mlc_module_param(named, "body.0.weight") != nullptr);
        CHECK(mlc_module_param(named, "head.bias") != nullptr);
        mlc::root body(small_net(ctx));
        mlc::root both(MLC_SEQUENTIAL(ctx, body.release(), mlc_nn_relu(ctx)));
        CHECK(!body && mlc_module_child(both, 0) != nullptr);
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
    CHECK(a->ndim == 1 && a.get() == mlc::tensor(a).get());
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
    mlc::tensor c = -(mlc::matmul(a, mlc_zeros(ctx, MLC_F32, mlc_dims1(3))) * 2 + 1);
    CHECK(!c && mlc_ctx_status(ctx) == MLC_ERR_SHAPE);
}

/* Is x NULL, and this the text of the error, which ends here? */
static bool said(mlc_ctx *ctx, mlc::tensor x, const char *text)
{
    const bool is_so = !x && std::strcmp(mlc_error(ctx), text) == 0;
    if (!is_so) std::printf("%s\n", mlc_error(ctx));
    mlc_error_clear(ctx);
    return is_so;
}

static void an_input_that_is_null_is_an_error()
{
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2), none;
#define SAYS(what) what " is NULL; look at what should have made it"
    CHECK(said(ctx, a + none, SAYS("add: input 2")) && said(ctx, none * a, SAYS("mul: input 1")));
    CHECK(said(ctx, a > none, SAYS("gt: input 2")));
    CHECK(said(ctx, 2 * a - none, SAYS("sub: input 2")));
    CHECK(said(ctx, mlc::where(a > 0, a, none), SAYS("where: input 3")));
    CHECK(said(ctx, mlc_matmul(none, a), SAYS("matmul: input 1")));
    CHECK(said(ctx, mlc::matmul(a, {}), SAYS("matmul: input 2")));
    CHECK(said(ctx, mlc::gather(a, 0, none), SAYS("gather: input 2")));
    CHECK(said(ctx, mlc::cross_entropy(a, none), SAYS("cross_entropy: input 2")));
    a += none;
    CHECK(said(ctx, nullptr, SAYS("add_: input 2")) && is(a, 1, 2));
    a[0] = none;
    CHECK(said(ctx, nullptr, SAYS("copy_: input 2")) && is(a, 1, 2));
    CHECK(!(none + none) && !mlc::exp(none));              /* no context                        */
    CHECK(is(mlc::layer_norm(a, none, none, 0), -1, 1));   /* they need not be there            */
    mlc_raise(ctx, MLC_ERR_IO, "why");
    CHECK(said(ctx, a + none, "why"));
#undef SAYS
}

/* Are the truth values of a mask these? */
static bool says(mlc::mask m, bool a, bool b)
{
    return m->dtype == MLC_BOOL && mlc_numel(m) == 2 &&
           (mlc_item_at(m, mlc::dims{0}) != 0) == a && (mlc_item_at(m, mlc::dims{1}) != 0) == b;
}

/* NAME<mlc::tensor>(0) is there if the expression, of x of that type, compiles. */
#define COMPILES(name, expression) \
    template <class T> auto name(int) \
        -> decltype(static_cast<void>(expression), std::true_type()); \
    template <class T> std::false_type name(...)
#define X std::declval<const T &>()
#define LVALUE std::declval<T &>()
COMPILES(control, X + 1);
COMPILES(exp_of, mlc::exp(X));
COMPILES(exp_of_two, mlc::exp(X, 1));
COMPILES(sum_of_a_text, mlc::sum(X, "0"));
COMPILES(less_as_bool, static_cast<bool>(X < X));
COMPILES(equal_zero_as_bool, static_cast<bool>(X == 0));
COMPILES(named_as_bool, static_cast<bool>(mlc::isnan(X)));
COMPILES(c_named_null_test, !mlc_isnan(X) || !mlc_gt(X, X.get()) || !mlc_all(X, mlc_dims0(), 0));
COMPILES(all_as_bool, static_cast<bool>(mlc::all(X)));
COMPILES(both_masks, (X < X) && (X > X));
COMPILES(not_mask, !(X < X));
COMPILES(as_double, static_cast<double>(X));
COMPILES(increment, ++LVALUE);
COMPILES(plus_null, X + nullptr);
COMPILES(pointer_is_named, mlc::exp(X.get()) + 1);
COMPILES(row_takes_a_row, std::declval<T>()[0] = X);
COMPILES(row_takes_null, std::declval<T>()[0] = nullptr);
COMPILES(row_takes_a_text, std::declval<T>()[0] = "0");
COMPILES(row_plus_a_text, std::declval<T>()[0] += "0");
#define MODULE std::declval<mlc_module *>()
#define CTX std::declval<mlc_ctx *>()
COMPILES(module_added, mlc_module_add(MODULE, X) && mlc_module_add_named(MODULE, "a", X));
COMPILES(adds, mlc_module_add(X, MODULE) || mlc_module_add_named(X, "a", MODULE));
COMPILES(module_added_named, mlc_module_add_named(MODULE, "a", X));
COMPILES(in_residual, mlc_nn_residual(CTX, X, nullptr, true));
COMPILES(as_shortcut, mlc_nn_residual(CTX, MODULE, X, true));
COMPILES(is_forward, mlc_nn_bidirectional(CTX, X, MODULE));
COMPILES(is_backward, mlc_nn_bidirectional(CTX, MODULE, X));
COMPILES(recomputed, mlc_nn_recompute(CTX, X));
COMPILES(in_a_list, MLC_SEQUENTIAL(CTX, MODULE, X));
COMPILES(in_a_list_named, MLC_SEQUENTIAL_NAMED(CTX, {"a", MODULE}, {"b", X}));
COMPILES(in_a_call, mlc_nn_sequential_of(CTX, {MODULE, X}));
COMPILES(in_a_call_named, mlc_nn_sequential_named(CTX, {{"a", MODULE}, {"b", X}}));
COMPILES(released, MLC_SEQUENTIAL(CTX, LVALUE.release(), nullptr, NULL));
COMPILES(released_named, MLC_SEQUENTIAL_NAMED(CTX, {"b", LVALUE.release()}));
#undef CTX
#undef MODULE
COMPILES(null_test, static_cast<bool>(X == nullptr));
COMPILES(truth, X ? 1 : 2);
#undef LVALUE
#undef X

static void what_is_dangerous_does_not_compile()
{
#define ROOT(name) decltype(name<mlc::root>(0))::value
    static_assert(ROOT(adds) && ROOT(released) && ROOT(released_named) &&
                      decltype(in_a_list<mlc_module *>(0))::value &&
                      decltype(in_a_call<mlc_module *>(0))::value &&
                      decltype(in_a_call_named<mlc_module *>(0))::value,
                  "modules that are no root's");
    static_assert(!ROOT(module_added) && !ROOT(module_added_named) && !ROOT(in_residual) &&
                      !ROOT(as_shortcut) && !ROOT(is_forward) && !ROOT(is_backward) &&
                      !ROOT(recomputed) && !ROOT(in_a_list) && !ROOT(in_a_list_named) &&
                      !ROOT(in_a_call) && !ROOT(in_a_call_named),
                  "no module has two owners");
#undef ROOT
#define HAS(name) decltype(name<mlc::tensor>(0))::value
    static_assert(HAS(control) && HAS(pointer_is_named) && HAS(null_test) && HAS(truth) &&
                      HAS(c_named_null_test) && HAS(row_takes_a_row),
                  "what is safe compiles");
    static_assert(HAS(exp_of) && !decltype(exp_of<double>(0))::value &&
                      !decltype(exp_of<int>(0))::value &&
                      !decltype(exp_of<std::string>(0))::value && !HAS(exp_of_two) &&
                      !HAS(sum_of_a_text) && !HAS(as_double) && !HAS(increment) &&
                      !HAS(plus_null) && !HAS(row_takes_null) && !HAS(row_takes_a_text) &&
                      !HAS(row_plus_a_text),
                  "arguments that no operation takes");
    static_assert(!HAS(less_as_bool) && !HAS(equal_zero_as_bool) && !HAS(named_as_bool) &&
                      !HAS(all_as_bool) && !HAS(both_masks) && !HAS(not_mask),
                  "a mask is no condition");
    static_assert(!std::is_convertible<mlc::mask, bool>::value &&
                      !std::is_convertible<mlc::mask, double>::value &&
                      !std::is_convertible<mlc::tensor, int>::value &&
                      std::is_convertible<mlc::mask, mlc_tensor *>::value &&
                      sizeof(mlc::mask) == sizeof(mlc_tensor *),
                  "conversions");
    static_assert(std::is_trivially_copyable<mlc::tensor>::value &&
                      std::is_trivially_copyable<mlc::mask>::value &&
                      std::is_nothrow_move_assignable<mlc::tensor>::value &&
                      std::is_copy_assignable<mlc::mask>::value, "as plain as a pointer");
    CHECK(HAS(control));
#undef HAS
}

/* Is an expression of this type? */
#define IS(type, expression) std::is_same<decltype(expression), type>::value

static void operations_return_tensors()
{
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2), b = two(ctx, 4, -8);
    mlc_tensor  *p = a;
    static_assert(IS(mlc::tensor, mlc::exp(a)) && IS(mlc::tensor, mlc_exp(a)) &&
                      IS(mlc::tensor, mlc::exp(p)) && IS(mlc_tensor *, mlc_exp(p)) &&
                      IS(mlc::tensor, mlc_add(p, a)) && IS(mlc::tensor, mlc_isnan(a)) &&
                      IS(mlc::mask, mlc::isnan(a)) && IS(mlc::mask, mlc::gt(a, p)) &&
                      IS(mlc::tensor, mlc_zeros(ctx, MLC_F32, mlc_dims0())),
                  "of a tensor or a handle comes a tensor");
    mlc::tensor e = mlc_exp(a) + 1;                        /* no address after a tensor         */
    CHECK(mlc_numel(e) == 2 && std::fabs(mlc_item_at(e, mlc_dims1(1)) - 8.389056) < 1e-5);
    CHECK(is(1e-6 * mlc_sum(a, mlc::dims{0}, true) + b, 4.000003f, -7.999997f));
    CHECK(is(mlc::square(a), 1, 4) && is(mlc::square(p) - 1, 0, 3));
    CHECK(is(mlc_mul(p, b) + p, 5, -14));
    CHECK(is(mlc::relu(b) + mlc_abs(b), 8, 8) && is(mlc::pow(a, 2), 1, 4));
    CHECK(is(mlc::clamp(b, 0, 1), 1, 0) && is(mlc::where(b > 0, a, b), 1, -8));
    CHECK(is(mlc::softmax(mlc::zeros(ctx, MLC_F32, {2}), -1), 0.5f, 0.5f));
    CHECK(is(mlc::layer_norm(a, nullptr, nullptr, 0) * 1, -1, 1));
    CHECK(is(mlc_layer_norm(a, NULL, NULL, 0), -1, 1));    /* the function in C                 */
    CHECK(is(mlc::full(ctx, MLC_F32, 2, 3), 3, 3) && mlc::reshape(a, {2, -1})->ndim == 2);
    CHECK(mlc_item(mlc::sum(a)) == 3 && mlc_item(mlc::max(a, -1)) == 2);
    mlc::tensor m = mlc::stack({a, b, mlc_neg(p)}, 0);     /* [3,2]                             */
    CHECK(is(mlc::sum(m, {0}), 4, -8) && is(mlc::mean(m[1] * m[0], {0}, true) + a, -5, -4));
    CHECK(is(m[2], -1, -2) && is(m[-1], -1, -2) && is(mlc::min(m, 0), -1, -8));
    CHECK(mlc_dim(mlc::sum(m, {}, true), 0) == 1 && mlc_dim(mlc::flip(m, {0, 1}), 0) == 3);
    CHECK(mlc_dim(mlc::concat({m, m}, 0), 0) == 6 && is(mlc::einsum("ij->j", {m}), 4, -8));
    mlc::tensor at;
    CHECK(is(mlc::sort(b, 0, false, &at), -8, 4) && mlc::elements<int64_t>(at)[0] == 1);
    CHECK(mlc_item(mlc::topk(b, 1)) == 4 && mlc_item(mlc::argmax(b, 0)) == 0);
    CHECK(mlc_item(mlc::var(a)) == 0.5 && mlc_item(mlc::norm(two(ctx, 3, 4))) == 5);
    mlc::root   net(small_net(ctx));
    mlc::tensor y = mlc_forward(net, mlc::ones(ctx, MLC_F32, {1, 3})) + 1;
    CHECK(mlc_dim(y, 1) == 2 && mlc_item(mlc::cross_entropy(y, mlc::zeros(ctx, MLC_I64, 1))) > 0);
    mlc_tensor *(*chosen)(mlc_tensor *) = a ? mlc_relu : mlc_gelu;        /* no overload in C   */
    CHECK(is(chosen(b), 4, 0) && mlc_ctx_status(ctx) == MLC_OK);
    CHECK(!mlc::exp(a[5]) && mlc_ctx_status(ctx) == MLC_ERR_SHAPE);
}

/* Functions of a program, whose names are those of operations. */
static mlc_tensor *gelu(mlc_tensor *x) { return mlc_mul_scalar(x, 100); }
static mlc_tensor *forward(mlc_module *, mlc_tensor *x) { return mlc_mul_scalar(x, 100); }
static mlc_tensor *mse_loss(mlc_tensor *a, mlc_tensor *b) { return mlc_sub(a, b); }
static mlc_tensor *rows(mlc_tensor *x, int from, int n) { return mlc_slice(x, 0, from, n, 1); }
static double norm(mlc_tensor *x) { return mlc_item_at(x, mlc_dims1(0)); }
template <class T> static double sum(T x) { return mlc_item_at(x, mlc_dims1(1)); }
static int check(const mlc_ctx *) { return 7; }
namespace app {
mlc_tensor *dropout(mlc_tensor *x, double p);
mlc_tensor *dropout(mlc_tensor *x, double p) { return mlc_mul_scalar(x, p + 100); }
static mlc::tensor run(mlc::tensor x) { return dropout(x, 0.0); }
}

static void functions_of_a_program_stay_its_own()
{
    mlc::context ctx;
    mlc::root    net(small_net(ctx));
    mlc::tensor  a = two(ctx, 1, 2), b = two(ctx, 4, -8);
    CHECK(is(gelu(a), 100, 200) && is(forward(net, a), 100, 200) && is(app::run(a), 100, 200));
    CHECK(is(mse_loss(a, b), -3, 10) && is(rows(a, 0, 2), 1, 2) && norm(a) == 1);
    CHECK(sum(b) == -8 && check(ctx) == 7);
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
}

/* Constants of a class that no source defines, which C++11 lets a program use by value alone. */
struct constants {
    static const int     axis = 0;
    static const int64_t size = 2;
    static constexpr double p = 0.5;
    static constexpr mlc_dtype dtype = MLC_F32;
    static const bool    keepdim = true;
    int      axis_bits : 4;
};

static void constants_of_a_class_need_no_definition()
{
    typedef constants c;
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2), b = two(ctx, 4, -8);
    CHECK(is(mlc_softmax(mlc::zeros(ctx, c::dtype, {c::size}), c::axis), 0.5f, 0.5f));
    CHECK(is(mlc::cumsum(a, c::axis), 1, 3) && is(mlc_clamp(b, c::axis, c::p), 0.5f, 0));
    CHECK(is(a + c::p, 1.5f, 2.5f) && is(c::p - a, -0.5f, -1.5f) && is(a * c::size, 2, 4));
    CHECK(is(c::size / a, 2, 1) && is(mlc::pow(a, c::size), 1, 4) && is(a - c::p, 0.5f, 1.5f));
    CHECK(says(a == c::size, false, true) && says(c::size > a, true, false));
    CHECK(is(mlc::full(ctx, c::dtype, c::size, c::p), 0.5f, 0.5f));
    CHECK(is(mlc_full(ctx, c::dtype, mlc_dims1(c::size), c::p), 0.5f, 0.5f));
    CHECK(mlc_dim(mlc_sum(a, mlc::dims{c::axis}, c::keepdim), 0) == 1);
    CHECK(mlc_cast(mlc_gt_scalar(a, c::p), c::dtype)->dtype == c::dtype);
    const c field = {0};
    a += c::p;
    CHECK(is(mlc_cumsum(a, field.axis_bits), 1.5f, 4));
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
}

static void pointers_alone_call_the_function_in_c()
{
    using namespace mlc;
    context     ctx;
    tensor      a = two(ctx, 1, 2);
    mlc_tensor *p = a;
    auto       *y = mlc_add_scalar(p, 1);
    auto       *z = mlc_exp(p);
    auto        f = mlc_exp;
    static_assert(IS(mlc_tensor *, mlc_add(p, p)) && IS(tensor, mlc_add(p, a)) &&
                      IS(tensor, mlc_sum(p, dims{0}, false)) && IS(tensor, mlc_gt(a, p)) &&
                      IS(mlc_tensor *, ::mlc_exp(a)) && IS(mlc_tensor *, (mlc_exp)(a)),
                  "an argument is of the namespace, or the function is that of C");
    if (!mlc_gt(a, p) || !mlc_isnan(a)) CHECK(false);      /* C asks for errors so              */
    CHECK(is(y, 2, 3) && z && f == ::mlc_exp && mlc_ctx_status(ctx) == MLC_OK);
    CHECK(is(mlc::matmul({mlc::reshape(a, {1, 2})}, mlc::eye(ctx, MLC_F32, 2, 2)), 1, 2));
    CHECK(mlc_item(mlc::matmul(a, {p})) == 5 && IS(tensor, mlc::matmul(p, p)));
    root   net(small_net(ctx));
    tensor x = ones(ctx, MLC_F32, {4, 3});
    loader data(mlc_loader_shuffled(ctx, x, x, 2));
    static_assert(IS(tensor, mlc_predict(net, data)) && IS(tensor, mlc_predict(net.get(), data)) &&
                      IS(tensor, mlc::predict(net, data)), "handles are in any place");
    CHECK(mlc_dim(mlc::predict(net, data), 0) == 4 && mlc_ctx_status(ctx) == MLC_OK);
}

static void comparisons_are_by_element()
{
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2), b = two(ctx, 1, -8), none;
    CHECK(says(a == b, true, false) && says(a != b, false, true) && says(a > b, false, true));
    CHECK(says(a < b, false, false) && says(a <= b, true, false) && says(a >= b, true, true));
    CHECK(says(a == 1, true, false) && says(2.0f != a, true, false) && says(a < 2u, true, false));
    CHECK(says(1 < a, false, true) && says(1 >= a, true, false) && says(a.get() == b, true, false));
    CHECK(says(a == 0, false, false) && says(0 == a - 1, true, false));
    CHECK(says((a > 0) & ~(b < 0), true, false) && says((a > 1) | (b > 0), true, true));
    CHECK(says((a > 1) ^ (a > 0), true, false) && mlc_item(mlc::any(a == b)) == 1);
    CHECK(mlc_item(mlc::all(a == a)) == 1 && mlc_item(mlc::all(a == b)) == 0);
    CHECK(none == nullptr && !(a == nullptr) && nullptr != a && !none && !(none != nullptr));
    CHECK((a == b) != nullptr && mlc_ctx_status(ctx) == MLC_OK);
    int n = 0;
    if (a) n += 1;
    if (none) n += 2;
    CHECK(n == 1 && (a && b) && (none || a));
}

static void numbers_are_of_any_type()
{
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2);
    enum { three = 3 };
    const std::integral_constant<int, 3> constant = {};
    CHECK(is(a + true, 2, 3) && is(a + three, 4, 5) && is(a - constant, -2, -1));
    CHECK(is(three - a, 2, 1) && is(a * sizeof(int), 4, 8) && is(+a + int64_t(-1), 0, 1));
    CHECK(is(static_cast<unsigned char>(2) / a, 2, 1) && is(a - static_cast<short>(1), 0, 1));
    mlc::tensor same = a, x = mlc::copy(a);
    a += 1;
    a -= 2u;
    CHECK(is(same, 0, 1) && same.get() == a.get());        /* in place                          */
    x *= two(ctx, 2, 3);
    x += x.get();
    (x /= 2) -= a;
    CHECK(is(x, 2, 5));
    x += mlc::zeros(ctx, MLC_F32, 3);
    CHECK(x && mlc_ctx_status(ctx) == MLC_ERR_SHAPE);      /* it is what it was                 */
    mlc_error_clear(ctx);
    CHECK(is(x, 2, 5));
}

static void what_is_assigned_to_an_index_is_there()
{
    mlc::context ctx;
    mlc::tensor  b = mlc::zeros(ctx, MLC_F32, {3, 2}), row = two(ctx, 4, -8), was = b;
    mlc_tensor  *p = row;
    b[0] = row;
    CHECK(is(b[0], 4, -8) && is(b[1], 0, 0) && b.get() == was.get());
    b[1] = b[2] = b[0] * 2;
    CHECK(is(b[1], 8, -16) && is(b[2], 8, -16));
    b[1] = p;
    b[2] = 3;
    b[2][0] = 0;                                           /* a number, no NULL                 */
    b[2][1] = constants::p;
    CHECK(is(b[1], 4, -8) && is(b[2], 0, 0.5f));
    b[0] += 1;
    b[0] -= row;
    b[1] *= constants::size;
    b[1] /= p;
    CHECK(is(b[0], 1, 1) && is(b[1], 2, 2));
    mlc::tensor x = b[0];
    x = row;                                               /* a name is another tensor then     */
    CHECK(is(b[0], 1, 1) && x.get() == p && mlc_ctx_status(ctx) == MLC_OK);
    mlc::mask m = row > 0;
    m[1] = m[0];
    CHECK(says(m, true, true));
    std::vector<mlc::tensor> all{b, row};
    std::swap(all[0], all[1]);
    all.erase(all.begin());
    CHECK(all[0].get() == b.get() && is(row, 4, -8));
    b[3] = row;
    CHECK(mlc_ctx_status(ctx) == MLC_ERR_SHAPE);
    mlc_error_clear(ctx);
    b[0] = mlc::zeros(ctx, MLC_F32, 3);
    CHECK(is(b[0], 1, 1) && mlc_ctx_status(ctx) == MLC_ERR_SHAPE);
}

/* A program that takes all of the namespaces has the functions of numbers that it had. */
static void names_of_other_namespaces_stay()
{
    using namespace mlc;
    using namespace std;
    const vector<double> v(2, 4.0);
    CHECK(IS(double, exp(1.0)) && exp(0.0) == 1 && sqrt(v[0]) == 2 && pow(2, 3) == 8);
    CHECK(abs(-1) == 1 && std::max(1, 2) == 2 && max(0, 1) == 1 && min(v[0], 1.0) == 1);
    CHECK(round(1.4f) == 1 && log(1.0) == 0 && fmod(5.0, 3.0) == 2 && !isnan(1.0));
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
    const mlc::params all(net);
    CHECK(std::distance(all.begin(), all.end()) == 2);
    mlc::params::iterator at = std::find_if(all.begin(), all.end(), [](const mlc_param_iter &p) {
        return std::strcmp(p.name, "0.bias") == 0;
    });
    const mlc::params::iterator same = at;
    CHECK(at != all.end() && at == same && at->tensor == mlc_module_param(net.get(), "0.bias"));
    CHECK((*at++).tensor == same->tensor && at == all.end() && same != all.end());
    const std::vector<mlc_param_iter> copies(all.begin(), all.end());
    CHECK(copies.size() == 2 && std::strcmp(copies[0].name, "0.weight") == 0);
    mlc::root empty(mlc_nn_relu(ctx));
    for (auto &p : mlc::params(empty)) n += p.trainable ? 100 : 200;
    CHECK(n == 2);
    mlc::tensor t = mlc_arange(ctx, MLC_I64, 0, 6, 1);
    int64_t     sum = 0;
    for (int64_t v : mlc::elements<int64_t>(t)) sum += v;
    CHECK(sum == 15);
    const auto bytes = mlc::elements<uint8_t>(t > 4);
    CHECK(bytes.size() == 6 && bytes[4] == 0 && bytes[5] == 1 && mlc_ctx_status(ctx) == MLC_OK);
    CHECK(mlc::elements<double>(t).size() == 0 && mlc_ctx_status(ctx) == MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    CHECK(mlc::elements<uint8_t>(t).size() == 0 && mlc_ctx_status(ctx) == MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    CHECK(mlc::elements<int64_t>(mlc_transpose(mlc_reshape(t, mlc_dims2(2, 3)), 0, 1)).size() == 0);
    CHECK(mlc_ctx_status(ctx) == MLC_ERR_ARG && std::strstr(mlc_error(ctx), "[3,2] is not contig"));
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

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
/* What mlc::check throws: "STATUS: text", or "" if it throws nothing. */
template <class... A> static std::string thrown(mlc_ctx *ctx, A... status)
{
    try {
        mlc::check(ctx, status...);
    } catch (const mlc::error &e) {
        return std::string(mlc_status_name(e.status())) + ": " + e.what();
    }
    return "";
}
#endif

static void after_a_catch_the_context_works()
{
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2);
    mlc_raise(ctx, MLC_ERR_IO, "mine");
    CHECK(thrown(ctx) == "IO: mine" && *mlc_error(ctx) == 0 && thrown(ctx).empty());
    CHECK(is(a + 1, 2, 3));
    mlc_raise(ctx, MLC_ERR_IO, "mine");
    CHECK(thrown(ctx, MLC_ERR_IO) == "IO: mine" && thrown(ctx).empty());
    CHECK(thrown(ctx, MLC_ERR_ARG) == "ARG: ARG");         /* not the text of before            */
    mlc_raise(ctx, MLC_ERR_IO, "mine");
    CHECK(thrown(ctx, MLC_ERR_ARG) == "ARG: ARG; an earlier error: mine");
    CHECK(thrown(nullptr).find("no context") != std::string::npos);
    {                                                      /* raised around the scope           */
        mlc::scope outer(ctx);
        mlc_raise(ctx, MLC_ERR_IO, "outer");
        try {
            mlc::scope inner(ctx);
            mlc::check(ctx);
            CHECK(false);
        } catch (const mlc::error &e) {
            CHECK(std::strcmp(e.what(), "outer") == 0);
        }
        CHECK(is(a * 2, 2, 4) && outer.end() == MLC_OK);
    }
    CHECK(thrown(ctx).empty());
#else
    CHECK(true);
#endif
}

template <class T> static bool comes_back(mlc_ctx *ctx, mlc_dtype dtype)
{
    const std::vector<T> in = {T(1), T(0), T(3), T(4), T(5), T(1)};
    const mlc::tensor    x = mlc::from(ctx, {2, 3}, in);
    const mlc::span<T>   out = mlc::elements<T>(x);
    return x && x->dtype == dtype && x->ndim == 2 && x->shape[1] == 3 &&
           std::vector<T>(out.begin(), out.end()) == in;
}

static void a_vector_becomes_a_tensor_of_its_dtype_and_comes_back()
{
    mlc::context ctx;
    CHECK(comes_back<float>(ctx, MLC_F32) && comes_back<double>(ctx, MLC_F64));
    CHECK(comes_back<int64_t>(ctx, MLC_I64) && comes_back<int32_t>(ctx, MLC_I32));
    CHECK(comes_back<int8_t>(ctx, MLC_I8) && comes_back<uint8_t>(ctx, MLC_U8));
    const std::vector<long long>  whole(4, 7);             /* not int64_t's type everywhere     */
    const std::array<bool, 2>     truth = {{true, false}};
    CHECK(mlc::from(ctx, {4}, whole)->dtype == MLC_I64);
    CHECK(mlc::from(ctx, 2, truth)->dtype == MLC_BOOL);
    CHECK(mlc_numel(mlc::from(ctx, {0, 3}, std::vector<float>())) == 0);
    CHECK(mlc::from(ctx, {}, std::vector<float>(1, 2.0f))->ndim == 0);
    CHECK(mlc_ctx_status(ctx) == MLC_OK);
}

static bool refused(mlc_ctx *ctx, const mlc::dims &shape, size_t n, mlc_status st, const char *text)
{
    const bool none = !mlc::from(ctx, shape, std::vector<float>(n));
    const bool said = mlc_ctx_status(ctx) == st && std::strstr(mlc_error(ctx), text);
    mlc_error_clear(ctx);
    return none && said;
}

static void a_vector_of_another_size_than_the_shape_is_refused_with_both_numbers()
{
    mlc::context  ctx;
    const int64_t large = int64_t(1) << 32;
    CHECK(refused(ctx, {2, 3}, 5, MLC_ERR_SHAPE, "from: the shape has 6 elements, there are 5 "));
    CHECK(refused(ctx, {2, 3}, 7, MLC_ERR_SHAPE, "from: the shape has 6 elements, there are 7 "));
    CHECK(refused(ctx, {}, 0, MLC_ERR_SHAPE, "from: the shape has 1 elements, there are 0 "));
    CHECK(refused(ctx, {large, large}, 0, MLC_ERR_SHAPE, "18446744073709551616 elements"));
    CHECK(refused(ctx, {2, -3}, 6, MLC_ERR_ARG, "from: "));
}

static void check_sees_what_the_last_scope_returned()
{
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    mlc::context ctx;
    { mlc::scope step(ctx); mlc_raise(ctx, MLC_ERR_IO, "mine"); }
    CHECK(mlc_ctx_status(ctx) == MLC_OK && thrown(ctx) == "IO: mine" && thrown(ctx).empty());
    { mlc::scope step(ctx); mlc_raise(ctx, MLC_ERR_IO, "mine"); }
    { mlc::scope step(ctx); }                              /* returns MLC_OK                    */
    CHECK(thrown(ctx).empty());
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
    CHECK(mlc::run_sweep(ctx, d, [](mlc_ctx *, const mlc_trial &t, double *) {
        if (t.index == 0) throw 5;
        return MLC_OK;
    }, &s) == MLC_OK);
    CHECK(mlc_sweep_trial(s, 0)->status == MLC_ERR_STATE && !mlc_sweep_trial(s, 1)->status);
    CHECK(std::strstr(mlc_sweep_trial(s, 0)->message, "exception that is no std::exception"));
#endif
    CHECK(mlc::run_sweep(ctx, d, [](mlc_ctx *, const mlc_trial &, double *) { return MLC_OK; },
                         nullptr) == MLC_OK);
    s.reset();
    CHECK(in_use(ctx) == before && mlc_ctx_status(ctx) == MLC_OK);
}

/* Function objects that are counted: one is copied, the other is not. */
static int counted_now;
struct counted {
    double add;
    explicit counted(double a) : add(a) { counted_now++; }
    counted(const counted &other) : add(other.add) { counted_now++; }
    ~counted() { counted_now--; }
    mlc::tensor operator()(mlc::tensor x) const { return x + add; }
};
struct moved_alone : counted {
    explicit moved_alone(double a) : counted(a) {}
    moved_alone(moved_alone &&) = default;
    moved_alone(const moved_alone &) = delete;
};
static mlc::mask positive(mlc::tensor x) { return x > 0; }

static void a_lambda_is_a_module()
{
    {
        mlc::context ctx;
        mlc::tensor  a = two(ctx, 1, 2);
        {
            mlc::root net(MLC_SEQUENTIAL(ctx, mlc::nn_lambda(ctx, counted(1)),
                                         mlc::nn_lambda(ctx, [](mlc::tensor x) { return x * 2; })));
            CHECK(counted_now == 1 && is(mlc::forward(net, a), 4, 6));
            mlc::root other(mlc_module_clone(net));
            CHECK(counted_now == 2 && is(mlc::forward(other, a), 4, 6));
        }
        CHECK(counted_now == 0);
        mlc::root one(mlc::nn_lambda(ctx, moved_alone(2))), mask(mlc::nn_lambda(ctx, positive));
        CHECK(counted_now == 1 && is(mlc::forward(one, a), 3, 4));
        CHECK(mlc::forward(mask, a)->dtype == MLC_BOOL && mlc_ctx_status(ctx) == MLC_OK);
        mlc::root same(mlc::nn_lambda(ctx, [](mlc::tensor &x) -> mlc::tensor & { return x; }));
        CHECK(is(mlc::forward(same, a), 1, 2));
        CHECK(!mlc_module_clone(one) && mlc_ctx_status(ctx) == MLC_ERR_UNSUPPORTED);
        mlc_error_clear(ctx);
        mlc::root none(mlc::nn_lambda(ctx, [](mlc::tensor) { return mlc::tensor(); }));
        CHECK(!mlc::forward(none, a) && std::strstr(mlc_error(ctx), "returned NULL without an"));
        mlc_error_clear(ctx);
        CHECK(!mlc::nn_lambda(nullptr, counted(1)));
        CHECK(counted_now == 1);
        one.release();                                     /* the context's end frees it        */
    }
    CHECK(counted_now == 0);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    mlc::context ctx;
    mlc::tensor  a = two(ctx, 1, 2);
    mlc::root    net(MLC_SEQUENTIAL(ctx, mlc_nn_relu(ctx),
                                    mlc::nn_lambda(ctx, [](mlc::tensor x) -> mlc::tensor {
        mlc::scope inner(x->ctx);
        if (mlc_item(mlc::sum(x)) > 2) throw std::runtime_error("too much");
        if (mlc_item(mlc::sum(x)) > 1) throw 5;
        mlc::check(x->ctx, mlc_raise(x->ctx, MLC_ERR_VALUE, "too little"));
        return x;
    })));
    const std::string in = "in 1 (Lambda): ";
    CHECK(!mlc::forward(net, a) && thrown(ctx) == "STATE: " + in + "too much");
    CHECK(!mlc::forward(net, a - 0.5) && thrown(ctx).find("no std::exception") != in.npos);
    CHECK(!mlc::forward(net, a - 2) && thrown(ctx).find("VALUE: " + in) == 0);
    CHECK(mlc_ctx_status(ctx) == MLC_OK && is(a + 1, 2, 3));
#endif
}

int main()
{
    handles_free_what_they_own_and_move();
    classes_of_handles_move_whole();
    tensors_have_operators();
    an_input_that_is_null_is_an_error();
    what_is_dangerous_does_not_compile();
    operations_return_tensors();
    functions_of_a_program_stay_its_own();
    constants_of_a_class_need_no_definition();
    pointers_alone_call_the_function_in_c();
    comparisons_are_by_element();
    numbers_are_of_any_type();
    what_is_assigned_to_an_index_is_there();
    names_of_other_namespaces_stay();
    blocks_end_what_they_began();
    loops_see_all_parameters_and_elements();
    check_throws_the_text();
    after_a_catch_the_context_works();
    a_vector_becomes_a_tensor_of_its_dtype_and_comes_back();
    a_vector_of_another_size_than_the_shape_is_refused_with_both_numbers();
    check_sees_what_the_last_scope_returned();
    what_a_training_needs_is_freed();
    a_lambda_is_a_trial();
    a_lambda_is_a_module();
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
