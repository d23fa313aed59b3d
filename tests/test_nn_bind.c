/* test_nn_bind.c -- tests of section IMPL.NN: parameters bound to memory of the program */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "flash.h"
#include "nets.h"

#include <pthread.h>

/* ---- parameters bound to memory of the program ---------------------------------------------- */

enum { IN = 5, HIDDEN = 7, OUT = 3 };  /* odd: tails are where kernels read too far            */

static const char *const MLP_NAMES[] = {"0.weight", "0.bias", "2.weight", "2.bias"};

/* What is at a name, in memory that cannot be written, so many bytes before the end of a page.  */
static flash flash_param(mlc_module *net, const char *name, size_t short_of)
{
    mlc_tensor  *t = mlc_module_param(net, name);
    const size_t n = (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype);
    void        *copy = malloc(n);
    CHECK_EQ(mlc_read(t, copy, n), MLC_OK);
    const flash f = flash_of(copy, n, short_of);
    free(copy);
    return f;
}

/* Values of another net of the same shape: its first numbers differ from those of ours.        */
static flash flash_other(mlc_ctx *ctx, const char *name)
{
    mlc_module *other = mlp(ctx, IN, HIDDEN, OUT);
    const flash f = flash_param(other, name, 0);
    mlc_module_free(other);
    return f;
}

static void check_same_params(mlc_module *a, mlc_module *b)
{
    for (int i = 0; i < COUNT(MLP_NAMES); i++) {
        double       x[IN * HIDDEN], y[IN * HIDDEN];
        mlc_tensor  *t = mlc_module_param(a, MLP_NAMES[i]);
        test_read(t, x);
        test_read(mlc_module_param(b, MLP_NAMES[i]), y);
        CHECK_EQ(memcmp(x, y, (size_t)mlc_numel(t) * sizeof *x), 0);
    }
}

static int64_t param_bytes(mlc_ctx *ctx)
{
    mlc_memory mem;
    mlc_memory_info(ctx, &mem);
    return mem.now[MLC_MEM_PARAM];
}

static mlc_tensor *batch_of(mlc_ctx *ctx, int seed)
{
    return test_rand(ctx, MLC_F32, mlc_dims2(4, IN), (uint64_t)seed, -1, 1);
}

TEST(nn, a_bound_net_takes_no_memory_for_values_and_gives_the_same_bits)
{
    ONLY_ON_HOST();
    for (size_t short_of = 0; short_of < 12; short_of += 4)
        FOR_EACH_ISA(ctx) {
            flash       f[4];
            double      want[4 * OUT], got[4 * OUT];
            mlc_module *ref = mlp(ctx, IN, HIDDEN, OUT), *net = mlp(ctx, IN, HIDDEN, OUT);
            mlc_module *none = mlc_nn_relu(ctx);
            mlc_module_build(ref);
            const int64_t before = param_bytes(ctx);
            mlc_module_build(none);
            const int64_t empty = param_bytes(ctx) - before;
            for (int i = 0; i < 4; i++) {
                f[i] = flash_param(ref, MLP_NAMES[i], short_of);
                CHECK_EQ(mlc_module_bind(net, MLP_NAMES[i], f[i].data), MLC_OK);
            }
            CHECK_EQ(mlc_module_build(net), MLC_OK);
            CHECK_EQ(param_bytes(ctx) - before, 2 * empty);
            test_read(mlc_forward(ref, batch_of(ctx, 1)), want);
            mlc_tensor *y = mlc_forward(net, batch_of(ctx, 1));
            test_read(y, got);
            CHECK_EQ(memcmp(want, got, sizeof want), 0);
            CHECK(!mlc_requires_grad(y));
            for (int i = 0; i < 4; i++)
                CHECK((const void *)mlc_f32(mlc_module_param(net, MLP_NAMES[i])) == f[i].data);
            CHECK_EQ(mlc_module_rebuild(net), MLC_OK);     /* they stay where they are         */
            check_same_params(ref, net);
            CHECK_EQ(param_bytes(ctx) - before, 2 * empty);
            CHECK_EQ(mlc_module_numel(net, false), mlc_module_numel(ref, false));
            CHECK_EQ(mlc_module_numel(net, true), 0);
            CHECK_OK(ctx);
            mlc_module_free(net);
            for (int i = 0; i < 4; i++) flash_free(&f[i]);
        }
}

