#!/usr/bin/env python3
"""Writes tests/golden/ops_*.safetensors: what PyTorch computes, case by case, for each operation.

Needs torch, numpy and safetensors; run once from anywhere, the results are committed:
    python3 tests/golden/make_op_goldens.py
NumPy computes what it has, too: where the two disagree, this program stops. A file holds for each
operation a text, <operation>.cases, and <operation>.<dtype>: the elements of that dtype of all its
cases, one after the other. A line of the text is a case, its first word the dtype it is about:
    f32 <f32[3,5]T <f32[5] #0,1 #1 =0.5 "ij,j" >f32[3,5] grad:11 diff
    <dtype[shape]   an input as stored; behind it how it is looked at: T transposed (last two axes),
                    S sliced (last axis, [1::2]), E repeated along a new first axis of 2
    #  =  "         a list of integers, a number, a text: arguments, in order
    >dtype[shape]   a result
    grad:11         gradients: 1 for each input that has one; diff: its f64 gradient has no kink here
Elements are stored in the order of the line: inputs, results, then for grad the gradient that comes
in (of every float result) and those of the stored inputs. bf16 and f16 are computed as f32 and
rounded once; PyTorch's own kernels are held against that, with its tolerances.
"""
import math
import pathlib
import warnings
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
TORCH = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "bf16": torch.bfloat16,
         "f16": torch.float16, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8,
         "bool": torch.bool}                          # in the order of enum mlc_dtype
NAME = {t: n for n, t in TORCH.items()}
FLOAT = ("f32", "f64", "bf16", "f16")
HALF = ("bf16", "f16")
INT = ("i64", "i32", "i8", "u8")
ANY = FLOAT + INT + ("bool",)
VIEWS = {"": lambda t: t, "T": lambda t: t.transpose(-1, -2), "S": lambda t: t[..., 1::2],
         "E": lambda t: t.expand(2, *t.shape)}
INF, NAN = float("inf"), float("nan")
FAR = 2**63 - 1


class Book:
    """The cases of one file."""

    def __init__(self, file):
        self.file, self.lines, self.values, self.serial = file, {}, {}, {}

    def rand(self, op, dtype, shape, low, high):
        """Uniform values; a draw depends on the operation and how many it had, not on others."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.serial[op, dtype] = self.serial.get((op, dtype), 0) + 1
        gen = torch.Generator().manual_seed(zlib.crc32(f"{op} {self.serial[op, dtype]}".encode()))
        v = torch.rand(shape, generator=gen, dtype=torch.float64) * (high - low) + low
        return v.to(TORCH[dtype]) if dtype in FLOAT else v.floor().to(TORCH[dtype])

    def put(self, op, t):
        self.values.setdefault((op, NAME[t.dtype]), []).append(t.detach().reshape(-1).clone())

    def case(self, op, dtype, inputs, call, ints=(), nums=(), text=None, grad=None, diff=True,
             native=True, numpy=None):
        """inputs: (tensor, layout) each; call takes the views and gives a result or a list.

        grad: None for every float input of a float dtype, or a string as in the text, or False.
        native: whether PyTorch's own bf16 and f16 must agree; "only": they are what is stored.
        """
        if grad is None:
            grad = "".join("01"[t.dtype.is_floating_point] for t, _ in inputs) \
                if dtype in FLOAT and inputs else False
        wide = dtype in HALF and native != "only"
        outs, dys, grads = self.compute(op, inputs, call, grad, wide)
        if wide and native:
            self.hold_native(op, inputs, call, outs)
        if numpy is not None and dtype not in HALF:
            hold_numpy(op, [VIEWS[v](t) for t, v in inputs], numpy, outs)
        words = [dtype] + [f"<{shape_of(t)}{view}" for t, view in inputs]
        words += ["#" + ",".join(str(int(i)) for i in group) for group in ints]
        words += [f"={float(s)!r}" for s in nums]
        words += [f'"{text}"'] if text is not None else []
        words += [f">{shape_of(t)}" for t in outs]
        if grad:
            words += [f"grad:{grad}"] + (["diff"] if diff and dtype == "f64" else [])
        self.lines.setdefault(op, []).append(" ".join(words))
        for t in [t for t, _ in inputs] + outs + dys + grads:
            self.put(op, t)

    def compute(self, op, inputs, call, grad, wide):
        half = NAME[inputs[0][0].dtype] if inputs else None
        half = half if half in HALF else next((NAME[t.dtype] for t, _ in inputs
                                               if NAME[t.dtype] in HALF), None)
        leaves = [t.float() if wide and t.dtype.is_floating_point else t.clone()
                  for t, _ in inputs]
        for i, t in enumerate(leaves):
            t.requires_grad_(bool(grad) and grad[i] == "1")
        outs = call(*[VIEWS[view](t) for t, (_, view) in zip(leaves, inputs)])
        outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
        narrow = [t.to(TORCH[half]) if wide and t.dtype == torch.float32 else t for t in outs]
        if not grad:
            return narrow, [], []
        if wide:                                     # what backward finds saved is rounded
            for o, n in zip(outs, narrow):
                if not torch.equal(o, n.to(o.dtype)):
                    o.data.copy_(n)
        dys = [self.rand("dy" + op, NAME[t.dtype], t.shape, -1, 1)
               for t in narrow if t.dtype.is_floating_point]
        pairs = [(o, dy.to(o.dtype)) for o, dy in
                 zip([o for o in outs if o.dtype.is_floating_point], dys) if o.requires_grad]
        torch.autograd.backward([o for o, _ in pairs], [dy for _, dy in pairs])
        grads = []
        for t, (first, _) in zip(leaves, inputs):
            if t.requires_grad:
                g = torch.zeros_like(t) if t.grad is None else t.grad
                grads.append(g.to(first.dtype))
        return narrow, dys, grads

    def hold_native(self, op, inputs, call, outs):
        try:
            own = call(*[VIEWS[view](t) for t, view in inputs])
        except (RuntimeError, NotImplementedError):   # it has no such kernel
            return
        own = list(own) if isinstance(own, (list, tuple)) else [own]
        for a, b in zip(own, outs):
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m: f"{op}: {m}")

    def save(self):
        tensors = {}
        for op, lines in self.lines.items():
            text = "\n".join(lines) + "\n"
            tensors[op + ".cases"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        for (op, dtype), parts in self.values.items():
            tensors[f"{op}.{dtype}"] = torch.cat(parts)
        note = f"make_op_goldens.py, torch {torch.__version__}, numpy {np.__version__}"
        path = HERE / f"ops_{self.file}.safetensors"
        save_file(tensors, path, metadata={"made_by": note})
        path.chmod(0o644)
        print(f"{path.name}: {len(self.lines)} operations, "
              f"{sum(map(len, self.lines.values()))} cases, {path.stat().st_size} bytes")


def shape_of(t):
    return f"{NAME[t.dtype]}[{','.join(map(str, t.shape))}]"


def hold_numpy(op, views, numpy, outs):
    with np.errstate(all="ignore"):
        got = numpy(*[v.numpy() for v in views])
    got = list(got) if isinstance(got, (list, tuple)) else [got]
    for a, b in zip(got, outs):
        a, b = np.asarray(a), b.detach().numpy()
        assert a.shape == b.shape, (op, a.shape, b.shape)
        tight = a.dtype == np.float64 and b.dtype == np.float64
        np.testing.assert_allclose(a.astype(b.dtype), b, err_msg=op, rtol=1e-11 if tight else 2e-5,
                                   atol=1e-13 if tight else 1e-6)


def tensor(values, dtype):
    return torch.tensor(values, dtype=torch.float64).to(TORCH[dtype])


def layouts(base):
    """Every way to look at these (shape, layout) pairs: cases of one input."""
    return [(shape, view) for shape, views in base for view in views]


# ---- elementwise -------------------------------------------------------------------------------

UNARY_CASES = [((19,), ""), ((5, 7), ""), ((), ""), ((0, 3), ""), ((2, 3, 4), "T"), ((3, 9), "S"),
               ((1, 3), "E")]
SPECIAL = [INF, -INF, NAN, 0.0, -0.0, 1e4, -1e4, 1e30, -1e30, 88.5, 89.0, -87.0, -104.0, 1e-30,
           -1e-30, 9.5, -9.5, 0.5, -0.5, 1.5, 2.5, -1.0, 1.0, 3.0, 0.999, -2.5]
PAIRS = ([2.0, -2.0, 2.0, -2.0, 0.0, -0.0, INF, INF, 5.5, -5.5, 7.0, 7.0, NAN, 1.0, -7.0, 6.0, 1.0],
         [3.0, 3.0, -3.0, -3.0, 3.0, -3.0, 2.0, -INF, 0.5, 0.5, INF, -INF, 1.0, NAN, 2.0, 3.0, 1.0])
BINARY_CASES = [
    ((19,), "", (19,), ""), ((3, 5), "", (5,), ""), ((3, 1, 5), "", (1, 4, 1), ""),
    ((), "", (2, 3), ""), ((), "", (), ""), ((0, 3), "", (1, 3), ""), ((1,), "", (1, 1), ""),
    ((4, 3), "T", (3, 4), ""), ((2, 9), "S", (4, 2), "T"), ((3, 4), "", (3, 1), ""),
    ((3,), "E", (2, 3), ""),
]
UNARY = {   # torch, numpy, low, high, points with a gradient of their own
    "neg": (torch.neg, np.negative, -3, 3, []), "exp": (torch.exp, np.exp, -3, 3, []),
    "log": (torch.log, np.log, 0.2, 4, [0.0]), "sqrt": (torch.sqrt, np.sqrt, 0.2, 4, []),
    "tanh": (torch.tanh, np.tanh, -3, 3, []), "sigmoid": (torch.sigmoid, None, -4, 4, []),
    "relu": (torch.relu, None, -2, 2, [0.0, -0.0, 2.0, -2.0]),
    "gelu": (F.gelu, None, -4, 4, []), "silu": (F.silu, None, -4, 4, []),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), None, -4, 4, []),
    "softplus": (F.softplus, None, -4, 30, []),
    "log_sigmoid": (F.logsigmoid, None, -30, 4, [0.0]),
    "selu": (lambda x: F.selu(x.clone(), inplace=True), None, -4, 4, [0.0, -0.0]),
    "mish": (F.mish, None, -6, 4, []), "softsign": (F.softsign, None, -4, 4, [0.0, -0.0]),
    "hardswish": (F.hardswish, None, -5, 5, [3.0, -3.0, 0.0, NAN]),
    "hardsigmoid": (lambda x: F.relu6(x + 3) / 6, None, -5, 5, [3.0, -3.0, 0.0]),
    "abs": (torch.abs, np.abs, -2, 2, [0.0, -0.0, 1.0, -1.0]),
    "sign": (torch.sign, None, -2, 2, [0.0, -0.0, 1.0]),
    "square": (torch.square, np.square, -2, 2, [0.0]),
    "reciprocal": (torch.reciprocal, np.reciprocal, 0.3, 3, []),
    "rsqrt": (torch.rsqrt, None, 0.2, 4, []), "expm1": (torch.expm1, np.expm1, -2, 2, [0.0]),
    "exp2": (torch.exp2, np.exp2, -3, 3, []), "log1p": (torch.log1p, np.log1p, -0.6, 3, [0.0]),
    "log2": (torch.log2, np.log2, 0.2, 4, []), "log10": (torch.log10, np.log10, 0.2, 4, []),
    "sin": (torch.sin, np.sin, -4, 4, [0.0]), "cos": (torch.cos, np.cos, -4, 4, [0.0]),
    "tan": (torch.tan, np.tan, -1.2, 1.2, [0.0]), "asin": (torch.asin, np.arcsin, -0.9, 0.9, []),
    "acos": (torch.acos, np.arccos, -0.9, 0.9, []), "atan": (torch.atan, np.arctan, -3, 3, []),
    "sinh": (torch.sinh, np.sinh, -3, 3, []), "cosh": (torch.cosh, np.cosh, -3, 3, []),
    "erf": (torch.erf, None, -2, 2, []), "erfc": (torch.erfc, None, -2, 2, []),
    "floor": (torch.floor, np.floor, -4, 4, [1.0]), "ceil": (torch.ceil, np.ceil, -4, 4, [1.0]),
    "round": (torch.round, np.round, -4, 4, [0.5]), "trunc": (torch.trunc, np.trunc, -4, 4, [1.0]),
}
class Step(torch.autograd.Function):
    """floor_divide, with the gradient that PyTorch leaves out: 0, as that of floor."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.floor_divide(a, b)

    @staticmethod
    def backward(ctx, dy):
        return tuple(torch.zeros_like(t) for t in ctx.saved_tensors)


