/* test_faults_data.c -- memory runs out in data, text, files */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "faults.h"

/* ---- data ----------------------------------------------------------------------------------- */

/* Two batches of two rows, summed.                                                             */
static mlc_status run_loader(world *w)
{
    mlc_tensor     *images = mlc_ones(w->ctx, MLC_F32, mlc_dims3(mlc_dim(w->labels, 0), 3, 3));
    mlc_loader_desc d = mlc_loader_desc_make(images, w->labels, 2);
    mlc_tensor     *sum = mlc_zeros(w->ctx, MLC_F32, mlc_dims0());
    mlc_batch       b;
    d.shuffle = true;
    d.shift = 1;
    w->loader = mlc_loader_create(w->ctx, &d);
    if (w->loader == NULL)
        return made(w, w->loader);
    while (mlc_loader_next(w->loader, &b))
        sum = mlc_add(sum, mlc_mul_scalar(mlc_sum(b.x, mlc_dims0(), false), (double)b.n));
    return keep(w, sum);
}

DO(mlc_loader_create) { return run_loader(w); }
DO(mlc_loader_next)   { return run_loader(w); }
DO(mlc_loader_shuffled)
{
    w->loader = mlc_loader_shuffled(w->ctx, w->x, NULL, 2);
    return made(w, w->loader);
}

DO(mlc_loader_seeded)
{
    w->loader = mlc_loader_seeded(w->ctx, w->x, NULL, 2, 7);
    return made(w, w->loader);
}

DO(mlc_loader_ordered)
{
    w->loader = mlc_loader_ordered(w->ctx, w->x, NULL, 2);
    return made(w, w->loader);
}

/* ---- datasets ------------------------------------------------------------------------------- */

/* Of the copies x and v beside labels: 3 samples of 2 fields.                                  */
static mlc_dataset *three(world *w)
{
    mlc_tensor *const t[2] = {w->x, w->labels};
    return mlc_dataset_tensors(w->ctx, t, 2);
}

/* The fields of sample 1; what was made goes with the scenario.                                */
static mlc_status see_sample(world *w, mlc_dataset *d)
{
    mlc_tensor *field[MLC_MAX_FIELDS];
    if (d == NULL)
        return made(w, d);
    if (w->n_sets < 4)
        w->sets[w->n_sets++] = d;
    const mlc_status st = mlc_dataset_get(w->ctx, d, 1, field);
    return st == MLC_OK ? keep(w, field[0]) : st;
}

static mlc_dataset *over(world *w, mlc_dataset *of)
{
    if (of != NULL && w->n_sets < 4)
        w->sets[w->n_sets++] = of;
    return of;
}

static mlc_status itself(void *user, mlc_sample *s, void *const *in, const int64_t *in_len)
{
    (void)user;
    (void)in_len;
    memcpy(s->dst[0], in[0], 16);
    memcpy(s->dst[1], in[1], 8);
    return MLC_OK;
}

DO(mlc_dataset_tensors) { return see_sample(w, three(w)); }
DO(mlc_dataset_get)     { return see_sample(w, three(w)); }
DO(mlc_dataset_field)
{
    mlc_dataset *d = over(w, three(w));
    return made(w, d ? mlc_dataset_field(w->ctx, d, 0) : NULL);
}

DO(mlc_dataset_create)
{
    mlc_dataset *d = over(w, three(w)), plain;
    if (d == NULL)
        return made(w, d);
    plain = *d;
    plain.release = NULL;
    return see_sample(w, mlc_dataset_create(w->ctx, &plain));
}

DO(mlc_dataset_subset)
{
    mlc_dataset *d = over(w, three(w));
    return d ? see_sample(w, mlc_dataset_subset(w->ctx, d, w->rows)) : made(w, d);
}

DO(mlc_dataset_split)
{
    static const double shares[2] = {0.6, 0.4};
    const mlc_split_rows_desc desc = mlc_split_rows_desc_make(shares, 2);
    mlc_dataset *d = over(w, three(w)), *parts[2];
    if (d == NULL)
        return made(w, d);
    const mlc_status st = mlc_dataset_split(w->ctx, d, &desc, parts);
    over(w, parts[1]);
    return st == MLC_OK ? see_sample(w, parts[0]) : st;
}

DO(mlc_dataset_k_fold)
{
    const mlc_k_fold_desc desc = mlc_k_fold_desc_make(3);
    mlc_dataset *d = over(w, three(w)), *train, *held;
    if (d == NULL)
        return made(w, d);
    const mlc_status st = mlc_dataset_k_fold(w->ctx, d, &desc, 0, &train, &held);
    over(w, held);
    return st == MLC_OK ? see_sample(w, train) : st;
}

