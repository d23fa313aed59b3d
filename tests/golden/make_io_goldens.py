"""Writes the files of tests/golden that other programs made, and reads files of ours.

    python3 tests/golden/make_io_goldens.py             write the golden files
    python3 tests/golden/make_io_goldens.py FILE        read FILE with the reference and list it

Needs numpy, safetensors and torch (made with numpy 2.4.6, safetensors 0.8.0, torch 2.15.0).
`make test` needs none of them: the files are stored. The values are repeated in tests/test_io.c,
test_npy.c and test_state.c; those of io_bits.* are a function of their index, see test_bits.c.
"""
import os
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from python_reads_ours import KINDS, bits  # noqa: E402

DTYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "f16": np.float16,
          "i32": np.int32, "i8": np.int8, "u8": np.uint8, "bool": np.bool_}


def path(name):
    return os.path.join(HERE, name)


def tensors():
    return {
        "f32": np.array([[0, 0.5, 1], [1.5, 2, -2.5]], np.float32),
        "layer.0.f64": np.array([0.1, 1e300, -5e-324], np.float64),
        "i64": np.array([[1, -2], [3, 4503599627370497]], np.int64),
        'scalar "\u03c0"\n': np.array(3.141592653589793, np.float64),
        "empty": np.zeros((0, 4), np.float32),
        "na\u00efve": np.array([[[7]]], np.float32),
    }


def every_dtype():
    """[2,3] of 0, 1, 2, ... in each dtype; bool 0 1 0 1 ..."""
    values = np.arange(6).reshape(2, 3)
    return {n: (values % 2 if n == "bool" else values).astype(t) for n, t in DTYPES.items()}


class Encoder(torch.nn.Module):
    """Names such as encoder.layers.0.weight."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Module()
        self.encoder.layers = torch.nn.ModuleList([torch.nn.Linear(5, 6), torch.nn.Linear(6, 4)])
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.encoder.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def state_dicts():
    torch.manual_seed(7)
    x = torch.rand(4, 5) * 2 - 1
    plain = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    nested = Encoder()
    torch_save(plain.state_dict(), path("torch_sequential.safetensors"))
    torch_save(nested.state_dict(), path("torch_nested.safetensors"))
    half = {"module." + k: v.to(torch.bfloat16) for k, v in plain.state_dict().items()}
    torch_save(half, path("torch_bf16.safetensors"))
    back = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    back.load_state_dict({k[7:]: v.float() for k, v in half.items()})
    torch_save({"x": x, "plain": plain(x).detach(), "nested": nested(x).detach(),
                "bf16": back(x).detach()}, path("torch_outputs.safetensors"))


def every_bit():
    """All bits of all dtypes: by torch as safetensors, by numpy as npz in both orders."""
    values, arrays = {}, {}
    for kind, (shape, n) in KINDS.items():
        for name in list(DTYPES) + ["bf16"]:
            dtype = getattr(torch, {"f32": "float32", "f64": "float64", "i64": "int64",
                                    "f16": "float16", "i32": "int32", "i8": "int8", "u8": "uint8",
                                    "bool": "bool", "bf16": "bfloat16"}[name])
            data = torch.tensor(list(bits(name, n)), dtype=torch.uint8)
            values[name + kind] = data.view(dtype).reshape(shape)
            if name == "bf16":
                continue
            a = np.frombuffer(bits(name, n), DTYPES[name]).reshape(shape)
            arrays[name + kind] = a
            if kind == "":
                arrays[name + ".order"] = np.asfortranarray(a)
                arrays[name + ".big"] = a.byteswap().view(a.dtype.newbyteorder(">"))
    torch_save(values, path("io_bits.safetensors"), metadata={"format": "pt"})
    np.savez(path("io_bits.npz"), **arrays)


def main():
    if len(sys.argv) > 1:
        for name, t in load_file(sys.argv[1]).items():
            print(repr(name), t.dtype, t.shape, t.ravel()[:4])
        return
    save_file(tensors(), path("io_python.safetensors"), metadata={"made by": "safetensors"})
    values = {n: torch.from_numpy(t) for n, t in every_dtype().items()}
    values["bf16"] = torch.arange(6).reshape(2, 3).to(torch.bfloat16)
    torch_save(values, path("io_dtypes.safetensors"), metadata={"made by": "torch", "k\u00e9y": "v"})
    arrays = dict(every_dtype())
    arrays["order"] = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    arrays["big"] = np.arange(6).reshape(2, 3).astype(">f4")
    arrays["scalar"] = np.float64(2.5)
    arrays["empty"] = np.zeros((0, 4), np.float32)
    arrays["u16"] = np.array([0, 65535], np.uint16)
    arrays["i16"] = np.array([-32768, 32767], np.int16)
    arrays["u32"] = np.array([0, 4294967295], np.uint32)
    np.savez(path("io_numpy.npz"), **arrays)
    np.savez_compressed(path("io_packed.npz"), zeros=np.zeros((40, 50)), ramp=np.arange(1000))
    every_bit()
    state_dicts()


if __name__ == "__main__":
    main()
