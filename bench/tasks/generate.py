# generate.py -- examples/tasks/generate.c by PyTorch; with learned places, and without a cache
#   run     python3 bench/tasks/generate.py
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

context = 32
rhyme = """How much wood would a woodchuck chuck
if a woodchuck could chuck wood?
He would chuck, he would, as much as he could,
and chuck as much wood as a woodchuck would
if a woodchuck could chuck wood.
"""


class GPT(nn.Module):
    def __init__(self, vocab, width, heads, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), False)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x):
        t = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        x = self.embed(x) + self.positions(torch.arange(t))
        return self.head(self.layers(x, mask=mask, is_causal=True))


text = torch.tensor(list(rhyme.encode()))
x, y = text[:-1].unfold(0, context, 1), text[1:].unfold(0, context, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
net = GPT(256, 32, 2, 2)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
for epoch in range(16):
    for xb, yb in loader:
        loss = loss_fn(net(xb).flatten(0, 1), yb.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
tokens = list(b"How much")
print("How much", end="")
with torch.no_grad():
    for step in range(200):
        logits = net(torch.tensor([tokens[-context:]]))[0, -1]
        tokens.append(torch.multinomial((logits / 0.8).softmax(0), 1).item())
        print(chr(tokens[-1]), end="")
print()
