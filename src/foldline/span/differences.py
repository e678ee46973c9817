"""Gradients of every output at a point, from values: the largest step that stays on one linear piece.

At x a ladder of steps, each along its own random direction and both ways, shows where second differences leave the
rounding error; the step is taken below that. Then one difference per input (d rows) and a few checks in random
directions: a fold crossed on one axis shows in them, and the step is cut tenfold. Precision is rounding / step, so a
piecewise-linear network gets steps of 1e-2, a smooth one (where the ladder fails early) central differences.
Cost per point: 1 + d + LADDER * 2 + CHECKS rows (1.026 d at d = 784), twice d for smooth networks.

Probabilities are read through their link first: log-ratios of a softmax and the logit of a sigmoid are piecewise
linear where the probabilities are not, and do not vanish where they saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foldline.oracles.protocols import ValueOracle

LADDER = (0.3, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)      # steps, times the point's typical size
CHECKS = 6
CURVED = 1e-5               # an accepted step below this: smooth, not piecewise linear
SLACK = 8.0                 # second differences of pure rounding stay below this many units of it

Link = Literal["identity", "logit", "log-ratio"]


@dataclass(frozen=True)
class Jacobian:
    rows: Tensor            # (k', d) gradients of the outputs behind the link
    values: Tensor          # (k',)
    noise: Tensor           # (k',) length of each row's error over the row's length
    outputs: Tensor         # (k',) which output each row belongs to
    step: float
    curved: bool
    checked: bool           # the random checks agreed


class Differences:
    """Asks Jacobians of a value oracle; remembers the link and the answers' last digit."""

    def __init__(self, f: ValueOracle, *, rng: torch.Generator) -> None:
        self.f, self.rng = f, rng
        self.eps = float(torch.finfo(f.dtype).eps)
        self.quantum = 0.0
        self.link: Link | None = None
        self.record: list[Tensor] = []

    def rows_per_point(self) -> int:
        return 1 + self.f.dim + 2 * len(LADDER) + CHECKS

    def at(self, x: Tensor) -> Jacobian:
        """x: (d,)"""
        d, f = self.f.dim, self.f
        x = f.snap(x[None])[0]
        size = max(float(x.square().mean().sqrt()), 1e-3)
        steps = size * torch.tensor(LADDER, dtype=torch.float64)                    # (L,)
        u = self.units(len(LADDER))                                                 # (L, d)
        there, back = self.inside(x + steps[:, None] * u), self.inside(x - steps[:, None] * u)
        raw = f(torch.cat([x[None], there, back])).double()                         # (1 + 2L, k)
        self.learn_digits(raw)
        if self.link is None:
            self.link = self.choose_link(raw)
        y, live, unit = self.behind_link(raw)                                       # (1 + 2L, k'), (k',), (k',)
        L = len(LADDER)
        bend = (y[1:L + 1] + y[L + 1:] - 2 * y[0]).abs()                            # (L, k')
        # In a box a step may be clipped on one side: those rungs say nothing.
        whole = ((there + back - 2 * x).abs().amax(1) <= 1e-9 * size)[:, None]      # (L, 1)
        fine = ((bend <= SLACK * unit) | ~whole).all(1)                             # (L,)
        first = next((i for i in range(L) if bool(fine[i:].all())), L - 1)
        # One rung below: d axis steps meet more folds than one random step does.
        step = float(steps[min(first + 1, L - 1)])
        if step < CURVED * size * 1.01 and self.quantum == 0.0:
            return self.central(x, size)
        for attempt in range(3):
            found = self.one_sided(x, y[0], live, unit, step)
            if found.checked or attempt == 2:
                return found
            step *= 0.1
        raise AssertionError("unreachable")

    def one_sided(self, x: Tensor, y0: Tensor, live: Tensor, unit: Tensor, step: float) -> Jacobian:
        d = self.f.dim
        E = step * torch.eye(d, dtype=torch.float64)
        if self.f.box is not None:
            E = torch.where((x + step > self.f.box[1])[:, None], -E, E)
        u = step * self.units(CHECKS)                                               # (C, d)
        asked = self.f.snap(self.inside(torch.cat([x + E, x + u])))                 # (d + C, d)
        y, _, _ = self.behind_link(self.f(asked).double(), live)                    # (d + C, k')
        moved = (asked[:d] - x).diagonal()                                          # (d,) the steps really taken
        moved = torch.where(moved == 0, torch.full_like(moved, step), moved)
        J = (y[:d] - y0) / moved[:, None]                                           # (d, k')
        off = (y[d:] - y0 - (asked[d:] - x) @ J).abs()                              # (C, k')
        checked = bool((off <= 4 * SLACK * unit).all())
        noise = unit / step * d ** 0.5 / J.norm(dim=0).clamp_min(1e-300)
        return Jacobian(J.T, y0, noise, live, step, False, checked)

    def central(self, x: Tensor, size: float) -> Jacobian:
        """Smooth targets: truncation step^2 against rounding / step balance at eps^(1/3)."""
        d = self.f.dim
        step = size * max(self.eps, 1e-16) ** (1 / 3)
        E = step * torch.eye(d, dtype=torch.float64)
        asked = self.f.snap(self.inside(torch.cat([x[None], x + E, x - E])))
        y, live, unit = self.behind_link(self.f(asked).double())
        width = (asked[1:d + 1] - asked[d + 1:]).diagonal()
        width = torch.where(width == 0, torch.full_like(width, 2 * step), width)
        J = (y[1:d + 1] - y[d + 1:]) / width[:, None]                               # (d, k')
        bend = (y[1:d + 1] + y[d + 1:] - 2 * y[0]).abs().amax(0)                    # (k',)
        noise = (unit / step * d ** 0.5 + bend / size * step) / J.norm(dim=0).clamp_min(1e-300)
        return Jacobian(J.T, y[0], noise, live, step, True, True)

    def behind_link(self, raw: Tensor, live: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Values in which the network is piecewise linear, the outputs they belong to, and their rounding units."""
        k = raw.shape[1]
        if self.link == "log-ratio":
            # All rows must use the same reference: the output that is largest where it is smallest.
            if live is None:
                enough = raw.amin(0) > max(100 * self.quantum, 1e-300)
                live = torch.nonzero(enough)[:, 0]
            p = raw[:, live].clamp_min(1e-300)
            z = p.log()
            z = z - z.mean(1, keepdim=True)
            unit = 4 * self.eps * (1 + z.abs().amax(0)) + self.quantum / p.amin(0)
            return z, live, unit
        live = torch.arange(k) if live is None else live
        if self.link == "logit":
            p = raw.clamp(1e-300, 1 - 1e-16)
            z = torch.logit(p)
            edge = torch.minimum(p, 1 - p).amin(0)
            return z, live, 4 * self.eps * (1 + z.abs().amax(0)) + (self.quantum + self.eps) / edge
        return raw, live, 4 * self.eps * raw.abs().amax(0).clamp_min(1e-300) + self.quantum

    def choose_link(self, raw: Tensor) -> Link:
        if raw.shape[1] > 1:
            total = raw.sum(1)
            slack = 16 * self.eps * raw.shape[1] + raw.shape[1] * self.quantum
            proper = bool((raw >= 0).all()) and bool(((total - 1).abs() <= slack).all())
            return "log-ratio" if proper else "identity"
        if not bool(((raw > 0) & (raw < 1)).all()) or float(raw.max() - raw.min()) == 0:
            return "identity"
        # One output in (0, 1): a sigmoid if the logit stays straight for longer than the value does.
        straight: dict[Link, int] = {}
        L = len(LADDER)
        candidates: tuple[Link, ...] = ("identity", "logit")
        for link in candidates:
            self.link = link
            y, _, unit = self.behind_link(raw)
            straight[link] = int(((y[1:L + 1] + y[L + 1:] - 2 * y[0]).abs() <= SLACK * unit).sum())
        self.link = None
        return "logit" if straight["logit"] > straight["identity"] else "identity"

    def learn_digits(self, raw: Tensor) -> None:
        """The last decimal of rounded answers: the smallest p for which all of them are multiples of 10^-p."""
        self.record.append(raw.reshape(-1))
        seen = torch.cat(self.record[-4:])
        self.quantum = last_digit(seen, self.eps)

    def units(self, n: int) -> Tensor:
        u = torch.randn(n, self.f.dim, generator=self.rng, dtype=torch.float64)
        unit: Tensor = u / u.norm(dim=1, keepdim=True)
        return unit

    def inside(self, x: Tensor) -> Tensor:
        return x if self.f.box is None else x.clamp(*self.f.box)


def last_digit(values: Tensor, eps: float) -> float:
    """10^-p when all values are multiples of it and at least four differ, else 0."""
    if len(values.unique()) < 4:
        return 0.0
    largest = float(values.abs().max())
    for p in range(13):
        scaled = values * 10.0 ** p
        tolerance = 2 * eps * largest * 10.0 ** p
        if tolerance > 0.02:                                    # every number looks like a multiple down here
            return 0.0
        if bool(((scaled - scaled.round()).abs() <= tolerance + 1e-12).all()):
            return 10.0 ** -p
    return 0.0
