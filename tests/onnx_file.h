/* onnx_file.h -- writes small files of ONNX: protobuf by hand, so that it may be wrong
 *
 *     pb g = {{0}, 0};
 *     onnx_floats(&g, "w", 2, (const int64_t[]){3, 4}, 12, values);
 *     onnx_node(&g, "MatMul", "n", "x w", "y");
 *     onnx_value(&g, 11, "x", 1, 2, (const int64_t[]){-1, 3});
 *     onnx_value(&g, 12, "y", 1, -1, NULL);
 *     onnx_model(&file, &g, 17);
 */
#ifndef ONNX_FILE_H
#define ONNX_FILE_H

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#  define ONNX_FN static __attribute__((unused))
#else
#  define ONNX_FN static
#endif

typedef struct pb { uint8_t data[1 << 14]; size_t n; } pb;

/* pb_varint: a number, 7 bits a byte.                                                         */
ONNX_FN void pb_varint(pb *b, uint64_t v)
{
    for (; v > 127; v >>= 7) b->data[b->n++] = (uint8_t)(v | 128);
    b->data[b->n++] = (uint8_t)v;
}

/* pb_int: a field of a number.                                                                */
ONNX_FN void pb_int(pb *b, int number, int64_t v)
{
    pb_varint(b, (uint64_t)number << 3);
    pb_varint(b, (uint64_t)v);
}

/* pb_float: a field of a float.                                                               */
ONNX_FN void pb_float(pb *b, int number, float v)
{
    pb_varint(b, (uint64_t)number << 3 | 5);
    memcpy(b->data + b->n, &v, 4);
    b->n += 4;
}

/* pb_bytes: a field of n bytes.                                                               */
ONNX_FN void pb_bytes(pb *b, int number, const void *bytes, size_t n)
{
    pb_varint(b, (uint64_t)number << 3 | 2);
    pb_varint(b, n);
    if (n) memcpy(b->data + b->n, bytes, n);
    b->n += n;
}

/* pb_text: a field of text.                                                                   */
ONNX_FN void pb_text(pb *b, int number, const char *text)
{
    pb_bytes(b, number, text, strlen(text));
}

/* pb_in: a field of a message.                                                                */
ONNX_FN void pb_in(pb *b, int number, const pb *in) { pb_bytes(b, number, in->data, in->n); }

/* onnx_raw: an initializer of a type of ONNX with its bytes; field 5 of a graph.              */
ONNX_FN void onnx_raw(pb *graph, const char *name, int type, int ndim, const int64_t *shape,
                      const void *data, size_t bytes)
{
    static pb t;
    t.n = 0;
    for (int d = 0; d < ndim; d++) pb_int(&t, 1, shape[d]);
    pb_int(&t, 2, type);
    pb_text(&t, 8, name);
    pb_bytes(&t, 9, data, bytes);
    pb_in(graph, 5, &t);
}

/* onnx_floats: an initializer of n floats.                                                    */
ONNX_FN void onnx_floats(pb *graph, const char *name, int ndim, const int64_t *shape, int64_t n,
                         const float *v)
{
    onnx_raw(graph, name, 1, ndim, shape, v, (size_t)n * sizeof *v);
}

/* onnx_names: a field of each of the names in a list with blanks; "-" is one that is left out. */
ONNX_FN void onnx_names(pb *b, int number, const char *names)
{
    while (*names) {
        const size_t n = strcspn(names, " ");
        pb_bytes(b, number, names, n == 1 && *names == '-' ? 0 : n);
        names += n + (names[n] == ' ');
    }
}

/* onnx_node_of: a node of a domain with attributes, field 1 of a graph; attrs NULL: none.     */
ONNX_FN void onnx_node_of(pb *graph, const char *domain, const char *type, const char *name,
                          const char *in, const char *out, const pb *attrs)
{
    static pb n;
    n.n = 0;
    onnx_names(&n, 1, in);
    onnx_names(&n, 2, out);
    pb_text(&n, 3, name);
    pb_text(&n, 4, type);
    if (*domain) pb_text(&n, 7, domain);
    if (attrs) memcpy(n.data + n.n, attrs->data, attrs->n);
    if (attrs) n.n += attrs->n;
    pb_in(graph, 1, &n);
}
ONNX_FN void onnx_node(pb *graph, const char *type, const char *name, const char *in,
                       const char *out)
{
    onnx_node_of(graph, "", type, name, in, out, NULL);
}

