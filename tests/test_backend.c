/* test_backend.c -- registration of backends, rows of kernels, and the library on the device of
 * device.c: training, errors that arrive late, calls that fail; kernels: test_kernels_*.c */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "device.h"
#include "files.h"

/* ---- registration ------------------------------------------------------------------------- */

TEST(backend, a_stale_or_incomplete_backend_is_refused)
{
    mlc_backend good = device_backend("other"), b;
    CHECK_EQ(g_device.registered, MLC_OK);
    CHECK_EQ(mlc_backend_register(NULL), MLC_ERR_ARG);
    b = good; b.abi++;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.size--;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.name = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.count = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.post = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.poll = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.open = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.close = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.alloc = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.release = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.copy = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.sync = NULL;
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.name = "test";
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
    b = good; b.name = "cpu";
    CHECK_EQ(mlc_backend_register(&b), MLC_ERR_ARG);
}

static mlc_status strange_error(void *dev, const struct mlc_k_index *a)
{
    device *d = (device *)dev;
    arena_open(d);
    a->error[0] = 9;
    arena_shut(d);
    return MLC_OK;
}

/* Offers what makes tensors and nothing that computes with them; index reports what is no error of
 * the library.                                                                                */
static mlc_backend backend_with_holes(void)
{
    mlc_backend b = device_backend("holes");
    b.kernels.map = NULL;
    b.kernels.cast = NULL;
    b.kernels.reduce = NULL;
    b.kernels.gemm = NULL;
    b.kernels.random = NULL;
    b.kernels.dropout = NULL;
    b.kernels.xent = NULL;
    b.kernels.argmax = NULL;
    b.kernels.index = strange_error;
    return b;
}

static void check_missing(mlc_ctx *ctx, const mlc_tensor *result, const char *op,
                          const char *kernel)
{
    CHECK(result == NULL);
    CHECK_HAS(mlc_error(ctx), op);
    CHECK_HAS(mlc_error(ctx), kernel);
    CHECK_HAS(mlc_error(ctx), "holes");
    CHECK_STATUS(ctx, MLC_ERR_UNSUPPORTED);
}

TEST(backend, a_missing_kernel_is_unsupported_and_names_the_operation)
{
    static const double  labels[3] = {0, 1, 2};
    mlc_backend b = backend_with_holes();
    mlc_status  status = MLC_ERR_INTERNAL;
    mlc_ctx    *ctx;
    mlc_tensor *x, *y;
    CHECK_EQ(mlc_backend_register(&b), MLC_OK);
    ctx = device_ctx("holes", &status);
    if (!CHECK_EQ(status, MLC_OK) || !CHECK(ctx != NULL))
        return;
    x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, -1, 1);
    y = test_tensor(ctx, MLC_I64, mlc_dims1(3), labels);
    CHECK_OK(ctx);
    check_missing(ctx, mlc_add(x, x), "add", "map");
    check_missing(ctx, mlc_exp(x), "exp", "map");
    check_missing(ctx, mlc_matmul(x, x), "matmul", "gemm");
    check_missing(ctx, mlc_sum(x, mlc_dims0(), false), "sum", "reduce");
    check_missing(ctx, mlc_cast(x, MLC_F64), "cast", "cast");
    check_missing(ctx, mlc_dropout(x, 0.5), "dropout", "dropout");
    check_missing(ctx, mlc_argmax(x, 1, false), "argmax", "argmax");
    check_missing(ctx, mlc_cross_entropy(x, y), "cross_entropy", "xent");
    check_missing(ctx, mlc_randn(ctx, MLC_F32, mlc_dims1(3)), "randn", "random");
    float rows[9];
    CHECK_EQ(mlc_read(mlc_index_select(x, 0, y), rows, sizeof rows), MLC_ERR_DEVICE);
    CHECK_STR(mlc_error(ctx),
              "device holes: a kernel reported error 9, which no operation that ran has");
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    box            file = box_open("net.safetensors");
    mlc_module    *net = mlc_nn_sequential(ctx);
    mlc_param_desc zeros = mlc_param_desc_make(mlc_dims1(3));
    mlc_module_declare(net, "shift", &zeros);
    CHECK_EQ(mlc_save(net, file.path), MLC_OK);
    CHECK_EQ(mlc_load(net, file.path), MLC_ERR_UNSUPPORTED);
    check_missing(ctx, NULL, "load", "cast");
    box_close(&file);
}

TEST(backend, a_backend_tells_how_many_devices_it_has)
{
    CHECK_EQ(mlc_backend_count("cpu"), 1);
    CHECK_EQ(mlc_backend_count(NULL), 1);
    CHECK_EQ(mlc_backend_count("test"), 6);
    CHECK_EQ(mlc_backend_count("test:1"), 0);
    CHECK_EQ(mlc_backend_count("nosuch"), 0);
}

/* Heads stay where they are: their permuted views are axes of one product.                      */
TEST(backend, products_of_permuted_heads_are_one_call)
{
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_dims    heads = mlc_dims4(2, 5, 3, 4), order = mlc_dims4(0, 2, 1, 3);
    mlc_tensor *in[2] = {test_rand(ctx, MLC_F32, heads, 1, -1, 1),
                         test_rand(ctx, MLC_F32, heads, 2, -1, 1)};
    mlc_set_requires_grad(in[0], true);
    mlc_set_requires_grad(in[1], true);
    mlc_tensor *q = mlc_permute(in[0], order), *k = mlc_permute(in[1], order);
    const int64_t before = g_device.products;
    mlc_tensor   *y = mlc_matmul(q, mlc_transpose(k, -1, -2));
    CHECK_EQ(g_device.products - before, 1);
    mlc_tensor *same = mlc_einsum("bthd,bshd->bhts", in, 2);
    CHECK_EQ(g_device.products - before, 2);
    CHECK_EQ(g_device.tf32, 0);
    double one[2 * 3 * 25], many[2 * 3 * 25], head[25];
    CHECK(test_read(y, one) && test_read(same, many));
    CHECK(memcmp(one, many, sizeof one) == 0);
    for (int i = 0; i < 6; i++) {
        mlc_tensor *a = mlc_select(mlc_select(q, 0, i / 3), 0, i % 3);
        mlc_tensor *b = mlc_select(mlc_select(k, 0, i / 3), 0, i % 3);
        CHECK(test_read(mlc_matmul(a, mlc_transpose(b, 0, 1)), head));
        CHECK(memcmp(one + 25 * i, head, sizeof head) == 0);
    }
    const int64_t forward = g_device.products;
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(g_device.products - forward, 2);
    CHECK_OK(ctx);
}

/* ---- the last product of a piece that runs twice -------------------------------------------- */

/* What is special about y = tanh(x) w^T and what follows it. */
typedef enum ending {
    END_PLAIN, END_RESIDUAL, END_MATMUL, END_CONV, END_AGAIN,                  /* left out      */
    END_AUTOCAST,                      /* casts w, which is no parameter                         */
    END_ACT, END_RELU, END_READ, END_DETACH, END_VIEW, END_NONZERO, END_TWO, END_HOOK, END_ANOMALY,
    END_WEIGHT, END_MORE, END_PIECE, END_TAPE, ENDINGS
} ending;
typedef struct piece_args { mlc_tensor *w, *r; ending end; bool twice; } piece_args;

