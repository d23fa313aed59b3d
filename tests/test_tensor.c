/* test_tensor.c -- tests of API.TENSOR: creation, views, copies, casts, host access, messages */
#include "mlc_test.h"


static const double COUNT[24] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};

static bool has_shape(const mlc_tensor *t, const char *want)
{
    char text[128];
    return CHECK(t != NULL) && CHECK_STR(mlc_shape_text(t, text, sizeof text), want);
}

/* The result is NULL, and the context says why in exactly these words.                        */
static void check_error(mlc_ctx *ctx, const mlc_tensor *t, mlc_status status, const char *want)
{
    CHECK(t == NULL);
    CHECK_STR(mlc_error(ctx), want);
    CHECK_STATUS(ctx, status);
}

static bool is_float(mlc_dtype dtype)
{
    return dtype == MLC_F32 || dtype == MLC_F64 || dtype == MLC_BF16 || dtype == MLC_F16;
}

/* ---- creation ------------------------------------------------------------------------------ */

TEST(tensor, zeros_full_and_arange_hold_what_they_say)
{
    static const double zeros[6] = {0}, twos[6] = {2.5, 2.5, 2.5, 2.5, 2.5, 2.5};
    static const double whole[6] = {2, 2, 2, 2, 2, 2}, steps[4] = {1, 3.5, 6, 8.5};
    static const double down[3] = {3, 2, 1}, ones[6] = {1, 1, 1, 1, 1, 1};
    FOR_EACH_ISA(ctx) {
        for (int dtype = 0; dtype < MLC_DTYPE_COUNT; dtype++) {
            mlc_tensor *z = mlc_zeros(ctx, (mlc_dtype)dtype, mlc_dims2(2, 3));
            mlc_tensor *f = mlc_full(ctx, (mlc_dtype)dtype, mlc_dims2(2, 3), 2.5);
            has_shape(z, "[2,3]");
            CHECK_EQ(z->dtype, dtype);
            CHECK_VALUES(z, 6, zeros, 0, 0);
            CHECK_VALUES(f, 6, dtype == MLC_BOOL ? ones : is_float((mlc_dtype)dtype) ? twos : whole,
                         0, 0);
            CHECK_VALUES(mlc_arange(ctx, (mlc_dtype)dtype, 3, 0, -1), 3,
                         dtype == MLC_BOOL ? ones : down, 0, 0);
        }
        CHECK_VALUES(mlc_arange(ctx, MLC_F32, 1, 10, 2.5), 4, steps, 0, 0);
        CHECK_VALUES(mlc_arange(ctx, MLC_F64, 1, 11, 2.5), 4, steps, 0, 0);
        has_shape(mlc_arange(ctx, MLC_I64, 5, 5, 1), "[0]");
        CHECK_OK(ctx);
    }
}

