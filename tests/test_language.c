/* test_language.c -- tests of sections IMPL.NN.LANGUAGE, IMPL.NN.CACHE and IMPL.NN.GENERATE
 *
 * A model's forward with a cache is compared with one without; generation with the logits of whole
 * forwards, and with filters written as one would on paper.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "hf.h"
#include "watch.h"
#include "golden/golden.h"

enum { VOCAB = 23, CONTEXT = 24, WIDTH = 16, HEADS = 4, BATCH = 2, T = 11 };

/* Positions as mlc_positions has them, then Llama's shape. */
enum { KINDS = MLC_POSITIONS_COUNT + 1 };

static mlc_nn_gpt_desc gpt_desc(int kind)
{
    mlc_nn_gpt_desc d = kind == MLC_POSITIONS_COUNT
                            ? mlc_nn_gpt_desc_llama(VOCAB, CONTEXT, 2, WIDTH, HEADS)
                            : mlc_nn_gpt_desc_make(VOCAB, CONTEXT, 2, WIDTH, HEADS);
    if (kind < MLC_POSITIONS_COUNT)
        d.positions = (mlc_positions)kind;
    d.layer.kv_heads = kind % 2 ? 2 : HEADS;
    d.layer.hidden = 20;
    return d;
}

static mlc_module *gpt_of(mlc_ctx *ctx, int kind)
{
    const mlc_nn_gpt_desc d = gpt_desc(kind);
    mlc_init_desc         normal = mlc_init_desc_make(MLC_INIT_NORMAL);
    mlc_module           *net = mlc_nn_gpt(ctx, &d);
    normal.b = 0.4;
    CHECK_EQ(mlc_module_init(net, "*weight", &normal), MLC_OK);
    mlc_module_train(net, false);
    return net;
}

static mlc_tensor *part(mlc_tensor *x, int64_t from, int64_t to)
{
    return mlc_slice(x, 1, from, to, 1);
}

static double apart(mlc_tensor *a, mlc_tensor *b)
{
    return a && b ? mlc_item(mlc_max(mlc_abs(mlc_sub(mlc_cast(a, MLC_F64), mlc_cast(b, MLC_F64))),
                                     mlc_dims0(), false)) : 1e9;
}

static mlc_ctx *ctx_of(mlc_isa isa, mlc_dtype dtype, int32_t threads)
{
    mlc_ctx_desc d = test_desc();
    d.isa = isa;
    d.dtype = dtype;
    if (threads)
        d.threads = threads;
    return test_own(mlc_ctx_create(&d));
}

/* ---- models ---------------------------------------------------------------------------------- */

TEST(language, children_have_names_that_files_know)
{
    static const char *const names[] = {"embed.weight", "positions.weight", "head.weight",
        "norm.bias", "layers.1.self_attn.in_proj_weight", "layers.0.linear2.bias"};
    static const char *const more[] = {"types.weight", "embed_norm.bias", "pooler.weight",
                                       "layers.1.norm2.weight"};
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_gpt_desc  d = gpt_desc(MLC_POSITIONS_LEARNED);
    mlc_nn_bert_desc e = mlc_nn_bert_desc_make(VOCAB, CONTEXT, 2, WIDTH, HEADS);
    mlc_module      *gpt = mlc_nn_gpt(ctx, &d), *bert = mlc_nn_bert(ctx, &e);
    for (int i = 0; i < 6; i++)
        CHECK(mlc_module_param(gpt, names[i]) != NULL);
    for (int i = 0; i < 4; i++)
        CHECK(mlc_module_param(bert, more[i]) != NULL);
    CHECK(mlc_module_param(gpt, "head.weight") == mlc_module_param(gpt, "embed.weight"));
    CHECK_NEAR(mlc_item(mlc_std(mlc_module_param(gpt, "layers.0.linear1.weight"), mlc_dims0(), 0,
                                false)), 0.02, 0.004);
    CHECK_NEAR(mlc_item(mlc_std(mlc_module_param(gpt, "layers.0.linear2.weight"), mlc_dims0(), 0,
                                false)), 0.01, 0.002);
    CHECK_OK(ctx);
}

/* Its loss falls, and no token sees those after it. */
TEST(language, a_gpt_learns_and_does_not_look_ahead)
{
    for (int kind = 0; kind < KINDS; kind++) {
        mlc_ctx    *ctx = test_ctx();
        mlc_module *net = gpt_of(ctx, kind);
        mlc_optim  *opt = mlc_adamw(net, 1e-2);
        double      first = 0, last = 0;
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(BATCH, T + 1), VOCAB, 1);
        mlc_tensor *y = mlc_forward(net, part(x, 0, T));
        mlc_tensor *other = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 5);
        mlc_tensor *in[2] = {part(x, 0, 6), part(other, 6, T)};
        CHECK(apart(part(y, 0, 6), part(mlc_forward(net, mlc_concat(in, 2, 1)), 0, 6)) < 1e-6);
        CHECK(apart(part(y, 6, T), part(mlc_forward(net, mlc_concat(in, 2, 1)), 6, T)) > 1e-3);
        for (int i = 0; i < 40; i++) {
            mlc_scope_begin(ctx);
            y = mlc_forward(net, part(x, 0, T));
            mlc_tensor *loss = mlc_cross_entropy(y, part(x, 1, T + 1));
            last = mlc_item(loss);
            first = i ? first : last;
            CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
            CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
        }
        if (!CHECK(last < 0.7 * first))
            printf("  positions %d: %g to %g\n", kind, first, last);
        CHECK_OK(ctx);
    }
}

/* Padding changes nothing, types and places do, and the pooler has the first token's features. */
TEST(language, bert_takes_types_and_lengths)
{
    mlc_ctx         *ctx = test_ctx();
    mlc_nn_bert_desc d = mlc_nn_bert_desc_make(VOCAB, CONTEXT, 2, WIDTH, HEADS);
    mlc_module      *net = mlc_nn_bert(ctx, &d);
    const double     n[2] = {T, 7};
    mlc_tensor      *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1);
    mlc_tensor      *types = mlc_zeros(ctx, MLC_I64, mlc_dims2(BATCH, T));
    mlc_tensor      *in[3] = {x, types, test_tensor(ctx, MLC_I64, mlc_dims1(2), n)};
    mlc_tensor      *out[2], *alone, *second = mlc_slice(x, 0, 1, 2, 1);
    mlc_module_train(net, false);
    CHECK_EQ(mlc_module_forward(net, in, 3, out, 2), MLC_OK);
    alone = mlc_forward(net, part(second, 0, 7));
    CHECK(apart(part(mlc_slice(out[0], 0, 1, 2, 1), 0, 7), alone) < 1e-5);
    CHECK(apart(mlc_forward(net, x), out[0]) > 1e-4);
    in[1] = mlc_ones(ctx, MLC_I64, mlc_dims2(BATCH, T));
    CHECK_EQ(mlc_module_forward(net, in, 2, &alone, 1), MLC_OK);
    CHECK(apart(alone, mlc_forward(net, x)) > 1e-4);
    mlc_module *pooler = mlc_module_find(net, "pooler");
    mlc_tensor *first = mlc_reshape(part(out[0], 0, 1), mlc_dims2(BATCH, WIDTH));
    CHECK(apart(out[1], mlc_tanh(mlc_forward(pooler, first))) < 1e-6);
    CHECK_OK(ctx);
}

