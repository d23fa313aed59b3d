"""Reads runs that mlcore wrote by TensorBoard's own reader, and its pictures by pillow.

    MLC_TEST_OUT=FOLDER build/tests --filter tensorboard.
    python3 tests/python_reads_tensorboard.py FOLDER

FOLDER has the runs golden, graph, fit, resumed, and killed0 to killed11 of tests/test_tensorboard.c,
which says what is in them, and traced of tests/test_profile.c, which torch-tb-profiler reads where it
is installed. Prints a line that begins with "skipped" where a package is not installed.
"""
import glob
import io
import json
import os
import sys
import tempfile

STEPS_OF_ROWS = [5, 10, 15]


def read_all(folder, accumulator):
    """The events of a run, all of them."""
    run = accumulator.EventAccumulator(folder, size_guidance=dict.fromkeys(
        ("scalars", "histograms", "images", "tensors", "compressedHistograms"), 0))
    run.Reload()
    return run


def golden(run, image):
    """What is wrong with the run golden; a list of texts."""
    from tensorboard.plugins.hparams import plugin_data_pb2
    loss = [(e.step, e.value, e.wall_time) for e in run.Scalars("loss")]
    h = run.Histograms("w")[0].histogram_value
    png = run.Images("picture")[0]
    with image.open(io.BytesIO(png.encoded_image_string)) as picture:
        pixels = list(picture.convert("RGB").tobytes())
    text = run.Tensors("note")[0].tensor_proto
    curve = run.Tensors("pr")[0].tensor_proto
    start = plugin_data_pb2.HParamsPluginData.FromString(
        run.SummaryMetadata("_hparams_/session_start_info").plugin_data.content).session_start_info
    end = plugin_data_pb2.HParamsPluginData.FromString(
        run.SummaryMetadata("_hparams_/session_end_info").plugin_data.content).session_end_info
    rows = dict(zip("tp fp tn fn precision recall".split(),
                    [list(curve.float_val[i * 127:i * 127 + 127]) for i in range(6)]))
    checks = {
        "scalars": loss == [(1, 0.5, 1.7e9), (300, 0.25, 1.7e9)],
        "histogram": (h.min, h.max, h.num, h.sum, h.sum_squares) == (-1, 2, 5, 2, 5.5) and
                     sum(h.bucket) == 5 and len(h.bucket) == len(h.bucket_limit),
        "picture": (png.width, png.height) == (2, 2) and
                   pixels == [255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255],
        "text": list(text.string_val) == ["a *b* é".encode()],
        "curve": len(curve.float_val) == 6 * 127 and
                 [rows[k][0] for k in rows] == [2, 2, 0, 0, 0.5, 1] and
                 [rows["precision"][i] for i in (50, 51)] == [0.5, 1] and rows["recall"][51] == 0.5,
        "hparams": start.hparams["lr"].number_value == 0.001 and
                   start.hparams["rule"].string_value == "adamw" and end.status == 1,
    }
    return [name for name, good in checks.items() if not good]


def graph(run, _):
    """What is wrong with the run graph."""
    nodes = {n.name: n for n in run.Graph().node}
    wires = [i for n in nodes.values() for i in n.input if i not in nodes]
    good = not wires and list(nodes["0/linear"].input) == ["input", "0/weight", "0/bias"]
    return [] if good else ["nodes"]


def fit(run, _):
    """What is wrong with the run fit."""
    checks = {
        "rows": [e.step for e in run.Scalars("loss")] == STEPS_OF_ROWS,
        "losses": [e.step for e in run.Scalars("batch/loss")] == list(range(2, 16, 2)),
        "histograms": [e.step for e in run.Histograms("gradients/0.weight")] == [7, 14],
        "graph": len(run.Graph().node) > 5,
        "hparams": "_hparams_/experiment" in run.PluginTagToContent("hparams"),
    }
    return [name for name, good in checks.items() if not good]


def resumed(run, _):
    """What is wrong with the run resumed."""
    return [] if [e.step for e in run.Scalars("loss")] == STEPS_OF_ROWS else ["rows"]


def killed(run, _):
    """What is wrong with a run that was killed: its scalars have their steps as values, no gap."""
    had = [(e.step, e.value) for e in run.Scalars("a")] if "a" in run.Tags()["scalars"] else []
    want = [i for i in range(had[-1][0] + 1 if had else 0) if i % 7 != 3 and i % 31 != 5]
    return [] if had == [(i, float(i)) for i in want] else ["steps"]


def traced(folder):
    """What is wrong with the trace of four steps of a profile."""
    paths = glob.glob(os.path.join(folder, "*.pt.trace.json"))
    with open(paths[0], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    calls = [e for e in events if e["ph"] == "X" and e["name"] == "linear"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    inside = [any(s["ts"] <= c["ts"] and c["ts"] + c["dur"] <= s["ts"] + s["dur"] + 1e-3
                  for s in steps) for c in calls]
    wrong = [] if len(paths) == 1 and len(calls) == 8 and len(steps) == 4 and all(inside) else ["json"]
    try:
        from torch_tb_profiler.profiler.data import RunProfileData
    except ImportError as e:
        print("skipped:", e)
        return wrong
    with tempfile.TemporaryDirectory() as cache:
        run = RunProfileData.parse("mlcore", None, paths[0], cache)
    rows = {row.name: row.calls for row in run.op_list_groupby_name}
    good = run.steps_names == list("0123") and rows["linear"] == rows["linear backward"] == 8
    return wrong if good else wrong + ["torch-tb-profiler"]


def main():
    """Ends with 1 where a run is not what it should be."""
    try:
        import tensorboard
        from PIL import Image
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError as e:
        print("skipped:", e)
        return
    wrong = 0
    runs = {check.__name__: check for check in (golden, graph, fit, resumed)}
    runs |= {f"killed{i}": killed for i in range(12)} | {"traced": traced}
    for name, check in runs.items():
        folder = os.path.join(sys.argv[1], name)
        try:
            why = traced(folder) if check is traced else check(read_all(folder, event_accumulator),
                                                               Image)
        except Exception as e:                       # of TensorBoard or pillow: a line a run
            why = [repr(e)[:300]]
        if why:
            print(name + ":", ", ".join(why))
            wrong += 1
    print(f"{len(runs)} runs, {wrong} wrong; tensorboard {tensorboard.__version__}")
    if wrong:
        sys.exit(1)


main()
