/* test_sparse.c -- tests of sections IMPL.KERNELS.SPARSE and IMPL.SPARSE.*: products that skip
 * zeros, and networks that use them
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "guarded.h"
#include "nets.h"

static const mlc_sparse_form FORMS[] = {MLC_SPARSE_CSR, MLC_SPARSE_1X16, MLC_SPARSE_4X4};

static int64_t high_of(mlc_sparse_form form) { return form == MLC_SPARSE_4X4 ? 4 : 1; }
static int64_t wide_of(mlc_sparse_form form)
{
    return form == MLC_SPARSE_4X4 ? 4 : form == MLC_SPARSE_1X16 ? 16 : 1;
}

/* ---- the kernel sproduct --------------------------------------------------------------------- */

typedef struct size3 { int64_t m, n, k; } size3;

static const size3 SIZES[] = {{1, 1, 1},   {1, 4, 16},   {1, 17, 33}, {2, 3, 5},   {3, 16, 64},
                              {4, 31, 47}, {5, 33, 130}, {16, 4, 4},  {17, 70, 15}, {33, 18, 63},
                              {1, 65, 300}, {40, 21, 96}};

enum { A, VALUES, AT, BIAS, MORE, OUT, ROOM };

/* The weight of a case, dense: each block is 0 with probability `zeros`, all of row 2 of blocks. */
static double *dense_weight(size3 s, mlc_sparse_form form, double zeros, uint64_t seed)
{
    const int64_t high = high_of(form), wide = wide_of(form);
    double *w = (double *)calloc((size_t)(s.n * s.k), sizeof *w);
    for (int64_t i = 0; i < s.n * s.k; i++) {
        const int64_t r = i / s.k, c = i % s.k, block = r / high * 1000 + c / wide;
        if (test_random(seed + 1, block, 0, 1) >= zeros && r / high != 2)
            w[i] = (double)(float)test_random(seed, i, -1, 1);
    }
    return w;
}

/* Arrays of w in a form, in memory that ends at a page; start is the caller's to free. */
static void sparse_of(const double *w, struct mlc_k_sproduct *a)
{
    const int64_t high = high_of(a->form), wide = wide_of(a->form);
    int64_t *start = (int64_t *)calloc((size_t)a->n + 2, sizeof *start), blocks = 0, b;
    for (int put_them = 0; put_them < 2; put_them++) {
        int32_t *at = (int32_t *)guarded(AT, (size_t)blocks * sizeof *at);
        void *values = guarded(VALUES, (size_t)(blocks * high * wide) * size_of(a->dtype));
        a->at = at;
        a->values = values;
        b = 0;
        for (int64_t r = 0; r < a->n; r += high) {
            start[r / high] = b;
            for (int64_t c = 0; c < a->k; c += wide) {
                double block[16];
                bool any = false;
                for (int64_t i = 0; i < high * wide; i++) {
                    const int64_t row = r + i % high, col = c + i / high;
                    block[i] = row < a->n && col < a->k ? w[row * a->k + col] : 0;
                    any = any || block[i] != 0;
                }
                if (!any) continue;
                for (int64_t i = 0; put_them && i < high * wide; i++)
                    put(values, a->dtype, b * high * wide + i, block[i]);
                if (put_them) at[b] = (int32_t)c;
                b++;
            }
        }
        start[(a->n + high - 1) / high] = blocks = b;
    }
    a->start = start;
}

/* Runs k with the workspace that it asks for, which ends at a page. */
static mlc_status run_sproduct(const mlc_kernels *k, struct mlc_k_sproduct *a)
{
    a->workspace_bytes = k->sproduct_workspace(NULL, a);
    a->workspace = guarded(ROOM, (a->workspace_bytes + 63) / 64 * 64);
    memset(a->workspace, 0xff, a->workspace_bytes);
    return k->sproduct(NULL, a);
}

static double act_of(mlc_act act, double v)
{
    return act == MLC_ACT_RELU ? (v > 0 ? v : 0) : act == MLC_ACT_TANH ? tanh(v) : v;
}

/* One size, form, dtype and share of zeros against sums in f64, element by element. */
static void check_sproduct(const mlc_kernels *k, int s, mlc_sparse_form form, mlc_dtype dtype,
                           double zeros)
{
    const size3 size = SIZES[s];
    const double tol = dtype == MLC_F64 ? 1e-14 : 1e-6;
    double *w = dense_weight(size, form, zeros, (uint64_t)s + 1);
    struct mlc_k_sproduct a;
    memset(&a, 0, sizeof a);
    a.dtype = dtype;
    a.form = form;
    a.act = s % 3 == 0 ? MLC_ACT_RELU : s % 3 == 1 ? MLC_ACT_NONE : MLC_ACT_TANH;
    a.m = size.m;
    a.n = size.n;
    a.k = size.k;
    a.a_row = size.k + s % 2;
    a.a = guarded_rand(A, dtype, (size.m - 1) * a.a_row + size.k, 5, -1, 1);
    sparse_of(w, &a);
    a.bias = s % 4 ? guarded_rand(BIAS, dtype, size.n, 6, -1, 1) : NULL;
    a.c_row = size.n + s % 2;
    const int64_t all = (size.m - 1) * a.c_row + size.n;
    a.residual = s % 5 > 2 ? guarded_rand(MORE, dtype, all, 7, -1, 1) : NULL;
    a.c = caged(OUT, (size_t)all * size_of(dtype));
    CHECK_EQ(run_sproduct(k, &a), MLC_OK);
    CHECK(cage_holds(a.c));
    for (int64_t r = 0; r < size.m; r++)
        for (int64_t c = 0; c < size.n; c++) {
            double sum = a.bias ? get(a.bias, dtype, c) : 0, of = fabs(sum) + 1;
            for (int64_t i = 0; i < size.k; i++) {
                const double v = w[c * size.k + i] * get(a.a, dtype, r * a.a_row + i);
                sum += v;
                of += fabs(v);
            }
            sum = act_of(a.act, sum);
            if (a.residual) sum += get(a.residual, dtype, r * a.c_row + c);
            CHECK_NEAR(get(a.c, dtype, r * a.c_row + c), sum, tol * of);
        }
    free(w);
    free((void *)(uintptr_t)a.start);
}

