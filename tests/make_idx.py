"""Writes digits.csv as the four files of MNIST: 28 x 28 pixels, 0 .. 255, held-out rows as its test.

python3 tests/make_idx.py DIGITS.CSV FOLDER [ROWS]      at most so many rows of each part
"""
import pathlib
import struct
import sys


def enlarged(pixels):
    """8 x 8 pixels as 24 x 24, with a white border of 2."""
    image = bytearray(28 * 28)
    for r in range(24):
        for c in range(24):
            image[(r + 2) * 28 + c + 2] = min(255, 16 * pixels[r // 3 * 8 + c // 3])
    return bytes(image)


def main():
    source, folder = map(pathlib.Path, sys.argv[1:3])
    most = int(sys.argv[3]) if len(sys.argv) > 3 else None
    lines = [line for line in source.read_text().splitlines() if not line.startswith("#")]
    rows = [[int(v) for v in line.split(",")] for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    for held_out, name in (0, "train"), (1, "t10k"):
        part = [row for row in rows if row[65] == held_out][:most]
        (folder / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, len(part), 28, 28)
            + b"".join(enlarged(row[:64]) for row in part))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, len(part)) + bytes(row[64] for row in part))


if __name__ == "__main__":
    main()