DO(mlc_dataset_concat)
{
    mlc_dataset *d = over(w, three(w));
    const mlc_dataset *const both[2] = {d, d};
    return d ? see_sample(w, mlc_dataset_concat(w->ctx, both, 2)) : made(w, d);
}

DO(mlc_dataset_zip)
{
    mlc_dataset *d = over(w, three(w));
    const mlc_dataset *const both[2] = {d, d};
    return d ? see_sample(w, mlc_dataset_zip(w->ctx, both, 2)) : made(w, d);
}

DO(mlc_dataset_map)
{
    mlc_dataset  *d = over(w, three(w));
    mlc_transform map;
    memset(&map, 0, sizeof map);
    map.run = itself;
    return d ? see_sample(w, mlc_dataset_map(w->ctx, d, &map)) : made(w, d);
}

DO(mlc_dataset_cache)
{
    mlc_dataset *d = over(w, three(w));
    return d ? see_sample(w, mlc_dataset_cache(w->ctx, d, NULL)) : made(w, d);
}

DO(mlc_dataset_ragged)
{
    static const double length[2] = {1, 2};
    mlc_tensor *n = w->x ? test_tensor(w->ctx, MLC_I64, mlc_dims1(2), length) : NULL;
    return see_sample(w, mlc_dataset_ragged(w->ctx, w->x, n, n));
}

DO(mlc_dataset_labels)
{
    mlc_dataset *d = over(w, three(w));
    return d ? see_sample(w, mlc_dataset_labels(w->ctx, d, 1, 3)) : made(w, d);
}

DO(mlc_dataset_npy)   { return see_sample(w, mlc_dataset_npy(w->ctx, in(w, "in.npy"))); }
DO(mlc_dataset_npz)   { return see_sample(w, mlc_dataset_npz(w->ctx, in(w, "in.npz"), "one")); }
DO(mlc_dataset_idx)   { return see_sample(w, mlc_dataset_idx(w->ctx, in(w, "in.idx"))); }
DO(mlc_dataset_idx_images)
{
    return see_sample(w, mlc_dataset_idx_images(w->ctx, in(w, "in.images")));
}
DO(mlc_dataset_mnist)
{
    char images[340];
    snprintf(images, sizeof images, "%s", in(w, "in.images"));
    return see_sample(w, mlc_dataset_mnist(w->ctx, images, in(w, "in.labels"), 10));
}
DO(mlc_dataset_cifar)
{
    mlc_dataset *d = mlc_dataset_cifar(w->ctx, in(w, "in.cifar"), 10);
    return made(w, over(w, d));
}
DO(mlc_dataset_safetensors)
{
    return see_sample(w, mlc_dataset_safetensors(w->ctx, in(w, "in.safetensors"), "one"));
}

DO(mlc_dataset_tokens)
{
    const mlc_dataset_tokens_desc d = mlc_dataset_tokens_desc_make(MLC_TOKENS_I32, 4);
    return see_sample(w, mlc_dataset_tokens(w->ctx, in(w, "in.tokens"), &d));
}

DO(mlc_dataset_table)
{
    mlc_dataset_table_desc d = mlc_dataset_table_desc_make("colour");
    d.missing = MLC_MISSING_MEAN;
    w->table = mlc_table_load(w->ctx, in(w, "in.table"), NULL);
    return w->table ? see_sample(w, mlc_dataset_table(w->ctx, w->table, &d)) : made(w, w->table);
}

/* Of two PNG files of one pixel. */
DO(mlc_dataset_images)
{
    static const unsigned char png[] = {
        137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 1,
        0, 0, 0, 1, 8, 0, 0, 0, 0, 58, 126, 155, 85, 0, 0, 0, 10, 73, 68, 65,
        84, 120, 218, 99, 96, 7, 0, 0, 9, 0, 8, 141, 171, 185, 1, 0, 0, 0, 0, 73,
        69, 78, 68, 174, 66, 96, 130};
    char one[300], two[300];
    snprintf(one, sizeof one, "%.200s/one.png", w->files->dir);
    snprintf(two, sizeof two, "%.200s/two.png", w->files->dir);
    CHECK(put_file(one, png, sizeof png) && put_file(two, png, sizeof png));
    const mlc_status st = see_sample(w, mlc_dataset_images(w->ctx, w->files->dir, 3));
    unlink(one);
    unlink(two);
    return st;
}

