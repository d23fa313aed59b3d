/* Going on from a run file, then training: whatever the file, all of the training is old or new,
 * and what was taken from it does not harm what follows. The first byte says how the file is made:
 * of the bytes that follow, or the file of a training with numbers of its data replaced, each by
 * ten bytes: which one, two bytes, and what by; what a fuzzer of bytes alone would not get to. */
#include "fuzz.h"

#include <math.h>

enum { ROWS = 11, BATCH = 3, MOST = 64 * 1024 };

/* fuzz_run_hash: of all that a run file would have. */
uint64_t fuzz_run_hash(mlc_ctx *ctx, const mlc_run *run);

static mlc_module     *net;
static mlc_optim      *opt;
static mlc_loader     *train, *held;
static mlc_dataset    *rows;
static mlc_fit_metric  metrics[2];
static mlc_callback   *callbacks[2];
static int64_t         seen[2];
static uint8_t         file[MOST];     /* of the training in its second epoch */
static size_t          bytes;

static mlc_status see(void *user, mlc_event e, mlc_fit_state *s)
{
    (void)user; (void)e;
    seen[0] = s->step;
    seen[1] = s->epoch;
    return MLC_OK;
}

static mlc_fit_state *begin(void)
{
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = 3;
    d.validation = held;
    d.metrics = metrics;
    d.n_metrics = 2;
    d.callbacks = callbacks;
    d.n_callbacks = 2;
    return mlc_fit_begin(net, opt, train, &d);
}

static void make_callbacks(void)
{
    static const mlc_run_part part = {"seen", seen, sizeof seen};
    mlc_callback c;
    memset(&c, 0, sizeof c);
    c.name = "see";
    c.events = 1u << MLC_EVENT_BATCH_END;
    c.on = see;
    c.parts = &part;
    c.n_parts = 1;
    callbacks[0] = mlc_callback_create(fuzz_ctx, &c);
    callbacks[1] = mlc_on_early_stop(fuzz_ctx, NULL);
}

static void make_training(void)
{
    float           x[ROWS * 3];
    int64_t         y[ROWS];
    const mlc_sched sched = mlc_sched_cosine(40, 0.1);
    for (int i = 0; i < ROWS * 3; i++) x[i] = (float)(i * 7 % 5) - 2;
    for (int i = 0; i < ROWS; i++) y[i] = i % 2;
    mlc_tensor *const fields[2] = {mlc_from(fuzz_ctx, MLC_F32, mlc_dims2(ROWS, 3), x),
                                   mlc_from(fuzz_ctx, MLC_I64, mlc_dims1(ROWS), y)};
    net = MLC_SEQUENTIAL(fuzz_ctx, mlc_nn_linear(fuzz_ctx, 3, 4), mlc_nn_batch_norm(fuzz_ctx, 4),
                         mlc_nn_dropout(fuzz_ctx, 0.2), mlc_nn_linear(fuzz_ctx, 4, 2));
    opt = mlc_adamw(net, 0.01);
    mlc_optim_accumulate(opt, 2);
    mlc_optim_scaler(opt, NULL);
    mlc_ema(opt, 0.9);
    mlc_optim_schedule(opt, MLC_KNOB_LR, &sched);
    mlc_loader_from_desc d = mlc_loader_from_desc_make(BATCH);
    d.shuffle = true;
    rows = mlc_dataset_tensors(fuzz_ctx, fields, 2);
    train = mlc_loader_from(fuzz_ctx, rows, &d);
    held = mlc_loader_shuffled(fuzz_ctx, fields[0], fields[1], 5);
    metrics[0].name = "accuracy";
    metrics[0].metric = mlc_metric_accuracy(fuzz_ctx);
    metrics[1].name = "AUC";
    metrics[1].metric = mlc_metric_auc(fuzz_ctx, 2);
    make_callbacks();
}

