"""Makes lora_llama/, lora_bert/, lora_gpt2/, lora_dora/ and lora.safetensors: adapters of PEFT for the models of
make_language_goldens.py, lora_dora/ of DoRA for that of llama.

    python3 tests/golden/make_lora_goldens.py    (PyTorch, transformers, safetensors, peft)

A folder is as save_pretrained writes it: adapter_config.json and adapter_model.safetensors, f32.
lora.safetensors has of each, computed in f64: the output, and gradients of all factors of the loss of
make_language_goldens.py, under their keys in the file; and of an embedding and a convolution
outputs, gradients and merged weights, "small" and, of DoRA, "small_dora". All factors have values, also those
that start as 0, and magnitudes others than norms.
"""
import json
import os

import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

import make_language_goldens as language

HERE = os.path.dirname(os.path.abspath(__file__))
TARGETS = {
    "llama": (language.llama, ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"], 3, 6.0, False),
    "bert": (language.bert, ["query", "key", "value", "dense"], 2, 5.0, True),
    "gpt2": (language.gpt2, ["c_attn", "c_proj", "c_fc", "wte"], 4, 4.0, False),
    "dora": (language.llama, ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"], 2, 3.0, False),
}


def fill(named):
    """Values that f32 holds, by place, in every factor."""
    with torch.no_grad():
        for i, (name, p) in enumerate(sorted(named)):
            v = (language.targets(p.shape, 3 * i + 1).float() * 0.3).to(p.dtype)
            p.copy_(p.float() * (1.0 + v) if "magnitude" in name else v)


def key(name):
    return name.replace("magnitude_vector.default.weight", "magnitude_vector").replace(".default", "")


def model(name, result):
    make, targets, rank, alpha, stabilized = TARGETS[name]
    base = make().float()
    of = "llama" if name == "dora" else name
    state = load_file(f"{HERE}/{of}.safetensors")
    missing, unexpected = base.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in m or "position_ids" in m for m in missing), missing
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets,
                             use_rslora=stabilized, lora_dropout=0.0, use_dora=name == "dora")
    net = peft.get_peft_model(base, config)
    fill([(n, p) for n, p in net.named_parameters() if "lora_" in n])
    folder = f"{HERE}/lora_{name}"
    net.save_pretrained(folder)
    readme = os.path.join(folder, "README.md")
    if os.path.exists(readme):
        os.remove(readme)
    text = os.path.join(folder, "adapter_config.json")
    kept = json.load(open(text))
    kept["base_model_name_or_path"] = None
    kept["target_modules"] = sorted(kept["target_modules"])
    json.dump(kept, open(text, "w"), indent=2, sort_keys=True)
    net = net.double()
    y, loss = language.run(of, net)
    loss.backward()
    result[f"{name}.y"] = y[0].detach().contiguous()
    for n, p in net.named_parameters():
        if "lora_" in n:
            assert p.grad is not None and p.grad.abs().sum() > 0, n
            result[f"{name}:{key(n)}"] = p.grad.contiguous()


class Small(torch.nn.Module):
    """Tokens [2,5,4] as images of their embeddings, and a convolution with strides and padding."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(9, 4)
        self.conv = torch.nn.Conv2d(2, 5, 3, stride=2, padding=1)

    def forward(self, index):
        return self.conv(self.table(index))


def small(result, what, dora):
    torch.manual_seed(3)
    net = peft.get_peft_model(Small().double(), peft.LoraConfig(
        r=2, lora_alpha=3.0, target_modules=["table", "conv"], use_dora=dora), autocast_adapter_dtype=False)
    fill(list(net.named_parameters()))
    index = (torch.arange(2 * 2 * 5) * 5 % 9).view(2, 2, 5)
    y = net(index)
    F.mse_loss(y, language.targets(y.shape, 7)).backward()
    result[f"{what}.y"] = y.detach().contiguous()
    for n, p in net.named_parameters():
        result[f"{what}:{key(n)}"] = p.detach().clone()
        if "lora_" in n:
            result[f"{what}.grad:{key(n)}"] = p.grad.contiguous()
    net.merge_adapter()
    for n, p in net.named_parameters():
        if "base_layer.weight" in n:
            result[f"{what}.merged:{key(n)}"] = p.detach().clone()


def main():
    result = {}
    for name in TARGETS:
        torch.manual_seed(5)
        model(name, result)
    small(result, "small", False)
    small(result, "small_dora", True)
    save_file(result, f"{HERE}/lora.safetensors")


if __name__ == "__main__":
    main()
