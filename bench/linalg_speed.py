#!/usr/bin/env python3
"""Times factorisations beside PyTorch's and LAPACK's, in turns, on the same matrices.

Usage: bench/linalg_speed.py [build/linalg_speed] [case ...]; needs torch and scipy. MLC_THREADS is
the number of threads of both (default: 2). Cases: rsvd against torch.svd_lowrank (q 74, niter 2)
of 4096 x 4096, with errors over the optimal one at rank 64; cqrrpt against LAPACK's dgeqp3 of
8192 x 512, which does not form q, with diagonals of r beside each other; lstsq against
torch.linalg.lstsq, driver gels, of 65536 x 256; qr and cholesky against torch.linalg.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("MLC_THREADS", "2")
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["MLC_THREADS"])
import numpy as np
import scipy.linalg.lapack
import torch

torch.set_num_threads(int(os.environ["MLC_THREADS"]))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SPECTRA = {"1/i": lambda i: 1 / i, "1/i^2": lambda i: 1 / i**2, "exp(-i/20)": lambda i: np.exp(-i / 20)}


def spectrum(name, n):
    return SPECTRA[name](np.arange(1, n + 1.0))


def of_spectrum(name, n):
    """A matrix with these singular values: random reflections of a diagonal."""
    rng, a = np.random.default_rng(1), np.diag(spectrum(name, n))
    for _ in range(4):
        x, y = (v / np.linalg.norm(v) for v in rng.standard_normal((2, n)))
        a -= 2 * np.outer(x, x @ a)
        a -= 2 * np.outer(a @ y, y)
    return a


def timed(call, runs):
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        result = call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times), result


class Ours:
    """The program, in a folder with its files."""
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, case, runs, n_out, *arrays):
        """Milliseconds, and the results."""
        paths = [self.path(f"in{i}.npy") for i in range(len(arrays))]
        for path, array in zip(paths, arrays):
            np.save(path, array)
        done = subprocess.run([self.program, case, paths[0], self.path("out"), str(runs), *paths[1:]],
                              check=True, text=True, capture_output=True)
        return float(done.stdout), [np.load(self.path(f"out.{i}.npy")) for i in range(n_out)]


def in_turns(ours, case, runs, n_out, theirs, *arrays):
    """Medians of rounds: ours, theirs; and the last results of both."""
    pairs = []
    for _ in range(ROUNDS):
        mine, out = ours.run(case, runs, n_out, *arrays)
        other, result = timed(theirs, runs)
        pairs.append((mine, other))
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs), out, result


def row(name, mine, other, note=""):
    print(f"{name:34} {other:9.2f} {mine:9.2f} {other / mine:7.2f}  {note}", flush=True)


def rsvd(ours, dtype):
    for name in SPECTRA:
        a = of_spectrum(name, 4096)
        x, s = a.astype(dtype), spectrum(name, 4096)
        t = torch.from_numpy(x)
        mine, other, out, theirs = in_turns(ours, "rsvd", 3, 3,
                                            lambda: torch.svd_lowrank(t, q=74, niter=2), x)
        best = np.linalg.norm(s[64:])
        left = [np.linalg.norm(a - (u[:, :64] * v[:64]) @ w[:64])
                for u, v, w in ((out[1], out[0], out[2]),
                                (theirs[0].numpy(), theirs[1].numpy(), theirs[2].numpy().T))]
        row(f"rsvd {name} {np.dtype(dtype)}", mine, other,
            f"errors over the optimal one: {left[0] / best:.4f}, theirs {left[1] / best:.4f}")


def cqrrpt(ours, dtype):
    for name in ("normal", "graded"):
        a = np.random.default_rng(2).standard_normal((8192, 512))
        if name == "graded":
            u, _, w = np.linalg.svd(a, full_matrices=False)
            a = (u * 10.0**(-np.arange(512) / 64)) @ w
        f, x = np.asfortranarray(a), a.astype(dtype)
        mine, other, out, theirs = in_turns(ours, "cqrrpt", 3, 3,
                                            lambda: scipy.linalg.lapack.dgeqp3(f), x)
        q, r, p = out
        k = min(len(r), 512)
        ratios = np.abs(np.diag(r)[:k] / np.diag(theirs[0])[:k])
        left = [np.linalg.norm(np.triu(m)[256:, 256:]) for m in (r, theirs[0])]
        row(f"cqrrpt {name} {np.dtype(dtype)}", mine, other,
            f"rank {k}, r_kk over theirs {ratios.min():.2f} to {ratios.max():.2f}, residual after 256 "
            f"{left[0] / left[1]:.3f} of theirs, |a p - q r| / |a| "
            f"{np.linalg.norm(x[:, p] - q @ r) / np.linalg.norm(x):.1e}")


def lstsq(ours, dtype):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((65536, 256), (65536, 1)))
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    mine, other, out, theirs = in_turns(
        ours, "lstsq", 3, 1, lambda: torch.linalg.lstsq(ta, tb, driver="gels").solution, a, b)
    exact = np.linalg.lstsq(a.astype(np.float64), b.astype(np.float64), rcond=None)[0]
    errors = [np.linalg.norm(x - exact) / np.linalg.norm(exact) for x in (out[0], theirs.numpy())]
    row(f"lstsq {np.dtype(dtype)}", mine, other, f"errors {errors[0]:.1e}, theirs {errors[1]:.1e}")


def dense(ours, dtype):
    rng = np.random.default_rng(4)
    for m, n in ((1024, 1024), (8192, 512)):
        a = rng.standard_normal((m, n)).astype(dtype)
        t = torch.from_numpy(a)
        mine, other, _, _ = in_turns(ours, "qr", 5, 2, lambda: torch.linalg.qr(t), a)
        row(f"qr {m} x {n} {np.dtype(dtype)}", mine, other)
    a = rng.standard_normal((1024, 1024)).astype(dtype)
    a = a @ a.T + np.eye(1024, dtype=dtype)
    t = torch.from_numpy(a)
    mine, other, _, _ = in_turns(ours, "cholesky", 9, 1, lambda: torch.linalg.cholesky(t), a)
    row(f"cholesky 1024 {np.dtype(dtype)}", mine, other)


CASES = {"rsvd": rsvd, "cqrrpt": cqrrpt, "lstsq": lstsq, "dense": dense}


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/linalg_speed"
    print(f"{'milliseconds':34} {'theirs':>9} {'mlcore':>9} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for case in sys.argv[2:] or CASES:
            for dtype in (np.float32, np.float64):
                CASES[case](Ours(program, folder), dtype)


main()