DO(mlc_dataset_pnm) { return see_sample(w, mlc_dataset_pnm(w->ctx, w->files->dir)); }

/* x as 3 images, beside labels.                                                                */
static mlc_dataset *three_images(world *w)
{
    mlc_tensor *const t[2] = {mlc_reshape(w->x, mlc_dims3(3, 2, 2)), w->labels};
    return t[0] ? mlc_dataset_tensors(w->ctx, t, 2) : NULL;
}

DO(mlc_dataset_augment)
{
    mlc_dataset     *d = over(w, three_images(w));
    mlc_augment_desc desc = mlc_augment_desc_make();
    desc.shift = desc.noise = 1;
    return d ? see_sample(w, mlc_dataset_augment(w->ctx, d, &desc)) : made(w, d);
}

DO(mlc_mixup)
{
    mlc_dataset         *d = over(w, three_images(w));
    const mlc_mixup_desc desc = mlc_mixup_desc_make(3);
    mlc_loader_from_desc from = mlc_loader_from_desc_make(3);
    mlc_collate          collate;
    mlc_batch            b;
    if (d == NULL)
        return made(w, d);
    const mlc_status st = mlc_mixup(w->ctx, d, &desc, &collate);
    if (st != MLC_OK)
        return st;
    from.collate = &collate;
    w->loader = mlc_loader_from(w->ctx, d, &from);
    if (w->loader == NULL || !mlc_loader_next(w->loader, &b))
        return made(w, w->loader);
    return keep(w, mlc_copy(b.y));
}

/* Batches of 2 and 1 rows, drawn by labels.                                                    */
static mlc_status run_loader_from(world *w)
{
    mlc_dataset         *d = over(w, three(w));
    mlc_loader_from_desc desc = mlc_loader_from_desc_make(2);
    mlc_tensor          *sum = mlc_zeros(w->ctx, MLC_F32, mlc_dims0());
    mlc_batch            b;
    desc.labels = w->labels;
    desc.workers = 1;
    w->loader = d ? mlc_loader_from(w->ctx, d, &desc) : NULL;
    if (w->loader == NULL)
        return made(w, w->loader);
    mlc_loader_state at = mlc_loader_position(w->loader);
    at.batch = 1;
    CHECK_EQ(mlc_loader_seek(w->loader, &at), MLC_OK);
    while (mlc_loader_next(w->loader, &b))
        sum = mlc_add(sum, mlc_mul_scalar(mlc_sum(b.x, mlc_dims0(), false), (double)b.n));
    return keep(w, sum);
}

DO(mlc_loader_from)     { return run_loader_from(w); }
DO(mlc_loader_position) { return run_loader_from(w); }
DO(mlc_loader_seek)     { return run_loader_from(w); }

CASE(mlc_csv_load, mlc_csv_load(w->ctx, in(w, "in.csv"), NULL))
CASE(mlc_idx_load, mlc_idx_load(w->ctx, in(w, "in.idx")))

DO(mlc_csv_save)
{
    static const char *const names[3] = {"a", "b,c", "d"};
    return mlc_csv_save(w->w, to(w), names);
}

DO(mlc_idx_save) { return mlc_idx_save(w->w, to(w)); }

DO(mlc_cifar_load)
{
    mlc_tensor *labels = NULL, *x = mlc_cifar_load(w->ctx, in(w, "in.cifar"), 10, &labels);
    if (x == NULL)
        return made(w, x);
    return first_of(keep(w, x), keep(w, labels));
}

static mlc_status run_table(world *w)
{
    w->table = mlc_table_load(w->ctx, in(w, "in.table"), NULL);
    return made(w, w->table);
}

DO(mlc_table_load) { return run_table(w); }

/* The columns: whole numbers, numbers with a gap, text.                                        */
DO(mlc_table_column)
{
    mlc_status st = run_table(w);
    for (int64_t k = 0; k < 3 && st == MLC_OK; k++)
        st = keep(w, mlc_table_column(w->table, k));
    return st;
}

DO(mlc_table_missing)
{
    const mlc_status st = run_table(w);
    return st != MLC_OK ? st : keep(w, mlc_table_missing(w->table, 1));
}

DO(mlc_table_categories)
{
    const mlc_status st = run_table(w);
    if (st != MLC_OK)
        return st;
    const int64_t n = mlc_table_categories(w->table, 2);
    if (n > 0)
        CHECK_EQ(n, 2);
    return n > 0 ? MLC_OK : mlc_ctx_status(w->ctx);
}

