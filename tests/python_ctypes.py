"""Holds examples/python/digits.py: values both ways, errors, and what is kept and what is not.

    MLCORE_LIB=FILE python3 tests/python_ctypes.py

Prints what it did, or a line that begins with "skipped" where numpy is not installed.
"""
import contextlib
import ctypes
import gc
import io
import pathlib
import re
import sys
import tempfile
import weakref

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy for", sys.executable)
    sys.exit(0)

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples/python"))
import digits  # noqa: E402  (its folder is added above)


def error_of(function, *args):
    try:
        function(*args)
    except digits.Error as error:
        return str(error)
    raise AssertionError("no error")


def declarations():
    """The types of digits.py are those of mlcore.h, where D, p and s are by their C types."""
    letters = {"int64_t": "q", "int32_t": "i", "mlc_dtype": "i", "mlc_status": "i", "double": "d",
               "float": "f", "size_t": "z", "mlc_dims": "D", "uint64_t": "q", "void": "-"}
    text = (ROOT / "mlcore.h").read_text()
    for name, types in zip(digits.FUNCTIONS[::2], digits.FUNCTIONS[1::2]):
        result, args = re.search(rf"^MLC_API (.*?[ *])mlc_{name}\(([^)]*)\)", text, re.M).groups()
        args = [] if args == "void" else re.split(r",\s*", args)
        want = "".join("s" if "char *" in c else "p" if "*" in c
                       else letters[c.split()[-2] if n else c.split()[-1]]
                       for n, c in enumerate([result] + args))
        assert types == want, f"{name} is {want}, not {types}"
    return len(digits.FUNCTIONS) // 2


def values():
    with contextlib.closing(digits.Context()) as c:
        for name in digits.DTYPES:
            a = np.arange(24).reshape(2, 3, 4).astype(name)
            for b in (a, a[:, ::2], a.T, a[0, 0, 0], a[:0]):
                with c.scope():
                    back = c.numpy(c.tensor(b), b.dtype)
                assert back.shape == b.shape and (back == b).all(), (name, b.shape)
            with c.scope():
                t = c.wrap(a)
                a[1, 2, 3] = 1
                assert c.numpy(t, name)[1, 2, 3] == 1, "a wrapped array is the tensor's memory"
        for wrong in (a.T, np.broadcast_to(np.float32(1), (2, 2))):
            try:
                c.wrap(wrong)
                raise AssertionError("wrap took it")
            except ValueError:
                pass


def errors():
    with contextlib.closing(digits.Context()) as c:
        net = c.nn_linear(c.p, 4, 3)
        ones = np.ones((5, 4), np.float32)
        text = error_of(c.predict, net, np.ones((5, 3), np.float32))
        assert "linear" in text and "4" in text, text
        assert c.predict(net, ones).shape == (5, 3), "an error is forgotten when it was raised"

        def labels_out_of_range():
            with c.scope():
                c.cross_entropy(c.forward(net, c.tensor(ones)), c.tensor(np.full(5, 3)))
        text = error_of(labels_out_of_range)
        assert "3" in text, text
        assert c.error(c.p) == b""
        error_of(c.load, net, b"no such file")
        try:
            with c.scope():
                raise KeyError("the program's own")
        except KeyError:
            pass
        text = error_of(c.scope_end, c.p)
        assert "scope" in text, f"the scope has ended: {text}"


def memory():
    """What wrap() keeps is released with its scope or context; steps take no more memory."""
    class Array(np.ndarray):
        """One that a weak reference sees."""
    def array():
        return np.zeros(1000, np.float32).view(Array)
    c = digits.Context()
    kept, passed = array(), array()
    seen = [weakref.ref(kept), weakref.ref(passed)]
    c.wrap(kept)
    with c.scope():
        c.wrap(passed)
    del kept, passed
    gc.collect()
    assert seen[0]() is not None and seen[1]() is None
    info = (ctypes.c_int64 * 64)()
    digits.LIB.mlc_memory_info.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    x, y = np.random.rand(64, 4).astype(np.float32), np.zeros(64, np.int64)
    net, used = c.nn_linear(c.p, 4, 3), []
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(3):
            digits.train(c, net, x, y, 5, batch=8)
            c.predict(net, x)
            assert digits.LIB.mlc_memory_info(c.p, info) == 0
            used.append(info[0])
    # Another optimizer and two tensors over arrays a time.
    assert used[2] - used[1] == used[1] - used[0] < 4096, used
    del c
    gc.collect()
    assert seen[0]() is None


def training():
    out = pathlib.Path(tempfile.mkdtemp()) / "digits.safetensors"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        digits.main("3", str(out))
    lines = said.getvalue().splitlines()
    accuracy = float(re.fullmatch(r"held-out accuracy (\d+\.\d)%", lines[-1])[1])
    assert len(lines) == 4 and accuracy > 90, said.getvalue()
    with contextlib.closing(digits.Context()) as c:
        net = c.sequential(c.nn_linear(c.p, 64, 256), c.nn_relu(c.p), c.nn_dropout(c.p, 0.2),
                           c.nn_linear(c.p, 256, 10))
        c.load(net, str(out).encode())
        table = np.loadtxt(ROOT / "examples/data/digits.csv", delimiter=",", dtype=np.float32)
        held_out = table[table[:, 65] == 1]
        guess = c.predict(net, held_out[:, :64] / 16).argmax(axis=1)
        assert round(100 * np.mean(guess == held_out[:, 64]), 1) == accuracy
    return lines[-1]


print(f"{declarations()} functions are declared as in mlcore.h")
values()
errors()
memory()
print(training())
