#!/usr/bin/env python3
"""Steps of ranks: measured with 2 and 4 ranks here, predicted for 2 to 1,024, beside PyTorch.

    python3 bench/scaling.py [--shaped]    with a python3 that has matplotlib and torch

Builds bench/scaling.c for threads and for MPI, with mpicc.openmpi. With --shaped, where the kernel
allows network namespaces, MPI and gloo run over a loopback that tbf shapes to 1 Gbit/s each way. Prints
tables for bench/RESULTS.md and, without --shaped, draws bench/scaling.svg.

The model. A step of one rank takes C: forward a third, then backward, which completes bucket k when
its share of the parameters has been passed. A sum of b bytes over n ranks takes

    t(b, n) = 2 ceil(log2 n) latency + 2 (n - 1) / n b / bandwidth

(Thakur, Rabenseifner, Gropp, 2005), one after the other, and the step ends with the last sum or with
the backward, whichever is later; ranks that share cores take their time in turn.
"""
import argparse
import itertools
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIXELS = 784
SMALL, MIDDLE, LARGE = (32, 128, 2, 1 << 20), (128, 512, 2, 1 << 20), (512, 512, 2, 1 << 20)
DEEP = (256, 256, 28, 1 << 18)         # batch, width, hidden layers after the first, bytes of a bucket
NETWORKS = [("1 Gbit/s", 1e9 / 8, 30e-6, "#d55e00"), ("10 Gbit/s", 1e10 / 8, 15e-6, "#0072b2"),
            ("100 Gbit/s", 1e11 / 8, 3e-6, "#009e73")]
SPACE = f"mlcore_scaling_{os.getpid()}"
BOUND = ["timeout", "--foreground", "-k", "10", "90"]         # mpirun ends its ranks when it is told to end
PORTS = itertools.count(29000 + os.getpid() % 1000)

GLOO = """
import os, sys, time, statistics, torch
import torch.distributed as dist
rank, n, port, batch, hidden, layers, bucket = (int(v) for v in sys.argv[1:8])
torch.set_num_threads(1)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", rank=rank, world_size=n)
L, R = torch.nn.Linear, torch.nn.ReLU
body = [m for i in range(layers + 1) for m in (L(hidden if i else 784, hidden), R())]
net = torch.nn.Sequential(*body, L(hidden, 10))
if n > 1: net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket / 2 ** 20)
opt, x, y = torch.optim.SGD(net.parameters(), 1e-3), torch.randn(batch, 784), torch.randint(0, 10, (batch,))
times = []
for i in range(47):
    began = time.perf_counter()
    opt.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
    times.append((time.perf_counter() - began) * 1e3)
if rank == 0: print("step", statistics.median(times[6:]))
dist.barrier()
"""


def shell(command, space=False):
    """Output of a command, in the shaped namespace or not; None if it fails."""
    command = [str(c) for c in (["ip", "netns", "exec", SPACE, *command] if space else command)]
    done = subprocess.run([*BOUND, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"scaling.py: {' '.join(command[:6])} ..: {done.stderr.strip()[-200:]}", file=sys.stderr)
    return done.stdout if done.returncode == 0 else None


def step(output):
    """The milliseconds of a line "step MS"."""
    return float(output.split("step ")[1].split()[0]) if output and "step " in output else math.nan


def build(folder):
    """Programs for threads and for MPI; the latter may be None."""
    mpi = shutil.which("mpicc.openmpi")
    compiler, use = (mpi, ["-DMLC_USE_MPI"]) if mpi else ("gcc", [])
    library, programs = folder / "mlcore.o", {"mpi": None}
    subprocess.run([compiler, "-O2", "-I.", *use, "-x", "c", "-c", "-o", library, "-"], cwd=ROOT, check=True, text=True,
                   input='#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n')
    for name, more in (("threads", []), ("mpi", use))[:1 + bool(mpi)]:
        programs[name] = folder / name
        subprocess.run([compiler, "-O2", "-I.", *more, "-o", programs[name], "bench/scaling.c", library, "-lm",
                        "-lpthread"], cwd=ROOT, check=True)
    return programs


def shaped():
    """Makes a namespace whose loopback has 1 Gbit/s each way for two ranks; False where there is none."""
    made = shell(["ip", "netns", "add", SPACE]) is not None
    return made and shell(["ip", "link", "set", "lo", "up"], True) is not None and shell(
        ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "2gbit", "burst", "256kb", "latency", "100ms"],
        True) is not None


