# spiral.py -- examples/tasks/spiral.c by PyTorch and matplotlib
#   run     python3 bench/tasks/spiral.py                    writes spiral.svg
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

n = 200


def points():
    t = torch.linspace(1, 10, n)
    one = torch.stack([t * t.cos(), t * t.sin()], 1) * 0.2
    x = torch.cat([one, -one]) + 0.05 * torch.randn(2 * n, 2)
    return DataLoader(TensorDataset(x, torch.arange(2).repeat_interleave(n)), 32, shuffle=True)


train_loader, val_loader = points(), points()
net = nn.Sequential(
    nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
history = []
for epoch in range(60):
    total, val_loss, right = 0, 0, 0
    for x, y in train_loader:
        loss = loss_fn(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    with torch.no_grad():
        for x, y in val_loader:
            output = net(x)
            val_loss += loss_fn(output, y).item() * len(x)
            right += (output.argmax(1) == y).sum().item()
    accuracy = right / (2 * n)
    history.append((total / (2 * n), val_loss / (2 * n), accuracy))
figure, axes = plt.subplots(1, 2)
loss, val_loss, val_accuracy = zip(*history)
axes[0].plot(loss, label="loss")
axes[0].plot(val_loss, label="val_loss")
axes[1].plot(val_accuracy, label="val_accuracy")
for ax in axes:
    ax.legend()
figure.savefig("spiral.svg")
print(f"accuracy {accuracy:.2f} of points that it has not seen; wrote spiral.svg")
