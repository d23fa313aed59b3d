/* estimates.c -- mlc_estimate_memory against what steps take, for the networks of bench.c
 *
 *   run     make bench-estimates     or: build/estimates [--most BYTES]
 *   prints  a table in Markdown, a row for each batch of 1, 2, 4, .. 128 whose estimate is BYTES at
 *           most (default 4e9), and the largest distance
 *   exit    1: it is over 5 %, or a step fails
 *
 * A row is a context of its own: an estimate, then two steps with AdamW, the first of which makes
 * packs of weights. Both figures are peaks of all that the context has in use, its own structs
 * included.                                                                                   */
#include "../tests/resnet20.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 128, WORST = 5 };       /* the largest batch; percent                           */

/* ---- networks ------------------------------------------------------------------------------- */

static mlc_module *mlp(mlc_ctx *ctx)
{
    static const int64_t width[4] = { 784, 512, 512, 10 };
    mlc_module *net = mlc_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) {
        if (i) mlc_module_add(net, mlc_nn_relu(ctx));
        mlc_module_add(net, mlc_nn_linear(ctx, width[i], width[i + 1]));
    }
    return net;
}

static mlc_module *encoder(mlc_ctx *ctx)
{
    mlc_nn_transformer_desc d = mlc_nn_transformer_desc_make(384, 6);
    d.hidden = 1536;
    d.dropout = 0;
    d.act = MLC_ACT_GELU;
    d.norm_first = true;
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_transformer_encoder(ctx, &d, 6));
    mlc_module_add(net, mlc_nn_linear(ctx, d.embed, 64));
    return net;
}

static mlc_module *gpt(mlc_ctx *ctx, int64_t t, int64_t layers, int64_t embed, int64_t heads)
{
    mlc_nn_gpt_desc d = mlc_nn_gpt_desc_make(65, t, layers, embed, heads);
    d.layer.dropout = 0;
    return mlc_nn_gpt(ctx, &d);
}

static mlc_module *gpt_small(mlc_ctx *ctx) { return gpt(ctx, 64, 4, 128, 4); }
static mlc_module *gpt_large(mlc_ctx *ctx) { return gpt(ctx, 256, 6, 384, 6); }

static mlc_module *rnn(mlc_ctx *ctx, mlc_rnn_kind kind)
{
    mlc_nn_rnn_desc d = mlc_nn_rnn_desc_make(kind, 128, 256);
    d.layers = 2;
    mlc_module *net = mlc_nn_sequential(ctx);
    mlc_module_add(net, mlc_nn_embedding(ctx, 65, 128));
    mlc_module_add(net, mlc_nn_rnn_ex(ctx, &d));
    mlc_module_add(net, mlc_nn_linear(ctx, 256, 65));
    return net;
}

static mlc_module *lstm(mlc_ctx *ctx) { return rnn(ctx, MLC_RNN_LSTM); }
static mlc_module *gru(mlc_ctx *ctx)  { return rnn(ctx, MLC_RNN_GRU); }

typedef struct network {
    const char *name;
    mlc_module *(*make)(mlc_ctx *ctx);
    mlc_dtype   dtype;                 /* of the input                                         */
    mlc_dims    x, y;                  /* of a batch of one: input, labels                     */
    bool        stack;                 /* its first child has the layers that are recomputed   */
} network;

static const network networks[] = {
    { "net_mlp_784_512_512_10", mlp, MLC_F32, { { 1, 784 }, 2 }, { { 1 }, 1 }, false },
    { "net_resnet20", resnet20, MLC_F32, { { 1, 3, 32, 32 }, 4 }, { { 1 }, 1 }, false },
    { "net_encoder_6x384_h6_t256", encoder, MLC_F32, { { 1, 256, 384 }, 3 }, { { 1, 256 }, 2 },
      true },
    { "gpt_4x128_h4_t64", gpt_small, MLC_I64, { { 1, 64 }, 2 }, { { 1, 64 }, 2 }, false },
    { "gpt_6x384_h6_t256", gpt_large, MLC_I64, { { 1, 256 }, 2 }, { { 1, 256 }, 2 }, false },
    { "rnn_lstm_2x256_t64", lstm, MLC_I64, { { 1, 64 }, 2 }, { { 1, 64 }, 2 }, false },
    { "rnn_gru_2x256_t64", gru, MLC_I64, { { 1, 64 }, 2 }, { { 1, 64 }, 2 }, false },
};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* ---- a row ---------------------------------------------------------------------------------- */

