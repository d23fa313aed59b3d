/* test_text.c -- tests of section IMPL.TEXT: against Hugging Face's, bad files, memory */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "watch.h"

#define VOCAB  "tests/golden/text.vocab.txt"
#define JSON   "tests/golden/text.vocab.json"
#define MERGES "tests/golden/text.merges.txt"

enum { STRINGS = 2000, MOST = 2048 };

/* ---- against Hugging Face ------------------------------------------------------------------- */

typedef struct parts {                 /* of a golden: one behind another                      */
    unsigned char *data, *length;      /* lengths in bytes, 16 bits each                       */
    int64_t        n;
} parts;

static unsigned char *bytes_of(const golden_file *f, const char *name, const char *end, int64_t *n)
{
    mlc_tensor    *t = golden_find(f, "%s%s", name, end);
    unsigned char *data = (unsigned char *)calloc(1, (size_t)mlc_numel(t) + 1);
    *n = mlc_numel(t);
    CHECK(t && data && mlc_read(t, data, (size_t)*n) == MLC_OK);
    return data;
}

static parts parts_of(const golden_file *f, const char *name)
{
    parts   p;
    int64_t n;
    p.data = bytes_of(f, name, "", &n);
    p.length = bytes_of(f, name, "_n", &n);
    p.n = n / 2;
    return p;
}

static size_t length_of(const parts *p, int64_t i)
{
    return (size_t)(p->length[2 * i] | p->length[2 * i + 1] << 8);
}

static void parts_free(parts *p)
{
    free(p->data);
    free(p->length);
}

/* Ids of 16 bits.                                                                             */
static int64_t ids_of(const unsigned char *at, size_t n, int64_t *ids)
{
    for (size_t i = 0; i < n / 2; i++) ids[i] = at[2 * i] | at[2 * i + 1] << 8;
    return (int64_t)(n / 2);
}

/* Do all strings have the ids of the golden? Says which one has not.                          */
static bool encodes(mlc_tokenizer *t, const golden_file *f, const char *name)
{
    parts text = parts_of(f, "text"), want = parts_of(f, name);
    const unsigned char *s = text.data, *w = want.data;
    int64_t got[MOST], ids[MOST], wrong = 0;
    CHECK_EQ(text.n, STRINGS);
    CHECK_EQ(want.n, STRINGS);
    for (int64_t i = 0; i < text.n && wrong < 5; i++) {
        const int64_t n = ids_of(w, length_of(&want, i), ids);
        const int64_t k = mlc_tokenizer_encode(t, (const char *)s, length_of(&text, i), got, MOST);
        if (k != n || memcmp(got, ids, (size_t)n * sizeof *ids) != 0) {
            printf("  %s: string %d, '%.*s': %d ids, want %d\n", name, (int)i,
                   (int)length_of(&text, i), (const char *)s, (int)k, (int)n);
            wrong++;
        }
        s += length_of(&text, i);
        w += length_of(&want, i);
    }
    parts_free(&text);
    parts_free(&want);
    return wrong == 0;
}

/* Do the ids of a golden make the texts of another one?                                       */
static bool decodes(mlc_tokenizer *t, const golden_file *f, const char *name, const char *texts)
{
    parts ids = parts_of(f, name), want = parts_of(f, texts);
    const unsigned char *s = ids.data, *w = want.data;
    char    got[MOST];
    int64_t list[MOST], wrong = 0;
    CHECK_EQ(ids.n, want.n);
    for (int64_t i = 0; i < ids.n && wrong < 5; i++) {
        const int64_t n = ids_of(s, length_of(&ids, i), list);
        const int64_t k = mlc_tokenizer_decode(t, list, n, got, MOST);
        if (k != (int64_t)length_of(&want, i) || memcmp(got, w, (size_t)k) != 0 || got[k] != 0) {
            printf("  %s: string %d: '%s', want '%.*s'\n", name, (int)i, got,
                   (int)length_of(&want, i), (const char *)w);
            wrong++;
        }
        s += length_of(&ids, i);
        w += length_of(&want, i);
    }
    parts_free(&ids);
    parts_free(&want);
    return wrong == 0;
}

