#!/usr/bin/env python3
"""What mlcore.h weighs: compile seconds, text, small programs, largest functions.

    make weight             or:  python3 tests/weight.py [--runs 3] [--write]
    python3 tests/weight.py --check 'gcc -O2=FOLDER'...         python3 tests/weight.py --cpu SECONDS

Bytes of text are those of the two objects of MLC_PART. tests/budget.json has them, and nothing that
depends on the machine: --check fails where those of the objects in FOLDER are 2 % over it, or 5 %
below (tests/size.sh holds those of programs). Speed fails nothing: it is printed beside tests/trend.csv,
what was measured before. Seconds are user seconds of the compiler alone, the least of the runs; files
are their ratio to tests/calibrate.c compiled in turns by the same compiler with the same level. They
change less between machines than seconds do, but they do: the header needs 20 times the memory of the
calibration file, so smaller caches or a busy neighbour slow it more.
--cpu prints CPU seconds of .ci/run, and of the halves in gcc -O2; rows of `gate` are added by hand. --write puts bytes of text into
tests/budget.json and adds seconds to tests/trend.csv; README's table is held against both by
`make lint`.
"""
import argparse
import collections
import csv
import datetime
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tests/budget.json"
TREND = ROOT / "tests/trend.csv"
BUILDS = [("gcc", "-O2"), ("clang", "-O2"), ("gcc", "-O0"), ("clang", "-O0")]
BYTES_SLACK, BYTES_SPARE = 1.02, 0.95


def user_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def halves_row(compiler, level, runs, folder):
    """User seconds of kernels and framework; wall seconds of both at once, and of the whole. The two
    objects stay in the folder."""
    source = f"{folder}/impl.c"
    flags = [compiler, "-std=c11", level, f"-I{ROOT}", "-c"]
    halves = [flags + [f"-DMLC_PART={half}", "-o", f"{folder}/{half}.o", source]
              for half in ("kernels", "framework")]
    rows = []
    for _ in range(runs):
        seconds = [user_seconds(half) for half in halves]
        start = time.monotonic()
        for child in [subprocess.Popen(half, cwd=ROOT, stderr=subprocess.DEVNULL) for half in halves]:
            if child.wait() != 0:
                sys.exit("weight.py: a half does not compile")
        both = time.monotonic() - start
        start = time.monotonic()
        subprocess.run(flags + ["-o", f"{folder}/whole.o", source], check=True, cwd=ROOT)
        rows.append(seconds + [both, time.monotonic() - start])
    return [min(column) for column in zip(*rows)]


def text_bytes(folder):
    """Of both halves."""
    out = subprocess.run(["size", f"{folder}/kernels.o", f"{folder}/framework.o"], check=True,
                         text=True, capture_output=True).stdout
    return sum(int(line.split()[0]) for line in out.splitlines()[1:])


def largest(paths, count=10):
    out = subprocess.run(["nm", "-S", "-t", "d", "--size-sort", "-r", *paths], check=True, text=True,
                         capture_output=True).stdout
    rows = [line.split() for line in out.splitlines()]
    rows = [(int(row[1]), row[3]) for row in rows if len(row) == 4 and row[2] in "tT"]
    return sorted(rows, reverse=True)[:count]


LEVELS = r"_(?:scalar|avx2|avx512|avx512x|amx|neon)(?:_f64)?$"