/* A vision transformer is an encoder over patches: a convolution, places, layers, a mean. */
TEST(language, an_encoder_sees_patches)
{
    mlc_ctx                *ctx = test_ctx();
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(WIDTH, HEADS);
    d.hidden = 32;
    d.dropout = 0;
    d.norm_first = d.final_norm = true;
    mlc_module *patches = mlc_nn_conv2d(ctx, 3, WIDTH, 4, 4, 0);
    mlc_module *places = mlc_nn_embedding(ctx, 9, WIDTH);
    mlc_module *layers = mlc_nn_transformer_encoder(ctx, &d, 2);
    mlc_module *head = mlc_nn_linear(ctx, WIDTH, 4);
    mlc_module *all = mlc_nn_sequential(ctx), *part_of[] = {patches, places, layers, head};
    for (int i = 0; i < 4; i++)
        CHECK_EQ(mlc_module_add(all, part_of[i]), MLC_OK);
    mlc_optim    *opt = mlc_adamw(all, 3e-3);
    const double  labels[4] = {0, 1, 2, 3};
    double        first = 0, last = 0;
    mlc_tensor   *x = test_rand(ctx, MLC_F32, mlc_dims4(4, 3, 12, 12), 1, -1, 1);
    mlc_tensor   *y = test_tensor(ctx, MLC_I64, mlc_dims1(4), labels);
    for (int i = 0; i < 30; i++) {
        mlc_scope_begin(ctx);
        mlc_tensor *h = mlc_reshape(mlc_forward(patches, x), mlc_dims3(4, WIDTH, 9));
        h = mlc_add(mlc_transpose(h, 1, 2), mlc_forward(places, mlc_arange(ctx, MLC_I64, 0, 9, 1)));
        h = mlc_mean(mlc_forward(layers, h), mlc_dims1(1), false);
        mlc_tensor *loss = mlc_cross_entropy(mlc_forward(head, h), y);
        last = mlc_item(loss);
        first = i ? first : last;
        CHECK_EQ(mlc_optim_minimize(opt, loss), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    if (!CHECK(last < 0.2 * first))
        printf("  %g to %g\n", first, last);
    CHECK_OK(ctx);
}

/* ---- caches ---------------------------------------------------------------------------------- */

/* Prefill and steps of some tokens give what one forward gives. */
static void check_cached(mlc_ctx *ctx, int kind, mlc_dtype dtype, double tolerance)
{
    static const int64_t steps[] = {4, 1, 1, 3, 2};
    mlc_module    *net = gpt_of(ctx, kind);
    mlc_cache_desc d = mlc_cache_desc_make(BATCH, T);
    d.has_dtype = true;
    d.dtype = dtype;
    mlc_cache  *c = mlc_cache_create(net, &d);
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1), *y = mlc_forward(net, x);
    int64_t     at = 0;
    for (int i = 0; i < 5; at += steps[i++]) {
        mlc_tensor  *got = mlc_forward_cached(net, part(x, at, at + steps[i]), c);
        const double far = apart(got, part(y, at, at + steps[i]));
        if (!CHECK(far <= tolerance))
            printf("  positions %d, from %d: %g, %s\n", kind, (int)at, far, mlc_error(ctx));
    }
    CHECK_EQ(mlc_cache_length(c), T);
    CHECK_EQ(mlc_cache_reset(c, 6), MLC_OK);
    CHECK(apart(mlc_forward_cached(net, part(x, 6, 9), c), part(y, 6, 9)) <= tolerance);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(language, a_cache_gives_what_a_whole_forward_gives)
{
    FOR_EACH_LEVEL(isa) {
        for (int kind = 0; kind < KINDS; kind++) {
            check_cached(ctx_of((mlc_isa)isa, MLC_F64, 0), kind, MLC_F64,
                         test_on_card() ? 1e-13 : 0.0);
            check_cached(ctx_of((mlc_isa)isa, MLC_F32, 0), kind, MLC_F32, 2e-5);
            check_cached(ctx_of((mlc_isa)isa, MLC_F32, 0), kind, MLC_BF16, 0.2);
        }
    }
}

/* The second sequence is 4 shorter: it gives what it gives alone. */
TEST(language, prompts_of_different_lengths_end_together)
{
    static const int64_t padding[] = {0, 4}, back[] = {1, 0};
    for (int kind = 0; kind < KINDS; kind++) {
        mlc_ctx             *ctx = test_ctx();
        mlc_module          *net = gpt_of(ctx, kind);
        const mlc_cache_desc d = mlc_cache_desc_make(BATCH, CONTEXT);
        mlc_cache           *c = mlc_cache_create(net, &d);
        mlc_tensor          *x = test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1);
        mlc_tensor          *one = mlc_slice(x, 0, 1, 2, 1);
        mlc_tensor          *want = mlc_forward(net, part(one, 4, T)), *all = mlc_forward(net, x);
        mlc_tensor          *swap[2] = {one, mlc_slice(x, 0, 0, 1, 1)}, *y, *z;
        CHECK_EQ(mlc_cache_padding(c, padding, 2), MLC_OK);
        y = mlc_forward_cached(net, part(x, 0, 8), c);
        CHECK(apart(part(mlc_slice(y, 0, 1, 2, 1), 4, 8), part(want, 0, 4)) < 2e-5);
        CHECK_EQ(mlc_cache_select(c, back, 2), MLC_OK);
        z = mlc_forward_cached(net, part(mlc_concat(swap, 2, 0), 8, T), c);
        CHECK(apart(mlc_slice(z, 0, 0, 1, 1), part(want, 4, 7)) < 2e-5);
        CHECK(apart(mlc_slice(z, 0, 1, 2, 1), part(mlc_slice(all, 0, 0, 1, 1), 8, T)) < 2e-5);
        mlc_cache_free(c);
        CHECK_OK(ctx);
    }
}

/* Memory is refused at each allocation in turn. */
TEST(language, padding_that_fails_leaves_the_padding_that_there_was)
{
    static const int64_t padding[] = {0, 4}, other[] = {1}, second[] = {1};
    tally                m;
    const mlc_ctx_desc   how = tally_desc(&m);
    mlc_ctx             *ctx = mlc_ctx_create(&how);
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_ROTARY);
    const mlc_cache_desc d = mlc_cache_desc_make(2, 4000);
    mlc_cache           *c = mlc_cache_create(net, &d);
    double               want[2 * 8 * VOCAB], got[2 * 8 * VOCAB];
    int64_t              refused = -1;           /* the first time nothing is to be refused      */
    for (bool again = true; again; refused++) {
        mlc_scope_begin(ctx);
        CHECK_EQ(mlc_cache_padding(c, padding, 2), MLC_OK);
        mlc_memory_trim(ctx);
        m.calls = 0;
        m.fail_at = refused + 1;
        again = refused < 0 || mlc_cache_padding(c, other, 1) != MLC_OK;
        m.fail_at = 0;
        if (refused >= 0 && again) CHECK_ERROR(ctx, MLC_ERR_NOMEM, "");
        if (again) {
            mlc_tensor *x = test_tokens(ctx, mlc_dims2(2, 8), VOCAB, 1);
            test_read(mlc_forward_cached(net, x, c), refused < 0 ? want : got);
            if (refused >= 0) CHECK(memcmp(got, want, sizeof got) == 0);
            CHECK_EQ(mlc_cache_select(c, second, 1), MLC_OK);
        }
        mlc_cache_reset(c, 0);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    if (test_on_host()) CHECK(refused > 1);
    mlc_cache_free(c);
    tally_done(&m, ctx);
}

/* One sequence is read and taken twice. */
TEST(language, a_prompt_is_read_once_for_many)
{
    static const int64_t twice[] = {0, 0};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_LEARNED);
    const mlc_cache_desc d = mlc_cache_desc_make(BATCH, T);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_tensor          *x = mlc_slice(test_tokens(ctx, mlc_dims2(BATCH, T), VOCAB, 1), 0, 0, 1, 1);
    mlc_tensor          *y = mlc_forward(net, x);
    CHECK(apart(mlc_forward_cached(net, part(x, 0, 8), c), part(y, 0, 8)) < 2e-5);
    CHECK_EQ(mlc_cache_select(c, twice, 2), MLC_OK);
    mlc_tensor *z = mlc_forward_cached(net, mlc_expand(part(x, 8, T), mlc_dims2(2, 3)), c);
    for (int64_t i = 0; i < 2; i++)
        CHECK(apart(mlc_slice(z, 0, i, i + 1, 1), part(y, 8, T)) < 2e-5);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(language, bytes_of_a_cache_are_known_before)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_module     *net = gpt_of(ctx, 1);
    mlc_cache_desc  d = mlc_cache_desc_make(3, 50);
    mlc_memory      before, after;
    CHECK_EQ(mlc_cache_bytes(net, &d), 2 * 2 * 3 * 50 * 8 * 4 + 3 * 50 * 4);
    d.has_dtype = true;
    d.dtype = MLC_BF16;
    CHECK_EQ(mlc_cache_bytes(net, &d), 2 * 2 * 3 * 50 * 8 * 2 + 3 * 50 * 4);
    mlc_memory_info(ctx, &before);
    mlc_cache *c = mlc_cache_create(net, &d);
    mlc_memory_info(ctx, &after);
    CHECK(after.allocated - before.allocated >= mlc_cache_bytes(net, &d));
    CHECK(after.allocated - before.allocated < mlc_cache_bytes(net, &d) + 4096);
    mlc_cache_free(c);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    CHECK_OK(ctx);
}

