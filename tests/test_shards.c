/* test_shards.c -- tests of section IMPL.IO.SAFETENSORS: an index of shards as one file */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "nets.h"
#include "shards.h"
#include "watch.h"

static mlc_module *net_of(mlc_ctx *ctx) { return mlp(ctx, 5, 7, 3); }

static const char *const MLP_SORTED[4] = {"0.bias", "0.weight", "2.bias", "2.weight"};

/* A net's file, its path in b, and the same in shards, with the path of their index. */
typedef struct parted { box b; char index[400]; uint64_t values; } parted;

static parted parted_net(mlc_ctx *ctx, int shards)
{
    parted      p;
    mlc_module *net = net_of(ctx);
    p.b = box_open_fast("net.safetensors");
    CHECK_EQ(mlc_save(net, p.b.path), MLC_OK);
    p.values = hash_net(1, net);
    mlc_module_free(net);
    CHECK(shards_save(ctx, p.b.path, p.b.dir, shards));
    snprintf(p.index, sizeof p.index, "%s/" SHARDS_INDEX, p.b.dir);
    return p;
}

/* Path of a file of the folder. */
static const char *in(const parted *p, const char *name, char path[400])
{
    snprintf(path, 400, "%s/%s", p->b.dir, name);
    return path;
}

static bool put_index(const parted *p, const char *text)
{
    return put_file(p->index, text, strlen(text));
}

/* ---- readers -------------------------------------------------------------------------------- */

TEST(shards, the_readers_have_the_tensors_of_all_shards)
{
    mlc_ctx *ctx = test_ctx();
    for (int n = 1; n <= 5; n++) {     /* the last of five is empty                            */
        parted           p = parted_net(ctx, n);
        const mlc_named *one = NULL, *all = NULL;
        int64_t          n_one = 0, n_all = 0;
        mlc_dtype        dtype;
        mlc_dims         shape;
        CHECK_EQ(mlc_safetensors_load(ctx, p.b.path, &one, &n_one), MLC_OK);
        CHECK_EQ(mlc_safetensors_load(ctx, p.index, &all, &n_all), MLC_OK);
        CHECK_EQ(n_all, 4);
        CHECK_EQ(n_one, n_all);
        mlc_safetensors *f = mlc_safetensors_open(ctx, p.index);
        CHECK_EQ(mlc_safetensors_count(f), 4);
        for (int i = 0; i < 4 && n_all == 4; i++) {
            const char *name = mlc_safetensors_name(f, i);
            CHECK_STR(name, MLP_SORTED[i]);
            CHECK_STR(all[i].name, one[i].name);
            const uint64_t h = hash_tensor(1, one[i].tensor);
            CHECK(hash_tensor(1, all[i].tensor) == h);
            CHECK(hash_tensor(1, mlc_safetensors_get(f, name)) == h);
            CHECK(hash_tensor(1, mlc_safetensors_view(f, name)) == h);
            CHECK_EQ(mlc_safetensors_info(f, name, &dtype, &shape), MLC_OK);
            CHECK(dtype == MLC_F32 && shape.n == one[i].tensor->ndim);
        }
        mlc_tensor *view = mlc_safetensors_view(f, "2.weight");
        mlc_safetensors_close(f);
        mlc_scope_begin(ctx);
        if (test_on_host()) {
            CHECK(mlc_add_scalar(view, 1) == NULL);
            CHECK_STATUS(ctx, MLC_ERR_STATE);
        }
        mlc_scope_end(ctx);
        CHECK_OK(ctx);
        box_close(&p.b);
    }
}

TEST(shards, metadata_is_that_of_the_shards)
{
    static const char *const meta[] = {"format", "pt", NULL};
    char             path[400];
    mlc_ctx         *ctx = test_ctx();
    parted           p = parted_net(ctx, 2);
    const mlc_named  a = {"a", mlc_ones(ctx, MLC_F32, mlc_dims1(2))};
    CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "s", path), &a, 1, meta), MLC_OK);
    CHECK(put_index(&p, " \n{\"weight_map\" : {\"a\" : \"s\"}, \"x\":[1,{\"y\":null}], "
                        "\"z\":-1.5e3,\"s\":\"]\"} "));
    mlc_safetensors *f = mlc_safetensors_open(ctx, p.index);
    CHECK_STR(mlc_safetensors_metadata(f, "format"), "pt");
    CHECK(mlc_safetensors_metadata(f, "other") == NULL);
    CHECK_OK(ctx);
    box_close(&p.b);                   /* open: the context closes it                          */
}

