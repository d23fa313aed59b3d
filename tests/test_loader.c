/* test_loader.c -- tests of section IMPL.DATA.LOADER: batches of a dataset, by workers */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "files.h"

/* ---- datasets of the tests ----------------------------------------------------------------- */

/* Sample i: x = {i, a number at random}, y = i; as a stream it has n samples. ragged: field 0 has
 * length 1 + i % 5, and is i all over.                                                         */
typedef struct source { int64_t n, bad; bool ragged; } source;

static int64_t source_count(void *user) { return ((source *)user)->n; }

static int64_t source_length(void *user, int64_t i) { (void)user; return 1 + i * 7 % 5; }

static mlc_status source_get(void *user, mlc_sample *s)
{
    const source *of = (const source *)user;
    float        *x = (float *)s->dst[0];
    const int64_t y = s->index;
    if (s->index == of->n) {
        s->end = true;
        return MLC_OK;
    }
    if (s->index == of->bad) {
        snprintf(s->why, sizeof s->why, "file %d is damaged", (int)s->index);
        return MLC_ERR_IO;
    }
    s->len[0] = source_length(user, s->index);
    for (int64_t k = 0; of->ragged && k < s->len[0]; k++)
        x[k] = (float)s->index;
    if (!of->ragged) {
        x[0] = (float)s->index;
        x[1] = (float)mlc_sample_uniform(s, 0);
    }
    memcpy(s->dst[1], &y, sizeof y);
    return MLC_OK;
}

static mlc_dataset source_set(source *of, bool stream)
{
    mlc_dataset d;
    memset(&d, 0, sizeof d);
    d.user = of;
    d.count = stream ? NULL : source_count;
    d.n_fields = 2;
    d.field[0].dtype = MLC_F32;
    d.field[0].dims = mlc_dims1(of->ragged ? 5 : 2);
    d.field[0].ragged = of->ragged;
    d.field[1].dtype = MLC_I64;
    d.field[1].dims = mlc_dims0();
    d.get = source_get;
    d.length = of->ragged && !stream ? source_length : NULL;
    return d;
}

/* ---- what a loader gives, as a hash and as labels ------------------------------------------- */

typedef struct seen { uint64_t hash; int64_t batches, rows, label[512]; } seen;

static void see_tensor(seen *s, mlc_tensor *t)
{
    double v[1024];
    if (t == NULL || mlc_numel(t) > 1024 || !test_read(t, v))
        return;
    for (int64_t i = 0; i < mlc_numel(t); i++) {
        unsigned char byte[8];
        memcpy(byte, &v[i], 8);
        for (int k = 0; k < 8; k++)
            s->hash = (s->hash ^ byte[k]) * UINT64_C(0x100000001B3);
    }
}

static void see(seen *s, const mlc_batch *b)
{
    double y[512] = {0};
    for (int f = 0; f < b->n_fields; f++) {
        see_tensor(s, b->field[f]);
        see_tensor(s, b->mask[f]);
        see_tensor(s, b->length[f]);
    }
    if (b->y && mlc_numel(b->y) <= 512 && test_read(b->y, y))
        for (int64_t i = 0; i < b->n && s->rows < 512; i++)
            s->label[s->rows++] = (int64_t)y[i];
    s->batches++;
}

/* Up to `most` batches of an epoch; true at its end.                                           */
static bool see_some(seen *s, mlc_loader *l, int64_t most)
{
    mlc_batch b;
    while (most-- > 0) {
        if (!mlc_loader_next(l, &b))
            return true;
        see(s, &b);
    }
    return false;
}

static seen epochs(mlc_ctx *ctx, const mlc_dataset *d, mlc_loader_from_desc desc, int32_t workers,
                   int32_t depth, int n)
{
    seen s;
    memset(&s, 0, sizeof s);
    desc.workers = workers;
    desc.depth = depth;
    mlc_loader *l = mlc_loader_from(ctx, d, &desc);
    for (int e = 0; l && e < n; e++)
        see_some(&s, l, 1000);
    mlc_loader_free(l);
    return s;
}

/* Workers and depth change nothing, nor does a seek to any batch of two epochs.                */
static void check_alike(mlc_ctx *ctx, const mlc_dataset *d, mlc_loader_from_desc desc)
{
    static const int32_t ways[5][2] = {{1, 0}, {1, 3}, {2, 4}, {4, 1}, {4, 8}};
    const seen           want = epochs(ctx, d, desc, 0, 0, 2);
    CHECK(want.batches > 0);
    for (int i = 0; i < 5; i++) {
        const seen got = epochs(ctx, d, desc, ways[i][0], ways[i][1], 2);
        CHECK_EQ(got.batches, want.batches);
        CHECK(got.hash == want.hash);
    }
    for (int workers = 0; workers < 4; workers += 3)
        for (int64_t at = 0; at < want.batches; at += 1 + want.batches / 7) {
            seen             whole, rest;
            mlc_loader_state state;
            memset(&whole, 0, sizeof whole);
            desc.workers = workers;
            mlc_loader *l = mlc_loader_from(ctx, d, &desc), *again = mlc_loader_from(ctx, d, &desc);
            int64_t     left = at;
            while (left > 0) {                             /* also over the end of an epoch     */
                const int64_t before = whole.batches;
                see_some(&whole, l, left);
                left -= whole.batches - before;
            }
            state = mlc_loader_position(l);
            rest = whole;
            see_some(&whole, l, 1000);
            CHECK_EQ(mlc_loader_seek(again, &state), MLC_OK);
            see_some(&rest, again, 1000);
            CHECK(rest.hash == whole.hash && rest.batches == whole.batches);
            CHECK_EQ(mlc_loader_seek(l, &state), MLC_OK);  /* back, on the loader itself        */
            mlc_loader_free(l);
            mlc_loader_free(again);
        }
    CHECK_OK(ctx);
}

