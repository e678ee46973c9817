"""Sliding Frank-Wolfe: training points as the atoms of a measure, without any image prior.

[W1, b1] = sum_i c_i s(x_i) [x_i, 1]^T with s the back-propagated signal and c_i y_i >= 0: linear in the measure
sum_i c_i delta(x_i). So: (1) find points that best explain the residual by gradient ascent from random starts in the
row space, (2) refit all c by non-negative least squares, (3) slide all points and weights together, (4) prune, repeat.
Weaker than unmixing where images are images, but it holds for any data; MNIST n = 20: 8 of 20 above NCC 0.9.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from foldline.randomness import Streams
from foldline.reconstruction.kkt import Fit, deadline
from foldline.reconstruction.noise_edge import noise_edge
from foldline.results import Progress, silent

STARTS = 64
STALLS = 3              # rounds without one per cent less residual before it ends
SLIDES = 8


def solve_atoms(layers: list[nn.Linear], *, streams: Streams, low: Tensor | None, high: Tensor | None,
                atoms: int | None = None, rounds: int = 20, seconds: float | None = None,
                progress: Progress = silent) -> Fit:
    """atoms: at most so many, default twice the visible rank; the residual is relative to the part in the span."""
    W = [(p.weight.detach().double(), p.bias.detach().double() if p.bias is not None
          else p.weight.new_zeros(p.out_features).double()) for p in layers]
    A = torch.cat([W[0][0], W[0][1][:, None]], 1)                    # (h, d + 1)
    edge, V = noise_edge(A)
    B = V[:max(edge.rank, 1)]                                        # everything happens in the span
    target = A @ B.T @ B
    limit = atoms if atoms is not None else 2 * max(edge.rank, 1)
    X, c = torch.zeros(0, A.shape[1], dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    residual, clock, rng = target, deadline(seconds), streams("starts")
    stalled = 0
    for i in range(rounds):
        more, weights = prune(torch.cat([X, promising(residual, W, B, low, high, rng)]), target, W, limit)
        more, weights = settle(more, weights, target, W, low, high, limit)
        left, before = target - explained(more, weights, W), float(residual.norm())
        if float(left.norm()) < before:
            X, c, residual = more, weights, left
        share = float(residual.norm() / target.norm())
        progress("atoms", {"done": i + 1, "total": rounds, "atoms": len(X), "residual": share})
        stalled = stalled + 1 if float(residual.norm()) > 0.99 * before else 0
        if clock() or stalled == STALLS or share < 1e-6:
            break
    return Fit(X[:, :-1], c.abs(), float(residual.norm() / target.norm()))


def signal(X: Tensor, W: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(m, h) derivative of the output by the first pre-activation, at rows [x, 1]."""
    masks = []
    z = X @ torch.cat([W[0][0], W[0][1][:, None]], 1).T
    for weight, bias in W[1:]:
        masks.append((z > 0).double())
        z = (z * masks[-1]) @ weight.T + bias
    s = torch.ones(len(X), 1, dtype=X.dtype)
    for (weight, _), mask in zip(reversed(W[1:]), reversed(masks), strict=True):
        s = (s @ weight) * mask
    return s


def explained(X: Tensor, c: Tensor, W: list[tuple[Tensor, Tensor]]) -> Tensor:
    return (signal(X, W) * c[:, None]).T @ X


def promising(residual: Tensor, W: list[tuple[Tensor, Tensor]], B: Tensor, low: Tensor | None, high: Tensor | None,
              rng: torch.Generator) -> Tensor:
    """Rows [x, 1] of the span whose rank-one term s(x) [x, 1]^T correlates best with the residual."""
    X = normalised(torch.randn(STARTS, len(B), generator=rng, dtype=torch.float64) @ B)
    for _ in range(30):
        # With the mask held, s^T R x is maximised by x along R^T s; the box is put back after each step.
        pull = signal(X, W) @ residual
        sign = torch.sign((pull * X).sum(1, keepdim=True))
        X = boxed(normalised(0.5 * X + 0.5 * normalised(sign * pull @ B.T @ B)), low, high)
    s = signal(X, W)
    gain = ((s @ residual) * X).sum(1).abs() / (s.norm(dim=1) * X.norm(dim=1)).clamp(min=1e-300)
    return X[gain.argsort(descending=True)[:STARTS // 4]]


def prune(X: Tensor, target: Tensor, W: list[tuple[Tensor, Tensor]], limit: int) -> tuple[Tensor, Tensor]:
    """Non-negative least squares over both signs of every atom, through the Gram matrix; zeros leave."""
    s = signal(X, W)
    G = (s @ s.T) * (X @ X.T)                                        # <s_i x_i^T, s_j x_j^T>
    b = ((s @ target) * X).sum(1)
    L, U = torch.linalg.eigh(G)
    kept = 1e-10 * L.max() < L
    root = U[:, kept] * L[kept].sqrt()                               # G = root root^T
    rhs = (U[:, kept].T @ b) / L[kept].sqrt()
    M = root.T.numpy()
    both, _ = nnls(np.concatenate([M, -M], 1), rhs.numpy(), maxiter=50 * M.shape[1])
    c = torch.from_numpy(both[:len(X)] - both[len(X):])
    order = (c.abs() * s.norm(dim=1) * X.norm(dim=1)).argsort(descending=True)[:limit]
    order = order[c[order].abs() > 0]
    return X[order], c[order]


def settle(X: Tensor, c: Tensor, target: Tensor, W: list[tuple[Tensor, Tensor]], low: Tensor | None,
           high: Tensor | None, limit: int) -> tuple[Tensor, Tensor]:
    """Slide and refit as long as the residual falls; a step that switches units the wrong way is halved."""
    size, step = float((target - explained(X, c, W)).norm()), 1.0
    for _ in range(SLIDES):
        trial, weights = prune(slide(X, c, target, W, low, high, step), target, W, limit)
        new = float((target - explained(trial, weights, W)).norm())
        if new < size:
            X, c, size = trial, weights, new
        else:
            step /= 3
    return X, c


def slide(X: Tensor, c: Tensor, target: Tensor, W: list[tuple[Tensor, Tensor]], low: Tensor | None,
          high: Tensor | None, step: float) -> Tensor:
    """With masks and weights held, the points are a linear least-squares problem: a damped step towards its answer."""
    S = (signal(X, W) * c[:, None]).T                                # (h, m)
    damp = 1e-3 * S.square().sum(0).mean() * torch.eye(len(X), dtype=X.dtype)
    best = torch.linalg.solve(S.T @ S + damp, S.T @ target + damp @ X)
    return boxed(normalised((1 - step) * X + step * normalised(best)), low, high)


def normalised(X: Tensor) -> Tensor:
    last = X[:, -1:]
    return X / torch.where(last.abs() < 1e-6 * X.norm(dim=1, keepdim=True), torch.ones_like(last), last)


def boxed(X: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    if low is None or high is None:
        return X
    return torch.cat([torch.minimum(torch.maximum(X[:, :-1], low), high), X[:, -1:]], 1)
