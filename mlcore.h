/* mlcore.h -- trains neural networks in plain C at the speed of the hardware: one file, no deps
 *
 * Do this in ONE source file:
 *     #define MLCORE_IMPLEMENTATION
 *     #include "mlcore.h"
 * and plain #include "mlcore.h" everywhere else. Build: cc -O2 main.c -lm -pthread
 * C99 and C++11 read the declarations; C11 and C++17 (gcc, clang) compile the implementation.
 * MIT-0 or public domain, as you choose: see the end of the file.
 *
 * ---------------------------------------------------------------------------------------------
 * MANUAL
 *
 * 1. A network in ten lines
 *     mlc_ctx    *ctx = mlc_ctx_create(NULL);               NULL desc: every default
 *     mlc_module *net = mlc_nn_sequential(ctx);
 *     mlc_module_add(net, mlc_nn_linear(ctx, 64, 128));
 *     mlc_module_add(net, mlc_nn_relu(ctx));
 *     mlc_module_add(net, mlc_nn_linear(ctx, 128, 10));
 *     mlc_optim  *opt = mlc_adamw(net, 1e-3f);
 *     mlc_batch b;
 *     while (mlc_loader_next(loader, &b)) {
 *         mlc_scope_begin(ctx);                             tensors made from here die with it
 *         mlc_backward(mlc_cross_entropy(mlc_forward(net, b.x), b.y));
 *         mlc_optim_step(opt);                              does nothing while an error stands
 *         if (mlc_scope_end(ctx) != MLC_OK) { fprintf(stderr, "%s\n", mlc_error(ctx)); break; }
 *     }
 *     mlc_save(net, "net.safetensors");
 *     mlc_ctx_free(ctx);
 *   A complete program: README.md, examples/digits.c.
 *
 * 2. Errors. What creates something returns NULL on failure, everything else a mlc_status; the
 *   text is in the context (mlc_error). The first error stays, and an operation that is given
 *   NULL returns NULL and says nothing, so a chain needs one check: at mlc_scope_end, which
 *   returns the status and clears errors raised inside the scope. The library never aborts,
 *   exits or prints; a logger in the context's desc hears of errors and warnings. What shows
 *   something takes a writer: mlc_print(t, mlc_stdout, NULL) is NumPy's print(t).
 *
 * 3. Memory. Objects (modules, optimizers, loaders) live until freed or the context ends, also
 *   when made inside a scope. Tensors belong to the scope in which they were made; outside any
 *   scope, to the context. A step's memory is kept and used again: after the first steps there
 *   is no allocation. What a module's forward makes and neither returns nor the tape saves is
 *   freed when that forward ends: reading it later is a STATE error. To keep a value:
 *   mlc_keep (copy in the parent scope) or mlc_copy_into (into a tensor made before).
 *   With desc.memory everything lives in one block of the caller's; sizes are rounded to classes,
 *   so leave a fifth of it free over what mlc_memory_info showed for the largest step.
 *
 * 4. Gradients. Leaves ask for them (mlc_set_requires_grad; parameters do). They add up until
 *   the optimizer's step or mlc_zero_grad marks them stale. There is no double backward.
 *
 * 5. Threads. A context is used by one thread at a time; contexts are independent of each other;
 *   the only process-wide state is the backend registry and the kernel tables, written once.
 *   For a seed and an ISA level results do not depend on the number of threads. To kernels denormal
 *   f32 and f64 are 0, also where they compare or look for an extreme; what moves, sorts or finds
 *   bits (mlc_sort, mlc_nonzero) keeps them. The caller's floating-point mode is restored.
 *
 * 6. Environment: MLC_ISA=scalar|avx2|avx512|neon lowers the kernels' level, MLC_THREADS=n.
 *
 * 7. Macros, before the implementation is included (none changes a public struct):
 *   MLCORE_IMPLEMENTATION  compile it here          MLCORE_STATIC    all functions static
 *   MLC_NO_THREADS         no thread pool           MLC_NO_STDIO     no files, no mlc_stdout
 *   MLC_NO_SIMD            portable C only          MLC_NO_AVX512    no AVX-512 kernels
 *   MLC_USE_CBLAS          matrix products by CBLAS MLC_BLAS_INT     its integer, default int
 *   MLC_USE_ZLIB           reads compressed .npz, -lz
 *   MLC_ASSERT(c)          own assertion            MLC_DEBUG        assertions, poisoned memory
 *   MLC_TEST_TINY          tiny arenas, for tests   MLC_API          linkage of declarations
 *
 * 8. Words: [n,c] are shapes; n rows, c columns or classes; m, n, k sizes of a matrix product;
 *   x input, y output, w weight, b bias; dy the gradient that comes in, dx the one that goes out.
 *
 * 9. Versions. Until 1.0 a minor version may change the API, a patch may not.
 *
 * 10. Systems: Linux on x86-64, i386 (with -msse2 -mfpmath=sse: x87 is refused) and AArch64, glibc
 *   or musl; Windows by MinGW, with files, on one thread, without AVX. Any -O, -march and -std=c11
 *   or later will do. -ffast-math needs -fno-finite-math-only behind it where the implementation
 *   is compiled, or its NaN checks would be lost: an #error says so; everything else that it
 *   permits is undone there. Files that only include the declarations may be compiled with any
 *   flags, -fshort-enums included. A thread that trains needs 16 KiB of stack, with a CBLAS what
 *   that takes (OpenBLAS 80 KiB).
 *
 * Contents (banners of this file in order; `make map` adds line numbers)
 *   API.CONFIG  API.TYPES  API.CTX  API.TENSOR  API.AUTOGRAD  API.OPS  API.LOSS  API.NN
 *   API.OPTIM  API.DATA  API.METRICS  API.TRAIN  API.IO  API.BACKEND
 *   IMPL.PLATFORM  IMPL.CPU  IMPL.TYPES  IMPL.ERROR  IMPL.MEMORY  IMPL.THREADS  IMPL.RNG
 *   IMPL.KERNELS.MATH  IMPL.KERNELS.EW  IMPL.KERNELS.CAST  IMPL.KERNELS.COMPARE
 *   IMPL.KERNELS.INDEX  IMPL.KERNELS.REDUCE  IMPL.KERNELS.GEMM  IMPL.KERNELS.SORT
 *   IMPL.KERNELS.RNG  IMPL.KERNELS.ROW  IMPL.KERNELS.OPTIM  IMPL.DISPATCH
 *   IMPL.BACKEND  IMPL.CTX  IMPL.TENSOR  IMPL.PRINT  IMPL.TAPE  IMPL.OPS.VIEW  IMPL.OPS.COPY
 *   IMPL.OPS.UNARY  IMPL.OPS.BINARY  IMPL.OPS.COMPARE  IMPL.OPS.INPLACE
 *   IMPL.OPS.RANDOM  IMPL.OPS.DROPOUT  IMPL.OPS.REDUCE  IMPL.OPS.SCAN  IMPL.OPS.SOFTMAX
 *   IMPL.OPS.NORM  IMPL.OPS.MATMUL  IMPL.OPS.LINEAR  IMPL.OPS.JOIN  IMPL.OPS.INDEX
 *   IMPL.OPS.EINSUM  IMPL.OPS.SORT  IMPL.OPS.CUSTOM  IMPL.LOSS.MSE
 *   IMPL.LOSS.CROSS_ENTROPY  IMPL.GRADCHECK
 *   IMPL.NN.MODULE  IMPL.NN.LAYERS  IMPL.NN.SUMMARY  IMPL.OPTIM  IMPL.IO.FILE
 *   IMPL.IO.SAFETENSORS  IMPL.IO.NPY  IMPL.IO.STATE  IMPL.IO.CSV  IMPL.IO.IDX
 *   IMPL.IO.CIFAR  IMPL.DATA  IMPL.METRICS  IMPL.TRAIN  IMPL.END
 *
 * The two halves pair up: API.TENSOR declares what IMPL.TENSOR defines. A section uses only what
 * stands above it. Lists: grep '^MLC_API' and grep '^MLC_IMPL'.
 * --------------------------------------------------------------------------------------------- */
#ifndef MLCORE_H
#define MLCORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* @@ API.CONFIG ------------------------------------------ version, linkage, limits */

#define MLC_VERSION_MAJOR  0
#define MLC_VERSION_MINOR  1
#define MLC_VERSION_PATCH  0
#define MLC_VERSION_STRING "0.1.0"
#define MLC_ABI            2u     /* counts changes of API.BACKEND: a stale backend is refused */
#define MLC_MAX_DIMS       8      /* most axes a tensor has                                    */
#define MLC_NAME_BYTES     256    /* room for a dotted parameter name of up to 254 bytes       */

#ifndef MLC_API                   /* linkage of declarations, MLC_IMPL of definitions          */
#  if defined(MLCORE_STATIC) && defined(__GNUC__)
#    define MLC_API  static __attribute__((unused))
#    define MLC_IMPL static
#  elif defined(MLCORE_STATIC)
#    define MLC_API  static
#    define MLC_IMPL static
#  else
#    define MLC_API  extern
#    define MLC_IMPL
#  endif
#endif
#ifndef MLC_IMPL
#  define MLC_IMPL
#endif

#if defined(__MINGW32__) && !defined(__clang__)             /* its printf has no %zu, ours has */
#  define MLC_PRINTF(fmt, args) __attribute__((format(gnu_printf, fmt, args)))
#elif defined(__GNUC__)
#  define MLC_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#  define MLC_PRINTF(fmt, args)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* mlc_version: "0.1.0" of the compiled implementation; compare with MLC_VERSION_STRING.
 *   test   tests/test_include.c                                                             */
MLC_API const char *mlc_version(void);

/* @@ API.TYPES ------------------------------------------- status, dtype, dims, enums */

typedef enum mlc_status {
    MLC_OK = 0,
    MLC_ERR_ARG,          /* a value no call may have: NULL, a negative size, an unknown name  */
    MLC_ERR_SHAPE,        /* shapes do not fit each other                                      */
    MLC_ERR_DTYPE,        /* a dtype this operation does not take; the message says which cast */
    MLC_ERR_DEVICE,       /* unknown device, or it reported a failure                          */
    MLC_ERR_UNSUPPORTED,  /* not on this device, or not compiled in                            */
    MLC_ERR_NOMEM,        /* out of memory, or over the hard limit; recoverable                */
    MLC_ERR_IO,           /* a file: missing, short, malformed, disk full                      */
    MLC_ERR_VALUE,        /* data: a label out of range, a NaN in anomaly mode                 */
    MLC_ERR_STATE,        /* right call, wrong time: backward twice, step after failed backward */
    MLC_ERR_INTERNAL,     /* a bug in mlcore; please report                                    */
    MLC_STATUS_FORCE_32 = 0x7fffffff
} mlc_status;

/* No implicit promotion: mlc_cast says it in the program. Floats are computed with (the 16-bit
 * ones in f32, rounded once per operation); integers and bool are stored, cast, copied, compared,
 * indexed, sorted, reduced, and used as indices (i64) and masks (bool).                       */
typedef enum mlc_dtype {
    MLC_F32 = 0,
    MLC_F64,
    MLC_I64,              /* labels and indices                                                */
    MLC_BF16,             /* 8 bits of exponent, 7 of fraction; on the host uint16_t           */
    MLC_F16,              /* IEEE half: 5 bits of exponent, 10 of fraction; uint16_t           */
    MLC_I32,
    MLC_I8,
    MLC_U8,
    MLC_BOOL,             /* one byte: 0 is false, everything else true; results are 0 or 1    */
    MLC_DTYPE_COUNT,
    MLC_DTYPE_FORCE_32 = 0x7fffffff
} mlc_dtype;

typedef enum mlc_act {    /* activation that a fused operation applies to its result           */
    MLC_ACT_NONE = 0, MLC_ACT_RELU, MLC_ACT_GELU, MLC_ACT_TANH, MLC_ACT_SIGMOID, MLC_ACT_SILU,
    MLC_ACT_FORCE_32 = 0x7fffffff
} mlc_act;

typedef enum mlc_reduction {
    MLC_REDUCTION_MEAN = 0, MLC_REDUCTION_SUM, MLC_REDUCTION_NONE,
    MLC_REDUCTION_FORCE_32 = 0x7fffffff
} mlc_reduction;

typedef enum mlc_isa {    /* instruction set of the CPU kernels; AUTO is the best one detected */
    MLC_ISA_AUTO = 0, MLC_ISA_SCALAR, MLC_ISA_AVX2, MLC_ISA_AVX512,
    MLC_ISA_NEON,         /* of AArch64; a CPU has SCALAR and those of its architecture       */
    MLC_ISA_COUNT,
    MLC_ISA_FORCE_32 = 0x7fffffff
} mlc_isa;

typedef enum mlc_log_level {
    MLC_LOG_ERROR = 0, MLC_LOG_WARNING, MLC_LOG_INFO,
    MLC_LOG_FORCE_32 = 0x7fffffff
} mlc_log_level;

/* A list of sizes, axes or a permutation: made by mlc_dims0 .. mlc_dims4 and mlc_dims_of.    */
typedef struct mlc_dims {
    int64_t v[MLC_MAX_DIMS];
    int32_t n;
} mlc_dims;

typedef struct mlc_ctx     mlc_ctx;       /* owns everything; one thread at a time            */
typedef struct mlc_storage mlc_storage;   /* memory behind tensors, shared by views           */
typedef struct mlc_node    mlc_node;      /* one recorded operation                           */
typedef struct mlc_module  mlc_module;
typedef struct mlc_optim   mlc_optim;
typedef struct mlc_loader  mlc_loader;

/* Public to read (debuggers and kernels need it), never to write. Data: mlc_f32, mlc_read.   */
typedef struct mlc_tensor {
    mlc_ctx            *ctx;
    mlc_storage        *storage;
    struct mlc_tensor  *base;              /* the tensor this one is a view of, or NULL       */
    mlc_node           *node;              /* operation that made it; NULL for a leaf         */
    mlc_storage        *grad;              /* gradient of a base; use mlc_grad                */
    int64_t             offset;            /* first element, in elements of the storage       */
    int64_t             shape[MLC_MAX_DIMS];
    int64_t             stride[MLC_MAX_DIMS];  /* in elements                                 */
    int32_t             ndim;
    mlc_dtype           dtype;
    uint32_t            flags;             /* private                                         */
    uint32_t            grad_fresh;       /* private: 0 is stale: overwritten, not added to    */
    int32_t             scope;             /* depth of the scope it lives in; 0 is the root   */
} mlc_tensor;

/* mlc_dims0: the empty list: shape of a scalar; as axes, all of them.                        */
MLC_API mlc_dims mlc_dims0(void);
/* mlc_dims1: a list of one.                                                                  */
MLC_API mlc_dims mlc_dims1(int64_t a);
/* mlc_dims2: a list of two.                                                                  */
MLC_API mlc_dims mlc_dims2(int64_t a, int64_t b);
/* mlc_dims3: a list of three.                                                                */
MLC_API mlc_dims mlc_dims3(int64_t a, int64_t b, int64_t c);
/* mlc_dims4: a list of four.                                                                 */
MLC_API mlc_dims mlc_dims4(int64_t a, int64_t b, int64_t c, int64_t d);
/* mlc_dims_of: a list of n values; n over MLC_MAX_DIMS is refused by whatever takes the list. */
MLC_API mlc_dims mlc_dims_of(int32_t n, const int64_t *v);
/* mlc_dtype_bytes: bytes of one element; 0 for an unknown dtype.                              */
MLC_API size_t mlc_dtype_bytes(mlc_dtype dtype);
/* mlc_dtype_name: "f32", "f64", "i64", "bf16", "f16", "i32", "i8", "u8", "bool".              */
MLC_API const char *mlc_dtype_name(mlc_dtype dtype);
/* mlc_bf16_from: x rounded to bf16, to nearest even; NaN stays NaN.                           */
MLC_API uint16_t mlc_bf16_from(float x);
/* mlc_bf16_to: the value of a bf16; exact.                                                    */
MLC_API float mlc_bf16_to(uint16_t h);
/* mlc_f16_from: x rounded to IEEE half, to nearest even; over 65519.99: inf; NaN stays NaN.   */
MLC_API uint16_t mlc_f16_from(float x);
/* mlc_f16_to: the value of an IEEE half; exact.                                               */
MLC_API float mlc_f16_to(uint16_t h);
/* mlc_status_name: "OK", "SHAPE", ...                                                         */
MLC_API const char *mlc_status_name(mlc_status status);
/* mlc_isa_name: "scalar", "avx2", "avx512", "neon".                                           */
MLC_API const char *mlc_isa_name(mlc_isa isa);

/* @@ API.CTX --------------------------------------------- context, errors, scopes, memory */

/* Both functions or neither; user may be NULL. align is a power of two; release gets the
 * bytes alloc was asked for.                                                                 */
typedef struct mlc_allocator {
    void *user;
    void *(*alloc)(void *user, size_t bytes, size_t align);       /* NULL: out of memory      */
    void  (*release)(void *user, void *ptr, size_t bytes);
} mlc_allocator;

typedef void (*mlc_log_fn)(void *user, mlc_log_level level, const char *text);
typedef void (*mlc_writer)(void *user, const char *text, size_t bytes);   /* not 0-terminated */

typedef struct mlc_ctx_desc {
    uint64_t      seed;                /* of the random streams; default 0                     */
    int32_t       threads;             /* 0: MLC_THREADS in the environment, else all cores    */
    mlc_isa       isa;                 /* AUTO: MLC_ISA in the environment, else the best      */
    mlc_dtype     dtype;               /* of parameters declared without one; default f32      */
    const char   *device;              /* NULL: "cpu"; else a registered backend: "cuda:0"     */
    mlc_allocator allocator;           /* default: aligned_alloc and free                      */
    void         *memory;              /* fixed block to live in; then no allocator is called  */
    size_t        memory_bytes;
    size_t        soft_limit;          /* bytes in use that log one warning; 0: none           */
    size_t        hard_limit;          /* bytes in use that are NOMEM; 0: none                 */
    mlc_log_fn    log;                 /* errors and warnings; default: none                   */
    void         *log_user;
    mlc_status   *status;              /* out: why mlc_ctx_create returned NULL                */
    bool          abort_on_error;      /* for debuggers: log and abort() at the first error    */
} mlc_ctx_desc;

typedef enum mlc_mem {                 /* classes of memory in mlc_memory                      */
    MLC_MEM_OBJECT = 0, MLC_MEM_PARAM, MLC_MEM_GRAD, MLC_MEM_OPTIM, MLC_MEM_ACTIVATION,
    MLC_MEM_WORKSPACE, MLC_MEM_COUNT,
    MLC_MEM_FORCE_32 = 0x7fffffff
} mlc_mem;

typedef struct mlc_memory {            /* all in bytes, but the last                           */
    int64_t allocated;                 /* in use now                                           */
    int64_t reserved;                  /* taken from the allocator or the fixed block          */
    int64_t peak;                      /* most ever allocated, since mlc_memory_peak_reset     */
    int64_t now[MLC_MEM_COUNT];        /* in use now, by class                                 */
    int64_t top[MLC_MEM_COUNT];        /* peak by class                                        */
    int64_t calls;                     /* allocator calls since the context was made           */
} mlc_memory;

/* mlc_ctx_desc_make: a desc with every default, to be changed field by field.                */
MLC_API mlc_ctx_desc mlc_ctx_desc_make(void);

/* mlc_ctx_create: a context; NULL desc means all defaults.
 *   out    NULL on failure, with the reason in desc->status
 *   err    ARG, DEVICE, NOMEM      test: tests/test_ctx.c                                    */
MLC_API mlc_ctx *mlc_ctx_create(const mlc_ctx_desc *desc);
/* mlc_ctx_free: frees the context and everything in it; NULL is fine.                        */
MLC_API void mlc_ctx_free(mlc_ctx *ctx);
/* mlc_ctx_isa: the level of the CPU kernels in use.                                          */
MLC_API mlc_isa mlc_ctx_isa(const mlc_ctx *ctx);
/* mlc_ctx_threads: how many threads a parallel loop uses, the caller's included.             */
MLC_API int32_t mlc_ctx_threads(const mlc_ctx *ctx);
/* mlc_ctx_set_threads: how many it uses from now on; 0 for the default, as in the desc. Results
 *   do not change, nor does anything on an error.
 *   err    ARG: below 0; NOMEM      test: tests/test_threads.c                               */
MLC_API mlc_status mlc_ctx_set_threads(mlc_ctx *ctx, int32_t threads);
/* mlc_ctx_blas: name of the CBLAS behind matrix products, or "none".                         */
MLC_API const char *mlc_ctx_blas(const mlc_ctx *ctx);
/* mlc_ctx_on_host: true if mlc_f32 and friends may be dereferenced by the program.           */
MLC_API bool mlc_ctx_on_host(const mlc_ctx *ctx);
/* mlc_seed: restarts every random stream of the context from this seed.                      */
MLC_API mlc_status mlc_seed(mlc_ctx *ctx, uint64_t seed);

/* mlc_ctx_status: the first error that stands, or MLC_OK. NULL context: ARG.                 */
MLC_API mlc_status mlc_ctx_status(const mlc_ctx *ctx);
/* mlc_error: text of the first error that stands, else of the last one cleared, else "".     */
MLC_API const char *mlc_error(const mlc_ctx *ctx);
/* mlc_error_clear: forgets the standing error (the text stays readable).                     */
MLC_API void mlc_error_clear(mlc_ctx *ctx);
/* mlc_raise: records an error from a user's own module or operation; the first one wins.
 *   out    status, so that `return mlc_raise(ctx, MLC_ERR_ARG, "mine: ...")` reads well      */
MLC_API mlc_status mlc_raise(mlc_ctx *ctx, mlc_status status, const char *format, ...)
    MLC_PRINTF(3, 4);

/* mlc_scope_begin: every tensor made from here on dies at the matching mlc_scope_end.
 *   err    STATE when nested deeper than 60                                                  */
MLC_API mlc_status mlc_scope_begin(mlc_ctx *ctx);
/* mlc_scope_end: frees the scope's tensors and its part of the tape.
 *   out    the error that stands; errors raised inside the scope are cleared, older ones stay
 *   test   tests/test_ctx.c                                                                  */
MLC_API mlc_status mlc_scope_end(mlc_ctx *ctx);
/* mlc_keep: detached copy of t in the parent scope of the current one.                       */
MLC_API mlc_tensor *mlc_keep(mlc_tensor *t);

/* mlc_memory_info: fills out with the bytes in use.                                          */
MLC_API mlc_status mlc_memory_info(const mlc_ctx *ctx, mlc_memory *out);
/* mlc_memory_peak_reset: peaks start again from what is in use now.                          */
MLC_API void mlc_memory_peak_reset(mlc_ctx *ctx);
/* mlc_memory_trim: gives unused pool memory back to the allocator.                           */
MLC_API void mlc_memory_trim(mlc_ctx *ctx);

/* mlc_stdout: the writer that prints to standard output; absent under MLC_NO_STDIO.          */
MLC_API void mlc_stdout(void *user, const char *text, size_t bytes);

/* @@ API.TENSOR ------------------------------------------ create, view, query, copy */

/* mlc_zeros: a tensor of zeros in the current scope.
 *   dtype  any              err: ARG negative size, over MLC_MAX_DIMS; SHAPE size overflow
 *   ref    torch.zeros      test: tests/test_tensor.c                                        */
MLC_API mlc_tensor *mlc_zeros(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape);
/* mlc_full: a tensor filled with value.                                     ref: torch.full  */
MLC_API mlc_tensor *mlc_full(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double value);
/* mlc_ones: a tensor of ones.                                                ref: torch.ones  */
MLC_API mlc_tensor *mlc_ones(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape);
/* mlc_arange: start, start + step, ... before stop; ceil((stop - start)/step) elements.
 *   err    ARG if step is 0 or leads away from stop             ref: torch.arange            */
MLC_API mlc_tensor *mlc_arange(mlc_ctx *ctx, mlc_dtype dtype, double start, double stop,
                               double step);
/* mlc_linspace: n values from start to stop, both exact, at equal steps.
 *   err    ARG where there is no step: infinite, NaN, n < 0         ref: torch.linspace      */
MLC_API mlc_tensor *mlc_linspace(mlc_ctx *ctx, mlc_dtype dtype, double start, double stop,
                                 int64_t n);
/* mlc_eye: [n,m] with ones on the diagonal.                                 ref: torch.eye   */
MLC_API mlc_tensor *mlc_eye(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int64_t m);
/* mlc_from: copies dense row-major host data into a new tensor.          ref: torch.tensor   */
MLC_API mlc_tensor *mlc_from(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, const void *data);
/* mlc_wrap: a tensor over the caller's memory, which must outlive it; host device only.
 *   strides in elements, NULL for row-major      ref: torch.from_numpy                       */
MLC_API mlc_tensor *mlc_wrap(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape,
                             const int64_t *strides, void *data);

/* Random tensors: each call takes the next stream of the context (see mlc_seed), and element i is a
 * function of seed, stream and i. 16-bit floats are f32 values rounded.
 * err    DTYPE, ARG: parameters that no such distribution has       test: tests/test_random.c */

/* mlc_randn: standard normal values, floats.                             ref: torch.randn    */
MLC_API mlc_tensor *mlc_randn(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape);
/* mlc_normal: normal values, floats.                                     ref: torch.normal   */
MLC_API mlc_tensor *mlc_normal(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double mean,
                               double std);
/* mlc_uniform: uniform in [lo, hi), floats.                       ref: torch.Tensor.uniform_ */
MLC_API mlc_tensor *mlc_uniform(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double lo,
                                double hi);
/* mlc_truncated_normal: normal values, given that they are in [lo, hi] (rounded to dtype); floats.
 *   By the inverse of the distribution, in f64, relative error about 1e-15; 1e-13 far in a tail.
 *   err    ARG also where the interval is over 37 std from the mean
 *   ref    torch.nn.init.trunc_normal_                                                       */
MLC_API mlc_tensor *mlc_truncated_normal(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape,
                                         double mean, double std, double lo, double hi);
/* mlc_bernoulli: 1 with probability p (to the nearest 2^-32), else 0; any dtype.
 *   ref    torch.Tensor.bernoulli_                                                           */
MLC_API mlc_tensor *mlc_bernoulli(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double p);
/* mlc_randint: integers in [lo, hi), which the dtype (any) must hold; no two chances differ by more
 *   than 2^-64.                                                          ref: torch.randint  */
MLC_API mlc_tensor *mlc_randint(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, int64_t lo,
                                int64_t hi);
/* mlc_randperm: 0 .. n - 1 in random order, i64.                         ref: torch.randperm */
MLC_API mlc_tensor *mlc_randperm(mlc_ctx *ctx, int64_t n);

/* mlc_reshape: the same elements in another shape; one size may be -1. A view where strides
 *   allow, else a copy.       grad: reshaped      ref: torch.reshape                         */
MLC_API mlc_tensor *mlc_reshape(mlc_tensor *x, mlc_dims shape);
/* mlc_flatten: axes first_axis.. become one.      ref: torch.flatten                         */
MLC_API mlc_tensor *mlc_flatten(mlc_tensor *x, int32_t first_axis);
/* mlc_permute: view with reordered axes.          ref: torch.permute                         */
MLC_API mlc_tensor *mlc_permute(mlc_tensor *x, mlc_dims axes);
/* mlc_transpose: view with two axes swapped.      ref: torch.transpose                       */
MLC_API mlc_tensor *mlc_transpose(mlc_tensor *x, int32_t axis_a, int32_t axis_b);
/* mlc_slice: view of x[start:stop:step] along one axis, as Python slices: negative counts
 *   from the end, stop is clamped (INT64_MAX: to the end), step > 0.                         */
MLC_API mlc_tensor *mlc_slice(mlc_tensor *x, int32_t axis, int64_t start, int64_t stop,
                              int64_t step);
/* mlc_select: view of one index along an axis, which goes away.       ref: torch.select      */
MLC_API mlc_tensor *mlc_select(mlc_tensor *x, int32_t axis, int64_t index);
/* mlc_expand: view that repeats axes of size 1; -1 keeps a size; new axes in front.
 *   grad   summed over the repeated axes          ref: torch.expand                          */
MLC_API mlc_tensor *mlc_expand(mlc_tensor *x, mlc_dims shape);
/* mlc_squeeze: view without an axis of size 1; x itself if its size is another.
 *   ref    torch.squeeze            this and the next five: test: tests/test_join.c          */
MLC_API mlc_tensor *mlc_squeeze(mlc_tensor *x, int32_t axis);
/* mlc_unsqueeze: view with a new axis of size 1 at this place, -1 the last. ref: torch.unsqueeze */
MLC_API mlc_tensor *mlc_unsqueeze(mlc_tensor *x, int32_t axis);
/* mlc_movedim: view with an axis moved to another place.                 ref: torch.movedim  */
MLC_API mlc_tensor *mlc_movedim(mlc_tensor *x, int32_t from, int32_t to);
/* mlc_unfold: view of windows of `size` elements, step > 0 apart, along an axis, which becomes
 *   their number; their elements are a new last axis.
 *   grad   summed where windows overlap                              ref: Tensor.unfold      */
MLC_API mlc_tensor *mlc_unfold(mlc_tensor *x, int32_t axis, int64_t size, int64_t step);
/* mlc_diagonal: view of the diagonals of matrices [..,n,m], from column offset (row -offset) on.
 *   ref    torch.diagonal(x, offset, -2, -1)                                                 */
MLC_API mlc_tensor *mlc_diagonal(mlc_tensor *x, int64_t offset);
/* mlc_meshgrid: views out[i] of shape [n0,n1,..] of n 1-d inputs: out[i] follows input i along
 *   axis i. One dtype.
 *   err    SHAPE, ARG, DTYPE; then all of out is NULL       ref: torch.meshgrid(indexing='ij') */
MLC_API mlc_status mlc_meshgrid(mlc_tensor *const *in, int32_t n, mlc_tensor **out);

/* mlc_contiguous: x itself if it is dense row-major, else a copy.  ref: Tensor.contiguous    */
MLC_API mlc_tensor *mlc_contiguous(mlc_tensor *x);
/* mlc_copy: dense row-major copy; recorded.                         ref: torch.clone         */
MLC_API mlc_tensor *mlc_copy(mlc_tensor *x);
/* mlc_detach: view of the same memory that the tape does not follow. ref: torch.detach       */
MLC_API mlc_tensor *mlc_detach(mlc_tensor *x);
/* mlc_cast: copy in another dtype. To a narrower float: rounded once, to nearest even. Float to
 *   i64, i32: truncated (NaN, out of range: INT64_MIN, INT32_MIN), to i8, u8: the low byte of
 *   that i32. Integer to integer: modulo 2^bits. To bool: is it not 0 (NaN is true).
 *   grad   cast back, between floats       ref: Tensor.to       test: tests/test_cast.c      */
MLC_API mlc_tensor *mlc_cast(mlc_tensor *x, mlc_dtype dtype);
/* mlc_copy_into: writes src over dst (same shape and dtype, or src broadcasts). Not recorded:
 *   no gradient flows; a saved dst is noticed by backward.   ref: Tensor.copy_ under no_grad */
MLC_API mlc_status mlc_copy_into(mlc_tensor *dst, mlc_tensor *src);

/* mlc_dim: size of an axis, negative axes from the end; 0 for NULL or no such axis.          */
MLC_API int64_t mlc_dim(const mlc_tensor *t, int32_t axis);
/* mlc_numel: number of elements; 0 for NULL.                                                 */
MLC_API int64_t mlc_numel(const mlc_tensor *t);
/* mlc_is_contiguous: dense row-major?                                                        */
MLC_API bool mlc_is_contiguous(const mlc_tensor *t);
/* mlc_shape_text: writes "[2,3]" into text of n bytes; returns text.                         */
MLC_API const char *mlc_shape_text(const mlc_tensor *t, char *text, size_t n);
/* mlc_item: value of a tensor of one element; NaN and an error otherwise. Waits for the device. */
MLC_API double mlc_item(mlc_tensor *t);
/* mlc_read: copies the elements, row-major, to host memory of exactly that many bytes.
 *   err    ARG if bytes is not numel x dtype size    test: tests/test_tensor.c               */
MLC_API mlc_status mlc_read(mlc_tensor *t, void *host, size_t bytes);
/* mlc_write: copies row-major host data over the elements.                                   */
MLC_API mlc_status mlc_write(mlc_tensor *t, const void *host, size_t bytes);
/* mlc_f32: pointer to the first element of an f32 tensor on the host; NULL and an error if it is
 *   of another dtype or on a device. Elements lie as t->stride says, also for the next eight. */
MLC_API float *mlc_f32(mlc_tensor *t);
/* mlc_f64: the same for f64.                                                                 */
MLC_API double *mlc_f64(mlc_tensor *t);
/* mlc_i64: for i64.                                                                          */
MLC_API int64_t *mlc_i64(mlc_tensor *t);
/* mlc_bf16: for bf16; mlc_bf16_to gives the values.                                          */
MLC_API uint16_t *mlc_bf16(mlc_tensor *t);
/* mlc_f16: for f16; mlc_f16_to gives the values.                                             */
MLC_API uint16_t *mlc_f16(mlc_tensor *t);
/* mlc_i32: for i32.                                                                          */
MLC_API int32_t *mlc_i32(mlc_tensor *t);
/* mlc_i8: for i8.                                                                            */
MLC_API int8_t *mlc_i8(mlc_tensor *t);
/* mlc_u8: for u8.                                                                            */
MLC_API uint8_t *mlc_u8(mlc_tensor *t);
/* mlc_bool: for bool: bytes, 0 is false.                                                     */
MLC_API uint8_t *mlc_bool(mlc_tensor *t);

typedef struct mlc_print_desc {        /* as numpy.printoptions; 0 is the default              */
    int32_t precision;                 /* most digits behind the point; default 8, -1: none    */
    int32_t edge_items;                /* shown at each end of a long axis; default 3          */
    int64_t threshold;                 /* tensors of more elements are cut; default 1000       */
    int32_t line_width;                /* characters; default 75                               */
    bool    suppress;                  /* numbers are not scientific because some are small    */
} mlc_print_desc;

/* mlc_print: writes t as NumPy's print(array) does, with a line's end: mlc_print(t, mlc_stdout,
 *   NULL). Floats have the fewest digits that tell them from their neighbours in their dtype, bf16
 *   those that bf16 needs. Copies what is shown to the host, nothing more. Waits for the device.
 *   dtype  any, any strides     err: ARG without a writer; STATE; NOMEM
 *   ref    numpy 2.4                                                 test: tests/test_print.c */
MLC_API mlc_status mlc_print(mlc_tensor *t, mlc_writer write, void *user);
/* mlc_print_ex: under other options, which 0-d tensors do not heed. NULL desc: mlc_print.
 *   err    ARG also for negative sizes                          ref: numpy.printoptions      */
MLC_API mlc_status mlc_print_ex(mlc_tensor *t, const mlc_print_desc *desc, mlc_writer write,
                                void *user);

/* @@ API.AUTOGRAD ---------------------------------------- gradients, no-grad, custom operations */

/* mlc_set_requires_grad: asks for (or stops asking for) the gradient of a leaf.
 *   err    DTYPE if not float; STATE if t is the result of an operation                      */
MLC_API mlc_status mlc_set_requires_grad(mlc_tensor *t, bool on);
/* mlc_requires_grad: true if backward would compute a gradient for t.                        */
MLC_API bool mlc_requires_grad(const mlc_tensor *t);
/* mlc_backward: gradients of a one-element loss for every leaf that asks; they add up until
 *   the optimizer's step (or mlc_zero_grad) marks them stale. Saved tensors are freed as they
 *   are used: a second backward over the same operations is STATE.
 *   err    SHAPE, STATE; VALUE where a saved tensor was overwritten   test: tests/test_tape.c */
MLC_API mlc_status mlc_backward(mlc_tensor *loss);
/* mlc_backward_from: the same from any tensor y with its gradient dy (NULL: ones).           */
MLC_API mlc_status mlc_backward_from(mlc_tensor *y, mlc_tensor *dy);
/* mlc_grad: gradient of a leaf (or of a view of one), as a tensor over the same memory; NULL
 *   without an error if there is none.                                                       */
MLC_API mlc_tensor *mlc_grad(mlc_tensor *t);
/* mlc_zero_grad: marks the gradient of a leaf stale; mlc_grad is NULL until the next backward. */
MLC_API void mlc_zero_grad(mlc_tensor *t);
/* mlc_no_grad_begin: nothing is recorded until the matching end; nests.                      */
MLC_API void mlc_no_grad_begin(mlc_ctx *ctx);
/* mlc_no_grad_end: ends the innermost mlc_no_grad_begin.                                     */
MLC_API void mlc_no_grad_end(mlc_ctx *ctx);
/* mlc_anomaly: when on, every operation, forward and backward, is checked: the first one that
 *   makes a NaN or Inf becomes a VALUE error with its name.   ref: autograd.detect_anomaly   */
MLC_API void mlc_anomaly(mlc_ctx *ctx, bool on);

/* An operation of the user's own, made of two functions. Both run unrecorded.
 *   forward   makes *out from the inputs with any mlc_ calls
 *   backward  dy is the gradient of out; sets dx[i] for each i where need[i] is true         */
typedef struct mlc_custom_op {
    const char *name;
    mlc_status (*forward)(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor **out);
    mlc_status (*backward)(void *user, mlc_tensor *const *in, int32_t n_in, mlc_tensor *out,
                           mlc_tensor *dy, const bool *need, mlc_tensor **dx);
} mlc_custom_op;

/* mlc_custom: applies a user's operation to up to 4 inputs and records it; op and user must
 *   live until backward.                               test: tests/test_tape.c               */
MLC_API mlc_tensor *mlc_custom(const mlc_custom_op *op, void *user, mlc_tensor *const *in,
                               int32_t n_in);

typedef mlc_tensor *(*mlc_grad_fn)(void *user, mlc_tensor *const *in, int32_t n_in);

typedef struct mlc_gradcheck_desc {
    double  eps;                       /* of the central difference; default 1e-6              */
    double  atol;                      /* default 1e-5                                         */
    double  rtol;                      /* default 1e-3                                         */
} mlc_gradcheck_desc;

typedef struct mlc_gradcheck_report {
    bool    ok;
    int32_t input;                     /* of the worst element                                 */
    int64_t index;                     /* its row-major index                                  */
    double  analytic, numeric;         /* its two gradients                                    */
    double  excess;                    /* |difference| - (atol + rtol |numeric|); ok if <= 0   */
} mlc_gradcheck_report;

/* mlc_gradcheck: compares backward with central differences, element by element, for every
 *   f64 input that requires a gradient; fn must be a pure function of its inputs.
 *   out    report; the return value tells whether the check could be made at all
 *   err    DTYPE if such an input is not f64; any error of fn
 *   ref    torch.autograd.gradcheck (its tolerances)          test: tests/test_tape.c        */
MLC_API mlc_status mlc_gradcheck(mlc_grad_fn fn, void *user, mlc_tensor *const *in, int32_t n_in,
                                 const mlc_gradcheck_desc *desc, mlc_gradcheck_report *report);

/* @@ API.OPS --------------------------------------------- tensor operations; all are recorded
 * Floats of one dtype unless said otherwise: f32, f64, or bf16 and f16, which are computed in f32
 * and rounded once. Results are new tensors in the current scope. Shapes broadcast as in NumPy:
 * aligned at the last axis, sizes equal or 1, gradients summed back. Axes may be negative: from
 * the end. A NULL input gives NULL and keeps the first error.
 * f32 results are within 2 ulp of exact, most within 1; a gradient of 0 is one that is 0 wherever
 * it exists.                                 test: tests/test_ops.c, test_ew.c, test_goldens.c */

/* -- elementwise -- */

/* mlc_add: a + b.                            grad: da += dy; db += dy          ref: torch.add   */
MLC_API mlc_tensor *mlc_add(mlc_tensor *a, mlc_tensor *b);
/* mlc_sub: a - b.                            grad: da += dy; db -= dy          ref: torch.sub   */
MLC_API mlc_tensor *mlc_sub(mlc_tensor *a, mlc_tensor *b);
/* mlc_mul: a b.                              grad: da += dy b; db += dy a      ref: torch.mul   */
MLC_API mlc_tensor *mlc_mul(mlc_tensor *a, mlc_tensor *b);
/* mlc_div: a / b.                            grad: da += dy/b; db -= dy a/b^2  ref: torch.div   */
MLC_API mlc_tensor *mlc_div(mlc_tensor *a, mlc_tensor *b);
/* mlc_pow: a^b.   grad: da += dy b a^(b-1) (0 where b is 0); db += dy a^b log a (0 where a is 0
 *   and b >= 0)                  ref: torch.pow                                               */
MLC_API mlc_tensor *mlc_pow(mlc_tensor *a, mlc_tensor *b);
/* mlc_minimum: the smaller one; a NaN wins.
 *   grad: dy to it, halves to equals   ref: torch.minimum                                       */
MLC_API mlc_tensor *mlc_minimum(mlc_tensor *a, mlc_tensor *b);
/* mlc_maximum: the larger one; a NaN wins.
 *   grad: dy to it, halves to equals   ref: torch.maximum                                       */
MLC_API mlc_tensor *mlc_maximum(mlc_tensor *a, mlc_tensor *b);
/* mlc_fmod: remainder with the sign of a.  grad: da += dy; db -= dy trunc(a/b)  ref: torch.fmod */
MLC_API mlc_tensor *mlc_fmod(mlc_tensor *a, mlc_tensor *b);
/* mlc_remainder: remainder with the sign of b, Python's %.
 *   grad: da += dy; db -= dy floor(a/b)   ref: torch.remainder                                  */
MLC_API mlc_tensor *mlc_remainder(mlc_tensor *a, mlc_tensor *b);
/* mlc_floor_divide: floor(a/b), exact.  grad: 0  ref: torch.floor_divide                        */
MLC_API mlc_tensor *mlc_floor_divide(mlc_tensor *a, mlc_tensor *b);
/* mlc_atan2: angle of the point (b, a).
 *   grad: da += dy b/(a^2 + b^2); db -= dy a/(a^2 + b^2)   ref: torch.atan2                     */
MLC_API mlc_tensor *mlc_atan2(mlc_tensor *a, mlc_tensor *b);
/* mlc_hypot: sqrt(a^2 + b^2) without overflow.
 *   grad: da += dy a/y; db += dy b/y   ref: torch.hypot                                         */
MLC_API mlc_tensor *mlc_hypot(mlc_tensor *a, mlc_tensor *b);
/* mlc_add_scalar: x + s.                     grad: dx += dy                                     */
MLC_API mlc_tensor *mlc_add_scalar(mlc_tensor *x, double s);
/* mlc_mul_scalar: s x.                       grad: dx += s dy                                   */
MLC_API mlc_tensor *mlc_mul_scalar(mlc_tensor *x, double s);
/* mlc_div_scalar: x / s, rounded once.       grad: dx += dy/s                                   */
MLC_API mlc_tensor *mlc_div_scalar(mlc_tensor *x, double s);
/* mlc_pow_scalar: x^s.                       grad: dx += dy s x^(s-1), 0 for s = 0              */
MLC_API mlc_tensor *mlc_pow_scalar(mlc_tensor *x, double s);
/* mlc_rsub_scalar: s - x.                    grad: dx -= dy                    ref: torch.rsub  */
MLC_API mlc_tensor *mlc_rsub_scalar(mlc_tensor *x, double s);
/* mlc_clamp: x within [lo, hi]; infinite bounds are none; lo > hi gives hi; NaN stays.
 *   grad   dx += dy where lo < x < hi, as PyTorch 2.15   ref: torch.clamp                    */
MLC_API mlc_tensor *mlc_clamp(mlc_tensor *x, double lo, double hi);
/* mlc_neg: -x.                               grad: dx -= dy                    ref: torch.neg   */
MLC_API mlc_tensor *mlc_neg(mlc_tensor *x);
/* mlc_exp: e^x.                              grad: dx += dy y                  ref: torch.exp   */
MLC_API mlc_tensor *mlc_exp(mlc_tensor *x);
/* mlc_log: natural logarithm.                grad: dx += dy/x                  ref: torch.log   */
MLC_API mlc_tensor *mlc_log(mlc_tensor *x);
/* mlc_sqrt: square root.                     grad: dx += dy/(2y)               ref: torch.sqrt  */
MLC_API mlc_tensor *mlc_sqrt(mlc_tensor *x);
/* mlc_tanh: hyperbolic tangent.              grad: dx += dy (1 - y^2)          ref: torch.tanh  */
MLC_API mlc_tensor *mlc_tanh(mlc_tensor *x);
/* mlc_sigmoid: 1/(1 + e^-x).  grad: dx += dy y (1 - y)  ref: torch.sigmoid                      */
MLC_API mlc_tensor *mlc_sigmoid(mlc_tensor *x);
/* mlc_relu: max(x, 0).                       grad: dx += dy where x > 0        ref: torch.relu  */
MLC_API mlc_tensor *mlc_relu(mlc_tensor *x);
/* mlc_gelu: x Phi(x), exact.                 grad: dx += dy (Phi(x) + x phi(x))  ref: F.gelu    */
MLC_API mlc_tensor *mlc_gelu(mlc_tensor *x);
/* mlc_silu: x sigmoid(x).                    grad: dx += dy (s + x s (1 - s))  ref: F.silu      */
MLC_API mlc_tensor *mlc_silu(mlc_tensor *x);
/* mlc_abs: |x|.                              grad: dx += dy sign(x)            ref: torch.abs   */
MLC_API mlc_tensor *mlc_abs(mlc_tensor *x);
/* mlc_sign: -1, 0 or 1; 0 for NaN.           grad: 0                           ref: torch.sign  */
MLC_API mlc_tensor *mlc_sign(mlc_tensor *x);
/* mlc_square: x^2.  grad: dx += 2 x dy  ref: torch.square                                       */
MLC_API mlc_tensor *mlc_square(mlc_tensor *x);
/* mlc_reciprocal: 1/x.  grad: dx -= dy y^2  ref: torch.reciprocal                               */
MLC_API mlc_tensor *mlc_reciprocal(mlc_tensor *x);
/* mlc_rsqrt: 1/sqrt(x).                      grad: dx -= dy y^3/2              ref: torch.rsqrt */
MLC_API mlc_tensor *mlc_rsqrt(mlc_tensor *x);
/* mlc_expm1: e^x - 1, exact near 0.          grad: dx += dy (y + 1)            ref: torch.expm1 */
MLC_API mlc_tensor *mlc_expm1(mlc_tensor *x);
/* mlc_exp2: 2^x.                             grad: dx += dy y log 2            ref: torch.exp2  */
MLC_API mlc_tensor *mlc_exp2(mlc_tensor *x);
/* mlc_log1p: log(1 + x), exact near 0.       grad: dx += dy/(1 + x)            ref: torch.log1p */
MLC_API mlc_tensor *mlc_log1p(mlc_tensor *x);
/* mlc_log2: logarithm to base 2.             grad: dx += dy/(x log 2)          ref: torch.log2  */
MLC_API mlc_tensor *mlc_log2(mlc_tensor *x);
/* mlc_log10: logarithm to base 10.           grad: dx += dy/(x log 10)         ref: torch.log10 */
MLC_API mlc_tensor *mlc_log10(mlc_tensor *x);
/* mlc_sin: sine.                             grad: dx += dy cos x              ref: torch.sin   */
MLC_API mlc_tensor *mlc_sin(mlc_tensor *x);
/* mlc_cos: cosine.                           grad: dx -= dy sin x              ref: torch.cos   */
MLC_API mlc_tensor *mlc_cos(mlc_tensor *x);
/* mlc_tan: tangent.                          grad: dx += dy (1 + y^2)          ref: torch.tan   */
MLC_API mlc_tensor *mlc_tan(mlc_tensor *x);
/* mlc_asin: arc sine.                        grad: dx += dy/sqrt(1 - x^2)      ref: torch.asin  */
MLC_API mlc_tensor *mlc_asin(mlc_tensor *x);
/* mlc_acos: arc cosine.                      grad: dx -= dy/sqrt(1 - x^2)      ref: torch.acos  */
MLC_API mlc_tensor *mlc_acos(mlc_tensor *x);
/* mlc_atan: arc tangent.                     grad: dx += dy/(1 + x^2)          ref: torch.atan  */
MLC_API mlc_tensor *mlc_atan(mlc_tensor *x);
/* mlc_sinh: hyperbolic sine.                 grad: dx += dy cosh x             ref: torch.sinh  */
MLC_API mlc_tensor *mlc_sinh(mlc_tensor *x);
/* mlc_cosh: hyperbolic cosine.               grad: dx += dy sinh x             ref: torch.cosh  */
MLC_API mlc_tensor *mlc_cosh(mlc_tensor *x);
/* mlc_erf: error function.                   grad: dx += dy 2/sqrt(pi) e^(-x^2)  ref: torch.erf */
MLC_API mlc_tensor *mlc_erf(mlc_tensor *x);
/* mlc_erfc: 1 - erf x, exact in the tail.  grad: dx -= dy 2/sqrt(pi) e^(-x^2)  ref: torch.erfc  */
MLC_API mlc_tensor *mlc_erfc(mlc_tensor *x);
/* mlc_floor: largest integer <= x.           grad: 0                           ref: torch.floor */
MLC_API mlc_tensor *mlc_floor(mlc_tensor *x);
/* mlc_ceil: smallest integer >= x.           grad: 0                           ref: torch.ceil  */
MLC_API mlc_tensor *mlc_ceil(mlc_tensor *x);
/* mlc_round: nearest integer, half to even.  grad: 0                           ref: torch.round */
MLC_API mlc_tensor *mlc_round(mlc_tensor *x);
/* mlc_trunc: towards 0.                      grad: 0                           ref: torch.trunc */
MLC_API mlc_tensor *mlc_trunc(mlc_tensor *x);

/* -- comparison, logic, choice: any dtype; masks and results of comparisons are bool -- */

/* mlc_eq: a == b, as bool.                   ref: torch.eq                                      */
MLC_API mlc_tensor *mlc_eq(mlc_tensor *a, mlc_tensor *b);
/* mlc_ne: a != b, as bool.                   ref: torch.ne                                      */
MLC_API mlc_tensor *mlc_ne(mlc_tensor *a, mlc_tensor *b);
/* mlc_lt: a < b, as bool.                    ref: torch.lt                                      */
MLC_API mlc_tensor *mlc_lt(mlc_tensor *a, mlc_tensor *b);
/* mlc_le: a <= b, as bool.                   ref: torch.le                                      */
MLC_API mlc_tensor *mlc_le(mlc_tensor *a, mlc_tensor *b);
/* mlc_gt: a > b, as bool.                    ref: torch.gt                                      */
MLC_API mlc_tensor *mlc_gt(mlc_tensor *a, mlc_tensor *b);
/* mlc_ge: a >= b, as bool.                   ref: torch.ge                                      */
MLC_API mlc_tensor *mlc_ge(mlc_tensor *a, mlc_tensor *b);
/* mlc_eq_scalar: x == s, s rounded to the dtype of a float x; exact for integers.               */
MLC_API mlc_tensor *mlc_eq_scalar(mlc_tensor *x, double s);
/* mlc_ne_scalar: x != s.                                                                        */
MLC_API mlc_tensor *mlc_ne_scalar(mlc_tensor *x, double s);
/* mlc_lt_scalar: x < s.                                                                         */
MLC_API mlc_tensor *mlc_lt_scalar(mlc_tensor *x, double s);
/* mlc_le_scalar: x <= s.                                                                        */
MLC_API mlc_tensor *mlc_le_scalar(mlc_tensor *x, double s);
/* mlc_gt_scalar: x > s.                                                                         */
MLC_API mlc_tensor *mlc_gt_scalar(mlc_tensor *x, double s);
/* mlc_ge_scalar: x >= s.                                                                        */
MLC_API mlc_tensor *mlc_ge_scalar(mlc_tensor *x, double s);
/* mlc_logical_and: a and b, both bool.       ref: torch.logical_and                             */
MLC_API mlc_tensor *mlc_logical_and(mlc_tensor *a, mlc_tensor *b);
/* mlc_logical_or: a or b, both bool.         ref: torch.logical_or                              */
MLC_API mlc_tensor *mlc_logical_or(mlc_tensor *a, mlc_tensor *b);
/* mlc_logical_xor: one of a and b, both bool.  ref: torch.logical_xor                           */
MLC_API mlc_tensor *mlc_logical_xor(mlc_tensor *a, mlc_tensor *b);
/* mlc_logical_not: not x, which is bool.     ref: torch.logical_not                             */
MLC_API mlc_tensor *mlc_logical_not(mlc_tensor *x);
/* mlc_isnan: which elements are NaN.         ref: torch.isnan                                   */
MLC_API mlc_tensor *mlc_isnan(mlc_tensor *x);
/* mlc_isinf: which are infinite.             ref: torch.isinf                                   */
MLC_API mlc_tensor *mlc_isinf(mlc_tensor *x);
/* mlc_isfinite: which are neither infinite nor NaN.  ref: torch.isfinite                        */
MLC_API mlc_tensor *mlc_isfinite(mlc_tensor *x);
/* mlc_where: mask ? a : b, all three broadcast; a and b of one dtype, any.
 *   grad   da += dy where the mask is set, db += dy elsewhere           ref: torch.where      */
MLC_API mlc_tensor *mlc_where(mlc_tensor *mask, mlc_tensor *a, mlc_tensor *b);
/* mlc_masked_fill: value where the mask, which broadcasts to x, is set; else x. Any dtype.
 *   grad   dx += dy where the mask is not set                     ref: torch.masked_fill      */
MLC_API mlc_tensor *mlc_masked_fill(mlc_tensor *x, mlc_tensor *mask, double value);

/* -- in place: x becomes the result and is returned; its shape and dtype stay. Recorded: gradients
 *    flow as if it were new, and backward notices where old values were needed (VALUE).
 *    err    STATE for a leaf that requires a gradient (but under no-grad) and for memory that a
 *           tensor shares which the tape does not follow; ARG for an expanded x.
 *    test   tests/test_inplace.c -- */

/* mlc_add_: x becomes mlc_add(x, b).         ref: Tensor.add_                                   */
MLC_API mlc_tensor *mlc_add_(mlc_tensor *x, mlc_tensor *b);
/* mlc_sub_: x becomes mlc_sub(x, b).         ref: Tensor.sub_                                   */
MLC_API mlc_tensor *mlc_sub_(mlc_tensor *x, mlc_tensor *b);
/* mlc_mul_: x becomes mlc_mul(x, b).         ref: Tensor.mul_                                   */
MLC_API mlc_tensor *mlc_mul_(mlc_tensor *x, mlc_tensor *b);
/* mlc_div_: x becomes mlc_div(x, b).         ref: Tensor.div_                                   */
MLC_API mlc_tensor *mlc_div_(mlc_tensor *x, mlc_tensor *b);
/* mlc_pow_: x becomes mlc_pow(x, b).         ref: Tensor.pow_                                   */
MLC_API mlc_tensor *mlc_pow_(mlc_tensor *x, mlc_tensor *b);
/* mlc_minimum_: x becomes mlc_minimum(x, b).  ref: Tensor.minimum_                              */
MLC_API mlc_tensor *mlc_minimum_(mlc_tensor *x, mlc_tensor *b);
/* mlc_maximum_: x becomes mlc_maximum(x, b).  ref: Tensor.maximum_                              */
MLC_API mlc_tensor *mlc_maximum_(mlc_tensor *x, mlc_tensor *b);
/* mlc_fmod_: x becomes mlc_fmod(x, b).       ref: Tensor.fmod_                                  */
MLC_API mlc_tensor *mlc_fmod_(mlc_tensor *x, mlc_tensor *b);
/* mlc_remainder_: x becomes mlc_remainder(x, b).  ref: Tensor.remainder_                        */
MLC_API mlc_tensor *mlc_remainder_(mlc_tensor *x, mlc_tensor *b);
/* mlc_floor_divide_: x becomes mlc_floor_divide(x, b).  ref: Tensor.floor_divide_               */
MLC_API mlc_tensor *mlc_floor_divide_(mlc_tensor *x, mlc_tensor *b);
/* mlc_atan2_: x becomes mlc_atan2(x, b).     ref: Tensor.atan2_                                 */
MLC_API mlc_tensor *mlc_atan2_(mlc_tensor *x, mlc_tensor *b);
/* mlc_hypot_: x becomes mlc_hypot(x, b).     ref: Tensor.hypot_                                 */
MLC_API mlc_tensor *mlc_hypot_(mlc_tensor *x, mlc_tensor *b);
/* mlc_add_scalar_: x becomes mlc_add_scalar(x, s).                                              */
MLC_API mlc_tensor *mlc_add_scalar_(mlc_tensor *x, double s);
/* mlc_mul_scalar_: x becomes mlc_mul_scalar(x, s).                                              */
MLC_API mlc_tensor *mlc_mul_scalar_(mlc_tensor *x, double s);
/* mlc_div_scalar_: x becomes mlc_div_scalar(x, s).                                              */
MLC_API mlc_tensor *mlc_div_scalar_(mlc_tensor *x, double s);
/* mlc_pow_scalar_: x becomes mlc_pow_scalar(x, s).                                              */
MLC_API mlc_tensor *mlc_pow_scalar_(mlc_tensor *x, double s);
/* mlc_rsub_scalar_: x becomes mlc_rsub_scalar(x, s).                                            */
MLC_API mlc_tensor *mlc_rsub_scalar_(mlc_tensor *x, double s);
/* mlc_clamp_: x becomes mlc_clamp(x, lo, hi).  ref: Tensor.clamp_                               */
MLC_API mlc_tensor *mlc_clamp_(mlc_tensor *x, double lo, double hi);
/* mlc_neg_: x becomes mlc_neg(x).            ref: Tensor.neg_                                   */
MLC_API mlc_tensor *mlc_neg_(mlc_tensor *x);
/* mlc_exp_: x becomes mlc_exp(x).            ref: Tensor.exp_                                   */
MLC_API mlc_tensor *mlc_exp_(mlc_tensor *x);
/* mlc_log_: x becomes mlc_log(x).            ref: Tensor.log_                                   */
MLC_API mlc_tensor *mlc_log_(mlc_tensor *x);
/* mlc_sqrt_: x becomes mlc_sqrt(x).          ref: Tensor.sqrt_                                  */
MLC_API mlc_tensor *mlc_sqrt_(mlc_tensor *x);
/* mlc_tanh_: x becomes mlc_tanh(x).          ref: Tensor.tanh_                                  */
MLC_API mlc_tensor *mlc_tanh_(mlc_tensor *x);
/* mlc_sigmoid_: x becomes mlc_sigmoid(x).    ref: Tensor.sigmoid_                               */
MLC_API mlc_tensor *mlc_sigmoid_(mlc_tensor *x);
/* mlc_relu_: x becomes mlc_relu(x).          ref: Tensor.relu_                                  */
MLC_API mlc_tensor *mlc_relu_(mlc_tensor *x);
/* mlc_gelu_: x becomes mlc_gelu(x).          ref: Tensor.gelu_                                  */
MLC_API mlc_tensor *mlc_gelu_(mlc_tensor *x);
/* mlc_silu_: x becomes mlc_silu(x).          ref: Tensor.silu_                                  */
MLC_API mlc_tensor *mlc_silu_(mlc_tensor *x);
/* mlc_abs_: x becomes mlc_abs(x).            ref: Tensor.abs_                                   */
MLC_API mlc_tensor *mlc_abs_(mlc_tensor *x);
/* mlc_sign_: x becomes mlc_sign(x).          ref: Tensor.sign_                                  */
MLC_API mlc_tensor *mlc_sign_(mlc_tensor *x);
/* mlc_square_: x becomes mlc_square(x).      ref: Tensor.square_                                */
MLC_API mlc_tensor *mlc_square_(mlc_tensor *x);
/* mlc_reciprocal_: x becomes mlc_reciprocal(x).  ref: Tensor.reciprocal_                        */
MLC_API mlc_tensor *mlc_reciprocal_(mlc_tensor *x);
/* mlc_rsqrt_: x becomes mlc_rsqrt(x).        ref: Tensor.rsqrt_                                 */
MLC_API mlc_tensor *mlc_rsqrt_(mlc_tensor *x);
/* mlc_expm1_: x becomes mlc_expm1(x).        ref: Tensor.expm1_                                 */
MLC_API mlc_tensor *mlc_expm1_(mlc_tensor *x);
/* mlc_exp2_: x becomes mlc_exp2(x).          ref: Tensor.exp2_                                  */
MLC_API mlc_tensor *mlc_exp2_(mlc_tensor *x);
/* mlc_log1p_: x becomes mlc_log1p(x).        ref: Tensor.log1p_                                 */
MLC_API mlc_tensor *mlc_log1p_(mlc_tensor *x);
/* mlc_log2_: x becomes mlc_log2(x).          ref: Tensor.log2_                                  */
MLC_API mlc_tensor *mlc_log2_(mlc_tensor *x);
/* mlc_log10_: x becomes mlc_log10(x).        ref: Tensor.log10_                                 */
MLC_API mlc_tensor *mlc_log10_(mlc_tensor *x);
/* mlc_sin_: x becomes mlc_sin(x).            ref: Tensor.sin_                                   */
MLC_API mlc_tensor *mlc_sin_(mlc_tensor *x);
/* mlc_cos_: x becomes mlc_cos(x).            ref: Tensor.cos_                                   */
MLC_API mlc_tensor *mlc_cos_(mlc_tensor *x);
/* mlc_tan_: x becomes mlc_tan(x).            ref: Tensor.tan_                                   */
MLC_API mlc_tensor *mlc_tan_(mlc_tensor *x);
/* mlc_asin_: x becomes mlc_asin(x).          ref: Tensor.asin_                                  */
MLC_API mlc_tensor *mlc_asin_(mlc_tensor *x);
/* mlc_acos_: x becomes mlc_acos(x).          ref: Tensor.acos_                                  */
MLC_API mlc_tensor *mlc_acos_(mlc_tensor *x);
/* mlc_atan_: x becomes mlc_atan(x).          ref: Tensor.atan_                                  */
MLC_API mlc_tensor *mlc_atan_(mlc_tensor *x);
/* mlc_sinh_: x becomes mlc_sinh(x).          ref: Tensor.sinh_                                  */
MLC_API mlc_tensor *mlc_sinh_(mlc_tensor *x);
/* mlc_cosh_: x becomes mlc_cosh(x).          ref: Tensor.cosh_                                  */
MLC_API mlc_tensor *mlc_cosh_(mlc_tensor *x);
/* mlc_erf_: x becomes mlc_erf(x).            ref: Tensor.erf_                                   */
MLC_API mlc_tensor *mlc_erf_(mlc_tensor *x);
/* mlc_erfc_: x becomes mlc_erfc(x).          ref: Tensor.erfc_                                  */
MLC_API mlc_tensor *mlc_erfc_(mlc_tensor *x);
/* mlc_floor_: x becomes mlc_floor(x).        ref: Tensor.floor_                                 */
MLC_API mlc_tensor *mlc_floor_(mlc_tensor *x);
/* mlc_ceil_: x becomes mlc_ceil(x).          ref: Tensor.ceil_                                  */
MLC_API mlc_tensor *mlc_ceil_(mlc_tensor *x);
/* mlc_round_: x becomes mlc_round(x).        ref: Tensor.round_                                 */
MLC_API mlc_tensor *mlc_round_(mlc_tensor *x);
/* mlc_trunc_: x becomes mlc_trunc(x).        ref: Tensor.trunc_                                 */
MLC_API mlc_tensor *mlc_trunc_(mlc_tensor *x);
/* mlc_fill_: every element becomes value; any dtype.      grad: dx = 0    ref: Tensor.fill_   */
MLC_API mlc_tensor *mlc_fill_(mlc_tensor *x, double value);
/* mlc_zero_: every element becomes 0.                     grad: dx = 0    ref: Tensor.zero_   */
MLC_API mlc_tensor *mlc_zero_(mlc_tensor *x);
/* mlc_copy_: x takes the values of src, which broadcasts; unlike mlc_copy_into it is recorded.
 *   grad   dsrc += dx, then dx = 0                                        ref: Tensor.copy_   */
MLC_API mlc_tensor *mlc_copy_(mlc_tensor *x, mlc_tensor *src);
/* mlc_masked_fill_: x becomes value where the mask is set.          ref: Tensor.masked_fill_  */
MLC_API mlc_tensor *mlc_masked_fill_(mlc_tensor *x, mlc_tensor *mask, double value);

/* -- dropout, reductions, products -- */

/* mlc_dropout: zero with probability p, else x/(1-p); always active, see mlc_nn_dropout.
 *   p in [0, 1]      grad: the same mask, made again from its stream   ref: F.dropout         */
MLC_API mlc_tensor *mlc_dropout(mlc_tensor *x, double p);

/* -- reductions over axes (empty list: all), which go, or stay as 1 with keepdim; argmax and scans
 *    along one axis. Sums of f32, bf16, f16 are carried in f64: error at most (2^-23 + n 2^-53)
 *    sum |x|, then one rounding; of f64 at most 22 2^-53 sum |x|, whatever n. A 0-d x may be
 *    reduced over axis 0.
 *    err    SHAPE: no such axis, or named twice       test: tests/test_reduce.c -- */

/* mlc_sum: sum; of integers and bool i64, modulo 2^64.   grad: dx += dy, repeated
 *   ref    torch.sum                                                                          */
MLC_API mlc_tensor *mlc_sum(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_mean: sum / count of floats; NaN for no elements.  grad: dx += dy/count
 *   ref    torch.mean                                                                         */
MLC_API mlc_tensor *mlc_mean(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_prod: product, carried in f64; of integers and bool i64, modulo 2^64.
 *   grad   dx += dy times the product of the others, also where x is 0      ref: torch.prod   */
MLC_API mlc_tensor *mlc_prod(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_max: largest value of any dtype; NaN wins. mlc_min: smallest.
 *   grad   dy shared evenly by ties      err: SHAPE if a reduced axis is empty
 *   ref    torch.amax, torch.amin                                                             */
MLC_API mlc_tensor *mlc_max(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_min: see mlc_max.                                                                       */
MLC_API mlc_tensor *mlc_min(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_any: whether one is not 0 (NaN is not), mlc_all: whether all are; any dtype, to bool. Of
 *   nothing: false, true.                ref: torch.any, torch.all                            */
MLC_API mlc_tensor *mlc_any(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_all: see mlc_any.                                                                       */
MLC_API mlc_tensor *mlc_all(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_var: sum (x - mean)^2 / (n - correction) of floats, in two passes: the mean in f64, then
 *   deviations from it. NaN where n - correction and the sum are 0; inf where only the first is.
 *   correction: 1 for a sample, 0 for all of a population
 *   grad   dx += dy 2 (x - mean)/(n - correction)   err: ARG: not finite   ref: torch.var     */
MLC_API mlc_tensor *mlc_var(mlc_tensor *x, mlc_dims axes, double correction, bool keepdim);
/* mlc_std: square root of mlc_var.
 *   grad   dx += dy (x - mean)/(n - correction)/y, 0 where y is 0             ref: torch.std  */
MLC_API mlc_tensor *mlc_std(mlc_tensor *x, mlc_dims axes, double correction, bool keepdim);
/* mlc_norm: (sum |x|^p)^(1/p) of floats; p inf, -inf: largest, smallest |x|; 0: count of what is
 *   not 0. Powers are taken and added in f64.
 *   grad   dx += dy sign(x) (|x|/y)^(p-1), 0 where x or y is 0; extremes: shared by ties; p 0: none
 *   err    ARG: p is NaN; SHAPE: nothing, if p is inf or negative
 *   ref    torch.linalg.vector_norm                                                           */
MLC_API mlc_tensor *mlc_norm(mlc_tensor *x, double p, mlc_dims axes, bool keepdim);
/* mlc_logsumexp: log sum exp(x) of floats, from the largest x on; -inf of nothing.
 *   grad   dx += dy exp(x - y)                                          ref: torch.logsumexp  */
MLC_API mlc_tensor *mlc_logsumexp(mlc_tensor *x, mlc_dims axes, bool keepdim);
/* mlc_argmax: index of the first largest value along an axis, i64; mlc_argmin: smallest. Any
 *   dtype; a NaN wins; keepdim leaves the axis with size 1; not differentiable.
 *   err    SHAPE if the axis is empty                        ref: torch.argmax, torch.argmin  */
MLC_API mlc_tensor *mlc_argmax(mlc_tensor *x, int32_t axis, bool keepdim);
/* mlc_argmin: see mlc_argmax.                                                                 */
MLC_API mlc_tensor *mlc_argmin(mlc_tensor *x, int32_t axis, bool keepdim);
/* mlc_cumsum: y_i = x_0 + ... + x_i along an axis; floats carried in f64, others to i64.
 *   grad   dx_i += dy_i + ... + dy_(n-1)                                   ref: torch.cumsum  */
MLC_API mlc_tensor *mlc_cumsum(mlc_tensor *x, int32_t axis);
/* mlc_cumprod: y_i = x_0 ... x_i, as mlc_cumsum.   grad: also right where x is 0
 *   ref    torch.cumprod                                                                      */
MLC_API mlc_tensor *mlc_cumprod(mlc_tensor *x, int32_t axis);
/* mlc_softmax: e^x / sum e^x along an axis, without overflow. A line with a NaN, with +inf or with
 *   nothing but -inf becomes NaN, as in PyTorch. Any axis; the last one is the fastest.
 *   grad   dx += y (dy - sum y dy)   err SHAPE: no such axis   ref: F.softmax
 *   test   tests/test_rows.c                                                                  */
MLC_API mlc_tensor *mlc_softmax(mlc_tensor *x, int32_t axis);
/* mlc_log_softmax: x - log sum e^x along an axis, as mlc_softmax.
 *   grad   dx += dy - e^y sum dy     ref: F.log_softmax                                         */
MLC_API mlc_tensor *mlc_log_softmax(mlc_tensor *x, int32_t axis);
/* mlc_layer_norm: (x - mean) / sqrt(var + eps) w + b, mean and variance (over n) of each row along
 *   the last axis; weight, bias [n] or NULL. Two passes in f64: a large mean cancels nothing; the
 *   gradients of weight and bias are sums over the rows in an order that the shape gives.
 *   grad   with h = (x - mean) r, r = 1/sqrt(var + eps), g = dy w: dx += r (g - mean(g) -
 *          h mean(g h)); dw += sum dy h; db += sum dy
 *   err    SHAPE: x is a scalar, weight or bias is not [n]   ARG: eps is negative or not finite
 *   ref    F.layer_norm over the last axis   test tests/test_rows.c                             */
MLC_API mlc_tensor *mlc_layer_norm(mlc_tensor *x, mlc_tensor *weight, mlc_tensor *bias, double eps);
/* mlc_rms_norm: x / sqrt(mean x^2 + eps) w along the last axis, otherwise as mlc_layer_norm.
 *   ref    F.rms_norm over the last axis                                                        */
MLC_API mlc_tensor *mlc_rms_norm(mlc_tensor *x, mlc_tensor *weight, double eps);

/* mlc_matmul: matrix product [..,m,k] [..,k,n] -> [..,m,n]; leading axes broadcast; a 1-d
 *   input is a row (left) or a column (right) whose axis goes again. Any strides.
 *   grad   da += dy b^T; db += a^T dy      err: SHAPE, DTYPE           ref: torch.matmul      */
MLC_API mlc_tensor *mlc_matmul(mlc_tensor *a, mlc_tensor *b);
/* mlc_linear: y = x w^T + b;  x [..,in], w [out,in], b [out] or NULL.
 *   grad   dx += dy w; dw += dy^T x; db += column sums of dy           ref: F.linear          */
MLC_API mlc_tensor *mlc_linear(mlc_tensor *x, mlc_tensor *w, mlc_tensor *b);

typedef struct mlc_epilogue {          /* what a fused operation does to its result            */
    mlc_act act;                       /* default: none                                        */
} mlc_epilogue;

/* mlc_linear_ex: act(x w^T + b) in one pass; NULL epilogue: none.                             */
MLC_API mlc_tensor *mlc_linear_ex(mlc_tensor *x, mlc_tensor *w, mlc_tensor *b,
                                  const mlc_epilogue *epilogue);

/* -- joining, viewing, indexing: any dtype; test: tests/test_join.c, tests/test_index.c -- */

/* mlc_concat: n >= 1 tensors one behind the other along an axis; other sizes are the same. Empty
 *   1-d tensors are passed over.    grad: each its piece of dy         ref: torch.cat         */
MLC_API mlc_tensor *mlc_concat(mlc_tensor *const *list, int32_t n, int32_t axis);
/* mlc_stack: n tensors of one shape along a new axis.                  ref: torch.stack       */
MLC_API mlc_tensor *mlc_stack(mlc_tensor *const *list, int32_t n, int32_t axis);
/* mlc_split: views of parts of `size` along an axis, the last may be smaller; n_out must be their
 *   number.      err: SHAPE, ARG; then all of out is NULL              ref: torch.split       */
MLC_API mlc_status mlc_split(mlc_tensor *x, int64_t size, int32_t axis, mlc_tensor **out,
                             int32_t n_out);
/* mlc_chunk: views of up to `chunks` parts of one size, the last may be smaller.
 *   out    how many were made, which may be fewer; 0 on error          ref: torch.chunk       */
MLC_API int32_t mlc_chunk(mlc_tensor *x, int32_t chunks, int32_t axis, mlc_tensor **out);
/* mlc_tile: x repeated as a whole, reps[i] times along axis i; counts and axes are aligned at the
 *   last one.                       grad: summed                       ref: torch.tile        */
MLC_API mlc_tensor *mlc_tile(mlc_tensor *x, mlc_dims reps);
/* mlc_repeat: each element n times in a row along an axis.
 *   grad   summed                                         ref: torch.repeat_interleave        */
MLC_API mlc_tensor *mlc_repeat(mlc_tensor *x, int64_t n, int32_t axis);
/* mlc_flip: the order along axes (none given: all) turned round.       ref: torch.flip        */
MLC_API mlc_tensor *mlc_flip(mlc_tensor *x, mlc_dims axes);
/* mlc_roll: element i of an axis goes to i + shift, what falls off comes in again.
 *   ref    torch.roll                                                                         */
MLC_API mlc_tensor *mlc_roll(mlc_tensor *x, int64_t shift, int32_t axis);

typedef enum mlc_pad_mode {
    MLC_PAD_CONSTANT = 0,              /* value                                                */
    MLC_PAD_REFLECT,                   /* mirrored at the first and last element               */
    MLC_PAD_REPLICATE,                 /* the first and last element                           */
    MLC_PAD_CIRCULAR,                  /* the other end                                        */
    MLC_PAD_FORCE_32 = 0x7fffffff
} mlc_pad_mode;

/* mlc_pad: before[i] elements in front of axis i, after[i] behind it; below 0 cuts (constant mode).
 *   grad   of the inner part; of copied borders added to where they come from
 *   err    SHAPE: a border longer than what it copies                  ref: F.pad             */
MLC_API mlc_tensor *mlc_pad(mlc_tensor *x, mlc_dims before, mlc_dims after, mlc_pad_mode mode,
                            double value);
/* mlc_diag: a 1-d x as a diagonal of a matrix of zeros; of a matrix its diagonal, a view.
 *   ref    torch.diag                                                                         */
MLC_API mlc_tensor *mlc_diag(mlc_tensor *x, int64_t offset);

/* Indices are i64 and count from 0; one out of range is a VALUE error (at once on the host, at the
 * scope's end on a device) that names it, and nothing outside is touched. Axes of index, x and src
 * are as many; an index may be smaller than x and src across the axis.                        */

/* mlc_gather: y[..i..] = x[..index[..i..]..] along an axis; of the index's shape.
 *   grad   dx[..index..] += dy                                         ref: torch.gather      */
MLC_API mlc_tensor *mlc_gather(mlc_tensor *x, int32_t axis, mlc_tensor *index);
/* mlc_scatter: x, but for y[..index[..i..]..] = src[..i..]; of several the last one stays.
 *   grad   dx where nothing was written, dsrc what was its own         ref: torch.scatter     */
MLC_API mlc_tensor *mlc_scatter(mlc_tensor *x, int32_t axis, mlc_tensor *index, mlc_tensor *src);
/* mlc_scatter_add: x, and y[..index[..i..]..] += src[..i..], in the order of i for each element;
 *   bf16 and f16 summed in f32; bool: or.
 *   grad   dx += dy; dsrc += dy[..index..]                             ref: torch.scatter_add */
MLC_API mlc_tensor *mlc_scatter_add(mlc_tensor *x, int32_t axis, mlc_tensor *index,
                                    mlc_tensor *src);
/* mlc_scatter_: x becomes mlc_scatter(x, ..); unchanged if an index is out of range.
 *   ref    Tensor.scatter_                                                                    */
MLC_API mlc_tensor *mlc_scatter_(mlc_tensor *x, int32_t axis, mlc_tensor *index, mlc_tensor *src);
/* mlc_scatter_add_: x becomes mlc_scatter_add(x, ..); unchanged if an index is out of range.
 *   ref    Tensor.scatter_add_                                                                */
MLC_API mlc_tensor *mlc_scatter_add_(mlc_tensor *x, int32_t axis, mlc_tensor *index,
                                     mlc_tensor *src);
/* mlc_index_select: rows of x along an axis, in the order of a 1-d index.
 *   grad   summed where a row is taken more than once                  ref: torch.index_select */
MLC_API mlc_tensor *mlc_index_select(mlc_tensor *x, int32_t axis, mlc_tensor *index);
/* mlc_take: elements by their row-major number; of the index's shape.  ref: torch.take        */
MLC_API mlc_tensor *mlc_take(mlc_tensor *x, mlc_tensor *index);
/* mlc_masked_select: [count] elements of x where the mask (bool) is true; both broadcast. Waits
 *   for the device.      err: STATE in mlc_summary                     ref: torch.masked_select */
MLC_API mlc_tensor *mlc_masked_select(mlc_tensor *x, mlc_tensor *mask);
/* mlc_nonzero: coordinates of elements that are not 0, i64 [count, axes], in row-major order. Waits
 *   for the device.      err: STATE in mlc_summary                     ref: torch.nonzero     */
MLC_API mlc_tensor *mlc_nonzero(mlc_tensor *x);
/* mlc_one_hot: i64 [.., classes]: 1 where the index says, else 0.      ref: F.one_hot         */
MLC_API mlc_tensor *mlc_one_hot(mlc_tensor *index, int64_t classes);
/* mlc_tril: matrices [..,n,m] with 0 above diagonal k: kept where column - row <= k.
 *   ref    torch.tril                                                                         */
MLC_API mlc_tensor *mlc_tril(mlc_tensor *x, int64_t k);
/* mlc_triu: with 0 below diagonal k: kept where column - row >= k.     ref: torch.triu        */
MLC_API mlc_tensor *mlc_triu(mlc_tensor *x, int64_t k);

/* mlc_einsum: sum of products of up to 8 float tensors: each axis has a letter, what has the same
 *   letter goes together, letters that the result lacks are summed: "bij,bjk->bik". A letter twice
 *   in an operand is a diagonal; "..." are axes that broadcast; without "->" the result has them
 *   and then the letters that occur once, in order. From left to right, by matrix products.
 *   err    ARG with the position in the equation, SHAPE; test: tests/test_einsum.c
 *   ref    torch.einsum                                                                       */
MLC_API mlc_tensor *mlc_einsum(const char *equation, mlc_tensor *const *in, int32_t n);
/* mlc_outer: a[i] b[j] of two vectors.                                 ref: torch.outer       */
MLC_API mlc_tensor *mlc_outer(mlc_tensor *a, mlc_tensor *b);
/* mlc_dot: sum of a[i] b[i] of two vectors of one length.              ref: torch.dot         */
MLC_API mlc_tensor *mlc_dot(mlc_tensor *a, mlc_tensor *b);

/* -- sorting: any dtype; stable: equals stay in order. NaN counts as largest, -0 equals 0.
 *    indices (NULL: not wanted) takes a tensor, i64: from where along the axis each value came.
 *    err    SHAPE: no such axis, k over its size        test: tests/test_sort.c -- */

/* mlc_sort: x with the elements along an axis in order.
 *   grad   dx[indices] += dy          ref: torch.sort(stable=True)                            */
MLC_API mlc_tensor *mlc_sort(mlc_tensor *x, int32_t axis, bool descending, mlc_tensor **indices);
/* mlc_argsort: the indices alone, i64; not differentiable.             ref: torch.argsort     */
MLC_API mlc_tensor *mlc_argsort(mlc_tensor *x, int32_t axis, bool descending);
/* mlc_topk: the k largest (or smallest) elements along an axis, the first one foremost; of equals
 *   those that come first.
 *   grad   dx[indices] += dy          err: ARG if k < 0          ref: torch.topk              */
MLC_API mlc_tensor *mlc_topk(mlc_tensor *x, int64_t k, int32_t axis, bool largest,
                             mlc_tensor **indices);
/* mlc_multinomial: n indices drawn by weights [c] or [r,c], f32 or f64, not negative; i64 [n] or
 *   [r,n]. Without replacement no index comes twice, and they come in the order of drawing.
 *   err    VALUE: a weight negative, infinite or NaN, a row without any; ARG: more draws without
 *          replacement than weights over 0          ref: torch.multinomial
 *   test   tests/test_random.c                                                                */
MLC_API mlc_tensor *mlc_multinomial(mlc_tensor *p, int64_t n, bool replacement);

/* @@ API.LOSS -------------------------------------------- losses; test: tests/test_loss.c */

/* mlc_mse_loss: mean of (x - target)^2; same shapes.
 *   grad   dx += 2 (x - target)/count; target the negative             ref: F.mse_loss        */
MLC_API mlc_tensor *mlc_mse_loss(mlc_tensor *x, mlc_tensor *target);
/* mlc_mse_loss_ex: with sum or no reduction.                                                  */
MLC_API mlc_tensor *mlc_mse_loss_ex(mlc_tensor *x, mlc_tensor *target, mlc_reduction reduction);

typedef struct mlc_cross_entropy_desc {
    mlc_reduction reduction;           /* default: mean over the rows that count               */
    double        label_smoothing;     /* in [0, 1]; default 0                                 */
    bool          has_ignore_index;    /* default: every row counts                            */
    int64_t       ignore_index;        /* rows with this label count nothing                   */
} mlc_cross_entropy_desc;

/* mlc_cross_entropy: mean of -log softmax(logits)[label];  logits [n,c] or [c], labels i64 [n]
 *   or 0-d.     grad: dlogits += (softmax - onehot)/n                  ref: F.cross_entropy
 *   err    SHAPE, DTYPE; VALUE if a label is not in [0,c): row and label are named            */
MLC_API mlc_tensor *mlc_cross_entropy(mlc_tensor *logits, mlc_tensor *labels);
/* mlc_cross_entropy_ex: with reduction, smoothing, ignored label.                             */
MLC_API mlc_tensor *mlc_cross_entropy_ex(mlc_tensor *logits, mlc_tensor *labels,
                                         const mlc_cross_entropy_desc *desc);

/* @@ API.NN ---------------------------------------------- modules; test: tests/test_nn.c
 * A module is parameters, buffers, children and a forward made of operations. Creators only
 * declare; the first forward, optimizer, load or mlc_module_build lays out all parameters of
 * the root in one block. Modules live until mlc_module_free or the context's end.            */

typedef struct mlc_module_class {
    const char *name;                  /* "Linear": shown by mlc_summary                       */
    mlc_status (*forward)(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                          mlc_tensor **out, int32_t n_out);
    void       (*release)(mlc_module *m);   /* NULL, or frees what the user data owns          */
} mlc_module_class;

typedef enum mlc_init {
    MLC_INIT_ZEROS = 0, MLC_INIT_CONSTANT /* a */, MLC_INIT_UNIFORM /* [a,b) */,
    MLC_INIT_NORMAL /* mean a, deviation b */,
    MLC_INIT_FORCE_32 = 0x7fffffff
} mlc_init;

typedef struct mlc_param_desc {
    mlc_dims  shape;
    mlc_init  init;                    /* default: zeros                                       */
    double    a, b;                    /* of the initialiser                                   */
    mlc_dtype dtype;                   /* used if has_dtype; else the context's                */
    bool      has_dtype;
    bool      buffer;                  /* state without gradient: saved, never trained         */
} mlc_param_desc;

/* mlc_module_create: a module of a user's class; user_bytes of user are copied (NULL: zeros).
 *   err    ARG       test: tests/test_nn.c                                                    */
MLC_API mlc_module *mlc_module_create(mlc_ctx *ctx, const mlc_module_class *cls,
                                      const void *user, size_t user_bytes);
/* mlc_module_free: frees a module and its children; detaches it from its parent first.        */
MLC_API void mlc_module_free(mlc_module *m);
/* mlc_module_user: the module's copy of its user data.                                        */
MLC_API void *mlc_module_user(mlc_module *m);
/* mlc_module_ctx: the context of a module.                                                    */
MLC_API mlc_ctx *mlc_module_ctx(mlc_module *m);
/* mlc_module_declare: a parameter or buffer of m. The tensor returned is stable; its memory
 *   comes with the build.    err: ARG if the name is taken, empty, has a dot or is too long   */
MLC_API mlc_tensor *mlc_module_declare(mlc_module *m, const char *name,
                                       const mlc_param_desc *desc);
/* mlc_module_tie: gives m another module's parameter under a name: shared, laid out once.     */
MLC_API mlc_status mlc_module_tie(mlc_module *m, const char *name, mlc_tensor *param);
/* mlc_module_add: appends a child named by its position: "0", "1", ...
 *   err    ARG if child is NULL (it becomes the context's error) or has a parent              */
MLC_API mlc_status mlc_module_add(mlc_module *parent, mlc_module *child);
/* mlc_module_add_named: appends a child under a name without dots.                            */
MLC_API mlc_status mlc_module_add_named(mlc_module *parent, const char *name, mlc_module *child);
/* mlc_module_child: the i-th child; NULL if there is none.                                    */
MLC_API mlc_module *mlc_module_child(mlc_module *m, int32_t i);
/* mlc_module_param: parameter or buffer by dotted name ("0.weight"), built; NULL and ARG if
 *   there is none.                                                                            */
MLC_API mlc_tensor *mlc_module_param(mlc_module *m, const char *name);
/* mlc_module_build: lays out and initialises what is not yet built of m's root.
 *   Initial values depend on the seed, the order of roots in the context and the name only.   */
MLC_API mlc_status mlc_module_build(mlc_module *m);
/* mlc_module_rebuild: lays out the root again after surgery; values and optimizer state move
 *   along; gradient memory only for what is trainable now.                                    */
MLC_API mlc_status mlc_module_rebuild(mlc_module *m);
/* mlc_module_freeze: parameters of m whose dotted name matches the glob (NULL: all) stop (or,
 *   with false, start again) being trained. What was frozen at the build needs a
 *   mlc_module_rebuild to be trained.          err: ARG if nothing matches a glob             */
MLC_API mlc_status mlc_module_freeze(mlc_module *m, const char *glob, bool frozen);
/* mlc_module_train: training (true, the start) or evaluation for m and all below it.
 *   ref    torch.nn.Module.train, eval                                                        */
MLC_API void mlc_module_train(mlc_module *m, bool training);
/* mlc_module_is_training: which of the two.                                                   */
MLC_API bool mlc_module_is_training(const mlc_module *m);
/* mlc_module_forward: runs a module on arrays of tensors. What it makes and neither returns nor
 *   the tape saves is freed before it returns.                                                */
MLC_API mlc_status mlc_module_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                      mlc_tensor **out, int32_t n_out);
/* mlc_forward: one tensor in, one out; NULL on error.                                         */
MLC_API mlc_tensor *mlc_forward(mlc_module *m, mlc_tensor *x);

typedef struct mlc_param_iter {        /* walks parameters and buffers, shared ones once       */
    mlc_module *root;
    mlc_tensor *tensor;
    char        name[MLC_NAME_BYTES];  /* dotted, from the root                                */
    bool        buffer, trainable;
    int64_t     next;                  /* private                                              */
} mlc_param_iter;

/* mlc_param_iter_make: starts a walk over m; then while (mlc_param_next(&it)).                */
MLC_API mlc_param_iter mlc_param_iter_make(mlc_module *m);
/* mlc_param_next: next parameter or buffer in declaration order; false at the end.            */
MLC_API bool mlc_param_next(mlc_param_iter *it);
/* mlc_module_numel: number of elements of all parameters; only the trainable ones if asked.   */
MLC_API int64_t mlc_module_numel(mlc_module *m, bool trainable_only);
/* mlc_summary: the table Keras prints: layer, output shape, parameters; and the bytes of the
 *   activations one training step keeps. Nothing is computed.    input: shape with the batch  */
MLC_API mlc_status mlc_summary(mlc_module *m, mlc_dims input, mlc_writer write, void *user);

typedef struct mlc_linear_desc {
    int64_t   in, out;                 /* required                                             */
    bool      no_bias;
    bool      has_dtype;               /* default: the context's dtype                         */
    mlc_dtype dtype;
} mlc_linear_desc;

/* mlc_linear_desc_make: in and out set, the rest default.                                     */
MLC_API mlc_linear_desc mlc_linear_desc_make(int64_t in, int64_t out);
/* mlc_nn_linear: y = x w^T + b;  weight [out,in] and bias [out] start in U(+-1/sqrt(in)).
 *   ref    torch.nn.Linear                                                                    */
MLC_API mlc_module *mlc_nn_linear(mlc_ctx *ctx, int64_t in, int64_t out);
/* mlc_nn_linear_ex: without bias, or in another dtype.                                        */
MLC_API mlc_module *mlc_nn_linear_ex(mlc_ctx *ctx, const mlc_linear_desc *desc);
/* mlc_nn_relu: mlc_relu as a module.                                                          */
MLC_API mlc_module *mlc_nn_relu(mlc_ctx *ctx);
/* mlc_nn_gelu: mlc_gelu as a module.                                                          */
MLC_API mlc_module *mlc_nn_gelu(mlc_ctx *ctx);
/* mlc_nn_tanh: mlc_tanh as a module.                                                          */
MLC_API mlc_module *mlc_nn_tanh(mlc_ctx *ctx);
/* mlc_nn_sigmoid: mlc_sigmoid as a module.                                                    */
MLC_API mlc_module *mlc_nn_sigmoid(mlc_ctx *ctx);
/* mlc_nn_silu: mlc_silu as a module.                                                          */
MLC_API mlc_module *mlc_nn_silu(mlc_ctx *ctx);
/* mlc_nn_dropout: mlc_dropout in training, nothing in evaluation.   ref: torch.nn.Dropout     */
MLC_API mlc_module *mlc_nn_dropout(mlc_ctx *ctx, double p);
/* mlc_nn_flatten: all axes but the first become one.                ref: torch.nn.Flatten     */
MLC_API mlc_module *mlc_nn_flatten(mlc_ctx *ctx);
/* mlc_nn_sequential: children one after the other; a linear followed by an activation runs as
 *   one fused operation, with the same values.                      ref: torch.nn.Sequential  */
MLC_API mlc_module *mlc_nn_sequential(mlc_ctx *ctx);

/* @@ API.OPTIM ------------------------------------------- optimizers; test: tests/test_optim.c */

typedef struct mlc_sgd_desc {
    double lr;                         /* default 1e-3                                         */
    double momentum, dampening, weight_decay;
    bool   nesterov;                   /* needs momentum > 0 and dampening 0                   */
} mlc_sgd_desc;

typedef struct mlc_adam_desc {         /* also AdamW; a negative value means really 0          */
    double lr;                         /* default 1e-3                                         */
    double beta1, beta2, eps;          /* defaults 0.9, 0.999, 1e-8                            */
    double weight_decay;               /* default 0 for Adam, 0.01 for AdamW                   */
} mlc_adam_desc;

/* mlc_sgd: p -= lr g.                                              ref: torch.optim.SGD       */
MLC_API mlc_optim *mlc_sgd(mlc_module *m, double lr);
/* mlc_sgd_ex: with momentum b = first step ? g : momentum b + (1-dampening) g.
 *   err    ARG: negative values, nesterov without momentum                                    */
MLC_API mlc_optim *mlc_sgd_ex(mlc_module *m, const mlc_sgd_desc *desc);
/* mlc_adam: Adam with coupled weight decay.        ref: arXiv 1412.6980; torch.optim.Adam     */
MLC_API mlc_optim *mlc_adam(mlc_module *m, double lr);
/* mlc_adam_ex: with betas, eps, weight decay.                                                 */
MLC_API mlc_optim *mlc_adam_ex(mlc_module *m, const mlc_adam_desc *desc);
/* mlc_adamw: Adam with decoupled weight decay 0.01. ref: arXiv 1711.05101; torch.optim.AdamW  */
MLC_API mlc_optim *mlc_adamw(mlc_module *m, double lr);
/* mlc_adamw_ex: with betas, eps, weight decay.                                                */
MLC_API mlc_optim *mlc_adamw_ex(mlc_module *m, const mlc_adam_desc *desc);
/* mlc_optim_free: frees the optimizer and its state.                                          */
MLC_API void mlc_optim_free(mlc_optim *opt);
/* mlc_optim_step: one update of every trainable parameter that has a fresh gradient; then the
 *   gradients are stale. Does nothing and returns the error while one stands.
 *   err    STATE after a failed backward, until mlc_optim_zero_grad, and when the module that
 *          it trains was freed                                                                */
MLC_API mlc_status mlc_optim_step(mlc_optim *opt);
/* mlc_optim_zero_grad: marks all gradients stale without a step.                              */
MLC_API void mlc_optim_zero_grad(mlc_optim *opt);
/* mlc_optim_set_lr: learning rate of the next steps; groups keep their ratio to it.
 *   err    ARG if negative or not finite                                                      */
MLC_API mlc_status mlc_optim_set_lr(mlc_optim *opt, double lr);
/* mlc_optim_lr: the current learning rate.                                                    */
MLC_API double mlc_optim_lr(const mlc_optim *opt);
/* mlc_optim_steps: steps made.                                                                */
MLC_API int64_t mlc_optim_steps(const mlc_optim *opt);

typedef struct mlc_group_desc {
    double lr_scale;                   /* times the optimizer's rate; default 1, negative: 0   */
    double weight_decay;               /* default: the optimizer's; negative: 0                */
} mlc_group_desc;

/* mlc_optim_group: parameters whose dotted name matches the glob ("*.bias") get values of their
 *   own; the last group that matches wins; at most 15 groups.
 *   err    ARG if nothing matches         ref: torch.optim parameter groups                   */
MLC_API mlc_status mlc_optim_group(mlc_optim *opt, const char *glob, const mlc_group_desc *desc);

/* @@ API.DATA -------------------------------------------- loader, CSV; test: tests/test_data.c */

typedef struct mlc_batch {
    mlc_tensor *x, *y;                 /* the loader's own; valid until the next call          */
    int64_t     n;                     /* rows in this batch                                   */
    int64_t     index;                 /* batch number in the epoch, from 0                    */
} mlc_batch;

typedef struct mlc_loader_desc {
    mlc_tensor *x;                     /* required: [n, ...]; copied by the loader             */
    mlc_tensor *y;                     /* [n, ...] or NULL; copied, too                        */
    int64_t     batch;                 /* rows; default 1                                      */
    uint64_t    seed;                  /* of the shuffle                                       */
    bool        shuffle, drop_last;
} mlc_loader_desc;

/* mlc_loader_desc_make: x, y and batch set, the rest default.                                 */
MLC_API mlc_loader_desc mlc_loader_desc_make(mlc_tensor *x, mlc_tensor *y, int64_t batch);
/* mlc_loader_create: batches of rows, in order or in a new order each epoch.
 *   err    ARG: no x, empty data set, batch < 0; SHAPE: x and y differ in rows
 *   ref    torch.utils.data.DataLoader                                                        */
MLC_API mlc_loader *mlc_loader_create(mlc_ctx *ctx, const mlc_loader_desc *desc);
/* mlc_loader_free: frees the loader and its batch buffers.                                    */
MLC_API void mlc_loader_free(mlc_loader *loader);
/* mlc_loader_next: fills b with the next batch; false at the end of an epoch (the next call
 *   begins the next one) and on error. Call it outside or inside a scope.                     */
MLC_API bool mlc_loader_next(mlc_loader *loader, mlc_batch *b);
/* mlc_loader_batches: batches in one epoch.                                                   */
MLC_API int64_t mlc_loader_batches(const mlc_loader *loader);

typedef enum mlc_column {              /* types of a table's columns                           */
    MLC_COLUMN_AUTO = 0,               /* whatever holds all its fields                        */
    MLC_COLUMN_I64, MLC_COLUMN_F64, MLC_COLUMN_TEXT,
    MLC_COLUMN_FORCE_32 = 0x7fffffff
} mlc_column;

typedef struct mlc_csv_desc {
    mlc_dtype dtype;                   /* of a tensor: f32 (default), f64, i64                 */
    char      delimiter;               /* default ','                                          */
    int32_t   skip_lines;              /* to pass over at the begin                            */
    bool      header;                  /* the first row has names, not values                  */
    bool      missing;                 /* of a tensor: "", NA, N/A, null are NaN, no error     */
    const mlc_column *types;           /* of a table's first columns; the others: AUTO         */
    int32_t   n_types;
} mlc_csv_desc;

/* mlc_csv_load: a file of numbers as a tensor [rows, columns] in the current scope, by RFC 4180:
 *   fields may be quoted; lines end with LF, CRLF or CR; a byte order mark, empty lines and those
 *   that begin with # are passed over; NULL desc: defaults. "nan" and "inf" are numbers; the
 *   locale does not matter. Takes memory for the text and the result: two bytes of text may be a
 *   number of 8.
 *   err    IO with line and column: missing file, ragged row, not a number, no rows
 *   test   tests/test_csv.c                                                                   */
MLC_API mlc_tensor *mlc_csv_load(mlc_ctx *ctx, const char *path, const mlc_csv_desc *desc);
/* mlc_csv_save: writes [rows] or [rows,columns], atomically, with names in a first row or NULL;
 *   numbers read back to the same bits.   err: SHAPE; IO                                      */
MLC_API mlc_status mlc_csv_save(mlc_tensor *t, const char *path, const char *const *names);

typedef struct mlc_table mlc_table;    /* a CSV file of columns of different types             */

/* mlc_table_load: reads a CSV file of any columns; NULL desc: with a header. Whole numbers make an
 *   i64 column, numbers (or whole ones with gaps) f64, anything else text. "", NA, N/A, null and
 *   nan are missing.   err: as mlc_csv_load; IO where a field does not have the type asked for */
MLC_API mlc_table *mlc_table_load(mlc_ctx *ctx, const char *path, const mlc_csv_desc *desc);
/* mlc_table_free: frees the table; its texts go with it.                                      */
MLC_API void mlc_table_free(mlc_table *table);
/* mlc_table_rows: number of rows, without the header.                                         */
MLC_API int64_t mlc_table_rows(const mlc_table *table);
/* mlc_table_columns: number of columns.                                                       */
MLC_API int64_t mlc_table_columns(const mlc_table *table);
/* mlc_table_name: name of a column; "" without a header; NULL and an error if there is none.  */
MLC_API const char *mlc_table_name(const mlc_table *table, int64_t col);
/* mlc_table_find: the first column of that name, or -1.                                       */
MLC_API int64_t mlc_table_find(const mlc_table *table, const char *name);
/* mlc_table_type: I64, F64 or TEXT.                                                           */
MLC_API mlc_column mlc_table_type(const mlc_table *table, int64_t col);
/* mlc_table_column: a column as a tensor [rows] in the current scope: i64; f64 with NaN where a
 *   value is missing; for text the number of its category, i64, -1 where missing.             */
MLC_API mlc_tensor *mlc_table_column(mlc_table *table, int64_t col);
/* mlc_table_missing: which rows of a column have no value, bool [rows].                       */
MLC_API mlc_tensor *mlc_table_missing(mlc_table *table, int64_t col);
/* mlc_table_text: a field as it stands in the file, unquoted.                                 */
MLC_API const char *mlc_table_text(const mlc_table *table, int64_t row, int64_t col);
/* mlc_table_categories: number of distinct texts of a text column, without missing ones.      */
MLC_API int64_t mlc_table_categories(mlc_table *table, int64_t col);
/* mlc_table_category: the text of a category; they are sorted by bytes. NULL if there is none. */
MLC_API const char *mlc_table_category(mlc_table *table, int64_t col, int64_t code);

/* mlc_idx_load: a file in MNIST's format as a tensor: u8, i8, i32 (also from 16 bits), f32, f64.
 *   err    IO with path and reason; gzip is named            test: tests/test_idx.c           */
MLC_API mlc_tensor *mlc_idx_load(mlc_ctx *ctx, const char *path);
/* mlc_idx_save: writes u8, i8, i32, f32 or f64 of 1 to 8 axes, atomically.   err: DTYPE; IO   */
MLC_API mlc_status mlc_idx_save(mlc_tensor *t, const char *path);
/* mlc_cifar_load: images of a CIFAR binary file, u8 [n,3,32,32], and labels (or NULL), i64 [n]:
 *   of 10 classes, or the fine ones of 100.     err: ARG; IO: size, label out of range        */
MLC_API mlc_tensor *mlc_cifar_load(mlc_ctx *ctx, const char *path, int32_t classes,
                                   mlc_tensor **labels);

/* @@ API.METRICS ----------------------------------------- scores; test: tests/test_metrics.c */

/* mlc_accuracy: share of rows of scores [n,c] whose argmax is the label, i64 [n]; NaN and an
 *   error if it cannot be had.                                                                */
MLC_API double mlc_accuracy(mlc_tensor *scores, mlc_tensor *labels);

/* @@ API.TRAIN ------------------------------------------- progress; test: tests/test_train.c */

typedef struct mlc_progress {          /* a line on a terminal, whole lines elsewhere          */
    mlc_writer  write;
    void       *user;
    const char *label;
    int64_t     total;
    bool        terminal;              /* draw with \r                                         */
    double      started, shown;        /* seconds; private                                     */
} mlc_progress;

/* mlc_progress_make: a progress line that writes to standard output (write NULL) or a writer;
 *   a terminal gets a bar, at most ten times a second; TERM=dumb, NO_COLOR or a file get
 *   one line for each update that is due every 30 seconds, and the last.                      */
MLC_API mlc_progress mlc_progress_make(const char *label, int64_t total, mlc_writer write,
                                       void *user);
/* mlc_progress_update: done of total; text such as "loss 0.31" goes behind the bar.           */
MLC_API void mlc_progress_update(mlc_progress *p, int64_t done, const char *text);

/* @@ API.IO ---------------------------------------------- files; test: tests/test_io.c */

typedef struct mlc_named {             /* a tensor in a file                                   */
    const char *name;
    mlc_tensor *tensor;
} mlc_named;

/* mlc_safetensors_save: writes tensors to a file, atomically: the old file stays until the new
 *   one is on the disk. metadata: pairs key, value, ..., NULL; or NULL. A save that is killed
 *   leaves path.mlc0.tmp beside it, which the next one to this path takes away: so all savers.
 *   err    ARG: duplicate or invalid UTF-8 name; IO with path and reason                      */
MLC_API mlc_status mlc_safetensors_save(mlc_ctx *ctx, const char *path, const mlc_named *list,
                                        int64_t n, const char *const *metadata);
/* mlc_safetensors_load: reads all tensors of a file into the current scope, sorted by name.
 *   out    *list (in the scope) and *n; stricter than the reference reader: duplicate names
 *          and misuse of __metadata__ are refused; nothing is allocated before sizes are checked,
 *          and never more than 4 times the file and 1 MiB: thousands of tiny tensors are refused
 *   err    IO with path, offset and reason; DTYPE if a dtype is not known here                */
MLC_API mlc_status mlc_safetensors_load(mlc_ctx *ctx, const char *path, const mlc_named **list,
                                        int64_t *n);

typedef struct mlc_safetensors mlc_safetensors;   /* an open file: its header, read and checked */

/* mlc_safetensors_open: checks the whole header; data is read when it is asked for. The object
 *   lives until closed or the context ends. Tensors of dtypes that mlcore lacks (U16, F8_E4M3) are
 *   listed, too; only to read such a one is an error.      err: IO as mlc_safetensors_load    */
MLC_API mlc_safetensors *mlc_safetensors_open(mlc_ctx *ctx, const char *path);
/* mlc_safetensors_close: closes the file; to use a view of it then is a STATE error.           */
MLC_API void mlc_safetensors_close(mlc_safetensors *file);
/* mlc_safetensors_count: number of tensors in the file.                                       */
MLC_API int64_t mlc_safetensors_count(const mlc_safetensors *file);
/* mlc_safetensors_name: name of tensor i, sorted by name; NULL if there is none.              */
MLC_API const char *mlc_safetensors_name(const mlc_safetensors *file, int64_t i);
/* mlc_safetensors_info: dtype and shape of a tensor (each may be NULL).
 *   err    ARG: no such name; DTYPE if mlcore lacks it                                        */
MLC_API mlc_status mlc_safetensors_info(const mlc_safetensors *file, const char *name,
                                        mlc_dtype *dtype, mlc_dims *shape);
/* mlc_safetensors_get: reads one tensor into the current scope; bool becomes 0 and 1.
 *   err    ARG: no such name; DTYPE if mlcore lacks it; IO                                    */
MLC_API mlc_tensor *mlc_safetensors_get(mlc_safetensors *file, const char *name);
/* mlc_safetensors_view: a tensor over the mapped file, without a copy, for reading only: writing
 *   to it changes this process's copy of a page, not the file. Where the data is not aligned for
 *   its dtype, or the context is on a device, a copy as of mlc_safetensors_get. The file must not
 *   shrink while it is mapped (SIGBUS): mlc_save replaces files, it never cuts them.          */
MLC_API mlc_tensor *mlc_safetensors_view(mlc_safetensors *file, const char *name);
/* mlc_safetensors_metadata: value of a key of the file's __metadata__, or NULL.               */
MLC_API const char *mlc_safetensors_metadata(const mlc_safetensors *file, const char *key);

/* mlc_npy_save: writes a tensor as NumPy's .npy, atomically; bf16, which the format lacks, as f32.
 *   err    IO with path and reason                    ref: numpy.save, test: tests/test_npy.c */
MLC_API mlc_status mlc_npy_save(mlc_tensor *t, const char *path);
/* mlc_npy_load: reads a .npy file into the current scope: floats of 2, 4 and 8 bytes, signed
 *   integers of 1, 4, 8, unsigned of 1, bool; i2 and u2 become i32, u4 i64. Either byte order,
 *   either order of axes; the result is row-major.
 *   err    IO with path, offset and reason; DTYPE for others; pickled objects are refused
 *   ref    numpy.load(allow_pickle=False)                                                     */
MLC_API mlc_tensor *mlc_npy_load(mlc_ctx *ctx, const char *path);
/* mlc_npz_save: writes up to 65535 tensors as NumPy's .npz (stored, not compressed), atomically.
 *   err    ARG: duplicate or unusable name; IO                             ref: numpy.savez   */
MLC_API mlc_status mlc_npz_save(mlc_ctx *ctx, const char *path, const mlc_named *list, int64_t n);
/* mlc_npz_load: reads all arrays of a .npz into the current scope, sorted by name. Checksums are
 *   verified. Compressed files need MLC_USE_ZLIB, and memory for what they inflate to: up to 1032
 *   times the file, unless the context's hard_limit is lower.
 *   err    IO with path and reason; UNSUPPORTED if compressed without zlib                    */
MLC_API mlc_status mlc_npz_load(mlc_ctx *ctx, const char *path, const mlc_named **list, int64_t *n);

/* mlc_save: parameters and buffers of m, by dotted name from m, as a safetensors file; a shared
 *   one once. Optimizer state is not in it.   err: IO                                         */
MLC_API mlc_status mlc_save(mlc_module *m, const char *path);
/* mlc_load: reads them back; every name, shape and dtype must be there, and no other. Names are
 *   PyTorch's ("0.weight"): a state dict that Python saved as safetensors loads as it is. On any
 *   error nothing of m has changed.
 *   err    IO: missing and unexpected keys, all of them; SHAPE, DTYPE naming the parameter
 *   ref    torch.nn.Module.load_state_dict(strict=True)          test: tests/test_state.c     */
MLC_API mlc_status mlc_load(mlc_module *m, const char *path);

typedef struct mlc_rename {            /* of a key in the file to the name in the model        */
    const char *from, *to;             /* each '*' of from is any text, for that of to in turn */
} mlc_rename;

typedef struct mlc_load_report {       /* what mlc_load_ex did                                 */
    int64_t loaded, cast;              /* parameters taken; those of another dtype in the file */
    int64_t missing, unexpected;       /* keys that only the model, only the file has          */
    int64_t mismatched;                /* of another shape: left alone                         */
} mlc_load_report;

typedef struct mlc_load_desc {
    bool              partial;         /* missing and unexpected keys are no error             */
    bool              skip_mismatched; /* keys of another shape are left alone, no error       */
    bool              cast;            /* other dtypes are converted                           */
    const char       *prefix;          /* taken off the file's keys that begin with it         */
    const mlc_rename *renames;         /* the first that fits a key, after the prefix, counts  */
    int32_t           n_renames;
    mlc_load_report  *report;          /* out, may be NULL                                     */
    mlc_writer        write;           /* a line for each key that was not loaded; NULL: none  */
    void             *user;
} mlc_load_desc;

/* mlc_load_ex: mlc_load with exceptions; NULL desc: none.
 *   err    as mlc_load; ARG if two keys get one name
 *   ref    load_state_dict(strict=False), consume_prefix_in_state_dict_if_present             */
MLC_API mlc_status mlc_load_ex(mlc_module *m, const char *path, const mlc_load_desc *desc);

/* @@ API.BACKEND ----------------------------------------- the kernel table that devices fill
 * A kernel knows pointers, sizes and strides: no context, no tape, no allocation. All memory it
 * is given is the device's. Strides are in elements; arrays have ndim valid entries.
 * test: tests/test_backend.c                                                                  */

typedef enum mlc_map {                 /* elementwise formulas; a, b, c inputs, s a scalar     */
    MLC_MAP_COPY, MLC_MAP_NEG, MLC_MAP_EXP, MLC_MAP_LOG, MLC_MAP_SQRT, MLC_MAP_TANH,
    MLC_MAP_SIGMOID, MLC_MAP_RELU, MLC_MAP_GELU, MLC_MAP_SILU, MLC_MAP_ADD_S, MLC_MAP_MUL_S,
    MLC_MAP_ADD, MLC_MAP_SUB, MLC_MAP_MUL, MLC_MAP_DIV, MLC_MAP_EQ,
    MLC_MAP_SQDIFF,                    /* (a - b)^2                                            */
    MLC_MAP_SQRT_GRAD,                 /* a / (2b)       a: dy, b: y                           */
    MLC_MAP_TANH_GRAD,                 /* a (1 - b^2)    a: dy, b: y                           */
    MLC_MAP_SIGMOID_GRAD,              /* a b (1 - b)    a: dy, b: y                           */
    MLC_MAP_RELU_GRAD,                 /* b > 0 ? a : 0  a: dy, b: y                           */
    MLC_MAP_GELU_GRAD,                 /* a gelu'(b)     a: dy, b: x                           */
    MLC_MAP_SILU_GRAD,                 /* a silu'(b)     a: dy, b: x                           */
    MLC_MAP_DIV_GRAD_B,                /* -a b/c^2       a: dy, b/c the quotient               */
    MLC_MAP_SHARE,                     /* a b / c        a: mask, b: dy, c: count of ties      */
    MLC_MAP_SQDIFF_GRAD,               /* s a (b - c)    a: dy                                 */
    MLC_MAP_COUNT,
    /* Formulas of the kernel math: what most networks do without.                             */
    MLC_MATH_ABS = MLC_MAP_COUNT, MLC_MATH_SIGN, MLC_MATH_SQUARE,
    MLC_MATH_RECIPROCAL, MLC_MATH_RSQRT, MLC_MATH_EXPM1, MLC_MATH_EXP2, MLC_MATH_LOG1P,
    MLC_MATH_LOG2, MLC_MATH_LOG10, MLC_MATH_SIN, MLC_MATH_COS, MLC_MATH_TAN, MLC_MATH_ASIN,
    MLC_MATH_ACOS, MLC_MATH_ATAN, MLC_MATH_SINH, MLC_MATH_COSH, MLC_MATH_ERF, MLC_MATH_ERFC,
    MLC_MATH_FLOOR, MLC_MATH_CEIL, MLC_MATH_ROUND, MLC_MATH_TRUNC, MLC_MATH_DIV_S, MLC_MATH_POW_S,
    MLC_MATH_CUBE, MLC_MATH_ROOT,      /* a to the power of 3, of 0.5                          */
    MLC_MATH_IS_ZERO,                  /* a == 0 ? 1 : 0                                       */
    MLC_MATH_ZERO_TO_ONE,              /* a == 0 ? 1 : a                                       */
    MLC_MATH_RSUB_S,                   /* s - a                                                */
    MLC_MATH_CLAMP,                    /* a within [s, t]                                      */
    MLC_MATH_MIN, MLC_MATH_MAX, MLC_MATH_FMOD, MLC_MATH_REMAINDER, MLC_MATH_FLOOR_DIV,
    MLC_MATH_ATAN2, MLC_MATH_HYPOT, MLC_MATH_POW,
    MLC_MATH_RATIO,                    /* b == 0 ? 0 : a / b                                   */
    MLC_MATH_ABS_GRAD,                 /* a sign b; the gradients: a is dy, b is x or y        */
    MLC_MATH_SQUARE_GRAD, MLC_MATH_RECIPROCAL_GRAD, MLC_MATH_RSQRT_GRAD, MLC_MATH_EXPM1_GRAD,
    MLC_MATH_EXP2_GRAD, MLC_MATH_LOG1P_GRAD, MLC_MATH_LOG2_GRAD, MLC_MATH_LOG10_GRAD,
    MLC_MATH_SIN_GRAD, MLC_MATH_COS_GRAD, MLC_MATH_TAN_GRAD, MLC_MATH_ASIN_GRAD,
    MLC_MATH_ACOS_GRAD, MLC_MATH_ATAN_GRAD, MLC_MATH_SINH_GRAD, MLC_MATH_COSH_GRAD,
    MLC_MATH_ERF_GRAD, MLC_MATH_ERFC_GRAD, MLC_MATH_POW_S_GRAD, MLC_MATH_CUBE_GRAD,
    MLC_MATH_CLAMP_GRAD,
    MLC_MATH_MIN_GRAD_A,               /* of two inputs: a is dy, b and c are the inputs       */
    MLC_MATH_MIN_GRAD_B, MLC_MATH_MAX_GRAD_A, MLC_MATH_MAX_GRAD_B, MLC_MATH_FMOD_GRAD_B,
    MLC_MATH_REMAINDER_GRAD_B, MLC_MATH_ATAN2_GRAD_A, MLC_MATH_ATAN2_GRAD_B,
    MLC_MATH_HYPOT_GRAD_A, MLC_MATH_HYPOT_GRAD_B,
    MLC_MATH_POW_GRAD_A,               /* a c b^(c-1)                                          */
    MLC_MATH_POW_GRAD_B,               /* a b^c log b                                          */
    MLC_MATH_PROD_GRAD,                /* a / b; c zeros: a where b is the only one, else 0    */
    MLC_MATH_END,
    MLC_MAP_FORCE_32 = 0x7fffffff
} mlc_map;

typedef enum mlc_index {               /* what goes through an index                           */
    MLC_INDEX_GATHER,                  /* line = data[index]; 0 where the index is outside     */
    MLC_INDEX_SCATTER,                 /* data[index] = line, in order: the last one stays     */
    MLC_INDEX_ADD,                     /* data[index] += line, in order; not for bf16, f16     */
    MLC_INDEX_TAKE,                    /* line = data[index], data[index] = 0; from last to first */
    MLC_INDEX_FORCE_32 = 0x7fffffff
} mlc_index;

typedef enum mlc_compare {             /* a, b: equal, ...; of bool: and, or, exclusive or     */
    MLC_COMPARE_EQ, MLC_COMPARE_NE, MLC_COMPARE_LT, MLC_COMPARE_LE, MLC_COMPARE_GT,
    MLC_COMPARE_GE, MLC_COMPARE_AND, MLC_COMPARE_OR, MLC_COMPARE_XOR,
    MLC_COMPARE_NOT, MLC_COMPARE_NAN, MLC_COMPARE_INF, MLC_COMPARE_FINITE,   /* of a alone      */
    MLC_COMPARE_FORCE_32 = 0x7fffffff
} mlc_compare;

typedef enum mlc_reduce {
    MLC_REDUCE_SUM, MLC_REDUCE_MAX,    /* the kernel reduce; all of them: fold                 */
    MLC_REDUCE_MIN, MLC_REDUCE_PROD,
    MLC_REDUCE_ANY, MLC_REDUCE_ALL,    /* one is, all are not 0                                */
    MLC_REDUCE_NORM,                   /* (sum |x|^p)^(1/p); p 0: count of what is not 0       */
    MLC_REDUCE_VAR, MLC_REDUCE_STD,    /* sum (x - shift)^2 / divisor, its root                */
    MLC_REDUCE_LSE,                    /* log sum exp(x - shift) + shift                       */
    MLC_REDUCE_FORCE_32 = 0x7fffffff
} mlc_reduce;
typedef enum mlc_scan {                /* y_i from x_0 .. x_i                                  */
    MLC_SCAN_SUM, MLC_SCAN_PROD,
    MLC_SCAN_PROD_GRAD,                /* out_i = y_(i-1) s_i, s_i = dy_i + in_(i+1) s_(i+1)   */
    MLC_SCAN_FORCE_32 = 0x7fffffff
} mlc_scan;
typedef enum mlc_random {
    MLC_RANDOM_UNIFORM,                /* in [a,b)                                             */
    MLC_RANDOM_NORMAL,                 /* mean a, deviation b                                  */
    MLC_RANDOM_TRUNCATED,              /* the same, given that it is in [lo,hi]                */
    MLC_RANDOM_BERNOULLI,              /* 1 with probability a, else 0; any dtype              */
    MLC_RANDOM_INTEGER,                /* first, ... first + count - 1; any dtype              */
    MLC_RANDOM_PERMUTATION,            /* 0 .. n - 1 in random order; i64                      */
    MLC_RANDOM_FORCE_32 = 0x7fffffff
} mlc_random;
typedef enum mlc_rule { MLC_RULE_SGD, MLC_RULE_ADAM, MLC_RULE_FORCE_32 = 0x7fffffff } mlc_rule;

struct mlc_k_map {                     /* out = f(in...), or out += f(in...)                   */
    mlc_map     op;
    mlc_dtype   dtype;                 /* f32 f64 bf16 f16                                     */
    int32_t     ndim, accumulate;
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in[3];    int64_t in_stride[3][MLC_MAX_DIMS];     /* unused inputs: NULL       */
    double      s, t;
};
struct mlc_k_math { struct mlc_k_map map; };                    /* the same, formulas MLC_MATH_ */
struct mlc_k_compare {                 /* out = in[0] op in[1], as bytes 0 and 1; any dtype    */
    mlc_compare op;
    mlc_dtype   dtype;
    int32_t     ndim;
    int64_t     shape[MLC_MAX_DIMS];
    uint8_t    *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in[2];    int64_t in_stride[2][MLC_MAX_DIMS];     /* in[1] NULL: s instead     */
    double      s;
};
struct mlc_k_where {                   /* out (+)= mask ? in[0] : in[1]; any dtype             */
    mlc_dtype   dtype;
    int32_t     ndim, accumulate;                                 /* accumulate: floats only   */
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const uint8_t *mask;  int64_t mask_stride[MLC_MAX_DIMS];
    const void *in[2];    int64_t in_stride[2][MLC_MAX_DIMS];     /* NULL: s instead           */
    double      s;
};
struct mlc_k_cast {                    /* out = (dtype) in, any strides                        */
    mlc_dtype   out_dtype, in_dtype;
    int32_t     ndim;
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
};
struct mlc_k_reduce {                  /* out (+)= reduce(in) / divisor, op SUM or MAX         */
    mlc_reduce  op;
    mlc_dtype   dtype, out_dtype;      /* floats                                               */
    int32_t     ndim, accumulate;
    int64_t     shape[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];       /* 0 on reduced axes         */
    double      divisor;
    void       *workspace; size_t workspace_bytes;
};
struct mlc_k_fold {                    /* any op; dtypes: any to the same, i64, f64 or bool    */
    struct mlc_k_reduce r;             /* divisor and accumulate: of floats only               */
    double        p;                   /* of a norm                                            */
    const double *shift;  int64_t shift_stride[MLC_MAX_DIMS];     /* as out's; NULL: 0; or out */
};
struct mlc_k_scan {                    /* along an axis, from its end on if reverse            */
    mlc_scan    op;
    mlc_dtype   dtype, out_dtype;      /* floats: the same, carried in f64; else i64           */
    int32_t     ndim, axis, reverse, accumulate;
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    const void *y;        int64_t y_stride[MLC_MAX_DIMS];         /* PROD_GRAD only, reversed  */
    const void *dy;       int64_t dy_stride[MLC_MAX_DIMS];
};
struct mlc_k_gemm {                    /* c = act(alpha a b + bias) + beta c, batched          */
    mlc_dtype   dtype;
    mlc_act     act;
    int64_t     m, n, k;
    int64_t     batch;                 /* products; strides below step between them            */
    const void *a;        int64_t a_row, a_col, a_batch;
    const void *b;        int64_t b_row, b_col, b_batch;
    void       *c;        int64_t c_row, c_col, c_batch;
    const void *bias;                  /* [n] or NULL                                          */
    void       *pre;                   /* with an act: NULL, or takes alpha a b + bias, as c   */
    double      alpha, beta;           /* beta 0: c is not read                                */
    void       *workspace; size_t workspace_bytes;
};
struct mlc_k_fill   { mlc_dtype dtype; int64_t n; void *out;
                      double start, step; int64_t origin; /* start + (i - origin) step */ };
struct mlc_k_random { mlc_random kind; mlc_dtype dtype; int64_t n; void *out;
                      uint64_t seed, stream; double a, b, lo, hi;
                      int64_t first; uint64_t count; };
struct mlc_k_dropout {                 /* out = keep ? in/(1-p) : 0; word i of the stream      */
    mlc_dtype   dtype;
    int32_t     accumulate;
    int64_t     n;
    void       *out; const void *in;
    uint64_t    seed, stream;
    double      p;
};
struct mlc_k_xent {                    /* rows of logits against labels                        */
    mlc_dtype      dtype;
    mlc_reduction  reduction;
    int64_t        n, c;
    const void    *logits;  int64_t row;           /* stride between rows; columns are dense   */
    const int64_t *labels;  int64_t label_stride;
    double         smoothing;
    int64_t        ignore;  int32_t has_ignore;
    void          *loss;               /* [1], or [n] if not reduced                           */
    void          *lse;                /* [2n]: largest logits, logs of sum exp(x - max)       */
    void          *norm;               /* [1]: what the sum was divided by                     */
    int64_t       *error;              /* error word: see mlc_k_error                          */
    void          *workspace; size_t workspace_bytes;
};
struct mlc_k_xent_grad {               /* dx (+)= dy (softmax - target)/norm                   */
    mlc_dtype      dtype;
    int32_t        accumulate;
    int64_t        n, c;
    const void    *logits;  int64_t row;
    const int64_t *labels;  int64_t label_stride;
    double         smoothing;
    int64_t        ignore;  int32_t has_ignore;
    const void    *lse, *norm, *dy;  int64_t dy_stride;          /* 0: one dy for all rows     */
    void          *dx;      int64_t dx_row;
};
struct mlc_k_softmax {                 /* along an axis; log: its logarithm                    */
    mlc_dtype   dtype;                 /* floats                                               */
    int32_t     ndim, axis, log;
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
};
struct mlc_k_softmax_grad {            /* out (+)= y (dy - sum y dy); log: dy - e^y sum dy     */
    mlc_dtype   dtype;
    int32_t     ndim, axis, log, accumulate;
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *y;        int64_t y_stride[MLC_MAX_DIMS];
    const void *dy;       int64_t dy_stride[MLC_MAX_DIMS];
};
struct mlc_k_norm {                    /* out = (in - mean) r weight + bias along the last axis */
    mlc_dtype   dtype;                 /* floats                                               */
    int32_t     ndim, rms;             /* rms: the mean is taken as 0                          */
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    const void *weight, *bias;         /* dense rows, or NULL                                  */
    double      eps;
    double     *stat;                  /* [rows,3]: shift, mean - shift, 1/sqrt(variance + eps) */
};
struct mlc_k_norm_grad {               /* dx (+)= ...; dweight (+)= ...; dbias (+)= sum dy     */
    mlc_dtype   dtype;
    int32_t     ndim, rms;
    int64_t     shape[MLC_MAX_DIMS];
    void       *dx;       int64_t dx_stride[MLC_MAX_DIMS];        /* NULL: not wanted          */
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    const void *dy;       int64_t dy_stride[MLC_MAX_DIMS];
    const void *weight;   const double *stat;
    void       *dweight;  int64_t dweight_stride;                 /* NULL: not wanted          */
    void       *dbias;    int64_t dbias_stride;
    int32_t     dx_accumulate, dweight_accumulate, dbias_accumulate;
    void       *workspace; size_t workspace_bytes;
};
struct mlc_k_argmax {                  /* first largest (smallest) along an axis; NaN wins     */
    mlc_dtype   dtype;                 /* any                                                  */
    int32_t     ndim, axis, smallest;
    int64_t     shape[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    int64_t    *out;      int64_t out_stride[MLC_MAX_DIMS];       /* that of the axis is ignored */
};
struct mlc_k_take   { int64_t n, rows; size_t row_bytes; const void *in; const int64_t *index;
                      void *out; };
struct mlc_k_index {                   /* along one axis; any dtype; nothing outside is touched */
    mlc_index   op;
    mlc_dtype   dtype;
    int32_t     ndim, axis;
    int64_t     shape[MLC_MAX_DIMS];   /* of index and line                                    */
    int64_t     limit;                 /* size of data's axis                                  */
    void       *data;     int64_t data_stride[MLC_MAX_DIMS];
    void       *line;     int64_t line_stride[MLC_MAX_DIMS];
    const int64_t *index; int64_t index_stride[MLC_MAX_DIMS];
    int64_t     kind;                  /* what goes to error[0] if an index is outside         */
    int64_t    *error;                 /* then only a gather has written anything              */
};
struct mlc_k_nonzero {                 /* places of what is not 0 in n dense elements          */
    mlc_dtype   dtype;
    int32_t     ndim, coordinates;     /* out: [count] numbers, or [count,ndim] coordinates    */
    int64_t     shape[MLC_MAX_DIMS], n;
    const void *in;
    int64_t    *count;
    int64_t    *out;                   /* NULL: only count                                     */
    void       *workspace; size_t workspace_bytes;
};
struct mlc_k_band {                    /* out = lo <= column - row <= hi ? in : 0; any dtype   */
    mlc_dtype   dtype;
    int32_t     ndim;                  /* at least 2; rows and columns are the last            */
    int64_t     shape[MLC_MAX_DIMS];
    void       *out;      int64_t out_stride[MLC_MAX_DIMS];
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    int64_t     lo, hi;
};
struct mlc_k_pad {                     /* out = in between borders; any dtype                  */
    mlc_dtype    dtype;
    mlc_pad_mode mode;
    int32_t      ndim;                 /* at least 1                                           */
    int64_t      before[MLC_MAX_DIMS]; /* below 0: so many of in are left out; from -in_shape  */
    int64_t      shape[MLC_MAX_DIMS];  /* of out, which is dense                               */
    int64_t      in_shape[MLC_MAX_DIMS], in_stride[MLC_MAX_DIMS];
    void        *out;
    const void  *in;
    double       value;                /* of a constant border                                 */
};
struct mlc_k_sort {                    /* rows along an axis in order, stable; any dtype       */
    mlc_dtype   dtype;
    int32_t     ndim, axis, descending;
    int64_t     shape[MLC_MAX_DIMS];   /* of in                                                */
    int64_t     k;                     /* this many of each row; at most shape[axis]           */
    const void *in;       int64_t in_stride[MLC_MAX_DIMS];
    void       *values;   int64_t values_stride[MLC_MAX_DIMS];    /* NULL: not wanted          */
    int64_t    *index;    int64_t index_stride[MLC_MAX_DIMS];     /* NULL: not wanted          */
    void       *workspace; size_t workspace_bytes;
};
struct mlc_k_multinomial {             /* k draws from each row of weights [n,c]; out [n,k]    */
    mlc_dtype   dtype;                 /* f32 f64                                              */
    int32_t     replacement;
    int64_t     n, c, k;
    const void *weights;  int64_t row, col;
    int64_t    *out;
    uint64_t    seed, stream;
    int64_t    *error;                 /* {bad, row, category}: not finite or negative; or     */
    int64_t     bad, few;              /* {few, row, weights over 0, k}                        */
    void       *workspace; size_t workspace_bytes;
};
struct mlc_k_finite { mlc_dtype dtype; int64_t n; const void *in; int64_t *first; /* or -1 */ };
struct mlc_optim_step {                /* what changes per step; read from device memory       */
    double  lr, weight_decay;
    double  bias1, bias2;              /* 1 - beta^t                                           */
    double  grad_scale;
    int64_t first, skip;
};
struct mlc_k_optim {                   /* one pass over a run of parameters                    */
    mlc_rule    rule;
    mlc_dtype   dtype;
    int32_t     decoupled, nesterov;
    int64_t     n;
    void       *p; const void *g; void *m, *v;     /* m: momentum or first moment; may be NULL */
    const struct mlc_optim_step *step;
    double      momentum, dampening, beta1, beta2, eps;
};

/* The error word of a device: int64_t[4] = {kind, row, value, limit}; the lowest row wins. The low
 * byte of the kind is one of these, what is above it is the library's.                        */
#define MLC_K_ERROR_LABEL 1
#define MLC_K_ERROR_INDEX 2
#define MLC_K_ERROR_WEIGHT 3
#define MLC_K_ERROR_FEW 4

#define MLC_KERNELS(X) \
    X(map) X(cast) X(reduce) X(gemm) X(fill) X(random) X(dropout) X(xent) X(xent_grad) \
    X(argmax) X(take) X(finite) X(optim) X(math) X(compare) X(where) \
    X(index) X(nonzero) X(band) X(sort) X(multinomial) X(fold) X(scan) X(pad) \
    X(softmax) X(softmax_grad) X(norm) X(norm_grad)

#define MLC__KERNEL_FIELDS(name) \
    mlc_status (*name)(void *dev, const struct mlc_k_##name *args); \
    size_t     (*name##_workspace)(void *dev, const struct mlc_k_##name *args);
typedef struct mlc_kernels {           /* NULL kernel: not offered. NULL workspace: none needed */
    MLC_KERNELS(MLC__KERNEL_FIELDS)
} mlc_kernels;

typedef enum mlc_copy_kind { MLC_COPY_TO_DEVICE, MLC_COPY_TO_HOST, MLC_COPY_ON_DEVICE,
                             MLC_COPY_FORCE_32 = 0x7fffffff } mlc_copy_kind;

typedef struct mlc_backend {
    uint32_t    abi, size;             /* MLC_ABI and sizeof(mlc_backend)                      */
    const char *name;                  /* "cuda"                                               */
    mlc_status (*open)(int32_t index, void **dev);
    void       (*close)(void *dev);
    mlc_status (*alloc)(void *dev, size_t bytes, void **ptr);    /* aligned to 64 bytes        */
    void       (*release)(void *dev, void *ptr, size_t bytes);
    mlc_status (*copy)(void *dev, void *dst, const void *src, size_t bytes, mlc_copy_kind kind);
    mlc_status (*sync)(void *dev);     /* also reports earlier asynchronous failures           */
    mlc_kernels kernels;
} mlc_backend;

/* mlc_backend_register: adds a device for mlc_ctx_desc.device; up to 8, for the process.
 *   err    ARG: wrong abi or size, a missing function, the name is taken or the table is full */
MLC_API mlc_status mlc_backend_register(const mlc_backend *backend);
/* mlc_cpu_kernels: the CPU's row for an ISA level, or NULL if this CPU lacks it. Kernels called
 *   with dev NULL run on the calling thread.                                                  */
MLC_API const mlc_kernels *mlc_cpu_kernels(mlc_isa isa);

#ifdef __cplusplus
}
#endif
#endif /* MLCORE_H */

#if defined(MLCORE_IMPLEMENTATION) && !defined(MLCORE_IMPLEMENTED)
#define MLCORE_IMPLEMENTED

/* @@ IMPL.PLATFORM --------------------------------------- compiler, system, clock, bits */

/* The rest of -ffast-math is undone below; but with this part of it gcc compares as if there were
 * no NaN, and no pragma of gcc or clang brings that back. */
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#  error "mlcore: NaN checks need -fno-finite-math-only after -ffast-math, for this file only"
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ < 0 || __FLT_EVAL_METHOD__ == 1 || \
                                     __FLT_EVAL_METHOD__ == 2)
#  error "mlcore: x87 rounds differently each time: on 32-bit x86 add -msse2 -mfpmath=sse"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#  error "mlcore: this system is big-endian; files are read and written as if it were not"
#endif
#if !defined(__GNUC__)
#  error "mlcore: the implementation needs gcc or clang (or a compiler that takes their builtins)"
#endif

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#  define MLC__POSIX 1
#  include <fcntl.h>
#  include <sys/file.h>
#  include <sys/mman.h>
#  include <sys/stat.h>
#  include <unistd.h>
#else
#  define MLC__POSIX 0
#endif
#if defined(__linux__)
#  include <sys/syscall.h>
#endif
#if defined(_WIN32)                    /* MinGW */
#  include <fcntl.h>
#  include <io.h>
#  include <malloc.h>
#  include <sys/stat.h>
#  include <unistd.h>
#endif
#if (MLC__POSIX || defined(_WIN32)) && !defined(MLC_NO_STDIO)
#  define MLC__FILES 1
#else
#  define MLC__FILES 0
#endif
/* No system, no pool: loops then run on the caller's thread, with the same bits. */
#if !MLC__POSIX && !defined(MLC_NO_THREADS)
#  define MLC_NO_THREADS               /* the pool is POSIX threads */
#endif
#ifndef MLC_NO_THREADS
#  include <pthread.h>
#endif
/* What may be compiled, not what this CPU has: each kernel carries its own target attribute, so the
 * file needs no -m flag and the choice is made at run time (IMPL.CPU). */
#if defined(__x86_64__) && !defined(MLC_NO_SIMD) && (!defined(_WIN32) || defined(__clang__))
#  define MLC__X86 1                   /* gcc for Windows aligns no stack for AVX: bug 54412 */
#  include <immintrin.h>
#else
#  define MLC__X86 0
#endif
#if MLC__X86 && !defined(MLC_NO_AVX512)
#  define MLC__AVX512 1
#else
#  define MLC__AVX512 0
#endif
#if defined(__aarch64__) && !defined(MLC_NO_SIMD)
#  define MLC__NEON 1                  /* every AArch64 has it: nothing to detect */
#  include <arm_neon.h>
#else
#  define MLC__NEON 0
#endif

#ifdef __cplusplus
extern "C" {
/* Both languages compile the implementation: C++ wants the cast from void, and this one refuses to
 * turn a float * into an int64_t * by accident. */
#  define MLC__CAST(type, p) (static_cast<type>(p))
#else
#  define MLC__CAST(type, p) ((type)(p))
#endif

/* -std=c11 hides what the files below need; if <stdio.h> came first no macro can bring it back.
 * The same prototypes as in glibc and musl. */
#if defined(__linux__) && defined(__STRICT_ANSI__) && !defined(__cplusplus)
extern int  fsync(int fd);
extern long syscall(long number, ...);
extern int  madvise(void *address, size_t bytes, int advice);
#endif
/* MinGW takes printf from msvcrt, which knows neither %zu nor C99's rounding. Undone at the end. */
#if defined(__MINGW32__)
#  undef snprintf
#  undef vsnprintf
#  define snprintf  __mingw_snprintf
#  define vsnprintf __mingw_vsnprintf
#endif
/* Declared free of side effects (errno), square roots vectorise; no pragma of gcc does that. */
#if !defined(__cplusplus)
extern float  sqrtf(float x) __attribute__((const));
extern double sqrt(double x) __attribute__((const));
#elif defined(__GLIBC__)
extern float  sqrtf(float x) noexcept __attribute__((const));
extern double sqrt(double x) noexcept __attribute__((const));
#endif
#if defined(_WIN32)                    /* each open has it: no text mode, no heirs */
#  define O_CLOEXEC (O_BINARY | O_NOINHERIT)
#elif !defined(O_CLOEXEC)
#  define O_CLOEXEC 0
#endif
#if !defined(MAP_NORESERVE) && defined(__linux__) && \
    (defined(__x86_64__) || defined(__i386__) || defined(__aarch64__))
#  define MAP_NORESERVE 0x4000         /* also hidden by -std=c11 */
#elif !defined(MAP_NORESERVE)
#  define MAP_NORESERVE 0
#endif
#ifndef O_NONBLOCK                     /* a FIFO must be refused, not waited for */
#  define O_NONBLOCK 0
#endif

#ifndef MLC_ASSERT                     /* only for what is proved; user input gets an error */
#  ifdef MLC_DEBUG
#    define MLC_ASSERT(c) ((c) ? (void)0 : abort())
#  else
#    define MLC_ASSERT(c) ((void)0)
#  endif
#endif

/* The same bits from every compiler: a*b+c is fused only where a kernel says so, and sums are not
 * put in another order, whatever -ffast-math says. (clang's -ffp-contract=fast fuses all the same:
 * then last bits differ.) */
#if defined(__clang__)
#  pragma clang diagnostic push         /* a loop with a libm call stays scalar: no news */
#  pragma clang diagnostic ignored "-Wpass-failed"
#  if defined(__x86_64__) || defined(__i386__)
#    pragma float_control(precise, on, push)
#  endif
#  pragma clang fp contract(off) reassociate(off)
#else
#  pragma GCC push_options              /* no-unsafe would bring traps back: it comes first */
#  pragma GCC optimize("fp-contract=off,no-unsafe-math-optimizations,no-associative-math")
#  pragma GCC optimize("no-reciprocal-math,signed-zeros,no-trapping-math")
#endif

/* BODY is INLINE for the text of a kernel that is stamped once per ISA: only when it is really
 * inlined does it take over the target attribute of its wrapper. At -O0 nothing is: each copy would
 * have its own place on the stack, 17 KB for the tiles of AVX-512. Where size counts and there is
 * but one stamp, the compiler decides. */
#if defined(__OPTIMIZE__) && !(defined(__OPTIMIZE_SIZE__) && defined(MLC_NO_SIMD))
#  define MLC__INLINE static inline __attribute__((always_inline))
#else
#  define MLC__INLINE static inline
#endif
#define MLC__BODY MLC__INLINE          /* of a stamped kernel */
/* What has large temporaries and is rarely called: inlined it would be stack for its caller. */
#define MLC__APART static __attribute__((noinline))
#define MLC__COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define MLC__CACHELINE 64
#define MLC__INF    __builtin_inf()
#define MLC__NAN    __builtin_nan("")

/* Attributes of a kernel per ISA level. gcc -O2 leaves loops scalar without O3; clang would drop a
 * whole target attribute for one token that it does not know. */
#if defined(__clang__)
#  define MLC__OPT
#elif defined(__OPTIMIZE_SIZE__) || !defined(__OPTIMIZE__)
#  define MLC__OPT
#else
#  define MLC__OPT __attribute__((optimize("O3")))
#endif
/* The wrappers of MLC__EACH_ISA(MLC__STAMP_x) carry these: one plain C body becomes mlc__x_scalar,
 * mlc__x_avx2 and mlc__x_avx512, or mlc__x_neon, which the tables of IMPL.DISPATCH name. */
#define MLC__AT_scalar MLC__OPT
#define MLC__AT_neon   MLC__OPT
#define MLC__AT_avx2   MLC__OPT __attribute__((target("avx2,fma,f16c")))
#define MLC__AT_avx512 \
    MLC__OPT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")))
#if MLC__AVX512
#  define MLC__EACH_ISA(X) X(scalar) X(avx2) X(avx512)
#elif MLC__X86
#  define MLC__EACH_ISA(X) X(scalar) X(avx2)
#elif MLC__NEON
#  define MLC__EACH_ISA(X) X(scalar) X(neon)
#else
#  define MLC__EACH_ISA(X) X(scalar)
#endif

/* The loop's iterations do not depend on each other: out is an input itself or apart from it. */
#if defined(__clang__)
#  define MLC__INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#  define MLC__INDEPENDENT _Pragma("GCC ivdep")
#endif
/* Tile kernels hold their accumulators in an array: only unrolled does it become registers. 16 is
 * over the longest such loop, 14 rows. */
#if defined(__clang__)
#  define MLC__UNROLL _Pragma("unroll")
#else
#  define MLC__UNROLL _Pragma("GCC unroll 16")
#endif

/* Hides from the compiler where a value comes from. */
#define MLC__OPAQUE(x) __asm__("" : "+r"(x))

/* Bits by memcpy: a union would be undefined in C++, a pointer cast in both languages; compilers
 * make one move of it. */
MLC__INLINE uint32_t mlc__bits_f32(float x)    { uint32_t u; memcpy(&u, &x, 4); return u; }
MLC__INLINE float    mlc__f32_bits(uint32_t u) { float x;    memcpy(&x, &u, 4); return x; }
MLC__INLINE uint64_t mlc__bits_f64(double x)   { uint64_t u; memcpy(&u, &x, 8); return u; }
MLC__INLINE double   mlc__f64_bits(uint64_t u) { double x;   memcpy(&x, &u, 8); return x; }

MLC__INLINE int64_t mlc__min(int64_t a, int64_t b) { return a < b ? a : b; }
MLC__INLINE int64_t mlc__max(int64_t a, int64_t b) { return a > b ? a : b; }
MLC__INLINE int64_t mlc__div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
MLC__INLINE size_t  mlc__round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Seconds since some moment: for progress lines, not for measuring. */
static double mlc__seconds(void)
{
#if defined(TIME_UTC)
    struct timespec now = { 0, 0 };
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#else
    return (double)time(NULL);
#endif
}

/* What systems call by different names. */
#if defined(_WIN32)
static void *mlc__aligned_alloc(size_t align, size_t n) { return _aligned_malloc(n, align); }
static void mlc__aligned_free(void *ptr) { _aligned_free(ptr); }
#else
static void *mlc__aligned_alloc(size_t align, size_t n) { return aligned_alloc(align, n); }
static void mlc__aligned_free(void *ptr) { free(ptr); }
#endif

/* mlc__replace: at any moment the file at `to` is the old one or the new one. */
#if MLC__FILES && defined(_WIN32)
__declspec(dllimport) int __stdcall MoveFileExA(const char *from, const char *to,
                                                unsigned long flags);
static int mlc__sync(int fd) { return _commit(fd); }
static int mlc__replace(const char *from, const char *to)
{
    if (MoveFileExA(from, to, 1 | 8 /* MOVEFILE_REPLACE_EXISTING, _WRITE_THROUGH */)) return 0;
    errno = EACCES;
    return -1;
}
#elif MLC__FILES
static int mlc__sync(int fd) { return fsync(fd); }
static int mlc__replace(const char *from, const char *to) { return rename(from, to); }
#endif

/* Copies text into n bytes, always terminated. */
static void mlc__copy_text(char *to, size_t n, const char *from)
{
    size_t len = strlen(from);
    if (len >= n) len = n - 1;
    memcpy(to, from, len);
    to[len] = 0;
}

/* Does name match a pattern of * and ?; iterative, so that no pattern is slow. */
static bool mlc__glob(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') { star = ++pattern; resume = name; }
        else if (*pattern == '?' || *pattern == *name) { pattern++; name++; }
        else if (star) { pattern = star; name = ++resume; }
        else return false;
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

MLC_IMPL const char *mlc_version(void) { return MLC_VERSION_STRING; }

/* @@ IMPL.CPU -------------------------------------------- what this processor and system offer
 * Levels are found at run time, by instruction, not by model. The context takes the best one that
 * CPU and system have, or a lower one that desc.isa or MLC_ISA asks for, so that one machine can
 * test all levels. */

#if MLC__X86
/* Written out rather than taken from cpuid.h, whose macros differ between compilers. */
static void mlc__cpuid(uint32_t leaf, uint32_t sub, uint32_t r[4])
{
    __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3])
                             : "a"(leaf), "c"(sub));
}

static uint64_t mlc__xgetbv(void)      /* which registers the system saves */
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* A level counts only if CPUID names its instructions and XGETBV says that the system saves its
 * registers at a switch of threads: XMM and YMM (bits 1, 2) for AVX2; the mask registers and both
 * parts of ZMM (bits 5 to 7), too, for AVX-512. */
static uint32_t mlc__isa_levels(void)
{
    const uint32_t scalar = 1u << MLC_ISA_SCALAR, avx2 = scalar | 1u << MLC_ISA_AVX2;
    uint32_t r1[4], r7[4], top[4];
    mlc__cpuid(0, 0, top);
    if (top[0] < 7) return scalar;
    mlc__cpuid(1, 0, r1);
    mlc__cpuid(7, 0, r7);
    /* Leaf 1 ECX: AVX 28, FMA 12, F16C 29, OSXSAVE 27 (XGETBV may be executed). */
    const uint32_t avx_fma_f16c_xsave = 1u << 28 | 1u << 12 | 1u << 29 | 1u << 27;
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if ((r1[2] & avx_fma_f16c_xsave) != avx_fma_f16c_xsave) return scalar;
    const uint64_t saved = mlc__xgetbv();
    if ((saved & 6) != 6 || !(r7[1] & 1u << 5)) return scalar;
    if (!MLC__AVX512 || (saved & 0xe6) != 0xe6 || (r7[1] & f_dq_bw_vl) != f_dq_bw_vl) return avx2;
    return avx2 | 1u << MLC_ISA_AVX512;
}
#else
static uint32_t mlc__isa_levels(void)
{
    return 1u << MLC_ISA_SCALAR | (uint32_t)MLC__NEON << MLC_ISA_NEON;
}
#endif

/* The best of the levels that are there, up to most: a set bit is a level, a higher one better. */
static mlc_isa mlc__isa_best(mlc_isa most)
{
    const uint32_t have = mlc__isa_levels() & ((2u << most) - 1u);
    return (mlc_isa)(have ? 31 - __builtin_clz(have) : (int)MLC_ISA_SCALAR);
}

/* Indexed by mlc_isa; also the values that MLC_ISA in the environment may have. */
static const char *const mlc__isa_names[MLC_ISA_COUNT] =
    { "auto", "scalar", "avx2", "avx512", "neon" };

MLC_IMPL const char *mlc_isa_name(mlc_isa isa)
{
    return (unsigned)isa < (unsigned)MLC_ISA_COUNT ? mlc__isa_names[isa] : "unknown";
}

/* The level to use: what is asked for (or MLC_ISA names); a level that is not there stands for the
 * best one below it. */
static mlc_isa mlc__isa_choose(mlc_isa asked)
{
    const char *name = asked == MLC_ISA_AUTO ? getenv("MLC_ISA") : NULL;
    for (int i = 1; name && i < MLC_ISA_COUNT; i++)
        if (strcmp(name, mlc__isa_names[i]) == 0) asked = (mlc_isa)i;
    return mlc__isa_best(asked > MLC_ISA_AUTO && asked < MLC_ISA_COUNT
                         ? asked : (mlc_isa)(MLC_ISA_COUNT - 1));
}

/* Denormals are flushed in kernels: a pass over decayed moments is 24 times slower without. The
 * caller's mode comes back afterwards. */
#if defined(__x86_64__) || defined(__SSE2__)
#define MLC__FLUSH 0x8040u             /* MXCSR: flush to zero, denormals are zero */
MLC__INLINE uint32_t mlc__fp_mode(void) { return __builtin_ia32_stmxcsr(); }
MLC__INLINE void mlc__fp_mode_set(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
#define MLC__FLUSH (1u << 24)          /* FPCR: FZ, inputs and results */
MLC__INLINE uint32_t mlc__fp_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
}
MLC__INLINE void mlc__fp_mode_set(uint32_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#else
#define MLC__FLUSH 0u
MLC__INLINE uint32_t mlc__fp_mode(void) { return 0; }
MLC__INLINE void mlc__fp_mode_set(uint32_t mode) { (void)mode; }
#endif

/* Writing the mode costs tens of cycles: only where it changes something. */
MLC__INLINE uint32_t mlc__flush_begin(void)
{
    const uint32_t old = mlc__fp_mode();
    if ((old & MLC__FLUSH) != MLC__FLUSH) mlc__fp_mode_set(old | MLC__FLUSH);
    return old;
}
MLC__INLINE void mlc__flush_end(uint32_t old)
{
    if ((old & MLC__FLUSH) != MLC__FLUSH) mlc__fp_mode_set(old);
}
static uint32_t mlc__flush_pause(void)
{
    const uint32_t now = mlc__fp_mode();
    mlc__fp_mode_set(now & ~MLC__FLUSH);
    return now;
}
static void mlc__flush_resume(uint32_t old) { mlc__fp_mode_set(old); }

#ifndef MLC_NO_THREADS
/* Cores that the time a container may take amounts to, rounded up: its cgroup (version 2) says
 * "quota period", or "max" and then there is no bound. */
static int32_t mlc__cpu_quota(void)
{
#if defined(__linux__) && MLC__FILES
    char text[64] = { 0 }, *rest;
    const int fd = open("/sys/fs/cgroup/cpu.max", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return INT32_MAX;
    const bool got = read(fd, text, sizeof text - 1) > 0;
    close(fd);
    const long long quota = strtoll(text, &rest, 10), period = strtoll(rest, NULL, 10);
    if (got && quota > 0 && period > 0 && quota / period < INT32_MAX)
        return (int32_t)((quota - 1) / period + 1);
#endif
    return INT32_MAX;
}

/* Cores that this process may run on: containers and taskset narrow the affinity mask, while
 * sysconf counts the machine. The raw call, as the libc's wrapper hides under -std=c11. */
static int32_t mlc__cpu_count(void)
{
    const int32_t quota = mlc__cpu_quota();
#if defined(__linux__) && defined(SYS_sched_getaffinity)
    unsigned long mask[64] = { 0 };
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask), count = 0;
    for (long i = 0; i < bytes / (long)sizeof mask[0]; i++) count += __builtin_popcountl(mask[i]);
    if (count > 0) return count < quota ? (int32_t)count : quota;
#endif
#if MLC__POSIX && defined(_SC_NPROCESSORS_ONLN)
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n < quota ? (int32_t)n : quota;
#else
    return 1;
#endif
}
#endif

/* @@ IMPL.TYPES ------------------------------------------ the private structs, top down
 * All structs that several sections share stand here, so that each section can be read with this
 * one open. A tensor points to its storage, its base and the node that made it; a storage to its
 * pool block; a module's root to its flat; everything to the context. */

/* Bounds of the arrays in these structs. Nothing grows in them: what passes a bound is an error
 * with a message (scopes, groups) or clamped (threads). */
#define MLC__MAX_SCOPES  62
#define MLC__MAX_THREADS 256
#define MLC__CLASSES     224           /* size classes of the pool: four to an octave */
#define MLC__MAX_IN      4
#define MLC__MAX_OUT     3
#define MLC__MAX_SAVED   5
#define MLC__MESSAGE     1024
#define MLC__ERROR_OPS   16

#if defined(MLC_TEST_TINY)             /* edges are the normal case */
#  define MLC__CHUNK 2048
#else
#  define MLC__CHUNK 16384             /* bytes of a scope's arena chunk */
#endif

/* tensor flags */
#define MLC__REQUIRES_GRAD 1u          /* backward computes its gradient                        */
#define MLC__DENSE         2u          /* row-major without holes                               */
#define MLC__PERMUTED      4u          /* a base whose gradient may have its very strides       */
#define MLC__PARAM         8u          /* lies in a mlc__param                                  */

/* A block keeps its size class as long as it has memory; free ones wait in
 * ctx->free_blocks[cls]. */
typedef struct mlc__block {            /* pool memory: describes it from outside, because the   */
    void              *ptr;            /* host may not be able to touch it                      */
    size_t             bytes;
    struct mlc__block *next;
    int32_t            cls;
} mlc__block;

/* Lives in the arena of its scope, or inside a mlc__param, a loader's column, a mlc__temp.
 * `released` outlives the memory on purpose: whoever still holds a tensor of it gets a STATE
 * error. */
struct mlc_storage {
    mlc_ctx     *ctx;
    void        *data;                 /* NULL: no elements, not built, or released             */
    mlc__block  *block;                /* NULL: not from the pool                               */
    mlc_storage *prev, *next;          /* in its scope                                          */
    uint32_t     version;              /* counts writes, so that backward notices them          */
    int32_t      saves;                /* tape nodes that will need it                          */
    int32_t      scope;
    int16_t      mem;                  /* mlc_mem                                               */
    bool         dead;                 /* its forward has ended: free at the last use           */
    bool         released, dry;        /* dry: data is only a number of bytes                  */
    bool         aliased;              /* seen by tensors that the tape does not follow        */
    bool         closed;               /* its memory was a file's, which is closed             */
    uint64_t     seq;                  /* order of creation; 0 for what is no scope's          */
};

typedef struct mlc__chunk {            /* of a scope's arena of small structs                   */
    struct mlc__chunk *next;
    size_t             bytes, used;
} mlc__chunk;

/* Scope 0 is the root: it is never ended and holds what is made outside of any scope. */
typedef struct mlc__scope {
    mlc__chunk  *first, *now;          /* now is the last of the list                           */
    mlc_storage *storages;
    mlc_node    *tape;                 /* tail of the tape when the scope began                 */
    bool         had_error;
} mlc__scope;

typedef struct mlc__object {           /* header of a heap object: one cache line               */
    struct mlc__object *prev, *next;
    size_t              bytes;         /* with this header                                      */
    void               *device_ptr;    /* device memory that the object stands for              */
    int32_t             mem, used;
    char                pad[MLC__CACHELINE - 3 * sizeof(void *) - sizeof(size_t) - 8];
} mlc__object;

typedef struct mlc__pool mlc__pool;    /* threads */

/* The one block of a root: values of all its parameters and buffers, each from a new cache line,
 * and (later) the gradients of the trainable ones in the same order. So an optimizer sees long runs
 * instead of tensors. A rebuild makes a new flat; the old one dies when all have moved. */
typedef struct mlc__flat {             /* all parameters of a built module tree               */
    mlc_ctx           *ctx;
    struct mlc__param **params;
    int64_t            n;
    void              *values, *grads; /* one block each, on the device                        */
    size_t             value_bytes, grad_bytes;
    int64_t            id, layout;     /* order of the root; number of the layout              */
    bool               orphan;         /* its root has another; goes when its last param does  */
} mlc__flat;

/* A heap object: its address, and so the tensor that mlc_module_declare returned, survives every
 * rebuild; only the two data pointers move. (mlc__param *)tensor is legal where MLC__PARAM is set,
 * since t comes first. */
typedef struct mlc__param {            /* parameter or buffer; a tensor first                  */
    mlc_tensor  t;
    mlc_storage value_storage, grad_storage;
    mlc__flat  *flat;                  /* NULL: not built                                      */
    char       *name;                  /* within the module that declared it; its own copy     */
    mlc_init    init;
    double      a, b;
    int64_t     grad_offset;           /* bytes in grads and optimizer state; < 0: none        */
    int32_t     holders;               /* modules that have it                                 */
    bool        buffer;
    bool        half;                  /* its gradient is incomplete: the step must refuse     */
    uint32_t    visit;                 /* walk that saw it last                                */
} mlc__param;

typedef struct mlc__op mlc__op;        /* what an operation does: IMPL.TAPE                     */
/* version: of the storage when it was saved. */
typedef struct mlc__saved { mlc_tensor *t; uint32_t version; } mlc__saved;

typedef enum mlc__view_kind {
    MLC__RESHAPE,
    MLC__PERMUTE,
    MLC__SLICE,
    MLC__SELECT,
    MLC__EXPAND,
    MLC__UNFOLD,
    MLC__DIAGONAL
} mlc__view_kind;
typedef struct mlc__view_spec {        /* validated: how a view sees its input */
    mlc__view_kind kind;
    int32_t        axis, ndim;
    int64_t        start, step;        /* of a diagonal: its first row and column */
    int64_t        dims[MLC_MAX_DIMS]; /* new shape, the permutation, or new sizes */
} mlc__view_spec;

/* On the tape's arena if recorded, else a local of the function that calls mlc__begin. u: the
 * operation's own parameters, set between mlc__begin and mlc__finish. */
struct mlc_node {
    const mlc__op *op;
    mlc_node      *prev;               /* recorded before this one */
    mlc_tensor    *in[MLC__MAX_IN], *out[MLC__MAX_OUT];
    mlc__saved     saved[MLC__MAX_SAVED];
    int8_t         n_in, n_out, n_saved;
    bool           recorded, done;
    bool           inplace;            /* an older node made its output: its gradient stays    */
    uint8_t        need;               /* bit i: input i wanted a gradient when this was made  */
    union {
        double         s[2];           /* scalars of a formula                                 */
        mlc_dtype      dtype;
        mlc_act        act;
        mlc__view_spec view;
        struct { uint32_t mask; bool keepdim; mlc_reduce op; double divisor, p; } reduce;
        struct { mlc_cross_entropy_desc desc; } xent;
        struct { double p; uint64_t seed, stream; } dropout;
        struct { int32_t axis; bool log; } softmax;
        struct { double eps; bool rms, weight, bias; } norm;
        struct { const mlc_custom_op *op; void *user; } custom;
        struct { int32_t axis; int64_t start; mlc_tensor *out; } join;
        struct { double value; int32_t mode; int64_t before[MLC_MAX_DIMS], shape[MLC_MAX_DIMS]; }
                       pad;
        struct { int64_t lo, hi; } band;
        struct { int64_t k; int32_t axis; bool descending, values, index; } sort;
        uint32_t       mask;           /* of axes                                              */
        int32_t        axis;
        mlc_reduction  reduction;
    } u;
};

/* All state of the library but the backend registry. Nothing in it is locked: one thread uses a
 * context at a time, and workers see only kernel arguments. */
struct mlc_ctx {
    /* Errors: status and message stay until a scope ends or mlc_error_clear. error_pending: a
     * kernel may have written the device's error word. */
    mlc_status     status;
    bool           abort_on_error, on_host, dry_run, soft_warned, error_pending;
    char           message[MLC__MESSAGE];
    mlc_log_fn     log;
    void          *log_user;

    mlc_allocator  allocator;
    mlc__object   *objects;            /* heap                                                  */
    char          *fixed, *heap_end, *pool_start, *fixed_end;   /* block: heap up, pool down   */
    size_t         hard_limit, soft_limit;
    mlc_memory     mem;
    mlc__block    *free_blocks[MLC__CLASSES];
    mlc__block    *spare_blocks;       /* descriptors without memory                            */
    mlc__chunk    *free_chunks;
    mlc__scope     scopes[MLC__MAX_SCOPES];
    int32_t        depth, lost_scopes; /* lost: begun beyond the limit                         */

    /* Device. dev is the pool on the CPU, what backend->open gave elsewhere. */
    const mlc_backend *backend;        /* NULL: the CPU                                         */
    void          *dev;                /* first argument of kernels                             */
    mlc_isa        isa;
    mlc__pool     *pool;
    int32_t        threads;
    int64_t       *error_word;         /* on the device                                         */
    const char    *error_op[MLC__ERROR_OPS];       /* operations that may have written to it    */

    /* stream counts up with each random operation, so that no two draw the same numbers (gradcheck
     * and dry runs set it back on purpose). */
    uint64_t       seed, stream, storages;     /* storages: made so far                        */
    mlc_dtype      dtype;
    mlc_node      *tape;
    uint64_t       seq;
    int32_t        no_grad;
    bool           anomaly;
    mlc_module    *modules;            /* all of them                                          */
    mlc_optim     *optims;             /* all of them                                          */
    void         (*modules_release)(mlc_ctx *ctx);      /* set when the first module is made    */
    mlc_safetensors *files;            /* open ones                                             */
    void         (*files_release)(mlc_ctx *ctx);        /* set when the first file is opened    */
    uint32_t       visit;              /* number of the last walk over parameters              */
    int64_t        roots, layouts;     /* module trees and layouts made so far                  */
};

/* Indexed by mlc_dtype: a new dtype is a line here and in mlc__st_dtypes, and its kernels. */
static const struct { const char *name; size_t bytes; } mlc__dtypes[MLC_DTYPE_COUNT] =
    { { "f32", 4 }, { "f64", 8 }, { "i64", 8 }, { "bf16", 2 }, { "f16", 2 }, { "i32", 4 },
      { "i8", 1 }, { "u8", 1 }, { "bool", 1 } };

MLC_IMPL const char *mlc_dtype_name(mlc_dtype dtype)
{
    return (unsigned)dtype < MLC_DTYPE_COUNT ? mlc__dtypes[dtype].name : "unknown";
}

MLC_IMPL size_t mlc_dtype_bytes(mlc_dtype dtype)
{
    return (unsigned)dtype < MLC_DTYPE_COUNT ? mlc__dtypes[dtype].bytes : 0;
}

/* What is computed with and has gradients; the full ones are computed with as they are. */
MLC__INLINE bool mlc__is_full(mlc_dtype d) { return d == MLC_F32 || d == MLC_F64; }
MLC__INLINE bool mlc__is_half(mlc_dtype d) { return d == MLC_BF16 || d == MLC_F16; }
MLC__INLINE bool mlc__is_float(mlc_dtype d) { return mlc__is_full(d) || mlc__is_half(d); }

/* @@ IMPL.ERROR ------------------------------------------ sticky errors, messages, names
 * An error is a status in a return value and, once, a text in the context. Operations on tensors
 * hand on NULL instead: whoever finds the error first has the best message, and the rest of the
 * chain keeps still. A message names the function, what was given, what is wanted, and the way
 * out. */

MLC_IMPL const char *mlc_status_name(mlc_status status)
{
    static const char *const names[] = { "OK", "ARG", "SHAPE", "DTYPE", "DEVICE", "UNSUPPORTED",
                                         "NOMEM", "IO", "VALUE", "STATE", "INTERNAL" };
    return (unsigned)status < (unsigned)MLC__COUNT(names) ? names[status] : "unknown";
}

/* The only way out for text: the library prints nothing. */
static void mlc__log(mlc_ctx *ctx, mlc_log_level level, const char *text)
{
    if (ctx->log) ctx->log(ctx->log_user, level, text);
}

/* The one place where an error is born. Only the first is kept: what follows from it would hide it.
 * With ctx NULL there is nowhere to put it, and the status says all. */
static mlc_status mlc__vfail(mlc_ctx *ctx, mlc_status status, const char *format, va_list args)
{
    char message[MLC__MESSAGE];        /* the old message may be among the arguments */
    if (!ctx || ctx->status != MLC_OK) return status;
    ctx->status = status;
    vsnprintf(message, sizeof message, format, args);
    memcpy(ctx->message, message, sizeof message);
    mlc__log(ctx, MLC_LOG_ERROR, ctx->message);
    if (ctx->abort_on_error) abort();
    return status;
}

/* Records an error; the first one wins. Returns status. */
static mlc_status mlc__fail(mlc_ctx *ctx, mlc_status status, const char *format, ...)
    MLC_PRINTF(3, 4);
static mlc_status mlc__fail(mlc_ctx *ctx, mlc_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mlc__vfail(ctx, status, format, args);
    va_end(args);
    return status;
}

/* mlc__fail for users; OK is no error and records nothing. */
MLC_IMPL mlc_status mlc_raise(mlc_ctx *ctx, mlc_status status, const char *format, ...)
{
    va_list args;
    if (status == MLC_OK) return MLC_OK;
    va_start(args, format);
    mlc__vfail(ctx, status, format, args);
    va_end(args);
    return status;
}

/* How checks are written: REQUIRE leaves with an error, TRY hands on one that is recorded already.
 * Neither may stand between an acquire and its release (mlc__temp_begin, no_grad++). */
#define MLC__REQUIRE(ctx, cond, code, ...) \
    do { if (!(cond)) return mlc__fail(ctx, MLC_ERR_##code, __VA_ARGS__); } while (0)
#define MLC__TRY(call) \
    do { const mlc_status mlc__st = (call); if (mlc__st != MLC_OK) return mlc__st; } while (0)

MLC_IMPL mlc_status mlc_ctx_status(const mlc_ctx *ctx) { return ctx ? ctx->status : MLC_ERR_ARG; }
MLC_IMPL const char *mlc_error(const mlc_ctx *ctx) { return ctx ? ctx->message : "no context"; }
MLC_IMPL void mlc_error_clear(mlc_ctx *ctx) { if (ctx) ctx->status = MLC_OK; }

/* @@ IMPL.MEMORY ----------------------------------------- heap, pool, arenas, accounting
 * Heap: objects that live until freed (modules, parameters, gradients, optimizer state), each with
 * a header in a list, so that the context's end finds them all; from the allocator, one call an
 * object. Pool: tensor data and workspace, in size classes; a block that comes back waits for the
 * next request of its class, so from the second step on there is no call at all. Arenas: the
 * structs of a scope (tensors, storages, nodes), bumped from chunks and never freed one by one. A
 * fixed block serves the heap from below, first fit, and pool and arenas from above, bump only: the
 * pool's end moves back when a scope ends, as far as what open scopes hold permits. Device data
 * comes from the backend, its bookkeeping from the host. Everything is counted: mlc__mem_add by
 * class, reserved where memory changes hands. */

/* aligned_alloc wants a multiple of the alignment; with 2 MB that is up to 2 MB of untouched, and
 * so unbacked, pages. */
static void *mlc__system_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    return mlc__aligned_alloc(align, mlc__round_up(bytes, align));
}

static void mlc__system_release(void *user, void *ptr, size_t bytes)
{
    (void)user; (void)bytes;
    mlc__aligned_free(ptr);
}

/* bytes may be negative. The soft limit warns once in a context's life. */
static void mlc__mem_add(mlc_ctx *ctx, int mem, int64_t bytes)
{
    mlc_memory *m = &ctx->mem;
    m->allocated += bytes;
    m->now[mem] += bytes;
    if (m->allocated > m->peak) m->peak = m->allocated;
    if (m->now[mem] > m->top[mem]) m->top[mem] = m->now[mem];
    if (ctx->soft_limit && !ctx->soft_warned && !ctx->dry_run &&
        m->allocated > (int64_t)ctx->soft_limit) {
        ctx->soft_warned = true;
        mlc__log(ctx, MLC_LOG_WARNING, "memory: over the soft limit");
    }
}

/* PTRDIFF_MAX / 2: sums with headers and rounding up cannot overflow below it. */
static bool mlc__mem_allows(mlc_ctx *ctx, size_t bytes)
{
    return bytes <= (size_t)PTRDIFF_MAX / 2 &&
           (!ctx->hard_limit || (size_t)ctx->mem.allocated + bytes <= ctx->hard_limit);
}

/* Host memory for pool and arenas: bytes is a multiple of a cache line. */
static void *mlc__raw_alloc(mlc_ctx *ctx, size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    void *ptr;
    if (ctx->fixed) {
        if ((size_t)(ctx->pool_start - ctx->heap_end) < bytes) return NULL;
        ctx->pool_start -= bytes;
        ctx->mem.reserved += (int64_t)bytes;
        return ctx->pool_start;
    }
    ptr = ctx->allocator.alloc(ctx->allocator.user, bytes, bytes >= huge ? huge : MLC__CACHELINE);
    if (!ptr) return NULL;
    ctx->mem.calls++;
    ctx->mem.reserved += (int64_t)bytes;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    /* Large blocks are walked from end to end: with 4 KB pages the TLB misses cost more than many
     * kernels. Advice only: a refusal changes nothing. */
    if (bytes >= huge) madvise(ptr, bytes / huge * huge, MADV_HUGEPAGE);
#endif
    return ptr;
}

/* A fixed block takes nothing back here: mlc__fixed_rewind lowers its pool as a whole. */
static void mlc__raw_release(mlc_ctx *ctx, void *ptr, size_t bytes)
{
    ctx->mem.reserved -= (int64_t)bytes;
    if (!ctx->fixed) ctx->allocator.release(ctx->allocator.user, ptr, bytes);
}

/* First fit over the objects of the fixed block; neighbours that are free are merged on the way. */
static mlc__object *mlc__fixed_alloc(mlc_ctx *ctx, size_t bytes)
{
    char *at = ctx->fixed + mlc__round_up(sizeof(mlc_ctx), MLC__CACHELINE);
    while (at < ctx->heap_end) {
        /* bytes of a header is the distance to the next one: objects and gaps tile the heap from
         * its start to heap_end. */
        mlc__object *o = (mlc__object *)(void *)at;
        while (!o->used && at + o->bytes < ctx->heap_end) {
            mlc__object *next = (mlc__object *)(void *)(at + o->bytes);
            if (next->used) break;
            o->bytes += next->bytes;
        }
        /* A gap at the end is given back to the free middle, which the pool may take. */
        if (!o->used && at + o->bytes == ctx->heap_end) { ctx->heap_end = at; break; }
        if (!o->used && o->bytes >= bytes) {
            if (o->bytes > bytes) {
                mlc__object *rest = (mlc__object *)(void *)(at + bytes);
                rest->bytes = o->bytes - bytes;
                rest->used = 0;
                o->bytes = bytes;
            }
            return o;
        }
        at += o->bytes;
    }
    if ((size_t)(ctx->pool_start - at) < bytes) return NULL;
    ctx->heap_end = at + bytes;
    ((mlc__object *)(void *)at)->bytes = bytes;
    return (mlc__object *)(void *)at;
}

/* Zeroed object memory on the heap, aligned to a cache line; NULL without an error message. */
static void *mlc__heap_try(mlc_ctx *ctx, size_t bytes, int mem)
{
    mlc__object *o;
    size_t total;
    if (bytes > (size_t)PTRDIFF_MAX / 2) return NULL;
    total = sizeof(mlc__object) + mlc__round_up(bytes, MLC__CACHELINE);
    if (!mlc__mem_allows(ctx, total)) return NULL;
    o = ctx->fixed ? mlc__fixed_alloc(ctx, total)
                   : MLC__CAST(mlc__object *, mlc__raw_alloc(ctx, total));
    if (!o) return NULL;
    if (!ctx->fixed) o->bytes = total;
    o->prev = NULL;
    o->next = ctx->objects;
    if (ctx->objects) ctx->objects->prev = o;
    ctx->objects = o;
    o->used = 1;
    o->mem = mem;
    o->device_ptr = NULL;
    mlc__mem_add(ctx, mem, (int64_t)o->bytes);
    memset(o + 1, 0, total - sizeof(mlc__object));
    return o + 1;
}

/* what names the caller in the message; memory is zeroed, so creators set only what is not 0. */
static void *mlc__heap_alloc(mlc_ctx *ctx, size_t bytes, int mem, const char *what)
{
    void *p = mlc__heap_try(ctx, bytes, mem);
    if (!p) mlc__fail(ctx, MLC_ERR_NOMEM, "%s: out of memory for %zu bytes", what, bytes);
    return p;
}

/* NULL is fine, as everywhere: failed creators free what they have and are done. */
static void mlc__heap_free(mlc_ctx *ctx, void *ptr)
{
    mlc__object *o;
    if (!ptr) return;
    o = MLC__CAST(mlc__object *, ptr) - 1;
    mlc__mem_add(ctx, o->mem, -(int64_t)o->bytes);
    if (o->prev) o->prev->next = o->next; else ctx->objects = o->next;
    if (o->next) o->next->prev = o->prev;
    o->used = 0;
    if (!ctx->fixed) mlc__raw_release(ctx, o, o->bytes);
}

/* Device memory with an object's lifetime. On the host it is the object itself. */
static void *mlc__heap_data(mlc_ctx *ctx, size_t bytes, int mem, const char *what)
{
    void *host, *dev = NULL;
    if (ctx->on_host) return mlc__heap_alloc(ctx, bytes, mem, what);
    if (!mlc__mem_allows(ctx, bytes)) goto failed;
    host = mlc__heap_try(ctx, sizeof(void *), MLC_MEM_OBJECT);
    if (!host) goto failed;
    if (ctx->backend->alloc(ctx->dev, bytes ? bytes : 1, &dev) != MLC_OK) {
        mlc__heap_free(ctx, host);
        goto failed;
    }
    ((mlc__object *)host - 1)->device_ptr = dev;
    /* The stand-in object remembers the size for the release. */
    memcpy(host, &bytes, sizeof bytes);
    mlc__mem_add(ctx, mem, (int64_t)bytes);
    return dev;
failed:
    mlc__fail(ctx, MLC_ERR_NOMEM, "%s: out of device memory for %zu bytes", what, bytes);
    return NULL;
}

/* The list is searched: this happens at builds and frees only, never in a step. */
static void mlc__heap_data_free(mlc_ctx *ctx, void *ptr, int mem)
{
    mlc__object *o;
    size_t bytes;
    if (!ptr) return;
    if (ctx->on_host) { mlc__heap_free(ctx, ptr); return; }
    for (o = ctx->objects; o && o->device_ptr != ptr; o = o->next) {}
    if (!o) return;
    memcpy(&bytes, o + 1, sizeof bytes);
    ctx->backend->release(ctx->dev, ptr, bytes ? bytes : 1);
    mlc__mem_add(ctx, mem, -(int64_t)bytes);
    mlc__heap_free(ctx, o + 1);
}

/* Size class of a pool block: 64 bytes at least, then four classes to each doubling. */
static int mlc__class_of(size_t bytes, size_t *rounded)
{
    size_t units = bytes ? (bytes + 63) / 64 : 1;      /* cache lines */
    int shift;
    if (units <= 4) { *rounded = units * 64; return (int)units - 1; }
    /* With u = units - 1 in [2^k, 2^(k+1)), k >= 2: steps of 2^(k-2) lines, that is 5 to 8 steps;
     * less than a fifth of a block is waste. */
    shift = 61 - __builtin_clzll((unsigned long long)(units - 1));
    units = (units + ((size_t)1 << shift) - 1) >> shift;         /* 5 .. 8 quarters */
    *rounded = (units << shift) * 64;
    return 4 * (shift + 1) + (int)units - 5;
}

/* Descriptors by 32, without memory yet. They are never given back: there are as many as blocks
 * were alive at once. */
static mlc__block *mlc__block_new(mlc_ctx *ctx)
{
    mlc__block *b = ctx->spare_blocks;
    if (!b) {
        const int n = 32;
        b = MLC__CAST(mlc__block *, mlc__heap_try(ctx, n * sizeof *b, MLC_MEM_OBJECT));
        if (!b) return NULL;
        for (int i = 0; i + 1 < n; i++) b[i].next = &b[i + 1];
    }
    ctx->spare_blocks = b->next;
    return b;
}

/* Fresh memory for a block; in a fixed block that is full, a larger free one will do. */
static mlc__block *mlc__block_fill(mlc_ctx *ctx, mlc__block *b, size_t bytes, int cls)
{
    b->bytes = bytes;
    b->cls = cls;
    b->ptr = NULL;
    if (!ctx->on_host) {
        if (ctx->backend->alloc(ctx->dev, bytes, &b->ptr) != MLC_OK) b->ptr = NULL;
        if (b->ptr) ctx->mem.reserved += (int64_t)bytes;
    } else {
        b->ptr = mlc__raw_alloc(ctx, bytes);
    }
    if (b->ptr) return b;
    b->next = ctx->spare_blocks;
    ctx->spare_blocks = b;
    for (int c = cls + 1; c < MLC__CLASSES; c++)
        if ((b = ctx->free_blocks[c]) != NULL) { ctx->free_blocks[c] = b->next; return b; }
    return NULL;
}

/* Tensor memory; NULL with a NOMEM error. */
static mlc__block *mlc__pool_get(mlc_ctx *ctx, size_t bytes, int mem)
{
    mlc__block *b = NULL;
    size_t rounded = 0;
    int cls = 0;
    if (bytes <= (size_t)PTRDIFF_MAX / 2) cls = mlc__class_of(bytes, &rounded);
    if (rounded && mlc__mem_allows(ctx, rounded)) {
        b = ctx->free_blocks[cls];
        if (b) ctx->free_blocks[cls] = b->next;
        else if ((b = mlc__block_new(ctx)) != NULL) b = mlc__block_fill(ctx, b, rounded, cls);
    }
    if (!b) {
        mlc__fail(ctx, MLC_ERR_NOMEM, "out of memory for %zu bytes of tensor data", bytes);
        return NULL;
    }
    mlc__mem_add(ctx, mem, (int64_t)b->bytes);
#ifdef MLC_DEBUG
    if (ctx->on_host) memset(b->ptr, 0xff, b->bytes);      /* NaN: unwritten elements show */
#endif
    return b;
}

/* Last in, first out: the block that is likeliest to be in a cache goes out next. */
static void mlc__pool_put(mlc_ctx *ctx, mlc__block *b, int mem)
{
    mlc__mem_add(ctx, mem, -(int64_t)b->bytes);
    b->next = ctx->free_blocks[b->cls];
    ctx->free_blocks[b->cls] = b;
}

/* Drops the memory of a free block and keeps its descriptor. */
static void mlc__block_drop(mlc_ctx *ctx, mlc__block *b)
{
    if (!ctx->on_host) {
        ctx->backend->release(ctx->dev, b->ptr, b->bytes);
        ctx->mem.reserved -= (int64_t)b->bytes;
    } else {
        mlc__raw_release(ctx, b->ptr, b->bytes);
    }
    b->next = ctx->spare_blocks;
    ctx->spare_blocks = b;
}

/* Forgets free blocks and chunks below an address; below is NULL for all of them. */
static void mlc__pool_forget(mlc_ctx *ctx, const char *below)
{
    for (int c = 0; c < MLC__CLASSES; c++) {
        mlc__block **link = &ctx->free_blocks[c], *b;
        while ((b = *link) != NULL) {
            if (below && MLC__CAST(char *, b->ptr) >= below) { link = &b->next; continue; }
            *link = b->next;
            mlc__block_drop(ctx, b);
        }
    }
    mlc__chunk **link = &ctx->free_chunks, *chunk;
    while ((chunk = *link) != NULL) {
        if (below && (char *)chunk >= below) { link = &chunk->next; continue; }
        *link = chunk->next;
        mlc__raw_release(ctx, chunk, chunk->bytes);
    }
}

/* In a fixed block there is nobody to give memory back to. */
MLC_IMPL void mlc_memory_trim(mlc_ctx *ctx)
{
    if (ctx && !ctx->fixed) mlc__pool_forget(ctx, NULL);
}

/* Bytes in use and peaks are those of blocks, that is rounded up to their size class. */
MLC_IMPL mlc_status mlc_memory_info(const mlc_ctx *ctx, mlc_memory *out)
{
    if (!ctx || !out) return MLC_ERR_ARG;
    *out = ctx->mem;                   /* has the context itself and the pool */
    if (ctx->fixed)
        out->reserved += ctx->heap_end - ctx->fixed -
                         (int64_t)mlc__round_up(sizeof *ctx, MLC__CACHELINE);
    return MLC_OK;
}

MLC_IMPL void mlc_memory_peak_reset(mlc_ctx *ctx)
{
    if (!ctx) return;
    ctx->mem.peak = ctx->mem.allocated;
    memcpy(ctx->mem.top, ctx->mem.now, sizeof ctx->mem.top);
}

/* First free chunk that is large enough; large ones come from safetensors headers and gradcheck. */
static mlc__chunk *mlc__chunk_get(mlc_ctx *ctx, size_t bytes)
{
    mlc__chunk **link = &ctx->free_chunks, *c;
    size_t total = mlc__round_up(sizeof(mlc__chunk) + bytes, MLC__CACHELINE);
    if (total < MLC__CHUNK) total = MLC__CHUNK;
    if (!mlc__mem_allows(ctx, total)) return NULL;
    while (*link && (*link)->bytes < total) link = &(*link)->next;
    if ((c = *link) != NULL) {
        *link = c->next;
    } else {
        c = MLC__CAST(mlc__chunk *, mlc__raw_alloc(ctx, total));
        if (!c) return NULL;
        c->bytes = total;
    }
    mlc__mem_add(ctx, MLC_MEM_OBJECT, (int64_t)c->bytes);
    c->next = NULL;
    c->used = sizeof(mlc__chunk);
    return c;
}

/* A small struct in a scope's arena, not zeroed; NULL with an error. */
static void *mlc__arena(mlc_ctx *ctx, int32_t depth, size_t bytes)
{
    mlc__scope *s = &ctx->scopes[depth];
    mlc__chunk *c = s->now;
    /* 16 bytes: the alignment of malloc, enough for each struct that lives here. */
    bytes = (bytes + 15) & ~(size_t)15;
    if (!c || c->bytes - c->used < bytes) {
        mlc__chunk *more = mlc__chunk_get(ctx, bytes);
        if (!more) {
            mlc__fail(ctx, MLC_ERR_NOMEM, "out of memory for %zu bytes of bookkeeping", bytes);
            return NULL;
        }
        if (c) c->next = more; else s->first = more;
        s->now = c = more;
    }
    c->used += bytes;
    return (char *)c + c->used - bytes;
}

/* The list's head is the youngest: mlc_module_forward relies on it to find what a forward made. */
static void mlc__storage_link(mlc_ctx *ctx, mlc_storage *s, int32_t depth)
{
    mlc__scope *scope = &ctx->scopes[depth];
    s->scope = depth;
    s->prev = NULL;
    s->next = scope->storages;
    if (s->next) s->next->prev = s;
    scope->storages = s;
}

/* mem is the class that the bytes will count for. No bytes yet: see mlc__storage_fill. */
static mlc_storage *mlc__storage_new(mlc_ctx *ctx, int32_t depth, int mem)
{
    mlc_storage *s = MLC__CAST(mlc_storage *, mlc__arena(ctx, depth, sizeof *s));
    if (!s) return NULL;
    s->ctx = ctx;
    s->data = NULL;
    s->block = NULL;
    s->version = 0;
    s->saves = 0;
    s->mem = (int16_t)mem;
    s->dead = s->released = s->dry = s->aliased = s->closed = false;
    s->seq = ++ctx->storages;
    mlc__storage_link(ctx, s, depth);
    return s;
}

/* Gives the storage its bytes; none for no elements. */
static mlc_status mlc__storage_fill(mlc_storage *s, size_t bytes)
{
    if (s->ctx->dry_run) {             /* counted, not allocated */
        size_t rounded;
        mlc__class_of(bytes, &rounded);
        mlc__mem_add(s->ctx, s->mem, (int64_t)rounded);
        s->dry = true;
        /* data is the size: not NULL for mlc__alive, and what the release has to subtract. Nobody
         * reads through it, since no kernel runs in a dry run. */
        s->data = (void *)(uintptr_t)rounded;
        return MLC_OK;
    }
    if (bytes == 0) return MLC_OK;
    s->block = mlc__pool_get(s->ctx, bytes, s->mem);
    if (!s->block) return MLC_ERR_NOMEM;
    s->data = s->block->ptr;
    return MLC_OK;
}

/* Gives the memory back; the struct stays until its scope ends, so that late use is an error. */
static void mlc__storage_release(mlc_storage *s)
{
    if (s->released) return;
    if (s->dry) mlc__mem_add(s->ctx, s->mem, -(int64_t)(uintptr_t)s->data);
    else if (s->block) mlc__pool_put(s->ctx, s->block, s->mem);
    else if (s->data) return;          /* wrapped memory is the caller's */
    s->block = NULL;
    s->data = NULL;
    s->released = true;
}

/* What a node saved is no longer needed by it: after its backward, or when its scope ends. */
static void mlc__node_unsave(mlc_node *nd)
{
    for (int i = 0; i < nd->n_saved && !nd->done; i++) {
        mlc_storage *s = nd->saved[i].t->storage;
        if (--s->saves == 0 && s->dead) mlc__storage_release(s);
    }
    nd->done = true;
}

/* Storages first: their structs lie in the chunks that go next. */
static void mlc__scope_clear(mlc_ctx *ctx, mlc__scope *s)
{
    for (mlc_storage *st = s->storages; st; st = st->next) mlc__storage_release(st);
    s->storages = NULL;
    for (mlc__chunk *c = s->first, *next; c; c = next) {
        next = c->next;
        c->next = ctx->free_chunks;
        ctx->free_chunks = c;
        mlc__mem_add(ctx, MLC_MEM_OBJECT, -(int64_t)c->bytes);
#ifdef MLC_DEBUG
        memset(c + 1, 0xdd, c->bytes - sizeof(mlc__chunk));
#endif
    }
    s->first = s->now = NULL;
}

/* In a fixed block a scope's end takes the pool back to what open scopes hold, so that steps of
 * other shapes do not fragment it. */
static void mlc__fixed_rewind(mlc_ctx *ctx)
{
    /* The lowest byte that is in use: blocks and chunks of the scopes still open. Objects lie at
     * the other end; workspace is not held between calls. */
    const char *low = ctx->fixed_end;
    for (int i = 0; i <= ctx->depth; i++) {
        for (mlc_storage *s = ctx->scopes[i].storages; s; s = s->next) {
            const char *at = s->block ? MLC__CAST(char *, s->block->ptr) : low;
            if (at < low) low = at;
        }
        for (mlc__chunk *c = ctx->scopes[i].first; c; c = c->next)
            if ((char *)c < low) low = (char *)c;
    }
    mlc__pool_forget(ctx, low);
    ctx->pool_start = ctx->fixed + (low - ctx->fixed);
}

/* @@ IMPL.THREADS ---------------------------------------- fork and join
 * A loop of chunks is dealt in equal runs to lanes, one a thread: each begins with its own lane, so
 * that a core meets the same data from loop to loop (what another core wrote is read ten times
 * slower), and then helps with the others, so that a core that is slow or busy does less. A claim
 * is one compare-and-swap on a lane's state, which packs the loop's number and the next chunk: a
 * worker that comes late, with fn and arg of an old loop in hand, finds another number and its
 * claim fails. The caller works, too, then waits until done counts all chunks; it
 * never waits for workers that claimed nothing. Workers spin for a while after a loop, as the next
 * kernel of a step is microseconds away, then sleep on a futex (elsewhere a condition); only then
 * does waking cost a system call. Where there are more threads than cores no more are woken than
 * there are cores for: the rest sleep, and others run their lanes. Results do not depend on who
 * ran a chunk: chunks follow the shape only, and what must be added up across chunks goes to a
 * workspace first. Threads start with the first loop that pays. */

/* worker is 0 for the caller, 1 .. threads - 1 for the others: an index into per-thread
 * workspace. */
typedef void (*mlc__chunk_fn)(void *arg, int64_t chunk, int32_t worker);

/* In nanoseconds of one thread's work, as the callers of mlc__parallel estimate it from shapes: a
 * shorter loop would lose more in waking and joining than it wins. */
#define MLC__PAY_NS 4000               /* a loop shorter than this is run by the caller        */

#ifndef MLC_NO_THREADS
#define MLC__SPINS 20000               /* pauses before a worker sleeps: 0.1 to 1 ms, by CPU    */
#define MLC__ALONE 4000                /* of which so many without a look at who else waits     */

/* i386 aligns uint64_t to 4 bytes in structs; only at 8 is it sure to be atomic. */
typedef uint64_t mlc__atomic_u64 __attribute__((aligned(8)));

typedef struct mlc__lane {
    mlc__atomic_u64 state;             /* loop number << 32 | next chunk                       */
    char            pad[MLC__CACHELINE - 8];
} mlc__lane;

/* What is claimed (lanes) and what all count up (done) have cache lines of their own, or each claim
 * would slow down those who only look at wake. The lanes lie behind the struct. */
struct mlc__pool {
    mlc_ctx        *ctx;
    int32_t         workers;           /* started, without the caller                          */
    int32_t         cores;             /* that there are for them and the caller               */
    int32_t         busy;              /* a loop is running: inner loops are serial            */
    int32_t         stop;
    uint32_t        wake;              /* futex: counts loops                                  */
    uint32_t        sleepers;
    char            pad0[64];
    uint32_t        done;
    char            pad1[64];
    mlc__lane      *lane;
    int32_t         lanes;             /* threads that were asked for                          */
    mlc__chunk_fn   fn;
    void           *arg;
    uint32_t        chunks;
    pthread_t       thread[MLC__MAX_THREADS];
#if !defined(__linux__)
    pthread_mutex_t mutex;
    pthread_cond_t  cond;
#endif
};

#define MLC__LOAD(p)      __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define MLC__STORE(p, v)  __atomic_store_n(p, v, __ATOMIC_RELEASE)

/* Tells the core that this is a spin: its sibling thread gets the units, and leaving the loop costs
 * no flushed pipeline. */
MLC__INLINE void mlc__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The i-th moment of a wait. Whom we wait for may have lost its core, and to us: at first only the
 * core rests, without a system call, then others may have it. */
static void mlc__wait(int i)
{
    if (i < MLC__ALONE || i % 64) mlc__pause();
    else sched_yield();
}

#if defined(__linux__)
/* The kernel compares wake with seen once more before it sleeps, so a loop that begins in between
 * is not missed. Spurious returns are the caller's to see. */
static void mlc__sleep_until_not(mlc__pool *p, uint32_t seen)
{
    syscall(SYS_futex, &p->wake, 128 /* FUTEX_WAIT | PRIVATE */, seen, NULL, NULL, 0);
}
static void mlc__wake(mlc__pool *p, int32_t n)
{
    syscall(SYS_futex, &p->wake, 129 /* FUTEX_WAKE | PRIVATE */, n, NULL, NULL, 0);
}
#else
static void mlc__sleep_until_not(mlc__pool *p, uint32_t seen)
{
    pthread_mutex_lock(&p->mutex);
    while (MLC__LOAD(&p->wake) == seen) pthread_cond_wait(&p->cond, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}
static void mlc__wake(mlc__pool *p, int32_t n)
{
    pthread_mutex_lock(&p->mutex);
    for (; n > 0; n--) pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mutex);
}
#endif

/* First chunk of a lane; of the lane after the last: the number of chunks. */
static uint32_t mlc__lane_start(const mlc__pool *p, uint32_t chunks, int32_t lane)
{
    return (uint32_t)((uint64_t)chunks * (uint64_t)lane / (uint64_t)p->lanes);
}

/* Claims and runs chunks of a lane, until none is left. */
static void mlc__work_lane(mlc__pool *p, int32_t lane, int32_t worker)
{
    mlc__atomic_u64 *at = &p->lane[lane].state;
    uint64_t state = MLC__LOAD(at);
    for (;;) {
        /* These three may be torn between two loops: state was read before them and changes with
         * each loop, so the exchange below fails if any of them is not of state's loop. */
        const uint32_t chunk = (uint32_t)state;
        const mlc__chunk_fn fn = MLC__LOAD(&p->fn);
        void *arg = MLC__LOAD(&p->arg);
        if (chunk >= mlc__lane_start(p, MLC__LOAD(&p->chunks), lane + 1)) return;
        if (!__atomic_compare_exchange_n(at, &state, state + 1, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE)) continue;
        /* From a won claim on the loop cannot end, nor its arguments change, before done counts
         * this. */
        fn(arg, chunk, worker);
        __atomic_fetch_add(&p->done, 1, __ATOMIC_RELEASE);
        state = MLC__LOAD(at);
    }
}

/* The own lane first, then the others in turn. */
static void mlc__work(mlc__pool *p, int32_t worker)
{
    for (int32_t i = 0; i < p->lanes; i++) mlc__work_lane(p, (worker + i) % p->lanes, worker);
}

typedef struct mlc__worker_start { mlc__pool *pool; int32_t index; } mlc__worker_start;

/* start lies on the stack of the thread that makes us: copied, then pool set to NULL as the
 * receipt. Denormals stay flushed for the thread's whole life. */
static void *mlc__worker_main(void *start)
{
    mlc__worker_start s = *MLC__CAST(mlc__worker_start *, start);
    uint32_t seen = 0;
    MLC__STORE(&MLC__CAST(mlc__worker_start *, start)->pool, (mlc__pool *)NULL);   /* taken over */
    mlc__flush_begin();
    while (!MLC__LOAD(&s.pool->stop)) {
        for (int i = 0; i < MLC__SPINS && MLC__LOAD(&s.pool->wake) == seen; i++) mlc__wait(i);
        if (MLC__LOAD(&s.pool->wake) == seen) {
            /* Both sides in sequential order: either the caller sees the sleeper and wakes it, or
             * the sleeper sees the new wake and does not go to sleep. */
            __atomic_fetch_add(&s.pool->sleepers, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&s.pool->wake, __ATOMIC_SEQ_CST) == seen)
                mlc__sleep_until_not(s.pool, seen);
            __atomic_fetch_sub(&s.pool->sleepers, 1, __ATOMIC_SEQ_CST);
        }
        seen = MLC__LOAD(&s.pool->wake);
        mlc__work(s.pool, s.index);
    }
    return NULL;
}

/* The pool of a context whose number of threads is set; it starts none. NULL: out of memory. */
static mlc__pool *mlc__pool_new(mlc_ctx *ctx)
{
    const size_t head = mlc__round_up(sizeof(mlc__pool), MLC__CACHELINE);
    const size_t lanes = (size_t)ctx->threads * sizeof(mlc__lane);
    mlc__pool *p = MLC__CAST(mlc__pool *, mlc__heap_try(ctx, head + lanes, MLC_MEM_OBJECT));
    if (!p) return NULL;
    p->ctx = ctx;
    p->lane = (mlc__lane *)(void *)((char *)p + head);
    p->lanes = ctx->threads;
#if !defined(__linux__)
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->cond, NULL);
#endif
    return p;
}

/* Kernels need little stack, but tiles and gathered blocks lie on it. Where the system refuses a
 * thread the loops run with those there are. */
static void mlc__pool_start(mlc__pool *p, int32_t workers)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    p->cores = mlc__cpu_count();
    while (p->workers < workers) {
        mlc__worker_start start = { p, p->workers + 1 };
        if (pthread_create(&p->thread[p->workers], &attr, mlc__worker_main, &start) != 0) {
            p->ctx->threads = p->workers + 1;              /* refused: do not ask at every loop */
            break;
        }
        for (int i = 0; MLC__LOAD(&start.pool) != NULL; i = (i + 1) % MLC__SPINS) mlc__wait(i);
        p->workers++;
    }
    pthread_attr_destroy(&attr);
}

/* Raising wake ends the spinning, waking all ends the sleep; each worker sees stop before it looks
 * for work. */
static void mlc__pool_stop(mlc__pool *p)
{
    MLC__STORE(&p->stop, 1);
    __atomic_fetch_add(&p->wake, 1, __ATOMIC_SEQ_CST);
    mlc__wake(p, p->workers);
    for (int32_t i = 0; i < p->workers; i++) pthread_join(p->thread[i], NULL);
#if !defined(__linux__)
    pthread_mutex_destroy(&p->mutex);
    pthread_cond_destroy(&p->cond);
#endif
}

/* The arguments change while all lanes say that nothing can be claimed; the second round of stores
 * opens the loop. The number grows by two a loop, and none occurs twice before 2^31 loops. */
static void mlc__fork_join(mlc__pool *p, uint32_t chunks, mlc__chunk_fn fn, void *arg)
{
    const uint32_t loop = (uint32_t)(MLC__LOAD(&p->lane[0].state) >> 32);
    for (int32_t l = 0; l < p->lanes; l++)
        MLC__STORE(&p->lane[l].state, (uint64_t)(loop + 1) << 32 | UINT32_MAX);
    MLC__STORE(&p->done, 0u);
    MLC__STORE(&p->fn, fn);
    MLC__STORE(&p->arg, arg);
    MLC__STORE(&p->chunks, chunks);
    for (int32_t l = 0; l < p->lanes; l++)
        MLC__STORE(&p->lane[l].state, (uint64_t)(loop + 2) << 32 | mlc__lane_start(p, chunks, l));
    __atomic_fetch_add(&p->wake, 1, __ATOMIC_SEQ_CST);
    const int32_t asleep = (int32_t)__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST);
    const int32_t most = p->cores - 1 - (p->workers - asleep);         /* cores without a thread */
    if (asleep > 0 && most > 0) mlc__wake(p, most < asleep ? most : asleep);
    mlc__work(p, 0);
    for (int i = 0; MLC__LOAD(&p->done) != chunks; i = (i + 1) % MLC__SPINS) mlc__wait(i);
}
#else
struct mlc__pool { mlc_ctx *ctx; };

static mlc__pool *mlc__pool_new(mlc_ctx *ctx)
{
    mlc__pool *p = MLC__CAST(mlc__pool *, mlc__heap_try(ctx, sizeof *p, MLC_MEM_OBJECT));
    if (p) p->ctx = ctx;
    return p;
}
static void mlc__pool_stop(mlc__pool *p) { (void)p; }
#endif /* MLC_NO_THREADS */

/* Numbers that chunks may be given as worker, at most; the same for a pool's life, also where the
 * system refuses threads, as workspaces are sized by it. dev NULL is a kernel called by
 * mlc_cpu_kernels' user: one thread. */
static int32_t mlc__pool_threads(const void *dev)
{
#ifndef MLC_NO_THREADS
    const mlc__pool *p = MLC__CAST(const mlc__pool *, dev);
    return p ? p->lanes : 1;
#else
    (void)dev;
    return 1;
#endif
}

/* Runs chunks 0 .. n-1, in parallel where ns (its estimated time on one thread) makes that pay. */
static void mlc__parallel(void *dev, int64_t n, double ns, mlc__chunk_fn fn, void *arg)
{
#ifndef MLC_NO_THREADS
    /* busy is set while a loop runs: a loop inside a chunk is run by its caller alone. */
    mlc__pool *p = MLC__CAST(mlc__pool *, dev);
    if (p && n > 1 && n < UINT32_MAX && ns > MLC__PAY_NS && p->ctx->threads > 1 &&
        !__atomic_exchange_n(&p->busy, 1, __ATOMIC_ACQUIRE)) {
        if (p->workers < p->ctx->threads - 1) mlc__pool_start(p, p->ctx->threads - 1);
        mlc__fork_join(p, (uint32_t)n, fn, arg);
        MLC__STORE(&p->busy, 0);
        return;
    }
#else
    (void)dev; (void)ns;
#endif
    for (int64_t i = 0; i < n; i++) fn(arg, i, 0);
}

/* @@ IMPL.RNG -------------------------------------------- Philox4x32-10: f(seed, stream, i)
 * Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 * Counters instead of a state: value i of a stream is a function, so chunks need no order, a mask
 * can be made again in backward, and a device gives the same numbers. Key = seed, counter = (block,
 * stream); a block is four words of 32 bits. */

typedef struct mlc__words { uint32_t w[4]; } mlc__words;

/* Words 0 .. 3 of a block; known answers of the reference implementation are in
 * tests/test_ctx.c. */
MLC__INLINE mlc__words mlc__philox(uint64_t seed, uint64_t stream, uint64_t block)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    mlc__words c = { { (uint32_t)block, (uint32_t)(block >> 32),
                       (uint32_t)stream, (uint32_t)(stream >> 32) } };
    /* Ten rounds as the paper recommends; the constants are its multipliers and Weyl increments
     * (golden ratio, sqrt 3 - 1). */
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c.w[0] * 0xD2511F53u, p1 = (uint64_t)c.w[2] * 0xCD9E8D57u;
        const uint32_t w0 = (uint32_t)(p1 >> 32) ^ c.w[1] ^ k0;
        const uint32_t w2 = (uint32_t)(p0 >> 32) ^ c.w[3] ^ k1;
        c.w[0] = w0; c.w[1] = (uint32_t)p1; c.w[2] = w2; c.w[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return c;
}

/* FNV-1a of a name: the stream of an initialiser. */
static uint64_t mlc__hash(const char *text)
{
    uint64_t h = 14695981039346656037ull;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211ull;
    return h;
}

/* @@ IMPL.KERNELS.MATH ----------------------------------- f32 functions in plain mul and add
 * Branch-free, so that loops over them vectorise; without fma, so that every ISA gives the same
 * bits. The stated errors were measured against long double over all or 2^24 sampled floats.  */

/* c ? a : b without a jump: gcc vectorises loops around it even where comparisons may trap. */
MLC__BODY float mlc__pick_f32(bool c, float a, float b)
{
    uint32_t m = 0u - (uint32_t)c;
    return mlc__f32_bits((mlc__bits_f32(a) & m) | (mlc__bits_f32(b) & ~m));
}

/* e^x of x below 88: n = round(x log2 e) by adding 1.5 2^23, whose low bits are then n; a
 * polynomial in what is left; n added to the exponent. Results below 2^-126 are 0. */
MLC__BODY float mlc__exp_low_f32(float x)
{
    float z = x * 1.44269504f + 12582912.0f;
    float n = z - 12582912.0f;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 0.00138194906f;
    p = p * r + 0.0083686905f;
    p = p * r + 0.041668281f;
    p = p * r + 0.166665211f;
    p = p * r + 0.49999994f;
    p = (p * r * r + r) + 1.0f;
    float y = mlc__f32_bits(mlc__bits_f32(p) + (mlc__bits_f32(z) << 23));
    return mlc__pick_f32(x < -87.3365402f, 0.0f, y);
}

/* e^x. NaN stays. Max error 1.0 ulp. */
MLC__BODY float mlc__exp_f32(float x)
{
    return mlc__pick_f32(x <= 88.7228317f, mlc__exp_low_f32(x), x * (float)MLC__INF);
}

/* 2^x, as e^x. Max error 1.06 ulp, none at integers. */
MLC__BODY float mlc__exp2_f32(float x)
{
    float z = x + 12582912.0f;
    float r = x - (z - 12582912.0f);
    float p = 0.000153264627f;
    p = p * r + 0.00133908063f;
    p = p * r + 0.00961850584f;
    p = p * r + 0.0555035993f;
    p = p * r + 0.240226477f;
    p = p * r + 0.693147182f;
    p = p * r + 1.0f;
    float y = mlc__f32_bits(mlc__bits_f32(p) + (mlc__bits_f32(z) << 23));
    y = mlc__pick_f32(x < 128.0f, y, x * (float)MLC__INF);
    return mlc__pick_f32(x < -126.0f, 0.0f, y);
}

/* log(m 2^n), f being m - 1, m in [sqrt(1/2), sqrt 2). */
MLC__BODY float mlc__log_sum_f32(float f, float n)
{
    float p = -0.0763639957f;
    p = p * f + 0.127621993f;
    p = p * f + -0.131596133f;
    p = p * f + 0.142015815f;
    p = p * f + -0.166234091f;
    p = p * f + 0.200012416f;
    p = p * f + -0.250008196f;
    p = p * f + 0.333333313f;
    float s = f * f;
    float t = p * f * s + n * -2.12194440e-4f;
    return (f + (t - 0.5f * s)) + n * 0.693359375f;
}

/* log x: mantissa m and exponent n by bits. 0 and denormals (as 0): -inf; below 0: NaN; inf and
 * NaN stay. Max error 0.85 ulp. */
MLC__BODY float mlc__log_f32(float x)
{
    uint32_t u = mlc__bits_f32(x) + (0x3F800000u - 0x3F3504F3u);
    float n = (float)(int32_t)((u >> 23) - 127u);
    float f = mlc__f32_bits((u & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    float y = mlc__log_sum_f32(f, n);
    float low = mlc__pick_f32(x <= -1.17549435e-38f, mlc__f32_bits(0x7FC00000u),
                              mlc__f32_bits(0xFF800000u));
    y = mlc__pick_f32(x <= 3.40282347e+38f, y, x);
    return mlc__pick_f32(x < 1.17549435e-38f, low, y);
}

/* log(1 + x): what rounding took from v = 1 + x is given back to the mantissa, divided by 2^n.
 * Keeps the sign of 0. Max error 1.43 ulp, over all x. */
MLC__BODY float mlc__log1p_f32(float x)
{
    float v = 1.0f + x;
    uint32_t u = mlc__bits_f32(v) + (0x3F800000u - 0x3F3504F3u), e = u >> 23;
    float rest = (x - (v - 1.0f)) * mlc__f32_bits((254u - e) << 23);
    rest = mlc__pick_f32(x < 16777216.0f, rest, 0.0f);
    float f = (mlc__f32_bits((u & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f) + rest;
    float y = mlc__log_sum_f32(f, (float)(int32_t)(e - 127u));
    float low = mlc__pick_f32(x < -1.0f, mlc__f32_bits(0x7FC00000u), mlc__f32_bits(0xFF800000u));
    y = mlc__pick_f32(x <= 3.40282347e+38f && x != 0.0f, y, x);
    return mlc__pick_f32(x <= -1.0f, low, y);
}

/* tanh x: an odd polynomial up to 0.625, 1 - 2/(e^2x + 1) above. Odd, keeps
 * the sign of 0. Max error 1.34 ulp. */
MLC__BODY float mlc__tanh_f32(float x)
{
    uint32_t sign = mlc__bits_f32(x) & 0x80000000u;
    float a = mlc__f32_bits(mlc__bits_f32(x) & 0x7FFFFFFFu);
    float s = a * a;
    float p = -0.0056922962f;
    p = p * s + 0.0206281673f;
    p = p * s + -0.0537365153f;
    p = p * s + 0.133314058f;
    p = p * s + -0.333332807f;
    float small = p * s * a + a;
    float c = mlc__pick_f32(a > 9.1f, 9.1f, a);
    float large = 1.0f - 2.0f / (mlc__exp_f32(c + c) + 1.0f);
    float y = mlc__pick_f32(a < 0.625f, small, large);
    return mlc__f32_bits(mlc__bits_f32(y) | sign);
}

/* erf x: an odd polynomial up to 0.92, 1 - e^-Q(x) above, 1 from 3.92. Odd, keeps
 * the sign of 0. Max error 1.19 ulp. */
MLC__BODY float mlc__erf_f32(float x)
{
    uint32_t sign = mlc__bits_f32(x) & 0x80000000u;
    float a = mlc__f32_bits(mlc__bits_f32(x) & 0x7FFFFFFFu);
    float s = a * a;
    float p = 7.99664995e-05f;
    p = p * s + -0.000804976968f;
    p = p * s + 0.00519240508f;
    p = p * s + -0.0268557314f;
    p = p * s + 0.112836257f;
    p = p * s + -0.376126289f;
    p = p * s + 0.128379166f;
    float small = p * a + a;
    float c = mlc__pick_f32(a > 3.93f, 3.93f, a);
    float q = -0.000196503985f;
    q = q * c + 0.00304878759f;
    q = q * c + -0.0222491585f;
    q = q * c + 0.103977777f;
    q = q * c + 0.637129605f;
    q = q * c + 1.12770689f;
    q = q * c + 0.000188114471f;
    float large = 1.0f - mlc__exp_f32(-q);
    float y = mlc__pick_f32(a < 0.92f, small, large);
    return mlc__f32_bits(mlc__bits_f32(y) | sign);
}

/* x to the power of 8: what is left of a polynomial's error is multiplied by 8, too. */
MLC__BODY float mlc__eighth_power(float x)
{
    const float s = x * x, q = s * s;
    return q * q;
}

/* gelu: max(x, 0) - a Phi(-a), a = |x|. The eighth root of the tail Phi(-a) is so smooth that a
 * polynomial of degree 8 has it, whose zero at 8 cuts the tail off: no exp, no division. Max error
 * 2.5e-7 up to 8 (half an ulp of x there), none beyond; relative 1.2e-6 above 0, 3.2e-6 down to
 * -3. */
MLC__BODY float mlc__gelu_f32(float x)
{
    const float m = __builtin_fabsf(x), a = m > 8.0f ? 8.0f : m, s = a * a;
    float p = (-3.00064812e-07f * s + (7.53571658e-06f * a - 6.05626519e-05f)) * s;
    p = (p + (3.51599992e-05f * a + 0.00150298281f)) * (s * s);
    p = p + ((-0.000670714653f * a - 0.0319286734f) * s + (-0.0914572775f * a + 0.917003989f));
    return (x < 0.0f ? 0.0f : x) - a * mlc__eighth_power(p);
}

/* Its derivative Phi(x) + x phi(x), k(a) below 0 and 1 - k(a) above: k = (r - a) p^8, r being where
 * it changes sign, p of degree 9 with a zero at 7. Max error 4.4e-7. */
MLC__BODY float mlc__gelu_slope_f32(float x)
{
    const float m = __builtin_fabsf(x), a = m > 7.0f ? 7.0f : m, s = a * a;
    float p = (-5.17494492e-08f * a + 7.58586225e-07f) * s;
    p = ((p + (-1.34668346e-06f * a - 1.95066004e-05f)) * s +
         (-0.00014179507f * a + 0.0025183924f)) * (s * s);
    p = p + ((-0.00302618276f * a - 0.0456285849f) * s + (-0.031551946f * a + 0.950296402f));
    const float k = (0.751791525f - a) * mlc__eighth_power(p);
    return mlc__pick_f32(x > 0.0f, 1.0f - k, k);
}

/* sin and cos of 2 pi u, u in [0,1): quarter turns k by adding 1.5 2^23, the rest r exact and in
 * [-1/2, 1/2]. Max absolute error 7.1e-8. */
MLC__BODY void mlc__sincos2pi_f32(float u, float *s, float *c)
{
    float z = u * 4.0f + 12582912.0f;
    float r = u * 4.0f - (z - 12582912.0f);
    uint32_t k = mlc__bits_f32(z);
    float t = r * r;
    float p = -0.00455416553f;
    p = p * t + 0.0796598643f;
    p = p * t + -0.645961046f;
    p = p * t + 1.57079625f;
    p = p * r;
    float q = 0.000893558725f;
    q = q * t + -0.0208552517f;
    q = q * t + 0.253668517f;
    q = q * t + -1.23370051f;
    q = q * t + 1.0f;
    float a = mlc__pick_f32((k & 1u) != 0u, q, p);
    float b = mlc__pick_f32((k & 1u) != 0u, p, q);
    *s = mlc__f32_bits(mlc__bits_f32(a) ^ ((k & 2u) << 30));
    *c = mlc__f32_bits(mlc__bits_f32(b) ^ (((k + 1u) & 2u) << 30));
}

/* -- f32 functions by way of f64: half the lanes, but no double rounding to think of. The cores
 * are good to 1e-10, so results are the exact ones rounded, but for one in some thousands. -- */

MLC__BODY double mlc__pick_f64(bool c, double a, double b) { return c ? a : b; }

/* log x of a positive normal x: log m = 2 artanh((m - 1)/(m + 1)), m in [sqrt(1/2), sqrt 2). */
MLC__BODY double mlc__log_wide(double x)
{
    uint64_t u = mlc__bits_f64(x) + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
    double k = mlc__f64_bits((u >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
    double f = mlc__f64_bits((u & 0x000FFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu) - 1.0;
    double s = f / (2.0 + f), z = s * s;
    double p = 0.11791074695041526;
    p = p * z + 0.14268654280387394;
    p = p * z + 0.20000167596009091;
    p = p * z + 0.33333332822725364;
    return k * 0.6931471805599453 + (s + s) * (p * z + 1.0);
}

/* The logarithm of any float, as mlc__log_f32 has it at the ends. */
MLC__BODY double mlc__log_any(double x)
{
    double y = mlc__log_wide(mlc__pick_f64(x > 0.0, x, 1.0));
    double low = mlc__pick_f64(x < 0.0, MLC__NAN, -MLC__INF);
    y = mlc__pick_f64(x <= DBL_MAX, y, x);
    return mlc__pick_f64(x <= 0.0, low, y);
}

/* 2^x for |x| up to 1000, beyond as there; NaN stays. */
MLC__BODY double mlc__exp2_wide(double x)
{
    double c = mlc__pick_f64(x > 1000.0, 1000.0, x);
    double v = mlc__pick_f64(c < -1000.0, -1000.0, c);
    double z = v + 6755399441055744.0, r = v - (z - 6755399441055744.0);
    double p = 1.5196128052151775e-05;
    p = p * r + 0.0001546675589784896;
    p = p * r + 0.0013333935121987996;
    p = p * r + 0.0096180381329874515;
    p = p * r + 0.055504103659897309;
    p = p * r + 0.24022651066561299;
    p = p * r + 0.69314718070453285;
    p = p * r + 1.0;
    return mlc__pick_f64(x != x, x, mlc__f64_bits(mlc__bits_f64(p) + (mlc__bits_f64(z) << 52)));
}
MLC__BODY double mlc__exp_wide(double x) { return mlc__exp2_wide(x * 1.4426950408889634); }

MLC__BODY float mlc__log2_f32(float x)
{
    return (float)(mlc__log_any((double)x) * 1.4426950408889634);
}
MLC__BODY float mlc__log10_f32(float x)
{
    return (float)(mlc__log_any((double)x) * 0.4342944819032518);
}

/* Near 0 by its series, where the difference would lose digits. */
MLC__BODY float mlc__expm1_f32(float x)
{
    const double v = (double)x;
    double p = 0.001388888888888889;
    p = p * v + 0.008333333333333333;
    p = p * v + 0.041666666666666664;
    p = p * v + 0.16666666666666666;
    p = p * v + 0.5;
    return (float)mlc__pick_f64(v < 0.02 && v > -0.02, (p * v + 1.0) * v, mlc__exp_wide(v) - 1.0);
}
MLC__BODY float mlc__sinh_f32(float x)
{
    const double v = (double)x, z = v * v;
    double p = 2.7557319223985893e-06;
    p = p * z + 0.0001984126984126984;
    p = p * z + 0.008333333333333333;
    p = p * z + 0.16666666666666666;
    return (float)mlc__pick_f64(z < 0.09, p * z * v + v,
                                0.5 * (mlc__exp_wide(v) - mlc__exp_wide(-v)));
}
MLC__BODY float mlc__cosh_f32(float x)
{
    return (float)(0.5 * (mlc__exp_wide((double)x) + mlc__exp_wide(-(double)x)));
}

/* x^y = 2^(y log2 |x|); the sign of an odd y, and C's rules for 0, 1, inf and NaN. What hangs on y
 * alone is in values, not in conditions: loops with one y for all then vectorise, too. */
MLC__BODY float mlc__pow_f32(float xf, float yf)
{
    const double x = (double)xf, y = (double)yf, a = __builtin_fabs(x), b = __builtin_fabs(y);
    /* y is an integer if adding and taking away 2^52 changes nothing; odd if its half is none. */
    const double whole = (b + 4503599627370496.0) - 4503599627370496.0, half = b * 0.5;
    const double rest = (half + 4503599627370496.0) - 4503599627370496.0 - half;
    const double below = mlc__pick_f64(whole == b, 1.0, MLC__NAN);         /* factor where x < 0 */
    const double odd = mlc__pick_f64(rest == 0.5 || rest == -0.5, -0.0, 0.0);
    double l = y * (mlc__log_any(a) * 1.4426950408889634);
    l = mlc__pick_f64(a == 1.0, 0.0, l);
    l = mlc__pick_f64(y == 0.0, 0.0, l);
    double v = mlc__exp2_wide(l);
    v = mlc__pick_f64(x < 0.0 && x >= -DBL_MAX, v * below, v);
    return (float)mlc__f64_bits(mlc__bits_f64(v) | (mlc__bits_f64(x) & mlc__bits_f64(odd)));
}

/* erfc x = e^(-x^2) P(t), t = 1/(1 + 0.4 |x|), for x >= 0; 2 - that below. */
MLC__BODY float mlc__erfc_f32(float xf)
{
    const double x = (double)xf, m = __builtin_fabs(x), a = mlc__pick_f64(m > 11.0, 11.0, m);
    const double t = 1.0 / (1.0 + 0.4 * a);
    double p = -0.03974738515126771;
    p = p * t + 0.25660703582016831;
    p = p * t + -0.64697054221682437;
    p = p * t + 0.76320691139822427;
    p = p * t + -0.4844411364904373;
    p = p * t + 0.39527961607599532;
    p = p * t + 0.078720509296042171;
    p = p * t + 0.22887762770294182;
    p = p * t + 0.22253070746202666;
    p = p * t + 0.22594699114612293;
    p = p * t + -1.033386966692663e-05;
    const double y = p * mlc__exp_wide(-a * a);
    return (float)mlc__pick_f64(x < 0.0, 2.0 - y, y);
}

/* atan of q in [0, 1]: an odd polynomial. */
MLC__BODY double mlc__atan_wide(double q)
{
    const double z = q * q;
    double p = -0.00066339545711047859;
    p = p * z + 0.0047324841934219203;
    p = p * z + -0.015828322749149415;
    p = p * z + 0.033826218952786868;
    p = p * z + -0.053956680571371714;
    p = p * z + 0.072282783453772523;
    p = p * z + -0.089741719583638815;
    p = p * z + 0.11091922963683302;
    p = p * z + -0.14283813255743194;
    p = p * z + 0.19999901102171555;
    p = p * z + -0.33333331290889989;
    p = p * z + 0.99999999992930366;
    return p * q;
}

/* The angle of (x, y), signed zeros and infinities as in C. */
MLC__BODY double mlc__atan2_wide(double y, double x)
{
    const double ay = __builtin_fabs(y), ax = __builtin_fabs(x);
    const bool steep = ay > ax, equal = ay == ax;
    const double small = mlc__pick_f64(steep, ax, ay), large = mlc__pick_f64(steep, ay, ax);
    double q = small / mlc__pick_f64(large == 0.0, 1.0, large);
    q = mlc__pick_f64(equal && large == MLC__INF, 1.0, q);
    double a = mlc__atan_wide(q);
    a = mlc__pick_f64(steep, 1.5707963267948966 - a, a);
    a = mlc__pick_f64((mlc__bits_f64(x) >> 63) != 0u, 3.141592653589793 - a, a);
    a = mlc__pick_f64(x != x || y != y, MLC__NAN, a);
    return mlc__f64_bits(mlc__bits_f64(a) | (mlc__bits_f64(y) & 0x8000000000000000u));
}
MLC__BODY float mlc__atan2_f32(float y, float x)
{
    return (float)mlc__atan2_wide((double)y, (double)x);
}
MLC__BODY float mlc__atan_f32(float x)
{
    const double v = (double)x, a = __builtin_fabs(v), y = mlc__atan_wide(a > 1.0 ? 1.0 / a : a);
    return (float)__builtin_copysign(mlc__pick_f64(a > 1.0, 1.5707963267948966 - y, y), v);
}

/* asin s, z being s^2 up to 1/4; above 1/2 s is sqrt((1 - x)/2), the sine of half of pi/2 - asin x,
 * so that no digits are lost. */
MLC__BODY double mlc__asin_wide(double s, double z)
{
    double p = 0.034748424808083898;
    p = p * z + 0.0074010072390753778;
    p = p * z + 0.024650862660604088;
    p = p * z + 0.030102506899661489;
    p = p * z + 0.044661139308668961;
    p = p * z + 0.074999419087547189;
    p = p * z + 0.16666667364186447;
    p = p * z + 0.99999999998635369;
    return p * s;
}
MLC__BODY float mlc__asin_f32(float x)
{
    const double v = (double)x, a = __builtin_fabs(v), h = 0.5 * (1.0 - a);
    const bool high = a > 0.5;
    const double p = mlc__asin_wide(mlc__pick_f64(high, sqrt(h), a), mlc__pick_f64(high, h, a * a));
    return (float)__builtin_copysign(mlc__pick_f64(high, 1.5707963267948966 - 2.0 * p, p), v);
}
MLC__BODY float mlc__acos_f32(float x)
{
    const double v = (double)x, a = __builtin_fabs(v), h = 0.5 * (1.0 - a);
    const bool high = a > 0.5;
    const double p = mlc__asin_wide(mlc__pick_f64(high, sqrt(h), a), mlc__pick_f64(high, h, a * a));
    const double q = __builtin_copysign(mlc__pick_f64(high, 2.0 * p, p), v);
    const double from = high ? mlc__pick_f64(v < 0.0, 3.141592653589793, 0.0) : 1.5707963267948966;
    return (float)mlc__pick_f64(high, from + q, from - q);
}

/* Up to this size quarter turns are taken off exactly: their number times the first part of pi/2
 * fits 53 bits. Beyond, blocks go through f64 and libm (mlc__math_wide). */
#define MLC__TRIG_LIMIT 1e7

/* sin and cos of x: polynomials in r = x - k pi/2, |r| <= pi/4. */
MLC__BODY void mlc__sincos_wide(double x, double *s, double *c)
{
    const double z = x * 0.6366197723675814 + 6755399441055744.0, n = z - 6755399441055744.0;
    const double r = (x - n * 1.570796325802803) - n * 9.9209357968054043e-10, t = r * r;
    const uint64_t k = mlc__bits_f64(z), turned = 0u - (k & 1u);
    double p = 2.7183042311364812e-06;
    p = p * t + -0.00019839334083434458;
    p = p * t + 0.0083333293835842013;
    p = p * t + -0.16666666641607014;
    p = p * t * r + r;
    double q = 2.4383482033504187e-05;
    q = q * t + -0.0013886680740997882;
    q = q * t + 0.04166662032836687;
    q = q * t + -0.49999999694220193;
    q = q * t + 1.0;
    const uint64_t both = (mlc__bits_f64(p) ^ mlc__bits_f64(q)) & turned;
    *s = mlc__f64_bits(mlc__bits_f64(p) ^ both ^ ((k & 2u) << 62));
    *c = mlc__f64_bits(mlc__bits_f64(q) ^ both ^ (((k + 1u) & 2u) << 62));
}
MLC__BODY float mlc__sin_f32(float x)
{
    double s, c;
    mlc__sincos_wide((double)x, &s, &c);
    return mlc__pick_f32(x == 0.0f, x, (float)s);          /* -0 stays */
}
MLC__BODY float mlc__cos_f32(float x)
{
    double s, c;
    mlc__sincos_wide((double)x, &s, &c);
    return (float)c;
}
MLC__BODY float mlc__tan_f32(float x)
{
    double s, c;
    mlc__sincos_wide((double)x, &s, &c);
    return mlc__pick_f32(x == 0.0f, x, (float)(s / c));
}

/* No square overflows in f64; an inf beside a NaN is inf. */
MLC__BODY float mlc__hypot_f32(float x, float y)
{
    const bool inf = __builtin_fabsf(x) > FLT_MAX || __builtin_fabsf(y) > FLT_MAX;
    const double a = (double)x, b = (double)y;
    return mlc__pick_f32(inf, (float)MLC__INF, (float)sqrt(a * a + b * b));
}

/* a mod b, with the sign of a: exact while the quotient fits 29 bits, as its product with b then
 * fits 53. Beyond MLC__MOD_LIMIT blocks go through f64 and libm. */
#define MLC__MOD_LIMIT 268435456.0
MLC__BODY float mlc__fmod_f32(float af, float bf)
{
    const double a = __builtin_fabs((double)af), b = __builtin_fabs((double)bf);
    double q = a / b, z = q + 4503599627370496.0;
    q = z - 4503599627370496.0;                            /* to nearest: at most one too many */
    double r = a - q * b;
    r = mlc__pick_f64(r < 0.0, r + b, r);
    r = mlc__pick_f64(b > DBL_MAX && a <= DBL_MAX, a, r);
    r = mlc__pick_f64(b == 0.0 || !(a <= DBL_MAX), MLC__NAN, r);
    return (float)mlc__f64_bits(mlc__bits_f64(r) | (mlc__bits_f64((double)af) &
                                                    0x8000000000000000u));
}

/* -- f64: what networks are full of. The rest is libm's, one element at a time: f64 is there for
 * gradient checks first. Errors against long double, over 10^7 samples. -- */

/* e^r - 1, where x = n log 2 + r; *n as the bits that multiply by 2^n. */
MLC__BODY double mlc__exp_rest_f64(double x, uint64_t *n)
{
    double z = x * 1.4426950408889634 + 6755399441055744.0, k = z - 6755399441055744.0;
    double r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10;
    double p = 2.510038549551032e-08;
    p = p * r + 2.7620088445409746e-07;
    p = p * r + 2.7557268459997064e-06;
    p = p * r + 2.4801521295954376e-05;
    p = p * r + 0.00019841269863053618;
    p = p * r + 0.0013888888917213717;
    p = p * r + 0.0083333333333300615;
    p = p * r + 0.041666666666624129;
    p = p * r + 0.16666666666666669;
    p = p * r + 0.50000000000000011;
    *n = mlc__bits_f64(z) << 52;
    return p * r * r + r;
}

/* As in f32, but results below 2^-1022 are there, too: made 2^64 larger, then multiplied. Max error
 * 1.05 ulp. */
MLC__BODY double mlc__exp_f64(double x)
{
    uint64_t n, low = (0u - (uint64_t)(x < -700.0)) & 0x0400000000000000u;
    double p = mlc__exp_rest_f64(x, &n) + 1.0;
    double y = mlc__f64_bits(mlc__bits_f64(p) + n + low)
             * mlc__f64_bits(0x3FF0000000000000u - low);
    y = mlc__pick_f64(x <= 709.782712893384, y, x * MLC__INF);
    return mlc__pick_f64(x < -745.1332191019412, 0.0, y);
}

/* d/(d + 2), d = e^2x - 1. Max error 2.6 ulp. */
MLC__BODY double mlc__tanh_f64(double x)
{
    uint64_t n, sign = mlc__bits_f64(x) & 0x8000000000000000u;
    double a = mlc__f64_bits(mlc__bits_f64(x) & 0x7FFFFFFFFFFFFFFFu);
    double c = mlc__pick_f64(a > 22.0, 22.0, a), q = mlc__exp_rest_f64(c + c, &n);
    double s = mlc__f64_bits(0x3FF0000000000000u + n), d = s * q + (s - 1.0);
    return mlc__f64_bits(mlc__bits_f64(d / (d + 2.0)) | sign);
}

/* log m = f - (f^2/2 - s (f^2/2 + R)), f = m - 1, s = f/(2 + f), m in [sqrt(1/2), sqrt 2).
 * Denormals are made 2^54 larger first. Ends as C has them. Max error 0.84 ulp. */
MLC__BODY double mlc__log_f64(double x)
{
    const bool tiny = x < DBL_MIN;
    uint64_t u = mlc__bits_f64(mlc__pick_f64(tiny, x * 18014398509481984.0, x))
               + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
    double k = mlc__f64_bits((u >> 52) | 0x4330000000000000u)
             - mlc__pick_f64(tiny, 4503599627370496.0 + 1077.0, 4503599627370496.0 + 1023.0);
    double f = mlc__f64_bits((u & 0x000FFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu) - 1.0;
    double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
    double p = 0.14616585424888623;
    p = p * z + 0.15331710618210773;
    p = p * z + 0.18182889455674947;
    p = p * z + 0.22222211130259878;
    p = p * z + 0.2857142862600327;
    p = p * z + 0.39999999999899444;
    p = p * z + 0.66666666666666696;
    double y = (f - (h - (s * (h + p * z) + k * 1.9082149292705877e-10))) + k * 0.6931471803691238;
    double low = mlc__pick_f64(x < 0.0, MLC__NAN, -MLC__INF);
    y = mlc__pick_f64(x <= DBL_MAX, y, x);
    return mlc__pick_f64(x <= 0.0, low, y);
}

/* F(name) of the formulas. */
MLC__INLINE float mlc__sqrt_f32(float x) { return sqrtf(x); }
MLC__INLINE float mlc__floor_f32(float x) { return __builtin_floorf(x); }
MLC__INLINE float mlc__ceil_f32(float x)  { return __builtin_ceilf(x); }
MLC__INLINE float mlc__rint_f32(float x)  { return __builtin_rintf(x); }
MLC__INLINE float mlc__trunc_f32(float x) { return __builtin_truncf(x); }
MLC__INLINE float mlc__abs_f32(float x)   { return __builtin_fabsf(x); }
MLC__INLINE float mlc__sigmoid_f32(float x) { return 1.0f / (1.0f + mlc__exp_f32(-x)); }
MLC__INLINE double mlc__sigmoid_f64(double x) { return 1.0 / (1.0 + mlc__exp_f64(-x)); }
MLC__INLINE double mlc__gelu_f64(double x) { return 0.5 * x * erfc(-0.7071067811865476 * x); }
MLC__INLINE double mlc__gelu_slope_f64(double x)
{
    return 0.5 * erfc(-0.7071067811865476 * x) +
           x * (0.3989422804014327 * mlc__exp_f64(-0.5 * x * x));
}
#define MLC__LIBM1(name, fn) MLC__INLINE double mlc__##name##_f64(double x) { return fn(x); }
#define MLC__LIBM2(name, fn) \
    MLC__INLINE double mlc__##name##_f64(double x, double y) { return fn(x, y); }
MLC__LIBM1(erf, erf)
MLC__LIBM1(sqrt, sqrt) MLC__LIBM1(floor, floor) MLC__LIBM1(ceil, ceil) MLC__LIBM1(rint, rint)
MLC__LIBM1(trunc, trunc) MLC__LIBM1(abs, fabs) MLC__LIBM1(exp2, exp2) MLC__LIBM1(expm1, expm1)
MLC__LIBM1(log1p, log1p) MLC__LIBM1(log2, log2) MLC__LIBM1(log10, log10) MLC__LIBM1(sin, sin)
MLC__LIBM1(cos, cos) MLC__LIBM1(tan, tan) MLC__LIBM1(asin, asin) MLC__LIBM1(acos, acos)
MLC__LIBM1(atan, atan) MLC__LIBM1(sinh, sinh) MLC__LIBM1(cosh, cosh) MLC__LIBM1(erfc, erfc)
MLC__LIBM2(pow, pow) MLC__LIBM2(fmod, fmod) MLC__LIBM2(atan2, atan2) MLC__LIBM2(hypot, hypot)

/* Python's %: the sign of b; and the floor of a/b that goes with it. */
#define MLC__MODULO(T, dtype) \
    MLC__BODY T mlc__remainder_##dtype(T a, T b) \
    { \
        const T mod = mlc__fmod_##dtype(a, b); \
        return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod; \
    } \
    MLC__BODY T mlc__floor_div_##dtype(T a, T b) \
    { \
        const T mod = mlc__fmod_##dtype(a, b), ratio = a / b; \
        const T div = (a - mod) / b - (T)(mod != 0 && (b < 0) != (mod < 0)); \
        const T whole = mlc__floor_##dtype(div); \
        const T near = div - whole > (T)0.5 ? whole + (T)1 : whole; \
        return b == 0 ? ratio : div == 0 ? ratio * 0 : near; \
    }
MLC__MODULO(float, f32) MLC__MODULO(double, f64)

/* -- bf16 and f16: integer arithmetic, so that flushing denormals changes nothing -- */

MLC__BODY float mlc__f32_of_bf16(uint16_t h) { return mlc__f32_bits((uint32_t)h << 16); }

/* To nearest even: adds what carries into bit 16. A NaN keeps its top bits and becomes quiet. */
MLC__BODY uint16_t mlc__bf16_of(float x)
{
    const uint32_t u = mlc__bits_f32(x), nan = 0u - (uint32_t)((u & 0x7FFFFFFFu) > 0x7F800000u);
    const uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((rounded & ~nan) | ((u >> 16 | 0x40u) & nan));
}

/* Subnormals are m 2^-24, which f32 holds exactly. */
MLC__BODY float mlc__f32_of_f16(uint16_t h)
{
    const uint32_t a = h & 0x7FFFu, sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t tiny = 0u - (uint32_t)(a < 0x400u), big = 0u - (uint32_t)(a >= 0x7C00u);
    const uint32_t nan = 0u - (uint32_t)(a > 0x7C00u);
    const uint32_t normal = (a << 13) + 0x38000000u;
    const uint32_t small = mlc__bits_f32((float)(int32_t)a * 5.9604644775390625e-8f);
    const uint32_t u = (normal & ~tiny & ~big) | (small & tiny) |
                       ((0x7F800000u | a << 13 | (nan & 0x400000u)) & big);
    return mlc__f32_bits(u | sign);
}

/* Below 2^-14 the addition of 0.5, whose last bit is 2^-24, rounds. */
MLC__BODY uint16_t mlc__f16_of(float x)
{
    const uint32_t u = mlc__bits_f32(x), a = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000u;
    const uint32_t tiny = 0u - (uint32_t)(a < 0x38800000u);
    const uint32_t big = 0u - (uint32_t)(a >= 0x47800000u);
    const uint32_t nan = 0u - (uint32_t)(a > 0x7F800000u);
    const uint32_t normal = (a - 0x38000000u + 0xFFFu + (a >> 13 & 1u)) >> 13;
    const uint32_t small = mlc__bits_f32(mlc__f32_bits(a & tiny) + 0.5f) - 0x3F000000u;
    const uint32_t special = 0x7C00u | (nan & (0x200u | (a >> 13 & 0x3FFu)));
    return (uint16_t)(sign | (normal & ~tiny & ~big) | (small & tiny) | (special & big));
}

/* To f32 by rounding to odd: a second rounding, to 16 bits, then rounds as one would. */
MLC__BODY float mlc__odd_f32(double x)
{
    const float f = (float)x;
    const double back = (double)f;
    uint32_t u = mlc__bits_f32(f);
    if (back != x && x == x) {
        const bool over = (mlc__bits_f64(back) << 1) > (mlc__bits_f64(x) << 1);
        u = (u - (uint32_t)over) | 1u;
    }
    return mlc__f32_bits(u);
}

MLC_IMPL uint16_t mlc_bf16_from(float x)  { return mlc__bf16_of(x); }
MLC_IMPL float    mlc_bf16_to(uint16_t h) { return mlc__f32_of_bf16(h); }
MLC_IMPL uint16_t mlc_f16_from(float x)   { return mlc__f16_of(x); }
MLC_IMPL float    mlc_f16_to(uint16_t h)  { return mlc__f32_of_f16(h); }

MLC__BODY void mlc__widen_body(float *to, const void *from, mlc_dtype dtype, int64_t n)
{
    const uint16_t *h = MLC__CAST(const uint16_t *, from);
    if (dtype == MLC_BF16) for (int64_t i = 0; i < n; i++) to[i] = mlc__f32_of_bf16(h[i]);
    else for (int64_t i = 0; i < n; i++) to[i] = mlc__f32_of_f16(h[i]);
}

MLC__BODY void mlc__narrow_body(void *to, const float *from, mlc_dtype dtype, int64_t n)
{
    uint16_t *h = MLC__CAST(uint16_t *, to);
    if (dtype == MLC_BF16) for (int64_t i = 0; i < n; i++) h[i] = mlc__bf16_of(from[i]);
    else for (int64_t i = 0; i < n; i++) h[i] = mlc__f16_of(from[i]);
}

/* Dense rows of 16-bit floats to f32 and back; the two rows do not overlap. */
typedef struct mlc__half_fns {
    void (*widen)(float *to, const void *from, mlc_dtype dtype, int64_t n);
    void (*narrow)(void *to, const float *from, mlc_dtype dtype, int64_t n);
} mlc__half_fns;

#define MLC__STAMP_HALF(isa) \
    MLC__AT_##isa static void mlc__widen_##isa(float *to, const void *from, mlc_dtype dtype, \
                                               int64_t n) \
    { mlc__widen_body(to, from, dtype, n); } \
    MLC__AT_##isa static void mlc__narrow_##isa(void *to, const float *from, mlc_dtype dtype, \
                                                int64_t n) \
    { mlc__narrow_body(to, from, dtype, n); } \
    static const mlc__half_fns mlc__half_fns_##isa = { mlc__widen_##isa, mlc__narrow_##isa };
MLC__EACH_ISA(MLC__STAMP_HALF)

/* @@ IMPL.KERNELS.EW ------------------------------------- map: elementwise, any strides
 * A call goes through three levels: the map of the table plans a loop over axes (mlc__loop: merged,
 * sorted, cut in chunks), each row of it is taken in dense blocks (strided inputs gathered to L1,
 * results scattered), and a block is one of the switch cases below, a plain loop that the compiler
 * vectorises per ISA. A new formula is one line here and one in mlc_map. */

/* Every formula once: U, B, N have one, two, three inputs a, b, c; s is a scalar, T the type, F
 * names the functions of the type. */
#define MLC__MAP_FORMULAS(U, B, N, F) \
    U(MAP_COPY, a) U(MAP_NEG, -a) U(MAP_EXP, F(exp)(a)) U(MAP_LOG, F(log)(a)) \
    U(MAP_SQRT, F(sqrt)(a)) \
    U(MAP_TANH, F(tanh)(a)) U(MAP_SIGMOID, F(sigmoid)(a)) U(MAP_RELU, a > 0 || a != a ? a : (T)0) \
    U(MAP_GELU, F(gelu)(a)) \
    U(MAP_SILU, a * F(sigmoid)(a)) U(MAP_ADD_S, a + s) U(MAP_MUL_S, a * s) \
    B(MAP_ADD, a + b) B(MAP_SUB, a - b) B(MAP_MUL, a * b) B(MAP_DIV, a / b) \
    B(MAP_EQ, a == b ? (T)1 : (T)0) B(MAP_SQDIFF, (a - b) * (a - b)) \
    B(MAP_SQRT_GRAD, a / ((T)2 * b)) B(MAP_TANH_GRAD, a * ((T)1 - b * b)) \
    B(MAP_SIGMOID_GRAD, a * (b * ((T)1 - b))) B(MAP_RELU_GRAD, b > 0 || b != b ? a : (T)0) \
    B(MAP_GELU_GRAD, a * F(gelu_slope)(b)) \
    B(MAP_SILU_GRAD, a * F(sigmoid)(b) * ((T)1 + b * ((T)1 - F(sigmoid)(b)))) \
    N(MAP_DIV_GRAD_B, -a * ((b / c) / c)) \
    N(MAP_SHARE, a * b / c) N(MAP_SQDIFF_GRAD, s * a * (b - c))

/* One case of the switch: the operation is chosen once a block, never per element. */
#define MLC__MAP_U(code, formula) case MLC_##code: MLC__INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { const T a = x[i]; o[i] = formula; } break;
#define MLC__MAP_B(code, formula) case MLC_##code: MLC__INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { const T a = x[i], b = y[i]; o[i] = formula; } break;
#define MLC__MAP_N(code, formula) case MLC_##code: MLC__INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { const T a = x[i], b = y[i], c = z[i]; o[i] = formula; } break;
#define MLC__F32(name) mlc__##name##_f32
#define MLC__F64(name) mlc__##name##_f64

/* out[i] = formula(in[0][i], in[1][i], in[2][i]; s, t) for dense rows; out may be one of the
 * inputs. */
typedef void (*mlc__map_fn)(mlc_map op, void *out, const void *const *in, int64_t n, double s,
                            double t);

/* The function over blocks: in has as many valid pointers as the formula has inputs. */
#define MLC__FORMULA_TEXT(TYPE, FORMULAS, F) \
    typedef TYPE T; \
    const T *x = MLC__CAST(const T *, in[0]), *y = MLC__CAST(const T *, in[1]); \
    const T *z = MLC__CAST(const T *, in[2]), s = (T)sd, t = (T)td; \
    T *o = MLC__CAST(T *, out); \
    (void)y; (void)z; (void)s; (void)t; \
    switch ((int)op) { \
        FORMULAS(MLC__MAP_U, MLC__MAP_B, MLC__MAP_N, F) \
        default: break; \
    }

MLC__BODY void mlc__map_f32_body(mlc_map op, void *out, const void *const *in, int64_t n, double sd,
                                 double td)
{
    MLC__FORMULA_TEXT(float, MLC__MAP_FORMULAS, MLC__F32)
}

MLC__BODY void mlc__map_f64_body(mlc_map op, void *out, const void *const *in, int64_t n, double sd,
                                 double td)
{
    MLC__FORMULA_TEXT(double, MLC__MAP_FORMULAS, MLC__F64)
}

#define MLC__STAMP_MAP(isa) MLC__AT_##isa \
    static void mlc__map_f32_##isa(mlc_map op, void *out, const void *const *in, int64_t n, \
                                   double s, double t) \
    { mlc__map_f32_body(op, out, in, n, s, t); } \
    MLC__AT_##isa static void mlc__map_f64_##isa(mlc_map op, void *out, const void *const *in, \
                                                 int64_t n, double s, double t) \
    { mlc__map_f64_body(op, out, in, n, s, t); }
MLC__EACH_ISA(MLC__STAMP_MAP)

/* -- math: formulas that most networks do without, a kernel of their own -- */

#define MLC__WIDE_TILE 32              /* elements that go through f64 at a time */

#define MLC__MATH_FORMULAS(U, B, N, F) \
    U(MATH_ABS, F(abs)(a)) \
    U(MATH_SIGN, a > 0 ? (T)1 : a < 0 ? (T)-1 : (T)0) U(MATH_SQUARE, a * a) \
    U(MATH_RECIPROCAL, (T)1 / a) U(MATH_RSQRT, (T)1 / F(sqrt)(a)) U(MATH_EXPM1, F(expm1)(a)) \
    U(MATH_EXP2, F(exp2)(a)) U(MATH_LOG1P, F(log1p)(a)) U(MATH_LOG2, F(log2)(a)) \
    U(MATH_LOG10, F(log10)(a)) U(MATH_SIN, F(sin)(a)) U(MATH_COS, F(cos)(a)) \
    U(MATH_TAN, F(tan)(a)) U(MATH_ASIN, F(asin)(a)) U(MATH_ACOS, F(acos)(a)) \
    U(MATH_ATAN, F(atan)(a)) U(MATH_SINH, F(sinh)(a)) U(MATH_COSH, F(cosh)(a)) \
    U(MATH_ERF, F(erf)(a)) U(MATH_ERFC, F(erfc)(a)) U(MATH_FLOOR, F(floor)(a)) \
    U(MATH_CEIL, F(ceil)(a)) U(MATH_ROUND, F(rint)(a)) U(MATH_TRUNC, F(trunc)(a)) \
    U(MATH_DIV_S, a / s) U(MATH_POW_S, F(pow)(a, s)) U(MATH_CUBE, a * a * a) \
    U(MATH_IS_ZERO, a == 0 ? (T)1 : (T)0) U(MATH_ZERO_TO_ONE, a == 0 ? (T)1 : a) \
    U(MATH_ROOT, F(pick)(a == -(T)MLC__INF, -a, F(sqrt)(a + (T)0))) U(MATH_RSUB_S, s - a) \
    U(MATH_CLAMP, a > t || s > t ? t : a < s ? s : a) \
    B(MATH_MIN, a < b || a != a ? a : b) B(MATH_MAX, a > b || a != a ? a : b) \
    B(MATH_FMOD, F(fmod)(a, b)) B(MATH_REMAINDER, F(remainder)(a, b)) \
    B(MATH_FLOOR_DIV, F(floor_div)(a, b)) \
    B(MATH_ATAN2, F(atan2)(a, b)) B(MATH_HYPOT, F(hypot)(a, b)) \
    B(MATH_ABS_GRAD, b > 0 ? a : b < 0 ? -a : (T)0) B(MATH_SQUARE_GRAD, a * (b + b)) \
    B(MATH_RECIPROCAL_GRAD, -a * (b * b)) B(MATH_RSQRT_GRAD, (T)-0.5 * a * (b * b * b)) \
    B(MATH_EXPM1_GRAD, a * (b + (T)1)) B(MATH_EXP2_GRAD, a * (b * (T)0.69314718055994531)) \
    B(MATH_LOG1P_GRAD, a / (b + (T)1)) B(MATH_LOG2_GRAD, a / (b * (T)0.69314718055994531)) \
    B(MATH_LOG10_GRAD, a / (b * (T)2.3025850929940457)) B(MATH_SIN_GRAD, a * F(cos)(b)) \
    B(MATH_COS_GRAD, -a * F(sin)(b)) B(MATH_TAN_GRAD, a * ((T)1 + b * b)) \
    B(MATH_ASIN_GRAD, a / F(sqrt)((T)1 - b * b)) B(MATH_ACOS_GRAD, -a / F(sqrt)((T)1 - b * b)) \
    B(MATH_ATAN_GRAD, a / ((T)1 + b * b)) B(MATH_SINH_GRAD, a * F(cosh)(b)) \
    B(MATH_COSH_GRAD, a * F(sinh)(b)) \
    B(MATH_ERF_GRAD, a * (F(exp)(-(b * b)) * (T)1.1283791670955126)) \
    B(MATH_ERFC_GRAD, a * (F(exp)(-(b * b)) * (T)-1.1283791670955126)) \
    B(MATH_POW_S_GRAD, F(pick)(s == 0, (T)0, a * (s * F(pow)(b, s - (T)1)))) \
    B(MATH_CUBE_GRAD, a * ((T)3 * b * b)) B(MATH_CLAMP_GRAD, b > s && b < t ? a : (T)0) \
    N(MATH_MIN_GRAD_A, b == c ? a * (T)0.5 : b > c ? (T)0 : a) \
    N(MATH_MIN_GRAD_B, b == c ? a * (T)0.5 : c > b ? (T)0 : a) \
    N(MATH_MAX_GRAD_A, b == c ? a * (T)0.5 : b < c ? (T)0 : a) \
    N(MATH_MAX_GRAD_B, b == c ? a * (T)0.5 : c < b ? (T)0 : a) \
    N(MATH_FMOD_GRAD_B, -a * F(trunc)(b / c)) N(MATH_REMAINDER_GRAD_B, -a * F(floor)(b / c)) \
    N(MATH_ATAN2_GRAD_A, b == 0 && c == 0 ? (T)0 : a * (c / (b * b + c * c))) \
    N(MATH_ATAN2_GRAD_B, b == 0 && c == 0 ? (T)0 : a * (-b / (b * b + c * c))) \
    N(MATH_HYPOT_GRAD_A, a * (b / F(hypot)(b, c))) N(MATH_HYPOT_GRAD_B, a * (c / F(hypot)(b, c))) \
    B(MATH_POW, F(pow)(a, b)) B(MATH_RATIO, b == 0 ? (T)0 : a / b) \
    N(MATH_PROD_GRAD, b == 0 ? (c == 1 ? a : (T)0) : c == 0 ? a / b : (T)0) \
    N(MATH_POW_GRAD_A, c == 0 ? (T)0 : a * (c * F(pow)(b, c - (T)1))) \
    N(MATH_POW_GRAD_B, b == 0 && c >= 0 ? (T)0 : a * (F(pow)(b, c) * F(log)(b)))

/* Powers that have a formula of their own. */
static mlc_map mlc__math_power(mlc_map op, double s)
{
    if (op == MLC_MATH_POW_S)
        return s == 2.0 ? MLC_MATH_SQUARE : s == 3.0 ? MLC_MATH_CUBE : s == 0.5 ? MLC_MATH_ROOT
             : s == -1.0 ? MLC_MATH_RECIPROCAL : op;
    if (op == MLC_MATH_POW_S_GRAD)
        return s == 2.0 ? MLC_MATH_SQUARE_GRAD : s == 3.0 ? MLC_MATH_CUBE_GRAD : op;
    return op;
}

static MLC__OPT void mlc__math_f64(mlc_map op, void *out, const void *const *in, int64_t n,
                                   double sd, double td)
{
    op = mlc__math_power(op, sd);
    MLC__FORMULA_TEXT(double, MLC__MATH_FORMULAS, MLC__F64)
}

/* Arguments that the f32 functions are not made for: large angles, large quotients. */
MLC__BODY bool mlc__math_is_hard(mlc_map op, const float *const *in, int64_t n)
{
    bool hard = false;
    const float *x = in[0], *y = in[1];
    if (op == MLC_MATH_SIN || op == MLC_MATH_COS || op == MLC_MATH_TAN)
        for (int64_t i = 0; i < n; i++) hard |= !(__builtin_fabsf(x[i]) < (float)MLC__TRIG_LIMIT);
    if (op == MLC_MATH_SIN_GRAD || op == MLC_MATH_COS_GRAD)
        for (int64_t i = 0; i < n; i++) hard |= !(__builtin_fabsf(y[i]) < (float)MLC__TRIG_LIMIT);
    if (op == MLC_MATH_FMOD || op == MLC_MATH_REMAINDER || op == MLC_MATH_FLOOR_DIV)
        for (int64_t i = 0; i < n; i++)
            hard |= !(__builtin_fabsf(x[i]) < __builtin_fabsf(y[i]) * (float)MLC__MOD_LIMIT);
    return hard;
}

/* The same formula in f64, tile by tile: f32 remainders and reduced angles are exact there. */
static void mlc__math_wide(mlc_map op, void *out, const void *const *in, int64_t n, double s,
                           double t)
{
    double tile[4][MLC__WIDE_TILE];
    const void *wide[3] = { tile[0], tile[1], tile[2] };
    for (int64_t from = 0; from < n; from += MLC__WIDE_TILE) {
        const int64_t m = n - from < MLC__WIDE_TILE ? n - from : MLC__WIDE_TILE;
        for (int p = 0; p < 3 && in[p]; p++)
            for (int64_t i = 0; i < m; i++)
                tile[p][i] = (double)MLC__CAST(const float *, in[p])[from + i];
        mlc__math_f64(op, tile[3], wide, m, s, t);
        for (int64_t i = 0; i < m; i++) MLC__CAST(float *, out)[from + i] = (float)tile[3][i];
    }
}

MLC__BODY void mlc__math_f32_body(mlc_map op, void *out, const void *const *in, int64_t n,
                                  double sd, double td)
{
    const float *row[2] = { MLC__CAST(const float *, in[0]), MLC__CAST(const float *, in[1]) };
    if (mlc__math_is_hard(op, row, n)) { mlc__math_wide(op, out, in, n, sd, td); return; }
    op = mlc__math_power(op, sd);
    MLC__FORMULA_TEXT(float, MLC__MATH_FORMULAS, MLC__F32)
}

#define MLC__STAMP_MATH(isa) MLC__AT_##isa \
    static void mlc__math_f32_##isa(mlc_map op, void *out, const void *const *in, int64_t n, \
                                    double s, double t) \
    { mlc__math_f32_body(op, out, in, n, s, t); }
MLC__EACH_ISA(MLC__STAMP_MATH)

/* Address of an element where the dtype is only known as a size; NULL where there are none. */
MLC__INLINE const void *mlc__at(const void *p, int64_t elements, size_t size)
{
    return p ? MLC__CAST(const char *, p) + elements * (int64_t)size : NULL;
}

/* One element as f64, for what is done once a row. */
MLC__INLINE double mlc__elem(const void *x, int64_t i, mlc_dtype dtype)
{
    return dtype == MLC_F32 ? (double)MLC__CAST(const float *, x)[i]
                            : MLC__CAST(const double *, x)[i];
}

MLC__INLINE void mlc__elem_put(void *x, int64_t i, mlc_dtype dtype, double v)
{
    if (dtype == MLC_F32) MLC__CAST(float *, x)[i] = (float)v;
    else MLC__CAST(double *, x)[i] = v;
}

/* Rows that are not dense are made so in blocks in L1, of at most so many elements and bytes: a
 * training step must fit in a thread's stack of 16 KiB (tests/test_platform.c). */
#define MLC__GATHER       128
#define MLC__GATHER_BYTES 512

MLC__INLINE int64_t mlc__gather_step(size_t size)
{
    return mlc__min(MLC__GATHER, MLC__GATHER_BYTES / (int64_t)size);
}


/* n elements of one size, at strides in elements; four at a time, which compilers do not do by
 * themselves where strides are unknown. */
#define MLC__MOVE(T) \
    const T *x = MLC__CAST(const T *, from); \
    T *o = MLC__CAST(T *, to); \
    for (; n >= 4; n -= 4, x += 4 * from_stride, o += 4 * to_stride) { \
        const T a = x[0], b = x[from_stride], c = x[2 * from_stride], d = x[3 * from_stride]; \
        o[0] = a; \
        o[to_stride] = b; \
        o[2 * to_stride] = c; \
        o[3 * to_stride] = d; \
    } \
    for (int64_t i = 0; i < n; i++) o[i * to_stride] = x[i * from_stride];

#define MLC__MOVE_BACK(T) \
    for (int64_t i = 0; i < n; i++) \
        MLC__CAST(T *, to)[i] = MLC__CAST(const T *, from)[-i];

/* to[i] = from[-i]: with the strides written out it vectorises. */
static MLC__OPT void mlc__move_back(void *to, const void *from, int64_t n, size_t size)
{
    if (size == 4) { MLC__INDEPENDENT MLC__MOVE_BACK(uint32_t) }
    else if (size == 8) { MLC__INDEPENDENT MLC__MOVE_BACK(uint64_t) }
    else if (size == 2) { MLC__INDEPENDENT MLC__MOVE_BACK(uint16_t) }
    else { MLC__INDEPENDENT MLC__MOVE_BACK(uint8_t) }
}

static void mlc__move(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t n,
                      size_t size)
{
    if (size == 4) { MLC__MOVE(uint32_t) }
    else if (size == 8) { MLC__MOVE(uint64_t) }
    else if (size == 2) { MLC__MOVE(uint16_t) }
    else { MLC__MOVE(uint8_t) }
}

/* to[i] = from[i * stride] */
MLC__INLINE void mlc__gather(void *to, const void *from, int64_t stride, int64_t n, size_t size)
{
    if (stride == -1) mlc__move_back(to, from, n, size);
    else mlc__move(to, 1, from, stride, n, size);
}

/* to[i * stride] = from[i] */
MLC__INLINE void mlc__scatter(void *to, int64_t stride, const void *from, int64_t n, size_t size)
{
    mlc__move(to, stride, from, 1, n, size);
}

/* Output and three inputs. */
#define MLC__LOOP_OPERANDS 4

/* A loop over up to four strided operands: size-1 axes gone, sorted by the first operand's strides,
 * neighbours merged, so that the last axis is the longest dense run there is. */
typedef struct mlc__loop {
    int32_t ndim, operands;
    int64_t shape[MLC_MAX_DIMS], stride[MLC__LOOP_OPERANDS][MLC_MAX_DIMS];
    int64_t rows, n;                   /* rows of n: n is the last axis */
} mlc__loop;

/* Inserts an axis so that the output's strides fall: the last axis is then the densest of the
 * output, and its writes are what decides. */
static void mlc__loop_axis(mlc__loop *l, int64_t size, const int64_t stride[MLC__LOOP_OPERANDS])
{
    int32_t at = l->ndim++;
    for (; at > 0 && l->stride[0][at - 1] < stride[0]; at--) {
        l->shape[at] = l->shape[at - 1];
        for (int p = 0; p < l->operands; p++) l->stride[p][at] = l->stride[p][at - 1];
    }
    l->shape[at] = size;
    for (int p = 0; p < l->operands; p++) l->stride[p][at] = stride[p];
}

/* Axis d is folded into the one before it where every operand steps over it without a gap;
 * broadcasting (stride 0 on both) merges, too. */
static void mlc__loop_merge(mlc__loop *l)
{
    int32_t to = 0;
    for (int32_t d = 1; d < l->ndim; d++) {
        bool merge = true;
        for (int p = 0; p < l->operands; p++)
            merge = merge && l->stride[p][to] == l->stride[p][d] * l->shape[d];
        if (!merge) to++;
        l->shape[to] = merge ? l->shape[to] * l->shape[d] : l->shape[d];
        for (int p = 0; p < l->operands; p++) l->stride[p][to] = l->stride[p][d];
    }
    l->ndim = to + 1;
}

/* False if there is nothing to do. Operand 0 is the output. */
static bool mlc__loop_make(mlc__loop *l, int32_t ndim, const int64_t *shape, int32_t operands,
                           const int64_t *const *strides)
{
    int64_t stride[MLC__LOOP_OPERANDS] = { 1, 1, 1, 1 };
    l->ndim = 0;
    l->operands = operands;
    for (int32_t d = 0; d < ndim; d++) {
        if (shape[d] == 0) return false;
        if (shape[d] == 1) continue;
        for (int p = 0; p < operands; p++) stride[p] = strides[p][d];
        mlc__loop_axis(l, shape[d], stride);
    }
    /* A single element: one axis of size 1, so that no caller has to think of it. */
    if (l->ndim == 0) {
        stride[0] = stride[1] = stride[2] = stride[3] = 1;
        mlc__loop_axis(l, 1, stride);
    }
    mlc__loop_merge(l);
    l->n = l->shape[l->ndim - 1];
    l->rows = 1;
    for (int32_t d = 0; d + 1 < l->ndim; d++) l->rows *= l->shape[d];
    return true;
}

/* Place of a row on each axis, and offset of each operand at its start. */
static void mlc__loop_seek(const mlc__loop *l, int64_t row, int64_t at[MLC_MAX_DIMS],
                           int64_t offset[MLC__LOOP_OPERANDS])
{
    for (int p = 0; p < l->operands; p++) offset[p] = 0;
    for (int32_t d = l->ndim - 2; d >= 0; d--) {
        at[d] = row % l->shape[d];
        row /= l->shape[d];
        for (int p = 0; p < l->operands; p++) offset[p] += at[d] * l->stride[p][d];
    }
}

static void mlc__loop_row(const mlc__loop *l, int64_t row, int64_t offset[MLC__LOOP_OPERANDS])
{
    int64_t at[MLC_MAX_DIMS];
    mlc__loop_seek(l, row, at, offset);
}

/* From a row to the next one, without divisions. */
static void mlc__loop_next(const mlc__loop *l, int64_t at[MLC_MAX_DIMS],
                           int64_t offset[MLC__LOOP_OPERANDS])
{
    for (int32_t d = l->ndim - 2; d >= 0; d--) {
        const bool over = ++at[d] == l->shape[d];
        for (int p = 0; p < l->operands; p++)
            offset[p] += l->stride[p][d] * (over ? 1 - l->shape[d] : 1);
        if (!over) return;
        at[d] = 0;
    }
}

#define MLC__GRAIN 16384               /* elements of a chunk of an elementwise loop */

/* Chunks of a loop: pieces of long rows, or several short rows. */
static int64_t mlc__loop_chunks(const mlc__loop *l)
{
    if (l->n >= MLC__GRAIN) return l->rows * mlc__div_up(l->n, MLC__GRAIN);
    return mlc__div_up(l->rows, mlc__max(1, MLC__GRAIN / l->n));
}

/* A row kernel under a loop: offset and stride of each operand in elements, n of them. */
typedef void (*mlc__row_fn)(const void *args, const int64_t *offset, const int64_t *stride,
                            int64_t n);

typedef struct mlc__loop_job {
    const mlc__loop *loop;
    mlc__row_fn row;
    const void *args;
} mlc__loop_job;

static void mlc__loop_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__loop_job *job = MLC__CAST(const mlc__loop_job *, arg);
    /* Must cut as mlc__loop_chunks counts. */
    const mlc__loop *l = job->loop;
    int64_t offset[MLC__LOOP_OPERANDS], stride[MLC__LOOP_OPERANDS] = { 0 };
    (void)worker;
    for (int p = 0; p < l->operands; p++) stride[p] = l->stride[p][l->ndim - 1];
    if (l->n >= MLC__GRAIN) {          /* the same piece of all rows: they may share memory */
        const int64_t at = chunk / l->rows * MLC__GRAIN;
        mlc__loop_row(l, chunk % l->rows, offset);
        for (int p = 0; p < l->operands; p++) offset[p] += at * stride[p];
        job->row(job->args, offset, stride, mlc__min(MLC__GRAIN, l->n - at));
        return;
    }
    const int64_t rows = mlc__max(1, MLC__GRAIN / l->n);
    int64_t left = mlc__min(l->rows, (chunk + 1) * rows) - chunk * rows, at[MLC_MAX_DIMS];
    mlc__loop_seek(l, chunk * rows, at, offset);
    for (; left > 0; left--) {
        job->row(job->args, offset, stride, l->n);
        mlc__loop_next(l, at, offset);
    }
}

/* Where rows are so short that starting one costs more than its elements, the longest axis becomes
 * the last, strides or not. */
static void mlc__loop_lengthen(mlc__loop *l)
{
    const int32_t last = l->ndim - 1;
    int32_t best = last;
    for (int32_t d = last - 1; d >= 0; d--) if (l->shape[d] > l->shape[best]) best = d;
    if (l->n >= 16 || l->shape[best] < 2 * l->n) return;
    l->shape[last] = l->shape[best];
    l->shape[best] = l->n;
    for (int p = 0; p < l->operands; p++) {
        const int64_t stride = l->stride[p][last];
        l->stride[p][last] = l->stride[p][best];
        l->stride[p][best] = stride;
    }
    l->rows = l->rows / l->shape[last] * l->n;
    l->n = l->shape[last];
}

/* ns: rough time of one element on one thread. Rows come in any order. */
static void mlc__loop_run(void *dev, mlc__loop *l, mlc__row_fn row, const void *args, double ns)
{
    mlc__loop_lengthen(l);
    mlc__loop_job job = { l, row, args };
    mlc__parallel(dev, mlc__loop_chunks(l), ns * (double)l->rows * (double)l->n, mlc__loop_chunk,
                  &job);
}

/* inputs: 1 to 3, as many as the formula reads. */
typedef struct mlc__map_job {
    const struct mlc_k_map *a;
    mlc__map_fn             fn, add;   /* add: knows MLC_MAP_ADD */
    const mlc__half_fns    *half;      /* NULL for f32 and f64 */
    size_t                  size;
    int                     inputs;
} mlc__map_job;

/* A block of a 16-bit row: in f32, in L1; the result, with what it is added to, is rounded once. */
MLC__APART void mlc__map_half(const mlc__map_job *j, char *const *at, const int64_t *stride,
                              int64_t n)
{
    float wide[4][MLC__GATHER];
    uint16_t dense[MLC__GATHER];
    const mlc_dtype dtype = j->a->dtype;
    const void *in[3] = { NULL, NULL, NULL };
    for (int p = 0; p < j->inputs; p++) {
        const void *from = at[p + 1];
        if (stride[p + 1] != 1) { mlc__gather(dense, from, stride[p + 1], n, 2); from = dense; }
        j->half->widen(wide[p], from, dtype, n);
        in[p] = wide[p];
    }
    j->fn(j->a->op, wide[3], in, n, j->a->s, j->a->t);
    if (j->a->accumulate) {
        const void *sum[3] = { wide[0], wide[3], NULL };
        mlc__gather(dense, at[0], stride[0], n, 2);
        j->half->widen(wide[0], dense, dtype, n);
        j->add(MLC_MAP_ADD, wide[3], sum, n, 0.0, 0.0);
    }
    j->half->narrow(stride[0] == 1 ? (void *)at[0] : (void *)dense, wide[3], dtype, n);
    if (stride[0] != 1) mlc__scatter(at[0], stride[0], dense, n, 2);
}

/* One block of a row: strided inputs are gathered, a strided or accumulated output is scattered. */
static void mlc__map_block(const mlc__map_job *j, char *const *at, const int64_t *stride, int64_t n)
{
    uint64_t dense[4][MLC__GATHER_BYTES / 8];
    const void *in[3] = { NULL, NULL, NULL };
    /* An accumulated result is made apart first: out may be an input, as in x += f(x). */
    const bool direct = stride[0] == 1 && !j->a->accumulate;
    void *out = direct ? (void *)at[0] : (void *)dense[3];
    for (int p = 0; p < j->inputs; p++) {
        in[p] = at[p + 1];
        if (stride[p + 1] == 1) continue;
        mlc__gather(dense[p], at[p + 1], stride[p + 1], n, j->size);
        in[p] = dense[p];
    }
    j->fn(j->a->op, out, in, n, j->a->s, j->a->t);
    if (direct) return;
    if (j->a->accumulate) {
        const void *sum[3] = { at[0], dense[3], NULL };
        if (stride[0] != 1) {
            mlc__gather(dense[0], at[0], stride[0], n, j->size);
            sum[0] = dense[0];
        }
        j->add(MLC_MAP_ADD, stride[0] == 1 ? (void *)at[0] : (void *)dense[3], sum, n, 0.0, 0.0);
        if (stride[0] == 1) return;
    }
    mlc__scatter(at[0], stride[0], dense[3], n, j->size);
}

static void mlc__map_row(const void *args, const int64_t *offset, const int64_t *stride, int64_t n)
{
    const mlc__map_job *j = MLC__CAST(const mlc__map_job *, args);
    char *at[4] = { NULL, NULL, NULL, NULL };
    bool dense = stride[0] == 1 && !j->a->accumulate && !j->half;
    at[0] = MLC__CAST(char *, j->a->out) + offset[0] * (int64_t)j->size;
    for (int p = 0; p < j->inputs; p++) {
        at[p + 1] = (char *)(uintptr_t)j->a->in[p] + offset[p + 1] * (int64_t)j->size;
        dense = dense && stride[p + 1] == 1;
    }
    /* Dense rows are one block; else blocks of what the stack holds. */
    const int64_t step = dense ? n : mlc__gather_step(j->size);
    for (int64_t i = 0; i < n; i += step) {
        if (j->half) mlc__map_half(j, at, stride, mlc__min(step, n - i));
        else mlc__map_block(j, at, stride, mlc__min(step, n - i));
        for (int p = 0; p <= j->inputs; p++) at[p] += step * stride[p] * (int64_t)j->size;
    }
}

/* ns per element: 2.0 and 0.2 are averages of cheap and dear formulas; only the decision to fork
 * hangs on them. */
static mlc_status mlc__map_run(void *dev, const struct mlc_k_map *a, mlc__map_fn fn,
                               mlc__map_fn add, const mlc__half_fns *half)
{
    mlc__map_job job = { a, fn, add, mlc__is_half(a->dtype) ? half : NULL,
                         mlc_dtype_bytes(a->dtype), 0 };
    const int64_t *strides[4] = { a->out_stride, a->in_stride[0], a->in_stride[1],
                                  a->in_stride[2] };
    mlc__loop l;
    if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    /* Inputs are given from the front: the first NULL ends them. */
    while (job.inputs < 3 && a->in[job.inputs]) job.inputs++;
    if (a->ndim == 1 && a->shape[0] > 0 && a->shape[0] < 512 && a->out_stride[0] == 1 &&
        !a->accumulate && !job.half && a->in_stride[0][0] == 1 &&
        (job.inputs < 2 || a->in_stride[1][0] == 1) &&
        (job.inputs < 3 || a->in_stride[2][0] == 1)) {           /* small and dense: no ceremony */
        job.fn(a->op, a->out, a->in, a->shape[0], a->s, a->t);
        return MLC_OK;
    }
    if (!mlc__loop_make(&l, a->ndim, a->shape, job.inputs + 1, strides)) return MLC_OK;
    mlc__loop_run(dev, &l, mlc__map_row, &job, a->dtype == MLC_F64 ? 2.0 : 0.2);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.CAST ----------------------------------- cast, fill, take: moving elements
 * Casts are also the strided copy: mlc_read, mlc_copy, mlc_keep and the gradient of a cast all end
 * here. Each dtype has a wide form, f32 (f32, bf16, f16), f64 or i64 (the integers, bool): a cast
 * widens, goes from wide to wide and narrows, in L1, so that nine dtypes need no 81 loops. The
 * pairs of floats that matter for speed go directly. */

/* NaN and what does not fit become the smallest integer, as the hardware has it. */
MLC__INLINE int64_t mlc__i64_of(double x)
{
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}
MLC__INLINE int64_t mlc__i32_of(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int64_t)x : INT32_MIN;
}

MLC__INLINE mlc_dtype mlc__wide(mlc_dtype d)
{
    return d == MLC_F64 ? MLC_F64 : mlc__is_float(d) ? MLC_F32 : MLC_I64;
}

/* to[i] = value for n elements, x being from[i]. */
#define MLC__CONVERT(TO, FROM, value) \
    do { \
        TO *o = MLC__CAST(TO *, to); \
        const FROM *f = MLC__CAST(const FROM *, from); \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) { const FROM x = f[i]; o[i] = value; } \
    } while (0)

/* Integers to i64. */
static MLC__OPT void mlc__widen_int(void *to, const void *from, mlc_dtype dtype, int64_t n)
{
    switch (dtype) {
    case MLC_I32:  MLC__CONVERT(int64_t, int32_t, x); break;
    case MLC_I8:   MLC__CONVERT(int64_t, int8_t, x); break;
    case MLC_U8:   MLC__CONVERT(int64_t, uint8_t, x); break;
    default:       MLC__CONVERT(int64_t, uint8_t, x != 0); break;          /* bool */
    }
}

static MLC__OPT void mlc__narrow_int(void *to, mlc_dtype dtype, const void *from, int64_t n)
{
    switch (dtype) {
    case MLC_I32:  MLC__CONVERT(int32_t, int64_t, (int32_t)(uint32_t)(uint64_t)x); break;
    case MLC_I8:   MLC__CONVERT(int8_t, int64_t, (int8_t)(uint8_t)(uint64_t)x); break;
    case MLC_U8:   MLC__CONVERT(uint8_t, int64_t, (uint8_t)(uint64_t)x); break;
    default:       MLC__CONVERT(uint8_t, int64_t, x != 0); break;          /* bool */
    }
}

/* From one wide form to another; `target` is the dtype that the result will be narrowed to. */
static MLC__OPT void mlc__cast_wide(void *to, mlc_dtype target, const void *from, mlc_dtype wide,
                                    int64_t n)
{
    const mlc_dtype into = mlc__wide(target);
    if (wide == MLC_I64 && mlc__is_half(target))
        MLC__CONVERT(float, int64_t, mlc__odd_f32((double)x));
    else if (into == MLC_F32 && wide == MLC_I64) MLC__CONVERT(float, int64_t, (float)x);
    else if (into == MLC_F32 && mlc__is_half(target)) MLC__CONVERT(float, double, mlc__odd_f32(x));
    else if (into == MLC_F32) MLC__CONVERT(float, double, (float)x);
    else if (into == MLC_F64 && wide == MLC_F32) MLC__CONVERT(double, float, (double)x);
    else if (into == MLC_F64) MLC__CONVERT(double, int64_t, (double)x);
    else if (target == MLC_BOOL && wide == MLC_F32) MLC__CONVERT(int64_t, float, x != 0.0f);
    else if (target == MLC_BOOL) MLC__CONVERT(int64_t, double, x != 0.0);
    else if (target == MLC_I64 && wide == MLC_F32)
        MLC__CONVERT(int64_t, float, mlc__i64_of((double)x));
    else if (target == MLC_I64) MLC__CONVERT(int64_t, double, mlc__i64_of(x));
    else if (wide == MLC_F32) MLC__CONVERT(int64_t, float, mlc__i32_of((double)x));
    else MLC__CONVERT(int64_t, double, mlc__i32_of(x));
}

#define MLC__CAST_TILE (MLC__GATHER_BYTES / 8)

/* At most MLC__CAST_TILE elements; each step is left out where the dtype is its own wide form. */
static void mlc__cast_tile(void *out, mlc_dtype to, const void *in, mlc_dtype from, int64_t n,
                           const mlc__half_fns *half)
{
    uint64_t a[MLC__CAST_TILE], b[MLC__CAST_TILE];
    const mlc_dtype wf = mlc__wide(from), wt = mlc__wide(to);
    void *last = to == wt ? out : (void *)b;
    if (from != wf) {
        if (mlc__is_half(from)) half->widen(MLC__CAST(float *, (void *)a), in, from, n);
        else mlc__widen_int(a, in, from, n);
        in = a;
    }
    if (wf != wt) { mlc__cast_wide(last, to, in, wf, n); in = last; }
    if (to != wt && mlc__is_half(to)) half->narrow(out, MLC__CAST(const float *, in), to, n);
    else if (to != wt) mlc__narrow_int(out, to, in, n);
    else if (in != out) memcpy(out, in, (size_t)n * mlc_dtype_bytes(to));
}

/* memcpy, but where the destination lies a little ahead of the source in its page. Then stores and
 * the loads that follow agree in the bits of the address that a core compares first, and each load
 * waits for a store: copying from the end on keeps them apart, and is ten times as fast. */
static void mlc__copy_bytes(void *to, const void *from, size_t bytes)
{
    const size_t ahead = ((size_t)(uintptr_t)to - (size_t)(uintptr_t)from) & 4095u;
    while (ahead - 1 < 128 && bytes > 256) {
        bytes -= 256;
        memcpy(MLC__CAST(char *, to) + bytes, MLC__CAST(const char *, from) + bytes, 256);
    }
    memcpy(to, from, bytes);
}

/* Any number of dense elements. */
static void mlc__cast_dense(void *out, mlc_dtype to, const void *in, mlc_dtype from, int64_t n,
                            const mlc__half_fns *half)
{
    const size_t os = mlc_dtype_bytes(to), is = mlc_dtype_bytes(from);
    if (to == from) mlc__copy_bytes(out, in, (size_t)n * os);
    else if (to == MLC_F32 && mlc__is_half(from)) half->widen(MLC__CAST(float *, out), in, from, n);
    else if (mlc__is_half(to) && from == MLC_F32)
        half->narrow(out, MLC__CAST(const float *, in), to, n);
    else if (to == mlc__wide(to) && from == mlc__wide(from)) mlc__cast_wide(out, to, in, from, n);
    else
        for (int64_t i = 0; i < n; i += MLC__CAST_TILE)
            mlc__cast_tile(MLC__CAST(char *, out) + (size_t)i * os, to, mlc__at(in, i, is), from,
                           mlc__min(MLC__CAST_TILE, n - i), half);
}

typedef struct mlc__cast_job {
    const struct mlc_k_cast *a;
    const mlc__half_fns     *half;
} mlc__cast_job;

/* The same scheme as mlc__map_row: straight where both sides are dense, else through L1. */
static void mlc__cast_row(const void *args, const int64_t *offset, const int64_t *stride, int64_t n)
{
    const mlc__cast_job *job = MLC__CAST(const mlc__cast_job *, args);
    const struct mlc_k_cast *a = job->a;
    const size_t os = mlc_dtype_bytes(a->out_dtype), is = mlc_dtype_bytes(a->in_dtype);
    const int64_t step = stride[0] == 1 && stride[1] == 1 ? n : mlc__gather_step(os > is ? os : is);
    uint64_t from[MLC__GATHER_BYTES / 8], to[MLC__GATHER_BYTES / 8];
    char *out = MLC__CAST(char *, a->out) + offset[0] * (int64_t)os;
    const char *in = MLC__CAST(const char *, a->in) + offset[1] * (int64_t)is;
    if (step < n && a->out_dtype == a->in_dtype) {         /* nothing to convert: no detour */
        if (stride[0] == 1) mlc__gather(out, in, stride[1], n, is);
        else mlc__move(out, stride[0], in, stride[1], n, is);
        return;
    }
    for (int64_t i = 0; i < n; i += step) {
        const int64_t m = mlc__min(step, n - i);
        const void *src = in;
        if (stride[1] != 1) { mlc__gather(from, in, stride[1], m, is); src = from; }
        mlc__cast_dense(stride[0] == 1 ? (void *)out : (void *)to, a->out_dtype, src, a->in_dtype,
                        m, job->half);
        if (stride[0] != 1) mlc__scatter(out, stride[0], to, m, os);
        out += m * stride[0] * (int64_t)os;
        in += m * stride[1] * (int64_t)is;
    }
}

/* Operand 0 of the loop is the output, 1 the input. */
static mlc_status mlc__cast_run(void *dev, const struct mlc_k_cast *a, const mlc__half_fns *half)
{
    const int64_t *strides[2] = { a->out_stride, a->in_stride };
    const mlc__cast_job job = { a, half };
    mlc__loop l;
    if (mlc__loop_make(&l, a->ndim, a->shape, 2, strides))
        mlc__loop_run(dev, &l, mlc__cast_row, &job, 0.5);
    return MLC_OK;
}

/* step is not 0 for arange and linspace only; start + i step in f64, so that no error builds up. */
static void mlc__fill_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const struct mlc_k_fill *a = MLC__CAST(const struct mlc_k_fill *, arg);
    const int64_t from = chunk * MLC__GRAIN, to = mlc__min(a->n, from + MLC__GRAIN);
    const size_t size = mlc_dtype_bytes(a->dtype);
    char *out = MLC__CAST(char *, a->out);
    double tile[MLC__GATHER];
    (void)worker;
    if (a->start == 0.0 && a->step == 0.0) {
        memset(out + (size_t)from * size, 0, (size_t)(to - from) * size);
        return;
    }
    for (int64_t i = from; i < to; i += MLC__GATHER) {
        const int64_t n = mlc__min(MLC__GATHER, to - i);
        /* A constant: the first tile is converted, the others are copies of it. */
        if (a->step == 0.0 && i > from) {
            memcpy(out + (size_t)i * size, out + (size_t)from * size, (size_t)n * size);
            continue;
        }
        for (int64_t e = 0; e < n; e++) tile[e] = a->start + (double)(i + e - a->origin) * a->step;
        mlc__cast_dense(out + (size_t)i * size, a->dtype, tile, MLC_F64, n, &mlc__half_fns_scalar);
    }
}

static mlc_status mlc__k_fill(void *dev, const struct mlc_k_fill *a)
{
    struct mlc_k_fill job = *a;
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT) return MLC_ERR_UNSUPPORTED;
    mlc__parallel(dev, mlc__div_up(a->n, MLC__GRAIN), 0.3 * (double)a->n, mlc__fill_chunk, &job);
    return MLC_OK;
}

/* out row i = in row index[i]. The indices are the loader's own: one outside is a bug, not data. */
static mlc_status mlc__k_take(void *dev, const struct mlc_k_take *a)
{
    (void)dev;
    for (int64_t i = 0; i < a->n; i++) {
        if (a->index[i] < 0 || a->index[i] >= a->rows) return MLC_ERR_ARG;
        memcpy(MLC__CAST(char *, a->out) + (size_t)i * a->row_bytes,
               MLC__CAST(const char *, a->in) + (size_t)a->index[i] * a->row_bytes, a->row_bytes);
    }
    return MLC_OK;
}

/* First element that is NaN or Inf, by v - v, which is 0 for all others. For anomaly mode: speed is
 * no concern. */
static mlc_status mlc__k_finite(void *dev, const struct mlc_k_finite *a)
{
    double tile[MLC__GATHER];
    (void)dev;
    *a->first = -1;
    for (int64_t i = 0; i < a->n && *a->first < 0; i += MLC__GATHER) {
        const int64_t n = mlc__min(MLC__GATHER, a->n - i);
        mlc__cast_dense(tile, MLC_F64, mlc__at(a->in, i, mlc_dtype_bytes(a->dtype)), a->dtype, n,
                        &mlc__half_fns_scalar);
        for (int64_t e = 0; e < n && *a->first < 0; e++)
            if (!(tile[e] - tile[e] == 0.0)) *a->first = i + e;
    }
    return MLC_OK;
}

/* @@ IMPL.KERNELS.COMPARE -------------------------------- comparisons to bool, choice by a mask
 * Every dtype: what is not f32, f64 or bool is compared in its wide form (IMPL.KERNELS.CAST),
 * integers so exactly. The mask is bytes; any that is not 0 chooses the first operand. Rows are
 * taken in tiles, strided or scalar operands made dense in L1. */

/* V: what an element stands for; any byte that is not 0 is true. */
#define MLC__SAME(v)  (v)
#define MLC__TRUTH(v) ((v) != 0)
#define MLC__COMPARE_LOOP(V, code, test) case MLC_COMPARE_##code: MLC__INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { const T a = V(x[i]), b = V(y[i]); o[i] = test; } break;
#define MLC__COMPARE_ALONE(code, test) case MLC_COMPARE_##code: MLC__INDEPENDENT \
    for (int64_t i = 0; i < n; i++) { const T a = x[i]; o[i] = test; } break;
#define MLC__COMPARE_TEXT(TYPE, V) \
    typedef TYPE T; \
    const T *x = MLC__CAST(const T *, in0), *y = MLC__CAST(const T *, in1); \
    switch (op) { \
        MLC__COMPARE_LOOP(V, EQ, a == b) MLC__COMPARE_LOOP(V, NE, a != b) \
        MLC__COMPARE_LOOP(V, LT, a < b) MLC__COMPARE_LOOP(V, LE, a <= b) \
        MLC__COMPARE_LOOP(V, GT, a > b) MLC__COMPARE_LOOP(V, GE, a >= b) \
        MLC__COMPARE_LOOP(V, AND, (a != 0) & (b != 0)) \
        MLC__COMPARE_LOOP(V, OR, (a != 0) | (b != 0)) \
        MLC__COMPARE_LOOP(V, XOR, (a != 0) ^ (b != 0)) \
        MLC__COMPARE_ALONE(NOT, a == 0) MLC__COMPARE_ALONE(NAN, a != a) \
        MLC__COMPARE_ALONE(INF, a == a && a - a != 0) MLC__COMPARE_ALONE(FINITE, a - a == 0) \
        default: break; \
    }

typedef void (*mlc__compare_fn)(mlc_compare op, uint8_t *o, const void *in0, const void *in1,
                                int64_t n);
MLC__BODY void mlc__compare_f32_body(mlc_compare op, uint8_t *o, const void *in0, const void *in1,
                                     int64_t n)
{
    MLC__COMPARE_TEXT(float, MLC__SAME)
}
static MLC__OPT void mlc__compare_f64(mlc_compare op, uint8_t *o, const void *in0, const void *in1,
                                      int64_t n)
{
    MLC__COMPARE_TEXT(double, MLC__SAME)
}
static MLC__OPT void mlc__compare_i64(mlc_compare op, uint8_t *o, const void *in0, const void *in1,
                                      int64_t n)
{
    MLC__COMPARE_TEXT(int64_t, MLC__SAME)
}
MLC__BODY void mlc__compare_bool_body(mlc_compare op, uint8_t *o, const void *in0, const void *in1,
                                      int64_t n)
{
    MLC__COMPARE_TEXT(uint8_t, MLC__TRUTH)
}
#define MLC__STAMP_COMPARE(isa) MLC__AT_##isa \
    static void mlc__compare_f32_##isa(mlc_compare op, uint8_t *o, const void *in0, \
                                       const void *in1, int64_t n) \
    { mlc__compare_f32_body(op, o, in0, in1, n); } \
    MLC__AT_##isa static void mlc__compare_bool_##isa(mlc_compare op, uint8_t *o, const void *in0, \
                                                      const void *in1, int64_t n) \
    { mlc__compare_bool_body(op, o, in0, in1, n); }
MLC__EACH_ISA(MLC__STAMP_COMPARE)

/* wide: dtype in which is compared; scalar: a tile of s in it, where there is no second input. */
typedef struct mlc__compare_job {
    const struct mlc_k_compare *a;
    const mlc__half_fns *half;
    mlc__compare_fn fn;
    mlc_dtype       wide;
    uint64_t        scalar[MLC__GATHER_BYTES / 8];
} mlc__compare_job;

/* Elements of a block, dense and wide: where they lie, or in tile. */
static const void *mlc__compare_in(const mlc__compare_job *j, const char *at, int64_t stride,
                                   int64_t n, uint64_t *tile)
{
    const size_t size = mlc_dtype_bytes(j->a->dtype);
    uint64_t dense[MLC__GATHER_BYTES / 8];
    if (stride == 1 && j->wide == j->a->dtype) return at;
    if (stride != 1) mlc__gather(dense, at, stride, n, size);
    mlc__cast_dense(tile, j->wide, stride != 1 ? (const void *)dense : (const void *)at,
                    j->a->dtype, n, j->half);
    return tile;
}

static void mlc__compare_row(const void *args, const int64_t *offset, const int64_t *stride,
                             int64_t n)
{
    const mlc__compare_job *j = MLC__CAST(const mlc__compare_job *, args);
    const struct mlc_k_compare *a = j->a;
    const int64_t size = (int64_t)mlc_dtype_bytes(a->dtype);
    uint64_t x[MLC__GATHER_BYTES / 8], y[MLC__GATHER_BYTES / 8];
    uint8_t dense[MLC__GATHER];
    /* Dense rows are one block, of a scalar as many elements as it was made for. */
    const bool straight = stride[0] == 1 && stride[1] == 1 && j->wide == a->dtype &&
                          (!a->in[1] || stride[2] == 1);
    const int64_t step = !straight ? mlc__gather_step(mlc_dtype_bytes(j->wide))
                       : a->in[1] || a->op >= MLC_COMPARE_NOT ? n : MLC__GATHER_BYTES / size;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t m = mlc__min(step, n - i);
        uint8_t *out = a->out + offset[0] + i * stride[0];
        const char *at = MLC__CAST(const char *, a->in[0]) + (offset[1] + i * stride[1]) * size;
        const void *first = mlc__compare_in(j, at, stride[1], m, x), *second = j->scalar;
        if (a->in[1]) {
            at = MLC__CAST(const char *, a->in[1]) + (offset[2] + i * stride[2]) * size;
            second = mlc__compare_in(j, at, stride[2], m, y);
        }
        j->fn(a->op, stride[0] == 1 ? out : dense, first, second, m);
        if (stride[0] != 1) mlc__scatter(out, stride[0], dense, m, 1);
    }
}

/* The scalar as the dtype has it: rounded to a float's. An integer is compared with it in i64, or
 * in f64 where the scalar is no integer: what lies near it is then exact. */
static void mlc__compare_scalar(mlc__compare_job *j)
{
    const struct mlc_k_compare *a = j->a;
    uint64_t one, rounded;
    const bool integer = a->s >= -9223372036854775808.0 && a->s < 9223372036854775808.0 &&
                         (double)(int64_t)a->s == a->s;
    if (j->wide == MLC_BOOL && a->s != 0.0 && a->s != 1.0) {
        j->wide = MLC_I64;
        j->fn = mlc__compare_i64;
    }
    if (j->wide == MLC_I64 && !integer) { j->wide = MLC_F64; j->fn = mlc__compare_f64; }
    const size_t size = mlc_dtype_bytes(j->wide);
    if (mlc__is_half(a->dtype)) {
        mlc__cast_dense(&rounded, a->dtype, &a->s, MLC_F64, 1, j->half);
        mlc__cast_dense(&one, j->wide, &rounded, a->dtype, 1, j->half);
    } else {
        mlc__cast_dense(&one, j->wide, &a->s, MLC_F64, 1, j->half);
    }
    mlc__gather(j->scalar, &one, 0, MLC__GATHER_BYTES / (int64_t)size, size);
}

static mlc_status mlc__compare_run(void *dev, const struct mlc_k_compare *a, mlc__compare_fn f32,
                                   mlc__compare_fn truth, const mlc__half_fns *half)
{
    const int64_t *strides[3] = { a->out_stride, a->in_stride[0], a->in_stride[1] };
    mlc__compare_job j;
    mlc__loop l;
    j.a = a;
    j.half = half;
    j.wide = a->dtype == MLC_BOOL ? MLC_BOOL : mlc__wide(a->dtype);
    j.fn = j.wide == MLC_F32 ? f32 : j.wide == MLC_F64 ? mlc__compare_f64
         : j.wide == MLC_I64 ? mlc__compare_i64 : truth;
    if (!a->in[1]) mlc__compare_scalar(&j);
    if (!mlc__loop_make(&l, a->ndim, a->shape, a->in[1] ? 3 : 2, strides)) return MLC_OK;
    mlc__loop_run(dev, &l, mlc__compare_row, &j, 0.3);
    return MLC_OK;
}

/* -- where -- */

#define MLC__WHERE_LOOP(TYPE) \
    do { \
        const TYPE *x = MLC__CAST(const TYPE *, in0), *y = MLC__CAST(const TYPE *, in1); \
        TYPE *o = MLC__CAST(TYPE *, out); \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) o[i] = mask[i] ? x[i] : y[i]; \
    } while (0)

/* Dense elements of 1, 2, 4 or 8 bytes. */
typedef void (*mlc__where_fn)(void *out, const uint8_t *mask, const void *in0, const void *in1,
                              int64_t n, size_t size);
MLC__BODY void mlc__where_body(void *out, const uint8_t *mask, const void *in0, const void *in1,
                               int64_t n, size_t size)
{
    if (size == 4) MLC__WHERE_LOOP(uint32_t);
    else if (size == 8) MLC__WHERE_LOOP(uint64_t);
    else if (size == 2) MLC__WHERE_LOOP(uint16_t);
    else MLC__WHERE_LOOP(uint8_t);
}
#define MLC__STAMP_WHERE(isa) MLC__AT_##isa \
    static void mlc__where_##isa(void *out, const uint8_t *mask, const void *in0, \
                                 const void *in1, int64_t n, size_t size) \
    { mlc__where_body(out, mask, in0, in1, n, size); }
MLC__EACH_ISA(MLC__STAMP_WHERE)

typedef struct mlc__where_job {
    const struct mlc_k_where *a;
    const mlc__half_fns *half;
    mlc__where_fn fn;
    uint64_t      scalar[MLC__GATHER_BYTES / 8];           /* s in the dtype */
} mlc__where_job;

/* out += v for dense floats, tile by tile: in f64, which rounds the same as f32 does. */
static void mlc__where_add(const mlc__where_job *j, char *out, const char *v, int64_t n)
{
    double x[MLC__WIDE_TILE], y[MLC__WIDE_TILE];
    const mlc_dtype dtype = j->a->dtype;
    const size_t size = mlc_dtype_bytes(dtype);
    for (int64_t i = 0; i < n; i += MLC__WIDE_TILE) {
        const int64_t m = mlc__min(MLC__WIDE_TILE, n - i);
        mlc__cast_dense(x, MLC_F64, out + (size_t)i * size, dtype, m, j->half);
        mlc__cast_dense(y, MLC_F64, v + (size_t)i * size, dtype, m, j->half);
        for (int64_t k = 0; k < m; k++) x[k] += y[k];
        mlc__cast_dense(out + (size_t)i * size, dtype, x, MLC_F64, m, j->half);
    }
}

static void mlc__where_row(const void *args, const int64_t *offset, const int64_t *stride,
                           int64_t n)
{
    const mlc__where_job *j = MLC__CAST(const mlc__where_job *, args);
    const struct mlc_k_where *a = j->a;
    const size_t size = mlc_dtype_bytes(a->dtype);
    const int64_t step = mlc__gather_step(size);
    uint64_t x[2][MLC__GATHER_BYTES / 8], chosen[MLC__GATHER_BYTES / 8], old[MLC__GATHER_BYTES / 8];
    uint8_t dense_mask[MLC__GATHER];
    for (int64_t i = 0; i < n; i += step) {
        const int64_t m = mlc__min(step, n - i);
        const void *in[2] = { j->scalar, j->scalar };
        const uint8_t *mask = a->mask + offset[1] + i * stride[1];
        char *out = MLC__CAST(char *, a->out) + (offset[0] + i * stride[0]) * (int64_t)size;
        const bool direct = stride[0] == 1 && !a->accumulate;
        for (int p = 0; p < 2; p++) {
            if (!a->in[p]) continue;
            in[p] = mlc__at(a->in[p], offset[p + 2] + i * stride[p + 2], size);
            if (stride[p + 2] == 1) continue;
            mlc__gather(x[p], in[p], stride[p + 2], m, size);
            in[p] = x[p];
        }
        if (stride[1] != 1) { mlc__gather(dense_mask, mask, stride[1], m, 1); mask = dense_mask; }
        j->fn(direct ? (void *)out : (void *)chosen, mask, in[0], in[1], m, size);
        if (direct) continue;
        if (a->accumulate) {
            mlc__gather(old, out, stride[0], m, size);
            mlc__where_add(j, (char *)old, (const char *)chosen, m);
        }
        mlc__scatter(out, stride[0], a->accumulate ? old : chosen, m, size);
    }
}

static mlc_status mlc__where_run(void *dev, const struct mlc_k_where *a, mlc__where_fn fn,
                                 const mlc__half_fns *half)
{
    static const int64_t none[MLC_MAX_DIMS] = { 0 };       /* strides of a scalar */
    const int64_t *strides[4] = { a->out_stride, a->mask_stride,
                                  a->in[0] ? a->in_stride[0] : none,
                                  a->in[1] ? a->in_stride[1] : none };
    const size_t size = mlc_dtype_bytes(a->dtype);
    uint64_t one;
    mlc__where_job j;
    mlc__loop l;
    j.a = a;
    j.half = half;
    j.fn = fn;
    mlc__cast_dense(&one, a->dtype, &a->s, MLC_F64, 1, half);
    mlc__gather(j.scalar, &one, 0, mlc__gather_step(size), size);
    if (!mlc__loop_make(&l, a->ndim, a->shape, 4, strides)) return MLC_OK;
    mlc__loop_run(dev, &l, mlc__where_row, &j, 0.3);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.INDEX ---------------------------------- gather, scatter, nonzero, band, pad
 * An index moves elements along one axis: the loop goes over the shape of the index, once along
 * that axis and once across it, whichever is dense inside. What is written through an index is
 * written line by line along the axis, in order, by one thread: so duplicates have one meaning, and
 * bits do not depend on the threads. An index out of range touches nothing: before anything is
 * written through indices all are checked, and a gather puts zero where one is wrong. */

/* Is there an index outside of 0 .. limit-1? Axes along which it is repeated are looked at once. */
typedef struct mlc__index_check { const struct mlc_k_index *a; int32_t *outside; } mlc__index_check;

/* The top bit of i, or of the distance from i to the last element, tells: in this form the loop
 * vectorises everywhere. */
static MLC__OPT void mlc__index_check_row(const void *args, const int64_t *offset,
                                          const int64_t *stride, int64_t n)
{
    const mlc__index_check *c = MLC__CAST(const mlc__index_check *, args);
    const int64_t *index = c->a->index + offset[0], step = stride[0];
    const uint64_t last = (uint64_t)c->a->limit - 1;
    uint64_t bad = 0;
    if (step == 1)
        for (int64_t i = 0; i < n; i++) bad |= (uint64_t)index[i] | (last - (uint64_t)index[i]);
    else
        for (int64_t i = 0; i < n; i++)
            bad |= (uint64_t)index[i * step] | (last - (uint64_t)index[i * step]);
    if (bad >> 63) __atomic_store_n(c->outside, 1, __ATOMIC_RELAXED);
}

/* The first one in row-major order goes to the error word. */
static void mlc__index_report(const struct mlc_k_index *a, const int64_t *shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < a->ndim; d++) n *= shape[d];
    for (int64_t p = 0; p < n && a->error[0] == 0; p++) {
        int64_t at = 0, rest = p;
        for (int32_t d = a->ndim - 1; d >= 0; rest /= shape[d--])
            at += rest % shape[d] * a->index_stride[d];
        if ((uint64_t)a->index[at] < (uint64_t)a->limit) continue;
        a->error[0] = a->kind;
        a->error[1] = p;
        a->error[2] = a->index[at];
        a->error[3] = a->limit;
    }
}

/* known: a gather has found one already, only which is the question. */
static bool mlc__index_outside(void *dev, const struct mlc_k_index *a, bool known)
{
    const int64_t *strides[1] = { a->index_stride };
    int64_t shape[MLC_MAX_DIMS];
    int32_t outside = known;
    const mlc__index_check check = { a, &outside };
    mlc__loop l;
    for (int32_t d = 0; d < a->ndim; d++)
        shape[d] = a->index_stride[d] == 0 ? mlc__min(1, a->shape[d]) : a->shape[d];
    if (!known && mlc__loop_make(&l, a->ndim, shape, 1, strides))
        mlc__loop_run(dev, &l, mlc__index_check_row, &check, 0.5);
    if (outside) mlc__index_report(a, shape);
    return outside != 0;
}

/* outer x inner elements; strides in elements, data_axis is what an index of 1 means. */
typedef struct mlc__index_block {
    char          *line, *data;
    const int64_t *index;
    int64_t        outer, inner, limit, data_axis;
    int64_t        line_outer, index_outer, data_outer, line_inner, index_inner, data_inner;
    int64_t        from, to;           /* of rows: writes through other indices are not ours   */
} mlc__index_block;

/* For each element l is its place in the line, d its place in data, i its index. The block is
 * copied, so that no store through l or d changes it. Along a dense axis there are no strides. */
#define MLC__INDEX_EACH(T, statement) \
    do { \
        const mlc__index_block b = *block; \
        const bool dense = b.line_inner == 1 && b.index_inner == 1 && b.data_inner == 0 && \
                           b.data_axis == 1; \
        for (int64_t o = 0; o < b.outer; o++) { \
            T *lines = (T *)(void *)b.line + o * b.line_outer; \
            T *data = (T *)(void *)b.data + o * b.data_outer; \
            const int64_t *index = b.index + o * b.index_outer; \
            if (dense) MLC__INDEX_LOOP(T, 1, 1, 0, 1, statement) \
            else MLC__INDEX_LOOP(T, b.line_inner, b.index_inner, b.data_inner, b.data_axis, \
                                 statement) \
        } \
    } while (0)
#define MLC__INDEX_LOOP(T, line_step, index_step, data_step, axis_step, statement) \
    for (int64_t e = 0; e < b.inner; e++) { \
        const int64_t i = index[e * (index_step)]; \
        T *l = lines + e * (line_step); \
        MLC__INDEX_##statement(T, data[e * (data_step) + i * (axis_step)]) \
    }

/* all becomes false if an index was outside. */
#define MLC__INDEX_GATHER(T, d) { \
    const bool in = (uint64_t)i < (uint64_t)b.limit; \
    *l = in ? d : (T)0; \
    all = all && in; }
#define MLC__INDEX_SCATTER(T, d) { d = *l; }
#define MLC__INDEX_TAKE(T, d) { *l = d; d = (T)0; }
#define MLC__INDEX_ADD(T, d) { d = (T)(d + *l); }
#define MLC__INDEX_OR(T, d) { d = (T)(d || *l); }
#define MLC__INDEX_MOVES(MOVE) \
    if (size == 4) MLC__INDEX_EACH(uint32_t, MOVE); \
    else if (size == 8) MLC__INDEX_EACH(uint64_t, MOVE); \
    else if (size == 2) MLC__INDEX_EACH(uint16_t, MOVE); \
    else MLC__INDEX_EACH(uint8_t, MOVE);

static bool mlc__index_gather(const mlc__index_block *block, size_t size)
{
    bool all = true;
    MLC__INDEX_MOVES(GATHER)
    return all;
}
static void mlc__index_scatter(const mlc__index_block *block, size_t size)
{
    MLC__INDEX_MOVES(SCATTER)
}
static void mlc__index_take(const mlc__index_block *block, size_t size)
{
    MLC__INDEX_MOVES(TAKE)
}
/* Integers wrap around; the sum of two bools is whether one is true. */
static void mlc__index_add(const mlc__index_block *block, mlc_dtype dtype)
{
    switch (dtype) {
    case MLC_F32:  MLC__INDEX_EACH(float, ADD); break;
    case MLC_F64:  MLC__INDEX_EACH(double, ADD); break;
    case MLC_I64:  MLC__INDEX_EACH(uint64_t, ADD); break;
    case MLC_I32:  MLC__INDEX_EACH(uint32_t, ADD); break;
    case MLC_BOOL: MLC__INDEX_EACH(uint8_t, OR); break;
    default:       MLC__INDEX_EACH(uint8_t, ADD); break;         /* i8, u8 */
    }
}

/* One index for a dense row: rows as a whole. Those of data that a part of the loop writes to are
 * its own, so that parts may run side by side, and a row takes its terms in order. */
static MLC__OPT bool mlc__index_rows(const mlc__index_block *b, const struct mlc_k_index *a)
{
    const size_t size = mlc_dtype_bytes(a->dtype), bytes = (size_t)b->inner * size;
    bool all = true;
    for (int64_t o = 0; o < b->outer; o++) {
        const int64_t i = b->index[o * b->index_outer];
        const bool in = (uint64_t)i < (uint64_t)b->limit;
        if (a->op != MLC_INDEX_GATHER && (i < b->from || i >= b->to)) continue;
        char *line = b->line + o * b->line_outer * (int64_t)size;
        char *data = b->data + (o * b->data_outer + (in ? i : 0) * b->data_axis) * (int64_t)size;
        all = all && in;
        switch (a->op) {
        case MLC_INDEX_GATHER:
            if (in) memcpy(line, data, bytes);
            else memset(line, 0, bytes);
            break;
        case MLC_INDEX_SCATTER: memcpy(data, line, bytes); break;
        case MLC_INDEX_TAKE: memcpy(line, data, bytes); memset(data, 0, bytes); break;
        default:
            if (a->dtype == MLC_F32) {
                float *d = MLC__CAST(float *, (void *)data);
                const float *l = MLC__CAST(const float *, (void *)line);
                MLC__INDEPENDENT for (int64_t e = 0; e < b->inner; e++) d[e] += l[e];
            } else {
                mlc__index_block row = *b;
                row.outer = 1;
                row.line = line;
                row.index = b->index + o * b->index_outer;
                row.data = b->data + o * b->data_outer * (int64_t)size;
                mlc__index_add(&row, a->dtype);
            }
        }
    }
    return all;
}

/* across: the other axes; operands line, index, data. A chunk is a piece of a row of it, or some
 * rows, and of the axis only where nothing is written through the index; dense rows of data that
 * are written to are dealt out instead, in parts of the range of the index. */
typedef struct mlc__index_job {
    const struct mlc_k_index *a;
    mlc__loop across;
    int64_t   m, line, index, data;    /* the axis and its strides                              */
    int64_t   block_m, block_n, rows;  /* of a chunk                                            */
    int64_t   parts;
    bool      axis_inner;
    int32_t   outside;
} mlc__index_job;

/* Where the i-th of the parts that n is dealt to evenly begins. */
MLC__INLINE int64_t mlc__part(int64_t n, int64_t parts, int64_t i)
{
    return n / parts * i + mlc__min(n % parts, i);
}

static void mlc__index_piece(mlc__index_job *j, int64_t row, int64_t m0, int64_t n0, int64_t part)
{
    const size_t size = mlc_dtype_bytes(j->a->dtype);
    const int32_t last = j->across.ndim - 1;
    const int64_t l = j->across.stride[0][last], i = j->across.stride[1][last];
    const int64_t d = j->across.stride[2][last];
    const int64_t m = mlc__min(j->block_m, j->m - m0), n = mlc__min(j->block_n, j->across.n - n0);
    int64_t offset[MLC__LOOP_OPERANDS];
    bool all = true;
    mlc__loop_row(&j->across, row, offset);
    mlc__index_block b = {
        MLC__CAST(char *, j->a->line) + (offset[0] + n0 * l + m0 * j->line) * (int64_t)size,
        MLC__CAST(char *, j->a->data) + (offset[2] + n0 * d) * (int64_t)size,
        j->a->index + offset[1] + n0 * i + m0 * j->index,
        m, n, j->a->limit, j->data, j->line, j->index, 0, l, i, d,
        mlc__part(j->a->limit, j->parts, part), mlc__part(j->a->limit, j->parts, part + 1) };
    if (j->axis_inner) {
        b.outer = n; b.inner = m;
        b.line_outer = l; b.index_outer = i; b.data_outer = d;
        b.line_inner = j->line; b.index_inner = j->index; b.data_inner = 0;
    }
    if (b.index_inner == 0 && b.line_inner == 1 && b.data_inner == 1)
        all = mlc__index_rows(&b, j->a);
    else if (j->a->op == MLC_INDEX_GATHER) all = mlc__index_gather(&b, size);
    else if (j->a->op == MLC_INDEX_SCATTER) mlc__index_scatter(&b, size);
    else if (j->a->op == MLC_INDEX_TAKE) mlc__index_take(&b, size);
    else mlc__index_add(&b, j->a->dtype);
    if (!all) __atomic_store_n(&j->outside, 1, __ATOMIC_RELAXED);
}

static void mlc__index_chunk(void *arg, int64_t chunk, int32_t worker)
{
    mlc__index_job *j = MLC__CAST(mlc__index_job *, arg);
    const int64_t pieces_m = mlc__div_up(j->m, j->block_m);
    const int64_t pieces_n = mlc__div_up(j->across.n, j->block_n);
    const int64_t m0 = chunk % pieces_m * j->block_m;
    const int64_t n0 = chunk / pieces_m % pieces_n * j->block_n;
    const int64_t part = chunk / pieces_m / pieces_n % j->parts;
    const int64_t row = chunk / pieces_m / pieces_n / j->parts * j->rows;
    (void)worker;
    for (int64_t r = row; r < mlc__min(j->across.rows, row + j->rows); r++)
        mlc__index_piece(j, r, m0, n0, part);
}

/* How a loop of rows x n x m is cut; each part of dense rows reads all m indices. Returns the
 * number of chunks. */
static int64_t mlc__index_plan(mlc__index_job *j)
{
    const mlc__loop *l = &j->across;
    const int32_t last = l->ndim - 1;
    const bool whole = j->a->op != MLC_INDEX_GATHER;
    const int64_t along = j->line < 0 ? -j->line : j->line;
    j->parts = 1;
    j->axis_inner = l->n == 1 || along < l->stride[0][l->ndim - 1];
    if (j->axis_inner) {
        j->block_m = whole ? j->m : mlc__min(j->m, MLC__GRAIN);
        j->block_n = mlc__min(l->n, mlc__max(1, MLC__GRAIN / j->block_m));
    } else if (whole && l->stride[0][last] == 1 && l->stride[1][last] == 0 &&
               l->stride[2][last] == 1) {
        j->block_n = l->n;
        j->block_m = j->m;
        j->parts = mlc__min(mlc__min(16, l->n / 16), j->m * l->n / MLC__GRAIN);
        j->parts = mlc__max(1, mlc__min(j->parts, j->a->limit));
    } else {
        j->block_n = mlc__min(l->n, whole ? mlc__max(128, MLC__GRAIN / j->m) : MLC__GRAIN);
        j->block_m = whole ? j->m : mlc__min(j->m, mlc__max(1, MLC__GRAIN / j->block_n));
    }
    const int64_t pieces = mlc__div_up(j->m, j->block_m) * mlc__div_up(l->n, j->block_n) *
                           j->parts;
    j->rows = pieces > 1 ? 1 : mlc__max(1, MLC__GRAIN / (j->m * l->n));
    return mlc__div_up(l->rows, j->rows) * pieces;
}

static mlc_status mlc__k_index(void *dev, const struct mlc_k_index *given)
{
    int64_t shape[MLC_MAX_DIMS], line[MLC_MAX_DIMS], index[MLC_MAX_DIMS], data[MLC_MAX_DIMS];
    const int64_t *strides[3] = { line, index, data };
    struct mlc_k_index a = *given;
    mlc__index_job j;
    int32_t n = 0;
    if ((unsigned)a.dtype >= MLC_DTYPE_COUNT || (a.op == MLC_INDEX_ADD && mlc__is_half(a.dtype)))
        return MLC_ERR_UNSUPPORTED;
    for (int32_t d = 0; d < a.ndim; d++) {
        if (d == a.axis) continue;
        shape[n] = a.shape[d];
        line[n] = a.line_stride[d];
        index[n] = a.index_stride[d];
        data[n++] = a.data_stride[d];
    }
    j.a = &a;
    j.m = a.shape[a.axis];
    j.line = a.line_stride[a.axis];
    j.index = a.index_stride[a.axis];
    j.data = a.data_stride[a.axis];
    j.outside = 0;
    if (j.m == 0 || !mlc__loop_make(&j.across, n, shape, 3, strides)) return MLC_OK;
    if (a.op != MLC_INDEX_GATHER && mlc__index_outside(dev, given, false)) return MLC_OK;
    if (a.op == MLC_INDEX_TAKE) {      /* from the last to the first */
        a.line = MLC__CAST(char *, a.line) + (j.m - 1) * j.line * (int64_t)mlc_dtype_bytes(a.dtype);
        a.index += (j.m - 1) * j.index;
        j.line = -j.line;
        j.index = -j.index;
    }
    const int64_t chunks = mlc__index_plan(&j);
    mlc__parallel(dev, chunks, 1.0 * (double)j.m * (double)j.across.rows * (double)j.across.n,
                  mlc__index_chunk, &j);
    if (j.outside) mlc__index_outside(dev, given, true);
    return MLC_OK;
}

/* Where the elements of a row-major block are that are not zero: chunks are counted, the counts
 * added up, then each chunk writes behind those before it. Bits decide: -0 is zero, a denormal is
 * not, whatever is flushed. */
typedef struct mlc__nonzero_job {
    const struct mlc_k_nonzero *a;
    int64_t *first;                    /* of each chunk: its count, then its place in out       */
    bool     write;
} mlc__nonzero_job;

/* place[k] = number of the k-th nonzero element of n, without a jump; their count. */
#define MLC__NONZERO(T, zero_bits) \
    for (int64_t i = 0; i < n; i++) { \
        place[k] = i; \
        k += (T)(MLC__CAST(const T *, x)[i] & (T)(zero_bits)) != 0; \
    }

static int64_t mlc__nonzero_tile(const void *x, mlc_dtype dtype, int64_t n, int64_t *place)
{
    const bool sign = mlc__is_float(dtype);
    const size_t size = mlc_dtype_bytes(dtype);
    int64_t k = 0;
    if (size == 1) { MLC__NONZERO(uint8_t, 0xFFu) }
    else if (size == 2) { MLC__NONZERO(uint16_t, 0x7FFFu) }
    else if (size == 4) { MLC__NONZERO(uint32_t, sign ? 0x7FFFFFFFu : 0xFFFFFFFFu) }
    else { MLC__NONZERO(uint64_t, sign ? UINT64_MAX >> 1 : UINT64_MAX) }
    return k;
}

/* Row-major numbers at + place[k] as coordinates, [n, ndim]: each is reached from the one before,
 * so that only the first takes divisions. */
static void mlc__nonzero_coordinates(const struct mlc_k_nonzero *a, int64_t at, int64_t n,
                                     const int64_t *place, int64_t *out)
{
    int64_t c[MLC_MAX_DIMS] = { 0 }, last = place[0];
    const int32_t end = a->ndim - 1;
    at += last;
    for (int32_t d = end; d >= 0; at /= a->shape[d--]) c[d] = at % a->shape[d];
    for (int64_t k = 0; k < n; k++, out += a->ndim) {
        if (end >= 0) c[end] += place[k] - last;
        last = place[k];
        for (int32_t d = end; d > 0; d--)
            for (; c[d] >= a->shape[d]; c[d] -= a->shape[d]) c[d - 1]++;
        for (int32_t d = 0; d <= end; d++) out[d] = c[d];
    }
}

static void mlc__nonzero_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__nonzero_job *j = MLC__CAST(const mlc__nonzero_job *, arg);
    const struct mlc_k_nonzero *a = j->a;
    const int64_t from = chunk * MLC__GRAIN, to = mlc__min(a->n, from + MLC__GRAIN);
    const int64_t width = a->coordinates ? a->ndim : 1;
    int64_t place[MLC__GATHER], at = j->write ? j->first[chunk] : 0;
    (void)worker;
    for (int64_t i = from; i < to; i += MLC__GATHER) {
        const int64_t k = mlc__nonzero_tile(mlc__at(a->in, i, mlc_dtype_bytes(a->dtype)), a->dtype,
                                            mlc__min(MLC__GATHER, to - i), place);
        if (j->write && a->coordinates && k)
            mlc__nonzero_coordinates(a, i, k, place, a->out + at * width);
        else if (j->write)
            for (int64_t e = 0; e < k; e++) a->out[at + e] = i + place[e];
        at += k;
    }
    if (!j->write) j->first[chunk] = at;
}

static size_t mlc__k_nonzero_workspace(void *dev, const struct mlc_k_nonzero *a)
{
    (void)dev;
    return (size_t)mlc__div_up(a->n, MLC__GRAIN) * sizeof(int64_t);
}

static mlc_status mlc__k_nonzero(void *dev, const struct mlc_k_nonzero *a)
{
    const int64_t chunks = mlc__div_up(a->n, MLC__GRAIN);
    mlc__nonzero_job j = { a, MLC__CAST(int64_t *, a->workspace), false };
    int64_t total = 0;
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT) return MLC_ERR_UNSUPPORTED;
    if (a->workspace_bytes < (size_t)chunks * sizeof(int64_t)) return MLC_ERR_INTERNAL;
    mlc__parallel(dev, chunks, 0.5 * (double)a->n, mlc__nonzero_chunk, &j);
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t count = j.first[c];
        j.first[c] = total;
        total += count;
    }
    *a->count = total;
    if (!a->out) return MLC_OK;
    j.write = true;
    mlc__parallel(dev, chunks, 2.0 * (double)a->n, mlc__nonzero_chunk, &j);
    return MLC_OK;
}

/* Rows of matrices, each in three pieces: zeros, elements of the band, zeros. */
typedef struct mlc__band_job { const struct mlc_k_band *a; int64_t rows, per_chunk; } mlc__band_job;

static void mlc__band_zero(char *out, int64_t stride, int64_t n, size_t size)
{
    static const uint64_t zeros[MLC__GATHER] = { 0 };
    if (stride == 1) { memset(out, 0, (size_t)mlc__max(0, n) * size); return; }
    for (int64_t i = 0; i < n; i += MLC__GATHER)
        mlc__scatter(out + i * stride * (int64_t)size, stride, zeros, mlc__min(MLC__GATHER, n - i),
                     size);
}

static void mlc__band_row(const struct mlc_k_band *a, int64_t row)
{
    const int32_t last = a->ndim - 1;
    const int64_t i = row % a->shape[last - 1], n = a->shape[last];
    const int64_t os = a->out_stride[last], is = a->in_stride[last];
    const int64_t begin = a->lo < -i ? 0 : mlc__min(n, i + a->lo);
    const int64_t end = a->hi >= n - 1 - i ? n : mlc__max(begin, i + a->hi + 1);
    const int64_t size = (int64_t)mlc_dtype_bytes(a->dtype);
    uint64_t tile[MLC__GATHER];
    char *out = MLC__CAST(char *, a->out);
    const char *in = MLC__CAST(const char *, a->in);
    for (int32_t d = last - 1; d >= 0; row /= a->shape[d--]) {
        out += row % a->shape[d] * a->out_stride[d] * size;
        in += row % a->shape[d] * a->in_stride[d] * size;
    }
    mlc__band_zero(out, os, begin, (size_t)size);
    mlc__band_zero(out + end * os * size, os, n - end, (size_t)size);
    if (os == 1 && is == 1) {
        memcpy(out + begin * size, in + begin * size, (size_t)((end - begin) * size));
        return;
    }
    for (int64_t c = begin; c < end; c += MLC__GATHER) {
        const int64_t m = mlc__min(MLC__GATHER, end - c);
        mlc__gather(tile, in + c * is * size, is, m, (size_t)size);
        mlc__scatter(out + c * os * size, os, tile, m, (size_t)size);
    }
}

static void mlc__band_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__band_job *j = MLC__CAST(const mlc__band_job *, arg);
    const int64_t from = chunk * j->per_chunk;
    (void)worker;
    for (int64_t r = from; r < mlc__min(j->rows, from + j->per_chunk); r++)
        mlc__band_row(j->a, r);
}

static mlc_status mlc__k_band(void *dev, const struct mlc_k_band *a)
{
    mlc__band_job j = { a, 1, 0 };
    int64_t n;
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT || a->ndim < 2) return MLC_ERR_UNSUPPORTED;
    for (int32_t d = 0; d + 1 < a->ndim; d++) j.rows *= a->shape[d];
    n = a->shape[a->ndim - 1];
    if (n == 0 || j.rows == 0) return MLC_OK;
    j.per_chunk = mlc__max(1, MLC__GRAIN / n);
    mlc__parallel(dev, mlc__div_up(j.rows, j.per_chunk), 0.3 * (double)j.rows * (double)n,
                  mlc__band_chunk, &j);
    return MLC_OK;
}

/* A row of out: in order a border, elements of in, a border. Trailing axes that have no borders and
 * are dense in both are one unit of so many elements. */
typedef struct mlc__pad_job {
    const struct mlc_k_pad *a;
    int32_t  last;                     /* axis of the rows                                      */
    int64_t  unit, rows, per_chunk;
    uint64_t value;                    /* one element                                           */
} mlc__pad_job;

/* Place in `in` of place i on axis d of out; -1 where that is a constant border. */
static int64_t mlc__pad_from(const struct mlc_k_pad *a, int32_t d, int64_t i)
{
    const int64_t n = a->in_shape[d], at = i - a->before[d];
    if (at >= 0 && at < n) return at;
    switch (a->mode) {
    case MLC_PAD_REFLECT:   return at < 0 ? -at : 2 * n - 2 - at;
    case MLC_PAD_REPLICATE: return at < 0 ? 0 : n - 1;
    case MLC_PAD_CIRCULAR:  return at < 0 ? at + n : at - n;
    default:                return -1;
    }
}

/* n units; stride in elements */
static void mlc__pad_move(char *to, const char *from, int64_t stride, int64_t n, int64_t unit,
                          size_t size)
{
    const int64_t bytes = unit * (int64_t)size;
    if (n * bytes == 0) return;        /* an empty tensor has no memory */
    if (stride == unit) memcpy(to, from, (size_t)(n * bytes));
    else if (unit == 1) mlc__gather(to, from, stride, n, size);
    else for (int64_t i = 0; i < n; i++)
        memcpy(to + i * bytes, from + i * stride * (int64_t)size, (size_t)bytes);
}

/* Borders are copied from out: their source has just been written and is in L1. */
static void mlc__pad_borders(const mlc__pad_job *j, char *to, int64_t left, int64_t inner,
                             int64_t right)
{
    const size_t size = mlc_dtype_bytes(j->a->dtype);
    const int64_t unit = j->unit, bytes = unit * (int64_t)size;
    char *begin = to + left * bytes, *end = begin + inner * bytes;
    switch (j->a->mode) {
    case MLC_PAD_REFLECT:
        mlc__pad_move(to, begin + left * bytes, -unit, left, unit, size);
        mlc__pad_move(end, end - 2 * bytes, -unit, right, unit, size);
        break;
    case MLC_PAD_REPLICATE:
        mlc__pad_move(to, begin, 0, left, unit, size);
        mlc__pad_move(end, end - bytes, 0, right, unit, size);
        break;
    case MLC_PAD_CIRCULAR:
        mlc__pad_move(to, end - left * bytes, unit, left, unit, size);
        mlc__pad_move(end, begin, unit, right, unit, size);
        break;
    default:
        mlc__gather(to, &j->value, 0, left * unit, size);
        mlc__gather(end, &j->value, 0, right * unit, size);
    }
}

static void mlc__pad_row(const mlc__pad_job *j, int64_t row)
{
    const struct mlc_k_pad *a = j->a;
    const int32_t last = j->last;
    const int64_t n = a->shape[last], size = (int64_t)mlc_dtype_bytes(a->dtype);
    const int64_t cut = mlc__max(0, -a->before[last]);
    const int64_t left = mlc__min(n, mlc__max(0, a->before[last]));
    const int64_t inner = mlc__max(0, mlc__min(a->in_shape[last] - cut, n - left));
    char *to = MLC__CAST(char *, a->out) + row * n * j->unit * size;
    int64_t from = inner > 0 ? cut * a->in_stride[last] : 0;
    for (int32_t d = last - 1; d >= 0; row /= a->shape[d--]) {
        const int64_t at = mlc__pad_from(a, d, row % a->shape[d]);
        if (at < 0) {
            mlc__gather(to, &j->value, 0, n * j->unit, (size_t)size);
            return;
        }
        from += at * a->in_stride[d];
    }
    mlc__pad_move(to + left * j->unit * size, MLC__CAST(const char *, a->in) + from * size,
                  a->in_stride[last], inner, j->unit, (size_t)size);
    mlc__pad_borders(j, to, left, inner, n - left - inner);
}

static void mlc__pad_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__pad_job *j = MLC__CAST(const mlc__pad_job *, arg);
    const int64_t from = chunk * j->per_chunk;
    (void)worker;
    for (int64_t r = from; r < mlc__min(j->rows, from + j->per_chunk); r++) mlc__pad_row(j, r);
}

static mlc_status mlc__k_pad(void *dev, const struct mlc_k_pad *a)
{
    mlc__pad_job j = { a, a->ndim - 1, 1, 1, 1, 0 };
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT || a->ndim < 1) return MLC_ERR_UNSUPPORTED;
    for (int32_t d = 0; d < j.last; d++) j.rows *= a->shape[d];
    for (; j.last > 0 && a->before[j.last] == 0 && a->shape[j.last] == a->in_shape[j.last] &&
           a->in_stride[j.last] == j.unit; j.last--) {
        const int64_t left = j.rows / mlc__max(1, a->shape[j.last - 1]);
        if (left < 64 && j.unit * a->shape[j.last] >= 512) break;      /* too few for threads */
        j.unit *= a->shape[j.last];
        j.rows = left;
    }
    const int64_t n = a->shape[j.last] * j.unit;
    if (n == 0 || j.rows == 0) return MLC_OK;
    mlc__cast_dense(&j.value, a->dtype, &a->value, MLC_F64, 1, &mlc__half_fns_scalar);
    j.per_chunk = mlc__max(1, MLC__GRAIN / n);
    mlc__parallel(dev, mlc__div_up(j.rows, j.per_chunk), 0.3 * (double)j.rows * (double)n,
                  mlc__pad_chunk, &j);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.REDUCE --------------------------------- sums, products, extremes; argmax, scans
 * An element takes its wide form (IMPL.KERNELS.CAST; f64 for deviations), is prepared (less a
 * shift, absolute, to a power, exp) and joins an accumulator. The axes are split in kept (a loop
 * over results) and gone (a loop over what a result is made of). Three ways to walk: runs, where
 * the gone axis is dense; columns, where the kept axis is dense (whole rows are joined, four at a
 * time, into partial results in the workspace, so that memory is read in order); strided runs,
 * gathered through L1. Long reductions are cut in segments, whose partial results meet in the
 * workspace in a fixed order: bits depend on the shape, never on the threads.
 * Sums: f32 is added in groups of four, whose sums are carried in f64, so the error is at most
 * (2^-23 + n 2^-53) sum |x| before the result is rounded. f64 is added in blocks of 1,024, each
 * lane of it 16 groups of four, whose sums are carried with their rounding errors: 22 2^-53 sum
 * |x|, however many there are (two-sum: Knuth, The Art of Computer Programming, volume 2, 4.2.2;
 * the rest: Higham, Accuracy and Stability of Numerical Algorithms, chapter 4). */

#define MLC__SUM_BLOCK 1024
#define MLC__SEGMENT   65536           /* is worth a chunk of its own */
#define MLC__COLUMNS   64              /* that go through a tile in L1 together */
#define MLC__WIDTH     1024            /* columns joined in one walk along the rows */

/* A sum v and what its roundings lost, or a product or extreme; of integers i. */
typedef struct mlc__acc {
    double  v, lost;
    int64_t i;
} mlc__acc;

/* Joins n dense wide elements to *t; extremes: the largest of sign x (of ~x where sign is less
 * than 0 and x an integer), a NaN stays. */
typedef void (*mlc__run_fn)(mlc__acc *t, const void *x, int64_t n, double sign);
/* The same for n columns, t[c] with row[0..rows-1][c]; t: f64 or i64; rows: 1 to 4. */
typedef void (*mlc__cols_fn)(void *t, const void *const *row, int rows, int64_t n, double sign);

typedef struct mlc__joiner {
    mlc__run_fn  run;
    mlc__cols_fn cols;
} mlc__joiner;

/* t += x */
MLC__INLINE void mlc__acc_add(mlc__acc *t, double x)
{
    const double s = t->v + x, y = s - t->v;
    t->lost += (t->v - (s - y)) + (x - y);
    t->v = s;
}

/* What was lost of an infinite sum is NaN. */
MLC__INLINE double mlc__acc_value(const mlc__acc *t)
{
    return t->v - t->v == 0.0 ? t->v + t->lost : t->v;
}

/* Sum of 16 lanes, pairwise. */
MLC__INLINE double mlc__fold(const double *lane)
{
    double half[8];
    for (int i = 0; i < 8; i++) half[i] = lane[i] + lane[i + 8];
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}

/* block: elements that the lanes take up before they are folded. Lanes are arrays in loops of fixed
 * length, which compilers hold in registers, so no index into them varies. The order of additions
 * is written out: every ISA and every vector length gives the same sum. */
#define MLC__SUM_TEXT(T, block, four, one) \
    (void)sign; \
    for (int64_t from = 0; from < n; from += block) { \
        const T *v = MLC__CAST(const T *, x) + from; \
        const int64_t m = n - from < block ? n - from : block; \
        double lane[16], few = 0.0; \
        int64_t i = 0; \
        for (int l = 0; l < 16; l++) lane[l] = 0.0; \
        for (; i + 64 <= m; i += 64) \
            MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
                const T a = v[i + l], b = v[i + l + 16], c = v[i + l + 32], d = v[i + l + 48]; \
                lane[l] += four; \
            } \
        for (; i + 16 <= m; i += 16) \
            MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
                const T a = v[i + l]; \
                lane[l] += one; \
            } \
        for (; i < m && m < 16; i++) { const T a = v[i]; few += one; } \
        if (i < m) {                   /* the last 16, without those that have been counted */ \
            const T *w = v + m - 16; \
            const int seen = 16 - (int)(m - i); \
            MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
                const T a = l < seen ? (T)0 : w[l]; \
                lane[l] += one; \
            } \
        } \
        mlc__acc_add(t, m < 16 ? few : mlc__fold(lane)); \
    }
#define MLC__SQUARE(x) ((double)(x) * (double)(x))             /* of a float: exact */

MLC__BODY void mlc__add_f32_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    MLC__SUM_TEXT(float, MLC__SEGMENT, (double)((a + b) + (c + d)), (double)a)
}
MLC__BODY void mlc__add_f64_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    MLC__SUM_TEXT(double, MLC__SUM_BLOCK, (a + b) + (c + d), a)
}
MLC__BODY void mlc__squares_f32_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    MLC__SUM_TEXT(float, MLC__SEGMENT,
                  (MLC__SQUARE(a) + MLC__SQUARE(b)) + (MLC__SQUARE(c) + MLC__SQUARE(d)),
                  MLC__SQUARE(a))
}
/* The larger one; a NaN stays. */
#define MLC__LARGER(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* Below 0 for the bits of a NaN: integers, which vectorise where a comparison with itself would
 * branch. */
#define MLC__NAN_SIGN_32(bits) (0x7F800000 - (int32_t)((bits) & 0x7FFFFFFF))
#define MLC__NAN_SIGN_64(bits) (0x7FF0000000000000 - (int64_t)((bits) & 0x7FFFFFFFFFFFFFFF))

/* NaN apart from the rest, which is a vector max then. */
#define MLC__MAX_STEP(T, I, nan_sign, lanes, w) \
    MLC__INDEPENDENT for (int l = 0; l < lanes; l++) { \
        const T e = (w)[l] * s; \
        I bits; \
        memcpy(&bits, &e, sizeof bits); \
        nan[l] |= nan_sign(bits); \
        lane[l] = e > lane[l] ? e : lane[l]; \
    }

/* I: integer of T's size. The last 32 elements overlap those before: none counts twice. */
#define MLC__MAX_TEXT(T, I, nan_sign) \
    const T *v = MLC__CAST(const T *, x), s = (T)sign; \
    T best = -(T)MLC__INF, lane[32]; \
    I bad = 0, nan[32]; \
    if (n < 32) { \
        for (int64_t i = 0; i < n; i++) { const T e = v[i] * s; best = MLC__LARGER(best, e); } \
    } else { \
        for (int l = 0; l < 32; l++) { lane[l] = best; nan[l] = 0; } \
        for (int64_t i = 0; i + 32 <= n; i += 32) MLC__MAX_STEP(T, I, nan_sign, 32, v + i) \
        MLC__MAX_STEP(T, I, nan_sign, 32, v + n - 32) \
        for (int l = 0; l < 32; l++) { \
            best = lane[l] > best ? lane[l] : best; \
            bad |= nan[l]; \
        } \
    } \
    t->v = bad < 0 ? MLC__NAN : MLC__LARGER(t->v, (double)best);

MLC__BODY void mlc__max_f32_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    MLC__MAX_TEXT(float, int32_t, MLC__NAN_SIGN_32)
}
MLC__BODY void mlc__max_f64_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    MLC__MAX_TEXT(double, int64_t, MLC__NAN_SIGN_64)
}
/* A product of two; its exponent tells whether f32 has it exactly but for rounding. */
#define MLC__MUL_STEP(first, second) \
    MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
        const float e = (first) * (second); \
        uint32_t bits; \
        memcpy(&bits, &e, 4); \
        bits = (bits + 0x00800000u) & 0x7F000000u;         /* 0 for exponents 0 and 255 */ \
        least[l] = bits < least[l] ? bits : least[l]; \
        lane[l] *= (double)e; \
    }

/* Products of two are made in f32, twice as fast, and carried in f64. In the block where one of
 * them is 0, denormal or not finite, f64 takes the elements one by one. */
MLC__BODY void mlc__mul_f32_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    (void)sign;
    for (int64_t from = 0; from < n; from += MLC__SUM_BLOCK) {
        const float *v = MLC__CAST(const float *, x) + from;
        const int64_t m = n - from < MLC__SUM_BLOCK ? n - from : MLC__SUM_BLOCK;
        double lane[16], all = 1.0;
        uint32_t least[16], worst = 0;
        int64_t i = 0;
        if (m >= 32) {
            for (int l = 0; l < 16; l++) { lane[l] = 1.0; least[l] = UINT32_MAX; }
            for (; i + 32 <= m; i += 32) MLC__MUL_STEP(v[i + l], v[i + l + 16])
            if (i < m) {               /* the last 32, without those that have been counted */
                const float *w = v + m - 32;
                const int seen = 32 - (int)(m - i);
                MLC__MUL_STEP(l < seen ? 1.0f : w[l], l + 16 < seen ? 1.0f : w[l + 16])
            }
            worst = UINT32_MAX;
            for (int l = 0; l < 16; l++) worst = least[l] < worst ? least[l] : worst;
            for (int w = 8; w; w /= 2)
                for (int l = 0; l < w; l++) lane[l] *= lane[l + w];
            all = lane[0];
        }
        if (worst == 0) {
            all = 1.0;
            for (i = 0; i < m; i++) all *= (double)v[i];
        }
        t->v *= all;
    }
}
MLC__BODY void mlc__mul_f64_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    double lane[4] = { t->v, 1.0, 1.0, 1.0 };
    (void)sign;
    for (int64_t i = 0; i < n; i++) lane[i & 3] *= MLC__CAST(const double *, x)[i];
    t->v = (lane[0] * lane[1]) * (lane[2] * lane[3]);
}
MLC__BODY void mlc__mul_i64_body(mlc__acc *t, const void *x, int64_t n, double sign)
{
    uint64_t product = (uint64_t)t->i;
    (void)sign;
    for (int64_t i = 0; i < n; i++) product *= MLC__CAST(const uint64_t *, x)[i];
    t->i = (int64_t)product;
}

/* Four rows at once by `four`, fewer one after another by `one`: z is the column's accumulator, a,
 * b, c, d are the elements. */
#define MLC__COLS_TEXT(T, A, element, four, one) \
    A *o = MLC__CAST(A *, t); \
    const T *p = MLC__CAST(const T *, row[0]); \
    (void)sign; \
    if (rows == 4) { \
        const T *q = MLC__CAST(const T *, row[1]), *u = MLC__CAST(const T *, row[2]); \
        const T *w = MLC__CAST(const T *, row[3]); \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) { \
            const T a = element(p[i]), b = element(q[i]), c = element(u[i]), d = element(w[i]); \
            const A z = o[i]; \
            o[i] = four; \
        } \
        return; \
    } \
    for (int r = 0; r < rows; r++) { \
        p = MLC__CAST(const T *, row[r]); \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) { \
            const T a = element(p[i]); \
            const A z = o[i]; \
            o[i] = one; \
        } \
    }

#define MLC__PLAIN(x)  (x)
#define MLC__COLS(name) \
    void mlc__##name(void *t, const void *const *row, int rows, int64_t n, double sign)

MLC__BODY MLC__COLS(add_cols_f32_body)
{
    MLC__COLS_TEXT(float, double, MLC__PLAIN, z + (double)((a + b) + (c + d)), z + (double)a)
}
MLC__BODY MLC__COLS(squares_cols_f32_body)
{
    MLC__COLS_TEXT(float, double, MLC__PLAIN,
                   z + ((MLC__SQUARE(a) + MLC__SQUARE(b)) + (MLC__SQUARE(c) + MLC__SQUARE(d))),
                   z + MLC__SQUARE(a))
}
/* clang at -O3 would spill 5 KB of lanes to the stack. */
#if defined(__clang__)
#  define MLC__FOUR_TIMES _Pragma("clang loop unroll(disable)")
#else
#  define MLC__FOUR_TIMES _Pragma("GCC unroll 4")
#endif
/* As runs do it: where a column had a NaN, the bits of its maximum are made those of one, which no
 * comparison replaces. */
#define MLC__MAX_COLS_TEXT(T, I, nan_sign) \
    double *o = MLC__CAST(double *, t); \
    const T s = (T)sign; \
    const T *w[4]; \
    int64_t i = 0; \
    /* A row twice changes nothing, and lanes stay in registers where the count is constant. */ \
    for (int r = 0; r < 4; r++) w[r] = MLC__CAST(const T *, row[r < rows ? r : 0]); \
    for (; i + 16 <= n; i += 16) { \
        T lane[16]; \
        I nan[16]; \
        for (int l = 0; l < 16; l++) { lane[l] = -(T)MLC__INF; nan[l] = 0; } \
        MLC__FOUR_TIMES for (int r = 0; r < 4; r++) MLC__MAX_STEP(T, I, nan_sign, 16, w[r] + i) \
        MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
            const double b = (double)lane[l], z = o[i + l], e = b > z ? b : z; \
            int64_t bits; \
            memcpy(&bits, &e, 8); \
            bits |= -(int64_t)(nan[l] < 0); \
            memcpy(o + i + l, &bits, 8); \
        } \
    } \
    for (int r = 0; r < 4; r++) \
        for (int64_t c = i; c < n; c++) { \
            const double b = (double)(w[r][c] * s); \
            o[c] = MLC__LARGER(o[c], b); \
        }

MLC__BODY MLC__COLS(max_cols_f32_body)
{
    MLC__MAX_COLS_TEXT(float, int32_t, MLC__NAN_SIGN_32)
}
MLC__BODY MLC__COLS(mul_cols_f32_body)
{
    MLC__COLS_TEXT(float, double, MLC__PLAIN,
                   z * (((double)a * (double)b) * ((double)c * (double)d)), z * (double)a)
}
MLC__BODY MLC__COLS(add_cols_f64_body)
{
    MLC__COLS_TEXT(double, double, MLC__PLAIN, z + ((a + b) + (c + d)), z + a)
}
MLC__BODY MLC__COLS(max_cols_f64_body)
{
    MLC__MAX_COLS_TEXT(double, int64_t, MLC__NAN_SIGN_64)
}
MLC__BODY MLC__COLS(mul_cols_f64_body)
{
    MLC__COLS_TEXT(double, double, MLC__PLAIN, z * a * b * c * d, z * a)
}
MLC__BODY MLC__COLS(mul_cols_i64_body)
{
    MLC__COLS_TEXT(uint64_t, uint64_t, MLC__PLAIN, z * a * b * c * d, z * a)
}

/* Integers as they lie: E(x) is what an element counts, M(x) that turned over (~x) where the
 * smallest is sought. Sums and extremes are i64. */
#define MLC__TURNED(x)       (T)((x) ^ few)
#define MLC__TURNED_TRUTH(x) (T)(((x) != 0) ^ few)
#define MLC__TURN_BACK(x)    ((int64_t)MLC__TURNED(x) ^ turn)
#define MLC__MORE(a, b)      ((b) > (a) ? (b) : (a))
#define MLC__INT_JOINERS(TYPE, dtype, E, M) \
    MLC__BODY void mlc__add_##dtype##_body(mlc__acc *t, const void *x, int64_t n, double sign) \
    { \
        const TYPE *v = MLC__CAST(const TYPE *, x); \
        uint64_t sum = (uint64_t)t->i; \
        (void)sign; \
        for (int64_t i = 0; i < n; i++) sum += (uint64_t)E(v[i]); \
        t->i = (int64_t)sum; \
    } \
    MLC__BODY void mlc__max_##dtype##_body(mlc__acc *t, const void *x, int64_t n, double sign) \
    { \
        typedef TYPE T; \
        const T *v = MLC__CAST(const T *, x), few = (T)(sign < 0.0 ? -1 : 0); \
        const int64_t turn = sign < 0.0 ? -1 : 0; \
        if (n == 0) return; \
        T best = M(v[0]); \
        for (int64_t i = 1; i < n; i++) { const T e = M(v[i]); best = MLC__MORE(best, e); } \
        const int64_t found = MLC__TURN_BACK(best); \
        t->i = MLC__MORE(t->i, found); \
    } \
    MLC__BODY MLC__COLS(add_cols_##dtype##_body) \
    { \
        MLC__COLS_TEXT(TYPE, uint64_t, (TYPE)E, \
                       z + (((uint64_t)a + (uint64_t)b) + ((uint64_t)c + (uint64_t)d)), \
                       z + (uint64_t)a) \
    } \
    MLC__BODY MLC__COLS(max_cols_##dtype##_body) \
    { \
        typedef TYPE T; \
        const T few = (T)(sign < 0.0 ? -1 : 0); \
        const int64_t turn = sign < 0.0 ? -1 : 0; \
        MLC__COLS_TEXT(T, int64_t, M, \
                       mlc__larger_i64(z, MLC__TURN_BACK(MLC__MORE(MLC__MORE(a, b), \
                                                                   MLC__MORE(c, d)))), \
                       mlc__larger_i64(z, MLC__TURN_BACK(a))) \
    }
MLC__BODY int64_t mlc__larger_i64(int64_t a, int64_t b) { return b > a ? b : a; }
MLC__INT_JOINERS(int64_t, i64, MLC__PLAIN, MLC__TURNED)
MLC__INT_JOINERS(int32_t, i32, MLC__PLAIN, MLC__TURNED)
MLC__INT_JOINERS(int8_t, i8, MLC__PLAIN, MLC__TURNED)
MLC__INT_JOINERS(uint8_t, u8, MLC__PLAIN, MLC__TURNED)
MLC__INT_JOINERS(uint8_t, b8, MLC__TRUTH, MLC__TURNED_TRUTH)

#define MLC__STAMP_JOIN(isa, name, dtype) \
    MLC__AT_##isa static void mlc__##name##_##dtype##_##isa(mlc__acc *t, const void *x, int64_t n, \
                                                            double sign) \
    { mlc__##name##_##dtype##_body(t, x, n, sign); } \
    MLC__AT_##isa static MLC__COLS(name##_cols_##dtype##_##isa) \
    { mlc__##name##_cols_##dtype##_body(t, row, rows, n, sign); }
#define MLC__JOIN_FNS(isa, name, dtype) \
    { mlc__##name##_##dtype##_##isa, mlc__##name##_cols_##dtype##_##isa }
#define MLC__STAMP_JOINS(isa, dtype) \
    MLC__STAMP_JOIN(isa, add, dtype) MLC__STAMP_JOIN(isa, max, dtype)
#define MLC__NO_JOIN { NULL, NULL }
#define MLC__INT_FNS(isa, dtype) \
    { MLC__JOIN_FNS(isa, add, dtype), MLC__JOIN_FNS(isa, max, dtype), MLC__NO_JOIN, MLC__NO_JOIN }

/* What a level has, by dtype. Products of integers are made in i64, squares are those of f32. */
enum { MLC__JOIN_ADD, MLC__JOIN_MAX, MLC__JOIN_MUL, MLC__JOIN_SQUARES, MLC__JOINS };
#define MLC__STAMP_REDUCE(isa) \
    MLC__STAMP_JOINS(isa, f32) MLC__STAMP_JOINS(isa, f64) MLC__STAMP_JOINS(isa, i64) \
    MLC__STAMP_JOINS(isa, i32) MLC__STAMP_JOINS(isa, i8) MLC__STAMP_JOINS(isa, u8) \
    MLC__STAMP_JOINS(isa, b8) \
    MLC__STAMP_JOIN(isa, mul, f32) MLC__STAMP_JOIN(isa, mul, f64) MLC__STAMP_JOIN(isa, mul, i64) \
    MLC__STAMP_JOIN(isa, squares, f32) \
    static const mlc__joiner mlc__join_##isa[MLC_DTYPE_COUNT][MLC__JOINS] = { \
        { MLC__JOIN_FNS(isa, add, f32), MLC__JOIN_FNS(isa, max, f32), \
          MLC__JOIN_FNS(isa, mul, f32), MLC__JOIN_FNS(isa, squares, f32) }, \
        { MLC__JOIN_FNS(isa, add, f64), MLC__JOIN_FNS(isa, max, f64), \
          MLC__JOIN_FNS(isa, mul, f64), MLC__NO_JOIN }, \
        { MLC__JOIN_FNS(isa, add, i64), MLC__JOIN_FNS(isa, max, i64), \
          MLC__JOIN_FNS(isa, mul, i64), MLC__NO_JOIN }, \
        { MLC__NO_JOIN, MLC__NO_JOIN, MLC__NO_JOIN, MLC__NO_JOIN },                /* bf16 */ \
        { MLC__NO_JOIN, MLC__NO_JOIN, MLC__NO_JOIN, MLC__NO_JOIN },                /* f16  */ \
        MLC__INT_FNS(isa, i32), MLC__INT_FNS(isa, i8), MLC__INT_FNS(isa, u8), \
        MLC__INT_FNS(isa, b8) }; \
    static const mlc__joiner mlc__join_float_##isa[2][2] = { /* what linkers keep for training */ \
        { MLC__JOIN_FNS(isa, add, f32), MLC__JOIN_FNS(isa, max, f32) }, \
        { MLC__JOIN_FNS(isa, add, f64), MLC__JOIN_FNS(isa, max, f64) } };
MLC__EACH_ISA(MLC__STAMP_REDUCE)

/* n elements, dense and in a wide form: in tile, which has MLC__GATHER_BYTES. */
static void mlc__load_wide(void *tile, mlc_dtype wide, const void *at, mlc_dtype dtype,
                           int64_t stride, int64_t n, const mlc__half_fns *half)
{
    uint64_t raw[MLC__GATHER_BYTES / 8];
    if (stride != 1) {
        void *to = dtype == wide ? tile : (void *)raw;
        mlc__gather(to, at, stride, n, mlc_dtype_bytes(dtype));
        at = to;
    }
    if (at != tile) mlc__cast_dense(tile, wide, at, dtype, n, half);
}

/* outs results of count elements each, in segments of `length` elements (1 where it is not cut). A
 * chunk is per_chunk results of one segment; columns: part of a row of kept, or some rows. */
typedef struct mlc__reduce_job mlc__reduce_job;
struct mlc__reduce_job {
    const struct mlc_k_reduce *a;
    const double  *shift;              /* operand 2 of kept; NULL: none                         */
    const mlc__half_fns *half;
    const mlc__joiner   *join, *last;  /* of elements; of partial results, in f64 or i64        */
    mlc__acc       start;              /* the result of nothing, in the sense of sign           */
    double         sign;               /* -1: the smallest is sought                            */
    bool           sums;               /* of f64: partial results carry what they lost          */
    mlc_dtype      wide;               /* what elements become before they are joined           */
    /* On n wide elements; element i has the shift shift[step i]. NULL: nothing to do. */
    void         (*prepare)(const mlc__reduce_job *j, void *x, int64_t n, const double *shift,
                            int64_t step);
    double       (*finish)(const mlc__reduce_job *j, double v, double shift);   /* or NULL      */
    const void    *more;               /* for these two                                         */
    size_t         size;
    mlc__loop      kept, gone;         /* kept: operands out, in, shift; gone: in               */
    int64_t        outs, count, segments, length, per_chunk;
    bool           columns;            /* kept rows lie dense: join whole rows                  */
};

/* The only place where divisor and accumulate are applied, once a result: n results next to each
 * other in a row of kept. */
static void mlc__reduce_store(const mlc__reduce_job *j, int64_t out, int64_t n, const mlc__acc *t)
{
    const mlc_dtype dtype = j->a->out_dtype;
    const int64_t last = j->kept.ndim - 1, in_row = out % j->kept.n;
    const int64_t step = j->kept.stride[0][last];
    int64_t offset[MLC__LOOP_OPERANDS];
    mlc__loop_row(&j->kept, out / j->kept.n, offset);
    offset[0] += in_row * step;
    if (dtype == MLC_F32 && !j->finish && !j->a->accumulate) {     /* most of them */
        float *o = MLC__CAST(float *, j->a->out) + offset[0];
        for (int64_t i = 0; i < n; i++)
            o[i * step] = (float)(mlc__acc_value(t + i) * j->sign / j->a->divisor);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        char *o = MLC__CAST(char *, j->a->out) +
                  (offset[0] + i * step) * (int64_t)mlc_dtype_bytes(dtype);
        const int64_t s = j->shift ? offset[2] + (in_row + i) * j->kept.stride[2][last] : 0;
        const int64_t whole = j->sign < 0.0 ? ~t[i].i : t[i].i;
        double v = mlc__acc_value(t + i) * j->sign / j->a->divisor, old = 0.0;
        if (j->finish) v = j->finish(j, v, j->shift ? j->shift[s] : 0.0);
        if (dtype == MLC_F32) v = (double)(float)v;        /* rounded before it is added to */
        if (j->a->accumulate) mlc__cast_dense(&old, MLC_F64, o, dtype, 1, j->half);
        v += old;
        if (!mlc__is_float(j->wide)) mlc__cast_dense(o, dtype, &whole, MLC_I64, 1, j->half);
        else mlc__cast_dense(o, dtype, &v, MLC_F64, 1, j->half);
    }
}

/* Element i of the workspace: f64 or i64. */
MLC__INLINE char *mlc__reduce_part(const mlc__reduce_job *j, int64_t segment, int64_t out)
{
    return MLC__CAST(char *, j->a->workspace) + (segment * j->outs + out) * 8;
}

static void mlc__reduce_part_put(const mlc__reduce_job *j, char *part, const mlc__acc *t)
{
    const double v = mlc__acc_value(t);
    memcpy(part, mlc__is_float(j->wide) ? (const void *)&v : (const void *)&t->i, 8);
}

/* A run of the reduced axes through L1: strided, of another dtype, or to be prepared. */
MLC__APART void mlc__reduce_gathered(const mlc__reduce_job *j, mlc__acc *t, const char *at,
                                     int64_t stride, int64_t n, const double *shift)
{
    uint64_t tile[MLC__GATHER_BYTES / 8];
    const int64_t step = mlc__gather_step(mlc_dtype_bytes(j->wide));
    for (int64_t i = 0; i < n; i += step) {
        const int64_t m = mlc__min(step, n - i);
        mlc__load_wide(tile, j->wide, at + i * stride * (int64_t)j->size, j->a->dtype, stride, m,
                       j->half);
        if (j->prepare) j->prepare(j, tile, m, shift, 0);
        j->join->run(t, tile, m, j->sign);
    }
}

/* A run of the reduced axes. */
static void mlc__reduce_run(const mlc__reduce_job *j, mlc__acc *t, const char *at, int64_t stride,
                            int64_t n, const double *shift)
{
    if (stride == 1 && j->a->dtype == j->wide && !j->prepare) j->join->run(t, at, n, j->sign);
    else mlc__reduce_gathered(j, t, at, stride, n, shift);
}

/* Elements from .. to of one result, counted along the gone axes; a segment may begin and end in
 * the middle of a run. */
static void mlc__reduce_range(const mlc__reduce_job *j, mlc__acc *t, const char *at,
                              const double *shift, int64_t from, int64_t to)
{
    const mlc__loop *g = &j->gone;
    if (from >= to) return;            /* an empty axis: there is no loop */
    const int64_t stride = g->stride[0][g->ndim - 1];
    if (g->rows == 1) {                /* most of the time */
        mlc__reduce_run(j, t, at + from * stride * (int64_t)j->size, stride, to - from, shift);
        return;
    }
    int64_t row = from ? from / g->n : 0;                  /* one division for all runs */
    for (int64_t in_run = from - row * g->n; from < to; row++, in_run = 0) {
        int64_t offset[MLC__LOOP_OPERANDS];
        const int64_t n = mlc__min(g->n - in_run, to - from);
        mlc__loop_row(g, row, offset);
        mlc__reduce_run(j, t, at + (offset[0] + in_run * stride) * (int64_t)j->size, stride, n,
                        shift);
        from += n;
    }
}

static const char *mlc__reduce_row(const mlc__reduce_job *j, const char *at, int64_t r)
{
    const mlc__loop *g = &j->gone;
    const int64_t stride = g->stride[0][g->ndim - 1];
    int64_t offset[MLC__LOOP_OPERANDS];
    if (g->rows == 1) return at + r * stride * (int64_t)j->size;
    mlc__loop_row(g, r / g->n, offset);
    return at + (offset[0] + r % g->n * stride) * (int64_t)j->size;
}

/* Rows from .. to of n columns that begin at `at`, joined into part; shift: of the first one. */
MLC__APART void mlc__reduce_columns(const mlc__reduce_job *j, char *part, int64_t n, int64_t from,
                                    int64_t to, const char *at, const double *shift,
                                    int64_t step)
{
    const bool direct = j->a->dtype == j->wide && !j->prepare;
    const int64_t width = direct ? n : MLC__COLUMNS;
    uint64_t tile[4][MLC__COLUMNS];
    for (int64_t c = 0; c < n; c++) mlc__reduce_part_put(j, part + c * 8, &j->start);
    for (int64_t r = from; r < to; r += 4) {
        const int rows = (int)mlc__min(4, to - r);
        const char *row[4] = { NULL, NULL, NULL, NULL };
        for (int k = 0; k < rows; k++) row[k] = mlc__reduce_row(j, at, r + k);
        for (int64_t c = 0; c < n; c += width) {
            const int64_t m = mlc__min(width, n - c);
            const void *x[4] = { row[0], row[1], row[2], row[3] };
            for (int k = 0; !direct && k < rows; k++) {
                mlc__load_wide(tile[k], j->wide, row[k] + c * (int64_t)j->size, j->a->dtype, 1, m,
                               j->half);
                if (j->prepare) j->prepare(j, tile[k], m, shift ? shift + c * step : NULL, step);
                x[k] = tile[k];
            }
            j->join->cols(part + c * 8, x, rows, m, j->sign);
        }
    }
}

/* Partial results o .. o + n, next to each other in a row of kept, in order of segments. */
static void mlc__reduce_meet(const mlc__reduce_job *j, int64_t o, int64_t n)
{
    mlc__acc t[MLC__COLUMNS];
    for (int64_t c = 0; c < n; c += MLC__COLUMNS) {
        const int64_t m = mlc__min(MLC__COLUMNS, n - c);
        for (int64_t i = 0; i < m; i++) t[i] = j->start;
        for (int64_t s = 0; s < j->segments; s++) {
            const char *part = mlc__reduce_part(j, s, o + c);
            if (j->sums)                                   /* what run does for one element */
                for (int64_t i = 0; i < m; i++)
                    mlc__acc_add(&t[i], MLC__CAST(const double *, (const void *)part)[i]);
            else for (int64_t i = 0; i < m; i++) j->last->run(&t[i], part + i * 8, 1, 1.0);
        }
        mlc__reduce_store(j, o + c, m, t);
    }
}

static void mlc__reduce_meet_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__reduce_job *j = MLC__CAST(const mlc__reduce_job *, arg);
    const int64_t end = mlc__min(j->outs, (chunk + 1) * MLC__WIDTH);
    (void)worker;
    for (int64_t o = chunk * MLC__WIDTH; o < end;) {
        const int64_t n = mlc__min(end - o, j->kept.n - o % j->kept.n);
        mlc__reduce_meet(j, o, n);
        o += n;
    }
}

/* Results o .. o + n, next to each other in a row of kept, of one segment; n: at most MLC__WIDTH
 * for columns, else MLC__COLUMNS. */
static void mlc__reduce_group(const mlc__reduce_job *j, int64_t o, int64_t n, int64_t segment)
{
    const int64_t last = j->kept.ndim - 1, in_row = o % j->kept.n;
    const int64_t from = segment * j->length, to = mlc__min(j->count, from + j->length);
    const int64_t apart = j->kept.stride[1][last], step = j->shift ? j->kept.stride[2][last] : 0;
    int64_t offset[MLC__LOOP_OPERANDS];
    mlc__acc t[MLC__COLUMNS];
    mlc__loop_row(&j->kept, o / j->kept.n, offset);
    const char *at = MLC__CAST(const char *, mlc__at(j->a->in, offset[1] + in_row * apart,
                                                     j->size));
    const double *shift = j->shift ? j->shift + offset[2] + in_row * step : NULL;
    if (j->columns) {
        mlc__reduce_columns(j, mlc__reduce_part(j, segment, o), n, from, to, at, shift, step);
        if (j->segments <= 1) mlc__reduce_meet(j, o, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const char *first = MLC__CAST(const char *, mlc__at(at, i * apart, j->size));
        t[i] = j->start;
        mlc__reduce_range(j, &t[i], first, shift ? shift + i * step : NULL, from, to);
        if (j->segments > 1) mlc__reduce_part_put(j, mlc__reduce_part(j, segment, o + i), &t[i]);
    }
    if (j->segments <= 1) mlc__reduce_store(j, o, n, t);
}

static void mlc__reduce_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__reduce_job *j = MLC__CAST(const mlc__reduce_job *, arg);
    const int64_t from = chunk / j->segments * j->per_chunk;
    const int64_t end = mlc__min(j->outs, from + j->per_chunk);
    const int64_t most = j->columns ? MLC__WIDTH : MLC__COLUMNS;
    (void)worker;
    for (int64_t o = from; o < end;) {
        const int64_t n = mlc__min(mlc__min(most, end - o), j->kept.n - o % j->kept.n);
        mlc__reduce_group(j, o, n, chunk % j->segments);
        o += n;
    }
}

/* Segments of columns: short enough for the chunks to be many and, for f64, for the error. */
static void mlc__reduce_cut(mlc__reduce_job *j)
{
    const int64_t width = mlc__min(MLC__WIDTH, j->kept.n);
    if (j->columns) {
        j->length = j->wide == MLC_F64 ? 64 : mlc__max(64, 4 * MLC__SEGMENT / width);
        j->per_chunk = mlc__max(1, MLC__GRAIN / (mlc__min(j->length, j->count) * width)) * width;
    } else {
        const bool cut = j->outs < 16 && j->count > MLC__SEGMENT;
        j->length = cut ? MLC__SEGMENT : mlc__max(1, j->count);
        j->per_chunk = cut ? 1 : mlc__max(1, MLC__GRAIN / mlc__max(1, j->count));
    }
    j->segments = mlc__max(1, mlc__div_up(j->count, j->length));
}

/* Splits the axes. False if there is no output. */
static bool mlc__reduce_plan(mlc__reduce_job *j, const struct mlc_k_reduce *a, mlc_dtype wide,
                             const int64_t *shift_stride)
{
    int64_t kept[MLC_MAX_DIMS], gone[MLC_MAX_DIMS], ko[MLC_MAX_DIMS], ki[MLC_MAX_DIMS];
    int64_t ks[MLC_MAX_DIMS], gi[MLC_MAX_DIMS];
    const int64_t *kept_strides[3] = { ko, ki, ks }, *gone_strides[1] = { gi };
    int32_t nk = 0, ng = 0;
    j->a = a;
    j->wide = wide;
    j->size = mlc_dtype_bytes(a->dtype);
    j->outs = j->count = 1;
    for (int32_t d = 0; d < a->ndim; d++) {
        if (a->out_stride[d] != 0) {
            ks[nk] = shift_stride ? shift_stride[d] : 0;
            ko[nk] = a->out_stride[d]; ki[nk] = a->in_stride[d]; kept[nk++] = a->shape[d];
            j->outs *= a->shape[d];
        } else {
            gi[ng] = a->in_stride[d]; gone[ng++] = a->shape[d];
            j->count *= a->shape[d];
        }
    }
    if (!mlc__loop_make(&j->kept, nk, kept, shift_stride ? 3 : 2, kept_strides)) return false;
    if (j->count && !mlc__loop_make(&j->gone, ng, gone, 1, gone_strides)) return false;
    /* Where results and elements are both dense (one run a result), runs win. */
    j->columns = j->count && j->kept.n > 1 && j->kept.stride[1][j->kept.ndim - 1] == 1 &&
                 j->gone.stride[0][j->gone.ndim - 1] != 1;
    mlc__reduce_cut(j);
    return true;
}

/* Plans again: a plan is cheap, and the query has no place to keep one. */
static size_t mlc__reduce_workspace(const struct mlc_k_reduce *a, mlc_dtype wide,
                                    const int64_t *shift_stride)
{
    mlc__reduce_job j;
    if (!mlc__reduce_plan(&j, a, wide, shift_stride) || (j.segments <= 1 && !j.columns)) return 0;
    return (size_t)(j.segments * j.outs) * 8;
}

static size_t mlc__k_reduce_workspace(void *dev, const struct mlc_k_reduce *a)
{
    (void)dev;
    return mlc__reduce_workspace(a, mlc__wide(a->dtype), NULL);
}

/* All chunks, then partial results segment by segment. */
static mlc_status mlc__reduce_all(void *dev, mlc__reduce_job *j, double ns)
{
    const bool parts = j->segments > 1 || j->columns;
    if (parts && j->a->workspace_bytes < (size_t)(j->segments * j->outs) * 8)
        return MLC_ERR_INTERNAL;
    mlc__parallel(dev, mlc__div_up(j->outs, j->per_chunk) * j->segments,
                  ns * (double)j->outs * (double)j->count, mlc__reduce_chunk, j);
    if (j->segments > 1)
        mlc__parallel(dev, mlc__div_up(j->outs, MLC__WIDTH), (double)j->outs * (double)j->segments,
                      mlc__reduce_meet_chunk, j);
    return MLC_OK;
}

/* Sums and maxima of floats: all that training needs. */
static mlc_status mlc__reduce_run_all(void *dev, const struct mlc_k_reduce *a,
                                      const mlc__joiner (*join)[2], const mlc__half_fns *half)
{
    const int kind = a->op == MLC_REDUCE_SUM ? MLC__JOIN_ADD : MLC__JOIN_MAX;
    mlc__reduce_job j;
    if (!mlc__is_float(a->dtype) || a->op > MLC_REDUCE_MAX) return MLC_ERR_UNSUPPORTED;
    memset(&j, 0, sizeof j);
    if (!mlc__reduce_plan(&j, a, mlc__wide(a->dtype), NULL)) return MLC_OK;
    j.half = half;
    j.last = &mlc__join_float_scalar[MLC_F64][kind];
    j.join = &join[mlc__wide(a->dtype)][kind];
    j.sums = kind == MLC__JOIN_ADD;
    j.start.v = j.sums ? 0.0 : -MLC__INF;
    j.sign = 1.0;
    return mlc__reduce_all(dev, &j, 0.2);
}

/* -- fold: all other reductions, and those of integers -- */

typedef struct mlc__fold_fns {
    const mlc__joiner  (*join)[MLC__JOINS];
    mlc__map_fn          map, map_f64, math;
    const mlc__half_fns *half;
} mlc__fold_fns;

typedef struct mlc__fold_more {
    const struct mlc_k_fold *a;
    const mlc__fold_fns     *fns;
} mlc__fold_more;

MLC__INLINE bool mlc__fold_counts(const struct mlc_k_fold *a)
{
    return a->r.op == MLC_REDUCE_ANY || a->r.op == MLC_REDUCE_ALL ||
           (a->r.op == MLC_REDUCE_NORM && a->p == 0.0);
}

/* A norm that is neither a count, nor a sum (of squares), nor an extreme. */
MLC__INLINE bool mlc__fold_powers(const struct mlc_k_fold *a)
{
    return a->r.op == MLC_REDUCE_NORM && a->p != 0.0 && a->p != 1.0 && a->p != 2.0 &&
           a->p - a->p == 0.0;
}

/* x = x != 0 */
static MLC__OPT void mlc__fold_truth(void *to, mlc_dtype wide, int64_t n)
{
    const void *from = to;
    if (wide == MLC_F32) MLC__CONVERT(float, float, x != 0.0f ? 1.0f : 0.0f);
    else if (wide == MLC_F64) MLC__CONVERT(double, double, x != 0.0 ? 1.0 : 0.0);
    else MLC__CONVERT(int64_t, int64_t, x != 0);
}

/* The largest of all is -inf or inf: then exp(x) tells as much as exp(x - shift). */
MLC__INLINE double mlc__fold_shift(const struct mlc_k_fold *a, double shift)
{
    return a->r.op == MLC_REDUCE_LSE && (shift == MLC__INF || shift == -MLC__INF) ? 0.0 : shift;
}

/* x -= shift */
static MLC__OPT void mlc__fold_center(const struct mlc_k_fold *a, mlc_dtype wide, void *to,
                                      int64_t n, const double *shift, int64_t step)
{
    const void *from = to;
    const double one = mlc__fold_shift(a, shift[0]);
    const float one_f32 = (float)one;
    if (step == 0 && wide == MLC_F64) MLC__CONVERT(double, double, x - one);
    else if (step == 0) MLC__CONVERT(float, float, x - one_f32);
    else if (wide == MLC_F64)
        MLC__CONVERT(double, double, x - mlc__fold_shift(a, shift[i * step]));
    else MLC__CONVERT(float, float, x - (float)mlc__fold_shift(a, shift[i * step]));
}

static void mlc__fold_prepare(const mlc__reduce_job *j, void *x, int64_t n, const double *shift,
                              int64_t step)
{
    const mlc__fold_more *more = MLC__CAST(const mlc__fold_more *, j->more);
    const struct mlc_k_fold *a = more->a;
    const bool f64 = j->wide == MLC_F64;
    const mlc__map_fn map = f64 ? more->fns->map_f64 : more->fns->map;
    const mlc__map_fn math = f64 ? mlc__math_f64 : more->fns->math;
    const void *in[3] = { x, NULL, NULL };
    if (j->shift) mlc__fold_center(a, j->wide, x, n, shift, step);
    if (mlc__fold_counts(a)) mlc__fold_truth(x, j->wide, n);
    else if (a->r.op == MLC_REDUCE_VAR || a->r.op == MLC_REDUCE_STD)
        math(MLC_MATH_SQUARE, x, in, n, 0.0, 0.0);
    else if (a->r.op == MLC_REDUCE_LSE) map(MLC_MAP_EXP, x, in, n, 0.0, 0.0);
    else if (a->r.op == MLC_REDUCE_NORM) {
        math(a->p == 2.0 ? MLC_MATH_SQUARE : MLC_MATH_ABS, x, in, n, 0.0, 0.0);
        if (mlc__fold_powers(a)) math(MLC_MATH_POW_S, x, in, n, a->p, 0.0);
    }
}

static double mlc__fold_finish(const mlc__reduce_job *j, double v, double shift)
{
    const struct mlc_k_fold *a = MLC__CAST(const mlc__fold_more *, j->more)->a;
    if (a->r.op == MLC_REDUCE_LSE) return mlc__log_f64(v) + mlc__fold_shift(a, shift);
    if (a->r.op == MLC_REDUCE_STD || (a->r.op == MLC_REDUCE_NORM && a->p == 2.0))
        return mlc__sqrt_f64(v);
    return mlc__fold_powers(a) ? mlc__pow_f64(v, 1.0 / a->p) : v;
}

/* How elements of each wide form join, and the result of nothing. */
static void mlc__fold_joiners(mlc__reduce_job *j, const struct mlc_k_fold *a,
                              const mlc__fold_fns *fns)
{
    const bool norm = a->r.op == MLC_REDUCE_NORM;
    const bool low = a->r.op == MLC_REDUCE_MIN || a->r.op == MLC_REDUCE_ALL ||
                     (norm && a->p == -MLC__INF);
    const bool high = a->r.op == MLC_REDUCE_MAX || a->r.op == MLC_REDUCE_ANY ||
                      (norm && a->p == MLC__INF);
    const bool whole = !mlc__is_float(j->wide);
    const int kind = low || high ? MLC__JOIN_MAX : a->r.op == MLC_REDUCE_PROD ? MLC__JOIN_MUL
                                                                              : MLC__JOIN_ADD;
    j->sign = low ? -1.0 : 1.0;
    if (kind == MLC__JOIN_MAX) {
        const bool truth = a->r.op == MLC_REDUCE_ANY || a->r.op == MLC_REDUCE_ALL;
        j->start.v = !truth ? -MLC__INF : low ? -1.0 : 0.0;
        j->start.i = !truth ? INT64_MIN : low ? ~(int64_t)1 : 0;
    } else {
        j->start.v = kind == MLC__JOIN_MUL ? 1.0 : 0.0;
        j->start.i = kind == MLC__JOIN_MUL ? 1 : 0;
    }
    j->sums = kind == MLC__JOIN_ADD && !whole;
    j->last = &mlc__join_scalar[whole ? MLC_I64 : MLC_F64][kind];
    j->join = &fns->join[j->wide][norm && a->p == 2.0 && j->wide == MLC_F32 ? MLC__JOIN_SQUARES
                                                                            : kind];
}

/* What elements become: integers stay as they are for sums and extremes, truth of bools, too.
 * Deviations are taken in f64, as the mean is, and so are powers: what is in range as x and as y
 * need not be in between. */
MLC__INLINE mlc_dtype mlc__fold_wide(const struct mlc_k_fold *a)
{
    const mlc_dtype wide = mlc__wide(a->r.dtype);
    const bool truth = a->r.op == MLC_REDUCE_ANY || a->r.op == MLC_REDUCE_ALL;
    if (wide == MLC_I64 && (truth ? a->r.dtype == MLC_BOOL : a->r.op < MLC_REDUCE_PROD))
        return a->r.dtype;
    const bool f64 = a->shift ? a->r.op != MLC_REDUCE_LSE
                              : (a->r.op == MLC_REDUCE_SUM && a->r.out_dtype == MLC_F64) ||
                                    mlc__fold_powers(a);
    return wide == MLC_F32 && f64 ? MLC_F64 : wide;
}

static size_t mlc__k_fold_workspace(void *dev, const struct mlc_k_fold *a)
{
    (void)dev;
    return mlc__reduce_workspace(&a->r, mlc__fold_wide(a), a->shift ? a->shift_stride : NULL);
}

static mlc_status mlc__fold_run(void *dev, const struct mlc_k_fold *a, const mlc__fold_fns *fns)
{
    const mlc__fold_more more = { a, fns };
    const mlc_dtype wide = mlc__fold_wide(a);
    const bool squares = a->r.op == MLC_REDUCE_NORM && a->p == 2.0 && wide == MLC_F32;
    const bool plain = a->r.op <= MLC_REDUCE_PROD && !a->shift;
    mlc__reduce_job j;
    memset(&j, 0, sizeof j);
    if (!mlc__reduce_plan(&j, &a->r, wide, a->shift ? a->shift_stride : NULL)) return MLC_OK;
    j.half = fns->half;
    j.shift = a->shift;
    j.more = &more;
    mlc__fold_joiners(&j, a, fns);
    if (!plain && !squares && wide != MLC_BOOL) j.prepare = mlc__fold_prepare;
    if (!plain) j.finish = mlc__fold_finish;
    return mlc__reduce_all(dev, &j, plain ? 0.2 : 1.0);
}

/* -- lines: along one axis, for each place in the others -- */

/* Up to MLC__COLUMNS lines next to each other: where they begin and how far apart they are, by
 * operand, in elements. */
typedef void (*mlc__lines_fn)(const void *args, const int64_t *offset, const int64_t *stride,
                              int64_t lines);

typedef struct mlc__lines {
    mlc__loop     across;
    int64_t       lines, per_chunk;
    mlc__lines_fn fn;
    const void   *args;
} mlc__lines;

static void mlc__lines_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__lines *j = MLC__CAST(const mlc__lines *, arg);
    const mlc__loop *l = &j->across;
    const int64_t end = mlc__min(j->lines, (chunk + 1) * j->per_chunk);
    (void)worker;
    for (int64_t r = chunk * j->per_chunk; r < end;) {
        int64_t offset[MLC__LOOP_OPERANDS], stride[MLC__LOOP_OPERANDS];
        const int64_t in_row = r % l->n;
        const int64_t n = mlc__min(mlc__min(MLC__COLUMNS, end - r), l->n - in_row);
        mlc__loop_row(l, r / l->n, offset);
        for (int p = 0; p < l->operands; p++) {
            stride[p] = l->stride[p][l->ndim - 1];
            offset[p] += in_row * stride[p];
        }
        j->fn(j->args, offset, stride, n);
        r += n;
    }
}

/* The shape without the axis, whose size is m. */
static void mlc__lines_run(void *dev, int32_t ndim, const int64_t *shape, int32_t axis,
                           int operands, const int64_t *const *strides, mlc__lines_fn fn,
                           const void *args)
{
    int64_t rest[MLC_MAX_DIMS], step[MLC__LOOP_OPERANDS][MLC_MAX_DIMS];
    const int64_t *steps[MLC__LOOP_OPERANDS] = { step[0], step[1], step[2], step[3] };
    mlc__lines j;
    int32_t n = 0;
    for (int32_t d = 0; d < ndim; d++) {
        if (d == axis) continue;
        for (int p = 0; p < operands; p++) step[p][n] = strides[p][d];
        rest[n++] = shape[d];
    }
    if (!mlc__loop_make(&j.across, n, rest, operands, steps)) return;
    j.lines = j.across.rows * j.across.n;
    const int64_t group = j.across.stride[1][j.across.ndim - 1] == 1 && strides[1][axis] != 1
                              ? MLC__COLUMNS : 1;
    j.per_chunk = mlc__max(1, MLC__GRAIN / mlc__max(1, shape[axis] * group)) * group;
    j.fn = fn;
    j.args = args;
    mlc__parallel(dev, mlc__div_up(j.lines, j.per_chunk),
                  (double)j.lines * (double)shape[axis], mlc__lines_chunk, &j);
}

typedef struct mlc__argmax_job {
    const struct mlc_k_argmax *a;
    const mlc__half_fns       *half;
    mlc_dtype                  wide;
} mlc__argmax_job;

/* Elements i .. i + n of one line, or element i of n lines. The first NaN wins. */
#define MLC__ARGMAX(T, flipped, better) \
    do { \
        T *best = MLC__CAST(T *, best_of); \
        const T *v = MLC__CAST(const T *, x); \
        for (int64_t e = 0; e < n; e++) { \
            const int64_t to = along ? 0 : e; \
            const T y = low ? flipped : v[e], z = best[to]; \
            if (better) { \
                best[to] = y; \
                at[to] = i + (along ? e : 0); \
            } \
        } \
    } while (0)

static MLC__OPT void mlc__argmax_tile(const mlc__argmax_job *j, void *best_of, int64_t *at,
                                      const void *x, int64_t i, int64_t n, bool along)
{
    const bool low = j->a->smallest != 0;
    if (j->wide == MLC_I64) MLC__ARGMAX(int64_t, ~v[e], y > z);
    else MLC__ARGMAX(double, -v[e], y > z || (y != y && z == z));
}

static void mlc__argmax_lines(const void *args, const int64_t *offset, const int64_t *stride,
                              int64_t lines)
{
    const mlc__argmax_job *j = MLC__CAST(const mlc__argmax_job *, args);
    const struct mlc_k_argmax *a = j->a;
    const int64_t size = (int64_t)mlc_dtype_bytes(a->dtype), m = a->shape[a->axis];
    const int64_t step = a->in_stride[a->axis];
    const char *in = MLC__CAST(const char *, a->in) + offset[1] * size;
    uint64_t tile[MLC__COLUMNS], best[MLC__COLUMNS];
    int64_t at[MLC__COLUMNS];
    const double least = -MLC__INF;
    const int64_t least_i64 = INT64_MIN;
    for (int64_t l = 0; l < lines; l++) {
        memcpy(best + l, j->wide == MLC_I64 ? (const void *)&least_i64 : (const void *)&least, 8);
        at[l] = 0;
    }
    if (stride[1] == 1 && step != 1) {
        for (int64_t i = 0; i < m; i++) {
            mlc__load_wide(tile, j->wide, in + i * step * size, a->dtype, 1, lines, j->half);
            mlc__argmax_tile(j, best, at, tile, i, lines, false);
        }
    } else {
        for (int64_t l = 0; l < lines; l++, in += stride[1] * size)
            for (int64_t i = 0; i < m; i += MLC__COLUMNS) {
                const int64_t n = mlc__min(MLC__COLUMNS, m - i);
                mlc__load_wide(tile, j->wide, in + i * step * size, a->dtype, step, n, j->half);
                mlc__argmax_tile(j, best + l, at + l, tile, i, n, true);
            }
    }
    for (int64_t l = 0; l < lines; l++) a->out[offset[0] + l * stride[0]] = at[l];
}

static mlc_status mlc__argmax_run(void *dev, const struct mlc_k_argmax *a,
                                  const mlc__half_fns *half)
{
    const mlc__argmax_job job = { a, half, mlc__is_float(a->dtype) ? MLC_F64 : MLC_I64 };
    const int64_t *strides[2] = { a->out_stride, a->in_stride };
    mlc__lines_run(dev, a->ndim, a->shape, a->axis, 2, strides, mlc__argmax_lines, &job);
    return MLC_OK;
}

typedef struct mlc__scan_job {
    const struct mlc_k_scan *a;
    const mlc__half_fns     *half;
    mlc_dtype                wide;
} mlc__scan_job;

/* One step: c is what is carried, x the element; the result stays in x. The gradient of a product
 * so far, dx_i = y_(i-1) S_i with S_i = dy_i + x_(i+1) S_(i+1), is right where elements are 0, too;
 * y and dy lie behind x. */
#define MLC__SCAN(T, step) \
    do { \
        T *x = MLC__CAST(T *, tile), *carried = MLC__CAST(T *, carry); \
        if (along) { \
            T c = carried[0]; \
            for (int64_t k = 0; k < n; k++) { const int64_t e = back ? n - 1 - k : k; step } \
            carried[0] = c; \
        } else { \
            for (int64_t e = 0; e < n; e++) { T c = carried[e]; step carried[e] = c; } \
        } \
    } while (0)

static MLC__OPT void mlc__scan_tile(mlc_scan op, mlc_dtype wide, void *tile, void *carry, int64_t n,
                                    bool along, bool back)
{
    if (wide == MLC_I64) {
        if (op == MLC_SCAN_SUM) MLC__SCAN(uint64_t, c += x[e]; x[e] = c;);
        else MLC__SCAN(uint64_t, c *= x[e]; x[e] = c;);
    } else if (op == MLC_SCAN_SUM) MLC__SCAN(double, c += x[e]; x[e] = c;);
    else if (op == MLC_SCAN_PROD) MLC__SCAN(double, c *= x[e]; x[e] = c;);
    else
        MLC__SCAN(double, const double s = x[e + 2 * MLC__COLUMNS] + c;
                          c = x[e] * s; x[e] = x[e + MLC__COLUMNS] * s;);
}

/* n elements of operand p (1: in, 2: y, 3: dy) at a place of its own. */
static void mlc__scan_load(const mlc__scan_job *j, void *tile, int p, int64_t at, int64_t stride,
                           int64_t n)
{
    const mlc_dtype dtype = j->a->dtype;
    const void *from = p == 1 ? j->a->in : p == 2 ? j->a->y : j->a->dy;
    mlc__load_wide(tile, j->wide, mlc__at(from, at, mlc_dtype_bytes(dtype)), dtype, stride, n,
                   j->half);
}

/* Elements i .. i + n of a line (along), or element i of n lines: at, stride by operand. */
static void mlc__scan_block(const mlc__scan_job *j, const int64_t *at, const int64_t *stride,
                            int64_t i, int64_t n, bool along, void *carry)
{
    const struct mlc_k_scan *a = j->a;
    double tile[3][MLC__COLUMNS];
    uint64_t out[MLC__COLUMNS], old[MLC__COLUMNS];
    const size_t size = mlc_dtype_bytes(a->out_dtype);
    char *to = MLC__CAST(char *, a->out) + at[0] * (int64_t)size;
    const bool back = a->reverse != 0;
    mlc__scan_load(j, tile[0], 1, at[1], stride[1], n);
    if (a->op == MLC_SCAN_PROD_GRAD) { /* y one place earlier, 1 before the first */
        const int64_t ones = i > 0 ? 0 : along ? 1 : n;
        for (int64_t e = 0; e < ones; e++) tile[1][e] = 1.0;
        if (n > ones)
            mlc__scan_load(j, tile[1] + ones, 2,
                           at[2] + (ones ? 0 : -a->y_stride[a->axis]), stride[2], n - ones);
        mlc__scan_load(j, tile[2], 3, at[3], stride[3], n);
    }
    mlc__scan_tile(a->op, j->wide, tile, carry, n, along, back);
    if (a->accumulate) {               /* a gradient: floats */
        mlc__load_wide(old, MLC_F64, to, a->out_dtype, stride[0], n, j->half);
        for (int64_t e = 0; e < n; e++) tile[0][e] += MLC__CAST(const double *, (void *)old)[e];
    }
    void *dense = stride[0] == 1 ? (void *)to : (void *)out;
    mlc__cast_dense(dense, a->out_dtype, tile[0], j->wide, n, j->half);
    if (stride[0] != 1) mlc__scatter(to, stride[0], out, n, size);
}

static void mlc__scan_lines(const void *args, const int64_t *offset, const int64_t *stride,
                            int64_t lines)
{
    const mlc__scan_job *j = MLC__CAST(const mlc__scan_job *, args);
    const struct mlc_k_scan *a = j->a;
    const int64_t m = a->shape[a->axis];
    const int64_t step[4] = { a->out_stride[a->axis], a->in_stride[a->axis],
                              a->y_stride[a->axis], a->dy_stride[a->axis] };
    const int operands = a->op == MLC_SCAN_PROD_GRAD ? 4 : 2;
    const bool columns = stride[1] == 1 && step[1] != 1;
    const int64_t tile = columns ? 1 : MLC__COLUMNS, tiles = mlc__div_up(m, tile);
    uint64_t carry[MLC__COLUMNS];
    const double one = a->op == MLC_SCAN_PROD ? 1.0 : 0.0;
    const int64_t one_i64 = a->op == MLC_SCAN_PROD;
    for (int64_t l = 0; l < lines; l++)
        memcpy(carry + l, j->wide == MLC_I64 ? (const void *)&one_i64 : (const void *)&one, 8);
    for (int64_t l = 0; l < (columns ? 1 : lines); l++)
        for (int64_t k = 0; k < tiles; k++) {
            const int64_t i = (a->reverse ? tiles - 1 - k : k) * tile;
            int64_t at[4] = { 0, 0, 0, 0 };
            for (int p = 0; p < operands; p++) at[p] = offset[p] + l * stride[p] + i * step[p];
            mlc__scan_block(j, at, columns ? stride : step, i,
                            columns ? lines : mlc__min(tile, m - i), !columns, carry + l);
        }
}

static mlc_status mlc__scan_run(void *dev, const struct mlc_k_scan *a, const mlc__half_fns *half)
{
    const mlc__scan_job job = { a, half, mlc__is_float(a->dtype) ? MLC_F64 : MLC_I64 };
    const int64_t *strides[4] = { a->out_stride, a->in_stride, a->y_stride, a->dy_stride };
    mlc__lines_run(dev, a->ndim, a->shape, a->axis, a->op == MLC_SCAN_PROD_GRAD ? 4 : 2, strides,
                   mlc__scan_lines, &job);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.GEMM ----------------------------------- c = act(alpha a b + bias) + beta c
 * The scheme of Goto and van de Geijn (ACM TOMS 34, 2008), with as few copies as possible. A tile
 * of c, at most mr x nr, is summed in registers over a block of k; a step takes mr elements of a,
 * at any strides, and a row of nr dense elements of b. So a is packed only where many tiles read it
 * again or its rows would fall into one set of the L1 cache, and b only where its rows are not
 * dense. A few rows times w^T, where packing all of w would cost most, are made as the transpose,
 * w x^T: then w is the operand that is read as it lies. k is cut into equal blocks of at most KC, a
 * constant of the level, which c takes in order: bits depend neither on threads nor on packing nor
 * on how m and n are cut. Tiles leave for c from registers if nothing else is to be done, else
 * through the sink, while they are in L1. Small products, and few rows of dense operands, run as
 * dot products or sums of rows, where tiles would cost more than they save. */

/* A panel of b, 512 x 32 f32, is 64 KB and comes from L2; one of a, 28 KB, stays in L1 or streams
 * in. Another value changes the last bits of long products. */
#define MLC__KC       512
#define MLC__TILE_MAX (14 * 32)        /* elements of the largest tile                          */
#define MLC__SMALL    16384            /* m n k below which packing does not pay                */
#define MLC__PACK_MAX (1 << 20)        /* elements of an operand that a thread packs at once    */

/* out[mr][nr] (+)= a [mr][kc] times b [kc][nr]; strides in elements. */
typedef struct mlc__tile {
    int64_t     mr, kc;
    const void *a;
    int64_t     a_row, a_step;
    const void *b;
    int64_t     b_step;
    void       *out;
    int64_t     out_row;
    bool        add;
} mlc__tile;

typedef void (*mlc__tile_fn)(const mlc__tile *t);
/* x . y of n dense elements */
typedef double (*mlc__dot_fn)(const void *x, const void *y, int64_t n);
/* y += s x */
typedef void (*mlc__axpy_fn)(void *y, double s, const void *x, int64_t n);

/* The definition of a tile kernel, and the kernel where there are no intrinsics. */
#define MLC__TILE_TEXT(T, MR, NR) \
    const T *pa = MLC__CAST(const T *, t->a), *pb = MLC__CAST(const T *, t->b); \
    T acc[MR][NR] = { { 0 } }, *out = MLC__CAST(T *, t->out); \
    for (int64_t p = 0; p < t->kc; p++, pa += t->a_step, pb += t->b_step) \
        for (int64_t r = 0; r < t->mr; r++) \
            for (int x = 0; x < NR; x++) acc[r][x] += pa[r * t->a_row] * pb[x]; \
    for (int64_t r = 0; r < t->mr; r++, out += t->out_row) \
        for (int x = 0; x < NR; x++) out[x] = t->add ? out[x] + acc[r][x] : acc[r][x];

static MLC__OPT void mlc__tile_f32_scalar(const mlc__tile *t) { MLC__TILE_TEXT(float, 4, 8) }
static MLC__OPT void mlc__tile_f64_scalar(const mlc__tile *t) { MLC__TILE_TEXT(double, 4, 4) }

/* A tile of MR x (NV vectors of W elements), all accumulators in registers. mr is a constant at
 * each call, so that the loops unroll. Five rows of a are reached from one pointer, with s and 3 s
 * as the only offsets: more would not fit the registers. The compiler must not see how they hang
 * together, or it would keep a register for each row. */
#define MLC__STAMP_TILE(NAME, AT, T, V, MR, NV, W, ZERO, LOAD, SPLAT, FMA, ADD, STORE) \
    MLC__INLINE AT void NAME##_rows(int mr, const mlc__tile *t) \
    { \
        const int64_t s = t->a_row * (int64_t)sizeof(T), step = t->a_step * (int64_t)sizeof(T); \
        int64_t s3 = 3 * s; \
        const char *p0 = MLC__CAST(const char *, t->a), *p1 = mr > 5 ? p0 + 5 * s : p0, \
                   *p2 = mr > 10 ? p0 + 10 * s : p0; \
        const T *b = MLC__CAST(const T *, t->b); \
        T *out = MLC__CAST(T *, t->out); \
        V acc[MR][NV]; \
        MLC__OPAQUE(s3); \
        MLC__OPAQUE(p1); \
        MLC__OPAQUE(p2); \
        MLC__UNROLL for (int r = 0; r < mr; r++) \
            for (int v = 0; v < NV; v++) acc[r][v] = ZERO(); \
        for (int64_t p = 0; p < t->kc; p++, p0 += step, p1 += step, p2 += step, b += t->b_step) { \
            V bv[NV]; \
            for (int v = 0; v < NV; v++) bv[v] = LOAD(b + v * W); \
            MLC__UNROLL for (int r = 0; r < mr; r++) { \
                const char *q = r < 5 ? p0 : r < 10 ? p1 : p2; \
                const char *at = r % 5 == 3 ? q + s3 : q + r % 5 * s; \
                const V a = SPLAT((const T *)(const void *)at); \
                for (int v = 0; v < NV; v++) acc[r][v] = FMA(a, bv[v], acc[r][v]); \
            } \
        } \
        if (t->add) { \
            MLC__UNROLL for (int r = 0; r < mr; r++) \
                for (int v = 0; v < NV; v++) \
                    acc[r][v] = ADD(LOAD(out + r * t->out_row + v * W), acc[r][v]); \
        } \
        MLC__UNROLL for (int r = 0; r < mr; r++) \
            for (int v = 0; v < NV; v++) STORE(out + r * t->out_row + v * W, acc[r][v]); \
    } \
    AT static void NAME(const mlc__tile *t) \
    { \
        switch (t->mr) { MLC__TILE_CASES_##MR(NAME##_rows) } \
    }

#define MLC__TILE_CASE(rows, body) case rows: body(rows, t); break;
#define MLC__TILE_CASES_6(body) \
    MLC__TILE_CASE(1, body) MLC__TILE_CASE(2, body) MLC__TILE_CASE(3, body) \
    MLC__TILE_CASE(4, body) MLC__TILE_CASE(5, body) default: body(6, t);
#define MLC__TILE_CASES_8(body) \
    MLC__TILE_CASE(1, body) MLC__TILE_CASE(2, body) MLC__TILE_CASE(3, body) \
    MLC__TILE_CASE(4, body) MLC__TILE_CASE(5, body) MLC__TILE_CASE(6, body) \
    MLC__TILE_CASE(7, body) default: body(8, t);
#define MLC__TILE_CASES_14(body) \
    MLC__TILE_CASE(1, body) MLC__TILE_CASE(2, body) MLC__TILE_CASE(3, body) \
    MLC__TILE_CASE(4, body) MLC__TILE_CASE(5, body) MLC__TILE_CASE(6, body) \
    MLC__TILE_CASE(7, body) MLC__TILE_CASE(8, body) MLC__TILE_CASE(9, body) \
    MLC__TILE_CASE(10, body) MLC__TILE_CASE(11, body) MLC__TILE_CASE(12, body) \
    MLC__TILE_CASE(13, body) default: body(14, t);

#if MLC__X86
/* 12 accumulators, two of b and one of a make 15 of the 16 YMM registers. */
MLC__STAMP_TILE(mlc__tile_f32_avx2, __attribute__((target("avx2,fma"))), float, __m256, 6, 2, 8,
                _mm256_setzero_ps, _mm256_loadu_ps, _mm256_broadcast_ss, _mm256_fmadd_ps,
                _mm256_add_ps, _mm256_storeu_ps)
MLC__STAMP_TILE(mlc__tile_f64_avx2, __attribute__((target("avx2,fma"))), double, __m256d, 6, 2, 4,
                _mm256_setzero_pd, _mm256_loadu_pd, _mm256_broadcast_sd, _mm256_fmadd_pd,
                _mm256_add_pd, _mm256_storeu_pd)
#endif

#if MLC__AVX512
/* 28 accumulators, two of b and one of a make 31 of the 32 ZMM registers. */
#define MLC__SPLAT_F32_512(p) _mm512_set1_ps(*(p))
#define MLC__SPLAT_F64_512(p) _mm512_set1_pd(*(p))
MLC__STAMP_TILE(mlc__tile_f32_avx512, __attribute__((target("avx512f"))), float, __m512, 14, 2, 16,
                _mm512_setzero_ps, _mm512_loadu_ps, MLC__SPLAT_F32_512, _mm512_fmadd_ps,
                _mm512_add_ps, _mm512_storeu_ps)
MLC__STAMP_TILE(mlc__tile_f64_avx512, __attribute__((target("avx512f"))), double, __m512d, 14, 2, 8,
                _mm512_setzero_pd, _mm512_loadu_pd, MLC__SPLAT_F64_512, _mm512_fmadd_pd,
                _mm512_add_pd, _mm512_storeu_pd)
/* Half as wide, for products of few columns. */
MLC__STAMP_TILE(mlc__narrow_f32_avx512, __attribute__((target("avx512f"))), float, __m512, 14, 1,
                16, _mm512_setzero_ps, _mm512_loadu_ps, MLC__SPLAT_F32_512, _mm512_fmadd_ps,
                _mm512_add_ps, _mm512_storeu_ps)
MLC__STAMP_TILE(mlc__narrow_f64_avx512, __attribute__((target("avx512f"))), double, __m512d, 14, 1,
                8, _mm512_setzero_pd, _mm512_loadu_pd, MLC__SPLAT_F64_512, _mm512_fmadd_pd,
                _mm512_add_pd, _mm512_storeu_pd)
#endif

#if MLC__NEON
/* 24 accumulators, three of b and one of a make 28 of the 32 registers. */
#define MLC__ZERO_F32()       vdupq_n_f32(0)
#define MLC__ZERO_F64()       vdupq_n_f64(0)
#define MLC__FMA_F32(a, b, c) vfmaq_f32(c, a, b)
#define MLC__FMA_F64(a, b, c) vfmaq_f64(c, a, b)
MLC__STAMP_TILE(mlc__tile_f32_neon, MLC__OPT, float, float32x4_t, 8, 3, 4, MLC__ZERO_F32, vld1q_f32,
                vld1q_dup_f32, MLC__FMA_F32, vaddq_f32, vst1q_f32)
MLC__STAMP_TILE(mlc__tile_f64_neon, MLC__OPT, double, float64x2_t, 8, 3, 2, MLC__ZERO_F64,
                vld1q_f64, vld1q_dup_f64, MLC__FMA_F64, vaddq_f64, vst1q_f64)
#endif

/* Dot products in 32 lanes, added up pairwise: the same bits on every ISA. */
#define MLC__DOT_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), *w = MLC__CAST(const T *, y); \
    T lane[32] = { 0 }, few = 0; \
    int64_t i = 0; \
    for (; n < 32 && i < n; i++) few += v[i] * w[i]; \
    if (n < 32) return (double)few; \
    for (; i + 32 <= n; i += 32) \
        for (int l = 0; l < 32; l++) lane[l] += v[i + l] * w[i + l]; \
    if (i < n) {                       /* the last 32, without those that have been counted */ \
        const int seen = 32 - (int)(n - i); \
        v += n - 32; \
        w += n - 32; \
        for (int l = 0; l < 32; l++) lane[l] += l < seen ? (T)0 : v[l] * w[l]; \
    } \
    T half[16], quarter[8], eighth[4]; \
    for (int l = 0; l < 16; l++) half[l] = lane[l] + lane[l + 16]; \
    for (int l = 0; l < 8; l++) quarter[l] = half[l] + half[l + 8]; \
    for (int l = 0; l < 4; l++) eighth[l] = quarter[l] + quarter[l + 4]; \
    return (double)((eighth[0] + eighth[2]) + (eighth[1] + eighth[3]));

#define MLC__AXPY_TEXT(T) \
    T *to = MLC__CAST(T *, y); \
    const T *v = MLC__CAST(const T *, x), a = (T)s; \
    MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) to[i] += a * v[i];

MLC__BODY double mlc__dot_f32_body(const void *x, const void *y, int64_t n)
{
    MLC__DOT_TEXT(float)
}
MLC__BODY void mlc__axpy_f32_body(void *y, double s, const void *x, int64_t n)
{
    MLC__AXPY_TEXT(float)
}
static MLC__OPT double mlc__dot_f64(const void *x, const void *y, int64_t n)
{
    MLC__DOT_TEXT(double)
}
static MLC__OPT void mlc__axpy_f64(void *y, double s, const void *x, int64_t n)
{
    MLC__AXPY_TEXT(double)
}

#define MLC__STAMP_DOT(isa) \
    MLC__AT_##isa static double mlc__dot_f32_##isa(const void *x, const void *y, int64_t n) \
    { return mlc__dot_f32_body(x, y, n); } \
    MLC__AT_##isa static void mlc__axpy_f32_##isa(void *y, double s, const void *x, int64_t n) \
    { mlc__axpy_f32_body(y, s, x, n); }
MLC__EACH_ISA(MLC__STAMP_DOT)

/* In the order of mlc_act. */
static mlc_map mlc__act_map(mlc_act act)
{
    static const mlc_map map[] = { MLC_MAP_COPY, MLC_MAP_RELU, MLC_MAP_GELU, MLC_MAP_TANH,
                                   MLC_MAP_SIGMOID, MLC_MAP_SILU };
    return map[act];
}

/* Products on their way to c: rows x n of them, the rows tile_row elements apart. */
typedef struct mlc__sink {
    const struct mlc_k_gemm *g;
    mlc__map_fn map;
    void       *tile;
    int64_t     tile_row, rows, n;
    int64_t     at, col;               /* element of c, and of pre; column, for the bias        */
    bool        accumulate, last;      /* c holds blocks of k before this; none comes after     */
} mlc__sink;

/* n bytes in moves of constant length, two of which may overlap: for short runs a call of memcpy
 * would take longer than the copy. */
MLC__INLINE void mlc__copy_run(char *to, const char *from, size_t n)
{
    if (n >= 64) {
        for (size_t i = 0; i + 64 <= n; i += 64) memcpy(to + i, from + i, 64);
        memcpy(to + n - 64, from + n - 64, 64);
    } else if (n >= 32) {
        memcpy(to, from, 32);
        memcpy(to + n - 32, from + n - 32, 32);
    } else if (n >= 16) {
        memcpy(to, from, 16);
        memcpy(to + n - 16, from + n - 16, 16);
    } else {
        for (size_t i = 0; i < n; i += 4) memcpy(to + i, from + i, 4);
    }
}

/* tile += beta c, c or pre = tile */
#define MLC__SINK_ADD(T) \
    for (int64_t r = 0; r < s->rows; r++) { \
        const T *c = MLC__CAST(const T *, g->c) + s->at + r * g->c_row; \
        for (int64_t x = 0; x < s->n; x++) tile[r * s->tile_row + x] += beta * c[x * g->c_col]; \
    }
#define MLC__SINK_PUT(T, C) \
    for (int64_t r = 0; r < s->rows; r++) { \
        T *c = MLC__CAST(T *, C) + s->at + r * g->c_row; \
        const T *from = tile + r * s->tile_row; \
        if (g->c_col == 1) mlc__copy_run((char *)c, (const char *)from, (size_t)s->n * sizeof(T)); \
        else for (int64_t x = 0; x < s->n; x++) c[x * g->c_col] = from[x]; \
    }

/* What products meet between the tile and c. An activation that meets a beta takes beta c after
 * it, as struct mlc_k_gemm says. What the tile holds behind n is computed, too, and dropped. */
#define MLC__SINK_TEXT(T) \
    const struct mlc_k_gemm *g = s->g; \
    T *tile = MLC__CAST(T *, s->tile); \
    const void *in[3] = { tile, NULL, NULL }; \
    const T alpha = (T)g->alpha, beta = (T)(s->accumulate ? 1.0 : g->beta); \
    const bool after = g->act && s->last && !s->accumulate; \
    if (alpha != (T)1) \
        for (int64_t i = 0; i < s->rows * s->tile_row; i++) tile[i] *= alpha; \
    if (g->bias && s->last) { \
        const T *bias = MLC__CAST(const T *, g->bias) + s->col; \
        for (int64_t r = 0; r < s->rows; r++) \
            MLC__INDEPENDENT for (int64_t x = 0; x < s->n; x++) \
                tile[r * s->tile_row + x] += bias[x]; \
    } \
    if (beta != (T)0 && !after) { MLC__SINK_ADD(T) } \
    if (g->act && s->last) { \
        if (g->pre) { MLC__SINK_PUT(T, g->pre) } \
        s->map(mlc__act_map(g->act), tile, in, s->rows * s->tile_row, 0.0, 0.0); \
        if (beta != (T)0 && after) { MLC__SINK_ADD(T) } \
    } \
    MLC__SINK_PUT(T, g->c)

typedef void (*mlc__sink_fn)(const mlc__sink *s);

MLC__BODY void mlc__sink_f32_body(const mlc__sink *s) { MLC__SINK_TEXT(float) }
MLC__BODY void mlc__sink_f64_body(const mlc__sink *s) { MLC__SINK_TEXT(double) }

#define MLC__STAMP_SINK(isa) \
    MLC__AT_##isa static void mlc__sink_f32_##isa(const mlc__sink *s) { mlc__sink_f32_body(s); } \
    MLC__AT_##isa static void mlc__sink_f64_##isa(const mlc__sink *s) { mlc__sink_f64_body(s); }
MLC__EACH_ISA(MLC__STAMP_SINK)

/* What a level brings to the products of a dtype; mr x nr is its tile. */
typedef struct mlc__gemm_fns {
    int64_t      mr, nr;
    double       ns;                   /* of a multiply-add, roughly: does a parallel loop pay?  */
    mlc__tile_fn tile, narrow;         /* narrow: nr / 2 columns; may be NULL                   */
    mlc__sink_fn sink;
    mlc__dot_fn  dot;
    mlc__axpy_fn axpy;
    mlc__map_fn  map;
    const mlc__half_fns *half;
} mlc__gemm_fns;

/* panel[p * padded + r] = x[r * minor + p * major] for r < width, zero up to padded. Four by four
 * elements at a time where x runs along p: Q is a vector of four T. The last of them may write up
 * to three elements over the width, which belong to the step of p after it, or to what follows
 * the panel: blocks go from right to left, and a workspace has room behind. */
#if (defined(__clang__) || __GNUC__ >= 12) && !defined(__OPTIMIZE_SIZE__)
typedef float  mlc__quad_f32 __attribute__((vector_size(16)));
typedef double mlc__quad_f64 __attribute__((vector_size(32)));
#define MLC__TRANSPOSE_4X4(T, Q) \
    for (; done + 4 <= depth; done += 4) \
        for (int64_t r = (width - 1) / 4 * 4; r >= 0; r -= 4) { \
            const T *f = from + r * minor + done; \
            T *t = to + done * padded + r; \
            const int64_t rows = mlc__min(4, width - r); \
            Q q[4], z[4]; \
            for (int i = 0; i < 4; i++) \
                memcpy(&q[i], f + (i < rows ? i : 0) * minor, sizeof q[i]); \
            z[0] = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5); \
            z[1] = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7); \
            z[2] = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5); \
            z[3] = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7); \
            q[0] = __builtin_shufflevector(z[0], z[2], 0, 1, 4, 5); \
            q[1] = __builtin_shufflevector(z[0], z[2], 2, 3, 6, 7); \
            q[2] = __builtin_shufflevector(z[1], z[3], 0, 1, 4, 5); \
            q[3] = __builtin_shufflevector(z[1], z[3], 2, 3, 6, 7); \
            for (int i = 0; i < 4; i++) memcpy(t + i * padded, &q[i], sizeof q[i]); \
        }
#else
#define MLC__TRANSPOSE_4X4(T, Q)
#endif
#define MLC__PACK_TEXT(T, Q) \
    T *to = MLC__CAST(T *, panel); \
    const T *from = MLC__CAST(const T *, x); \
    int64_t done = 0; \
    if (minor == 1) { \
        for (; done < depth; done++) \
            mlc__copy_run((char *)(to + done * padded), (const char *)(from + done * major), \
                          (size_t)width * sizeof(T)); \
    } else if (major == 1) { \
        MLC__TRANSPOSE_4X4(T, Q) \
    } \
    for (int64_t r = 0; r < width; r++) \
        for (int64_t p = done; p < depth; p++) to[p * padded + r] = from[p * major + r * minor]; \
    if (width < padded) \
        for (int64_t p = 0; p < depth; p++) \
            for (int64_t r = width; r < padded; r++) to[p * padded + r] = 0;

static MLC__OPT void mlc__pack_f32(void *panel, const void *x, int64_t minor, int64_t major,
                                   int64_t width, int64_t padded, int64_t depth)
{
    MLC__PACK_TEXT(float, mlc__quad_f32)
}
static MLC__OPT void mlc__pack_f64(void *panel, const void *x, int64_t minor, int64_t major,
                                   int64_t width, int64_t padded, int64_t depth)
{
    MLC__PACK_TEXT(double, mlc__quad_f64)
}
#define MLC__PACK_SLACK 64             /* bytes behind a packed block */

/* One operand as tiles see it: rows of a, or columns of b. A block of it is what a chunk works
 * with; within it panels are the rows of a tile (dealt evenly: a last panel of one row would leave
 * the FMA units waiting for its loads) or its nr columns. */
typedef struct mlc__side {
    const void *data;
    int64_t     minor, major, batch;   /* strides: along m or n, along k, between products      */
    int64_t     size, panel, blocks;
    bool        columns;               /* of b: panels of nr, the last one padded with zeros    */
    bool        pack;
    size_t      at;                    /* its bytes in the workspace of a thread                */
} mlc__side;

/* A product and how it is cut. swapped: the tiles are those of the transpose, b^T a^T. */
typedef struct mlc__gemm_job {
    const struct mlc_k_gemm *g;
    const mlc__gemm_fns *f;
    size_t    size;
    mlc__side a, b;
    int64_t   c_row, c_col;            /* strides of c along the rows and columns of tiles      */
    int64_t   kc, depth, k0;           /* of k: to a tile, to a round; where the round begins   */
    bool      swapped, b_first;        /* chunks walk along b first, then along a               */
    int64_t   mc, n_tasks, m_tasks;    /* ways without tiles: rows or tiles to a chunk          */
    size_t    buffer;                  /* workspace of one thread                               */
} mlc__gemm_job;

/* Part i of n that is dealt evenly begins here. */
MLC__INLINE int64_t mlc__deal(int64_t n, int64_t parts, int64_t i)
{
    return n / parts * i + mlc__min(i, n % parts);
}

/* Where block i of a side begins; blocks of b are whole panels. */
static int64_t mlc__side_block(const mlc__side *s, int64_t i)
{
    const int64_t unit = s->columns ? s->panel : 1;
    return mlc__min(s->size, unit * mlc__deal(mlc__div_up(s->size, unit), s->blocks, i));
}

/* Row or column of a block of n where its panel i begins. */
static int64_t mlc__side_panel(const mlc__side *s, int64_t n, int64_t i)
{
    return s->columns ? mlc__min(n, i * s->panel) : mlc__deal(n, mlc__div_up(n, s->panel), i);
}

/* Copies a block's panels, or of a b that is read as it lies only the last one, if it is not full:
 * there a tile would read over the end. */
static void mlc__side_pack(const mlc__gemm_job *j, const mlc__side *s, char *to, const void *from,
                           int64_t n, int64_t depth)
{
    const int64_t panels = mlc__div_up(n, s->panel);
    for (int64_t i = s->pack ? 0 : n / s->panel; i < panels; i++) {
        const int64_t r = mlc__side_panel(s, n, i), width = mlc__side_panel(s, n, i + 1) - r;
        (j->size == 4 ? mlc__pack_f32 : mlc__pack_f64)(
            to + (size_t)(s->pack ? r * depth : 0) * j->size, mlc__at(from, r * s->minor, j->size),
            s->minor, s->major, width, s->columns ? s->panel : width, depth);
    }
}

/* A block of a side in the hands of a thread: as it lies, or packed. */
typedef struct mlc__block_of {
    const mlc__side *s;
    const void      *raw, *packed;
    int64_t          n, depth;
} mlc__block_of;

/* Step p of panel [r, r + width) of a block, and its strides. */
static const void *mlc__block_at(const mlc__gemm_job *j, const mlc__block_of *b, int64_t r,
                                 int64_t width, int64_t p, int64_t *minor, int64_t *major)
{
    const mlc__side *s = b->s;
    if (!s->pack && !(s->columns && width < s->panel)) {
        *minor = s->minor;
        *major = s->major;
        return mlc__at(b->raw, r * s->minor + p * s->major, j->size);
    }
    *minor = 1;
    *major = s->columns ? s->panel : width;
    return mlc__at(b->packed, (s->pack ? r * b->depth : 0) + p * *major, j->size);
}

/* Block i of a side in this round of k, packed into this thread's workspace unless that holds it
 * already: tag is what it holds. */
static mlc__block_of mlc__side_open(const mlc__gemm_job *j, const mlc__side *s, char *own,
                                    int64_t *tag, int64_t batch, int64_t i)
{
    const int64_t from = mlc__side_block(s, i), depth = mlc__min(j->depth, j->g->k - j->k0);
    const int64_t key = (j->k0 * j->g->batch + (s->batch ? batch : 0)) * s->blocks + i;
    mlc__block_of b;
    b.s = s;
    b.n = mlc__side_block(s, i + 1) - from;
    b.depth = depth;
    b.raw = mlc__at(s->data, batch * s->batch + from * s->minor + j->k0 * s->major, j->size);
    b.packed = own + s->at;
    if (*tag != key && (s->pack || s->columns))
        mlc__side_pack(j, s, own + s->at, b.raw, b.n, depth);
    *tag = key;
    return b;
}

/* A tile that has more to meet than c itself; out holds it, spare is as large. */
static void mlc__gemm_sink(const mlc__gemm_job *j, const mlc__tile *t, int64_t n, int64_t at,
                           int64_t row, int64_t col, bool first, bool last, void *spare)
{
    mlc__sink s;
    s.g = j->g;
    s.map = j->f->map;
    s.at = at;
    s.accumulate = !first;
    s.last = last;
    s.tile = t->out;
    s.tile_row = t->out_row;
    s.rows = t->mr;
    s.n = n;
    s.col = col;
    if (j->swapped) {
        (j->size == 4 ? mlc__pack_f32 : mlc__pack_f64)(spare, t->out, t->out_row, 1, t->mr, t->mr,
                                                       n);
        s.tile = spare;
        s.tile_row = s.n = t->mr;
        s.rows = n;
        s.col = row;
    }
    j->f->sink(&s);
}

/* A tile that does not go to c at once, and its transpose; as doubles for their alignment. */
typedef struct mlc__tile_room {
    double tile[MLC__TILE_MAX * sizeof(float) / sizeof(double) + 8];
    double spare[MLC__TILE_MAX * sizeof(float) / sizeof(double) + 8];
} mlc__tile_room;

/* One panel of b against all panels of a, for one block of k. */
static void mlc__gemm_panel(const mlc__gemm_job *j, const mlc__block_of *a, const mlc__block_of *b,
                            int64_t x, int64_t p, int64_t at, int64_t row, int64_t col,
                            mlc__tile_room *room)
{
    const struct mlc_k_gemm *g = j->g;
    const int64_t panels = mlc__div_up(a->n, a->s->panel), n = mlc__min(b->s->panel, b->n - x);
    const bool first = j->k0 + p == 0, last = j->k0 + p + j->kc >= g->k;
    /* From registers to c: nothing but a sum with what c holds. */
    const bool direct = n == b->s->panel && j->c_col == 1 && g->alpha == 1.0 &&
                        !(last && (g->bias || g->act)) &&
                        (!first || g->beta == 0.0 || g->beta == 1.0);
    mlc__tile t;
    int64_t minor;
    t.kc = mlc__min(j->kc, b->depth - p);
    t.b = mlc__block_at(j, b, x, n, p, &minor, &t.b_step);
    t.add = direct && (!first || g->beta == 1.0);
    for (int64_t i = 0; i < panels; i++) {
        const int64_t r = mlc__side_panel(a->s, a->n, i);
        const int64_t c_at = at + r * j->c_row + x * j->c_col;
        t.mr = mlc__side_panel(a->s, a->n, i + 1) - r;
        t.a = mlc__block_at(j, a, r, t.mr, p, &t.a_row, &t.a_step);
        t.out = direct ? MLC__CAST(char *, g->c) + (size_t)c_at * j->size : (char *)room->tile;
        t.out_row = direct ? j->c_row : b->s->panel;
        (b->s->panel == j->f->nr ? j->f->tile : j->f->narrow)(&t);
        if (!direct) mlc__gemm_sink(j, &t, n, c_at, row + r, col + x, first, last, room->spare);
    }
}

/* A block of a against a block of b, for one round of k. */
static void mlc__gemm_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__gemm_job *j = MLC__CAST(const mlc__gemm_job *, arg);
    const struct mlc_k_gemm *g = j->g;
    const int64_t per = j->a.blocks * j->b.blocks, batch = chunk / per, at = chunk % per;
    const int64_t ia = j->b_first ? at / j->b.blocks : at % j->a.blocks;
    const int64_t ib = j->b_first ? at % j->b.blocks : at / j->a.blocks;
    const int64_t row = mlc__side_block(&j->a, ia), col = mlc__side_block(&j->b, ib);
    char *own = MLC__CAST(char *, g->workspace) + (size_t)worker * j->buffer;
    int64_t *tag = MLC__CAST(int64_t *, (void *)own);
    const mlc__block_of a = mlc__side_open(j, &j->a, own, &tag[0], batch, ia);
    const mlc__block_of b = mlc__side_open(j, &j->b, own, &tag[1], batch, ib);
    mlc__tile_room room;
    for (int64_t x = 0; x < b.n; x += j->b.panel)
        for (int64_t p = 0; p < b.depth; p += j->kc)
            mlc__gemm_panel(j, &a, &b, x, p, batch * g->c_batch + row * j->c_row + col * j->c_col,
                            row, col, &room);
}

/* Columns of c to a task without packing: v is half a KB on the stack. */
#define MLC__ROW_BLOCK 64

/* n finished products for c from element at, column col on. */
static void mlc__sink_run(const mlc__gemm_job *j, void *v, int64_t at, int64_t col, int64_t n)
{
    const mlc__sink s = { j->g, j->f->map, v, n, 1, n, at, col, false, true };
    j->f->sink(&s);
}

/* Without packing: a row of c in blocks of 64 columns, by dot products where columns of b are
 * dense and by scaled rows of b otherwise. */
static void mlc__gemm_row(const mlc__gemm_job *j, int64_t batch, int64_t i, int64_t j0, int64_t n)
{
    const struct mlc_k_gemm *g = j->g;
    const void *a = mlc__at(g->a, batch * g->a_batch + i * g->a_row, j->size);
    double v[MLC__ROW_BLOCK];
    for (int64_t x = 0; x < n; x++) {
        const void *b = mlc__at(g->b, batch * g->b_batch + (j0 + x) * g->b_col, j->size);
        mlc__elem_put(v, x, j->size == 4 ? MLC_F32 : MLC_F64, j->f->dot(a, b, g->k));
    }
    mlc__sink_run(j, v, batch * g->c_batch + i * g->c_row + j0 * g->c_col, j0, n);
}

/* v[0..n) = row i of a times n columns of b, whatever their strides. */
#define MLC__ROW_TEXT(T) \
    T *to = (T *)(void *)v; \
    for (int64_t x = 0; x < n; x++) to[x] = 0; \
    for (int64_t p = 0; p < g->k; p++) { \
        const T s = MLC__CAST(const T *, a)[p * g->a_col]; \
        const T *row = MLC__CAST(const T *, b) + p * g->b_row; \
        if (g->b_col == 1 && n >= 16) axpy(to, (double)s, row, n); \
        else for (int64_t x = 0; x < n; x++) to[x] += s * row[x * g->b_col]; \
    }

/* The same by rows of b, scaled and added: k is the outer loop, so b is read in order. */
static void mlc__gemm_row_strided(const mlc__gemm_job *j, int64_t batch, int64_t i, int64_t j0,
                                  int64_t n)
{
    const struct mlc_k_gemm *g = j->g;
    const mlc__axpy_fn axpy = j->f->axpy;
    const void *a = mlc__at(g->a, batch * g->a_batch + i * g->a_row, j->size);
    const void *b = mlc__at(g->b, batch * g->b_batch + j0 * g->b_col, j->size);
    double v[MLC__ROW_BLOCK];
    if (j->size == 4) { MLC__ROW_TEXT(float) } else { MLC__ROW_TEXT(double) }
    mlc__sink_run(j, v, batch * g->c_batch + i * g->c_row + j0 * g->c_col, j0, n);
}

/* Dot products only where both operands run along k and k fills at least a few lanes. */
static void mlc__gemm_small_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__gemm_job *j = MLC__CAST(const mlc__gemm_job *, arg);
    const struct mlc_k_gemm *g = j->g;
    const int64_t end = mlc__min((chunk + 1) * j->mc, g->batch * g->m * j->n_tasks);
    (void)worker;
    for (int64_t r = chunk * j->mc; r < end; r++) {
        const int64_t j0 = r % j->n_tasks * MLC__ROW_BLOCK, row = r / j->n_tasks;
        const int64_t n = mlc__min(MLC__ROW_BLOCK, g->n - j0);
        if (g->a_col == 1 && g->b_row == 1 && g->k >= 8)
            mlc__gemm_row(j, row / g->m, row % g->m, j0, n);
        else
            mlc__gemm_row_strided(j, row / g->m, row % g->m, j0, n);
    }
}

/* Must not look at threads: it decides the order of additions. Very small products of a batch cost
 * less one by one, larger ones together pay for the tiles' preparations. */
static bool mlc__gemm_is_small(const struct mlc_k_gemm *g)
{
    const double macs = (double)g->m * (double)g->n * (double)g->k;
    if (macs <= MLC__SMALL && (macs <= 512.0 || macs * (double)g->batch <= MLC__SMALL)) return true;
    if (g->act && g->beta != 0.0) return true;             /* blocks of k would add up in c */
    return g->m <= 4 && g->a_col == 1 && g->b_row == 1;
}

/* Sides of the product as it is, or of its transpose. */
static void mlc__gemm_sides(mlc__gemm_job *j, bool swapped)
{
    const struct mlc_k_gemm *g = j->g;
    const mlc__side a = { g->a, g->a_row, g->a_col, g->a_batch, g->m, 0, 1, false, false, 0 };
    const mlc__side b = { g->b, g->b_col, g->b_row, g->b_batch, g->n, 0, 1, false, false, 0 };
    j->swapped = swapped;
    j->a = swapped ? b : a;
    j->b = swapped ? a : b;
    j->a.panel = j->f->mr;
    j->b.panel = j->f->narrow && j->b.size <= j->f->nr / 2 ? j->f->nr / 2 : j->f->nr;
    j->b.columns = true;
    j->c_row = swapped ? g->c_col : g->c_row;
    j->c_col = swapped ? g->c_row : g->c_col;
}

/* A side that must be packed: the tiles could not read it, or its rows, a multiple of 4 KB apart,
 * would fall into one set of the L1 cache, of 8 or 12 lines. Rows of a that lie along k can be
 * taken fewer at a time instead. */
static void mlc__side_choose(const mlc__gemm_job *j, mlc__side *s)
{
    const int64_t apart = s->minor == 1 ? s->major : s->minor;
    const bool collide = apart * (int64_t)j->size % 4096 == 0;
    if (s->columns) s->pack = s->minor != 1;
    else s->pack = s->major != 1 && (s->minor != 1 || collide);
    if (!s->columns && !s->pack && s->minor != 1 && collide) s->panel = mlc__min(s->panel, 8);
}

/* Nanoseconds an element of a side costs the thread that reads it: from the other cores' caches,
 * and to pack it, along k (transposing) or along m or n. */
static double mlc__side_ns(const mlc__side *s)
{
    return 0.15 + (!s->pack ? 0.0 : s->minor == 1 ? 0.1 : 0.25);
}

/* Deals a product to pa x pb threads, each of which reads, and packs, its own share of a and b: the
 * cut that takes least time, and the time. Where it makes little difference rows are cut: then a
 * thread meets the same part of a weight in y = x w^T, in dw and in the optimizer's pass, and the
 * weight stays in its cache. */
static double mlc__gemm_deal(mlc__gemm_job *j, bool swapped, int64_t threads)
{
    double best = MLC__INF;
    mlc__gemm_sides(j, swapped);
    mlc__side_choose(j, &j->a);
    mlc__side_choose(j, &j->b);
    const int64_t ua = mlc__div_up(j->a.size, j->a.panel), ub = mlc__div_up(j->b.size, j->b.panel);
    const double k = (double)j->g->k;
    for (int64_t pa = mlc__min(ua, threads); pa >= 1; pa--) {
        const int64_t pb = mlc__min(ub, threads / pa);
        const double rows = (double)mlc__div_up(j->a.size, pa);
        const double cols = (double)(mlc__div_up(ub, pb) * j->b.panel);
        const double ns = rows * cols * (k * j->f->ns + (j->c_col == 1 ? 0.1 : 0.3)) +
                          rows * k * mlc__side_ns(&j->a) + cols * k * mlc__side_ns(&j->b);
        if (ns >= 0.97 * best) continue;
        best = ns;
        j->a.blocks = pa;
        j->b.blocks = pb;
    }
    return best;
}

/* Workspace of a thread: two tags, then what it packs of a and of b. */
static void mlc__gemm_room(mlc__gemm_job *j)
{
    const int64_t panels = mlc__div_up(mlc__div_up(j->b.size, j->b.panel), j->b.blocks);
    const int64_t rows = j->a.pack ? mlc__div_up(j->a.size, j->a.blocks) : 0;
    const int64_t odd = j->b.size % j->b.panel ? 1 : 0;    /* a last panel that is not full */
    const int64_t cols = (j->b.pack ? panels : odd) * j->b.panel;
    j->a.at = MLC__CACHELINE;
    j->b.at = mlc__round_up(j->a.at + (size_t)(rows * j->depth) * j->size + MLC__PACK_SLACK,
                            MLC__CACHELINE);
    /* An odd number of cache lines: workspaces must not fall into the same sets. */
    j->buffer = mlc__round_up(j->b.at + (size_t)(cols * j->depth) * j->size + MLC__PACK_SLACK,
                              4096) + 3 * MLC__CACHELINE;
}

/* The side that stays in a thread's workspace while the other goes by: b if it is packed and the
 * tiles are the transpose's, else a. The other is cut into more chunks, for balance. */
static void mlc__gemm_plan(mlc__gemm_job *j, const void *dev, const struct mlc_k_gemm *g,
                           const mlc__gemm_fns *f)
{
    const int64_t threads = mlc__pool_threads(dev);
    const int64_t each = mlc__max(1, threads / g->batch);
    j->g = g;
    j->f = f;
    j->size = mlc_dtype_bytes(g->dtype);
    const double straight = mlc__gemm_deal(j, false, each);
    if (mlc__gemm_deal(j, true, each) >= straight) mlc__gemm_deal(j, false, each);
    mlc__side *stay = j->swapped ? &j->b : &j->a, *pass = j->swapped ? &j->a : &j->b;
    const int64_t kept = stay->pack ? mlc__div_up(stay->size, stay->blocks) : 0;
    j->b_first = !j->swapped;
    j->kc = mlc__div_up(g->k, mlc__div_up(g->k, MLC__KC));
    j->depth = mlc__max(1, mlc__min(8, MLC__PACK_MAX / 4 / mlc__max(1, kept * j->kc))) * j->kc;
    j->depth = mlc__min(g->k, j->depth);
    const int64_t shares = stay->blocks * mlc__max(1, mlc__div_up(kept * j->depth, MLC__PACK_MAX));
    stay->blocks = mlc__min(shares, mlc__div_up(stay->size, stay->panel));
    /* A quarter of a MB, or less where that would leave threads without work, but no crumbs. */
    const int64_t balance = g->batch >= 8 * threads ? 1 : mlc__max(8 * pass->blocks, 16);
    const int64_t pieces = mlc__max(balance, mlc__div_up(pass->size * j->depth, 1 << 16));
    const double crumbs = (double)g->m * (double)g->n * (double)g->k / MLC__SMALL + 1.0;
    pass->blocks = mlc__min(mlc__min(pieces, crumbs < 1e9 ? (int64_t)crumbs : pieces),
                            mlc__div_up(pass->size, pass->panel));
    mlc__gemm_room(j);
}

#ifdef MLC_USE_CBLAS
/* Prototypes of our own: cblas.h differs between providers. -DMLC_BLAS_INT=int64_t for ILP64. */
#ifndef MLC_BLAS_INT
#  define MLC_BLAS_INT int
#endif
void cblas_sgemm(int order, int ta, int tb, MLC_BLAS_INT m, MLC_BLAS_INT n, MLC_BLAS_INT k,
                 float alpha, const float *a, MLC_BLAS_INT lda, const float *b, MLC_BLAS_INT ldb,
                 float beta, float *c, MLC_BLAS_INT ldc);
void cblas_dgemm(int order, int ta, int tb, MLC_BLAS_INT m, MLC_BLAS_INT n, MLC_BLAS_INT k,
                 double alpha, const double *a, MLC_BLAS_INT lda, const double *b, MLC_BLAS_INT ldb,
                 double beta, double *c, MLC_BLAS_INT ldc);
__attribute__((weak)) void openblas_set_num_threads(int n);
__attribute__((weak)) char *openblas_get_config(void);

/* A provider's own threads would split by their number, and fight with ours for the cores. */
#define MLC__BLAS_TILE 256             /* fixed tiles, one thread each: bits stay the same      */

/* One of both strides must be 1, all fit its integer, and the product be worth a call. 111 and 112
 * below are CblasNoTrans and CblasTrans, 101 is CblasRowMajor. */
static bool mlc__blas_takes(const struct mlc_k_gemm *g)
{
    const bool a = (g->a_col == 1 && g->a_row >= g->k) || (g->a_row == 1 && g->a_col >= g->m);
    const bool b = (g->b_col == 1 && g->b_row >= g->n) || (g->b_row == 1 && g->b_col >= g->k);
    return a && b && g->c_col == 1 && g->c_row >= g->n && g->m > 4 && g->n >= 16 && g->k >= 16 &&
           g->k < INT_MAX / 2 && g->a_row < INT_MAX && g->a_col < INT_MAX && g->b_row < INT_MAX &&
           g->b_col < INT_MAX && g->c_row < INT_MAX &&
           (double)g->m * (double)g->n * (double)g->k > 1e5;
}

/* The provider does alpha a b + beta c; bias and activation follow tile by tile, from cache. */
static void mlc__blas_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__gemm_job *j = MLC__CAST(const mlc__gemm_job *, arg);
    const struct mlc_k_gemm *g = j->g;
    const int64_t i0 = chunk % j->m_tasks * MLC__BLAS_TILE, batch = chunk / j->m_tasks / j->n_tasks;
    const int64_t j0 = chunk / j->m_tasks % j->n_tasks * MLC__BLAS_TILE;
    const int m = (int)mlc__min(MLC__BLAS_TILE, g->m - i0),
              n = (int)mlc__min(MLC__BLAS_TILE, g->n - j0);
    const int ta = g->a_col == 1 ? 111 : 112, tb = g->b_col == 1 ? 111 : 112;
    const int64_t c_at = batch * g->c_batch + i0 * g->c_row + j0;
    const void *a = mlc__at(g->a, batch * g->a_batch + i0 * g->a_row, j->size);
    const void *b = mlc__at(g->b, batch * g->b_batch + j0 * g->b_col, j->size);
    const MLC_BLAS_INT lda = (MLC_BLAS_INT)(ta == 111 ? g->a_row : g->a_col);
    const MLC_BLAS_INT ldb = (MLC_BLAS_INT)(tb == 111 ? g->b_row : g->b_col);
    (void)worker;
    if (j->size == 4)
        cblas_sgemm(101, ta, tb, m, n, (int)g->k, (float)g->alpha, MLC__CAST(const float *, a), lda,
                    MLC__CAST(const float *, b), ldb, (float)g->beta,
                    MLC__CAST(float *, g->c) + c_at, (MLC_BLAS_INT)g->c_row);
    else
        cblas_dgemm(101, ta, tb, m, n, (int)g->k, g->alpha, MLC__CAST(const double *, a), lda,
                    MLC__CAST(const double *, b), ldb, g->beta,
                    MLC__CAST(double *, g->c) + c_at, (MLC_BLAS_INT)g->c_row);
    if (!g->bias && !g->act) return;
    struct mlc_k_gemm rest = *g;       /* the products are in c: bias and activation only */
    mlc__gemm_job again = *j;
    rest.alpha = 1.0;
    rest.beta = 0.0;
    again.g = &rest;
    for (int r = 0; r < m; r++)
        for (int x = 0; x < n; x += MLC__ROW_BLOCK) {
            double v[MLC__ROW_BLOCK];
            const int64_t at = c_at + r * g->c_row + x, w = mlc__min(MLC__ROW_BLOCK, n - x);
            memcpy(v, mlc__at(g->c, at, j->size), (size_t)w * j->size);
            mlc__sink_run(&again, v, at, j0 + x, w);
        }
}

/* True if CBLAS did it. An activation that meets a beta does not come here: mlc__gemm_is_small. */
static bool mlc__gemm_blas(void *dev, mlc__gemm_job *j)
{
    const struct mlc_k_gemm *g = j->g;
    if (!mlc__blas_takes(g)) return false;
    j->m_tasks = mlc__div_up(g->m, MLC__BLAS_TILE);
    j->n_tasks = mlc__div_up(g->n, MLC__BLAS_TILE);
    mlc__parallel(dev, g->batch * j->m_tasks * j->n_tasks,
                  0.03 * (double)g->batch * (double)g->m * (double)g->n * (double)g->k,
                  mlc__blas_chunk, j);
    return true;
}

/* One thread to a call: we call it from all of ours. */
static const char *mlc__blas_start(void)
{
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    return openblas_get_config ? "OpenBLAS" : "CBLAS";
}
#else
static const char *mlc__blas_start(void) { return "none"; }
#endif /* MLC_USE_CBLAS */

/* A 16-bit product is the f32 product of dense copies: sums stay in f32 whatever k is, and each
 * result is rounded once. Copies are a third of the time at most for square products, all of it
 * for a row times a matrix. */

/* Room for a copy in the workspace, and the way on. */
static float *mlc__gemm_place(const struct mlc_k_gemm *g, size_t *at, int64_t elements)
{
    float *copy = g->workspace ? (float *)(void *)(MLC__CAST(char *, g->workspace) + *at) : NULL;
    *at += mlc__round_up((size_t)elements * 4, MLC__CACHELINE);
    return copy;
}

/* The f32 product over copies in g's workspace; returns the bytes they take. A broadcast operand
 * is copied once. */
static size_t mlc__gemm_widen(const struct mlc_k_gemm *g, struct mlc_k_gemm *w)
{
    const int64_t a = g->m * g->k, b = g->k * g->n, c = g->m * g->n;
    size_t at = 0;
    *w = *g;
    w->dtype = MLC_F32;
    w->a = mlc__gemm_place(g, &at, a * (g->a_batch ? g->batch : 1));
    w->b = mlc__gemm_place(g, &at, b * (g->b_batch ? g->batch : 1));
    w->c = mlc__gemm_place(g, &at, c * g->batch);
    w->bias = g->bias ? mlc__gemm_place(g, &at, g->n) : NULL;
    w->pre = g->pre ? mlc__gemm_place(g, &at, c * g->batch) : NULL;
    w->a_row = g->k; w->a_col = 1; w->a_batch = g->a_batch ? a : 0;
    w->b_row = g->n; w->b_col = 1; w->b_batch = g->b_batch ? b : 0;
    w->c_row = g->n; w->c_col = 1; w->c_batch = c;
    w->workspace = g->workspace ? MLC__CAST(char *, g->workspace) + at : NULL;
    w->workspace_bytes = g->workspace_bytes > at ? g->workspace_bytes - at : 0;
    return at;
}

/* Matrices of 16-bit elements at these strides to a dense copy in f32, or back. */
static void mlc__gemm_convert(void *dev, const mlc__half_fns *half, mlc_dtype dtype, bool widen,
                              const void *from, void *to, int64_t batch, int64_t rows, int64_t cols,
                              int64_t batch_stride, int64_t row_stride, int64_t col_stride)
{
    const int64_t strided[3] = { batch_stride, row_stride, col_stride };
    const int64_t dense[3] = { rows * cols, cols, 1 }, shape[3] = { batch, rows, cols };
    struct mlc_k_cast c;
    c.out_dtype = widen ? MLC_F32 : dtype;
    c.in_dtype = widen ? dtype : MLC_F32;
    c.ndim = 3;
    c.in = from;
    c.out = to;
    for (int d = 0; d < 3; d++) {
        c.shape[d] = shape[d];
        c.out_stride[d] = widen ? dense[d] : strided[d];
        c.in_stride[d] = widen ? strided[d] : dense[d];
    }
    mlc__cast_run(dev, &c, half);
}

static mlc_status mlc__gemm_run(void *dev, const struct mlc_k_gemm *g, const mlc__gemm_fns *f);

static mlc_status mlc__gemm_half(void *dev, const struct mlc_k_gemm *g, const mlc__gemm_fns *f)
{
    struct mlc_k_gemm w;
    if (mlc__gemm_widen(g, &w) > g->workspace_bytes) return MLC_ERR_INTERNAL;
    mlc__gemm_convert(dev, f->half, g->dtype, true, g->a, (void *)(uintptr_t)w.a,
                      g->a_batch ? g->batch : 1, g->m, g->k, g->a_batch, g->a_row, g->a_col);
    mlc__gemm_convert(dev, f->half, g->dtype, true, g->b, (void *)(uintptr_t)w.b,
                      g->b_batch ? g->batch : 1, g->k, g->n, g->b_batch, g->b_row, g->b_col);
    if (g->bias)
        f->half->widen(MLC__CAST(float *, (void *)(uintptr_t)w.bias), g->bias, g->dtype, g->n);
    if (g->beta != 0.0)
        mlc__gemm_convert(dev, f->half, g->dtype, true, g->c, w.c, g->batch, g->m, g->n,
                          g->c_batch, g->c_row, g->c_col);
    MLC__TRY(mlc__gemm_run(dev, &w, f));
    mlc__gemm_convert(dev, f->half, g->dtype, false, w.c, g->c, g->batch, g->m, g->n, g->c_batch,
                      g->c_row, g->c_col);
    if (g->pre)
        mlc__gemm_convert(dev, f->half, g->dtype, false, w.pre, g->pre, g->batch, g->m, g->n,
                          g->c_batch, g->c_row, g->c_col);
    return MLC_OK;
}

/* Takes the same decisions as mlc__gemm_run, in the same order. */
static size_t mlc__gemm_workspace(const void *dev, const struct mlc_k_gemm *g,
                                  const mlc__gemm_fns *f)
{
    mlc__gemm_job j;
    struct mlc_k_gemm w;
    if (g->m == 0 || g->n == 0 || g->batch == 0) return 0;
    if (mlc__is_half(g->dtype)) {
        struct mlc_k_gemm bare = *g;
        bare.workspace = NULL;
        const size_t copies = mlc__gemm_widen(&bare, &w);
        return copies + mlc__gemm_workspace(dev, &w, f);
    }
    if (mlc__gemm_is_small(g)) return 0;
#ifdef MLC_USE_CBLAS
    if (mlc__blas_takes(g)) return 0;
#endif
    mlc__gemm_plan(&j, dev, g, f);
    return j.buffer * (size_t)mlc__pool_threads(dev);
}

/* Three ways, tried in this order: without packing, CBLAS, tiles. */
static mlc_status mlc__gemm_run(void *dev, const struct mlc_k_gemm *g, const mlc__gemm_fns *f)
{
    const double macs = (double)g->batch * (double)g->m * (double)g->n * (double)g->k;
    mlc__gemm_job j;
    if (!mlc__is_float(g->dtype)) return MLC_ERR_UNSUPPORTED;
    if (g->m == 0 || g->n == 0 || g->batch == 0) return MLC_OK;
    if (mlc__is_half(g->dtype)) return mlc__gemm_half(dev, g, f);
    j.g = g;
    j.f = f;
    j.size = mlc_dtype_bytes(g->dtype);
    if (mlc__gemm_is_small(g)) {
        const int64_t block = mlc__min(g->n, MLC__ROW_BLOCK) * mlc__max(1, g->k);
        j.n_tasks = mlc__div_up(g->n, MLC__ROW_BLOCK);
        j.mc = mlc__max(1, MLC__GRAIN / block);            /* blocks of rows to a chunk */
        mlc__parallel(dev, mlc__div_up(g->batch * g->m * j.n_tasks, j.mc), 4.0 * f->ns * macs,
                      mlc__gemm_small_chunk, &j);
        return MLC_OK;
    }
#ifdef MLC_USE_CBLAS
    if (mlc__gemm_blas(dev, &j)) return MLC_OK;
#endif
    mlc__gemm_plan(&j, dev, g, f);
    const size_t threads = (size_t)mlc__pool_threads(dev);
    if (g->workspace_bytes < j.buffer * threads) return MLC_ERR_INTERNAL;
    for (size_t t = 0; t < threads; t++)                   /* tags: nothing is packed yet */
        memset(MLC__CAST(char *, g->workspace) + t * j.buffer, 0xff, 2 * sizeof(int64_t));
    for (j.k0 = 0; j.k0 < g->k; j.k0 += j.depth)
        mlc__parallel(dev, g->batch * j.a.blocks * j.b.blocks,
                      f->ns * macs * (double)j.depth / (double)g->k, mlc__gemm_chunk, &j);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.SORT ----------------------------------- sort, top k: by integer keys
 * An element becomes an unsigned key in the order of the values: the bits of a float, turned around
 * where it is negative, with -0 as 0 and every NaN as the largest; an integer with its sign bit
 * turned. Items are keys with their place in the row, so that the sort is stable, and descending is
 * the same with keys complemented. Short rows are sorted by insertion, longer ones byte by byte
 * from the lowest (radix sort), passing over bytes that all keys share. The first k are kept in
 * order while the row passes by if they are few, else found by bytes from the highest, then sorted.
 * There is one right answer: no split of the work changes it. */

#define MLC__SORT_SHORT 48             /* up to here insertion wins over clearing of counters */
#define MLC__SORT_FEW   16             /* up to here the first k are kept in order on the way */
#define MLC__SORT_GRAIN 4096           /* elements of a chunk */

/* In memory a narrow item is one word, its key in the upper half; a wide one is two. */
typedef struct mlc__item { uint64_t key, place; } mlc__item;

MLC__INLINE mlc__item mlc__item_at(const uint64_t *v, int64_t i, bool wide)
{
    const mlc__item w = { wide ? v[2 * i] : v[i] >> 32, wide ? v[2 * i + 1] : v[i] & UINT32_MAX };
    return w;
}

MLC__INLINE void mlc__item_put(uint64_t *v, int64_t i, mlc__item x, bool wide)
{
    if (!wide) { v[i] = x.key << 32 | x.place; return; }
    v[2 * i] = x.key;
    v[2 * i + 1] = x.place;
}

/* Of a float's bits; ones: all of them set, inf: those of infinity. */
MLC__INLINE uint64_t mlc__key_float(uint64_t u, uint64_t ones, uint64_t inf)
{
    const uint64_t sign = ones ^ ones >> 1, size = u & ~sign;
    if (size > inf) return ones;
    if (size == 0) return sign;
    return u ^ (sign | ((0u - (uint64_t)(u != size)) & ones)); /* no jump on the sign */
}

/* u: the bits of an element. */
#define MLC__SORT_LOAD(T, key_of_u) \
    for (int64_t i = 0; i < n; i++) { \
        const uint64_t u = MLC__CAST(const T *, in)[i * stride]; \
        const mlc__item x = { (key_of_u) ^ flip, (uint64_t)i }; \
        mlc__item_put(v, i, x, wide); \
    }

MLC__INLINE void mlc__sort_load(uint64_t *v, mlc_dtype dtype, const void *in, int64_t stride,
                                int64_t n, bool descending, bool wide)
{
    const int bits = 8 * (int)mlc_dtype_bytes(dtype);
    const uint64_t flip = descending ? UINT64_MAX >> (64 - bits) : 0;
    switch (dtype) {
    case MLC_F32: MLC__SORT_LOAD(uint32_t, mlc__key_float(u, UINT32_MAX, 0x7F800000u)) break;
    case MLC_F64:
        MLC__SORT_LOAD(uint64_t, mlc__key_float(u, UINT64_MAX, 0x7FF0000000000000u))
        break;
    case MLC_BF16: MLC__SORT_LOAD(uint16_t, mlc__key_float(u, UINT16_MAX, 0x7F80u)) break;
    case MLC_F16: MLC__SORT_LOAD(uint16_t, mlc__key_float(u, UINT16_MAX, 0x7C00u)) break;
    case MLC_I64: MLC__SORT_LOAD(uint64_t, u ^ (uint64_t)1 << 63) break;
    case MLC_I32: MLC__SORT_LOAD(uint32_t, u ^ 0x80000000u) break;
    case MLC_I8: MLC__SORT_LOAD(uint8_t, u ^ 0x80u) break;
    case MLC_BOOL: MLC__SORT_LOAD(uint8_t, (uint64_t)(u != 0)) break;
    default: MLC__SORT_LOAD(uint8_t, u) break;                             /* u8 */
    }
}

/* x into the n sorted items of v, behind its equals. */
MLC__INLINE void mlc__sort_insert(uint64_t *v, int64_t n, mlc__item x, bool wide)
{
    for (; n > 0 && mlc__item_at(v, n - 1, wide).key > x.key; n--)
        mlc__item_put(v, n, mlc__item_at(v, n - 1, wide), wide);
    mlc__item_put(v, n, x, wide);
}

/* Moves the k first of n items to the front, sorted: by insertion, most items are passed over. */
MLC__INLINE void mlc__sort_few(uint64_t *v, int64_t n, int64_t k, bool wide)
{
    for (int64_t i = 1; i < k; i++) mlc__sort_insert(v, i, mlc__item_at(v, i, wide), wide);
    for (int64_t i = k; i < n; i++) {
        const mlc__item x = mlc__item_at(v, i, wide);
        if (x.key < mlc__item_at(v, k - 1, wide).key) mlc__sort_insert(v, k - 1, x, wide);
    }
}

/* Sorts n items by their `bytes` lowest bytes, with room for as many; where they are then. */
MLC__INLINE uint64_t *mlc__sort_radix(uint64_t *v, uint64_t *room, int64_t (*count)[256], int64_t n,
                                      int bytes, bool wide)
{
    memset(count, 0, (size_t)bytes * sizeof count[0]);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t key = mlc__item_at(v, i, wide).key;
        for (int b = 0; b < bytes; b++) count[b][key >> 8 * b & 255]++;
    }
    for (int b = 0; b < bytes; b++) {
        if (count[b][mlc__item_at(v, 0, wide).key >> 8 * b & 255] == n) continue;
        int64_t *to = count[b], sum = 0;
        for (int d = 0; d < 256; d++) { const int64_t c = to[d]; to[d] = sum; sum += c; }
        for (int64_t i = 0; i < n; i++) {
            const mlc__item x = mlc__item_at(v, i, wide);
            mlc__item_put(room, to[x.key >> 8 * b & 255]++, x, wide);
        }
        uint64_t *swap = v;
        v = room;
        room = swap;
    }
    return v;
}

/* Moves the k first of n items to the front, in order of place; 0 < k < n. The byte in which the
 * k-th falls is counted out, then the next one among the items that share it. */
MLC__INLINE void mlc__sort_select(uint64_t *v, int64_t n, int64_t k, int bytes, bool wide)
{
    int64_t need = k, to = 0;
    uint64_t prefix = 0;
    int b = bytes;
    bool whole = false;                /* the items of the last byte found are just as many */
    while (b > 0 && !whole) {
        int64_t count[256] = { 0 };
        int d = 0;
        b--;
        for (int64_t i = 0; i < n; i++) {
            const uint64_t key = mlc__item_at(v, i, wide).key >> 8 * b;
            if (b + 1 == bytes || key >> 8 == prefix) count[key & 255]++;
        }
        for (; count[d] < need; d++) need -= count[d];
        prefix = prefix << 8 | (uint64_t)d;
        whole = count[d] == need;
    }
    for (int64_t i = 0; i < n; i++) {
        const mlc__item x = mlc__item_at(v, i, wide);
        const uint64_t key = x.key >> 8 * b;
        if (key > prefix || (key == prefix && need == 0)) continue;
        need -= key == prefix;
        mlc__item_put(v, to++, x, wide);
    }
}

/* The k first of n items, sorted; where they are then. */
MLC__INLINE uint64_t *mlc__sort_first(uint64_t *v, uint64_t *room, int64_t (*count)[256], int64_t n,
                                      int64_t k, int bytes, bool wide)
{
    if (n > MLC__SORT_SHORT && k > MLC__SORT_FEW && k < n) {
        mlc__sort_select(v, n, k, bytes, wide);
        n = k;
    }
    if (n > MLC__SORT_SHORT && k > MLC__SORT_FEW)
        return mlc__sort_radix(v, room, count, n, bytes, wide);
    mlc__sort_few(v, n, k, wide);
    return v;
}

#define MLC__SORT_VALUES(T, value) \
    for (int64_t i = 0; i < n; i++) { \
        const T x = MLC__CAST(const T *, in)[(int64_t)mlc__item_at(v, i, wide).place * in_stride]; \
        MLC__CAST(T *, out)[i * stride] = value; \
    }

/* Values come from the row, not from keys: -0 and NaN keep their bits. */
MLC__INLINE void mlc__sort_values(const uint64_t *v, void *out, int64_t stride, const void *in,
                                  int64_t in_stride, int64_t n, mlc_dtype dtype, bool wide)
{
    const size_t size = mlc_dtype_bytes(dtype);
    if (size == 4) { MLC__SORT_VALUES(uint32_t, x) }
    else if (size == 8) { MLC__SORT_VALUES(uint64_t, x) }
    else if (size == 2) { MLC__SORT_VALUES(uint16_t, x) }
    else if (dtype == MLC_BOOL) { MLC__SORT_VALUES(uint8_t, x != 0) }
    else { MLC__SORT_VALUES(uint8_t, x) }
}

/* across: the other axes; operands in, values, index. */
typedef struct mlc__sort_job {
    const struct mlc_k_sort *a;
    mlc__loop across;
    int64_t   n, rows;                 /* of a row; rows of a chunk                             */
    int64_t   in, values, index;       /* strides of the axis                                   */
    size_t    size, buffer;            /* bytes of an element; of a worker's workspace          */
    bool      wide;
} mlc__sort_job;

/* The workspace is counters, items, room for as many. */
MLC__INLINE void mlc__sort_row(const mlc__sort_job *j, const int64_t *offset, void *workspace,
                               bool wide)
{
    const struct mlc_k_sort *a = j->a;
    int64_t (*count)[256] = MLC__CAST(int64_t (*)[256], workspace);
    uint64_t *v = MLC__CAST(uint64_t *, (void *)(count + j->size));
    const void *in = mlc__at(a->in, offset[0], j->size);
    mlc__sort_load(v, a->dtype, in, j->in, j->n, a->descending != 0, wide);
    v = mlc__sort_first(v, v + (wide ? 2 * j->n : j->n), count, j->n, a->k, (int)j->size, wide);
    if (a->values)
        mlc__sort_values(v, MLC__CAST(char *, a->values) + offset[1] * (int64_t)j->size, j->values,
                         in, j->in, a->k, a->dtype, wide);
    for (int64_t i = 0; a->index && i < a->k; i++)
        a->index[offset[2] + i * j->index] = (int64_t)mlc__item_at(v, i, wide).place;
}

static MLC__OPT void mlc__sort_narrow(const mlc__sort_job *j, const int64_t *offset,
                                      void *workspace)
{
    mlc__sort_row(j, offset, workspace, false);
}

static MLC__OPT void mlc__sort_wide(const mlc__sort_job *j, const int64_t *offset, void *workspace)
{
    mlc__sort_row(j, offset, workspace, true);
}

static void mlc__sort_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__sort_job *j = MLC__CAST(const mlc__sort_job *, arg);
    const mlc__loop *l = &j->across;
    void *workspace = MLC__CAST(char *, j->a->workspace) + (size_t)worker * j->buffer;
    const int64_t end = mlc__min(l->rows * l->n, (chunk + 1) * j->rows);
    int64_t offset[MLC__LOOP_OPERANDS];
    for (int64_t r = chunk * j->rows; r < end; r++) {
        mlc__loop_row(l, r / l->n, offset);
        for (int p = 0; p < 3; p++) offset[p] += r % l->n * l->stride[p][l->ndim - 1];
        if (j->wide) mlc__sort_wide(j, offset, workspace);
        else mlc__sort_narrow(j, offset, workspace);
    }
}

/* False if there is nothing to write. Wide: where key and place do not fit one word. */
static bool mlc__sort_plan(mlc__sort_job *j, const struct mlc_k_sort *a)
{
    int64_t shape[MLC_MAX_DIMS], in[MLC_MAX_DIMS], values[MLC_MAX_DIMS], index[MLC_MAX_DIMS];
    const int64_t *strides[3] = { in, values, index };
    int32_t n = 0;
    for (int32_t d = 0; d < a->ndim; d++) {
        if (d == a->axis) continue;
        shape[n] = a->shape[d];
        in[n] = a->in_stride[d];
        values[n] = a->values ? a->values_stride[d] : 0;
        index[n++] = a->index ? a->index_stride[d] : 0;
    }
    j->a = a;
    j->n = a->shape[a->axis];
    j->rows = mlc__max(1, MLC__SORT_GRAIN / mlc__max(1, j->n));
    j->in = a->in_stride[a->axis];
    j->values = a->values ? a->values_stride[a->axis] : 0;
    j->index = a->index ? a->index_stride[a->axis] : 0;
    j->size = mlc_dtype_bytes(a->dtype);
    j->wide = j->size == 8 || j->n > UINT32_MAX;
    j->buffer = mlc__round_up((size_t)j->n * (j->wide ? 32 : 16) + j->size * 256 * sizeof(int64_t),
                              MLC__CACHELINE);
    return a->k > 0 && mlc__loop_make(&j->across, n, shape, 3, strides);
}

static size_t mlc__k_sort_workspace(void *dev, const struct mlc_k_sort *a)
{
    mlc__sort_job j;
    return mlc__sort_plan(&j, a) ? j.buffer * (size_t)mlc__pool_threads(dev) : 0;
}

static mlc_status mlc__k_sort(void *dev, const struct mlc_k_sort *a)
{
    mlc__sort_job j;
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT) return MLC_ERR_UNSUPPORTED;
    if (!mlc__sort_plan(&j, a)) return MLC_OK;
    if (a->workspace_bytes < j.buffer * (size_t)mlc__pool_threads(dev)) return MLC_ERR_INTERNAL;
    const int64_t rows = j.across.rows * j.across.n;
    mlc__parallel(dev, mlc__div_up(rows, j.rows), 10.0 * (double)rows * (double)j.n,
                  mlc__sort_chunk, &j);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.RNG ------------------------------------ random numbers: f(stream, i), in tiles
 * The same bits on every ISA and device (f64 normals: as far as libm's log, sin, cos agree; bounds
 * of truncated ones: its erfc). Philox makes a tile of words, blocks side by side in the lanes of
 * vectors; plain loops over the tile follow. Element i hangs on word i of the stream, normals on
 * those of their pair, and what takes 64 bits (f64, integers, truncated normals, permutations) on
 * words 2 i and 2 i + 1. */

/* The top 24 (53) bits of a word (of two): every value is exact, 1 is never reached. */
#define MLC__U24(w) ((float)(int32_t)((w) >> 8) * 5.9604644775390625e-8f)       /* [0,1) */
#define MLC__U53(hi, lo) \
    ((double)((uint64_t)((hi) >> 5) << 26 | (lo) >> 6) * 1.1102230246251565e-16)

#define MLC__WORDS 256                 /* of a tile; MLC__GRAIN is a multiple of it */
#define MLC__BLOCKS 8                  /* that are made at a time: the widest vectors' lanes */

/* The words of n blocks, n a multiple of MLC__BLOCKS. */
MLC__BODY void mlc__words_body(uint64_t seed, uint64_t stream, uint64_t block, int64_t n,
                               uint32_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        const mlc__words r = mlc__philox(seed, stream, block + (uint64_t)i);
        memcpy(out + 4 * i, r.w, sizeof r.w);
    }
}

#define MLC__WORDS_PLAIN(isa) MLC__AT_##isa \
    static void mlc__words_##isa(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, \
                                 uint32_t *out) \
    { mlc__words_body(seed, stream, block, n, out); }
MLC__WORDS_PLAIN(scalar)
#if MLC__NEON
MLC__WORDS_PLAIN(neon)
#endif

/* The same in lanes of 64 bits, of which a product reads the lower half: whatever is in the upper
 * halves is cut off at the end. The last arguments are the lanes' blocks, in such an order that the
 * two unpacked vectors are the words in theirs. */
#define MLC__WORDS_LANES(isa, V, I, lanes, MUL, LOW, HIGH, ...) MLC__AT_##isa \
    static void mlc__words_##isa(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, \
                                 uint32_t *out) \
    { \
        const V order = { __VA_ARGS__ }, zero = { 0 }, m0 = zero + 0xD2511F53u; \
        const V m1 = zero + 0xCD9E8D57u, low = zero + UINT32_MAX; \
        for (int64_t i = 0; i < n; i += lanes) { \
            uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32); \
            V a = order + (block + (uint64_t)i), b = a >> 32; \
            V c = zero + stream, d = zero + (stream >> 32); \
            for (int round = 0; round < 10; round++) { \
                const V p0 = (V)MUL((I)a, (I)m0), p1 = (V)MUL((I)c, (I)m1); \
                a = (p1 >> 32) ^ b ^ (uint64_t)k0; \
                c = (p0 >> 32) ^ d ^ (uint64_t)k1; \
                b = p1; \
                d = p0; \
                k0 += 0x9E3779B9u; k1 += 0xBB67AE85u; \
            } \
            const I ab = (I)((a & low) | b << 32), cd = (I)((c & low) | d << 32); \
            const I first = LOW(ab, cd), second = HIGH(ab, cd); \
            memcpy(out + 4 * i, &first, sizeof first); \
            memcpy(out + 4 * i + 2 * lanes, &second, sizeof second); \
        } \
    }
#if MLC__X86
typedef uint64_t mlc__4q __attribute__((vector_size(32)));
MLC__WORDS_LANES(avx2, mlc__4q, __m256i, 4, _mm256_mul_epu32, _mm256_unpacklo_epi64,
                 _mm256_unpackhi_epi64, 0, 2, 1, 3)
#endif
#if MLC__AVX512
typedef uint64_t mlc__8q __attribute__((vector_size(64)));
/* With a mask of ones: g++ 12 warns of the others' own undefined vectors. */
#define MLC__MUL_512(a, b)  _mm512_maskz_mul_epu32(0xFF, a, b)
#define MLC__LOW_512(a, b)  _mm512_maskz_unpacklo_epi64(0xFF, a, b)
#define MLC__HIGH_512(a, b) _mm512_maskz_unpackhi_epi64(0xFF, a, b)
MLC__WORDS_LANES(avx512, mlc__8q, __m512i, 8, MLC__MUL_512, MLC__LOW_512, MLC__HIGH_512,
                 0, 4, 1, 5, 2, 6, 3, 7)
#endif

/* n elements in f32, rounded up to pairs. */
MLC__BODY void mlc__random_f32_body(const struct mlc_k_random *a, const uint32_t *w, float *v,
                                    int64_t n)
{
    const float p = (float)a->a, q = (float)a->b, width = (float)(a->b - a->a);
    if (a->kind == MLC_RANDOM_UNIFORM) {
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) {
            const float x = p + width * MLC__U24(w[i]);
            v[i] = mlc__pick_f32(x >= q, p, x);            /* rounding up must not reach hi */
        }
    } else if (a->kind == MLC_RANDOM_BERNOULLI) {
        const uint64_t below = (uint64_t)(a->a * 4294967296.0 + 0.5);
        const uint32_t last = (uint32_t)(below - 1), one = below ? 0x3F800000u : 0u;
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++)
            v[i] = mlc__f32_bits(one & (0u - (uint32_t)(w[i] <= last)));
    } else {
        /* Box-Muller; 1 - u is in (0, 1]: the logarithm is finite. */
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i += 2) {
            const float radius = mlc__sqrt_f32(-2.0f * mlc__log_f32(1.0f - MLC__U24(w[i])));
            float s, c;
            mlc__sincos2pi_f32(MLC__U24(w[i + 1]), &s, &c);
            v[i] = p + q * (radius * c);
            v[i + 1] = p + q * (radius * s);
        }
    }
}

/* out (+)= word >= drop ? in * scale : 0; with `all` every one is dropped. */
MLC__BODY void mlc__drop_f32_body(const uint32_t *w, uint32_t drop, bool all, float scale,
                                  bool accumulate, const float *in, float *out, int64_t n)
{
    const uint32_t any = all ? 0u : UINT32_MAX;
    if (accumulate)
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++)
            out[i] += mlc__f32_bits(mlc__bits_f32(in[i] * scale) & any &
                                    (0u - (uint32_t)(w[i] >= drop)));
    else
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++)
            out[i] = mlc__f32_bits(mlc__bits_f32(in[i] * scale) & any &
                                   (0u - (uint32_t)(w[i] >= drop)));
}

typedef struct mlc__random_fns {
    void (*words)(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t *out);
    void (*f32)(const struct mlc_k_random *a, const uint32_t *w, float *v, int64_t n);
    void (*drop)(const uint32_t *w, uint32_t drop, bool all, float scale, bool accumulate,
                 const float *in, float *out, int64_t n);
    const mlc__half_fns *half;
} mlc__random_fns;

#define MLC__STAMP_RANDOM(isa) \
    MLC__AT_##isa static void mlc__random_f32_##isa(const struct mlc_k_random *a, \
                                                    const uint32_t *w, float *v, int64_t n) \
    { mlc__random_f32_body(a, w, v, n); } \
    MLC__AT_##isa static void mlc__drop_f32_##isa(const uint32_t *w, uint32_t drop, bool all, \
                                                  float scale, bool accumulate, const float *in, \
                                                  float *out, int64_t n) \
    { mlc__drop_f32_body(w, drop, all, scale, accumulate, in, out, n); } \
    static const mlc__random_fns mlc__random_fns_##isa = \
        { mlc__words_##isa, mlc__random_f32_##isa, mlc__drop_f32_##isa, &mlc__half_fns_##isa };
MLC__EACH_ISA(MLC__STAMP_RANDOM)

/* Uniform and normal values in f64, rounded up to pairs. */
MLC__APART void mlc__random_f64(const struct mlc_k_random *a, const uint32_t *w, double *v,
                                int64_t n)
{
    for (int64_t i = 0; i < n; i += 2) {
        const double x = MLC__U53(w[2 * i], w[2 * i + 1]);
        const double y = MLC__U53(w[2 * i + 2], w[2 * i + 3]);
        if (a->kind == MLC_RANDOM_UNIFORM) {
            v[i] = a->a + (a->b - a->a) * x;
            v[i + 1] = a->a + (a->b - a->a) * y;
            for (int p = 0; p < 2; p++) if (v[i + p] >= a->b) v[i + p] = a->a;
            continue;
        }
        const double radius = sqrt(-2.0 * log(1.0 - x)), angle = 6.283185307179586477 * y;
        v[i] = a->a + a->b * (radius * cos(angle));
        v[i + 1] = a->a + a->b * (radius * sin(angle));
    }
}

/* log x of a normal x > 0, the same bits everywhere: 2 artanh((m - 1)/(m + 1)) of the mantissa.
 * Max error 0.97 ulp, of 4e7 x. */
MLC__INLINE double mlc__ln(double x)
{
    const uint64_t u = mlc__bits_f64(x) + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
    const double e = (double)((int32_t)(u >> 52) - 1023);
    const double m = mlc__f64_bits((u & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu) - 1.0;
    const double s = m / (m + 2.0), z = s * s;
    double t = 2.0 / 23.0;
    for (int k = 21; k >= 3; k -= 2) t = t * z + 2.0 / k;
    return e * 6.93147180369123816490e-01 +
           (m - (s * (m - z * t) - e * 1.90821492927058770002e-10));
}

/* p[0] + p[1] x + ... + p[7] x^7 */
MLC__INLINE double mlc__poly7(const double *p, double x)
{
    double y = p[7];
    for (int i = 6; i >= 0; i--) y = y * x + p[i];
    return y;
}

/* z with P(Z <= z) = p for a standard normal Z; relative error up to 6e-16.
 * Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics
 * 37 (1988): rational functions of (p - 1/2)^2 in the middle, of sqrt(-log p) in the tails. */
static double mlc__normal_quantile(double p)
{
    static const double middle[2][8] = {
        { 3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
          1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
          3.3430575583588128105e4, 2.5090809287301226727e3 },
        { 1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
          2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
          5.2264952788528545610e3 } };
    static const double tail[2][8] = {
        { 1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
          3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
          2.27238449892691845833e-2, 7.74545014278341407640e-4 },
        { 1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
          1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
          1.05075007164441684324e-9 } };
    static const double far[2][8] = {
        { 6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
          2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
          2.71155556874348757815e-5, 2.01033439929228813265e-7 },
        { 1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
          7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
          2.04426310338993978564e-15 } };
    const double q = p - 0.5, mirrored = q < 0 ? p : 1.0 - p;
    if (q >= -0.425 && q <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * mlc__poly7(middle[0], r) / mlc__poly7(middle[1], r);
    }
    const double r = sqrt(-mlc__ln(mirrored));
    const double z = r <= 5.0 ? mlc__poly7(tail[0], r - 1.6) / mlc__poly7(tail[1], r - 1.6)
                              : mlc__poly7(far[0], r - 5.0) / mlc__poly7(far[1], r - 5.0);
    return q < 0 ? -z : z;
}

/* A range of p for mlc__normal_quantile. Above the mean the other tail is taken, where p has its
 * digits. */
typedef struct mlc__tails { double from, width, sign; } mlc__tails;

static mlc__tails mlc__tails_of(const struct mlc_k_random *a)
{
    const double lo = (a->lo - a->a) / a->b, hi = (a->hi - a->a) / a->b, root = 0.70710678118654752;
    const double sign = lo > 0 ? -1.0 : 1.0;
    const double from = 0.5 * erfc((lo > 0 ? hi : -lo) * root);
    const double to = 0.5 * erfc((lo > 0 ? lo : -hi) * root);
    const mlc__tails t = { from, to - from, sign };
    return t;
}

MLC__APART void mlc__random_truncated(const struct mlc_k_random *a, mlc__tails t,
                                      const uint32_t *w, double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        /* In (0, 1), both ends left out: 52 bits and a half. */
        const uint64_t bits = (uint64_t)w[2 * i] << 20 | w[2 * i + 1] >> 12;
        const double u = ((double)bits + 0.5) * 2.220446049250313e-16, p = t.from + t.width * u;
        const double most = 1.0 - 1.1102230246251565e-16;
        const double x = a->a + a->b * (t.sign * mlc__normal_quantile(p < most ? p : most));
        v[i] = x < a->lo ? a->lo : x > a->hi ? a->hi : x;
    }
}

/* The upper half of the product. */
MLC__INLINE uint64_t mlc__mul_high(uint64_t a, uint64_t b)
{
    const uint64_t a0 = a & UINT32_MAX, a1 = a >> 32, b0 = b & UINT32_MAX, b1 = b >> 32;
    const uint64_t low = a0 * b0, mid = a1 * b0 + (low >> 32);
    return a1 * b1 + (mid >> 32) + ((a0 * b1 + (mid & UINT32_MAX)) >> 32);
}

/* Integer i of [0, count): 64 bits times count; the chances of two differ by less than 2^-64. */
MLC__INLINE uint64_t mlc__random_below(const uint32_t *w, int64_t i, uint64_t count)
{
    return mlc__mul_high((uint64_t)w[2 * i] << 32 | w[2 * i + 1], count);
}

typedef struct mlc__random_job {
    const struct mlc_k_random *a;
    const mlc__random_fns *fns;
    mlc_dtype  made;                   /* as what a tile is made: f32, f64 or i64               */
    float      top;                    /* most that a uniform 16-bit float may be before it is  */
    mlc__tails tails;                  /* rounded                                               */
} mlc__random_job;

/* The words behind elements i .. i + n of those that take `each`. */
static void mlc__random_words(const mlc__random_fns *f, uint64_t seed, uint64_t stream, int64_t i,
                              int64_t n, int each, uint32_t *w)
{
    const int64_t blocks = mlc__div_up(n * each, 4);
    f->words(seed, stream, (uint64_t)(i * each / 4),
             (int64_t)mlc__round_up((size_t)blocks, MLC__BLOCKS), w);
}

static void mlc__random_tile(const mlc__random_job *j, const uint32_t *w, double *v, int64_t n)
{
    const struct mlc_k_random *a = j->a;
    float *f = MLC__CAST(float *, (void *)v);
    if (j->made == MLC_F32) {
        j->fns->f32(a, w, f, n);
        for (int64_t i = 0; a->kind == MLC_RANDOM_UNIFORM && mlc__is_half(a->dtype) && i < n; i++)
            f[i] = f[i] > j->top ? j->top : f[i];
    } else if (j->made == MLC_I64) {
        int64_t *whole = MLC__CAST(int64_t *, (void *)v);
        for (int64_t i = 0; i < n; i++)
            whole[i] = (int64_t)((uint64_t)a->first + mlc__random_below(w, i, a->count));
    } else if (a->kind == MLC_RANDOM_TRUNCATED) mlc__random_truncated(a, j->tails, w, v, n);
    else mlc__random_f64(a, w, v, n);
}

static void mlc__random_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__random_job *j = MLC__CAST(const mlc__random_job *, arg);
    const struct mlc_k_random *a = j->a;
    const int each = j->made == MLC_F32 ? 1 : 2;
    const int64_t to = mlc__min(a->n, (chunk + 1) * MLC__GRAIN), step = MLC__WORDS / each;
    const size_t size = mlc_dtype_bytes(a->dtype);
    uint32_t w[MLC__WORDS];
    double v[MLC__WORDS / 2];          /* 128 of 64 bits or 256 of f32 */
    (void)worker;
    for (int64_t i = chunk * MLC__GRAIN; i < to; i += step) {
        const int64_t n = mlc__min(step, to - i);
        mlc__random_words(j->fns, a->seed, a->stream, i, n, each, w);
        mlc__random_tile(j, w, v, n);
        mlc__cast_dense(MLC__CAST(char *, a->out) + (size_t)i * size, a->dtype, v, j->made, n,
                        j->fns->half);
    }
}

/* Element i goes to a place among the first i + 1, what was there to the end: Fisher and Yates, one
 * after the other on one thread. */
MLC__APART void mlc__random_permutation(const mlc__random_job *j)
{
    int64_t *out = MLC__CAST(int64_t *, j->a->out);
    uint32_t w[MLC__WORDS];
    for (int64_t from = 0; from < j->a->n; from += MLC__WORDS / 2) {
        const int64_t n = mlc__min(MLC__WORDS / 2, j->a->n - from);
        mlc__random_words(j->fns, j->a->seed, j->a->stream, from, n, 2, w);
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = (int64_t)mlc__random_below(w, i, (uint64_t)(from + i) + 1);
            out[from + i] = out[at];
            out[at] = from + i;
        }
    }
}

/* The largest value of a 16-bit float below x, as f32. */
static float mlc__half_below(float x, mlc_dtype dtype, const mlc__half_fns *half)
{
    uint16_t h;
    float y;
    half->narrow(&h, &x, dtype, 1);
    half->widen(&y, &h, dtype, 1);
    if (y < x) return y;
    if ((h & 0x7FFFu) == 0) h = 0x8001u;
    else h = (uint16_t)(h & 0x8000u ? h + 1 : h - 1);
    half->widen(&y, &h, dtype, 1);
    return y;
}

static mlc_status mlc__random_run(void *dev, const struct mlc_k_random *a, const mlc__random_fns *f)
{
    mlc__random_job j = { a, f, MLC_F32, 0.0f, { 0.0, 0.0, 0.0 } };
    if ((unsigned)a->dtype >= MLC_DTYPE_COUNT) return MLC_ERR_UNSUPPORTED;
    if (a->kind == MLC_RANDOM_PERMUTATION) {
        if (a->dtype != MLC_I64) return MLC_ERR_UNSUPPORTED;
        mlc__random_permutation(&j);
        return MLC_OK;
    }
    if (a->kind == MLC_RANDOM_INTEGER) j.made = MLC_I64;
    else if (a->kind == MLC_RANDOM_TRUNCATED) {
        j.made = MLC_F64;
        j.tails = mlc__tails_of(a);
    } else if (a->kind != MLC_RANDOM_BERNOULLI) {
        if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
        j.made = mlc__is_half(a->dtype) ? MLC_F32 : a->dtype;
        if (mlc__is_half(a->dtype)) j.top = mlc__half_below((float)a->b, a->dtype, f->half);
        if (j.top < (float)a->a) j.top = (float)a->a;      /* lo = hi, or nothing between them */
    }
    mlc__parallel(dev, mlc__div_up(a->n, MLC__GRAIN),
                  (a->kind == MLC_RANDOM_TRUNCATED ? 40.0 : 3.0) * (double)a->n, mlc__random_chunk,
                  &j);
    return MLC_OK;
}

/* Word i of the stream decides on element i, in forward and in backward alike: no mask is kept. */
typedef struct mlc__dropout_job {
    const struct mlc_k_dropout *a;
    const mlc__random_fns *fns;
} mlc__dropout_job;

static void mlc__dropout_tile(const mlc__dropout_job *j, const uint32_t *w, int64_t i, int64_t n)
{
    const struct mlc_k_dropout *a = j->a;
    const uint64_t drop = (uint64_t)(a->p * 4294967296.0);       /* words below it are dropped */
    const double scale = a->p < 1.0 ? 1.0 / (1.0 - a->p) : 0.0;
    const bool all = drop > UINT32_MAX, acc = a->accumulate != 0;
    if (a->dtype == MLC_F64) {
        double *o = MLC__CAST(double *, a->out) + i;
        for (int64_t e = 0; e < n; e++) {
            const double v = w[e] >= drop ? MLC__CAST(const double *, a->in)[i + e] * scale : 0.0;
            o[e] = acc ? o[e] + v : v;
        }
    } else if (a->dtype == MLC_F32) {
        j->fns->drop(w, (uint32_t)drop, all, (float)scale, acc, MLC__CAST(const float *, a->in) + i,
                     MLC__CAST(float *, a->out) + i, n);
    } else {
        float in[MLC__WORDS], out[MLC__WORDS];
        uint16_t *o = MLC__CAST(uint16_t *, a->out) + i;
        j->fns->half->widen(in, MLC__CAST(const uint16_t *, a->in) + i, a->dtype, n);
        if (acc) j->fns->half->widen(out, o, a->dtype, n);
        j->fns->drop(w, (uint32_t)drop, all, (float)scale, acc, in, out, n);
        j->fns->half->narrow(o, out, a->dtype, n);
    }
}

static void mlc__dropout_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__dropout_job *j = MLC__CAST(const mlc__dropout_job *, arg);
    const int64_t to = mlc__min(j->a->n, (chunk + 1) * MLC__GRAIN);
    uint32_t w[MLC__WORDS];
    (void)worker;
    for (int64_t i = chunk * MLC__GRAIN; i < to; i += MLC__WORDS) {
        const int64_t n = mlc__min(MLC__WORDS, to - i);
        mlc__random_words(j->fns, j->a->seed, j->a->stream, i, n, 1, w);
        mlc__dropout_tile(j, w, i, n);
    }
}

static mlc_status mlc__dropout_run_all(void *dev, const struct mlc_k_dropout *a,
                                       const mlc__random_fns *f)
{
    mlc__dropout_job j = { a, f };
    if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    mlc__parallel(dev, mlc__div_up(a->n, MLC__GRAIN), 1.0 * (double)a->n, mlc__dropout_chunk, &j);
    return MLC_OK;
}

/* A uniform number for draw i of a stream. */
MLC__INLINE double mlc__u53_at(uint64_t seed, uint64_t stream, uint64_t i)
{
    const mlc__words r = mlc__philox(seed, stream, i / 2);
    return i & 1 ? MLC__U53(r.w[2], r.w[3]) : MLC__U53(r.w[0], r.w[1]);
}

MLC__INLINE double mlc__weight(const struct mlc_k_multinomial *a, int64_t row, int64_t i)
{
    return mlc__elem(a->weights, row * a->row + i * a->col, a->dtype);
}

/* Row by row, so that the first bad one is named; false if there is one. */
static bool mlc__multinomial_check(const struct mlc_k_multinomial *a)
{
    for (int64_t r = 0; r < a->n; r++) {
        int64_t some = 0, bad = -1;
        for (int64_t i = 0; i < a->c && bad < 0; i++) {
            const double w = mlc__weight(a, r, i);
            if (!(w >= 0.0 && w <= DBL_MAX)) bad = i;
            some += w > 0.0;
        }
        if (bad < 0 && some >= (a->replacement ? 1 : a->k)) continue;
        a->error[0] = bad < 0 ? a->few : a->bad;
        a->error[1] = r;
        a->error[2] = bad < 0 ? some : bad;
        a->error[3] = a->k;
        return false;
    }
    return true;
}

/* With replacement: where u times the sum of weights falls among the sums up to each. */
static void mlc__multinomial_with(const struct mlc_k_multinomial *a, int64_t row, double *sum)
{
    double total = MLC__INF;
    /* Of weights near the end of the range only a small part is summed. */
    for (double part = 1.0; !(total <= DBL_MAX); part = 5.4210108624275222e-20) {
        total = 0.0;
        for (int64_t i = 0; i < a->c; i++) sum[i] = total += mlc__weight(a, row, i) * part;
    }
    for (int64_t d = 0; d < a->k; d++) {
        const uint64_t i = (uint64_t)(row * a->k + d);
        const double u = mlc__u53_at(a->seed, a->stream, i) * total;
        int64_t from = 0, to = a->c - 1;                   /* the first sum over u */
        while (from < to) {
            const int64_t mid = from + (to - from) / 2;
            if (sum[mid] > u) to = mid;
            else from = mid + 1;
        }
        a->out[row * a->k + d] = from;
    }
}

/* Without: a race. Category i arrives after an exponential time over its weight; the k first ones
 * are drawn, in that order. */
static void mlc__multinomial_without(const struct mlc_k_multinomial *a, int64_t row,
                                     void *workspace)
{
    int64_t (*count)[256] = MLC__CAST(int64_t (*)[256], workspace), n = 0;
    uint64_t *v = MLC__CAST(uint64_t *, (void *)(count + 8));
    for (int64_t i = 0; i < a->c; i++) {
        const double w = mlc__weight(a, row, i);
        const double u = mlc__u53_at(a->seed, a->stream, (uint64_t)(row * a->c + i));
        const mlc__item x = { mlc__bits_f64((0.0 - mlc__ln(1.0 - u)) / w), (uint64_t)i };
        if (w > 0.0) mlc__item_put(v, n++, x, true);
    }
    v = mlc__sort_first(v, v + 2 * a->c, count, n, a->k, 8, true);
    for (int64_t d = 0; d < a->k; d++)
        a->out[row * a->k + d] = (int64_t)mlc__item_at(v, d, true).place;
}

static size_t mlc__multinomial_buffer(const struct mlc_k_multinomial *a)
{
    const size_t bytes = a->replacement ? (size_t)a->c * sizeof(double)
                                        : (size_t)a->c * 32 + 8 * 256 * sizeof(int64_t);
    return mlc__round_up(bytes, MLC__CACHELINE);
}

static void mlc__multinomial_chunk(void *arg, int64_t row, int32_t worker)
{
    const struct mlc_k_multinomial *a = MLC__CAST(const struct mlc_k_multinomial *, arg);
    char *workspace = MLC__CAST(char *, a->workspace) + (size_t)worker * mlc__multinomial_buffer(a);
    if (a->replacement) mlc__multinomial_with(a, row, MLC__CAST(double *, (void *)workspace));
    else mlc__multinomial_without(a, row, workspace);
}

static size_t mlc__k_multinomial_workspace(void *dev, const struct mlc_k_multinomial *a)
{
    return mlc__multinomial_buffer(a) * (size_t)mlc__pool_threads(dev);
}

/* Where the weights are bad the draws are all 0: whoever uses them before the error word is read
 * stays inside. */
static mlc_status mlc__k_multinomial(void *dev, const struct mlc_k_multinomial *a)
{
    struct mlc_k_multinomial job = *a;
    if (!mlc__is_full(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (a->workspace_bytes < mlc__k_multinomial_workspace(dev, a)) return MLC_ERR_INTERNAL;
    memset(a->out, 0, (size_t)(a->n * a->k) * sizeof(int64_t));
    if (!mlc__multinomial_check(a)) return MLC_OK;
    const double draws = (double)(a->replacement ? a->k : a->c);
    mlc__parallel(dev, a->n, (double)a->n * ((double)a->c + 30.0 * draws), mlc__multinomial_chunk,
                  &job);
    return MLC_OK;
}

/* @@ IMPL.KERNELS.ROW ------------------------------------ softmax, norms, cross-entropy
 * Rows that are read two or three times, from L1 from the second time on: largest element, sum of
 * exponentials; mean, variance. Sums of f32 are carried in f64 in groups of four, so a kernel's
 * statistics are right to an ulp of its elements. Rows that are not dense, or of 16 bits, come
 * through tiles in L1, a part of a row at a time. In cross-entropy no probabilities are in memory:
 * the forward keeps two numbers a row (largest logit, log of the sum), from which backward makes
 * softmax again. Labels are checked before anything is computed; a bad one goes to the error word,
 * since a kernel has no context to complain to. */

/* n dense elements joined to start. */
MLC__INLINE double mlc__run(mlc__run_fn fn, const void *x, int64_t n, double start)
{
    mlc__acc t = { start, 0.0, 0 };
    fn(&t, x, n, 1.0);
    return mlc__acc_value(&t);
}

/* result = sum of E(0) .. E(n - 1), groups of four in T, whose sums are carried in f64. E may also
 * write, to places of its own: some elements are asked for twice. */
#define MLC__ROW_SUM(T, E, result) \
    do { \
        double lane[16], few = 0.0; \
        int64_t i = 0; \
        for (int l = 0; l < 16; l++) lane[l] = 0.0; \
        for (; i + 64 <= n; i += 64) \
            MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
                const T e0 = E(i + l), e1 = E(i + l + 16), e2 = E(i + l + 32), e3 = E(i + l + 48); \
                lane[l] += (double)((e0 + e1) + (e2 + e3)); \
            } \
        for (; i + 16 <= n; i += 16) \
            MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
                const T e0 = E(i + l); \
                lane[l] += (double)e0; \
            } \
        if (i < n && n >= 16) {        /* the last 16, without those that have been counted */ \
            const int seen = 16 - (int)(n - i); \
            MLC__INDEPENDENT for (int l = 0; l < 16; l++) { \
                const T e0 = E(n - 16 + l); \
                lane[l] += l < seen ? 0.0 : (double)e0; \
            } \
        } else { \
            T last[16] = { 0 }; \
            for (int l = 0; l < 16 && i + l < n; l++) last[l] = E(i + l); \
            for (int l = 0; l < 16 && i + l < n; l++) few += (double)last[l]; \
        } \
        result = mlc__fold(lane) + few; \
    } while (0)

/* e^x for x that are not NaN and below 88, as x - max is. */
MLC__BODY double mlc__exp_low_f64(double x) { return mlc__exp_f64(x); }
MLC__BODY float mlc__exp_put_f32(float *o, float x) { return *o = mlc__exp_low_f32(x); }
MLC__BODY double mlc__exp_put_f64(double *o, double x) { return *o = mlc__exp_f64(x); }

/* A row kernel is text over T, whose functions F names: sum of e^(x - shift); the same, and the
 * exponentials; sum of (x - shift)^2; of x - shift; of x y. */
#define MLC__E_EXP(k)     MLC__F(exp_low)(v[k] - m)
#define MLC__E_EXP_PUT(k) MLC__F(exp_put)(o + (k), v[k] - m)
#define MLC__E_LESS(k)    (v[k] - m)
#define MLC__E_SQUARE(k)  ((v[k] - m) * (v[k] - m))
#define MLC__E_DOT(k)     (v[k] * w[k])
#define MLC__SUM_EXP_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), m = (T)shift; \
    double sum; \
    MLC__ROW_SUM(T, MLC__E_EXP, sum); \
    return sum;
#define MLC__EXP_SUM_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), m = (T)shift; \
    T *o = MLC__CAST(T *, out); \
    double sum; \
    MLC__ROW_SUM(T, MLC__E_EXP_PUT, sum); \
    return sum;
#define MLC__SQUARES_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), m = (T)shift; \
    double sum; \
    MLC__ROW_SUM(T, MLC__E_SQUARE, sum); \
    return sum;
#define MLC__ROW_LESS_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), m = (T)shift; \
    double sum; \
    MLC__ROW_SUM(T, MLC__E_LESS, sum); \
    return sum;
#define MLC__ROW_DOT_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), *w = MLC__CAST(const T *, y); \
    double sum; \
    MLC__ROW_SUM(T, MLC__E_DOT, sum); \
    return sum;

/* What a norm needs of its row: elements become (x - shift) scale + base. shift is the mean as T
 * has it, base gives the rest of it back. */
typedef struct mlc__row_line { double shift, scale, base; } mlc__row_line;
#define MLC__LINE_OF(T) const T m = (T)line->shift, r = (T)line->scale, q = (T)line->base;

/* out = ((x - shift) scale + base) weight + bias, either of which may be NULL. */
#define MLC__AFFINE_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), *w = MLC__CAST(const T *, weight); \
    const T *b = MLC__CAST(const T *, bias); \
    T *o = MLC__CAST(T *, out); \
    MLC__LINE_OF(T) \
    if (w && b) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) \
            o[i] = ((v[i] - m) * r + q) * w[i] + b[i]; \
    } else if (w) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) o[i] = ((v[i] - m) * r + q) * w[i]; \
    } else if (b) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) o[i] = ((v[i] - m) * r + q) + b[i]; \
    } else { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) o[i] = (v[i] - m) * r + q; \
    }

/* dx = y (dy - sum), of a logarithm dy - e^y sum. */
#define MLC__SOFT_GRAD_TEXT(T) \
    const T *v = MLC__CAST(const T *, y), *d = MLC__CAST(const T *, dy), s = (T)sum; \
    T *o = MLC__CAST(T *, dx); \
    if (log) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) o[i] = d[i] - MLC__F(exp_low)(v[i]) * s; \
    } else { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) o[i] = v[i] * (d[i] - s); \
    }

/* Sums of g and of g h, h being the normed row and g = dy weight. */
#define MLC__E_G(k)   d[k]
#define MLC__E_GW(k)  (d[k] * w[k])
#define MLC__E_GH(k)  (d[k] * ((v[k] - m) * r + q))
#define MLC__E_GWH(k) (d[k] * w[k] * ((v[k] - m) * r + q))
#define MLC__NORM_SUMS_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), *d = MLC__CAST(const T *, dy); \
    const T *w = MLC__CAST(const T *, weight); \
    MLC__LINE_OF(T) \
    if (w) { \
        MLC__ROW_SUM(T, MLC__E_GW, sums[0]); \
        MLC__ROW_SUM(T, MLC__E_GWH, sums[1]); \
    } else { \
        MLC__ROW_SUM(T, MLC__E_G, sums[0]); \
        MLC__ROW_SUM(T, MLC__E_GH, sums[1]); \
    }

/* dx = scale (g - mean_g - h mean_gh) */
#define MLC__NORM_GRAD_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), *d = MLC__CAST(const T *, dy); \
    const T *w = MLC__CAST(const T *, weight), g = (T)means[0], h = (T)means[1]; \
    T *o = MLC__CAST(T *, dx); \
    MLC__LINE_OF(T) \
    if (w) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) \
            o[i] = r * ((d[i] * w[i] - g) - ((v[i] - m) * r + q) * h); \
    } else { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) \
            o[i] = r * ((d[i] - g) - ((v[i] - m) * r + q) * h); \
    }

/* dw += dy h, db += dy; they do not overlap. */
#define MLC__NORM_COLUMNS_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), *d = MLC__CAST(const T *, dy); \
    T *o = MLC__CAST(T *, dw), *u = MLC__CAST(T *, db); \
    MLC__LINE_OF(T) \
    MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) { \
        o[i] += d[i] * ((v[i] - m) * r + q); \
        u[i] += d[i]; \
    }

/* dx (+)= scale (e^((x - max) - log_sum) - less): a row of cross-entropy's gradient in one pass.
 * The label's share is not in it. */
#define MLC__XENT_ROW_TEXT(T) \
    const T *v = MLC__CAST(const T *, x), m = (T)max, l = (T)log_sum, e = (T)less, s = (T)scale; \
    T *o = MLC__CAST(T *, dx); \
    if (accumulate) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) \
            o[i] += (MLC__F(exp_low)((v[i] - m) - l) - e) * s; \
    } else { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) \
            o[i] = (MLC__F(exp_low)((v[i] - m) - l) - e) * s; \
    }

/* Each row kernel: result, name, parameters, arguments. */
#define MLC__ROW_KERNELS(X) \
    X(double, sum_exp, SUM_EXP, (const void *x, int64_t n, double shift), (x, n, shift)) \
    X(double, exp_sum, EXP_SUM, (void *out, const void *x, int64_t n, double shift), \
      (out, x, n, shift)) \
    X(double, row_squares, SQUARES, (const void *x, int64_t n, double shift), (x, n, shift)) \
    X(double, row_less, ROW_LESS, (const void *x, int64_t n, double shift), (x, n, shift)) \
    X(double, row_dot, ROW_DOT, (const void *x, const void *y, int64_t n), (x, y, n)) \
    X(void, affine, AFFINE, (void *out, const void *x, const void *weight, const void *bias, \
                             int64_t n, const mlc__row_line *line), \
      (out, x, weight, bias, n, line)) \
    X(void, soft_grad, SOFT_GRAD, (void *dx, const void *y, const void *dy, int64_t n, double sum, \
                                   bool log), (dx, y, dy, n, sum, log)) \
    X(void, norm_sums, NORM_SUMS, (double *sums, const void *x, const void *dy, \
                                   const void *weight, int64_t n, const mlc__row_line *line), \
      (sums, x, dy, weight, n, line)) \
    X(void, norm_grad, NORM_GRAD, (void *dx, const void *x, const void *dy, const void *weight, \
                                   int64_t n, const mlc__row_line *line, const double *means), \
      (dx, x, dy, weight, n, line, means)) \
    X(void, norm_columns, NORM_COLUMNS, (void *dw, void *db, const void *x, const void *dy, \
                                         int64_t n, const mlc__row_line *line), \
      (dw, db, x, dy, n, line)) \
    X(void, xent_line, XENT_ROW, (void *dx, const void *x, int64_t n, double max, double log_sum, \
                                  double less, double scale, bool accumulate), \
      (dx, x, n, max, log_sum, less, scale, accumulate))

#define MLC__ROW_BODY_F32(R, name, TEXT, parameters, arguments) \
    MLC__BODY R mlc__##name##_f32_body parameters { MLC__##TEXT##_TEXT(float) }
#define MLC__ROW_BODY_F64(R, name, TEXT, parameters, arguments) \
    MLC__BODY R mlc__##name##_f64_body parameters { MLC__##TEXT##_TEXT(double) }
#define MLC__F MLC__F32
MLC__ROW_KERNELS(MLC__ROW_BODY_F32)
#undef MLC__F
#define MLC__F MLC__F64
MLC__ROW_KERNELS(MLC__ROW_BODY_F64)
#undef MLC__F

/* What a level brings to row kernels, for one dtype. */
#define MLC__ROW_FIELD(R, name, TEXT, parameters, arguments) R (*name) parameters;
typedef struct mlc__row_fns {
    mlc__run_fn sum, max;
    MLC__ROW_KERNELS(MLC__ROW_FIELD)
} mlc__row_fns;

#define MLC__ROW_STAMP(isa, R, name, parameters, arguments) \
    MLC__AT_##isa static R mlc__##name##_f32_##isa parameters \
    { return mlc__##name##_f32_body arguments; } \
    MLC__AT_##isa static R mlc__##name##_f64_##isa parameters \
    { return mlc__##name##_f64_body arguments; }
#define MLC__ROW_STAMP_scalar(R, name, TEXT, p, a) MLC__ROW_STAMP(scalar, R, name, p, a)
#define MLC__ROW_STAMP_avx2(R, name, TEXT, p, a)   MLC__ROW_STAMP(avx2, R, name, p, a)
#define MLC__ROW_STAMP_avx512(R, name, TEXT, p, a) MLC__ROW_STAMP(avx512, R, name, p, a)
#define MLC__ROW_STAMP_neon(R, name, TEXT, p, a)   MLC__ROW_STAMP(neon, R, name, p, a)
#define MLC__ROW_F32_scalar(R, name, TEXT, p, a)   , mlc__##name##_f32_scalar
#define MLC__ROW_F32_avx2(R, name, TEXT, p, a)     , mlc__##name##_f32_avx2
#define MLC__ROW_F32_avx512(R, name, TEXT, p, a)   , mlc__##name##_f32_avx512
#define MLC__ROW_F32_neon(R, name, TEXT, p, a)     , mlc__##name##_f32_neon
#define MLC__ROW_F64_scalar(R, name, TEXT, p, a)   , mlc__##name##_f64_scalar
#define MLC__ROW_F64_avx2(R, name, TEXT, p, a)     , mlc__##name##_f64_avx2
#define MLC__ROW_F64_avx512(R, name, TEXT, p, a)   , mlc__##name##_f64_avx512
#define MLC__ROW_F64_neon(R, name, TEXT, p, a)     , mlc__##name##_f64_neon
/* f32, f64 */
#define MLC__STAMP_ROW(isa) \
    MLC__ROW_KERNELS(MLC__ROW_STAMP_##isa) \
    static const mlc__row_fns mlc__row_fns_##isa[2] = { \
        { mlc__add_f32_##isa, mlc__max_f32_##isa MLC__ROW_KERNELS(MLC__ROW_F32_##isa) }, \
        { mlc__add_f64_##isa, mlc__max_f64_##isa MLC__ROW_KERNELS(MLC__ROW_F64_##isa) } };
MLC__EACH_ISA(MLC__STAMP_ROW)

/* rows: loss of each row, in f64, in the workspace; added up in order at the end. */
typedef struct mlc__xent_job {
    const struct mlc_k_xent *a;
    const mlc__row_fns *f;
    double *rows;
} mlc__xent_job;

/* Loss of a row; its logits are read twice, the second time from L1. */
static double mlc__xent_row(const mlc__xent_job *j, int64_t r)
{
    const struct mlc_k_xent *a = j->a;
    const size_t size = mlc_dtype_bytes(a->dtype);
    const void *x = mlc__at(a->logits, r * a->row, size);
    const int64_t label = a->labels[r * a->label_stride];
    const double max = mlc__run(j->f->max, x, a->c, -MLC__INF);
    const bool good = max - max == 0.0;          /* +inf, a NaN, nothing but -inf: NaN */
    const double shift = good ? max : 0.0;
    const double log_sum = good ? log(j->f->sum_exp(x, a->c, shift)) : MLC__NAN;
    double loss = log_sum - (mlc__elem(x, label, a->dtype) - shift);
    mlc__elem_put(a->lse, r, a->dtype, shift); /* apart: huge logits must not drown it */
    mlc__elem_put(a->lse, a->n + r, a->dtype, log_sum);
    if (a->smoothing != 0.0) {
        const double mean = mlc__run(j->f->sum, x, a->c, 0.0) / (double)a->c;
        loss = (1.0 - a->smoothing) * loss + a->smoothing * (log_sum - (mean - shift));
    }
    return loss;
}

/* ignore_index may be any integer, also one that is a class: then the class is ignored. */
MLC__INLINE bool mlc__xent_counts(const struct mlc_k_xent *a, int64_t r)
{
    return !(a->has_ignore && a->labels[r * a->label_stride] == a->ignore);
}

/* An ignored row: its statistics are defined, too. */
static double mlc__xent_skip(const struct mlc_k_xent *a, int64_t r)
{
    mlc__elem_put(a->lse, r, a->dtype, 0.0);
    mlc__elem_put(a->lse, a->n + r, a->dtype, 0.0);
    return 0.0;
}

/* Rows of a chunk: about 4096 logits, whatever the number of threads. */
MLC__INLINE int64_t mlc__xent_rows(int64_t c) { return mlc__max(1, 4096 / mlc__max(1, c)); }

static void mlc__xent_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__xent_job *j = MLC__CAST(const mlc__xent_job *, arg);
    const int64_t rows = mlc__xent_rows(j->a->c);
    (void)worker;
    for (int64_t r = chunk * rows; r < mlc__min(j->a->n, (chunk + 1) * rows); r++)
        j->rows[r] = mlc__xent_counts(j->a, r) ? mlc__xent_row(j, r) : mlc__xent_skip(j->a, r);
}

static size_t mlc__k_xent_workspace(void *dev, const struct mlc_k_xent *a)
{
    (void)dev;
    return (size_t)a->n * sizeof(double);
}

/* norm is what dloss has to be divided by in backward: the number of rows that count for a mean,
 * else 1. No row that counts makes a mean NaN, as in PyTorch. */
static mlc_status mlc__xent_run(void *dev, const struct mlc_k_xent *a, const mlc__row_fns *f)
{
    mlc__xent_job j = { a, &f[a->dtype == MLC_F64],
                        MLC__CAST(double *, a->workspace) };
    double norm = 1.0;
    int64_t counted = 0;
    if (a->workspace_bytes < (size_t)a->n * sizeof(double)) return MLC_ERR_INTERNAL;
    for (int64_t r = 0; r < a->n; r++) {
        const int64_t label = a->labels[r * a->label_stride];
        if (!mlc__xent_counts(a, r)) continue;
        counted++;
        if (label >= 0 && label < a->c) continue;
        if (a->error[0] == 0) {
            a->error[0] = MLC_K_ERROR_LABEL;
            a->error[1] = r;
            a->error[2] = label;
            a->error[3] = a->c;
        }
        return MLC_OK;                 /* the context reads the word */
    }
    const int64_t rows = mlc__xent_rows(a->c);
    mlc__parallel(dev, mlc__div_up(a->n, rows), 2.0 * (double)a->n * (double)a->c, mlc__xent_chunk,
                  &j);
    if (a->reduction == MLC_REDUCTION_MEAN) norm = (double)counted;
    mlc__elem_put(a->norm, 0, a->dtype, norm);
    if (a->reduction == MLC_REDUCTION_NONE)
        for (int64_t r = 0; r < a->n; r++) mlc__elem_put(a->loss, r, a->dtype, j.rows[r]);
    else
        mlc__elem_put(a->loss, 0, a->dtype,
                      mlc__run(mlc__add_f64_scalar, j.rows, a->n, 0.0) / norm);
    return MLC_OK;
}

typedef struct mlc__xent_grad_job {
    const struct mlc_k_xent_grad *a;
    const mlc__row_fns *f;
} mlc__xent_grad_job;

/* Softmax of a row again from its logits and two numbers. A row that does not count becomes 0. */
static void mlc__xent_grad_row(const mlc__xent_grad_job *j, int64_t r)
{
    const struct mlc_k_xent_grad *a = j->a;
    const size_t size = mlc_dtype_bytes(a->dtype);
    const int64_t label = a->labels[r * a->label_stride];
    void *dx = MLC__CAST(char *, a->dx) + (size_t)r * (size_t)a->dx_row * size;
    /* A label out of range is forward's to report, on a device perhaps not yet: the row is passed
     * over. */
    const bool counts = !(a->has_ignore && label == a->ignore) && label >= 0 && label < a->c;
    if (!counts) {
        if (!a->accumulate) memset(dx, 0, (size_t)a->c * size);
        return;
    }
    const double log_sum = mlc__elem(a->lse, a->n + r, a->dtype);
    double scale = mlc__elem(a->dy, r * a->dy_stride, a->dtype) / mlc__elem(a->norm, 0, a->dtype);
    if (log_sum != log_sum) scale = log_sum;     /* a row of NaN, whatever is in it */
    j->f->xent_line(dx, mlc__at(a->logits, r * a->row, size), a->c,
                    mlc__elem(a->lse, r, a->dtype), log_sum, a->smoothing / (double)a->c, scale,
                    a->accumulate != 0);
    mlc__elem_put(dx, label, a->dtype,
                  mlc__elem(dx, label, a->dtype) - (1.0 - a->smoothing) * scale);
}

static void mlc__xent_grad_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__xent_grad_job *j = MLC__CAST(const mlc__xent_grad_job *, arg);
    const int64_t rows = mlc__xent_rows(j->a->c);
    (void)worker;
    for (int64_t r = chunk * rows; r < mlc__min(j->a->n, (chunk + 1) * rows); r++)
        mlc__xent_grad_row(j, r);
}

static mlc_status mlc__xent_grad_run(void *dev, const struct mlc_k_xent_grad *a,
                                     const mlc__row_fns *f)
{
    mlc__xent_grad_job j = { a, &f[a->dtype == MLC_F64] };
    const int64_t rows = mlc__xent_rows(a->c);
    mlc__parallel(dev, mlc__div_up(a->n, rows), 2.0 * (double)a->n * (double)a->c,
                  mlc__xent_grad_chunk, &j);
    return MLC_OK;
}

/* -- softmax and norms: drivers -- */

/* Rows of a call: size of an element, its wide form, whether it is its own (f32, f64). */
typedef struct mlc__rows {
    const mlc__row_fns   *f;
    const mlc__half_fns  *half;
    mlc_dtype             dtype, wide;
    int64_t               size, n;     /* n: elements of a row */
} mlc__rows;

static mlc__rows mlc__rows_of(mlc_dtype dtype, int64_t n, const mlc__row_fns *f,
                              const mlc__half_fns *half)
{
    const mlc__rows k = { &f[dtype == MLC_F64], half, dtype,
                          dtype == MLC_F64 ? MLC_F64 : MLC_F32, (int64_t)mlc_dtype_bytes(dtype),
                          n };
    return k;
}

/* A tile of a row. */
typedef struct mlc__row_tile { uint64_t v[MLC__GATHER_BYTES / 8]; } mlc__row_tile;

/* Can kernels read and write rows with this step as they lie? */
MLC__INLINE bool mlc__row_lies(const mlc__rows *k, int64_t step)
{
    return (step == 1 || k->n == 1) && k->dtype == k->wide;
}

/* Elements i .. i + n of a row, as they lie or in the tile. */
static const void *mlc__row_part(const mlc__rows *k, mlc__row_tile *tile, const char *row,
                                 int64_t step, int64_t i, int64_t n)
{
    if (!row) return NULL;
    const char *at = row + i * step * k->size;
    if (mlc__row_lies(k, step)) return at;
    mlc__load_wide(tile->v, k->wide, at, k->dtype, step, n, k->half);
    return tile->v;
}

/* Writes (adds) them from a tile of wide elements, which it may change. */
static void mlc__row_put(const mlc__rows *k, char *row, int64_t step, int64_t i, int64_t n,
                         mlc__row_tile *tile, bool accumulate)
{
    char *at = row + i * step * k->size;
    mlc__row_tile old;
    if (accumulate) {
        const mlc__row_line plain = { 0.0, 1.0, 0.0 };
        mlc__load_wide(old.v, k->wide, at, k->dtype, step, n, k->half);
        k->f->affine(tile->v, tile->v, NULL, old.v, n, &plain);
    }
    void *dense = step == 1 ? (void *)at : (void *)old.v;
    mlc__cast_dense(dense, k->dtype, tile->v, k->wide, n, k->half);
    if (step != 1) mlc__scatter(at, step, old.v, n, (size_t)k->size);
}

typedef struct mlc__softmax_job {
    mlc__rows   k;
    const struct mlc_k_softmax *a;
} mlc__softmax_job;

/* A NaN, +inf or nothing but -inf: every element NaN. */
static void mlc__softmax_row(const mlc__softmax_job *j, char *out, const char *in)
{
    const mlc__rows *k = &j->k;
    const int64_t step = j->a->in_stride[j->a->axis], to = j->a->out_stride[j->a->axis];
    const bool direct = mlc__row_lies(k, step) && mlc__row_lies(k, to);
    const int64_t part = direct ? k->n : mlc__gather_step((size_t)k->size);
    mlc__row_tile tile, made;
    mlc__acc most = { -MLC__INF, 0.0, 0 };
    double total = 0.0;
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        k->f->max(&most, mlc__row_part(k, &tile, in, step, i, n), n, 1.0);
    }
    const double max = mlc__acc_value(&most);
    const bool good = max - max == 0.0;
    for (int64_t i = 0; good && i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        const void *x = mlc__row_part(k, &tile, in, step, i, n);
        total += direct && !j->a->log ? k->f->exp_sum(out, x, n, max) : k->f->sum_exp(x, n, max);
    }
    const bool plain = j->a->log || !good;
    const mlc__row_line line = { plain ? (good ? max : MLC__NAN) : 0.0, plain ? 1.0 : 1.0 / total,
                                 plain && good ? -log(total) : 0.0 };
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        void *o = direct ? (void *)out : (void *)made.v;
        const void *x = direct && !plain ? (const void *)out
                                         : mlc__row_part(k, &tile, in, step, i, n);
        if (!direct && !plain) { k->f->exp_sum(made.v, x, n, max); x = made.v; }
        k->f->affine(o, x, NULL, NULL, n, &line);
        if (!direct) mlc__row_put(k, out, to, i, n, &made, false);
    }
}

static void mlc__softmax_lines(const void *args, const int64_t *offset, const int64_t *stride,
                               int64_t lines)
{
    const mlc__softmax_job *j = MLC__CAST(const mlc__softmax_job *, args);
    for (int64_t l = 0; l < lines; l++)
        mlc__softmax_row(j, MLC__CAST(char *, j->a->out) + (offset[0] + l * stride[0]) * j->k.size,
                         MLC__CAST(const char *, j->a->in) +
                             (offset[1] + l * stride[1]) * j->k.size);
}

static mlc_status mlc__softmax_run(void *dev, const struct mlc_k_softmax *a, const mlc__row_fns *f,
                                   const mlc__half_fns *half)
{
    const mlc__softmax_job j = { mlc__rows_of(a->dtype, a->shape[a->axis], f, half), a };
    const int64_t *strides[2] = { a->out_stride, a->in_stride };
    if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (j.k.n > 0)
        mlc__lines_run(dev, a->ndim, a->shape, a->axis, 2, strides, mlc__softmax_lines, &j);
    return MLC_OK;
}

typedef struct mlc__softmax_grad_job {
    mlc__rows k;
    const struct mlc_k_softmax_grad *a;
} mlc__softmax_grad_job;

static void mlc__softmax_grad_row(const mlc__softmax_grad_job *j, char *dx, const char *y,
                                  const char *dy)
{
    const mlc__rows *k = &j->k;
    const struct mlc_k_softmax_grad *a = j->a;
    const int64_t to = a->out_stride[a->axis], ys = a->y_stride[a->axis];
    const int64_t ds = a->dy_stride[a->axis];
    const bool direct = !a->accumulate && mlc__row_lies(k, to) && mlc__row_lies(k, ys) &&
                        mlc__row_lies(k, ds);
    const int64_t part = direct ? k->n : mlc__gather_step((size_t)k->size);
    mlc__row_tile tile[3];
    double total = 0.0;
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        const void *d = mlc__row_part(k, &tile[1], dy, ds, i, n);
        total += a->log ? mlc__run(k->f->sum, d, n, 0.0)
                        : k->f->row_dot(mlc__row_part(k, &tile[0], y, ys, i, n), d, n);
    }
    /* A row of logarithms is NaN as a whole, or not at all. */
    const double first = mlc__elem(mlc__row_part(k, &tile[0], y, ys, 0, 1), 0, k->wide);
    if (first != first) total = first;
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        const void *v = mlc__row_part(k, &tile[0], y, ys, i, n);
        const void *d = mlc__row_part(k, &tile[1], dy, ds, i, n);
        k->f->soft_grad(direct ? (void *)dx : (void *)tile[2].v, v, d, n, total, a->log != 0);
        if (!direct) mlc__row_put(k, dx, to, i, n, &tile[2], a->accumulate != 0);
    }
}

static void mlc__softmax_grad_lines(const void *args, const int64_t *offset, const int64_t *stride,
                                    int64_t lines)
{
    const mlc__softmax_grad_job *j = MLC__CAST(const mlc__softmax_grad_job *, args);
    const int64_t size = j->k.size;
    for (int64_t l = 0; l < lines; l++)
        mlc__softmax_grad_row(j, MLC__CAST(char *, j->a->out) + (offset[0] + l * stride[0]) * size,
                              MLC__CAST(const char *, j->a->y) +
                                  (offset[1] + l * stride[1]) * size,
                              MLC__CAST(const char *, j->a->dy) +
                                  (offset[2] + l * stride[2]) * size);
}

static mlc_status mlc__softmax_grad_run(void *dev, const struct mlc_k_softmax_grad *a,
                                        const mlc__row_fns *f, const mlc__half_fns *half)
{
    const mlc__softmax_grad_job j = { mlc__rows_of(a->dtype, a->shape[a->axis], f, half), a };
    const int64_t *strides[3] = { a->out_stride, a->y_stride, a->dy_stride };
    if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    if (j.k.n > 0)
        mlc__lines_run(dev, a->ndim, a->shape, a->axis, 3, strides, mlc__softmax_grad_lines, &j);
    return MLC_OK;
}

/* Strides of the statistics over the axes of the rows: three numbers each, row-major. */
static void mlc__stat_strides(int32_t ndim, const int64_t *shape, int64_t *stride)
{
    int64_t next = 3;
    stride[ndim - 1] = 0;
    for (int32_t d = ndim - 2; d >= 0; d--) { stride[d] = next; next *= shape[d]; }
}

/* shift is the mean as the dtype has it, what is left of the mean goes to base. */
MLC__INLINE mlc__row_line mlc__norm_line(const double *stat)
{
    const mlc__row_line line = { stat[0], stat[2], -stat[1] * stat[2] };
    return line;
}

typedef struct mlc__norm_job {
    mlc__rows k;
    const struct mlc_k_norm *a;
} mlc__norm_job;

static void mlc__norm_row(const mlc__norm_job *j, char *out, const char *in, double *stat)
{
    const mlc__rows *k = &j->k;
    const struct mlc_k_norm *a = j->a;
    const int64_t step = a->in_stride[a->ndim - 1], to = a->out_stride[a->ndim - 1];
    const bool direct = mlc__row_lies(k, step) && mlc__row_lies(k, to);
    const int64_t part = direct ? k->n : mlc__gather_step((size_t)k->size);
    mlc__row_tile tile[4];
    double sum = 0.0, squares = 0.0, rest = 0.0;
    for (int64_t i = 0; !a->rms && i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        sum += mlc__run(k->f->sum, mlc__row_part(k, &tile[0], in, step, i, n), n, 0.0);
    }
    const double mean = sum / (double)k->n;
    stat[0] = k->wide == MLC_F64 ? mean : (double)(float)mean;
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        squares += k->f->row_squares(mlc__row_part(k, &tile[0], in, step, i, n), n, stat[0]);
    }
    /* Far from 0 the sum was rounded by more than the row varies: sums of differences are exact. */
    const bool far = squares < 0.0625 * mean * mean * (double)k->n;
    for (int64_t i = 0; far && i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        rest += k->f->row_less(mlc__row_part(k, &tile[0], in, step, i, n), n, stat[0]);
    }
    stat[1] = far ? rest / (double)k->n : mean - stat[0];
    stat[2] = 1.0 / sqrt(squares / (double)k->n - stat[1] * stat[1] + a->eps);
    const mlc__row_line line = mlc__norm_line(stat);
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        const void *x = mlc__row_part(k, &tile[0], in, step, i, n);
        const void *w = mlc__row_part(k, &tile[1], MLC__CAST(const char *, a->weight), 1, i, n);
        const void *b = mlc__row_part(k, &tile[2], MLC__CAST(const char *, a->bias), 1, i, n);
        k->f->affine(direct ? (void *)out : (void *)tile[3].v, x, w, b, n, &line);
        if (!direct) mlc__row_put(k, out, to, i, n, &tile[3], false);
    }
}

static void mlc__norm_lines(const void *args, const int64_t *offset, const int64_t *stride,
                            int64_t lines)
{
    const mlc__norm_job *j = MLC__CAST(const mlc__norm_job *, args);
    for (int64_t l = 0; l < lines; l++)
        mlc__norm_row(j, MLC__CAST(char *, j->a->out) + (offset[0] + l * stride[0]) * j->k.size,
                      MLC__CAST(const char *, j->a->in) + (offset[1] + l * stride[1]) * j->k.size,
                      j->a->stat + offset[2] + l * stride[2]);
}

static mlc_status mlc__norm_run(void *dev, const struct mlc_k_norm *a, const mlc__row_fns *f,
                                const mlc__half_fns *half)
{
    const mlc__norm_job j = { mlc__rows_of(a->dtype, a->shape[a->ndim - 1], f, half), a };
    int64_t stat[MLC_MAX_DIMS];
    const int64_t *strides[3] = { a->out_stride, a->in_stride, stat };
    if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    mlc__stat_strides(a->ndim, a->shape, stat);
    if (j.k.n > 0)
        mlc__lines_run(dev, a->ndim, a->shape, a->ndim - 1, 3, strides, mlc__norm_lines, &j);
    return MLC_OK;
}

#define MLC__NORM_ROWS 16              /* whose columns are added up in T, then in f64 */
#define MLC__NORM_PARTS 32             /* of the rows, each with sums of its own, at most */

/* Rows across the loop, by part; sums of a part in the workspace: [2,n] of f64, [2,n] of T. */
typedef struct mlc__norm_grad_job {
    mlc__rows k;
    const struct mlc_k_norm_grad *a;
    mlc__loop across;
    int64_t   rows, per_part, parts;
    bool      columns;                 /* dweight or dbias is wanted */
} mlc__norm_grad_job;

MLC__INLINE int64_t mlc__norm_part_doubles(const mlc__norm_grad_job *j) { return 4 * j->k.n; }

static void mlc__norm_grad_row(const mlc__norm_grad_job *j, char *dx, const char *in,
                               const char *dy, const double *stat, double *sums)
{
    const mlc__rows *k = &j->k;
    const struct mlc_k_norm_grad *a = j->a;
    const int32_t last = a->ndim - 1;
    const int64_t to = a->dx_stride[last], is = a->in_stride[last], ds = a->dy_stride[last];
    const mlc__row_line line = mlc__norm_line(stat);
    const bool lies = mlc__row_lies(k, is) && mlc__row_lies(k, ds);
    const bool direct = lies && !a->dx_accumulate && mlc__row_lies(k, to);
    const int64_t part = lies && (direct || !a->dx) ? k->n : mlc__gather_step((size_t)k->size);
    char *column = (char *)sums;       /* T sums lie behind those of f64 */
    mlc__row_tile tile[4];
    double means[2] = { 0.0, 0.0 };
    for (int64_t i = 0; i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        const void *x = mlc__row_part(k, &tile[0], in, is, i, n);
        const void *d = mlc__row_part(k, &tile[1], dy, ds, i, n);
        const void *w = mlc__row_part(k, &tile[2], MLC__CAST(const char *, a->weight), 1, i, n);
        double some[2];
        if (a->dx) {
            k->f->norm_sums(some, x, d, w, n, &line);
            means[0] += some[0];
            means[1] += some[1];
        }
        if (!j->columns) continue;
        const int64_t wide = (int64_t)mlc_dtype_bytes(k->wide);
        k->f->norm_columns(column + (16 * k->n) + i * wide, column + 16 * k->n + (k->n + i) * wide,
                           x, d, n, &line);
    }
    means[0] = a->rms ? 0.0 : means[0] / (double)k->n;
    means[1] /= (double)k->n;
    for (int64_t i = 0; a->dx && i < k->n; i += part) {
        const int64_t n = mlc__min(part, k->n - i);
        const void *x = mlc__row_part(k, &tile[0], in, is, i, n);
        const void *d = mlc__row_part(k, &tile[1], dy, ds, i, n);
        const void *w = mlc__row_part(k, &tile[2], MLC__CAST(const char *, a->weight), 1, i, n);
        k->f->norm_grad(direct ? (void *)dx : (void *)tile[3].v, x, d, w, n, &line, means);
        if (!direct) mlc__row_put(k, dx, to, i, n, &tile[3], a->dx_accumulate != 0);
    }
}

/* The sums in T go to those in f64 and begin again. */
static MLC__OPT void mlc__norm_flush(double *sums, int64_t n, bool f64)
{
    double *t = sums + 2 * n;
    float *s = MLC__CAST(float *, (void *)t);
    if (f64) { MLC__INDEPENDENT for (int64_t i = 0; i < 2 * n; i++) sums[i] += t[i]; }
    else { MLC__INDEPENDENT for (int64_t i = 0; i < 2 * n; i++) sums[i] += (double)s[i]; }
    memset(t, 0, (size_t)(2 * n) * (f64 ? 8 : 4));
}

static void mlc__norm_grad_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__norm_grad_job *j = MLC__CAST(const mlc__norm_grad_job *, arg);
    const struct mlc_k_norm_grad *a = j->a;
    const mlc__loop *l = &j->across;
    const int64_t end = mlc__min(j->rows, (chunk + 1) * j->per_part), size = j->k.size;
    double *sums = MLC__CAST(double *, a->workspace);
    (void)worker;
    if (j->columns) {
        sums += chunk * mlc__norm_part_doubles(j);
        memset(sums, 0, (size_t)mlc__norm_part_doubles(j) * sizeof(double));
    }
    for (int64_t r = chunk * j->per_part; r < end; r++) {
        int64_t offset[MLC__LOOP_OPERANDS];
        const int64_t in_row = r % l->n;
        mlc__loop_row(l, r / l->n, offset);
        for (int p = 0; p < 4; p++) offset[p] += in_row * l->stride[p][l->ndim - 1];
        mlc__norm_grad_row(j, a->dx ? MLC__CAST(char *, a->dx) + offset[0] * size : NULL,
                           MLC__CAST(const char *, a->in) + offset[1] * size,
                           MLC__CAST(const char *, a->dy) + offset[2] * size, a->stat + offset[3],
                           sums);
        if (j->columns && (r + 1 == end || (r + 1) % MLC__NORM_ROWS == 0))
            mlc__norm_flush(sums, j->k.n, j->k.wide == MLC_F64);
    }
}

/* dweight (which 0) or dbias (1): the sums of the parts, in order. */
static void mlc__norm_gather(const mlc__norm_grad_job *j, int which, void *out, int64_t stride,
                             bool accumulate)
{
    const int64_t step = mlc__gather_step((size_t)j->k.size);
    const double *sums = MLC__CAST(const double *, j->a->workspace);
    if (j->parts) sums += which * j->k.n;          /* without rows there is no workspace */
    for (int64_t i = 0; i < j->k.n; i += step) {
        const int64_t n = mlc__min(step, j->k.n - i);
        mlc__row_tile tile;
        double total[MLC__GATHER];
        for (int64_t e = 0; e < n; e++) total[e] = 0.0;
        for (int64_t p = 0; p < j->parts; p++)
            for (int64_t e = 0; e < n; e++)
                total[e] += sums[p * mlc__norm_part_doubles(j) + i + e];
        for (int64_t e = 0; e < n; e++) mlc__elem_put(tile.v, e, j->k.wide, total[e]);
        mlc__row_put(&j->k, MLC__CAST(char *, out), stride, i, n, &tile, accumulate);
    }
}

/* False if there are no rows. */
static bool mlc__norm_grad_plan(mlc__norm_grad_job *j, const struct mlc_k_norm_grad *a)
{
    int64_t stat[MLC_MAX_DIMS];
    const int64_t *strides[4] = { a->dx ? a->dx_stride : a->in_stride, a->in_stride, a->dy_stride,
                                  stat };
    j->a = a;
    j->columns = a->dweight || a->dbias;
    mlc__stat_strides(a->ndim, a->shape, stat);
    j->rows = j->parts = 0;
    if (!mlc__loop_make(&j->across, a->ndim - 1, a->shape, 4, strides)) return false;
    j->rows = j->across.rows * j->across.n;
    j->per_part = mlc__max(mlc__div_up(j->rows, MLC__NORM_PARTS),
                           mlc__max(1, 4096 / mlc__max(1, j->k.n)));
    if (j->columns)
        j->per_part = mlc__div_up(j->per_part, MLC__NORM_ROWS) * MLC__NORM_ROWS;
    j->parts = mlc__div_up(j->rows, j->per_part);
    return true;
}

static size_t mlc__k_norm_grad_workspace(void *dev, const struct mlc_k_norm_grad *a)
{
    mlc__norm_grad_job j;
    (void)dev;
    j.k = mlc__rows_of(a->dtype, a->shape[a->ndim - 1], NULL, NULL);
    if (!mlc__norm_grad_plan(&j, a) || !j.columns) return 0;
    return (size_t)(j.parts * mlc__norm_part_doubles(&j)) * sizeof(double);
}

static mlc_status mlc__norm_grad_run(void *dev, const struct mlc_k_norm_grad *a,
                                     const mlc__row_fns *f, const mlc__half_fns *half)
{
    mlc__norm_grad_job j;
    if (!mlc__is_float(a->dtype)) return MLC_ERR_UNSUPPORTED;
    j.k = mlc__rows_of(a->dtype, a->shape[a->ndim - 1], f, half);
    if (mlc__norm_grad_plan(&j, a)) {
        if (a->workspace_bytes < mlc__k_norm_grad_workspace(dev, a)) return MLC_ERR_INTERNAL;
        mlc__parallel(dev, j.parts, 1.0 * (double)j.rows * (double)j.k.n, mlc__norm_grad_chunk,
                      &j);
    }
    if (a->dweight)
        mlc__norm_gather(&j, 0, a->dweight, a->dweight_stride, a->dweight_accumulate != 0);
    if (a->dbias) mlc__norm_gather(&j, 1, a->dbias, a->dbias_stride, a->dbias_accumulate != 0);
    return MLC_OK;
}


/* @@ IMPL.KERNELS.OPTIM ---------------------------------- one pass over parameters and state
 * One pass reads g and reads and writes p, m and v, by runs of whole parameters with the padding
 * between them, which nobody else reads. What changes from step to step comes through
 * mlc_optim_step in device memory, so that a captured sequence of launches can be replayed.
 * Constants of a step are made in f64 and rounded once. Square root and division are exact: from
 * the L3 cache on a pass waits for memory longer than for them. An element's inputs are all read
 * before one is written, as the arrays may lie at equal offsets in their pages, where the
 * processor takes a read for one of what was just written. */

/* g is read once; m and v are NULL where the rule keeps none. Order of operations as PyTorch's. */
#define MLC__SGD_TEXT(T) \
    T *p = MLC__CAST(T *, a->p) + from, *m = MLC__CAST(T *, a->m); \
    const T *g = MLC__CAST(const T *, a->g) + from; \
    const T lr = (T)a->step->lr, wd = (T)a->step->weight_decay, mom = (T)a->momentum; \
    const T fresh = a->step->first ? (T)1 : (T)(1.0 - a->dampening); \
    const T kept = a->step->first ? (T)0 : mom, scale = (T)a->step->grad_scale; \
    if (!m) { \
        MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) p[i] -= lr * (scale * g[i] + wd * p[i]); \
        return; \
    } \
    const bool nesterov = a->nesterov; \
    m += from; \
    MLC__INDEPENDENT for (int64_t i = 0; i < n; i++) { \
        const T old = p[i], d = scale * g[i] + wd * old, b = kept * m[i] + fresh * d; \
        m[i] = b; \
        p[i] = old - lr * (nesterov ? d + mom * b : b); \
    }

#define MLC__ADAM_LANES 16             /* a cache line of f32 from each array                  */

/* Four lines on: hardware fetches ahead by itself, but from main memory a tenth is won. An address
 * past the end of an array does no harm. */
#define MLC__SOON(x, i) \
    __builtin_prefetch((const void *)((uintptr_t)(x) + (size_t)(i) * sizeof *(x) + 256))

/* The bias corrections are folded: m^/(sqrt v^ + eps) with v^ = v/bias2 and m^ = m/bias1 is rate
 * m/(sqrt v root + eps). decoupled shrinks p (AdamW), else the decay is part of g. Moments of
 * gradients that stay 0 become 0: written m + c1 (d - m), m would stop at the last number of which
 * c1 times it is not flushed. */
#define MLC__ADAM_ONE(T, ROOT) \
    const T old = p[i], d = scale * g[i] + couple * old; \
    const T mi = b1 * m[i] + c1 * d, vi = b2 * v[i] + c2 * d * d; \
    m[i] = mi; \
    v[i] = vi; \
    p[i] = shrink * old - rate * (mi / (ROOT(vi) * root + eps));
#define MLC__ADAM_TEXT(T, ROOT) \
    T *p = MLC__CAST(T *, a->p) + from, *m = MLC__CAST(T *, a->m) + from; \
    T *v = MLC__CAST(T *, a->v) + from; \
    const T *g = MLC__CAST(const T *, a->g) + from; \
    const struct mlc_optim_step s = *a->step; \
    const T b1 = (T)a->beta1, c1 = (T)(1.0 - a->beta1); \
    const T b2 = (T)a->beta2, c2 = (T)(1.0 - a->beta2); \
    const T shrink = (T)(a->decoupled ? 1.0 - s.lr * s.weight_decay : 1.0); \
    const T couple = (T)(a->decoupled ? 0.0 : s.weight_decay), scale = (T)s.grad_scale; \
    const T rate = (T)(s.lr / s.bias1), eps = (T)a->eps, root = (T)(1.0 / sqrt(s.bias2)); \
    int64_t at = 0; \
    for (; at + MLC__ADAM_LANES <= n; at += MLC__ADAM_LANES) { \
        MLC__SOON(p, at); \
        MLC__SOON(g, at); \
        MLC__SOON(m, at); \
        MLC__SOON(v, at); \
        MLC__INDEPENDENT for (int64_t i = at; i < at + MLC__ADAM_LANES; i++) { \
            MLC__ADAM_ONE(T, ROOT) \
        } \
    } \
    for (int64_t i = at; i < n; i++) { \
        __asm__ volatile("");          /* few elements: not worth vectors */ \
        MLC__ADAM_ONE(T, ROOT) \
    }

/* Updates elements from .. from + n of a run. */
typedef void (*mlc__optim_fn)(const struct mlc_k_optim *a, int64_t from, int64_t n);

MLC__BODY void mlc__sgd_f32_body(const struct mlc_k_optim *a, int64_t from, int64_t n)
{
    MLC__SGD_TEXT(float)
}
MLC__BODY void mlc__adam_f32_body(const struct mlc_k_optim *a, int64_t from, int64_t n)
{
    MLC__ADAM_TEXT(float, sqrtf)
}
static MLC__OPT void mlc__sgd_f64(const struct mlc_k_optim *a, int64_t from, int64_t n)
{
    MLC__SGD_TEXT(double)
}
static MLC__OPT void mlc__adam_f64(const struct mlc_k_optim *a, int64_t from, int64_t n)
{
    MLC__ADAM_TEXT(double, sqrt)
}

#define MLC__STAMP_OPTIM(isa) \
    MLC__AT_##isa \
    static void mlc__sgd_f32_##isa(const struct mlc_k_optim *a, int64_t from, int64_t n) \
    { mlc__sgd_f32_body(a, from, n); } \
    MLC__AT_##isa \
    static void mlc__adam_f32_##isa(const struct mlc_k_optim *a, int64_t from, int64_t n) \
    { mlc__adam_f32_body(a, from, n); }
MLC__EACH_ISA(MLC__STAMP_OPTIM)

typedef struct mlc__optim_job { const struct mlc_k_optim *a; mlc__optim_fn fn; } mlc__optim_job;

static void mlc__optim_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const mlc__optim_job *j = MLC__CAST(const mlc__optim_job *, arg);
    (void)worker;
    j->fn(j->a, chunk * MLC__GRAIN, mlc__min(MLC__GRAIN, j->a->n - chunk * MLC__GRAIN));
}

/* skip is set by whoever decides on the device that a step must not happen. */
static mlc_status mlc__optim_run(void *dev, const struct mlc_k_optim *a, mlc__optim_fn sgd_f32,
                                 mlc__optim_fn adam_f32)
{
    mlc__optim_job j = { a, NULL };
    if (a->step->skip) return MLC_OK;
    if (a->rule == MLC_RULE_SGD) j.fn = a->dtype == MLC_F64 ? mlc__sgd_f64 : sgd_f32;
    else j.fn = a->dtype == MLC_F64 ? mlc__adam_f64 : adam_f32;
    mlc__parallel(dev, mlc__div_up(a->n, MLC__GRAIN), 0.6 * (double)a->n, mlc__optim_chunk, &j);
    return MLC_OK;
}

/* @@ IMPL.DISPATCH --------------------------------------- kernels of the CPU, by ISA level
 * Kernels whose inner loops differ between levels are stamped here from what a level brings: its
 * map, sum, tile. Then two lines a kernel name its function and its workspace query at a level.
 * From them come a column per kernel, mlc__cpu_NAME[level], through which operations call, so that
 * the linker drops kernels that no operation of the program uses; and a row per level, all kernels
 * of it, for mlc_cpu_kernels. All of it is constant: contexts of different levels live side by
 * side. */

/* The tiles of a level: rows, columns, nanoseconds of a multiply-add, the wide and the narrow. */
#define MLC__TILE_F32_avx2   6, 16, 0.03, mlc__tile_f32_avx2, NULL
#define MLC__TILE_F64_avx2   6, 8, 0.06, mlc__tile_f64_avx2, NULL
#define MLC__TILE_F32_neon   8, 12, 0.05, mlc__tile_f32_neon, NULL
#define MLC__TILE_F64_neon   8, 6, 0.1, mlc__tile_f64_neon, NULL
#define MLC__TILE_F32_avx512 14, 32, 0.02, mlc__tile_f32_avx512, mlc__narrow_f32_avx512
#define MLC__TILE_F64_avx512 14, 16, 0.04, mlc__tile_f64_avx512, mlc__narrow_f64_avx512
#define MLC__TILE_F32_scalar 4, 8, 0.15, mlc__tile_f32_scalar, NULL
#define MLC__TILE_F64_scalar 4, 4, 0.3, mlc__tile_f64_scalar, NULL

#define MLC__STAMP_KERNELS(isa) \
    static const mlc__gemm_fns mlc__gemm_fns_##isa[2] = { \
        { MLC__TILE_F32_##isa, mlc__sink_f32_##isa, mlc__dot_f32_##isa, \
          mlc__axpy_f32_##isa, mlc__map_f32_##isa, &mlc__half_fns_##isa }, \
        { MLC__TILE_F64_##isa, mlc__sink_f64_##isa, mlc__dot_f64, \
          mlc__axpy_f64, mlc__map_f64_##isa, NULL } }; \
    static mlc_status mlc__k_map_##isa(void *dev, const struct mlc_k_map *a) \
    { \
        const mlc__map_fn fn = a->dtype == MLC_F64 ? mlc__map_f64_##isa : mlc__map_f32_##isa; \
        return mlc__map_run(dev, a, fn, fn, &mlc__half_fns_##isa); \
    } \
    static mlc_status mlc__k_math_##isa(void *dev, const struct mlc_k_math *a) \
    { \
        const bool f64 = a->map.dtype == MLC_F64; \
        return mlc__map_run(dev, &a->map, f64 ? mlc__math_f64 : mlc__math_f32_##isa, \
                            f64 ? mlc__map_f64_##isa : mlc__map_f32_##isa, \
                            &mlc__half_fns_##isa); \
    } \
    static mlc_status mlc__k_compare_##isa(void *dev, const struct mlc_k_compare *a) \
    { \
        return mlc__compare_run(dev, a, mlc__compare_f32_##isa, mlc__compare_bool_##isa, \
                                &mlc__half_fns_##isa); \
    } \
    static mlc_status mlc__k_where_##isa(void *dev, const struct mlc_k_where *a) \
    { return mlc__where_run(dev, a, mlc__where_##isa, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_cast_##isa(void *dev, const struct mlc_k_cast *a) \
    { return mlc__cast_run(dev, a, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_reduce_##isa(void *dev, const struct mlc_k_reduce *a) \
    { \
        return mlc__reduce_run_all(dev, a, mlc__join_float_##isa, &mlc__half_fns_##isa); \
    } \
    static const mlc__fold_fns mlc__fold_fns_##isa = \
        { mlc__join_##isa, mlc__map_f32_##isa, mlc__map_f64_##isa, mlc__math_f32_##isa, \
          &mlc__half_fns_##isa }; \
    static mlc_status mlc__k_fold_##isa(void *dev, const struct mlc_k_fold *a) \
    { return mlc__fold_run(dev, a, &mlc__fold_fns_##isa); } \
    static mlc_status mlc__k_argmax_##isa(void *dev, const struct mlc_k_argmax *a) \
    { return mlc__argmax_run(dev, a, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_scan_##isa(void *dev, const struct mlc_k_scan *a) \
    { return mlc__scan_run(dev, a, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_gemm_##isa(void *dev, const struct mlc_k_gemm *a) \
    { return mlc__gemm_run(dev, a, &mlc__gemm_fns_##isa[a->dtype == MLC_F64]); } \
    static size_t mlc__k_gemm_workspace_##isa(void *dev, const struct mlc_k_gemm *a) \
    { return mlc__gemm_workspace(dev, a, &mlc__gemm_fns_##isa[a->dtype == MLC_F64]); } \
    static mlc_status mlc__k_random_##isa(void *dev, const struct mlc_k_random *a) \
    { return mlc__random_run(dev, a, &mlc__random_fns_##isa); } \
    static mlc_status mlc__k_dropout_##isa(void *dev, const struct mlc_k_dropout *a) \
    { return mlc__dropout_run_all(dev, a, &mlc__random_fns_##isa); } \
    static mlc_status mlc__k_xent_##isa(void *dev, const struct mlc_k_xent *a) \
    { return mlc__xent_run(dev, a, mlc__row_fns_##isa); } \
    static mlc_status mlc__k_xent_grad_##isa(void *dev, const struct mlc_k_xent_grad *a) \
    { return mlc__xent_grad_run(dev, a, mlc__row_fns_##isa); } \
    static mlc_status mlc__k_softmax_##isa(void *dev, const struct mlc_k_softmax *a) \
    { return mlc__softmax_run(dev, a, mlc__row_fns_##isa, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_softmax_grad_##isa(void *dev, const struct mlc_k_softmax_grad *a) \
    { return mlc__softmax_grad_run(dev, a, mlc__row_fns_##isa, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_norm_##isa(void *dev, const struct mlc_k_norm *a) \
    { return mlc__norm_run(dev, a, mlc__row_fns_##isa, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_norm_grad_##isa(void *dev, const struct mlc_k_norm_grad *a) \
    { return mlc__norm_grad_run(dev, a, mlc__row_fns_##isa, &mlc__half_fns_##isa); } \
    static mlc_status mlc__k_optim_##isa(void *dev, const struct mlc_k_optim *a) \
    { return mlc__optim_run(dev, a, mlc__sgd_f32_##isa, mlc__adam_f32_##isa); }

MLC__EACH_ISA(MLC__STAMP_KERNELS)

/* The kernel of a level, and its workspace query; the comma is part of it. */
#define MLC__CPU_map(isa)          mlc__k_map_##isa,
#define MLC__CPU_map_ws(isa)       NULL,
#define MLC__CPU_cast(isa)         mlc__k_cast_##isa,
#define MLC__CPU_cast_ws(isa)      NULL,
#define MLC__CPU_reduce(isa)       mlc__k_reduce_##isa,
#define MLC__CPU_reduce_ws(isa)    mlc__k_reduce_workspace,
#define MLC__CPU_gemm(isa)         mlc__k_gemm_##isa,
#define MLC__CPU_gemm_ws(isa)      mlc__k_gemm_workspace_##isa,
#define MLC__CPU_fill(isa)         mlc__k_fill,
#define MLC__CPU_fill_ws(isa)      NULL,
#define MLC__CPU_random(isa)       mlc__k_random_##isa,
#define MLC__CPU_random_ws(isa)    NULL,
#define MLC__CPU_dropout(isa)      mlc__k_dropout_##isa,
#define MLC__CPU_dropout_ws(isa)   NULL,
#define MLC__CPU_xent(isa)         mlc__k_xent_##isa,
#define MLC__CPU_xent_ws(isa)      mlc__k_xent_workspace,
#define MLC__CPU_xent_grad(isa)    mlc__k_xent_grad_##isa,
#define MLC__CPU_xent_grad_ws(isa) NULL,
#define MLC__CPU_softmax(isa)      mlc__k_softmax_##isa,
#define MLC__CPU_softmax_ws(isa)   NULL,
#define MLC__CPU_softmax_grad(isa) mlc__k_softmax_grad_##isa,
#define MLC__CPU_softmax_grad_ws(isa) NULL,
#define MLC__CPU_norm(isa)         mlc__k_norm_##isa,
#define MLC__CPU_norm_ws(isa)      NULL,
#define MLC__CPU_norm_grad(isa)    mlc__k_norm_grad_##isa,
#define MLC__CPU_norm_grad_ws(isa) mlc__k_norm_grad_workspace,
#define MLC__CPU_fold(isa)         mlc__k_fold_##isa,
#define MLC__CPU_fold_ws(isa)      mlc__k_fold_workspace,
#define MLC__CPU_scan(isa)         mlc__k_scan_##isa,
#define MLC__CPU_scan_ws(isa)      NULL,
#define MLC__CPU_argmax(isa)       mlc__k_argmax_##isa,
#define MLC__CPU_argmax_ws(isa)    NULL,
#define MLC__CPU_take(isa)         mlc__k_take,
#define MLC__CPU_take_ws(isa)      NULL,
#define MLC__CPU_index(isa)        mlc__k_index,
#define MLC__CPU_index_ws(isa)     NULL,
#define MLC__CPU_nonzero(isa)      mlc__k_nonzero,
#define MLC__CPU_nonzero_ws(isa)   mlc__k_nonzero_workspace,
#define MLC__CPU_sort(isa)         mlc__k_sort,
#define MLC__CPU_sort_ws(isa)      mlc__k_sort_workspace,
#define MLC__CPU_multinomial(isa)  mlc__k_multinomial,
#define MLC__CPU_multinomial_ws(isa) mlc__k_multinomial_workspace,
#define MLC__CPU_band(isa)         mlc__k_band,
#define MLC__CPU_band_ws(isa)      NULL,
#define MLC__CPU_pad(isa)          mlc__k_pad,
#define MLC__CPU_pad_ws(isa)       NULL,
#define MLC__CPU_finite(isa)       mlc__k_finite,
#define MLC__CPU_finite_ws(isa)    NULL,
#define MLC__CPU_optim(isa)        mlc__k_optim_##isa,
#define MLC__CPU_optim_ws(isa)     NULL,
#define MLC__CPU_math(isa)         mlc__k_math_##isa,
#define MLC__CPU_math_ws(isa)      NULL,
#define MLC__CPU_compare(isa)      mlc__k_compare_##isa,
#define MLC__CPU_compare_ws(isa)   NULL,
#define MLC__CPU_where(isa)        mlc__k_where_##isa,
#define MLC__CPU_where_ws(isa)     NULL,

#define MLC__COLUMN(name) \
    static mlc_status (*const mlc__cpu_##name[])(void *, const struct mlc_k_##name *) = \
        { MLC__EACH_ISA(MLC__CPU_##name) }; \
    static size_t (*const mlc__cpu_##name##_workspace[])(void *, const struct mlc_k_##name *) = \
        { MLC__EACH_ISA(MLC__CPU_##name##_ws) };
MLC_KERNELS(MLC__COLUMN)

#define MLC__CELL_scalar(name) MLC__CPU_##name(scalar) MLC__CPU_##name##_ws(scalar)
#define MLC__CELL_avx2(name)   MLC__CPU_##name(avx2) MLC__CPU_##name##_ws(avx2)
#define MLC__CELL_avx512(name) MLC__CPU_##name(avx512) MLC__CPU_##name##_ws(avx512)
#define MLC__CELL_neon(name)   MLC__CPU_##name(neon) MLC__CPU_##name##_ws(neon)
#define MLC__ROW(isa) { MLC_KERNELS(MLC__CELL_##isa) },

/* Place of a level in the columns: MLC__EACH_ISA has them in this order. */
MLC__INLINE int mlc__level(mlc_isa isa)
{
    return isa == MLC_ISA_NEON ? 1 : (int)isa - (int)MLC_ISA_SCALAR;
}

/* A level over what this CPU has would be an illegal instruction: NULL. */
MLC_IMPL const mlc_kernels *mlc_cpu_kernels(mlc_isa isa)
{
    static const mlc_kernels rows[] = { MLC__EACH_ISA(MLC__ROW) };
    if (isa == MLC_ISA_AUTO) isa = mlc__isa_best((mlc_isa)(MLC_ISA_COUNT - 1));
    return isa > MLC_ISA_AUTO && isa < MLC_ISA_COUNT && (mlc__isa_levels() >> isa & 1)
        ? &rows[mlc__level(isa)] : NULL;
}

/* @@ IMPL.BACKEND ---------------------------------------- registered devices
 * The seam between operations and devices: mlc__run_NAME calls an entry of the context's kernel
 * table and turns its status into a message, mlc__scratch lends workspace, mlc__device_copy
 * crosses between host and device. Everything below this section that touches elements goes
 * through these. */

#define MLC__BACKENDS 8

/* The one mutable global. Entries are written once and never move; n is raised after its entry is
 * complete, so that readers need no lock. */
static struct { mlc_backend backend[MLC__BACKENDS]; int32_t n; int32_t lock; } mlc__registry;

/* name need not be terminated: it may be the front of "cuda:1". */
static const mlc_backend *mlc__backend_find(const char *name, size_t len)
{
    const int32_t n = __atomic_load_n(&mlc__registry.n, __ATOMIC_ACQUIRE);
    for (int32_t i = 0; i < n; i++) {
        const mlc_backend *b = &mlc__registry.backend[i];
        if (strlen(b->name) == len && memcmp(b->name, name, len) == 0) return b;
    }
    return NULL;
}

/* The struct is copied, the name it points to is not. abi and size catch objects built against
 * another header. */
MLC_IMPL mlc_status mlc_backend_register(const mlc_backend *b)
{
    mlc_status status = MLC_ERR_ARG;
    if (!b || b->abi != MLC_ABI || b->size != sizeof *b || !b->name || !b->open || !b->close ||
        !b->alloc || !b->release || !b->copy || !b->sync || !b->name[0] ||
        strchr(b->name, ':') || strcmp(b->name, "cpu") == 0) return MLC_ERR_ARG;
    /* Two registrations at a time are rare and short: a spin will do. */
    while (__atomic_exchange_n(&mlc__registry.lock, 1, __ATOMIC_ACQUIRE)) {}
    if (mlc__registry.n < MLC__BACKENDS && !mlc__backend_find(b->name, strlen(b->name))) {
        mlc__registry.backend[mlc__registry.n] = *b;
        __atomic_store_n(&mlc__registry.n, mlc__registry.n + 1, __ATOMIC_RELEASE);
        status = MLC_OK;
    }
    __atomic_store_n(&mlc__registry.lock, 0, __ATOMIC_RELEASE);
    return status;
}

/* "cuda:1" -> backend "cuda", index 1; NULL if there is no such backend. */
static const mlc_backend *mlc__device_parse(const char *device, int32_t *index)
{
    const char *colon = strchr(device, ':');
    const size_t len = colon ? (size_t)(colon - device) : strlen(device);
    *index = 0;
    for (const char *d = colon ? colon + 1 : ""; *d; d++) {
        if (*d < '0' || *d > '9' || *index > 999) return NULL;
        *index = *index * 10 + (*d - '0');
    }
    return mlc__backend_find(device, len);
}

/* The kernel's message: which operation, which kernel, which device. */
static mlc_status mlc__run_failed(mlc_ctx *ctx, const char *what, const char *kernel,
                                  mlc_status status)
{
    const char *device = ctx->backend ? ctx->backend->name : "cpu";
    if (status == MLC_ERR_UNSUPPORTED)
        return mlc__fail(ctx, status, "%s: device %s has no kernel '%s' for this", what, device,
                         kernel);
    return mlc__fail(ctx, status, "%s: kernel '%s' failed on device %s", what, kernel, device);
}

/* mlc__run_NAME: runs a kernel of the context's device; `what` names the operation. Denormals are
 * flushed here as in the workers, or bits would depend on who runs a chunk. */
#define MLC__DEFINE_RUN(name) \
    static mlc_status mlc__run_##name(mlc_ctx *ctx, const char *what, \
                                      const struct mlc_k_##name *a) \
    { \
        const uint32_t mode = mlc__flush_begin(); \
        mlc_status (*const run)(void *, const struct mlc_k_##name *) = \
            ctx->backend ? ctx->backend->kernels.name : mlc__cpu_##name[mlc__level(ctx->isa)]; \
        const mlc_status st = run ? run(ctx->dev, a) : MLC_ERR_UNSUPPORTED; \
        mlc__flush_end(mode); \
        return st == MLC_OK ? st : mlc__run_failed(ctx, what, #name, st); \
    }
MLC_KERNELS(MLC__DEFINE_RUN)

/* mlc__workspace_NAME: bytes of workspace that the kernel wants for these arguments. */
#define MLC__DEFINE_WORKSPACE(name) \
    MLC__INLINE size_t mlc__workspace_##name(mlc_ctx *ctx, const struct mlc_k_##name *a) \
    { \
        size_t (*const query)(void *, const struct mlc_k_##name *) = \
            ctx->backend ? ctx->backend->kernels.name##_workspace \
                         : mlc__cpu_##name##_workspace[mlc__level(ctx->isa)]; \
        return query ? query(ctx->dev, a) : 0; \
    }
MLC_KERNELS(MLC__DEFINE_WORKSPACE)

/* Workspace of a kernel from the pool; released with mlc__scratch_end. */
static mlc_status mlc__scratch(mlc_ctx *ctx, size_t bytes, mlc__block **block, void **workspace)
{
    *block = NULL;
    *workspace = NULL;
    if (bytes == 0) return MLC_OK;
    *block = mlc__pool_get(ctx, bytes, MLC_MEM_WORKSPACE);
    if (!*block) return MLC_ERR_NOMEM;
    *workspace = (*block)->ptr;
    return MLC_OK;
}

static void mlc__scratch_end(mlc_ctx *ctx, mlc__block *block)
{
    if (block) mlc__pool_put(ctx, block, MLC_MEM_WORKSPACE);
}

/* Runs a kernel with the workspace it asks for. */
#define MLC__RUN_WITH_WORKSPACE(ctx, what, name, args) \
    MLC__RUN_WITH_WORKSPACE_IN(ctx, what, name, args, args)
/* The fields workspace and workspace_bytes are those of place. */
#define MLC__RUN_WITH_WORKSPACE_IN(ctx, what, name, args, place) \
    do { \
        mlc__block *mlc__ws; \
        const size_t mlc__bytes = mlc__workspace_##name(ctx, args); \
        MLC__TRY(mlc__scratch(ctx, mlc__bytes, &mlc__ws, &(place)->workspace)); \
        (place)->workspace_bytes = mlc__bytes; \
        const mlc_status mlc__rs = mlc__run_##name(ctx, what, args); \
        mlc__scratch_end(ctx, mlc__ws); \
        MLC__TRY(mlc__rs); \
    } while (0)

/* Bytes of dense memory; on the host all three kinds are a memcpy. */
static mlc_status mlc__device_copy(mlc_ctx *ctx, void *dst, const void *src, size_t bytes,
                                   mlc_copy_kind kind)
{
    if (bytes == 0) return MLC_OK;
    if (ctx->on_host) { memcpy(dst, src, bytes); return MLC_OK; }
    const mlc_status st = ctx->backend->copy(ctx->dev, dst, src, bytes, kind);
    if (st != MLC_OK) return mlc__fail(ctx, MLC_ERR_DEVICE, "device %s: copy of %zu bytes failed",
                                       ctx->backend->name, bytes);
    return MLC_OK;
}

/* The kind that a kernel is to write for this operation: on a device the word is read later, when
 * others have run. With more operations than there is room for the last names share a place. */
static int64_t mlc__error_kind(mlc_ctx *ctx, int64_t kind, const char *what)
{
    int i = 0;
    while (i < MLC__ERROR_OPS - 1 && ctx->error_op[i] && ctx->error_op[i] != what) i++;
    ctx->error_op[i] = what;
    ctx->error_pending = true;
    return kind | (int64_t)i << 8;
}

/* Values that kernels found wrong become the context's error. */
static mlc_status mlc__error_word_read(mlc_ctx *ctx)
{
    int64_t w[4] = { 0 }, zero[4] = { 0 };
    if (!ctx->error_pending) return MLC_OK;
    ctx->error_pending = false;
    MLC__TRY(mlc__device_copy(ctx, w, ctx->error_word, sizeof w, MLC_COPY_TO_HOST));
    if (w[0] == 0) return MLC_OK;
    MLC__TRY(mlc__device_copy(ctx, ctx->error_word, zero, sizeof zero, MLC_COPY_TO_DEVICE));
    MLC__REQUIRE(ctx, (w[0] & 255) != MLC_K_ERROR_INDEX, VALUE,
                 "%s: index %lld at position %lld is not in [0,%lld), the size of the axis",
                 ctx->error_op[(w[0] >> 8) % MLC__ERROR_OPS], (long long)w[2], (long long)w[1],
                 (long long)w[3]);
    MLC__REQUIRE(ctx, (w[0] & 255) != MLC_K_ERROR_WEIGHT, VALUE,
                 "multinomial: weight %lld of row %lld is negative, infinite or NaN",
                 (long long)w[2], (long long)w[1]);
    MLC__REQUIRE(ctx, (w[0] & 255) != MLC_K_ERROR_FEW || w[2] > 0, VALUE,
                 "multinomial: no weight of row %lld is over 0; one must be", (long long)w[1]);
    MLC__REQUIRE(ctx, (w[0] & 255) != MLC_K_ERROR_FEW, ARG,
                 "multinomial: %lld draws without replacement, but only %lld weights of row %lld "
                 "are over 0; draw fewer", (long long)w[3], (long long)w[2], (long long)w[1]);
    return mlc__fail(
        ctx, MLC_ERR_VALUE,
        "cross_entropy: label %lld at row %lld is not in [0,%lld), the classes of logits",
        (long long)w[2], (long long)w[1], (long long)w[3]);
}

/* @@ IMPL.CTX -------------------------------------------- context and scopes
 * A context is made in two parts: memory first, so that the rest can fail with nothing but
 * mlc_ctx_free to call, then device, threads and error word. Scopes only note where the tape and
 * the lists stood; ending one is what frees. */

MLC_IMPL mlc_ctx_desc mlc_ctx_desc_make(void)
{
    mlc_ctx_desc d;
    memset(&d, 0, sizeof d);
    return d;
}

/* The desc wins over MLC_THREADS in the environment, that over the cores there are. */
static int32_t mlc__threads_choose(int32_t asked)
{
#ifdef MLC_NO_THREADS
    (void)asked;
    return 1;
#else
    const char *env = asked == 0 ? getenv("MLC_THREADS") : NULL;
    if (env) asked = (int32_t)strtol(env, NULL, 10);
    if (asked <= 0) asked = mlc__cpu_count();
    return asked < MLC__MAX_THREADS ? asked : MLC__MAX_THREADS;
#endif
}

/* The context's own memory: from the fixed block or the allocator. */
static mlc_ctx *mlc__ctx_alloc(const mlc_ctx_desc *d, const mlc_allocator *allocator)
{
    const size_t bytes = mlc__round_up(sizeof(mlc_ctx), MLC__CACHELINE);
    char *start = NULL, *end = NULL;
    mlc_ctx *ctx;
    if (d->memory) {
        const uintptr_t at =
            ((uintptr_t)d->memory + MLC__CACHELINE - 1) & ~(uintptr_t)(MLC__CACHELINE - 1);
        const size_t skip = (size_t)(at - (uintptr_t)d->memory);
        /* Less than one chunk beside the context would fail at the first tensor. */
        if (d->memory_bytes < skip + bytes + MLC__CHUNK) return NULL;
        start = MLC__CAST(char *, d->memory) + skip;
        end = start + (d->memory_bytes - skip) / MLC__CACHELINE * MLC__CACHELINE;
    }
    ctx = MLC__CAST(mlc_ctx *, start ? (void *)start
                                     : allocator->alloc(allocator->user, bytes, MLC__CACHELINE));
    if (!ctx) return NULL;
    memset(ctx, 0, bytes);
    ctx->fixed = start;
    ctx->heap_end = start ? start + bytes : NULL;
    ctx->pool_start = ctx->fixed_end = end;
    ctx->allocator = *allocator;
    ctx->mem.calls = start ? 0 : 1;
    ctx->mem.reserved = (int64_t)bytes;
    mlc__mem_add(ctx, MLC_MEM_OBJECT, (int64_t)bytes);
    return ctx;
}

/* Device, threads and the error word of a context whose memory works. */
static mlc_status mlc__ctx_open(mlc_ctx *ctx, const mlc_ctx_desc *d)
{
    ctx->isa = mlc__isa_choose(d->isa);
    ctx->on_host = true;
    ctx->threads = mlc__threads_choose(d->threads);
    if (d->device && strcmp(d->device, "cpu") != 0) {
        int32_t index;
        ctx->backend = mlc__device_parse(d->device, &index);
        if (!ctx->backend) return MLC_ERR_DEVICE;
        if (ctx->backend->open(index, &ctx->dev) != MLC_OK) {
            ctx->backend = NULL;
            return MLC_ERR_DEVICE;
        }
        ctx->on_host = false;
    } else {
        ctx->pool = mlc__pool_new(ctx);
        if (!ctx->pool) return MLC_ERR_NOMEM;
        ctx->dev = ctx->pool;
    }
    ctx->error_word = MLC__CAST(int64_t *, mlc__heap_data(ctx, 64, MLC_MEM_OBJECT, "context"));
    if (!ctx->error_word) return MLC_ERR_NOMEM;
    const int64_t zero[4] = { 0 };
    return mlc__device_copy(ctx, ctx->error_word, zero, sizeof zero, MLC_COPY_TO_DEVICE);
}

/* What would otherwise fail far away: half an allocator, a level or dtype that does not exist. */
static mlc_status mlc__ctx_desc_check(const mlc_ctx_desc *d)
{
    const bool some = d->allocator.alloc || d->allocator.release;
    if (some && !(d->allocator.alloc && d->allocator.release)) return MLC_ERR_ARG;
    if ((unsigned)d->isa >= MLC_ISA_COUNT) return MLC_ERR_ARG;
    if (d->threads < 0 || (d->dtype != MLC_F32 && d->dtype != MLC_F64)) return MLC_ERR_ARG;
    return MLC_OK;
}

/* Whatever fails, desc->status says why; half a context is freed as a whole one would be. */
MLC_IMPL mlc_ctx *mlc_ctx_create(const mlc_ctx_desc *desc)
{
    mlc_ctx_desc d = desc ? *desc : mlc_ctx_desc_make();
    mlc_status status = mlc__ctx_desc_check(&d);
    mlc_allocator allocator = { NULL, mlc__system_alloc, mlc__system_release };
    mlc_ctx *ctx = NULL;
    if (d.allocator.alloc) allocator = d.allocator;
    if (status == MLC_OK) {
        ctx = mlc__ctx_alloc(&d, &allocator);
        status = ctx ? MLC_OK : MLC_ERR_NOMEM;
    }
    if (ctx) {
        ctx->log = d.log;
        ctx->log_user = d.log_user;
        ctx->abort_on_error = d.abort_on_error;
        ctx->hard_limit = d.hard_limit;
        ctx->soft_limit = d.soft_limit;
        ctx->dtype = d.dtype;
        mlc__blas_start();
        /* An error in here has no context to stand in after the failure: only the status gets
         * out. */
        status = mlc__ctx_open(ctx, &d);
        mlc_seed(ctx, d.seed);
    }
    if (ctx && status != MLC_OK) { mlc_ctx_free(ctx); ctx = NULL; }
    if (d.status) *d.status = status;
    return ctx;
}

/* Scopes give blocks back to the pool, the pool gives them to the allocator, then the objects go.
 * What lies in a fixed block is the caller's memory and simply left. */
static void mlc__ctx_free_memory(mlc_ctx *ctx)
{
    for (int i = 0; i < MLC__MAX_SCOPES; i++) mlc__scope_clear(ctx, &ctx->scopes[i]);
    if (!ctx->on_host || !ctx->fixed) mlc__pool_forget(ctx, NULL);
    while (!ctx->on_host && ctx->objects) {
        mlc__object *o = ctx->objects;
        if (o->device_ptr) {           /* then the object holds how many bytes are there */
            size_t bytes;
            memcpy(&bytes, o + 1, sizeof bytes);
            ctx->backend->release(ctx->dev, o->device_ptr, bytes ? bytes : 1);
        }
        mlc__heap_free(ctx, o + 1);
    }
    while (ctx->objects) mlc__heap_free(ctx, ctx->objects + 1);
}

/* Order: users' data while the context still works, threads before the pool they live in, memory
 * before the device that gave it, and the context itself, whose allocator is copied out first. */
MLC_IMPL void mlc_ctx_free(mlc_ctx *ctx)
{
    mlc_allocator allocator;
    if (!ctx) return;
    /* First what users own, while the context still works; last the context, whose allocator is
     * needed to free it. */
    if (ctx->modules_release) ctx->modules_release(ctx);
    if (ctx->files_release) ctx->files_release(ctx);
    if (ctx->pool) mlc__pool_stop(ctx->pool);
    mlc__ctx_free_memory(ctx);
    if (ctx->backend) ctx->backend->close(ctx->dev);
    allocator = ctx->allocator;
    if (!ctx->fixed)
        allocator.release(allocator.user, ctx, mlc__round_up(sizeof(mlc_ctx), MLC__CACHELINE));
}

MLC_IMPL mlc_isa mlc_ctx_isa(const mlc_ctx *ctx) { return ctx ? ctx->isa : MLC_ISA_SCALAR; }
MLC_IMPL int32_t mlc_ctx_threads(const mlc_ctx *ctx) { return ctx ? ctx->threads : 0; }

/* The new pool comes first: without memory for it the old one stays. */
MLC_IMPL mlc_status mlc_ctx_set_threads(mlc_ctx *ctx, int32_t threads)
{
    if (!ctx) return MLC_ERR_ARG;
    MLC__REQUIRE(ctx, threads >= 0, ARG, "ctx_set_threads: %d threads; it takes 1 or more, or 0 "
                 "for the default", threads);
    const int32_t before = ctx->threads;
    mlc__pool *old = ctx->pool;
    ctx->threads = mlc__threads_choose(threads);
    if (!old || ctx->threads == before) return MLC_OK;
    mlc__pool *fresh = mlc__pool_new(ctx);
    if (!fresh) {
        ctx->threads = before;
        return mlc__fail(ctx, MLC_ERR_NOMEM, "ctx_set_threads: no memory for %d threads", threads);
    }
    mlc__pool_stop(old);
    mlc__heap_free(ctx, old);
    ctx->dev = ctx->pool = fresh;
    return MLC_OK;
}

MLC_IMPL bool mlc_ctx_on_host(const mlc_ctx *ctx) { return ctx && ctx->on_host; }

MLC_IMPL const char *mlc_ctx_blas(const mlc_ctx *ctx)
{
    return ctx && ctx->on_host ? mlc__blas_start() : "none";
}

/* Also restarts the streams: the same seed and calls give the same numbers again. */
MLC_IMPL mlc_status mlc_seed(mlc_ctx *ctx, uint64_t seed)
{
    if (!ctx) return MLC_ERR_ARG;
    ctx->seed = seed;
    ctx->stream = 0;
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_scope_begin(mlc_ctx *ctx)
{
    if (!ctx) return MLC_ERR_ARG;
    if (ctx->depth + 2 >= MLC__MAX_SCOPES) ctx->lost_scopes++;       /* its end must end nothing */
    MLC__REQUIRE(ctx, ctx->depth + 2 < MLC__MAX_SCOPES, STATE,
                 "scope_begin: %d scopes are open; is a mlc_scope_end missing?", ctx->depth);
    ctx->depth++;
    /* had_error: an error that stands now is not the scope's, and its end must not clear it. */
    ctx->scopes[ctx->depth].tape = ctx->tape;
    ctx->scopes[ctx->depth].had_error = ctx->status != MLC_OK;
    return MLC_OK;
}

/* Ends also where an error stands: a loop that breaks off at the error has closed its scope. */
MLC_IMPL mlc_status mlc_scope_end(mlc_ctx *ctx)
{
    mlc_status status;
    if (!ctx) return MLC_ERR_ARG;
    if (ctx->lost_scopes > 0) { ctx->lost_scopes--; return ctx->status; }
    MLC__REQUIRE(ctx, ctx->depth > 0, STATE,
                 "scope_end: no scope is open; call mlc_scope_begin before");
    /* Late errors of the device belong to the scope in which they were made. */
    mlc__error_word_read(ctx);
    mlc__scope *s = &ctx->scopes[ctx->depth];
    status = ctx->status;
    if (!s->had_error) ctx->status = MLC_OK;
    for (mlc_node *nd = ctx->tape; nd && nd != s->tape; nd = nd->prev) mlc__node_unsave(nd);
    /* Nodes of the scope lie in its arena: the tape is cut before that goes. */
    ctx->tape = s->tape;
    mlc__scope_clear(ctx, s);
    ctx->depth--;
    if (ctx->fixed && ctx->on_host) mlc__fixed_rewind(ctx);
    return status;
}

/* Ends a scope of the library's own: what failed in it is the caller's to see. */
static mlc_status mlc__scope_leave(mlc_ctx *ctx)
{
    const bool had_error = ctx->scopes[ctx->depth].had_error;
    const mlc_status st = mlc_scope_end(ctx);
    if (!had_error) ctx->status = st;
    return st;
}

#ifndef MLC_NO_STDIO
MLC_IMPL void mlc_stdout(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}
#endif

/* @@ IMPL.TENSOR ----------------------------------------- shapes, creation, host access
 * Tensors are small structs in a scope's arena over a storage that views share. Nothing here is
 * recorded. The functions at the end (mlc__map, mlc__reduce, mlc__sum_to) translate tensors to
 * kernel arguments: operations call them and never touch elements. */

MLC_IMPL mlc_dims mlc_dims_of(int32_t n, const int64_t *v)
{
    mlc_dims d;
    memset(&d, 0, sizeof d);
    d.n = n;
    for (int32_t i = 0; v && i < n && i < MLC_MAX_DIMS; i++) d.v[i] = v[i];
    return d;
}

MLC_IMPL mlc_dims mlc_dims0(void)      { return mlc_dims_of(0, NULL); }
MLC_IMPL mlc_dims mlc_dims1(int64_t a)
{
    const int64_t v[1] = { a };
    return mlc_dims_of(1, v);
}
MLC_IMPL mlc_dims mlc_dims2(int64_t a, int64_t b)
{
    const int64_t v[2] = { a, b };
    return mlc_dims_of(2, v);
}
MLC_IMPL mlc_dims mlc_dims3(int64_t a, int64_t b, int64_t c)
{
    const int64_t v[3] = { a, b, c };
    return mlc_dims_of(3, v);
}
MLC_IMPL mlc_dims mlc_dims4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t v[4] = { a, b, c, d };
    return mlc_dims_of(4, v);
}

/* Returned by value: no lifetime to think of in the arguments of a message. 8 axes of 20 digits
 * fit. */
typedef struct mlc__text { char s[192]; } mlc__text;

/* Lists that are too long are cut, not refused: this is for messages about them. */
static mlc__text mlc__shape_text(int32_t ndim, const int64_t *shape)
{
    mlc__text t;
    size_t n = 0;
    t.s[n++] = '[';
    for (int32_t d = 0; d < ndim && d < MLC_MAX_DIMS; d++)
        n += (size_t)snprintf(t.s + n, sizeof t.s - n, d ? ",%lld" : "%lld", (long long)shape[d]);
    snprintf(t.s + n, sizeof t.s - n, "]");
    return t;
}

/* As "%g" has it where a point is a point, in the locale of Berlin, too: for messages, as
 * mlc__real(x).s */
static mlc__text mlc__real(double x)
{
    mlc__text t;
    char local[40];
    size_t n = 0;
    snprintf(local, sizeof local, "%g", x);
    for (const char *s = local; *s; s++) {
        if (strchr("0123456789+-einfa", *s)) t.s[n++] = *s;
        else if (!n || t.s[n - 1] != '.') t.s[n++] = '.';      /* it may have several bytes */
    }
    t.s[n] = 0;
    return t;
}

/* "[2,3]": for messages, as mlc__shape(x).s */
static mlc__text mlc__shape(const mlc_tensor *t) { return mlc__shape_text(t->ndim, t->shape); }

MLC_IMPL const char *mlc_shape_text(const mlc_tensor *t, char *text, size_t n)
{
    if (!text || n == 0) return "";
    mlc__copy_text(text, n, t ? mlc__shape(t).s : "NULL");
    return text;
}

/* 1 for n = 0: a scalar has one element. */
static int64_t mlc__product(int32_t n, const int64_t *v)
{
    int64_t p = 1;
    for (int32_t i = 0; i < n; i++) p *= v[i];
    return p;
}

/* For tensors that are known not to be NULL; the mlc_ versions take NULL. */
MLC__INLINE int64_t mlc__numel(const mlc_tensor *t) { return mlc__product(t->ndim, t->shape); }
MLC__INLINE size_t mlc__size(const mlc_tensor *t) { return mlc__dtypes[t->dtype].bytes; }

MLC__INLINE bool mlc__same_shape(const mlc_tensor *a, const mlc_tensor *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

/* First element. On a device, in a dry run and for no elements it is no host pointer: for kernel
 * arguments only. */
MLC__INLINE void *mlc__data(const mlc_tensor *t)
{
    char *data = MLC__CAST(char *, t->storage->data);
    return data ? data + t->offset * (int64_t)mlc__size(t) : NULL;
}

MLC_IMPL int64_t mlc_numel(const mlc_tensor *t) { return t ? mlc__numel(t) : 0; }

MLC_IMPL int64_t mlc_dim(const mlc_tensor *t, int32_t axis)
{
    if (!t) return 0;
    if (axis < 0) axis += t->ndim;
    return axis >= 0 && axis < t->ndim ? t->shape[axis] : 0;
}

/* Sizes of 0 count as 1, so that strides stay positive. */
static void mlc__row_major(int32_t ndim, const int64_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int32_t d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= mlc__max(1, shape[d]);
    }
}

/* The stride of an axis of size 1 is never used, so it may be anything. */
static bool mlc__is_row_major(const mlc_tensor *t)
{
    int64_t step = 1;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] == 0) return true;
        if (t->shape[d] != 1 && t->stride[d] != step) return false;
        step *= t->shape[d];
    }
    return true;
}

/* Do the elements fill a block without holes or overlap, in whatever order of axes? */
static bool mlc__is_permuted(const mlc_tensor *t)
{
    int64_t step = 1;
    bool used[MLC_MAX_DIMS] = { false };
    for (int32_t n = 0; n < t->ndim; n++) {
        int32_t next = -1;
        for (int32_t d = 0; d < t->ndim; d++)
            if (!used[d] && (t->shape[d] == 1 || t->stride[d] == step)) next = d;
        if (next < 0) return mlc__numel(t) == 0;
        used[next] = true;
        step *= t->shape[next];
    }
    return true;
}

/* The flags cache what would be asked at each operation; whoever sets strides calls this. */
static void mlc__mark_layout(mlc_tensor *t)
{
    t->flags &= ~(MLC__DENSE | MLC__PERMUTED);
    if (mlc__is_row_major(t)) t->flags |= MLC__DENSE | MLC__PERMUTED;
    else if (mlc__is_permuted(t)) t->flags |= MLC__PERMUTED;
}

MLC_IMPL bool mlc_is_contiguous(const mlc_tensor *t) { return t && (t->flags & MLC__DENSE); }

/* A tensor struct, row-major, without storage. shape is checked by the caller. */
static void mlc__tensor_init(mlc_tensor *t, mlc_ctx *ctx, mlc_dtype dtype, int32_t ndim,
                             const int64_t *shape)
{
    int64_t step = 1;
    t->ctx = ctx;
    t->storage = t->grad = NULL;
    t->base = NULL;
    t->node = NULL;
    t->offset = 0;
    t->ndim = ndim;
    t->dtype = dtype;
    t->flags = MLC__DENSE | MLC__PERMUTED;
    t->grad_fresh = 0;
    t->scope = ctx->depth;
    for (int32_t d = ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->stride[d] = step;
        step *= mlc__max(1, shape[d]);
    }
}

/* A tensor and an empty storage at this depth; memory comes with mlc__storage_fill, a view's from
 * its base, wrapped memory from the caller. */
static mlc_tensor *mlc__tensor_new(mlc_ctx *ctx, int32_t depth, mlc_dtype dtype, int32_t ndim,
                                   const int64_t *shape, int mem)
{
    mlc_tensor *t = MLC__CAST(mlc_tensor *, mlc__arena(ctx, depth, sizeof *t));
    if (!t) return NULL;
    mlc__tensor_init(t, ctx, dtype, ndim, shape);
    t->scope = depth;
    t->storage = mlc__storage_new(ctx, depth, mem);
    return t->storage ? t : NULL;
}

/* Do the elements of a shape fit memory, also where another size is 0? */
static bool mlc__fits(int32_t ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(n, mlc__max(1, shape[d]), &n) || n > PTRDIFF_MAX / 16)
            return false;
    return true;
}

/* A second tensor over x's memory, of the current scope, unknown to the tape. */
static mlc_tensor *mlc__alias(mlc_ctx *ctx, const mlc_tensor *x)
{
    mlc_tensor *t = MLC__CAST(mlc_tensor *, mlc__arena(ctx, ctx->depth, sizeof *t));
    if (!t) return NULL;
    *t = *x;
    t->base = NULL;
    t->node = NULL;
    t->grad = NULL;
    t->grad_fresh = 0;
    t->scope = ctx->depth;
    t->flags &= ~(MLC__REQUIRES_GRAD | MLC__PARAM);
    return t;
}

/* Sizes are not negative and the bytes fit. */
static mlc_status mlc__shape_check(mlc_ctx *ctx, const char *what, mlc_dtype dtype, mlc_dims shape)
{
    MLC__REQUIRE(ctx, (unsigned)dtype < MLC_DTYPE_COUNT, DTYPE, "%s: unknown dtype %d; it is one "
                 "of MLC_F32 to MLC_BOOL", what, (int)dtype);
    MLC__REQUIRE(ctx, shape.n >= 0 && shape.n <= MLC_MAX_DIMS, ARG,
                 "%s: %d axes; a tensor has at most %d", what, shape.n, MLC_MAX_DIMS);
    for (int32_t d = 0; d < shape.n; d++)
        MLC__REQUIRE(ctx, shape.v[d] >= 0, ARG, "%s: size %lld of axis %d is negative; "
                     "it must be 0 or more", what, (long long)shape.v[d], d);
    MLC__REQUIRE(ctx, mlc__fits(shape.n, shape.v), SHAPE,
                 "%s: shape %s has more elements than memory can hold", what,
                 mlc__shape_text(shape.n, shape.v).s);
    return MLC_OK;
}

/* A tensor with memory in the current scope, not initialised. */
static mlc_tensor *mlc__make(mlc_ctx *ctx, const char *what, mlc_dtype dtype, mlc_dims shape)
{
    mlc_tensor *t;
    if (!ctx || mlc__shape_check(ctx, what, dtype, shape) != MLC_OK) return NULL;
    t = mlc__tensor_new(ctx, ctx->depth, dtype, shape.n, shape.v, MLC_MEM_ACTIVATION);
    if (!t || mlc__storage_fill(t->storage, (size_t)mlc__numel(t) * mlc__size(t)) != MLC_OK)
        return NULL;
    return t;
}

/* t is a dense block (MLC__PERMUTED); step only where its order is row-major. */
static mlc_status mlc__fill(mlc_ctx *ctx, const char *what, const mlc_tensor *t, double start,
                            double step)
{
    const struct mlc_k_fill args = { t->dtype, mlc__numel(t), mlc__data(t), start, step, 0 };
    if (args.n == 0 || ctx->dry_run) return MLC_OK;
    return mlc__run_fill(ctx, what, &args);
}

/* Zeroes a block of device memory, padding and all; its bytes are a multiple of 4. */
static mlc_status mlc__zero(mlc_ctx *ctx, const char *what, void *block, size_t bytes)
{
    const struct mlc_k_fill zero = { MLC_F32, (int64_t)(bytes / 4), block, 0.0, 0.0, 0 };
    return zero.n ? mlc__run_fill(ctx, what, &zero) : MLC_OK;
}

MLC_IMPL mlc_tensor *mlc_full(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double value)
{
    mlc_tensor *t = mlc__make(ctx, "full", dtype, shape);
    return t && mlc__fill(ctx, "full", t, value, 0.0) == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_zeros(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape)
{
    mlc_tensor *t = mlc__make(ctx, "zeros", dtype, shape);
    return t && mlc__fill(ctx, "zeros", t, 0.0, 0.0) == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_arange(mlc_ctx *ctx, mlc_dtype dtype, double start, double stop,
                                double step)
{
    /* NaN where step is 0 and the interval empty, or an argument is NaN: the comparisons below are
     * written to fail then. */
    const double count = ceil((stop - start) / step);
    mlc_tensor *t;
    if (!ctx) return NULL;
    if (!(step != 0.0) || !(count >= 0.0) || !(count < 4e18)) {
        mlc__fail(ctx, MLC_ERR_ARG, "arange: step %s does not lead from %s to %s; all must be "
                  "finite, the step not 0 and of the sign of the way", mlc__real(step).s,
                  mlc__real(start).s, mlc__real(stop).s);
        return NULL;
    }
    t = mlc__make(ctx, "arange", dtype, mlc_dims1((int64_t)count));
    return t && mlc__fill(ctx, "arange", t, start, step) == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_ones(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape)
{
    mlc_tensor *t = mlc__make(ctx, "ones", dtype, shape);
    return t && mlc__fill(ctx, "ones", t, 1.0, 0.0) == MLC_OK ? t : NULL;
}

/* The first half from the start, the second from the end: both are exact, and steps that cannot be
 * written as a binary fraction lie symmetric. */
MLC_IMPL mlc_tensor *mlc_linspace(mlc_ctx *ctx, mlc_dtype dtype, double start, double stop,
                                  int64_t n)
{
    const double step = n > 1 ? (stop - start) / (double)(n - 1) : 0.0;
    const int64_t half = n > 1 ? n / 2 : n;
    mlc_tensor *t;
    if (!ctx) return NULL;
    if (!(stop - start - (stop - start) == 0.0)) {
        mlc__fail(ctx, MLC_ERR_ARG, "linspace: there are no equal steps from %s to %s; both "
                  "must be finite", mlc__real(start).s, mlc__real(stop).s);
        return NULL;
    }
    t = mlc__make(ctx, "linspace", dtype, mlc_dims1(n));
    if (!t || n == 0 || ctx->dry_run) return t;
    struct mlc_k_fill args = { dtype, half, mlc__data(t), start, step, 0 };
    if (mlc__run_fill(ctx, "linspace", &args) != MLC_OK) return NULL;
    args.n = n - half;
    args.out = MLC__CAST(char *, args.out) + half * (int64_t)mlc__size(t);
    args.start = stop;
    args.origin = n - 1 - half;
    if (args.n && mlc__run_fill(ctx, "linspace", &args) != MLC_OK) return NULL;
    return t;
}

MLC_IMPL mlc_tensor *mlc_from(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, const void *data)
{
    mlc_tensor *t = mlc__make(ctx, "from", dtype, shape);
    if (!t) return NULL;
    const size_t bytes = (size_t)mlc__numel(t) * mlc__size(t);
    if (!data && bytes) {
        mlc__fail(ctx, MLC_ERR_ARG, "from: data is NULL; %s %s takes %zu bytes",
                  mlc_dtype_name(dtype), mlc__shape(t).s, bytes);
        return NULL;
    }
    if (ctx->dry_run) return t;
    return mlc__device_copy(ctx, t->storage->data, data, bytes, MLC_COPY_TO_DEVICE) == MLC_OK
               ? t
               : NULL;
}

/* Strides may overlap (0) or leave holes: such a base is not MLC__PERMUTED, and its gradient is
 * row-major. */
MLC_IMPL mlc_tensor *mlc_wrap(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, const int64_t *strides,
                              void *data)
{
    mlc_tensor *t;
    if (!ctx || mlc__shape_check(ctx, "wrap", dtype, shape) != MLC_OK) return NULL;
    if (!ctx->on_host) {
        mlc__fail(ctx, MLC_ERR_DEVICE, "wrap: device %s cannot use host memory; copy with mlc_from",
                  ctx->backend->name);
        return NULL;
    }
    t = mlc__tensor_new(ctx, ctx->depth, dtype, shape.n, shape.v, MLC_MEM_ACTIVATION);
    if (!t) return NULL;
    if (!data && mlc__numel(t)) {
        mlc__fail(ctx, MLC_ERR_ARG, "wrap: data is NULL; %s has %lld elements", mlc__shape(t).s,
                  (long long)mlc__numel(t));
        return NULL;
    }
    for (int32_t d = 0; strides && d < shape.n; d++) {
        if (strides[d] < 0) {
            mlc__fail(ctx, MLC_ERR_ARG, "wrap: stride %lld of axis %d is negative; it "
                      "must be 0 or more (mlc_flip turns an axis)", (long long)strides[d], d);
            return NULL;
        }
        t->stride[d] = strides[d];
    }
    /* No block: mlc__storage_release leaves the memory alone. */
    t->storage->data = data;
    mlc__mark_layout(t);
    return t;
}

/* Fails if t's memory was given back when the forward that made it ended. */
static mlc_status mlc__alive(const mlc_tensor *t, const char *what)
{
    MLC__REQUIRE(t->ctx, !t->storage->closed, STATE,
                 "%s: the file whose memory a %s tensor sees was closed; copy it before", what,
                 mlc__shape(t).s);
    MLC__REQUIRE(
        t->ctx, !t->storage->released, STATE,
        "%s: the memory of a %s tensor was freed when the module's forward that made it ended; "
        "return it or copy it",
        what, mlc__shape(t).s);
    /* Of tensors with elements only parameters can lack memory without having been freed. */
    MLC__REQUIRE(t->ctx, t->storage->data || mlc__numel(t) == 0, STATE,
                 "%s: a parameter is not built yet; call mlc_module_build", what);
    return MLC_OK;
}

/* Strided copy with conversion, device to device. */
static mlc_status mlc__cast_into(mlc_ctx *ctx, const char *what, const mlc_tensor *out,
                                 const mlc_tensor *in)
{
    struct mlc_k_cast args;
    args.out_dtype = out->dtype;
    args.in_dtype = in->dtype;
    args.ndim = out->ndim;
    args.out = mlc__data(out);
    args.in = mlc__data(in);
    for (int32_t d = 0; d < out->ndim; d++) {
        const int32_t i = d - (out->ndim - in->ndim);
        args.shape[d] = out->shape[d];
        args.out_stride[d] = out->stride[d];
        args.in_stride[d] = i >= 0 && in->shape[i] != 1 ? in->stride[i] : 0;
    }
    if (mlc__numel(out) == 0) return MLC_OK;
    return mlc__run_cast(ctx, what, &args);
}

/* A dense tensor over pool memory for the length of a call. */
typedef struct mlc__temp { mlc_tensor t; mlc_storage storage; mlc__block *block; } mlc__temp;

/* shape may be NULL for ndim 0. The caller must reach mlc__temp_end: no MLC__TRY in between. */
static mlc_status mlc__temp_begin(mlc_ctx *ctx, mlc__temp *temp, mlc_dtype dtype, int32_t ndim,
                                  const int64_t *shape)
{
    void *data;
    const size_t bytes = (size_t)mlc__product(ndim, shape) * mlc__dtypes[dtype].bytes;
    MLC__TRY(mlc__scratch(ctx, bytes, &temp->block, &data));
    memset(&temp->storage, 0, sizeof temp->storage);
    temp->storage.ctx = ctx;
    temp->storage.data = data;
    mlc__tensor_init(&temp->t, ctx, dtype, ndim, shape);
    temp->t.storage = &temp->storage;
    return MLC_OK;
}

static void mlc__temp_end(mlc__temp *temp) { mlc__scratch_end(temp->t.ctx, temp->block); }

/* May several indices name one element, as after expand or unfold? Such a tensor cannot be written.
 * They do not if each stride steps over all that the smaller ones reach. */
static bool mlc__repeats(const mlc_tensor *t)
{
    int64_t reach = 0;
    bool used[MLC_MAX_DIMS] = { false };
    for (int32_t n = 0; n < t->ndim; n++) {
        int32_t next = 0;
        while (next < t->ndim - 1 && used[next]) next++;
        for (int32_t d = next + 1; d < t->ndim; d++)
            if (!used[d] && t->stride[d] < t->stride[next]) next = d;
        used[next] = true;
        if (t->shape[next] < 2) continue;
        if (t->stride[next] <= reach) return true;
        reach += (t->shape[next] - 1) * t->stride[next];
    }
    return false;
}

/* Host copy of a tensor: dense ones at once, others through a dense copy on the device. */
static mlc_status mlc__host_access(mlc_tensor *t, const char *what, void *read, const void *write,
                                   size_t bytes)
{
    mlc_ctx *ctx = t ? t->ctx : NULL;
    mlc__temp dense;
    if (!t) return MLC_ERR_ARG;
    MLC__TRY(mlc__alive(t, what));
    const size_t want = (size_t)mlc__numel(t) * mlc__size(t);
    MLC__REQUIRE(ctx, bytes == want, ARG, "%s: %zu bytes given, %s %s has %zu; give just as many",
                 what, bytes, mlc_dtype_name(t->dtype), mlc__shape(t).s, want);
    MLC__REQUIRE(ctx, want == 0 || read || write, ARG,
                 "%s: host memory is NULL; it must have %zu bytes", what, want);
    if (want == 0 || ctx->dry_run) return MLC_OK;
    if (read) MLC__TRY(mlc__error_word_read(ctx));
    MLC__REQUIRE(ctx, !write || !mlc__repeats(t), ARG,
                 "%s: %s repeats elements (expand); copy it first", what, mlc__shape(t).s);
    /* Before the write: also a failed one spoils what backward saved. */
    if (write) t->storage->version++;
    if (t->flags & MLC__DENSE)
        return read ? mlc__device_copy(ctx, read, mlc__data(t), want, MLC_COPY_TO_HOST)
                    : mlc__device_copy(ctx, mlc__data(t), write, want, MLC_COPY_TO_DEVICE);
    MLC__TRY(mlc__temp_begin(ctx, &dense, t->dtype, t->ndim, t->shape));
    void *data = dense.storage.data;
    mlc_status st = read ? mlc__cast_into(ctx, what, &dense.t, t) : MLC_OK;
    if (!st) st = read ? mlc__device_copy(ctx, read, data, want, MLC_COPY_TO_HOST)
                       : mlc__device_copy(ctx, data, write, want, MLC_COPY_TO_DEVICE);
    if (write && !st) st = mlc__cast_into(ctx, what, t, &dense.t);
    mlc__temp_end(&dense);
    return st;
}

MLC_IMPL mlc_status mlc_read(mlc_tensor *t, void *host, size_t bytes)
{
    return mlc__host_access(t, "read", host, NULL, bytes);
}

MLC_IMPL mlc_status mlc_write(mlc_tensor *t, const void *host, size_t bytes)
{
    return mlc__host_access(t, "write", NULL, host, bytes);
}

MLC_IMPL double mlc_item(mlc_tensor *t)
{
    uint64_t raw = 0;                  /* room for any dtype */
    double value;
    if (!t) return MLC__NAN;
    if (mlc__numel(t) != 1) {
        mlc__fail(t->ctx, MLC_ERR_SHAPE, "item: %s has %lld elements, not one; reduce it or "
                  "select one", mlc__shape(t).s, (long long)mlc__numel(t));
        return MLC__NAN;
    }
    if (mlc_read(t, &raw, mlc__size(t)) != MLC_OK) return MLC__NAN;
    mlc__cast_dense(&value, MLC_F64, &raw, t->dtype, 1, &mlc__half_fns_scalar);
    return value;
}

/* For mlc_f32 and friends: the dtype and the device are checked, contiguity is the caller's
 * business. */
static void *mlc__host_pointer(mlc_tensor *t, mlc_dtype dtype, const char *what)
{
    if (!t || mlc__alive(t, what) != MLC_OK) return NULL;
    if (t->dtype != dtype) {
        mlc__fail(t->ctx, MLC_ERR_DTYPE, "%s: the tensor is %s; write mlc_%s(t)", what,
                  mlc_dtype_name(t->dtype), mlc_dtype_name(t->dtype));
        return NULL;
    }
    if (t->ctx->dry_run) {
        mlc__fail(t->ctx, MLC_ERR_STATE, "%s: there is no data while mlc_summary runs forward",
                  what);
        return NULL;
    }
    if (!t->ctx->on_host) {
        mlc__fail(t->ctx, MLC_ERR_DEVICE,
                  "%s: the host cannot touch memory of device %s; use mlc_read", what,
                  t->ctx->backend->name);
        return NULL;
    }
    return mlc__data(t);
}

MLC_IMPL float *mlc_f32(mlc_tensor *t)
{
    return MLC__CAST(float *, mlc__host_pointer(t, MLC_F32, "f32"));
}
MLC_IMPL double *mlc_f64(mlc_tensor *t)
{
    return MLC__CAST(double *, mlc__host_pointer(t, MLC_F64, "f64"));
}
MLC_IMPL int64_t *mlc_i64(mlc_tensor *t)
{
    return MLC__CAST(int64_t *, mlc__host_pointer(t, MLC_I64, "i64"));
}
MLC_IMPL uint16_t *mlc_bf16(mlc_tensor *t)
{
    return MLC__CAST(uint16_t *, mlc__host_pointer(t, MLC_BF16, "bf16"));
}
MLC_IMPL uint16_t *mlc_f16(mlc_tensor *t)
{
    return MLC__CAST(uint16_t *, mlc__host_pointer(t, MLC_F16, "f16"));
}
MLC_IMPL int32_t *mlc_i32(mlc_tensor *t)
{
    return MLC__CAST(int32_t *, mlc__host_pointer(t, MLC_I32, "i32"));
}
MLC_IMPL int8_t *mlc_i8(mlc_tensor *t)
{
    return MLC__CAST(int8_t *, mlc__host_pointer(t, MLC_I8, "i8"));
}
MLC_IMPL uint8_t *mlc_u8(mlc_tensor *t)
{
    return MLC__CAST(uint8_t *, mlc__host_pointer(t, MLC_U8, "u8"));
}
MLC_IMPL uint8_t *mlc_bool(mlc_tensor *t)
{
    return MLC__CAST(uint8_t *, mlc__host_pointer(t, MLC_BOOL, "bool"));
}

/* Does shape `from` broadcast to shape `to`? */
static bool mlc__broadcasts(const mlc_tensor *from, const mlc_tensor *to)
{
    if (from->ndim > to->ndim) return false;
    for (int32_t d = 1; d <= from->ndim; d++) {
        const int64_t f = from->shape[from->ndim - d], t = to->shape[to->ndim - d];
        if (f != t && f != 1) return false;
    }
    return true;
}

MLC_IMPL mlc_status mlc_copy_into(mlc_tensor *dst, mlc_tensor *src)
{
    mlc_ctx *ctx = dst ? dst->ctx : src ? src->ctx : NULL;
    if (!dst || !src)
        return mlc__fail(ctx, MLC_ERR_ARG,
                         "copy_into: %s is NULL; look at what should have made it",
                         dst ? "src" : "dst");
    MLC__REQUIRE(ctx, dst->ctx == src->ctx, ARG,
                 "copy_into: dst and src belong to two contexts; make both in one");
    MLC__TRY(mlc__alive(dst, "copy_into"));
    MLC__TRY(mlc__alive(src, "copy_into"));
    MLC__REQUIRE(ctx, dst->dtype == src->dtype, DTYPE,
                 "copy_into: dst is %s, src %s; cast src first", mlc_dtype_name(dst->dtype),
                 mlc_dtype_name(src->dtype));
    MLC__REQUIRE(ctx, mlc__broadcasts(src, dst), SHAPE, "copy_into: src %s does not fit dst %s; "
                 "it must broadcast to it", mlc__shape(src).s, mlc__shape(dst).s);
    MLC__REQUIRE(ctx, !mlc__repeats(dst), ARG, "copy_into: dst %s repeats elements (expand); "
                 "copy it first", mlc__shape(dst).s);
    if (ctx->dry_run) return MLC_OK;
    dst->storage->version++;
    /* Same storage: src goes through a copy, as memmove would do. */
    if (dst->storage == src->storage) {                    /* may overlap */
        mlc__temp copy;
        MLC__TRY(mlc__temp_begin(ctx, &copy, src->dtype, src->ndim, src->shape));
        mlc_status st = mlc__cast_into(ctx, "copy_into", &copy.t, src);
        if (st == MLC_OK) st = mlc__cast_into(ctx, "copy_into", dst, &copy.t);
        mlc__temp_end(&copy);
        return st;
    }
    return mlc__cast_into(ctx, "copy_into", dst, src);
}

/* Made in the parent scope's arena while the current one is open: that is what the per-scope arenas
 * are for. */
MLC_IMPL mlc_tensor *mlc_keep(mlc_tensor *t)
{
    mlc_tensor *copy;
    if (!t || mlc__alive(t, "keep") != MLC_OK) return NULL;
    copy = mlc__tensor_new(t->ctx, t->ctx->depth ? t->ctx->depth - 1 : 0, t->dtype, t->ndim,
                           t->shape, MLC_MEM_ACTIVATION);
    if (!copy || mlc__storage_fill(copy->storage, (size_t)mlc__numel(t) * mlc__size(t)) != MLC_OK)
        return NULL;
    if (t->ctx->dry_run) return copy;
    return mlc__cast_into(t->ctx, "keep", copy, t) == MLC_OK ? copy : NULL;
}

/* Resolves a negative axis; an error if there is no such axis. */
static bool mlc__axis_ok(mlc_tensor *x, const char *what, int32_t *axis)
{
    const int32_t a = *axis < 0 ? *axis + x->ndim : *axis;
    if (a < 0 || a >= x->ndim) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, x->ndim ? "%s: %s has no axis %d; its axes are %d to %d"
                                                 : "%s: %s has no axis %d; it is a scalar", what,
                  mlc__shape(x).s, *axis, -x->ndim, x->ndim - 1);
        return false;
    }
    *axis = a;
    return true;
}

/* The same where a 0-d tensor counts as a line of one element, as it does in PyTorch. */
static bool mlc__axis_of(mlc_tensor *x, const char *what, int32_t *axis)
{
    if (x->ndim == 0 && (*axis == 0 || *axis == -1)) { *axis = 0; return true; }
    return mlc__axis_ok(x, what, axis);
}

/* Shape and strides for kernels that go along an axis. */
static void mlc__line_shape(const mlc_tensor *x, int64_t *shape, int64_t *stride, int32_t *ndim)
{
    *ndim = x->ndim ? x->ndim : 1;
    shape[0] = stride[0] = 1;
    for (int32_t d = 0; d < x->ndim; d++) {
        shape[d] = x->shape[d];
        stride[d] = x->stride[d];
    }
}

/* -- kernels on tensors: what operations call -- */

/* Strides of `in` in a loop over out, to which it broadcasts: 0 where it is repeated. */
static void mlc__broadcast_strides(const mlc_tensor *in, const mlc_tensor *out, int64_t *stride)
{
    for (int32_t d = 0; d < out->ndim; d++) {
        const int32_t i = d - (out->ndim - in->ndim);
        stride[d] = i >= 0 && in->shape[i] != 1 ? in->stride[i] : 0;
    }
}

/* Arguments of out (+)= op(a, b, c; s[0], s[1]); false if there are no elements. */
static bool mlc__map_args(struct mlc_k_map *args, mlc_map op, const mlc_tensor *out,
                          const mlc_tensor *a, const mlc_tensor *b, const mlc_tensor *c,
                          const double *s, bool accumulate)
{
    /* All dense and of one shape, by far the most frequent case, is one long axis. */
    const mlc_tensor *in[3] = { a, b, c };
    bool dense = (out->flags & MLC__DENSE) != 0;
    args->op = op;
    args->dtype = out->dtype;
    args->accumulate = accumulate;
    args->s = s[0];
    args->t = s[1];
    args->out = mlc__data(out);
    for (int p = 0; p < 3; p++) {
        args->in[p] = in[p] ? mlc__data(in[p]) : NULL;
        dense = dense &&
                (!in[p] || ((in[p]->flags & MLC__DENSE) && mlc__same_shape(in[p], out)));
    }
    if (dense) {
        args->ndim = 1;
        args->shape[0] = mlc__numel(out);
        args->out_stride[0] = args->in_stride[0][0] = args->in_stride[1][0] =
            args->in_stride[2][0] = 1;
        return args->shape[0] != 0;
    }
    args->ndim = out->ndim;
    for (int32_t d = 0; d < out->ndim; d++) {
        args->shape[d] = out->shape[d];
        args->out_stride[d] = out->stride[d];
    }
    for (int p = 0; p < 3 && in[p]; p++) mlc__broadcast_strides(in[p], out, args->in_stride[p]);
    return mlc__numel(out) != 0;
}

/* How a row of a table of operations names its kernel: inputs broadcast to out, unused ones are
 * NULL. The kernel math is apart from map, so that the linker can drop it. */
typedef mlc_status (*mlc__apply_fn)(mlc_ctx *ctx, const char *what, mlc_map op,
                                    const mlc_tensor *out, const mlc_tensor *a,
                                    const mlc_tensor *b, const mlc_tensor *c, const double *s,
                                    bool accumulate);

static mlc_status mlc__apply_map(mlc_ctx *ctx, const char *what, mlc_map op, const mlc_tensor *out,
                                 const mlc_tensor *a, const mlc_tensor *b, const mlc_tensor *c,
                                 const double *s, bool accumulate)
{
    struct mlc_k_map args;
    if (!mlc__map_args(&args, op, out, a, b, c, s, accumulate)) return MLC_OK;
    return mlc__run_map(ctx, what, &args);
}

static mlc_status mlc__apply_math(mlc_ctx *ctx, const char *what, mlc_map op,
                                  const mlc_tensor *out, const mlc_tensor *a, const mlc_tensor *b,
                                  const mlc_tensor *c, const double *s, bool accumulate)
{
    struct mlc_k_math args;
    if (!mlc__map_args(&args.map, op, out, a, b, c, s, accumulate)) return MLC_OK;
    return mlc__run_math(ctx, what, &args);
}

/* out (+)= op(a, b, c; s) by the kernel map. */
static mlc_status mlc__map(mlc_ctx *ctx, const char *what, mlc_map op, const mlc_tensor *out,
                           const mlc_tensor *a, const mlc_tensor *b, const mlc_tensor *c, double s,
                           bool accumulate)
{
    const double scalars[2] = { s, 0.0 };
    return mlc__apply_map(ctx, what, op, out, a, b, c, scalars, accumulate);
}

/* Over the axes in mask, which out does not have or has as 1. */
static void mlc__reduce_args(struct mlc_k_reduce *args, mlc_reduce op, const mlc_tensor *out,
                             const mlc_tensor *in, uint32_t mask, bool keepdim, double divisor,
                             bool accumulate)
{
    int32_t o = 0;
    args->op = op;
    args->dtype = in->dtype;
    args->out_dtype = out->dtype;
    args->ndim = in->ndim;
    args->accumulate = accumulate;
    args->in = mlc__data(in);
    args->out = mlc__data(out);
    args->divisor = divisor;
    for (int32_t d = 0; d < in->ndim; d++) {
        const bool gone = (mask >> d & 1u) != 0;
        args->shape[d] = in->shape[d];
        args->in_stride[d] = in->stride[d];
        /* Stride 0 tells the kernel that an axis is reduced. A kept axis may have it only if its
         * size is 1, where any stride will do. */
        args->out_stride[d] = gone ? 0 : mlc__max(1, out->stride[o]);
        if (!gone || keepdim) o++;
    }
}

/* out (+)= reduce(in) / divisor for sums and maxima of floats. */
static mlc_status mlc__reduce(mlc_ctx *ctx, const char *what, mlc_reduce op, const mlc_tensor *out,
                              const mlc_tensor *in, uint32_t mask, bool keepdim, double divisor,
                              bool accumulate)
{
    struct mlc_k_reduce args;
    if (mlc__numel(out) == 0) return MLC_OK;
    mlc__reduce_args(&args, op, out, in, mask, keepdim, divisor, accumulate);
    MLC__RUN_WITH_WORKSPACE(ctx, what, reduce, &args);
    return MLC_OK;
}

/* out (+)= x summed to out's shape, which broadcasts to x's. */
static mlc_status mlc__sum_to(mlc_ctx *ctx, const char *what, const mlc_tensor *out,
                              const mlc_tensor *x, bool accumulate)
{
    mlc_tensor wide = *out;            /* out with x's number of axes: missing ones have size 1 */
    const int32_t more = x->ndim - out->ndim;
    uint32_t mask = 0;
    wide.ndim = x->ndim;
    for (int32_t d = 0; d < x->ndim; d++) {
        wide.shape[d] = d < more ? 1 : out->shape[d - more];
        wide.stride[d] = d < more ? 1 : out->stride[d - more];
        if (wide.shape[d] == 1 && x->shape[d] != 1) mask |= 1u << d;
    }
    /* Nothing was broadcast: a copy or an addition. */
    if (!mask) return mlc__map(ctx, what, MLC_MAP_COPY, &wide, x, NULL, NULL, 0.0, accumulate);
    return mlc__reduce(ctx, what, MLC_REDUCE_SUM, &wide, x, mask, true, 1.0, accumulate);
}

/* @@ IMPL.PRINT ------------------------------------------ numbers as decimals, tensors as text
 * Digits come from integers of any length, so neither a locale nor a libm has a say. The printer
 * takes what is shown to the host (of a long axis both ends), finds one form for all its numbers,
 * and writes line by line. Rules and names of options are NumPy's. */

/* -- digits: Dragon4 of Steele and White, 1990 -- */

/* Enough for the largest f64 times 10 and for 10 to the power of its smallest exponent. */
#define MLC__BIG_LIMBS 37
typedef struct mlc__big { int32_t n; uint32_t limb[MLC__BIG_LIMBS]; } mlc__big;

static void mlc__big_multiply(mlc__big *b, uint32_t x)
{
    uint64_t carry = 0;
    for (int32_t i = 0; i < b->n; i++) {
        carry += (uint64_t)b->limb[i] * x;
        b->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) b->limb[b->n++] = (uint32_t)carry;
}

static void mlc__big_power(mlc__big *b, int ten)
{
    for (; ten >= 9; ten -= 9) mlc__big_multiply(b, 1000000000u);
    for (; ten > 0; ten--) mlc__big_multiply(b, 10);
}

/* x * 2^bits */
static mlc__big mlc__big_of(uint64_t x, int bits)
{
    mlc__big b;
    memset(&b, 0, sizeof b);
    b.n = bits / 32;
    for (; x; x >>= 32) b.limb[b.n++] = (uint32_t)x;
    mlc__big_multiply(&b, 1u << bits % 32);
    return b;
}

static int mlc__big_compare(const mlc__big *a, const mlc__big *b)
{
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    for (int32_t i = a->n; i-- > 0;)
        if (a->limb[i] != b->limb[i]) return a->limb[i] < b->limb[i] ? -1 : 1;
    return 0;
}

/* a + b against c */
static int mlc__big_compare_sum(const mlc__big *a, const mlc__big *b, const mlc__big *c)
{
    mlc__big sum;
    uint64_t carry = 0;
    sum.n = mlc__max(a->n, b->n);
    for (int32_t i = 0; i < sum.n; i++) {
        carry += (uint64_t)(i < a->n ? a->limb[i] : 0) + (i < b->n ? b->limb[i] : 0);
        sum.limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) sum.limb[sum.n++] = (uint32_t)carry;
    return mlc__big_compare(&sum, c);
}

/* a -= times * b, which is not above a */
static void mlc__big_subtract(mlc__big *a, const mlc__big *b, uint64_t times)
{
    uint64_t carry = 0, borrow = 0;
    for (int32_t i = 0; i < a->n; i++) {
        if (i < b->n) carry += times * b->limb[i];
        borrow = (uint64_t)a->limb[i] - (uint32_t)carry - borrow;
        a->limb[i] = (uint32_t)borrow;
        borrow >>= 63;
        carry >>= 32;
    }
    while (a->n && a->limb[a->n - 1] == 0) a->n--;
}

/* The digit a / b, which is below 10; leaves the rest in a. The heads give most of it at once. */
static char mlc__big_divide(mlc__big *a, const mlc__big *b)
{
    const int32_t n = b->n;
    if (a->n < n) return 0;
    const uint64_t head = (a->n > n ? (uint64_t)a->limb[n] << 32 : 0) | a->limb[n - 1];
    uint64_t q = head / ((uint64_t)b->limb[n - 1] + 1);
    mlc__big_subtract(a, b, q);
    for (; mlc__big_compare(a, b) >= 0; q++) mlc__big_subtract(a, b, 1);
    return (char)q;
}

/* How floats lie in their bits, and where NumPy goes over to scientific notation. */
static const struct mlc__float_kind {
    int32_t fraction, bias;
    double  large, large_0d;           /* from here on; of a 0-d array                         */
    double  small, ratio;              /* below; where max / min, rounded, is over 1000        */
} mlc__float_kinds[] = {
    { 23, 127,  1e6, 1e6,  (double)0.0001f,   1000.0 + 1.0 / 32768 },            /* f32  */
    { 52, 1023, 1e8, 1e16, 0.0001,            1000.0 },                          /* f64  */
    { 0, 0, 0.0, 0.0, 0.0, 0.0 },                                                /* i64  */
    { 7,  127,  1e2, 1e2,  210.0 / 2097152,   1002.0 },                          /* bf16 */
    { 10, 15,   1e3, 1e3,  1678.0 / 16777216, 1000.25 }                          /* f16  */
};

/* digit[0].digit[1].. * 10^exponent, without zeros at the end; n is 0 for zero. */
typedef struct mlc__decimal {
    bool    negative;
    int32_t n, exponent;
    char    digit[32];
} mlc__decimal;

/* The bits of element i, without its sign: these compare as the numbers do. */
static uint64_t mlc__magnitude(mlc_dtype dtype, const void *data, int64_t i, bool *negative)
{
    const size_t size = mlc__dtypes[dtype].bytes;
    uint64_t bits = 0;
    memcpy(&bits, MLC__CAST(const char *, data) + (size_t)i * size, size);
    *negative = bits >> (size * 8 - 1) != 0;
    return bits & (UINT64_MAX >> (65 - size * 8));
}

static double mlc__magnitude_value(mlc_dtype dtype, uint64_t bits)
{
    double value;
    mlc__cast_dense(&value, MLC_F64, &bits, dtype, 1, &mlc__half_fns_scalar);
    return value;
}

/* Magnitude of infinity: above it are NaNs. */
static uint64_t mlc__magnitude_inf(mlc_dtype dtype)
{
    const struct mlc__float_kind *k = &mlc__float_kinds[dtype];
    return (uint64_t)(2 * k->bias + 1) << k->fraction;
}

/* Adds one to the last digit. */
static void mlc__decimal_up(mlc__decimal *d)
{
    while (d->n && d->digit[d->n - 1] == 9) d->n--;
    if (d->n) d->digit[d->n - 1]++;
    else { d->digit[d->n++] = 1; d->exponent++; }
}

/* The fewest digits that tell a number from its neighbours; but not fewer than `least` and not more
 * than `most` behind the point, where the digits are those of the exact value, rounded half to
 * even. point is that of scientific notation or the real one. */
static mlc__decimal mlc__digits(mlc_dtype dtype, uint64_t bits, bool scientific, int32_t least,
                                int32_t most)
{
    const struct mlc__float_kind *kind = &mlc__float_kinds[dtype];
    const int biased = (int)(bits >> kind->fraction);
    const uint64_t one = (uint64_t)1 << kind->fraction, m = (bits & (one - 1)) + (biased ? one : 0);
    const int e = mlc__max(biased, 1) - kind->bias - kind->fraction;
    /* At a power of two the lower neighbour is half as far away as the upper. */
    const int edge = m == one && biased > 1, up = e > 0 ? e : 0, down = e < 0 ? -e : 0;
    mlc__decimal d;
    memset(&d, 0, sizeof d);
    if (m == 0) return d;
    /* number = rest / unit; low and high: half the ways to its neighbours. */
    mlc__big rest = mlc__big_of(m, up + 1 + edge), unit = mlc__big_of(1, down + 1 + edge);
    mlc__big low = mlc__big_of(1, up), high = mlc__big_of(1, up + edge);
    int top = 63;
    while (!(m >> top)) top--;
    /* The power of ten below the number, or the one below that. */
    d.exponent = ((top + e) * 30103 - 1 + 40000000) / 100000 - 400;
    mlc__big_power(&unit, d.exponent);
    mlc__big_power(&rest, -d.exponent);
    mlc__big_power(&low, -d.exponent);
    mlc__big_power(&high, -d.exponent);
    mlc__big ten = unit;
    mlc__big_multiply(&ten, 10);
    if (mlc__big_compare(&rest, &ten) >= 0) { unit = ten; d.exponent++; }
    const int32_t last = (scientific ? d.exponent : 0) - most;
    const int32_t keep = (scientific ? d.exponent : 0) - least;
    if (d.exponent < last) {                       /* rounded to zero or to the last place */
        mlc__big_multiply(&unit, 5);
        const bool rounds_up = d.exponent == last - 1 && mlc__big_compare(&rest, &unit) > 0;
        d.exponent = rounds_up ? last : 0;
        if (rounds_up) d.digit[d.n++] = 1;
        return d;
    }
    /* Halfway to a neighbour reads back as this number where its mantissa is even. */
    const int even = (m & 1) == 0;
    bool is_low, is_high;
    for (int32_t place = d.exponent;; place--) {
        d.digit[d.n++] = mlc__big_divide(&rest, &unit);
        is_low = mlc__big_compare(&rest, &low) < even;
        is_high = mlc__big_compare_sum(&rest, &high, &unit) > -even;
        if (place == last || ((is_low || is_high) && place <= keep)) break;
        mlc__big_multiply(&rest, 10);
        mlc__big_multiply(&low, 10);
        mlc__big_multiply(&high, 10);
    }
    const int half = mlc__big_compare_sum(&rest, &rest, &unit);
    if (is_low != is_high ? is_high : half > 0 || (half == 0 && d.digit[d.n - 1] % 2))
        mlc__decimal_up(&d);
    while (d.digit[d.n - 1] == 0) d.n--;
    return d;
}

/* -- numbers as text -- */

static char mlc__digit_at(const mlc__decimal *d, int32_t i)
{
    return (char)('0' + (i >= 0 && i < d->n ? d->digit[i] : 0));
}

/* Digits behind the point in fixed notation. */
static int32_t mlc__decimals(const mlc__decimal *d) { return mlc__max(0, d->n - 1 - d->exponent); }

/* Room for any float in fixed notation. */
#define MLC__NUMBER_TEXT 384

/* "-12.5", "3."; returns the length. */
static int32_t mlc__fixed_text(char *to, const mlc__decimal *d)
{
    const int32_t whole = mlc__max(d->exponent, 0), end = d->exponent + mlc__decimals(d);
    int32_t n = 0;
    if (d->negative) to[n++] = '-';
    for (int32_t i = d->exponent - whole; i <= end; i++) {
        to[n++] = mlc__digit_at(d, i);
        if (i == d->exponent) to[n++] = '.';
    }
    return n;
}

/* "-1.250e-07" with so many digits behind the point and so many of the exponent. */
static int32_t mlc__scientific_text(char *to, const mlc__decimal *d, bool point, int32_t behind,
                                    int32_t exponent_digits)
{
    int32_t n = 0;
    if (d->negative) to[n++] = '-';
    to[n++] = mlc__digit_at(d, 0);
    if (point) to[n++] = '.';
    for (int32_t i = 1; i <= behind; i++) to[n++] = mlc__digit_at(d, i);
    return n + snprintf(to + n, 8, "e%c%0*d", d->exponent < 0 ? '-' : '+', (int)exponent_digits,
                        d->exponent < 0 ? -d->exponent : d->exponent);
}

/* "nan", "inf", "-inf" */
static int32_t mlc__not_finite_text(char *to, bool nan, bool negative)
{
    return snprintf(to, 8, "%s", nan ? "nan" : negative ? "-inf" : "inf");
}

/* A float as Python's str has it: "2.0", "1e-05". Reads back to the same bits. */
static int32_t mlc__float_text(char *to, mlc_dtype dtype, const void *data, int64_t i)
{
    const struct mlc__float_kind *kind = &mlc__float_kinds[dtype];
    bool negative;
    const uint64_t bits = mlc__magnitude(dtype, data, i, &negative);
    const uint64_t inf = mlc__magnitude_inf(dtype);
    if (bits >= inf) return mlc__not_finite_text(to, bits > inf, negative);
    mlc__decimal d = mlc__digits(dtype, bits, true, 0, MLC__NUMBER_TEXT);
    const double value = mlc__magnitude_value(dtype, bits);
    d.negative = negative;
    if (bits && !(value >= 1e-4 && value < kind->large_0d))
        return mlc__scientific_text(to, &d, d.n > 1, d.n - 1, 2);
    const int32_t n = mlc__fixed_text(to, &d);
    if (to[n - 1] != '.') return n;
    to[n] = '0';
    return n + 1;
}

/* -- tensors -- */

typedef struct mlc__printer {
    mlc_print_desc o;                  /* with the defaults in it                              */
    mlc_writer     write;
    void          *user;
    mlc_dtype      dtype;
    int32_t        ndim;
    int64_t        shape[MLC_MAX_DIMS];    /* of what is shown                                 */
    uint32_t       cut;                /* axes of which only the ends are                      */
    const char    *data;               /* what is shown, dense, on the host                    */
    int64_t        count, next;        /* elements of data; the one to be written              */
    /* The form of all numbers: characters before and behind the point, all; and in scientific
     * notation digits behind it and of the exponent. */
    bool           scientific;
    int32_t        left, right, width, behind, exponent_digits;
    int32_t        blanks, column;     /* not yet written: dropped where the line ends there   */
    int32_t        used;
    char           text[256];          /* on its way to the writer                             */
} mlc__printer;

static void mlc__printer_flush(mlc__printer *p)
{
    if (p->used) p->write(p->user, p->text, (size_t)p->used);
    p->used = 0;
}

static void mlc__printer_put(mlc__printer *p, const char *text, int32_t n)
{
    for (int32_t i = -p->blanks; i < n; i++) {
        if (p->used == (int32_t)sizeof p->text) mlc__printer_flush(p);
        p->text[p->used++] = i < 0 ? ' ' : text[i];
    }
    p->blanks = 0;
    p->column += n;
}

static void mlc__printer_blanks(mlc__printer *p, int32_t n)
{
    p->blanks += n;
    p->column += n;
}

/* Ends the line; the next one is indented. */
static void mlc__printer_break(mlc__printer *p, int32_t lines, int32_t indent)
{
    p->blanks = 0;
    for (; lines > 0; lines--) mlc__printer_put(p, "\n", 1);
    p->column = 0;
    mlc__printer_blanks(p, indent);
}

static int64_t mlc__printer_whole(const mlc__printer *p, int64_t i)
{
    int64_t v = 0;
    mlc__cast_dense(&v, MLC_I64, p->data + i * (int64_t)mlc__dtypes[p->dtype].bytes, p->dtype, 1,
                    &mlc__half_fns_scalar);
    return v;
}

static int32_t mlc__whole_text(char *to, int64_t v)
{
    return snprintf(to, 24, "%lld", (long long)v);
}

/* Writes the next element: all are of one width; alone, 0, it has no blanks before it. */
static void mlc__printer_number(mlc__printer *p)
{
    char text[MLC__NUMBER_TEXT];
    const int64_t i = p->next++;
    int32_t n, behind = 0;
    if (mlc__is_float(p->dtype)) {
        bool negative;
        const uint64_t bits = mlc__magnitude(p->dtype, p->data, i, &negative);
        const uint64_t inf = mlc__magnitude_inf(p->dtype);
        if (bits >= inf) {
            n = mlc__not_finite_text(text, bits > inf, negative);
        } else {
            mlc__decimal d = mlc__digits(p->dtype, bits, p->scientific,
                                         p->scientific ? p->behind : 0,
                                         p->scientific ? p->behind : p->o.precision);
            d.negative = negative;
            n = p->scientific
                    ? mlc__scientific_text(text, &d, true, p->behind, p->exponent_digits)
                    : mlc__fixed_text(text, &d);
            behind = p->scientific ? 0 : p->right - mlc__decimals(&d);
        }
    } else if (p->dtype == MLC_BOOL) {
        n = snprintf(text, 8, p->data[i] ? "True" : "False");
    } else {
        n = mlc__whole_text(text, mlc__printer_whole(p, i));
    }
    mlc__printer_blanks(p, (int32_t)mlc__max(0, p->width - n - behind));
    mlc__printer_put(p, text, n);
    mlc__printer_blanks(p, behind);
}

/* Is scientific notation due to the smallest and the largest number that are not zero? */
static bool mlc__is_scientific(const mlc__printer *p, uint64_t small, uint64_t large)
{
    const struct mlc__float_kind *kind = &mlc__float_kinds[p->dtype];
    const double lo = mlc__magnitude_value(p->dtype, small);
    const double hi = mlc__magnitude_value(p->dtype, large);
    if (large == 0) return false;
    return hi >= kind->large || (!p->o.suppress && (lo < kind->small || hi / lo > kind->ratio));
}

/* Finds the form of floats. Two passes: notation, then the widest number on each side of the
 * point. */
static void mlc__printer_floats(mlc__printer *p)
{
    const uint64_t inf = mlc__magnitude_inf(p->dtype);
    uint64_t small = inf, large = 0;
    bool negative, all_finite = true, minus_inf = false;
    for (int64_t i = 0; i < p->count; i++) {
        const uint64_t bits = mlc__magnitude(p->dtype, p->data, i, &negative);
        all_finite = all_finite && bits < inf;
        minus_inf = minus_inf || (bits == inf && negative);
        if (bits == 0 || bits >= inf) continue;
        small = mlc__min(small, bits);
        large = mlc__max(large, bits);
    }
    p->scientific = mlc__is_scientific(p, small, large);
    p->exponent_digits = 2;
    for (int64_t i = 0; i < p->count; i++) {
        const uint64_t bits = mlc__magnitude(p->dtype, p->data, i, &negative);
        if (bits >= inf) continue;
        const mlc__decimal d = mlc__digits(p->dtype, bits, p->scientific, 0, p->o.precision);
        const int32_t whole = p->scientific ? 1 : 1 + mlc__max(d.exponent, 0);
        p->left = mlc__max(p->left, negative + whole);
        p->right = mlc__max(p->right, p->scientific ? d.n - 1 : mlc__decimals(&d));
        if (d.exponent >= 100 || d.exponent <= -100) p->exponent_digits = 3;
    }
    p->behind = p->right;
    if (p->scientific) p->right += 2 + p->exponent_digits;
    if (!all_finite) p->left = mlc__max(p->left, 3 + minus_inf - (p->right + 1));
    p->width = p->left + 1 + p->right;
}

/* Finds the width of integers. */
static void mlc__printer_wholes(mlc__printer *p)
{
    char text[24];
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (int64_t i = 0; i < p->count; i++) {
        lo = mlc__min(lo, mlc__printer_whole(p, i));
        hi = mlc__max(hi, mlc__printer_whole(p, i));
    }
    const int32_t a = mlc__whole_text(text, lo), b = mlc__whole_text(text, hi);
    p->width = mlc__max(a, b);
}

/* A word of a row: on the next line if it would not fit this one and has something before it. */
static void mlc__printer_fit(mlc__printer *p, int32_t width)
{
    const int64_t room = (int64_t)p->o.line_width - p->ndim;
    if (p->column > p->ndim && p->column + (int64_t)width > room)
        mlc__printer_break(p, 1, p->ndim);
}

/* Between two parts of an axis: a blank in a row, else line ends, more of them further out. */
static void mlc__printer_between(mlc__printer *p, int32_t axis)
{
    if (axis == p->ndim - 1) mlc__printer_blanks(p, 1);
    else mlc__printer_break(p, p->ndim - 1 - axis, axis + 1);
}

static void mlc__printer_axis(mlc__printer *p, int32_t axis)
{
    const bool row = axis == p->ndim - 1;
    mlc__printer_put(p, "[", 1);
    for (int64_t i = 0; i < p->shape[axis]; i++) {
        if (i) mlc__printer_between(p, axis);
        if ((p->cut >> axis & 1u) && i == p->o.edge_items) {
            if (row) mlc__printer_fit(p, 3);
            mlc__printer_put(p, "...", 3);
            mlc__printer_between(p, axis);
        }
        if (!row) { mlc__printer_axis(p, axis + 1); continue; }
        mlc__printer_fit(p, p->width);
        mlc__printer_number(p);
    }
    mlc__printer_put(p, "]", 1);
}

/* One element alone is written as Python's str has it. */
static void mlc__printer_scalar(mlc__printer *p)
{
    char text[MLC__NUMBER_TEXT];
    if (mlc__is_float(p->dtype)) {
        mlc__printer_put(p, text, mlc__float_text(text, p->dtype, p->data, 0));
        return;
    }
    mlc__printer_number(p);
}

static void mlc__printer_write(mlc__printer *p)
{
    if (p->count == 0) {
        mlc__printer_put(p, "[]", 2);
    } else if (p->ndim == 0) {
        mlc__printer_scalar(p);
    } else {
        if (mlc__is_float(p->dtype)) mlc__printer_floats(p);
        else if (p->dtype == MLC_BOOL) p->width = 5;
        else mlc__printer_wholes(p);
        mlc__printer_axis(p, 0);
    }
    mlc__printer_put(p, "\n", 1);
    mlc__printer_flush(p);
}

/* Copies the corners of t, all combinations of the two ends of the axes that are cut, to out. */
static mlc_status mlc__corners(const mlc__printer *p, const mlc_tensor *out, const mlc_tensor *t)
{
    for (uint32_t part = 0; part <= p->cut; part++) {
        mlc_tensor from = *t, to = *out;
        if (part & ~p->cut) continue;
        for (int32_t d = 0; d < t->ndim; d++) {
            if (!(p->cut >> d & 1u)) continue;
            from.shape[d] = to.shape[d] = p->o.edge_items;
            if (!(part >> d & 1u)) continue;
            from.offset += (t->shape[d] - p->o.edge_items) * t->stride[d];
            to.offset += p->o.edge_items * to.stride[d];
        }
        MLC__TRY(mlc__cast_into(t->ctx, "print", &to, &from));
    }
    return MLC_OK;
}

/* What is shown of t, to host memory. */
static mlc_status mlc__printer_read(mlc__printer *p, mlc_tensor *t, void *host, size_t bytes)
{
    mlc__temp ends;
    if (!p->cut) return mlc__host_access(t, "print", host, NULL, bytes);
    MLC__TRY(mlc__temp_begin(t->ctx, &ends, t->dtype, t->ndim, p->shape));
    mlc_status st = mlc__corners(p, &ends.t, t);
    if (!st) st = mlc__host_access(&ends.t, "print", host, NULL, bytes);
    mlc__temp_end(&ends);
    return st;
}

/* Options, and what is shown of t. */
static mlc_status mlc__printer_init(mlc__printer *p, const mlc_tensor *t,
                                    const mlc_print_desc *desc)
{
    memset(p, 0, sizeof *p);
    if (desc) p->o = *desc;
    MLC__REQUIRE(t->ctx, p->o.precision >= -1 && p->o.edge_items >= 0 && p->o.threshold >= 0 &&
                 p->o.line_width >= 0, ARG, "print: precision %d, edge_items %d, threshold %lld, "
                 "line_width %d: precision must be -1 or more, the others 0 or more",
                 (int)p->o.precision, (int)p->o.edge_items, (long long)p->o.threshold,
                 (int)p->o.line_width);
    /* No float has digits behind NUMBER_TEXT places. */
    p->o.precision = p->o.precision < 0 ? 0 : p->o.precision ? p->o.precision : 8;
    p->o.precision = mlc__min(p->o.precision, MLC__NUMBER_TEXT);
    if (!p->o.edge_items) p->o.edge_items = 3;
    if (!p->o.threshold) p->o.threshold = 1000;
    if (!p->o.line_width) p->o.line_width = 75;
    p->dtype = t->dtype;
    p->ndim = t->ndim;
    p->count = 1;
    for (int32_t d = 0; d < t->ndim; d++) {
        const int64_t both = 2 * (int64_t)p->o.edge_items;
        const bool cut = mlc__numel(t) > p->o.threshold && t->shape[d] > both;
        p->shape[d] = cut ? both : t->shape[d];
        p->cut |= (uint32_t)cut << d;
        p->count *= p->shape[d];
    }
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_print_ex(mlc_tensor *t, const mlc_print_desc *desc, mlc_writer write,
                                 void *user)
{
    mlc__printer p;
    if (!t) return MLC_ERR_ARG;
    mlc_ctx *ctx = t->ctx;
    MLC__REQUIRE(ctx, write != NULL, ARG, "print: it needs a writer, such as mlc_stdout");
    MLC__TRY(mlc__alive(t, "print"));
    MLC__TRY(mlc__printer_init(&p, t, desc));
    if (ctx->dry_run) return MLC_OK;
    const size_t bytes = (size_t)p.count * mlc__size(t);
    void *host = mlc__heap_alloc(ctx, bytes, MLC_MEM_OBJECT, "print");
    if (!host) return MLC_ERR_NOMEM;
    const mlc_status st = mlc__printer_read(&p, t, host, bytes);
    p.data = MLC__CAST(const char *, host);
    p.write = write;
    p.user = user;
    if (!st) mlc__printer_write(&p);
    mlc__heap_free(ctx, host);
    return st;
}

MLC_IMPL mlc_status mlc_print(mlc_tensor *t, mlc_writer write, void *user)
{
    return mlc_print_ex(t, NULL, write, user);
}

/* @@ IMPL.TAPE ------------------------------------------- recording, gradients, backward
 * Each operation with an input that wants a gradient leaves a node; the tape is a list of them,
 * youngest first, which is an order in which backward may run. A base tensor owns its gradient; a
 * view of it has none and reads and writes its part of the base's, through the same strides.
 * Gradients of results live from their first write to the backward of the operation that made them;
 * those of leaves stay, and are fresh (to be added to) or stale (to be overwritten). The first
 * write of a stale gradient overwrites it (beta = 0): there is no clearing pass, but for parts,
 * which clear the whole first. A node saves tensors by counting on their storage: a module's
 * forward that ends gives memory back at once if nobody counts, else at the last backward that
 * needs it. Saved versions are compared, so a write in between is an error and no wrong number.
 * After backward a node is done; a second time is an error. */

/* t = value, whatever its strides and whatever bits are there now. */
static mlc_status mlc__set(mlc_ctx *ctx, const char *what, const mlc_tensor *t, double value)
{
    mlc__temp one;
    if (t->flags & MLC__PERMUTED) return mlc__fill(ctx, what, t, value, 0.0);
    MLC__TRY(mlc__temp_begin(ctx, &one, t->dtype, 0, NULL));
    mlc_status st = mlc__fill(ctx, what, &one.t, value, 0.0);
    if (st == MLC_OK) st = mlc__cast_into(ctx, what, t, &one.t);
    mlc__temp_end(&one);
    return st;
}

/* A view's base is never a view itself: see mlc__view. */
MLC__INLINE mlc_tensor *mlc__base(mlc_tensor *t) { return t->base ? t->base : t; }

/* An operation. There is no table of them: what a program does not call the linker drops. shape
 * runs always, forward not in a dry run (NULL: shape has made the output), backward once at
 * most. */
struct mlc__op {
    const char *name;
    mlc_status (*shape)(mlc_ctx *ctx, mlc_node *nd);      /* checks, declares outputs and saves */
    mlc_status (*forward)(mlc_ctx *ctx, mlc_node *nd);
    mlc_status (*backward)(mlc_ctx *ctx, mlc_node *nd);
};

/* A view asks its base, which may have become a result since (a change in place). */
MLC__INLINE bool mlc__wants_grad(const mlc_tensor *t)
{
    return ((t->base ? t->base : t)->flags & MLC__REQUIRES_GRAD) != 0;
}

/* The context of n inputs; NULL if one of them is NULL, freed or of another context. */
static mlc_ctx *mlc__inputs(const char *what, int n, mlc_tensor *const *in)
{
    mlc_ctx *ctx = NULL;
    /* A NULL input is the trace of an error before; without one (all others valid, nothing stands)
     * it is recorded now. */
    for (int i = n - 1; i >= 0; i--) if (in[i]) ctx = in[i]->ctx;
    if (!ctx) return NULL;
    for (int i = 0; i < n; i++) {
        if (!in[i]) {
            mlc__fail(ctx, MLC_ERR_ARG, "%s: input %d is NULL; look at what should have made it",
                      what, i + 1);
            return NULL;
        }
        if (in[i]->ctx != ctx) {
            mlc__fail(ctx, MLC_ERR_ARG, "%s: input %d belongs to another context; make both in "
                      "one", what, i + 1);
            return NULL;
        }
        if ((in[i]->storage->released || !in[i]->storage->data) &&
            mlc__alive(in[i], what) != MLC_OK)
            return NULL;
    }
    return ctx;
}

/* Begins an operation on n inputs, up to MLC__MAX_IN. The node is on the tape's arena if a gradient
 * will be asked for, else it is `local`. */
static mlc_node *mlc__begin_n(mlc_node *local, const mlc__op *op, int n, mlc_tensor *const *in)
{
    mlc_ctx *ctx = mlc__inputs(op->name, n, in);
    unsigned need = 0;
    mlc_node *nd = local;
    if (!ctx) return NULL;
    for (int i = 0; i < n; i++) if (mlc__wants_grad(in[i])) need |= 1u << i;
    if (ctx->no_grad > 0) need = 0;
    if (need) nd = MLC__CAST(mlc_node *, mlc__arena(ctx, ctx->depth, sizeof *nd));
    if (!nd) return NULL;
    nd->op = op;
    nd->n_in = (int8_t)n;
    nd->n_out = nd->n_saved = 0;
    nd->recorded = need != 0;
    nd->need = (uint8_t)need;
    nd->done = nd->inplace = false;
    for (int i = 0; i < MLC__MAX_IN; i++) nd->in[i] = i < n ? in[i] : NULL;
    return nd;
}

/* The same for up to three inputs by name. */
static mlc_node *mlc__begin(mlc_node *local, const mlc__op *op, int n, mlc_tensor *a, mlc_tensor *b,
                            mlc_tensor *c)
{
    mlc_tensor *in[3] = { a, b, c };
    return mlc__begin_n(local, op, n, in);
}

/* Declares the next output; its memory comes after the shape rule. */
static mlc_status mlc__out(mlc_ctx *ctx, mlc_node *nd, mlc_dtype dtype, int32_t ndim,
                           const int64_t *shape)
{
    MLC__REQUIRE(ctx, mlc__fits(ndim, shape), SHAPE,
                 "%s: the result %s has more elements than memory can hold", nd->op->name,
                 mlc__shape_text(ndim, shape).s);
    mlc_tensor *t = mlc__tensor_new(ctx, ctx->depth, dtype, ndim, shape, MLC_MEM_ACTIVATION);
    if (!t) return MLC_ERR_NOMEM;
    nd->out[nd->n_out++] = t;
    return MLC_OK;
}

/* Keeps t's memory until nd's backward has run. */
static void mlc__save(mlc_node *nd, mlc_tensor *t)
{
    if (!nd->recorded) return;
    nd->saved[nd->n_saved].t = t;
    nd->saved[nd->n_saved++].version = t->storage->version;
    t->storage->saves++;
}

/* Looks at each element of a dense block, passes others over; a copy to the host for each
 * operation: for debugging only. */
static mlc_status mlc__anomaly_check(mlc_ctx *ctx, const mlc_tensor *t, const char *what,
                                     const char *side)
{
    mlc__block *block;
    void *first_dev;
    int64_t first = -1;
    if (!mlc__is_float(t->dtype) || mlc__numel(t) == 0 || !(t->flags & MLC__PERMUTED))
        return MLC_OK;
    MLC__TRY(mlc__scratch(ctx, 64, &block, &first_dev));
    const struct mlc_k_finite args = { t->dtype, mlc__numel(t), mlc__data(t),
                                       MLC__CAST(int64_t *, first_dev) };
    mlc_status st = mlc__run_finite(ctx, what, &args);
    if (!st) st = mlc__device_copy(ctx, &first, first_dev, sizeof first, MLC_COPY_TO_HOST);
    mlc__scratch_end(ctx, block);
    MLC__TRY(st);
    MLC__REQUIRE(ctx, first < 0, VALUE, "%s: %s made the first NaN or Inf, at element %lld of %s; "
                 "look at its inputs", what, side, (long long)first, mlc__shape(t).s);
    return MLC_OK;
}

/* Shape rule, memory of the outputs, kernel. */
static mlc_status mlc__forward_run(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(nd->op->shape(ctx, nd));
    for (int i = 0; i < nd->n_out; i++) {
        mlc_tensor *t = nd->out[i];
        if (t->storage->data) continue;                    /* a view */
        MLC__TRY(mlc__storage_fill(t->storage, (size_t)mlc__numel(t) * mlc__size(t)));
    }
    if (ctx->dry_run || !nd->op->forward) return MLC_OK;
    MLC__TRY(nd->op->forward(ctx, nd));
    for (int i = 0; ctx->anomaly && i < nd->n_out; i++)
        MLC__TRY(mlc__anomaly_check(ctx, nd->out[i], nd->op->name, "forward"));
    return MLC_OK;
}

/* Runs an operation and records it; its first output, or NULL. */
static mlc_tensor *mlc__finish(mlc_node *nd)
{
    mlc_ctx *ctx = nd->in[0]->ctx;
    const uint32_t mode = mlc__flush_begin();
    const mlc_status st = mlc__forward_run(ctx, nd);
    mlc__flush_end(mode);
    if (st != MLC_OK) {
        mlc__node_unsave(nd);          /* nobody will run its backward */
        return NULL;
    }
    /* Integer outputs (a cast to i64) stay without a node: no gradient flows through them. */
    if (nd->recorded) {
        nd->prev = ctx->tape;
        ctx->tape = nd;
        for (int i = 0; i < nd->n_out; i++) {
            if (!mlc__is_float(nd->out[i]->dtype)) continue;
            mlc_tensor *base = mlc__base(nd->out[i]);      /* another one only in place */
            nd->out[i]->node = base->node = nd;
            base->flags |= MLC__REQUIRES_GRAD;
        }
    }
    return nd->out[0];
}

/* NULL also for a parameter that is not built yet. */
static mlc__flat *mlc__flat_of(mlc_tensor *base)
{
    return base->flags & MLC__PARAM ? ((mlc__param *)base)->flat : NULL;
}

/* Gradient memory of all trainable parameters of a root, zeroed with its padding. */
static mlc_status mlc__flat_grads(mlc__flat *flat)
{
    mlc_ctx *ctx = flat->ctx;
    if (flat->grads) return MLC_OK;
    void *grads = mlc__heap_data(ctx, flat->grad_bytes, MLC_MEM_GRAD, "gradients");
    if (!grads) return MLC_ERR_NOMEM;
    const mlc_status st = mlc__zero(ctx, "gradients", grads, flat->grad_bytes);
    if (st != MLC_OK) {
        mlc__heap_data_free(ctx, grads, MLC_MEM_GRAD);
        return st;
    }
    flat->grads = grads;
    for (int64_t i = 0; i < flat->n; i++) {
        mlc__param *p = flat->params[i];
        if (p->grad_offset < 0) continue;
        p->grad_storage.data = MLC__CAST(char *, flat->grads) + p->grad_offset;
        p->t.grad = &p->grad_storage;
    }
    return MLC_OK;
}

/* Memory for the gradient of a base, not initialised: parameters' all at once in their flat block;
 * a result's in the current scope, a leaf's in its own, so that it lives as long as the leaf. */
static mlc_status mlc__grad_alloc(mlc_tensor *base)
{
    mlc__flat *flat = mlc__flat_of(base);
    if (flat) {
        MLC__TRY(mlc__flat_grads(flat));
        MLC__REQUIRE(
            base->ctx, base->grad != NULL, STATE,
            "backward: parameter '%s' was unfrozen after the build; call mlc_module_rebuild",
            ((mlc__param *)base)->name);
        return MLC_OK;
    }
    base->grad =
        mlc__storage_new(base->ctx, base->node ? base->ctx->depth : base->scope, MLC_MEM_GRAD);
    if (!base->grad) return MLC_ERR_NOMEM;
    if (mlc__storage_fill(base->grad, (size_t)mlc__numel(base) * mlc__size(base)) != MLC_OK) {
        base->grad = NULL;
        return MLC_ERR_NOMEM;
    }
    return MLC_OK;
}

/* g describes the gradient of t within its base's gradient. */
static void mlc__grad_view(mlc_tensor *t, mlc_tensor *g)
{
    mlc_tensor *base = mlc__base(t);
    g->ctx = t->ctx;
    g->storage = base->grad;
    g->base = NULL;
    g->grad = NULL;
    g->node = NULL;
    g->ndim = t->ndim;
    g->dtype = t->dtype;
    g->flags = t->flags & (MLC__DENSE | MLC__PERMUTED);
    g->scope = t->ctx->depth;
    g->grad_fresh = 0;
    g->offset = t->offset - base->offset;
    for (int32_t d = 0; d < t->ndim; d++) {
        g->shape[d] = t->shape[d];
        g->stride[d] = t->stride[d];
    }
    /* A base with holes or repeats cannot lend its strides: its gradient is row-major. */
    if (base->flags & MLC__PERMUTED) return;
    mlc__row_major(g->ndim, g->shape, g->stride);          /* t is its own base: see view ops */
    g->offset = 0;
    g->flags |= MLC__DENSE | MLC__PERMUTED;
}

/* Opens the gradient of t for writing: *accumulate tells whether to add or to overwrite. */
static mlc_status mlc__grad_open(mlc_tensor *t, mlc_tensor *g, bool *accumulate)
{
    mlc_tensor *base = mlc__base(t);
    const bool fresh = base->grad && base->grad_fresh;
    if (!base->grad) MLC__TRY(mlc__grad_alloc(base));
    *accumulate = fresh;
    /* Set before the write: callers must write, or fail the whole backward. */
    base->grad_fresh = 1;
    if (!fresh && t != base && mlc__numel(t) != mlc__numel(base)) { /* a part: clear the rest */
        mlc_tensor whole;
        mlc__grad_view(base, &whole);
        MLC__TRY(mlc__fill(t->ctx, "backward", &whole, 0.0, 0.0));
        *accumulate = true;
    }
    mlc__grad_view(t, g);
    return MLC_OK;
}

/* Did input i want a gradient when nd was recorded? What was saved follows from that. */
MLC__INLINE bool mlc__needs(const mlc_node *nd, int i) { return (nd->need >> i & 1u) != 0; }

/* Gradient of nd's input i, if it is wanted (and has not been frozen since). */
static bool mlc__grad_in(mlc_node *nd, int i, mlc_tensor *g, bool *accumulate, mlc_status *st)
{
    if (*st != MLC_OK || !mlc__needs(nd, i) || !mlc__wants_grad(nd->in[i])) return false;
    *st = mlc__grad_open(nd->in[i], g, accumulate);
    return *st == MLC_OK;
}

/* After its backward: gradients of its outputs have been used, saved memory is one user poorer. In
 * place the gradient has become that of the old values. */
static void mlc__node_release(mlc_node *nd)
{
    for (int i = 0; i < nd->n_out && !nd->inplace; i++) {
        if (!nd->out[i]->grad) continue;
        mlc__storage_release(nd->out[i]->grad);
        nd->out[i]->grad = NULL;
        nd->out[i]->grad_fresh = 0;
    }
    mlc__node_unsave(nd);
}

/* Checks first, so that a node that cannot run has changed nothing. */
static mlc_status mlc__node_backward(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__REQUIRE(ctx, !nd->done, STATE,
                 "backward: a second time through '%s', whose saved tensors are "
                 "freed (or its module or loader is); run its forward again",
                 nd->op->name);
    for (int i = 0; i < nd->n_saved; i++) {
        if (nd->saved[i].t->storage->closed) return mlc__alive(nd->saved[i].t, "backward");
        MLC__REQUIRE(
            ctx, nd->saved[i].t->storage->version == nd->saved[i].version, VALUE,
            "backward of %s: saved tensor %s was overwritten (version %u, saved at %u); copy it "
            "before",
            nd->op->name, mlc__shape(nd->saved[i].t).s, nd->saved[i].t->storage->version,
            nd->saved[i].version);
    }
    MLC__TRY(nd->op->backward(ctx, nd));
    for (int i = 0; ctx->anomaly && i < nd->n_in; i++) {
        mlc_tensor g, *base = mlc__base(nd->in[i]);
        if (!mlc__wants_grad(nd->in[i]) || !base->grad) continue;
        mlc__grad_view(base, &g);
        MLC__TRY(mlc__anomaly_check(ctx, &g, nd->op->name, "backward"));
    }
    return MLC_OK;
}

/* A parameter or a loader's batch goes: what was recorded with it cannot run backward any more. */
static void mlc__tape_forget(mlc_ctx *ctx, const mlc_tensor *base)
{
    for (mlc_node *nd = ctx->tape; nd; nd = nd->prev) {
        bool uses = false;
        for (int i = 0; i < nd->n_in; i++) uses = uses || mlc__base(nd->in[i]) == base;
        if (!uses) continue;
        mlc__node_unsave(nd);
        nd->n_in = 0;
        nd->need = 0;
    }
}

/* After a failure: gradients that may be half made are stale, and parameters block their optimizer,
 * which could not tell a missing gradient from one that was lost. */
static void mlc__tape_abandon(mlc_node *from)
{
    for (mlc_node *nd = from; nd; nd = nd->prev) {
        for (int i = 0; i < nd->n_in; i++) {
            mlc_tensor *base = mlc__base(nd->in[i]);
            if (base->flags & MLC__PARAM) ((mlc__param *)base)->half = true;
            base->grad_fresh = 0;
        }
        for (int i = 0; i < nd->n_out; i++) {
            if (nd->out[i]->grad) mlc__storage_release(nd->out[i]->grad);
            nd->out[i]->grad = NULL;
        }
    }
}

/* The seed of backward: dy, or ones. */
static mlc_status mlc__backward_seed(mlc_ctx *ctx, mlc_tensor *y, mlc_tensor *dy)
{
    mlc_tensor g;
    bool accumulate;
    MLC__TRY(mlc__grad_open(y, &g, &accumulate));
    if (dy) return mlc__map(ctx, "backward", MLC_MAP_COPY, &g, dy, NULL, NULL, 0.0, accumulate);
    if (accumulate) return mlc__map(ctx, "backward", MLC_MAP_ADD_S, &g, &g, NULL, NULL, 1.0, false);
    return mlc__set(ctx, "backward", &g, 1.0);
}

/* From y's node back: a node without a gradient at any output is not on the way to a leaf from y.
 * Later nodes than y's cannot have made y. */
static mlc_status mlc__backward_run(mlc_ctx *ctx, mlc_tensor *y, mlc_tensor *dy)
{
    MLC__TRY(mlc__backward_seed(ctx, y, dy));
    for (mlc_node *nd = mlc__base(y)->node; nd; nd = nd->prev) {
        bool reached = false;
        for (int i = 0; i < nd->n_out; i++) reached = reached || mlc__base(nd->out[i])->grad;
        if (!reached) continue;
        MLC__TRY(mlc__node_backward(ctx, nd));
        mlc__node_release(nd);
    }
    return MLC_OK;
}

/* An error that stands is returned, nothing is done: the loss may be part of what failed. */
MLC_IMPL mlc_status mlc_backward_from(mlc_tensor *y, mlc_tensor *dy)
{
    mlc_ctx *ctx = y ? y->ctx : dy ? dy->ctx : NULL;
    if (!ctx) return MLC_ERR_ARG;
    if (ctx->status != MLC_OK) return ctx->status;
    MLC__REQUIRE(ctx, y != NULL, ARG, "backward: y is NULL; look at what should have made it");
    MLC__REQUIRE(ctx, mlc__wants_grad(y), STATE,
                 "backward: nothing that y was made from requires a "
                 "gradient (or it was made under no-grad)");
    MLC__REQUIRE(ctx, !dy || dy->ctx == ctx, ARG,
                 "backward: dy belongs to another context; make it in that of y");
    if (dy) MLC__TRY(mlc__alive(dy, "backward"));
    MLC__REQUIRE(ctx, !dy || dy->dtype == y->dtype, DTYPE, "backward: y is %s, dy %s; cast dy",
                 mlc_dtype_name(y->dtype), dy ? mlc_dtype_name(dy->dtype) : "");
    MLC__REQUIRE(ctx, !dy || (mlc__broadcasts(dy, y)), SHAPE,
                 "backward: dy %s does not fit y %s; it must broadcast to it",
                 dy ? mlc__shape(dy).s : "", mlc__shape(y).s);
    MLC__TRY(mlc__error_word_read(ctx));
    if (ctx->dry_run) return MLC_OK;
    const uint32_t mode = mlc__flush_begin();
    /* Custom operations call mlc_ functions in here: they must not be recorded. */
    ctx->no_grad++;
    const mlc_status st = mlc__backward_run(ctx, y, dy);
    ctx->no_grad--;
    mlc__flush_end(mode);
    if (st != MLC_OK) mlc__tape_abandon(mlc__base(y)->node);
    return st;
}

MLC_IMPL mlc_status mlc_backward(mlc_tensor *loss)
{
    if (!loss) return MLC_ERR_ARG;
    if (loss->ctx->status != MLC_OK) return loss->ctx->status;
    MLC__REQUIRE(
        loss->ctx, mlc__numel(loss) == 1, SHAPE,
        "backward: the loss is %s; it must have one element (or give mlc_backward_from its "
        "gradient)",
        mlc__shape(loss).s);
    return mlc_backward_from(loss, NULL);
}

/* On a parameter this freezes or unfreezes it: see mlc_module_freeze. */
MLC_IMPL mlc_status mlc_set_requires_grad(mlc_tensor *t, bool on)
{
    if (!t) return MLC_ERR_ARG;
    MLC__REQUIRE(t->ctx, mlc__is_float(t->dtype), DTYPE,
                 "set_requires_grad: the tensor is %s; only floats have gradients",
                 mlc_dtype_name(t->dtype));
    MLC__REQUIRE(t->ctx, !(t->flags & MLC__PARAM) || !((mlc__param *)t)->buffer || !on, ARG,
                 "set_requires_grad: '%s' is a buffer; declare it as a parameter",
                 ((mlc__param *)t)->name);
    MLC__REQUIRE(t->ctx, !t->node && (!t->base || !mlc__wants_grad(t)), STATE,
                 "set_requires_grad: the tensor is the result of an operation; detach it first");
    if (t->base) {                     /* a view of what needs no gradient: a leaf of its own */
        t->base = NULL;
        t->storage->aliased = true;
    }
    t->flags = on ? t->flags | MLC__REQUIRES_GRAD : t->flags & ~MLC__REQUIRES_GRAD;
    return MLC_OK;
}

MLC_IMPL bool mlc_requires_grad(const mlc_tensor *t) { return t && mlc__wants_grad(t); }

MLC_IMPL mlc_tensor *mlc_grad(mlc_tensor *t)
{
    mlc_tensor *base, *g;
    if (!t) return NULL;
    base = mlc__base(t);
    /* The gradient of a result is gone by now, and never was anyone else's. */
    if (!base->grad || base->node || !base->grad_fresh) return NULL;
    g = MLC__CAST(mlc_tensor *, mlc__arena(t->ctx, t->ctx->depth, sizeof *g));
    if (g) mlc__grad_view(t, g);
    return g;
}

/* No memory is touched: the next first write overwrites. */
MLC_IMPL void mlc_zero_grad(mlc_tensor *t)
{
    if (t) mlc__base(t)->grad_fresh = 0;
}

MLC_IMPL void mlc_no_grad_begin(mlc_ctx *ctx) { if (ctx) ctx->no_grad++; }
MLC_IMPL void mlc_no_grad_end(mlc_ctx *ctx) { if (ctx && ctx->no_grad > 0) ctx->no_grad--; }
MLC_IMPL void mlc_anomaly(mlc_ctx *ctx, bool on) { if (ctx) ctx->anomaly = on; }

/* Inputs from `first` on are of one dtype: there is no promotion. The message names the cast. */
static mlc_status mlc__require_same(mlc_ctx *ctx, const mlc_node *nd, int first)
{
    for (int i = first + 1; i < nd->n_in; i++)
        MLC__REQUIRE(ctx, nd->in[i]->dtype == nd->in[first]->dtype, DTYPE,
                     "%s: input %d is %s, input %d is %s; cast one of them with mlc_cast",
                     nd->op->name, first + 1, mlc_dtype_name(nd->in[first]->dtype), i + 1,
                     mlc_dtype_name(nd->in[i]->dtype));
    return MLC_OK;
}

/* Every input float, all of one dtype. */
static mlc_status mlc__require_float(mlc_ctx *ctx, const mlc_node *nd)
{
    for (int i = 0; i < nd->n_in; i++)
        MLC__REQUIRE(ctx, mlc__is_float(nd->in[i]->dtype), DTYPE,
                     "%s: input %d is %s, not a float; write mlc_cast(x, MLC_F32)", nd->op->name,
                     i + 1, mlc_dtype_name(nd->in[i]->dtype));
    return mlc__require_same(ctx, nd, 0);
}

/* @@ IMPL.OPS.VIEW --------------------------------------- other shapes over the same memory
 * A view of a base whose gradient lies as it does shares that gradient and needs no node. Where the
 * base has holes or repeats (expand, wrapped memory) the view is an operation of its own.      */

/* Strides of t's elements in a new shape without copying; false if there are none. */
static bool mlc__reshape_strides(const mlc_tensor *t, int32_t ndim, const int64_t *shape,
                                 int64_t *stride)
{
    int32_t old = 0, now = 0;
    int64_t os[MLC_MAX_DIMS], ot[MLC_MAX_DIMS];
    int32_t n = 0;
    if (t->flags & MLC__DENSE) { mlc__row_major(ndim, shape, stride); return true; }
    for (int32_t d = 0; d < t->ndim; d++)
        if (t->shape[d] != 1) { os[n] = t->shape[d]; ot[n++] = t->stride[d]; }
    while (old < n && now < ndim) {    /* groups of axes with the same number of elements */
        int64_t a = os[old], b = shape[now];
        int32_t old_end = old + 1, now_end = now + 1;
        while (a != b) {
            if (a < b) { if (old_end == n) return false; a *= os[old_end++]; }
            else { if (now_end == ndim) return false; b *= shape[now_end++]; }
        }
        for (int32_t d = old; d + 1 < old_end; d++)
            if (ot[d] != ot[d + 1] * os[d + 1]) return false;
        int64_t step = ot[old_end - 1];
        for (int32_t d = now_end - 1; d >= now; d--) { stride[d] = step; step *= shape[d]; }
        old = old_end;
        now = now_end;
    }
    for (; now < ndim; now++) stride[now] = 1;             /* axes of size 1 */
    return true;
}

/* A bit for each axis of a list; no axes at all means all of them. */
static mlc_status mlc__axes_mask(mlc_tensor *x, const char *what, mlc_dims axes, uint32_t *mask)
{
    uint32_t seen = 0;
    MLC__REQUIRE(x->ctx, axes.n >= 0 && axes.n <= MLC_MAX_DIMS, SHAPE, "%s: %d axes named, %s has "
                 "%d; name each once, or none for all", what, axes.n, mlc__shape(x).s, x->ndim);
    for (int32_t i = 0; i < axes.n; i++) {
        int32_t axis = (int32_t)axes.v[i];
        MLC__REQUIRE(x->ctx, axis == axes.v[i], SHAPE, "%s: %s has no axis %lld; it has %d axes",
                     what, mlc__shape(x).s, (long long)axes.v[i], x->ndim);
        if (!mlc__axis_of(x, what, &axis)) return x->ctx->status;
        MLC__REQUIRE(x->ctx, !(seen >> axis & 1u), SHAPE, "%s: axis %d of %s is named twice; "
                     "name each once", what, axis, mlc__shape(x).s);
        seen |= 1u << axis;
    }
    *mask = (axes.n == 0 ? ~0u : seen) & ((1u << x->ndim) - 1);
    return MLC_OK;
}

/* Applies a view to a geometry in place; false only for a reshape that would have to copy. */
static bool mlc__view_apply(const mlc__view_spec *v, mlc_tensor *t)
{
    int64_t stride[MLC_MAX_DIMS] = { 0 };
    const mlc_tensor from = *t;
    t->ndim = v->ndim;
    switch (v->kind) {
    case MLC__RESHAPE:
        if (!mlc__reshape_strides(&from, v->ndim, v->dims, stride)) { *t = from; return false; }
        for (int32_t d = 0; d < v->ndim; d++) {
            t->shape[d] = v->dims[d];
            t->stride[d] = stride[d];
        }
        break;
    case MLC__PERMUTE:
        for (int32_t d = 0; d < v->ndim; d++) {
            t->shape[d] = from.shape[v->dims[d]];
            t->stride[d] = from.stride[v->dims[d]];
        }
        break;
    case MLC__SLICE:
        t->offset += v->start * from.stride[v->axis];
        t->shape[v->axis] = v->dims[0];
        t->stride[v->axis] *= v->step;
        break;
    case MLC__SELECT:
        t->offset += v->start * from.stride[v->axis];
        for (int32_t d = v->axis; d < v->ndim; d++) {
            t->shape[d] = from.shape[d + 1];
            t->stride[d] = from.stride[d + 1];
        }
        break;
    case MLC__EXPAND:
        for (int32_t d = 0; d < v->ndim; d++) {
            const int32_t i = d - (v->ndim - from.ndim);
            t->shape[d] = v->dims[d];
            t->stride[d] = i >= 0 && from.shape[i] == v->dims[d] ? from.stride[i] : 0;
        }
        break;
    case MLC__UNFOLD:
        t->shape[v->axis] = v->dims[0];
        t->stride[v->axis] *= v->step;
        t->shape[from.ndim] = v->dims[1];
        t->stride[from.ndim] = from.stride[v->axis];
        break;
    case MLC__DIAGONAL:
        if (v->dims[0])
            t->offset += v->start * from.stride[v->ndim - 1] + v->step * from.stride[v->ndim];
        t->shape[v->ndim - 1] = v->dims[0];
        t->stride[v->ndim - 1] += from.stride[v->ndim];
        break;
    }
    mlc__mark_layout(t);
    return true;
}

/* The view as an operation: an output over the input's memory that is a base of its own. */
static mlc_status mlc__view_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *t = mlc__alias(ctx, nd->in[0]);
    if (!t) return MLC_ERR_NOMEM;
    mlc__view_apply(&nd->u.view, t);
    t->storage->aliased = true;        /* its gradient is its own */
    nd->out[nd->n_out++] = t;
    return MLC_OK;
}

/* Windows may overlap: they are added one at a time, or the first element of all of them, then the
 * second, whichever takes fewer passes. */
static mlc_status mlc__unfold_backward(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *dx,
                                       const mlc_tensor *dy)
{
    const mlc__view_spec *v = &nd->u.view;
    const int64_t windows = v->dims[0], size = v->dims[1];
    const bool by_window = windows < size;
    const int32_t last = dy->ndim - 1;
    for (int64_t i = 0; i < mlc__min(windows, size); i++) {
        mlc_tensor to = *dx, from = *dy;
        from.ndim = last;
        from.offset += i * dy->stride[by_window ? v->axis : last];
        if (by_window) {
            from.shape[v->axis] = size;
            from.stride[v->axis] = dy->stride[last];
        }
        to.offset += i * (by_window ? v->step : 1) * dx->stride[v->axis];
        to.shape[v->axis] = by_window ? size : windows;
        to.stride[v->axis] *= by_window ? 1 : v->step;
        mlc__mark_layout(&to);
        mlc__mark_layout(&from);
        MLC__TRY(mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &to, &from, NULL, NULL, 0.0, true));
    }
    return MLC_OK;
}

/* dx seen through the same view += dy; expand and unfold sum. */
static mlc_status mlc__view_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (nd->u.view.kind == MLC__EXPAND) return mlc__sum_to(ctx, nd->op->name, &dx, &dy, acc);
    /* A part of a stale gradient: the rest of it is zero. */
    if (!acc && (nd->u.view.kind == MLC__UNFOLD || mlc__numel(&dx) != mlc__numel(&dy))) {
        MLC__TRY(mlc__set(ctx, nd->op->name, &dx, 0.0));
        acc = true;
    }
    if (nd->u.view.kind == MLC__UNFOLD) return mlc__unfold_backward(ctx, nd, &dx, &dy);
    mlc__view_apply(&nd->u.view, &dx);
    return mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &dy, NULL, NULL, 0.0, acc);
}

static const mlc__op mlc__view_op = { "view", mlc__view_shape, NULL, mlc__view_backward };

/* A view that shares its base's gradient, or an operation where it cannot. */
static mlc_tensor *mlc__view(mlc_tensor *x, const mlc__view_spec *spec)
{
    mlc_ctx *ctx = x->ctx;
    const bool wants = mlc__wants_grad(x) && ctx->no_grad == 0;
    const bool shares = (mlc__base(x)->flags & MLC__PERMUTED) && spec->kind != MLC__EXPAND &&
                        spec->kind != MLC__UNFOLD;
    mlc_node local, *nd;
    mlc_tensor *t;
    if (wants && !shares) {
        nd = mlc__begin(&local, &mlc__view_op, 1, x, NULL, NULL);
        if (!nd) return NULL;
        nd->u.view = *spec;
        return mlc__finish(nd);
    }
    if (mlc__alive(x, "view") != MLC_OK) return NULL;
    t = mlc__alias(ctx, x);
    if (!t) return NULL;
    /* Also where no gradient is wanted: a change in place may make the base a result later. */
    if (shares && ctx->no_grad == 0) {
        t->base = mlc__base(x);
        t->node = x->node;
    } else {
        t->storage->aliased = true;
    }
    mlc__view_apply(spec, t);
    return t;
}

/* Fills in the one -1 of a new shape and checks the number of elements. */
static mlc_status mlc__reshape_resolve(mlc_tensor *x, mlc_dims *shape)
{
    const mlc__text from = mlc__shape(x), to = mlc__shape_text(shape->n, shape->v);
    int32_t unknown = -1;
    int64_t known = 1;
    MLC__REQUIRE(x->ctx, shape->n >= 0 && shape->n <= MLC_MAX_DIMS, ARG,
                 "reshape: %d axes; a tensor has at most %d", shape->n, MLC_MAX_DIMS);
    for (int32_t d = 0; d < shape->n; d++) {
        const int64_t size = shape->v[d];
        MLC__REQUIRE(x->ctx, size >= -1 && (size != -1 || unknown < 0), SHAPE,
                     "reshape: %s to %s: sizes must be 0 or more, at most one -1 for what is left",
                     from.s, to.s);
        if (size == -1) { unknown = d; continue; }
        MLC__REQUIRE(x->ctx, !__builtin_mul_overflow(known, size, &known), SHAPE,
                     "reshape: %s to %s: more elements than memory can hold", from.s, to.s);
    }
    const int64_t n = mlc__numel(x);
    const bool fits = unknown < 0 ? known == n : known != 0 && n % known == 0;
    MLC__REQUIRE(x->ctx, fits, SHAPE, "reshape: %s has %lld elements and does not fit %s; its "
                 "sizes must make as many", from.s, (long long)n, to.s);
    if (unknown >= 0) shape->v[unknown] = n / known;
    MLC__REQUIRE(x->ctx, mlc__fits(shape->n, shape->v), SHAPE, "reshape: %s to %s: too large",
                 from.s, to.s);
    return MLC_OK;
}

MLC_IMPL mlc_tensor *mlc_reshape(mlc_tensor *x, mlc_dims shape)
{
    mlc__view_spec v = { MLC__RESHAPE, 0, shape.n, 0, 0, { 0 } };
    mlc_tensor probe;
    if (!x || mlc__reshape_resolve(x, &shape) != MLC_OK) return NULL;
    memcpy(v.dims, shape.v, sizeof v.dims);
    probe = *x;
    /* Tried on a copy of the struct first; a recorded copy where strides cannot say it, as in
     * PyTorch. */
    if (!mlc__view_apply(&v, &probe)) x = mlc_copy(x);
    return x ? mlc__view(x, &v) : NULL;
}

/* A scalar becomes [1], as in PyTorch. */
MLC_IMPL mlc_tensor *mlc_flatten(mlc_tensor *x, int32_t first_axis)
{
    mlc_dims shape;
    if (!x) return NULL;
    if (x->ndim == 0) return mlc_reshape(x, mlc_dims1(1));
    if (!mlc__axis_ok(x, "flatten", &first_axis)) return NULL;
    shape = mlc_dims_of(first_axis + 1, x->shape);
    shape.v[first_axis] = mlc__product(x->ndim - first_axis, x->shape + first_axis);
    return mlc_reshape(x, shape);
}

/* A bit for each axis that occurs: with n axes given and all n bits set each occurs once. */
MLC_IMPL mlc_tensor *mlc_permute(mlc_tensor *x, mlc_dims axes)
{
    mlc__view_spec v = { MLC__PERMUTE, 0, axes.n, 0, 0, { 0 } };
    uint32_t seen = 0;
    if (!x) return NULL;
    for (int32_t d = 0; d < axes.n && d < MLC_MAX_DIMS; d++) {
        const int64_t a = axes.v[d] < 0 ? axes.v[d] + x->ndim : axes.v[d];
        if (a >= 0 && a < x->ndim) seen |= 1u << a;
        v.dims[d] = a;
    }
    if (axes.n != x->ndim || seen != (1u << x->ndim) - 1) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, "permute: %s is no order of the %d axes of %s; name each "
                  "once", mlc__shape_text(axes.n, axes.v).s, x->ndim, mlc__shape(x).s);
        return NULL;
    }
    return mlc__view(x, &v);
}

MLC_IMPL mlc_tensor *mlc_transpose(mlc_tensor *x, int32_t axis_a, int32_t axis_b)
{
    mlc_dims axes;
    if (!x || !mlc__axis_ok(x, "transpose", &axis_a) || !mlc__axis_ok(x, "transpose", &axis_b))
        return NULL;
    axes = mlc_dims_of(x->ndim, NULL);
    for (int32_t d = 0; d < x->ndim; d++) axes.v[d] = d;
    axes.v[axis_a] = axis_b;
    axes.v[axis_b] = axis_a;
    return mlc_permute(x, axes);
}

MLC_IMPL mlc_tensor *mlc_slice(mlc_tensor *x, int32_t axis, int64_t start, int64_t stop,
                               int64_t step)
{
    mlc__view_spec v = { MLC__SLICE, 0, 0, 0, step, { 0 } };
    if (!x || !mlc__axis_ok(x, "slice", &axis)) return NULL;
    if (step < 1) {
        mlc__fail(x->ctx, MLC_ERR_ARG, "slice: step %lld; it must be positive", (long long)step);
        return NULL;
    }
    /* Python's rules: out of range is clamped, never an error. */
    const int64_t n = x->shape[axis];
    start = start < 0 ? mlc__max(0, start + n) : mlc__min(start, n);
    stop = stop < 0 ? mlc__max(0, stop + n) : mlc__min(stop, n);
    v.axis = axis;
    v.ndim = x->ndim;
    v.start = start;
    v.dims[0] = stop > start ? (stop - start - 1) / step + 1 : 0;
    if (v.dims[0] == 0) v.start = 0;
    if (v.dims[0] <= 1) v.step = 1;    /* a huge step must not overflow the stride */
    return mlc__view(x, &v);
}

MLC_IMPL mlc_tensor *mlc_select(mlc_tensor *x, int32_t axis, int64_t index)
{
    mlc__view_spec v = { MLC__SELECT, 0, 0, 0, 0, { 0 } };
    if (!x || !mlc__axis_ok(x, "select", &axis)) return NULL;
    const int64_t n = x->shape[axis];
    if (index < -n || index >= n) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, "select: index %lld is outside axis %d of %s; "
                  "it must be from %lld to %lld", (long long)index, axis, mlc__shape(x).s,
                  -(long long)x->shape[axis], (long long)x->shape[axis] - 1);
        return NULL;
    }
    v.axis = axis;
    v.ndim = x->ndim - 1;
    v.start = index < 0 ? index + n : index;
    return mlc__view(x, &v);
}

/* An expanded view overlaps itself: writing to it is for nobody, and its gradient is summed. */
MLC_IMPL mlc_tensor *mlc_expand(mlc_tensor *x, mlc_dims shape)
{
    mlc__view_spec v = { MLC__EXPAND, 0, shape.n, 0, 0, { 0 } };
    bool same;
    if (!x) return NULL;
    same = shape.n == x->ndim;
    bool fits = shape.n >= x->ndim && shape.n <= MLC_MAX_DIMS;
    for (int32_t d = 0; fits && d < shape.n; d++) {
        const int32_t i = d - (shape.n - x->ndim);
        if (i >= 0 && shape.v[d] == -1) shape.v[d] = x->shape[i];
        fits = shape.v[d] >= 0 && (i < 0 || x->shape[i] == 1 || x->shape[i] == shape.v[d]);
        same = same && i >= 0 && x->shape[i] == shape.v[d];
        v.dims[d] = shape.v[d];
    }
    if (!fits) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE,
                  "expand: %s does not expand to %s: sizes must be equal or 1", mlc__shape(x).s,
                  mlc__shape_text(shape.n, shape.v).s);
        return NULL;
    }
    if (mlc__shape_check(x->ctx, "expand", x->dtype, shape) != MLC_OK) return NULL;
    return same ? x : mlc__view(x, &v);
}

MLC_IMPL mlc_tensor *mlc_detach(mlc_tensor *x)
{
    if (!x || mlc__alive(x, "detach") != MLC_OK) return NULL;
    x->storage->aliased = true;
    return mlc__alias(x->ctx, x);
}

/* -- axes that come, go and move -- */

/* Resolves the place of a new axis: one more than the axes there are, -1 is the last. */
static bool mlc__new_axis_ok(mlc_tensor *x, const char *what, int32_t *axis)
{
    const int32_t a = *axis < 0 ? *axis + x->ndim + 1 : *axis;
    if (a < 0 || a > x->ndim || x->ndim == MLC_MAX_DIMS) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, "%s: %s has no room for a new axis %d; its place "
                  "must be from %d to %d, and axes are at most %d", what, mlc__shape(x).s, *axis,
                  -x->ndim - 1, x->ndim, MLC_MAX_DIMS);
        return false;
    }
    *axis = a;
    return true;
}

MLC_IMPL mlc_tensor *mlc_unsqueeze(mlc_tensor *x, int32_t axis)
{
    mlc_dims shape;
    if (!x || !mlc__new_axis_ok(x, "unsqueeze", &axis)) return NULL;
    shape = mlc_dims_of(x->ndim + 1, NULL);
    for (int32_t d = 0; d < shape.n; d++)
        shape.v[d] = d == axis ? 1 : x->shape[d > axis ? d - 1 : d];
    return mlc_reshape(x, shape);
}

/* An axis that is not 1 stays, and a scalar has axis 0 and -1, as in PyTorch. */
MLC_IMPL mlc_tensor *mlc_squeeze(mlc_tensor *x, int32_t axis)
{
    if (x && x->ndim == 0 && (axis == 0 || axis == -1)) return x;
    if (!x || !mlc__axis_ok(x, "squeeze", &axis)) return NULL;
    return x->shape[axis] == 1 ? mlc_select(x, axis, 0) : x;
}

MLC_IMPL mlc_tensor *mlc_movedim(mlc_tensor *x, int32_t from, int32_t to)
{
    mlc_dims axes;
    if (!x || !mlc__axis_ok(x, "movedim", &from) || !mlc__axis_ok(x, "movedim", &to)) return NULL;
    axes = mlc_dims_of(x->ndim, NULL);
    for (int32_t d = 0, next = 0; d < x->ndim; d++) {
        if (d == to) { axes.v[d] = from; continue; }
        if (next == from) next++;
        axes.v[d] = next++;
    }
    return mlc_permute(x, axes);
}

MLC_IMPL mlc_tensor *mlc_unfold(mlc_tensor *x, int32_t axis, int64_t size, int64_t step)
{
    mlc__view_spec v = { MLC__UNFOLD, 0, 0, 0, step, { 0 } };
    if (!x || !mlc__axis_ok(x, "unfold", &axis)) return NULL;
    if (step < 1 || size < 0 || size > x->shape[axis] || x->ndim == MLC_MAX_DIMS) {
        mlc__fail(x->ctx, step < 1 || size < 0 ? MLC_ERR_ARG : MLC_ERR_SHAPE,
                  "unfold: windows of %lld at steps of %lld do not fit axis %d of %s; they must be "
                  "0 to %lld long, 1 or more apart, and there must be less than %d axes",
                  (long long)size, (long long)step, axis, mlc__shape(x).s,
                  (long long)x->shape[axis], MLC_MAX_DIMS);
        return NULL;
    }
    v.axis = axis;
    v.ndim = x->ndim + 1;
    v.dims[0] = (x->shape[axis] - size) / step + 1;
    v.dims[1] = size;
    if (v.dims[0] == 1) v.step = 1;    /* a huge step must not overflow the stride */
    return mlc__view(x, &v);
}

/* The diagonal of rows x columns that begins offset columns to the right (rows down if < 0). */
static mlc__view_spec mlc__diagonal_spec(int32_t ndim, int64_t rows, int64_t columns,
                                         int64_t offset)
{
    mlc__view_spec v = { MLC__DIAGONAL, 0, ndim - 1, 0, 0, { 0 } };
    v.start = offset < 0 ? mlc__min(rows, -mlc__max(offset, -rows)) : 0;
    v.step = offset > 0 ? mlc__min(columns, offset) : 0;
    v.dims[0] = mlc__min(rows - v.start, columns - v.step);
    return v;
}

MLC_IMPL mlc_tensor *mlc_diagonal(mlc_tensor *x, int64_t offset)
{
    if (!x) return NULL;
    if (x->ndim < 2) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, "diagonal: %s is no matrix; it takes two axes or more",
                  mlc__shape(x).s);
        return NULL;
    }
    const mlc__view_spec v = mlc__diagonal_spec(x->ndim, x->shape[x->ndim - 2],
                                                x->shape[x->ndim - 1], offset);
    return mlc__view(x, &v);
}

/* Writes through the diagonal of a matrix of zeros. */
MLC_IMPL mlc_tensor *mlc_eye(mlc_ctx *ctx, mlc_dtype dtype, int64_t n, int64_t m)
{
    mlc_tensor *t = mlc__make(ctx, "eye", dtype, mlc_dims2(n, m)), line;
    if (!t || mlc__fill(ctx, "eye", t, 0.0, 0.0) != MLC_OK) return NULL;
    if (ctx->dry_run || mlc__numel(t) == 0) return t;
    const mlc__view_spec v = mlc__diagonal_spec(2, n, m, 0);
    line = *t;
    mlc__view_apply(&v, &line);
    return mlc__set(ctx, "eye", &line, 1.0) == MLC_OK ? t : NULL;
}

/* Axis i of every grid is that of input i; a scalar counts as one element. */
MLC_IMPL mlc_status mlc_meshgrid(mlc_tensor *const *in, int32_t n, mlc_tensor **out)
{
    mlc_ctx *ctx = n > 0 && in ? mlc__inputs("meshgrid", n, in) : NULL;
    mlc_dims wide = mlc_dims_of(n, NULL), thin;
    if (!ctx) return MLC_ERR_ARG;
    for (int32_t i = 0; out && i < n; i++) out[i] = NULL;
    MLC__REQUIRE(ctx, out != NULL, ARG, "meshgrid: out is NULL; it takes %d views", n);
    MLC__REQUIRE(ctx, n <= MLC_MAX_DIMS, SHAPE, "meshgrid: %d inputs; a grid has at most %d axes",
                 n, MLC_MAX_DIMS);
    for (int32_t i = 0; i < n; i++) {
        MLC__REQUIRE(ctx, in[i]->ndim <= 1, SHAPE, "meshgrid: input %d is %s; it must be 1-d",
                     i + 1, mlc__shape(in[i]).s);
        MLC__REQUIRE(ctx, in[i]->dtype == in[0]->dtype, DTYPE,
                     "meshgrid: input 1 is %s, input %d is %s; cast one of them with mlc_cast",
                     mlc_dtype_name(in[0]->dtype), i + 1, mlc_dtype_name(in[i]->dtype));
        wide.v[i] = mlc__numel(in[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        thin = mlc_dims_of(n, NULL);
        for (int32_t d = 0; d < n; d++) thin.v[d] = d == i ? wide.v[i] : 1;
        out[i] = mlc_expand(mlc_reshape(in[i], thin), wide);
        if (out[i]) continue;
        for (int32_t k = 0; k < i; k++) out[k] = NULL;
        return ctx->status;
    }
    return MLC_OK;
}

/* @@ IMPL.OPS.COPY --------------------------------------- copy, contiguous, cast
 * One kernel does all three: the strided cast. contiguous is a copy only where it must be. */

static mlc_status mlc__copy_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    return mlc__out(ctx, nd, x->dtype, x->ndim, x->shape);
}

/* Shared by copy and cast: the cast kernel copies where the dtypes are equal. */
static mlc_status mlc__copy_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__cast_into(ctx, nd->op->name, nd->out[0], nd->in[0]);
}

/* Adding needs one dtype: across dtypes dy is cast to a temporary first. */
static mlc_status mlc__copy_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (dx.dtype == dy.dtype)
        return mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &dy, NULL, NULL, 0.0, acc);
    if (!acc) return mlc__cast_into(ctx, nd->op->name, &dx, &dy);
    mlc__temp cast;
    MLC__TRY(mlc__temp_begin(ctx, &cast, dx.dtype, dx.ndim, dx.shape));
    st = mlc__cast_into(ctx, nd->op->name, &cast.t, &dy);
    if (!st) st = mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &cast.t, NULL, NULL, 0.0, true);
    mlc__temp_end(&cast);
    return st;
}

static const mlc__op mlc__copy_op = { "copy", mlc__copy_shape, mlc__copy_forward,
                                      mlc__copy_backward };

MLC_IMPL mlc_tensor *mlc_copy(mlc_tensor *x)
{
    mlc_node local, *nd = mlc__begin(&local, &mlc__copy_op, 1, x, NULL, NULL);
    return nd ? mlc__finish(nd) : NULL;
}

MLC_IMPL mlc_tensor *mlc_contiguous(mlc_tensor *x)
{
    return !x || (x->flags & MLC__DENSE) ? x : mlc_copy(x);
}

static mlc_status mlc__cast_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    return mlc__out(ctx, nd, nd->u.dtype, x->ndim, x->shape);
}

/* The copy of another dtype: only the shape rule differs. */
static const mlc__op mlc__cast_op = { "cast", mlc__cast_shape, mlc__copy_forward,
                                      mlc__copy_backward };

/* To the dtype it has: x itself, nothing recorded, as Tensor.to. */
MLC_IMPL mlc_tensor *mlc_cast(mlc_tensor *x, mlc_dtype dtype)
{
    mlc_node local, *nd;
    if (x && (unsigned)dtype >= MLC_DTYPE_COUNT) {
        mlc__fail(x->ctx, MLC_ERR_DTYPE, "cast: unknown dtype %d; it is one of MLC_F32 to "
                  "MLC_BOOL", (int)dtype);
        return NULL;
    }
    if (x && x->dtype == dtype) return x;
    nd = mlc__begin(&local, &mlc__cast_op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    nd->u.dtype = dtype;
    return mlc__finish(nd);
}

/* @@ IMPL.OPS.UNARY -------------------------------------- y = f(x): one row a function
 * All have one shape rule, forward and backward: they take the maps and what to save from the row,
 * whose first field is the node's descriptor. Saving y where the derivative can be had from it
 * (tanh, sigmoid, exp, relu, sqrt) lets x go. */

/* apply: of the kernel that has the formula; a backward formula may be one of map's all the same.
 * MLC_MATH_END as a derivative: it is 0 everywhere. */
typedef struct mlc__unary {
    mlc__op      op;
    mlc__apply_fn apply;
    mlc_map      forward, backward;
    char         saved;                /* second input of backward: 'x', 'y' or 0 for none */
} mlc__unary;

MLC__INLINE mlc__apply_fn mlc__apply_of(mlc__apply_fn row, mlc_map formula)
{
    return formula < MLC_MAP_COUNT ? mlc__apply_map : row;
}

/* Saves x or y, whichever the row names. */
static mlc_status mlc__unary_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__unary *u = (const mlc__unary *)(const void *)nd->op;
    mlc_tensor *x = nd->in[0];
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, x->shape));
    if (u->saved) mlc__save(nd, u->saved == 'x' ? x : nd->out[0]);
    return MLC_OK;
}

static mlc_status mlc__unary_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__unary *u = (const mlc__unary *)(const void *)nd->op;
    return u->apply(ctx, nd->op->name, u->forward, nd->out[0], nd->in[0], NULL, NULL, nd->u.s,
                    false);
}

static mlc_status mlc__unary_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__unary *u = (const mlc__unary *)(const void *)nd->op;
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (u->backward == MLC_MATH_END) return acc ? MLC_OK : mlc__set(ctx, nd->op->name, &dx, 0.0);
    return mlc__apply_of(u->apply, u->backward)(ctx, nd->op->name, u->backward, &dx, &dy,
                                                nd->n_saved ? nd->saved[0].t : NULL, NULL, nd->u.s,
                                                acc);
}

/* s, t: scalars of the formula. */
static mlc_tensor *mlc__unary_call(const mlc__unary *u, mlc_tensor *x, double s, double t)
{
    mlc_node local, *nd = mlc__begin(&local, &u->op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    nd->u.s[0] = s;
    nd->u.s[1] = t;
    return mlc__finish(nd);
}

#define MLC__UNARY(name, kernel, fwd, bwd, saved) \
    static const mlc__unary mlc__##name##_op = \
        { { #name, mlc__unary_shape, mlc__unary_forward, mlc__unary_backward }, \
          mlc__apply_##kernel, MLC_##fwd, MLC_##bwd, saved };
MLC__UNARY(neg,         map,  MAP_NEG,          MAP_NEG,               0)
MLC__UNARY(exp,         map,  MAP_EXP,          MAP_MUL,               'y')
MLC__UNARY(log,         map,  MAP_LOG,          MAP_DIV,               'x')
MLC__UNARY(sqrt,        map,  MAP_SQRT,         MAP_SQRT_GRAD,         'y')
MLC__UNARY(tanh,        map,  MAP_TANH,         MAP_TANH_GRAD,         'y')
MLC__UNARY(sigmoid,     map,  MAP_SIGMOID,      MAP_SIGMOID_GRAD,      'y')
MLC__UNARY(relu,        map,  MAP_RELU,         MAP_RELU_GRAD,         'y')
MLC__UNARY(gelu,        map,  MAP_GELU,         MAP_GELU_GRAD,         'x')
MLC__UNARY(silu,        map,  MAP_SILU,         MAP_SILU_GRAD,         'x')
MLC__UNARY(abs,         math, MATH_ABS,         MATH_ABS_GRAD,         'x')
MLC__UNARY(sign,        math, MATH_SIGN,        MATH_END,              0)
MLC__UNARY(square,      math, MATH_SQUARE,      MATH_SQUARE_GRAD,      'x')
MLC__UNARY(reciprocal,  math, MATH_RECIPROCAL,  MATH_RECIPROCAL_GRAD,  'y')
MLC__UNARY(rsqrt,       math, MATH_RSQRT,       MATH_RSQRT_GRAD,       'y')
MLC__UNARY(expm1,       math, MATH_EXPM1,       MATH_EXPM1_GRAD,       'y')
MLC__UNARY(exp2,        math, MATH_EXP2,        MATH_EXP2_GRAD,        'y')
MLC__UNARY(log1p,       math, MATH_LOG1P,       MATH_LOG1P_GRAD,       'x')
MLC__UNARY(log2,        math, MATH_LOG2,        MATH_LOG2_GRAD,        'x')
MLC__UNARY(log10,       math, MATH_LOG10,       MATH_LOG10_GRAD,       'x')
MLC__UNARY(sin,         math, MATH_SIN,         MATH_SIN_GRAD,         'x')
MLC__UNARY(cos,         math, MATH_COS,         MATH_COS_GRAD,         'x')
MLC__UNARY(tan,         math, MATH_TAN,         MATH_TAN_GRAD,         'y')
MLC__UNARY(asin,        math, MATH_ASIN,        MATH_ASIN_GRAD,        'x')
MLC__UNARY(acos,        math, MATH_ACOS,        MATH_ACOS_GRAD,        'x')
MLC__UNARY(atan,        math, MATH_ATAN,        MATH_ATAN_GRAD,        'x')
MLC__UNARY(sinh,        math, MATH_SINH,        MATH_SINH_GRAD,        'x')
MLC__UNARY(cosh,        math, MATH_COSH,        MATH_COSH_GRAD,        'x')
MLC__UNARY(erf,         math, MATH_ERF,         MATH_ERF_GRAD,         'x')
MLC__UNARY(erfc,        math, MATH_ERFC,        MATH_ERFC_GRAD,        'x')
MLC__UNARY(floor,       math, MATH_FLOOR,       MATH_END,              0)
MLC__UNARY(ceil,        math, MATH_CEIL,        MATH_END,              0)
MLC__UNARY(round,       math, MATH_ROUND,       MATH_END,              0)
MLC__UNARY(trunc,       math, MATH_TRUNC,       MATH_END,              0)
MLC__UNARY(add_scalar,  map,  MAP_ADD_S,        MAP_COPY,              0)
MLC__UNARY(mul_scalar,  map,  MAP_MUL_S,        MAP_MUL_S,             0)
MLC__UNARY(div_scalar,  math, MATH_DIV_S,       MATH_DIV_S,            0)
MLC__UNARY(pow_scalar,  math, MATH_POW_S,       MATH_POW_S_GRAD,       'x')
MLC__UNARY(rsub_scalar, math, MATH_RSUB_S,      MAP_NEG,               0)
MLC__UNARY(clamp,       math, MATH_CLAMP,       MATH_CLAMP_GRAD,       'x')

#define MLC__UNARY_CALL(name, s, t) mlc__unary_call(&mlc__##name##_op, x, s, t)
MLC_IMPL mlc_tensor *mlc_neg(mlc_tensor *x) { return MLC__UNARY_CALL(neg, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_exp(mlc_tensor *x) { return MLC__UNARY_CALL(exp, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log(mlc_tensor *x) { return MLC__UNARY_CALL(log, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sqrt(mlc_tensor *x) { return MLC__UNARY_CALL(sqrt, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_tanh(mlc_tensor *x) { return MLC__UNARY_CALL(tanh, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sigmoid(mlc_tensor *x) { return MLC__UNARY_CALL(sigmoid, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_relu(mlc_tensor *x) { return MLC__UNARY_CALL(relu, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_gelu(mlc_tensor *x) { return MLC__UNARY_CALL(gelu, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_silu(mlc_tensor *x) { return MLC__UNARY_CALL(silu, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_abs(mlc_tensor *x) { return MLC__UNARY_CALL(abs, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sign(mlc_tensor *x) { return MLC__UNARY_CALL(sign, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_square(mlc_tensor *x) { return MLC__UNARY_CALL(square, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_reciprocal(mlc_tensor *x) { return MLC__UNARY_CALL(reciprocal, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_rsqrt(mlc_tensor *x) { return MLC__UNARY_CALL(rsqrt, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_expm1(mlc_tensor *x) { return MLC__UNARY_CALL(expm1, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_exp2(mlc_tensor *x) { return MLC__UNARY_CALL(exp2, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log1p(mlc_tensor *x) { return MLC__UNARY_CALL(log1p, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log2(mlc_tensor *x) { return MLC__UNARY_CALL(log2, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log10(mlc_tensor *x) { return MLC__UNARY_CALL(log10, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sin(mlc_tensor *x) { return MLC__UNARY_CALL(sin, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_cos(mlc_tensor *x) { return MLC__UNARY_CALL(cos, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_tan(mlc_tensor *x) { return MLC__UNARY_CALL(tan, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_asin(mlc_tensor *x) { return MLC__UNARY_CALL(asin, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_acos(mlc_tensor *x) { return MLC__UNARY_CALL(acos, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_atan(mlc_tensor *x) { return MLC__UNARY_CALL(atan, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sinh(mlc_tensor *x) { return MLC__UNARY_CALL(sinh, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_cosh(mlc_tensor *x) { return MLC__UNARY_CALL(cosh, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_erf(mlc_tensor *x) { return MLC__UNARY_CALL(erf, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_erfc(mlc_tensor *x) { return MLC__UNARY_CALL(erfc, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_floor(mlc_tensor *x) { return MLC__UNARY_CALL(floor, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_ceil(mlc_tensor *x) { return MLC__UNARY_CALL(ceil, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_round(mlc_tensor *x) { return MLC__UNARY_CALL(round, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_trunc(mlc_tensor *x) { return MLC__UNARY_CALL(trunc, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_add_scalar(mlc_tensor *x, double s)
{
    return MLC__UNARY_CALL(add_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_mul_scalar(mlc_tensor *x, double s)
{
    return MLC__UNARY_CALL(mul_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_div_scalar(mlc_tensor *x, double s)
{
    return MLC__UNARY_CALL(div_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_pow_scalar(mlc_tensor *x, double s)
{
    return MLC__UNARY_CALL(pow_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_rsub_scalar(mlc_tensor *x, double s)
{
    return MLC__UNARY_CALL(rsub_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_clamp(mlc_tensor *x, double lo, double hi)
{
    return MLC__UNARY_CALL(clamp, lo, hi);
}

/* @@ IMPL.OPS.BINARY ------------------------------------- y = f(a, b) with broadcasting
 * Broadcast inputs are never copied: stride 0 reads them again. In backward a gradient of the wide
 * shape is summed to the narrow one; only where it is not dy itself does that take a temporary. */

typedef struct mlc__binary {
    mlc__op op;
    mlc__apply_fn apply;
    mlc_map forward;
    mlc_map grad[2];                   /* of a and of b */
    char    with[2];                   /* inputs of grad after dy: 0 none, 'a', 'b', 'c' for both */
} mlc__binary;

/* NumPy's rule for all inputs, from the last axis on; a size of 1 gives way, also to 0. */
static mlc_status mlc__broadcast_shape(mlc_ctx *ctx, const mlc_node *nd, int32_t *ndim,
                                       int64_t *shape)
{
    const mlc_tensor *first = nd->in[0];
    *ndim = first->ndim;
    memcpy(shape, first->shape, sizeof first->shape);
    for (int i = 1; i < nd->n_in; i++) {
        const mlc_tensor *b = nd->in[i];
        const mlc__text so_far = mlc__shape_text(*ndim, shape);
        const int32_t n = *ndim > b->ndim ? *ndim : b->ndim;
        int64_t joined[MLC_MAX_DIMS] = { 0 };
        for (int32_t d = 1; d <= n; d++) {
            const int64_t x = d <= *ndim ? shape[*ndim - d] : 1;
            const int64_t y = d <= b->ndim ? b->shape[b->ndim - d] : 1;
            MLC__REQUIRE(ctx, x == y || x == 1 || y == 1, SHAPE,
                         "%s: shapes %s and %s do not broadcast at axis %d: %lld vs %lld; sizes "
                         "must be equal, or one of them 1",
                         nd->op->name, so_far.s, mlc__shape(b).s, n - d, (long long)x,
                         (long long)y);
            joined[n - d] = x == 1 ? y : x;
        }
        *ndim = n;
        memcpy(shape, joined, (size_t)n * sizeof *shape);
    }
    return MLC_OK;
}

/* Which inputs do the gradients that are asked for read? */
static void mlc__binary_reads(const mlc__binary *f, const mlc_node *nd, bool *a, bool *b)
{
    *a = *b = false;
    for (int i = 0; i < 2; i++) {
        if (!mlc__needs(nd, i)) continue;
        *a = *a || f->with[i] == 'a' || f->with[i] == 'c';
        *b = *b || f->with[i] == 'b' || f->with[i] == 'c';
    }
}

static mlc_status mlc__binary_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__binary *f = (const mlc__binary *)(const void *)nd->op;
    int64_t shape[MLC_MAX_DIMS];
    int32_t ndim;
    bool need_a, need_b;
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__TRY(mlc__broadcast_shape(ctx, nd, &ndim, shape));
    MLC__TRY(mlc__out(ctx, nd, nd->in[0]->dtype, ndim, shape));
    mlc__binary_reads(f, nd, &need_a, &need_b);
    if (need_a) mlc__save(nd, nd->in[0]);
    if (need_b) mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

static mlc_status mlc__binary_forward(mlc_ctx *ctx, mlc_node *nd)
{
    static const double none[2] = { 0.0, 0.0 };
    const mlc__binary *f = (const mlc__binary *)(const void *)nd->op;
    return f->apply(ctx, nd->op->name, f->forward, nd->out[0], nd->in[0], nd->in[1], NULL, none,
                    false);
}

/* Gradient of side i from the inputs' values: directly where it was not broadcast, else through a
 * sum. */
static mlc_status mlc__binary_grad(mlc_ctx *ctx, const char *what, const mlc__binary *f, int i,
                                   const mlc_tensor *dy, const mlc_tensor *dx,
                                   const mlc_tensor *a, const mlc_tensor *b, bool acc)
{
    static const double none[2] = { 0.0, 0.0 };
    const mlc__apply_fn apply = mlc__apply_of(f->apply, f->grad[i]);
    const mlc_tensor *second = f->with[i] == 'b' ? b : f->with[i] ? a : NULL;
    const mlc_tensor *third = f->with[i] == 'c' ? b : NULL;
    mlc__temp wide;
    mlc_status st;
    if (f->grad[i] == MLC_MATH_END) return acc ? MLC_OK : mlc__set(ctx, what, dx, 0.0);
    if (mlc__same_shape(dx, dy))
        return apply(ctx, what, f->grad[i], dx, dy, second, third, none, acc);
    if (f->grad[i] == MLC_MAP_COPY) return mlc__sum_to(ctx, what, dx, dy, acc);
    MLC__TRY(mlc__temp_begin(ctx, &wide, dy->dtype, dy->ndim, dy->shape));
    st = apply(ctx, what, f->grad[i], &wide.t, dy, second, third, none, false);
    if (!st) st = mlc__sum_to(ctx, what, dx, &wide.t, acc);
    mlc__temp_end(&wide);
    return st;
}

/* Side by side: a and b may be one tensor (x * x), whose second gradient then adds to the first. */
static mlc_status mlc__binary_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__binary *f = (const mlc__binary *)(const void *)nd->op;
    mlc_status st = MLC_OK;
    mlc_tensor dy, dx;
    bool acc;
    mlc__grad_view(nd->out[0], &dy);
    for (int i = 0; i < 2; i++)
        if (mlc__grad_in(nd, i, &dx, &acc, &st))
            st = mlc__binary_grad(ctx, nd->op->name, f, i, &dy, &dx, nd->in[0], nd->in[1], acc);
    return st;
}

#define MLC__BINARY(name, kernel, fwd, ga, wa, gb, wb) \
    static const mlc__binary mlc__##name##_op = \
        { { #name, mlc__binary_shape, mlc__binary_forward, mlc__binary_backward }, \
          mlc__apply_##kernel, MLC_##fwd, { MLC_##ga, MLC_##gb }, { wa, wb } };
MLC__BINARY(add,          map,  MAP_ADD,         MAP_COPY,          0,   MAP_COPY,              0)
MLC__BINARY(sub,          map,  MAP_SUB,         MAP_COPY,          0,   MAP_NEG,               0)
MLC__BINARY(mul,          map,  MAP_MUL,         MAP_MUL,           'b', MAP_MUL,               'a')
MLC__BINARY(div,          map,  MAP_DIV,         MAP_DIV,           'b', MAP_DIV_GRAD_B,        'c')
MLC__BINARY(pow,          math, MATH_POW,        MATH_POW_GRAD_A,   'c', MATH_POW_GRAD_B,       'c')
MLC__BINARY(minimum,      math, MATH_MIN,        MATH_MIN_GRAD_A,   'c', MATH_MIN_GRAD_B,       'c')
MLC__BINARY(maximum,      math, MATH_MAX,        MATH_MAX_GRAD_A,   'c', MATH_MAX_GRAD_B,       'c')
MLC__BINARY(fmod,         math, MATH_FMOD,       MAP_COPY,          0,   MATH_FMOD_GRAD_B,      'c')
MLC__BINARY(remainder,    math, MATH_REMAINDER,  MAP_COPY,          0,   MATH_REMAINDER_GRAD_B, 'c')
MLC__BINARY(floor_divide, math, MATH_FLOOR_DIV,  MATH_END,          0,   MATH_END,              0)
MLC__BINARY(atan2,        math, MATH_ATAN2,      MATH_ATAN2_GRAD_A, 'c', MATH_ATAN2_GRAD_B,     'c')
MLC__BINARY(hypot,        math, MATH_HYPOT,      MATH_HYPOT_GRAD_A, 'c', MATH_HYPOT_GRAD_B,     'c')

static mlc_tensor *mlc__binary_call(const mlc__binary *f, mlc_tensor *a, mlc_tensor *b)
{
    mlc_node local, *nd = mlc__begin(&local, &f->op, 2, a, b, NULL);
    return nd ? mlc__finish(nd) : NULL;
}

MLC_IMPL mlc_tensor *mlc_add(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__add_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_sub(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__sub_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_mul(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__mul_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_div(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__div_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_pow(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__pow_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_minimum(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__minimum_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_maximum(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__maximum_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_fmod(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__fmod_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_remainder(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__remainder_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_floor_divide(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__floor_divide_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_atan2(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__atan2_op, a, b);
}
MLC_IMPL mlc_tensor *mlc_hypot(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__binary_call(&mlc__hypot_op, a, b);
}

/* @@ IMPL.OPS.COMPARE ------------------------------------ comparisons, logic, choice by a mask
 * Results of comparisons are bool: they have no gradient and leave no node. where sends dy to the
 * side that was chosen, through the same kernel. */

/* out = a op b, or a op s where b is NULL; shapes broadcast to out. */
static mlc_status mlc__compare_into(mlc_ctx *ctx, const char *what, mlc_compare op,
                                    const mlc_tensor *out, const mlc_tensor *a,
                                    const mlc_tensor *b, double s)
{
    struct mlc_k_compare args;
    args.op = op;
    args.dtype = a->dtype;
    args.ndim = out->ndim;
    args.s = s;
    args.out = MLC__CAST(uint8_t *, mlc__data(out));
    args.in[0] = mlc__data(a);
    args.in[1] = b ? mlc__data(b) : NULL;
    memcpy(args.shape, out->shape, sizeof args.shape);
    memcpy(args.out_stride, out->stride, sizeof args.out_stride);
    mlc__broadcast_strides(a, out, args.in_stride[0]);
    if (b) mlc__broadcast_strides(b, out, args.in_stride[1]);
    return mlc__numel(out) ? mlc__run_compare(ctx, what, &args) : MLC_OK;
}

/* What a comparison adds to its descriptor. */
typedef struct mlc__compare_op {
    mlc__op     op;
    mlc_compare compare;
    bool        logical;               /* takes bool only                                      */
} mlc__compare_op;

static mlc_status mlc__compare_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__compare_op *c = (const mlc__compare_op *)(const void *)nd->op;
    int64_t shape[MLC_MAX_DIMS];
    int32_t ndim;
    for (int i = 0; i < nd->n_in; i++)
        MLC__REQUIRE(ctx, !c->logical || nd->in[i]->dtype == MLC_BOOL, DTYPE,
                     "%s: input %d is %s, not bool; write mlc_ne_scalar(x, 0)", nd->op->name, i + 1,
                     mlc_dtype_name(nd->in[i]->dtype));
    MLC__TRY(mlc__require_same(ctx, nd, 0));
    MLC__TRY(mlc__broadcast_shape(ctx, nd, &ndim, shape));
    return mlc__out(ctx, nd, MLC_BOOL, ndim, shape);
}

static mlc_status mlc__compare_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__compare_op *c = (const mlc__compare_op *)(const void *)nd->op;
    return mlc__compare_into(ctx, nd->op->name, c->compare, nd->out[0], nd->in[0], nd->in[1],
                             nd->u.s[0]);
}

/* n inputs; nothing is recorded. */
static mlc_tensor *mlc__compare_call(const mlc__compare_op *c, int n, mlc_tensor *a, mlc_tensor *b,
                                     double s)
{
    mlc_ctx *ctx = a ? a->ctx : b ? b->ctx : NULL;
    mlc_node local, *nd;
    mlc_tensor *y = NULL;
    if (!ctx) return NULL;
    ctx->no_grad++;
    nd = mlc__begin(&local, &c->op, n, a, b, NULL);
    if (nd) {
        nd->u.s[0] = s;
        y = mlc__finish(nd);
    }
    ctx->no_grad--;
    return y;
}

#define MLC__COMPARE_OP(name, code, logical) \
    static const mlc__compare_op mlc__##name##_op = \
        { { #name, mlc__compare_shape, mlc__compare_forward, NULL }, MLC_COMPARE_##code, logical };
#define MLC__COMPARE(name, code) \
    MLC__COMPARE_OP(name, code, false) \
    MLC__COMPARE_OP(name##_scalar, code, false)
MLC__COMPARE(eq, EQ)
MLC__COMPARE(ne, NE)
MLC__COMPARE(lt, LT)
MLC__COMPARE(le, LE)
MLC__COMPARE(gt, GT)
MLC__COMPARE(ge, GE)
MLC__COMPARE_OP(logical_and, AND,    true)
MLC__COMPARE_OP(logical_or,  OR,     true)
MLC__COMPARE_OP(logical_xor, XOR,    true)
MLC__COMPARE_OP(logical_not, NOT,    true)
MLC__COMPARE_OP(isnan,       NAN,    false)
MLC__COMPARE_OP(isinf,       INF,    false)
MLC__COMPARE_OP(isfinite,    FINITE, false)

MLC_IMPL mlc_tensor *mlc_eq(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__eq_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_ne(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__ne_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_lt(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__lt_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_le(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__le_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_gt(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__gt_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_ge(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__ge_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_logical_and(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__logical_and_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_logical_or(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__logical_or_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_logical_xor(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__compare_call(&mlc__logical_xor_op, 2, a, b, 0.0);
}
MLC_IMPL mlc_tensor *mlc_eq_scalar(mlc_tensor *x, double s)
{
    return mlc__compare_call(&mlc__eq_scalar_op, 1, x, NULL, s);
}
MLC_IMPL mlc_tensor *mlc_ne_scalar(mlc_tensor *x, double s)
{
    return mlc__compare_call(&mlc__ne_scalar_op, 1, x, NULL, s);
}
MLC_IMPL mlc_tensor *mlc_lt_scalar(mlc_tensor *x, double s)
{
    return mlc__compare_call(&mlc__lt_scalar_op, 1, x, NULL, s);
}
MLC_IMPL mlc_tensor *mlc_le_scalar(mlc_tensor *x, double s)
{
    return mlc__compare_call(&mlc__le_scalar_op, 1, x, NULL, s);
}
MLC_IMPL mlc_tensor *mlc_gt_scalar(mlc_tensor *x, double s)
{
    return mlc__compare_call(&mlc__gt_scalar_op, 1, x, NULL, s);
}
MLC_IMPL mlc_tensor *mlc_ge_scalar(mlc_tensor *x, double s)
{
    return mlc__compare_call(&mlc__ge_scalar_op, 1, x, NULL, s);
}
MLC_IMPL mlc_tensor *mlc_logical_not(mlc_tensor *x)
{
    return mlc__compare_call(&mlc__logical_not_op, 1, x, NULL, 0.0);
}
MLC_IMPL mlc_tensor *mlc_isnan(mlc_tensor *x)
{
    return mlc__compare_call(&mlc__isnan_op, 1, x, NULL, 0.0);
}
MLC_IMPL mlc_tensor *mlc_isinf(mlc_tensor *x)
{
    return mlc__compare_call(&mlc__isinf_op, 1, x, NULL, 0.0);
}
MLC_IMPL mlc_tensor *mlc_isfinite(mlc_tensor *x)
{
    return mlc__compare_call(&mlc__isfinite_op, 1, x, NULL, 0.0);
}

/* out (+)= mask ? a : b; a or b NULL stands for s. */
static mlc_status mlc__where_into(mlc_ctx *ctx, const char *what, const mlc_tensor *out,
                                  const mlc_tensor *mask, const mlc_tensor *a, const mlc_tensor *b,
                                  double s, bool accumulate)
{
    const mlc_tensor *in[2] = { a, b };
    struct mlc_k_where args;
    args.dtype = out->dtype;
    args.ndim = out->ndim;
    args.accumulate = accumulate;
    args.s = s;
    args.out = mlc__data(out);
    args.mask = MLC__CAST(const uint8_t *, mlc__data(mask));
    memcpy(args.shape, out->shape, sizeof args.shape);
    memcpy(args.out_stride, out->stride, sizeof args.out_stride);
    mlc__broadcast_strides(mask, out, args.mask_stride);
    for (int i = 0; i < 2; i++) {
        args.in[i] = in[i] ? mlc__data(in[i]) : NULL;
        if (in[i]) mlc__broadcast_strides(in[i], out, args.in_stride[i]);
    }
    return mlc__numel(out) ? mlc__run_where(ctx, what, &args) : MLC_OK;
}

/* The mask comes first: the others, from input 1 on, are of one dtype. */
static mlc_status mlc__where_shape(mlc_ctx *ctx, mlc_node *nd)
{
    int64_t shape[MLC_MAX_DIMS];
    int32_t ndim;
    MLC__REQUIRE(ctx, nd->in[0]->dtype == MLC_BOOL, DTYPE,
                 "%s: the mask is %s, not bool; write mlc_ne_scalar(mask, 0)", nd->op->name,
                 mlc_dtype_name(nd->in[0]->dtype));
    MLC__TRY(mlc__require_same(ctx, nd, 1));
    MLC__TRY(mlc__broadcast_shape(ctx, nd, &ndim, shape));
    MLC__TRY(mlc__out(ctx, nd, nd->in[1]->dtype, ndim, shape));
    mlc__save(nd, nd->in[0]);
    return MLC_OK;
}

static mlc_status mlc__where_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__where_into(ctx, nd->op->name, nd->out[0], nd->in[0], nd->in[1], nd->in[2], 0.0,
                           false);
}

/* Input 1 gets dy where the mask is set, input 2 where it is not; summed where it was broadcast. */
static mlc_status mlc__where_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *mask = nd->in[0];
    mlc_status st = MLC_OK;
    mlc_tensor dy, dx;
    bool acc;
    mlc__grad_view(nd->out[0], &dy);
    for (int i = 1; i < nd->n_in; i++) {
        const mlc_tensor *a = i == 1 ? &dy : NULL, *b = i == 1 ? NULL : &dy;
        mlc__temp wide;
        if (!mlc__grad_in(nd, i, &dx, &acc, &st)) continue;
        if (mlc__same_shape(&dx, &dy)) {
            st = mlc__where_into(ctx, nd->op->name, &dx, mask, a, b, 0.0, acc);
            continue;
        }
        MLC__TRY(mlc__temp_begin(ctx, &wide, dy.dtype, dy.ndim, dy.shape));
        st = mlc__where_into(ctx, nd->op->name, &wide.t, mask, a, b, 0.0, false);
        if (!st) st = mlc__sum_to(ctx, nd->op->name, &dx, &wide.t, acc);
        mlc__temp_end(&wide);
    }
    return st;
}

static const mlc__op mlc__where_op = { "where", mlc__where_shape, mlc__where_forward,
                                       mlc__where_backward };

MLC_IMPL mlc_tensor *mlc_where(mlc_tensor *mask, mlc_tensor *a, mlc_tensor *b)
{
    mlc_node local, *nd = mlc__begin(&local, &mlc__where_op, 3, mask, a, b);
    return nd ? mlc__finish(nd) : NULL;
}

/* x is input 0, the mask input 1; x keeps its shape. */
static mlc_status mlc__masked_fill_check(mlc_ctx *ctx, const mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0], *mask = nd->in[1];
    MLC__REQUIRE(ctx, mask->dtype == MLC_BOOL, DTYPE,
                 "%s: the mask is %s, not bool; write mlc_ne_scalar(mask, 0)", nd->op->name,
                 mlc_dtype_name(mask->dtype));
    MLC__REQUIRE(ctx, mlc__broadcasts(mask, x), SHAPE, "%s: the mask %s does not fit x %s; it must "
                 "broadcast to it", nd->op->name, mlc__shape(mask).s, mlc__shape(x).s);
    return MLC_OK;
}

static mlc_status mlc__masked_fill_shape(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__masked_fill_check(ctx, nd));
    MLC__TRY(mlc__out(ctx, nd, nd->in[0]->dtype, nd->in[0]->ndim, nd->in[0]->shape));
    mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

/* Also in place: then out is x. */
static mlc_status mlc__masked_fill_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__where_into(ctx, nd->op->name, nd->out[0], nd->in[1], NULL, nd->in[0], nd->u.s[0],
                           false);
}

static mlc_status mlc__masked_fill_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    return mlc__where_into(ctx, nd->op->name, &dx, nd->in[1], NULL, &dy, 0.0, acc);
}

static const mlc__op mlc__masked_fill_op = { "masked_fill", mlc__masked_fill_shape,
                                             mlc__masked_fill_forward, mlc__masked_fill_backward };

MLC_IMPL mlc_tensor *mlc_masked_fill(mlc_tensor *x, mlc_tensor *mask, double value)
{
    mlc_node local, *nd = mlc__begin(&local, &mlc__masked_fill_op, 2, x, mask, NULL);
    if (!nd) return NULL;
    nd->u.s[0] = value;
    return mlc__finish(nd);
}

/* @@ IMPL.OPS.INPLACE ------------------------------------ x op= y: the target is its own result
 * The gradient of a tensor lies as its data does, and views share both. So a change in place turns,
 * in backward, into a change of the gradient in place: from what the loss asks of the new values to
 * what it asks of the old ones, which older operations then find there. The node's output is its
 * first input; what a derivative needs of the old values is copied before, and writing raises the
 * storage's version, so that operations which saved the old ones say so. */

/* May nd change its input 0? What is not recorded may change any memory but repeated elements. */
static mlc_status mlc__inplace_begin(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0];
    MLC__REQUIRE(ctx, !mlc__repeats(x), ARG, "%s: %s repeats elements (expand); copy it first",
                 nd->op->name, mlc__shape(x).s);
    MLC__REQUIRE(ctx, !mlc__needs(nd, 0) || mlc__base(x)->node, STATE,
                 "%s: %s is a leaf that requires a gradient; change it under mlc_no_grad_begin, or "
                 "a copy of it", nd->op->name, mlc__shape(x).s);
    MLC__REQUIRE(ctx, !nd->recorded || !x->storage->aliased, STATE,
                 "%s: %s shares its memory with a tensor that the tape does not follow (detach, "
                 "expand, a view made under no-grad); copy it first", nd->op->name,
                 mlc__shape(x).s);
    nd->inplace = true;
    nd->out[nd->n_out++] = x;
    return MLC_OK;
}

/* A copy of the values before the change, for backward. */
static mlc_status mlc__inplace_save_old(mlc_ctx *ctx, mlc_node *nd)
{
    if (!nd->recorded) return MLC_OK;
    ctx->no_grad++;
    mlc_tensor *old = mlc_copy(nd->in[0]);
    ctx->no_grad--;
    if (!old) return MLC_ERR_NOMEM;
    mlc__save(nd, old);
    return MLC_OK;
}

/* The gradient of the target is spent: it had none before, or the values were overwritten. */
static mlc_status mlc__inplace_drop(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], g;
    if (!x->base && !mlc__needs(nd, 0)) {
        mlc__storage_release(x->grad);
        x->grad = NULL;
        x->grad_fresh = 0;
        return MLC_OK;
    }
    mlc__grad_view(x, &g);
    return mlc__set(ctx, nd->op->name, &g, 0.0);
}

/* An operation in place over the row of the one that makes a new tensor. */
typedef struct mlc__inplace {
    mlc__op            op;
    const mlc__unary  *unary;          /* one of both */
    const mlc__binary *binary;
} mlc__inplace;

MLC__INLINE const mlc__inplace *mlc__inplace_row(const mlc_node *nd)
{
    return (const mlc__inplace *)(const void *)nd->op;
}

static mlc_status mlc__inplace_unary_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__unary *u = mlc__inplace_row(nd)->unary;
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__TRY(mlc__inplace_begin(ctx, nd));
    if (u->saved == 'x') MLC__TRY(mlc__inplace_save_old(ctx, nd));
    nd->in[0]->storage->version++;
    if (u->saved == 'y') mlc__save(nd, nd->in[0]);
    return MLC_OK;
}

static mlc_status mlc__inplace_unary_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__unary *u = mlc__inplace_row(nd)->unary;
    return u->apply(ctx, nd->op->name, u->forward, nd->in[0], nd->in[0], NULL, NULL, nd->u.s,
                    false);
}

static mlc_status mlc__inplace_unary_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__unary *u = mlc__inplace_row(nd)->unary;
    mlc_tensor g;
    mlc__grad_view(nd->in[0], &g);
    if (u->backward == MLC_MATH_END) return mlc__set(ctx, nd->op->name, &g, 0.0);
    return mlc__apply_of(u->apply, u->backward)(ctx, nd->op->name, u->backward, &g, &g,
                                                nd->n_saved ? nd->saved[0].t : NULL, NULL,
                                                nd->u.s, false);
}

/* saved: the old target if a derivative reads it, then b if one does. */
static mlc_status mlc__inplace_binary_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__binary *f = mlc__inplace_row(nd)->binary;
    const mlc_tensor *x = nd->in[0], *b = nd->in[1];
    bool need_a, need_b;
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__REQUIRE(ctx, mlc__broadcasts(b, x), SHAPE,
                 "%s: b %s does not broadcast to %s, which is changed in place; make a new tensor "
                 "instead", nd->op->name,
                 mlc__shape(b).s, mlc__shape(x).s);
    MLC__TRY(mlc__inplace_begin(ctx, nd));
    mlc__binary_reads(f, nd, &need_a, &need_b);
    if (need_a) MLC__TRY(mlc__inplace_save_old(ctx, nd));
    nd->in[0]->storage->version++;
    if (need_b) mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

static mlc_status mlc__inplace_binary_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__binary *f = mlc__inplace_row(nd)->binary;
    return f->apply(ctx, nd->op->name, f->forward, nd->in[0], nd->in[0], nd->in[1], NULL, nd->u.s,
                    false);
}

/* b first: the target's gradient still is that of the new values. */
static mlc_status mlc__inplace_binary_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc__binary *f = mlc__inplace_row(nd)->binary;
    const mlc_tensor *b = nd->in[1];
    bool need_a, need_b, acc;
    mlc_status st = MLC_OK;
    mlc_tensor g, db;
    mlc__binary_reads(f, nd, &need_a, &need_b);
    const mlc_tensor *old = need_a ? nd->saved[0].t : NULL;
    mlc__grad_view(nd->in[0], &g);
    if (mlc__grad_in(nd, 1, &db, &acc, &st))
        st = mlc__binary_grad(ctx, nd->op->name, f, 1, &g, &db, old, b, acc);
    if (st) return st;
    if (!mlc__needs(nd, 0)) return mlc__inplace_drop(ctx, nd);
    return mlc__binary_grad(ctx, nd->op->name, f, 0, &g, &g, old, b, false);
}

static mlc_tensor *mlc__inplace_unary_call(const mlc__inplace *row, mlc_tensor *x, double s,
                                           double t)
{
    mlc_node local, *nd = mlc__begin(&local, &row->op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    nd->u.s[0] = s;
    nd->u.s[1] = t;
    return mlc__finish(nd);
}

/* b over the same memory goes through a copy: it would change while it is read. */
static mlc_tensor *mlc__inplace_binary_call(const mlc__inplace *row, mlc_tensor *x, mlc_tensor *b)
{
    mlc_node local, *nd;
    if (x && b && x->storage == b->storage && !(b = mlc_copy(b))) return NULL;
    nd = mlc__begin(&local, &row->op, 2, x, b, NULL);
    if (!nd) return NULL;
    nd->u.s[0] = nd->u.s[1] = 0.0;
    return mlc__finish(nd);
}

#define MLC__INPLACE_UNARY(name) \
    static const mlc__inplace mlc__##name##__op = \
        { { #name "_", mlc__inplace_unary_shape, mlc__inplace_unary_forward, \
            mlc__inplace_unary_backward }, &mlc__##name##_op, NULL };
#define MLC__INPLACE_BINARY(name) \
    static const mlc__inplace mlc__##name##__op = \
        { { #name "_", mlc__inplace_binary_shape, mlc__inplace_binary_forward, \
            mlc__inplace_binary_backward }, NULL, &mlc__##name##_op };
MLC__INPLACE_UNARY(neg) MLC__INPLACE_UNARY(exp) MLC__INPLACE_UNARY(log) MLC__INPLACE_UNARY(sqrt)
MLC__INPLACE_UNARY(tanh) MLC__INPLACE_UNARY(sigmoid) MLC__INPLACE_UNARY(relu)
MLC__INPLACE_UNARY(gelu) MLC__INPLACE_UNARY(silu) MLC__INPLACE_UNARY(abs) MLC__INPLACE_UNARY(sign)
MLC__INPLACE_UNARY(square) MLC__INPLACE_UNARY(reciprocal) MLC__INPLACE_UNARY(rsqrt)
MLC__INPLACE_UNARY(expm1) MLC__INPLACE_UNARY(exp2) MLC__INPLACE_UNARY(log1p)
MLC__INPLACE_UNARY(log2) MLC__INPLACE_UNARY(log10) MLC__INPLACE_UNARY(sin) MLC__INPLACE_UNARY(cos)
MLC__INPLACE_UNARY(tan) MLC__INPLACE_UNARY(asin) MLC__INPLACE_UNARY(acos) MLC__INPLACE_UNARY(atan)
MLC__INPLACE_UNARY(sinh) MLC__INPLACE_UNARY(cosh) MLC__INPLACE_UNARY(erf) MLC__INPLACE_UNARY(erfc)
MLC__INPLACE_UNARY(floor) MLC__INPLACE_UNARY(ceil) MLC__INPLACE_UNARY(round)
MLC__INPLACE_UNARY(trunc) MLC__INPLACE_UNARY(add_scalar) MLC__INPLACE_UNARY(mul_scalar)
MLC__INPLACE_UNARY(div_scalar) MLC__INPLACE_UNARY(pow_scalar) MLC__INPLACE_UNARY(rsub_scalar)
MLC__INPLACE_UNARY(clamp)
MLC__INPLACE_BINARY(add) MLC__INPLACE_BINARY(sub) MLC__INPLACE_BINARY(mul)
MLC__INPLACE_BINARY(div) MLC__INPLACE_BINARY(pow) MLC__INPLACE_BINARY(minimum)
MLC__INPLACE_BINARY(maximum) MLC__INPLACE_BINARY(fmod) MLC__INPLACE_BINARY(remainder)
MLC__INPLACE_BINARY(floor_divide) MLC__INPLACE_BINARY(atan2) MLC__INPLACE_BINARY(hypot)

#define MLC__INPLACE_CALL(name, s, t) mlc__inplace_unary_call(&mlc__##name##__op, x, s, t)
MLC_IMPL mlc_tensor *mlc_neg_(mlc_tensor *x) { return MLC__INPLACE_CALL(neg, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_exp_(mlc_tensor *x) { return MLC__INPLACE_CALL(exp, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log_(mlc_tensor *x) { return MLC__INPLACE_CALL(log, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sqrt_(mlc_tensor *x) { return MLC__INPLACE_CALL(sqrt, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_tanh_(mlc_tensor *x) { return MLC__INPLACE_CALL(tanh, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sigmoid_(mlc_tensor *x) { return MLC__INPLACE_CALL(sigmoid, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_relu_(mlc_tensor *x) { return MLC__INPLACE_CALL(relu, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_gelu_(mlc_tensor *x) { return MLC__INPLACE_CALL(gelu, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_silu_(mlc_tensor *x) { return MLC__INPLACE_CALL(silu, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_abs_(mlc_tensor *x) { return MLC__INPLACE_CALL(abs, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sign_(mlc_tensor *x) { return MLC__INPLACE_CALL(sign, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_square_(mlc_tensor *x) { return MLC__INPLACE_CALL(square, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_reciprocal_(mlc_tensor *x)
{
    return MLC__INPLACE_CALL(reciprocal, 0.0, 0.0);
}
MLC_IMPL mlc_tensor *mlc_rsqrt_(mlc_tensor *x) { return MLC__INPLACE_CALL(rsqrt, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_expm1_(mlc_tensor *x) { return MLC__INPLACE_CALL(expm1, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_exp2_(mlc_tensor *x) { return MLC__INPLACE_CALL(exp2, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log1p_(mlc_tensor *x) { return MLC__INPLACE_CALL(log1p, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log2_(mlc_tensor *x) { return MLC__INPLACE_CALL(log2, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_log10_(mlc_tensor *x) { return MLC__INPLACE_CALL(log10, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sin_(mlc_tensor *x) { return MLC__INPLACE_CALL(sin, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_cos_(mlc_tensor *x) { return MLC__INPLACE_CALL(cos, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_tan_(mlc_tensor *x) { return MLC__INPLACE_CALL(tan, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_asin_(mlc_tensor *x) { return MLC__INPLACE_CALL(asin, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_acos_(mlc_tensor *x) { return MLC__INPLACE_CALL(acos, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_atan_(mlc_tensor *x) { return MLC__INPLACE_CALL(atan, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_sinh_(mlc_tensor *x) { return MLC__INPLACE_CALL(sinh, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_cosh_(mlc_tensor *x) { return MLC__INPLACE_CALL(cosh, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_erf_(mlc_tensor *x) { return MLC__INPLACE_CALL(erf, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_erfc_(mlc_tensor *x) { return MLC__INPLACE_CALL(erfc, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_floor_(mlc_tensor *x) { return MLC__INPLACE_CALL(floor, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_ceil_(mlc_tensor *x) { return MLC__INPLACE_CALL(ceil, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_round_(mlc_tensor *x) { return MLC__INPLACE_CALL(round, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_trunc_(mlc_tensor *x) { return MLC__INPLACE_CALL(trunc, 0.0, 0.0); }
MLC_IMPL mlc_tensor *mlc_add_scalar_(mlc_tensor *x, double s)
{
    return MLC__INPLACE_CALL(add_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_mul_scalar_(mlc_tensor *x, double s)
{
    return MLC__INPLACE_CALL(mul_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_div_scalar_(mlc_tensor *x, double s)
{
    return MLC__INPLACE_CALL(div_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_pow_scalar_(mlc_tensor *x, double s)
{
    return MLC__INPLACE_CALL(pow_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_rsub_scalar_(mlc_tensor *x, double s)
{
    return MLC__INPLACE_CALL(rsub_scalar, s, 0.0);
}
MLC_IMPL mlc_tensor *mlc_clamp_(mlc_tensor *x, double lo, double hi)
{
    return MLC__INPLACE_CALL(clamp, lo, hi);
}
MLC_IMPL mlc_tensor *mlc_add_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__add__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_sub_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__sub__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_mul_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__mul__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_div_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__div__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_pow_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__pow__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_minimum_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__minimum__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_maximum_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__maximum__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_fmod_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__fmod__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_remainder_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__remainder__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_floor_divide_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__floor_divide__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_atan2_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__atan2__op, x, b);
}
MLC_IMPL mlc_tensor *mlc_hypot_(mlc_tensor *x, mlc_tensor *b)
{
    return mlc__inplace_binary_call(&mlc__hypot__op, x, b);
}

/* -- what overwrites: the old values, and so their gradient, are gone -- */

static mlc_status mlc__overwrite_backward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__inplace_drop(ctx, nd);
}

static mlc_status mlc__fill_shape(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__inplace_begin(ctx, nd));
    nd->in[0]->storage->version++;
    return MLC_OK;
}

static mlc_status mlc__fill_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__numel(nd->in[0]) ? mlc__set(ctx, nd->op->name, nd->in[0], nd->u.s[0]) : MLC_OK;
}

static const mlc__op mlc__fill__op = { "fill_", mlc__fill_shape, mlc__fill_forward,
                                       mlc__overwrite_backward };
static const mlc__op mlc__zero__op = { "zero_", mlc__fill_shape, mlc__fill_forward,
                                       mlc__overwrite_backward };

static mlc_tensor *mlc__fill_call(const mlc__op *op, mlc_tensor *x, double value)
{
    mlc_node local, *nd = mlc__begin(&local, op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    nd->u.s[0] = value;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_fill_(mlc_tensor *x, double value)
{
    return mlc__fill_call(&mlc__fill__op, x, value);
}
MLC_IMPL mlc_tensor *mlc_zero_(mlc_tensor *x) { return mlc__fill_call(&mlc__zero__op, x, 0.0); }

static mlc_status mlc__copy__shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0], *src = nd->in[1];
    MLC__REQUIRE(ctx, x->dtype == src->dtype, DTYPE, "copy_: x is %s, src %s; cast src first",
                 mlc_dtype_name(x->dtype), mlc_dtype_name(src->dtype));
    MLC__REQUIRE(ctx, mlc__broadcasts(src, x), SHAPE, "copy_: src %s does not fit x %s; it must "
                 "broadcast to it", mlc__shape(src).s, mlc__shape(x).s);
    return mlc__fill_shape(ctx, nd);
}

static mlc_status mlc__copy__forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__cast_into(ctx, nd->op->name, nd->in[0], nd->in[1]);
}

static mlc_status mlc__copy__backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor g, dsrc;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->in[0], &g);
    if (mlc__grad_in(nd, 1, &dsrc, &acc, &st))
        st = mlc__sum_to(ctx, nd->op->name, &dsrc, &g, acc);
    return st ? st : mlc__inplace_drop(ctx, nd);
}

static const mlc__op mlc__copy__op = { "copy_", mlc__copy__shape, mlc__copy__forward,
                                       mlc__copy__backward };

MLC_IMPL mlc_tensor *mlc_copy_(mlc_tensor *x, mlc_tensor *src)
{
    mlc_node local, *nd;
    if (x && src && x->storage == src->storage && !(src = mlc_copy(src))) return NULL;
    nd = mlc__begin(&local, &mlc__copy__op, 2, x, src, NULL);
    return nd ? mlc__finish(nd) : NULL;
}

static mlc_status mlc__masked_fill__shape(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__masked_fill_check(ctx, nd));
    MLC__TRY(mlc__fill_shape(ctx, nd));
    mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

static mlc_status mlc__masked_fill__backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor g;
    mlc__grad_view(nd->in[0], &g);
    return mlc__where_into(ctx, nd->op->name, &g, nd->in[1], NULL, &g, 0.0, false);
}

static const mlc__op mlc__masked_fill__op = { "masked_fill_", mlc__masked_fill__shape,
                                              mlc__masked_fill_forward,
                                              mlc__masked_fill__backward };

MLC_IMPL mlc_tensor *mlc_masked_fill_(mlc_tensor *x, mlc_tensor *mask, double value)
{
    mlc_node local, *nd;
    if (x && mask && x->storage == mask->storage && !(mask = mlc_copy(mask))) return NULL;
    nd = mlc__begin(&local, &mlc__masked_fill__op, 2, x, mask, NULL);
    if (!nd) return NULL;
    nd->u.s[0] = value;
    return mlc__finish(nd);
}

/* @@ IMPL.OPS.RANDOM ------------------------------------- random tensors, draws from weights
 * Each call takes the next stream of the context, whatever comes of it. Nothing is recorded: what
 * is drawn depends on no tensor, or, as an index, is not differentiable. */

/* args: kind and parameters. A stream is used up also in a dry run (mlc_summary sets it back) and
 * for no elements. */
static mlc_tensor *mlc__random(mlc_ctx *ctx, const char *what, mlc_dtype dtype, mlc_dims shape,
                               struct mlc_k_random *args)
{
    mlc_tensor *t = mlc__make(ctx, what, dtype, shape);
    if (!t) return NULL;
    args->dtype = dtype;
    args->n = mlc__numel(t);
    args->out = mlc__data(t);
    args->seed = ctx->seed;
    args->stream = ctx->stream++;
    if (args->n == 0 || ctx->dry_run) return t;
    return mlc__run_random(ctx, what, args) == MLC_OK ? t : NULL;
}

/* For what only floats can be; unknown dtypes get their message in mlc__make. */
static mlc_tensor *mlc__random_float(mlc_ctx *ctx, const char *what, mlc_dtype dtype,
                                     mlc_dims shape, struct mlc_k_random *args)
{
    if (ctx && (unsigned)dtype < MLC_DTYPE_COUNT && !mlc__is_float(dtype)) {
        mlc__fail(ctx, MLC_ERR_DTYPE, "%s: dtype %s; it makes floats: f32, f64, bf16, f16", what,
                  mlc_dtype_name(dtype));
        return NULL;
    }
    return mlc__random(ctx, what, dtype, shape, args);
}

static struct mlc_k_random mlc__random_args(mlc_random kind, double a, double b)
{
    struct mlc_k_random args;
    memset(&args, 0, sizeof args);
    args.kind = kind;
    args.a = a;
    args.b = b;
    return args;
}

MLC_IMPL mlc_tensor *mlc_randn(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_NORMAL, 0.0, 1.0);
    return mlc__random_float(ctx, "randn", dtype, shape, &args);
}

MLC_IMPL mlc_tensor *mlc_normal(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double mean,
                                double std)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_NORMAL, mean, std);
    if (ctx && !(mean - mean == 0.0 && std >= 0.0 && std <= DBL_MAX)) {
        mlc__fail(ctx, MLC_ERR_ARG,
                  "normal: mean %s, std %s; they must be finite, std not negative",
                  mlc__real(mean).s, mlc__real(std).s);
        return NULL;
    }
    return mlc__random_float(ctx, "normal", dtype, shape, &args);
}

/* lo = hi is fine: all elements are lo. */
MLC_IMPL mlc_tensor *mlc_uniform(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double lo,
                                 double hi)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_UNIFORM, lo, hi);
    const double most = dtype == MLC_F64 ? DBL_MAX : dtype == MLC_F16 ? 65504.0 : (double)FLT_MAX;
    const double width = dtype == MLC_F16 ? 2.0 * most : most;
    if (ctx && !(lo >= -most && lo <= hi && hi <= most && hi - lo <= width)) {
        mlc__fail(ctx, MLC_ERR_ARG, "uniform: [%s, %s) is no interval of %s; lo must be at "
                  "most hi, and both finite there", mlc__real(lo).s, mlc__real(hi).s,
                  mlc_dtype_name(dtype));
        return NULL;
    }
    return mlc__random_float(ctx, "uniform", dtype, shape, &args);
}

/* 37 deviations: beyond them the probability of the whole interval underflows. */
MLC_IMPL mlc_tensor *mlc_truncated_normal(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape,
                                          double mean, double std, double lo, double hi)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_TRUNCATED, mean, std);
    args.lo = lo;
    args.hi = hi;
    if (ctx && !(mean - mean == 0.0 && std > 0.0 && std <= DBL_MAX && lo <= hi)) {
        mlc__fail(ctx, MLC_ERR_ARG,
                  "truncated_normal: mean %s, std %s, [%s, %s]; mean and std must be finite, std "
                  "positive, lo <= hi", mlc__real(mean).s, mlc__real(std).s, mlc__real(lo).s,
                  mlc__real(hi).s);
        return NULL;
    }
    if (ctx && !((lo - mean) / std < 37.0 && (hi - mean) / std > -37.0)) {
        mlc__fail(ctx, MLC_ERR_ARG,
                  "truncated_normal: [%s, %s] is over 37 std of %s from the mean %s: no normal "
                  "value lies there; move the interval", mlc__real(lo).s, mlc__real(hi).s,
                  mlc__real(std).s, mlc__real(mean).s);
        return NULL;
    }
    return mlc__random_float(ctx, "truncated_normal", dtype, shape, &args);
}

MLC_IMPL mlc_tensor *mlc_bernoulli(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, double p)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_BERNOULLI, p, 0.0);
    if (ctx && !(p >= 0.0 && p <= 1.0)) {
        mlc__fail(ctx, MLC_ERR_ARG, "bernoulli: p is %s, not in [0, 1]", mlc__real(p).s);
        return NULL;
    }
    return mlc__random(ctx, "bernoulli", dtype, shape, &args);
}

/* The integers that a dtype holds exactly, as [lo, hi]. */
static void mlc__whole_range(mlc_dtype dtype, int64_t *lo, int64_t *hi)
{
    const int bits = dtype == MLC_F32 ? 24 : dtype == MLC_F64 ? 53 : dtype == MLC_BF16 ? 8
                   : dtype == MLC_F16 ? 11 : dtype == MLC_I32 ? 31 : dtype == MLC_I8 ? 7
                   : dtype == MLC_U8 ? 8 : dtype == MLC_BOOL ? 1 : 63;
    const bool sign = dtype != MLC_U8 && dtype != MLC_BOOL;
    *hi = (int64_t)(((uint64_t)1 << bits) - (mlc__is_float(dtype) ? 0 : 1));
    *lo = sign ? mlc__is_float(dtype) ? -*hi : -*hi - 1 : 0;
}

MLC_IMPL mlc_tensor *mlc_randint(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, int64_t lo,
                                 int64_t hi)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_INTEGER, 0.0, 0.0);
    int64_t least, most;
    mlc__whole_range(dtype, &least, &most);
    args.first = lo;
    args.count = (uint64_t)hi - (uint64_t)lo;
    if (ctx && lo >= hi) {
        mlc__fail(ctx, MLC_ERR_ARG, "randint: [%lld, %lld) is empty; hi must be over lo",
                  (long long)lo, (long long)hi);
        return NULL;
    }
    if (ctx && (unsigned)dtype < MLC_DTYPE_COUNT && (lo < least || hi - 1 > most)) {
        mlc__fail(ctx, MLC_ERR_ARG,
                  "randint: [%lld, %lld) is not within [%lld, %lld], the integers that %s holds",
                  (long long)lo, (long long)hi, (long long)least, (long long)most,
                  mlc_dtype_name(dtype));
        return NULL;
    }
    return mlc__random(ctx, "randint", dtype, shape, &args);
}

MLC_IMPL mlc_tensor *mlc_randperm(mlc_ctx *ctx, int64_t n)
{
    struct mlc_k_random args = mlc__random_args(MLC_RANDOM_PERMUTATION, 0.0, 0.0);
    return mlc__random(ctx, "randperm", MLC_I64, mlc_dims1(n), &args);
}

/* What can be told without the data. */
static mlc_status mlc__multinomial_shape(const mlc_tensor *p, int64_t n, bool replacement)
{
    mlc_ctx *ctx = p->ctx;
    MLC__TRY(mlc__alive(p, "multinomial"));
    MLC__REQUIRE(ctx, mlc__is_full(p->dtype), DTYPE,
                 "multinomial: the weights are %s; write mlc_cast(p, MLC_F32)",
                 mlc_dtype_name(p->dtype));
    MLC__REQUIRE(ctx, p->ndim >= 1 && p->ndim <= 2 && p->shape[p->ndim - 1] > 0, SHAPE,
                 "multinomial: the weights are %s; they must be [c] or [r,c], c at least 1",
                 mlc__shape(p).s);
    const int64_t c = p->shape[p->ndim - 1];
    MLC__REQUIRE(ctx, n >= 1, ARG, "multinomial: %lld draws; it must be at least 1", (long long)n);
    MLC__REQUIRE(ctx, replacement || n <= c, ARG,
                 "multinomial: %lld draws from %lld categories without replacement; draw fewer",
                 (long long)n, (long long)c);
    return MLC_OK;
}

static mlc_status mlc__multinomial_run(mlc_ctx *ctx, const mlc_tensor *out, const mlc_tensor *p,
                                       int64_t n, bool replacement, uint64_t stream)
{
    struct mlc_k_multinomial a;
    a.dtype = p->dtype;
    a.replacement = replacement;
    a.n = p->ndim == 2 ? p->shape[0] : 1;
    a.c = p->shape[p->ndim - 1];
    a.k = n;
    a.weights = mlc__data(p);
    a.row = p->ndim == 2 ? p->stride[0] : 0;
    a.col = p->stride[p->ndim - 1];
    a.out = MLC__CAST(int64_t *, mlc__data(out));
    a.seed = ctx->seed;
    a.stream = stream;
    a.error = ctx->error_word;
    a.bad = mlc__error_kind(ctx, MLC_K_ERROR_WEIGHT, "multinomial");
    a.few = mlc__error_kind(ctx, MLC_K_ERROR_FEW, "multinomial");
    MLC__RUN_WITH_WORKSPACE(ctx, "multinomial", multinomial, &a);
    return ctx->on_host ? mlc__error_word_read(ctx) : MLC_OK; /* elsewhere at the scope's end */
}

MLC_IMPL mlc_tensor *mlc_multinomial(mlc_tensor *p, int64_t n, bool replacement)
{
    mlc_tensor *t;
    if (!p || mlc__multinomial_shape(p, n, replacement) != MLC_OK) return NULL;
    const uint64_t stream = p->ctx->stream++;
    t = mlc__make(p->ctx, "multinomial", MLC_I64,
                  p->ndim == 2 ? mlc_dims2(p->shape[0], n) : mlc_dims1(n));
    if (!t || mlc__numel(t) == 0 || p->ctx->dry_run) return t;
    return mlc__multinomial_run(p->ctx, t, p, n, replacement, stream) == MLC_OK ? t : NULL;
}

/* @@ IMPL.OPS.DROPOUT ------------------------------------ dropout: the mask is made twice
 * The node keeps seed and stream, not a mask: backward runs the same kernel on dy. Elements are
 * numbered row-major, so x is made contiguous first; gradients lie as their tensors do. */

static mlc_status mlc__dropout_shape(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__require_float(ctx, nd));
    return mlc__out(ctx, nd, nd->in[0]->dtype, nd->in[0]->ndim, nd->in[0]->shape);
}

/* in and out are dense, or elements and words would not go together. */
static mlc_status mlc__dropout_run(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *out,
                                   const mlc_tensor *in, bool acc)
{
    const struct mlc_k_dropout args = { in->dtype,
                                        acc,
                                        mlc__numel(in),
                                        mlc__data(out),
                                        mlc__data(in),
                                        nd->u.dropout.seed,
                                        nd->u.dropout.stream,
                                        nd->u.dropout.p };
    return args.n ? mlc__run_dropout(ctx, nd->op->name, &args) : MLC_OK;
}

static mlc_status mlc__dropout_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__dropout_run(ctx, nd, nd->out[0], nd->in[0], false);
}

static mlc_status mlc__dropout_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    return mlc__dropout_run(ctx, nd, &dx, &dy, acc);
}

static const mlc__op mlc__dropout_op =
    { "dropout", mlc__dropout_shape, mlc__dropout_forward, mlc__dropout_backward };

MLC_IMPL mlc_tensor *mlc_dropout(mlc_tensor *x, double p)
{
    mlc_node local, *nd;
    if (x && !(p >= 0.0 && p <= 1.0)) {
        mlc__fail(x->ctx, MLC_ERR_ARG, "dropout: p is %s, not in [0, 1]", mlc__real(p).s);
        return NULL;
    }
    nd = mlc__begin(&local, &mlc__dropout_op, 1, mlc_contiguous(x), NULL, NULL);
    if (!nd) return NULL;
    nd->u.dropout.p = p;
    /* Both are kept: mlc_seed may come between forward and backward. */
    nd->u.dropout.seed = x->ctx->seed;
    nd->u.dropout.stream = x->ctx->stream++;
    return mlc__finish(nd);
}

/* @@ IMPL.OPS.REDUCE ------------------------------------- sum to logsumexp, argmax, cumsum
 * Axes become a bit mask. Sums and maxima of floats, which training needs, are the kernel reduce;
 * all others fold. Gradients are made of elementwise kernels: of extremes they are shared among
 * ties, as torch.amax does (torch.max over an axis picks one). */

MLC__INLINE bool mlc__is_extreme(const mlc_node *nd)
{
    const mlc_reduce op = nd->u.reduce.op;
    const double p = nd->u.reduce.p;
    return op == MLC_REDUCE_MAX || op == MLC_REDUCE_MIN ||
           (op == MLC_REDUCE_NORM && (p == MLC__INF || p == -MLC__INF));
}

/* divisor 0 stands for the mean's and deviations', which are only known here. The mean of nothing
 * is 0/0, NaN; so are deviations of no more elements than the correction takes off. */
static mlc_status mlc__reduce_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0];
    const mlc_reduce op = nd->u.reduce.op;
    int64_t shape[MLC_MAX_DIMS], count = 1;
    int32_t ndim = 0;
    mlc_dtype dtype = x->dtype;
    if (op >= MLC_REDUCE_NORM || nd->u.reduce.divisor == 0.0)
        MLC__TRY(mlc__require_float(ctx, nd));
    if (op == MLC_REDUCE_ANY || op == MLC_REDUCE_ALL) dtype = MLC_BOOL;
    if ((op == MLC_REDUCE_SUM || op == MLC_REDUCE_PROD) && !mlc__is_float(dtype)) dtype = MLC_I64;
    for (int32_t d = 0; d < x->ndim; d++) {
        const bool gone = (nd->u.reduce.mask >> d & 1u) != 0;
        MLC__REQUIRE(ctx, !gone || !mlc__is_extreme(nd) || x->shape[d] > 0, SHAPE,
                     "%s: axis %d of %s is empty, and nothing has no extreme; reduce another axis",
                     nd->op->name, d, mlc__shape(x).s);
        MLC__REQUIRE(ctx, !gone || op != MLC_REDUCE_NORM || nd->u.reduce.p >= 0 || x->shape[d] > 0,
                     SHAPE, "norm: axis %d of %s is empty, and nothing has no norm of the negative "
                     "order %s; reduce another axis", d, mlc__shape(x).s,
                     mlc__real(nd->u.reduce.p).s);
        if (gone) count *= x->shape[d];
        if (!gone || nd->u.reduce.keepdim) shape[ndim++] = gone ? 1 : x->shape[d];
    }
    if (nd->u.reduce.divisor == 0.0)
        nd->u.reduce.divisor = count && (double)count > nd->u.reduce.p
                                   ? (double)count - nd->u.reduce.p : 0.0;
    MLC__TRY(mlc__out(ctx, nd, dtype, ndim, shape));
    if (op != MLC_REDUCE_SUM && mlc__is_float(dtype)) mlc__save(nd, x);
    if (mlc__is_extreme(nd) || op == MLC_REDUCE_NORM || op == MLC_REDUCE_STD ||
        op == MLC_REDUCE_LSE)
        mlc__save(nd, nd->out[0]);
    return MLC_OK;
}

/* out (+)= the node's reduction of in; shift, f64: the same axes, reduced ones as 1, or NULL. */
static mlc_status mlc__fold_into(mlc_ctx *ctx, const mlc_node *nd, mlc_reduce op,
                                 const mlc_tensor *out, bool keepdim, double divisor,
                                 bool accumulate, const mlc_tensor *shift)
{
    struct mlc_k_fold args;
    if (mlc__numel(out) == 0) return MLC_OK;
    mlc__reduce_args(&args.r, op, out, nd->in[0], nd->u.reduce.mask, keepdim, divisor, accumulate);
    args.p = nd->u.reduce.p;
    args.shift = shift ? MLC__CAST(const double *, mlc__data(shift)) : NULL;
    for (int32_t d = 0; shift && d < shift->ndim; d++) args.shift_stride[d] = shift->stride[d];
    MLC__RUN_WITH_WORKSPACE_IN(ctx, nd->op->name, fold, &args, &args.r);
    return MLC_OK;
}

/* The reduced axes as 1. */
static mlc_status mlc__keepdim_temp(mlc_ctx *ctx, const mlc_node *nd, mlc__temp *t, mlc_dtype dtype)
{
    const mlc_tensor *x = nd->in[0];
    int64_t shape[MLC_MAX_DIMS];
    for (int32_t d = 0; d < x->ndim; d++)
        shape[d] = nd->u.reduce.mask >> d & 1u ? 1 : x->shape[d];
    return mlc__temp_begin(ctx, t, dtype, x->ndim, shape);
}

/* What a second pass takes off, in f64: the largest element, or the mean, of f64 sums. That of f64
 * is improved by the mean of what is left, so that equal elements deviate by 0. */
static mlc_status mlc__shifted(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_reduce op = nd->u.reduce.op;
    const mlc_tensor *x = nd->in[0];
    mlc__temp shift;
    mlc_status st;
    if (mlc__numel(nd->out[0]) == 0) return MLC_OK;
    MLC__TRY(mlc__keepdim_temp(ctx, nd, &shift, MLC_F64));
    const double count = (double)(mlc__numel(x) / mlc__numel(&shift.t));
    if (op == MLC_REDUCE_LSE)
        st = mlc__reduce(ctx, nd->op->name, MLC_REDUCE_MAX, &shift.t, x, nd->u.reduce.mask, true,
                         1.0, false);
    else st = mlc__fold_into(ctx, nd, MLC_REDUCE_SUM, &shift.t, true, count, false, NULL);
    if (!st && op != MLC_REDUCE_LSE && x->dtype == MLC_F64)
        st = mlc__fold_into(ctx, nd, MLC_REDUCE_SUM, &shift.t, true, count, true, &shift.t);
    if (!st)
        st = mlc__fold_into(ctx, nd, op, nd->out[0], nd->u.reduce.keepdim, nd->u.reduce.divisor,
                            false, &shift.t);
    mlc__temp_end(&shift);
    return st;
}

static mlc_status mlc__reduce_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_reduce op = nd->u.reduce.op;
    if (op >= MLC_REDUCE_VAR) return mlc__shifted(ctx, nd);
    if (op > MLC_REDUCE_MAX || !mlc__is_float(nd->in[0]->dtype))
        return mlc__fold_into(ctx, nd, op, nd->out[0], nd->u.reduce.keepdim,
                              nd->u.reduce.divisor, false, NULL);
    return mlc__reduce(ctx, nd->op->name, op, nd->out[0], nd->in[0], nd->u.reduce.mask,
                       nd->u.reduce.keepdim, nd->u.reduce.divisor, false);
}

/* t with the reduced axes back as 1, so that it broadcasts to x. */
static mlc_tensor mlc__keepdim(const mlc_node *nd, const mlc_tensor *t, const mlc_tensor *x)
{
    mlc_tensor wide = *t;
    int32_t from = 0;
    if (nd->u.reduce.keepdim) return wide;
    wide.ndim = x->ndim;
    for (int32_t d = 0; d < x->ndim; d++) {
        const bool gone = (nd->u.reduce.mask >> d & 1u) != 0;
        wide.shape[d] = gone ? 1 : t->shape[from];
        wide.stride[d] = gone ? 1 : t->stride[from];
        if (!gone) from++;
    }
    return wide;
}

/* The formulas of a backward: t (+)= formula(a, b, c). */
static mlc_status mlc__math(mlc_ctx *ctx, const mlc_node *nd, mlc_map op, const mlc_tensor *t,
                            const mlc_tensor *a, const mlc_tensor *b, const mlc_tensor *c,
                            double s, bool acc)
{
    const double scalars[2] = { s, 0.0 };
    return mlc__apply_math(ctx, nd->op->name, op, t, a, b, c, scalars, acc);
}

/* dy repeated, divided as the mean was. */
static mlc_status mlc__sum_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    const mlc_tensor wide = mlc__keepdim(nd, &dy, nd->in[0]);
    return mlc__map(ctx, nd->op->name, MLC_MAP_MUL_S, &dx, &wide, NULL, NULL,
                    1.0 / nd->u.reduce.divisor, acc);
}

/* ties (+)= dy (x == y) / number of ties; ties may hold x. */
static mlc_status mlc__share_among_ties(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *ties,
                                        const mlc_tensor *x, const mlc_tensor *y,
                                        const mlc_tensor *dy, const mlc_tensor *dx, bool acc)
{
    const char *name = nd->op->name;
    mlc__temp count;
    MLC__TRY(mlc__keepdim_temp(ctx, nd, &count, x->dtype));
    mlc_status st = mlc__map(ctx, name, MLC_MAP_EQ, ties, x, y, NULL, 0.0, false);
    if (!st) st = mlc__reduce(ctx, name, MLC_REDUCE_SUM, &count.t, ties, nd->u.reduce.mask, true,
                              1.0, false);
    if (!st) st = mlc__map(ctx, name, MLC_MAP_SHARE, dx, ties, dy, &count.t, 0.0, acc);
    mlc__temp_end(&count);
    return st;
}

/* dy q = first second, of which second is the power of 2 next to its root: nothing is rounded but
 * first; q and r: f64, for use. */
static mlc_status mlc__prod_factors(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *q,
                                    const mlc_tensor *r, const mlc_tensor *dy,
                                    const mlc_tensor *first, const mlc_tensor *second)
{
    const char *name = nd->op->name;
    const double range[2] = { -126.0, 126.0 };             /* of 0, of infinity */
    MLC__TRY(mlc__cast_into(ctx, name, r, dy));
    MLC__TRY(mlc__map(ctx, name, MLC_MAP_MUL, q, q, r, NULL, 0.0, false));
    MLC__TRY(mlc__math(ctx, nd, MLC_MATH_ABS, r, q, NULL, NULL, 0.0, false));
    MLC__TRY(mlc__math(ctx, nd, MLC_MATH_LOG2, r, r, NULL, NULL, 0.0, false));
    MLC__TRY(mlc__map(ctx, name, MLC_MAP_MUL_S, r, r, NULL, NULL, 0.5, false));
    MLC__TRY(mlc__math(ctx, nd, MLC_MATH_FLOOR, r, r, NULL, NULL, 0.0, false));
    MLC__TRY(mlc__apply_math(ctx, name, MLC_MATH_CLAMP, r, r, NULL, NULL, range, false));
    MLC__TRY(mlc__math(ctx, nd, MLC_MATH_EXP2, r, r, NULL, NULL, 0.0, false));
    MLC__TRY(mlc__map(ctx, name, MLC_MAP_DIV, q, q, r, NULL, 0.0, false));
    MLC__TRY(mlc__cast_into(ctx, name, first, q));
    return mlc__cast_into(ctx, name, second, r);
}

/* Of a product: dy times that of the others. q is the product of what is not 0, so that one zero
 * leaves a gradient at its own place only, and two leave none. dy q may leave the range of x where
 * dy q / x does not: it comes in two factors; the second is applied behind the division. */
MLC__APART mlc_status mlc__prod_gradient(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *t,
                                         const mlc_tensor *dy, const mlc_tensor *dx, bool acc)
{
    const mlc_tensor *x = nd->in[0];
    const char *name = nd->op->name;
    mlc_node ones = *nd;               /* the product of t instead of x */
    mlc__temp temp[5];                 /* q, r, first, second, zeros */
    mlc_tensor filled = *t;
    mlc_status st = MLC_OK;
    int n = 0;
    for (; !st && n < 5; n++)
        st = mlc__keepdim_temp(ctx, nd, &temp[n], n < 2 ? MLC_F64 : x->dtype);
    const int made = st ? n - 1 : n;
    const mlc_tensor *q = &temp[0].t, *first = &temp[2].t, *second = &temp[3].t;
    const mlc_tensor *zeros = &temp[4].t;
    ones.in[0] = &filled;
    if (!st) st = mlc__math(ctx, nd, MLC_MATH_IS_ZERO, t, x, NULL, NULL, 0.0, false);
    if (!st) st = mlc__reduce(ctx, name, MLC_REDUCE_SUM, zeros, t, nd->u.reduce.mask, true, 1.0,
                              false);
    if (!st) st = mlc__math(ctx, nd, MLC_MATH_ZERO_TO_ONE, t, x, NULL, NULL, 0.0, false);
    if (!st) st = mlc__fold_into(ctx, &ones, MLC_REDUCE_PROD, q, true, 1.0, false, NULL);
    if (!st) st = mlc__prod_factors(ctx, nd, q, &temp[1].t, dy, first, second);
    if (!st) st = mlc__math(ctx, nd, MLC_MATH_PROD_GRAD, t, first, x, zeros, 0.0, false);
    if (!st) st = mlc__map(ctx, name, MLC_MAP_MUL, dx, t, second, NULL, 0.0, acc);
    for (int i = made; i-- > 0;) mlc__temp_end(&temp[i]);
    return st;
}

/* dx = sign(x) (|x|/y)^(p-1) dy, nothing where x or y is 0; no power of x or y alone, which could
 * leave the range. */
static mlc_status mlc__norm_gradient(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *t,
                                     const mlc_tensor *y, const mlc_tensor *dy,
                                     const mlc_tensor *dx, bool acc)
{
    const mlc_tensor *x = nd->in[0];
    const double p = nd->u.reduce.p;
    if (p == 0.0) return acc ? MLC_OK : mlc__set(ctx, nd->op->name, dx, 0.0);
    if (p == 1.0) return mlc__math(ctx, nd, MLC_MATH_ABS_GRAD, dx, dy, x, NULL, 0.0, acc);
    if (p == 2.0) {
        MLC__TRY(mlc__math(ctx, nd, MLC_MATH_RATIO, t, x, y, NULL, 0.0, false));
        return mlc__map(ctx, nd->op->name, MLC_MAP_MUL, dx, t, dy, NULL, 0.0, acc);
    }
    MLC__TRY(mlc__math(ctx, nd, MLC_MATH_ABS, t, x, NULL, NULL, 0.0, false));
    if (mlc__is_extreme(nd)) {
        MLC__TRY(mlc__share_among_ties(ctx, nd, t, t, y, dy, t, false));
    } else {
        const bool up = p >= 1.0;      /* else the quotient's inverse: 0 to the power is 0 */
        MLC__TRY(mlc__math(ctx, nd, MLC_MATH_RATIO, t, up ? t : y, up ? y : t, NULL, 0.0, false));
        MLC__TRY(mlc__math(ctx, nd, MLC_MATH_POW_S, t, t, NULL, NULL, fabs(p - 1.0), false));
        MLC__TRY(mlc__map(ctx, nd->op->name, MLC_MAP_MUL, t, t, dy, NULL, 0.0, false));
    }
    return mlc__math(ctx, nd, MLC_MATH_ABS_GRAD, dx, t, x, NULL, 0.0, acc);
}

/* Of each result, the mean of t. */
static mlc_status mlc__mean_into(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *mean,
                                 const mlc_tensor *t)
{
    return mlc__reduce(ctx, nd->op->name, MLC_REDUCE_SUM, mean, t, nd->u.reduce.mask, true,
                       (double)(mlc__numel(t) / mlc__numel(mean)), false);
}

/* var: dx = dy 2/divisor (x - mean); std: dx = dy 1/divisor (x - mean)/y, 0 where y is. The mean
 * of what is left is what rounding took from the mean, which may be more than the deviations. */
MLC__APART mlc_status mlc__var_gradient(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *t,
                                        const mlc_tensor *y, const mlc_tensor *dy,
                                        const mlc_tensor *dx, bool acc)
{
    const mlc_tensor *x = nd->in[0];
    const char *name = nd->op->name;
    const bool root = nd->u.reduce.op == MLC_REDUCE_STD;
    mlc__temp mean;
    MLC__TRY(mlc__keepdim_temp(ctx, nd, &mean, x->dtype));
    mlc_status st = mlc__mean_into(ctx, nd, &mean.t, x);
    if (!st) st = mlc__map(ctx, name, MLC_MAP_SUB, t, x, &mean.t, NULL, 0.0, false);
    if (!st && root) st = mlc__math(ctx, nd, MLC_MATH_RATIO, t, t, y, NULL, 0.0, false);
    if (!st) st = mlc__mean_into(ctx, nd, &mean.t, t);
    if (!st) st = mlc__map(ctx, name, MLC_MAP_SQDIFF_GRAD, dx, dy, t, &mean.t,
                           (root ? 1.0 : 2.0) / nd->u.reduce.divisor, acc);
    mlc__temp_end(&mean);
    return st;
}

/* dx = dy exp(x - y) */
static mlc_status mlc__lse_gradient(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *t,
                                    const mlc_tensor *y, const mlc_tensor *dy,
                                    const mlc_tensor *dx, bool acc)
{
    const char *name = nd->op->name;
    MLC__TRY(mlc__map(ctx, name, MLC_MAP_SUB, t, nd->in[0], y, NULL, 0.0, false));
    MLC__TRY(mlc__map(ctx, name, MLC_MAP_EXP, t, t, NULL, NULL, 0.0, false));
    return mlc__map(ctx, name, MLC_MAP_MUL, dx, t, dy, NULL, 0.0, acc);
}

/* dx (+)= the gradient; y and dy have the reduced axes as 1; dx may be x. */
static mlc_status mlc__reduce_gradient(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *y,
                                       const mlc_tensor *dy, const mlc_tensor *dx, bool acc)
{
    const mlc_tensor *x = nd->in[0];
    mlc__temp t;
    mlc_status st;
    MLC__TRY(mlc__temp_begin(ctx, &t, x->dtype, x->ndim, x->shape));
    switch (nd->u.reduce.op) {
    case MLC_REDUCE_PROD: st = mlc__prod_gradient(ctx, nd, &t.t, dy, dx, acc); break;
    case MLC_REDUCE_NORM: st = mlc__norm_gradient(ctx, nd, &t.t, y, dy, dx, acc); break;
    case MLC_REDUCE_LSE:  st = mlc__lse_gradient(ctx, nd, &t.t, y, dy, dx, acc); break;
    case MLC_REDUCE_VAR:
    case MLC_REDUCE_STD:  st = mlc__var_gradient(ctx, nd, &t.t, y, dy, dx, acc); break;
    default: st = mlc__share_among_ties(ctx, nd, &t.t, x, y, dy, dx, acc); break;
    }
    mlc__temp_end(&t);
    return st;
}

/* The same in f32 for 16-bit floats; y is made anew. */
MLC__APART mlc_status mlc__reduce_gradient_half(mlc_ctx *ctx, const mlc_node *nd,
                                                const mlc_tensor *dy, const mlc_tensor *dx,
                                                bool acc)
{
    const mlc_tensor *x = nd->in[0];
    const char *name = nd->op->name;
    mlc_node full = *nd;
    mlc__temp in, y, g, half;
    mlc_status st;
    MLC__TRY(mlc__temp_begin(ctx, &in, MLC_F32, x->ndim, x->shape));
    st = mlc__keepdim_temp(ctx, nd, &y, MLC_F32);
    if (st == MLC_OK) {
        st = mlc__keepdim_temp(ctx, nd, &g, MLC_F32);
        if (st == MLC_OK) {
            full.in[0] = &in.t;
            full.out[0] = &y.t;
            full.u.reduce.keepdim = true;
            st = mlc__cast_into(ctx, name, &in.t, x);
            if (!st) st = mlc__cast_into(ctx, name, &g.t, dy);
            if (!st) st = mlc__reduce_forward(ctx, &full);
            if (!st) st = mlc__reduce_gradient(ctx, &full, &y.t, &g.t, &in.t, false);
            mlc__temp_end(&g);
        }
        mlc__temp_end(&y);
    }
    if (!st && !acc) st = mlc__cast_into(ctx, name, dx, &in.t);
    if (!st && acc) {
        st = mlc__temp_begin(ctx, &half, x->dtype, x->ndim, x->shape);
        if (!st) {
            st = mlc__cast_into(ctx, name, &half.t, &in.t);
            if (!st) st = mlc__map(ctx, name, MLC_MAP_COPY, dx, &half.t, NULL, NULL, 0.0, true);
            mlc__temp_end(&half);
        }
    }
    mlc__temp_end(&in);
    return st;
}

/* All but sums. In 16 bits a mean or quotient would lose what the gradient is made of. */
static mlc_status mlc__reduce_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    const mlc_tensor y = mlc__keepdim(nd, nd->out[0], x), wide = mlc__keepdim(nd, &dy, x);
    if (mlc__numel(x) == 0) return MLC_OK;
    if (mlc__is_half(x->dtype)) return mlc__reduce_gradient_half(ctx, nd, &wide, &dx, acc);
    return mlc__reduce_gradient(ctx, nd, &y, &wide, &dx, acc);
}

#define MLC__REDUCE_OP(name, backward) static const mlc__op mlc__##name##_op = \
    { #name, mlc__reduce_shape, mlc__reduce_forward, backward };
MLC__REDUCE_OP(sum, mlc__sum_backward)
MLC__REDUCE_OP(mean, mlc__sum_backward)
MLC__REDUCE_OP(prod, mlc__reduce_backward)
MLC__REDUCE_OP(max, mlc__reduce_backward)
MLC__REDUCE_OP(min, mlc__reduce_backward)
MLC__REDUCE_OP(any, NULL)
MLC__REDUCE_OP(all, NULL)
MLC__REDUCE_OP(norm, mlc__reduce_backward)
MLC__REDUCE_OP(var, mlc__reduce_backward)
MLC__REDUCE_OP(std, mlc__reduce_backward)
MLC__REDUCE_OP(logsumexp, mlc__reduce_backward)

/* An empty list of axes means all of them. p: of a norm; else what a count is less by. */
static mlc_tensor *mlc__reduce_call(const mlc__op *op, mlc_tensor *x, mlc_dims axes, bool keepdim,
                                    mlc_reduce kind, double divisor, double p)
{
    mlc_node local, *nd = mlc__begin(&local, op, 1, x, NULL, NULL);
    if (!nd || mlc__axes_mask(x, op->name, axes, &nd->u.reduce.mask) != MLC_OK) return NULL;
    nd->u.reduce.keepdim = keepdim;
    nd->u.reduce.op = kind;
    nd->u.reduce.divisor = divisor;
    nd->u.reduce.p = p;
    return mlc__finish(nd);
}

#define MLC__REDUCE_CALL(name, kind, divisor) \
    mlc__reduce_call(&mlc__##name##_op, x, axes, keepdim, MLC_REDUCE_##kind, divisor, 0.0)
MLC_IMPL mlc_tensor *mlc_sum(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(sum, SUM, 1.0);
}
MLC_IMPL mlc_tensor *mlc_mean(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(mean, SUM, 0.0);
}
MLC_IMPL mlc_tensor *mlc_prod(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(prod, PROD, 1.0);
}
MLC_IMPL mlc_tensor *mlc_max(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(max, MAX, 1.0);
}
MLC_IMPL mlc_tensor *mlc_min(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(min, MIN, 1.0);
}
MLC_IMPL mlc_tensor *mlc_any(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(any, ANY, 1.0);
}
MLC_IMPL mlc_tensor *mlc_all(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(all, ALL, 1.0);
}
MLC_IMPL mlc_tensor *mlc_logsumexp(mlc_tensor *x, mlc_dims axes, bool keepdim)
{
    return MLC__REDUCE_CALL(logsumexp, LSE, 1.0);
}

static mlc_tensor *mlc__var_call(const mlc__op *op, mlc_tensor *x, mlc_dims axes,
                                 double correction, bool keepdim, mlc_reduce kind)
{
    if (x && !(correction - correction == 0.0)) {
        mlc__fail(x->ctx, MLC_ERR_ARG,
                  "%s: correction %s is not finite; 1 divides by n - 1, 0 by n", op->name,
                  mlc__real(correction).s);
        return NULL;
    }
    return mlc__reduce_call(op, x, axes, keepdim, kind, 0.0, correction);
}

MLC_IMPL mlc_tensor *mlc_var(mlc_tensor *x, mlc_dims axes, double correction, bool keepdim)
{
    return mlc__var_call(&mlc__var_op, x, axes, correction, keepdim, MLC_REDUCE_VAR);
}
MLC_IMPL mlc_tensor *mlc_std(mlc_tensor *x, mlc_dims axes, double correction, bool keepdim)
{
    return mlc__var_call(&mlc__std_op, x, axes, correction, keepdim, MLC_REDUCE_STD);
}

MLC_IMPL mlc_tensor *mlc_norm(mlc_tensor *x, double p, mlc_dims axes, bool keepdim)
{
    if (x && p != p) {
        mlc__fail(x->ctx, MLC_ERR_ARG, "norm: the order is NaN; write 2 for the Euclidean norm");
        return NULL;
    }
    return mlc__reduce_call(&mlc__norm_op, x, axes, keepdim, MLC_REDUCE_NORM, 1.0, p);
}

/* No node: an index has no derivative. */
static mlc_tensor *mlc__argmax_call(mlc_tensor *x, int32_t axis, bool keepdim, const char *what,
                                    bool smallest)
{
    struct mlc_k_argmax args;
    int64_t shape[MLC_MAX_DIMS];
    int32_t to = 0, from = 0;
    if (!x || mlc__alive(x, what) != MLC_OK || !mlc__axis_of(x, what, &axis)) return NULL;
    mlc__line_shape(x, args.shape, args.in_stride, &args.ndim);
    if (args.shape[axis] == 0) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, "%s: axis %d of %s is empty, and nothing has no extreme; "
                  "take another axis", what, axis, mlc__shape(x).s);
        return NULL;
    }
    for (int32_t d = 0; d < x->ndim; d++)
        if (d != axis || keepdim) shape[to++] = d == axis ? 1 : x->shape[d];
    mlc_tensor *t = mlc__make(x->ctx, what, MLC_I64, mlc_dims_of(to, shape));
    if (!t || mlc__numel(t) == 0 || x->ctx->dry_run) return t;
    args.dtype = x->dtype;
    args.axis = axis;
    args.smallest = smallest;
    args.in = mlc__data(x);
    args.out = MLC__CAST(int64_t *, mlc__data(t));
    for (int32_t d = 0; d < args.ndim; d++) {
        args.out_stride[d] = d == axis ? 0 : t->stride[from];
        from += d != axis || keepdim;
    }
    return mlc__run_argmax(x->ctx, what, &args) == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_argmax(mlc_tensor *x, int32_t axis, bool keepdim)
{
    return mlc__argmax_call(x, axis, keepdim, "argmax", false);
}
MLC_IMPL mlc_tensor *mlc_argmin(mlc_tensor *x, int32_t axis, bool keepdim)
{
    return mlc__argmax_call(x, axis, keepdim, "argmin", true);
}

/* @@ IMPL.OPS.SCAN --------------------------------------- cumsum, cumprod
 * Backward of a sum is the sum from the end on; that of a product one pass, too, which divides by
 * nothing. */

static mlc_status mlc__scan(mlc_ctx *ctx, const mlc_node *nd, mlc_scan op, const mlc_tensor *out,
                            const mlc_tensor *in, const mlc_tensor *y, const mlc_tensor *dy,
                            bool reverse, bool accumulate)
{
    struct mlc_k_scan args;
    int64_t shape[MLC_MAX_DIMS];
    int32_t ndim;
    if (mlc__numel(out) == 0) return MLC_OK;
    memset(&args, 0, sizeof args);
    args.op = op;
    args.dtype = in->dtype;
    args.out_dtype = out->dtype;
    args.axis = nd->u.axis;
    args.reverse = reverse;
    args.accumulate = accumulate;
    args.in = mlc__data(in);
    args.out = mlc__data(out);
    mlc__line_shape(in, args.shape, args.in_stride, &args.ndim);
    mlc__line_shape(out, shape, args.out_stride, &ndim);
    if (y && dy) {                    /* both or none */
        args.y = mlc__data(y);
        args.dy = mlc__data(dy);
        mlc__line_shape(y, shape, args.y_stride, &ndim);
        mlc__line_shape(dy, shape, args.dy_stride, &ndim);
    }
    return mlc__run_scan(ctx, nd->op->name, &args);
}

static mlc_status mlc__cumsum_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0];
    return mlc__out(ctx, nd, mlc__is_float(x->dtype) ? x->dtype : MLC_I64, x->ndim, x->shape);
}

static mlc_status mlc__cumsum_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__scan(ctx, nd, MLC_SCAN_SUM, nd->out[0], nd->in[0], NULL, NULL, false, false);
}

static mlc_status mlc__cumsum_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    return mlc__scan(ctx, nd, MLC_SCAN_SUM, &dx, &dy, NULL, NULL, true, acc);
}

static const mlc__op mlc__cumsum_op = { "cumsum", mlc__cumsum_shape, mlc__cumsum_forward,
                                        mlc__cumsum_backward };

static mlc_status mlc__cumprod_shape(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__cumsum_shape(ctx, nd));
    mlc__save(nd, nd->in[0]);
    mlc__save(nd, nd->out[0]);
    return MLC_OK;
}

static mlc_status mlc__cumprod_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__scan(ctx, nd, MLC_SCAN_PROD, nd->out[0], nd->in[0], NULL, NULL, false, false);
}

static mlc_status mlc__cumprod_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    return mlc__scan(ctx, nd, MLC_SCAN_PROD_GRAD, &dx, nd->in[0], nd->out[0], &dy, true, acc);
}

static const mlc__op mlc__cumprod_op = { "cumprod", mlc__cumprod_shape, mlc__cumprod_forward,
                                         mlc__cumprod_backward };

static mlc_tensor *mlc__scan_call(const mlc__op *op, mlc_tensor *x, int32_t axis)
{
    mlc_node local, *nd = mlc__begin(&local, op, 1, x, NULL, NULL);
    if (!nd || !mlc__axis_of(x, op->name, &axis)) return NULL;
    nd->u.axis = axis;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_cumsum(mlc_tensor *x, int32_t axis)
{
    return mlc__scan_call(&mlc__cumsum_op, x, axis);
}
MLC_IMPL mlc_tensor *mlc_cumprod(mlc_tensor *x, int32_t axis)
{
    return mlc__scan_call(&mlc__cumprod_op, x, axis);
}

/* @@ IMPL.OPS.SOFTMAX ------------------------------------ softmax, log_softmax
 * One kernel each way, along any axis: backward needs the result alone. */

static mlc_status mlc__softmax_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0];
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, x->shape));
    mlc__save(nd, nd->out[0]);
    return MLC_OK;
}

static mlc_status mlc__softmax_forward(mlc_ctx *ctx, mlc_node *nd)
{
    struct mlc_k_softmax a;
    if (mlc__numel(nd->in[0]) == 0) return MLC_OK;
    memset(&a, 0, sizeof a);
    a.dtype = nd->in[0]->dtype;
    a.axis = nd->u.softmax.axis;
    a.log = nd->u.softmax.log;
    a.out = mlc__data(nd->out[0]);
    a.in = mlc__data(nd->in[0]);
    mlc__line_shape(nd->out[0], a.shape, a.out_stride, &a.ndim);
    mlc__line_shape(nd->in[0], a.shape, a.in_stride, &a.ndim);
    return mlc__run_softmax(ctx, nd->op->name, &a);
}

static mlc_status mlc__softmax_backward(mlc_ctx *ctx, mlc_node *nd)
{
    struct mlc_k_softmax_grad a;
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st) || mlc__numel(&dx) == 0) return st;
    memset(&a, 0, sizeof a);
    a.dtype = dx.dtype;
    a.axis = nd->u.softmax.axis;
    a.log = nd->u.softmax.log;
    a.accumulate = acc;
    a.out = mlc__data(&dx);
    a.y = mlc__data(nd->out[0]);
    a.dy = mlc__data(&dy);
    mlc__line_shape(&dx, a.shape, a.out_stride, &a.ndim);
    mlc__line_shape(nd->out[0], a.shape, a.y_stride, &a.ndim);
    mlc__line_shape(&dy, a.shape, a.dy_stride, &a.ndim);
    return mlc__run_softmax_grad(ctx, nd->op->name, &a);
}

static const mlc__op mlc__softmax_op =
    { "softmax", mlc__softmax_shape, mlc__softmax_forward, mlc__softmax_backward };
static const mlc__op mlc__log_softmax_op =
    { "log_softmax", mlc__softmax_shape, mlc__softmax_forward, mlc__softmax_backward };

static mlc_tensor *mlc__softmax_call(const mlc__op *op, mlc_tensor *x, int32_t axis, bool log)
{
    mlc_node local, *nd = mlc__begin(&local, op, 1, x, NULL, NULL);
    if (!nd || !mlc__axis_of(x, op->name, &axis)) return NULL;
    nd->u.softmax.axis = axis;
    nd->u.softmax.log = log;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_softmax(mlc_tensor *x, int32_t axis)
{
    return mlc__softmax_call(&mlc__softmax_op, x, axis, false);
}
MLC_IMPL mlc_tensor *mlc_log_softmax(mlc_tensor *x, int32_t axis)
{
    return mlc__softmax_call(&mlc__log_softmax_op, x, axis, true);
}

/* @@ IMPL.OPS.NORM --------------------------------------- layer_norm, rms_norm
 * The second output, mean and factor of each row in f64, is for backward alone. The inputs behind x
 * are weight and bias, as far as they are there. */

/* Place of the weight, of the bias among the inputs; 0: there is none. */
MLC__INLINE int mlc__norm_weight(const mlc_node *nd) { return nd->u.norm.weight ? 1 : 0; }
MLC__INLINE int mlc__norm_bias(const mlc_node *nd)
{
    return nd->u.norm.bias ? mlc__norm_weight(nd) + 1 : 0;
}

static mlc_status mlc__norm_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0];
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__REQUIRE(ctx, nd->u.norm.eps >= 0.0 && nd->u.norm.eps < MLC__INF, ARG,
                 "%s: eps is %s; it must be finite and not negative", nd->op->name,
                 mlc__real(nd->u.norm.eps).s);
    MLC__REQUIRE(ctx, x->ndim > 0, SHAPE, "%s: x [] is a scalar; it must be [..,n]",
                 nd->op->name);
    const int64_t n = x->shape[x->ndim - 1];
    for (int i = 1; i < nd->n_in; i++)
        MLC__REQUIRE(ctx, nd->in[i]->ndim == 1 && nd->in[i]->shape[0] == n, SHAPE,
                     "%s: %s must be %s for x %s, it is %s", nd->op->name,
                     i == mlc__norm_weight(nd) ? "weight" : "bias",
                     mlc__shape_text(1, x->shape + x->ndim - 1).s, mlc__shape(x).s,
                     mlc__shape(nd->in[i]).s);
    const int64_t stat = n ? mlc__numel(x) / n * 3 : 0;
    MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, x->shape));
    MLC__TRY(mlc__out(ctx, nd, MLC_F64, 1, &stat));
    mlc__save(nd, x);
    mlc__save(nd, nd->out[1]);
    if (nd->u.norm.weight) mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

static mlc_status mlc__norm_forward(mlc_ctx *ctx, mlc_node *nd)
{
    struct mlc_k_norm a;
    const mlc_tensor *x = nd->in[0];
    if (mlc__numel(x) == 0) return MLC_OK;
    memset(&a, 0, sizeof a);
    a.dtype = x->dtype;
    a.rms = nd->u.norm.rms;
    a.eps = nd->u.norm.eps;
    a.out = mlc__data(nd->out[0]);
    a.in = mlc__data(x);
    a.stat = MLC__CAST(double *, mlc__data(nd->out[1]));
    if (nd->u.norm.weight) a.weight = mlc__data(nd->in[mlc__norm_weight(nd)]);
    if (nd->u.norm.bias) a.bias = mlc__data(nd->in[mlc__norm_bias(nd)]);
    mlc__line_shape(nd->out[0], a.shape, a.out_stride, &a.ndim);
    mlc__line_shape(x, a.shape, a.in_stride, &a.ndim);
    return mlc__run_norm(ctx, nd->op->name, &a);
}

/* Gradient of input i, 0: that is not there. NULL: not wanted. */
static mlc_tensor *mlc__norm_grad_of(mlc_node *nd, int i, bool there, mlc_tensor *g, int32_t *acc,
                                     mlc_status *st)
{
    bool accumulate = false;
    if (!there || !mlc__grad_in(nd, i, g, &accumulate, st)) return NULL;
    *acc = accumulate;
    return g;
}

static mlc_status mlc__norm_backward(mlc_ctx *ctx, mlc_node *nd)
{
    struct mlc_k_norm_grad a;
    const mlc_tensor *x = nd->in[0];
    mlc_tensor dy, dx, dw, db;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    memset(&a, 0, sizeof a);
    const bool to_x = mlc__norm_grad_of(nd, 0, true, &dx, &a.dx_accumulate, &st) != NULL;
    const bool to_w = mlc__norm_grad_of(nd, mlc__norm_weight(nd), nd->u.norm.weight, &dw,
                                        &a.dweight_accumulate, &st) != NULL;
    const bool to_b = mlc__norm_grad_of(nd, mlc__norm_bias(nd), nd->u.norm.bias, &db,
                                        &a.dbias_accumulate, &st) != NULL;
    if (st != MLC_OK || x->shape[x->ndim - 1] == 0 || !(to_x || to_w || to_b)) return st;
    a.dtype = x->dtype;
    a.rms = nd->u.norm.rms;
    a.in = mlc__data(x);
    a.dy = mlc__data(&dy);
    a.stat = MLC__CAST(const double *, mlc__data(nd->out[1]));
    if (nd->u.norm.weight) a.weight = mlc__data(nd->in[1]);
    mlc__line_shape(x, a.shape, a.in_stride, &a.ndim);
    mlc__line_shape(&dy, a.shape, a.dy_stride, &a.ndim);
    if (to_x) { a.dx = mlc__data(&dx); mlc__line_shape(&dx, a.shape, a.dx_stride, &a.ndim); }
    if (to_w) { a.dweight = mlc__data(&dw); a.dweight_stride = dw.stride[0]; }
    if (to_b) { a.dbias = mlc__data(&db); a.dbias_stride = db.stride[0]; }
    MLC__RUN_WITH_WORKSPACE(ctx, nd->op->name, norm_grad, &a);
    return MLC_OK;
}

static const mlc__op mlc__layer_norm_op =
    { "layer_norm", mlc__norm_shape, mlc__norm_forward, mlc__norm_backward };
static const mlc__op mlc__rms_norm_op =
    { "rms_norm", mlc__norm_shape, mlc__norm_forward, mlc__norm_backward };

/* Weight and bias are read as dense rows; a copy is recorded, so gradients find their way back. */
static mlc_tensor *mlc__norm_call(const mlc__op *op, mlc_tensor *x, mlc_tensor *weight,
                                  mlc_tensor *bias, double eps, bool rms)
{
    mlc_node local, *nd;
    const bool has_weight = weight != NULL, has_bias = bias != NULL;
    if (has_weight) weight = mlc_contiguous(weight);
    if (has_bias) bias = mlc_contiguous(bias);
    nd = mlc__begin(&local, op, 1 + has_weight + has_bias, x, has_weight ? weight : bias,
                    has_weight ? bias : NULL);
    if (!nd) return NULL;
    nd->u.norm.eps = eps;
    nd->u.norm.rms = rms;
    nd->u.norm.weight = has_weight;
    nd->u.norm.bias = has_bias;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_layer_norm(mlc_tensor *x, mlc_tensor *weight, mlc_tensor *bias, double eps)
{
    return mlc__norm_call(&mlc__layer_norm_op, x, weight, bias, eps, false);
}
MLC_IMPL mlc_tensor *mlc_rms_norm(mlc_tensor *x, mlc_tensor *weight, double eps)
{
    return mlc__norm_call(&mlc__rms_norm_op, x, weight, NULL, eps, true);
}

/* @@ IMPL.OPS.MATMUL ------------------------------------- batched, broadcast, any strides
 * Everything becomes a mlc__product_spec: sizes and three sets of strides. Transposing is swapping
 * two strides, broadcasting is a stride of 0, and a batch axis with stride 0 in c adds up (the
 * gradient of a broadcast operand). So forward and both gradients are the same call with operands
 * in other places. */

/* A batch of matrices: strides of rows, columns and up to 8 batch axes. */
typedef struct mlc__mats {
    char   *data;
    int64_t row, col, batch[MLC_MAX_DIMS];
} mlc__mats;

/* c = act(alpha a b + bias) + beta c, as struct mlc_k_gemm, over all batch axes. */
typedef struct mlc__product_spec {
    mlc_dtype   dtype;
    int64_t     m, n, k;
    int32_t     batch_dims;
    int64_t     batch[MLC_MAX_DIMS];
    mlc__mats   a, b, c;
    double      alpha, beta;
    mlc_act     act;
    const void *bias;
    void       *pre;
} mlc__product_spec;

/* One call of the gemm kernel: one run of equally spaced products. */
static mlc_status mlc__gemm_call(mlc_ctx *ctx, const char *what, const mlc__product_spec *p,
                                 int64_t batch, const int64_t offset[3], const int64_t step[3],
                                 double beta)
{
    const size_t size = mlc__dtypes[p->dtype].bytes;
    struct mlc_k_gemm g;
    g.dtype = p->dtype;
    g.act = p->act;
    g.m = p->m;
    g.n = p->n;
    g.k = p->k;
    g.batch = batch;
    g.a = mlc__at(p->a.data, offset[0], size);
    g.b = mlc__at(p->b.data, offset[1], size);
    g.c = (void *)(uintptr_t)mlc__at(p->c.data, offset[2], size);
    g.a_row = p->a.row; g.a_col = p->a.col; g.a_batch = step[0];
    g.b_row = p->b.row; g.b_col = p->b.col; g.b_batch = step[1];
    g.c_row = p->c.row; g.c_col = p->c.col; g.c_batch = step[2];
    g.bias = p->bias;
    g.pre = p->pre;
    g.alpha = p->alpha;
    g.beta = beta;
    MLC__RUN_WITH_WORKSPACE(ctx, what, gemm, &g);
    return MLC_OK;
}

/* The innermost batch axis goes to the kernel; the others, and those that add up into one matrix of
 * c (stride 0), are walked here, in order. */
static mlc_status mlc__gemm(mlc_ctx *ctx, const char *what, const mlc__product_spec *p)
{
    const mlc__mats *mats[3] = { &p->a, &p->b, &p->c };
    const int32_t last = p->batch_dims - 1;
    const bool run = last >= 0 && p->c.batch[last] != 0;
    const int32_t walked = run ? last : p->batch_dims;
    int64_t step[3] = { 0, 0, 0 };
    if (mlc__product(p->batch_dims, p->batch) == 0 || p->m == 0 || p->n == 0) return MLC_OK;
    for (int i = 0; i < 3 && run; i++) step[i] = mats[i]->batch[last];
    /* again: the second product into the same matrix of c adds to the first, whatever beta was. */
    for (int64_t w = 0; w < mlc__product(walked, p->batch); w++) {
        int64_t offset[3] = { 0, 0, 0 }, rest = w;
        bool again = false;            /* this matrix of c has been written before */
        for (int32_t d = walked - 1; d >= 0; d--) {
            const int64_t at = rest % p->batch[d];
            rest /= p->batch[d];
            for (int i = 0; i < 3; i++) offset[i] += at * mats[i]->batch[d];
            again = again || (at > 0 && p->c.batch[d] == 0);
        }
        MLC__TRY(mlc__gemm_call(ctx, what, p, run ? p->batch[last] : 1, offset, step,
                                again ? 1.0 : p->beta));
    }
    return MLC_OK;
}

/* Matrices of t in a product with nb batch axes: t's own, aligned at the right, stride 0 where
 * it is broadcast. A 1-d t is a row or a column. */
static mlc__mats mlc__mats_of(const mlc_tensor *t, bool column, int32_t nb)
{
    mlc__mats m;
    const int32_t own = t->ndim > 2 ? t->ndim - 2 : 0;
    m.data = MLC__CAST(char *, mlc__data(t));
    m.row = t->ndim > 1 ? t->stride[t->ndim - 2] : column ? t->stride[0] : 0;
    m.col = t->ndim > 1 ? t->stride[t->ndim - 1] : column ? 0 : t->stride[0];
    for (int32_t d = 0; d < nb; d++) {
        const int32_t i = d - (nb - own);
        m.batch[d] = i >= 0 && t->shape[i] != 1 ? t->stride[i] : 0;
    }
    return m;
}

/* The transpose. */
static mlc__mats mlc__mats_flip(mlc__mats m)
{
    const int64_t row = m.row;
    m.row = m.col;
    m.col = row;
    return m;
}

/* a [..,m,k], b [..,k,n]; a 1-d a is [1,k] and a 1-d b [k,1], whose axis the output does not
 * have. */
static mlc_status mlc__matmul_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *a = nd->in[0], *b = nd->in[1];
    int64_t shape[MLC_MAX_DIMS];
    int32_t n = 0;
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__REQUIRE(ctx, a->ndim > 0 && b->ndim > 0, SHAPE, "matmul: a scalar has no axes: a %s, b %s"
                 "; write mlc_mul", mlc__shape(a).s, mlc__shape(b).s);
    const int64_t ka = a->shape[a->ndim - 1], kb = b->shape[b->ndim > 1 ? b->ndim - 2 : 0];
    MLC__REQUIRE(ctx, ka == kb, SHAPE, "matmul: inner sizes differ, a %s, b %s: %lld vs %lld; "
                 "a is [..,m,k], b [..,k,n]", mlc__shape(a).s, mlc__shape(b).s, (long long)ka,
                 (long long)kb);
    const int32_t ba = a->ndim > 2 ? a->ndim - 2 : 0, bb = b->ndim > 2 ? b->ndim - 2 : 0;
    const int32_t nb = ba > bb ? ba : bb;
    for (int32_t d = 0; d < nb; d++) {
        const int64_t x = d - (nb - ba) >= 0 ? a->shape[d - (nb - ba)] : 1;
        const int64_t y = d - (nb - bb) >= 0 ? b->shape[d - (nb - bb)] : 1;
        MLC__REQUIRE(ctx, x == y || x == 1 || y == 1, SHAPE,
                     "matmul: batch axes of a %s and b %s do not broadcast: %lld vs %lld; sizes "
                     "must be equal, or one of them 1",
                     mlc__shape(a).s, mlc__shape(b).s, (long long)x, (long long)y);
        shape[n++] = x == 1 ? y : x;
    }
    if (a->ndim > 1) shape[n++] = a->shape[a->ndim - 2];
    if (b->ndim > 1) shape[n++] = b->shape[b->ndim - 1];
    MLC__TRY(mlc__out(ctx, nd, a->dtype, n, shape));
    if (mlc__needs(nd, 1)) mlc__save(nd, a);
    if (mlc__needs(nd, 0)) mlc__save(nd, b);
    return MLC_OK;
}

/* Sizes and operands of y = a b; y (or dy) lies as out. */
static void mlc__matmul_spec(const mlc_node *nd, const mlc_tensor *a, const mlc_tensor *b,
                             const mlc_tensor *y, mlc__product_spec *p)
{
    const mlc_tensor *in_a = nd->in[0], *in_b = nd->in[1];
    const int32_t ends = (in_a->ndim > 1) + (in_b->ndim > 1);
    memset(p, 0, sizeof *p);
    p->dtype = in_a->dtype;
    p->m = in_a->ndim > 1 ? in_a->shape[in_a->ndim - 2] : 1;
    p->n = in_b->ndim > 1 ? in_b->shape[in_b->ndim - 1] : 1;
    p->k = in_a->shape[in_a->ndim - 1];
    p->batch_dims = y->ndim - ends;
    p->alpha = 1.0;
    for (int32_t d = 0; d < p->batch_dims; d++) p->batch[d] = y->shape[d];
    p->a = mlc__mats_of(a, false, p->batch_dims);
    p->b = mlc__mats_of(b, true, p->batch_dims);
    p->c.data = MLC__CAST(char *, mlc__data(y));
    p->c.row = in_a->ndim > 1 ? y->stride[p->batch_dims] : 0;
    p->c.col = in_b->ndim > 1 ? y->stride[y->ndim - 1] : 1;
    for (int32_t d = 0; d < p->batch_dims; d++) p->c.batch[d] = mlc__max(1, y->stride[d]);
    /* [..,m,k] times one [k,n] is one product of many rows, if these lie in one piece. */
    if (p->batch_dims && in_b->ndim <= 2 && in_a->ndim > 2 &&
        (in_a->flags & a->flags & MLC__DENSE)) {
        p->m *= mlc__product(p->batch_dims, p->batch);     /* rows of all batches at once */
        p->a.row = p->k;               /* strides of axes of size 1 may be anything */
        p->a.col = 1;
        p->c.row = p->n;
        p->c.col = 1;
        p->batch_dims = 0;
    }
}

static mlc_status mlc__matmul_forward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc__product_spec p;
    mlc__matmul_spec(nd, nd->in[0], nd->in[1], nd->out[0], &p);
    return mlc__gemm(ctx, nd->op->name, &p);
}

/* da = dy b^T; db = a^T dy: the operands of y = a b in other places. */
static mlc_status mlc__matmul_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_status st = MLC_OK;
    mlc_tensor dy, dx;
    bool acc;
    mlc__grad_view(nd->out[0], &dy);
    for (int i = 0; i < 2; i++) {
        mlc__product_spec p;
        mlc__mats dy_mats;
        if (!mlc__grad_in(nd, i, &dx, &acc, &st)) continue;
        mlc__matmul_spec(nd, i == 0 ? &dx : nd->in[0], i == 1 ? &dx : nd->in[1], &dy, &p);
        dy_mats = p.c;
        p.beta = acc ? 1.0 : 0.0;
        /* Sizes in the words of y = a b: da is [m,k] over n, db is [k,n] over m. */
        const int64_t m = p.m, n = p.n, k = p.k;
        if (i == 0) { p.c = p.a; p.a = dy_mats; p.b = mlc__mats_flip(p.b); p.n = k; p.k = n; }
        else { p.c = p.b; p.a = mlc__mats_flip(p.a); p.b = dy_mats; p.m = k; p.k = m; }
        if (mlc__numel(&dy) == 0 && !acc) st = mlc__set(ctx, nd->op->name, &dx, 0.0);
        else st = mlc__gemm(ctx, nd->op->name, &p);
    }
    return st;
}

static const mlc__op mlc__matmul_op =
    { "matmul", mlc__matmul_shape, mlc__matmul_forward, mlc__matmul_backward };

MLC_IMPL mlc_tensor *mlc_matmul(mlc_tensor *a, mlc_tensor *b)
{
    mlc_node local, *nd = mlc__begin(&local, &mlc__matmul_op, 2, a, b, NULL);
    return nd ? mlc__finish(nd) : NULL;
}

/* @@ IMPL.OPS.LINEAR ------------------------------------- act(x w^T + b) and its three products
 * The bias and the activation are the product's sink. What backward needs of the activation is one
 * tensor: its output, or for gelu and silu its input, which the sink writes beside the output. dy
 * is then turned into the gradient before the activation in place, once, and the three gradients
 * follow: dw = dy^T x, db = column sums, dx = dy w. Leading axes of x are rows. */

/* Can the leading axes of t be walked as rows with one stride? */
static bool mlc__has_rows(const mlc_tensor *t, int64_t *rows, int64_t *stride)
{
    *stride = 0;
    *rows = mlc__product(t->ndim - 1, t->shape) ? 1 : 0;
    for (int32_t d = t->ndim - 2; d >= 0 && *rows; d--) {
        if (t->shape[d] == 1) continue;
        if (*rows == 1) *stride = t->stride[d];
        else if (t->stride[d] != *stride * *rows) return false;
        *rows *= t->shape[d];
    }
    return true;
}

/* Activations whose gradient needs their input; the others do with their output. */
static bool mlc__act_needs_input(mlc_act act) { return act == MLC_ACT_GELU || act == MLC_ACT_SILU; }

/* x [..,in], w [out,in], b [out]; out [..,out]. Saves what the gradients that are asked for
 * read. */
static mlc_status mlc__linear_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], *w = nd->in[1], *b = nd->in[2];
    int64_t shape[MLC_MAX_DIMS];
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__REQUIRE(ctx, w->ndim == 2 && x->ndim > 0, SHAPE,
                 "linear: x %s, w %s: x must be [..,in] and w [out,in]", mlc__shape(x).s,
                 mlc__shape(w).s);
    MLC__REQUIRE(ctx, x->shape[x->ndim - 1] == w->shape[1], SHAPE,
                 "linear: x %s must end in the in of w %s: %lld vs %lld; x is [..,in], w "
                 "[out,in]", mlc__shape(x).s, mlc__shape(w).s,
                 (long long)x->shape[x->ndim - 1], (long long)w->shape[1]);
    MLC__REQUIRE(ctx, !b || (b->ndim == 1 && b->shape[0] == w->shape[0]), SHAPE,
                 "linear: b must be [%lld] for x %s and w %s, it is %s", (long long)w->shape[0],
                 mlc__shape(x).s, mlc__shape(w).s, b ? mlc__shape(b).s : "");
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = w->shape[0];
    MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, shape));
    /* Second output: the sum before the activation. Nobody else sees it. */
    if (nd->recorded && mlc__act_needs_input(nd->u.act))
        MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, shape));
    if (mlc__needs(nd, 1)) mlc__save(nd, x);
    if (mlc__needs(nd, 0)) mlc__save(nd, w);
    if (nd->u.act) mlc__save(nd, nd->out[nd->n_out - 1]);
    return MLC_OK;
}

/* y = x w^T as matrices: rows, out, in. */
static void mlc__linear_spec(const mlc_node *nd, const mlc_tensor *x, const mlc_tensor *w,
                             const mlc_tensor *y, mlc__product_spec *p)
{
    int64_t stride;
    p->batch_dims = 0;
    p->beta = 0.0;
    p->act = MLC_ACT_NONE;
    p->bias = NULL;
    p->pre = NULL;
    p->dtype = x->dtype;
    mlc__has_rows(x, &p->m, &stride);
    p->n = nd->in[1]->shape[0];
    p->k = nd->in[1]->shape[1];
    p->alpha = 1.0;
    p->a.data = MLC__CAST(char *, mlc__data(x));
    p->a.row = stride;
    p->a.col = x->stride[x->ndim - 1];
    p->b.data = MLC__CAST(char *, mlc__data(w));
    p->b.row = w->stride[1];
    p->b.col = w->stride[0];
    p->c.data = MLC__CAST(char *, mlc__data(y));
    p->c.row = p->n;
    p->c.col = 1;
}

static mlc_status mlc__linear_forward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc__product_spec p;
    mlc__linear_spec(nd, nd->in[0], nd->in[1], nd->out[0], &p);
    p.act = nd->u.act;
    p.bias = nd->in[2] ? mlc__data(nd->in[2]) : NULL;
    p.pre = nd->n_out > 1 ? mlc__data(nd->out[1]) : NULL;
    return mlc__gemm(ctx, nd->op->name, &p);
}

/* dy times the activation's derivative, in place: nobody else reads dy. */
static mlc_status mlc__linear_through_act(mlc_ctx *ctx, mlc_node *nd, const mlc_tensor *dy)
{
    static const mlc_map grad[] = { MLC_MAP_COPY,      MLC_MAP_RELU_GRAD,    MLC_MAP_GELU_GRAD,
                                    MLC_MAP_TANH_GRAD, MLC_MAP_SIGMOID_GRAD, MLC_MAP_SILU_GRAD };
    if (!nd->u.act) return MLC_OK;
    return mlc__map(ctx, nd->op->name, grad[nd->u.act], dy, dy, nd->out[nd->n_out - 1], NULL, 0.0,
                    false);
}

/* Three gradients of dy [rows,out]; each only if asked for. */
static mlc_status mlc__linear_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_status st = MLC_OK;
    mlc_tensor dy, dx;
    bool acc;
    mlc__product_spec p;
    mlc__mats dy_mats;
    mlc__grad_view(nd->out[0], &dy);
    MLC__TRY(mlc__linear_through_act(ctx, nd, &dy));
    if (mlc__grad_in(nd, 1, &dx, &acc, &st)) {             /* dw [out,in] = dy^T x */
        mlc__linear_spec(nd, nd->in[0], &dx, &dy, &p);
        dy_mats = p.c;
        p.c = p.b;
        p.b = p.a;
        p.a = mlc__mats_flip(dy_mats);
        p.c = mlc__mats_flip(p.c);
        const int64_t rows = p.m;
        p.m = p.n;
        p.n = p.k;
        p.k = rows;
        p.beta = acc ? 1.0 : 0.0;
        st = mlc__gemm(ctx, nd->op->name, &p);
    }
    if (mlc__grad_in(nd, 2, &dx, &acc, &st)) st = mlc__sum_to(ctx, nd->op->name, &dx, &dy, acc);
    if (mlc__grad_in(nd, 0, &dx, &acc, &st)) {             /* dx [rows,in] = dy w */
        mlc__linear_spec(nd, &dx, nd->in[1], &dy, &p);
        dy_mats = p.c;
        p.c = p.a;
        p.a = dy_mats;
        p.b = mlc__mats_flip(p.b);
        const int64_t out = p.n;
        p.n = p.k;
        p.k = out;
        p.beta = acc ? 1.0 : 0.0;
        st = mlc__gemm(ctx, nd->op->name, &p);
    }
    return st;
}

static const mlc__op mlc__linear_op =
    { "linear", mlc__linear_shape, mlc__linear_forward, mlc__linear_backward };

MLC_IMPL mlc_tensor *mlc_linear_ex(mlc_tensor *x, mlc_tensor *w, mlc_tensor *b,
                                   const mlc_epilogue *epilogue)
{
    const mlc_act act = epilogue ? epilogue->act : MLC_ACT_NONE;
    mlc_node local, *nd;
    int64_t rows, stride;
    if (x && (unsigned)act > MLC_ACT_SILU) {
        mlc__fail(x->ctx, MLC_ERR_ARG, "linear: unknown activation %d; see mlc_act",
                  (int)act);
        return NULL;
    }
    if (x && x->ndim > 0 && !mlc__has_rows(x, &rows, &stride)) x = mlc_contiguous(x);
    /* Recorded where it copies, so gradients find their way back. */
    if (b && !(b = mlc_contiguous(b))) return NULL;
    nd = mlc__begin(&local, &mlc__linear_op, b ? 3 : 2, x, w, b);
    if (!nd) return NULL;
    nd->u.act = act;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_linear(mlc_tensor *x, mlc_tensor *w, mlc_tensor *b)
{
    return mlc_linear_ex(x, w, b, NULL);
}

/* @@ IMPL.OPS.JOIN --------------------------------------- concat, split, tile, flip, roll, pad
 * Strided copies into slices of the result, by the cast kernel; what can be said with views and
 * concat is. A concat of many inputs is recorded as a chain of nodes, four inputs each, with one
 * output. */

/* Piece i of the result, from start on. */
static void mlc__join_piece(const mlc_tensor *whole, int32_t axis, int64_t start, int64_t size,
                            mlc_tensor *piece)
{
    *piece = *whole;
    if (size) piece->offset += start * whole->stride[axis];
    piece->shape[axis] = size;
    mlc__mark_layout(piece);
}

/* The output is there already, and whole: nodes are made for backward only. */
static mlc_status mlc__concat_shape(mlc_ctx *ctx, mlc_node *nd)
{
    (void)ctx;
    nd->out[nd->n_out++] = nd->u.join.out;
    nd->inplace = nd->u.join.out->node != NULL;
    return MLC_OK;
}

/* Each input gets its piece of dy. */
static mlc_status mlc__concat_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const int32_t axis = nd->u.join.axis;
    int64_t start = nd->u.join.start;
    mlc_tensor dy, part, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    for (int i = 0; i < nd->n_in; start += nd->in[i++]->shape[axis]) {
        mlc__join_piece(&dy, axis, start, nd->in[i]->shape[axis], &part);
        if (mlc__grad_in(nd, i, &dx, &acc, &st))
            st = mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &part, NULL, NULL, 0.0, acc);
    }
    return st;
}

static const mlc__op mlc__concat_op = { "concat", mlc__concat_shape, NULL, mlc__concat_backward };

/* Empty 1-d tensors go with any shape, as in PyTorch: a list that grows begins with one. */
MLC__INLINE bool mlc__join_skips(const mlc_tensor *t) { return t->ndim == 1 && t->shape[0] == 0; }

/* Sizes agree but along the axis, where they add up to *total. */
static mlc_status mlc__join_check(mlc_ctx *ctx, const char *what, mlc_tensor *const *list,
                                  int32_t n, int32_t *axis, int64_t *total, mlc_tensor **model)
{
    int32_t first = 0;
    while (first < n - 1 && mlc__join_skips(list[first])) first++;
    mlc_tensor *a = *model = list[first];
    if (!mlc__axis_ok(a, what, axis)) return ctx->status;
    *total = 0;
    for (int32_t i = 0; i < n; i++) {
        const mlc_tensor *b = list[i];
        MLC__REQUIRE(ctx, a->dtype == b->dtype, DTYPE,
                     "%s: input %d is %s, input %d is %s; cast one of them with mlc_cast", what,
                     first + 1, mlc_dtype_name(a->dtype), i + 1, mlc_dtype_name(b->dtype));
        if (mlc__join_skips(b)) continue;
        bool fits = a->ndim == b->ndim;
        for (int32_t d = 0; fits && d < a->ndim; d++)
            fits = d == *axis || a->shape[d] == b->shape[d];
        MLC__REQUIRE(ctx, fits, SHAPE,
                     "%s: input %d is %s, input %d is %s; they may differ only at axis %d", what,
                     first + 1, mlc__shape(a).s, i + 1, mlc__shape(b).s, *axis);
        MLC__REQUIRE(ctx, !__builtin_add_overflow(*total, b->shape[*axis], total), SHAPE,
                     "%s: the result has more elements than memory can hold", what);
    }
    return MLC_OK;
}

/* Four inputs a node. */
static mlc_status mlc__concat_record(mlc_tensor *const *list, int32_t n, int32_t axis,
                                     mlc_tensor *out)
{
    int64_t start = 0;
    for (int32_t i = 0; i < n; i += MLC__MAX_IN) {
        mlc_node local;
        mlc_tensor *in[MLC__MAX_IN];
        int32_t k = 0;
        for (int32_t e = i; e < n && e < i + MLC__MAX_IN; e++)
            if (!mlc__join_skips(list[e])) in[k++] = list[e];
        if (k == 0) continue;
        mlc_node *nd = mlc__begin_n(&local, &mlc__concat_op, k, in);
        if (!nd) return out->ctx->status;
        nd->u.join.axis = axis;
        nd->u.join.start = start;
        nd->u.join.out = out;
        if (nd->recorded && !mlc__finish(nd)) return out->ctx->status;
        for (int32_t e = 0; e < k; e++) start += in[e]->shape[axis];
    }
    return MLC_OK;
}

static mlc_tensor *mlc__concat_as(const char *what, mlc_tensor *const *list, int32_t n,
                                  int32_t axis)
{
    mlc_ctx *ctx = n > 0 && list ? mlc__inputs(what, n, list) : NULL;
    int64_t total = 0, start = 0;
    mlc_tensor *model = NULL, *out, piece;
    mlc_dims shape;
    if (!ctx || mlc__join_check(ctx, what, list, n, &axis, &total, &model) != MLC_OK) return NULL;
    shape = mlc_dims_of(model->ndim, model->shape);
    shape.v[axis] = total;
    out = mlc__make(ctx, what, model->dtype, shape);
    if (!out) return NULL;
    for (int32_t i = 0; i < n && !ctx->dry_run; i++) {
        if (mlc__join_skips(list[i])) continue;
        mlc__join_piece(out, axis, start, list[i]->shape[axis], &piece);
        start += list[i]->shape[axis];
        if (mlc__cast_into(ctx, what, &piece, list[i]) != MLC_OK) return NULL;
    }
    return mlc__concat_record(list, n, axis, out) == MLC_OK ? out : NULL;
}

MLC_IMPL mlc_tensor *mlc_concat(mlc_tensor *const *list, int32_t n, int32_t axis)
{
    return mlc__concat_as("concat", list, n, axis);
}

/* A concat along a new axis. */
MLC_IMPL mlc_tensor *mlc_stack(mlc_tensor *const *list, int32_t n, int32_t axis)
{
    mlc_ctx *ctx = n > 0 && list ? mlc__inputs("stack", n, list) : NULL;
    mlc_tensor **thin;
    if (!ctx || !mlc__new_axis_ok(list[0], "stack", &axis)) return NULL;
    for (int32_t i = 1; i < n; i++)
        if (!mlc__same_shape(list[0], list[i])) {
            mlc__fail(ctx, MLC_ERR_SHAPE,
                      "stack: input 1 is %s, input %d is %s; all must have one shape",
                      mlc__shape(list[0]).s, i + 1, mlc__shape(list[i]).s);
            return NULL;
        }
    thin = MLC__CAST(mlc_tensor **, mlc__arena(ctx, ctx->depth, (size_t)n * sizeof *thin));
    for (int32_t i = 0; thin && i < n; i++)
        if (!(thin[i] = mlc_unsqueeze(list[i], axis))) return NULL;
    return thin ? mlc__concat_as("stack", thin, n, axis) : NULL;
}

/* Parts of `size` along the axis, the last one may be smaller; none are left behind on error. */
static mlc_status mlc__split_into(mlc_tensor *x, int32_t axis, int64_t size, mlc_tensor **out,
                                  int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; i < n; i++) {
        const int64_t end = mlc__min(x->shape[axis], (i + 1) * size);
        out[i] = ok ? mlc_slice(x, axis, mlc__min(end, i * size), end, 1) : NULL;
        ok = ok && out[i];
    }
    for (int64_t i = 0; i < n && !ok; i++) out[i] = NULL;
    return ok ? MLC_OK : x->ctx->status;
}

MLC_IMPL mlc_status mlc_split(mlc_tensor *x, int64_t size, int32_t axis, mlc_tensor **out,
                              int32_t n_out)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("split", 1, in);
    for (int32_t i = 0; out && i < n_out; i++) out[i] = NULL;
    if (!ctx) return x ? x->ctx->status : MLC_ERR_ARG;
    if (!mlc__axis_ok(x, "split", &axis)) return ctx->status;
    MLC__REQUIRE(ctx, out != NULL, ARG, "split: out is NULL; it takes n_out views");
    MLC__REQUIRE(ctx, size > 0, ARG, "split: parts of %lld; they must be 1 or more long",
                 (long long)size);
    const int64_t n = x->shape[axis], parts = n ? (n - 1) / size + 1 : 1;
    MLC__REQUIRE(ctx, parts == n_out, SHAPE,
                 "split: axis %d of %s in parts of %lld makes %lld, there is room for %d; make "
                 "n_out %lld", axis, mlc__shape(x).s, (long long)size, (long long)parts, n_out,
                 (long long)parts);
    return mlc__split_into(x, axis, mlc__min(size, mlc__max(1, n)), out, parts);
}

MLC_IMPL int32_t mlc_chunk(mlc_tensor *x, int32_t chunks, int32_t axis, mlc_tensor **out)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("chunk", 1, in);
    for (int32_t i = 0; out && i < chunks; i++) out[i] = NULL;
    if (!ctx || !mlc__axis_ok(x, "chunk", &axis)) return 0;
    if (!out || chunks < 1) {
        mlc__fail(ctx, MLC_ERR_ARG, chunks < 1 ? "chunk: %d chunks; it takes at least one"
                                               : "chunk: out is NULL; it takes %d views", chunks);
        return 0;
    }
    const int64_t n = x->shape[axis], size = mlc__max(1, mlc__div_up(n, chunks));
    const int64_t made = n ? mlc__div_up(n, size) : chunks;
    return mlc__split_into(x, axis, size, out, made) == MLC_OK ? (int32_t)made : 0;
}

/* -- repeating: an expanded view is copied -- */

/* Repeats up to three of the axes before *end, from the last on: with what lies between them that
 * makes seven axes at most. */
static mlc_tensor *mlc__tile_some(mlc_tensor *x, const int64_t *reps, int32_t *end)
{
    int64_t thin[MLC_MAX_DIMS], wide[MLC_MAX_DIMS];
    mlc_dims shape = mlc_dims_of(x->ndim, x->shape);
    int64_t run = mlc__product(x->ndim - *end, x->shape + *end);
    int32_t at = MLC_MAX_DIMS;
    while (*end > 0 && at > MLC_MAX_DIMS - 6) {
        const int32_t d = --*end;
        run *= shape.v[d];
        if (reps[d] == 1) continue;
        at -= 2;
        thin[at] = 1;
        wide[at] = reps[d];
        thin[at + 1] = wide[at + 1] = run;
        shape.v[d] *= reps[d];
        run = 1;
    }
    if (at == MLC_MAX_DIMS) return x;
    at--;
    thin[at] = wide[at] = run * mlc__product(*end, shape.v);
    x = mlc_reshape(x, mlc_dims_of(MLC_MAX_DIMS - at, thin + at));
    /* A copy, said in so many words: a repeated single element would reshape as a view. */
    return mlc_reshape(mlc_copy(mlc_expand(x, mlc_dims_of(MLC_MAX_DIMS - at, wide + at))), shape);
}

MLC_IMPL mlc_tensor *mlc_tile(mlc_tensor *x, mlc_dims reps)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("tile", 1, in);
    mlc_dims from, to;
    int64_t each[MLC_MAX_DIMS];
    mlc_tensor *y;
    if (!ctx) return NULL;
    if (reps.n > MLC_MAX_DIMS || reps.n < 0) {
        mlc__fail(ctx, MLC_ERR_ARG, "tile: %d counts; a tensor has at most %d axes", reps.n,
                  MLC_MAX_DIMS);
        return NULL;
    }
    from = to = mlc_dims_of(reps.n > x->ndim ? reps.n : x->ndim, NULL);
    for (int32_t d = 0; d < to.n; d++) {
        const int32_t i = d - (to.n - x->ndim), r = d - (to.n - reps.n);
        from.v[d] = i >= 0 ? x->shape[i] : 1;
        each[d] = r >= 0 ? reps.v[r] : 1;
        if (each[d] < 0 || __builtin_mul_overflow(from.v[d], each[d], &to.v[d])) {
            mlc__fail(ctx, each[d] < 0 ? MLC_ERR_ARG : MLC_ERR_SHAPE,
                      "tile: %s repeated %s times: a count is negative or too large; counts must "
                      "be 0 or more, and the result fit memory",
                      mlc__shape(x).s, mlc__shape_text(reps.n, reps.v).s);
            return NULL;
        }
    }
    if (mlc__shape_check(ctx, "tile", x->dtype, to) != MLC_OK) return NULL;
    int32_t end = to.n;
    y = mlc_reshape(x, from);
    while (y && end > 0) y = mlc__tile_some(y, each, &end);
    /* Nothing repeated: a copy all the same, so that the result is nobody's view. */
    return y && memcmp(from.v, to.v, (size_t)to.n * sizeof to.v[0]) == 0 ? mlc_copy(y) : y;
}

/* Each element n times in a row. */
MLC_IMPL mlc_tensor *mlc_repeat(mlc_tensor *x, int64_t n, int32_t axis)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("repeat", 1, in);
    mlc_dims shape;
    if (!ctx || !mlc__axis_ok(x, "repeat", &axis)) return NULL;
    shape = mlc_dims_of(x->ndim, x->shape);
    if (n < 0 || __builtin_mul_overflow(shape.v[axis], n, &shape.v[axis])) {
        mlc__fail(ctx, n < 0 ? MLC_ERR_ARG : MLC_ERR_SHAPE, "repeat: %lld times axis %d of %s; "
                  "it must be from 0 to what an integer counts", (long long)n, axis,
                  mlc__shape(x).s);
        return NULL;
    }
    if (mlc__shape_check(ctx, "repeat", x->dtype, shape) != MLC_OK) return NULL;
    if (n == 1) return mlc_copy(x);
    const int64_t front = mlc__product(axis + 1, x->shape);
    const int64_t back = mlc__product(x->ndim - axis - 1, x->shape + axis + 1);
    mlc_tensor *wide = mlc_expand(mlc_reshape(x, mlc_dims3(front, 1, back)),
                                  mlc_dims3(front, n, back));
    return mlc_reshape(mlc_copy(wide), shape);
}

/* -- flip: a copy with negative strides -- */

/* A view for one kernel call: no tensor of the user's has negative strides. */
static mlc_tensor mlc__flipped(const mlc_tensor *t, uint32_t mask)
{
    mlc_tensor f = *t;
    for (int32_t d = 0; d < t->ndim; d++) {
        if (!(mask >> d & 1u) || t->shape[d] < 2) continue;
        f.offset += (t->shape[d] - 1) * t->stride[d];
        f.stride[d] = -t->stride[d];
    }
    mlc__mark_layout(&f);
    return f;
}

static mlc_status mlc__flip_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor from = mlc__flipped(nd->in[0], nd->u.mask);
    return mlc__cast_into(ctx, nd->op->name, nd->out[0], &from);
}

static mlc_status mlc__flip_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    dy = mlc__flipped(&dy, nd->u.mask);
    return mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &dy, NULL, NULL, 0.0, acc);
}

static const mlc__op mlc__flip_op = { "flip", mlc__copy_shape, mlc__flip_forward,
                                      mlc__flip_backward };

MLC_IMPL mlc_tensor *mlc_flip(mlc_tensor *x, mlc_dims axes)
{
    mlc_node local, *nd = mlc__begin(&local, &mlc__flip_op, 1, x, NULL, NULL);
    if (!nd || mlc__axes_mask(x, "flip", axes, &nd->u.mask) != MLC_OK) return NULL;
    return mlc__finish(nd);
}

/* Its two parts change places. */
MLC_IMPL mlc_tensor *mlc_roll(mlc_tensor *x, int64_t shift, int32_t axis)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("roll", 1, in);
    mlc_tensor *part[2];
    if (!ctx || !mlc__axis_ok(x, "roll", &axis)) return NULL;
    const int64_t n = mlc__max(1, x->shape[axis]);
    const int64_t cut = n - 1 - (shift % n + n - 1) % n;   /* -shift modulo n, without overflow */
    part[0] = mlc_slice(x, axis, cut, INT64_MAX, 1);
    part[1] = mlc_slice(x, axis, 0, cut, 1);
    return part[0] && part[1] ? mlc_concat(part, 2, axis) : NULL;
}

/* -- pad -- */

static mlc_status mlc__pad_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    return mlc__out(ctx, nd, x->dtype, x->ndim, nd->u.pad.shape);
}

static mlc_status mlc__pad_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0], *y = nd->out[0];
    struct mlc_k_pad a;
    a.dtype = x->dtype;
    a.mode = (mlc_pad_mode)nd->u.pad.mode;
    a.ndim = (int32_t)mlc__max(1, x->ndim);
    a.out = mlc__data(y);
    a.in = mlc__data(x);
    a.value = nd->u.pad.value;
    a.before[0] = 0;                   /* of a tensor without axes */
    a.shape[0] = a.in_shape[0] = a.in_stride[0] = 1;
    for (int32_t d = 0; d < x->ndim; d++) {
        a.before[d] = nd->u.pad.before[d];
        a.shape[d] = y->shape[d];
        a.in_shape[d] = x->shape[d];
        a.in_stride[d] = x->stride[d];
    }
    return mlc__numel(y) ? mlc__run_pad(ctx, nd->op->name, &a) : MLC_OK;
}

/* Where a padded tensor and x have the same elements: x may also be cut, by negative counts. */
static void mlc__pad_inner(const mlc_node *nd, const mlc_tensor *x, const mlc_tensor *y,
                           mlc_tensor *in_x, mlc_tensor *in_y)
{
    *in_x = *x;
    *in_y = *y;
    for (int32_t d = 0; d < x->ndim; d++) {
        const int64_t before = nd->u.pad.before[d], from = mlc__max(0, -before);
        const int64_t at = mlc__max(0, before);
        const int64_t n = mlc__max(0, mlc__min(x->shape[d] - from, y->shape[d] - at));
        in_x->shape[d] = in_y->shape[d] = n;
        in_x->offset += n ? from * x->stride[d] : 0;
        in_y->offset += n ? at * y->stride[d] : 0;
    }
    mlc__mark_layout(in_x);
    mlc__mark_layout(in_y);
}

/* The border of axis d before (side 0) or behind (side 1) x in a padded y, and the part of y that
 * it is a copy of, in the other order where it reflects. Of the axes before d it has all, of those
 * behind only what is x. False if there is none. */
static bool mlc__pad_border(const mlc_node *nd, const mlc_tensor *x, const mlc_tensor *y,
                            int32_t d, int side, mlc_tensor *border, mlc_tensor *source)
{
    const int64_t before = nd->u.pad.before[d], n = x->shape[d];
    const int64_t k = side ? y->shape[d] - n - before : before;
    int64_t from = before + (side ? n - 1 : 0);            /* the last or first element of x */
    if (nd->u.pad.mode == MLC_PAD_REFLECT) from += side ? -k : 1;
    if (nd->u.pad.mode == MLC_PAD_CIRCULAR) from += side ? 1 - n : n - k;
    *border = *y;
    for (int32_t e = d + 1; e < y->ndim; e++) {
        border->offset += nd->u.pad.before[e] * y->stride[e];
        border->shape[e] = x->shape[e];
    }
    border->shape[d] = k;
    *source = *border;
    border->offset += side ? (before + n) * y->stride[d] : 0;
    source->offset += from * y->stride[d];
    if (nd->u.pad.mode == MLC_PAD_REPLICATE) source->shape[d] = 1;
    mlc__mark_layout(border);
    mlc__mark_layout(source);
    return k > 0 && mlc__numel(border) > 0;
}

/* Borders are added to what they were copied from, in the opposite order: g becomes the gradient of
 * a tensor without borders. */
static mlc_status mlc__pad_fold(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *g)
{
    mlc_tensor from, to;
    for (int32_t i = 2 * g->ndim - 1; i >= 0; i--) {
        if (!mlc__pad_border(nd, nd->in[0], g, i / 2, i % 2, &from, &to)) continue;
        if (nd->u.pad.mode == MLC_PAD_REFLECT) from = mlc__flipped(&from, 1u << i / 2);
        MLC__TRY(mlc__sum_to(ctx, nd->op->name, &to, &from, true));
    }
    return MLC_OK;
}

/* Without borders only x has a gradient; with them dy is folded in a copy first. */
static mlc_status mlc__pad_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx, from, to;
    mlc__temp sum;
    bool acc;
    mlc_status st = MLC_OK;
    const bool fold = nd->u.pad.mode != MLC_PAD_CONSTANT;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (fold) {
        MLC__TRY(mlc__temp_begin(ctx, &sum, dy.dtype, dy.ndim, dy.shape));
        st = mlc__cast_into(ctx, nd->op->name, &sum.t, &dy);
        if (!st) st = mlc__pad_fold(ctx, nd, &sum.t);
    }
    mlc__pad_inner(nd, &dx, fold ? &sum.t : &dy, &to, &from);
    if (!st && !acc && !mlc__same_shape(&dx, &to)) {       /* what was cut has no gradient */
        st = mlc__set(ctx, nd->op->name, &dx, 0.0);
        acc = true;
    }
    if (!st) st = mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &to, &from, NULL, NULL, 0.0, acc);
    if (fold) mlc__temp_end(&sum);
    return st;
}

static const mlc__op mlc__pad_op = { "pad", mlc__pad_shape, mlc__pad_forward, mlc__pad_backward };

/* One count an axis; a border of a copying mode must be there to be copied. */
static mlc_status mlc__pad_check(mlc_tensor *x, mlc_dims before, mlc_dims after, mlc_pad_mode mode,
                                 int64_t *shape)
{
    static const char *const names[] = { "constant", "reflect", "replicate", "circular" };
    mlc_ctx *ctx = x->ctx;
    MLC__REQUIRE(ctx, (unsigned)mode <= MLC_PAD_CIRCULAR, ARG, "pad: unknown mode %d; see "
                 "mlc_pad_mode", (int)mode);
    MLC__REQUIRE(ctx, before.n == x->ndim && after.n == x->ndim, SHAPE,
                 "pad: %d and %d counts for %s; it takes one an axis", before.n, after.n,
                 mlc__shape(x).s);
    for (int32_t d = 0; d < x->ndim; d++) {
        const int64_t n = x->shape[d], b = before.v[d], a = after.v[d];
        const int64_t most = mode == MLC_PAD_REFLECT ? n - 1 : mode == MLC_PAD_CIRCULAR ? n
                           : n ? INT64_MAX : 0;
        MLC__REQUIRE(ctx, mode == MLC_PAD_CONSTANT || (b >= 0 && a >= 0), ARG,
                     "pad: %lld before and %lld after axis %d; only constant padding may cut",
                     (long long)b, (long long)a, d);
        MLC__REQUIRE(ctx, mode == MLC_PAD_CONSTANT || mlc__max(a, b) <= mlc__max(0, most), SHAPE,
                     "pad: axis %d of %s is too short for %lld before and %lld after, %s; each "
                     "may be at most %lld", d, mlc__shape(x).s, (long long)b, (long long)a,
                     names[mode], (long long)mlc__max(0, most));
        MLC__REQUIRE(ctx, !__builtin_add_overflow(n, b, &shape[d]) &&
                     !__builtin_add_overflow(shape[d], a, &shape[d]) && shape[d] >= 0, SHAPE,
                     "pad: axis %d of %s with %lld before and %lld after has no size; cut no more "
                     "than there is", d, mlc__shape(x).s, (long long)b, (long long)a);
    }
    return mlc__shape_check(ctx, "pad", x->dtype, mlc_dims_of(x->ndim, shape));
}

MLC_IMPL mlc_tensor *mlc_pad(mlc_tensor *x, mlc_dims before, mlc_dims after, mlc_pad_mode mode,
                             double value)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("pad", 1, in);
    int64_t shape[MLC_MAX_DIMS];
    mlc_node local, *nd;
    if (!ctx || mlc__pad_check(x, before, after, mode, shape) != MLC_OK) return NULL;
    nd = mlc__begin(&local, &mlc__pad_op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    nd->u.pad.value = value;
    nd->u.pad.mode = (int32_t)mode;
    /* All of an axis is cut by its size; more would overflow on the way. */
    for (int32_t d = 0; d < x->ndim; d++)
        nd->u.pad.before[d] = mlc__max(before.v[d], -x->shape[d]);
    memcpy(nd->u.pad.shape, shape, (size_t)x->ndim * sizeof shape[0]);
    return mlc__finish(nd);
}


/* -- a vector as the diagonal of a matrix -- */

static mlc_status mlc__diag_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const int64_t n = nd->in[0]->shape[0] + nd->u.view.start + nd->u.view.step;
    const int64_t shape[2] = { n, n };
    return mlc__out(ctx, nd, nd->in[0]->dtype, 2, shape);
}

static mlc_status mlc__diag_forward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor line = *nd->out[0];
    MLC__TRY(mlc__fill(ctx, nd->op->name, &line, 0.0, 0.0));
    mlc__view_apply(&nd->u.view, &line);
    return mlc__cast_into(ctx, nd->op->name, &line, nd->in[0]);
}

static mlc_status mlc__diag_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    mlc__view_apply(&nd->u.view, &dy);
    return mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &dy, NULL, NULL, 0.0, acc);
}

static const mlc__op mlc__diag_op = { "diag", mlc__diag_shape, mlc__diag_forward,
                                      mlc__diag_backward };

MLC_IMPL mlc_tensor *mlc_diag(mlc_tensor *x, int64_t offset)
{
    const int64_t most = (int64_t)1 << 40;                 /* more than memory can hold */
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("diag", 1, in);
    mlc_node local, *nd;
    if (!ctx) return NULL;
    if (x->ndim == 2) return mlc_diagonal(x, offset);
    if (x->ndim != 1 || offset > most || offset < -most) {
        mlc__fail(ctx, MLC_ERR_SHAPE, "diag: %s at diagonal %lld; x must be 1-d or 2-d, and the "
                  "matrix fit memory", mlc__shape(x).s, (long long)offset);
        return NULL;
    }
    nd = mlc__begin(&local, &mlc__diag_op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    const int64_t n = x->shape[0] + (offset < 0 ? -offset : offset);
    nd->u.view = mlc__diagonal_spec(2, n, n, offset);
    return mlc__finish(nd);
}

/* @@ IMPL.OPS.INDEX -------------------------------------- gather, scatter, select, nonzero, band
 * All that indexes is one kernel with strides: an index_select is a gather whose index is expanded,
 * a take one of a flattened tensor, a masked_select one at the places that nonzero found. Gather
 * and scatter_add are each other's gradient. Sizes that depend on data cost a read. */

/* Runs the index kernel; line may be larger than the index, which counts. */
static mlc_status mlc__index_call(mlc_ctx *ctx, const char *what, mlc_index op,
                                  const mlc_tensor *data, const mlc_tensor *index,
                                  const mlc_tensor *line, int32_t axis)
{
    struct mlc_k_index a;
    int64_t shape[MLC_MAX_DIMS];
    int32_t ndim;
    if (mlc__numel(index) == 0) return MLC_OK;
    a.op = op;
    a.dtype = data->dtype;
    a.axis = axis;
    mlc__line_shape(index, a.shape, a.index_stride, &a.ndim);
    mlc__line_shape(line, shape, a.line_stride, &ndim);
    mlc__line_shape(data, shape, a.data_stride, &ndim);
    a.limit = shape[axis];
    a.data = mlc__data(data);
    a.line = mlc__data(line);
    a.index = MLC__CAST(const int64_t *, mlc__data(index));
    a.kind = mlc__error_kind(ctx, MLC_K_ERROR_INDEX, what);
    a.error = ctx->error_word;
    MLC__TRY(mlc__run_index(ctx, what, &a));
    return ctx->on_host ? mlc__error_word_read(ctx) : MLC_OK; /* elsewhere at the scope's end */
}

/* data[index] += line. 16-bit sums are carried in f32 and rounded once. */
static mlc_status mlc__index_add_to(mlc_ctx *ctx, const char *what, const mlc_tensor *data,
                                    const mlc_tensor *index, const mlc_tensor *line, int32_t axis)
{
    mlc__temp sum, wide;
    mlc_status st;
    if (!mlc__is_half(data->dtype))
        return mlc__index_call(ctx, what, MLC_INDEX_ADD, data, index, line, axis);
    MLC__TRY(mlc__temp_begin(ctx, &sum, MLC_F32, data->ndim, data->shape));
    st = mlc__temp_begin(ctx, &wide, MLC_F32, index->ndim, index->shape);
    if (st == MLC_OK) {
        st = mlc__cast_into(ctx, what, &sum.t, data);
        if (!st) st = mlc__cast_into(ctx, what, &wide.t, line);
        if (!st) st = mlc__index_call(ctx, what, MLC_INDEX_ADD, &sum.t, index, &wide.t, axis);
        if (!st) st = mlc__cast_into(ctx, what, data, &sum.t);
        mlc__temp_end(&wide);
    }
    mlc__temp_end(&sum);
    return st;
}

/* out (+)= data[index] */
static mlc_status mlc__index_get(mlc_ctx *ctx, const char *what, const mlc_tensor *out,
                                 const mlc_tensor *data, const mlc_tensor *index, int32_t axis,
                                 bool accumulate)
{
    mlc__temp part;
    if (!accumulate) return mlc__index_call(ctx, what, MLC_INDEX_GATHER, data, index, out, axis);
    MLC__TRY(mlc__temp_begin(ctx, &part, out->dtype, index->ndim, index->shape));
    mlc_status st = mlc__index_call(ctx, what, MLC_INDEX_GATHER, data, index, &part.t, axis);
    if (!st) st = mlc__map(ctx, what, MLC_MAP_COPY, out, &part.t, NULL, NULL, 0.0, true);
    mlc__temp_end(&part);
    return st;
}

/* The index is i64, has x's axes, and no more elements than x across the axis. Resolves the axis; a
 * 0-d x has axis 0, as in PyTorch. */
static mlc_status mlc__index_rule(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], *index = nd->in[1];
    const char *what = nd->op->name;
    MLC__REQUIRE(ctx, index->dtype == MLC_I64, DTYPE,
                 "%s: the index is %s; write mlc_cast(index, MLC_I64)", what,
                 mlc_dtype_name(index->dtype));
    if (!mlc__axis_of(x, what, &nd->u.axis)) return ctx->status;
    MLC__REQUIRE(ctx, index->ndim == x->ndim, SHAPE,
                 "%s: x %s has %d axes, the index %s has %d; they must be as many", what,
                 mlc__shape(x).s, x->ndim, mlc__shape(index).s, index->ndim);
    for (int32_t d = 0; d < x->ndim; d++)
        MLC__REQUIRE(ctx, d == nd->u.axis || index->shape[d] <= x->shape[d], SHAPE,
                     "%s: the index %s is larger than x %s at axis %d: %lld vs %lld; it may be "
                     "at most as large", what, mlc__shape(index).s, mlc__shape(x).s, d,
                     (long long)index->shape[d], (long long)x->shape[d]);
    return MLC_OK;
}

static mlc_status mlc__gather_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *index = nd->in[1];
    MLC__TRY(mlc__index_rule(ctx, nd));
    MLC__TRY(mlc__out(ctx, nd, nd->in[0]->dtype, index->ndim, index->shape));
    mlc__save(nd, index);
    return MLC_OK;
}

static mlc_status mlc__gather_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__index_get(ctx, nd->op->name, nd->out[0], nd->in[0], nd->in[1], nd->u.axis, false);
}

/* dx[index] += dy */
static mlc_status mlc__gather_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (!acc) MLC__TRY(mlc__set(ctx, nd->op->name, &dx, 0.0));
    return mlc__index_add_to(ctx, nd->op->name, &dx, nd->in[1], &dy, nd->u.axis);
}

static const mlc__op mlc__gather_op =
    { "gather", mlc__gather_shape, mlc__gather_forward, mlc__gather_backward };
static const mlc__op mlc__index_select_op =
    { "index_select", mlc__gather_shape, mlc__gather_forward, mlc__gather_backward };
static const mlc__op mlc__take_op =
    { "take", mlc__gather_shape, mlc__gather_forward, mlc__gather_backward };
static const mlc__op mlc__masked_select_op =
    { "masked_select", mlc__gather_shape, mlc__gather_forward, mlc__gather_backward };

static mlc_tensor *mlc__gather_call(const mlc__op *op, mlc_tensor *x, int32_t axis,
                                    mlc_tensor *index)
{
    mlc_node local, *nd = mlc__begin(&local, op, 2, x, index, NULL);
    if (!nd) return NULL;
    nd->u.axis = axis;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_gather(mlc_tensor *x, int32_t axis, mlc_tensor *index)
{
    return mlc__gather_call(&mlc__gather_op, x, axis, index);
}

/* The index is repeated along the other axes: the kernel then moves whole rows. */
MLC_IMPL mlc_tensor *mlc_index_select(mlc_tensor *x, int32_t axis, mlc_tensor *index)
{
    mlc_tensor *const in[2] = { x, index };
    mlc_ctx *ctx = mlc__inputs("index_select", 2, in);
    mlc_dims thin, wide;
    if (!ctx || !mlc__axis_ok(x, "index_select", &axis)) return NULL;
    if (index->ndim > 1) {
        mlc__fail(ctx, MLC_ERR_SHAPE, "index_select: the index must be 1-d, it is %s; reshape "
                  "it", mlc__shape(index).s);
        return NULL;
    }
    thin = wide = mlc_dims_of(x->ndim, x->shape);
    for (int32_t d = 0; d < x->ndim; d++) thin.v[d] = 1;
    thin.v[axis] = wide.v[axis] = mlc__numel(index);
    return mlc__gather_call(&mlc__index_select_op, x, axis,
                            mlc_expand(mlc_reshape(index, thin), wide));
}

MLC_IMPL mlc_tensor *mlc_take(mlc_tensor *x, mlc_tensor *index)
{
    mlc_tensor *const in[2] = { x, index };
    mlc_tensor *y;
    if (!mlc__inputs("take", 2, in)) return NULL;
    y = mlc__gather_call(&mlc__take_op, mlc_reshape(x, mlc_dims1(mlc__numel(x))), 0,
                         mlc_reshape(index, mlc_dims1(mlc__numel(index))));
    return mlc_reshape(y, mlc_dims_of(index->ndim, index->shape));
}

/* -- scatter: data beside the index, one element of src for each index -- */

static mlc_status mlc__scatter_rule(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], *index = nd->in[1], *src = nd->in[2];
    const char *what = nd->op->name;
    MLC__TRY(mlc__index_rule(ctx, nd));
    MLC__REQUIRE(ctx, src->dtype == x->dtype, DTYPE, "%s: x is %s, src %s; cast one with mlc_cast",
                 what, mlc_dtype_name(x->dtype), mlc_dtype_name(src->dtype));
    MLC__REQUIRE(ctx, src->ndim == index->ndim, SHAPE,
                 "%s: the index %s has %d axes, src %s has %d; they must be as many", what,
                 mlc__shape(index).s, index->ndim, mlc__shape(src).s, src->ndim);
    for (int32_t d = 0; d < x->ndim; d++)
        MLC__REQUIRE(ctx, index->shape[d] <= src->shape[d], SHAPE,
                     "%s: the index %s is larger than src %s at axis %d: %lld vs %lld; it may be "
                     "at most as large", what, mlc__shape(index).s, mlc__shape(src).s, d,
                     (long long)index->shape[d], (long long)src->shape[d]);
    return MLC_OK;
}

static mlc_status mlc__scatter_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    MLC__TRY(mlc__scatter_rule(ctx, nd));
    MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, x->shape));
    mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

static mlc_status mlc__scatter_forward(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__cast_into(ctx, nd->op->name, nd->out[0], nd->in[0]));
    return mlc__index_call(ctx, nd->op->name, MLC_INDEX_SCATTER, nd->out[0], nd->in[1], nd->in[2],
                           nd->u.axis);
}

static mlc_status mlc__scatter_add_forward(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__cast_into(ctx, nd->op->name, nd->out[0], nd->in[0]));
    return mlc__index_add_to(ctx, nd->op->name, nd->out[0], nd->in[1], nd->in[2], nd->u.axis);
}

/* The gradient of src is one of its corner, which the index has; what is outside of it has none. */
static bool mlc__scatter_grad_src(mlc_ctx *ctx, mlc_node *nd, mlc_tensor *dx, bool *acc,
                                  mlc_status *st)
{
    const mlc_tensor *index = nd->in[1];
    if (!mlc__grad_in(nd, 2, dx, acc, st)) return false;
    if (!*acc && !mlc__same_shape(dx, index)) {
        *st = mlc__set(ctx, nd->op->name, dx, 0.0);
        *acc = true;
    }
    for (int32_t d = 0; d < dx->ndim; d++) dx->shape[d] = index->shape[d];
    mlc__mark_layout(dx);
    return *st == MLC_OK;
}

/* dx += dy; dsrc += dy[index] */
static mlc_status mlc__scatter_add_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const char *what = nd->op->name;
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (mlc__grad_in(nd, 0, &dx, &acc, &st))
        st = mlc__map(ctx, what, MLC_MAP_COPY, &dx, &dy, NULL, NULL, 0.0, acc);
    if (mlc__scatter_grad_src(ctx, nd, &dx, &acc, &st))
        st = mlc__index_get(ctx, what, &dx, &dy, nd->in[1], nd->u.axis, acc);
    return st;
}

/* What the last of several elements wrote is its own: taking dy from the last to the first gives it
 * the gradient and leaves zero for the others, and what is left of dy at the end is dx. */
static mlc_status mlc__scatter_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const char *what = nd->op->name;
    const mlc_tensor *index = nd->in[1];
    mlc__temp rest, part;
    mlc_tensor dy, dx;
    bool acc;
    mlc__grad_view(nd->out[0], &dy);
    MLC__TRY(mlc__temp_begin(ctx, &rest, dy.dtype, dy.ndim, dy.shape));
    mlc_status st = mlc__temp_begin(ctx, &part, dy.dtype, index->ndim, index->shape);
    if (st == MLC_OK) {
        st = mlc__cast_into(ctx, what, &rest.t, &dy);
        if (!st)
            st = mlc__index_call(ctx, what, MLC_INDEX_TAKE, &rest.t, index, &part.t, nd->u.axis);
        if (mlc__grad_in(nd, 0, &dx, &acc, &st))
            st = mlc__map(ctx, what, MLC_MAP_COPY, &dx, &rest.t, NULL, NULL, 0.0, acc);
        if (mlc__scatter_grad_src(ctx, nd, &dx, &acc, &st))
            st = mlc__map(ctx, what, MLC_MAP_COPY, &dx, &part.t, NULL, NULL, 0.0, acc);
        mlc__temp_end(&part);
    }
    mlc__temp_end(&rest);
    return st;
}

static const mlc__op mlc__scatter_op =
    { "scatter", mlc__scatter_shape, mlc__scatter_forward, mlc__scatter_backward };
static const mlc__op mlc__scatter_add_op =
    { "scatter_add", mlc__scatter_shape, mlc__scatter_add_forward, mlc__scatter_add_backward };

static mlc_tensor *mlc__scatter_call(const mlc__op *op, mlc_tensor *x, int32_t axis,
                                     mlc_tensor *index, mlc_tensor *src)
{
    mlc_node local, *nd = mlc__begin(&local, op, 3, x, index, src);
    if (!nd) return NULL;
    nd->u.axis = axis;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_scatter(mlc_tensor *x, int32_t axis, mlc_tensor *index, mlc_tensor *src)
{
    return mlc__scatter_call(&mlc__scatter_op, x, axis, index, src);
}

MLC_IMPL mlc_tensor *mlc_scatter_add(mlc_tensor *x, int32_t axis, mlc_tensor *index,
                                     mlc_tensor *src)
{
    return mlc__scatter_call(&mlc__scatter_add_op, x, axis, index, src);
}

/* -- in place: the gradient of the new values becomes that of the old ones -- */

static mlc_status mlc__scatter__shape(mlc_ctx *ctx, mlc_node *nd)
{
    MLC__TRY(mlc__scatter_rule(ctx, nd));
    MLC__TRY(mlc__inplace_begin(ctx, nd));
    nd->in[0]->storage->version++;
    mlc__save(nd, nd->in[1]);
    return MLC_OK;
}

static mlc_status mlc__scatter__forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__index_call(ctx, nd->op->name, MLC_INDEX_SCATTER, nd->in[0], nd->in[1], nd->in[2],
                           nd->u.axis);
}

static mlc_status mlc__scatter_add__forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__index_add_to(ctx, nd->op->name, nd->in[0], nd->in[1], nd->in[2], nd->u.axis);
}

/* dsrc takes its share out of the gradient, as in mlc__scatter_backward. */
static mlc_status mlc__scatter__backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *index = nd->in[1];
    mlc__temp part;
    mlc_tensor g, dx;
    bool acc;
    mlc__grad_view(nd->in[0], &g);
    MLC__TRY(mlc__temp_begin(ctx, &part, g.dtype, index->ndim, index->shape));
    mlc_status st =
        mlc__index_call(ctx, nd->op->name, MLC_INDEX_TAKE, &g, index, &part.t, nd->u.axis);
    if (mlc__scatter_grad_src(ctx, nd, &dx, &acc, &st))
        st = mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &part.t, NULL, NULL, 0.0, acc);
    mlc__temp_end(&part);
    return st || mlc__needs(nd, 0) ? st : mlc__inplace_drop(ctx, nd);
}

static mlc_status mlc__scatter_add__backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor g, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->in[0], &g);
    if (mlc__scatter_grad_src(ctx, nd, &dx, &acc, &st))
        st = mlc__index_get(ctx, nd->op->name, &dx, &g, nd->in[1], nd->u.axis, acc);
    return st || mlc__needs(nd, 0) ? st : mlc__inplace_drop(ctx, nd);
}

static const mlc__op mlc__scatter__op =
    { "scatter_", mlc__scatter__shape, mlc__scatter__forward, mlc__scatter__backward };
static const mlc__op mlc__scatter_add__op =
    { "scatter_add_", mlc__scatter__shape, mlc__scatter_add__forward, mlc__scatter_add__backward };

/* An index or a src over x's memory goes through a copy: it would change while it is read. */
static mlc_tensor *mlc__scatter__call(const mlc__op *op, mlc_tensor *x, int32_t axis,
                                      mlc_tensor *index, mlc_tensor *src)
{
    if (x && index && x->storage == index->storage && !(index = mlc_copy(index))) return NULL;
    if (x && src && x->storage == src->storage && !(src = mlc_copy(src))) return NULL;
    return mlc__scatter_call(op, x, axis, index, src);
}

MLC_IMPL mlc_tensor *mlc_scatter_(mlc_tensor *x, int32_t axis, mlc_tensor *index, mlc_tensor *src)
{
    return mlc__scatter__call(&mlc__scatter__op, x, axis, index, src);
}

MLC_IMPL mlc_tensor *mlc_scatter_add_(mlc_tensor *x, int32_t axis, mlc_tensor *index,
                                      mlc_tensor *src)
{
    return mlc__scatter__call(&mlc__scatter_add__op, x, axis, index, src);
}

/* Ones are written where the index says, into zeros. */
MLC_IMPL mlc_tensor *mlc_one_hot(mlc_tensor *index, int64_t classes)
{
    mlc_tensor *const in[1] = { index };
    mlc_ctx *ctx = mlc__inputs("one_hot", 1, in);
    mlc_dims shape;
    mlc_tensor *y, at, one;
    mlc__temp unit;
    if (!ctx) return NULL;
    if (index->dtype != MLC_I64 || classes < 1 || index->ndim == MLC_MAX_DIMS) {
        if (index->dtype != MLC_I64)
            mlc__fail(ctx, MLC_ERR_DTYPE,
                      "one_hot: the index is %s; write mlc_cast(index, MLC_I64)",
                      mlc_dtype_name(index->dtype));
        else if (classes < 1)
            mlc__fail(ctx, MLC_ERR_ARG, "one_hot: %lld classes; it takes at least one",
                      (long long)classes);
        else
            mlc__fail(ctx, MLC_ERR_SHAPE, "one_hot: %s has %d axes, the most; there is none left "
                      "for the classes: reshape it", mlc__shape(index).s, MLC_MAX_DIMS);
        return NULL;
    }
    shape = mlc_dims_of(index->ndim, index->shape);
    shape.v[shape.n++] = classes;
    y = mlc_zeros(ctx, MLC_I64, shape);
    if (!y || mlc__numel(index) == 0 || ctx->dry_run) return y;
    if (mlc__temp_begin(ctx, &unit, MLC_I64, 0, NULL) != MLC_OK) return NULL;
    at = *index;                       /* [.., 1]: one index for each row of classes */
    at.shape[at.ndim] = at.stride[at.ndim] = 1;
    at.ndim++;
    one = unit.t;
    one.ndim = at.ndim;
    for (int32_t d = 0; d < at.ndim; d++) { one.shape[d] = at.shape[d]; one.stride[d] = 0; }
    mlc_status st = mlc__fill(ctx, "one_hot", &unit.t, 1.0, 0.0);
    if (!st) st = mlc__index_call(ctx, "one_hot", MLC_INDEX_SCATTER, y, &at, &one, at.ndim - 1);
    mlc__temp_end(&unit);
    return st == MLC_OK ? y : NULL;
}

/* -- what is not zero -- */

static mlc_status mlc__nonzero_run(mlc_ctx *ctx, const char *what, struct mlc_k_nonzero *a)
{
    MLC__RUN_WITH_WORKSPACE(ctx, what, nonzero, a);
    return MLC_OK;
}

/* Places of what is not zero in x, which is dense: row-major numbers [count], or coordinates
 * [count, ndim]. */
static mlc_tensor *mlc__nonzero(const char *what, const mlc_tensor *x, bool coordinates)
{
    mlc_ctx *ctx = x->ctx;
    struct mlc_k_nonzero a;
    mlc__block *block;
    void *word;
    mlc_tensor *y;
    mlc_dims shape = mlc_dims2(0, x->ndim);
    if (ctx->dry_run) {
        mlc__fail(ctx, MLC_ERR_STATE,
                  "%s: its size depends on data, which there are none of while mlc_summary runs",
                  what);
        return NULL;
    }
    memset(&a, 0, sizeof a);
    a.dtype = x->dtype;
    a.ndim = x->ndim;
    a.coordinates = coordinates;
    memcpy(a.shape, x->shape, sizeof a.shape);
    a.n = mlc__numel(x);
    a.in = mlc__data(x);
    if (mlc__scratch(ctx, sizeof shape.v[0], &block, &word) != MLC_OK) return NULL;
    a.count = MLC__CAST(int64_t *, word);
    mlc_status st = a.n ? mlc__nonzero_run(ctx, what, &a) : MLC_OK;
    if (!st && a.n)
        st = mlc__device_copy(ctx, &shape.v[0], word, sizeof shape.v[0], MLC_COPY_TO_HOST);
    if (!coordinates) shape.n = 1;
    y = st == MLC_OK ? mlc__make(ctx, what, MLC_I64, shape) : NULL;
    if (y && mlc__numel(y)) {
        a.out = MLC__CAST(int64_t *, mlc__data(y));
        if (mlc__nonzero_run(ctx, what, &a) != MLC_OK) y = NULL;
    }
    mlc__scratch_end(ctx, block);
    return y;
}

MLC_IMPL mlc_tensor *mlc_nonzero(mlc_tensor *x)
{
    mlc_tensor *const in[1] = { x };
    mlc_ctx *ctx = mlc__inputs("nonzero", 1, in);
    mlc_tensor *dense;
    if (!ctx) return NULL;
    mlc_no_grad_begin(ctx);
    dense = mlc_contiguous(x);
    mlc_no_grad_end(ctx);
    return dense ? mlc__nonzero("nonzero", dense, true) : NULL;
}

/* x and the mask are expanded to each other; then it is a take at the places that are true. */
MLC_IMPL mlc_tensor *mlc_masked_select(mlc_tensor *x, mlc_tensor *mask)
{
    mlc_tensor *const in[2] = { x, mask };
    mlc_ctx *ctx = mlc__inputs("masked_select", 2, in);
    mlc_dims shape = mlc_dims0();
    mlc_tensor *places;
    mlc_node both;                     /* for its name and inputs */
    if (!ctx) return NULL;
    if (mask->dtype != MLC_BOOL) {
        mlc__fail(ctx, MLC_ERR_DTYPE, "masked_select: the mask is %s; write mlc_ne_scalar(mask, 0)",
                  mlc_dtype_name(mask->dtype));
        return NULL;
    }
    both.op = &mlc__masked_select_op;
    both.n_in = 2;
    both.in[0] = x;
    both.in[1] = mask;
    if (mlc__broadcast_shape(ctx, &both, &shape.n, shape.v) != MLC_OK) return NULL;
    mask = mlc_contiguous(mlc_expand(mask, shape));
    places = mask ? mlc__nonzero("masked_select", mask, false) : NULL;
    x = mlc_expand(x, shape);
    if (!places || !x) return NULL;
    return mlc__gather_call(&mlc__masked_select_op, mlc_reshape(x, mlc_dims1(mlc__numel(x))), 0,
                            places);
}

/* -- triangles of matrices -- */

static mlc_status mlc__band(mlc_ctx *ctx, const mlc_node *nd, const mlc_tensor *out,
                            const mlc_tensor *in)
{
    struct mlc_k_band a;
    a.dtype = in->dtype;
    a.ndim = in->ndim;
    a.in = mlc__data(in);
    a.out = mlc__data(out);
    a.lo = nd->u.band.lo;
    a.hi = nd->u.band.hi;
    for (int32_t d = 0; d < in->ndim; d++) {
        a.shape[d] = in->shape[d];
        a.in_stride[d] = in->stride[d];
        a.out_stride[d] = out->stride[d];
    }
    return mlc__numel(in) ? mlc__run_band(ctx, nd->op->name, &a) : MLC_OK;
}

/* A diagonal beyond the matrix is as good as the next one outside: the kernel adds to it. */
static mlc_status mlc__band_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    MLC__REQUIRE(ctx, x->ndim >= 2, SHAPE, "%s: %s is no matrix; it takes two axes or more",
                 nd->op->name, mlc__shape(x).s);
    const int64_t rows = x->shape[x->ndim - 2], cols = x->shape[x->ndim - 1];
    nd->u.band.lo = mlc__max(-rows, mlc__min(cols, nd->u.band.lo));
    nd->u.band.hi = mlc__max(-rows, mlc__min(cols, nd->u.band.hi));
    return mlc__out(ctx, nd, x->dtype, x->ndim, x->shape);
}

static mlc_status mlc__band_forward(mlc_ctx *ctx, mlc_node *nd)
{
    return mlc__band(ctx, nd, nd->out[0], nd->in[0]);
}

/* dx += the same part of dy */
static mlc_status mlc__band_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    mlc__temp part;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (!acc) return mlc__band(ctx, nd, &dx, &dy);
    MLC__TRY(mlc__temp_begin(ctx, &part, dx.dtype, dx.ndim, dx.shape));
    st = mlc__band(ctx, nd, &part.t, &dy);
    if (!st) st = mlc__map(ctx, nd->op->name, MLC_MAP_COPY, &dx, &part.t, NULL, NULL, 0.0, true);
    mlc__temp_end(&part);
    return st;
}

static const mlc__op mlc__tril_op = { "tril", mlc__band_shape, mlc__band_forward,
                                      mlc__band_backward };
static const mlc__op mlc__triu_op = { "triu", mlc__band_shape, mlc__band_forward,
                                      mlc__band_backward };

static mlc_tensor *mlc__band_call(const mlc__op *op, mlc_tensor *x, int64_t lo, int64_t hi)
{
    mlc_node local, *nd = mlc__begin(&local, op, 1, x, NULL, NULL);
    if (!nd) return NULL;
    nd->u.band.lo = lo;
    nd->u.band.hi = hi;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_tril(mlc_tensor *x, int64_t k)
{
    return mlc__band_call(&mlc__tril_op, x, INT64_MIN, k);
}
MLC_IMPL mlc_tensor *mlc_triu(mlc_tensor *x, int64_t k)
{
    return mlc__band_call(&mlc__triu_op, x, k, INT64_MAX);
}

/* @@ IMPL.OPS.EINSUM ------------------------------------- sums of products, by letters
 * The equation is made of recorded operations, so gradients come by themselves: of each operand
 * first repeated letters become diagonals and letters that nothing else has are summed; then from
 * left to right two operands at a time become one matrix product, over [letters that stay in both],
 * [those of one], [those that go]. */

#define MLC__EIN_DOTS   52             /* labels from here on: axes of the ellipsis, from its end */
#define MLC__EIN_LABELS (MLC__EIN_DOTS + MLC_MAX_DIMS)
#define MLC__EIN_MOST   8              /* operands                                             */

typedef struct mlc__ein_term {         /* one operand, or the result                           */
    mlc_tensor *x;
    int32_t     n, dots;               /* dots: place of the ellipsis, -1: none                */
    int8_t      label[MLC_MAX_DIMS];
} mlc__ein_term;

typedef struct mlc__ein {
    mlc_ctx      *ctx;
    const char   *text;
    mlc__ein_term term[MLC__EIN_MOST], out;
    int64_t       size[MLC__EIN_LABELS];
    int32_t       n, dots;             /* operands, axes of the ellipsis                       */
    int32_t       users[MLC__EIN_LABELS];      /* how often a label occurs in operands         */
    bool          has_out;
} mlc__ein;

/* In the order of ASCII, which is that of an implicit result. */
static int mlc__ein_label(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1;
}

static char mlc__ein_letter(int label)
{
    return label >= MLC__EIN_DOTS ? '.' : (char)(label < 26 ? 'A' + label : 'a' + label - 26);
}

static int32_t mlc__ein_find(const mlc__ein_term *t, int label)
{
    for (int32_t d = 0; d < t->n; d++) if (t->label[d] == label) return d;
    return -1;
}

/* Reads the letters of all terms; positions in messages count from 1. */
static mlc_status mlc__ein_parse(mlc__ein *e, int32_t n)
{
    mlc__ein_term *t = &e->term[0];
    e->n = 1;
    t->n = 0;
    t->dots = -1;
    for (const char *c = e->text; *c; c++) {
        const int at = (int)(c - e->text) + 1, label = mlc__ein_label(*c);
        if (*c == ' ') continue;
        const bool next = *c == ',', arrow = c[0] == '-' && c[1] == '>';
        const bool dots = c[0] == '.' && c[1] == '.' && c[2] == '.';
        MLC__REQUIRE(e->ctx, label >= 0 || next || arrow || dots, ARG,
                     "einsum: \"%.200s\": '%c' at position %d; there are letters, ',', '...' and "
                     "'->'", e->text, *c, at);
        MLC__REQUIRE(e->ctx, !(arrow || next) || !e->has_out, ARG,
                     "einsum: \"%.200s\": '%c' at position %d follows the result; the equation "
                     "ends with it", e->text, *c, at);
        MLC__REQUIRE(e->ctx, !next || e->n < n, ARG,
                     "einsum: \"%.200s\": operand %d at position %d, but there are %d tensors; "
                     "give as many", e->text, e->n + 1, at + 1, n);
        MLC__REQUIRE(e->ctx, !dots || t->dots < 0, ARG,
                     "einsum: \"%.200s\": a second '...' at position %d; a term has one", e->text,
                     at);
        MLC__REQUIRE(e->ctx, label < 0 || t->n < MLC_MAX_DIMS, ARG,
                     "einsum: \"%.200s\": more than %d letters at position %d", e->text,
                     MLC_MAX_DIMS, at);
        MLC__REQUIRE(e->ctx, label < 0 || !e->has_out || mlc__ein_find(t, label) < 0, ARG,
                     "einsum: \"%.200s\": '%c' at position %d is in the result twice; name it once",
                     e->text, *c, at);
        if (next || arrow) {
            t = next ? &e->term[e->n++] : &e->out;
            t->n = 0;
            t->dots = -1;
            e->has_out = arrow;
        } else if (dots) {
            t->dots = t->n;
        } else {
            t->label[t->n++] = (int8_t)label;
        }
        c += dots ? 2 : arrow ? 1 : 0;
    }
    MLC__REQUIRE(e->ctx, e->n == n, ARG, "einsum: \"%.200s\" has %d operands, there are %d tensors"
                 "; give as many", e->text, e->n, n);
    return MLC_OK;
}

/* The ellipsis becomes `axes` labels. */
static mlc_status mlc__ein_spread(mlc__ein *e, mlc__ein_term *t, int32_t axes)
{
    if (t->dots < 0) return MLC_OK;
    MLC__REQUIRE(e->ctx, t->n + axes <= MLC_MAX_DIMS, SHAPE,
                 "einsum: \"%.200s\": a term has more than %d axes", e->text, MLC_MAX_DIMS);
    for (int32_t d = t->n; d-- > t->dots;) t->label[d + axes] = t->label[d];
    for (int32_t d = 0; d < axes; d++)
        t->label[t->dots + d] = (int8_t)(MLC__EIN_DOTS + axes - 1 - d);
    t->n += axes;
    return MLC_OK;
}

/* Labels of operand i meet its axes: sizes are equal or 1, and the same where a letter repeats. */
static mlc_status mlc__ein_operand(mlc__ein *e, int32_t i)
{
    mlc__ein_term *t = &e->term[i];
    const int32_t axes = t->x->ndim - t->n;
    MLC__REQUIRE(e->ctx, mlc__is_float(t->x->dtype), DTYPE, "einsum: operand %d is %s, not a "
                 "float; write mlc_cast(x, MLC_F32)", i + 1, mlc_dtype_name(t->x->dtype));
    MLC__REQUIRE(e->ctx, t->x->dtype == e->term[0].x->dtype, DTYPE,
                 "einsum: operand %d is %s, operand 1 is %s; cast one of them with mlc_cast", i + 1,
                 mlc_dtype_name(t->x->dtype), mlc_dtype_name(e->term[0].x->dtype));
    MLC__REQUIRE(e->ctx, t->dots < 0 ? axes == 0 : axes >= 0, SHAPE,
                 "einsum: \"%.200s\": operand %d has %d letters, its tensor is %s; write a letter "
                 "for each axis, or '...'", e->text, i + 1, t->n, mlc__shape(t->x).s);
    MLC__TRY(mlc__ein_spread(e, t, axes));
    if (t->dots >= 0 && axes > e->dots) e->dots = axes;
    for (int32_t d = 0; d < t->n; d++) {
        int64_t *size = &e->size[t->label[d]];
        const int64_t here = t->x->shape[d], first = t->x->shape[mlc__ein_find(t, t->label[d])];
        MLC__REQUIRE(e->ctx, here == first && (*size <= 1 || here == 1 || here == *size), SHAPE,
                     "einsum: \"%.200s\": '%c' is %lld at axis %d of operand %d, %lld before; a "
                     "letter has one size", e->text, mlc__ein_letter(t->label[d]),
                     (long long)here, d, i + 1, (long long)(here == first ? *size : first));
        if (*size < 0 || here != 1) *size = here;
        e->users[t->label[d]]++;
    }
    return MLC_OK;
}

/* Without '->' the result has the ellipsis, then the letters that occur once, in order. */
static mlc_status mlc__ein_result(mlc__ein *e)
{
    if (!e->has_out) {
        e->out.n = e->out.dots = 0;
        for (int label = 0; label < MLC__EIN_DOTS; label++) {
            if (e->users[label] != 1) continue;
            MLC__REQUIRE(e->ctx, e->out.n < MLC_MAX_DIMS, SHAPE,
                         "einsum: \"%.200s\": the result has more than %d axes", e->text,
                         MLC_MAX_DIMS);
            e->out.label[e->out.n++] = (int8_t)label;
        }
    }
    for (int32_t d = 0; d < e->out.n; d++)
        MLC__REQUIRE(e->ctx, e->users[e->out.label[d]] > 0, ARG,
                     "einsum: \"%.200s\": '%c' of the result is in no operand; take a letter of "
                     "theirs", e->text, mlc__ein_letter(e->out.label[d]));
    return mlc__ein_spread(e, &e->out, e->dots);
}

/* Axes a and b > a become their diagonal, the last axis. */
static mlc_tensor *mlc__ein_diagonal(mlc__ein_term *t, int32_t a, int32_t b)
{
    mlc_dims axes = mlc_dims_of(0, NULL);
    const int8_t label = t->label[a];
    for (int32_t d = 0; d < t->n; d++) {
        if (d == a || d == b) continue;
        t->label[axes.n] = t->label[d];
        axes.v[axes.n++] = d;
    }
    axes.v[axes.n++] = a;
    axes.v[axes.n++] = b;
    t->label[t->n - 2] = label;
    t->n--;
    return mlc_diagonal(mlc_permute(t->x, axes), 0);
}

/* Diagonals, sums, and sizes of 1 repeated: after this each letter is in a term once. */
static mlc_status mlc__ein_prepare(mlc__ein *e, mlc__ein_term *t)
{
    mlc_dims gone = mlc_dims_of(0, NULL), wide = mlc_dims_of(0, NULL);
    for (int32_t a = 0; a < t->n; a++)
        for (int32_t b = a + 1; b < t->n; b++) {
            if (t->label[a] != t->label[b]) continue;
            e->users[t->label[a]]--;
            if (!(t->x = mlc__ein_diagonal(t, a, b))) return e->ctx->status;
            a = 0;                     /* labels have moved: look again */
            b = 0;
        }
    for (int32_t d = 0, n = t->n; d < n; d++) {
        const int8_t label = t->label[d];
        if (e->users[label] == 1 && mlc__ein_find(&e->out, label) < 0) {
            gone.v[gone.n++] = d;
            t->n--;
        } else {
            t->label[wide.n] = label;
            wide.v[wide.n++] = e->size[label];
        }
    }
    if (gone.n) t->x = mlc_sum(t->x, gone, false);
    t->x = mlc_expand(t->x, wide);
    return t->x ? MLC_OK : e->ctx->status;
}

/* Labels in groups: those that stay in both, those of a or b alone, those that go. */
typedef struct mlc__ein_split { int32_t n[4]; int8_t label[4][MLC_MAX_DIMS]; } mlc__ein_split;
enum { MLC__EIN_BOTH, MLC__EIN_A, MLC__EIN_B, MLC__EIN_GONE };

/* Groups of t one behind the other: appended to axes, and the product of their sizes. */
static int64_t mlc__ein_group(const mlc__ein *e, const mlc__ein_term *t, const mlc__ein_split *s,
                              int group, mlc_dims *axes)
{
    int64_t n = 1;
    for (int32_t i = 0; i < s->n[group]; i++) {
        axes->v[axes->n++] = mlc__ein_find(t, s->label[group][i]);
        n *= e->size[s->label[group][i]];
    }
    return n;
}

/* Does an axis of t that lies dense go? */
static bool mlc__ein_gone_dense(const mlc__ein_term *t, const mlc__ein_split *s)
{
    for (int32_t i = 0; i < s->n[MLC__EIN_GONE]; i++)
        if (t->x->stride[mlc__ein_find(t, s->label[MLC__EIN_GONE][i])] == 1) return true;
    return false;
}

/* [both, a, gone] times [both, gone, b], or [both, b, gone] turned around where it lies so. */
static mlc_tensor *mlc__ein_matmul(const mlc__ein *e, const mlc__ein_split *s, mlc__ein_term *a,
                                   mlc__ein_term *b, mlc_dims shape)
{
    mlc_dims left = mlc_dims_of(0, NULL), right = left;
    const int64_t batch = mlc__ein_group(e, a, s, MLC__EIN_BOTH, &left);
    const int64_t m = mlc__ein_group(e, a, s, MLC__EIN_A, &left);
    const int64_t k = mlc__ein_group(e, a, s, MLC__EIN_GONE, &left);
    const bool plain = s->n[MLC__EIN_BOTH] == 0, turn = mlc__ein_gone_dense(b, s);
    mlc__ein_group(e, b, s, MLC__EIN_BOTH, &right);
    const int64_t rows = mlc__ein_group(e, b, s, turn ? MLC__EIN_B : MLC__EIN_GONE, &right);
    const int64_t cols = mlc__ein_group(e, b, s, turn ? MLC__EIN_GONE : MLC__EIN_B, &right);
    mlc_tensor *x = mlc_permute(a->x, left), *y = mlc_permute(b->x, right);
    x = mlc_reshape(x, plain ? mlc_dims2(m, k) : mlc_dims3(batch, m, k));
    y = mlc_reshape(y, plain ? mlc_dims2(rows, cols) : mlc_dims3(batch, rows, cols));
    return mlc_reshape(mlc_matmul(x, turn ? mlc_transpose(y, -1, -2) : y), shape);
}

/* Nothing is summed: [both, a, 1..] times [both, 1.., b], element by element. */
static mlc_tensor *mlc__ein_mul(const mlc__ein *e, const mlc__ein_split *s, mlc__ein_term *a,
                                mlc__ein_term *b, mlc_dims shape)
{
    mlc_dims left = mlc_dims_of(0, NULL), right = left, thin = shape;
    mlc__ein_group(e, a, s, MLC__EIN_BOTH, &left);
    mlc__ein_group(e, a, s, MLC__EIN_A, &left);
    mlc__ein_group(e, b, s, MLC__EIN_BOTH, &right);
    mlc__ein_group(e, b, s, MLC__EIN_B, &right);
    mlc_tensor *x = mlc_permute(a->x, left), *y = mlc_permute(b->x, right);
    for (int32_t d = left.n; d < thin.n; d++) thin.v[d] = 1;
    x = mlc_reshape(x, thin);
    thin = shape;
    for (int32_t d = s->n[MLC__EIN_BOTH]; d < left.n; d++) thin.v[d] = 1;
    return mlc_mul(x, mlc_reshape(y, thin));
}

/* a becomes the product of a and operand i. A letter stays if the result or a later operand has it;
 * what does not is in both: what only one has was summed. */
static mlc_status mlc__ein_contract(mlc__ein *e, mlc__ein_term *a, int32_t i)
{
    mlc__ein_term *b = &e->term[i];
    mlc_dims shape = mlc_dims_of(0, NULL);
    int8_t labels[MLC_MAX_DIMS];
    mlc__ein_split s;
    memset(&s, 0, sizeof s);
    for (int label = 0; label < MLC__EIN_LABELS; label++) {
        const bool in_a = mlc__ein_find(a, label) >= 0, in_b = mlc__ein_find(b, label) >= 0;
        bool stays = mlc__ein_find(&e->out, label) >= 0;
        if (!in_a && !in_b) continue;
        for (int32_t k = i + 1; k < e->n; k++)
            stays = stays || mlc__ein_find(&e->term[k], label) >= 0;
        const int group = in_a && in_b ? stays ? MLC__EIN_BOTH : MLC__EIN_GONE
                        : in_a ? MLC__EIN_A : MLC__EIN_B;
        s.label[group][s.n[group]++] = (int8_t)label;
    }
    MLC__REQUIRE(e->ctx, s.n[MLC__EIN_BOTH] + s.n[MLC__EIN_A] + s.n[MLC__EIN_B] <= MLC_MAX_DIMS,
                 SHAPE, "einsum: \"%.200s\": the first %d operands together have more than %d axes",
                 e->text, i + 1, MLC_MAX_DIMS);
    for (int group = MLC__EIN_BOTH; group <= MLC__EIN_B; group++)
        for (int32_t k = 0; k < s.n[group]; k++) {
            labels[shape.n] = s.label[group][k];
            shape.v[shape.n++] = e->size[s.label[group][k]];
        }
    a->x = s.n[MLC__EIN_GONE] ? mlc__ein_matmul(e, &s, a, b, shape)
                              : mlc__ein_mul(e, &s, a, b, shape);
    a->n = shape.n;
    memcpy(a->label, labels, sizeof labels);
    return a->x ? MLC_OK : e->ctx->status;
}

static mlc_status mlc__ein_run(mlc__ein *e, mlc_tensor *const *in, int32_t n, mlc_tensor **y)
{
    mlc__ein_term *first = &e->term[0];
    mlc_dims axes = mlc_dims_of(0, NULL);
    MLC__REQUIRE(e->ctx, e->text != NULL, ARG, "einsum: the equation is NULL; write one as "
                 "\"ij,jk->ik\"");
    MLC__REQUIRE(e->ctx, n <= MLC__EIN_MOST, ARG, "einsum: %d operands; it takes up to %d", n,
                 MLC__EIN_MOST);
    MLC__TRY(mlc__ein_parse(e, n));
    for (int32_t i = 0; i < n; i++) {
        e->term[i].x = in[i];
        MLC__TRY(mlc__ein_operand(e, i));
    }
    MLC__TRY(mlc__ein_result(e));
    for (int32_t i = 0; i < n; i++) MLC__TRY(mlc__ein_prepare(e, &e->term[i]));
    for (int32_t i = 1; i < n; i++) MLC__TRY(mlc__ein_contract(e, first, i));
    for (int32_t d = 0; d < e->out.n; d++)
        axes.v[axes.n++] = mlc__ein_find(first, e->out.label[d]);
    *y = mlc_permute(first->x, axes);
    return *y ? MLC_OK : e->ctx->status;
}

MLC_IMPL mlc_tensor *mlc_einsum(const char *equation, mlc_tensor *const *in, int32_t n)
{
    mlc__ein e;
    mlc_tensor *y = NULL;
    memset(&e, 0, sizeof e);
    e.ctx = n > 0 && in ? mlc__inputs("einsum", n, in) : NULL;
    e.text = equation;
    for (int i = 0; i < MLC__EIN_LABELS; i++) e.size[i] = -1;
    return e.ctx && mlc__ein_run(&e, in, n, &y) == MLC_OK ? y : NULL;
}

/* What outer and dot have in common: two vectors of one dtype. */
static bool mlc__two_vectors(const char *what, mlc_tensor *a, mlc_tensor *b, bool one_length)
{
    mlc_tensor *const in[2] = { a, b };
    mlc_ctx *ctx = mlc__inputs(what, 2, in);
    if (!ctx) return false;
    if (a->ndim != 1 || b->ndim != 1 || (one_length && a->shape[0] != b->shape[0]))
        mlc__fail(ctx, MLC_ERR_SHAPE, "%s: a %s, b %s; both must be 1-d%s", what, mlc__shape(a).s,
                  mlc__shape(b).s, one_length ? ", of one length" : "");
    else if (!mlc__is_float(a->dtype) || a->dtype != b->dtype)
        mlc__fail(ctx, MLC_ERR_DTYPE,
                  "%s: a is %s, b is %s; they must be floats of one dtype, see mlc_cast", what,
                  mlc_dtype_name(a->dtype), mlc_dtype_name(b->dtype));
    else return true;
    return false;
}

MLC_IMPL mlc_tensor *mlc_outer(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__two_vectors("outer", a, b, false) ? mlc_mul(mlc_unsqueeze(a, 1), b) : NULL;
}

MLC_IMPL mlc_tensor *mlc_dot(mlc_tensor *a, mlc_tensor *b)
{
    return mlc__two_vectors("dot", a, b, true) ? mlc_matmul(a, b) : NULL;
}

/* @@ IMPL.OPS.SORT --------------------------------------- sort, argsort, topk
 * One kernel; values go back by the places they came from, which are the second output and are made
 * for backward also where nobody asked. A 0-d tensor is a row of one. */

static mlc_status mlc__sort_shape(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    int64_t shape[MLC_MAX_DIMS] = { 0 };
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof shape[0]);
    if (x->ndim) shape[nd->u.sort.axis] = nd->u.sort.k;
    if (nd->u.sort.values) MLC__TRY(mlc__out(ctx, nd, x->dtype, x->ndim, shape));
    if (nd->u.sort.index || nd->recorded) MLC__TRY(mlc__out(ctx, nd, MLC_I64, x->ndim, shape));
    if (nd->recorded) mlc__save(nd, nd->out[1]);
    return MLC_OK;
}

static mlc_status mlc__sort_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_tensor *x = nd->in[0];
    const mlc_tensor *values = nd->u.sort.values ? nd->out[0] : NULL;
    const mlc_tensor *index = nd->n_out > (values ? 1 : 0) ? nd->out[nd->n_out - 1] : NULL;
    struct mlc_k_sort a;
    int64_t shape[MLC_MAX_DIMS];
    int32_t ndim;
    memset(&a, 0, sizeof a);
    a.dtype = x->dtype;
    a.axis = nd->u.sort.axis;
    a.descending = nd->u.sort.descending;
    a.k = nd->u.sort.k;
    a.in = mlc__data(x);
    a.values = values ? mlc__data(values) : NULL;
    a.index = index ? MLC__CAST(int64_t *, mlc__data(index)) : NULL;
    mlc__line_shape(x, a.shape, a.in_stride, &a.ndim);
    if (values) mlc__line_shape(values, shape, a.values_stride, &ndim);
    if (index) mlc__line_shape(index, shape, a.index_stride, &ndim);
    if (mlc__numel(nd->out[0]) == 0) return MLC_OK;
    MLC__RUN_WITH_WORKSPACE(ctx, nd->op->name, sort, &a);
    return MLC_OK;
}

/* dx[index] += dy */
static mlc_status mlc__sort_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    if (!acc) MLC__TRY(mlc__set(ctx, nd->op->name, &dx, 0.0));
    return mlc__index_add_to(ctx, nd->op->name, &dx, nd->out[1], &dy, nd->u.sort.axis);
}

static const mlc__op mlc__sort_op =
    { "sort", mlc__sort_shape, mlc__sort_forward, mlc__sort_backward };
static const mlc__op mlc__argsort_op = { "argsort", mlc__sort_shape, mlc__sort_forward, NULL };
static const mlc__op mlc__topk_op =
    { "topk", mlc__sort_shape, mlc__sort_forward, mlc__sort_backward };

/* k < 0: all of them. */
static mlc_tensor *mlc__sort_call(const mlc__op *op, mlc_tensor *x, int64_t k, int32_t axis,
                                  bool descending, bool values, mlc_tensor **indices)
{
    mlc_node local, *nd = mlc__begin(&local, op, 1, x, NULL, NULL);
    if (indices) *indices = NULL;
    if (!nd) return NULL;
    if (!mlc__axis_of(x, op->name, &axis)) return NULL;
    const int64_t n = x->ndim ? x->shape[axis] : 1;
    if (k > n) {
        mlc__fail(x->ctx, MLC_ERR_SHAPE, "%s: k is %lld, axis %d of %s has only %lld elements; "
                  "k may be at most that", op->name, (long long)k, axis, mlc__shape(x).s,
                  (long long)n);
        return NULL;
    }
    nd->u.sort.k = k < 0 ? n : k;
    nd->u.sort.axis = axis;
    nd->u.sort.descending = descending;
    nd->u.sort.values = values;
    nd->u.sort.index = !values || indices;
    mlc_tensor *y = mlc__finish(nd);
    if (y && indices) *indices = nd->out[1];
    return y;
}

MLC_IMPL mlc_tensor *mlc_sort(mlc_tensor *x, int32_t axis, bool descending, mlc_tensor **indices)
{
    return mlc__sort_call(&mlc__sort_op, x, -1, axis, descending, true, indices);
}

/* No node: an index has no derivative. */
MLC_IMPL mlc_tensor *mlc_argsort(mlc_tensor *x, int32_t axis, bool descending)
{
    mlc_tensor *y;
    if (!x) return NULL;
    mlc_no_grad_begin(x->ctx);
    y = mlc__sort_call(&mlc__argsort_op, x, -1, axis, descending, false, NULL);
    mlc_no_grad_end(x->ctx);
    return y;
}

MLC_IMPL mlc_tensor *mlc_topk(mlc_tensor *x, int64_t k, int32_t axis, bool largest,
                              mlc_tensor **indices)
{
    if (indices) *indices = NULL;
    if (x && k < 0) {
        mlc__fail(x->ctx, MLC_ERR_ARG, "topk: k is %lld; it must not be negative", (long long)k);
        return NULL;
    }
    return mlc__sort_call(&mlc__topk_op, x, k, axis, largest, true, indices);
}

/* @@ IMPL.OPS.CUSTOM ------------------------------------- operations of the user's own
 * The user's forward and backward run with recording off; to the tape the whole is one node. All
 * inputs and the output are saved, as nobody knows which of them backward reads. */

/* forward runs here, in the shape rule: only then is the shape known. So it also runs in a dry run,
 * where its mlc_ calls do nothing but shapes. */
static mlc_status mlc__custom_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *out = NULL, *own;
    ctx->no_grad++;
    const uint32_t mode = mlc__flush_pause();              /* the user's code has denormals */
    mlc_status st = nd->u.custom.op->forward(nd->u.custom.user, nd->in, nd->n_in, &out);
    mlc__flush_resume(mode);
    ctx->no_grad--;
    MLC__TRY(st != MLC_OK ? mlc__fail(ctx, st, "%s: forward failed", nd->u.custom.op->name)
                          : ctx->status);
    MLC__REQUIRE(ctx, out != NULL, ARG, "%s: forward made no output", nd->u.custom.op->name);
    own = mlc__alias(ctx, out);        /* forward may have returned an input itself */
    if (!own) return MLC_ERR_NOMEM;
    nd->out[nd->n_out++] = own;
    for (int i = 0; i < nd->n_in && nd->n_saved < MLC__MAX_SAVED - 1; i++) mlc__save(nd, nd->in[i]);
    mlc__save(nd, own);
    return MLC_OK;
}

/* Adds what backward made for input i; nothing asked, nothing needed. */
static mlc_status mlc__custom_add(mlc_ctx *ctx, mlc_node *nd, int i, mlc_tensor *given)
{
    const char *name = nd->u.custom.op->name;
    mlc_tensor dx;
    bool acc;
    mlc_status st = MLC_OK;
    if (!mlc__needs(nd, i) || !mlc__wants_grad(nd->in[i])) return MLC_OK;
    MLC__REQUIRE(ctx, given != NULL, ARG, "%s: backward made no gradient for input %d", name,
                 i + 1);
    MLC__REQUIRE(ctx, given->dtype == nd->in[i]->dtype && mlc__broadcasts(given, nd->in[i]), SHAPE,
                 "%s: gradient %s %s of input %d does not fit %s %s", name,
                 mlc_dtype_name(given->dtype), mlc__shape(given).s, i + 1,
                 mlc_dtype_name(nd->in[i]->dtype), mlc__shape(nd->in[i]).s);
    if (!mlc__grad_in(nd, i, &dx, &acc, &st)) return st;
    return mlc__map(ctx, name, MLC_MAP_COPY, &dx, given, NULL, NULL, 0.0, acc);
}

/* The user gets tensors, dy among them, and returns tensors of its own, which are added here. */
static mlc_status mlc__custom_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, *dx[MLC__MAX_IN] = { NULL };
    bool need[MLC__MAX_IN] = { false };
    mlc__grad_view(nd->out[0], &dy);
    for (int i = 0; i < nd->n_in; i++) need[i] = mlc__needs(nd, i) && mlc__wants_grad(nd->in[i]);
    const uint32_t mode = mlc__flush_pause();
    const mlc_status st =
        nd->u.custom.op->backward(nd->u.custom.user, nd->in, nd->n_in, nd->out[0], &dy, need, dx);
    mlc__flush_resume(mode);
    MLC__TRY(st != MLC_OK ? mlc__fail(ctx, st, "%s: backward failed", nd->u.custom.op->name)
                          : ctx->status);
    for (int i = 0; i < nd->n_in; i++) MLC__TRY(mlc__custom_add(ctx, nd, i, dx[i]));
    return MLC_OK;
}

static const mlc__op mlc__custom_op = { "custom", mlc__custom_shape, NULL, mlc__custom_backward };

MLC_IMPL mlc_tensor *mlc_custom(const mlc_custom_op *op, void *user, mlc_tensor *const *in,
                                int32_t n_in)
{
    mlc_node local, *nd;
    mlc_ctx *ctx = NULL;
    for (int32_t i = 0; in && i < n_in && i < MLC__MAX_IN; i++) if (in[i]) ctx = in[i]->ctx;
    if (!ctx) return NULL;
    if (!op || !op->name || !op->forward || !op->backward || n_in < 1 || n_in > MLC__MAX_IN) {
        mlc__fail(ctx, MLC_ERR_ARG, "custom: it needs a name, forward, backward and 1 to 4 inputs");
        return NULL;
    }
    nd = mlc__begin_n(&local, &mlc__custom_op, n_in, in);
    if (!nd) return NULL;
    nd->u.custom.op = op;
    nd->u.custom.user = user;
    return mlc__finish(nd);
}

/* @@ IMPL.LOSS.MSE --------------------------------------- mean squared error */

/* Enums come from users as integers. */
static mlc_status mlc__reduction_check(const mlc_node *nd, mlc_reduction reduction)
{
    MLC__REQUIRE(nd->in[0]->ctx, (unsigned)reduction <= MLC_REDUCTION_NONE, ARG,
                 "%s: unknown reduction %d; see mlc_reduction", nd->op->name, (int)reduction);
    return MLC_OK;
}

/* No broadcasting: PyTorch's only warns, and a [n,1] against [n] is a well-known trap. */
static mlc_status mlc__mse_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], *t = nd->in[1];
    MLC__TRY(mlc__require_float(ctx, nd));
    MLC__REQUIRE(ctx, mlc__same_shape(x, t), SHAPE,
                 "mse_loss: x %s and target %s differ; they must have one shape", mlc__shape(x).s,
                 mlc__shape(t).s);
    mlc__save(nd, x);
    mlc__save(nd, t);
    if (nd->u.reduction == MLC_REDUCTION_NONE)
        return mlc__out(ctx, nd, x->dtype, x->ndim, x->shape);
    return mlc__out(ctx, nd, x->dtype, 0, x->shape);
}

/* By the number of elements for a mean, both in forward and in backward. */
static double mlc__mse_divisor(const mlc_node *nd)
{
    return nd->u.reduction == MLC_REDUCTION_MEAN ? (double)mlc__numel(nd->in[0]) : 1.0;
}

static mlc_status mlc__mse_forward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], *t = nd->in[1];
    mlc__temp sq;
    mlc_status st;
    if (nd->u.reduction == MLC_REDUCTION_NONE)
        return mlc__map(ctx, nd->op->name, MLC_MAP_SQDIFF, nd->out[0], x, t, NULL, 0.0, false);
    MLC__TRY(mlc__temp_begin(ctx, &sq, x->dtype, x->ndim, x->shape));
    st = mlc__map(ctx, nd->op->name, MLC_MAP_SQDIFF, &sq.t, x, t, NULL, 0.0, false);
    if (!st)
        st = mlc__reduce(ctx, nd->op->name, MLC_REDUCE_SUM, nd->out[0], &sq.t, (1u << x->ndim) - 1,
                         false, mlc__mse_divisor(nd), false);
    mlc__temp_end(&sq);
    return st;
}

static mlc_status mlc__mse_backward(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    for (int i = 0; i < 2; i++)
        if (mlc__grad_in(nd, i, &dx, &acc, &st))
            st = mlc__map(ctx, nd->op->name, MLC_MAP_SQDIFF_GRAD, &dx, &dy, nd->in[0], nd->in[1],
                          (i == 0 ? 2.0 : -2.0) / mlc__mse_divisor(nd), acc);
    return st;
}

static const mlc__op mlc__mse_op = { "mse_loss", mlc__mse_shape, mlc__mse_forward,
                                     mlc__mse_backward };

MLC_IMPL mlc_tensor *mlc_mse_loss_ex(mlc_tensor *x, mlc_tensor *target, mlc_reduction reduction)
{
    mlc_node local, *nd = mlc__begin(&local, &mlc__mse_op, 2, x, target, NULL);
    if (!nd || mlc__reduction_check(nd, reduction) != MLC_OK) return NULL;
    nd->u.reduction = reduction;
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_mse_loss(mlc_tensor *x, mlc_tensor *target)
{
    return mlc_mse_loss_ex(x, target, MLC_REDUCTION_MEAN);
}

/* @@ IMPL.LOSS.CROSS_ENTROPY ----------------------------- softmax and log likelihood in one
 * Fused as in PyTorch: from logits, never from probabilities, so that neither exp nor log can
 * overflow. Label smoothing s mixes the target (1 - s) onehot + s/c. The loss is one kernel and its
 * gradient another; between them only two numbers a row and the divisor of the mean are kept. */

/* Three outputs: the loss, and what backward needs of each row and of the mean, which nobody else
 * sees. */
static mlc_status mlc__xent_shape(mlc_ctx *ctx, mlc_node *nd)
{
    mlc_tensor *x = nd->in[0], *y = nd->in[1];
    const int64_t n = x->ndim == 2 ? x->shape[0] : 1;
    MLC__REQUIRE(ctx, mlc__is_full(x->dtype), DTYPE,
                 "cross_entropy: logits are %s; write mlc_cast(x, "
                 "MLC_F32)",
                 mlc_dtype_name(x->dtype));
    MLC__REQUIRE(ctx, y->dtype == MLC_I64, DTYPE,
                 "cross_entropy: labels are %s; write mlc_cast(labels, "
                 "MLC_I64)",
                 mlc_dtype_name(y->dtype));
    MLC__REQUIRE(ctx, x->ndim == 1 || x->ndim == 2, SHAPE,
                 "cross_entropy: logits must be [n,c] or [c], "
                 "they are %s",
                 mlc__shape(x).s);
    MLC__REQUIRE(ctx, y->ndim == x->ndim - 1 && (y->ndim == 0 || y->shape[0] == n), SHAPE,
                 "cross_entropy: logits %s need labels %s, they are %s", mlc__shape(x).s,
                 mlc__shape_text(x->ndim - 1, x->shape).s, mlc__shape(y).s);
    MLC__REQUIRE(ctx, x->shape[x->ndim - 1] > 0, SHAPE,
                 "cross_entropy: logits %s have no classes; the last axis must not be empty",
                 mlc__shape(x).s);
    MLC__TRY(mlc__out(ctx, nd, x->dtype,
                      nd->u.xent.desc.reduction == MLC_REDUCTION_NONE ? x->ndim - 1 : 0, x->shape));
    const int64_t twice = 2 * n;
    MLC__TRY(mlc__out(ctx, nd, x->dtype, 1, &twice));      /* largest logits, logs of the sums */
    MLC__TRY(mlc__out(ctx, nd, x->dtype, 0, &n));          /* what the sum was divided by */
    mlc__save(nd, x);
    mlc__save(nd, y);
    mlc__save(nd, nd->out[1]);
    mlc__save(nd, nd->out[2]);
    return MLC_OK;
}

static mlc_status mlc__xent_forward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_cross_entropy_desc *d = &nd->u.xent.desc;
    const mlc_tensor *x = nd->in[0], *y = nd->in[1];
    struct mlc_k_xent a;
    a.dtype = x->dtype;
    a.reduction = d->reduction;
    a.n = x->ndim == 2 ? x->shape[0] : 1;
    a.c = x->shape[x->ndim - 1];
    a.logits = mlc__data(x);
    a.row = x->ndim == 2 ? x->stride[0] : 0;
    a.labels = MLC__CAST(const int64_t *, mlc__data(y));
    a.label_stride = y->ndim ? y->stride[0] : 0;
    a.smoothing = d->label_smoothing;
    a.ignore = d->ignore_index;
    a.has_ignore = d->has_ignore_index;
    a.loss = mlc__data(nd->out[0]);
    a.lse = mlc__data(nd->out[1]);
    a.norm = mlc__data(nd->out[2]);
    a.error = ctx->error_word;
    /* Set before the run: whoever reads the word next may find a label in it. */
    ctx->error_pending = true;
    MLC__RUN_WITH_WORKSPACE(ctx, nd->op->name, xent, &a);
    return ctx->on_host ? mlc__error_word_read(ctx) : MLC_OK; /* elsewhere at the scope's end */
}

static mlc_status mlc__xent_backward(mlc_ctx *ctx, mlc_node *nd)
{
    const mlc_cross_entropy_desc *d = &nd->u.xent.desc;
    const mlc_tensor *x = nd->in[0], *y = nd->in[1];
    struct mlc_k_xent_grad a;
    mlc_tensor dy, dx;
    bool acc;
    mlc_status st = MLC_OK;
    mlc__grad_view(nd->out[0], &dy);
    if (!mlc__grad_in(nd, 0, &dx, &acc, &st)) return st;
    a.dtype = x->dtype;
    a.accumulate = acc;
    a.n = x->ndim == 2 ? x->shape[0] : 1;
    a.c = x->shape[x->ndim - 1];
    a.logits = mlc__data(x);
    a.row = x->ndim == 2 ? x->stride[0] : 0;
    a.labels = MLC__CAST(const int64_t *, mlc__data(y));
    a.label_stride = y->ndim ? y->stride[0] : 0;
    a.smoothing = d->label_smoothing;
    a.ignore = d->ignore_index;
    a.has_ignore = d->has_ignore_index;
    a.lse = mlc__data(nd->out[1]);
    a.norm = mlc__data(nd->out[2]);
    a.dy = mlc__data(&dy);
    a.dy_stride = dy.ndim ? dy.stride[0] : 0;
    a.dx = mlc__data(&dx);
    a.dx_row = dx.ndim == 2 ? dx.stride[0] : 0;
    return a.n ? mlc__run_xent_grad(ctx, nd->op->name, &a) : MLC_OK;
}

static const mlc__op mlc__xent_op =
    { "cross_entropy", mlc__xent_shape, mlc__xent_forward, mlc__xent_backward };

/* desc is copied into the node: it may be a local. */
MLC_IMPL mlc_tensor *mlc_cross_entropy_ex(mlc_tensor *logits, mlc_tensor *labels,
                                          const mlc_cross_entropy_desc *desc)
{
    mlc_node local, *nd;
    if (logits && logits->ndim > 0 && logits->stride[logits->ndim - 1] != 1)
        logits = mlc_copy(logits);     /* the kernel reads dense rows */
    if (logits && desc && !(desc->label_smoothing >= 0.0 && desc->label_smoothing <= 1.0)) {
        mlc__fail(logits->ctx, MLC_ERR_ARG, "cross_entropy: label_smoothing is %s, not in [0, 1]",
                  mlc__real(desc->label_smoothing).s);
        return NULL;
    }
    nd = mlc__begin(&local, &mlc__xent_op, 2, logits, labels, NULL);
    if (!nd || (desc && mlc__reduction_check(nd, desc->reduction) != MLC_OK)) return NULL;
    if (desc) nd->u.xent.desc = *desc;
    else memset(&nd->u.xent.desc, 0, sizeof nd->u.xent.desc);
    return mlc__finish(nd);
}

MLC_IMPL mlc_tensor *mlc_cross_entropy(mlc_tensor *logits, mlc_tensor *labels)
{
    return mlc_cross_entropy_ex(logits, labels, NULL);
}

/* @@ IMPL.GRADCHECK -------------------------------------- backward against central differences
 * Every element of every input is moved up and down by eps, in f64: the error of a central
 * difference is of the order eps^2 + 1e-16/eps, 1e-10 at 1e-6. A vector result is made one number
 * by random weights in [0.5, 1.5), so that gradients cannot cancel or hide behind zeros. Random
 * operations draw the same numbers each time: the stream is set back. */

/* The arguments of mlc_gradcheck with defaults filled in. */
typedef struct mlc__check {
    mlc_ctx           *ctx;
    mlc_grad_fn        fn;
    void              *user;
    mlc_tensor *const *in;
    int32_t            n_in;
    double             eps, atol, rtol;
} mlc__check;

/* Drawn anew for each evaluation, from the same stream: the same numbers. */
static mlc_tensor *mlc__check_weights(mlc_ctx *ctx, const mlc_tensor *y)
{
    return y ? mlc_uniform(ctx, y->dtype, mlc_dims_of(y->ndim, y->shape), 0.5, 1.5) : NULL;
}

static mlc_tensor *mlc__check_loss(mlc_tensor *y, mlc_tensor *w)
{
    return mlc_sum(mlc_mul(y, w), mlc_dims0(), false);
}

/* sum(w fn(in)) with fixed random weights w: one number whose gradient shows every output. */
static mlc_status mlc__check_value(const mlc__check *c, double *value)
{
    const uint64_t stream = c->ctx->stream;
    MLC__TRY(mlc_scope_begin(c->ctx));
    mlc_no_grad_begin(c->ctx);
    mlc_tensor *y = c->fn(c->user, c->in, c->n_in);
    *value = mlc_item(mlc__check_loss(y, mlc__check_weights(c->ctx, y)));
    mlc_no_grad_end(c->ctx);
    c->ctx->stream = stream;           /* every evaluation draws the same numbers */
    return mlc__scope_leave(c->ctx);
}

/* x: the input's values on the host, changed one at a time and written back. */
static mlc_status mlc__check_input(const mlc__check *c, int32_t i, const double *analytic,
                                   double *x, mlc_gradcheck_report *r)
{
    const int64_t n = mlc__numel(c->in[i]);
    const size_t bytes = (size_t)n * sizeof(double);
    for (int64_t e = 0; e < n; e++) {
        const double old = x[e];
        double up = 0.0, down = 0.0;
        x[e] = old + c->eps;
        mlc_status st = mlc_write(c->in[i], x, bytes);
        if (!st) st = mlc__check_value(c, &up);
        x[e] = old - c->eps;
        if (!st) st = mlc_write(c->in[i], x, bytes);
        if (!st) st = mlc__check_value(c, &down);
        /* The input is restored before an error may leave. */
        x[e] = old;
        const mlc_status restored = mlc_write(c->in[i], x, bytes);
        MLC__TRY(st);
        MLC__TRY(restored);
        const double numeric = (up - down) / (2.0 * c->eps);
        double excess = fabs(analytic[e] - numeric) - (c->atol + c->rtol * fabs(numeric));
        /* A NaN anywhere is the worst there is; comparisons would pass over it. */
        if (!(excess - excess == 0.0)) excess = DBL_MAX;
        if (r->input >= 0 && !(excess > r->excess)) continue;
        r->input = i;
        r->index = e;
        r->analytic = analytic[e];
        r->numeric = numeric;
        r->excess = excess;
    }
    return MLC_OK;
}

/* Gradients once by backward, then element by element by differences. r keeps the worst. */
static mlc_status mlc__check_all(const mlc__check *c, mlc_gradcheck_report *r)
{
    const uint64_t stream = c->ctx->stream;
    mlc_tensor *y = c->fn(c->user, c->in, c->n_in);
    for (int32_t i = 0; i < c->n_in; i++) mlc_zero_grad(c->in[i]);
    mlc_tensor *loss = mlc__check_loss(y, mlc__check_weights(c->ctx, y));
    c->ctx->stream = stream;
    if (loss && mlc__wants_grad(loss)) MLC__TRY(mlc_backward(loss));
    MLC__TRY(c->ctx->status);
    MLC__REQUIRE(c->ctx, y != NULL, ARG, "gradcheck: the function returned NULL; it must make a "
                 "tensor");
    for (int32_t i = 0; i < c->n_in; i++) {
        mlc_tensor *t = c->in[i], *g = mlc_grad(t);
        const size_t bytes = (size_t)mlc__numel(t) * sizeof(double);
        if (!mlc__wants_grad(t)) continue;
        double *x = MLC__CAST(double *, mlc__arena(c->ctx, c->ctx->depth, 2 * bytes + 16));
        if (!x) return MLC_ERR_NOMEM;
        double *analytic = x + mlc__numel(t);
        memset(analytic, 0, bytes);    /* no gradient is a gradient of zero */
        MLC__TRY(mlc_read(t, x, bytes));
        if (g) MLC__TRY(mlc_read(g, analytic, bytes));
        MLC__TRY(mlc__check_input(c, i, analytic, x, r));
    }
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_gradcheck(mlc_grad_fn fn, void *user, mlc_tensor *const *in, int32_t n_in,
                                  const mlc_gradcheck_desc *desc, mlc_gradcheck_report *report)
{
    mlc__check c = { NULL, fn, user, in, n_in, 1e-6, 1e-5, 1e-3 };
    mlc_status st, ended;
    if (!fn || !in || n_in < 1 || !in[0] || !report) return MLC_ERR_ARG;
    c.ctx = in[0]->ctx;
    if (desc && desc->eps > 0.0) c.eps = desc->eps;
    if (desc && desc->atol > 0.0) c.atol = desc->atol;
    if (desc && desc->rtol > 0.0) c.rtol = desc->rtol;
    memset(report, 0, sizeof *report);
    report->input = -1;
    for (int32_t i = 0; i < n_in; i++)
        MLC__REQUIRE(c.ctx, in[i] && (!mlc__wants_grad(in[i]) || in[i]->dtype == MLC_F64), DTYPE,
                     "gradcheck: input %d is %s; it must be f64, differences of f32 say nothing",
                     i + 1, in[i] ? mlc_dtype_name(in[i]->dtype) : "NULL");
    MLC__TRY(mlc_scope_begin(c.ctx));
    st = mlc__check_all(&c, report);
    ended = mlc__scope_leave(c.ctx);
    if (st == MLC_OK) st = ended;
    for (int32_t i = 0; i < n_in; i++) mlc_zero_grad(in[i]);
    report->ok = st == MLC_OK && (report->input < 0 || report->excess <= 0.0);
    return st;
}

/* @@ IMPL.NN.MODULE -------------------------------------- the tree, parameters, build, forward
 * A module is a node of a tree with named slots for parameters; all are in ctx->modules, so that
 * the context's end can release them. Creators declare: shapes and initialisers, no memory. The
 * build walks the root's tree twice: once to place each parameter in a flat block (64-byte steps,
 * shared ones once), once to fill in values, each from its own random stream, hash(name) mixed with
 * the number of the root, so that inserting a layer leaves the others as they were. Whatever
 * changes the tree marks its root dirty; the next forward, optimizer, load or mlc_module_build lays
 * out again, moving what has values already. Nothing changes before all memory is there: a build
 * that fails leaves the old layout. */

/* A parameter under one of its names: tied ones sit in several slots. */
typedef struct mlc__slot { mlc__param *p; char *name; } mlc__slot;

/* cls is a copy: a class may be a local of the creator. */
struct mlc_module {
    mlc_ctx         *ctx;
    mlc_module_class cls;
    void            *user;
    mlc_module      *parent, *prev, *next;      /* prev, next: all modules of the context       */
    char            *name;                      /* within the parent                            */
    mlc_module     **child;
    mlc__slot       *slot;                      /* parameters and buffers                       */
    int32_t          children, child_room, slots, slot_room;
    bool             training, dirty;           /* dirty: of a root, its layout is out of date  */
    mlc__flat       *flat;                      /* of a root                                    */
    int32_t          out_ndim;                  /* output shape seen by a dry run               */
    int64_t          out_shape[MLC_MAX_DIMS];
};

/* Depths are small; a cached root would have to follow each mlc_module_add. */
static mlc_module *mlc__root(mlc_module *m)
{
    while (m->parent) m = m->parent;
    return m;
}

/* A copy on the heap: the user's string may be a local. */
static char *mlc__heap_text(mlc_ctx *ctx, const char *text)
{
    char *copy = MLC__CAST(char *, mlc__heap_alloc(ctx, strlen(text) + 1, MLC_MEM_OBJECT, "name"));
    if (copy) memcpy(copy, text, strlen(text) + 1);
    return copy;
}

/* Room for one more element of `size` bytes in a heap array. */
static mlc_status mlc__grow(mlc_ctx *ctx, void **array, int32_t n, int32_t *room, size_t size)
{
    if (n < *room) return MLC_OK;
    const int32_t more = *room ? 2 * *room : 4;
    void *bigger = mlc__heap_alloc(ctx, (size_t)more * size, MLC_MEM_OBJECT, "module");
    if (!bigger) return MLC_ERR_NOMEM;
    if (*array) memcpy(bigger, *array, (size_t)n * size);
    mlc__heap_free(ctx, *array);
    *array = bigger;
    *room = more;
    return MLC_OK;
}

/* At the context's end user data is released first, module by module; their memory goes with the
 * heap. */
static void mlc__modules_release(mlc_ctx *ctx)
{
    for (mlc_module *m = ctx->modules; m; m = m->next) if (m->cls.release) m->cls.release(m);
}

/* At the head of ctx->modules; a root until mlc_module_add gives it a parent. */
MLC_IMPL mlc_module *mlc_module_create(mlc_ctx *ctx, const mlc_module_class *cls, const void *user,
                                       size_t user_bytes)
{
    mlc_module *m;
    if (!ctx) return NULL;
    if (!cls || !cls->name || !cls->forward) {
        mlc__fail(ctx, MLC_ERR_ARG, "module_create: the class needs a name and a forward");
        return NULL;
    }
    m = MLC__CAST(mlc_module *, mlc__heap_alloc(ctx, sizeof *m, MLC_MEM_OBJECT, "module_create"));
    if (!m) return NULL;
    if (user_bytes) m->user = mlc__heap_alloc(ctx, user_bytes, MLC_MEM_OBJECT, "module_create");
    if (user_bytes && !m->user) { mlc__heap_free(ctx, m); return NULL; }
    if (user && user_bytes) memcpy(m->user, user, user_bytes);
    m->ctx = ctx;
    m->cls = *cls;
    m->training = m->dirty = true;
    m->next = ctx->modules;
    if (m->next) m->next->prev = m;
    ctx->modules = m;
    ctx->modules_release = mlc__modules_release;
    return m;
}

MLC_IMPL void *mlc_module_user(mlc_module *m) { return m ? m->user : NULL; }
MLC_IMPL mlc_ctx *mlc_module_ctx(mlc_module *m) { return m ? m->ctx : NULL; }
MLC_IMPL bool mlc_module_is_training(const mlc_module *m) { return m && m->training; }

MLC_IMPL mlc_module *mlc_module_child(mlc_module *m, int32_t i)
{
    return m && i >= 0 && i < m->children ? m->child[i] : NULL;
}

/* A name that is new in m, has no dot and is not too long. */
static mlc_status mlc__name_check(mlc_module *m, const char *what, const char *name)
{
    MLC__REQUIRE(m->ctx, name && name[0] && strlen(name) < 64 && !strchr(name, '.'), ARG,
                 "%s: name '%s' must have 1 to 63 bytes and no dot", what, name ? name : "NULL");
    for (int32_t i = 0; i < m->slots; i++)
        MLC__REQUIRE(m->ctx, strcmp(m->slot[i].name, name) != 0, ARG,
                     "%s: name '%s' is taken; choose another", what, name);
    for (int32_t i = 0; i < m->children; i++)
        MLC__REQUIRE(m->ctx, strcmp(m->child[i]->name, name) != 0, ARG,
                     "%s: name '%s' is taken; choose another", what, name);
    return MLC_OK;
}

/* p is counted by its holders and freed with the last (mlc__param_drop). */
static mlc_status mlc__slot_add(mlc_module *m, const char *name, mlc__param *p)
{
    void *array = m->slot;
    MLC__TRY(mlc__grow(m->ctx, &array, m->slots, &m->slot_room, sizeof *m->slot));
    m->slot = MLC__CAST(mlc__slot *, array);
    char *copy = mlc__heap_text(m->ctx, name);
    if (!copy) return MLC_ERR_NOMEM;
    m->slot[m->slots].p = p;
    m->slot[m->slots++].name = copy;
    p->holders++;
    mlc__root(m)->dirty = true;
    return MLC_OK;
}

/* Buffers may be of any dtype, parameters are the full floats that optimizers step. */
MLC_IMPL mlc_tensor *mlc_module_declare(mlc_module *m, const char *name, const mlc_param_desc *desc)
{
    mlc__param *p;
    if (!m) return NULL;
    mlc_ctx *ctx = m->ctx;
    if (!desc) {
        mlc__fail(ctx, MLC_ERR_ARG, "module_declare: desc is NULL; it has the shape");
        return NULL;
    }
    const mlc_dtype dtype = desc->has_dtype ? desc->dtype : ctx->dtype;
    if (mlc__name_check(m, "module_declare", name) != MLC_OK ||
        mlc__shape_check(ctx, "module_declare", dtype, desc->shape) != MLC_OK) return NULL;
    if (!mlc__is_full(dtype) && !desc->buffer) {
        mlc__fail(ctx, MLC_ERR_DTYPE, "module_declare: parameter '%s' is %s; only buffers may be",
                  name, mlc_dtype_name(dtype));
        return NULL;
    }
    p = MLC__CAST(mlc__param *, mlc__heap_alloc(ctx, sizeof *p, MLC_MEM_OBJECT, "module_declare"));
    if (!p) return NULL;
    mlc__tensor_init(&p->t, ctx, dtype, desc->shape.n, desc->shape.v);
    /* The storage has no data until the build: mlc__alive then says so. */
    p->t.scope = 0;
    p->t.flags |= MLC__PARAM | (desc->buffer ? 0 : MLC__REQUIRES_GRAD);
    p->t.storage = &p->value_storage;
    p->value_storage.ctx = p->grad_storage.ctx = ctx;
    p->grad_offset = -1;
    p->init = desc->init;
    p->a = desc->a;
    p->b = desc->b;
    p->buffer = desc->buffer;
    p->name = mlc__heap_text(ctx, name);
    if (p->name && mlc__slot_add(m, name, p) == MLC_OK) return &p->t;
    mlc__heap_free(ctx, p->name);
    mlc__heap_free(ctx, p);
    return NULL;
}

/* Under a second name the parameter is the same: one value, one gradient, the first name in
 * files. */
MLC_IMPL mlc_status mlc_module_tie(mlc_module *m, const char *name, mlc_tensor *param)
{
    if (!m) return MLC_ERR_ARG;
    MLC__REQUIRE(m->ctx, param && (param->flags & MLC__PARAM) && param->ctx == m->ctx, ARG,
                 "module_tie: '%s' needs a parameter of a module of this context",
                 name ? name : "NULL");
    MLC__TRY(mlc__name_check(m, "module_tie", name));
    return mlc__slot_add(m, name, (mlc__param *)param);
}

/* A child that was built alone keeps its values: the next build of the new root copies them
 * over. */
MLC_IMPL mlc_status mlc_module_add_named(mlc_module *parent, const char *name, mlc_module *child)
{
    mlc_ctx *ctx = parent ? parent->ctx : child ? child->ctx : NULL;
    if (!ctx) return MLC_ERR_ARG;
    MLC__REQUIRE(ctx, parent && child, ARG, "module_add: %s is NULL; look at what should have "
                 "made it", parent ? "child" : "parent");
    MLC__REQUIRE(ctx, child->ctx == ctx, ARG,
                 "module_add: the child belongs to another context; make it in the parent's");
    MLC__REQUIRE(ctx, !child->parent, ARG, "module_add: the child '%s' already has a parent; make "
                 "another, or share its parameters by mlc_module_tie", child->name);
    MLC__REQUIRE(ctx, mlc__root(parent) != child, ARG,
                 "module_add: a module cannot contain itself; add it elsewhere");
    MLC__TRY(mlc__name_check(parent, "module_add", name));
    void *array = parent->child;
    MLC__TRY(mlc__grow(ctx, &array, parent->children, &parent->child_room, sizeof *parent->child));
    parent->child = MLC__CAST(mlc_module **, array);
    char *copy = mlc__heap_text(ctx, name);
    if (!copy) return MLC_ERR_NOMEM;
    mlc__heap_free(ctx, child->name);
    child->name = copy;
    child->parent = parent;
    parent->child[parent->children++] = child;
    mlc__root(parent)->dirty = true;
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_module_add(mlc_module *parent, mlc_module *child)
{
    char name[16];
    bool taken = true;                 /* after a child was freed its number may be in use */
    for (int32_t n = parent ? parent->children : 0; taken; n++) {
        snprintf(name, sizeof name, "%d", (int)n);
        taken = false;
        for (int32_t i = 0; parent && i < parent->children; i++)
            taken = taken || strcmp(parent->child[i]->name, name) == 0;
    }
    return mlc_module_add_named(parent, name, child);
}

MLC_IMPL void mlc_module_train(mlc_module *m, bool training)
{
    if (!m) return;
    m->training = training;
    for (int32_t i = 0; i < m->children; i++) mlc_module_train(m->child[i], training);
}

/* A walk over all parameters below m, shared ones once. fn gets the dotted name; false stops. */
typedef bool (*mlc__param_fn)(void *user, mlc__param *p, const char *name);

/* visit marks what this walk has seen; so walks must not nest. A path over MLC_NAME_BYTES is
 * cut. */
static bool mlc__walk(mlc_module *m, char *name, size_t len, mlc__param_fn fn, void *user)
{
    for (int32_t i = 0; i < m->slots; i++) {
        mlc__param *p = m->slot[i].p;
        if (p->visit == m->ctx->visit) continue;
        p->visit = m->ctx->visit;
        snprintf(name + len, MLC_NAME_BYTES - len, "%s", m->slot[i].name);
        if (!fn(user, p, name)) return false;
    }
    for (int32_t i = 0; i < m->children; i++) {
        const int n = snprintf(name + len, MLC_NAME_BYTES - len, "%s.", m->child[i]->name);
        const size_t end = len + (size_t)n;
        if (!mlc__walk(m->child[i], name, end < MLC_NAME_BYTES ? end : MLC_NAME_BYTES - 1, fn,
                       user))
            return false;
    }
    return true;
}

/* False if fn stopped the walk. */
static bool mlc__params(mlc_module *m, mlc__param_fn fn, void *user)
{
    char name[MLC_NAME_BYTES] = "";
    m->ctx->visit++;
    return mlc__walk(m, name, 0, fn, user);
}

/* -- build: one block for all values of a root -- */

/* offset is counted in the first walk and used in the second, which must go the same way. */
typedef struct mlc__build {
    mlc_module *root;
    mlc__flat  *flat;
    size_t     *offset;                /* of each value in the new block                        */
    int64_t     n, order;              /* order: of the root among the context's                */
    mlc_status  status;
} mlc__build;

/* First walk: how many. */
static bool mlc__build_count(void *user, mlc__param *p, const char *name)
{
    mlc__build *b = MLC__CAST(mlc__build *, user);
    (void)p; (void)name;
    b->n++;
    return true;
}

/* Frozen parameters have lost the flag; buffers never had it. */
static bool mlc__trainable(const mlc__param *p) { return !p->buffer && mlc__wants_grad(&p->t); }

/* Bytes of a parameter's place in a flat block, with the padding up to the next cache line. */
static size_t mlc__param_bytes(const mlc__param *p)
{
    return mlc__round_up((size_t)mlc__numel(&p->t) * mlc__size(&p->t), MLC__CACHELINE);
}

/* Second walk: offsets of values, sum of gradient bytes. */
static bool mlc__build_place(void *user, mlc__param *p, const char *name)
{
    mlc__build *b = MLC__CAST(mlc__build *, user);
    const size_t bytes = mlc__param_bytes(p);
    if (strlen(name) + 1 >= MLC_NAME_BYTES) {              /* cut off: no longer one of its own */
        b->status = mlc__fail(b->root->ctx, MLC_ERR_ARG, "build: name '%.40s...' is over %d bytes",
                              name, MLC_NAME_BYTES - 2);
        return false;
    }
    b->offset[b->n] = b->flat->value_bytes;
    b->flat->params[b->n++] = p;
    if (bytes > (size_t)PTRDIFF_MAX / 4 - b->flat->value_bytes) {
        b->status =
            mlc__fail(b->root->ctx, MLC_ERR_NOMEM, "build: the parameters do not fit memory");
        return false;
    }
    b->flat->value_bytes += bytes;
    if (mlc__trainable(p)) b->flat->grad_bytes += bytes;
    return true;
}

/* Writes a parameter's values to its new place: moved if it had any, else initialised. */
static bool mlc__build_value(void *user, mlc__param *p, const char *name)
{
    mlc__build *b = MLC__CAST(mlc__build *, user);
    mlc_ctx *ctx = b->root->ctx;
    const int64_t n = mlc__numel(&p->t);
    void *to = MLC__CAST(char *, b->flat->values) + b->offset[b->n++];
    const struct mlc_k_fill fill = { p->t.dtype, n, to, p->init == MLC_INIT_ZEROS ? 0.0 : p->a,
                                     0.0, 0 };
    /* Roots with the same names start differently: the odd constant (2^64 over the golden ratio)
     * spreads their numbers over the streams. */
    const struct mlc_k_random random = {
        p->init == MLC_INIT_NORMAL ? MLC_RANDOM_NORMAL : MLC_RANDOM_UNIFORM,
        p->t.dtype,
        n,
        to,
        ctx->seed,
        mlc__hash(name) + (uint64_t)b->order * 0x9E3779B97F4A7C15ull,
        p->a,
        p->b,
        0.0,
        0.0,
        0,
        0
    };
    if (n == 0) return true;
    /* Built before: values move, whatever root they were built under. */
    if (p->flat)
        b->status = mlc__device_copy(ctx, to, p->value_storage.data, (size_t)n * mlc__size(&p->t),
                                     MLC_COPY_ON_DEVICE);
    else if (p->init == MLC_INIT_ZEROS || p->init == MLC_INIT_CONSTANT)
        b->status = mlc__run_fill(ctx, "build", &fill);
    else
        b->status = mlc__run_random(ctx, "build", &random);
    return b->status == MLC_OK;
}

/* Takes a half-made flat, too. */
static void mlc__flat_free(mlc__flat *flat)
{
    if (!flat) return;
    mlc__heap_data_free(flat->ctx, flat->values, MLC_MEM_PARAM);
    mlc__heap_data_free(flat->ctx, flat->grads, MLC_MEM_GRAD);
    mlc__heap_free(flat->ctx, flat->params);
    mlc__heap_free(flat->ctx, flat);
}

/* p is no longer one of its flat's parameters; a flat that nobody owns goes with its last. */
static void mlc__flat_leave(mlc__param *p)
{
    mlc__flat *flat = p->flat;
    for (int64_t i = 0; flat && i < flat->n; i++) {
        if (flat->params[i] != p) continue;
        flat->params[i] = flat->params[--flat->n];
        break;
    }
    p->flat = NULL;
    if (flat && flat->orphan && flat->n == 0) mlc__flat_free(flat);
}

/* Gives up m's own block: at once, or when parameters that another tree shares have moved. */
static void mlc__flat_disown(mlc_module *m)
{
    if (m->flat && m->flat->n == 0) mlc__flat_free(m->flat);
    else if (m->flat) m->flat->orphan = true;
    m->flat = NULL;
}

/* Blocks of former roots below m, whose parameters have moved. */
static void mlc__flats_drop(mlc_module *m)
{
    mlc__flat_disown(m);
    for (int32_t i = 0; i < m->children; i++) mlc__flats_drop(m->child[i]);
}

/* Nothing can fail any more: pointers move, versions tell the tape, gradients are gone. */
static void mlc__build_commit(mlc__build *b)
{
    int64_t grad_at = 0;
    for (int64_t i = 0; i < b->flat->n; i++) {
        mlc__param *p = b->flat->params[i];
        mlc__flat_leave(p);
        p->half = p->half || p->t.grad_fresh;              /* a gradient does not move */
        p->value_storage.data = MLC__CAST(char *, b->flat->values) + b->offset[i];
        p->value_storage.version++;
        p->grad_storage.data = NULL;
        p->t.grad = NULL;
        p->t.grad_fresh = 0;
        p->flat = b->flat;
        p->grad_offset = mlc__trainable(p) ? grad_at : -1;
        if (mlc__trainable(p)) grad_at += (int64_t)mlc__param_bytes(p);
    }
    mlc__flats_drop(b->root);
    b->root->flat = b->flat;
    b->root->dirty = false;
}

/* Values are zeroed with their padding: optimizers run across it, and it must not hold NaN. */
static mlc_status mlc__build_run(mlc__build *b)
{
    mlc_ctx *ctx = b->root->ctx;
    mlc__flat *flat = b->flat;
    const size_t n = (size_t)b->n;
    flat->n = b->n;
    flat->params = MLC__CAST(
        mlc__param **, mlc__heap_alloc(ctx, n * sizeof *flat->params, MLC_MEM_OBJECT, "build"));
    if (!flat->params) return MLC_ERR_NOMEM;
    b->n = 0;
    mlc__params(b->root, mlc__build_place, b);
    MLC__TRY(b->status);
    flat->values = mlc__heap_data(ctx, flat->value_bytes, MLC_MEM_PARAM, "build");
    if (!flat->values) return MLC_ERR_NOMEM;
    MLC__TRY(mlc__zero(ctx, "build", flat->values, flat->value_bytes));
    b->n = 0;
    mlc__params(b->root, mlc__build_value, b);
    return b->status;
}

/* A rebuild keeps the root's number, and with it the streams; layout is new each time, which is how
 * optimizers notice. */
static mlc_status mlc__build_root(mlc_module *root)
{
    mlc_ctx *ctx = root->ctx;
    mlc__build b = { root, NULL, NULL, 0, root->flat ? root->flat->id : ctx->roots + 1, MLC_OK };
    const bool dry = ctx->dry_run;
    mlc_status st = MLC_ERR_NOMEM;
    ctx->dry_run = false;              /* also during a dry run parameters are real */
    mlc__params(root, mlc__build_count, &b);
    b.flat = MLC__CAST(mlc__flat *, mlc__heap_alloc(ctx, sizeof *b.flat, MLC_MEM_OBJECT, "build"));
    b.offset = MLC__CAST(
        size_t *, mlc__heap_alloc(ctx, (size_t)b.n * sizeof(size_t), MLC_MEM_OBJECT, "build"));
    if (b.flat) b.flat->ctx = ctx;
    if (b.flat && b.offset) st = mlc__build_run(&b);
    if (st == MLC_OK) {
        b.flat->id = b.order;
        b.flat->layout = ++ctx->layouts;
        if (b.order > ctx->roots) ctx->roots = b.order;
        mlc__build_commit(&b);
    } else {
        mlc__flat_free(b.flat);
    }
    mlc__heap_free(ctx, b.offset);
    ctx->dry_run = dry;
    return st;
}

MLC_IMPL mlc_status mlc_module_build(mlc_module *m)
{
    if (!m) return MLC_ERR_ARG;
    m = mlc__root(m);
    return m->dirty ? mlc__build_root(m) : MLC_OK;
}

/* The gradients go with the old layout; optimizer state follows at the next step. */
MLC_IMPL mlc_status mlc_module_rebuild(mlc_module *m)
{
    if (!m) return MLC_ERR_ARG;
    return mlc__build_root(mlc__root(m));
}

/* -- by name -- */

/* For a search by name. A walk for each: names are asked for in setup, not in steps. */
typedef struct mlc__find { const char *name; mlc__param *p; } mlc__find;

static bool mlc__find_param(void *user, mlc__param *p, const char *name)
{
    mlc__find *f = MLC__CAST(mlc__find *, user);
    if (strcmp(name, f->name) == 0) f->p = p;
    return f->p == NULL;
}

MLC_IMPL mlc_tensor *mlc_module_param(mlc_module *m, const char *name)
{
    mlc__find f = { name ? name : "", NULL };
    if (!m || mlc_module_build(m) != MLC_OK) return NULL;
    mlc__params(m, mlc__find_param, &f);
    if (!f.p) mlc__fail(m->ctx, MLC_ERR_ARG, "module_param: there is no '%s'; mlc_param_next "
                      "walks through all names", f.name);
    return f.p ? &f.p->t : NULL;
}

typedef struct mlc__freeze { const char *glob; bool frozen; int64_t hits; } mlc__freeze;

/* The flag alone: memory changes at the next build. */
static bool mlc__freeze_param(void *user, mlc__param *p, const char *name)
{
    mlc__freeze *f = MLC__CAST(mlc__freeze *, user);
    if (p->buffer || (f->glob && !mlc__glob(f->glob, name))) return true;
    f->hits++;
    p->t.flags = f->frozen ? p->t.flags & ~MLC__REQUIRES_GRAD : p->t.flags | MLC__REQUIRES_GRAD;
    return true;
}

MLC_IMPL mlc_status mlc_module_freeze(mlc_module *m, const char *glob, bool frozen)
{
    mlc__freeze f = { glob, frozen, 0 };
    if (!m) return MLC_ERR_ARG;
    mlc__params(m, mlc__freeze_param, &f);
    MLC__REQUIRE(m->ctx, f.hits > 0 || !glob, ARG, "module_freeze: no parameter matches '%s'; "
                 "mlc_param_next walks through all names", glob);
    return MLC_OK;
}

/* The iterator counts instead of keeping a place: it stays valid whatever happens below the root,
 * and costs a walk a step. */
typedef struct mlc__nth { int64_t left; mlc_param_iter *it; } mlc__nth;

static bool mlc__nth_param(void *user, mlc__param *p, const char *name)
{
    mlc__nth *n = MLC__CAST(mlc__nth *, user);
    if (n->left-- > 0) return true;
    n->it->tensor = &p->t;
    n->it->buffer = p->buffer;
    n->it->trainable = mlc__trainable(p);
    mlc__copy_text(n->it->name, sizeof n->it->name, name);
    return false;
}

MLC_IMPL mlc_param_iter mlc_param_iter_make(mlc_module *m)
{
    mlc_param_iter it;
    memset(&it, 0, sizeof it);
    it.root = m && mlc_module_build(m) == MLC_OK ? m : NULL;
    return it;
}

MLC_IMPL bool mlc_param_next(mlc_param_iter *it)
{
    if (!it || !it->root) return false;
    mlc__nth n = { it->next, it };
    if (mlc__params(it->root, mlc__nth_param, &n)) return false;
    it->next++;
    return true;
}

/* Elements of parameters, buffers left out; bytes for the summary. */
typedef struct mlc__count { int64_t all, trainable, bytes; } mlc__count;

static bool mlc__count_param(void *user, mlc__param *p, const char *name)
{
    mlc__count *c = MLC__CAST(mlc__count *, user);
    const int64_t n = p->buffer ? 0 : mlc__numel(&p->t);
    (void)name;
    c->all += n;
    c->bytes += n * (int64_t)mlc__size(&p->t);
    if (mlc__trainable(p)) c->trainable += n;
    return true;
}

MLC_IMPL int64_t mlc_module_numel(mlc_module *m, bool trainable_only)
{
    mlc__count c = { 0, 0, 0 };
    if (m) mlc__params(m, mlc__count_param, &c);
    return trainable_only ? c.trainable : c.all;
}

/* -- free -- */

static void mlc__optims_forget(mlc_ctx *ctx, const mlc_module *m, const mlc__param *p);

/* Its place in the flat block stays unused until the next build; optimizers forget it now. */
static void mlc__param_drop(mlc__param *p)
{
    mlc_ctx *ctx = p->t.ctx;
    if (--p->holders > 0) return;
    mlc__optims_forget(ctx, NULL, p);
    mlc__tape_forget(ctx, &p->t);
    mlc__flat_leave(p);
    mlc__heap_free(ctx, p->name);
    mlc__heap_free(ctx, p);
}

/* Children first: a class's release may still look at its own module, not at what is below. */
static void mlc__module_free_below(mlc_module *m)
{
    mlc_ctx *ctx = m->ctx;
    for (int32_t i = 0; i < m->children; i++) mlc__module_free_below(m->child[i]);
    if (m->cls.release) m->cls.release(m);
    mlc__optims_forget(ctx, m, NULL);
    for (int32_t i = 0; i < m->slots; i++) {
        mlc__param_drop(m->slot[i].p);
        mlc__heap_free(ctx, m->slot[i].name);
    }
    mlc__flat_disown(m);
    if (m->prev) m->prev->next = m->next; else ctx->modules = m->next;
    if (m->next) m->next->prev = m->prev;
    mlc__heap_free(ctx, m->slot);
    mlc__heap_free(ctx, m->child);
    mlc__heap_free(ctx, m->name);
    mlc__heap_free(ctx, m->user);
    mlc__heap_free(ctx, m);
}

MLC_IMPL void mlc_module_free(mlc_module *m)
{
    if (!m) return;
    mlc_module *parent = m->parent;
    /* The others close up and keep their names. */
    for (int32_t i = 0, to = 0; parent && i < parent->children; i++)
        if (parent->child[i] != m) parent->child[to++] = parent->child[i];
    if (parent) { parent->children--; mlc__root(parent)->dirty = true; }
    mlc__module_free_below(m);
}

/* -- forward -- */

/* For mlc_summary: shapes are those of the last dry run. */
static void mlc__note_output(mlc_module *m, const mlc_tensor *t)
{
    if (!m->ctx->dry_run) return;
    m->out_ndim = t->ndim;
    memcpy(m->out_shape, t->shape, sizeof m->out_shape);
}

/* The memory of a tensor inside a forward is done with: freed now, or after its last use. */
static void mlc__storage_done(mlc_storage *s)
{
    if (s->saves == 0) mlc__storage_release(s);
    else s->dead = true;
}

/* The two fills of n_out with NULL and the check behind make a forward that forgets an output an
 * error and no wild pointer. */
MLC_IMPL mlc_status mlc_module_forward(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                       mlc_tensor **out, int32_t n_out)
{
    if (!m) return MLC_ERR_ARG;
    mlc_ctx *ctx = m->ctx;
    MLC__REQUIRE(ctx, in && out && n_in > 0 && n_out > 0, ARG,
                 "%s: forward needs inputs and outputs; there are %d and %d", m->cls.name, n_in,
                 n_out);
    for (int32_t i = 0; i < n_out; i++) out[i] = NULL;
    for (int32_t i = 0; i < n_in; i++)
        if (!in[i]) return mlc__fail(ctx, MLC_ERR_ARG, "%s: input %d is NULL; look at what "
                                      "should have made it", m->cls.name, i + 1);
    MLC__TRY(mlc_module_build(m));
    /* What this forward makes lies in front of `before` in the scope's list. */
    const int32_t depth = ctx->depth;
    mlc_storage *before = ctx->scopes[depth].storages;
    mlc_status st = m->cls.forward(m, in, n_in, out, n_out);
    for (int32_t i = 0; i < n_out && st == MLC_OK; i++) if (!out[i]) st = MLC_ERR_ARG;
    if (st != MLC_OK) return mlc__fail(ctx, st, "%s: forward failed", m->cls.name);
    for (mlc_storage *s = ctx->scopes[depth].storages; s && s != before; s = s->next) {
        bool returned = false;
        for (int32_t i = 0; i < n_out; i++) returned = returned || out[i]->storage == s;
        if (!returned && !s->dead && s->mem == MLC_MEM_ACTIVATION) mlc__storage_done(s);
    }
    mlc__note_output(m, out[0]);
    return MLC_OK;
}

MLC_IMPL mlc_tensor *mlc_forward(mlc_module *m, mlc_tensor *x)
{
    mlc_tensor *y = NULL;
    if (!m && x) mlc__fail(x->ctx, MLC_ERR_ARG, "forward: the module is NULL; look at what should "
                              "have made it");
    return mlc_module_forward(m, &x, 1, &y, 1) == MLC_OK ? y : NULL;
}

/* @@ IMPL.NN.LAYERS -------------------------------------- linear, activations, sequential
 * Each layer is a class with a forward that calls the operation of the same name. Sequential looks
 * one child ahead: a Linear followed by an activation becomes one product with an epilogue, which
 * changes speed and memory, not values. It knows both by their forward function, so a user's class
 * is never taken for one. */

/* b NULL: no bias. The tensors are stable: see mlc__param. */
typedef struct mlc__linear_user { mlc_tensor *w, *b; } mlc__linear_user;

/* Layers of one input and one output. */
static mlc_status mlc__single(mlc_module *m, int32_t n_in, int32_t n_out)
{
    MLC__REQUIRE(m->ctx, n_in == 1 && n_out == 1, ARG,
                 "%s: one input and one output, not %d and %d", m->cls.name, n_in, n_out);
    return MLC_OK;
}

/* Called with an activation by sequential, which thereby runs two modules at once. */
static mlc_tensor *mlc__linear_call(mlc_module *m, mlc_tensor *x, mlc_act act)
{
    const mlc__linear_user *u = MLC__CAST(const mlc__linear_user *, m->user);
    const mlc_epilogue epilogue = { act };
    return mlc_linear_ex(x, u->w, u->b, &epilogue);
}

static mlc_status mlc__linear_module(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                     mlc_tensor **out, int32_t n_out)
{
    MLC__TRY(mlc__single(m, n_in, n_out));
    out[0] = mlc__linear_call(m, in[0], MLC_ACT_NONE);
    return out[0] ? MLC_OK : m->ctx->status;
}

MLC_IMPL mlc_linear_desc mlc_linear_desc_make(int64_t in, int64_t out)
{
    mlc_linear_desc d;
    memset(&d, 0, sizeof d);
    d.in = in;
    d.out = out;
    return d;
}

/* A module that fails half way is freed here: the user sees NULL and the error. */
MLC_IMPL mlc_module *mlc_nn_linear_ex(mlc_ctx *ctx, const mlc_linear_desc *desc)
{
    static const mlc_module_class cls = { "Linear", mlc__linear_module, NULL };
    mlc_param_desc p;
    mlc_module *m;
    if (!ctx) return NULL;
    if (!desc || desc->in < 1 || desc->out < 1) {
        mlc__fail(ctx, MLC_ERR_ARG, "nn_linear: in is %lld and out %lld; both must be positive",
                  desc ? (long long)desc->in : 0, desc ? (long long)desc->out : 0);
        return NULL;
    }
    memset(&p, 0, sizeof p);
    p.shape = mlc_dims2(desc->out, desc->in);
    /* kaiming_uniform with a = sqrt 5, as torch.nn.Linear: a bound of 1/sqrt(in) for the weight,
     * and the same for the bias. */
    p.init = MLC_INIT_UNIFORM;
    p.b = 1.0 / sqrt((double)desc->in);
    p.a = -p.b;
    p.has_dtype = desc->has_dtype;
    p.dtype = desc->dtype;
    m = mlc_module_create(ctx, &cls, NULL, sizeof(mlc__linear_user));
    if (!m) return NULL;
    mlc__linear_user *u = MLC__CAST(mlc__linear_user *, m->user);
    u->w = mlc_module_declare(m, "weight", &p);
    p.shape = mlc_dims1(desc->out);
    if (u->w && !desc->no_bias) u->b = mlc_module_declare(m, "bias", &p);
    if (u->w && (u->b || desc->no_bias)) return m;
    mlc_module_free(m);
    return NULL;
}

MLC_IMPL mlc_module *mlc_nn_linear(mlc_ctx *ctx, int64_t in, int64_t out)
{
    const mlc_linear_desc d = mlc_linear_desc_make(in, out);
    return mlc_nn_linear_ex(ctx, &d);
}

/* Modules of one function without parameters; act is what sequential fuses. */
typedef struct mlc__act_user { mlc_act act; mlc_tensor *(*fn)(mlc_tensor *x); } mlc__act_user;

static mlc_status mlc__act_module(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                  mlc_tensor **out, int32_t n_out)
{
    MLC__TRY(mlc__single(m, n_in, n_out));
    out[0] = MLC__CAST(const mlc__act_user *, m->user)->fn(in[0]);
    return out[0] ? MLC_OK : m->ctx->status;
}

static mlc_module *mlc__act_make(mlc_ctx *ctx, const char *name, mlc_act act,
                                 mlc_tensor *(*fn)(mlc_tensor *))
{
    /* All share one forward: that is how sequential knows them. */
    const mlc_module_class cls = { name, mlc__act_module, NULL };
    const mlc__act_user user = { act, fn };
    return mlc_module_create(ctx, &cls, &user, sizeof user);
}

MLC_IMPL mlc_module *mlc_nn_relu(mlc_ctx *ctx)
{
    return mlc__act_make(ctx, "ReLU", MLC_ACT_RELU, mlc_relu);
}
MLC_IMPL mlc_module *mlc_nn_gelu(mlc_ctx *ctx)
{
    return mlc__act_make(ctx, "GELU", MLC_ACT_GELU, mlc_gelu);
}
MLC_IMPL mlc_module *mlc_nn_tanh(mlc_ctx *ctx)
{
    return mlc__act_make(ctx, "Tanh", MLC_ACT_TANH, mlc_tanh);
}
MLC_IMPL mlc_module *mlc_nn_sigmoid(mlc_ctx *ctx)
{
    return mlc__act_make(ctx, "Sigmoid", MLC_ACT_SIGMOID, mlc_sigmoid);
}
MLC_IMPL mlc_module *mlc_nn_silu(mlc_ctx *ctx)
{
    return mlc__act_make(ctx, "SiLU", MLC_ACT_SILU, mlc_silu);
}

static mlc_status mlc__dropout_module(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                      mlc_tensor **out, int32_t n_out)
{
    const double p = *MLC__CAST(const double *, m->user);
    MLC__TRY(mlc__single(m, n_in, n_out));
    /* In evaluation the input itself is the output, and no random number is drawn. */
    out[0] = m->training && p > 0.0 ? mlc_dropout(in[0], p) : in[0];
    return out[0] ? MLC_OK : m->ctx->status;
}

MLC_IMPL mlc_module *mlc_nn_dropout(mlc_ctx *ctx, double p)
{
    static const mlc_module_class cls = { "Dropout", mlc__dropout_module, NULL };
    if (ctx && !(p >= 0.0 && p <= 1.0)) {
        mlc__fail(ctx, MLC_ERR_ARG, "nn_dropout: p is %s, not in [0, 1]", mlc__real(p).s);
        return NULL;
    }
    return mlc_module_create(ctx, &cls, &p, sizeof p);
}

/* [n] becomes [n,1]: the first axis is the batch, whatever else there is. */
static mlc_status mlc__flatten_module(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                      mlc_tensor **out, int32_t n_out)
{
    MLC__TRY(mlc__single(m, n_in, n_out));
    MLC__REQUIRE(m->ctx, in[0]->ndim > 0, SHAPE, "Flatten: the input is a scalar, []; it must "
                 "have a batch axis");
    out[0] = in[0]->ndim == 1 ? mlc_reshape(in[0], mlc_dims2(in[0]->shape[0], 1))
                              : mlc_flatten(in[0], 1);
    return out[0] ? MLC_OK : m->ctx->status;
}

MLC_IMPL mlc_module *mlc_nn_flatten(mlc_ctx *ctx)
{
    static const mlc_module_class cls = { "Flatten", mlc__flatten_module, NULL };
    return mlc_module_create(ctx, &cls, NULL, 0);
}

/* Runs child i of m on x, with the activation behind it where there is one; *i moves on. */
static mlc_tensor *mlc__sequential_step(mlc_module *m, int32_t *i, mlc_tensor *x)
{
    mlc_module *child = m->child[*i], *next = mlc_module_child(m, *i + 1);
    mlc_tensor *y;
    if (child->cls.forward != mlc__linear_module || !next || next->cls.forward != mlc__act_module)
        return mlc_forward(child, x);
    y = mlc__linear_call(child, x, MLC__CAST(const mlc__act_user *, next->user)->act);
    if (!y) return NULL;
    mlc__note_output(child, y);
    mlc__note_output(next, y);
    ++*i;
    return y;
}

static mlc_status mlc__sequential_module(mlc_module *m, mlc_tensor *const *in, int32_t n_in,
                                         mlc_tensor **out, int32_t n_out)
{
    const uint64_t before = m->ctx->storages;
    mlc_tensor *x = in[0];
    MLC__TRY(mlc__single(m, n_in, n_out));
    for (int32_t i = 0; i < m->children; i++) {
        mlc_tensor *y = mlc__sequential_step(m, &i, x);
        if (!y) return m->ctx->status;
        /* The input of a step is done with once its output is there: without a tape two layers are
         * alive at a time. What is older than this call, or lives on in a view, is not ours to
         * free. */
        if (x->storage->seq > before && x->storage != y->storage) mlc__storage_done(x->storage);
        x = y;
    }
    out[0] = x;
    return MLC_OK;
}

MLC_IMPL mlc_module *mlc_nn_sequential(mlc_ctx *ctx)
{
    static const mlc_module_class cls = { "Sequential", mlc__sequential_module, NULL };
    return mlc_module_create(ctx, &cls, NULL, 0);
}

/* @@ IMPL.NN.SUMMARY ------------------------------------- the table of layers
 * Shapes come from a dry run: forward runs with every allocation counted and none made, no kernel
 * called, the stream and the peaks set back afterwards. What is then in use is what a training step
 * keeps for backward, its input included. */

/* Where the lines go. */
typedef struct mlc__table { mlc_writer write; void *user; } mlc__table;

static void mlc__print(const mlc__table *t, const char *format, ...) MLC_PRINTF(2, 3);
static void mlc__print(const mlc__table *t, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    t->write(t->user, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

/* 1234567 -> "1,234,567", whatever the locale. */
static mlc__text mlc__thousands(int64_t n)
{
    char digits[32];
    mlc__text t;
    size_t at = 0;
    const int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) t.s[at++] = ',';
        t.s[at++] = digits[i];
    }
    t.s[at] = 0;
    return t;
}

/* 2048 -> "2.00 KB" */
static mlc__text mlc__bytes_text(int64_t bytes)
{
    static const char *const unit[] = { "B", "KB", "MB", "GB", "TB" };
    mlc__text t;
    int u = 0;
    int64_t whole = bytes, part = 0;
    for (; whole >= 1024 && u < 4; u++) { part = whole % 1024; whole /= 1024; }
    if (u == 0) snprintf(t.s, sizeof t.s, "%lld B", (long long)whole);
    else
        snprintf(t.s, sizeof t.s, "%lld.%02d %s", (long long)whole, (int)(part * 100 / 1024),
                 unit[u]);
    return t;
}

/* Leaves, and containers with parameters of their own; path is dotted, as in files. */
static void mlc__summary_rows(const mlc__table *t, mlc_module *m, const char *path)
{
    char label[MLC_NAME_BYTES];
    int64_t own = 0;
    for (int32_t i = 0; i < m->slots; i++)
        if (!m->slot[i].p->buffer) own += mlc__numel(&m->slot[i].p->t);
    if (m->children == 0 || own > 0) {
        snprintf(label, sizeof label, "%.200s%s(%.40s)", path, path[0] ? " " : "", m->cls.name);
        mlc__print(t, "%-34s %-22s %12s\n", label,
                   m->out_ndim < 0 ? "?" : mlc__shape_text(m->out_ndim, m->out_shape).s,
                   mlc__thousands(own).s);
    }
    for (int32_t i = 0; i < m->children; i++) {
        snprintf(label, sizeof label, "%.180s%s%.60s", path, path[0] ? "." : "", m->child[i]->name);
        mlc__summary_rows(t, m->child[i], label);
    }
}

/* -1: shown as ?, for modules that the dry run does not come by. */
static void mlc__forget_outputs(mlc_module *m)
{
    m->out_ndim = -1;
    for (int32_t i = 0; i < m->children; i++) mlc__forget_outputs(m->child[i]);
}

/* Runs forward without computing; the bytes that a training step would keep for backward. */
static mlc_status mlc__dry_forward(mlc_module *m, mlc_dims input, int64_t *activations)
{
    mlc_ctx *ctx = m->ctx;
    const mlc_memory before = ctx->mem;
    const uint64_t stream = ctx->stream;
    MLC__TRY(mlc_scope_begin(ctx));
    ctx->dry_run = true;
    mlc__forget_outputs(m);
    mlc_tensor *x = mlc_zeros(ctx, ctx->dtype, input);
    mlc_forward(m, x);
    *activations = ctx->mem.now[MLC_MEM_ACTIVATION] - before.now[MLC_MEM_ACTIVATION];
    const mlc_status st = mlc__scope_leave(ctx);
    ctx->dry_run = false;
    ctx->stream = stream;
    ctx->mem.peak = before.peak;
    memcpy(ctx->mem.top, before.top, sizeof before.top);
    return st;
}

MLC_IMPL mlc_status mlc_summary(mlc_module *m, mlc_dims input, mlc_writer write, void *user)
{
    const mlc__table t = { write, user };
    mlc__count count = { 0, 0, 0 };
    int64_t activations = 0;
    if (!m) return MLC_ERR_ARG;
    MLC__REQUIRE(m->ctx, write != NULL, ARG, "summary: it needs a writer, such as mlc_stdout");
    MLC__TRY(mlc_module_build(m));
    MLC__TRY(mlc__dry_forward(m, input, &activations));
    mlc__params(m, mlc__count_param, &count);
    mlc__print(&t, "%-34s %-22s %12s\n", "Layer (type)", "Output Shape", "Param #");
    mlc__print(&t, "======================================================================\n");
    mlc__summary_rows(&t, m, "");
    mlc__print(&t, "======================================================================\n");
    mlc__print(&t, "Total params: %s (%s)\n", mlc__thousands(count.all).s,
               mlc__bytes_text(count.bytes).s);
    mlc__print(&t, "Trainable params: %s\n", mlc__thousands(count.trainable).s);
    mlc__print(&t, "Non-trainable params: %s\n", mlc__thousands(count.all - count.trainable).s);
    mlc__print(&t, "Activations of a training step: %s\n", mlc__bytes_text(activations).s);
    return MLC_OK;
}

/* @@ IMPL.OPTIM ------------------------------------------ SGD, Adam, AdamW over flat buffers
 * An optimizer holds an entry for each parameter that has a gradient in the root's layout, in the
 * order of the layout, with moments placed alike. A step walks the entries and joins neighbours
 * into runs: same group, same number of steps, same dtype, all due, values and gradients and state
 * apart by the same bytes. A run is one kernel call, so a network without groups or frozen layers
 * is one call. Settings of all runs go to the device in one copy before the first. Layouts are
 * compared by number at each step: after surgery entries are made again and state moves by
 * parameter. */

#define MLC__GROUPS 16                 /* group 0: what no glob matches */

/* steps: of this parameter, for its bias correction: one that was frozen for a while lags behind,
 * as in PyTorch. */
typedef struct mlc__entry {            /* a trained parameter */
    mlc__param *p;                     /* NULL: freed */
    int64_t     state;                 /* byte offset in m and v */
    int64_t     steps;
    int32_t     group;
} mlc__entry;

struct mlc_optim {
    mlc_ctx    *ctx;
    mlc_module *module;                /* NULL: freed */
    mlc_optim  *prev, *next;
    mlc_rule    rule;
    bool        decoupled, nesterov, has_m, has_v;
    double      lr, momentum, dampening, weight_decay, beta1, beta2, eps;
    struct { char *glob; double lr_scale, weight_decay; } group[MLC__GROUPS];
    int32_t     groups;
    int64_t     steps, layout;         /* layout: of the flat that the entries follow */
    mlc__entry *entry;
    int64_t     entries;
    void       *moments, *m, *v;       /* device; moments: the memory that m and v lie in */
    struct mlc_optim_step *step, *step_dev;      /* one a run, at most one an entry */
};

/* Called where a module or a parameter is freed; either may be NULL. The optimizer lives on without
 * them. */
static void mlc__optims_forget(mlc_ctx *ctx, const mlc_module *m, const mlc__param *p)
{
    for (mlc_optim *o = ctx->optims; o; o = o->next) {
        if (m && o->module == m) o->module = NULL;
        for (int64_t i = 0; p && i < o->entries; i++) if (o->entry[i].p == p) o->entry[i].p = NULL;
    }
}

/* entry NULL: a first walk that only counts. */
typedef struct mlc__optim_build {
    mlc_optim *o;
    mlc__entry *entry;
    int64_t n;
    size_t bytes;
} mlc__optim_build;

/* The last group that matches wins, so later groups refine earlier ones. */
static bool mlc__optim_place(void *user, mlc__param *p, const char *name)
{
    mlc__optim_build *b = MLC__CAST(mlc__optim_build *, user);
    if (p->grad_offset < 0) return true;
    if (b->entry) {
        mlc__entry *e = &b->entry[b->n];
        e->p = p;
        e->state = (int64_t)b->bytes;
        for (int32_t g = 1; g < b->o->groups; g++)
            if (mlc__glob(b->o->group[g].glob, name)) e->group = g;
    }
    b->n++;
    b->bytes += mlc__param_bytes(p);
    return true;
}

/* State of parameters that stay moves to its new place. */
static mlc_status mlc__optim_move(mlc_optim *o, mlc__optim_build *b, void *to, const void *from)
{
    if (!to) return MLC_OK;
    MLC__TRY(mlc__zero(o->ctx, "optimizer", to, b->bytes));
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t k = 0; k < o->entries && from; k++) {
            if (o->entry[k].p != b->entry[i].p) continue;
            MLC__TRY(mlc__device_copy(o->ctx, MLC__CAST(char *, to) + b->entry[i].state,
                                      MLC__CAST(const char *, from) + o->entry[k].state,
                                      (size_t)mlc__numel(&b->entry[i].p->t) *
                                          mlc__size(&b->entry[i].p->t),
                                      MLC_COPY_ON_DEVICE));
        }
    return MLC_OK;
}

/* On the host step_dev is step itself. */
static void mlc__optim_free_state(mlc_optim *o)
{
    mlc__heap_data_free(o->ctx, o->moments, MLC_MEM_OPTIM);
    if (o->step_dev != o->step) mlc__heap_data_free(o->ctx, o->step_dev, MLC_MEM_OPTIM);
    mlc__heap_free(o->ctx, o->step);
    mlc__heap_free(o->ctx, o->entry);
}

/* Large blocks begin at equal offsets in their pages, and may lie 128 MB apart: then the four
 * arrays of a pass meet in one bank of the memory, which halves its speed. m and v are moved on by
 * some lines, also within a page: see IMPL.KERNELS.OPTIM. */
static mlc_status mlc__optim_moments(mlc_optim *o, size_t bytes)
{
    const size_t apart = bytes < 65536 ? 0 : 5120, arrays = (size_t)o->has_m + (size_t)o->has_v;
    const size_t pitch = mlc__round_up(bytes, apart ? 4096 : MLC__CACHELINE) + apart;
    if (!arrays) return MLC_OK;
    o->moments = mlc__heap_data(o->ctx, apart + arrays * pitch, MLC_MEM_OPTIM, "optimizer");
    if (!o->moments) return MLC_ERR_NOMEM;
    char *first = MLC__CAST(char *, o->moments) + apart;
    if (o->has_m) o->m = first;
    if (o->has_v) o->v = first + (o->has_m ? pitch : 0);
    return MLC_OK;
}

/* Fills n (a copy of o) with entries and state that follow the module's present layout. */
static mlc_status mlc__optim_build_into(mlc_optim *o, mlc_optim *n)
{
    mlc_ctx *ctx = o->ctx;
    mlc__optim_build b = { o, NULL, 0, 0 };
    mlc__params(o->module, mlc__optim_place, &b);
    n->entry = MLC__CAST(mlc__entry *, mlc__heap_alloc(ctx, (size_t)b.n * sizeof *n->entry,
                                                       MLC_MEM_OBJECT, "optimizer"));
    if (!n->entry) return MLC_ERR_NOMEM;
    b.entry = n->entry;
    b.n = 0;
    b.bytes = 0;
    mlc__params(o->module, mlc__optim_place, &b);
    n->entries = b.n;
    const size_t step_bytes = (size_t)b.n * sizeof *n->step;
    n->step = MLC__CAST(struct mlc_optim_step *,
                        mlc__heap_alloc(ctx, step_bytes, MLC_MEM_OBJECT, "optimizer"));
    if (!n->step) return MLC_ERR_NOMEM;
    n->step_dev = ctx->on_host ? n->step : MLC__CAST(struct mlc_optim_step *,
                  mlc__heap_data(ctx, step_bytes, MLC_MEM_OPTIM, "optimizer"));
    if (!n->step_dev) return MLC_ERR_NOMEM;
    MLC__TRY(mlc__optim_moments(n, b.bytes));
    for (int64_t i = 0; i < b.n; i++)
        for (int64_t k = 0; k < o->entries; k++)
            if (o->entry[k].p == b.entry[i].p) b.entry[i].steps = o->entry[k].steps;
    MLC__TRY(mlc__optim_move(o, &b, n->m, o->m));
    return mlc__optim_move(o, &b, n->v, o->v);
}

/* Brings entries and state in line with the module's layout and the groups. */
static mlc_status mlc__optim_layout(mlc_optim *o)
{
    MLC__REQUIRE(o->ctx, o->module != NULL, STATE, "optim_step: the optimizer's module was freed; "
                 "free the optimizer before it");
    MLC__TRY(mlc_module_build(o->module));
    const mlc__flat *flat = mlc__root(o->module)->flat;
    if (o->layout == flat->layout) return MLC_OK;
    mlc_optim n = *o;
    n.entry = NULL;
    n.moments = n.m = n.v = NULL;
    n.step = n.step_dev = NULL;
    const mlc_status st = mlc__optim_build_into(o, &n);
    if (st != MLC_OK) { mlc__optim_free_state(&n); return st; }
    n.layout = flat->layout;
    mlc__optim_free_state(o);
    *o = n;
    return mlc__flat_grads(mlc__root(o->module)->flat);
}

MLC_IMPL void mlc_optim_free(mlc_optim *o)
{
    if (!o) return;
    if (o->prev) o->prev->next = o->next; else o->ctx->optims = o->next;
    if (o->next) o->next->prev = o->prev;
    mlc__optim_free_state(o);
    for (int32_t g = 1; g < o->groups; g++) mlc__heap_free(o->ctx, o->group[g].glob);
    mlc__heap_free(o->ctx, o);
}

/* Takes over a filled-in draft. */
static mlc_optim *mlc__optim_make(mlc_module *m, const mlc_optim *draft)
{
    mlc_optim *o;
    if (!m) return NULL;
    o = MLC__CAST(mlc_optim *, mlc__heap_alloc(m->ctx, sizeof *o, MLC_MEM_OBJECT, "optimizer"));
    if (!o) return NULL;
    *o = *draft;
    o->ctx = m->ctx;
    o->module = m;
    o->groups = 1;
    o->group[0].lr_scale = 1.0;
    o->group[0].weight_decay = o->weight_decay;
    o->next = m->ctx->optims;
    if (o->next) o->next->prev = o;
    m->ctx->optims = o;
    if (mlc__optim_layout(o) == MLC_OK) return o;
    mlc_optim_free(o);
    return NULL;
}

/* In descs 0 is the default, and a negative value says 0. */
static double mlc__default(double value, double normal)
{
    return value == 0.0 ? normal : value < 0.0 ? 0.0 : value;
}

/* lr apart from d: mlc_sgd takes 0 as 0, mlc_sgd_ex as the default. */
static mlc_optim *mlc__sgd_make(mlc_module *m, const mlc_sgd_desc *d, double lr)
{
    mlc_optim draft;
    if (!m) return NULL;
    const bool fine = lr >= 0.0 && d->momentum >= 0.0 && d->weight_decay >= 0.0 &&
                      d->dampening >= 0.0 && lr < MLC__INF && d->momentum < MLC__INF &&
                      d->weight_decay < MLC__INF;
    if (!fine || (d->nesterov && (d->momentum == 0.0 || d->dampening != 0.0))) {
        mlc__fail(m->ctx, MLC_ERR_ARG,
                  "sgd: lr %s, momentum %s, dampening %s, weight decay %s: none may be "
                  "negative, and nesterov needs momentum without dampening",
                  mlc__real(lr).s, mlc__real(d->momentum).s, mlc__real(d->dampening).s,
                  mlc__real(d->weight_decay).s);
        return NULL;
    }
    memset(&draft, 0, sizeof draft);
    draft.rule = MLC_RULE_SGD;
    draft.lr = lr;
    draft.momentum = d->momentum;
    draft.dampening = d->dampening;
    draft.weight_decay = d->weight_decay;
    draft.nesterov = d->nesterov;
    draft.has_m = d->momentum != 0.0;
    return mlc__optim_make(m, &draft);
}

MLC_IMPL mlc_optim *mlc_sgd(mlc_module *m, double lr)
{
    mlc_sgd_desc d;
    memset(&d, 0, sizeof d);
    return mlc__sgd_make(m, &d, lr);
}

MLC_IMPL mlc_optim *mlc_sgd_ex(mlc_module *m, const mlc_sgd_desc *desc)
{
    mlc_sgd_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    return mlc__sgd_make(m, &d, d.lr == 0.0 ? 1e-3 : d.lr);
}

/* The conditions are written so that NaN fails them. */
static mlc_optim *mlc__adam_make(mlc_module *m, const char *what, const mlc_adam_desc *desc,
                                 double lr, bool decoupled)
{
    mlc_adam_desc d;
    mlc_optim draft;
    if (!m) return NULL;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    memset(&draft, 0, sizeof draft);
    draft.rule = MLC_RULE_ADAM;
    draft.decoupled = decoupled;
    draft.has_m = draft.has_v = true;
    draft.lr = lr;
    draft.beta1 = mlc__default(d.beta1, 0.9);
    draft.beta2 = mlc__default(d.beta2, 0.999);
    draft.eps = mlc__default(d.eps, 1e-8);
    draft.weight_decay = mlc__default(d.weight_decay, decoupled ? 0.01 : 0.0);
    if (!(draft.lr >= 0.0 && draft.lr < MLC__INF && draft.beta1 < 1.0 && draft.beta2 < 1.0 &&
          draft.eps < MLC__INF && draft.weight_decay < MLC__INF)) {
        mlc__fail(m->ctx, MLC_ERR_ARG,
                  "%s: lr %s, betas %s and %s: lr must not be negative, betas must be below 1",
                  what, mlc__real(draft.lr).s, mlc__real(draft.beta1).s,
                  mlc__real(draft.beta2).s);
        return NULL;
    }
    return mlc__optim_make(m, &draft);
}

/* The rate of a desc: 0 is the default, a negative one really 0. */
static double mlc__adam_lr(const mlc_adam_desc *d) { return mlc__default(d ? d->lr : 0.0, 1e-3); }

MLC_IMPL mlc_optim *mlc_adam(mlc_module *m, double lr)
{
    return mlc__adam_make(m, "adam", NULL, lr, false);
}
MLC_IMPL mlc_optim *mlc_adam_ex(mlc_module *m, const mlc_adam_desc *desc)
{
    return mlc__adam_make(m, "adam", desc, mlc__adam_lr(desc), false);
}
MLC_IMPL mlc_optim *mlc_adamw(mlc_module *m, double lr)
{
    return mlc__adam_make(m, "adamw", NULL, lr, true);
}
MLC_IMPL mlc_optim *mlc_adamw_ex(mlc_module *m, const mlc_adam_desc *desc)
{
    return mlc__adam_make(m, "adamw", desc, mlc__adam_lr(desc), true);
}

/* Entries are made again with the new group; the state moves along. */
MLC_IMPL mlc_status mlc_optim_group(mlc_optim *o, const char *glob, const mlc_group_desc *desc)
{
    int64_t hits = 0;
    if (!o) return MLC_ERR_ARG;
    MLC__REQUIRE(o->ctx, glob && desc, ARG, "optim_group: glob or desc is NULL; it takes both");
    MLC__REQUIRE(o->ctx, o->groups < MLC__GROUPS, ARG, "optim_group: there are %d groups, the most"
                 "; match more with one glob", MLC__GROUPS - 1);
    MLC__TRY(mlc__optim_layout(o));
    char *copy = mlc__heap_text(o->ctx, glob);
    if (!copy) return MLC_ERR_NOMEM;
    const int32_t g = o->groups++;
    o->group[g].glob = copy;
    o->group[g].lr_scale = mlc__default(desc->lr_scale, 1.0);
    o->group[g].weight_decay = mlc__default(desc->weight_decay, o->weight_decay);
    o->layout = 0;                     /* entries find their group anew */
    const mlc_status st = mlc__optim_layout(o);
    for (int64_t i = 0; i < o->entries; i++) hits += o->entry[i].group == g;
    if (st == MLC_OK && hits) return MLC_OK;
    o->groups--;
    mlc__heap_free(o->ctx, copy);
    if (st != MLC_OK) return st;
    return mlc__fail(o->ctx, MLC_ERR_ARG, "optim_group: no trained parameter matches '%s'; "
                     "mlc_param_next walks through all names", glob);
}

MLC_IMPL mlc_status mlc_optim_set_lr(mlc_optim *o, double lr)
{
    if (!o) return MLC_ERR_ARG;
    MLC__REQUIRE(o->ctx, lr >= 0.0 && lr < MLC__INF, ARG,
                 "optim_set_lr: lr is %s; it must be finite and not negative",
                 mlc__real(lr).s);
    o->lr = lr;
    return MLC_OK;
}

MLC_IMPL double mlc_optim_lr(const mlc_optim *o) { return o ? o->lr : 0.0; }
MLC_IMPL int64_t mlc_optim_steps(const mlc_optim *o) { return o ? o->steps : 0; }

static bool mlc__zero_param(void *user, mlc__param *p, const char *name)
{
    (void)user; (void)name;
    p->t.grad_fresh = 0;
    p->half = false;
    return true;
}

/* Also what ends the STATE error after a failed backward: the user has decided to go on. */
MLC_IMPL void mlc_optim_zero_grad(mlc_optim *o)
{
    if (o && o->module) mlc__params(o->module, mlc__zero_param, NULL);
}

/* Trained now, and reached by a backward since the last step. */
static bool mlc__entry_due(const mlc__entry *e)
{
    return e->p && e->p->t.grad && e->p->t.grad_fresh && mlc__trainable(e->p);
}

/* Do b's memory and settings continue a's? Padding lies between and is zero. A large b is a loop of
 * its own: dealt like the products that it is part of, its parts meet the same cores again. */
static bool mlc__entry_joins(const mlc__entry *a, const mlc__entry *b)
{
    if (mlc__numel(&b->p->t) >= 2 * MLC__GRAIN) return false;
    const int64_t bytes = b->state - a->state;
    return a->group == b->group && a->steps == b->steps && a->p->t.dtype == b->p->t.dtype &&
           b->p->grad_offset - a->p->grad_offset == bytes &&
           MLC__CAST(char *, b->p->value_storage.data) -
                   MLC__CAST(char *, a->p->value_storage.data) ==
               bytes;
}

/* In f64 on the host: 1 - beta^t loses its digits in f32 in the first steps, and a device need not
 * have pow. */
static void mlc__optim_settings(const mlc_optim *o, const mlc__entry *e, struct mlc_optim_step *s)
{
    const double t = (double)(e->steps + 1);
    s->lr = o->lr * o->group[e->group].lr_scale;
    s->weight_decay = o->group[e->group].weight_decay;
    s->bias1 = o->rule == MLC_RULE_ADAM ? 1.0 - pow(o->beta1, t) : 1.0;
    s->bias2 = o->rule == MLC_RULE_ADAM ? 1.0 - pow(o->beta2, t) : 1.0;
    s->grad_scale = 1.0;
    s->first = e->steps == 0;
    s->skip = 0;
}

/* From the first element of the first entry to the last of the last, padding included. */
static mlc_status mlc__optim_run_entries(mlc_optim *o, int64_t from, int64_t to, int64_t run)
{
    const mlc__entry *e = &o->entry[from], *last = &o->entry[to - 1];
    const int64_t bytes =
        last->state - e->state + mlc__numel(&last->p->t) * (int64_t)mlc__size(&last->p->t);
    struct mlc_k_optim a;
    a.rule = o->rule;
    a.dtype = e->p->t.dtype;
    a.decoupled = o->decoupled;
    a.nesterov = o->nesterov;
    a.n = bytes / (int64_t)mlc__size(&e->p->t);
    a.p = e->p->value_storage.data;
    a.g = e->p->grad_storage.data;
    a.m = o->m ? MLC__CAST(char *, o->m) + e->state : NULL;
    a.v = o->v ? MLC__CAST(char *, o->v) + e->state : NULL;
    a.step = o->step_dev + run;
    a.momentum = o->momentum;
    a.dampening = o->dampening;
    a.beta1 = o->beta1;
    a.beta2 = o->beta2;
    a.eps = o->eps;
    return a.n ? mlc__run_optim(o->ctx, "optim_step", &a) : MLC_OK;
}

/* The runs of entries to update: calls the kernel for each, or only notes their settings. */
static mlc_status mlc__optim_runs(mlc_optim *o, bool note, int64_t *runs)
{
    *runs = 0;
    for (int64_t i = 0; i < o->entries;) {
        if (!mlc__entry_due(&o->entry[i])) { i++; continue; }
        int64_t end = i + 1;
        while (end < o->entries && mlc__entry_due(&o->entry[end]) &&
               mlc__entry_joins(&o->entry[end - 1], &o->entry[end])) end++;
        if (note) mlc__optim_settings(o, &o->entry[i], &o->step[*runs]);
        else MLC__TRY(mlc__optim_run_entries(o, i, end, *runs));
        ++*runs;
        i = end;
    }
    return MLC_OK;
}

/* Two walks that find the same runs: settings, then kernels. Only then are gradients stale, as due
 * depends on it. */
static mlc_status mlc__optim_update(mlc_optim *o)
{
    int64_t runs;
    MLC__TRY(mlc__optim_runs(o, true, &runs));
    if (o->step_dev != o->step)
        MLC__TRY(mlc__device_copy(o->ctx, o->step_dev, o->step, (size_t)runs * sizeof *o->step,
                                  MLC_COPY_TO_DEVICE));
    MLC__TRY(mlc__optim_runs(o, false, &runs));
    for (int64_t i = 0; i < o->entries; i++) {
        mlc__entry *e = &o->entry[i];
        if (!e->p) continue;
        if (mlc__entry_due(e)) { e->steps++; e->p->value_storage.version++; }
        e->p->t.grad_fresh = 0;
    }
    o->steps++;
    return MLC_OK;
}

/* A parameter without a fresh gradient is left alone, decay and moments included, as in PyTorch
 * where grad is None. */
MLC_IMPL mlc_status mlc_optim_step(mlc_optim *o)
{
    if (!o) return MLC_ERR_ARG;
    if (o->ctx->status != MLC_OK) return o->ctx->status;
    /* A bad label that a device has not reported yet must not reach the weights. */
    MLC__TRY(mlc__error_word_read(o->ctx));
    MLC__TRY(mlc__optim_layout(o));
    for (int64_t i = 0; i < o->entries; i++)
        MLC__REQUIRE(
            o->ctx, !o->entry[i].p || !o->entry[i].p->half, STATE,
            "optim_step: the gradient of '%s' is incomplete: a backward failed or a rebuild came "
            "between; call mlc_optim_zero_grad",
            o->entry[i].p->name);
    const uint32_t mode = mlc__flush_begin();
    const mlc_status st = mlc__optim_update(o);
    mlc__flush_end(mode);
    return st;
}

/* @@ IMPL.IO.FILE ---------------------------------------- whole reads, atomic writes
 * POSIX calls rather than stdio: a size before the first read, fsync, and no buffer between large
 * blocks and the disk. EINTR is never an error. A save writes path.mlcN.tmp in the same folder,
 * syncs it, renames it over path (atomic within a file system) and syncs the folder: after a crash
 * there is the old file or the new one, never half of one. What a killed save leaves behind goes
 * away with the next save to the same path: a lock tells it from a file that is being written. */

#if MLC__FILES
typedef struct mlc__file {
    mlc_ctx    *ctx;
    const char *path;                  /* as the user gave it                                   */
    int         fd;
    int64_t     size, at;              /* size: when reading; at: where the file stands         */
} mlc__file;

/* errno is saved first: building the message may change it. */
static mlc_status mlc__io_fail(const mlc__file *f, const char *verb)
{
    const int e = errno;
    return mlc__fail(f->ctx, MLC_ERR_IO, "%s '%s': %s", verb, f->path, strerror(e));
}

static mlc_status mlc__io_fail_at(const mlc__file *f, const char *verb)
{
    const int e = errno;
    return mlc__fail(f->ctx, MLC_ERR_IO, "%s '%s' at byte %lld: %s", verb, f->path,
                     (long long)f->at, strerror(e));
}

static int mlc__open(const char *path, int flags)
{
    int fd;
    /* 0666 leaves the rights to the umask. */
    do fd = open(path, flags | O_CLOEXEC, 0666); while (fd < 0 && errno == EINTR);
    return fd;
}

/* Regular files only: a FIFO or a device has no size to check headers against. */
static mlc_status mlc__file_open(mlc__file *f, mlc_ctx *ctx, const char *path)
{
    struct stat info;
    MLC__REQUIRE(ctx, !ctx->dry_run, STATE, "'%s': no files while mlc_summary runs forward", path);
    f->ctx = ctx;
    f->path = path;
    f->size = f->at = 0;
    f->fd = mlc__open(path, O_RDONLY | O_NONBLOCK);
    if (f->fd < 0) return mlc__io_fail(f, "cannot open");
    if (fstat(f->fd, &info) != 0) {
        mlc__io_fail(f, "cannot read");
        close(f->fd);
        return MLC_ERR_IO;
    }
    if (S_ISREG(info.st_mode)) { f->size = (int64_t)info.st_size; return MLC_OK; }
    close(f->fd);
    return mlc__fail(ctx, MLC_ERR_IO, "cannot read '%s': it is not a regular file", path);
}

static mlc_status mlc__file_read(mlc__file *f, void *to, size_t bytes)
{
    char *at = MLC__CAST(char *, to);
    while (bytes) {
        /* Linux moves at most 2 GB a call, other systems refuse more than INT_MAX. */
        const ssize_t n = read(f->fd, at, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return mlc__io_fail_at(f, "cannot read");
        if (n == 0)
            return mlc__fail(f->ctx, MLC_ERR_IO, "'%s' ended at byte %lld, %zu bytes early",
                             f->path, (long long)f->at, bytes);
        at += n;
        f->at += n;
        bytes -= (size_t)n;
    }
    return MLC_OK;
}

static mlc_status mlc__file_write(mlc__file *f, const void *from, size_t bytes)
{
    const char *at = MLC__CAST(const char *, from);
    while (bytes) {
        const ssize_t n = write(f->fd, at, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;    /* nothing was taken, and no reason given */
        if (n <= 0) return mlc__io_fail_at(f, "cannot write");
        at += n;
        f->at += n;
        bytes -= (size_t)n;
    }
    return MLC_OK;
}

static void mlc__file_close(mlc__file *f) { close(f->fd); }

/* What begins as gzip does cannot be read here. */
static mlc_status mlc__file_plain(const mlc__file *f, const void *begin, size_t n)
{
    MLC__REQUIRE(f->ctx, n < 2 || memcmp(begin, "\x1F\x8B", 2) != 0, IO,
                 "'%s': looks like gzip (1F 8B); gunzip it first", f->path);
    return MLC_OK;
}

/* Reading on where the file stands asks nobody. */
static mlc_status mlc__file_seek(mlc__file *f, int64_t at)
{
    if (at == f->at) return MLC_OK;
    if (lseek(f->fd, (off_t)at, SEEK_SET) != (off_t)at) return mlc__io_fail_at(f, "cannot read");
    f->at = at;
    return MLC_OK;
}

/* The whole file, private: writing to it changes pages of this process, for which no memory is put
 * aside. NULL where it cannot be. */
#if MLC__POSIX
static void *mlc__file_map(mlc__file *f)
{
    void *map = mmap(NULL, (size_t)f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                     f->fd, 0);
    if (map == MAP_FAILED) return NULL;
    return map;
}

static void mlc__file_unmap(mlc__file *f, void *map) { if (map) munmap(map, (size_t)f->size); }
#else
static void *mlc__file_map(mlc__file *f) { (void)f; return NULL; }
static void mlc__file_unmap(mlc__file *f, void *map) { (void)f; (void)map; }
#endif

/* A file that replaces another only when it is complete and on the disk. */
typedef struct mlc__atomic {
    mlc__file file;
    char     *temp;
    int       lock;                    /* keeps the lock when file is closed; -1: there is none */
} mlc__atomic;

/* Locks belong to what was opened, so that they also tell two contexts of one process apart, and
 * end with the last descriptor, also by SIGKILL. */
#if MLC__POSIX
/* Has somebody taken the name off the file that fd is? */
static bool mlc__name_is_lost(int fd, const char *path)
{
    struct stat a, b;
    if (fstat(fd, &a) != 0) return false;
    if (stat(path, &b) != 0) return errno == ENOENT;
    return a.st_ino != b.st_ino;       /* both in one folder */
}

/* Only who holds the lock takes a name away, so that it is not another's by then. */
static void mlc__temp_remove(const char *temp)
{
    const int fd = mlc__open(temp, O_WRONLY | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && !mlc__name_is_lost(fd, temp)) unlink(temp);
    close(fd);
}

/* False if the file was taken for a dead save's before it had its lock. Where there are no locks
 * nobody takes it, and what killed saves leave stays. */
static bool mlc__temp_lock(mlc__atomic *a)
{
    a->lock = -1;
    if (flock(a->file.fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
    if (mlc__name_is_lost(a->file.fd, a->temp)) return false;
    a->lock = dup(a->file.fd);
    if (a->lock >= 0) fcntl(a->lock, F_SETFD, FD_CLOEXEC);
    return true;
}

static void mlc__temp_unlock(mlc__atomic *a) { if (a->lock >= 0) close(a->lock); }
#else
/* The system does not remove a file that is open. */
static void mlc__temp_remove(const char *temp) { unlink(temp); }
static bool mlc__temp_lock(mlc__atomic *a) { a->lock = -1; return true; }
static void mlc__temp_unlock(mlc__atomic *a) { (void)a; }
#endif

#define MLC__TEMPS 100                 /* most saves to one path at the same time */

/* O_EXCL: two processes, or two saves of one, never write into the same file. */
static mlc_status mlc__temp_open(mlc__atomic *a, size_t room)
{
    for (int i = 0; i < MLC__TEMPS; i++) {
        snprintf(a->temp, room, "%s.mlc%d.tmp", a->file.path, i);
        a->file.fd = mlc__open(a->temp, O_WRONLY | O_CREAT | O_EXCL);
        if (a->file.fd < 0 && errno == EEXIST) {
            mlc__temp_remove(a->temp);
            a->file.fd = mlc__open(a->temp, O_WRONLY | O_CREAT | O_EXCL);
        }
        if (a->file.fd < 0 && errno == EEXIST) continue;
        if (a->file.fd < 0) return mlc__io_fail(&a->file, "cannot write");
        if (mlc__temp_lock(a)) return MLC_OK;
        close(a->file.fd);
    }
    return mlc__fail(a->file.ctx, MLC_ERR_IO, "cannot write '%s': there are %d temporary files "
                     "beside it, '%s' is the last", a->file.path, MLC__TEMPS, a->temp);
}

static mlc_status mlc__atomic_begin(mlc__atomic *a, mlc_ctx *ctx, const char *path)
{
    const size_t room = strlen(path) + 16;
    MLC__REQUIRE(ctx, !ctx->dry_run, STATE, "'%s': no files while mlc_summary runs forward", path);
    a->file.ctx = ctx;
    a->file.path = path;
    a->file.at = 0;
    a->temp = MLC__CAST(char *, mlc__heap_alloc(ctx, room, MLC_MEM_OBJECT, "save"));
    if (!a->temp) return MLC_ERR_NOMEM;
    const mlc_status st = mlc__temp_open(a, room);
    if (st) mlc__heap_free(ctx, a->temp);
    return st;
}

/* The rename itself must reach the disk: fsync of the folder. Windows has done so already. */
#if MLC__POSIX
static mlc_status mlc__sync_folder(mlc__atomic *a)
{
    char *slash = strrchr(a->temp, '/');
    int failed;
    if (slash) slash[1] = 0;
    const int fd = mlc__open(slash ? a->temp : ".", O_RDONLY);
    if (fd < 0 && errno == EACCES) return MLC_OK;          /* it may be written but not read */
    if (fd < 0) return mlc__io_fail(&a->file, "cannot sync the folder of");
    do failed = fsync(fd); while (failed && errno == EINTR);
    const int e = errno;
    close(fd);
    errno = e;
    return failed && e != EINVAL ? mlc__io_fail(&a->file, "cannot sync the folder of") : MLC_OK;
}
#else
static mlc_status mlc__sync_folder(mlc__atomic *a) { (void)a; return MLC_OK; }
#endif

/* Replaces the file if st is OK, else removes the temporary one; returns the first failure. */
static mlc_status mlc__atomic_end(mlc__atomic *a, mlc_status st)
{
    int failed = 0;
    if (st == MLC_OK) {
        do failed = mlc__sync(a->file.fd); while (failed && errno == EINTR);
        if (failed) st = mlc__io_fail(&a->file, "cannot sync");
    }
    /* On NFS close is where a full disk shows. */
    if (close(a->file.fd) != 0 && st == MLC_OK && errno != EINTR)
        st = mlc__io_fail(&a->file, "cannot close");
    if (st == MLC_OK && mlc__replace(a->temp, a->file.path) != 0)
        st = mlc__io_fail(&a->file, "cannot replace");
    if (st != MLC_OK) unlink(a->temp);
    else st = mlc__sync_folder(a);
    mlc__temp_unlock(a);
    mlc__heap_free(a->file.ctx, a->temp);
    return st;
}
#else
/* Without files everything below fails where it would open one. */
typedef struct mlc__file { mlc_ctx *ctx; const char *path; int64_t size; } mlc__file;
typedef struct mlc__atomic { mlc__file file; } mlc__atomic;

static mlc_status mlc__file_open(mlc__file *f, mlc_ctx *ctx, const char *path)
{
    f->ctx = ctx;
    f->path = path;
    f->size = 0;
    return mlc__fail(ctx, MLC_ERR_UNSUPPORTED, "'%s': mlcore was compiled without files", path);
}

static mlc_status mlc__file_read(mlc__file *f, void *to, size_t bytes)
{
    (void)to; (void)bytes;
    return mlc__fail(f->ctx, MLC_ERR_UNSUPPORTED, "'%s': no files", f->path);
}

static mlc_status mlc__file_write(mlc__file *f, const void *from, size_t bytes)
{
    (void)from; (void)bytes;
    return mlc__fail(f->ctx, MLC_ERR_UNSUPPORTED, "'%s': no files", f->path);
}

static void mlc__file_close(mlc__file *f) { (void)f; }

static mlc_status mlc__file_seek(mlc__file *f, int64_t at)
{
    return mlc__file_read(f, NULL, (size_t)at);
}

static mlc_status mlc__file_plain(const mlc__file *f, const void *begin, size_t n)
{
    (void)begin;
    return mlc__file_read((mlc__file *)(uintptr_t)f, NULL, n);
}

static void *mlc__file_map(mlc__file *f) { (void)f; return NULL; }
static void mlc__file_unmap(mlc__file *f, void *map) { (void)f; (void)map; }

static mlc_status mlc__atomic_begin(mlc__atomic *a, mlc_ctx *ctx, const char *path)
{
    return mlc__file_open(&a->file, ctx, path);
}

static mlc_status mlc__atomic_end(mlc__atomic *a, mlc_status st) { (void)a; return st; }
#endif

/* @@ IMPL.IO.SAFETENSORS --------------------------------- the format of weights, both ways
 * u64 N (little endian), N bytes of JSON, data: github.com/huggingface/safetensors. Stricter than
 * the reference reader where that one contradicts the format's own page (duplicate names,
 * __metadata__ null). A file is hostile until proved otherwise: N against the file's size first,
 * then the header by a parser of just this shape (no recursion, strings decoded in place), each
 * tensor's bytes against its shape, and all ranges together against the data: in order, without
 * hole or overlap. Only then is memory for tensors asked for. Saving sorts by dtype, widest first,
 * so that each tensor is aligned in a file that is mapped; the header is padded with spaces to 8
 * bytes. */

typedef struct mlc__st_entry {         /* a tensor of a file being read */
    const char *name;
    int64_t     begin, end, shape[MLC_MAX_DIMS];
    int32_t     ndim;
    mlc_dtype   dtype;
    const char *foreign;               /* a dtype that mlcore lacks, or NULL */
} mlc__st_entry;

typedef struct mlc__json {             /* reads the header; strings are decoded in place */
    mlc_ctx    *ctx;
    const char *path;
    char       *text;
    size_t      at, n;
    const char *metadata;              /* key, value, key, ... each terminated, one after another */
    int64_t     pairs;
} mlc__json;

/* The byte where reading stopped, in every message. */
static mlc_status mlc__json_fail(const mlc__json *j, const char *why)
{
    return mlc__fail(j->ctx, MLC_ERR_IO, "'%s': header byte %zu: %s", j->path, j->at, why);
}

/* strchr finds the terminating 0, too: the test before it keeps NUL bytes from being space. */
static void mlc__json_space(mlc__json *j)
{
    while (j->at < j->n && j->text[j->at] && strchr(" \t\r\n", j->text[j->at])) j->at++;
}

/* The next character that is not space, if it is c. */
static bool mlc__json_take(mlc__json *j, char c)
{
    mlc__json_space(j);
    if (j->at >= j->n || j->text[j->at] != c) return false;
    j->at++;
    return true;
}

/* -1 where there are not four hex digits. */
static int32_t mlc__hex4(const mlc__json *j)
{
    int32_t v = 0;
    if (j->n - j->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char c = j->text[j->at + (size_t)i];
        const int32_t d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
                          c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* c is a valid code point; 1 to 4 bytes. */
static size_t mlc__utf8_put(char *to, uint32_t c)
{
    if (c < 0x80) { to[0] = (char)c; return 1; }
    if (c < 0x800) { to[0] = (char)(0xC0 | c >> 6); to[1] = (char)(0x80 | (c & 63)); return 2; }
    if (c < 0x10000) {
        to[0] = (char)(0xE0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 63));
        to[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    to[0] = (char)(0xF0 | c >> 18); to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63)); to[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* Length of the valid UTF-8 character at s, 0 if there is none. */
static size_t mlc__utf8_len(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c;
    size_t len = u[0] < 0x80 ? 1 : u[0] >= 0xC2 && u[0] < 0xE0 ? 2 : (u[0] & 0xF0) == 0xE0 ? 3 :
                 u[0] >= 0xF0 && u[0] < 0xF5 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    if (len == 1) return 1;
    c = u[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((u[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (u[i] & 0x3F);
    }
    if ((len == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) ||
        (len == 4 && (c < 0x10000 || c > 0x10FFFF)))
        return 0;
    return len;
}

/* The character of \uXXXX (or a surrogate pair); 0 if it is not allowed. */
static uint32_t mlc__json_unicode(mlc__json *j)
{
    int32_t hi = mlc__hex4(j), lo;
    if (hi <= 0) return 0;
    j->at += 4;
    if (hi < 0xD800 || hi >= 0xE000) return (uint32_t)hi;
    if (hi >= 0xDC00 || j->n - j->at < 6 || j->text[j->at] != '\\' || j->text[j->at + 1] != 'u')
        return 0;
    j->at += 2;
    lo = mlc__hex4(j);
    if (lo < 0xDC00 || lo >= 0xE000) return 0;
    j->at += 4;
    return 0x10000u + (uint32_t)((hi - 0xD800) << 10) + (uint32_t)(lo - 0xDC00);
}

/* A string, decoded in place and terminated; never longer than its source. */
static mlc_status mlc__json_string(mlc__json *j, const char **out)
{
    if (!mlc__json_take(j, '"')) return mlc__json_fail(j, "a string is missing");
    char *to = j->text + j->at;
    *out = to;
    while (j->at < j->n && j->text[j->at] != '"') {
        static const char from_escape[] = "\"\\/bfnrt", to_escape[] = "\"\\/\b\f\n\r\t";
        const unsigned char c = (unsigned char)j->text[j->at];
        if (c < 0x20) return mlc__json_fail(j, "control byte in a string");
        if (c != '\\') {
            const size_t len = mlc__utf8_len(j->text + j->at, j->n - j->at);
            if (!len) return mlc__json_fail(j, "invalid UTF-8");
            memmove(to, j->text + j->at, len);
            to += len;
            j->at += len;
            continue;
        }
        if (++j->at >= j->n) break;
        const char e = j->text[j->at++];
        const char *known = e ? strchr(from_escape, e) : NULL;
        if (e == 'u') {
            const uint32_t u = mlc__json_unicode(j);
            if (!u)
                return mlc__json_fail(j, "bad \\u escape: not hex, a NUL or half a surrogate pair");
            to += mlc__utf8_put(to, u);
        } else if (known) {
            *to++ = to_escape[known - from_escape];
        } else {
            return mlc__json_fail(j, "unknown escape");
        }
    }
    if (j->at >= j->n) return mlc__json_fail(j, "a string does not end");
    j->at++;
    *to = 0;
    return MLC_OK;
}

/* An unsigned integer without sign, fraction, exponent or leading zero. */
static mlc_status mlc__json_integer(mlc__json *j, int64_t *out)
{
    int64_t v = 0;
    mlc__json_space(j);
    const size_t start = j->at;
    while (j->at < j->n && j->text[j->at] >= '0' && j->text[j->at] <= '9') {
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, j->text[j->at] - '0', &v))
            return mlc__json_fail(j, "number too large");
        j->at++;
    }
    if (j->at == start) return mlc__json_fail(j, "an unsigned integer is missing");
    if (j->text[start] == '0' && j->at > start + 1)
        return mlc__json_fail(j, "leading zero in a number");
    if (j->at < j->n && j->text[j->at] && strchr(".eE", j->text[j->at]))
        return mlc__json_fail(j, "a number is not an integer");
    *out = v;
    return MLC_OK;
}

/* [a, b, ...] with at most max numbers. */
static mlc_status mlc__json_list(mlc__json *j, int64_t *v, int32_t max, int32_t *n)
{
    *n = 0;
    if (!mlc__json_take(j, '[')) return mlc__json_fail(j, "'[' is missing");
    if (mlc__json_take(j, ']')) return MLC_OK;
    do {
        if (*n == max) return mlc__json_fail(j, max == 2 ? "data_offsets must be two numbers"
                                                         : "more axes than a tensor may have");
        MLC__TRY(mlc__json_integer(j, &v[(*n)++]));
    } while (mlc__json_take(j, ','));
    return mlc__json_take(j, ']') ? MLC_OK : mlc__json_fail(j, "']' is missing");
}

/* The dtypes that are both in the format and here. */
static const struct { const char *name; mlc_dtype dtype; } mlc__st_dtypes[] =
    { { "BOOL", MLC_BOOL }, { "U8", MLC_U8 }, { "I8", MLC_I8 }, { "F16", MLC_F16 },
      { "BF16", MLC_BF16 }, { "I32", MLC_I32 }, { "F32", MLC_F32 }, { "F64", MLC_F64 },
      { "I64", MLC_I64 } };            /* rank, low to high */

/* Others (U16, F8_E4M3, ...) are well formed but not ours: such a tensor is listed, not read. */
static mlc_status mlc__st_dtype(mlc__json *j, mlc__st_entry *e)
{
    MLC__TRY(mlc__json_string(j, &e->foreign));
    for (int i = 0; e->foreign && i < MLC__COUNT(mlc__st_dtypes); i++)
        if (strcmp(e->foreign, mlc__st_dtypes[i].name) == 0) {
            e->dtype = mlc__st_dtypes[i].dtype;
            e->foreign = NULL;
        }
    return MLC_OK;
}

/* {"dtype":..,"shape":[..],"data_offsets":[b,e]}: each field once, no other. */
static mlc_status mlc__st_tensor(mlc__json *j, mlc__st_entry *e)
{
    unsigned seen = 0;
    if (!mlc__json_take(j, '{')) return mlc__json_fail(j, "'{' of a tensor is missing");
    do {
        const char *key;
        int64_t range[2];
        int32_t n;
        MLC__TRY(mlc__json_string(j, &key));
        const unsigned field = strcmp(key, "dtype") == 0 ? 1 : strcmp(key, "shape") == 0 ? 2 :
                               strcmp(key, "data_offsets") == 0 ? 4 : 0;
        if (!field) return mlc__json_fail(j, "unknown field of a tensor");
        if (seen & field) return mlc__json_fail(j, "duplicate field of a tensor");
        seen |= field;
        if (!mlc__json_take(j, ':')) return mlc__json_fail(j, "':' is missing");
        if (field == 1) MLC__TRY(mlc__st_dtype(j, e));
        if (field == 2) MLC__TRY(mlc__json_list(j, e->shape, MLC_MAX_DIMS, &e->ndim));
        if (field != 4) continue;
        MLC__TRY(mlc__json_list(j, range, 2, &n));
        if (n != 2) return mlc__json_fail(j, "data_offsets must be two numbers");
        e->begin = range[0];
        e->end = range[1];
    } while (mlc__json_take(j, ','));
    if (!mlc__json_take(j, '}')) return mlc__json_fail(j, "'}' of a tensor is missing");
    return seen == 7 ? MLC_OK : mlc__json_fail(j, "a tensor lacks dtype, shape or data_offsets");
}

/* Bytes of the tensor agree with its range; sizes are checked from left to right, zeros too. How
 * many bytes an element of a foreign dtype has nobody knows here. */
static mlc_status mlc__st_check(mlc__json *j, const mlc__st_entry *e)
{
    int64_t count = 1, nonzero = 1, bytes;
    bool fits = true;
    /* nonzero bounds the product with zeros taken as 1, so count cannot overflow on its way to a
     * zero. */
    for (int32_t d = 0; d < e->ndim; d++) {
        fits = fits && !__builtin_mul_overflow(nonzero, mlc__max(1, e->shape[d]), &nonzero);
        if (fits) count *= e->shape[d];
    }
    fits = fits && nonzero <= PTRDIFF_MAX / 16;
    if (!fits) return mlc__json_fail(j, "the shape has more elements than memory can hold");
    bytes = count * (int64_t)mlc__dtypes[e->dtype].bytes;
    if (e->end < e->begin || (!e->foreign && e->end - e->begin != bytes))
        return mlc__json_fail(j, "data_offsets do not fit shape and dtype");
    return MLC_OK;
}

/* The next string, copied to *to, which lies before it in the same text. */
static mlc_status mlc__st_keep(mlc__json *j, char **to)
{
    const char *text;
    MLC__TRY(mlc__json_string(j, &text));
    const size_t n = strlen(text) + 1;
    memmove(*to, text, n);
    *to += n;
    return MLC_OK;
}

/* {"key":"value",...}: the strings, decoded, move together at the place of the object, which is
 * longer than they are. Whether its keys repeat is not checked. */
static mlc_status mlc__st_metadata(mlc__json *j)
{
    char *to = j->text + j->at;
    j->metadata = to;
    if (!mlc__json_take(j, '{'))
        return mlc__json_fail(j, "__metadata__ must be an object of strings");
    if (mlc__json_take(j, '}')) return MLC_OK;
    do {
        MLC__TRY(mlc__st_keep(j, &to));
        if (!mlc__json_take(j, ':')) return mlc__json_fail(j, "':' is missing");
        MLC__TRY(mlc__st_keep(j, &to));
        j->pairs++;
    } while (mlc__json_take(j, ','));
    return mlc__json_take(j, '}') ? MLC_OK : mlc__json_fail(j, "'}' of __metadata__ is missing");
}

/* The header; entries has room for all tensors that n bytes can describe. */
static mlc_status mlc__st_header(mlc__json *j, mlc__st_entry *entries, int64_t *count)
{
    bool metadata = false;
    *count = 0;
    if (j->n == 0 || j->text[0] != '{') return mlc__json_fail(j, "the header must begin with '{'");
    j->at = 1;
    if (!mlc__json_take(j, '}')) {
        do {
            const char *name;
            MLC__TRY(mlc__json_string(j, &name));
            if (!mlc__json_take(j, ':')) return mlc__json_fail(j, "':' is missing");
            if (strcmp(name, "__metadata__") == 0) {
                if (metadata) return mlc__json_fail(j, "duplicate __metadata__");
                metadata = true;
                MLC__TRY(mlc__st_metadata(j));
                continue;
            }
            /* Has room: each description takes MLC__ST_SHORTEST bytes at least. */
            mlc__st_entry *e = &entries[(*count)++];
            e->name = name;
            MLC__TRY(mlc__st_tensor(j, e));
            MLC__TRY(mlc__st_check(j, e));
        } while (mlc__json_take(j, ','));
        if (!mlc__json_take(j, '}')) return mlc__json_fail(j, "',' or '}' is missing");
    }
    mlc__json_space(j);
    return j->at == j->n ? MLC_OK : mlc__json_fail(j, "text after the header's end");
}

/* Empty tensors share their offset with the next: they come first by their end. */
static int mlc__st_by_offset(const void *a, const void *b)
{
    const mlc__st_entry *x = MLC__CAST(const mlc__st_entry *, a),
                        *y = MLC__CAST(const mlc__st_entry *, b);
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int mlc__st_by_name(const void *a, const void *b)
{
    return strcmp(MLC__CAST(const mlc__st_entry *, a)->name,
                  MLC__CAST(const mlc__st_entry *, b)->name);
}

/* Bounds the entries before the header is read: "":{"dtype":"F32","shape":[],"data_offsets":[0,0]}
 * has 50. */
#define MLC__ST_SHORTEST 48            /* bytes that the shortest description of a tensor takes */

/* entries are sorted by name; their names and the metadata lie in text. */
struct mlc_safetensors {
    mlc__file        file;
    mlc_safetensors *prev, *next;      /* in ctx->files */
    char            *path, *text;
    mlc__st_entry   *entries;
    int64_t          count, data;      /* data: where in the file the tensors begin */
    size_t           room;             /* of entries */
    const char      *metadata;
    int64_t          pairs;
    void            *map;              /* of the whole file, from the first view on */
};

/* The ranges of all tensors fill the data: in order, without hole or overlap. */
static mlc_status mlc__st_ranges(mlc_safetensors *f)
{
    mlc_ctx *ctx = f->file.ctx;
    int64_t at = 0;
    if (f->count) qsort(f->entries, (size_t)f->count, sizeof *f->entries, mlc__st_by_offset);
    for (int64_t i = 0; i < f->count; i++) {
        MLC__REQUIRE(ctx, f->entries[i].begin == at, IO,
                     "'%s': data of '%.100s' begins at %lld, not at %lld: a hole or an overlap",
                     f->path, f->entries[i].name, (long long)f->entries[i].begin, (long long)at);
        at = f->entries[i].end;
    }
    MLC__REQUIRE(ctx, at == f->file.size - f->data, IO,
                 "'%s': %lld bytes of data, the header names %lld", f->path,
                 (long long)(f->file.size - f->data), (long long)at);
    return MLC_OK;
}

/* Most tensors that the text can describe: each has a '{' and MLC__ST_SHORTEST bytes. */
static size_t mlc__st_most(const char *text, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++) most += text[i] == '{';
    return most < n / MLC__ST_SHORTEST + 1 ? most : n / MLC__ST_SHORTEST + 1;
}

/* Header and entries of an open file. */
static mlc_status mlc__st_read(mlc_safetensors *f)
{
    unsigned char raw[8] = { 0 };
    uint64_t n = 0;
    mlc_ctx *ctx = f->file.ctx;
    MLC__REQUIRE(ctx, f->file.size >= 8, IO, "'%s': %lld bytes are no safetensors file, which "
                 "begins with 8 bytes of header size", f->path, (long long)f->file.size);
    MLC__TRY(mlc__file_read(&f->file, raw, 8));
    for (int i = 7; i >= 0; i--) n = n << 8 | raw[i];
    /* 100 MB is the reference reader's bound, too. */
    MLC__REQUIRE(ctx, n <= 100000000 && n <= (uint64_t)f->file.size - 8, IO,
                 "'%s': header of %llu bytes in a file of %lld; %s", f->path,
                 (unsigned long long)n, (long long)f->file.size,
                 memcmp(raw, "PK\3\4", 4) == 0 || memcmp(raw, "\x80\2", 2) == 0 ?
                 "as torch.save writes them? Use safetensors.torch.save_file" :
                 "is it a safetensors file?");
    f->data = 8 + (int64_t)n;
    f->text = MLC__CAST(char *, mlc__heap_alloc(ctx, (size_t)n + 1, MLC_MEM_OBJECT, "load"));
    if (!f->text) return MLC_ERR_NOMEM;
    MLC__TRY(mlc__file_read(&f->file, f->text, (size_t)n));
    f->room = mlc__st_most(f->text, (size_t)n);
    f->entries = MLC__CAST(mlc__st_entry *, mlc__heap_alloc(ctx, f->room * sizeof *f->entries,
                                                            MLC_MEM_OBJECT, "load"));
    if (!f->entries) return MLC_ERR_NOMEM;
    mlc__json j = { ctx, f->path, f->text, 0, (size_t)n, NULL, 0 };
    MLC__TRY(mlc__st_header(&j, f->entries, &f->count));
    f->metadata = j.metadata;
    f->pairs = j.pairs;
    MLC__TRY(mlc__st_ranges(f));
    if (f->count) qsort(f->entries, (size_t)f->count, sizeof *f->entries, mlc__st_by_name);
    for (int64_t i = 1; i < f->count; i++)
        MLC__REQUIRE(ctx, strcmp(f->entries[i - 1].name, f->entries[i].name) != 0, IO,
                     "'%s': two tensors named '%.100s'", f->path, f->entries[i].name);
    return MLC_OK;
}

/* What still sees the mapping is found in the scopes: its use becomes a STATE error, also that of
 * what backward saved. */
static void mlc__st_forget_views(mlc_safetensors *f)
{
    mlc_ctx *ctx = f->file.ctx;
    const uintptr_t from = (uintptr_t)f->map;
    for (int32_t i = 0; f->map && i <= ctx->depth; i++)
        for (mlc_storage *s = ctx->scopes[i].storages; s; s = s->next) {
            if ((uintptr_t)s->data - from >= (uintptr_t)f->file.size) continue;
            s->data = NULL;
            s->released = s->closed = true;
        }
}

MLC_IMPL void mlc_safetensors_close(mlc_safetensors *f)
{
    if (!f) return;
    mlc_ctx *ctx = f->file.ctx;
    mlc__st_forget_views(f);
    mlc__file_unmap(&f->file, f->map);
    mlc__file_close(&f->file);
    if (f->prev) f->prev->next = f->next;
    else ctx->files = f->next;
    if (f->next) f->next->prev = f->prev;
    mlc__heap_free(ctx, f->text);
    mlc__heap_free(ctx, f->entries);
    mlc__heap_free(ctx, f->path);
    mlc__heap_free(ctx, f);
}

static void mlc__files_release(mlc_ctx *ctx)
{
    while (ctx->files) mlc_safetensors_close(ctx->files);
}

MLC_IMPL mlc_safetensors *mlc_safetensors_open(mlc_ctx *ctx, const char *path)
{
    mlc_safetensors *f;
    mlc__file file;
    if (!ctx) return NULL;
    if (!path) {
        mlc__fail(ctx, MLC_ERR_ARG, "load: path is NULL; give a file's name");
        return NULL;
    }
    if (mlc__file_open(&file, ctx, path) != MLC_OK) return NULL;
    f = MLC__CAST(mlc_safetensors *, mlc__heap_alloc(ctx, sizeof *f, MLC_MEM_OBJECT, "load"));
    char *copy = MLC__CAST(char *, mlc__heap_alloc(ctx, strlen(path) + 1, MLC_MEM_OBJECT, "load"));
    if (!f || !copy) {
        mlc__file_close(&file);
        mlc__heap_free(ctx, f);
        mlc__heap_free(ctx, copy);
        return NULL;
    }
    memcpy(copy, path, strlen(path));
    f->file = file;
    f->file.path = f->path = copy;
    f->next = ctx->files;
    if (f->next) f->next->prev = f;
    ctx->files = f;
    ctx->files_release = mlc__files_release;
    if (mlc__st_read(f) == MLC_OK) return f;
    mlc_safetensors_close(f);
    return NULL;
}

MLC_IMPL int64_t mlc_safetensors_count(const mlc_safetensors *f) { return f ? f->count : 0; }

MLC_IMPL const char *mlc_safetensors_name(const mlc_safetensors *f, int64_t i)
{
    return f && i >= 0 && i < f->count ? f->entries[i].name : NULL;
}

MLC_IMPL const char *mlc_safetensors_metadata(const mlc_safetensors *f, const char *key)
{
    const char *at = f ? f->metadata : NULL;
    for (int64_t i = 0; f && key && i < f->pairs; i++) {
        const char *value = at + strlen(at) + 1;
        if (strcmp(at, key) == 0) return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

/* An error names the file and the tensor that is not in it. */
static const mlc__st_entry *mlc__st_find(const mlc_safetensors *f, const char *name)
{
    mlc__st_entry key;
    memset(&key, 0, sizeof key);
    key.name = name ? name : "";
    const mlc__st_entry *e = f->count ? MLC__CAST(const mlc__st_entry *,
        bsearch(&key, f->entries, (size_t)f->count, sizeof key, mlc__st_by_name)) : NULL;
    if (!e) mlc__fail(f->file.ctx, MLC_ERR_ARG, "'%s' has no tensor named '%.100s'; "
                      "mlc_safetensors_name lists them", f->path, key.name);
    return e;
}

static mlc_status mlc__st_known(const mlc_safetensors *f, const mlc__st_entry *e)
{
    MLC__REQUIRE(f->file.ctx, !e->foreign, DTYPE,
                 "'%s': '%.100s' has dtype '%.40s', not known to this mlcore; save it as another",
                 f->path, e->name, e->foreign);
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_safetensors_info(const mlc_safetensors *f, const char *name,
                                         mlc_dtype *dtype, mlc_dims *shape)
{
    const mlc__st_entry *e = f ? mlc__st_find(f, name) : NULL;
    if (!e) return MLC_ERR_ARG;
    if (shape) *shape = mlc_dims_of(e->ndim, e->shape);
    if (dtype) MLC__TRY(mlc__st_known(f, e));
    if (dtype) *dtype = e->dtype;
    return MLC_OK;
}

/* Bytes of the file to a tensor; little-endian on disk, as every host that compiles this file.
 * The format says nothing of a bool that is neither 0 nor 1: it counts as true. */
static mlc_status mlc__st_data(mlc__file *f, mlc_tensor *t)
{
    const size_t bytes = (size_t)mlc__numel(t) * mlc__size(t);
    uint8_t *host = t->ctx->on_host ? MLC__CAST(uint8_t *, mlc__data(t)) : NULL, *copy = NULL;
    if (bytes == 0) return MLC_OK;
    if (!host) host = copy = MLC__CAST(uint8_t *, mlc__heap_alloc(t->ctx, bytes, MLC_MEM_OBJECT,
                                                                  "load"));
    if (!host) return MLC_ERR_NOMEM;
    mlc_status st = mlc__file_read(f, host, bytes);
    if (!st && t->dtype == MLC_BOOL) for (size_t i = 0; i < bytes; i++) host[i] = host[i] != 0;
    if (!st && copy) st = mlc__device_copy(t->ctx, mlc__data(t), copy, bytes, MLC_COPY_TO_DEVICE);
    mlc__heap_free(t->ctx, copy);
    return st;
}

static mlc_tensor *mlc__st_get(mlc_safetensors *f, const mlc__st_entry *e)
{
    mlc_tensor *t;
    if (f->file.ctx->dry_run) {
        mlc__fail(f->file.ctx, MLC_ERR_STATE, "'%s': no files while mlc_summary runs forward",
                  f->path);
        return NULL;
    }
    if (mlc__st_known(f, e) != MLC_OK) return NULL;
    if (mlc__file_seek(&f->file, f->data + e->begin) != MLC_OK) return NULL;
    t = mlc__make(f->file.ctx, "load", e->dtype, mlc_dims_of(e->ndim, e->shape));
    return t && mlc__st_data(&f->file, t) == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_safetensors_get(mlc_safetensors *f, const char *name)
{
    const mlc__st_entry *e = f ? mlc__st_find(f, name) : NULL;
    return e ? mlc__st_get(f, e) : NULL;
}

/* Mapped at the first view; where that is not to be had, a copy does. bool always is a copy: its
 * bytes may have to be made 0 and 1. */
MLC_IMPL mlc_tensor *mlc_safetensors_view(mlc_safetensors *f, const char *name)
{
    const mlc__st_entry *e = f ? mlc__st_find(f, name) : NULL;
    if (!e) return NULL;
    mlc_ctx *ctx = f->file.ctx;
    if (!ctx->on_host || ctx->dry_run || e->end == e->begin || e->foreign || e->dtype == MLC_BOOL)
        return mlc__st_get(f, e);
    if (!f->map) f->map = mlc__file_map(&f->file);
    char *data = f->map ? MLC__CAST(char *, f->map) + f->data + e->begin : NULL;
    if (!data || (uintptr_t)data % mlc_dtype_bytes(e->dtype) != 0) return mlc__st_get(f, e);
    return mlc_wrap(ctx, e->dtype, mlc_dims_of(e->ndim, e->shape), NULL, data);
}

/* Can all be read? A tensor may take a hundred times the bytes that describe it: a file of nothing
 * but tiny ones must not ask for more than 4 times its size and 1 MiB. */
static mlc_status mlc__st_budget(const mlc_safetensors *f)
{
    const int64_t limit = 4 * f->file.size + (1 << 20) - (1 << 16);
    int64_t sum = f->data + (int64_t)(f->room * sizeof *f->entries);
    for (int64_t i = 0; i < f->count; i++) {
        MLC__TRY(mlc__st_known(f, &f->entries[i]));
        size_t rounded = 0;
        const int64_t bytes = f->entries[i].end - f->entries[i].begin;
        if (bytes) mlc__class_of((size_t)bytes, &rounded);
        sum += (int64_t)(rounded + strlen(f->entries[i].name) + 32 + sizeof(mlc_named) +
                         sizeof(mlc__block) + sizeof(mlc_tensor) + sizeof(mlc_storage));
    }
    MLC__REQUIRE(f->file.ctx, sum <= limit, IO,
                 "'%s': %lld tensors would take %lld bytes of memory, over 4 times the file and 1 "
                 "MiB; read them one by one: mlc_safetensors_open", f->path, (long long)f->count,
                 (long long)sum);
    return MLC_OK;
}

/* The list and its names are copied to the scope: the file is closed. */
static mlc_status mlc__st_load(mlc_safetensors *f, const mlc_named **list)
{
    mlc_ctx *ctx = f->file.ctx;
    MLC__TRY(mlc__st_budget(f));
    mlc_named *named = MLC__CAST(mlc_named *, mlc__arena(ctx, ctx->depth, ((size_t)f->count + 1) *
                                                                          sizeof *named));
    if (!named) return MLC_ERR_NOMEM;
    for (int64_t i = 0; i < f->count; i++) {
        const size_t n = strlen(f->entries[i].name) + 1;
        char *name = MLC__CAST(char *, mlc__arena(ctx, ctx->depth, n));
        if (!name) return MLC_ERR_NOMEM;
        memcpy(name, f->entries[i].name, n);
        named[i].name = name;
        named[i].tensor = mlc__st_get(f, &f->entries[i]);
        if (!named[i].tensor) return ctx->status;
    }
    *list = named;
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_safetensors_load(mlc_ctx *ctx, const char *path, const mlc_named **list,
                                         int64_t *n)
{
    if (!ctx) return MLC_ERR_ARG;
    MLC__REQUIRE(ctx, path && list && n, ARG, "load: path, list or n is NULL; it takes all three");
    *list = NULL;
    *n = 0;
    mlc_safetensors *f = mlc_safetensors_open(ctx, path);
    if (!f) return ctx->status;
    const int64_t count = f->count;
    const mlc_status st = mlc__st_load(f, list);
    mlc_safetensors_close(f);
    if (st == MLC_OK) *n = count;
    return st;
}

/* JSON is UTF-8: a name that is not would make a file that nobody reads. */
static bool mlc__utf8_ok(const char *s)
{
    for (size_t n = strlen(s), len; n; s += len, n -= len)
        if (!(len = mlc__utf8_len(s, n))) return false;
    return true;
}

/* A growing text in heap memory. The first failure stays in st: what is put after it is lost, and
 * whoever is done with putting looks. */
typedef struct mlc__buffer { mlc_ctx *ctx; char *text; size_t n, room; mlc_status st; } mlc__buffer;

/* Doubles, so that n bytes cost n copies in all, not n^2. */
static void mlc__put(mlc__buffer *b, const char *text, size_t n)
{
    if (!b->st && b->n + n >= b->room) {
        const size_t room = 2 * (b->n + n) + 256;
        char *bigger = MLC__CAST(char *, mlc__heap_alloc(b->ctx, room, MLC_MEM_OBJECT, "save"));
        if (!bigger) { b->st = MLC_ERR_NOMEM; return; }
        if (b->n) memcpy(bigger, b->text, b->n);
        mlc__heap_free(b->ctx, b->text);
        b->text = bigger;
        b->room = room;
    }
    if (b->st) return;
    memcpy(b->text + b->n, text, n);
    b->n += n;
}

static void mlc__put_text(mlc__buffer *b, const char *text) { mlc__put(b, text, strlen(text)); }

/* Escapes what JSON demands and leaves UTF-8 as it is. */
static void mlc__put_string(mlc__buffer *b, const char *s)
{
    static const char controls[] = "\b\f\n\r\t", letters[] = "bfnrt";
    mlc__put(b, "\"", 1);
    while (*s) {
        char escape[8];
        size_t plain = 0;
        while ((unsigned char)s[plain] >= 0x20 && s[plain] != '"' && s[plain] != '\\') plain++;
        mlc__put(b, s, plain);
        s += plain;
        if (!*s) break;
        const char *known = strchr(controls, *s);
        if ((unsigned char)*s >= 0x20) snprintf(escape, sizeof escape, "\\%c", *s);
        else if (known) snprintf(escape, sizeof escape, "\\%c", letters[known - controls]);
        else snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*s);
        mlc__put_text(b, escape);
        s++;
    }
    mlc__put(b, "\"", 1);
}

/* Every dtype of a tensor is in the table. */
static int mlc__st_rank(mlc_dtype dtype)
{
    int r = 0;
    while (mlc__st_dtypes[r].dtype != dtype) r++;
    return r;
}

static int mlc__named_by_name(const void *a, const void *b)
{
    return strcmp(MLC__CAST(const mlc_named *, a)->name, MLC__CAST(const mlc_named *, b)->name);
}

/* Widest dtype first, then by name: so every tensor is aligned. */
static int mlc__st_file_order(const void *a, const void *b)
{
    const mlc_named *x = MLC__CAST(const mlc_named *, a), *y = MLC__CAST(const mlc_named *, b);
    const int rx = mlc__st_rank(x->tensor->dtype), ry = mlc__st_rank(y->tensor->dtype);
    return rx != ry ? ry - rx : strcmp(x->name, y->name);
}

/* at: where the tensor's data begins; moved on by its bytes. */
static void mlc__put_tensor(mlc__buffer *b, const mlc_named *e, bool comma, int64_t *at)
{
    char text[96];
    const int64_t bytes = mlc__numel(e->tensor) * (int64_t)mlc__size(e->tensor);
    if (comma) mlc__put(b, ",", 1);
    mlc__put_string(b, e->name);
    snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":",
             mlc__st_dtypes[mlc__st_rank(e->tensor->dtype)].name);
    mlc__put_text(b, text);
    mlc__put_text(b, mlc__shape(e->tensor).s);
    snprintf(text, sizeof text, ",\"data_offsets\":[%lld,%lld]}", (long long)*at,
             (long long)(*at + bytes));
    *at += bytes;
    mlc__put_text(b, text);
}

/* Tensors in the order of their data, offsets counted on the way. */
static mlc_status mlc__put_header(mlc__buffer *b, const mlc_named *list, int64_t n,
                                  const char *const *metadata)
{
    int64_t at = 0;
    const bool tells = metadata && metadata[0];
    mlc__put(b, "{", 1);
    if (tells) mlc__put_text(b, "\"__metadata__\":{");
    for (int64_t i = 0; tells && metadata[i]; i += 2) {
        if (i) mlc__put(b, ",", 1);
        mlc__put_string(b, metadata[i]);
        mlc__put(b, ":", 1);
        mlc__put_string(b, metadata[i + 1]);
    }
    if (tells) mlc__put_text(b, "}");
    for (int64_t i = 0; i < n; i++) mlc__put_tensor(b, &list[i], i > 0 || tells, &at);
    mlc__put(b, "}", 1);
    mlc__put(b, "       ", (8 - b->n % 8) % 8);
    MLC__TRY(b->st);
    MLC__REQUIRE(b->ctx, b->n <= 100000000, ARG, "save: the header has %zu bytes, over 100000000",
                 b->n);
    return MLC_OK;
}

/* Straight from memory where it lies as the file wants it; else through one host copy a tensor. */
static mlc_status mlc__st_write_data(mlc__file *f, mlc_tensor *t)
{
    const size_t bytes = (size_t)mlc__numel(t) * mlc__size(t);
    if (bytes == 0) return MLC_OK;
    if (t->ctx->on_host && (t->flags & MLC__DENSE)) return mlc__file_write(f, mlc__data(t), bytes);
    void *host = mlc__heap_alloc(t->ctx, bytes, MLC_MEM_OBJECT, "save");
    if (!host) return MLC_ERR_NOMEM;
    mlc_status st = mlc_read(t, host, bytes);
    if (!st) st = mlc__file_write(f, host, bytes);
    mlc__heap_free(t->ctx, host);
    return st;
}

/* Whatever happens after begin, end is called: it removes the temporary file. */
static mlc_status mlc__st_write(mlc_ctx *ctx, const char *path, const mlc_named *list, int64_t n,
                                const mlc__buffer *header)
{
    mlc__atomic a;
    unsigned char size[8];
    MLC__TRY(mlc__atomic_begin(&a, ctx, path));
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)header->n >> 8 * i);
    mlc_status st = mlc__file_write(&a.file, size, 8);
    if (!st) st = mlc__file_write(&a.file, header->text, header->n);
    for (int64_t i = 0; i < n && !st; i++) st = mlc__st_write_data(&a.file, list[i].tensor);
    return mlc__atomic_end(&a, st);
}

/* All that can be wrong with the arguments, before a file is made. */
static mlc_status mlc__st_save_check(mlc_ctx *ctx, const mlc_named *list, int64_t n,
                                     const char *const *metadata)
{
    for (int64_t i = 0; i < n; i++) {
        MLC__REQUIRE(ctx, list[i].name && list[i].tensor, ARG,
                     "save: entry %lld has no name or tensor; give both", (long long)i);
        MLC__REQUIRE(ctx, mlc__utf8_ok(list[i].name) && strcmp(list[i].name, "__metadata__") != 0,
                     ARG, "save: name of entry %lld is not UTF-8 or is __metadata__; rename it",
                     (long long)i);
        MLC__TRY(mlc__alive(list[i].tensor, "save"));
    }
    for (int64_t i = 0; metadata && metadata[i]; i++)
        MLC__REQUIRE(ctx, mlc__utf8_ok(metadata[i]) && (i % 2 || metadata[i + 1]), ARG,
                     "save: metadata must be pairs of UTF-8 strings, ended by NULL");
    return MLC_OK;
}

/* Sorted twice: by name to find duplicates, then as the file lies. */
MLC_IMPL mlc_status mlc_safetensors_save(mlc_ctx *ctx, const char *path, const mlc_named *list,
                                         int64_t n, const char *const *metadata)
{
    mlc__buffer header = { ctx, NULL, 0, 0, MLC_OK };
    mlc_named *sorted;
    mlc_status st;
    if (!ctx) return MLC_ERR_ARG;
    MLC__REQUIRE(ctx, path && path[0] && n >= 0 && (list || n == 0), ARG,
                 "save: no path or no list; it takes both");
    MLC__TRY(mlc__st_save_check(ctx, list, n, metadata));
    sorted = MLC__CAST(mlc_named *, mlc__heap_alloc(ctx, ((size_t)n + 1) * sizeof *sorted,
                                                    MLC_MEM_OBJECT, "save"));
    if (!sorted) return MLC_ERR_NOMEM;
    if (n) memcpy(sorted, list, (size_t)n * sizeof *sorted);
    if (n) qsort(sorted, (size_t)n, sizeof *sorted, mlc__named_by_name);
    st = MLC_OK;
    for (int64_t i = 1; i < n && !st; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            st = mlc__fail(ctx, MLC_ERR_ARG, "save: two tensors named '%.100s'; rename one",
                           sorted[i].name);
    if (n) qsort(sorted, (size_t)n, sizeof *sorted, mlc__st_file_order);
    if (!st) st = mlc__put_header(&header, sorted, n, metadata);
    if (!st) st = mlc__st_write(ctx, path, sorted, n, &header);
    mlc__heap_free(ctx, header.text);
    mlc__heap_free(ctx, sorted);
    return st;
}

/* @@ IMPL.IO.NPY ----------------------------------------- NumPy's .npy and .npz, both ways
 * .npy: magic, version, the length of a header, the header (a Python dict of exactly descr,
 * fortran_order and shape, padded so that data begins at a multiple of 64), data. .npz: a zip of
 * them. Readers trust nothing: the header by a parser of just this shape, sizes against what is
 * left of the file before memory is asked for, a zip by its central directory (local headers of
 * numpy.savez hold no sizes), each entry inside the file and apart from the others, checksums. */

#ifdef MLC_USE_ZLIB
#  include <zlib.h>
#endif

/* Bytes of an array: of a file, or of an entry of a zip in it. */
typedef struct mlc__source {
    mlc__file  *file;
    const char *entry;                 /* name in the zip, or NULL                              */
    int64_t     left;                  /* bytes not yet read, after inflating                   */
    uint32_t    crc;                   /* of what was read                                      */
    uint32_t    table[256];            /* of the checksum                                       */
#ifdef MLC_USE_ZLIB
    z_stream    stream;
    bool        deflated;
    int64_t     packed;                /* bytes in the file not yet read                        */
    unsigned char buffer[4096];
#endif
} mlc__source;

static mlc_status mlc__npy_fail(const mlc__source *s, const char *why)
{
    return mlc__fail(s->file->ctx, MLC_ERR_IO, "'%s'%s%.80s%s: %s", s->file->path,
                     s->entry ? ", entry '" : "", s->entry ? s->entry : "", s->entry ? "'" : "",
                     why);
}

/* CRC-32 of zip: reflected, polynomial 0x04C11DB7. */
static void mlc__crc_table(uint32_t *table)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1u ? c >> 1 ^ 0xEDB88320u : c >> 1;
        table[i] = c;
    }
}

static uint32_t mlc__crc(const uint32_t *table, uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = MLC__CAST(const unsigned char *, data);
    crc = ~crc;
    for (size_t i = 0; i < n; i++) crc = table[(crc ^ p[i]) & 255u] ^ crc >> 8;
    return ~crc;
}

#ifdef MLC_USE_ZLIB
static void *mlc__zlib_alloc(void *ctx, unsigned n, unsigned bytes)
{
    return mlc__heap_try(MLC__CAST(mlc_ctx *, ctx), (size_t)n * bytes, MLC_MEM_OBJECT);
}

static void mlc__zlib_free(void *ctx, void *ptr) { mlc__heap_free(MLC__CAST(mlc_ctx *, ctx), ptr); }

/* Inflates until n bytes are there. */
static mlc_status mlc__source_inflate(mlc__source *s, void *to, size_t n)
{
    z_stream *z = &s->stream;
    char *at = MLC__CAST(char *, to);
    while (n) {
        const size_t step = n < (1u << 30) ? n : (1u << 30);
        if (z->avail_in == 0 && s->packed) {
            const size_t more = (size_t)mlc__min(s->packed, (int64_t)sizeof s->buffer);
            MLC__TRY(mlc__file_read(s->file, s->buffer, more));
            s->packed -= (int64_t)more;
            z->next_in = s->buffer;
            z->avail_in = (uInt)more;
        }
        z->next_out = (unsigned char *)at;
        z->avail_out = (uInt)step;
        const int result = inflate(z, Z_NO_FLUSH);
        const size_t made = step - z->avail_out;
        if (result == Z_MEM_ERROR)
            return mlc__fail(s->file->ctx, MLC_ERR_NOMEM, "npz_load: out of memory to inflate");
        at += made;
        n -= made;
        if (result == Z_BUF_ERROR || (result == Z_STREAM_END && n))    /* no more to inflate */
            return mlc__npy_fail(s, "deflate data ends early");
        if (result < 0) return mlc__npy_fail(s, "bad deflate data");
    }
    return MLC_OK;
}
#endif

static mlc_status mlc__source_read(mlc__source *s, void *to, size_t n)
{
    if ((int64_t)n > s->left) return mlc__npy_fail(s, "the data is shorter than its header says");
#ifdef MLC_USE_ZLIB
    if (s->deflated) MLC__TRY(mlc__source_inflate(s, to, n));
    else
#endif
    MLC__TRY(mlc__file_read(s->file, to, n));
    s->left -= (int64_t)n;
    if (s->entry) s->crc = mlc__crc(s->table, s->crc, to, n);
    return MLC_OK;
}

/* -- the header of an array -- */

/* What lies in the file: kind and bytes of an element, order of bytes and axes. */
typedef struct mlc__npy {
    char    kind;
    int     bytes;
    bool    swap, fortran;
    int32_t ndim;
    int64_t shape[MLC_MAX_DIMS];
} mlc__npy;

/* text ends with 0; at is where reading stands. */
typedef struct mlc__dict { const mlc__source *s; const char *at; } mlc__dict;

static void mlc__dict_space(mlc__dict *d) { while (*d->at == ' ' || *d->at == '\n') d->at++; }

static bool mlc__dict_take(mlc__dict *d, char c)
{
    mlc__dict_space(d);
    if (*d->at != c) return false;
    d->at++;
    return true;
}

/* A string of at most 31 characters without escapes, in either kind of quotes. */
static mlc_status mlc__dict_string(mlc__dict *d, char out[32])
{
    size_t n = 0;
    mlc__dict_space(d);
    const char quote = *d->at;
    if (quote != '\'' && quote != '"') return mlc__npy_fail(d->s, "header: a string is missing");
    for (d->at++; *d->at && *d->at != quote; d->at++) {
        if (n == 31 || *d->at == '\\')
            return mlc__npy_fail(d->s, "header: a string that is no descr or key");
        out[n++] = *d->at;
    }
    out[n] = 0;
    return mlc__dict_take(d, quote) ? MLC_OK : mlc__npy_fail(d->s, "header: a string has no end");
}

/* The letter and size of an element: what is read, and what is refused with its reason. */
static mlc_status mlc__npy_descr(mlc__dict *d, mlc__npy *a)
{
    static const char *const known = "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 b1";
    char text[32];
    const char *type = text;
    mlc__dict_space(d);
    if (*d->at == '[') return mlc__npy_fail(d->s, "a structured dtype is not read");
    MLC__TRY(mlc__dict_string(d, text));
    a->swap = *type == '>';
    if (*type && strchr("<>=|", *type)) type++;
    if (*type == 'O') return mlc__npy_fail(d->s, "pickled objects are refused");
    const char *at = strlen(type) == 2 ? strstr(known, type) : NULL;
    if (!at || (at - known) % 3 != 0)
        return mlc__fail(d->s->file->ctx, MLC_ERR_DTYPE,
                         "'%s': dtype '%s' is not known to this mlcore; save it as one of %s",
                         d->s->file->path, text, known);
    a->kind = type[0];
    a->bytes = type[1] - '0';
    a->swap = a->swap && a->bytes > 1;
    return MLC_OK;
}

/* (2, 3), (3,) or (): decimal sizes. */
static mlc_status mlc__npy_shape(mlc__dict *d, mlc__npy *a)
{
    if (!mlc__dict_take(d, '(')) return mlc__npy_fail(d->s, "header: shape is no tuple");
    bool comma = true;
    while (!mlc__dict_take(d, ')')) {
        int64_t size = 0;
        if (!comma) return mlc__npy_fail(d->s, "header: shape is no tuple");
        mlc__dict_space(d);
        if (*d->at < '0' || *d->at > '9') return mlc__npy_fail(d->s, "header: a size is no number");
        if (*d->at == '0' && d->at[1] >= '0' && d->at[1] <= '9')
            return mlc__npy_fail(d->s, "header: a size begins with 0");
        for (; *d->at >= '0' && *d->at <= '9'; d->at++)
            if (__builtin_mul_overflow(size, 10, &size) ||
                __builtin_add_overflow(size, *d->at - '0', &size))
                return mlc__npy_fail(d->s, "header: a size is too large");
        if (*d->at == 'L') d->at++;                        /* Python 2 */
        if (a->ndim == MLC_MAX_DIMS)
            return mlc__npy_fail(d->s, "header: more axes than a tensor may have");
        a->shape[a->ndim++] = size;
        comma = mlc__dict_take(d, ',');
    }
    if (a->ndim == 1 && !comma) return mlc__npy_fail(d->s, "header: shape is no tuple");
    return MLC_OK;
}

static mlc_status mlc__npy_order(mlc__dict *d, mlc__npy *a)
{
    mlc__dict_space(d);
    const bool yes = strncmp(d->at, "True", 4) == 0;
    if (!yes && strncmp(d->at, "False", 5) != 0)
        return mlc__npy_fail(d->s, "header: fortran_order is neither True nor False");
    d->at += yes ? 4 : 5;
    a->fortran = yes;
    return MLC_OK;
}

/* {'descr': .., 'fortran_order': .., 'shape': .., }: each key once, in any order, no other. */
static mlc_status mlc__npy_dict(mlc__dict *d, mlc__npy *a)
{
    unsigned seen = 0;
    if (!mlc__dict_take(d, '{')) return mlc__npy_fail(d->s, "header: '{' is missing");
    while (!mlc__dict_take(d, '}')) {
        char key[32];
        MLC__TRY(mlc__dict_string(d, key));
        const unsigned field = strcmp(key, "descr") == 0 ? 1 : strcmp(key, "shape") == 0 ? 2 :
                               strcmp(key, "fortran_order") == 0 ? 4 : 0;
        if (!field) return mlc__npy_fail(d->s, "header: an unknown key");
        if (seen & field) return mlc__npy_fail(d->s, "header: a key comes twice");
        seen |= field;
        if (!mlc__dict_take(d, ':')) return mlc__npy_fail(d->s, "header: ':' is missing");
        if (field == 1) MLC__TRY(mlc__npy_descr(d, a));
        if (field == 2) MLC__TRY(mlc__npy_shape(d, a));
        if (field == 4) MLC__TRY(mlc__npy_order(d, a));
        mlc__dict_space(d);
        if (!mlc__dict_take(d, ',') && *d->at != '}')
            return mlc__npy_fail(d->s, "header: ',' or '}' is missing");
    }
    mlc__dict_space(d);
    if (*d->at) return mlc__npy_fail(d->s, "header: text after its end");
    return seen == 7 ? MLC_OK : mlc__npy_fail(d->s, "header: descr, shape or order is missing");
}

#define MLC__NPY_HEADER 10000          /* most bytes of a header, as numpy itself has it */

static mlc_status mlc__npy_header(mlc__source *s, mlc__npy *a)
{
    unsigned char raw[12] = { 0 };
    size_t n = 0, digits;
    mlc_ctx *ctx = s->file->ctx;
    mlc__dict d = { s, NULL };
    memset(a, 0, sizeof *a);
    if (s->left < 10) return mlc__npy_fail(s, "too short for a .npy file");
    MLC__TRY(mlc__source_read(s, raw, 8));
    if (memcmp(raw, "\x93NUMPY", 6) != 0)
        return mlc__npy_fail(s, "no .npy file: it must begin with \\x93NUMPY");
    if (raw[6] < 1 || raw[6] > 3 || raw[7] != 0)
        return mlc__npy_fail(s, "a version of .npy other than 1.0, 2.0 and 3.0");
    digits = raw[6] == 1 ? 2 : 4;
    MLC__TRY(mlc__source_read(s, raw, digits));
    for (size_t i = digits; i-- > 0;) n = n << 8 | raw[i];
    if (n > MLC__NPY_HEADER || (int64_t)n > s->left)
        return mlc__npy_fail(s, "the header is longer than 10000 bytes or the file");
    char *text = MLC__CAST(char *, mlc__heap_alloc(ctx, n + 1, MLC_MEM_OBJECT, "npy_load"));
    if (!text) return MLC_ERR_NOMEM;
    mlc_status st = mlc__source_read(s, text, n);
    d.at = text;
    if (!st && memchr(text, 0, n)) st = mlc__npy_fail(s, "header: a NUL byte");
    if (!st) st = mlc__npy_dict(&d, a);
    mlc__heap_free(ctx, text);
    return st;
}

/* -- the data of an array -- */

/* The dtype that holds all values of the file's. */
static mlc_dtype mlc__npy_dtype(const mlc__npy *a)
{
    if (a->kind == 'f') return a->bytes == 2 ? MLC_F16 : a->bytes == 4 ? MLC_F32 : MLC_F64;
    if (a->kind == 'b') return MLC_BOOL;
    if (a->kind == 'u' && a->bytes == 4) return MLC_I64;
    if (a->kind == 'u') return a->bytes == 1 ? MLC_U8 : MLC_I32;
    return a->bytes == 1 ? MLC_I8 : a->bytes == 8 ? MLC_I64 : MLC_I32;
}

/* n elements of `bytes` bytes in the order of this host: to i32 or i64 where the dtype is wider, in
 * place from the end. bool becomes 0 and 1. */
static void mlc__npy_convert(const mlc__npy *a, unsigned char *data, int64_t n)
{
    const int b = a->bytes;
    for (int64_t i = 0; a->swap && i < n; i++)
        for (int k = 0; k < b / 2; k++) {
            unsigned char *x = data + i * b + k, *y = data + i * b + b - 1 - k, keep = *x;
            *x = *y;
            *y = keep;
        }
    for (int64_t i = 0; a->kind == 'b' && i < n; i++) data[i] = data[i] != 0;
    const bool widens = a->kind != 'f' && (b == 2 || (b == 4 && a->kind == 'u'));
    for (int64_t i = n; widens && i-- > 0;) {
        uint32_t u = 0;
        memcpy(&u, data + i * b, (size_t)b);
        const int64_t wide = a->kind == 'i' ? (int16_t)u : (int64_t)u;
        const int32_t narrow = (int32_t)wide;
        if (b == 4) memcpy(data + i * 8, &wide, 8);
        else memcpy(data + i * 4, &narrow, 4);
    }
}

/* Bytes of the elements, checked against what is left; -1 and an error if they do not fit. */
static int64_t mlc__npy_bytes(const mlc__source *s, const mlc__npy *a)
{
    int64_t count = 1, nonzero = 1, bytes;
    for (int32_t d = 0; d < a->ndim; d++) {
        if (__builtin_mul_overflow(nonzero, mlc__max(1, a->shape[d]), &nonzero) ||
            nonzero > PTRDIFF_MAX / 16) {
            mlc__npy_fail(s, "the shape has more elements than memory can hold");
            return -1;
        }
        count *= a->shape[d];
    }
    bytes = count * a->bytes;
    if (bytes <= s->left) return bytes;
    mlc__npy_fail(s, "the data is shorter than its header says");
    return -1;
}

/* Elements `from` to from + n of the row-major result, as they lie in the file: read on, or picked
 * from all of the file's, which are column-major. */
static mlc_status mlc__npy_take(mlc__source *s, const mlc__npy *a, const unsigned char *all,
                                unsigned char *to, int64_t from, int64_t n)
{
    int64_t at = 0, index[MLC_MAX_DIMS] = { 0 }, stride[MLC_MAX_DIMS], step = 1;
    if (!all) return mlc__source_read(s, to, (size_t)(n * a->bytes));
    for (int32_t d = 0; d < a->ndim; step *= a->shape[d++]) stride[d] = step;
    for (int32_t d = a->ndim - 1; d >= 0; from /= a->shape[d--]) {
        index[d] = from % a->shape[d];
        at += index[d] * stride[d];
    }
    for (int64_t i = 0; i < n; i++) {
        memcpy(to + i * a->bytes, all + at * a->bytes, (size_t)a->bytes);
        for (int32_t d = a->ndim - 1; d >= 0; d--) {       /* to the next index, row by row */
            at += stride[d];
            if (++index[d] < a->shape[d]) break;
            at -= stride[d] * a->shape[d];
            index[d] = 0;
        }
    }
    return MLC_OK;
}

#define MLC__NPY_STEP 65536            /* elements on their way to a device */

/* On the host all at once in the tensor itself, to a device in steps, so that nothing takes much
 * more memory than the result. all: the bytes of a column-major file, or NULL. */
static mlc_status mlc__npy_fill(mlc__source *s, const mlc__npy *a, mlc_tensor *t,
                                const unsigned char *all)
{
    mlc_ctx *ctx = t->ctx;
    const int64_t n = mlc__numel(t), step = ctx->on_host ? n : mlc__min(n, MLC__NPY_STEP);
    const int64_t size = (int64_t)mlc__size(t);
    unsigned char *copy = NULL;
    mlc_status st = MLC_OK;
    if (!ctx->on_host && !(copy = MLC__CAST(unsigned char *, mlc__heap_alloc(ctx,
                           (size_t)(step * size), MLC_MEM_OBJECT, "npy_load"))))
        return MLC_ERR_NOMEM;
    for (int64_t at = 0; at < n && !st; at += step) {
        const int64_t now = mlc__min(step, n - at);
        unsigned char *data = MLC__CAST(unsigned char *, mlc__data(t)) + at * size;
        st = mlc__npy_take(s, a, all, copy ? copy : data, at, now);
        if (!st) mlc__npy_convert(a, copy ? copy : data, now);
        if (!st && copy) st = mlc__device_copy(ctx, data, copy, (size_t)(now * size),
                                               MLC_COPY_TO_DEVICE);
    }
    mlc__heap_free(ctx, copy);
    return st;
}

/* An array from where the source stands. */
static mlc_tensor *mlc__npy_read(mlc__source *s)
{
    mlc_ctx *ctx = s->file->ctx;
    mlc__npy a;
    unsigned char *all = NULL;
    if (mlc__npy_header(s, &a) != MLC_OK) return NULL;
    const int64_t bytes = mlc__npy_bytes(s, &a);
    if (bytes < 0) return NULL;
    mlc_tensor *t = mlc__make(ctx, "npy_load", mlc__npy_dtype(&a), mlc_dims_of(a.ndim, a.shape));
    if (!t || bytes == 0) return t;
    mlc_status st = MLC_OK;
    if (a.fortran && a.ndim > 1) {
        all = MLC__CAST(unsigned char *, mlc__heap_alloc(ctx, (size_t)bytes, MLC_MEM_OBJECT,
                                                         "npy_load"));
        st = all ? mlc__source_read(s, all, (size_t)bytes) : MLC_ERR_NOMEM;
    }
    if (!st) st = mlc__npy_fill(s, &a, t, all);
    mlc__heap_free(ctx, all);
    return st == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_npy_load(mlc_ctx *ctx, const char *path)
{
    mlc__file f;
    mlc__source s;
    if (!ctx) return NULL;
    if (!path) {
        mlc__fail(ctx, MLC_ERR_ARG, "npy_load: path is NULL; give a file's name");
        return NULL;
    }
    if (mlc__file_open(&f, ctx, path) != MLC_OK) return NULL;
    memset(&s, 0, sizeof s);
    s.file = &f;
    s.left = f.size;
    mlc_tensor *t = mlc__npy_read(&s);
    mlc__file_close(&f);
    return t;
}

/* -- writing -- */

static const char *mlc__npy_code(mlc_dtype dtype)
{
    static const char *const codes[MLC_DTYPE_COUNT] = { "<f4", "<f8", "<i8", "<f4", "<f2", "<i4",
                                                        "|i1", "|u1", "|b1" };
    return codes[dtype];
}

/* A tensor as the file wants it: dense bytes in host memory, its own where they lie so. */
typedef struct mlc__npy_data {
    char        header[512];
    size_t      header_bytes, bytes;
    const void *data;
    void       *copy;                  /* to be freed */
} mlc__npy_data;

/* Magic, version 1, length, dict, spaces and a newline up to a multiple of 64. */
static void mlc__npy_describe(const mlc_tensor *t, mlc__npy_data *d)
{
    char *text = d->header + 10;
    size_t n = (size_t)snprintf(text, 200, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                                mlc__npy_code(t->dtype));
    for (int32_t i = 0; i < t->ndim; i++)
        n += (size_t)snprintf(text + n, 40, i ? ", %lld" : "%lld", (long long)t->shape[i]);
    n += (size_t)snprintf(text + n, 40, t->ndim == 1 ? ",), }" : "), }");
    while ((n + 11) % 64) text[n++] = ' ';
    text[n++] = '\n';
    memcpy(d->header, "\x93NUMPY\1", 8);                   /* and the 0 of version 1.0 */
    d->header[8] = (char)(n & 255);
    d->header[9] = (char)(n >> 8);
    d->header_bytes = n + 10;
}

/* mlc__npy_data_end frees what this takes, also after a failure. */
static mlc_status mlc__npy_data_begin(mlc_tensor *t, mlc__npy_data *d)
{
    mlc_ctx *ctx = t->ctx;
    const bool wide = t->dtype == MLC_BF16;
    d->copy = NULL;
    mlc__npy_describe(t, d);
    d->bytes = (size_t)mlc__numel(t) * (wide ? 4 : mlc__size(t));
    d->data = d->header;               /* of no elements: any pointer */
    if (d->bytes == 0) return MLC_OK;
    if (ctx->on_host && (t->flags & MLC__DENSE) && !wide) {
        d->data = mlc__data(t);
        return MLC_OK;
    }
    d->data = d->copy = mlc__heap_alloc(ctx, d->bytes, MLC_MEM_OBJECT, "npy_save");
    if (!d->copy) return MLC_ERR_NOMEM;
    MLC__TRY(mlc_read(t, d->copy, (size_t)mlc__numel(t) * mlc__size(t)));
    /* From the end: the wide values grow over the narrow ones. */
    for (int64_t i = mlc__numel(t); wide && i-- > 0;) {
        uint16_t h;
        memcpy(&h, MLC__CAST(char *, d->copy) + 2 * i, 2);
        const float x = mlc__f32_of_bf16(h);
        memcpy(MLC__CAST(char *, d->copy) + 4 * i, &x, 4);
    }
    return MLC_OK;
}

static void mlc__npy_data_end(mlc_ctx *ctx, mlc__npy_data *d) { mlc__heap_free(ctx, d->copy); }

MLC_IMPL mlc_status mlc_npy_save(mlc_tensor *t, const char *path)
{
    mlc__npy_data d;
    mlc__atomic a;
    if (!t) return MLC_ERR_ARG;
    MLC__REQUIRE(t->ctx, path && path[0], ARG, "npy_save: no path; give a file's name");
    MLC__TRY(mlc__alive(t, "npy_save"));
    mlc_status st = mlc__npy_data_begin(t, &d);
    if (!st) st = mlc__atomic_begin(&a, t->ctx, path);
    if (!st) {
        st = mlc__file_write(&a.file, d.header, d.header_bytes);
        if (!st) st = mlc__file_write(&a.file, d.data, d.bytes);
        st = mlc__atomic_end(&a, st);
    }
    mlc__npy_data_end(t->ctx, &d);
    return st;
}

/* -- zip -- */

#define MLC__ZIP_MANY  65535u
#define MLC__ZIP_LARGE 0xFFFFFFFFu     /* stands where a number of 8 bytes is elsewhere */
#if defined(MLC_TEST_TINY)
#  define MLC__ZIP_WIDE 256u           /* from here on numbers have 8 bytes */
#else
#  define MLC__ZIP_WIDE MLC__ZIP_LARGE
#endif

static uint64_t mlc__le(const unsigned char *p, int n)
{
    uint64_t v = 0;
    while (n-- > 0) v = v << 8 | p[n];
    return v;
}

static void mlc__le_put(unsigned char *p, int n, uint64_t v)
{
    for (int i = 0; i < n; i++) p[i] = (unsigned char)(v >> 8 * i);
}

typedef struct mlc__zip_entry {        /* of the central directory */
    char    *name;                     /* without ".npy" */
    uint32_t crc;
    uint16_t method;
    int64_t  packed, bytes, offset, data;                  /* data: where it begins */
} mlc__zip_entry;

typedef struct mlc__zip {
    mlc__file       file;
    unsigned char  *directory;
    int64_t         directory_at, directory_bytes, count;
    mlc__zip_entry *entries;
} mlc__zip;

static mlc_status mlc__zip_fail(const mlc__zip *z, const char *why)
{
    return mlc__fail(z->file.ctx, MLC_ERR_IO, "'%s': %s", z->file.path, why);
}

/* Reads n bytes at an offset which is checked. */
static mlc_status mlc__zip_read(mlc__zip *z, int64_t at, void *to, int64_t n)
{
    if (at < 0 || at > z->file.size || n > z->file.size - at)
        return mlc__zip_fail(z, "a part of the zip lies outside the file");
    MLC__TRY(mlc__file_seek(&z->file, at));
    return mlc__file_read(&z->file, to, (size_t)n);
}

/* Numbers too large for the end record stand in another one before it. */
static mlc_status mlc__zip_end64(mlc__zip *z, int64_t end)
{
    unsigned char r[56] = { 0 };
    MLC__TRY(mlc__zip_read(z, end - 20, r, 20));
    if (mlc__le(r, 4) != 0x07064b50) return mlc__zip_fail(z, "the zip64 end record is missing");
    const uint64_t at = mlc__le(r + 8, 8);
    if (at > (uint64_t)z->file.size) return mlc__zip_fail(z, "the zip64 end record is missing");
    MLC__TRY(mlc__zip_read(z, (int64_t)at, r, 56));
    if (mlc__le(r, 4) != 0x06064b50) return mlc__zip_fail(z, "the zip64 end record is missing");
    const uint64_t count = mlc__le(r + 32, 8), bytes = mlc__le(r + 40, 8);
    const uint64_t from = mlc__le(r + 48, 8);
    if (count > (uint64_t)z->file.size / 46 || bytes > (uint64_t)z->file.size ||
        from > (uint64_t)z->file.size)
        return mlc__zip_fail(z, "the zip's directory lies outside the file");
    z->count = (int64_t)count;
    z->directory_bytes = (int64_t)bytes;
    z->directory_at = (int64_t)from;
    return MLC_OK;
}

/* The end record: the last place in the file where it fits, comment and all. */
static mlc_status mlc__zip_end(mlc__zip *z)
{
    mlc_ctx *ctx = z->file.ctx;
    const int64_t n = mlc__min(z->file.size, 65557);
    mlc_status st;
    int64_t at = n - 22;
    if (n < 22) return mlc__zip_fail(z, "too short for a .npz file");
    unsigned char *tail = MLC__CAST(unsigned char *,
                                    mlc__heap_alloc(ctx, (size_t)n, MLC_MEM_OBJECT, "npz_load"));
    if (!tail) return MLC_ERR_NOMEM;
    st = mlc__zip_read(z, z->file.size - n, tail, n);
    while (!st && at >= 0 && !(mlc__le(tail + at, 4) == 0x06054b50 &&
                               at + 22 + (int64_t)mlc__le(tail + at + 20, 2) == n))
        at--;
    if (!st && at < 0) st = mlc__zip_fail(z, "no .npz file: the zip's end record is missing");
    if (!st) {
        z->count = (int64_t)mlc__le(tail + at + 10, 2);
        z->directory_bytes = (int64_t)mlc__le(tail + at + 12, 4);
        z->directory_at = (int64_t)mlc__le(tail + at + 16, 4);
        if (z->count == MLC__ZIP_MANY || z->directory_bytes == MLC__ZIP_LARGE ||
            z->directory_at == MLC__ZIP_LARGE)
            st = mlc__zip_end64(z, z->file.size - n + at);
    }
    mlc__heap_free(ctx, tail);
    return st;
}

/* Sizes of 0xFFFFFFFF stand in the extra field 1, in this order, those that are needed. */
static mlc_status mlc__zip_wide(mlc__zip *z, mlc__zip_entry *e, const unsigned char *extra,
                                int64_t n)
{
    int64_t *want[3] = { &e->bytes, &e->packed, &e->offset };
    while (n >= 4) {
        const int64_t id = (int64_t)mlc__le(extra, 2), size = (int64_t)mlc__le(extra + 2, 2);
        if (size > n - 4) break;
        for (int i = 0, at = 4; id == 1 && i < 3; i++) {
            if (*want[i] != MLC__ZIP_LARGE) continue;
            if (at + 8 > 4 + size) return mlc__zip_fail(z, "a size of the zip is missing");
            const uint64_t v = mlc__le(extra + at, 8);
            if (v > (uint64_t)INT64_MAX)
                return mlc__zip_fail(z, "a size of the zip is larger than the file allows");
            *want[i] = (int64_t)v;
            at += 8;
        }
        extra += 4 + size;
        n -= 4 + size;
    }
    return MLC_OK;
}

/* A name that is a file's, without NUL, ".npy" taken off. */
static mlc_status mlc__zip_name(mlc__zip *z, mlc__zip_entry *e, const unsigned char *name,
                                int64_t n)
{
    mlc_ctx *ctx = z->file.ctx;
    if (memchr(name, 0, (size_t)n)) return mlc__zip_fail(z, "a name with a NUL byte");
    e->name = MLC__CAST(char *, mlc__arena(ctx, ctx->depth, (size_t)n + 1));
    if (!e->name) return MLC_ERR_NOMEM;
    if (n >= 4 && memcmp(name + n - 4, ".npy", 4) == 0) n -= 4;
    memcpy(e->name, name, (size_t)n);
    e->name[n] = 0;
    return MLC_OK;
}

/* One record of the directory; *used is its length. */
static mlc_status mlc__zip_record(mlc__zip *z, const unsigned char *r, int64_t left,
                                  mlc__zip_entry *e, int64_t *used)
{
    if (left < 46 || mlc__le(r, 4) != 0x02014b50)
        return mlc__zip_fail(z, "the zip's directory is damaged");
    const int64_t name = (int64_t)mlc__le(r + 28, 2), extra = (int64_t)mlc__le(r + 30, 2);
    const int64_t comment = (int64_t)mlc__le(r + 32, 2);
    *used = 46 + name + extra + comment;
    if (*used > left) return mlc__zip_fail(z, "the zip's directory is damaged");
    e->method = (uint16_t)mlc__le(r + 10, 2);
    e->crc = (uint32_t)mlc__le(r + 16, 4);
    e->packed = (int64_t)mlc__le(r + 20, 4);
    e->bytes = (int64_t)mlc__le(r + 24, 4);
    e->offset = (int64_t)mlc__le(r + 42, 4);
    if (mlc__le(r + 8, 2) & 1u) return mlc__zip_fail(z, "the zip is encrypted");
    if (e->method != 0 && e->method != 8)
        return mlc__zip_fail(z, "the zip has a compression that is neither stored nor deflate");
    MLC__TRY(mlc__zip_wide(z, e, r + 46 + name, extra));
    if (e->method == 0 && e->packed != e->bytes)
        return mlc__zip_fail(z, "a stored entry has two sizes");
    if (e->packed > z->file.size || e->bytes / 1032 > e->packed)       /* deflate's best ratio */
        return mlc__zip_fail(z, "a size of the zip is larger than the file allows");
    return mlc__zip_name(z, e, r + 46, name);
}

/* Where the entry's data begins: only its own header tells, whose sizes nobody reads. */
static mlc_status mlc__zip_local(mlc__zip *z, mlc__zip_entry *e)
{
    unsigned char r[30] = { 0 };
    MLC__TRY(mlc__zip_read(z, e->offset, r, 30));
    if (mlc__le(r, 4) != 0x04034b50) return mlc__zip_fail(z, "an entry's own header is missing");
    e->data = e->offset + 30 + (int64_t)mlc__le(r + 26, 2) + (int64_t)mlc__le(r + 28, 2);
    if (e->data > z->directory_at || e->packed > z->directory_at - e->data)
        return mlc__zip_fail(z, "an entry runs into the zip's directory");
    return MLC_OK;
}

static int mlc__zip_by_offset(const void *a, const void *b)
{
    const int64_t x = MLC__CAST(const mlc__zip_entry *, a)->offset;
    const int64_t y = MLC__CAST(const mlc__zip_entry *, b)->offset;
    return x < y ? -1 : x > y;
}

static int mlc__zip_by_name(const void *a, const void *b)
{
    return strcmp(MLC__CAST(const mlc__zip_entry *, a)->name,
                  MLC__CAST(const mlc__zip_entry *, b)->name);
}

/* All entries, none over another, names once each. */
static mlc_status mlc__zip_entries(mlc__zip *z)
{
    mlc_ctx *ctx = z->file.ctx;
    const unsigned char *at = z->directory;
    int64_t left = z->directory_bytes, used = 0;
    for (int64_t i = 0; i < z->count; i++, at += used, left -= used) {
        MLC__TRY(mlc__zip_record(z, at, left, &z->entries[i], &used));
        MLC__TRY(mlc__zip_local(z, &z->entries[i]));
    }
    if (left) return mlc__zip_fail(z, "the zip's directory has text after its last entry");
    if (z->count) qsort(z->entries, (size_t)z->count, sizeof *z->entries, mlc__zip_by_offset);
    for (int64_t i = 1; i < z->count; i++)
        if (z->entries[i - 1].data + z->entries[i - 1].packed > z->entries[i].offset)
            return mlc__zip_fail(z, "entries of the zip overlap");
    if (z->count) qsort(z->entries, (size_t)z->count, sizeof *z->entries, mlc__zip_by_name);
    for (int64_t i = 1; i < z->count; i++)
        MLC__REQUIRE(ctx, strcmp(z->entries[i - 1].name, z->entries[i].name) != 0, IO,
                     "'%s': two entries named '%.100s'", z->file.path, z->entries[i].name);
    return MLC_OK;
}

/* The directory, sorted by name. */
static mlc_status mlc__zip_open(mlc__zip *z)
{
    mlc_ctx *ctx = z->file.ctx;
    MLC__TRY(mlc__zip_end(z));
    if (z->directory_at > z->file.size || z->directory_bytes > z->file.size - z->directory_at ||
        z->count > z->directory_bytes / 46)
        return mlc__zip_fail(z, "the zip's directory lies outside the file");
    z->directory = MLC__CAST(unsigned char *, mlc__heap_alloc(ctx, (size_t)z->directory_bytes + 1,
                                                              MLC_MEM_OBJECT, "npz_load"));
    z->entries = MLC__CAST(mlc__zip_entry *,
                           mlc__heap_alloc(ctx, ((size_t)z->count + 1) * sizeof *z->entries,
                                           MLC_MEM_OBJECT, "npz_load"));
    if (!z->directory || !z->entries) return MLC_ERR_NOMEM;
    MLC__TRY(mlc__zip_read(z, z->directory_at, z->directory, z->directory_bytes));
    return mlc__zip_entries(z);
}

/* Reads what is left of the entry and compares the checksum. */
static mlc_status mlc__zip_finish(mlc__source *s, const mlc__zip_entry *e)
{
    char rest[512];
    while (s->left) MLC__TRY(mlc__source_read(s, rest, (size_t)mlc__min(s->left, sizeof rest)));
    return s->crc == e->crc ? MLC_OK : mlc__npy_fail(s, "the checksum is wrong");
}

static mlc_tensor *mlc__zip_array(mlc__zip *z, const mlc__zip_entry *e)
{
    mlc__source s;
    memset(&s, 0, sizeof s);
    s.file = &z->file;
    s.entry = e->name;
    s.left = e->bytes;
    mlc__crc_table(s.table);
    if (mlc__file_seek(&z->file, e->data) != MLC_OK) return NULL;
#ifdef MLC_USE_ZLIB
    s.deflated = e->method == 8;
    s.packed = e->packed;
    s.stream.zalloc = mlc__zlib_alloc;
    s.stream.zfree = mlc__zlib_free;
    s.stream.opaque = z->file.ctx;
    if (s.deflated && inflateInit2(&s.stream, -15) != Z_OK) {
        mlc__fail(z->file.ctx, MLC_ERR_NOMEM, "npz_load: out of memory to inflate");
        return NULL;
    }
#else
    if (e->method == 8) {
        mlc__fail(z->file.ctx, MLC_ERR_UNSUPPORTED,
                  "'%s', entry '%.80s': compressed; write it with numpy.savez instead of "
                  "savez_compressed, or compile with MLC_USE_ZLIB", z->file.path, e->name);
        return NULL;
    }
#endif
    mlc_tensor *t = mlc__npy_read(&s);
    const mlc_status st = t ? mlc__zip_finish(&s, e) : MLC_ERR_IO;
#ifdef MLC_USE_ZLIB
    if (s.deflated) inflateEnd(&s.stream);
#endif
    return st == MLC_OK ? t : NULL;
}

static mlc_status mlc__npz_read(mlc__zip *z, const mlc_named **list, int64_t *n)
{
    mlc_ctx *ctx = z->file.ctx;
    MLC__TRY(mlc__zip_open(z));
    mlc_named *named = MLC__CAST(mlc_named *, mlc__arena(ctx, ctx->depth, ((size_t)z->count + 1) *
                                                                          sizeof *named));
    if (!named) return MLC_ERR_NOMEM;
    for (int64_t i = 0; i < z->count; i++) {
        named[i].name = z->entries[i].name;
        named[i].tensor = mlc__zip_array(z, &z->entries[i]);
        if (!named[i].tensor) return ctx->status;
    }
    *list = named;
    *n = z->count;
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_npz_load(mlc_ctx *ctx, const char *path, const mlc_named **list, int64_t *n)
{
    mlc__zip z;
    if (!ctx) return MLC_ERR_ARG;
    MLC__REQUIRE(ctx, path && list && n, ARG, "npz_load: path, list or n is NULL; it takes all "
                 "three");
    *list = NULL;
    *n = 0;
    memset(&z, 0, sizeof z);
    MLC__TRY(mlc__file_open(&z.file, ctx, path));
    const mlc_status st = mlc__npz_read(&z, list, n);
    mlc__file_close(&z.file);
    mlc__heap_free(ctx, z.directory);
    mlc__heap_free(ctx, z.entries);
    return st;
}

/* -- writing a zip -- */

/* One entry as it is written: fields that local header and directory share. */
typedef struct mlc__zip_out {
    char     name[MLC_NAME_BYTES + 8];
    uint32_t crc;
    uint64_t bytes, offset;
} mlc__zip_out;

/* From the version needed up to the extra field's length: in both kinds of header, from here on. */
static void mlc__zip_fields(unsigned char *p, const mlc__zip_out *e, bool wide, int extra)
{
    mlc__le_put(p, 2, wide ? 45 : 20);
    mlc__le_put(p + 2, 2, 0x0800);                         /* names are UTF-8 */
    mlc__le_put(p + 4, 2, 0);                              /* stored */
    mlc__le_put(p + 6, 2, 0);
    mlc__le_put(p + 8, 2, 0x21);                           /* 1980-01-01: the same bytes always */
    mlc__le_put(p + 10, 4, e->crc);
    mlc__le_put(p + 14, 4, wide ? MLC__ZIP_LARGE : e->bytes);
    mlc__le_put(p + 18, 4, wide ? MLC__ZIP_LARGE : e->bytes);
    mlc__le_put(p + 22, 2, strlen(e->name));
    mlc__le_put(p + 24, 2, (uint64_t)extra);
}

MLC__INLINE bool mlc__zip_is_wide(const mlc__zip_out *e)
{
    return e->bytes >= MLC__ZIP_WIDE || e->offset >= MLC__ZIP_WIDE;
}

/* Both sizes and the offset, 8 bytes each. */
static void mlc__zip_extra(unsigned char *p, const mlc__zip_out *e)
{
    mlc__le_put(p, 2, 1);
    mlc__le_put(p + 2, 2, 24);
    mlc__le_put(p + 4, 8, e->bytes);
    mlc__le_put(p + 12, 8, e->bytes);
    mlc__le_put(p + 20, 8, e->offset);
}

/* at: where in the file; moved on. */
static mlc_status mlc__zip_put(mlc__file *f, const void *data, size_t n, uint64_t *at)
{
    *at += n;
    return mlc__file_write(f, data, n);
}

static mlc_status mlc__zip_put_entry(mlc__file *f, mlc__zip_out *e, mlc_tensor *t,
                                     const uint32_t *table, uint64_t *at)
{
    mlc__npy_data d;
    unsigned char head[30], extra[28];
    mlc_status st = mlc__npy_data_begin(t, &d);
    if (!st) {
        e->offset = *at;
        e->bytes = d.header_bytes + d.bytes;
        e->crc = mlc__crc(table, 0, d.header, d.header_bytes);
        e->crc = mlc__crc(table, e->crc, d.data, d.bytes);
        const bool wide = mlc__zip_is_wide(e);
        mlc__le_put(head, 4, 0x04034b50);
        mlc__zip_fields(head + 4, e, wide, wide ? 28 : 0);
        mlc__zip_extra(extra, e);
        st = mlc__zip_put(f, head, 30, at);
        if (!st) st = mlc__zip_put(f, e->name, strlen(e->name), at);
        if (!st && wide) st = mlc__zip_put(f, extra, 28, at);
        if (!st) st = mlc__zip_put(f, d.header, d.header_bytes, at);
        if (!st) st = mlc__zip_put(f, d.data, d.bytes, at);
    }
    mlc__npy_data_end(t->ctx, &d);
    return st;
}

static mlc_status mlc__zip_put_record(mlc__file *f, const mlc__zip_out *e, uint64_t *at)
{
    unsigned char r[46], extra[28];
    const bool wide = mlc__zip_is_wide(e);
    memset(r, 0, sizeof r);
    mlc__le_put(r, 4, 0x02014b50);
    mlc__le_put(r + 4, 2, 45);
    mlc__zip_fields(r + 6, e, wide, wide ? 28 : 0);
    mlc__le_put(r + 42, 4, wide ? MLC__ZIP_LARGE : e->offset);
    mlc__zip_extra(extra, e);
    MLC__TRY(mlc__zip_put(f, r, 46, at));
    MLC__TRY(mlc__zip_put(f, e->name, strlen(e->name), at));
    return wide ? mlc__zip_put(f, extra, 28, at) : MLC_OK;
}

/* The end of the file; the large numbers in a record of their own if they do not fit. */
static mlc_status mlc__zip_put_end(mlc__file *f, uint64_t n, uint64_t from, uint64_t at)
{
    unsigned char r[56 + 20 + 22];
    const uint64_t bytes = at - from;
    const bool wide = n >= MLC__ZIP_MANY || bytes >= MLC__ZIP_WIDE || from >= MLC__ZIP_WIDE;
    memset(r, 0, sizeof r);
    mlc__le_put(r, 4, 0x06064b50);
    mlc__le_put(r + 4, 8, 44);
    mlc__le_put(r + 12, 2, 45);
    mlc__le_put(r + 14, 2, 45);
    mlc__le_put(r + 24, 8, n);
    mlc__le_put(r + 32, 8, n);
    mlc__le_put(r + 40, 8, bytes);
    mlc__le_put(r + 48, 8, from);
    mlc__le_put(r + 56, 4, 0x07064b50);
    mlc__le_put(r + 64, 8, at);
    mlc__le_put(r + 72, 4, 1);
    mlc__le_put(r + 76, 4, 0x06054b50);
    mlc__le_put(r + 84, 2, wide ? MLC__ZIP_MANY : n);
    mlc__le_put(r + 86, 2, wide ? MLC__ZIP_MANY : n);
    mlc__le_put(r + 88, 4, wide ? MLC__ZIP_LARGE : bytes);
    mlc__le_put(r + 92, 4, wide ? MLC__ZIP_LARGE : from);
    return wide ? mlc__file_write(f, r, sizeof r) : mlc__file_write(f, r + 76, 22);
}

static mlc_status mlc__npz_write(mlc__file *f, mlc__zip_out *out, const mlc_named *list, int64_t n)
{
    uint32_t table[256];
    uint64_t at = 0;
    mlc__crc_table(table);
    for (int64_t i = 0; i < n; i++)
        MLC__TRY(mlc__zip_put_entry(f, &out[i], list[i].tensor, table, &at));
    const uint64_t from = at;
    for (int64_t i = 0; i < n; i++) MLC__TRY(mlc__zip_put_record(f, &out[i], &at));
    return mlc__zip_put_end(f, (uint64_t)n, from, at);
}

/* Names as they will be in the zip; each once. sorted has room for n. */
static mlc_status mlc__npz_names(mlc_ctx *ctx, mlc__zip_out *out, mlc_named *sorted,
                                 const mlc_named *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        MLC__REQUIRE(ctx, list[i].name && list[i].tensor, ARG,
                     "npz_save: entry %lld has no name or tensor; give both", (long long)i);
        MLC__REQUIRE(ctx, mlc__utf8_ok(list[i].name) && strlen(list[i].name) < MLC_NAME_BYTES, ARG,
                     "npz_save: the name of entry %lld is not UTF-8 or over %d bytes", (long long)i,
                     MLC_NAME_BYTES - 1);
        MLC__TRY(mlc__alive(list[i].tensor, "npz_save"));
        snprintf(out[i].name, sizeof out[i].name, "%s.npy", list[i].name);
        sorted[i] = list[i];
    }
    if (n) qsort(sorted, (size_t)n, sizeof *sorted, mlc__named_by_name);
    for (int64_t i = 1; i < n; i++)
        MLC__REQUIRE(ctx, strcmp(sorted[i - 1].name, sorted[i].name) != 0, ARG,
                     "npz_save: two arrays named '%.100s'; rename one", sorted[i].name);
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_npz_save(mlc_ctx *ctx, const char *path, const mlc_named *list, int64_t n)
{
    mlc__atomic a;
    if (!ctx) return MLC_ERR_ARG;
    MLC__REQUIRE(ctx, path && path[0] && n >= 0 && (list || n == 0), ARG,
                 "npz_save: no path or no list; it takes both");
    MLC__REQUIRE(ctx, n <= MLC__ZIP_MANY, ARG, "npz_save: %lld arrays, a .npz has at most %u",
                 (long long)n, MLC__ZIP_MANY);
    mlc__zip_out *out = MLC__CAST(mlc__zip_out *,
                                  mlc__heap_alloc(ctx, ((size_t)n + 1) * sizeof *out,
                                                  MLC_MEM_OBJECT, "npz_save"));
    mlc_named *sorted = MLC__CAST(mlc_named *, mlc__heap_alloc(ctx, ((size_t)n + 1) *
                                                  sizeof *sorted, MLC_MEM_OBJECT, "npz_save"));
    mlc_status st = out && sorted ? mlc__npz_names(ctx, out, sorted, list, n) : MLC_ERR_NOMEM;
    if (!st) st = mlc__atomic_begin(&a, ctx, path);
    if (!st) st = mlc__atomic_end(&a, mlc__npz_write(&a.file, out, list, n));
    mlc__heap_free(ctx, out);
    mlc__heap_free(ctx, sorted);
    return st;
}

/* @@ IMPL.IO.STATE ------------------------------------- parameters of a module, to a file and back
 * Names are dotted paths, as PyTorch's, so that its state dicts load as they are. Loading has three
 * passes: check all names, shapes and dtypes, read what is wanted, and only then change anything.
 * What does not fit is collected, so that one message names all of it. A shared parameter is saved
 * under its first name and taken from a file under any of them: safetensors keeps one of its own
 * choice, torch.save all. */

/* What the walks of mlc_save share. */
typedef struct mlc__state {
    mlc_named *list;                   /* NULL: only count */
    int64_t    n;
    char      *names;                  /* n names of MLC_NAME_BYTES */
} mlc__state;

/* First walk (list NULL) counts, second one fills in. */
static bool mlc__state_add(void *user, mlc__param *p, const char *name)
{
    mlc__state *s = MLC__CAST(mlc__state *, user);
    if (s->list) {
        char *copy = s->names + s->n * MLC_NAME_BYTES;
        mlc__copy_text(copy, MLC_NAME_BYTES, name);
        s->list[s->n].name = copy;
        s->list[s->n].tensor = &p->t;
    }
    s->n++;
    return true;
}

MLC_IMPL mlc_status mlc_save(mlc_module *m, const char *path)
{
    mlc__state s;
    mlc_status st = MLC_ERR_NOMEM;
    if (!m) return MLC_ERR_ARG;
    MLC__TRY(mlc_module_build(m));
    memset(&s, 0, sizeof s);
    mlc__params(m, mlc__state_add, &s);
    const size_t n = (size_t)s.n;
    s.n = 0;
    s.list = MLC__CAST(mlc_named *,
                       mlc__heap_alloc(m->ctx, (n + 1) * sizeof *s.list, MLC_MEM_OBJECT, "save"));
    s.names = MLC__CAST(char *,
                        mlc__heap_alloc(m->ctx, (n + 1) * MLC_NAME_BYTES, MLC_MEM_OBJECT, "save"));
    if (s.list && s.names) {
        static const char *const metadata[] = { "format", "mlcore", "mlcore.version",
                                                MLC_VERSION_STRING, NULL };
        mlc__params(m, mlc__state_add, &s);
        st = mlc_safetensors_save(m->ctx, path, s.list, s.n, metadata);
    }
    mlc__heap_free(m->ctx, s.list);
    mlc__heap_free(m->ctx, s.names);
    return st;
}

/* -- what the file has for each parameter -- */

typedef enum mlc__load_fit {
    MLC__FITS, MLC__MISSING, MLC__OTHER_SHAPE, MLC__OTHER_DTYPE, MLC__FOREIGN_DTYPE
} mlc__load_fit;

typedef struct mlc__want {             /* a parameter, in the order of the model                */
    mlc__param    *p;
    const char    *name;               /* its first                                             */
    int64_t        entry;              /* of the file; -1: none                                 */
    int64_t        begin;              /* of the data in the file                               */
    mlc__load_fit  fit;
    mlc_tensor    *t;                  /* what is loaded                                        */
} mlc__want;

typedef struct mlc__key {              /* a name of a parameter; a shared one has several       */
    const char *name;
    int64_t     want, entry;
    bool        first;
} mlc__key;

/* keys are sorted by name; unexpected has a flag for each entry of the file. All of it lies in a
 * scope. */
typedef struct mlc__load {
    mlc_module          *m;
    const char          *path;
    const mlc_load_desc *desc;
    mlc_safetensors     *file;
    mlc__want           *want;         /* NULL: the walk only counts */
    mlc__key            *key;
    char                *text;         /* of the names */
    int64_t              wants, keys;
    size_t               bytes;
    bool                *unexpected;
    mlc_load_report      report;
} mlc__load;

/* As mlc__walk, but with all the names of shared parameters. */
static void mlc__load_walk(mlc__load *l, const mlc_module *m, char *name, size_t len)
{
    for (int32_t i = 0; i < m->slots; i++) {
        mlc__param *p = m->slot[i].p;
        const bool first = p->visit != l->m->ctx->visit;
        p->visit = l->m->ctx->visit;
        snprintf(name + len, MLC_NAME_BYTES - len, "%s", m->slot[i].name);
        if (l->want) {
            mlc__key *k = &l->key[l->keys];
            int64_t w = first ? l->wants : 0;
            memcpy(l->text + l->bytes, name, strlen(name) + 1);
            k->name = l->text + l->bytes;
            while (!first && l->want[w].p != p) w++;
            k->want = w;
            k->entry = -1;
            k->first = first;
            if (first) { l->want[w].p = p; l->want[w].name = k->name; }
        }
        l->bytes += strlen(name) + 1;
        l->keys++;
        l->wants += first;
    }
    for (int32_t i = 0; i < m->children; i++) {
        const int n = snprintf(name + len, MLC_NAME_BYTES - len, "%s.", m->child[i]->name);
        const size_t end = len + (size_t)n;
        mlc__load_walk(l, m->child[i], name, end < MLC_NAME_BYTES ? end : MLC_NAME_BYTES - 1);
    }
}

static int mlc__key_by_name(const void *a, const void *b)
{
    return strcmp(MLC__CAST(const mlc__key *, a)->name, MLC__CAST(const mlc__key *, b)->name);
}

/* Two walks, as when saving: count, then fill in. */
static mlc_status mlc__load_names(mlc__load *l)
{
    mlc_ctx *ctx = l->m->ctx;
    char name[MLC_NAME_BYTES] = "";
    const int32_t depth = ctx->depth;
    ctx->visit++;
    mlc__load_walk(l, l->m, name, 0);
    const size_t wants = (size_t)l->wants * sizeof *l->want;
    const size_t keys = (size_t)l->keys * sizeof *l->key, entries = (size_t)l->file->count;
    char *at = MLC__CAST(char *, mlc__arena(ctx, depth, wants + keys + l->bytes + entries));
    if (!at) return MLC_ERR_NOMEM;
    memset(at, 0, wants + keys + l->bytes + entries);
    l->want = (mlc__want *)(void *)at;
    l->key = (mlc__key *)(void *)(at + wants);
    l->text = at + wants + keys;
    l->unexpected = (bool *)(void *)(l->text + l->bytes);
    l->wants = l->keys = 0;
    l->bytes = 0;
    name[0] = 0;
    ctx->visit++;
    mlc__load_walk(l, l->m, name, 0);
    if (l->keys) qsort(l->key, (size_t)l->keys, sizeof *l->key, mlc__key_by_name);
    return MLC_OK;
}

#define MLC__STARS 8                   /* most of them in a rename */

/* Does name match? start and end are of what each '*' stands for, the shortest text that does. */
static bool mlc__rename_match(const char *pattern, const char *name, const char **start,
                              const char **end)
{
    const char *star = NULL;
    int k = -1;
    while (*name) {
        if (*pattern == '*') { k++; start[k] = end[k] = name; star = ++pattern; }
        else if (*pattern == *name) { pattern++; name++; }
        else if (star) { pattern = star; name = ++end[k]; }
        else return false;
    }
    for (; *pattern == '*'; pattern++) { k++; start[k] = end[k] = name; }
    return *pattern == 0;
}

/* The first rename that fits, into to; false if the name is then longer than a model's. */
static bool mlc__load_rename(const mlc_load_desc *d, const char *key, char to[MLC_NAME_BYTES])
{
    const char *start[MLC__STARS], *end[MLC__STARS], *text = key;
    bool fits = false;
    size_t n = 0;
    int star = 0;
    for (int32_t i = 0; i < d->n_renames && !fits; i++) {
        fits = mlc__rename_match(d->renames[i].from, key, start, end);
        if (fits) text = d->renames[i].to;
    }
    for (; *text; text++) {
        const bool copies = fits && *text == '*';
        const char *from = copies ? start[star] : text;
        const size_t len = copies ? (size_t)(end[star] - start[star]) : 1;
        if (n + len >= MLC_NAME_BYTES) return false;
        memcpy(to + n, from, len);
        n += len;
        star += copies;
    }
    to[n] = 0;
    return true;
}

/* Gives each name of the file to the parameter that it is meant for. */
static mlc_status mlc__load_match(mlc__load *l)
{
    const char *prefix = l->desc->prefix ? l->desc->prefix : "";
    const size_t n = strlen(prefix);
    for (int64_t i = 0; i < l->file->count; i++) {
        char name[MLC_NAME_BYTES];
        const char *from = l->file->entries[i].name;
        mlc__key key = { name, 0, 0, false }, *k = NULL;
        if (mlc__load_rename(l->desc, strncmp(from, prefix, n) == 0 ? from + n : from, name) &&
            l->keys)
            k = MLC__CAST(mlc__key *, bsearch(&key, l->key, (size_t)l->keys, sizeof key,
                                              mlc__key_by_name));
        if (k && k->entry >= 0)
            return mlc__fail(l->m->ctx, MLC_ERR_ARG, "load '%.200s': '%.100s' and '%.100s' are "
                             "both named '%.100s' after prefix and renames", l->path,
                             l->file->entries[k->entry].name, from, name);
        if (k) k->entry = i; else l->unexpected[i] = true;
    }
    for (int64_t i = 0; i < l->wants; i++) l->want[i].entry = -1;
    for (int64_t i = 0; i < l->keys; i++) {                /* the first name counts, if given */
        const mlc__key *k = &l->key[i];
        if (k->entry >= 0 && (k->first || l->want[k->want].entry < 0))
            l->want[k->want].entry = k->entry;
    }
    return MLC_OK;
}

static void mlc__load_line(const mlc__load *l, const char *what, const char *name)
{
    char line[MLC_NAME_BYTES + 64];
    const int n = snprintf(line, sizeof line, "%s %.*s\n", what, MLC_NAME_BYTES, name);
    if (l->desc->write) l->desc->write(l->desc->user, line, (size_t)n);
}

/* What fits, counted and, line by line, told. */
static void mlc__load_check(mlc__load *l)
{
    static const char *const what[] = { "", "missing", "size mismatch", "dtype mismatch",
                                        "dtype mismatch" };
    mlc_load_report *r = &l->report;
    for (int64_t i = 0; i < l->wants; i++) {
        mlc__want *w = &l->want[i];
        const mlc__st_entry *e = w->entry >= 0 ? &l->file->entries[w->entry] : NULL;
        const bool same = e && e->ndim == w->p->t.ndim &&
                          memcmp(e->shape, w->p->t.shape, (size_t)e->ndim * sizeof(int64_t)) == 0;
        const bool cast = same && e->dtype != w->p->t.dtype;
        w->fit = !e ? MLC__MISSING : !same ? MLC__OTHER_SHAPE :
                 e->foreign ? MLC__FOREIGN_DTYPE :
                 cast && !l->desc->cast ? MLC__OTHER_DTYPE : MLC__FITS;
        if (e) w->begin = e->begin;
        if (w->fit == MLC__FITS) { r->loaded++; r->cast += cast; continue; }
        if (w->fit == MLC__MISSING) r->missing++; else r->mismatched++;
        mlc__load_line(l, what[w->fit], w->name);
    }
    for (int64_t i = 0; i < l->file->count; i++) {
        if (!l->unexpected[i]) continue;
        r->unexpected++;
        mlc__load_line(l, "unexpected", l->file->entries[i].name);
    }
}

/* -- the error: one message for all that does not fit, in the words of load_state_dict -- */

/* As many items as fit into room, and the number of the others. room is over 100. */
typedef struct mlc__items {
    char        text[MLC__MESSAGE];
    const char *between, *quote;
    size_t      n, room;
    int64_t     count, left_out;
} mlc__items;

/* The first item is there even if it must be cut. */
static void mlc__items_add(mlc__items *l, const char *text)
{
    const size_t len = strlen(text) + 2 * strlen(l->quote) + strlen(l->between);
    l->count++;
    if (l->left_out || (l->count > 1 && l->n + len + 20 > l->room)) { l->left_out++; return; }
    const int most = l->count > 1 ? INT_MAX : (int)l->room - 24;
    l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s%s%.*s%s",
                             l->count > 1 ? l->between : "", l->quote, most, text, l->quote);
}

/* "a", "b", ... (3 more) */
static const char *mlc__items_end(mlc__items *l)
{
    if (l->left_out) snprintf(l->text + l->n, sizeof l->text - l->n, "%s... (%lld more)",
                              l->between, (long long)l->left_out);
    return l->text;
}

/* Shapes as PyTorch prints them: "[2, 3]". */
static mlc__text mlc__load_shape(int32_t ndim, const int64_t *shape)
{
    mlc__text out;
    size_t n = 0;
    out.s[n++] = '[';
    for (int32_t d = 0; d < ndim; d++)
        n += (size_t)snprintf(out.s + n, sizeof out.s - n, d ? ", %lld" : "%lld",
                              (long long)shape[d]);
    snprintf(out.s + n, sizeof out.s - n, "]");
    return out;
}

/* Names of parameters, or what is wrong with them; for FITS the file's names that no one wants. */
static void mlc__load_list(const mlc__load *l, mlc__load_fit fit, mlc__items *items)
{
    for (int64_t i = 0; fit != MLC__FITS && i < l->wants; i++) {
        const mlc__want *w = &l->want[i];
        const mlc_tensor *t = &w->p->t;
        char text[MLC__MESSAGE];
        if (w->fit != fit) continue;
        const mlc__st_entry *e = fit == MLC__MISSING ? NULL : &l->file->entries[w->entry];
        if (fit == MLC__OTHER_SHAPE)
            snprintf(text, sizeof text, "size mismatch for %s: copying a param with shape %s from "
                     "checkpoint, the shape in current model is %s.", w->name,
                     mlc__load_shape(e->ndim, e->shape).s, mlc__load_shape(t->ndim, t->shape).s);
        if (fit == MLC__OTHER_DTYPE)
            snprintf(text, sizeof text, "%s (%s in the file, %s in the model)", w->name,
                     mlc_dtype_name(e->dtype), mlc_dtype_name(t->dtype));
        if (fit == MLC__FOREIGN_DTYPE)
            snprintf(text, sizeof text, "%s (%.40s)", w->name, e->foreign);
        mlc__items_add(items, e ? text : w->name);
    }
    for (int64_t i = 0; fit == MLC__FITS && i < l->file->count; i++)
        if (l->unexpected[i]) mlc__items_add(items, l->file->entries[i].name);
}

/* What does not fit and is not allowed; the parts share the room that is left. */
static mlc_status mlc__load_verdict(const mlc__load *l)
{
    static const struct { const char *format, *between, *quote; mlc__load_fit fit; } part[] = {
        { " Missing key(s) in state_dict: %s.", ", ", "\"", MLC__MISSING },
        { " Unexpected key(s) in state_dict: %s.", ", ", "\"", MLC__FITS },
        { " %s", " ", "", MLC__OTHER_SHAPE },
        { " dtype mismatch for %s; mlc_load_ex with desc.cast converts.", ", ", "",
          MLC__OTHER_DTYPE },
        { " dtype not known to this mlcore for %s.", ", ", "", MLC__FOREIGN_DTYPE } };
    bool tell[MLC__COUNT(part)] = { l->report.missing && !l->desc->partial,
                     l->report.unexpected && !l->desc->partial, false, false, false };
    char text[MLC__MESSAGE];
    size_t n = (size_t)snprintf(text, sizeof text, "load '%.200s':", l->path);
    for (int64_t i = 0; i < l->wants; i++) {
        if (l->want[i].fit == MLC__OTHER_SHAPE) tell[2] = !l->desc->skip_mismatched;
        if (l->want[i].fit == MLC__OTHER_DTYPE) tell[3] = true;
        if (l->want[i].fit == MLC__FOREIGN_DTYPE) tell[4] = true;
    }
    size_t left = (size_t)tell[0] + tell[1] + tell[2] + tell[3] + tell[4];
    if (!left) return MLC_OK;
    for (int i = 0; i < MLC__COUNT(part); i++) {
        mlc__items items;
        if (!tell[i]) continue;
        memset(&items, 0, sizeof items);
        items.between = part[i].between;
        items.quote = part[i].quote;
        items.room = (sizeof text - n) / left-- - strlen(part[i].format);
        mlc__load_list(l, part[i].fit, &items);
        n += (size_t)snprintf(text + n, sizeof text - n, part[i].format, mlc__items_end(&items));
    }
    return mlc__fail(l->m->ctx, tell[2] ? MLC_ERR_SHAPE : tell[3] || tell[4] ? MLC_ERR_DTYPE :
                                             MLC_ERR_IO, "%s", text);
}

/* -- the data -- */

static int mlc__want_by_data(const void *a, const void *b)
{
    const int64_t x = MLC__CAST(const mlc__want *, a)->begin;
    const int64_t y = MLC__CAST(const mlc__want *, b)->begin;
    return x < y ? -1 : x > y;
}

/* Check all, read all in the order of the file, and only then change anything. */
static mlc_status mlc__load_run(mlc__load *l)
{
    mlc_ctx *ctx = l->m->ctx;
    MLC__TRY(mlc__load_names(l));
    MLC__TRY(mlc__load_match(l));
    mlc__load_check(l);
    MLC__TRY(mlc__load_verdict(l));
    if (l->wants) qsort(l->want, (size_t)l->wants, sizeof *l->want, mlc__want_by_data);
    for (int64_t i = 0; i < l->wants; i++) {
        mlc__want *w = &l->want[i];
        if (w->fit == MLC__FITS) w->t = mlc__st_get(l->file, &l->file->entries[w->entry]);
        if (w->fit == MLC__FITS && !w->t) return ctx->status;
    }
    for (int64_t i = 0; i < l->wants; i++) {
        mlc__want *w = &l->want[i];
        if (!w->t) continue;
        w->p->t.storage->version++;
        MLC__TRY(mlc__cast_into(ctx, "load", &w->p->t, w->t));
    }
    return MLC_OK;
}

static int mlc__stars(const char *text)
{
    int n = 0;
    for (; *text; text++) n += *text == '*';
    return n;
}

/* The file's tensors live in a scope of their own. */
static mlc_status mlc__load_scoped(mlc__load *l)
{
    mlc_ctx *ctx = l->m->ctx;
    MLC__TRY(mlc_scope_begin(ctx));
    l->file = mlc_safetensors_open(ctx, l->path);
    const mlc_status st = l->file ? mlc__load_run(l) : ctx->status;
    mlc_safetensors_close(l->file);
    mlc__scope_leave(ctx);
    return st;
}

MLC_IMPL mlc_status mlc_load_ex(mlc_module *m, const char *path, const mlc_load_desc *desc)
{
    mlc_load_desc none;
    mlc__load l;
    if (!m) return MLC_ERR_ARG;
    MLC__REQUIRE(m->ctx, path, ARG, "load: path is NULL; give a file's name");
    memset(&none, 0, sizeof none);
    memset(&l, 0, sizeof l);
    l.m = m;
    l.path = path;
    l.desc = desc ? desc : &none;
    for (int32_t i = 0; i < l.desc->n_renames; i++) {
        const mlc_rename *r = l.desc->renames ? &l.desc->renames[i] : NULL;
        MLC__REQUIRE(m->ctx, r && r->from && r->to, ARG, "load: rename %d has no name; give from "
                     "and to", i);
        MLC__REQUIRE(m->ctx, mlc__stars(r->from) <= MLC__STARS &&
                             mlc__stars(r->to) <= mlc__stars(r->from), ARG,
                     "load: rename '%.100s' to '%.100s': at most %d '*', and not more in the "
                     "second", r->from, r->to, MLC__STARS);
    }
    mlc_status st = mlc_module_build(m);
    if (!st) st = mlc__load_scoped(&l);
    if (l.desc->report) *l.desc->report = l.report;
    return st;
}

MLC_IMPL mlc_status mlc_load(mlc_module *m, const char *path)
{
    return mlc_load_ex(m, path, NULL);
}

/* @@ IMPL.IO.CSV ----------------------------------------- comma separated values: RFC 4180
 * One reader of fields serves tensors and tables: quotes, doubled quotes, any line end, a byte
 * order mark; a mistake is named with its line and column. A tensor of numbers takes two passes
 * over the text: check and count, then store. A table keeps the text, its fields decoded one behind
 * the other, and finds what types its columns have. Numbers whose digits are an integer below 2^53
 * and whose power of ten is at most 22 are converted here, with one rounding (Clinger's fast path:
 * both factors are f64 without error); the rest goes to strtod, with the locale's own point. */

/* The number in text[0..n), whatever the locale; false if there is none. Up to 19 digits and small
 * powers of ten are exact here; the rest goes to strtod with the locale's own point. */
static bool mlc__number(const char *text, size_t n, double *out)
{
    /* Powers of ten that f64 holds exactly. */
    static const double power[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    uint64_t digits = 0;
    int count = 0, exponent = 0, point = -1;
    size_t i = 0;
    bool negative = false, any = false;
    if (i < n && (text[i] == '-' || text[i] == '+')) negative = text[i++] == '-';
    if (n - i == 3 && ((text[i] | 32) == 'n') && ((text[i + 1] | 32) == 'a') &&
        ((text[i + 2] | 32) == 'n')) {
        *out = MLC__NAN;
        return true;
    }
    if (n - i == 3 && ((text[i] | 32) == 'i') && ((text[i + 1] | 32) == 'n') &&
        ((text[i + 2] | 32) == 'f')) {
        *out = negative ? -MLC__INF : MLC__INF;
        return true;
    }
    for (; i < n && ((text[i] >= '0' && text[i] <= '9') || (text[i] == '.' && point < 0)); i++) {
        if (text[i] == '.') { point = 0; continue; }
        any = true;
        if (point >= 0) point++;
        if (digits || text[i] != '0') count++;
        /* 19 digits fit 64 bits; with more the fast path is not taken. */
        if (count <= 19) digits = digits * 10 + (uint64_t)(text[i] - '0');
    }
    if (!any) return false;
    if (i < n && (text[i] | 32) == 'e') {
        bool minus = false;
        if (++i < n && (text[i] == '-' || text[i] == '+')) minus = text[i++] == '-';
        if (i >= n) return false;
        for (; i < n && text[i] >= '0' && text[i] <= '9'; i++)
            /* Bounded, not refused: the number is then 0 or inf, and strtod knows. */
            if (exponent < 100000) exponent = exponent * 10 + (text[i] - '0');
        if (minus) exponent = -exponent;
    }
    if (i != n) return false;
    const int scale = exponent - (point > 0 ? point : 0);
    if (count <= 19 && digits < (1ull << 53) && scale >= -22 && scale <= 22) {
        *out = scale < 0 ? (double)digits / power[-scale] : (double)digits * power[scale];
        if (negative) *out = -*out;
        return true;
    }
    /* A field that does not fit is no sensible number. */
    char copy[512];
    const char *dot = localeconv()->decimal_point;
    size_t to = 0;
    for (size_t k = 0; k < n; k++) {
        const char *piece = text[k] == '.' ? dot : NULL;
        const size_t len = piece ? strlen(piece) : 1;
        if (to + len >= sizeof copy) return false;
        memcpy(copy + to, piece ? piece : text + k, len);
        to += len;
    }
    copy[to] = 0;
    *out = strtod(copy, NULL);
    return true;
}

/* An integer that fits 64 bits, with an optional sign. */
static bool mlc__whole_number(const char *text, size_t n, int64_t *out)
{
    const bool negative = n > 0 && text[0] == '-';
    size_t i = n > 0 && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    if (i == n) return false;
    for (*out = 0; i < n; i++) {
        const int d = text[i] - '0';
        if (d < 0 || d > 9 || __builtin_mul_overflow(*out, 10, out)) return false;
        if (negative ? __builtin_sub_overflow(*out, d, out) : __builtin_add_overflow(*out, d, out))
            return false;
    }
    return true;
}

/* "", NA, N/A, null and NaN: nothing was measured. */
static bool mlc__csv_is_missing(const char *text, size_t n)
{
    static const char *const words[] = { "", "NA", "N/A", "null", "NULL", "nan", "NaN", "NAN" };
    for (int i = 0; i < MLC__COUNT(words); i++)
        if (strlen(words[i]) == n && memcmp(words[i], text, n) == 0) return true;
    return false;
}

typedef struct mlc__csv {
    mlc_ctx      *ctx;
    const char   *path;
    char         *text;
    size_t        at, n;
    mlc_csv_desc  desc;
    int64_t       rows, cols, line;
    mlc_tensor   *out;
    char         *data;                /* host memory of the result; NULL in the counting pass */
} mlc__csv;

static mlc_status mlc__csv_fail(const mlc__csv *c, int64_t col, const char *why)
{
    return mlc__fail(c->ctx, MLC_ERR_IO, "'%s': line %lld, column %lld: %s", c->path,
                     (long long)c->line, (long long)col + 1, why);
}

/* LF, CR or the end of the file. */
static bool mlc__csv_line_end(const mlc__csv *c)
{
    return c->at >= c->n || c->text[c->at] == '\n' || c->text[c->at] == '\r';
}

/* Over the line's end: LF, CRLF or CR. */
static void mlc__csv_break(mlc__csv *c)
{
    if (c->at < c->n && c->text[c->at] == '\r') c->at++;
    if (c->at < c->n && c->text[c->at] == '\n') c->at++;
    c->line++;
}

static void mlc__csv_skip_line(mlc__csv *c)
{
    while (!mlc__csv_line_end(c)) c->at++;
    mlc__csv_break(c);
}

static bool mlc__csv_blank(const mlc__csv *c, size_t at)
{
    return (c->text[at] == ' ' || c->text[at] == '\t') && c->text[at] != c->desc.delimiter;
}

/* A field of the text as it stands: from the first to behind the last character, without quotes and
 * the blanks around them. doubled: it has quotes in it, each twice. */
typedef struct mlc__field { size_t from, to; bool quoted, doubled; } mlc__field;

/* After the opening quote, up to behind the closing one; line ends belong to the field. */
static mlc_status mlc__csv_quoted(mlc__csv *c, int64_t col, mlc__field *f)
{
    const int64_t line = c->line;
    f->from = ++c->at;
    f->quoted = true;
    for (;; c->at++) {
        if (c->at >= c->n) {
            c->line = line;
            return mlc__csv_fail(c, col, "a quote has no end");
        }
        if (c->text[c->at] == 0) return mlc__csv_fail(c, col, "a NUL byte");
        if (c->text[c->at] == '\n' || (c->text[c->at] == '\r' && c->text[c->at + 1] != '\n'))
            c->line++;
        if (c->text[c->at] != '"') continue;
        if (c->text[c->at + 1] != '"') break;              /* the text ends with 0 */
        f->doubled = true;
        c->at++;
    }
    f->to = c->at++;
    while (c->at < c->n && mlc__csv_blank(c, c->at)) c->at++;
    if (!mlc__csv_line_end(c) && c->text[c->at] != c->desc.delimiter)
        return mlc__csv_fail(c, col, "text behind a closing quote");
    return MLC_OK;
}

/* The next field; stands on the delimiter or the line's end behind it. */
static mlc_status mlc__csv_field(mlc__csv *c, int64_t col, mlc__field *f)
{
    f->quoted = f->doubled = false;
    while (c->at < c->n && mlc__csv_blank(c, c->at)) c->at++;
    if (c->at < c->n && c->text[c->at] == '"') return mlc__csv_quoted(c, col, f);
    f->from = c->at;
    for (; !mlc__csv_line_end(c) && c->text[c->at] != c->desc.delimiter; c->at++) {
        if (c->text[c->at] == 0) return mlc__csv_fail(c, col, "a NUL byte");
        if (c->text[c->at] == '"')
            return mlc__csv_fail(c, col, "a quote within a field that has none around it");
    }
    f->to = c->at;
    while (f->to > f->from && mlc__csv_blank(c, f->to - 1)) f->to--;
    return MLC_OK;
}

/* To the first row, past a byte order mark, which spreadsheets like to write. */
static void mlc__csv_begin(mlc__csv *c)
{
    c->at = c->n >= 3 && memcmp(c->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    c->rows = 0;
    c->line = 1;
    for (int32_t i = 0; i < c->desc.skip_lines; i++) mlc__csv_skip_line(c);
}

/* Stands at the begin of the next row; false at the end. Empty lines and those that begin with #
 * are passed over. */
static bool mlc__csv_next(mlc__csv *c)
{
    while (c->at < c->n) {
        size_t at = c->at;
        while (at < c->n && mlc__csv_blank(c, at)) at++;
        if (at < c->n && c->text[at] != '\n' && c->text[at] != '\r' && c->text[at] != '#')
            return true;
        mlc__csv_skip_line(c);
    }
    return false;
}

/* Is there another field in this row? Goes over the delimiter. */
static bool mlc__csv_more(mlc__csv *c)
{
    const bool more = c->at < c->n && c->text[c->at] == c->desc.delimiter;
    if (more) c->at++;
    return more;
}

/* Ends a row of col fields, which the first row's number must be. */
static mlc_status mlc__csv_row_end(mlc__csv *c, int64_t col)
{
    MLC__REQUIRE(c->ctx, c->cols == 0 || col == c->cols, IO,
                 "'%s': line %lld has %lld columns, the first row %lld; rows must have as many",
                 c->path, (long long)c->line, (long long)col, (long long)c->cols);
    c->cols = col;
    mlc__csv_break(c);
    return MLC_OK;
}

/* Text of the whole file, ended by 0; heap memory. */
static mlc_status mlc__csv_open(mlc__csv *c, mlc_ctx *ctx, const char *what, const char *path,
                                const mlc_csv_desc *desc)
{
    mlc__file f;
    memset(c, 0, sizeof *c);
    if (desc) c->desc = *desc;
    if (!c->desc.delimiter) c->desc.delimiter = ',';
    c->ctx = ctx;
    c->path = path;
    MLC__REQUIRE(ctx, path && c->desc.skip_lines >= 0 && !strchr("\"\r\n", c->desc.delimiter), ARG,
                 "%s: no path, negative skip_lines, or a delimiter that ends fields", what);
    MLC__TRY(mlc__file_open(&f, ctx, path));
    c->n = (size_t)f.size;
    c->text = MLC__CAST(char *, mlc__heap_alloc(ctx, c->n + 1, MLC_MEM_OBJECT, what));
    mlc_status st = c->text ? mlc__file_read(&f, c->text, c->n) : MLC_ERR_NOMEM;
    if (!st) st = mlc__file_plain(&f, c->text, c->n);
    mlc__file_close(&f);
    return st;
}

/* -- tensors of numbers -- */

/* Stores a field; a result of i64 takes whole numbers only, exactly. */
static mlc_status mlc__csv_store(mlc__csv *c, int64_t col, const mlc__field *f)
{
    const bool whole = c->desc.dtype == MLC_I64;
    const char *text = c->text + f->from;
    const size_t n = f->to - f->from;
    int64_t q = 0;
    double v = 0.0;
    const char *why = "is not a number";
    const double most = c->desc.dtype == MLC_F32 ? (double)FLT_MAX : DBL_MAX;
    bool fine;
    if (whole) {
        fine = mlc__whole_number(text, n, &q);
        why = "is not a whole number of 64 bits";
    } else if (c->desc.missing && mlc__csv_is_missing(text, n)) {
        fine = true;
        v = MLC__NAN;
    } else {
        fine = mlc__number(text, n, &v);
        if (fine && fabs(v) > most && !strchr("iI", text[n - 3])) {         /* not "inf" */
            fine = false;
            why = "is too large for the dtype";
        }
    }
    MLC__REQUIRE(c->ctx, fine, IO, "'%s': line %lld, column %lld: '%.*s' %s", c->path,
                 (long long)c->line, (long long)col + 1, (int)(n < 40 ? n : 40), text, why);
    if (!c->data) return MLC_OK;
    if (whole) memcpy(c->data + (size_t)(c->rows * c->cols + col) * sizeof q, &q, sizeof q);
    else mlc__elem_put(c->data, c->rows * c->cols + col, c->desc.dtype, v);
    return MLC_OK;
}

static mlc_status mlc__csv_row(mlc__csv *c, bool header)
{
    int64_t col = 0;
    do {
        mlc__field f;
        MLC__TRY(mlc__csv_field(c, col, &f));
        if (!header) MLC__TRY(mlc__csv_store(c, col, &f));
        col++;
    } while (mlc__csv_more(c));
    c->rows += !header;
    return mlc__csv_row_end(c, col);
}

/* Walks the file once: to check and count, or with data to store. */
static mlc_status mlc__csv_pass(mlc__csv *c)
{
    bool header = c->desc.header;
    mlc__csv_begin(c);
    for (; mlc__csv_next(c); header = false) MLC__TRY(mlc__csv_row(c, header));
    MLC__REQUIRE(c->ctx, c->rows > 0, IO, "'%s': no rows; there must be one", c->path);
    return MLC_OK;
}

/* On a device the numbers are collected on the host first. */
static mlc_status mlc__csv_parse(mlc__csv *c)
{
    void *host = NULL;
    MLC__TRY(mlc__csv_pass(c));
    c->out = mlc__make(c->ctx, "csv_load", c->desc.dtype, mlc_dims2(c->rows, c->cols));
    if (!c->out) return c->ctx->status;
    const size_t bytes = (size_t)(c->rows * c->cols) * mlc__size(c->out);
    if (!c->ctx->on_host && !(host = mlc__heap_alloc(c->ctx, bytes, MLC_MEM_OBJECT, "csv_load")))
        return MLC_ERR_NOMEM;
    c->data = MLC__CAST(char *, host ? host : mlc__data(c->out));
    mlc__csv_pass(c);                  /* the same text again: nothing is left to fail */
    if (!host) return MLC_OK;
    const mlc_status st = mlc__device_copy(c->ctx, mlc__data(c->out), host, bytes,
                                           MLC_COPY_TO_DEVICE);
    mlc__heap_free(c->ctx, host);
    return st;
}

MLC_IMPL mlc_tensor *mlc_csv_load(mlc_ctx *ctx, const char *path, const mlc_csv_desc *desc)
{
    mlc__csv c;
    if (!ctx) return NULL;
    if (desc && !mlc__is_full(desc->dtype) && desc->dtype != MLC_I64) {
        mlc__fail(ctx, MLC_ERR_ARG, "csv_load: dtype %s; it reads f32, f64 or i64",
                  mlc_dtype_name(desc->dtype));
        return NULL;
    }
    mlc_status st = mlc__csv_open(&c, ctx, "csv_load", path, desc);
    if (!st) st = mlc__csv_parse(&c);
    mlc__heap_free(ctx, c.text);
    return st == MLC_OK ? c.out : NULL;
}

/* -- tables -- */

#define MLC__TABLE_STEP 16             /* rows from one mark of the index to the next */

typedef struct mlc__table_col {
    const char *name;
    mlc_column  type;
    int64_t     missing;               /* how many */
    const char **texts;                /* of a text column: the distinct ones, sorted */
    int64_t     categories;
} mlc__table_col;

/* text: all fields, decoded, each ended by 0, one behind the other, row by row; the names first. */
struct mlc_table {
    mlc_ctx     *ctx;
    char        *text;
    int64_t      rows, cols;
    mlc__table_col *columns;
    const char **marks;                /* of every 16th row */
};

/* A field's text at `to`, which is not behind where it stands now; its length with the 0. */
static size_t mlc__csv_decode(const mlc__csv *c, const mlc__field *f, char *to)
{
    const char *from = c->text + f->from, *end = c->text + f->to;
    char *begin = to;
    while (from < end) {
        *to++ = *from;
        from += f->doubled && *from == '"' ? 2 : 1;
    }
    *to++ = 0;
    return (size_t)(to - begin);
}

/* Fields move together at the front of the text. Decoding one may write over what stands behind it:
 * that is looked at first. */
static mlc_status mlc__table_fields(mlc__csv *c)
{
    char *to = c->text;
    mlc__csv_begin(c);
    for (; mlc__csv_next(c); c->rows++) {
        int64_t col = 0;
        bool more = true;
        while (more) {
            mlc__field f;
            MLC__TRY(mlc__csv_field(c, col++, &f));
            more = mlc__csv_more(c);
            if (!more) MLC__TRY(mlc__csv_row_end(c, col));
            to += mlc__csv_decode(c, &f, to);
        }
    }
    return MLC_OK;
}

/* What a column's type so far becomes with one more field. */
static mlc_column mlc__table_widen(mlc_column type, const char *text)
{
    int64_t q;
    double v;
    const size_t n = strlen(text);
    if (type == MLC_COLUMN_TEXT) return type;
    if (type != MLC_COLUMN_F64 && mlc__whole_number(text, n, &q)) return MLC_COLUMN_I64;
    return mlc__number(text, n, &v) ? MLC_COLUMN_F64 : MLC_COLUMN_TEXT;
}

/* Types that were asked for must hold; others follow from the fields. Whole numbers with gaps are
 * f64, where a gap can be NaN. */
static mlc_status mlc__table_types(mlc_table *t, const mlc__csv *c)
{
    const char *at = t->marks[0];
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t k = 0; k < t->cols; k++, at += strlen(at) + 1) {
            mlc__table_col *col = &t->columns[k];
            const mlc_column want = k < c->desc.n_types ? c->desc.types[k] : MLC_COLUMN_AUTO;
            if (mlc__csv_is_missing(at, strlen(at))) { col->missing++; continue; }
            if (want == MLC_COLUMN_TEXT) { col->type = want; continue; }
            const mlc_column type = mlc__table_widen(col->type, at);
            MLC__REQUIRE(t->ctx, want == MLC_COLUMN_AUTO || type <= want, IO,
                         "'%s': row %lld, column %lld: '%.40s' is not %s", c->path,
                         (long long)r + 1, (long long)k + 1, at,
                         want == MLC_COLUMN_I64 ? "a whole number of 64 bits" : "a number");
            col->type = type;
        }
    for (int64_t k = 0; k < t->cols; k++) {
        mlc__table_col *col = &t->columns[k];
        const mlc_column want = k < c->desc.n_types ? c->desc.types[k] : MLC_COLUMN_AUTO;
        MLC__REQUIRE(t->ctx, want != MLC_COLUMN_I64 || !col->missing, IO,
                     "'%s': column %lld is to be i64 and has %lld missing values; read it as f64",
                     c->path, (long long)k + 1, (long long)col->missing);
        if (want != MLC_COLUMN_AUTO) col->type = want;
        else if (col->type == MLC_COLUMN_AUTO || (col->type == MLC_COLUMN_I64 && col->missing))
            col->type = MLC_COLUMN_F64;
    }
    return MLC_OK;
}

/* A column of two bytes takes 40 here: hundreds of thousands of them are not tables. */
static mlc_status mlc__table_budget(const mlc_table *t, const mlc__csv *c)
{
    const int64_t bytes = (int64_t)c->n + t->cols * (int64_t)sizeof *t->columns;
    MLC__REQUIRE(t->ctx, bytes <= 3 * (int64_t)c->n + (1 << 19), IO,
                 "'%s': %lld columns would take %lld bytes of memory, over 4 times the file and 1 "
                 "MiB; read them with mlc_csv_load", c->path, (long long)t->cols,
                 (long long)bytes);
    return MLC_OK;
}

/* Names, the index of rows, types: text is decoded. */
static mlc_status mlc__table_build(mlc_table *t, mlc__csv *c)
{
    mlc_ctx *ctx = t->ctx;
    const char *at = t->text;
    t->cols = c->cols;
    t->rows = c->rows - c->desc.header;
    MLC__REQUIRE(ctx, t->rows > 0, IO, "'%s': no rows; there must be one", c->path);
    MLC__TRY(mlc__table_budget(t, c));
    t->columns = MLC__CAST(mlc__table_col *,
                           mlc__heap_alloc(ctx, (size_t)t->cols * sizeof *t->columns,
                                           MLC_MEM_OBJECT, "table_load"));
    t->marks = MLC__CAST(const char **,
                         mlc__heap_alloc(ctx, (size_t)(t->rows / MLC__TABLE_STEP + 1) *
                                              sizeof *t->marks, MLC_MEM_OBJECT, "table_load"));
    if (!t->columns || !t->marks) return MLC_ERR_NOMEM;
    for (int64_t k = 0; k < t->cols; k++) {
        t->columns[k].name = c->desc.header ? at : "";
        if (c->desc.header) at += strlen(at) + 1;
    }
    for (int64_t r = 0; r < t->rows; r++) {
        if (r % MLC__TABLE_STEP == 0) t->marks[r / MLC__TABLE_STEP] = at;
        for (int64_t k = 0; k < t->cols; k++) at += strlen(at) + 1;
    }
    return mlc__table_types(t, c);
}

MLC_IMPL void mlc_table_free(mlc_table *t)
{
    if (!t) return;
    for (int64_t k = 0; t->columns && k < t->cols; k++)
        mlc__heap_free(t->ctx, (void *)t->columns[k].texts);
    mlc__heap_free(t->ctx, t->columns);
    mlc__heap_free(t->ctx, (void *)t->marks);
    mlc__heap_free(t->ctx, t->text);
    mlc__heap_free(t->ctx, t);
}

MLC_IMPL mlc_table *mlc_table_load(mlc_ctx *ctx, const char *path, const mlc_csv_desc *desc)
{
    mlc__csv c;
    mlc_csv_desc named;
    if (!ctx) return NULL;
    memset(&named, 0, sizeof named);
    named.header = true;
    mlc_status st = mlc__csv_open(&c, ctx, "table_load", path, desc ? desc : &named);
    mlc_table *t = NULL;
    if (!st) t = MLC__CAST(mlc_table *, mlc__heap_alloc(ctx, sizeof *t, MLC_MEM_OBJECT,
                                                        "table_load"));
    if (!t) { mlc__heap_free(ctx, c.text); return NULL; }
    t->ctx = ctx;
    t->text = c.text;
    st = mlc__table_fields(&c);
    if (!st) st = mlc__table_build(t, &c);
    if (st == MLC_OK) return t;
    mlc_table_free(t);
    return NULL;
}

MLC_IMPL int64_t mlc_table_rows(const mlc_table *t) { return t ? t->rows : 0; }
MLC_IMPL int64_t mlc_table_columns(const mlc_table *t) { return t ? t->cols : 0; }

static bool mlc__table_has(const mlc_table *t, int64_t col, const char *what)
{
    if (!t) return false;
    if (col >= 0 && col < t->cols) return true;
    mlc__fail(t->ctx, MLC_ERR_ARG, "%s: column %lld of %lld; they count from 0", what,
              (long long)col, (long long)t->cols);
    return false;
}

MLC_IMPL const char *mlc_table_name(const mlc_table *t, int64_t col)
{
    return mlc__table_has(t, col, "table_name") ? t->columns[col].name : NULL;
}

MLC_IMPL int64_t mlc_table_find(const mlc_table *t, const char *name)
{
    for (int64_t k = 0; t && name && k < t->cols; k++)
        if (strcmp(t->columns[k].name, name) == 0) return k;
    return -1;
}

MLC_IMPL mlc_column mlc_table_type(const mlc_table *t, int64_t col)
{
    return mlc__table_has(t, col, "table_type") ? t->columns[col].type : MLC_COLUMN_AUTO;
}

/* A field that is there. */
static const char *mlc__table_at(const mlc_table *t, int64_t row, int64_t col)
{
    const char *at = t->marks[row / MLC__TABLE_STEP];
    for (int64_t k = row % MLC__TABLE_STEP * t->cols + col; k > 0; k--) at += strlen(at) + 1;
    return at;
}

MLC_IMPL const char *mlc_table_text(const mlc_table *t, int64_t row, int64_t col)
{
    if (!mlc__table_has(t, col, "table_text")) return NULL;
    if (row < 0 || row >= t->rows) {
        mlc__fail(t->ctx, MLC_ERR_ARG, "table_text: row %lld of %lld; they count from 0",
                  (long long)row, (long long)t->rows);
        return NULL;
    }
    return mlc__table_at(t, row, col);
}

static int mlc__text_order(const void *a, const void *b)
{
    return strcmp(*MLC__CAST(const char *const *, a), *MLC__CAST(const char *const *, b));
}

/* The distinct texts of a column, sorted, once. */
static mlc_status mlc__table_categories(mlc_table *t, mlc__table_col *c, int64_t col)
{
    if (c->texts) return MLC_OK;
    c->texts = MLC__CAST(const char **,
                         mlc__heap_alloc(t->ctx, ((size_t)t->rows + 1) * sizeof *c->texts,
                                         MLC_MEM_OBJECT, "table_column"));
    if (!c->texts) return MLC_ERR_NOMEM;
    int64_t n = 0, distinct = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        const char *text = mlc__table_at(t, r, col);
        if (!mlc__csv_is_missing(text, strlen(text))) c->texts[n++] = text;
    }
    if (n) qsort(c->texts, (size_t)n, sizeof *c->texts, mlc__text_order);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || strcmp(c->texts[distinct - 1], c->texts[i]) != 0)
            c->texts[distinct++] = c->texts[i];
    c->categories = distinct;
    return MLC_OK;
}

MLC_IMPL int64_t mlc_table_categories(mlc_table *t, int64_t col)
{
    if (!mlc__table_has(t, col, "table_categories")) return 0;
    mlc__table_col *c = &t->columns[col];
    if (c->type != MLC_COLUMN_TEXT || mlc__table_categories(t, c, col) != MLC_OK) return 0;
    return c->categories;
}

MLC_IMPL const char *mlc_table_category(mlc_table *t, int64_t col, int64_t code)
{
    return code >= 0 && code < mlc_table_categories(t, col) ? t->columns[col].texts[code] : NULL;
}

/* One field as the column's dtype has it: NaN or -1 where it is missing. */
static void mlc__table_value(const mlc__table_col *c, const char *text, void *to)
{
    const size_t n = strlen(text);
    const bool missing = mlc__csv_is_missing(text, n);
    double v = MLC__NAN;
    int64_t q = -1;
    if (c->type == MLC_COLUMN_F64) {
        if (!missing) mlc__number(text, n, &v);
        memcpy(to, &v, sizeof v);
        return;
    }
    if (c->type == MLC_COLUMN_I64) mlc__whole_number(text, n, &q);
    else if (!missing)
        q = MLC__CAST(const char **, bsearch(&text, c->texts, (size_t)c->categories,
                                             sizeof *c->texts, mlc__text_order)) - c->texts;
    memcpy(to, &q, sizeof q);
}

MLC_IMPL mlc_tensor *mlc_table_column(mlc_table *t, int64_t col)
{
    if (!mlc__table_has(t, col, "table_column")) return NULL;
    mlc__table_col *c = &t->columns[col];
    const mlc_dtype dtype = c->type == MLC_COLUMN_F64 ? MLC_F64 : MLC_I64;
    if (c->type == MLC_COLUMN_TEXT && mlc__table_categories(t, c, col) != MLC_OK) return NULL;
    char *data = MLC__CAST(char *, mlc__heap_alloc(t->ctx, (size_t)t->rows * 8, MLC_MEM_OBJECT,
                                                   "table_column"));
    if (!data) return NULL;
    for (int64_t r = 0; r < t->rows; r++)
        mlc__table_value(c, mlc__table_at(t, r, col), data + r * 8);
    mlc_tensor *x = mlc_from(t->ctx, dtype, mlc_dims1(t->rows), data);
    mlc__heap_free(t->ctx, data);
    return x;
}

MLC_IMPL mlc_tensor *mlc_table_missing(mlc_table *t, int64_t col)
{
    if (!mlc__table_has(t, col, "table_missing")) return NULL;
    bool *data = MLC__CAST(bool *, mlc__heap_alloc(t->ctx, (size_t)t->rows, MLC_MEM_OBJECT,
                                                   "table_missing"));
    if (!data) return NULL;
    for (int64_t r = 0; r < t->rows; r++) {
        const char *text = mlc__table_at(t, r, col);
        data[r] = mlc__csv_is_missing(text, strlen(text));
    }
    mlc_tensor *x = mlc_from(t->ctx, MLC_BOOL, mlc_dims1(t->rows), data);
    mlc__heap_free(t->ctx, data);
    return x;
}

/* -- writing -- */

/* The shortest number that reads back to the same bits; "2", not "2.0". */
static void mlc__csv_number(mlc__buffer *b, mlc_dtype dtype, const void *data, int64_t i)
{
    char text[MLC__NUMBER_TEXT];
    int32_t n;
    if (dtype == MLC_I64) {
        n = mlc__whole_text(text, MLC__CAST(const int64_t *, data)[i]);
    } else {
        const double v = MLC__CAST(const double *, data)[i];
        const float f = (float)v;
        n = dtype == MLC_F32 ? mlc__float_text(text, MLC_F32, &f, 0)
                             : mlc__float_text(text, MLC_F64, &v, 0);
        if (text[n - 2] == '.' && text[n - 1] == '0') n -= 2;
    }
    mlc__put(b, text, (size_t)n);
}

/* A name in quotes where it needs them: also where a spreadsheet would take it for a formula. */
static void mlc__csv_name(mlc__buffer *b, const char *name)
{
    const bool quote = strpbrk(name, ",\"\r\n") || (*name && strchr("=+-@#\t ", *name));
    if (quote) mlc__put(b, "\"", 1);
    for (; *name; name++) {
        if (*name == '"') mlc__put(b, "\"", 1);
        mlc__put(b, name, 1);
    }
    if (quote) mlc__put(b, "\"", 1);
}

/* Rows of 8-byte numbers from host memory; written by blocks. */
static mlc_status mlc__csv_write(mlc__file *f, mlc__buffer *b, mlc_dtype dtype, const void *data,
                                 int64_t rows, int64_t cols, const char *const *names)
{
    for (int64_t k = 0; names && k < cols; k++) {
        if (k) mlc__put(b, ",", 1);
        mlc__csv_name(b, names[k]);
    }
    if (names) mlc__put(b, "\r\n", 2);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < cols; k++) {
            if (k) mlc__put(b, ",", 1);
            mlc__csv_number(b, dtype, data, r * cols + k);
        }
        mlc__put(b, "\r\n", 2);
        MLC__TRY(b->st);
        if (b->n <= 65536 && r + 1 < rows) continue;
        MLC__TRY(mlc__file_write(f, b->text, b->n));
        b->n = 0;
    }
    return MLC_OK;
}

MLC_IMPL mlc_status mlc_csv_save(mlc_tensor *t, const char *path, const char *const *names)
{
    mlc__atomic a;
    if (!t) return MLC_ERR_ARG;
    mlc_ctx *ctx = t->ctx;
    mlc__buffer b = { ctx, NULL, 0, 0, MLC_OK };
    const int64_t cols = t->ndim == 2 ? t->shape[1] : 1;
    const size_t n = (size_t)mlc__numel(t);
    MLC__REQUIRE(ctx, path && path[0], ARG, "csv_save: no path; give a file's name");
    MLC__REQUIRE(ctx, (t->ndim == 1 || t->ndim == 2) && n > 0, SHAPE,
                 "csv_save: the tensor is %s; it must be [rows] or [rows,columns], not empty",
                 mlc__shape(t).s);
    for (int64_t k = 0; names && k < cols; k++)
        MLC__REQUIRE(ctx, names[k], ARG, "csv_save: name %lld is NULL; give one a column, or no "
                     "names", (long long)k);
    MLC__TRY(mlc_scope_begin(ctx));
    /* Numbers of 8 bytes hold every dtype's values. */
    mlc_tensor *wide = mlc_cast(mlc_detach(t), mlc__is_float(t->dtype) ? MLC_F64 : MLC_I64);
    void *data = wide ? mlc__heap_alloc(ctx, n * 8, MLC_MEM_OBJECT, "csv_save") : NULL;
    mlc_status st = data ? mlc_read(wide, data, n * 8) : ctx->status;
    if (!st) st = mlc__atomic_begin(&a, ctx, path);
    if (!st)
        st = mlc__atomic_end(&a, mlc__csv_write(&a.file, &b, mlc__is_float(t->dtype) ?
                                                mlc__is_full(t->dtype) ? t->dtype : MLC_F32
                                                : MLC_I64, data, (int64_t)n / cols, cols, names));
    mlc__heap_free(ctx, data);
    mlc__heap_free(ctx, b.text);
    mlc__scope_leave(ctx);
    return st;
}

/* @@ IMPL.IO.IDX ----------------------------------------- MNIST's format
 * 00 00 type ndim, sizes as big-endian u32, big-endian data: nothing else may be in the file. */

static const struct { uint8_t code; uint8_t bytes; mlc_dtype dtype; char kind; } mlc__idx_types[] =
    { { 0x08, 1, MLC_U8, 'u' }, { 0x09, 1, MLC_I8, 'i' }, { 0x0B, 2, MLC_I32, 'i' },
      { 0x0C, 4, MLC_I32, 'i' }, { 0x0D, 4, MLC_F32, 'f' }, { 0x0E, 8, MLC_F64, 'f' } };

/* The header into an array description; big-endian, so swapped. */
static mlc_status mlc__idx_header(mlc__file *f, mlc__npy *a)
{
    unsigned char raw[4] = { 0 };
    int type = -1;
    memset(a, 0, sizeof *a);
    MLC__REQUIRE(f->ctx, f->size >= 4, IO, "'%s': %lld bytes are no IDX file", f->path,
                 (long long)f->size);
    MLC__TRY(mlc__file_read(f, raw, 4));
    MLC__TRY(mlc__file_plain(f, raw, 4));
    for (int i = 0; i < MLC__COUNT(mlc__idx_types); i++)
        if (mlc__idx_types[i].code == raw[2]) type = i;
    MLC__REQUIRE(f->ctx, raw[0] == 0 && raw[1] == 0 && type >= 0, IO,
                 "'%s': begins with %02x %02x %02x %02x, which is no IDX file: 00 00, type, axes",
                 f->path, raw[0], raw[1], raw[2], raw[3]);
    MLC__REQUIRE(f->ctx, raw[3] >= 1 && raw[3] <= MLC_MAX_DIMS, IO,
                 "'%s': %d axes; a tensor has 1 to %d", f->path, raw[3], MLC_MAX_DIMS);
    a->kind = mlc__idx_types[type].kind;
    a->bytes = mlc__idx_types[type].bytes;
    a->swap = a->bytes > 1;
    a->ndim = raw[3];
    for (int32_t d = 0; d < a->ndim; d++) {
        MLC__TRY(mlc__file_read(f, raw, 4));
        a->shape[d] = (int64_t)raw[0] << 24 | raw[1] << 16 | raw[2] << 8 | raw[3];
    }
    return MLC_OK;
}

static mlc_tensor *mlc__idx_read(mlc__file *f)
{
    mlc__source s;
    mlc__npy a;
    if (mlc__idx_header(f, &a) != MLC_OK) return NULL;
    memset(&s, 0, sizeof s);
    s.file = f;
    s.left = f->size - 4 - 4 * a.ndim;
    const int64_t bytes = mlc__npy_bytes(&s, &a);
    if (bytes < 0) return NULL;
    if (bytes != s.left) {
        mlc__fail(f->ctx, MLC_ERR_IO, "'%s': %lld bytes of data, the header names %lld", f->path,
                  (long long)s.left, (long long)bytes);
        return NULL;
    }
    mlc_tensor *t = mlc__make(f->ctx, "idx_load", mlc__npy_dtype(&a),
                              mlc_dims_of(a.ndim, a.shape));
    return t && mlc__npy_fill(&s, &a, t, NULL) == MLC_OK ? t : NULL;
}

MLC_IMPL mlc_tensor *mlc_idx_load(mlc_ctx *ctx, const char *path)
{
    mlc__file f;
    if (!ctx) return NULL;
    if (!path) {
        mlc__fail(ctx, MLC_ERR_ARG, "idx_load: path is NULL; give a file's name");
        return NULL;
    }
    if (mlc__file_open(&f, ctx, path) != MLC_OK) return NULL;
    mlc_tensor *t = mlc__idx_read(&f);
    mlc__file_close(&f);
    return t;
}

/* Type and sizes; false if the format has no such thing. */
static bool mlc__idx_describe(const mlc_tensor *t, unsigned char *head)
{
    int type = -1;
    for (int i = 0; i < MLC__COUNT(mlc__idx_types); i++)
        if (mlc__idx_types[i].dtype == t->dtype && mlc__idx_types[i].bytes == mlc__size(t))
            type = i;
    if (type < 0 || t->ndim == 0) return false;
    head[0] = head[1] = 0;
    head[2] = mlc__idx_types[type].code;
    head[3] = (unsigned char)t->ndim;
    for (int32_t d = 0; d < t->ndim; d++) {
        if (t->shape[d] > 0xFFFFFFFFll) return false;
        for (int i = 0; i < 4; i++)
            head[4 + 4 * d + i] = (unsigned char)(t->shape[d] >> (24 - 8 * i));
    }
    return true;
}

MLC_IMPL mlc_status mlc_idx_save(mlc_tensor *t, const char *path)
{
    unsigned char head[4 + 4 * MLC_MAX_DIMS];
    mlc__atomic a;
    if (!t) return MLC_ERR_ARG;
    mlc_ctx *ctx = t->ctx;
    const size_t size = mlc__size(t), bytes = (size_t)mlc__numel(t) * size;
    MLC__REQUIRE(ctx, path && path[0], ARG, "idx_save: no path; give a file's name");
    MLC__REQUIRE(ctx, mlc__idx_describe(t, head), DTYPE,
                 "idx_save: %s %s; it writes u8, i8, i32, f32, f64 of 1 to 8 axes; cast it with "
                 "mlc_cast", mlc_dtype_name(t->dtype), mlc__shape(t).s);
    unsigned char *data = MLC__CAST(unsigned char *, mlc__heap_alloc(ctx, bytes + 1, MLC_MEM_OBJECT,
                                                                     "idx_save"));
    mlc_status st = data ? mlc_read(t, data, bytes) : MLC_ERR_NOMEM;
    const mlc__npy swap = { 'f', (int)size, size > 1, false, 0, { 0 } };
    if (!st) mlc__npy_convert(&swap, data, (int64_t)(bytes / size));
    if (!st) st = mlc__atomic_begin(&a, ctx, path);
    if (!st) {
        st = mlc__file_write(&a.file, head, (size_t)(4 + 4 * t->ndim));
        if (!st) st = mlc__file_write(&a.file, data, bytes);
        st = mlc__atomic_end(&a, st);
    }
    mlc__heap_free(ctx, data);
    return st;
}

/* @@ IMPL.IO.CIFAR --------------------------------------- CIFAR-10 and CIFAR-100, binary version
 * Records without a header: one label (CIFAR-10) or coarse and fine label (CIFAR-100), then 1024
 * bytes of red, of green and of blue, row-major. */

static mlc_tensor *mlc__cifar_read(mlc__file *f, int32_t classes, mlc_tensor **labels)
{
    mlc_ctx *ctx = f->ctx;
    const int64_t front = classes == 10 ? 1 : 2, record = front + 3072, n = f->size / record;
    mlc_tensor *x = NULL;
    if (n == 0 || f->size % record != 0) {
        unsigned char first[2] = { 0 };
        if (f->size >= 2 && (mlc__file_read(f, first, 2) != MLC_OK ||
                             mlc__file_plain(f, first, 2) != MLC_OK)) return NULL;
        mlc__fail(ctx, MLC_ERR_IO, "'%s': %lld bytes are no records of %lld bytes (CIFAR-%d)",
                  f->path, (long long)f->size, (long long)record, classes);
        return NULL;
    }
    unsigned char *data = MLC__CAST(unsigned char *, mlc__heap_alloc(ctx, (size_t)f->size,
                                                                     MLC_MEM_OBJECT, "cifar_load"));
    int64_t *y = MLC__CAST(int64_t *, mlc__heap_alloc(ctx, (size_t)n * sizeof *y, MLC_MEM_OBJECT,
                                                      "cifar_load"));
    mlc_status st = data && y ? mlc__file_read(f, data, (size_t)f->size) : MLC_ERR_NOMEM;
    for (int64_t i = 0; i < n && !st; i++) {
        const unsigned char *r = data + i * record;
        y[i] = r[front - 1];
        if (y[i] >= classes || (front == 2 && r[0] >= 20))
            st = mlc__fail(ctx, MLC_ERR_IO, "'%s': record %lld has label %d, CIFAR-%d has %d",
                           f->path, (long long)i, y[i] >= classes ? (int)y[i] : r[0], classes,
                           y[i] >= classes ? classes : 20);
        else memmove(data + i * 3072, r + front, 3072);
    }
    if (!st) x = mlc_from(ctx, MLC_U8, mlc_dims4(n, 3, 32, 32), data);
    if (x && labels) *labels = mlc_from(ctx, MLC_I64, mlc_dims1(n), y);
    mlc__heap_free(ctx, data);
    mlc__heap_free(ctx, y);
    return x && (!labels || *labels) ? x : NULL;
}

MLC_IMPL mlc_tensor *mlc_cifar_load(mlc_ctx *ctx, const char *path, int32_t classes,
                                    mlc_tensor **labels)
{
    mlc__file f;
    if (labels) *labels = NULL;
    if (!ctx) return NULL;
    if (!path || (classes != 10 && classes != 100)) {
        mlc__fail(ctx, MLC_ERR_ARG, "cifar_load: no path, or %d classes; it reads 10 or 100",
                  classes);
        return NULL;
    }
    if (mlc__file_open(&f, ctx, path) != MLC_OK) return NULL;
    mlc_tensor *x = mlc__cifar_read(&f, classes, labels);
    mlc__file_close(&f);
    return x;
}

/* @@ IMPL.DATA ------------------------------------------- loader: batches of rows
 * The loader copies its data once (dense, so that a row is one memcpy) and owns one batch, which it
 * fills anew each time: no step allocates. The order of epoch e is a function of the seed and e
 * alone, so runs can be repeated and epochs do not look alike. The last batch is the same tensors
 * with fewer rows. */

typedef struct mlc__column {           /* x or y: the loader's own copy and batch */
    mlc_tensor  source, batch;
    mlc_storage source_storage, batch_storage;
    size_t      row_bytes;
    bool        used;
} mlc__column;

struct mlc_loader {
    mlc_ctx        *ctx;
    mlc_loader_desc desc;
    mlc__column     x, y;
    int64_t         n, at, epoch, index;
    bool            none;              /* drop_last and too few rows for a batch */
    int64_t        *order, *order_dev; /* rows of the epoch; those of the batch on the device */
};

MLC_IMPL mlc_loader_desc mlc_loader_desc_make(mlc_tensor *x, mlc_tensor *y, int64_t batch)
{
    mlc_loader_desc d;
    memset(&d, 0, sizeof d);
    d.x = x;
    d.y = y;
    d.batch = batch;
    return d;
}

/* shape[0] of batch is the largest there will be; mlc__column_take sets the actual one. */
static mlc_status mlc__column_make(mlc_loader *l, mlc__column *c, const mlc_tensor *from)
{
    mlc_ctx *ctx = l->ctx;
    int64_t shape[MLC_MAX_DIMS];
    const size_t bytes = (size_t)mlc__numel(from) * mlc__size(from);
    memcpy(shape, from->shape, sizeof shape);
    c->row_bytes = bytes / (size_t)l->n;
    mlc__tensor_init(&c->source, ctx, from->dtype, from->ndim, shape);
    shape[0] = l->desc.batch;
    mlc__tensor_init(&c->batch, ctx, from->dtype, from->ndim, shape);
    c->source.scope = c->batch.scope = 0;
    c->source.storage = &c->source_storage;
    c->batch.storage = &c->batch_storage;
    c->source_storage.ctx = c->batch_storage.ctx = ctx;
    c->used = true;
    c->source_storage.data = mlc__heap_data(ctx, bytes, MLC_MEM_OBJECT, "loader_create");
    c->batch_storage.data =
        mlc__heap_data(ctx, c->row_bytes * (size_t)l->desc.batch, MLC_MEM_OBJECT, "loader_create");
    if (!c->source_storage.data || !c->batch_storage.data) return MLC_ERR_NOMEM;
    return mlc__cast_into(ctx, "loader_create", &c->source, from);
}

/* What is made before a failure is freed by mlc_loader_free, which takes a half-made loader. */
static mlc_status mlc__loader_fill(mlc_loader *l)
{
    mlc_ctx *ctx = l->ctx;
    MLC__TRY(mlc__column_make(l, &l->x, l->desc.x));
    if (l->desc.y) MLC__TRY(mlc__column_make(l, &l->y, l->desc.y));
    l->order = MLC__CAST(int64_t *,
                         mlc__heap_alloc(ctx, (size_t)l->n * 8, MLC_MEM_OBJECT, "loader_create"));
    l->order_dev = MLC__CAST(
        int64_t *, mlc__heap_data(ctx, (size_t)l->desc.batch * 8, MLC_MEM_OBJECT, "loader_create"));
    return l->order && l->order_dev ? MLC_OK : MLC_ERR_NOMEM;
}

/* batch 0 is the default, 1. */
static mlc_status mlc__loader_check(mlc_ctx *ctx, const mlc_loader_desc *d)
{
    MLC__REQUIRE(ctx, d && d->x, ARG, "loader_create: x is NULL; it has the rows to load");
    MLC__REQUIRE(ctx, d->batch >= 0, ARG, "loader_create: batch is %lld; it must be 1 or more (0: "
                 "1)", (long long)d->batch);
    MLC__REQUIRE(ctx, d->x->ctx == ctx && (!d->y || d->y->ctx == ctx), ARG,
                 "loader_create: x or y belongs to another context; make both in the loader's");
    MLC__REQUIRE(ctx, d->x->ndim > 0 && d->x->shape[0] > 0, ARG,
                 "loader_create: the data set is empty: x %s; it must have rows",
                 mlc__shape(d->x).s);
    MLC__REQUIRE(ctx, !d->y || (d->y->ndim > 0 && d->y->shape[0] == d->x->shape[0]), SHAPE,
                 "loader_create: x %s and y %s differ in rows; their first axes must be as long",
                 mlc__shape(d->x).s, mlc__shape(d->y).s);
    MLC__TRY(mlc__alive(d->x, "loader_create"));
    return d->y ? mlc__alive(d->y, "loader_create") : MLC_OK;
}

MLC_IMPL mlc_loader *mlc_loader_create(mlc_ctx *ctx, const mlc_loader_desc *desc)
{
    mlc_loader *l;
    if (!ctx || mlc__loader_check(ctx, desc) != MLC_OK) return NULL;
    l = MLC__CAST(mlc_loader *, mlc__heap_alloc(ctx, sizeof *l, MLC_MEM_OBJECT, "loader_create"));
    if (!l) return NULL;
    l->ctx = ctx;
    l->desc = *desc;
    l->n = desc->x->shape[0];
    /* A batch larger than the data would only waste memory. */
    l->desc.batch = mlc__min(desc->batch ? desc->batch : 1, l->n);
    l->none = desc->drop_last && desc->batch > l->n;
    l->at = -1;
    if (mlc__loader_fill(l) == MLC_OK) return l;
    mlc_loader_free(l);
    return NULL;
}

MLC_IMPL void mlc_loader_free(mlc_loader *l)
{
    if (!l) return;
    mlc__tape_forget(l->ctx, &l->x.batch);
    mlc__tape_forget(l->ctx, &l->y.batch);
    mlc__heap_data_free(l->ctx, l->x.source_storage.data, MLC_MEM_OBJECT);
    mlc__heap_data_free(l->ctx, l->x.batch_storage.data, MLC_MEM_OBJECT);
    mlc__heap_data_free(l->ctx, l->y.source_storage.data, MLC_MEM_OBJECT);
    mlc__heap_data_free(l->ctx, l->y.batch_storage.data, MLC_MEM_OBJECT);
    mlc__heap_data_free(l->ctx, l->order_dev, MLC_MEM_OBJECT);
    mlc__heap_free(l->ctx, l->order);
    mlc__heap_free(l->ctx, l);
}

MLC_IMPL int64_t mlc_loader_batches(const mlc_loader *l)
{
    if (!l || l->none) return 0;
    return l->desc.drop_last ? l->n / l->desc.batch : mlc__div_up(l->n, l->desc.batch);
}

/* The epoch's order: Fisher and Yates with words of stream `epoch`. */
static void mlc__loader_shuffle(mlc_loader *l)
{
    for (int64_t i = 0; i < l->n; i++) l->order[i] = i;
    for (int64_t i = l->n - 1; i > 0 && l->desc.shuffle; i--) {
        const mlc__words r = mlc__philox(l->desc.seed, (uint64_t)l->epoch, (uint64_t)i);
        /* Modulo: the bias is below n/2^64. */
        const uint64_t word = (uint64_t)r.w[1] << 32 | r.w[0];
        const int64_t k = (int64_t)(word % (uint64_t)(i + 1)), other = l->order[k];
        l->order[k] = l->order[i];
        l->order[i] = other;
    }
}

/* One gather of rows on the device; the indices are there already. */
static mlc_status mlc__column_take(mlc_loader *l, mlc__column *c, int64_t n)
{
    const struct mlc_k_take args = { n, l->n, c->row_bytes, c->source_storage.data, l->order_dev,
                                     c->batch_storage.data };
    if (!c->used) return MLC_OK;
    if (c->batch.grad) mlc__storage_release(c->batch.grad);          /* of another batch */
    c->batch.grad = NULL;
    c->batch.grad_fresh = 0;
    c->batch.flags &= ~MLC__REQUIRES_GRAD;
    c->batch.shape[0] = n;
    /* A graph that still holds the batch before is told, by VALUE at its backward. */
    c->batch_storage.version++;
    return c->row_bytes ? mlc__run_take(l->ctx, "loader_next", &args) : MLC_OK;
}

/* at < 0 says that an epoch is about to begin. */
MLC_IMPL bool mlc_loader_next(mlc_loader *l, mlc_batch *b)
{
    if (!l || !b) return false;
    memset(b, 0, sizeof *b);
    if (l->at < 0) {                   /* a new epoch */
        mlc__loader_shuffle(l);
        l->at = l->index = 0;
    }
    const int64_t n = mlc__min(l->desc.batch, l->n - l->at);
    if (n <= 0 || l->none || (l->desc.drop_last && n < l->desc.batch)) {
        l->at = -1;
        l->epoch++;
        return false;
    }
    if (mlc__device_copy(l->ctx, l->order_dev, l->order + l->at, (size_t)n * 8,
                         MLC_COPY_TO_DEVICE) != MLC_OK ||
        mlc__column_take(l, &l->x, n) != MLC_OK || mlc__column_take(l, &l->y, n) != MLC_OK)
        return false;
    b->x = &l->x.batch;
    b->y = l->y.used ? &l->y.batch : NULL;
    b->n = n;
    b->index = l->index++;
    l->at += n;
    return true;
}

/* @@ IMPL.METRICS ---------------------------------------- scores
 * Ties count for the first class, as argmax has it. */

/* Counted on the host: two integers a row are little to move. */
MLC_IMPL double mlc_accuracy(mlc_tensor *scores, mlc_tensor *labels)
{
    mlc_tensor *best;
    int64_t hits = 0;
    if (!scores || !labels) {
        if (scores || labels)
            mlc__fail((scores ? scores : labels)->ctx, MLC_ERR_ARG,
                      "accuracy: %s is NULL; it takes both", scores ? "labels" : "scores");
        return MLC__NAN;
    }
    mlc_ctx *ctx = scores->ctx;
    if (labels->dtype != MLC_I64 || !mlc__is_full(scores->dtype)) {
        mlc__fail(ctx, MLC_ERR_DTYPE,
                  "accuracy: scores are %s and labels %s; they must be f32 or f64, "
                  "and i64",
                  mlc_dtype_name(scores->dtype), mlc_dtype_name(labels->dtype));
        return MLC__NAN;
    }
    if (scores->ndim != 2 || labels->ndim != 1 || labels->shape[0] != scores->shape[0] ||
        labels->shape[0] == 0) {
        mlc__fail(ctx, MLC_ERR_SHAPE, "accuracy: scores %s must be [n,c] and labels %s [n], n > 0",
                  mlc__shape(scores).s, mlc__shape(labels).s);
        return MLC__NAN;
    }
    best = mlc_argmax(scores, 1, false);
    const int64_t n = labels->shape[0];
    int64_t *host =
        MLC__CAST(int64_t *, mlc__heap_alloc(ctx, (size_t)n * 16, MLC_MEM_OBJECT, "accuracy"));
    const bool read = best && host && mlc_read(best, host, (size_t)n * 8) == MLC_OK &&
                      mlc_read(labels, host + n, (size_t)n * 8) == MLC_OK;
    for (int64_t i = 0; read && i < n; i++) hits += host[i] == host[n + i];
    mlc__heap_free(ctx, host);
    return read ? (double)hits / (double)n : MLC__NAN;
}

/* @@ IMPL.TRAIN ------------------------------------------ progress
 * Time is the wall clock and only shown, never measured with. On a terminal a line is drawn over
 * itself; in a file or a log each update is a line, and there are few of them. */

MLC_IMPL mlc_progress mlc_progress_make(const char *label, int64_t total, mlc_writer write,
                                        void *user)
{
    mlc_progress p;
    memset(&p, 0, sizeof p);
    p.write = write;
    p.user = user;
    p.label = label ? label : "";
    p.total = total;
    p.started = mlc__seconds();
    p.shown = -1e9;
#if MLC__FILES
    const char *term = getenv("TERM");
    if (!write)
        p.terminal = isatty(1) && !getenv("NO_COLOR") && !(term && strcmp(term, "dumb") == 0);
#endif
#ifndef MLC_NO_STDIO
    if (!write) p.write = mlc_stdout;
#endif
    if (!p.terminal) p.shown = p.started;
    return p;
}

/* One write a line, so that lines of several writers do not mix. */
MLC_IMPL void mlc_progress_update(mlc_progress *p, int64_t done, const char *text)
{
    char line[512];
    int n = 0;
    if (!p || !p->write) return;
    const double now = mlc__seconds();
    /* The last update is always shown, and ends the line. */
    const bool last = done >= p->total;
    const int64_t seconds = (int64_t)(now - p->started);
    if (!last && now - p->shown < (p->terminal ? 0.1 : 30.0)) return;
    p->shown = now;
    const int percent = p->total > 0 ? (int)(100 * (last ? p->total : done) / p->total) : 100;
    if (p->terminal) {
        n += snprintf(line, sizeof line, "\r\033[K%.80s %3d%% ", p->label, percent);
        /* 30 cells of U+2501; 3 bytes each fit beside an 80 byte label and 120 bytes of text. */
        for (int i = 0; i < 30; i++) n += snprintf(line + n, sizeof line - (size_t)n, "%s",
                                                   i * 100 < percent * 30 ? "\xE2\x94\x81" : " ");
    } else {
        n += snprintf(line, sizeof line, "%.80s %3d%%", p->label, percent);
    }
    n += snprintf(line + n, sizeof line - (size_t)n, " %lld/%lld %lld:%02lld %.120s%s",
                  (long long)done, (long long)p->total, (long long)(seconds / 60),
                  (long long)(seconds % 60), text ? text : "", last || !p->terminal ? "\n" : "");
    p->write(p->user, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

/* @@ IMPL.END -------------------------------------------- the compiler's modes as they were */

#if defined(__clang__)
#  if defined(__x86_64__) || defined(__i386__)
#    pragma float_control(pop)
#  else
#    pragma clang fp contract(on)
#  endif
#  pragma clang diagnostic pop
#else
#  pragma GCC pop_options
#endif
#if defined(__MINGW32__)
#  undef snprintf
#  undef vsnprintf
#endif
#ifdef __cplusplus
}
#endif
#endif /* MLCORE_IMPLEMENTATION */

/* This software is available under two licences: choose the one that you prefer.
 *
 * A. MIT No Attribution (MIT-0)
 *   Permission is hereby granted, free of charge, to any person obtaining a copy of this software
 *   and associated documentation files (the "Software"), to deal in the Software without
 *   restriction, including without limitation the rights to use, copy, modify, merge, publish,
 *   distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
 *   Software is furnished to do so.
 *   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING
 *   BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
 *   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
 *   DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 *   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 *
 * B. Public domain: the authors dedicate this software to the public domain, as far as the law
 *   lets them, and waive all rights to it (see unlicense in LICENSE).                          */