TEST(text, wordpiece_has_the_ids_and_text_of_hugging_face)
{
    mlc_ctx           *ctx = test_ctx();
    const golden_file  f = golden_open(ctx, "text.safetensors");
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    mlc_tokenizer     *t = mlc_tokenizer_wordpiece(ctx, VOCAB, NULL);
    CHECK(encodes(t, &f, "uncased"));
    CHECK(decodes(t, &f, "uncased", "decoded"));
    CHECK(decodes(t, &f, "some_uncased", "some_uncased_text"));
    mlc_tokenizer_free(t);
    d.strip_accents = false;
    t = mlc_tokenizer_wordpiece(ctx, VOCAB, &d);
    CHECK(encodes(t, &f, "lower"));
    mlc_tokenizer_free(t);
    d.lowercase = false;
    d.add_ends = true;
    t = mlc_tokenizer_wordpiece(ctx, VOCAB, &d);
    CHECK(encodes(t, &f, "cased"));
    mlc_tokenizer_free(t);
    CHECK_OK(ctx);
}

/* The text of ids of BPE is the string, with U+FFFD in the place of what is no UTF-8.         */
static bool bpe_goes_back(mlc_tokenizer *t, const golden_file *f)
{
    parts text = parts_of(f, "text"), valid = parts_of(f, "valid");
    const unsigned char *s = text.data, *v = valid.data;
    int64_t ids[MOST], wrong = 0, bad = 0;
    char    got[MOST];
    for (int64_t i = 0; i < text.n && wrong < 5; s += length_of(&text, i++)) {
        const int64_t n = mlc_tokenizer_encode(t, (const char *)s, length_of(&text, i), ids, MOST);
        const int64_t k = mlc_tokenizer_decode(t, ids, n, got, MOST);
        if (k == (int64_t)length_of(&text, i) && memcmp(got, s, (size_t)k) == 0) continue;
        const bool same = bad < valid.n && k == (int64_t)length_of(&valid, bad) &&
                          memcmp(got, v, (size_t)k) == 0;
        if (!same) printf("  string %d comes back as '%s'\n", (int)i, got);
        wrong += !same;
        if (same) v += length_of(&valid, bad++);
    }
    CHECK_EQ(bad, valid.n);
    parts_free(&text);
    parts_free(&valid);
    return wrong == 0;
}

TEST(text, byte_level_bpe_has_the_ids_and_text_of_hugging_face)
{
    mlc_ctx           *ctx = test_ctx();
    const golden_file  f = golden_open(ctx, "text.safetensors");
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    d.keep_specials = true;
    for (d.cache = 0; d.cache < 30; d.cache += 29) {
        mlc_tokenizer *t = mlc_tokenizer_bpe(ctx, JSON, MERGES, &d);
        CHECK(encodes(t, &f, "bpe"));
        CHECK(encodes(t, &f, "bpe"));
        CHECK(bpe_goes_back(t, &f));
        mlc_tokenizer_free(t);
    }
    mlc_tokenizer *t = mlc_tokenizer_bpe(ctx, JSON, MERGES, NULL);
    CHECK(decodes(t, &f, "some_bpe", "some_bpe_text"));
    CHECK_OK(ctx);
}

/* ---- by hand -------------------------------------------------------------------------------- */

static mlc_tokenizer *bytes_with(mlc_ctx *ctx, mlc_invalid invalid)
{
    static const char *const specials[] = {"<a>", "<a><b>", "<|endoftext|>"};
    mlc_tokenizer_desc       d = mlc_tokenizer_desc_make();
    d.specials = specials;
    d.n_specials = 3;
    d.invalid = invalid;
    return mlc_tokenizer_bytes(ctx, &d);
}

