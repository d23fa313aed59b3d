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
    mlc_tensor *y = m ? mlc_forward(m, x) : NULL;
    if (y) mlc_item(mlc_sum_all(y));                       /* errors of kernels may come late */
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

TEST(onnx_nodes, external_data_are_read_without_a_copy)
{
    static pb    t, entry;
    mlc_ctx_desc limit = test_desc();
    mlc_memory   m;
    mlc_ctx     *ctx = test_own(mlc_ctx_create(&limit));
    const box    b = box_open("net.onnx");
    char         path[400];
    const int    n = 1 << 20;
    begin();
    t.n = entry.n = 0;
    pb_int(&t, 1, n);
    pb_int(&t, 2, 1);
    pb_text(&t, 8, "w");
    pb_text(&entry, 1, "location");
    pb_text(&entry, 2, "w.bin");
    pb_in(&t, 13, &entry);
    pb_int(&t, 14, 1);
    pb_in(&graph, 5, &t);
    node("Add", "x w", "y");
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    onnx_model(&file, &graph, 17);
    snprintf(path, sizeof path, "%s/w.bin", b.dir);
    FILE *f = fopen(path, "wb"), *g = fopen(b.path, "wb");
    for (int i = 0; i < n; i++) fwrite(&(float){(float)i}, 4, 1, f);
    fwrite(file.data, 1, file.n, g);
    fclose(f);
    fclose(g);
    mlc_memory_peak_reset(ctx);
    mlc_module *net = mlc_onnx_load(ctx, b.path, NULL);
    mlc_memory_info(ctx, &m);
    if (test_on_host()) CHECK(m.peak < 6ll * n);            /* 4 bytes a number, once           */
    CHECK_NEAR(mlc_item_at(mlc_module_param(net, "w"), mlc_dims1(n - 1)), n - 1, 0);
    CHECK_OK(ctx);
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
    char last[16] = "x";
    for (int i = 0; i < 40; i++) {     /* each round makes 1 MB, under three names */
        char in[20];
        for (int k = 0; k < 3; k++) snprintf(name[k], sizeof name[k], "v%d_%d", i, k);
        node("Neg", last, name[0]);
        node("Identity", name[0], name[1]);
        snprintf(in, sizeof in, "%s %s", name[1], i % 2 ? "s" : "t");
        node("Reshape", in, name[2]);
        memcpy(last, name[2], sizeof last);
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
    refused(ctx, mlc_zeros(ctx, MLC_F32, mlc_dims4(1, 1ll << 50, 0, 0)), MLC_ERR_SHAPE,
            "in blocks of");
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

/* ---- values that are ONNX Runtime's ---------------------------------------------------------- */

TEST(onnx_nodes, no_window_of_a_pool_begins_in_the_padding_at_the_end)
{
    static const struct { const char *type; int64_t kernel, stride, after; int n; double y[3]; }
    cases[] = {{"MaxPool", 3, 2, 2, 3, {2, 4, 5}}, {"MaxPool", 2, 3, 1, 2, {1, 4, 0}},
               {"AveragePool", 3, 2, 2, 3, {1, 3, 4.5}},
               {"AveragePool", 2, 3, 1, 2, {0.5, 3.5, 0}}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        begin();
        onnx_ints_attr(&attrs, "kernel_shape", 1, &cases[i].kernel);
        onnx_ints_attr(&attrs, "strides", 1, &cases[i].stride);
        onnx_ints_attr(&attrs, "pads", 2, LIST(0, cases[i].after));
        onnx_int_attr(&attrs, "ceil_mode", 1);
        node(cases[i].type, "x", "y");
        CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims3(1, 1, 6))), cases[i].n, cases[i].y, 1e-6,
                     0);
    }
    CHECK_OK(ctx);
}

