/* test_tape.c -- tests of API.AUTOGRAD and API.GRADCHECK: recording, accumulation, views, versions,
 * custom operations, gradcheck, anomaly mode, failures */
#include "mlc_test.h"

#define MOST 64                        /* elements of the largest gradient compared            */

static mlc_tensor *leaf(mlc_ctx *ctx, mlc_dims dims, uint64_t seed)
{
    mlc_tensor *t = test_rand(ctx, MLC_F64, dims, seed, 0.5, 2);
    mlc_set_requires_grad(t, true);
    return t;
}

static mlc_tensor *total(mlc_tensor *x)
{
    return mlc_sum(x, mlc_dims0(), false);
}

/* The gradient of x is c everywhere.                                                          */
static bool grad_is(mlc_tensor *x, double c)
{
    double want[MOST];
    for (int i = 0; i < MOST; i++)
        want[i] = c;
    return CHECK_VALUES(mlc_grad(x), mlc_numel(x), want, 1e-12, 1e-12);
}

/* ---- what asks for a gradient -------------------------------------------------------------- */

TEST(tape, requires_grad_spreads_from_leaves_to_results)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *b = test_rand(ctx, MLC_F64, mlc_dims1(3), 2, 0, 1);
    mlc_tensor *whole = mlc_zeros(ctx, MLC_I64, mlc_dims1(3));
    CHECK(mlc_requires_grad(a) && !mlc_requires_grad(b) && !mlc_requires_grad(NULL));
    CHECK(mlc_requires_grad(mlc_add(a, b)));
    CHECK(!mlc_requires_grad(mlc_add(b, b)));
    CHECK(mlc_requires_grad(mlc_slice(a, 0, 0, 2, 1)));
    CHECK(!mlc_requires_grad(mlc_detach(a)));
    CHECK(!mlc_requires_grad(mlc_cast(a, MLC_I64)));
    CHECK(!mlc_requires_grad(mlc_argmax(a, 0, false)));
    CHECK_EQ(mlc_set_requires_grad(a, false), MLC_OK);
    CHECK(!mlc_requires_grad(mlc_add(a, b)));
    CHECK_EQ(mlc_set_requires_grad(whole, true), MLC_ERR_DTYPE);
    CHECK_HAS(mlc_error(ctx), "i64");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK_EQ(mlc_set_requires_grad(b, true), MLC_OK);
    CHECK_EQ(mlc_set_requires_grad(mlc_exp(b), false), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_set_requires_grad(NULL, true), MLC_ERR_ARG);
}

TEST(tape, under_no_grad_nothing_is_recorded)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *y;
    mlc_no_grad_begin(ctx);
    mlc_no_grad_begin(ctx);
    mlc_no_grad_end(ctx);
    y = total(mlc_mul(a, a));
    CHECK(!mlc_requires_grad(y) && !mlc_requires_grad(mlc_slice(a, 0, 0, 2, 1)));
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_backward(y), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "no-grad");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_no_grad_end(ctx);              /* one too many is harmless                             */
    CHECK_EQ(mlc_backward(total(a)), MLC_OK);
    CHECK(grad_is(a, 1));
}

/* ---- accumulation -------------------------------------------------------------------------- */

TEST(tape, gradients_add_up_until_they_are_marked_stale)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims2(3, 5), 1);
    CHECK(mlc_grad(a) == NULL);
    CHECK_OK(ctx);
    CHECK_EQ(mlc_backward(total(a)), MLC_OK);
    CHECK(grad_is(a, 1));
    CHECK_EQ(mlc_backward(total(mlc_mul_scalar(a, 2))), MLC_OK);
    CHECK(grad_is(a, 3));
    mlc_zero_grad(a);
    CHECK(mlc_grad(a) == NULL);
    CHECK_EQ(mlc_backward(total(mlc_mul_scalar(a, 7))), MLC_OK);
    CHECK(grad_is(a, 7));
    CHECK_OK(ctx);
}

TEST(tape, a_tensor_used_many_times_gets_the_sum)
{
    double      v[4], want[4];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(4), 1), *b = mlc_mul(a, a);
    mlc_tensor *y = mlc_add(mlc_mul(b, a), mlc_add(b, a));             /* a^3 + a^2 + a        */
    test_read(a, v);
    for (int i = 0; i < 4; i++)
        want[i] = 3 * v[i] * v[i] + 2 * v[i] + 1;
    CHECK_EQ(mlc_backward(total(y)), MLC_OK);
    CHECK_VALUES(mlc_grad(a), 4, want, 1e-12, 1e-12);
    CHECK(mlc_grad(b) == NULL);        /* gradients are for leaves                             */
    CHECK_OK(ctx);
}

TEST(tape, a_leaf_that_the_loss_does_not_reach_has_no_gradient)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *b = leaf(ctx, mlc_dims1(3), 2);
    mlc_mul(a, b);
    CHECK_EQ(mlc_backward(total(mlc_exp(a))), MLC_OK);
    CHECK(mlc_grad(a) != NULL && mlc_grad(b) == NULL);
    CHECK_OK(ctx);
}