TEST(text, bytes_are_tokens_and_the_longest_special_wins)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_tokenizer *t = bytes_with(ctx, MLC_INVALID_REPLACE);
    const int64_t  want[7] = {'x', 257, '<', 256, 258, 0, 0xC3};
    int64_t        ids[8];
    char           text[32];
    size_t         n = 9;
    CHECK_EQ(mlc_tokenizer_size(t), 259);
    CHECK_EQ(mlc_tokenizer_id(t, "<a><b>"), 257);
    CHECK_EQ(mlc_tokenizer_id(t, "a"), 'a');
    CHECK_EQ(mlc_tokenizer_id(t, "<b>"), -1);
    CHECK_STR(mlc_tokenizer_token(t, 258, &n), "<|endoftext|>");
    CHECK_EQ(n, 13);
    CHECK(mlc_tokenizer_token(t, 0, &n) != NULL);
    CHECK_EQ(n, 1);
    CHECK_EQ(mlc_tokenizer_encode(t, "x<a><b><<a><|endoftext|>\0\xC3\xA9", 27, ids, 7), 8);
    for (int i = 0; i < 7; i++) CHECK_EQ(ids[i], want[i]);
    CHECK_EQ(mlc_tokenizer_encode(t, "", 0, NULL, 0), 0);
    CHECK_EQ(mlc_tokenizer_encode(t, NULL, 0, NULL, 0), 0);
    /* Specials are left out; what does not fit is counted. */
    CHECK_EQ(mlc_tokenizer_decode(t, want, 7, text, sizeof text), 6);
    CHECK(memcmp(text, "x<\0\xEF\xBF\xBD", 7) == 0);
    CHECK_EQ(mlc_tokenizer_decode(t, want, 4, text, 2), 2);
    CHECK_STR(text, "x");
    CHECK_EQ(mlc_tokenizer_decode(t, want, 4, NULL, 0), 2);
    CHECK_EQ(mlc_tokenizer_decode(t, NULL, 0, text, 1), 0);
    CHECK_STR(text, "");
    CHECK_OK(ctx);
}

TEST(text, a_tensor_has_the_ids_that_an_embedding_takes)
{
    mlc_ctx           *ctx = test_ctx();
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    d.add_ends = true;
    mlc_tokenizer *t = mlc_tokenizer_wordpiece(ctx, VOCAB, &d);
    const double   want[3] = {2, (double)mlc_tokenizer_id(t, "the"), 3};
    mlc_tensor    *x = mlc_tokenizer_tensor(t, "ThE", 3);
    CHECK_VALUES(x, 3, want, 0, 0);
    mlc_tensor *w = mlc_zeros(ctx, MLC_F32, mlc_dims2(mlc_tokenizer_size(t), 2));
    CHECK_EQ(mlc_numel(mlc_embedding(x, w)), 6);
    mlc_tokenizer *b = mlc_tokenizer_bytes(ctx, NULL);
    CHECK_EQ(mlc_numel(mlc_tokenizer_tensor(b, "", 0)), 0);
    CHECK_EQ(mlc_tokenizer_tensor(b, "", 0)->dtype, MLC_I64);
    CHECK_OK(ctx);
}

TEST(text, pieces_one_by_one_are_the_text)
{
    mlc_ctx       *ctx = test_ctx();
    mlc_tokenizer *bpe = mlc_tokenizer_bpe(ctx, JSON, MERGES, NULL);
    mlc_tokenizer *wp = mlc_tokenizer_wordpiece(ctx, VOCAB, NULL);
    const char    *text = "The tensor's na\xC3\xAFve \xF0\x9F\x98\x80 gradients, learning!"
                          "<|endoftext|>";
    int64_t        ids[99];
    char           whole[256] = "", all[256], piece[8];
    int64_t        n = mlc_tokenizer_encode(bpe, text, strlen(text), ids, 99);
    CHECK(n > 8);
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = mlc_tokenizer_piece(bpe, ids[i], i == 0, all, sizeof all);
        CHECK(k < (int64_t)sizeof all && (k > 0) == (i + 1 < n));       /* the last: a special  */
        CHECK_EQ(mlc_tokenizer_piece(bpe, ids[i], i == 0, NULL, 0), k);
        strncat(whole, all, (size_t)k);
    }
    CHECK_EQ(mlc_tokenizer_decode(bpe, ids, n, all, sizeof all), (int64_t)strlen(text) - 13);
    CHECK_STR(whole, all);
    n = mlc_tokenizer_encode(wp, "learning the tokenizers.", 24, ids, 99);
    CHECK_EQ(mlc_tokenizer_decode(wp, ids, n, all, sizeof all), 24);
    CHECK_STR(all, "learning the tokenizers.");
    CHECK(mlc_tokenizer_piece(wp, mlc_tokenizer_id(wp, "the"), true, piece, 8) == 3);
    CHECK_STR(piece, "the");
    CHECK(mlc_tokenizer_piece(wp, mlc_tokenizer_id(wp, "the"), false, piece, 3) == 4);
    CHECK_STR(piece, " t");
    CHECK(mlc_tokenizer_piece(wp, mlc_tokenizer_id(wp, "."), false, piece, 8) == 1);
    CHECK(mlc_tokenizer_piece(wp, mlc_tokenizer_id(wp, "##s"), false, piece, 8) == 1);
    CHECK(mlc_tokenizer_piece(wp, mlc_tokenizer_id(wp, "[SEP]"), false, piece, 8) == 0);
    CHECK_STR(piece, "");
    CHECK_OK(ctx);
}

