#!/usr/bin/env python3
"""Runs the cases of build/bench in PyTorch and in mlcore, alternately in one run.

    make bench-compare           or:  python3 bench/compare.py [--case GLOB] [--json FILE]

Each round times mlcore (build/bench for a short slice), then PyTorch on the same work in this
process; medians over the rounds count. A ratio above 1 means that mlcore is faster. PyTorch runs
at its best: the same number of threads, the fastest form of each optimizer (fused for all but the
tiniest network), gradients set to None, inference mode, out= for elementwise operations and
products. "of" is mlcore's share of what build/bench measured between its runs: peak multiply-adds
(FMA) or a plain loop of the same loads and stores. Needs python3 and PyTorch, nothing else.
Where onnx and onnxruntime are installed, networks of int8 are timed there, too, quantized by its
quantize_dynamic: "onnx" is its rate, and mlcore's over it.
With --device cuda both run on the same card and wait for it before a clock is read (make
cuda-bench); what the card has no kernel for is left out.
"""
import argparse
import fnmatch
import functools
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEVICE = "cpu"                            # of PyTorch: "cuda" for --device cuda:1, too

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("compare.py: this Python has no PyTorch; install it with\n"
             "    python3 -m pip install torch\n"
             "in a virtual environment, and run compare.py with that environment's python3")


# ---- cases: each makes its data and returns one iteration as a function ------------------------

def uniform(shape, lo, hi, dtype):
    return (torch.rand(shape, dtype=torch.float64) * (hi - lo) + lo).to(dtype)


def elementwise(function, inputs, lo, hi, prepare=lambda *args: args):
    def make(dtype):
        args = prepare(*(uniform((1000, 1000), lo, hi, dtype) for _ in range(inputs)))
        out = torch.empty_like(function(*args))

        def step():
            with torch.inference_mode():
                function(*args, out=out)
        return step
    return make


def no_out(function, lo, hi, prepare=lambda *args: args, inputs=1):
    """For functions without out=, or in place: PyTorch allocates the result from its cache."""
    def make(dtype):
        args = prepare(*(uniform((1000, 1000), lo, hi, dtype) for _ in range(inputs)))

        def step():
            with torch.inference_mode():
                function(*args)
        return step
    return make


def leaky_step(inplace):
    def make(dtype):
        x, dy = uniform((1000, 1000), -4, 4, dtype).requires_grad_(), uniform((1000, 1000), -4, 4,
                                                                              dtype)

        def step():
            F.leaky_relu(x * 2, inplace=inplace).backward(dy)
        return step
    return make


def masks(*args):
    return tuple(x > 0 for x in args)


def mask_first(a, *rest):
    return (a > 0, a, *rest)


