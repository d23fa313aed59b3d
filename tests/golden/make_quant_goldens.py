#!/usr/bin/env python3
"""Writes quant.safetensors: weights and activations as integers, and layers with them, by PyTorch
and ONNX Runtime. Run with

    pip install torch==2.15.0 onnxruntime==1.32.0 onnx==1.23.2 safetensors==0.8.0 numpy==2.4.6
    python3 tests/golden/make_quant_goldens.py

torch.ao.quantization is deprecated: this version has it. PyTorch's dynamic layers take activations
of 7 bits (reduce_range, its default on x86). Where a CPU has no VNNI, ONNX Runtime's MatMulInteger
saturates pair sums: outputs are those of ONNX's reference evaluator, which computes by the
operators' definitions, and of ONNX Runtime for weights of 7 bits, where nothing saturates."""
import os
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import torch.ao.nn.quantized.dynamic
import torch.ao.quantization as quantization
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.numpy import save_file

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
IN, OUT, ROWS = 70, 33, 9
result = {}


def put(name, value):
    result[name] = np.ascontiguousarray(value)


def weights():
    """Matrices with the cases that differ between conventions."""
    rng = np.random.default_rng(7)
    w = rng.normal(size=(OUT, IN)).astype(np.float32)
    yield "normal", w
    zero = w.copy()
    zero[3] = 0
    zero[5, :] = 0.25
    yield "zero_row", zero
    yield "zeros", np.zeros((2, IN), np.float32)
    yield "plus", np.abs(w[:4]) + 1
    yield "one", np.full((1, 2), -3, np.float32)
    halves = np.arange(-16, 16, dtype=np.float32).reshape(2, 16) / 2
    yield "halves", halves


def torch_weights():
    """MinMaxObserver and PerChannelMinMaxObserver, symmetric and affine."""
    cases = [
        ("torch", quantization.MinMaxObserver(dtype=torch.qint8,
                                              qscheme=torch.per_tensor_symmetric), True),
        ("torch_rows", quantization.PerChannelMinMaxObserver(
            dtype=torch.qint8, qscheme=torch.per_channel_symmetric), False),
        ("torch_affine", quantization.MinMaxObserver(dtype=torch.quint8,
                                                     qscheme=torch.per_tensor_affine), True)]
    for name, w in weights():
        for kind, observer, single in cases:
            observer.reset_min_max_vals()
            observer(torch.from_numpy(w))
            scale, zero = observer.calculate_qparams()
            t = torch.from_numpy(w)
            q = (torch.quantize_per_tensor(t, scale.item(), zero.item(), observer.dtype) if single
                 else torch.quantize_per_channel(t, scale, zero, 0, observer.dtype))
            put(f"{kind}.{name}.q", q.int_repr().numpy())
            put(f"{kind}.{name}.scale", scale.numpy().astype(np.float32).reshape(-1))
            put(f"{kind}.{name}.zero", zero.numpy().astype(np.int32).reshape(-1))
        put(f"w.{name}", w)


def linear_model(w, b):
    nodes = [helper.make_node("MatMul", ["x", "W"], ["t"]),
             helper.make_node("Add", ["t", "B"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, w.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, w.shape[0]])],
        [numpy_helper.from_array(np.ascontiguousarray(w.T), "W"), numpy_helper.from_array(b, "B")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def onnx_quantized(w, b, per_channel, reduce_range=False):
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "m.onnx"), os.path.join(folder, "q.onnx")
        onnx.save(linear_model(w, b), path)
        quantize_dynamic(path, out, per_channel=per_channel, reduce_range=reduce_range,
                         weight_type=QuantType.QInt8)
        return onnx.load(out)


def onnx_weights():
    for name, w in weights():
        for kind, per_channel in (("onnx", False), ("onnx_rows", True)):
            model = onnx_quantized(w, np.zeros(w.shape[0], np.float32), per_channel)
            init = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
            put(f"{kind}.{name}.q", init["W_quantized"].T)
            put(f"{kind}.{name}.scale", init["W_scale"].astype(np.float32).reshape(-1))
            put(f"{kind}.{name}.zero", init["W_zero_point"].astype(np.int32).reshape(-1))


