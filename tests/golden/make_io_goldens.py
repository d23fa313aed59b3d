"""Writes tests/golden/io_python.safetensors with the reference library, and reads files of ours.

    python3 tests/golden/make_io_goldens.py             write the golden file
    python3 tests/golden/make_io_goldens.py FILE        read FILE with the reference and list it

Needs numpy and safetensors (made with safetensors 0.8.0). `make test` needs neither: the file is
stored. The values are repeated in tests/test_io.c.
"""
import os
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "io_python.safetensors")


def tensors():
    return {
        "f32": np.array([[0, 0.5, 1], [1.5, 2, -2.5]], np.float32),
        "layer.0.f64": np.array([0.1, 1e300, -5e-324], np.float64),
        "i64": np.array([[1, -2], [3, 4503599627370497]], np.int64),
        'scalar "\u03c0"\n': np.array(3.141592653589793, np.float64),
        "empty": np.zeros((0, 4), np.float32),
        "na\u00efve": np.array([[[7]]], np.float32),
    }


def main():
    if len(sys.argv) > 1:
        for name, t in load_file(sys.argv[1]).items():
            print(repr(name), t.dtype, t.shape, t.ravel()[:4])
        return
    save_file(tensors(), GOLDEN, metadata={"made by": "safetensors"})
    print("wrote", GOLDEN)


if __name__ == "__main__":
    main()
