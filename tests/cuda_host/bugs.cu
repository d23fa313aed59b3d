/* bugs.cu -- kernels in the manner of mlcore_cuda.cu, right by default, with 40 bugs to switch on
 *
 * Tests of the tester: bugs.sh builds this over fibers.h and cuda_runtime.h, plain and with
 * sanitizers, and counts the bugs that are found. bugs N runs the case of bug N; bugs 0 runs all
 * cases as they should be; bugs list prints number, kind and text of each bug. Values are small
 * integers in f32: sums are exact in any order, so a result is right or wrong. */
#include <cuda_runtime.h>

#include <vector>

enum { THREADS = 64, TILE = 8, BINS = 10, WARPS = 4 };
static int g_bug, g_wrong;

static inline bool bug(int n) { return g_bug == n; }

/* -- kernels -- */

struct map_args {
    int64_t      rows, cols, x_row, x_col;
    const float *x;
    float       *y;
};
/* y = 2 x + 1; x with strides, y dense. */
static __global__ void map_kernel(map_args a)
{
    const int64_t n = a.rows * a.cols + (bug(9) ? 1 : 0);
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int64_t r = i / a.cols, c = i % a.cols;
        a.y[i] = 2.0f * a.x[r * a.x_row + c * (bug(10) ? a.x_row : a.x_col)] + 1.0f;
    }
}

static __device__ float warp_sum(float v)
{
    const unsigned mask = bug(19) ? ~0u << 1 : ~0u;
    for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(mask, v, o);
    return v;
}

/* A warp a row. */
static __global__ void row_sum_kernel(const float *x, float *y, int rows, int cols)
{
    const int lane = (int)threadIdx.x, row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    const int end = bug(11) ? cols + 1 : cols;
    float     s = 0.0f;
    if (row >= rows || (bug(17) && lane >= cols)) return;
    for (int c = lane; c < end; c += 32) s += x[row * cols + c];
    if (bug(18) && lane < 16) s = warp_sum(s);
    s = warp_sum(s);
    if (lane == 0) y[row] = s;
}

/* Sums of 8 values, by teams of 8 lanes. */
static __global__ void team_sum_kernel(const float *x, float *y)
{
    const int      i = (int)threadIdx.x, width = bug(20) ? 32 : 8;
    const unsigned mask = 0xffu << (i % 32 / 8 * 8);
    float          s = x[i];
    for (int o = 4; o > 0; o /= 2) s += __shfl_down_sync(mask, s, (unsigned)o, width);
    if (i % 8 == 0) y[i / 8] = s;
}

/* The block's sum, for all of its threads. */
static __device__ float block_sum(float v)
{
    MLC_SHARED(float, part, [32]);
    const int t = (int)threadIdx.x, lane = t % 32, warps = bug(31) ? 32 : (int)blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0) part[t / 32] = v;
    if (!bug(2)) __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : 0.0f);
    if (!bug(1)) __syncthreads();
    return v;
}

/* A block a row: its sum and its sum of squares. */
static __global__ void moments_kernel(const float *x, float *y, int cols)
{
    const int    t = (int)threadIdx.x;
    const float *row = x + (int64_t)blockIdx.x * cols;
    float        s = 0.0f, q = 0.0f;
    if (bug(22) && t < 64) s = block_sum(0.0f);
    for (int c = t; c < cols; c += (int)blockDim.x) {
        s += row[c];
        q += row[c] * row[c];
        if (bug(23)) __syncthreads();
    }
    if (bug(21)) {
        if (t < 32) __syncthreads();
        else s = block_sum(s);
    }
    s = block_sum(s);
    q = block_sum(q);
    if (t != 0) return;
    y[2 * blockIdx.x] = s;
    y[2 * blockIdx.x + 1] = q;
}

