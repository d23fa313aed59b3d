"""Makes distill.safetensors: 100 steps of a distillation by PyTorch, in f64.

    python3 tests/golden/make_distill_goldens.py    (PyTorch, safetensors)

The teacher is a linear layer of 5 to 9, ReLU, 9 to 4, the student one of 3 hidden numbers; the outputs of
the student's first layer go through a learned linear, without bias, to those of the teacher's. Numbers of
them are `spread` / 2, which golden.h has, too, with streams 0 to 3 (weights and biases) of the teacher, 4 to
7 of the student, 8 of the linear; the 24 inputs are stream 9, their labels 0, 1, 2, 3, 0, .. The loss has
alpha 0.7 and temperature 3, and 0.5 of the mean of squares between layers. Names: losses [100], of AdamW
with a rate of 0.01 before each step; 0.weight and so on, of the student after the last.
"""
import os

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from make_resnet_goldens import spread


def numbers(stream, *shape):
    n = 1
    for s in shape:
        n *= s
    return (spread(n, stream) / 2).reshape(shape)


def network(hidden, stream):
    shapes = [(hidden, 5), (hidden,), (4, hidden), (4,)]
    return [numbers(stream + i, *s) for i, s in enumerate(shapes)]


def run(p, x):
    h = F.linear(x, p[0], p[1])
    return h, F.linear(F.relu(h), p[2], p[3])


def main():
    teacher, student = network(9, 0), network(3, 4)
    linear, x, y = numbers(8, 9, 3), numbers(9, 24, 5), torch.arange(24) % 4
    learned = [p.requires_grad_() for p in student + [linear]]
    optim = torch.optim.AdamW(learned, lr=0.01)
    alpha, t, losses = 0.7, 3.0, []
    for _ in range(100):
        with torch.no_grad():
            layer, logits = run(teacher, x)
        mine, out = run(student, x)
        soft = F.kl_div(F.log_softmax(out / t, 1), F.softmax(logits / t, 1), reduction="batchmean")
        loss = alpha * t * t * soft + (1 - alpha) * F.cross_entropy(out, y)
        loss = loss + 0.5 * F.mse_loss(F.linear(mine, linear), layer)
        losses.append(loss.item())
        optim.zero_grad()
        loss.backward()
        optim.step()
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    out = {n: p.detach().contiguous() for n, p in zip(names, student)}
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(out, f"{here}/distill.safetensors")


if __name__ == "__main__":
    main()
