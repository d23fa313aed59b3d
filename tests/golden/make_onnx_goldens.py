#!/usr/bin/env python3
"""Writes tests/golden/onnx.safetensors: ONNX files, inputs, and what ONNX Runtime computes of them.

Needs onnx, onnxruntime, torch, numpy and safetensors; run once from anywhere, the results are
committed:
    python3 tests/golden/make_onnx_goldens.py
Cases of one operation are made by onnx.helper, networks by both exporters of torch.onnx. A case NAME
has NAME.onnx (the file's bytes), NAME.in0, .in1, .. in the order of its inputs, and NAME.out0, ..
The text `cases` lists the names, one a line.
"""
import io
import logging
import pathlib
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from safetensors.numpy import save_file
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64,
         "int32": TensorProto.INT32, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
         "bool": TensorProto.BOOL, "float16": TensorProto.FLOAT16}
BOOK, CASES = {}, []
logging.disable(logging.WARNING)
RNG = np.random.default_rng(7)


def rand(*shape, lo=-2.0, hi=2.0, dtype=np.float32):
    return (RNG.random(shape) * (hi - lo) + lo).astype(dtype)


def whole(*shape, lo=0, hi=4, dtype=np.int64):
    return RNG.integers(lo, hi, shape).astype(dtype)


def put(name, data, feeds):
    """Runs the file by ONNX Runtime and keeps it, its inputs and outputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1                     # with more, ranges of states are those of rows
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    outs = session.run(None, feeds)
    assert name not in CASES, name
    CASES.append(name)
    BOOK[f"{name}.onnx"] = np.frombuffer(data, np.uint8).copy()
    for i, inp in enumerate(session.get_inputs()):
        BOOK[f"{name}.in{i}"] = np.array(feeds[inp.name], order="C")
    for i, out in enumerate(outs):
        BOOK[f"{name}.out{i}"] = np.array(out, order="C")


def graph(name, nodes, inputs, outputs, consts, opset=17, domains=()):
    """inputs and consts: names with arrays; outputs: names."""
    values = [helper.make_tensor_value_info(n, TYPES[str(a.dtype)], [f"{n}_{i}" for i in range(a.ndim)])
              for n, a in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in outputs]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values, outs,
                          [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()]),
        ir_version=8, opset_imports=[helper.make_opsetid("", opset)] +
        [helper.make_opsetid(d, 1) for d in domains])
    put(name, model.SerializeToString(), inputs)


def op(name, kind, inputs, consts=(), opset=17, outs=1, domain="", **attrs):
    """A file of one node. inputs: arrays, or None; consts: numbers of those that are initializers."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)]
    node = helper.make_node(kind, names, [f"y{i}" for i in range(outs)], name="n", domain=domain, **attrs)
    graph(name, [node], {n: a for i, (n, a) in enumerate(zip(names, inputs)) if n and i not in consts},
          [f"y{i}" for i in range(outs)],
          {n: a for i, (n, a) in enumerate(zip(names, inputs)) if n and i in consts}, opset,
          [domain] if domain else [])


