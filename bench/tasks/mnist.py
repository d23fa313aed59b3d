# mnist.py -- examples/tasks/mnist.c by PyTorch and torchvision, which reads the files in
# data/MNIST/raw
#   run     python3 bench/tasks/mnist.py
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST
from torchvision.transforms import v2

scale = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1307], [0.3081])]
move = [v2.RandomAffine(10, translate=(0.07, 0.07))]
train_data = MNIST("data", train=True, transform=v2.Compose(move + scale))
test_data = MNIST("data", train=False, transform=v2.Compose(scale))
train_loader = DataLoader(train_data, batch_size=64, shuffle=True)
test_loader = DataLoader(test_data, batch_size=64)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 7 * 7, 10)
)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
for epoch in range(3):
    net.train()
    total = 0
    for x, y in train_loader:
        loss = loss_fn(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    net.eval()
    right = 0
    with torch.no_grad():
        for x, y in test_loader:
            right += (net(x).argmax(1) == y).sum().item()
    loss, accuracy = total / len(train_data), right / len(test_data)
    print(f"epoch {epoch + 1}/3  loss {loss:.4f}  val_accuracy {accuracy:.4f}")