static bool g_no_backward;             /* the next backward of TANH fails                        */

static mlc_status tanh_forward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out)
{
    (void)user; (void)n_in;
    *out = mlc_tanh(in[0]);
    return mlc_ctx_status(in[0]->ctx);
}

static mlc_status tanh_backward(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                                mlc_tensor *dy, const bool *need, mlc_tensor **dx)
{
    const bool no = g_no_backward;
    (void)user; (void)n_in; (void)need;
    g_no_backward = false;
    dx[0] = mlc_mul(dy, mlc_rsub_scalar(mlc_square(out), 1.0));
    return no ? mlc_raise(in[0]->ctx, MLC_ERR_VALUE, "not now") : mlc_ctx_status(in[0]->ctx);
}

static const mlc_custom_op TANH = {"tanh", tanh_forward, tanh_backward};

/* A product of the same weight on a tape within, whose gradient goes nowhere. */
static void on_a_tape(mlc_ctx *ctx, mlc_tensor *w)
{
    float       host[4];
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(1, 5), 7, -1, 1), *y;
    mlc_scope_begin(ctx);
    mlc_tape_begin(ctx, false);
    mlc_set_requires_grad(x, true);
    y = mlc_linear(x, w, NULL);
    CHECK_EQ(mlc_read(y, host, sizeof host), MLC_OK);
    CHECK(host[0] == host[0] && fabsf(host[0]) < 5);
    CHECK_EQ(mlc_tape_end(ctx), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
}

static mlc_tensor *end_product(mlc_ctx *ctx, const piece_args *a, mlc_tensor *x)
{
    mlc_epilogue e = {MLC_ACT_NONE, 0.0, NULL};
    mlc_tensor  *w = a->end == END_WEIGHT ? mlc_mul_scalar(a->w, 1.0) : a->w, *y;
    if (a->end == END_CONV)
        return mlc_conv(mlc_unsqueeze(x, 2), mlc_unsqueeze(w, 2), NULL, NULL);
    if (a->end == END_MATMUL)
        return mlc_matmul(x, mlc_transpose(w, 0, 1));
    if (a->end == END_ACT) e.act = MLC_ACT_GELU;
    if (a->end == END_RESIDUAL) e.dropout = 0.5, e.residual = a->r;
    if (a->end == END_AUTOCAST) mlc_autocast_begin(ctx, MLC_BF16);
    y = mlc_linear_ex(x, w, NULL, &e);
    if (a->end == END_AUTOCAST) mlc_autocast_end(ctx);
    return y;
}

static mlc_status end_piece(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                            mlc_tensor **out, int32_t n_out)
{
    const piece_args *a = (const piece_args *)user;
    float             host[12];
    (void)n_in;
    if (a->end == END_TAPE) on_a_tape(ctx, a->w);
    mlc_tensor *y = end_product(ctx, a, mlc_custom(&TANH, NULL, in, 1));
    if (a->end == END_RELU) y = mlc_relu(y);
    if (a->end == END_READ) mlc_read(y, host, sizeof host);
    if (a->end == END_DETACH) mlc_detach(y);
    if (a->end == END_VIEW) y = mlc_reshape(y, mlc_dims1(12));
    if (a->end == END_NONZERO) CHECK_EQ(mlc_dim(mlc_nonzero(y), 0), 12);
    if (a->end == END_MORE && mlc_recomputing(ctx)) y = mlc_mul_scalar(y, 1.0);
    out[0] = y;
    if (n_out == 2) out[1] = in[0];
    return mlc_ctx_status(ctx);
}

static mlc_status end_call(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                           mlc_tensor **out, int32_t n_out)
{
    const piece_args *a = (const piece_args *)user;
    return a->twice ? mlc_recompute(ctx, end_piece, user, in, n_in, out, n_out)
                    : end_piece(ctx, user, in, n_in, out, n_out);
}

static void no_hook(void *user, const mlc_op_event *e) { (void)user; (void)e; }

/* Gradients of x, w and the residual; the products of backward. */
static int64_t end_run(ending end, bool twice, double *grads)
{
    mlc_ctx    *ctx = device_ctx("test", NULL);
    piece_args  a = {test_rand(ctx, MLC_F32, mlc_dims2(4, 5), 1, -1, 1),
                     test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 2, -1, 1), end, twice};
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 5), 3, -1, 1), *dy;
    mlc_tensor *out[2] = {NULL, NULL};
    mlc_hooks   hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.op_begin = no_hook;
    mlc_set_requires_grad(a.w, true);
    mlc_set_requires_grad(a.r, end == END_RESIDUAL);
    mlc_set_requires_grad(x, true);
    if (end == END_PIECE && twice)
        mlc_recompute(ctx, end_call, &a, &x, 1, out, 1);
    else
        end_call(ctx, &a, &x, 1, out, end == END_TWO ? 2 : 1);
    dy = mlc_detach(mlc_mul_scalar(out[0], 2.0));
    if (end == END_HOOK) mlc_hooks_add(ctx, &hooks);
    mlc_anomaly(ctx, end == END_ANOMALY);
    g_no_backward = end == END_AGAIN && twice;
    if (g_no_backward) {
        CHECK_EQ(mlc_backward_from(out[0], dy), MLC_ERR_VALUE);
        mlc_error_clear(ctx);
    }
    const int64_t before = g_device.products;
    CHECK_EQ(mlc_backward_from(out[0], dy), MLC_OK);
    const int64_t products = g_device.products - before;
    CHECK(test_read(mlc_grad(x), grads) && test_read(mlc_grad(a.w), grads + 15));
    if (end == END_RESIDUAL) CHECK(test_read(mlc_grad(a.r), grads + 35));
    CHECK_OK(ctx);
    return products;
}

TEST(backend, the_last_product_of_a_piece_is_made_once_if_it_is_not_read)
{
    for (int end = 0; end < ENDINGS; end++) {
        double        plain[47] = {0}, again[47] = {0};
        const int64_t want = end_run((ending)end, false, plain) + (end > END_AGAIN);
        const int64_t got = end_run((ending)end, true, again);
        if (!CHECK_EQ(got, want) + !CHECK(memcmp(plain, again, sizeof plain) == 0))
            printf("  ending %d\n", end);
    }
}

/* The last product of a layer with the norm first is not made again; all of one with the norm last
 * are. In f32 and in bf16. */
TEST(backend, a_transformer_layer_runs_again_but_for_its_last_product)
{
    int64_t plain = 0;
    for (int way = 0; way < 8; way++) {
        mlc_ctx    *ctx = device_ctx("test", NULL);
        mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(8, 2);
        d.norm_first = way / 2 % 2;
        mlc_module *net = mlc_nn_transformer_encoder(ctx, &d, 3);
        mlc_module_recompute(net, way % 2);
        mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims3(2, 4, 8), 1, -1, 1);
        mlc_forward(net, x);
        if (way / 4) mlc_autocast_begin(ctx, MLC_BF16);
        const int64_t before = g_device.products;
        mlc_tensor   *y = mlc_forward(net, x);
        const int64_t forward = g_device.products - before;
        mlc_backward(mlc_sum_all(y));
        const int64_t backward = g_device.products - before - forward;
        if (way % 2 == 0) plain = backward;
        else CHECK_EQ(backward, plain + forward - (d.norm_first ? 3 : 0));
        if (way / 4) mlc_autocast_end(ctx);
        CHECK_OK(ctx);
    }
}