def elementwise():
    x = rand(2, 3, 5)
    for kind in ("Abs Neg Floor Ceil Round Cos Erf Exp Relu Sigmoid Sign Sin Softplus Softsign Tan Tanh "
                 "Atan Sinh Cosh HardSwish Identity").split():
        op(kind.lower(), kind, [x])
    for kind in "Sqrt Log Reciprocal".split():
        op(kind.lower(), kind, [rand(2, 3, lo=0.2)])
    for kind in "Acos Asin".split():
        op(kind.lower(), kind, [rand(2, 3, lo=-0.9, hi=0.9)])
    op("mish", "Mish", [x], opset=18)
    op("gelu", "Gelu", [x], opset=20)
    op("gelu_tanh", "Gelu", [x], opset=20, approximate="tanh")
    op("leaky_relu", "LeakyRelu", [x], alpha=0.2)
    op("elu", "Elu", [x], alpha=0.7)
    op("celu", "Celu", [x], alpha=0.7)
    op("selu", "Selu", [x])
    op("thresholded_relu", "ThresholdedRelu", [x], alpha=0.5)
    op("hardsigmoid_paddle", "HardSigmoid", [x], alpha=0.2, beta=0.5)
    op("hardsigmoid", "HardSigmoid", [x], alpha=1 / 6, beta=0.5)
    op("prelu", "PRelu", [rand(2, 3, 4, 5), rand(3, 1, 1)], [1])
    op("prelu_one", "PRelu", [x, rand(1)], [1])
    op("prelu_all", "PRelu", [x, rand(3, 5)], [1])
    for kind in "Add Sub Mul Div".split():
        op(kind.lower(), kind, [x, rand(3, 1, lo=0.5)])
        op(kind.lower() + "_number", kind, [x, np.float32(1.7)], [1])
        op(kind.lower() + "_of_number", kind, [np.float32(1.7), rand(2, 3, lo=0.5)], [0])
        op(kind.lower() + "_whole", kind, [whole(2, 3, lo=-9, hi=9), whole(3, lo=1, hi=5) * [1, -1, 1]])
    op("pow", "Pow", [rand(2, 3, lo=0.1), rand(2, 3)])
    op("pow_2", "Pow", [x, np.float32(2)], [1])
    op("pow_whole", "Pow", [x, np.int64(3)], [1])
    op("mod", "Mod", [whole(2, 3, lo=-9, hi=9), whole(3, lo=1, hi=5) * [1, -1, 1]])
    op("fmod", "Mod", [x, rand(5, lo=0.5)], fmod=1)
    for kind in "Equal Less Greater LessOrEqual GreaterOrEqual".split():
        op(kind.lower(), kind, [whole(2, 3), whole(3)])
        op(kind.lower() + "_number", kind, [x, np.float32(0.5)], [1])
    for kind in "And Or Xor".split():
        op(kind.lower(), kind, [whole(2, 3, hi=2) > 0, whole(3, hi=2) > 0])
    op("not", "Not", [whole(2, 3, hi=2) > 0])
    op("max", "Max", [x, rand(5), rand(2, 1, 1)])
    op("min", "Min", [x, rand(5)])
    op("sum", "Sum", [x, x, rand(5)])
    op("mean", "Mean", [x, x, rand(5)])
    op("clip", "Clip", [x, np.float32(-1), np.float32(0.5)], [1, 2])
    op("clip_below", "Clip", [x, None, np.float32(0.5)], [2])
    op("clip_6", "Clip", [x], opset=7, min=-0.5, max=1.0)
    op("clip_whole", "Clip", [whole(2, 3, lo=-9, hi=9), np.int64(-3), np.int64(4)], [1, 2])
    op("cast_i64", "Cast", [x], to=TensorProto.INT64)
    op("cast_bool", "Cast", [whole(2, 3)], to=TensorProto.BOOL)
    op("cast_f64", "Cast", [x], to=TensorProto.DOUBLE)
    op("where", "Where", [whole(2, 1, hi=2) > 0, rand(2, 3), rand(3)])
    op("isnan", "IsNaN", [np.float32([1, np.nan, 2])])
    op("isinf", "IsInf", [np.float32([1, np.inf, -np.inf])])
    op("isinf_up", "IsInf", [np.float32([1, np.inf, -np.inf])], detect_negative=0)


