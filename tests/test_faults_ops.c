/* test_faults_ops.c -- memory runs out in operations, losses, hooks */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ew_table.h"
#include "faults.h"

/* ---- elementwise ---------------------------------------------------------------------------- */

#define EW_CASES1(name, ...) UNARY(mlc_##name) UNARY(mlc_##name##_)
#define EW_CASES2(name, ...) BINARY(mlc_##name) BINARY(mlc_##name##_)
EW_UNARY(EW_CASES1, EW_CASES1, EW_CASES1)
EW_BINARY(EW_CASES2, EW_CASES2)

UNARY(mlc_isnan)      UNARY(mlc_isinf)       UNARY(mlc_isfinite)

BINARY(mlc_eq)        BINARY(mlc_ne)         BINARY(mlc_lt)        BINARY(mlc_le)
BINARY(mlc_gt)        BINARY(mlc_ge)         BINARY(mlc_copy_)

SCALAR(mlc_add_scalar)  SCALAR(mlc_add_scalar_)  SCALAR(mlc_mul_scalar)  SCALAR(mlc_mul_scalar_)
SCALAR(mlc_div_scalar)  SCALAR(mlc_div_scalar_)  SCALAR(mlc_pow_scalar)  SCALAR(mlc_pow_scalar_)
SCALAR(mlc_sub_scalar)  SCALAR(mlc_sub_scalar_)
SCALAR(mlc_floor_divide_scalar) SCALAR(mlc_floor_divide_scalar_)
SCALAR(mlc_remainder_scalar)    SCALAR(mlc_remainder_scalar_)
SCALAR(mlc_rsub_scalar) SCALAR(mlc_rsub_scalar_) SCALAR(mlc_elu)         SCALAR(mlc_elu_)
SCALAR(mlc_celu)        SCALAR(mlc_celu_)        SCALAR(mlc_leaky_relu)
SCALAR(mlc_eq_scalar)   SCALAR(mlc_ne_scalar)    SCALAR(mlc_lt_scalar)   SCALAR(mlc_le_scalar)
SCALAR(mlc_gt_scalar)   SCALAR(mlc_ge_scalar)    SCALAR(mlc_fill_)

CASE(mlc_clamp, mlc_clamp(w->x, 0.3, 0.6))
CASE(mlc_clamp_, mlc_clamp_(w->x, 0.3, 0.6))
CASE(mlc_leaky_relu_, mlc_leaky_relu_(w->x, -0.5))
CASE(mlc_prelu, mlc_prelu(w->x, mlc_select(w->y, 0, 1)))
CASE(mlc_glu, mlc_glu(w->x, 1))
CASE(mlc_zero_, mlc_zero_(w->x))
CASE(mlc_where, mlc_where(w->mask, w->x, w->y))
CASE(mlc_masked_fill, mlc_masked_fill(w->x, w->mask, 2))
CASE(mlc_masked_fill_, mlc_masked_fill_(w->x, w->mask, 2))
CASE(mlc_logical_and, mlc_logical_and(w->mask, w->mask2))
CASE(mlc_logical_or, mlc_logical_or(w->mask, w->mask2))
CASE(mlc_logical_xor, mlc_logical_xor(w->mask, w->mask2))
CASE(mlc_logical_not, mlc_logical_not(w->mask))
CASE(mlc_dropout, mlc_dropout(w->x, 0.5))

/* ---- reductions, products, indices ---------------------------------------------------------- */

CASE(mlc_sum, mlc_sum(w->x, mlc_dims1(0), false))
CASE(mlc_sum_all, mlc_sum_all(w->x))
CASE(mlc_mean_all, mlc_mean_all(w->x))
CASE(mlc_mean, mlc_mean(w->x, mlc_dims1(-1), true))
CASE(mlc_max, mlc_max(w->x, mlc_dims0(), false))
CASE(mlc_prod, mlc_prod(w->x, mlc_dims1(1), false))
CASE(mlc_min, mlc_min(w->x, mlc_dims1(0), true))
CASE(mlc_any, mlc_any(w->x, mlc_dims1(0), false))
CASE(mlc_all, mlc_all(w->x, mlc_dims0(), false))
CASE(mlc_var, mlc_var(w->x, mlc_dims1(1), 1, false))
CASE(mlc_std, mlc_std(w->x, mlc_dims0(), 0, true))
CASE(mlc_norm, mlc_norm(w->x, 2.5, mlc_dims1(1), false))
CASE(mlc_logsumexp, mlc_logsumexp(w->x, mlc_dims1(1), false))
CASE(mlc_argmax, mlc_argmax(w->x, 1, false))
CASE(mlc_argmin, mlc_argmin(w->x, 0, false))
CASE(mlc_cumsum, mlc_cumsum(w->x, 0))
CASE(mlc_cumprod, mlc_cumprod(w->x, 1))
CASE(mlc_softmax, mlc_softmax(w->x, 1))
CASE(mlc_log_softmax, mlc_log_softmax(mlc_transpose(w->x, 0, 1), 1))
CASE(mlc_layer_norm, mlc_layer_norm(w->x, mlc_select(w->y, 0, 1),
                                    mlc_select(mlc_transpose(w->x, 0, 1), 1, 0), 1e-5))
