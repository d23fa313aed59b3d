#!/usr/bin/env python3
"""Writes tests/golden/onnx_networks.safetensors: what ONNX Runtime computes of files of mlc_onnx_save.

Needs onnx, onnxruntime, numpy and safetensors; run once, the results are committed:
    MLC_TEST_OUT=FOLDER build/tests --filter onnx_save.networks_of
    python3 tests/golden/make_onnx_network_goldens.py FOLDER
Of each network.NAME.onnx or integers.NAME.onnx with its inputs x0, x1, .. in a .npz beside it these are
NAME.y0, NAME.y1, .. Parameters are those of the test's seeds, so that no file is kept.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
BOOK = {}

for path in sorted(p for what in ("network", "integers")
                   for p in pathlib.Path(sys.argv[1]).glob(what + ".*.onnx")):
    onnx.checker.check_model(onnx.load(path), full_check=True)
    options = ort.SessionOptions()
    for key in ("session.x64quantprecision", "session.qdq_matmulnbits_accuracy_level"):
        options.add_session_config_entry(key, "1")       # see tests/python_runs_onnx.py
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as case:
        outs = session.run(None, {i.name: case[i.name] for i in session.get_inputs()})
    name = path.stem.split(".", 1)[1]
    for i, out in enumerate(outs):
        BOOK[f"{name}.y{i}"] = np.array(out, order="C")

save_file(BOOK, HERE / "onnx_networks.safetensors")
print(len(BOOK), "outputs", sum(a.nbytes for a in BOOK.values()), "bytes")