def norms_and_products():
    x = rand(2, 3, 4, 5)
    for axis in (-1, 1):
        op(f"softmax{axis}", "Softmax", [x], axis=axis)
        op(f"log_softmax{axis}", "LogSoftmax", [x], axis=axis)
    op("softmax_11", "Softmax", [x], opset=11, axis=2)
    op("layer_norm", "LayerNormalization", [x, rand(5), rand(5)], [1, 2], epsilon=1e-3)
    op("layer_norm_axes", "LayerNormalization", [x, rand(4, 5), rand(4, 5)], [1, 2], axis=2)
    op("rms_norm", "RMSNormalization", [x, rand(5)], [1], opset=23)
    op("lp_norm", "LpNormalization", [x], axis=1)
    op("lrn", "LRN", [x], size=3, alpha=0.1, beta=0.6, bias=1.5)
    op("matmul", "MatMul", [rand(2, 3, 4), rand(4, 5)], [1])
    op("matmul_batches", "MatMul", [rand(2, 3, 4, 5), rand(3, 5, 6)])
    for a in (0, 1):
        for b in (0, 1):
            op(f"gemm{a}{b}", "Gemm", [rand(*((4, 3) if a else (3, 4))),
                                       rand(*((5, 4) if b else (4, 5))), rand(5)], [1, 2], transA=a, transB=b)
    op("gemm_factors", "Gemm", [rand(3, 4), rand(5, 4), rand(3, 1)], [1, 2], transB=1, alpha=0.5, beta=2.0)
    op("gemm_alone", "Gemm", [rand(3, 4), rand(4, 5)], [1])
    op("einsum", "Einsum", [rand(2, 3, 4), rand(2, 4, 5)], equation="bij,bjk->bik")
    op("dropout", "Dropout", [x, np.float32(0.5)], [1])
    for kind in "Sum Mean Max Min Prod L1 L2 SumSquare LogSumExp".split():
        op(f"reduce_{kind.lower()}", f"Reduce{kind}", [x], opset=11, axes=[1, -1])
        op(f"reduce_{kind.lower()}_18", f"Reduce{kind}", [x, np.int64([2])], [1], opset=18, keepdims=0)
    op("reduce_all", "ReduceMean", [x], opset=11)
    op("reduce_none", "ReduceSum", [x], opset=13, noop_with_empty_axes=1)
    op("argmax", "ArgMax", [x], axis=2)
    op("argmin_last", "ArgMin", [whole(3, 5)], axis=1, keepdims=0, select_last_index=1)
    op("topk", "TopK", [x, np.int64([2])], [1], outs=2, axis=2)
    op("topk_small", "TopK", [x, np.int64([2])], [1], outs=2, axis=-1, largest=0)
    for kind, attrs in (("", {}), ("_exclusive", {"exclusive": 1}), ("_reverse", {"reverse": 1}),
                        ("_both", {"exclusive": 1, "reverse": 1})):
        op("cumsum" + kind, "CumSum", [x, np.int64(2)], [1], **attrs)