TEST(tape, gradients_of_a_leaf_outlive_the_scope_of_its_use)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(5), 1);
    for (int i = 0; i < 3; i++) {
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_backward(total(mlc_mul_scalar(a, i + 1))), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK(grad_is(a, 6));
    mlc_scope_begin(ctx);
    mlc_full(ctx, MLC_F64, mlc_dims1(5), 9);               /* does not take its memory         */
    CHECK(grad_is(a, 6));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

TEST(tape, backward_from_takes_any_shape)
{
    static const double dy[3] = {1, -2, 0.5};
    double      v[3], want[3];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1);
    test_read(a, v);
    for (int i = 0; i < 3; i++)
        want[i] = 2 * v[i] * dy[i];
    CHECK_EQ(mlc_backward_from(mlc_mul(a, a), test_tensor(ctx, MLC_F64, mlc_dims1(3), dy)),
             MLC_OK);
    CHECK_VALUES(mlc_grad(a), 3, want, 1e-12, 1e-12);
    mlc_zero_grad(a);
    CHECK_EQ(mlc_backward_from(mlc_mul_scalar(a, 4), NULL), MLC_OK);
    CHECK(grad_is(a, 4));
    CHECK_EQ(mlc_backward_from(mlc_exp(a), mlc_zeros(ctx, MLC_F64, mlc_dims1(2))), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "backward: dy [2] does not fit y [3]; it must broadcast to it");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_backward_from(mlc_exp(a), mlc_zeros(ctx, MLC_F32, mlc_dims1(3))), MLC_ERR_DTYPE);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK_EQ(mlc_backward(mlc_exp(a)), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "[3]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

/* dy is not copied where that can be: not for what would write to it.                         */
TEST(tape, backward_from_leaves_dy_as_it_is)
{
    static const double one[3] = {1, 2, 3}, two[3] = {2, 4, 6};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(3), one);
    mlc_tensor *dy = test_tensor(ctx, MLC_F32, mlc_dims1(3), one);
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_backward_from(mlc_mul_scalar(x, 2), dy), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, two, 0, 0);
    CHECK_VALUES(dy, 3, one, 0, 0);
    mlc_zero_grad(x);
    CHECK_EQ(mlc_backward_from(mlc_mul_scalar_(mlc_mul(x, x), 1), dy), MLC_OK);   /* in place  */
    CHECK_VALUES(dy, 3, one, 0, 0);
    mlc_zero_grad(x);
    mlc_tensor *sum = mlc_add(x, x);
    CHECK_EQ(mlc_backward_from(sum, dy), MLC_OK);
    mlc_tensor *g = mlc_grad(x);           /* as dy, while it is added to and overwritten         */
    CHECK_VALUES(g, 3, two, 0, 0);
    CHECK_EQ(mlc_backward_from(mlc_mul(x, mlc_detach(x)), g), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, ((double[3]){4, 12, 24}), 0, 0);
    mlc_zero_grad(x);
    CHECK_EQ(mlc_backward_from(mlc_square(x), mlc_square(x)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, ((double[3]){2, 16, 54}), 0, 0);
    mlc_zero_grad(x);
    mlc_tensor *y = mlc_square(x);
    CHECK_EQ(mlc_backward_from(mlc_add(mlc_mul_scalar(y, 2), y), dy), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 3, ((double[3]){6, 24, 54}), 0, 0);
    CHECK_VALUES(dy, 3, one, 0, 0);
    CHECK_OK(ctx);
}

TEST(tape, backward_of_a_leaf_is_one)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims0(), 1);
    CHECK_EQ(mlc_backward(a), MLC_OK);
    CHECK(grad_is(a, 1));
    CHECK_EQ(mlc_backward(a), MLC_OK);
    CHECK(grad_is(a, 2));
    CHECK_EQ(mlc_backward(NULL), MLC_ERR_ARG);
}

TEST(tape, a_second_backward_over_the_same_operations_is_a_state_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *y = total(mlc_exp(a));
    CHECK_EQ(mlc_backward(y), MLC_OK);
    CHECK_EQ(mlc_backward(y), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "second time");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
}

/* ---- views --------------------------------------------------------------------------------- */

/* Each takes a [3,4,5] leaf to a view; gradcheck and a product with itself show its gradient.  */
static mlc_tensor *view_slice(mlc_tensor *x) { return mlc_slice(x, 1, 1, 4, 2); }
static mlc_tensor *view_slices(mlc_tensor *x)
{
    return mlc_slice(mlc_slice(mlc_slice(x, 2, 1, 5, 1), 2, 0, 4, 2), 0, 1, 3, 1);
}
static mlc_tensor *view_permute(mlc_tensor *x) { return mlc_permute(x, mlc_dims3(2, 0, 1)); }
static mlc_tensor *view_reshape(mlc_tensor *x) { return mlc_reshape(x, mlc_dims2(6, -1)); }
static mlc_tensor *view_turned_reshape(mlc_tensor *x)
{
    return mlc_reshape(mlc_transpose(x, 0, 2), mlc_dims2(10, 6));
}
static mlc_tensor *view_select(mlc_tensor *x) { return mlc_select(mlc_select(x, 2, -1), 0, 1); }
static mlc_tensor *view_expand(mlc_tensor *x)
{
    return mlc_expand(mlc_slice(x, 1, 2, 3, 1), mlc_dims4(2, 3, 7, 5));
}
static mlc_tensor *view_of_expand(mlc_tensor *x)
{
    mlc_tensor *e = mlc_expand(mlc_slice(x, 0, 0, 1, 1), mlc_dims3(6, 4, 5));
    return mlc_transpose(mlc_slice(e, 0, 1, 6, 2), 0, 2);
}
static mlc_tensor *view_mixed(mlc_tensor *x)
{
    return mlc_select(mlc_permute(mlc_slice(x, 2, 0, 5, 3), mlc_dims3(2, 1, 0)), 1, 2);
}
static mlc_tensor *view_copies(mlc_tensor *x)
{
    return mlc_contiguous(mlc_transpose(mlc_copy(mlc_slice(x, 0, 0, 3, 2)), 0, 1));
}

typedef mlc_tensor *(*view_fn)(mlc_tensor *x);
static const view_fn VIEWS[] = {view_slice, view_slices, view_permute, view_reshape,
                                view_turned_reshape, view_select, view_expand, view_of_expand,
                                view_mixed, view_copies};
#define N_VIEWS ((int)(sizeof VIEWS / sizeof *VIEWS))

/* Uses the view twice and its base once, so that first and later writes both happen.           */
static mlc_tensor *view_and_base(void *user, mlc_tensor *const *in, int32_t n_in)
{
    mlc_tensor *v = VIEWS[*(const int *)user](in[0]);
    (void)n_in;
    return mlc_add(total(mlc_mul(v, mlc_exp(v))), total(mlc_mul(in[0], in[0])));
}

static mlc_tensor *view_alone(void *user, mlc_tensor *const *in, int32_t n_in)
{
    mlc_tensor *v = VIEWS[*(const int *)user](in[0]);
    (void)n_in;
    return mlc_mul(v, v);
}

/* The base is itself the result of an operation.                                              */
static mlc_tensor *view_of_result(void *user, mlc_tensor *const *in, int32_t n_in)
{
    mlc_tensor *y = mlc_exp(in[0]), *v = VIEWS[*(const int *)user](y);
    (void)n_in;
    return mlc_add(total(mlc_mul(v, v)), total(y));
}

TEST(tape, gradients_flow_through_views_of_views)
{
    static const mlc_grad_fn uses[] = {view_and_base, view_alone, view_of_result};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < N_VIEWS; i++)
        for (int u = 0; u < 3; u++) {
            mlc_gradcheck_report r;
            mlc_tensor          *x = leaf(ctx, mlc_dims3(3, 4, 5), 3);
            CHECK_EQ(mlc_gradcheck(uses[u], &i, &x, 1, NULL, &r), MLC_OK);
            if (!CHECK(r.ok))
                printf("  view %d, use %d: element %" PRId64 ": %.9g, want %.9g\n", i, u, r.index,
                       r.analytic, r.numeric);
            CHECK_OK(ctx);
        }
}