CASE(mlc_rms_norm, mlc_rms_norm(w->x, mlc_select(w->y, 0, 1), 1e-5))

CASE(mlc_matmul, mlc_matmul(w->x, w->w))
CASE(mlc_linear, mlc_linear(w->x, w->y, NULL))
CASE(mlc_conv, mlc_conv(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->m, 2), NULL, NULL))
CASE(mlc_conv_transpose, mlc_conv_transpose(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->m, 2), NULL,
                                            NULL))

DO(mlc_max_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    return keep(w, mlc_max_pool(mlc_unsqueeze(w->x, 0), &d));
}

DO(mlc_avg_pool)
{
    mlc_pool_desc d = mlc_pool_desc_make(2);
    return keep(w, mlc_avg_pool(mlc_unsqueeze(w->x, 0), &d));
}

CASE(mlc_adaptive_max_pool, mlc_adaptive_max_pool(mlc_unsqueeze(w->x, 0), mlc_dims1(2)))
CASE(mlc_adaptive_avg_pool, mlc_adaptive_avg_pool(mlc_unsqueeze(w->x, 0), mlc_dims1(2)))
CASE(mlc_batch_norm, mlc_batch_norm(w->x, NULL, NULL, w->v, NULL, true, 0.1, 1e-5))
CASE(mlc_group_norm, mlc_group_norm(w->x, 2, w->v, NULL, 1e-5))
CASE(mlc_instance_norm, mlc_instance_norm(mlc_unsqueeze(w->x, 0), NULL, NULL, 1e-5))
CASE(mlc_interpolate,
     mlc_interpolate(mlc_unsqueeze(w->x, 0), mlc_dims1(5), MLC_INTERPOLATE_LINEAR))
CASE(mlc_pixel_shuffle, mlc_pixel_shuffle(mlc_reshape(w->x, mlc_dims4(1, 4, 3, 1)), 2))
CASE(mlc_pixel_unshuffle, mlc_pixel_unshuffle(mlc_reshape(w->x, mlc_dims4(1, 1, 6, 2)), 2))
CASE(mlc_channels_last, mlc_channels_last(mlc_unsqueeze(w->x, 0)))
CASE(mlc_outer, mlc_outer(w->v, mlc_reshape(w->x, mlc_dims1(12))))
CASE(mlc_dot, mlc_dot(w->v, mlc_select(w->x, 0, 1)))

DO(mlc_linear_ex)
{
    mlc_epilogue e = {MLC_ACT_GELU, 0.5, NULL};
    e.residual = mlc_matmul(w->x, mlc_transpose(w->y, 0, 1));
    return keep(w, mlc_linear_ex(w->x, w->y, mlc_select(w->m, 0, 0), &e));
}

DO(mlc_einsum)
{
    mlc_tensor *const in[3] = {w->x, w->w, w->v};
    return keep(w, mlc_einsum("ij,jk,j->ik", in, 3));
}

DO(mlc_concat)
{
    mlc_tensor *const in[2] = {w->x, w->y};
    return keep(w, mlc_concat(in, 2, 1));
}

DO(mlc_stack)
{
    mlc_tensor *const in[2] = {w->x, w->y};
    return keep(w, mlc_stack(in, 2, 1));
}

DO(mlc_split)
{
    mlc_tensor      *out[2] = {NULL, NULL};
    const mlc_status st = mlc_split(w->x, 2, 1, out, 2);
    CHECK_EQ(out[0] != NULL, st == MLC_OK);
    CHECK_EQ(out[1] != NULL, st == MLC_OK);
    return st != MLC_OK ? st : first_of(keep(w, out[0]), keep(w, out[1]));
}

DO(mlc_chunk)
{
    mlc_tensor   *out[2] = {NULL, NULL};
    const int32_t n = mlc_chunk(w->x, 2, 0, out);
    if (n == 0) {
        CHECK(out[0] == NULL && out[1] == NULL);
        return mlc_ctx_status(w->ctx);
    }
    CHECK_EQ(n, 2);
    return first_of(keep(w, out[1]), keep(w, out[0]));
}

DO(mlc_meshgrid)
{
    mlc_tensor *const in[2] = {w->v, mlc_select(w->x, 0, 0)};
    mlc_tensor       *out[2] = {NULL, NULL};
    const mlc_status  st = in[1] ? mlc_meshgrid(in, 2, out) : mlc_ctx_status(w->ctx);
    CHECK_EQ(out[0] != NULL, st == MLC_OK);
    CHECK_EQ(out[1] != NULL, st == MLC_OK);
    return st != MLC_OK ? st : first_of(keep(w, out[1]), keep(w, out[0]));
}

