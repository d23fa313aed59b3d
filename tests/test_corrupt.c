/* test_corrupt.c -- files of every format cut at every length and with every bit flipped
 *
 * A small sample of each format is read whole, then every beginning of it, then with each single
 * bit of its first 4 KiB the other way round. Each read gives a value or a clear error that names
 * the file; it never asks for more memory than 4 times the file and 1 MiB, nor for a single block
 * that large; nothing stays behind; and a load that fails leaves every byte of the model.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "shards.h"
#include "watch.h"

typedef struct sample {
    const char *file;
    bool      (*make)(mlc_ctx *ctx, const char *path);
    bool      (*read)(mlc_ctx *ctx, mlc_module *net, const char *path);   /* a value was given */
    int         beside;                /* files that it names                                  */
} sample;

/* ---- samples -------------------------------------------------------------------------------- */

static mlc_tensor *some(mlc_ctx *ctx, mlc_dtype dtype)
{
    return test_rand(ctx, dtype, mlc_dims2(4, 3), 1, 0, 100);
}

static mlc_module *small_net(mlc_ctx *ctx)
{
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_linear(ctx, 3, 4));
    mlc_module_add(net, mlc_nn_relu(ctx));
    mlc_module_add(net, mlc_nn_linear(ctx, 4, 2));
    mlc_module_build(net);
    return net;
}

static bool make_safetensors(mlc_ctx *ctx, const char *path)
{
    const mlc_named         list[] = {{"f32", some(ctx, MLC_F32)}, {"bool", some(ctx, MLC_BOOL)},
                                      {"na\"me\n", mlc_zeros(ctx, MLC_I64, mlc_dims0())},
                                      {"none", mlc_zeros(ctx, MLC_F64, mlc_dims1(0))}};
    const char *const metadata[] = {"key", "value \xc3\xa9", NULL};
    return mlc_safetensors_save(ctx, path, list, 4, metadata) == MLC_OK;
}

static bool make_npz(mlc_ctx *ctx, const char *path)
{
    const mlc_named list[] = {{"a", some(ctx, MLC_F32)}, {"b", some(ctx, MLC_BOOL)}};
    return mlc_npz_save(ctx, path, list, 2) == MLC_OK;
}

static bool make_npy(mlc_ctx *ctx, const char *path)
{
    return mlc_npy_save(some(ctx, MLC_F16), path) == MLC_OK;
}

/* Column-major, two bytes an element, in the other order: what is converted. */
static bool make_fortran(mlc_ctx *ctx, const char *path)
{
    unsigned char file[128 + 24] = "\x93NUMPY\1\0\x76\0{'descr': '>i2', 'fortran_order': True, "
                                   "'shape': (4, 3), }";
    (void)ctx;
    for (size_t i = strlen((char *)file + 10) + 10; i < 127; i++) file[i] = ' ';
    file[127] = '\n';
    for (int i = 0; i < 24; i++) file[128 + i] = (unsigned char)(7 * i);
    return put_file(path, file, sizeof file);
}

static bool make_csv(mlc_ctx *ctx, const char *path)
{
    static const char text[] = "\xef\xbb\xbf# a comment\r\n x ,\"y \"\"quoted\"\"\",z\r\n"
                               "1, -2.5e3 ,\"3\"\n\n4,NaN,0.1\r5,-inf,+1E-400\n6,7,8";
    (void)ctx;
    return put_file(path, text, sizeof text - 1);
}

static bool make_table(mlc_ctx *ctx, const char *path)
{
    static const char text[] = "name,n,x\nred,1,0.5\n\"b\nl\"\"ue\",2,\nred,NA,1e5\n,4,7\n";
    (void)ctx;
    return put_file(path, text, sizeof text - 1);
}

static bool make_idx(mlc_ctx *ctx, const char *path)
{
    return mlc_idx_save(some(ctx, MLC_I32), path) == MLC_OK;
}

static bool make_cifar(mlc_ctx *ctx, const char *path)
{
    unsigned char image[2 * 3074];
    (void)ctx;
    for (size_t i = 0; i < sizeof image; i++) image[i] = (unsigned char)(i % 19);
    return put_file(path, image, sizeof image);
}

static bool make_state(mlc_ctx *ctx, const char *path)
{
    mlc_module *net = small_net(ctx);
    const bool  done = mlc_save(net, path) == MLC_OK;
    mlc_module_free(net);
    return done;
}

/* An index of two shards, under the name of the sample. */
static bool make_index(mlc_ctx *ctx, const char *path)
{
    char folder[400], index[450];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    snprintf(index, sizeof index, "%s/" SHARDS_INDEX, folder);
    return make_state(ctx, path) && shards_save(ctx, path, folder, 2) && rename(index, path) == 0;
}

