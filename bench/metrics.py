#!/usr/bin/env python3
"""Runs the metric_ cases of build/bench in mlcore and in scikit-learn, alternately in one run.

    make build/bench && python3 bench/metrics.py [--case GLOB] [--json FILE]

Each round times mlcore (build/bench for a short slice), then scikit-learn's function on as many
rows of the same kind in this process; medians over the rounds count. A ratio above 1 means that
mlcore is faster. scikit-learn works on one thread, --threads is mlcore's. Needs scikit-learn.
"""
import argparse
import fnmatch
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent

try:
    import numpy as np
    from sklearn import metrics as M
except ImportError:
    sys.exit("metrics.py: this Python has no scikit-learn; install it in a virtual environment")

N = 1000000


def cases():
    """Each a function without arguments; labels are those of build/bench."""
    r = np.random.default_rng(1)
    two, ten = np.arange(N) * 7 % 2, np.arange(N) * 7 % 10
    s = r.random(N, dtype=np.float32)
    p = r.random((N, 10), dtype=np.float32)
    p /= p.sum(1, keepdims=True)
    labels, other = r.integers(0, 10, N), r.random(N, dtype=np.float32)
    return {
        "metric_auc_1m": lambda: M.roc_auc_score(two, s),
        "metric_ap_1m": lambda: M.average_precision_score(two, s),
        "metric_accuracy_1m": lambda: M.accuracy_score(ten, p.argmax(1)),
        "metric_top5_1m": lambda: M.top_k_accuracy_score(ten, p, k=5),
        "metric_log_loss_1m": lambda: M.log_loss(ten, p),
        "metric_mse_1m": lambda: M.mean_squared_error(other, s),
        "metric_mae_1m": lambda: M.mean_absolute_error(other, s),
        "metric_r2_1m": lambda: M.r2_score(other, s),
        "metric_f1_1m": lambda: M.f1_score(ten, labels, average="macro"),
        "metric_balanced_accuracy_1m": lambda: M.balanced_accuracy_score(ten, labels),
        "metric_confusion_1m": lambda: M.confusion_matrix(ten, labels),
    }


def mlcore_ms(args, name):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        cmd = [args.bench, "--case", name, "--dtype", "f32", "--seconds", str(args.seconds),
               "--threads", str(args.threads), "--json", out.name, "--no-peaks"]
        done = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = pathlib.Path(out.name).read_text(encoding="utf-8").splitlines()
    if done.returncode or len(lines) != 1:
        sys.exit(f"metrics.py: {' '.join(cmd)} failed:\n{done.stderr}")
    return json.loads(lines[0])["median_ms"]


def other_ms(step, seconds):
    times, until = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description="Times metrics of mlcore and of scikit-learn.")
    parser.add_argument("--case", default="*", metavar="GLOB")
    parser.add_argument("--json", metavar="FILE", help="one line a case goes here")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of mlcore (1)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="a slice (0.3)")
    parser.add_argument("--bench", default=str(ROOT / "build" / "bench"), metavar="PATH")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'case':28} {'mlcore ms':>10} {'sklearn ms':>11} {'ratio':>7}")
    results = []
    for name, step in cases().items():
        if not fnmatch.fnmatch(name, args.case):
            continue
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(mlcore_ms(args, name))
            theirs.append(other_ms(step, args.seconds))
        a, b = statistics.median(ours), statistics.median(theirs)
        results.append({"case": name, "mlcore_ms": a, "sklearn_ms": b, "ratio": b / a})
        print(f"{name:28} {a:10.2f} {b:11.2f} {b / a:7.2f}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in results),
                                           encoding="utf-8")


main()