TEST(loader, workers_depth_and_seeks_change_no_bit)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {103, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(8);
    check_alike(ctx, &d, desc);
    desc.shuffle = true;
    desc.seed = 5;
    check_alike(ctx, &d, desc);
    desc.drop_last = true;
    check_alike(ctx, &d, desc);
}

TEST(loader, a_batch_larger_than_all_numbers_of_rows_is_one_batch_of_them)
{
    static const int64_t SIZES[] = {3, 4, INT64_MAX - 1, INT64_MAX};
    const double         want[3] = {0, 1, 2};
    mlc_ctx             *ctx = test_ctx();
    mlc_tensor          *t = mlc_arange(ctx, MLC_F32, 0, 3, 1);
    for (int i = 0; i < 4; i++) {
        const mlc_loader_from_desc desc = mlc_loader_from_desc_make(SIZES[i]);
        mlc_loader *l = mlc_loader_from(ctx, mlc_dataset_tensors(ctx, &t, 1), &desc);
        mlc_batch   b;
        CHECK_EQ(mlc_loader_batches(l), 1);
        if (CHECK(mlc_loader_next(l, &b))) CHECK_VALUES(b.x, 3, want, 0, 0);
        CHECK(!mlc_loader_next(l, &b));
        mlc_loader_free(l);
    }
    CHECK_OK(ctx);
}

TEST(loader, an_epoch_has_every_sample_once_and_each_epoch_another_order)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {50, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(7);
    desc.shuffle = true;
    desc.workers = 2;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    seen        first, second;
    CHECK_EQ(mlc_loader_batches(l), 8);
    memset(&first, 0, sizeof first);
    second = first;
    CHECK(see_some(&first, l, 100));
    CHECK(see_some(&second, l, 100));
    CHECK_EQ(first.batches, 8);
    CHECK_EQ(first.rows, 50);
    CHECK(memcmp(first.label, second.label, sizeof first.label) != 0);
    for (int e = 0; e < 2; e++) {
        bool had[50] = {false};
        for (int i = 0; i < 50; i++) {
            const int64_t y = e ? second.label[i] : first.label[i];
            CHECK(y >= 0 && y < 50 && !had[y]);
            had[y % 50] = true;
        }
    }
    mlc_loader_free(l);
    CHECK_OK(ctx);
}

TEST(loader, a_dataset_of_tensors_comes_as_the_loader_of_tensors_has_it)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_tensor          *t[2] = {test_rand(ctx, MLC_F32, mlc_dims2(30, 4), 1, -1, 1),
                                 mlc_cast(mlc_arange(ctx, MLC_F32, 0, 30, 1), MLC_I64)};
    mlc_loader_from_desc from = mlc_loader_from_desc_make(8);
    mlc_loader_desc      desc = mlc_loader_desc_make(t[0], t[1], 8);
    from.shuffle = desc.shuffle = true;
    from.seed = desc.seed = 11;
    from.workers = 2;
    mlc_loader *a = mlc_loader_create(ctx, &desc);
    mlc_loader *b = mlc_loader_from(ctx, mlc_dataset_tensors(ctx, t, 2), &from);
    seen        x, y;
    memset(&x, 0, sizeof x);
    memset(&y, 0, sizeof y);
    for (int e = 0; e < 3; e++) {
        see_some(&x, a, 100);
        see_some(&y, b, 100);
    }
    CHECK_EQ(x.batches, 12);
    CHECK(x.hash == y.hash);
    mlc_loader_free(a);
    mlc_loader_free(b);
    CHECK_OK(ctx);
}

TEST(loader, a_loader_of_tensors_goes_on_from_its_position_too)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_loader_desc desc = mlc_loader_desc_make(mlc_arange(ctx, MLC_F32, 0, 30, 1),
                                                mlc_arange(ctx, MLC_F32, 0, 30, 1), 8);
    desc.shuffle = true;
    mlc_loader *a = mlc_loader_create(ctx, &desc), *b = mlc_loader_create(ctx, &desc);
    seen        x, y;
    for (int64_t at = 0; at < 9; at++) {
        mlc_loader_state begin = mlc_loader_position(a), state;
        memset(&x, 0, sizeof x);
        begin.epoch = begin.batch = 0;
        CHECK_EQ(mlc_loader_seek(a, &begin), MLC_OK);
        for (int64_t i = 0; i < at; i++)
            if (see_some(&x, a, 1))
                i--;
        state = mlc_loader_position(a);
        y = x;
        see_some(&x, a, 100);
        see_some(&x, a, 100);
        CHECK_EQ(mlc_loader_seek(b, &state), MLC_OK);
        see_some(&y, b, 100);
        see_some(&y, b, 100);
        CHECK(x.hash == y.hash && x.batches == y.batches);
    }
    mlc_loader_state wrong = mlc_loader_position(b);
    wrong.batch = 5;
    CHECK_EQ(mlc_loader_seek(b, &wrong), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    wrong.config++;
    CHECK_EQ(mlc_loader_seek(b, &wrong), MLC_ERR_STATE);
    mlc_error_clear(ctx);
    mlc_loader_free(a);
    mlc_loader_free(b);
}

