/* test_onnx_nodes.c -- tests of the sections IMPL.ONNX.*: graphs of a few nodes that are made here
 *
 * Numbers that a file may have and an exporter never writes, values that differ from goldens in one
 * respect, and forms of a file that only some writers use. Expected values are ONNX Runtime's.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"
#include "mlc_test.h"
#include "onnx_file.h"

static pb file, graph, attrs;          /* of the running test                                   */

#define LIST(...) (const int64_t[]){__VA_ARGS__}
#define OF(...)   (const float[]){__VA_ARGS__}

/* Begins a graph with an input x of any shape and a type of ONNX. */
static void begin_of(int type)
{
    graph.n = attrs.n = 0;
    onnx_value(&graph, 11, "x", type, -1, NULL);
}
static void begin(void) { begin_of(1); }

/* Initializers: integers and floats of a shape. */
static void ints(const char *name, int ndim, const int64_t *shape, int n, const int64_t *v)
{
    onnx_raw(&graph, name, 7, ndim, shape, v, (size_t)n * sizeof *v);
}
static void list(const char *name, int n, const int64_t *v) { ints(name, 1, LIST(n), n, v); }
static void floats(const char *name, int ndim, const int64_t *shape, int n, const float *v)
{
    onnx_floats(&graph, name, ndim, shape, n, v);
}

/* A node with the attributes that wait in attrs. */
static void node(const char *type, const char *in, const char *out)
{
    onnx_node_of(&graph, "", type, type, in, out, &attrs);
    attrs.n = 0;
}

/* The module of the graph with an output y; NULL with an error. */
static mlc_module *load(mlc_ctx *ctx, int opset)
{
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    onnx_model(&file, &graph, opset);
    return mlc_onnx_load_memory(ctx, file.data, file.n, NULL);
}

/* y of x; NULL with an error. */
static mlc_tensor *run(mlc_ctx *ctx, int opset, mlc_tensor *x)
{
    mlc_module *m = load(ctx, opset);
    mlc_tensor *y = m ? mlc_forward(m, x) : NULL;
    if (!y) printf("  %s\n", mlc_error(ctx));
    return y;
}

/* The graph is refused, when it is loaded or when it runs, with this error. */
static void refused(mlc_ctx *ctx, mlc_tensor *x, mlc_status status, const char *text)
{
    mlc_module *m = load(ctx, 17);
    if (m) CHECK(mlc_forward(m, x) == NULL);
    CHECK_ERROR(ctx, status, text);
}

/* x of floats 0, 1, 2, .. */
static mlc_tensor *counted(mlc_ctx *ctx, mlc_dims shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape.n; d++) n *= shape.v[d];
    return mlc_reshape(mlc_arange(ctx, MLC_F32, 0.0, (double)n, 1.0), shape);
}

/* ---- memory and time ------------------------------------------------------------------------- */

TEST(onnx_nodes, sizes_below_0_are_refused)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(1));
    const int64_t sizes[] = {-11, -1, INT64_MIN};
    for (int i = 0; i < 3; i++) {
        begin();
        list("c", 1, LIST(7));
        list("s", 1, &sizes[i]);
        node("Expand", "c s", "y");
        refused(ctx, x, MLC_ERR_SHAPE, "a size below 0");
        begin();
        list("s", 1, &sizes[i]);
        node("ConstantOfShape", "s", "y");
        refused(ctx, x, MLC_ERR_SHAPE, "a size below 0");
        begin();
        list("s", 1, &sizes[i]);
        node("Tile", "x s", "y");
        refused(ctx, x, MLC_ERR_SHAPE, "a size below 0");
    }
}

TEST(onnx_nodes, an_order_that_names_an_axis_twice_is_refused_on_the_host)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    ints("c", 2, LIST(2, 2), 4, LIST(1, 2, 3, 4));
    onnx_ints_attr(&attrs, "perm", 2, LIST(0, 0));
    node("Transpose", "c", "y");
    refused(ctx, mlc_ones(ctx, MLC_F32, mlc_dims1(1)), MLC_ERR_SHAPE, "name each once");
}