/* ---- generation ------------------------------------------------------------------------------ */

typedef struct heard {
    int64_t  n, stop_at, calls, most_calls, tokens[CONTEXT];
    mlc_ctx *ctx;
} heard;

static bool hear(void *user, int64_t step, const int64_t *tokens, int64_t n)
{
    heard     *h = (heard *)user;
    mlc_memory info;
    mlc_memory_info(h->ctx, &info);
    if (step == 1)
        h->calls = info.calls;
    h->most_calls = info.calls - h->calls;
    CHECK_EQ(step, h->n);
    CHECK(n >= 1);
    h->tokens[h->n++] = tokens[0];
    return h->n != h->stop_at;
}

/* Largest of the last place's logits. */
static int64_t best_next(mlc_module *net, const int64_t *text, int64_t n)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    mlc_tensor *y = mlc_forward(net, mlc_from(ctx, MLC_I64, mlc_dims2(1, n), text));
    return (int64_t)mlc_item(mlc_argmax(part(y, n - 1, n), 2, false));
}

/* After the first step no allocation is made.                                                   */
TEST(language, greedy_text_is_that_of_whole_forwards)
{
    for (int kind = 0; kind < KINDS; kind++) {
        mlc_ctx             *ctx = test_ctx();
        mlc_module          *net = gpt_of(ctx, kind);
        const mlc_cache_desc d = mlc_cache_desc_make(1, CONTEXT);
        mlc_cache           *c = mlc_cache_create(net, &d);
        mlc_generate_desc    g = mlc_generate_desc_make(12);
        int64_t              text[CONTEXT] = {3, 1, 4}, out[12];
        heard                h = {0, 0, 0, 0, {0}, ctx};
        g.temperature = 0;
        g.out = out;
        mlc_tensor *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(1, 3), text);
        CHECK_EQ(mlc_generate(net, c, prompt, &g, hear, &h), MLC_OK);
        CHECK_EQ(h.n, 12);
        CHECK_EQ(mlc_cache_length(c), 3 + 11);
        for (int i = 0; i < 12; i++) {
            CHECK_EQ(out[i], best_next(net, text, 3 + i));
            CHECK_EQ(out[i], h.tokens[i]);
            text[3 + i] = out[i];
        }
        /* The plain kernel's scores, of which there are as many as keys, are workspace. */
        if (test_cpu_kernels() && mlc_ctx_isa(ctx) != MLC_ISA_SCALAR)
            CHECK_EQ(h.most_calls, 0);
        mlc_cache_free(c);
        CHECK_OK(ctx);
    }
}

