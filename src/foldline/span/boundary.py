"""Points on a decision boundary: label changes along segments, bisected to the last bits in one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.oracles.protocols import LabelOracle

BITS = 52
SCALES = (1.0, 3.0, 0.3, 10.0, 0.1, 30.0, 100.0, 0.01)     # where two labels are looked for


@dataclass(frozen=True)
class Crossings:
    """On segment j the label leaves `inside[j]` between x[j] and x[j] + width[j] * v[j]."""

    x: Tensor           # (n, d) last points that still have the label
    v: Tensor           # (n, d) unit directions, out of the label's region
    width: Tensor       # (n,)
    inside: Tensor      # (n,) labels


def labels_at(lb: LabelOracle, x: Tensor) -> Tensor:
    """Labels at x, put back into the box where rounding or a step left it."""
    return lb(x if lb.box is None else x.clamp(*lb.box))


def bisect_segments(lb: LabelOracle, a: Tensor, b: Tensor, label: Tensor, bits: int = BITS) -> Crossings:
    """a, b (n, d) with lb(a) == label != lb(b). Cost: `bits` rows per segment."""
    span = b - a                                                # (n, d)
    length = span.norm(dim=1)                                   # (n,)
    low = torch.zeros(len(a), dtype=torch.float64)
    high = torch.ones(len(a), dtype=torch.float64)
    for _ in range(bits):
        mid = 0.5 * (low + high)
        same = labels_at(lb, a + mid[:, None] * span) == label  # (n,)
        low, high = torch.where(same, mid, low), torch.where(same, high, mid)
    return Crossings(a + low[:, None] * span, span / length[:, None], (high - low) * length, label)


def two_labels(lb: LabelOracle, *, rng: torch.Generator, rows: int, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points and their labels: asked until two labels are seen at some scale, or `rows` are used up."""
    d, box = lb.dim, lb.box
    x = torch.zeros(0, d, dtype=torch.float64)
    y = torch.zeros(0, dtype=torch.int64)
    first = 16
    if start is not None:
        x, y = start.double(), lb(start.double())
    turn = 0
    while len(x) < rows and (len(y.unique()) < 2 or len(x) < first):
        n = min(first * 2 ** (turn // 4), rows - len(x))
        if box is not None:
            u = torch.rand(n, d, generator=rng, dtype=torch.float64)
            u = (u, (u > 0.5).double(), u * (u > 0.7), 0.5 + 0.05 * (u - 0.5))[turn % 4]
            new = box[0] + (box[1] - box[0]) * (0.1 + 0.8 * u)      # not on a wall: moves need room on both sides
        else:
            new = SCALES[turn % len(SCALES)] * torch.randn(n, d, generator=rng, dtype=torch.float64)
            if turn % 4 == 3:
                new = new + SCALES[turn % len(SCALES)] * torch.randn(1, d, generator=rng, dtype=torch.float64)
        x, y = torch.cat([x, new]), torch.cat([y, lb(new)])
        turn += 1
    return x, y


def balanced_pairs(x: Tensor, y: Tensor, n: int, *, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """n pairs of points with different labels, over all pairs of labels that were seen."""
    labels = y.unique().tolist()
    pairs = [(p, q) for p in labels for q in labels if p != q]
    left, right = [], []
    for j in range(n):
        p, q = pairs[int(torch.randint(len(pairs), (1,), generator=rng))] if len(pairs) > n else pairs[j % len(pairs)]
        of_p, of_q = torch.nonzero(y == p)[:, 0], torch.nonzero(y == q)[:, 0]
        left.append(of_p[int(torch.randint(len(of_p), (1,), generator=rng))])
        right.append(of_q[int(torch.randint(len(of_q), (1,), generator=rng))])
    i, j2 = torch.stack(left), torch.stack(right)
    return x[i], x[j2], y[i]