/* Its sign counts: 1 / -0 is -inf. More than a tile, and in a place without alignment. */
TEST(tensor, minus_zero_is_filled_in_as_such)
{
    enum { MINUS = 300 };
    static const mlc_dtype FLOATS[4] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    static double          v[MINUS];
    FOR_EACH_ISA(ctx) {
        for (int k = 0; k < 8; k++) {
            mlc_tensor *x = mlc_full(ctx, FLOATS[k / 2], mlc_dims1(MINUS), k % 2 ? 1 : -0.0);
            if (k % 2) mlc_fill_(mlc_rows(x, 1, MINUS), -0.0);
            CHECK(test_read(x, v));
            for (int i = k % 2; i < MINUS; i++) CHECK(v[i] == 0 && signbit(v[i]));
        }
        CHECK_NEAR(mlc_item(mlc_full(ctx, MLC_I64, mlc_dims0(), -0.0)), 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(tensor, empty_and_zero_dimensional_tensors_are_tensors)
{
    static const double seven[1] = {7};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *none = mlc_zeros(ctx, MLC_F32, mlc_dims3(2, 0, 3));
    mlc_tensor *scalar = mlc_full(ctx, MLC_F64, mlc_dims0(), 7);
    has_shape(none, "[2,0,3]");
    CHECK_EQ(mlc_numel(none), 0);
    CHECK(mlc_is_contiguous(none));
    CHECK_VALUES(none, 0, NULL, 0, 0);
    CHECK_EQ(mlc_read(none, NULL, 0), MLC_OK);
    has_shape(mlc_permute(none, mlc_dims3(2, 1, 0)), "[3,0,2]");
    has_shape(mlc_slice(none, 0, 0, 1, 1), "[1,0,3]");
    has_shape(mlc_copy(none), "[2,0,3]");
    has_shape(mlc_reshape(none, mlc_dims2(0, 5)), "[0,5]");
    has_shape(scalar, "[]");
    CHECK_EQ(mlc_numel(scalar), 1);
    CHECK_VALUES(scalar, 1, seven, 0, 0);
    CHECK(mlc_item(scalar) == 7);
    has_shape(mlc_reshape(scalar, mlc_dims2(1, 1)), "[1,1]");
    has_shape(mlc_from(ctx, MLC_F32, mlc_dims1(0), NULL), "[0]");
    CHECK_OK(ctx);
}

TEST(tensor, creation_refuses_sizes_that_cannot_be)
{
    static const int64_t nine[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const int64_t huge = (int64_t)1 << 40;
    mlc_ctx *ctx = test_ctx();
    float    one = 1;
    check_error(ctx, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, -3)), MLC_ERR_ARG,
                "zeros: size -3 of axis 1 is negative; it must be 0 or more");
    check_error(ctx, mlc_zeros(ctx, MLC_F32, mlc_dims_of(9, nine)), MLC_ERR_ARG,
                "zeros: 9 axes; a tensor has 0 to 8");
    check_error(ctx, mlc_full(ctx, MLC_F32, mlc_dims_of(-1, NULL), 1), MLC_ERR_ARG,
                "full: -1 axes; a tensor has 0 to 8");
    check_error(ctx, mlc_zeros(ctx, MLC_F64, mlc_dims3(huge, huge, 2)), MLC_ERR_SHAPE,
                "zeros: shape [1099511627776,1099511627776,2] has more elements than memory can "
                "hold");
    check_error(ctx, mlc_zeros(ctx, (mlc_dtype)9, mlc_dims1(2)), MLC_ERR_DTYPE,
                "zeros: unknown dtype 9; it is one of MLC_F32 to MLC_BOOL");
    check_error(ctx, mlc_arange(ctx, MLC_F32, 0, 5, 0), MLC_ERR_ARG,
                "arange: step 0 does not lead from 0 to 5; all must be finite, the step not 0 and "
                "of the sign of the way");
    check_error(ctx, mlc_arange(ctx, MLC_F32, 0, 5, -1), MLC_ERR_ARG,
                "arange: step -1 does not lead from 0 to 5; all must be finite, the step not 0 and "
                "of the sign of the way");
    CHECK(mlc_arange(ctx, MLC_F32, 0, NO_NUMBER, 1) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    check_error(ctx, mlc_from(ctx, MLC_F32, mlc_dims1(2), NULL), MLC_ERR_ARG,
                "from: data is NULL; f32 [2] takes 8 bytes");
    check_error(ctx, mlc_randn(ctx, MLC_I64, mlc_dims1(2)), MLC_ERR_DTYPE,
                "randn: dtype i64; it makes floats: f32, f64, bf16, f16");
    check_error(ctx, mlc_uniform(ctx, MLC_F32, mlc_dims1(2), 2, 1), MLC_ERR_ARG,
                "uniform: [2, 1) is no interval of f32; lo must be at most hi, and both finite "
                "there");
    CHECK_EQ(mlc_write(mlc_zeros(ctx, MLC_F32, mlc_dims0()), &one, 4), MLC_OK);
    CHECK_OK(ctx);
}

TEST(tensor, from_copies_and_wrap_borrows)
{
    static const double before[4] = {1, 2, 3, 4}, after[4] = {9, 3, 2, 4};
    static const int64_t turned[2] = {1, 2};
    float       data[4] = {1, 2, 3, 4};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *copy = mlc_from(ctx, MLC_F32, mlc_dims2(2, 2), data), *wrap;
    if (test_on_host()) {
        wrap = mlc_wrap(ctx, MLC_F32, mlc_dims2(2, 2), turned, data);
        data[0] = 9;
        CHECK_VALUES(wrap, 4, after, 0, 0);
        CHECK(mlc_f32(wrap) == data);
        CHECK(!mlc_is_contiguous(wrap));
        CHECK(mlc_is_contiguous(mlc_wrap(ctx, MLC_F32, mlc_dims1(4), NULL, data)));
    }
    data[1] = 8;
    CHECK_VALUES(copy, 4, before, 0, 0);
    CHECK_OK(ctx);
}

TEST(tensor, wrap_refuses_null_and_negative_strides)
{
    static const int64_t backwards[1] = {-1};
    float    data[4] = {1, 2, 3, 4};
    mlc_ctx *ctx = test_ctx();
    if (!test_on_host()) {
        CHECK(mlc_wrap(ctx, MLC_F32, mlc_dims1(4), NULL, data) == NULL);
        CHECK_HAS(mlc_error(ctx), "mlc_from");
        CHECK_STATUS(ctx, MLC_ERR_DEVICE);
        return;
    }
    check_error(ctx, mlc_wrap(ctx, MLC_F32, mlc_dims1(4), NULL, NULL), MLC_ERR_ARG,
                "wrap: data is NULL; [4] has 4 elements");
    check_error(ctx, mlc_wrap(ctx, MLC_F32, mlc_dims1(4), backwards, data), MLC_ERR_ARG,
                "wrap: stride -1 of axis 0 is negative; it must be 0 or more (mlc_flip turns an "
                "axis)");
}

/* ---- views --------------------------------------------------------------------------------- */

static mlc_tensor *counting(mlc_ctx *ctx, mlc_dims dims)
{
    return test_tensor(ctx, MLC_F32, dims, COUNT);
}

TEST(tensor, reshape_is_a_view_where_strides_allow)
{
    static const double turned[6] = {0, 3, 1, 4, 2, 5};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 3));
    mlc_tensor *y = mlc_reshape(x, mlc_dims2(3, -1)), *t = mlc_transpose(x, 0, 1);
    has_shape(y, "[3,2]");
    CHECK_VALUES(y, 6, COUNT, 0, 0);
    CHECK(y->storage == x->storage);
    has_shape(mlc_reshape(x, mlc_dims1(-1)), "[6]");
    CHECK(mlc_reshape(t, mlc_dims3(3, 1, 2))->storage == x->storage);
    y = mlc_reshape(t, mlc_dims1(6));
    CHECK_VALUES(y, 6, turned, 0, 0);
    CHECK(y->storage != x->storage);
    has_shape(mlc_flatten(mlc_reshape(x, mlc_dims3(1, 2, 3)), 1), "[1,6]");
    has_shape(mlc_flatten(x, 0), "[6]");
    has_shape(mlc_flatten(x, -1), "[2,3]");
    check_error(ctx, mlc_reshape(x, mlc_dims2(4, 2)), MLC_ERR_SHAPE,
                "reshape: [2,3] has 6 elements and does not fit [4,2]; its sizes must make "
                "as many");
    check_error(ctx, mlc_reshape(x, mlc_dims2(4, -1)), MLC_ERR_SHAPE,
                "reshape: [2,3] has 6 elements and does not fit [4,-1]; its sizes must make "
                "as many");
    check_error(ctx, mlc_reshape(x, mlc_dims2(-1, -1)), MLC_ERR_SHAPE,
                "reshape: [2,3] to [-1,-1]: sizes must be 0 or more, at most one -1 for "
                "what is left");
    check_error(ctx, mlc_reshape(x, mlc_dims2(-2, 3)), MLC_ERR_SHAPE,
                "reshape: [2,3] to [-2,3]: sizes must be 0 or more, at most one -1 for "
                "what is left");
    check_error(ctx, mlc_flatten(x, 2), MLC_ERR_SHAPE, "flatten: [2,3] has no axis 2; its axes are "
                                                       "-2 to 1");
    CHECK(mlc_reshape(NULL, mlc_dims1(1)) == NULL);
    CHECK_OK(ctx);
}

TEST(tensor, permute_and_transpose_reorder_axes)
{
    static const double want[8] = {0, 4, 2, 6, 1, 5, 3, 7};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims3(2, 2, 2));
    mlc_tensor *y = mlc_permute(x, mlc_dims3(2, 1, 0));
    CHECK_VALUES(y, 8, want, 0, 0);
    CHECK(y->storage == x->storage && !mlc_is_contiguous(y));
    CHECK_VALUES(mlc_transpose(x, 0, -1), 8, want, 0, 0);
    CHECK_VALUES(mlc_permute(x, mlc_dims3(-1, 1, 0)), 8, want, 0, 0);
    CHECK_VALUES(mlc_transpose(y, 0, 2), 8, COUNT, 0, 0);
    CHECK(mlc_is_contiguous(mlc_transpose(y, 0, 2)));
    has_shape(mlc_permute(mlc_full(ctx, MLC_F32, mlc_dims0(), 1), mlc_dims0()), "[]");
    check_error(ctx, mlc_permute(x, mlc_dims2(0, 1)), MLC_ERR_SHAPE,
                "permute: [0,1] is no order of the 3 axes of [2,2,2]; name each once");
    check_error(ctx, mlc_permute(x, mlc_dims3(0, 1, 1)), MLC_ERR_SHAPE,
                "permute: [0,1,1] is no order of the 3 axes of [2,2,2]; name each once");
    check_error(ctx, mlc_transpose(x, 0, 3), MLC_ERR_SHAPE, "transpose: [2,2,2] has no axis 3; its "
                                                            "axes are -3 to 2");
}