/* Of logits in falling order what filters leave, as a share of 1 each; the rest is 0. */
static void filter(const mlc_generate_desc *d, const double *x, double *p)
{
    double  sum = 0, left = 0;
    int64_t order[VOCAB], n = d->top_k ? d->top_k : VOCAB, kept = 0;
    for (int64_t i = 0; i < VOCAB; i++) {
        int64_t k = i;
        for (; k > 0 && x[order[k - 1]] < x[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
        p[i] = 0;
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp((x[order[i]] - x[order[0]]) / d->temperature);
    for (; kept < n && (kept == 0 || left < d->top_p * sum); kept++) {
        const double e = exp((x[order[kept]] - x[order[0]]) / d->temperature);
        if (e < d->min_p)
            break;
        p[order[kept]] = e;
        left += e;
    }
    for (int64_t i = 0; i < VOCAB; i++)
        p[i] /= left;
}

static bool count_first(void *user, int64_t step, const int64_t *tokens, int64_t n)
{
    int64_t *times = (int64_t *)user;
    (void)step;
    for (int64_t i = 0; i < n; i++)
        times[tokens[i]]++;
    return false;
}

/* Frequencies of 2,000 draws of the first token, by filters. */
TEST(language, draws_follow_the_filters)
{
    static const double filters[][4] = {                   /* temperature, k, p, min_p */
        {1, 0, 1, 0}, {0.7, 0, 1, 0}, {1, 5, 1, 0}, {1.5, 0, 0.6, 0}, {1.2, 0, 1, 0.2},
        {2, 9, 0.8, 0.1}, {3, 1, 1, 0}};
    enum { DRAWS = 2000 };
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_ROTARY);
    const mlc_cache_desc d = mlc_cache_desc_make(1, 4);
    mlc_cache           *c = mlc_cache_create(net, &d);
    static const int64_t text[] = {5, 2, 9};
    mlc_tensor          *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(1, 3), text);
    double               x[VOCAB], p[VOCAB];
    test_read(mlc_cast(part(mlc_forward(net, prompt), 2, 3), MLC_F64), x);
    const int draws = test_cpu_kernels() ? DRAWS : 50;
    for (int f = 0; f < (test_cpu_kernels() ? 7 : 1); f++) {
        int64_t           times[VOCAB] = {0};
        mlc_generate_desc g = mlc_generate_desc_make(1);
        g.temperature = filters[f][0];
        g.top_k = (int64_t)filters[f][1];
        g.top_p = filters[f][2];
        g.min_p = filters[f][3];
        filter(&g, x, p);
        for (int i = 0; i < draws; i++) {
            g.seed = (uint64_t)i;
            mlc_cache_reset(c, 0);
            CHECK_EQ(mlc_generate(net, c, prompt, &g, count_first, times), MLC_OK);
        }
        for (int i = 0; i < VOCAB; i++) {
            const double far = (double)times[i] / draws - p[i];
            if (!CHECK(p[i] > 0 ? fabs(far) < 4.5 * sqrt(p[i] / draws) : times[i] == 0))
                printf("  filters %d, token %d: %d of %d, want %g\n", f, i, (int)times[i], draws,
                       p[i]);
        }
    }
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* A prompt that is read in parts, by a forward or by a generation before, in rows that are selected
 * later, gives the text of one that is read at once; so does one with padding. */
static void check_parts(mlc_ctx *ctx, mlc_module *net, const int64_t *padding)
{
    static const int64_t text[] = {7, 2, 9, 4, 3, 5, 11, 5, 2, 1, 7, 7}, swap[] = {1, 0};
    const mlc_cache_desc d = mlc_cache_desc_make(2, CONTEXT);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_generate_desc    g = mlc_generate_desc_make(8), one = mlc_generate_desc_make(1);
    int64_t              want[16], out[16];
    mlc_tensor          *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(2, 6), text);
    mlc_tensor          *turned = mlc_flip(prompt, mlc_dims1(0));
    g.temperature = one.temperature = 0;
    g.repetition = 5;
    g.padding = padding;
    g.out = want;
    CHECK_EQ(mlc_generate(net, c, prompt, &g, NULL, NULL), MLC_OK);
    g.padding = NULL;
    g.out = out;
    for (int way = 0; way < 3; way++) {
        mlc_tensor *x = way == 2 ? turned : prompt;
        mlc_cache_reset(c, 0);
        const int64_t turned_padding[2] = {padding ? padding[1] : 0, padding ? padding[0] : 0};
        if (padding) CHECK_EQ(mlc_cache_padding(c, way == 2 ? turned_padding : padding, 2), MLC_OK);
        if (way == 1) CHECK_EQ(mlc_generate(net, c, part(x, 0, 4), &one, NULL, NULL), MLC_OK);
        else CHECK(mlc_forward_cached(net, part(x, 0, 4), c) != NULL);
        if (way == 2) CHECK_EQ(mlc_cache_select(c, swap, 2), MLC_OK);
        CHECK_EQ(mlc_generate(net, c, part(prompt, 4, 6), &g, NULL, NULL), MLC_OK);
        if (!CHECK(memcmp(out, want, sizeof out) == 0)) printf("  way %d\n", way);
    }
    mlc_cache_free(c);
}

/* A stream without places, read at once and by 7 tokens: also the first ones count. */
static void check_stream(mlc_ctx *ctx, mlc_module *net)
{
    enum { LONG = 210 };
    const mlc_cache_desc d = mlc_cache_desc_make(2, 0);
    int64_t              text[2 * LONG], out[2][16];
    for (int i = 0; i < 2 * LONG; i++) text[i] = i % LONG < 9 ? i % LONG : 9 + i * i % 11;
    mlc_tensor *x = mlc_from(ctx, MLC_I64, mlc_dims2(2, LONG), text);
    for (int way = 0; way < 2; way++) {
        mlc_cache        *c = mlc_cache_create(net, &d);
        mlc_generate_desc g = mlc_generate_desc_make(8);
        g.temperature = 0;
        g.repetition = 1e9;
        g.out = out[way];
        if (!test_on_host()) {         /* its forwards are noted from the first repetition on */
            CHECK_EQ(mlc_generate(net, c, part(x, 0, 1), &g, NULL, NULL), MLC_OK);
            CHECK_EQ(mlc_cache_reset(c, 0), MLC_OK);
        }
        for (int k = 0; k + 7 < LONG && way; k += 7)
            CHECK(mlc_forward_cached(net, part(x, k, k + 7), c) != NULL);
        CHECK_EQ(mlc_generate(net, c, way ? part(x, LONG - 7, LONG) : x, &g, NULL, NULL), MLC_OK);
        mlc_cache_free(c);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    for (int i = 0; i < 2; i++) CHECK(out[1][8 * i] >= 20);            /* of three that are new  */
}

TEST(language, tokens_that_a_cache_has_read_before_count_as_repeated)
{
    static const int64_t padding[] = {2, 0};
    mlc_ctx    *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64, 0);
    mlc_module *gpt = gpt_of(ctx, MLC_POSITIONS_ROTARY);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, VOCAB, 8), mlc_nn_gru(ctx, 8, 12),
                                     mlc_nn_linear(ctx, 12, VOCAB));
    check_parts(ctx, gpt, NULL);
    check_parts(ctx, gpt, padding);
    check_parts(ctx, net, NULL);
    check_parts(ctx, net, padding);
    check_stream(ctx, net);
    CHECK_OK(ctx);
}

static bool three_steps(void *user, int64_t step, const int64_t *tokens, int64_t n)
{
    (void)user;
    (void)tokens;
    (void)n;
    return step < 2;
}

TEST(language, a_stream_asks_for_no_memory_for_tokens_to_come)
{
    static const int64_t text[] = {1, 2, 3, 4};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *last = mlc_nn_linear(ctx, 12, VOCAB);
    mlc_module          *net = MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, VOCAB, 8),
                                              mlc_nn_gru(ctx, 8, 12), last);
    const mlc_cache_desc d = mlc_cache_desc_make(2, 0);
    for (int i = 0; i < 4; i++) {
        mlc_generate_desc g = mlc_generate_desc_make(i % 2 ? INT64_C(1) << 34 : INT64_C(1) << 60);
        mlc_cache        *c = mlc_cache_create(net, &d);
        mlc_tensor       *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(2, 2), text);
        if (i > 1) g.repetition = 2;
        CHECK_EQ(mlc_generate(net, c, prompt, &g, three_steps, NULL), MLC_OK);
        CHECK_EQ(mlc_cache_length(c), 4);
        mlc_cache_free(c);
        CHECK_OK(ctx);
    }
}

/* Each token of a vocabulary takes a bit, however long the stream is. What a context keeps of the
 * steps of a device without a kernel for them is there after the first cache. */
