#!/usr/bin/env bash
# coverage.sh [FOLDER] -- how much of mlcore.h the tests run: builds it with -O1 and gcc's
# counters, runs the test program, also on the test device, and prints by section
# the lines that nothing ran, and for the readers (IMPL.IO.*) the branches that were never taken.
# The tiny build is there for zip64, which otherwise begins at 4 GiB.
# Needs gcovr, and Python, which that is written in.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-build-coverage}
rm -rf "$out"
mkdir -p "$out"
zlib='' libs='-lm -pthread'
if printf '#include <zlib.h>\nint main(void) { return 0; }\n' |
    gcc -x c - -x none -o "$out/zlib" -lz 2>/dev/null; then
    zlib=-DMLC_USE_ZLIB libs="$libs -lz"
fi
# build FLAGS PROGRAM...: all in one folder.
build() {
    local flags=$1
    shift
    make -s -j2 "$@" BUILD="${1%/*}" BLAS=none CC=gcc CFLAGS=-O1 CPPFLAGS="$zlib $flags" \
        LIBS="$libs" LDFLAGS=--coverage IMPL_FLAGS='--coverage -fprofile-update=atomic'
}
build '' "$out/tests" "$out/io_faults" || exit 1
build -DMLC_TEST_TINY "$out/tiny/tests" || exit 1
# run PROGRAM FILTER LEVEL DEVICE: the processes add to one another's counters.
run() {
    MLC_ISA=$3 MLC_TEST_DEVICE=$4 "$1" --filter "$2" >"$1-$2$3$4.log" ||
        { tail -n 30 "$1-$2$3$4.log"; false; }
}
export -f run
printf '%s\0' "$out/tests" '' best '' "$out/tests" gemm. avx2 '' "$out/tests" gemm. scalar '' \
    "$out/tests" '' best test "$out/io_faults" iofaults best '' \
    "$out/io_faults" iofaults best test "$out/tiny/tests" npy. best '' >"$out/runs"
xargs -0 -n 4 -P 2 bash -c 'run "$@"' run <"$out/runs" || exit 1
gcovr -r . --object-directory "$out" --json "$out/coverage.json" "$out" || exit 1

# At least so many of the lines, and of the readers' branches, in percent: a level that the CPU lacks,
# a root folder that may not be changed and a disk that may not be mounted take some away.
python3 - "$out/coverage.json" 95 99 <<'EOF'
import json, sys

lines = {}
for file in json.load(open(sys.argv[1]))["files"]:
    if file["file"] == "mlcore.h":
        lines = {l["line_number"]: l for l in file["lines"] if not l.get("gcovr/noncode")}
name, section = "", {}
for number, text in enumerate(open("mlcore.h"), 1):
    if text.startswith("/* @@ "):
        name = text.split()[2]
    if number in lines:
        section.setdefault(name, []).append(number)

def runs(numbers):
    """1, 2, 3, 7 as 1-3 7"""
    out = []
    for n in numbers:
        if out and n == out[-1][1] + 1: out[-1][1] = n
        else: out.append([n, n])
    return " ".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in out)

def share(part, all): return 100.0 * part / all if all else 100.0

taken = branches = 0
for name, numbers in section.items():
    missed = [n for n in numbers if not lines[n]["count"]]
    print("%-22s %5d lines %6.1f %%  %s" % (name, len(numbers),
          share(len(numbers) - len(missed), len(numbers)), runs(missed)))
    if not name.startswith("IMPL.IO."):
        continue
    counts = [(n, b["count"]) for n in numbers for b in lines[n]["branches"]]
    branches += len(counts)
    taken += sum(1 for n, c in counts if c)
    never = sorted({n for n, c in counts if not c})
    print("%-22s %5d branches %3.1f %%%s" % ("", len(counts),
          share(sum(1 for n, c in counts if c), len(counts)),
          ", some never taken in " + runs(never) if never else ""))
hit = sum(1 for l in lines.values() if l["count"])
lines_are, branches_are = share(hit, len(lines)), share(taken, branches)
print("branch coverage of the readers: %.1f %% (%d of %d)" % (branches_are, taken, branches))
print("line coverage of mlcore.h: %.1f %% (%d of %d)" % (lines_are, hit, len(lines)))
sys.exit(lines_are < float(sys.argv[2]) or branches_are < float(sys.argv[3]))
EOF
