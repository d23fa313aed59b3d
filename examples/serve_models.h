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

enum { GPT_CONTEXT = 256, GPT_WINDOW = 64, GPT_BATCH = 32 };

static inline mlc_module *digits_net(mlc_ctx *ctx) { return split_net(ctx, 16); }

static inline bool digits_train(mlc_module *net, const char *csv, int epochs)
{
    enum { BATCH = 64 };
    split s;
    return split_load(mlc_module_ctx(net), "serve", csv, BATCH, &s) &&
           split_train(net, &s, BATCH, epochs, 1, 2e-3) == MLC_OK;
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