TEST(language, tokens_of_a_stream_do_not_stay)
{
    enum { LONG = 20000 };
    static int64_t       text[LONG];
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, VOCAB, 4),
                                              mlc_nn_gru(ctx, 4, 4));
    const mlc_cache_desc d = mlc_cache_desc_make(1, 0);
    const int64_t        n = test_cpu_kernels() ? LONG : LONG / 10;
    mlc_memory           before, after;
    mlc_module_build(net);
    for (int i = 0; i < 2; i++) {
        mlc_cache *c = mlc_cache_create(net, &d);
        mlc_memory_trim(ctx);
        mlc_memory_info(ctx, &before);
        mlc_scope_begin(ctx);
        CHECK(mlc_forward_cached(net, mlc_from(ctx, MLC_I64, mlc_dims2(1, n), text), c) != NULL);
        mlc_scope_end(ctx);
        mlc_memory_trim(ctx);
        mlc_memory_info(ctx, &after);
        CHECK((i == 0 && !test_cpu_kernels()) || after.allocated - before.allocated < 4096);
        mlc_cache_free(c);
    }
    CHECK_OK(ctx);
}

/* A first step that fails, here by a logit that is no number, leaves no tokens in the cache. */
TEST(language, a_prompt_that_failed_is_not_repeated)
{
    static const int64_t text[] = {1, 2, 3, 4, 5};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *last = mlc_nn_linear(ctx, 12, VOCAB);
    mlc_module          *net = MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, VOCAB, 8),
                                              mlc_nn_gru(ctx, 8, 12), last);
    const mlc_cache_desc d = mlc_cache_desc_make(1, 0);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_generate_desc    g = mlc_generate_desc_make(8);
    int64_t              want[8], out[8];
    g.temperature = 0;
    g.repetition = 1e9;
    for (int way = test_on_host() ? 0 : -1; way < 2; way++) { /* -1: forwards are noted from here */
        g.out = way == 1 ? out : want;
        mlc_cache_reset(c, 0);
        CHECK(mlc_forward_cached(net, mlc_from(ctx, MLC_I64, mlc_dims2(1, 1), text), c) != NULL);
        mlc_tensor *bias = mlc_module_param(last, "bias");
        float       was[VOCAB], none[VOCAB];
        for (int i = 0; i < VOCAB; i++) none[i] = NAN;
        CHECK_EQ(mlc_read(bias, was, sizeof was), MLC_OK);
        if (way == 1) {
            mlc_tensor *bad = mlc_from(ctx, MLC_I64, mlc_dims2(1, 3), text + 2);
            CHECK_EQ(mlc_write(bias, none, sizeof none), MLC_OK);
            CHECK_EQ(mlc_generate(net, c, bad, &g, NULL, NULL), MLC_ERR_VALUE);
            mlc_error_clear(ctx);
            CHECK_EQ(mlc_write(bias, was, sizeof was), MLC_OK);
        }
        mlc_tensor *good = mlc_from(ctx, MLC_I64, mlc_dims2(1, 1), text + 1);
        CHECK_EQ(mlc_generate(net, c, good, &g, NULL, NULL), MLC_OK);
    }
    CHECK(memcmp(out, want, sizeof out) == 0);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* The same of beams, whose search ends at the first forward. */
TEST(language, a_prompt_that_failed_in_a_beam_search_is_not_in_the_cache)
{
    static const int64_t text[] = {1, 2, 3, 4, 5};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *last = mlc_nn_linear(ctx, 12, VOCAB);
    mlc_module          *net = MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, VOCAB, 8),
                                              mlc_nn_gru(ctx, 8, 12), last);
    const mlc_cache_desc d = mlc_cache_desc_make(2, 0);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_beam_desc        b = mlc_beam_desc_make(3, 2);
    mlc_tensor          *bias = mlc_module_param(last, "bias");
    mlc_tensor          *one = mlc_from(ctx, MLC_I64, mlc_dims2(1, 1), text);
    mlc_tensor          *more = mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), text + 1);
    float                was[VOCAB], none[VOCAB];
    for (int i = 0; i < VOCAB; i++) none[i] = NAN;
    CHECK_EQ(mlc_read(bias, was, sizeof was), MLC_OK);
    CHECK(mlc_forward_cached(net, one, c) != NULL);
    mlc_tensor *want = mlc_forward_cached(net, more, c);
    mlc_cache_reset(c, 0);
    CHECK(mlc_forward_cached(net, one, c) != NULL);
    CHECK_EQ(mlc_write(bias, none, sizeof none), MLC_OK);
    CHECK_EQ(mlc_beam_search(net, c, more, &b, NULL, NULL), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "step 0");
    CHECK_EQ(mlc_write(bias, was, sizeof was), MLC_OK);
    CHECK_EQ(mlc_cache_length(c), 1);
    CHECK(apart(mlc_forward_cached(net, more, c), want) == 0);
    static const int64_t padding[] = {1}, wrong[] = {99, 99};
    mlc_cache_reset(c, 0);
    b.padding = padding;
    CHECK_EQ(mlc_beam_search(net, c, mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), wrong), &b, NULL,
                             NULL), MLC_ERR_VALUE);
    mlc_error_clear(ctx);
    CHECK(mlc_forward_cached(net, mlc_from(ctx, MLC_I64, mlc_dims2(2, 2), text), c) != NULL);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* Two prompts of different lengths, drawn: each as alone, on any number of threads. */
TEST(language, a_seed_gives_the_same_text_on_any_number_of_threads)
{
    static const int64_t text[] = {5, 2, 9, 4, 0, 0, 7, 7}, padding[] = {0, 2};
    int64_t first[2 * 8], out[2 * 8];
    for (int32_t threads = 1; threads <= 3; threads++) {
        mlc_ctx             *ctx = ctx_of(MLC_ISA_AUTO, MLC_F32, threads);
        mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_LEARNED);
        const mlc_cache_desc d = mlc_cache_desc_make(2, CONTEXT);
        mlc_cache           *c = mlc_cache_create(net, &d);
        mlc_generate_desc    g = mlc_generate_desc_make(8);
        g.seed = 7;
        g.top_k = 6;
        g.repetition = 1.3;
        g.padding = padding;
        g.out = threads == 1 ? first : out;
        mlc_tensor *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(2, 4), text);
        CHECK_EQ(mlc_generate(net, c, prompt, &g, NULL, NULL), MLC_OK);
        if (threads > 1)
            CHECK(memcmp(first, out, sizeof out) == 0);
        mlc_cache_free(c);
        CHECK_OK(ctx);
    }
}

