"""The normal of a decision boundary at one point, from labels: all directions at once.

x0 lies on the boundary and v leads out of it. Along another direction e the boundary is met again at
x0 + h e + t v with w . (h e + t v) = 0, so t / h = -(w . e) / (w . v): one bisection per direction gives the normal
w up to scale. A row is one bit, so the rows go where the bits are:

1. at a tiny step h, COARSE bits of t / h: 24 rows per direction;
2. the same slope predicts t at a step 10^6 times as long; two labels say whether the boundary is there. Where a fold
   lies between (or the boundary is curved) the step is cut by 8 until it is: 2 to 3 rows;
3. at that step, FINE more bits: 16 rows.

v is a combination of the directions, so the slopes must reproduce it: sum_i (v . e_i) t_i / h_i = -1. That residual
and a few random directions (two labels each) tell a point where folds meet; such a point is dropped, not averaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foldline.oracles.protocols import LabelOracle
from foldline.span.boundary import Crossings, labels_at

FINE = 16
REACH = 0.03            # first step tried, times |x0|
CUT = 8.0
GIVE = 6.0              # a slope may be off by this many of its estimated errors
SAMPLE = 8
FUZZ = 12
CHECKS = 8


Unmeasured = Literal["blurred", "slanted"]
"""The label flickers around the point, or the boundary is almost parallel to v: a few rows were spent to see it."""


@dataclass(frozen=True)
class Normal:
    w: Tensor               # (d,) unit, in the span of the directions asked
    error: float            # estimated length of the error of w
    residual: float         # how far the slopes are from reproducing v, relative
    agreed: int             # random checks that agreed, of CHECKS
    step: float             # median step, over |x0|
    curved: bool

    @property
    def good(self) -> bool:
        # Checks may cross folds that no direction did: slopes that reproduce v to many digits outvote them.
        return self.residual <= 1e-2 and (self.agreed >= CHECKS - 2 or self.residual <= 1e-8)


class Slopes:
    """Bisects t for many (direction, step) pairs at one boundary point."""

    def __init__(self, lb: LabelOracle, x0: Tensor, v: Tensor, label: int, E: Tensor) -> None:
        self.lb, self.x0, self.v, self.label, self.E = lb, x0, v, label, E
        self.eps = float(torch.finfo(lb.dtype).eps)
        self.size = max(float(x0.norm()), 1e-3)
        self.coarse = 20 if self.eps < 1e-12 else 8
        # Places along v closer than this cannot be told apart: rounding of x and inside the target.
        self.resolution = 8 * self.eps * self.size

    def inside(self, rows: Tensor, h: Tensor, t: Tensor) -> Tensor:
        """(m,): the label at x0 + h e + t v is still the one x0 came from."""
        return self.inside_at(self.x0 + h[:, None] * self.E[rows] + t[:, None] * self.v)

    def inside_at(self, x: Tensor) -> Tensor:
        return labels_at(self.lb, x) == self.label

    def bisect(self, rows: Tensor, h: Tensor, low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        for _ in range(bits):
            mid = 0.5 * (low + high)
            same = self.inside(rows, h, mid)
            low, high = torch.where(same, mid, low), torch.where(same, high, mid)
        return low, high

    def fuzz(self) -> float:
        """Furthest place along v, in units of the resolution, where rounding inside the target still flips a label."""
        reach = 2.0 ** torch.arange(FUZZ, dtype=torch.float64) * self.resolution       # (F,)
        t = torch.cat([-reach, reach])
        same = self.inside_at(self.x0 + t[:, None] * self.v)
        wrong = torch.cat([~same[:FUZZ], same[FUZZ:]])
        return float(t[wrong].abs().max()) / self.resolution if bool(wrong.any()) else 0.0

    def steepness(self, h: float, n: int = 8) -> float:
        """Largest |t| / h over a few directions, to a factor of two: how wide the brackets must be."""
        rows = torch.arange(min(n, len(self.E)))
        step = torch.full((len(rows),), h, dtype=torch.float64)
        need = torch.full((len(rows),), math.inf, dtype=torch.float64)
        for reach in (1.0, 4.0, 16.0, 64.0):
            open_ = torch.nonzero(need.isinf())[:, 0]
            if len(open_) == 0:
                break
            t = reach * step[open_]
            held = self.inside(rows[open_], step[open_], -t) & ~self.inside(rows[open_], step[open_], t)
            need[open_[held]] = reach
        return float(need.max()) if bool(need.isfinite().any()) else math.inf


def measure_normal(lb: LabelOracle, at: Crossings, j: int, E: Tensor, *, rng: torch.Generator,
                   fine: int = FINE) -> Normal | Unmeasured:
    """E: (m, d) orthonormal directions whose span holds v."""
    v, label = at.v[j], int(at.inside[j])
    x0 = at.x[j] + 0.5 * at.width[j] * v
    S = Slopes(lb, x0, v, label, E)
    m = len(E)
    fuzz = S.fuzz()
    if fuzz >= 2.0 ** (FUZZ - 2):
        return "blurred"                                        # no place to bisect: the label flickers here
    S.resolution *= max(1.0, 2 * fuzz)
    h0 = S.resolution * 2.0 ** (S.coarse + 2)
    bracket = S.steepness(h0)
    if not math.isfinite(bracket):
        return "slanted"
    # On a slanted boundary rounding moves the crossing further.
    S.resolution *= max(1.0, bracket / 4)
    h0 = S.resolution * 2.0 ** (S.coarse + 2)
    slope, error, unknown = coarse_slopes(S, h0, bracket * 4)
    if unknown > m // 20:
        return "slanted"
    c = E @ v                                                   # (m,)
    if abs(1.0 + float(c @ slope)) > 0.05:
        # Already on the smallest scale the slopes contradict each other: folds meet here.
        return Normal(direction(slope, E), 1.0, abs(1.0 + float(c @ slope)), 0, h0 / S.size, False)
    h, curved = longest_steps(S, slope, error, h0)
    slope, error = fine_slopes(S, slope, error, h, fine)
    w = direction(slope, E)
    length = float(slope.norm())
    residual = abs(1.0 + float(c @ slope)) / max(1.0, float((c.abs() * slope.abs()).sum()))
    agreed = check(S, slope, error, h, rng=rng)
    off = float(error.norm()) / length + (float(h.median()) / S.size if curved else 0.0)
    return Normal(w, off, residual, agreed, float(h.median()) / S.size, curved)


def direction(slope: Tensor, E: Tensor) -> Tensor:
    w = slope @ E                                               # (d,)
    unit: Tensor = w / w.norm()
    return unit


def coarse_slopes(S: Slopes, h0: float, bracket: float) -> tuple[Tensor, Tensor, int]:
    """Slopes (m,) and their half-widths (m,) at the tiny step; those that end at the bracket's edge get a wider one."""
    m = len(S.E)
    h = torch.full((m,), h0, dtype=torch.float64)
    low, high = -bracket * h, bracket * h
    low, high = S.bisect(torch.arange(m), h, low, high, S.coarse + 1 + round(math.log2(bracket)))
    edge = ((low + high) / 2).abs() >= bracket * h * (1 - 2.0 ** -8)
    again = torch.nonzero(edge)[:, 0]
    if len(again):
        wide = 32 * bracket * h[again]
        low[again], high[again] = S.bisect(again, h[again], -wide, wide, S.coarse + 6 + round(math.log2(bracket)))
        edge = edge & (((low + high) / 2).abs() >= 32 * bracket * h * (1 - 2.0 ** -8))
    return (low + high) / 2 / h, ((high - low) / 2 + S.resolution) / h, int(edge.sum())


