#!/usr/bin/env python3
"""Writes tests/golden/{optim_rules,optim_network,schedules}.safetensors, all in float64.

    pip install torch numpy safetensors
    python3 tests/golden/make_optim_goldens.py

Made with torch 2.15.0, numpy 2.4.6, safetensors 0.8.0 (the header of each file names the first
two). torch.optim computes the rules that it has; the others are NumPy, from the formulas of their
papers. Each trace is run again from a start that is changed in its 13th digit, which must not
show in the 9th digit of any snapshot; the script prints by how much a run in float32 differs.

NETWORK: optim_network.safetensors. The same rules with the same options, on the mean squared error
of linear 4 -> 6, tanh, linear 6 -> 3 over a batch of 8: net.x [8, 4], net.target [8, 3]. net.start
and NAME.p1, .p10, .p100 (schedule-free rules: also .x1 ...) are [51]: 0.weight [6, 4], 0.bias [6],
2.weight [3, 6] and 2.bias [3], one after the other. Start, x and targets are such that no argument
of lion's sign comes near 0, and rprop takes the same path in float32. lars_decay has a rate of .5.
LARS has no ratio for biases (SGD with momentum), Muon updates them by AdamW of decay .01. Sophia's
hhat is 8 g g, g the gradient of the loss. lbfgs is torch's with strong_wolfe, snapshots after 1, 3
and 10 calls. Rules in NET_UPDATES stop after 10 updates. sophia_h, whose Hessian the library takes
from differences, is left out.

RULES: optim_rules.safetensors. 100 updates on the loss sum w p^2 (its gradient is 2 w p), from p0
and w, both [7]; NAME.p1, NAME.p10, NAME.p100 are p after so many updates. "own p0" and
"own w" are NAME.p0 and NAME.w in place of these. What is not listed has the default: betas
(.9, .999), eps 1e-8, decay 0; "decay" without a word is added to the gradient (g += decay p),
"decoupled" is p *= 1 - lr decay.

    NAME                parameters
    adam_amsgrad        torch Adam(amsgrad) lr .05
    adam_amsgrad_decay  torch Adam(amsgrad) lr .05, betas (.8, .95), eps 1e-6, decay .02
    adamw_amsgrad       torch AdamW(amsgrad) lr .05, decoupled decay .1
    adamax              torch Adamax lr .05
    adamax_decay        torch Adamax lr .05, betas (.8, .99), eps 1e-6, decay .05
    nadam               torch NAdam lr .05, momentum_decay .004
    nadam_decay         torch NAdam lr .05, momentum_decay .004, betas (.8, .95), eps 1e-6,
                        decay .05
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
    sophia_h            lr .01, betas (.9, .95), gamma 1, eps 1e-12, decoupled decay .2, k 10, 2
                        samples; own p0; on sum w p^2 + .3 sum over i < 6 of p[i] p[i+1]
    sf_adamw            schedule-free AdamW lr .05, betas (.9, .999), eps 1e-8, no warm-up, no decay
    sf_adamw_warmup     schedule-free AdamW lr .05, betas (.95, .99), eps 1e-6, warm-up 10,
                        decay .05
    sf_sgd              schedule-free SGD lr .1, momentum .9, no warm-up, no decay
    sf_sgd_warmup       schedule-free SGD lr .2, momentum .8, warm-up 10, decay .05
    adafactor           torch Adafactor lr .01, beta2_decay -.8, eps (None, 1e-3), d 1
    adafactor_matrix    the same on [3, 5]; own p0, w
    adafactor_options   torch Adafactor lr .2, beta2_decay -.6, eps (1e-10, 1e-2), d 1.5, decoupled
                        decay .05 on [3, 5]; own p0, w
    muon                lr .02, momentum .95, nesterov, decoupled decay .1, coefficients (3.4445,
                        -4.775, 2.0315), 5 steps, eps 1e-7, adjust_lr original on [4, 6]; own p0, w
    muon_tall           the same on [6, 4], the transposes of muon.p0 and muon.w; own p0, w
    muon_options        lr .05, momentum .8, not nesterov, no decay, 5 steps, eps 1e-7, adjust_lr
                        match_rms_adamw on [4, 6]; own p0, w
    lookahead_sgd       k 5, alpha .5 over torch SGD lr .02, momentum .9
    lookahead_adamw     k 5, alpha .5 over torch AdamW lr .05, decoupled decay .01
    sam                 rho .05 over torch SGD lr .02
    sam_momentum        rho .1 over torch SGD lr .02, momentum .9, decay .05
    asam                adaptive, rho .5, over torch SGD lr .02
    lbfgs               torch LBFGS lr 1, max_iter 4, history_size 5, line_search_fn strong_wolfe,
                        and its defaults max_eval 5, tolerance_grad 1e-7, tolerance_change 1e-9, on
                        the Rosenbrock function of 7 numbers, sum over i < 6 of
                        100 (p[i+1] - p[i]^2)^2 + (1 - p[i])^2; own p0. Snapshots after 1, 3 and 10
                        calls of step; lbfgs.losses [10]: what each call returns, the loss at its
                        start; lbfgs.evaluations [10]: of the function, so far
    lbfgs_fixed         torch LBFGS lr .5, max_iter 4, history_size 5, no line search, on
                        sum w p^2 of p0 and w; the same snapshots and parts

Formulas of the rules that are not torch's (g gradient, p parameter, lerp(a, b, t) = a + t (b - a)):
    lion      arXiv 2302.06675: p *= 1 - lr decay; p -= lr sign(b1 m + (1 - b1) g);
              m = b2 m + (1 - b2) g. No argument of sign is nearer to 0 than 1e-6 (or it is 0).
    lars      arXiv 1708.03888: ratio = trust |p| / (|g| + decay |p| + eps), 1 if |p| or |g| is 0;
              v = momentum v + lr ratio (g + decay p); p -= v. Norms are those of the whole tensor.
    sophia    arXiv 2305.14342: on updates 1, 1 + k, 1 + 2k ... first h = b2 h + (1 - b2) hhat,
              hhat = 2w, the exact diagonal of the Hessian; then p *= 1 - lr decay;
              m = lerp(m, g, 1 - b1); p -= lr clip(m / max(gamma h, eps), -1, 1). Some elements are
              clipped, some are not. sophia_h: hhat is the mean over samples s of u * (H u), H
              the exact Hessian, u = 1 where word i of the stream is below 2^31, else -1:
              Philox4x32-10 of the seed SEED, stream FNV-1a("optim_curvature_with") +
              0x9E3779B97F4A7C15 + (updates made) 0xA0761D6478BD642F + s 0x8CB92BA72F3D8DD7.
    sf_*      arXiv 2405.15682 and its reference implementation: x = y = z = p0. Update t = 1 ...:
              rate = lr min(t / warm-up, 1), with AdamW times sqrt(1 - b2^t); c = rate_max^2 / sum
              of rate_max^2 so far, rate_max the largest rate so far (r 0, weight_lr_power 2); g at
              y; AdamW: v = b2 v + (1 - b2) g^2; z -= rate (g / (sqrt(v) + eps) + decay y);
              SGD: z -= rate (g + decay y); x = lerp(x, z, c); y = b1 x + (1 - b1) z.
              NAME.p.. are y (training), NAME.x.. are x (evaluation). This is AdamWScheduleFreePaper
              of the package schedulefree 1.4.1, and its SGDScheduleFree; its AdamWScheduleFree
              divides v by 1 - b2^t instead, and its rates are without the square root.
    adafactor eps None is the epsilon of the dtype, 2^-52 here.
    muon      buf = lerp(buf, g, 1 - momentum); u = nesterov ? lerp(g, buf, momentum) : buf; tall u
              is transposed; X = u / max(|u|, eps); 5 times: A = X X^T; X = a X + (b A + c A A) X;
              p *= 1 - lr decay; p -= lr ratio X, ratio = sqrt(max(1, rows / columns)) (original) or
              .2 sqrt(max(rows, columns)) (match_rms_adamw). In float64 throughout: torch rounds X
              to bfloat16; the script checks itself against torch Muon with that rounding replaced.
    lookahead arXiv 1907.08610: after each k-th update of the inner optimizer, which keeps its
              state, slow += alpha (p - slow); p = slow. slow starts as p0.
    sam       arXiv 2010.01412: the base optimizer gets the gradient at p + e, e = rho g / (|g| +
              1e-12); asam (2102.11600): e = rho p^2 g / (| |p| g | + 1e-12).

SCHEDULES: schedules.safetensors. Each tensor holds the factors of a base rate of 1 for t = 0, 1 ...
30 updates made (31 numbers; one_cycle_*: t = 0 ... 19, 20 numbers). They are closed forms; the
script asserts that torch.optim.lr_scheduler agrees to 1e-9 wherever it has the schedule.

    NAME                parameters
    lambda              LambdaLR, 1 / (1 + .1 t)
    constant            ConstantLR factor .25, total_iters 5
    step                StepLR step_size 4, gamma .5
    multi_step          MultiStepLR milestones (3, 7, 8, 20), gamma .3
    exponential         ExponentialLR gamma .9
    cosine              CosineAnnealingLR T_max 10, eta_min 0 (it rises again after T_max)
    cosine_min          CosineAnnealingLR T_max 7, eta_min .1
    restarts            CosineAnnealingWarmRestarts T_0 4, T_mult 2, eta_min .05
    restarts_even       CosineAnnealingWarmRestarts T_0 5, T_mult 1, eta_min 0
    polynomial          PolynomialLR total_iters 10, power 2
    polynomial_root     PolynomialLR total_iters 12, power .5
    linear              LinearLR start_factor 1/3, end_factor 1, total_iters 5
    linear_down         LinearLR start_factor 1, end_factor .1, total_iters 12
    one_cycle_cos       OneCycleLR max_lr 1, total_steps 20, pct_start .3, div_factor 25,
                        final_div_factor 1e4, cos, momentum .85 to .95
    one_cycle_linear    the same, linear, pct_start .4, div_factor 10, final_div_factor 100
    one_cycle_three     the same as one_cycle_cos, three_phase
    one_cycle_three_linear  the same as one_cycle_linear, three_phase
    cyclic_triangular   CyclicLR base_lr .1, max_lr 1, step_size_up 4, step_size_down 6, triangular,
                        momentum .8 to .9
    cyclic_triangular2  the same, triangular2
    cyclic_exp_range    the same, exp_range, gamma .95
    NAME.momentum       the momentum (a value, not a factor) of each one_cycle and cyclic
    sequence            SequentialLR, milestones (5, 12): ConstantLR factor .5, total_iters 9;
                        ExponentialLR gamma .8; CosineAnnealingLR T_max 10. Each part starts at its
                        own t = 0.
    sequence_linear     SequentialLR, milestones (5): LinearLR start_factor .1, end_factor 1,
                        total_iters 5; CosineAnnealingLR T_max 20
    warmup_cosine       (t + 1) / W for t < W, then (1 + cos(pi (t - W) / (N - W))) / 2; W 5, N 25;
                        0 from N on
    wsd_sqrt            warm-up-stable-decay: (t + 1) / W for t < W, 1 for t < S, then with
                        u = min((t - S) / D, 1): end + (1 - end) (1 - sqrt(u)); W 4, S 15, D 10,
                        end .05
    wsd_linear          the same, end + (1 - end) (1 - u)
    wsd_cosine          the same, end + (1 - end) (1 + cos(pi u)) / 2
    noam                arXiv 1706.03762: d^-.5 min((t + 1)^-.5, (t + 1) W^-1.5), d 64, W 8
    inverse_sqrt        1 for t < W, then sqrt(W / (t + 1)); W 8
    inverse_sqrt_warmup the same, (t + 1) / W for t < W

    plateau.metric      [40], with NaN: what ReduceLROnPlateau is fed. Element i of each sequence is
                        the factor after metric i was fed. patience 2, cooldown 2, factor .5, eps
                        1e-8, and:
    plateau_min_rel     mode min, threshold .1 rel, min_lr .02
    plateau_min_abs     mode min, threshold .25 abs, min_lr 0
    plateau_max_rel     mode max, threshold .1 rel, min_lr 0
    plateau_max_abs     mode max, threshold .25 abs, min_lr .02
    plateau_constant    mode min, threshold 1e-4 rel, min_lr 0, fed with 1, 40 times
"""
import math
import pathlib
from bisect import bisect_right
from unittest import mock

