/* char_gpt.c -- a GPT that learns a text byte by byte, and goes on writing it
 *
 *   build   make build/char_gpt, or: cc -O2 examples/char_gpt.c mlcore.o -o char_gpt -lm -pthread
 *   run     ./char_gpt                 from the folder of mlcore.h; a minute and a half
 *           ./char_gpt --data my.txt   any text; the last tenth of it is held out
 *
 * The model is GPT-2's in small. An epoch reads the text in windows that overlap by three quarters;
 * how well the model knows the language is measured on the held-out part, in bits a byte. With
 * --run a training that was interrupted goes on from its file, with the same bits.             */
#include "../mlcore.h"
#include "corpus.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: char_gpt [options]\n"
    "  --data FILE    the text                        (examples/data/alice.txt)\n"
    "  --epochs N     passes over nine tenths of it   (5)\n"
    "  --layers N     of the model                    (4)\n"
    "  --width N      features, a multiple of 32      (128)\n"
    "  --context N    bytes that it sees at once      (64)\n"
    "  --batch N      windows in a step               (32)\n"
    "  --features N   attention by N random features  (0: exact)\n"
    "  --dtype TYPE   f32, or bf16: mixed precision   (bf16)\n"
    "  --run FILE     goes on from FILE-STEP.safetensors, writes them (none)\n"
    "  --plot FILE    the curves                      (char_gpt.svg)\n"
    "  --sample N     bytes to write                  (600)\n"
    "  --seed N       of first weights and orders     (1)\n"
    "  --help         this text\n";

typedef struct settings {
    const char *data, *run, *plot;
    int         epochs, layers, width, context, batch, features, sample, seed;
    mlc_dtype   dtype;
} settings;

/* ---- a sample */

static bool show(void *user, int64_t step, const int64_t *tokens, int64_t n)
{
    (void)step;
    (void)n;
    putchar(((const corpus *)user)->byte[tokens[0]]);
    return true;
}

/* The model goes on from the last bytes before the held-out part. */
static mlc_status sample(mlc_ctx *ctx, mlc_module *net, const settings *s, corpus *c, int64_t end)
{
    const int64_t     prompt = s->context / 4;
    int64_t           last[256], text[1024];           /* what the model goes on from, writes  */
    mlc_cache_desc    room = mlc_cache_desc_make(1, s->context);
    mlc_cache        *cache = mlc_cache_create(net, &room);
    mlc_generate_desc how = mlc_generate_desc_make(s->context - prompt);
    how.temperature = 0.8;
    how.top_p = 0.95;
    how.seed = (uint64_t)s->seed;
    mlc_status st = cache ? MLC_OK : mlc_ctx_status(ctx);
    how.out = text;
    memcpy(last, c->token + end - prompt, (size_t)prompt * sizeof *last);
    for (int64_t i = 0; i < prompt; i++) putchar(c->byte[last[i]]);
    fputs("|", stdout);                     /* from here on the model writes */
    for (int made = 0; made < s->sample && st == MLC_OK; made += (int)how.tokens) {
        mlc_scope_begin(ctx);
        mlc_tensor *x = mlc_from(ctx, MLC_I64, mlc_dims2(1, prompt), last);
        st = x ? mlc_generate(net, cache, x, &how, show, c) : mlc_ctx_status(ctx);
        memcpy(last, text + how.tokens - prompt, (size_t)prompt * sizeof *last);
        mlc_cache_reset(cache, 0);          /* the next text goes on from the end of this one */
        how.seed++;
        mlc_scope_end(ctx);
    }
    putchar('\n');
    mlc_cache_free(cache);
    return st;
}

/* ---- training */

static mlc_module *model(mlc_ctx *ctx, const settings *s, int64_t vocabulary)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(vocabulary, s->context, s->layers, s->width,
                                             s->width / 32);
    d.layer.dropout = 0.1;
    mlc_module       *net = mlc_nn_gpt(ctx, &d);
    mlc_features_desc f = mlc_features_desc_make();
    f.n = s->features;
    return net && f.n && mlc_features_install(net, &f, NULL) != MLC_OK ? NULL : net;
}

static mlc_optim *optimizer(mlc_module *net, int64_t steps)
{
    mlc_adam_desc   a = mlc_adamw_desc_make(2e-3);
    mlc_clip_desc   clip = mlc_clip_desc_make();
    const mlc_sched falls = mlc_sched_cosine(steps, 0.05), s = mlc_sched_warmup(steps / 20, &falls);
    a.weight_decay = 0.05;
    clip.norm = 1;
    mlc_optim *opt = mlc_adamw_ex(net, &a);
    if (opt) mlc_optim_clip(opt, &clip);
    if (opt) mlc_optim_schedule(opt, MLC_KNOB_LR, &s);
    return opt;
}

