/* text.c -- an LSTM reads the bytes of short texts of different lengths, and says which are praise
 *   build   make build/tasks/text
 *           cc -O2 -I. -DMLCORE_IMPLEMENTATION examples/tasks/text.c -lm -pthread -o text
 *   run     ./text                                                                            */
#include "mlcore.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 400, MOST = 64 };

/* Texts as bytes, each with its length and label.                                             */
static mlc_dataset *texts(mlc_ctx *ctx)
{
    static const char *const words[2][4] = { { "bad", "awful", "poor", "dreadful" },
                                             { "good", "great", "lovely", "superb" } };
    static const char *const things[5] = { "film", "book", "meal", "play", "song" };
    static int64_t bytes[TEXTS * MOST], length[TEXTS], label[TEXTS];
    mlc_tokenizer *tokenizer = mlc_tokenizer_bytes(ctx, NULL);
    int64_t n = 0;
    for (int i = 0; i < TEXTS; n += length[i++]) {
        char text[MOST];
        snprintf(text, MOST, i / 2 % 3 == 0 ? "what a %s, so very %s indeed" : "the %s was %s",
                 things[i / 2 % 5], words[i % 2][i / 10 % 4]);
        length[i] = mlc_tokenizer_encode(tokenizer, text, strlen(text), bytes + n, MOST);
        label[i] = i % 2;
    }
    return mlc_dataset_ragged(ctx, mlc_from(ctx, MLC_I64, mlc_dims1(n), bytes),
                              mlc_from(ctx, MLC_I64, mlc_dims1(TEXTS), length),
                              mlc_from(ctx, MLC_I64, mlc_dims1(TEXTS), label));
}

static mlc_tensor *forward(void *user, mlc_module *net, const mlc_batch *b, mlc_tensor **output)
{
    mlc_tensor *x = mlc_forward(mlc_module_child(net, 0), b->x), *y, *state[2];
    (void)user;
    mlc_rnn_forward(mlc_module_child(net, 1), x, b->length[0], NULL, &y, state);
    *output = mlc_forward(mlc_module_child(net, 2), mlc_select(state[0], 0, 0));
    return mlc_cross_entropy(*output, b->y);
}

int main(void)
{
    static const double shares[2] = { 0.8, 0.2 };
    mlc_ctx     *ctx = mlc_ctx_create(NULL);
    mlc_dataset *part[2];
    mlc_split_rows_desc s = mlc_split_rows_desc_make(shares, 2);
    mlc_dataset_split(ctx, texts(ctx), &s, part);
    mlc_loader_from_desc l = mlc_loader_from_desc_make(16);
    mlc_loader *validation = mlc_loader_from(ctx, part[1], &l);
    l.shuffle = true;
    mlc_loader *train = mlc_loader_from(ctx, part[0], &l);
    mlc_module *net = MLC_SEQUENTIAL(ctx, mlc_nn_embedding(ctx, 256, 16),
                                     mlc_nn_lstm(ctx, 16, 32), mlc_nn_linear(ctx, 32, 2));
    mlc_fit_metric accuracy = { "accuracy", mlc_metric_accuracy(ctx), true };
    mlc_tracker   *history;
    mlc_fit_desc   d = mlc_fit_desc_make(NULL);
    d.forward = forward;
    d.epochs = 6;
    d.validation = validation;
    d.metrics = &accuracy, d.n_metrics = 1;
    mlc_fit(net, mlc_adam(net, 1e-2), train, &d, &history);
    mlc_tracker_print(history, NULL, NULL);
    MLC_CHECK(ctx);
    mlc_tracker_free(history);
    mlc_ctx_free(ctx);
}