import numpy as np
import torch
import torch.optim.lr_scheduler as sched
from safetensors.numpy import load_file, save_file

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
        values = np.array(values, dtype=np.float64, order="C")
        assert np.isfinite(values).all(), name
        self.tensors[name] = values

    def save(self, file):
        note = (f"tests/golden/make_optim_goldens.py, torch {torch.__version__}, "
                f"numpy {np.__version__}")
        save_file(self.tensors, HERE / file, metadata={"made_by": note})
        (HERE / file).chmod(0o644)
        for name, values in load_file(HERE / file).items():
            assert np.array_equal(values, self.tensors[name], equal_nan=True), name
        print(f"{file}: {len(self.tensors)} tensors, {(HERE / file).stat().st_size} bytes")


# A rule is a generator: it gets the start and the gradient's function, and yields after each
# update the parameter, or the parts {"p": ..., "x": ...}.

def by_torch(make, **options):
    def rule(p, grad):
        t = torch.from_numpy(p.copy()).requires_grad_()
        opt = make([t], **options)
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


def bowl_hessian(p, grad):
    return grad(np.ones_like(p))


def sophia(lr, b1=0.96, b2=0.99, gamma=0.05, eps=1e-12, decay=0.2, k=10, hessian=bowl_hessian):
    def rule(p, grad):
        m, h = np.zeros_like(p), np.zeros_like(p)
        update = 0
        while True:
            if update % k == 0:
                h = b2 * h + (1 - b2) * hessian(p, grad)
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