TEST(tensor, slice_follows_python)
{
    static const struct { int64_t start, stop, step, n; double first; } cases[] = {
        {0, 10, 1, 10, 0}, {2, 5, 1, 3, 2},   {-3, 10, 1, 3, 7}, {0, -8, 1, 2, 0},
        {1, 9, 3, 3, 1},   {1, 8, 3, 3, 1},   {5, 5, 1, 0, 0},   {7, 2, 1, 0, 0},
        {-99, 99, 4, 3, 0}, {99, 100, 1, 0, 0}, {0, INT64_MAX, 9, 2, 0},
        {3, INT64_MAX, INT64_MAX, 1, 3}, {INT64_MIN, INT64_MIN, 1, 0, 0},
    };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_arange(ctx, MLC_F32, 0, 10, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double      want[10];
        mlc_tensor *y = mlc_slice(x, 0, cases[i].start, cases[i].stop, cases[i].step);
        for (int64_t j = 0; j < cases[i].n; j++)
            want[j] = cases[i].first + (double)j * (double)cases[i].step;
        if (!CHECK_VALUES(y, cases[i].n, want, 0, 0))
            printf("  case %d\n", (int)i);
    }
    check_error(ctx, mlc_slice(x, 0, 0, 5, 0), MLC_ERR_ARG, "slice: step 0; it must be positive");
    check_error(ctx, mlc_slice(x, 0, 5, 0, -1), MLC_ERR_ARG,
                "slice: step -1; it must be positive");
    check_error(ctx, mlc_slice(x, 1, 0, 5, 1), MLC_ERR_SHAPE, "slice: [10] has no axis 1; its axes "
                                                              "are -1 to 0");
}

