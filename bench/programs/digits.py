# digits.py -- the README's first program, by PyTorch
#
#   run     python3 bench/programs/digits.py                 from the folder of mlcore.h
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.from_numpy(np.loadtxt("examples/data/digits.csv", delimiter=",", dtype=np.float32))
x, y = data[:, :64] / 16, data[:, 64].long()
loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
loss_of = nn.CrossEntropyLoss()
for epoch in range(20):
    for xb, yb in loader:
        opt.zero_grad()
        loss_of(net(xb), yb).backward()
        opt.step()
with torch.no_grad():
    right = net(x[1500:]).argmax(1) == y[1500:]
print(f"{100 * right.float().mean():.1f} % of {len(right)} new digits are right")
