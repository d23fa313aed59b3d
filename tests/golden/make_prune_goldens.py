"""Makes prune.safetensors: masks of torch.nn.utils.prune, bool.

    python3 tests/golden/make_prune_goldens.py    (PyTorch, NumPy, safetensors)

Tensor i of SHAPES has numbers of `spread`, which golden.h has, too, with stream i. Names:
unstructured.I.PERCENT; structured.I.AXIS.NORM.PERCENT; global.PERCENT.I, one threshold for all
tensors; two.I, unstructured by 30 % of all and then 25 % of the rest.
"""
import os

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

from make_resnet_goldens import spread

SHAPES = [(7, 9), (16, 5), (4, 3, 3, 3), (12, 2, 2)]
PERCENTS = [0, 25, 30, 50, 90, 100]


class Weight(nn.Module):
    def __init__(self, i):
        super().__init__()
        shape = SHAPES[i]
        self.weight = nn.Parameter(spread(int(np.prod(shape)), i).float().reshape(shape))


def mask(module):
    return module.weight_mask.bool().contiguous()


def main():
    out = {}
    for percent in PERCENTS:
        amount = percent / 100
        for i, shape in enumerate(SHAPES):
            out[f"unstructured.{i}.{percent}"] = mask(
                prune.l1_unstructured(Weight(i), "weight", amount))
            for axis in range(len(shape)):
                for norm in (1, 2):
                    out[f"structured.{i}.{axis}.{norm}.{percent}"] = mask(
                        prune.ln_structured(Weight(i), "weight", amount, n=norm, dim=axis))
        all_of = [Weight(i) for i in range(len(SHAPES))]
        prune.global_unstructured([(w, "weight") for w in all_of],
                                  pruning_method=prune.L1Unstructured, amount=amount)
        for i, w in enumerate(all_of):
            out[f"global.{percent}.{i}"] = mask(w)
    for i in range(len(SHAPES)):
        w = prune.l1_unstructured(Weight(i), "weight", 0.3)
        out[f"two.{i}"] = mask(prune.l1_unstructured(w, "weight", 0.25))
    save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "prune.safetensors"))


main()
