/* test_errors.c -- wrong calls, their status and the exact text of the error
 *
 * A text names the operation, what it got on both sides, and what to do or what would do. A call
 * that fails changes none of its inputs. First the operations, whose calls are written as text
 * (ops.h says how; `make matrix` wants one of each), then the rest of the library.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "ew_table.h"
#include "files.h"
#include "ops.h"

/* ---- operations ---------------------------------------------------------------------------- */

typedef struct wrong_op {
    const char *name, *call;
    mlc_status  status;
    const char *text;
} wrong_op;

static const wrong_op OPS[] = {
    {"mlc_add", "<f32[2,3] <f32[4,3]", MLC_ERR_SHAPE,
     "add: shapes [2,3] and [4,3] do not broadcast at axis 0: 2 vs 4; sizes must be equal, or "
     "one of them 1"},
    {"mlc_sub", "<f32[2,3] <f32[2]", MLC_ERR_SHAPE,
     "sub: shapes [2,3] and [2] do not broadcast at axis 1: 3 vs 2; sizes must be equal, or one "
     "of them 1"},
    {"mlc_mul", "<f32[2,3,4] <f32[3,3]", MLC_ERR_SHAPE,
     "mul: shapes [2,3,4] and [3,3] do not broadcast at axis 2: 4 vs 3; sizes must be equal, or "
     "one of them 1"},
    {"mlc_pow", "<f32[0] <f32[4]", MLC_ERR_SHAPE,
     "pow: shapes [0] and [4] do not broadcast at axis 0: 0 vs 4; sizes must be equal, or one of "
     "them 1"},
    {"mlc_add_", "<f32[3] <f32[2,3]", MLC_ERR_SHAPE,
     "add_: b [2,3] does not broadcast to [3], which is changed in place; make a new tensor "
     "instead"},
    {"mlc_sub_", "<f32[1,3] <f32[2,3]", MLC_ERR_SHAPE,
     "sub_: b [2,3] does not broadcast to [1,3], which is changed in place; make a new tensor "
     "instead"},
    {"mlc_maximum_", "<f32[] <f32[3]", MLC_ERR_SHAPE,
     "maximum_: b [3] does not broadcast to [], which is changed in place; make a new tensor "
     "instead"},
    {"mlc_atan2_", "<f32[3]E <f32[2]", MLC_ERR_SHAPE,
     "atan2_: b [2] does not broadcast to [2,3], which is changed in place; make a new tensor "
     "instead"},
    {"mlc_hypot_", "<f32[4] <f32[4,1]", MLC_ERR_SHAPE,
     "hypot_: b [4,1] does not broadcast to [4], which is changed in place; make a new tensor "
     "instead"},
    {"mlc_add_scalar", "<bool[2] =1", MLC_ERR_DTYPE,
     "add_scalar: input 1 is bool, not a float, i64 or i32; write mlc_cast(x, MLC_I64)"},
    {"mlc_add_scalar_", "<f32[2]g =1", MLC_ERR_STATE,
     "add_scalar_: [2] is a leaf that requires a gradient; change it under mlc_no_grad_begin, or "
     "a copy of it"},
    {"mlc_mul_scalar", "<u8[2] =2", MLC_ERR_DTYPE,
     "mul_scalar: input 1 is u8, not a float, i64 or i32; write mlc_cast(x, MLC_I64)"},
    {"mlc_mul_scalar_", "<u8[2] =2", MLC_ERR_DTYPE,
     "mul_scalar_: input 1 is u8, not a float, i64 or i32; write mlc_cast(x, MLC_I64)"},
    {"mlc_add_scalar", "<i32[2] =0.5", MLC_ERR_ARG,
     "add_scalar: 0.5 is no whole number of i64, and x is i32; write mlc_cast(x, MLC_F32)"},
    {"mlc_mul_scalar_", "<i64[2] =nan", MLC_ERR_ARG,
     "mul_scalar_: nan is no whole number of i64, and x is i64; write mlc_cast(x, MLC_F32)"},
    {"mlc_sub_scalar", "<i32[2] =0.5", MLC_ERR_ARG,
     "sub_scalar: 0.5 is no whole number of i64, and x is i32; write mlc_cast(x, MLC_F32)"},
    {"mlc_sub_scalar_", "<f32[2]g =1", MLC_ERR_STATE,
     "sub_scalar_: [2] is a leaf that requires a gradient; change it under mlc_no_grad_begin, or "
     "a copy of it"},
    {"mlc_rsub_scalar", "<i64[2] =1e19", MLC_ERR_ARG,
     "rsub_scalar: 1e+19 is no whole number of i64, and x is i64; write mlc_cast(x, MLC_F32)"},
    {"mlc_add_scalar_", "<i64[2]E =1", MLC_ERR_ARG,
     "add_scalar_: [2,2] repeats elements (expand); copy it first"},
    {"mlc_mul", "<i64[3] <i32[3]", MLC_ERR_DTYPE,
     "mul: input 1 is i64, input 2 is i32; cast one of them with mlc_cast"},
    {"mlc_sub_", "<i32[3] <i32[2,3]", MLC_ERR_SHAPE,
     "sub_: b [2,3] does not broadcast to [3], which is changed in place; make a new tensor "
     "instead"},
    {"mlc_neg_", "<i64[2]E", MLC_ERR_ARG, "neg_: [2,2] repeats elements (expand); copy it first"},
    {"mlc_floor_divide", "<i64[2,3] <i64[3]", MLC_ERR_VALUE,
     "floor_divide: a divisor is 0, and integers have no infinity; write another one there, as "
     "mlc_masked_fill does"},
    {"mlc_floor_divide_", "<i32[3] <i32[3]", MLC_ERR_VALUE,
     "floor_divide_: a divisor is 0, and integers have no infinity; write another one there, as "
     "mlc_masked_fill does"},
    {"mlc_remainder", "<i32[3] <i32[3]", MLC_ERR_VALUE,
     "remainder: a divisor is 0, and integers have no infinity; write another one there, as "
     "mlc_masked_fill does"},
    {"mlc_remainder_", "<i64[3] <i64[3]", MLC_ERR_VALUE,
     "remainder_: a divisor is 0, and integers have no infinity; write another one there, as "
     "mlc_masked_fill does"},
    {"mlc_div_scalar", "<i32[2] =2", MLC_ERR_DTYPE,
     "div_scalar: input 1 is i32, not a float; write mlc_cast(x, MLC_F32), or "
     "mlc_floor_divide_scalar, which rounds down"},
    {"mlc_div_scalar_", "<i64[2] =2", MLC_ERR_DTYPE,
     "div_scalar_: input 1 is i64, not a float; write mlc_cast(x, MLC_F32), or "
     "mlc_floor_divide_scalar_, which rounds down"},
    {"mlc_floor_divide_scalar", "<i64[2] =0.5", MLC_ERR_ARG,
     "floor_divide_scalar: 0.5 is no whole number of i64, which x is; write mlc_cast(x, MLC_F32)"},
    {"mlc_floor_divide_scalar", "<i64[2] =0", MLC_ERR_VALUE,
     "floor_divide_scalar: s is 0, and integers have no infinity; write mlc_cast(x, MLC_F32)"},
    {"mlc_floor_divide_scalar_", "<i32[2] =3e9", MLC_ERR_ARG,
     "floor_divide_scalar_: 3e+09 is no whole number of i32, which x is; write mlc_cast(x, "
     "MLC_F32)"},
    {"mlc_floor_divide_scalar_", "<f32[2]g =1", MLC_ERR_STATE,
     "floor_divide_scalar_: [2] is a leaf that requires a gradient; change it under "
     "mlc_no_grad_begin, or a copy of it"},
    {"mlc_remainder_scalar", "<u8[2] =2", MLC_ERR_DTYPE,
     "remainder_scalar: input 1 is u8, not a float, i64 or i32; write mlc_cast(x, MLC_I64)"},
    {"mlc_remainder_scalar_", "<i32[2] =0", MLC_ERR_VALUE,
     "remainder_scalar_: s is 0, and integers have no infinity; write mlc_cast(x, MLC_F32)"},
    {"mlc_clamp", "<u8[4] =0 =1", MLC_ERR_DTYPE,
     "clamp: input 1 is u8, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_clamp_", "<f32[4]E =0 =1", MLC_ERR_ARG,
     "clamp_: [2,4] repeats elements (expand); copy it first"},
    {"mlc_eq", "<f32[2] <f64[2]", MLC_ERR_DTYPE,
     "eq: input 1 is f32, input 2 is f64; cast one of them with mlc_cast"},
    {"mlc_ne", "<f32[2] <f32[3]", MLC_ERR_SHAPE,
     "ne: shapes [2] and [3] do not broadcast at axis 0: 2 vs 3; sizes must be equal, or one of "
     "them 1"},
    {"mlc_lt", "<i64[2] <i32[2]", MLC_ERR_DTYPE,
     "lt: input 1 is i64, input 2 is i32; cast one of them with mlc_cast"},
    {"mlc_le", "<bool[2] <u8[2]", MLC_ERR_DTYPE,
     "le: input 1 is bool, input 2 is u8; cast one of them with mlc_cast"},
    {"mlc_gt", "<f32[2,2] <f32[3]", MLC_ERR_SHAPE,
     "gt: shapes [2,2] and [3] do not broadcast at axis 1: 2 vs 3; sizes must be equal, or one "
     "of them 1"},
    {"mlc_ge", "<f32[2] <null", MLC_ERR_ARG,
     "ge: input 2 is NULL; look at what should have made it"},
    {"mlc_logical_and", "<f32[2] <f32[2]", MLC_ERR_DTYPE,
     "logical_and: input 1 is f32, not bool; write mlc_ne_scalar(x, 0)"},
    {"mlc_logical_or", "<bool[2] <i64[2]", MLC_ERR_DTYPE,
     "logical_or: input 2 is i64, not bool; write mlc_ne_scalar(x, 0)"},
    {"mlc_logical_xor", "<bool[2] <bool[3]", MLC_ERR_SHAPE,
     "logical_xor: shapes [2] and [3] do not broadcast at axis 0: 2 vs 3; sizes must be equal, "
     "or one of them 1"},
    {"mlc_logical_not", "<u8[3]", MLC_ERR_DTYPE,
     "logical_not: input 1 is u8, not bool; write mlc_ne_scalar(x, 0)"},
    {"mlc_where", "<f32[3] <f32[3] <f32[3]", MLC_ERR_DTYPE,
     "where: the mask is f32, not bool; write mlc_ne_scalar(mask, 0)"},
    {"mlc_where", "<bool[3] <f32[3] <f64[3]", MLC_ERR_DTYPE,
     "where: input 2 is f32, input 3 is f64; cast one of them with mlc_cast"},
    {"mlc_where", "<bool[2] <f32[3] <f32[3]", MLC_ERR_SHAPE,
     "where: shapes [2] and [3] do not broadcast at axis 0: 2 vs 3; sizes must be equal, or one "
     "of them 1"},
    {"mlc_where", "<null <f32[3] <f32[3]", MLC_ERR_ARG,
     "where: input 1 is NULL; look at what should have made it"},
    {"mlc_masked_fill", "<f32[3] <u8[3] =0", MLC_ERR_DTYPE,
     "masked_fill: the mask is u8, not bool; write mlc_ne_scalar(mask, 0)"},
    {"mlc_masked_fill", "<f32[3] <bool[4] =0", MLC_ERR_SHAPE,
     "masked_fill: the mask [4] does not fit x [3]; it must broadcast to it"},
    {"mlc_masked_fill", "<f32[3] <bool[2,3] =0", MLC_ERR_SHAPE,
     "masked_fill: the mask [2,3] does not fit x [3]; it must broadcast to it"},
    {"mlc_masked_fill_", "<f32[3]g <bool[3] =0", MLC_ERR_STATE,
     "masked_fill_: [3] is a leaf that requires a gradient; change it under mlc_no_grad_begin, "
     "or a copy of it"},
    {"mlc_masked_fill_", "<f32[3] <bool[2,3] =0", MLC_ERR_SHAPE,
     "masked_fill_: the mask [2,3] does not fit x [3]; it must broadcast to it"},
    {"mlc_fill_", "<f32[3]g =1", MLC_ERR_STATE,
     "fill_: [3] is a leaf that requires a gradient; change it under mlc_no_grad_begin, or a "
     "copy of it"},
    {"mlc_fill_", "<f32[3]E =1", MLC_ERR_ARG,
     "fill_: [2,3] repeats elements (expand); copy it first"},
    {"mlc_zero_", "<f32[3]E", MLC_ERR_ARG,
     "zero_: [2,3] repeats elements (expand); copy it first"},
    {"mlc_copy_", "<f32[3] <f64[3]", MLC_ERR_DTYPE,
     "copy_: x is f32, src f64; cast src first"},
    {"mlc_copy_", "<f32[3] <f32[2,3]", MLC_ERR_SHAPE,
     "copy_: src [2,3] does not fit x [3]; it must broadcast to it"},
    {"mlc_copy_", "<f32[3]E <f32[3]", MLC_ERR_ARG,
     "copy_: [2,3] repeats elements (expand); copy it first"},
    {"mlc_copy_into", "<f32[3] <f64[3]", MLC_ERR_DTYPE,
     "copy_into: dst is f32, src f64; cast src first"},
    {"mlc_copy_into", "<f32[3] <f32[4]", MLC_ERR_SHAPE,
     "copy_into: src [4] does not fit dst [3]; it must broadcast to it"},
    {"mlc_copy_into", "<f32[3] <null", MLC_ERR_ARG,
     "copy_into: src is NULL; look at what should have made it"},
    {"mlc_copy_into", "<f32[3]E <f32[3]", MLC_ERR_ARG,
     "copy_into: dst [2,3] repeats elements (expand); copy it first"},
    {"mlc_dropout", "<f32[3] =1.5", MLC_ERR_ARG,
     "dropout: p is 1.5, not in [0, 1]"},
    {"mlc_dropout", "<i64[3] =0.5", MLC_ERR_DTYPE,
     "dropout: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_sum", "<f32[2,3] #2 #0", MLC_ERR_SHAPE,
     "sum: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_sum", "<f32[2,3] #1,1 #0", MLC_ERR_SHAPE,
     "sum: axis 1 of [2,3] is named twice; name each once"},
    {"mlc_mean", "<f32[2,3] #5 #0", MLC_ERR_SHAPE,
     "mean: [2,3] has no axis 5; its axes are -2 to 1"},
    {"mlc_mean", "<f32[2,3] #0,-2 #0", MLC_ERR_SHAPE,
     "mean: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_mean", "<i64[2,3] #0 #0", MLC_ERR_DTYPE,
     "mean: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_max", "<f32[2,0] #1 #0", MLC_ERR_SHAPE,
     "max: axis 1 of [2,0] is empty, and nothing has no extreme; reduce another axis"},
    {"mlc_max", "<f32[2,3] #2 #0", MLC_ERR_SHAPE,
     "max: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_sum", "<f32[] #1 #0", MLC_ERR_SHAPE,
     "sum: [] has no axis 1; it is a scalar"},
    {"mlc_sum", "<f32[2,3] #4294967296 #0", MLC_ERR_SHAPE,
     "sum: [2,3] has no axis 4294967296; it has 2 axes"},
    {"mlc_prod", "<i64[2,3] #-3 #0", MLC_ERR_SHAPE,
     "prod: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_prod", "<bool[2,3] #1,-1 #1", MLC_ERR_SHAPE,
     "prod: axis 1 of [2,3] is named twice; name each once"},
    {"mlc_max", "<f32[2,3] #0,0 #0", MLC_ERR_SHAPE,
     "max: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_max", "<f32[0] # #0", MLC_ERR_SHAPE,
     "max: axis 0 of [0] is empty, and nothing has no extreme; reduce another axis"},
    {"mlc_min", "<i8[2,0] #1 #1", MLC_ERR_SHAPE,
     "min: axis 1 of [2,0] is empty, and nothing has no extreme; reduce another axis"},
    {"mlc_min", "<f32[2,3] #2 #0", MLC_ERR_SHAPE,
     "min: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_min", "<f32[2,3] #1,1 #0", MLC_ERR_SHAPE,
     "min: axis 1 of [2,3] is named twice; name each once"},
    {"mlc_any", "<bool[4] #1 #0", MLC_ERR_SHAPE,
     "any: [4] has no axis 1; its axes are -1 to 0"},
    {"mlc_any", "<f32[2,3] #0,0 #0", MLC_ERR_SHAPE,
     "any: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_all", "<u8[4] #-2 #0", MLC_ERR_SHAPE,
     "all: [4] has no axis -2; its axes are -1 to 0"},
    {"mlc_all", "<f32[2,3] #-1,1 #0", MLC_ERR_SHAPE,
     "all: axis 1 of [2,3] is named twice; name each once"},
    {"mlc_var", "<i32[2,3] #0 #0 =1", MLC_ERR_DTYPE,
     "var: input 1 is i32, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_var", "<f32[2,3] #0 #0 =nan", MLC_ERR_ARG,
     "var: correction nan is not finite; 1 divides by n - 1, 0 by n"},
    {"mlc_var", "<f32[2,3] #0 #0 =-inf", MLC_ERR_ARG,
     "var: correction -inf is not finite; 1 divides by n - 1, 0 by n"},
    {"mlc_var", "<f32[2,3] #2 #0 =1", MLC_ERR_SHAPE,
     "var: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_var", "<f32[2,3] #0,-2 #0 =1", MLC_ERR_SHAPE,
     "var: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_std", "<i32[2,3] #0 #0 =1", MLC_ERR_DTYPE,
     "std: input 1 is i32, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_std", "<f32[2,3] #0 #0 =nan", MLC_ERR_ARG,
     "std: correction nan is not finite; 1 divides by n - 1, 0 by n"},
    {"mlc_std", "<f32[2,3] #0 #0 =-inf", MLC_ERR_ARG,
     "std: correction -inf is not finite; 1 divides by n - 1, 0 by n"},
    {"mlc_std", "<f32[2,3] #2 #0 =1", MLC_ERR_SHAPE,
     "std: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_std", "<f32[2,3] #0,-2 #0 =1", MLC_ERR_SHAPE,
     "std: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_norm", "<bool[2,3] #0 #0 =2", MLC_ERR_DTYPE,
     "norm: input 1 is bool, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_norm", "<f32[2,3] #0 #0 =nan", MLC_ERR_ARG,
     "norm: the order is NaN; write 2 for the Euclidean norm"},
    {"mlc_norm", "<f32[2,0] #1 #0 =inf", MLC_ERR_SHAPE,
     "norm: axis 1 of [2,0] is empty, and nothing has no extreme; reduce another axis"},
    {"mlc_norm", "<f32[2,0] #1 #0 =-inf", MLC_ERR_SHAPE,
     "norm: axis 1 of [2,0] is empty, and nothing has no extreme; reduce another axis"},
    {"mlc_norm", "<f32[2,0] #1 #0 =-1", MLC_ERR_SHAPE,
     "norm: axis 1 of [2,0] is empty, and nothing has no norm of the negative order -1; reduce "
     "another axis"},
    {"mlc_norm", "<f32[2,3] #-3 #0 =2", MLC_ERR_SHAPE,
     "norm: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_norm", "<f32[2,3] #1,1 #0 =2", MLC_ERR_SHAPE,
     "norm: axis 1 of [2,3] is named twice; name each once"},
    {"mlc_logsumexp", "<i64[2,3] #0 #0", MLC_ERR_DTYPE,
     "logsumexp: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_logsumexp", "<f32[2,3] #2 #0", MLC_ERR_SHAPE,
     "logsumexp: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_logsumexp", "<f32[2,3] #0,0 #0", MLC_ERR_SHAPE,
     "logsumexp: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_argmin", "<i64[0,2] #0", MLC_ERR_SHAPE,
     "argmin: axis 0 of [0,2] is empty, and nothing has no extreme; take another axis"},
    {"mlc_argmin", "<f32[2,3] #-3", MLC_ERR_SHAPE,
     "argmin: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_cumsum", "<f32[2,3] #2", MLC_ERR_SHAPE,
     "cumsum: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_cumsum", "<f32[] #1", MLC_ERR_SHAPE,
     "cumsum: [] has no axis 1; it is a scalar"},
    {"mlc_cumprod", "<u8[2,3] #-3", MLC_ERR_SHAPE,
     "cumprod: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_cumprod", "<f32[] #-2", MLC_ERR_SHAPE,
     "cumprod: [] has no axis -2; it is a scalar"},
    {"mlc_softmax", "<i64[2,3] #0", MLC_ERR_DTYPE,
     "softmax: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_softmax", "<f32[2,3] #2", MLC_ERR_SHAPE,
     "softmax: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_softmax", "<f32[] #1", MLC_ERR_SHAPE,
     "softmax: [] has no axis 1; it is a scalar"},
    {"mlc_log_softmax", "<bool[2,3] #0", MLC_ERR_DTYPE,
     "log_softmax: input 1 is bool, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_log_softmax", "<f32[2,3] #-3", MLC_ERR_SHAPE,
     "log_softmax: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_layer_norm", "<f32[] =0.1", MLC_ERR_SHAPE,
     "layer_norm: x [] is a scalar; it must be [..,n]"},
    {"mlc_layer_norm", "<f32[2,3] <f32[2] =0.1", MLC_ERR_SHAPE,
     "layer_norm: weight must be [3] for x [2,3], it is [2]"},
    {"mlc_layer_norm", "<f32[2,3] <f32[3] <f32[1,3] =0.1", MLC_ERR_SHAPE,
     "layer_norm: bias must be [3] for x [2,3], it is [1,3]"},
    {"mlc_layer_norm", "<f32[2,3] <null <f32[2] =0.1", MLC_ERR_SHAPE,
     "layer_norm: bias must be [3] for x [2,3], it is [2]"},
    {"mlc_layer_norm", "<f32[2,3] =-1", MLC_ERR_ARG,
     "layer_norm: eps is -1; it must be finite and not negative"},
    {"mlc_layer_norm", "<f32[2,3] <f64[3] =0.1", MLC_ERR_DTYPE,
     "layer_norm: input 1 is f32, input 2 is f64; cast one of them with mlc_cast"},
    {"mlc_layer_norm", "<i64[2,3] =0.1", MLC_ERR_DTYPE,
     "layer_norm: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_rms_norm", "<f32[] =0.1", MLC_ERR_SHAPE,
     "rms_norm: x [] is a scalar; it must be [..,n]"},
    {"mlc_rms_norm", "<f32[2,3] <f32[2] =0.1", MLC_ERR_SHAPE,
     "rms_norm: weight must be [3] for x [2,3], it is [2]"},
    {"mlc_rms_norm", "<f32[2,3] =nan", MLC_ERR_ARG,
     "rms_norm: eps is nan; it must be finite and not negative"},
    {"mlc_sort", "<f32[2,3] #2 #0", MLC_ERR_SHAPE,
     "sort: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_argsort", "<f32[2,3] #-3 #0", MLC_ERR_SHAPE,
     "argsort: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_topk", "<f32[2,3] #4 #1 #1", MLC_ERR_SHAPE,
     "topk: k is 4, axis 1 of [2,3] has only 3 elements; k may be at most that"},
    {"mlc_topk", "<f32[2,3] #-1 #1 #1", MLC_ERR_ARG,
     "topk: k is -1; it must not be negative"},
    {"mlc_topk", "<f32[2,3] #1 #2 #1", MLC_ERR_SHAPE,
     "topk: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_matmul", "<f32[2,3] <f32[4,5]", MLC_ERR_SHAPE,
     "matmul: inner sizes differ, a [2,3], b [4,5]: 3 vs 4; a is [..,m,k], b [..,k,n]"},
    {"mlc_matmul", "<f32[] <f32[4]", MLC_ERR_SHAPE,
     "matmul: a scalar has no axes: a [], b [4]; write mlc_mul"},
    {"mlc_matmul", "<f32[2,3,4] <f32[3,4,5]", MLC_ERR_SHAPE,
     "matmul: batch axes of a [2,3,4] and b [3,4,5] do not broadcast: 2 vs 3; sizes must be "
     "equal, or one of them 1"},
    {"mlc_matmul", "<i64[2,2] <i64[2,2]", MLC_ERR_DTYPE,
     "matmul: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_conv", "<f32[2,3] <f32[4,5] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: x [2,3], w [4,5]: x must be [n,c,..] and w [out,c/groups,..] with 1 to 3 more axes"},
    {"mlc_conv", "<f32[1,3,4,4] <f32[4,3,5] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: x [1,3,4,4], w [4,3,5]: x must be [n,c,..] and w [out,c/groups,..] with 1 to 3 more "
     "axes"},
    {"mlc_conv", "<f32[2,3,4] <f32[4,2,3] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: x [2,3,4] has 3 channels, w [4,2,3] with 1 groups takes 2; channels must be multiples "
     "of groups"},
    {"mlc_conv", "<f32[2,4,4] <f32[3,2,3] #1 #0 #1 #2,0,0", MLC_ERR_SHAPE,
     "conv: x [2,4,4] has 4 channels, w [3,2,3] with 2 groups takes 4; channels must be multiples "
     "of groups"},
    {"mlc_conv", "<f32[2,3,4] <f32[4,3,3] <f32[3] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: b must be [4] for w [4,3,3], it is [3]"},
    {"mlc_conv", "<f32[2,3,4] <f32[4,3,5] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: the kernel of w [4,3,5] is larger than x [2,3,4] with its padding"},
    {"mlc_conv", "<f32[0,3,4] <f32[4,3,5] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: the kernel of w [4,3,5] is larger than x [0,3,4] with its padding"},
    {"mlc_conv", "<f32[2,0,4] <f32[4,0,5] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: the kernel of w [4,0,5] is larger than x [2,0,4] with its padding"},
    {"mlc_conv", "<f32[2,3,4] <f32[4,3,0] #1 #0 #1 #1,0,0", MLC_ERR_SHAPE,
     "conv: w [4,3,0] has no taps"},
    {"mlc_conv", "<f32[2,3,4] <f64[4,3,3] #1 #0 #1 #1,0,0", MLC_ERR_DTYPE,
     "conv: input 1 is f32, input 2 is f64; cast one of them with mlc_cast"},
    {"mlc_conv", "<bf16[2,3,4] <f16[4,3,3] #1 #0 #1 #1,0,0", MLC_ERR_DTYPE,
     "conv: input 1 is bf16, input 2 is f16; cast one of them with mlc_cast"},
    {"mlc_conv", "<i64[2,3,4] <i64[4,3,3] #1 #0 #1 #1,0,0", MLC_ERR_DTYPE,
     "conv: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_conv", "<f32[2,3,4] <f32[4,3,3] #-1 #0 #1 #1,0,0", MLC_ERR_ARG,
     "conv: stride -1, dilation 1 and groups 1 must be positive, padding 0 and output_padding 0 "
     "not negative, all below 2^30, output_padding below stride or dilation and only of a "
     "transposed one, act one of mlc_act; start from mlc_conv_desc_make()"},
    {"mlc_conv", "<f32[2,3,4] <f32[4,3,3] #2 #0 #1 #1,1,0", MLC_ERR_ARG,
     "conv: same or causal asks for stride 1 and no padding, not transposed, not both"},
    {"mlc_conv", "<null <f32[4,3,3] #2 #0 #1 #1,1,0", MLC_ERR_ARG,
     "conv: input 1 is NULL; look at what should have made it"},
    {"mlc_conv_transpose", "<f32[2,3,4] <f32[4,3,3] #1 #0 #1 #1,0", MLC_ERR_SHAPE,
     "conv_transpose: x [2,3,4] has 3 channels, w [4,3,3] with 1 groups takes 4; channels must be "
     "multiples of groups"},
    {"mlc_conv_transpose", "<f32[2,3,4] <f32[3,2,3] #1 #0 #1 #1,1", MLC_ERR_ARG,
     "conv_transpose: stride 1, dilation 1 and groups 1 must be positive, padding 0 and "
     "output_padding 1 not negative, all below 2^30, output_padding below stride or dilation and "
     "only of a transposed one, act one of mlc_act; start from mlc_conv_desc_make()"},
    {"mlc_max_pool", "<f32[2,3] #2 #2 #0 #1,0", MLC_ERR_SHAPE,
     "max_pool: x is [2,3]; it must be [n,c,..] with 1 to 3 more axes"},
    {"mlc_max_pool", "<f32[2,3,4] #5 #2 #0 #1,0", MLC_ERR_SHAPE,
     "max_pool: the window of 5 is larger than axis 2 of x [2,3,4] with its padding"},
    {"mlc_max_pool", "<f32[0,3,4] #5 #2 #0 #1,0", MLC_ERR_SHAPE,
     "max_pool: the window of 5 is larger than axis 2 of x [0,3,4] with its padding"},
    {"mlc_max_pool", "<f32[2,3,4] #2 #2 #2 #1,0", MLC_ERR_ARG,
     "max_pool: kernel 2, stride 2, dilation 1, padding 2 of axis 2: all but padding must be "
     "positive and below 2^30, and that at most half the kernel; dilation is of max_pool"},
    {"mlc_avg_pool", "<f32[2,3,4] #0 #2 #0 #0,0", MLC_ERR_ARG,
     "avg_pool: kernel 0, stride 2, dilation 1, padding 0 of axis 2: all but padding must be "
     "positive and below 2^30, and that at most half the kernel; dilation is of max_pool"},
    {"mlc_avg_pool", "<i64[2,3,4] #2 #2 #0 #0,0", MLC_ERR_DTYPE,
     "avg_pool: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_adaptive_max_pool", "<f32[2,3,4] #2,2", MLC_ERR_SHAPE,
     "adaptive_max_pool: size has 2 numbers for x [2,3,4]; it takes one for each axis after "
     "[n,c]"},
    {"mlc_adaptive_avg_pool", "<f32[2,3,4] #0", MLC_ERR_ARG,
     "adaptive_avg_pool: size 0 of axis 2; it must be positive and below 2^30"},
    {"mlc_adaptive_max_pool", "<f32[1,2,4,4] #2,-1", MLC_ERR_ARG,
     "adaptive_max_pool: size -1 of axis 3; it must be positive and below 2^30"},
    {"mlc_adaptive_avg_pool", "<f32[2,3,0] #2", MLC_ERR_SHAPE,
     "adaptive_avg_pool: axis 2 of x [2,3,0] has no pixels"},
    {"mlc_batch_norm", "<f32[2,3,4] <f32[4] =0.1", MLC_ERR_SHAPE,
     "batch_norm: weight must be [3] for x [2,3,4], it is [4]"},
    {"mlc_group_norm", "<f32[2,3,4] =0.1 =2", MLC_ERR_SHAPE,
     "group_norm: x [2,3,4] has 3 channels, which 2 groups do not divide"},
    {"mlc_group_norm", "<f32[2,3] =0.1 =3", MLC_ERR_SHAPE,
     "group_norm: x [2,3] has one value a group, whose deviation is 0; it takes more"},
    {"mlc_instance_norm", "<f32[2,3,4] <f64[3] =0.1", MLC_ERR_DTYPE,
     "instance_norm: x is f32, weight is f64; it must be f32"},
    {"mlc_instance_norm", "<f32[3] =0.1", MLC_ERR_SHAPE,
     "instance_norm: x is [3]; it must be [n,c,..]"},
    {"mlc_interpolate", "<f32[2,3,4] #2,2 #0", MLC_ERR_SHAPE,
     "interpolate: x is [2,3,4], size has 2 numbers; x must be [n,c,..] with 1 to 3 more axes, "
     "and size have a number for each"},
    {"mlc_interpolate", "<f32[2,3,4] #0 #0", MLC_ERR_SHAPE,
     "interpolate: axis 2 of x [2,3,4] cannot become 0; both must be positive and below "
     "2^30"},
    {"mlc_interpolate", "<f32[2,3,4] #2 #3", MLC_ERR_ARG,
     "interpolate: unknown mode 3; see mlc_interpolation"},
    {"mlc_pixel_shuffle", "<f32[1,6,2,2] #2", MLC_ERR_SHAPE,
     "pixel_shuffle: x is [1,6,2,2], r 2; r must be positive and below 2^15, x [n,c,h,w], c a "
     "multiple of r r"},
    {"mlc_pixel_unshuffle", "<f32[1,2,4,3] #2", MLC_ERR_SHAPE,
     "pixel_unshuffle: x is [1,2,4,3], r 2; r must be positive and below 2^15, x [n,c,h,w], h and "
     "w multiples of r"},
    {"mlc_channels_last", "<f32[3]", MLC_ERR_SHAPE,
     "channels_last: x is [3]; it must be [n,c,..]"},
    {"mlc_linear", "<f32[2,3] <f32[4,5]", MLC_ERR_SHAPE,
     "linear: x [2,3] must end in the in of w [4,5]: 3 vs 5; x is [..,in], w [out,in]"},
    {"mlc_linear", "<f32[2,3] <f32[3]", MLC_ERR_SHAPE,
     "linear: x [2,3], w [3]: x must be [..,in] and w [out,in]"},
    {"mlc_linear", "<f32[2,5] <f32[4,5] <f32[5]", MLC_ERR_SHAPE,
     "linear: b must be [4] for x [2,5] and w [4,5], it is [5]"},
    {"mlc_linear_ex", "<f32[2,3] <f32[4,5] #1", MLC_ERR_SHAPE,
     "linear: x [2,3] must end in the in of w [4,5]: 3 vs 5; x is [..,in], w [out,in]"},
    {"mlc_linear_ex", "<f32[2,5] <f32[4,5] #99", MLC_ERR_ARG,
     "linear: unknown activation 99; see mlc_act"},
    {"mlc_attention", "<f32[2,3,4] <f32[2,3,4] <f32[2,3,4]", MLC_ERR_SHAPE,
     "attention: q [2,3,4], k [2,3,4], v [2,3,4]: they must be [b,h,t,d], [b,hk,s,d], "
     "[b,hk,s,dv]"},
    {"mlc_attention", "<f32[1,4,3,2] <f32[1,3,3,2] <f32[1,3,3,2]", MLC_ERR_SHAPE,
     "attention: the 3 heads of k [1,3,3,2] do not divide the 4 of q [1,4,3,2]"},
    {"mlc_attention", "<f32[1,4,3,2] <f32[1,2,3,2] <f32[1,2,4,2]", MLC_ERR_SHAPE,
     "attention: q [1,4,3,2], k [1,2,3,2], v [1,2,4,2] do not go together; they are [b,h,t,d], "
     "[b,hk,s,d], [b,hk,s,dv]"},
    {"mlc_attention", "<f32[1,1,1,1] <f64[1,1,1,1] <f32[1,1,1,1]", MLC_ERR_DTYPE,
     "attention: q is f32, k f64, v f32; they must be one float: use mlc_cast"},
    {"mlc_attention_ex", "<f32[1,1,1,1] <f32[1,1,1,1] <f32[1,1,1,1] #0 #-1", MLC_ERR_ARG,
     "attention: scale is 0, window -1; scale must be finite, window not negative"},
    {"mlc_attention_ex", "<f32[1,1,2,1] <f32[1,1,2,1] <f32[1,1,2,1] <f32[3] #0 #0", MLC_ERR_SHAPE,
     "attention: the mask [3] does not broadcast to [b,h,t,s] [1,1,2,2]"},
    {"mlc_attention_ex", "<f32[1,1,2,1] <f32[1,1,2,1] <f32[1,1,2,1] <i64[2] #0 #0", MLC_ERR_DTYPE,
     "attention: the mask is i64; it must be bool, f32 or q's dtype, f32"},
    {"mlc_einsum", "<f32[2,3] <f32[4,5] \"ij,jk->ik\"", MLC_ERR_SHAPE,
     "einsum: \"ij,jk->ik\": 'j' is 4 at axis 0 of operand 2, 3 before; a letter has one size"},
    {"mlc_einsum", "<f32[2,3] \"ij,jk->ik\"", MLC_ERR_ARG,
     "einsum: \"ij,jk->ik\": operand 2 at position 4, but there are 1 tensors; give as many"},
    {"mlc_einsum", "<f32[2,3] \"i->i\"", MLC_ERR_SHAPE,
     "einsum: \"i->i\": operand 1 has 1 letters, its tensor is [2,3]; write a letter for each "
     "axis, or '...'"},
    {"mlc_einsum", "<f32[2,3] \"ij->iz\"", MLC_ERR_ARG,
     "einsum: \"ij->iz\": 'z' of the result is in no operand; take a letter of theirs"},
    {"mlc_einsum", "<f32[2,3] \"i2->i\"", MLC_ERR_ARG,
     "einsum: \"i2->i\": '2' at position 2; there are letters, ',', '...' and '->'"},
    {"mlc_einsum", "<i64[2,3] \"ij->i\"", MLC_ERR_DTYPE,
     "einsum: operand 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_einsum", "<f32[2,3] \"...ij...->i\"", MLC_ERR_ARG,
     "einsum: \"...ij...->i\": a second '...' at position 6; a term has one"},
    {"mlc_einsum", "<f32[2,3] \"ij->ij->\"", MLC_ERR_ARG,
     "einsum: \"ij->ij->\": '-' at position 7 follows the result; the equation ends with it"},
    {"mlc_einsum", "<f32[2,3] <f64[3] \"ij,j\"", MLC_ERR_DTYPE,
     "einsum: operand 2 is f64, operand 1 is f32; cast one of them with mlc_cast"},
    {"mlc_einsum", "<f32[2,3] \"ij->ii\"", MLC_ERR_ARG,
     "einsum: \"ij->ii\": 'i' at position 6 is in the result twice; name it once"},
    {"mlc_outer", "<f32[2,3] <f32[3]", MLC_ERR_SHAPE,
     "outer: a [2,3], b [3]; both must be 1-d"},
    {"mlc_outer", "<f32[3] <f64[3]", MLC_ERR_DTYPE,
     "outer: a is f32, b is f64; they must be floats of one dtype, see mlc_cast"},
    {"mlc_dot", "<f32[2] <f32[3]", MLC_ERR_SHAPE,
     "dot: a [2], b [3]; both must be 1-d, of one length"},
    {"mlc_dot", "<f32[2,3] <f32[3]", MLC_ERR_SHAPE,
     "dot: a [2,3], b [3]; both must be 1-d, of one length"},
    {"mlc_concat", "<f32[2,3] <f32[2,4] #0", MLC_ERR_SHAPE,
     "concat: input 1 is [2,3], input 2 is [2,4]; they may differ only at axis 0"},
    {"mlc_concat", "<f32[2,3] <f64[2,3] #0", MLC_ERR_DTYPE,
     "concat: input 1 is f32, input 2 is f64; cast one of them with mlc_cast"},
    {"mlc_concat", "<f32[2,3] <f32[2,3] #2", MLC_ERR_SHAPE,
     "concat: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_concat", "<f32[2,3] <null #0", MLC_ERR_ARG,
     "concat: input 2 is NULL; look at what should have made it"},
    {"mlc_concat", "<f32[] <f32[] #0", MLC_ERR_SHAPE,
     "concat: [] has no axis 0; it is a scalar"},
    {"mlc_stack", "<f32[2,3] <f32[2,4] #0", MLC_ERR_SHAPE,
     "stack: input 1 is [2,3], input 2 is [2,4]; all must have one shape"},
    {"mlc_stack", "<f32[2,3] <f32[2,3] #3", MLC_ERR_SHAPE,
     "stack: [2,3] has no room for a new axis 3; its place must be from -3 to 2, and axes are at "
     "most 8"},
    {"mlc_split", "<f32[7] #3 #0 #2", MLC_ERR_SHAPE,
     "split: axis 0 of [7] in parts of 3 makes 3, there is room for 2; make n_out 3"},
    {"mlc_split", "<f32[7] #0 #0 #2", MLC_ERR_ARG,
     "split: parts of 0; they must be 1 or more long"},
    {"mlc_split", "<f32[7] #3 #1 #3", MLC_ERR_SHAPE,
     "split: [7] has no axis 1; its axes are -1 to 0"},
    {"mlc_chunk", "<f32[7] #0 #0", MLC_ERR_ARG,
     "chunk: 0 chunks; it takes at least one"},
    {"mlc_chunk", "<f32[7] #2 #1", MLC_ERR_SHAPE,
     "chunk: [7] has no axis 1; its axes are -1 to 0"},
    {"mlc_tile", "<f32[2] #-1", MLC_ERR_ARG,
     "tile: [2] repeated [-1] times: a count is negative or too large; counts must be 0 or more, "
     "and the result fit memory"},
    {"mlc_repeat", "<f32[2] #-1 #0", MLC_ERR_ARG,
     "repeat: -1 times axis 0 of [2]; it must be from 0 to what an integer counts"},
    {"mlc_repeat", "<f32[2] #2 #1", MLC_ERR_SHAPE,
     "repeat: [2] has no axis 1; its axes are -1 to 0"},
    {"mlc_flip", "<f32[2,3] #2", MLC_ERR_SHAPE,
     "flip: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_flip", "<f32[2,3] #0,0", MLC_ERR_SHAPE,
     "flip: axis 0 of [2,3] is named twice; name each once"},
    {"mlc_roll", "<f32[3] #1 #1", MLC_ERR_SHAPE,
     "roll: [3] has no axis 1; its axes are -1 to 0"},
    {"mlc_pad", "<f32[3] #1,1 #1 #0 =0", MLC_ERR_SHAPE,
     "pad: 2 and 1 counts for [3]; it takes one an axis"},
    {"mlc_pad", "<f32[3] #3 #0 #1 =0", MLC_ERR_SHAPE,
     "pad: axis 0 of [3] is too short for 3 before and 0 after, reflect; each may be at most 2"},
    {"mlc_pad", "<f32[3] #-1 #0 #2 =0", MLC_ERR_ARG,
     "pad: -1 before and 0 after axis 0; only constant padding may cut"},
    {"mlc_pad", "<f32[3] #-2 #-2 #0 =0", MLC_ERR_SHAPE,
     "pad: axis 0 of [3] with -2 before and -2 after has no size; cut no more than there is"},
    {"mlc_pad", "<f32[3] #1 #1 #9 =0", MLC_ERR_ARG,
     "pad: unknown mode 9; see mlc_pad_mode"},
    {"mlc_pad", "<f32[0] #1 #1 #2 =0", MLC_ERR_SHAPE,
     "pad: axis 0 of [0] is too short for 1 before and 1 after, replicate; each may be at most 0"},
    {"mlc_diag", "<f32[2,3,4] #0", MLC_ERR_SHAPE,
     "diag: [2,3,4] at diagonal 0; x must be 1-d or 2-d, and the matrix fit memory"},
    {"mlc_diag", "<f32[] #0", MLC_ERR_SHAPE,
     "diag: [] at diagonal 0; x must be 1-d or 2-d, and the matrix fit memory"},
    {"mlc_tril", "<f32[5] #0", MLC_ERR_SHAPE,
     "tril: [5] is no matrix; it takes two axes or more"},
    {"mlc_triu", "<f32[] #0", MLC_ERR_SHAPE,
     "triu: [] is no matrix; it takes two axes or more"},
    {"mlc_gather", "<f32[2,3] <i64[2] #0", MLC_ERR_SHAPE,
     "gather: x [2,3] has 2 axes, the index [2] has 1; they must be as many"},
    {"mlc_gather", "<f32[2,3] <i32[2,3] #0", MLC_ERR_DTYPE,
     "gather: the index is i32; write mlc_cast(index, MLC_I64)"},
    {"mlc_gather", "<f32[2] <i64[3] #0", MLC_ERR_VALUE,
     "gather: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_gather", "<f32[2,3] <i64[1,1] #2", MLC_ERR_SHAPE,
     "gather: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_gather", "<f32[2,1] <i64[1,2] #0", MLC_ERR_SHAPE,
     "gather: the index [1,2] is larger than x [2,1] at axis 1: 2 vs 1; it may be at most as "
     "large"},
    {"mlc_scatter", "<f32[2] <i64[3] <f32[3] #0", MLC_ERR_VALUE,
     "scatter: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_scatter", "<f32[4] <i64[3] <f32[2] #0", MLC_ERR_SHAPE,
     "scatter: the index [3] is larger than src [2] at axis 0: 3 vs 2; it may be at most as large"},
    {"mlc_scatter", "<f32[4] <i64[2] <f64[2] #0", MLC_ERR_DTYPE,
     "scatter: x is f32, src f64; cast one with mlc_cast"},
    {"mlc_scatter", "<f32[4] <f32[2] <f32[2] #0", MLC_ERR_DTYPE,
     "scatter: the index is f32; write mlc_cast(index, MLC_I64)"},
    {"mlc_scatter_", "<f32[2]g <i64[2] <f32[2] #0", MLC_ERR_STATE,
     "scatter_: [2] is a leaf that requires a gradient; change it under mlc_no_grad_begin, or a "
     "copy of it"},
    {"mlc_scatter_", "<f32[2] <i64[3] <f32[3] #0", MLC_ERR_VALUE,
     "scatter_: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_scatter_add", "<f32[2] <i64[3] <f32[3] #0", MLC_ERR_VALUE,
     "scatter_add: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_scatter_add", "<f32[4] <i64[2] <null #0", MLC_ERR_ARG,
     "scatter_add: input 3 is NULL; look at what should have made it"},
    {"mlc_scatter_add_", "<f32[2]E <i64[2,2] <f32[2,2] #0", MLC_ERR_ARG,
     "scatter_add_: [2,2] repeats elements (expand); copy it first"},
    {"mlc_scatter_add_", "<f32[2] <i64[3] <f32[3] #0", MLC_ERR_VALUE,
     "scatter_add_: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_index_select", "<f32[1,3,1,1,1] <i64[2,1,1,1,1] #1", MLC_ERR_SHAPE,
     "index_select: the index [2,1,1,1,1] in place of axis 1 of [1,3,1,1,1] makes more than 8 "
     "axes; flatten it"},
    {"mlc_index_select", "<f32[2] <i64[3] #0", MLC_ERR_VALUE,
     "index_select: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_index_select", "<f32[2] <i64[3] #1", MLC_ERR_SHAPE,
     "index_select: [2] has no axis 1; its axes are -1 to 0"},
    {"mlc_take", "<f32[2] <i64[3]", MLC_ERR_VALUE,
     "take: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_take", "<f32[2] <u8[3]", MLC_ERR_DTYPE,
     "take: the index is u8; write mlc_cast(index, MLC_I64)"},
    {"mlc_masked_select", "<f32[2] <u8[2]", MLC_ERR_DTYPE,
     "masked_select: the mask is u8; write mlc_ne_scalar(mask, 0)"},
    {"mlc_masked_select", "<f32[2] <bool[3]", MLC_ERR_SHAPE,
     "masked_select: shapes [2] and [3] do not broadcast at axis 0: 2 vs 3; sizes must be equal, "
     "or one of them 1"},
    {"mlc_one_hot", "<i64[3] #0", MLC_ERR_ARG,
     "one_hot: 0 classes; it takes at least one"},
    {"mlc_one_hot", "<i64[3] #4611686018427387904", MLC_ERR_SHAPE,
     "one_hot: shape [3,4611686018427387904] has more elements than memory can hold"},
    {"mlc_one_hot", "<i32[3] #3", MLC_ERR_DTYPE,
     "one_hot: the index is i32; write mlc_cast(index, MLC_I64)"},
    {"mlc_one_hot", "<i64[3] #2", MLC_ERR_VALUE,
     "one_hot: index 2 at position 2 is not in [0,2), the size of the axis"},
    {"mlc_reshape", "<f32[2,3] #4,2", MLC_ERR_SHAPE,
     "reshape: [2,3] has 6 elements and does not fit [4,2]; its sizes must make as many"},
    {"mlc_reshape", "<f32[2,3] #-1,4", MLC_ERR_SHAPE,
     "reshape: [2,3] has 6 elements and does not fit [-1,4]; its sizes must make as many"},
    {"mlc_reshape", "<f32[2,3] #-1,-1", MLC_ERR_SHAPE,
     "reshape: [2,3] to [-1,-1]: sizes must be 0 or more, at most one -1 for what is left"},
    {"mlc_reshape", "<f32[2,3] #-2,3", MLC_ERR_SHAPE,
     "reshape: [2,3] to [-2,3]: sizes must be 0 or more, at most one -1 for what is left"},
    {"mlc_flatten", "<f32[2,3] #2", MLC_ERR_SHAPE,
     "flatten: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_permute", "<f32[2,3] #0,0", MLC_ERR_SHAPE,
     "permute: [0,0] is no order of the 2 axes of [2,3]; name each once"},
    {"mlc_permute", "<f32[2,3] #0", MLC_ERR_SHAPE,
     "permute: [0] is no order of the 2 axes of [2,3]; name each once"},
    {"mlc_permute", "<f32[2,3] #0,2", MLC_ERR_SHAPE,
     "permute: [0,2] is no order of the 2 axes of [2,3]; name each once"},
    {"mlc_transpose", "<f32[2,3] #0 #2", MLC_ERR_SHAPE,
     "transpose: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_slice", "<f32[2,3] #2 #0 #1 #1", MLC_ERR_SHAPE,
     "slice: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_slice", "<f32[2,3] #0 #0 #1 #0", MLC_ERR_ARG,
     "slice: step 0; it must be positive"},
    {"mlc_select", "<f32[2,3] #1 #3", MLC_ERR_SHAPE,
     "select: index 3 is outside axis 1 of [2,3]; it must be from -3 to 2"},
    {"mlc_select", "<f32[2,3] #-3 #0", MLC_ERR_SHAPE,
     "select: [2,3] has no axis -3; its axes are -2 to 1"},
    {"mlc_expand", "<f32[2,3] #4,3", MLC_ERR_SHAPE,
     "expand: [2,3] does not expand to [4,3]: sizes must be equal or 1"},
    {"mlc_expand", "<f32[2,3] #3", MLC_ERR_SHAPE,
     "expand: [2,3] does not expand to [3]: sizes must be equal or 1"},
    {"mlc_expand", "<f32[3] #-1,3", MLC_ERR_SHAPE,
     "expand: [3] does not expand to [-1,3]: sizes must be equal or 1"},
    {"mlc_squeeze", "<f32[2,1] #2", MLC_ERR_SHAPE,
     "squeeze: [2,1] has no axis 2; its axes are -2 to 1"},
    {"mlc_unsqueeze", "<f32[2,1] #4", MLC_ERR_SHAPE,
     "unsqueeze: [2,1] has no room for a new axis 4; its place must be from -3 to 2, and axes "
     "are at most 8"},
    {"mlc_unsqueeze", "<f32[1,1,1,1,1,1,1,1] #0", MLC_ERR_SHAPE,
     "unsqueeze: [1,1,1,1,1,1,1,1] has no room for a new axis 0; its place must be from -9 to 8, "
     "and axes are at most 8"},
    {"mlc_movedim", "<f32[2,3] #0 #2", MLC_ERR_SHAPE,
     "movedim: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_unfold", "<f32[5] #0 #6 #1", MLC_ERR_SHAPE,
     "unfold: windows of 6 at steps of 1 do not fit axis 0 of [5]; they must be 0 to 5 long, 1 "
     "or more apart, and there must be less than 8 axes"},
    {"mlc_unfold", "<f32[5] #0 #2 #0", MLC_ERR_ARG,
     "unfold: windows of 2 at steps of 0 do not fit axis 0 of [5]; they must be 0 to 5 long, 1 "
     "or more apart, and there must be less than 8 axes"},
    {"mlc_unfold", "<f32[5] #1 #2 #1", MLC_ERR_SHAPE,
     "unfold: [5] has no axis 1; its axes are -1 to 0"},
    {"mlc_diagonal", "<f32[5] #0", MLC_ERR_SHAPE,
     "diagonal: [5] is no matrix; it takes two axes or more"},
    {"mlc_meshgrid", "<f32[2,3] <f32[3]", MLC_ERR_SHAPE,
     "meshgrid: input 1 is [2,3]; it must be 1-d"},
    {"mlc_meshgrid", "<f32[2] <f32[3] <i64[2]", MLC_ERR_DTYPE,
     "meshgrid: input 1 is f32, input 3 is i64; cast one of them with mlc_cast"},
    {"mlc_meshgrid", "<f32[2] <null", MLC_ERR_ARG,
     "meshgrid: input 2 is NULL; look at what should have made it"},
    {"mlc_cast", "<f32[2,3] #77", MLC_ERR_DTYPE,
     "cast: unknown dtype 77; it is one of MLC_F32 to MLC_BOOL"},
    {"mlc_zeros", "f32 #-1", MLC_ERR_ARG,
     "zeros: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_zeros", "f32 #4611686018427387904,8", MLC_ERR_SHAPE,
     "zeros: shape [4611686018427387904,8] has more elements than memory can hold"},
    {"mlc_ones", "f32 #2,-3", MLC_ERR_ARG,
     "ones: size -3 of axis 1 is negative; it must be 0 or more"},
    {"mlc_full", "f32 #-1 =1", MLC_ERR_ARG,
     "full: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_arange", "f32 =0 =1 =0", MLC_ERR_ARG,
     "arange: step 0 does not lead from 0 to 1; all must be finite, the step not 0 and of the "
     "sign of the way"},
    {"mlc_arange", "f32 =0 =1 =-1", MLC_ERR_ARG,
     "arange: step -1 does not lead from 0 to 1; all must be finite, the step not 0 and of the "
     "sign of the way"},
    {"mlc_linspace", "f32 =0 =1 #-1", MLC_ERR_ARG,
     "linspace: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_linspace", "f32 =0 =inf #3", MLC_ERR_ARG,
     "linspace: there are no equal steps from 0 to inf; both must be finite"},
    {"mlc_linspace", "f32 =nan =1 #3", MLC_ERR_ARG,
     "linspace: there are no equal steps from nan to 1; both must be finite"},
    {"mlc_eye", "f32 #-1 #2", MLC_ERR_ARG,
     "eye: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_from", "f32 #-1", MLC_ERR_ARG,
     "from: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_wrap", "f32 #-1", MLC_ERR_ARG,
     "wrap: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_randn", "i64 #3", MLC_ERR_DTYPE,
     "randn: dtype i64; it makes floats: f32, f64, bf16, f16"},
    {"mlc_randn", "f32 #-3", MLC_ERR_ARG,
     "randn: size -3 of axis 0 is negative; it must be 0 or more"},
    {"mlc_uniform", "i64 #3 =0 =1", MLC_ERR_DTYPE,
     "uniform: dtype i64; it makes floats: f32, f64, bf16, f16"},
    {"mlc_uniform", "f32 #3 =1 =0", MLC_ERR_ARG,
     "uniform: [1, 0) is no interval of f32; lo must be at most hi, and both finite there"},
    {"mlc_div_scalar", "<bool[2] =2", MLC_ERR_DTYPE,
     "div_scalar: input 1 is bool, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_pow_scalar", "<u8[2,2] =2", MLC_ERR_DTYPE,
     "pow_scalar: input 1 is u8, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_rsub_scalar", "<u8[5] =2", MLC_ERR_DTYPE,
     "rsub_scalar: input 1 is u8, not a float, i64 or i32; write mlc_cast(x, MLC_I64)"},
    {"mlc_leaky_relu", "<i64[3] =0.1", MLC_ERR_DTYPE,
     "leaky_relu: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_leaky_relu", "<i64[3] =-0.1", MLC_ERR_DTYPE,
     "leaky_relu: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_elu", "<bool[2] =1", MLC_ERR_DTYPE,
     "elu: input 1 is bool, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_elu", "<bool[2] =-1", MLC_ERR_DTYPE,
     "elu: input 1 is bool, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_celu", "<u8[2] =1", MLC_ERR_DTYPE,
     "celu: input 1 is u8, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_celu", "<f32[2] =0", MLC_ERR_ARG, "celu: alpha is 0, and x is divided by it"},
    {"mlc_celu", "<bf16[2] =-1e-40", MLC_ERR_ARG, "celu: alpha is -1e-40, and x is divided by it"},
    {"mlc_celu_", "<f64[2] =0", MLC_ERR_ARG, "celu_: alpha is 0, and x is divided by it"},
    {"mlc_leaky_relu_", "<f32[2,3]E =0.1", MLC_ERR_ARG,
     "leaky_relu_: [2,2,3] repeats elements (expand); copy it first"},
    {"mlc_leaky_relu_", "<f32[4]g =-0.1", MLC_ERR_STATE,
     "leaky_relu_: [4] is a leaf that requires a gradient; change it under mlc_no_grad_begin, or a "
     "copy of it"},
    {"mlc_elu_", "<f32[4]g =1", MLC_ERR_STATE,
     "elu_: [4] is a leaf that requires a gradient; change it under mlc_no_grad_begin, or a copy "
     "of it"},
    {"mlc_prelu", "<f32[2,3] <f32[2]", MLC_ERR_SHAPE,
     "prelu: w is [2], x [2,3]; w must have one element, or be 1-d with one for each channel, axis "
     "1 of x"},
    {"mlc_prelu", "<f32[3] <f32[3]", MLC_ERR_SHAPE,
     "prelu: w is [3], x [3]; w must have one element, or be 1-d with one for each channel, axis 1 "
     "of x"},
    {"mlc_prelu", "<f32[2,3] <f32[1,3]", MLC_ERR_SHAPE,
     "prelu: w is [1,3], x [2,3]; w must have one element, or be 1-d with one for each channel, "
     "axis 1 of x"},
    {"mlc_prelu", "<f32[2,3] <f64[3]", MLC_ERR_DTYPE,
     "prelu: input 1 is f32, input 2 is f64; cast one of them with mlc_cast"},
    {"mlc_prelu", "<i64[2,3] <i64[3]", MLC_ERR_DTYPE,
     "prelu: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_prelu", "<f32[2,3] <null", MLC_ERR_ARG,
     "prelu: input 2 is NULL; look at what should have made it"},
    {"mlc_glu", "<f32[2,3] #1", MLC_ERR_SHAPE,
     "glu: axis 1 of [2,3] has two halves only where its size is even"},
    {"mlc_glu", "<f32[2,3] #2", MLC_ERR_SHAPE,
     "glu: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_glu", "<f32[] #0", MLC_ERR_SHAPE, "glu: [] has no axis 0; it is a scalar"},
    {"mlc_glu", "<i64[2] #0", MLC_ERR_DTYPE,
     "glu: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_div_scalar_", "<bool[2] =2", MLC_ERR_DTYPE,
     "div_scalar_: input 1 is bool, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_pow_scalar_", "<u8[2,2] =2", MLC_ERR_DTYPE,
     "pow_scalar_: input 1 is u8, not a float; write mlc_cast(x, MLC_F32)"},
    {"mlc_rsub_scalar_", "<i8[5] =2", MLC_ERR_DTYPE,
     "rsub_scalar_: input 1 is i8, not a float, i64 or i32; write mlc_cast(x, MLC_I64)"},
    {"mlc_argmax", "<f32[2,0] #1", MLC_ERR_SHAPE,
     "argmax: axis 1 of [2,0] is empty, and nothing has no extreme; take another axis"},
    {"mlc_argmax", "<f32[2,3] #2", MLC_ERR_SHAPE,
     "argmax: [2,3] has no axis 2; its axes are -2 to 1"},
    {"mlc_multinomial", "<i64[3] #1 #1", MLC_ERR_DTYPE,
     "multinomial: the weights are i64; write mlc_cast(p, MLC_F32)"},
    {"mlc_multinomial", "<f32[] #1 #1", MLC_ERR_SHAPE,
     "multinomial: the weights are []; they must be [c] or [r,c], c at least 1"},
    {"mlc_multinomial", "<f32[3] #0 #1", MLC_ERR_ARG,
     "multinomial: 0 draws; it must be at least 1"},
    {"mlc_multinomial", "<f32[3] #4 #0", MLC_ERR_ARG,
     "multinomial: 4 draws from 3 categories without replacement; draw fewer"},
    {"mlc_multinomial", "<f32[3] #3 #0", MLC_ERR_ARG,
     "multinomial: 3 draws without replacement, but only 2 weights of row 0 are over 0; draw "
     "fewer"},
    {"mlc_multinomial", "<f32[1] #1 #1", MLC_ERR_VALUE,
     "multinomial: no weight of row 0 is over 0; one must be"},
    {"mlc_normal", "f32 #3 =0 =-1", MLC_ERR_ARG,
     "normal: mean 0, std -1; they must be finite, std not negative"},
    {"mlc_normal", "i64 #3 =0 =1", MLC_ERR_DTYPE,
     "normal: dtype i64; it makes floats: f32, f64, bf16, f16"},
    {"mlc_truncated_normal", "f32 #3 =0 =1 =2 =1", MLC_ERR_ARG,
     "truncated_normal: mean 0, std 1, [2, 1]; mean and std must be finite, std positive, lo <= "
     "hi"},
    {"mlc_truncated_normal", "f32 #3 =0 =1 =40 =50", MLC_ERR_ARG,
     "truncated_normal: [40, 50] is over 37 std of 1 from the mean 0: no normal value is "
     "there; move the interval"},
    {"mlc_bernoulli", "f32 #3 =1.5", MLC_ERR_ARG,
     "bernoulli: p is 1.5, not in [0, 1]"},
    {"mlc_randint", "u8 #3 #0 #300", MLC_ERR_ARG,
     "randint: [0, 300) is not within [0, 255], the integers that u8 holds"},
    {"mlc_randint", "i64 #3 #5 #5", MLC_ERR_ARG,
     "randint: [5, 5) is empty; hi must be over lo"},
    {"mlc_randperm", "i64 #-1", MLC_ERR_ARG,
     "randperm: size -1 of axis 0 is negative; it must be 0 or more"},
    {"mlc_sinusoidal", "f32 #0 #4", MLC_ERR_ARG,
     "sinusoidal: t is 0 and d 4; both must be positive"},
    {"mlc_alibi_slopes", "f32 #0", MLC_ERR_ARG, "alibi_slopes: heads is 0; it must be positive"},
    {"mlc_rotary_table", "f64 #4 #3", MLC_ERR_ARG,
     "rotary: dims is 3; it must be even, and at most the last axis"},
};

