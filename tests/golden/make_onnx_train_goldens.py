#!/usr/bin/env python3
"""Writes tests/golden/onnx_train.safetensors: 20 losses of PyTorch for networks it wrote as ONNX.

Needs torch, onnx, onnxscript and safetensors; run once, the results are committed.
A CNN with residual batch norms, which are frozen, and a transformer's encoder. NAME.onnx is the file
by torch.onnx's older exporter, NAME.dynamo.onnx by its newer one; x [4,8,..] and y [4,8] are batches,
taken in turn by SGD with momentum; losses are those of each step before it is taken.
"""
import io
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
STEPS, RATE, MOMENTUM = 20, 0.05, 0.9


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, 2, 1, groups=8)
        self.point, self.classes = nn.Conv2d(8, 12, 1), nn.Linear(12, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.norm1(self.conv1(x)) + x)
        x = nn.functional.hardswish(self.point(self.depthwise(x)))
        return self.classes(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(16, 5)

    def forward(self, x):
        return self.classes(self.body(x).mean(1))


def as_file(net, x, dynamo):
    if not dynamo:
        out = io.BytesIO()
        torch.onnx.export(net, (x,), out, opset_version=17, dynamo=False, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE)
        return torch.tensor(list(out.getvalue()), dtype=torch.uint8)
    model = torch.onnx.export(net, (x,), dynamo=True, optimize=False, verbose=False).model_proto
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info,
                 *model.graph.initializer, *model.functions,
                 *(n for f in model.functions for n in f.node)):
        part.ClearField("metadata_props")            # where in which program it comes from
    model.graph.ClearField("value_info")
    return torch.tensor(list(model.SerializeToString()), dtype=torch.uint8)


def main():
    book = {}
    for name, make, shape in (("cnn", Cnn, (3, 8, 8)), ("encoder", Encoder, (5, 16))):
        torch.manual_seed(7)
        net = make().eval()
        with torch.no_grad():                # exporters write equal initializers once
            for values in net.parameters():
                values += 0.05 * torch.randn_like(values)
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.uniform_(-0.5, 0.5)
                m.running_var.uniform_(0.5, 2)
        x, y = torch.randn(4, 8, *shape), torch.randint(0, 5, (4, 8))
        book[f"{name}.onnx"] = as_file(net, x[0], False)
        book[f"{name}.dynamo.onnx"] = as_file(net, x[0], True)
        book[f"{name}.x"], book[f"{name}.y"] = x, y
        optim = torch.optim.SGD(net.parameters(), RATE, MOMENTUM)
        losses = []
        for step in range(STEPS):
            loss = nn.functional.cross_entropy(net(x[step % 4]), y[step % 4])
            losses.append(loss.item())
            optim.zero_grad()
            loss.backward()
            optim.step()
        book[f"{name}.losses"] = torch.tensor(losses, dtype=torch.float64)
        print(name, [round(v, 4) for v in losses], book[f"{name}.onnx"].numel(),
              book[f"{name}.dynamo.onnx"].numel())
    save_file(book, HERE / "onnx_train.safetensors")


main()