TEST(tape, what_a_view_does_not_show_has_gradient_zero)
{
    static const double want[6] = {0, 5, 5, 0, 5, 5}, more[6] = {1, 6, 6, 1, 6, 6};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims2(2, 3), 1), *v = mlc_slice(x, 1, 1, 3, 1);
    mlc_backward(total(mlc_exp(x)));   /* leaves old values in the gradient's memory           */
    mlc_zero_grad(x);
    CHECK_EQ(mlc_backward(total(mlc_mul_scalar(v, 5))), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 6, want, 0, 0);
    CHECK_VALUES(mlc_grad(v), 4, more + 1, 6, 0);          /* a view of a leaf has one, too    */
    CHECK_EQ(mlc_dim(mlc_grad(v), 1), 2);
    CHECK_EQ(mlc_backward(total(x)), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 6, more, 0, 0);
    CHECK_OK(ctx);
}

TEST(tape, expand_sums_its_gradient)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims2(3, 1), 1);
    CHECK_EQ(mlc_backward(total(mlc_expand(x, mlc_dims3(2, 3, 7)))), MLC_OK);
    CHECK(grad_is(x, 14));
    CHECK_EQ(mlc_backward(total(mlc_expand(x, mlc_dims3(2, 3, 7)))), MLC_OK);
    CHECK(grad_is(x, 28));
}

TEST(tape, wrapped_memory_with_holes_has_gradients)
{
    static const int64_t strides[2] = {4, 2};
    double      data[12] = {0}, before[12];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x;
    if (!test_on_host()) {
        CHECK(mlc_wrap(ctx, MLC_F64, mlc_dims2(3, 2), strides, data) == NULL);
        mlc_error_clear(ctx);
        return;
    }
    for (int i = 0; i < 12; i++)
        data[i] = before[i] = 0.5 + i;
    x = mlc_wrap(ctx, MLC_F64, mlc_dims2(3, 2), strides, data);
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    CHECK_EQ(mlc_backward(total(mlc_mul(x, mlc_transpose(mlc_transpose(x, 0, 1), 0, 1)))), MLC_OK);
    CHECK_VALUES(mlc_grad(x), 6, ((double[6]){1, 5, 9, 13, 17, 21}), 1e-12, 0);
    CHECK(memcmp(data, before, sizeof data) == 0);
    CHECK_OK(ctx);
}

/* ---- versions ------------------------------------------------------------------------------ */

TEST(tape, an_overwritten_saved_tensor_is_noticed)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *b = leaf(ctx, mlc_dims1(3), 2);
    mlc_tensor *y = total(mlc_mul(a, b));
    double      zeros[3] = {0};
    CHECK_EQ(mlc_copy_into(b, mlc_zeros(ctx, MLC_F64, mlc_dims1(3))), MLC_OK);
    CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "backward of mul");
    CHECK_HAS(mlc_error(ctx), "overwritten");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    y = total(mlc_exp(a));             /* exp saves its result, not a                          */
    CHECK_EQ(mlc_write(a, zeros, sizeof zeros), MLC_OK);
    mlc_zero_grad(a);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    y = total(mlc_log(b));
    CHECK_EQ(mlc_write(mlc_slice(b, 0, 0, 1, 1), zeros, sizeof *zeros), MLC_OK);     /* a view */
    CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}

TEST(tape, an_overwritten_tensor_that_was_not_saved_does_no_harm)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *b = leaf(ctx, mlc_dims1(3), 2);
    mlc_tensor *y = total(mlc_add(a, b));
    CHECK_EQ(mlc_copy_into(a, b), MLC_OK);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    CHECK(grad_is(a, 1));
}

/* ---- failures ------------------------------------------------------------------------------ */

static mlc_status fail_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_copy(in[0]);
    return MLC_OK;
}

static mlc_status fail_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)n_in; (void)out; (void)dy; (void)need; (void)dx;
    return mlc_raise(in[0]->ctx, MLC_ERR_VALUE, "mine: not today");
}

static const mlc_custom_op FAIL = {"fail", fail_forward, fail_backward};

TEST(tape, a_failed_backward_blocks_the_step_until_zero_grad)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 3, 2);
    mlc_optim  *opt = mlc_sgd(net, 0.1);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 3), 1, -1, 1), *w, *h, *y;
    double      before[6], after[6];
    w = mlc_module_param(net, "weight");
    test_read(w, before);
    h = mlc_custom(&FAIL, NULL, &w, 1);                    /* fails after the linear           */
    y = mlc_add(total(h), total(mlc_forward(net, x)));
    CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
    CHECK_STR(mlc_error(ctx), "mine: not today");
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_VALUE);          /* the error stands                 */
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_optim_step(opt), MLC_ERR_STATE);          /* the gradients are half done      */
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    test_read(w, after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_EQ(mlc_optim_steps(opt), 0);
    mlc_optim_zero_grad(opt);
    CHECK_EQ(mlc_backward(total(mlc_forward(net, x))), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    test_read(w, after);
    CHECK(memcmp(before, after, sizeof before) != 0);
    CHECK_OK(ctx);
}

TEST(tape, after_a_failed_backward_a_leaf_has_no_half_gradient)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *in = a;
    mlc_tensor *h = mlc_custom(&FAIL, NULL, &in, 1);
    CHECK_EQ(mlc_backward(mlc_add(total(h), total(mlc_exp(a)))), MLC_ERR_VALUE);
    mlc_error_clear(ctx);
    CHECK(mlc_grad(a) == NULL);
    CHECK_EQ(mlc_backward(total(a)), MLC_OK);
    CHECK(grad_is(a, 1));
}