TEST(nn, binding_after_a_build_frees_the_room_with_the_next_and_rebinding_is_seen_at_once)
{
    static sink s;
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
    const flash other = flash_other(ctx, "0.weight"), third = flash_other(ctx, "0.weight");
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    const int64_t before = param_bytes(ctx);
    CHECK(memcmp(other.data, third.data, sizeof(float)) != 0);
    CHECK_EQ(mlc_module_bind(net, "0.weight", other.data), MLC_OK);
    CHECK(mlc_f32(w) == other.data);
    CHECK_EQ(param_bytes(ctx), before);
    CHECK_EQ(mlc_module_build(net), MLC_OK);
    CHECK_EQ(param_bytes(ctx), before - 192);              /* 140 bytes in lines of 64         */
    CHECK(mlc_f32(w) == other.data);
    CHECK_EQ(mlc_module_bind(net, "0.weight", third.data), MLC_OK);
    flash_free(&other);
    CHECK(mlc_f32(w) == third.data);
    CHECK(mlc_forward(net, batch_of(ctx, 1)) != NULL);
    CHECK(mlc_f32(w) == third.data);
    memset(&s, 0, sizeof s);
    CHECK_EQ(mlc_summary(net, mlc_dims2(4, IN), collect, &s), MLC_OK);
    CHECK_HAS(s.text, "Total params: 66 (264 B)\nTrainable params: 31\nNon-trainable params: 35\n");
    int n = 0;
    for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it); n++)
        CHECK(!it.buffer && it.trainable == (it.tensor != w));
    CHECK_EQ(n, 4);
    CHECK_OK(ctx);
    mlc_module_free(net);
    flash_free(&third);
}

/* -- training around what is bound -- */

typedef struct recipe { bool adamw, clip, in_backward, late; } recipe;

static mlc_optim *optim_of(mlc_module *net, const recipe *r)
{
    mlc_sgd_desc  d;
    mlc_clip_desc clip = {0.5, INF, false};
    d = mlc_sgd_desc_make(0.1);
    d.momentum = 0.9;
    d.weight_decay = 0.01;
    mlc_optim *o = r->adamw ? mlc_adamw(net, 0.01) : mlc_sgd_ex(net, &d);
    if (r->clip)
        CHECK_EQ(mlc_optim_clip(o, &clip), MLC_OK);
    if (r->in_backward)
        CHECK_EQ(mlc_optim_in_backward(o, true), MLC_OK);
    return o;
}