def unspelled(paths):
    """(functions whose name stands nowhere in the header, all functions) of objects.

    mlc__norm_sums_f32_avx2 stands there as MLC__N(norm_sums_f32), mlc__exp_low_f32 as
    MLC__F(mlc__exp_low), mlc__v_mad_avx2 as MLC__V(mad), mlc__k_map_avx2 as mlc__k_map in the line
    MLC__CPU_map, which makes it: an argument that is the whole name but for what a level or a type
    adds to it."""
    text = re.sub(r"/\*.*?\*/", " ", (ROOT / "mlcore.h").read_text(), flags=re.S)
    words = set(re.findall(r"\bmlc_\w+", text))
    by_level = set(re.findall(r"\bMLC__N(?:_\w+)?\((\w+)\)", text))
    by_type = set(re.findall(r"\bMLC__F\((\w+)\)", text))
    vectors = {f"{kind.lower()}_{name}" for kind, name in re.findall(r"\bMLC__([VD])\((\w+)\)", text)}
    made = re.findall(r"\bK##_\w+\(((?:mlc__\w+, )+)\w+, isa, level,", text)
    by_line = {name for names in made for name in names.split(", ")}
    out = subprocess.run(["nm", *paths], check=True, text=True, capture_output=True).stdout
    names = {row.split()[2].split(".")[0] for row in out.splitlines()
             if len(row.split()) == 3 and row.split()[1] in "tT"}
    lost = [name for name in names if name not in words and
            re.sub(LEVELS, "", name) not in by_line and
            re.sub(r"_(?:f32|f64|bf16)$", "", name) not in by_type and
            re.sub(LEVELS, "", name)[5:] not in by_level | vectors]
    return sorted(lost), len(names)


def macro_lines(text):
    """(lines of macros of several lines, lines of the longest, its name)."""
    macros = [(m[0].count("\n"), m[1]) for m in
              re.finditer(r"(?m)^ *# *define (\w+).*\\\n(?:.*\\\n)*.*\n", text)]
    return sum(lines for lines, _ in macros), *max(macros)


def text_rows(paths):
    """Prints what `make lint` does not hold: how long, how much of it macros, names that grep finds."""
    text = (ROOT / "mlcore.h").read_text()
    impl = text[text.index("/* @@ IMPL.PLATFORM"):]
    kernels = text[text.index("/* @@ IMPL.KERNELS.VEC"):text.index("/* @@ IMPL.DISPATCH")]
    lines, longest, name = macro_lines(impl)
    print(f"KERNELS: {kernels.count(chr(10))} lines; macros of several lines: {lines} of "
          f"{impl.count(chr(10))} of the implementation, the longest {longest}, {name}")
    lost, functions = unspelled(paths)
    groups = collections.Counter(name.split("_")[2] if name.startswith("mlc__") else name for name in lost)
    most = ", ".join(f"{count} mlc__{name}_" for name, count in groups.most_common(6))
    print(f"{len(lost)} of {functions} functions have a name that stands nowhere in the header: {most}")


def compile_rows(builds, runs, folder):
    """{"gcc -O2": (seconds, files)} of the whole in one object."""
    rows = {}
    source = pathlib.Path(folder) / "impl.c"
    source.write_text('#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n')
    for compiler, level in builds:
        flags = [compiler, "-std=c11", level, f"-I{ROOT}", "-c", "-o"]
        unit, whole = [], []
        for _ in range(runs):
            unit.append(user_seconds(flags + [f"{folder}/unit.o", "tests/calibrate.c"]))
            whole.append(user_seconds(flags + [f"{folder}/whole.o", str(source)]))
        rows[f"{compiler} {level}"] = (min(whole), min(whole) / min(unit))
    return rows


def program_bytes():
    out = subprocess.run(["make", "-s", "size"], check=True, text=True, capture_output=True, cwd=ROOT)
    return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+) +(\d+) bytes$", out.stdout, re.M)}


def over_budget(texts):
    budget = json.loads(BUDGET.read_text())
    wrong = []
    for name, text in texts.items():
        want = budget[name]["text"]
        print(f"{name}: {text} bytes of text, the budget is {want}")
        if text > want * BYTES_SLACK:
            wrong.append(f"{name}: {text} bytes of text, the budget is {want}")
        elif text < want * BYTES_SPARE:
            wrong.append(f"{name}: {text} bytes of text are far below the budget, {want}: lower it, "
                         "and README says so")
    return wrong