TEST(tape, while_an_error_stands_backward_returns_it)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *y = total(a);
    mlc_raise(ctx, MLC_ERR_IO, "the disk");
    CHECK_EQ(mlc_backward(y), MLC_ERR_IO);
    CHECK(mlc_grad(a) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

/* ---- custom operations --------------------------------------------------------------------- */

/* y = s a b, with its gradient, or with a wrong one if s is negative.                         */
static mlc_status product_forward(void *user, mlc_tensor *const *in, int32_t n_in,
                                  mlc_tensor **out)
{
    (void)n_in;
    *out = mlc_mul_scalar(mlc_mul(in[0], in[1]), fabs(*(const double *)user));
    return MLC_OK;
}

static mlc_status product_backward(void *user, mlc_tensor *const *in, int32_t n_in,
                                   mlc_tensor *out, mlc_tensor *dy, const bool *need,
                                   mlc_tensor **dx)
{
    (void)n_in; (void)out;
    if (need[0])
        dx[0] = mlc_mul_scalar(mlc_mul(dy, in[1]), *(const double *)user);
    if (need[1])
        dx[1] = mlc_mul_scalar(mlc_mul(dy, in[0]), *(const double *)user);
    return MLC_OK;
}

static const mlc_custom_op PRODUCT = {"product", product_forward, product_backward};

static mlc_tensor *product(void *user, mlc_tensor *const *in, int32_t n_in)
{
    return mlc_custom(&PRODUCT, user, in, n_in);
}

TEST(tape, a_custom_operation_has_values_and_gradients)
{
    double      s = 3;
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[2] = {mlc_full(ctx, MLC_F64, mlc_dims1(4), 2),
                         mlc_full(ctx, MLC_F64, mlc_dims1(4), 5)};
    static const double want[4] = {30, 30, 30, 30};
    mlc_gradcheck_report r;
    mlc_set_requires_grad(in[0], true);
    CHECK_VALUES(product(&s, in, 2), 4, want, 0, 0);
    CHECK_EQ(mlc_backward(total(product(&s, in, 2))), MLC_OK);
    CHECK(grad_is(in[0], 15));
    CHECK(mlc_grad(in[1]) == NULL);    /* not asked for                                        */
    mlc_set_requires_grad(in[1], true);
    CHECK_EQ(mlc_gradcheck(product, &s, in, 2, NULL, &r), MLC_OK);
    CHECK(r.ok);
    CHECK_OK(ctx);
}

TEST(tape, gradcheck_names_the_worst_element_of_a_wrong_gradient)
{
    static const double a[3] = {1, 2, 3}, b[3] = {1, 10, 2};
    double      s = -1;
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[2] = {test_tensor(ctx, MLC_F64, mlc_dims1(3), a),
                         test_tensor(ctx, MLC_F64, mlc_dims1(3), b)};
    double      after[3];
    mlc_gradcheck_report r;
    mlc_set_requires_grad(in[0], true);
    CHECK_EQ(mlc_gradcheck(product, &s, in, 2, NULL, &r), MLC_OK);
    CHECK(!r.ok);
    CHECK_EQ(r.input, 0);
    CHECK_EQ(r.index, 1);
    CHECK(r.excess > 0 && r.numeric > 0 && r.analytic < 0);
    CHECK_NEAR(r.analytic, -r.numeric, 1e-5);
    test_read(in[0], after);           /* inputs are as they were                              */
    CHECK(memcmp(after, a, sizeof after) == 0);
    CHECK_OK(ctx);
}

TEST(tape, gradcheck_wants_f64_and_reports_errors)
{
    double      s = 1;
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *narrow[2] = {test_rand(ctx, MLC_F32, mlc_dims1(3), 1, 0, 1),
                             test_rand(ctx, MLC_F32, mlc_dims1(3), 2, 0, 1)};
    mlc_tensor *unfit[2] = {leaf(ctx, mlc_dims1(3), 1), leaf(ctx, mlc_dims1(4), 2)};
    mlc_gradcheck_report r;
    mlc_set_requires_grad(narrow[0], true);
    CHECK_EQ(mlc_gradcheck(product, &s, narrow, 2, NULL, &r), MLC_ERR_DTYPE);
    CHECK_HAS(mlc_error(ctx), "input 1");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_gradcheck(product, &s, unfit, 2, NULL, &r), MLC_ERR_SHAPE);
    CHECK_HAS(mlc_error(ctx), "mul");
    CHECK(!r.ok);
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);  /* it stands, as after any other call                   */
    mlc_gradcheck_desc d = mlc_gradcheck_desc_make();
    d.eps = 0;
    CHECK_EQ(mlc_gradcheck(product, &s, unfit, 2, &d, &r), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "start from mlc_gradcheck_desc_make()");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_error_clear(ctx);
    mlc_tensor *none[2] = {mlc_zeros(ctx, MLC_F64, mlc_dims1(2)), mlc_zeros(ctx, MLC_F32,
                                                                           mlc_dims1(2))};
    r.ok = true;
    CHECK_EQ(mlc_gradcheck(product, &s, none, 2, NULL, &r), MLC_ERR_ARG);
    CHECK(!r.ok);
    CHECK_STR(mlc_error(ctx), "gradcheck: none of 2 inputs requires a gradient, so there is "
                              "nothing to check; call mlc_set_requires_grad before");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_gradcheck(NULL, &s, unfit, 2, NULL, &r), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "gradcheck: fn is NULL");
    CHECK_EQ(mlc_gradcheck(product, &s, unfit, 2, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "gradcheck: report is NULL");
}

/* Memory of which one large piece is refused.                                                  */
typedef struct pieces { bool armed, hit; int calls; } pieces;

static pieces *g_pieces;

static bool piece_refused(void)
{
    const bool refused = g_pieces->armed;
    g_pieces->hit |= refused;
    g_pieces->armed = false;
    return refused;
}

static void *piece_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    return bytes >= 16384 && piece_refused() ? NULL : test_aligned_alloc(align, bytes);
}

static void piece_release(void *user, void *ptr, size_t bytes)
{
    (void)user; (void)bytes;
    test_aligned_free(ptr);
}

/* When its input has been moved up there is no memory to move it down.                         */
static mlc_tensor *sum_and_trim(void *user, mlc_tensor *const *in, int32_t n)
{
    mlc_tensor *y = mlc_sum(in[0], mlc_dims0(), false);
    (void)user; (void)n;
    if (++g_pieces->calls == 2) {
        mlc_memory_trim(y->ctx);
        g_pieces->armed = true;
    }
    return y;
}

TEST(tape, gradcheck_restores_its_input_when_moving_it_fails)
{
    pieces       p = {false, false, 0};
    mlc_ctx_desc d = test_desc();
    double       before[4096], after[4096];
    mlc_gradcheck_report r;
    if (!test_on_host())
        return (void)CHECK(true);      /* its memory comes in other pieces                     */
    d.allocator.alloc = piece_alloc;
    d.allocator.release = piece_release;
    g_pieces = &p;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
    mlc_tensor *x = mlc_transpose(leaf(ctx, mlc_dims2(64, 64), 1), 0, 1);
    x = mlc_detach(x);
    mlc_set_requires_grad(x, true);
    CHECK(test_read(x, before));
    CHECK_EQ(mlc_gradcheck(sum_and_trim, NULL, &x, 1, NULL, &r), MLC_ERR_NOMEM);
    CHECK(p.hit && p.calls == 2 && !r.ok);
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    CHECK(test_read(x, after));
    CHECK_EQ(memcmp(before, after, sizeof before), 0);
}

static mlc_status eight_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user;
    *out = in[0];
    for (int32_t i = 1; i < n_in; i++)
        *out = mlc_mul(*out, in[i]);
    return MLC_OK;
}