static void train(mlc_ctx *ctx, mlc_module *net, mlc_optim *o, int from, int to)
{
    for (int i = from; i < to; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, batch_of(ctx, i));
        CHECK_EQ(mlc_backward(mlc_sum(mlc_mul(y, y), mlc_dims0(), false)), MLC_OK);
        CHECK_EQ(mlc_optim_step(o), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
}

/* Each parameter in turn: bound, or frozen where it lies; from the start or after two steps.    */
TEST(nn, training_around_a_bound_parameter_is_as_if_it_were_frozen)
{
    static const recipe recipes[] = {{false, false, false, false}, {false, false, false, true},
                                     {true, false, false, false},  {true, false, false, true},
                                     {true, true, false, false},   {false, false, true, true}};
    ONLY_ON_HOST();
    for (int k = 0; k < COUNT(recipes); k++)
        for (int i = 0; i < COUNT(MLP_NAMES); i++) {
            const recipe *r = &recipes[k];
            const int     late = r->late ? 2 : 0;
            mlc_ctx      *ctx = test_ctx();
            mlc_module   *ref = mlp(ctx, IN, HIDDEN, OUT), *net = mlp(ctx, IN, HIDDEN, OUT);
            for (int p = 0; p < COUNT(MLP_NAMES); p++)
                mlc_copy_into(mlc_module_param(net, MLP_NAMES[p]),
                              mlc_module_param(ref, MLP_NAMES[p]));
            mlc_optim *a = NULL, *b = NULL;
            if (late) {
                train(ctx, ref, a = optim_of(ref, r), 0, late);
                train(ctx, net, b = optim_of(net, r), 0, late);
            }
            const flash f = flash_param(ref, MLP_NAMES[i], 0);
            CHECK_EQ(mlc_module_freeze(ref, MLP_NAMES[i], true), MLC_OK);
            CHECK_EQ(mlc_module_bind(net, MLP_NAMES[i], f.data), MLC_OK);
            train(ctx, ref, a ? a : optim_of(ref, r), late, 6);
            train(ctx, net, b ? b : optim_of(net, r), late, 6);
            check_same_params(ref, net);
            CHECK(mlc_grad(mlc_module_param(net, MLP_NAMES[i])) == NULL);
            CHECK_OK(ctx);
            mlc_module_free(net);
            flash_free(&f);
        }
}

/* -- what would write to it -- */

typedef mlc_status (*write_fn)(mlc_module *net, mlc_tensor *w);

static mlc_status made(mlc_tensor *t) { return t ? MLC_OK : MLC_ERR_STATE; }

static mlc_status write_host(mlc_module *net, mlc_tensor *w)
{
    static const float v[IN * HIDDEN] = {0};
    (void)net;
    return mlc_write(w, v, sizeof v);
}

static mlc_status write_part(mlc_module *net, mlc_tensor *w)
{
    static const float v[2 * HIDDEN] = {0};
    (void)net;
    return mlc_write(mlc_slice(w, 1, 1, 3, 1), v, sizeof v);
}

static mlc_status write_copy_into(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return mlc_copy_into(w, mlc_zeros(w->ctx, MLC_F32, mlc_dims1(1)));
}

static mlc_status write_copy_in_place(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_copy_(mlc_detach(w), mlc_zeros(w->ctx, MLC_F32, mlc_dims1(1))));
}

static mlc_status write_fill(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_zero_(w));
}

static mlc_status write_relu(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_relu_(mlc_transpose(w, 0, 1)));
}

static mlc_status write_add(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_add_(w, w));
}

static mlc_status write_mask(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_masked_fill_(w, mlc_gt_scalar(w, 0), 1));
}

static mlc_status write_scatter(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return made(mlc_scatter_(w, 0, mlc_zeros(w->ctx, MLC_I64, mlc_dims2(1, 1)),
                             mlc_zeros(w->ctx, MLC_F32, mlc_dims2(1, 1))));
}

static mlc_status write_gradient(mlc_module *net, mlc_tensor *w)
{
    (void)net;
    return mlc_set_requires_grad(w, true);
}

static mlc_status write_thaw(mlc_module *net, mlc_tensor *w)
{
    (void)w;
    return mlc_module_freeze(net, "0.w*", false);
}

static const write_fn WRITES[] = {write_host, write_part, write_copy_into, write_copy_in_place,
                                  write_fill, write_relu, write_add, write_mask, write_scatter,
                                  write_gradient, write_thaw};

TEST(nn, whatever_would_change_a_bound_parameter_is_an_error_that_says_what_to_do)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
    const flash f = flash_other(ctx, "0.weight");
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    CHECK_EQ(mlc_module_bind(net, "0.weight", f.data), MLC_OK);
    for (int built = 0; built < 2; built++) {
        for (int no_grad = 0; no_grad < 2; no_grad++)
            for (int i = 0; i < COUNT(WRITES); i++) {
                if (no_grad) mlc_no_grad_begin(ctx);
                CHECK_EQ(WRITES[i](net, w), MLC_ERR_STATE);
                if (no_grad) mlc_no_grad_end(ctx);
                CHECK_HAS(mlc_error(ctx), "weight' is bound to memory of the program "
                          "(mlc_module_bind), which is never written; leave it out, bind other "
                          "data, or change a mlc_copy of it");
                CHECK_STATUS(ctx, MLC_ERR_STATE);
            }
        CHECK_EQ(mlc_module_build(net), MLC_OK);
    }
    CHECK_EQ(mlc_module_freeze(net, "2.*", true), MLC_OK); /* all or none starts again         */
    CHECK_EQ(mlc_module_freeze(net, NULL, false), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "module_freeze: '0.weight' is bound");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_module_numel(net, true), HIDDEN);
    CHECK_EQ(mlc_module_freeze(net, NULL, true), MLC_OK);
    CHECK_EQ(mlc_module_freeze(net, "*bias", false), MLC_OK);
    CHECK(mlc_relu_(mlc_copy(w)) != NULL);
    CHECK_EQ(mlc_set_requires_grad(w, false), MLC_OK);
    CHECK(mlc_f32(w) == f.data);
    CHECK_OK(ctx);
    mlc_module_free(net);
    flash_free(&f);
}