/* c[m,n] = a[m,k] b[k,n]: a tile a block, an element a thread. */
static __global__ void gemm_kernel(const float *a, const float *b, float *c, int m, int n, int k)
{
    MLC_SHARED(float, as, [TILE][TILE + 1]);
    MLC_SHARED(float, bs, [TILE][TILE]);
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int row = (int)blockIdx.y * TILE + y, col = (int)blockIdx.x * TILE + x;
    float     sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += TILE) {
        as[y][x] = row < m && (bug(12) || k0 + x < k) ? a[row * k + k0 + x] : 0.0f;
        bs[y][x] = col < n && k0 + y < k ? b[(k0 + y) * n + col] : 0.0f;
        if (!bug(3)) __syncthreads();
        for (int i = 0; i < TILE; i++) sum += as[y][i] * bs[i][x];
        if (!bug(4)) __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}

static __global__ void transpose_kernel(const float *x, float *y, int rows, int cols)
{
    MLC_SHARED(float, tile, [TILE][TILE + 1]);
    const int tx = (int)threadIdx.x, ty = (int)threadIdx.y;
    const int r0 = (int)blockIdx.y * TILE, c0 = (int)blockIdx.x * TILE;
    if (r0 + ty < rows && c0 + tx < cols) tile[ty][tx] = x[(r0 + ty) * cols + c0 + tx];
    if (!bug(5)) __syncthreads();
    if (c0 + ty < cols && (bug(13) || r0 + tx < rows))
        y[(c0 + ty) * rows + r0 + tx] = tile[tx][ty];
}

/* y[i] is the sum of x[0..i]: one block, a carry from chunk to chunk. */
static __global__ void scan_kernel(const float *x, float *y, int n)
{
    MLC_SHARED(float, s, [THREADS]);
    const int t = (int)threadIdx.x;
    float     carry = 0.0f;
    for (int at = t; at - t < n; at += THREADS) {
        s[t] = at < n ? x[at] : 0.0f;
        __syncthreads();
        for (int d = 1; d < THREADS; d *= 2) {
            const float v = t >= d ? s[t - d] : 0.0f;
            if (!bug(6)) __syncthreads();
            s[t] += v;
            __syncthreads();
        }
        if (at < n) y[at] = carry + s[t];
        carry += s[THREADS - 1];
        __syncthreads();
    }
}

/* Bins of the values 0 .. BINS - 1: a block's in shared memory, then added to those of all. */
static __global__ void histogram_kernel(const float *x, int n, unsigned *out)
{
    MLC_SHARED(unsigned, bins, [BINS]);
    const unsigned t = threadIdx.x;
    if (t < BINS) bins[t] = 0;
    if (!bug(7)) __syncthreads();
    for (unsigned i = blockIdx.x * THREADS + t; i < (unsigned)n; i += gridDim.x * THREADS)
        atomicAdd(&bins[(int)x[i] + (bug(15) && x[i] == BINS - 1.0f ? 1 : 0)], 1u);
    __syncthreads();
    if (t >= BINS) return;
    if (bug(28)) out[t] += bins[t];
    else atomicAdd(&out[t], bins[t]);
}

/* y[i] = x[i] + x[i+1] + x[i+2], n of them. */
static __global__ void stencil_kernel(const float *x, float *y, int n)
{
    MLC_SHARED(float, s, [THREADS + 2]);
    const int t = (int)threadIdx.x, i0 = (int)blockIdx.x * THREADS, halo = bug(14) ? 3 : 2;
    for (int i = t; i < THREADS + halo; i += THREADS) s[i] = i0 + i < n + 2 ? x[i0 + i] : 0.0f;
    __syncthreads();
    if (i0 + t < n) y[i0 + t] = s[t] + s[t + 1] + s[t + 2];
}

static __device__ bool is_last_block(unsigned *count)
{
    if (bug(26)) return blockIdx.x == gridDim.x - 1;
    if (bug(24)) return ++*count == gridDim.x;
    return atomicAdd(count, 1u) == gridDim.x - 1;
}