static mlc_status eight_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user;
    for (int32_t i = 0; i < n_in; i++)
        if (need[i])
            dx[i] = mlc_mul(dy, mlc_div(out, in[i]));
    return MLC_OK;
}

static const mlc_custom_op EIGHT = {"eight", eight_forward, eight_backward};

static mlc_tensor *eight(void *user, mlc_tensor *const *in, int32_t n_in)
{
    return mlc_custom(&EIGHT, user, in, n_in);
}

/* Doubles its dy in place.                                                                    */
static mlc_status spend_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                 mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)in; (void)n_in; (void)out; (void)need;
    dx[0] = mlc_mul_scalar_(dy, 2);
    return MLC_OK;
}

static mlc_status twice_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_mul_scalar(in[0], 2);
    return MLC_OK;
}

TEST(tape, a_custom_operation_may_spend_its_dy_but_not_that_of_the_caller)
{
    static const mlc_custom_op op = {"spend", twice_forward, spend_backward};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims1(3), 1), *dy = leaf(ctx, mlc_dims1(3), 2);
    double      before[3], after[3], want[3];
    CHECK(test_read(dy, before));
    CHECK_EQ(mlc_backward_from(mlc_custom(&op, NULL, &x, 1), dy), MLC_OK);
    CHECK(test_read(dy, after) && memcmp(before, after, sizeof before) == 0);
    for (int i = 0; i < 3; i++) want[i] = 2 * before[i];
    CHECK_VALUES(mlc_grad(x), 3, want, 1e-15, 0);
    CHECK_OK(ctx);
}

/* The tape still knows the first graph when backward goes through the second.                 */
TEST(tape, nothing_is_left_of_a_graph_that_wrote_into_a_view)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims2(1, 3), 1), *b = leaf(ctx, mlc_dims1(3), 2);
    mlc_tensor *z = mlc_zeros(ctx, MLC_F64, mlc_dims2(2, 3));
    mlc_copy_(mlc_slice(z, 0, 0, 1, 1), a);
    mlc_copy_(mlc_slice(z, 0, 1, 2, 1), mlc_mul_scalar(a, 3));
    CHECK_EQ(mlc_backward(total(z)), MLC_OK);
    CHECK(grad_is(a, 4));
    CHECK_EQ(mlc_backward(total(b)), MLC_OK);
    CHECK(grad_is(a, 4));
    CHECK(grad_is(b, 1));
    CHECK_OK(ctx);
}

TEST(tape, a_custom_operation_takes_eight_inputs_and_watches_each)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_tensor          *in[9];
    mlc_gradcheck_report r;
    for (uint64_t i = 0; i < 9; i++)
        in[i] = leaf(ctx, mlc_dims1(3), i);
    CHECK_EQ(mlc_gradcheck(eight, NULL, in, 8, NULL, &r), MLC_OK);
    CHECK(r.ok);
    for (int i = 0; i < 8; i++) {
        mlc_tensor *y = total(eight(NULL, in, 8));
        CHECK_EQ(mlc_copy_into(in[i], in[8]), MLC_OK);
        CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
        CHECK_STATUS(ctx, MLC_ERR_VALUE);
    }
    CHECK(mlc_custom(&EIGHT, NULL, in, 9) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_custom(NULL, NULL, in, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    in[1] = NULL;
    CHECK(mlc_custom(&EIGHT, NULL, in, 8) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}

static mlc_status lazy_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)in; (void)n_in; (void)out; (void)need;
    if (user != NULL)
        dx[0] = mlc_reshape(dy, mlc_dims1(6));
    return MLC_OK;
}

TEST(tape, a_custom_gradient_must_be_there_and_fit)
{
    static const mlc_custom_op lazy = {"lazy", fail_forward, lazy_backward};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims2(2, 3), 1);
    CHECK_EQ(mlc_backward(total(mlc_custom(&lazy, NULL, &a, 1))), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "lazy: backward made no gradient for input 1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_backward(total(mlc_custom(&lazy, ctx, &a, 1))), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "lazy: gradient f64 [6] of input 1 does not fit f64 [2,3]");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

static mlc_status dropped_forward(void *user, mlc_tensor *const *in, int32_t n_in,
                                  mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_mul(in[0], in[0]);
    mlc_drop(*out);
    return MLC_OK;
}

TEST(tape, a_custom_operation_whose_result_was_dropped_is_refused)
{
    static const mlc_custom_op op = {"dropped", dropped_forward, lazy_backward};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(2, 3), 1, -1, 1);
    mlc_memory  before, after;
    mlc_memory_info(ctx, &before);
    CHECK(mlc_custom(&op, NULL, &x, 1) == NULL);
    CHECK_HAS(mlc_error(ctx), "dropped: the memory of a [2,3] tensor was freed by mlc_drop");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.now[MLC_MEM_ACTIVATION], before.now[MLC_MEM_ACTIVATION]);
}

/* ---- anomaly mode -------------------------------------------------------------------------- */

TEST(tape, anomaly_mode_names_the_first_operation_that_made_a_nan)
{
    static const double v[3] = {1, -1, 4};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tensor(ctx, MLC_F64, mlc_dims1(3), v);
    CHECK(mlc_exp(mlc_log(x)) != NULL);                    /* off: a NaN is a value            */
    CHECK_OK(ctx);
    mlc_anomaly(ctx, true);
    CHECK(mlc_exp(mlc_log(x)) == NULL);
    CHECK_HAS(mlc_error(ctx), "log: forward");
    CHECK_HAS(mlc_error(ctx), "element 1 of [3]");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK(mlc_exp(mlc_mul_scalar(x, 1000)) == NULL);
    CHECK_HAS(mlc_error(ctx), "exp: forward");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_anomaly(ctx, false);
    CHECK(mlc_log(x) != NULL);
    CHECK_OK(ctx);
}

TEST(tape, anomaly_mode_names_the_backward_that_made_an_infinity)
{
    static const double v[2] = {0, 4};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_tensor(ctx, MLC_F64, mlc_dims1(2), v);
    mlc_set_requires_grad(x, true);
    mlc_anomaly(ctx, true);
    CHECK_EQ(mlc_backward(total(mlc_sqrt(x))), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "sqrt: backward");
    CHECK_HAS(mlc_error(ctx), "element 0 of [2]");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}

TEST(tape, anomaly_mode_looks_through_views_with_holes)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_full(ctx, MLC_F64, mlc_dims2(4, 4), -1), *v;
    mlc_anomaly(ctx, true);
    v = mlc_slice(mlc_transpose(x, 0, 1), 1, 0, 4, 2);
    CHECK(mlc_log(v) == NULL);
    CHECK_HAS(mlc_error(ctx), "log");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}

/* ---- memory of the tape -------------------------------------------------------------------- */