def longest_steps(S: Slopes, slope: Tensor, error: Tensor, h0: float) -> tuple[Tensor, bool]:
    """Per direction, the longest step at which the boundary still is where the slope says."""
    m = len(slope)
    few = torch.arange(min(SAMPLE, m))
    h = torch.full((m,), h0, dtype=torch.float64)
    h[few] = steps_that_fit(S, few, slope, error, h0, S.size * REACH)
    # The others start where the best of a few could: a curved boundary would refuse every longer step.
    rest = torch.arange(len(few), m)
    if len(rest):
        h[rest] = steps_that_fit(S, rest, slope, error, h0, float(h[few].max()))
    # A curved boundary fits nowhere until the step is tiny; well below that its error is as small as the rounding's.
    curved = float(h.median()) < 1e-4 * S.size and S.eps < 1e-12
    return (h / CUT ** 2).clamp_min(h0) if curved else h, curved


def steps_that_fit(S: Slopes, rows: Tensor, slope: Tensor, error: Tensor, h0: float, reach: float) -> Tensor:
    h = torch.full((len(rows),), h0, dtype=torch.float64)
    open_ = torch.arange(len(rows))
    while len(open_) and reach > 4 * h0:
        step = torch.full((len(open_),), reach, dtype=torch.float64)
        which = rows[open_]
        t, give = slope[which] * step, GIVE * error[which] * step
        fits = S.inside(which, step, t - give)                  # (n,)
        some = torch.nonzero(fits)[:, 0]
        if len(some):
            fits[some] = ~S.inside(which[some], step[some], (t + give)[some])
        h[open_[fits]] = reach
        open_ = open_[~fits]
        reach /= CUT
    return h


def fine_slopes(S: Slopes, slope: Tensor, error: Tensor, h: Tensor, fine: int) -> tuple[Tensor, Tensor]:
    """Bits until the last: inside the predicted interval at the long step."""
    width = GIVE * error * h                                    # (m,)
    bits = min(fine, max(0, math.ceil(math.log2(max(float((2 * width).median()) / S.resolution, 1.0)))))
    if bits == 0:
        return slope, error
    low, high = S.bisect(torch.arange(len(h)), h, slope * h - width, slope * h + width, bits)
    return (low + high) / 2 / h, ((high - low) / 2 + S.resolution) / h


def check(S: Slopes, slope: Tensor, error: Tensor, h: Tensor, *, rng: torch.Generator) -> int:
    """Random directions among E: does the boundary lie where the normal says? Two labels each."""
    m = len(slope)
    C = torch.randn(CHECKS, m, generator=rng, dtype=torch.float64)
    C = C / C.norm(dim=1, keepdim=True)                         # (C, m)
    step = float(h.median()) * 0.1
    t = step * (C @ slope)                                      # (C,)
    give = step * 8 * (C.abs() * error).norm(dim=1) + 8 * S.resolution
    give = torch.maximum(give, 1e-4 * step * slope.norm() / m ** 0.5)
    points = S.x0 + step * (C @ S.E)                            # (C, d)
    same = S.inside_at(torch.cat([points + (t - give)[:, None] * S.v, points + (t + give)[:, None] * S.v]))
    return int((same[:CHECKS] & ~same[CHECKS:]).sum())
