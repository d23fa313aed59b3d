/* test_onnx_save.c -- tests of the sections IMPL.ONNX.SAVE.*: plans as files of ONNX
 *
 * A file is read again by mlc_onnx_load, and its module is held against the forward. With
 * MLC_TEST_OUT=FOLDER files, inputs and outputs stay there for tests/python_runs_onnx.py.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "plans.h"

#define NEAR 1e-5

/* A module's output 0 of these inputs; NULL with an error of ctx. */
static mlc_tensor *first_of_module(mlc_module *m, mlc_tensor *const *in, int32_t n)
{
    mlc_tensor *out = NULL;
    return mlc_module_forward(m, in, n, &out, 1) == MLC_OK ? out : NULL;
}

/* Keeps a case for Python: NAME.onnx, NAME.npz with x0, x1, .. and y0. */
static void keep(mlc_ctx *ctx, const char *name, const char *path, mlc_tensor *const *in, int32_t n,
                 mlc_tensor *out)
{
    static const char *const names[] = {"x0", "x1", "x2", "x3"};
    const char              *folder = getenv("MLC_TEST_OUT");
    char                     to[400];
    mlc_named                list[5];
    size_t                   bytes;
    if (folder == NULL || out == NULL) return;
    unsigned char *file = get_file(path, &bytes);
    snprintf(to, sizeof to, "%s/%s.onnx", folder, name);
    CHECK(put_file(to, file, bytes));
    free(file);
    for (int32_t i = 0; i < n; i++) {
        list[i].name = names[i];
        list[i].tensor = in[i];
    }
    list[n].name = "y0";
    list[n].tensor = out;
    snprintf(to, sizeof to, "%s/%s.npz", folder, name);
    CHECK_EQ(mlc_npz_save(ctx, to, list, n + 1), MLC_OK);
}

/* ---- networks -------------------------------------------------------------------------------- */

/* A sample of size n of axis 0 or 1; with 1 the batch is 2. */
static mlc_tensor *sized(mlc_ctx *ctx, const struct network *k, int axis, int64_t n, uint64_t seed)
{
    struct network at = *k;
    if (axis) at.in[0] = n;
    return sample(ctx, &at, MLC_F32, axis ? 2 : n, seed);
}

/* A plan of a network that has run for sizes of 5 and 4 of an axis. */
static mlc_plan *plan_of(mlc_ctx *ctx, mlc_module *net, const struct network *k, int axis)
{
    const mlc_plan_desc d = with(PLAIN);
    mlc_plan           *p = NULL;
    for (int64_t n = 5; n >= 4; n--) {
        mlc_tensor *x = sized(ctx, k, axis, n, 3);
        if (p == NULL) p = mlc_plan_capture(net, &x, 1, &d);
        CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    }
    return p;
}

static void check_file(const struct network *k, int axis, int32_t opset, const char *path)
{
    static const int64_t sizes[] = {1, 2, 7};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = k->make(ctx);
    mlc_plan            *p = plan_of(ctx, net, k, axis);
    mlc_onnx_save_desc   d = mlc_onnx_save_desc_make();
    char                 name[64];
    d.opset = opset;
    if (!CHECK_EQ(mlc_onnx_save(p, path, &d), MLC_OK)) {
        printf("  %s, opset %d: %s\n", k->name, (int)opset, mlc_error(ctx));
        mlc_error_clear(ctx);
    }
    mlc_module *m = mlc_onnx_load(ctx, path, NULL);
    if (!CHECK(m != NULL)) {
        printf("  %s, opset %d: %s\n", k->name, (int)opset, mlc_error(ctx));
        mlc_error_clear(ctx);
    }
    mlc_eval_begin(net);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < COUNT(sizes) && m != NULL; i++) {
        mlc_tensor  *x = sized(ctx, k, axis, sizes[i], 4 + (uint64_t)i), *y;
        mlc_tensor  *want = mlc_forward(net, x);
        y = first_of_module(m, &x, 1);
        const double off = y != NULL ? apart(y, want) : -1;
        if (!CHECK(off >= 0 && off <= NEAR)) {
            printf("  %s, opset %d, size %d of axis %d: %g %s\n", k->name, (int)opset,
                   (int)sizes[i], axis, off, mlc_error(ctx));
            mlc_error_clear(ctx);
        }
        snprintf(name, sizeof name, "%s.%d.%d.%d", k->name, axis, (int)opset, (int)sizes[i]);
        keep(ctx, name, path, &x, 1, want);
    }
    mlc_no_grad_end(ctx);
    mlc_eval_end(net);
    mlc_plan_free(p);
    mlc_module_free(m);
    mlc_module_free(net);
}