TEST(tape, saved_tensors_are_given_back_as_backward_uses_them)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims1(10000), 1), *y = x;
    mlc_memory  before, after;
    mlc_scope_begin(ctx);
    for (int i = 0; i < 10; i++)
        y = mlc_tanh(y);
    y = total(y);
    mlc_memory_info(ctx, &before);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    mlc_memory_info(ctx, &after);
    CHECK(after.now[MLC_MEM_GRAD] <= before.now[MLC_MEM_GRAD] + 2 * 80000);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_memory_info(ctx, &after);
    CHECK(after.now[MLC_MEM_ACTIVATION] < 2 * 80000 + 20000);
    CHECK(after.top[MLC_MEM_GRAD] <= 4 * 80000);           /* not one for each operation       */
}

/* ---- what must not be mixed, overwritten or flushed ---------------------------------------- */

static mlc_tensor *lost;               /* made in a forward, freed when that ended             */

static mlc_status losing_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                 mlc_tensor **out, int32_t n_out)
{
    (void)m; (void)n_in; (void)n_out;
    lost = mlc_mul_scalar(in[0], 2);
    out[0] = mlc_add_scalar(in[0], 1);
    return MLC_OK;
}

TEST(tape, backward_from_refuses_a_dy_of_another_context_or_without_memory)
{
    static const mlc_module_class losing = {"Losing", losing_forward, NULL, NULL, 0, NULL};
    mlc_ctx    *ctx = test_ctx(), *other = test_own(mlc_ctx_create(NULL));
    mlc_tensor *a = leaf(ctx, mlc_dims1(3), 1), *dy = mlc_full(other, MLC_F64, mlc_dims1(3), 1);
    CHECK_EQ(mlc_backward_from(mlc_mul(a, a), dy), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "context");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_OK(other);
    mlc_tensor *y = mlc_forward(mlc_module_create(ctx, &losing, NULL, 0), a);
    CHECK_EQ(mlc_backward_from(y, lost), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK(mlc_grad(a) == NULL);
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);          /* a refusal has used nothing up    */
    CHECK(grad_is(a, 1));
}

static double twice_denormal(void)
{
    volatile double tiny = 1e-310;
    return tiny * 2;
}

static mlc_status denormal_forward(void *user, mlc_tensor *const *in, int32_t n_in,
                                   mlc_tensor **out)
{
    (void)n_in;
    ((double *)user)[0] = twice_denormal();
    *out = mlc_copy(in[0]);
    return MLC_OK;
}

static mlc_status denormal_backward(void *user, mlc_tensor *const *in, int32_t n_in,
                                    mlc_tensor *out, mlc_tensor *dy, const bool *need,
                                    mlc_tensor **dx)
{
    (void)in; (void)n_in; (void)out; (void)need;
    ((double *)user)[1] = twice_denormal();
    dx[0] = dy;
    return MLC_OK;
}

TEST(tape, custom_operations_and_the_caller_see_denormals)
{
    static const mlc_custom_op op = {"denormal", denormal_forward, denormal_backward};
    double      seen[2] = {0, 0};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *a = leaf(ctx, mlc_dims2(3, 3), 1);
    CHECK_EQ(mlc_backward(total(mlc_exp(mlc_custom(&op, seen, &a, 1)))), MLC_OK);
    CHECK(seen[0] == 2e-310 && seen[1] == 2e-310);
    CHECK(mlc_matmul(a, a) != NULL && twice_denormal() == 2e-310);
    CHECK_OK(ctx);
}

TEST(tape, anomaly_mode_is_quiet_about_rows_that_are_ignored)
{
    static const double    labels[3] = {0, -100, 2};
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    mlc_ctx               *ctx = test_ctx();
    mlc_tensor            *y = test_tensor(ctx, MLC_I64, mlc_dims1(3), labels);
    d.has_ignore_index = true;
    d.ignore_index = -100;
    mlc_scope_begin(ctx);              /* the memory of what follows is full of NaN            */
    for (int i = 0; i < 32; i++)
        mlc_full(ctx, MLC_F64, mlc_dims1(i < 16 ? 3 : 15), (double)NAN);
    mlc_scope_end(ctx);
    mlc_anomaly(ctx, true);
    for (int i = 0; i < 3; i++) {
        const mlc_reduction kinds[] = {MLC_REDUCTION_MEAN, MLC_REDUCTION_SUM, MLC_REDUCTION_NONE};
        mlc_tensor         *x = mlc_full(ctx, MLC_F64, mlc_dims2(3, 5), 1);
        mlc_set_requires_grad(x, true);
        d.reduction = kinds[i];
        CHECK_EQ(mlc_backward(total(mlc_cross_entropy_ex(x, y, &d))), MLC_OK);
        CHECK_NEAR(mlc_item(total(mlc_select(mlc_grad(x), 0, 1))), 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(tape, writing_into_an_expanded_tensor_is_refused)
{
    static const double v[4] = {1, 2, 3, 4}, zero = 0;
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F64, mlc_dims1(1)), *e = mlc_expand(x, mlc_dims1(4));
    CHECK_EQ(mlc_write(e, v, sizeof v), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_copy_into(e, test_tensor(ctx, MLC_F64, mlc_dims1(4), v)), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_VALUES(x, 1, &zero, 0, 0);
    CHECK_OK(ctx);
}

/* ---- tapes inside a tape ------------------------------------------------------------------- */

/* relu(x w^T) v^T, twice.                                                                     */
static mlc_tensor *piece(mlc_tensor *x, mlc_tensor *const *w)
{
    mlc_epilogue relu = {MLC_ACT_RELU, 0, NULL};
    x = mlc_linear(mlc_linear_ex(x, w[0], NULL, &relu), w[1], NULL);
    return mlc_linear(mlc_linear_ex(x, w[0], NULL, &relu), w[1], NULL);
}

typedef struct weights { mlc_ctx *ctx; mlc_tensor *w[2]; } weights;

static mlc_status piece_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)n_in;
    *out = piece(in[0], ((weights *)user)->w);
    return MLC_OK;
}

/* Runs the piece once more and differentiates it there: nothing of it was kept.               */
static mlc_status piece_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                 mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    weights    *u = user;
    mlc_tensor *x = mlc_detach(in[0]);
    (void)n_in; (void)out; (void)need;
    mlc_set_requires_grad(x, true);
    mlc_tape_begin(u->ctx, false);
    const mlc_status st = mlc_backward_from(piece(x, u->w), dy);
    mlc_tape_end(u->ctx);
    dx[0] = mlc_grad(x);
    return st;
}

static const mlc_custom_op PIECE = {"piece", piece_forward, piece_backward};