TEST(text, bytes_that_are_no_utf8_are_replaced_refused_or_kept)
{
    static const char text[] = "a\xE2\x82z\xF0\x9F\x98";
    mlc_ctx          *ctx = test_ctx();
    int64_t           ids[16];
    char              back[32];
    mlc_tokenizer    *t = bytes_with(ctx, MLC_INVALID_REPLACE);
    CHECK_EQ(mlc_tokenizer_encode(t, text, 7, ids, 16), 8);
    CHECK_EQ(mlc_tokenizer_decode(t, ids, 8, back, sizeof back), 8);
    CHECK_STR(back, "a\xEF\xBF\xBDz\xEF\xBF\xBD");
    t = bytes_with(ctx, MLC_INVALID_KEEP);
    CHECK_EQ(mlc_tokenizer_encode(t, text, 7, ids, 16), 7);
    CHECK_EQ(mlc_tokenizer_decode(t, ids, 7, back, sizeof back), 7);
    CHECK_STR(back, text);
    CHECK_OK(ctx);
    t = bytes_with(ctx, MLC_INVALID_ERROR);
    CHECK_EQ(mlc_tokenizer_encode(t, text, 7, ids, 16), -1);
    CHECK_STR(mlc_error(ctx), "tokenizer: the text has no UTF-8 at byte 1");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK(mlc_tokenizer_tensor(t, text + 3, 4) == NULL);
    CHECK_HAS(mlc_error(ctx), "at byte 1");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    ids[0] = 'a';
    ids[1] = 0xE2;
    CHECK_EQ(mlc_tokenizer_decode(t, ids, 2, back, sizeof back), -1);
    CHECK_STR(back, "");
    CHECK_HAS(mlc_error(ctx), "at byte 1");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_EQ(mlc_tokenizer_encode(t, "a\xE2\x82\xAC", 4, ids, 16), 4);
    CHECK_OK(ctx);
}

/* ---- long words ----------------------------------------------------------------------------- */

/* A word of a megabyte: each of its parts between two bytes that never merge is as if alone.  */
TEST(text, a_word_of_a_megabyte_takes_no_longer_than_its_parts)
{
    enum { N = 1 << 20 };
    mlc_ctx       *ctx = test_ctx();
    mlc_tokenizer *t = mlc_tokenizer_bpe(ctx, JSON, MERGES, NULL);
    char          *text = (char *)malloc(N);
    int64_t       *ids = (int64_t *)malloc(N * sizeof *ids), small[64];
    const int64_t  size = test_cpu_kernels() ? N : N / 16;
    if (!CHECK(text && ids)) return;
    for (int64_t i = 0; i < size; i++) text[i] = "gradientsofatensorlearn"[i % 23];
    const int64_t period = mlc_tokenizer_encode(t, text, 23, small, 64);
    const int64_t n = mlc_tokenizer_encode(t, text, (size_t)size, ids, N);
    CHECK(n > size / 23 * (period - 2) && n < size / 23 * (period + 2));
    char *back = (char *)malloc(N + 1);
    if (!CHECK(back != NULL)) return;
    CHECK_EQ(mlc_tokenizer_decode(t, ids, n, back, N + 1), size);
    CHECK(memcmp(back, text, (size_t)size) == 0);
    /* One letter, and spaces. */
    memset(text, 'e', (size_t)size);
    CHECK(mlc_tokenizer_encode(t, text, (size_t)size, ids, N) <= size);
    memset(text, ' ', (size_t)size);
    CHECK(mlc_tokenizer_encode(t, text, (size_t)size, ids, N) <= size);
    mlc_tokenizer *wp = mlc_tokenizer_wordpiece(ctx, VOCAB, NULL);
    memset(text, 'e', (size_t)size);
    CHECK_EQ(mlc_tokenizer_encode(wp, text, (size_t)size, ids, N), 1);
    CHECK_EQ(ids[0], mlc_tokenizer_id(wp, "[UNK]"));
    CHECK_OK(ctx);
    free(back);
    free(text);
    free(ids);
}

