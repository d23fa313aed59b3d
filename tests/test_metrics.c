/* test_metrics.c -- tests of section IMPL.METRICS: accuracy */
#include "mlc_test.h"

#include <math.h>

static const double SCORES[] = {
    0.1, 0.7, 0.2,                     /* 1                                                    */
    3.0, 3.0, 1.0,                     /* a tie: the first, 0                                  */
    -5., -4., -3.,                     /* 2                                                    */
    0.0, 0.0, 0.0,                     /* 0                                                    */
};

TEST(metrics, accuracy_is_the_share_of_rows_whose_argmax_is_the_label)
{
    static const double all[] = {1, 0, 2, 0}, three[] = {1, 1, 2, 0}, none[] = {0, 2, 0, 1};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *wide = test_tensor(ctx, MLC_F64, mlc_dims2(4, 3), SCORES);
        mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
        CHECK_NEAR(mlc_accuracy(x, test_tensor(ctx, MLC_I64, mlc_dims1(4), all)), 1, 0);
        CHECK_NEAR(mlc_accuracy(x, test_tensor(ctx, MLC_I64, mlc_dims1(4), three)), 0.75, 0);
        CHECK_NEAR(mlc_accuracy(wide, test_tensor(ctx, MLC_I64, mlc_dims1(4), none)), 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(metrics, accuracy_reads_views)
{
    static const double labels[] = {1, 9, 0, 9, 2, 9, 0, 9};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
    mlc_tensor         *columns = mlc_copy(mlc_transpose(x, 0, 1));
    mlc_tensor         *y = test_tensor(ctx, MLC_I64, mlc_dims1(8), labels);
    CHECK_NEAR(mlc_accuracy(mlc_transpose(columns, 0, 1), mlc_slice(y, 0, 0, 8, 2)), 1, 0);
    CHECK_OK(ctx);
}

TEST(metrics, accuracy_of_scores_that_are_not_numbers)
{
    static const double labels[] = {1, 0, 2, 0};
    double              scores[12];
    mlc_ctx            *ctx = test_ctx();
    for (int i = 0; i < 12; i++)
        scores[i] = i == 4 ? (double)NAN : SCORES[i];      /* row 1 says 1 now: NaN is largest */
    CHECK_NEAR(mlc_accuracy(test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), scores),
                            test_tensor(ctx, MLC_I64, mlc_dims1(4), labels)), 0.75, 0);
    CHECK_OK(ctx);
}

TEST(metrics, accuracy_does_not_record_on_the_tape)
{
    static const double labels[] = {1, 0, 2, 0};
    mlc_ctx            *ctx = test_ctx();
    mlc_tensor         *x = test_tensor(ctx, MLC_F32, mlc_dims2(4, 3), SCORES);
    mlc_set_requires_grad(x, true);
    mlc_tensor *y = mlc_mul_scalar(x, 2);
    CHECK_NEAR(mlc_accuracy(y, test_tensor(ctx, MLC_I64, mlc_dims1(4), labels)), 1, 0);
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_OK(ctx);
}

static void check_none(mlc_ctx *ctx, double value, mlc_status status)
{
    CHECK(isnan(value));
    CHECK_HAS(mlc_error(ctx), "accuracy");
    CHECK_STATUS(ctx, status);
}

TEST(metrics, accuracy_that_cannot_be_had_is_not_a_number_and_an_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, mlc_dims1(4));
    mlc_tensor *y5 = mlc_zeros(ctx, MLC_I64, mlc_dims1(5));
    mlc_tensor *none = mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3));
    check_none(ctx, mlc_accuracy(x, y5), MLC_ERR_SHAPE);
    check_none(ctx, mlc_accuracy(mlc_zeros(ctx, MLC_F32, mlc_dims1(4)), y), MLC_ERR_SHAPE);
    check_none(ctx, mlc_accuracy(mlc_zeros(ctx, MLC_I64, mlc_dims2(4, 3)), y), MLC_ERR_DTYPE);
    check_none(ctx, mlc_accuracy(x, mlc_zeros(ctx, MLC_F32, mlc_dims1(4))), MLC_ERR_DTYPE);
    check_none(ctx, mlc_accuracy(none, mlc_zeros(ctx, MLC_I64, mlc_dims1(0))), MLC_ERR_SHAPE);
    check_none(ctx, mlc_accuracy(x, NULL), MLC_ERR_ARG);
    check_none(ctx, mlc_accuracy(NULL, y), MLC_ERR_ARG);
    CHECK(isnan(mlc_accuracy(NULL, NULL)));
    CHECK_OK(ctx);
}
