/* test_bits.c -- tests of section IMPL.IO: every bit of every dtype, to Python and from it
 *
 * Element i of a tensor is a function of i and the dtype alone, which tests/python_reads_ours.py
 * repeats: the files in tests/golden were written with it by the reference libraries, and with
 * MLC_TEST_OUT=FOLDER this test leaves files of ours there for that script.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

enum { COUNT = 3 * 5 * 7 };

static const mlc_dtype ALL[] = {MLC_F32, MLC_F64, MLC_I64, MLC_BF16, MLC_F16,
                                MLC_I32, MLC_I8,  MLC_U8,  MLC_BOOL};

/* The high bits of a multiple of the golden ratio; every seventh float is a NaN with a payload. */
static uint64_t pattern(mlc_dtype dtype, int64_t i)
{
    const uint64_t h = ((uint64_t)i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    const uint64_t v = h >> (64 - 8 * mlc_dtype_bytes(dtype));
    if (dtype == MLC_BOOL) return h >> 63;
    if (i % 7 != 3) return v;
    return dtype == MLC_F32    ? v | 0x7F800001u
           : dtype == MLC_F64  ? v | UINT64_C(0x7FF0000000000001)
           : dtype == MLC_BF16 ? v | 0x7F81u
           : dtype == MLC_F16  ? v | 0x7C01u
                               : v;
}

static void fill(void *to, mlc_dtype dtype, int64_t n)
{
    const size_t bytes = mlc_dtype_bytes(dtype);
    for (int64_t i = 0; i < n; i++)
        for (size_t k = 0; k < bytes; k++)
            ((unsigned char *)to)[(size_t)i * bytes + k] =
                (unsigned char)(pattern(dtype, i) >> (8 * k));
}

static mlc_tensor *make(mlc_ctx *ctx, mlc_dtype dtype, mlc_dims shape, int64_t n)
{
    unsigned char host[8 * COUNT];
    fill(host, dtype, n);
    return mlc_from(ctx, dtype, shape, host);
}

static void check_bits(mlc_tensor *t, mlc_dtype dtype, mlc_dims shape, int64_t n)
{
    unsigned char want[8 * COUNT], got[8 * COUNT];
    if (!CHECK(t != NULL)) return;
    CHECK_EQ(t->dtype, dtype);
    CHECK_EQ(t->ndim, shape.n);
    for (int32_t d = 0; d < shape.n && d < t->ndim; d++) CHECK_EQ(t->shape[d], shape.v[d]);
    fill(want, dtype, n);
    if (!CHECK_EQ(mlc_numel(t), n)) return;
    CHECK_EQ(mlc_read(t, got, (size_t)n * mlc_dtype_bytes(dtype)), MLC_OK);
    if (!CHECK_EQ(memcmp(got, want, (size_t)n * mlc_dtype_bytes(dtype)), 0))
        printf("  of %s\n", mlc_dtype_name(dtype));
}

static mlc_tensor *get(const mlc_named *list, int64_t n, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return list[i].tensor;
    printf("  no tensor '%s'\n", name);
    return NULL;
}

/* A scalar, an empty tensor, a matrix and a tensor of each dtype, as in the files of Python. */
static int64_t everything(mlc_ctx *ctx, mlc_named *list, char (*names)[32])
{
    static const char *const kinds[] = {"", ".scalar", ".empty", ".vector"};
    int64_t n = 0;
    for (int d = 0; d < 9; d++)
        for (int k = 0; k < 4; k++, n++) {
            snprintf(names[n], 32, "%s%s", mlc_dtype_name(ALL[d]), kinds[k]);
            list[n].name = names[n];
            list[n].tensor = k == 0   ? make(ctx, ALL[d], mlc_dims3(3, 5, 7), COUNT)
                             : k == 1 ? make(ctx, ALL[d], mlc_dims0(), 1)
                             : k == 2 ? make(ctx, ALL[d], mlc_dims2(0, 4), 0)
                                      : make(ctx, ALL[d], mlc_dims1(COUNT), COUNT);
        }
    return n;
}

static void check_everything(const mlc_named *list, int64_t n, bool bf16)
{
    char name[32];
    for (int d = 0; d < 9; d++) {
        if (ALL[d] == MLC_BF16 && !bf16) continue;
        const char *dtype = mlc_dtype_name(ALL[d]);
        check_bits(get(list, n, dtype), ALL[d], mlc_dims3(3, 5, 7), COUNT);
        snprintf(name, sizeof name, "%s.scalar", dtype);
        check_bits(get(list, n, name), ALL[d], mlc_dims0(), 1);
        snprintf(name, sizeof name, "%s.empty", dtype);
        check_bits(get(list, n, name), ALL[d], mlc_dims2(0, 4), 0);
        snprintf(name, sizeof name, "%s.vector", dtype);
        check_bits(get(list, n, name), ALL[d], mlc_dims1(COUNT), COUNT);
    }
}

/* ---- from Python --------------------------------------------------------------------------- */

TEST(bits, all_dtypes_of_the_reference_library_are_read_bit_by_bit)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_named *list = NULL;
    int64_t          n = 0;
    CHECK_EQ(mlc_safetensors_load(ctx, "tests/golden/io_bits.safetensors", &list, &n), MLC_OK);
    CHECK_EQ(n, 36);
    check_everything(list, n, true);
    CHECK_OK(ctx);
}