TEST(onnx_save, networks)
{
    ONLY_ON_HOST();
    static const int32_t opsets[] = {13, 17, 20};
    const box            b = box_open_fast("net.onnx");
    for (int o = 0; o < COUNT(opsets); o++)
        for (int i = 0; i < COUNT(NETWORKS); i++) check_file(&NETWORKS[i], 0, opsets[o], b.path);
    box_close(&b);
}

TEST(onnx_save, networks_of_any_length)
{
    ONLY_ON_HOST();
    static const char *const names[] = {"lstm", "gru", "encoder", "gpt", "llama", "alibi"};
    const box                b = box_open_fast("net.onnx");
    for (int k = 0; k < COUNT(names); k++)
        for (int i = 0; i < COUNT(NETWORKS); i++)
            if (strcmp(NETWORKS[i].name, names[k]) == 0) check_file(&NETWORKS[i], 1, 17, b.path);
    box_close(&b);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Output `which` of a group. */
typedef struct one { void (*make)(operands *o); int which; } one;

static mlc_status one_of(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    const one  *k = (const one *)user;
    mlc_tensor *all[96];
    operands    o = {ctx, in[0], in[1], in[2], in[3], all};
    (void)n_in;
    (void)n_out;
    k->make(&o);
    out[0] = all[k->which];
    return mlc_ctx_status(ctx);
}

/* What a file of this opset has no form of, by what the error says. */
static bool may_lack(const char *says, int32_t opset)
{
    static const char *const never[] = {"cumprod", "a tensor without elements", "by the batch"};
    for (int i = 0; i < COUNT(never); i++)
        if (strstr(says, never[i]) != NULL) return true;
    return opset < 16 && strstr(says, "it needs opset 16") != NULL;
}

/* Output `which` of a group against its file; false: the file has no form of it, which may be. */
static bool check_one(mlc_ctx *ctx, int g, int which, mlc_tensor *const *in, mlc_tensor *want,
                      int32_t opset, const char *path)
{
    const mlc_plan_desc d = with(PLAIN);
    one                 k = {GROUPS[g].make, which};
    mlc_onnx_save_desc  s = mlc_onnx_save_desc_make();
    char                name[64];
    mlc_plan           *p = mlc_plan_capture_fn(ctx, one_of, &k, in, 4, &d);
    s.opset = opset;
    mlc_status st = mlc_onnx_save(p, path, &s);
    mlc_plan_free(p);
    if (st == MLC_ERR_UNSUPPORTED && may_lack(mlc_error(ctx), opset)) {
        mlc_error_clear(ctx);
        return false;
    }
    mlc_module  *m = st == MLC_OK ? mlc_onnx_load(ctx, path, NULL) : NULL;
    mlc_tensor  *y = m != NULL ? first_of_module(m, in, 4) : NULL;
    const double off = y != NULL ? apart(y, want) : -1;
    if (!CHECK(off >= 0 && off <= NEAR) || !CHECK_EQ(y->dtype, want->dtype) ||
        !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want))) {
        printf("  group %d, %d, opset %d: %g %s\n", g, which, (int)opset, off, mlc_error(ctx));
        mlc_error_clear(ctx);
    }
    snprintf(name, sizeof name, "op.%d.%d.%d", g, which, (int)opset);
    if (y != NULL) keep(ctx, name, path, in, 4, want);
    mlc_module_free(m);
    return true;
}

