/* State of an optimizer from a file, of a network from a block: whatever they have, the state is
 * all old or all new, and a step after it does no harm. The first byte says which rule. The second
 * one says what is read: the bytes that follow, or the rule's own file, or the network's own block,
 * with edits of four bytes each: where, two bytes, how, and what by. */
#include "fuzz.h"

enum { RULES = 11, MOST = 64 * 1024, IN = 20, OUT = 16 };

static mlc_module *net[RULES];
static mlc_optim  *opt[RULES];
static uint8_t     file[RULES][MOST];
static size_t      bytes[RULES];

static mlc_tensor *loss_of(void *user)
{
    mlc_tensor *x = mlc_ones(fuzz_ctx, MLC_F32, mlc_dims2(3, IN));
    return mlc_mean_all(mlc_square(mlc_forward((mlc_module *)user, x)));
}

static mlc_status step(int k)
{
    if (mlc_optim_needs_loss(opt[k])) return mlc_optim_step_with(opt[k], loss_of, net[k], NULL);
    return mlc_optim_minimize(opt[k], loss_of(net[k]));
}

static mlc_optim *rule(int k, mlc_module *m)
{
    mlc_adam_desc d = mlc_adam_desc_make(0.01);
    mlc_sgd_desc  s = mlc_sgd_desc_make(0.01);
    s.momentum = 0.9;
    d.moments = k == 2 ? MLC_MOMENTS_8BIT : MLC_MOMENTS_BF16;
    switch (k) {
    case 0:  return mlc_sgd_ex(m, &s);
    case 1:  return mlc_adamw(m, 0.01);
    case 2:
    case 3:  return mlc_adam_ex(m, &d);
    case 4:  return mlc_lbfgs(m, 0.5);
    case 5:  return mlc_adafactor(m, 0.01);
    case 6:  return mlc_muon(m, 0.01);
    case 7:  return mlc_nadam(m, 0.01);
    case 8:  return mlc_schedule_free_adamw(m, 0.01);
    case 9:  return mlc_amsgrad(m, 0.01);
    default: return mlc_rmsprop(m, 0.01);
    }
}

static void make_rule(int k)
{
    char      own[] = "/tmp/fuzz-optim-XXXXXX";
    const int fd = mkstemp(own);
    if (fd >= 0) close(fd);
    net[k] = MLC_SEQUENTIAL(fuzz_ctx, mlc_nn_linear(fuzz_ctx, IN, OUT), mlc_nn_tanh(fuzz_ctx),
                            mlc_nn_linear(fuzz_ctx, OUT, 2));
    opt[k] = rule(k, net[k]);
    if (k == 1) mlc_optim_accumulate(opt[k], 3);
    if (k == 1) mlc_ema(opt[k], 0.9);
    if (k == 1) mlc_optim_scaler(opt[k], NULL);
    for (int i = 0; i < 4; i++) {
        mlc_scope_begin(fuzz_ctx);
        step(k);
        if (mlc_scope_end(fuzz_ctx) != MLC_OK) fuzz_fail("no step");
    }
    if (mlc_optim_save(opt[k], own) != MLC_OK) fuzz_fail("no file");
    FILE *f = fopen(own, "rb");
    bytes[k] = f ? fread(file[k], 1, MOST, f) : 0;
    if (!f || bytes[k] == MOST || fclose(f) != 0) fuzz_fail("the file is too large");
    unlink(own);
}