def trend(name):
    """The rows of tests/trend.csv of one configuration, the oldest first."""
    with TREND.open() as rows:
        return [row for row in csv.DictReader(rows) if row["configuration"] == name]


def print_trend(name, seconds, files):
    before = ", ".join(f"{row['files']} at {row['commit']}" for row in trend(name))
    print(f"{name}: {seconds:.1f} CPU seconds, {files:.1f} calibration files; before: {before}")


def write_budget(compiles, halves, texts):
    """A line each, which tests/lint.sh reads."""
    lines = ",\n".join(f'  {json.dumps(name)}: {{"text": {round(text, -3)}}}'
                       for name, text in texts.items())
    BUDGET.write_text("{\n" + lines + "\n}\n")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], text=True, capture_output=True,
                            cwd=ROOT, check=True).stdout.strip()
    with TREND.open("a") as rows:
        for name, (seconds, files) in compiles.items():
            rows.write(f"{datetime.date.today()},{commit},{name},{seconds:.1f},{halves[name]:.1f},"
                       f"{files:.1f}\n")


def print_gate(cpu, runs):
    """Prints the gate's CPU seconds in calibration files, and the halves' seconds.

    Steps run two at a time, and so do the files and the halves: threads that share a core slow each
    other. What is left between machines is much: 2,729 and 3,572 files were measured for one commit,
    whose files ran one at a time."""
    one = "gcc -std=c11 -O2 -c -o /dev/null tests/calibrate.c"
    unit = min(user_seconds(["sh", "-c", f"{one} & {one}; wait"]) / 2 for _ in range(runs))
    print_trend("gate", cpu, cpu / unit)
    half = "gcc -std=c11 -O2 -I. -DMLCORE_IMPLEMENTATION -x c mlcore.h -c -o /dev/null -DMLC_PART="
    both = user_seconds(["sh", "-c", f"{half}kernels & {half}framework; wait"])
    print(f"gcc -O2, two objects at once: {both:.1f} CPU seconds, {both / unit:.1f} files")


def measure(o, folder):
    """Prints all that is weighed; what it compiled, halves and text."""
    compiles = compile_rows(BUILDS, o.runs, folder)
    for name, row in compiles.items():
        print_trend(name, *row)
    halves, texts = {}, {}
    for compiler, level in BUILDS:
        kernels, framework, both, whole = halves_row(compiler, level, o.runs, folder)
        name = f"{compiler} {level}"
        halves[name], texts[name] = max(kernels, framework), text_bytes(folder)
        print(f"{name}: kernels {kernels:.2f} s, framework {framework:.2f}: the longer one is "
              f"{halves[name] / compiles[name][0]:.2f} of the whole, both at the same time "
              f"{both / whole:.2f} of its wall time; {texts[name]} bytes of text")
        if name == "gcc -O2":
            functions = largest([f"{folder}/kernels.o", f"{folder}/framework.o"])
            text_rows([f"{folder}/kernels.o", f"{folder}/framework.o"])
    for name, size in program_bytes().items():
        print(f"program {name:12} {size:9} bytes")
    for size, name in functions:
        print(f"function {size:7}  {name}")
    return compiles, halves, texts


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--check", nargs="+", metavar="NAME=FOLDER", help="objects against the budget")
    ask.add_argument("--write", action="store_true", help="put what was measured into the files")
    ask.add_argument("--runs", type=int, default=3)
    ask.add_argument("--cpu", type=float, help="CPU seconds of .ci/run: print these")
    o = ask.parse_args()
    if o.cpu is not None:
        print_gate(o.cpu, o.runs)
    elif o.check:
        wrong = over_budget({name: text_bytes(folder) for name, _, folder in
                             (pair.partition("=") for pair in o.check)})
        for line in wrong:
            print("over budget:", line)
        sys.exit(1 if wrong else 0)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(o, folder)
        if o.write:
            write_budget(*rows)


if __name__ == "__main__":
    main()
