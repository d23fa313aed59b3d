/* serve_models.h -- what serve.c serves: a CNN for digits, and a small GPT that reads bytes
 *
 * Weights come from a file; where there is none, the network is trained first, and written. */
#ifndef EXAMPLES_SERVE_MODELS_H
#define EXAMPLES_SERVE_MODELS_H

#include "../mlcore.h"
#include "corpus.h"
#include "digits.h"

#include <signal.h>
#include <stdio.h>

enum { DIGITS_CLASSES = 10, GPT_CONTEXT = 256, GPT_WINDOW = 64, GPT_BATCH = 32 };

/* Pixels [n,64] from 0 to 1, by rows, to logits [n,10]. */
static inline mlc_module *digits_net(mlc_ctx *ctx)
{
    return MLC_SEQUENTIAL(ctx, mlc_nn_unflatten(ctx, 1, mlc_dims3(1, 8, 8)),
                          mlc_nn_conv2d(ctx, 1, 16, 3, 1, 1), mlc_nn_batch_norm(ctx, 16),
                          mlc_nn_relu(ctx), mlc_nn_conv2d(ctx, 16, 32, 3, 1, 1),
                          mlc_nn_batch_norm(ctx, 32), mlc_nn_relu(ctx),
                          mlc_nn_max_pool2d(ctx, 2), mlc_nn_flatten(ctx),
                          mlc_nn_linear(ctx, 512, DIGITS_CLASSES));
}

static inline bool digits_train(mlc_module *net, const char *csv, int epochs)
{
    enum { BATCH = 64 };
    mlc_ctx *ctx = mlc_module_ctx(net);
    split    s;
    if (!split_load(ctx, "serve", csv, BATCH, &s)) return false;
    mlc_loader_desc rows = mlc_loader_desc_make(s.x[0], s.y[0], BATCH);
    mlc_fit_desc    how  = mlc_fit_desc_make(mlc_cross_entropy);
    const mlc_sched fall = mlc_sched_cosine(mlc_dim(s.x[0], 0) / BATCH * epochs, 0);
    rows.shuffle = rows.drop_last = true;
    rows.seed    = 1;
    how.epochs   = epochs;
    mlc_loader *loader = mlc_loader_create(ctx, &rows);
    mlc_optim  *opt    = mlc_adamw(net, 2e-3);
    mlc_optim_schedule(opt, MLC_KNOB_LR, &fall);
    const bool ok = mlc_fit(net, opt, loader, &how, NULL) == MLC_OK;
    mlc_optim_free(opt);
    mlc_loader_free(loader);
    return ok;
}

/* Bytes i64 [n,t] to logits [n,t,256]. */
static inline mlc_module *gpt_net(mlc_ctx *ctx)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(256, GPT_CONTEXT, 2, 64, 2);
    return mlc_nn_gpt(ctx, &d);
}

/* Has somebody asked for the end, by a signal that waits? */
static inline bool end_wanted(void)
{
    sigset_t set;
    return sigpending(&set) == 0 && (sigismember(&set, SIGINT) == 1 ||
                                     sigismember(&set, SIGTERM) == 1);
}

/* False: it failed, or a signal ends it. */
static inline bool gpt_steps(mlc_module *net, mlc_loader *learn, mlc_optim *opt, int steps)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    for (int step = 0; step < steps; step++) {
        mlc_batch b;
        if (end_wanted()) return false;
        while (!mlc_loader_next(learn, &b))              /* an epoch ends, or it fails          */
            if (mlc_ctx_status(ctx) != MLC_OK) return false;
        mlc_scope_begin(ctx);
        mlc_optim_minimize(opt, mlc_cross_entropy(mlc_forward(net, b.x), b.y));
        if (mlc_scope_end(ctx) != MLC_OK) return false;
    }
    return true;
}

static inline bool gpt_train(mlc_module *net, const char *path, int steps)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    corpus   c   = { NULL, 0, 0, { 0 } };
    if (!corpus_read(&c, path)) {
        fprintf(stderr, "serve: %s cannot be read\n", path);
        free(c.token);
        return false;
    }
    for (int64_t i = 0; i < c.n; i++) c.token[i] = c.byte[c.token[i]];
    mlc_scope_begin(ctx);                                /* loaders copy what they are made of  */
    mlc_loader *learn = windows(ctx, &c, 0, c.n, GPT_WINDOW, GPT_WINDOW, GPT_BATCH, true);
    bool        ok    = mlc_scope_end(ctx) == MLC_OK;
    mlc_optim  *opt   = ok ? mlc_adamw(net, 3e-3) : NULL;
    ok = ok && opt && gpt_steps(net, learn, opt, steps);
    mlc_optim_free(opt);
    mlc_loader_free(learn);
    free(c.token);
    return ok;
}

/* Is there a file? Then net takes its weights; *ok: they were taken. */
static inline bool weights_are_there(mlc_module *net, const char *path, bool *ok)
{
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    fclose(f);
    *ok = mlc_load(net, path) == MLC_OK;
    return true;
}

#endif