TEST(onnx_nodes, empty_tensors_of_large_sizes_take_no_time)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims1(1));
    begin();
    ints("c", 3, LIST(1ll << 40, 1, 0), 0, NULL);
    list("i", 1, LIST(0));
    onnx_int_attr(&attrs, "axis", 1);
    node("Gather", "c i", "y");
    CHECK_STR(mlc_shape_of(run(ctx, 17, x)), "[1099511627776,1,0]");
    begin();
    ints("c", 3, LIST(1ll << 40, 1, 0), 0, NULL);
    onnx_int_attr(&attrs, "axis", 1);
    node("Concat", "c c", "y");
    CHECK_STR(mlc_shape_of(run(ctx, 17, x)), "[1099511627776,2,0]");
    CHECK_OK(ctx);
}

TEST(onnx_nodes, a_sum_of_sizes_that_overflows_is_refused)
{
    mlc_ctx *ctx = test_ctx();
    char     in[2 * 40 + 1] = "";
    for (int i = 0; i < 40; i++) strcat(in, i ? " c" : "c");
    begin();
    ints("c", 2, LIST(1ll << 58, 0), 0, NULL);
    onnx_int_attr(&attrs, "axis", 0);
    node("Concat", in, "y");
    refused(ctx, mlc_ones(ctx, MLC_F32, mlc_dims1(1)), MLC_ERR_SHAPE, "than memory can hold");
}

TEST(onnx_nodes, external_data_are_compared_with_their_file_before_memory_is_taken)
{
    static pb    t, entry;
    mlc_ctx_desc limit = test_desc();
    mlc_memory   before, after;
    limit.hard_limit = 16 << 20;
    mlc_ctx  *ctx = test_own(mlc_ctx_create(&limit));
    const box b = box_open("net.onnx");
    begin();
    t.n = entry.n = 0;
    pb_int(&t, 1, 1ll << 28);
    pb_int(&t, 2, 1);
    pb_text(&t, 8, "w");
    pb_text(&entry, 1, "location");
    pb_text(&entry, 2, "net.onnx");
    pb_in(&t, 13, &entry);
    pb_int(&t, 14, 1);
    pb_in(&graph, 5, &t);
    node("Add", "x w", "y");
    CHECK(load(ctx, 17) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "external data, and no folder of it");
    FILE *f = fopen(b.path, "wb");
    fwrite(file.data, 1, file.n, f);
    fclose(f);
    mlc_memory_info(ctx, &before);
    CHECK(mlc_onnx_load(ctx, b.path, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "where the tensor has 1073741824");
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    box_close(&b);
}

TEST(onnx_nodes, values_are_freed_after_their_last_reader_also_if_they_share_memory)
{
    mlc_ctx_desc limit = test_desc();
    static char  name[3][16];
    limit.hard_limit = 16 << 20;
    mlc_ctx *ctx = test_own(mlc_ctx_create(&limit));
    begin();
    list("s", 2, LIST(-1, 1 << 10));
    list("t", 1, LIST(-1));
    const char *last = "x";
    for (int i = 0; i < 40; i++) {     /* each round makes 1 MB, under three names */
        char in[20];
        for (int k = 0; k < 3; k++) snprintf(name[k], sizeof name[k], "v%d_%d", i, k);
        node("Neg", last, name[0]);
        node("Identity", name[0], name[1]);
        snprintf(in, sizeof in, "%s %s", name[1], i % 2 ? "s" : "t");
        node("Reshape", in, name[2]);
        last = name[2];
    }
    node("Neg", last, "a");
    node("Reshape", "a s", "b");
    node("Transpose", "b", "c");
    node("Neg", "b", "d");             /* a and b end here, c goes on */
    node("Exp", "d", "e");
    node("MatMul", "e c", "y");
    mlc_tensor *x = mlc_full(ctx, MLC_F32, mlc_dims1(1 << 18), 2.0);
    mlc_tensor *y = run(ctx, 17, x);
    if (!CHECK(y != NULL)) return;
    CHECK_STR(mlc_shape_of(y), "[256,256]");
    CHECK_NEAR(mlc_item_at(y, mlc_dims2(255, 3)), -2048.0 * exp(2.0), 1.0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, integers_of_64_bits_are_not_rounded)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims2(2, 2));
    const int64_t far_off[] = {INT64_MAX, (1ll << 53) + 1, INT64_MIN};
    for (int i = 0; i < 3; i++)
        for (int upper = 0; upper < 2; upper++) {
            begin();
            ints("k", 0, NULL, 1, &far_off[i]);
            onnx_int_attr(&attrs, "upper", upper);
            node("Trilu", "x k", "y");
            const bool   all = (upper == 0) == (far_off[i] > 0);
            const double want[4] = {0, all ? 1 : 0, all ? 2 : 0, all ? 3 : 0};
            CHECK_VALUES(run(ctx, 17, x), 4, want, 0, 0);
        }
    CHECK_OK(ctx);
    begin();
    floats("k", 0, NULL, 1, OF(0.5f));
    node("Trilu", "x k", "y");
    refused(ctx, x, MLC_ERR_SHAPE, "it is one integer");
    begin();
    list("k", 1, LIST(INT64_MIN));
    node("TopK", "x k", "y i");
    refused(ctx, x, MLC_ERR_ARG, "must not be negative");
}