/* 0, 1, 2, ... in any dtype. */
static mlc_tensor *counted(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape)
{
    double  values[64];
    int64_t n = 1;
    for (int32_t d = 0; d < shape.n; d++)
        n *= shape.v[d];
    for (int i = 0; i < 64; i++)
        values[i] = i;
    return CHECK(n <= 64) ? test_tensor(ctx, dtype, shape, values) : NULL;
}

static bool unchanged(mlc_tensor *t)
{
    double  values[64];
    int64_t n = mlc_numel(t);
    bool    held = n <= 64 && test_read(t, values);
    for (int64_t i = 0; held && i < n; i++)
        held = values[i] == (t->dtype == MLC_BOOL ? i != 0 : i);
    return held;
}

/* The error stands with just this status and text, but for the folder of the test's files, which
 * is DIR in the text. Clears it. */
static bool says(mlc_ctx *ctx, const char *name, const char *call, mlc_status got, mlc_status want,
                 const char *text, const char *dir)
{
    char        said[1024];
    const char *error = mlc_error(ctx), *at = *dir ? strstr(error, dir) : NULL;
    snprintf(said, sizeof said, "%.*s%s%s", at ? (int)(at - error) : (int)sizeof said, error,
             at ? "DIR" : "", at ? at + strlen(dir) : "");
    bool ok = CHECK_EQ(got, want);
    ok = CHECK_STR(said, text) && ok;
    if (!ok)
        printf("  %s %s\n", name, call);
    mlc_error_clear(ctx);
    return ok;
}

