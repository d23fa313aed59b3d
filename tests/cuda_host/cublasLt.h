/* cublasLt.h of the host build: holds the descriptors of CUDA.LT against one another, then computes
 *
 * Found by -Itests/cuda_host before the real one; it has the names and values of that one that are
 * used. What the real library answers with a status, or does not notice, ends the program here with
 * a text: sizes of attributes, leading dimensions, types, epilogues, alignment, batches, workspace,
 * an algorithm of other descriptors. Products are plain loops on the stream; the workspace is
 * overwritten, C is read only if beta is not 0. Products of f64 with an activation have no
 * algorithm, so that the way without is taken. */
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <vector>

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum {
    CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77, CUBLAS_COMPUTE_64F = 70
} cublasComputeType_t;
typedef enum cudaDataType_t {
    CUDA_R_16F = 2, CUDA_R_16BF = 14, CUDA_R_32F = 0, CUDA_R_64F = 1
} cudaDataType_t;
typedef cudaDataType_t cudaDataType;
typedef enum {
    CUBLASLT_MATRIX_LAYOUT_TYPE = 0, CUBLASLT_MATRIX_LAYOUT_ORDER = 1,
    CUBLASLT_MATRIX_LAYOUT_ROWS = 2, CUBLASLT_MATRIX_LAYOUT_COLS = 3, CUBLASLT_MATRIX_LAYOUT_LD = 4,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
} cublasLtMatrixLayoutAttribute_t;
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7, CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8
} cublasLtMatmulDescAttributes_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;
typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0, CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4
} cublasLtReductionScheme_t;
typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_RELU_BIAS = 6, CUBLASLT_EPILOGUE_GELU = 32, CUBLASLT_EPILOGUE_GELU_BIAS = 36
} cublasLtEpilogue_t;

typedef struct { uint64_t data[8]; } cublasLtMatrixLayoutOpaque_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulAlgo_t;
typedef struct { uint64_t data[32]; } cublasLtMatmulDescOpaque_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulPreferenceOpaque_t;
typedef cublasLtMatrixLayoutOpaque_t *cublasLtMatrixLayout_t;
typedef cublasLtMatmulDescOpaque_t *cublasLtMatmulDesc_t;
typedef cublasLtMatmulPreferenceOpaque_t *cublasLtMatmulPreference_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t               workspaceSize;
    cublasStatus_t       state;
    float                wavesCount;
    int                  reserved[4];
} cublasLtMatmulHeuristicResult_t;

struct cublasLtContext { int device; };

/* Products that were made, for tests in C.                                                      */
extern "C" {
inline int64_t cuda_host_lt_products = 0;
}

