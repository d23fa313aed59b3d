/* golden.h -- what PyTorch computed (tests/golden, made by make_*goldens.py), found by name
 *
 * The tests run from the root of the repository. Missing files are failures, not skips.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "../mlc_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#  define GOLDEN_FN static __attribute__((unused))
#else
#  define GOLDEN_FN static
#endif

#define GOLDEN_MOST 16384              /* elements of the largest tensor a test reads          */

typedef struct golden_file {
    const mlc_named *list;             /* sorted by name: the loader promises it               */
    int64_t          n;
} golden_file;

/* golden_open: loads a file of tests/golden into the current scope of ctx.                    */
GOLDEN_FN golden_file golden_open(mlc_ctx *ctx, const char *name)
{
    char path[256];
    golden_file f = {NULL, 0};
    snprintf(path, sizeof path, "tests/golden/%s", name);
    CHECK_EQ(mlc_safetensors_load(ctx, path, &f.list, &f.n), MLC_OK);
    CHECK_OK(ctx);
    CHECK(f.n > 0);
    return f;
}

/* golden_find: the tensor of that (printf-formatted) name, or NULL.                           */
MLC_PRINTF(2, 3)
GOLDEN_FN mlc_tensor *golden_find(const golden_file *f, const char *format, ...)
{
    char name[128];
    va_list args;
    int64_t low = 0, high = f->n;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        int     cmp = strcmp(f->list[mid].name, name);
        if (cmp == 0)
            return f->list[mid].tensor;
        if (cmp < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* golden_close: got within atol + rtol |want|; NaN equals NaN, infinities only themselves.    */
GOLDEN_FN bool golden_close(double got, double want, double atol, double rtol)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return got == want;
    return fabs(got - want) <= atol + rtol * fabs(want);
}

/* golden_values: does t hold these n values? Says which element is off, under the label.      */
GOLDEN_FN bool golden_values(mlc_tensor *t, int64_t n, const double *want, double atol,
                             double rtol, const char *label)
{
    static double got[GOLDEN_MOST];
    if (t == NULL || mlc_numel(t) != n || n > GOLDEN_MOST) {
        printf("  %s: %" PRId64 " elements, want %" PRId64 "\n", label, mlc_numel(t), n);
        return false;
    }
    test_read(t, got);
    for (int64_t i = 0; i < n; i++) {
        if (!golden_close(got[i], want[i], atol, rtol)) {
            printf("  %s: element %" PRId64 " is %.17g, want %.17g\n", label, i, got[i], want[i]);
            return false;
        }
    }
    return true;
}

/* golden_same_shape: says so if they differ.                                                  */
GOLDEN_FN bool golden_same_shape(const mlc_tensor *t, const mlc_tensor *want, const char *label)
{
    bool same = t != NULL && want != NULL && t->ndim == want->ndim && t->dtype == want->dtype;
    for (int32_t i = 0; same && i < t->ndim; i++)
        same = t->shape[i] == want->shape[i];
    if (!same) {
        char a[80], b[80];
        printf("  %s: shape %s, want %s\n", label, t ? mlc_shape_text(t, a, sizeof a) : "NULL",
               want ? mlc_shape_text(want, b, sizeof b) : "NULL");
    }
    return same;
}

/* golden_equal: same shape and dtype as want, and values at PyTorch's tolerance of the dtype. */
GOLDEN_FN bool golden_equal(mlc_tensor *t, mlc_tensor *want, const char *label)
{
    static double values[GOLDEN_MOST];
    bool wide = want != NULL && want->dtype != MLC_F32;
    if (!golden_same_shape(t, want, label) || mlc_numel(want) > GOLDEN_MOST)
        return false;
    test_read(want, values);
    return golden_values(t, mlc_numel(want), values, wide ? 1e-7 : 1e-5, wide ? 1e-7 : 1.3e-6,
                         label);
}

/* golden_spread: a number in [-1, 1), a hash of its index; make_resnet_goldens.py has the same. */
GOLDEN_FN double golden_spread(int64_t i, uint32_t stream)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u + stream * 40503u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return h / 2147483648.0 - 1.0;
}

#endif /* GOLDEN_H */
