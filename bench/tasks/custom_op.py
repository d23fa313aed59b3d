# custom_op.py -- examples/tasks/custom_op.c by PyTorch
#   run     python3 bench/tasks/custom_op.py
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Snake(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x + x.sin() ** 2

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * (1 + (2 * x).sin())


class SnakeLayer(nn.Module):
    def forward(self, x):
        return Snake.apply(x)


probe = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
right = torch.autograd.gradcheck(Snake.apply, probe, raise_exception=False)
x = torch.linspace(-6, 6, 256).unsqueeze(1)
y = torch.sin(2 * x)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(1, 32), SnakeLayer(), nn.Linear(32, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(100):
    for xb, yb in loader:
        loss = loss_fn(net(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    loss = loss_fn(net(x), y).item()
print(f"gradient {'right' if right else 'wrong'}, loss {loss:.4f}")
