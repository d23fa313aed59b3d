/* test_hooks.c -- tests of API.HOOKS: events of operations with their arguments, complete
 * gradients, memory by class, and the count of a parameter's uses that completes them */
#include "mlc_test.h"

#define MOST 64                        /* events that are kept                                 */

typedef struct seen {
    char    text[MOST][120];           /* "begin linear body.0"                                */
    int     n;
    int64_t bytes[MLC_MEM_COUNT];
    double  first;                     /* element of the last gradient                         */
} seen;

static void note(seen *s, const char *what, const char *name, const char *more)
{
    if (s->n < MOST) snprintf(s->text[s->n], sizeof s->text[0], "%s %s %s", what, name, more);
    s->n++;
}

static void begins(void *user, const mlc_op_event *e)
{
    note((seen *)user, e->backward ? "back" : "begin", e->op, e->module);
}

static void ends(void *user, const mlc_op_event *e)
{
    note((seen *)user, e->backward ? "done" : "end", e->op, mlc_status_name(e->status));
}

static void grad_ready(void *user, const char *name, mlc_tensor *grad)
{
    seen  *s = (seen *)user;
    double all[MOST];
    note(s, "grad", name, "");
    if (mlc_numel(grad) <= MOST && test_read(grad, all)) s->first = all[0];
}

static void memory(void *user, mlc_mem mem, int64_t bytes)
{
    ((seen *)user)->bytes[mem] += bytes;
}

/* How many of the events have this text.                                                      */
static int count(const seen *s, const char *text)
{
    int n = 0;
    for (int i = 0; i < s->n && i < MOST; i++)
        n += strcmp(s->text[i], text) == 0;
    return n;
}

static int32_t add_grads(mlc_ctx *ctx, seen *s)
{
    mlc_hooks h;
    memset(&h, 0, sizeof h);
    h.user = s;
    h.grad_ready = grad_ready;
    return mlc_hooks_add(ctx, &h);
}

static int32_t add_ops(mlc_ctx *ctx, seen *s)
{
    mlc_hooks h;
    memset(&h, 0, sizeof h);
    h.user = s;
    h.op_begin = begins;
    h.op_end = ends;
    return mlc_hooks_add(ctx, &h);
}

static mlc_module *net_of(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx), *body = mlc_nn_sequential(ctx);
    mlc_module_add_named(net, "body", body);
    mlc_module_add(body, mlc_nn_linear(ctx, 3, 4));
    mlc_module_add(net, mlc_nn_layer_norm(ctx, 4));
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    return net;
}

static mlc_tensor *total(mlc_tensor *x)
{
    return mlc_sum(x, mlc_dims0(), false);
}

static mlc_tensor *input(mlc_ctx *ctx)
{
    return test_rand(ctx, MLC_F32, mlc_dims2(2, 3), 1, 0.5, 1);
}

/* ---- operations ----------------------------------------------------------------------------- */

TEST(hooks, operations_are_reported_in_order_with_the_path_of_their_module)
{
    static const char *const want[] = {
        "begin linear body.0", "end linear OK", "begin layer_norm 1", "end layer_norm OK",
        "begin sum ", "end sum OK", "back sum ", "done sum OK", "back layer_norm 1",
        "done layer_norm OK", "back linear body.0", "done linear OK"
    };
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx);
    mlc_tensor *x = input(ctx);
    seen        s;
    memset(&s, 0, sizeof s);
    CHECK(add_ops(ctx, &s) > 0);
    CHECK_EQ(mlc_backward(total(mlc_forward(net, x))), MLC_OK);
    if (!CHECK_EQ(s.n, 12)) return;
    for (int i = 0; i < 12; i++)
        CHECK_STR(s.text[i], want[i]);
}