BINARY = {
    "add": (torch.add, np.add, -2, 2), "sub": (torch.sub, np.subtract, -2, 2),
    "mul": (torch.mul, np.multiply, -2, 2), "div": (torch.div, np.divide, 0.5, 2),
    "pow": (torch.pow, np.power, 0.3, 2.5), "minimum": (torch.minimum, np.minimum, -2, 2),
    "maximum": (torch.maximum, np.maximum, -2, 2), "fmod": (torch.fmod, np.fmod, 0.4, 5),
    "remainder": (torch.remainder, None, 0.4, 5), "atan2": (torch.atan2, np.arctan2, 0.2, 2),
    "hypot": (torch.hypot, np.hypot, 0.2, 2), "floor_divide": (Step.apply, None, 0.3, 5),
}
SCALAR = {   # torch with a number behind, numpy, low, high, numbers
    "add_scalar": (lambda x, s: x + s, lambda x, s: x + x.dtype.type(s), -2, 2, [-0.75, 0.1]),
    "mul_scalar": (lambda x, s: x * s, lambda x, s: x * x.dtype.type(s), -2, 2, [3.5, -0.0]),
    "div_scalar": (lambda x, s: x / s, lambda x, s: x / x.dtype.type(s), -2, 2, [3.0, 0.0]),
    "pow_scalar": (torch.pow, lambda x, s: np.power(x, x.dtype.type(s)), 0.3, 2.5,
                   [2.0, 3.0, 0.5, -1.0, -0.5, 0.0, 1.0, 2.25]),
    "rsub_scalar": (lambda x, s: s - x, lambda x, s: x.dtype.type(s) - x, -2, 2, [1.5]),
    "leaky_relu": (F.leaky_relu, None, -2, 2, [0.01, 0.0, -0.5]),
    # The derivatives in place are those from the result, which is what mlcore saves. celu's alpha
    # has an exact inverse, which PyTorch rounds to f32, as it does the sixth of hardsigmoid.
    "elu": (lambda x, s: F.elu(x.clone(), s, inplace=True) if s >= 0 else F.elu(x, s), None, -4, 4,
            [1.0, 0.3, -0.5, 0.0]),
    "celu": (lambda x, s: F.celu(x.clone(), s, inplace=True), None, -4, 4, [0.5, 2.0]),
}


def elementwise(book, dtype):
    for op, (f, numpy, low, high, points) in UNARY.items():
        for shape, view in UNARY_CASES:
            a = book.rand(op, dtype, shape, low, high)
            book.case(op, dtype, [(a, view)], f, numpy=numpy)
        special = tensor(SPECIAL, dtype)
        if op in ("gelu", "silu", "gelu_tanh", "mish", "softsign", "hardswish"):
            special = special[torch.isfinite(special)]  # 0 times infinity there: not pinned down
        if op in ("tan", "sin", "cos") and dtype == "f16":
            special = special[special.abs() < 200]            # 1e4 in f16: PyTorch has its own
        if numpy is not None:
            hold_numpy(op, [special.double()], numpy, [f(special.double())])
        book.case(op, dtype, [(special, "")], f, grad=False)
        if points:
            book.case(op, dtype, [(tensor(points, dtype), "")], f, diff=False)
    for op, (f, numpy, low, high) in BINARY.items():
        for sa, va, sb, vb in BINARY_CASES:
            a, b = (book.rand(op, dtype, s, low, high) for s in (sa, sb))
            book.case(op, dtype, [(a, va), (b, vb)], f, numpy=numpy)
        a, b = (tensor(p, dtype) for p in PAIRS)
        if op == "remainder":                    # x mod infinity: PyTorch says infinity or x, by
            keep = torch.isfinite(a) & torch.isfinite(b)      # kernel; NumPy as Python
            a, b = a[keep], b[keep]
        book.case(op, dtype, [(a, ""), (b, "")], f, grad=False, native=op != "floor_divide")
    a, b = ([0, 0, 0, 2, 1.5, 0.25], [0, 1, 2, 0, -1.5, 0.5])
    book.case("pow", dtype, [(tensor(a, dtype), ""), (tensor(b, dtype), "")], torch.pow, diff=False)
    a, b = tensor([-2, -0.5, 0], dtype), tensor([2, -1, -1], dtype)
    book.case("pow", dtype, [(a, ""), (b, "")], torch.pow, grad=False)
    a = tensor([1.0, 2.0, -3.0, 0.0, 5.0], dtype)
    for op in ("minimum", "maximum"):
        book.case(op, dtype, [(a, ""), (tensor([1.0, 1.0, -3.0, 0.0, 6.0], dtype), "")],
                  BINARY[op][0], diff=False)
    for op in ("fmod", "remainder"):
        a, b = tensor([5.5, -5.5, 5.5, -5.5, 6.0], dtype), tensor([3, 3, -3, -3, -2], dtype)
        book.case(op, dtype, [(a, ""), (b, "")], BINARY[op][0], diff=False,
                  numpy=np.fmod if op == "fmod" else np.remainder)
    a, b = tensor([5.5, -5.5, 5.5, -5.5, -6.0], dtype), tensor([3, 3, -3, -3, 2], dtype)
    book.case("floor_divide", dtype, [(a, ""), (b, "")], torch.floor_divide, grad=False,
              numpy=np.floor_divide)
    for op, (f, numpy, low, high, numbers) in SCALAR.items():
        for number in numbers:
            cases = UNARY_CASES if number == numbers[0] else UNARY_CASES[1:3]
            for shape, view in cases:
                a = book.rand(op, dtype, shape, low, high)
                book.case(op, dtype, [(a, view)], lambda x: f(x, number), nums=[number],
                          numpy=numpy and (lambda x: numpy(x, number)),
                          diff=number != 0 or op[:3] != "div")
    a = tensor([0.0, -0.0, -2.0, INF, -INF, NAN, 1.0], dtype)
    for number in (0.0, 2.0, 3.0, 0.5, -1.0, -2.0, -0.5):
        odd = (a == -INF) | ((a == 0) & a.signbit())  # PyTorch disagrees with itself there
        x = a if number % 1 == 0 else a[~odd]
        book.case("pow_scalar", dtype, [(x, "")], lambda x: torch.pow(x, number), nums=[number],
                  grad=False)
    activations(book, dtype)
    for number in (2.0, 0.0, 1.0):
        book.case("pow_scalar", dtype, [(tensor([0.0, -1.5], dtype), "")],
                  lambda x: torch.pow(x, number), nums=[number], diff=False)
    for low, high in ((-0.5, 0.75), (-INF, 0.5), (0.25, INF), (1.0, -1.0)):
        for shape, view in UNARY_CASES if high == 0.75 else UNARY_CASES[1:3]:
            a = book.rand("clamp", dtype, shape, -2, 2)
            book.case("clamp", dtype, [(a, view)], lambda x: torch.clamp(x, low, high),
                      nums=[low, high], numpy=lambda x: np.clip(x, low, high))
    book.case("clamp", dtype, [(tensor(SPECIAL, dtype), "")], lambda x: torch.clamp(x, -0.5, 0.75),
              nums=[-0.5, 0.75], grad=False)
    at = tensor([-0.5, 0.75, -1.0, 2.0, 0.25, -0.0, INF, -INF, NAN], dtype)    # at the bounds, too
    for low, high in ((-0.5, 0.75), (-0.5, INF), (-INF, 0.75), (-INF, INF), (0.75, 0.75)):
        book.case("clamp", dtype, [(at, "")], lambda x: torch.clamp(x, low, high),
                  nums=[low, high], diff=False)
    for p, f in ((0.0, lambda x: F.dropout(x, 0.0)), (1.0, lambda x: F.dropout(x, 1.0))):
        for shape, view in UNARY_CASES:              # its masks are mlcore's own: only the ends
            a = book.rand("dropout", dtype, shape, -2, 2)
            book.case("dropout", dtype, [(a, view)], f, nums=[p])


def activations(book, dtype):
    """Those with more arguments; and the points where two formulas meet."""
    at = tensor([0.0, -0.0, 1.0, -1.0, 9.5, -9.5, 88.5, -104.0, INF, -INF, NAN], dtype)
    for op in ("leaky_relu", "elu", "celu"):
        f = SCALAR[op][0]
        for number in (0.25, 1.0):
            book.case(op, dtype, [(at, "")], lambda x: f(x, number), nums=[number], diff=False)
    if dtype not in HALF:                            # in place it has no gradient for these
        a = book.rand("celu", dtype, (5, 7), -4, 4)
        book.case("celu", dtype, [(a, "")], lambda x: F.celu(x, -2.0), nums=[-2.0])
    book.case("leaky_relu", dtype, [(at[:8], "")], lambda x: F.leaky_relu(x, -2.0), nums=[-2.0],
              diff=False)
    prelus = [((3, 5), "", 5), ((2, 3, 4), "T", 4), ((2, 3, 3, 2), "", 3), ((3, 9), "S", 4),
              ((1, 3), "E", 1), ((2, 4, 5), "", 1), ((19,), "", 1), ((), "", 1), ((0, 3), "", 3),
              ((4, 0), "", 0), ((4, 1), "", 1)]
    for shape, view, channels in prelus:
        x, w = book.rand("prelu", dtype, shape, -2, 2), book.rand("prelu", dtype, channels, -1, 1)
        book.case("prelu", dtype, [(x, view), (w, "")], F.prelu)
    w = tensor([0.25], dtype)
    book.case("prelu", dtype, [(at[:8], ""), (w, "")], F.prelu, diff=False)
    book.case("prelu", dtype, [(at, ""), (w, "")], F.prelu, grad=False)
    w = book.rand("prelu", dtype, 7, -1, 1)          # its weights by stride
    book.case("prelu", dtype, [(book.rand("prelu", dtype, (2, 3), -2, 2), ""), (w, "S")], F.prelu)
    for shape, view, axis in (((4, 6), "", 1), ((4, 6), "", 0), ((3, 6, 2), "", -2),
                              ((4, 3, 6), "T", 1), ((3, 8), "S", -1), ((1, 2), "E", 0),
                              ((10,), "", 0), ((0, 4), "", 1), ((3, 0), "", 1)):
        x = book.rand("glu", dtype, shape, -4, 4)
        book.case("glu", dtype, [(x, view)], lambda x: F.glu(x, axis), ints=[[axis]])
    far = tensor([[2.0, -3.0, 1.5, 0.5], [60.0, -60.0, 0.0, NAN]], dtype)
    book.case("glu", dtype, [(far, "")], lambda x: F.glu(x, 0), ints=[[0]], diff=False)


# ---- comparison, logic, choice, whole tensors filled -------------------------------------------

