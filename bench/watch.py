#!/usr/bin/env python3
"""Finds what has become slower, or larger, since another commit: the one check that fails on time.

    make watch REF=commit [CASE='mlp_* gemm_*'] [COMMITS=20]    or:  python3 bench/watch.py --ref ..

The working tree against REF, or with --commits N the last N commits of mlcore.h each against the one
before. All sides have the bench of REF (of the oldest commit), so that only the header differs. Each
round runs a row, which is a case and a dtype, on all sides, up and down in turn, later on the sides of
undecided pairs alone; the ratio of a round is of two times that follow each other, so that a machine
that slows down slows both. The verdict is the interval of the median ratio over the rounds, by
bootstrap, 99 of 100:

    fine       it ends below FACTOR, 1.1 by default
    slower     it begins above FACTOR, and so it does in new rounds
    undecided  neither, after --most rounds: the machine is too busy; this is no failure

Bytes, the peak of memory and what is kept for backward, are the same in each run: larger than FACTOR
times is a failure, and so is any that is kept where nothing was. A row that only the older of two
sides can run is a failure. build/watch has the table, times.json and the picture watch.svg. The exit
status is 1 after a failure. --check tests the verdicts on made-up times, without a bench.
"""
import argparse
import itertools
import json
import math
import operator
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

import ab

OUT = ab.ROOT / "build/watch"
DRAWS = 2000
COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf"]


def options():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--ref", default="HEAD", help="the commit to compare with")
    ask.add_argument("--commits", type=int, help="so many commits of mlcore.h, up to HEAD")
    ask.add_argument("--case", help="globs of cases, or the 40 rows of ab.py")
    ask.add_argument("--isa", help="level, the best one by default")
    ask.add_argument("--threads", help="2 by default, where there are as many cores")
    ask.add_argument("--seconds", type=float, default=0.2, help="of timing a case, side and round")
    ask.add_argument("--rounds", type=int, default=8, help="at least")
    ask.add_argument("--most", type=int, default=32, help="rounds of a row that is undecided")
    ask.add_argument("--factor", type=float, default=1.1)
    ask.add_argument("--check", action="store_true", help="test the verdicts")
    o = ask.parse_args()
    if o.commits is not None and o.commits < 1:
        ask.error(f"--commits {o.commits}: at least 1")
    if o.rounds < 2 or o.most < o.rounds:
        ask.error(f"--rounds {o.rounds}, --most {o.most}: at least 2 rounds, and most not below")
    return o


# ---- the verdict ---------------------------------------------------------------------------------

def logs_of(before, after):
    return [math.log(a / b) for b, a in zip(before, after)]


def ratio(before, after):
    """Median ratio after/before of the rounds."""
    return math.exp(statistics.median(logs_of(before, after)))


def interval(before, after, seed=1):
    """The ratio, and the ends of its interval."""
    logs = logs_of(before, after)
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(logs, k=len(logs))) for _ in range(DRAWS))
    cut = DRAWS // 200
    return ratio(before, after), math.exp(medians[cut]), math.exp(medians[-1 - cut])


def verdict(before, after, factor):
    _, low, high = interval(before, after)
    return "fine" if high < factor else "slower" if low > factor else "undecided"


def run_rounds(measure, pairs, o):
    """Runs rounds until each pair of sides, named by the number of the later one, is fine or slower,
    or has --most: first of all pairs, then of those that are undecided. measure(side) is the seconds
    of one run. Returns for each pair the times before, those after, and the verdict."""
    result = {k: ([], [], "undecided") for k in pairs}
    for n in range(1, o.most + 1):
        left = [k for k in pairs if result[k][2] == "undecided"]
        if not left:
            break
        order = sorted({side for k in left for side in (k - 1, k)}, reverse=n % 2 == 0)
        times = {side: measure(side) for side in order}
        for k in left:
            before, after, _ = result[k]
            before.append(times[k - 1])
            after.append(times[k])
            if n == o.most or (n >= o.rounds and (n - o.rounds) % 4 == 0):
                result[k] = before, after, verdict(before, after, o.factor)
    return result