DO(mlc_table_category)
{
    mlc_status  st = run_table(w);
    const char *text = st == MLC_OK ? mlc_table_category(w->table, 2, 1) : NULL;
    if (text)
        CHECK_STR(text, "red");
    return made(w, text);
}

/* ---- text ----------------------------------------------------------------------------------- */

static mlc_status run_bytes(world *w)
{
    static const char *const specials[1] = {"<end>"};
    mlc_tokenizer_desc       d = mlc_tokenizer_desc_make();
    d.specials = specials;
    d.n_specials = 1;
    w->tokenizer = mlc_tokenizer_bytes(w->ctx, &d);
    return made(w, w->tokenizer);
}

static mlc_status run_bpe(world *w)
{
    w->tokenizer = mlc_tokenizer_bpe(w->ctx, "tests/golden/text.vocab.json",
                                     "tests/golden/text.merges.txt", NULL);
    return made(w, w->tokenizer);
}

DO(mlc_tokenizer_bytes) { return run_bytes(w); }
DO(mlc_tokenizer_bpe)   { return run_bpe(w); }

DO(mlc_tokenizer_wordpiece)
{
    w->tokenizer = mlc_tokenizer_wordpiece(w->ctx, "tests/golden/text.vocab.txt", NULL);
    return made(w, w->tokenizer);
}

/* Room for a copy without invalid bytes, for a word, for a longer one.                         */
DO(mlc_tokenizer_encode)
{
    char       text[400];
    int64_t    ids[800], n = 0;
    mlc_status st = run_bpe(w);
    memset(text, 'e', sizeof text);
    text[1] = (char)0xFF;
    text[2] = ' ';
    for (size_t k = 10; k <= sizeof text && st == MLC_OK; k += 390) {
        n = mlc_tokenizer_encode(w->tokenizer, text, k, ids, 800);
        st = n < 0 ? mlc_ctx_status(w->ctx) : MLC_OK;
    }
    CHECK(n <= 800);
    for (int64_t i = 0; i < n && n <= 800; i++) w->text = w->text * 31 + (uint64_t)ids[i];
    return st;
}

DO(mlc_tokenizer_tensor)
{
    const mlc_status st = run_bytes(w);
    return st != MLC_OK ? st : keep(w, mlc_tokenizer_tensor(w->tokenizer, "ab<end>", 7));
}

/* Of the tokenizer alone: these take no memory.                                                */
DO(mlc_tokenizer_decode)
{
    const int64_t    ids[3] = {97, 256, 98};
    char             text[8];
    const mlc_status st = run_bytes(w);
    if (st != MLC_OK)
        return st;
    const int64_t calls = w->mem.calls;
    CHECK_EQ(mlc_tokenizer_decode(w->tokenizer, ids, 3, text, sizeof text), 2);
    CHECK_EQ(mlc_tokenizer_piece(w->tokenizer, 98, true, text, sizeof text), 1);
    CHECK_EQ(w->mem.calls, calls);
    return st;
}

/* ---- files ---------------------------------------------------------------------------------- */

static mlc_status keep_list(world *w, mlc_status st, const mlc_named *list, int64_t n)
{
    CHECK_EQ(list != NULL, st == MLC_OK);
    CHECK_EQ(n, st == MLC_OK ? 2 : 0);
    return st != MLC_OK ? st : first_of(keep(w, list[0].tensor), keep(w, list[1].tensor));
}

DO(mlc_safetensors_save)
{
    static const char *const metadata[] = {"key", "value", NULL};
    const mlc_named          list[2] = {{"one", w->w}, {"two \"q\"", w->mask}};
    return mlc_safetensors_save(w->ctx, to(w), list, 2, metadata);
}

DO(mlc_safetensors_load)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_safetensors_load(w->ctx, in(w, "in.safetensors"), &list, &n);
    return keep_list(w, st, list, n);
}

static mlc_status run_open(world *w)
{
    w->file = mlc_safetensors_open(w->ctx, in(w, "in.safetensors"));
    return made(w, w->file);
}

DO(mlc_safetensors_open) { return run_open(w); }

DO(mlc_safetensors_get)
{
    const mlc_status st = run_open(w);
    return st != MLC_OK ? st : keep(w, mlc_safetensors_get(w->file, "two"));
}