TEST(sparse_kernels, products_are_those_of_the_dense_weight_at_every_level)
{
    FOR_EACH_LEVEL(isa) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)isa);
        for (int s = 0; k && s < COUNT(SIZES); s++)
            for (int i = 0; i < 3 * 2 * 4; i++) {
                static const double zeros[] = {0, 0.5, 0.9, 1};
                check_sproduct(k, s, FORMS[i % 3], i / 3 % 2 ? MLC_F64 : MLC_F32, zeros[i / 6]);
            }
    }
}

/* Levels with vectors, and so fused multiply-adds, add in the same order. */
TEST(sparse_kernels, levels_with_vectors_have_the_same_bits)
{
    for (int i = 0; i < 2 * 3 * COUNT(SIZES); i++) {
        const size3 size = SIZES[i / 6];
        const mlc_dtype dtype = i % 2 ? MLC_F64 : MLC_F32;
        struct mlc_k_sproduct a;
        memset(&a, 0, sizeof a);
        a.dtype = dtype;
        a.form = FORMS[i / 2 % 3];
        a.m = size.m;
        a.n = size.n;
        a.k = a.a_row = size.k;
        a.c_row = size.n;
        double *w = dense_weight(size, a.form, 0.4, 3);
        a.a = guarded_rand(A, dtype, size.m * size.k, 5, -1, 1);
        sparse_of(w, &a);
        const size_t bytes = (size_t)(size.m * size.n) * size_of(dtype);
        a.c = guarded(OUT, bytes);
        void *first = NULL;
        FOR_EACH_ROW(k, isa) {
            CHECK_EQ(run_sproduct(k, &a), MLC_OK);
            if (!first) first = copy_of(a.c, bytes);
            CHECK(same_bits(first, a.c, dtype, size.m * size.n));
        }
        CHECK(true);
        free(first);
        free(w);
        free((void *)(uintptr_t)a.start);
    }
}

TEST(sparse_kernels, what_no_kernel_has_is_an_error_and_no_rows_are_none)
{
    const mlc_kernels *k = scalar_row();
    const int64_t start[3] = {0, 1, 2};
    const int32_t at[2] = {0, 1};
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, w[2] = {10, 100}, y[12];
    struct mlc_k_sproduct a;
    memset(&a, 0, sizeof a);
    a.form = MLC_SPARSE_CSR;
    a.dtype = MLC_F32;
    a.m = a.n = a.k = a.a_row = a.c_row = 2;
    a.a = x;
    a.values = w;
    a.start = start;
    a.at = at;
    a.c = y;
    CHECK_EQ(run_sproduct(k, &a), MLC_OK);
    CHECK(y[0] == 10 && y[1] == 200 && y[2] == 30 && y[3] == 400);
    struct mlc_k_sproduct b = a;
    b.dtype = MLC_BF16;
    CHECK_EQ(run_sproduct(k, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.form = MLC_SPARSE_DENSE;
    CHECK_EQ(run_sproduct(k, &b), MLC_ERR_UNSUPPORTED);
    b = a;
    b.m = 5;
    b.workspace_bytes = k->sproduct_workspace(NULL, &b) - 1;
    CHECK_EQ(k->sproduct(NULL, &b), MLC_ERR_INTERNAL);
    y[0] = 77;
    a.m = 0;
    CHECK_EQ(run_sproduct(k, &a), MLC_OK);
    CHECK(y[0] == 77);
}

/* ---- networks -------------------------------------------------------------------------------- */

/* 37-51-70-10 of dtype, pruned by blocks of the form, in evaluation. */
static mlc_module *pruned(mlc_ctx *ctx, mlc_sparse_form form, mlc_dtype dtype, double share)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    const int64_t sizes[] = {37, 51, 70, 10};
    mlc_prune_desc p = mlc_prune_desc_make(share);
    for (int i = 0; i < 3; i++) {
        mlc_nn_linear_desc d = mlc_nn_linear_desc_make(sizes[i], sizes[i + 1]);
        d.has_dtype = true;
        d.dtype = dtype;
        d.no_bias = i == 1;
        mlc_module_add(net, mlc_nn_linear_ex(ctx, &d));
        if (i < 2) mlc_module_add(net, i ? mlc_nn_gelu(ctx) : mlc_nn_relu(ctx));
    }
    p.unit = MLC_PRUNE_BLOCKS;
    p.n = (int32_t)high_of(form);
    p.m = (int32_t)wide_of(form);
    p.per_layer = true;
    if (share > 0) CHECK_EQ(mlc_prune(net, &p), MLC_OK);
    CHECK_EQ(mlc_eval_begin(net), MLC_OK);
    return net;
}

/* A hook that counts products by copies. */
static void count_sparse(void *user, const mlc_op_event *e)
{
    *(int *)user += strcmp(e->op, "sparse_linear") == 0;
}

static mlc_status sparsify(mlc_module *net, mlc_sparse_form form)
{
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    d.form = form;
    return mlc_sparsify(net, &d, NULL);
}

/* The network of `pruned`, half of it 0, with copies of the form; *x: m rows for it. */
static mlc_module *sparse_net(mlc_ctx *ctx, mlc_sparse_form form, mlc_dtype dtype, int64_t m,
                              mlc_tensor **x)
{
    mlc_module *net = pruned(ctx, form, dtype, 0.5);
    *x = test_rand(ctx, dtype, mlc_dims2(m, 37), 5, -1, 1);
    CHECK_EQ(sparsify(net, form), MLC_OK);
    return net;
}

/* Layers that the summary names as sparse. */
static int sparse_layers(mlc_module *net, int64_t in)
{
    sink text;
    int n = 0;
    memset(&text, 0, sizeof text);
    mlc_summary(net, mlc_dims2(2, in), collect, &text);
    for (const char *at = text.text; (at = strstr(at, "SparseLinear")) != NULL; at++) n++;
    return n;
}

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    if (!a || !b) return INF;
    return mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                            mlc_dims0(), false));
}