TEST(tensor, views_of_views_find_their_elements)
{
    static const double want[4] = {13, 21, 14, 22}, column[2] = {5, 17};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims3(2, 3, 4));
    mlc_tensor *y = mlc_slice(mlc_slice(x, 1, 0, 3, 2), 2, 1, 3, 1);   /* [2,2,2]             */
    y = mlc_transpose(mlc_select(y, 0, -1), 0, 1);                     /* of the second half  */
    CHECK_VALUES(y, 4, want, 0, 0);
    y = mlc_select(mlc_select(x, 1, 1), 1, 1);
    CHECK_VALUES(y, 2, column, 0, 0);
    CHECK(y->storage == x->storage);
    check_error(ctx, mlc_select(x, 1, 3), MLC_ERR_SHAPE,
                "select: index 3 is outside axis 1 of [2,3,4]; it must be from -3 to 2");
    check_error(ctx, mlc_select(x, 1, -4), MLC_ERR_SHAPE,
                "select: index -4 is outside axis 1 of [2,3,4]; it must be from -3 to 2");
    check_error(ctx, mlc_select(x, -4, 0), MLC_ERR_SHAPE, "select: [2,3,4] has no axis -4; its "
                                                          "axes are -3 to 2");
}

TEST(tensor, expand_repeats_without_copying)
{
    static const double want[12] = {0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(3, 1));
    mlc_tensor *y = mlc_expand(x, mlc_dims3(2, -1, 2));
    has_shape(y, "[2,3,2]");
    CHECK_VALUES(y, 12, want, 0, 0);
    CHECK(y->storage == x->storage);
    CHECK_VALUES(mlc_contiguous(y), 12, want, 0, 0);
    has_shape(mlc_expand(x, mlc_dims2(3, 0)), "[3,0]");
    check_error(ctx, mlc_expand(x, mlc_dims2(4, 1)), MLC_ERR_SHAPE,
                "expand: [3,1] does not expand to [4,1]: sizes must be equal or 1");
    check_error(ctx, mlc_expand(x, mlc_dims1(3)), MLC_ERR_SHAPE,
                "expand: [3,1] does not expand to [3]: sizes must be equal or 1");
    check_error(ctx, mlc_expand(x, mlc_dims3(-1, 3, 1)), MLC_ERR_SHAPE,
                "expand: [3,1] does not expand to [-1,3,1]: sizes must be equal or 1");
}

