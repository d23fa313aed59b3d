#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: what PyTorch computes, for the C tests to compare with.

Needs torch, numpy and safetensors; run once from anywhere, the results are committed:
    python3 tests/golden/make_goldens.py
The header of each file names the torch version that made it. Names are
    <operation>.<dtype>.<case>.<part>
with parts a, b, c (inputs), ints, s (integer and float arguments), out, and where there is a
gradient dy, da, db, dc. An input named a.T is used transposed (last two axes), a.S sliced
(last axis, [1::2]); what is stored, and what da is the gradient of, is the tensor itself.
"""
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "f64": torch.float64}
VIEWS = {"": lambda t: t, ".T": lambda t: t.transpose(-1, -2), ".S": lambda t: t[..., 1::2]}

UNARY_SHAPES = [(13, ""), ((5, 7), ""), ((), ""), ((0, 3), ""), (1, ""), ((3, 2, 5), ".T"),
                ((3, 9), ".S")]
SPECIAL = [float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e4, -1e4, 1e30, -1e30, 88.5,
           89.0, -87.0, -104.0, 1e-30, -1e-30, 9.5, -9.5, 0.5]
BINARY_SHAPES = [
    ((13,), "", (13,), ""), ((3, 5), "", (5,), ""), ((3, 1, 5), "", (1, 4, 1), ""),
    ((), "", (2, 3), ""), ((0, 3), "", (1, 3), ""), ((1,), "", (1, 1), ""),
    ((4, 3), ".T", (3, 4), ""), ((2, 9), ".S", (4, 2), ".T"), ((3, 4), "", (3, 1), ""),
]
REDUCE_CASES = [
    ((13,), "", [], 0), ((3, 5), "", [], 1), ((3, 5), "", [0], 0), ((3, 5), "", [-1], 1),
    ((2, 3, 5), "", [0, 2], 0), ((2, 3, 5), "", [1], 0), ((2, 3, 5), ".T", [1], 0),
    ((3, 9), ".S", [-1], 0), ((), "", [], 0), ((2, 1, 3, 2), "", [3, 1], 1),
]
EMPTY_REDUCE_CASES = [((0, 3), "", [], 0), ((0, 3), "", [0], 0), ((0, 3), "", [1], 1)]
MATMUL_SHAPES = [
    ((3, 5), "", (5, 7), ""), ((5,), "", (5,), ""), ((5,), "", (5, 4), ""), ((3, 5), "", (5,), ""),
    ((2, 3, 5), "", (2, 5, 4), ""), ((2, 3, 5), "", (5, 4), ""), ((3, 5), "", (2, 5, 4), ""),
    ((2, 1, 3, 4), "", (3, 4, 2), ""), ((5, 3), ".T", (7, 5), ".T"), ((3, 11), ".S", (5, 4), ""),
    ((3, 0), "", (0, 4), ""), ((0, 3), "", (3, 4), ""), ((1, 1), "", (1, 1), ""),
    ((2, 3, 5), "", (5,), ""), ((5,), "", (2, 5, 4), ""),
]
LINEAR_SHAPES = [
    ((3, 5), "", (4, 5), ""), ((2, 3, 5), "", (4, 5), ""), ((5,), "", (4, 5), ""),
    ((5, 3), ".T", (5, 4), ".T"), ((0, 5), "", (4, 5), ""),
]
VIEW_CASES = {
    "reshape": [((2, 6), "", [3, 4]), ((2, 6), "", [-1]), ((3, 4), ".T", [2, 6]), ((1,), "", [])],
    "flatten": [((2, 3, 4), "", [1]), ((2, 3, 4), ".T", [0])],
    "permute": [((2, 3, 4), "", [2, 0, 1]), ((3, 4), ".T", [1, 0])],
    "transpose": [((2, 3, 4), "", [0, 2]), ((2, 3, 4), "", [-1, -2])],
    "slice": [((5, 7), "", [1, 1, 6, 2]), ((5, 7), "", [0, -3, 2**62, 1]),
              ((7,), "", [0, 5, 2, 1])],
    "select": [((3, 4), "", [0, 1]), ((3, 4), "", [-1, -1])],
    "expand": [((3, 1), "", [3, 4]), ((3, 1), "", [2, -1, 5]), ((), "", [2, 2])],
    "contiguous": [((3, 4), ".T", []), ((3, 4), "", [])],
    "copy": [((3, 4), ".T", []), ((3, 9), ".S", [])],
}


def slice_of(x, args):
    axis, start, stop, step = args
    index = [slice(None)] * x.dim()
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


UNARY = {
    "neg": (torch.neg, -3, 3), "exp": (torch.exp, -3, 3), "log": (torch.log, 0.2, 4),
    "sqrt": (torch.sqrt, 0.2, 4), "tanh": (torch.tanh, -3, 3), "sigmoid": (torch.sigmoid, -4, 4),
    "relu": (torch.relu, -2, 2), "gelu": (F.gelu, -4, 4), "silu": (F.silu, -4, 4),
}
BINARY = {
    "add": (torch.add, -2, 2), "sub": (torch.sub, -2, 2), "mul": (torch.mul, -2, 2),
    "div": (torch.div, 0.5, 2), "pow": (torch.pow, 0.3, 2.5),
}
REDUCE = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": lambda x, dim, keepdim: torch.amax(x, dim or list(range(x.dim())), keepdim=keepdim),
}
VIEW = {
    "reshape": lambda x, v: x.reshape(v), "flatten": lambda x, v: x.flatten(v[0]),
    "permute": lambda x, v: x.permute(v), "transpose": lambda x, v: x.transpose(*v),
    "slice": slice_of, "select": lambda x, v: x.select(*v), "expand": lambda x, v: x.expand(v),
    "contiguous": lambda x, v: x.contiguous(), "copy": lambda x, v: x.clone(),
}


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


def elementwise(book, dtype):
    for op, (f, low, high) in UNARY.items():
        for shape, view in UNARY_SHAPES:
            book.case(op, dtype, [(book.rand(op, dtype, shape, low, high), view)], f)
        special = torch.tensor(SPECIAL, dtype=torch.float64).to(DTYPES[dtype])
        if op in ("gelu", "silu"):               # infinity minus infinity there: not pinned down
            special = special[torch.isfinite(special)]
        book.case(op, dtype, [(special, "")], f, grad=False)
    for op, (f, low, high) in BINARY.items():
        for sa, va, sb, vb in BINARY_SHAPES:
            a = book.rand(op + "a", dtype, sa, low, high)
            b = book.rand(op + "b", dtype, sb, low, high)
            book.case(op, dtype, [(a, va), (b, vb)], f)
    a = torch.tensor([0, 0, 0, 2, 1.5, 0.25], dtype=DTYPES[dtype])
    b = torch.tensor([0, 1, 2, 0, -1.5, 0.5], dtype=DTYPES[dtype])
    book.case("pow", dtype, [(a, ""), (b, "")], torch.pow)
    a = torch.tensor([-2, -2, -0.5, 0], dtype=DTYPES[dtype])
    b = torch.tensor([3, 2, -1, -1], dtype=DTYPES[dtype])
    book.case("pow", dtype, [(a, ""), (b, "")], torch.pow, grad=False)
    for op, f in (("add_scalar", torch.add), ("mul_scalar", torch.mul)):
        for shape, view in UNARY_SHAPES:
            a = book.rand(op, dtype, shape, -2, 2)
            book.case(op, dtype, [(a, view)], lambda t, f=f: f(t, -0.75), s=-0.75)


def reductions(book, dtype):
    for op, f in REDUCE.items():
        for shape, view, axes, keep in REDUCE_CASES + (EMPTY_REDUCE_CASES if op != "max" else []):
            a = book.rand(op, dtype, shape, -2, 2)
            book.case(op, dtype, [(a, view)], lambda t: f(t, axes, keepdim=bool(keep)),
                      ints=axes, s=float(keep))
    ties = torch.tensor([[1, 3, 3], [2, 2, 2], [0, -1, 0]], dtype=DTYPES[dtype])
    book.case("max", dtype, [(ties, "")], lambda t: torch.amax(t, 1), ints=[1], s=0.0)
    book.case("max", dtype, [(ties, "")], lambda t: torch.amax(t, (0, 1)), ints=[], s=0.0)
    nan = torch.tensor([[1, float("nan")], [float("-inf"), 2]], dtype=DTYPES[dtype])
    book.case("max", dtype, [(nan, "")], lambda t: torch.amax(t, 1), grad=False, ints=[1], s=0.0)
    for t in (ties, nan):
        for axis in (0, 1):
            book.case("argmax", dtype, [(t, "")], lambda t: torch.argmax(t, axis), grad=False,
                      ints=[axis])
    a = book.rand("argmax", dtype, (3, 4, 5), -1, 1)
    for axis in (0, 1, -1):
        book.case("argmax", dtype, [(a, ".T")], lambda t: torch.argmax(t, axis), grad=False,
                  ints=[axis])


def products(book, dtype):
    for sa, va, sb, vb in MATMUL_SHAPES:
        a = book.rand("matmul_a", dtype, sa, -1, 1)
        b = book.rand("matmul_b", dtype, sb, -1, 1)
        book.case("matmul", dtype, [(a, va), (b, vb)], torch.matmul)
    acts = [lambda t: t, torch.relu, F.gelu, torch.tanh, torch.sigmoid, F.silu]
    for xs, xv, ws, wv in LINEAR_SHAPES:
        x = book.rand("linear_x", dtype, xs, -1, 1)
        w = book.rand("linear_w", dtype, ws, -1, 1)
        b = book.rand("linear_b", dtype, (4,), -1, 1)
        book.case("linear", dtype, [(x, xv), (w, wv), (b, "")], F.linear)
        book.case("linear", dtype, [(x, xv), (w, wv)], F.linear)
        for number, act in enumerate(acts):
            book.case("linear_ex", dtype, [(x, xv), (w, wv), (b, "")],
                      lambda x, w, b: act(F.linear(x, w, b)), ints=[number])


def views(book, dtype):
    for op, cases in VIEW_CASES.items():
        for shape, view, ints in cases:
            a = book.rand(op, dtype, shape, -2, 2)
            stored = [2**63 - 1 if i == 2**62 else i for i in ints]
            book.case(op, dtype, [(a, view)], lambda t: VIEW[op](t, ints), ints=stored)
    a = torch.tensor([1.9, -1.9, 0.0, 2.5, -2.5, 1e10], dtype=DTYPES[dtype])
    book.case("cast", dtype, [(a, "")], lambda t: t.to(torch.int64), grad=False, ints=[2])
    tie = torch.tensor([1 + 2**-24, 1 + 3 * 2**-24, 1e-3, -7.1], dtype=DTYPES[dtype])
    for code, to in ((0, torch.float32), (1, torch.float64)):
        book.case("cast", dtype, [(tie, "")], lambda t: t.to(to, copy=True), ints=[code])


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
    """The digits network: weights at the start, the first 100 losses, weights at the end."""
    rows = np.loadtxt(HERE.parent.parent / "examples/data/digits.csv", delimiter=",",
                      comments="#", dtype=np.float32)
    rows = rows[rows[:, 65] == 0]
    x, y = torch.from_numpy(rows[:, :64] / 16), torch.from_numpy(rows[:, 64]).long()
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    for name, p in net.named_parameters():
        book.put(f"start.{name}", p)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batches = len(x) // 32                            # drop_last, file order
    values = []
    for step in range(100):
        row = step % batches * 32
        loss = F.cross_entropy(net(x[row:row + 32]), y[row:row + 32])
        opt.zero_grad()
        loss.backward()
        opt.step()
        values.append(loss.item())
    book.put("losses", torch.tensor(values, dtype=torch.float64))


def main():
    torch.set_num_threads(1)
    ops, loss, optim, train = Book(), Book(), Book(), Book()
    for dtype in DTYPES:
        elementwise(ops, dtype)
        reductions(ops, dtype)
        products(ops, dtype)
        views(ops, dtype)
        losses(loss, dtype)
    optimizers(optim)
    training(train)
    ops.save("ops.safetensors")
    loss.save("loss.safetensors")
    optim.save("optim.safetensors")
    train.save("train.safetensors")


if __name__ == "__main__":
    main()