/* The file of a training that has come to its second epoch, where FUZZ_RUN_SEED says, too. */
static void make_file(void)
{
    const char *path = getenv("FUZZ_RUN_SEED");
    char        own[] = "/tmp/fuzz-run-XXXXXX";
    const int   fd = path ? -1 : mkstemp(own);
    if (fd >= 0) close(fd);
    mlc_fit_state *s = begin();
    for (int i = 0; i < 8; i++) mlc_fit_step(s);
    const mlc_run run = mlc_fit_run(s);
    if (mlc_run_save(fuzz_ctx, path ? path : own, &run) != MLC_OK) fuzz_fail("no file");
    FILE *f = fopen(path ? path : own, "rb");
    bytes = f ? fread(file, 1, sizeof file, f) : 0;
    if (!f || bytes == sizeof file || fclose(f) != 0) fuzz_fail("the file is too large");
    if (!path) unlink(own);
    mlc_fit_end(s, NULL);
}

/* Copies the file, with numbers of its data, or characters of its header, replaced. */
static size_t edited(uint8_t *to, const uint8_t *edit, size_t n)
{
    static const double reals[] = {-1, 0, 1e300, -1e-300, (double)INFINITY, (double)NAN, 1e19, 0.5};
    static const int64_t whole[] = {-1, 0, 1, INT64_MAX, INT64_MIN, INT64_MAX - 1, 1 << 30, 4};
    uint64_t header;
    memcpy(&header, file, sizeof header);
    memcpy(to, file, bytes);
    for (; n >= 11; edit += 11, n -= 11) {
        const size_t at = ((size_t)edit[1] | (size_t)edit[2] << 8) % ((bytes - 8 - header) / 8);
        uint8_t     *number = to + 8 + header + 8 * at;
        if (edit[0] < 80) memcpy(number, &whole[edit[3] % 8], 8);
        else if (edit[0] < 160) memcpy(number, &reals[edit[3] % 8], 8);
        else if (edit[0] < 250) memcpy(number, edit + 3, 8);
        else to[8 + ((size_t)edit[1] | (size_t)edit[2] << 8) % header] = edit[3];
    }
    return bytes;
}

/* Training goes on and ends: errors have a text, and the first file brings all back. */
static void go_on(mlc_fit_state *s)
{
    for (int i = 0; i < 3 && mlc_fit_step(s); i++) {}
    if (mlc_ctx_status(fuzz_ctx) != MLC_OK && mlc_error(fuzz_ctx)[0] == 0)
        fuzz_fail("an error without a text");
    mlc_error_clear(fuzz_ctx);
    mlc_fit_end(s, NULL);
    mlc_error_clear(fuzz_ctx);
    mlc_optim_zero_grad(opt);
    s = begin();
    if (mlc_fit_resume(s, fuzz_file(file, bytes)) != MLC_OK)
        fuzz_fail("the training's own file is refused");
    mlc_fit_end(s, NULL);
}

static void prepare(void)
{
    mlc_ctx_desc c;
    memset(&c, 0, sizeof c);
    c.threads = 1;
    fuzz_ctx = mlc_ctx_create(&c);
    make_training();
    make_file();
    mlc_fit_state *s = begin();
    while (mlc_fit_step(s)) {}         /* what is taken once has been taken then */
    go_on(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t copy[MOST];
    if (size == 0) return 0;
    if (!fuzz_ctx) prepare();
    const bool     edits = (data[0] & 1) != 0;
    const uint8_t *from = edits ? copy : data + 1;
    const size_t   n = edits ? edited(copy, data + 1, size - 1) : size - 1;
    fuzz_begin();
    mlc_fit_state *s = begin();
    mlc_run        run = mlc_fit_run(s);
    if (data[0] & 2) run.fit = NULL;
    if (data[0] & 4) run.optim = NULL;
    const mlc_run  all = mlc_fit_run(s);
    const uint64_t before = fuzz_run_hash(fuzz_ctx, &all);
    const char    *path = fuzz_file(from, n);
    const mlc_status st = data[0] & 6 ? mlc_run_load(fuzz_ctx, path, &run) :
                                        mlc_fit_resume(s, path);
    const mlc_status stands = mlc_ctx_status(fuzz_ctx);
    if (st != stands) fuzz_fail("a load returns another status");
    if (st != MLC_OK && mlc_error(fuzz_ctx)[0] == 0) fuzz_fail("an error without a text");
    mlc_error_clear(fuzz_ctx);
    if (st != MLC_OK && fuzz_run_hash(fuzz_ctx, &all) != before)
        fuzz_fail("a failed load changed the training");
    go_on(s);
    fuzz_end(n, false);
    return 0;
}
