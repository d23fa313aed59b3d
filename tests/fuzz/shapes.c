/* Random calls on small tensors: shapes, broadcasting, views, indices. Each byte of the input is a
 * choice; every result is read back, and gradients are asked for at the end. */
#include "fuzz.h"

static const uint8_t *at, *end;

static int choice(int n) { return at < end ? *at++ % n : 0; }
static int64_t number(void) { return choice(13) - 3; }

static mlc_dims dims(int most)
{
    int64_t v[MLC_MAX_DIMS];
    const int n = choice(most + 1);
    for (int i = 0; i < n; i++) v[i] = choice(5);
    return mlc_dims_of(n, v);
}

static mlc_dims axes(void)
{
    int64_t v[MLC_MAX_DIMS];
    const int n = choice(4);
    for (int i = 0; i < n; i++) v[i] = choice(7) - 3;
    return mlc_dims_of(n, v);
}

static mlc_tensor *call(mlc_tensor *a, mlc_tensor *b, mlc_tensor *mask)
{
    const int32_t axis = (int32_t)number();
    switch (choice(34)) {
    case 0:  return mlc_add(a, b);
    case 1:  return mlc_mul(a, b);
    case 2:  return mlc_pow(a, b);
    case 3:  return mlc_matmul(a, b);
    case 4:  return mlc_reshape(a, dims(4));
    case 5:  return mlc_permute(a, axes());
    case 6:  return mlc_transpose(a, axis, (int32_t)number());
    case 7:  return mlc_slice(a, axis, number(), number(), number());
    case 8:  return mlc_select(a, axis, number());
    case 9:  return mlc_expand(a, dims(4));
    case 10: return mlc_flatten(a, axis);
    case 11: return mlc_sum(a, axes(), choice(2) == 1);
    case 12: return mlc_mean(a, axes(), choice(2) == 1);
    case 13: return mlc_max(a, axes(), choice(2) == 1);
    case 14: return mlc_where(mask, a, b);
    case 15: return mlc_masked_fill(a, mask, 2);
    case 16: return mlc_minimum(a, b);
    case 17: return mlc_remainder(a, b);
    case 18: return mlc_contiguous(a);
    case 19: return mlc_clamp(a, -1, 1);
    case 20: return mlc_copy_(a, b);
    case 21: return mlc_mul_(a, b);
    case 22: return mlc_exp_(a);
    case 23: return mlc_masked_fill_(a, mask, 1);
    case 24: return mlc_detach(a);
    case 25: return mlc_sin(a);
    case 26: return mlc_dropout(a, 0.5);
    case 27: return mlc_linear(a, b, NULL);
    case 28: return mlc_cast(a, (mlc_dtype)choice(MLC_DTYPE_COUNT));
    case 29: return mlc_fill_(a, 3);
    case 30: return mlc_rsqrt(a);
    case 31: return mlc_add_scalar_(a, 1);
    case 32: return mlc_trunc(a);
    default: return mlc_sub(a, b);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mlc_tensor *pool[8];
    at = data;
    end = data + size;
    fuzz_begin();
    for (int i = 0; i < 8; i++) {
        pool[i] = mlc_uniform(fuzz_ctx, i & 4 ? MLC_F64 : MLC_F32, dims(4), -2, 2);
        if (i & 1) mlc_set_requires_grad(pool[i], true);
    }
    mlc_tensor *last = pool[1];
    for (int n = 0; at < end && n < 40; n++) {
        mlc_tensor *a = pool[choice(8)], *b = pool[choice(8)];
        mlc_tensor *mask = choice(4) ? mlc_lt(b, b) : mlc_zeros(fuzz_ctx, MLC_BOOL, dims(3));
        mlc_tensor *y = call(a, b, mask);
        mlc_error_clear(fuzz_ctx);     /* wrong calls are most of them: go on                  */
        if (!y || mlc_numel(y) > 4096) continue;
        fuzz_read(y);
        pool[choice(8)] = y;
        if (mlc_requires_grad(y)) last = y;
    }
    mlc_backward_from(last, NULL);
    for (int i = 0; i < 8; i++) fuzz_read(mlc_grad(pool[i]));
    mlc_error_clear(fuzz_ctx);
    fuzz_end(size, false);
    return 0;
}