TEST(hooks, any_number_is_called_in_the_order_of_adding_until_removed)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = input(ctx);
    seen        s, other;
    memset(&s, 0, sizeof s);
    memset(&other, 0, sizeof other);
    const int32_t a = add_ops(ctx, &s), b = add_ops(ctx, &other), c = add_ops(ctx, &s);
    CHECK(a > 0 && b > a && c > b);
    mlc_exp(x);
    CHECK_EQ(s.n, 4);
    CHECK_STR(s.text[1], "begin exp ");
    CHECK_STR(s.text[2], "end exp OK");
    CHECK_EQ(other.n, 2);
    CHECK_EQ(mlc_hooks_remove(ctx, a), MLC_OK);
    mlc_exp(x);
    CHECK_EQ(s.n, 6);
    CHECK_EQ(mlc_hooks_remove(ctx, a), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "hooks_remove: there are no hooks of number 1");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_hooks_remove(ctx, c), MLC_OK);
    CHECK_EQ(mlc_hooks_remove(ctx, b), MLC_OK);
    mlc_exp(x);
    CHECK_EQ(s.n, 6);
    CHECK_EQ(other.n, 4);
    CHECK(add_ops(ctx, &s) > c);
    mlc_exp(x);
    CHECK_EQ(s.n, 8);
}

TEST(hooks, a_failed_operation_ends_with_its_status)
{
    mlc_ctx *ctx = test_ctx();
    seen     s;
    memset(&s, 0, sizeof s);
    add_ops(ctx, &s);
    CHECK(mlc_matmul(input(ctx), input(ctx)) == NULL);
    CHECK_EQ(s.n, 2);
    CHECK_STR(s.text[1], "end matmul SHAPE");
    CHECK_STATUS(ctx, MLC_ERR_SHAPE);
}

typedef struct caller { mlc_ctx *ctx; int calls, inner; int32_t id; mlc_status remove; } caller;

static void calls_operations(void *user, const mlc_op_event *e)
{
    caller *c = (caller *)user;
    mlc_hooks none;
    memset(&none, 0, sizeof none);
    c->calls++;
    mlc_tensor *y = mlc_exp(e->in[0]);
    c->inner += y != NULL && !mlc_requires_grad(y);
    c->id += mlc_hooks_add(c->ctx, &none);
    mlc_error_clear(c->ctx);
    c->remove = mlc_hooks_remove(c->ctx, 1);
    mlc_error_clear(c->ctx);
}

TEST(hooks, a_hook_calls_operations_that_are_not_reported_and_changes_no_hooks)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = input(ctx);
    caller      c = {ctx, 0, 0, 0, MLC_OK};
    mlc_hooks   h;
    memset(&h, 0, sizeof h);
    h.user = &c;
    h.op_begin = calls_operations;
    CHECK(mlc_hooks_add(ctx, &h) > 0);
    mlc_set_requires_grad(x, true);
    CHECK_EQ(mlc_backward(total(x)), MLC_OK);
    CHECK_EQ(c.calls, 2);
    CHECK_EQ(c.inner, 2);
    CHECK_EQ(c.id, 0);
    CHECK_EQ(c.remove, MLC_ERR_STATE);
    CHECK_OK(ctx);
}

TEST(hooks, hooks_that_cannot_be_are_errors)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_op_arg arg;
    CHECK_EQ(mlc_hooks_add(NULL, NULL), 0);
    CHECK_EQ(mlc_hooks_remove(NULL, 1), MLC_ERR_ARG);
    CHECK_EQ(mlc_hooks_add(ctx, NULL), 0);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_hooks_remove(ctx, 0), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(!mlc_op_event_arg(NULL, 0, &arg));
}

/* Sequential runs several modules at once: events have the path of the first.                 */
TEST(hooks, modules_that_sequential_fuses_have_the_path_of_the_first)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    seen        s;
    memset(&s, 0, sizeof s);
    mlc_module_add_named(net, "in", mlc_nn_linear(ctx, 3, 4));
    mlc_module_add_named(net, "act", mlc_nn_relu(ctx));
    add_ops(ctx, &s);
    CHECK(mlc_forward(net, input(ctx)) != NULL);
    CHECK_EQ(s.n, 2);
    CHECK_STR(s.text[0], "begin linear in");
}

/* ---- arguments ------------------------------------------------------------------------------ */

