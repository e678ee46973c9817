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
from foldline.extract.noisy_core import BAD, FAR, WORTH, Core, Space, solve_slopes_alike
from foldline.extract.noisy_lines import NoisyLine
from foldline.extract.noisy_repair import better_of, solve_annealed, solve_missing, without_idle
from foldline.extract.regions import Region
from foldline.extract.spread import Spread
from foldline.extract.units import Units
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import Streams
from foldline.results import FunctionCertificate, Progress, Status

CLEAR = 5.0                 # steps keep this many typical slopes from a fold
WIDE = 1e2                  # how far out roomy points may lie where noise does not grow with |x|
NARROW = 2.0                # and where it does
BLUR = 3e-4
SATURATED = 30.0            # how far a line goes where probabilities saturate
NOT_NOISE = 1e3             # standard deviations of misfit that no noise explains
KNOWN = 0.02                # of the answers' differences, to which they must be known
AGAIN = 3                   # times that a direction is asked, where a step crossed a fold


@dataclass(frozen=True, eq=False)
class ThroughNoise:
    units: Units                # in x
    lines: list[NoisyLine]
    core_rms: float             # residuals of the core in standard deviations
    rms: float                  # and of all answers
    x: Tensor                   # all that was asked, (n, d), and
    y: Tensor                   # answered, (n, k)


def recover_through_noise(f: ValueOracle, spread: Spread, x0: Tensor, u: Tensor, *, spare: Callable[[int], Tensor],
                          streams: Streams, progress: Progress) -> ThroughNoise:
    """The first line is x0 + t u. spare(n): points (n, d) of the kind that matters."""
    def ask(x: Tensor) -> tuple[Tensor, Tensor]:
        x = f.snap(x)
        return x, f(x).double()

    space = Space.of(x0, u, streams("frame"))
    # The blurrier the core, the sooner its folds are not where they are thought to be.
    wide = NARROW if spread.grows else min(max(BLUR / spread.level, NARROW), WIDE)
    core = Core(ask, spread, space, streams, progress, out=max(1.0, wide / 10), bound=spread.bound,
                far=FAR if spread.link == "identity" else SATURATED)
    units, core_rms = core.recover()
    if core.size < core.d:
        # What is wrong in the core grows with the distance.
        good = core_rms <= BAD
        units = lift(core, units, wide if good else NARROW, AGAIN if good else 1)
    # Answers at points of the kind that matters are worth more than any others: as many as can be paid.
    core.ask_outside(spare(16 + int(max(0.0, min(core.to_the_last(units) - 50, 0.6 * core.limit(units))))))
    progress("least squares", {"units": len(units), "rows": sum(len(x) for x in core.X)})
    c, y, s = core.answers()
    small = units.W.numel() <= DENSE                                 # above that a step takes seconds, and few suffice
    last = solve_least_squares(units, c, y, s, rounds=20 if small else 2, start=1e-11, tight=small)
    if last.rms > BAD and small:
        whole = core.size == core.d and units.W.numel() <= WORTH
        last = better_of(last, solve_missing(units, c, y, s, enough=BAD, rng=streams("at last")) if whole else
                         solve_annealed(units, c, y, s))
    if small and core.size == core.d:
        last = without_idle(last, c, y, s, len(last.units) - max(len(line.t) for line in core.lines))
    return ThroughNoise(space.outside(last.units), core.lines, core_rms, last.rms, torch.cat(core.X), y)


def certified(found: ThroughNoise, u: Units, f: ValueOracle, region: Region, spread: Spread, probes: int,
              rng: torch.Generator) -> tuple[FunctionCertificate, Status]:
    """Fresh probes of the units u; behind a link they count in probabilities."""
    x = f.snap(region.points(2 * probes, rng=rng))
    y, level = f(x).double(), spread.level
    r = (y - u.values(x)) / spread.gain(y)[:, None]
    # Every other probe says how far off the function may be, the rest whether it is.
    allowed = max(6 * level, 4 * float(r[::2].abs().max()))
    loose = unknown(allowed, y, level) if spread.link == "identity" else allowed > KNOWN * 0.25
    certificate = FunctionCertificate.of(r[1::2], tolerance=allowed, distribution=region.name)
    what = f"{len(u)} units from answers that are off by {level:.2g} (standard deviation)"
    notes = (f"Least squares over {len(found.y)} answers leaves {found.rms:.2g} standard deviations.",)
    if certificate.holds and found.rms <= BAD and not loose:
        return certificate, Status("ok", f"{what}; fresh probes agree within {allowed:.2g}.", notes)
    why = "Units that the noise hides are missing or blurred; more decimals would show them"
    if found.rms > NOT_NOISE:
        why = "That is not noise: a unit that no line showed is missing"
    return certificate, Status("imprecise", f"{what}, but the fit is not down to the noise: probes are off by up to "
                               f"{float(r.abs().max()):.2g}. {why}, or the target is not a network with one "
                               "hidden layer.", notes)


def unknown(tolerance: float, y: Tensor, noise: float) -> bool:
    """Whether agreement within `tolerance` leaves open how the answers y (n, k) differ, beyond their noise."""
    differ = float((y - y.mean(0)).square().mean().sqrt())
    return tolerance > KNOWN * differ > 4 * KNOWN * noise


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
    noise = core.sigma(core.space.x(c), base)                        # (p,)
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