TEST(onnx_nodes, results_that_no_memory_holds_are_refused_before_they_are_made)
{
    mlc_ctx_desc limit = test_desc();
    limit.hard_limit = 16 << 20;
    mlc_ctx    *ctx = test_own(mlc_ctx_create(&limit));
    mlc_tensor *x = mlc_ones(ctx, MLC_F32, mlc_dims4(1, 1, 8, 8));
    begin();
    floats("s", 1, LIST(4), 4, OF(5e8f, 5e8f, 1e7f, 1e7f));
    node("Resize", "x - s", "y");
    refused(ctx, x, MLC_ERR_NOMEM, "a result of [");
    begin();
    floats("s", 1, LIST(4), 4, OF(1, 1, 1, 1e8f));
    onnx_text_attr(&attrs, "mode", "cubic");
    node("Resize", "x - s", "y");
    refused(ctx, x, MLC_ERR_NOMEM, "");
}

TEST(onnx_nodes, products_of_the_sizes_of_empty_tensors_do_not_overflow)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    onnx_int_attr(&attrs, "blocksize", 1 << 15);
    node("SpaceToDepth", "x", "y");
    refused(ctx, mlc_zeros(ctx, MLC_F32, mlc_dims4(0, 1ll << 50, 1 << 15, 1 << 15)),
            MLC_ERR_SHAPE, "in blocks of");
    const char *const types[] = {"Conv", "ConvTranspose"};
    for (int i = 0; i < 2; i++) {
        begin();
        floats("w", 3, LIST(0, 1, 1ll << 50), 0, NULL);
        onnx_text_attr(&attrs, "auto_pad", "SAME_UPPER");
        onnx_ints_attr(&attrs, "dilations", 1, LIST(1 << 30));
        node(types[i], "x w", "y");
        refused(ctx, mlc_ones(ctx, MLC_F32, mlc_dims3(1, 1, 4)), MLC_ERR_ARG, "from 1 to 2^30");
    }
}

TEST(onnx_nodes, a_slice_takes_any_step_but_0)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims1(5));
    begin();
    list("from", 1, LIST(-1));
    list("to", 1, LIST(INT64_MIN));
    list("axes", 1, LIST(0));
    list("by", 1, LIST(INT64_MIN));
    node("Slice", "x from to axes by", "y");
    CHECK_VALUES(run(ctx, 17, x), 1, ((double[]){4}), 0, 0);
    begin();
    list("from", 1, LIST(-1));
    list("to", 1, LIST(INT64_MIN));
    list("axes", 1, LIST(0));
    list("by", 1, LIST(-1));
    node("Slice", "x from to axes by", "y");
    CHECK_VALUES(run(ctx, 17, x), 5, ((double[]){4, 3, 2, 1, 0}), 0, 0);
    CHECK_OK(ctx);
}
