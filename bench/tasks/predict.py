# predict.py -- examples/tasks/predict.c by pandas and PyTorch
#   run     python3 bench/tasks/predict.py                   from the folder of mlcore.h
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def columns(table, like, names=None):
    table = pd.get_dummies(table.fillna(like.mean(numeric_only=True)), dtype=float)
    return table if names is None else table.reindex(columns=names, fill_value=0)


known = pd.read_csv("examples/data/houses.csv", comment="#")
asked = pd.read_csv("examples/tasks/predict.csv")
y = torch.tensor(known.pop("price").to_numpy(), dtype=torch.float32).unsqueeze(1)
table = columns(known, known)
mean, std = table.mean(), table.std(ddof=0)
x = torch.tensor(((table - mean) / std).to_numpy(), dtype=torch.float32)
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
torch.save({"net": net.state_dict(), "names": list(table), "mean": mean, "std": std}, "predict.pt")
print("wrote predict.pt")

saved = torch.load("predict.pt", weights_only=False)
table = columns(asked, known, saved["names"])
x = torch.tensor(((table - saved["mean"]) / saved["std"]).to_numpy(), dtype=torch.float32)
net = nn.Linear(x.shape[1], 1)
net.load_state_dict(saved["net"])
with torch.no_grad():
    price = net(x)
for row, p in zip(asked.itertuples(), price):
    print(f"{row.city}, {row.size} m2: {p.item():.0f}")