static bool refused(mlc_ctx *ctx, const wrong_op *w)
{
    op_args       a;
    bool          ok = true;
    const op_row *row = op_find(w->name);
    if (!CHECK(row != NULL) || !op_parse(&a, w->call))
        return false;
    a.ctx = ctx;
    mlc_scope_begin(ctx);
    for (int i = 0; i < a.n_in; i++) {
        if (a.in_spec[i].layout == 'N')
            continue;
        a.leaf[i] = counted(ctx, a.in_spec[i].dtype, a.in_spec[i].shape);
        if (a.in_spec[i].layout == 'g')
            mlc_set_requires_grad(a.leaf[i], true);
        a.in[i] = op_look(a.leaf[i], a.in_spec[i].layout);
    }
    mlc_scope_begin(ctx);
    if (row->call(&a) != NULL)             /* a device tells of bad values when it is asked    */
        ok = CHECK(!test_on_host() && mlc_ctx_status(ctx) == MLC_OK);
    mlc_ctx_sync(ctx);
    ok = says(ctx, w->name, w->call, mlc_scope_end(ctx), w->status, w->text, "") && ok;
    for (int i = 0; i < a.n_in; i++)
        ok = CHECK(a.leaf[i] == NULL || unchanged(a.leaf[i])) && ok;
    mlc_scope_end(ctx);
    return ok;
}