static mlc_status train(mlc_ctx *ctx, const settings *s, corpus *c)
{
    const int64_t t = s->context, end = c->n / 10 * 9;
    mlc_loader *learn = windows(ctx, c, 0, end, t, t / 4, s->batch, true);
    mlc_loader *held = windows(ctx, c, end, c->n, t, t, s->batch, false);
    mlc_module *net = learn && held ? model(ctx, s, c->vocabulary) : NULL;
    mlc_optim  *opt = net ? optimizer(net, s->epochs * mlc_loader_batches(learn)) : NULL;
    if (!opt) return mlc_ctx_status(ctx);
    printf("%s: %lld bytes, %lld kinds, %lld held out; %lld parameters\n", s->data,
           (long long)c->n, (long long)c->vocabulary, (long long)(c->n - end),
           (long long)mlc_module_numel(net, true));
    mlc_callback *calls[3] = { mlc_on_progress(ctx, NULL, NULL), NULL, NULL };
    mlc_fit_desc  d = mlc_fit_desc_make(mlc_cross_entropy);
    mlc_tracker  *history = NULL;
    d.epochs = s->epochs;
    d.validation = held;
    d.autocast = s->dtype;
    d.has_autocast = s->dtype != MLC_F32;
    d.callbacks = calls;
    d.n_callbacks = 1;
    if (s->run) {
        mlc_checkpoint_desc keep = mlc_checkpoint_desc_make(s->run);
        keep.resume = true;
        calls[d.n_callbacks++] = mlc_on_checkpoint(ctx, &keep);
    }
    mlc_status st = mlc_fit(net, opt, learn, &d, &history);
    const double loss = history ? mlc_tracker_last(history, "val_loss") : 0;
    if (st == MLC_OK) printf("held out: %.3f bits a byte\n\n", loss / log(2.0));
    if (st == MLC_OK) st = sample(ctx, net, s, c, end);
    if (st == MLC_OK && s->plot) st = mlc_tracker_plot(history, s->plot);
    if (st == MLC_OK && s->run) printf("wrote %s-*.safetensors\n", s->run);
    if (st == MLC_OK && s->plot) printf("wrote %s\n", s->plot);
    for (int i = 0; i < d.n_callbacks; i++) mlc_callback_free(ctx, calls[i]);
    mlc_tracker_free(history);
    return st;
}

/* Checks that the sizes fit together; returns NULL or the message. */
static const char *wrong(const settings *s, const corpus *c)
{
    if (s->width % 32) return "--width must be a multiple of 32, the features of a head";
    if (c->n / 10 < 2 * s->context) return "the text is shorter than 20 contexts";
    return NULL;
}

int main(int argc, char **argv)
{
    settings s = { "examples/data/alice.txt", NULL, "char_gpt.svg", 5, 4, 128, 64, 32, 0, 600, 1,
                   MLC_BF16 };
    corpus       c = { NULL, 0, 0, { 0 } };
    int          status = 0;
    const option list[] = {
        OPTION_TEXT("--data", &s.data), OPTION_TEXT("--run", &s.run),
        OPTION_TEXT("--plot", &s.plot), OPTION_NUMBER("--epochs", &s.epochs, 1, 10000),
        OPTION_NUMBER("--layers", &s.layers, 1, 48), OPTION_NUMBER("--width", &s.width, 32, 4096),
        OPTION_NUMBER("--context", &s.context, 8, 1024),
        OPTION_NUMBER("--batch", &s.batch, 1, 4096),
        OPTION_NUMBER("--features", &s.features, 0, 4096),
        OPTION_NUMBER("--sample", &s.sample, 0, 100000),
        OPTION_NUMBER("--seed", &s.seed, 0, 1000000), OPTION_DTYPE("--dtype", &s.dtype),
        OPTION_END };
    if (!options_read("char_gpt", HELP, list, argc, argv, &status)) return status;
    const bool  read = corpus_read(&c, s.data);
    const char *why = read ? wrong(&s, &c) : "the text cannot be read, or has one kind of byte";
    mlc_ctx_desc d = mlc_ctx_desc_make();
    d.seed = (uint64_t)s.seed;
    mlc_ctx *ctx = why ? NULL : mlc_ctx_create(&d);
    const bool ok = ctx && train(ctx, &s, &c) == MLC_OK;
    if (!ok) fprintf(stderr, "char_gpt: %s: %s\n", s.data,
                     why ? why : ctx ? mlc_error(ctx) : "no memory");
    mlc_ctx_free(ctx);
    free(c.token);
    return ok ? 0 : 1;
}