def activations():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(ROWS, IN)).astype(np.float32)
    cases = {"normal": x, "zeros": np.zeros(5, np.float32), "plus": np.abs(x[0]) + 1,
             "minus": -np.abs(x[1]) - 1, "one": np.full(1, 2.5, np.float32),
             "small": x[2] * 1e-6, "mixed": x[3] * np.float32(37.5) + 11,
             "onnx": np.array([0, 2, -3, -2.5], np.float32)}
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("q", TensorProto.UINT8, None),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
         helper.make_tensor_value_info("z", TensorProto.UINT8, [])])
    session = onnxruntime.InferenceSession(helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    for name, v in cases.items():
        put(f"x.{name}", v)
        q, s, z = session.run(None, {"x": v})
        put(f"dynamic.onnx.{name}.q", q)
        put(f"dynamic.onnx.{name}.scale", s.reshape(1))
        put(f"dynamic.onnx.{name}.zero", z.astype(np.int32).reshape(1))
        for kind, reduced in (("torch", True), ("torch_full", False)):
            t = torch.from_numpy(v)
            s, z = torch._choose_qparams_per_tensor(t, reduced)
            q = torch.quantize_per_tensor(t, s, z, torch.quint8).int_repr().numpy()
            put(f"dynamic.{kind}.{name}.q", np.minimum(q, 127) if reduced else q)
            put(f"dynamic.{kind}.{name}.scale", np.array([s], np.float32))
            put(f"dynamic.{kind}.{name}.zero", np.array([z], np.int32))
    return x


def layers(x):
    torch.manual_seed(3)
    linear = torch.nn.Linear(IN, OUT)
    put("linear.weight", linear.weight.detach().numpy())
    put("linear.bias", linear.bias.detach().numpy())
    dynamic = quantization.quantize_dynamic(torch.nn.Sequential(linear), {torch.nn.Linear},
                                            dtype=torch.qint8)
    with torch.no_grad():
        put("linear.torch", dynamic(torch.from_numpy(x)).numpy())
    w, b = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    for kind, per_channel in (("onnx", False), ("onnx_rows", True)):
        model = onnx_quantized(w, b, per_channel)
        put(f"linear.{kind}", ReferenceEvaluator(model).run(None, {"x": x})[0])
    # 7 bits: nothing saturates, so the runtime itself can be asked.
    model = onnx_quantized(w, b, False, True)
    runtime = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    reference = ReferenceEvaluator(model).run(None, {"x": x})[0]
    assert np.abs(runtime - reference).max() < 1e-5
    for kind in ("lstm", "gru"):
        make = torch.nn.LSTM if kind == "lstm" else torch.nn.GRU
        rnn = make(13, 24, num_layers=2, batch_first=True)
        for name, p in rnn.named_parameters():
            put(f"{kind}.{name}", p.detach().numpy())
        seq = torch.randn(3, 5, 13)
        put(f"{kind}.x", seq.numpy())
        q = quantization.quantize_dynamic(torch.nn.Sequential(rnn), {make}, dtype=torch.qint8)
        with torch.no_grad():
            y, state = q(seq)
        put(f"{kind}.y", y.numpy())
        put(f"{kind}.h", (state[0] if kind == "lstm" else state).numpy())
        if kind == "lstm":
            put("lstm.c", state[1].numpy())


def conv_model(conv, x):
    """The convolution as a graph, quantized: DynamicQuantizeLinear, ConvInteger, scales, bias."""
    w, b = conv.weight.detach().numpy(), conv.bias.detach().numpy()
    axes = w.ndim - 2
    node = helper.make_node("Conv", ["x", "W", "B"], ["y"], strides=list(conv.stride),
                            pads=list(conv.padding) * 2, dilations=list(conv.dilation),
                            group=conv.groups, kernel_shape=list(w.shape[2:]))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * (axes + 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (axes + 2))],
        [numpy_helper.from_array(w, "W"), numpy_helper.from_array(b, "B")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "m.onnx"), os.path.join(folder, "q.onnx")
        onnx.save(model, path)
        quantize_dynamic(path, out, weight_type=QuantType.QInt8, op_types_to_quantize=["Conv"])
        return onnx.load(out)


def convolutions():
    """Outputs, and the integers of the weights. PyTorch's are rounded once more: its dynamic
    convolutions give u8 with the scale and zero of x, and floats of these."""
    torch.manual_seed(5)
    cases = {"plain": (torch.nn.Conv2d(5, 7, 3, padding=1), (2, 5, 9, 8)),
             "stride": (torch.nn.Conv2d(6, 8, (3, 2), stride=2, padding=1, dilation=(2, 1)),
                        (2, 6, 11, 7)),
             "groups": (torch.nn.Conv2d(6, 9, 3, padding=2, groups=3), (1, 6, 5, 6)),
             "line": (torch.nn.Conv1d(4, 6, 5, padding=4), (3, 4, 17))}
    for name, (conv, shape) in cases.items():
        x = torch.randn(shape) * 2 + 0.5
        put(f"conv.{name}.x", x.numpy())
        put(f"conv.{name}.weight", conv.weight.detach().numpy())
        put(f"conv.{name}.bias", conv.bias.detach().numpy())
        model = conv_model(conv, x)
        assert "ConvInteger" in [n.op_type for n in model.graph.node]
        init = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        put(f"conv.{name}.onnx.q", init["W_quantized"])
        y = ReferenceEvaluator(model).run(None, {"x": x.numpy()})[0]
        put(f"conv.{name}.onnx", y)
        runtime = onnxruntime.InferenceSession(model.SerializeToString()).run(
            None, {"x": x.numpy()})[0]
        assert np.abs(runtime - y).max() < 1e-6
        conv.qconfig = quantization.default_dynamic_qconfig
        layers = torch.ao.nn.quantized.dynamic
        dynamic = (layers.Conv1d if name == "line" else layers.Conv2d).from_float(conv)
        put(f"conv.{name}.torch.q", dynamic.weight().int_repr().numpy())
        with torch.no_grad():
            y = dynamic(x).numpy()
        put(f"conv.{name}.torch", y)
        s, z = torch._choose_qparams_per_tensor(x, True)
        put(f"conv.{name}.torch.step", np.array([s, z], np.float32))
        assert np.abs(y / s - np.round(y / s)).max() < 1e-3


torch_weights()
onnx_weights()
convolutions()
layers(activations())
save_file(result, os.path.join(HERE, "quant.safetensors"))
print(len(result), "tensors")