/* An operand that has an axis less gets its gradient in a call for each that adds to it.        */
TEST(backend, a_gradient_that_adds_up_is_a_call_for_each_product_of_the_axis)
{
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_tensor *a = test_rand(ctx, MLC_F64, mlc_dims4(2, 3, 4, 5), 1, -1, 1);
    mlc_tensor *b = test_rand(ctx, MLC_F64, mlc_dims3(3, 5, 6), 2, -1, 1);
    double      db[90], want[90];
    mlc_set_requires_grad(b, true);
    mlc_tensor   *y = mlc_matmul(a, b);
    const int64_t before = g_device.products;
    CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
    CHECK_EQ(g_device.products - before, 2); /* three products each                             */
    CHECK(test_read(mlc_grad(b), db));
    mlc_tensor *sums = mlc_sum(a, mlc_dims2(0, 2), false);
    CHECK(test_read(mlc_expand(mlc_unsqueeze(sums, 2), mlc_dims3(3, 5, 6)), want));
    for (int i = 0; i < 90; i++)
        CHECK_NEAR(db[i], want[i], 1e-14);
    CHECK_OK(ctx);
}

TEST(backend, a_context_with_tf32_says_so_to_its_products)
{
    mlc_ctx_desc d = mlc_ctx_desc_make();
    CHECK(!d.tf32);
    d.device = "test";
    d.tf32 = true;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&d));
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 3), 1, -1, 1);
    CHECK(mlc_matmul(x, x) != NULL);
    CHECK_EQ(g_device.tf32, 1);
    g_device.tf32 = 0;
    CHECK(mlc_linear(x, x, NULL) != NULL);
    CHECK_EQ(g_device.tf32, 1);
    CHECK_OK(ctx);
}

TEST(backend, the_table_takes_eight_and_refuses_the_ninth)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    int  taken = 0;
    bool refused = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mlc_backend b = device_backend(names[i]);
        if (mlc_backend_register(&b) == MLC_OK) {
            CHECK(!refused);
            taken++;
        } else {
            refused = true;
        }
    }
    CHECK(taken >= 4 && taken <= 6);   /* "test", "no_rnn", "holes" if its test ran, "cuda"      */
    CHECK(refused);
    CHECK(device_ctx("a", NULL) != NULL);
}

TEST(backend, an_unknown_device_is_a_device_error)
{
    static const char *const bad[] = {"nosuch", "nosuch:0", "test:999", "test:x", "test:-1", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mlc_status status = MLC_OK;
        CHECK(device_ctx(bad[i], &status) == NULL);
        CHECK_EQ(status, MLC_ERR_DEVICE);
    }
    CHECK(device_ctx("cpu", NULL) != NULL);
    CHECK(device_ctx("test", NULL) != NULL);
}

/* In order; a CPU has the first ones of its architecture's.                                   */
#if defined(__aarch64__)
static const mlc_isa architecture[] = {MLC_ISA_SCALAR, MLC_ISA_NEON};
#else
static const mlc_isa architecture[] = {MLC_ISA_SCALAR, MLC_ISA_AVX2, MLC_ISA_AVX512,
                                       MLC_ISA_AVX512X, MLC_ISA_AMX};
#endif

TEST(backend, the_cpu_has_a_row_for_each_level_up_to_its_own)
{
    mlc_isa top = MLC_ISA_AUTO;
    size_t  n = 0;
    for (int i = MLC_ISA_SCALAR; i < MLC_ISA_COUNT; i++) {
        const mlc_kernels *k = mlc_cpu_kernels((mlc_isa)i);
        if (k == NULL)
            continue;
        top = (mlc_isa)i;
        CHECK(n < sizeof architecture / sizeof *architecture && architecture[n] == top);
        n++;
#define HAS(name) CHECK(k->name != NULL);
        MLC_KERNELS(HAS)
    }
    CHECK(n > 0);
    CHECK(mlc_cpu_kernels(MLC_ISA_AUTO) == mlc_cpu_kernels(top));
    CHECK(mlc_cpu_kernels((mlc_isa)99) == NULL);
    CHECK(mlc_cpu_kernels((mlc_isa)-1) == NULL);
}

TEST(backend, a_level_that_is_not_there_stands_for_the_best_one_below_it)
{
    for (int i = MLC_ISA_SCALAR; i < MLC_ISA_COUNT; i++) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        mlc_isa      want = MLC_ISA_SCALAR;
        for (int have = MLC_ISA_SCALAR; have <= i; have++)
            if (mlc_cpu_kernels((mlc_isa)have) != NULL)
                want = (mlc_isa)have;
        d.isa = (mlc_isa)i;
        CHECK_EQ(mlc_ctx_isa(test_own(mlc_ctx_create(&d))), want);
    }
}

/* ---- the host's side of a device ---------------------------------------------------------- */

TEST(backend, host_access_to_device_memory_is_an_error_not_a_crash)
{
    static const double v[3] = {1, -2, 3};
    float       host[3] = {0};
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(3), v);
    CHECK(!mlc_ctx_on_host(ctx));
    CHECK(mlc_f32(x) == NULL);
    CHECK_HAS(mlc_error(ctx), "mlc_read");
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    CHECK(mlc_f64(mlc_zeros(ctx, MLC_F64, mlc_dims1(2))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    CHECK(mlc_i64(mlc_zeros(ctx, MLC_I64, mlc_dims1(2))) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_DEVICE);
    CHECK(mlc_wrap(ctx, MLC_F32, mlc_dims1(3), NULL, host) == NULL);
    CHECK(mlc_ctx_status(ctx) != MLC_OK);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_read(x, host, sizeof host), MLC_OK);
    CHECK(host[0] == 1 && host[1] == -2 && host[2] == 3);
    CHECK_OK(ctx);
}

static mlc_status device_step(mlc_ctx *ctx, mlc_module *net, mlc_optim *opt, uint64_t seed)
{
    static const double labels[5] = {0, 2, 1, 1, 0};
    mlc_tensor *x, *y;
    mlc_scope_begin(ctx);
    x = test_rand(ctx, MLC_F32, mlc_dims2(5, 7), seed, -1, 1);
    y = test_tensor(ctx, MLC_I64, mlc_dims1(5), labels);
    mlc_backward(mlc_cross_entropy(mlc_forward(net, x), y));
    mlc_optim_step(opt);
    return mlc_scope_end(ctx);
}

static void check_no_leak(mlc_ctx_desc d)
{
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
    const int64_t leaked = g_device.leaked;
    d.device = "test";
    if (!CHECK((ctx = mlc_ctx_create(&d)) != NULL))
        return;
    net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 3));
    opt = mlc_adamw(net, 1e-2);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(device_step(ctx, net, opt, (uint64_t)i), MLC_OK);
    mlc_ctx_free(ctx);
    CHECK_EQ(g_device.leaked, leaked);
}

TEST(backend, a_freed_context_leaves_nothing_on_the_device)
{
    static char  memory[1 << 20];
    mlc_ctx_desc d = mlc_ctx_desc_make();
    check_no_leak(d);
    d.memory = memory;                 /* host structs in a fixed block, data on the device    */
    d.memory_bytes = sizeof memory;
    check_no_leak(d);
}

/* ---- optimizers on a device ----------------------------------------------------------------- */