/* ---- rows of ew_table.h: their errors differ by the name alone ------------------------------- */

/* The call is refused with the text, after the operation's name. */
static void ew_refused(mlc_ctx *ctx, const char *name, const char *call, mlc_status status,
                       const char *text)
{
    char           full[256];
    const wrong_op w = {name, call, status, full};
    snprintf(full, sizeof full, "%s: %s", name + 4, text);
    if (CHECK(refused(ctx, &w)))
        op_seen("refused", name, "");
}

#define LEAF \
    "is a leaf that requires a gradient; change it under mlc_no_grad_begin, or a copy of it"
#define REPEATS "repeats elements (expand); copy it first"
#define NOTHING "is NULL; look at what should have made it"

/* Of each dtype that it does not take. */
static void ew_dtypes_refused(mlc_ctx *ctx, const char *name, bool two)
{
    const bool whole = ((op_find(name)->dtypes >> MLC_I64) & 1) != 0;
    for (int d = 0; d < MLC_DTYPE_COUNT; d++) {
        const char *dtype = mlc_dtype_name((mlc_dtype)d);
        const char *more = "";
        char        call[80], text[160];
        if (((op_find(name)->dtypes >> d) & 1) != 0)
            continue;
        if (strncmp(name, "mlc_div", 7) == 0 && (d == MLC_I64 || d == MLC_I32))
            more = name[7] ? ", or mlc_floor_divide_, which rounds down"
                           : ", or mlc_floor_divide, which rounds down";
        snprintf(call, sizeof call, two ? "<%s[2,3] <%s[2,3]" : "<%s[2,3]", dtype, dtype);
        snprintf(text, sizeof text, "input 1 is %s, not a float%s%s", dtype,
                 whole ? ", i64 or i32; write mlc_cast(x, MLC_I64)"
                       : "; write mlc_cast(x, MLC_F32)", more);
        ew_refused(ctx, name, call, MLC_ERR_DTYPE, text);
    }
}

static void ew_one_refused(mlc_ctx *ctx, const char *name, const char *name_)
{
    ew_dtypes_refused(ctx, name, false);
    ew_dtypes_refused(ctx, name_, false);
    ew_refused(ctx, name_, "<f32[2,3]g", MLC_ERR_STATE, "[2,3] " LEAF);
    ew_refused(ctx, name_, "<f32[2,3]E", MLC_ERR_ARG, "[2,2,3] " REPEATS);
}

static void ew_two_refused(mlc_ctx *ctx, const char *name, const char *name_)
{
    const char *const both[2] = {name, name_};
    for (int i = 0; i < 2; i++) {
        ew_dtypes_refused(ctx, both[i], true);
        ew_refused(ctx, both[i], "<f32[3] <f64[3]", MLC_ERR_DTYPE,
                   "input 1 is f32, input 2 is f64; cast one of them with mlc_cast");
        ew_refused(ctx, both[i], "<f32[3] <null", MLC_ERR_ARG, "input 2 " NOTHING);
        ew_refused(ctx, both[i], "<null <f32[3]", MLC_ERR_ARG, "input 1 " NOTHING);
    }
    ew_refused(ctx, name, "<f32[2,3] <f32[3,2]", MLC_ERR_SHAPE,
               "shapes [2,3] and [3,2] do not broadcast at axis 1: 3 vs 2; sizes must be equal, or "
               "one of them 1");
    ew_refused(ctx, name_, "<f32[3] <f32[2,3]", MLC_ERR_SHAPE,
               "b [2,3] does not broadcast to [3], which is changed in place; make a new tensor "
               "instead");
    ew_refused(ctx, name_, "<f32[2,3]g <f32[3]", MLC_ERR_STATE, "[2,3] " LEAF);
    ew_refused(ctx, name_, "<f32[3]E <f32[3]", MLC_ERR_ARG, "[2,3] " REPEATS);
}

TEST(errors, wrong_calls_of_elementwise_operations_say_what_is_wrong)
{
    mlc_ctx *ctx = test_ctx();
#define ONE_REFUSED(name, ...) ew_one_refused(ctx, "mlc_" #name, "mlc_" #name "_");
#define TWO_REFUSED(name, ...) ew_two_refused(ctx, "mlc_" #name, "mlc_" #name "_");
    EW_UNARY(ONE_REFUSED, ONE_REFUSED, ONE_REFUSED)
    EW_BINARY(TWO_REFUSED, TWO_REFUSED)
}

TEST(errors, wrong_calls_of_operations_say_what_is_wrong_and_what_to_do)
{
    mlc_ctx *ctx = test_ctx();
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++)
        if (CHECK(refused(ctx, &OPS[i])))
            op_seen("refused", OPS[i].name, "");
}

/* ---- the rest of the library --------------------------------------------------------------- */

typedef struct world {
    mlc_ctx    *ctx, *other;
    mlc_tensor *x, *g, *d, *i;             /* [2,3]: f32, f32 with gradient, f64, i64          */
    mlc_tensor *foreign;                   /* f32 [2,3] of the other context                   */
    mlc_module *net;                       /* linear 3 4, relu, linear 4 2                     */
    mlc_optim  *opt;                       /* of it                                            */
    float       host[8];
    box         files;                     /* a.safetensors: x, i; a.csv: 2 rows of 3          */
    char        path[340];
} world;

typedef struct wrong {
    const char   *name;
    mlc_status    status;
    const char   *text;
    void        (*call)(world *w);
    struct wrong *next;
} wrong;

static wrong *first_wrong, **last_wrong = &first_wrong;

static void wrong_add(wrong *w)
{
    *last_wrong = w;
    last_wrong = &w->next;
}

