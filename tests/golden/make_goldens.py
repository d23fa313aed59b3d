#!/usr/bin/env python3
"""Writes tests/golden/{loss,optim,train}.safetensors: what PyTorch computes of these.

Needs torch, numpy and safetensors; run once from anywhere, the results are committed:
    python3 tests/golden/make_goldens.py
The header of each file names the torch version that made it. Names are
    <operation>.<dtype>.<case>.<part>
with parts a, b, c (inputs), ints, s (integer and float arguments), out, and where there is a
gradient dy, da, db, dc. An input named a.T is used transposed (last two axes), a.S sliced
(last axis, [1::2]); what is stored, and what da is the gradient of, is the tensor itself.
"""
import copy
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "f64": torch.float64}
VIEWS = {"": lambda t: t, ".T": lambda t: t.transpose(-1, -2), ".S": lambda t: t[..., 1::2]}


class Book:
    """Collects cases of one file; every case draws from its own seed, so cases can be added."""

    def __init__(self):
        self.tensors = {}
        self.count = {}

    def rand(self, op, dtype, shape, low, high):
        shape = (shape,) if isinstance(shape, int) else shape
        seed = sum(ord(ch) * (i + 1) for i, ch in enumerate(op + str(shape))) + 1
        gen = torch.Generator().manual_seed(seed)
        values = torch.rand(shape, generator=gen, dtype=torch.float64) * (high - low) + low
        return values.to(DTYPES[dtype])

    def case(self, op, dtype, inputs, call, grad=True, **extra):
        """inputs: list of (tensor, view suffix); call gets the views."""
        number = self.count.setdefault((op, dtype), 0)
        self.count[op, dtype] += 1
        name = f"{op}.{dtype}.{number}"
        leaves = [t.clone() for t, _ in inputs]
        grad = grad and all(t.dtype.is_floating_point for t in leaves[:1])
        for t in leaves:
            t.requires_grad_(grad and t.dtype.is_floating_point)
        out = call(*[VIEWS[view](t) for t, (_, view) in zip(leaves, inputs)])
        for letter, t, (_, view) in zip("abc", leaves, inputs):
            self.put(f"{name}.{letter}{view}", t)
        for part, value in extra.items():
            self.put(f"{name}.{part}", value)
        self.put(f"{name}.out", out)
        if grad:
            dy = self.rand("dy" + op, dtype, tuple(out.shape), -1, 1).to(out.dtype)
            out.backward(dy)
            self.put(f"{name}.dy", dy)
            for letter, t in zip("abc", leaves):
                if t.requires_grad:
                    self.put(f"{name}.d{letter}", t.grad)

    def put(self, name, value):
        if isinstance(value, list):
            value = torch.tensor(value, dtype=torch.int64)
        elif isinstance(value, float):
            value = torch.tensor(value, dtype=torch.float64)
        assert name not in self.tensors, name
        self.tensors[name] = value.detach().clone().contiguous()

    def save(self, file):
        note = f"tests/golden/make_goldens.py, torch {torch.__version__}"
        save_file(self.tensors, HERE / file, metadata={"made_by": note})
        (HERE / file).chmod(0o644)
        print(f"{file}: {len(self.tensors)} tensors, {(HERE / file).stat().st_size} bytes")


