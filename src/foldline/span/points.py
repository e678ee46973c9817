"""Where to ask: points that open new directions.

A ReLU network repeats itself where points are small against its biases (one piece, one gradient), and forgets its
biases where they are large. So scales are mixed, from moderate upwards, and shift with what the answers show:
repeats push the scale up, silence (zero gradients) sends points to smaller scales and then near points that spoke.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.oracles.protocols import Box

SCALES = (1.0, 3.0, 0.5, 10.0, 1.0, 2.0, 30.0)      # standard deviations, in turn

REACH = 0.3                                         # of a step from a living point: longer ones die more often
REACHES = (1.0, 3.0, 10.0)                          # lengths of null moves, over the point's


def gaussian_points(n: int, d: int, *, rng: torch.Generator, box: Box | None = None, scale: float = 1.0) -> Tensor:
    """Algorithm 1: n standard Gaussian points; inside a box, uniform ones (a Gaussian does not fit in it)."""
    if box is not None:
        return box[0] + (box[1] - box[0]) * torch.rand(n, d, generator=rng, dtype=torch.float64)
    return scale * torch.randn(n, d, generator=rng, dtype=torch.float64)


class PointStream:
    """An endless, adaptive stream of points; `heard` tells it what the last one gave."""

    def __init__(self, d: int, *, rng: torch.Generator, box: Box | None, data: Tensor | None = None) -> None:
        self.d, self.rng, self.box, self.data = d, rng, box, data
        self.turn = 0
        self.factor = 1.0                                       # moves all scales
        self.silent = 0                                         # zero gradients in a row
        self.live: list[Tensor] = []                            # points whose gradient was not zero
        self.dead: list[tuple[Tensor, float]] = []              # points whose gradient was, and what they answered
        self.walking, self.stuck, self.reached = False, False, 0
        self.known = torch.zeros(0, d, dtype=torch.float64)     # orthonormal rows; the search keeps it up to date
        self.reach = REACH                                      # how far from a live point others are

    def next(self) -> Tensor:
        """(d,)"""
        self.turn += 1
        if self.dead and self.live and self.turn % 8 and not self.stuck:
            return self.near_live()                             # part of the space is dead: stay where there is life
        between = self.between_dead() if self.silent >= 2 else None
        if between is not None:
            return between
        if self.data is not None and self.turn % 2:
            return self.from_data()
        if self.box is not None:
            return self.in_box()
        scale: float = SCALES[self.turn % len(SCALES)] * self.factor
        if self.silent >= 4:
            # Nothing answers: try all orders of magnitude, one-sided points and sparse ones too.
            scale *= float(10.0 ** (float(2 * torch.rand(1, generator=self.rng) - 1) * 3))
            x = torch.randn(self.d, generator=self.rng, dtype=torch.float64)
            if self.turn % 3 == 0:
                x = x.abs() * (1.0 if self.turn % 2 else -1.0)
            return scale * x
        return scale * torch.randn(self.d, generator=self.rng, dtype=torch.float64)

    def heard(self, x: Tensor, *, zero: bool, repeat: bool, answer: float = 0.0) -> None:
        self.stuck = self.walking and repeat and not zero       # a step changed nothing: a point from elsewhere next
        if self.walking:
            # Death shortens the step. So little was left to move that nothing changed: that lengthens it.
            self.reach = max(self.reach * 0.5, 1e-9) if zero else min(self.reach * 2.0, 4.0) if repeat else \
                max(self.reach, min(self.reach * 1.5, REACH))
            self.walking = False
        if zero:
            self.silent += 1
            self.dead.append((x, answer))
            return
        self.silent = 0 if not repeat else self.silent
        self.live.append(x)
        if repeat:
            self.factor = min(self.factor * 2.0, 1e3)

    def near_live(self) -> Tensor:
        """A step from a point that spoke, into the null space of what is known: as far as such steps find life.

        Only directions that are still missing can change anything there, so the step spends nothing on known ones.
        """
        base = self.live[int(torch.randint(len(self.live), (1,), generator=self.rng))]
        u = torch.randn(self.d, generator=self.rng, dtype=torch.float64)
        v = u - self.known.T @ (self.known @ u)
        v = v - self.known.T @ (self.known @ v)
        u = v if float(v.norm()) > 1e-6 * float(u.norm()) else u
        self.walking = True
        return self.clip(base + self.reach * max(float(base.norm()), 1e-3) * u / u.norm())

    def between_dead(self) -> Tensor | None:
        """Saturated points with different answers have a live one between them: bisect from the latest pair."""
        if not self.dead:
            return None
        x, answer = self.dead[-1]
        other = next((p for p, a in reversed(self.dead) if a != answer), None)
        if other is None:
            return None
        if float((x - other).norm()) <= 1e-12 * float(x.norm() + other.norm()):
            self.dead.clear()
            return None
        return 0.5 * (x + other)

    def from_data(self) -> Tensor:
        """A mixture of two data points, at full or half contrast, with a little noise."""
        assert self.data is not None
        i, j = torch.randint(len(self.data), (2,), generator=self.rng).tolist()
        t = float(torch.rand(1, generator=self.rng))
        x = (1 - t) * self.data[i] + t * self.data[j]
        x = x * (1.0, 0.5, 2.0)[self.turn % 3]
        spread = float(self.data.std()) if len(self.data) > 1 else 1.0
        return self.clip(x + 0.3 * spread * torch.randn(self.d, generator=self.rng, dtype=torch.float64))

    def in_box(self) -> Tensor:
        """Uniform, corners and sparse corners in turn."""
        assert self.box is not None
        low, high = self.box
        u = torch.rand(self.d, generator=self.rng, dtype=torch.float64)
        kind = self.turn % 4
        if kind == 1:
            u = (u > 0.5).double()
        elif kind == 2:
            u = (u > 0.8).double()
        elif kind == 3:
            u = torch.where(u > 0.6, torch.rand(self.d, generator=self.rng, dtype=torch.float64), torch.zeros_like(u))
        return low + (high - low) * u

    def null_move(self, basis: Tensor) -> tuple[Tensor, Tensor] | None:
        """A point that spoke, moved far within the null space of what is known, and that point.

        If the span is complete the answer cannot change; if a direction is missing, the move has a component on it.
        """
        if not self.live:
            return None
        base = self.live[int(torch.randint(len(self.live), (1,), generator=self.rng))]
        u = torch.randn(self.d, generator=self.rng, dtype=torch.float64)
        if self.box is not None:
            u = self.in_box() - base                            # towards another point of the box
        length = float(u.norm())
        for _ in range(2):                                      # twice: the first leaves rounding times |u|
            u = u - basis.T @ (basis @ u)
        size = float(u.norm())
        if size < 1e-8 * length:
            return None                                         # full rank: there is no null space
        if self.box is None:
            self.reached = (self.reached + 1) % len(REACHES)
            return base, base + u * (REACHES[self.reached] * max(float(base.norm()), 1e-3) / size)
        room = torch.where(u > 0, self.box[1] - base, self.box[0] - base) / torch.where(u == 0, torch.ones_like(u), u)
        fits = float(room[u != 0].min())
        return (base, self.clip(base + min(fits, 1.0) * u)) if fits > 0.2 else None

    def clip(self, x: Tensor) -> Tensor:
        return x if self.box is None else x.clamp(*self.box)