typedef struct row {
    const network *net;
    bool           low, again;         /* autocast to bf16; each child or layer is recomputed  */
    int64_t        batch;
    double         said, took;         /* bytes                                                */
} row;

static mlc_dims sized(mlc_dims d, int64_t batch)
{
    d.v[0] = batch;
    return d;
}

static mlc_status step(const row *r, mlc_module *net, mlc_optim *opt)
{
    mlc_ctx *ctx = mlc_module_ctx(net);
    mlc_scope_begin(ctx);
    mlc_tensor *x = mlc_zeros(ctx, r->net->dtype, sized(r->net->x, r->batch));
    mlc_tensor *y = mlc_zeros(ctx, MLC_I64, sized(r->net->y, r->batch));
    if (r->low) mlc_autocast_begin(ctx, MLC_BF16);
    mlc_tensor *loss = mlc_cross_entropy(mlc_forward(net, x), y);
    if (r->low) mlc_autocast_end(ctx);
    mlc_backward(loss);
    mlc_optim_step(opt);
    return mlc_scope_end(ctx);
}

static mlc_status estimate(const row *r, mlc_module *net, mlc_memory *said)
{
    mlc_estimate_desc d = mlc_estimate_desc_make(mlc_cross_entropy, mlc_adamw);
    d.input = r->net->dtype;
    d.target_shape = sized(r->net->y, r->batch);
    d.has_target_shape = true;
    d.autocast = r->low ? MLC_BF16 : MLC_F32;
    d.has_autocast = r->low;
    return mlc_estimate_memory(net, sized(r->net->x, r->batch), &d, said);
}

/* took is 0 if the estimate is over `most`; false: it failed. */
static bool measure(row *r, double most)
{
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    mlc_module *net = r->net->make(ctx);
    mlc_memory m;
    memset(&m, 0, sizeof m);
    mlc_module_recompute(r->net->stack ? mlc_module_child(net, 0) : net, r->again);
    mlc_status st = estimate(r, net, &m);
    r->said = (double)m.peak;
    r->took = 0;
    if (st == MLC_OK && r->said <= most) {
        mlc_optim *opt = mlc_adamw(net, 1e-3);
        mlc_memory_peak_reset(ctx);
        for (int i = 0; i < 2 && st == MLC_OK; i++) st = step(r, net, opt);
        mlc_memory_info(ctx, &m);
        r->took = (double)m.peak;
    }
    if (st != MLC_OK)
        fprintf(stderr, "%s: %s\n", r->net->name, ctx ? mlc_error(ctx) : "no context");
    mlc_ctx_free(ctx);
    return st == MLC_OK;
}

static double apart(const row *r) { return 100 * (r->said / r->took - 1); }

static void print(const row *r)
{
    printf("| %s | %s | %s | %d | %.2f | %.2f | %.2f |\n", r->net->name, r->low ? "bf16" : "f32",
           r->again ? "each" : "none", (int)r->batch, r->said * 1e-6, r->took * 1e-6, apart(r));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    double most = 4e9;
    row    r, worst;
    if (argc == 3 && strcmp(argv[1], "--most") == 0) most = atof(argv[2]);
    else if (argc != 1) return fprintf(stderr, "usage: %s [--most BYTES]\n", argv[0]), 2;
    memset(&worst, 0, sizeof worst);
    printf("| network | type | recomputed | batch | estimate MB | measured MB | apart %% |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < 4 * NETWORKS; i++) {
        r.net = &networks[i / 4];
        r.low = i & 1;
        r.again = i & 2;
        for (r.batch = 1; r.batch <= BATCH; r.batch *= 2) {
            if (!measure(&r, most)) return 1;
            if (r.took <= 0) break;
            print(&r);
            if (!worst.net || fabs(apart(&r)) > fabs(apart(&worst))) worst = r;
        }
    }
    if (!worst.net) return fprintf(stderr, "no estimate is %g bytes at most\n", most), 1;
    printf("\nlargest distance: %.2f %%, of\n\n", fabs(apart(&worst)));
    print(&worst);
    return fabs(apart(&worst)) > WORST;
}