/* A name, what the error must be, and the call. */
#define WRONG(name, status, text, ...) \
    static void wrong_##name(world *w) { __VA_ARGS__; } \
    __attribute__((constructor)) static void wrong_##name##_add(void) \
    { \
        static wrong self = {#name, MLC_ERR_##status, text, wrong_##name, NULL}; \
        wrong_add(&self); \
    }

/* A path in the folder of the test's files. */
static const char *at(world *w, const char *name)
{
    snprintf(w->path, sizeof w->path, "%s/%s", w->files.dir, name);
    return w->path;
}

/* Writes a file there. */
static const char *put(world *w, const char *name, const char *text)
{
    return put_file(at(w, name), text, strlen(text)) ? w->path : NULL;
}

static mlc_tensor *zeros(world *w, mlc_dtype dtype, int64_t n, int64_t m)
{
    return mlc_zeros(w->ctx, dtype, mlc_dims2(n, m));
}

static mlc_tensor *squares(world *w)
{
    return mlc_sum(mlc_square(w->g), mlc_dims0(), false);
}

static mlc_tensor *labels(world *w, int64_t first, int64_t second)
{
    const int64_t both[2] = {first, second};
    return mlc_from(w->ctx, MLC_I64, mlc_dims1(2), both);
}

static mlc_tensor *no_loss(void *user, mlc_tensor *const *in, int32_t n_in)
{
    (void)user;
    (void)in;
    (void)n_in;
    return NULL;
}

static mlc_status declare(world *w, const char *name, mlc_dtype dtype, bool buffer)
{
    mlc_param_desc d = {mlc_dims1(2), MLC_INIT_ZEROS, 0, 0, dtype, true, buffer};
    mlc_tensor    *t = mlc_module_declare(w->net, name, &d);
    return mlc_set_requires_grad(t, buffer);
}

static mlc_optim *sgd_of(world *w, double lr, double momentum, bool nesterov)
{
    mlc_sgd_desc d = {lr, momentum, 0, 0, nesterov};
    return mlc_sgd_ex(w->net, &d);
}

static mlc_optim *adam_of(world *w, double lr, double beta1)
{
    mlc_adam_desc d = mlc_adam_desc_make(lr);
    d.beta1 = beta1;
    return mlc_adam_ex(w->net, &d);
}

static mlc_status group(world *w, const char *glob)
{
    mlc_group_desc d = {2, 0, false, false};
    return mlc_optim_group(w->opt, glob, &d);
}

static mlc_status clip(world *w, double norm, double value)
{
    const mlc_clip_desc d = {norm, value, false};
    return mlc_optim_clip(w->opt, &d);
}

static mlc_status scaler(world *w, double init)
{
    mlc_scaler_desc d = mlc_scaler_desc_make();
    d.init = init;
    return mlc_optim_scaler(w->opt, &d);
}

static mlc_status resume(world *w, double scale)
{
    const mlc_scaler_state s = {scale, 0, 0, 0};
    return mlc_optim_scaler_resume(w->opt, &s);
}

static mlc_tensor *smoothed(world *w, double by)
{
    mlc_cross_entropy_desc d = {MLC_REDUCTION_MEAN, by, false, 0, NULL};
    return mlc_cross_entropy_ex(w->x, labels(w, 0, 1), &d);
}

#define MEAN MLC_REDUCTION_MEAN

static mlc_tensor *classes(world *w, mlc_tensor *target, double by, bool ignore, mlc_tensor *weight)
{
    mlc_cross_entropy_desc d = {MEAN, by, ignore, 0, weight};
    return mlc_cross_entropy_ex(w->x, target, &d);
}

static mlc_status save(world *w, const char *a, const char *b)
{
    mlc_named list[2] = {{a, w->x}, {b, w->i}};
    return mlc_safetensors_save(w->ctx, at(w, "b.safetensors"), list, 2, NULL);
}

static mlc_status save_npz(world *w, const char *a, const char *b)
{
    mlc_named list[2] = {{a, w->x}, {b, w->i}};
    return mlc_npz_save(w->ctx, at(w, "b.npz"), list, 2);
}

/* Saves a model of one layer and loads it into the net. */
static mlc_status load_other(world *w, mlc_module *m)
{
    mlc_module *net = mlc_nn_sequential(w->ctx);
    mlc_module_add(net, m);
    mlc_save(net, at(w, "net.safetensors"));
    mlc_module_free(net);
    return mlc_load(w->net, w->path);
}

static mlc_status load_renamed(world *w, const char *from, const char *to)
{
    mlc_rename    r = {.from = from, .to = to};
    mlc_load_desc d = mlc_load_desc_make();
    d.renames = &r;
    d.n_renames = 1;
    mlc_save(w->net, at(w, "net.safetensors"));
    return mlc_load_ex(w->net, w->path, &d);
}

static mlc_tensor *csv(world *w, const char *text, mlc_dtype dtype)
{
    mlc_csv_desc d = mlc_csv_desc_make();
    d.dtype = dtype;
    return mlc_csv_load(w->ctx, put(w, "b.csv", text), &d);
}

static mlc_table *table(world *w, const char *text)
{
    return mlc_table_load(w->ctx, put(w, "b.csv", text), NULL);
}

static mlc_loader *loader(world *w, mlc_tensor *x, mlc_tensor *y, int64_t batch)
{
    mlc_loader_desc d = mlc_loader_desc_make(x, y, batch);
    return mlc_loader_create(w->ctx, &d);
}

/* -- contexts and scopes -- */

WRONG(scope_end_without_begin, STATE,
      "scope_end: no scope is open here; call mlc_scope_begin before",
      mlc_scope_end(w->ctx), mlc_scope_end(w->ctx))

WRONG(scopes_without_end, STATE,
      "scope_begin: 60 scopes are open; is a mlc_scope_end missing?",
      for (int k = 0; k < 1000; k++) mlc_scope_begin(w->ctx))

/* -- making, reading and writing tensors -- */

WRONG(dtype_unknown, DTYPE,
      "zeros: unknown dtype 77; it is one of MLC_F32 to MLC_BOOL",
      mlc_zeros(w->ctx, (mlc_dtype)77, mlc_dims1(2)))

WRONG(axes_too_many, ARG,
      "zeros: 9 axes; a tensor has 0 to 8",
      mlc_dims d = mlc_dims1(2); d.n = 9; mlc_zeros(w->ctx, MLC_F32, d))

WRONG(sum_over_too_many, SHAPE, "sum: 9 axes named, [2,3] has 2; name each once, or none for all",
      mlc_dims axes = mlc_dims0(); axes.n = 9; mlc_sum(w->x, axes, false))

WRONG(from_nothing, ARG,
      "from: data is NULL; f32 [2,3] takes 24 bytes",
      mlc_from(w->ctx, MLC_F32, mlc_dims2(2, 3), NULL))

WRONG(wrap_nothing, ARG,
      "wrap: data is NULL; [2,3] has 6 elements",
      mlc_wrap(w->ctx, MLC_F32, mlc_dims2(2, 3), NULL, NULL))

WRONG(wrap_backwards, ARG,
      "wrap: stride -1 of axis 0 is negative; it must be 0 or more (mlc_flip turns an axis)",
      int64_t back = -1; mlc_wrap(w->ctx, MLC_F32, mlc_dims1(2), &back, w->host))

WRONG(read_too_few, ARG,
      "read: 8 bytes given, f32 [2,3] has 24; give just as many",
      mlc_read(w->x, w->host, 8))

WRONG(read_nowhere, ARG,
      "read: host memory is NULL; it must have 24 bytes",
      mlc_read(w->x, NULL, 24))

WRONG(write_too_many, ARG,
      "write: 32 bytes given, f32 [2,3] has 24; give just as many",
      mlc_write(w->x, w->host, 32))

WRONG(write_to_repeated, ARG,
      "write: [4,2,3] repeats elements (expand); copy it first",
      mlc_write(mlc_expand(w->x, mlc_dims3(4, 2, 3)), w->host, 96))

WRONG(item_of_many, SHAPE,
      "item: [2,3] has 6 elements, not one; reduce it or select one",
      mlc_item(w->x))

WRONG(pointer_of_other_dtype, DTYPE,
      "f32: the tensor is f64; write mlc_f64(t)",
      mlc_f32(w->d))

WRONG(copy_between_contexts, ARG,
      "copy_into: src belongs to another context; make both in one",
      mlc_copy_into(w->x, w->foreign))

WRONG(add_between_contexts, ARG,
      "add: input 2 belongs to another context; make both in one",
      mlc_add(w->x, w->foreign))

WRONG(rotary_table_between_contexts, ARG,
      "rotary: positions belong to another context; make them in that of x or of the table",
      mlc_rotary_table(w->ctx, w->foreign, 0, 4, NULL))

WRONG(concat_of_none, ARG,
      "add: input 1 is NULL; look at what should have made it",
      mlc_tensor *none[1] = {NULL}; mlc_concat(none, 1, 0); mlc_add(NULL, w->x))

WRONG(meshgrid_nowhere, ARG,
      "meshgrid: out is NULL; it takes 1 views",
      mlc_meshgrid(&w->x, 1, NULL))

WRONG(split_nowhere, ARG,
      "split: out is NULL; it takes n_out views",
      mlc_split(w->x, 1, 0, NULL, 2))

WRONG(chunk_nowhere, ARG,
      "chunk: out is NULL; it takes 2 views",
      mlc_chunk(w->x, 2, 0, NULL))

WRONG(einsum_of_nothing, ARG,
      "einsum: the equation is NULL; write one as \"ij,jk->ik\"",
      mlc_einsum(NULL, &w->x, 1))

WRONG(einsum_of_many, ARG,
      "einsum: 9 operands; it takes up to 8",
      mlc_tensor *many[9]; for (int k = 0; k < 9; k++) many[k] = w->x;
      mlc_einsum("a,b,c,d,e,f,g,h,i", many, 9))

WRONG(view_of_a_closed_file, STATE,
      "neg: the file whose memory a [2,3] tensor sees was closed; copy it before",
      mlc_safetensors *f = mlc_safetensors_open(w->ctx, at(w, "a.safetensors"));
      mlc_tensor *v = mlc_safetensors_view(f, "x"); mlc_safetensors_close(f); mlc_neg(v))

/* -- gradients -- */

WRONG(backward_of_many, SHAPE,
      "backward: the loss is [2,3]; it must have one element (or give mlc_backward_from its "
      "gradient)",
      mlc_backward(mlc_neg(w->g)))

WRONG(backward_of_nothing, STATE,
      "backward: nothing that y was made from requires a gradient (or it was made under no-grad)",
      mlc_backward(mlc_sum(w->x, mlc_dims0(), false)))

WRONG(backward_twice, STATE,
      "backward: a second time through 'sum', whose saved tensors are freed (or its module or "
      "loader is); run its forward again",
      mlc_tensor *y = squares(w); mlc_backward(y); mlc_backward(y))

WRONG(backward_after_writing, VALUE,
      "backward of square: saved tensor [2,3] was overwritten (version 1, saved at 0); copy it "
      "before",
      mlc_tensor *y = mlc_neg(w->g), *z = mlc_square(y); mlc_fill_(y, 1); mlc_backward_from(z,
      NULL))

WRONG(backward_from_other_dtype, DTYPE,
      "backward: y is f32, dy f64; cast dy",
      mlc_backward_from(mlc_neg(w->g), w->d))

WRONG(backward_from_other_shape, SHAPE,
      "backward: dy [3,2] does not fit y [2,3]; it must broadcast to it",
      mlc_backward_from(mlc_neg(w->g), zeros(w, MLC_F32, 3, 2)))

WRONG(backward_from_other_context, ARG,
      "backward: dy belongs to another context; make it in that of y",
      mlc_backward_from(mlc_neg(w->g), w->foreign))

WRONG(gradient_of_integers, DTYPE,
      "set_requires_grad: the tensor is i64; only floats have gradients",
      mlc_set_requires_grad(w->i, true))

WRONG(gradient_of_a_result, STATE,
      "set_requires_grad: the tensor is the result of an operation; detach it first",
      mlc_set_requires_grad(mlc_neg(w->g), true))

WRONG(gradient_of_a_buffer, ARG,
      "set_requires_grad: 'mean' is a buffer; declare it as a parameter",
      declare(w, "mean", MLC_F32, true))

WRONG(custom_without_a_name, ARG,
      "custom: it needs a name, forward, backward and 1 to 8 inputs",
      mlc_custom_op op; memset(&op, 0, sizeof op); mlc_custom(&op, NULL, &w->x, 1))

WRONG(gradcheck_of_f32, DTYPE,
      "gradcheck: input 1 is f32; it must be f64, differences of f32 say nothing",
      mlc_gradcheck_report r; mlc_gradcheck(no_loss, NULL, &w->g, 1, NULL, &r))

WRONG(gradcheck_of_null, ARG,
      "gradcheck: the function returned NULL; it must make a tensor",
      mlc_gradcheck_report r; mlc_set_requires_grad(w->d, true); mlc_gradcheck(no_loss, NULL,
      &w->d, 1, NULL, &r))

WRONG(anomaly_in_log, VALUE,
      "log: forward made the first NaN or Inf, at element 0 of [2,3]; look at its inputs",
      mlc_anomaly(w->ctx, true); mlc_log(w->x))

/* -- losses -- */

WRONG(mse_of_other_shape, SHAPE,
      "mse_loss: x [2,3] and target [3,2] differ; they must have one shape",
      mlc_mse_loss(w->x, zeros(w, MLC_F32, 3, 2)))

WRONG(mse_of_other_dtype, DTYPE,
      "mse_loss: input 1 is f32, input 2 is f64; cast one of them with mlc_cast",
      mlc_mse_loss(w->x, w->d))

WRONG(mse_of_null, ARG,
      "mse_loss: input 2 is NULL; look at what should have made it",
      mlc_mse_loss(w->x, NULL))

WRONG(mse_reduced_somehow, ARG,
      "mse_loss: unknown reduction 9; see mlc_reduction",
      mlc_mse_loss_ex(w->x, w->x, &(mlc_loss_desc){(mlc_reduction)9}))

WRONG(cross_entropy_of_integers, DTYPE,
      "cross_entropy: logits are i64; write mlc_cast(x, MLC_F32)",
      mlc_cross_entropy(w->i, labels(w, 0, 1)))

WRONG(cross_entropy_with_short_labels, DTYPE,
      "cross_entropy: labels are i32; write mlc_cast(labels, MLC_I64)",
      mlc_cross_entropy(w->x, zeros(w, MLC_I32, 2, 1)))

WRONG(cross_entropy_with_float_labels, SHAPE,
      "cross_entropy: logits [2,3] and target [2,1] differ; a float target holds probabilities, "
      "labels are i64: write mlc_cast(labels, MLC_I64)",
      mlc_cross_entropy(w->x, zeros(w, MLC_F32, 2, 1)))

WRONG(cross_entropy_of_cubes, SHAPE,
      "cross_entropy: logits [1,2,3] need labels [1,2], they are [2]",
      mlc_cross_entropy(mlc_unsqueeze(w->x, 0), labels(w, 0, 1)))

WRONG(cross_entropy_of_a_number, SHAPE,
      "cross_entropy: logits must be [n,c], [c] or [..,c], they are []",
      mlc_cross_entropy(mlc_sum_all(w->x), labels(w, 0, 1)))

WRONG(cross_entropy_with_few_labels, SHAPE,
      "cross_entropy: logits [2,3] need labels [2], they are [1]",
      mlc_cross_entropy(w->x, mlc_slice(labels(w, 0, 1), 0, 0, 1, 1)))

WRONG(cross_entropy_without_classes, SHAPE,
      "cross_entropy: logits [2,0] have no classes; the last axis must not be empty",
      mlc_cross_entropy(zeros(w, MLC_F32, 2, 0), labels(w, 0, 1)))

WRONG(cross_entropy_of_a_wrong_label, VALUE,
      "cross_entropy: label 3 at row 1 of this batch is not in [0,3), the classes of logits",
      mlc_cross_entropy(w->x, labels(w, 0, 3)))

WRONG(cross_entropy_smoothed_too_much, ARG,
      "cross_entropy: label_smoothing is 1.5; it must be in [0, 1]",
      smoothed(w, 1.5))

WRONG(cross_entropy_of_probabilities_smoothed_too_much, ARG,
      "cross_entropy: label_smoothing is -1; it must be in [0, 1]",
      classes(w, w->x, -1, false, NULL))

WRONG(cross_entropy_of_probabilities_with_an_ignored_label, ARG,
      "cross_entropy: ignore_index is a label's; a target of probabilities has none",
      classes(w, w->x, 0, true, NULL))

WRONG(cross_entropy_of_probabilities_of_other_dtype, DTYPE,
      "cross_entropy: input 1 is f32, input 2 is f64; cast one of them with mlc_cast",
      classes(w, w->d, 0, false, NULL))

WRONG(cross_entropy_of_probabilities_with_few_weights, SHAPE,
      "cross_entropy: logits [2,3] need weight [3], it is [2]",
      classes(w, w->x, 0, false, mlc_zeros(w->ctx, MLC_F32, mlc_dims1(2))))

WRONG(cross_entropy_of_probabilities_without_classes, SHAPE,
      "cross_entropy: logits [2,0] have no classes; the last axis must not be empty",
      mlc_cross_entropy(zeros(w, MLC_F32, 2, 0), zeros(w, MLC_F32, 2, 0)))

WRONG(cross_entropy_of_cubes_of_probabilities, SHAPE,
      "cross_entropy: logits [1,2,3] and target [2,3] differ; a float target holds probabilities, "
      "labels are i64: write mlc_cast(labels, MLC_I64)",
      mlc_cross_entropy(mlc_unsqueeze(w->x, 0), w->x))

WRONG(cross_entropy_with_few_weights, SHAPE,
      "cross_entropy: logits [2,3] need weight [3], it is [2,3]",
      classes(w, labels(w, 0, 1), 0, false, w->x))

WRONG(cross_entropy_with_weights_of_other_dtype, DTYPE,
      "cross_entropy: logits are f32, weight is f64; it must be f32: cast it with mlc_cast",
      classes(w, labels(w, 0, 1), 0, false, mlc_zeros(w->ctx, MLC_F64, mlc_dims1(3))))

WRONG(cross_entropy_with_weights_to_learn, ARG,
      "cross_entropy: weight asks for a gradient, which it has none of; detach it",
      classes(w, labels(w, 0, 1), 0, false, mlc_select(w->g, 0, 0)))

WRONG(nll_loss_smoothed, ARG,
      "nll_loss: label_smoothing is 0.1; it must be 0",
      mlc_cross_entropy_desc d = {MLC_REDUCTION_MEAN, 0.1, false, 0, NULL};
      mlc_nll_loss_ex(w->x, labels(w, 0, 1), &d))

WRONG(nll_loss_of_a_wrong_label, VALUE,
      "nll_loss: label 3 at row 1 of this batch is not in [0,3), the classes of logits",
      mlc_nll_loss(w->x, labels(w, 0, 3)))

WRONG(nll_loss_of_null, ARG,
      "nll_loss: input 2 is NULL; look at what should have made it",
      mlc_nll_loss(w->x, NULL))

WRONG(poly1_of_few_labels, SHAPE,
      "poly1_cross_entropy: logits [2,3] need labels [2], they are [1]",
      mlc_poly1_cross_entropy(w->x, mlc_slice(labels(w, 0, 1), 0, 0, 1, 1)))

WRONG(poly1_of_nan, ARG,
      "poly1_cross_entropy: epsilon is nan; it must be finite",
      mlc_poly1_cross_entropy_ex(w->x, labels(w, 0, 1), &(mlc_poly1_desc){MEAN, (double)NAN}))

WRONG(poly1_by_the_batch, ARG,
      "poly1_cross_entropy: unknown reduction 3; see mlc_reduction",
      mlc_poly1_cross_entropy_ex(w->x, labels(w, 0, 1),
                                 &(mlc_poly1_desc){MLC_REDUCTION_BATCHMEAN, 1}))

/* -- losses: of elements -- */

WRONG(l1_loss_of_other_shape, SHAPE,
      "l1_loss: x [2,3] and target [3,2] differ; they must have one shape",
      mlc_l1_loss(w->x, zeros(w, MLC_F32, 3, 2)))

WRONG(l1_loss_of_integers, DTYPE,
      "l1_loss: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)",
      mlc_l1_loss(w->i, w->i))

WRONG(l1_loss_reduced_somehow, ARG,
      "l1_loss: unknown reduction 4; see mlc_reduction",
      mlc_l1_loss_ex(w->x, w->x, &(mlc_loss_desc){(mlc_reduction)4}))

WRONG(smooth_l1_loss_by_less_than_nothing, ARG,
      "smooth_l1_loss: beta is -1; it must be finite and not negative",
      mlc_smooth_l1_loss_ex(w->x, w->x, &(mlc_smooth_l1_desc){MEAN, -1}))

WRONG(huber_loss_by_nothing, ARG,
      "huber_loss: delta is 0; it must be finite and over 0",
      mlc_huber_loss_ex(w->x, w->x, &(mlc_huber_desc){MEAN, 0}))

WRONG(huber_loss_of_null, ARG,
      "huber_loss: input 1 is NULL; look at what should have made it",
      mlc_huber_loss_ex(NULL, w->x, &(mlc_huber_desc){MEAN, 0}))

WRONG(bce_loss_of_other_shape, SHAPE,
      "bce_loss: x [2,3] and target [3,2] differ; they must have one shape",
      mlc_bce_loss_ex(w->x, zeros(w, MLC_F32, 3, 2), &(mlc_bce_desc){MEAN, w->x, NULL}))

WRONG(bce_loss_of_a_large_weight, SHAPE,
      "bce_loss: weight [3,2] does not broadcast to x [2,3]",
      mlc_bce_loss_ex(w->x, w->x, &(mlc_bce_desc){MEAN, zeros(w, MLC_F32, 3, 2), NULL}))

WRONG(bce_loss_reduced_somehow, ARG,
      "bce_loss: unknown reduction -1; see mlc_reduction",
      mlc_bce_loss_ex(w->x, w->x, &(mlc_bce_desc){(mlc_reduction)-1, w->x, NULL}))

WRONG(bce_loss_of_a_pos_weight, ARG,
      "bce_loss: pos_weight must be NULL; mlc_bce_with_logits_ex takes one",
      mlc_bce_loss_ex(w->x, w->x, &(mlc_bce_desc){MEAN, NULL, w->x}))

WRONG(bce_with_logits_of_other_dtype, DTYPE,
      "bce_with_logits: input 1 is f32, input 3 is f64; cast one of them with mlc_cast",
      mlc_bce_with_logits_ex(w->x, w->x, &(mlc_bce_desc){MEAN, w->d, NULL}))

WRONG(bce_with_logits_of_a_large_pos_weight, SHAPE,
      "bce_with_logits: pos_weight [2] does not broadcast to x [2,3]",
      mlc_bce_with_logits_ex(w->x, w->x,
                             &(mlc_bce_desc){MEAN, NULL, mlc_zeros(w->ctx, MLC_F32, mlc_dims1(2))}))

WRONG(bce_with_logits_of_null, ARG,
      "bce_with_logits: input 2 is NULL; look at what should have made it",
      mlc_bce_with_logits_ex(w->x, NULL, &(mlc_bce_desc){MEAN, w->x, w->x}))

WRONG(focal_loss_of_a_large_alpha, ARG,
      "focal_loss: alpha is 1.5; it must be at most 1",
      mlc_focal_loss_ex(w->x, w->x, &(mlc_focal_desc){MEAN, 1.5, 2}))

WRONG(focal_loss_of_a_negative_gamma, ARG,
      "focal_loss: gamma is -2; it must be finite and not negative",
      mlc_focal_loss_ex(w->x, w->x, &(mlc_focal_desc){MEAN, 0.25, -2}))

WRONG(focal_loss_reduced_somehow, ARG,
      "focal_loss: unknown reduction 9; see mlc_reduction",
      mlc_focal_loss_ex(w->x, w->x, &(mlc_focal_desc){(mlc_reduction)9, 0.25, 2}))

WRONG(kl_div_of_other_shape, SHAPE,
      "kl_div: x [2,3] and target [3,2] differ; they must have one shape",
      mlc_kl_div_ex(w->x, zeros(w, MLC_F32, 3, 2),
                    &(mlc_kl_div_desc){MLC_REDUCTION_BATCHMEAN, true}))

WRONG(hinge_loss_of_inf, ARG,
      "hinge_loss: margin is inf; it must be finite",
      mlc_hinge_loss_ex(w->x, w->x, &(mlc_hinge_desc){MEAN, (double)INFINITY}))

WRONG(hinge_embedding_loss_of_nan, ARG,
      "hinge_embedding_loss: margin is nan; it must be finite",
      mlc_hinge_embedding_loss_ex(w->x, w->x, &(mlc_hinge_embedding_desc){MEAN, (double)NAN}))

/* -- losses: of masks, distances, label sets -- */

WRONG(distillation_of_other_shape, SHAPE,
      "distillation_loss: student [2,3] and teacher [3,2] differ; they must have one shape",
      mlc_distillation_loss(w->x, zeros(w, MLC_F32, 3, 2), labels(w, 0, 1)))

WRONG(distillation_of_a_row, SHAPE,
      "distillation_loss: student must be [n,c], it is [3]",
      mlc_distillation_loss(mlc_select(w->x, 0, 0), w->x, labels(w, 0, 1)))

WRONG(distillation_without_labels, ARG,
      "distillation_loss: input 3 is NULL; look at what should have made it",
      mlc_distillation_loss(w->x, w->x, NULL))

WRONG(distillation_with_few_labels, SHAPE,
      "distillation_loss: logits [2,3] need labels [2], they are [1]",
      mlc_distillation_loss(w->x, w->x, mlc_slice(labels(w, 0, 1), 0, 0, 1, 1)))

WRONG(distillation_of_too_much, ARG,
      "distillation_loss: alpha is 2; it must be in [0, 1]",
      mlc_distillation_loss_ex(w->x, w->x, labels(w, 0, 1), &(mlc_distillation_desc){2, 2}))

WRONG(distillation_in_the_cold, ARG,
      "distillation_loss: temperature is 0; it must be finite and over 0",
      mlc_distillation_loss_ex(w->x, w->x, labels(w, 0, 1), &(mlc_distillation_desc){0.5, 0}))

WRONG(dice_loss_of_rows, SHAPE,
      "dice_loss: x must be [n,c,..], it is [2,3]",
      mlc_dice_loss(w->x, w->x))

WRONG(dice_loss_of_other_shape, SHAPE,
      "dice_loss: x [1,2,3] and target [2,3,1] differ; they must have one shape",
      mlc_dice_loss(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->x, 2)))

