"""Makes rnn.safetensors and rnn_state.safetensors: recurrent networks in f64, gradients, losses.

    python3 tests/golden/make_rnn_goldens.py          (PyTorch, NumPy, safetensors)

A row of `cases` is a configuration (FIELDS); N.lengths are those of case N that has some. Inputs
and weights are not stored: element i of a tensor is a hash of seed and i, which tests/mlc_test.h
has, too (test_random), rounded to multiples that bf16 holds. N.want has a row for y, each state,
the gradients of x and of the states that came in, and of each parameter, in PyTorch's order: its
norm, sums with random weights in which every element has a part, and some elements. Sequences of
no step, which pack_padded_sequence refuses, are left out: y is 0, states stay. With dropout layers
are modules of their own, and between them is a mask of mlcore's: word i of a Philox stream.
`K.losses` are those of 20 steps of SGD, rnn_state.safetensors what torch.nn modules save.
"""
import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

CASES, BRIEF, SUMS, ELEMENTS, STEPS = 120, 6, 3, 2, 20     # every 6th is of the brief suite
FIELDS = ("kind", "b", "t", "in", "hidden", "layers", "projection", "bidirectional", "bias",
          "time_first", "dropout", "lengths", "states")
X, H, C, DY, DH, DC, WEIGHTS = range(7)                    # streams of a case


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