/* Bits of all numbers of two tensors on the host. */
static bool equal(mlc_tensor *a, mlc_tensor *b)
{
    if (!a || !b || mlc_numel(a) != mlc_numel(b) || a->dtype != b->dtype) return false;
    double *x = (double *)malloc((size_t)mlc_numel(a) * 16 + 1), *y = x + mlc_numel(a);
    const bool read = test_read(a, x) && test_read(b, y);
    const bool is = read && memcmp(x, y, (size_t)mlc_numel(a) * 8) == 0;
    free(x);
    return is;
}

TEST(sparse, networks_equal_their_dense_ones)
{
    ONLY_ON_HOST();
    FOR_EACH_ISA(ctx)
        for (int i = 0; i < 3 * 2 * 3; i++) {
            const mlc_dtype dtype = i / 3 % 2 ? MLC_F64 : MLC_F32;
            const double share = i / 6 == 0 ? 0 : i / 6 == 1 ? 0.7 : 1;
            mlc_module *net = pruned(ctx, FORMS[i % 3], dtype, share);
            mlc_module *dense = mlc_module_clone(net);
            CHECK_EQ(sparsify(net, FORMS[i % 3]), MLC_OK);
            for (int64_t m = 0; m <= 40; m += m < 6 ? 1 : 11) {
                mlc_tensor *x = test_rand(ctx, dtype, mlc_dims2(m, 37), 5, -1, 1);
                mlc_tensor *y = mlc_forward(net, x);
                CHECK(y && y->shape[0] == m && y->shape[1] == 10);
                if (m) CHECK(apart(y, mlc_forward(dense, x)) <= (i / 3 % 2 ? 1e-12 : 2e-6));
            }
            CHECK_OK(ctx);
            mlc_eval_end(net);
        }
}

TEST(sparse, bits_do_not_depend_on_threads)
{
    ONLY_ON_HOST();
    for (int i = 0; i < 3 * 3; i++) {
        static const int64_t rows[] = {1, 4, 37};
        mlc_tensor *first = NULL;
        for (int threads = 1; threads <= 4; threads++) {
            mlc_ctx_desc d = test_desc();
            d.threads = threads;
            d.seed = 3;
            mlc_ctx *ctx = test_own(mlc_ctx_create(&d));
            mlc_module *net = mlc_nn_linear(ctx, 600, 410);
            mlc_prune_desc p = mlc_prune_desc_make(0.3);
            mlc_prune(net, &p);
            mlc_eval_begin(net);
            CHECK_EQ(sparsify(net, FORMS[i % 3]), MLC_OK);
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(rows[i / 3], 600), 5, -1, 1);
            mlc_tensor *y = mlc_forward(net, x);
            if (!first) first = y;
            CHECK(equal(first, y));
            CHECK_OK(ctx);
        }
    }
}

TEST(sparse, takes_rows_of_any_strides_and_axes_and_epilogues)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        mlc_tensor *x;
        mlc_module *net = sparse_net(ctx, FORMS[i], MLC_F32, 6, &x);
        CHECK_EQ(sparse_layers(net, 37), 3);
        mlc_tensor *y = mlc_forward(net, x), *h = x;
        for (int c = 0; c < 5; c++)
            h = mlc_forward(mlc_module_child(net, c), h);
        CHECK(equal(h, y));
        mlc_tensor *turned = mlc_transpose(mlc_contiguous(mlc_transpose(x, 0, 1)), 0, 1);
        CHECK(equal(mlc_forward(net, turned), y));
        mlc_tensor *axes = mlc_forward(net, mlc_reshape(x, mlc_dims4(2, 1, 3, 37)));
        CHECK(axes && axes->ndim == 4 && axes->shape[3] == 10 && equal(axes, y));
        mlc_tensor *one = mlc_forward(net, mlc_reshape(mlc_slice(x, 0, 0, 1, 1), mlc_dims1(37)));
        CHECK(one && one->ndim == 1 && apart(one, mlc_slice(y, 0, 0, 1, 1)) < 2e-6);
        CHECK_OK(ctx);
        CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(2, 38))) == NULL);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, "linear: x");
        mlc_eval_end(net);
    }
}

