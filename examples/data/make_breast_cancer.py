#!/usr/bin/env python3
"""Writes breast_cancer.csv, the table that examples/tabular.c trains on.

Needs scikit-learn, which carries the numbers; run once, the result is committed:
    python3 examples/data/make_breast_cancer.py
The held-out fifth is chosen here, so that every program which reads the file agrees on it.
"""
import pathlib
import random

from sklearn.datasets import load_breast_cancer

HEAD = """\
# Breast tumours: 569 rows, made by examples/data/make_breast_cancer.py; do not edit.
# Columns: 30 measures of cell nuclei in an image, benign (0: malignant), held_out (1: test row).
# The held-out rows are a stratified fifth: in each class every fifth row of a seeded order.
# Source: W. Wolberg, O. Mangasarian, N. Street and W. Street, Breast Cancer Wisconsin (Diagnostic),
#   1993, UCI Machine Learning Repository, doi 10.24432/C5DW2B (as shipped with scikit-learn as
#   sklearn.datasets.load_breast_cancer). Licence: Creative Commons Attribution 4.0.
# Changes: one file, names without blanks, the column held_out added.
"""
SEED = 20240229


def held_out_rows(labels):
    """Indices of the test rows: per class, every fifth of a shuffled order."""
    rng = random.Random(SEED)
    rows = set()
    for label in (0, 1):
        order = [i for i, other in enumerate(labels) if other == label]
        rng.shuffle(order)
        rows.update(order[::5])
    return rows


def main():
    data = load_breast_cancer()
    labels = [int(label) for label in data.target]
    held_out = held_out_rows(labels)
    names = [str(name).replace(" ", "_") for name in data.feature_names] + ["benign", "held_out"]
    lines = [",".join(names)]
    for i, (row, label) in enumerate(zip(data.data, labels)):
        values = [f"{value:.7g}" for value in row] + [str(label), str(int(i in held_out))]
        lines.append(",".join(values))
    assert len(lines) == 570
    path = pathlib.Path(__file__).with_name("breast_cancer.csv")
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="ascii", newline="\n")
    print(f"{path}: {len(lines) - 1} rows, {len(held_out)} held out")


if __name__ == "__main__":
    main()