def philox(seed, stream, n):
    """The first n words of Philox4x32-10: key seed, counter (block, stream)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    block = np.arange(-(-n // 4), dtype=np.uint64)
    c = [block & low, block >> half, np.full_like(block, stream & 0xFFFFFFFF),
         np.full_like(block, stream >> 32)]
    for i in range(10):
        k0 = np.uint64(((seed & 0xFFFFFFFF) + i * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64(((seed >> 32) + i * 0xBB67AE85) & 0xFFFFFFFF)
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [p1 >> half ^ c[1] ^ k0, p1 & low, p0 >> half ^ c[3] ^ k1, p0 & low]
    return np.stack(c, -1).reshape(-1)[:n]


def fill(net, case):
    """Weights by their place: of about 1 / sqrt(hidden)."""
    size = 64 * 2 ** max(0, round(np.log2(net.hidden_size) / 2))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(grid(case, WEIGHTS + i, p.shape, size))


# ---- configurations ------------------------------------------------------------------------------

def configuration(r):
    c = dict.fromkeys(FIELDS, 0)
    c["kind"] = r.choice((0, 1, 2, 2, 3, 3, 3))            # tanh, relu, GRU, LSTM
    c["b"], c["in"] = r.randint(1, 6), r.choice((1, 3, r.randint(1, 24)))
    c["t"] = r.choice((1, 2, 60)) if r.random() < 0.2 else r.randint(1, 60)
    c["hidden"] = r.choice((1, 8, 16, 32, 64, 70)) if r.random() < 0.4 else r.randint(1, 70)
    c["layers"], c["bidirectional"] = r.randint(1, 3), int(r.random() < 0.5)
    if c["kind"] == 3 and c["hidden"] > 1 and r.random() < 0.35:
        c["projection"] = r.randint(1, c["hidden"] - 1)
    c["bias"], c["time_first"] = int(r.random() < 0.8), int(r.random() < 0.3)
    c["states"] = int(r.random() < 0.5)
    c["lengths"] = r.choice((0, 1, 1, 2))                  # none, any, mostly long ones
    if not c["lengths"] and c["layers"] > 1:
        c["dropout"] = r.choice((0, 2, 5, 8))              # of 1/16
    rows = {}
    if c["lengths"]:
        low = 0 if c["lengths"] == 1 else c["t"] - c["t"] // 10
        rows["lengths"] = torch.tensor([r.choice((low, c["t"], r.randint(low, c["t"])))
                                        for _ in range(c["b"])])
    return c, rows


def drawn(r):
    while True:
        c, rows = configuration(r)
        ways, gates = 1 + c["bidirectional"], (1, 1, 3, 4)[c["kind"]]
        work = c["b"] * c["t"] * c["layers"] * ways * gates * c["hidden"] * c["hidden"]
        if work <= 4e6:
            return c, rows


def covers(cases):
    """Do these have all there is?"""
    c = [a for a, _ in cases]
    flags = ("bidirectional", "bias", "time_first", "states", "dropout", "projection")
    lengths = [rows["lengths"].tolist() for _, rows in cases if "lengths" in rows]
    return (all(any(a[f] for a in c) and not all(a[f] for a in c) for f in flags) and
            {a["kind"] for a in c} == {0, 1, 2, 3} and {a["layers"] for a in c} == {1, 2, 3} and
            {a["lengths"] for a in c} == {0, 1, 2} and any(0 in n for n in lengths) and
            any(a["hidden"] >= 64 for a in c) and any(a["hidden"] < 8 for a in c) and
            any(a["t"] == 1 for a in c) and any(a["t"] == 60 for a in c) and
            all(any(a["kind"] == k and a["bidirectional"] and a["lengths"] == 1 for a in c)
                for k in (2, 3)))


# ---- what they give ------------------------------------------------------------------------------

def module(c, layers, features):
    d = dict(input_size=features, hidden_size=c["hidden"], num_layers=layers, bias=bool(c["bias"]),
             batch_first=not c["time_first"], bidirectional=bool(c["bidirectional"]),
             dtype=torch.float64)
    if c["kind"] < 2:
        return torch.nn.RNN(nonlinearity=("tanh", "relu")[c["kind"]], **d)
    return torch.nn.GRU(**d) if c["kind"] == 2 else torch.nn.LSTM(proj_size=c["projection"], **d)


def call(net, x, state, lengths):
    """net over x: sequences of no step stay out of it."""
    if lengths is None:
        return net(x, state)
    batch = 0 if net.batch_first else 1
    some = torch.nonzero(lengths).reshape(-1)
    t, width = x.shape[1 - batch], (net.proj_size or net.hidden_size) * (1 + net.bidirectional)
    shape = (x.shape[0], x.shape[1], width)
    if len(some) == 0:
        return torch.zeros(shape, dtype=x.dtype), state
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x.index_select(batch, some), lengths[some], batch_first=net.batch_first,
        enforce_sorted=False)
    part = [s.index_select(1, some) for s in (state if isinstance(state, tuple) else (state,))]
    y, after = net(packed, tuple(part) if isinstance(state, tuple) else part[0])
    y = torch.nn.utils.rnn.pad_packed_sequence(y, net.batch_first, total_length=t)[0]
    y = torch.zeros(shape, dtype=x.dtype).index_copy(batch, some, y)
    if isinstance(state, tuple):
        return y, tuple(s.index_copy(1, some, a) for s, a in zip(state, after))
    return y, state.index_copy(1, some, after)


def layered(nets, x, state, c, seed):
    """Modules of one layer, with dropout between them."""
    after, ways, p = [], 1 + c["bidirectional"], c["dropout"] / 16
    for i, net in enumerate(nets):
        if i:
            keep = philox(seed, i - 1, x.numel()) >= int(p * 2**32)
            x = x * torch.from_numpy(keep / (1 - p)).reshape(x.shape)
        part = [s[i * ways:(i + 1) * ways] for s in state]
        x, out = net(x, tuple(part) if c["kind"] == 3 else part[0])
        after.append(out if c["kind"] == 3 else (out,))
    return x, [torch.cat([a[s] for a in after]) for s in range(len(state))]


def digest(n, part, x):
    x = x.detach().contiguous().double().numpy().reshape(-1)
    sums = [float(((uniform(1000 * n + 100 + 4 * part + p, x.size, 2) - 1) * x).sum())
            for p in range(SUMS)]
    at = np.floor(uniform(1000 * n + 600 + part, ELEMENTS, x.size)).astype(int)
    return [float(np.sqrt((x * x).sum()))] + sums + x[at].tolist()


def results(n, c, rows):
    ways, p = 1 + c["bidirectional"], c["projection"] or c["hidden"]
    count, batch = c["layers"] * ways, ("t", "b") if c["time_first"] else ("b", "t")
    x = grid(n, X, (c[batch[0]], c[batch[1]], c["in"]), 64).requires_grad_()
    state = [grid(n, H, (count, c["b"], p), 64), grid(n, C, (count, c["b"], c["hidden"]), 64)]
    state = [(s * c["states"]).requires_grad_() for s in state[:1 + (c["kind"] == 3)]]
    net = module(c, c["layers"], c["in"])
    fill(net, n)
    params = list(net.parameters())
    if c["dropout"]:
        nets = [module(c, 1, c["in"] if i == 0 else ways * p) for i in range(c["layers"])]
        each = len(params) // c["layers"]
        for i, one in enumerate(nets):
            for j, (name, _) in enumerate(list(one.named_parameters())):
                setattr(one, name, params[i * each + j])
        y, after = layered(nets, x, state, c, n)
    else:
        y, after = call(net, x, tuple(state) if c["kind"] == 3 else state[0], rows.get("lengths"))
        after = list(after) if c["kind"] == 3 else [after]
    loss = (y * grid(n, DY, y.shape, 64)).sum()
    for s, a in zip((DH, DC), after):
        loss = loss + (a * grid(n, s, a.shape, 64)).sum()
    loss.backward()
    grads = [v.grad for v in [x] + (state if c["states"] else []) + params]
    grads = [torch.zeros(1, dtype=torch.float64) if g is None else g for g in grads]
    parts = [y] + after + grads
    assert all(torch.isfinite(v).all() for v in parts) and len(parts) < 100
    return torch.tensor([digest(n, i, v) for i, v in enumerate(parts)], dtype=torch.float64)


# ---- training and state dicts --------------------------------------------------------------------

def losses(kind, case):
    """Labels of each step of sequences, by both directions of two layers."""
    c = dict.fromkeys(FIELDS, 0)
    c.update(kind=kind, hidden=8, bias=1, bidirectional=1)
    net, head = module(c, 2, 5), torch.nn.Linear(16, 4, dtype=torch.float64)
    fill(net, case)
    with torch.no_grad():
        for i, p in enumerate(head.parameters()):
            p.copy_(grid(case, WEIGHTS + 50 + i, p.shape, 256))
    x, lengths = grid(case, X, (6, 12, 5), 32), torch.tensor([12, 3, 7, 1, 0, 9])
    labels = torch.from_numpy(np.floor(uniform(1000 * case + DY, 72, 4))).long().reshape(6, 12)
    labels[torch.arange(12)[None] >= lengths[:, None]] = -100
    start = torch.zeros(4, 6, 8, dtype=torch.float64)
    opt = torch.optim.SGD(list(net.parameters()) + list(head.parameters()), 0.5, momentum=0.5)
    out = []
    for _ in range(STEPS):
        y, _ = call(net, x, (start, start) if kind == 3 else start, lengths)
        loss = F.cross_entropy(head(y).reshape(-1, 4), labels.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return torch.tensor(out, dtype=torch.float64)


def state_dicts(out):
    """Modules as torch.nn makes them, by default: what a file of one has, and what it computes."""
    torch.manual_seed(30)
    nets = {"lstm": torch.nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, proj_size=2),
            "gru": torch.nn.GRU(3, 4, 2, batch_first=True),
            "rnn": torch.nn.RNN(3, 4, batch_first=True, nonlinearity="relu", bias=False),
            "lstm_cell": torch.nn.LSTMCell(3, 4), "gru_cell": torch.nn.GRUCell(3, 4)}
    file, x = {}, grid(CASES + 9, X, (2, 5, 3), 64).float()
    for name, net in nets.items():
        file.update({f"{name}.{key}": v for key, v in net.state_dict().items()})
        y = net(x[:, 0]) if "cell" in name else net(x)
        y = y[0] if isinstance(y, tuple) else y
        out[f"state.{name}"] = y.detach().contiguous()
    return file


def main():
    r, out, table = random.Random(30), {}, []
    while True:                                            # until the brief ones have all there is
        cases = [drawn(r) for _ in range(CASES)]
        if covers(cases[::BRIEF]):
            break
    for n, (c, rows) in enumerate(cases):
        table.append([c[f] for f in FIELDS])
        out[f"{n}.want"] = results(n, c, rows)
        out.update({f"{n}.{name}": v for name, v in rows.items()})
    out["cases"] = torch.tensor(table)
    out["lstm.losses"], out["gru.losses"] = losses(3, CASES), losses(2, CASES + 1)
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(state_dicts(out), os.path.join(here, "rnn_state.safetensors"))
    save_file(out, os.path.join(here, "rnn.safetensors"))


if __name__ == "__main__":
    main()
