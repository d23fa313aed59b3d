# finetune.py -- examples/tasks/finetune.c by PyTorch
#   run     python3 bench/tasks/finetune.py                  from the folder of mlcore.h; reads or
#           writes pretrained.pt
import os
from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network(classes):
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(32, classes)))


def fit(net, rate, x, y, epochs):
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=rate)
    for epoch in range(epochs):
        for xb, yb in loader:
            loss = loss_fn(net(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def accuracy(net, x, y):
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


def rename(state, names):
    for old, new in names:
        state = {k.replace(old, new): v for k, v in state.items()}
    return state


path = "pretrained.pt"
data = torch.from_numpy(np.loadtxt("examples/data/digits.csv", delimiter=",", dtype=np.float32))
x, y = data[:, :64] / 16, data[:, 64].long()
if not os.path.exists(path):
    net = network(5)
    fit(net, 3e-3, x[:1350], y[:1350] // 2, 20)
    torch.save(rename(net.state_dict(), [("body", "features"), ("head", "classifier")]), path)
    print("wrote", path)

net = network(10)
state = rename(torch.load(path), [("features", "body"), ("classifier", "head")])
state = {k: v for k, v in state.items() if not k.startswith("head")}
net.load_state_dict(state, strict=False)
net.body.requires_grad_(False)
fit(net, 1e-2, x[1350:1500], y[1350:1500], 20)
print(f"head trained: accuracy {accuracy(net, x[1500:], y[1500:]):.2f}")
net.requires_grad_(True)
fit(net, 1e-3, x[1350:1500], y[1350:1500], 20)
print(f"all trained:  accuracy {accuracy(net, x[1500:], y[1500:]):.2f}")