/* ---- copies -------------------------------------------------------------------------------- */

TEST(tensor, contiguous_copy_and_detach)
{
    static const double turned[6] = {0, 3, 1, 4, 2, 5};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 3)), *t = mlc_transpose(x, 0, 1);
    mlc_tensor *copy = mlc_copy(t), *same = mlc_detach(x);
    CHECK(mlc_contiguous(x) == x);
    CHECK(mlc_is_contiguous(mlc_contiguous(t)));
    CHECK(mlc_is_contiguous(copy) && copy->storage != x->storage);
    CHECK(same != x && same->storage == x->storage);
    CHECK_EQ(mlc_copy_into(x, mlc_zeros(ctx, MLC_F32, mlc_dims0())), MLC_OK);
    CHECK_VALUES(copy, 6, turned, 0, 0);
    CHECK(mlc_item(mlc_sum(same, mlc_dims0(), false)) == 0);
    CHECK_OK(ctx);
}

TEST(tensor, cast_converts_between_all_dtypes)
{
    static const double v[6] = {1.75, -1.75, 16777217, -3, 0, 1e10};
    static const double narrow[6] = {1.75, -1.75, 16777216, -3, 0, 1e10};
    static const double whole[6] = {1, -1, 16777217, -3, 0, 1e10};
    static const double rounded[6] = {1, -1, 16777216, -3, 0, 1e10};
    FOR_EACH_ISA(ctx) {
        mlc_tensor *d = test_tensor(ctx, MLC_F64, mlc_dims1(6), v);
        mlc_tensor *f = mlc_cast(d, MLC_F32), *i = mlc_cast(d, MLC_I64);
        CHECK_VALUES(f, 6, narrow, 0, 0);
        CHECK_VALUES(i, 6, whole, 0, 0);
        CHECK_VALUES(mlc_cast(f, MLC_F64), 6, narrow, 0, 0);
        CHECK_VALUES(mlc_cast(i, MLC_F64), 6, whole, 0, 0);
        CHECK_VALUES(mlc_cast(mlc_cast(i, MLC_F32), MLC_I64), 6, rounded, 0, 0);
        CHECK_OK(ctx);
    }
}