/* All events as "op(name=value,..)flags".                                                     */
static void arguments(void *user, const mlc_op_event *e)
{
    seen      *s = (seen *)user;
    char      *to = s->text[s->n % MOST];
    size_t     n = (size_t)snprintf(to, sizeof s->text[0], "%s(", e->op);
    mlc_op_arg a;
    for (int32_t i = 0; mlc_op_event_arg(e, i, &a); i++) {
        n += (size_t)snprintf(to + n, sizeof s->text[0] - n, "%s%s=", i ? "," : "", a.name);
        for (int32_t k = 0; k < a.n && a.kind != MLC_ARG_REAL; k++)
            n += (size_t)snprintf(to + n, sizeof s->text[0] - n, "%s%lld", k ? " " : "",
                                  (long long)a.i[k]);
        if (a.kind == MLC_ARG_REAL) {
            const size_t from = n;
            n += (size_t)snprintf(to + n, sizeof s->text[0] - n, "%g", a.real);
            for (size_t k = from; k < n; k++)              /* under a decimal comma, too       */
                if (to[k] == ',') to[k] = '.';
        }
    }
    snprintf(to + n, sizeof s->text[0] - n, ")%u", (unsigned)e->flags);
    s->n++;
}

static mlc_tensor *call_of(int i, mlc_tensor *x, mlc_tensor *image)
{
    mlc_tensor   *index = mlc_argmax(x, 1, true), *list[2] = {x, x};
    mlc_conv_desc conv = mlc_conv_desc_make();
    mlc_pool_desc pool = mlc_pool_desc_make(2);
    conv.stride = mlc_dims2(2, 1);
    conv.padding = mlc_dims2(0, 1);
    conv.act = MLC_ACT_RELU;
    switch (i) {
        case 0: return mlc_softmax(x, -1);
        case 1: return mlc_leaky_relu(x, 0.25);
        case 2: return mlc_clamp(x, -1, 2);
        case 3: return mlc_add_scalar_(mlc_copy(x), 3);
        case 4: return mlc_var(x, mlc_dims1(1), 1, true);
        case 5: return mlc_cast(x, MLC_F64);
        case 6: return mlc_conv(image, mlc_reshape(mlc_slice(image, 2, 0, 1, 1),
                                                   mlc_dims4(1, 1, 2, 2)), NULL, &conv);
        case 7: return mlc_max_pool(image, &pool);
        case 8: return mlc_pad(x, mlc_dims2(1, 0), mlc_dims2(0, 2), MLC_PAD_CONSTANT, 5);
        case 9: return mlc_gather(x, 1, index);
        case 10: return mlc_flip(x, mlc_dims1(1));
        case 11: return mlc_layer_norm(x, NULL, NULL, 0.5);
        case 12: return mlc_cumsum(x, 1);
        case 13: return mlc_huber_loss_ex(x, x, &(mlc_huber_desc){MLC_REDUCTION_SUM, 2});
        case 14: return mlc_eq_scalar(x, 7);
        case 15: return mlc_interpolate(image, mlc_dims2(6, 5), MLC_INTERPOLATE_NEAREST);
        case 16: return mlc_tril(x, 1);
        case 17: return mlc_linear(x, mlc_transpose(x, 0, 1), NULL);
        case 18: return mlc_linear(x, x, NULL);
        case 19: return mlc_masked_fill(x, mlc_eq_scalar(x, 7), 9);
        case 20: return mlc_concat(list, 2, 1);
        case 21: return mlc_masked_select(x, mlc_eq_scalar(x, 7));
        default: return mlc_matmul(x, mlc_transpose(x, 0, 1));
    }
}

static mlc_tensor *more_of(int i, mlc_tensor *x, mlc_tensor *image)
{
    mlc_cross_entropy_desc d = mlc_cross_entropy_desc_make();
    mlc_epilogue           e = {MLC_ACT_GELU, 0.5, NULL};
    mlc_tensor            *labels = mlc_argmax(x, 1, false);
    d.reduction = MLC_REDUCTION_SUM;
    d.label_smoothing = 0.125;
    d.has_ignore_index = true;
    d.ignore_index = -7;
    switch (i) {
        case 0: return mlc_batch_norm(x, NULL, NULL, NULL, NULL, true, 0.25, 0.5);
        case 1: return mlc_group_norm(image, 1, NULL, NULL, 0.5);
        case 2: return mlc_rms_norm(x, NULL, 0.25);
        case 3: return mlc_topk(x, 2, 1, true, NULL);
        case 4: return mlc_argsort(x, 0, false);
        case 5: return mlc_cross_entropy_ex(x, labels, &d);
        case 6: return mlc_adaptive_avg_pool(image, mlc_dims2(2, 3));
        case 7: return mlc_scatter_add(x, 1, mlc_argmax(x, 1, true), x);
        case 8: return mlc_fill_(mlc_copy(x), 6);
        case 9: return mlc_max(x, mlc_dims2(0, 1), false);
        case 10: return mlc_focal_loss_ex(x, x, &(mlc_focal_desc){MLC_REDUCTION_NONE, 0.25, 3});
        case 11: return mlc_elu_(mlc_copy(x), 0.5);
        case 12: return mlc_norm(x, 3, mlc_dims1(0), false);
        case 13: return mlc_linear_ex(x, x, NULL, &e);
        case 14: return mlc_cumprod(x, 0);
        case 15: return mlc_add(x, x);
        default: return mlc_add_(mlc_copy(x), x);
    }
}

