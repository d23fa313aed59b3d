"""Writes tests/golden/print.safetensors: arrays, and the text that NumPy's print(array) makes of them.

    python3 tests/golden/make_print_goldens.py

Needs numpy (made with 2.4.6); `make test` does not.
Of case NNN the file has an array, NNN; and row NNN of "cases": precision, threshold, edgeitems,
linewidth, suppress; where its text begins in "texts", and its bytes; the number of views that make
what is printed out of the array, and three of them (see VIEWS).

NumPy has no bf16. What it would print comes from its own code, with f32 arrays of values that bf16
has and the digits of `bf16_digits` in the place of its own; the script checks first that they make
NumPy's digits of f16.
"""
import json
import os
import struct
from fractions import Fraction

import numpy as np
from numpy._core import arrayprint

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
          "int32": "I32", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
FLOATS = ["float32", "float64", "float16", "bfloat16"]
WHOLES = ["int64", "int32", "int8", "uint8"]

# ---- views: what is done to x, as tests/test_print.c does it, one after the other ----------------

VIEWS = {
    1: lambda x, *_: x.T,                                             # the axes the other way round
    2: lambda x, axis, start, stop, step: x[(slice(None),) * axis + (slice(start, stop, step),)],
    3: lambda x, n, *_: np.broadcast_to(x, (n,) + x.shape),           # a new first axis
    4: lambda x, axis, index, *_: np.take(x, index, axis),            # without that axis
}

# ---- bf16 ----------------------------------------------------------------------------------------


def power(e, base=10):
    return Fraction(base) ** e


def rounded(x, place):
    """x >= 0 in units of 10^place, half to even."""
    return round(x / power(place))


def exponent_of(x):
    e = len(str(x.numerator)) - len(str(x.denominator))
    while power(e) > x:
        e -= 1
    while power(e + 1) <= x:
        e += 1
    return e


def unique_digits(x, fraction, low, scientific, precision, min_digits):
    """Digits n and place p of x > 0: n * 10^p, by definition: one number after the other is tried.

    fraction, low: bits of the fraction, exponent of the smallest normal number."""
    e = max(low, exponent_2(x))
    step = power(e - fraction, 2)
    below = step / 2 if x == power(e, 2) and e > low else step
    even = x / step % 2 == 0

    def own(y):
        d = y - x
        lo, hi = -below / 2, step / 2
        return lo <= d <= hi if even else lo < d < hi
    first = exponent_of(x)
    zero = first if scientific else 0
    last, least = zero - precision, zero - min_digits
    if first < last:
        return rounded(x, last), last
    place = first
    while place > last:
        n = x // power(place)
        near = [y for y in (n, n + 1) if own(y * power(place))]
        if near and place <= least:
            return min(near, key=lambda y: (abs(y * power(place) - x), y % 2)), place
        place -= 1
    # numpy, too, takes the only neighbour that reads back where that is not the nearest
    n = x // power(place)
    near = [y for y in (n, n + 1) if own(y * power(place))]
    return (near[0] if len(near) == 1 else rounded(x, place)), place


def exponent_2(x):
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if power(e, 2) <= x else e - 1


class Digits:
    """dragon4_positional and dragon4_scientific of a dtype."""

    def __init__(self, fraction, low):
        self.args = fraction, low

    def make(self, x, scientific, precision, min_digits):
        x = abs(Fraction(float(x)))
        if x == 0:
            return "0", 0
        n, place = unique_digits(x, *self.args, scientific, precision, max(0, min_digits or 0))
        text = str(n) if n else "0"
        exponent = place + len(text) - 1 if n else 0
        return (text.rstrip("0") or "0"), exponent

    def positional(self, x, precision, fractional=True, unique=True, trim=".", sign=False,
                   pad_left=-1, pad_right=-1, min_digits=0):
        text, e = self.make(x, False, precision, min_digits)
        whole = text[:e + 1].ljust(e + 1, "0") if e >= 0 else "0"
        part = text[e + 1:] if e >= 0 else "0" * (-e - 1) + text
        if text == "0":
            part = ""
        whole = ("-" if np.signbit(x) else "") + whole
        return whole.rjust(pad_left or 0) + "." + part.ljust(max(0, pad_right or 0))

    def scientific(self, x, precision, unique=True, trim=".", sign=False, pad_left=-1, exp_digits=-1,
                   min_digits=0):
        text, e = self.make(x, True, precision, min_digits)
        part = text[1:].ljust(precision if trim == "k" else 0, "0")
        e = ("-" if e < 0 else "+") + str(abs(e)).rjust(max(2, exp_digits), "0")
        return (("-" if np.signbit(x) else "") + text[0]).rjust(max(0, pad_left)) + f".{part}e{e}"