CASE(mlc_tile, mlc_tile(w->x, mlc_dims2(2, 1)))
CASE(mlc_repeat, mlc_repeat(w->x, 3, 1))
CASE(mlc_flip, mlc_flip(w->x, mlc_dims0()))
CASE(mlc_roll, mlc_roll(w->x, 1, 1))
CASE(mlc_pad, mlc_pad(w->x, mlc_dims2(1, 0), mlc_dims2(0, 2), MLC_PAD_REFLECT, 0))
CASE(mlc_diag, mlc_diag(w->v, 1))
CASE(mlc_gather, mlc_gather(w->x, 0, w->i))
CASE(mlc_scatter, mlc_scatter(w->x, 0, w->i, w->y))
CASE(mlc_scatter_, mlc_scatter_(w->x, 0, w->i, w->y))
CASE(mlc_scatter_add, mlc_scatter_add(w->x, 0, w->i, w->y))
CASE(mlc_scatter_add_, mlc_scatter_add_(w->x, 0, w->i, w->y))
CASE(mlc_index_select, mlc_index_select(w->x, 1, w->rows))
CASE(mlc_take, mlc_take(w->x, w->i))
CASE(mlc_embedding, mlc_embedding(w->i, w->x))

DO(mlc_embedding_ex)
{
    mlc_embedding_desc d = mlc_embedding_desc_make();
    d.has_padding_index = true;
    d.max_norm = 0.5;
    mlc_tensor *table = mlc_copy(mlc_detach(w->x));
    return keep(w, mlc_embedding_ex(w->i, table, &d));
}

CASE(mlc_embedding_bag, mlc_embedding_bag(w->rows, mlc_zeros(w->ctx, MLC_I64, mlc_dims1(2)), w->x))

DO(mlc_embedding_bag_ex)
{
    mlc_embedding_bag_desc d = mlc_embedding_bag_desc_make();
    d.reduction = MLC_REDUCTION_SUM;
    d.weights = w->y;
    return keep(w, mlc_embedding_bag_ex(w->i, NULL, w->x, &d));
}

DO(mlc_rotary)
{
    mlc_rotary_desc d = mlc_rotary_desc_make();
    d.dims = 2;
    return keep(w, mlc_rotary(w->x, w->labels, &d));
}

CASE(mlc_rotary_table, mlc_rotary_table(w->ctx, NULL, 3, 4, NULL))
CASE(mlc_sinusoidal, mlc_sinusoidal(w->ctx, 3, 4))
CASE(mlc_alibi_slopes, mlc_alibi_slopes(w->ctx, 6))
CASE(mlc_masked_select, mlc_masked_select(w->x, w->mask))
CASE(mlc_nonzero, mlc_nonzero(w->mask))
CASE(mlc_one_hot, mlc_one_hot(w->rows, 3))
CASE(mlc_tril, mlc_tril(w->x, 0))
CASE(mlc_triu, mlc_triu(w->x, 1))
CASE(mlc_argsort, mlc_argsort(w->x, 1, false))

DO(mlc_sort)
{
    mlc_tensor *index = NULL, *y = mlc_sort(w->x, 0, true, &index);
    CHECK_EQ(y != NULL, index != NULL);
    return y == NULL ? made(w, y) : first_of(keep(w, y), keep(w, index));
}

DO(mlc_topk)
{
    mlc_tensor *index = NULL, *y = mlc_topk(w->x, 2, 1, true, &index);
    CHECK_EQ(y != NULL, index != NULL);
    return y == NULL ? made(w, y) : first_of(keep(w, y), keep(w, index));
}

/* ---- linear algebra ------------------------------------------------------------------------- */

/* A device refuses: another operation then. */
#define HOST_CASE(name, call) CASE(name, test_on_host() ? (call) : mlc_neg(w->d))

HOST_CASE(mlc_linalg_cholesky, mlc_linalg_cholesky(mlc_eye(w->ctx, MLC_F64, 40, 40), true))
HOST_CASE(mlc_linalg_solve_triangular, mlc_linalg_solve_triangular(w->d, w->d, true, true, true))
HOST_CASE(mlc_linalg_solve, mlc_linalg_solve(mlc_add(w->d, mlc_eye(w->ctx, MLC_F64, 2, 2)), w->d))
HOST_CASE(mlc_linalg_inv, mlc_linalg_inv(mlc_add(w->d, mlc_eye(w->ctx, MLC_F64, 2, 2))))
HOST_CASE(mlc_linalg_det, mlc_linalg_det(w->d))
HOST_CASE(mlc_linalg_lstsq, mlc_linalg_lstsq(w->x, mlc_slice(w->y, 1, 0, 2, 1), 0.1))

DO(mlc_linalg_qr)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_tensor *r = NULL, *q = mlc_linalg_qr(mlc_eye(w->ctx, MLC_F32, 50, 40), &r);
    CHECK_EQ(q != NULL, r != NULL);
    return q == NULL ? made(w, q) : first_of(keep(w, q), keep(w, r));
}