static mlc_module *normed(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, IN, HIDDEN));
    mlc_module_add(net, mlc_nn_batch_norm(ctx, HIDDEN));
    return net;
}

/* Each of a batch norm's buffers alone: training changes none of them.                        */
TEST(nn, batch_norm_with_bound_statistics_evaluates_and_does_not_train)
{
    static const char *const names[] = {"1.running_mean", "1.running_var",
                                        "1.num_batches_tracked"};
    static const float   means[HIDDEN] = {1, 2, 3, 4, 5, 6, 7};
    static const float   vars[HIDDEN] = {1, 1, 2, 2, 3, 3, 4};
    static const int64_t count = 5;
    static sink s;
    const void *const data[] = {means, vars, &count};
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(names); i++) {
        double      want[4 * HIDDEN], got[4 * HIDDEN];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *ref = normed(ctx), *net = normed(ctx);
        const flash f = flash_of(data[i], i < 2 ? sizeof means : sizeof count, 0);
        mlc_copy_into(mlc_module_param(net, "0.weight"), mlc_module_param(ref, "0.weight"));
        mlc_copy_into(mlc_module_param(net, "0.bias"), mlc_module_param(ref, "0.bias"));
        CHECK_EQ(mlc_write(mlc_module_param(ref, names[i]), f.data,
                           i < 2 ? sizeof means : sizeof count), MLC_OK);
        CHECK_EQ(mlc_module_bind(net, names[i], f.data), MLC_OK);
        CHECK(mlc_forward(net, batch_of(ctx, 1)) == NULL);
        CHECK_HAS(mlc_error(ctx), names[i] + 2);
        CHECK_HAS(mlc_error(ctx), "' is bound to memory of the program");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK_EQ(mlc_summary(net, mlc_dims2(4, IN), collect, &s), MLC_OK);
        mlc_module_train(ref, false);
        mlc_module_train(net, false);
        test_read(mlc_forward(ref, batch_of(ctx, 1)), want);
        test_read(mlc_forward(net, batch_of(ctx, 1)), got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);       /* the others are as they were      */
        CHECK_OK(ctx);
        mlc_module_free(net);
        flash_free(&f);
    }
}

TEST(nn, folding_into_a_bound_layer_is_an_error_before_anything_changes)
{
    static const char *const names[] = {"0.weight", "0.bias"};
    ONLY_ON_HOST();
    for (int i = 0; i < 2; i++) {
        double      want[4 * HIDDEN], got[4 * HIDDEN];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = normed(ctx);
        const flash f = flash_param(net, names[i], 0);
        mlc_module_train(net, false);
        CHECK_EQ(mlc_module_bind(net, names[i], f.data), MLC_OK);
        test_read(mlc_forward(net, batch_of(ctx, 1)), want);
        mlc_error_clear(ctx);
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_nn_fold_batch_norm(net), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(ctx), "nn_fold_batch_norm: '");
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        mlc_scope_end(ctx);
        CHECK(mlc_module_child(net, 1) != NULL);
        test_read(mlc_forward(net, batch_of(ctx, 1)), got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);
        CHECK_OK(ctx);
        mlc_module_free(net);
        flash_free(&f);
    }
}

