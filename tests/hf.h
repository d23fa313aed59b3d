/* hf.h -- small models of Hugging Face's transformers: tests/golden/make_language_goldens.py
 *
 * k is a place in hf_name; the loss is that of which the goldens have gradients.
 */
#ifndef HF_H
#define HF_H

#include "mlc_test.h"

#include <stdio.h>

enum { HF_VOCAB = 61, HF_WIDTH = 16, HF_HEADS = 4, HF_BATCH = 2, HF_T = 9 };

static const char *const hf_name[3] = {"gpt2", "llama", "bert"};

static inline mlc_module *hf_net(mlc_ctx *ctx, int k)
{
    mlc_nn_gpt_desc  g = k == 1 ? mlc_nn_gpt_desc_llama(HF_VOCAB, 64, 2, HF_WIDTH, HF_HEADS)
                                : mlc_nn_gpt_desc_make(HF_VOCAB, 64, 2, HF_WIDTH, HF_HEADS);
    mlc_nn_bert_desc b = mlc_nn_bert_desc_make(HF_VOCAB, 64, 2, HF_WIDTH, HF_HEADS);
    if (k == 1) {
        g.layer.hidden = 24;
        g.layer.kv_heads = 2;
    }
    b.layer.hidden = 24;
    g.layer.dropout = b.layer.dropout = 0;
    return k == 2 ? mlc_nn_bert(ctx, &b) : mlc_nn_gpt(ctx, &g);
}

static inline const mlc_rename *hf_renames(int k, int32_t *n)
{
    return k == 0 ? mlc_rename_gpt2(n) : k == 1 ? mlc_rename_llama(n) : mlc_rename_bert(n);
}

/* Values of a golden into a network; end: "", or "_grad" of gradients. */
static inline mlc_status hf_load(mlc_module *net, int k, const char *end)
{
    mlc_load_desc d = mlc_load_desc_make();
    char          path[64];
    snprintf(path, sizeof path, "tests/golden/%s%s.safetensors", hf_name[k], end);
    d.renames = hf_renames(k, &d.n_renames);
    d.cast = true;
    return mlc_load_ex(net, path, &d);
}

/* Like y: (37 i + seed) mod 101, scaled to [-1, 1]. */
static inline mlc_tensor *hf_target(mlc_tensor *y, int seed)
{
    static double v[HF_BATCH * HF_T * HF_WIDTH];
    for (int64_t i = 0; i < mlc_numel(y); i++)
        v[i] = (double)((i * 37 + seed) % 101) / 50.0 - 1.0;
    return test_tensor(y->ctx, y->dtype, mlc_dims_of(y->ndim, y->shape), v);
}

/* Outputs, of which there are one or two, and the loss. */
static inline mlc_tensor *hf_run(mlc_module *net, int k, mlc_tensor **y)
{
    mlc_ctx     *ctx = mlc_module_ctx(net);
    const double lengths[2] = {HF_T, 6};
    double       types[HF_BATCH * HF_T];
    mlc_tensor  *x = test_tokens(ctx, mlc_dims2(HF_BATCH, HF_T), HF_VOCAB, 1);
    mlc_tensor  *in[3] = {x, NULL, NULL};
    if (k < 2) {
        y[0] = mlc_forward(net, x);
        return mlc_cross_entropy(mlc_slice(y[0], 1, 0, HF_T - 1, 1), mlc_slice(x, 1, 1, HF_T, 1));
    }
    for (int i = 0; i < HF_BATCH * HF_T; i++)
        types[i] = i % HF_T > 3;
    in[1] = test_tensor(ctx, MLC_I64, mlc_dims2(HF_BATCH, HF_T), types);
    in[2] = test_tensor(ctx, MLC_I64, mlc_dims1(2), lengths);
    CHECK_EQ(mlc_module_forward(net, in, 3, y, 2), MLC_OK);
    return mlc_add(mlc_mse_loss(y[0], hf_target(y[0], 1)), mlc_mse_loss(y[1], hf_target(y[1], 2)));
}

#endif