TEST(tensor, cast_of_what_does_not_fit_is_the_smallest_integer)
{
    static const double v[4] = {NO_NUMBER, (double)INFINITY, -1e300, 9.3e18};
    mlc_ctx *ctx = test_ctx();
    int64_t  out[4] = {0};
    CHECK_EQ(mlc_read(mlc_cast(test_tensor(ctx, MLC_F64, mlc_dims1(4), v), MLC_I64), out,
                      sizeof out), MLC_OK);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(out[i], INT64_MIN);
    check_error(ctx, mlc_cast(mlc_zeros(ctx, MLC_F32, mlc_dims1(2)), (mlc_dtype)-1),
                MLC_ERR_DTYPE, "cast: unknown dtype -1; it is one of MLC_F32 to MLC_BOOL");
}

TEST(tensor, copy_into_writes_views_and_broadcasts)
{
    static const double want[6] = {0, 9, 8, 3, 9, 8}, row[2] = {9, 8};
    static const double moved[8] = {0, 0, 1, 2, 3, 4, 5, 6};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 3)), *y = counting(ctx, mlc_dims1(8));
    CHECK_EQ(mlc_copy_into(mlc_slice(x, 1, 1, 3, 1),
                           test_tensor(ctx, MLC_F32, mlc_dims1(2), row)), MLC_OK);
    CHECK_VALUES(x, 6, want, 0, 0);
    CHECK_EQ(mlc_copy_into(mlc_slice(y, 0, 1, 8, 1), mlc_slice(y, 0, 0, 7, 1)), MLC_OK);
    CHECK_VALUES(y, 8, moved, 0, 0);   /* they overlap                                         */
    CHECK_EQ(mlc_copy_into(x, y), MLC_ERR_SHAPE);
    CHECK_STR(mlc_error(ctx), "copy_into: src [8] does not fit dst [2,3]; it must broadcast to it");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK_EQ(mlc_copy_into(x, mlc_cast(x, MLC_F64)), MLC_ERR_DTYPE);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK_EQ(mlc_copy_into(x, NULL), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_copy_into(NULL, x), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_VALUES(x, 6, want, 0, 0);    /* what failed has changed nothing                      */
}

TEST(tensor, transposing_a_square_into_itself_reads_before_it_writes)
{
    static const double want[4] = {0, 2, 1, 3};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 2));
    CHECK_EQ(mlc_copy_into(x, mlc_transpose(x, 0, 1)), MLC_OK);
    CHECK_VALUES(x, 4, want, 0, 0);
}

/* ---- host access --------------------------------------------------------------------------- */

TEST(tensor, read_and_write_go_through_any_strides)
{
    static const float fresh[6] = {10, 11, 12, 13, 14, 15};
    static const double want[6] = {10, 12, 14, 11, 13, 15};
    float       out[6];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 3)), *t = mlc_transpose(x, 0, 1);
    CHECK_EQ(mlc_write(t, fresh, sizeof fresh), MLC_OK);
    CHECK_VALUES(x, 6, want, 0, 0);
    CHECK_EQ(mlc_read(t, out, sizeof out), MLC_OK);
    CHECK(memcmp(out, fresh, sizeof out) == 0);
    CHECK_EQ(mlc_read(t, out, sizeof out - 1), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "read: 23 bytes given, f32 [3,2] has 24; give just as many");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_write(t, fresh, 4), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_read(t, NULL, sizeof out), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_read(NULL, out, 0), MLC_ERR_ARG);
    CHECK_EQ(mlc_write(NULL, out, 0), MLC_ERR_ARG);
}