DO(mlc_safetensors_view)
{
    mlc_status st = run_open(w);
    if (st == MLC_OK)
        st = keep(w, mlc_safetensors_view(w->file, "one"));
    return st != MLC_OK ? st : keep(w, mlc_safetensors_view(w->file, "two"));
}

static const double     STEPS[2] = {1, 2};
static const mlc_plot_series LOSSES = {"loss", STEPS, STEPS, 2, MLC_PLOT_LINE};
static const mlc_plot   LOSS_CHART = {"loss", NULL, NULL, false, false, &LOSSES, 1};

DO(mlc_plot_write) { return mlc_plot_write(w->ctx, &LOSS_CHART, 1, 1, hash_text, w); }

static const mlc_terminal_desc TERMINAL = {40, 5, 16, true, true};

DO(mlc_plot_image) { return keep(w, mlc_plot_image(w->ctx, &LOSS_CHART, 1, 1, 1)); }

DO(mlc_plot_print) { return mlc_plot_print(w->ctx, &LOSS_CHART, 1, &TERMINAL, hash_text, w); }

DO(mlc_terminal_desc_make)
{
    mlc_terminal_desc d = mlc_terminal_desc_make(hash_text);
    d.width = 30;
    return mlc_plot_print(w->ctx, &LOSS_CHART, 1, &d, hash_text, w);
}

DO(mlc_plot_bins)
{
    double x[2], y[2];
    return mlc_plot_bins(w->ctx, STEPS, 2, 2, x, y);
}

DO(mlc_plot_save) { return mlc_plot_save(w->ctx, to(w), &LOSS_CHART, 1, 1); }

DO(mlc_sched_plot)
{
    const mlc_sched s = mlc_sched_cosine(10, 0.1);
    return mlc_sched_plot(w->ctx, &s, 12, to(w));
}

DO(mlc_npy_save) { return mlc_npy_save(w->w, to(w)); }

CASE(mlc_npy_load, mlc_npy_load(w->ctx, in(w, "in.npy")))
CASE(npy_load_by_columns, mlc_npy_load(w->ctx, in(w, "in.fortran")))

DO(mlc_npz_save)
{
    const mlc_named list[2] = {{"one", w->w}, {"two", w->mask}};
    return mlc_npz_save(w->ctx, to(w), list, 2);
}

DO(mlc_npz_load)
{
    const mlc_named *list = NULL;
    int64_t          n = 0;
    const mlc_status st = mlc_npz_load(w->ctx, in(w, "in.npz"), &list, &n);
    return keep_list(w, st, list, n);
}

DO(mlc_save) { return mlc_save(w->net, to(w)); }
DO(mlc_load) { return mlc_load(w->net, in(w, "net.safetensors")); }

DO(mlc_load_ex)
{
    const mlc_rename renames[1] = {{.from = "*", .to = "*"}};
    mlc_load_desc    d = mlc_load_desc_make();
    d.cast = d.partial = true;
    d.renames = renames;
    d.n_renames = 1;
    return mlc_load_ex(w->net, in(w, "net.safetensors"), &d);
}

/* Of 5 rows b has 4, as many as there are columns. */
DO(mlc_save_ex)
{
    const mlc_rename renames[2] = {{.from = "a", .to = "0.weight", .transpose = true, .parts = 2},
                                   {.from = "b", .to = "0.weight", .part = 1, .parts = 2,
                                    .like = "0.weight"}};
    mlc_save_desc    d = mlc_save_desc_make();
    d.renames = renames;
    d.n_renames = 2;
    return mlc_save_ex(w->net, to(w), &d);
}

static double one_at(void *user, int64_t t) { (void)user; (void)t; return 1; }

/* All are 1 at t = 0, or times what makes them so.                                             */
SCENARIO(schedules, true)
{
    static const int64_t starts[1] = {0};
    mlc_one_cycle_desc   one = mlc_one_cycle_desc_make(9);
    const mlc_cyclic_desc cyclic = mlc_cyclic_desc_make(3, 1);
    mlc_plateau          p = mlc_plateau_make();
    one.start = 1;
    const mlc_sched constant = mlc_sched_constant(1), all[] = {
        mlc_sched_step(3, 0.5), mlc_sched_multi_step(NULL, 0, 0.5), mlc_sched_exponential(0.5),
        mlc_sched_cosine(9, 0), mlc_sched_cosine_restarts(3, 2, 0), mlc_sched_polynomial(9, 2, 0),
        mlc_sched_linear(9, 1, 0), mlc_sched_wsd(1, 2, 3, 0, MLC_CURVE_SQRT),
        mlc_sched_noam(1, 1), mlc_sched_inverse_sqrt(1), mlc_sched_user(one_at, NULL),
        mlc_sched_one_cycle_ex(&one), mlc_sched_cyclic(3, 1), mlc_sched_cyclic_ex(&cyclic),
        mlc_sched_warmup(1, NULL), mlc_sched_sequence(&constant, starts, 1) };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK_NEAR(mlc_sched_at(&all[i], 0), 1, 1e-15);
    const mlc_sched cycle = mlc_sched_one_cycle(10);
    CHECK_NEAR(mlc_sched_at(&cycle, 2), 1, 0);
    CHECK_EQ(mlc_plateau_feed(&p, w->opt, 1), MLC_OK);
    return MLC_OK;
}