namespace cuda_host {
namespace lt {

enum : uint32_t {
    kLayout = 0x4c61594f, kDesc = 0x64655343, kPreference = 0x70524546, kAlgo = 0x614c476f
};

struct Layout { uint32_t magic; int32_t type, order, batch; int64_t rows, cols, ld, step; };
struct Desc {
    uint32_t magic;
    int32_t  compute, scale, op_a, op_b;
    uint32_t epilogue;
    uint64_t bias;
};
struct Preference { uint32_t magic, schemes, align[4]; uint64_t room; };
struct Algo { uint32_t magic, align[4]; uint64_t hash, room; };
static_assert(sizeof(Layout) <= 64 && sizeof(Desc) <= 256 && sizeof(Preference) <= 64, "");
static_assert(sizeof(Algo) <= 64, "");

inline void need(bool held, const char *what)
{
    if (held) return;
    fprintf(stderr, "cuda_host: cuBLASLt: %s\n", what);
    abort();
}
template <class T, class O> inline T get(const O *o, uint32_t magic)
{
    T v;
    need(o != nullptr, "a descriptor is NULL");
    memcpy(&v, o, sizeof v);
    need(v.magic == magic, "a descriptor that was not initialized, or is of another kind");
    return v;
}
template <class T, class O> inline void put(O *o, const T &v) { memcpy(o, &v, sizeof v); }
template <class T> inline void attribute(T *to, const void *from, size_t bytes)
{
    need(bytes == sizeof *to, "an attribute of another size than its type has");
    memcpy(to, from, bytes);
}

inline size_t size_of(int type)
{
    switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16F: case CUDA_R_16BF: return 2;
    default: need(false, "an unknown type"); return 0;
    }
}
inline double load_as(int type, const char *p)
{
    uint16_t h;
    float f;
    double d;
    if (type == CUDA_R_64F) { memcpy(&d, p, 8); return d; }
    if (type == CUDA_R_32F) { memcpy(&f, p, 4); return (double)f; }
    memcpy(&h, p, 2);
    if (type == CUDA_R_16BF) {
        const uint32_t u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return (double)f;
    }
    const int e = h >> 10 & 31, m = h & 1023;
    const double v = e == 31 ? m ? (double)NAN : (double)INFINITY
                   : e == 0  ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}
inline uint16_t half_of(double v)
{
    const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    const double a = fabs(v);
    if (v != v) return 0x7e00;
    if (a >= 65520) return (uint16_t)(sign | 0x7c00);
    const int e = a < 6.103515625e-05 ? -14 : ilogb(a);
    const int q = (int)nearbyint(ldexp(a, 10 - e));
    return (uint16_t)(sign | (q < 1024 ? q : ((e + 15) << 10) + q - 1024));
}
inline uint16_t bf16_of(double v)
{
    const float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(v != v ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline void store_as(int type, char *p, double v)
{
    const float f = (float)v;
    const uint16_t h = type == CUDA_R_16F ? half_of(v) : bf16_of(v);
    if (type == CUDA_R_64F) memcpy(p, &v, 8);
    else if (type == CUDA_R_32F) memcpy(p, &f, 4);
    else memcpy(p, &h, 2);
}
/* 10 bits of mantissa.                                                                          */
inline double tf32_of(double v)
{
    const float f = (float)v;
    uint32_t u;
    if (!std::isfinite(f)) return v;
    memcpy(&u, &f, 4);
    u = (u + 0xfff + (u >> 13 & 1)) & ~(uint32_t)0x1fff;
    float r;
    memcpy(&r, &u, 4);
    return (double)r;
}

/* A product: what the descriptors say together.                                                 */
struct Call {
    Desc op;
    Layout a, b, c, d;
    int64_t m, n, k;
};
inline void check_types(const Call &x)
{
    const int in = x.a.type, out = x.d.type;
    need(x.b.type == in && x.c.type == out, "A and B, or C and D, are of two types");
    if (x.op.compute == CUBLAS_COMPUTE_64F) {
        need(x.op.scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F, "types of f64");
        return;
    }
    need(x.op.scale == CUDA_R_32F, "alpha and beta are f32 where sums are");
    if (x.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32) need(in == CUDA_R_32F, "TF32 is of f32");
    else need(x.op.compute == CUBLAS_COMPUTE_32F, "an unknown compute type");
    if (in == CUDA_R_32F) need(out == CUDA_R_32F, "f32 factors have an f32 product");
    else need((in == CUDA_R_16F || in == CUDA_R_16BF) && (out == in || out == CUDA_R_32F),
              "16-bit factors have a product of their type, or of f32");
}
inline void check_layout(const Layout &l, int64_t rows, int64_t cols, int64_t batch)
{
    need(l.rows == rows && l.cols == cols, "rows and columns do not fit the product");
    need(l.order == 0 && l.ld >= l.rows && l.rows > 0 && l.cols > 0, "a leading dimension");
    need(l.batch == batch && batch >= 1 && l.step >= 0, "batches");
}
inline Call call_of(const cublasLtMatmulDescOpaque_t *op, const cublasLtMatrixLayoutOpaque_t *a,
                    const cublasLtMatrixLayoutOpaque_t *b, const cublasLtMatrixLayoutOpaque_t *c,
                    const cublasLtMatrixLayoutOpaque_t *d)
{
    Call x = {get<Desc>(op, kDesc), get<Layout>(a, kLayout), get<Layout>(b, kLayout),
              get<Layout>(c, kLayout), get<Layout>(d, kLayout), 0, 0, 0};
    const bool turn_a = x.op.op_a == CUBLAS_OP_T, turn_b = x.op.op_b == CUBLAS_OP_T;
    x.m = x.d.rows;
    x.n = x.d.cols;
    x.k = turn_a ? x.a.rows : x.a.cols;
    check_types(x);
    check_layout(x.a, turn_a ? x.k : x.m, turn_a ? x.m : x.k, x.d.batch);
    check_layout(x.b, turn_b ? x.n : x.k, turn_b ? x.k : x.n, x.d.batch);
    check_layout(x.d, x.m, x.n, x.d.batch);
    need(memcmp(&x.c, &x.d, sizeof x.c) == 0, "C does not lie as D");
    if (x.d.batch > 1)                 /* one after the other, or side by side                    */
        need(x.d.step >= (x.n - 1) * x.d.ld + x.m ||
             (x.d.step >= x.m && x.d.ld >= (x.d.batch - 1) * x.d.step + x.m), "products overlap");
    need(!(x.op.epilogue & CUBLASLT_EPILOGUE_BIAS) || x.op.bias, "an epilogue without its bias");
    return x;
}
inline uint64_t hash_of(const Call &call)
{
    Call x = call;
    unsigned char bytes[sizeof x];
    uint64_t h = 14695981039346656037ull;
    x.op.bias = x.op.bias != 0;
    memcpy(bytes, &x, sizeof x);
    for (size_t i = 0; i < sizeof bytes; i++) h = (h ^ bytes[i]) * 1099511628211ull;
    return h;
}

/* Where the elements of a matrix begin, and after which byte they end.                          */
struct Span { const char *from, *to; };
inline Span span_of(const Layout &l, const void *p)
{
    const int64_t last = (l.batch - 1) * l.step + (l.cols - 1) * l.ld + l.rows;
    return {(const char *)p, (const char *)p + (size_t)last * size_of(l.type)};
}
inline void check_memory(const Span &s, uint32_t align, const char *what)
{
    need(s.from && (uintptr_t)s.from % align == 0, what);
    const size_t bytes = (size_t)(s.to - s.from);
    for (int i = 0; i < w.blocks; i++) {
        const char *at = w.arena + w.block[i].at;
        if (s.from >= at && s.from + bytes <= at + w.block[i].bytes) return;
    }
    need(false, "a matrix that is not within a block of device memory");
}
inline bool apart(const Span &x, const Span &y) { return x.to <= y.from || y.to <= x.from; }

/* to [cols][rows] = op(matrix), in W.                                                           */
template <class W> inline void unpack(const Call &x, const Layout &l, bool turned, const char *from,
                                      int64_t rows, int64_t cols, std::vector<W> &to)
{
    const size_t size = size_of(l.type);
    const bool tf32 = x.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    to.resize((size_t)(rows * cols));
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = turned ? i * l.ld + j : j * l.ld + i;
            const double v = load_as(l.type, from + (size_t)at * size);
            to[(size_t)(j * rows + i)] = (W)(tf32 ? tf32_of(v) : v);
        }
}
template <class W> inline W epilogue_of(uint32_t e, W v)
{
    if (e & CUBLASLT_EPILOGUE_RELU) return v > 0 || v != v ? v : (W)0;
    if (e & CUBLASLT_EPILOGUE_GELU)
        return (W)(0.5 * (double)v * (1 + tanh(0.7978845608028654 *
                                               ((double)v + 0.044715 * (double)(v * v * v)))));
    return v;
}
template <class W> inline void product(const Call &x, const char *a, const char *b, char *d,
                                       double alpha, double beta)
{
    std::vector<W> fa, fb, sum((size_t)x.m);
    const size_t size = size_of(x.d.type);
    unpack(x, x.a, x.op.op_a == CUBLAS_OP_T, a, x.m, x.k, fa);
    unpack(x, x.b, x.op.op_b == CUBLAS_OP_T, b, x.k, x.n, fb);
    for (int64_t j = 0; j < x.n; j++) {
        for (W &s : sum) s = 0;
        for (int64_t p = 0; p < x.k; p++) {
            const W f = fb[(size_t)(j * x.k + p)], *column = fa.data() + p * x.m;
            for (int64_t i = 0; i < x.m; i++) sum[(size_t)i] += column[i] * f;
        }
        for (int64_t i = 0; i < x.m; i++) {
            char *const to = d + (size_t)(j * x.d.ld + i) * size;
            W v = (W)alpha * sum[(size_t)i];
            if (beta != 0) v += (W)beta * (W)load_as(x.d.type, to);
            if (x.op.epilogue & CUBLASLT_EPILOGUE_BIAS)
                v += (W)load_as(x.d.type, (const char *)(uintptr_t)x.op.bias + (size_t)i * size);
            store_as(x.d.type, to, (double)epilogue_of(x.op.epilogue, v));
        }
    }
}

} // namespace lt
} // namespace cuda_host

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    const cuda_host::Lock lock(cuda_host::g_mutex);
    if (cuda_host::call() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasLtContext{cuda_host::g_device};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
inline const char *cublasLtGetStatusString(cublasStatus_t st)
{
    return st == CUBLAS_STATUS_SUCCESS ? "success"
         : st == CUBLAS_STATUS_EXECUTION_FAILED ? "the GPU program failed to execute" : "an error";
}

inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t l, cudaDataType type,
                                               uint64_t rows, uint64_t cols, int64_t ld)
{
    using namespace cuda_host::lt;
    size_of(type);
    need(ld >= (int64_t)rows, "a leading dimension below the number of rows");
    put(l, Layout{kLayout, type, 0, 1, (int64_t)rows, (int64_t)cols, ld, 0});
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t what,
                                                       const void *from, size_t bytes)
{
    using namespace cuda_host::lt;
    Layout l = get<Layout>(layout, kLayout);
    switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: attribute(&l.type, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_ORDER: attribute(&l.order, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_ROWS: attribute(&l.rows, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_COLS: attribute(&l.cols, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_LD: attribute(&l.ld, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: attribute(&l.batch, from, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: attribute(&l.step, from, bytes); break;
    default: need(false, "an attribute of a layout that is not known");
    }
    put(layout, l);
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t compute,
                                             cudaDataType_t scale)
{
    using namespace cuda_host::lt;
    put(d, Desc{kDesc, compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, 0});
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                     cublasLtMatmulDescAttributes_t what,
                                                     const void *from, size_t bytes)
{
    using namespace cuda_host::lt;
    Desc d = get<Desc>(desc, kDesc);
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: attribute(&d.op_a, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: attribute(&d.op_b, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: attribute(&d.epilogue, from, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: attribute(&d.bias, from, bytes); break;
    default: need(false, "an attribute of a product that is not known");
    }
    need((d.op_a | d.op_b) >> 1 == 0, "an operation that is neither N nor T");
    switch (d.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: case CUBLASLT_EPILOGUE_RELU: case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS: case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS: break;
    default: need(false, "an unknown epilogue");
    }
    put(desc, d);
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p)
{
    using namespace cuda_host::lt;
    put(p, Preference{kPreference, 7, {256, 256, 256, 256}, 0});
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t what, const void *from,
                                     size_t bytes)
{
    using namespace cuda_host::lt;
    Preference p = get<Preference>(preference, kPreference);
    switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: attribute(&p.room, from, bytes); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: attribute(&p.schemes, from, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: {
        uint32_t *const align = &p.align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
        attribute(align, from, bytes);
        need(*align >= 1 && (*align & (*align - 1)) == 0, "an alignment that is no power of two");
        break;
    }
    default: need(false, "an attribute of a preference that is not known");
    }
    put(preference, p);
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t preference, int wanted,
                               cublasLtMatmulHeuristicResult_t found[], int *n)
{
    using namespace cuda_host::lt;
    const Call       x = call_of(op, a, b, c, d);
    const Preference p = get<Preference>(preference, kPreference);
    need(handle && handle->device == cuda_host::g_device, "a handle of another device");
    need(!(p.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE), "sums in random order are allowed");
    *n = 0;
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (x.d.type == CUDA_R_64F && x.op.epilogue & (CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_GELU))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint64_t room = ((uint64_t)(x.m * x.n) * 8 + 255) / 256 * 256;
    Algo algo = {kAlgo, {p.align[0], p.align[1], p.align[2], p.align[3]}, hash_of(x), 0};
    if (x.k >= 512 && room <= p.room && p.schemes) algo.room = room;
    memset(found, 0, sizeof *found);
    put(&found->algo, algo);
    found->workspaceSize = algo.room;
    found->state = CUBLAS_STATUS_SUCCESS;
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
               cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl,
               const void *beta, const void *c, cublasLtMatrixLayout_t cl, void *d,
               cublasLtMatrixLayout_t dl, const cublasLtMatmulAlgo_t *algo, void *room,
               size_t room_bytes, cudaStream_t stream)
{
    using namespace cuda_host::lt;
    const cuda_host::Lock lock(cuda_host::g_mutex);
    if (cuda_host::call() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    const Call x = call_of(op, al, bl, cl, dl);
    const Algo how = get<Algo>(algo, kAlgo);
    need(handle && handle->device == stream->device, "a handle of another device");
    need(how.hash == hash_of(x), "an algorithm of other descriptors");
    const bool   f64 = x.op.scale == CUDA_R_64F;
    const double by = load_as(x.op.scale, (const char *)alpha);
    const double old = load_as(x.op.scale, (const char *)beta);
    const Span   sa = span_of(x.a, a), sb = span_of(x.b, b), sd = span_of(x.d, d);
    check_memory(sa, how.align[0], "A is not aligned as the preference says");
    check_memory(sb, how.align[1], "B is not aligned as the preference says");
    check_memory(sd, how.align[3], "D is not aligned as the preference says");
    need(c == d, "C is not D");
    need(apart(sd, sa) && apart(sd, sb), "D overlaps a factor");
    if (x.op.epilogue & CUBLASLT_EPILOGUE_BIAS) {
        const char *const at = (const char *)(uintptr_t)x.op.bias;
        check_memory({at, at + (size_t)x.m * size_of(x.d.type)}, 16, "the bias is not aligned");
    }
    need(room_bytes >= how.room, "the workspace is smaller than the algorithm's");
    if (how.room) {
        const Span sr = {(const char *)room, (const char *)room + room_bytes};
        check_memory(sr, 256, "the workspace is not aligned to 256 bytes");
        need(apart(sr, sa) && apart(sr, sb) && apart(sr, sd), "the workspace overlaps a matrix");
    }
    cuda_host_lt_products++;
    cuda_host::push(stream, [=] {
        if (how.room) memset(room, 0xff, how.room);
        for (int64_t z = 0; z < x.d.batch; z++) {
            const char *pa = (const char *)a + (size_t)(z * x.a.step) * size_of(x.a.type);
            const char *pb = (const char *)b + (size_t)(z * x.b.step) * size_of(x.b.type);
            char       *pd = (char *)d + (size_t)(z * x.d.step) * size_of(x.d.type);
            if (f64) product<double>(x, pa, pb, pd, by, old);
            else product<float>(x, pa, pb, pd, by, old);
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}