static bool make_optim(mlc_ctx *ctx, const char *path)
{
    mlc_module *net = small_net(ctx);
    mlc_optim  *opt = mlc_nadam(net, 0.1);
    mlc_optim_scaler(opt, NULL);
    const bool done = mlc_optim_save(opt, path) == MLC_OK;
    mlc_optim_free(opt);
    mlc_module_free(net);
    return done;
}

static bool make_packed(mlc_ctx *ctx, const char *path)
{
    size_t         n = 0;
    unsigned char *file = get_file("tests/golden/io_packed.npz", &n);
    const bool     done = file && put_file(path, file, n);
    (void)ctx;
    free(file);
    return done;
}

/* ---- readers: all that a user could then look at is looked at ------------------------------- */

static bool look(mlc_tensor *t)
{
    return t != NULL && hash_tensor(HASH_SEED, t) != 0;
}

static bool look_all(mlc_status st, const mlc_named *list, int64_t n)
{
    for (int64_t i = 0; st == MLC_OK && i < n; i++)
        CHECK(strlen(list[i].name) < 1000 && look(list[i].tensor));
    CHECK_EQ(list != NULL, st == MLC_OK);
    return st == MLC_OK;
}

static bool read_safetensors(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_safetensors_load(ctx, path, &list, &n);
    (void)net;
    return look_all(st, list, n);
}

static bool read_views(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_safetensors *f = mlc_safetensors_open(ctx, path);
    bool             all = f != NULL;
    (void)net;
    for (int64_t i = 0; i < mlc_safetensors_count(f); i++) {
        const char *name = mlc_safetensors_name(f, i);
        all = look(mlc_safetensors_view(f, name)) && look(mlc_safetensors_get(f, name)) && all;
    }
    mlc_safetensors_metadata(f, "no such key");
    mlc_safetensors_close(f);
    return all;
}

static bool read_npz(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(ctx, path, &list, &n);
    (void)net;
    return look_all(st, list, n);
}

static bool read_npy(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    (void)net;
    return look(mlc_npy_load(ctx, path));
}

static bool read_csv(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_csv_desc d = mlc_csv_desc_make();
    (void)net;
    d.header = d.missing = true;
    return look(mlc_csv_load(ctx, path, &d));
}

static bool read_table(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_table *t = mlc_table_load(ctx, path, NULL);
    bool       all = t != NULL;
    (void)net;
    for (int64_t k = 0; k < mlc_table_columns(t); k++) {
        all = all && look(mlc_table_column(t, k)) && look(mlc_table_missing(t, k));
        for (int64_t r = 0; r < mlc_table_rows(t); r++)
            all = all && strlen(mlc_table_text(t, r, k)) < 1000;
        for (int64_t c = mlc_table_categories(t, k); c-- > 0;)
            all = all && strlen(mlc_table_category(t, k, c)) < 1000;
    }
    mlc_table_free(t);
    return all;
}

static bool read_idx(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    (void)net;
    return look(mlc_idx_load(ctx, path));
}

static bool read_cifar(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_tensor *labels = NULL, *x = mlc_cifar_load(ctx, path, 100, &labels);
    (void)net;
    CHECK_EQ(x != NULL, labels != NULL);
    return look(x) && look(labels);
}

static bool read_state(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    (void)ctx;
    return mlc_load(net, path) == MLC_OK;
}

static bool read_cast(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_load_desc d = mlc_load_desc_make();
    (void)ctx;
    d.partial = d.skip_mismatched = d.cast = true;
    return mlc_load_ex(net, path, &d) == MLC_OK;
}

static bool read_optim(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_optim *opt = mlc_nadam(net, 0.1);
    (void)ctx;
    mlc_optim_scaler(opt, NULL);
    const bool loaded = mlc_optim_load(opt, path) == MLC_OK;
    CHECK(loaded || mlc_optim_steps(opt) == 0);
    mlc_optim_free(opt);
    return loaded;
}

/* In a block of just its bytes, behind which a sanitizer looks. */
static bool read_memory(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    size_t         n;
    unsigned char *file = get_file(path, &n);
    unsigned char *exact = (unsigned char *)malloc(n ? n : 1);
    (void)ctx;
    memcpy(exact, file, n);
    free(file);
    const bool loaded = mlc_load_memory(net, exact, n, NULL) == MLC_OK;
    free(exact);
    return loaded;
}