/* All outputs of a group; *lacks counts those without a form. */
static void check_group(int g, int32_t opset, const char *path, int *lacks)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *in[4], *all[96];
    group_inputs(ctx, in);
    operands o = {ctx, in[0], in[1], in[2], in[3], all};
    mlc_no_grad_begin(ctx);
    GROUPS[g].make(&o);
    CHECK_OK(ctx);
    const int n = (int)(o.out - all);
    for (int i = 0; i < n; i++) {
        mlc_scope_begin(ctx);
        *lacks += !check_one(ctx, g, i, in, all[i], opset, path);
        mlc_scope_end(ctx);
    }
    mlc_no_grad_end(ctx);
}

TEST(onnx_save, every_operation)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("op.onnx");
    static const int32_t opsets[] = {13, 17, 20};
    int       lacks[3] = {0, 0, 0};
    for (int k = 0; k < 3; k++)
        for (int g = 0; g < COUNT(GROUPS); g++) check_group(g, opsets[k], b.path, &lacks[k]);
    CHECK(lacks[1] <= 4);
    CHECK(lacks[0] <= lacks[1] + 2);
    CHECK_EQ(lacks[2], lacks[1]);
    box_close(&b);
}

/* ---- views ----------------------------------------------------------------------------------- */

/* View `which` of x [n,6,5], plus 1; NULL: there are no more. */
static mlc_tensor *view_of(mlc_tensor *x, int which)
{
    const int64_t n = mlc_dim(x, 0);
    switch (which) {
        case 0: return mlc_slice(x, 0, 1, n, 1);
        case 1: return mlc_slice(x, 0, 0, n, 2);
        case 2: return mlc_slice(x, 1, 1, 6, 2);
        case 3: return mlc_slice(mlc_slice(x, 1, 1, 5, 3), 2, 1, 4, 1);
        case 4: return mlc_select(x, 0, n - 1);
        case 5: return mlc_select(x, 1, 5);
        case 6: return mlc_select(mlc_select(x, 1, 2), 1, 3);
        case 7: return mlc_transpose(x, 0, 2);
        case 8: return mlc_permute(x, mlc_dims3(1, 2, 0));
        case 9: return mlc_transpose(mlc_slice(x, 2, 1, 4, 1), 1, 2);
        case 10: return mlc_reshape(x, mlc_dims2(n, 30));
        case 11: return mlc_reshape(x, mlc_dims2(3 * n, 10));
        case 12: return mlc_reshape(x, mlc_dims1(30 * n));
        case 13: return mlc_transpose(mlc_reshape(x, mlc_dims4(n, 2, 3, 5)), 1, 2);
        case 14: return mlc_transpose(mlc_reshape(x, mlc_dims4(n, 2, 3, 5)), 0, 2);
        case 15: return mlc_unsqueeze(mlc_slice(x, 1, 2, 3, 1), 1);
        case 16: return mlc_expand(mlc_slice(x, 1, 2, 3, 1), mlc_dims3(n, 4, 5));
        case 17: return mlc_expand(mlc_unsqueeze(x, 1), mlc_dims4(n, 2, 6, 5));
        case 18: return mlc_slice(mlc_reshape(x, mlc_dims2(n, 30)), 1, 3, 29, 7);
        case 19: return mlc_slice(mlc_reshape(x, mlc_dims1(30 * n)), 0, 2, 25, 11);
        case 20: return mlc_slice(x, 2, 0, 5, 3);
        case 21: return mlc_transpose(mlc_slice(mlc_slice(x, 0, 0, n, 3), 2, 0, 5, 2), 0, 1);
        default: return NULL;
    }
}