TEST(onnx_nodes, the_nearest_pixel_goes_by_the_scale)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    floats("s", 1, LIST(4), 4, OF(1, 1, 1, 2.2f));
    onnx_text_attr(&attrs, "coordinate_transformation_mode", "asymmetric");
    onnx_text_attr(&attrs, "nearest_mode", "floor");
    node("Resize", "x - s", "y");
    CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims4(1, 1, 2, 4))), 16,
                 ((double[]){0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 4, 5, 5, 6, 6, 7}), 0, 0);
    begin();
    floats("s", 1, LIST(3), 3, OF(1, 1, 0.6f));
    node("Resize", "x s", "y");
    CHECK_VALUES(run(ctx, 10, counted(ctx, mlc_dims3(1, 1, 5))), 3, ((double[]){0, 2, 4}), 0, 0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, reductions_of_shapes_go_by_their_axes)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims3(1, 2, 4));
    begin();
    node("Shape", "x", "s");
    onnx_int_attr(&attrs, "noop_with_empty_axes", 1);
    node("ReduceSum", "s", "y");
    CHECK_VALUES(run(ctx, 17, x), 3, ((double[]){1, 2, 4}), 0, 0);
    begin();
    list("a", 1, LIST(-1));
    node("Shape", "x", "s");
    onnx_int_attr(&attrs, "noop_with_empty_axes", 1);
    node("ReduceSum", "s a", "y");
    CHECK_VALUES(run(ctx, 17, x), 1, ((double[]){7}), 0, 0);
    begin();
    node("Shape", "x", "s");
    onnx_ints_attr(&attrs, "axes", 1, LIST(0));
    node("ReduceProd", "s", "y");
    CHECK_VALUES(run(ctx, 17, x), 1, ((double[]){8}), 0, 0);
    CHECK_OK(ctx);
    begin();
    list("a", 1, LIST(3));
    node("Shape", "x", "s");
    node("ReduceSum", "s a", "y");
    refused(ctx, x, MLC_ERR_SHAPE, "axis 3; there are 1");
}

TEST(onnx_nodes, numbers_of_many_axes_add_axes_to_joined_parts_too)
{
    mlc_ctx       *ctx = test_ctx();
    const int64_t *one = LIST(1, 1, 1);
    begin();
    floats("k", 3, one, 1, OF(1.41421356f));
    floats("one", 0, NULL, 1, OF(1));
    floats("half", 3, one, 1, OF(0.5f));
    node("Div", "x k", "a");
    node("Erf", "a", "b");
    node("Add", "b one", "c");
    node("Mul", "x c", "d");
    node("Mul", "d half", "y");
    mlc_tensor *y = run(ctx, 17, counted(ctx, mlc_dims2(2, 4)));
    CHECK_STR(mlc_shape_of(y), "[1,2,4]");
    CHECK_NEAR(mlc_item_at(y, mlc_dims3(0, 0, 1)), 0.8413447, 1e-6);
    CHECK_OK(ctx);
}

/* Integers of 4 bits with scales and zeros of blocks, as raw bytes and as typed numbers. */
TEST(onnx_nodes, integers_of_4_bits_become_floats_by_blocks)
{
    mlc_ctx             *ctx = test_ctx();
    static const uint8_t bytes[4] = {0x21, 0xF8, 0x07, 0x9C}, zeros[2] = {0x21, 0x03};
    static const double  is[8] = {0, 0.5, -20, -6, 2, -1.5, -16, -28};
    for (int raw = 0; raw < 2; raw++) {
        begin();
        pb t = {{0}, 0};
        for (int d = 0; d < 2; d++) pb_int(&t, 1, d ? 4 : 2);
        pb_int(&t, 2, 22);
        pb_text(&t, 8, "q");
        for (int i = 0; i < 4 && !raw; i++) pb_int(&t, 5, bytes[i]);
        if (raw) pb_bytes(&t, 9, bytes, 4);
        pb_in(&graph, 5, &t);
        onnx_raw(&graph, "z", 22, 2, LIST(2, 2), zeros, 2);
        floats("s", 2, LIST(2, 2), 4, OF(0.5f, 2, 0.5f, 4));
        onnx_int_attr(&attrs, "axis", 1);
        onnx_int_attr(&attrs, "block_size", 2);
        node("DequantizeLinear", "q s z", "v");
        node("Mul", "v x", "y");
        CHECK_VALUES(run(ctx, 21, mlc_ones(ctx, MLC_F32, mlc_dims1(1))), 8, is, 0, 0);
    }
    begin();
    onnx_raw(&graph, "q", 22, 1, LIST(5), bytes, 3);
    floats("s", 1, LIST(2), 2, OF(1, 2));
    onnx_int_attr(&attrs, "axis", 0);
    onnx_int_attr(&attrs, "block_size", 2);
    node("DequantizeLinear", "q s", "v");
    node("Mul", "v x", "y");
    refused(ctx, mlc_ones(ctx, MLC_F32, mlc_dims1(1)), MLC_ERR_SHAPE, "blocks of 2 of [5]");
    begin();
    onnx_raw(&graph, "q", 22, 1, LIST(5), bytes, 4);
    node("Add", "q x", "y");
    refused(ctx, mlc_ones(ctx, MLC_F32, mlc_dims1(1)), MLC_ERR_IO, "more or less data");
}