def compare(book, dtype):
    low, high = (0, 2) if dtype == "bool" else (0, 4) if dtype == "u8" else (-2, 3)
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        f, numpy = getattr(torch, op), {"eq": np.equal, "ne": np.not_equal, "lt": np.less,
                                        "le": np.less_equal, "gt": np.greater,
                                        "ge": np.greater_equal}[op]
        for sa, va, sb, vb in BINARY_CASES:
            a, b = (book.rand(op, dtype, s, low, high).floor() if dtype in FLOAT else
                    book.rand(op, dtype, s, low, high) for s in (sa, sb))
            book.case(op, dtype, [(a, va), (b, vb)], f, numpy=numpy, grad=False, native="only")
        if dtype in FLOAT:
            a, b = (tensor(p, dtype) for p in PAIRS)
            book.case(op, dtype, [(a, ""), (b, "")], f, numpy=numpy, grad=False, native="only")
        if dtype == "i64":
            a, b = torch.tensor([2**53, 2**62 + 1, -FAR]), torch.tensor([2**53 + 1, 2**62, FAR])
            book.case(op, dtype, [(a, ""), (b, "")], f, numpy=numpy, grad=False)
        numbers = [1.0, 0.5] if dtype == "bool" else [1.0, 0.5, -1.0, 300.0, INF, NAN]
        for number in numbers:
            for shape, view in UNARY_CASES if number == 1.0 else UNARY_CASES[1:2]:
                a = book.rand(op, dtype, shape, low, high)
                a = a.floor() if dtype in FLOAT else a
                wide = a if dtype in FLOAT else a.double()    # an integer against any number
                book.case(op + "_scalar", dtype, [(a, view)],
                          lambda x: f(x if dtype in FLOAT else x.double(), number),
                          nums=[number], grad=False, native="only")
    for op, numpy in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)):
        f = getattr(torch, op)
        for shape, view in UNARY_CASES:
            a = book.rand(op, dtype, shape, low, high)
            book.case(op, dtype, [(a, view)], f, grad=False, native="only", numpy=numpy)
        if dtype in FLOAT:
            book.case(op, dtype, [(tensor(SPECIAL, dtype), "")], f, grad=False, native="only")
    if dtype == "bool":
        for op in ("and", "or", "xor"):
            for sa, va, sb, vb in BINARY_CASES:
                a, b = (book.rand(op, dtype, s, 0, 2) for s in (sa, sb))
                book.case("logical_" + op, dtype, [(a, va), (b, vb)],
                          getattr(torch, "logical_" + op), numpy=getattr(np, "logical_" + op))
        for shape, view in UNARY_CASES:
            a = book.rand("not", dtype, shape, 0, 2)
            book.case("logical_not", dtype, [(a, view)], torch.logical_not, numpy=np.logical_not)
    choose(book, dtype, low, high)


def choose(book, dtype, low, high):
    for sm, vm, sa, va, sb, vb in (((19,), "", (19,), "", (19,), ""), ((5,), "", (3, 5), "", (), ""),
                                   ((3, 1), "", (4,), "", (3, 4), ""), ((), "", (), "", (), ""),
                                   ((0, 3), "", (3,), "", (1,), ""), ((4, 3), "T", (3, 9), "S",
                                                                      (4, 3), "T"),
                                   ((2, 3), "", (3,), "E", (2, 1), "")):
        m = book.rand("where_mask", "bool", sm, 0, 2)
        a, b = (book.rand("where", dtype, s, low, high) for s in (sa, sb))
        book.case("where", dtype, [(m, vm), (a, va), (b, vb)], torch.where, numpy=np.where)
    value = {"bool": 1.0, "u8": 7.0}.get(dtype, -3.0)
    for sx, vx, sm, vm in (((19,), "", (19,), ""), ((3, 5), "", (5,), ""), ((), "", (), ""),
                           ((0, 3), "", (3,), ""), ((2, 3, 4), "T", (4, 1), ""),
                           ((3, 9), "S", (4, 3), "T"), ((3,), "E", (2, 1), "")):
        x, m = book.rand("masked", dtype, sx, low, high), book.rand("mask", "bool", sm, 0, 2)
        book.case("masked_fill", dtype, [(x, vx), (m, vm)], lambda x, m: x.masked_fill(m, value),
                  nums=[value])
    for sx, vx in UNARY_CASES[:-1]:
        x = book.rand("fill", dtype, sx, low, high)
        book.case("fill_", dtype, [(x, vx)], lambda x: x * 0 + value if dtype in FLOAT else
                  torch.full_like(x, value), nums=[value])
        book.case("zero_", dtype, [(x, vx)], torch.zeros_like if dtype not in FLOAT else
                  lambda x: x * 0)
    for sx, vx, sb, vb in (((19,), "", (19,), ""), ((3, 5), "", (5,), ""), ((), "", (), ""),
                           ((0, 3), "", (3,), ""), ((2, 3, 4), "T", (4, 1), ""),
                           ((3, 9), "S", (4, 3), "T"), ((2, 3), "", (3,), "E")):
        x, b = (book.rand("copy_", dtype, s, low, high) for s in (sx, sb))
        book.case("copy_", dtype, [(x, vx), (b, vb)],
                  lambda x, b: (x * 0 + b) if dtype in FLOAT else b.expand(x.shape))


# ---- reductions and scans ----------------------------------------------------------------------

REDUCE_CASES = [
    ((19,), "", [], 0), ((3, 5), "", [], 1), ((3, 5), "", [0], 0), ((3, 5), "", [-1], 1),
    ((2, 3, 5), "", [0, 2], 0), ((2, 3, 5), "", [1], 0), ((2, 3, 5), "T", [1], 0),
    ((3, 9), "S", [-1], 0), ((), "", [], 0), ((2, 1, 3, 2), "", [3, 1], 1), ((3,), "E", [0], 0),
    ((37, 2), "T", [1], 0), ((0, 3), "", [1], 1),
]
EMPTY_CASES = [((0, 3), "", [], 0), ((0, 3), "", [0], 0)]


def reduced(book, op, dtype, f, numpy, low, high, cases, nums=(), more=(), **kw):
    """f(x, axes, keep), axes never empty."""
    def on_all(axes, n):
        return tuple(axes) if axes else tuple(range(n))
    for shape, view, axes, keep in cases:
        a = book.rand(op, dtype, shape, low, high)
        many = VIEWS[view](a).dim()
        book.case(op, dtype, [(a, view)], lambda x: f(x, on_all(axes, many), bool(keep)),
                  ints=[axes, [keep], *more], nums=nums,
                  numpy=numpy and (lambda x: numpy(x, on_all(axes, many), bool(keep))), **kw)


def prod_of(x, axes, keep):
    if not axes:
        return x.clone() if x.dtype.is_floating_point else x.long()
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def logsumexp_of(x, axes, keep):
    return torch.logsumexp(x, axes or 0, keepdim=keep)


def var_of(correction, root=False):
    f = torch.std if root else torch.var
    return lambda x, axes, keep: f(x, axes, correction=correction, keepdim=keep)


def reductions(book, dtype):
    low, high = {"bool": (0, 2), "u8": (0, 9)}.get(dtype, (-4, 5))
    if dtype in FLOAT:
        low, high = -2, 2
    integral = dtype not in FLOAT
    kw = {"grad": False} if integral else {}
    long = (lambda f: (lambda x, a, k: f(x, a, keepdims=k, dtype=np.int64))) if integral else \
        (lambda f: (lambda x, a, k: f(x, a, keepdims=k)))
    short = [c for c in REDUCE_CASES if c[0] != (0, 3)] + [((0, 3), "", [1], 1)]
    reduced(book, "sum", dtype, lambda x, a, k: torch.sum(x, a, keepdim=k), long(np.sum), low, high,
            REDUCE_CASES + EMPTY_CASES, **kw)
    reduced(book, "prod", dtype, prod_of, long(np.prod), low, high, REDUCE_CASES + EMPTY_CASES,
            native=False, **kw)                      # one axis after the other: rounded between
    for op, f, numpy in (("max", torch.amax, np.max), ("min", torch.amin, np.min)):
        def ends(x, a, k, f=f):
            return f(x, a, keepdim=k) if dtype != "bool" else \
                f(x.to(torch.uint8), a, keepdim=k).bool()
        reduced(book, op, dtype, ends, lambda x, a, k: numpy(x, a, keepdims=k), low, high,
                short[:-1], **kw)
        a = torch.zeros((0, 3), dtype=TORCH[dtype])
        book.case(op, dtype, [(a, "")], lambda x: f(x, 1), ints=[[1], [0]], diff=False,
                  **kw)
        ties = tensor([[1, 1, 0], [1, 1, 1], [0, 1, 0]], dtype)
        for axes in ([1], [0, 1]):
            book.case(op, dtype, [(ties, "")], lambda x: ends(x, axes, False),
                      ints=[axes, [0]], diff=False, **kw)
    for op, f, numpy in (("argmax", torch.argmax, np.argmax), ("argmin", torch.argmin, np.argmin)):
        def at(x, axis, f=f):
            return f(x.to(torch.uint8) if dtype == "bool" else x, axis)
        for shape, view, axis in (((19,), "", 0), ((3, 5), "", 0), ((3, 5), "", -1), ((), "", 0),
                                  ((2, 3, 5), "T", 1), ((3, 9), "S", -1), ((0, 3), "", 1),
                                  ((3,), "E", 1)):
            a = book.rand(op, dtype, shape, low, high)
            book.case(op, dtype, [(a, view)], lambda x: at(x, axis), ints=[[axis]], grad=False,
                      native="only", numpy=None if shape == () else lambda x: numpy(x, axis))
        if dtype in FLOAT:
            a = tensor([[1, NAN, 3, NAN], [-INF, INF, 2, INF], [0.0, -0.0, 0.0, -0.0]], dtype)
            book.case(op, dtype, [(a, "")], lambda x: at(x, 1), ints=[[1]], grad=False,
                      native="only", numpy=lambda x: numpy(x, 1))
    for op, f, numpy in (("any", torch.any, np.any), ("all", torch.all, np.all)):
        def test(x, axes, k, f=f):
            return f(x, dim=axes, keepdim=k).bool() if axes else x.bool()
        for level in (0.15, 0.85):
            cases = REDUCE_CASES + EMPTY_CASES if level == 0.15 else REDUCE_CASES[1:4]
            for shape, view, axes, keep in cases:
                a = book.rand(op, "f64", shape, 0, 1).lt(level).to(TORCH[dtype])
                many = VIEWS[view](a).dim()
                every = tuple(axes) if axes else tuple(range(many))
                book.case(op, dtype, [(a, view)], lambda x: test(x, every, bool(keep)),
                          ints=[axes, [keep]], grad=False, native="only",
                          numpy=lambda x: numpy(x, every, keepdims=bool(keep)))
    for shape, view, axis in (((19,), "", 0), ((3, 5), "", 0), ((3, 5), "", -1), ((), "", 0),
                              ((2, 3, 5), "T", 1), ((3, 9), "S", -1), ((0, 3), "", 0),
                              ((3,), "E", 0), ((2, 4, 3), "", 1)):
        a = book.rand("cumsum", dtype, shape, low, high)
        book.case("cumsum", dtype, [(a, view)], lambda x: torch.cumsum(x, axis), ints=[[axis]],
                  numpy=None if shape == () else (lambda x: np.cumsum(x, axis)), **kw)
        a = book.rand("cumprod", dtype, shape, *((low, high) if integral else (0.4, 1.6)))
        book.case("cumprod", dtype, [(a, view)], lambda x: torch.cumprod(x, axis), ints=[[axis]],
                  numpy=None if shape == () else (lambda x: np.cumprod(x, axis)), **kw)
    if integral:                                     # zeros, ones; i64 that wraps
        far = {"i64": [3, -2**40, 2**23, 5, 7], "i32": [2**31 - 1, -2**31, 2, 3, 0]}
        a = torch.tensor(far.get(dtype, [1, 1, 0, 1, 1]), dtype=TORCH[dtype])
        for op, f in (("cumprod", torch.cumprod), ("cumsum", torch.cumsum)):
            book.case(op, dtype, [(a, "")], lambda x: f(x, 0), ints=[[0]])
        for op, f in (("prod", torch.prod), ("sum", torch.sum)):
            book.case(op, dtype, [(a, "")], lambda x: f(x, 0), ints=[[0], [0]], **kw)
    if not integral:
        float_reductions(book, dtype, short)


