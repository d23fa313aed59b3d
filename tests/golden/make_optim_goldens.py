#!/usr/bin/env python3
"""Writes tests/golden/optim_rules.safetensors: what optimizers make of a quadratic, in float64.

    pip install torch numpy safetensors
    python3 tests/golden/make_optim_goldens.py

Made with torch 2.15.0, numpy 2.4.6, safetensors 0.8.0 (the header of the file names the first
two). torch.optim computes the rules that it has; the others are NumPy, from the formulas of their
papers. Each trace is run again from a start that is changed in its 13th digit, which must not
show in the 9th digit of any snapshot; the script prints by how much a run in float32 differs.

RULES: optim_rules.safetensors. 100 updates on the loss sum w p^2 (its gradient is 2 w p), from p0
and w, both [7]; NAME.p1, NAME.p10, NAME.p100 are p after so many updates. A trace whose table
says "own" has NAME.p0 and NAME.w, too. What is not listed has the default: betas (.9, .999),
eps 1e-8, decay 0; "decay" without a word is added to the gradient (g += decay p), "decoupled" is
p *= 1 - lr decay.

    NAME                parameters
    adam_amsgrad        torch Adam(amsgrad) lr .05
    adam_amsgrad_decay  torch Adam(amsgrad) lr .05, betas (.8, .95), eps 1e-6, decay .02
    adamw_amsgrad       torch AdamW(amsgrad) lr .05, decoupled decay .1
    adamax              torch Adamax lr .05
    adamax_decay        torch Adamax lr .05, betas (.8, .99), eps 1e-6, decay .05
    nadam               torch NAdam lr .05, momentum_decay .004
    nadam_decay         torch NAdam lr .05, momentum_decay .004, betas (.8, .95), eps 1e-6, decay .05
    nadam_decoupled     torch NAdam lr .05, momentum_decay .004, decoupled decay .05
    radam               torch RAdam lr .05
    radam_decay         torch RAdam lr .05, betas (.8, .98), eps 1e-6, decay .05
    radam_decoupled     torch RAdam lr .05, decoupled decay .05
    rmsprop             torch RMSprop lr .01, alpha .99, eps 1e-8
    rmsprop_centered    torch RMSprop lr .01, alpha .99, eps 1e-6, centered, momentum .8, decay .05
    adagrad             torch Adagrad lr .1, lr_decay 0, initial_accumulator_value 0, eps 1e-10
    adagrad_decay       torch Adagrad lr .1, lr_decay .05, initial_accumulator_value .1, eps 1e-10,
                        decay .05
    adadelta            torch Adadelta lr 1, rho .9, eps 1e-6
    adadelta_decay      torch Adadelta lr .5, rho .8, eps 1e-4, decay .05
    rprop               torch Rprop lr .015, etas (.5, 1.2), step_sizes (1e-6, 50)
    rprop_options       torch Rprop lr .1, etas (.6, 1.3), step_sizes (1e-4, 1)
    lion                lr .01, betas (.9, .99)
    lion_decay          lr .02, betas (.95, .98), decoupled decay .1
    lars                lr 1, trust .001, momentum .9, eps 1e-8
    lars_decay          lr 5, trust .002, momentum .8, eps 1e-8, decay .05
    lars_zero           lr .1, trust .001, momentum .9, eps 1e-8, decay .05; own w, all zero: the
                        ratio is 1
    sophia              lr .01, betas (.96, .99), gamma .05, eps 1e-12, decoupled decay .2, k 10;
                        own p0
    sophia_options      lr .02, betas (.9, .95), gamma .5, eps 1e-12, no decay, k 7; own p0

Formulas of the rules that are not torch's (g gradient, p parameter, lerp(a, b, t) = a + t (b - a)):
    lion      arXiv 2302.06675: p *= 1 - lr decay; p -= lr sign(b1 m + (1 - b1) g);
              m = b2 m + (1 - b2) g. No argument of sign is nearer to 0 than 1e-6 (or it is 0).
    lars      arXiv 1708.03888: ratio = trust |p| / (|g| + decay |p| + eps), 1 where |p| or |g| is 0;
              v = momentum v + lr ratio (g + decay p); p -= v. Norms are those of the whole tensor.
    sophia    arXiv 2305.14342: on updates 1, 1 + k, 1 + 2k ... first h = b2 h + (1 - b2) hhat, hhat
              = 2w, the exact diagonal of the Hessian; then p *= 1 - lr decay; m = lerp(m, g, 1 - b1);
              p -= lr clip(m / max(gamma h, eps), -1, 1). Some elements are clipped, some are not.
"""
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
W = [0.5, 1, 2, 0.1, 1e-3, 3, 0]
P0 = [1, -2, 3, -0.5, 4, 0.01, 2]
SOPHIA_P0 = [1, -0.02, 0.3, -0.005, 4, 0.01, 2]
SNAPSHOTS = (1, 10, 100)
NUDGE, DRIFT = 1e-13, 1e-9                          # change of the start, and what it may do