TEST(loader, a_position_after_the_last_batch_is_refused_of_any_loader_that_knows_its_batches)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_tensor          *t[1] = {mlc_arange(ctx, MLC_F32, 0, 30, 1)};
    mlc_loader_from_desc from = mlc_loader_from_desc_make(8);
    mlc_loader_desc      desc = mlc_loader_desc_make(t[0], NULL, 8);
    mlc_loader *const    l[2] = {mlc_loader_create(ctx, &desc),
                                 mlc_loader_from(ctx, mlc_dataset_tensors(ctx, t, 1), &from)};
    for (int i = 0; i < 2; i++) {
        mlc_loader_state at = mlc_loader_position(l[i]);
        mlc_batch        b;
        at.batch = 5;
        CHECK_EQ(mlc_loader_seek(l[i], &at), MLC_ERR_ARG);
        CHECK_HAS(mlc_error(ctx), "batch 5 of 4");
        mlc_error_clear(ctx);
        at.batch = 4;                      /* the end of the epoch is a place */
        CHECK_EQ(mlc_loader_seek(l[i], &at), MLC_OK);
        CHECK(!mlc_loader_next(l[i], &b));
        CHECK(mlc_loader_next(l[i], &b) && b.epoch == 1 && b.index == 0);
    }
    CHECK_OK(ctx);
}

TEST(loader, ranks_share_the_batches_of_a_loader_of_all_their_rows)
{
    mlc_ctx          *ctx = test_ctx();
    source            of = {50, -1, false};
    const mlc_dataset d = source_set(&of, false);
    for (int drop = 0; drop < 2; drop++) {
        mlc_loader_from_desc desc = mlc_loader_from_desc_make(12);
        desc.shuffle = true;
        desc.drop_last = drop != 0;
        const seen all = epochs(ctx, &d, desc, 0, 0, 1);
        desc.batch = 4;
        desc.ranks = 3;
        for (desc.rank = 0; desc.rank < 3; desc.rank++) {
            const seen one = epochs(ctx, &d, desc, desc.rank, 2, 1);
            CHECK_EQ(one.rows, drop ? 16 : 17);
            CHECK_EQ(one.batches, drop ? 4 : 5);
            for (int64_t i = 0; i < one.rows; i++)
                CHECK_EQ(one.label[i], all.label[(desc.rank + 3 * i) % 50]);
        }
    }
    CHECK_OK(ctx);
}

TEST(loader, an_error_of_a_sample_is_named_and_the_next_batch_follows)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {20, 9, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    for (desc.workers = 0; desc.workers < 4; desc.workers += 3) {
        mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
        mlc_batch   b;
        for (int i = 0; i < 5; i++) {
            const bool more = mlc_loader_next(l, &b);
            CHECK_EQ(more, i != 2);
            if (i != 2)
                CHECK_EQ(b.index, i);
            else if (CHECK_HAS(mlc_error(ctx), "sample 9: file 9 is damaged"))
                CHECK_STATUS(ctx, MLC_ERR_IO);
            mlc_error_clear(ctx);
        }
        CHECK(!mlc_loader_next(l, &b));
        CHECK_OK(ctx);
        mlc_loader_free(l);
    }
}

TEST(loader, batches_are_valid_until_the_next_and_have_gradients_of_their_own)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {12, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    mlc_batch            b;
    desc.workers = 1;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    for (int i = 0; i < 3; i++) {
        CHECK(mlc_loader_next(l, &b));
        mlc_scope_begin(ctx);
        mlc_set_requires_grad(b.x, true);
        CHECK_EQ(mlc_backward(mlc_sum(mlc_square(b.x), mlc_dims0(), false)), MLC_OK);
        CHECK_NEAR(mlc_item(mlc_sum(mlc_grad(b.x), mlc_dims0(), false)),
                   2 * mlc_item(mlc_sum(b.x, mlc_dims0(), false)), 1e-4);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    mlc_scope_begin(ctx);
    CHECK(!mlc_loader_next(l, &b) && mlc_loader_next(l, &b));
    mlc_set_requires_grad(b.x, true);
    mlc_tensor *loss = mlc_sum(mlc_square(b.x), mlc_dims0(), false);
    CHECK(mlc_loader_next(l, &b));
    CHECK(mlc_backward(loss) != MLC_OK);                   /* the batch was overwritten        */
    mlc_scope_end(ctx);
    mlc_error_clear(ctx);
    mlc_loader_free(l);
}

TEST(loader, a_steady_batch_takes_no_memory)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {64, -1, true};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    mlc_memory           before, after;
    mlc_batch            b;
    desc.shuffle = true;
    desc.window = 16;
    desc.tokens = 12;
    for (desc.workers = 0; desc.workers < 3; desc.workers++) {
        mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
        mlc_loader_next(l, &b);
        mlc_memory_info(ctx, &before);
        for (int i = 0; i < 100; i++)
            mlc_loader_next(l, &b);
        mlc_memory_info(ctx, &after);
        CHECK_EQ(after.calls, before.calls);
        CHECK_EQ(after.allocated, before.allocated);
        mlc_loader_free(l);
    }
    CHECK_OK(ctx);
}

