"""How many singular values of a first layer stand out of its noise.

What is left of the initialisation, or of float32 rounding, is a random matrix: its singular values end at
sigma (sqrt(h) + sqrt(d)) (Marchenko-Pastur), up to Tracy-Widom fluctuations of relative size min(h, d)^(-2/3). The
training points stand above that edge. sigma comes from the median of the tail, for which the law is known too, so
nothing about the training is assumed. Confidence: the edge is raised by the 99.9 % Tracy-Widom quantile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TW_999 = 3.27           # 99.9 % quantile of the Tracy-Widom law (beta = 1)
NEAR = 2.0
STEEP = 1e6             # fall to the rounding level that even one zero value confirms
WEAK = 1e-5             # singular values below this, relative to the largest, are found in a second pass
SHORTEST_TAIL = 4       # fewer values than this cannot show a noise law


@dataclass(frozen=True, eq=False)
class Edge:
    rank: int
    edge: float                 # singular values above it are signal; nan where no tail is visible
    gap: float                  # ratio of the last signal value to the first noise value
    singular_values: Tensor     # (min(h, d),)
    confidence: float = 0.999


def noise_edge(A: Tensor) -> tuple[Edge, Tensor]:
    """(edge, right singular vectors (min(h, d), d)) of A (h, d)."""
    h, d = A.shape
    s, Vt = singular(A)
    m = len(s)
    floor = float(s[0]) * max(h, d) * torch.finfo(torch.float64).eps if m else 0.0
    numerical = int((s > floor).sum())
    # An exact rank: nothing but rounding below it. Fewer zeros than a tail count where the fall to them is steep.
    steep = 0 < numerical < m and float(s[numerical - 1]) > STEEP * floor
    if numerical <= m - SHORTEST_TAIL or steep:
        return Edge(numerical, floor, float(s[numerical - 1]) / max(floor, 1e-300) if numerical else 1.0, s), Vt
    rank = 0
    for _ in range(50):
        tail = s[rank:]
        if len(tail) < SHORTEST_TAIL:
            return Edge(m, math.nan, 1.0, s), Vt
        edge = upper_edge(tail, h - rank, d - rank)
        found = int((s > edge).sum())
        if found <= rank:
            break
        rank = found
    rank = min(rank, m)
    # Rounding noise is not quite independent, so a few of its values may pass the edge. A clear fall down to within
    # twice the edge ends the signal there; noise of a random start obeys the law and shows no such fall.
    clear = int((s > NEAR * edge).sum())
    if 0 < clear < rank and s[clear - 1] > NEAR * s[clear]:
        rank = clear
    gap = float(s[rank - 1] / s[rank].clamp(min=1e-300)) if 0 < rank < m else 1.0
    return Edge(rank, edge, gap, s), Vt


def singular(A: Tensor) -> tuple[Tensor, Tensor]:
    """(singular values (m,), right singular vectors (m, d)) of A (h, d), m = min(h, d).

    More rows than columns: by the Gram matrix, in half the time. Squares below eps times the largest are lost in it,
    but not the subspace that they belong to: in that the layer is taken again, where nothing large drowns the small.
    """
    h, d = A.shape
    if h <= d:
        V, s, _ = torch.linalg.svd(A.T, full_matrices=False)         # of A itself LAPACK takes twice as long
        return s, V.T
    L, V = torch.linalg.eigh(A.T @ A)
    columns = A @ V                                                 # (h, d) orthogonal but for rounding
    weak = WEAK ** 2 * L[-1] > L
    turn = torch.linalg.eigh(columns[:, weak].T @ columns[:, weak])[1]
    columns[:, weak], V[:, weak] = columns[:, weak] @ turn, V[:, weak] @ turn
    s, order = columns.norm(dim=0).sort(descending=True)
    return s, V.T[order]


def upper_edge(tail: Tensor, h: int, d: int) -> float:
    small, large = min(h, d), max(h, d)
    sigma = float(tail.median()) / median_singular_value(small, large)
    # The largest eigenvalue is about mu + tw * spread (Johnstone), mu = (sqrt(large) + sqrt(small))^2.
    mu = (math.sqrt(large) + math.sqrt(small)) ** 2
    spread = (math.sqrt(large) + math.sqrt(small)) * (1 / math.sqrt(large) + 1 / math.sqrt(small)) ** (1 / 3)
    return sigma * math.sqrt(mu + TW_999 * spread)


def median_singular_value(small: int, large: int) -> float:
    """Median singular value of a large x small matrix of independent unit-variance numbers (Marchenko-Pastur)."""
    y = small / large
    low, high = (1 - math.sqrt(y)) ** 2, (1 + math.sqrt(y)) ** 2
    t = torch.linspace(0, math.pi, 4001, dtype=torch.float64)        # x = mid + half cos t clears the square roots
    mid, half = (high + low) / 2, (high - low) / 2
    x = mid - half * torch.cos(t)
    density = (half * torch.sin(t)) ** 2 / (2 * math.pi * y * x.clamp(min=1e-12))
    mass = torch.cumulative_trapezoid(density, t)
    middle = int(torch.searchsorted(mass, 0.5 * mass[-1]))
    return math.sqrt(large * float(x[middle]))