class Book:
    """Collects the tensors of one file."""

    def __init__(self):
        self.tensors = {}

    def put(self, name, values):
        assert name not in self.tensors, name
        values = np.array(values, dtype=np.float64)
        assert np.isfinite(values).all(), name
        self.tensors[name] = values

    def save(self, file):
        note = (f"tests/golden/make_optim_goldens.py, torch {torch.__version__}, "
                f"numpy {np.__version__}")
        save_file(self.tensors, HERE / file, metadata={"made_by": note})
        (HERE / file).chmod(0o644)
        print(f"{file}: {len(self.tensors)} tensors, {(HERE / file).stat().st_size} bytes")


# A rule is a generator: it gets the start and the gradient's function, and yields after each
# update the parameter, or the parts {"p": ..., "x": ...}.

def by_torch(make, **options):
    def rule(p, grad):
        t = torch.from_numpy(p.copy()).requires_grad_()
        opt = make([t], foreach=False, **options)
        while True:
            t.grad = torch.from_numpy(grad(t.detach().numpy()))
            opt.step()
            yield t.detach().numpy().copy()
    return rule


def lion(lr, b1=0.9, b2=0.99, decay=0.0):
    def rule(p, grad):
        m = np.zeros_like(p)
        while True:
            g = grad(p)
            arg = b1 * m + (1 - b1) * g
            assert (np.abs(arg[arg != 0]) > 1e-6).all()
            p = p * (1 - lr * decay) - lr * np.sign(arg)
            m = b2 * m + (1 - b2) * g
            yield p
    return rule


def lars(lr, trust=0.001, momentum=0.9, eps=1e-8, decay=0.0):
    def rule(p, grad):
        v = np.zeros_like(p)
        while True:
            g = grad(p)
            p_norm, g_norm = np.linalg.norm(p), np.linalg.norm(g)
            ratio = trust * p_norm / (g_norm + decay * p_norm + eps) if p_norm * g_norm else 1.0
            v = momentum * v + lr * ratio * (g + decay * p)
            p = p - v
            yield p
    return rule


def sophia(lr, b1=0.96, b2=0.99, gamma=0.05, eps=1e-12, decay=0.2, k=10):
    def rule(p, grad):
        m, h = np.zeros_like(p), np.zeros_like(p)
        update = 0
        while True:
            if update % k == 0:
                h = b2 * h + (1 - b2) * grad(np.ones_like(p))
            update += 1
            g = grad(p)
            p = p * (1 - lr * decay)
            m = b1 * m + (1 - b1) * g
            arg = m / np.maximum(gamma * h, eps)
            p = p - lr * np.clip(arg, -1, 1)
            rule.clipped.append((np.abs(arg) > 1).mean())
            yield p
    rule.clipped = []
    return rule


def run(rule, p0, w, dtype=np.float64, updates=SNAPSHOTS):
    """The snapshots of a rule on sum w p^2 in dtype: {"p1": ..., "p10": ...}."""
    p0, w = np.array(p0, dtype), np.array(w, dtype)
    made = {}
    for update, parts in enumerate(rule(p0, lambda p: w * p * 2), 1):
        if update in updates:
            parts = parts if isinstance(parts, dict) else {"p": parts}
            made.update({f"{part}{update}": value for part, value in parts.items()})
        if update == updates[-1]:
            return made


def distance(a, b):
    """The largest difference of two runs, of an element's size, or of 1 if it is less."""
    return max(np.max(np.abs(a[key] - b[key]) / np.maximum(1, np.abs(a[key]))) for key in a)