TEST(nn, bind_refuses_what_it_cannot_read)
{
    static const double values[IN * HIDDEN + 1] = {0};     /* aligned for any dtype            */
    const char *const odd = (const char *)values + 2;
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
    CHECK_EQ(mlc_module_bind(NULL, "0.weight", values), MLC_ERR_ARG);
    CHECK_EQ(mlc_module_bind(net, "1.weight", values), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "module_bind: there is no '1.weight'; mlc_param_next walks through "
              "all names");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_bind(net, NULL, values), MLC_ERR_ARG);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    if (!test_on_host()) {
        CHECK_EQ(mlc_module_bind(net, "0.weight", values), MLC_ERR_UNSUPPORTED);
        CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
        return;
    }
    CHECK_EQ(mlc_module_bind(net, "0.weight", NULL), MLC_ERR_ARG);
    CHECK_STR(mlc_error(ctx), "module_bind: data for '0.weight' is NULL; give 35 elements of f32, "
              "at a multiple of 4 bytes");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_module_bind(net, "0.weight", odd), MLC_ERR_ARG);
    CHECK_HAS(mlc_error(ctx), "data for '0.weight' is not aligned");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    /* What the tape has: a bias is not saved, its gradient would have no place.               */
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, batch_of(ctx, 1));
    CHECK_EQ(mlc_module_bind(net, "0.bias", values), MLC_ERR_STATE);
    CHECK_STR(mlc_error(ctx), "module_bind: 'bias' is an input of a recorded linear; call it "
              "before, or when the scope of that has ended");
    CHECK_STATUS(ctx, MLC_ERR_STATE);
    CHECK_EQ(mlc_backward_from(y, NULL), MLC_OK);
    CHECK(mlc_grad(mlc_module_param(net, "0.bias")) != NULL);
    mlc_scope_end(ctx);
    CHECK_EQ(mlc_module_numel(net, true), mlc_module_numel(net, false));
    CHECK_EQ(mlc_module_bind(net, "0.bias", values), MLC_OK);
    CHECK(mlc_grad(mlc_module_param(net, "0.bias")) == NULL);
    CHECK(mlc_item(mlc_select(mlc_module_param(net, "0.bias"), 0, 6)) == 0);
    CHECK_OK(ctx);
}

/* By the second name, in two trees; the one that bound it goes first.                         */
TEST(nn, a_tied_parameter_is_bound_under_all_its_names)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *a = mlp(ctx, IN, HIDDEN, OUT), *b = mlp(ctx, IN, HIDDEN, OUT);
    const flash f = flash_other(ctx, "0.weight");
    mlc_tensor *w = mlc_module_param(a, "0.weight");
    CHECK_EQ(mlc_module_tie(mlc_module_child(a, 2), "same", w), MLC_OK);
    CHECK_EQ(mlc_module_tie(b, "shared", w), MLC_OK);
    CHECK_EQ(mlc_module_build(b), MLC_OK);
    CHECK(mlc_module_param(a, "2.same") == w);
    mlc_optim *o = mlc_sgd(b, 0.1);
    CHECK_EQ(mlc_module_bind(a, "2.same", f.data), MLC_OK);
    CHECK(mlc_f32(mlc_module_param(b, "shared")) == f.data);
    CHECK(mlc_f32(mlc_module_param(a, "0.weight")) == f.data);
    train(ctx, b, o, 0, 2);
    train(ctx, a, mlc_sgd(a, 0.1), 0, 2);
    mlc_module_free(a);
    CHECK_EQ(mlc_module_rebuild(b), MLC_OK);
    train(ctx, b, o, 2, 4);
    CHECK(mlc_f32(mlc_module_param(b, "shared")) == f.data);
    CHECK_OK(ctx);
    mlc_module_free(b);
    flash_free(&f);
}

TEST(nn, a_bound_child_stays_bound_in_a_larger_net)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    mlc_module *net = mlp(ctx, IN, HIDDEN, OUT), *root = mlc_nn_sequential(ctx);
    const flash f = flash_other(ctx, "2.weight");
    CHECK_EQ(mlc_module_bind(net, "2.weight", f.data), MLC_OK);
    mlc_module_build(net);
    CHECK_EQ(mlc_module_add(root, net), MLC_OK);
    CHECK_EQ(mlc_module_add(root, mlc_nn_linear(ctx, OUT, 2)), MLC_OK);
    CHECK(mlc_f32(mlc_module_param(root, "0.2.weight")) == f.data);
    train(ctx, root, mlc_adamw(root, 0.1), 0, 2);
    mlc_module_free(net);
    CHECK_EQ(mlc_module_build(root), MLC_OK);
    flash_free(&f);
    CHECK_OK(ctx);
}

