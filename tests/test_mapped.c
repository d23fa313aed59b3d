/* test_mapped.c -- tests of section IMPL.IO.MAPPED: parameters that stay in their file */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "nets.h"
#include "shards.h"
#include "watch.h"

enum { IN = 96, HIDDEN = 160, OUT = 40 };      /* 61,440 and 25,600 bytes of weights           */

#define LARGE ((int64_t)4 * (IN * HIDDEN + HIDDEN * OUT))
#define SMALL ((int64_t)4 * (HIDDEN + OUT))

static mlc_module *net_of(mlc_ctx *ctx) { return mlp(ctx, IN, HIDDEN, OUT); }

static mlc_tensor *batch_of(mlc_ctx *ctx)
{
    return test_rand(ctx, MLC_F32, mlc_dims2(3, IN), 5, -1, 1);
}

/* Hash of the outputs for a batch. */
static uint64_t answer(mlc_module *net)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_no_grad_begin(ctx);
    const uint64_t h = hash_tensor(1, mlc_forward(net, batch_of(ctx)));
    mlc_no_grad_end(ctx);
    return h;
}

/* Bytes that the context has taken for parameters. */
static int64_t taken(mlc_ctx *ctx)
{
    mlc_memory mem;
    mlc_memory_info(ctx, &mem);
    return mem.now[MLC_MEM_PARAM];
}

/* A saved net, and the hashes of its values and outputs. */
typedef struct saved { box b; uint64_t values, answer; } saved;

static saved saved_net(mlc_ctx *ctx)
{
    saved       s = {box_open_fast("net.safetensors"), 0, 0};
    mlc_module *net = net_of(ctx);
    CHECK_EQ(mlc_save(net, s.b.path), MLC_OK);
    s.values = hash_net(1, net);
    s.answer = answer(net);
    mlc_module_free(net);
    return s;
}

static mlc_load_mapped_desc with_report(mlc_mapped_report *report)
{
    mlc_load_mapped_desc d = mlc_load_mapped_desc_make();
    CHECK_EQ(d.least, 16384);
    CHECK(!d.only && !d.load.partial && !d.load.cast);
    memset(report, 0, sizeof *report);
    d.report = report;
    return d;
}

/* ---- values --------------------------------------------------------------------------------- */

TEST(mapped, large_parameters_are_views_and_small_ones_copies_with_the_same_bits)
{
    mlc_mapped_report    r;
    mlc_load_report      of;
    mlc_load_mapped_desc d = with_report(&r);
    ONLY_ON_HOST();                    /* a device is refused: below                           */
    mlc_ctx    *ctx = test_ctx();
    const saved s = saved_net(ctx);
    mlc_module *net = net_of(ctx);
    const int64_t before = taken(ctx);
    d.load.report = &of;
    CHECK_EQ(mlc_load_mapped(net, s.b.path, &d), MLC_OK);
    CHECK_EQ(r.mapped, 2);
    CHECK_EQ(r.mapped_bytes, LARGE);
    CHECK_EQ(r.copied, 2);
    CHECK_EQ(r.copied_bytes, SMALL);
    CHECK_EQ(of.loaded, 4);
    const int64_t more = taken(ctx) - before;
    CHECK(more >= SMALL && more < SMALL + 1024);
    CHECK(hash_net(1, net) == s.values);
    CHECK(answer(net) == s.answer);
    CHECK(!mlc_requires_grad(mlc_module_param(net, "0.weight")));
    CHECK(mlc_requires_grad(mlc_module_param(net, "0.bias")));
    /* All of them, or none. */
    mlc_module *all = net_of(ctx), *none = net_of(ctx);
    d.least = 0;
    CHECK_EQ(mlc_load_mapped(all, s.b.path, &d), MLC_OK);
    CHECK_EQ(r.mapped, 4);
    CHECK_EQ(r.mapped_bytes, LARGE + SMALL);
    d.least = 1 << 20;
    CHECK_EQ(mlc_load_mapped(none, s.b.path, &d), MLC_OK);
    CHECK_EQ(r.copied_bytes, LARGE + SMALL);
    CHECK(hash_net(1, all) == s.values && hash_net(1, none) == s.values);
    CHECK_EQ(mlc_save(all, s.b.path), MLC_OK);             /* replaces the file, not its pages */
    CHECK(hash_net(1, all) == s.values && answer(all) == s.answer);
    CHECK_EQ(mlc_load(none, s.b.path), MLC_OK);
    CHECK(hash_net(1, none) == s.values);
    CHECK_OK(ctx);
    box_close(&s.b);
}