TEST(loader, a_context_ends_with_its_workers_at_any_moment)
{
    source            of = {1000, -1, false};
    const mlc_dataset d = source_set(&of, false);
    for (int i = 0; i < 40; i++) {
        const mlc_ctx_desc   cd = test_desc();
        mlc_ctx             *ctx = mlc_ctx_create(&cd);
        mlc_loader_from_desc desc = mlc_loader_from_desc_make(16);
        mlc_batch            b;
        desc.workers = 3;
        mlc_loader *l = mlc_loader_from(ctx, mlc_dataset_create(ctx, &d), &desc);
        for (int k = 0; k < i % 5; k++)
            CHECK(mlc_loader_next(l, &b));
        if (i % 2)
            mlc_loader_free(l);
        CHECK_OK(ctx);
        mlc_ctx_free(ctx);
    }
}

/* ---- drawn by weights ----------------------------------------------------------------------- */

TEST(loader, weights_decide_how_often_a_sample_comes)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {4, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    const double         w[4] = {1, 0, 2, 5};
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(40);
    int64_t              count[4] = {0};
    desc.weights = test_tensor(ctx, MLC_F32, mlc_dims1(4), w);
    desc.samples = 8000;
    desc.workers = 2;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    CHECK_EQ(mlc_loader_batches(l), 200);
    for (mlc_batch b; mlc_loader_next(l, &b);) {
        double y[40];
        CHECK_EQ(b.n, 40);
        CHECK(test_read(b.y, y));
        for (int i = 0; i < 40; i++)
            count[(int)y[i]]++;
    }
    mlc_loader_free(l);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR((double)count[i], 1000 * w[i], 200);
    CHECK_EQ(count[1], 0);
    desc.samples = 100;
    check_alike(ctx, &d, desc);
}

TEST(loader, classes_come_equally_often_and_a_bad_label_is_named)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {100, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(100);
    int64_t              label[100], count[3] = {0};
    for (int i = 0; i < 100; i++)
        label[i] = i < 90 ? 0 : i < 99 ? 1 : 2;
    desc.labels = mlc_from(ctx, MLC_I64, mlc_dims1(100), label);
    desc.samples = 9000;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    for (mlc_batch b; mlc_loader_next(l, &b);) {
        double y[100];
        CHECK(test_read(b.y, y));
        for (int i = 0; i < 100; i++)
            count[label[(int)y[i]]]++;
    }
    mlc_loader_free(l);
    for (int i = 0; i < 3; i++)
        CHECK_NEAR((double)count[i], 3000, 200);
    CHECK_OK(ctx);
    label[7] = -3;
    desc.labels = mlc_from(ctx, MLC_I64, mlc_dims1(100), label);
    CHECK(mlc_loader_from(ctx, &d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "label -3 of sample 7");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_error_clear(ctx);
}

/* ---- ragged fields -------------------------------------------------------------------------- */

TEST(loader, ragged_fields_are_padded_to_the_longest_with_masks_and_lengths)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {10, -1, true};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(3);
    mlc_batch            b;
    desc.pad[0] = -1;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    for (int64_t k = 0; mlc_loader_next(l, &b); k++) {
        double  x[15], m[15], len[3];
        int64_t width = 0;
        for (int64_t r = 0; r < b.n; r++) {
            const int64_t n = source_length(&of, 3 * k + r);
            width = n > width ? n : width;
        }
        CHECK_EQ(mlc_dim(b.x, 1), width);
        CHECK_EQ(mlc_dim(b.mask[0], 1), width);
        CHECK(b.mask[1] == NULL && b.length[1] == NULL);
        CHECK(test_read(b.x, x) && test_read(b.mask[0], m) && test_read(b.length[0], len));
        for (int64_t r = 0; r < b.n; r++) {
            const int64_t n = source_length(&of, 3 * k + r);
            CHECK_NEAR(len[r], (double)n, 0);
            for (int64_t i = 0; i < width; i++) {
                CHECK_NEAR(x[r * width + i], i < n ? (double)(3 * k + r) : -1, 0);
                CHECK_NEAR(m[r * width + i], i < n, 0);
            }
        }
    }
    mlc_loader_free(l);
    desc.multiple = 4;
    l = mlc_loader_from(ctx, &d, &desc);
    while (mlc_loader_next(l, &b))
        CHECK(mlc_dim(b.x, 1) == 4 || mlc_dim(b.x, 1) == 5);
    mlc_loader_free(l);
    desc.shuffle = true;
    check_alike(ctx, &d, desc);
}

