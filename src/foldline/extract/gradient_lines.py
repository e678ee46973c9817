"""Folds of a piecewise-linear function along segments, from gradients: one answer is one whole piece.

As in lines.py, two known pieces predict their crossing t*. A row there is either on a new piece (h folds have h + 1
pieces, which cost h + 1 rows whatever the method) or confirms the fold from one side. Confirming each fold from
both sides costs 3.4 rows per fold; the caller may instead say which gaps deserve a row (`select`), for instance
because a test point elsewhere contradicts them: then about 2 per fold are enough (gradients.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from foldline.extract.line_pieces import middle
from foldline.extract.lines import FINE, TRIES

AskGradients = Callable[[Tensor], tuple[Tensor, Tensor]]     # x (n, d) -> y (n,), gradient (n, d)


@dataclass(frozen=True, eq=False)
class Segment:
    """x(t) = x0 + t u, and what noise does to answers on it."""

    x0: Tensor                                               # (d,)
    u: Tensor                                                # (d,)
    scale: float | None                                      # see lines.middle
    tolerance: float                                         # of a gradient, in norm
    blur: Callable[[float], float]                           # of a value at t

    def x(self, t: float) -> Tensor:
        return self.x0 + t * self.u


@dataclass(eq=False)
class Plane:
    """One linear piece: its gradient, and the answers farthest left and right that lie on it."""

    gradient: Tensor                                         # (d,)
    slope: float
    t1: float
    y1: float
    t2: float
    y2: float


@dataclass(eq=False)
class Gap:
    """Two different pieces and whatever folds lie between them."""

    on: Segment
    left: Plane
    right: Plane
    width: float                                             # when it was opened: sets the scale of its steps
    tries: int = 0
    sides: tuple[bool, bool] = (False, False)                # which sides of t* were asked and agreed
    finer: float = 1.0                                       # closer to t* than usual, where two folds are suspected
    hint: float | None = None                                # where something outside the path expects a new piece

    def crossing(self) -> tuple[float, float]:
        """(t*, its error)"""
        L, R = self.left, self.right
        jump = R.slope - L.slope
        if jump == 0.0:
            return math.nan, math.inf
        ahead = R.y1 + R.slope * (L.t2 - R.t1) - L.y2        # (R - L) at L's end
        t = L.t2 - ahead / jump
        error = (self.on.blur(L.t2) + self.on.blur(R.t1)) / abs(jump)
        return (t, error) if math.isfinite(t) else (math.nan, math.inf)

    def offset(self, t: float, error: float) -> float:
        scale = self.on.scale
        return max(FINE * self.finer * (self.width if scale is None else min(self.width, scale + abs(t))), 8 * error)

    @property
    def single(self) -> bool:
        """One fold would explain it: the pieces cross inside the gap."""
        t, error = self.crossing()
        return self.left.t2 - error <= t <= self.right.t1 + error

    @property
    def confirmed(self) -> bool:
        t, error = self.crossing()
        near = 2 * self.offset(t, error)
        return self.single and (self.sides[0] or t - self.left.t2 <= near) \
            and (self.sides[1] or self.right.t1 - t <= near)

    @property
    def spent(self) -> bool:
        tiny = 16 * 2.3e-16 * max(abs(self.left.t2), abs(self.right.t1))
        return self.tries >= TRIES or self.right.t1 - self.left.t2 <= tiny

    def next_point(self) -> float:
        a, c = self.left.t2, self.right.t1
        hint, self.hint = self.hint, None
        if hint is not None and a < hint < c:
            return hint
        t, error = self.crossing()
        if a < t < c:
            step = self.offset(t, error)
            if self.sides[0] != self.sides[1] and self.tries % 2:
                # One side agreed, yet someone doubts the fold: more folds would be farther out on the other side.
                return middle(t, c, self.on.scale) if self.sides[0] else middle(a, t, self.on.scale)
            # The side with more room first: there an answer on the wrong piece shortens the gap most.
            for side in (-1.0, 1.0) if t - a >= c - t else (1.0, -1.0):
                if not self.sides[0 if side < 0 else 1] and a < t + side * step < c:
                    return t + side * step
        return middle(a, c, self.on.scale)

    def receive(self, t: float, y: float, g: Tensor) -> list[Gap]:
        self.tries += 1
        star, error = self.crossing()
        close = abs(t - star) <= 2 * self.offset(star, error)
        new = plane(self.on, t, y, g)
        if same(self.on, self.left, new):
            self.left.t2, self.left.y2 = t, y
            self.sides = (self.sides[0] or (close and t < star), self.sides[1] and t < star)
            return [self]
        if same(self.on, new, self.right):
            self.right.t1, self.right.y1 = t, y
            self.sides = (self.sides[0] and t > star, self.sides[1] or (close and t > star))
            return [self]
        return [Gap(self.on, self.left, new, t - self.left.t2), Gap(self.on, new, self.right, self.right.t1 - t)]


def plane(on: Segment, t: float, y: float, g: Tensor) -> Plane:
    return Plane(g, float(g @ on.u), t, y, t, y)


def same(on: Segment, p: Plane, q: Plane) -> bool:
    """p left of q: equal gradients, and q's value continues p."""
    if float((p.gradient - q.gradient).norm()) > on.tolerance:
        return False
    reach = on.tolerance * float(on.u.norm()) * abs(q.t1 - p.t2) + on.blur(p.t2) + on.blur(q.t1)
    return abs(q.y1 - p.y2 - p.slope * (q.t1 - p.t2)) <= reach


def gaps_between(on: Segment, t: Tensor, y: Tensor, g: Tensor) -> list[Gap]:
    """Stations asked before, t (m,) ascending, y (m,), g (m, d) -> the gaps between those that differ."""
    planes = [plane(on, ti, yi, gi) for ti, yi, gi in zip(t.tolist(), y.tolist(), g, strict=True)]
    return [Gap(on, p, q, q.t1 - p.t2) for p, q in pairwise(planes) if not same(on, p, q)]


def unconfirmed(gaps: list[Gap]) -> list[Gap]:
    """The careful choice: every gap, until it is confirmed from both sides."""
    return [g for g in gaps if not g.confirmed]