/* The sum of all x: the last block adds up what the blocks have. */
static __global__ void total_kernel(const float *x, int n, float *part, unsigned *count, float *out)
{
    MLC_SHARED(unsigned, last, [1]);
    float s = 0.0f;
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < (unsigned)n; i += gridDim.x * THREADS)
        s += x[i];
    s = block_sum(s);
    if (threadIdx.x == 0) {
        if (!bug(25)) part[blockIdx.x] = s;
        __threadfence();
        last[0] = is_last_block(count);
        if (bug(25)) part[blockIdx.x] = s;
    }
    if (!bug(8)) __syncthreads();
    if (!last[0]) return;
    s = block_sum(threadIdx.x < gridDim.x ? part[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) *out = s;
}

/* y = x, by vectors of four where both are aligned. */
static __global__ void copy_kernel(const float *x, float *y, int n)
{
    const int  t = (int)threadIdx.x;
    const bool wide = ((uintptr_t)x | (uintptr_t)y) % 16 == 0 || bug(33);
    const int  vectors = wide ? (bug(16) ? n + 3 : n) / 4 : 0;
    for (int i = t; i < vectors; i += THREADS) ((float4 *)y)[i] = ((const float4 *)x)[i];
    for (int i = 4 * vectors + t; i < n; i += THREADS) y[i] = x[i];
}

/* -- host -- */

static cudaStream_t g_stream;