/* Do the weights of both have one place? */
static bool same_memory(mlc_module *a, mlc_module *b)
{
    return mlc_f32(mlc_module_param(a, "2.weight")) == mlc_f32(mlc_module_param(b, "2.weight"));
}

/* Also while another network of the file, of the same context or of another, is there. */
TEST(mapped, networks_share_one_file_and_outlive_each_other_and_its_name)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx(), *other = mlc_ctx_create(NULL);
    const saved s = saved_net(ctx);
    mlc_module *one = net_of(ctx), *two = net_of(ctx), *three = net_of(other);
    CHECK_EQ(mlc_load_mapped(one, s.b.path, NULL), MLC_OK);
    CHECK_EQ(mlc_load_mapped(two, s.b.path, NULL), MLC_OK);
    CHECK_EQ(mlc_load_mapped(three, s.b.path, NULL), MLC_OK);
    mlc_module *clone = mlc_module_clone(one), *share = mlc_module_share(other, two);
    CHECK(same_memory(clone, one));
    CHECK(same_memory(share, two));
    CHECK_EQ(remove(s.b.path), 0);
    mlc_module_free(one);
    CHECK(answer(two) == s.answer && answer(three) == s.answer);
    CHECK(answer(clone) == s.answer && answer(share) == s.answer);
    CHECK(hash_net(1, share) == s.values);
    CHECK_OK(ctx);
    CHECK_OK(other);
    mlc_module_free(share);
    mlc_ctx_free(other);
    box_close(&s.b);
}

/* ---- writes --------------------------------------------------------------------------------- */

TEST(mapped, what_would_change_a_view_is_an_error_and_the_file_stays)
{
    ONLY_ON_HOST();
    mlc_ctx       *ctx = test_ctx();
    const saved    s = saved_net(ctx);
    const uint64_t file = hash_file(1, s.b.path);
    mlc_module    *net = net_of(ctx), *twin = net_of(ctx);
    CHECK_EQ(mlc_load_mapped(net, s.b.path, NULL), MLC_OK);
    CHECK_EQ(mlc_load_mapped(twin, s.b.path, NULL), MLC_OK);
    mlc_tensor *w = mlc_module_param(net, "0.weight");
    mlc_scope_begin(ctx);
    CHECK(mlc_mul_scalar_(mlc_detach(w), 2) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "'weight' is a view of its file (mlc_load_mapped)");
    mlc_scope_end(ctx);
    CHECK_EQ(mlc_load(net, s.b.path), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "load: '0.weight' is a view of its file");
    CHECK_EQ(mlc_module_freeze(net, "0.weight", false), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "is a view of its file");
    CHECK(hash_net(1, net) == s.values);
    /* By the pointer: the page of this mapping alone. */
    mlc_f32(w)[0] += 1;
    CHECK(hash_net(1, net) != s.values);
    CHECK(hash_net(1, twin) == s.values);
    CHECK(hash_file(1, s.b.path) == file);
    /* What is not bound trains. */
    mlc_optim *opt = mlc_sgd(twin, 0.5);
    mlc_scope_begin(ctx);
    mlc_tensor *y = mlc_forward(twin, batch_of(ctx));
    CHECK_EQ(mlc_backward(mlc_mean(y, mlc_dims2(0, 1), false)), MLC_OK);
    CHECK_EQ(mlc_optim_step(opt), MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    CHECK(hash_net(1, twin) != s.values);
    CHECK(hash_file(1, s.b.path) == file);
    /* Converted, it is the context's memory, and another file replaces the views. */
    CHECK_EQ(mlc_module_to(net, MLC_F64), MLC_OK);
    CHECK_EQ(mlc_load_mapped(twin, s.b.path, NULL), MLC_OK);
    CHECK(hash_net(1, twin) == s.values);
    CHECK_OK(ctx);
    box_close(&s.b);
}

/* The values that are copied go to their old place, and gradients stay. */
TEST(mapped, a_second_load_moves_nothing)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    const saved s = saved_net(ctx);
    mlc_module *net = net_of(ctx);
    CHECK_EQ(mlc_load_mapped(net, s.b.path, NULL), MLC_OK);
    mlc_tensor  *bias = mlc_module_param(net, "0.bias");
    const float *at = mlc_f32(bias);
    mlc_scope_begin(ctx);
    CHECK_EQ(mlc_backward(mlc_mean(mlc_forward(net, batch_of(ctx)), mlc_dims2(0, 1), false)),
             MLC_OK);
    CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    const uint64_t grad = hash_tensor(1, mlc_grad(bias));
    mlc_f32(bias)[0] += 1;
    CHECK_EQ(mlc_load_mapped(net, s.b.path, NULL), MLC_OK);
    CHECK(hash_net(1, net) == s.values && answer(net) == s.answer);
    CHECK(mlc_f32(bias) == at);
    CHECK(hash_tensor(1, mlc_grad(bias)) == grad);
    CHECK_OK(ctx);
    box_close(&s.b);
}