/* One of the operations of each call.                                                         */
static void add_arguments(mlc_ctx *ctx, seen *s)
{
    mlc_hooks h;
    memset(&h, 0, sizeof h);
    h.user = s;
    h.op_end = arguments;
    CHECK(mlc_hooks_add(ctx, &h) > 0);
}

TEST(hooks, arguments_of_the_other_operations_are_those_that_the_program_passed)
{
    static const char *const want[] = {
        "batch_norm(momentum=0.25,eps=0.5,groups=0,training=1,relu=0)4",
        "group_norm(momentum=0,eps=0.5,groups=1,", "rms_norm(eps=0.25)4",
        "topk(k=2,axis=1,descending=1)4", "argsort(k=3,axis=0,descending=0)4",
        "cross_entropy(reduction=1,label_smoothing=0.125,has_ignore_index=1,ignore_index=-7)4",
        "adaptive_avg_pool(size=2 3 1)4", "scatter_add(axis=1)4", "fill_(value=6)5",
        "max(axes=0 1,keepdim=0,p=0)4", "focal_loss(gamma=3,alpha=0.25)4", "elu_(alpha=0.5)5",
        "norm(axes=0,keepdim=0,p=3)4", "linear(act=2,bias=0,residual=0,dropout=0.5,dtype=0)6",
        "cumprod(axis=0)4", "add()4", "add_()5"
    };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, 0.25, 0.75);
    mlc_tensor *image = test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 4, 4), 2, -1, 1);
    seen        s;
    add_arguments(ctx, &s);
    for (int i = 0; i < (int)(sizeof want / sizeof want[0]); i++) {
        bool found = false;
        memset(&s, 0, sizeof s);
        CHECK(more_of(i, x, image) != NULL);
        for (int k = 0; k < s.n; k++)
            found = found || strncmp(s.text[k], want[i], strlen(want[i])) == 0;
        if (!found) CHECK_STR(s.text[s.n - 1], want[i]);
        CHECK(found);
    }
    CHECK_OK(ctx);
}

TEST(hooks, arguments_are_those_that_the_program_passed)
{
    /* the last operation of each call; flags: 4 may be captured, 1 in place */
    static const char *const want[] = {
        "softmax(axis=1)4", "leaky_relu(slope=0.25)4", "clamp(lo=-1,hi=2)4", "add_scalar_(s=3)5",
        "var(axes=1,keepdim=1,p=1)4", "cast(dtype=1)4",
        "conv(stride=2 1 1,padding=0 1 0,dilation=1 1 1,output_padding=0 0 0,groups=1,same=0,act=1"
        ")6",
        "max_pool(kernel=2 2 0,stride=2 2 0,padding=0 0 0,dilation=1 1 1,ceil=0,exclude_padding=0,"
        "relu=0)4",
        "pad(before=1 0,shape=3 5,mode=0,value=5)4", "gather(axis=1)4", "flip(axes=1)4",
        "layer_norm(eps=0.5)4", "cumsum(axis=1)4", "huber_loss(reduction=1,delta=2)4",
        "eq_scalar(s=7)4", "interpolate(size=6 5,mode=0)4", "tril(lo=-2,hi=1)4", "",
        "linear(act=0,bias=0,residual=0,dropout=0,dtype=0)4", "masked_fill(value=9)4", "", "",
        "matmul()4"
    };
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = input(ctx);
    mlc_tensor *image = test_rand(ctx, MLC_F32, mlc_dims4(1, 1, 4, 4), 2, -1, 1);
    seen        s;
    add_arguments(ctx, &s);
    for (int i = 0; i < (int)(sizeof want / sizeof want[0]); i++) {
        memset(&s, 0, sizeof s);
        if (!want[i][0]) continue;
        call_of(i, x, image);
        CHECK(s.n > 0);
        if (s.n > 0) CHECK_STR(s.text[s.n - 1], want[i]);
    }
    CHECK_OK(ctx);
}