/* The state that there is, into the scenario's hash.                                           */
static mlc_status hash_optim(world *w)
{
    mlc_optim_state_iter it = mlc_optim_state_iter_make(w->opt);
    uint64_t             h = HASH_SEED;
    while (mlc_optim_state_next(&it))
        h = hash_tensor(hash_bytes(h, it.name, strlen(it.name)), it.tensor);
    w->text = h;
    return mlc_ctx_status(w->ctx);
}

DO(mlc_optim_state_iter_make) { return hash_optim(w); }
DO(mlc_optim_state_next)      { return hash_optim(w); }

DO(mlc_optim_save) { return mlc_optim_save(w->opt, to(w)); }
DO(mlc_optim_load)
{
    mlc_status st = mlc_optim_load(w->opt, in(w, "optim.safetensors"));
    return first_of(st, hash_optim(w));
}

DO(mlc_optim_load_ex)
{
    mlc_load_desc d = mlc_load_desc_make();
    d.partial = d.cast = true;
    return mlc_optim_load_ex(w->opt, in(w, "optim.safetensors"), &d);
}

DO(mlc_save_memory)
{
    size_t     n = 0;
    mlc_status st = mlc_save_memory(w->net, NULL, &n, NULL);
    if (st != MLC_OK) return st;
    unsigned char *file = (unsigned char *)malloc(n);
    st = mlc_save_memory(w->net, file, &n, NULL);
    if (st == MLC_OK) w->text = hash_bytes(HASH_SEED, file, n);
    free(file);
    return st;
}

/* What it copies: a mapping lasts as long as the context. test_mapped.c has those that bind. */
static mlc_status run_mapped(world *w)
{
    mlc_load_mapped_desc d = mlc_load_mapped_desc_make();
    d.least = 1 << 20;
    return mlc_ctx_on_host(w->ctx) ? mlc_load_mapped(w->net, in(w, "net.safetensors"), &d)
                                   : mlc_load(w->net, in(w, "net.safetensors"));
}

DO(mlc_load_mapped_desc_make) { return run_mapped(w); }
DO(mlc_load_mapped)           { return run_mapped(w); }

DO(mlc_load_memory)
{
    size_t         n;
    unsigned char *file = get_file(in(w, "net.safetensors"), &n);
    const mlc_status st = mlc_load_memory(w->net, file, n, NULL);
    free(file);
    return st;
}

/* Those that read what a load has made.                                                        */
DO(accessors)
{
    mlc_dtype  dtype = MLC_F32;
    mlc_dims   dims = mlc_dims0();
    mlc_status st = first_of(run_table(w), run_open(w));
    if (st != MLC_OK)
        return st;
    const int64_t calls = w->mem.calls;
    CHECK_EQ(mlc_table_rows(w->table), 3);
    CHECK_EQ(mlc_table_columns(w->table), 3);
    CHECK_STR(mlc_table_name(w->table, 2), "colour");
    CHECK_EQ(mlc_table_find(w->table, "colour"), 2);
    CHECK_EQ(mlc_table_type(w->table, 2), MLC_COLUMN_TEXT);
    CHECK_STR(mlc_table_text(w->table, 0, 2), "red");
    CHECK_EQ(mlc_safetensors_count(w->file), 2);
    CHECK_STR(mlc_safetensors_name(w->file, 1), "two");
    CHECK_EQ(mlc_safetensors_info(w->file, "two", &dtype, &dims), MLC_OK);
    CHECK_EQ(dtype, MLC_BOOL);
    CHECK(mlc_safetensors_metadata(w->file, "none") == NULL);
    CHECK_EQ(w->mem.calls, calls);
    return MLC_OK;
}
