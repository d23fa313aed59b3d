/* test_include.c -- the header after <stdio.h>, twice, without the implementation: it is linked
 * from another object, so this is the second translation unit */
#include <stdio.h>
#include "../mlcore.h"
#include "../mlcore.h"
#include "mlc_test.h"

TEST(include, header_and_object_are_of_one_version)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", MLC_VERSION_MAJOR, MLC_VERSION_MINOR,
             MLC_VERSION_PATCH);
    CHECK_STR(MLC_VERSION_STRING, text);
    CHECK_STR(mlc_version(), MLC_VERSION_STRING);
}

TEST(include, names_that_went_with_0_3_are_free_for_programs)
{
    int names = 0;
#ifdef mlc_linear_desc
    names++;
#endif
#ifdef mlc_linear_desc_make
    names++;
#endif
#ifdef mlc_batch_norm_desc
    names++;
#endif
#ifdef mlc_sklinear_desc
    names++;
#endif
#ifdef mlc_sklinear_desc_make
    names++;
#endif
#ifdef mlc_skconv_desc
    names++;
#endif
#ifdef mlc_skconv_desc_make
    names++;
#endif
    CHECK_EQ(names, 0);
    CHECK(MLC_VERSION_MAJOR > 0 || MLC_VERSION_MINOR >= 3);
}

TEST(include, dims_hold_what_they_are_given)
{
    static const int64_t five[5] = {1, 2, 3, 4, 5};
    mlc_dims d = mlc_dims4(7, 8, 9, 10);
    CHECK_EQ(mlc_dims0().n, 0);
    CHECK(mlc_dims1(3).n == 1 && mlc_dims1(3).v[0] == 3);
    CHECK(mlc_dims2(3, 4).n == 2 && mlc_dims2(3, 4).v[1] == 4);
    CHECK(mlc_dims3(3, 4, 5).n == 3 && mlc_dims3(3, 4, 5).v[2] == 5);
    CHECK(d.n == 4 && d.v[0] == 7 && d.v[3] == 10);
    d = mlc_dims_of(5, five);
    CHECK(d.n == 5 && d.v[4] == 5);
}