/* ---- networks ------------------------------------------------------------------------------- */

TEST(shards, a_network_loads_by_the_index_as_from_one_file)
{
    mlc_ctx *ctx = test_ctx();
    for (int n = 2; n <= 5; n++) {
        parted          p = parted_net(ctx, n);
        mlc_load_desc   d = mlc_load_desc_make();
        mlc_load_report r;
        mlc_module     *net = net_of(ctx), *wide = mlp(ctx, 5, 7, 4);
        d.report = &r;
        CHECK_EQ(mlc_load_ex(net, p.index, &d), MLC_OK);
        CHECK_EQ(r.loaded, 4);
        CHECK(hash_net(1, net) == p.values);
        for (mlc_param_iter it = mlc_param_iter_make(net); mlc_param_next(&it);)
            mlc_zero_(mlc_detach(it.tensor));
        CHECK_EQ(mlc_load(net, p.index), MLC_OK);          /* into values that may be lost     */
        CHECK(hash_net(1, net) == p.values);
        const uint64_t before = hash_net(1, wide);
        CHECK_EQ(mlc_load(wide, p.index), MLC_ERR_SHAPE);
        CHECK_ERROR(ctx, MLC_ERR_SHAPE, SHARDS_INDEX "': size mismatch for 2.weight: ");
        CHECK(hash_net(1, wide) == before);
        CHECK_OK(ctx);
        box_close(&p.b);
    }
}

static mlc_module *llama(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_llama(40, 16, 3, 16, 4);
    d.layer.kv_heads = 2;
    return mlc_nn_gpt(ctx, &d);
}

