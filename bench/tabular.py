#!/usr/bin/env python3
"""The network of examples/tabular.c and scikit-learn's MLPClassifier on the same rows.

    make build/tabular && python3 bench/tabular.py [SEEDS [EPOCHS]]

Same split, columns standardised by the training rows, 32 hidden units, Adam at 1e-3, batches of 32,
as many epochs. scikit-learn's alpha (L2) is 0, and it does not stop early. Needs scikit-learn.
"""
import csv
import pathlib
import re
import statistics
import subprocess
import sys
import warnings

from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

ROOT = pathlib.Path(__file__).resolve().parent.parent
EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


def rows(held_out):
    with open(ROOT / "examples/data/breast_cancer.csv", encoding="ascii") as file:
        table = list(csv.reader(line for line in file if not line.startswith("#")))[1:]
    picked = [[float(cell) for cell in row] for row in table if int(row[-1]) == held_out]
    return [row[:-2] for row in picked], [int(row[-2]) for row in picked]


def theirs(seed):
    (x, y), (held_x, held_y) = rows(0), rows(1)
    scaler = StandardScaler().fit(x)
    net = MLPClassifier((32,), batch_size=32, learning_rate_init=1e-3, alpha=0.0, tol=0.0,
                        max_iter=EPOCHS, n_iter_no_change=EPOCHS, random_state=seed)
    net.fit(scaler.transform(x), y)
    return 100 * net.score(scaler.transform(held_x), held_y)


def ours(seed):
    done = subprocess.run([ROOT / "build/tabular", "--seed", str(seed), "--epochs", str(EPOCHS)],
                          cwd=ROOT, check=True, capture_output=True, text=True)
    return float(re.search(r"held-out accuracy ([0-9.]+)", done.stdout).group(1))


def main():
    warnings.filterwarnings("ignore")           # it has not converged after so many epochs
    seeds = range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 5))
    for name, run in ("mlcore", ours), ("scikit-learn", theirs):
        scores = [run(seed) for seed in seeds]
        print(f"{name:13} {statistics.mean(scores):6.2f} %  deviation {statistics.stdev(scores):.2f}"
              f"  ({' '.join(f'{score:.2f}' for score in scores)})")


if __name__ == "__main__":
    main()