def check_digits():
    ours = Digits(10, -14)
    with np.errstate(all="ignore"):
        for bits in range(0, 65536, 7):
            x = np.uint16(bits).view(np.float16)
            for p, m in ((8, 0), (2, 0), (3, 3)) if np.isfinite(x) else ():
                for name, ask in (("positional", {"fractional": True}), ("scientific", {})):
                    got = getattr(ours, name)(x, p, min_digits=m, trim=".", **ask)
                    want = getattr(arrayprint, "dragon4_" + name)(
                        x, precision=p, min_digits=m, trim=".", **ask)
                    assert got == want, (x, name, p, m, got, want)


class Bf16:
    """Within, NumPy takes f32 for bf16."""

    def __enter__(self):
        self.old = arrayprint.dragon4_positional, arrayprint.dragon4_scientific, np.finfo
        digits = Digits(7, -126)
        arrayprint.dragon4_positional = digits.positional
        arrayprint.dragon4_scientific = digits.scientific
        np.finfo = lambda dtype: type("info", (), {"precision": 2})

    def __exit__(self, *_):
        arrayprint.dragon4_positional, arrayprint.dragon4_scientific, np.finfo = self.old


def bf16_bits(x):
    """Bits of the nearest bf16, half to even."""
    u = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16).reshape(np.shape(x))


def bf16_values(x):
    return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(x))


def bf16_scalar(x):
    """str of a 0-d array, as floats of NumPy have it."""
    if not np.isfinite(x):
        return str(x)
    digits = Digits(7, -126)
    if x == 0 or 1e-4 <= abs(x) < 1e2:
        text = digits.positional(x, 400)
        return text + "0" if text.endswith(".") else text
    return digits.scientific(x, 400).replace(".e", "e")


# ---- cases ---------------------------------------------------------------------------------------

OPTIONS = {"precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False}
file, cases, texts = {}, [], bytearray()


def add(x, dtype, views=(), **options):
    options = {**OPTIONS, **options}
    bf16 = dtype == "bfloat16"
    with np.errstate(all="ignore"):
        x = np.asarray(x).astype(np.float32 if bf16 else dtype)
    if bf16:
        x = bf16_values(x)
    seen = x
    for view in views:
        seen = VIEWS[view[0]](seen, *view[1:], *(0,) * (5 - len(view)))
    with np.printoptions(**options), np.errstate(all="ignore"):
        if not bf16:
            text = str(seen)
        elif seen.shape == ():
            text = bf16_scalar(seen[()])
        else:
            with Bf16():
                text = str(seen)
    text = (text + "\n").encode()
    row = [int(options[k]) for k in OPTIONS] + [len(texts), len(text), len(views)]
    for view in views:
        row += view + (0,) * (5 - len(view))
    cases.append(row + [0] * (23 - len(row)))
    texts.extend(text)
    put(f"{len(cases) - 1:03d}", dtype, bf16_bits(x) if bf16 else x)


def put(name, dtype, x):
    file[name] = DTYPES[dtype], list(x.shape), x.tobytes()


def save(path):
    """The file by hand: the safetensors package does not take bf16 without torch."""
    header, at = {}, 0
    for name, (dtype, shape, data) in file.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(d for *_, d in file.values()))


