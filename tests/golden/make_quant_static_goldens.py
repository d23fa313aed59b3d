#!/usr/bin/env python3
"""Writes quant_static.safetensors: ranges that observers of PyTorch and calibrators of ONNX Runtime
find, their scales and zeros, and layers of static int8. Run with

    pip install torch==2.15.0 onnxruntime==1.32.0 onnx==1.23.2 safetensors==0.8.0 numpy==2.4.6
    python3 tests/golden/make_quant_static_goldens.py

Layers of ONNX are in its QDQ form, by its reference evaluator (see make_quant_goldens.py)."""
import os
import tempfile
import warnings

import numpy as np
import onnx
import torch
import torch.ao.quantization as quantization
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.calibrate import HistogramCollector
from onnxruntime.quantization.quant_utils import compute_scale_zp
from safetensors.numpy import save_file

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
result = {}


def put(name, value):
    result[name] = np.ascontiguousarray(value)


def batches():
    """Cases of three batches, whose ranges grow, or do not, and differ in sign."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(3, 300)).astype(np.float32)
    yield "grows", x * np.array([[1], [1.7], [3.1]], np.float32)
    yield "shrinks", x[::-1] * np.array([[2], [1], [0.5]], np.float32)
    yield "plus", np.abs(x) ** 2
    yield "minus", -np.exp(x * np.array([[1], [0.2], [1.5]], np.float32))
    tails = x.copy()
    tails[0, 5], tails[1, 7] = 19, -8
    yield "tails", tails


def put_torch(name, observer):
    scale, zero = observer.calculate_qparams()
    put(f"{name}.scale", scale.numpy().astype(np.float32).reshape(-1))
    put(f"{name}.zero", zero.numpy().astype(np.int32).reshape(-1))


def observers():
    torch_kinds = {
        "min_max": lambda **k: quantization.MinMaxObserver(dtype=torch.quint8, **k),
        "moving": lambda **k: quantization.MovingAverageMinMaxObserver(
            averaging_constant=0.3, dtype=torch.quint8, **k),
        "squares": lambda **k: quantization.HistogramObserver(dtype=torch.quint8, **k)}
    for case, x in batches():
        put(f"{case}.x", x)
        for kind, make in torch_kinds.items():
            for form, args in (("affine", {}), ("reduced", {"reduce_range": True}),
                               ("symmetric", {"qscheme": torch.per_tensor_symmetric}),
                               ("halved", {"qscheme": torch.per_tensor_symmetric,
                                           "quant_min": 0, "quant_max": 127})):
                observer = make(**args)
                for batch in x:
                    observer(torch.from_numpy(batch))
                put_torch(f"{case}.torch.{kind}.{form}", observer)
                if form == "affine" and kind != "squares":
                    put(f"{case}.torch.{kind}.range",
                        np.array([observer.min_val.item(), observer.max_val.item()], np.float32))
                if form == "affine" and kind == "squares":
                    lo, hi = observer._non_linear_param_search()
                    put(f"{case}.torch.{kind}.range", np.array([lo.item(), hi.item()], np.float32))
        for kind, bins, percentile in (("percentile", 2048, 98.0), ("entropy", 128, 99.0)):
            collector = HistogramCollector(kind, False, bins, 64, percentile, None)
            for batch in x:
                collector.collect({"x": batch})
            lo, hi = collector.compute_collection_result()["x"][:2]
            put_onnx(f"{case}.onnx.{kind}", lo, hi)
        put_onnx(f"{case}.onnx.min_max", x.min(), x.max())


def put_onnx(name, lo, hi):
    lo, hi = np.float32(lo), np.float32(hi)
    put(f"{name}.range", np.array([lo, hi]))
    for form, symmetric in (("affine", False), ("symmetric", True)):
        zero, scale = compute_scale_zp(np.array(lo), np.array(hi), np.array(0, np.uint8),
                                       np.array(255, np.uint8), symmetric)
        put(f"{name}.{form}.scale", np.float32(scale).reshape(1))
        put(f"{name}.{form}.zero", np.array([int(zero)], np.int32))


def growths():
    """Histograms whose bins grow at both ends; the last ones begin with a batch of zeros."""
    rng = np.random.default_rng(21)
    x = rng.normal(size=(24, 3, 16)) * np.array([[1], [1.9], [4.3]])
    x[20:, 0] = 0
    x[20:, 1:] *= 1e-5
    x = x.astype(np.float32)
    ranges = []
    for batch in x:
        collector = HistogramCollector("percentile", False, 256, 64, 80.0, None)
        for row in batch:
            collector.collect({"x": row})
        ranges.append(collector.compute_collection_result()["x"][:2])
    put("growths.x", x)
    put("growths.range", np.array(ranges, np.float32))


def widened():
    """Bins that become wider ones, which ONNX Runtime has not: counts move in 16 whole parts."""
    first = np.array([0.9465, 0.2, 0.2, 0.2, 0.2, 0.2, -0.9], np.float32)
    second = np.array([0.2, 0.2, 0.2, 0.2, 0.2, 1, -0.93], np.float32)
    collector = HistogramCollector("entropy", False, 8192, 7900, 99.0, None)
    collector.collect({"x": first})
    counts, edges = collector.get_histogram_dict()["x"][:2]
    moved = np.zeros(8192, np.int64)
    for i in np.flatnonzero(counts):
        for k in range(16):
            v = float(edges[0]) + (i + (k + 0.5) / 16) * (2.0 * float(edges[-1]) / 8192)
            moved[int((v + 1) * 4096)] += counts[i] * (k + 1) // 16 - counts[i] * k // 16
    more, edges = np.histogram(second, 8192, range=(np.float32(-1), np.float32(1)))
    histogram = (moved + more, edges.astype(np.float32), second.min(), second.max())
    put("widened.x", np.stack([first, second]))
    put("widened.range", np.array(collector.get_entropy_threshold(histogram, 7900), np.float32))


class Reader(CalibrationDataReader):
    def __init__(self, x):
        self.left = [{"x": v} for v in x]

    def get_next(self):
        return self.left.pop(0) if self.left else None


def onnx_layer(name, layer, x):
    """The layer quantized statically, its integers, and what it gives for the last batch."""
    w, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    shape = [None] + list(x[0].shape[1:])
    if w.ndim == 2:
        node = helper.make_node("Gemm", ["x", "W", "B"], ["y"], transB=1)
    else:
        node = helper.make_node("Conv", ["x", "W", "B"], ["y"], pads=[1, 1, 1, 1],
                                strides=list(layer.stride), kernel_shape=[3, 3])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(w, "W"), numpy_helper.from_array(b, "B")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "m.onnx"), os.path.join(folder, "q.onnx")
        onnx.save(model, path)
        quantize_static(path, out, Reader(x), quant_format=QuantFormat.QDQ, per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        model = onnx.load(out)
    init = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    put(f"{name}.onnx.q", init["W_quantized"])
    put(f"{name}.onnx.w_scale", init["W_scale"].reshape(-1))
    put(f"{name}.onnx.input",
        np.array([init["x_scale"], init["x_zero_point"]], np.float32))
    put(f"{name}.onnx.step", init["y_scale"].astype(np.float32).reshape(1))
    put(f"{name}.onnx.y", ReferenceEvaluator(model).run(None, {"x": x[-1]})[0])


def torch_layer(name, layer, x):
    net = torch.nn.Sequential(quantization.QuantStub(), layer, quantization.DeQuantStub()).eval()
    net.qconfig = quantization.QConfig(
        activation=quantization.MinMaxObserver.with_args(dtype=torch.quint8, reduce_range=True),
        weight=quantization.default_per_channel_weight_observer)
    quantization.prepare(net, inplace=True)
    for batch in x:
        net(torch.from_numpy(batch))
    quantization.convert(net, inplace=True)
    w = net[1].weight()
    put(f"{name}.torch.q", w.int_repr().numpy())
    put(f"{name}.torch.w_scale", w.q_per_channel_scales().numpy().astype(np.float32))
    put(f"{name}.torch.input", np.array([net[0].scale.item(), net[0].zero_point.item()],
                                        np.float32))
    put(f"{name}.torch.step", np.array([net[1].scale], np.float32))
    put(f"{name}.torch.y", net(torch.from_numpy(x[-1])).detach().numpy())


def layers():
    torch.manual_seed(4)
    for name, layer, shape in (
            ("linear", torch.nn.Linear(20, 7), (5, 20)),
            ("conv", torch.nn.Conv2d(3, 6, 3, padding=1, stride=(2, 1)), (2, 3, 7, 5))):
        x = [(torch.randn(shape) * (1 + i) + 0.3).numpy() for i in range(2)]
        for i, batch in enumerate(x):
            put(f"{name}.x{i}", batch)
        put(f"{name}.weight", layer.weight.detach().numpy())
        put(f"{name}.bias", layer.bias.detach().numpy())
        onnx_layer(name, layer, x)
        torch_layer(name, layer, x)


def fakes():
    """Straight-through gradients of x, learned ones of the scale (LSQ). The zero of a tensor is
    positive: _fake_quantize_learnable_per_tensor_affine takes -2 for -1."""
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    put("fake.x", x)
    put("fake.dy", dy)
    scale = np.array([0.05, 0.11, 0.2], np.float32)
    zero = np.array([3, -2, 0], np.int32)
    put("fake.scale", scale)
    put("fake.zero", zero)
    for name, learned in (("plain", False), ("learned", True)):
        for form in ("tensor", "channel"):
            t, s = torch.tensor(x, requires_grad=True), torch.tensor(scale, requires_grad=learned)
            z = torch.tensor(zero, dtype=torch.float32 if learned else torch.int32)
            if form == "tensor":
                fn = (torch._fake_quantize_learnable_per_tensor_affine if learned
                      else torch.fake_quantize_per_tensor_affine)
                y = fn(t, s[:1], z[:1], -8, 7, *([0.25] if learned else []))
            else:
                fn = (torch._fake_quantize_learnable_per_channel_affine if learned
                      else torch.fake_quantize_per_channel_affine)
                y = fn(t, s, z, 1, -8, 7, *([0.25] if learned else []))
            y.backward(torch.tensor(dy))
            put(f"fake.{name}.{form}.y", y.detach().numpy())
            put(f"fake.{name}.{form}.dx", t.grad.numpy())
            if learned:
                put(f"fake.{name}.{form}.dscale", s.grad.numpy())


def aware():
    """A linear layer trained for four steps of SGD, as torch.ao.nn.qat has it."""
    import torch.ao.nn.qat
    torch.manual_seed(8)
    layer = torch.nn.Linear(6, 3)
    layer.qconfig = quantization.QConfig(
        activation=quantization.FakeQuantize.with_args(
            observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=127,
            dtype=torch.quint8, averaging_constant=0.2),
        weight=quantization.FakeQuantize.with_args(
            observer=quantization.MovingAveragePerChannelMinMaxObserver, quant_min=-128,
            quant_max=127, dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=0,
            averaging_constant=1.0))
    put("aware.weight", layer.weight.detach().numpy().copy())
    put("aware.bias", layer.bias.detach().numpy().copy())
    qat = torch.ao.nn.qat.Linear.from_float(layer)
    inputs = layer.qconfig.activation()
    step = torch.optim.SGD(qat.parameters(), 0.1)
    x, target = torch.randn(4, 5, 6) * 2, torch.randn(4, 5, 3)
    put("aware.x", x.numpy())
    put("aware.target", target.numpy())
    for i in range(4):
        step.zero_grad()
        loss = torch.nn.functional.mse_loss(qat(inputs(x[i])), target[i])
        loss.backward()
        step.step()
    scale, zero = inputs.calculate_qparams()
    put("aware.input", np.array([scale.item(), zero.item()], np.float32))
    put("aware.trained", qat.weight.detach().numpy())
    put("aware.loss", np.array([loss.item()], np.float32))


observers()
growths()
widened()
layers()
fakes()
aware()
save_file(result, os.path.join(HERE, "quant_static.safetensors"))
print(len(result), "tensors")