/* Where a gradient is wanted, and of x of other dtypes, the network is the dense one. */
TEST(sparse, training_is_that_of_the_dense_network)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = pruned(ctx, MLC_SPARSE_4X4, MLC_F32, 0.5), *dense = mlc_module_clone(net);
    CHECK_EQ(sparsify(net, MLC_SPARSE_4X4), MLC_OK);
    mlc_eval_end(net);
    mlc_module_train(dense, true);
    mlc_optim *o[2] = {mlc_adamw(net, 0.01), mlc_adamw(dense, 0.01)};
    for (int step = 0; step < 5; step++) {
        mlc_module *nets[2] = {net, dense};
        mlc_scope_begin(ctx);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(9, 37), (uint64_t)step, -1, 1), *y[2];
        for (int i = 0; i < 2; i++) {
            y[i] = mlc_forward(nets[i], x);
            CHECK_EQ(mlc_optim_minimize(o[i], mlc_mean(mlc_square(y[i]), mlc_dims0(), false)),
                     MLC_OK);
        }
        CHECK(equal(y[0], y[1]));
        mlc_eval_begin(net);
        mlc_eval_begin(dense);
        CHECK(apart(mlc_forward(net, x), mlc_forward(dense, x)) < 2e-6);
        mlc_eval_end(net);
        mlc_eval_end(dense);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_eval_begin(net);
    mlc_eval_begin(dense);
    mlc_tensor *x = mlc_cast(test_rand(ctx, MLC_F32, mlc_dims2(9, 37), 8, -1, 1), MLC_BF16);
    CHECK(equal(mlc_forward(net, x), mlc_forward(dense, x)));
    mlc_eval_end(net);
    mlc_eval_end(dense);
}

TEST(sparse, dropout_and_autocast_are_dense)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 32, 48));
    mlc_module_add(net, mlc_nn_dropout(ctx, 0.5));
    mlc_module *dense = mlc_module_clone(net);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(7, 32), 5, -1, 1), *y[2];
    CHECK_EQ(sparsify(net, MLC_SPARSE_1X16), MLC_OK);
    mlc_no_grad_begin(ctx);
    for (int i = 0; i < 2; i++) {
        mlc_seed(ctx, 5);
        y[i] = mlc_forward(i ? dense : net, x);
    }
    CHECK(equal(y[0], y[1]));
    mlc_module_train(net, false);
    mlc_module_train(dense, false);
    CHECK_EQ(mlc_autocast_begin(ctx, MLC_BF16), MLC_OK);
    for (int i = 0; i < 2; i++) y[i] = mlc_forward(i ? dense : net, x);
    mlc_autocast_end(ctx);
    CHECK(equal(y[0], y[1]));
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
}

TEST(sparse, changed_weights_get_a_new_copy)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3; i++) {
        mlc_tensor *x;
        mlc_module *net = sparse_net(ctx, FORMS[i], MLC_F64, 3, &x);
        mlc_tensor *before = mlc_forward(net, x);
        mlc_tensor *w = mlc_module_param(net, "0.weight");
        mlc_copy_into(w, test_rand(ctx, MLC_F64, mlc_dims2(51, 37), 9, -1, 1));
        mlc_module *dense = mlc_module_clone(net);
        CHECK_EQ(sparsify(dense, MLC_SPARSE_DENSE), MLC_OK);
        CHECK(apart(mlc_forward(net, x), before) > 1e-3);
        CHECK(apart(mlc_forward(net, x), mlc_forward(dense, x)) < 1e-12);
        mlc_f64(w)[40] = 3;
        mlc_f64(mlc_module_param(dense, "0.weight"))[40] = 3;
        CHECK(apart(mlc_forward(net, x), mlc_forward(dense, x)) < 1e-12);
        mlc_memory_trim(ctx);
        CHECK(apart(mlc_forward(net, x), mlc_forward(dense, x)) < 1e-12);
        /* Pruned further, and laid out again. */
        mlc_prune_desc p = mlc_prune_desc_make(0.9);
        CHECK_EQ(mlc_prune(net, &p), MLC_OK);
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
        CHECK_EQ(mlc_prune(dense, &p), MLC_OK);
        CHECK(apart(mlc_forward(net, x), mlc_forward(dense, x)) < 1e-12);
        CHECK_OK(ctx);
        mlc_eval_end(net);
    }
}

/* A network that becomes one of 16 bits is dense, and sparse again in f32. */
TEST(sparse, other_dtypes_of_weights_are_dense)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = pruned(ctx, MLC_SPARSE_4X4, MLC_F32, 0.5), *dense = mlc_module_clone(net);
    CHECK_EQ(sparsify(net, MLC_SPARSE_4X4), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(6, 37), 5, -1, 1);
    CHECK(mlc_forward(net, x) != NULL);
    static const mlc_dtype dtypes[] = {MLC_BF16, MLC_F16, MLC_F64, MLC_F32};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(mlc_module_to(net, dtypes[i]), MLC_OK);
        CHECK_EQ(mlc_module_to(dense, dtypes[i]), MLC_OK);
        mlc_tensor *z = mlc_cast(x, dtypes[i]), *y = mlc_forward(net, z);
        if (i < 2) CHECK(equal(y, mlc_forward(dense, z)));
        else CHECK(apart(y, mlc_forward(dense, z)) < (i == 2 ? 1e-12 : 2e-6));
    }
    CHECK_OK(ctx);
    mlc_eval_end(net);
}

/* ---- what AUTO picks, and the report --------------------------------------------------------- */

/* A linear of 256 by 512 with this share of blocks, or numbers, at 0, in evaluation. */
static mlc_module *layer(mlc_ctx *ctx, mlc_sparse_form form, double share)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 512, 256));
    mlc_prune_desc p = mlc_prune_desc_make(share);
    p.by = MLC_PRUNE_RANDOM;
    p.unit = form == MLC_SPARSE_CSR ? MLC_PRUNE_ELEMENTS : MLC_PRUNE_BLOCKS;
    p.n = (int32_t)high_of(form);
    p.m = (int32_t)wide_of(form);
    CHECK_EQ(mlc_prune(net, &p), MLC_OK);
    mlc_eval_begin(net);
    return net;
}