WRONG(dice_loss_smoothed_too_little, ARG,
      "dice_loss: smooth is -1; it must be finite and not negative",
      mlc_dice_loss_ex(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->x, 0),
                       &(mlc_dice_desc){MEAN, -1, false}))

WRONG(tversky_loss_of_a_negative_alpha, ARG,
      "tversky_loss: alpha is -1; it must be finite and not negative",
      mlc_tversky_loss_ex(w->x, w->x, &(mlc_tversky_desc){MEAN, -1, 0.5, 1e-5}))

WRONG(tversky_loss_of_a_negative_beta, ARG,
      "tversky_loss: beta is -1; it must be finite and not negative",
      mlc_tversky_loss_ex(w->x, w->x, &(mlc_tversky_desc){MEAN, 0.5, -1, 1e-5}))

WRONG(tversky_loss_of_integers, DTYPE,
      "tversky_loss: input 1 is i64, not a float; write mlc_cast(x, MLC_F32)",
      mlc_tversky_loss_ex(w->i, w->i, &(mlc_tversky_desc){MEAN, 0.5, 0.5, 1e-5}))

WRONG(triplet_margin_loss_of_other_shape, SHAPE,
      "triplet_margin_loss: anchor [2,3] and negative [3,2] differ; they must have one shape",
      mlc_triplet_margin_loss(w->x, w->x, zeros(w, MLC_F32, 3, 2)))

WRONG(triplet_margin_loss_of_scalars, SHAPE,
      "triplet_margin_loss: anchor must be [..,d], it is []",
      mlc_tensor *s = mlc_zeros(w->ctx, MLC_F32, mlc_dims0());
      mlc_triplet_margin_loss(s, s, s))

WRONG(triplet_margin_loss_without_margin, ARG,
      "triplet_margin_loss: margin is 0; it must be finite and over 0",
      mlc_triplet_margin_loss_ex(w->x, w->x, w->x, &(mlc_triplet_margin_desc){MEAN, 0, 2, false}))

WRONG(triplet_margin_loss_of_no_norm, ARG,
      "triplet_margin_loss: p is 0; it must be over 0",
      mlc_triplet_margin_loss_ex(w->x, w->x, w->x, &(mlc_triplet_margin_desc){MEAN, 1, 0, false}))

WRONG(triplet_margin_loss_of_null, ARG,
      "triplet_margin_loss: input 3 is NULL; look at what should have made it",
      mlc_triplet_margin_loss_ex(w->x, w->x, NULL, &(mlc_triplet_margin_desc){MEAN, 1, 2, true}))

WRONG(contrastive_loss_of_wide_targets, SHAPE,
      "contrastive_loss: x1 [2,3] needs a target [2], it is [2,3]",
      mlc_contrastive_loss(w->x, w->x, w->x))

WRONG(contrastive_loss_without_margin, ARG,
      "contrastive_loss: margin is 0; it must be finite and over 0",
      mlc_contrastive_loss_ex(w->x, w->x, labels(w, 0, 1), &(mlc_contrastive_desc){MEAN, 0}))

WRONG(cosine_embedding_loss_of_other_shape, SHAPE,
      "cosine_embedding_loss: x1 [2,3] and x2 [3,2] differ; they must have one shape",
      mlc_cosine_embedding_loss(w->x, zeros(w, MLC_F32, 3, 2), labels(w, 1, 1)))

WRONG(cosine_embedding_loss_of_a_wide_margin, ARG,
      "cosine_embedding_loss: margin is 2; it must be in [-1, 1]",
      mlc_cosine_embedding_loss_ex(w->x, w->x, labels(w, 1, 1),
                                   &(mlc_cosine_embedding_desc){MEAN, 2}))

WRONG(multilabel_margin_loss_of_few_labels, SHAPE,
      "multilabel_margin_loss: x [2,3] and target [2] differ; they must have one shape",
      mlc_multilabel_margin_loss(w->x, labels(w, 0, 1)))

WRONG(multilabel_margin_loss_of_float_labels, DTYPE,
      "multilabel_margin_loss: target is f32; write mlc_cast(target, MLC_I64)",
      mlc_multilabel_margin_loss(w->x, w->x))

WRONG(multilabel_margin_loss_of_cubes, SHAPE,
      "multilabel_margin_loss: x must be [n,c] or [c], it is [1,2,3]",
      mlc_multilabel_margin_loss(mlc_unsqueeze(w->x, 0), mlc_unsqueeze(w->i, 0)))

WRONG(multilabel_margin_loss_of_a_wrong_label, VALUE,
      "multilabel_margin_loss: index 7 at position 0 is not in [0,3), the size of the axis",
      mlc_multilabel_margin_loss(w->x, mlc_full(w->ctx, MLC_I64, mlc_dims2(2, 3), 7)))

/* -- modules -- */

WRONG(linear_without_inputs, ARG,
      "nn_linear: in is 0 and out 4; both must be positive; a desc starts from "
      "mlc_nn_linear_desc_make(in, out)",
      mlc_nn_linear(w->ctx, 0, 4))

WRONG(linear_larger_than_memory, SHAPE,
      "nn_linear: shape [4,4611686018427387904] has more elements than memory can hold",
      mlc_nn_linear(w->ctx, (int64_t)1 << 62, 4))

WRONG(linear_of_integers, DTYPE,
      "nn_linear: parameter 'weight' is i64; only buffers may be; take f32, and mlc_module_to for "
      "16 bits",
      mlc_nn_linear_desc d = mlc_nn_linear_desc_make(3, 4); d.has_dtype = true; d.dtype = MLC_I64;
      mlc_nn_linear_ex(w->ctx, &d))

WRONG(conv_larger_than_memory, SHAPE,
      "nn_conv: shape [4611686018427387904,3,3,3] has more elements than memory can hold",
      mlc_nn_conv2d(w->ctx, 3, (int64_t)1 << 62, 3, 1, 0))

WRONG(prelu_larger_than_memory, SHAPE,
      "nn_prelu: shape [4611686018427387904] has more elements than memory can hold",
      mlc_nn_prelu(w->ctx, (int64_t)1 << 62))

WRONG(batch_norm_larger_than_memory, SHAPE,
      "BatchNorm: shape [4611686018427387904] has more elements than memory can hold",
      mlc_nn_batch_norm(w->ctx, (int64_t)1 << 62))

WRONG(conv_of_a_kernel_too_large, ARG,
      "nn_conv: 2 axes, in 3, out 4, kernel 1048576, groups 1: 1 to 3 axes, positive sizes, a "
      "kernel below 2^20, a number of it for each axis or mlc_dims_all, channels that are "
      "multiples of groups, and padding with zeros where it is transposed; start from "
      "mlc_nn_conv_desc_make()",
      mlc_nn_conv2d(w->ctx, 3, 4, 1 << 20, 1, 0))

WRONG(upsample_by_too_much, ARG,
      "nn_upsample: scale is 32769; it must be 1 to 2^15",
      mlc_nn_upsample(w->ctx, 32769, MLC_INTERPOLATE_NEAREST))

WRONG(inverted_residual_expanded_too_much, ARG,
      "nn_inverted_residual: in is 4, expand 1048576; in must be below 2^40, expand positive and "
      "below 2^20",
      mlc_nn_inverted_residual(w->ctx, 4, 4, 1, 1 << 20))

WRONG(sklinear_of_too_many_terms, ARG,
      "nn_sklinear: in 4, out 2, num_terms 1048576, low_rank 1048576; all must be 1 or more, in "
      "and out below 2^31, num_terms times low_rank 2^30 at most; a desc starts from "
      "mlc_nn_sklinear_desc_make()",
      mlc_nn_sklinear(w->ctx, 4, 2, 1 << 20, 1 << 20))

WRONG(skconv_of_too_many_terms, ARG,
      "nn_skconv: num_terms 1048576, low_rank 2, of a convolution with out 5; all must be "
      "positive, num_terms times low_rank 2^20 at most, out below 2^31, the convolution as nn_conv "
      "takes it, neither transposed nor with an activation; a desc starts from "
      "mlc_nn_skconv_desc_make()",
      mlc_nn_skconv2d(w->ctx, 3, 5, 3, 1 << 20, 2))

WRONG(dropout_of_too_much, ARG,
      "nn_dropout: p is 1.5, not in [0, 1]",
      mlc_nn_dropout(w->ctx, 1.5))

WRONG(class_without_name, ARG,
      "module_create: the class needs a name",
      mlc_module_class c = {NULL, NULL, NULL, NULL, 0, NULL};
      mlc_module_create(w->ctx, &c, NULL, 0))

WRONG(forward_of_a_container, STATE,
      "in Parts: forward: the class has no forward and no call: it holds children; run those, or "
      "give the class a forward",
      mlc_module_class c = {"Parts", NULL, NULL, NULL, 0, NULL};
      mlc_forward(mlc_module_create(w->ctx, &c, NULL, 0), w->x))

WRONG(sequential_of_null, ARG,
      "nn_sequential_of: child 1 is NULL; look at what should have made it",
      mlc_module *two[2] = {mlc_nn_relu(w->ctx), NULL}; mlc_nn_sequential_of(w->ctx, 2, two))

WRONG(sequential_of_no_array, ARG,
      "nn_sequential_of: 2 children in NULL; give their number and an array of them",
      mlc_nn_sequential_of(w->ctx, 2, NULL))

WRONG(lambda_of_null, ARG,
      "nn_lambda: fn is NULL; give a function of user and x",
      mlc_nn_lambda(w->ctx, NULL, NULL))

static mlc_tensor *nothing_of(void *user, mlc_tensor *x)
{
    (void)user; (void)x;
    return NULL;
}

WRONG(lambda_that_returns_null, ARG,
      "in Lambda: nn_lambda: the function returned NULL without an error; return a tensor, or say "
      "by mlc_raise why not",
      mlc_forward(mlc_nn_lambda(w->ctx, nothing_of, NULL), w->x))

static mlc_nn_norm_desc norm_desc(int64_t size, int64_t groups, double eps)
{
    mlc_nn_norm_desc d = mlc_nn_norm_desc_make(size);
    d.groups = groups;
    d.eps = eps;
    return d;
}

WRONG(eval_end_without_begin, STATE,
      "eval_end: none is open on this Sequential; call mlc_eval_begin of the same module before",
      mlc_eval_end(w->net))

static void evaluate_deep(world *w)
{
    for (int i = 0; i < 9; i++)
        mlc_eval_begin(w->net);
}

WRONG(eval_begin_too_deep, STATE,
      "eval_begin: 8 are open on a Sequential; is a mlc_eval_end missing?",
      evaluate_deep(w))

static mlc_module *two_layers(world *w, int64_t hidden, const char *name)
{
    mlc_module *net = mlc_nn_sequential(w->ctx);
    mlc_module_add(net, mlc_nn_linear(w->ctx, 3, hidden));
    mlc_module_add(net, mlc_nn_relu(w->ctx));
    mlc_module_add_named(net, name, mlc_nn_linear(w->ctx, hidden, 2));
    return net;
}

WRONG(copy_of_another_shape, SHAPE,
      "module_copy: '0.weight' is [4,3] in to and [5,3] in from; both must have one shape",
      mlc_module_copy(w->net, two_layers(w, 5, "2")))

WRONG(copy_of_another_name, ARG,
      "module_copy: from has no '2.weight'; both must have the same names",
      mlc_module_copy(w->net, two_layers(w, 4, "out")))

WRONG(copy_of_more, ARG,
      "module_copy: to has no '3.weight'; both must have the same names",
      mlc_module *more = two_layers(w, 4, "2"); mlc_module_add(more, mlc_nn_linear(w->ctx, 2, 2));
      mlc_module_copy(w->net, more))

WRONG(copy_of_another_dtype, DTYPE,
      "module_copy: '0.weight' is f32 in to and f64 in from; see mlc_module_to",
      mlc_module *wide = two_layers(w, 4, "2"); mlc_module_to(wide, MLC_F64);
      mlc_module_copy(w->net, wide))

WRONG(copy_of_null, ARG,
      "module_copy: from is NULL; give two modules of one context",
      mlc_module_copy(w->net, NULL))

WRONG(mix_of_too_much, ARG,
      "module_mix: share is 1.5, not in [0, 1]",
      mlc_module_mix(w->net, w->net, 1.5))

static void state_of(world *w, mlc_module *from, size_t less)
{
    char         block[1024];
    const size_t bytes = mlc_state_bytes(from);
    CHECK_EQ(mlc_state_save(from, block, bytes), MLC_OK);
    mlc_state_load(w->net, block, bytes - less);
}

WRONG(state_of_another_shape, ARG,
      "state_load: the block has no '0.weight' f32 [4,3] at its place; it is of another network, "
      "or this one has changed since mlc_state_save",
      state_of(w, two_layers(w, 5, "2"), 0))

WRONG(state_of_another_name, ARG,
      "state_load: the block has no '2.weight' f32 [2,4] at its place; it is of another network, "
      "or this one has changed since mlc_state_save",
      state_of(w, two_layers(w, 4, "out"), 0))

WRONG(state_of_more, ARG,
      "state_load: the block has 6 parameters and buffers, this network 4; it is of another one",
      mlc_module *more = two_layers(w, 4, "2"); mlc_module_add(more, mlc_nn_linear(w->ctx, 2, 2));
      state_of(w, more, 0))

WRONG(state_that_is_cut_off, ARG,
      "state_load: 156 bytes, which mlc_state_save has not written; give all of its block",
      state_of(w, w->net, 4))

WRONG(state_of_nothing, ARG,
      "state_load: 0 bytes at NULL, which mlc_state_save has not written; give all of its block",
      mlc_state_load(w->net, NULL, 0))

WRONG(state_in_too_little, ARG,
      "state_save: a block of 8 bytes; the state takes 160, as mlc_state_bytes says",
      char block[8]; mlc_state_save(w->net, block, sizeof block))

static void releases(mlc_module *m)
{
    (void)m;
}

static void start_anew(world *w, const char *glob, mlc_init kind, double b)
{
    mlc_init_desc d = mlc_init_desc_make(kind);
    d.b = b;
    mlc_module_init(w->net, glob, &d);
}

WRONG(init_of_nothing, ARG,
      "module_init: no parameter matches '*.wieght'; mlc_param_next walks through all names",
      start_anew(w, "*.wieght", MLC_INIT_ORTHOGONAL, 1))

