# text.py -- examples/tasks/text.c by PyTorch
#   run     python3 bench/tasks/text.py
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, random_split

words = [["bad", "awful", "poor", "dreadful"], ["good", "great", "lovely", "superb"]]
things = ["film", "book", "meal", "play", "song"]
data = []
for i in range(400):
    form = "what a {}, so very {} indeed" if i // 2 % 3 == 0 else "the {} was {}"
    text = form.format(things[i // 2 % 5], words[i % 2][i // 10 % 4])
    data.append((torch.tensor(list(text.encode())), i % 2))


def collate(batch):
    texts, labels = zip(*batch)
    lengths = torch.tensor([len(text) for text in texts])
    return pad_sequence(texts, batch_first=True), lengths, torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, x, lengths):
        x = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(x)
        return self.head(h[0])


train_data, val_data = random_split(data, [0.8, 0.2])
train_loader = DataLoader(train_data, batch_size=16, shuffle=True, collate_fn=collate)
val_loader = DataLoader(val_data, batch_size=16, collate_fn=collate)
net = Classifier()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(6):
    net.train()
    total = 0
    for x, lengths, y in train_loader:
        loss = loss_fn(net(x, lengths), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    net.eval()
    right = 0
    with torch.no_grad():
        for x, lengths, y in val_loader:
            right += (net(x, lengths).argmax(1) == y).sum().item()
    loss, accuracy = total / len(train_data), right / len(val_data)
    print(f"epoch {epoch + 1}/6  loss {loss:.4f}  val_accuracy {accuracy:.4f}")
