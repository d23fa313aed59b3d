#!/usr/bin/env python3
"""What PyTorch's convolutions make of whole numbers, for tests/test_conv.c: conv.safetensors.

    pip install torch numpy safetensors
    python tests/golden/make_conv_goldens.py

Inputs are whole numbers that the test makes by the same formula, small enough that every sum is
exact in f32, whatever its order: results are to be equal to the bit. Element i of tensor number t
is (i * 7 + i // 5 * 3 + t * 11) % 7 - 3, in the order of the tensor's own shape."""
import random

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

CASES = 240
CONV = [F.conv1d, F.conv2d, F.conv3d]
BACK = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]


def values(t, shape):
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    v = (i * 7 + i // 5 * 3 + t * 11) % 7 - 3
    return torch.tensor(v.reshape(shape), dtype=torch.float64).requires_grad_()


def pick(r, axes, most):
    return [r.randint(1, most) for _ in range(axes)]


def draw(r, number):
    """A case: axes, transposed, same, groups, then a number for each axis of each of six lists."""
    axes = 1 + number % 3
    transposed = number % 4 == 3
    groups = r.choice([1, 1, 2, 3, 5])
    c, out = groups * r.randint(1, 4), groups * r.randint(1, 4)
    if number % 10 == 9:                                   # depthwise
        groups = c = r.choice([3, 8, 17])
        out = c * r.choice([1, 1, 2])
    kernel = pick(r, axes, 4 if axes < 3 else 3)
    stride, dilation = pick(r, axes, 3), pick(r, axes, 2)
    padding = [r.randint(0, 3) for _ in range(axes)]
    more = [0] * axes
    same = not transposed and number % 7 == 0
    if same:
        stride, padding = [1] * axes, [0] * axes
    if transposed:
        more = [r.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation)]
    size = [r.randint(1, 9 if axes < 3 else 5) for _ in range(axes)]
    for i in range(axes):                                  # until the kernel fits
        reach = dilation[i] * (kernel[i] - 1) + 1
        if transposed:
            while (size[i] - 1) * stride[i] + reach + more[i] - 2 * padding[i] < 1:
                size[i] += 1
        elif not same:
            size[i] = max(size[i], reach - 2 * padding[i])
    return (r.randint(1, 3), c, out, groups, transposed, same, size, kernel, stride, padding,
            dilation, more)


def run(case):
    n, c, out, groups, transposed, same, size, kernel, stride, padding, dilation, more = case
    axes = len(size)
    x = values(0, [n, c, *size])
    w = values(1, [c, out // groups, *kernel] if transposed else [out, c // groups, *kernel])
    b = values(2, [out])
    if transposed:
        y = BACK[axes - 1](x, w, b, stride, padding, more, groups, dilation)
    else:
        y = CONV[axes - 1](x, w, b, stride, "same" if same else padding, dilation, groups)
    y.backward(values(3, list(y.shape)).detach())
    return y.detach(), x.grad, w.grad, b.grad


def main():
    r, file = random.Random(6), {}
    for number in range(CASES):
        case = draw(r, number)
        y, dx, dw, db = run(case)
        flat = [len(case[6]), *(int(v) for v in case[:6])]
        for numbers in case[6:]:
            flat += [*numbers, *[0] * (3 - len(numbers))]
        file[f"{number:03}.spec"] = np.array(flat, dtype=np.int64)
        for name, t in (("y", y), ("dx", dx), ("dw", dw), ("db", db)):
            assert t.abs().max() < 2 ** 15
            file[f"{number:03}.{name}"] = t.numpy().astype(np.int32)
    save_file(file, "tests/golden/conv.safetensors")


if __name__ == "__main__":
    main()
