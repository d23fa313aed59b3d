"""Prints what is tested of each operation, by what the test program says that it ran and that held.

    python3 tests/matrix.py build/tests        or: make matrix; ends with 1 if there is a hole
Rows are the operations of API.OPS, API.VISION and API.TRANSFORMER in mlcore.h, and those of
API.TENSOR that have a row in tests/test_goldens.c. Columns:
    values      on each ISA level of this machine, in each dtype that the operation takes (all
                others are refused: that is a test, too)
    layouts     b inputs that broadcast, s strided, e empty, 0 scalar: those that it can have
    gradient    f64 gradients against central differences, how many cases
    golden      PyTorch's stored values and gradients (golden/ops_*.safetensors), how many cases;
                rows of ew_table.h have their formula in test_ew.c, and may have none
    bad input   calls that were refused, as they should be (test_errors.c, test_goldens.c)
"""
import os
import re
import subprocess
import sys

# What has no gradient by definition. The tests hold it against the results: they ask for none.
TRUTH, PLACE = "its results are true or false", "its results are indices or counts"
MADE, COPY = "it makes a tensor of numbers, not of tensors", "it copies without being recorded"
NO_GRADIENT = {
    **dict.fromkeys("eq ne lt le gt ge eq_scalar ne_scalar lt_scalar le_scalar gt_scalar ge_scalar "
                    "logical_and logical_or logical_xor logical_not isnan isinf isfinite any all"
                    .split(), TRUTH),
    **dict.fromkeys("argmax argmin argsort nonzero one_hot multinomial".split(), PLACE),
    **dict.fromkeys("zeros ones full arange linspace eye from wrap randn uniform normal bernoulli "
                    "truncated_normal randint randperm sinusoidal alibi_slopes rotary_table"
                    .split(), MADE),
    **dict.fromkeys("copy_into detach".split(), COPY),
}
# Layouts that an operation cannot have: it refuses a scalar, in a test.
NO_SCALAR = ("matmul linear linear_ex outer dot concat split chunk repeat roll diag tril triu "
             "index_select transpose slice select movedim unfold diagonal multinomial "
             "argmax layer_norm rms_norm conv conv_transpose channels_last max_pool "
             "avg_pool adaptive_max_pool adaptive_avg_pool batch_norm "
             "group_norm instance_norm interpolate pixel_shuffle pixel_unshuffle glu rotary "
             "attention attention_ex embedding_bag embedding_bag_ex").split()
# Nothing to draw from, or no table: refused, too.
NO_EMPTY = ["multinomial", "sinusoidal", "alibi_slopes", "rotary_table"]
MADE_OF_AXES = ["arange", "linspace", "eye", "randperm", "sinusoidal", "alibi_slopes",
                "rotary_table"]
# As the operation of the shorter name, but for a row without a gradient, where differences see one.
SHORTER = ["embedding_ex"]
RANDOM = ["randn"]                             # a scalar of it is any number: test_random.c
NO_WRONG = ["contiguous"]                      # any tensor will do


SECTIONS = ["API.OPS", "API.VISION", "API.TRANSFORMER"]
NO_OPERATION = re.compile("nn_|.*_desc_make$|.*_forward$")


def operations(path):
    """Functions of SECTIONS, in the order of the header, but those of modules or descs."""
    section, names = "", []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            banner = re.match(r"/\* @@ (\S+)", line)
            section = banner[1] if banner else section
            name = re.match(r"MLC_API .*?\bmlc_(\w+)\(", line)
            if name and section in SECTIONS and not NO_OPERATION.match(name[1]):
                names.append(name[1])
    return names


def run(tests):
    """What the program says: (what, operation) -> details. It must end well."""
    seen = {}
    levels = subprocess.run([tests, "--levels"], check=True, stdout=subprocess.PIPE, text=True)
    for group in ("goldens.", "errors.", "ew.", "reduce."):
        out = subprocess.run([tests, "--filter", group], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "MLC_TEST_MATRIX": "1"}, check=False)
        if out.returncode != 0:
            sys.exit(f"{tests} --filter {group} ended with {out.returncode}:\n{out.stdout[-2000:]}")
        for line in out.stdout.splitlines():
            if line.startswith("@ "):
                what, name, *detail = line[2:].split(" ")
                seen.setdefault((what, name[len("mlc_"):]), []).append(detail)
    return seen, levels.stdout.split()


def check(name, seen, levels):
    """The fields of a row, and what is wrong with it."""
    holes = []
    row = seen.get(("row", name))
    if row is None:
        return ["-"] * 5, ["no row in tests/test_goldens.c"]
    has, dtypes = row[0][0], row[0][1].rstrip(",").split(",")
    golden = seen.get(("golden", name), [])
    formula = seen.get(("values", name), [])
    ran = {(level, dtype) for level, dtype, _ in golden + formula}
    for level in levels:
        missing = [d for d in dtypes if (level, d) not in ran]
        if missing:
            holes.append(f"no values on {level} in {', '.join(missing)}")
        shown = {letter for at, _, letters in golden + formula if at == level for letter in letters}
        claimed = set(has) & set("bse0")
        if name not in NO_GRADIENT or NO_GRADIENT[name] != MADE:
            claimed |= {"s"}
        if name not in NO_EMPTY:
            claimed |= {"e"}
        if name not in NO_SCALAR + MADE_OF_AXES + RANDOM:
            claimed |= {"0"}
        if claimed - shown and name not in SHORTER:
            holes.append(f"no case of layout {', '.join(sorted(claimed - shown))} on {level}")
    gradients = len(seen.get(("gradient", name), []))
    if name.rstrip("_") in NO_GRADIENT:
        if "g" in has or gradients:
            holes.append("has a gradient, but is listed as an operation without one")
    elif (gradients == 0 and name not in SHORTER) or "g" not in has:
        holes.append("no gradient was compared with differences")
    cases = len([1 for level, _, _ in golden if level == levels[0]])
    refused = len(seen.get(("refused", name), []))
    if cases == 0 and not formula:
        holes.append("no golden")
    if refused == 0 and name not in NO_WRONG:
        holes.append("no bad input was refused")
    letters = "".join(x for x in "bse0" if any(x in shown for _, _, shown in golden + formula))
    gradient = "none" if name.rstrip("_") in NO_GRADIENT else str(gradients)
    return [f"{len(dtypes)} dtypes", letters, gradient, str(cases), str(refused)], holes


def main():
    tests = sys.argv[1] if len(sys.argv) > 1 else "build/tests"
    here = os.path.dirname(os.path.abspath(__file__))
    names = operations(os.path.join(here, os.pardir, "mlcore.h"))
    seen, levels = run(tests)
    names += [name for what, name in seen if what == "row" and name not in names]
    row = "{:18} {:>9}  {:7} {:>8} {:>7} {:>9}"
    print(f"on {', '.join(levels)}")
    print(row.format("operation", "values", "layouts", "gradient", "golden", "bad input"))
    wrong = 0
    for name in names:
        fields, holes = check(name, seen, levels)
        print(row.format(name, *fields))
        for hole in holes:
            print(f"    HOLE: {hole}")
        wrong += len(holes)
    print("\nno gradient, by definition:")
    for reason in (TRUTH, PLACE, MADE, COPY):
        print(f"    {reason}: {' '.join(n for n, why in NO_GRADIENT.items() if why == reason)}")
    print(f"{len(names)} operations, {wrong} holes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