static mlc_status viewed(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                         mlc_tensor **out, int32_t n_out)
{
    const int which = *(const int *)user;
    (void)n_in;
    (void)n_out;
    /* From 100 on a part is changed in place, and the whole is the result. */
    mlc_tensor *x = which >= 100 ? mlc_copy(in[0]) : in[0], *part = view_of(x, which % 100);
    out[0] = part != NULL && which < 100 ? mlc_add_scalar(part, 1) : x;
    if (part != NULL && which >= 100) mlc_add_(part, mlc_mul_scalar(mlc_copy(part), 2));
    return mlc_ctx_status(ctx);
}

/* A view in a file of one size, or of all sizes of axis 0 but for those that need one. */
static void check_view(int which, bool all, const char *path)
{
    mlc_ctx            *ctx = test_ctx();
    const mlc_plan_desc d = with(PLAIN);
    char                name[40];
    mlc_tensor         *x = test_rand(ctx, MLC_F32, mlc_dims3(5, 6, 5), 1, -1, 1), *y, *want;
    mlc_tensor         *more = test_rand(ctx, MLC_F32, mlc_dims3(8, 6, 5), 2, -1, 1);
    mlc_plan           *p = mlc_plan_capture_fn(ctx, viewed, &which, &x, 1, &d);
    if (all) CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_OK);
    const mlc_status st = mlc_onnx_save(p, path, NULL);
    mlc_module      *m = st == MLC_OK ? mlc_onnx_load(ctx, path, NULL) : NULL;
    x = all ? test_rand(ctx, MLC_F32, mlc_dims3(8, 6, 5), 3, -1, 1) : x;
    mlc_no_grad_begin(ctx);
    CHECK_EQ(viewed(ctx, &which, &x, 1, &want, 1), MLC_OK);
    y = m != NULL ? first_of_module(m, &x, 1) : NULL;
    mlc_no_grad_end(ctx);
    if (!CHECK(y != NULL && apart(y, want) == 0) ||
        !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want)))
        printf("  view %d, all %d: %s\n", which, all, mlc_error(ctx));
    mlc_error_clear(ctx);
    snprintf(name, sizeof name, "view.%d.%d", which, all);
    if (y != NULL) keep(ctx, name, path, &x, 1, want);
    mlc_plan_free(p);
    mlc_module_free(m);
}

TEST(onnx_save, views_and_changes_of_parts)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("view.onnx");
    for (int i = 0; i < 22; i++) {
        check_view(i, false, b.path);
        check_view(i, true, b.path);
        if (i != 16 && i != 17) check_view(100 + i, false, b.path);
    }
    box_close(&b);
}

/* ---- arguments that grow --------------------------------------------------------------------- */

/* Forward `which` of x [n,4], in which n is an argument. */
static mlc_status growing(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    const int     which = *(const int *)user;
    const int64_t n = mlc_dim(in[0], 0);
    const double  size = (double)n;
    (void)n_in;
    (void)n_out;
    switch (which) {
        case 0: out[0] = mlc_div_scalar(mlc_sum(in[0], mlc_dims1(0), false), size); break;
        case 1: out[0] = mlc_add(in[0], mlc_reshape(mlc_arange(ctx, MLC_F32, 0, size, 1),
                                                    mlc_dims2(n, 1))); break;
        case 2: out[0] = mlc_masked_fill(in[0], mlc_gt_scalar(in[0], 2 - size), 1 + size); break;
        case 3: out[0] = mlc_slice(mlc_sort(in[0], 0, false, NULL), 0, n / n, n, 1); break;
        case 4: out[0] = mlc_cumsum(mlc_flip(in[0], mlc_dims1(0)), 0); break;
        case 5: out[0] = mlc_softmax(mlc_matmul(in[0], mlc_transpose(in[0], 0, 1)), 1); break;
        case 6: out[0] = mlc_triu(in[0], n - 4); break;
        default: out[0] = mlc_add(in[0], mlc_reshape(mlc_arange(ctx, MLC_F32, size, 2 * size, 1),
                                                     mlc_dims2(n, 1))); break;
    }
    return mlc_ctx_status(ctx);
}