/* Parts of one parameter, q, k and v, are in different shards. */
TEST(shards, a_llama_in_2_to_5_shards_has_the_outputs_of_the_single_file)
{
    static const int64_t words[6] = {3, 1, 4, 1, 5, 9};
    mlc_ctx      *ctx = test_ctx();
    box           b = box_open_fast("llama.safetensors");
    char          index[400];
    mlc_save_desc to = mlc_save_desc_make();
    mlc_load_desc by = mlc_load_desc_make();
    mlc_module   *net = llama(ctx);
    mlc_tensor   *x = mlc_from(ctx, MLC_I64, mlc_dims2(1, 6), words);
    to.renames = by.renames = mlc_rename_llama(&by.n_renames);
    to.n_renames = by.n_renames;
    CHECK_EQ(mlc_save_ex(net, b.path, &to), MLC_OK);
    mlc_module_train(net, false);
    const uint64_t want = hash_tensor(1, mlc_forward(net, x));
    snprintf(index, sizeof index, "%s/" SHARDS_INDEX, b.dir);
    for (int n = 2; n <= 5; n++) {
        mlc_module *one = llama(ctx);
        mlc_module_train(one, false);
        CHECK(shards_save(ctx, b.path, b.dir, n));
        CHECK_EQ(mlc_load_ex(one, index, &by), MLC_OK);
        CHECK(hash_tensor(1, mlc_forward(one, x)) == want);
    }
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- what an index may not say -------------------------------------------------------------- */

typedef struct wrong { const char *index, *says; } wrong;

TEST(shards, an_index_that_is_wrong_is_an_error_that_names_it)
{
#define MAP "{\"weight_map\":{"
    static const wrong cases[] = {
        {MAP "\"a\":\"../one\"}}",
         "the shard of 'a' is '../one'; shards are files of the index's folder"},
        {MAP "\"a\":\"/etc/passwd\"}}", "the shard of 'a' is '/etc/passwd'"},
        {MAP "\"a\":\"sub/one\"}}", "the shard of 'a' is 'sub/one'"},
        {MAP "\"a\":\"..\\\\one\"}}", "the shard of 'a' is '..\\one'"},
        {MAP "\"a\":\"\\u002e\\u002e\\u002fone\"}}", "the shard of 'a' is '../one'"},
        {MAP "\"a\":\"..\"}}", "the shard of 'a' is '..'"},
        {MAP "\"a\":\"C:one\"}}", "the shard of 'a' is 'C:one'"},
        {MAP "\"a\":\"none\",\"a\":\"one\"}}", "weight_map has 'a' twice"},
        {MAP "\"a\":\".\"}}", "the shard of 'a' is '.'"},
        {MAP "\"a\":\"\"}}", "the shard of 'a' is ''"},
        {MAP "\"a\":\"link\"}}", "the shard 'link' is a symbolic link, and the index is none"},
        {MAP "\"a\":\"folder\"}}", "folder': it is not a regular file"},
        {MAP "\"a\":\"none\"}}", "its folder has no 'none', the shard of 'a'"},
        {MAP "\"a\":\"one\",\"b\":\"none\"}}", "its folder has no 'none', the shard of 'b'"},
        {MAP "\"a\":\"" SHARDS_INDEX "\"}}", "is it a safetensors file?"},
        {MAP "\"a\":\"one\",\"b\":\"two\",\"a\":\"one\"}}", "weight_map has 'a' twice"},
        {MAP "\"a\":\"one\",\"c\":\"two\"}}", "'c' is not in 'two', its shard"},
        {MAP "\"a\":\"two\",\"b\":\"one\"}}", "'b' is in the shard 'two', not in 'one'"},
        {MAP "\"a\":\"one\",\"b\":\"same\"}}", "'a' is in two shards, '"},
        {MAP "\"a\":7}}", "a string is missing"},
        {"{\"weight_map\":[\"a\",\"one\"]}", "weight_map must be an object of strings"},
        {MAP "\"a\":\"one\"}", "',' or '}' is missing"},
        {MAP "\"a\":\"one\"},\"weight_map\":{}}", "duplicate weight_map"},
        {MAP "\"a\":\"one\"}}}", "text after the index's end"},
        {MAP "\"a\":\"one\"},}", "a string is missing"},
        {"{\"metadata\":{\"total_size\":12}}", "no weight_map: it is no index of shards"},
        {"{       }", "no weight_map: it is no index of shards"},
        {"{\"metadata\":{\"a\":[1,2}   ", "a list or an object does not end"},
    };
    char        path[400], link[400];
    mlc_ctx    *ctx = test_ctx();
    parted      p = parted_net(ctx, 2);
    mlc_module *net = net_of(ctx);
    const uint64_t  values = hash_net(1, net);
    const mlc_named a = {"a", mlc_ones(ctx, MLC_F32, mlc_dims1(2))};
    const mlc_named b = {"b", mlc_ones(ctx, MLC_F32, mlc_dims1(3))}, same[2] = {a, b};
    CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "one", path), &a, 1, NULL), MLC_OK);
    CHECK_EQ(symlink("one", in(&p, "link", link)), 0);
    CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "two", path), &b, 1, NULL), MLC_OK);
    CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "same", path), same, 2, NULL), MLC_OK);
    CHECK_EQ(folder_make(in(&p, "folder", path)), 0);
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(put_index(&p, cases[i].index));
        CHECK(mlc_safetensors_open(ctx, p.index) == NULL);
        CHECK_HAS(mlc_error(ctx), p.b.dir);
        CHECK_ERROR(ctx, MLC_ERR_IO, cases[i].says);
        CHECK_EQ(mlc_load(net, p.index), MLC_ERR_IO);
        mlc_error_clear(ctx);
        CHECK(hash_net(1, net) == values);
    }
    CHECK(put_index(&p, "{\"weight_map\":{\"a\":\"one\",\"b\":\"two\"}}"));
    mlc_safetensors *f = mlc_safetensors_open(ctx, p.index);
    CHECK_EQ(mlc_safetensors_count(f), 2);
    mlc_safetensors_close(f);
    CHECK_OK(ctx);
    rmdir(in(&p, "folder", path));
    box_close(&p.b);
}