/* Rounded once, as what was not bound; the same dtype changes nothing.                        */
TEST(nn, module_to_copies_what_is_bound_to_another_dtype_and_it_can_be_trained)
{
    static const mlc_dtype dtypes[] = {MLC_F64, MLC_BF16, MLC_F16};
    ONLY_ON_HOST();
    for (int i = 0; i < COUNT(dtypes); i++) {
        double      want[IN * HIDDEN], got[IN * HIDDEN];
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = mlp(ctx, IN, HIDDEN, OUT);
        const flash f = flash_other(ctx, "0.weight");
        CHECK_EQ(mlc_module_bind(net, "0.weight", f.data), MLC_OK);
        mlc_tensor *w = mlc_module_param(net, "0.weight");
        test_read(mlc_cast(w, dtypes[i]), want);
        CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
        CHECK(mlc_f32(w) == f.data);
        const int64_t before = param_bytes(ctx);
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, batch_of(ctx, 1));
        CHECK_EQ(mlc_module_to(net, dtypes[i]), MLC_ERR_STATE);      /* the tape has others    */
        CHECK_STATUS(ctx, MLC_ERR_STATE);
        CHECK(y != NULL && mlc_f32(w) == f.data);
        mlc_scope_end(ctx);
        CHECK_EQ(mlc_module_to(net, dtypes[i]), MLC_OK);
        flash_free(&f);
        CHECK(w->dtype == dtypes[i] && (dtypes[i] != MLC_F64 || param_bytes(ctx) > before));
        test_read(w, got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);
        CHECK(!mlc_requires_grad(w));
        CHECK(mlc_zero_(w) != NULL);
        CHECK_EQ(mlc_module_freeze(net, NULL, false), MLC_OK);
        CHECK_EQ(mlc_module_to(net, MLC_F32), MLC_OK);
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        train(ctx, net, mlc_sgd(net, 0.1), 0, 2);
        CHECK_OK(ctx);
    }
}

/* The 16-bit copy of a weight is of what was bound before.                                    */
TEST(nn, binding_drops_the_packs_of_the_old_values)
{
    enum { N = 64 };
    ONLY_ON_HOST();
    for (int pass = 0; pass < 2; pass++)
        FOR_EACH_ISA(ctx) {
            double      want[N * N], got[N * N];
            mlc_memory  mem;
            mlc_module *net = mlc_nn_linear(ctx, N, N), *ref = mlc_nn_linear(ctx, N, N);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(N, N), 1, -1, 1);
            const flash w = flash_param(ref, "weight", 0), b = flash_param(ref, "bias", 0);
            if (pass)
                CHECK_EQ(mlc_module_bind(net, "weight", mlc_f32(x)), MLC_OK);
            mlc_no_grad_begin(ctx);
            mlc_autocast_begin(ctx, MLC_BF16);
            test_read(mlc_forward(ref, x), want);
            mlc_module_free(ref);
            CHECK(mlc_forward(net, x) != NULL);
            CHECK_EQ(mlc_module_bind(net, "weight", w.data), MLC_OK);
            CHECK_EQ(mlc_module_bind(net, "bias", b.data), MLC_OK);
            mlc_memory_info(ctx, &mem);
            CHECK_EQ(mem.now[MLC_MEM_PACK], 0);
            test_read(mlc_forward(net, x), got);
            CHECK_EQ(memcmp(want, got, sizeof want), 0);
            mlc_autocast_end(ctx);
            mlc_no_grad_end(ctx);
            CHECK_OK(ctx);
            mlc_module_free(net);
            flash_free(&w);
            flash_free(&b);
        }
}

/* ---- networks that share the values of one in another context -------------------------------- */