TEST(tensor, pointers_are_for_the_right_dtype_only)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 3));
    if (test_on_host()) {
        CHECK(mlc_f32(mlc_select(x, 0, 1))[0] == 3);
        CHECK_OK(ctx);
    }
    CHECK(mlc_f64(x) == NULL);
    CHECK_STR(mlc_error(ctx), "f64: the tensor is f32; write mlc_f32(t)");
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_i64(x) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DTYPE);
    CHECK(mlc_f32(NULL) == NULL && mlc_f64(NULL) == NULL && mlc_i64(NULL) == NULL);
}

TEST(tensor, item_is_for_one_element)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counting(ctx, mlc_dims2(2, 3));
    CHECK(mlc_item(mlc_select(mlc_select(x, 0, 1), 0, 1)) == 4);
    CHECK(mlc_item(mlc_full(ctx, MLC_I64, mlc_dims2(1, 1), -5)) == -5);
    CHECK(isnan(mlc_item(x)));
    CHECK_STR(mlc_error(ctx), "item: [2,3] has 6 elements, not one; reduce it or select one");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(isnan(mlc_item(NULL)));
}

TEST(tensor, rows_are_a_slice_of_axis_0)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_reshape(mlc_arange(ctx, MLC_F32, 0, 12, 1), mlc_dims2(4, 3));
    static const double middle[6] = {3, 4, 5, 6, 7, 8}, last[3] = {9, 10, 11};
    mlc_tensor *rows = mlc_rows(x, 1, 3);
    CHECK_VALUES(rows, 6, middle, 0, 0);
    CHECK(rows->storage == x->storage);
    CHECK_VALUES(mlc_rows(x, -1, INT64_MAX), 3, last, 0, 0);
    CHECK_EQ(mlc_numel(mlc_rows(x, 3, 1)), 0);
    mlc_set_requires_grad(x, true);
    mlc_backward_from(mlc_rows(x, 3, 4), NULL);
    static const double grad[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1};
    CHECK_VALUES(mlc_grad(x), 12, grad, 0, 0);
    CHECK_OK(ctx);
    CHECK(mlc_rows(NULL, 0, 1) == NULL);
    CHECK(mlc_rows(mlc_zeros(ctx, MLC_F32, mlc_dims0()), 0, 1) == NULL);
    CHECK_STR(mlc_error(ctx), "slice: [] has no axis 0; it is a scalar");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

TEST(tensor, item_at_reads_one_element_of_any_dtype_and_layout)
{
    FOR_EACH_ISA(ctx) {
        for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
            const mlc_dtype dtype = (mlc_dtype)d;
            mlc_tensor *x = mlc_cast(mlc_reshape(mlc_arange(ctx, MLC_F32, 0, 12, 1),
                                                 mlc_dims2(4, 3)), dtype);
            const bool truth = dtype == MLC_BOOL;
            CHECK_NEAR(mlc_item_at(x, mlc_dims2(2, 1)), truth ? 1 : 7, 0);
            CHECK_NEAR(mlc_item_at(x, mlc_dims2(-1, -3)), truth ? 1 : 9, 0);
            CHECK_NEAR(mlc_item_at(mlc_transpose(x, 0, 1), mlc_dims2(1, 2)), truth ? 1 : 7, 0);
            CHECK_NEAR(mlc_item_at(mlc_slice(x, 0, 1, 4, 2), mlc_dims2(1, 0)), truth ? 1 : 9, 0);
            CHECK_NEAR(mlc_item_at(mlc_expand(mlc_rows(x, 3, 4), mlc_dims2(9, 3)),
                                   mlc_dims2(8, 2)), truth ? 1 : 11, 0);
            CHECK_NEAR(mlc_item_at(mlc_full(ctx, dtype, mlc_dims0(), 1), mlc_dims0()), 1, 0);
        }
        CHECK_OK(ctx);
    }
}

