"""Makes resnet.safetensors: a ResNet-20 in f64, its logits, gradients, running statistics, losses.

    python3 tests/golden/make_resnet_goldens.py    (PyTorch, NumPy, safetensors)

Parameters and images are made by `spread`, which golden.h has, too. Of each gradient and
statistic every k-th element is stored, at most 64.
"""
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

IMAGES, SIDE, STEPS, SAMPLES = 4, 16, 20, 64


def spread(n, stream):
    """n numbers in [-1, 1): a hash of their index in 32 bits."""
    h = np.arange(1, n + 1, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(stream * 40503)
    h ^= h >> np.uint32(15)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    return torch.from_numpy(h.astype(np.float64) / 2.0**31 - 1.0)


def conv_norm(to, channels, kernel, stride):
    return [nn.Conv2d(to, channels, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(channels)]


class Block(nn.Module):
    """As mlc_nn_basic_block."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.body = nn.Sequential(*conv_norm(channels, out, 3, stride), nn.ReLU(),
                                  *conv_norm(out, out, 3, 1))
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(channels, out, 1,
                                                                            stride))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet20():
    blocks = [Block(16 if i < 4 else 32 if i < 7 else 64, 16 << i // 3, 2 if i in (3, 6) else 1)
              for i in range(9)]
    net = nn.Sequential(*conv_norm(3, 16, 3, 1), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1),
                        nn.Flatten(), nn.Linear(64, 10)).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            scale = 0.2 if p.ndim == 1 else (3.0 / p[0].numel()) ** 0.5
            p.copy_(spread(p.numel(), i + 1).reshape(p.shape) * scale + (p.ndim == 1) * 0.5)
    return net


def sampled(t):
    return t.detach().flatten()[::-(-t.numel() // SAMPLES)].clone()


def main():
    torch.manual_seed(0)
    net, out = resnet20(), {}
    x = spread(IMAGES * 3 * SIDE * SIDE, 0).reshape(IMAGES, 3, SIDE, SIDE)
    y = torch.arange(IMAGES) % 10
    optim = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    losses = []
    for step in range(STEPS):
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        losses.append(loss.item())
        optim.zero_grad()
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().clone()
            for i, p in enumerate(net.parameters()):
                out[f"grad.{i}"] = sampled(p.grad)
            for i, b in enumerate(b for b in net.buffers() if b.ndim == 1):
                out[f"stat.{i}"] = sampled(b)
        optim.step()
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    net.eval()
    out["eval"] = net(x).detach()
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(out, os.path.join(here, "resnet.safetensors"))
    print(losses)


if __name__ == "__main__":
    main()
