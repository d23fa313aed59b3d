#!/usr/bin/env python3
"""Times files of ONNX at batch 1 beside ONNX Runtime, alternately, with one thread each.

Usage: bench/onnx_speed.py [build/onnx_run]; needs torch, onnx and onnxruntime. The networks have
random weights: residual networks of 3x3 convolutions and with 1x1 ones, depthwise ones, an LSTM and
a transformer. "module" is the loaded graph as it runs at once, "plan" after all passes of a plan.
"""
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import onnxruntime
import torch
from torch import nn

ROUNDS = 5


def conv(i, o, k, stride=1, groups=1, act=True):
    parts = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*parts, *([nn.ReLU()] if act else []))


class Residual(nn.Module):
    def __init__(self, body, i, o, stride):
        super().__init__()
        self.body = body
        self.skip = nn.Identity() if i == o and stride == 1 else conv(i, o, 1, stride, act=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def stages(make, width, depths):
    """Residual blocks of four stages; make(i, m, stride) gives a body and its channels."""
    blocks, i = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate(depths):
        for n in range(depth):
            stride = 2 if stage and n == 0 else 1
            body, o = make(i, width << stage, stride)
            blocks.append(Residual(body, i, o, stride))
            i = o
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 1000))


def basic(i, m, stride):
    return nn.Sequential(conv(i, m, 3, stride), conv(m, m, 3, act=False)), m


def bottleneck(i, m, stride):
    return nn.Sequential(conv(i, m, 1), conv(m, m, 3, stride), conv(m, 4 * m, 1, act=False)), 4 * m


def mobilenet():
    shape = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
             *[(512, 512, 1)] * 5, (512, 1024, 2), (1024, 1024, 1)]
    blocks = [conv(3, 32, 3, 2)]
    for i, o, stride in shape:
        blocks += [conv(i, i, 3, stride, i), conv(i, o, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 10)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def transformer():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


IMAGE = (1, 3, 224, 224)
NETWORKS = {
    "resnet18 (3x3)": (lambda: stages(basic, 64, (2, 2, 2, 2)), IMAGE),
    "resnet50 (1x1, 3x3)": (lambda: stages(bottleneck, 64, (3, 4, 6, 3)), IMAGE),
    "mobilenet_v1 (depthwise, 1x1)": (mobilenet, IMAGE),
    "lstm_2x128_t64": (Lstm, (1, 64, 64)),
    "encoder_4x256_t128": (transformer, (1, 128, 256)),
}


def ours(program, path):
    """Milliseconds of the module and of its plan."""
    done = subprocess.run([program, path, "--quiet", "1", "--runs", "30"], check=True, text=True,
                          capture_output=True, env={**os.environ, "MLC_THREADS": "1"})
    return [float(v) for v in re.search(r"([\d.]+) ms a forward, ([\d.]+) ms", done.stdout).groups()]


def theirs(path, x):
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = how.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, how, providers=["CPUExecutionProvider"])
    times = []
    for _ in range(33):
        begin = time.perf_counter()
        session.run(None, {"x": x})
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[3:])


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/onnx_run"
    ratios = []
    print(f"{'network':30} {'ONNX Runtime':>12} {'module':>9} {'plan':>9} {'ratio':>6}")
    for name, (make, shape) in NETWORKS.items():
        torch.manual_seed(1)
        x = torch.ones(shape)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.onnx")
            torch.onnx.export(make().eval(), (x,), path, input_names=["x"], opset_version=17,
                              dynamo=False)
            rounds = [(theirs(path, x.numpy()), *ours(program, path)) for _ in range(ROUNDS)]
        other, module, plan = (statistics.median(r[i] for r in rounds) for i in range(3))
        ratios.append(other / plan)
        print(f"{name:30} {other:9.3f} ms {module:9.3f} {plan:9.3f} {ratios[-1]:6.2f}", flush=True)
    print(f"geometric mean of ONNX Runtime over plan: {statistics.geometric_mean(ratios):.2f}")


main()