def float_reductions(book, dtype, short):
    reduced(book, "mean", dtype, lambda x, a, k: torch.mean(x, a, keepdim=k),
            lambda x, a, k: np.mean(x, a, keepdims=k), -2, 2, REDUCE_CASES + EMPTY_CASES)
    reduced(book, "logsumexp", dtype, logsumexp_of, None, -2, 2, REDUCE_CASES + EMPTY_CASES,
            native=False)
    for correction in (1.0, 0.0, 2.5):
        cases = REDUCE_CASES if correction == 1.0 else REDUCE_CASES[2:6]
        cases = [c for c in cases if c[0] not in ((), (2, 1, 3, 2))]
        if correction == 0.0:
            cases = cases + [((2, 1, 3, 2), "", [3, 1], 1), ((), "", [], 0)]
        for op in ("var", "std"):
            low = [c for c in cases if not (op == "std" and c[0] == ())]
            low = [c for c in low if not (correction == 2.5 and c[0] == (3, 5) and c[2] == [0])]
            numpy = getattr(np, op)
            reduced(book, op, dtype, var_of(correction, op == "std"),
                    lambda x, a, k: numpy(x, a, ddof=correction, keepdims=k), -2, 2,
                    [c for c in low if c[1] != "E"], nums=[correction])
            reduced(book, op, dtype, var_of(correction, op == "std"),
                    lambda x, a, k: numpy(x, a, ddof=correction, keepdims=k), -2, 2,
                    [((3,), "E", [1], 0)], nums=[correction], diff=False)
    for op in ("var", "std"):                        # too few: NaN; none: NaN; a far mean
        for shape, axes in (((3, 1), [1]), ((0, 3), [0])):
            a = book.rand(op, dtype, shape, -2, 2)
            book.case(op, dtype, [(a, "")], lambda x: var_of(1.0, op == "std")(x, axes, False),
                      ints=[axes, [0]], nums=[1.0], grad=False)
        one = book.rand(op, dtype, (), -2, 2)        # of one element: NaN; 0, and no slope there
        for correction in (1.0, 0.0):
            book.case(op, dtype, [(one, "")], lambda x: var_of(correction, op == "std")(x, (), False),
                      ints=[[], [0]], nums=[correction], diff=False,
                      grad=None if correction == 0.0 else False)
        a = tensor([[4096.0, 4097.0, 4098.0, 4099.0]], dtype)
        book.case(op, dtype, [(a, "")], lambda x: var_of(1.0, op == "std")(x, [1], False),
                  ints=[[1], [0]], nums=[1.0], grad=False)
    for p in (2.0, 1.0, 0.0, 3.0, 0.5, INF, -INF):
        cases = REDUCE_CASES + EMPTY_CASES if p == 2.0 else REDUCE_CASES[2:8]
        reduced(book, "norm", dtype,
                lambda x, a, k: torch.linalg.vector_norm(x, p, a, keepdim=k), None, 0.2, 2, cases,
                nums=[p])
        a = tensor([[0.0, 0.0, 0.0], [-3.0, 0.0, 4.0]], dtype)
        if p != 0.5:                                 # at 0 its slope is infinite
            book.case("norm", dtype, [(a, "")], lambda x: torch.linalg.vector_norm(x, p, 1),
                      ints=[[1], [0]], nums=[p], diff=False)
    nan = tensor([[1, NAN], [-INF, 2], [INF, 1]], dtype)
    for op, f in (("max", torch.amax), ("min", torch.amin), ("sum", torch.sum),
                  ("logsumexp", torch.logsumexp)):
        book.case(op, dtype, [(nan, "")], lambda x: f(x, 1), ints=[[1], [0]], grad=False)
    a = tensor([[1000.0, 1000.0], [-1000.0, -1001.0], [-INF, -INF]], dtype)
    book.case("logsumexp", dtype, [(a, "")], lambda x: torch.logsumexp(x, 1), ints=[[1], [0]],
              grad=False)
    for op, f in (("prod", torch.prod), ("cumprod", torch.cumprod)):
        a = tensor([[2.0, 0.0, 3.0, 4.0], [0.0, 5.0, 0.0, 1.0], [1.5, 2.0, -1.0, 0.5]], dtype)
        book.case(op, dtype, [(a, "")], lambda x: f(x, 1),
                  ints=[[1], [0]] if op == "prod" else [[1]])


# ---- rows: softmax, norms ------------------------------------------------------------------------

def rms_norm_of(x, w, eps):
    """As F.rms_norm, whose 16-bit kernels on the CPU round in between."""
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


def rows(book, dtype):
    for op, f in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        for shape, view, axis in (((19,), "", 0), ((3, 5), "", 1), ((3, 5), "", -2), ((), "", 0),
                                  ((2, 3, 5), "T", 1), ((2, 3, 5), "T", -1), ((3, 10), "S", -1),
                                  ((0, 3), "", 1), ((3, 0), "", 1), ((3,), "E", 1), ((3,), "E", 0),
                                  ((2, 4, 3), "", 1), ((4, 1), "", 1), ((2, 150), "", 1)):
            a = book.rand(op, dtype, shape, -3, 3)
            book.case(op, dtype, [(a, view)], lambda x: f(x, axis), ints=[[axis]],
                      native=op == "softmax")
        far = tensor([[1000.0, 1000.0, -1000.0], [-1000.0, -1001.0, -INF], [0.0, 0.0, -0.0]], dtype)
        book.case(op, dtype, [(far, "")], lambda x: f(x, 1), ints=[[1]], diff=False,
                  grad="1" if op == "softmax" else False, native=op == "softmax")
        bad = tensor([[1.0, NAN, 2.0], [INF, 0.0, -INF], [-INF, -INF, -INF]], dtype)
        book.case(op, dtype, [(bad, "")], lambda x: f(x, 1), ints=[[1]], grad=False)
    for shape, view in (((19,), ""), ((3, 5), ""), ((2, 5, 3), "T"), ((3, 10), "S"), ((4,), "E"),
                        ((0, 3), ""), ((3, 150), "")):
        x = book.rand("layer_norm", dtype, shape, -2, 3)
        n = VIEWS[view](x).shape[-1:]
        w, b = (book.rand("layer_norm", dtype, n, -1.5, 1.5) for _ in range(2))
        for eps in (1e-5, 0.1) if shape == (3, 5) else (1e-5,):
            book.case("layer_norm", dtype, [(x, view), (w, ""), (b, "")],
                      lambda x, w, b: F.layer_norm(x, n, w, b, eps), nums=[eps])
            book.case("layer_norm", dtype, [(x, view)], lambda x: F.layer_norm(x, n, eps=eps),
                      nums=[eps])
            book.case("rms_norm", dtype, [(x, view), (w, "")],
                      lambda x, w: rms_norm_of(x, w, eps), nums=[eps], native=False)
            book.case("rms_norm", dtype, [(x, view)], lambda x: rms_norm_of(x, None, eps),
                      nums=[eps], native=False)
    bad = tensor([[1.0, NAN, 2.0], [INF, 0.0, 1.0], [2.0, 2.0, 2.0]], dtype)
    book.case("layer_norm", dtype, [(bad, "")], lambda x: F.layer_norm(x, (3,), eps=1e-5),
              nums=[1e-5], grad=False)
    book.case("rms_norm", dtype, [(bad, "")], lambda x: rms_norm_of(x, None, 1e-5), nums=[1e-5],
              grad=False, native=False)


# ---- attention -----------------------------------------------------------------------------------

def attention_of(q, k, v, causal=False, window=0, mask=None):
    """Rows that see no key are 0; causal: j <= i + s - t."""
    group = q.shape[1] // max(1, k.shape[1])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    t, s = q.shape[2], k.shape[2]
    off = torch.arange(t)[:, None] + s - t - torch.arange(s)
    seen = torch.ones(q.shape[0], 1, t, s, dtype=torch.bool)
    seen = seen & (off >= 0) if causal else seen
    seen = seen & (off.abs() < window) if window else seen
    score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        score = score + mask
    p = torch.softmax(score.masked_fill(~seen, -1e30), -1) * seen
    return p @ v


def attention(book, dtype):
    def part(op, *shape):
        return book.rand(op, dtype, shape, -2, 2)
    for b, h, hk, t, s, d, dv, view in ((1, 1, 1, 1, 1, 1, 1, ""), (2, 2, 2, 3, 5, 4, 3, ""),
                                        (1, 4, 2, 5, 6, 4, 4, ""), (2, 2, 1, 4, 4, 3, 4, "T"),
                                        (1, 2, 2, 3, 3, 10, 4, "S"), (2, 2, 2, 0, 3, 2, 2, ""),
                                        (1, 2, 1, 3, 0, 2, 2, "")):
        for op in ("attention", "attention_ex"):
            q = part(op, b, h, *((d, t) if view == "T" else (t, d)))
            k = part(op, b, hk, s, VIEWS[view](q).shape[-1])
            v = part(op, b, hk, s, dv)
            inputs = [(q, view), (k, ""), (v, "")]
            if op == "attention":
                book.case(op, dtype, inputs, attention_of, native=False)
                continue
            for causal, window in ((1, 0), (0, 2), (1, 2)):
                book.case(op, dtype, inputs, native=False, ints=[[causal], [window]],
                          call=lambda q, k, v: attention_of(q, k, v, causal, window))
            mask = part(op, h, t, s)
            book.case(op, dtype, inputs + [(mask, "")], native=False, ints=[[1], [0]],
                      call=lambda q, k, v, m: attention_of(q, k, v, True, 0, m))
            book.case(op, dtype, inputs + [(mask > -1, "")], native=False, ints=[[1], [0]],
                      call=lambda q, k, v, m: attention_of(q, k, v, True, 0, m))


# ---- sorting, random ---------------------------------------------------------------------------

def sort_of(x, axis, descending):
    return list(torch.sort(x, dim=axis, descending=bool(descending), stable=True))


def top_of(x, k, axis, largest):
    """Of equals those that come first, which torch.topk leaves open."""
    v, i = sort_of(x, axis, largest)
    return [v.narrow(axis, 0, k), i.narrow(axis, 0, k)] if x.dim() else [v, i]


