"""The core: the network in a few directions, from values with noise, known to about the noise.

A line shows folds; steps beside its pieces, into each direction of the core, show how the folds turn. What one line
shows badly (two folds close together, a unit nearly parallel to the line) another line of the core shows well: while
random points of the core contradict the fit, one more line is drawn, its folds are compared with those that the units
found so far predict on it, and the units that do not match are replaced by what the new line says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.extract.least_squares import solve_least_squares
from foldline.extract.noisy_lines import NoisyLine, folds_in_noise
from foldline.extract.noisy_repair import better_of, solve_annealed, solve_missing
from foldline.extract.units import Units
from foldline.randomness import Streams
from foldline.results import Progress

PILOT = 6                   # directions asked first, to learn how steep the units are
SHARE = 0.2                 # of the distance to the nearest fold, for the pilot's steps
CLEAR = 5.0                 # later steps keep this many typical slopes from a fold
AGAIN = 4                   # times that steps which crossed are asked again
FAR = 1e5
Sigma = Callable[[Tensor, Tensor], Tensor]                   # x (n, d), y (n, k) -> (n,)
LINES = 2                   # through the core, at most
WORTH = 300                 # weights in the core up to which a fit that is stuck is worth the time to free it
BAD = 1.5                   # residuals, in standard deviations, that say something is missing


@dataclass(frozen=True, eq=False)
class Space:
    """Coordinates c of x = x0 + c F: the first runs along the line, the others are random and orthogonal to it."""

    x0: Tensor                  # (d,)
    F: Tensor                   # (d, d), rows of equal length

    @classmethod
    def of(cls, x0: Tensor, u: Tensor, rng: torch.Generator) -> Space:
        d = len(u)
        columns = torch.randn(d, d, generator=rng, dtype=torch.float64)
        columns[:, 0] = u
        q = torch.linalg.qr(columns).Q
        q[:, 0] = u / u.norm()
        return cls(x0, q.T.contiguous() * u.norm())

    def x(self, c: Tensor) -> Tensor:
        return self.x0 + c @ self.F[:c.shape[1]]

    def c(self, x: Tensor) -> Tensor:
        back: Tensor = (x - self.x0) @ self.F.T / self.F[0].square().sum()
        return back

    def outside(self, u: Units) -> Units:
        """Units in c, all d coordinates, as units in x."""
        back = self.F / self.F[0].square().sum()
        W, P = u.W @ back, u.P @ back
        return Units(W, u.b - W @ self.x0, u.A, P, u.q - P @ self.x0)


@dataclass(frozen=True, eq=False)
class Course:
    """A line c0 + t B_0 of the core, and the core's other directions B_1.. beside it; B (n, n) orthonormal."""

    c0: Tensor
    B: Tensor

    def at(self, t: Tensor) -> Tensor:
        return self.c0 + t[:, None] * self.B[0]