static uint64_t hash_of(int k)
{
    uint64_t h = 14695981039346656037u;
    mlc_scope_begin(fuzz_ctx);
    mlc_optim_state_iter it = mlc_optim_state_iter_make(opt[k]);
    while (mlc_optim_state_next(&it)) {
        const size_t n = (size_t)mlc_numel(it.tensor) * mlc_dtype_bytes(it.tensor->dtype);
        uint8_t     *data = (uint8_t *)malloc(n + 1);
        if (!data || mlc_read(it.tensor, data, n) != MLC_OK) fuzz_fail("no data");
        for (const char *c = it.name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
        for (size_t i = 0; i < n; i++) h = (h ^ data[i]) * 1099511628211u;
        free(data);
    }
    mlc_scope_end(fuzz_ctx);
    return h;
}

/* The bytes with edits, in memory that ends with them; *n becomes their number. */
static uint8_t *edited(const uint8_t *from, size_t *n, const uint8_t *edit, size_t edits)
{
    uint8_t *to = (uint8_t *)malloc(*n), *cut;
    if (!to) abort();
    memcpy(to, from, *n);
    for (; edits >= 4 && *n; edit += 4, edits -= 4) {
        const size_t at = ((size_t)edit[0] | (size_t)edit[1] << 8) % *n;
        if (edit[2] % 4 == 0) *n = at;
        else if (edit[2] % 4 == 1) to[at] ^= edit[3];
        else if (edit[2] % 4 == 2) to[at] = edit[3];
        else memset(to + at, edit[3], *n - at < 8 ? *n - at : 8);
    }
    cut = (uint8_t *)malloc(*n ? *n : 1);
    if (!cut) abort();
    memcpy(cut, to, *n);
    free(to);
    return cut;
}

/* A block of the network's values, cut or changed. */
static void block(int k, const uint8_t *edit, size_t edits)
{
    size_t   n = mlc_state_bytes(net[k]);
    const size_t all = n;
    uint8_t *was = (uint8_t *)malloc(n), *now = (uint8_t *)malloc(n);
    if (!was || !now || mlc_state_save(net[k], was, n) != MLC_OK) fuzz_fail("no block");
    uint8_t *made = edited(was, &n, edit, edits);
    const uint64_t said = n;
    if (n >= 16 && edits && edit[edits - 1] % 2) memcpy(made + 8, &said, 8);
    const mlc_status st = mlc_state_load(net[k], made, n);
    if (st == MLC_OK && n != all) fuzz_fail("a block that is cut loads");
    const bool error = mlc_ctx_status(fuzz_ctx) != MLC_OK;
    mlc_error_clear(fuzz_ctx);
    if (mlc_state_save(net[k], now, all) != MLC_OK) fuzz_fail("no block");
    if (error && memcmp(was, now, all) != 0) fuzz_fail("a failed load changed the network");
    if (mlc_state_load(net[k], was, all) != MLC_OK) fuzz_fail("its own block is refused");
    free(made);
    free(now);
    free(was);
}

static void state(int k, uint8_t how, const uint8_t *data, size_t size)
{
    mlc_load_desc  d = mlc_load_desc_make();
    size_t         n = how & 1 ? size : bytes[k];
    uint8_t       *made = how & 1 ? edited(data, &n, data, 0) : edited(file[k], &n, data, size);
    const uint64_t before = hash_of(k);
    d.partial = (how & 4) != 0;
    d.cast = (how & 8) != 0;
    d.skip_mismatched = (how & 16) != 0;
    const mlc_status st = mlc_optim_load_ex(opt[k], fuzz_file(made, n), &d);
    if (st != mlc_ctx_status(fuzz_ctx)) fuzz_fail("a load returns another status");
    if (st != MLC_OK && mlc_error(fuzz_ctx)[0] == 0) fuzz_fail("an error without a text");
    mlc_error_clear(fuzz_ctx);
    if (st != MLC_OK && hash_of(k) != before) fuzz_fail("a failed load changed the optimizer");
    free(made);
    mlc_scope_begin(fuzz_ctx);
    step(k);
    mlc_error_clear(fuzz_ctx);
    mlc_scope_end(fuzz_ctx);
    mlc_error_clear(fuzz_ctx);
    mlc_optim_zero_grad(opt[k]);
    if (mlc_optim_load(opt[k], fuzz_file(file[k], bytes[k])) != MLC_OK)
        fuzz_fail("its own file is refused");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    if (!fuzz_ctx) {
        mlc_ctx_desc c;
        memset(&c, 0, sizeof c);
        c.threads = 1;
        fuzz_ctx = mlc_ctx_create(&c);
        for (int k = 0; k < RULES; k++) make_rule(k);
    }
    const int k = data[0] % RULES;
    if (data[1] & 2) block(k, data + 2, size - 2);
    else state(k, data[1], data + 2, size - 2);
    return 0;
}
