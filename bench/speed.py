#!/usr/bin/env python3
"""Draws speeds of mlcore over PyTorch's: bench/speed.svg from tables of bench/RESULTS.md.

    python3 bench/speed.py                       with a python3 that has matplotlib

Each bar is a row of a table, found by heading, case and dtype; the picture names machine and commit.
"""
import pathlib
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of a backend)

BENCH = pathlib.Path(__file__).resolve().parent
EPYC = "AMD EPYC (Zen 4)"
AMX = "Intel Xeon (AMX)"
BARS = [  # label, heading, case, dtype
    ("train MLP 784-512-512-10, batch 128", EPYC, "mlp_784_512_512_10_b128_adamw", "f32"),
    ("train MLP 784-784-512-10, batch 32", EPYC, "mlp_784_784_512_10_b32_adamw", "f32"),
    ("infer MLP, batch 1", EPYC, "infer_mlp_784_512_512_10_b1", "f32"),
    ("product 1024 x 1024 x 1024", EPYC, "gemm_nt_1024x1024x1024", "f32"),
    ("softmax", EPYC, "row_softmax_1000x1000", "f32"),
    ("AdamW, 10 M parameters", EPYC, "optim_adamw_10m", "f32"),
    ("train MLP 784-512-512-10, batch 128", AMX, "mlp_784_512_512_10_b128_adamw", "f32"),
    ("train MLP 784-512-512-10, batch 128", AMX, "mlp_784_512_512_10_b128_adamw", "bf16"),
    ("product 1024 x 1024 x 1024", AMX, "gemm_nt_1024x1024x1024", "f32"),
    ("product 1024 x 1024 x 1024", AMX, "gemm_nt_1024x1024x1024", "bf16"),
    ("train CNN 28 x 28, batch 64", AMX, "net_cnn28_b64_adamw", "f32"),
    ("train ResNet-20, batch 64", AMX, "net_resnet20_b64_adamw", "f32"),
    ("train ResNet-20, batch 64", AMX, "net_resnet20_b64_adamw", "bf16"),
    ("train LSTM 2 x 256", AMX, "rnn_lstm_2x256_t64_b32", "f32"),
    ("train GPT 4 x 128", AMX, "gpt_4x128_h4_t64_b16", "f32"),
    ("train GPT 4 x 128", AMX, "gpt_4x128_h4_t64_b16", "bf16"),
]


def sections():
    """Text below each heading of RESULTS.md."""
    parts = re.split(r"(?m)^##+ ", (BENCH / "RESULTS.md").read_text(encoding="utf-8"))
    return {part.split("\n", 1)[0]: part for part in parts[1:]}


def cells(line):
    """Cells of a row."""
    return [cell.strip(" `") for cell in line.strip("|").split("|")]


def ratio(text, case, dtype):
    """The ratio of a case and dtype in a table that `bench/compare.py --table` wrote."""
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    at = rows[0].index(f"{dtype}: mlcore") + 2
    for row in rows:
        if row[0] == case and row[at]:
            return float(row[at])
    raise SystemExit(f"speed.py: no {case} {dtype} in bench/RESULTS.md")


def main():
    """Reads, draws, saves."""
    texts = sections()
    rows = []
    for label, heading, case, dtype in BARS:
        text = next(t for name, t in texts.items() if name.startswith(heading))
        rows.append((f"{label}, {dtype}", ratio(text, case, dtype), heading))
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mlcore", "font.size": 10})
    figure, axes = plt.subplots(figsize=(9, 4.6), facecolor="white")
    colours = {EPYC: "#0072b2", AMX: "#d55e00"}
    places = range(len(rows))[::-1]
    values = [row[1] for row in rows]
    axes.barh(places, values, color=[colours[row[2]] for row in rows], height=0.7)
    axes.set_yticks(places, [row[0] for row in rows])
    axes.axvline(1, color="#555555", linewidth=1)
    for y, value in zip(places, values):
        axes.text(value + 0.04, y, f"{value:.2f}", va="center")
    axes.set_xlim(0, max(values) + 0.5)
    axes.set_xlabel("speed over PyTorch 2.15 (1: as fast); 2 virtual cores")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for heading, colour in colours.items():
        name = next(name for name in texts if name.startswith(heading))
        axes.plot([], [], color=colour, linewidth=7,
                  label=f"{heading}, {re.search('commit [0-9a-f]+', name)[0]}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1), ncols=2, frameon=False)
    figure.tight_layout()
    figure.savefig(BENCH / "speed.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