def losses(book, dtype):
    modes = ("mean", "sum", "none")
    for mode_number, mode in enumerate(modes):
        for shape in ((3, 5), (7,), ()):
            x = book.rand("mse_x", dtype, shape, -2, 2)
            t = book.rand("mse_t", dtype, shape, -2, 2)
            book.case("mse_loss", dtype, [(x, ""), (t, "")],
                      lambda x, t: F.mse_loss(x, t, reduction=mode), ints=[mode_number])
        for smoothing, ignore in ((0.0, None), (0.1, None), (0.0, 2), (0.3, -100), (1.0, 0)):
            for shape, view in (((6, 5), ""), ((5, 6), ".T"), ((5,), ""), ((6, 1), "")):
                cross_entropy_case(book, dtype, shape, view, mode, smoothing, ignore)
    big = torch.tensor([[1e4, -1e4, 0], [88, 89, 90], [-1e4, -1e4, -1e4]], dtype=DTYPES[dtype])
    y = torch.tensor([0, 1, 2])
    book.case("cross_entropy", dtype, [(big, ""), (y, "")], F.cross_entropy, ints=[0, 0, 0], s=0.0)
    g = torch.tensor([[1, 2, 3], [1, 2, 0]], dtype=DTYPES[dtype])
    y = torch.tensor([2, 0])
    for eps in (0.0, 0.1):                            # formats.md 5.4: .9076059 and .9576059
        book.case("cross_entropy", dtype, [(g, ""), (y, "")],
                  lambda x, y: F.cross_entropy(x, y, label_smoothing=eps), ints=[0, 0, 0], s=eps)


def cross_entropy_case(book, dtype, shape, view, mode, smoothing, ignore):
    x = book.rand("xent", dtype, shape, -3, 3)
    n, c = (6, shape[1] if shape[0] == 6 else 5) if len(shape) == 2 else (0, 5)
    labels = torch.tensor([3, 0, 2, 4, 1, 2])[:n] % c if n else torch.tensor(3)
    if ignore is not None and n:
        labels[1] = ignore
        labels = torch.where((labels >= c) & (labels != ignore), 0, labels)
    index = ignore if ignore is not None else -(10**6)
    ints = [("mean", "sum", "none").index(mode), int(ignore is not None), ignore or 0]
    book.case("cross_entropy", dtype, [(x, view), (labels, "")],
              lambda x, y: F.cross_entropy(x, y, reduction=mode, label_smoothing=smoothing,
                                           ignore_index=index), ints=ints, s=smoothing)


def optimizers(book):
    """100 steps on sum w p^2 in f64: parts p0, w, and p1, p10, p100 after so many steps."""
    made = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, dampening=0.1,
                                                  weight_decay=0.05),
        "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.8, nesterov=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
        "adam_betas": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-4),
        "adam_beta0": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.0, 0.99)),
    }
    w = torch.tensor([0.5, 1, 2, 0.1, 1e-3, 3, 0], dtype=torch.float64)
    p0 = torch.tensor([1, -2, 3, -0.5, 4, 0.01, 2], dtype=torch.float64)
    book.put("w", w)
    book.put("p0", p0)
    for name, make in made.items():
        p = p0.clone().requires_grad_()
        opt = make([p])
        for step in range(1, 101):
            opt.zero_grad()
            (w * p * p).sum().backward()
            opt.step()
            if step in (1, 10, 100):
                book.put(f"{name}.p{step}", p)


def training(book):
    """The digits network: weights at the start, the first 100 losses, those of bf16 autocast."""
    rows = np.loadtxt(HERE.parent.parent / "examples/data/digits.csv", delimiter=",",
                      comments="#", dtype=np.float32)
    rows = rows[rows[:, 65] == 0]
    x, y = torch.from_numpy(rows[:, :64] / 16), torch.from_numpy(rows[:, 64]).long()
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    for name, p in net.named_parameters():
        book.put(f"start.{name}", p)
    book.put("losses", digits_losses(copy.deepcopy(net), x, y, False))
    book.put("losses_bf16", digits_losses(net, x, y, True))


def digits_losses(net, x, y, autocast):
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batches = len(x) // 32                            # drop_last, file order
    values = []
    for step in range(100):
        row = step % batches * 32
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(x[row:row + 32]), y[row:row + 32])
        opt.zero_grad()
        loss.backward()
        opt.step()
        values.append(loss.item())
    return torch.tensor(values, dtype=torch.float64)


def main():
    torch.set_num_threads(1)
    loss, optim, train = Book(), Book(), Book()
    for dtype in DTYPES:
        losses(loss, dtype)
    optimizers(optim)
    training(train)
    loss.save("loss.safetensors")
    optim.save("optim.safetensors")
    train.save("train.safetensors")


if __name__ == "__main__":
    main()
