"""Snapping: a training image lies on the edge of the pixel box far more often than its span forces it to.

In an r-dimensional span r - 1 pixels can be made zero at will; a digit has hundreds of zeros. So a candidate y is
moved to the point x = c R of the span with the sparsest distance to the box's edge that still looks like it:

    minimise sum_p |x_p|^q  subject to  <x, y> fixed,          q from 1 down to 1/2,

by iteratively reweighted least squares, one r x r system per candidate and round, no linear program. The systems
are weighted Gram matrices of the same rows, so all of a batch are one product of the weights (k, p) with the pairwise
products of the rows (p, r (r + 1) / 2). The anchor y
stays the candidate's own, or all candidates would end on the same few sparse images. MNIST, n = 100: 84 arrive with ink
below zero at the price of other ink, 97 at eight times the price.

Whether it worked shows without the truth: share of ink outside the box, pixels on its edge, and whether the zeros leave
the span a single direction. Two similar digits are zero at the same places, so the first two alone do not tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS, EXACT = 30, 6       # the last ones in float64: what rounding did to the others they undo
FAR, NEAR = 0.3, 0.03
BELOW = 8.0
EDGE = 1e-2                 # a pixel this near to 0 or 1 is on the edge
CHUNK = 64                  # candidates per batch of systems: bounds memory at 64 r^2
PAIRS = 60_000_000          # numbers that the pairwise products may take; beyond, one product per candidate
PINNED = 0.05               # the zeros hold every other direction twenty times as firmly as the image's own
ROUNDING = 1e-10            # of a squared share of ink
VIOLATION = 0.02            # share of ink outside the box below which a snapped image counts as exact


@dataclass(frozen=True, eq=False)
class Snapped:
    coefficients: Tensor    # (k, r)
    violation: Tensor       # (k,) share of the ink outside the box
    edge: Tensor            # (k,) live pixels on the box's edge
    exact: Tensor           # (k,) bool


def snap(candidates: Tensor, R: Tensor, gauge: Tensor | None, *, rounds: int = ROUNDS, start: float = FAR,
         below: float = 1.0) -> Snapped:
    """candidates (k, d) in units of the box; R (r, d) orthonormal rows of the span; gauge (r,): gauge . c = 1.

    start: pixels below it are pulled to zero from the first round on. NEAR keeps what is nearly there from being drawn
    to a sparser neighbour, FAR brings in what is not. below: how much more ink below the box costs than ink in it;
    BELOW is far stronger where the span is clean, and bends the image where it is noisy.
    """
    live = R.norm(dim=0) > 1e-3 * R.norm(dim=0).max()
    Rl = R[:, live]                                                 # (r, p)
    gram = Grams(Rl)
    C = torch.cat([descend(part, gram, gauge, rounds, start, below)
                   for part in torch.split(candidates[:, live], CHUNK)])
    return measured(C, Rl)


class Grams:
    """gram(w) -> (k, r, r) float64: Rl diag(w_i) Rl^T for every row of w (k, p), in float32 unless `exact`."""

    def __init__(self, Rl: Tensor) -> None:
        self.Rl, r = Rl, len(Rl)
        self.rows = {True: Rl, False: Rl.float()}
        self.i, self.j = torch.triu_indices(r, r)
        few = len(self.i) * Rl.shape[1] <= PAIRS
        self.pairs = {exact: R[self.i] * R[self.j] for exact, R in self.rows.items()} if few else None

    def __call__(self, w: Tensor, exact: bool) -> Tensor:
        R = self.rows[exact]
        w = w.to(R)
        if self.pairs is None:
            return torch.stack([(R * row) @ R.T for row in w]).double()
        G = torch.empty(len(w), len(R), len(R), dtype=torch.float64)
        G[:, self.i, self.j] = G[:, self.j, self.i] = (w @ self.pairs[exact].T).double()
        return G


def measure(coefficients: Tensor, R: Tensor) -> Snapped:
    """The same figures for images as they are."""
    live = R.norm(dim=0) > 1e-3 * R.norm(dim=0).max()
    return measured(coefficients, R[:, live])


def descend(X: Tensor, gram: Grams, gauge: Tensor | None, rounds: int, start: float, below: float) -> Tensor:
    Rl = gram.Rl
    anchor = X.clamp(0, 1) @ Rl.T                                   # (k, r)
    eps, C = start, anchor
    for i in range(rounds):
        q = 1.0 - 0.5 * i / max(rounds - 1, 1)
        w = (X * X + eps * eps).pow(q / 2 - 1)                      # (k, p)
        w = torch.where(X < 0, below * w, w)
        G = gram(w, exact=i >= rounds - EXACT)                      # (k, r, r)
        # A span of as many directions as live pixels makes it singular.
        G += 1e-12 * G.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(len(Rl), dtype=G.dtype)
        C = scaled(solved(G, anchor), Rl, gauge)
        X = C @ Rl
        eps = max(0.82 * eps, 2e-3)
    return C


def solved(G: Tensor, anchor: Tensor) -> Tensor:
    L, failed = torch.linalg.cholesky_ex(G)
    if bool(failed.any()):                                          # rounding made one indefinite
        C: Tensor = torch.linalg.solve(G, anchor)
        return C
    return torch.cholesky_solve(anchor[:, :, None], L)[:, :, 0]


def scaled(C: Tensor, Rl: Tensor, gauge: Tensor | None) -> Tensor:
    """Coefficients of images: gauge . c = 1 where the span carries a constant, else the brightest pixel is 1."""
    if gauge is not None:
        g = C @ gauge
        size = C.norm(dim=1).clamp(min=1e-300)                      # left as it is, it would grow in every round
        return C / torch.where(g.abs() <= 1e-9 * size, size, g)[:, None]
    X = C @ Rl
    flip = torch.where(X.sum(1) < 0, -1.0, 1.0)
    top = (X * flip[:, None]).amax(1).clamp(min=1e-12)
    return C * (flip / top)[:, None]


def measured(C: Tensor, Rl: Tensor) -> Snapped:
    X = C @ Rl                                                      # (k, p)
    r, p = Rl.shape
    zeros = X.abs() < EDGE
    violation = outside(X)
    edge = (zeros | ((X - 1).abs() < EDGE)).sum(1)
    exact = (violation < VIOLATION) & (edge > needed(r, p)) & (X.amax(1) > 0.3)
    for i in torch.nonzero(exact).flatten().tolist():
        exact[i] = pinned(zeros[i], Rl)
    return Snapped(C, violation, edge, exact)


def needed(r: int, p: int) -> float:
    """Pixels on the edge that say something: r - 1 zeros are free, a tenth of the pixels beyond them is not."""
    return r + 0.1 * (p - r)


def outside(X: Tensor) -> Tensor:
    """(k,) share of the ink outside the box."""
    ink: Tensor = (-X).clamp(min=0) + (X - 1).clamp(min=0)
    return ink.sum(1) / X.abs().sum(1).clamp(min=1e-12)


def pinned(zeros: Tensor, Rl: Tensor) -> bool:
    """Whether the zeros fix the image: one direction of the span nearly vanishes there, and no second one does.

    Two similar digits are zero at the same places, and so is every mixture of them.
    """
    if len(Rl) < 2:
        return True
    first, second = torch.linalg.eigvalsh(Rl[:, zeros] @ Rl[:, zeros].T)[:2].clamp(min=0).tolist()
    # Where two directions vanish exactly, both are rounding, and their ratio says nothing.
    return bool(second > ROUNDING and first < PINNED ** 2 * second)