/* Files of holes: 2^59 bytes of data each, so that three have over INT64_MAX / 8. */
TEST(shards, sizes_whose_sum_is_too_large_are_refused)
{
    char           path[400], name[8] = "s0";
    unsigned char  head[8 + 120];
    mlc_ctx       *ctx = test_ctx();
    parted         p = parted_net(ctx, 1);
    bool           holes = true;
    for (int i = 0; i < 3; i++) {
        name[1] = (char)('0' + i);
        memset(head, ' ', sizeof head);
        put_le(head, 8, sizeof head - 8);
        const int n = sprintf((char *)head + 8, "{\"%c\":{\"dtype\":\"F64\",\"shape\":[%lld],"
                              "\"data_offsets\":[0,%lld]}}", 'a' + i, 1LL << 56, 1LL << 59);
        head[8 + n] = ' ';
        CHECK(put_file(in(&p, name, path), head, sizeof head));
        holes = truncate(path, (off_t)sizeof head + (off_t)(1LL << 59)) == 0 && holes;
    }
    CHECK(put_index(&p, "{\"weight_map\":{\"c\":\"s2\",\"b\":\"s1\",\"a\":\"s0\"}}"));
    CHECK(mlc_safetensors_open(ctx, p.index) == NULL);
    if (holes) CHECK_ERROR(ctx, MLC_ERR_IO, "the shards up to 's1' have over 1152921504606846975");
    else CHECK_STATUS(ctx, MLC_ERR_IO);                    /* the file system has smaller ones */
    mlc_error_clear(ctx);
    box_close(&p.b);
}

/* As in the cache of Hugging Face: all names of a snapshot are links to files elsewhere. */
TEST(shards, where_the_index_is_a_link_shards_may_be_links)
{
    char     path[400], moved[400], name[48];
    mlc_ctx *ctx = test_ctx();
    parted   p = parted_net(ctx, 2), blobs = {box_open_fast("x"), "", 0};
    for (int i = 0; i < 2; i++) {
        in(&p, shard_name(i, 2, name), path);
        CHECK_EQ(rename(path, in(&blobs, name, moved)), 0);
        CHECK_EQ(symlink(moved, path), 0);
    }
    mlc_module *net = net_of(ctx);
    CHECK_EQ(mlc_load(net, p.index), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "is a symbolic link, and the index is none");
    CHECK_EQ(rename(p.index, in(&blobs, "index", moved)), 0);
    CHECK_EQ(symlink(moved, p.index), 0);
    CHECK_EQ(mlc_load(net, p.index), MLC_OK);
    CHECK(hash_net(1, net) == p.values);
    CHECK_OK(ctx);
    box_close(&p.b);
    box_close(&blobs.b);
}

/* A tensor that the index does not list is there: a strict load says so. */
TEST(shards, a_tensor_beside_the_index_is_unexpected)
{
    char            path[400], name[48];
    mlc_ctx        *ctx = test_ctx();
    parted          p = parted_net(ctx, 1);
    mlc_module     *net = net_of(ctx);
    mlc_load_desc   d = mlc_load_desc_make();
    mlc_load_report r;
    char            index[300];
    in(&p, shard_name(0, 1, name), path);
    const int n = snprintf(index, sizeof index, "{\"weight_map\":{\"0.bias\":\"%s\"}}", name);
    CHECK(put_file(p.index, index, (size_t)n));
    CHECK_EQ(mlc_load(net, p.index), MLC_OK);
    CHECK(hash_net(1, net) == p.values);
    mlc_module *less = mlc_nn_sequential(ctx);
    mlc_module_add(less, mlc_nn_linear(ctx, 5, 7));
    CHECK_EQ(mlc_load(less, p.index), MLC_ERR_IO);
    CHECK_ERROR(ctx, MLC_ERR_IO, "Unexpected key(s) in state_dict: \"2.bias\", \"2.weight\"");
    d.partial = true;
    d.report = &r;
    CHECK_EQ(mlc_load_ex(less, p.index, &d), MLC_OK);
    CHECK_EQ(r.unexpected, 2);
    /* The rows of a dataset are those of one file. */
    CHECK(mlc_dataset_safetensors(ctx, p.index, "0.weight") == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "it is an index of shards; give the file that has '0.weight'");
    CHECK_OK(ctx);
    box_close(&p.b);
}