static const sample samples[] = {
    {"a.safetensors", make_safetensors, read_safetensors, 0},
    {"views.safetensors", make_safetensors, read_views, 0},
    {"a.npy", make_npy, read_npy, 0},
    {"fortran.npy", make_fortran, read_npy, 0},
    {"a.npz", make_npz, read_npz, 0},
    {"packed.npz", make_packed, read_npz, 0},
    {"a.csv", make_csv, read_csv, 0},
    {"table.csv", make_table, read_table, 0},
    {"a.idx", make_idx, read_idx, 0},
    {"a.cifar", make_cifar, read_cifar, 0},
    {"state.safetensors", make_state, read_state, 0},
    {"cast.safetensors", make_state, read_cast, 0},
    {"memory.safetensors", make_state, read_memory, 0},
    {"optim.safetensors", make_optim, read_optim, 0},
    {"index.json", make_index, read_state, 2},
};

/* ---- one damaged file after the other ------------------------------------------------------- */

typedef struct victim {
    const sample  *s;
    tally          mem;
    mlc_ctx       *ctx;
    mlc_module    *net;
    box            b;
    unsigned char *good;               /* the file as it should be                             */
    size_t         n;
    int            values, errors;
} victim;

/* Not zlib's memory, and what a file inflates to may be a thousand times its size. */
static bool inflates(const victim *v)
{
    return v->s->make == make_packed;
}

/* True if the check held: every answer is right but a crash, a leak, a changed model.          */
static bool survives(victim *v, const unsigned char *file, size_t n)
{
    const int64_t  failures = test_failures();
    const uint64_t before = hash_net(HASH_SEED, v->net);
    const int64_t  live = v->mem.live;
    put_file(v->b.path, file, n);
    mlc_scope_begin(v->ctx);
    v->mem.peak = live;
    const bool value = v->s->read(v->ctx, v->net, v->b.path);
    if (!inflates(v))
        CHECK(v->mem.peak - live <= 4 * (int64_t)n + (1 << 20));
    if (value) {
        v->values++;
        CHECK_EQ(mlc_ctx_status(v->ctx), MLC_OK);
    } else {
        const mlc_status st = mlc_ctx_status(v->ctx);
        v->errors++;
        CHECK(st == MLC_ERR_IO || st == MLC_ERR_DTYPE || st == MLC_ERR_SHAPE ||
              (st == MLC_ERR_UNSUPPORTED && v->s->read == read_npz) ||
              (st == MLC_ERR_NOMEM && inflates(v)));
        CHECK_HAS(mlc_error(v->ctx), v->s->read == read_memory ? "'memory'" : v->b.path);
        CHECK(hash_net(HASH_SEED, v->net) == before);
    }
    mlc_scope_end(v->ctx);
    mlc_memory_trim(v->ctx);
#ifndef MLC_DEBUG                      /* retains the last 256 handles that were freed         */
    CHECK_EQ(v->mem.live, live);
#endif
    return test_failures() == failures;
}

static void victim_open(victim *v, const sample *s)
{
    memset(v, 0, sizeof *v);
    mlc_ctx_desc d = tally_desc(&v->mem);
    v->s = s;
    d.hard_limit = (size_t)16 << 20;
    v->ctx = mlc_ctx_create(&d);
    v->b = box_open_fast(s->file);
    v->net = small_net(v->ctx);
    mlc_scope_begin(v->ctx);
    CHECK(s->make(v->ctx, v->b.path));
    CHECK_EQ(mlc_scope_end(v->ctx), MLC_OK);
    mlc_memory_trim(v->ctx);
    v->good = get_file(v->b.path, &v->n);
    /* What the context takes for good comes now: into initial values, and into others. */
    for (int i = 0; i < 2; i++) {
        mlc_scope_begin(v->ctx);
        const bool value = s->read(v->ctx, v->net, v->b.path);
        CHECK(mlc_scope_end(v->ctx) == (value ? MLC_OK : MLC_ERR_UNSUPPORTED));
        CHECK(value || s->make == make_packed);
        mlc_memory_trim(v->ctx);
    }
}

static void victim_close(victim *v)
{
    CHECK_EQ(box_count(&v->b), 1 + v->s->beside);
    free(v->good);
    tally_done(&v->mem, v->ctx);
    box_close(&v->b);
}

TEST(corrupt, a_file_cut_at_any_length_is_a_value_or_a_clear_error)
{
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        victim v;
        victim_open(&v, &samples[i]);
        for (size_t n = 0; n < v.n; n += (size_t)test_stride(5))
            if (!survives(&v, v.good, n))
                printf("  %s cut to %d of %d bytes\n", v.s->file, (int)n, (int)v.n);
        CHECK(v.errors > 0);
        victim_close(&v);
    }
}

