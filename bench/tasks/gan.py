# gan.py -- examples/tasks/gan.c by PyTorch
#   run     python3 bench/tasks/gan.py
import math

import torch
from torch import nn

batch, noise = 128, 8


def real():
    t = torch.randint(0, 8, (batch, 1)) * (2 * math.pi / 8)
    return torch.cat([t.cos(), t.sin()], 1) + 0.05 * torch.randn(batch, 2)


generator = nn.Sequential(
    nn.Linear(noise, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
)
critic = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
loss_fn = nn.BCEWithLogitsLoss()
one, zero = torch.ones(batch, 1), torch.zeros(batch, 1)
for step in range(1000):
    fake = generator(torch.randn(batch, noise))
    loss_c = loss_fn(critic(real()), one) + loss_fn(critic(fake.detach()), zero)
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    loss_g = loss_fn(critic(fake), one)
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 250 == 249:
        print(f"{step + 1}: critic {loss_c.item():.2f}, generator {loss_g.item():.2f}")
with torch.no_grad():
    radius = generator(torch.randn(1000, noise)).norm(dim=1)
print(f"radius {radius.mean().item():.2f} +- {radius.std().item():.2f}")
