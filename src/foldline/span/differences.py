"""Gradients of every output at a point, from values: the largest step that stays on one linear piece.

At x a ladder of steps, each along its own random direction and both ways, shows where second differences leave the
rounding error; the step is taken below that. Then one difference per input (d rows) and a few checks in random
directions: a fold crossed on one axis shows in them. Blocks of sqrt(d) inputs say on which, and only those are asked
again with a tenth of the step. Precision is rounding / step, so a piecewise-linear network gets steps of 1e-2, a
smooth one (where the ladder fails early) central differences.
Cost per point: 13 + d rows once the step is known, about 3 sqrt(d) more for the few points near a fold, twice d for
smooth networks.

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
SHORT_LADDER = (10.0, 1.0, 0.1)     # times the step that the points before could take
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
    signature: float        # tells saturated points apart: the top output, or the one value
    least: Tensor | None = None     # (k',) the part of the noise that is certain, where the rest is a bound


class Differences:
    """Asks Jacobians of a value oracle; remembers the link and the answers' last digit."""

    def __init__(self, f: ValueOracle, *, rng: torch.Generator) -> None:
        self.f, self.rng = f, rng
        self.eps = float(torch.finfo(f.dtype).eps)
        self.quantum = 0.0
        self.grain = 4.0                        # rounding of an answer, in eps times its size
        self.size, self.signature = 1.0, 0.0    # of the point in hand
        self.scale = torch.zeros(f.outputs, dtype=torch.float64)    # (k,) largest |output| per size of point
        self.link: Link | None = None
        self.record: list[Tensor] = []
        self.accepted: list[float] = []         # rungs that points could take
        self.usual: float | None = None

    def at(self, x: Tensor) -> Jacobian:
        """x: (d,)"""
        f = self.f
        x = f.snap(x[None])[0]
        size = max(float(x.square().mean().sqrt()), 1e-3)
        rungs = LADDER if self.usual is None else tuple(self.usual * r for r in SHORT_LADDER)
        L = len(rungs)
        steps = size * torch.tensor(rungs, dtype=torch.float64)                     # (L,)
        u = self.units(L)                                                           # (L, d)
        if f.box is None:
            there, back = x + steps[:, None] * u, x - steps[:, None] * u            # (L, d) each
        else:
            # At a corner only inward steps fit: the bend is then taken over x, x + u, x + 2 u.
            low, high = f.box
            u = torch.where(x > (low + high) / 2, -u.abs(), u.abs())
            back, there = x + 0.5 * steps[:, None] * u, x + steps[:, None] * u
            there, back = there.clamp(low, high), back.clamp(low, high)
        raw = f(torch.cat([x[None], there, back])).double()                         # (1 + 2L, k)
        self.learn_digits(raw)
        self.size = size
        self.signature = float(raw[0].argmax()) if raw.shape[1] > 1 else float(raw[0, 0])
        self.scale = torch.maximum(self.scale, raw.abs().amax(0) / max(size, 1.0))
        if self.link is None:
            self.link = self.choose_link(raw)
        y, live, unit = self.behind_link(raw)                                       # (1 + 2L, k'), (k',), (k',)
        if len(live) == 0:
            return Jacobian(x.new_zeros(0, f.dim), y[0], unit, live, 0.0, False, True,
                            self.signature)
        if bool((y == y[0]).all()):
            # Neither small nor large steps change anything: the point is dead, and d more rows would say the same.
            return Jacobian(x.new_zeros(len(live), f.dim), y[0], torch.zeros_like(unit), live, 0.0, False, True,
                            self.signature)
        bend = self.bends(y)                                                        # (L, k')
        if self.usual is None:
            # The smallest steps cannot bend anything: what they show is rounding inside the network.
            self.grain = max(self.grain, float((bend[-2:] / unit).max()) / 2 * self.grain)
            unit = self.behind_link(raw)[2]
        fine = (bend <= self.slack * unit).all(1)                                        # (L,)
        first = next((i for i in range(L) if bool(fine[i:].all())), L - 1)
        self.accepted.append(rungs[first])
        if len(self.accepted) >= 3:
            self.usual = sorted(self.accepted[-9:])[len(self.accepted[-9:]) // 2]
        # Well below: d axis steps meet more folds than one random step does. Where digits are scarce, less so.
        step = size * rungs[first] * (0.02 if self.eps < 1e-12 and self.quantum == 0.0 else 0.2)
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
        u = step * self.units(CHECKS)                                               # (C, d)
        moved, y = self.slopes(x, torch.cat([E, u]), live)                          # (d + C, d), (d + C, k')
        along = moved[:d].diagonal()                                                # (d,) the steps really taken
        J = (y[:d] - y0) / torch.where(along == 0, step, along)[:, None]            # (d, k')
        noise = unit / step * d ** 0.5 / J.norm(dim=0).clamp_min(1e-300)
        if bool(((y[d:] - y0 - moved[d:] @ J).abs() <= 4 * self.slack * unit).all()):
            return Jacobian(J.T, y0, noise, live, step, False, True, self.signature)
        return self.mended(x, y0, live, unit, step, J, noise)

    def mended(self, x: Tensor, y0: Tensor, live: Tensor, unit: Tensor, step: float, J: Tensor,
               noise: Tensor) -> Jacobian:
        """Which axes crossed a fold: blocks of sqrt(d) axes, each tested by one short step; those are asked again."""
        d = self.f.dim
        width = max(2, round(d ** 0.5))
        blocks = torch.arange(d) // width                                           # (d,)
        n = int(blocks[-1]) + 1
        signs = torch.randint(2, (d,), generator=self.rng).double() * 2 - 1
        B = torch.zeros(n, d, dtype=torch.float64)
        B[blocks, torch.arange(d)] = 0.1 * step * signs / width ** 0.5              # (n, d)
        moved, y = self.slopes(x, B, live)
        # A bad axis is off by delta here times 0.1 / sqrt(width): far above the rounding when it matters.
        bad = ((y - y0 - moved @ J).abs() > 2 * unit).any(1)                        # (n,)
        axes = torch.nonzero(bad[blocks])[:, 0]
        if len(axes) > d // 2:
            return Jacobian(J.T, y0, noise, live, step, False, False, self.signature)
        E = 0.1 * step * torch.eye(d, dtype=torch.float64)[axes]
        u = 0.1 * step * self.units(CHECKS)
        moved, y = self.slopes(x, torch.cat([E, u]), live)
        if len(axes):
            along = moved[:len(axes)][torch.arange(len(axes)), axes]
            J = J.clone()
            J[axes] = (y[:len(axes)] - y0) / torch.where(along == 0, 0.1 * step, along)[:, None]
        off = (y[len(axes):] - y0 - moved[len(axes):] @ J).abs()
        return Jacobian(J.T, y0, noise * (1 + 9 * (len(axes) / d) ** 0.5), live, step, False,
                        bool((off <= 4 * self.slack * unit).all()), self.signature)

    @property
    def slack(self) -> float:
        """Rounding inside a network varies, a rounded last digit does not; room for it hides folds in float32."""
        return 1.0 if self.quantum > 0.0 else SLACK if self.eps < 1e-12 else 2.0

    def slopes(self, x: Tensor, moves: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """Values at x + moves, mirrored where a box is in the way, and the moves really taken."""
        asked = x + moves
        if self.f.box is not None:
            low, high = self.f.box
            asked = torch.where((asked > high) | (asked < low), (x - moves).clamp(low, high), asked)
        asked = self.f.snap(asked)
        return asked - x, self.behind_link(self.f(asked).double(), live)[0]

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
        return Jacobian(J.T, y[0], noise, live, step, True, True, self.signature)

    def bends(self, y: Tensor) -> Tensor:
        """Second differences (L, k') of the ladder's answers: y[0] at x, then L far points, then L near or mirrored."""
        L = (len(y) - 1) // 2
        far, other = y[1:L + 1], y[L + 1:]
        return (far + other - 2 * y[0]).abs() if self.f.box is None else (far + y[0] - 2 * other).abs()

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
            unit = self.grain * self.eps * (1 + z.abs().amax(0)) + self.quantum / p.amin(0)
            return z, live, unit
        live = torch.arange(k) if live is None else live
        if self.link == "logit":
            p = raw.clamp(1e-300, 1 - 1e-16)
            z = torch.logit(p)
            edge = torch.minimum(p, 1 - p).amin(0)
            return z, live, self.grain * self.eps * (1 + z.abs().amax(0)) + (self.quantum + self.eps) / edge
        # Sums inside the network are as large as the outputs of other points of this size, even where these cancel.
        size = torch.maximum(raw.abs().amax(0), self.scale * max(self.size, 1.0))
        return raw, live, self.grain * self.eps * size.clamp_min(1e-300) + self.quantum

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
        candidates: tuple[Link, ...] = ("identity", "logit")
        for link in candidates:
            self.link = link
            y, _, unit = self.behind_link(raw)
            straight[link] = int((self.bends(y) <= SLACK * unit).sum())
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