/* Arguments follow the size, or are listed: from 6 on. */
static void check_growing(int which, int64_t first, int64_t second, const char *path)
{
    static const int64_t sizes[] = {1, 2, 9};
    mlc_ctx             *ctx = test_ctx();
    char                 name[40];
    mlc_tensor          *x = test_rand(ctx, MLC_F32, mlc_dims2(first, 4), 1, -1, 1), *want, *y;
    mlc_tensor          *more = test_rand(ctx, MLC_F32, mlc_dims2(second, 4), 2, -1, 1);
    mlc_plan            *p = mlc_plan_capture_fn(ctx, growing, &which, &x, 1, NULL);
    CHECK_EQ(mlc_plan_prepare(p, &more, 1), MLC_OK);
    if (which > 5) {
        CHECK_EQ(mlc_onnx_save(p, path, NULL), MLC_ERR_UNSUPPORTED);
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, which == 6 ? "triu (an argument that grows"
                                                         : "steps (an argument that grows");
        mlc_plan_free(p);
        return;
    }
    CHECK_EQ(mlc_onnx_save(p, path, NULL), MLC_OK);
    mlc_module *m = mlc_onnx_load(ctx, path, NULL);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < COUNT(sizes) && m != NULL; i++) {
        if (which == 3 && i == 0) continue;              /* no elements                       */
        x = test_rand(ctx, MLC_F32, mlc_dims2(sizes[i], 4), 3, -1, 1);
        CHECK_EQ(growing(ctx, &which, &x, 1, &want, 1), MLC_OK);
        y = first_of_module(m, &x, 1);
        if (!CHECK(y != NULL && apart(y, want) <= NEAR) ||
            !CHECK_STR(mlc_shape_of(y), mlc_shape_of(want)))
            printf("  growing %d, size %d: %s\n", which, (int)sizes[i], mlc_error(ctx));
        mlc_error_clear(ctx);
        snprintf(name, sizeof name, "grows.%d.%d.%d", which, (int)first, (int)sizes[i]);
        if (y != NULL) keep(ctx, name, path, &x, 1, want);
    }
    mlc_no_grad_end(ctx);
    mlc_module_free(m);
    mlc_plan_free(p);
}

TEST(onnx_save, arguments_that_grow_with_the_free_axis)
{
    ONLY_ON_HOST();
    const box b = box_open_fast("grows.onnx");
    for (int i = 0; i < 8; i++) {
        check_growing(i, 6, 3, b.path);
#ifndef MLC_TEST_STRIDES               /* strides at size 1 then tell nothing of other sizes   */
        if (i != 3) check_growing(i, 1, 5, b.path);
#endif
    }
    box_close(&b);
}

/* ---- names, sizes, files --------------------------------------------------------------------- */

TEST(onnx_save, names_and_the_free_axis)
{
    ONLY_ON_HOST();
    static const char *const in[] = {"pixels"}, *const out[] = {"scores"};
    const box                b = box_open_fast("net.onnx");
    mlc_ctx                 *ctx = test_ctx();
    mlc_module              *net = NETWORKS[0].make(ctx);
    mlc_plan                *p = plan_of(ctx, net, &NETWORKS[0], 0);
    mlc_onnx_save_desc       d = mlc_onnx_save_desc_make();
    mlc_onnx_value           v;
    d.inputs = in;
    d.outputs = out;
    d.n_inputs = d.n_outputs = 1;
    d.axis = "rows";
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    if (CHECK(mlc_onnx_input(m, 0, &v))) {
        CHECK_STR(v.name, "pixels");
        CHECK_EQ(v.shape[0], -1);
        CHECK_STR(v.symbol[0], "rows");
        CHECK_EQ(v.shape[1], 12);
    }
    if (CHECK(mlc_onnx_output(m, 0, &v))) {
        CHECK_STR(v.name, "scores");
        CHECK_STR(v.symbol[0], "rows");
        CHECK_EQ(v.shape[1], 7);
    }
    CHECK(mlc_module_param(m, "0.weight") != NULL);
    CHECK(mlc_module_param(m, "2.bias") != NULL);
    CHECK_EQ(box_count(&b), 1);
    mlc_module_free(m);
    mlc_plan_free(p);
    mlc_module_free(net);
    box_close(&b);
}

