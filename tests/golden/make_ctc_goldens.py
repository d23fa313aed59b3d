#!/usr/bin/env python3
"""Writes tests/golden/ctc.safetensors: what PyTorch computes of F.ctc_loss.

Needs torch and safetensors; run once from anywhere, the results are committed:
    python3 tests/golden/make_ctc_goldens.py
The header of the file names the torch version that made it. Of case number K:
    K.x       f32, f64: logits [b,t,c] (time_first: [t,b,c]), of which log_softmax is taken;
              bf16: logarithms of probabilities, rounded
    K.targets, K.in, K.len      i64; targets [b,s] (what is beyond a length is -1) or in one row
    K.ints    reduction (mean, sum, none), blank, zero_infinity, time_first
    K.out, K.dy, K.dx           loss, what came in backward, gradient of x
All is computed in f64 and rounded once; the gradient of log_probs is PyTorch's less e^log_probs
dy, which it adds for the log_softmax that comes before.
"""
import pathlib
import random

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
MODES = ("mean", "sum", "none")
CASES = 36


def targets(rng, lens, c, blank, packed):
    """Labels with repeats, as rows and as PyTorch and the library are given them."""
    some = rng.sample([k for k in range(c) if k != blank], min(c - 1, rng.choice((1, 2, 50))))
    rows = [[rng.choice(some) for _ in range(n)] for n in lens]
    if packed:
        return torch.tensor(sum(rows, []), dtype=torch.int64)
    s = max(lens) + rng.randrange(3)
    rows = [r + [-1] * (s - len(r)) for r in rows]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), s)


def case(k, book):
    rng = random.Random(k)
    gen = torch.Generator().manual_seed(k)
    dtype = DTYPES[k % 3]
    b, t, c = rng.randint(1, 4), rng.choice((1, 3, 8, 17, 30)), rng.choice((2, 3, 5, 9))
    blank = rng.randrange(c)
    zero, first, packed, mode = k % 4 >= 2, k % 5 == 1, k % 4 == 1, k // 3 % 3
    ins = [rng.randint(0, t) if rng.random() < 0.5 else t for _ in range(b)]
    most = t + 2 if k % 6 >= 4 else max(1, t // 2)
    lens = [0 if rng.random() < 0.15 else rng.randint(0, most) for _ in range(b)]
    y = targets(rng, lens, c, blank, packed)
    x = (2 * torch.randn(b, t, c, generator=gen, dtype=torch.float64)).to(dtype)
    if dtype == torch.bfloat16:
        x = x.double().log_softmax(-1).to(dtype)
    leaf = x.double().requires_grad_()
    log_probs = leaf if dtype == torch.bfloat16 else leaf.log_softmax(-1)
    log_probs.retain_grad()
    n_in, n_y = torch.tensor(ins), torch.tensor(lens)
    out = F.ctc_loss(log_probs.transpose(0, 1), y, n_in, n_y, blank, MODES[mode], zero)
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    dy = (0.5 + torch.rand(out.shape, generator=gen, dtype=torch.float64)).to(wide)
    out.backward(dy.double())
    dx = leaf.grad
    if dtype == torch.bfloat16:
        each = dy.double().expand(b) / (torch.tensor(lens).clamp(min=1) * b if mode == 0 else 1)
        lost = F.ctc_loss(leaf.detach().transpose(0, 1), y, n_in, n_y, blank, "none").isinf()
        there = torch.arange(t)[None, :] < n_in[:, None]
        there = there & ~lost[:, None] if zero else there
        dx = dx - torch.where(there[..., None], leaf.detach().exp() * each[:, None, None],
                              torch.zeros(()))
    turn = (lambda v: v.transpose(0, 1).contiguous()) if first else (lambda v: v.contiguous())
    for name, value in (("x", turn(x)), ("targets", y), ("in", n_in), ("len", n_y),
                        ("ints", torch.tensor([mode, blank, int(zero), int(first)])),
                        ("out", out.detach().to(wide)), ("dy", dy), ("dx", turn(dx).to(dtype))):
        book[f"{k}.{name}"] = value.detach().contiguous()


def main():
    torch.set_num_threads(1)
    book = {}
    for k in range(CASES):
        case(k, book)
    path = HERE / "ctc.safetensors"
    note = f"tests/golden/make_ctc_goldens.py, torch {torch.__version__}"
    save_file(book, path, metadata={"made_by": note})
    path.chmod(0o644)
    print(f"{path.name}: {len(book)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