/* ---- gradients ------------------------------------------------------------------------------ */

TEST(hooks, a_gradient_is_reported_when_the_last_use_of_its_parameter_is_done)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx);
    mlc_tensor *x = input(ctx), *w = mlc_module_param(net, "body.0.weight");
    seen        s;
    memset(&s, 0, sizeof s);
    add_grads(ctx, &s);
    add_ops(ctx, &s);
    /* w is read once more, by what is differentiated last */
    CHECK_EQ(mlc_backward(total(mlc_forward(net, mlc_mul(x, mlc_select(w, 0, 1))))), MLC_OK);
    CHECK_EQ(count(&s, "grad body.0.weight "), 1);
    CHECK_EQ(count(&s, "grad body.0.bias "), 1);
    CHECK_EQ(count(&s, "grad 1.weight "), 1);
    CHECK_EQ(count(&s, "grad 1.bias "), 1);
    CHECK_STR(s.text[s.n - 1], "grad body.0.weight ");
    CHECK_STR(s.text[s.n - 2], "done mul OK");
    CHECK_OK(ctx);
}

/* A module of one parameter, of two elements.                                                 */
static mlc_status pass(mlc_module *m, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out,
                       int32_t n_out)
{
    (void)m;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_copy(in[0]);
    return MLC_OK;
}

static mlc_module *one_of(mlc_ctx *ctx, mlc_tensor **w)
{
    static const mlc_module_class cls = {"One", pass, NULL, NULL, 0, NULL};
    mlc_module    *m = mlc_module_create(ctx, &cls, NULL, 0);
    mlc_param_desc d = mlc_param_desc_make(mlc_dims1(2));
    d.init = MLC_INIT_CONSTANT;
    d.a = 3;
    *w = mlc_module_declare(m, "w", &d);
    CHECK_EQ(mlc_module_build(m), MLC_OK);
    return m;
}

TEST(hooks, a_parameter_used_twice_by_one_operation_is_reported_once)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w;
    seen        s;
    memset(&s, 0, sizeof s);
    one_of(ctx, &w);
    add_grads(ctx, &s);
    CHECK_EQ(mlc_backward(total(mlc_mul(w, w))), MLC_OK);
    CHECK_EQ(s.n, 1);
    CHECK_STR(s.text[0], "grad w ");
    CHECK_NEAR(s.first, 6, 1e-6);
}

/* What must not keep the count up: each leaves something that is never differentiated.        */
static void leave(int i, mlc_ctx *ctx, mlc_tensor *w)
{
    mlc_tensor *v;
    switch (i) {
        case 0:                        /* dropped with its scope                               */
            mlc_scope_begin(ctx);
            mlc_exp(w);
            mlc_scope_end(ctx);
            break;
        case 1:                        /* not recorded                                         */
            mlc_no_grad_begin(ctx);
            mlc_exp(w);
            mlc_no_grad_end(ctx);
            break;
        case 2:                        /* failed                                               */
            mlc_matmul(w, mlc_ones(ctx, MLC_F32, mlc_dims1(5)));
            mlc_error_clear(ctx);
            break;
        case 3:                        /* an input that wants no gradient                      */
            mlc_set_requires_grad(w, false);
            v = mlc_slice(w, 0, 0, 1, 1);
            mlc_scope_begin(ctx);
            mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(1));
            mlc_set_requires_grad(x, true);
            mlc_mul(x, v);
            mlc_set_requires_grad(v, true);                /* the view is a leaf now           */
            mlc_scope_end(ctx);
            mlc_set_requires_grad(w, true);
            break;
        case 4: {                      /* a module that is freed                               */
            mlc_tensor *gone;
            mlc_module *m = one_of(ctx, &gone);
            mlc_scope_begin(ctx);
            mlc_mul(gone, w);
            mlc_module_free(m);
            mlc_scope_end(ctx);
            break;
        }
        case 5:                        /* a backward that fails on the way                     */
            mlc_scope_begin(ctx);
            v = mlc_exp(w);
            mlc_tensor *y = mlc_mul(v, v);
            mlc_no_grad_begin(ctx);
            mlc_zero_(v);
            mlc_no_grad_end(ctx);
            CHECK_EQ(mlc_backward(total(y)), MLC_ERR_VALUE);
            mlc_scope_end(ctx);
            break;
        default:                       /* a backward that is over                              */
            mlc_scope_begin(ctx);
            CHECK_EQ(mlc_backward(total(mlc_exp(w))), MLC_OK);
            mlc_scope_end(ctx);
            mlc_zero_grad(w);
    }
}