/* ---- files that are wrong ------------------------------------------------------------------- */

typedef struct mistake { const char *text, *why; } mistake;

TEST(text, mistakes_in_a_list_of_tokens_are_named_with_their_line)
{
    static const mistake table[] = {
        {"", "no tokens; there must be one"},
        {"[UNK]\na\n\nb\n", "line 3 is empty"},
        {"[UNK]\r\na\r\n\r\n", "line 3 is empty"},
        {"[UNK]\na\nb\na\n", "line 4: 'a' is there already, in line 2"},
        {"[UNK]\na\n\xC3", "line 3: no UTF-8 at byte 8"},
        {"a\nb\n", "no token [UNK]"},
        {"[UNK]\n[CLS]\n", "no token [SEP], which desc.add_ends asks for"},
        {"[UNK]\n[SEP]\n", "no token [CLS]"},
        {"\x1F\x8B", "looks like gzip"},
    };
    mlc_ctx           *ctx = test_ctx();
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    mlc_memory         before, after;
    box                b = box_open_fast("vocab.txt");
    d.add_ends = true;
    mlc_memory_info(ctx, &before);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(put_file(b.path, table[i].text, strlen(table[i].text)));
        CHECK(mlc_tokenizer_wordpiece(ctx, b.path, &d) == NULL);
        CHECK_HAS(mlc_error(ctx), b.path);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    d.add_ends = false;
    d.vocabulary = 3;
    CHECK(put_file(b.path, "[UNK]\r\na", 8));    /* the last line may lack its end */
    CHECK(mlc_tokenizer_wordpiece(ctx, b.path, &d) == NULL);
    CHECK_HAS(mlc_error(ctx), "2 tokens; desc.vocabulary is 3");
    CHECK_STATUS(ctx, MLC_ERR_IO);
    d.vocabulary = 2;
    mlc_tokenizer *t = mlc_tokenizer_wordpiece(ctx, b.path, &d);
    CHECK_EQ(mlc_tokenizer_size(t), 2);
    CHECK_EQ(mlc_tokenizer_id(t, "a"), 1);
    CHECK_OK(ctx);
    box_close(&b);
}