def judge(measure, sides, o):
    """Of each pair of sides the times before and after, and the verdict; pairs that are slower get
    new rounds, whose verdict counts."""
    first = run_rounds(measure, range(1, len(sides)), o)
    again = run_rounds(measure, [k for k in first if first[k][2] == "slower"], o)
    for k, (before, after, said) in again.items():
        first[k] = first[k][0] + before, first[k][1] + after, said
    return list(first.values())


# ---- sides ---------------------------------------------------------------------------------------

def git(*words):
    done = subprocess.run(["git", *words], cwd=ab.ROOT, capture_output=True)
    if done.returncode:
        sys.exit(f"watch.py: git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def build(folder, base, header):
    """The bench of commit `base` with a header, in a folder; False if it does not build. What was
    built before with the bench of another commit is built again."""
    built = folder / "built"
    if built.exists() and built.read_text() == base:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-xf", "-", "-C", folder], input=git("archive", base), check=True)
    (folder / "mlcore.h").write_bytes(header)
    for name in ("Makefile", "tests/mlc_test.h"):
        shutil.copy(ab.ROOT / name, folder / name)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MLC_BUILD_CONFIG")}
    done = subprocess.run(["make", "-s", "-C", folder, "build/bench"], env=env | {"BLAS": "none"})
    if done.returncode == 0:
        built.write_text(base)
    return done.returncode == 0


def sides_of(o):
    """Names and folders of the sides, the oldest first. Commits are those of the first parents, since
    the two sides of a join have no order: a commit of one lacks what the other has."""
    if o.commits:
        log = git("log", "--first-parent", f"-n{o.commits + 1}", "--format=%h", "--", "mlcore.h")
        log = log.decode().split()[::-1]
        found = []
        for commit in log:
            folder = OUT / commit
            header = git("show", f"{commit}:mlcore.h")
            if build(folder, log[0], header) or build(folder, commit, header):
                found.append((commit, folder))
            else:
                print(f"{commit} does not build: passed over")
        return found
    env = dict(os.environ, BLAS="none")
    if subprocess.run(["git", "rev-parse", "-q", "--verify", f"{o.ref}^{{commit}}"], cwd=ab.ROOT,
                      stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"watch.py: '{o.ref}' is no commit; use REF=commit")
    if subprocess.run(["sh", "tests/ab.sh", o.ref, "build/bench"], cwd=ab.ROOT, env=env).returncode:
        sys.exit("watch.py: one of the sides does not build")
    return [(o.ref, ab.ROOT / "build/ab/before"), ("now", ab.ROOT / "build/ab/after")]


def larger(before, after, factor):
    """Are bytes over FACTOR times what they were? None: a bench that does not tell them."""
    return any(a is not None and b is not None and b > factor * a for a, b in zip(before, after))


class DoesNotRun(Exception):
    """The argument is the number of the side."""


def measured(case, dtype, sides, o):
    """Times, verdicts and bytes of a row; None where a side has no such case, and the name of a side
    that does not run it although it has it, and another one ran it."""
    lines = [None] * len(sides)

    def run(side):
        line = ab.line_of(sides[side][1], case, dtype, o)
        if line is None:
            raise DoesNotRun(side)
        lines[side] = line
        return line["median_ms"] / 1e3

    try:
        pairs = judge(run, sides, o)
    except DoesNotRun as e:
        name, folder = sides[e.args[0]]
        has = (case, dtype) in ab.listed(folder / "build/bench", [case])
        return name if has and any(lines) else None
    size = [[line.get(key) for key in ("peak_bytes", "activation_bytes")] for line in lines]
    return {"case": case, "dtype": dtype, "pairs": [pair[:2] for pair in pairs],
            "said": [pair[2] for pair in pairs], "bytes": size,
            "larger": [larger(*size[k - 1:k + 1], o.factor) for k in range(1, len(sides))]}


# ---- the table and the picture -------------------------------------------------------------------

def table(rows, sides):
    """Lines of Markdown: for each row and pair of sides the ratio with its interval, and bytes."""
    out = ["| case | type | against | rounds | ratio | interval | verdict | peak MB | kept MB |",
           "|---" * 9 + "|"]
    for row in rows:
        for k, said in enumerate(row["said"], 1):
            mid, low, high = interval(*row["pairs"][k - 1])
            mb = [f"{(a or 0) / 2**20:.1f} {(b or 0) / 2**20:.1f}"
                  for a, b in zip(*row["bytes"][k - 1:k + 1])]
            said = f"**{said}**" if said == "slower" else said
            said += ", **larger**" if row["larger"][k - 1] else ""
            rounds = len(row["pairs"][k - 1][0])
            out.append(f"| `{row['case']}` | {row['dtype']} | {sides[k - 1][0]} {sides[k][0]} "
                       f"| {rounds} | {mid:.3f} | {low:.3f} {high:.3f} | {said} "
                       f"| {mb[0]} | {mb[1]} |")
    return out


def label(x, y, text, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def picture_of_pair(rows, factor):
    """A whisker a row: the interval of its ratio; red ones are slower."""
    high = 40 + 16 * len(rows)
    at = lambda r: 330 + 330 * (min(max(r, 0.8), 1.4) - 0.8) / 0.6  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{high}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="720" height="{high}" fill="#fff"/>']
    for r in sorted({0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, factor}):
        colour = "#d62728" if abs(r - factor) < 1e-9 else "#bbb"
        out.append(f'<path d="M{at(r):.1f} 24V{high - 8}" stroke="{colour}"/>')
        out.append(label(at(r), 16, f"{r:.3g}", "middle"))
    for i, row in enumerate(rows):
        y = 40 + 16 * i
        mid, low, up = interval(*row["pairs"][0])
        colour = {"slower": "#d62728", "fine": "#2ca02c"}.get(row["said"][0], "#777")
        out += [label(8, y + 4, f"{row['case']} {row['dtype']}"),
                f'<path d="M{at(low):.1f} {y}H{at(up):.1f}" stroke="{colour}" stroke-width="3"/>',
                f'<circle cx="{at(mid):.1f}" cy="{y}" r="4" fill="{colour}"/>']
    return out + ["</svg>"]


def picture_of_commits(rows, sides):
    """A line a row: its time by commit, over that of the first, by the ratios of the commits."""
    wide, high = 120 + 60 * len(sides), 420
    lines = [list(itertools.accumulate((ratio(*pair) for pair in row["pairs"]), operator.mul,
                                       initial=1.0)) for row in rows]
    top = max(max(line) for line in lines)
    low = min(min(line) for line in lines)
    at = lambda r: 30 + 330 * (top - r) / max(top - low, 1e-9)  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="{wide}" height="{high}" fill="#fff"/>',
           f'<path d="M60 {at(1):.1f}H{wide - 20}" stroke="#bbb"/>']
    out += [label(54, at(r) + 4, f"{r:.2f}", "end") for r in {low, 1.0, top}]
    out += [label(60 + 60 * k, 380 + 14 * (k % 2), name, "middle")
            for k, (name, _) in enumerate(sides)]
    for i, (row, line) in enumerate(zip(rows, lines)):
        points = " ".join(f"{60 + 60 * k},{at(r):.1f}" for k, r in enumerate(line))
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i % 8]}">'
                   f'<title>{row["case"]} {row["dtype"]}</title></polyline>')
        out += [f'<circle cx="{60 + 60 * k}" cy="{at(line[k]):.1f}" r="6" fill="none" '
                'stroke="#d62728" stroke-width="2"/>'
                for k, said in enumerate(row["said"], 1) if said == "slower"]
    return out + ["</svg>"]


