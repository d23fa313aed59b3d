/* fit.c -- the same training by mlc_fit and by hand: every parameter has the same bits
 *
 *   build   make build/fit, or: cc -O2 examples/fit.c mlcore.o -o fit -lm -pthread
 *   run     ./fit             from the folder of mlcore.h
 *
 * What mlc_fit does, a program can do itself: for each batch a scope, a forward, a loss and
 * mlc_optim_minimize. Dropout draws from the context's generator, batches come in shuffled order;
 * both are the same again, as each training has a context of its own, of the same seed.        */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 64, CLASSES = 10, BATCH = 32, EPOCHS = 5 };

typedef struct training {
    mlc_ctx    *ctx;
    mlc_loader *loader;
    mlc_module *net;
    mlc_optim  *opt;
} training;

static training begin(void)
{
    training t;
    t.ctx = mlc_ctx_create(NULL);                                    /* of seed 0, as always   */
    mlc_tensor *data = mlc_csv_load(t.ctx, "examples/data/digits.csv", NULL);
    mlc_tensor *x = mlc_mul_scalar(mlc_slice(data, 1, 0, PIXELS, 1), 1.0 / 16);
    mlc_tensor *y = mlc_cast(mlc_select(data, 1, PIXELS), MLC_I64);
    t.loader = mlc_loader_shuffled(t.ctx, x, y, BATCH);
    t.net = MLC_SEQUENTIAL(t.ctx, mlc_nn_linear(t.ctx, PIXELS, 128), mlc_nn_relu(t.ctx),
                           mlc_nn_dropout(t.ctx, 0.2), mlc_nn_linear(t.ctx, 128, CLASSES));
    t.opt = mlc_adamw(t.net, 1e-3);
    return t;
}

static mlc_status train_by_fit(training *t)
{
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    d.epochs = EPOCHS;
    return mlc_fit(t->net, t->opt, t->loader, &d, NULL);
}

static mlc_status train_by_hand(training *t)
{
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (mlc_batch b; mlc_loader_next(t->loader, &b);) {
            mlc_scope_begin(t->ctx);
            mlc_optim_minimize(t->opt, mlc_cross_entropy(mlc_forward(t->net, b.x), b.y));
            if (mlc_scope_end(t->ctx) != MLC_OK) return MLC_ERR_STATE;
        }
    return mlc_ctx_status(t->ctx);
}

/* Parameters of both, byte by byte, as mlc_state_save writes them. */
static bool same_bits(training *a, training *b, long long *bytes)
{
    const size_t n = mlc_state_bytes(a->net);
    char *state = (char *)calloc(2, n);
    bool  same  = state && n == mlc_state_bytes(b->net) &&
                  mlc_state_save(a->net, state, n) == MLC_OK &&
                  mlc_state_save(b->net, state + n, n) == MLC_OK &&
                  memcmp(state, state + n, n) == 0;
    free(state);
    *bytes = (long long)n;
    return same;
}

int main(int argc, char **argv)
{
    static const char   help[] = "usage: fit [options]\n  --help         this text\n";
    static const option none[] = { OPTION_END };
    int status = 0;
    if (!options_read("fit", help, none, argc, argv, &status)) return status;
    training   fit = begin(), hand = begin();
    mlc_status st = train_by_fit(&fit);
    long long  bytes = 0;
    bool       same = false;
    if (st != MLC_OK) fprintf(stderr, "fit: %s\n", mlc_error(fit.ctx));
    else if (train_by_hand(&hand) != MLC_OK) fprintf(stderr, "by hand: %s\n", mlc_error(hand.ctx));
    else {
        same = same_bits(&fit, &hand, &bytes);
        printf("%d epochs by mlc_fit and by hand: %lld bytes of parameters %s\n", (int)EPOCHS,
               bytes, same ? "are the same" : "DIFFER");
    }
    mlc_ctx_free(fit.ctx);
    mlc_ctx_free(hand.ctx);
    return same ? 0 : 1;
}