def by_mpi(program, ranks, mode, net, space=False):
    """A run under Open MPI. Where the loopback is shaped it goes over TCP, and messages as long as a bucket are
    given to the kernel at once, so that they move while the rank computes."""
    eager = [v for name in ("eager_limit", "rndv_eager_limit", "max_send_size", "sndbuf", "rcvbuf")
             for v in ("--mca", f"btl_tcp_{name}", 4 << 20)]
    more = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", *eager] if space else []
    return shell(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", *more, "-n", ranks, program, mode, 1,
                  *net], space)


def by_gloo(ranks, net, space=False):
    """Milliseconds of a step of PyTorch's DistributedDataParallel."""
    port = next(PORTS)
    front = ["ip", "netns", "exec", SPACE] if space else []
    all_ranks = [subprocess.Popen([*BOUND, *front, sys.executable, "-c", GLOO, *map(str, (r, ranks, port, *net))],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(ranks)]
    outputs = [p.communicate() for p in all_ranks]
    if any(p.returncode for p in all_ranks):
        print(f"scaling.py: gloo: {outputs[0][1].strip()[-200:]}", file=sys.stderr)
        return math.nan
    return step(outputs[0][0])


def fit(output):
    """Latency in seconds and bytes a second of sums of two ranks."""
    rows = [line.split() for line in (output or "").splitlines() if line.startswith("sum")]
    if not rows:
        return math.nan, math.nan
    times = {int(b): float(ms) * 1e-3 for _, b, ms in rows}
    latency = statistics.median(t for b, t in times.items() if b <= 64) / 2
    large = max(times)
    return latency, large / max(times[large] - 2 * latency, 1e-9)


def buckets(net):
    """(bytes, share of the parameters passed when it is complete) of each bucket, in order of backward."""
    _, hidden, layers, bucket = net
    sizes = [4 * n for n in [10 * hidden + 10] + layers * [hidden * hidden + hidden] + [hidden * PIXELS + hidden]]
    result, held, passed = [], 0, 0
    for size in sizes:
        held += size
        passed += size
        if held >= bucket:
            result.append((held, passed / sum(sizes)))
            held = 0
    return result + ([(held, 1.0)] if held else [])


def predicted(ranks, compute, latency, bandwidth, net=MIDDLE, overlap=True):
    """Seconds of a step: see the model above."""
    free = 0.0
    for size, passed in buckets(net):
        ready = compute * (1 / 3 + 2 / 3 * passed) if overlap else compute
        took = 2 * math.ceil(math.log2(ranks)) * latency + 2 * (ranks - 1) / ranks * size / bandwidth
        free = max(free, ready) + took
    return max(free, compute)


def draw(compute, points):
    """bench/scaling.svg: efficiency over ranks."""
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mlcore", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8, 4.4), facecolor="white")
    ranks = [2 ** k for k in range(1, 11)]
    for name, bandwidth, latency, colour in NETWORKS:
        for overlap, style in ((True, "-"), (False, "--")):
            axes.plot(ranks, [compute / predicted(n, compute, latency, bandwidth, overlap=overlap) for n in ranks],
                      style, color=colour, label=f"{name}, predicted" if overlap else None)
    for name, mark, values in points:
        axes.plot([n for n, _ in values], [e for _, e in values], mark, color="black", label=f"{name}, measured here")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{n:,}" for n in ranks])
    axes.set_ylim(0, 1.1)
    axes.set_xlabel(f"ranks, batch {MIDDLE[0]} each; dashed: without overlap")
    axes.set_ylabel("time of one rank alone / of a step")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, ncols=2, loc="lower left")
    figure.tight_layout()
    figure.savefig(ROOT / "bench" / "scaling.svg", metadata={"Date": None})