TEST(bits, all_dtypes_of_numpy_are_read_bit_by_bit)
{
    mlc_ctx         *ctx = test_ctx();
    const mlc_named *list = NULL;
    int64_t          n = 0;
    char             name[32];
    CHECK_EQ(mlc_npz_load(ctx, "tests/golden/io_bits.npz", &list, &n), MLC_OK);
    CHECK_EQ(n, 8 * 6);
    check_everything(list, n, false);
    for (int d = 0; d < 9; d++) {
        if (ALL[d] == MLC_BF16) continue;
        snprintf(name, sizeof name, "%s.big", mlc_dtype_name(ALL[d]));
        check_bits(get(list, n, name), ALL[d], mlc_dims3(3, 5, 7), COUNT);
        snprintf(name, sizeof name, "%s.order", mlc_dtype_name(ALL[d]));
        check_bits(get(list, n, name), ALL[d], mlc_dims3(3, 5, 7), COUNT);
    }
    CHECK_OK(ctx);
}

/* ---- the same files as Python's ------------------------------------------------------------ */

TEST(bits, the_same_tensors_are_the_same_safetensors_file_as_torch_writes)
{
    static const char *const meta[3] = {"format", "pt", NULL};
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("bits.safetensors");
    mlc_named      list[36];
    char           names[36][32];
    size_t         n = 0, want_n = 0;
    CHECK_EQ(mlc_safetensors_save(ctx, b.path, list, everything(ctx, list, names), meta), MLC_OK);
    unsigned char *got = get_file(b.path, &n);
    unsigned char *want = get_file("tests/golden/io_bits.safetensors", &want_n);
    CHECK_EQ(n, want_n);
    CHECK(got && want && n == want_n && memcmp(got, want, n) == 0);
    CHECK_OK(ctx);
    free(got);
    free(want);
    box_close(&b);
}

/* numpy.savez stores its entries, so a whole .npy of numpy's lies in the .npz. */
TEST(bits, a_npy_file_of_ours_is_in_the_npz_that_numpy_wrote)
{
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open("bits.npy");
    mlc_named      list[36];
    char           names[36][32];
    size_t         all_n = 0;
    unsigned char *all = get_file("tests/golden/io_bits.npz", &all_n);
    const int64_t  count = everything(ctx, list, names);
    for (int64_t i = 0; i < count && CHECK(all != NULL); i++) {
        size_t n = 0, at = 0;
        if (list[i].tensor->dtype == MLC_BF16) continue;
        CHECK_EQ(mlc_npy_save(list[i].tensor, b.path), MLC_OK);
        unsigned char *f = get_file(b.path, &n);
        while (f && at + n <= all_n && memcmp(all + at, f, n) != 0) at++;
        if (!CHECK(f && at + n <= all_n)) printf("  %s\n", list[i].name);
        free(f);
    }
    CHECK_OK(ctx);
    free(all);
    box_close(&b);
}

/* ---- to Python ----------------------------------------------------------------------------- */

static mlc_module *network(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 8));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 8, 2));
    return net;
}

TEST(bits, files_of_every_dtype_come_back_and_are_left_for_python)
{
    static const char *const meta[5] = {"made by", "mlcore", "\xcf\x80 \"quoted\"", "tab\t", NULL};
    static const mlc_rename renames[3] = {
        {.from = "q.*", .to = "0.*", .parts = 2, .size = 3},
        {.from = "k.*", .to = "0.*", .part = 1, .parts = 2},
        {.from = "turned", .to = "2.weight", .transpose = true}};
    mlc_save_desc    to = mlc_save_desc_make();
    const char      *out = getenv("MLC_TEST_OUT");
    mlc_ctx         *ctx = test_ctx();
    box              b = box_open("");
    char             path[512], names[37][32];
    mlc_named        list[37];
    const mlc_named *back = NULL;
    int64_t          n = everything(ctx, list, names), got = 0;
    to.renames = renames;
    to.n_renames = 3;
    if (!out) out = b.dir;
    list[n].name = "transposed";
    list[n++].tensor = mlc_transpose(make(ctx, MLC_F32, mlc_dims2(15, 7), COUNT), 0, 1);
    snprintf(path, sizeof path, "%s/bits.safetensors", out);
    CHECK_EQ(mlc_safetensors_save(ctx, path, list, n, meta), MLC_OK);
    CHECK_EQ(mlc_safetensors_load(ctx, path, &back, &got), MLC_OK);
    CHECK_EQ(got, 37);
    check_everything(back, got, true);
    snprintf(path, sizeof path, "%s/bits.npz", out);
    CHECK_EQ(mlc_npz_save(ctx, path, list, n), MLC_OK);
    CHECK_EQ(mlc_npz_load(ctx, path, &back, &got), MLC_OK);
    CHECK_EQ(got, 37);
    check_everything(back, got, false);
    for (int d = 0; d < 9; d++) {
        snprintf(path, sizeof path, "%s/%s.npy", out, mlc_dtype_name(ALL[d]));
        CHECK_EQ(mlc_npy_save(list[4 * d].tensor, path), MLC_OK);
        if (ALL[d] != MLC_BF16)
            check_bits(mlc_npy_load(ctx, path), ALL[d], mlc_dims3(3, 5, 7), COUNT);
    }
    snprintf(path, sizeof path, "%s/network.safetensors", out);
    mlc_module *net = network(ctx);
    CHECK_EQ(mlc_save(net, path), MLC_OK);
    snprintf(path, sizeof path, "%s/renamed.safetensors", out);
    CHECK_EQ(mlc_save_ex(net, path, &to), MLC_OK);
    CHECK_OK(ctx);
    box_close(&b);
}
