/* Tokenizers: files of vocabularies and merges, and text through them. The first byte says which of
 * them comes from the input, the second and third how many bytes it has; the text is the rest. The
 * fourth chooses what invalid bytes do. */
#include "fuzz.h"

#define GOLDEN "tests/golden/text."

static mlc_tokenizer *made(uint8_t what, const uint8_t *data, size_t n, mlc_tokenizer_desc *d)
{
    switch (what % 6) {
    case 0: return mlc_tokenizer_wordpiece(fuzz_ctx, fuzz_file(data, n), d);
    case 1: return mlc_tokenizer_bpe(fuzz_ctx, fuzz_file(data, n), GOLDEN "merges.txt", d);
    case 2: return mlc_tokenizer_bpe(fuzz_ctx, GOLDEN "vocab.json", fuzz_file(data, n), d);
    case 3: return mlc_tokenizer_bpe(fuzz_ctx, GOLDEN "vocab.json", GOLDEN "merges.txt", d);
    case 4: return mlc_tokenizer_wordpiece(fuzz_ctx, GOLDEN "vocab.txt", d);
    default: return mlc_tokenizer_bytes(fuzz_ctx, d);
    }
}

/* Every token is found by its text, or by another id's of the same. */
static void walk(mlc_tokenizer *t)
{
    for (int64_t i = mlc_tokenizer_size(t); i-- > 0;) {
        size_t      n;
        const char *token = mlc_tokenizer_token(t, i, &n);
        if (!token || token[n]) fuzz_fail("a token is not there");
        if (strlen(token) == n && mlc_tokenizer_id(t, token) != i) fuzz_fail("a token is lost");
    }
}

/* Pieces are the text; where all bytes are tokens the text is what ids were of. */
static void through(mlc_tokenizer *t, const char *text, size_t n, const mlc_tokenizer_desc *d,
                    bool exact)
{
    const int64_t k = mlc_tokenizer_encode(t, text, n, NULL, 0);
    if (k < 0) return;
    int64_t      *ids = (int64_t *)malloc(((size_t)k + 1) * sizeof *ids);
    int64_t      *again = (int64_t *)malloc(((size_t)k + 1) * sizeof *ids);
    if (!ids || !again) abort();
    if (mlc_tokenizer_encode(t, text, n, ids, k) != k) fuzz_fail("another number of ids");
    fuzz_read(mlc_tokenizer_tensor(t, text, n));
    const int64_t bytes = mlc_tokenizer_decode(t, ids, k, NULL, 0);
    if (bytes < 0) fuzz_fail("own ids do not decode");
    char *back = (char *)malloc((size_t)bytes + 1);
    if (!back) abort();
    if (mlc_tokenizer_decode(t, ids, k, back, (size_t)bytes + 1) != bytes || back[bytes])
        fuzz_fail("another text");
    int64_t sum = 0;
    for (int64_t i = 0; i < k; i++) sum += mlc_tokenizer_piece(t, ids[i], i == 0, NULL, 0);
    if (sum != bytes) fuzz_fail("pieces are not the text");
    if (exact && d->invalid != MLC_INVALID_REPLACE &&
        ((size_t)bytes != n || memcmp(back, text, n) != 0))
        fuzz_fail("the text does not come back");
    if (exact && (mlc_tokenizer_encode(t, back, (size_t)bytes, again, k) != k ||
                  memcmp(again, ids, (size_t)k * sizeof *ids) != 0))
        fuzz_fail("the text has other ids");
    free(back);
    free(again);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const specials[] = {"<a>", "<a><b>", "\xC3\xA9", "[SEP]"};
    mlc_tokenizer_desc       d = mlc_tokenizer_desc_make();
    if (size < 4) return 0;
    const size_t rest = size - 4, most = (size_t)data[1] | (size_t)data[2] << 8;
    const size_t n = data[0] % 6 > 2 ? 0 : most < rest ? most : rest;
    d.keep_specials = true;
    d.invalid = (mlc_invalid)(data[3] % 3);
    d.lowercase = (data[3] & 4) != 0;
    d.strip_accents = (data[3] & 8) != 0;
    d.add_ends = (data[3] & 16) != 0;
    d.cache = data[3] & 32 ? 8 : 0;
    d.specials = data[3] & 64 ? specials : NULL;
    d.n_specials = data[3] & 64 ? 4 : 0;
    fuzz_begin();
    mlc_tokenizer *t = made(data[0], data + 4, n, &d);
    if (!t && mlc_ctx_status(fuzz_ctx) == MLC_OK) fuzz_fail("no tokenizer and no error");
    if (t) walk(t);
    if (t) through(t, (const char *)data + 4 + n, rest - n, &d, data[0] % 6 % 4 != 0);
    mlc_tokenizer_free(t);
    fuzz_end(size, false);
    return 0;
}