TEST(tape, a_piece_is_run_and_differentiated_inside_a_backward)
{
    double      whole[3][16], twice[3][16];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *leaves[3] = {leaf(ctx, mlc_dims2(4, 4), 1), leaf(ctx, mlc_dims2(4, 4), 2),
                             leaf(ctx, mlc_dims2(4, 4), 3)};
    weights     u = {ctx, {leaves[0], leaves[1]}};
    for (int i = 0; i < 2; i++) {
        mlc_tensor *x = mlc_relu(leaves[2]);
        for (int k = 0; k < 2; k++)
            x = i == 0 ? piece(x, u.w) : mlc_custom(&PIECE, &u, &x, 1);
        CHECK_EQ(mlc_backward(total(x)), MLC_OK);
        for (int k = 0; k < 3; k++) {
            CHECK(test_read(mlc_grad(leaves[k]), i == 0 ? whole[k] : twice[k]));
            mlc_zero_grad(leaves[k]);
        }
    }
    CHECK_EQ(memcmp(whole, twice, sizeof whole), 0);
    CHECK_OK(ctx);
}

TEST(tape, gradients_of_what_an_outer_tape_made_wait_for_its_backward)
{
    mlc_epilogue relu = {MLC_ACT_RELU, 0, NULL};
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = leaf(ctx, mlc_dims2(2, 3), 1);
    mlc_tensor  *w = mlc_full(ctx, MLC_F64, mlc_dims2(3, 3), 1);
    mlc_tensor  *h = mlc_linear_ex(x, w, NULL, &relu), *y = NULL;
    mlc_no_grad_begin(ctx);
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_tape_begin(ctx, false), MLC_OK);
    y = mlc_linear(h, w, NULL);
    CHECK(mlc_requires_grad(y));
    CHECK_EQ(mlc_backward(total(y)), MLC_OK);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK(!mlc_requires_grad(y) && !mlc_requires_grad(mlc_mul(h, h)));
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_no_grad_end(ctx);
    CHECK(mlc_grad(x) == NULL);
    CHECK_EQ(mlc_backward(total(h)), MLC_OK);
    CHECK(grad_is(x, 3 * (3 + 1)));
    CHECK_OK(ctx);
}

TEST(tape, what_an_outer_tape_made_is_not_changed_or_differentiated_inside)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims1(3), 1), *h = mlc_mul(x, x), *sum = total(h);
    CHECK_EQ(mlc_tape_begin(ctx, false), MLC_OK);
    CHECK(mlc_mul_scalar_(h, 2) == NULL);
    CHECK_HAS(mlc_error(ctx), "outer tape");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_backward(sum), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "outer tape");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_tensor *y = mlc_mul_scalar_(mlc_mul_scalar(h, 2), 3);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_EQ(mlc_backward(total(y)), MLC_ERR_STATE);       /* no longer a result              */
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_backward(sum), MLC_OK);
    CHECK_OK(ctx);
}

TEST(tape, tapes_nest_and_a_scope_ends_those_that_began_in_it)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims1(3), 1), *y = mlc_mul_scalar(x, 5);
    CHECK_EQ(mlc_tape_end(ctx), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "tape_end: no tape is open");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_tape_begin(NULL, false), MLC_ERR_ARG);
    CHECK_EQ(mlc_tape_end(NULL), MLC_ERR_ARG);
    mlc_scope_begin(ctx);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(mlc_tape_begin(ctx, false), MLC_OK);
        y = mlc_mul_scalar(x, i + 1);
        if (i < 2)
            mlc_no_grad_begin(ctx);
    }
    CHECK_EQ(mlc_backward(total(y)), MLC_OK);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK(!mlc_requires_grad(mlc_mul(x, x)));              /* no-grad of the middle one again */
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_EQ(mlc_tape_end(ctx), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK(grad_is(x, 3));
    CHECK_EQ(mlc_backward(total(mlc_mul_scalar(x, 4))), MLC_OK);
    CHECK(grad_is(x, 7));
    CHECK_OK(ctx);
}

typedef struct seen { char text[64]; mlc_tensor *last; } seen;

static void see(void *user, const mlc_op_event *e)
{
    seen *s = user;
    mlc_add_scalar(e->out[0], 1);                          /* is not seen itself              */
    s->last = e->out[0];
    strncat(s->text, e->op, sizeof s->text - strlen(s->text) - 1);
    strncat(s->text, " ", sizeof s->text - strlen(s->text) - 1);
}

TEST(tape, a_tape_that_keeps_tells_what_was_computed)
{
    seen        s = {"", NULL};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims1(3), 1, 0, 1), *g = leaf(ctx, mlc_dims1(3), 2);
    CHECK_EQ(mlc_tape_each(ctx, see, &s), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    mlc_neg(g);                                            /* on the outer tape                */
    CHECK_EQ(mlc_tape_begin(ctx, true), MLC_OK);
    CHECK_EQ(mlc_tape_each(ctx, NULL, &s), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    mlc_tensor *y = mlc_add(g, x);
    y = mlc_mul(mlc_exp(x), y);
    mlc_no_grad_begin(ctx);
    mlc_tensor *last = mlc_sqrt(y);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_tape_each(ctx, see, &s), MLC_OK);
    CHECK_EQ(strcmp(s.text, "add exp mul sqrt "), 0);
    CHECK(s.last == last && !mlc_requires_grad(last) && mlc_requires_grad(y));
    CHECK_EQ(mlc_backward(total(y)), MLC_OK);
    s.text[0] = 0;
    CHECK_EQ(mlc_tape_each(ctx, see, &s), MLC_OK);
    CHECK_EQ(strcmp(s.text, "add exp mul sqrt sum "), 0);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_OK(ctx);
}

TEST(tape, a_tape_that_keeps_has_joins_without_gradients)
{
    seen        s = {"", NULL};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims2(3, 2), 1, 0, 1), *two[2] = {x, x};
    CHECK_EQ(mlc_tape_begin(ctx, true), MLC_OK);
    mlc_tensor *y = mlc_neg(mlc_concat(two, 2, 0));
    CHECK_EQ(mlc_tape_each(ctx, see, &s), MLC_OK);
    CHECK_STR(s.text, "concat neg ");
    CHECK(s.last == y);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_OK(ctx);
}

TEST(tape, a_tape_may_end_in_a_deeper_scope)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims1(3), 1), *loss = total(mlc_mul_scalar(x, 5));
    mlc_tape_begin(ctx, false);
    mlc_mul(x, x);
    mlc_scope_begin(ctx);
    mlc_mul(x, x);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_EQ(mlc_backward(loss), MLC_OK);
    CHECK(grad_is(x, 5));
    CHECK_OK(ctx);
}