DO(mlc_linalg_lu)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_tensor *u = NULL, *p = NULL, *l = mlc_linalg_lu(mlc_eye(w->ctx, MLC_F32, 50, 40), &u, &p);
    CHECK(l ? u && p : !u && !p);
    return l == NULL ? made(w, l) : first_of(keep(w, l), keep(w, u));
}

DO(mlc_linalg_slogdet)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_tensor *y = NULL, *sign = mlc_linalg_slogdet(mlc_eye(w->ctx, MLC_F64, 3, 3), &y);
    CHECK_EQ(sign != NULL, y != NULL);
    return sign == NULL ? made(w, sign) : first_of(keep(w, sign), keep(w, y));
}

DO(mlc_linalg_eigh)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_tensor *v = NULL, *e = mlc_linalg_eigh(w->d, &v);
    CHECK_EQ(e != NULL, v != NULL);
    return e == NULL ? made(w, e) : first_of(keep(w, e), keep(w, v));
}

DO(mlc_linalg_svd)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_tensor *u = NULL, *vh = NULL;
    mlc_tensor *s = mlc_linalg_svd(mlc_eye(w->ctx, MLC_F32, 50, 40), &u, &vh);
    CHECK(s ? u && vh : !u && !vh);
    return s == NULL ? made(w, s) : first_of(keep(w, u), keep(w, vh));
}

DO(mlc_linalg_rsvd)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_linalg_rsvd_desc d = mlc_linalg_rsvd_desc_make(4);
    mlc_tensor *u = NULL, *vh = NULL;
    d.oversample = 2;
    mlc_tensor *s = mlc_linalg_rsvd(mlc_eye(w->ctx, MLC_F32, 50, 40), &d, &u, &vh);
    CHECK(s ? u && vh : !u && !vh);
    return s == NULL ? made(w, s) : first_of(keep(w, u), keep(w, vh));
}

DO(mlc_linalg_cqrrpt)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_tensor *r = NULL, *p = NULL;
    const mlc_linalg_cqrrpt_desc d = mlc_linalg_cqrrpt_desc_make();
    mlc_tensor *q = mlc_linalg_cqrrpt(mlc_eye(w->ctx, MLC_F32, 50, 30), &d, &r, &p);
    CHECK(q ? r && p : !r && !p);
    return q == NULL ? made(w, q) : first_of(keep(w, q), keep(w, r));
}

DO(mlc_linalg_lstsq_sketched)
{
    if (!test_on_host()) return keep(w, mlc_neg(w->d));
    mlc_linalg_lstsq_desc d = mlc_linalg_lstsq_desc_make();
    d.always = true;
    mlc_tensor *a = mlc_eye(w->ctx, MLC_F32, 50, 3);
    return keep(w, mlc_linalg_lstsq_sketched(a, mlc_slice(a, 1, 0, 1, 1), &d));
}

/* ---- tensors -------------------------------------------------------------------------------- */

CASE(mlc_zeros, mlc_zeros(w->ctx, MLC_I8, mlc_dims2(300, 70)))
CASE(mlc_full, mlc_full(w->ctx, MLC_F16, mlc_dims1(33), 1.5))
CASE(mlc_ones, mlc_ones(w->ctx, MLC_BF16, mlc_dims1(33)))
CASE(mlc_arange, mlc_arange(w->ctx, MLC_I64, 0, 40, 3))
CASE(mlc_linspace, mlc_linspace(w->ctx, MLC_F64, 0, 1, 11))
CASE(mlc_eye, mlc_eye(w->ctx, MLC_F32, 5, 6))
CASE(mlc_randn, mlc_randn(w->ctx, MLC_F32, mlc_dims1(33)))
CASE(mlc_uniform, mlc_uniform(w->ctx, MLC_F64, mlc_dims1(33), -1, 1))
CASE(mlc_normal, mlc_normal(w->ctx, MLC_F32, mlc_dims1(33), 1, 2))
CASE(mlc_truncated_normal, mlc_truncated_normal(w->ctx, MLC_F32, mlc_dims1(33), 0, 1, -1, 1))
CASE(mlc_bernoulli, mlc_bernoulli(w->ctx, MLC_BOOL, mlc_dims1(33), 0.5))
CASE(mlc_randint, mlc_randint(w->ctx, MLC_I64, mlc_dims1(33), 0, 9))
CASE(mlc_randperm, mlc_randperm(w->ctx, 33))
CASE(mlc_multinomial, mlc_multinomial(mlc_abs(w->x), 1, true))
CASE(mlc_reshape, mlc_reshape(mlc_transpose(w->x, 0, 1), mlc_dims2(2, 6)))
CASE(mlc_flatten, mlc_flatten(w->x, 0))
CASE(mlc_permute, mlc_permute(w->x, mlc_dims2(1, 0)))
CASE(mlc_transpose, mlc_transpose(w->x, 0, 1))
CASE(mlc_slice, mlc_slice(w->x, 1, 0, INT64_MAX, 2))
CASE(mlc_select, mlc_select(w->x, 1, -1))
CASE(mlc_expand, mlc_expand(w->v, mlc_dims3(2, 3, 4)))
CASE(mlc_squeeze, mlc_squeeze(mlc_unsqueeze(w->x, 0), 0))
CASE(mlc_unsqueeze, mlc_unsqueeze(w->x, -1))
CASE(mlc_movedim, mlc_movedim(w->x, 0, 1))
CASE(mlc_unfold, mlc_unfold(w->x, 1, 3, 1))
CASE(mlc_diagonal, mlc_diagonal(w->x, 1))
CASE(mlc_contiguous, mlc_contiguous(mlc_transpose(w->x, 0, 1)))
CASE(mlc_copy, mlc_copy(w->x))
CASE(mlc_detach, mlc_detach(w->x))
CASE(mlc_cast, mlc_cast(w->x, MLC_BF16))
CASE(mlc_keep, mlc_keep(w->x))

