#!/usr/bin/env python3
"""Measures the memory that trainings take in mlcore and in PyTorch: the mem_ cases of build/bench.

    make build/bench && python3 bench/memory.py [--case GLOB] [--json FILE]

Each case runs in processes of its own, one for each side and round, for some steps; medians over
the rounds count. tensors: the most that is in use at a time by the library's own account, of mlcore
peak_bytes (mlc_memory_info: parameters, gradients, moments, activations, workspaces, objects), of
PyTorch the running sum of what its profiler saw its CPU allocator give and take from the first
tensor on, in one more process (buffers that MKL and oneDNN take from elsewhere are not among them).
RSS: the most that the process had in RAM, VmHWM of /proc/self/status at its end; ru_maxrss is the
same, but begins with what the parent had. more: RSS less that of a process that makes a context
(mem_context), or imports PyTorch, and ends: what is left is tensors, and code and buffers that the
first steps load. A ratio above 1 means that mlcore takes less. The result is a Markdown table in MB
(2^20 bytes). Needs Linux, python3 and PyTorch.
"""
import argparse
import fnmatch
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTHING = "mem_context"


def options():
    p = argparse.ArgumentParser(description="Measures memory of trainings in mlcore and PyTorch.")
    p.add_argument("--case", default="mem_*", metavar="GLOB")
    p.add_argument("--dtype", metavar="TYPE", help="f32 or bf16 (both)")
    p.add_argument("--json", metavar="FILE", help="one line a case goes here")
    p.add_argument("--threads", type=int, default=2, metavar="N", help="for both (2)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="processes of each side (3)")
    p.add_argument("--steps", type=int, default=20, metavar="N", help="of PyTorch (20)")
    p.add_argument("--bench", default=str(ROOT / "build" / "bench"), metavar="PATH")
    p.add_argument("--torch", help=argparse.SUPPRESS)     # a process of PyTorch: "rss" or "tensors"
    return p.parse_args()


# ---- in a process of PyTorch --------------------------------------------------------------------

def resident():
    text = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", text).group(1))


def tensors(torch, train):
    """Peak of the running sum of what the allocator gave and took while train() ran."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        train()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def torch_process(args):
    sys.path.insert(0, str(ROOT / "bench"))
    import compare
    compare.torch.set_num_threads(args.threads)

    def train():
        step = compare.CASES[args.case](compare.DTYPES[args.dtype])
        for _ in range(args.steps):
            step()
    found = {}
    if args.torch == "tensors":
        found["tensors"] = tensors(compare.torch, train)
    elif args.case != NOTHING:
        train()
    print(json.dumps(found | {"rss": resident(), "version": compare.torch.__version__}))


# ---- the two sides -------------------------------------------------------------------------------

def output_of(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"memory.py: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def mlcore(args, case, dtype):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        text = output_of([args.bench, "--case", case, "--dtype", dtype, "--seconds", "0.05",
                          "--threads", str(args.threads), "--json", out.name, "--no-peaks"])
        line = json.loads(pathlib.Path(out.name).read_text(encoding="utf-8"))
    return line | {"machine": text.splitlines()[0]}


def pytorch(args, case, dtype, what="rss"):
    return json.loads(output_of([sys.executable, __file__, "--torch", what, "--case", case,
                                 "--dtype", dtype, "--threads", str(args.threads),
                                 "--steps", str(args.steps)]))


def measure(args, case, dtype):
    ours = [mlcore(args, case, dtype) for _ in range(args.rounds)]
    theirs = [pytorch(args, case, dtype) for _ in range(args.rounds)]
    return {"case": case, "dtype": dtype, "machine": ours[0]["machine"],
            "torch": theirs[0]["version"], "top": ours[0]["top_bytes"],
            "mlcore_tensors": statistics.median(line["peak_bytes"] for line in ours),
            "mlcore_rss": statistics.median(line["rss_bytes"] for line in ours),
            "torch_rss": statistics.median(line["rss"] for line in theirs)}


def listed(bench, glob):
    """Cases by their network, then their size as bench has them."""
    names = [line.split() for line in output_of([bench, "--list", "--case", "mem_*"]).splitlines()]
    rows = [row for row in names if fnmatch.fnmatch(row[0], glob) and row[0] != NOTHING]
    return sorted(rows, key=lambda row: row[0].split("_")[1], reverse=True)


def mb(size):
    return f"{size / 2**20:.3g}" if size < 100 * 2**20 else f"{size / 2**20:,.0f}"


def row_of(line, none):
    sides = [line["mlcore_tensors"], line["torch_tensors"]]
    more = [line[f"{side}_rss"] - none[f"{side}_rss"] for side in ("mlcore", "torch")]
    cells = [f"`{line['case']}`", line["dtype"], mb(line["top"]["parameters"]),
             *map(mb, sides), f"{sides[1] / sides[0]:.3g}",
             mb(line["mlcore_rss"]), mb(line["torch_rss"]), *map(mb, more),
             f"{more[1] / more[0]:.3g}"]
    return "| " + " | ".join(cells) + " |"


def print_classes(results):
    """What mlcore holds by class; the peaks of classes are not at the same time."""
    names = list(results[0]["top"])
    print("\n| mlcore, by class | type | " + " | ".join(names) + " |\n" + "|---" * (2 + len(names))
          + "|")
    for line in results:
        print(f"| `{line['case']}` | {line['dtype']} | "
              + " | ".join(mb(line["top"][name]) for name in names) + " |")


def main():
    args = options()
    if args.torch:
        return torch_process(args)
    none = measure(args, NOTHING, "f32")
    print(none["machine"] + f"\ntorch    {none['torch']} | {args.threads} threads | "
          f"{args.rounds} rounds\n`python3 {shlex.join(sys.argv)}`\nA process that makes a context "
          f"has {mb(none['mlcore_rss'])} MB, one that imports PyTorch {mb(none['torch_rss'])}.\n")
    print("| training | type | parameters | tensors: mlcore | PyTorch | ratio | RSS: mlcore | "
          "PyTorch | more: mlcore | PyTorch | ratio |\n" + "|---" * 11 + "|")
    results = []
    for case, dtype in listed(args.bench, args.case):
        if args.dtype and dtype != args.dtype:
            continue
        line = measure(args, case, dtype)
        line["torch_tensors"] = pytorch(args, case, dtype, "tensors")["tensors"]
        results.append(line)
        print(row_of(line, none), flush=True)
    if not results:
        sys.exit(f"memory.py: no case matches {args.case}")
    print_classes(results)
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in results),
                                           encoding="utf-8")
    return 0


if __name__ == "__main__":
    main()
