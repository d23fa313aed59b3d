#!/usr/bin/env python3
"""Writes tests/golden/torch_{adamw,sgd}.safetensors and torch_resume.safetensors.

Needs torch and safetensors; run once from anywhere, the results are committed:
    python3 tests/golden/make_optim_state_goldens.py
torch_<rule>: the state of an optimizer after 5 steps, as mlc_optim_load's comment has it.
torch_resume: x and y of a batch; <rule>.5.<name> and <rule>.8.<name>, parameters after 5 and 8
steps on the mean of the squares of net(x) - y.
"""
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
RULES = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
}


def save(name, tensors):
    note = f"tests/golden/make_optim_state_goldens.py, torch {torch.__version__}"
    save_file(tensors, HERE / name, metadata={"made_by": note})
    (HERE / name).chmod(0o644)


def main():
    book = {}
    for rule, make in RULES.items():
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        x, y = torch.randn(6, 4), torch.randn(6, 3)
        opt = make(net.parameters())
        for step in range(1, 9):
            opt.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            opt.step()
            if step in (5, 8):
                book |= {f"{rule}.{step}.{k}": v.clone() for k, v in net.state_dict().items()}
            if step == 5:
                save(f"torch_{rule}.safetensors",
                     {f"state.{i}.{k}": v.clone() for i, s in opt.state_dict()["state"].items()
                      for k, v in s.items() if torch.is_tensor(v)})
        book |= {"x": x, "y": y}
    save("torch_resume.safetensors", book)


main()
