"""Checks files of ONNX that mlcore wrote with onnx, and runs them with ONNX Runtime.

    MLC_TEST_OUT=FOLDER build/tests --filter onnx_save.
    python3 tests/python_runs_onnx.py FOLDER

NAME.npz beside NAME.onnx has inputs x0, x1, .. and the forward's y0, y1, ..: outputs must agree within
1e-5 of the largest one, those of cases with f16 and of networks of integers within 4e-3. A file without
a .npz has bf16 and is checked alone, as is one of a dtype that ONNX Runtime's operators have not.
Prints a line that begins with "skipped" where a package is not installed.
"""
import glob
import os
import sys

NEAR, NEAR_OF_F16 = 1e-5, 4e-3


def apart(got, want, near, np):
    """The largest difference over the largest value; infinities and NaN must be the same."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {got.shape} for {want.dtype} {want.shape}"
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return "other infinities or NaN"
    most = max(1e-30, float(np.abs(want[finite]).max(initial=0)))
    off = float(np.abs(got[finite] - want[finite]).max(initial=0)) / most
    return None if off <= near else f"{off:.2e}"


def run(path, np, onnx, ort):
    """What is wrong with a file, or None; "": it was checked alone."""
    onnx.checker.check_model(onnx.load(path), full_check=True)
    if not os.path.exists(path[:-5] + ".npz"):
        return ""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    whole = os.path.basename(path).startswith("integers.")
    # Products of u8 by i8 that do not saturate where VNNI is missing, and weights alone of integers.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return ""
    with np.load(path[:-5] + ".npz", allow_pickle=False) as case:
        feed = {i.name: case[i.name] for i in session.get_inputs()}
        outs = [o.name for o in session.get_outputs()]
        try:
            got = session.run(outs, feed)
        except ort.capi.onnxruntime_pybind11_state.RuntimeException as e:
            if "does not support" in str(e) or "is not supported" in str(e):
                return ""
            raise
        f16 = any(case[k].dtype == np.float16 for k in case.files)
        near = NEAR_OF_F16 if f16 or whole else NEAR
        wrong = [apart(y, case[name], near, np) for name, y in zip(outs, got)]
        return next((why for why in wrong if why), None)


def main():
    try:
        import numpy as np
        import onnx
        import onnxruntime as ort
    except ImportError as e:
        print("skipped:", e)
        return
    paths = sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx")))
    wrong = unrun = 0
    for path in paths:
        try:
            why = run(path, np, onnx, ort)
        except Exception as e:                       # of onnx or ONNX Runtime: a line a file
            why = str(e).strip().replace("\n", " ")[:200]
        unrun += why == ""
        if why:
            print(os.path.basename(path) + ":", why)
            wrong += 1
    print(f"{len(paths)} files, {wrong} wrong, {unrun} checked alone; onnx {onnx.__version__}, "
          f"ONNX Runtime {ort.__version__}")
    if wrong or not paths:
        sys.exit(1)


main()
