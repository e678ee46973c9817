"""What the units of a first layer tell about the training set without any image: neighbours differ by few of them.

With weight decay [W, b] = A X~, and row j of A is zero for every training row that leaves unit j off (two_sided.py).
Two units that point nearly the same way are on for nearly the same training rows, so once both are scaled to one length
the difference of their rows of A is sparse: it holds the few training rows that lie between the two folds. CIFAR-10 and
MNIST, n = 500, 1,000 units: 50 and 26 rows carry such a difference. Edges are sparse on the side of the images,
differences of neighbours are on the side of the units, and they need no picture: rows of a table will do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEAREST = 5             # neighbours per unit
DEAD = 1e-3             # units shorter than this, relative to their mean square, hold rounding
PIXELS = 0.3            # independent features per pixel: there are nine edges to each, and neighbours are alike


@dataclass(frozen=True, eq=False)
class Neighbours:
    differences: Tensor     # (N, r) of neighbouring units, each scaled to unit length
    units: int              # that are alive

    def within(self, K: Tensor) -> Neighbours:
        """The same in other coordinates: K (r, r) takes the old ones there."""
        return Neighbours(self.differences @ K, self.units)

    def weight(self, pixels: int) -> float:
        """What the units' side counts for where the images' counts for 1: by the independent samples of each."""
        return self.units / (PIXELS * pixels)


def alive(C: Tensor) -> Tensor:
    """(h,) bool: units that no training row turned on have decayed. In a condensed layer they are most of it."""
    size = C.norm(dim=1)
    living: Tensor = size > DEAD * size.square().mean().sqrt()
    return living


def neighbours_in(C: Tensor) -> Neighbours:
    """Of the rows of C (h, r), a first layer in an orthonormal basis of its span. A pair counts once."""
    rows = C[alive(C)]
    rows = rows / rows.norm(dim=1, keepdim=True)
    alike = (rows @ rows.T).fill_diagonal_(-2.0)
    near = alike.topk(min(NEAREST, max(len(rows) - 1, 0)), dim=1).indices       # (h, k)
    own = torch.arange(len(rows))[:, None].expand_as(near)
    pairs = torch.stack([torch.minimum(own, near), torch.maximum(own, near)], -1).reshape(-1, 2).unique(dim=0)
    return Neighbours(rows[pairs[:, 0]] - rows[pairs[:, 1]], len(rows))
