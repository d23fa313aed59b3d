"""Builds mlcore without families of it, and runs the tests of what is left.

    python3 tests/families.py FOLDER [--random N]
FOLDER has the objects of the tests, from `make FOLDER/tests`; they are linked with each form of the
implementation. Public structs are the same under all macros, so the tests are not compiled again: a
function that is left out has a stand-in that ends the test which calls it (test_leave). Forms are
each MLC_NO_FAMILY alone, and MLC_MINIMAL; with --random N instead N sets of families, by gcc, g++,
clang and clang++ in turn. Each compiles without warnings, needs no function of mlcore that it lacks,
lacks what its declarations say and nothing else, and passes the tests of a few groups that are
left; the first set of each compiler those of more.
"""
import os
import random
import re
import subprocess
import sys

WARN = "-Wall -Wextra -Wshadow -Wundef -Wvla -Wpointer-arith -Wdouble-promotion -Werror".split()
COMPILERS = [["gcc", "-std=c11", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"],
             ["clang", "-std=c11", "-x", "c"], ["clang++", "-std=c++17", "-x", "c++"]]
BRIEF = ["ctx.", "tape.", "nn.", "optim.", "state.", "io."]
MORE = BRIEF + ["tensor.", "loss.", "index.", "join.", "sort.", "modules.", "data.", "dataset.",
                "metrics.", "csv.", "npy.", "recurrent.", "sketch.", "sched.", "amp.", "fit."]

STAND_INS = """#include "mlcore.h"
#include <string.h>
void test_leave(const char *name);
/* Kernels that are left out end the test, too. */
#define LACKS(name) \\
    static mlc_status lacks_##name(void *dev, const struct mlc_k_##name *a) \\
    { (void)dev; (void)a; test_leave(#name); return MLC_OK; }
MLC_KERNELS(LACKS)
const mlc_kernels *__real_mlc_cpu_kernels(mlc_isa isa);
const mlc_kernels *__wrap_mlc_cpu_kernels(mlc_isa isa)
{
    static mlc_kernels rows[MLC_ISA_COUNT];
    const mlc_kernels *real = __real_mlc_cpu_kernels(isa);
    int at = 1;                        /* the level: MLC_ISA_AUTO is one of the others         */
    while (at < MLC_ISA_COUNT && __real_mlc_cpu_kernels((mlc_isa)at) != real) at++;
    if (!real || at == MLC_ISA_COUNT) return real;
    rows[at] = *real;
#define PUT(name) if (!rows[at].name) rows[at].name = lacks_##name;
    MLC_KERNELS(PUT)
    return &rows[at];
}
"""


def families():
    """Names of MLC_NO_FAMILY, in the order of the header."""
    with open("mlcore.h", encoding="utf-8") as header:
        return list(dict.fromkeys(re.findall(r"^#  define (MLC_NO_[A-Z_]+)$", header.read(), re.M)))


def must(command, **more):
    """The command's output; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode:
        print(done.stdout[-3000:] + done.stderr[-3000:])
        raise RuntimeError(" ".join(command))
    return done.stdout


def symbols(paths, kinds):
    """Functions of mlcore that objects define ("T") or need ("U")."""
    words = [line.split() for line in must(["nm", *paths]).splitlines()]
    return {w[-1] for w in words if len(w) > 1 and w[-2] in kinds and re.match("_*mlc_", w[-1])}


def left_out(macros):
    """Functions whose declarations say that they are left out."""
    text = must(["gcc", "-E", "-P", *macros, "-x", "c", "mlcore.h"])
    return set(re.findall(r'leaves? it out"\)+[^;]*?\b(mlc_\w+) ?\(', text))


class Form:
    """The implementation under some macros, by one compiler."""

    def __init__(self, folder, compiler, names, more):
        self.out = os.path.join(folder, "families")
        self.tests = sorted(os.path.join(folder, f) for f in os.listdir(folder)
                            if re.fullmatch(r"(main|device|test_(?!barrier)\w+)\.o", f))
        self.compiler, self.macros, self.more = compiler, ["-D" + n for n in names], more
        os.makedirs(self.out, exist_ok=True)

    def path(self, name):
        """A file of this form's."""
        return os.path.join(self.out, name)

    def compile(self):
        """The implementation, and stand-ins for what the tests call and it lacks."""
        impl = self.path("impl.o")
        must([*self.compiler, *WARN, "-O1" if self.more else "-O0", "-I.", *self.macros, "-c", "-o", impl, "-"],
             input='#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n')
        needs = symbols([impl], "U")
        if needs:
            raise RuntimeError(f"the implementation needs {sorted(needs)}")
        lacks = symbols(self.tests, "U") - symbols([impl], "T")
        wrong = lacks ^ (left_out(self.macros) & symbols(self.tests, "U"))
        if wrong:
            raise RuntimeError(f"left out by declaration or by definition alone: {sorted(wrong)}")
        with open(self.path("lacks.c"), "w", encoding="utf-8") as file:
            file.write(STAND_INS)
        with open(self.path("calls.c"), "w", encoding="utf-8") as file:
            file.write("void test_leave(const char *name);\n")
            file.writelines(f'void {n}(void) {{ test_leave("{n}"); }}\n' for n in sorted(lacks))
        must(["gcc", "-O0", "-w", "-I.", "-o", self.path("tests"), *self.tests, impl,
              self.path("lacks.c"), self.path("calls.c"), "-Wl,--wrap=mlc_cpu_kernels", "-lm",
              "-lstdc++", "-pthread"])

    def run(self):
        """Tests that passed, failed and were left."""
        sums = [0, 0, 0]
        for group in MORE if self.more else BRIEF:
            done = subprocess.run([self.path("tests"), "--filter", group], capture_output=True,
                                  text=True, check=False, env={**os.environ, "MLC_TEST_BRIEF": "1"})
            count = re.search(r"(\d+) passed, (\d+) failed\n$", done.stdout)
            left = re.search(r"^(\d+) left$", done.stdout, re.M)
            sums[2] += int(left[1]) if left else 0
            sums[0] += int(count[1]) if count else 0
            sums[1] += int(count[2]) if count else 1
            if not count or int(count[2]):
                print(done.stdout[-2000:] + done.stderr[-2000:])
        return sums


def forms(n_random):
    """(compiler, macros, whether more groups are run) of each form."""
    all_of_them = families()
    if not n_random:
        return [(COMPILERS[0], [name], False) for name in all_of_them + ["MLC_MINIMAL"]]
    draw = random.Random(n_random)
    return [(COMPILERS[i % 4], sorted(draw.sample(all_of_them, draw.randint(2, 6))), i < 4)
            for i in range(n_random)]


def main(args):
    """Ends with 1 where a form fails."""
    n_random = int(args[args.index("--random") + 1]) if "--random" in args else 0
    passed = failed = 0
    for compiler, names, more in forms(n_random):
        form = Form(args[0], compiler, names, more)
        try:
            form.compile()
            good, bad, left = form.run()
        except RuntimeError as error:
            print(f"FAILED: {error}")
            good, bad, left = 0, 1, 0
        print(f"{compiler[0]} {' '.join(names)}: {good} tests passed, {bad} failed, {left} left",
              flush=True)
        passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