WRONG(init_of_a_vector, ARG,
      "module_init: '0.bias' is [4]; this kind needs [out,in,..]: choose names by a glob",
      start_anew(w, NULL, MLC_INIT_XAVIER_NORMAL, 1))

WRONG(init_without_desc, ARG,
      "module_init: desc is NULL; start from mlc_init_desc_make(kind)",
      mlc_module_init(w->net, NULL, NULL))

WRONG(init_of_a_negative_deviation, ARG,
      "module_init: kind 3 with a 0, b -1, [lo,hi] [-2,2], gain 1; all must be finite, a <= b if "
      "uniform, b not negative if normal, over 0 and [lo,hi] within 37 of it from a if truncated",
      start_anew(w, NULL, MLC_INIT_NORMAL, -1))

static void declare_orthogonal(world *w)
{
    mlc_param_desc d;
    memset(&d, 0, sizeof d);
    d.shape = mlc_dims2(2, 2);
    d.init = MLC_INIT_ORTHOGONAL;
    mlc_module_declare(w->net, "w", &d);
}

WRONG(declare_with_an_init_of_later, ARG,
      "module_declare: 'w': init 9 is mlc_module_init's",
      declare_orthogonal(w))

WRONG(clone_of_a_class_that_owns, UNSUPPORTED,
      "module_clone: class Owner has a release and no clone; give its mlc_module_class one, which "
      "copies what its user data owns",
      mlc_module_class c = {"Owner", NULL, releases, NULL, 0, NULL};
      mlc_module_add(w->net, mlc_module_create(w->ctx, &c, NULL, 0));
      mlc_module_clone(w->net))

WRONG(norm_of_no_size, ARG,
      "LayerNorm: size is 0; it must be 1 or more; a desc starts from mlc_nn_norm_desc_make(size)",
      const mlc_nn_norm_desc d = norm_desc(0, 1, 0); mlc_nn_layer_norm_ex(w->ctx, &d))

WRONG(norm_of_a_negative_eps, ARG,
      "RMSNorm: eps is -1; it must be finite and not negative",
      const mlc_nn_norm_desc d = norm_desc(4, 1, -1); mlc_nn_rms_norm_ex(w->ctx, &d))

WRONG(norm_of_no_groups, ARG,
      "GroupNorm: groups is 0; it must be 1 or more",
      const mlc_nn_norm_desc d = norm_desc(4, 0, 1); mlc_nn_group_norm_ex(w->ctx, &d))

WRONG(norm_of_groups, ARG,
      "LayerNorm: groups is 2; a norm of groups is mlc_nn_group_norm_ex",
      const mlc_nn_norm_desc d = norm_desc(4, 2, 1); mlc_nn_layer_norm_ex(w->ctx, &d))

WRONG(declare_without_desc, ARG,
      "module_declare: desc is NULL; start from mlc_param_desc_make(shape)",
      mlc_module_declare(w->net, "w", NULL))

WRONG(declare_with_a_dot, ARG,
      "module_declare: name 'a.b' must have 1 to 63 bytes and no dot",
      declare(w, "a.b", MLC_F32, false))

WRONG(declare_integers, DTYPE,
      "module_declare: parameter 'count' is i64; only buffers may be; take f32, and "
      "mlc_module_to for 16 bits",
      declare(w, "count", MLC_I64, false))

WRONG(declare_a_taken_name, ARG,
      "module_declare: name '0' is taken; choose another",
      declare(w, "0", MLC_F32, false))

WRONG(tie_no_parameter, ARG,
      "module_tie: 'shared' needs a parameter of a module of this context",
      mlc_module_tie(w->net, "shared", w->x))

WRONG(add_null, ARG,
      "module_add: child is NULL; look at what should have made it",
      mlc_module_add(w->net, NULL))

WRONG(add_twice, ARG,
      "module_add: the child '1' already has a parent; make another, or share its parameters by "
      "mlc_module_tie",
      mlc_module_add(mlc_nn_sequential(w->ctx), mlc_module_child(w->net, 1)))

WRONG(add_to_itself, ARG,
      "module_add: a module cannot contain itself; add it elsewhere",
      mlc_module_add(w->net, w->net))

WRONG(add_of_other_context, ARG,
      "module_add: the child belongs to another context; make it in the parent's",
      mlc_module_add(w->net, mlc_nn_relu(w->other)))

WRONG(param_unknown, ARG,
      "module_param: there is no '0.wieght'; mlc_param_next walks through all names",
      mlc_module_param(w->net, "0.wieght"))

WRONG(freeze_unknown, ARG,
      "module_freeze: no parameter matches 'body.*'; mlc_param_next walks through all names",
      mlc_module_freeze(w->net, "body.*", true))

WRONG(forward_of_wrong_width, SHAPE,
      "in 0 (Linear): linear: x [2,5] must end in the in of w [4,3]: 5 vs 3; x is [..,in], w "
      "[out,in]",
      mlc_forward(w->net, zeros(w, MLC_F32, 2, 5)))

WRONG(forward_of_wrong_dtype, DTYPE,
      "in 0 (Linear): linear: input 1 is f64, input 2 is f32; cast one of them with mlc_cast",
      mlc_forward(w->net, w->d))

static mlc_tensor *wrong_epilogue(world *w, double dropout, mlc_tensor *residual)
{
    const mlc_epilogue e = {MLC_ACT_RELU, dropout, residual};
    return mlc_linear_ex(zeros(w, MLC_F32, 2, 3), zeros(w, MLC_F32, 4, 3), NULL, &e);
}

WRONG(linear_with_a_residual_of_another_shape, SHAPE,
      "linear: residual must be [2,4], as the result is, it is [2,3]; expand it",
      wrong_epilogue(w, 0, zeros(w, MLC_F32, 2, 3)))

WRONG(linear_with_a_residual_of_another_dtype, DTYPE,
      "linear: input 1 is f32, input 3 is f64; cast one of them with mlc_cast",
      wrong_epilogue(w, 0, zeros(w, MLC_F64, 2, 4)))

WRONG(linear_with_a_dropout_that_is_no_probability, ARG,
      "linear: dropout: p is 1.5, not in [0, 1]",
      wrong_epilogue(w, 1.5, NULL))

WRONG(forward_without_module, ARG,
      "forward: the module is NULL; look at what should have made it",
      mlc_forward(NULL, w->x))

WRONG(forward_of_null, ARG,
      "in Sequential: forward: input 1 is NULL; look at what should have made it",
      mlc_tensor *none = NULL, *y; mlc_module_forward(w->net, &none, 1, &y, 1))

WRONG(forward_of_nothing, ARG,
      "in Sequential: forward: it needs inputs and outputs; there are 0 and 1",
      mlc_tensor *y; mlc_module_forward(w->net, &w->x, 0, &y, 1))

WRONG(flatten_of_a_scalar, SHAPE,
      "in Flatten: flatten: the input is a scalar, []; it must have a batch axis",
      mlc_forward(mlc_nn_flatten(w->ctx), mlc_sum(w->x, mlc_dims0(), false)))

/* -- optimizers -- */

WRONG(sgd_rate_negative, ARG,
      "sgd: lr is -0.5; it must be at least 0 and below inf",
      mlc_sgd(w->net, -0.5))

WRONG(sgd_nesterov_alone, ARG,
      "sgd: nesterov with momentum 0 and dampening 0; it needs momentum and no dampening",
      sgd_of(w, 0.1, 0, true))

WRONG(adam_beta_of_one, ARG,
      "adam: beta1 is 1; it must be at least 0 and below 1",
      adam_of(w, 0.1, 1))

WRONG(adamw_rate_nan, ARG,
      "adamw: lr is nan; it must be at least 0 and below inf",
      mlc_adamw(w->net, (double)NAN))

WRONG(set_lr_negative, ARG,
      "optim_set_lr: lr is -1; it must be finite and not negative",
      mlc_optim_set_lr(w->opt, -1))

WRONG(group_without_desc, ARG,
      "optim_group: glob is NULL; \"*\" matches all names",
      mlc_optim_group(w->opt, NULL, NULL))

WRONG(group_unknown, ARG,
      "optim_group: no trained parameter matches 'body.*'; mlc_param_next walks through all names",
      group(w, "body.*"))

WRONG(group_frozen, ARG,
      "optim_group: no trained parameter matches '0.*'; those that do are frozen: call "
      "mlc_module_freeze with false, then mlc_optim_group",
      (mlc_module_freeze(w->net, "0.*", true), mlc_module_rebuild(w->net), group(w, "0.*")))

WRONG(clip_by_both, ARG,
      "optim_clip: norm 1, value 2: both must be over 0 and one of them infinity; start from "
      "mlc_clip_desc_make()",
      clip(w, 1, 2))

WRONG(clip_negative, ARG,
      "optim_clip: norm 0, value inf: both must be over 0 and one of them infinity; start from "
      "mlc_clip_desc_make()",
      clip(w, 0, INF))

static mlc_status clip_each(world *w)
{
    mlc_clip_desc d = mlc_clip_desc_make();
    d.each = true;
    return mlc_optim_clip(w->opt, &d);
}

WRONG(clip_each_without_norm, ARG,
      "optim_clip: each is set, and norm is infinity; write the longest gradient of a parameter in "
      "norm",
      clip_each(w))

WRONG(accumulate_nothing, ARG,
      "optim_accumulate: n is 0; 1 updates at every call",
      mlc_optim_accumulate(w->opt, 0))

WRONG(scaler_below_its_floor, ARG,
      "optim_scaler: init 1e-12 in [floor 5.96046e-08, cap 1.67772e+07], growth 2, backoff 0.5, "
      "interval 2000, patience 50: growth is at least 1, backoff in (0, 1], the others positive; "
      "start from mlc_scaler_desc_make()",
      scaler(w, 1e-12))

WRONG(resume_without_scaler, STATE,
      "optim_scaler_resume: there is no scaler; call mlc_optim_scaler",
      resume(w, 2))

WRONG(resume_with_a_scale_of_nothing, ARG,
      "optim_scaler_resume: scale 0, 0 good, 0 skipped, 0 in a row: that is no state of this "
      "scaler",
      scaler(w, 1); resume(w, 0))

WRONG(step_without_module, STATE,
      "optim_step: the optimizer's module was freed; free the optimizer before it",
      mlc_module_free(w->net); mlc_optim_step(w->opt))

/* -- safetensors and state dicts -- */

WRONG(load_no_file, IO,
      "cannot open 'DIR/none.safetensors': No such file or directory",
      mlc_safetensors_open(w->ctx, at(w, "none.safetensors")))

WRONG(load_without_path, ARG,
      "load: path is NULL; give a file's name",
      mlc_safetensors_open(w->ctx, NULL))

WRONG(load_into_nothing, ARG,
      "load: path, list or n is NULL; it takes all three",
      mlc_safetensors_load(w->ctx, at(w, "a.safetensors"), NULL, NULL))

WRONG(load_a_short_file, IO,
      "'DIR/b': 5 bytes are no safetensors file, which begins with 8 bytes of header size",
      mlc_safetensors_open(w->ctx, put(w, "b", "short")))

WRONG(load_a_text, IO,
      "'DIR/b': header of 2338328219631577172 bytes in a file of 25; is it a safetensors file?",
      mlc_safetensors_open(w->ctx, put(w, "b", "This is no tensor at all.")))

WRONG(load_what_torch_saved, IO,
      "'DIR/b': header of 3255307777022839632 bytes in a file of 14; as torch.save writes them? "
      "Use safetensors.torch.save_file",
      mlc_safetensors_open(w->ctx, put(w, "b", "PK\3\4----------")))

WRONG(load_what_old_torch_saved, IO,
      "'DIR/b': header of 3255307777713439360 bytes in a file of 14; as torch.save writes them? "
      "Use safetensors.torch.save_file",
      mlc_safetensors_open(w->ctx, put(w, "b", "\x80\2------------")))

WRONG(load_a_module_from_nowhere, ARG,
      "load: path is NULL; give a file's name",
      mlc_load(w->net, NULL))

WRONG(load_a_gzip, IO,
      "'DIR/b.gz': looks like gzip (1F 8B); gunzip it first",
      mlc_idx_load(w->ctx, put(w, "b.gz", "\x1F\x8B.......")))

WRONG(get_unknown, ARG,
      "'DIR/a.safetensors' has no tensor named 'y'; mlc_safetensors_name lists them",
      mlc_safetensors_get(mlc_safetensors_open(w->ctx, at(w, "a.safetensors")), "y"))

WRONG(save_two_of_a_name, ARG,
      "save: two tensors named 'x'; rename one",
      save(w, "x", "x"))

WRONG(save_without_a_name, ARG,
      "save: entry 1 has no name or tensor; give both",
      save(w, "x", NULL))

WRONG(save_as_metadata, ARG,
      "save: name of entry 1 is not UTF-8 or is __metadata__; rename it",
      save(w, "x", "__metadata__"))

WRONG(save_without_path, ARG,
      "save: no path or no list; it takes both",
      mlc_named x = {"x", w->x}; mlc_safetensors_save(w->ctx, NULL, &x, 1, NULL))

WRONG(save_half_a_pair, ARG,
      "save: metadata must be pairs of UTF-8 strings, ended by NULL",
      mlc_named x = {"x", w->x}; const char *half[2] = {"key", NULL}; mlc_safetensors_save(w->ctx,
      at(w, "b.safetensors"), &x, 1, half))

WRONG(state_of_other_names, IO,
      "load 'DIR/a.safetensors': Missing key(s) in state_dict: \"0.weight\", \"0.bias\", "
      "\"2.weight\", \"2.bias\". Unexpected key(s) in state_dict: \"i\", \"x\".",
      mlc_load(w->net, at(w, "a.safetensors")))

WRONG(state_of_another_net, SHAPE,
      "load 'DIR/net.safetensors': Missing key(s) in state_dict: \"2.weight\", \"2.bias\". size "
      "mismatch for 0.weight: copying a param with shape [4, 5] from checkpoint, the shape in "
      "current model is [4, 3].",
      load_other(w, mlc_nn_linear(w->ctx, 5, 4)))

WRONG(state_renamed_by_nothing, ARG,
      "load: rename 0 has no name; give from and to",
      load_renamed(w, "0.*", NULL))

WRONG(state_renamed_with_more_stars, ARG,
      "load: rename '0.*' to '*.*': at most 8 '*', and not more in the second",
      load_renamed(w, "0.*", "*.*"))

WRONG(state_renamed_to_one, ARG,
      "load 'DIR/net.safetensors': '0.weight' and '2.weight' are both named '0.weight' after "
      "prefix and renames",
      load_renamed(w, "*.weight", "0.weight"))

/* -- other files -- */

WRONG(npy_of_a_text, IO,
      "'DIR/b.npy': no .npy file: it must begin with \\x93NUMPY",
      mlc_npy_load(w->ctx, put(w, "b.npy", "no array, but a text")))

WRONG(npy_without_path, ARG,
      "npy_load: path is NULL; give a file's name",
      mlc_npy_load(w->ctx, NULL))

WRONG(npy_save_nowhere, ARG,
      "npy_save: no path; give a file's name",
      mlc_npy_save(w->x, ""))

WRONG(npz_of_a_text, IO,
      "'DIR/b.npz': no .npz file: the zip's end record is missing",
      const mlc_named *l; int64_t n; mlc_npz_load(w->ctx, put(w, "b.npz",
      "no archive, but a text that is long enough"), &l, &n))

WRONG(npz_of_one_name, ARG,
      "npz_save: two arrays named 'x'; rename one",
      save_npz(w, "x", "x"))

WRONG(npz_without_a_name, ARG,
      "npz_save: entry 1 has no name or tensor; give both",
      save_npz(w, "x", NULL))

WRONG(csv_ragged, IO,
      "'DIR/b.csv': line 2 has 2 columns, the first row 3; rows must have as many",
      csv(w, "1,2,3\n4,5\n", MLC_F32))

WRONG(csv_of_words, IO,
      "'DIR/b.csv': line 2, column 2: 'four' is not a number",
      csv(w, "1,2\n3,four\n", MLC_F32))

WRONG(csv_without_rows, IO,
      "'DIR/b.csv': no rows; there must be one",
      csv(w, "\n# none\n", MLC_F32))

WRONG(csv_as_bytes, ARG,
      "csv_load: dtype u8; it reads f32, f64 or i64",
      csv(w, "1,2\n", MLC_U8))

WRONG(csv_of_cubes, SHAPE,
      "csv_save: the tensor is [1,2,3]; it must be [rows] or [rows,columns], not empty",
      mlc_csv_save(mlc_unsqueeze(w->x, 0), at(w, "b.csv"), NULL))

WRONG(table_column_unknown, ARG,
      "table_column: column 2 of 2; they count from 0",
      mlc_table_column(table(w, "a,b\n1,2\n"), 2))

WRONG(table_row_unknown, ARG,
      "table_text: row 1 of 1; they count from 0",
      mlc_table_text(table(w, "a,b\n1,2\n"), 1, 0))

WRONG(idx_of_a_text, IO,
      "'DIR/b': begins with 31 32 33 34, which is no IDX file: 00 00, type, axes",
      mlc_idx_load(w->ctx, put(w, "b", "1234")))

WRONG(idx_without_path, ARG,
      "idx_load: path is NULL; give a file's name",
      mlc_idx_load(w->ctx, NULL))

WRONG(idx_of_i64, DTYPE,
      "idx_save: i64 [2,3]; it writes u8, i8, i32, f32, f64 of 1 to 8 axes; cast it with mlc_cast",
      mlc_idx_save(w->i, at(w, "b")))

WRONG(cifar_of_5, ARG,
      "cifar_load: no path, or 5 classes; it reads 10 or 100",
      mlc_cifar_load(w->ctx, at(w, "a.csv"), 5, NULL))

WRONG(cifar_of_a_text, IO,
      "'DIR/a.csv': 12 bytes are no records of 3073 bytes (CIFAR-10)",
      mlc_cifar_load(w->ctx, at(w, "a.csv"), 10, NULL))

/* -- data and scores -- */

WRONG(loader_of_nothing, ARG,
      "loader_create: x is NULL; it has the rows to load; start from "
      "mlc_loader_desc_make(x, y, batch)",
      loader(w, NULL, NULL, 2))

WRONG(loader_of_negative_batches, ARG,
      "loader_create: batch is -2; it must be 1 or more",
      loader(w, w->x, NULL, -2))

WRONG(loader_of_no_rows, ARG,
      "loader_create: the data set is empty: x [0,3]; it must have rows",
      loader(w, zeros(w, MLC_F32, 0, 3), NULL, 2))

WRONG(loader_of_other_rows, SHAPE,
      "loader_create: x [2,3] and y [3,1] differ in rows; their first axes must be as long",
      loader(w, w->x, zeros(w, MLC_F32, 3, 1), 2))