# What PyTorch calls otherwise than mlcore, of the rows of tests/ew_table.h.
OTHERWISE = {"log_sigmoid": F.logsigmoid, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def takes_out(function, inputs):
    try:
        function(*[torch.ones(1)] * inputs, out=torch.empty(1))
    except TypeError:
        return False
    return True


def table_cases():
    """A case for each row of tests/ew_table.h: torch.NAME, else F.NAME, over the row's range."""
    cases, inputs = {}, 0
    text = (ROOT / "tests" / "ew_table.h").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if not line.startswith(("#define EW_UNARY(", "#define EW_BINARY(")):
            continue
        inputs += 1
        for row in re.split(r"\b(?=(?:ROW|LAYER|WHOLE)\(\w+,)", line)[1:]:
            name = re.match(r"\w+\((\w+)", row)[1]
            given = re.search(r"EW_RANGE\(([-.\d]+), ([-.\d]+)\)", row)
            lo, hi = (float(given[1]), float(given[2])) if given else (-4, 4)
            function = OTHERWISE.get(name) or getattr(torch, name, None) or getattr(F, name, None)
            if function is not None:
                form = elementwise if takes_out(function, inputs) else no_out
                cases[f"ew_{name}_1000x1000"] = (
                    form(function, inputs, lo, hi) if form is elementwise
                    else form(function, lo, hi, inputs=inputs))
    return cases


def comparison_cases():
    return {f"ew_{name}_1000x1000": elementwise(getattr(torch, name), 2, -4, 4)
            for name in "eq ne lt le gt ge".split()}


def moving(function, grad=False):
    """function(a, b, index, rows): as the move_ cases of bench.c."""
    def make(dtype):
        a, b = uniform((1000, 1000), -4, 4, dtype), uniform((1000, 1000), -4, 4, dtype)
        columns = torch.arange(1000)
        index, rows = (7 * columns + columns[:, None]) % 1000, 7 * columns % 1000
        if not grad:
            return no_grad(lambda: function(a, b, index, rows))
        a.requires_grad_()

        def step():
            function(a, b, index, rows)
            a.grad = None
        return step
    return make


def heads(x):
    return x.view(10, 10, 100, 100)


@functools.cache
def mask():
    return uniform((1000, 1000), -4, 4, torch.float32) > 0


def moving_cases():
    return {
        "ew_concat": moving(lambda a, b, i, r: torch.cat((a, b))),
        "ew_concat_columns": moving(lambda a, b, i, r: torch.cat((a, b), 1)),
        "ew_stack_last": moving(lambda a, b, i, r: torch.stack((a, b), 2)),
        "ew_pad": moving(lambda a, b, i, r: F.pad(a, (1, 1, 1, 1), value=3)),
        "ew_pad_reflect": moving(lambda a, b, i, r: F.pad(a[None], (2, 2, 2, 2), "reflect")),
        "ew_flip": moving(lambda a, b, i, r: torch.flip(a, (1,))),
        "ew_flip_rows": moving(lambda a, b, i, r: torch.flip(a, (0,))),
        "ew_roll": moving(lambda a, b, i, r: torch.roll(a, 3, 1)),
        "ew_tile": moving(lambda a, b, i, r: torch.tile(a, (2, 2))),
        "ew_repeat": moving(lambda a, b, i, r: torch.repeat_interleave(a, 2, 1)),
        "ew_tril": moving(lambda a, b, i, r: torch.tril(a)),
        "ew_diag": moving(lambda a, b, i, r: torch.diag(b[0])),
        "ew_eye": moving(lambda a, b, i, r: torch.eye(1000)),
        "ew_linspace": moving(lambda a, b, i, r: torch.linspace(0, 999999, 1000000)),
        "ew_one_hot": moving(lambda a, b, i, r: F.one_hot(r, 1000).to(a.dtype)),
        "ew_unfold": moving(lambda a, b, i, r: a.unfold(1, 4, 4).clone()),
        "row_gather": moving(lambda a, b, i, r: torch.gather(a, 1, i)),
        "row_gather_columns": moving(lambda a, b, i, r: torch.gather(a, 0, i)),
        "row_scatter": moving(lambda a, b, i, r: torch.scatter(a, 1, i, b)),
        "row_scatter_add": moving(lambda a, b, i, r: torch.scatter_add(a, 1, i, b)),
        "row_index_select": moving(lambda a, b, i, r: torch.index_select(a, 0, r)),
        "row_index_select_columns": moving(lambda a, b, i, r: torch.index_select(a, 1, r)),
        "row_embedding_grad": moving(lambda a, b, i, r: F.embedding(r, a).backward(b), True),
        "row_take": moving(lambda a, b, i, r: torch.take(a, i)),
        "row_masked_select": moving(lambda a, b, i, r: torch.masked_select(a, mask())),
        "row_nonzero": moving(lambda a, b, i, r: torch.nonzero(mask()).to(a.dtype)),
        "row_einsum": moving(lambda a, b, i, r:
                             torch.einsum("bqhd,bkhd->bhqk", heads(a), heads(b)).sum(-1)),
    }


def line_cases():
    """As the line_ cases of bench.c: along the rows, axis 1, and the columns, axis 0."""
    table = {
        "sum": (torch.sum, -4, 4), "mean": (torch.mean, -4, 4), "prod": (torch.prod, 0.9, 1.1),
        "max": (torch.amax, -4, 4), "min": (torch.amin, -4, 4), "any": (torch.any, -4, -0.1),
        "all": (torch.all, 0.1, 4), "var": (torch.var, -4, 4), "std": (torch.std, -4, 4),
        "norm": (lambda x, axis: torch.linalg.vector_norm(x, 2, axis), -4, 4),
        "norm_1": (lambda x, axis: torch.linalg.vector_norm(x, 1, axis), -4, 4),
        "logsumexp": (torch.logsumexp, -4, 4), "argmax": (torch.argmax, -4, 4),
        "argmin": (torch.argmin, -4, 4), "cumsum": (torch.cumsum, -4, 4),
        "cumprod": (torch.cumprod, 0.9, 1.1),
        "sort": (lambda x, axis: torch.sort(x, axis), -4, 4),
        "argsort": (lambda x, axis: torch.argsort(x, dim=axis, stable=True), -4, 4),
        "topk": (lambda x, axis: torch.topk(x, 10, axis), -4, 4),
    }
    cases = {}
    for name, (function, lo, hi) in table.items():
        prepare = masks if name in ("any", "all") else lambda *args: args
        for axis, at in ((1, ""), (0, "_columns")):
            cases[f"row_{name}{at}_1000x1000"] = no_out(
                lambda x, f=function, d=axis: f(x, d), lo, hi, prepare)
    return cases


def drawing(function):
    """function(x, ones): tensors to draw into and to draw by."""
    def make(dtype):
        x, ones = torch.empty(1000, 1000), torch.ones(1000, 1000)
        return no_grad(lambda: function(x, ones))
    return make


def draw_cases():
    return {
        "ew_uniform": drawing(lambda x, w: x.uniform_()),
        "ew_normal": drawing(lambda x, w: x.normal_()),
        "ew_truncated_normal": drawing(lambda x, w: torch.nn.init.trunc_normal_(x)),
        "ew_bernoulli": drawing(lambda x, w: x.bernoulli_(0.5)),
        "ew_dropout": drawing(lambda x, w: F.dropout(w, 0.5)),
        "ew_randint": drawing(lambda x, w: torch.randint(100, (1000, 1000))),
        "row_randperm": drawing(lambda x, w: torch.randperm(1000000)),
        "row_multinomial": drawing(lambda x, w: torch.multinomial(w, 1000, True)),
    }


def cross_entropy_row(dtype):
    x, y = uniform((1000, 1000), -4, 4, dtype), torch.arange(1000) * 7 % 1000
    return no_grad(lambda: F.cross_entropy(x, y))


def there(function, n):
    def make(dtype):
        x, w = uniform((1000000 // n, n), -4, 4, dtype), uniform((n,), -1, 1, dtype)
        return no_grad(lambda: function(x, w))
    return make


def and_back(function, n):
    def make(dtype):
        x = uniform((1000000 // n, n), -4, 4, dtype).requires_grad_()
        w = uniform((n,), -1, 1, dtype).requires_grad_()
        dy = uniform((1000000 // n, n), -1, 1, dtype)

        def step():
            function(x, w).backward(dy)
            x.grad = w.grad = None
        return step
    return make


def grad_cases():
    table = {"row_softmax": lambda x, w: F.softmax(x, 1),
             "row_log_softmax": lambda x, w: F.log_softmax(x, 1),
             "row_layer_norm": lambda x, w: F.layer_norm(x, w.shape, w, w, 1e-5),
             "row_rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, 1e-5)}
    back = dict(table, ew_gelu=lambda x, w: F.gelu(x), ew_tanh=lambda x, w: torch.tanh(x))
    widths = (1000, 16, 54, 64, 128, 256, 1024)
    cases = {f"{name}_{1000000 // n}x{n}": there(f, n) for name, f in table.items()
             for n in widths}
    cases.update({f"{name}_grad_{1000000 // n}x{n}": and_back(f, n) for name, f in back.items()
                  for n in widths})
    return cases


def no_grad(function):
    def step():
        with torch.inference_mode():
            function()
    return step


def attention(b, h, t, d, causal, back):
    def make(dtype):
        q, k, v, dy = (uniform((b, h, t, d), -1, 1, dtype) for _ in range(4))

        def y():
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        if not back:
            return no_grad(y)
        for x in q, k, v:
            x.requires_grad_()

        def step():
            y().backward(dy)
            q.grad = k.grad = v.grad = None
        return step
    return make


def attention_cases():
    sizes = {"b8_h6_t256_d64": (8, 6, 256, 64, False), "b1_h12_t1024_d64": (1, 12, 1024, 64, False),
             "b1_h8_t4096_d64_causal": (1, 8, 4096, 64, True)}
    return {f"attn_{'step_' if back else ''}{name}": attention(*size, back)
            for name, size in sizes.items() for back in (False, True)}


def loss(function, labels):
    def make(dtype):
        x = uniform((1000, 1000), -4, 4, dtype).requires_grad_()
        y = torch.arange(1000) * 7 % 1000 if labels else uniform((1000, 1000), -4, 4, dtype)

        return there_and_back(function, x, y)
    return make


def ctc_loss(dtype):
    """bench_train.h's loss_ctc_: batch first, from logits and back."""
    b, t, c, most = 32, 200, 64, 50
    x = uniform((b, t, c), -4, 4, dtype).requires_grad_()
    y = (1 + torch.arange(b * most) // 2 * 7 % (c - 1)).reshape(b, most)
    n_in, n_y = torch.full((b,), t), 20 + torch.arange(b) * 30 // (b - 1)
    return there_and_back(lambda x, y: F.ctc_loss(x.log_softmax(2).transpose(0, 1), y, n_in, n_y),
                          x, y)


def loss_cases():
    """Losses of bench_train.h that PyTorch has, with the gradient of x."""
    table = {                             # x from, to; target from, to, or signs; function of x, y
        "l1": ((-4, 4), (-4, 4), F.l1_loss), "smooth_l1": ((-4, 4), (-4, 4), F.smooth_l1_loss),
        "huber": ((-4, 4), (-4, 4), F.huber_loss),
        "bce": ((0.01, 0.99), (0, 1), F.binary_cross_entropy),
        "bce_with_logits": ((-4, 4), (0, 1), F.binary_cross_entropy_with_logits),
        "kl_div": ((-4, 0), (0.01, 1), lambda x, y: F.kl_div(x, y, reduction="sum") / x.numel()),
        "hinge_embedding": ((0, 4), "signs", F.hinge_embedding_loss),
    }

    def make(xs, ys, function, dtype):
        x = uniform((1000, 1000), *xs, dtype).requires_grad_()
        y = uniform((1000, 1000), *((-1, 1) if ys == "signs" else ys), dtype)
        return there_and_back(function, x, y.sign() if ys == "signs" else y)

    return {f"loss_{name}_1000x1000": functools.partial(make, *row)
            for name, row in table.items()} | {
        "loss_mse_1000x1000": loss(F.mse_loss, False),
        "loss_cross_entropy_1000x1000": loss(F.cross_entropy, True),
        "loss_nll_1000x1000": loss(F.nll_loss, True),
        "loss_triplet_margin_1000x1000": rows_loss(F.triplet_margin_loss, None),
        "loss_cosine_embedding_1000x1000": rows_loss(F.cosine_embedding_loss, (1000,)),
        "loss_multilabel_margin_100000x10": multilabel,
    }


def there_and_back(function, x, *rest):
    def step():
        function(x, *rest).backward()
        x.grad = None
    return step


def rows_loss(function, signs):
    """function(x, y, z): z the third rows, or signs of the rows."""
    def make(dtype):
        x, y, z = (uniform(shape, -4, 4, dtype)
                   for shape in ((1000, 1000), (1000, 1000), signs or (1000, 1000)))
        return there_and_back(function, x.requires_grad_(), y, z.sign() if signs else z)
    return make


def multilabel(dtype):
    x, y = uniform((100000, 10), -4, 4, dtype).requires_grad_(), torch.full((100000, 10), -1)
    y[:, 0] = torch.arange(100000) * 7 % 10
    y[:, 1] = torch.arange(100000) * 7 % 9 + 1
    return there_and_back(F.multilabel_margin_loss, x, y)


def product(a_shape, b_shape, view):
    """view(a, b): the operands as [m,k] and [k,n]."""
    def make(dtype):
        a, b = view(uniform(a_shape, -1, 1, dtype), uniform(b_shape, -1, 1, dtype))
        out = torch.empty(a.shape[0], b.shape[1], dtype=dtype)
        return no_grad(lambda: torch.mm(a, b, out=out))
    return make


def layer(m, n, k):
    def make(dtype):
        x, w = uniform((m, k), -1, 1, dtype), uniform((n, k), -1, 1, dtype)
        b = uniform((n,), -1, 1, dtype)
        return no_grad(lambda: F.linear(x, w, b))
    return make


def cold_layers(m, n, k):
    """Layers in turns: their weights are more than the caches of all cores hold."""
    def make(dtype):
        x = uniform((m, k), -1, 1, dtype)
        copies = min(1024, max(2, (32 << 20) // (n * k * dtype.itemsize)))
        turns = itertools.cycle([(uniform((n, k), -1, 1, dtype), uniform((n,), -1, 1, dtype))
                                 for _ in range(copies)])
        return no_grad(lambda: F.linear(x, *next(turns)))
    return make


def layer_and_back(m, n, k):
    """y, then dx."""
    def make(dtype):
        x, w = uniform((m, k), -1, 1, dtype).requires_grad_(), uniform((n, k), -1, 1, dtype)
        b, dy = uniform((n,), -1, 1, dtype), uniform((m, n), -1, 1, dtype)

        def step():
            F.linear(x, w, b).backward(dy)
            x.grad = None
        return step
    return make


def gemm_cases():
    """As in bench.c: the products of y[m,n] = x[m,k] w[n,k]^T, of dx = dy w, of dw = dy^T x."""
    cases = {"gemm_1000x200x500": product((1000, 500), (500, 200), lambda a, b: (a, b))}
    for m, n, k in [(32, 512, 784), (32, 512, 512), (128, 512, 784), (128, 1024, 1024),
                    (32, 1024, 1024), (256, 768, 768), (256, 3072, 768), (1024, 1024, 1024),
                    (2048, 2048, 2048), (128, 64, 1024), (128, 16, 512)]:
        at = f"{m}x{n}x{k}"
        cases[f"gemm_nt_{at}"] = product((m, k), (n, k), lambda x, w: (x, w.t()))
        cases[f"gemm_nn_{at}"] = product((m, n), (n, k), lambda dy, w: (dy, w))
        cases[f"gemm_tn_{at}"] = product((m, n), (m, k), lambda dy, x: (dy.t(), x))
        cases[f"gemm_pre_{at}"] = layer(m, n, k)
        cases[f"gemm_cold_{at}"] = cold_layers(m, n, k)
        cases[f"gemm_ydx_{at}"] = layer_and_back(m, n, k)
    return cases


def network(widths):
    layers = []
    for i in range(len(widths) - 1):
        layers += [torch.nn.ReLU()] if i else []
        layers += [torch.nn.Linear(widths[i], widths[i + 1])]
    return torch.nn.Sequential(*layers)


def train(net, opt, x, y, half):
    """A step of training, under autocast if half."""
    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    return step


def training(widths, batch, optimizer):
    def make(dtype):
        half = dtype == torch.bfloat16
        full = torch.float32 if half else dtype
        net = network(widths).to(full)
        opt = optimizer(net.parameters())
        x, y = uniform((batch, widths[0]), 0, 1, full), torch.arange(batch) * 7 % widths[-1]

        return train(net, opt, x, y, half)
    return make


def inference(widths, batch):
    def make(dtype):
        net = network(widths).to(dtype).eval()
        x = uniform((batch, widths[0]), 0, 1, dtype)
        return no_grad(lambda: net(x))
    return make


def dynamic_int8(make_net, shape, kinds):
    """PyTorch's dynamic quantization, where this version has it, of layers of these kinds."""
    def make(dtype):
        from torch.ao.quantization import quantize_dynamic
        net = quantize_dynamic(make_net().eval(), kinds, dtype=torch.qint8)
        x = uniform(shape, -1, 1, dtype)
        return no_grad(lambda: net(x))
    return make


def static_int8(make_net, shape):
    """PyTorch's static quantization of a graph, with ranges of the batch itself."""
    def make(dtype):
        from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx
        x = uniform(shape, 0, 1, dtype)
        net = quantize_fx.prepare_fx(make_net().eval(), get_default_qconfig_mapping("x86"), (x,))
        net(x)
        net = quantize_fx.convert_fx(net)
        return no_grad(lambda: net(x))
    return make


def float_net(make_net, shape):
    def make(dtype):
        net, x = make_net().to(dtype).eval(), uniform(shape, -1, 1, dtype)
        return no_grad(lambda: net(x))
    return make


def quant_cases():
    """The networks of bench_quant.h, in f32 and with weights of int8."""
    cases = {}
    nets = [(f"mlp_1024x3_10_b{b}", lambda: network([1024, 1024, 1024, 10]), (b, 1024),
             {torch.nn.Linear}) for b in (1, 32, 128)]
    nets.append(("lstm_2x256", lambda: torch.nn.Sequential(
        torch.nn.LSTM(256, 256, 2, batch_first=True)), (1, 64, 256), {torch.nn.LSTM}))
    for name, make_net, shape, kinds in nets:
        cases[f"infer_{name}"] = float_net(make_net, shape)
        cases[f"infer_q8_{name}"] = dynamic_int8(make_net, shape, kinds)
    for name, shape in QUANT_IMAGES.items():
        cases[f"infer_{name}"] = image_inference(name)
        cases[f"infer_q8_{name}"] = static_int8(image_of(name), shape)
    return cases


# Networks of images in int8: shapes of their inputs.
QUANT_IMAGES = {f"{net}_b{b}": (b, *shape) for b in (1, 64)
                for net, shape in (("cnn28", (1, 28, 28)), ("resnet20", (3, 32, 32)))}


def image_of(name):
    return functools.partial(resnet20, folds=True) if "resnet20" in name else cnn28


def onnx_graph(nodes, weights, shape):
    """The bytes of a model y = f(x), its weights int8 by ONNX Runtime's dynamic quantization."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, **more) for op, ins, outs, more in nodes], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.numpy(), name) for name, w in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path, made = os.path.join(folder, "m.onnx"), os.path.join(folder, "q.onnx")
        onnx.save(model, path)
        quantize_dynamic(path, made, weight_type=QuantType.QInt8)
        return pathlib.Path(made).read_bytes()


def onnx_mlp(batch):
    widths, nodes, weights, at = [1024, 1024, 1024, 10], [], {}, "x"
    for i in range(3):
        to = "y" if i == 2 else f"h{i}"
        weights[f"W{i}"] = uniform(widths[i:i + 2], -0.03, 0.03, torch.float32)
        weights[f"B{i}"] = uniform(widths[i + 1:i + 2], -0.03, 0.03, torch.float32)
        nodes += [("MatMul", [at, f"W{i}"], [f"p{i}"], {}),
                  ("Add", [f"p{i}", f"B{i}"], [to if i == 2 else f"a{i}"], {})]
        nodes += [("Relu", [f"a{i}"], [to], {})] if i < 2 else []
        at = to
    return onnx_graph(nodes, weights, [batch, 1024]), (batch, 1024)


def onnx_lstm():
    nodes, weights, at = [], {}, "x"
    for i in range(2):
        for name, shape in (("W", (1, 1024, 256)), ("R", (1, 1024, 256)), ("B", (1, 2048))):
            weights[f"{name}{i}"] = uniform(shape, -0.06, 0.06, torch.float32)
        nodes += [("LSTM", [at, f"W{i}", f"R{i}", f"B{i}"], [f"s{i}"], {"hidden_size": 256}),
                  ("Squeeze", [f"s{i}", "axis"], ["y" if i else "h"], {})]
        at = "h"
    weights["axis"] = torch.tensor([1])
    return onnx_graph(nodes, weights, [64, 1, 256]), (64, 1, 256)


def onnx_images(name):
    """A network by PyTorch's export, static int8 by ONNX Runtime: scales of rows of weights, ranges
    of one batch."""
    from onnxruntime.quantization import (CalibrationDataReader, QuantType, quant_pre_process,
                                          quantize_static)
    shape = QUANT_IMAGES[name]

    class Batch(CalibrationDataReader):
        def __init__(self):
            self.batches = iter([{"x": uniform(shape, 0, 1, torch.float32).numpy()}])

        def get_next(self):
            return next(self.batches, None)

    with tempfile.TemporaryDirectory() as folder:
        path, made = os.path.join(folder, "m.onnx"), os.path.join(folder, "q.onnx")
        torch.onnx.export(image_of(name)().eval(), (torch.zeros(shape),), path, input_names=["x"],
                          dynamo=False)
        quant_pre_process(path, path, skip_symbolic_shape=True)
        quantize_static(path, made, Batch(), per_channel=True, weight_type=QuantType.QInt8,
                        activation_type=QuantType.QUInt8)
        return pathlib.Path(made).read_bytes(), shape


# Networks of int8 in ONNX Runtime: a model and the shape of its input.
ONNX_CASES = {f"infer_q8_mlp_1024x3_10_b{b}": functools.partial(onnx_mlp, b) for b in (1, 32, 128)}
ONNX_CASES["infer_q8_lstm_2x256"] = onnx_lstm
ONNX_CASES |= {f"infer_q8_{name}": functools.partial(onnx_images, name)
               for name in QUANT_IMAGES}


def onnx_step(name, threads):
    """One iteration of the case in ONNX Runtime; None: it has none, or is not installed."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    if name not in ONNX_CASES or DEVICE != "cpu" or not onnx:
        return None
    model, shape = ONNX_CASES[name]()
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, how, providers=["CPUExecutionProvider"])
    low = 0 if name.removeprefix("infer_q8_") in QUANT_IMAGES else -1
    x = {"x": uniform(shape, low, 1, torch.float32).numpy()}
    return lambda: session.run(None, x)


class Sketched(torch.nn.Module):
    """Panther's SKLinear on the CPU: batched products of all terms, then their means. Gradients by
    autograd, which keeps x U2 where Panther makes it again."""
    def __init__(self, n, m, terms, rank):
        super().__init__()
        shapes = {"S1s": (terms, n, rank), "S2s": (terms, rank, m)}
        for name, shape in shapes.items():
            bound = (2 * terms / n) ** 0.5
            setattr(self, name, torch.nn.Parameter(uniform(shape, -bound, bound, torch.float32)))
        self.bias = torch.nn.Parameter(torch.zeros(m))
        for name, shape in {"U1s": (terms, rank, m), "U2s": (terms, n, rank)}.items():
            self.register_buffer(name, torch.sign(torch.rand(shape) - 0.5) / rank ** 0.5)

    def forward(self, x):
        x = x.unsqueeze(0).expand(self.S1s.shape[0], -1, -1)
        first = x.bmm(self.S1s).bmm(self.U1s).mean(0)
        return (first + x.bmm(self.U2s).bmm(self.S2s).mean(0)) / 2 + self.bias


def sketched_layer(n, m, terms, rank):
    return Sketched(n, m, terms, rank) if terms else torch.nn.Linear(n, m)


def sketched(n, m, terms, rank, batch):
    """Forward and backward of a layer."""
    def make(dtype):
        half = dtype == torch.bfloat16
        layer = sketched_layer(n, m, terms, rank)
        x, dy = uniform((batch, n), -1, 1, dtype).requires_grad_(), uniform((batch, m), -1, 1, dtype)

        def step():
            layer.zero_grad(set_to_none=True)
            x.grad = None
            with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
                y = layer(x)
            y.backward(dy.to(y.dtype))
        return step
    return make


def sketched_training(n, terms, rank, batch):
    def make(dtype):
        half = dtype == torch.bfloat16
        relu = torch.nn.ReLU()
        net = torch.nn.Sequential(sketched_layer(n, n, terms, rank), relu,
                                  sketched_layer(n, n, terms, rank), relu, torch.nn.Linear(n, 10))
        x, y = uniform((batch, n), 0, 1, torch.float32), torch.arange(batch) * 7 % 10
        return train(net, adamw(net.parameters()), x, y, half)
    return make


def sketched_cases():
    """By the names that bench.c gives them: sk_[train_]IN[xOUT]_TERMS_RANK_bBATCH."""
    layers = [(8192, 8192, 1, 16, 64), (8192, 8192, 0, 0, 64), (4096, 4096, 1, 64, 128),
              (4096, 4096, 1, 512, 128), (4096, 4096, 0, 0, 128), (768, 3072, 1, 16, 512),
              (768, 3072, 3, 32, 512), (768, 3072, 0, 0, 512), (1024, 1024, 1, 64, 128),
              (1024, 1024, 0, 0, 128), (2048, 1024, 8, 128, 256), (2048, 1024, 0, 0, 256),
              (1024, 512, 0, 0, 128)]
    layers += [(1024, 512, terms, rank, 128) for terms in (2, 4, 6, 8, 12, 16)
               for rank in (16, 32, 48, 64, 96, 128)]
    cases = {}
    for n, m, terms, rank, batch in layers:
        size, kind = f"{n}" if n == m else f"{n}x{m}", f"{terms}_{rank}" if terms else "dense"
        cases[f"sk_{size}_{kind}_b{batch}"] = sketched(n, m, terms, rank, batch)
    cases["sk_train_4096_1_64_b128"] = sketched_training(4096, 1, 64, 128)
    cases["sk_train_4096_dense_b128"] = sketched_training(4096, 0, 0, 128)
    return cases


# PyTorch is up to twice as fast so as in its default, which is --nchw.
IMAGES = torch.channels_last
CONVS = [("16x64x56x56_64_3x3", 16, 64, 56, 64, 3, 1, 1, 1),
         ("16x128x28x28_128_3x3_s2", 16, 128, 28, 128, 3, 2, 1, 1),
         ("16x256x14x14_256_1x1", 16, 256, 14, 256, 1, 1, 0, 1),
         ("16x144x56x56_depthwise_3x3", 16, 144, 56, 144, 3, 1, 1, 144)]


def conv(part, n, c, size, out, k, stride, pad, groups):
    def make(dtype):
        x = uniform((n, c, size, size), -1, 1, dtype).to(memory_format=IMAGES)
        w = uniform((out, c // groups, k, k), -1, 1, dtype).to(memory_format=IMAGES)
        if part == "y":
            return no_grad(lambda: F.conv2d(x, w, None, stride, pad, 1, groups))
        dy = torch.rand_like(F.conv2d(x, w, None, stride, pad, 1, groups))
        if part == "dx":
            return no_grad(lambda: torch.ops.aten.convolution_backward(
                dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups,
                [True, False, False]))
        x.requires_grad_(), w.requires_grad_()

        def step():
            x.grad = w.grad = None
            F.conv2d(x, w, None, stride, pad, 1, groups).backward(dy)
        return step
    return make


def cnn28():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(1600, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def conv_norm(c, out, kernel, stride, folds):
    """A convolution and its batch norm, or both in one."""
    pair = [torch.nn.Conv2d(c, out, kernel, stride, kernel // 2, bias=False),
            torch.nn.BatchNorm2d(out)]
    return [torch.nn.utils.fusion.fuse_conv_bn_eval(*(m.eval() for m in pair))] if folds else pair


class Block(torch.nn.Module):
    def __init__(self, c, out, stride, folds):
        super().__init__()
        relu = torch.nn.ReLU(inplace=True)
        self.body = torch.nn.Sequential(*conv_norm(c, out, 3, stride, folds), relu,
                                        *conv_norm(out, out, 3, 1, folds))
        self.shortcut = torch.nn.Identity() if c == out and stride == 1 else torch.nn.Sequential(
            *conv_norm(c, out, 1, stride, folds))

    def forward(self, x):
        return F.relu_(self.body(x) + self.shortcut(x))


def resnet20(folds=False):
    widths = [16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks = [Block(c, out, 2 if c != out else 1, folds)
              for c, out in zip([16] + widths, widths)]
    return torch.nn.Sequential(
        *conv_norm(3, 16, 3, 1, folds), torch.nn.ReLU(inplace=True), *blocks,
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))


def images(net, shape, dtype):
    """A network with its batch."""
    x = uniform(shape, 0, 1, torch.float32).to(dtype, memory_format=IMAGES)
    return net.to(dtype).to(memory_format=IMAGES), x


def image_training(net, shape):
    def make(dtype):
        half = dtype == torch.bfloat16
        model, x = images(net(), shape, torch.float32 if half else dtype)
        return train(model, adamw(model.parameters()), x, torch.arange(64) * 7 % 10, half)
    return make


def encoder():
    layer = torch.nn.TransformerEncoderLayer(384, 6, 1536, 0.0, "gelu", batch_first=True,
                                             norm_first=True)
    return torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
        torch.nn.Linear(384, 64), torch.nn.Flatten(0, 1))


def encoder_training(dtype):
    half = dtype == torch.bfloat16
    full = torch.float32 if half else dtype
    net = encoder().to(full)
    x, y = uniform((8, 256, 384), -1, 1, full), torch.arange(8 * 256) * 7 % 64
    return train(net, adamw(net.parameters()), x, y, half)


class GPT(torch.nn.Module):
    """GPT-2 with PyTorch's fused attention; with `cache`, keys and values in tensors made before."""
    def __init__(self, layers, embed, heads, vocab, context):
        super().__init__()
        self.heads, self.context = heads, context
        linear, norm = torch.nn.Linear, torch.nn.LayerNorm
        self.embed = torch.nn.Embedding(vocab, embed)
        self.places = torch.nn.Embedding(context, embed)
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleList(
            [norm(embed), linear(embed, 3 * embed), linear(embed, embed), norm(embed),
             linear(embed, 4 * embed), linear(4 * embed, embed)]) for _ in range(layers))
        self.norm = norm(embed)
        for p in self.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, 0, 0.02)

    def forward(self, x, at=0, cache=None):
        b, t = x.shape
        h = self.embed(x) + self.places.weight[at:at + t]
        for i, (norm1, qkv, out, norm2, up, down) in enumerate(self.blocks):
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2)
                       for y in qkv(norm1(h)).chunk(3, 2))
            if cache is not None:
                cache[i, 0, :, :, at:at + t] = k
                cache[i, 1, :, :, at:at + t] = v
                k, v = cache[i, 0, :, :, :at + t], cache[i, 1, :, :, :at + t]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
            h = h + out(y.transpose(1, 2).reshape(b, t, -1))
            h = h + down(F.gelu(up(norm2(h)), approximate="tanh"))
        return F.linear(self.norm(h), self.embed.weight).flatten(0, 1)


def gpt_training(layers, embed, heads, vocab, t, b):
    def make(dtype):
        half = dtype == torch.bfloat16
        net = GPT(layers, embed, heads, vocab, t).to(torch.float32 if half else dtype)
        x = (torch.arange(b * t) * 7 % vocab).view(b, t)
        return train(net, adamw(net.parameters()), x, torch.arange(b * t) * 7 % 61, half)
    return make


def gpt_text(layers, embed, heads, vocab, prompt=8, tokens=56):
    def make(dtype):
        t = prompt + tokens
        net = GPT(layers, embed, heads, vocab, t).to(dtype).eval()
        x = (torch.arange(prompt) * 7 % vocab).view(1, prompt)
        cache = torch.zeros(layers, 2, 1, heads, t, embed // heads, dtype=dtype)

        def text():
            token = net(x, 0, cache)[-1:].argmax(1, keepdim=True)
            for at in range(prompt, t - 1):
                token = net(token, at, cache)[-1:].argmax(1, keepdim=True)
        return no_grad(text)
    return make


class Recurrent(torch.nn.Module):
    """Layers of which the outputs alone go on."""
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x)[0]


def recurrent_training(kind, layers, embed, hidden, t, b, vocab=65):
    def make(dtype):
        half = dtype == torch.bfloat16
        net = torch.nn.Sequential(
            torch.nn.Embedding(vocab, embed),
            Recurrent(kind(embed, hidden, layers, batch_first=True)),
            torch.nn.Linear(hidden, vocab),
            torch.nn.Flatten(0, 1)).to(torch.float32 if half else dtype)
        x = (torch.arange(b * t) * 7 % vocab).view(b, t)
        return train(net, adamw(net.parameters()), x, torch.arange(b * t) * 7 % 61, half)
    return make


def recurrent_stream(kind, hidden):
    def make(dtype):
        net = kind(hidden, hidden, batch_first=True).to(dtype).eval()
        x, state = uniform((1, 1, hidden), -1, 1, dtype), [None]

        def step():
            with torch.inference_mode():
                _, state[0] = net(x, state[0])
        return step
    return make


def image_inference(name):
    def make(dtype):
        model, x = images(image_of(name)().eval(), QUANT_IMAGES[name], dtype)
        return no_grad(lambda: model(x))
    return make


# ---- infer_plan_ -------------------------------------------------------------------------------

class Formulas(torch.nn.Module):
    """The encoder of bench_plan.h whose norms, attention and GELU are formulas."""
    def __init__(self):
        super().__init__()
        linear, norm = torch.nn.Linear, torch.nn.LayerNorm
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleList(
            [norm(256), linear(256, 768), linear(256, 256), norm(256), linear(256, 1024),
             linear(1024, 256)]) for _ in range(4))

    @staticmethod
    def norm(m, x):
        d = x - x.mean(-1, keepdim=True)
        return d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * m.weight + m.bias

    @staticmethod
    def attention(qkv):
        b, t, _ = qkv.shape
        q, k, v = (y.view(b, t, 4, 64).transpose(1, 2) for y in qkv.chunk(3, 2))
        y = torch.softmax(q @ k.transpose(2, 3) / 8, -1) @ v
        return y.transpose(1, 2).reshape(b, t, 256)

    def forward(self, x):
        for norm1, qkv, out, norm2, up, down in self.blocks:
            x = x + out(self.attention(qkv(self.norm(norm1, x))))
            h = up(self.norm(norm2, x))
            x = x + down(h * (torch.erf(h / 2 ** 0.5) + 1) * 0.5)
        return x


def plan_net(name):
    """The network of a case and its inputs."""
    if "resnet20" in name:
        net, x = images(resnet20().eval(), (64 if "b64" in name else 1, 3, 32, 32), torch.float32)
        return net, (x,)
    if "lstm" in name:
        x, h, c = (uniform((1, 1, 64), -1, 1, torch.float32) for _ in range(3))
        net = torch.nn.LSTM(64, 64, batch_first=True)
        return net, (x, (h, c))
    if "gpt2" in name:
        return GPT(12, 768, 12, 50257, 64), ((torch.arange(64) * 7 % 50257).view(1, 64),)
    if "encoder" in name:
        apart = "apart" in name
        shape = (1, 64, 256 if apart else 384)
        return Formulas() if apart else encoder(), (uniform(shape, -1, 1, torch.float32),)
    widths = [4, 4, 3] if "4_4_3" in name else MLP
    batch = 128 if "b128" in name else 1
    return network(widths), (uniform((batch, widths[0]), 0, 1, torch.float32),)


def compiled(name):
    """torch.compile's fastest mode of three, weights frozen; each compiles in its first call."""
    def make(_):
        import torch._dynamo
        import torch._inductor.config
        torch._inductor.config.freezing = True
        net, inputs = plan_net(name)
        net, steps = net.eval(), []
        for mode in ("default", "reduce-overhead", "max-autotune-no-cudagraphs"):
            torch._dynamo.reset()
            fast = torch.compile(net, mode=mode)
            steps.append(no_grad(functools.partial(fast, *inputs)))
            steps[-1]()
        return min(steps, key=lambda step: torch_seconds(step, 0.3))
    return make


def eager(name):
    def make(_):
        net, inputs = plan_net(name)
        return no_grad(functools.partial(net.eval(), *inputs))
    return make


def plan_cases():
    """The cases of bench_plan.h: plans beside torch.compile, forwards beside PyTorch's."""
    plans = ("4_4_3_b1", "mlp_784_512_512_10_b1", "mlp_784_512_512_10_b128", "resnet20_b1",
             "resnet20_b64", "lstm_1x64_step", "encoder_6x384_t64_b1", "gpt2_124m_t64_b1",
             "apart_encoder_4x256_t64_b1")
    forwards = ("4_4_3_b1", "apart_resnet20_b1", "apart_resnet20_b64", *plans[5:])
    return {**{f"infer_plan_{name}": compiled(name) for name in plans},
            **{f"infer_{name}": eager(name) for name in forwards}}


def ema_update(n):
    def make(dtype):
        p, average = [torch.zeros(n, dtype=dtype)], [torch.zeros(n, dtype=dtype)]
        update = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        return lambda: update(average, p, None)
    return make


def lbfgs_step(n):
    def make(dtype):
        p = torch.empty(n, dtype=dtype).uniform_(-0.03, 0.03).requires_grad_()
        opt = torch.optim.LBFGS([p], lr=1e-4, max_iter=1, max_eval=1, history_size=10,
                                tolerance_grad=0, tolerance_change=0)

        def closure():
            opt.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss
        return lambda: opt.step(closure)
    return make


def optimizer_step(optimizer, *shape):
    shape = shape or (1000000,)

    def make(dtype):
        p = torch.empty(shape, dtype=dtype).uniform_(-0.03, 0.03).requires_grad_()
        p.grad = torch.empty(shape, dtype=dtype).uniform_(1, 2)
        return optimizer([p]).step
    return make


def embedding_step(m, n, k):
    def make(dtype):
        table = torch.randn(m, n, dtype=dtype).requires_grad_()
        index, dy = torch.arange(k) % (k * 3 // 4) * 7919 % m, uniform((k, n), 1, 2, dtype)
        optimizer = torch.optim.SGD([table], lr=1e-3, fused=True)

        def step():
            optimizer.zero_grad()
            F.embedding(index, table).backward(dy)
            optimizer.step()
        return step
    return make


def loader(dtype):
    """An epoch in shuffled order, by hand: several times faster than DataLoader."""
    x, y = uniform((1797, 64), 0, 1, dtype), torch.arange(1797) % 10

    def step():
        for rows in torch.randperm(1797).split(32):
            x[rows], y[rows]
    return step


class Rows(torch.utils.data.Dataset):
    """As the datasets of the bench: a sample at a time."""

    def __init__(self, samples, n, make):
        self.x, self.y, self.n, self.make = samples, torch.arange(n) % 10, n, make

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(self.x, self.y, i)


def one_image(x, y, i):
    """Padded by 4, cropped at random, mirrored, normalised, as torchvision's transforms do it."""
    top, left = torch.randint(9, (2,)).tolist()
    image = F.pad(x[i], (4, 4, 4, 4))[:, top:top + 32, left:left + 32]
    if torch.rand(()) < 0.5:
        image = image.flip(-1)
    return (image.float() / 255 - IMAGE_MEAN) / IMAGE_STD, y[i]


IMAGE_MEAN = torch.tensor([0.49, 0.48, 0.45]).view(3, 1, 1)
IMAGE_STD = torch.tensor([0.25, 0.24, 0.26]).view(3, 1, 1)


def one_window(x, y, i):
    window = x[256 * i:256 * i + 257].long()
    return window[:-1], window[1:]


def one_that_waits(x, y, i):
    time.sleep(0.004 / 32)
    return x[i], y[i]


def data_loader(kind, batch, workers):
    """An epoch of torch.utils.data.DataLoader, its workers kept alive."""
    def make(dtype):
        data = {
            "rows": lambda: Rows(torch.rand(1797, 64), 1797, lambda x, y, i: (x[i], y[i])),
            "images": lambda: Rows(torch.zeros(2000, 3, 32, 32, dtype=torch.uint8), 2000,
                                   one_image),
            "tokens": lambda: Rows((torch.arange(500 * 256 + 1) % 32000).to(torch.int16), 500,
                                   one_window),
            "waits": lambda: Rows(torch.rand(1280, 64), 1280, one_that_waits),
        }[kind]()
        loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=workers,
                                             persistent_workers=workers > 0)

        def step():
            for x, y in loader:
                if kind == "waits":
                    time.sleep(0.008)
        return step
    return make


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-3, fused=True)


def sgd(params):
    return torch.optim.SGD(params, lr=0.01, fused=True)


def sgd_tiny(params):
    """For four small tensors the plain loop is the fastest form: 186 us a step against 207."""
    return torch.optim.SGD(params, lr=0.01, foreach=False)


def rule(name, **options):
    """A rule of torch.optim in its fastest form: fused where it has one, else foreach."""
    return lambda params: getattr(torch.optim, name)(params, lr=1e-3, **options)


RULES = {
    "adam": rule("Adam", fused=True), "amsgrad": rule("Adam", amsgrad=True, fused=True),
    "adamax": rule("Adamax", foreach=True), "nadam": rule("NAdam", foreach=True),
    "radam": rule("RAdam", foreach=True), "rmsprop": rule("RMSprop", foreach=True),
    "adagrad": rule("Adagrad", fused=True), "adadelta": rule("Adadelta", foreach=True),
    "rprop": rule("Rprop", foreach=True),
}
MATRIX_RULES = {"adafactor": rule("Adafactor", foreach=True), "muon": rule("Muon")}

MLP = [784, 512, 512, 10]
MLPS = [("784_512_512_10_b128", MLP, 128), ("784_784_512_10_b32", [784, 784, 512, 10], 32),
        ("1024_2048x3_10_b32", [1024, 2048, 2048, 2048, 10], 32)]
SIZES = {"10k": [64, 80, 56, 10], "100k": [256, 224, 184, 10], "1m": [512, 768, 768, 10],
         "10m": [1024, 2048, 2048, 1792, 10],
         "100m": [4096, 6144, 6144, 5888, 10]}
CASES = {
    **table_cases(),
    **comparison_cases(),
    **{f"{name}_1000x1000": make for name, make in moving_cases().items()},
    "ew_leaky_relu_1000x1000": no_out(F.leaky_relu, -4, 4),
    "ew_elu_1000x1000": no_out(F.elu, -4, 4),
    "ew_celu_1000x1000": no_out(lambda x: F.celu(x, 2), -4, 4),
    "ew_prelu_1000x1000": no_out(lambda x, w: F.prelu(x, w[0]), -4, 4, inputs=2),
    "ew_leaky_relu_step_1000x1000": leaky_step(False),
    "ew_in_place_leaky_relu_step_1000x1000": leaky_step(True),
    "ew_in_place_leaky_relu_1000x1000": no_out(lambda x: F.leaky_relu_(x), -4, 4),
    "ew_isnan_1000x1000": no_out(torch.isnan, -4, 4),
    "ew_isinf_1000x1000": no_out(torch.isinf, -4, 4),
    "ew_isfinite_1000x1000": no_out(torch.isfinite, -4, 4),
    "ew_add_scalar_1000x1000": elementwise(lambda x, out=None: torch.add(x, 3, out=out), 1, -4, 4),
    "ew_sub_scalar_1000x1000": elementwise(lambda x, out=None: torch.sub(x, 3, out=out), 1, -4, 4),
    "ew_mul_scalar_1000x1000": elementwise(lambda x, out=None: torch.mul(x, 3, out=out), 1, -4, 4),
    "ew_div_scalar_1000x1000": elementwise(lambda x, out=None: torch.div(x, 3, out=out), 1, -4, 4),
    "ew_rsub_scalar_1000x1000": no_out(lambda x: torch.rsub(x, 3), -4, 4),
    "ew_pow_scalar_1000x1000": elementwise(lambda x, out=None: torch.pow(x, 2.5, out=out), 1, 0.5,
                                           4),
    "ew_clamp_1000x1000": elementwise(lambda x, out=None: torch.clamp(x, -1, 1, out=out), 1, -4, 4),
    "ew_lt_scalar_1000x1000": elementwise(lambda x, out=None: torch.lt(x, 1, out=out), 1, -4, 4),
    "ew_logical_and_1000x1000": elementwise(torch.logical_and, 2, -4, 4, masks),
    "ew_logical_or_1000x1000": elementwise(torch.logical_or, 2, -4, 4, masks),
    "ew_logical_xor_1000x1000": elementwise(torch.logical_xor, 2, -4, 4, masks),
    "ew_logical_not_1000x1000": elementwise(torch.logical_not, 1, -4, 4, masks),
    "ew_where_1000x1000": elementwise(torch.where, 2, -4, 4, mask_first),
    "ew_masked_fill_1000x1000": no_out(lambda m, x: x.masked_fill(m, 3), -4, 4, mask_first),
    "ew_in_place_add_1000x1000": no_out(lambda a, b: a.add_(b), -4, 4, inputs=2),
    "ew_in_place_sigmoid_1000x1000": no_out(lambda x: x.sigmoid_(), -4, 4),
    "ew_in_place_clamp_1000x1000": no_out(lambda x: x.clamp_(-1, 1), -4, 4),
    "ew_in_place_masked_fill_1000x1000": no_out(lambda m, x: x.masked_fill_(m, 3), -4, 4,
                                                mask_first),
    "ew_in_place_copy_1000x1000": no_out(lambda a, b: a.copy_(b), -4, 4, inputs=2),
    "ew_in_place_fill_1000x1000": no_out(lambda x: x.fill_(3), -4, 4),
    "ew_add_row_1000x1000": elementwise(lambda a, b, out=None: torch.add(a, b[0], out=out), 2, -4,
                                        4),
    "ew_add_transposed_1000x1000": elementwise(lambda a, b, out=None: torch.add(a, b.t(), out=out),
                                               2, -4, 4),
    **line_cases(),
    **draw_cases(),
    **grad_cases(),
    **attention_cases(),
    "row_cross_entropy_1000x1000": cross_entropy_row,
    **loss_cases(),
    "loss_ctc_b32_t200": ctc_loss,
    **gemm_cases(),
    **{f"mlp_{name}_adamw{how}": training(widths, batch, adamw)
       for name, widths, batch in MLPS for how in ("", "_in_backward")},
    **{f"train_{size}_b{batch}_{name}": training(widths, batch, make)
       for size, widths in list(SIZES.items())[2:] for batch in (32, 128)
       for name, make in (("sgd", sgd), ("adam", rule("Adam", fused=True)), ("adamw", adamw))},
    **{f"mem_mlp_{size}_b128_adamw": training(SIZES[size], 128, adamw)
       for size in ("10k", "100k", "1m", "10m")},
    **{f"mem_gpt_{size}_t64_b16_adamw": gpt_training(layers, embed, heads, 65, 64, 16)
       for size, layers, embed, heads in (("10k", 1, 24, 2), ("100k", 2, 64, 4), ("1m", 5, 128, 4),
                                          ("10m", 6, 384, 6))},
    **plan_cases(),
    "infer_mlp_784_512_512_10_b1": inference(MLP, 1),
    "infer_mlp_784_512_512_10_b128": inference(MLP, 128),
    **{f"conv_{part}_{shape[0]}": conv(part, *shape[1:])
       for shape in CONVS for part in ("y", "dx", "train")},
    "net_cnn28_b64_adamw": image_training(cnn28, (64, 1, 28, 28)),
    "net_resnet20_b64_adamw": image_training(resnet20, (64, 3, 32, 32)),
    "net_encoder_6x384_h6_t256_b8_adamw": encoder_training,
    "gpt_4x128_h4_t64_b16": gpt_training(4, 128, 4, 65, 64, 16),
    "gpt_6x384_h6_t256_b8": gpt_training(6, 384, 6, 65, 256, 8),
    "gpt2_124m_t64_b4": gpt_training(12, 768, 12, 50257, 64, 4),
    "rnn_lstm_2x256_t64_b32": recurrent_training(torch.nn.LSTM, 2, 128, 256, 64, 32),
    "rnn_gru_2x256_t64_b32": recurrent_training(torch.nn.GRU, 2, 128, 256, 64, 32),
    "rnn_lstm_1x64_t128_b16": recurrent_training(torch.nn.LSTM, 1, 64, 64, 128, 16),
    "rnn_lstm_stream_b1": recurrent_stream(torch.nn.LSTM, 256),
    "gen_4x128": gpt_text(4, 128, 4, 65),
    "gen_6x384": gpt_text(6, 384, 6, 65),
    "gen_gpt2_124m": gpt_text(12, 768, 12, 50257),
    **quant_cases(),
    **sketched_cases(),
    "overhead_4_4_3_b1_sgd": training([4, 4, 3], 1, sgd_tiny),
    "step_plan_4_4_3_b1": training([4, 4, 3], 1, sgd_tiny),
    "step_plan_mlp_784_784_512_10_b32": training([784, 784, 512, 10], 32, adamw),
    "optim_adamw_1m": optimizer_step(adamw),
    "optim_adamw_10m": optimizer_step(adamw, 10000000),
    "optim_adamw_100m": optimizer_step(adamw, 100000000),
    "embedding_50000x768_8192": embedding_step(50000, 768, 8192),
    "optim_sgd_1000x1000": optimizer_step(sgd),
    **{f"optim_{name}_{size}": optimizer_step(make, n)
       for name, make in RULES.items() for size, n in (("1m", 1000000), ("10m", 10000000))},
    "optim_lbfgs_1m": lbfgs_step(1000000),
    **{f"optim_{name}_{size}": optimizer_step(make, *shape)
       for name, make in MATRIX_RULES.items()
       for size, shape in (("1m", (1000, 1000)), ("10m", (2500, 4000)))},
    "optim_ema_1m": ema_update(1000000),
    "optim_ema_10m": ema_update(10000000),
    "data_loader_1797x64_b32": loader,
    **{f"loader_{name}_b{batch}_w{workers}": data_loader(name.split("_")[0], batch, workers)
       for name, batch in (("rows_1797x64", 32), ("images_2000", 128), ("tokens_500x256", 16),
                           ("waits_1280x64", 32)) for workers in (0, 2)},
}
ONE_THREAD = ("overhead_*", "infer*_4_4_3_*", "step*_4_4_3_*")
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16,
          "f16": torch.float16}


# ---- measuring ---------------------------------------------------------------------------------

def wait():
    """Until the card has done what was asked of it."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(step, loops):
    wait()
    start = time.perf_counter()
    for _ in range(loops):
        step()
    wait()
    return time.perf_counter() - start


def torch_seconds(step, seconds):
    """Median time of one iteration over at least 5 runs of some loops, in about `seconds`."""
    loops, run = 1, seconds / 5
    while True:
        took = timed(step, loops)
        if took >= run / 2:
            break
        loops = int(loops * min(10, max(2, 0.8 * run / max(took, 1e-9)))) + 1
    return statistics.median(timed(step, loops) / loops for _ in range(5))


def mlcore_line(args, name, dtype, threads):
    """One slice of build/bench: the dict of its JSON line, None where the device has no kernel."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        cmd = [args.bench, "--case", name, "--dtype", dtype, "--seconds", str(args.seconds),
               "--threads", str(threads), "--json", out.name, "--no-peaks"]
        if args.device != "cpu":
            cmd += ["--device", args.device]
        done = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = pathlib.Path(out.name).read_text(encoding="utf-8").splitlines()
    if "has no kernel" in done.stderr:
        return None, ""
    if done.returncode or len(lines) != 1:
        sys.exit(f"compare.py: {' '.join(cmd)} failed:\n{done.stderr}")
    return json.loads(lines[0]), done.stdout.splitlines()[0]


def compare(args, name, dtype):
    threads = 1 if any(fnmatch.fnmatch(name, glob) for glob in ONE_THREAD) else args.threads
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    step, onnx = CASES[name](DTYPES[dtype]), onnx_step(name, threads)
    rates, others, onnxes, shares, machine, unit = [], [], [], [], "", ""
    for _ in range(args.rounds):
        time.sleep(0.05)                  # lets the threads of the other side go to sleep
        line, machine = mlcore_line(args, name, dtype, threads)
        if line is None:
            return None, ""
        rates.append(line["rate"])
        unit = line["unit"]
        if line.get("peak_share") is not None and "beside" in line:
            shares.append(line["peak_share"])
        work = line["rate"] * line["median_ms"] * 1e-3         # of one iteration, in that unit
        others.append(work / torch_seconds(step, args.seconds))
        if onnx:
            onnxes.append(work / torch_seconds(onnx, args.seconds))
    ours, theirs = statistics.median(rates), statistics.median(others)
    result = {"case": name, "dtype": dtype, "mlcore": ours, "torch": theirs, "unit": unit,
              "ratio": ours / theirs}
    if onnxes:
        result |= {"onnx": statistics.median(onnxes), "onnx_ratio": ours / statistics.median(onnxes)}
    if shares:
        result |= {"of": line["beside"], "share": statistics.median(shares)}
    return result, machine


def print_means(results):
    """Geometric means of the ratios of each form of product."""
    for form in ("gemm_nt_", "gemm_nn_", "gemm_tn_", "gemm_[nt][nt]_", "gemm_pre_", "gemm_cold_",
                 "gemm_ydx_"):
        for dtype in DTYPES:
            ratios = [r["ratio"] for r in results
                      if fnmatch.fnmatch(r["case"], form + "*") and r["dtype"] == dtype]
            if len(ratios) > 1:
                print(f"geometric mean of {form + '*':16} {dtype:4} {len(ratios):3} cases {'':27}"
                      f"{statistics.geometric_mean(ratios):6.2f}")


def print_quant_means(results):
    """Geometric means of networks of int8, against each of the others and both."""
    both = [r for r in results if "onnx_ratio" in r]
    if not both:
        return
    for name, ratios in (("PyTorch", [r["ratio"] for r in both]),
                         ("ONNX Runtime", [r["onnx_ratio"] for r in both]),
                         ("the faster of them", [min(r["ratio"], r["onnx_ratio"]) for r in both])):
        print(f"geometric mean of infer_q8_*, {len(both)} cases, against {name}: "
              f"{statistics.geometric_mean(ratios):.2f}")


def listed(bench, globs):
    """Cases and dtypes of globs with commas between them."""
    lines = []
    for glob in globs.split(","):
        lines += subprocess.run([bench, "--list", "--case", glob], capture_output=True, text=True,
                                check=True).stdout.splitlines()
    return [tuple(line.split()) for line in dict.fromkeys(lines)]


def number(x):
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def write_table(path, results):
    """The table of bench/RESULTS.md: a row a case, with what it has of f32 and of bf16."""
    kinds = [kind for kind in ("f32", "bf16") if any(r["dtype"] == kind for r in results)]
    cases = {}
    for r in results:
        cases.setdefault(r["case"], {})[r["dtype"]] = r
    with open(path, "w", encoding="utf-8") as out:
        out.write("| case | unit |" + "".join(f" {k}: mlcore | PyTorch | ratio |" for k in kinds) +
                  "\n|---|---|" + "---|---|---|" * len(kinds) + "\n")
        for case, made in cases.items():
            unit = next(iter(made.values()))["unit"]
            cells = [(number(r["mlcore"]), number(r["torch"]), f"{r['ratio']:.2f}")
                     if (r := made.get(k)) else ("", "", "") for k in kinds]
            out.write(f"| `{case}` | {unit} | " + " | ".join(sum(cells, ())) + " |\n")


def options():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    p = argparse.ArgumentParser(description="Times mlcore and PyTorch alternately on one work.")
    p.add_argument("--case", default="*", metavar="GLOB", help="or GLOB,GLOB,...")
    p.add_argument("--json", metavar="FILE", help="one line a case goes here")
    p.add_argument("--table", metavar="FILE", help="f32 and bf16 as a table of RESULTS.md")
    p.add_argument("--nchw", action="store_true", help="PyTorch's images not channels last")
    p.add_argument("--threads", type=int, default=cores, metavar="N", help="for both (all cores)")
    p.add_argument("--rounds", type=int, default=5, metavar="N", help="slices of each side (5)")
    p.add_argument("--seconds", type=float, default=0.5, help="of one slice (0.5)")
    p.add_argument("--device", default="cpu", metavar="NAME", help="cuda or cuda:1, for both (cpu)")
    p.add_argument("--bench", default=str(ROOT / "build" / "bench"), metavar="PATH")
    args = p.parse_args()
    if not os.access(args.bench, os.X_OK):
        sys.exit(f"compare.py: no {args.bench}; build it with: make bench-compare "
                 "(on a GPU: make cuda-bench)")
    made = os.path.getmtime(args.bench)
    for source in (ROOT / "mlcore.h", ROOT / "tests" / "ew_table.h", ROOT / "tests" / "resnet20.h",
                   ROOT / "bench" / "bench.c", *(ROOT / "bench").glob("*.h")):
        if made < os.path.getmtime(source):
            sys.exit(f"compare.py: {args.bench} is older than {source}; make bench-compare builds it")
    return args


def main():
    global IMAGES, DEVICE
    args = options()
    if args.device != "cpu":
        if not torch.cuda.is_available():
            sys.exit("compare.py: this PyTorch has no GPU")
        DEVICE = "cuda"
        torch.set_default_device(args.device)
    if args.nchw:
        IMAGES = torch.contiguous_format
    cases = listed(args.bench, args.case)
    if not cases:
        sys.exit(f"compare.py: no case matches {args.case}")
    out = open(args.json, "w", encoding="utf-8") if args.json else None
    print(f"torch    {torch.__version__} | {args.threads} threads | "
          f"CPU capability {torch.backends.cpu.get_cpu_capability()} | {args.rounds} rounds")
    if DEVICE == "cuda":
        print(f"card     {torch.cuda.get_device_name(args.device)}")
    results = []
    for name, dtype in cases:
        if name not in CASES:
            print(f"{name:32} {dtype:4} has no counterpart in PyTorch: left out")
            continue
        line, machine = compare(args, name, dtype)
        if line is None:
            print(f"{name:32} {dtype:4} has no kernel on {args.device}: left out")
            continue
        if not results:
            print(machine)
            print(f"{'case':32} {'type':4} {'mlcore':>12} {'torch':>12} {'unit':10} {'ratio':>6}"
                  f"   of")
        results.append(line)
        share = f"  {line['share']:4.0%} of {line['of']}" if "of" in line else ""
        onnx = f"  onnx {line['onnx']:.5g} {line['onnx_ratio']:.2f}" if "onnx" in line else ""
        print(f"{name:32} {dtype:4} {line['mlcore']:12.5g} {line['torch']:12.5g} "
              f"{line['unit']:10} {line['ratio']:6.2f}{share}{onnx}", flush=True)
        if out:
            out.write(json.dumps(line) + "\n")
            out.flush()
    print_means(results)
    print_quant_means(results)
    if args.table:
        write_table(args.table, results)
    if out:
        out.close()


if __name__ == "__main__":
    main()
