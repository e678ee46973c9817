"""A one-hidden-layer network from values that are rounded, noisy or computed in float32.

A slope is known to noise / step, and among h folds a step is short: read off a line as in jumps.py, noise is amplified
a thousandfold. Here only a few directions, the core, are read that way (noisy_core.py), and least squares over the
answers in the core, some of them at random points, make it a small network known to about the noise. In the core there
are points far from every fold, for a spread of activity patterns (clearance.py). From those, long steps lead into all
other directions, one row each: a small linear system per direction, with one equation to spare, which shows a step
that crossed a fold. Least squares over all answers ends it (least_squares.py).

Rows: (h + 2)(d - 1), 7 per fold for each line, and a few percent (a tenth for d = 64) at random points.
Rounding to r decimals does not grow with |x|, so there the points lie far out, where slopes are all that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.extract.clearance import roomy_points
from foldline.extract.least_squares import DENSE, solve_least_squares
from foldline.extract.noisy_core import BAD, Core, Space, solve_slopes_alike
from foldline.extract.noisy_lines import NoisyLine
from foldline.extract.noisy_repair import better_of, pushed, solve_annealed, solve_missing, without_idle
from foldline.extract.units import Units
from foldline.randomness import Streams
from foldline.results import Progress

CLEAR = 5.0                 # steps keep this many typical slopes from a fold
WIDE = 1e2                  # how far out roomy points may lie where noise does not grow with |x|
NARROW = 2.0                # and where it does
BLUR = 3e-4
AGAIN = 3                   # times that a direction is asked, where a step crossed a fold


@dataclass(frozen=True, eq=False)
class ThroughNoise:
    units: Units                # in x
    lines: list[NoisyLine]
    core_rms: float             # residuals of the core in standard deviations
    rms: float                  # and of all answers
    x: Tensor                   # all that was asked, (n, d), and
    y: Tensor                   # answered, (n, k)


def recover_through_noise(ask: Callable[[Tensor], tuple[Tensor, Tensor]], sigma: Callable[[Tensor], Tensor],
                          x0: Tensor, u: Tensor, *, grows: bool, bound: float, spare: Callable[[int], Tensor],
                          streams: Streams, progress: Progress) -> ThroughNoise:
    """ask: x (n, d) -> (the x really asked, y (n, k)). sigma: x -> (n,), the answers' standard deviations; grows:
    whether they grow with |x|; bound: how many of them an answer is off at most. The first line is x0 + t u. spare(n):
    points (n, d) of the kind that matters."""
    space = Space.of(x0, u, streams("frame"))
    # The blurrier the core, the sooner its folds are not where they are thought to be.
    wide = NARROW if grows else min(max(BLUR / float(sigma(x0[None])), NARROW), WIDE)
    core = Core(ask, sigma, space, streams, progress, out=max(1.0, wide / 10), bound=bound)
    units, core_rms = core.recover()
    if core.size < core.d:
        # What is wrong in the core grows with the distance.
        good = core_rms <= BAD
        units = lift(core, units, wide if good else NARROW, AGAIN if good else 1)
    # Answers at points of the kind that matters are worth more than any others: as many as can be paid.
    share = min(0.03, 0.005 + 1.6 / core.d) * core.limit(units)
    core.ask_outside(spare(16 + int(max(share, min(core.to_the_last(units) - 50, 0.6 * core.limit(units))))))
    progress("least squares", {"units": len(units), "rows": sum(len(x) for x in core.X)})
    c, y, s = core.answers()
    small = units.W.numel() <= DENSE                                 # above that a step takes seconds, and few suffice
    last = solve_least_squares(units, c, y, s, rounds=20 if small else 2, start=1e-11, tight=small)
    if last.rms > BAD and small:
        rng = streams("at last")
        last = better_of(last, solve_missing(units, c, y, s, enough=BAD, rng=rng) if core.size == core.d else
                         pushed(solve_annealed(units, c, y, s), c, y, s, enough=BAD, rng=rng))
    if small and core.size == core.d:
        last = without_idle(last, c, y, s, len(last.units) - max(len(line.t) for line in core.lines))
    return ThroughNoise(space.outside(last.units), core.lines, core_rms, last.rms, torch.cat(core.X), y)


def lift(core: Core, u: Units, radius: float, rounds: int) -> Units:
    """From the core's coordinates to all d. rounds: times that directions may be asked."""
    m, k, n, d = len(u), len(u.q), core.size, core.d
    rho = u.W[:, 1:].square().mean(1).sqrt()
    rho = rho.clamp_min(0.05 * float(rho.max()) if m else 0.0)       # (m,)
    count = m + 2 if k == 1 else -(-int(1.2 * (m + k)) // k)
    c, room = roomy_points(u, rho, count, radius=radius, rng=core.streams("roomy"))
    core.ask(c)
    u, _ = core.fit(u)
    rest = d - n
    sign = torch.where(torch.rand(len(c), rest, generator=core.streams("signs")) < 0.5, 1.0, -1.0).double()
    S = (room / CLEAR)[:, None] * sign                               # (p, rest)
    base, on = u.values(c), (u.z(c) > 0).double()
    J = torch.zeros(len(c), rest, k, dtype=torch.float64)
    noise = core.sigma(core.space.x(c))                              # (p,)
    directions = torch.arange(rest)
    lifted = u
    R, P = torch.zeros(m, rest, dtype=torch.float64), torch.zeros(k, rest, dtype=torch.float64)
    for _ in range(rounds):
        p, j = (v.reshape(-1) for v in torch.meshgrid(torch.arange(len(c)), directions, indexing="ij"))
        full = torch.zeros(len(p), d, dtype=torch.float64)
        full[:, :n] = c[p]
        full[torch.arange(len(p)), n + j] = S[p, j]
        y = core.ask(full)
        J[p, j] = (y - base[p]) / S[p, j, None]
        R[:, directions], P[:, directions] = solve_slopes_alike(on, u.A.T, J[:, directions], noise / S[:, 0].abs())
        lifted = Units(torch.cat([u.W, R], 1), u.b, u.A, torch.cat([u.P, P], 1), u.q)
        off = ((y - lifted.values(full)) / noise[p, None]).view(len(c), len(directions), k)
        rms = off.square().mean((0, 2)).sqrt()                       # (directions,)
        doubted = rms > max(3.0, 4 * float(rms.median()))
        if not bool(doubted.any()) or float(doubted.double().mean()) > 0.2:
            break
        directions = directions[doubted]
        S[:, directions] *= -0.4
    return lifted