TEST(corrupt, a_file_with_any_bit_flipped_is_a_value_or_a_clear_error)
{
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        victim v;
        victim_open(&v, &samples[i]);
        for (size_t bit = 0; bit < 8 * v.n && bit < 8 * 4096;
             bit += (size_t)test_stride(5)) {
            v.good[bit / 8] ^= (unsigned char)(1u << bit % 8);
            if (!survives(&v, v.good, v.n))
                printf("  %s, byte %d, bit %d\n", v.s->file, (int)(bit / 8), (int)(bit % 8));
            v.good[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        CHECK(v.errors > 0);
        CHECK(v.values > 0 || v.s->make == make_packed);
        victim_close(&v);
    }
}

/* A byte inserted or taken out: everything behind it is at another place.                      */
TEST(corrupt, a_file_with_a_byte_too_many_or_too_few_is_a_value_or_a_clear_error)
{
    static const unsigned char inserted[] = {0, '"', '0', ',', 0xff};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        victim v;
        victim_open(&v, &samples[i]);
        unsigned char *file = (unsigned char *)malloc(v.n + 1);
        const size_t step = test_on_host() ? (size_t)test_stride(5) : 7;
        for (size_t at = 0; at < v.n && at < 1024; at += step) {
            for (size_t k = 0; k <= sizeof inserted; k++) {
                const bool more = k < sizeof inserted;
                memcpy(file, v.good, at);
                file[at] = inserted[k % sizeof inserted];
                memcpy(file + at + more, v.good + at + !more, v.n - at - !more);
                if (!survives(&v, file, v.n + more - !more))
                    printf("  %s, byte %d: %s\n", v.s->file, (int)at, more ? "one more" : "gone");
            }
        }
        free(file);
        victim_close(&v);
    }
}

/* ---- large files: of each format those that take most memory for their size ----------------- */

#define LARGE (3 << 20)

/* The shortest descriptions of tensors that there are: bytes_each of data for each.            */
static bool make_tiny(const char *path, const char *shape, size_t bytes_each)
{
    unsigned char *file = (unsigned char *)calloc(1, LARGE + 100);
    size_t         n = 8, count = 0;
    for (; n + bytes_each * count < LARGE - 100; count++)
        n += (size_t)sprintf((char *)file + n, "%c\"%x\":{\"dtype\":\"U8\",\"shape\":%s,\"data_"
                             "offsets\":[%d,%d]}", count ? ',' : '{', (unsigned)count, shape,
                             (int)(bytes_each * count), (int)(bytes_each * (count + 1)));
    file[n++] = '}';
    put_le(file, 8, n - 8);
    memset(file + n, 7, bytes_each * count);
    const bool done = put_file(path, file, n + bytes_each * count);
    free(file);
    return done;
}

static bool make_scalars(mlc_ctx *ctx, const char *path)
{
    (void)ctx;
    return make_tiny(path, "[]", 1);
}

static bool make_empty(mlc_ctx *ctx, const char *path)
{
    (void)ctx;
    return make_tiny(path, "[0]", 0);
}

/* Arrays of one byte, with headers that are not padded.                                        */
static bool make_arrays(mlc_ctx *ctx, const char *path)
{
    static const char array[] = "\x93NUMPY\1\0\x30\0{'descr':'|u1','fortran_order':False,'shape':()"
                                "}\n\7";
    const size_t      bytes = sizeof array - 1;
    unsigned char    *file = (unsigned char *)calloc(1, LARGE + 200);
    unsigned char    *directory = (unsigned char *)calloc(1, LARGE + 200), *r;
    size_t            n = 0, m = 0, count = 0;
    (void)ctx;
    for (; n + m < LARGE && count < 65535; count++) {
        r = directory + m;
        memcpy(r, "PK\1\2", 4);
        put_le(r + 16, 4, zip_crc(array, bytes));
        put_le(r + 20, 4, bytes);
        put_le(r + 24, 4, bytes);
        put_le(r + 28, 2, 4);
        put_le(r + 42, 4, n);
        m += 46 + (size_t)sprintf((char *)r + 46, "%04x", (unsigned)count);
        memcpy(file + n, "PK\3\4", 4);
        memcpy(file + n + 30, array, bytes);
        n += 30 + bytes;
    }
    memcpy(file + n, directory, m);
    memcpy(file + n + m, "PK\5\6", 4);
    put_le(file + n + m + 10, 2, count);
    put_le(file + n + m + 12, 4, m);
    put_le(file + n + m + 16, 4, n);
    const bool done = put_file(path, file, n + m + 22);
    free(file);
    free(directory);
    return done;
}