/* Sample i has i + 1 elements of any dtype, all of them 0. */
static mlc_status zeros_get(void *user, mlc_sample *s)
{
    memset(s->dst[0], 0, (size_t)(s->index + 1) * mlc_dtype_bytes(*(const mlc_dtype *)user));
    s->len[0] = s->index + 1;
    return MLC_OK;
}

static int64_t zeros_count(void *user) { (void)user; return 2; }

/* The last one is even as f32, and 1.0 as bf16 of that: rounded once it is 1.0078125. */
TEST(loader, a_ragged_field_of_any_dtype_is_padded_with_the_number_as_a_cast_has_it)
{
    static const double pads[4] = {0.5, -3, 2, 1 + 0x1p-8 + 0x1p-30};
    mlc_ctx *ctx = test_ctx();
    for (int i = 0; i < 4 * MLC_DTYPE_COUNT; i++) {
        mlc_dtype            dtype = (mlc_dtype)(i / 4);
        mlc_loader_from_desc desc = mlc_loader_from_desc_make(2);
        mlc_dataset          d;
        mlc_batch            b;
        double               got[4], want;
        uint64_t             bits = 0;
        if (dtype == MLC_U8 && pads[i % 4] < 0)
            continue;
        memset(&d, 0, sizeof d);
        d.user = &dtype;
        d.count = zeros_count;
        d.n_fields = 1;
        d.field[0].dtype = dtype;
        d.field[0].dims = mlc_dims1(2);
        d.field[0].ragged = true;
        d.get = zeros_get;
        desc.pad[0] = pads[i % 4];
        mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
        test_put(&bits, dtype, 0, pads[i % 4]);
        want = test_get(&bits, dtype, 0);
        if (CHECK(mlc_loader_next(l, &b)) && CHECK(test_read(b.x, got)))
            CHECK(got[0] == 0 && got[1] == want && got[2] == 0 && got[3] == 0);
        mlc_loader_free(l);
    }
    CHECK_OK(ctx);
}

TEST(loader, a_budget_of_tokens_bounds_rows_times_width_and_every_sample_comes)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {101, -1, true};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(10);
    desc.shuffle = true;
    desc.tokens = 20;
    for (desc.window = 0; desc.window < 101; desc.window += 50) {
        mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
        bool        had[101] = {false};
        int64_t     cells = 0, rows = 0, batches = 0;
        for (mlc_batch b; mlc_loader_next(l, &b); batches++) {
            double y[10];
            CHECK(mlc_numel(b.x) <= 20 && b.n <= 10);
            cells += mlc_numel(b.x);
            CHECK(test_read(b.y, y));
            for (int64_t r = 0; r < b.n; r++, rows++) {
                CHECK(!had[(int)y[r]]);
                had[(int)y[r]] = true;
            }
        }
        CHECK_EQ(rows, 101);
        CHECK_EQ(batches > 0, 1);
        if (desc.window)                                   /* 301 are there; sorting saves room */
            CHECK(cells < 340);
        mlc_loader_free(l);
        check_alike(ctx, &d, desc);
    }
    desc.ranks = 2;
    const seen a = epochs(ctx, &d, desc, 0, 0, 1);
    desc.rank = 1;
    const seen b = epochs(ctx, &d, desc, 2, 2, 1);
    CHECK_EQ(a.batches, b.batches);
    desc.ranks = 1;
    desc.rank = 0;
    desc.tokens = 4;
    CHECK(mlc_loader_from(ctx, &d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "over the 4 tokens of a batch");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_error_clear(ctx);
}

static mlc_status too_long(void *user, mlc_sample *s)
{
    const mlc_status st = source_get(user, s);
    s->len[0] = s->index == 6 ? 9 : s->len[0];
    return st;
}

TEST(loader, a_length_that_does_not_fit_the_field_is_an_error)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {10, -1, true};
    mlc_dataset          d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(10);
    mlc_batch            b;
    d.get = too_long;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    CHECK(!mlc_loader_next(l, &b));
    CHECK_HAS(mlc_error(ctx), "sample 6: field 0 has length 9; it holds 0 to 5");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_error_clear(ctx);
    mlc_loader_free(l);
}

TEST(loader, a_position_that_leaves_no_room_to_count_on_is_refused)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_loader      *l = mlc_loader_ordered(ctx, mlc_ones(ctx, MLC_F32, mlc_dims1(4)), NULL, 2);
    mlc_loader_state at = mlc_loader_position(l);
    mlc_batch        b;
    at.epoch = INT64_MAX;
    CHECK_EQ(mlc_loader_seek(l, &at), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch 0 of epoch 9223372036854775807; both count from 0, and ");
    at.epoch = INT64_MAX / 2 - 1;
    CHECK_EQ(mlc_loader_seek(l, &at), MLC_OK);
    for (int k = 0; k < 3; k++) CHECK(mlc_loader_next(l, &b) == (k < 2));
    CHECK(mlc_loader_next(l, &b) && b.epoch == INT64_MAX / 2);
}

