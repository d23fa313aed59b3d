"""The digits' CNN of examples/serve.c by ONNX Runtime, behind the HTTP server of Python's library.

    python3 bench/serve_ort.py WEIGHTS.safetensors

Serves POST /v2/models/digits/infer in JSON, a thread a connection, as serve.c does, and prints the
same first line, so that tests/serve_client.py --beside asks both. Needs numpy, onnx, onnxruntime.
"""
import http.server
import json
import struct
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def weights(path):
    """Arrays of a safetensors file, all of them f32."""
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        entries = json.loads(f.read(n))
        data = f.read()
    entries.pop("__metadata__", None)
    return {k: np.frombuffer(data[slice(*e["data_offsets"])], "<f4").reshape(e["shape"])
            for k, e in entries.items() if e["dtype"] == "F32"}


def model(w):
    """The graph; batch norms are folded by ONNX Runtime."""
    def node(kind, inputs, to, **how):
        return helper.make_node(kind, inputs, [to], **how)

    def block(at, x, to):
        norm = [f"{at + 1}.{k}" for k in ("weight", "bias", "running_mean", "running_var")]
        return [node("Conv", [x, f"{at}.weight"] + [f"{at}.bias"] * (f"{at}.bias" in w), to + "c",
                     pads=[1] * 4),
                node("BatchNormalization", [to + "c", *norm], to + "n", epsilon=1e-5),
                node("Relu", [to + "n"], to)]
    shape = numpy_helper.from_array(np.array([-1, 1, 8, 8]), "shape")
    nodes = [node("Reshape", ["x", "shape"], "image"), *block(1, "image", "a"), *block(4, "a", "b"),
             node("MaxPool", ["b"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
             node("Flatten", ["pool"], "flat"),
             node("Gemm", ["flat", "9.weight", "9.bias"], "y", transB=1)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "digits", [value("x", 1, ["n", 64])], [value("y", 1, ["n", 10])],
        [numpy_helper.from_array(a, k) for k, a in w.items()] + [shape])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.checker.check_model(made)
    return made.SerializeToString()


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests of infer."""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        """Runs the network on one request's rows."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        x = asked["inputs"][0]
        y, = SESSION.run(None, {"x": np.array(x["data"], np.float32).reshape(x["shape"])})
        body = json.dumps({"model_name": "digits", "id": asked.get("id"), "outputs": [
            {"name": "logits", "datatype": "FP32", "shape": y.shape,
             "data": y.ravel().tolist()}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Says nothing."""


class Threads(http.server.ThreadingHTTPServer):
    """Takes as many connections at once as the client makes."""
    request_queue_size = 1024


how = onnxruntime.SessionOptions()
how.intra_op_num_threads = 1
SESSION = onnxruntime.InferenceSession(model(weights(sys.argv[1])), how)
server = Threads(("127.0.0.1", 0), Handler)
print(f"serving on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
