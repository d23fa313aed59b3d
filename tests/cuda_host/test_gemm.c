/* test_gemm.c -- tests of CUDA.GEMM and CUDA.LT: products of all kinds against the CPU's kernel
 *
 * A case is drawn by chance: dtypes, sizes, layouts, strides, sink. All operands are in one block,
 * of which the device has a copy; after the product the block is compared with the one that the
 * CPU's kernel left, gaps between elements included: they are NaN and must stay so.
 */
#define _GNU_SOURCE
#include "../../mlcore_cuda.h"
#include "mlc_test.h"

enum { A, B, C, BIAS, AUX, RESIDUAL, GRAD_OF, ROLES };

#define ROOM ((size_t)1 << 20)         /* bytes of a role                                        */

static char own_before[8];
static char host_block[ROLES * ROOM], cpu_block[ROLES * ROOM], cuda_block[ROLES * ROOM];

/* Kernels of the unit on a device of its own.                                                   */
typedef struct card {
    mlc_backend b;
    void       *dev;
    char       *block;
} card;

/* own "1": no product goes to cuBLASLt.                                                         */
static card card_open(const char *own)
{
    card  c;
    void *block = NULL;
    const char *const before = getenv("MLC_CUDA_OWN_GEMM");
    snprintf(own_before, sizeof own_before, "%s", before ? before : "0");
    setenv("MLC_CUDA_OWN_GEMM", own, 1);
    mlc_cuda_backend(&c.b);
    CHECK(c.b.open(0, &c.dev) == MLC_OK);
    CHECK(c.b.alloc(c.dev, sizeof host_block, &block) == MLC_OK);
    c.block = (char *)block;
    return c;
}
static void card_close(card *c)
{
    c->b.release(c->dev, c->block, sizeof host_block);
    c->b.close(c->dev);
    setenv("MLC_CUDA_OWN_GEMM", own_before, 1);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int64_t g_draw;

static int64_t draw(int64_t n) { return (int64_t)test_random(5, g_draw++, 0, (double)n); }

/* Strides of a matrix in a batch, in an order by chance, some with gaps; returns elements.      */
static int64_t strides_draw(int64_t rows, int64_t cols, int64_t batch, bool shared, int64_t *row,
                            int64_t *col, int64_t *step)
{
    const int64_t by = draw(4) ? 1 : 2, pad = draw(3) ? 0 : draw(9), lines = draw(2);
    *col = lines ? by : rows * by + pad;
    *row = lines ? cols * by + pad : by;
    *step = shared ? 0 : (lines ? rows * *row : cols * *col) + 4 * draw(3);
    return (lines ? rows * *row : cols * *col) + (batch - 1) * *step;
}

static void fill(int role, mlc_dtype dtype, int64_t n)
{
    const size_t size = mlc_dtype_bytes(dtype);
    if ((size_t)n * size > ROOM)
        abort();
    for (int64_t i = 0; i < n; i++)
        test_put(host_block + (size_t)role * ROOM, dtype, i,
                 test_random(6, i * ROLES + role, -1, 1));
}

static void *place(int role) { return host_block + (size_t)role * ROOM; }

/* The sink: tensors of c's shape have c's strides.                                              */
static void sink_draw(struct mlc_k_gemm *g, int64_t elements)
{
    static const mlc_map grads[] = {MLC_MAP_RELU_GRAD, MLC_MAP_TANH_GRAD, MLC_MAP_SIGMOID_GRAD,
                                    MLC_MAP_GELU_GRAD, MLC_MAP_SILU_GRAD, MLC_MAP_GELU_TANH_GRAD};
    g->alpha = draw(3) ? 1 : -0.75;
    if (draw(2)) {
        g->bias = place(BIAS);
        g->bias_dtype = g->c_dtype == MLC_F64 || draw(2) ? g->c_dtype : MLC_F32;
        fill(BIAS, g->bias_dtype, g->n);
    }
    if (draw(3) == 0) { g->beta = draw(2) ? 1 : 0.5; return; }
    if (draw(2))
        g->act = (mlc_act)(1 + draw(MLC_ACT_GELU_TANH));
    if (g->act && draw(2)) { g->aux = place(AUX); g->aux_after = (int32_t)draw(2); }
    if (draw(4) == 0) { g->residual = place(RESIDUAL); g->act_last = (int32_t)draw(2); }
    if (draw(4) == 0) { g->grad_of = place(GRAD_OF); g->grad = grads[draw(6)]; }
    if (draw(4) == 0 && g->c_col == 1) {
        g->drop = draw(5) ? 0.25 : 1;
        g->drop_seed = 3;
        g->drop_stream = 4;
    }
    fill(RESIDUAL, g->c_dtype, elements);
    fill(GRAD_OF, g->c_dtype, elements);
}

static struct mlc_k_gemm product_draw(int64_t m, int64_t n, int64_t k, int64_t batch)
{
    static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
    struct mlc_k_gemm g;
    memset(&g, 0, sizeof g);
    memset(host_block, 0xff, sizeof host_block);
    g.dtype = dtypes[draw(4)];
    const bool low = mlc_dtype_bytes(g.dtype) == 2;
    g.a_dtype = low && draw(4) == 0 ? MLC_F32 : g.dtype;
    g.b_dtype = low && draw(4) == 0 ? MLC_F32 : g.dtype;
    g.c_dtype = low && draw(3) == 0 ? MLC_F32
              : g.dtype == MLC_F32 && draw(4) == 0 ? MLC_BF16 : g.dtype;
    g.m = m; g.n = n; g.k = k;
    g.batch[0] = g.batch[1] = 1; g.batch[2] = batch;
    g.a = place(A); g.b = place(B); g.c = place(C);
    fill(A, g.a_dtype, strides_draw(m, k, batch, draw(4) == 0, &g.a_row, &g.a_col, &g.a_batch[2]));
    fill(B, g.b_dtype, strides_draw(k, n, batch, draw(4) == 0, &g.b_row, &g.b_col, &g.b_batch[2]));
    const int64_t elements = strides_draw(m, n, batch, false, &g.c_row, &g.c_col, &g.c_batch[2]);
    sink_draw(&g, elements);
    if (g.beta != 0)
        fill(C, g.c_dtype, elements);
    if (draw(5) == 0)                  /* off 16 bytes                                           */
        g.a = (const char *)g.a + mlc_dtype_bytes(g.a_dtype);
    return g;
}

/* The same product on another block.                                                            */
static struct mlc_k_gemm moved(struct mlc_k_gemm g, char *block)
{
    const void **in[] = {&g.a, &g.b, &g.bias, &g.residual, &g.grad_of};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        if (*in[i])
            *in[i] = block + ((const char *)*in[i] - host_block);
    g.c = block + ((char *)g.c - host_block);
    if (g.aux)
        g.aux = block + ((char *)g.aux - host_block);
    return g;
}

static mlc_status run(const mlc_kernels *k, mlc_backend *b, void *dev, struct mlc_k_gemm g)
{
    const size_t bytes = k->gemm_workspace ? k->gemm_workspace(dev, &g) : 0;
    g.workspace_bytes = bytes;
    if (b == NULL)
        g.workspace = test_aligned_alloc(64, bytes + 64);
    else
        CHECK(b->alloc(dev, bytes + 64, &g.workspace) == MLC_OK);
    const mlc_status st = k->gemm(dev, &g);
    if (b == NULL)
        test_aligned_free(g.workspace);
    else
        b->release(dev, g.workspace, bytes + 64);
    return st;
}

/* ---- comparison ----------------------------------------------------------------------------- */

static double tolerance(const struct mlc_k_gemm *g, double want)
{
    const double sums = sqrt((double)g->k + 4) * (g->drop > 0 && g->drop < 1 ? 2 : 1);
    const double eps = g->c_dtype == MLC_BF16 ? 0x1p-7 : g->c_dtype == MLC_F16 ? 0x1p-10 : 0;
    return fabs(want) * eps + sums * (g->dtype == MLC_F64 ? 1e-14 : 4e-6);
}

/* Elements of a role that differ; a NaN on one side must be a NaN on the other.                 */
static int64_t differences(const struct mlc_k_gemm *g, int role)
{
    const size_t n = ROOM / mlc_dtype_bytes(g->c_dtype);
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const double want = test_get(cpu_block + (size_t)role * ROOM, g->c_dtype, (int64_t)i);
        const double got = test_get(cuda_block + (size_t)role * ROOM, g->c_dtype, (int64_t)i);
        if (isnan(want) != isnan(got) || (!isnan(want) && want != got &&
                                          !(fabs(want - got) <= tolerance(g, want)))) {
            if (count++ == 0)
                printf("  element %lld: %g for %g\n", (long long)i, got, want);
        }
    }
    return count;
}

