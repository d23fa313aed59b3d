#!/usr/bin/env python3
"""Writes digits.csv, the handwritten digits that `make demo` and the tests train on.

Needs scikit-learn, which carries the images; run once, the result is committed:
    python3 examples/data/make_digits.py
The held-out fifth is chosen here, so that every program which reads the file agrees on it.
"""
import pathlib
import random

from sklearn.datasets import load_digits

HEADER = """\
# Handwritten digits, 8x8 pixels: 1797 rows, made by examples/data/make_digits.py; do not edit.
# Columns: 64 pixels row by row (0 white .. 16 black), label (0 .. 9), held_out (1: test row).
# The held-out rows are a stratified fifth: in each class every fifth row of a seeded order.
# Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998,
#   UCI Machine Learning Repository, doi 10.24432/C50P49 (its test part, as shipped with
#   scikit-learn as sklearn.datasets.load_digits). Licence: Creative Commons Attribution 4.0.
# Changes: one file, integers, the column held_out added.
"""
SEED = 20240229


def held_out_rows(labels):
    """Indices of the test rows: per class, every fifth of a shuffled order."""
    rng = random.Random(SEED)
    rows = set()
    for digit in range(10):
        order = [i for i, label in enumerate(labels) if label == digit]
        rng.shuffle(order)
        rows.update(order[::5])
    return rows


def main():
    data = load_digits()
    labels = [int(label) for label in data.target]
    held_out = held_out_rows(labels)
    lines = []
    for i, (image, label) in enumerate(zip(data.data, labels)):
        values = [int(pixel) for pixel in image] + [label, int(i in held_out)]
        lines.append(",".join(str(value) for value in values))
    assert len(lines) == 1797
    path = pathlib.Path(__file__).with_name("digits.csv")
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="ascii", newline="\n")
    print(f"{path}: {len(lines)} rows, {len(held_out)} held out")


if __name__ == "__main__":
    main()