TEST(sparse, auto_picks_by_shares_of_zeros_and_stays_dense_where_that_is_faster)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3 * 4; i++) {
        static const double shares[] = {0, 0.3, 0.97, 1};
        const double share = shares[i / 3];
        mlc_module *net = layer(ctx, FORMS[i % 3], share), *dense = mlc_module_clone(net);
        mlc_sparse_row row;
        mlc_sparse_report r = {&row, 1, 0, 0, 0, 0};
        mlc_sparsify_desc d = mlc_sparsify_desc_make();
        CHECK_EQ(mlc_sparsify(net, &d, &r), MLC_OK);
        CHECK_EQ(r.n, 1);
        CHECK_STR(row.name, "0.weight");
        CHECK_EQ(row.numbers, 256 * 512);
        CHECK_EQ(row.before, 4 * 256 * 512);
        CHECK_NEAR(row.zeros, share, 0.01);
        if (i % 3 == 1) CHECK_NEAR(row.zeros_1x16, share, 0.001);
        if (i % 3 == 2) CHECK_NEAR(row.zeros_4x4, share, 0.001);
        if (share < 0.5) CHECK_EQ(row.form, MLC_SPARSE_DENSE);
        if (share == 0.97) CHECK_EQ(row.form, FORMS[i % 3]);
        if (share == 1) CHECK(row.form != MLC_SPARSE_DENSE);
        CHECK(row.form == MLC_SPARSE_DENSE ? row.after == row.before
                                           : row.after < row.before / 10);
        CHECK(r.numbers == row.numbers && r.before == row.before && r.after == row.after);
        for (int64_t m = 1; m <= 65; m += 16) {
            mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(m, 512), 5, -1, 1);
            const double off = apart(mlc_forward(net, x), mlc_forward(dense, x));
            CHECK(row.form == MLC_SPARSE_DENSE ? off == 0 : off < 2e-6);
        }
        CHECK_OK(ctx);
        mlc_eval_end(net);
    }
}

/* A copy that AUTO has made is left alone where a call is of rows for which dense is faster, or
 * where the weight has become dense. One that was asked for is not. */
TEST(sparse, auto_asks_again_at_each_call)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = layer(ctx, MLC_SPARSE_4X4, 0.97), *forced = mlc_module_clone(net);
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_OK);
    CHECK_EQ(sparsify(forced, MLC_SPARSE_4X4), MLC_OK);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 512), 5, -1, 1);
    CHECK(equal(mlc_forward(net, x), mlc_forward(forced, x)));
    mlc_tensor *full = test_rand(ctx, MLC_F32, mlc_dims2(256, 512), 9, -1, 1);
    mlc_copy_into(mlc_module_param(net, "0.weight"), full);
    mlc_copy_into(mlc_module_param(forced, "0.weight"), full);
    mlc_tensor *y = mlc_linear(x, full, mlc_module_param(net, "0.bias"));
    CHECK(equal(mlc_forward(net, x), y));
    CHECK(!equal(mlc_forward(forced, x), y) && apart(mlc_forward(forced, x), y) < 1e-4);
    /* CSR at 80 %: for 32 rows, not for one. */
    mlc_module *few = layer(ctx, MLC_SPARSE_CSR, 0.8), *dense = mlc_module_clone(few);
    d.batch = 32;
    CHECK_EQ(mlc_sparsify(few, &d, NULL), MLC_OK);
    mlc_tensor *many = test_rand(ctx, MLC_F32, mlc_dims2(32, 512), 5, -1, 1);
    mlc_tensor *row = mlc_slice(many, 0, 0, 1, 1);
    CHECK(equal(mlc_forward(few, row), mlc_forward(dense, row)));
    CHECK(!equal(mlc_forward(few, many), mlc_forward(dense, many)));
    CHECK_OK(ctx);
}

TEST(sparse, the_report_is_a_table)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = pruned(ctx, MLC_SPARSE_CSR, MLC_F32, 0.5);
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    mlc_sparse_row rows[2];
    mlc_sparse_report r = {rows, 2, 0, 0, 0, 0};
    sink text;
    memset(&text, 0, sizeof text);
    memset(rows, 0, sizeof rows);
    d.form = MLC_SPARSE_CSR;
    d.write = collect;
    d.user = &text;
    CHECK_EQ(mlc_sparsify(net, &d, &r), MLC_OK);
    CHECK_EQ(r.n, 3);
    CHECK_EQ(r.numbers, 37 * 51 + 51 * 70 + 70 * 10);
    CHECK_STR(rows[1].name, "2.weight");
    int64_t stored = 0;
    mlc_tensor *w = mlc_module_param(net, "2.weight");
    for (int64_t i = 0; i < 51 * 70; i++) stored += mlc_f32(w)[i] != 0;
    CHECK_NEAR(rows[1].zeros, 1 - (double)stored / (51 * 70), 1e-12);
    CHECK(rows[1].after >= stored * 8 + 71 * 8 && rows[1].after <= stored * 8 + 71 * 8 + 192);
    CHECK_HAS(text.text, "0.weight");
    CHECK_HAS(text.text, "csr");
    CHECK_HAS(text.text, "3 weights of 6,157 numbers: products read ");
    mlc_eval_end(net);
}

