"""Makes linalg.safetensors: torch.linalg, results and gradients, in f64.

    python3 tests/golden/make_linalg_goldens.py    (PyTorch, safetensors)

A case CASE has its inputs CASE:a and CASE:b, which f32 holds, its results CASE:0, .., a number for each
element of each result in CASE:w0, .., and gradients of the sum of their products, CASE:da and CASE:db.
Eigenvectors and singular vectors are squared, as their signs are free; test_linalg.c does the same.
"""
import os

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))


def numbers(shape, seed):
    """Multiples of 1/64 in [-1, 1]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-64, 65, shape, generator=draw).double() / 64.0


def even(a):
    return a + a.mT


def positive(a):
    return a @ a.mT + torch.eye(a.shape[-1], dtype=a.dtype)


def qr(a):
    return list(torch.linalg.qr(a))


def eigh(a):
    w, v = torch.linalg.eigh(even(a))
    return [w, v * v]


def svd(a):
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return [s, u * u, vh * vh]


def lu(a):
    p, l, u = torch.linalg.lu(a)
    return [l, u, p.mT @ torch.arange(a.shape[-2], dtype=a.dtype)]


CASES = {
    "qr_tall": (qr, (2, 7, 4)), "qr_square": (qr, (3, 5, 5)), "qr_wide": (qr, (4, 6)),
    "qr_large": (qr, (45, 37)),
    "cholesky": (lambda a: [torch.linalg.cholesky(positive(a))], (2, 5, 5)),
    "cholesky_upper": (lambda a: [torch.linalg.cholesky(positive(a), upper=True)], (5, 5)),
    "cholesky_large": (lambda a: [torch.linalg.cholesky(positive(a))], (40, 40)),
    "triangular": (lambda a, b: [torch.linalg.solve_triangular(a + 3 * torch.eye(4), b, upper=False)],
                   (2, 4, 4), (2, 4, 3)),
    "triangular_upper": (lambda a, b: [torch.linalg.solve_triangular(a, b, upper=True,
                                                                     unitriangular=True)],
                         (4, 4), (2, 4, 3)),
    "triangular_right": (lambda a, b: [torch.linalg.solve_triangular(a + 3 * torch.eye(4), b, upper=True,
                                                                     left=False)],
                         (4, 4), (2, 3, 4)),
    "lu_square": (lu, (2, 5, 5)), "lu_tall": (lu, (6, 4)), "lu_wide": (lu, (2, 3, 5)),
    "solve": (lambda a, b: [torch.linalg.solve(a, b)], (2, 4, 4), (2, 4, 3)),
    "solve_vector": (lambda a, b: [torch.linalg.solve(a, b)], (2, 4, 4), (2, 4)),
    "solve_broadcast": (lambda a, b: [torch.linalg.solve(a, b)], (3, 1, 4, 4), (2, 4, 1)),
    "solve_large": (lambda a, b: [torch.linalg.solve(a + 6 * torch.eye(37), b)], (37, 37), (37, 2)),
    "inv": (lambda a: [torch.linalg.inv(a)], (2, 4, 4)),
    "det": (lambda a: [torch.linalg.det(a)], (3, 4, 4)),
    "slogdet": (lambda a: list(torch.linalg.slogdet(a)), (3, 4, 4)),
    "eigh": (eigh, (2, 5, 5)),
    "svd_tall": (svd, (2, 6, 4)), "svd_square": (svd, (4, 4)), "svd_wide": (svd, (2, 3, 5)),
    "lstsq_tall": (lambda a, b: [torch.linalg.lstsq(a, b, driver="gels").solution], (2, 6, 3), (2, 6, 2)),
    "lstsq_wide": (lambda a, b: [torch.linalg.lstsq(a, b, driver="gels").solution], (3, 5), (3, 2)),
}


def main():
    result = {}
    for seed, (name, (function, *shapes)) in enumerate(CASES.items()):
        torch.set_default_dtype(torch.float64)
        ins = [numbers(shape, seed * 2 + i + 1).requires_grad_() for i, shape in enumerate(shapes)]
        outs = function(*ins)
        for letter, x in zip("ab", ins):
            result[f"{name}:{letter}"] = x.detach()
        total = 0.0
        for i, y in enumerate(outs):
            result[f"{name}:{i}"] = y.detach().contiguous()
            w = numbers(y.shape, 300 + seed * 3 + i)
            result[f"{name}:w{i}"] = w
            if y.requires_grad:
                total = total + (y * w).sum()
        if name in ("lu_tall", "lu_wide", "qr_wide"):
            continue
        total.backward()
        for letter, x in zip("ab", ins):
            result[f"{name}:d{letter}"] = x.grad.contiguous()
    save_file(result, f"{HERE}/linalg.safetensors")


if __name__ == "__main__":
    main()