TEST(onnx_save, tensors_in_a_second_file)
{
    ONLY_ON_HOST();
    const box          b = box_open_fast("net.onnx");
    mlc_ctx           *ctx = test_ctx();
    mlc_module        *net = mlp(ctx, 40, 30, 20);
    mlc_tensor        *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 40), 1, -1, 1);
    mlc_plan          *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
    char               data[400];
    size_t             n;
    d.external = 1;
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    snprintf(data, sizeof data, "%s.data", b.path);
    free(get_file(data, &n));
    CHECK_EQ(n, (40 * 30 + 30 * 20) * sizeof(float));      /* both are multiples of 64 */
    free(get_file(b.path, &n));
    CHECK(n > 0 && n < 2000);
    CHECK_EQ(box_count(&b), 2);
    mlc_module *m = mlc_onnx_load(ctx, b.path, NULL);
    mlc_tensor *y = m != NULL ? first_of_module(m, &x, 1) : NULL;
    CHECK(y != NULL && apart(y, mlc_forward(net, x)) <= NEAR);
    mlc_module_free(m);
    d.external = 1 << 20;
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_OK);
    m = mlc_onnx_load(ctx, b.path, NULL);
    y = m != NULL ? first_of_module(m, &x, 1) : NULL;
    CHECK(y != NULL && apart(y, mlc_forward(net, x)) <= NEAR);
    mlc_module_free(m);
    mlc_plan_free(p);
    mlc_module_free(net);
    box_close(&b);
}

/* An import, saved again, has the same outputs. */
TEST(onnx_save, a_file_of_an_import)
{
    ONLY_ON_HOST();
    const box   b = box_open_fast("net.onnx");
    mlc_ctx    *ctx = test_ctx();
    for (int i = 0; i < COUNT(NETWORKS); i++) {
        mlc_module *net = NETWORKS[i].make(ctx);
        mlc_tensor *x = sample(ctx, &NETWORKS[i], MLC_F32, 2, 3);
        mlc_plan   *p = mlc_plan_capture(net, &x, 1, NULL), *q;
        mlc_tensor *want, *y;
        CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_OK);
        mlc_module *m = mlc_onnx_load(ctx, b.path, NULL), *again = NULL;
        q = m != NULL ? mlc_plan_capture(m, &x, 1, NULL) : NULL;
        if (CHECK(q != NULL) && CHECK_EQ(mlc_onnx_save(q, b.path, NULL), MLC_OK))
            again = mlc_onnx_load(ctx, b.path, NULL);
        y = again != NULL ? first_of_module(again, &x, 1) : NULL;
        want = m != NULL ? first_of_module(m, &x, 1) : NULL;
        if (!CHECK(y != NULL && want != NULL && apart(y, want) <= NEAR))
            printf("  %s: %s\n", NETWORKS[i].name, mlc_error(ctx));
        mlc_error_clear(ctx);
        mlc_plan_free(q);
        mlc_plan_free(p);
        mlc_module_free(again);
        mlc_module_free(m);
        mlc_module_free(net);
    }
    box_close(&b);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static mlc_status lacking(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out)
{
    mlc_tensor *x = in[0];
    (void)user;
    (void)n_in;
    (void)n_out;
    x = mlc_add(x, mlc_linspace(ctx, MLC_F32, 0, 1, 4));
    x = mlc_mul(mlc_eye(ctx, MLC_F32, 4, 4), x);
    out[0] = mlc_mse_loss(mlc_cumprod(x, 0), mlc_relu(x));
    return mlc_ctx_status(ctx);
}