class Core:
    def __init__(self, ask: Callable[[Tensor], tuple[Tensor, Tensor]], sigma: Sigma, space: Space,
                 streams: Streams, progress: Progress, *, out: float, bound: float, far: float = FAR) -> None:
        """ask: x (n, d) -> (the x really asked, y (n, k)); sigma: x, y -> (n,) standard deviations of the answers;
        bound: how many of them an answer is off at most; out: how many times farther out to look as well (1 where noise
        grows with |x|); far: how far lines go."""
        self.ask_x, self.sigma, self.space, self.streams, self.progress = ask, sigma, space, streams, progress
        self.out, self.bound, self.far = out, bound, far
        self.d = len(space.x0)
        self.X: list[Tensor] = []
        self.Y: list[Tensor] = []
        self.lines: list[NoisyLine] = []
        self.size = 0

    def ask(self, c: Tensor) -> Tensor:
        return self.ask_outside(self.space.x(c))

    def ask_outside(self, x: Tensor) -> Tensor:
        x, y = self.ask_x(x)
        self.X.append(x)
        self.Y.append(y)
        return y

    def answers(self) -> tuple[Tensor, Tensor, Tensor]:
        """(c, y, sigma) of everything asked."""
        x, y = torch.cat(self.X), torch.cat(self.Y)
        return self.space.c(x), y, self.sigma(x, y)

    def recover(self) -> tuple[Units, float]:
        """(units in the core's coordinates, residual in standard deviations)"""
        t = torch.eye(1, dtype=torch.float64)
        line = self.search(Course(t.new_zeros(1), t))
        m = len(line.t)
        most = min(self.d - 1, 2 * m + 2, 8 + int(0.04 * self.d), max(2, 3000 // (m + 2) - 2))
        self.size = n = 1 + (self.d - 1 if self.d - 1 <= most + 2 else most)
        course = Course(t.new_zeros(n), torch.eye(n, dtype=torch.float64))
        R, P = self.beside(course, line, torch.ones(m, dtype=torch.bool))
        v = line.fitted
        u = Units(torch.cat([torch.ones(m, 1, dtype=torch.float64), R], 1), v.b, v.A, torch.cat([v.P, P], 1), v.q)
        u, rms = self.fit(u)
        k = len(u.q)
        unknowns = m * (n + 1) + k * (n + 1 + m)
        total = int(min(0.8 * unknowns / k, min(0.1, 0.02 + 5 / self.d) * self.limit(u) + 40))
        rng = self.streams("core")
        # Farther out errors of slope count more, and a fit that starts too far off is lost there: near points first.
        for share, out in ((0.3, 0.0), (0.2, 1 / 3), (0.2, 2 / 3), (0.3, 1.0)):
            paid = min(share * total, self.to_spend(u))              # a fit that was stuck has spent some of it
            self.ask(self.scatter(max(8, int(paid)), rng, self.out**out))
            before = u
            u, rms = self.fit(u)
            if rms > BAD and m and out == 0:
                # A fold that the line did not show: all other units bend to make up for it. So from before they did.
                if u.W.numel() <= WORTH:
                    u, rms = self.complete(before, unknowns // (2 * k), rng)
                while rms > BAD and len(self.lines) < LINES and self.to_spend(u) > 11 * m:
                    u, rms = self.another_line(u, rms, rng)
        if rms > BAD and m and u.W.numel() <= WORTH:
            u, rms = self.complete(u, unknowns // (4 * k), rng)
        self.progress("core", {"units": len(u), "residual": rms})
        return u, rms

    def complete(self, u: Units, more: int, rng: torch.Generator) -> tuple[Units, float]:
        """u with the units that are missing, after up to `more` further points of the core."""
        more = min(int(self.to_spend(u)), more)
        if more > 0:
            self.ask(self.scatter(more, rng))
        c, y, sigma = self.answers()
        found = solve_missing(u, c[:, :self.size], y, sigma, enough=BAD, rng=self.streams(f"missing {len(y)}"))
        if found.rms > 2 * BAD and len(found.units) > len(u) and self.size < self.d:
            return self.fit(u)                                       # every unit will cost a row per direction
        return found.units, found.rms

    def limit(self, u: Units) -> float:
        """Rows that the unknowns need at the least; a unit that no line showed is paid for only where it is cheap."""
        folds = max(len(line.t) for line in self.lines)
        m, k = min(len(u), folds + (self.d <= 16)), len(u.q)
        return (m * (self.d + 1) + k * (m + 1)) / k

    def to_spend(self, u: Units) -> float:
        """Rows left beside those that all other directions will take, within a tenth of the least number of rows (more
        in small dimensions)."""
        ahead = (len(u) + 2) / len(u.q) * (self.d - self.size) + 0.03 * self.limit(u) + 90
        return self.to_the_last(u) - ahead

    def to_the_last(self, u: Units) -> float:
        return (1.1 + min(31 / self.d, 2.4)) * self.limit(u) - sum(len(x) for x in self.X)

    def search(self, course: Course) -> NoisyLine:
        def error(t: Tensor, y: Tensor) -> Tensor:
            return self.bound * self.sigma(self.space.x(course.at(t)), y)

        line = folds_in_noise(lambda t: self.ask(course.at(t)), self.far, error=error, limit=400 + 20 * self.d)
        self.lines.append(line)
        self.progress("folds", {"folds": len(line.t)})
        return line

    def fit(self, u: Units) -> tuple[Units, float]:
        c, y, sigma = self.answers()
        fitted = solve_least_squares(u, c[:, :self.size], y, sigma)
        if fitted.rms > BAD and u.W.numel() <= WORTH:
            fitted = better_of(fitted, solve_annealed(u, c[:, :self.size], y, sigma))
        return fitted.units, fitted.rms

    def scatter(self, n: int, rng: torch.Generator, out: float = 1.0) -> Tensor:
        """Random points of the core, dense where the first line's folds are and thinner outwards."""
        core = self.size - 1
        along = torch.tan(2.9 * (torch.rand(n, generator=rng, dtype=torch.float64) - 0.5))      # |t| up to 8
        aside = torch.randn(n, core, generator=rng, dtype=torch.float64) / max(core, 1)**0.5
        size = 3.0 ** (3 * torch.rand(n, generator=rng, dtype=torch.float64) - 2) * (1 + along.abs())
        c = torch.cat([along[:, None], aside * size[:, None]], 1)
        c[::2] *= (out ** torch.rand(n, generator=rng, dtype=torch.float64))[::2, None]
        return c

    # -- beside a line -------------------------------------------------------------------------------------------

    def beside(self, course: Course, line: NoisyLine, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """(r (wanted, n - 1), P (k, n - 1)) along the course's other directions. wanted (m,) bool: which folds; P is
        that of the leftmost piece, and right only if all folds are wanted."""
        m, k = line.jump.shape
        t, n = line.t, len(course.B) - 1
        at = torch.zeros(1, dtype=torch.float64)
        if m:
            at = torch.cat([t[:1] - 1 - t[:1].abs(), 0.5 * (t[:-1] + t[1:]), t[-1:] + 1 + t[-1:].abs()])      # (m + 1,)
        live = torch.ones(m + 1, dtype=torch.bool)
        if m and not bool(wanted.all()):
            live = torch.cat([wanted, wanted.new_zeros(1)]) | torch.cat([wanted.new_zeros(1), wanted])
        pick = live.nonzero().flatten()
        at = at[pick]
        base = line.fitted.values(at[:, None])                       # (p, k)
        noise = self.sigma(self.space.x(course.at(at)), base)        # (p,)
        rho = (1 + t.square()).sqrt()                                # a far fold is a steep one: w.u is small
        S = torch.zeros(len(at), n, dtype=torch.float64)             # signed steps
        J = torch.zeros(len(at), n, k, dtype=torch.float64)          # slopes
        on = (at[:, None] > t).double()                              # (p, m)

        def measure(which: Tensor) -> None:
            p, j = which.nonzero(as_tuple=True)
            if len(p):
                J[p, j] = (self.ask(course.at(at[p]) + S[p, j, None] * course.B[1 + j]) - base[p]) / S[p, j, None]

        def solve(n: int) -> tuple[Tensor, Tensor, Tensor]:
            return solve_slopes(on, line.jump, J[:, :n], noise[:, None] / S[:, :n].abs(), rho)

        def step(start: int, stop: int, share: float) -> None:
            clear = ((at[:, None] - t).abs() / rho).min(1).values if m else torch.ones(len(at), dtype=torch.float64)
            sign = 1.0 - 2.0 * ((torch.arange(len(at))[:, None] + torch.arange(start, stop)) % 2)
            S[:, start:stop] = share * clear[:, None] * sign
            which = torch.zeros(S.shape, dtype=torch.bool)
            which[:, start:stop] = True
            measure(which)

        first = min(PILOT, n)
        step(0, first, SHARE)
        if m:
            self.believed(J, S, first, noise, measure)
        R, P, spread = solve(first)
        if m:
            seen = 1.3 * R.square().mean(1).sqrt()
            rho = torch.where(wanted & (seen > 2 * spread), torch.maximum(seen, 0.3 * rho), rho)
        if n > first:
            step(first, n, 1 / CLEAR)
            R, P, _ = solve(n)
        for _ in range(AGAIN):
            # A step that crossed a fold shows afterwards: the slopes it gave put the fold within its reach.
            z = (at[:, None] - t)[:, None, :]                        # (p, 1, m)
            crossed = (z * (z + 1.05 * S[:, :, None] * R.T[None]) <= 0)[:, :, wanted].any(2)
            if not bool(crossed.any()):
                break
            S[crossed] *= -0.3
            measure(crossed)
            R, P, _ = solve(n)
        return R[wanted], P

    def believed(self, J: Tensor, S: Tensor, first: int, noise: Tensor, measure: Callable[[Tensor], None]) -> None:
        """No unit's steepness is known yet: a slope is believed when a shorter step, the other way, gives the same."""
        doubt = torch.zeros(S.shape, dtype=torch.bool)
        doubt[:, :first] = True
        for _ in range(AGAIN):
            before, step = J.clone(), S.clone()
            S[doubt] *= -0.3
            measure(doubt)
            allowed = 6 * noise[:, None] * (1 / step.abs() + 1 / S.abs())
            agree = doubt & ((J - before).abs().amax(2) <= allowed)
            J[agree], S[agree] = before[agree], step[agree]
            doubt &= ~agree
            if not bool(doubt.any()):
                return

    # -- what one line does not show -----------------------------------------------------------------------------

    def another_line(self, u: Units, rms: float, rng: torch.Generator) -> tuple[Units, float]:
        n = self.size
        columns = torch.randn(n, n, generator=rng, dtype=torch.float64)
        course = Course(0.3 * self.scatter(1, rng)[0].clamp(-3, 3), torch.linalg.qr(columns).Q.T.contiguous())
        line = self.search(course)
        v, c0 = course.B[0], course.c0
        slope, here = u.W @ v, u.z(c0[None])[0]
        t, kappa = -here / slope, (u.A * slope.abs()).T              # (m,), (m, k): what the units predict
        matched, kept = torch.zeros(len(line.t), dtype=torch.bool), torch.zeros(len(u), dtype=torch.bool)
        far = 1 + t.abs()
        for i in kappa.norm(dim=1).argsort(descending=True).tolist():
            off = (line.t - t[i]).abs() / far[i]
            size = (line.jump - kappa[i]).norm(dim=1) / kappa[i].norm()
            fits = (off < 0.02) & (size < 0.2) & ~matched
            if bool(fits.any()):
                best = int(torch.where(fits, off + 0.1 * size, torch.inf).argmin())
                matched[best] = kept[i] = True
        wanted = ~matched
        # Units that the new line does not show and that are small on it may well be right.
        kept |= kappa.norm(dim=1) < 0.02 * kappa.norm(dim=1).median()
        # Steps beside a fold cost rows on both of its sides: as many folds as can be paid, the strongest first.
        most = max(0, int(self.to_spend(u) / (2 * (n + PILOT))))
        weak = torch.where(wanted, line.jump.norm(dim=1), 0.0).argsort(descending=True)[most:]
        wanted[weak] = False
        if not bool(wanted.any()):
            return self.fit(u)
        R, _ = self.beside(course, line, wanted)
        W = torch.cat([torch.ones(len(R), 1, dtype=torch.float64), R], 1) @ course.B         # in core coordinates
        b = -line.t[wanted] - W @ c0
        new = Units(W, b, line.jump[wanted].T.contiguous(), u.P, u.q)
        old = u.keep(kept)
        # Dropped units leave an affine part behind: the first piece of the new line says what it is.
        tried = Units(torch.cat([old.W, new.W]), torch.cat([old.b, new.b]), torch.cat([old.A, new.A], 1), u.P, u.q)
        tried, after = self.fit(affine_refit(tried, *self.answers(), self.size))
        return (tried, after) if after < rms else self.fit(u)


def affine_refit(u: Units, c: Tensor, y: Tensor, sigma: Tensor, n: int) -> Units:
    """The affine part, and every unit's weight, by linear least squares: the start of a fit."""
    c = c[:, :n]
    design = torch.cat([torch.relu(u.z(c)), c, torch.ones(len(c), 1, dtype=c.dtype)], 1) / sigma[:, None]
    size = design.norm(dim=0).clamp_min(1e-300)
    found = torch.linalg.lstsq(design / size, y / sigma[:, None], driver="gelsd").solution / size[:, None]
    m = len(u)
    return Units(u.W, u.b, found[:m].T.contiguous(), found[m:-1].T.contiguous(), found[-1])


def solve_slopes(on: Tensor, jump: Tensor, J: Tensor, noise: Tensor,
                 rho: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """J[p, j] = P_j + sum_i on[p, i] jump_i r_ij -> (r (m, n), P (k, n), error of r (m,)).

    on (p, m), jump (m, k), J (p, n, k), noise (p, n) of a slope. rho (m,): what r is like, a prior for rows that the
    answers leave open.
    """
    (points, m), k, n = on.shape, jump.shape[1], J.shape[1]
    M = torch.cat([on[:, None, :] * jump.T[None], torch.eye(k, dtype=J.dtype).expand(points, k, k)], 2)
    M = (M[None] / noise.T[:, :, None, None]).reshape(n, points * k, m + k)
    right = (J / noise[:, :, None]).permute(1, 0, 2).reshape(n, points * k, 1)
    if rho is not None:
        prior = torch.cat([torch.diag(1 / (3 * rho)), J.new_zeros(m, k)], 1).expand(n, m, m + k)
        M, right = torch.cat([M, prior], 1), torch.cat([right, J.new_zeros(n, m, 1)], 1)
    inverse = torch.linalg.pinv(M, rtol=1e-13)                       # (n, m + k, rows)
    found = (inverse @ right)[:, :, 0]                               # (n, m + k)
    return found[:, :m].T, found[:, m:].T, inverse[:, :m].norm(dim=2).square().mean(0).sqrt()


def solve_slopes_alike(on: Tensor, jump: Tensor, J: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The same for many directions n with the same noise (p,): one inverse for all of them."""
    (points, m), k, n = on.shape, jump.shape[1], J.shape[1]
    M = torch.cat([on[:, None, :] * jump.T[None], torch.eye(k, dtype=J.dtype).expand(points, k, k)], 2)
    inverse = torch.linalg.pinv((M / noise[:, None, None]).reshape(points * k, m + k), rtol=1e-13)
    found = inverse @ (J / noise[:, None, None]).transpose(1, 2).reshape(points * k, n)
    return found[:m], found[m:]