/* u4 becomes i64, and the order of axes takes a copy.                                          */
static bool make_u4(mlc_ctx *ctx, const char *path)
{
    unsigned char *file = (unsigned char *)calloc(1, LARGE);
    const int      n = sprintf((char *)file + 10, "{'descr': '<u4', 'fortran_order': True, "
                               "'shape': (%d, 2)}\n", (LARGE - 100) / 8);
    (void)ctx;
    memcpy(file, "\x93NUMPY\1\0", 8);
    put_le(file + 8, 2, (uint64_t)n);
    const bool done = put_file(path, file, LARGE);
    free(file);
    return done;
}

static bool make_i2(mlc_ctx *ctx, const char *path)
{
    unsigned char *file = (unsigned char *)calloc(1, LARGE);
    const int      n = (LARGE - 8) / 2;
    (void)ctx;
    file[2] = 0x0b;
    file[3] = 1;
    for (int i = 0; i < 4; i++) file[4 + i] = (unsigned char)(n >> (24 - 8 * i));
    const bool done = put_file(path, file, LARGE);
    free(file);
    return done;
}

/* Two bytes again and again, with the line's end in the middle.                                */
static bool make_text(const char *path, const char *two)
{
    char *file = (char *)malloc(LARGE);
    for (int i = 0; i < LARGE; i++) file[i] = two[i % 2];
    file[LARGE / 2 - 1] = '\n';
    const bool done = put_file(path, file, LARGE - 1);
    free(file);
    return done;
}

static bool make_long(mlc_ctx *ctx, const char *path) { (void)ctx; return make_text(path, "1\n"); }
static bool make_wide(mlc_ctx *ctx, const char *path) { (void)ctx; return make_text(path, "1,"); }

static bool read_numbers(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    (void)net;
    return mlc_csv_load(ctx, path, NULL) != NULL;
}

static bool read_bare_table(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_csv_desc d = mlc_csv_desc_make();
    mlc_table   *t = mlc_table_load(ctx, path, &d);
    (void)net;
    mlc_table_free(t);
    return t != NULL;
}

static bool read_list(mlc_ctx *ctx, mlc_module *net, const char *path)
{
    mlc_safetensors *f = mlc_safetensors_open(ctx, path);
    const int64_t    n = mlc_safetensors_count(f);
    (void)net;
    mlc_safetensors_close(f);
    return n > 40000;
}

TEST(corrupt, large_files_ask_for_no_more_than_four_times_their_size)
{
    static const struct { sample s; bool value; } large[] = {
        {{"list.safetensors", make_scalars, read_list, 0}, true},
        {{"scalars.safetensors", make_scalars, read_safetensors, 0}, false},
        {{"empty.safetensors", make_empty, read_safetensors, 0}, false},
        {{"state.safetensors", make_scalars, read_cast, 0}, true},
        {{"arrays.npz", make_arrays, read_npz, 0}, true},
        {{"u4.npy", make_u4, read_npy, 0}, true},
        {{"i2.idx", make_i2, read_idx, 0}, true},
        {{"long.csv", make_long, read_numbers, 0}, true},
        {{"table.csv", make_long, read_bare_table, 0}, true},
        {{"wide.csv", make_wide, read_bare_table, 0}, false},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        victim v;
        memset(&v, 0, sizeof v);
        const mlc_ctx_desc d = tally_desc(&v.mem);
        v.s = &large[i].s;
        v.ctx = mlc_ctx_create(&d);
        v.b = box_open_fast(v.s->file);
        v.net = small_net(v.ctx);
        CHECK(v.s->make(v.ctx, v.b.path));
        v.good = get_file(v.b.path, &v.n);
        CHECK(v.n > LARGE * 9 / 10);
        const int64_t live = v.mem.live;
        mlc_scope_begin(v.ctx);
        v.mem.peak = live;
        const bool value = v.s->read(v.ctx, v.net, v.b.path);
        if (!CHECK(v.mem.peak - live <= 4 * (int64_t)v.n + (1 << 20)) ||
            !CHECK(value == large[i].value || (value && sizeof(void *) < 8)))
            printf("  %s: %d bytes for %d: %s\n", v.s->file, (int)(v.mem.peak - live), (int)v.n,
                   mlc_error(v.ctx));
        if (!value)
            CHECK_HAS(mlc_error(v.ctx), "over 4 times the file and 1 MiB; read them ");
        mlc_scope_end(v.ctx);
        victim_close(&v);
    }
}
