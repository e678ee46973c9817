"""How far the answers scatter: the standard deviation of each, by which least squares weighs it.

Rounding and added noise are the same everywhere; what arithmetic leaves grows with |x|. Behind a link the noise is that
of the probabilities: a logit's is level / (p (1 - p)), a log-ratio's level |(1/p_0, 1/p_j)|, and where p keeps no digit
the logit is not known at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foldline.extract.noise import NoiseFloor, decimals_of, precision_of
from foldline.networks.one_hidden import Link
from foldline.oracles.protocols import ValueOracle

STRETCHES = (1e-3, 1e-2)    # relative to |x|: short enough to hold few folds
CLEAR = 8.0                 # standard deviations that no noise explains
REPEATS = 6                 # of one question, where its answers differ
UNKNOWN = math.inf          # the standard deviation of a logit whose probability keeps no digit
KEPT = 0.2                  # relative error of a probability up to which its logarithm is taken for linear
SINGLE = 6e-8               # what float32 leaves of a probability
DOUBLE = 1e-15              # and float64, with what the logit's own sums leave


@dataclass(frozen=True)
class Spread:
    """level: of an answer (of a probability behind a link) within `radius`. kind as in NoiseFloor."""

    level: float
    radius: float
    kind: str
    link: Link = "identity"

    @property
    def grows(self) -> bool:
        return self.kind == "arithmetic" or self.link != "identity"

    @property
    def fine(self) -> bool:
        """All the digits of float64."""
        return self.kind == "arithmetic" and self.level < SINGLE

    @property
    def bound(self) -> float:
        """How many standard deviations an answer is off at most: rounding has a sharp one."""
        return 1.8 if self.kind == "rounded" else 4.0

    def gain(self, y: Tensor) -> Tensor:
        """(n,): what inverting the link does to the noise. y (n, k): logits."""
        if self.link == "identity":
            return torch.ones(len(y), dtype=torch.float64)
        if self.link == "sigmoid":
            p = torch.sigmoid(y)
            slope: Tensor = 1 / (p * (1 - p)).amin(1).clamp_min(1e-300)
            return slope
        logits = torch.cat([torch.zeros_like(y[:, :1]), y], 1)
        inverse = (-torch.log_softmax(logits, 1)).clamp_max(600.0).exp()
        both: Tensor = torch.hypot(inverse[:, :1], inverse[:, 1:]).amax(1)
        return both

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """x (n, d), y (n, k) -> (n,)"""
        if self.link != "identity":
            off = self.level * self.gain(y)
            return torch.where(off < KEPT, off, UNKNOWN)
        if self.kind != "arithmetic":
            return torch.full((len(x),), self.level, dtype=torch.float64)
        size: Tensor = (x.norm(dim=1) / self.radius).clamp_min(1.0)
        return self.level * size


def spread_of_values(f: ValueOracle, floor: NoiseFloor, at: Tensor, v: Tensor, rng: torch.Generator) -> Spread:
    """at (n, d): where to look, along the unit vector v. 10 rows each, unless the answers are rounded."""
    rounded, grows = floor.kind == "rounded" and floor.decimals is not None, floor.kind == "arithmetic"
    level = 0.29 * 10.0 ** -(floor.decimals or 0) if rounded else scatter_of_values(f, at, v, rng)
    # A stretch that happens to be flat shows no scatter: float32 has its own.
    level = max(level, floor.value / 64 if grows else 0.0, 1e-15 * floor.size)
    return Spread(level, floor.radius, floor.kind)


def spread_of_probabilities(f: ValueOracle, link: Literal["sigmoid", "softmax"], x: Tensor,
                            seen: Tensor | None) -> Spread:
    """Of the answers before the link is inverted. x (n, d): where the answers `seen` (n, k) were given; asked again if
    None."""
    x = f.snap(x)
    radius = max(float(x[0].norm()), 1.0)
    p = f(x).double() if seen is None else seen.double()             # (n, k)
    again = f(x[:1]).double()
    if float((again - p[:1]).abs().max()) > 64 * torch.finfo(f.dtype).eps:
        same = torch.cat([again, p[:1], f(x[:1].expand(REPEATS, -1).contiguous()).double()])
        return Spread(float(same.std(0).max()), radius, "noisy", link)
    r = decimals_of(p)
    if r is not None:
        return Spread(0.29 * 10.0**-r, radius, "rounded", link)
    return Spread(SINGLE if precision_of(p, f.dtype) > SINGLE else DOUBLE, radius, "arithmetic", link)


def bends_everywhere(f: ValueOracle, spread: Spread, at: Tensor, directions: Tensor) -> bool:
    """Whether stretches through the points at (n, d) along directions (n, d) of length one are all bent, at one of two
    scales, beyond what noise explains: a smooth function. Folds bend few of them. 3 rows for each point and scale."""
    steps = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    for scale in STRETCHES:
        size = scale * at.norm(dim=1).clamp_min(1.0)                 # (n,)
        x = f.snap(at[:, None] + (size[:, None] * steps)[:, :, None] * directions[:, None])          # (n, 3, d)
        t = ((x - at[:, None]) * directions[:, None]).sum(2)         # (n, 3): where the snapped points really are
        y = f(x.flatten(0, 1)).double()
        sigma = spread(x.flatten(0, 1), y).view(len(at), 3).amax(1)
        y = y.view(len(at), 3, -1)
        share = ((t[:, 1] - t[:, 0]) / (t[:, 2] - t[:, 0]))[:, None]
        off = (y[:, 1] - y[:, 0] - share * (y[:, 2] - y[:, 0])).abs().amax(1)
        if bool((off > CLEAR * sigma).all()):
            return True
    return False


def scatter_of_values(f: ValueOracle, at: Tensor, v: Tensor, rng: torch.Generator, *, rows: int = 10) -> float:
    """Standard deviation of the answers about straight lines through the points at (n, d), along the unit vector v.

    The stretches are short enough to hold no fold. One of them may lie where the function is flat and its arithmetic
    shows nothing, so the largest scatter counts.
    """
    worst = 0.0
    for x0 in at:
        length = 1e-4 * max(float(x0.norm()), 1.0)
        x = f.snap(x0 + length * (2 * torch.rand(rows, 1, generator=rng, dtype=torch.float64) - 1) * v)
        y = f(x).double()                                            # (rows, k)
        s = ((x - x0) @ v)[:, None] / length
        fit = torch.cat([torch.ones_like(s), s], 1)
        left = y - fit @ torch.linalg.lstsq(fit, y).solution
        worst = max(worst, float((left.square().sum(0) / (rows - 2)).max().sqrt()))
    return worst
