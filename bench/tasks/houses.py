# houses.py -- examples/tasks/houses.c by pandas and PyTorch
#   run     python3 bench/tasks/houses.py                    from the folder of mlcore.h
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

table = pd.read_csv("examples/data/houses.csv", comment="#")
y = torch.tensor(table.pop("price").to_numpy(), dtype=torch.float32).unsqueeze(1)
table = pd.get_dummies(table.fillna(table.mean(numeric_only=True)), dtype=float)
x = torch.tensor(((table - table.mean()) / table.std(ddof=0)).to_numpy(), dtype=torch.float32)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
net = nn.Linear(x.shape[1], 1)
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1)
for epoch in range(300):
    for xb, yb in loader:
        loss = loss_fn(net(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    r2 = 1 - ((net(x) - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
print(f"{x.shape[1]} columns, R2 {r2.item():.2f}")