/* ---- streams -------------------------------------------------------------------------------- */

TEST(loader, a_place_after_the_end_of_a_stream_is_its_end)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {6, -1, false};
    const mlc_dataset    d = source_set(&of, true);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    for (desc.workers = 0; desc.workers < 3; desc.workers++) {
        mlc_loader      *l = mlc_loader_from(ctx, &d, &desc);
        mlc_loader_state at = mlc_loader_position(l);
        mlc_batch        b;
        at.batch = INT64_MAX;
        CHECK_EQ(mlc_loader_seek(l, &at), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "batch 9223372036854775807 of epoch 0");
        at.batch = INT64_MAX / 2 - 1;
        CHECK_EQ(mlc_loader_seek(l, &at), MLC_OK);
        CHECK(!mlc_loader_next(l, &b));
        CHECK(mlc_loader_next(l, &b) && b.epoch == 1 && b.index == 0 && b.n == 4);
        mlc_loader_free(l);
    }
    CHECK_OK(ctx);
}

TEST(loader, a_stream_ends_where_it_says_and_begins_anew)
{
    mlc_ctx *ctx = test_ctx();
    for (int64_t n = 0; n < 18; n++) {
        source               of = {n, -1, false};
        const mlc_dataset    d = source_set(&of, true);
        mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
        for (int drop = 0; drop < 2; drop++)
            for (int32_t workers = 0; workers < 3; workers++) {
                desc.drop_last = drop != 0;
                const seen s = epochs(ctx, &d, desc, workers, 2, 2);
                const int64_t rows = drop ? n / 4 * 4 : n;
                CHECK_EQ(s.batches, 2 * (drop ? n / 4 : (n + 3) / 4));
                CHECK_EQ(s.rows, 2 * rows);
                for (int64_t i = 0; i < s.rows; i++)
                    CHECK_EQ(s.label[i], i % rows);
            }
    }
    CHECK_OK(ctx);
}

TEST(loader, a_stream_is_shuffled_out_of_a_buffer)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {60, -1, false};
    const mlc_dataset    d = source_set(&of, true);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(8);
    desc.shuffle = true;
    for (desc.buffer = 1; desc.buffer < 200; desc.buffer *= 5) {
        const seen s = epochs(ctx, &d, desc, 0, 0, 1);
        bool       had[60] = {false};
        int        moved = 0;
        CHECK_EQ(s.rows, 60);
        for (int i = 0; i < 60; i++) {
            CHECK(!had[s.label[i] % 60]);
            had[s.label[i] % 60] = true;
            CHECK(s.label[i] < i + (int)desc.buffer);      /* not yet read before              */
            moved += s.label[i] != i;
        }
        CHECK(desc.buffer > 1 ? moved > 30 : moved == 0);
        check_alike(ctx, &d, desc);
    }
    desc.ranks = 2;
    const seen a = epochs(ctx, &d, desc, 0, 0, 1);
    CHECK_EQ(a.rows, 30);
    for (int i = 0; i < 30; i++)
        CHECK_EQ(a.label[i] % 2, 0);
    CHECK_OK(ctx);
}

/* ---- collate -------------------------------------------------------------------------------- */

/* In: x f32 [n,2], y. Out: the sum of each row and its number in the batch of all.             */
static mlc_status sums(const void *user, mlc_collated *b)
{
    const float *x = (const float *)b->in[0];
    double      *out = (double *)b->out[0];
    if (b->index == *(const int64_t *)user) {
        snprintf(b->why, sizeof b->why, "no sums of %d rows", (int)b->n);
        return MLC_ERR_VALUE;
    }
    for (int64_t r = 0; r < b->n; r++) {
        out[2 * r] = (double)x[2 * r];
        out[2 * r + 1] = (double)b->rows[r];
    }
    return MLC_OK;
}

TEST(loader, collate_makes_the_batch_and_its_error_names_the_batch)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {10, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    mlc_collate          collate;
    int64_t              bad = 1;
    mlc_batch            b;
    memset(&collate, 0, sizeof collate);
    collate.user = &bad;
    collate.run = sums;
    collate.n_fields = 1;
    collate.field[0].dtype = MLC_F64;
    collate.field[0].dims = mlc_dims1(2);
    desc.collate = &collate;
    desc.shuffle = true;
    desc.workers = 1;
    mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
    for (int k = 0; k < 3; k++) {
        double v[8];
        if (k == 1) {
            CHECK(!mlc_loader_next(l, &b));
            CHECK_HAS(mlc_error(ctx), "batch 1: no sums of 4 rows");
            mlc_error_clear(ctx);
            continue;
        }
        CHECK(mlc_loader_next(l, &b));
        CHECK(b.n_fields == 1 && b.y == NULL && b.x->dtype == MLC_F64);
        CHECK(test_read(b.x, v));
        for (int64_t r = 0; r < b.n; r++)
            CHECK_NEAR(v[2 * r], v[2 * r + 1], 0);
    }
    mlc_loader_free(l);
    bad = -1;
    check_alike(ctx, &d, desc);
}