# ---- made-up times -------------------------------------------------------------------------------

def check():
    """Forty rows with the noise of a busy machine, one of them slower by a fifth, five times over:
    that one is found and no other, in spite of drift and single outliers; bytes are compared."""
    o = argparse.Namespace(rounds=8, most=32, factor=1.1)
    for seed in range(5):
        draw = random.Random(seed)
        for row in range(40):
            slow = 1.2 if row == 17 else 1.0     # from the third of five sides on
            drift = [1.0]

            def measure(side):
                drift[0] *= math.exp(draw.gauss(0, 0.01))
                burst = draw.uniform(1.2, 2.0) if draw.random() < 0.05 else 1.0
                noise = drift[0] * burst * math.exp(draw.gauss(0, 0.03))
                return noise * (slow if side > 1 else 1.0)

            said = [pair[2] for pair in judge(measure, range(5), o)]
            slower = [k for k, word in enumerate(said) if word == "slower"]
            assert slower == ([1] if row == 17 else []), (seed, row, said)
    steady = [1.0 + 0.001 * i for i in range(8)]
    assert verdict(steady, steady, 1.1) == "fine"
    assert verdict(steady, [1.3 * t for t in steady], 1.1) == "slower"
    assert verdict(steady, [t * (1.0, 1.25)[i % 2] for i, t in enumerate(steady)], 1.1) == "undecided"
    row = {"case": "a", "dtype": "f32", "pairs": [[steady, [1.3 * t for t in steady]]],
           "said": ["slower"], "bytes": [[2**20, 0], [2**21, 0]], "larger": [True]}
    assert larger([10, 0], [10, 1], 1.1) and larger([10, 5], [12, 5], 1.1)
    assert not larger([10, None], [11, 7], 1.1) and not larger([10, 0], [9, 0], 1.1)
    sides = [("x", None), ("y", None)]
    assert "| 1.300 | 1.300 1.300 | **slower**, **larger** | 1.0 2.0 |" in table([row], sides)[-1]
    for lines in (picture_of_pair([row], 1.1), picture_of_commits([row], sides)):
        assert lines[0].startswith("<svg") and lines[-1] == "</svg>"
    print("watch.py: 200 made-up rows, 5 slower, found; no other slower")