def trace(book, name, rule, p0=None, w=None):
    """Stores the snapshots of one rule, and asserts that rounding does not steer it."""
    for part, own in (("p0", p0), ("w", w)):
        if own is not None:
            book.put(f"{name}.{part}", own)
    p0, w = np.array(P0 if p0 is None else p0), np.array(W if w is None else w)
    made = run(rule, p0, w)
    sign = np.where(np.arange(p0.size) % 2, 1, -1).reshape(p0.shape)
    drift = distance(made, run(rule, p0 * (1 + NUDGE * sign), w))
    assert drift < DRIFT, (name, drift)
    for key, value in made.items():
        book.put(f"{name}.{key}", value)
    single = distance(made, run(rule, p0, w, np.float32))
    moved = np.abs(next(v for k, v in reversed(made.items()) if k[0] == "p") - p0).max()
    print(f"{name:20} drift {drift:.0e}  float32 {single:.0e}  moved {moved:.2g}")


def torch_rules(book):
    optim = torch.optim
    other = {"betas": (0.8, 0.95), "eps": 1e-6}
    apart = {"weight_decay": 0.05, "decoupled_weight_decay": True}
    for name, make, options in (
            ("adam_amsgrad", optim.Adam, {"amsgrad": True}),
            ("adam_amsgrad_decay", optim.Adam, {"amsgrad": True, "weight_decay": 0.02, **other}),
            ("adamw_amsgrad", optim.AdamW, {"amsgrad": True, "weight_decay": 0.1}),
            ("adamax", optim.Adamax, {}),
            ("adamax_decay", optim.Adamax, {"weight_decay": 0.05, **other, "betas": (0.8, 0.99)}),
            ("nadam", optim.NAdam, {"momentum_decay": 0.004}),
            ("nadam_decay", optim.NAdam, {"momentum_decay": 0.004, "weight_decay": 0.05, **other}),
            ("nadam_decoupled", optim.NAdam, {"momentum_decay": 0.004, **apart}),
            ("radam", optim.RAdam, {}),
            ("radam_decay", optim.RAdam, {"weight_decay": 0.05, **other, "betas": (0.8, 0.98)}),
            ("radam_decoupled", optim.RAdam, apart),
            ("rmsprop", optim.RMSprop, {"lr": 0.01}),
            ("rmsprop_centered", optim.RMSprop, {"lr": 0.01, "eps": 1e-6, "centered": True,
                                                 "momentum": 0.8, "weight_decay": 0.05}),
            ("adagrad", optim.Adagrad, {"lr": 0.1, "eps": 1e-10}),
            ("adagrad_decay", optim.Adagrad, {"lr": 0.1, "lr_decay": 0.05, "eps": 1e-10,
                                              "initial_accumulator_value": 0.1,
                                              "weight_decay": 0.05}),
            ("adadelta", optim.Adadelta, {"lr": 1.0}),
            ("adadelta_decay", optim.Adadelta, {"lr": 0.5, "rho": 0.8, "eps": 1e-4,
                                                "weight_decay": 0.05}),
            ("rprop", optim.Rprop, {"lr": 0.015}),
            ("rprop_options", optim.Rprop, {"lr": 0.1, "etas": (0.6, 1.3),
                                            "step_sizes": (1e-4, 1.0)})):
        trace(book, name, by_torch(make, **{"lr": 0.05, **options}))


def own_rules(book):
    trace(book, "lion", lion(0.01))
    trace(book, "lion_decay", lion(0.02, 0.95, 0.98, 0.1))
    trace(book, "lars", lars(1.0))
    trace(book, "lars_decay", lars(5.0, 0.002, 0.8, decay=0.05))
    trace(book, "lars_zero", lars(0.1, decay=0.05), w=np.zeros(7))
    for name, rule in (("sophia", sophia(0.01)),
                       ("sophia_options", sophia(0.02, 0.9, 0.95, 0.5, decay=0.0, k=7))):
        trace(book, name, rule, p0=SOPHIA_P0)
        assert min(rule.clipped) < max(rule.clipped) < 1 and max(rule.clipped) > 0, rule.clipped


def main():
    torch.set_num_threads(1)
    rules = Book()
    rules.put("p0", P0)
    rules.put("w", W)
    torch_rules(rules)
    own_rules(rules)
    rules.save("optim_rules.safetensors")


if __name__ == "__main__":
    main()
