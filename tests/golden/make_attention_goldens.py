"""Makes attention.safetensors: attention in f64 with all kinds of masks together, and gradients.

    python3 tests/golden/make_attention_goldens.py    (PyTorch, NumPy, safetensors)

A row of `cases` is a configuration (FIELDS); N.key_lengths, N.q_offsets and N.k_offsets are those
of case N that has some. Inputs are not stored: element i of a tensor is a hash of seed and i, which
tests/mlc_test.h has, too (test_random), rounded to multiples that bf16 holds. A row of `want` is of
y, dq, dk, dv or dmask: its norm, sums with random weights in which every element has a part, and
some elements. The softmax is written out; where a row sees a key, PyTorch's own must agree.
"""
import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

CASES, BRIEF, LONG = 160, 8, 20                       # every 8th is of the brief suite
SUMS, ELEMENTS, MOST = 8, 4, 1 << 17
FIELDS = ("b", "h", "hk", "t", "s", "d", "dv", "causal", "window", "has_scale", "scale", "alibi",
          "mask", "thin", "axes", "holes", "layout", "wide")
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130)
Q, K, V, DY, MASK, HOLES, ALIBI = range(7)            # streams of a case


def uniform(seed, n, high):
    """test_random(seed, i, 0, high) of i below n: splitmix64."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) * np.uint64(0xd1342543de82ef95)
        z = z + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z ^= z >> np.uint64(31)
    return high * ((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def grid(case, stream, shape, per_one):
    """Multiples of 1 / per_one, from -64 to 64 of them."""
    v = np.floor(uniform(1000 * case + stream, int(np.prod(shape)), 129)) - 64
    return torch.from_numpy(v / per_one).reshape(shape)


def below(case, stream, shape, percent):
    """True with that probability."""
    v = np.floor(uniform(1000 * case + stream, int(np.prod(shape)), 100)) < percent
    return torch.from_numpy(v).reshape(shape)


# ---- configurations ------------------------------------------------------------------------------

def sizes(r, c, long):
    c["t"], c["s"] = (r.choice(EDGES) if r.random() < 0.4 else r.randint(1, 130) for _ in "ts")
    c["d"] = r.choice((8, 16, 32, 64, 96)) if r.random() < 0.25 else r.randrange(1, 97, 2)
    c["dv"] = c["d"] if r.random() < 0.5 else r.randint(1, 96)
    if long:                                          # more keys than a block of kernels has
        c["s"], c["t"] = r.randint(250, 1300), r.randint(1, 40)
        c["d"], c["dv"] = r.randrange(1, 24, 2), r.randint(1, 24)
    c["b"], c["hk"], group = r.randint(1, 3), r.randint(1, 3), r.choice((1, 1, 2, 3, 4))
    while True:
        c["h"] = c["hk"] * group
        rows = c["b"] * c["h"] * c["t"]
        most = rows * max(c["s"], c["d"], c["dv"])
        if most <= MOST // 2 and rows * c["s"] * (c["d"] + c["dv"]) <= 4e6:
            return
        if c["b"] > 1:
            c["b"] -= 1
        elif c["hk"] > 1 and r.random() < 0.5:
            c["hk"] -= 1
        else:
            group -= group > 1
            c["hk"] -= group == 1 and c["hk"] > 1


def mask_of(r, c):
    c["mask"] = r.choice((0, 1, 2, 2))                # none, boolean, added
    c["thin"] = r.choice((0, r.randint(0, 15), r.randint(0, 15)))
    c["axes"] = 4
    while c["axes"] > 1 and c["thin"] >> (4 - c["axes"]) & 1 and r.random() < 0.7:
        c["axes"] -= 1
    c["holes"] = r.choice((5, 30, 60, 90)) if c["mask"] == 1 else r.choice((0, 0, 20, 80))
    c["wide"] = r.randint(0, 1)                       # f32 where q is 16-bit


def offsets(r, n, sequences):
    """Rows of no sequence at either end, sequences without rows."""
    cuts = sorted(r.choice((r.randint(0, n), 0, n)) if r.random() < 0.3 else r.randint(0, n)
                  for _ in range(sequences + 1))
    if r.random() < 0.7:
        cuts[0], cuts[-1] = 0, n
    return torch.tensor(cuts)


def configuration(r, long):
    c, rows = dict.fromkeys(FIELDS, 0), {}
    sizes(r, c, long)
    packed = r.random() < 0.25
    if packed:
        c["b"] = 1
        sequences = r.choice((1, 3, 6, 9))
        if not long and r.random() < 0.25:
            c["s"] = c["t"]                           # k_offsets are q_offsets
        else:
            rows["k_offsets"] = offsets(r, c["s"], sequences)
        rows["q_offsets"] = offsets(r, c["t"], sequences)
    elif r.random() < 0.45:
        rows["key_lengths"] = torch.tensor([r.choice((0, c["s"], r.randint(0, c["s"])))
                                            for _ in range(c["b"])])
    c["causal"] = int(r.random() < 0.5)
    c["window"] = r.randint(1, max(1, c["s"])) if r.random() < 0.35 else 0
    c["has_scale"] = int(r.random() < 0.5)
    c["scale"] = r.choice((16, 32, 64, 128, -24, 0)) if c["has_scale"] else 0   # of 1/64
    c["alibi"] = int(r.random() < 0.4)
    c["layout"] = r.randint(0, 2)                     # what the test does with strides
    mask_of(r, c)
    return c, rows


def drawn(r, long):
    """One in which a row sees a key, mostly."""
    while True:
        c, rows = configuration(r, long)
        if seen_by(c, rows)[0].any() or r.random() < 0.2:
            return c, rows


def covers(all_cases):
    """Do these have all there is?"""
    c = [a for a, _ in all_cases]
    kinds = [{k for k in rows} for _, rows in all_cases]
    flags = ("causal", "window", "has_scale", "alibi", "wide")
    zero = any(0 in rows["key_lengths"].tolist() for _, rows in all_cases if "key_lengths" in rows)
    together = any(a["mask"] and a["causal"] and a["alibi"] and (a["window"] or rows)
                   for a, rows in all_cases)
    return (all(any(a[f] for a in c) and not all(a[f] for a in c) for f in flags) and zero and
            {a["mask"] for a in c} == {0, 1, 2} and {a["layout"] for a in c} == {0, 1, 2} and
            any("k_offsets" in k for k in kinds) and any("key_lengths" in k for k in kinds) and
            any(a["mask"] == 2 and a["thin"] for a in c) and
            any(a["mask"] == 2 and a["holes"] for a in c) and any(a["h"] != a["hk"] for a in c) and
            any(a["d"] != a["dv"] for a in c) and any(a["s"] > 600 for a in c) and
            any(a["t"] > a["s"] and a["causal"] for a in c) and together)


# ---- what they give ------------------------------------------------------------------------------

def seen_by(c, rows):
    """[b,1,t,s]: does a row see a key? [t,s]: how far it is from it."""
    t, s = c["t"], c["s"]
    seen, far = np.zeros((c["b"], 1, t, s), bool), np.zeros((t, s))
    q = rows.get("q_offsets", torch.tensor([0, t])).tolist()
    k = rows.get("k_offsets", torch.tensor(q if "q_offsets" in rows else [0, s])).tolist()
    length = rows.get("key_lengths", torch.full((c["b"],), s)).tolist()
    for z in range(len(q) - 1):
        for i in range(q[z], q[z + 1]):
            j = np.arange(k[z], k[z + 1])
            off = (i - q[z]) + (k[z + 1] - k[z]) - (q[z + 1] - q[z]) - (j - k[z])
            far[i, j] = np.abs(off)
            ok = (off >= 0) | (not c["causal"])
            ok &= (np.abs(off) < c["window"]) | (not c["window"])
            for b in range(c["b"]):
                seen[b, 0, i, j] = ok & (j - k[z] < length[b])
    return torch.from_numpy(seen), torch.from_numpy(far)


def inputs_of(n, c):
    q = grid(n, Q, (c["b"], c["h"], c["t"], c["d"]), 32)
    k = grid(n, K, (c["b"], c["hk"], c["s"], c["d"]), 32)
    v = grid(n, V, (c["b"], c["hk"], c["s"], c["dv"]), 64)
    shape = [1 if c["thin"] >> i & 1 else c["bhts"[i]] for i in range(4)][4 - c["axes"]:]
    mask = None
    if c["mask"]:
        holes = below(n, HOLES, shape, c["holes"])
        mask = ~holes if c["mask"] == 1 else grid(n, MASK, shape, 16).masked_fill(holes, -np.inf)
    return q, k, v, mask


def attention(q, k, v, mask, slopes, scale, seen, far):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = q @ k.transpose(-1, -2) * scale - slopes[:, None, None] * far
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        seen = seen & (mask > -np.inf)
        score = score + mask
    seen = seen.expand(score.shape)
    most = score.detach().masked_fill(~seen, -np.inf).amax(-1, keepdim=True)
    e = torch.where(seen, score, 0.0) - torch.where(most > -np.inf, most, 0.0)
    e = torch.where(seen, e, 0.0).exp() * seen
    total = e.sum(-1, keepdim=True)
    y = e / torch.where(total > 0, total, 1.0) @ v
    any_key = seen.any(-1, keepdim=True)
    bias = torch.where(seen, score - q @ k.transpose(-1, -2) * scale, -np.inf)
    own = F.scaled_dot_product_attention(q, k, v, torch.where(any_key, bias, 0.0), scale=scale)
    assert torch.allclose(torch.where(any_key, own, 0.0), y, 1e-10, 1e-12)
    return y


def digest(n, part, x):
    x = x.detach().contiguous().double().numpy().reshape(-1)
    sums = [float(((uniform(1000 * n + 100 + 10 * part + p, x.size, 2) - 1) * x).sum())
            for p in range(SUMS)]
    at = np.floor(uniform(1000 * n + 200 + part, ELEMENTS, x.size)).astype(int)
    return [float(np.sqrt((x * x).sum()))] + sums + x[at].tolist()


def results(n, c, rows):
    q, k, v, mask = inputs_of(n, c)
    leaves = [q, k, v] + ([mask] if c["mask"] == 2 else [])
    for x in leaves:
        x.requires_grad_()
    slopes = (grid(n, ALIBI, (c["h"],), 1) + 65) / 128 * c["alibi"]
    scale = c["scale"] / 64 if c["has_scale"] else c["d"] ** -0.5
    y = attention(q, k, v, mask, slopes, scale, *seen_by(c, rows))
    y.backward(grid(n, DY, y.shape, 64))
    parts = [y] + [x.grad for x in leaves]
    assert all(x.numel() <= MOST and torch.isfinite(x).all() for x in parts)
    digests = [digest(n, i, x) for i, x in enumerate(parts)]
    return digests + [[0.0] * (1 + SUMS + ELEMENTS)] * (5 - len(digests))


def main():
    r, out, table, want = random.Random(28), {}, [], []
    while True:                                       # until the brief ones have all there is
        cases = [drawn(r, i % LONG == 0) for i in range(CASES)]
        if covers(cases[::BRIEF]):
            break
    for n, (c, rows) in enumerate(cases):
        table.append([c[f] for f in FIELDS])
        want.append(results(n, c, rows))
        out.update({f"{n}.{name}": v for name, v in rows.items()})
    out["cases"], out["want"] = torch.tensor(table), torch.tensor(want, dtype=torch.float64)
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(out, os.path.join(here, "attention.safetensors"))


if __name__ == "__main__":
    main()