TEST(sparse, errors_leave_the_network_as_it_was)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = pruned(ctx, MLC_SPARSE_4X4, MLC_F32, 0.5);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 37), 5, -1, 1), *y = mlc_forward(net, x);
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    CHECK_EQ(mlc_sparsify(NULL, &d, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_sparsify(net, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "desc is NULL");
    d.form = MLC_SPARSE_COUNT;
    CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "sparsify: form 5");
    d = mlc_sparsify_desc_make();
    d.batch = 0;
    CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch 0");
    d = mlc_sparsify_desc_make();
    d.pattern = "7.*";
    CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "matches '7.*'");
    d.pattern = "*.bias";
    CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no weight of a linear layer");
    CHECK_EQ(sparsify(mlc_nn_relu(ctx), MLC_SPARSE_CSR), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no weight of a linear layer");
    for (int i = 0; i < 2; i++) {
        mlc_module *low = mlp(ctx, 8, 9, 3);
        CHECK_EQ(mlc_module_to(low, i ? MLC_BF16 : MLC_F16), MLC_OK);
        CHECK_EQ(sparsify(low, MLC_SPARSE_AUTO), MLC_ERR_DTYPE);
        CHECK_ERROR(ctx, MLC_ERR_DTYPE, "0.weight");
    }
    /* The second layer fails, the first has no copy then. */
    mlc_module *both = mlc_nn_sequential(ctx);
    mlc_module_add(both, mlc_nn_linear(ctx, 8, 9));
    mlc_module_add(both, mlc_nn_linear(ctx, 9, 3));
    CHECK_EQ(mlc_module_to(mlc_module_child(both, 1), MLC_BF16), MLC_OK);
    CHECK_EQ(sparsify(both, MLC_SPARSE_CSR), MLC_ERR_DTYPE);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "1.weight");
    mlc_memory held;
    CHECK_EQ(mlc_memory_info(ctx, &held), MLC_OK);
    CHECK_EQ(held.now[MLC_MEM_PACK], 0);
    CHECK_EQ(sparse_layers(net, 37), 0);
    CHECK(equal(mlc_forward(net, x), y));
    mlc_eval_end(net);
}

TEST(sparse, another_call_takes_another_form_and_dense_is_what_was)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = pruned(ctx, MLC_SPARSE_4X4, MLC_F32, 0.5);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 37), 5, -1, 1), *y = mlc_forward(net, x);
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(sparsify(net, FORMS[i % 3]), MLC_OK);
        CHECK_EQ(sparsify(net, FORMS[i % 3]), MLC_OK);
        CHECK(apart(mlc_forward(net, x), y) < 2e-6);
    }
    mlc_memory held, now;
    CHECK_EQ(mlc_memory_info(ctx, &held), MLC_OK);
    CHECK_EQ(sparsify(net, MLC_SPARSE_DENSE), MLC_OK);
    CHECK_EQ(mlc_memory_info(ctx, &now), MLC_OK);
    CHECK(held.now[MLC_MEM_PACK] > 0 && now.now[MLC_MEM_PACK] == 0);
    CHECK_EQ(sparse_layers(net, 37), 0);
    CHECK(equal(mlc_forward(net, x), y));
    /* One layer alone. */
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    d.form = MLC_SPARSE_CSR;
    d.pattern = "2.*";
    CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_OK);
    CHECK_EQ(sparse_layers(net, 37), 1);
    CHECK(apart(mlc_forward(net, x), y) < 2e-6);
    CHECK_OK(ctx);
    mlc_eval_end(net);
}

/* ---- with what else a network does ----------------------------------------------------------- */

TEST(sparse, files_are_dense_and_clones_take_the_choice_along)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = pruned(ctx, MLC_SPARSE_1X16, MLC_F32, 0.7), *dense = mlc_module_clone(net);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 37), 5, -1, 1);
    CHECK_EQ(sparsify(net, MLC_SPARSE_1X16), MLC_OK);
    mlc_tensor *y = mlc_forward(net, x);
    box b = box_open("net.safetensors");
    CHECK_EQ(mlc_save(net, b.path), MLC_OK);
    mlc_module *read = pruned(ctx, MLC_SPARSE_1X16, MLC_F32, 0.1);
    CHECK_EQ(mlc_load(read, b.path), MLC_OK);
    CHECK(equal(mlc_forward(read, x), mlc_forward(dense, x)));
    CHECK_EQ(sparsify(read, MLC_SPARSE_1X16), MLC_OK);
    CHECK(equal(mlc_forward(read, x), y));
    /* A file into a network with copies. */
    CHECK_EQ(mlc_prune_remove(read, NULL), MLC_OK);
    mlc_copy_into(mlc_module_param(read, "0.weight"), mlc_ones(ctx, MLC_F32, mlc_dims2(51, 37)));
    CHECK(!equal(mlc_forward(read, x), y));
    mlc_prune_desc none = mlc_prune_desc_make(0);
    CHECK_EQ(mlc_prune(read, &none), MLC_OK);
    CHECK_EQ(mlc_load(read, b.path), MLC_OK);
    CHECK(equal(mlc_forward(read, x), y));
    box_close(&b);

    mlc_ctx *there = test_ctx();
    mlc_module *shared = mlc_module_share(there, net);
    CHECK_EQ(mlc_eval_begin(shared), MLC_OK);
    mlc_tensor *x_there = test_rand(there, MLC_F32, mlc_dims2(3, 37), 5, -1, 1);
    CHECK(equal(mlc_forward(shared, x_there), y));
    CHECK_EQ(sparse_layers(shared, 37), 3);
    CHECK_OK(there);
    mlc_module_free(shared);

    mlc_module *clone = mlc_module_clone(net);
    CHECK_EQ(sparse_layers(clone, 37), 3);
    CHECK(equal(mlc_forward(clone, x), y));
    mlc_module_free(net);
    CHECK(equal(mlc_forward(clone, x), y));
    CHECK_OK(ctx);
}

