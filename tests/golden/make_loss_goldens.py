#!/usr/bin/env python3
"""Writes tests/golden/losses.safetensors: what PyTorch computes of losses.

Needs torch and safetensors; run once from anywhere, the results are committed:
    python3 tests/golden/make_loss_goldens.py
The header of the file names the torch version that made it. Names are <loss>.<dtype>.<case>.<part>
with parts a, b, c, d (inputs; a.T is used transposed), nums (reduction, then the parameters of the
call), out, dy, and da, db, dc where there is a gradient. Inputs are rounded to the dtype, then all
is computed in f64 and rounded once. What PyTorch lacks is written out below as torchvision (focal),
MONAI (dice, tversky) or the paper defines it.
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16,
          "f16": torch.float16}
MODES = ("mean", "sum", "none", "batchmean")
LONG = torch.int64


class Book:
    def __init__(self):
        self.tensors, self.count = {}, {}

    def put(self, name, value):
        assert name not in self.tensors, name
        self.tensors[name] = value.detach().clone().contiguous()

    def case(self, loss, dtype, inputs, call, nums, grads=""):
        """inputs: tensors or (tensor, "T"); grads: letters of the inputs that have a gradient."""
        number = self.count.setdefault((loss, dtype), 0)
        self.count[loss, dtype] += 1
        name = f"{loss}.{dtype}.{number}"
        leaves, views = [], []
        for letter, item in zip("abcd", inputs):
            t, turned = item if isinstance(item, tuple) else (item, "")
            stored = t.to(DTYPES[dtype]) if t.dtype.is_floating_point else t
            self.put(f"{name}.{letter}{'.T' if turned else ''}", stored)
            leaf = stored.double().detach().clone() if t.dtype.is_floating_point else stored
            leaf.requires_grad_(letter in grads)
            leaves.append(leaf)
            views.append(leaf.transpose(0, 1) if turned else leaf)
        out = call(*views)
        self.put(f"{name}.nums", torch.tensor([float(x) for x in nums], dtype=torch.float64))
        self.put(f"{name}.out", out.to(DTYPES[dtype]))
        dy = rand("dy" + loss, tuple(out.shape), 0.5, 1.5).to(DTYPES[dtype])
        self.put(f"{name}.dy", dy)
        out.backward(dy.double())
        for letter, leaf in zip("abcd", leaves):
            if letter in grads:
                self.put(f"{name}.d{letter}", leaf.grad.to(DTYPES[dtype]))


def rand(key, shape, low, high):
    seed = sum(ord(ch) * (i + 1) for i, ch in enumerate(key + str(shape))) + 1
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=gen, dtype=torch.float64) * (high - low) + low


def reduced(each, mode):
    if mode == "batchmean":
        return each.sum() / (each.shape[0] if each.ndim else 1)
    return {"mean": torch.mean, "sum": torch.sum, "none": lambda y: y}[mode](each)


def hard(shape, low=0):
    """Zeros and ones, or -1 and 1."""
    t = (rand("hard", shape, 0, 1) > 0.5).double()
    return t if low == 0 else 2 * t - 1


def softs(shape):
    return rand("soft", shape, 0, 1)


def focal(x, t, alpha, gamma):
    p = torch.sigmoid(x)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    loss = loss * (1 - (p * t + (1 - p) * (1 - t))) ** gamma
    return loss * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else loss


# name, parameters, range of x, targets, function of each element, has the target a gradient
POINTWISE = [
    ("mse_loss", (), (-2, 2), softs, lambda x, t: F.mse_loss(x, t, reduction="none"), True),
    ("l1_loss", (), (-2, 2), softs, lambda x, t: F.l1_loss(x, t, reduction="none"), True),
    *[("smooth_l1_loss", (b,), (-2, 2), softs,
       lambda x, t, b=b: F.smooth_l1_loss(x, t, beta=b, reduction="none"), True)
      for b in (1.0, 0.3, 0.0)],
    *[("huber_loss", (d,), (-2, 2), softs,
       lambda x, t, d=d: F.huber_loss(x, t, delta=d, reduction="none"), True)
      for d in (1.0, 0.3)],
    ("bce_loss", (), (0.01, 0.99), softs,
     lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), True),
    ("bce_with_logits", (), (-4, 4), softs,
     lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"), True),
    ("bce_with_logits", (), (-4, 4), hard,
     lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"), True),
    *[("focal_loss", (a, g), (-4, 4), kind, lambda x, t, a=a, g=g: focal(x, t, a, g), True)
      for a, g, kind in ((0.25, 2.0, hard), (0.25, 2.0, softs), (-1.0, 0.5, softs),
                         (0.6, 0.0, hard), (0.25, 3.5, softs))],
    ("kl_div", (0,), (-4, 0), softs, lambda x, t: F.kl_div(x, t, reduction="none"), True),
    ("kl_div", (1,), (-4, 0), lambda shape: rand("log", shape, -4, 0),
     lambda x, t: F.kl_div(x, t, reduction="none", log_target=True), True),
    *[("hinge_loss", (m,), (-2, 2), lambda shape: hard(shape, -1),
       lambda x, t, m=m: torch.clamp_min(m - t * x, 0), True) for m in (1.0, 0.2)],
    *[("hinge_embedding_loss", (m,), (-2, 2), lambda shape: hard(shape, -1),
       lambda x, t, m=m: F.hinge_embedding_loss(x, t, margin=m, reduction="none"), False)
      for m in (1.0, 0.2)],
]
# of extreme inputs: name, parameters, x, t, function
LOGITS = torch.tensor([-1e4, -100, -88.5, -30, -1e-3, 0, 2, 17, 30, 88.5, 100, 1e4] * 2,
                      dtype=torch.float64)
TARGETS = torch.tensor([0.0] * 12 + [1.0] * 12, dtype=torch.float64)
EXTREME = [
    ("bce_with_logits", (), LOGITS, TARGETS,
     lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none")),
    ("focal_loss", (0.25, 2.0), LOGITS, TARGETS, lambda x, t: focal(x, t, 0.25, 2.0)),
    ("bce_loss", (), torch.tensor([0, 1, 0, 1, 0.5, 1, 0], dtype=torch.float64),
     torch.tensor([0, 1, 1, 0, 0.5, 0.5, 0.5], dtype=torch.float64),
     lambda x, t: F.binary_cross_entropy(x, t, reduction="none")),
    ("kl_div", (0,), torch.tensor([-1.0, -2, -50], dtype=torch.float64),
     torch.tensor([0, 1, 0.5], dtype=torch.float64),
     lambda x, t: F.kl_div(x, t, reduction="none")),
    ("hinge_embedding_loss", (1.0,), torch.tensor([0.3, 2, -1], dtype=torch.float64),
     torch.tensor([0, 0.5, -3], dtype=torch.float64),
     lambda x, t: F.hinge_embedding_loss(x, t, reduction="none")),
]


def pointwise(book, dtype):
    half = dtype in ("bf16", "f16")
    for name, nums, (low, high), targets, each, both in POINTWISE:
        for shape, turned, modes in (((3, 5), "", range(4)), ((7, 6), "T", (0, 2)), ((), "", (1,)),
                                     ((0, 3), "", (0, 1)), ((37,), "", (2,))):
            x = rand(name, shape, low, high)
            t = targets(shape[::-1] if turned else shape)
            if half and (0 in shape or not shape):
                continue
            for mode in (2,) if half else modes:
                book.case(name, dtype, [(x, turned), t],
                          lambda x, t, mode=mode: reduced(each(x, t), MODES[mode]),
                          (mode, *nums), "ab" if both else "a")
    for name, nums, x, t, each in EXTREME:
        if not half:
            book.case(name, dtype, [x, t], each, (2, *nums), "a")


def weighted(book, dtype):
    """nums: reduction, is there a weight, is there a pos_weight."""
    for shape, wide, each in (((4, 5), (5,), (5,)), ((4, 5), (4, 1), ()), ((7,), (7,), (1,))):
        t, w, pos = softs(shape), rand("weight", wide, 0, 2), rand("pos", each, 0, 5)
        for mode in range(4) if wide == (5,) else (2,):
            x = rand("bce", shape, 0.05, 0.95)
            book.case("bce_loss_weight", dtype, [x, t, w],
                      lambda x, t, w: reduced(F.binary_cross_entropy(
                          x, t, reduction="none") * w, MODES[mode]), (mode,), "ab")
            x = rand("bce", shape, -4, 4)
            for has_w, has_pos in ((1, 0), (0, 1), (1, 1)):
                def call(x, t, *more, has_w=has_w, has_pos=has_pos):
                    y = F.binary_cross_entropy_with_logits(
                        x, t, weight=more[0] if has_w else None,
                        pos_weight=more[-1] if has_pos else None, reduction="none")
                    return reduced(y, MODES[mode])
                book.case("bce_with_logits_weight", dtype, [x, t, *[w] * has_w, *[pos] * has_pos],
                          call, (mode, has_w, has_pos), "ab")
    pos = torch.tensor([0.0, 3], dtype=torch.float64)
    book.case("bce_with_logits_weight", dtype, [LOGITS.view(12, 2), TARGETS.view(12, 2), pos],
              lambda x, t, p: F.binary_cross_entropy_with_logits(x, t, pos_weight=p,
                                                                 reduction="none"), (2, 0, 1), "a")


def by_class(book, dtype):
    """nums: reduction, smoothing, has ignore, ignore, has weight; poly1: reduction, epsilon."""
    weight = torch.tensor([0.5, 2, 0, 1.25, 3], dtype=torch.float64)
    for shape, turned in (((6, 5), ""), ((5, 6), "T"), ((5,), "")):
        x = rand("class", shape, -3, 3)
        labels = torch.tensor([3, 0, 2, 4, 1, 2]) if len(shape) == 2 else torch.tensor(3)
        p = softs((6, 5) if len(shape) == 2 else shape)
        p = p / p.sum(-1, keepdim=True)
        for mode in range(3) if len(shape) == 2 and not turned else (0,):
            for s, ignore in ((0.0, None), (0.2, None), (0.0, 4), (0.3, 4)):
                index = -100 if ignore is None else ignore
                nums = (mode, s, ignore is not None, ignore or 0, 1)
                book.case("cross_entropy", dtype, [(x, turned), labels, weight],
                          lambda x, y, w: F.cross_entropy(
                              x, y, w, label_smoothing=s, ignore_index=index,
                              reduction=MODES[mode]), nums, "a")
                if s == 0.0:
                    for has in (0, 1):
                        book.case("nll_loss", dtype, [(x, turned), labels, weight][:2 + has],
                                  lambda x, y, w=None: F.nll_loss(
                                      x, y, w, ignore_index=index, reduction=MODES[mode]),
                                  (*nums[:4], has), "a")
            for s in (0.0, 0.2):
                for has in (0, 1):
                    book.case("cross_entropy", dtype, [(x, turned), p, weight][:2 + has],
                              lambda x, y, w=None: F.cross_entropy(
                                  x, y, w, label_smoothing=s, reduction=MODES[mode]),
                              (mode, s, 0, 0, has), "ab")
            for eps in (1.0, -0.5):
                def poly1(x, y):
                    return (F.cross_entropy(x, y, reduction="none") + eps * (
                        1 - torch.softmax(x, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)))
                book.case("poly1_cross_entropy", dtype, [(x, turned), labels],
                          lambda x, y: reduced(poly1(x, y), MODES[mode]), (mode, eps), "a")
    for turned in ("", "T"):
        s = rand("student", (5, 4) if turned else (4, 5), -3, 3)
        z = rand("teacher", (4, 5), -3, 3)
        y = torch.tensor([3, 0, 2, 4])
        for alpha, t in ((0.5, 4.0), (1.0, 2.0), (0.0, 1.0), (0.9, 0.5)):
            book.case("distillation_loss", dtype, [(s, turned), z, y],
                      lambda s, z, y: alpha * t * t * F.kl_div(
                          torch.log_softmax(s / t, 1), torch.softmax(z / t, 1),
                          reduction="batchmean") + (1 - alpha) * F.cross_entropy(s, y),
                      (0, alpha, t), "a")


def masks(book, dtype):
    for shape in ((2, 3, 4), (2, 1, 3, 5), (1, 2, 2, 2, 2), (2, 3, 0)):
        p, kinds, axes = rand("mask", shape, 0, 1), (hard(shape), softs(shape)), \
            list(range(2, len(shape)))
        for mode in range(3) if len(shape) == 3 else (2,):
            for k, t in enumerate(kinds):
                def dice(p, t):
                    a, b = (p * p, t * t) if k else (p, t)
                    both = (p * t).sum(axes)
                    return 1 - (2 * both + 1e-5) / (a.sum(axes) + b.sum(axes) + 1e-5)

                def tversky(p, t):
                    both = (p * t).sum(axes)
                    extra, missed = (p * (1 - t)).sum(axes), ((1 - p) * t).sum(axes)
                    return 1 - (both + 0.5) / (both + 0.3 * extra + 0.7 * missed + 0.5)
                book.case("dice_loss", dtype, [p, t], lambda p, t: reduced(dice(p, t), MODES[mode]),
                          (mode, k, 1e-5), "ab")
                book.case("tversky_loss", dtype, [p, t],
                          lambda p, t: reduced(tversky(p, t), MODES[mode]),
                          (mode, 0.3, 0.7, 0.5), "ab")


def distances(book, dtype):
    for shape, turned in (((6, 5), ""), ((5, 6), "T"), ((5,), ""), ((2, 3, 4), "")):
        real = shape[::-1] if turned else shape
        a, b, c = rand("one", shape, -1, 1), rand("two", real, -1, 1), rand("three", real, -1, 1)
        two = hard(real[:-1], -1)
        for mode in range(3) if shape == (6, 5) else (2,):
            for margin, p, swap in ((1.0, 2.0, 0), (0.3, 1.0, 1), (2.0, 3.0, 0)):
                book.case("triplet_margin_loss", dtype, [(a, turned), b, c],
                          lambda a, b, c: F.triplet_margin_loss(
                              a, b, c, margin=margin, p=p, swap=bool(swap), eps=1e-6,
                              reduction=MODES[mode]), (mode, margin, p, swap), "abc")
            for margin in (1.0, 3.0):
                def contrastive(a, b, y):
                    d = (a - b).norm(dim=-1)
                    return ((1 - y) * d * d + y * torch.relu(margin - d) ** 2) / 2
                book.case("contrastive_loss", dtype, [(a, turned), b, ((two + 1) / 2).to(LONG)],
                          lambda a, b, y: reduced(contrastive(a, b, y.double()), MODES[mode]),
                          (mode, margin), "ab")
            for margin in (0.0, -0.5):
                def cosine(a, b, y):
                    flat = F.cosine_embedding_loss(
                        a.reshape(-1, a.shape[-1]), b.reshape(-1, a.shape[-1]), y.reshape(-1),
                        margin=margin, reduction="none")
                    return flat.reshape(y.shape)
                book.case("cosine_embedding_loss", dtype, [(a, turned), b, two],
                          lambda a, b, y: reduced(cosine(a, b, y), MODES[mode]),
                          (mode, margin), "ab")
    for shape, turned in (((4, 5), ""), ((5, 4), "T")):
        x = rand("margin", shape, -1, 1)
        y = torch.tensor([[3, 0, -1, 1, 2], [2, -1, 0, 0, 0], [-1, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
        for mode in range(3):
            book.case("multilabel_margin_loss", dtype, [(x, turned), y],
                      lambda x, y: F.multilabel_margin_loss(x, y, reduction=MODES[mode]),
                      (mode,), "a")
    x = torch.tensor([0.1, 0.2, 0.4, 0.8], dtype=torch.float64)
    book.case("multilabel_margin_loss", dtype, [x, torch.tensor([3, 3, -1, 1])],
              lambda x, y: F.multilabel_margin_loss(x, y, reduction="none"), (2,), "a")


def main():
    torch.set_num_threads(1)
    book = Book()
    for dtype in DTYPES:
        pointwise(book, dtype)
    for dtype in ("f32", "f64"):
        for group in (weighted, by_class, masks, distances):
            group(book, dtype)
    path = HERE / "losses.safetensors"
    note = f"tests/golden/make_loss_goldens.py, torch {torch.__version__}"
    save_file(book.tensors, path, metadata={"made_by": note})
    path.chmod(0o644)
    print(f"{path.name}: {len(book.tensors)} tensors, {path.stat().st_size} bytes")
    for (loss, dtype), n in sorted(book.count.items()):
        print(f"    {loss} {dtype} {n}")


if __name__ == "__main__":
    main()