typedef struct training {
    mlc_rule  rule;
    double    norm, value;             /* of clipping                                          */
    bool      each, scaler;
    int64_t   calls;                   /* to an update                                         */
    mlc_dtype dtype;
} training;

/* 58 parameters, steps, norm, the scaler's state. */
typedef struct trained { double p[58], seen[6]; } trained;

static mlc_module *two_linear(mlc_ctx *ctx, mlc_dtype dtype)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 5));
    mlc_module_add(net, mlc_nn_linear(ctx, 5, 3));
    CHECK_EQ(mlc_module_to(net, dtype), MLC_OK);
    return net;
}

static mlc_optim *training_optim(mlc_module *net, const training *t)
{
    const mlc_sgd_desc  sgd = {0.01, 0.9, 0, 0.1, true};
    const mlc_clip_desc clip = {t->norm, t->value, t->each};
    mlc_optim *opt = t->rule == MLC_RULE_SGD ? mlc_sgd_ex(net, &sgd)
                     : t->rule == MLC_RULE_LAMB ? mlc_lamb(net, 0.01) : mlc_adamw(net, 0.01);
    mlc_scaler_desc s = mlc_scaler_desc_make();
    s.interval = 3;
    if (t->scaler)
        CHECK_EQ(mlc_optim_scaler(opt, &s), MLC_OK);
    CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
    CHECK_EQ(mlc_optim_accumulate(opt, t->calls), MLC_OK);
    return opt;
}

/* A step on factor times the mean square of what net makes of noise. */
static mlc_status noise_step(mlc_module *net, mlc_optim *opt, mlc_dtype dtype, uint64_t seed,
                             double factor)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, dtype, mlc_dims2(9, 7), seed, -1, 1));
    mlc_tensor *loss = mlc_mul_scalar(mlc_mean(mlc_mul(y, y), mlc_dims0(), false), factor);
    CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
    return mlc_scope_end(ctx);
}

/* What changes on the way: frozen parameters, the rate, the layout, groups, the scaler. */
static void training_turn(mlc_module *net, mlc_optim *opt, int step)
{
    const mlc_group_desc group = {0.5, 0, true, false};
    if (step == 6 || step == 9)
        CHECK_EQ(mlc_module_freeze(net, "1.*", step == 6), MLC_OK);
    if (step == 9)
        CHECK_EQ(mlc_optim_set_lr(opt, 0.02), MLC_OK);
    if (step == 12)                    /* no call waits for an update                          */
        CHECK_EQ(mlc_module_rebuild(net), MLC_OK);
    if (step == 12)
        CHECK_EQ(mlc_optim_group(opt, "*.bias", &group), MLC_OK);
    mlc_scaler_state s = mlc_optim_scaler_state(opt);
    s.scale *= 0.25;
    if (step == 13 && s.skipped > 0)
        CHECK_EQ(mlc_optim_scaler_resume(opt, &s), MLC_OK);
}

static void training_run(mlc_ctx *ctx, const training *t, trained *out)
{
    mlc_module *net = two_linear(ctx, t->dtype);
    mlc_optim  *opt = training_optim(net, t);
    for (int step = 0; step < 16; step++) {
        const bool bad = t->scaler && (step == 4 || step == 5 || step == 11);
        training_turn(net, opt, step);
        CHECK_EQ(noise_step(net, opt, t->dtype, (uint64_t)step, bad ? (double)INFINITY : 1),
                 MLC_OK);
    }
    double        *p = out->p;
    mlc_param_iter it = mlc_param_iter_make(net);
    for (; mlc_param_next(&it); p += mlc_numel(it.tensor))
        test_read(it.tensor, p);
    CHECK_EQ(p - out->p, 58);
    const mlc_scaler_state s = mlc_optim_scaler_state(opt);
    const bool             looks = t->scaler || isfinite(t->norm) || isfinite(t->value);
    const double           seen[] = {(double)mlc_optim_steps(opt),
                                     looks ? mlc_optim_grad_norm(opt) : 0, s.scale, (double)s.good,
                                     (double)s.skipped, (double)s.skipped_row};
    memcpy(out->seen, seen, sizeof seen);
    CHECK_OK(ctx);
}

TEST(backend, an_optimizer_makes_the_same_bits_on_a_device)
{
    const double   inf = (double)INFINITY;
    const training cases[] = {
        {MLC_RULE_ADAM, inf, inf, false, false, 1, MLC_F32},
        {MLC_RULE_ADAM, 0.02, inf, false, true, 1, MLC_F32},
        {MLC_RULE_ADAM, 0.02, inf, true, true, 1, MLC_F32},
        {MLC_RULE_ADAM, inf, 0.003, false, true, 2, MLC_F32},
        {MLC_RULE_ADAM, inf, 0.003, false, false, 1, MLC_BF16},
        {MLC_RULE_ADAM, inf, inf, false, true, 1, MLC_BF16},
        {MLC_RULE_LAMB, 0.02, inf, false, true, 3, MLC_F32},
        {MLC_RULE_LAMB, inf, 0.003, false, true, 1, MLC_F64},
        {MLC_RULE_SGD, inf, inf, false, true, 1, MLC_F64},
        {MLC_RULE_SGD, 0.02, inf, false, false, 3, MLC_F32},
    };
    static trained on[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mlc_ctx_desc d = mlc_ctx_desc_make();
        d.isa = MLC_ISA_SCALAR;
        training_run(test_own(mlc_ctx_create(&d)), &cases[i], &on[0]);
        training_run(device_ctx("test:1", NULL), &cases[i], &on[1]);
        for (int k = 0; k < 58 && memcmp(on[0].p, on[1].p, sizeof on[0].p) != 0; k++)
            CHECK_NEAR(on[1].p[k], on[0].p[k], 0);
        CHECK(memcmp(on[0].p, on[1].p, sizeof on[0].p) == 0);
        for (int k = 0; k < 6; k++)
            CHECK_NEAR(on[1].seen[k], on[0].seen[k], 0);
        CHECK(!cases[i].scaler || on[0].seen[4] > 0);
    }
}

TEST(backend, a_step_on_a_device_copies_nothing_unless_settings_change)
{
    const training plain = {MLC_RULE_ADAM, (double)INFINITY, (double)INFINITY, false, false, 1,
                            MLC_F32};
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_module *net = two_linear(ctx, MLC_F32);
    mlc_optim  *opt = training_optim(net, &plain);
    for (int step = 0; step < 8; step++) {
        mlc_scope_begin(ctx);
        mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(9, 7), 1, -1, 1));
        CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
        if (step == 3 || step == 6)
            CHECK_EQ(mlc_optim_set_lr(opt, step == 3 ? 0.5 : 0.25), MLC_OK);
        if (step == 5)
            CHECK_EQ(mlc_module_freeze(net, "0.*", true), MLC_OK);
        memset(&g_device.count, 0, sizeof g_device.count);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(g_device.count.copies[MLC_COPY_TO_HOST], 0);
        CHECK_EQ(g_device.count.copies[MLC_COPY_ON_DEVICE], 0);
        CHECK_EQ(g_device.count.copies[MLC_COPY_TO_DEVICE],
                 step == 0 ? 2 : step == 3 || step == 5 || step == 6);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_EQ(mlc_optim_steps(opt), 8);
    CHECK_OK(ctx);
}