/* Buffers, a tied weight and a 16-bit layer; the batch norm is in evaluation. */
static mlc_module *many_kinds(mlc_ctx *ctx)
{
    mlc_module *net = normed(ctx), *half = mlc_nn_linear(ctx, HIDDEN, HIDDEN);
    mlc_module_add(net, mlc_nn_linear(ctx, HIDDEN, HIDDEN));
    mlc_module_add(net, mlc_nn_linear(ctx, HIDDEN, HIDDEN));
    mlc_module_tie(mlc_module_child(net, 3), "weight", mlc_module_param(net, "2.weight"));
    mlc_module_to(half, MLC_BF16);
    mlc_module_add_named(net, "half", half);
    mlc_module_train(net, false);
    return net;
}

/* The last layer, of bf16, takes the output of those of f32. */
static mlc_tensor *run_kinds(mlc_module *net, int seed)
{
    mlc_tensor *x = batch_of(mlc_module_ctx(net), seed);
    for (int i = 0; i < 4; i++) x = mlc_forward(mlc_module_child(net, i), x);
    return mlc_cast(mlc_forward(mlc_module_child(net, 4), mlc_cast(x, MLC_BF16)), MLC_F32);
}

static const void *values_of(mlc_tensor *t)
{
    return t->dtype == MLC_BF16 ? (const void *)mlc_bf16(t)
         : t->dtype == MLC_I64 ? (const void *)mlc_i64(t) : (const void *)mlc_f32(t);
}

TEST(nn, a_shared_network_takes_no_memory_for_values_and_gives_the_same_bits)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx) {
        double         want[4 * HIDDEN], got[4 * HIDDEN];
        mlc_module    *from = many_kinds(ctx);
        mlc_ctx_desc   d = test_desc();
        d.isa = mlc_ctx_isa(ctx);
        mlc_ctx       *other = test_own(mlc_ctx_create(&d));
        mlc_module    *net = mlc_module_share(other, from), *none = mlc_nn_relu(other);
        if (!CHECK(net != NULL)) return;
        CHECK(mlc_module_ctx(net) == other);
        const int64_t  taken = param_bytes(other);
        mlc_module_build(none);
        CHECK_EQ(param_bytes(other), 2 * taken);           /* a network without parameters     */
        mlc_param_iter a = mlc_param_iter_make(from), b = mlc_param_iter_make(net);
        int            n = 0;
        for (; mlc_param_next(&a) && mlc_param_next(&b); n++) {
            CHECK_STR(b.name, a.name);
            CHECK(values_of(a.tensor) == values_of(b.tensor) && a.buffer == b.buffer &&
                  !b.trainable);
        }
        CHECK_EQ(n, 12);
        for (int seed = 1; seed < 3; seed++) {
            test_read(run_kinds(from, seed), want);
            test_read(run_kinds(net, seed), got);
            CHECK_EQ(memcmp(want, got, sizeof want), 0);
        }
        /* A change of the one is seen by the other. */
        mlc_no_grad_begin(ctx);
        CHECK(mlc_fill_(mlc_module_param(from, "half.bias"), 0.5) != NULL);
        mlc_no_grad_end(ctx);
        CHECK_NEAR(mlc_item_at(mlc_module_param(net, "half.bias"), mlc_dims1(3)), 0.5, 0);
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        CHECK(mlc_f32(mlc_module_param(net, "0.weight")) ==
              mlc_f32(mlc_module_param(from, "0.weight")));
        CHECK_OK(ctx);
        CHECK_OK(other);
        mlc_module_free(net);
        test_read(run_kinds(from, 1), want);
        CHECK_OK(ctx);
    }
}