static void ok(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
static cudaStream_t stream_new(void)
{
    cudaStream_t s = nullptr;
    ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    return s;
}
template <class... P, class... A>
static void launch(cudaStream_t s, dim3 grid, dim3 block, void (*kernel)(P...), A... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = s;
    ok(cudaLaunchKernelEx(&config, kernel, P(args)...), "launch");
}

template <class T> struct device_array {
    T     *at = nullptr;
    size_t n;
    explicit device_array(size_t count) : n(count)
    {
        ok(cudaMallocAsync((void **)&at, n * sizeof(T), g_stream), "allocation");
    }
    explicit device_array(const std::vector<T> &v) : device_array(v.size())
    {
        ok(cudaMemcpyAsync(at, v.data(), n * sizeof(T), cudaMemcpyHostToDevice, g_stream), "copy");
    }
    ~device_array() { release(); }
    void release()
    {
        if (at) cudaFreeAsync(at, g_stream);
        at = nullptr;
    }
    void clear() { ok(cudaMemsetAsync(at, 0, n * sizeof(T), g_stream), "memset"); }
    std::vector<T> read() const
    {
        std::vector<T> v(n);
        ok(cudaMemcpyAsync(v.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost, g_stream), "copy");
        return v;
    }
};
struct pinned_array {
    float *at = nullptr;
    explicit pinned_array(size_t n)
    {
        ok(cudaHostAlloc((void **)&at, n * sizeof(float), cudaHostAllocDefault), "pinned");
        for (size_t i = 0; i < n; i++) at[i] = -1.0f;
    }
    ~pinned_array() { cudaFreeHost(at); }
};

typedef std::vector<float> floats;

static floats ramp(int n)              /* values of 0 .. BINS - 1                               */
{
    floats v((size_t)n);
    for (int i = 0; i < n; i++) v[(size_t)i] = (float)((i * 7 + i / 11 + 3) % BINS);
    return v;
}
template <class T>
static void same(const char *what, const std::vector<T> &got, const std::vector<T> &want)
{
    for (size_t i = 0; i < want.size(); i++) {
        if (got[i] == want[i]) continue;
        printf("%s: element %zu is %g, not %g\n", what, i, (double)got[i], (double)want[i]);
        g_wrong++;
        return;
    }
}

static void test_map(void)
{
    const int                 rows = 13, cols = 21;
    const floats              x = ramp(rows * cols);
    const device_array<float> dx(x), dy(x.size());
    floats                    want(x.size());
    for (int i = 0; i < rows * cols; i++)
        want[(size_t)i] = 2.0f * x[(size_t)(i % cols * rows + i / cols)] + 1.0f;
    launch(g_stream, 3, THREADS, map_kernel, map_args{rows, cols, 1, rows, dx.at, dy.at});
    same("map", dy.read(), want);
}

static void row_sums(int rows, int cols)
{
    const floats              x = ramp(rows * cols);
    const device_array<float> dx(x), dy((size_t)rows);
    floats                    want((size_t)rows);
    for (size_t i = 0; i < x.size(); i++) want[i / (size_t)cols] += x[i];
    launch(g_stream, ((unsigned)rows + 3) / 4, dim3(32, 4), row_sum_kernel, dx.at, dy.at, rows,
           cols);
    same("row sum", dy.read(), want);
}
static void test_row_sum(void)
{
    row_sums(13, 20);
    row_sums(6, 45);
}

static void test_team_sum(void)
{
    const floats              x = ramp(THREADS);
    const device_array<float> dx(x), dy(THREADS / 8);
    floats                    want(THREADS / 8);
    for (size_t i = 0; i < x.size(); i++) want[i / 8] += x[i];
    launch(g_stream, 1, THREADS, team_sum_kernel, dx.at, dy.at);
    same("team sum", dy.read(), want);
}

static void test_moments(void)
{
    const int                 rows = 5, cols = 150;
    const floats              x = ramp(rows * cols);
    const device_array<float> dx(x), dy(2 * rows);
    floats                    want(2 * rows);
    for (size_t i = 0; i < x.size(); i++) {
        want[i / cols * 2] += x[i];
        want[i / cols * 2 + 1] += x[i] * x[i];
    }
    launch(g_stream, rows, 32 * WARPS, moments_kernel, dx.at, dy.at, cols);
    same("moments", dy.read(), want);
}

static void test_gemm(void)
{
    const int                 m = 19, n = 13, k = 21;
    const floats              a = ramp(m * k), b = ramp(k * n);
    const device_array<float> da(a), db(b), dc(m * n);
    floats                    want(m * n);
    for (int i = 0; i < m * n; i++)
        for (int l = 0; l < k; l++)
            want[(size_t)i] += a[(size_t)(i / n * k + l)] * b[(size_t)(l * n + i % n)];
    launch(g_stream, dim3((n + TILE - 1) / TILE, (m + TILE - 1) / TILE), dim3(TILE, TILE),
           gemm_kernel, da.at, db.at, dc.at, m, n, k);
    same("gemm", dc.read(), want);
}

static void test_transpose(void)
{
    const int                 rows = 19, cols = 13;
    const floats              x = ramp(rows * cols);
    const device_array<float> dx(x), dy(x.size());
    floats                    want(x.size());
    for (int i = 0; i < rows * cols; i++)
        want[(size_t)(i % cols * rows + i / cols)] = x[(size_t)i];
    launch(g_stream, dim3((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE), dim3(TILE, TILE),
           transpose_kernel, dx.at, dy.at, rows, cols);
    same("transpose", dy.read(), want);
}

static void test_scan(void)
{
    const floats              x = ramp(150);
    const device_array<float> dx(x), dy(x.size());
    floats                    want(x);
    for (size_t i = 1; i < x.size(); i++) want[i] += want[i - 1];
    launch(g_stream, 1, THREADS, scan_kernel, dx.at, dy.at, (int)x.size());
    same("scan", dy.read(), want);
}

static void test_histogram(void)
{
    const floats              x = ramp(500);
    const device_array<float> dx(x);
    device_array<unsigned>    bins(BINS);
    std::vector<unsigned>     want(BINS);
    for (const float v : x) want[(size_t)v]++;
    if (!bug(30)) bins.clear();
    launch(g_stream, 4, THREADS, histogram_kernel, dx.at, (int)x.size(), bins.at);
    same("histogram", bins.read(), want);
}

static void test_stencil(void)
{
    const int                 n = 300;
    const floats              x = ramp(n + 2);
    const device_array<float> dx(x), dy(n);
    const device_array<float> &y = bug(27) ? dx : dy;
    floats                    want(n);
    for (size_t i = 0; i < n; i++) want[i] = x[i] + x[i + 1] + x[i + 2];
    launch(g_stream, (n + THREADS - 1) / THREADS, THREADS, stencil_kernel, dx.at, y.at, n);
    same("stencil", y.read(), want);
}

static void test_total(void)
{
    const floats              x = ramp(1000);
    const device_array<float> dx(x), part(8), out(1);
    device_array<unsigned>    count(1);
    floats                    want(1);
    for (const float v : x) want[0] += v;
    count.clear();
    launch(g_stream, 8, THREADS, total_kernel, dx.at, (int)x.size(), part.at, count.at, out.at);
    same("total", out.read(), want);
}

static void test_copy(void)
{
    const floats        x = ramp(103), tail(x.begin() + 1, x.end());
    device_array<float> dx(x);
    device_array<float> dy(x.size()), dz(tail.size());
    launch(g_stream, 1, THREADS, copy_kernel, bug(34) ? x.data() : dx.at, dy.at, (int)x.size());
    launch(g_stream, 1, THREADS, copy_kernel, dx.at + 1, dz.at, (int)tail.size());
    same("copy", dy.read(), x);
    same("copy from the second on", dz.read(), tail);
    if (bug(32)) same("copy", floats{dy.at[0]}, x);
    const float *const from = dx.at;
    if (bug(29)) dx.release();
    launch(g_stream, 1, THREADS, copy_kernel, from, dy.at, (int)x.size());
}

/* Uploads in pieces through two pinned chunks, as CUDA.DEVICE does. */
static void test_staging(void)
{
    const size_t        piece = 10, pieces = 6;
    const floats        x = ramp((int)(piece * pieces));
    device_array<float> dx(x.size());
    pinned_array        chunk(2 * piece);
    cudaEvent_t         free[2];
    for (cudaEvent_t &e : free) ok(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "event");
    for (size_t i = 0; i < pieces; i++) {
        float *const at = chunk.at + i % 2 * piece;
        if (i >= 2 && !bug(35)) ok(cudaEventSynchronize(free[i % 2]), "event");
        for (size_t j = 0; j < piece; j++) at[j] = x[i * piece + j];
        ok(cudaMemcpyAsync(dx.at + i * piece, at, piece * sizeof *at,
                           bug(38) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice, g_stream),
           "copy");
        ok(cudaEventRecord(free[i % 2], g_stream), "event");
    }
    same("staging", dx.read(), x);
    for (cudaEvent_t e : free) cudaEventDestroy(e);
}

static void test_result(void)
{
    const floats              x = ramp(THREADS);
    const device_array<float> dx(x), dy(x.size());
    const pinned_array        out(x.size());
    launch(g_stream, 1, bug(40) ? 2 * 1024 : THREADS, copy_kernel, dx.at, dy.at, (int)x.size());
    ok(cudaMemcpyAsync(out.at, dy.at, x.size() * sizeof(float), cudaMemcpyDeviceToHost, g_stream),
       "copy");
    if (!bug(36)) ok(cudaStreamSynchronize(g_stream), "synchronization");
    same("result", floats(out.at, out.at + x.size()), x);
    ok(cudaStreamSynchronize(g_stream), "synchronization");
}

/* A second stream reads what the first one writes. */
static void test_streams(void)
{
    const floats              x = ramp(THREADS);
    const device_array<float> dx(x), dy(x.size()), dz(x.size());
    cudaEvent_t               written = nullptr;
    ok(cudaStreamSynchronize(g_stream), "synchronization");
    if (bug(39)) cudaSetDevice(1);
    const cudaStream_t second = stream_new();
    cudaSetDevice(0);
    ok(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), "event");
    launch(g_stream, 1, THREADS, copy_kernel, dx.at, dy.at, (int)x.size());
    ok(cudaEventRecord(written, g_stream), "event");
    if (!bug(37)) ok(cudaEventSynchronize(written), "event");
    launch(second, 1, THREADS, copy_kernel, dy.at, dz.at, (int)x.size());
    ok(cudaStreamSynchronize(second), "synchronization");
    same("streams", dz.read(), x);
    cudaEventDestroy(written);
    cudaStreamDestroy(second);
}

/* -- the bugs, by number; kinds: of bugs.sh's table -- */

static const struct {
    const char *kind, *what;
    void      (*test)(void);
} BUGS[] = {
    {"barrier", "block sum: the parts are written again while others read them", test_moments},
    {"barrier", "block sum: the parts are read before all are written", test_moments},
    {"barrier", "gemm: a tile is used before it is loaded", test_gemm},
    {"barrier", "gemm: a tile is loaded while others use the last one", test_gemm},
    {"barrier", "transpose: the tile is read before it is written", test_transpose},
    {"barrier", "scan: a step writes what others have not read", test_scan},
    {"barrier", "histogram: bins are counted before they are cleared", test_histogram},
    {"barrier", "total: the last block's flag is read before it is written", test_total},
    {"index", "map: one past the end", test_map},
    {"index", "map: the stride of another dimension", test_map},
    {"index", "row sum: one past the row", test_row_sum},
    {"index", "gemm: the tail of k has no guard", test_gemm},
    {"index", "transpose: the edge's tile has no guard", test_transpose},
    {"index", "stencil: a halo too long for the shared array", test_stencil},
    {"index", "histogram: the largest value is past the last bin", test_histogram},
    {"index", "copy: vectors are rounded up past the end", test_copy},
    {"shuffle", "row sum: a full mask where lanes have ended", test_row_sum},
    {"shuffle", "row sum: half a warp in a shuffle of all", test_row_sum},
    {"shuffle", "row sum: a lane is not in its own mask", test_row_sum},
    {"shuffle", "team sum: reads lanes of the next team", test_team_sum},
    {"shuffle", "divergent barriers at two places", test_moments},
    {"shuffle", "divergent barriers at one place: half a block in block sum", test_moments},
    {"shuffle", "a barrier in a loop whose turns differ by thread", test_moments},
    {"blocks", "total: the counter is not atomic", test_total},
    {"blocks", "total: a block counts before it stores its part", test_total},
    {"blocks", "total: the last block is the one with the last number", test_total},
    {"blocks", "stencil: in place, over what other blocks read", test_stencil},
    {"blocks", "histogram: bins of all are added to without an atomic", test_histogram},
    {"memory", "copy: from memory that is freed", test_copy},
    {"memory", "histogram: the bins of all are not cleared", test_histogram},
    {"memory", "block sum: reads shared memory that is not written", test_moments},
    {"memory", "the host reads device memory", test_copy},
    {"memory", "copy: a vector load that is not aligned", test_copy},
    {"memory", "copy: a kernel is given host memory", test_copy},
    {"stream", "a staging chunk is written before its copy ran", test_staging},
    {"stream", "a result is read before the stream is synchronized", test_result},
    {"stream", "a second stream does not wait for the event", test_streams},
    {"stream", "a copy of the wrong kind", test_staging},
    {"stream", "a launch on another device's stream", test_streams},
    {"stream", "a block of 2048 threads", test_result},
};
constexpr int COUNT = (int)(sizeof BUGS / sizeof *BUGS);
static_assert(COUNT == 40, "bugs.sh counts on it");

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    if (!strcmp(argv[1], "list")) {
        for (int i = 0; i < COUNT; i++) printf("%d|%s|%s\n", i + 1, BUGS[i].kind, BUGS[i].what);
        return 0;
    }
    g_bug = atoi(argv[1]);
    if (g_bug < 0 || g_bug > COUNT) return 2;
    g_stream = stream_new();
    for (int i = 0; i < COUNT; i++)
        if (g_bug == 0 || g_bug == i + 1) BUGS[i].test();
    ok(cudaStreamSynchronize(g_stream), "synchronization");
    cudaStreamDestroy(g_stream);
    return g_wrong != 0;
}