DO(mlc_from)
{
    const float data[6] = {1, 2, 3, 4, 5, 6};
    return keep(w, mlc_from(w->ctx, MLC_F32, mlc_dims2(2, 3), data));
}

DO(mlc_wrap)
{
    static float data[6] = {1, 2, 3, 4, 5, 6};
    if (!mlc_ctx_on_host(w->ctx))
        return MLC_OK;
    return keep(w, mlc_wrap(w->ctx, MLC_F32, mlc_dims2(2, 3), NULL, data));
}

DO(mlc_copy_into)
{
    mlc_tensor *t = mlc_zeros(w->ctx, MLC_F32, mlc_dims2(3, 4));
    if (t == NULL)
        return made(w, t);
    return first_of(mlc_copy_into(t, mlc_transpose(w->w, 0, 1)), keep(w, t));
}

DO(mlc_read)
{
    float            got[12];
    const mlc_status st = mlc_read(mlc_transpose(w->w, 0, 1), got, sizeof got);
    if (st == MLC_OK)
        w->text = (uint64_t)(got[0] * 1000) * 1000 + (uint64_t)(got[7] * 1000);
    return st != MLC_ERR_ARG ? st : mlc_ctx_status(w->ctx);      /* NULL in: the first error  */
}

DO(mlc_write)
{
    static const float data[12] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    mlc_tensor        *t = mlc_zeros(w->ctx, MLC_F32, mlc_dims2(4, 3));
    mlc_tensor        *u = mlc_transpose(t, 0, 1);
    if (u == NULL)
        return made(w, u);
    return first_of(mlc_write(u, data, sizeof data), keep(w, t));
}

CASE(mlc_rows, mlc_copy(mlc_rows(w->x, 1, 3)))

DO(mlc_item_at)
{
    const double v = mlc_item_at(w->d, mlc_dims2(1, 0));       /* by stride                    */
    if (isnan(v))
        return mlc_ctx_status(w->ctx);
    w->text = (uint64_t)(v * 1e6);
    return MLC_OK;
}

DO(mlc_shape_of)
{
    const char *text = mlc_shape_of(w->x);
    CHECK_STR(text, mlc_ctx_status(w->ctx) == MLC_OK ? "[3,4]" : "");
    return mlc_ctx_status(w->ctx);
}

DO(mlc_item)
{
    const double v = mlc_item(mlc_sum(w->x, mlc_dims0(), false));
    if (isnan(v))
        return mlc_ctx_status(w->ctx);
    w->text = (uint64_t)(v * 1e6);
    return MLC_OK;
}

/* ---- gradients ------------------------------------------------------------------------------ */

DO(mlc_set_requires_grad)
{
    mlc_tensor *t = mlc_zeros(w->ctx, MLC_F32, mlc_dims1(3));
    if (t == NULL)
        return made(w, t);
    const mlc_status st = mlc_set_requires_grad(t, true);
    return first_of(st, keep(w, mlc_exp(t)));
}

/* A table: it has no context and takes no memory. */
DO(mlc_cpu_rule)
{
    CHECK(mlc_cpu_rule(MLC_RULE_LAMB) != NULL && mlc_cpu_rule(MLC_RULE_COUNT) == NULL);
    return mlc_ctx_status(w->ctx);
}
DO(mlc_cpu_moments)
{
    CHECK(mlc_cpu_moments(MLC_RULE_LION) != NULL && mlc_cpu_moments(MLC_RULE_LAMB) == NULL);
    return mlc_ctx_status(w->ctx);
}

DO(mlc_backward)
{
    mlc_tensor *y = mlc_matmul(mlc_tanh(w->leaf_x), w->w);
    mlc_tensor *loss = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
    return first_of(made(w, loss), loss ? mlc_backward(loss) : MLC_OK);
}

DO(mlc_backward_from)
{
    mlc_tensor *y = mlc_mul(w->leaf_x, mlc_exp(w->leaf_y));
    return first_of(made(w, y), y ? mlc_backward_from(y, w->y) : MLC_OK);
}