/* Leaves a tape open and fails.                                                               */
static mlc_status open_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)in; (void)n_in; (void)out; (void)dy; (void)need; (void)dx;
    mlc_tape_begin(user, false);
    return MLC_ERR_VALUE;
}

static mlc_status open_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)n_in;
    mlc_tape_begin(user, true);
    *out = mlc_mul(in[0], in[0]);
    return MLC_OK;
}

TEST(tape, a_tape_that_a_custom_operation_leaves_open_is_ended)
{
    static const mlc_custom_op op = {"open", open_forward, open_backward};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = leaf(ctx, mlc_dims1(3), 1), *y = total(mlc_custom(&op, ctx, &x, 1));
    CHECK_EQ(mlc_tape_end(ctx), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_EQ(mlc_tape_end(ctx), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_backward(total(mlc_mul_scalar(x, 3))), MLC_OK);      /* is recorded           */
    CHECK(grad_is(x, 3));
    CHECK_OK(ctx);
}

TEST(tape, what_a_scope_changed_in_place_does_not_point_to_its_nodes)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = leaf(ctx, mlc_dims1(3), 1), *x = mlc_zeros(ctx, MLC_F64, mlc_dims1(3));
    for (int i = 0; i < 3; i++) {
        mlc_scope_begin(ctx);
        CHECK(mlc_add_(x, w) == x && mlc_requires_grad(x));
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        CHECK(!mlc_requires_grad(x));
    }
    mlc_memory_trim(ctx);
    CHECK(mlc_mul_scalar_(x, 2) == x);
    CHECK_EQ(mlc_backward(total(x)), MLC_ERR_STATE);
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_OK(ctx);
}

TEST(tape, backward_passes_over_what_is_only_kept)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F64, mlc_dims1(3));
    mlc_tape_begin(ctx, true);
    CHECK(mlc_sin_(x) == x);
    CHECK_EQ(mlc_set_requires_grad(x, true), MLC_OK);
    CHECK_EQ(mlc_backward(total(mlc_mul_scalar(x, 2))), MLC_OK);
    CHECK(grad_is(x, 2));
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_OK(ctx);
}

/* ---- memory given back early ----------------------------------------------------------------- */

static int64_t activations(mlc_ctx *ctx)
{
    mlc_memory m;
    CHECK_EQ(mlc_memory_info(ctx, &m), MLC_OK);
    return m.now[MLC_MEM_ACTIVATION];
}

TEST(tape, drop_frees_what_nothing_needs_and_leaves_the_rest)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(1024)), *outside = mlc_ones(ctx, MLC_F32,
                                                                                 mlc_dims1(1024));
    mlc_set_requires_grad(w, true);
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(1024));
    mlc_tensor *factor = mlc_exp(x), *y = mlc_mul(w, factor), *z = mlc_mul_scalar(y, 2);
    const int64_t all = activations(ctx);
    mlc_tensor *const needed[] = {NULL, w, outside, factor, y, z};
    for (int i = 0; i < 6; i++)
        mlc_drop(needed[i]);
    CHECK_EQ(activations(ctx), all);
    mlc_drop(mlc_reshape(x, mlc_dims2(32, 32)));           /* with all views of its memory     */
    CHECK_EQ(activations(ctx), all - 4096);
    mlc_drop(x);
    CHECK_EQ(activations(ctx), all - 4096);
    CHECK_EQ(mlc_backward(mlc_sum(z, mlc_dims0(), false)), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_select(mlc_grad(w), 0, 5)), 2 * exp(1.0), 1e-5);
    CHECK_OK(ctx);
    CHECK(mlc_exp(x) == NULL);
    CHECK_HAS(mlc_error(ctx), "was freed by mlc_drop");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_NEAR(mlc_item(mlc_select(outside, 0, 5)), 1, 0);
    CHECK_OK(ctx);
}

/* Views that the tape does not follow share memory that it may still need. */
TEST(tape, drop_leaves_what_a_view_shares_with_the_tape)
{
    mlc_ctx *ctx = test_ctx();
    CHECK_EQ(mlc_scope_begin(ctx), MLC_OK);
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(1024)), *x = mlc_exp(w);
    mlc_set_requires_grad(w, true);
    mlc_tensor *y = mlc_add(w, x);
    const int64_t all = activations(ctx);
    mlc_drop(mlc_detach(w));
    mlc_drop(mlc_detach(y));
    mlc_no_grad_begin(ctx);
    mlc_drop(mlc_reshape(w, mlc_dims2(32, 32)));
    mlc_drop(mlc_slice(y, 0, 0, 512, 1));
    mlc_no_grad_end(ctx);
    CHECK_EQ(activations(ctx), all);
    mlc_drop(mlc_detach(x));
    CHECK_EQ(activations(ctx), all - 4096);
    CHECK_NEAR(mlc_item_at(mlc_mul(w, y), mlc_dims1(7)), 1 + exp(1.0), 1e-6);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK_OK(ctx);
}

/* Bytes in use after a call, over those of what it returned. */
static int64_t left_over(mlc_ctx *ctx, mlc_tensor *const *in, int which)
{
    const int64_t before = activations(ctx);
    const mlc_triplet_margin_desc far = {MLC_REDUCTION_MEAN, 1, 2, true};
    const mlc_cosine_embedding_desc angle = {MLC_REDUCTION_NONE, 0.5};
    mlc_tensor *y = which == 0   ? mlc_einsum("ij,jk,kl->li", in, 3)
                    : which == 1 ? mlc_layer_norm(in[0], NULL, NULL, 1e-5)
                    : which == 2 ? mlc_focal_loss(in[0], in[1])
                    : which == 3 ? mlc_triplet_margin_loss_ex(in[0], in[1], in[2], &far)
                                 : mlc_cosine_embedding_loss_ex(in[0], in[1], in[3], &angle);
    const int64_t bytes = mlc_numel(y) * 4;
    CHECK(y != NULL);
    return activations(ctx) - before - (bytes < 64 ? 64 : bytes);
}

TEST(tape, operations_made_of_others_keep_their_result_alone_where_nothing_is_recorded)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[4];
    for (uint64_t i = 0; i < 3; i++)
        in[i] = test_rand(ctx, MLC_F32, mlc_dims2(64, 64), i + 1, 0.1, 0.9);
    in[3] = mlc_ones(ctx, MLC_F32, mlc_dims1(64));
    for (int which = 0; which < 5; which++) {
        CHECK_EQ(left_over(ctx, in, which), 0);
        mlc_set_requires_grad(in[0], true);
        CHECK(left_over(ctx, in, which) > 0);
        mlc_set_requires_grad(in[0], false);
    }
    CHECK_OK(ctx);
}
