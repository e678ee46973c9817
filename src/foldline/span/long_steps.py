"""Gradients from answers with few digits: short steps where the target bends, long ones where it does not.

A difference over a step s has an error of (rounding of an answer) / s, and of what the target bends within s. A first
layer whose singular values fall through four decades folds at steps along its strong directions, so steps short enough
for them leave no digits for the weak ones. But a move with little of the strong directions in it meets only what weak
ones fold. So, with what the points before have shown:

moves      the rows h of a random orthonormal basis (a cosine transform with random signs), each known direction scaled
           down to half the share of it that is noise, and clean ones taken out: D h. As long as second
           differences allow. The signs make the error of the bends white: it has no direction of its own.
reading    the slopes are (D h) . g, so D g is known with white errors, and g follows. Along a known direction the error
           grows by as much as it was scaled down, but it lies in that direction, and only the noise in the direction
           leads out of the span: twice an entry's error for each. Wrong directions do no harm.
clean ones get one short move each. Their coefficients matter little, but rows should be gradients.

The step need not stay on one piece: it is chosen where rounding and bends cost the same. How good the row is says a
check that covers every move: sums of sqrt(d) moves at a third of the step. Where few sums are off (a fold met early),
their moves are asked again at a fifth of the step; what is left is the row's noise. As more is known the steps grow,
from 0.03 to 10 times the typical input on trained victims, and the rows become nearly as good as float32 gradients.
`within` keeps moves and gradients to a subspace; its dimension then takes the place of d.
Cost: d + sqrt(d) + 39 rows and one per clean direction; from d = 540 on, 27 for each other point that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.fft
import torch
from torch import Tensor

from foldline.oracles.protocols import ValueOracle
from foldline.span.differences import LADDER, Differences, Jacobian

ACROSS = tuple(10 ** (2 - i / 2) for i in range(13))        # steps of the ladder, times the point's typical size
ALONG = tuple(10.0 ** (1 - i) for i in range(6))
CLEAN = 3e-3                # directions of which less is noise are taken out of the moves
KEPT = 0.5                  # of the others so many times the share that is noise stays in
FAR = (10.0, -10.0, 100.0, -100.0)                          # times the first point
LONGEST = 30.0              # longer steps than this are looked at, not taken: the rounding grows with the point
SMALL = 4                   # the shortest rungs: what they show is rounding
WELL = 10.0                 # directions this far above the noise are shown well: a rank may rest on them
CHECK, AGAIN = 1 / 3, 1 / 5     # of the step
MEND_AT_MOST = 1 / 16       # of the moves
TRIED = 0.05                # share of the rows that may go into trying other points
RECENT = 15                 # points whose rounding is pooled
CHUNK = 512


@dataclass(frozen=True)
class Ladder:
    """Second differences around x, and what they say about the step."""

    x: Tensor               # (d,)
    size: float
    y: Tensor               # (k',) the answer at x
    live: Tensor            # (k',)
    rounding: Tensor        # (k',) standard error of one answer
    step: float
    noise: Tensor           # (k',) expected error of one slope at that step
    slope: Tensor           # (k',) typical slope of the moves
    signature: float
    dead: bool


class LongSteps(Differences):
    """The search tells what is known before each point. With exact answers these are Differences."""

    tried: Ladder | None = None             # of the point that was chosen last

    def __init__(self, f: ValueOracle, *, rng: torch.Generator, within: Tensor | None = None) -> None:
        super().__init__(f, rng=rng)
        self.within = within                # (p, d) orthonormal: moves and gradients stay in its span; None: all inputs
        self.p = f.dim if within is None else len(within)
        self.know(torch.zeros(0, f.dim, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
        self.units_off: list[float] = []    # mean square rounding of each point, over its unit's square

    def know(self, directions: Tensor, leaks: Tensor) -> None:
        """directions (r, d), orthonormal; leaks (r,): how much of each lies outside the span."""
        self.known, self.leaks = directions, leaks
        self.clean = leaks <= CLEAN                                                 # (r,) bool
        self.kept = torch.where(self.clean, 0.0, (KEPT * leaks).clamp_max(1.0))     # (r,) what of it stays in a move

    @property
    def rough(self) -> bool:
        """Float32 answers, and room for long moves: a box stops them, and probabilities saturate on them.

        Not for answers rounded to a decimal, whose last digit hides whole folds: at four digits short steps do better.
        """
        return self.f.box is None and self.link == "identity" and self.eps > 1e-12 and self.quantum == 0

    def candidates(self) -> int:
        """Points to choose from, this one included."""
        ready = self.rough and len(self.known) > 0
        return 1 + min(5, int(TRIED * self.p / (2 * len(ACROSS) + 1))) if ready else 1

    def best_of(self, points: Tensor) -> int:
        """Which of points (c, d) shows most that is not known, for its noise."""
        found = [self.ladder(x) for x in points]
        worth = [0.0 if a.dead or not len(a.live) else float((a.slope / a.noise).max()) for a in found]
        best = max(range(len(worth)), key=worth.__getitem__)
        self.tried = found[best]
        return best

    def at(self, x: Tensor) -> Jacobian:
        if self.link is None and self.eps > 1e-12 and self.f.box is None:
            self.look_around(x)
        if not self.rough:
            return super().at(x)
        d = self.f.dim
        x = self.f.snap(x[None])[0]
        here = self.tried if self.tried is not None and bool((self.tried.x == x).all()) else self.ladder(x)
        self.tried = None
        none = Jacobian(x.new_zeros(len(here.live), d), here.y, torch.zeros_like(here.y), here.live, 0.0, False, True,
                        here.signature)
        if here.dead or len(here.live) == 0:
            return none
        inside, error = self.along(here)                                            # (k', d), (k',)
        g, noise = self.across(here, inside)                                        # (k', d), (k',)
        length = g.norm(dim=1).clamp_min(1e-300)
        # Undoing what a direction was scaled down by leaves 1 / KEPT of an entry's error outside the span.
        white = (self.p + int((~self.clean).sum()) / KEPT ** 2) ** 0.5 * noise
        return replace(none, rows=g, noise=(white.square() + error.square()).sqrt() / length, least=white / length,
                       step=here.step)

    # Steps

    def look_around(self, x: Tensor) -> None:
        """What the outputs are: 15 rows around x, and four far out, where a probability still is one."""
        x = self.f.snap(x[None])[0]
        steps = max(float(x.square().mean().sqrt()), 1e-3) * torch.tensor(LADDER, dtype=torch.float64)  # (L,)
        moves = steps[:, None] * self.units(len(LADDER))                            # (L, d)
        far = torch.tensor(FAR, dtype=torch.float64)[:, None] * x                   # (4, d)
        raw = self.f(torch.cat([x[None], x + moves, x - moves, far])).double()
        raw, out = raw[:-len(FAR)], raw[-len(FAR):]
        self.learn_digits(raw)
        self.link = self.choose_link(raw) if bool(((out >= 0) & (out <= 1)).all()) else "identity"

    def ladder(self, x: Tensor) -> Ladder:
        """x (d,), on each rung a move of its own, both ways."""
        f, L = self.f, len(ACROSS)
        x = f.snap(x[None])[0]
        size = max(float(x.square().mean().sqrt()), 1e-3)
        steps = size * torch.tensor(ACROSS, dtype=torch.float64)                    # (L,)
        moves = steps[:, None] * self.off(self.units(L))                      # (L, d)
        raw = f(torch.cat([x[None], x + moves, x - moves])).double()                # (1 + 2L, k)
        self.learn_digits(raw)
        self.size = size
        signature = float(raw[0].argmax()) if raw.shape[1] > 1 else float(raw[0, 0])
        self.scale = torch.maximum(self.scale, raw[1 + L // 2:1 + L].abs().amax(0) / max(size, 1.0))
        y, live, unit_ = self.behind_link(raw)                                      # (1 + 2L, k'), (k',), (k',)
        if len(live) == 0 or bool((y == y[0]).all()):
            return Ladder(x, size, y[0], live, unit_, 0.0, unit_, 0 * unit_, signature, True)
        bend = (y[1:L + 1] + y[L + 1:] - 2 * y[0]).abs()                            # (L, k')
        rounding = self.rounding(bend[-SMALL:], y[0], self.behind_link(raw[[0, *range(-SMALL, 0)]], live)[2])
        i, noise = best_step(bend, steps, rounding, LONGEST * size)
        slope = ((y[1:L + 1] - y[L + 1:]) / (2 * steps[:, None]))[i:i + 3].square().mean(0).sqrt()
        return Ladder(x, size, y[0], live, rounding, float(steps[i]), noise, slope, signature, False)

    def rounding(self, bend: Tensor, y: Tensor, unit: Tensor) -> Tensor:
        """(k',) standard error of one answer: bend (SMALL, k') at the shortest steps, answers y (k') and their units.

        Of rounding alone, second differences have 6 times its variance. Four of them say little, but the error inside
        a network goes with the size of what it adds up, so the points before count too.
        """
        own = bend.square().median(0).values / (6 * 0.455)      # a square's median is 0.455 of its mean
        self.units_off.append(float((bend.square().mean(0) / 6 / unit.square()).median()))
        recent = sorted(self.units_off[-RECENT:])
        pooled = recent[len(recent) // 2] * unit.square()
        least = 0.29 * self.eps * y.abs()                                           # half a last digit
        return torch.stack([own / 4, pooled, least.square()]).amax(0).sqrt().clamp_min(1e-300)

    # Along clean directions, and across them

    def along(self, here: Ladder) -> tuple[Tensor, Tensor]:
        """The gradients' part along clean directions (k', d), and the length of its error outside the span (k',)."""
        Q, L = self.known[self.clean], len(ALONG)                                   # (r, d)
        inside, error = here.x.new_zeros(len(here.live), self.f.dim), torch.zeros_like(here.y)
        if len(Q) == 0:
            return inside, error
        steps = here.size * torch.tensor(ALONG, dtype=torch.float64)
        u = unit(torch.randn(L, len(Q), generator=self.rng, dtype=torch.float64)) @ Q       # (L, d)
        moves = steps[:, None] * u
        y = self.slopes(here.x, torch.cat([moves, -moves]), here.live)[1]           # (2L, k')
        i, noise = best_step((y[:L] + y[L:] - 2 * here.y).abs(), steps, here.rounding, float(steps[0]))
        y = self.slopes(here.x, steps[i] * Q, here.live)[1]                         # (r, k')
        return ((y - here.y) / steps[i]).T @ Q, noise * self.leaks[self.clean].norm()

    def across(self, here: Ladder, inside: Tensor) -> tuple[Tensor, Tensor]:
        """The whole gradients (k', d), and the error of one slope (k',)."""
        p, s, x = self.p, here.step, here.x
        signs = torch.randint(2, (p,), generator=self.rng).double() * 2 - 1
        slopes = torch.cat([self.asked(here, rows, signs, s, inside)
                            for rows in torch.arange(p).split(CHUNK)])              # (p, k')
        g = inside + self.whole(self.placed(turned_back(slopes, signs)))
        # Every move is in one sum of `width`, which is a unit move too: (length of its error)^2 width / p is the mean
        # square error of the slopes in it.
        width = max(2, round(p ** 0.5))
        member = torch.empty(p, dtype=torch.int64)
        member[torch.randperm(p, generator=self.rng)] = torch.arange(p) // width    # (p,) which sum each belongs to
        count = torch.bincount(member).double()                                     # (n,)
        sums = torch.zeros(len(count), p, dtype=torch.float64)
        sums[member, torch.arange(p)] = 1 / count[member].sqrt()
        moves = CHECK * s * self.off(self.placed(turned(sums, signs)))              # (n, d)
        moved, y = self.slopes(x, moves, here.live)
        error = ((y - here.y - moved @ g.T) / (CHECK * s)).square()                 # (n, k')
        own = 2 * here.rounding.square() / (CHECK * s) ** 2                         # (k',) of the check itself
        bad = (error > 16 * own).any(1)                                             # (n,)
        again = torch.nonzero(bad[member])[:, 0]
        if 0 < len(again) <= max(width, int(MEND_AT_MOST * p)):
            slopes[again] = self.asked(here, again, signs, AGAIN * s, inside)
            g = inside + self.whole(self.placed(turned_back(slopes, signs)))
            error[bad] = own + 2 * here.rounding.square() / (AGAIN * s) ** 2
        bends = ((count[:, None] * error).sum(0) / p - own).clamp_min(0)            # (k',)
        return g, (bends + 2 * here.rounding.square() / s ** 2).sqrt()

    def asked(self, here: Ladder, rows: Tensor, signs: Tensor, step: float, inside: Tensor) -> Tensor:
        """Slopes (m, k') along rows (m,) of the random basis, known directions scaled down in them."""
        ones = torch.zeros(len(rows), self.p, dtype=torch.float64)
        ones[torch.arange(len(rows)), rows] = 1.0
        moves = step * self.off(self.placed(turned(ones, signs)))                   # (m, d)
        moved, y = self.slopes(here.x, moves, here.live)
        # Inputs are rounded too: what that adds along clean directions, where the target is steep, can be subtracted.
        slopes: Tensor = (y - here.y - (moved - moves) @ inside.T) / step
        return slopes

    def placed(self, rows: Tensor) -> Tensor:
        """Rows (m, p) of the subspace as inputs (m, d)."""
        return rows if self.within is None else rows @ self.within

    def allowed(self, moves: Tensor) -> Tensor:
        """Moves (m, d) without what lies outside the subspace, about which nothing is asked."""
        return moves if self.within is None or not self.rough else moves @ self.within.T @ self.within

    def units(self, n: int) -> Tensor:
        if not self.rough:
            return super().units(n)
        return unit(self.placed(torch.randn(n, self.p, generator=self.rng, dtype=torch.float64)))

    def off(self, rows: Tensor) -> Tensor:
        """Rows (m, d), each known direction scaled down."""
        return rows - ((rows @ self.known.T) * (1 - self.kept)) @ self.known if len(self.known) else rows

    def whole(self, rows: Tensor) -> Tensor:
        """Rows (m, d) as they were before `off`, without their part along clean directions."""
        if len(self.known) == 0:
            return rows
        back = torch.where(self.clean, -1.0, 1 / torch.where(self.clean, 1.0, self.kept) - 1)      # (r,)
        return rows + ((rows @ self.known.T) * back) @ self.known


def best_step(bend: Tensor, steps: Tensor, rounding: Tensor, longest: float) -> tuple[int, Tensor]:
    """Where the error of a slope is least, and that error (k',). bend (L, k') second differences, steps descending.

    Folds at random places bend a line of length s by about s^(3/2). A single move may meet none of them by luck: each
    rung is judged with the two longer ones beside it. The bend of one side is half of the square.
    """
    rate = (bend.square() - 6 * rounding.square()).clamp_min(0) / steps[:, None] ** 3         # (L, k')
    near = torch.stack([rate[max(0, i - 2):i + 1].mean(0) for i in range(len(steps))])          # (L, k')
    error = near * steps[:, None] / 2 + 2 * rounding.square() / steps[:, None] ** 2            # (L, k')
    total = (error / rounding.square()).log().sum(1)                                            # (L,)
    i = int(torch.where(steps <= longest * 1.001, total, torch.full_like(total, torch.inf)).argmin())
    return i, error[i].sqrt()


def turned(rows: Tensor, signs: Tensor) -> Tensor:
    """Rows (m, d) in the random basis: a cosine transform, then a sign for each input."""
    return torch.from_numpy(np.asarray(scipy.fft.dct(rows.numpy(), axis=1, norm="ortho"))) * signs


def turned_back(slopes: Tensor, signs: Tensor) -> Tensor:
    """(k', d) from slopes (d, k') along the rows of the random basis."""
    return turned(slopes.T.contiguous(), signs)


def unit(rows: Tensor) -> Tensor:
    lengths: Tensor = rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return rows / lengths