/* In the file they have 16 bits, and products have them packed: no more than once. */
TEST(mapped, weights_of_16_bits_are_packed_but_take_no_memory_as_parameters)
{
    mlc_memory mem;
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("net.safetensors");
    mlc_module *made = net_of(ctx), *net = net_of(ctx);
    CHECK_EQ(mlc_module_to(made, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_module_to(net, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_save(made, b.path), MLC_OK);
    mlc_load_mapped_desc d = mlc_load_mapped_desc_make();
    mlc_mapped_report    r;
    d.least = 0;
    d.report = &r;
    CHECK_EQ(mlc_load_mapped(net, b.path, &d), MLC_OK);
    CHECK_EQ(r.mapped, 4);
    mlc_memory_info(ctx, &mem);
    const int64_t param = mem.now[MLC_MEM_PARAM], pack = mem.now[MLC_MEM_PACK];
    mlc_no_grad_begin(ctx);
    mlc_tensor *x = mlc_cast(batch_of(ctx), MLC_BF16);
    const uint64_t got = hash_tensor(1, mlc_forward(net, x));
    mlc_memory_info(ctx, &mem);
    CHECK_EQ(mem.now[MLC_MEM_PARAM], param);
    CHECK(mem.now[MLC_MEM_PACK] - pack <= LARGE + (16 << 10));
    CHECK(hash_tensor(1, mlc_forward(made, x)) == got);
    mlc_no_grad_end(ctx);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- what cannot be a view ------------------------------------------------------------------ */

TEST(mapped, another_dtype_is_cast_into_a_copy_or_refused)
{
    mlc_mapped_report    r;
    mlc_load_mapped_desc d = with_report(&r);
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    const saved s = saved_net(ctx);
    mlc_module *half = net_of(ctx), *want = net_of(ctx);
    mlc_load_desc cast = mlc_load_desc_make();
    CHECK_EQ(mlc_module_to(half, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_module_to(want, MLC_BF16), MLC_OK);
    const uint64_t before = hash_net(1, half);
    CHECK_EQ(mlc_load_mapped(half, s.b.path, &d), MLC_ERR_DTYPE);
    CHECK_HAS(mlc_error(ctx), "load_mapped '");
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "; mlc_load_mapped with desc.load.cast converts.");
    d.load.cast = cast.cast = true;
    d.only = true;
    CHECK_EQ(mlc_load_mapped(half, s.b.path, &d), MLC_ERR_UNSUPPORTED);
    CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "'0.weight' cannot be a view of the file, which has "
                                          "another dtype; without desc.only it is copied");
    CHECK(hash_net(1, half) == before);
    d.only = false;
    CHECK_EQ(mlc_load_mapped(half, s.b.path, &d), MLC_OK);
    CHECK_EQ(r.copied, 4);
    CHECK_EQ(mlc_load_ex(want, s.b.path, &cast), MLC_OK);
    CHECK(hash_net(1, half) == hash_net(1, want));
    /* In its own dtype it is a view. */
    mlc_module *again = net_of(ctx);
    CHECK_EQ(mlc_module_to(again, MLC_BF16), MLC_OK);
    CHECK_EQ(mlc_save(half, s.b.path), MLC_OK);
    CHECK_EQ(mlc_load_mapped(again, s.b.path, &d), MLC_OK);
    CHECK_EQ(r.mapped, 1);             /* the second has 12,800 bytes                          */
    CHECK(hash_net(1, again) == hash_net(1, want));
    CHECK_OK(ctx);
    box_close(&s.b);
}

/* A file with one byte before the weights, and a weight that is stored transposed. */
TEST(mapped, what_is_not_aligned_or_is_transposed_is_copied_or_refused)
{
    static const mlc_rename turned[] = {{.from = "t", .to = "weight", .transpose = true},
                                        {.from = "pad", .to = ""}};
    mlc_mapped_report    r;
    mlc_load_mapped_desc d = with_report(&r);
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open_fast("s.safetensors");
    const char *why[2] = {"at an offset that is no multiple",
                          "only a part of it, or its transpose"};
    for (int i = 0; i < 2; i++) {
        enum { ROWS = 70, COLUMNS = 80, BYTES = 4 * ROWS * COLUMNS };
        unsigned char *file = (unsigned char *)malloc(400 + BYTES);
        const int      pad = !i, at = 8 + 256;
        double         v[ROWS * COLUMNS];
        mlc_module    *net = mlc_nn_sequential(ctx);
        mlc_nn_linear_desc linear = mlc_nn_linear_desc_make(COLUMNS, ROWS);
        linear.no_bias = true;
        mlc_module_add_named(net, "in", mlc_nn_linear_ex(ctx, &linear));
        mlc_module *in = mlc_module_child(net, 0);
        memset(file, ' ', (size_t)at);
        put_le(file, 8, 256);
        const int n = sprintf((char *)file + 8, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                              "\"data_offsets\":[%d,%d]}", i ? "t" : "weight", i ? COLUMNS : ROWS,
                              i ? ROWS : COLUMNS, pad, pad + BYTES);
        const int m = i ? 0 : sprintf((char *)file + 8 + n, ",\"pad\":{\"dtype\":\"U8\",\"shape\":"
                                      "[1],\"data_offsets\":[0,1]}");
        file[8 + n + m] = '}';
        file[8 + n + m + 1] = ' ';
        file[at] = 7;
        for (int k = 0; k < ROWS * COLUMNS; k++) {
            const float x = (float)k;
            memcpy(file + at + pad + 4 * k, &x, 4);
        }
        CHECK(put_file(b.path, file, (size_t)(at + pad + BYTES)));
        free(file);
        d.load.renames = turned;
        d.load.n_renames = 2;
        d.only = true;
        CHECK_EQ(mlc_load_mapped(in, b.path, &d), MLC_ERR_UNSUPPORTED);
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, why[i]);
        d.only = false;
        CHECK_EQ(mlc_load_mapped(in, b.path, &d), MLC_OK);
        CHECK_EQ(r.copied, 1);
        CHECK_EQ(r.mapped, 0);
        test_read(mlc_detach(mlc_module_param(net, "in.weight")), v);
        for (int k = 0; k < ROWS * COLUMNS; k++)
            if (v[k] != (i ? k % COLUMNS * ROWS + k / COLUMNS : k)) { CHECK(!"the value"); break; }
    }
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- errors, after which nothing has changed ------------------------------------------------ */

TEST(mapped, errors_leave_the_network_as_it_was)
{
    mlc_ctx    *ctx = test_ctx();
    const saved s = saved_net(ctx);
    mlc_module *net = net_of(ctx), *other = mlp(ctx, IN, HIDDEN, OUT + 1);
    static float bias[HIDDEN];
    CHECK_EQ(mlc_load_mapped(NULL, s.b.path, NULL), MLC_ERR_ARG);
    CHECK_EQ(mlc_load_mapped(net, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "load_mapped: path is NULL");
    if (!test_on_host()) {
        CHECK_EQ(mlc_load_mapped(net, s.b.path, NULL), MLC_ERR_UNSUPPORTED);
        CHECK_ERROR(ctx, MLC_ERR_UNSUPPORTED, "a device does not read files");
        box_close(&s.b);
        return;
    }
    const int64_t before = taken(ctx);
    CHECK_EQ(mlc_load_mapped(other, s.b.path, NULL), MLC_ERR_SHAPE);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "load_mapped '");
    CHECK_EQ(taken(ctx), before);      /* it is not built either                               */
    const uint64_t values = hash_net(1, net);
    /* One that would be copied is bound already. */
    mlc_module *bound = net_of(ctx);
    CHECK_EQ(mlc_module_bind(bound, "0.bias", bias), MLC_OK);
    CHECK_EQ(mlc_load_mapped(bound, s.b.path, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "'0.bias' is bound to memory of the program");
    /* On the tape. */
    mlc_scope_begin(ctx);
    CHECK(mlc_forward(net, batch_of(ctx)) != NULL);
    CHECK_EQ(mlc_load_mapped(net, s.b.path, NULL), MLC_ERR_STATE);
    CHECK_ERROR(ctx, MLC_ERR_STATE, "load_mapped: 'weight' is an input of a recorded linear");
    mlc_scope_end(ctx);
    /* Cut, it is refused when it is opened. */
    size_t         n = 0;
    unsigned char *file = get_file(s.b.path, &n);
    CHECK(put_file(s.b.path, file, n - 1));
    free(file);
    CHECK_EQ(mlc_load_mapped(net, s.b.path, NULL), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "bytes of data, the header names");
    CHECK(hash_net(1, net) == values);
    CHECK_OK(ctx);
    box_close(&s.b);
}

static mlc_status map_unbuilt(mlc_ctx *ctx, const void *path)
{
    mlc_load_mapped_desc d = mlc_load_mapped_desc_make();
    mlc_module          *net = net_of(ctx);
    d.load.cast = true;
    return mlc_ctx_status(ctx) ? mlc_ctx_status(ctx)
                               : mlc_load_mapped(net, (const char *)path, &d);
}

/* A net that has values of its own keeps them, and their place, until there is memory for all. */
static mlc_status map_built(mlc_ctx *ctx, const void *path)
{
    mlc_module *net = net_of(ctx);
    if (mlc_ctx_status(ctx) || mlc_module_build(net)) return mlc_ctx_status(ctx);
    const uint64_t   values = hash_net(1, net);
    const mlc_status loaded = mlc_load_mapped(net, (const char *)path, NULL);
    if (loaded != MLC_OK) {
        CHECK(hash_net(1, net) == values);
        CHECK(mlc_requires_grad(mlc_module_param(net, "0.weight")));
    }
    return loaded;
}

TEST(mapped, loading_survives_that_any_allocation_fails)
{
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    const saved s = saved_net(ctx);
    tally_fail_each(map_unbuilt, s.b.path);
    tally_fail_each(map_built, s.b.path);
    CHECK_EQ(box_count(&s.b), 1);
    box_close(&s.b);
}

/* ---- shards, and the system's memory -------------------------------------------------------- */

/* The number that the next open gets. */
static int next_fd(void)
{
    const int fd = dup(1);
    close(fd);
    return fd;
}

/* Neither the index nor a shard stays open. */
TEST(mapped, shards_are_mapped_by_their_index)
{
    mlc_mapped_report    r;
    mlc_load_mapped_desc d = with_report(&r);
    char                 index[400];
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    const saved s = saved_net(ctx);
    mlc_module *net = net_of(ctx);
    snprintf(index, sizeof index, "%s/" SHARDS_INDEX, s.b.dir);
    CHECK(shards_save(ctx, s.b.path, s.b.dir, 3));
    const int fd = next_fd();
    CHECK_EQ(mlc_load_mapped(net, index, &d), MLC_OK);
    CHECK_EQ(next_fd(), fd);
    CHECK_EQ(r.mapped_bytes, LARGE);
    CHECK(hash_net(1, net) == s.values && answer(net) == s.answer);
    /* An index without shards has nothing to map. */
    CHECK(put_file(index, "{\"weight_map\":{}}", 17));
    d.load.partial = true;
    CHECK_EQ(mlc_load_mapped(net, index, &d), MLC_OK);
    CHECK_EQ(r.mapped + r.copied, 0);
    CHECK(hash_net(1, net) == s.values);
    CHECK_OK(ctx);
    box_close(&s.b);
}

#ifdef __linux__
/* KB of the line `what` of all mappings of the file, by the system. */
static long mapped_kb(const char *path, const char *what)
{
    char  line[1024];
    long  sum = 0;
    bool  ours = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f)) {
        long kb;
        if (strchr("0123456789abcdef", line[0])) ours = strstr(line, path) != NULL;
        else if (ours && strncmp(line, what, strlen(what)) == 0 &&
                 sscanf(line + strlen(what), ": %ld", &kb) == 1) sum += kb;
    }
    fclose(f);
    return sum;
}

/* 16 MB: a row of a table reads some pages of it. */
TEST(mapped, only_what_is_used_is_in_memory)
{
    enum { ROWS = 65536, COLUMNS = 64, KB = ROWS * COLUMNS * 4 / 1024 };
    ONLY_ON_HOST();
    mlc_ctx    *ctx = test_ctx();
    box         b = box_open("table.safetensors");
    mlc_module *made = mlc_nn_embedding(ctx, ROWS, COLUMNS);
    CHECK_EQ(mlc_save(made, b.path), MLC_OK);
    mlc_module *one = mlc_nn_embedding(ctx, ROWS, COLUMNS);
    mlc_module *two = mlc_nn_embedding(ctx, ROWS, COLUMNS);
    const int64_t before = taken(ctx);
    CHECK_EQ(mlc_load_mapped(one, b.path, NULL), MLC_OK);
    CHECK_EQ(mlc_load_mapped(two, b.path, NULL), MLC_OK);
    CHECK(taken(ctx) - before < 1024);
    const long size = mapped_kb(b.path, "Size"), at_first = mapped_kb(b.path, "Rss");
    if (size < 0) { box_close(&b); return; }               /* no /proc                         */
    CHECK(size >= 2 * KB);
    CHECK(at_first < KB / 10);
    const int64_t row = ROWS / 2;
    mlc_tensor   *i = mlc_from(ctx, MLC_I64, mlc_dims1(1), &row);
    CHECK(hash_tensor(1, mlc_forward(one, i)) == hash_tensor(1, mlc_forward(made, i)));
    CHECK(mapped_kb(b.path, "Rss") < KB / 5);
    /* The pages of both are the same ones: shared, none of this process alone but those used. */
    CHECK(hash_net(1, one) == hash_net(1, two));
    CHECK(mapped_kb(b.path, "Rss") >= 2 * KB);
    CHECK(mapped_kb(b.path, "Pss") <= KB + KB / 10);
    CHECK_EQ(mapped_kb(b.path, "Private_Dirty"), 0);
    CHECK_OK(ctx);
    box_close(&b);
}
#endif