/* Until somebody waits for the device nothing is said, and nothing changes.                    */
TEST(backend, an_optimizers_errors_arrive_with_the_end_of_a_scope)
{
    static trained before, after;
    const training scaled = {MLC_RULE_ADAM, (double)INFINITY, (double)INFINITY, false, true, 1,
                             MLC_F32};
    mlc_ctx        *ctx = device_ctx("test", NULL);
    mlc_module     *net = two_linear(ctx, MLC_F32);
    mlc_optim      *opt = training_optim(net, &scaled);
    mlc_scaler_desc d = mlc_scaler_desc_make();
    d.patience = 2;
    CHECK_EQ(mlc_optim_scaler(opt, &d), MLC_OK);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, 1), MLC_OK);
    test_read(mlc_module_param(net, "0.weight"), before.p);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, (double)NAN), MLC_OK);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, (double)NAN), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "optim_step: 2 steps in a row had gradients that are not finite, at "
                              "last with a scale of 16384; no scale helps");
    CHECK_EQ(mlc_optim_scaler_state(opt).skipped_row, 2);
    mlc_optim_scaler_off(opt);
    const mlc_clip_desc clip = {1, (double)INFINITY, false};
    CHECK_EQ(mlc_optim_clip(opt, &clip), MLC_OK);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, (double)INFINITY), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(ctx), "optim_step: the norm of the gradients is ");
    test_read(mlc_module_param(net, "0.weight"), after.p);
    CHECK(memcmp(before.p, after.p, sizeof before.p) == 0);
    CHECK_EQ(mlc_optim_steps(opt), 1);
    CHECK_EQ(noise_step(net, opt, MLC_F32, 1, 1), MLC_OK);
    CHECK_EQ(mlc_optim_steps(opt), 2);
    test_read(mlc_module_param(net, "0.weight"), after.p);
    CHECK(memcmp(before.p, after.p, sizeof before.p) != 0);
    CHECK_OK(ctx);
}

/* The scale of a scaled loss is that of its forward, also when its optimizer is gone.          */
TEST(backend, a_scaled_loss_outlives_its_optimizer)
{
    const training scaled = {MLC_RULE_ADAM, (double)INFINITY, (double)INFINITY, false, true, 1,
                             MLC_F32};
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_module *net = two_linear(ctx, MLC_F32);
    mlc_optim  *opt = training_optim(net, &scaled);
    float       loss[2] = {0}, g = 0;
    mlc_tensor *w = mlc_full(ctx, MLC_F32, mlc_dims0(), 3);
    mlc_set_requires_grad(w, true);
    mlc_tensor *y = mlc_optim_scaled(opt, mlc_mul(w, w));
    mlc_optim_free(opt);
    CHECK_EQ(mlc_backward(y), MLC_OK);
    CHECK_EQ(mlc_read(y, loss, sizeof *loss), MLC_OK);
    CHECK_EQ(mlc_read(mlc_grad(w), &g, sizeof g), MLC_OK);
    CHECK_NEAR((double)loss[0], 9 * 65536.0, 0);
    CHECK_NEAR((double)g, 6 * 65536.0, 0);
    CHECK_OK(ctx);
}

/* ---- a device that fails ------------------------------------------------------------------- */

static void ignore(void *user, const char *text, size_t bytes)
{
    *(size_t *)user += bytes + (text == NULL);
}

/* Data, training and printing: each call of the device is some call here.                     */
static mlc_status broken_run(mlc_ctx *ctx)
{
    static const double labels[5] = {0, 2, 1, 1, 0};
    mlc_batch   b;
    size_t      printed = 0;
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_uniform(ctx, MLC_F32, mlc_dims2(5, 7), -1, 1);
    mlc_tensor *y = test_tensor(ctx, MLC_I64, mlc_dims1(5), labels);
    mlc_loader_desc d = mlc_loader_desc_make(x, y, 5);
    mlc_loader *loader = mlc_loader_create(ctx, &d);
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 7, 3));
    mlc_optim  *opt = mlc_adamw(net, 1e-2);
    mlc_anomaly(ctx, true);
    if (loader != NULL && mlc_loader_next(loader, &b)) {
        mlc_backward(mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        mlc_optim_step(opt);
    }
    mlc_print(mlc_transpose(x, 0, 1), ignore, &printed);
    mlc_item(mlc_sum(x, mlc_dims0(), false));
    mlc_masked_select(x, mlc_gt_scalar(x, 0));
    mlc_keep(x);
    mlc_ctx_sync(ctx);
    mlc_index_select(x, 0, y);         /* the scope's end asks whether y was in range          */
    mlc_anomaly(ctx, false);
    mlc_loader_free(loader);
    mlc_optim_free(opt);
    mlc_module_free(net);
    return mlc_scope_end(ctx);
}

TEST(backend, a_device_that_fails_at_any_call_is_an_error_and_leaks_nothing)
{
    const int64_t leaked = g_device.leaked;
    mlc_ctx      *ctx = device_ctx("test", NULL);
    mlc_status    status = MLC_ERR_DEVICE;
    int64_t       at = 0;
    CHECK_EQ(broken_run(ctx), MLC_OK);
    while (status != MLC_OK && at < 1000) {
        g_device.break_at = ++at;
        g_device.calls = 0;
        status = broken_run(ctx);
        if (!CHECK(g_device.calls < at ? status == MLC_OK : status == MLC_ERR_DEVICE) ||
            (status && (!CHECK_HAS(mlc_error(ctx), "device test") ||
                        !CHECK_HAS(mlc_error(ctx), " broke after "))))
            printf("  call %" PRId64 ": %s\n", at, mlc_error(ctx));
    }
    CHECK(at > 20 && at < 1000);
    g_device.break_at = 0;
    CHECK_EQ(broken_run(ctx), MLC_OK);
    CHECK_EQ(g_device.leaked, leaked);
}

/* A step with noise that fails at call `at`, and again: what parameters are then. False: it did not
 * fail, or parameters have moved before.                                                        */
static bool noise_again(int64_t at, float *w)
{
    enum { BYTES = 7 * 7 * sizeof(float) };
    float       was[49];
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) mlc_module_add(net, mlc_nn_linear(ctx, 7, 7));
    mlc_optim  *opt = mlc_sgd(net, 1);
    mlc_tensor *p = mlc_module_param(net, "0.weight"), *x = mlc_ones(ctx, MLC_F32, mlc_dims2(2, 7));
    CHECK_EQ(mlc_optim_noise(opt, 1, 0), MLC_OK);
    CHECK_EQ(mlc_backward(mlc_mul_scalar(mlc_mean_all(mlc_forward(net, x)), 0)), MLC_OK);
    CHECK_EQ(mlc_read(p, was, BYTES), MLC_OK);
    g_device.break_at = at;
    g_device.calls = 0;
    mlc_status st = mlc_optim_step(opt);
    g_device.break_at = 0;
    const bool failed = st != MLC_OK;
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_read(p, w, BYTES), MLC_OK);
    if (failed && memcmp(w, was, BYTES) != 0) return false;
    if (failed) CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_read(p, w, BYTES), MLC_OK);
    return failed;
}

TEST(backend, noise_is_added_once_where_a_device_fails_in_the_middle_of_it)
{
    float   want[49], w[49];
    int64_t at = 1;
    CHECK(!noise_again(0, want));
    for (; noise_again(at, w); at++)
        if (!CHECK(memcmp(w, want, sizeof w) == 0)) printf("  call %" PRId64 "\n", at);
    CHECK(at > 6);
}