/* Both make the product; returns what the unit answered.                                        */
static bool agrees(card *c, const struct mlc_k_gemm *g)
{
    const mlc_kernels *cpu = mlc_cpu_kernels(MLC_ISA_AUTO);
    memcpy(cpu_block, host_block, sizeof host_block);
    CHECK(run(cpu, NULL, NULL, moved(*g, cpu_block)) == MLC_OK);
    CHECK(c->b.copy(c->dev, c->block, host_block, sizeof host_block, MLC_COPY_TO_DEVICE) == MLC_OK);
    CHECK(run(&c->b.kernels, &c->b, c->dev, moved(*g, c->block)) == MLC_OK);
    CHECK(c->b.copy(c->dev, cuda_block, c->block, sizeof host_block, MLC_COPY_TO_HOST) == MLC_OK);
    const bool same = differences(g, C) == 0 && (g->aux == NULL || differences(g, AUX) == 0);
    if (!same)
        printf("  m %lld n %lld k %lld batch %lld, dtypes %d %d %d %d, act %d aux %d beta %g\n",
               (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->batch[2], g->dtype,
               g->a_dtype, g->b_dtype, g->c_dtype, g->act, g->aux != NULL, g->beta);
    return same;
}

/* c [b,h,t,s] = a b^T of a [b,t,h,d], b [b,s,h,d]: three axes, of which two cannot be one.      */
static struct mlc_k_gemm attention_draw(mlc_dtype dtype)
{
    const int64_t b = 3, h = 2, t = 24, s = 40, d = 16;
    struct mlc_k_gemm g;
    memset(&g, 0, sizeof g);
    memset(host_block, 0xff, sizeof host_block);
    g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = dtype;
    g.m = t; g.n = s; g.k = d;
    g.batch[0] = 1; g.batch[1] = b; g.batch[2] = h;
    g.a = place(A); g.b = place(B); g.c = place(C);
    g.a_row = h * d; g.a_col = 1; g.a_batch[1] = t * h * d; g.a_batch[2] = d;
    g.b_row = 1; g.b_col = h * d; g.b_batch[1] = s * h * d; g.b_batch[2] = d;
    g.c_row = s; g.c_col = 1; g.c_batch[1] = h * t * s; g.c_batch[2] = t * s;
    g.alpha = 0.25;
    fill(A, dtype, b * t * h * d);
    fill(B, dtype, b * s * h * d);
    return g;
}

static int64_t size_draw(void)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 17, 31, 33, 65, 4, 8, 16, 32, 64, 80, 8, 16, 32};
    return sizes[draw(sizeof sizes / sizeof *sizes)];
}