TEST(language, stop_tokens_and_callbacks_end_a_text)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_LEARNED);
    const mlc_cache_desc d = mlc_cache_desc_make(2, CONTEXT);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_generate_desc    g = mlc_generate_desc_make(6);
    static const int64_t text[] = {3, 1, 4, 1, 5, 9};
    int64_t              out[12], cut[12];
    heard                h = {0, 2, 0, 0, {0}, ctx};
    mlc_tensor          *prompt = mlc_from(ctx, MLC_I64, mlc_dims2(2, 3), text);
    g.temperature = 0;
    g.out = out;
    CHECK_EQ(mlc_generate(net, c, prompt, &g, NULL, NULL), MLC_OK);
    mlc_cache_reset(c, 0);
    g.out = cut;
    g.stop = &out[2];
    g.n_stop = 1;
    CHECK_EQ(mlc_generate(net, c, prompt, &g, NULL, NULL), MLC_OK);
    int end = 0;
    while (out[end] != out[2])
        end++;
    for (int i = 0; i < 6; i++)
        CHECK_EQ(cut[i], i <= end ? out[i] : -1);
    mlc_cache_reset(c, 0);
    g.stop = NULL, g.n_stop = 0;
    CHECK_EQ(mlc_generate(net, c, prompt, &g, hear, &h), MLC_OK);
    CHECK_EQ(h.n, 2);
    CHECK_EQ(cut[2], -1);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* ---- beams of small vocabularies ------------------------------------------------------------- */

enum { FEW = 12, NEW = 3 };

typedef struct plain_text { int64_t t[2 + NEW]; double score; } plain_text;

static int by_score(const void *a, const void *b)
{
    const double x = ((const plain_text *)a)->score, y = ((const plain_text *)b)->score;
    return (x < y) - (x > y);
}

/* Texts of one more token than `from`, n tokens long, behind those that there are. */
static int plain_branches(mlc_module *net, const plain_text *from, int n, int vocab, plain_text *to)
{
    mlc_ctx    *ctx = mlc_module_ctx(net);
    double      x[FEW], sum = 0;
    mlc_tensor *y = mlc_forward(net, mlc_from(ctx, MLC_I64, mlc_dims2(1, n), from->t));
    test_read(part(y, n - 1, n), x);
    for (int i = 0; i < vocab; i++) sum += exp(x[i]);
    for (int i = 0; i < vocab; i++) {
        to[i] = *from;
        to[i].t[n] = i;
        to[i].score += x[i] - log(sum);
    }
    return vocab;
}

/* The best text of NEW tokens, or up to a stop token, that beams find. With a length_power of 0 no
 * text is better later. */
static plain_text plain_search(mlc_module *net, const int64_t *prompt, int vocab, int beams,
                               int n_stop)
{
    plain_text beam[FEW], all[FEW * FEW], best = {{0}, -INF};
    int        n = 1;
    memset(beam, 0, sizeof beam);
    memcpy(beam[0].t, prompt, 2 * sizeof *prompt);
    for (int step = 0; step < NEW; step++) {
        int count = 0, next = 0;
        for (int b = 0; b < n; b++)
            count += plain_branches(net, &beam[b], 2 + step, vocab, all + count);
        qsort(all, (size_t)count, sizeof *all, by_score);
        for (int k = 0; k < count && k < (n_stop ? 1 + n_stop : 2) * beams; k++) {
            const bool ends = step + 1 == NEW || all[k].t[2 + step] < n_stop;
            for (int i = 3 + step; i < 2 + NEW; i++) all[k].t[i] = -1;
            if (ends && k < beams && all[k].score > best.score) best = all[k];
            if (!ends && next < beams) beam[next++] = all[k];
        }
        n = next;
    }
    return best;
}

/* As many tokens as beams are enough; where tokens that do not stop are fewer, so are beams.     */
TEST(language, beams_need_a_vocabulary_of_as_many_tokens_alone)
{
    static const int64_t stop[] = {0, 1, 2, 3, 4}, prompt[] = {1, 0};
    static const int     cases[][3] = {{5, 3, 0}, {12, 7, 0}, {12, 7, 1}, {2, 2, 0}, {2, 2, 1},
                                       {2, 2, 2}, {3, 3, 2}, {5, 4, 3}, {5, 5, 5}, {12, 12, 5}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        mlc_ctx        *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64, 0);
        mlc_nn_gpt_desc g = mlc_nn_gpt_desc_make(cases[i][0], CONTEXT, 1, WIDTH, HEADS);
        mlc_module     *net = mlc_nn_gpt(ctx, &g);
        mlc_init_desc   normal = mlc_init_desc_make(MLC_INIT_NORMAL);
        normal.b = 0.4;
        CHECK_EQ(mlc_module_init(net, "*weight", &normal), MLC_OK);
        mlc_module_train(net, false);
        const mlc_cache_desc d = mlc_cache_desc_make(cases[i][1], CONTEXT);
        mlc_cache           *c = mlc_cache_create(net, &d);
        mlc_beam_desc        b = mlc_beam_desc_make(NEW, cases[i][1]);
        int64_t              out[NEW];
        double               score;
        b.length_power = 0;
        b.stop = cases[i][2] ? stop : NULL;
        b.n_stop = cases[i][2];
        CHECK_EQ(mlc_beam_search(net, c, mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), prompt), &b, out,
                                 &score), MLC_OK);
        const plain_text want = plain_search(net, prompt, cases[i][0], cases[i][1], cases[i][2]);
        bool             same = CHECK_NEAR(score, want.score, 1e-5);
        for (int k = 0; k < NEW; k++) same = CHECK_EQ(out[k], want.t[2 + k]) && same;
        if (!same) printf("  %d tokens, %d beams\n", cases[i][0], cases[i][1]);
        mlc_cache_reset(c, 0);
        b.beams = cases[i][0] + 1;
        const mlc_cache_desc more = mlc_cache_desc_make(b.beams, CONTEXT);
        c = mlc_cache_create(net, &more);
        CHECK_EQ(mlc_beam_search(net, c, mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), prompt), &b, out,
                                 &score), MLC_ERR_ARG);
        CHECK_ERROR(ctx, MLC_ERR_ARG, "tokens in the vocabulary are too few for");
        CHECK_OK(ctx);
    }
}

/* ---- models of Hugging Face's transformers: make_language_goldens.py ----------------------- */

enum { HF_STEPS = 20, HF_PROMPT = 5, HF_TOKENS = 50 };

/* Gradients stand in a file as parameters do: another module takes them. */
static void hf_check_grads(mlc_module *net, int k, double tolerance)
{
    mlc_module    *grads = hf_net(mlc_module_ctx(net), k);
    mlc_param_iter it = mlc_param_iter_make(net);
    if (!CHECK_EQ(hf_load(grads, k, "_grad"), MLC_OK))
        printf("  %s\n", mlc_error(mlc_module_ctx(net)));
    while (mlc_param_next(&it)) {
        mlc_tensor  *want = mlc_module_param(grads, it.name);
        const double far = apart(mlc_grad(it.tensor), want);
        const double size = mlc_item(mlc_max(mlc_abs(want), mlc_dims0(), false));
        if (!CHECK(far <= tolerance * (1 + size)))
            printf("  %s: %s differs by %g of %g\n", hf_name[k], it.name, far, size);
    }
    mlc_module_free(grads);
}