typedef struct device_files { mlc_ctx *ctx; mlc_module *net; mlc_optim *opt; box b; } device_files;

enum { FILE_SAVES, FILE_LOADS, STATE_SAVES, STATE_LOADS, ROWS_LOADS, FILE_CALLS };

/* Two names of the weight are compared. */
static mlc_status files_call(device_files *f, int what)
{
    unsigned char bytes[1024];
    size_t        n = sizeof bytes;
    char          path[400];
    mlc_status    st = MLC_OK;
    snprintf(path, sizeof path, "%s/%s", f->b.dir, what == ROWS_LOADS ? "rows" : "state");
    mlc_scope_begin(f->ctx);
    switch (what) {
    case FILE_SAVES: st = mlc_save_memory(f->net, bytes, &n, NULL); break;
    case FILE_LOADS: st = mlc_load(f->net, f->b.path); break;
    case STATE_SAVES: st = mlc_optim_save(f->opt, path); break;
    case STATE_LOADS: st = mlc_optim_load(f->opt, path); break;
    default: if (mlc_csv_load(f->ctx, path, NULL) == NULL) st = mlc_ctx_status(f->ctx);
    }
    mlc_scope_end(f->ctx);
    return st;
}

TEST(backend, a_device_that_fails_while_a_file_is_read_or_written_is_an_error)
{
    device_files f = {device_ctx("test", NULL), NULL, NULL, box_open_fast("net")};
    mlc_module  *inner = mlc_nn_sequential(f.ctx);
    char         rows[400];
    f.net = mlc_nn_sequential(f.ctx);
    mlc_module_add(f.net, mlc_nn_linear(f.ctx, 3, 2));
    mlc_module_add(f.net, inner);
    CHECK_EQ(mlc_module_build(f.net), MLC_OK);
    CHECK_EQ(mlc_module_tie(inner, "same", mlc_module_param(f.net, "0.weight")), MLC_OK);
    f.opt = mlc_adamw(f.net, 0.1);
    CHECK(mlc_ema(f.opt, 0.5) != NULL);
    const mlc_named list[3] = {{"0.weight", mlc_ones(f.ctx, MLC_F32, mlc_dims2(2, 3))},
                               {"1.same", mlc_ones(f.ctx, MLC_F32, mlc_dims2(2, 3))},
                               {"0.bias", mlc_ones(f.ctx, MLC_F32, mlc_dims1(2))}};
    CHECK_EQ(mlc_safetensors_save(f.ctx, f.b.path, list, 3, NULL), MLC_OK);
    snprintf(rows, sizeof rows, "%s/rows", f.b.dir);
    CHECK(put_file(rows, "1,2\n3,4\n", 8));
    for (int what = 0; what < FILE_CALLS; what++) {
        mlc_status st = MLC_ERR_DEVICE;
        int64_t    at = 0;
        CHECK_EQ(mlc_ctx_sync(f.ctx), MLC_OK);
        while (st != MLC_OK && at < 1000) {
            g_device.break_at = ++at;
            g_device.calls = 0;
            st = files_call(&f, what);
            g_device.break_at = 0;
            if (!CHECK_EQ(st, g_device.calls < at ? MLC_OK : MLC_ERR_DEVICE))
                printf("  call %d, %" PRId64 "\n", what, at);
            mlc_error_clear(f.ctx);
        }
        CHECK(at > 1 && at < 1000);
        CHECK_EQ(files_call(&f, what), MLC_OK);
    }
    CHECK_EQ(box_count(&f.b), 3);
    CHECK_OK(f.ctx);
    box_close(&f.b);
}

static void check_broken(mlc_ctx *ctx, mlc_status got, mlc_status want, const char *text)
{
    g_device.break_at = 0;
    CHECK_EQ(got, want);
    CHECK_STR(mlc_error(ctx), text);
    CHECK_STATUS(ctx, want);
}

static void break_next(mlc_status status)
{
    g_device.breaks_with = status;
    g_device.break_at = 1;
    g_device.calls = 0;
}

/* As a device whose kernel optim has no text for codes: mlcore_cuda.cu. */
TEST(backend, a_device_without_small_moments_refuses_them_when_an_optimizer_is_made)
{
    mlc_ctx      *ctx = device_ctx("test", NULL);
    mlc_module   *net = mlc_nn_linear(ctx, 8, 8);
    mlc_adam_desc d = mlc_adamw_desc_make(0.1);
    bool          refused = false;
    mlc_module_build(net);
    d.moments = MLC_MOMENTS_8BIT;
    for (int64_t at = 1; at < 40 && !refused; at++) {
        break_next(MLC_ERR_UNSUPPORTED);
        g_device.break_at = at;
        mlc_optim *opt = mlc_adamw_ex(net, &d);
        refused = opt == NULL && strstr(mlc_error(ctx), "adamw: device test keeps states in f32 ");
        mlc_optim_free(opt);
        mlc_error_clear(ctx);
    }
    g_device.break_at = 0;
    g_device.breaks_with = MLC_ERR_DEVICE;
    CHECK(refused);
    CHECK(mlc_adamw_ex(net, &d) != NULL);
    CHECK_OK(ctx);
}

TEST(backend, an_error_has_the_status_and_the_text_of_the_device)
{
    static const double v[3] = {1, -2, 3};
    float       host[3];
    mlc_ctx    *ctx = device_ctx("test", NULL);
    mlc_tensor *x = test_tensor(ctx, MLC_F32, mlc_dims1(3), v), *y = mlc_exp(x);
    break_next(MLC_ERR_NOMEM);
    check_broken(ctx, mlc_read(y, host, sizeof host), MLC_ERR_NOMEM,
                 "device test: copy of 12 bytes failed: copy broke after exp");
    break_next(MLC_ERR_DEVICE);
    check_broken(ctx, mlc_read(y, host, sizeof host), MLC_ERR_DEVICE,
                 "device test: copy of 12 bytes failed: copy broke after exp");
    break_next(MLC_ERR_NOMEM);
    CHECK(mlc_add(x, y) == NULL);
    check_broken(ctx, mlc_ctx_status(ctx), MLC_ERR_NOMEM,
                 "add: kernel 'map' failed on device test: map broke after add");
    break_next(MLC_ERR_DEVICE);
    check_broken(ctx, mlc_ctx_sync(ctx), MLC_ERR_DEVICE,
                 "ctx_sync: device test failed: sync broke after add");
    g_device.breaks_with = MLC_ERR_DEVICE;
    CHECK_EQ(mlc_ctx_sync(ctx), MLC_OK);
    CHECK_EQ(mlc_ctx_sync(NULL), MLC_ERR_ARG);
}

