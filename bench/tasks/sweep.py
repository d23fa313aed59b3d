# sweep.py -- examples/tasks/sweep.c by PyTorch, pandas and scikit-learn, one trial at a time
#   run     python3 bench/tasks/sweep.py                     from the folder of mlcore.h; writes
#           sweep.csv
import itertools

import pandas as pd
import torch
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = pd.read_csv("examples/data/breast_cancer.csv", comment="#").to_numpy()
x, y = data[:, :30], data[:, 30]
folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y))


def trial(lr, width, fold):
    train, held_out = folds[fold]
    scale = StandardScaler().fit(x[train])
    tx, ty = torch.tensor(scale.transform(x)).float(), torch.tensor(y).long()
    loader = DataLoader(TensorDataset(tx[train], ty[train]), batch_size=32, shuffle=True)
    net = nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 2))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    for epoch in range(10):
        for xb, yb in loader:
            loss = loss_fn(net(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return (net(tx[held_out]).argmax(1) == ty[held_out]).float().mean().item()


rows = [
    {"lr": lr, "width": width, "fold": fold, "accuracy": trial(lr, width, fold)}
    for lr, width, fold in itertools.product([1e-4, 1e-3, 1e-2], [4, 16, 64], range(5))
]
table = pd.DataFrame(rows)
table.to_csv("sweep.csv", index=False)
points = table.groupby(["lr", "width"])["accuracy"].agg(["mean", "std"])
print(points.sort_values("mean", ascending=False))
print("wrote sweep.csv")