/* Windows of 4 of a signal of 10, 3 apart, against sums of cosines and sines. */
TEST(onnx_nodes, stft_is_the_spectrum_of_windows)
{
    mlc_ctx     *ctx = test_ctx();
    mlc_tensor  *x = counted(ctx, mlc_dims3(1, 10, 1));
    static const float window[4] = {0.5f, 1, 0.75f, 0.25f};
    for (int bins = 3; bins <= 4; bins++) {
        double want[3 * 4 * 2];
        int    n = 0;
        for (int f = 0; f < 3; f++)
            for (int k = 0; k < bins; k++, n += 2) {
                want[n] = want[n + 1] = 0;
                for (int t = 0; t < 4; t++) {
                    const double v = mlc_item_at(x, mlc_dims3(0, 3 * f + t, 0)) *
                                     (double)window[t];
                    want[n] += v * cos(1.5707963267948966 * k * t);
                    want[n + 1] -= v * sin(1.5707963267948966 * k * t);
                }
            }
        begin();
        list("step", 1, LIST(3));
        floats("w", 1, LIST(4), 4, window);
        onnx_int_attr(&attrs, "onesided", bins == 3);
        node("STFT", "x step w", "y");
        mlc_tensor *y = run(ctx, 17, x);
        CHECK_STR(mlc_shape_of(y), bins == 3 ? "[1,3,3,2]" : "[1,3,4,2]");
        CHECK_VALUES(y, n, want, 1e-5, 1e-5);
    }
    begin();
    list("step", 1, LIST(0));
    floats("w", 1, LIST(4), 4, window);
    node("STFT", "x step w", "y");
    refused(ctx, x, MLC_ERR_SHAPE, "windows of 4, 0 apart, of a signal [1,10]");
}

/* onnxruntime's QGemm with a scale of y, but no zero. */
TEST(onnx_nodes, qgemm_without_a_zero_of_y_is_refused)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    floats("s", 1, LIST(1), 1, OF(1));
    onnx_raw(&graph, "z", 2, 1, LIST(1), (const uint8_t[]){0}, 1);
    node("QuantizeLinear", "x s", "q");
    onnx_node_of(&graph, "com.microsoft", "QGemm", "n", "q s z q s z - s", "y", &attrs);
    refused(ctx, counted(ctx, mlc_dims2(3, 3)), MLC_ERR_IO, "input 9 is missing");
}

/* ---- what says more, or less, than mlcore can follow ----------------------------------------- */

TEST(onnx_nodes, attributes_that_are_not_what_they_should_be_are_refused)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims3(1, 1, 6));
    static pb   t, value;
    begin();
    onnx_float_attr(&attrs, "axis", 1);
    node("Softmax", "x", "y");
    refused(ctx, x, MLC_ERR_IO, "attribute axis is of type FLOAT, not INT");
    begin();
    onnx_int_attr(&attrs, "kernel_shape", 2);
    node("MaxPool", "x", "y");
    refused(ctx, x, MLC_ERR_IO, "attribute kernel_shape is of type INT, not INTS");
    begin();
    onnx_ints_attr(&attrs, "kernel_shape", 1, LIST(2));
    onnx_text_attr(&attrs, "auto_pad", "SAME");
    node("MaxPool", "x", "y");
    refused(ctx, x, MLC_ERR_UNSUPPORTED, "auto_pad 'SAME'; mlcore has NOTSET VALID");
    begin();
    onnx_ints_attr(&attrs, "kernel_shape", 1, LIST(2));
    onnx_ints_attr(&attrs, "pads", 4, LIST(1, 1, 1, 1));
    node("MaxPool", "x", "y");
    refused(ctx, x, MLC_ERR_ARG, "pads has 4 numbers for 2 axes");
    begin();
    floats("s", 1, LIST(3), 3, OF(1, 1, 2));
    onnx_text_attr(&attrs, "mode", "bilinear");
    node("Resize", "x - s", "y");
    refused(ctx, x, MLC_ERR_UNSUPPORTED, "mode 'bilinear'");
    begin();
    t.n = value.n = 0;
    pb_int(&t, 1, 2);
    pb_int(&t, 2, 7);
    pb_int(&t, 7, 1);
    pb_int(&t, 7, 2);
    pb_text(&value, 1, "value");
    pb_in(&value, 5, &t);
    pb_int(&value, 20, 4);
    pb_in(&attrs, 5, &value);
    list("s", 1, LIST(3));
    node("ConstantOfShape", "s", "y");
    refused(ctx, x, MLC_ERR_SHAPE, "a value of 2 numbers");
}