TEST(backend, tensors_of_two_devices_are_an_error_that_names_both)
{
    mlc_ctx    *ctx = device_ctx("test", NULL), *cpu = device_ctx("cpu", NULL);
    mlc_ctx    *scalar = device_ctx("test:1", NULL);
    mlc_tensor *a = mlc_ones(ctx, MLC_F32, mlc_dims1(3)), *b = mlc_ones(cpu, MLC_F32, mlc_dims1(3));
    mlc_tensor *c = mlc_ones(scalar, MLC_F32, mlc_dims1(3));
    CHECK(mlc_add(a, b) == NULL);
    CHECK_STR(mlc_error(ctx), "add: input 2 belongs to another context, on cpu instead of test:0; "
                              "make both in one");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_add(c, a) == NULL);
    CHECK_STR(mlc_error(scalar), "add: input 2 belongs to another context, on test:0 instead of "
                                 "test:1; make both in one");
    CHECK_STATUS(scalar, MLC_ERR_ARG);
    CHECK_EQ(mlc_copy_into(b, a), MLC_ERR_ARG);
    CHECK_STR(mlc_error(cpu), "copy_into: src belongs to another context, on test:0 instead of "
                              "cpu; make both in one");
    CHECK_STATUS(cpu, MLC_ERR_ARG);
}

/* ---- a training step does not wait for its device ------------------------------------------ */

typedef struct run {
    mlc_ctx    *ctx;
    mlc_module *net;
    mlc_optim  *opt;
} run;

static run run_make(mlc_optim *(*optim)(mlc_module *root, double lr), bool dropout)
{
    run r;
    r.ctx = device_ctx("test", NULL);
    r.net = mlc_nn_sequential(r.ctx);
    mlc_module_add(r.net, mlc_nn_linear(r.ctx, 7, 9));
    mlc_module_add(r.net, mlc_nn_relu(r.ctx));
    if (dropout)
        mlc_module_add(r.net, mlc_nn_dropout(r.ctx, 0.25));
    mlc_module_add(r.net, mlc_nn_linear(r.ctx, 9, 3));
    r.opt = optim(r.net, 0.05);
    return r;
}

static mlc_status run_step(const run *r, mlc_tensor *x, mlc_tensor *y)
{
    mlc_scope_begin(r->ctx);
    mlc_optim_minimize(r->opt, mlc_cross_entropy(mlc_forward(r->net, x), y));
    return mlc_scope_end(r->ctx);
}

static void check_free_of_waits(const run *r, mlc_loader *loader, int steps)
{
    mlc_batch b;
    for (int i = 0; i < steps; i++) {
        memset(&g_device.count, 0, sizeof g_device.count);
        while (!mlc_loader_next(loader, &b)) {}            /* an epoch's end */
        CHECK_EQ(run_step(r, b.x, b.y), MLC_OK);
        if (i < 4)
            continue;                  /* the first ones make the blocks of the pool           */
        CHECK_EQ(g_device.count.allocs, 0);
        CHECK_EQ(g_device.count.syncs, 0);
        CHECK_EQ(g_device.count.copies[MLC_COPY_TO_HOST], 0);
        CHECK(g_device.count.copies[MLC_COPY_TO_DEVICE] <= (b.index == 0 ? 2 : 1));
        CHECK_EQ(g_device.count.posts, 1);
        CHECK_EQ(g_device.count.polls, 1);
        CHECK_EQ(g_device.count.kernels[KERNEL_xent], 1);
        CHECK_EQ(g_device.count.kernels[KERNEL_optim], 1);
        CHECK_EQ(g_device.count.kernels[KERNEL_guard], 1);
    }
}

static mlc_optim *adamw(mlc_module *root, double lr) { return mlc_adamw(root, lr); }
static mlc_optim *momentum(mlc_module *root, double lr)
{
    mlc_sgd_desc d = mlc_sgd_desc_make(lr);
    d.momentum = 0.9;
    return mlc_sgd_ex(root, &d);
}

TEST(backend, a_steady_step_allocates_nothing_reads_nothing_back_and_does_not_wait)
{
    static const double labels[12] = {0, 2, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2};
    mlc_clip_desc clip = mlc_clip_desc_make();
    clip.norm = 0.5;
    for (int form = 0; form < 8; form++) {                 /* bits: Adam, clipping, a scaler   */
        const run r = run_make(form & 1 ? adamw : momentum, true);
        if (form & 2)
            mlc_optim_clip(r.opt, &clip);
        if (form & 4)
            mlc_optim_scaler(r.opt, NULL);
        mlc_tensor *x = test_rand(r.ctx, MLC_F32, mlc_dims2(12, 7), 1, -1, 1);
        mlc_tensor *y = test_tensor(r.ctx, MLC_I64, mlc_dims1(12), labels);
        mlc_loader *loader = mlc_loader_shuffled(r.ctx, x, y, 4);
        if (CHECK(loader != NULL))
            check_free_of_waits(&r, loader, 11);
        mlc_loader_free(loader);
    }
}

/* ---- an update without workspace ---------------------------------------------------------- */

static int64_t g_refuse_at, g_asked;   /* the allocation that is refused; 0: none              */

static bool refuses_one(void)
{
    return g_refuse_at > 0 && ++g_asked == g_refuse_at;
}

/* mlc_backward and mlc_optim_step on 128 x 128 weights; of these the allocation n is refused.   */
static mlc_status square_step(mlc_module *net, mlc_optim *opt, int64_t n)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(net, test_rand(ctx, MLC_F32, mlc_dims2(4, 128), 5, -1, 1));
    mlc_tensor *loss = mlc_mean(mlc_mul(y, y), mlc_dims0(), false);
    mlc_memory_trim(ctx);
    g_refuse_at = n;
    g_asked = 0;
    test_device_refuses = refuses_one;
    mlc_status st = mlc_backward(loss);
    mlc_memory_trim(ctx);              /* nothing in stock: all comes from the device          */
    if (st == MLC_OK)
        st = mlc_optim_step(opt);
    test_device_refuses = NULL;
    CHECK_EQ(mlc_scope_end(ctx), st);
    return st;
}

/* Weights after two updates. The allocation n of the second one is refused: if that has left them
 * as they were it is made again. False: it had not so many, or had moved them.                  */
static bool square_run(bool lamb, int64_t n, float *w, bool *more)
{
    static float       before[128 * 128];
    mlc_nn_linear_desc d = mlc_nn_linear_desc_make(128, 128);
    mlc_ctx_desc       c = mlc_ctx_desc_make();
    c.device = "test";
    d.no_bias = true;
    mlc_ctx    *ctx = mlc_ctx_create(&c);
    mlc_module *net = mlc_nn_linear_ex(ctx, &d);
    mlc_optim  *opt = lamb ? mlc_lamb(net, 0.01) : mlc_adamw(net, 0.01);
    CHECK_EQ(mlc_optim_in_backward(opt, !lamb), MLC_OK);
    CHECK_EQ(square_step(net, opt, 0), MLC_OK);
    mlc_read(mlc_module_param(net, "weight"), before, sizeof before);
    const mlc_status st = square_step(net, opt, n);
    *more = st != MLC_OK;
    mlc_read(mlc_module_param(net, "weight"), w, sizeof before);
    const bool again = *more && memcmp(w, before, sizeof before) == 0;
    if (*more)
        CHECK_EQ(st, MLC_ERR_NOMEM);
    mlc_optim_zero_grad(opt);
    if (again)
        CHECK_EQ(square_step(net, opt, 0), MLC_OK);
    mlc_read(mlc_module_param(net, "weight"), w, sizeof before);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    return again;
}