DO(mlc_grad)
{
    mlc_tensor *y = mlc_sum(mlc_square(w->leaf_x), mlc_dims0(), false);
    if (y == NULL || mlc_backward(y) != MLC_OK)
        return mlc_ctx_status(w->ctx);
    return keep(w, mlc_grad(w->leaf_x));
}

static mlc_status twice_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_mul_scalar(in[0], 2);
    return *out ? MLC_OK : mlc_ctx_status(in[0]->ctx);
}

static mlc_status twice_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                 mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    (void)user; (void)n_in; (void)out; (void)need;
    dx[0] = mlc_mul_scalar(dy, 2);
    return dx[0] ? MLC_OK : mlc_ctx_status(in[0]->ctx);
}

static const mlc_custom_op TWICE = {"twice", twice_forward, twice_backward};

CASE(mlc_custom, mlc_custom(&TWICE, NULL, &w->x, 1))

static mlc_tensor *squares(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)user; (void)n_in;
    return mlc_sum(mlc_square(in[0]), mlc_dims0(), false);
}

DO(mlc_gradcheck)
{
    mlc_gradcheck_report report;
    memset(&report, 0, sizeof report);
    const mlc_status st = mlc_gradcheck(squares, NULL, &w->d, 1, NULL, &report);
    if (st == MLC_OK)
        CHECK(report.ok);
    return st;
}

DO(mlc_anomaly)
{
    mlc_anomaly(w->ctx, true);
    mlc_tensor *y = mlc_exp(mlc_sin(w->leaf_x));
    mlc_status  st = made(w, y);
    if (y)
        st = mlc_backward_from(y, NULL);
    mlc_anomaly(w->ctx, false);
    return st;
}

DO(mlc_no_grad_begin)
{
    mlc_no_grad_begin(w->ctx);
    mlc_tensor *y = mlc_exp(w->leaf_x);
    mlc_no_grad_end(w->ctx);
    return keep(w, y);
}

/* ---- losses, scores ------------------------------------------------------------------------- */

BINARY(mlc_mse_loss)
CASE(mlc_cross_entropy, mlc_cross_entropy(w->x, w->labels))

DO(mlc_cross_entropy_ex)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    d.label_smoothing = 0.1;
    d.reduction = MLC_REDUCTION_NONE;
    d.weight = w->v;
    return first_of(keep(w, mlc_cross_entropy_ex(w->x, w->labels, &d)),
                    keep(w, mlc_cross_entropy_ex(w->x, w->y, &d)));
}

/* A loss of a desc d, which `made` declares and `set` changes.                                 */
#define LOSS(name, made, set, ...) \
    DO(name) \
    { \
        made; \
        set; \
        return keep(w, name(__VA_ARGS__, &d)); \
    }

BINARY(mlc_l1_loss)
BINARY(mlc_smooth_l1_loss)
BINARY(mlc_huber_loss)
BINARY(mlc_bce_loss)
BINARY(mlc_bce_with_logits)
BINARY(mlc_focal_loss)
BINARY(mlc_kl_div)
BINARY(mlc_hinge_loss)
BINARY(mlc_hinge_embedding_loss)
LOSS(mlc_mse_loss_ex, mlc_loss_desc d = mlc_loss_desc_make(),
     d.reduction = MLC_REDUCTION_NONE, w->x, w->y)
LOSS(mlc_l1_loss_ex, mlc_loss_desc d = mlc_loss_desc_make(),
     d.reduction = MLC_REDUCTION_SUM, w->x, w->y)
LOSS(mlc_smooth_l1_loss_ex, mlc_smooth_l1_desc d = mlc_smooth_l1_desc_make(),
     d.beta = 0.5, w->x, w->y)
LOSS(mlc_huber_loss_ex, mlc_huber_desc d = mlc_huber_desc_make(),
     d.reduction = MLC_REDUCTION_BATCHMEAN, w->x, w->y)
LOSS(mlc_bce_loss_ex, mlc_bce_desc d = mlc_bce_desc_make(), d.weight = w->v, w->x, w->y)
LOSS(mlc_bce_with_logits_ex, mlc_bce_desc d = mlc_bce_desc_make(), d.weight = w->v;
     d.pos_weight = w->y, w->x, w->y)
LOSS(mlc_focal_loss_ex, mlc_focal_desc d = mlc_focal_desc_make(), d.gamma = 3, w->x, w->y)
LOSS(mlc_kl_div_ex, mlc_kl_div_desc d = mlc_kl_div_desc_make(), d.log_target = true;
     d.reduction = MLC_REDUCTION_BATCHMEAN, w->x, w->y)
LOSS(mlc_hinge_loss_ex, mlc_hinge_desc d = mlc_hinge_desc_make(), d.margin = 2, w->x, w->y)
LOSS(mlc_hinge_embedding_loss_ex, mlc_hinge_embedding_desc d = mlc_hinge_embedding_desc_make(),
     d.reduction = MLC_REDUCTION_SUM, w->x, w->y)
