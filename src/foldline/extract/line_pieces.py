"""Straight pieces of a function on a line: what is known of one, what lies between two, and all of them in order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(eq=False)
class Piece:
    """A straight piece through two supports; `err` is what the noise does to its extrapolation."""

    t1: float
    y1: Array                                                # (k,)
    t2: float
    y2: Array
    e1: float
    e2: float

    @property
    def slope(self) -> Array:
        s: Array = (self.y2 - self.y1) / (self.t2 - self.t1)
        return s

    def at(self, t: float) -> Array:
        # From the nearer support: the farther one only lends its slope.
        near, y = (self.t1, self.y1) if abs(t - self.t1) < abs(t - self.t2) else (self.t2, self.y2)
        value: Array = y + self.slope * (t - near)
        return value

    def err(self, t: float) -> float:
        lam = (t - self.t1) / (self.t2 - self.t1)
        return abs(1 - lam) * self.e1 + abs(lam) * self.e2

    @property
    def slope_err(self) -> float:
        return (self.e1 + self.e2) / (self.t2 - self.t1)

    def extend(self, t: float, y: Array, e: float) -> None:
        if t > self.t2:
            self.t2, self.y2, self.e2 = t, y, e
        elif t < self.t1:
            self.t1, self.y1, self.e1 = t, y, e


@dataclass(eq=False)
class Gap:
    left: Piece
    right: Piece
    width: float                                             # when it was opened: sets the scale of its steps
    tries: int = 0
    pending: tuple[float, Array] | None = None               # a value on neither piece that still lacks a slope
    wander: int = 0                                          # times the predicted point told nothing


@dataclass(frozen=True, eq=False)
class FoldLine:
    """A piecewise-linear function on a line: pieces left to right, and the folds between neighbours.

    t (m,) folds; jump (m, k) change of slope there; error (m,) uncertainty of t. base (m + 1,) a point inside each
    piece with its value (m + 1, k) and slope (m + 1, k). open: stretches (lo, hi) that could not be resolved.
    """

    t: Tensor
    jump: Tensor
    error: Tensor
    base: Tensor
    value: Tensor
    slope: Tensor
    support: Tensor                                          # (m + 1, 2): where each piece was asked, and
    support_value: Tensor                                    # (m + 1, 2, k): what was answered, and
    support_error: Tensor                                    # (m + 1, 2): how far off those answers may be
    ends: tuple[float, float]
    open: tuple[tuple[float, float], ...]
    rows: int
    samples: tuple[Tensor, Tensor] = field(repr=False)       # every (t, y) asked

    @property
    def complete(self) -> bool:
        return not self.open

    def at(self, piece: Tensor, t: Tensor) -> Tensor:
        """(n, k): the piece's own line at t, from its nearer support: far ones would cost digits."""
        near = (self.support[piece] - t[:, None]).abs().argmin(1)    # (n,)
        from_t = self.support[piece, near]
        value: Tensor = self.support_value[piece, near] + self.slope[piece] * (t - from_t)[:, None]
        return value

    def value_error(self, piece: Tensor, t: Tensor) -> Tensor:
        """(n,): how far off the piece's own line may be at t"""
        t1, t2 = self.support[piece].T
        lam = (t - t1) / (t2 - t1)
        e1, e2 = self.support_error[piece].T
        error: Tensor = (1 - lam).abs() * e1 + lam.abs() * e2
        return error

    @property
    def smallest_gap(self) -> float:
        return float(self.t.diff().min()) if len(self.t) > 1 else math.inf


def middle(a: float, b: float, scale: float | None) -> float:
    """Halfway in t, or in arctan(t / scale): the folds of a random line through many hyperplanes are Cauchy."""
    if scale is None:
        return 0.5 * (a + b)
    m = scale * math.tan(0.5 * (math.atan(a / scale) + math.atan(b / scale)))
    return m if a < m < b else 0.5 * (a + b)