static mlc_status twice_cumprod(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                                mlc_tensor **out, int32_t n_out)
{
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_scatter_add(mlc_cumprod(in[0], 0), 0, mlc_argsort(in[0], 0, false), in[0]);
    return mlc_ctx_status(ctx);
}

TEST(onnx_save, what_has_no_form_is_listed)
{
    ONLY_ON_HOST();
    const box          b = box_open_fast("net.onnx");
    mlc_ctx           *ctx = test_ctx();
    mlc_tensor        *x = mlc_ones(ctx, MLC_F32, mlc_dims1(4));
    mlc_onnx_save_desc d = mlc_onnx_save_desc_make();
    mlc_plan          *p = mlc_plan_capture_fn(ctx, lacking, NULL, &x, 1, NULL);
    CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "linspace, eye, mse_loss");
    CHECK_EQ(mlc_plan_run(p, &x, 1, NULL, 0), MLC_OK);
    mlc_plan_free(p);
    p = mlc_plan_capture_fn(ctx, twice_cumprod, NULL, &x, 1, NULL);
    d.opset = 13;
    CHECK_EQ(mlc_onnx_save(p, b.path, &d), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED,
                "2 operations that ONNX has not, or not in opset 13: cumprod (ONNX has none), "
                "scatter_add (it needs opset 16)");
    mlc_plan_free(p);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}

/* One wrong desc: what the message says. */
static void wrong_desc(mlc_ctx *ctx, mlc_plan *p, const char *path, const mlc_onnx_save_desc *d,
                       const char *says)
{
    CHECK_EQ(mlc_onnx_save(p, path, d), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, says);
}

TEST(onnx_save, wrong_arguments)
{
    ONLY_ON_HOST();
    static const char *const same[] = {"y0"}, *const param[] = {"0.weight"}, *const none[] = {""};
    const box                b = box_open_fast("net.onnx");
    mlc_ctx                 *ctx = test_ctx();
    mlc_module              *net = NETWORKS[0].make(ctx);
    mlc_tensor              *x = sample(ctx, &NETWORKS[0], MLC_F32, 2, 3);
    mlc_plan                *p = mlc_plan_capture(net, &x, 1, NULL);
    mlc_onnx_save_desc       d = mlc_onnx_save_desc_make();
    CHECK_EQ(mlc_onnx_save(NULL, b.path, NULL), MLC_ERR_ARG);
    wrong_desc(ctx, p, "", &d, "onnx_save: no path");
    d.opset = 12;
    wrong_desc(ctx, p, b.path, &d, "opset 12; 13 to 20");
    d.opset = 21;
    wrong_desc(ctx, p, b.path, &d, "opset 21; 13 to 20");
    d = mlc_onnx_save_desc_make();
    d.external = 0;
    wrong_desc(ctx, p, b.path, &d, "external is 0");
    d = mlc_onnx_save_desc_make();
    d.n_inputs = 2;
    wrong_desc(ctx, p, b.path, &d, "the plan has 1 and 1");
    d.n_inputs = 1;
    d.inputs = same;
    wrong_desc(ctx, p, b.path, &d, "the name 'y0' twice");
    d.inputs = param;
    wrong_desc(ctx, p, b.path, &d, "'0.weight' is the name of a parameter");
    d.inputs = none;
    wrong_desc(ctx, p, b.path, &d, "input 0 has no name");
    CHECK_EQ(box_count(&b), 0);
    CHECK_EQ(mlc_onnx_save(p, "/nowhere/at/all.onnx", NULL), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "/nowhere/at/all.onnx");
    mlc_module_free(net);
    CHECK_EQ(mlc_onnx_save(p, b.path, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "onnx_save: the network was freed");
    mlc_plan_free(p);
    CHECK_EQ(box_count(&b), 0);
    box_close(&b);
}