TEST(backend, an_update_that_is_refused_its_workspace_is_not_counted)
{
    static float want[128 * 128], got[128 * 128];
    for (int lamb = 0; lamb < 2; lamb++) {
        bool more;
        int  again = 0;
        square_run(lamb, 0, want, &more);
        CHECK(!more);
        more = true;
        for (int64_t n = 1; more; n++)
            if (square_run(lamb, n, got, &more)) {
                CHECK(memcmp(got, want, sizeof got) == 0);
                again++;
            }
        CHECK(again > 0);
    }
}

/* ---- a device that answers late ------------------------------------------------------------ */

typedef struct late {
    run         r;                     /* without dropout, so that steps do not differ         */
    mlc_tensor *x, *good, *bad;
    float       before[9 * 7], after[9 * 7];
} late;

static late late_make(void)
{
    static const double good[5] = {0, 2, 1, 1, 0}, bad[5] = {0, 2, 3, 1, 0};
    late l;
    l.r = run_make(momentum, false);
    l.x = test_rand(l.r.ctx, MLC_F32, mlc_dims2(5, 7), 1, -1, 1);
    l.good = test_tensor(l.r.ctx, MLC_I64, mlc_dims1(5), good);
    l.bad = test_tensor(l.r.ctx, MLC_I64, mlc_dims1(5), bad);
    return l;
}

static void late_weights(late *l, float *to)
{
    mlc_read(mlc_module_param(l->r.net, "0.weight"), to, sizeof l->before);
}

static bool late_moved(late *l)
{
    late_weights(l, l->after);
    return memcmp(l->before, l->after, sizeof l->before) != 0;
}

#define LATE_TEXT "cross_entropy: label 3 at row 2 of this batch is not in [0,3)"

/* The bad step is made, and a good one before the error arrives: neither changes anything.      */
TEST(backend, a_bad_label_that_is_reported_late_changes_no_weights)
{
    late l = late_make(), other = late_make();
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    late_weights(&l, l.before);
    g_device.polls = 3;
    CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_OK);
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(l.r.ctx), LATE_TEXT);
    CHECK_OK(l.r.ctx);
    CHECK(!late_moved(&l));
    for (int i = 0; i < 4; i++)
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    g_device.polls = 1;                /* the same run without the steps that were not made     */
    CHECK_EQ(run_step(&other.r, other.x, other.bad), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(other.r.ctx), LATE_TEXT);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(run_step(&other.r, other.x, other.good), MLC_OK);
    late_weights(&other, l.before);
    CHECK(!late_moved(&l));
}

/* The gradient of a bad batch is in what was collected when the error arrives; on the CPU the batch
 * adds nothing and is no call. */
TEST(backend, a_bad_label_spoils_what_a_device_has_collected_until_gradients_are_zeroed)
{
    for (int zero = 0; zero < 2; zero++) {
        late l = late_make();
        CHECK_EQ(mlc_optim_accumulate(l.r.opt, 2), MLC_OK);
        CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_ERR_VALUE);
        CHECK_OK(l.r.ctx);
        if (zero)
            mlc_optim_zero_grad(l.r.opt);
        late_weights(&l, l.before);
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
        CHECK_EQ(late_moved(&l), !zero);                   /* the bad batch was a call          */
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
        CHECK_EQ(late_moved(&l), true);
        CHECK_EQ(isfinite(l.after[0]), zero);              /* loss and norm were not written    */
    }
}

TEST(backend, an_error_that_a_read_reports_is_not_reported_again_by_the_ticket)
{
    late l = late_make();
    late_weights(&l, l.before);
    g_device.polls = 3;
    CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_OK);
    CHECK_EQ(mlc_read(l.x, l.after, sizeof(float) * 35), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(l.r.ctx), LATE_TEXT);
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_ERR_VALUE);    /* it stands                      */
    mlc_error_clear(l.r.ctx);
    CHECK(!late_moved(&l));
    for (int i = 0; i < 6; i++)
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    CHECK(late_moved(&l));
    g_device.polls = 1;
}

TEST(backend, a_sync_reports_what_is_not_answered_yet_also_of_a_later_operation)
{
    late l = late_make();
    g_device.polls = 3;
    CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);         /* its ticket is open               */
    CHECK_EQ(run_step(&l.r, l.x, l.bad), MLC_OK);
    mlc_error_clear(l.r.ctx);          /* of an error that is not known yet it forgets nothing */
    CHECK_EQ(mlc_ctx_sync(l.r.ctx), MLC_ERR_VALUE);
    CHECK_HAS(mlc_error(l.r.ctx), LATE_TEXT);
    mlc_error_clear(l.r.ctx);
    CHECK_EQ(mlc_ctx_sync(l.r.ctx), MLC_OK);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(run_step(&l.r, l.x, l.good), MLC_OK);
    g_device.polls = 1;
}

TEST(backend, a_context_may_be_freed_before_a_ticket_is_answered)
{
    const int64_t leaked = g_device.leaked;
    mlc_ctx_desc  d = mlc_ctx_desc_make();
    d.device = "test";
    mlc_ctx *ctx = mlc_ctx_create(&d);
    if (!CHECK(ctx != NULL))
        return;
    g_device.polls = 3;
    mlc_scope_begin(ctx);
    mlc_tensor *index = mlc_zeros(ctx, MLC_I64, mlc_dims1(2));
    mlc_index_select(mlc_ones(ctx, MLC_F32, mlc_dims2(3, 3)), 0, index);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    mlc_ctx_free(ctx);
    CHECK_EQ(g_device.leaked, leaked);
    g_device.polls = 1;
}

/* ---- workspace that a device asks for ------------------------------------------------------ */

static mlc_tensor *asking_run(mlc_tensor *x, mlc_tensor *at, int op)
{
    const mlc_sketch s = mlc_sketch_make(MLC_SKETCH_SRHT, 2, 4, 7);
    switch (op) {
    case 0:  return mlc_index_select(x, 0, at);
    case 1:  return mlc_gather(x, 1, mlc_zeros(x->ctx, MLC_I64, mlc_dims2(3, 2)));
    case 2:  return mlc_cumsum(x, 1);
    case 3:  return mlc_cumprod(x, 0);
    case 4:  return mlc_argmax(x, 1, false);
    case 5:  return mlc_argmin(x, 0, false);
    case 6:  return mlc_randperm(x->ctx, 9);
    default: return mlc_sketch_apply(x, &s, 1);
    }
}

/* Whatever runs on the device checks what these kernels are given; here that they were asked. */
TEST(backend, index_scan_argmax_and_permutation_get_the_workspace_that_a_device_asks_for)
{
    static const double rows[2] = {2, 0};
    mlc_status  status;
    mlc_ctx    *ctx = device_ctx("test", &status);
    mlc_tensor *x = test_rand(ctx, MLC_F32, mlc_dims2(3, 4), 1, -1, 1);
    mlc_tensor *at = test_tensor(ctx, MLC_I64, mlc_dims1(2), rows);
    mlc_set_requires_grad(x, true);
    for (int op = 0; op < 8; op++) {
        const int64_t asked = g_device.asked;
        mlc_tensor   *y = asking_run(x, at, op);
        CHECK(y != NULL);
        CHECK_EQ(g_device.asked, asked + 1);
        if (y != NULL && op < 3) {                          /* a scatter or a scan again        */
            CHECK_EQ(mlc_backward(mlc_sum(y, mlc_dims0(), false)), MLC_OK);
            CHECK_EQ(g_device.asked, asked + 2);
        }
    }
    CHECK_OK(ctx);
}