WRONG(loader_of_other_context, ARG,
      "loader_create: x or y belongs to another context; make both in the loader's",
      loader(w, w->foreign, NULL, 2))

WRONG(accuracy_without_labels, ARG,
      "accuracy: labels is NULL; it takes both",
      mlc_accuracy(w->x, NULL))

WRONG(accuracy_of_integers, DTYPE,
      "accuracy: scores are i64 and labels f32; they must be f32 or f64, and i64",
      mlc_accuracy(w->i, w->x))

WRONG(accuracy_of_few_labels, SHAPE,
      "accuracy: scores [2,3] must be [..,c] and labels [1] the [..] of them, and not empty",
      mlc_accuracy(w->x, mlc_slice(labels(w, 0, 1), 0, 0, 1, 1)))

/* On a device memory of the host is refused before, and what a file's view would be is a copy. */
static bool host_only(const wrong *w)
{
    return strncmp(w->name, "wrap_", 5) == 0 || strncmp(w->name, "view_", 5) == 0;
}

static bool world_make(world *w)
{
    mlc_ctx_desc d = test_desc();
    memset(w, 0, sizeof *w);
    d.threads = 1;
    w->files = box_open("a.safetensors");
    w->ctx = mlc_ctx_create(&d);
    w->other = mlc_ctx_create(&d);
    w->x = counted(w->ctx, MLC_F32, mlc_dims2(2, 3));
    w->g = counted(w->ctx, MLC_F32, mlc_dims2(2, 3));
    w->d = counted(w->ctx, MLC_F64, mlc_dims2(2, 3));
    w->i = counted(w->ctx, MLC_I64, mlc_dims2(2, 3));
    w->foreign = counted(w->other, MLC_F32, mlc_dims2(2, 3));
    mlc_set_requires_grad(w->g, true);
    w->net = mlc_nn_sequential(w->ctx);
    mlc_module_add(w->net, mlc_nn_linear(w->ctx, 3, 4));
    mlc_module_add(w->net, mlc_nn_relu(w->ctx));
    mlc_module_add(w->net, mlc_nn_linear(w->ctx, 4, 2));
    w->opt = mlc_sgd(w->net, 0.1);
    mlc_named list[2] = {{"i", w->i}, {"x", w->x}};
    return CHECK_EQ(mlc_safetensors_save(w->ctx, w->files.path, list, 2, NULL), MLC_OK) &&
           CHECK(put(w, "a.csv", "1,2,3\n4,5,6\n") != NULL) && CHECK_OK(w->ctx);
}

/* -- descs that are half set -- */

static mlc_status fit_of(world *w, mlc_fit_desc d)
{
    mlc_loader *l = loader(w, w->x, mlc_zeros(w->ctx, MLC_F32, mlc_dims2(2, 2)), 2);
    return mlc_fit(w->net, w->opt, l, &d, NULL);
}

static mlc_fit_desc fit_desc(void) { return mlc_fit_desc_make(mlc_mse_loss); }

#define SET_AND_0(what, list) \
    what ": " list " is set and n_" list " is 0; write in n_" list " how many there are, or set " \
    "neither"
#define NULL_AND_2(what, list) \
    what ": " list " is NULL and n_" list " is 2; write in n_" list " how many there are, or " \
    "set neither"
#define NO_FLAG(what, field) \
    what ": " field " is set and has_" field " is false; write desc.has_" field " = true, or " \
    "leave " field " as it was made"

WRONG(fit_with_metrics_without_a_count, ARG, SET_AND_0("fit", "metrics"),
      mlc_fit_desc d = fit_desc(); mlc_fit_metric m = {"a", NULL, true};
      d.metrics = &m; fit_of(w, d))

WRONG(fit_with_a_count_without_metrics, ARG, NULL_AND_2("fit", "metrics"),
      mlc_fit_desc d = fit_desc(); d.n_metrics = 2; fit_of(w, d))

WRONG(fit_with_callbacks_without_a_count, ARG, SET_AND_0("fit", "callbacks"),
      mlc_fit_desc d = fit_desc(); mlc_callback *c[1] = {mlc_on_nan(w->ctx, 1)};
      d.callbacks = c; fit_of(w, d))

WRONG(fit_with_a_count_without_callbacks, ARG, NULL_AND_2("fit", "callbacks"),
      mlc_fit_desc d = fit_desc(); d.n_callbacks = 2; fit_of(w, d))

WRONG(fit_with_autocast_without_its_flag, ARG, NO_FLAG("fit", "autocast"),
      mlc_fit_desc d = fit_desc(); d.autocast = MLC_BF16; fit_of(w, d))

WRONG(fit_with_a_seed_without_its_flag, ARG, NO_FLAG("fit", "seed"),
      mlc_fit_desc d = fit_desc(); d.seed = 7; fit_of(w, d))

WRONG(evaluate_with_a_count_without_metrics, ARG, NULL_AND_2("evaluate", "metrics"),
      mlc_fit_desc d = fit_desc(); d.n_metrics = 2;
      mlc_evaluate(w->net, loader(w, w->x, w->x, 2), &d, NULL))

WRONG(evaluate_with_autocast_without_its_flag, ARG, NO_FLAG("evaluate", "autocast"),
      mlc_fit_desc d = fit_desc(); d.autocast = MLC_F16;
      mlc_evaluate(w->net, loader(w, w->x, w->x, 2), &d, NULL))

WRONG(estimate_with_autocast_without_its_flag, ARG, NO_FLAG("estimate_memory", "autocast"),
      mlc_estimate_desc d = mlc_estimate_desc_make(mlc_mse_loss, NULL); mlc_memory m;
      d.autocast = MLC_BF16; mlc_estimate_memory(w->net, mlc_dims2(2, 3), &d, &m))

WRONG(estimate_with_a_target_without_its_flag, ARG, NO_FLAG("estimate_memory", "target_shape"),
      mlc_estimate_desc d = mlc_estimate_desc_make(mlc_mse_loss, NULL); mlc_memory m;
      d.target_shape = mlc_dims2(2, 2); mlc_estimate_memory(w->net, mlc_dims2(2, 3), &d, &m))

WRONG(autocast_with_a_count_without_rules, ARG, NULL_AND_2("autocast_begin", "rules"),
      mlc_autocast_desc d = mlc_autocast_desc_make(MLC_BF16); d.n_rules = 2;
      mlc_autocast_begin_ex(w->ctx, &d))

WRONG(autocast_with_rules_without_a_count, ARG, SET_AND_0("autocast_begin", "rules"),
      mlc_autocast_desc d = mlc_autocast_desc_make(MLC_BF16);
      mlc_autocast_rule r = {"mul", MLC_F32}; d.rules = &r; mlc_autocast_begin_ex(w->ctx, &d))

WRONG(run_with_parts_without_a_count, ARG, SET_AND_0("run_save", "parts"),
      mlc_run r; memset(&r, 0, sizeof r); mlc_run_part p = {"a", w->host, 4}; r.parts = &p;
      mlc_run_save(w->ctx, at(w, "r"), &r))

WRONG(checkpoint_with_parts_without_a_count, ARG, SET_AND_0("on_checkpoint", "parts"),
      mlc_checkpoint_desc d = mlc_checkpoint_desc_make("r"); mlc_run_part p = {"a", w->host, 4};
      d.parts = &p; mlc_on_checkpoint(w->ctx, &d))

WRONG(callback_with_a_count_without_parts, ARG, NULL_AND_2("callback_create", "parts"),
      mlc_callback *c = mlc_on_nan(w->ctx, 1); c->n_parts = 2; mlc_callback_create(w->ctx, c))

WRONG(load_with_renames_without_a_count, ARG, SET_AND_0("load", "renames"),
      mlc_load_desc d = mlc_load_desc_make(); mlc_rename r = {"a", "b", 0, 0, 0, 0, 0, 0};
      d.renames = &r; mlc_load_ex(w->net, at(w, "a.safetensors"), &d))

WRONG(save_with_a_count_without_renames, ARG, NULL_AND_2("save", "renames"),
      mlc_save_desc d = mlc_save_desc_make(); d.n_renames = 2;
      mlc_save_ex(w->net, at(w, "r"), &d))

WRONG(table_with_types_without_a_count, ARG, SET_AND_0("table_load", "types"),
      mlc_csv_desc d = mlc_table_desc_make(); mlc_column c = MLC_COLUMN_TEXT; d.types = &c;
      mlc_table_load(w->ctx, at(w, "a.csv"), &d))

WRONG(dataset_of_columns_without_a_count, ARG, SET_AND_0("dataset_table", "columns"),
      mlc_dataset_table_desc d = mlc_dataset_table_desc_make(NULL); const char *c = "a";
      d.columns = &c; mlc_dataset_table(w->ctx, table(w, "a,b\n1,2\n"), &d))

WRONG(dataset_of_a_count_without_columns, ARG, NULL_AND_2("dataset_table", "columns"),
      mlc_dataset_table_desc d = mlc_dataset_table_desc_make(NULL); d.n_columns = 2;
      mlc_dataset_table(w->ctx, table(w, "a,b\n1,2\n"), &d))

WRONG(ignored_label_without_its_flag, ARG, NO_FLAG("cross_entropy", "ignore_index"),
      mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make(); d.ignore_index = -100;
      mlc_cross_entropy_ex(w->g, labels(w, 0, 1), &d))

WRONG(nll_of_an_ignored_label_without_its_flag, ARG, NO_FLAG("nll_loss", "ignore_index"),
      mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make(); d.ignore_index = 1;
      mlc_nll_loss_ex(w->g, labels(w, 0, 1), &d))

WRONG(padding_without_its_flag, ARG, NO_FLAG("embedding", "padding_index"),
      mlc_embedding_desc d = mlc_embedding_desc_make(); d.padding_index = 1;
      mlc_embedding_ex(labels(w, 0, 1), w->g, &d))

WRONG(padding_of_a_layer_without_its_flag, ARG, NO_FLAG("nn_embedding", "padding_index"),
      mlc_nn_embedding_desc d = mlc_nn_embedding_desc_make(4, 2);
      d.embedding.padding_index = 1; mlc_nn_embedding_ex(w->ctx, &d))

WRONG(scale_without_its_flag, ARG, NO_FLAG("attention", "scale"),
      mlc_attention_desc d = mlc_attention_desc_make(); d.scale = 0.5;
      mlc_tensor *q = mlc_zeros(w->ctx, MLC_F32, mlc_dims4(1, 1, 2, 4));
      mlc_attention_ex(q, q, q, &d))

WRONG(rotary_without_its_flag, ARG, NO_FLAG("nn_multihead_attention", "rotary"),
      mlc_nn_multihead_attention_desc d = mlc_nn_multihead_attention_desc_make(8, 2);
      d.rotary.base = 500000; mlc_nn_multihead_attention_ex(w->ctx, &d))

WRONG(rotary_of_a_layer_without_its_flag, ARG,
      NO_FLAG("nn_transformer_encoder_layer", "rotary"),
      mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 2);
      d.rotary.neighbours = true; mlc_nn_transformer_encoder_layer(w->ctx, &d))

WRONG(rotary_of_a_model_with_other_positions, ARG,
      "nn_gpt: layer.rotary is set and positions is another; write desc.positions = "
      "MLC_POSITIONS_ROTARY",
      mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(8, 8, 1, 8, 2); d.layer.rotary.base = 500000;
      mlc_nn_gpt(w->ctx, &d))

WRONG(alibi_of_a_model_with_other_positions, ARG,
      "nn_bert: layer.alibi is set and positions is another; write desc.positions = "
      "MLC_POSITIONS_ALIBI",
      mlc_nn_bert_desc d = mlc_nn_bert_desc_make(8, 8, 1, 8, 2); d.layer.alibi = true;
      mlc_nn_bert(w->ctx, &d))

WRONG(stop_tokens_without_a_count, ARG, SET_AND_0("generate", "stop"),
      mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(8, 8, 1, 8, 2);
      mlc_module *net = mlc_nn_gpt(w->ctx, &g); mlc_cache_desc c = mlc_cache_desc_make(1, 8);
      mlc_generate_desc d = mlc_generate_desc_make(2); int64_t stop = 1; d.stop = &stop;
      mlc_generate(net, mlc_cache_create(net, &c), mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 2)),
                   &d, NULL, NULL))

WRONG(sketched_seed_without_its_flag, ARG, NO_FLAG("nn_sklinear", "seed"),
      mlc_nn_sklinear_desc d = mlc_nn_sklinear_desc_make(8, 8, 1, 2); d.seed = 5;
      mlc_nn_sklinear_ex(w->ctx, &d))

WRONG(sketched_seed_of_a_convolution_without_its_flag, ARG, NO_FLAG("nn_skconv", "seed"),
      mlc_nn_skconv_desc d = mlc_nn_skconv_desc_make(2, 3, 4, 3, 1, 2); d.seed = 5;
      mlc_nn_skconv(w->ctx, &d))

/* An object that could not be made: the text is in the context of another argument. */
#define NO_OBJECT(what, object) \
    what ": " object " is NULL; look at what should have made it"

WRONG(forward_of_no_module, ARG, NO_OBJECT("forward", "the module"), mlc_forward(NULL, w->x))

WRONG(forward_of_many_of_no_module, ARG, NO_OBJECT("forward", "the module"),
      mlc_tensor *out[2]; mlc_module_forward(NULL, &w->x, 1, out, 2))

WRONG(fit_of_no_network, ARG, NO_OBJECT("fit", "the network"),
      mlc_fit_desc d = fit_desc(); mlc_fit(NULL, w->opt, NULL, &d, NULL))

WRONG(fit_of_no_network_and_no_optimizer, ARG, NO_OBJECT("fit", "the network"),
      mlc_fit_desc d = fit_desc(); mlc_fit(NULL, NULL, loader(w, w->x, NULL, 2), &d, NULL))

WRONG(evaluate_of_no_network, ARG, NO_OBJECT("evaluate", "the network"),
      mlc_fit_desc d = fit_desc(); mlc_evaluate(NULL, loader(w, w->x, NULL, 2), &d, NULL))

WRONG(budget_step_of_no_network, ARG, NO_OBJECT("budget_step", "the network"),
      mlc_budget_step(NULL, w->opt, NULL, NULL, NULL, NULL))

WRONG(minimize_without_an_optimizer, ARG, NO_OBJECT("optim_minimize", "the optimizer"),
      mlc_optim_minimize(NULL, mlc_mean_all(mlc_forward(w->net, w->x))))

WRONG(update_of_no_metric, ARG, NO_OBJECT("metric_update", "the metric"),
      mlc_metric_update(NULL, NULL, w->x, NULL))

WRONG(merge_of_no_metric, ARG, NO_OBJECT("metric_merge", "from"),
      mlc_metric_merge(mlc_metric_accuracy(w->ctx), NULL))

WRONG(update_of_no_tracker, ARG, NO_OBJECT("tracker_update", "the tracker"),
      mlc_tracker_update(NULL, w->x, w->x, NULL))

WRONG(metric_of_no_tracker, ARG, NO_OBJECT("tracker_metric", "the tracker"),
      mlc_tracker_metric(NULL, "a", mlc_metric_accuracy(w->ctx), true))

WRONG(run_saved_by_no_saver, ARG, NO_OBJECT("run_save", "the saver"),
      mlc_run r; memset(&r, 0, sizeof r); r.net = w->net; mlc_run_saver_save(NULL, "a", &r))

WRONG(scale_of_no_module, ARG, NO_OBJECT("nn_scale_fit", "the module"),
      mlc_nn_scale_fit(NULL, w->x))

WRONG(tie_in_no_module, ARG, NO_OBJECT("module_tie", "the module"),
      mlc_module_tie(NULL, "a", w->x))

WRONG(recurrent_forward_of_no_module, ARG, NO_OBJECT("rnn_forward", "the module"),
      mlc_tensor *y; mlc_rnn_forward(NULL, w->x, NULL, NULL, &y, NULL))

WRONG(attention_of_no_module, ARG, NO_OBJECT("attention_forward", "the module"),
      mlc_attention_forward(NULL, w->x, NULL, NULL, NULL))

WRONG(transformer_of_no_module, ARG, NO_OBJECT("transformer_forward", "the module"),
      mlc_transformer_forward(NULL, w->x, NULL, NULL, NULL))

WRONG(generate_without_a_cache, ARG, NO_OBJECT("generate", "the cache"),
      mlc_generate(w->net, NULL, w->i, NULL, NULL, NULL))

WRONG(generate_without_a_network, ARG, NO_OBJECT("generate", "the network"),
      mlc_generate(NULL, NULL, w->i, NULL, NULL, NULL))

WRONG(beams_without_a_cache, ARG, NO_OBJECT("beam_search", "the cache"),
      mlc_beam_search(w->net, NULL, NULL, NULL, NULL, NULL))

WRONG(cached_forward_without_a_cache, ARG, NO_OBJECT("forward_cached", "the cache"),
      mlc_forward_cached(w->net, w->i, NULL))

TEST(errors, an_object_that_is_null_hides_no_earlier_error)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 3));
    mlc_module *net = mlc_nn_linear(ctx, 0, 2);
    CHECK(net == NULL);
    CHECK_EQ(mlc_optim_minimize(NULL, x), MLC_ERR_ARG);
    CHECK(mlc_forward(net, x) == NULL);
    CHECK_HAS(mlc_error(ctx), "nn_linear: in is 0");
}

TEST(errors, a_dtype_but_f32_in_a_desc_needs_no_flag)
{
    mlc_ctx           *ctx = test_ctx();
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(3, 2);
    d.dtype = MLC_F64;
    mlc_module *net = mlc_nn_linear_ex(ctx, &d);
    mlc_tensor *y = mlc_forward(net, mlc_zeros(ctx, MLC_F64, mlc_dims2(1, 3)));
    if (CHECK(y != NULL))
        CHECK_EQ(y->dtype, MLC_F64);
    CHECK_OK(ctx);
}

TEST(errors, wrong_calls_of_the_library_say_what_is_wrong_and_what_to_do)
{
    for (const wrong *wr = first_wrong; wr != NULL; wr = wr->next) {
        world w;
        if (host_only(wr) && !test_on_host())
            continue;
        if (!world_make(&w))
            return;
        mlc_scope_begin(w.ctx);
        wr->call(&w);
        mlc_ctx_sync(w.ctx);
        mlc_status got = mlc_scope_end(w.ctx);
        CHECK(says(w.ctx, wr->name, "", got, wr->status, wr->text, w.files.dir));
        CHECK(unchanged(w.x) && unchanged(w.d) && unchanged(w.i));
        mlc_ctx_free(w.ctx);
        mlc_ctx_free(w.other);
        box_close(&w.files);
    }
}
