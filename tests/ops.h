/* ops.h -- every operation by name, called with arguments written as text
 *
 * tests/test_goldens.c holds the table and runs the stored cases, tests/test_errors.c the wrong
 * calls; `make matrix` prints the tests of each operation. The text of a call:
 *     <f32[3,5]T <f32[5] #0,1 =0.5 "ij,j" >f32[3,5]     explained in make_op_goldens.py;
 *     <null and <f32[3,5]g                              an input that is NULL, that has a gradient
 */
#ifndef OPS_H
#define OPS_H

#include "mlc_test.h"

#define OP_MOST 8                                          /* inputs, or results               */

typedef struct op_spec {                                   /* of an input or a result          */
    mlc_dtype dtype;
    mlc_dims  shape;                                       /* as stored                        */
    char      layout;                                      /* 0 T S E g, or N: it is NULL      */
} op_spec;

typedef struct op_args {
    mlc_ctx    *ctx;
    mlc_dtype   dtype;                                     /* for what makes tensors           */
    op_spec     in_spec[OP_MOST], out_spec[OP_MOST];
    mlc_tensor *leaf[OP_MOST], *in[OP_MOST], *out[OP_MOST];   /* stored, looked at, made       */
    int32_t     n_in, n_out;
    mlc_dims    ints[4];
    double      nums[4];
    char        text[64];
    char        grad[OP_MOST + 1];                         /* "101": which inputs have one     */
    bool        diff;                                      /* compare with differences         */
} op_args;

typedef struct op_row {
    const char *name;
    mlc_tensor *(*call)(op_args *a);                       /* sets out beyond the first one    */
    unsigned    dtypes;                                    /* bits 1 << dtype                  */
    const char *has;                                       /* see OPS                          */
} op_row;

/* op_find: the row of a function; NULL if there is none.                                      */
const op_row *op_find(const char *name);
/* op_each: row number i, NULL after the last one.                                             */
const op_row *op_each(int i);
/* op_in_place: does the operation write its first input?                                      */
bool op_in_place(const op_row *row);
/* op_parse: the arguments of a call from its text.                                            */
bool op_parse(op_args *a, const char *text);
/* op_look: a stored input as its layout says.                                                 */
mlc_tensor *op_look(mlc_tensor *t, char layout);
/* op_seen: tells `make matrix` that something of an operation was run and held.               */
void op_seen(const char *what, const char *name, const char *detail);

#endif /* OPS_H */
