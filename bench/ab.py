#!/usr/bin/env python3
"""Times mlcore.h of the working tree against that of another commit, in turns in one run.

    make bench-ab REF=commit [CASE='mlp_* gemm_*'] [ISA=avx2]     or:  python3 bench/ab.py --ref ..

Both headers are built with the bench of REF (tests/ab.sh). Each round runs every case on both sides
one after the other, the order of the sides changing from round to round; the table shows the medians
over the rounds, their ratio (above 1: the working tree is faster), the lowest and the highest ratio of
one round, and the geometric mean of all rows. Without CASE it takes the 40 rows below.

    python3 bench/ab.py --among 'gpt_6x384*' 'net_resnet20_*' --rounds 6 --seconds 1.5

times cases of the working tree against each other instead: each round runs those of all globs in
the order of build/bench --list, and a Markdown table has, for each glob and dtype, the times and
the bytes by those of its first case.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# case, dtype: what a change of kernels, drivers, operations or modules would slow down.
ROWS = [row.split() for row in """
    mlp_784_512_512_10_b128_adamw f32; mlp_784_512_512_10_b128_adamw bf16
    mlp_784_784_512_10_b32_adamw f32; mlp_784_784_512_10_b32_adamw bf16
    net_cnn28_b64_adamw f32; net_cnn28_b64_adamw bf16
    net_resnet20_b64_adamw f32; net_resnet20_b64_adamw bf16
    infer_mlp_784_512_512_10_b1 f32; infer_mlp_784_512_512_10_b1 bf16
    infer_resnet20_b1 f32; infer_resnet20_b1 bf16; infer_resnet20_b64 f32
    gemm_nt_32x512x512 f32; gemm_nt_128x512x784 f32; gemm_nt_128x512x784 bf16
    gemm_nn_256x768x768 f32; gemm_tn_128x512x784 f32; gemm_nt_1024x1024x1024 f32
    gemm_nt_1024x1024x1024 bf16; gemm_1000x200x500 f64
    conv_train_16x64x56x56_64_3x3 f32; conv_train_16x64x56x56_64_3x3 bf16
    conv_train_16x128x28x28_128_3x3_s2 f32; conv_train_16x144x56x56_depthwise_3x3 f32
    row_softmax_1000x1000 f32; row_cross_entropy_1000x1000 f32; row_cross_entropy_1000x1000 f64
    row_layer_norm_grad_1000x1000 f32; row_sum_columns_1000x1000 f32; row_var_1000x1000 f32
    ew_add_1000x1000 f32; ew_add_1000x1000 f64; ew_gelu_1000x1000 f32; ew_tanh_1000x1000 f64
    ew_exp_1000x1000 f32; ew_sin_1000x1000 f32; ew_where_1000x1000 f32
    optim_adamw_1m f32; overhead_4_4_3_b1_sgd f32
    """.replace("\n", ";").split(";") if row.strip()]


def options():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--ref", default="HEAD", help="the commit to compare with")
    ask.add_argument("--case", help="globs of cases, or the 40 rows")
    ask.add_argument("--among", nargs="+", metavar="GLOB", help="cases against each glob's first")
    ask.add_argument("--isa", help="level, the best one by default")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--seconds", type=float, default=0.25, help="of timing a case and round")
    ask.add_argument("--threads", help="2 by default, where there are as many cores")
    return ask.parse_args()


def listed(bench, globs):
    names = []
    for glob in globs:
        out = subprocess.run([bench, "--list", "--case", glob], text=True, capture_output=True)
        names += [tuple(line.split()[:2]) for line in out.stdout.splitlines()]
    return list(dict.fromkeys(names))


def line_of(where, case, dtype, o):
    """The JSON line of build/bench in the folder `where`; None if it has no such case."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = ["build/bench", "--case", case, "--dtype", dtype, "--seconds", str(o.seconds),
                   "--no-peaks", "--json", file.name]
        command += ["--threads", o.threads] if o.threads else []
        command += ["--isa", o.isa] if o.isa else []
        run = subprocess.run(command, cwd=where, text=True, capture_output=True)
        lines = pathlib.Path(file.name).read_text().splitlines()
    if run.returncode or not lines:
        return None
    return json.loads(lines[-1])


def seconds_of(side, case, dtype, o):
    """The median seconds of one iteration; None if this side has no such case."""
    line = line_of(ROOT / "build/ab" / side, case, dtype, o)
    return line and line["median_ms"] / 1e3


def among(o):
    """Cases of the working tree in turn, those of a glob and dtype by the first of them."""
    rows = {}
    for glob in o.among:
        names = sorted(listed(ROOT / "build/bench", [glob]), key=lambda row: row[1], reverse=True)
        rows |= {(glob, *row): [] for row in names}
    for _ in range(o.rounds):
        for (_, case, dtype), lines in rows.items():
            lines.append(line_of(ROOT, case, dtype, o))
            if not lines[-1]:
                sys.exit(f"ab.py: {case} {dtype} does not run")
    print("| case | type | median ms | by the first | least ms | by the first | peak MB "
          "| activations MB | by the first |\n" + "|---" * 9 + "|")
    first = {}
    for (glob, case, dtype), lines in rows.items():
        own = [statistics.median(line["median_ms"] for line in lines),
               min(line["best_ms"] for line in lines), lines[0]["activation_bytes"]]
        of = first.setdefault((glob, dtype), own)
        by = [f"{a / b:.2f}" if b else "-" for a, b in zip(own, of)]
        print(f"| `{case}` | {dtype} | {own[0]:.4g} | {by[0]} | {own[1]:.4g} | {by[1]} "
              f"| {lines[0]['peak_bytes'] / 2**20:.1f} | {own[2] / 2**20:.1f} | {by[2]} |")
    return 0 if rows else f"ab.py: no case matches {' '.join(o.among)}"


def main():
    o = options()
    env = dict(os.environ, BLAS="none")
    if o.among:
        if subprocess.run(["make", "-s", "build/bench"], cwd=ROOT, env=env).returncode:
            sys.exit("ab.py: build/bench does not build")
        sys.exit(among(o))
    if subprocess.run(["sh", "tests/ab.sh", o.ref, "build/bench"], cwd=ROOT, env=env).returncode:
        sys.exit("ab.py: one of the sides does not build")
    rows = listed(ROOT / "build/ab/before/build/bench", o.case.split()) if o.case else ROWS
    times = {tuple(row): {"before": [], "after": []} for row in rows}
    for turn in range(o.rounds):
        for row, sides in times.items():
            for side in (("before", "after"), ("after", "before"))[turn % 2]:
                sides[side].append(seconds_of(side, *row, o))
    print(f"{'case':46} {'before':>10} {'after':>10}  ratio  of one round")
    ratios, missing = [], 0
    for (case, dtype), sides in times.items():
        if None in sides["before"] + sides["after"]:
            print(f"{case + ' ' + dtype:46} does not run")
            missing += 1
            continue
        before, after = (statistics.median(sides[side]) for side in ("before", "after"))
        each = sorted(b / a for b, a in zip(sides["before"], sides["after"]))
        ratios.append(before / after)
        print(f"{case + ' ' + dtype:46} {before * 1e6:9.2f}us {after * 1e6:9.2f}us  {ratios[-1]:5.3f}"
              f"  {each[0]:.3f} to {each[-1]:.3f}")
    if ratios:
        mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
        print(f"geometric mean of {len(ratios)} rows: {mean:.3f}, lowest {min(ratios):.3f}")
    sys.exit(1 if missing or not ratios else 0)


if __name__ == "__main__":
    main()