static void hf_check(mlc_ctx *ctx, int k, double tolerance)
{
    static double losses[HF_STEPS];
    golden_file   f = golden_open(ctx, "language.safetensors");
    mlc_module   *net = hf_net(ctx, k);
    mlc_optim    *opt = mlc_sgd(net, 0.01);
    if (!CHECK_EQ(hf_load(net, k, ""), MLC_OK))
        printf("  %s\n", mlc_error(ctx));
    test_read(golden_find(&f, "%s.losses", hf_name[k]), losses);
    for (int step = 0; step < HF_STEPS; step++) {
        mlc_tensor *y[2] = {NULL, NULL};
        mlc_scope_begin(ctx);
        mlc_tensor *loss = hf_run(net, k, y);
        CHECK_NEAR(mlc_item(loss), losses[step], 10 * tolerance * (1 + losses[step]));
        CHECK_EQ(mlc_backward(loss), MLC_OK);
        for (int i = 0; i < (k == 2 ? 2 : 1) && step == 0; i++)
            CHECK(apart(y[i], golden_find(&f, "%s.y%d", hf_name[k], i)) <= tolerance * 8);
        if (step == 0)
            hf_check_grads(net, k, tolerance);
        CHECK_EQ(mlc_optim_step(opt), MLC_OK);
        CHECK_EQ(mlc_scope_end(ctx), MLC_OK);
    }
    CHECK_OK(ctx);
}

TEST(language, outputs_gradients_and_losses_are_hugging_faces)
{
    FOR_EACH_LEVEL(isa) {
        for (int k = 0; k < 3; k++) {
            hf_check(ctx_of((mlc_isa)isa, MLC_F64, 0), k, 1e-12);
            hf_check(ctx_of((mlc_isa)isa, MLC_F32, 0), k, 2e-5);
        }
    }
}

TEST(language, fifty_greedy_tokens_are_hugging_faces)
{
    for (int k = 0; k < 2; k++) {
        static double        want[HF_TOKENS];
        int64_t              out[HF_TOKENS];
        mlc_ctx             *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64, 0);
        golden_file          f = golden_open(ctx, "language.safetensors");
        mlc_module          *net = hf_net(ctx, k);
        const mlc_cache_desc d = mlc_cache_desc_make(1, 64);
        mlc_cache           *c = mlc_cache_create(net, &d);
        mlc_generate_desc    g = mlc_generate_desc_make(HF_TOKENS);
        g.temperature = 0;
        g.out = out;
        CHECK_EQ(hf_load(net, k, ""), MLC_OK);
        mlc_tensor *x = test_tokens(ctx, mlc_dims2(1, HF_PROMPT), HF_VOCAB, 2);
        CHECK_EQ(mlc_generate(net, c, x, &g, NULL, NULL), MLC_OK);
        test_read(golden_find(&f, "%s.greedy", hf_name[k]), want);
        for (int i = 0; i < HF_TOKENS; i++)
            CHECK_EQ(out[i], (int64_t)want[i]);
        mlc_cache_free(c);
        CHECK_OK(ctx);
    }
}

/* Beams with lengths and stop tokens of all kinds: make_language_goldens.py has them, too. */
static void hf_beams(int k, int64_t beams, double power, const int64_t *stop, int32_t n_stop)
{
    double               want[BATCH * 12], want_score[BATCH], score[BATCH];
    int64_t              out[BATCH * 12];
    mlc_ctx             *ctx = ctx_of(MLC_ISA_AUTO, MLC_F64, 0);
    golden_file          f = golden_open(ctx, "language.safetensors");
    mlc_module          *net = hf_net(ctx, k);
    const mlc_cache_desc d = mlc_cache_desc_make(BATCH * beams, 20);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_beam_desc        b = mlc_beam_desc_make(12, beams);
    b.length_power = power;
    b.stop = n_stop ? stop : NULL;
    b.n_stop = n_stop;
    CHECK_EQ(hf_load(net, k, ""), MLC_OK);
    mlc_tensor *x = test_tokens(ctx, mlc_dims2(BATCH, HF_PROMPT), HF_VOCAB, 2);
    CHECK_EQ(mlc_beam_search(net, c, x, &b, out, score), MLC_OK);
    test_read(golden_find(&f, "%s.beams%d", hf_name[k], (int)beams), want);
    test_read(golden_find(&f, "%s.scores%d", hf_name[k], (int)beams), want_score);
    for (int i = 0; i < BATCH; i++)
        CHECK_NEAR(score[i], want_score[i], 1e-5 * (1 + fabs(want_score[i])));
    for (int i = 0; i < BATCH * 12; i++)
        CHECK_EQ(out[i] < 0 ? HF_VOCAB - 1 : out[i], (int64_t)want[i]);
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

TEST(language, beams_are_hugging_faces)
{
    static const int64_t stop[] = {60, 48, 37, 57, 15, 58, 44, 22};
    for (int k = 0; k < 2; k++) {
        hf_beams(k, 2, 1, stop, 1);
        hf_beams(k, 3, 0.5, stop + 1, 2);
        hf_beams(k, 4, 2, stop + 3, 3);
        hf_beams(k, 5, -1, stop + 6, 2);
    }
}

/* What is written under Hugging Face's names has the tensors of its file, bit for bit. */
TEST(language, files_go_back_to_hugging_face)
{
    for (int k = 0; k < 3; k++) {
        mlc_ctx         *ctx = ctx_of(MLC_ISA_AUTO, MLC_F32, 0);
        mlc_module      *net = hf_net(ctx, k);
        const box        b = box_open("back.safetensors");
        mlc_save_desc    d = mlc_save_desc_make();
        char             path[64];
        const mlc_named *want, *got;
        int64_t          n = 0, m = 0;
        d.renames = hf_renames(k, &d.n_renames);
        CHECK_EQ(hf_load(net, k, ""), MLC_OK);
        if (!CHECK_EQ(mlc_save_ex(net, b.path, &d), MLC_OK))
            printf("  %s\n", mlc_error(ctx));
        snprintf(path, sizeof path, "tests/golden/%s.safetensors", hf_name[k]);
        CHECK_EQ(mlc_safetensors_load(ctx, path, &want, &n), MLC_OK);
        CHECK_EQ(mlc_safetensors_load(ctx, b.path, &got, &m), MLC_OK);
        CHECK(n > 0);
        for (int64_t i = 0; i < n; i++) {
            bool found = false;
            for (int64_t e = 0; e < m; e++) {
                const char *end = strstr(got[e].name, want[i].name);
                if (!end || strcmp(end, want[i].name) != 0)
                    continue;
                found = true;
                CHECK(mlc_dim(got[e].tensor, 0) == mlc_dim(want[i].tensor, 0) &&
                      apart(got[e].tensor, want[i].tensor) == 0);
            }
            if (!CHECK(found))
                printf("  %s: no %s\n", hf_name[k], want[i].name);
        }
        box_close(&b);
        CHECK_OK(ctx);
    }
}

/* ---- bad input ------------------------------------------------------------------------------- */

TEST(language, numbers_that_do_not_fit_are_named)
{
    mlc_ctx        *ctx = test_ctx();
    mlc_nn_gpt_desc d = gpt_desc(MLC_POSITIONS_LEARNED);
    mlc_module     *net = gpt_of(ctx, MLC_POSITIONS_LEARNED), *linear = mlc_nn_linear(ctx, 2, 2);
    CHECK(mlc_nn_gpt(ctx, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_nn_gpt_desc_make");
    CHECK(mlc_nn_bert(ctx, NULL) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "mlc_nn_bert_desc_make");
    d.context = 0;
    CHECK(mlc_nn_gpt(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "learned positions need a context");
    d.context = 4;
    d.layer.heads = 3;
    CHECK(mlc_nn_gpt(ctx, &d) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "heads");
    CHECK(mlc_forward(net, test_tokens(ctx, mlc_dims2(1, 12), VOCAB, 1)) != NULL);
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_I64, mlc_dims2(1, CONTEXT + 1))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "25 tokens from place 0 on go beyond the context of 24");
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_F32, mlc_dims2(1, 2))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_DTYPE, "tokens are f32");
    CHECK(mlc_forward(net, mlc_zeros(ctx, MLC_I64, mlc_dims1(2))) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "tokens are [2]");
    mlc_nn_bert_desc e = mlc_nn_bert_desc_make(VOCAB, CONTEXT, 1, WIDTH, HEADS);
    mlc_module      *bert = mlc_nn_bert(ctx, &e);
    mlc_tensor      *in[2] = {test_tokens(ctx, mlc_dims2(2, 3), VOCAB, 1),
                               test_tokens(ctx, mlc_dims2(1, 2), VOCAB, 1)}, *out;
    CHECK(mlc_module_forward(bert, in, 2, &out, 1) != MLC_OK);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "types are [1,2], tokens [2,3]");
    const mlc_cache_desc none = mlc_cache_desc_make(0, 4), two = mlc_cache_desc_make(2, 4);
    CHECK(mlc_cache_create(net, &none) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "batch is 0, capacity 4; batch must be positive, capacity "
                "positive, or 0 where there is no attention");
    CHECK(mlc_cache_create(linear, &two) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "without attention");
    mlc_module_free(linear);
}