TEST(onnx_nodes, lists_that_do_not_fit_are_refused)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims2(4, 3));
    begin();
    list("s", 1, LIST(3));
    node("Split", "x s", "y z");
    refused(ctx, x, MLC_ERR_SHAPE, "1 sizes for 2 outputs");
    begin();
    onnx_int_attr(&attrs, "axis", 1);
    node("Split", "x", "y z");
    refused(ctx, x, MLC_ERR_SHAPE, "an axis of 3 has no 2 equal parts");
    begin();
    list("s", 2, LIST(-1, -1));
    node("Reshape", "x s", "y");
    refused(ctx, x, MLC_ERR_SHAPE, "two sizes are -1");
    begin();
    onnx_int_attr(&attrs, "axis", 1ll << 32);
    node("Concat", "x x", "y");
    refused(ctx, x, MLC_ERR_SHAPE, "axis 4294967296");
    begin();
    floats("w", 3, LIST(1, 1, 2), 2, OF(1, 1));
    onnx_ints_attr(&attrs, "output_shape", 1, LIST(12));
    node("ConvTranspose", "x w", "y");
    refused(ctx, counted(ctx, mlc_dims3(1, 1, 6)), MLC_ERR_SHAPE, "output_shape");
}

TEST(onnx_nodes, an_index_beyond_its_axis_is_refused_also_where_its_row_is_there)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims2(4, 3));
    const int64_t wrong[3][2] = {{0, 5}, {1, -4}, {4, 0}};
    for (int i = 0; i < 3; i++) {
        begin();
        ints("i", 2, LIST(1, 2), 2, wrong[i]);
        node("GatherND", "x i", "y");
        refused(ctx, x, MLC_ERR_VALUE, "");
        begin();
        ints("i", 2, LIST(1, 2), 2, wrong[i]);
        floats("u", 1, LIST(1), 1, OF(9));
        node("ScatterND", "x i u", "y");
        refused(ctx, x, MLC_ERR_VALUE, "");
    }
    begin();
    ints("i", 2, LIST(2, 2), 4, LIST(-1, -1, 0, 1));
    node("GatherND", "x i", "y");
    CHECK_VALUES(run(ctx, 17, x), 2, ((double[]){11, 1}), 0, 0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, a_norm_in_training_mode_needs_desc_training)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims2(4, 3));
    for (int made = 0; made < 2; made++) {
        begin();
        floats("one", 1, LIST(3), 3, OF(1, 1, 1));
        floats("none", 1, LIST(3), 3, OF(0, 0, 0));
        onnx_int_attr(&attrs, "training_mode", !made);
        node("BatchNormalization", "x one none none one", made ? "n m v" : "y");
        if (made) node("Shape", "m", "y");
        if (made) refused(ctx, x, MLC_ERR_STATE, "input 1 has no value");
        else refused(ctx, x, MLC_ERR_UNSUPPORTED, "training_mode 1 without desc.training");
    }
    begin();
    floats("one", 1, LIST(3), 3, OF(1, 1, 1));
    floats("none", 1, LIST(3), 3, OF(0, 0, 0));
    node("BatchNormalization", "x one none none one", "y mean var saved_mean saved_var");
    mlc_module *m = load(ctx, 9);      /* outputs say it there */
    if (CHECK(m != NULL)) CHECK(mlc_forward(m, x) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "training_mode 1 without desc.training");
}

