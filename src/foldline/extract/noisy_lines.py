"""Folds of a line through noise: straight runs of at least three answers, and their crossings.

lines.py takes a short step for a slope, which noise ruins. Here a piece is a run of answers that one straight line
fits within their error (greedy from the left, so as few pieces as possible); where two runs do not cross between
their ends, or a run has fewer than three answers, the stretch is asked again in its middle; a crossing is checked on
both sides, as close as the noise can tell. At the end all folds are fitted together to all answers.

Cost: about 8 rows per fold. Folds whose kink is below the noise at every scale are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foldline.extract.least_squares import solve_least_squares
from foldline.extract.line_pieces import middle
from foldline.extract.units import Units

Array = NDArray[np.float64]
FIRST = 24                  # answers before anything is known
ROUNDS = 40
SLACK = 1.3                 # times an answer's error that a fitted line may miss it
LEAST = 3                   # answers that make a run
CLOSE = (1e-5, 1e-3)        # how near a fold is checked: two folds nearer than that look like one
SURE = 32.0                 # times its error: nearer, answers on the wrong side of a fold make a run of their own
BLIND = 1e3                 # times the largest error: an answer without a digit between others that have some


@dataclass(frozen=True, eq=False)
class NoisyLine:
    """t (m,) folds and jump (m, k), samples (t (n,), y (n, k)), and the function of t as units in one dimension."""

    t: Tensor
    jump: Tensor
    samples: tuple[Tensor, Tensor]
    fitted: Units
    rms: float
    unresolved: int

    @property
    def smallest_gap(self) -> float:
        return float(self.t.diff().min()) if len(self.t) > 1 else float("inf")


@dataclass(eq=False)
class Straight:
    first: int
    last: int                                                # inclusive
    slope: Array                                             # (k,)
    value: Array                                             # (k,) at t0
    t0: float
    slope_error: float
    value_error: float

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def fit(T: Array, Y: Array, E: Array, i: int, j: int) -> tuple[Straight, float]:
    """The line through answers i..j, and the worst miss in units of their error."""
    t, y, w = T[i:j + 1], Y[i:j + 1], E[i:j + 1]**-2.0
    t0 = float((w * t).sum() / w.sum())
    s = t - t0
    spread = float((w * s * s).sum())
    value = (w[:, None] * y).sum(0) / w.sum()
    slope = (w[:, None] * s[:, None] * y).sum(0) / spread if spread > 0 else np.zeros_like(value)
    miss = np.abs(y - value - s[:, None] * slope).max(1) / E[i:j + 1]
    line = Straight(i, j, slope, value, t0, spread**-0.5 if spread > 0 else np.inf, float(w.sum())**-0.5)
    return line, float(miss.max())


def runs(T: Array, Y: Array, E: Array) -> list[Straight]:
    out: list[Straight] = []
    i = 0
    while i < len(T):
        best = fit(T, Y, E, i, i)[0]
        j = i + 1
        while j < len(T):
            line, miss = fit(T, Y, E, i, j)
            if miss > (SLACK if j > i + 1 else np.inf):
                break
            best, j = line, j + 1
        out.append(best)
        i = best.last + 1
    return out


def crossing(L: Straight, R: Straight) -> tuple[float, float, bool]:
    """(t*, its error, whether the outputs agree on it)"""
    ds = R.slope - L.slope
    size = float(ds @ ds)**0.5
    if size <= 2 * (L.slope_error + R.slope_error):
        return np.nan, np.inf, False
    mid = 0.5 * (L.t0 + R.t0)
    dc = (R.value + R.slope * (mid - R.t0)) - (L.value + L.slope * (mid - L.t0))
    t = mid - float(ds @ dc) / size**2
    error = float(np.hypot.reduce([e for p in (L, R) for e in (p.value_error, p.slope_error * (t - p.t0))]))
    apart = float(np.abs(dc + ds * (t - mid)).max())
    return t, error / size, apart <= 4 * error


def folds_in_noise(ask: Callable[[Tensor], Tensor], far: float, *, error: Callable[[Tensor, Tensor], Tensor],
                   limit: int) -> NoisyLine:
    """Folds of t -> y (n, k) on [-far, far]. error: t (n,), y (n, k) -> (n,), how far an answer may be off, at most."""
    T: Array = np.tan(np.linspace(-np.arctan(far), np.arctan(far), FIRST))
    Y = asked(ask, T)
    E = off_by(error, T, Y)
    tried: dict[tuple[float, float], int] = {}
    # Answers that say nothing (a saturated link) end the line.
    known = np.isfinite(E)
    T, Y, E = T[known], Y[known], E[known]
    for _ in range(ROUNDS if len(T) else 0):
        pieces = runs(T, Y, E)
        wanted = sorted(set(points(T, pieces, tried)))
        wanted = [t for t in wanted if np.abs(T - t).min() > 1e-11 * (1 + abs(t))]
        if not wanted or len(T) + len(wanted) > limit:
            break
        more = asked(ask, np.array(wanted))
        E = np.append(E, off_by(error, np.array(wanted), more))
        T, Y = np.append(T, wanted), np.concatenate([Y, more])
        E[~np.isfinite(E)] = np.nanmax(E[np.isfinite(E)]) * BLIND
        order = T.argsort()
        T, Y, E = T[order], Y[order], E[order]
    return assembled(T, Y, E, runs(T, Y, E))


def asked(ask: Callable[[Tensor], Tensor], T: Array) -> Array:
    y: Array = ask(torch.from_numpy(T)).double().numpy()
    return y


def off_by(error: Callable[[Tensor, Tensor], Tensor], T: Array, Y: Array) -> Array:
    e: Array = error(torch.from_numpy(T), torch.from_numpy(Y)).numpy()
    return e


def points(T: Array, pieces: list[Straight], tried: dict[tuple[float, float], int]) -> list[float]:
    out: list[float] = []
    for p in pieces:
        if p.count >= LEAST:
            continue
        ends = [q for q in (p.first - 1, p.first, p.last, p.last + 1) if 0 <= q < len(T)]
        for i, j in pairwise(ends):
            if T[j] - T[i] > 1e-9 * (1 + abs(T[i])):
                out.append(middle(T[i], T[j], 1.0))
    for L, R in pairwise(pieces):
        if L.count < LEAST or R.count < LEAST:
            continue
        a, b = float(T[L.last]), float(T[R.first])
        t, dt, agree = crossing(L, R)
        if not (agree and a - 4 * dt <= t <= b + 4 * dt):
            tries = tried.get((a, b), 0)
            tried[(a, b)] = tries + 1
            if tries < 1 and b - a > 1e-9 * (1 + abs(a)):
                out.append(middle(a, b, 1.0))
            continue
        size = min(T[R.last] - T[L.first], 1 + abs(t))
        close = max(4 * dt, min(max(SURE * dt, CLOSE[0] * size), CLOSE[1] * size), 1e-9 * (1 + abs(t)))
        if t - a > 2 * close:
            out.append(t - close)
        if b - t > 2 * close:
            out.append(t + close)
    return out


def assembled(T: Array, Y: Array, E: Array, pieces: list[Straight]) -> NoisyLine:
    kept = [p for p in pieces if p.count >= LEAST]
    k = Y.shape[1]
    t, jump = [], []
    for L, R in pairwise(kept):
        at, dt, _ = crossing(L, R)
        a, b = float(T[L.last]), float(T[R.first])
        if not np.isfinite(at):
            continue
        t.append(min(max(at, a - 4 * dt), b + 4 * dt))
        jump.append(R.slope - L.slope)
    first = kept[0] if kept else fit(T, Y, E, 0, len(T) - 1)[0]
    m = len(t)
    u = Units(torch.ones(m, 1, dtype=torch.float64), -torch.tensor(t, dtype=torch.float64),
              torch.tensor(np.array(jump).reshape(m, k)).T.contiguous(), torch.from_numpy(first.slope.copy())[:, None],
              torch.from_numpy(first.value - first.slope * first.t0))
    fitted = solve_least_squares(u, torch.from_numpy(T)[:, None], torch.from_numpy(Y), torch.from_numpy(E),
                                 freeze_rows=True)
    v = fitted.units
    order = (-v.b).argsort()
    v = v.keep(order)
    return NoisyLine(-v.b, v.A.T.contiguous(), (torch.from_numpy(T), torch.from_numpy(Y)), v, fitted.rms,
                     len(pieces) - len(kept))