/* Two names of one parameter may be in two shards. */
TEST(shards, two_names_of_a_parameter_in_two_shards_are_compared)
{
    char        path[400];
    mlc_ctx    *ctx = test_ctx();
    parted      p = parted_net(ctx, 1);
    mlc_module *net = mlc_nn_sequential(ctx), *a = mlc_nn_linear(ctx, 300, 300);
    mlc_module *b = mlc_nn_linear(ctx, 300, 300);
    mlc_module_add(net, a);
    mlc_module_add(net, b);
    CHECK_EQ(mlc_module_tie(b, "weight", mlc_module_param(a, "weight")), MLC_OK);
    CHECK_EQ(mlc_module_tie(b, "bias", mlc_module_param(a, "bias")), MLC_OK);
    CHECK(put_index(&p, "{\"weight_map\":{\"0.weight\":\"one\",\"1.weight\":\"two\"}}"));
    for (int differ = 0; differ < 2; differ++) {
        mlc_tensor *w = test_rand(ctx, MLC_F32, mlc_dims2(300, 300), 3, -1, 1), *v = mlc_copy(w);
        mlc_tensor *bias = mlc_ones(ctx, MLC_F32, mlc_dims1(300));
        if (differ) {                  /* the last number alone                                */
            double *copy = (double *)malloc(300 * 300 * sizeof *copy);
            test_read(w, copy);
            copy[300 * 300 - 1] += 1;
            v = test_tensor(ctx, MLC_F32, mlc_dims2(300, 300), copy);
            free(copy);
        }
        const mlc_named one[2] = {{"0.weight", w}, {"0.bias", bias}}, two = {"1.weight", v};
        CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "one", path), one, 2, NULL), MLC_OK);
        CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "two", path), &two, 1, NULL), MLC_OK);
        CHECK_EQ(mlc_load(net, p.index), differ ? MLC_ERR_IO : MLC_OK);
        if (differ)
            CHECK_ERROR(ctx, MLC_ERR_IO, "'0.weight' and '1.weight' are both '0.weight', which has "
                                         "several names, and differ");
    }
    CHECK_OK(ctx);
    box_close(&p.b);
}

static mlc_status read_all(mlc_ctx *ctx, const void *index)
{
    const mlc_named *list;
    int64_t          n;
    mlc_module      *net = net_of(ctx);
    if (mlc_ctx_status(ctx)) return mlc_ctx_status(ctx);
    const mlc_status st = mlc_load(net, (const char *)index);
    return st ? st : mlc_safetensors_load(ctx, (const char *)index, &list, &n);
}

TEST(shards, reading_survives_that_any_allocation_fails)
{
    mlc_ctx *ctx = test_ctx();
    parted   p = parted_net(ctx, 3);
    tally_fail_each(read_all, p.index);
    CHECK_OK(ctx);
    box_close(&p.b);
}

/* Keys of one letter or none: the most pairs for its bytes. */
TEST(shards, a_large_index_takes_no_more_than_four_times_its_size)
{
    enum { PAIRS = 200000 };
    char         path[400];
    mlc_ctx     *ctx = test_ctx();
    parted       p = parted_net(ctx, 1);
    tally        mem;
    mlc_ctx_desc d = tally_desc(&mem);
    mlc_ctx     *counted = mlc_ctx_create(&d);
    char        *text = (char *)malloc(PAIRS * 8 + 100);
    const mlc_named a = {"a", mlc_ones(ctx, MLC_F32, mlc_dims1(2))};
    int          n = sprintf(text, "{\"weight_map\":{");
    CHECK_EQ(mlc_safetensors_save(ctx, in(&p, "s", path), &a, 1, NULL), MLC_OK);
    for (int i = 0; i < PAIRS; i++) n += sprintf(text + n, "%s\"\":\"s\"", i ? "," : "");
    n += sprintf(text + n, "}}");
    CHECK(put_file(p.index, text, (size_t)n));
    const int64_t live = mem.live;
    mem.peak = live;
    CHECK(mlc_safetensors_open(counted, p.index) == NULL);
    CHECK_STATUS(counted, MLC_ERR_IO);
    CHECK(mem.peak - live <= 4 * (int64_t)n + (1 << 20));
    free(text);
    tally_done(&mem, counted);
    CHECK_OK(ctx);
    box_close(&p.b);
}