static void cases(card *c, int n)
{
    g_draw = 0;
    for (int i = 0; i < n; i++) {
        const int64_t k = draw(30) ? size_draw() : 0;
        const struct mlc_k_gemm g = product_draw(size_draw(), size_draw(), k,
                                                 draw(3) ? 1 : 1 + draw(4));
        if (!CHECK(agrees(c, &g)))
            return;
    }
    for (int i = 0; i < 8; i++) {      /* k is cut into parts; many tiles                        */
        const struct mlc_k_gemm g = i % 2 ? product_draw(130, 70, 9, 2)
                                          : product_draw(size_draw(), 40, 700 + 40 * i, 1);
        CHECK(agrees(c, &g));
    }
    for (int i = 0; i < 4; i++) {
        static const mlc_dtype dtypes[] = {MLC_F32, MLC_F64, MLC_BF16, MLC_F16};
        const struct mlc_k_gemm g = attention_draw(dtypes[i]);
        CHECK(agrees(c, &g));
    }
}

extern int64_t cuda_host_lt_products;

TEST(cuda, products_of_all_kinds_by_the_own_tile)
{
    const int64_t before = cuda_host_lt_products;
    card c = card_open("1");
    cases(&c, 150);
    CHECK_EQ(cuda_host_lt_products, before);
    card_close(&c);
}

TEST(cuda, products_of_all_kinds_by_cublaslt)
{
    const int64_t before = cuda_host_lt_products;
    card c = card_open("0");
    cases(&c, 250);
    CHECK(cuda_host_lt_products - before > 60);
    card_close(&c);
}

/* Products of a batch are one call of cuBLASLt where one step reaches them, else one an axis.    */
TEST(cuda, attention_is_a_call_for_each_step_of_the_shorter_axis)
{
    card c = card_open("0");
    const struct mlc_k_gemm g = attention_draw(MLC_BF16);
    const int64_t before = cuda_host_lt_products;
    CHECK(agrees(&c, &g));
    CHECK_EQ(cuda_host_lt_products - before, 2);
    card_close(&c);
}

/* c of one element, in f32: factors with 11 bits of mantissa, or rounded to 10.                  */
static double one_product(card *c, bool tf32)
{
    struct mlc_k_gemm g;
    memset(&g, 0, sizeof g);
    memset(host_block, 0, sizeof host_block);
    g.dtype = g.a_dtype = g.b_dtype = g.c_dtype = MLC_F32;
    g.m = g.n = g.k = 1;
    g.batch[0] = g.batch[1] = g.batch[2] = 1;
    g.tf32 = tf32;
    g.a = place(A); g.b = place(B); g.c = place(C);
    g.a_row = g.a_col = g.b_row = g.b_col = g.c_row = g.c_col = 1;
    g.alpha = 1;
    test_put(place(A), MLC_F32, 0, 1 + 0x1p-12);
    test_put(place(B), MLC_F32, 0, 1);
    CHECK(c->b.copy(c->dev, c->block, host_block, sizeof host_block, MLC_COPY_TO_DEVICE) == MLC_OK);
    CHECK(run(&c->b.kernels, &c->b, c->dev, moved(g, c->block)) == MLC_OK);
    CHECK(c->b.copy(c->dev, cuda_block, c->block, sizeof host_block, MLC_COPY_TO_HOST) == MLC_OK);
    return test_get(cuda_block + (size_t)C * ROOM, MLC_F32, 0);
}

TEST(cuda, f32_products_round_their_factors_only_where_tf32_is_asked_for)
{
    card c = card_open("0");
    CHECK(one_product(&c, false) == 1 + 0x1p-12);
    /* On a card cuBLASLt has another algorithm for a product as small as this. */
    CHECK(one_product(&c, true) == 1 || test_on_card());
    card_close(&c);
}