def moves():
    x = rand(2, 3, 4, 5)
    op("reshape", "Reshape", [x, np.int64([0, -1, 5])], [1])
    op("reshape_scalar", "Reshape", [rand(1), np.int64([])], [1])
    op("flatten", "Flatten", [x], axis=2)
    op("flatten0", "Flatten", [x], axis=0)
    op("transpose", "Transpose", [x], perm=[0, 2, 3, 1])
    op("transpose_all", "Transpose", [x])
    op("squeeze", "Squeeze", [rand(2, 1, 3, 1), np.int64([1])], [1])
    op("squeeze_all", "Squeeze", [rand(2, 1, 3, 1)])
    op("squeeze_11", "Squeeze", [rand(2, 1, 3, 1)], opset=11, axes=[-1])
    op("unsqueeze", "Unsqueeze", [x, np.int64([0, -1])], [1])
    op("expand", "Expand", [rand(3, 1), np.int64([2, 1, 4])], [1])
    op("concat", "Concat", [x, rand(2, 2, 4, 5)], axis=1)
    op("split", "Split", [x, np.int64([1, 3])], [1], outs=2, axis=2)
    op("split_even", "Split", [x], outs=2, axis=0)
    op("split_11", "Split", [x], opset=11, outs=2, axis=-1, split=[2, 3])
    op("split_parts", "Split", [x], opset=18, outs=2, axis=1, num_outputs=2)
    op("slice", "Slice", [x, np.int64([1, 0]), np.int64([3, 2**62]), np.int64([2, 3]), np.int64([1, 2])],
       [1, 2, 3, 4])
    op("slice_back", "Slice", [x, np.int64([-1]), np.int64([-2**63]), np.int64([3]), np.int64([-2])],
       [1, 2, 3, 4])
    op("slice_9", "Slice", [x], opset=9, starts=[1], ends=[-1], axes=[3])
    op("slice_none", "Slice", [x, np.int64([3]), np.int64([1]), np.int64([2])], [1, 2, 3])
    op("gather", "Gather", [x, np.int64([[0, -1], [1, 2]])], [1], axis=1)
    op("gather_one", "Gather", [x, np.int64(-1)], [1], axis=2)
    op("gather_rows", "Gather", [rand(6, 3), whole(2, 4, lo=-6, hi=6)], [0])
    op("gather_elements", "GatherElements", [rand(3, 4), whole(3, 2, lo=-4, hi=4)], axis=1)
    op("gather_nd", "GatherND", [x, whole(3, 2, lo=-2, hi=2)])
    op("gather_nd_batch", "GatherND", [x, whole(2, 3, 2, hi=3)], batch_dims=1)
    op("scatter_nd", "ScatterND", [rand(4, 3), np.int64([[1], [-1]]), rand(2, 3)])
    op("scatter_nd_add", "ScatterND", [rand(4, 3), np.int64([[1, 2], [1, 2], [0, 0]]), rand(3)], reduction="add")
    op("scatter_elements", "ScatterElements", [rand(3, 4), np.int64([[0, -1], [2, 1]]), rand(2, 2)], axis=1)
    op("scatter_elements_add", "ScatterElements", [rand(3, 4), np.int64([[0, 0], [2, 1]]), rand(2, 2)],
       axis=1, reduction="add")
    op("one_hot", "OneHot", [whole(2, 3, lo=-2, hi=4), np.int64(4), np.float32([0.5, 2])], [1, 2], axis=1)
    for mode in ("constant", "reflect", "edge"):
        op(f"pad_{mode}", "Pad", [x, np.int64([0, 0, 1, 2, 0, 0, 2, 1]), np.float32(0.5)], [1, 2], mode=mode)
    op("pad_10", "Pad", [x], opset=10, pads=[0, 0, 1, 2, 0, 0, 2, 1], value=0.25)
    op("pad_axes", "Pad", [x, np.int64([1, 2]), None, np.int64([-1])], [1, 3], opset=18)
    op("pad_wrap", "Pad", [x, np.int64([0, 0, 1, 2, 0, 0, 2, 1])], [1], opset=19, mode="wrap")
    op("tile", "Tile", [rand(2, 3), np.int64([2, 3])], [1])
    op("triu", "Trilu", [rand(2, 4, 4), np.int64(1)], [1])
    op("tril", "Trilu", [rand(4, 5)], upper=0)
    op("depth_to_space", "DepthToSpace", [rand(2, 8, 2, 3)], blocksize=2)
    op("depth_to_space_crd", "DepthToSpace", [rand(2, 8, 2, 3)], blocksize=2, mode="CRD")
    op("space_to_depth", "SpaceToDepth", [rand(2, 2, 4, 6)], blocksize=2)
    op("shape", "Shape", [x])
    op("shape_part", "Shape", [x], start=-3, end=-1)
    op("size", "Size", [x])
    op("eye_like", "EyeLike", [rand(3, 4)])
    op("nonzero", "NonZero", [whole(3, 4, hi=2)])