TEST(onnx_nodes, zeros_empty_lists_and_numbers_give_what_onnx_runtime_gives)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    node("LpNormalization", "x", "y");
    CHECK_VALUES(run(ctx, 17, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 2))), 2, ((double[]){0, 0}), 0,
                 0);
    begin();
    list("a", 0, NULL);
    node("Squeeze", "x a", "y");
    CHECK_STR(mlc_shape_of(run(ctx, 17, counted(ctx, mlc_dims3(1, 2, 1)))), "[2]");
    begin();
    node("NonZero", "x", "y");
    CHECK_STR(mlc_shape_of(run(ctx, 17, mlc_ones(ctx, MLC_F32, mlc_dims0()))), "[1,1]");
    CHECK_OK(ctx);
}

/* ---- forms that some writers use ------------------------------------------------------------- */

TEST(onnx_nodes, attributes_of_0_may_have_a_kind_alone)
{
    static pb a;
    mlc_ctx  *ctx = test_ctx();
    begin();
    list("i", 1, LIST(1));
    a.n = 0;
    pb_text(&a, 1, "axis");
    pb_int(&a, 20, 2);
    pb_in(&attrs, 5, &a);
    node("Gather", "x i", "y");
    CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims2(2, 2))), 2, ((double[]){2, 3}), 0, 0);
    begin();
    a.n = 0;
    pb_text(&a, 1, "alpha");
    pb_int(&a, 20, 1);
    pb_in(&attrs, 5, &a);
    node("LeakyRelu", "x", "y");
    CHECK_VALUES(run(ctx, 17, mlc_full(ctx, MLC_F32, mlc_dims1(1), -2.0)), 1, ((double[]){0}), 0,
                 0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, numbers_may_be_typed_beside_raw_data_of_no_bytes)
{
    static pb t;
    mlc_ctx  *ctx = test_ctx();
    begin();
    t.n = 0;
    pb_int(&t, 1, 1);
    pb_int(&t, 2, 7);
    pb_int(&t, 7, 3);
    pb_text(&t, 8, "s");
    pb_bytes(&t, 9, "", 0);
    pb_in(&graph, 5, &t);
    node("Expand", "x s", "y");
    CHECK_STR(mlc_shape_of(run(ctx, 17, mlc_ones(ctx, MLC_F32, mlc_dims1(1)))), "[3]");
    CHECK_OK(ctx);
}

TEST(onnx_nodes, errors_of_joined_parts_name_the_operation_that_runs)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    floats("eps", 0, NULL, 1, OF(1e-5f));
    floats("two", 0, NULL, 1, OF(2));
    floats("w", 1, LIST(3), 3, OF(1, 1, 1));
    onnx_ints_attr(&attrs, "axes", 1, LIST(-1));
    node("ReduceMean", "x", "m");
    node("Sub", "x m", "d");
    node("Pow", "d two", "p");
    onnx_ints_attr(&attrs, "axes", 1, LIST(-1));
    node("ReduceMean", "p", "v");
    node("Add", "v eps", "e");
    node("Sqrt", "e", "s");
    node("Div", "d s", "n");
    node("Mul", "n w", "y");
    refused(ctx, counted(ctx, mlc_dims2(2, 4)), MLC_ERR_SHAPE, "node 'Mul' (LayerNormalization)");
}

