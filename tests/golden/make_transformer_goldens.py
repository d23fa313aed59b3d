"""Makes transformer.safetensors: attention modules, encoders and decoders in f64.

    python3 tests/golden/make_transformer_goldens.py    (PyTorch, NumPy, safetensors)

Of each case: output, every gradient and 20 losses of SGD. Parameters and inputs are made by
`spread`, which golden.h has, too, in the stream of their name.
"""
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

E, HEADS, HIDDEN, LAYERS, BATCH, T, S, STEPS, RATE = 12, 3, 20, 2, 2, 5, 6, 20, 0.1
SRC_LENGTHS, MEMORY_LENGTHS = (5, 3), (4, 6)


def stream(name):
    """FNV-1a of a name, its lower 16 bits."""
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 & 0xffffffff
    return h & 0xffff


def spread(shape, name):
    """Numbers in [-1, 1): a hash of their index in 32 bits."""
    n = int(np.prod(shape))
    h = np.arange(1, n + 1, dtype=np.uint32) * np.uint32(2654435761)
    h += np.uint32(stream(name) * 40503 & 0xffffffff)
    h ^= h >> np.uint32(15)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    return torch.from_numpy(h.astype(np.float64) / 2.0**31 - 1.0).reshape(shape)


def fill(net):
    net = net.double().train()
    with torch.no_grad():
        for name, p in net.named_parameters():
            v = spread(p.shape, name)
            if p.ndim > 1:
                p.copy_(v * (3.0 / p.shape[1]) ** 0.5)
            else:
                p.copy_(v * 0.2 + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
    return net


def takes_part():
    """A boolean mask [T,T]: true takes part."""
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    return ((i * 7 + j * 4) % 5 != 0) | (i == j)


def padding(lengths, n):
    """PyTorch's key padding: true is left out."""
    return torch.arange(n)[None, :] >= torch.tensor(lengths)[:, None]


def causal():
    return torch.ones(T, T).tril().bool()


class Grouped(nn.Module):
    """A gated layer with RMS norms and two heads of queries to one of keys, norm first."""

    def __init__(self):
        super().__init__()
        self.self_attn = nn.Module()
        self.self_attn.in_proj_weight = nn.Parameter(torch.zeros(E + 2 * (E // 2), E))
        self.self_attn.out_proj = nn.Linear(E, E, bias=False)
        self.linear1 = nn.Linear(E, 2 * HIDDEN, bias=False)
        self.linear2 = nn.Linear(HIDDEN, E, bias=False)
        self.norm1, self.norm2 = (nn.RMSNorm(E, eps=1e-5) for _ in range(2))

    def attention(self, x):
        b, t = x.shape[:2]
        q, k, v = F.linear(x, self.self_attn.in_proj_weight).split([E, E // 2, E // 2], 2)
        q, k, v = (y.reshape(b, t, -1, E // 4).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1),
                                           causal())
        return self.self_attn.out_proj(y.transpose(1, 2).reshape(b, t, E))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        gate, up = self.linear1(self.norm2(x)).chunk(2, 2)
        return x + self.linear2(F.silu(gate) * up)


def case(out, name, net, run, inputs):
    net = fill(net)
    inputs = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    optim, losses = torch.optim.SGD(net.parameters(), RATE), []
    for step in range(STEPS):
        y = run(net, **inputs)
        loss = (y - spread(y.shape, "target")).square().mean()
        losses.append(loss.item())
        optim.zero_grad()
        loss.backward()
        if step == 0:
            out[f"{name}.y"] = y.detach().contiguous().clone()
            grads = {k: p.grad for k, p in net.named_parameters()}
            grads.update({k: v.grad for k, v in inputs.items()})
            for k, g in grads.items():
                out[f"{name}.grad.{k}"] = g.contiguous().clone()
        optim.step()
    out[f"{name}.losses"] = torch.tensor(losses, dtype=torch.float64)


def encoder(norm_first, act, final):
    layer = nn.TransformerEncoderLayer(E, HEADS, HIDDEN, 0.0, act, batch_first=True,
                                       norm_first=norm_first)
    return nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(E) if final else None,
                                 enable_nested_tensor=False)


def decoder(norm_first, final):
    layer = nn.TransformerDecoderLayer(E, HEADS, HIDDEN, 0.0, batch_first=True,
                                       norm_first=norm_first)
    return nn.TransformerDecoder(layer, LAYERS, nn.LayerNorm(E) if final else None)


def main():
    torch.manual_seed(0)
    out = {}
    x, memory = spread((BATCH, T, E), "x"), spread((BATCH, S, E), "memory")
    for norm_first in (False, True):
        where = "first" if norm_first else "last"
        case(out, f"encoder_{where}", encoder(norm_first, "gelu" if norm_first else "relu",
                                              norm_first),
             lambda net, x: net(x, ~takes_part(), padding(SRC_LENGTHS, T)), {"x": x})
        case(out, f"decoder_{where}", decoder(norm_first, norm_first),
             lambda net, x, memory: net(x, memory, ~causal(),
                                        memory_key_padding_mask=padding(MEMORY_LENGTHS, S)),
             {"x": x, "memory": memory})
    case(out, "attention", nn.MultiheadAttention(E, HEADS, batch_first=True),
         lambda net, x: net(x, x, x, need_weights=False)[0], {"x": x})
    case(out, "sizes", nn.MultiheadAttention(E, HEADS, kdim=7, vdim=9, batch_first=True),
         lambda net, x, key, value: net(x, key, value, need_weights=False)[0],
         {"x": x, "key": spread((BATCH, S, 7), "key"), "value": spread((BATCH, S, 9), "value")})
    case(out, "grouped", Grouped(), lambda net, x: net(x), {"x": x})
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(out, os.path.join(here, "transformer.safetensors"))
    print({k: v[[0, -1]].tolist() for k, v in out.items() if k.endswith("losses")})


if __name__ == "__main__":
    main()