/* Queries, keys and values of other inputs are products with rows of a projection: of 24 rows each,
 * which blocks divide, or of 10, which they do not. */
TEST(sparse, attention_projects_by_copies)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 3 * 2; i++) {
        const int64_t e = i < 3 ? 24 : 10;
        mlc_nn_transformer_desc t = mlc_nn_transformer_desc_make(e, 2);
        t.hidden = 36;
        mlc_module *m = mlc_nn_transformer_decoder_layer(ctx, &t);
        mlc_prune_desc p = mlc_prune_desc_make(0.5);
        CHECK_EQ(mlc_prune(m, &p), MLC_OK);
        CHECK_EQ(mlc_module_to(m, MLC_F64), MLC_OK);
        mlc_module *net = mlc_module_clone(m);
        mlc_tensor *x = test_rand(ctx, MLC_F64, mlc_dims3(2, 6, e), 3, -1, 1);
        mlc_tensor *memory = test_rand(ctx, MLC_F64, mlc_dims3(2, 9, e), 4, -1, 1);
        CHECK_EQ(mlc_eval_begin(m), MLC_OK);
        CHECK_EQ(mlc_eval_begin(net), MLC_OK);
        mlc_sparsify_desc d = mlc_sparsify_desc_make();
        mlc_sparse_report report;
        memset(&report, 0, sizeof report);
        d.form = FORMS[i % 3];
        CHECK_EQ(mlc_sparsify(net, &d, &report), MLC_OK);
        CHECK_EQ(report.n, 6);         /* two projections, two outputs, two linears            */
        CHECK_EQ(report.numbers, 8 * e * e + 2 * e * 36);
        int products = 0;
        mlc_hooks hooks;
        memset(&hooks, 0, sizeof hooks);
        hooks.user = &products;
        hooks.op_begin = count_sparse;
        const int32_t id = mlc_hooks_add(ctx, &hooks);
        mlc_tensor *y = mlc_transformer_forward(net, x, memory, NULL, NULL);
        CHECK_EQ(mlc_hooks_remove(ctx, id), MLC_OK);
        CHECK(apart(y, mlc_transformer_forward(m, x, memory, NULL, NULL)) < 1e-12);
        /* One product for three equal inputs, two for queries and memory; outputs and linears. */
        CHECK_EQ(products, i == 5 ? 5 : 7);
        CHECK_OK(ctx);
        mlc_eval_end(net);
        mlc_eval_end(m);
    }
}

/* Tied after the call to a weight without a copy, and a call for another layer with the weight. */
TEST(sparse, a_layer_whose_weight_has_no_copy_any_more_is_dense)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 2; i++) {
        mlc_module *net = mlc_nn_sequential(ctx);
        for (int k = 0; k < 2; k++) mlc_module_add(net, mlc_nn_linear(ctx, 20, 20));
        mlc_module *first = mlc_module_child(net, 0);
        mlc_tensor *second = mlc_module_param(net, "1.weight");
        mlc_sparsify_desc d = mlc_sparsify_desc_make();
        if (i) CHECK_EQ(mlc_module_tie(first, "weight", second), MLC_OK);
        d.form = MLC_SPARSE_CSR;
        d.pattern = "0.*";
        CHECK_EQ(mlc_sparsify(net, &d, NULL), MLC_OK);
        d.form = MLC_SPARSE_DENSE;
        d.pattern = "1.*";
        if (i) mlc_sparsify(net, &d, NULL);
        else CHECK_EQ(mlc_module_tie(first, "weight", second), MLC_OK);
        mlc_error_clear(ctx);          /* a weight that is tied may have its first name alone */
        mlc_eval_begin(net);
        CHECK(mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(3, 20), 5, -1, 1)) != NULL);
        CHECK_OK(ctx);
        mlc_eval_end(net);
    }
}

TEST(sparse, a_tied_weight_has_one_copy)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 2; i++) mlc_module_add(net, mlc_nn_linear(ctx, 20, 20));
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    CHECK_EQ(mlc_module_tie(mlc_module_child(net, 1), "weight", w), MLC_OK);
    mlc_eval_begin(net);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 20), 5, -1, 1), *y = mlc_forward(net, x);
    mlc_sparsify_desc d = mlc_sparsify_desc_make();
    mlc_sparse_report report;
    memset(&report, 0, sizeof report);
    d.form = MLC_SPARSE_CSR;
    CHECK_EQ(mlc_sparsify(net, &d, &report), MLC_OK);
    CHECK_EQ(report.n, 1);
    CHECK_EQ(sparse_layers(net, 20), 2);
    CHECK(apart(mlc_forward(net, x), y) < 1e-5);
    CHECK_EQ(sparsify(net, MLC_SPARSE_DENSE), MLC_OK);
    CHECK_EQ(sparse_layers(net, 20), 0);
    CHECK(equal(mlc_forward(net, x), y));
    CHECK_OK(ctx);
}