TEST(onnx_nodes, long_names_that_differ_in_the_middle_stay_apart)
{
    mlc_ctx    *ctx = test_ctx();
    static char name[76][96], out[76][8];
    char        in[120];
    const char *last = "x";
    begin();
    for (int i = 0; i < 76; i++) {
        snprintf(name[i], sizeof name[i], "StatefulPartitioned/layer_%d/attention/query/MatMul/"
                 "ReadVariableOp:0", i);
        if (i < 75) snprintf(out[i], sizeof out[i], "o%d", i);
        else snprintf(out[i], sizeof out[i], "y");
        floats(name[i], 1, LIST(2), 2, OF(1, 2));
        snprintf(in, sizeof in, "%s %s", last, name[i]);
        node("Add", in, out[i]);
        last = out[i];
    }
    CHECK_VALUES(run(ctx, 17, mlc_zeros(ctx, MLC_F32, mlc_dims1(2))), 2, ((double[]){76, 152}), 0,
                 0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, outputs_that_no_node_reads_may_be_named)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    onnx_ints_attr(&attrs, "kernel_shape", 1, LIST(2));
    node("MaxPool", "x", "y places");
    CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims3(1, 1, 3))), 2, ((double[]){1, 2}), 0, 0);
    begin();
    floats("w", 1, LIST(2), 2, OF(1, 1));
    node("LayerNormalization", "x w", "y mean deviation");
    CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims2(1, 2))), 2, ((double[]){-1, 1}), 1e-4, 0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, arithmetic_on_shapes_is_on_the_host_so_that_plans_are_captured)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims3(2, 3, 4));
    begin();
    list("parts", 2, LIST(1, 2));
    list("lo", 1, LIST(1));
    list("hi", 1, LIST(3));
    ints("at", 2, LIST(1, 1), 1, LIST(-1));
    list("four", 1, LIST(12));
    list("one_", 1, LIST(1));
    list("two_", 1, LIST(2));
    ints("first", 2, LIST(1, 1), 1, LIST(0));
    floats("two", 0, NULL, 1, OF(1));
    node("Shape", "x", "s");
    node("Split", "s parts", "a b");               /* 2 | 3 4 */
    node("Clip", "b lo hi", "c");                  /* 3 3 */
    node("ScatterND", "c at four", "d");           /* 3 12 */
    node("GatherND", "d first", "e");              /* 3 */
    node("Sum", "a e lo", "f");                    /* 6 */
    node("Pow", "f two", "g");                     /* 6 */
    list("twice", 1, LIST(2));
    node("Tile", "g twice", "gg");                 /* 6 6 */
    node("Slice", "gg one_ two_", "h");            /* 6 */
    list("rest", 1, LIST(-1));
    onnx_int_attr(&attrs, "axis", 0);
    node("Concat", "h rest", "k");
    node("Reshape", "x k", "y");
    mlc_module *m = load(ctx, 17);
    if (!CHECK(m != NULL)) { printf("  %s\n", mlc_error(ctx)); return; }
    CHECK_STR(mlc_shape_of(mlc_forward(m, x)), "[6,4]");
    CHECK_OK(ctx);
    mlc_plan *plan = test_on_host() ? mlc_plan_capture(m, &x, 1, NULL) : NULL;
    if (test_on_host()) CHECK(plan != NULL);
    mlc_plan_free(plan);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, repeats_on_the_host_are_those_of_tensors)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = counted(ctx, mlc_dims1(1));
    const double want[12] = {1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2};
    begin();
    ints("c", 2, LIST(2, 2), 4, LIST(1, 2, 3, 4));
    list("n", 2, LIST(3, 2));
    node("Tile", "c n", "t");
    list("from", 1, LIST(0));
    list("to", 1, LIST(3));
    node("Slice", "t from to", "y");
    CHECK_VALUES(run(ctx, 17, x), 12, want, 0, 0);
    begin();
    ints("c", 2, LIST(2, 2), 4, LIST(1, 2, 3, 4));
    list("n", 2, LIST(0, 1 << 30));
    node("Tile", "c n", "y");
    CHECK_STR(mlc_shape_of(run(ctx, 17, x)), "[0,2147483648]");
    CHECK_OK(ctx);
}

TEST(onnx_nodes, a_list_of_more_numbers_than_the_host_reads_is_refused)
{
    mlc_ctx *ctx = test_ctx();
    begin_of(7);
    node("ConstantOfShape", "x", "y");
    refused(ctx, mlc_zeros(ctx, MLC_I64, mlc_dims1(5000)), MLC_ERR_SHAPE, "at most 4096 numbers");
}

TEST(onnx_nodes, operations_of_other_domains_and_of_mlcore_itself_are_unknown)
{
    static const struct { const char *domain, *type; bool known; } cases[] = {
        {"", "mlc.GeluTanh", false}, {"com.microsoft", "Softmax", false},
        {"com.microsoft", "Gelu", true}, {"ai.onnx", "Relu", true}, {"my", "Relu", false}};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        begin();
        onnx_node_of(&graph, cases[i].domain, cases[i].type, "n", "x", "y", NULL);
        CHECK_EQ(load(ctx, 17) != NULL, cases[i].known);
        if (!cases[i].known) CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, cases[i].type);
    }
    CHECK_OK(ctx);
}