TEST(hooks, what_is_never_differentiated_does_not_hold_a_gradient_back)
{
    for (int i = 0; i < 7; i++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_tensor *w;
        seen        s;
        memset(&s, 0, sizeof s);
        one_of(ctx, &w);
        leave(i, ctx, w);
        CHECK_OK(ctx);
        add_grads(ctx, &s);
        add_ops(ctx, &s);
        mlc_tensor *x = mlc_zeros(ctx, MLC_F32, mlc_dims1(2));
        mlc_set_requires_grad(x, true);
        mlc_tensor *one = mlc_exp(x);
        /* two uses: with a count too high w would come at the end of backward, which is that
         * of exp; too low, after the first of them */
        CHECK_EQ(mlc_backward(total(mlc_mul(mlc_mul(mlc_add_scalar(w, 1), w), one))), MLC_OK);
        CHECK_EQ(count(&s, "grad w "), 1);
        if (!CHECK(s.n > 5)) continue;
        CHECK_STR(s.text[s.n - 4], "done add_scalar OK");
        CHECK_STR(s.text[s.n - 3], "grad w ");
        CHECK_STR(s.text[s.n - 2], "back exp ");
        CHECK_NEAR(s.first, 7, 1e-6);
    }
}

TEST(hooks, a_use_that_backward_does_not_reach_delays_a_gradient_to_its_end)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w, *before, *y;
    seen        s;
    memset(&s, 0, sizeof s);
    one_of(ctx, &w);
    add_grads(ctx, &s);
    before = total(mlc_exp(w));
    y = total(mlc_mul_scalar(w, 2));
    mlc_exp(w);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    CHECK_EQ(s.n, 1);
    CHECK_NEAR(s.first, 2, 1e-6);
    CHECK_EQ(mlc_backward(before), MLC_OK);                /* adds to it: once more */
    CHECK_EQ(s.n, 2);
    CHECK_NEAR(s.first, 2 + exp(3), 1e-4);
}

TEST(hooks, a_frozen_parameter_is_not_reported)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = net_of(ctx);
    seen        s;
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_module_freeze(net, "body.*", true), MLC_OK);
    add_grads(ctx, &s);
    CHECK_EQ(mlc_backward(total(mlc_forward(net, input(ctx)))), MLC_OK);
    CHECK_EQ(s.n, 2);
    CHECK_EQ(count(&s, "grad 1.weight ") + count(&s, "grad 1.bias "), 2);
}

TEST(hooks, a_failed_backward_reports_no_gradient_that_is_half_made)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w, *y;
    seen        s;
    memset(&s, 0, sizeof s);
    one_of(ctx, &w);
    add_grads(ctx, &s);
    mlc_scope_begin(ctx);
    y = mlc_exp(w);
    y = total(mlc_mul(mlc_mul(y, y), w));
    mlc_no_grad_begin(ctx);
    mlc_fill_(w, 2);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_backward(y), MLC_ERR_VALUE);
    CHECK_EQ(mlc_scope_end(ctx), MLC_ERR_VALUE);
    CHECK_EQ(s.n, 0);
    CHECK_EQ(mlc_backward(total(mlc_exp(w))), MLC_OK);
    CHECK_EQ(s.n, 1);
}

/* A large one: steps of small ones are not made inside backward, and none on a device without the
 * kernel gemm_optim.                                                                           */