def main():
    check_digits()
    rng = np.random.default_rng(4)
    nan, inf = np.nan, np.inf
    for dtype in FLOATS + WHOLES + ["bool"]:
        add(np.arange(6), dtype)
        add(np.arange(6).reshape(2, 3), dtype)
        add(np.arange(24).reshape(2, 3, 4), dtype)
        add(np.arange(24).reshape(2, 3, 2, 2), dtype)
        add(np.arange(24).reshape(1, 2, 3, 4), dtype, views=[(1,)])
        add(np.arange(60), dtype)                                       # wrapped
        add(np.arange(60) % 7, dtype, linewidth=20)
        add(np.arange(12).reshape(3, 4), dtype, linewidth=1)
        add(np.arange(120), dtype, threshold=100)
        add(np.arange(120).reshape(12, 10), dtype, threshold=100, edgeitems=2)
        add(np.arange(120).reshape(3, 40), dtype, threshold=100, edgeitems=2, linewidth=30)
        add(np.arange(112).reshape(2, 7, 8), dtype, threshold=50)
        add(np.arange(112).reshape(8, 2, 7), dtype, threshold=1, edgeitems=1)
        add(np.arange(120).reshape(2, 3, 4, 5), dtype, threshold=7, edgeitems=1)
        add(np.arange(10), dtype, views=[(3, 10 ** 6)])                 # 10 million elements
        add(np.arange(10), dtype, views=[(3, 7), (3, 10 ** 5), (1,)], edgeitems=2)
        add(np.arange(24).reshape(4, 6), dtype, views=[(2, 1, 1, 6, 2)])
        add(np.arange(24).reshape(4, 6), dtype, views=[(2, 0, 1, 4, 2), (1,)])
        add(np.arange(24).reshape(4, 6), dtype, views=[(4, 1, 3)])
        add(np.arange(24).reshape(4, 6), dtype, views=[(4, 1, 3), (4, 0, 2)])
        add(np.arange(200).reshape(20, 10), dtype, views=[(1,), (2, 1, 0, 20, 3)], threshold=5)
        add(1, dtype)
        add(0, dtype)
        add([1], dtype)
        add([[[0]]], dtype)
        for shape in ((0,), (0, 3), (2, 0), (2, 0, 4)):
            add(np.zeros(shape), dtype)
    for dtype in WHOLES:
        info = np.iinfo(dtype)
        add([info.min, 0, info.max], dtype)
        add([[info.max], [1]], dtype)
        add(info.min, dtype)
        add(rng.integers(info.min, info.max, 13), dtype)
    add([True, False, True], "bool")
    add(True, "bool")
    for dtype in FLOATS:
        for x in ([nan, 1.5], [inf, -inf, nan], [nan], [-inf], [inf], [1.5, -inf], [-2, inf],
                  [100, nan], [1e-9, nan, -inf], [nan, nan], [0.0, -0.0], [-0.0, 1], [-0.0, nan],
                  [1e5, nan, 1e-5], [[nan, 1], [-inf, 0.25]]):
            add(x, dtype)
        for x in (0.0, -0.0, 0.5, -2, 0.1, 1 / 3, 99, 100, 128, 999, 1000, 1001, 999999, 1e6, 1.5e7,
                  1e-3, 1e-4, 1.1e-4, 9e-5, 6e-8, 1e15, 9.5e15, 1e16, 1.7e38, nan, inf, -inf):
            add(x, dtype)
        # Each is close to a switch to scientific notation.
        for x in ([99, 1], [100, 1], [998, 1], [999, 0.999], [1000, 1], [1001, 1], [1e6, 1e4],
                  [999999, 1e4], [99999999, 1e6], [1e8, 1e6], [0.0001, 0.01], [0.00009, 0.001],
                  [0.00011, 0.1], [0.0011, 1], [0.00099, 1], [1e-5, 1e-4], [0.1, 100.5]):
            add(x, dtype)
            add(x, dtype, suppress=True)
        for precision in (0, 1, 2, 3, 4, 12, 17, 30):
            add([0.25, 0.35, 0.5, 0.51, 1.5, 2.5, 0.0949, 1 / 3, 9.96], dtype, precision=precision)
            add([1e-10, 9.96e-7, 0.25, 123.456], dtype, precision=precision)
            add([1e-10, 6e-9, 5e-4, 0.006, 0.25], dtype, precision=precision, suppress=True)
        add([1.0, 22.25, 333.5], dtype)
        add([[1.5, -22.25], [0, 3.125]], dtype)
        add(rng.normal(size=(5, 6)), dtype)
        add(rng.normal(size=(40, 40)), dtype, precision=4)
        add(rng.normal(size=50) * 10.0 ** rng.integers(-6, 7, 50), dtype)
        add(2.0 ** np.arange(-14, 15), dtype, precision=20)
        add(rng.normal(size=(3, 2, 9)), dtype, linewidth=40, precision=3)
        add(rng.normal(size=(2, 3)) * 1e-3, dtype, views=[(1,)])
    for x in ([1e100, 1e-100], [1e99, 9.99999999999e99], [5e-324, 1.7976931348623157e308], [1e-99, 1]):
        add(x, "float64")
        add(x[0], "float64")
    for dtype, most in (("float32", 2 ** 32), ("float64", 2 ** 64), ("float16", 2 ** 16)):
        size = np.dtype(dtype).itemsize
        for k in range(6):
            x = rng.integers(0, most, 24, dtype=np.uint64).astype(f"u{size}").view(dtype)
            add(x.reshape(6, 4), dtype, precision=(8, 17, 3, 8, 25, 1)[k])
    put("cases", "int64", np.array(cases, np.int64))
    put("texts", "uint8", np.frombuffer(texts, np.uint8))
    save(os.path.join(HERE, "print.safetensors"))
    print(len(cases), "cases")


main()