CASE(mlc_nll_loss, mlc_nll_loss(mlc_log_softmax(w->x, 1), w->labels))
LOSS(mlc_nll_loss_ex, mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make(),
     d.weight = w->v, mlc_log_softmax(w->x, 1), w->labels)
CASE(mlc_poly1_cross_entropy, mlc_poly1_cross_entropy(w->x, w->labels))

/* Logarithms of probabilities: 2 sequences of 3 steps, 2 classes.                             */
static mlc_tensor *small_paths(world *w)
{
    return mlc_log_softmax(mlc_reshape(w->x, mlc_dims3(2, 3, 2)), 2);
}

static mlc_tensor *ones_of(world *w, int64_t n)
{
    return mlc_cast(mlc_ones(w->ctx, MLC_F32, mlc_dims1(n)), MLC_I64);
}

CASE(mlc_ctc_loss, mlc_ctc_loss(small_paths(w), ones_of(w, 2), ones_of(w, 2), ones_of(w, 2)))

DO(mlc_ctc_loss_ex)
{
    mlc_ctc_desc d = mlc_ctc_desc_make();
    d.reduction = MLC_REDUCTION_NONE;
    d.zero_infinity = d.time_first = true;
    mlc_tensor *x = mlc_transpose(mlc_cast(small_paths(w), MLC_BF16), 0, 1);
    mlc_tensor *y = x ? mlc_reshape(ones_of(w, 4), mlc_dims2(2, 2)) : NULL;
    return y ? keep(w, mlc_ctc_loss_ex(x, y, ones_of(w, 2), ones_of(w, 2), &d)) : made(w, y);
}

DO(mlc_ctc_greedy)
{
    const mlc_ctc_decode_desc d = mlc_ctc_decode_desc_make();
    int64_t           out[6] = {0}, n[2] = {0};
    mlc_tensor       *x = small_paths(w), *in = x ? ones_of(w, 2) : NULL;
    const mlc_status  st = in ? mlc_ctc_greedy(x, in, &d, out, n, NULL) : made(w, in);
    w->text = st == MLC_OK ? (uint64_t)(8 * n[0] + n[1]) : 0;
    return st;
}

DO(mlc_ctc_beam_search)
{
    int64_t          out[6] = {0}, n[2] = {0};
    mlc_tensor      *x = small_paths(w);
    const mlc_status st = x ? mlc_ctc_beam_search(x, NULL, NULL, out, n, NULL) : made(w, x);
    w->text = st == MLC_OK ? (uint64_t)(64 * out[0] + 8 * n[0] + n[1]) : 0;
    return st;
}

LOSS(mlc_poly1_cross_entropy_ex, mlc_poly1_desc d = mlc_poly1_desc_make(),
     d.epsilon = 2, w->x, w->labels)
CASE(mlc_distillation_loss, mlc_distillation_loss(w->x, w->y, w->labels))
LOSS(mlc_distillation_loss_ex, mlc_distillation_desc d = mlc_distillation_desc_make(),
     d.alpha = 1, w->x, w->y, NULL)
CASE(mlc_dice_loss, mlc_dice_loss(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0)))
LOSS(mlc_dice_loss_ex, mlc_dice_desc d = mlc_dice_desc_make(),
     d.squared = true, mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0))
CASE(mlc_tversky_loss, mlc_tversky_loss(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0)))
LOSS(mlc_tversky_loss_ex, mlc_tversky_desc d = mlc_tversky_desc_make(),
     d.reduction = MLC_REDUCTION_NONE, mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->y, 0))
CASE(mlc_triplet_margin_loss, mlc_triplet_margin_loss(w->x, w->y, mlc_exp(w->x)))
LOSS(mlc_triplet_margin_loss_ex, mlc_triplet_margin_desc d = mlc_triplet_margin_desc_make(),
     d.swap = true, w->x, w->y, mlc_exp(w->x))
CASE(mlc_contrastive_loss, mlc_contrastive_loss(w->x, w->y, w->labels))
LOSS(mlc_contrastive_loss_ex, mlc_contrastive_desc d = mlc_contrastive_desc_make(),
     d.margin = 3, w->x, w->y, w->labels)
CASE(mlc_cosine_embedding_loss, mlc_cosine_embedding_loss(w->x, w->y, w->labels))
LOSS(mlc_cosine_embedding_loss_ex, mlc_cosine_embedding_desc d = mlc_cosine_embedding_desc_make(),
     d.margin = -0.5, w->x, w->y, w->labels)
CASE(mlc_multilabel_margin_loss, mlc_multilabel_margin_loss(w->x, w->i))
LOSS(mlc_multilabel_margin_loss_ex, mlc_loss_desc d = mlc_loss_desc_make(),
     d.reduction = MLC_REDUCTION_NONE, w->x, w->i)

DO(mlc_accuracy)
{
    const double v = mlc_accuracy(w->x, w->labels);
    w->text = isnan(v) ? 0 : (uint64_t)(v * 1000);
    return isnan(v) ? mlc_ctx_status(w->ctx) : MLC_OK;
}