TEST(nn, a_shared_network_is_read_only)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx(), *other = test_ctx();
    mlc_module *from = mlp(ctx, IN, HIDDEN, OUT), *net = mlc_module_share(other, from);
    if (!CHECK(net != NULL)) return;
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    double      before[IN * HIDDEN], after[IN * HIDDEN];
    test_read(w, before);
    for (int i = 0; i < COUNT(WRITES); i++) {
        CHECK_EQ(WRITES[i](net, w), MLC_ERR_STATE);
        CHECK_HAS(mlc_error(other), "weight' is of another network (mlc_module_share), which alone "
                  "may change it; leave it out, or change a mlc_copy of it");
        CHECK_STATUS(other, MLC_ERR_STATE);
    }
    CHECK_EQ(mlc_module_copy(net, mlp(other, IN, HIDDEN, OUT)), MLC_ERR_STATE);
    CHECK_STATUS(other, MLC_ERR_STATE);
    mlc_optim  *opt = mlc_adamw(net, 0.1);
    mlc_scope_begin(other);
    mlc_tensor *y = mlc_forward(net, batch_of(other, 1));
    CHECK(!mlc_requires_grad(y));
    CHECK_EQ(mlc_optim_minimize(opt, mlc_mean_all(y)), MLC_ERR_STATE);
    CHECK_ERROR(other, MLC_ERR_STATE, "backward: nothing that y was made from requires a gradient");
    mlc_scope_end(other);
    test_read(w, after);
    CHECK_EQ(memcmp(before, after, sizeof before), 0);
    mlc_optim_free(opt);
    train(ctx, from, mlc_sgd(from, 0.1), 0, 2);            /* the one that it is of can be     */
    CHECK_OK(ctx);
}

TEST(nn, share_refuses_what_it_cannot_read)
{
    mlc_ctx    *ctx = test_ctx(), *other = test_ctx();
    mlc_module *from = mlp(ctx, IN, HIDDEN, OUT);
    CHECK(mlc_module_share(NULL, from) == NULL);
    CHECK(mlc_module_share(other, NULL) == NULL);
    CHECK_ERROR(other, MLC_ERR_ARG, "module_share: from is NULL");
    if (test_on_host()) {
        /* Within one context; and what is shared is shared once more. */
        mlc_module *one = mlc_module_share(ctx, from), *two = mlc_module_share(other, one);
        double      want[4 * OUT], got[4 * OUT];
        test_read(mlc_forward(from, batch_of(ctx, 1)), want);
        test_read(mlc_forward(one, batch_of(ctx, 1)), got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);
        test_read(mlc_forward(two, batch_of(other, 1)), got);
        CHECK_EQ(memcmp(want, got, sizeof want), 0);
    } else {
        CHECK(mlc_module_share(other, from) == NULL);
        CHECK_ERROR(other, MLC_ERR_UNSUPPORTED, "module_share: a device does not read memory of "
                    "another context; mlc_save_memory and mlc_load_memory copy values");
    }
    CHECK_OK(ctx);
    CHECK_OK(other);
}

typedef struct sharer {
    mlc_module *from;
    int         seed;
    mlc_status  status;
    double      got[5][4 * OUT];
} sharer;

static void *share_and_run(void *arg)
{
    sharer      *s = (sharer *)arg;
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.threads = 1;
    mlc_ctx     *ctx = mlc_ctx_create(&d);
    mlc_module  *net = mlc_module_share(ctx, s->from);
    mlc_eval_begin(net);
    for (int i = 0; i < 5; i++) {
        mlc_scope_begin(ctx);
        mlc_read(mlc_cast(mlc_forward(net, batch_of(ctx, s->seed + i)), MLC_F64), s->got[i],
                 sizeof s->got[i]);
        mlc_scope_end(ctx);
    }
    mlc_module_free(net);
    s->status = mlc_ctx_status(ctx);
    mlc_ctx_free(ctx);
    return NULL;
}

TEST(threads, may_share_one_network_at_the_same_time)
{
    enum { THREADS = 3 };
    static sharer s[THREADS];
    pthread_t     thread[THREADS];
    ONLY_ON_HOST();
    mlc_ctx      *ctx = test_ctx();
    mlc_module   *from = mlp(ctx, IN, HIDDEN, OUT);
    double        want[4 * OUT];
    CHECK_EQ(mlc_module_build(from), MLC_OK);
    for (int i = 0; i < THREADS; i++) {
        s[i].from = from;
        s[i].seed = 10 * i;
        CHECK_EQ(pthread_create(&thread[i], NULL, share_and_run, &s[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(s[i].status, MLC_OK);
        for (int k = 0; k < 5; k++) {
            test_read(mlc_forward(from, batch_of(ctx, s[i].seed + k)), want);
            CHECK_EQ(memcmp(want, s[i].got[k], sizeof want), 0);
        }
    }
    CHECK_OK(ctx);
}