def sorting(book, dtype):
    low, high = {"bool": (0, 2), "u8": (0, 9)}.get(dtype, (-4, 5))
    cases = [((19,), "", 0), ((3, 5), "", 0), ((3, 5), "", -1), ((), "", 0), ((2, 3, 5), "T", 1),
             ((3, 9), "S", -1), ((0, 3), "", 0), ((3, 0), "", 0), ((3,), "E", 1)]
    for descending in (0, 1):
        for shape, view, axis in cases:
            a = book.rand("sort", dtype, shape, low, high)
            book.case("sort", dtype, [(a, view)], lambda x: sort_of(x, axis, descending),
                      ints=[[axis], [descending]])
            book.case("argsort", dtype, [(a, view)], 
                      lambda x: sort_of(x, axis, descending)[1], ints=[[axis], [descending]], grad=False,
                      numpy=None if descending or shape == () else
                      (lambda x: np.argsort(x, axis, kind="stable")))
            size = VIEWS[view](a).shape[axis] if shape else 1
            for k in sorted({size // 2, size, 0} if descending else {size // 2}):
                if shape == () and k == 0:
                    continue
                def top(x):
                    v, i = top_of(x, k, axis, bool(descending))
                    if x.dim() and dtype != "bool":
                        assert torch.equal(v, torch.topk(x, k, axis, bool(descending))[0])
                    return [v, i]
                book.case("topk", dtype, [(a, view)], top, ints=[[k], [axis], [descending]])
        ties = tensor([1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0], dtype)
        nan = tensor([1, NAN, -INF, INF, 0.0, -0.0, NAN, 2, -1], dtype)
        for a in (ties, nan) if dtype in FLOAT else (ties,):
            book.case("sort", dtype, [(a, "")], lambda x: sort_of(x, 0, descending),
                      ints=[[0], [descending]], diff=False)
            book.case("topk", dtype, [(a, "")], lambda x: top_of(x, 4, 0, bool(descending)),
                      ints=[[4], [0], [descending]], diff=False)


def random(book):
    """mlcore's streams are its own: what is the same for every generator."""
    for d in FLOAT:
        t = TORCH[d]
        for shape in ((0, 3), (0,)):
            book.case("randn", d, [], lambda: torch.randn(shape, dtype=t), ints=[shape])
        for shape in ((7,), (0, 3), ()):
            book.case("normal", d, [], lambda: torch.empty(shape, dtype=t).normal_(1.5, 0.0),
                      ints=[shape], nums=[1.5, 0.0])
            book.case("uniform", d, [], lambda: torch.empty(shape, dtype=t).uniform_(2.0, 2.0),
                      ints=[shape], nums=[2.0, 2.0])
        for shape, low in (((0, 3), -1.0), ((7,), 1.0), ((), 1.0)):
            book.case("truncated_normal", d, [], lambda: torch.nn.init.trunc_normal_(
                torch.empty(shape, dtype=torch.float64), 0.0, 1.0, low, 1.0).to(t), ints=[shape],
                nums=[0.0, 1.0, low, 1.0])
    for d in ANY:
        for shape in ((7,), (0, 3), ()):
            for p in (0.0, 1.0):
                book.case("bernoulli", d, [], lambda: torch.empty(shape, dtype=TORCH[d])
                          .bernoulli_(p), ints=[shape], nums=[p])
            at = 1 if d == "bool" else 5
            book.case("randint", d, [], lambda: torch.randint(at, at + 1, shape, dtype=TORCH[d]),
                      ints=[shape, [at], [at + 1]])
    for n in (0, 1):
        book.case("randperm", "i64", [], lambda: torch.randperm(n), ints=[[n]])
    for d in ("f32", "f64"):
        for weights, view, n, again in (([0.0, 0.0, 2.0], "", 5, 1), ([3.0], "", 1, 0),
                                        ([[0, 1, 0], [0, 0, 9], [1, 0, 0]], "", 1, 0),
                                        ([[0, 1, 0], [0, 0, 9], [1, 0, 0]], "T", 3, 1)):
            book.case("multinomial", d, [(tensor(weights, d), view)],
                      lambda p: torch.multinomial(p, n, bool(again)), ints=[[n], [again]],
                      grad=False)


# ---- joining, viewing, indexing ----------------------------------------------------------------

def some(book, op, dtype, shape):
    """Values that tell elements apart in every dtype."""
    if dtype in FLOAT:
        return book.rand(op, dtype, shape, -2, 2)
    return book.rand(op, dtype, shape, *{"bool": (0, 2), "u8": (0, 250)}.get(dtype, (-120, 120)))


def padded(x, before, after, mode, value):
    """By the rules of numpy.pad, one axis at a time."""
    if mode == "constant":
        pairs = [p for b, a in reversed(list(zip(before, after))) for p in (b, a)]
        return F.pad(x, pairs, value=value) if dtype_holds_pad(x) else \
            F.pad(x.to(torch.uint8), pairs, value=value).to(x.dtype)
    for axis, (b, a) in enumerate(zip(before, after)):
        place = np.pad(np.arange(x.shape[axis]), (b, a), mode={"replicate": "edge",
                                                             "circular": "wrap"}.get(mode, mode))
        x = x.index_select(axis, torch.from_numpy(place))
    return x


def dtype_holds_pad(x):
    return x.dtype != torch.bool


def join(book, dtype):
    for op, f in (("concat", torch.cat), ("stack", torch.stack)):
        lists = [([((3,), "")], 0), ([((2, 3), ""), ((2, 3), "")], 0),
                 ([((2, 3), ""), ((2, 3), ""), ((2, 3), "")], -1), ([((3, 2), "T"), ((2, 7), "S"),
                                                                     ((3,), "E")], 1),
                 ([((0, 3), ""), ((0, 3), "")], 1)]
        lists += [([((2, 3), ""), ((4, 3), ""), ((0, 3), "")], 0), ([((2, 1), ""), ((2, 3), "")], -1),
                  ([((0,), ""), ((2, 2), "")], 1)] if op == "concat" else [([((), ""), ((), "")], 0)]
        for shapes, axis in lists:
            ins = [(some(book, op, dtype, s), v) for s, v in shapes]
            legacy = any(s == (0,) for s, _ in shapes)
            numpy = None if legacy else (lambda *x: (np.concatenate if op == "concat"
                                                     else np.stack)(x, axis))
            book.case(op, dtype, ins, lambda *x: f(x, axis), ints=[[axis]], numpy=numpy)
    for shape, view, size, axis in (((7,), "", 3, 0), ((4, 6), "", 2, 1), ((3, 5), "T", 2, 0),
                                    ((0, 3), "", 2, 1), ((3, 9), "S", 4, -1), ((2,), "E", 1, 0)):
        a = some(book, "split", dtype, shape)
        book.case("split", dtype, [(a, view)], lambda x: torch.split(x, size, axis),
                  ints=[[size], [axis]])
        book.case("chunk", dtype, [(a, view)], lambda x: torch.chunk(x, size, axis),
                  ints=[[size], [axis]])
    one_input = [
        ("tile", [((3,), "", [2]), ((2, 3), "", [2, 1]), ((2, 3), "T", [3]), ((), "", [2, 2]),
                  ((0, 3), "", [2, 2]), ((3,), "", [2, 1, 2]), ((2, 5), "S", [0, 2]),
                  ((2,), "E", [1, 2])],
         lambda x, v: torch.tile(x, v), lambda x, v: np.tile(x, v)),
        ("flip", [((5,), "", [0]), ((2, 3), "", []), ((2, 3, 2), "T", [0, -1]), ((), "", []),
                  ((0, 3), "", [1]), ((2, 7), "S", [1]), ((3,), "E", [1])],
         lambda x, v: torch.flip(x, v or list(range(x.dim()))),
         lambda x, v: np.flip(x, tuple(v) or None)),
        ("permute", [((2, 3, 4), "", [2, 0, 1]), ((3, 4), "T", [1, 0]), ((), "", []),
                     ((0, 3), "", [-1, 0]), ((2, 5), "S", [1, 0]), ((3,), "E", [1, 0])],
         lambda x, v: x.permute(v), lambda x, v: np.transpose(x, v)),
        ("reshape", [((2, 6), "", [3, 4]), ((2, 6), "", [-1]), ((3, 4), "T", [2, 6]), ((1,), "", []),
                     ((0, 3), "", [3, 0]), ((), "", [1, 1]), ((2, 5), "S", [4]), ((3,), "E", [6])],
         lambda x, v: x.reshape(v), lambda x, v: np.reshape(x, v)),
        ("expand", [((3, 1), "", [3, 4]), ((3, 1), "", [2, -1, 5]), ((), "", [2, 2]),
                    ((0, 1), "", [0, 3]), ((1, 3), "T", [3, 2]), ((2, 3), "S", [2, 4])],
         lambda x, v: x.expand(v), None),
    ]
    for op, cases, f, numpy in one_input:
        for shape, view, v in cases:
            book.case(op, dtype, [(some(book, op, dtype, shape), view)], lambda x: f(x, v), ints=[v],
                      numpy=numpy and (lambda x: numpy(x, v)))
    for shape, view, n, axis in (((3,), "", 2, 0), ((2, 3), "", 3, 1), ((2, 3), "T", 2, 0),
                                 ((0, 3), "", 2, 0), ((2, 3), "", 0, 1), ((2, 5), "S", 2, -1),
                                 ((2,), "E", 2, 0)):
        book.case("repeat", dtype, [(some(book, "repeat", dtype, shape), view)],
                  lambda x: torch.repeat_interleave(x, n, axis), ints=[[n], [axis]],
                  numpy=lambda x: np.repeat(x, n, axis))
    for shape, view, shift, axis in (((5,), "", 2, 0), ((2, 3), "", -1, 1), ((2, 3), "T", 7, 0),
                                     ((0, 3), "", 1, 0), ((2, 9), "S", -5, -1), ((3,), "E", 1, 1)):
        book.case("roll", dtype, [(some(book, "roll", dtype, shape), view)],
                  lambda x: torch.roll(x, shift, axis), ints=[[shift], [axis]],
                  numpy=lambda x: np.roll(x, shift, axis))
    modes = ("constant", "reflect", "replicate", "circular")
    for shape, view, before, after, mode in (
            ((3,), "", [2], [1], 0), ((2, 3), "", [0, 1], [1, 2], 0), ((3, 4), "T", [1, -1], [0, 2], 0),
            ((), "", [], [], 0), ((0, 3), "", [1, 0], [1, 0], 0), ((5,), "", [2], [3], 1),
            ((3, 4), "", [2, 1], [0, 3], 1), ((3, 4), "T", [1, 1], [1, 1], 1),
            ((3, 4), "", [2, 0], [3, 1], 2), ((2, 7), "S", [1, 2], [1, 0], 2),
            ((4, 3), "", [1, 2], [3, 1], 3), ((4, 3), "T", [3, 0], [1, 2], 3), ((3,), "E", [1, 1], [0, 2], 2),
            ((0, 3), "", [0, 1], [0, 1], 2)):
        value = 1.0 if mode == 0 else 0.0
        a = some(book, "pad", dtype, shape)
        cut = any(i < 0 for i in before + after)
        book.case("pad", dtype, [(a, view)], lambda x: padded(x, before, after, modes[mode], value),
                  ints=[before, after, [mode]], nums=[value], native="only" if mode else True,
                  numpy=None if cut or mode or shape == () else
                  lambda x: np.pad(x, list(zip(before, after)), constant_values=value))
        if mode and dtype == "f64" and shape == (5,):    # and F.pad says the same
            assert torch.equal(F.pad(a[None], (2, 3), mode=modes[mode])[0],
                               padded(a, before, after, modes[mode], 0))
    for op, cases in (("tril", (0, 1, -1, 5, -5)), ("triu", (0, 1, -1, 5, -5))):
        for k in cases:
            for shape, view in (((3, 5), ""), ((4, 3), "T"), ((2, 3, 3), "")) if k < 5 else \
                    (((3, 7), "S"), ((0, 3), ""), ((2, 3), "E")):
                book.case(op, dtype, [(some(book, op, dtype, shape), view)],
                          lambda x: getattr(torch, op)(x, k), ints=[[k]],
                          numpy=lambda x: getattr(np, op)(x, k))
    for shape, view, k in (((3,), "", 0), ((3,), "", 2), ((3,), "", -1), ((0,), "", 0), ((0,), "", 1),
                           ((7,), "S", 0), ((3, 5), "", 0), ((3, 5), "", 1), ((3, 5), "T", -2),
                           ((0, 3), "", 0), ((3,), "E", 1), ((3, 3), "", 9)):
        if VIEWS[view](torch.empty(shape)).dim() == 2 and abs(k) > 5:
            continue                                  # past the matrix: an error there
        book.case("diag", dtype, [(some(book, "diag", dtype, shape), view)],
                  lambda x: torch.diag(x, k), ints=[[k]],
                  numpy=lambda x: np.diag(x, k))


def index(book, dtype):
    def idx(name, shape, size):
        return book.rand(name, "i64", shape, 0, size) if size else \
            torch.zeros(shape, dtype=torch.int64)
    for sx, vx, axis, si, vi in (((5,), "", 0, (7,), ""), ((3, 5), "", 1, (3, 2), ""),
                                 ((3, 5), "", 0, (2, 4), ""), ((5, 3), "T", -1, (3, 9), "S"),
                                 ((0, 3), "", 1, (0, 2), ""), ((3, 4), "", 0, (0, 4), ""),
                                 ((2, 3, 4), "T", 1, (2, 2, 3), ""), ((), "", 0, (), ""),
                                 ((3,), "E", 1, (2,), "E")):
        x = some(book, "gather", dtype, sx)
        size = VIEWS[vx](x).shape[axis] if sx else 1
        i = idx("gather_i", si, size)
        book.case("gather", dtype, [(x, vx), (i, vi)], lambda x, i: torch.gather(x, axis, i),
                  ints=[[axis]], numpy=None if si == () or VIEWS[vx](x).shape[1 - axis % 2:2 - axis % 2]
                  != VIEWS[vi](i).shape[1 - axis % 2:2 - axis % 2] or len(sx) != 2 or vx or vi
                  else lambda x, i: np.take_along_axis(x, i, axis))
    for sx, vx, axis, si, vi, vs in (((5,), "", 0, (3,), "", ""), ((3, 5), "", 1, (3, 2), "", ""),
                                     ((4, 5), "", 0, (2, 4), "", ""), ((5, 3), "T", -1, (3, 5), "S", "S"),
                                     ((0, 3), "", 1, (0, 2), "", ""), ((3, 4), "", 0, (0, 4), "", ""),
                                     ((2, 3, 4), "T", 1, (2, 2, 3), "", ""), ((), "", 0, (), "", "")):
        x = some(book, "scatter", dtype, sx)
        size = VIEWS[vx](x).shape[axis] if sx else 1
        many = VIEWS[vi](torch.empty(si))
        distinct = torch.argsort(book.rand("scatter_i", "f64", (*many.shape[:axis % max(many.dim(), 1)], size,
                                 *many.shape[axis % max(many.dim(), 1) + 1:]) if si else (), 0, 1),
                                 dim=axis) if si else torch.tensor(0)
        distinct = distinct.narrow(axis, 0, many.shape[axis]).contiguous() if si else distinct
        if vi == "S":
            stored = torch.zeros((*many.shape[:-1], 2 * many.shape[-1] + 1), dtype=torch.int64)
            stored[..., 1::2] = distinct
            distinct = stored
        src = some(book, "scatter_s", dtype, distinct.shape)
        ins = [(x, vx), (distinct, vi), (src, vs)]
        book.case("scatter", dtype, ins, lambda x, i, s: torch.scatter(x, axis, i, s), ints=[[axis]])
        small = src if dtype in FLOAT or dtype == "bool" else (src % 5).to(src.dtype)
        def added(x, i, s):
            if dtype == "bool":
                return torch.scatter_add(x.int(), axis, i, s.int()).bool()
            return torch.scatter_add(x, axis, i, s)
        again = idx("scatter_d", distinct.shape, size)
        book.case("scatter_add", dtype, [(x, vx), (distinct, vi), (small, vs)], added, ints=[[axis]])
        if si:
            book.case("scatter_add", dtype, [(x, vx), (again, vi), (small, vs)], added, ints=[[axis]],
                      native=False)
            book.case("scatter", dtype, [(x, vx), (again, vi), (src, vs)],
                      lambda x, i, s: torch.scatter(x, axis, i, s), ints=[[axis]], grad=False)
    for sx, vx, axis, si, vi in (((5,), "", 0, (7,), ""), ((3, 5), "", 1, (2,), ""),
                                 ((3, 5), "T", 0, (4,), ""), ((3, 5), "", -1, (7,), "S"),
                                 ((0, 3), "", 1, (2,), ""), ((3, 5), "", 0, (0,), ""),
                                 ((2, 3, 4), "T", 1, (3,), ""), ((3,), "E", 0, (2,), "")):
        x = some(book, "index_select", dtype, sx)
        i = idx("select_i", si, VIEWS[vx](x).shape[axis])
        book.case("index_select", dtype, [(x, vx), (i, vi)],
                  lambda x, i: torch.index_select(x, axis, i), ints=[[axis]],
                  numpy=lambda x, i: np.take(x, i, axis))
    for sx, vx, si, vi in (((5,), "", (7,), ""), ((3, 5), "", (2, 2), ""), ((3, 5), "T", (3, 2), "T"),
                           ((3, 5), "S", (3,), ""), ((), "", (2,), ""), ((4,), "", (), ""),
                           ((2, 3), "", (0, 2), ""), ((3,), "E", (2,), "")):
        x = some(book, "take", dtype, sx)
        i = idx("take_i", si, VIEWS[vx](x).numel())
        book.case("take", dtype, [(x, vx), (i, vi)], torch.take, numpy=np.take)
    for sx, vx, sm, vm in (((7,), "", (7,), ""), ((3, 5), "", (5,), ""), ((5,), "", (3, 1), ""),
                           ((3, 4), "T", (4, 3), ""), ((2, 9), "S", (4, 2), "T"), ((), "", (), ""),
                           ((0, 3), "", (3,), ""), ((3,), "E", (3,), "")):
        x, m = some(book, "masked_select", dtype, sx), book.rand("select_m", "bool", sm, 0, 2)
        book.case("masked_select", dtype, [(x, vx), (m, vm)], torch.masked_select)
    for shape, view in (((19,), ""), ((3, 5), ""), ((4, 3), "T"), ((3, 9), "S"), ((), ""), ((0, 3), ""),
                        ((2, 2, 3), ""), ((3,), "E")):
        x = book.rand("nonzero", "f64", shape, 0, 1).lt(0.5).to(TORCH[dtype])
        book.case("nonzero", dtype, [(x, view)], torch.nonzero, grad=False, native="only",
                  numpy=None if shape == () else lambda x: np.argwhere(x))
    if dtype == "i64":
        for shape, view, classes in (((7,), "", 5), ((2, 3), "", 4), ((3, 2), "T", 4), ((), "", 3),
                                     ((2, 5), "S", 4), ((0,), "", 3), ((3,), "E", 3)):
            x = book.rand("one_hot", "i64", shape, 0, classes)
            book.case("one_hot", dtype, [(x, view)], lambda x: F.one_hot(x, classes),
                      ints=[[classes]], numpy=lambda x: np.eye(classes, dtype=np.int64)[x])


def slice_of(x, axis, start, stop, step):
    where = [slice(None)] * x.dim()
    where[axis] = slice(start, stop, step)
    return x[tuple(where)]


VIEW = {   # groups of integers behind the shape
    "flatten": (lambda x, a: x.flatten(a) if x.dim() else x.reshape(1), [
        ((2, 3, 4), "", [1]), ((2, 3, 4), "T", [0]), ((0, 3), "", [0]), ((2, 5), "S", [0]),
        ((), "", [0]), ((3,), "E", [0])]),
    "transpose": (lambda x, a, b: x.transpose(a, b), [
        ((2, 3, 4), "", [0], [2]), ((2, 3, 4), "", [-1], [-2]), ((0, 3), "", [0], [1]),
        ((3, 4), "T", [0], [1]), ((2, 5), "S", [0], [1]), ((3,), "E", [1], [0])]),
    "slice": (slice_of, [
        ((5, 7), "", [1], [1], [6], [2]), ((5, 7), "", [0], [-3], [FAR], [1]),
        ((7,), "", [0], [5], [2], [1]), ((3, 4), "T", [0], [1], [3], [1]),
        ((0, 3), "", [1], [0], [2], [1]), ((2, 7), "S", [-1], [0], [3], [2]),
        ((3,), "E", [1], [1], [3], [1])]),
    "select": (lambda x, a, i: x.select(a, i), [
        ((3, 4), "", [0], [1]), ((3, 4), "", [-1], [-1]), ((5,), "", [0], [2]),
        ((3, 4), "T", [0], [3]), ((0, 3), "", [1], [1]), ((2, 5), "S", [1], [0]),
        ((3,), "E", [0], [1])]),
    "squeeze": (lambda x, a: x.squeeze(a), [
        ((3, 1, 2), "", [1]), ((3, 1, 2), "", [0]), ((1,), "", [-1]), ((3, 1), "T", [0]),
        ((1, 5), "S", [0]), ((0, 1), "", [1]), ((1,), "E", [1]), ((), "", [0])]),
    "unsqueeze": (lambda x, a: x.unsqueeze(a), [
        ((3, 2), "", [0]), ((3, 2), "", [-1]), ((), "", [0]), ((3, 2), "T", [1]), ((2, 5), "S", [2]),
        ((0, 3), "", [1]), ((3,), "E", [0])]),
    "movedim": (lambda x, a, b: x.movedim(a, b), [
        ((2, 3, 4), "", [0], [2]), ((2, 3, 4), "", [-1], [0]), ((2, 3, 4), "T", [1], [0]),
        ((0, 3), "", [0], [1]), ((2, 5), "S", [1], [0]), ((3,), "E", [0], [1])]),
    "unfold": (lambda x, a, size, step: x.unfold(a, size, step), [
        ((7,), "", [0], [3], [1]), ((7,), "", [0], [2], [3]), ((3, 6), "", [1], [2], [2]),
        ((4, 3), "T", [-1], [3], [1]), ((2, 9), "S", [1], [2], [1]), ((0, 3), "", [1], [2], [1]),
        ((4,), "E", [1], [3], [1])]),
    "diagonal": (lambda x, k: torch.diagonal(x, k, -2, -1), [
        ((3, 5), "", [0]), ((3, 5), "", [2]), ((3, 5), "", [-1]), ((2, 3, 3), "", [1]),
        ((3, 5), "T", [1]), ((3, 7), "S", [0]), ((0, 3), "", [0]), ((3,), "E", [1])]),
    "contiguous": (lambda x: x.contiguous(), layouts(
        [((3, 4), ("", "T", "S", "E")), ((), ("",)), ((0, 3), ("",))])),
    "copy": (lambda x: x.clone(), layouts(
        [((3, 4), ("", "T", "S", "E")), ((), ("",)), ((0, 3), ("",))])),
}


def view(book, dtype):
    for op, (f, cases) in VIEW.items():
        for shape, look, *ints in cases:
            a = some(book, op, dtype, shape)
            book.case(op, dtype, [(a, look)], lambda x: f(x, *[i[0] for i in ints]), ints=ints,
                      native="only")                 # unfold: rounded after each window
    for shape, look in layouts([((3, 4), ("", "T", "S", "E")), ((), ("",)), ((0, 3), ("",))]):
        a = some(book, "detach", dtype, shape)
        for op in ("detach", "from", "wrap"):
            book.case(op, dtype, [(a, look)], lambda x: x.detach(), grad=False)
        book.case("copy_into", dtype, [(a, look), (some(book, "copy_into", dtype, shape), look)],
                  lambda x, b: b, grad=False) if look != "E" else None
    grids = [[((3,), "")], [((3,), ""), ((2,), "")], [((2,), ""), ((5,), "S"), ((3,), "")],
             [((0,), ""), ((2,), "")], [((), ""), ((2,), "")]]
    for shapes in grids:
        ins = [(some(book, "meshgrid", dtype, s), v) for s, v in shapes]
        book.case("meshgrid", dtype, ins, lambda *x: torch.meshgrid(*x, indexing="ij"),
                  numpy=lambda *x: np.meshgrid(*x, indexing="ij"))
    for code, (to, t) in enumerate(TORCH.items()):
        values = [1, 0, 1, 1] if dtype == "bool" else [0, 1, 2, 100, 7, 250] if dtype == "u8" else \
            [0, 1, -1, 100, -7, 3]
        values = values + [1.75, -2.5, 0.375, -0.0] if dtype in FLOAT else values
        if dtype in FLOAT and to == "u8":            # below 0 it is undefined in C
            values = [v for v in values if v >= 0]
        if dtype == "i64" and to in INT:
            values = values + [2**40 + 5, -2**31 - 3, 511]
        if dtype == "i32" and to in INT:
            values = values + [2**31 - 1, 40000, -129]
        a = torch.tensor(values, dtype=torch.float64).to(TORCH[dtype])
        both = dtype in FLOAT and to in FLOAT
        book.case("cast", dtype, [(a, "")], lambda x: x.to(t, copy=True), ints=[[code]],
                  grad="1" if both else False, native="only", diff=to == "f64")
        if to not in FLOAT and dtype in FLOAT:
            continue
        for shape, look in (((3, 4), "T"), ((3, 5), "S"), ((2,), "E"), ((), ""), ((0, 3), "")):
            a = some(book, "cast", dtype, shape)
            a = a.clamp(0, 100) if to == "u8" and dtype != "bool" else a
            book.case("cast", dtype, [(a, look)], lambda x: x.to(t, copy=True), ints=[[code]],
                      grad="1" if both else False, native="only", diff=to == "f64")
    if dtype in ("f32", "f64"):                      # ties, and what only f64 tells apart
        tie = torch.tensor([1 + 2**-24, 1 + 3 * 2**-24, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11,
                            1 + 2**-11 + 2**-40, 65519.0, 65520.0, 3.4e38, -3.4e38, 1e-3, INF, NAN],
                           dtype=TORCH[dtype])
        for code, to in ((0, "f32"), (1, "f64"), (3, "bf16"), (4, "f16")):
            if dtype == "f64" and to in HALF:        # PyTorch rounds twice, by way of f32
                continue
            book.case("cast", dtype, [(tie, "")], lambda x: x.to(TORCH[to], copy=True),
                      ints=[[code]], grad=False)
        for code, to in ((2, "i64"), (5, "i32"), (6, "i8")):
            a = torch.tensor([1.9, -1.9, 0.0, 2.5, -2.5, 127.0, -128.0], dtype=TORCH[dtype])
            book.case("cast", dtype, [(a, "")], lambda x: x.to(TORCH[to]), ints=[[code]], grad=False)


def create(book, dtype):
    t = TORCH[dtype]
    value = {"bool": 1.0, "u8": 250.0}.get(dtype, -3.0)
    for shape in ((7,), (2, 3), (), (0, 3), (2, 1, 3, 2)):
        book.case("zeros", dtype, [], lambda: torch.zeros(shape, dtype=t), ints=[shape])
        book.case("ones", dtype, [], lambda: torch.ones(shape, dtype=t), ints=[shape])
        book.case("full", dtype, [], lambda: torch.full(shape, value, dtype=t), ints=[shape],
                  nums=[value])
    for n, m in ((3, 3), (2, 5), (4, 1), (0, 3), (0, 0)):
        book.case("eye", dtype, [], lambda: torch.eye(n, m, dtype=t), ints=[[n], [m]],
                  numpy=lambda: np.eye(n, m))
    ranges = [(0, 2, 1)] if dtype == "bool" else \
        [(0, 7, 1), (2, 11, 3), (5, 5, 1), (9, 0, -2), (0, 19, 1)] + \
        ([(0, 1, 0.125), (-1, 1.1, 0.5)] if dtype in FLOAT else [])
    for start, stop, step in ranges:
        book.case("arange", dtype, [], lambda: torch.arange(start, stop, step, dtype=torch.float64)
                  .to(t), nums=[start, stop, step], numpy=lambda: np.arange(start, stop, step))
    spans = [(0, 1, 2), (0, 1, 1), (0, 5, 0)] + \
        ([(0, 10, 11), (3, 12, 4)] if dtype != "bool" else []) + \
        ([(-1, 1, 7), (5, -5, 19), (2.5, 2.5, 3)] if dtype in FLOAT else [])
    for start, stop, n in spans:
        book.case("linspace", dtype, [], lambda: torch.linspace(start, stop, n, dtype=torch.float64)
                  .to(t), ints=[[n]], nums=[start, stop],
                  numpy=lambda: np.linspace(start, stop, n))


# ---- products ----------------------------------------------------------------------------------

MATMUL_CASES = [
    ((3, 5), "", (5, 7), ""), ((5,), "", (5,), ""), ((5,), "", (5, 4), ""), ((3, 5), "", (5,), ""),
    ((2, 3, 5), "", (2, 5, 4), ""), ((2, 3, 5), "", (5, 4), ""), ((3, 5), "", (2, 5, 4), ""),
    ((2, 1, 3, 4), "", (3, 4, 2), ""), ((5, 3), "T", (7, 5), "T"), ((3, 11), "S", (5, 4), ""),
    ((3, 0), "", (0, 4), ""), ((0, 3), "", (3, 4), ""), ((1, 1), "", (1, 1), ""),
    ((2, 3, 5), "", (5,), ""), ((5,), "", (2, 5, 4), ""), ((3, 5), "E", (5, 2), ""),
]
LINEAR_CASES = [
    ((3, 5), "", (4, 5), ""), ((2, 3, 5), "", (4, 5), ""), ((5,), "", (4, 5), ""),
    ((5, 3), "T", (5, 4), "T"), ((0, 5), "", (4, 5), ""), ((3, 11), "S", (4, 5), ""),
    ((3, 5), "E", (4, 5), ""),
]
EINSUM_CASES = [
    ("ij,jk->ik", ((3, 5), ""), ((5, 4), "")), ("ij,jk", ((5, 3), "T"), ((5, 9), "S")),
    ("bij,bjk->bik", ((2, 3, 4), ""), ((2, 4, 3), "")), ("ii->i", ((3, 3), "")),
    ("ii", ((4, 4), "")), ("ij->ji", ((3, 5), "")), ("ij->", ((3, 5), "S")),
    ("i,j->ij", ((3,), ""), ((4,), "")), ("i,i", ((5,), ""), ((5,), "")),
    ("...ij,...jk->...ik", ((2, 1, 3, 4), ""), ((3, 4, 2), "")), ("ba", ((2, 3), "")),
    ("ij,jk,kl->il", ((2, 3), ""), ((3, 4), ""), ((4, 2), "")), ("ij,ij->j", ((3, 4), ""),
                                                                ((4, 3), "T")),
    ("ij,j->ij", ((0, 3), ""), ((3,), "")), ("ik,kj->ij", ((3, 0), ""), ((0, 2), "")),
    (",ij->ij", ((), ""), ((2, 3), "")), ("ij,k->k", ((3,), "E"), ((4,), "")),
    ("a,a,a->a", ((4,), ""), ((4,), ""), ((4,), "")),
]


def products(book, dtype):
    for sa, va, sb, vb in MATMUL_CASES:
        a, b = book.rand("matmul", dtype, sa, -1, 1), book.rand("matmul", dtype, sb, -1, 1)
        summed = dtype in HALF and len(sa) + len(sb) > 4 and sa[:-2] != sb[:-2]
        book.case("matmul", dtype, [(a, va), (b, vb)], torch.matmul, numpy=np.matmul,
                  grad=False if summed else None)    # matrices are rounded, then added
    acts = [lambda t: t, torch.relu, F.gelu, torch.tanh, torch.sigmoid, F.silu]
    for xs, xv, ws, wv in LINEAR_CASES:
        x, w = book.rand("linear", dtype, xs, -1, 1), book.rand("linear", dtype, ws, -1, 1)
        b = book.rand("linear", dtype, (4,), -1, 1)
        book.case("linear", dtype, [(x, xv), (w, wv), (b, "")], F.linear,
                  numpy=lambda x, w, b: x @ w.T + b)
        book.case("linear", dtype, [(x, xv), (w, wv)], F.linear)
        for number, act in enumerate(acts):
            book.case("linear_ex", dtype, [(x, xv), (w, wv), (b, "")],
                      lambda x, w, b: act(F.linear(x, w, b)), ints=[[number]])
    for equation, *shapes in EINSUM_CASES:
        ins = [(book.rand("einsum", dtype, s, -1, 1), v) for s, v in shapes]
        book.case("einsum", dtype, ins, lambda *x: torch.einsum(equation, *x), text=equation,
                  native=len(ins) < 3, numpy=lambda *x: np.einsum(equation, *x))
    for sa, va, sb, vb in (((3,), "", (4,), ""), ((7,), "S", (5,), ""), ((0,), "", (3,), ""),
                           ((1,), "", (1,), "")):
        a, b = book.rand("outer", dtype, sa, -1, 1), book.rand("outer", dtype, sb, -1, 1)
        book.case("outer", dtype, [(a, va), (b, vb)], torch.outer, numpy=np.outer)
    for n, va, vb in ((19, "", ""), (1, "", ""), (0, "", ""), (9, "S", "S")):
        a, b = book.rand("dot", dtype, (n,), -1, 1), book.rand("dot", dtype, (n,), -1, 1)
        book.case("dot", dtype, [(a, va), (b, vb)], torch.dot, numpy=np.dot)


# ---- convolutions ------------------------------------------------------------------------------

CONV = [F.conv1d, F.conv2d, F.conv3d]
CONV_BACK = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]
# x, its layout, w; stride, padding, dilation, groups
CONV_CASES = [
    ((2, 3, 9), "", (4, 3, 3), (2,), (1,), (1,), 1),
    ((2, 4, 5, 6), "", (6, 2, 3, 2), (1, 2), (1, 0), (1, 2), 2),
    ((2, 3, 6, 5), "T", (2, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 2, 4, 8), "S", (3, 2, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 4, 4), "E", (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((1, 2, 3, 4, 3), "", (2, 2, 2, 3, 2), (1, 2, 1), (0, 1, 1), (1, 1, 1), 1),
    ((0, 3, 5, 5), "", (2, 3, 3, 3), (1, 1), (0, 0), (1, 1), 1),
]


def convolutions(book, dtype):
    acts = [lambda t: t, torch.relu, F.gelu, torch.tanh, torch.sigmoid, F.silu]
    for number, (xs, xv, ws, stride, padding, dilation, groups) in enumerate(CONV_CASES):
        axes, act = len(ws) - 3, number % len(acts)
        x, w = book.rand("conv", dtype, xs, -1, 1), book.rand("conv", dtype, ws, -1, 1)
        c = VIEWS[xv](x).shape[1]
        if ws[1] * groups != c:                            # as wide as x is, looked at
            w = book.rand("conv", dtype, (ws[0], c // groups, *ws[2:]), -1, 1)
        b = book.rand("conv", dtype, (w.shape[0],), -1, 1)
        ints = [stride, padding, dilation, (groups, 0, act)]
        book.case("conv", dtype, [(x, xv), (w, ""), (b, "")], native=False, ints=ints,
                  call=lambda x, w, b: acts[act](CONV[axes](x, w, b, stride, padding, dilation,
                                                            groups)))
        if all(s == 1 for s in stride):
            book.case("conv", dtype, [(x, xv), (w, "")], native=False,
                      ints=[stride, [0] * len(stride), dilation, (groups, 1, 0)],
                      call=lambda x, w: CONV[axes](x, w, None, stride, "same", dilation, groups))
        w = book.rand("conv", dtype, (c, 2, *ws[2:]), -1, 1)
        b = book.rand("conv", dtype, (2 * groups,), -1, 1)
        more = [s - 1 for s in stride]
        book.case("conv_transpose", dtype, [(x, xv), (w, ""), (b, "")], native=False,
                  ints=[stride, padding, dilation, (groups, *more)],
                  call=lambda x, w, b: CONV_BACK[axes](x, w, b, stride, padding, more, groups,
                                                       dilation))


def formats(book, dtype):
    for shape, look in (((2, 3, 4, 5), ""), ((2, 3, 5), "T"), ((3, 2, 8), "S"), ((0, 3, 2), "")):
        a = some(book, "channels_last", dtype, shape)
        book.case("channels_last", dtype, [(a, look)], torch.clone, native="only")
    for shape, look, r in (((2, 8, 2, 4), "", 2), ((1, 4, 4, 9), "T", 1), ((1, 18, 3, 4), "S", 3),
                           ((4, 4, 4), "E", 2)):
        a = some(book, "pixel_shuffle", dtype, shape)
        book.case("pixel_shuffle", dtype, [(a, look)], lambda x: F.pixel_shuffle(x, r),
                  native="only", ints=[(r,)])
    for shape, look, r in (((2, 2, 2, 4), "", 2), ((1, 4, 4, 9), "T", 1), ((1, 2, 6, 6), "S", 3),
                           ((4, 4, 4), "E", 2)):
        a = some(book, "pixel_unshuffle", dtype, shape)
        book.case("pixel_unshuffle", dtype, [(a, look)], lambda x: F.pixel_unshuffle(x, r),
                  native="only", ints=[(r,)])
    for op, out in (("pixel_shuffle", (0, 1, 4, 4)), ("pixel_unshuffle", (0, 16, 1, 1))):
        a = some(book, op, dtype, (0, 4, 2, 2))        # PyTorch's own fail where there is nothing
        book.case(op, dtype, [(a, "")], lambda x: x.reshape(out).clone(), native="only", ints=[(2,)])


POOLS = [
    ((2, 3, 9), "", (3,), (2,), (1,), (1,), 0, 0), ((2, 4, 5, 6), "T", (2, 3), (2, 1), (1, 1), (1, 2),
                                                    0, 1),
    ((1, 2, 7, 12), "S", (3, 2), (2, 2), (0, 1), (1, 1), 1, 0), ((0, 3, 4, 4), "", (2, 2), (2, 2),
                                                                (0, 0), (1, 1), 0, 0),
    ((2, 4, 4), "E", (3, 3), (1, 1), (1, 1), (1, 1), 0, 1),
    ((1, 2, 3, 4, 3), "", (2, 2, 2), (1, 2, 1), (0, 1, 1), (1, 1, 1), 1, 1),
]
MAX_POOL = [F.max_pool1d, F.max_pool2d, F.max_pool3d]
AVG_POOL = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]
ADAPTIVE = [((2, 3, 9), "", (4,)), ((2, 4, 5, 7), "T", (3, 1)), ((1, 2, 3, 8), "S", (2, 6)),
            ((3, 4, 4), "E", (1, 1)), ((1, 2, 3, 4, 3), "", (2, 2, 2))]
ADAPTIVE_MAX = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d]
ADAPTIVE_AVG = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d]

RESIZES = [((2, 3, 5), "", (9,)), ((2, 4, 5, 7), "T", (3, 10)), ((1, 2, 4, 8), "S", (8, 1)),
           ((3, 4, 4), "E", (7, 2)), ((1, 2, 3, 4, 3), "", (5, 2, 6)), ((0, 3, 2, 2), "", (4, 4)),
           ((1, 130, 2), "", (3,))]
LINEAR = ["linear", "bilinear", "trilinear"]


def resized(x, size, mode):
    """As mlc_interpolation counts modes."""
    if mode == 0:
        return F.interpolate(x, size, mode="nearest")
    return F.interpolate(x, size, mode=LINEAR[len(size) - 1], align_corners=mode == 2)


def pools(book, dtype):
    """Values of pools are far apart, as differences of them are looked at."""
    def far(op, shape):
        n = int(np.prod(shape))
        return (torch.randperm(n, generator=torch.Generator().manual_seed(n)).double().reshape(shape)
                * 0.25 - n * 0.125).to(TORCH[dtype])
    for xs, xv, kernel, stride, padding, dilation, ceil, exclude in POOLS:
        axes, x = len(kernel) - 1, far("max_pool", xs)
        book.case("max_pool", dtype, [(x, xv)], native=False,
                  ints=[kernel, stride, padding, (*dilation, ceil)],
                  call=lambda x: MAX_POOL[axes](x, kernel, stride, padding, dilation, bool(ceil)))
        if x.numel():
            book.case("avg_pool", dtype, [(x, xv)], native=False,
                      ints=[kernel, stride, padding, (ceil, exclude)],
                      call=lambda x: AVG_POOL[axes](x, kernel, stride, padding, bool(ceil),
                                                    not exclude))
    book.case("avg_pool", dtype, [(far("avg_pool", (0, 3, 4, 4)), "")], native=False,
              ints=[(2, 2), (2, 2), (0, 0), (0, 0)], call=lambda x: F.avg_pool2d(x, 2))
    for xs, xv, size in ADAPTIVE:
        axes, x = len(size) - 1, far("adaptive", xs)
        book.case("adaptive_max_pool", dtype, [(x, xv)], native=False, ints=[size],
                  call=lambda x: ADAPTIVE_MAX[axes](x, size))
        book.case("adaptive_avg_pool", dtype, [(x, xv)], native=False, ints=[size],
                  call=lambda x: ADAPTIVE_AVG[axes](x, size))
    for shape, view in (((4, 3), ""), ((2, 3, 5), "T"), ((2, 3, 4, 6), "S"), ((5, 4), "E"),
                        ((3, 130, 2), ""), ((0, 3, 2), "")):
        x = book.rand("batch_norm", dtype, shape, -2, 3)
        c = VIEWS[view](x).shape[1]
        w, b = (book.rand("batch_norm", dtype, c, -1.5, 1.5) for _ in range(2))
        if x.numel():
            book.case("batch_norm", dtype, [(x, view), (w, ""), (b, "")], native=False, nums=[1e-3],
                      call=lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, 1e-3))
        book.case("batch_norm", dtype, [(x, view)], native=False, nums=[1e-3],
                  call=lambda x: F.batch_norm(x, None, None, None, None, True, 0.1, 1e-3)
                  if x.numel() else x * 1)
    for shape, view, groups in (((2, 6), "", 2), ((2, 4, 5), "T", 1), ((2, 6, 4, 3), "S", 3),
                                ((6, 3, 2), "E", 3), ((2, 130, 2), "", 5), ((0, 4, 2), "", 2)):
        x = book.rand("group_norm", dtype, shape, -2, 3)
        c = VIEWS[view](x).shape[1]
        w, b = (book.rand("group_norm", dtype, c, -1.5, 1.5) for _ in range(2))
        if x.numel():
            book.case("group_norm", dtype, [(x, view), (w, ""), (b, "")], native=False,
                      nums=[1e-3, groups if c % groups == 0 else 1],
                      call=lambda x, w, b: F.group_norm(x, groups if c % groups == 0 else 1, w, b,
                                                        1e-3))
        book.case("group_norm", dtype, [(x, view)], native=False, nums=[1e-3, 1],
                  call=lambda x: F.group_norm(x, 1, None, None, 1e-3) if x.numel() else x * 1)
        if len(shape) < 3:
            continue
        if x.numel():
            book.case("instance_norm", dtype, [(x, view), (w, ""), (b, "")], native=False,
                      nums=[1e-3], call=lambda x, w, b: F.instance_norm(x, None, None, w, b, True,
                                                                        0.1, 1e-3))
        book.case("instance_norm", dtype, [(x, view)], native=False, nums=[1e-3],
                  call=lambda x: F.instance_norm(x, eps=1e-3) if x.numel() else x * 1)
    for shape, view, size in RESIZES:
        x = book.rand("interpolate", dtype, shape, -2, 3)
        for mode in range(3):
            book.case("interpolate", dtype, [(x, view)], native=False, ints=[size, (mode,)],
                      call=lambda x: resized(x, size, mode) if x.numel() else
                      x.new_zeros((*x.shape[:2], *size)) + x.sum())
    for op, call in (("adaptive_max_pool", F.adaptive_max_pool2d),
                     ("adaptive_avg_pool", F.adaptive_avg_pool2d)):
        book.case(op, dtype, [(far(op, (0, 3, 4, 4)), "")], native=False, ints=[(2, 2)],
                  call=lambda x: call(x, (2, 2)))


def rotated(x, p, n, neighbours, base, scale):
    """Rotary embedding, written out; angles in f64 and rounded once."""
    rate = base ** (-2 * torch.arange(n // 2, dtype=torch.float64) / n)
    angle = p.double()[..., None] / scale * rate
    if p.dim() == 2:
        angle = angle.reshape(p.shape[0], *[1] * (x.dim() - 3), p.shape[1], n // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = (x[..., 0:n:2], x[..., 1:n:2]) if neighbours else (x[..., :n // 2], x[..., n // 2:n])
    turned = [a * cos - b * sin, b * cos + a * sin]
    turned = torch.stack(turned, -1).flatten(-2) if neighbours else torch.cat(turned, -1)
    return torch.cat([turned, x[..., n:]], -1)


def slopes(heads):
    n = 2 ** int(math.log2(heads))
    some = [2 ** (-8 * (i + 1) / n) for i in range(n)]
    return some + [2 ** (-8 * (i + 1) / (2 * n)) for i in range(0, 2 * (heads - n), 2)]


def sequence(book, dtype):
    for si, vi, sw, vw in (((7,), "", (4, 3), ""), ((2, 5), "S", (4, 3), "T"), ((), "", (3, 2), ""),
                           ((3, 2), "T", (5, 4), "S"), ((0, 3), "", (2, 3), "")):
        w = book.rand("embedding", dtype, sw, -2, 2)
        rows = VIEWS[vw](w).shape[0]
        i = book.rand("embedding_i", "i64", si, 0, rows)
        book.case("embedding", dtype, [(i, vi), (w, vw)], F.embedding)
        if len(si) == 1:
            book.case("embedding_ex", dtype, [(i, vi), (w, vw)], ints=[[-2]], diff=False,
                      call=lambda i, w: F.embedding(i, w, padding_idx=rows - 2))
        if len(si) == 2 and vi != "S":
            book.case("embedding_bag", dtype, [(i, vi), (w, vw)], native=False,
                      call=lambda i, w: F.embedding_bag(i.contiguous(), w, mode="mean"))
            f = book.rand("embedding_f", dtype, VIEWS[vi](i).shape, -1, 1)
            book.case("embedding_bag_ex", dtype, [(i, vi), (w, vw), (f, "")], native=False,
                      call=lambda i, w, f: F.embedding_bag(i.contiguous(), w, mode="sum",
                                                           per_sample_weights=f))
    i, w = book.rand("embedding_i", "i64", (9,), 0, 4), book.rand("embedding", dtype, (4, 3), -2, 2)
    at = torch.tensor([0, 0, 5, 9])
    book.case("embedding_bag", dtype, [(i, ""), (w, ""), (at, "")], native=False,
              call=lambda i, w, at: F.embedding_bag(i, w, at, mode="mean"))
    for shape, view, places, n, base, scale in (
            ((2, 3, 5, 8), "", None, 8, 1e4, 1.0), ((4, 6), "", None, 4, 1e4, 4.0),
            ((2, 2, 6, 4), "T", (4,), 6, 5e5, 1.0), ((2, 3, 4, 13), "S", (2, 4), 4, 1e4, 1.0),
            ((3, 2), "E", (2, 3), 2, 1e4, 1.0), ((0, 3, 4), "", None, 4, 1e4, 1.0)):
        for neighbours in range(2):
            x = book.rand("rotary", dtype, shape, -2, 2)
            first = 0 if not neighbours else 90 if dtype == "f64" else 99990
            if places is None:
                p = torch.arange(first, first + VIEWS[view](x).shape[-2])
                call = lambda x: rotated(x, p, n, neighbours, base, scale)
            else:
                p = book.rand("rotary_p", "i64", places, 0, 100 if dtype == "f64" else 100000)
                call = lambda x, p: rotated(x, p, n, neighbours, base, scale)
            book.case("rotary", dtype, [(x, view)] + ([] if places is None else [(p, "")]), call,
                      ints=[[n, neighbours, first]], nums=[base, scale], native=False)
    if dtype == "f64":
        def turns():
            angle = torch.arange(3).double()[:, None] * torch.tensor([1, 0.01], dtype=torch.float64)
            return torch.cat([angle.cos(), angle.sin(), -angle.sin()], 1)
        book.case("rotary_table", dtype, [], turns, ints=[[3], [4]])
    if dtype == "f32":
        for t, d in ((5, 8), (40, 6), (3, 1), (2, 5)):
            def table():
                angle = torch.arange(t).double()[:, None] / 1e4 ** (
                    2 * torch.arange((d + 1) // 2).double() / d)
                return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[:, :d].float()
            book.case("sinusoidal", dtype, [], table, ints=[[t], [d]])
        for heads in (1, 2, 8, 12, 16, 25):
            book.case("alibi_slopes", dtype, [], lambda: torch.tensor(slopes(heads)),
                      ints=[[heads]])


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")                  # of empty means and the like
    groups = [(elementwise, FLOAT), (compare, ANY), (reductions, ANY), (sorting, ANY), (join, ANY),
              (index, ANY), (view, ANY), (create, ANY), (products, FLOAT), (rows, FLOAT),
              (attention, FLOAT), (convolutions, FLOAT), (formats, ANY),
              (pools, FLOAT), (sequence, FLOAT)]
    for group, dtypes in groups:
        book = Book(group.__name__)
        for dtype in dtypes:
            group(book, dtype)
        book.save()
    book = Book("random")
    random(book)
    book.save()


if __name__ == "__main__":
    main()
