# module.py -- examples/tasks/module.c by PyTorch
#   run     python3 bench/tasks/module.py
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RBF(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.center = nn.Parameter(torch.empty(n_out, n_in).uniform_(-2, 2))
        self.scale = nn.Parameter(torch.ones(n_out, 1))

    def forward(self, x):
        return torch.exp(-((x.unsqueeze(1) - self.center) * self.scale).square().sum(2))


def rings():
    x = torch.rand(512, 2) * 4 - 2
    y = torch.sin(3 * x.norm(dim=1, keepdim=True))
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


net = nn.Sequential(RBF(2, 32), nn.Linear(32, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
train_loader, val_loader = rings(), rings()
for epoch in range(60):
    total, val_loss = 0, 0
    for x, y in train_loader:
        loss = loss_fn(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    with torch.no_grad():
        for x, y in val_loader:
            val_loss += loss_fn(net(x), y).item() * len(x)
print(f"loss {total / 512:.3f}, val_loss {val_loss / 512:.3f}")