TEST(onnx_nodes, powers_of_integers_and_indices_beyond_the_depth_are_those_of_onnx_runtime)
{
    mlc_ctx    *ctx = test_ctx();
    mlc_tensor *x = mlc_cast(mlc_sub_scalar(counted(ctx, mlc_dims1(4)), 1.0), MLC_I64);
    begin_of(7);
    floats("e", 0, NULL, 1, OF(2));
    node("Pow", "x e", "y");
    CHECK_VALUES(run(ctx, 17, x), 4, ((double[]){1, 0, 1, 4}), 0, 0);
    begin_of(7);
    floats("e", 1, LIST(4), 4, OF(3, 1, 0.5f, 3));
    node("Pow", "x e", "y");
    CHECK_VALUES(run(ctx, 17, x), 4, ((double[]){-1, 0, 1, 8}), 0, 0);
    begin_of(7);
    list("depth", 1, LIST(2));
    floats("v", 1, LIST(2), 2, OF(5, 7));
    node("OneHot", "x depth v", "y");
    CHECK_VALUES(run(ctx, 17, x), 8, ((double[]){5, 7, 7, 5, 5, 7, 5, 5}), 0, 0);
    CHECK_OK(ctx);
}

TEST(onnx_nodes, a_border_below_0_is_cut_before_the_others_are_added)
{
    mlc_ctx *ctx = test_ctx();
    begin();
    list("p", 2, LIST(-1, 2));
    onnx_text_attr(&attrs, "mode", "edge");
    node("Pad", "x p", "y");
    CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims1(4))), 5, ((double[]){1, 2, 3, 3, 3}), 0, 0);
    CHECK_OK(ctx);
}

/* A branch of one node that makes t of x, as an attribute. */
static void branch(const char *name, const char *type)
{
    static pb g, a;
    g.n = a.n = 0;
    onnx_node(&g, type, type, "x", "t");
    onnx_value(&g, 12, "t", 1, -1, NULL);
    pb_text(&a, 1, name);
    pb_in(&a, 6, &g);
    pb_int(&a, 20, 5);
    pb_in(&attrs, 5, &a);
}

TEST(onnx_nodes, branches_that_are_never_taken_may_have_any_operation)
{
    mlc_ctx *ctx = test_ctx();
    for (int which = 0; which < 3; which++) {
        begin();
        onnx_raw(&graph, "holds", 9, 0, NULL, which == 1 ? "\1" : "\0", 1);
        branch("then_branch", which == 1 ? "Neg" : "Nothing");
        branch("else_branch", which == 0 ? "Neg" : "Nothing");
        node("If", "holds", which == 2 ? "unread" : "y");
        if (which == 2) node("Neg", "x", "y");
        CHECK_VALUES(run(ctx, 17, counted(ctx, mlc_dims1(2))), 2, ((double[]){0, -1}), 0, 0);
    }
    CHECK_OK(ctx);
    begin();
    onnx_raw(&graph, "holds", 9, 0, NULL, "\1", 1);
    branch("then_branch", "Nothing");
    branch("else_branch", "Neg");
    node("If", "holds", "y");
    refused(ctx, counted(ctx, mlc_dims1(2)), MLC_ERR_UNSUPPORTED, "Nothing");
}

TEST(onnx_nodes, each_unknown_operation_is_named_however_many_nodes_it_has)
{
    mlc_ctx *ctx = test_ctx();
    char     in[8], out[8];
    begin();
    for (int i = 0; i < 60; i++) {
        if (i) snprintf(in, sizeof in, "v%d", i - 1);
        else snprintf(in, sizeof in, "x");
        snprintf(out, sizeof out, "v%d", i);
        node("SomethingWithALongName", in, out);
    }
    node("Other", "v59", "y");
    refused(ctx, counted(ctx, mlc_dims1(2)), MLC_ERR_UNSUPPORTED, "61 nodes of operations that "
            "mlcore has not, or not in opset 17: SomethingWithALongName (60, first "
            "'SomethingWithALongName'), Other 'Other'");
}
