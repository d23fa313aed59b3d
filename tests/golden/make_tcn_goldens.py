"""Makes tcn.safetensors: temporal convolutional networks in f64, as Bai, Kolter and Koltun have
them (arXiv 1803.01271) but for weight norm: outputs, gradients, losses of a training.

    python3 tests/golden/make_tcn_goldens.py    (PyTorch, NumPy, safetensors)

A convolution is padded at both ends and its output cut at the end, as their code does. Parameters,
inputs and dy are made by `spread`, which golden.h has, too.
"""
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

STEPS = 20
# batch, channels in, channels, levels, kernel, steps
CASES = [(2, 3, 5, 3, 3, 17), (1, 4, 4, 2, 2, 1), (3, 1, 8, 4, 2, 40), (2, 9, 9, 1, 7, 9),
         (1, 2, 17, 2, 5, 12), (4, 6, 3, 2, 1, 5), (1, 32, 32, 1, 3, 33), (2, 5, 4, 6, 3, 3)]


def spread(n, stream):
    """n numbers in [-1, 1): a hash of their index in 32 bits."""
    h = np.arange(1, n + 1, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(stream * 40503)
    h ^= h >> np.uint32(15)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    return torch.from_numpy(h.astype(np.float64) / 2.0**31 - 1.0)


class Causal(nn.Conv1d):
    def __init__(self, channels, out, kernel, dilation):
        super().__init__(channels, out, kernel, padding=(kernel - 1) * dilation,
                         dilation=dilation)

    def forward(self, x):
        return super().forward(x)[:, :, :x.shape[2]]


class Block(nn.Module):
    """As mlc_nn_tcn_block, in evaluation."""

    def __init__(self, channels, out, kernel, dilation):
        super().__init__()
        self.body = nn.Sequential(Causal(channels, out, kernel, dilation), nn.ReLU(),
                                  Causal(out, out, kernel, dilation), nn.ReLU())
        self.shortcut = nn.Conv1d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def tcn(channels, out, levels, kernel):
    net = nn.Sequential(*[Block(out if i else channels, out, kernel, 2**i)
                          for i in range(levels)]).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            scale = 0.2 if p.ndim == 1 else (3.0 / p[0].numel()) ** 0.5
            p.copy_(spread(p.numel(), i + 2).reshape(p.shape) * scale)
    return net


def losses(net, x):
    """Of a training towards the input's first channel, four steps ahead."""
    optim, out = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9), []
    target = torch.roll(x[:, :1], -4, 2).expand(-1, 8, -1)
    for _ in range(STEPS):
        loss = F.mse_loss(net(x), target)
        out.append(loss.item())
        optim.zero_grad()
        loss.backward()
        optim.step()
    return torch.tensor(out, dtype=torch.float64)


def main():
    out = {"cases": torch.tensor(CASES, dtype=torch.float64)}
    for i, (b, channels, width, levels, kernel, t) in enumerate(CASES):
        net = tcn(channels, width, levels, kernel)
        x = spread(b * channels * t, 0).reshape(b, channels, t).requires_grad_()
        y = net(x)
        y.backward(spread(y.numel(), 1).reshape(y.shape))
        out[f"{i}.y"], out[f"{i}.dx"] = y.detach().contiguous(), x.grad.contiguous()
        for k, p in enumerate(net.parameters()):
            out[f"{i}.grad.{k}"] = p.grad.contiguous()
        if i == 2:
            out["losses"] = losses(net, x.detach())
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tcn.safetensors")
    save_file(out, path)
    print(path, os.path.getsize(path), "bytes;", out["losses"][0].item(), out["losses"][-1].item())


if __name__ == "__main__":
    main()
