# dqn.py -- examples/tasks/dqn.c by PyTorch
#   run     python3 bench/tasks/dqn.py
import copy
import random
from collections import deque

import torch
from torch import nn

size, batch = 7, 32


def new_game():
    return [0, random.randrange(size), random.randrange(size)]


def move(game, action):
    row, ball, paddle = game
    if 0 <= paddle + action - 1 < size:
        paddle += action - 1
    row += 1
    reward = 0 if row < size - 1 else 1 if ball == paddle else -1
    return [row, ball, paddle], reward


net = nn.Sequential(
    nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
)
target = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loss_fn = nn.HuberLoss()
replay = deque(maxlen=2000)
games, caught, game = 0, 0, new_game()
while games < 1000:
    if random.randrange(800) > games:
        action = random.randrange(3)
    else:
        with torch.no_grad():
            action = net(torch.tensor(game, dtype=torch.float32)).argmax().item()
    after, reward = move(game, action)
    replay.append((game, action, reward, 0 if reward else 0.95, after))
    game = after
    if reward:
        caught += reward > 0
        games += 1
        if games % 200 == 0:
            print(f"{games} games: caught {caught} of 200")
            caught = 0
        game = new_game()
    s, a, r, discount, s2 = zip(*random.choices(replay, k=batch))
    q = net(torch.tensor(s, dtype=torch.float32)).gather(1, torch.tensor(a).unsqueeze(1))
    with torch.no_grad():
        future = target(torch.tensor(s2, dtype=torch.float32)).amax(1)
        goal = torch.tensor(r) + torch.tensor(discount) * future
    loss = loss_fn(q.squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p, source in zip(target.parameters(), net.parameters()):
            p.lerp_(source, 0.01)
