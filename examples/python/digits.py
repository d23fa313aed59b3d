"""digits.py -- trains a network on handwritten digits from NumPy arrays: mlcore through ctypes

    build   make lib                      build/libmlcore.so; or MLCORE_LIB=FILE names the library
    run     python3 examples/python/digits.py [EPOCHS [OUT.safetensors]]              needs numpy

Functions of mlcore.h are methods of Context, without mlc_; one that fails raises Error with its
text. tensor(array) is a copy of an array, wrap(array) a tensor over its memory. Tensors made within
`with c.scope():` end with it, everything else with the context. A context is used by one thread at
a time; Python's other threads run during a call.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import sys
import weakref

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = dict(float32=0, float64=1, int64=2, float16=4, int32=5, int8=6, uint8=7, bool=8)


class Dims(ctypes.Structure):
    """mlc_dims, a list of at most 8 sizes: the one struct that is passed by value."""
    _fields_ = [("v", ctypes.c_int64 * 8), ("n", ctypes.c_int32)]


# What is called here: the result's type, then those of the arguments.
TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int32, "q": ctypes.c_int64, "d": ctypes.c_double,
         "z": ctypes.c_size_t, "s": ctypes.c_char_p, "D": Dims, "-": None}
FUNCTIONS = """
version s        ctx_create pp    ctx_free -p      ctx_status ip    error sp     error_clear -p
seed ipq         scope_begin ip   scope_end ip     from ppiDp       wrap ppiDpp  read ippz
shape_of sp      item dp          gather_rows ppp  forward ppp      save ips     load ips
nn_linear ppqq   nn_relu pp       nn_dropout ppd   nn_sequential_of ppip         adamw ppd
eval_begin ip    eval_end ip      cross_entropy ppp                 optim_minimize ipp
""".split()
LIB = ctypes.CDLL(os.environ.get("MLCORE_LIB", str(ROOT / "build/libmlcore.so")))
for name, types in zip(FUNCTIONS[::2], FUNCTIONS[1::2]):
    function = getattr(LIB, "mlc_" + name)
    function.restype, *function.argtypes = [TYPES[letter] for letter in types]
if not LIB.mlc_version().startswith(b"0.3."):
    raise ImportError(f"digits.py is for mlcore 0.3, the library is {LIB.mlc_version().decode()}")


class Error(Exception):
    """What mlcore says is wrong."""


def free(p, arrays):
    LIB.mlc_ctx_free(p)
    arrays.clear()                          # no tensor is over their memory any more


def dims(array):
    return Dims((ctypes.c_int64 * 8)(*array.shape), array.ndim)


class Context:
    def __init__(self, seed=0):
        self.p = LIB.mlc_ctx_create(None)
        if not self.p:
            raise MemoryError("mlc_ctx_create")
        self.arrays = []                    # those that wrap() has given to tensors
        self.close = weakref.finalize(self, free, self.p, self.arrays)
        self.seed(self.p, seed)

    def __getattr__(self, name):            # c.forward(net, x) is mlc_forward(net, x), checked
        def call(*args):
            result = getattr(LIB, "mlc_" + name)(*args)
            return result if LIB.mlc_ctx_status(self.p) == 0 else self.fail()
        return call

    def fail(self):
        text = LIB.mlc_error(self.p).decode()
        LIB.mlc_error_clear(self.p)
        raise Error(text)

    @contextlib.contextmanager
    def scope(self):
        self.scope_begin(self.p)
        kept = len(self.arrays)
        try:
            yield
        finally:
            status = LIB.mlc_scope_end(self.p)
            del self.arrays[kept:]
        if status != 0:                     # what a kernel found: a label out of range
            self.fail()

    def tensor(self, array):
        a = np.asarray(array, order="C")
        return getattr(self, "from")(self.p, DTYPES[a.dtype.name], dims(a), a.ctypes.data)

    def wrap(self, a):
        if not (a.flags.c_contiguous and a.flags.writeable):
            raise ValueError("wrap: the array must be C-contiguous and writeable; tensor() copies")
        self.arrays.append(a)
        return self.__getattr__("wrap")(self.p, DTYPES[a.dtype.name], dims(a), None, a.ctypes.data)

    def numpy(self, tensor, dtype=np.float32):
        out = np.empty(json.loads(self.shape_of(tensor)), dtype)
        self.read(tensor, out.ctypes.data, out.nbytes)
        return out

    def sequential(self, *layers):
        return self.nn_sequential_of(self.p, len(layers), (ctypes.c_void_p * len(layers))(*layers))

    def predict(self, net, x):
        with self.scope():
            self.eval_begin(net)
            try:
                return self.numpy(self.forward(net, self.tensor(x)))
            finally:
                self.eval_end(net)


def train(c, net, x, y, epochs, batch=32):
    optim, random = c.adamw(net, 5e-3), np.random.default_rng(0)
    all_x, all_y = c.wrap(x), c.wrap(y)
    for epoch in range(epochs):
        losses = []
        for rows in np.array_split(random.permutation(len(x)), len(x) // batch):
            with c.scope():
                rows = c.tensor(rows)
                logits = c.forward(net, c.gather_rows(all_x, rows))
                loss = c.cross_entropy(logits, c.gather_rows(all_y, rows))
                c.optim_minimize(optim, loss)
                losses.append(c.item(loss))
        print(f"epoch {epoch + 1:2}  loss {np.mean(losses):.4f}")


def main(epochs="20", out=None):
    table = np.loadtxt(ROOT / "examples/data/digits.csv", delimiter=",", dtype=np.float32)
    x, y, held_out = table[:, :64] / 16, table[:, 64].astype(np.int64), table[:, 65] == 1
    with contextlib.closing(Context()) as c:
        net = c.sequential(c.nn_linear(c.p, 64, 256), c.nn_relu(c.p), c.nn_dropout(c.p, 0.2),
                           c.nn_linear(c.p, 256, 10))
        train(c, net, x[~held_out], y[~held_out], int(epochs))
        guess = c.predict(net, x[held_out]).argmax(axis=1)
        if out:
            c.save(net, out.encode())
    print(f"held-out accuracy {np.mean(guess == y[held_out]):.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