TEST(tensor, item_at_allocates_nothing)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_memory  before, after;
    mlc_tensor *x = mlc_transpose(mlc_ones(ctx, MLC_F32, mlc_dims2(64, 64)), 0, 1);
    CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
    for (int i = 0; i < 64; i++) CHECK_NEAR(mlc_item_at(x, mlc_dims2(i, 63 - i)), 1, 0);
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    CHECK_EQ(memcmp(&before, &after, sizeof before), 0);
    CHECK_OK(ctx);
}

TEST(tensor, item_at_names_the_bounds)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 3));
    CHECK(isnan(mlc_item_at(NULL, mlc_dims0())));
    CHECK(isnan(mlc_item_at(x, mlc_dims1(0))));
    CHECK_STR(mlc_error(ctx), "item_at: 1 indices for the 2 axes of [2,3]; give one for each");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(isnan(mlc_item_at(x, mlc_dims2(1, 3))));
    CHECK_STR(mlc_error(ctx), "item_at: index 3 is outside axis 1 of [2,3]; it must be from -3 to "
                              "2");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(isnan(mlc_item_at(x, mlc_dims2(-3, 0))));
    CHECK_STR(mlc_error(ctx), "item_at: index -3 is outside axis 0 of [2,3]; it must be from -2 to "
                              "1");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
    CHECK(isnan(mlc_item_at(mlc_zeros(ctx, MLC_F32, mlc_dims2(0, 3)), mlc_dims2(0, 0))));
    CHECK_STR(mlc_error(ctx), "item_at: index 0 is outside axis 0 of [0,3], which is empty");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

TEST(tensor, shape_of_keeps_the_last_four_texts)
{
    mlc_ctx    *ctx = test_ctx();
    const char *text[5];
    mlc_dims    most = mlc_dims4(1, 2, 3, 4);
    char        line[80];
    for (int i = 0; i < 5; i++) text[i] = mlc_shape_of(mlc_zeros(ctx, MLC_U8, mlc_dims2(i, 3)));
    CHECK_STR(text[1], "[1,3]");
    CHECK_STR(text[4], "[4,3]");
    CHECK(text[4] == text[0] && text[1] != text[2]);
    snprintf(line, sizeof line, "%s and %s", mlc_shape_of(mlc_zeros(ctx, MLC_U8, mlc_dims0())),
             mlc_shape_of(mlc_zeros(ctx, MLC_U8, most)));
    CHECK_STR(line, "[] and [1,2,3,4]");
    CHECK_STR(mlc_shape_of(NULL), "NULL");
    CHECK_OK(ctx);
}

TEST(tensor, queries_accept_anything)
{
    char        text[6], big[64];
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims3(4, 5, 6));
    CHECK_EQ(mlc_dim(x, 0), 4);
    CHECK_EQ(mlc_dim(x, -1), 6);
    CHECK_EQ(mlc_dim(x, 3), 0);
    CHECK_EQ(mlc_dim(x, -4), 0);
    CHECK_EQ(mlc_dim(NULL, 0), 0);
    CHECK_EQ(mlc_numel(x), 120);
    CHECK_EQ(mlc_numel(NULL), 0);
    CHECK(!mlc_is_contiguous(NULL));
    CHECK_STR(mlc_shape_text(x, big, sizeof big), "[4,5,6]");
    CHECK_STR(mlc_shape_text(x, text, sizeof text), "[4,5,");
    CHECK(mlc_shape_text(NULL, big, sizeof big) != NULL);
    CHECK_OK(ctx);
}

TEST(tensor, tensors_of_two_contexts_do_not_mix)
{
    mlc_ctx    *ctx = test_ctx(), *other = test_ctx();
    mlc_tensor *a = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
    mlc_tensor *b = mlc_zeros(other, MLC_F32, mlc_dims1(2));
    CHECK(mlc_add(a, b) == NULL);
    CHECK_HAS(mlc_error(ctx), "another context");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_copy_into(a, b), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
}