def main():
    """Builds, measures, predicts, draws."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--programs", type=pathlib.Path, help="folder of programs that were built before")
    parser.add_argument("--shaped", action="store_true", help="only over the shaped loopback")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        folder = options.programs or pathlib.Path(kept)
        programs = build(folder) if not options.programs else {n: folder / n for n in ("threads", "mpi")}
        (shaped_runs if options.shaped else measure)(programs)


def measure(programs):
    """Runs of all kinds, and their tables."""
    runs = {"threads": lambda mode, n, net=MIDDLE: shell([programs["threads"], mode, n, *net]),
            "MPI": lambda mode, n, net=MIDDLE: by_mpi(programs["mpi"], n, mode, net)}
    one, points = step(runs["threads"]("alone", 1)), []

    def alone(n):
        return step(runs["threads"]("alone", n))

    print("| ranks | sums | alone side by side, ms | predicted | measured |\n|---|---|---|---|---|")
    for name, run in runs.items():
        latency, bandwidth = fit(run("sums", 2))
        values = []
        for n, mode in ((2, "overlap"), (2, "late"), (4, "overlap")):
            before, got = alone(n), step(run(mode, n))
            side = (before + alone(n)) / 2           # clocks of a virtual machine drift
            guess = predicted(n, side * 1e-3, latency, bandwidth, overlap=mode == "overlap") * 1e3
            print(f"| {n}, {name} | {mode} | {side:.1f} | {guess:.1f} | {got:.1f} |", flush=True)
            if mode == "overlap":
                values.append((n, side / got))
        points.append((name, "o" if name == "threads" else "s", values))
        print(f"{name}: latency {latency * 1e6:.0f} us, {bandwidth / 1e9:.2f} GB/s of a sum", file=sys.stderr)
    draw(one * 1e-3, points)
    print(f"\nalone {one:.2f} ms\n")
    print("| batch, width | 2 alone side by side | threads | weak scaling | MPI | weak scaling | DDP, gloo | over threads "
          "| over MPI |\n|---|---|---|---|---|---|---|---|---|")
    for net in (SMALL, MIDDLE, LARGE):
        rounds = [(step(runs["threads"]("alone", 2, net)), step(runs["threads"]("overlap", 2, net)),
                   step(runs["MPI"]("overlap", 2, net)), by_gloo(2, net)) for _ in range(3)]
        side, threads, mpi, gloo = (statistics.median(of) for of in zip(*rounds))
        print(f"| {net[0]}, {net[1]} | {side:.2f} | {threads:.2f} | {side / threads:.2f} | {mpi:.2f} | {side / mpi:.2f} "
              f"| {gloo:.2f} | {gloo / threads:.2f} | {gloo / mpi:.2f} |", flush=True)


def shaped_runs(programs):
    """1 Gbit/s each way by tbf; the namespace and what runs in it end with the table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if shaped():
            shaped_rows(programs)
        else:
            print("network namespaces: the kernel refuses them, see above")
    finally:
        if pathlib.Path("/run/netns", SPACE).exists():
            left = (shell(["ip", "netns", "pids", SPACE]) or "").split()
            if left:
                shell(["kill", *left])
            shell(["ip", "netns", "del", SPACE])


def shaped_rows(programs):
    """The table. What a step without overlap takes longer than one alone is the communication."""
    def run(mode, net):
        return step(by_mpi(programs["mpi"], 2, mode, net, True))

    latency, bandwidth = fit(by_mpi(programs["mpi"], 2, "sums", DEEP, True))
    alone = run("alone", DEEP)
    rows = DEEP[0] * (run("late", DEEP) - alone) / alone             # compute as long as communication
    if not rows >= 16:
        print(f"no batch has a compute as long as its communication: {rows:.0f} rows")
        return
    print(f"shaped to 1 Gbit/s each way: latency {latency * 1e6:.0f} us, {bandwidth / 1e6:.0f} MB/s of a sum; "
          f"{sum(size for size, _ in buckets(DEEP)) / 1e6:.1f} MB in {len(buckets(DEEP))} buckets\n")
    print("| batch | alone | communication | of the step | overlap | of the longer | least, by the model | without "
          "| of the longer | bf16, overlap | DDP, gloo | over overlap |\n" + "|---" * 12 + "|")
    for times in (1.8, 1):             # communication is about half the step with overlap; without
        net = (round(times * rows / 16) * 16, *DEEP[1:])
        before = run("alone", net)
        got = {mode: run(mode, net) for mode in ("overlap", "late", "bf16")}
        alone = (before + run("alone", net)) / 2           # clocks of a virtual machine drift
        gloo = by_gloo(2, net, True)
        comm = got["late"] - alone
        longer, least = max(alone, comm), predicted(2, alone * 1e-3, latency, bandwidth, net) * 1e3
        print(f"| {net[0]} | {alone:.1f} | {comm:.1f} | {comm / got['overlap']:.2f} | {got['overlap']:.1f} "
              f"| {got['overlap'] / longer:.2f} | {least:.1f} | {got['late']:.1f} | {got['late'] / longer:.2f} "
              f"| {got['bf16']:.1f} | {gloo:.1f} | {gloo / got['overlap']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