TEST(hooks, a_weight_that_backward_steps_has_no_gradient_to_report)
{
    CHECK(true);
    if (!test_cpu_kernels())
        return;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 130, 140);
    mlc_optim  *opt = mlc_sgd(net, 0.5);
    mlc_tensor *w = mlc_module_param(net, "weight");
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(4, 130), 1, -1, 1);
    seen        s;
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_optim_in_backward(opt, true), MLC_OK);
    add_grads(ctx, &s);
    for (int uses = 1; uses <= 3; uses++) {
        s.n = 0;
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, x);
        if (uses == 2) mlc_exp(w);     /* the weight would change under it                     */
        CHECK_EQ(mlc_backward(total(y)), MLC_OK);
        CHECK((mlc_grad(w) == NULL) == (uses != 2));
        CHECK_EQ(count(&s, "grad bias "), 1);
        CHECK_EQ(count(&s, "grad weight "), uses == 2);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static void counts(void *user, mlc_mem mem, int64_t bytes)
{
    *(int64_t *)user += bytes != 0 || mem != MLC_MEM_OBJECT;
}

TEST(hooks, the_end_of_a_context_is_not_reported)
{
    mlc_ctx_desc d = test_desc();
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    int64_t      calls = 0;
    mlc_hooks    h;
    memset(&h, 0, sizeof h);
    h.user = &calls;
    h.memory = counts;
    CHECK(mlc_hooks_add(ctx, &h) > 0);
    net_of(ctx);
    const int64_t before = calls;
    CHECK(before > 0);
    mlc_ctx_free(ctx);
    CHECK_EQ(calls, before);
}

TEST(hooks, memory_is_reported_by_class_as_memory_info_counts_it)
{
    mlc_ctx   *ctx = test_ctx();
    mlc_memory before, after;
    mlc_hooks  h;
    seen       s;
    memset(&s, 0, sizeof s);
    memset(&h, 0, sizeof h);
    h.user = &s;
    h.memory = memory;
    const int32_t id = mlc_hooks_add(ctx, &h);
    CHECK_EQ(mlc_memory_info(ctx, &before), MLC_OK);
    mlc_module *net = net_of(ctx);
    CHECK_EQ(mlc_backward(total(mlc_forward(net, input(ctx)))), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &after), MLC_OK);
    for (int i = 0; i < MLC_MEM_COUNT; i++)
        CHECK_EQ(s.bytes[i], after.now[i] - before.now[i]);
    CHECK(s.bytes[MLC_MEM_PARAM] > 0 && s.bytes[MLC_MEM_GRAD] > 0);
    CHECK_EQ(mlc_hooks_remove(ctx, id), MLC_OK);
    mlc_zeros(ctx, MLC_F32, mlc_dims1(1000));
    CHECK_EQ(s.bytes[MLC_MEM_ACTIVATION], after.now[MLC_MEM_ACTIVATION] -
                                          before.now[MLC_MEM_ACTIVATION]);
}

static mlc_status inner_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_relu(in[0]);
    return MLC_OK;
}

static mlc_status inner_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                 mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    mlc_tensor *x = mlc_detach(in[0]);
    (void)n_in; (void)out; (void)need;
    mlc_set_requires_grad(x, true);
    mlc_tape_begin(user, false);
    const mlc_status st = mlc_backward_from(mlc_relu(x), dy);
    mlc_tape_end(user);
    dx[0] = mlc_grad(x);
    return st;
}

TEST(hooks, a_backward_on_an_inner_tape_does_not_end_the_wait_for_gradients)
{
    static const mlc_custom_op op = {"inner", inner_forward, inner_backward};
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w, *y;
    seen        s;
    memset(&s, 0, sizeof s);
    one_of(ctx, &w);
    CHECK_OK(ctx);
    add_grads(ctx, &s);
    y = mlc_add_scalar(w, 1);
    y = mlc_mul(mlc_custom(&op, ctx, &y, 1), w);
    CHECK_EQ(mlc_backward(total(y)), MLC_OK);
    CHECK_EQ(count(&s, "grad w "), 1);
    CHECK_OK(ctx);
}

static void raises(void *user, const mlc_op_event *e)
{
    if (e->backward)
        mlc_raise(user, MLC_ERR_VALUE, "raised in a hook");
}

TEST(hooks, an_error_that_a_hook_raises_is_that_of_backward)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *w;
    mlc_hooks   h;
    one_of(ctx, &w);
    CHECK_OK(ctx);
    memset(&h, 0, sizeof h);
    h.user = ctx;
    h.op_end = raises;
    CHECK(mlc_hooks_add(ctx, &h) > 0);
    CHECK_EQ(mlc_backward(total(mlc_mul(w, w))), MLC_ERR_VALUE);
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
}