/* ---- what cannot work ----------------------------------------------------------------------- */

TEST(loader, what_cannot_work_is_refused_with_a_reason)
{
    mlc_ctx    *ctx = test_ctx();
    source      of = {10, -1, false}, ragged = {10, -1, true}, none = {0, -1, false};
    mlc_dataset d = source_set(&of, false), r = source_set(&ragged, false),
                s = source_set(&of, true), e = source_set(&none, false);
    mlc_tensor *w = mlc_ones(ctx, MLC_F32, mlc_dims1(10)), *y = mlc_zeros(ctx, MLC_I64,
                                                                         mlc_dims1(10));
    const struct { const mlc_dataset *d; int64_t batch, tokens, samples; int32_t rank, ranks;
                   mlc_tensor *weights, *labels; const char *text; } bad[] = {
        {NULL, 4, 0, 0, 0, 1, NULL, NULL, "NULL"},
        {&d, 0, 0, 0, 0, 1, NULL, NULL, "batch is 0"},
        {&e, 4, 0, 0, 0, 1, NULL, NULL, "empty"},
        {&d, 4, 0, 0, 1, 1, NULL, NULL, "rank 1 of 1"},
        {&d, 4, 0, 0, 0, 0, NULL, NULL, "rank 0 of 0"},
        {&d, 4, 9, 0, 0, 1, NULL, NULL, "no function length"},
        {&d, 4, 0, 11, 0, 1, NULL, NULL, "11 samples of 10"},
        {&d, 4, 0, 0, 0, 1, w, y, "both"},
        {&r, 4, 9, 0, 0, 1, w, NULL, "not sorted by length"},
        {&s, 4, 0, 0, 0, 1, w, NULL, "stream"},
        {&d, 4, 0, 0, 0, 1, y, NULL, "weights are i64"},
        {&d, 4, 0, 0, 0, 1, NULL, w, "labels are f32"},
        {&d, 4, 0, 0, 0, 1, mlc_ones(ctx, MLC_F32, mlc_dims1(9)), NULL, "weights are [9]"},
        {&d, 4, 0, 0, 0, 1, mlc_zeros(ctx, MLC_F32, mlc_dims1(10)), NULL, "sum of weights is 0"},
        {&d, 4, 0, 0, 0, 1, mlc_neg(w), NULL, "the weight of sample 0 is -1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mlc_loader_from_desc desc = mlc_loader_from_desc_make(bad[i].batch);
        desc.tokens = bad[i].tokens;
        desc.samples = bad[i].samples;
        desc.rank = bad[i].rank;
        desc.ranks = bad[i].ranks;
        desc.weights = bad[i].weights;
        desc.labels = bad[i].labels;
        CHECK(mlc_loader_from(ctx, bad[i].d, &desc) == NULL);
        CHECK_HAS(mlc_error(ctx), bad[i].text);
        mlc_error_clear(ctx);
    }
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    desc.pad[1] = -1;
    CHECK(mlc_loader_from(ctx, &r, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "pad[1] is set, and field 1 of 2 is not ragged");
    mlc_error_clear(ctx);
    desc = mlc_loader_from_desc_make(4);
    desc.multiple = 8;
    CHECK(mlc_loader_from(ctx, &d, &desc) == NULL);
    CHECK_HAS(mlc_error(ctx), "multiple is 8, and no field is ragged");
    mlc_error_clear(ctx);
    desc = mlc_loader_from_desc_make(4);
    mlc_loader *a = mlc_loader_from(ctx, &d, &desc);
    desc.seed = 1;
    mlc_loader      *b = mlc_loader_from(ctx, &d, &desc);
    mlc_loader_state state = mlc_loader_position(a);
    CHECK_EQ(mlc_loader_seek(b, &state), MLC_ERR_STATE);
    CHECK_HAS(mlc_error(ctx), "another loader");
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_loader_seek(b, NULL), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    mlc_loader_free(a);
    mlc_loader_free(b);
}

TEST(loader, a_last_batch_that_is_dropped_may_be_the_only_one)
{
    mlc_ctx             *ctx = test_ctx();
    source               of = {3, -1, false};
    const mlc_dataset    d = source_set(&of, false);
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(4);
    mlc_batch            b;
    desc.drop_last = true;
    for (desc.workers = 0; desc.workers < 2; desc.workers++) {
        mlc_loader *l = mlc_loader_from(ctx, &d, &desc);
        CHECK_EQ(mlc_loader_batches(l), 0);
        CHECK(!mlc_loader_next(l, &b) && !mlc_loader_next(l, &b));
        mlc_loader_free(l);
    }
    CHECK_OK(ctx);
}

/* ---- augmentation and mixup by workers ------------------------------------------------------ */

static mlc_dataset *pictures(mlc_ctx *ctx, int64_t n, int64_t classes)
{
    mlc_tensor *y = mlc_arange(ctx, MLC_F32, 0, (double)n, 1);
    mlc_tensor *label = mlc_sub(y, mlc_mul_scalar(mlc_floor(mlc_mul_scalar(y, 1.0 /
                                                  (double)classes)), (double)classes));
    mlc_tensor *x = mlc_add(mlc_reshape(y, mlc_dims4(n, 1, 1, 1)),
                            mlc_zeros(ctx, MLC_F32, mlc_dims4(1, 2, 6, 4)));
    mlc_tensor *t[2] = {x, mlc_cast(label, MLC_I64)};
    return mlc_dataset_tensors(ctx, t, 2);
}

TEST(loader, augmented_batches_do_not_depend_on_workers)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_augment_desc     desc = mlc_augment_desc_make();
    mlc_loader_from_desc from = mlc_loader_from_desc_make(7);
    desc.flip = 0.5;
    desc.pad = 1;
    desc.shift = 1;
    desc.rotate = 20;
    desc.noise = 0.1;
    desc.cutout = 2;
    from.shuffle = true;
    check_alike(ctx, mlc_dataset_augment(ctx, pictures(ctx, 40, 4), &desc), from);
}

/* Image r is r all over, so that a batch says what was mixed with what.                        */
static void check_mixed(mlc_ctx *ctx, double mixup, double cutmix)
{
    mlc_dataset         *d = pictures(ctx, 40, 5);
    mlc_mixup_desc       desc = mlc_mixup_desc_make(5);
    mlc_loader_from_desc from = mlc_loader_from_desc_make(8);
    mlc_collate          collate;
    double               sum = 0;
    int                  boxes = 0, batches = 0;
    desc.mixup = mixup;
    desc.cutmix = cutmix;
    CHECK_EQ(mlc_mixup(ctx, d, &desc, &collate), MLC_OK);
    from.collate = &collate;
    mlc_loader *l = mlc_loader_from(ctx, d, &from);
    for (int epoch = 0; epoch < 40; epoch++)
        for (mlc_batch b; mlc_loader_next(l, &b); batches++) {
            double x[8 * 48], y[8 * 5];
            bool   whole = true;
            CHECK(mlc_dim(b.y, 1) == 5 && b.y->dtype == MLC_F32);
            CHECK(test_read(b.x, x) && test_read(b.y, y));
            for (int r = 0; r < 8; r++) {
                const int own = (int)(b.index * 8) + r, other = (int)(b.index * 8) + (r + 7) % 8;
                double    mean = 0;
                for (int i = 0; i < 48; i++) {
                    mean += x[r * 48 + i] / 48;
                    whole = whole && (fabs(x[r * 48 + i] - own) < 1e-9 ||
                                  fabs(x[r * 48 + i] - other) < 1e-9);
                }
                const double lambda = (mean - other) / (own - other);
                CHECK_NEAR(y[r * 5 + own % 5], lambda, 1e-4);
                CHECK_NEAR(y[r * 5 + other % 5], 1 - lambda, 1e-4);
                sum += r ? 0 : lambda;
            }
            boxes += whole;
        }
    CHECK_EQ(batches, 200);
    if (cutmix <= 0)
        CHECK_NEAR(sum / 200, 0.5, 0.08);
    CHECK(mixup <= 0 ? boxes == 200 : cutmix <= 0 ? mixup < 1 || boxes < 5
                                                  : boxes > 60 && boxes < 140);
    mlc_loader_free(l);
    from.shuffle = true;
    check_alike(ctx, d, from);
}

TEST(loader, mixup_and_cutmix_mix_rows_and_labels_alike)
{
    mlc_ctx *ctx = test_ctx();
    check_mixed(ctx, 1, 0);
    check_mixed(ctx, 0.2, 0);
    check_mixed(ctx, 4, 0);
    check_mixed(ctx, 0, 1);
    check_mixed(ctx, 1, 1);
    CHECK_OK(ctx);
}

TEST(loader, mixup_refuses_what_it_cannot_mix_and_names_a_label)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_dataset   *d = pictures(ctx, 40, 5);
    mlc_mixup_desc desc = mlc_mixup_desc_make(4);
    mlc_collate    collate;
    mlc_batch      b;
    mlc_loader_from_desc from = mlc_loader_from_desc_make(8);
    CHECK_EQ(mlc_mixup(ctx, d, &desc, &collate), MLC_OK);
    from.collate = &collate;
    mlc_loader *l = mlc_loader_from(ctx, d, &from);
    CHECK(!mlc_loader_next(l, &b));
    CHECK_HAS(mlc_error(ctx), "batch 0: label 4 of row 4; classes are 0 to 3");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    mlc_loader_free(l);
    desc.x = 1;
    desc.y = 0;
    CHECK_EQ(mlc_mixup(ctx, d, &desc, &collate), MLC_ERR_DTYPE);
    mlc_error_clear(ctx);
    desc = mlc_mixup_desc_make(4);
    desc.mixup = 0;
    CHECK_EQ(mlc_mixup(ctx, d, &desc, &collate), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    desc.cutmix = -1;
    CHECK_EQ(mlc_mixup(ctx, d, &desc, &collate), MLC_ERR_ARG);
    mlc_error_clear(ctx);
    CHECK_EQ(mlc_mixup(ctx, d, NULL, &collate), MLC_ERR_ARG);
    mlc_error_clear(ctx);
}
