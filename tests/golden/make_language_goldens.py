"""Makes gpt2.safetensors, llama.safetensors, bert.safetensors, a file of gradients beside each, and
language.safetensors: small models of Hugging Face's transformers.

    python3 tests/golden/make_language_goldens.py    (PyTorch, transformers, safetensors)

The first are state dicts as save_pretrained writes them; gradients have the same names. Of each
model: outputs, 20 losses of SGD, and of GPT-2 and Llama 50 greedy tokens and beams of texts. All is computed in f64
from weights that f32 holds; Llama's norms and angles, which transformers always makes in f32, are
replaced by their formulas in f64.
"""
import os
import shutil
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, CONTEXT, WIDTH, HEADS, LAYERS, HIDDEN = 61, 64, 16, 4, 2, 24
BATCH, T, STEPS, RATE, PROMPT, TOKENS = 2, 9, 20, 0.01, 5, 50

BEAMS = ((2, 1.0, [60]), (3, 0.5, [48, 37]), (4, 2.0, [57, 15, 58]), (5, -1.0, [44, 22]))


def ids(b, t, seed):
    i = torch.arange(b * t)
    return ((i * i * 7 + 3 * i + seed) % VOCAB).view(b, t)


def targets(shape, seed):
    n = 1
    for size in shape:
        n *= size
    i = torch.arange(n)
    return (((i * 37 + seed) % 101).double() / 50.0 - 1.0).view(shape)


def norm_in_f64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def angles_in_f64(self, x, position_ids):
    n = WIDTH // HEADS
    rate = 10000.0 ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    angle = position_ids[..., None].double() * rate
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


transformers.models.llama.modeling_llama.LlamaRMSNorm.forward = norm_in_f64
transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.forward = angles_in_f64


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, initializer_range=0.3,
        attn_implementation="eager"))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, rms_norm_eps=1e-5,
        max_position_embeddings=CONTEXT, initializer_range=0.3, tie_word_embeddings=False,
        attn_implementation="sdpa"))


def bert():
    return transformers.BertModel(transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=HIDDEN, max_position_embeddings=CONTEXT, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, initializer_range=0.3, attn_implementation="eager"))


def run(name, net):
    """Outputs, and a loss of them."""
    x = ids(BATCH, T, 1)
    if name != "bert":
        y = net(x).logits
        return [y], F.cross_entropy(y[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))
    mask = torch.arange(T)[None, :] < torch.tensor([T, 6])[:, None]
    out = net(x, attention_mask=mask.long(), token_type_ids=(torch.arange(T) > 3).long().expand(
        BATCH, T))
    h, pooled = out.last_hidden_state, out.pooler_output
    return [h, pooled], (F.mse_loss(h, targets(h.shape, 1)) +
                         F.mse_loss(pooled, targets(pooled.shape, 2)))


def main():
    result = {}
    for name, make in (("gpt2", gpt2), ("llama", llama), ("bert", bert)):
        torch.manual_seed(7)
        net = make().float()
        with torch.no_grad():              # biases and gains start as one number
            for i, p in enumerate(net.parameters()):
                if p.ndim == 1:
                    p.add_(targets(p.shape, i).float() * 0.25)
        with tempfile.TemporaryDirectory() as folder:
            net.save_pretrained(folder)
            shutil.copy(os.path.join(folder, "model.safetensors"), f"{HERE}/{name}.safetensors")
        kept = load_file(f"{HERE}/{name}.safetensors")
        net = net.double().train()
        opt = torch.optim.SGD(net.parameters(), lr=RATE)
        if name != "bert":
            with torch.no_grad():
                text = ids(1, PROMPT, 2)
                for _ in range(TOKENS):
                    text = torch.cat([text, net(text).logits[:, -1:].argmax(2)], 1)
            result[f"{name}.greedy"] = text[0, PROMPT:].contiguous()
            for beams, power, stop in BEAMS:
                out = net.generate(ids(BATCH, PROMPT, 2), num_beams=beams, length_penalty=power,
                                   max_new_tokens=12, do_sample=False, eos_token_id=stop,
                                   pad_token_id=VOCAB - 1, return_dict_in_generate=True,
                                   output_scores=True)
                text = torch.full((BATCH, 12), VOCAB - 1)
                text[:, :out.sequences.shape[1] - PROMPT] = out.sequences[:, PROMPT:]
                result[f"{name}.beams{beams}"] = text.contiguous()
                result[f"{name}.scores{beams}"] = out.sequences_scores.double().contiguous()
        losses = []
        for step in range(STEPS):
            opt.zero_grad()
            y, loss = run(name, net)
            loss.backward()
            losses.append(loss.item())
            if step == 0:
                for i, t in enumerate(y):
                    result[f"{name}.y{i}"] = t.detach().contiguous()
                grads = dict(net.named_parameters())
                save_file({k: grads[k].grad.contiguous() for k in kept},
                          f"{HERE}/{name}_grad.safetensors")
            opt.step()
        result[f"{name}.losses"] = torch.tensor(losses, dtype=torch.float64)
    save_file(result, f"{HERE}/language.safetensors")


if __name__ == "__main__":
    main()