/* ---- autocast ------------------------------------------------------------------------------- */

DO(mlc_autocast_begin)
{
    mlc_status  st = mlc_autocast_begin(w->ctx, MLC_BF16);
    mlc_tensor *y = st == MLC_OK ? mlc_forward(w->net, w->x) : NULL;
    if (st != MLC_OK)
        return st;
    mlc_tensor *loss = y != NULL ? mlc_mean(y, mlc_dims0(), false) : NULL;
    st = first_of(made(w, loss), loss != NULL ? mlc_backward(loss) : MLC_OK);
    CHECK_EQ(mlc_autocast_end(w->ctx), MLC_OK);
    return first_of(st, mlc_ctx_status(w->ctx));
}

DO(mlc_autocast_begin_ex)
{
    const mlc_autocast_desc d = mlc_autocast_desc_make(MLC_F16);
    mlc_status              st = mlc_autocast_begin_ex(w->ctx, &d);
    if (st != MLC_OK)
        return st;
    st = keep(w, mlc_forward(w->net, w->x));
    CHECK_EQ(mlc_autocast_end(w->ctx), MLC_OK);
    return st;
}

DO(mlc_autocast_report)
{
    mlc_status st = mlc_autocast_begin(w->ctx, MLC_BF16);
    if (st != MLC_OK)
        return st;
    CHECK_EQ(mlc_autocast_end(w->ctx), MLC_OK);
    return mlc_autocast_report(w->ctx, hash_text, w);
}

/* ---- pieces that run twice ------------------------------------------------------------------ */

static mlc_status twice_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                              mlc_tensor **out, int32_t n_out)
{
    (void)n_in; (void)n_out;
    out[0] = mlc_dropout(mlc_forward((mlc_module *)user, in[0]), 0.5);
    return mlc_ctx_status(ctx);
}

DO(mlc_recompute)
{
    mlc_tensor      *y = NULL;
    const mlc_status st = mlc_recompute(w->ctx, twice_piece, w->net, &w->x, 1, &y, 1);
    CHECK((y != NULL) == (st == MLC_OK));
    CHECK(!mlc_recomputing(w->ctx));
    return first_of(st, y != NULL ? keep(w, y) : MLC_OK);
}

SCENARIO(mlc_recomputing, true) { return mlc_recomputing(w->ctx) ? MLC_ERR_STATE : MLC_OK; }

DO(mlc_nn_recompute)
{
    CHECK(mlc_nn_recompute(w->ctx, w->net) == w->net);
    return keep(w, mlc_forward(w->net, w->x));
}

DO(mlc_module_recompute_budget)
{
    const mlc_status st = mlc_module_recompute_budget(w->net, mlc_dims2(3, 4), 1);
    if (st != MLC_ERR_ARG) return st;
    mlc_error_clear(w->ctx);
    return mlc_module_recompute_budget(w->net, mlc_dims2(3, 4), 1 << 20);
}

DO(mlc_module_recompute)
{
    CHECK_EQ(mlc_module_recompute(w->net, 1), MLC_OK);
    return keep(w, mlc_forward(w->net, w->x));
}

DO(mlc_module_recompute_segments)
{
    CHECK_EQ(mlc_module_recompute_segments(w->net, 2), MLC_OK);
    return keep(w, mlc_forward(w->net, w->x));
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void reads_arguments(void *user, const mlc_op_event *e)
{
    mlc_op_arg a;
    *(int64_t *)user += mlc_op_event_arg(e, 0, &a) && a.i[0] == 1;
}

DO(mlc_hooks_add)
{
    int64_t   axes = 0;
    mlc_hooks h;
    memset(&h, 0, sizeof h);
    h.user = &axes;
    h.op_end = reads_arguments;        /* mlc_op_event_arg                                     */
    const int32_t id = mlc_hooks_add(w->ctx, &h);
    if (id == 0)
        return mlc_ctx_status(w->ctx);
    mlc_status st = keep(w, mlc_softmax(w->x, 1));
    CHECK(st != MLC_OK || axes == 1);
    return first_of(st, mlc_hooks_remove(w->ctx, id));
}

static void counts_operations(void *user, const mlc_op_event *e)
{
    *(int64_t *)user += e->n_out;
}

/* mlc_tape_end, mlc_tape_each: a piece is run, looked at and differentiated on its own tape.   */
DO(mlc_tape_begin)
{
    int64_t    outputs = 0;
    mlc_status st = mlc_tape_begin(w->ctx, true);
    if (st != MLC_OK)
        return st;
    mlc_tensor *y = mlc_mean(mlc_exp(w->x), mlc_dims0(), false);
    st = y ? mlc_tape_each(w->ctx, counts_operations, &outputs) : mlc_ctx_status(w->ctx);
    CHECK(st != MLC_OK || outputs == 2);
    if (st == MLC_OK && mlc_requires_grad(y))
        st = mlc_backward(y);
    return first_of(st, mlc_tape_end(w->ctx));
}
