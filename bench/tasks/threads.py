# threads.py -- examples/tasks/threads.c by PyTorch, whose threads share the network itself
#   run     python3 bench/tasks/threads.py                   from the folder of mlcore.h
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

workers = 4
data = torch.from_numpy(np.loadtxt("examples/data/digits.csv", delimiter=",", dtype=np.float32))
x, y = data[:, :64] / 16, data[:, 64].long()
loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(10):
    for xb, yb in loader:
        loss = loss_fn(net(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()


@torch.inference_mode()
def predict(pixels):
    return net(pixels.unsqueeze(0)).argmax(1).item()


with ThreadPoolExecutor(workers) as pool:
    answer = list(pool.map(predict, x[1500:]))
right = sum(a == b for a, b in zip(answer, y[1500:].tolist()))
print(f"{workers} threads, {len(answer)} requests, {right} right")
