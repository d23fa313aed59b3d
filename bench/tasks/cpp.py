# cpp.py -- examples/tasks/cpp.cpp by PyTorch
#   run     python3 bench/tasks/cpp.py                       from the folder of mlcore.h
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = torch.from_numpy(np.loadtxt("examples/data/digits.csv", delimiter=",", dtype=np.float32))
x, y = data[:, :64] / 16, data[:, 64].long()
train_loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(1, 11):
    net.train()
    for xb, yb in train_loader:
        loss = loss_fn(net(xb), yb)
        for p in net.parameters():
            loss = loss + 1e-4 * p.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        right = (net(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    print(f"epoch {epoch:2}: accuracy {right:.3f}")
