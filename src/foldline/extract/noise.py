"""The noise floor of an oracle: how much of an answer is not the function.

Three things hide in the last digits: the target's arithmetic (a few eps of its dtype times the sums inside it),
rounding to r decimals (every answer is a multiple of 10^-r), and added noise (the same question, another answer).
A straight stretch shows all three: values at x0 + i delta v, with delta far below any fold's distance, must lie on a
line, and what is left is the floor. Rounding hides there (equal answers), so decimals are counted separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.oracles.protocols import GradientOracle, ValueOracle

FINE = 1e-9                 # relative: float64 leaves 1e-11 at the most, float32 1e-6
SAFETY = 8.0                # how many times the measured scatter an honest answer may be off


@dataclass(frozen=True)
class NoiseFloor:
    """An answer at x may be off by value * max(1, |x| / radius), and a gradient by `gradient` in norm.

    kind: "arithmetic", "rounded" or "noisy". straight: False when the stretch itself was curved. size: by how
    much the answers differ, where that is known, else how large they are.
    """

    value: float
    gradient: float
    radius: float
    kind: str
    decimals: int | None
    straight: bool
    size: float = 1.0

    @property
    def fine(self) -> bool:
        """Nothing but float64's arithmetic is in the way, whatever unit the answers are in and whatever is added."""
        return self.kind == "arithmetic" and self.value < FINE * self.size

    def at(self, norm: float) -> float:
        grows = self.kind == "arithmetic"
        return self.value * max(1.0, norm / self.radius) if grows else self.value


def decimals_of(y: Tensor, most: int = 11) -> int | None:
    """The fewest decimals r that write every answer, if r is too small for that to be chance."""
    y = y.double().reshape(-1)
    if len(y.unique()) < 3:                                         # a constant has few decimals and proves nothing
        return None
    eps = torch.finfo(torch.float64).eps
    # Counted from the largest answer: thousands may be rounded to tens, and 1e-8 to 15 decimals.
    size = float(y.abs().max().clamp_min(1e-300).log10())
    first = 1 - math.floor(size)
    for r in range(min(1, first), max(most, first + most - 1) + 1):
        scaled = y * 10.0**r
        if bool(((scaled - scaled.round()).abs() <= 4 * eps * scaled.abs()).all()):
            return r if float(scaled.abs().max()) > 0 and r < 15 - size else None
    return None


def precision_of(y: Tensor, dtype: torch.dtype) -> float:
    """eps of what computed the answers: a source of float64 may hand on numbers of float32."""
    y = y.double().reshape(-1)
    single = len(y.unique()) >= 3 and bool((y.float().double() == y).all())
    return float(torch.finfo(torch.float32 if single and decimals_of(y) is None else dtype).eps)


def floor_of_values(f: ValueOracle, x0: Tensor, v: Tensor, *, seen: Tensor | None = None,
                    delta: float = 1e-5) -> NoiseFloor:
    """5 rows: x0 asked twice, and three steps along the unit vector v. A bend may be a fold by chance: 5 more on the
    other side of x0 tell it from a curved function. seen (n, k): answers elsewhere, whose decimals count too."""
    radius = max(float(x0.norm()), 1.0)
    # A float32 target sees small steps as nothing: scale the step to its own grid.
    eps = float(torch.finfo(f.dtype).eps)
    step = radius * max(delta, 64 * eps)
    floor = NoiseFloor(0.0, 0.0, radius, "arithmetic", None, False)
    differ = 0.0 if seen is None else float((seen.amax(0) - seen.amin(0)).max())
    for sign in (1.0, -1.0):
        i = sign * torch.tensor([0.0, 1.0, 2.0, 4.0, 0.0], dtype=torch.float64)
        x = f.snap(x0 + step * i[:, None] * v)                       # (5, d)
        y = f(x).double()                                            # (5, k)
        repeat = float((y[4] - y[0]).abs().max())
        size = max(float(y.abs().max()), 1e-300)
        s = ((x - x[0]) @ v)[:4, None]                               # where the snapped points really are
        fit = torch.cat([torch.ones_like(s), s / step], 1)
        left = y[:4] - fit @ torch.linalg.lstsq(fit, y[:4]).solution
        bend = float(left.abs().max())
        arithmetic = 16 * max(eps, precision_of(y if seen is None else seen, f.dtype)) * size
        size = differ if differ > 4 * arithmetic else size
        if repeat > arithmetic:
            return NoiseFloor(SAFETY * max(repeat, bend), 0.0, radius, "noisy", None, True, size)
        r = decimals_of(y if seen is None else torch.cat([y, seen.double()]))
        if r is not None and 0.51 * 10.0**-r > arithmetic:
            return NoiseFloor(0.51 * 10.0**-r, 0.0, radius, "rounded", r, True, size)
        # A dot product of d terms scatters by its largest partial sums, which may exceed the answer: allow for it.
        if bend <= 256 * arithmetic:
            return NoiseFloor(max(SAFETY * bend, arithmetic), 0.0, radius, "arithmetic", None, True, size)
        floor = NoiseFloor(arithmetic, 0.0, radius, "arithmetic", None, False, size)
    return floor


def floor_of_gradients(g: GradientOracle, x0: Tensor, v: Tensor, *,
                       delta: float = 1e-6,
                       eps: float = 0.0) -> tuple[NoiseFloor, float, Tensor, Tensor, Tensor]:
    """(floor, eps, x (n, d), y (n,), gradient (n, d)): x0 and a near neighbour, which must have the same gradient.

    eps: of what computed the answers, at least as given. 2 rows; where the two differ, 3 more say whether that is
    noise, a fold by chance, or curvature.
    """
    radius = max(float(x0.norm()), 1.0)
    eps = max(eps, float(torch.finfo(g.dtype).eps))
    step = radius * max(delta, 64 * eps)
    x = g.snap(torch.stack([x0, x0 + step * v]))
    y, grad = (t.double() for t in g(x))
    eps = max(eps, precision_of(torch.cat([y, grad.reshape(-1)]), g.dtype))
    size = max(float(grad.norm(dim=1).max()), 1e-300)
    arithmetic = 64 * eps * size
    value = max(16 * eps * max(float(y.abs().max()), size * radius), 1e-300)
    r = decimals_of(torch.cat([y, grad.reshape(-1)]))             # weights may be round numbers, values are not
    if r is not None and 10.0**-r * len(x0)**0.5 > arithmetic:
        rounded = 0.51 * 10.0**-r
        return NoiseFloor(rounded, 2 * rounded * len(x0)**0.5, radius, "rounded", r, True), eps, x, y, grad
    change = float((grad[1] - grad[0]).norm())
    if change <= arithmetic:
        return NoiseFloor(value, arithmetic, radius, "arithmetic", None, True), eps, x, y, grad
    more = g.snap(torch.stack([x0, x0 - step * v, x0 - 2 * step * v]))
    y2, grad2 = (t.double() for t in g(more))
    x, y, grad = torch.cat([x, more]), torch.cat([y, y2]), torch.cat([grad, grad2])
    repeat = float((grad[2] - grad[0]).norm())
    if repeat > arithmetic:
        scatter = max(change, repeat, float((grad[3] - grad[4]).norm()))
        off = max(abs(float(y[2] - y[0])), value)
        return NoiseFloor(2 * off, 2 * scatter, radius, "noisy", None, True), eps, x, y, grad
    straight = float((grad[3] - grad[4]).norm()) <= arithmetic
    return NoiseFloor(value, arithmetic, radius, "arithmetic", None, straight), eps, x, y, grad
