# resume.py -- examples/tasks/resume.c by PyTorch; a run that Ctrl-C has stopped goes on at the end
# of the last whole epoch
#   run     python3 bench/tasks/resume.py                    from the folder of mlcore.h
import copy
import os
import signal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.from_numpy(np.loadtxt("examples/data/digits.csv", delimiter=",", dtype=np.float32))
x, y = data[:, :64] / 16, data[:, 64].long()
train_loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[1500:], y[1500:]), batch_size=99)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
epoch, best, best_epoch, best_state, stop = 0, float("inf"), 0, None, False
if os.path.exists("runs/last.pt"):
    run = torch.load("runs/last.pt")
    net.load_state_dict(run["net"])
    optimizer.load_state_dict(run["optimizer"])
    torch.set_rng_state(run["rng"])
    epoch, best, best_epoch, best_state = run["progress"]


def on_signal(number, frame):
    global stop
    stop = True


signal.signal(signal.SIGINT, on_signal)
while epoch < 40 and epoch - best_epoch < 10 and not stop:
    net.train()
    total = 0
    for xb, yb in train_loader:
        loss = loss_fn(net(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    net.eval()
    val_loss, right = 0, 0
    with torch.no_grad():
        for xb, yb in val_loader:
            output = net(xb)
            val_loss += loss_fn(output, yb).item() * len(xb) / 297
            right += (output.argmax(1) == yb).sum().item()
    epoch += 1
    with open("runs/log.csv", "a") as log:
        log.write(f"{epoch},{total / 1500},{val_loss},{right / 297}\n")
    if val_loss < best:
        best, best_epoch, best_state = val_loss, epoch, copy.deepcopy(net.state_dict())
    run = {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "progress": (epoch, best, best_epoch, best_state),
    }
    torch.save(run, "runs/new.pt")
    os.replace("runs/new.pt", "runs/last.pt")
if stop:
    print("stopped; start it again, and it goes on")
else:
    net.load_state_dict(best_state)
    torch.save(best_state, "runs/best.pt")
    with torch.no_grad():
        accuracy = (net(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    print(f"best: val_loss {best:.3f}, accuracy {accuracy:.3f}")
    print("wrote runs/best.pt, runs/log.csv")