/* onnx_int_attr: appends an attribute of an integer to a list for onnx_node_of.               */
ONNX_FN void onnx_int_attr(pb *attrs, const char *name, int64_t v)
{
    static pb a;
    a.n = 0;
    pb_text(&a, 1, name);
    pb_int(&a, 3, v);
    pb_int(&a, 20, 2);
    pb_in(attrs, 5, &a);
}

/* onnx_float_attr, onnx_text_attr: the same of a float, and of text.                          */
ONNX_FN void onnx_float_attr(pb *attrs, const char *name, float v)
{
    static pb a;
    a.n = 0;
    pb_text(&a, 1, name);
    pb_float(&a, 2, v);
    pb_int(&a, 20, 1);
    pb_in(attrs, 5, &a);
}
ONNX_FN void onnx_text_attr(pb *attrs, const char *name, const char *text)
{
    static pb a;
    a.n = 0;
    pb_text(&a, 1, name);
    pb_text(&a, 4, text);
    pb_int(&a, 20, 3);
    pb_in(attrs, 5, &a);
}

/* onnx_ints_attr: the same of n integers.                                                     */
ONNX_FN void onnx_ints_attr(pb *attrs, const char *name, int n, const int64_t *v)
{
    static pb a;
    a.n = 0;
    pb_text(&a, 1, name);
    for (int i = 0; i < n; i++) pb_int(&a, 8, v[i]);
    pb_int(&a, 20, 7);
    pb_in(attrs, 5, &a);
}

/* onnx_value: an input (field 11) or output (12) of a type and a shape, in which -1 is a symbol;
 * ndim -1: no shape.                                                                          */
ONNX_FN void onnx_value(pb *graph, int field, const char *name, int type, int ndim,
                        const int64_t *shape)
{
    static pb dim, dims, tensor, of, value;
    dims.n = tensor.n = of.n = value.n = 0;
    for (int d = 0; d < ndim; d++) {
        dim.n = 0;
        if (shape[d] >= 0) pb_int(&dim, 1, shape[d]);
        else pb_text(&dim, 2, "any");
        pb_in(&dims, 1, &dim);
    }
    pb_int(&tensor, 1, type);
    if (ndim >= 0) pb_in(&tensor, 2, &dims);
    pb_in(&of, 1, &tensor);
    pb_text(&value, 1, name);
    pb_in(&value, 2, &of);
    pb_in(graph, field, &value);
}

/* onnx_model: a file of a graph.                                                              */
ONNX_FN void onnx_model(pb *file, const pb *graph, int opset)
{
    static pb set;
    file->n = set.n = 0;
    pb_int(file, 1, 8);
    pb_text(file, 2, "onnx_file.h");
    pb_in(file, 7, graph);
    pb_int(&set, 2, opset);
    pb_in(file, 8, &set);
}

/* onnx_small: a file of a product [any,4] by [4,3] and a bias, "body.w" and "body.b", and of
 * arithmetic on shapes.                                                                       */
ONNX_FN void onnx_small(pb *file)
{
    static pb graph;
    static const float w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, b[3] = {1, 2, 3};
    static const int64_t minus[1] = {-1}, axis[1] = {0}, of_w[2] = {4, 3}, of_b[1] = {3};
    static const int64_t one[1] = {1}, of_x[2] = {-1, 4};
    pb attrs = {{0}, 0};
    graph.n = 0;
    onnx_floats(&graph, "body.w", 2, of_w, 12, w);
    onnx_floats(&graph, "body.b", 1, of_b, 3, b);
    onnx_raw(&graph, "minus", 7, 1, one, minus, sizeof minus);
    onnx_raw(&graph, "zero", 7, 1, one, axis, sizeof axis);
    onnx_node(&graph, "MatMul", "product", "x body.w", "p");
    onnx_node(&graph, "Add", "bias", "p body.b", "q");
    onnx_node(&graph, "Shape", "shape", "x", "s");
    onnx_node(&graph, "Gather", "rows", "s zero", "r");
    onnx_int_attr(&attrs, "axis", 0);
    onnx_node_of(&graph, "", "Concat", "sizes", "r minus", "to", &attrs);
    onnx_node(&graph, "Reshape", "turn", "q to", "y");
    onnx_value(&graph, 11, "x", 1, 2, of_x);
    onnx_value(&graph, 12, "y", 1, -1, NULL);
    onnx_model(file, &graph, 17);
}

#endif