SEED = 7
WORD = 0xFFFFFFFF


def philox(seed, stream, block):
    """Four words of Philox4x32-10: key seed, counter (block, stream)."""
    k0, k1 = seed & WORD, seed >> 32
    c = [block & WORD, block >> 32, stream & WORD, stream >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k0, b & WORD, a >> 32 ^ c[3] ^ k1, a & WORD]
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c


assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def signs(n, update, sample):
    stream = 14695981039346656037
    for byte in b"optim_curvature_with":
        stream = (stream ^ byte) * 1099511628211 % 2 ** 64
    stream += 0x9E3779B97F4A7C15 + update * 0xA0761D6478BD642F + sample * 0x8CB92BA72F3D8DD7
    words = [w for block in range((n + 3) // 4) for w in philox(SEED, stream % 2 ** 64, block)]
    return np.where(np.array(words[:n]) < 2 ** 31, 1.0, -1.0)


def sophia_h(lr, b1=0.96, b2=0.99, gamma=0.01, eps=1e-12, decay=0.2, k=10, samples=2):
    """On sum w p^2 + .3 sum p[i] p[i+1]: the gradient that it is given is of the first sum."""
    def rule(p, grad):
        def whole(p):
            g = grad(p)
            g[1:] += 0.3 * p[:-1]
            g[:-1] += 0.3 * p[1:]
            return g
        m, h = np.zeros_like(p), np.zeros_like(p)
        update = 0
        while True:
            if update % k == 0:
                draws = [signs(p.size, update, sample).astype(p.dtype)
                         for sample in range(samples)]
                h = b2 * h + (1 - b2) * sum(u * whole(u) for u in draws) / samples
            update += 1
            g = whole(p)
            p = p * (1 - lr * decay)
            m = b1 * m + (1 - b1) * g
            arg = m / np.maximum(gamma * h, eps)
            p = p - lr * np.clip(arg, -1, 1)
            rule.clipped.append((np.abs(arg) > 1).mean())
            yield p
    rule.clipped = []
    return rule


def sf_adamw(lr, b1=0.9, b2=0.999, eps=1e-8, warmup=0, decay=0.0):
    def rule(p, grad):
        v, update = np.zeros_like(p), 0
        average = sf_average(p, b1)
        while True:
            update += 1
            g, y = grad(average.y), average.y
            rate = lr * min(update / max(warmup, 1), 1) * np.sqrt(1 - b2 ** update)
            v = b2 * v + (1 - b2) * g * g
            yield average.update(rate, g / (np.sqrt(v) + eps) + decay * y)
    return rule


def sf_sgd(lr, momentum=0.9, warmup=0, decay=0.0):
    def rule(p, grad):
        average, update = sf_average(p, momentum), 0
        while True:
            update += 1
            rate = lr * min(update / max(warmup, 1), 1)
            yield average.update(rate, grad(average.y) + decay * average.y)
    return rule


class sf_average:
    """The sequences x, y, z of a schedule-free rule."""

    def __init__(self, p, b1):
        self.x = self.y = self.z = p
        self.b1, self.rate_max, self.total = b1, 0.0, 0.0

    def update(self, rate, direction):
        self.rate_max = max(self.rate_max, float(rate))
        self.total += self.rate_max ** 2
        c = self.rate_max ** 2 / self.total
        self.z = self.z - float(rate) * direction
        self.x = (1 - c) * self.x + c * self.z
        self.y = self.b1 * self.x + (1 - self.b1) * self.z
        return {"p": self.y, "x": self.x}


def newton_schulz(u, steps, eps, a=3.4445, b=-4.775, c=2.0315):
    if u.shape[0] > u.shape[1]:
        return newton_schulz(u.T, steps, eps, a, b, c).T
    x = u / max(np.linalg.norm(u), eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def muon(lr, momentum=0.95, nesterov=True, decay=0.1, adjust="original", steps=5, eps=1e-7):
    def rule(p, grad):
        rows, columns = p.shape
        ratio = (np.sqrt(max(1, rows / columns)) if adjust == "original"
                 else 0.2 * np.sqrt(max(rows, columns)))
        buf = np.zeros_like(p)
        while True:
            g = grad(p)
            buf = momentum * buf + (1 - momentum) * g
            u = momentum * buf + (1 - momentum) * g if nesterov else buf
            p = p * (1 - lr * decay) - float(lr * ratio) * newton_schulz(u, steps, eps)
            yield p
    return rule


def lookahead(make, k=5, alpha=0.5, **options):
    def rule(p, grad):
        t = torch.from_numpy(p.copy()).requires_grad_()
        opt, slow, update = make([t], **options), p, 0
        while True:
            t.grad = torch.from_numpy(grad(t.detach().numpy()))
            opt.step()
            update += 1
            if update % k == 0:
                slow = slow + alpha * (t.detach().numpy() - slow)
                t.data.copy_(torch.from_numpy(slow))
            yield t.detach().numpy().copy()
    return rule


def sam(make, rho, adaptive=False, **options):
    def rule(p, grad):
        t = torch.from_numpy(p.copy()).requires_grad_()
        opt = make([t], **options)
        while True:
            p = t.detach().numpy()
            g, scale = grad(p), np.abs(p) if adaptive else np.ones_like(p)
            e = rho * scale * scale * g / (np.linalg.norm(scale * g) + 1e-12)
            t.grad = torch.from_numpy(grad(p + e))
            opt.step()
            yield t.detach().numpy().copy()
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


TRACED = {}                                         # the rule of each trace, for the network


def trace(book, name, rule, p0=None, w=None):
    """Stores the snapshots of one rule, and asserts that rounding does not steer it."""
    TRACED[name] = rule
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
    # NAdam keeps the product of its momenta in the default dtype.
    torch.set_default_dtype(torch.float64)
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
                       ("sophia_options", sophia(0.02, 0.9, 0.95, 0.5, decay=0.0, k=7)),
                       ("sophia_h", sophia_h(0.01, 0.9, 0.95, 1.0))):
        trace(book, name, rule, p0=SOPHIA_P0)
        assert min(rule.clipped) < max(rule.clipped) < 1 and max(rule.clipped) > 0, rule.clipped


def grid(rows, columns, step, size, low, high):
    """A matrix of the numbers 0 ... size - 1 in steps, each scaled to low ... high."""
    i = np.arange(rows * columns) * step % size
    return (low + (high - low) * i / (size - 1)).reshape(rows, columns)


def matrix_rules(book):
    adafactor = torch.optim.Adafactor
    trace(book, "adafactor", by_torch(adafactor, lr=0.01))
    p0, w = grid(3, 5, 4, 13, -2, 2.5), grid(3, 5, 5, 11, 0.05, 2)
    trace(book, "adafactor_matrix", by_torch(adafactor, lr=0.01), p0, w)
    trace(book, "adafactor_options", by_torch(adafactor, lr=0.2, beta2_decay=-0.6, d=1.5,
                                              eps=(1e-10, 1e-2), weight_decay=0.05), p0, w)
    p0, w = grid(4, 6, 7, 23, -2, 2.5), grid(4, 6, 5, 17, 0.05, 2)
    plain = {"lr": 0.05, "momentum": 0.8, "nesterov": False}
    trace(book, "muon", muon(0.02), p0, w)
    trace(book, "muon_tall", muon(0.02), p0.T, w.T)
    trace(book, "muon_options", muon(**plain, decay=0.0, adjust="match_rms_adamw"), p0, w)
    with mock.patch.object(torch, "bfloat16", torch.float64):
        for own, options, transposed in (
                (muon(0.02), {"lr": 0.02}, False), (muon(0.02), {"lr": 0.02}, True),
                (muon(**plain, decay=0.0, adjust="match_rms_adamw"),
                 {**plain, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}, False)):
            start = (p0.T, w.T) if transposed else (p0, w)
            other = run(by_torch(torch.optim.Muon, **options), *start)
            assert distance(run(own, *start), other) < 1e-9, options


def wrapped_rules(book):
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    trace(book, "sf_adamw", sf_adamw(0.05))
    trace(book, "sf_adamw_warmup", sf_adamw(0.05, 0.95, 0.99, 1e-6, 10, 0.05))
    trace(book, "sf_sgd", sf_sgd(0.1))
    trace(book, "sf_sgd_warmup", sf_sgd(0.2, 0.8, 10, 0.05))
    trace(book, "lookahead_sgd", lookahead(sgd, lr=0.02, momentum=0.9))
    trace(book, "lookahead_adamw", lookahead(adamw, lr=0.05, weight_decay=0.01))
    trace(book, "sam", sam(sgd, 0.05, lr=0.02))
    trace(book, "sam_momentum", sam(sgd, 0.1, lr=0.02, momentum=0.9, weight_decay=0.05))
    trace(book, "asam", sam(sgd, 0.5, True, lr=0.02))


def rosenbrock(p):
    return (100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2).sum()


def lbfgs(loss, p0, options, calls=10):
    """Snapshots after 1, 3 and 10 calls of step, the loss each returned, and evaluations so far."""
    t = torch.tensor(p0, dtype=torch.float64).requires_grad_()
    opt = torch.optim.LBFGS([t], max_iter=4, history_size=5, **options)
    made, count = {"losses": [], "evaluations": []}, [0]

    def closure():
        opt.zero_grad()
        value = loss(t)
        value.backward()
        count[0] += 1
        return value

    for call in range(1, calls + 1):
        made["losses"].append(opt.step(closure).item())
        made["evaluations"].append(count[0])
        if call in (1, 3, calls):
            made[f"p{call}"] = t.detach().numpy().copy()
    return {key: np.array(value, np.float64) for key, value in made.items()}


def lbfgs_rules(book):
    w = torch.tensor(W, dtype=torch.float64)
    start = [0.5, -0.3, 0.2, 0.8, -0.6, 0.1, 0.4]
    book.put("lbfgs.p0", start)
    for name, loss, p0, options in (
            ("lbfgs", rosenbrock, start, {"line_search_fn": "strong_wolfe"}),
            ("lbfgs_fixed", lambda p: (w * p * p).sum(), P0, {"lr": 0.5})):
        made = lbfgs(loss, p0, options)
        drift = distance(made, lbfgs(loss, np.array(p0) * (1 + NUDGE), options))
        print(f"{name:20} drift {drift:.0e}  losses {made['losses']}")
        assert drift < DRIFT, (name, drift)
        for key, value in made.items():
            book.put(f"{name}.{key}", value)


# The network: 4 -> 6, tanh, 6 -> 3.

def spread(shape, stream, scale):
    """Numbers in -scale ... scale: golden_spread of golden.h."""
    h = (np.arange(1, math.prod(shape) + 1) * 2654435761 + stream * 40503) % 2 ** 32
    h = (h ^ h >> 15) * 2246822519 % 2 ** 32
    return scale * ((h ^ h >> 13) / 2 ** 31 - 1).reshape(shape)


NET_SHAPES = ((6, 4), (6,), (3, 6), (3,))           # 0.weight, 0.bias, 2.weight, 2.bias
# The streams 1300 ... keep the arguments of signs away from 0.
NET_START = [spread(shape, 1300 + i, 0.6) for i, shape in enumerate(NET_SHAPES)]
NET_X, NET_TARGET = spread((8, 4), 1310, 1.5), spread((8, 3), 1311, 3)
# Rules whose rounding grows over 100 updates of the network: that many instead. A curvature of g g
# near 0 and Newton-Schulz of a matrix with small singular values enlarge rounding.
NET_UPDATES = {"sophia": 10, "sophia_options": 10, "adafactor_options": 10,
               "muon_options": 10, "lbfgs": 10}
NET_DRIFT, NET_SINGLE = 1e-11, 8e-6


def net_loss(p):
    x, target = (torch.tensor(v, dtype=p[0].dtype) for v in (NET_X, NET_TARGET))
    y = torch.tanh(x @ p[0].T + p[1]) @ p[2].T + p[3]
    return ((y - target) ** 2).mean()


def net_grads(params):
    leaves = [torch.tensor(p).requires_grad_() for p in params]
    return [g.numpy() for g in torch.autograd.grad(net_loss(leaves), leaves)]


def flat(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def run_network(rules, start, updates):
    """The snapshots of the network, one rule for each parameter."""
    grads = net_grads(start)
    made, runs = {}, [rule(p, lambda _, i=i: grads[i])
                      for i, (rule, p) in enumerate(zip(rules, start))]
    for update in range(1, updates[-1] + 1):
        parts = [part if isinstance(part, dict) else {"p": part} for part in map(next, runs)]
        if update in updates:
            made.update({f"{key}{update}": flat(part[key] for part in parts) for key in parts[0]})
        grads[:] = net_grads([part["p"] for part in parts])
    return made


def net_sam(rho, adaptive, start, updates, **options):
    """SAM, whose norm is that of all parameters."""
    leaves = [torch.tensor(p).requires_grad_() for p in start]
    opt, made = torch.optim.SGD(leaves, **options), {}
    for update in range(1, updates[-1] + 1):
        p = [leaf.detach().numpy().copy() for leaf in leaves]
        scale = [np.abs(q) if adaptive else np.ones_like(q) for q in p]
        up = [s * g for s, g in zip(scale, net_grads(p))]
        size = rho / (np.sqrt(sum((u * u).sum() for u in up)) + 1e-12)
        for leaf, g in zip(leaves, net_grads([q + size * s * u
                                              for q, s, u in zip(p, scale, up)])):
            leaf.grad = torch.tensor(g)
        opt.step()
        if update in updates:
            made[f"p{update}"] = flat(leaf.detach().numpy() for leaf in leaves)
    return made


def net_trace(book, name, runs):
    """Stores the snapshots of runs(start), and asserts that rounding does not steer them."""
    last = NET_UPDATES.get(name, SNAPSHOTS[-1])
    updates = (1, 3, 10) if name == "lbfgs" else [u for u in SNAPSHOTS if u <= last]
    # In float32 L-BFGS parts from its path after some calls, as rounding decides: 3 are compared.
    few = updates[:2] if name == "lbfgs" else updates
    made = runs(NET_START, updates)
    nudged = [p * (1 + NUDGE * np.where(np.arange(p.size) % 2, 1, -1).reshape(p.shape))
              for p in NET_START]
    drift = distance(made, runs(nudged, updates))
    narrow = runs([p.astype(np.float32) for p in NET_START], few)
    single = distance(narrow, made)
    moved = np.abs(made[f"p{last}"] - flat(NET_START)).max()
    print(f"net {name:20} drift {drift:.0e}  float32 {single:.0e}  moved {moved:.2g}")
    assert drift < NET_DRIFT and single < NET_SINGLE, (name, drift, single)
    for key, value in made.items():
        book.put(f"{name}.{key}", value)


def net_lbfgs(start, updates, **options):
    """Snapshots of torch's L-BFGS over all parameters."""
    leaves = [torch.tensor(p).requires_grad_() for p in start]
    opt, made = torch.optim.LBFGS(leaves, max_iter=4, history_size=5, **options), {}

    def closure():
        opt.zero_grad()
        loss = net_loss(leaves)
        loss.backward()
        return loss

    for update in range(1, updates[-1] + 1):
        opt.step(closure)
        if update in updates:
            made[f"p{update}"] = flat(leaf.detach().numpy().copy() for leaf in leaves)
    return made


def network(book):
    optim, estimate = torch.optim, lambda p, grad: len(NET_X) * grad(p) ** 2
    rules = {name: (rule, rule) for name, rule in TRACED.items()
             if name not in ("adafactor_matrix", "muon_tall", "sophia_h")
             and not name.startswith(("sam", "asam"))}
    rules["sophia"] = 2 * (sophia(0.01, hessian=estimate),)
    rules["sophia_options"] = 2 * (
        sophia(0.02, 0.9, 0.95, 0.5, decay=0.0, k=7, hessian=estimate),)
    # At a rate of 5, which biases have without a ratio, the network diverges.
    rules["lars_decay"] = (lars(0.5, 0.002, 0.8, decay=0.05),)
    for name, vectors in (
            ("lars", by_torch(optim.SGD, lr=1.0, momentum=0.9)),
            ("lars_decay", by_torch(optim.SGD, lr=0.5, momentum=0.8, weight_decay=0.05)),
            ("lars_zero", by_torch(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05)),
            ("muon", by_torch(optim.AdamW, lr=0.02, weight_decay=0.01)),
            ("muon_options", by_torch(optim.AdamW, lr=0.05, weight_decay=0.01))):
        rules[name] = rules[name][0], vectors
    book.put("net.start", flat(NET_START))
    book.put("net.x", NET_X)
    book.put("net.target", NET_TARGET)
    for name, (matrices, vectors) in rules.items():
        net_trace(book, name, lambda *run: run_network(2 * [matrices, vectors], *run))
    for name, rho, adaptive, options in (
            ("sam", 0.05, False, {"lr": 0.02}),
            ("sam_momentum", 0.1, False, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.05}),
            ("asam", 0.5, True, {"lr": 0.02})):
        net_trace(book, name, lambda *run: net_sam(rho, adaptive, *run, **options))
    net_trace(book, "lbfgs", lambda *run: net_lbfgs(*run, line_search_fn="strong_wolfe"))


def dummy():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)


def by_scheduler(make, last=30):
    """The rates and the momenta that torch's schedule gives for t = 0 ... last."""
    opt = dummy()
    schedule = make(opt)
    rates, momenta = [], []
    for t in range(last + 1):
        rates.append(opt.param_groups[0]["lr"])
        momenta.append(opt.param_groups[0]["momentum"])
        opt.step()
        if t < last:
            schedule.step()
    return rates, momenta


def mix(start, end, u):
    return start + (end - start) * u


def half_cosine(start, end, u):
    return end + (start - end) * (1 + math.cos(math.pi * u)) / 2


def restarts(first, factor, low):
    def at(t):
        length = first
        while t >= length:
            t, length = t - length, length * factor
        return half_cosine(1, low, t / length)
    return at


def one_cycle(steps, start, div, final, between, three):
    """The closed forms of the rate and of the momentum."""
    ends = [start * steps - 1, 2 * start * steps - 2, steps - 1] if three else [
        start * steps - 1, steps - 1]
    rates = [1 / div, 1, 1 / div, 1 / div / final] if three else [1 / div, 1, 1 / div / final]
    momenta = [0.95, 0.85, 0.95, 0.95] if three else [0.95, 0.85, 0.95]

    def along(values):
        def at(t):
            phase = next(i for i, end in enumerate(ends) if t <= end)
            begin = ends[phase - 1] if phase else 0
            return between(values[phase], values[phase + 1], (t - begin) / (ends[phase] - begin))
        return at
    return along(rates), along(momenta)


def cyclic(low, high, up, down, scale, sign=1):
    def at(t):
        cycle = t // (up + down)
        along = t - cycle * (up + down)
        height = along / up if along <= up else (up + down - along) / down
        top, step = (high, high - low) if sign < 0 else (low, high - low)
        return top + sign * step * height * scale(cycle, t)
    return at


def sequence(parts, starts):
    def at(t):
        part = bisect_right(starts, t)
        return parts[part](t - (starts[part - 1] if part else 0))
    return at


def schedule_table():
    """Of each schedule that torch has: its name, torch's, the closed form."""
    constant, cosine = sched.ConstantLR, sched.CosineAnnealingLR
    warm, linear, poly = sched.CosineAnnealingWarmRestarts, sched.LinearLR, sched.PolynomialLR
    exponential, steps = sched.ExponentialLR, (3, 7, 8, 20)
    return (
        ("lambda", lambda o: sched.LambdaLR(o, lambda t: 1 / (1 + 0.1 * t)),
         lambda t: 1 / (1 + 0.1 * t)),
        ("constant", lambda o: constant(o, 0.25, 5), lambda t: 0.25 if t < 5 else 1),
        ("step", lambda o: sched.StepLR(o, 4, 0.5), lambda t: 0.5 ** (t // 4)),
        ("multi_step", lambda o: sched.MultiStepLR(o, steps, 0.3),
         lambda t: 0.3 ** bisect_right(steps, t)),
        ("exponential", lambda o: exponential(o, 0.9), lambda t: 0.9 ** t),
        ("cosine", lambda o: cosine(o, 10), lambda t: half_cosine(1, 0, t / 10)),
        ("cosine_min", lambda o: cosine(o, 7, 0.1), lambda t: half_cosine(1, 0.1, t / 7)),
        ("restarts", lambda o: warm(o, 4, 2, 0.05), restarts(4, 2, 0.05)),
        ("restarts_even", lambda o: warm(o, 5), restarts(5, 1, 0)),
        ("polynomial", lambda o: poly(o, 10, 2), lambda t: (1 - min(t, 10) / 10) ** 2),
        ("polynomial_root", lambda o: poly(o, 12, 0.5), lambda t: (1 - min(t, 12) / 12) ** 0.5),
        ("linear", lambda o: linear(o), lambda t: mix(1 / 3, 1, min(t, 5) / 5)),
        ("linear_down", lambda o: linear(o, 1, 0.1, 12), lambda t: mix(1, 0.1, min(t, 12) / 12)),
        ("sequence", lambda o: sched.SequentialLR(
            o, [constant(o, 0.5, 9), exponential(o, 0.8), cosine(o, 10)], [5, 12]),
         sequence((lambda t: 0.5, lambda t: 0.8 ** t, lambda t: half_cosine(1, 0, t / 10)),
                  (5, 12))),
        ("sequence_linear", lambda o: sched.SequentialLR(
            o, [linear(o, 0.1, 1, 5), cosine(o, 20)], [5]),
         sequence((lambda t: mix(0.1, 1, t / 5), lambda t: half_cosine(1, 0, t / 20)), (5,))))


def put_schedule(book, name, closed, torchs=None, last=30):
    values = np.array([closed(t) for t in range(last + 1)], np.float64)
    if torchs is not None:
        worst = np.abs(values - torchs).max()
        print(f"{name:32} differs from torch by {worst:.0e}")
        assert worst < 1e-9, name
    book.put(name, values)


def cycles(book):
    """one_cycle_* and cyclic_*: the rates and the momenta."""
    for name, between, three in (("cos", half_cosine, False), ("linear", mix, False),
                                 ("three", half_cosine, True), ("three_linear", mix, True)):
        start, div, final = (0.3, 25, 1e4) if between is half_cosine else (0.4, 10, 100)
        got = by_scheduler(lambda o: sched.OneCycleLR(
            o, 1.0, 20, pct_start=start, div_factor=div, final_div_factor=final,
            anneal_strategy="cos" if between is half_cosine else "linear", three_phase=three), 19)
        closed = one_cycle(20, start, div, final, between, three)
        for part, form, torchs in zip(("", ".momentum"), closed, got):
            put_schedule(book, f"one_cycle_{name}{part}", form, torchs, 19)
    for mode, scale in (("triangular", lambda cycle, t: 1),
                        ("triangular2", lambda cycle, t: 0.5 ** cycle),
                        ("exp_range", lambda cycle, t: 0.95 ** t)):
        rates, momenta = by_scheduler(lambda o: sched.CyclicLR(o, 0.1, 1.0, 4, 6, mode, 0.95))
        put_schedule(book, f"cyclic_{mode}", cyclic(0.1, 1, 4, 6, scale), rates)
        put_schedule(book, f"cyclic_{mode}.momentum", cyclic(0.8, 0.9, 4, 6, scale, -1), momenta)


def own_schedules(book):
    def decay(form, w=4, s=15, d=10, end=0.05):
        return lambda t: (min((t + 1) / w, 1) if t < s
                          else end + (1 - end) * form(min((t - s) / d, 1)))

    put_schedule(book, "warmup_cosine", lambda t: (
        (t + 1) / 5 if t < 5 else half_cosine(1, 0, min((t - 5) / 20, 1))))
    put_schedule(book, "wsd_sqrt", decay(lambda u: 1 - math.sqrt(u)))
    put_schedule(book, "wsd_linear", decay(lambda u: 1 - u))
    put_schedule(book, "wsd_cosine", decay(lambda u: half_cosine(1, 0, u)))
    put_schedule(book, "noam", lambda t: 64 ** -0.5 * min((t + 1) ** -0.5, (t + 1) * 8 ** -1.5))
    put_schedule(book, "inverse_sqrt", lambda t: 1 if t < 8 else math.sqrt(8 / (t + 1)))
    put_schedule(book, "inverse_sqrt_warmup", lambda t: (
        (t + 1) / 8 if t < 8 else math.sqrt(8 / (t + 1))))


def metrics():
    """40 numbers that fall, stay, rise and stay; some are NaN, some hardly better."""
    values = [8, 6, 5, math.nan, 4.6, 4.5, 3, 2.9, 2.8, 2.75, math.nan, math.nan, 2.7, 2.7, 2.4,
              2.4, 2.5, 2.6, 2.39, 2.38, 4, 6, 9, 9.2, math.nan, 9.3, 9.5, 9.6, 9.8, 11, 11.1, 11.2,
              11.3, 11.5, math.nan, 11.2, 11.1, 11.4, 12.5, 12]
    assert len(values) == 40
    return values


def plateau_form(series, mode, threshold, rel, low, patience=2, cooldown=2, factor=0.5, eps=1e-8):
    sign = 1 if mode == "min" else -1
    rate, best, bad, wait, rates = 1.0, sign * math.inf, 0, 0, []
    for value in series:
        limit = best * (1 - sign * threshold) if rel else best - sign * threshold
        if sign * value < sign * limit:                  # false for NaN
            best, bad = value, 0
        else:
            bad += 1
        if wait > 0:
            wait, bad = wait - 1, 0
        if bad > patience:
            lower = max(rate * factor, low)
            rate = lower if rate - lower > eps else rate
            wait, bad = cooldown, 0
        rates.append(rate)
    return rates


def plateaus(book):
    series = metrics()
    book.tensors["plateau.metric"] = np.array(series, np.float64)        # put refuses NaN
    for name, values, mode, threshold, kind, low in (
            ("min_rel", series, "min", 0.1, "rel", 0.02),
            ("min_abs", series, "min", 0.25, "abs", 0),
            ("max_rel", series, "max", 0.1, "rel", 0),
            ("max_abs", series, "max", 0.25, "abs", 0.02),
            ("constant", [1.0] * 40, "min", 1e-4, "rel", 0)):
        opt = dummy()
        plateau = sched.ReduceLROnPlateau(opt, mode, 0.5, 2, threshold, kind, 2, low)
        rates = []
        for value in values:
            plateau.step(value)
            rates.append(opt.param_groups[0]["lr"])
        form = plateau_form(values, mode, threshold, kind == "rel", low)
        assert form == rates, name
        assert len(set(rates)) > 2, name
        print(f"plateau_{name:12} {rates}")
        book.put(f"plateau_{name}", rates)


def main():
    torch.set_num_threads(1)
    rules = Book()
    rules.put("p0", P0)
    rules.put("w", W)
    torch_rules(rules)
    own_rules(rules)
    matrix_rules(rules)
    wrapped_rules(rules)
    lbfgs_rules(rules)
    rules.save("optim_rules.safetensors")
    net = Book()
    network(net)
    net.save("optim_network.safetensors")
    schedules = Book()
    for name, make, closed in schedule_table():
        put_schedule(schedules, name, closed, by_scheduler(make)[0])
    cycles(schedules)
    own_schedules(schedules)
    plateaus(schedules)
    schedules.save("schedules.safetensors")


if __name__ == "__main__":
    main()