TEST(language, a_cache_that_is_full_or_anothers_is_left_as_it_was)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_ROTARY), *other = gpt_of(ctx, 0);
    const mlc_cache_desc d = mlc_cache_desc_make(2, 4);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_tensor          *x = test_tokens(ctx, mlc_dims2(2, 3), VOCAB, 1);
    static const int64_t bad[] = {0, 9};
    CHECK(mlc_forward_cached(net, x, c) != NULL);
    CHECK(mlc_forward_cached(net, part(x, 0, 2), c) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "3 of 4 places are filled and 2 come");
    CHECK(mlc_forward_cached(other, part(x, 0, 1), c) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "another module");
    CHECK(mlc_forward_cached(net, mlc_slice(x, 0, 0, 1, 1), c) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_SHAPE, "the cache's 2 sequences");
    CHECK_EQ(mlc_cache_select(c, bad, 2), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "row 1 is 9");
    CHECK_EQ(mlc_cache_padding(c, bad, 2), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "before anything is read");
    CHECK_EQ(mlc_cache_reset(c, 4), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a cache with 3");
    CHECK_EQ(mlc_cache_length(c), 3);
    mlc_generate_desc g = mlc_generate_desc_make(3);
    CHECK_EQ(mlc_generate(net, c, part(x, 0, 1), &g, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "a prompt of 1 and 3 tokens do not fit");
    g.top_p = 0;
    CHECK_EQ(mlc_generate(net, c, part(x, 0, 1), &g, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "top_p 0");
    CHECK_EQ(mlc_cache_length(c), 3);
    mlc_cache_reset(c, 0);
    g.top_p = 1;
    CHECK_EQ(mlc_generate(other, c, part(x, 0, 1), &g, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "another module");
    static const int64_t padding[] = {1}, none[] = {99, 99};
    mlc_tensor *wrong = mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), none);
    g.padding = padding;
    CHECK_EQ(mlc_generate(net, c, wrong, &g, NULL, NULL), MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "index 99 at position 0 is not in [0,23)");
    CHECK_EQ(mlc_cache_length(c), 0);
    CHECK(mlc_forward_cached(net, x, c) != NULL);          /* two, without padding */
    mlc_cache_reset(c, 0);
    mlc_beam_desc many = mlc_beam_desc_make(1, 3);
    CHECK_EQ(mlc_beam_search(net, c, part(x, 0, 1), &many, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "2 with 3 beams");
    many.beams = 0;
    CHECK_EQ(mlc_beam_search(net, c, part(x, 0, 1), &many, NULL, NULL), MLC_ERR_ARG);
    CHECK_ERROR(ctx, MLC_ERR_ARG, "beams 0");
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* A prompt with a token that the model lacks, and with padding of its own. */
TEST(language, generation_that_fails_leaves_the_padding_that_there_was)
{
    static const int64_t padding[] = {0, 2}, other[] = {1}, none[] = {99, 99};
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_LEARNED);
    const mlc_cache_desc d = mlc_cache_desc_make(2, CONTEXT);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_tensor          *x = test_tokens(ctx, mlc_dims2(2, 4), VOCAB, 1);
    mlc_tensor          *wrong = mlc_from(ctx, MLC_I64, mlc_dims2(1, 2), none);
    mlc_generate_desc    g = mlc_generate_desc_make(1);
    mlc_beam_desc        b = mlc_beam_desc_make(1, 2);
    double               want[2 * 4 * VOCAB], got[2 * 4 * VOCAB];
    g.padding = b.padding = other;
    for (int way = 0; way < 3; way++) {
        CHECK_EQ(mlc_cache_padding(c, padding, 2), MLC_OK);
        if (way == 1) CHECK_EQ(mlc_generate(net, c, wrong, &g, NULL, NULL), MLC_ERR_VALUE);
        if (way == 2) CHECK_EQ(mlc_beam_search(net, c, wrong, &b, NULL, NULL), MLC_ERR_VALUE);
        mlc_error_clear(ctx);
        CHECK(test_read(mlc_forward_cached(net, x, c), way ? got : want));
        if (way) CHECK(memcmp(got, want, sizeof got) == 0);
        mlc_cache_reset(c, 0);
    }
    mlc_cache_free(c);
    CHECK_OK(ctx);
}

/* Logits that are NaN end a text with an error. */
TEST(language, logits_that_are_no_numbers_are_an_error)
{
    mlc_ctx             *ctx = test_ctx();
    mlc_module          *net = gpt_of(ctx, MLC_POSITIONS_NONE);
    const mlc_cache_desc d = mlc_cache_desc_make(1, 8);
    mlc_cache           *c = mlc_cache_create(net, &d);
    mlc_generate_desc    g = mlc_generate_desc_make(3);
    mlc_no_grad_begin(ctx);
    CHECK(mlc_fill_(mlc_rows(mlc_module_param(net, "norm.bias"), 0, 1), (double)NAN) != NULL);
    mlc_no_grad_end(ctx);
    CHECK_EQ(mlc_generate(net, c, test_tokens(ctx, mlc_dims2(1, 2), VOCAB, 1), &g, NULL, NULL),
             MLC_ERR_VALUE);
    CHECK_ERROR(ctx, MLC_ERR_VALUE, "step 0");
    mlc_cache_free(c);
}
