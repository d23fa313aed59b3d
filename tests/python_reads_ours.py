"""Reads with numpy and safetensors what mlcore wrote, and compares every bit of every dtype.

    MLC_TEST_OUT=FOLDER build/tests --filter bits.
    python3 tests/python_reads_ours.py FOLDER

Prints what it read, or a line that begins with "skipped" where numpy or safetensors are not
installed. Element i of a tensor is `pattern(dtype, i)`, as in tests/test_bits.c; the golden files
io_bits.* were made with it, too (make_io_goldens.py).
"""
import os
import sys

COUNT = 3 * 5 * 7
SIZE = {"f32": 4, "f64": 8, "i64": 8, "bf16": 2, "f16": 2, "i32": 4, "i8": 1, "u8": 1, "bool": 1}
NAN = {"f32": 0x7F800001, "f64": 0x7FF0000000000001, "bf16": 0x7F81, "f16": 0x7C01}
CODE = {"f32": "<f4", "f64": "<f8", "i64": "<i8", "bf16": "<f4", "f16": "<f2", "i32": "<i4",
        "i8": "|i1", "u8": "|u1", "bool": "|b1"}
KINDS = {"": ((3, 5, 7), COUNT), ".scalar": ((), 1), ".empty": ((0, 4), 0),
         ".vector": ((COUNT,), COUNT)}


def pattern(dtype, i):
    h = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
    if dtype == "bool":
        return h >> 63
    v = h >> (64 - 8 * SIZE[dtype])
    return v | NAN.get(dtype, 0) if i % 7 == 3 else v


def bits(dtype, n):
    return b"".join(pattern(dtype, i).to_bytes(SIZE[dtype], "little") for i in range(n))


def same(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r:.200} is not {want!r:.200}")


def npz_bits(dtype, n):
    """What stands in .npy and .npz: bf16 as the f32 of the same value."""
    if dtype != "bf16":
        return bits(dtype, n)
    return b"".join((pattern(dtype, i) << 16).to_bytes(4, "little") for i in range(n))


def array(what, a, dtype, shape, n):
    same(what + ": dtype", a.dtype.str, CODE[dtype])
    same(what + ": shape", a.shape, shape)
    same(what + ": bits", a.tobytes(), npz_bits(dtype, n))


def read_npy(folder, np):
    for dtype in SIZE:
        array(dtype + ".npy", np.load(os.path.join(folder, dtype + ".npy"), allow_pickle=False),
              dtype, (3, 5, 7), COUNT)
    with np.load(os.path.join(folder, "bits.npz"), allow_pickle=False) as z:
        same("bits.npz", len(z.files), len(SIZE) * len(KINDS) + 1)
        for dtype in SIZE:
            for kind, (shape, n) in KINDS.items():
                array("bits.npz " + dtype + kind, z[dtype + kind], dtype, shape, n)
        want = np.frombuffer(bits("f32", COUNT), np.uint32).reshape(15, 7).T
        same("bits.npz transposed", z["transposed"].view(np.uint32).tolist(), want.tolist())
    print(f"numpy {np.__version__}: {len(SIZE)} .npy files and a .npz, the same bits")


def read_safetensors(folder, np, safetensors):
    from safetensors.numpy import load_file

    path = os.path.join(folder, "bits.safetensors")
    with open(path, "rb") as f:
        raw = dict(safetensors.deserialize(f.read()))
    same("bits.safetensors", len(raw), len(SIZE) * len(KINDS) + 1)
    for dtype in SIZE:
        for kind, (shape, n) in KINDS.items():
            t = raw[dtype + kind]
            same(dtype + kind + ": dtype", t["dtype"], dtype.upper())
            same(dtype + kind + ": shape", list(t["shape"]), list(shape))
            same(dtype + kind + ": bits", bytes(t["data"]), bits(dtype, n))
    want = np.frombuffer(bits("f32", COUNT), np.uint32).reshape(15, 7).T.copy()
    same("transposed", bytes(raw["transposed"]["data"]), want.tobytes())
    with safetensors.safe_open(path, framework="numpy") as f:
        same("metadata", f.metadata(), {"made by": "mlcore", '\u03c0 "quoted"': "tab\t"})
        array("safe_open f32", f.get_tensor("f32"), "f32", (3, 5, 7), COUNT)
    net = load_file(os.path.join(folder, "network.safetensors"))
    same("network", {k: v.shape for k, v in sorted(net.items())},
         {"0.bias": (8,), "0.weight": (8, 4), "2.bias": (2,), "2.weight": (2, 8)})
    ours = load_file(os.path.join(folder, "renamed.safetensors"))
    parts = {"2.bias": net["2.bias"], "turned": net["2.weight"].T}
    for k in ("weight", "bias"):
        parts["q." + k], parts["k." + k] = net["0." + k][:3], net["0." + k][3:]
    same("renamed", {k: v.tolist() for k, v in sorted(ours.items())},
         {k: v.tolist() for k, v in sorted(parts.items())})
    print(f"safetensors {safetensors.__version__}: {len(raw)} tensors of {len(SIZE)} dtypes, "
          "the same bits")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        import numpy as np
        import safetensors
    except ImportError as missing:
        print(f"skipped: {missing}")
        return
    read_npy(sys.argv[1], np)
    read_safetensors(sys.argv[1], np, safetensors)


if __name__ == "__main__":
    main()
