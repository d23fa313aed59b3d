# autoencoder.py -- examples/tasks/autoencoder.c by PyTorch
#   run     python3 bench/tasks/autoencoder.py               from the folder of mlcore.h
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


def draw(digits):
    for row in digits.reshape(2, 8, 8).transpose(0, 1):
        rows = ["".join("##" if v > 0.6 else "::" if v > 0.3 else ".." for v in r) for r in row]
        print("   ".join(rows))


data = torch.from_numpy(np.loadtxt("examples/data/digits.csv", delimiter=",", dtype=np.float32))
x = data[:, :64] / 16
train, test = x[:1500], x[1500:]
loader = DataLoader(train, batch_size=32, shuffle=True)
encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
net = nn.Sequential(encoder, decoder)
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(40):
    for xb in loader:
        loss = loss_fn(net(xb), xb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    code = encoder(test)
    again = decoder(code)
draw(torch.stack([test[0], again[0]]))
print(
    f"{test.shape[1]} pixels, {code.shape[1]} numbers; mean squared error "
    f"{loss_fn(again, test).item():.3f}, of the mean image {test.var(0, correction=0).mean():.3f}"
)