TEST(text, wordpiece_joins_what_belongs_to_the_word_before)
{
    static const char list[] = "[UNK]\na\n's\n'm\n've\n're\nn't\n.\n?\n!\n,\n;\n##b\n'x\n##\n";
    const int64_t     ids[15] = {12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    mlc_ctx          *ctx = test_ctx();
    char              text[64];
    box               b = box_open_fast("vocab.txt");
    CHECK(put_file(b.path, list, sizeof list - 1));
    mlc_tokenizer *t = mlc_tokenizer_wordpiece(ctx, b.path, NULL);
    CHECK(mlc_tokenizer_decode(t, ids, 15, text, sizeof text) > 0);
    CHECK_STR(text, "##b a's'm've'ren't.?!, ;b 'x");
    CHECK_OK(ctx);
    box_close(&b);
}

static mlc_tokenizer *bpe_of(mlc_ctx *ctx, const char *json, size_t n, const char *merges, box *b)
{
    char path[340];
    snprintf(path, sizeof path, "%s/merges.txt", b->dir);
    CHECK(put_file(b->path, json, n));
    CHECK(put_file(path, merges, strlen(merges)));
    return mlc_tokenizer_bpe(ctx, b->path, path, NULL);
}

TEST(text, mistakes_in_a_vocabulary_of_bpe_are_named)
{
    static const mistake table[] = {
        {"", "byte 0: a vocabulary begins with '{'"},
        {"[]", "byte 0: a vocabulary begins with '{'"},
        {"{}", "no tokens"},
        {"{\"a\":0", "byte 6: ',' or '}' is missing"},
        {"{\"a", "byte 3: a string does not end"},
        {"{\"a\" 0}", "byte 5: ':' is missing"},
        {"{\"a\":-1}", "byte 5: an unsigned integer is missing"},
        {"{\"a\":1.5}", "byte 6: a number is not an integer"},
        {"{\"a\":0,}", "byte 7: a string is missing"},
        {"{\"a\":0} x", "byte 8: text after the vocabulary's end"},
        {"{\"\xFF\":0}", "byte 2: invalid UTF-8"},
        {"{\"a\":0,\"b\":2}", "token 'b' has id 2 of 2 tokens; ids are 0 .. 1"},
        {"{\"a\":99999999999999999999}", "number too large"},
        {"{\"a\":4294967296}", "an id above the number of tokens"},
        {"{\"a\":0,\"b\":0}", "token 'b' has the id 0 of 'a'"},
        {"{\"a\":0,\"a\":1}", "the token of id 1 is there already, with another id"},
        {"{\"a\":0,\"b\":1}", "no token for byte 0"},
    };
    mlc_ctx   *ctx = test_ctx();
    mlc_memory before, after;
    box        b = box_open_fast("vocab.json");
    mlc_memory_info(ctx, &before);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(bpe_of(ctx, table[i].text, strlen(table[i].text), "", &b) == NULL);
        CHECK_HAS(mlc_error(ctx), b.path);
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    box_close(&b);
}

/* Bytes of a file after a byte order mark, 0 at the end. */
static char *marked(const char *path, size_t *n)
{
    char *file = (char *)get_file(path, n), *text = (char *)calloc(1, *n + 4);
    if (file && text) memcpy(text, "\xEF\xBB\xBF", 3);
    if (file && text) memcpy(text + 3, file, *n);
    *n += 3;
    free(file);
    return text;
}

TEST(text, a_byte_order_mark_is_no_part_of_the_first_token)
{
    static const char list[] = "\xEF\xBB\xBF[PAD]\n[UNK]\na\n";
    mlc_ctx       *ctx = test_ctx();
    box            b = box_open_fast("vocab.txt");
    size_t         n, m;
    int64_t        ids[8], want[8];
    char          *json = marked(JSON, &n), *merges = marked(MERGES, &m);
    CHECK(put_file(b.path, list, sizeof list - 1));
    mlc_tokenizer *t = mlc_tokenizer_wordpiece(ctx, b.path, NULL);
    CHECK_EQ(mlc_tokenizer_id(t, "[PAD]"), 0);
    CHECK_EQ(mlc_tokenizer_size(t), 3);
    mlc_tokenizer *bpe = mlc_tokenizer_bpe(ctx, JSON, MERGES, NULL);
    mlc_tokenizer *same = bpe_of(ctx, json, n, merges, &b);
    CHECK_EQ(mlc_tokenizer_size(same), mlc_tokenizer_size(bpe));
    const int64_t many = mlc_tokenizer_encode(bpe, "the net", 7, want, 8);
    CHECK_EQ(mlc_tokenizer_encode(same, "the net", 7, ids, 8), many);
    CHECK(many > 0 && many <= 8 && memcmp(ids, want, (size_t)many * sizeof *ids) == 0);
    CHECK_OK(ctx);
    CHECK(bpe_of(ctx, json, n, "\xEF\xBB\xBFt h\nt h\n", &b) == NULL);
    CHECK_ERROR(ctx, MLC_ERR_IO, "line 2: the merge is there already, as number 1");
    mlc_tokenizer_free(t);
    mlc_tokenizer_free(bpe);
    mlc_tokenizer_free(same);
    free(json);
    free(merges);
    box_close(&b);
}

TEST(text, mistakes_in_merges_are_named_with_their_line)
{
    static const mistake table[] = {
        {"#version: 0.2\na b c\n", "line 2 is no merge"},
        {"#version: 0.2\nt h\n\n", "line 3 is no merge"},
        {"t h\nth\n", "line 2 is no merge"},
        {"t  h\n", "line 1 is no merge"},
        {" t\n", "line 1 is no merge"},
        {"t \n", "line 1 is no merge"},
        {"t h\nt h\n", "line 2: the merge is there already, as number 1"},
        {"\xC4\xA0""zq h\n", "line 1: ' zq' is no token of the vocabulary"},
        {"t zqzq\n", "line 1: 'zqzq' is no token of the vocabulary"},
        {"# #version\n", "line 1: '#version' is no token of the vocabulary"},
        {"q q\n", "line 1: 'qq' is no token of the vocabulary"},
        {"t h\n\xFF\n", "line 2: no UTF-8 at byte 4"},
        {"t h\ni", "line 2 is no merge"},
    };
    mlc_ctx    *ctx = test_ctx();
    mlc_memory  before, after;
    box         b = box_open_fast("vocab.json");
    size_t      n;
    char       *json = (char *)get_file(JSON, &n);
    mlc_memory_info(ctx, &before);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(bpe_of(ctx, json, n, table[i].text, &b) == NULL);
        CHECK_HAS(mlc_error(ctx), "merges.txt");
        CHECK_HAS(mlc_error(ctx), table[i].why);
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    for (size_t cut = 0; cut < n; cut += 1 + n / 50) {           /* of the vocabulary */
        CHECK(bpe_of(ctx, json, cut, "", &b) == NULL);
        CHECK_HAS(mlc_error(ctx), "byte ");
        CHECK_STATUS(ctx, MLC_ERR_IO);
    }
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    int64_t        ids[4];
    mlc_tokenizer *t = bpe_of(ctx, json, n, "t h\r\nth e", &b);
    CHECK_EQ(mlc_tokenizer_encode(t, " the", 4, ids, 4), 2);     /* no merge of the space */
    CHECK_EQ(ids[0], mlc_tokenizer_id(t, " "));
    CHECK_EQ(ids[1], mlc_tokenizer_id(t, "the"));
    t = bpe_of(ctx, json, n, "", &b);
    CHECK_EQ(mlc_tokenizer_encode(t, " the", 4, ids, 4), 4);
    CHECK_OK(ctx);
    free(json);
    box_close(&b);
}

TEST(text, wrong_arguments_are_named)
{
    mlc_ctx           *ctx = test_ctx();
    mlc_tokenizer_desc d = mlc_tokenizer_desc_make();
    const char        *specials[2] = {"a", ""};
    int64_t            ids[2] = {0, 256};
    char               text[8] = "xxxxxxx";
    mlc_tokenizer     *t = mlc_tokenizer_bytes(ctx, NULL);
    CHECK_EQ(mlc_tokenizer_encode(t, "a", 1, ids, -1), -1);
    CHECK_STR(mlc_error(ctx), "tokenizer_encode: room is below 0");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_encode(t, "a", 1, NULL, 1), -1);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_encode(t, NULL, 1, ids, 1), -1);
    CHECK_STR(mlc_error(ctx), "tokenizer_encode: text is NULL");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_decode(t, ids, 2, text, sizeof text), -1);
    CHECK_STR(mlc_error(ctx), "tokenizer_decode: id 256; there are tokens 0 .. 255");
    CHECK_STR(text, "");
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_EQ(mlc_tokenizer_decode(t, ids, -1, text, sizeof text), -1);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_decode(t, NULL, 1, text, sizeof text), -1);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_decode(t, ids, 1, NULL, 1), -1);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_piece(t, -1, true, text, sizeof text), -1);
    CHECK_STATUS(ctx, MLC_ERR_VALUE);
    CHECK_EQ(mlc_tokenizer_piece(t, 1, true, NULL, 1), -1);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_tokenizer_token(t, 256, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.specials = specials;
    d.n_specials = 2;
    CHECK(mlc_tokenizer_bytes(ctx, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "tokenizer: specials[1] is empty");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.specials = NULL;
    CHECK(mlc_tokenizer_bytes(ctx, &d) == NULL);
    CHECK_STR(mlc_error(ctx), "tokenizer: specials is NULL and n_specials is 2; set both, or "
                              "neither");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d.n_specials = 1 << 21;
    CHECK(mlc_tokenizer_bytes(ctx, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK_EQ(mlc_tokenizer_encode(t, "a", (size_t)-1, ids, 2), -1);
    CHECK_HAS(mlc_error(ctx), "tokenizer: a text of ");
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_tokenizer_desc_make();
    d.invalid = (mlc_invalid)3;
    CHECK(mlc_tokenizer_wordpiece(ctx, VOCAB, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    d = mlc_tokenizer_desc_make();
    d.cache = -1;
    CHECK(mlc_tokenizer_bpe(ctx, JSON, MERGES, &d) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_tokenizer_wordpiece(ctx, NULL, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_tokenizer_bpe(ctx, JSON, NULL, NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_ARG);
    CHECK(mlc_tokenizer_bpe(ctx, JSON, "tests/golden", NULL) == NULL);
    CHECK_STATUS(ctx, MLC_ERR_IO);
    CHECK(mlc_tokenizer_bytes(NULL, NULL) == NULL && mlc_tokenizer_bpe(NULL, "", "", NULL) == NULL);
    CHECK(mlc_tokenizer_wordpiece(NULL, "", NULL) == NULL);
    CHECK_EQ(mlc_tokenizer_encode(NULL, "a", 1, ids, 2), -1);
    CHECK_EQ(mlc_tokenizer_decode(NULL, ids, 1, text, 8), -1);
    CHECK_EQ(mlc_tokenizer_piece(NULL, 0, true, text, 8), -1);
    CHECK(mlc_tokenizer_tensor(NULL, "a", 1) == NULL && mlc_tokenizer_token(NULL, 0, NULL) == NULL);
    CHECK_EQ(mlc_tokenizer_size(NULL), 0);
    CHECK_EQ(mlc_tokenizer_id(NULL, "a"), -1);
    CHECK_EQ(mlc_tokenizer_id(t, NULL), -1);
    mlc_tokenizer_free(NULL);
    CHECK_OK(ctx);
}

/* ---- memory --------------------------------------------------------------------------------- */

TEST(text, memory_is_the_contexts_and_a_steady_encode_takes_none)
{
    mlc_ctx_desc d = test_desc();
    d.hard_limit = (size_t)8 << 20;
    mlc_ctx       *ctx = test_own(mlc_ctx_create(&d));
    mlc_memory     before, steady, after;
    int64_t        ids[64];
    char          *text = (char *)calloc(1, 1 << 20);
    mlc_memory_info(ctx, &before);
    mlc_tokenizer *t = mlc_tokenizer_bpe(ctx, JSON, MERGES, NULL);
    CHECK_EQ(mlc_tokenizer_encode(t, "the gradient \xFF", 14, ids, 64) > 2, true);
    mlc_memory_info(ctx, &steady);
    for (int i = 0; i < 9; i++)
        CHECK(mlc_tokenizer_encode(t, "of a tensor \xFF", 13, ids, 64) > 2);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.calls, steady.calls);
    /* A word of a megabyte does not fit below the limit; shorter ones still do. */
    if (!CHECK(text != NULL)) return;
    memset(text, 'e', 1 << 20);
    CHECK_EQ(mlc_tokenizer_encode(t, text, 1 << 20, ids, 64), -1);
    CHECK_STATUS(ctx, MLC_ERR_NOMEM);
    CHECK_EQ(mlc_tokenizer_encode(t, text, 26, ids, 64) > 2, true);
    CHECK_OK(ctx);
    mlc_tokenizer_free(t);
    mlc_memory_info(ctx, &after);
    CHECK_EQ(after.allocated, before.allocated);
    free(text);
}

TEST(text, a_tokenizer_lives_in_a_fixed_block)
{
    mlc_ctx_desc d = test_desc();
    d.memory_bytes = 512 * 1024;
    d.memory = test_aligned_alloc(64, d.memory_bytes);
    d.threads = 1;
    mlc_ctx           *ctx = mlc_ctx_create(&d);
    mlc_tokenizer_desc td = mlc_tokenizer_desc_make();
    int64_t            ids[8];
    td.cache = 100;
    mlc_tokenizer *t = mlc_tokenizer_bpe(ctx, JSON, MERGES, &td);
    mlc_tokenizer *w = mlc_tokenizer_wordpiece(ctx, VOCAB, NULL);
    CHECK(mlc_tokenizer_encode(t, "the net", 7, ids, 8) >= 2);
    CHECK_EQ(mlc_tokenizer_encode(w, "the net", 7, ids, 8) >= 2, true);
    CHECK_OK(ctx);
    mlc_ctx_free(ctx);
    test_aligned_free(d.memory);
}
