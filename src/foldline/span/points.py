"""Where to ask: points that open new directions.

A ReLU network repeats itself where points are small against its biases (one piece, one gradient), and forgets its
biases where they are large. So scales are mixed, from moderate upwards, and shift with what the answers show:
repeats push the scale up, silence (zero gradients) sends points to smaller scales, to opposite points and to points
between those that answered differently.

Once a point has spoken, the others set out from it. Two things waste a gradient: a point where the output is dead, and
one that flips no unit whose row is unknown. Against the first, a step up the output's own slope (`lift`): the units
that carry the output are then far from their folds. Against the second, most of the rest lies in the null space of
what is known, where only missing rows can change a sign. A unit row shows (k - r) / k of its square outside r known
directions, and so much less of a step counts: that step is one over the share of the last gradients that was new.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.oracles.protocols import Box

SCALES = (1.0, 3.0, 0.5, 10.0, 1.0, 2.0, 30.0)      # standard deviations, in turn

LIFT = 0.7                                          # step up the slope, over the point's length
REACH = 1.0                                         # step into the null space, over the point's length
TALLEST = 4                                         # points that others set out from, at least half as tall as one
SMALLEST_SHARE = 0.01                               # no step is longer than REACH over this
RECENT = 5                                          # gradients whose new share sets the step
REACHES = (10.0, 3.0, 100.0, 1.0)                   # lengths of null moves, over the point's; each both ways


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
        self.tall: list[tuple[float, Tensor, Tensor]] = []      # height, point, unit vector up the slope
        self.shares: list[float] = []                           # of the gradients that were new: how much of each
        self.walking, self.stuck, self.reached = False, False, 0
        self.saturates = False                                  # a bounded output is flat where it is high: no lift
        self.mirrored: tuple[Tensor, Tensor] | None = None      # the last null move, not yet made the other way
        self.plain = False                                      # steps change too little here: points from anywhere
        self.settled = False                                    # the last gradient was not plainly new
        self.known = torch.zeros(0, d, dtype=torch.float64)     # orthonormal rows; the search keeps it up to date
        self.reach, self.lift = REACH, LIFT

    def next(self) -> Tensor:
        """(d,)"""
        self.turn += 1
        partly_dead = bool(self.dead and self.live)
        if self.data is not None and self.turn % 2 and not partly_dead:
            return self.from_data()
        # In a box a step soon meets a wall: there only where most points are dead. Elsewhere always, until the rank
        # stands or a step changed nothing (then points come from anywhere), or steps die one after another.
        looks_around = self.turn % 8 == 0 if self.box is not None else \
            (self.settled or self.saturates or self.plain) and (not partly_dead or self.turn % 2 == 0)
        if self.tall and (partly_dead or self.box is None) and not looks_around and (self.silent < 4 or self.turn % 4):
            return self.step()
        if self.silent == 1 and self.box is None and not self.live:
            return -self.dead[-1][0]                            # units that are off here are on there
        between = self.between_dead() if self.silent >= 2 else None
        if between is not None:
            return between
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

    def elsewhere(self, n: int) -> Tensor:
        """(n, d) Gaussian points, at scales drawn from the same mixture."""
        at = torch.randint(len(SCALES), (n,), generator=self.rng)
        scales = self.factor * torch.tensor(SCALES, dtype=torch.float64)[at]                    # (n,)
        return scales[:, None] * torch.randn(n, self.d, generator=self.rng, dtype=torch.float64)

    def heard(self, x: Tensor, *, zero: bool, repeat: bool, answer: float = 0.0, row: Tensor | None = None,
              share: float = 0.0) -> None:
        """row (d,): a gradient at x; share: how much of it, as a unit vector, lay outside what was known."""
        self.stuck = self.walking and repeat and not zero       # a step changed nothing: not into the null space next
        if self.walking:
            # Death shortens the step. A lift that decides every unit leaves nothing to change: that lengthens it.
            self.reach = max(self.reach * 0.5, 1e-9) if zero else min(self.reach * 2.0, 16.0) if repeat else \
                max(self.reach, min(self.reach * 1.5, REACH))
            self.lift = max(self.lift * 0.5, 1e-9) if zero else self.lift * 0.25 if repeat else self.lift
            self.plain = self.plain or repeat
        stepped, self.walking = self.walking, False
        if zero:
            self.silent += 1
            self.dead.append((x, answer))
            return
        self.silent = 0 if not repeat else self.silent
        self.live.append(x)
        if repeat and not stepped:
            self.factor = min(self.factor * 2.0, 1e3)           # one piece everywhere: look further out
        if share > 0:
            self.shares.append(max(share, SMALLEST_SHARE))
        if row is not None and float(x.norm()) > 0:
            rise, length = float(row @ x), float(row.norm())
            self.tall.append((abs(rise) / (length * float(x.norm())), x, row / (length if rise >= 0 else -length)))
            tallest = max(height for height, _, _ in self.tall)
            self.tall = sorted((t for t in self.tall if 2 * t[0] >= tallest), key=lambda t: -t[0])[:TALLEST]

    def step(self) -> Tensor:
        """From a tall point up its slope, then aside: anywhere, and longer into the null space of what is known.

        Height is the cosine between point and gradient: how much of the answer a scaled-down point would lose. After a
        gradient that was not plainly new, or a step that changed nothing, there is no second part.
        """
        _, x, up = self.tall[int(torch.randint(len(self.tall), (1,), generator=self.rng))]
        size = float(x.norm())
        u = torch.randn(self.d, generator=self.rng, dtype=torch.float64)
        u = self.reach * u / u.norm()
        v = u - self.known.T @ (self.known @ u)
        v = v - self.known.T @ (self.known @ v)
        if not self.settled and not self.stuck and float(v.norm()) > 1e-6 * float(u.norm()):
            recent = sorted(self.shares[-RECENT:])
            share = recent[len(recent) // 2] if recent else 1.0
            u = u + v / share
        self.walking = True
        y = x + size * (u if self.saturates else self.lift * up + u)
        # Far points forget their biases and near ones repeat: scales are mixed, unless part of the space is dead.
        wanted = size if self.dead else SCALES[self.turn % len(SCALES)] * self.factor * self.d ** 0.5
        return self.clip(y * (wanted / float(y.norm()))) if self.box is None else self.clip(y)

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
        Every move is made both ways: a unit that is off on one side is on on the other, if the move is long.
        """
        if not self.live:
            return None
        if self.mirrored is not None:
            base, moved = self.mirrored
            self.mirrored = None
            return base, 2 * base - moved
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
            reach = REACHES[self.reached % len(REACHES)]
            self.reached += 1
            self.mirrored = base, base + u * (reach * max(float(base.norm()), 1e-3) / size)
            return self.mirrored
        room = torch.where(u > 0, self.box[1] - base, self.box[0] - base) / torch.where(u == 0, torch.ones_like(u), u)
        fits = float(room[u != 0].min())
        return (base, self.clip(base + min(fits, 1.0) * u)) if fits > 0.2 else None

    def clip(self, x: Tensor) -> Tensor:
        return x if self.box is None else x.clamp(*self.box)