TEST(sparse, quantizing_and_shrinking_take_over)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = layer(ctx, MLC_SPARSE_4X4, 0.5), *other = mlc_module_clone(net);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 512), 5, -1, 1);
    const mlc_quantize_desc q = mlc_quantize_desc_make(MLC_QUANT_WEIGHTS);
    CHECK_EQ(sparsify(net, MLC_SPARSE_4X4), MLC_OK);
    CHECK(mlc_forward(net, x) != NULL);
    CHECK_EQ(mlc_quantize(net, &q, NULL), MLC_OK);
    CHECK_EQ(mlc_quantize(other, &q, NULL), MLC_OK);
    CHECK(equal(mlc_forward(net, x), mlc_forward(other, x)));
    CHECK_EQ(sparsify(net, MLC_SPARSE_4X4), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "no weight of a linear layer");

    mlc_module *mlp = pruned(ctx, MLC_SPARSE_CSR, MLC_F64, 0);
    mlc_prune_desc rows = mlc_prune_desc_make(0.5);
    rows.unit = MLC_PRUNE_ROWS;
    rows.pattern = "0.weight";
    CHECK_EQ(mlc_prune(mlp, &rows), MLC_OK);
    x = test_rand(ctx, MLC_F64, mlc_dims2(3, 37), 5, -1, 1);
    mlc_tensor *y = mlc_forward(mlp, x);
    CHECK_EQ(sparsify(mlp, MLC_SPARSE_4X4), MLC_OK);
    CHECK(apart(mlc_forward(mlp, x), y) < 1e-12);
    CHECK_EQ(mlc_prune_shrink(mlp, NULL), MLC_OK);
    CHECK(mlc_module_param(mlp, "0.weight")->shape[0] < 51);
    CHECK(apart(mlc_forward(mlp, x), y) < 1e-12);
    CHECK_OK(ctx);
}

/* Zeros that are not stored are not multiplied, and -0 is one of them. */
TEST(sparse, zeros_are_skipped)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    mlc_module *net = mlc_nn_linear(ctx, 32, 4);
    mlc_module_build(net);
    float *w = mlc_f32(mlc_module_param(net, "weight")), v[32] = {INF};
    for (int i = 0; i < 4 * 32; i++) w[i] = i % 32 < 16 ? -0.0f : 1;
    for (int i = 1; i < 32; i++) v[i] = 1;
    mlc_eval_begin(net);
    mlc_tensor *x = mlc_from(ctx, MLC_F32, mlc_dims2(1, 32), v);
    CHECK(isnan(mlc_f32(mlc_forward(net, x))[0]));
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(sparsify(net, FORMS[i]), MLC_OK);
        CHECK_NEAR((double)mlc_f32(mlc_forward(net, x))[0],
                   16 + (double)mlc_f32(mlc_module_param(net, "bias"))[0], 1e-5);
    }
    CHECK_OK(ctx);
}

/* ---- blocks as units of pruning -------------------------------------------------------------- */

/* The mask of a [6,10] by blocks of 4 by 4, two of which are cut at the ends. */
TEST(sparse, blocks_are_pruned_as_a_whole)
{
    mlc_ctx *ctx = test_ctx();
    static const double of[2][3] = {{5, 1, 9}, {2, 7, 0.5}};
    double w[60];
    for (int i = 0; i < 60; i++)
        w[i] = of[i / 10 / 4][i % 10 / 4] * (i % 2 ? 1 : -1);
    mlc_prune_desc d = mlc_prune_desc_make(0.5);
    d.unit = MLC_PRUNE_BLOCKS;
    d.n = d.m = 4;
    mlc_tensor *t = test_tensor(ctx, MLC_F32, mlc_dims2(6, 10), w), *mask;
    double got[60];
    mlc_tensor *y = mlc_prune_tensor(t, &d, &mask);
    CHECK(y != NULL && test_read(y, got));
    /* Norms of the blocks: 20 4 25.5 / 5.7 19.8 1: of six, 4, 5.7 and 1 go. */
    for (int i = 0; i < 60; i++) {
        const bool gone = (i / 10 < 4 && i % 10 / 4 == 1) || (i / 10 >= 4 && i % 10 / 4 != 1);
        CHECK_NEAR(got[i], gone ? 0 : w[i], 0);
    }
    CHECK(mask != NULL && test_read(mask, got));
    d.n = 0;
    CHECK(mlc_prune_tensor(t, &d, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "blocks of 0 by 4");
    d.n = 4;
    d.m = 65;
    CHECK(mlc_prune_tensor(t, &d, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "blocks of 4 by 65");
}

TEST(sparse, blocks_of_a_network_are_pruned_in_steps)
{
    ONLY_ON_HOST();
    mlc_ctx *ctx = test_ctx();
    for (int form = 1; form < 3; form++) {
        mlc_module *net = mlp(ctx, 35, 50, 9);
        mlc_prune_desc d = mlc_prune_desc_make(0);
        mlc_sparsify_desc s = mlc_sparsify_desc_make();
        mlc_sparse_row rows[2];
        d.unit = MLC_PRUNE_BLOCKS;
        d.n = (int32_t)high_of(FORMS[form]);
        d.m = (int32_t)wide_of(FORMS[form]);
        d.per_layer = form == 1;
        s.form = FORMS[form];
        for (int step = 1; step <= 4; step++) {
            mlc_sparse_report r = {rows, 2, 0, 0, 0, 0};
            d.share = 0.25 * step;
            CHECK_EQ(mlc_prune(net, &d), MLC_OK);
            CHECK_EQ(mlc_sparsify(net, &s, &r), MLC_OK);
            const double blocks[2] = {form == 1 ? 50 * 3 : 13 * 9, form == 1 ? 9 * 4 : 3 * 13};
            double gone[2], all = 0;
            for (int i = 0; i < 2; i++) {
                gone[i] = blocks[i] * (form == 1 ? rows[i].zeros_1x16 : rows[i].zeros_4x4);
                all += gone[i];
                if (d.per_layer) CHECK_NEAR(gone[i], blocks[i] * d.share, 0.51);
            }
            CHECK_NEAR(all, (blocks[0] + blocks[1]) * d.share, d.per_layer ? 1.1 : 0.51);
        }
        CHECK_NEAR(mlc_prune_zeros(net, NULL), 1, 0);
        CHECK_OK(ctx);
    }
}