def main():
    o = options()
    if o.check:
        return check()
    sides = sides_of(o)
    if len(sides) < 2:
        sys.exit("watch.py: there are no two sides")
    names = ab.listed(sides[0][1] / "build/bench", o.case.split()) if o.case else ab.ROWS
    if not names:
        sys.exit(f"watch.py: no case matches {o.case}")
    rows, missing, broken = [], [], []
    for case, dtype in names:
        row = measured(case, dtype, sides, o)
        if row is None:
            missing.append(f"{case} {dtype}")
            continue
        if isinstance(row, str):
            broken.append(f"{case} {dtype} on {row}")
            print(f"{broken[-1]} does not run, where another side does", flush=True)
            continue
        rows.append(row)
        print("\n".join(table([row], sides)[2:]), flush=True)
    if not rows:
        sys.exit("watch.py: no row runs on all sides: " + ", ".join(missing + broken))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "table.md").write_text("\n".join(table(rows, sides)) + "\n", encoding="utf-8")
    (OUT / "times.json").write_text(json.dumps(rows), encoding="utf-8")
    picture = picture_of_pair(rows, o.factor) if len(sides) == 2 else picture_of_commits(rows, sides)
    (OUT / "watch.svg").write_text("\n".join(picture) + "\n", encoding="utf-8")
    bad = sum(said == "slower" or larger for row in rows
              for said, larger in zip(row["said"], row["larger"]))
    open_ = sum(said == "undecided" for row in rows for said in row["said"])
    print(f"{len(rows)} rows: {bad} slower or larger, {open_} undecided"
          + (f"; fail to run: {', '.join(broken)}" if broken else "")
          + (f"; not on all sides: {', '.join(missing)}" if missing else "")
          + f"; {(OUT / 'watch.svg').relative_to(ab.ROOT)}")
    sys.exit(1 if bad or broken else 0)


if __name__ == "__main__":
    main()
