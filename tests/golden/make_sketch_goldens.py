"""Makes sketch.safetensors: Panther's sketched linear layer in f64, outputs and gradients.

    python3 tests/golden/make_sketch_goldens.py    (PyTorch, NumPy, safetensors)

Tensors have Panther's shapes: S1s (l,n,k), S2s (l,k,m), U1s (l,k,m), U2s (l,n,k). Numbers are made
by `spread`, which golden.h has, too; the signs of U by a Philox of this file, so that the goldens
hold the bits of U as well. Of a tensor of over WHOLE elements every STEP-th is stored: STEP is
prime and divides no length of a row, so that all columns have their turn.
"""
import os

import numpy as np
import torch
from safetensors.torch import save_file

from make_resnet_goldens import spread

WHOLE, STEP = 400, 11
SEED, COPY_SEED = 0x9E3779B97F4A7C15, 0x1B2C3D4E5F6071       # a module's is below 2^53
# rows, n, m, l, k, bias; tests/test_sketch.c has the same and says what each is for
CASES = [(5, 24, 40, 1, 16, 1), (8, 29, 71, 1, 70, 1), (3, 41, 37, 2, 97, 1),
         (3, 40, 130, 1, 2, 1), (2, 260, 3, 2, 5, 1), (4, 150, 19, 4, 17, 1),
         (33, 31, 35, 2, 3, 1), (17, 65, 48, 4, 8, 1), (16, 64, 64, 1, 64, 1),
         (6, 47, 35, 2, 39, 0), (9, 31, 21, 3, 32, 0), (2, 1, 9, 3, 7, 0), (1, 7, 5, 1, 1, 0),
         (1, 1037, 1031, 1, 3, 0)]
COPY = (7, 37, 29, 3, 10)


def philox(seed, stream, block):
    """Philox4x32-10 of each of some blocks: words [.., 4]."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c = [block & low, block >> half, np.full_like(block, stream & 0xFFFFFFFF),
         np.full_like(block, stream >> 32)]
    for i in range(10):
        k0 = np.uint64(((seed & 0xFFFFFFFF) + i * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64(((seed >> 32) + i * 0xBB67AE85) & 0xFFFFFFFF)
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [p1 >> half ^ c[1] ^ k0, p1 & low, p0 >> half ^ c[3] ^ k1, p0 & low]
    return np.stack(c, -1)


def signs(rows, cols, seed, stream):
    """Sign (row, col): bit col % 32 of word col / 32 % 4 of block row << 32 | col / 128."""
    row = np.arange(rows, dtype=np.uint64)[:, None]
    block = row << np.uint64(32) | np.arange(-(-cols // 128), dtype=np.uint64)
    words = philox(seed, stream, block).reshape(rows, -1, 1)
    bits = (words >> np.arange(32, dtype=np.uint64) & np.uint64(1)).reshape(rows, -1)[:, :cols]
    return torch.from_numpy(1.0 - 2.0 * bits.astype(np.float64))


def draw(n, m, l, k, seed, stream):
    """U1s and U2s as Panther draws them: (k,m) and (k,n), the latter transposed."""
    u1 = signs(l * k, m, seed, stream + 1).reshape(l, k, m) / k**0.5
    u2 = signs(l * k, n, seed, stream + 2).reshape(l, k, n) / k**0.5
    return u1, u2.transpose(1, 2)


def forward(x, s1, s2, u1, u2, b):
    l = s1.shape[0]
    y = 1 / (2 * l) * sum(x @ s1[i] @ u1[i] + x @ u2[i] @ s2[i] for i in range(l))
    return y if b is None else y + b


def stored(t):
    t = t.detach().flatten()
    return t[::STEP if t.numel() > WHOLE else 1].clone()


def numbers(stream, *shape):
    return spread(int(np.prod(shape)), stream).reshape(shape)


def layer(out, c):
    rows, n, m, l, k, bias = CASES[c]
    shapes = [(rows, n), (l, n, k), (l, k, m)] + [(m,)] * bias
    leaves = [numbers(10 * c + i, *shape).requires_grad_() for i, shape in enumerate(shapes)]
    u = draw(n, m, l, k, SEED, c << 32)
    y = forward(*leaves[:3], *u, leaves[3] if bias else None)
    y.backward(numbers(10 * c + 4, rows, m))
    out[f"{c}.y"] = stored(y)
    for name, leaf in zip(["dx", "ds1", "ds2", "db"], leaves):
        out[f"{c}.{name}"] = stored(leaf.grad)


def copied(out):
    """A layer that starts from a dense one, of weight [m,n]."""
    rows, n, m, l, k = COPY
    x, w, b = numbers(201, rows, n), numbers(202, m, n).T, numbers(203, m)
    u1, u2 = draw(n, m, l, k, COPY_SEED, 0)
    s1 = torch.stack([w @ u1[i].T for i in range(l)])
    s2 = torch.stack([u2[i].T @ w for i in range(l)])
    for name, t in (("y", forward(x, s1, s2, u1, u2, b)), ("s1", s1), ("s2", s2)):
        out[f"copy.{name}"] = stored(t)


def main():
    out = {}
    for c in range(len(CASES)):
        layer(out, c)
    copied(out)
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(out, os.path.join(here, "sketch.safetensors"))


if __name__ == "__main__":
    main()