def images():
    x, w = rand(2, 4, 7, 8), rand(6, 4, 3, 3)
    op("conv", "Conv", [x, w, rand(6)], [1, 2], pads=[1, 1, 1, 1], strides=[2, 1])
    op("conv_uneven", "Conv", [x, w], [1], pads=[0, 1, 2, 1], dilations=[1, 2])
    op("conv_same", "Conv", [x, w], [1], auto_pad="SAME_UPPER", strides=[2, 2])
    op("conv_same_lower", "Conv", [x, rand(6, 4, 2, 2)], [1], auto_pad="SAME_LOWER")
    op("conv_valid", "Conv", [x, w], [1], auto_pad="VALID")
    op("conv_groups", "Conv", [x, rand(8, 1, 3, 3)], [1], group=4)
    op("conv1d", "Conv", [rand(2, 3, 9), rand(4, 3, 3), rand(4)], [1, 2], pads=[1, 1])
    op("conv3d", "Conv", [rand(1, 2, 4, 5, 3), rand(3, 2, 2, 2, 2)], [1])
    wt = rand(4, 3, 3, 3)
    op("conv_transpose", "ConvTranspose", [x, wt, rand(3)], [1, 2], strides=[2, 2], pads=[1, 1, 1, 1],
       output_padding=[1, 1])
    op("conv_transpose_uneven", "ConvTranspose", [x, wt], [1], strides=[2, 2], pads=[0, 1, 1, 0])
    op("conv_transpose_shape", "ConvTranspose", [x, wt], [1], strides=[2, 2], output_shape=[14, 17])
    op("conv_transpose_groups", "ConvTranspose", [x, rand(4, 2, 2, 2)], [1], group=2)
    op("max_pool", "MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    op("max_pool_uneven", "MaxPool", [x], kernel_shape=[3, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    op("max_pool_ceil", "MaxPool", [x], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)
    op("max_pool_dilated", "MaxPool", [x], kernel_shape=[2, 2], dilations=[2, 2])
    op("max_pool_same", "MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    op("avg_pool", "AveragePool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    op("avg_pool_count", "AveragePool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    op("avg_pool_uneven", "AveragePool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    op("avg_pool_uneven_count", "AveragePool", [x], kernel_shape=[3, 3], pads=[0, 0, 1, 1], count_include_pad=1)
    op("avg_pool_same", "AveragePool", [x], kernel_shape=[2, 2], auto_pad="SAME_LOWER")
    op("global_avg", "GlobalAveragePool", [x])
    op("global_max", "GlobalMaxPool", [x])
    op("batch_norm", "BatchNormalization", [x, rand(4), rand(4), rand(4), rand(4, lo=0.3)], [1, 2, 3, 4], epsilon=1e-3)
    op("batch_norm_rows", "BatchNormalization", [rand(3, 4), rand(4), rand(4), rand(4), rand(4, lo=0.3)], [1, 2, 3, 4])
    op("instance_norm", "InstanceNormalization", [x, rand(4), rand(4)], [1, 2])
    op("group_norm", "GroupNormalization", [x, rand(4), rand(4)], [1, 2], opset=21, num_groups=2)
    sizes = np.float32([1, 1, 2, 1.5])
    for mode in ("nearest", "linear", "cubic"):
        for place in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            op(f"resize_{mode}_{place}", "Resize", [x, None, sizes], [2], opset=13, mode=mode,
               coordinate_transformation_mode=place)
    for how in ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor"):
        op(f"resize_{how}", "Resize", [x, None, np.float32([1, 1, 2, 0.6])], [2], opset=13, mode="nearest",
           coordinate_transformation_mode="half_pixel", nearest_mode=how)
    op("resize_sizes", "Resize", [x, None, None, np.int64([2, 4, 5, 13])], [3], opset=13, mode="linear")
    op("resize_double", "Resize", [x, None, np.float32([1, 1, 2, 2])], [2], opset=13, mode="nearest",
       coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    op("resize_outside", "Resize", [x, None, sizes], [2], opset=13, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    op("resize_axes", "Resize", [x, None, np.float32([2, 2])], [2], opset=18, mode="linear", axes=[2, 3])
    op("resize_symmetric", "Resize", [x, None, np.float32([1, 1, 0.7, 1.3])], [2], opset=19, mode="linear",
       coordinate_transformation_mode="half_pixel_symmetric")
    op("resize_10", "Resize", [x, np.float32([1, 1, 2, 3])], [1], opset=10, mode="nearest")
    op("upsample", "Upsample", [x, np.float32([1, 1, 2, 3])], [1], opset=9, mode="nearest")


def recurrent():
    x, lengths = rand(5, 2, 3), np.int32([5, 3])
    for kind, gates, outs in (("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 2)):
        for way, dirs in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            ins = [x, rand(dirs, gates * 4, 3), rand(dirs, gates * 4, 4), rand(dirs, 2 * gates * 4)]
            more = {"linear_before_reset": 1} if kind == "GRU" else {}
            name = f"{kind.lower()}_{way}"
            op(name, kind, ins, [1, 2, 3], outs=outs, hidden_size=4, direction=way, **more)
            states = [rand(dirs, 2, 4)] * (2 if kind == "LSTM" else 1)
            op(name + "_all", kind, ins + [lengths] + states, [1, 2, 3], outs=outs, hidden_size=4, direction=way, **more)
    w, r, b = rand(1, 12, 3), rand(1, 12, 4), rand(1, 24)
    op("gru_reset", "GRU", [x, w, r, b], [1, 2, 3], outs=2, hidden_size=4)
    op("gru_reset_reverse", "GRU", [x, w, r, b, None, rand(1, 2, 4)], [1, 2, 3], outs=2, hidden_size=4, direction="reverse")
    op("lstm_peepholes", "LSTM", [x, rand(1, 16, 3), rand(1, 16, 4), rand(1, 32), None, None, None, rand(1, 12)],
       [1, 2, 3, 7], outs=3, hidden_size=4)
    op("rnn_relu", "RNN", [x, rand(1, 4, 3), rand(1, 4, 4), rand(1, 8)], [1, 2, 3], outs=2, hidden_size=4, activations=["Relu"])
    op("lstm_last", "LSTM", [x, rand(1, 16, 3), rand(1, 16, 4)], [1, 2], outs=2, hidden_size=4)


def shapes():
    """Arithmetic on shapes, constants, branches."""
    x, n = rand(2, 3, 4), helper.make_node
    const = lambda name, a: n("Constant", [], [name], value=numpy_helper.from_array(np.asarray(a), name))
    graph("shape_flatten", [
        n("Shape", ["x"], ["s"]), const("zero", np.int64(0)), n("Gather", ["s", "zero"], ["b"]),
        const("axes", np.int64([0])), n("Unsqueeze", ["b", "axes"], ["b1"]), const("m1", np.int64([-1])),
        n("Concat", ["b1", "m1"], ["to"], axis=0), n("Reshape", ["x", "to"], ["y"])], {"x": x}, ["y"], {})
    graph("shape_scale", [
        n("Shape", ["x"], ["s"]), const("a", np.int64([2])), const("e", np.int64([3])),
        n("Slice", ["s", "a", "e"], ["d"]), n("Cast", ["d"], ["f"], to=1), n("Sqrt", ["f"], ["r"]),
        n("Div", ["x", "r"], ["y"])], {"x": x}, ["y"], {})
    graph("shape_positions", [
        n("Shape", ["x"], ["s"], start=1, end=2), n("Squeeze", ["s"], ["t"]), const("zero", np.int64(0)),
        const("one", np.int64(1)), n("Range", ["zero", "t", "one"], ["p"]), n("Gather", ["w", "p"], ["e"]),
        n("Add", ["x", "e"], ["y"])], {"x": x}, ["y"], {"w": rand(6, 4)})
    graph("shape_mask", [
        n("Shape", ["x"], ["s"]), n("ConstantOfShape", ["s"], ["z"], value=numpy_helper.from_array(np.float32([2.5]))),
        n("Mul", ["x", "z"], ["y"])], {"x": x}, ["y"], {})
    graph("shape_expand", [
        n("Shape", ["x"], ["s"]), const("ones", np.int64([-1, -1, -1])), const("two", np.int64([7, 1, 1])),
        n("Equal", ["two", "ones"], ["q"]), n("Where", ["q", "s", "two"], ["w"]),
        n("Expand", ["x1", "w"], ["y"])], {"x": x, "x1": rand(1, 3, 4)}, ["y"], {})
    then = helper.make_graph([n("Mul", ["x", "w"], ["t"])], "then", [], [helper.make_empty_tensor_value_info("t")])
    other = helper.make_graph([n("Neg", ["x"], ["o"])], "else", [], [helper.make_empty_tensor_value_info("o")],
                              [])
    for want in (3, 5):
        graph(f"if_{want}", [
            n("Shape", ["x"], ["s"]), const("i", np.int64(1)), n("Gather", ["s", "i"], ["c"]),
            const("k", np.int64(want)), n("Equal", ["c", "k"], ["q"]),
            n("If", ["q"], ["y"], then_branch=then, else_branch=other)], {"x": x}, ["y"], {"w": rand(4)})
    graph("if_data", [n("If", ["q"], ["y"], then_branch=then, else_branch=other)],
          {"q": np.array(True), "x": x}, ["y"], {"w": rand(4)})
    graph("dead", [n("Relu", ["x"], ["y"]), n("Mul", ["x", "w"], ["z"])], {"x": x}, ["y"], {"w": rand(4)})
    graph("output_of_input", [n("Relu", ["x"], ["y"])], {"x": x}, ["y", "x", "w"], {"w": rand(4)})


class Net(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return self.body(x)


class Attention(nn.Module):
    """A transformer of one block with all that exporters take apart."""

    def __init__(self, vocab=20, e=8, heads=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, e), nn.Embedding(16, e)
        self.qkv, self.out = nn.Linear(e, 3 * e), nn.Linear(e, e)
        self.up, self.down = nn.Linear(e, 4 * e), nn.Linear(4 * e, e)
        self.norm1, self.norm2, self.head = nn.LayerNorm(e), nn.LayerNorm(e), nn.Linear(e, vocab)
        self.heads = heads

    def forward(self, tokens):
        b, t = tokens.shape
        x = self.embed(tokens) + self.place(torch.arange(t, device=tokens.device))
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        s = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5)
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        x = x + self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(x)


class Rnn(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def exported(name, net, x, dynamo, opset, axes=None):
    net.eval()
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(net, (x,), dynamo=True, opset_version=opset, verbose=False)
            program.save(file)
        else:
            torch.onnx.export(net, (x,), file, dynamo=False, opset_version=opset, input_names=["x"],
                              dynamic_axes={"x": axes} if axes else None)
    model = onnx.load_from_string(file.getvalue())
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    del model.graph.value_info[:]
    put(name, model.SerializeToString(), {model.graph.input[0].name: x.numpy()})


def networks():
    torch.manual_seed(3)
    x = torch.randn(2, 3, 8, 8)
    cnn = Net(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.Hardswish(),
              nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6), nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(2),
              nn.Flatten(), nn.Linear(24, 5), nn.LogSoftmax(-1))
    for m in cnn.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.5, 2)
    tokens = torch.randint(20, (2, 7))
    up = Net(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear"), nn.GroupNorm(2, 4), nn.ReLU6(),
             nn.ConvTranspose2d(4, 2, 2, stride=2), nn.InstanceNorm2d(2), nn.Upsample(scale_factor=2), nn.PixelUnshuffle(2))
    for dynamo, opset in ((False, 12), (False, 17), (True, 18)):
        how = f"{'dynamo' if dynamo else 'trace'}{opset}"
        exported(f"cnn_{how}", cnn, x, dynamo, opset, None if dynamo else {0: "batch"})
        exported(f"transformer_{how}", Attention(), tokens, dynamo, max(opset, 14), None if dynamo else {0: "b", 1: "t"})
        exported(f"up_{how}", up, x, dynamo, opset)
        exported(f"mlp_{how}", Net(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU("tanh"), nn.LayerNorm(8),
                                   nn.ELU(), nn.Linear(8, 1)), torch.randn(3, 4), dynamo, opset)
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            if not dynamo:
                exported(f"{kind.__name__.lower()}_{how}", Rnn(kind), torch.randn(2, 5, 3), dynamo, opset)


def integers():
    """Operations of integers, and networks that ONNX Runtime has quantized. Products stay small: its
    sums of u8 by i8 saturate at 16 bits on processors without VNNI."""
    x, s = rand(3, 4), np.float32(0.02)
    for kind, zero in (("u8", np.uint8(128)), ("i8", np.int8(-3))):
        op(f"quantize_{kind}", "QuantizeLinear", [x, s, zero], [1, 2])
        op(f"dequantize_{kind}", "DequantizeLinear", [whole(3, 4, hi=100, dtype=zero.dtype), s, zero], [1, 2])
    op("quantize_rows", "QuantizeLinear", [x, rand(3, lo=0.01, hi=0.03), whole(3, hi=200, dtype=np.uint8)], [1, 2],
       axis=0)
    op("quantize_alone", "QuantizeLinear", [x, s], [1])
    op("quantize_half", "QuantizeLinear", [np.float32([0.5, 1.5, 2.5, 254.5, 300, -3]), np.float32(1)], [1])
    op("dequantize_columns", "DequantizeLinear", [whole(3, 4, hi=100, dtype=np.int8), rand(4, lo=0.01, hi=0.03)],
       [1], axis=-1)
    op("dequantize_i32", "DequantizeLinear", [whole(3, 4, lo=-999, hi=999, dtype=np.int32), s], [1])
    for name, v in (("", x), ("_positive", np.abs(x)), ("_zero", x * 0)):
        op("dynamic_quantize" + name, "DynamicQuantizeLinear", [v], outs=3)
    a, w = whole(2, 3, 4, hi=90, dtype=np.uint8), whole(4, 5, lo=-90, hi=90, dtype=np.int8)
    op("matmul_integer", "MatMulInteger", [a, w, np.uint8(7), np.int8(0)], [1, 2, 3])
    op("matmul_integer_alone", "MatMulInteger", [a, w], [1])
    op("matmul_integer_columns", "MatMulInteger", [a, w, np.uint8(7), whole(5, hi=9, dtype=np.int8)], [1, 2, 3])
    image, taps = whole(2, 4, 6, 5, hi=90, dtype=np.uint8), whole(3, 4, 3, 3, hi=90, dtype=np.uint8)
    op("conv_integer", "ConvInteger", [image, taps, np.uint8(50)], [1, 2], pads=[1, 1, 1, 1])
    f32 = np.float32
    op("qlinear_matmul", "QLinearMatMul", [a, f32(0.02), np.uint8(50), w, f32(0.01), np.int8(0), f32(0.05), np.uint8(90)],
       [1, 2, 3, 4, 5, 6, 7])
    taps = whole(3, 4, 3, 3, lo=-90, hi=90, dtype=np.int8)
    op("qlinear_conv", "QLinearConv", [image, f32(0.02), np.uint8(50), taps, rand(3, lo=0.01, hi=0.02), whole(3, hi=1, dtype=np.int8),
       f32(0.3), np.uint8(90), whole(3, lo=-999, hi=999, dtype=np.int32)], [1, 2, 3, 4, 5, 6, 7, 8], pads=[1, 0, 1, 0], strides=[1, 2])


class Samples(quantization.CalibrationDataReader):
    def __init__(self, x):
        self.left = [{"x": x}]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantized():
    torch.manual_seed(5)
    nets = {"cnn": (Net(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
                        nn.Linear(24, 5)), torch.randn(2, 3, 8, 8)),
            "mlp": (Net(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(3, 8)),
            "lstm": (Rnn(nn.LSTM), torch.randn(2, 5, 3))}
    with tempfile.TemporaryDirectory() as folder:
        for name, (net, x) in nets.items():
            path, to = f"{folder}/{name}.onnx", f"{folder}/q.onnx"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(net.eval(), (x,), path, dynamo=False, opset_version=13, input_names=["x"])
            feeds = {"x": x.numpy()}
            quantization.quantize_dynamic(path, to, weight_type=quantization.QuantType.QUInt8, reduce_range=True)
            put(f"{name}_dynamic", pathlib.Path(to).read_bytes(), feeds)
            for how in (quantization.QuantFormat.QDQ, quantization.QuantFormat.QOperator):
                if name != "lstm":
                    quantization.quantize_static(path, to, Samples(x.numpy()), how, per_channel=name == "cnn",
                                                 reduce_range=True)
                    put(f"{name}_{how.name.lower()}", pathlib.Path(to).read_bytes(), feeds)


def tuned():
    """Networks that are trained further: PyTorch's losses of 20 steps, batch norms as in evaluation."""
    torch.manual_seed(9)
    cnn = Net(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 8, 3, padding=1, groups=8),
              nn.BatchNorm2d(8), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 5))
    nets = {"cnn": (cnn, torch.randn(6, 3, 8, 8), torch.randint(5, (6,))),
            "transformer": (Attention(), torch.randint(20, (4, 7)), torch.randint(20, (28,)))}
    for name, (net, x, labels) in nets.items():
        for p in net.parameters():               # equal ones would be one initializer in the file
            p.data += 0.1 * torch.randn_like(p)
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(net.eval(), (x,), file, dynamo=False, opset_version=17, input_names=["x"],
                              training=torch.onnx.TrainingMode.PRESERVE)
        sgd, losses = torch.optim.SGD(net.parameters(), 0.1), []
        for _ in range(20):
            sgd.zero_grad()
            loss = nn.functional.cross_entropy(net(x).flatten(0, -2), labels)
            loss.backward()
            sgd.step()
            losses.append(loss.item())
        BOOK[f"tune_{name}.onnx"] = np.frombuffer(file.getvalue(), np.uint8).copy()
        BOOK[f"tune_{name}.in0"], BOOK[f"tune_{name}.labels"] = x.numpy(), labels.numpy()
        BOOK[f"tune_{name}.losses"] = np.float32(losses)


elementwise()
norms_and_products()
moves()
images()
recurrent()
shapes()
networks()
integers()
quantized()
tuned()
BOOK["cases"] = np.frombuffer("\n".join(CASES).encode(), np.uint8).copy()
save_file(BOOK, HERE / "onnx.safetensors")
print(len(CASES), "cases", sum(a.nbytes for a in BOOK.values()), "bytes")
